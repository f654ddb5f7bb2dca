/* All layers of a decoding pass in one call: kernel for kernel what `decode/llama.py` does, without
 * the way through Python between any two, on which the other threads fall asleep.
 */
#include "storage.h"

typedef void product(i64 threads, const element *a, const uint32_t *b, const element *more,
                     element *out, i64 a_stride, i64 more_stride, i64 rows, i64 entries,
                     i64 columns); /* `multiply` of products.c */

void rms_norm(i64 threads, const element *x, const element *weight, element *y, float *rstd,
              i64 rows, i64 width, float eps);
void swiglu(i64 threads, const element *gate_up, element *y, i64 rows, i64 width);
void write_cache(i64 threads, element *qkv, element *keys, element *values, const i64 *tables,
                 const i64 *sequences, const i64 *positions, const float *cos, const float *sin,
                 const element *q_norm, const element *k_norm, float eps, i64 rows, i64 kv_heads,
                 i64 table_width, i64 stride);
void attend(i64 threads, element *qkv, element *keys, element *values, const i64 *tables,
            const i64 *sequences, const i64 *positions, const float *cos, const float *sin,
            const element *q_norm, const element *k_norm, float eps, element *out, i64 rows,
            i64 kv_heads, i64 table_width, i64 stride, float scale);

/* Addresses of one layer's weights; NULL where it has none. */
struct layer {
    const element *input_norm, *post_norm, *q_norm, *k_norm, *qkv_bias;
    const uint32_t *qkv, *output, *gate_up, *down;
};

/* x [rows][hidden] goes through `count` layers, in place. Keys and values of the next layer's blocks
 * lie `layer_stride` behind. Otherwise as in `attend`. */
void run_layers(i64 threads, product *multiply, const struct layer *layer, i64 count, element *x,
                element *keys, element *values, const i64 *tables, const i64 *sequences,
                const i64 *positions, const float *cos, const float *sin, float eps, i64 rows,
                i64 hidden, i64 inner, i64 kv_heads, i64 table_width, i64 stride, i64 layer_stride,
                i64 alone, float scale) {
    i64 heads = kv_heads * GROUP * HEAD_DIM, width = heads + 2 * kv_heads * HEAD_DIM;
    element *normed = malloc(rows * hidden * sizeof(element));
    element *qkv = malloc(rows * width * sizeof(element));
    element *attended = malloc(rows * heads * sizeof(element));
    element *gate_up = malloc(rows * 2 * inner * sizeof(element));
    element *gated = malloc(rows * inner * sizeof(element));
    for (i64 i = 0; i < count; i++, layer++, keys += layer_stride, values += layer_stride) {
        rms_norm(threads, x, layer->input_norm, normed, NULL, rows, hidden, eps);
        multiply(threads, normed, layer->qkv, layer->qkv_bias, qkv, hidden, 0, rows, hidden, width);
        if (!alone)
            write_cache(threads, qkv, keys, values, tables, sequences, positions, cos, sin,
                        layer->q_norm, layer->k_norm, eps, rows, kv_heads, table_width, stride);
        attend(threads, qkv, keys, values, tables, sequences, positions, alone ? cos : NULL, sin,
               layer->q_norm, layer->k_norm, eps, attended, rows, kv_heads, table_width, stride,
               scale);
        multiply(threads, attended, layer->output, x, x, heads, hidden, rows, heads, hidden);
        rms_norm(threads, x, layer->post_norm, normed, NULL, rows, hidden, eps);
        multiply(threads, normed, layer->gate_up, NULL, gate_up, hidden, 0, rows, hidden, 2 * inner);
        swiglu(threads, gate_up, gated, rows, inner);
        multiply(threads, gated, layer->down, x, x, inner, hidden, rows, inner, hidden);
    }
    free(normed);
    free(qkv);
    free(attended);
    free(gate_up);
    free(gated);
}
