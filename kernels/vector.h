/* Loops over one vector: conversions to float32, norm, activation, rotation, maximum. The same bits on every machine. */
#ifndef VECTOR_H
#define VECTOR_H

#include "base/base.h"

/* Conversions of n numbers at any address; in vectors where the CPU can, the same bits everywhere. */
void convert_bf16(float *out, const void *in, size_t n); /* bits << 16 */
void convert_f16(float *out, const void *in, size_t n);  /* subnormals, infinities; a NaN keeps its payload, quiet */

/* out[i] = x[i] * (1 / sqrt(mean of squares + eps)) * weight[i], one vector. The squares are summed as a dot product
 * is. */
void rmsnorm(float *out, const float *x, const float *weight, size_t n, float eps);
/* gate[i] = silu(gate[i]) * up[i]; silu(a) = a / (1 + exp(-a)) */
void swiglu(float *gate, const float *up, size_t n);
/* Rotates n_heads vectors of head_dim (first half against second half) by cosine and sine, each [head_dim / 2]. */
void rope_rotate(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine);

float max_f32(const float *x, size_t n);                  /* -infinity for n = 0; NaN wins */
/* Largest value's index, the first among equals; *bad (if given) is set when a NaN or +infinity is there. */
size_t argmax_f32(const float *x, size_t n, bool *bad);

#endif
