/* Sums of matrix products in bfloat16, for processors with AVX-512 BF16 and no tile unit.
 *
 * The gradient of a weight is a product that is added to a sum in single precision. A library
 * makes the product, rounds it, and something else adds it; here a tile of 8 x 48 results stays in
 * registers over the whole reduction and is added once, unrounded.
 *
 * Both operands are packed alike: tiles of `width` lines; in a tile, pairs of consecutive reduction
 * entries; in a pair, the lines. `threads` is the number of OpenMP threads.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64;
typedef uint16_t element;

#define ROWS 8
#define COLUMNS 48
#define VECTORS (COLUMNS / 16)
#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)
#define EACH_VECTOR _Pragma("GCC unroll 3") for (int v = 0; v < VECTORS; v++)
#define PARALLEL_PART _Pragma("omp for schedule(dynamic, 1)")

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

/* A tile of `width` lines from `first` on; entry r of line l lies at x[r * stride + l]. Missing
 * lines and the odd last entry are 0. */
static void pack(const element *x, i64 stride, i64 first, i64 lines, i64 width, i64 entries,
                 uint32_t *out) {
    i64 here = least(width, lines - first);
    for (i64 r = 0; r < entries; r += 2, out += width) {
        const element *low = x + r * stride + first;
        const element *high = low + stride;
        if (r + 1 < entries)
            for (i64 l = 0; l < here; l++) out[l] = low[l] | (uint32_t)high[l] << 16;
        else
            for (i64 l = 0; l < here; l++) out[l] = low[l];
        for (i64 l = here; l < width; l++) out[l] = 0;
    }
}

/* to (rows x columns of it) += a b, over all pairs. */
static void tile(const uint32_t *a, const uint32_t *b, i64 pairs, float *to, i64 stride, i64 rows,
                 i64 columns) {
    __m512 sum[ROWS][VECTORS];
    EACH_ROW
        EACH_VECTOR sum[r][v] = _mm512_setzero_ps();
    for (i64 p = 0; p < pairs; p++, a += ROWS, b += COLUMNS) {
        __m512bh right[VECTORS];
        EACH_VECTOR
            right[v] = (__m512bh)_mm512_loadu_si512(b + 16 * v);
        EACH_ROW {
            __m512bh left = (__m512bh)_mm512_set1_epi32(a[r]);
            EACH_VECTOR
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
        }
    }
    EACH_ROW
        EACH_VECTOR {
            i64 left = columns - 16 * v;
            if (r >= rows || left <= 0) continue;
            __mmask16 mask = left >= 16 ? 0xffff : (1u << left) - 1;
            float *at = to + r * stride + 16 * v;
            __m512 old = _mm512_maskz_loadu_ps(mask, at);
            _mm512_mask_storeu_ps(at, mask, _mm512_add_ps(old, sum[r][v]));
        }
}

/* sum (rows x columns, contiguous) += a^T b; a is entries x rows, b entries x columns, their rows
 * `a_stride` and `b_stride` elements apart. */
void add_product(i64 threads, const element *a, const element *b, float *sum, i64 a_stride,
                 i64 b_stride, i64 entries, i64 rows, i64 columns) {
    i64 pairs = (entries + 1) / 2, tiles = (rows + ROWS - 1) / ROWS;
    i64 panels = (columns + COLUMNS - 1) / COLUMNS;
    uint32_t *right = aligned_alloc(64, 4 * panels * COLUMNS * pairs);
    _Pragma("omp parallel num_threads(threads)") {
        uint32_t *left = aligned_alloc(64, (4 * ROWS * pairs + 63) / 64 * 64);
        PARALLEL_PART for (i64 n = 0; n < panels; n++)
            pack(b, b_stride, n * COLUMNS, columns, COLUMNS, entries, right + n * COLUMNS * pairs);
        PARALLEL_PART for (i64 t = 0; t < tiles; t++) {
            i64 row = t * ROWS;
            pack(a, a_stride, row, rows, ROWS, entries, left);
            for (i64 n = 0; n < panels; n++)
                tile(left, right + n * COLUMNS * pairs, pairs, sum + row * columns + n * COLUMNS,
                     columns, least(ROWS, rows - row), columns - n * COLUMNS);
        }
        free(left);
    }
    free(right);
}
