/* Huffman decoding, the three quarters of the cost of a photo.
 *
 * libjpeg-turbo looks a code up by 8 bits and then takes the value bits in a second step. Here one look of 10 bits mostly
 * finds the code and its value together, the bit buffer is filled 8 bytes at a time, and blocks outside the crop are
 * walked through several symbols at a time.
 *
 * Only the good case is handled. When anything is odd (a code that does not exist, a marker inside an MCU, a run past
 * the end of a block, the end of the data) nothing has been changed yet, and libjpeg decodes the MCU instead, from the
 * same bit on and with the warnings and repairs it is known for. So a damaged file looks the same as anywhere else,
 * but for the one MCU in which a marker cuts the data off: what libjpeg leaves there depends on how far it had read ahead.
 *
 * That needs a view of libjpeg's private decoder state. It is mirrored below and pinned to the versions in which it was
 * read; the build stops at any other. */

#include "jpeg_huffman.h"

#include <string.h>

#if LIBJPEG_TURBO_VERSION_NUMBER != 3001000
#error "compare huff_entropy_decoder in jdhuff.c of this libjpeg-turbo with the struct below, then allow the version"
#endif

#if defined(__GNUC__)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define ALWAYS_INLINE static inline
#define LIKELY(condition) (condition)
#define UNLIKELY(condition) (condition)
#endif

enum { LOOK = SUTLER_LOOK, LAST = DCTSIZE2 - 1 };

/* A full buffer has 56 bits or more, which is enough for ROUND looks whose entries are complete. A code with its value
 * bits apart takes up to 16 + 15, and there is room for one after fewer looks than ROUND_BARE. So a round of looks needs
 * no count of bits, and that rounds are regular is worth more than the refills that counting would save: a processor
 * guesses them right. */
enum { ROUND = 56 / LOOK, ROUND_BARE = (56 - 31) / LOOK + 1 };

/* The head of huff_entropy_decoder; the tables that follow in it are libjpeg's own. */
typedef struct {
  struct {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
    void (*decode_mcus)(void);
    boolean (*process_restart)(j_decompress_ptr);
    boolean insufficient_data;
  } shared;
  struct {
    size_t get_buffer; /* its lowest bits_left bits are yet to be used */
    int bits_left;
  } bits;
  int last_dc_val[MAX_COMPS_IN_SCAN];
  unsigned int restarts_to_go;
} entropy_state;

/* From the order in the file to the order in the block; past the end it stays on the last place, so that a run that
 * goes too far, which is noticed afterwards, writes nowhere else. */
static const uint8_t natural_order[DCTSIZE2 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* Table entries. A value entry has the length of code and value in bits 0-7, in bits 8-15 how far it moves in the block,
 * and the value, which is never 0, in bits 16-31. With a 0 there bits 8-15 are the symbol, and its value bits are still
 * to come; all 0 means that the code is longer than the look. A DC entry whose value may be 0 has COMPLETE instead.
 * A skip entry has the length of all its symbols, how far they move, and ENDS if the last one ends the block. */
enum { COMPLETE = 1 << 15, ENDS = 1 << 16 };

static int32_t extended(uint32_t bits, unsigned size) {
  return bits < 1u << (size - 1) ? (int32_t)bits - (int32_t)(1u << size) + 1 : (int32_t)bits;
}

static void fill(uint32_t *entries, size_t count, uint32_t entry) {
  for (size_t i = 0; i < count; i++) entries[i] = entry;
}

static void make_value_entries(sutler_huffman_table *table, int is_dc) {
  uint32_t code = 0;
  int symbol_index = 0;
  memset(table->value, 0, sizeof table->value);
  for (unsigned length = 1; length <= 16; length++, code <<= 1) {
    table->offset[length] = symbol_index - (int32_t)code;
    for (int i = 0; i < table->source.bits[length]; i++, code++, symbol_index++) {
      if (length > LOOK) continue;
      unsigned symbol = table->source.huffval[symbol_index];
      unsigned size = symbol & 15, left = LOOK - length;
      uint32_t *entries = table->value + ((size_t)code << left);
      if (size == 0 || size > left) {
        uint32_t entry = is_dc && size == 0 ? COMPLETE | length : symbol << 8 | length;
        fill(entries, (size_t)1 << left, entry);
        continue;
      }
      uint32_t second = is_dc ? COMPLETE >> 8 : (symbol >> 4) + 1;
      for (uint32_t bits = 0; bits < 1u << size; bits++) {
        uint32_t entry = (uint32_t)extended(bits, size) << 16 | second << 8 | (length + size);
        fill(entries + ((size_t)bits << (left - size)), (size_t)1 << (left - size), entry);
      }
    }
    table->limit[length] = code << (16 - length);
  }
}

static void make_skip_entries(sutler_huffman_table *table) {
  for (uint32_t look = 0; look < 1u << LOOK; look++) {
    unsigned used = 0, moved = 0;
    uint32_t ends = 0;
    while (!ends) {
      uint32_t entry = table->value[look << used & ((1u << LOOK) - 1)];
      unsigned length = entry & 255, second = entry >> 8 & 255;
      if (length == 0 || used + length > LOOK) break; /* the bits behind the look are not zeros but unknown */
      if (entry >> 16 == 0) {
        if ((second & 15) != 0) break; /* its value bits are behind the look */
        if (second == 0xf0)
          second = 16;
        else
          second = 0, ends = ENDS;
      }
      used += length;
      moved += second;
    }
    table->skip[look] = ends | moved << 8 | used;
  }
  table->made_skip = 1;
}

/* Tables come from the file, but most files have those of the standard: they are made again only when they differ. */
static void make(sutler_huffman_table *table, const JHUFF_TBL *source, int is_dc) {
  if (table->made && memcmp(table->source.bits, source->bits, sizeof source->bits) == 0 &&
      memcmp(table->source.huffval, source->huffval, sizeof source->huffval) == 0)
    return;
  table->source = *source;
  make_value_entries(table, is_dc);
  table->made = 1;
  table->made_skip = 0;
}

/* The bits yet to be used stand at the top of `buffer`, `count` of them; below there may be some of the next byte. */
typedef struct {
  uint64_t buffer;
  int count;
  const uint8_t *next, *end;
} bit_reader;

/* Fills up to at least 56 bits, to fewer in front of a marker. 0 when more was used than there was, and at the end of
 * the file: that no marker has come before it is for libjpeg to judge. */
ALWAYS_INLINE int refill(bit_reader *reader) {
  const uint8_t *p = reader->next;
  if (UNLIKELY(reader->count < 0)) return 0;
  if (LIKELY(reader->end - p >= 8)) {
    uint64_t word = (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 | (uint64_t)p[3] << 32 |
                    (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | (uint64_t)p[7];
    /* Without a byte of all ones there is neither a stuffed zero nor a marker. */
    if (LIKELY(((~word - 0x0101010101010101u) & word & 0x8080808080808080u) == 0)) {
      reader->buffer |= word >> reader->count;
      reader->next = p + ((63 - reader->count) >> 3);
      reader->count |= 56; /* by as many whole bytes as there was room for */
      return 1;
    }
  }
  while (reader->count <= 56) {
    if (reader->end - reader->next < 2) return 0;
    uint8_t byte = *reader->next;
    if (byte == 0xff) {
      if (reader->next[1] == 0xff) return 0; /* fill bytes: what they lead to is for libjpeg to see */
      if (reader->next[1] != 0) break;
      reader->next++;
    }
    reader->next++;
    reader->buffer |= (uint64_t)byte << (56 - reader->count);
    reader->count += 8;
  }
  return 1;
}

ALWAYS_INLINE void use(bit_reader *reader, unsigned bits) {
  reader->buffer <<= bits;
  reader->count -= (int)bits;
}

ALWAYS_INLINE uint32_t take(bit_reader *reader, unsigned bits) {
  uint32_t value = (uint32_t)(reader->buffer >> (64 - bits));
  use(reader, bits);
  return value;
}

/* The symbol of a code that is longer than the look, or -1. */
static int long_symbol(const sutler_huffman_table *table, bit_reader *reader) {
  uint32_t code = (uint32_t)(reader->buffer >> 48);
  for (unsigned length = LOOK + 1; length <= 16; length++) {
    if (code < table->limit[length]) {
      use(reader, length);
      return table->source.huffval[(int32_t)(code >> (16 - length)) + table->offset[length]];
    }
  }
  return -1;
}

/* The symbol whose entry has no value in it. */
ALWAYS_INLINE int bare_symbol(const sutler_huffman_table *table, bit_reader *reader, uint32_t entry) {
  if (LIKELY(entry & 255)) {
    use(reader, entry & 255);
    return (int)(entry >> 8 & 255);
  }
  return long_symbol(table, reader);
}

ALWAYS_INLINE int dc_difference(const sutler_huffman_table *table, bit_reader *reader, int32_t *difference) {
  if (!refill(reader)) return 0;
  uint32_t entry = table->value[reader->buffer >> (64 - LOOK)];
  if (LIKELY(entry & COMPLETE)) {
    use(reader, entry & 255);
    *difference = (int32_t)entry >> 16;
    return 1;
  }
  int size = bare_symbol(table, reader, entry);
  if (size < 0) return 0;
  *difference = size == 0 ? 0 : extended(take(reader, (unsigned)size), (unsigned)size);
  return 1;
}

/* Walks through the rest of a block and writes what is not 0. */
ALWAYS_INLINE int ac_values(const sutler_huffman_table *table, bit_reader *reader, JCOEF *block) {
  unsigned k = 0;
  for (;;) {
    uint32_t entry;
    if (!refill(reader)) return 0;
    for (int i = 0; i < ROUND; i++) {
      entry = table->value[reader->buffer >> (64 - LOOK)];
      if (UNLIKELY((int32_t)entry >> 16 == 0)) {
        if (i < ROUND_BARE) goto bare;
        goto again;
      }
      use(reader, entry & 255);
      k += entry >> 8 & 255;
      block[natural_order[k]] = (JCOEF)(entry >> 16);
      if (UNLIKELY(k >= LAST)) return k == LAST;
    }
  again:
    continue;
  bare:;
    int symbol = bare_symbol(table, reader, entry);
    if (symbol <= 0) return symbol == 0;
    unsigned size = (unsigned)symbol & 15;
    if (size == 0) {
      if (symbol != 0xf0) return 1;
      k += 16;
      if (k >= LAST) return k == LAST;
      continue;
    }
    k += ((unsigned)symbol >> 4) + 1;
    block[natural_order[k]] = (JCOEF)extended(take(reader, size), size);
    if (k >= LAST) return k == LAST;
  }
}

/* Walks through the rest of a block. */
ALWAYS_INLINE int ac_skip(const sutler_huffman_table *table, bit_reader *reader) {
  unsigned k = 0;
  for (;;) {
    uint32_t look, entry;
    if (!refill(reader)) return 0;
    for (int i = 0; i < ROUND; i++) {
      look = (uint32_t)(reader->buffer >> (64 - LOOK));
      entry = table->skip[look];
      unsigned moved = entry >> 8 & 255;
      /* Short of the end of the block, or the last of the symbols might belong to the next one. */
      if (UNLIKELY((entry & 255) == 0 || k + moved >= LAST)) {
        if (i < ROUND_BARE) goto single;
        goto again;
      }
      use(reader, entry & 255);
      k += moved;
      if (entry & ENDS) return 1;
    }
  again:
    continue;
  single:
    entry = table->value[look];
    if (entry >> 16 != 0) {
      use(reader, entry & 255);
      k += entry >> 8 & 255;
    } else {
      int symbol = bare_symbol(table, reader, entry);
      if (symbol < 0) return 0;
      unsigned size = (unsigned)symbol & 15;
      if (size == 0 && symbol != 0xf0) return 1;
      use(reader, size);
      k += ((unsigned)symbol >> 4) + 1;
    }
    if (k >= LAST) return k == LAST;
  }
}

/* Decodes one MCU, into `blocks` or, without any, for its length and its DC values. Changes nothing when it fails. */
ALWAYS_INLINE int decode_blocks(sutler_huffman *self, j_decompress_ptr codec, JBLOCKROW *blocks) {
  entropy_state *state = (entropy_state *)codec->entropy;
  struct jpeg_source_mgr *source = codec->src;
  int last_dc[MAX_COMPS_IN_SCAN];
  int left = state->bits.bits_left;
  if (left > 63) return 0;
  bit_reader reader = {left > 0 ? (uint64_t)state->bits.get_buffer << (64 - left) : 0, left, source->next_input_byte,
                       source->next_input_byte + source->bytes_in_buffer};
  memcpy(last_dc, state->last_dc_val, sizeof last_dc);
  for (int i = 0; i < codec->blocks_in_MCU; i++) {
    sutler_huffman_block with = self->blocks[i];
    int32_t difference;
    if (!dc_difference(with.dc, &reader, &difference)) return 0;
    /* Through unsigned numbers: a hostile file can make the sum overflow, and libjpeg lets it wrap. */
    last_dc[with.component] = (int)((unsigned)last_dc[with.component] + (unsigned)difference);
    if (blocks != NULL) (*blocks[i])[0] = (JCOEF)last_dc[with.component];
    if (blocks != NULL && with.wants_ac) {
      if (!ac_values(with.ac, &reader, *blocks[i])) return 0;
    } else {
      if (!ac_skip(with.ac, &reader)) return 0;
    }
  }
  if (reader.count < 0) return 0;
  state->bits.get_buffer = reader.count > 0 ? (size_t)(reader.buffer >> (64 - reader.count)) : 0;
  state->bits.bits_left = reader.count;
  source->bytes_in_buffer = (size_t)(reader.end - reader.next);
  source->next_input_byte = reader.next;
  memcpy(state->last_dc_val, last_dc, sizeof last_dc);
  return 1;
}

static void prepare_to_skip(sutler_huffman *self) {
  for (int i = 0; i < NUM_HUFF_TBLS; i++)
    if (self->ac[i].made && !self->ac[i].made_skip) make_skip_entries(&self->ac[i]);
  self->can_skip = 1;
}

ALWAYS_INLINE boolean decode_mcu(j_decompress_ptr codec, JBLOCKROW *blocks) {
  sutler_huffman *self = codec->client_data;
  entropy_state *state = (entropy_state *)codec->entropy;
  JDIMENSION column = self->column;
  self->column = column + 1 == codec->MCUs_per_row ? 0 : column + 1;
  /* libjpeg takes over at restarts and after it has met a marker or run out of data. */
  if (LIKELY(!state->shared.insufficient_data && codec->unread_marker == 0 &&
             (codec->restart_interval == 0 || state->restarts_to_go > 0))) {
    int done;
    if (blocks != NULL && column >= self->first_column && column <= self->last_column) {
      done = decode_blocks(self, codec, blocks);
    } else {
      if (UNLIKELY(!self->can_skip)) prepare_to_skip(self);
      done = decode_blocks(self, codec, NULL);
    }
    if (LIKELY(done)) {
      if (codec->restart_interval != 0) state->restarts_to_go--;
      return TRUE;
    }
    if (blocks != NULL)
      for (int i = 0; i < codec->blocks_in_MCU; i++) memset(*blocks[i], 0, sizeof(JBLOCK));
  }
  return self->original(codec, blocks);
}

static boolean decode_mcu_portable(j_decompress_ptr codec, JBLOCKROW *blocks) { return decode_mcu(codec, blocks); }

#if defined(__GNUC__) && defined(__x86_64__)
/* The same code; shifts by a variable number of bits are most of it, and BMI2 has better ones. */
__attribute__((target("bmi2"))) static boolean decode_mcu_bmi2(j_decompress_ptr codec, JBLOCKROW *blocks) {
  return decode_mcu(codec, blocks);
}
#endif

void sutler_huffman_install(sutler_huffman *self, j_decompress_ptr codec, JDIMENSION x, JDIMENSION width, int bmi2) {
  entropy_state *state = (entropy_state *)codec->entropy;
  JDIMENSION mcu_width = (JDIMENSION)(codec->min_DCT_scaled_size *
                                      (codec->num_components == 1 ? 1 : codec->max_h_samp_factor));
  self->column = 0;
  self->first_column = x / mcu_width;
  self->last_column = (x + width - 1) / mcu_width;
  self->can_skip = 0;
  for (int i = 0; i < codec->comps_in_scan; i++) {
    const jpeg_component_info *component = codec->cur_comp_info[i];
    make(&self->dc[component->dc_tbl_no], codec->dc_huff_tbl_ptrs[component->dc_tbl_no], 1);
    make(&self->ac[component->ac_tbl_no], codec->ac_huff_tbl_ptrs[component->ac_tbl_no], 0);
  }
  for (int i = 0; i < codec->blocks_in_MCU; i++) {
    int component = codec->MCU_membership[i];
    const jpeg_component_info *info = codec->cur_comp_info[component];
    int wants_ac = info->DCT_scaled_size > 1;
    if (!wants_ac && !self->can_skip) prepare_to_skip(self);
    self->blocks[i] =
        (sutler_huffman_block){&self->dc[info->dc_tbl_no], &self->ac[info->ac_tbl_no], component, wants_ac};
  }
  self->original = state->shared.decode_mcu;
  state->shared.decode_mcu = decode_mcu_portable;
  (void)bmi2;
#if defined(__GNUC__) && defined(__x86_64__)
  if (bmi2) state->shared.decode_mcu = decode_mcu_bmi2;
#endif
}
