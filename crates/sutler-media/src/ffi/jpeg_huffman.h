#ifndef SUTLER_JPEG_HUFFMAN_H
#define SUTLER_JPEG_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* How many bits one look into a table covers. With 10 and 11 photos decode equally fast, with 9 and 12 slower; 10 has the
 * smaller tables, which are made anew for files with codes of their own. */
enum { SUTLER_LOOK = 10 };

typedef struct {
  uint32_t value[1 << SUTLER_LOOK]; /* one symbol with its value */
  uint32_t skip[1 << SUTLER_LOOK];  /* as many symbols as fit, without values; AC tables only */
  uint32_t limit[18];               /* by length: the first 16 bits that belong to a longer code */
  int32_t offset[18];               /* by length: from a code to its symbol */
  JHUFF_TBL source;                 /* what the table was made of */
  int made, made_skip;
} sutler_huffman_table;

/* What each block of an MCU is decoded with. */
typedef struct {
  const sutler_huffman_table *dc, *ac;
  int component; /* within the scan */
  int wants_ac;  /* not where a block becomes a single pixel */
} sutler_huffman_block;

typedef struct {
  sutler_huffman_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
  boolean (*original)(j_decompress_ptr, JBLOCKROW *); /* libjpeg's own decoder */
  sutler_huffman_block blocks[D_MAX_BLOCKS_IN_MCU];
  JDIMENSION column;                                  /* of the MCU that comes next */
  JDIMENSION first_column, last_column;               /* MCUs outside are decoded for their length alone */
  int can_skip;                                       /* whether the tables for that have been made */
} sutler_huffman;

/* Puts the fast decoder in place of libjpeg's, which it falls back on. To be called between jpeg_start_decompress and
 * the first row, for an image in one scan with Huffman codes. Columns are those of jpeg_crop_scanline. The client_data
 * of the codec has to point at `self`; `bmi2` says whether the processor has these instructions. */
void sutler_huffman_install(sutler_huffman *self, j_decompress_ptr codec, JDIMENSION x, JDIMENSION width, int bmi2);

#endif
