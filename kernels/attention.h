/* Attention: each query looks back over the keys and values that it may see. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "kernels/matmul.h"

/* How keys and values are kept: as float32, or rounded to FP16, where what is too large becomes the largest number. */
typedef enum { KV_F32, KV_F16 } KvType;

/* A block of the cache: the keys and values of ATTENTION_BLOCK consecutive positions of a sequence, in every layer.
 * Sequences that begin alike may share it. A layer holds the keys, then the values of all kv heads:
 *
 *     k  [kv_head][ATTENTION_BLOCK / 16][head_dim][16]   sixteen keys side by side, so that a score needs no shuffling
 *     v  [kv_head][ATTENTION_BLOCK][head_dim]
 */
#define ATTENTION_BLOCK 256
typedef struct {
    size_t sequences; /* that use it */
    KvType type;
    unsigned char *layers; /* [layer][attention_layer_bytes()], at a multiple of 64 bytes */
} KvBlock;

/* Bytes that a block takes for one layer, a multiple of 64. */
size_t attention_layer_bytes(KvType type, size_t n_kv_heads, size_t head_dim);

/* Write the key and the value [n_kv_heads][head_dim] of one position, 0..ATTENTION_BLOCK-1 within the block. */
void attention_store(const KvBlock *block, size_t layer, size_t position, const float *k, const float *v,
                     size_t n_kv_heads, size_t head_dim);

/* n queries of one sequence. Their positions are start .. start + n - 1, and each sees the keys up to its own. */
typedef struct {
    KvBlock *const *blocks; /* the sequence's, by ascending position; all of one type */
    size_t n, start;
} Queries;

typedef struct {
    const float *q;           /* [all queries][n_heads][head_dim], rotated: those of sequences[0], then the next ... */
    float *out;               /* [all queries][n_heads][head_dim] */
    const Queries *sequences; /* [n_sequences] */
    size_t n_sequences;
    size_t layer;
    size_t window;                        /* a query sees only the last `window` positions, its own included; 0: all */
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
