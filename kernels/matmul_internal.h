/* What matmul.c, its kernels in matmul_x86.c and matmul_neon.c, and quantize.c share; not for other modules. */
#ifndef MATMUL_INTERNAL_H
#define MATMUL_INTERNAL_H

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/internal.h"
#include "kernels/matmul.h"

/* ---- how Q8 and Q4 lie in memory --------------------------------------------------------------------------------- */

#define GROUP 32      /* weights of a row that share a scale */
#define BLOCK_ROWS 16 /* rows that lie interleaved */

/* A matrix is stored in blocks of BLOCK_ROWS rows, so that a vector instruction that multiplies bytes and adds them in
 * fours leaves sixteen rows' sums side by side. A block holds its groups in pairs, aligned to 64 bytes, and is read in
 * one stream:
 *
 *     scales   [2][row]             FP16
 *     weights  [2][k / 4][row][4]   a byte each:
 *                                   Q8: weight k + 128, k = 0..31
 *                                   Q4: weight k + 8 in the lower half, weight k + 16 + 8 in the upper, k = 0..15
 *
 * Rows that the last block lacks are zeros, and so is a group that the last pair lacks. */
static inline size_t weights_bytes(WeightType type) /* of a group */
{
    return (type == WEIGHT_Q4 ? GROUP / 2 : GROUP) * (size_t)BLOCK_ROWS;
}

static inline size_t scales_at(WeightType type, size_t group)
{
    return group / 2 * (64 + 2 * weights_bytes(type)) + group % 2 * 2 * BLOCK_ROWS;
}

static inline size_t weights_at(WeightType type, size_t group)
{
    return group / 2 * (64 + 2 * weights_bytes(type)) + 64 + group % 2 * weights_bytes(type);
}

static inline size_t block_bytes(WeightType type, size_t groups)
{
    return scales_at(type, groups + groups % 2);
}

/* The byte of row `row` and number k among a group's weights. */
static inline size_t weight_at(size_t row, size_t k)
{
    return (k / 4 * BLOCK_ROWS + row) * 4 + k % 4;
}

/* ---- what kernels compute ---------------------------------------------------------------------------------------- */

/* Dot products of `rows` rows with n vectors: out[t * out_stride + r]. Memory of out beyond `rows`, up to a multiple of
 * four rows, may be overwritten. When columns are cut into slices, sums [n][rows, rounded up to four][SUMS] carries the
 * running sums from one slice to the next; first and last say which slice this is. */
typedef struct {
    const unsigned char *w; /* [rows][cols] of the kernel's type, at any address */
    size_t row_bytes;       /* from one row to the next */
    size_t rows;
    const void *x; /* [n][x_stride], float32; BF16 for the kernel of pairs */
    size_t x_stride, n, cols;
    float *sums;
    bool first, last;
    float *out;
    size_t out_stride;
} Dots;

/* The same for `blocks` blocks of quantized rows: out[t * out_stride + r], r < blocks * BLOCK_ROWS. */
typedef struct {
    const unsigned char *w; /* [blocks][block_bytes()] */
    size_t blocks, groups;
    const int8_t *q;          /* [n][groups * GROUP], the inputs as integers */
    const float *scale;       /* [n][groups] */
    const int32_t *minus_sum; /* [n][groups]: minus the sum of a group of q */
    size_t n;
    float *out;
    size_t out_stride;
} QuantDots;

typedef void DotsKernel(const Dots *d);
typedef void QuantDotsKernel(const QuantDots *d);

typedef struct {
    DotsKernel *dots[3]; /* by WeightType: F32, BF16, F16 */
    DotsKernel *pairs;   /* BF16 weights with BF16 inputs, added in whatever order is fast; NULL if there is none */
    void (*to_bf16)(uint16_t *out, const float *in, size_t n); /* rounds the inputs of `pairs` */
    QuantDotsKernel *q8, *q4;
    void (*to_int8)(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups); /* those of q8, q4 */
    size_t slice; /* columns at a time when there are more vectors than FEW; a multiple of SUMS */
} Kernels;

/* Define a kernel as a call of code that serves several, in which the type of the weights becomes a constant. target is
 * the attribute for the instructions that it needs. */
#define KERNEL(target, name, Work, call)                                                                               \
    target static void name(const Work *d)                                                                             \
    {                                                                                                                  \
        call;                                                                                                          \
    }

/* The kernels of a level, or NULL if this build has none. */
const Kernels *kernels_x86(CpuLevel level);
const Kernels *kernels_neon(void);

/* Up to FEW vectors pass by every few rows, whose weights come from memory. Of more vectors, a few stay in the
 * first-level cache while the rows pass by. */
#define FEW 12

/* ---- rows as float32 --------------------------------------------------------------------------------------------- */

/* out[n] = a row of a matrix that is not quantized, from column `begin` on. */
void matmul_row_slice(float *out, const Matrix *w, size_t row, size_t begin, size_t n);

#endif
