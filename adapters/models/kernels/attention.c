/* Causal attention of runs of tokens, forward and backward, in memory that grows with the tokens.
 *
 * A run is four numbers: its first token and their count, then the first token and the count of a
 * prefix that it continues (0: none). Each token belongs to one run, and is the query of it; many
 * runs may continue one prefix, which is a run of its own. qkv holds GROUP * kv_heads query,
 * kv_heads key and kv_heads value heads a token. A token's result depends on its own run alone.
 */
#include "storage.h"

#define STEP (2 * LANES)
#define EACH_HEAD for (int g = 0; g < GROUP; g++)
#define EACH_VECTOR for (int v = 0; v < HEAD_VECTORS; v++)
#define UNITS _Pragma("omp for schedule(dynamic, 1)")

typedef float heads[GROUP][HEAD_DIM];
typedef vector mixed[GROUP][HEAD_VECTORS];
typedef float row_vector __attribute__((vector_size(64), aligned(4)));

static inline i64 whole(i64 count) { return (count + STEP - 1) / STEP * STEP; }
static inline vector at(const float *p) { return *(const row_vector *)p; }
static inline i64 length(const i64 *run) { return run[1] + run[3]; }
static inline i64 token(const i64 *run, i64 t) {
    return t < run[3] ? run[2] + t : run[0] + t - run[3];
}

static inline i64 longest(const i64 *runs, i64 count) {
    i64 most = 1;
    for (i64 r = 0; r < count; r++) most = length(runs + 4 * r) > most ? length(runs + 4 * r) : most;
    return whole(most);
}

/* One head of a run's tokens as lines [t][HEAD_DIM]; 0 up to a whole step. */
static inline void gather(const element *head, i64 stride, const i64 *run, float *lines) {
    i64 tokens = length(run);
    for (i64 t = 0; t < tokens; t++)
        EACH_VECTOR *(row_vector *)(lines + t * HEAD_DIM + v * LANES) =
            load(head + token(run, t) * stride + v * LANES);
    memset(lines + tokens * HEAD_DIM, 0, (whole(tokens) - tokens) * HEAD_DIM * sizeof(float));
}

/* Lines of a run turned: [HEAD_DIM][width]. Four rounds of mixing halves turn 16 x 16 numbers. */
static inline void turn(const float *lines, const i64 *run, i64 width, float *turned) {
    const int_vector low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    for (i64 t = 0; t < whole(length(run)); t += LANES)
        EACH_VECTOR {
            vector x[LANES], y[LANES];
            for (int r = 0; r < LANES; r++) x[r] = at(lines + (t + r) * HEAD_DIM + v * LANES);
            for (int round = 0; round < 4; round++) {
                for (int r = 0; r < LANES / 2; r++) {
                    y[2 * r] = __builtin_shuffle(x[r], x[r + LANES / 2], low);
                    y[2 * r + 1] = __builtin_shuffle(x[r], x[r + LANES / 2], low + LANES / 2);
                }
                memcpy(x, y, sizeof(x));
            }
            for (int r = 0; r < LANES; r++)
                *(row_vector *)(turned + (v * LANES + r) * width + t) = x[r];
        }
}

static inline void read_heads(const element *from, float scale, heads x) {
    EACH_HEAD for (int j = 0; j < HEAD_DIM; j++) x[g][j] = up(from[g * HEAD_DIM + j]) * scale;
}

static inline void write_heads(const mixed x, const float *scale, element *to) {
    EACH_HEAD EACH_VECTOR for (int l = 0; l < LANES; l++)
        to[g * HEAD_DIM + v * LANES + l] = down(x[g][v][l] * scale[g]);
}

/* scores[g][t] = x[g] . line t, in whole steps. */
static inline void dots(const heads x, const float *turned, i64 width, i64 count, float *scores) {
    for (i64 t = 0; t < count; t += STEP) {
        vector sum[GROUP][2] = {0};
        for (int j = 0; j < HEAD_DIM; j++) {
            vector low = at(turned + j * width + t), high = at(turned + j * width + t + LANES);
            EACH_HEAD {
                sum[g][0] += x[g][j] * low;
                sum[g][1] += x[g][j] * high;
            }
        }
        EACH_HEAD memcpy(scores + g * width + t, sum[g], sizeof(sum[g]));
    }
}

/* The largest of `seen` scores; those after them up to a whole step become -inf. */
static inline float largest(float *scores, i64 seen) {
    for (i64 t = seen; t < whole(seen); t++) scores[t] = -INFINITY;
    vector best = at(scores);
    for (i64 t = LANES; t < whole(seen); t += LANES) best = larger(at(scores + t), best);
    return highest(best);
}

/* sum[g] = sum_t weights[g][t] line t. */
static inline void mix(const float *weights, i64 width, const float *lines, i64 count, mixed out) {
    mixed sum = {0}; /* of its own: it stays in registers */
    for (i64 t = 0; t < count; t++)
        EACH_VECTOR {
            vector line = at(lines + t * HEAD_DIM + v * LANES);
            EACH_HEAD sum[g][v] += weights[g * width + t] * line;
        }
    memcpy(out, sum, sizeof(mixed));
}

/* line t += sum_g weights[g][t] x[g]. */
static inline void add_outer(const float *weights, i64 width, const heads x, i64 count,
                             float *lines) {
    mixed own;
    memcpy(own, x, sizeof(mixed));
    for (i64 t = 0; t < count; t++)
        EACH_VECTOR {
            float *line = lines + t * HEAD_DIM + v * LANES;
            vector sum = at(line);
            EACH_HEAD sum += weights[g * width + t] * own[g][v];
            *(row_vector *)line = sum;
        }
}

/* out [tokens][queries][HEAD_DIM]; lse [tokens][queries]: logs of the sums of exponentials. */
void attention(i64 threads, const element *qkv, const i64 *runs, element *out, float *lse, i64 count,
               i64 kv_heads, float scale) {
    i64 queries = kv_heads * GROUP, stride = (queries + 2 * kv_heads) * HEAD_DIM;
    i64 width = longest(runs, count);
    _Pragma("omp parallel num_threads(threads)") {
        float *keys = aligned_alloc(64, 4 * width * (3 * HEAD_DIM + GROUP));
        float *lines = keys + width * HEAD_DIM, *values = lines + width * HEAD_DIM;
        float *scores = values + width * HEAD_DIM;
        UNITS for (i64 unit = 0; unit < count * kv_heads; unit++) {
            const i64 *run = runs + unit / kv_heads * 4;
            i64 h = unit % kv_heads;
            const element *key = qkv + (queries + h) * HEAD_DIM;
            gather(key, stride, run, lines);
            turn(lines, run, width, keys);
            gather(key + kv_heads * HEAD_DIM, stride, run, values);
            for (i64 i = 0; i < run[1]; i++) {
                i64 query = run[0] + i, seen = run[3] + i + 1, first = query * queries + h * GROUP;
                heads q;
                mixed sum;
                float part[GROUP];
                read_heads(qkv + query * stride + h * GROUP * HEAD_DIM, scale, q);
                dots(q, keys, width, seen, scores);
                EACH_HEAD {
                    float *s = scores + g * width, top = largest(s, seen), total = 0;
                    for (i64 t = 0; t < whole(seen); t++) {
                        s[t] = fast_exp(s[t] - top);
                        total += s[t];
                    }
                    part[g] = 1.f / total;
                    lse[first + g] = top + logf(total);
                }
                mix(scores, width, values, seen, sum);
                write_heads(sum, part, out + first * HEAD_DIM);
            }
        }
        free(keys);
    }
}

/* dqkv of the gradient of `out`. A run's share in its prefix's keys and values is kept apart, and
 * added run by run: the same sum for any number of threads. */
void attention_backward(i64 threads, const element *qkv, const i64 *runs, const element *out,
                        const element *grad, const float *lse, element *dqkv, i64 count,
                        i64 kv_heads, i64 tokens, float scale) {
    i64 queries = kv_heads * GROUP, stride = (queries + 2 * kv_heads) * HEAD_DIM;
    i64 width = longest(runs, count), size = width * HEAD_DIM, all = 2 * kv_heads * HEAD_DIM;
    i64 *place = malloc((count + 1) * sizeof(i64));
    place[0] = tokens;
    for (i64 r = 0; r < count; r++) place[r + 1] = place[r] + runs[4 * r + 3];
    float *sums = malloc(4 * place[count] * all); /* own tokens, then each run's prefix */
    _Pragma("omp parallel num_threads(threads)") {
        float *keys = aligned_alloc(64, 4 * (5 * size + 2 * GROUP * width)), *lines = keys + size;
        float *values = lines + size, *dkeys = values + size, *dvalues = dkeys + size;
        float *scores = dvalues + size, *pulls = scores + GROUP * width;
        UNITS for (i64 unit = 0; unit < count * kv_heads; unit++) {
            i64 r = unit / kv_heads, h = unit % kv_heads;
            const i64 *run = runs + 4 * r;
            const element *key = qkv + (queries + h) * HEAD_DIM;
            gather(key + kv_heads * HEAD_DIM, stride, run, lines);
            turn(lines, run, width, values);
            gather(key, stride, run, lines);
            turn(lines, run, width, keys);
            memset(dkeys, 0, 2 * size * sizeof(float));
            for (i64 i = 0; i < run[1]; i++) {
                i64 query = run[0] + i, seen = run[3] + i + 1, first = query * queries + h * GROUP;
                heads q, pull, result;
                mixed sum;
                float each[GROUP];
                read_heads(qkv + query * stride + h * GROUP * HEAD_DIM, scale, q);
                read_heads(grad + first * HEAD_DIM, 1.f, pull);
                read_heads(out + first * HEAD_DIM, 1.f, result);
                dots(q, keys, width, seen, scores);
                dots(pull, values, width, seen, pulls);
                EACH_HEAD {
                    float *s = scores + g * width, *d = pulls + g * width, mean = 0;
                    for (int j = 0; j < HEAD_DIM; j++) mean += pull[g][j] * result[g][j];
                    for (i64 t = 0; t < seen; t++) {
                        s[t] = fast_exp(s[t] - lse[first + g]);
                        d[t] = s[t] * (d[t] - mean);
                    }
                    each[g] = scale;
                }
                mix(pulls, width, lines, seen, sum);
                write_heads(sum, each, dqkv + query * stride + h * GROUP * HEAD_DIM);
                add_outer(pulls, width, q, seen, dkeys);
                add_outer(scores, width, pull, seen, dvalues);
            }
            for (i64 t = 0; t < length(run); t++) {
                i64 to = t < run[3] ? place[r] + t : run[0] + t - run[3];
                float *own = sums + to * all + h * HEAD_DIM;
                memcpy(own, dkeys + t * HEAD_DIM, HEAD_DIM * sizeof(float));
                memcpy(own + kv_heads * HEAD_DIM, dvalues + t * HEAD_DIM, HEAD_DIM * sizeof(float));
            }
        }
        free(keys);
        UNITS for (i64 h = 0; h < 2 * kv_heads; h++)
            for (i64 r = 0; r < count; r++)
                for (i64 t = 0; t < runs[4 * r + 3]; t++) {
                    float *to = sums + (runs[4 * r + 2] + t) * all + h * HEAD_DIM;
                    const float *from = sums + (place[r] + t) * all + h * HEAD_DIM;
                    for (int j = 0; j < HEAD_DIM; j++) to[j] += from[j];
                }
        _Pragma("omp for schedule(static)") for (i64 i = 0; i < tokens; i++)
            for (i64 j = 0; j < all; j++)
                dqkv[i * stride + queries * HEAD_DIM + j] = down(sums[i * all + j]);
    }
    free(sums);
    free(place);
}
