/* Loops over one vector: conversions to float32, norm, activation, rotation, maximum. They give the same bits on every
 * machine. */
#ifndef VECTOR_H
#define VECTOR_H

#include "base/base.h"

/* out[i] = in[i] for i < n; in is at any address. */
void convert_bf16(float *out, const void *in, size_t n); /* bits << 16 */
void convert_f16(float *out, const void *in, size_t n);  /* with subnormals and infinities; a NaN keeps its payload and
                                                            becomes quiet */

/* out[i] = x[i] * (1 / sqrt(mean of squares + eps)) * weight[i] for i < n; out may be x. The squares are summed as a
 * dot product is (see matmul.h). */
void rmsnorm(float *out, const float *x, const float *weight, size_t n, float eps);

/* gate[i] = silu(gate[i]) * up[i] for i < n; silu(a) = a / (1 + exp(-a)). */
void swiglu(float *gate, const float *up, size_t n);

/* Rotate each pair (x[h][i], x[h][i + head_dim / 2]), i < head_dim / 2, by the angle with cosine[i] and sine[i].
 * x [n_heads][head_dim], cosine and sine [head_dim / 2] */
void rope_rotate(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine);

/* The largest of x[0..n): NaN if one is NaN, -infinity for n = 0. */
float max_f32(const float *x, size_t n);

/* The index of the largest of x[0..n), the first among equals; 0 for n = 0. *bad (or NULL) is set to whether a NaN or
 * +infinity is among them. */
size_t argmax_f32(const float *x, size_t n, bool *bad);

#endif
