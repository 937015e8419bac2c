/* A narrow door to libjpeg-turbo.
 *
 * libjpeg reports errors by leaving its caller with longjmp, which must not cross Rust frames, and it stops decoding
 * after the last wanted row only when it is driven row by row. Both are done here, and nothing else: sizes, limits and
 * regions are decided in Rust.
 *
 * An image takes two calls: sutler_jpeg_begin reads the headers and says what the rows will look like,
 * sutler_jpeg_rows writes them. Whatever happens in between, the next begin starts afresh. */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "jpeg_huffman.h"

#ifndef WITH_SIMD
#error "libjpeg-turbo was built without SIMD, which makes decoding about 1.6 times slower: install nasm and build again"
#endif

enum { SUTLER_OK = 0, SUTLER_TRUNCATED = 1, SUTLER_CORRUPT = 2, SUTLER_TOO_MANY_SCANS = 3 };

/* What Rust asks for; all lengths are in pixels of the scaled image. */
typedef struct {
  uint32_t x, width;          /* columns wanted */
  uint32_t denominator;       /* 1, 2, 4 or 8 */
  uint32_t croppable;         /* 0 where libjpeg can only hand out whole rows */
  uint32_t scans_max;         /* more scans than this are a bomb */
  uint32_t bmi2;              /* whether the processor has these instructions */
} sutler_jpeg_request;

/* What Rust gets to know before it makes room for the rows. */
typedef struct {
  uint32_t x, width;          /* columns that each row will hold */
  uint32_t full_width, full_height;
  uint32_t channels;          /* 3: RGB, 4: CMYK as it is in the file */
} sutler_jpeg_shape;

typedef struct {
  sutler_huffman huffman; /* first, as it is found through client_data */
  struct jpeg_decompress_struct codec;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf escape;
  int failure;
  uint32_t scans_max;
  uint32_t warnings;
  char error_text[JMSG_LENGTH_MAX];
  char warning_text[JMSG_LENGTH_MAX];
  void *(*alloc_small)(j_common_ptr, int, size_t);
} sutler_jpeg;

static void leave(j_common_ptr codec, int failure) {
  sutler_jpeg *self = codec->client_data;
  self->failure = failure;
  longjmp(self->escape, 1);
}

static void on_error(j_common_ptr codec) {
  sutler_jpeg *self = codec->client_data;
  (*codec->err->format_message)(codec, self->error_text);
  leave(codec, SUTLER_CORRUPT);
}

static void on_message(j_common_ptr codec, int level) {
  sutler_jpeg *self = codec->client_data;
  if (level >= 0) return; /* a trace, not a warning */
  if (self->warnings++ == 0) (*codec->err->format_message)(codec, self->warning_text);
  codec->err->num_warnings++;
}

static void on_output(j_common_ptr codec) {
  (void)codec; /* a library has no business on stderr */
}

static void on_progress(j_common_ptr codec) {
  sutler_jpeg *self = codec->client_data;
  if ((uint32_t)self->codec.input_scan_number > self->scans_max) leave(codec, SUTLER_TOO_MANY_SCANS);
}

static void source_noop(j_decompress_ptr codec) { (void)codec; }

/* The whole file is in memory, so being asked for more means that it ends too early. */
static boolean source_dry(j_decompress_ptr codec) {
  leave((j_common_ptr)codec, SUTLER_TRUNCATED);
  return FALSE;
}

static void source_skip(j_decompress_ptr codec, long count) {
  if (count <= 0) return;
  if ((size_t)count > codec->src->bytes_in_buffer) leave((j_common_ptr)codec, SUTLER_TRUNCATED);
  codec->src->next_input_byte += count;
  codec->src->bytes_in_buffer -= (size_t)count;
}

/* libjpeg keeps quantisation and Huffman tables for the next image, so that a file without tables would be decoded with
 * those of whatever came before it. The tables are the only things it allocates for good once it has been created:
 * taking them from the image's pool instead frees them with the image, and the pointers are cleared in begin. */
static void *alloc_for_image(j_common_ptr codec, int pool, size_t bytes) {
  sutler_jpeg *self = codec->client_data;
  return self->alloc_small(codec, pool == JPOOL_PERMANENT ? JPOOL_IMAGE : pool, bytes);
}

static void forget_tables(j_decompress_ptr codec) {
  for (int i = 0; i < NUM_QUANT_TBLS; i++) codec->quant_tbl_ptrs[i] = NULL;
  for (int i = 0; i < NUM_HUFF_TBLS; i++) codec->dc_huff_tbl_ptrs[i] = codec->ac_huff_tbl_ptrs[i] = NULL;
}

void sutler_jpeg_free(sutler_jpeg *self) {
  if (self == NULL) return;
  jpeg_destroy_decompress(&self->codec);
  free(self);
}

sutler_jpeg *sutler_jpeg_new(void) {
  sutler_jpeg *volatile self = calloc(1, sizeof *self); /* volatile: read again after a jump */
  if (self == NULL) return NULL;
  self->codec.err = jpeg_std_error(&self->errors);
  self->errors.error_exit = on_error;
  self->errors.emit_message = on_message;
  self->errors.output_message = on_output;
  self->codec.client_data = self;
  if (setjmp(self->escape)) {
    sutler_jpeg_free(self);
    return NULL;
  }
  jpeg_create_decompress(&self->codec);
  self->source.init_source = source_noop;
  self->source.fill_input_buffer = source_dry;
  self->source.skip_input_data = source_skip;
  self->source.resync_to_restart = jpeg_resync_to_restart;
  self->source.term_source = source_noop;
  self->codec.src = &self->source;
  self->progress.progress_monitor = on_progress;
  self->alloc_small = self->codec.mem->alloc_small;
  self->codec.mem->alloc_small = alloc_for_image;
  return self;
}

uint32_t sutler_jpeg_warnings(const sutler_jpeg *self) { return self->warnings; }
const char *sutler_jpeg_warning_text(const sutler_jpeg *self) { return self->warning_text; }
const char *sutler_jpeg_error_text(const sutler_jpeg *self) { return self->error_text; }

/* A progressive file may stop before every coefficient is complete. libjpeg then smooths across block borders, further
 * than the columns beside a crop reach, so such an image is decoded in whole rows. */
static int is_smoothed(j_decompress_ptr codec) {
  enum { SMOOTHED_COEFFICIENTS = 10 };
  if (!codec->progressive_mode || codec->coef_bits == NULL) return 0;
  for (int component = 0; component < codec->num_components; component++)
    for (int i = 1; i < SMOOTHED_COEFFICIENTS; i++)
      if (codec->coef_bits[component][i] != 0) return 1;
  return 0;
}

int sutler_jpeg_begin(sutler_jpeg *self, const uint8_t *bytes, size_t length, const sutler_jpeg_request *request,
                      sutler_jpeg_shape *shape) {
  j_decompress_ptr codec = &self->codec;
  self->failure = SUTLER_OK;
  self->warnings = 0;
  self->warning_text[0] = self->error_text[0] = 0;
  self->scans_max = request->scans_max;
  if (setjmp(self->escape)) {
    jpeg_abort_decompress(codec);
    return self->failure;
  }
  jpeg_abort_decompress(codec);
  forget_tables(codec);
  self->source.next_input_byte = bytes;
  self->source.bytes_in_buffer = length;
  jpeg_read_header(codec, TRUE);
  /* The monitor runs between rows; only files in several scans can have too many of them. */
  codec->progress = jpeg_has_multiple_scans(codec) ? &self->progress : NULL;

  codec->dct_method = JDCT_ISLOW;
  codec->do_fancy_upsampling = TRUE;
  codec->scale_num = 8 / request->denominator;
  codec->scale_denom = 8;
  codec->out_color_space =
      codec->jpeg_color_space == JCS_CMYK || codec->jpeg_color_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(codec);

  shape->full_width = codec->output_width;
  shape->full_height = codec->output_height;
  shape->channels = (uint32_t)codec->output_components;
  JDIMENSION x = request->x, width = request->width;
  if (request->croppable && !is_smoothed(codec)) {
    jpeg_crop_scanline(codec, &x, &width);
  } else {
    x = 0;
    width = codec->output_width;
  }
  /* Neither lossless nor progressive nor arithmetic coding, nor baseline coding in several scans. libjpeg's bit buffer,
   * which is shared, has 64 bits on these machines only. */
  if (sizeof(size_t) == 8 && request->croppable && !codec->progressive_mode && !codec->arith_code && !jpeg_has_multiple_scans(codec))
    sutler_huffman_install(&self->huffman, codec, x, width, request->bmi2 != 0);
  shape->x = x;
  shape->width = width;
  return SUTLER_OK;
}

/* Writes `count` rows from row `first` on, each `stride` bytes after the one before. With `to_the_end` the rows below
 * are decoded too and dropped, which finds out whether the file has them. */
int sutler_jpeg_rows(sutler_jpeg *self, uint32_t first, uint32_t count, int to_the_end, uint8_t *out, size_t stride) {
  enum { ROWS_AT_ONCE = 16 }; /* libjpeg hands out at most one row group, that is 4 rows, at a time */
  j_decompress_ptr codec = &self->codec;
  JSAMPROW rows[ROWS_AT_ONCE];
  if (setjmp(self->escape)) {
    jpeg_abort_decompress(codec);
    return self->failure;
  }
  uint32_t last = first + count;
  if (first > 0) jpeg_skip_scanlines(codec, first);
  while (codec->output_scanline < last) {
    JDIMENSION left = last - codec->output_scanline;
    if (left > ROWS_AT_ONCE) left = ROWS_AT_ONCE;
    for (JDIMENSION i = 0; i < left; i++) rows[i] = out + (codec->output_scanline - first + i) * stride;
    jpeg_read_scanlines(codec, rows, left);
  }
  if (to_the_end && last < codec->output_height) {
    /* Skipping up to the very bottom would end the image without reading it, so the last row is read. */
    if (last + 1 < codec->output_height) jpeg_skip_scanlines(codec, codec->output_height - 1 - last);
    rows[0] = (*codec->mem->alloc_small)((j_common_ptr)codec, JPOOL_IMAGE,
                                         (size_t)codec->output_width * (size_t)codec->output_components);
    while (codec->output_scanline < codec->output_height) jpeg_read_scanlines(codec, rows, 1);
  }
  jpeg_abort_decompress(codec);
  return SUTLER_OK;
}
