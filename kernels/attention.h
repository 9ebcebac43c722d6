/* Attention: each query looks back over the keys and values that it may see. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "kernels/matmul.h"

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
