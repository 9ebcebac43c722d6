/* Weights x vectors, for every type of weights.
 *
 * A product is defined once, by the scalar code in matmul.c, down to the order of its additions: the faster versions
 * give the same bits, whatever the CPU, the number of threads and the number of vectors at a time.
 */
#ifndef MATMUL_H
#define MATMUL_H

#include "base/base.h"

typedef enum { WEIGHT_F32, WEIGHT_BF16, WEIGHT_F16, WEIGHT_Q8, WEIGHT_Q4 } WeightType;

/* A weight matrix [rows][cols], row-major: out = W x. data is owned elsewhere and may start at any address, odd ones
 * included, so it is never cast and dereferenced. Q8 and Q4 are what quantize_matrix() stores, aligned to 64 bytes:
 * groups of 32 weights along a row share a scale, and cols is a multiple of 32. */
typedef struct {
    const void *data;
    WeightType type;
    size_t rows, cols;
} Matrix;

/* Scratch memory of matmul() and attention(), allocated once so that they allocate nothing: `size` bytes at a multiple
 * of 64. allow_rounding, for --fast: F32, F16 and BF16 products of several vectors may round their inputs to BF16, if
 * the CPU multiplies such numbers. */
typedef struct {
    void *memory;
    size_t size;
    bool allow_rounding;
} Workspace;

/* Bytes of workspace that matmul() needs for up to n vectors of up to cols numbers, on threads_count() threads (start
 * the pool first). */
size_t matmul_scratch_bytes(size_t cols, size_t n);

/* One product of a step. Products that share their input are given together and run as one parallel loop. */
typedef struct {
    const Matrix *w;
    const float *bias; /* [w->rows] or NULL: added after the sum */
    float *out;        /* [n][out_stride] */
    size_t out_stride; /* floats from one vector's result to the next, >= w->rows */
    bool add;          /* add to what out holds (the residual stream) instead of replacing it */
} Product;

/* products[i].out[t][r] = dot(w row r, x[t]) (+ bias[r]) (+ what was there), for t < n and all rows r; x [n][cols].
 *
 * F32, BF16, F16: element k is added to running sum k mod 16 by fused multiply-add, in order; the 16 sums are added by
 * the tree l + 8, l + 4, l + 2, l + 1.
 * Q8, Q4: x is rounded to int8 in groups of 32; sums within a group are exact integers; then one fmaf(group's sum,
 * weight scale * x scale, total) for each group, in order. */
void matmul(const Product *products, size_t count, const float *x, size_t n, Workspace *ws);

/* Row `row` of a matrix of any type as float32, out[cols]: the numbers that products compute with. */
void matmul_row(float *out, const Matrix *w, size_t row);

#endif
