/* Glue between matrix products, for one CPU. Compiled once for each storage type, head size and
 * group (see storage.h). Sums over a vocabulary are in double. Every kernel has a twin in eager.py
 * that says what it computes. A row's result never depends on the other rows. `threads` is the
 * number of OpenMP threads.
 */
#include "storage.h"

#define BLOCK 32 /* tokens of one cache block */
#define CHUNK 512 /* vocabulary entries of one partial sum */

static inline float largest(const element *x, i64 n) {
    float lanes[LANES], best = -INFINITY;
    i64 j = 0;
    for (int l = 0; l < LANES; l++) lanes[l] = -INFINITY;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = up(x[j + l]);
            lanes[l] = v > lanes[l] ? v : lanes[l];
        }
    for (; j < n; j++) best = up(x[j]) > best ? up(x[j]) : best;
    for (int l = 0; l < LANES; l++) best = lanes[l] > best ? lanes[l] : best;
    return best;
}

/* ---- normalisation, activation, rotation, transposition ---- */

static inline float norm_row(const element *x, const element *weight, element *y, i64 width,
                             float eps) {
    float sum = 0;
    for (i64 j = 0; j < width; j++) sum += up(x[j]) * up(x[j]);
    float rstd = 1.f / sqrtf(sum / width + eps);
    for (i64 j = 0; j < width; j++) y[j] = down(up(x[j]) * rstd * up(weight[j]));
    return rstd;
}

void rms_norm(i64 threads, const element *x, const element *weight, element *y, float *rstd,
              i64 rows, i64 width, float eps) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        float r = norm_row(x + i * width, weight, y + i * width, width, eps);
        if (rstd) rstd[i] = r;
    }
}

/* dweight must be 0 before; threads add their parts one after the other. */
void rms_norm_backward(i64 threads, const element *grad, const element *x, const element *weight,
                       const float *rstd, element *dx, float *dweight, i64 rows, i64 width) {
    _Pragma("omp parallel num_threads(threads)") {
        float *part = calloc(width, sizeof(float));
        _Pragma("omp for schedule(static)") for (i64 i = 0; i < rows; i++) {
            const element *g = grad + i * width, *a = x + i * width;
            element *out = dx + i * width;
            float r = rstd[i], dot = 0;
            for (i64 j = 0; j < width; j++) dot += up(g[j]) * up(weight[j]) * up(a[j]);
            dot *= r * r / width;
            for (i64 j = 0; j < width; j++) {
                part[j] += up(g[j]) * up(a[j]) * r;
                out[j] = down(r * (up(g[j]) * up(weight[j]) - up(a[j]) * dot));
            }
        }
        _Pragma("omp critical") for (i64 j = 0; j < width; j++) dweight[j] += part[j];
        free(part);
    }
}

/* gate_up holds gate and up side by side in a row of 2 * width. */
void swiglu(i64 threads, const element *gate_up, element *y, i64 rows, i64 width) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const element *gate = gate_up + i * 2 * width, *linear = gate + width;
        element *out = y + i * width;
        for (i64 j = 0; j < width; j++) {
            float g = up(gate[j]);
            out[j] = down(g / (1.f + fast_exp(-g)) * up(linear[j]));
        }
    }
}

void swiglu_backward(i64 threads, const element *grad, const element *gate_up, element *dgate_up,
                     i64 rows, i64 width) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const element *gate = gate_up + i * 2 * width, *linear = gate + width;
        const element *d = grad + i * width;
        element *dgate = dgate_up + i * 2 * width, *dlinear = dgate + width;
        for (i64 j = 0; j < width; j++) {
            float g = up(gate[j]), s = 1.f / (1.f + fast_exp(-g)), v = up(d[j]);
            dlinear[j] = down(v * g * s);
            dgate[j] = down(v * up(linear[j]) * (s + g * s * (1.f - s)));
        }
    }
}

static inline void rotate_head(element *x, const float *cos, const float *sin, float sign) {
    for (int j = 0; j < HALF; j++) {
        float a = up(x[j]), b = up(x[j + HALF]), s = sin[j] * sign;
        x[j] = down(a * cos[j] - b * s);
        x[j + HALF] = down(b * cos[j] + a * s);
    }
}

/* Rotates the first `heads` of `all_heads` heads of each row; sign -1 turns back. */
void rotate(i64 threads, element *x, const i64 *positions, const float *cos, const float *sin,
            float sign, i64 rows, i64 heads, i64 all_heads) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const float *c = cos + positions[i] * HALF, *s = sin + positions[i] * HALF;
        for (i64 h = 0; h < heads; h++) rotate_head(x + (i * all_heads + h) * HEAD_DIM, c, s, sign);
    }
}

void transpose(i64 threads, const element *x, element *y, i64 rows, i64 columns) {
    _Pragma("omp parallel for collapse(2) num_threads(threads)")
    for (i64 i0 = 0; i0 < rows; i0 += 32)
        for (i64 j0 = 0; j0 < columns; j0 += 32) {
            element tile[32][32];
            i64 n = least(rows - i0, 32), m = least(columns - j0, 32);
            for (i64 i = 0; i < n; i++)
                for (i64 j = 0; j < m; j++) tile[j][i] = x[(i0 + i) * columns + j0 + j];
            for (i64 j = 0; j < m; j++)
                memcpy(y + (j0 + j) * rows + i0, tile[j], n * sizeof(element));
        }
}

/* ---- the head: log-probs of labels and their gradient ---- */

/* inverse = 1 / temperature. Also the log-sum-exp and the entropy of each row. */
void label_logprobs(i64 threads, const element *logits, const i64 *labels, float inverse,
                    float *logprobs, float *lse, float *entropy, i64 rows, i64 vocabulary) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        const element *z = logits + i * vocabulary;
        float top = largest(z, vocabulary);
        double total = 0, moment = 0;
        for (i64 first = 0; first < vocabulary; first += CHUNK) {
            float sum = 0, weighted = 0;
            for (i64 j = first, end = least(first + CHUNK, vocabulary); j < end; j++) {
                float shifted = (up(z[j]) - top) * inverse, p = fast_exp(shifted);
                sum += p;
                weighted += p > 0 ? p * shifted : 0.f;
            }
            total += sum;
            moment += weighted;
        }
        float log_total = (float)log(total);
        lse[i] = top * inverse + log_total;
        logprobs[i] = (up(z[labels[i]]) - top) * inverse - log_total;
        entropy[i] = log_total - (float)(moment / total);
    }
}

/* Overwrites logits with the gradient of sum_i dlogprob[i] logprob[i] + dentropy[i] entropy[i]. */
void logits_gradient(i64 threads, element *logits, const i64 *labels, const float *lse,
                     const float *entropy, const float *dlogprob, const float *dentropy,
                     float inverse, i64 rows, i64 vocabulary) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        element *z = logits + i * vocabulary;
        float l = lse[i], a = dlogprob[i] * inverse, label = up(z[labels[i]]) * inverse - l;
        float p_label = fast_exp(label), b = dentropy ? dentropy[i] * inverse : 0.f;
        if (b == 0.f)
            for (i64 j = 0; j < vocabulary; j++) z[j] = down(-a * fast_exp(up(z[j]) * inverse - l));
        else
            for (i64 j = 0; j < vocabulary; j++) {
                float logp = up(z[j]) * inverse - l, p = fast_exp(logp);
                z[j] = down(p > 0 ? -p * (a + b * (logp + entropy[i])) : 0.f);
            }
        float of_entropy = p_label > 0 ? -b * p_label * (label + entropy[i]) : 0.f;
        z[labels[i]] = down(a * (1.f - p_label) + of_entropy);
    }
}

/* ---- cached decoding ----
 * A row is one token: positions[i] of the sequence whose blocks are tables[sequences[i]].
 * One layer of block b starts at keys + b * stride: keys [kv_heads][HEAD_DIM][BLOCK], so that the
 * scores of neighbouring tokens lie in one vector; values [kv_heads][BLOCK][HEAD_DIM].
 * qkv holds GROUP * kv_heads query, kv_heads key and kv_heads value heads a row.
 */

/* Normalises (where a weight is given) and rotates queries and keys in place; stores key, value. */
void write_cache(i64 threads, element *qkv, element *keys, element *values, const i64 *tables,
                 const i64 *sequences, const i64 *positions, const float *cos, const float *sin,
                 const element *q_norm, const element *k_norm, float eps, i64 rows, i64 kv_heads,
                 i64 table_width, i64 stride) {
    PARALLEL for (i64 i = 0; i < rows; i++) {
        i64 position = positions[i], at = position % BLOCK, queries = kv_heads * GROUP;
        i64 block = tables[sequences[i] * table_width + position / BLOCK];
        const float *c = cos + position * HALF, *s = sin + position * HALF;
        element *row = qkv + i * (queries + 2 * kv_heads) * HEAD_DIM;
        for (i64 h = 0; h < queries + kv_heads; h++) {
            element *head = row + h * HEAD_DIM;
            const element *norm = h < queries ? q_norm : k_norm;
            if (norm) norm_row(head, norm, head, HEAD_DIM, eps);
            rotate_head(head, c, s, 1.f);
        }
        for (i64 h = 0; h < kv_heads; h++) {
            const element *key = row + (queries + h) * HEAD_DIM, *value = key + kv_heads * HEAD_DIM;
            element *to = keys + block * stride + h * HEAD_DIM * BLOCK + at;
            for (int j = 0; j < HEAD_DIM; j++) to[j * BLOCK] = key[j];
            memcpy(values + block * stride + (h * BLOCK + at) * HEAD_DIM, value,
                   HEAD_DIM * sizeof(element));
        }
    }
}

/* Scores of one block for the heads of a group; q is scaled already. Tiles lie far apart, so the
 * next one is fetched on the way. */
static inline void score_block(const float (*q)[HEAD_DIM], const element *key, const element *next,
                               float *scores, i64 width) {
    vector sum[GROUP][2] = {0};
    for (int j = 0; j < HEAD_DIM; j++) {
        __builtin_prefetch(next + j * BLOCK);
        vector low = load(key + j * BLOCK), high = load(key + j * BLOCK + LANES);
        for (int g = 0; g < GROUP; g++) {
            sum[g][0] += q[g][j] * low;
            sum[g][1] += q[g][j] * high;
        }
    }
    for (int g = 0; g < GROUP; g++) memcpy(scores + g * width, sum[g], sizeof(sum[g]));
}

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

/* out [rows][GROUP * kv_heads][HEAD_DIM]: attention of each row to positions 0 .. its own. */
void attend(i64 threads, const element *qkv, const element *keys, const element *values,
            const i64 *tables, const i64 *sequences, const i64 *positions, element *out, i64 rows,
            i64 kv_heads, i64 table_width, i64 stride, float scale) {
    i64 queries = kv_heads * GROUP, longest = 0;
    for (i64 i = 0; i < rows; i++) longest = positions[i] > longest ? positions[i] : longest;
    _Pragma("omp parallel num_threads(threads)") {
        float *scores = malloc(GROUP * (longest + 1 + BLOCK) * sizeof(float));
        _Pragma("omp for schedule(static)") for (i64 work = 0; work < rows * kv_heads; work++) {
            i64 i = work % rows, h = work / rows, count = positions[i] + 1;
            i64 blocks = (count + BLOCK - 1) / BLOCK, width = blocks * BLOCK;
            const i64 *table = tables + sequences[i] * table_width;
            const element *own = qkv + i * (queries + 2 * kv_heads) * HEAD_DIM;
            float q[GROUP][HEAD_DIM];
            for (int g = 0; g < GROUP; g++)
                for (int j = 0; j < HEAD_DIM; j++)
                    q[g][j] = up(own[(h * GROUP + g) * HEAD_DIM + j]) * scale;
            i64 tile = h * HEAD_DIM * BLOCK;
            for (i64 b = 0; b < blocks; b++) {
                const element *next = b + 1 < blocks ? keys + table[b + 1] * stride + tile
                                                     : values + table[0] * stride + tile;
                score_block(q, keys + table[b] * stride + tile, next, scores + b * BLOCK, width);
            }
            float total[GROUP];
            for (int g = 0; g < GROUP; g++) total[g] = soften(scores + g * width, count, width);
            vector sum[GROUP][HEAD_VECTORS] = {0};
            for (i64 t = 0; t < count; t++) {
                i64 block = t / BLOCK, row = tile + t % BLOCK * HEAD_DIM;
                const element *value = values + table[block] * stride + row;
                if (block + 1 < blocks)
                    for (i64 j = 0; j < HEAD_DIM; j += 64 / sizeof(element))
                        __builtin_prefetch(values + table[block + 1] * stride + row + j);
                for (int v = 0; v < HEAD_VECTORS; v++) {
                    vector x = load(value + v * LANES);
                    for (int g = 0; g < GROUP; g++) sum[g][v] += scores[g * width + t] * x;
                }
            }
            for (int g = 0; g < GROUP; g++) {
                element *to = out + (i * queries + h * GROUP + g) * HEAD_DIM;
                for (int v = 0; v < HEAD_VECTORS; v++)
                    for (int l = 0; l < LANES; l++)
                        to[v * LANES + l] = down(sum[g][v][l] / total[g]);
            }
        }
        free(scores);
    }
}

static inline float likelihood(element z, float top, float inverse, float floor) {
    return up(z) >= floor ? fast_exp((up(z) - top) * inverse) : 0.f;
}

/* Draws by inverting the distribution function at uniforms[i]; logits below floors[i] have no
 * mass; temperature 0 takes the first largest. logprobs are those of what was drawn from. */
void sample(i64 threads, const element *logits, const double *uniforms, const float *temperatures,
            const float *floors, i64 *tokens, float *logprobs, i64 rows, i64 vocabulary) {
    _Pragma("omp parallel num_threads(threads)") {
        i64 chunks = (vocabulary + CHUNK - 1) / CHUNK;
        float *mass = malloc(chunks * sizeof(float));
        _Pragma("omp for schedule(static)") for (i64 i = 0; i < rows; i++) {
            const element *z = logits + i * vocabulary;
            float top = largest(z, vocabulary), floor = floors[i];
            if (temperatures[i] == 0.f) {
                i64 j = 0;
                while (j < vocabulary - 1 && up(z[j]) != top) j++;
                tokens[i] = j;
                logprobs[i] = 0.f;
                continue;
            }
            float inverse = 1.f / temperatures[i];
            double total = 0;
            for (i64 k = 0; k < chunks; k++) {
                float sum = 0;
                for (i64 j = k * CHUNK, end = least(j + CHUNK, vocabulary); j < end; j++)
                    sum += likelihood(z[j], top, inverse, floor);
                mass[k] = sum;
                total += sum;
            }
            double left = uniforms[i] * total;
            i64 k = 0;
            while (k < chunks - 1 && left >= mass[k]) left -= mass[k++];
            while (mass[k] == 0.f && k > 0) k--;
            i64 j = k * CHUNK, end = least(j + CHUNK, vocabulary), drawn = j;
            for (; j < end; j++) {
                float p = likelihood(z[j], top, inverse, floor);
                if (p > 0) drawn = j;
                if (left < p) break;
                left -= p;
            }
            tokens[i] = drawn;
            logprobs[i] = (up(z[drawn]) - top) * inverse - (float)log(total);
        }
        free(mass);
    }
}
