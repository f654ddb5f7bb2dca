/* Matrix products in bfloat16, for processors with AVX-512 BF16 and no tile unit.
 *
 * A tile of 8 x 48 results stays in registers over the whole reduction. One operand is packed:
 * panels of 48 lines; in a panel, pairs of consecutive reduction entries; in a pair, the lines.
 * The other is read as it lies where its reduction entries are neighbours, else it is packed alike,
 * 8 lines at a time. A row's result never depends on the other rows, nor on how many there are.
 * `threads` is the number of OpenMP threads.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64;
typedef uint16_t element;

#define ROWS 8
#define COLUMNS 48
#define LANES 16
#define VECTORS (COLUMNS / LANES)
#define BLOCK (2 * LANES) /* lines that are packed together, a cache line of them */
#define STRIP_BYTES (384 << 10) /* of the operand read as it lies: they stay in a core's cache */
#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)
#define EACH_VECTOR _Pragma("GCC unroll 3") for (int v = 0; v < VECTORS; v++)
#define PARALLEL _Pragma("omp parallel num_threads(threads)")
#define SHARED_OUT _Pragma("omp for schedule(dynamic, 1)")

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 ceiling(i64 a, i64 b) { return (a + b - 1) / b; }

static inline __mmask16 lanes(i64 left) {
    return left >= LANES ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
}

static inline __m512 up(__m256i x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}

/* Lines `first` .. of a matrix whose lines are neighbours: entry e of line l is x[e * stride + l].
 * Missing lines and an odd last entry are 0. */
static inline void pack_entries(const element *x, i64 stride, i64 first, i64 lines, i64 width,
                                i64 entries, uint32_t *out) {
    i64 here = least(width, lines - first);
    for (i64 e = 0; e < entries; e += 2, out += width) {
        const element *low = x + e * stride + first, *high = low + stride;
        if (e + 1 < entries && here == width) {
            for (i64 l = 0; l < width; l++) out[l] = low[l] | (uint32_t)high[l] << 16;
            continue;
        }
        for (i64 l = 0; l < width; l++) out[l] = l < here ? low[l] : 0;
        if (e + 1 < entries)
            for (i64 l = 0; l < here; l++) out[l] |= (uint32_t)high[l] << 16;
    }
}

/* 16 x 16 words: word c of x[r] becomes word r of x[c]. */
static inline void turn(__m512i x[LANES]) {
    __m512i y[LANES];
    for (int r = 0; r < LANES; r += 2) {
        y[r] = _mm512_unpacklo_epi32(x[r], x[r + 1]);
        y[r + 1] = _mm512_unpackhi_epi32(x[r], x[r + 1]);
    }
    for (int r = 0; r < LANES; r += 4)
        for (int k = 0; k < 2; k++) {
            x[r + 2 * k] = _mm512_unpacklo_epi64(y[r + k], y[r + k + 2]);
            x[r + 2 * k + 1] = _mm512_unpackhi_epi64(y[r + k], y[r + k + 2]);
        }
    for (int c = 0; c < 4; c++) { /* a quarter of x[c + 4 i]: words c, c + 4, ... of 4 rows */
        __m512i even0 = _mm512_shuffle_i32x4(x[c], x[c + 4], 0x88);
        __m512i even1 = _mm512_shuffle_i32x4(x[c + 8], x[c + 12], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(x[c], x[c + 4], 0xdd);
        __m512i odd1 = _mm512_shuffle_i32x4(x[c + 8], x[c + 12], 0xdd);
        y[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        y[c + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        y[c + 8] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        y[c + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
    for (int r = 0; r < LANES; r++) x[r] = y[r];
}

/* The same of a matrix whose entries are neighbours: entry e of line l is x[l * stride + e]; their
 * number is even. */
static inline void pack_lines(const element *x, i64 stride, i64 first, i64 lines, i64 entries,
                              uint32_t *out) {
    i64 pairs = entries / 2;
    for (i64 p = 0; p < pairs; p += LANES)
        for (i64 l = 0; l < COLUMNS; l += LANES) {
            __m512i block[LANES];
            for (i64 r = 0; r < LANES; r++) {
                __mmask16 there = first + l + r < lines ? lanes(pairs - p) : 0;
                const element *from = x + (first + l + r) * stride + 2 * p;
                block[r] = _mm512_maskz_loadu_epi32(there, from);
            }
            turn(block);
            for (i64 r = 0; r < least(LANES, pairs - p); r++)
                _mm512_storeu_si512(out + (p + r) * COLUMNS + l, block[r]);
        }
}

/* Packs `lines` of `entries` for `multiply`; by_line: the entries of a line are neighbours. Panels
 * are `size` words apart: there may be entries of other matrices between them. */
void pack_panels(i64 threads, const element *x, uint32_t *out, i64 stride, i64 lines, i64 entries,
                 i64 by_line, i64 size) {
    i64 panels = ceiling(lines, COLUMNS);
    PARALLEL SHARED_OUT for (i64 n = 0; n < panels; n++) {
        if (by_line)
            pack_lines(x, stride, n * COLUMNS, lines, entries, out + n * size);
        else
            pack_entries(x, stride, n * COLUMNS, lines, COLUMNS, entries, out + n * size);
    }
}

/* sum = a b over all pairs. Pair p of row r is a[r * row_step + p * pair_step]; rows that are not
 * there repeat the last one. */
static inline void accumulate(__m512 sum[ROWS][VECTORS], const uint32_t *a, i64 row_step,
                              i64 pair_step, i64 rows, const uint32_t *b, i64 pairs) {
    const uint32_t *row[ROWS];
    EACH_ROW {
        row[r] = a + least(r, rows - 1) * row_step;
        EACH_VECTOR sum[r][v] = _mm512_setzero_ps();
    }
    for (i64 p = 0; p < pairs; p++, b += COLUMNS) {
        __m512bh right[VECTORS];
        EACH_VECTOR right[v] = (__m512bh)_mm512_loadu_si512(b + LANES * v);
        EACH_ROW {
            __m512bh left = (__m512bh)_mm512_set1_epi32(row[r][p * pair_step]);
            EACH_VECTOR sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
        }
    }
}

/* out (rows x columns, contiguous) = a b, rounded once. a is rows x entries, an even number, its
 * rows `a_stride` elements apart, even too; b is packed. Where `more` is given it is added before
 * the rounding; its rows are `more_stride` apart, and 0 takes one row for all. */
void multiply(i64 threads, const element *a, const uint32_t *b, const element *more, element *out,
              i64 a_stride, i64 more_stride, i64 rows, i64 entries, i64 columns) {
    i64 pairs = entries / 2, panels = ceiling(columns, COLUMNS);
    i64 fits = STRIP_BYTES / (2 * entries) / ROWS * ROWS, strip = fits > 64 ? fits : 64;
    PARALLEL SHARED_OUT for (i64 part = 0; part < panels * ceiling(rows, strip); part++) {
        i64 column = part % panels * COLUMNS, first = part / panels * strip;
        for (i64 row = first; row < least(rows, first + strip); row += ROWS) {
            __m512 sum[ROWS][VECTORS];
            accumulate(sum, (const uint32_t *)(a + row * a_stride), a_stride / 2, 1, rows - row,
                       b + column * pairs, pairs);
            EACH_ROW
                EACH_VECTOR {
                    i64 at = column + LANES * v;
                    __mmask16 mask = r < rows - row ? lanes(columns - at) : 0;
                    if (more) {
                        const element *from = more + (row + r) * more_stride + at;
                        sum[r][v] = _mm512_add_ps(sum[r][v], up(_mm256_maskz_loadu_epi16(mask, from)));
                    }
                    _mm256_mask_storeu_epi16(out + (row + r) * columns + at, mask,
                                             (__m256i)_mm512_cvtneps_pbh(sum[r][v]));
                }
        }
    }
}

/* BLOCK lines whose lines are neighbours, ROWS together: in these, pairs of entries; in a pair, the
 * lines. Missing lines and an odd last entry are 0. */
static inline void pack_block(const element *x, i64 stride, i64 first, i64 lines, i64 entries,
                              uint32_t *out) {
    i64 pairs = ceiling(entries, 2), step = pairs * ROWS / 4;
    __mmask32 there = lines - first >= BLOCK ? ~0u : (1u << (lines - first)) - 1;
    for (i64 p = 0; p < pairs; p++) {
        const element *from = x + 2 * p * stride + first;
        __m512i low = _mm512_maskz_loadu_epi16(there, from);
        __m512i high = _mm512_maskz_loadu_epi16(2 * p + 1 < entries ? there : 0, from + stride);
        __m512i even = _mm512_unpacklo_epi16(low, high), odd = _mm512_unpackhi_epi16(low, high);
        __m128i *to = (__m128i *)(out + p * ROWS);
        to[0] = _mm512_extracti32x4_epi32(even, 0);
        to[1] = _mm512_extracti32x4_epi32(odd, 0);
        to[step] = _mm512_extracti32x4_epi32(even, 1);
        to[step + 1] = _mm512_extracti32x4_epi32(odd, 1);
        to[2 * step] = _mm512_extracti32x4_epi32(even, 2);
        to[2 * step + 1] = _mm512_extracti32x4_epi32(odd, 2);
        to[3 * step] = _mm512_extracti32x4_epi32(even, 3);
        to[3 * step + 1] = _mm512_extracti32x4_epi32(odd, 3);
    }
}

/* sum (rows x columns, contiguous, single precision) += a^T b, unrounded; a is entries x rows, b
 * entries x columns, their rows `a_stride` and `b_stride` elements apart. */
void add_product(i64 threads, const element *a, const element *b, float *sum, i64 a_stride,
                 i64 b_stride, i64 entries, i64 rows, i64 columns) {
    i64 pairs = ceiling(entries, 2), panels = ceiling(columns, COLUMNS);
    uint32_t *right = aligned_alloc(64, 4 * panels * COLUMNS * pairs);
    PARALLEL {
        uint32_t *left = aligned_alloc(64, 4 * BLOCK * pairs);
        SHARED_OUT for (i64 n = 0; n < panels; n++)
            pack_entries(b, b_stride, n * COLUMNS, columns, COLUMNS, entries,
                         right + n * COLUMNS * pairs);
        SHARED_OUT for (i64 block = 0; block < rows; block += BLOCK) {
            pack_block(a, a_stride, block, rows, entries, left);
            for (i64 column = 0; column < columns; column += COLUMNS)
                for (i64 row = block; row < least(rows, block + BLOCK); row += ROWS) {
                    __m512 part[ROWS][VECTORS];
                    EACH_ROW EACH_VECTOR /* the sum is in memory: it comes while they multiply */
                        __builtin_prefetch(sum + (row + r) * columns + column + LANES * v, 1);
                    accumulate(part, left + (row - block) * pairs, 1, ROWS, ROWS,
                               right + column * pairs, pairs);
                    EACH_ROW
                        EACH_VECTOR {
                            i64 at = column + LANES * v;
                            __mmask16 mask = r < rows - row ? lanes(columns - at) : 0;
                            float *to = sum + (row + r) * columns + at;
                            __m512 old = _mm512_maskz_loadu_ps(mask, to);
                            _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(old, part[r][v]));
                        }
                }
        }
        free(left);
    }
    free(right);
}
