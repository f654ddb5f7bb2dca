/* Glue between matrix products, for one CPU. Compiled once for each storage type, head size and
 * group (see storage.h). Sums over a vocabulary are in double. Every kernel has a twin in eager.py
 * that says what it computes. A row's result never depends on the other rows. `threads` is the
 * number of OpenMP threads.
 */
#include "storage.h"

#define CHUNK 512 /* vocabulary entries of one partial sum */
#define PART 64 /* rows of one partial sum of a weight's gradient */
#define ALONE (1 << 17) /* elements that one thread is through with before a second one begins */

static inline i64 few(i64 threads, i64 elements) { return elements <= ALONE ? 1 : threads; }

static inline float largest(const element *x, i64 n) {
    vector most = (vector){0} - INFINITY;
    i64 j = 0;
    for (; j + LANES <= n; j += LANES) most = larger(load(x + j), most);
    float best = highest(most);
    for (; j < n; j++) best = up(x[j]) > best ? up(x[j]) : best;
    return best;
}

/* ---- normalisation, activation, rotation, transposition ---- */

void rms_norm(i64 threads, const element *x, const element *weight, element *y, float *rstd,
              i64 rows, i64 width, float eps) {
    threads = few(threads, rows * width);
    PARALLEL for (i64 i = 0; i < rows; i++) {
        float r = norm_row(x + i * width, weight, y + i * width, width, eps);
        if (rstd) rstd[i] = r;
    }
}

/* dweight must be 0 before. Parts of so many rows are added in their order: the same sum for any
 * number of threads. */
void rms_norm_backward(i64 threads, const element *grad, const element *x, const element *weight,
                       const float *rstd, element *dx, float *dweight, i64 rows, i64 width) {
    i64 parts = (rows + PART - 1) / PART;
    float *sums = calloc(parts * width, sizeof(float));
    PARALLEL for (i64 p = 0; p < parts; p++) {
        float *sum = sums + p * width;
        for (i64 i = p * PART; i < least(rows, (p + 1) * PART); i++) {
            const element *g = grad + i * width, *a = x + i * width;
            element *out = dx + i * width;
            float r = rstd[i], dot = 0;
            for (i64 j = 0; j < width; j++) dot += up(g[j]) * up(weight[j]) * up(a[j]);
            dot *= r * r / width;
            for (i64 j = 0; j < width; j++) {
                sum[j] += up(g[j]) * up(a[j]) * r;
                out[j] = down(r * (up(g[j]) * up(weight[j]) - up(a[j]) * dot));
            }
        }
    }
    for (i64 p = 0; p < parts; p++)
        for (i64 j = 0; j < width; j++) dweight[j] += sums[p * width + j];
    free(sums);
}

/* gate_up holds gate and up side by side in a row of 2 * width. */
void swiglu(i64 threads, const element *gate_up, element *y, i64 rows, i64 width) {
    threads = few(threads, rows * width);
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
                weighted += p * (shifted < -88.f ? -88.f : shifted); /* p is 0 there */
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
                float bounded = logp < -88.f ? -88.f : logp; /* p is 0 there */
                z[j] = down(-p * (a + b * (bounded + entropy[i])));
            }
        float of_entropy = p_label > 0 ? -b * p_label * (label + entropy[i]) : 0.f;
        z[labels[i]] = down(a * (1.f - p_label) + of_entropy);
    }
}

/* ---- sampling ---- */

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
