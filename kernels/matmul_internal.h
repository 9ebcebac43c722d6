/* Inside matmul: what the driver in matmul.c asks of a kernel, and which kernels there are. Not for other rooms. */
#ifndef MATMUL_KERNELS_H
#define MATMUL_KERNELS_H

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/matmul.h"

#define LANES 16        /* running sums of a dot product */
#define GROUP 32        /* weights that share a scale */
#define SIDE_BY_SIDE 16 /* rows of a quantised matrix that lie interleaved */
#define PANEL_ROWS 128  /* rows that many vectors meet at a time */
#define TILE_TOKENS 48  /* vectors that meet them at a time */

/* Dot products of `rows` rows with n vectors: out[t * out_stride + r]. Memory of out beyond `rows`, up to a multiple of
 * four rows, may be overwritten. When columns are cut into pieces, sums [n][rows, rounded up to four][LANES] carries
 * the running sums from one piece to the next; first and last say which piece this is. */
typedef struct {
    const unsigned char *w; /* [rows][cols] of the kernel's type, any address */
    size_t row_bytes;       /* from one row to the next */
    size_t rows;
    const void *x; /* [n][x_stride], float32; BF16 for the kernel of pairs */
    size_t x_stride, n, cols;
    float *sums;
    bool first, last;
    float *out;
    size_t out_stride;
} Dots;

/* The same for blocks of SIDE_BY_SIDE quantised rows: out[t * out_stride + r], r < blocks * SIDE_BY_SIDE. */
typedef struct {
    const unsigned char *w; /* [blocks], each as matmul_quantize() lays it out */
    size_t blocks, groups;
    const int8_t *q;          /* [n][groups * GROUP] */
    const float *scale;       /* [n][groups] */
    const int32_t *minus_sum; /* [n][groups]: sum of a group of q, negative */
    size_t n;
    float *out;
    size_t out_stride;
} QuantDots;

typedef void DotsKernel(const Dots *d);
typedef void QuantDotsKernel(const QuantDots *d);
typedef void ConvertKernel(float *out, const void *in, size_t n);
typedef void InputsKernel(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups);

typedef struct {
    DotsKernel *dots[3]; /* by WeightType: F32, BF16, F16 */
    DotsKernel *pairs;   /* BF16 weights with BF16 inputs, in whatever order is fast; NULL: there is none */
    void (*narrow)(uint16_t *out, const float *in, size_t n); /* to BF16, for pairs */
    QuantDotsKernel *q8, *q4;
    InputsKernel *inputs; /* rounds inputs to integers, for q8 and q4 */
    ConvertKernel *bf16, *f16;
    size_t cut; /* columns of a piece when there are more vectors than FEW, at most; a multiple of LANES */
} Kernels;

/* Up to so many vectors pass by each few rows, whose weights come from memory; of more, a few stay in the first cache
 * while the rows pass by. */
#define FEW 12

/* Kernels of a level, or NULL if this build has none. */
const Kernels *kernels_x86(CpuLevel level);
const Kernels *kernels_neon(void);

/* A block of SIDE_BY_SIDE rows: groups by twos, first the scales of both, then the quants of one and of the other; so
 * all is aligned to 64 bytes and read in one stream. */
static inline size_t quants_bytes(WeightType type)
{
    return (type == WEIGHT_Q4 ? GROUP / 2 : GROUP) * (size_t)SIDE_BY_SIDE;
}

static inline size_t scales_at(WeightType type, size_t group)
{
    return group / 2 * (64 + 2 * quants_bytes(type)) + group % 2 * 2 * SIDE_BY_SIDE;
}

static inline size_t quants_at(WeightType type, size_t group)
{
    return group / 2 * (64 + 2 * quants_bytes(type)) + 64 + group % 2 * quants_bytes(type);
}

static inline size_t block_bytes(WeightType type, size_t groups)
{
    return scales_at(type, groups + groups % 2);
}

#endif
