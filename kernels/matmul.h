/* Weights x vectors for every weight type, and the other loops over numbers that a transformer needs.
 *
 * Every operation is defined once, by the scalar code at the top of matmul.c, down to the order of its additions: the
 * faster versions give the same bits, whatever the CPU, the number of threads and the number of vectors at a time.
 */
#ifndef MATMUL_H
#define MATMUL_H

#include "base/base.h"

typedef enum { WEIGHT_F32, WEIGHT_BF16, WEIGHT_F16, WEIGHT_Q8, WEIGHT_Q4 } WeightType;

/* A weight matrix [rows][cols], row-major: out = W x. data is a view (owned elsewhere) and may start at any address,
 * odd ones included; never cast and dereference. Q8 and Q4 hold groups of 32 along a row, in the layout of
 * matmul_quantize(). */
typedef struct {
    const void *data;
    WeightType type;
    size_t rows, cols;
} Matrix;

/* Scratch memory of matmul() and attention(), made once, so that they never allocate. Zeroed is empty. */
typedef struct {
    void *memory;
    size_t size;
} Workspace;

/* Enough for inputs of up to max_cols numbers, max_n vectors at a time, and threads_count() threads (start the pool
 * first). */
int workspace_init(Workspace *ws, size_t max_cols, size_t max_n, size_t head_dim, size_t group, char err[512]);
void workspace_free(Workspace *ws);

/* One product of a step. Products that share their input are given together and run as one parallel loop. */
typedef struct {
    const Matrix *w;
    const float *bias; /* [w->rows] or NULL: added after the sum */
    float *out;        /* [n][out_stride] */
    size_t out_stride; /* floats from one vector's result to the next, >= w->rows */
    bool add;          /* add to what out holds (the residual stream) instead of replacing it */
} Product;

/* products[i].out[t][r] = dot(w row r, x[t]) (+ bias[r]) (+ what was there), for t < n.
 * Element k of a dot product goes to running sum k mod 16 by fused multiply-add, in order; the 16 sums are added by the
 * tree l+8, l+4, l+2, l+1. Q8 and Q4: x is rounded to int8 in groups of 32, sums inside a group are exact integers,
 * then one fmaf(group sum, weight scale * x scale, total) per group, in order. */
void matmul(const Product *products, size_t count, const float *x /* [n][cols] */, size_t n, Workspace *ws);

/* --fast: F32, F16 and BF16 products over several vectors may round their inputs to BF16 where the CPU multiplies such.
 * Off at start. */
void matmul_allow_rounding(bool allow);

/* Row r of any matrix as float32, out[cols]: what the products compute with. */
void matmul_row(float *out, const Matrix *w, size_t row);

#endif
