/* Cached decoding: attention of rows, each one token, to blocks of keys and values.
 *
 * Row i is positions[i] of the sequence whose blocks are tables[sequences[i]]. One layer of block b
 * starts at keys + b * stride: keys [kv_heads][HEAD_DIM][BLOCK], so that the scores of neighbouring
 * tokens lie in one vector; values [kv_heads][BLOCK][HEAD_DIM]. qkv holds GROUP * kv_heads query,
 * kv_heads key and kv_heads value heads a row. A row's result depends on its own sequence alone.
 */
#include "storage.h"

#define BLOCK 32 /* tokens of one cache block */

#if BF16 && defined(__AVX512BF16__) && HEAD_DIM % 32 == 0
#define PAIRS 1
#include <immintrin.h>
#else
#define PAIRS 0
#endif

/* Normalises (where a weight is given) and rotates heads in place. */
static inline void turn_heads(element *head, i64 heads, const element *norm, const float *cos,
                              const float *sin, float eps) {
    for (i64 h = 0; h < heads; h++, head += HEAD_DIM) {
        if (norm) norm_row(head, norm, head, HEAD_DIM, eps);
        rotate_head(head, cos, sin, 1.f);
    }
}

/* key and value belong to the tile of one head in one block. */
static inline void store(const element *key, const element *value, element *keys, element *values,
                         i64 at) {
    for (int j = 0; j < HEAD_DIM; j++) keys[j * BLOCK + at] = key[j];
    memcpy(values + at * HEAD_DIM, value, HEAD_DIM * sizeof(element));
}

/* Makes queries and keys ready, in place; stores key and value. */
void write_cache(i64 threads, element *qkv, element *keys, element *values, const i64 *tables,
                 const i64 *sequences, const i64 *positions, const float *cos, const float *sin,
                 const element *q_norm, const element *k_norm, float eps, i64 rows, i64 kv_heads,
                 i64 table_width, i64 stride) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        i64 position = positions[i], queries = kv_heads * GROUP;
        i64 block = tables[sequences[i] * table_width + position / BLOCK] * stride;
        const float *c = cos + position * HALF, *s = sin + position * HALF;
        element *row = qkv + i * (queries + 2 * kv_heads) * HEAD_DIM, *key = row + queries * HEAD_DIM;
        turn_heads(row, queries, q_norm, c, s, eps);
        turn_heads(key, kv_heads, k_norm, c, s, eps);
        for (i64 h = 0; h < kv_heads; h++, key += HEAD_DIM) {
            i64 tile = block + h * HEAD_DIM * BLOCK;
            store(key, key + kv_heads * HEAD_DIM, keys + tile, values + tile, position % BLOCK);
        }
    }
}

#if PAIRS
/* Sums of products of pairs, in fp32: an instruction does two of each of 16 lines. Interleaving two
 * rows of 32 leaves their quarters' halves apart; `restore` brings them together. */
typedef __m512 sums[2];

static inline void add_pair(sums *sum, const element *one, const element *other, const element *left,
                            i64 width) {
    __m512i a = _mm512_loadu_si512(one);
    __m512i b = other ? _mm512_loadu_si512(other) : _mm512_setzero_si512();
    __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b), high = (__m512bh)_mm512_unpackhi_epi16(a, b);
    for (int g = 0; g < GROUP; g++) {
        int32_t pair;
        memcpy(&pair, left + g * width, sizeof(pair));
        __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
        sum[g][0] = _mm512_dpbf16_ps(sum[g][0], low, x);
        sum[g][1] = _mm512_dpbf16_ps(sum[g][1], high, x);
    }
}

static inline void restore(const sums sum, float *to, float scale) {
    for (int half = 0; half < 2; half++) {
        __m512 x = half ? _mm512_shuffle_f32x4(sum[0], sum[1], 0xee)
                        : _mm512_shuffle_f32x4(sum[0], sum[1], 0x44);
        x = _mm512_mul_ps(_mm512_shuffle_f32x4(x, x, 0xd8), _mm512_set1_ps(scale));
        _mm512_storeu_ps(to + half * LANES, x);
    }
}

/* Scores of one block for the heads of a group. Tiles lie far apart, so the next one is fetched on
 * the way. */
static inline void score_block(const element *q, float scale, const element *key,
                               const element *next, float *scores, i64 width) {
    sums sum[GROUP] = {0};
    for (int j = 0; j < HEAD_DIM; j += 2) {
        __builtin_prefetch(next + j * BLOCK);
        __builtin_prefetch(next + (j + 1) * BLOCK);
        add_pair(sum, key + j * BLOCK, key + (j + 1) * BLOCK, q + j, HEAD_DIM);
    }
    for (int g = 0; g < GROUP; g++) restore(sum[g], scores + g * width, scale);
}

/* out[g] = sum_t weights[g][t] value t / total[g]; weights are rounded, in place. */
static inline void mix(float *weights, i64 width, const element *values, const i64 *table,
                       i64 stride, i64 count, const float *total, element *out) {
    element *rounded = (element *)weights;
    for (i64 t = 0; t < GROUP * width; t += LANES)
        _mm256_storeu_si256((__m256i *)(rounded + t),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(weights + t)));
    sums sum[HEAD_DIM / 32][GROUP] = {0};
    for (i64 first = 0; first < count; first += BLOCK) {
        const element *block = values + table[first / BLOCK] * stride;
        i64 here = least(BLOCK, count - first), more = first + BLOCK < count;
        const element *next = more ? values + table[first / BLOCK + 1] * stride : block;
        for (i64 t = 0; t < here; t += 2) {
            const element *one = block + t * HEAD_DIM, *other = t + 1 < here ? one + HEAD_DIM : NULL;
            if (more)
                for (i64 j = 0; j < 2 * HEAD_DIM; j += 32)
                    __builtin_prefetch(next + t * HEAD_DIM + j);
            for (int v = 0; v < HEAD_DIM / 32; v++)
                add_pair(sum[v], one + 32 * v, other ? other + 32 * v : NULL, rounded + first + t,
                         width);
        }
    }
    for (int g = 0; g < GROUP; g++)
        for (int v = 0; v < HEAD_DIM / 32; v++) {
            float line[32];
            restore(sum[v][g], line, 1.f / total[g]);
            for (int l = 0; l < 32; l++) out[g * HEAD_DIM + 32 * v + l] = down(line[l]);
        }
}

#else

/* Scores of one block for the heads of a group. Tiles lie far apart, so the next one is fetched on
 * the way. */
static inline void score_block(const element *q, float scale, const element *key,
                               const element *next, float *scores, i64 width) {
    vector sum[GROUP][2] = {0};
    for (int j = 0; j < HEAD_DIM; j++) {
        __builtin_prefetch(next + j * BLOCK);
        vector low = load(key + j * BLOCK), high = load(key + j * BLOCK + LANES);
        for (int g = 0; g < GROUP; g++) {
            float x = up(q[g * HEAD_DIM + j]) * scale;
            sum[g][0] += x * low;
            sum[g][1] += x * high;
        }
    }
    for (int g = 0; g < GROUP; g++) memcpy(scores + g * width, sum[g], sizeof(sum[g]));
}

/* out[g] = sum_t weights[g][t] value t / total[g]. */
static inline void mix(float *weights, i64 width, const element *values, const i64 *table,
                       i64 stride, i64 count, const float *total, element *out) {
    vector sum[GROUP][HEAD_VECTORS] = {0};
    for (i64 t = 0; t < count; t++) {
        const element *value = values + table[t / BLOCK] * stride + t % BLOCK * HEAD_DIM;
        if (t / BLOCK * BLOCK + BLOCK < count)
            for (i64 j = 0; j < HEAD_DIM; j += 64 / sizeof(element))
                __builtin_prefetch(values + table[t / BLOCK + 1] * stride + t % BLOCK * HEAD_DIM + j);
        for (int v = 0; v < HEAD_VECTORS; v++) {
            vector x = load(value + v * LANES);
            for (int g = 0; g < GROUP; g++) sum[g][v] += weights[g * width + t] * x;
        }
    }
    for (int g = 0; g < GROUP; g++)
        for (int v = 0; v < HEAD_VECTORS; v++)
            for (int l = 0; l < LANES; l++)
                out[g * HEAD_DIM + v * LANES + l] = down(sum[g][v][l] / total[g]);
}

#endif

/* Turns scores into weights in place; returns their sum. */
static inline float soften(float *scores, i64 count, i64 width) {
    float lanes[LANES], top = -INFINITY, sum = 0;
    for (i64 t = count; t < width; t++) scores[t] = -INFINITY;
    for (int l = 0; l < LANES; l++) lanes[l] = -INFINITY;
    for (i64 t = 0; t < width; t += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] = scores[t + l] > lanes[l] ? scores[t + l] : lanes[l];
    for (int l = 0; l < LANES; l++) top = lanes[l] > top ? lanes[l] : top;
    for (i64 t = 0; t < width; t++) {
        scores[t] = fast_exp(scores[t] - top);
        sum += scores[t];
    }
    return sum;
}

/* The heads of one group at one token; keys and values begin at the head's tile of block 0. */
static inline void attend_group(const element *q, const element *keys, const element *values,
                                const i64 *table, i64 stride, i64 count, float scale, float *scores,
                                element *out) {
    i64 blocks = (count + BLOCK - 1) / BLOCK, width = blocks * BLOCK;
    for (i64 b = 0; b < blocks; b++) {
        const element *next = b + 1 < blocks ? keys + table[b + 1] * stride
                                             : values + table[0] * stride;
        score_block(q, scale, keys + table[b] * stride, next, scores + b * BLOCK, width);
    }
    float total[GROUP];
    for (int g = 0; g < GROUP; g++) total[g] = soften(scores + g * width, count, width);
    mix(scores, width, values, table, stride, count, total, out);
}

/* out [rows][GROUP * kv_heads][HEAD_DIM]: attention of each row to positions 0 .. its own. Where
 * `cos` is given, no row sees another's key, and `write_cache` is done on the way. */
void attend(i64 threads, element *qkv, element *keys, element *values, const i64 *tables,
            const i64 *sequences, const i64 *positions, const float *cos, const float *sin,
            const element *q_norm, const element *k_norm, float eps, element *out, i64 rows,
            i64 kv_heads, i64 table_width, i64 stride, float scale) {
    i64 queries = kv_heads * GROUP, longest = 0;
    for (i64 i = 0; i < rows; i++) longest = positions[i] > longest ? positions[i] : longest;
    _Pragma("omp parallel num_threads(threads)") {
        float *scores = malloc(GROUP * (longest + 1 + BLOCK) * sizeof(float));
        _Pragma("omp for schedule(static)") for (i64 work = 0; work < rows * kv_heads; work++) {
            i64 i = work % rows, h = work / rows, tile = h * HEAD_DIM * BLOCK, p = positions[i];
            const i64 *table = tables + sequences[i] * table_width;
            element *row = qkv + i * (queries + 2 * kv_heads) * HEAD_DIM;
            element *q = row + h * GROUP * HEAD_DIM, *key = row + (queries + h) * HEAD_DIM;
            if (cos) {
                i64 last = tile + table[p / BLOCK] * stride;
                turn_heads(q, GROUP, q_norm, cos + p * HALF, sin + p * HALF, eps);
                turn_heads(key, 1, k_norm, cos + p * HALF, sin + p * HALF, eps);
                store(key, key + kv_heads * HEAD_DIM, keys + last, values + last, p % BLOCK);
            }
            attend_group(q, keys + tile, values + tile, table, stride, p + 1, scale, scores,
                         out + (i * queries + h * GROUP) * HEAD_DIM);
        }
        free(scores);
    }
}
