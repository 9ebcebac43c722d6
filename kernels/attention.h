/* Attention: each query looks back over the keys and values that it may see. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "kernels/matmul.h"

/* The cache of one layer is a list of blocks of ATTENTION_BLOCK positions each. A block holds the keys, then the values
 * of all kv heads:
 *
 *     k  [kv_head][ATTENTION_BLOCK / 16][head_dim][16]   sixteen keys side by side, so that a score needs no shuffling
 *     v  [kv_head][ATTENTION_BLOCK][head_dim]
 */
#define ATTENTION_BLOCK 256

/* Floats of one block. A block starts at a multiple of 64 bytes. */
size_t attention_block_floats(size_t n_kv_heads, size_t head_dim);

/* Write the key and the value [n_kv_heads][head_dim] of one position, 0..ATTENTION_BLOCK-1 within the block. */
void attention_store(float *block, size_t position, const float *k, const float *v, size_t n_kv_heads, size_t head_dim);

typedef struct {
    const float *q;       /* [n][n_heads][head_dim], rotated */
    float *out;           /* [n][n_heads][head_dim] */
    float *const *blocks; /* this layer's blocks, by ascending position */
    size_t n, start;      /* the queries' positions are start .. start + n - 1; each sees the keys up to its own */
    size_t window;        /* a query sees only the last `window` positions, its own included; 0: all */
    size_t n_heads, n_kv_heads, head_dim; /* n_kv_heads divides n_heads */
    float scale;                          /* of the scores: 1 / sqrt(head_dim) */
} Attention;

/* For each query and head: scores = scale * dot(q, k) by the rule of matmul.h; within a block of keys the exps of
 * score - maximum, their sum, and the values weighted by them; the blocks merged in ascending order. attention.c has
 * the formulas, which decide each bit. */
void attention(const Attention *a, Workspace *ws);

/* Bytes of workspace with which attention() runs well, on threads_count() threads (start the pool first). It makes do
 * with less. heads_per_kv_head = n_heads / n_kv_heads */
size_t attention_scratch_bytes(size_t heads_per_kv_head, size_t head_dim);

#endif
