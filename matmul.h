/* Weights x vectors for every weight type, and the other loops over numbers that a transformer needs.
 *
 * Every operation is defined once, by the scalar code at the top of matmul.c, down to the order of its additions: the
 * faster versions give the same bits, whatever the CPU, the number of threads and the number of vectors at a time.
 */
#ifndef MATMUL_H
#define MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Quantises src to Q8 or Q4 (dst->type), in parallel. dst->rows and cols are set; dst->data must point to
 * matmul_quantized_size() bytes aligned to 64, which are written. cols must be a multiple of 32. -1 if a weight is NaN
 * or infinite: *bad_row is its row. */
size_t matmul_quantized_size(WeightType type, size_t rows, size_t cols);
int matmul_quantize(const Matrix *dst, void *storage, const Matrix *src, size_t *bad_row);
/* Row r of any matrix as float32, out[cols]: what the products compute with. */
void matmul_row(float *out, const Matrix *w, size_t row);

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

float exp_f32(float x);   /* own code, the same on every machine; within 2 ulp */
double log_f64(double x); /* own code; for probabilities in sampling and perplexity */
double exp_f64(double x);
void sin_cos_f64(double x, double *sine, double *cosine); /* own code, |x| up to 1e6: error below 1e-15 */
float max_f32(const float *x, size_t n);                  /* -infinity for n = 0; NaN wins */
/* Largest value's index, the first among equals; *bad (if given) is set when a NaN or +infinity is there. */
size_t argmax_f32(const float *x, size_t n, bool *bad);

/* Attention, over a cache in blocks of ATTENTION_BLOCK positions. A block holds, for one layer, keys and values of all
 * kv heads: k  [kv_head][ATTENTION_BLOCK / 16][head_dim][16]   sixteen keys side by side, so that a score needs no
 * shuffling v  [kv_head][ATTENTION_BLOCK][head_dim]
 */
#define ATTENTION_BLOCK 256
size_t attention_block_floats(size_t n_kv_heads,
                              size_t head_dim); /* floats of one block: k, then v; starts aligned to 64 bytes */
/* Writes the key and value vectors [n_kv_heads][head_dim] of one position (0..ATTENTION_BLOCK-1 within its block). */
void attention_store(float *block, size_t position, const float *k, const float *v, size_t n_kv_heads, size_t head_dim);

typedef struct {
    const float *q;       /* [n][n_heads][head_dim], rotated */
    float *out;           /* [n][n_heads][head_dim] */
    float *const *blocks; /* this layer's blocks, ascending */
    size_t n, start;      /* queries are positions start .. start+n-1; keys up to each query's own position */
    size_t window;        /* only the last `window` positions up to the query's own; 0: all */
    size_t n_heads, n_kv_heads, head_dim;
    float scale; /* of the scores: 1 / sqrt(head_dim) */
} Attention;

/* For each query and head: scores = scale * dot(q, k) by the rule above, exp(score - maximum), sum and weighted values
 * within a block of keys (values key by key with FMA; exps in 16 running sums by position mod 16); blocks merged in
 * ascending order. One parallel loop over (query tile, kv head, key block). */
void attention(const Attention *a, Workspace *ws);

#endif
