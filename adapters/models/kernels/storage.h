/* What kernels.c, attention.c and decode.c share: the storage type, vectors, exp, norm, rotation.
 *
 * BF16=1: bfloat16 bits, else float. HEAD_DIM: the size of a head, a multiple of 16. GROUP: the
 * query heads of one key-value head. Arithmetic is in fp32.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define HALF (HEAD_DIM / 2)
#define HEAD_VECTORS (HEAD_DIM / LANES)
#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads)")

typedef int64_t i64;
typedef float vector __attribute__((vector_size(64)));
typedef int32_t int_vector __attribute__((vector_size(64)));

#if BF16

typedef uint16_t element;
typedef uint16_t half_vector __attribute__((vector_size(32), aligned(2)));
typedef uint32_t word_vector __attribute__((vector_size(64)));

static inline float up(element x) {
    union { uint32_t bits; float value; } v = {.bits = (uint32_t)x << 16};
    return v.value;
}

/* Round to nearest, ties to even; a NaN stays one. */
static inline element down(float x) {
    union { float value; uint32_t bits; } v = {.value = x};
    uint32_t rounded = (v.bits + 0x7fffu + ((v.bits >> 16) & 1)) >> 16;
    return x == x ? (element)rounded : 0x7fc0;
}

static inline vector load(const element *p) {
    return (vector)(__builtin_convertvector(*(const half_vector *)p, word_vector) << 16);
}

#else

typedef float element;
typedef float loose_vector __attribute__((vector_size(64), aligned(4)));

static inline float up(element x) { return x; }
static inline element down(float x) { return x; }
static inline vector load(const element *p) { return *(const loose_vector *)p; }

#endif

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

/* Lane by lane; where x is a NaN, y. */
static inline vector larger(vector x, vector y) {
    int_vector is = x > y;
    return (vector)((is & (int_vector)x) | (~is & (int_vector)y));
}

static inline float highest(vector x) {
    float best = x[0];
    for (int l = 1; l < LANES; l++) best = x[l] > best ? x[l] : best;
    return best;
}

/* exp to about 2 ulp; 0 below -87, finite above 88. */
static inline float fast_exp(float x) {
    float y = x < -87.f ? -87.f : x;
    y = y > 88.f ? 88.f : y;
    float n = __builtin_rintf(y * 1.44269504f);
    float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    union { int32_t bits; float value; } scale = {.bits = ((int32_t)n + 127) << 23};
    return x < -87.f ? 0.f : p * scale.value;
}

static inline float norm_row(const element *x, const element *weight, element *y, i64 width,
                             float eps) {
    float sum = 0;
    for (i64 j = 0; j < width; j++) sum += up(x[j]) * up(x[j]);
    float rstd = 1.f / sqrtf(sum / width + eps);
    for (i64 j = 0; j < width; j++) y[j] = down(up(x[j]) * rstd * up(weight[j]));
    return rstd;
}

static inline void rotate_head(element *x, const float *cos, const float *sin, float sign) {
    for (int j = 0; j < HALF; j++) {
        float a = up(x[j]), b = up(x[j + HALF]), s = sin[j] * sign;
        x[j] = down(a * cos[j] - b * s);
        x[j + HALF] = down(b * cos[j] + a * s);
    }
}
