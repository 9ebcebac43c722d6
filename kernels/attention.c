/* Attention.
 *
 * A query looks back over the keys: weights = softmax of scale * dot(q, k_j), out = sum of weight_j * v_j. Keys come in
 * blocks of 256 by absolute position. Within a block, for the positions j that the query may see:
 *
 *     s_j = scale * dot(q, k_j)       sixteen running sums, added by the tree, as everywhere (see matmul.c)
 *     m   = the largest s_j
 *     p_j = exp(s_j - m)
 *     l   = sum of p_j                sixteen running sums by j mod 16, then the same tree
 *     a   = sum of p_j * v_j          by fused multiply-add, j ascending
 *
 * The results (m, l, a) of the blocks are merged in ascending order into (M, L, A), which starts as the first of them:
 *
 *     m >  M:  f = exp(M - m);  L = fma(L, f, l);  A = fma(A, f, a);  M = m
 *     m <= M:  f = exp(m - M);  L = fma(l, f, L);  A = fma(a, f, A)
 *
 * out = A * (1 / L). A block's results depend on nothing outside of it, so neither the number of threads nor the number
 * of queries at a time can change a bit.
 *
 * The scalar code comes first: it is the definition. The vector code is in attention_lanes.h, compiled once for each
 * level.
 */
#include "kernels/attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "kernels/internal.h"
#include "kernels/elementary.h"

#define KEY_STRIP 16 /* keys that lie side by side in a block: a strip */

/* Bytes of a key's or value's number. */
INLINE size_t number_bytes(KvType type)
{
    return type == KV_F32 ? 4 : 2;
}

/* ---- the definitions --------------------------------------------------------------------------------------------- */

/* Number i of the keys or values that begin at p. */
INLINE float number(KvType type, const unsigned char *p, size_t i)
{
    return type == KV_F32 ? load_f32(p, i) : f16_to_f32(load_u16(p, i));
}

/* score[r][j] = scale * dot(q[r], k_j) for the strips from..to-1 of a block's keys; other scores may be overwritten.
 * q [rows][head_dim], k [ATTENTION_BLOCK / KEY_STRIP][head_dim][KEY_STRIP], score [rows][ATTENTION_BLOCK] */
static void scores_scalar(KvType type, float *score, const float *q, size_t rows, const unsigned char *k,
                          size_t head_dim, float scale, size_t from, size_t to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = from * KEY_STRIP; j < to * KEY_STRIP; j++) {
            size_t key = j / KEY_STRIP * head_dim * KEY_STRIP + j % KEY_STRIP;
            float s[SUMS] = {0};
            for (size_t d = 0; d < head_dim; d++)
                s[d % SUMS] = fmaf(q[r * head_dim + d], number(type, k, key + d * KEY_STRIP), s[d % SUMS]);
            score[r * ATTENTION_BLOCK + j] = scale * add_sums(s);
        }
}

/* score[j] = exp(score[j] - *max) for from <= j < to, with *max the largest of these scores, and *sum the sum of the
 * exps. Other scores of the strips that hold from and to - 1 may be overwritten. */
static void softmax_scalar(float *score, size_t from, size_t to, float *max, float *sum)
{
    float m = -INFINITY, s[SUMS] = {0};
    for (size_t j = from; j < to; j++)
        m = score[j] > m ? score[j] : m;
    for (size_t j = from; j < to; j++) {
        score[j] = exp_f32(score[j] - m);
        s[j % SUMS] += score[j];
    }
    *max = m;
    *sum = add_sums(s);
}

/* a[r] += p[r][j] * v_j for from <= j < to.
 * a [rows][head_dim], p [rows][ATTENTION_BLOCK], v [ATTENTION_BLOCK][head_dim] */
static void values_scalar(KvType type, float *a, const float *p, size_t rows, const unsigned char *v, size_t head_dim,
                          size_t from, size_t to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = from; j < to; j++)
            for (size_t d = 0; d < head_dim; d++)
                a[r * head_dim + d] =
                    fmaf(p[r * ATTENTION_BLOCK + j], number(type, v, j * head_dim + d), a[r * head_dim + d]);
}

/* out[i] = fma(x[i], f, y[i]) for i < n; out may be x or y. */
static void add_scaled_scalar(float *out, const float *x, float f, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = fmaf(x[i], f, y[i]);
}

/* ---- faster, same answer ----------------------------------------------------------------------------------------- */

/* What attention_lanes.h computes together: rows x vectors of keys for scores, rows x vectors of a value for sums of
 * values. Each sum takes a register, of which AVX2 has 16, AVX-512 and NEON have 32. */
#define SCORE_ROWS 4
#define SCORE_VECTORS (WIDTH == 4 ? 4 : 2)
#define VALUE_ROWS (WIDTH == 16 ? 8 : 4)
#define VALUE_VECTORS (WIDTH == 8 ? 2 : 4)

#define KEYS_AHEAD 32 /* from the values that are added to those that are prefetched meanwhile: about 8 KB */

#define CACHE_LINE 64 /* bytes */

/* The queries and keys of a tile of scores, and the memory that is prefetched meanwhile, `lines` lines at each step. */
typedef struct {
    const float *q;
    const unsigned char *k, *ahead;
    size_t head_dim, lines;
} ScoreTile;

#if defined(__x86_64__)
#define LEVEL_AVX512
#include "kernels/attention_lanes.h"
#define LEVEL_AVX2
#include "kernels/attention_lanes.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define LEVEL_NEON
#include "kernels/attention_lanes.h"
#endif

/* ---- the kernels of each level ----------------------------------------------------------------------------------- */

typedef struct {
    void (*scores)(KvType type, float *score, const float *q, size_t rows, const unsigned char *k, size_t head_dim,
                   float scale, size_t from, size_t to);
    void (*softmax)(float *score, size_t from, size_t to, float *max, float *sum);
    void (*values)(KvType type, float *a, const float *p, size_t rows, const unsigned char *v, size_t head_dim,
                   size_t from, size_t to);
    void (*add_scaled)(float *out, const float *x, float f, const float *y, size_t n);
} Kernels;

#define KERNELS(level)                                                                                                 \
    {                                                                                                                  \
        scores_##level, softmax_##level, values_##level, add_scaled_##level                                            \
    }

static const Kernels kernels[CPU_LEVELS] = BY_LEVEL(KERNELS);

/* ---- the cache --------------------------------------------------------------------------------------------------- */

size_t attention_layer_bytes(KvType type, size_t n_kv_heads, size_t head_dim)
{
    return 2 * n_kv_heads * ATTENTION_BLOCK * head_dim * number_bytes(type);
}

static unsigned char *layer_of(const KvBlock *block, size_t layer, size_t n_kv_heads, size_t head_dim)
{
    return block->layers + layer * attention_layer_bytes(block->type, n_kv_heads, head_dim);
}

INLINE void put_number(KvType type, unsigned char *p, size_t i, float value)
{
    if (type == KV_F32) {
        memcpy(p + i * sizeof value, &value, sizeof value);
    } else {
        uint16_t half = f32_to_f16(value);
        memcpy(p + i * sizeof half, &half, sizeof half);
    }
}

/* layer: of a block; its type is known to the compiler. */
INLINE void store(KvType type, unsigned char *layer, size_t position, const float *k, const float *v, size_t n_kv_heads,
                  size_t head_dim)
{
    size_t per_head = ATTENTION_BLOCK * head_dim;
    size_t key = position / KEY_STRIP * head_dim * KEY_STRIP + position % KEY_STRIP;
    size_t value = n_kv_heads * per_head + position * head_dim;
    for (size_t h = 0; h < n_kv_heads; h++)
        for (size_t d = 0; d < head_dim; d++) {
            put_number(type, layer, key + h * per_head + d * KEY_STRIP, k[h * head_dim + d]);
            put_number(type, layer, value + h * per_head + d, v[h * head_dim + d]);
        }
}

void attention_store(const KvBlock *block, size_t layer, size_t position, const float *k, const float *v,
                     size_t n_kv_heads, size_t head_dim)
{
    unsigned char *to = layer_of(block, layer, n_kv_heads, head_dim);
    if (block->type == KV_F32)
        store(KV_F32, to, position, k, v, n_kv_heads, head_dim);
    else
        store(KV_F16, to, position, k, v, n_kv_heads, head_dim);
}

/* ---- scratch memory ---------------------------------------------------------------------------------------------- */

/* Results (m, l, a) of one block, or of all blocks so far; row = query * group + head. */
typedef struct {
    float *m, *l; /* [rows] */
    float *a;     /* [rows][head_dim] */
} Partial;

static size_t align16(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static float *carve(float **memory, size_t floats)
{
    float *p = *memory;
    *memory += align16(floats);
    return p;
}

static Partial carve_partial(float **memory, size_t rows, size_t head_dim)
{
    Partial p;
    p.m = carve(memory, rows);
    p.l = carve(memory, rows);
    p.a = carve(memory, rows * head_dim);
    return p;
}

static size_t partial_floats(size_t rows, size_t head_dim)
{
    return 2 * align16(rows) + align16(rows * head_dim);
}

/* ---- tiles, tasks and splits ------------------------------------------------------------------------------------- */

/* The queries are cut into tiles. A tile has, for one kv head, a row for each of its queries and each query head of the
 * kv head's group. */
#define TILE_ROWS 64        /* their scores for a block stay in the second-level cache, */
#define VALUES_AT_A_TIME 64 /* so many of a block's values in the first */

/* For each thread the scores and results of a tile; and, if a kv head has several query heads, slots for splits. */
size_t attention_scratch_bytes(size_t heads_per_kv_head, size_t head_dim)
{
    size_t rows = TILE_ROWS * heads_per_kv_head;
    return (size_t)threads_count() * rows * (head_dim + ATTENTION_BLOCK + 8) * sizeof(float);
}

/* A task is a tile and a kv head. If there are too few tasks for the threads, each is split into its blocks of keys:
 * splits are counted through all tasks, and the results of several wait in slots until they are merged in order. */
typedef struct {
    const Attention *at;
    const Kernels *kernels;
    size_t group;                   /* query heads of a kv head */
    size_t tile_queries, tile_rows; /* of a full tile */
    size_t tasks;
    float *scratch; /* [thread][thread_floats] */
    size_t thread_floats;
    float *slots;                   /* [slot_count][slot_floats]: each a Partial */
    size_t slot_count, slot_floats; /* slot_count 0: tasks are not split */
    size_t first_split;             /* the one whose result goes to slot 0 */
} Plan;

/* A task's queries begin .. end - 1 of a sequence, of which `begin` is number `row` among all queries, and its blocks
 * first .. last. */
typedef struct {
    const Queries *sequence;
    size_t kv_head, begin, end, row, first, last;
} Task;

/* The first position that a query sees when there are `seen` up to its own. */
static size_t window_begin(const Attention *at, size_t seen)
{
    return at->window && seen > at->window ? seen - at->window : 0;
}

static size_t tiles_of(const Plan *p, const Queries *sequence)
{
    return (sequence->n + p->tile_queries - 1) / p->tile_queries;
}

/* Task number `index`. Later tiles of a sequence, whose queries see more keys, come first. */
static Task task_of(const Plan *p, size_t index)
{
    const Attention *at = p->at;
    const Queries *s = at->sequences;
    size_t row = 0;
    for (; index >= tiles_of(p, s) * at->n_kv_heads; s++) {
        index -= tiles_of(p, s) * at->n_kv_heads;
        row += s->n;
    }
    Task t = {.sequence = s, .kv_head = index % at->n_kv_heads};
    t.begin = (tiles_of(p, s) - 1 - index / at->n_kv_heads) * p->tile_queries;
    t.end = MIN(t.begin + p->tile_queries, s->n);
    t.row = row + t.begin;
    t.first = window_begin(at, s->start + t.begin + 1) / ATTENTION_BLOCK;
    t.last = (s->start + t.end - 1) / ATTENTION_BLOCK;
    return t;
}

/* The block of split number `split`; its task in *t. */
static size_t block_of_split(const Plan *p, size_t split, Task *t)
{
    size_t index = 0;
    *t = task_of(p, index);
    while (split > t->last - t->first) {
        split -= t->last - t->first + 1;
        *t = task_of(p, ++index);
    }
    return t->first + split;
}

/* The positions *from..*to-1 within a block that query i of a task sees; false if it sees none. */
static bool key_range(const Attention *at, const Task *t, size_t i, size_t block, size_t *from, size_t *to)
{
    size_t seen = t->sequence->start + t->begin + i + 1, base = block * ATTENTION_BLOCK, low = window_begin(at, seen);
    *from = low > base ? low - base : 0;
    *to = seen > base ? MIN(seen - base, ATTENTION_BLOCK) : 0;
    return *from < *to;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

/* (m, l, a) of one block, for those rows of a task that see any of it. */
static void compute_block(const Plan *p, const Task *t, size_t block, float *scratch, Partial out)
{
    const Attention *at = p->at;
    size_t hd = at->head_dim, group = p->group, queries = t->end - t->begin, from, to, low = ATTENTION_BLOCK, high = 0;
    const KvBlock *from_block = t->sequence->blocks[block];
    size_t per_head = ATTENTION_BLOCK * hd * number_bytes(from_block->type);
    const unsigned char *k = layer_of(from_block, at->layer, at->n_kv_heads, hd) + t->kv_head * per_head;
    const unsigned char *v = k + at->n_kv_heads * per_head;
    float *score = carve(&scratch, queries * group * ATTENTION_BLOCK), *q = carve(&scratch, queries * group * hd);
    for (size_t i = 0; i < queries; i++) {
        size_t first_head = (t->row + i) * at->n_heads + t->kv_head * group;
        memcpy(q + i * group * hd, at->q + first_head * hd, group * hd * sizeof *q);
        if (key_range(at, t, i, block, &from, &to)) {
            low = MIN(from, low);
            high = MAX(to, high);
        }
    }
    p->kernels->scores(from_block->type, score, q, queries * group, k, hd, at->scale, low / KEY_STRIP,
                       (high + KEY_STRIP - 1) / KEY_STRIP);
    for (size_t i = 0; i < queries; i++)
        if (key_range(at, t, i, block, &from, &to))
            for (size_t r = i * group; r < (i + 1) * group; r++)
                p->kernels->softmax(score + r * ATTENTION_BLOCK, from, to, &out.m[r], &out.l[r]);
    memset(out.a, 0, queries * group * hd * sizeof *out.a);
    for (size_t j = 0; j < ATTENTION_BLOCK; j += VALUES_AT_A_TIME)
        for (size_t i = 0; i < queries; i++) {
            if (!key_range(at, t, i, block, &from, &to))
                continue;
            from = MAX(from, j);
            to = MIN(to, j + VALUES_AT_A_TIME);
            if (from < to)
                p->kernels->values(from_block->type, out.a + i * group * hd, score + i * group * ATTENTION_BLOCK, group,
                                   v, hd, from, to);
        }
}

/* Merge one row of a block, the lower-case names, into what came before: the formulas at the top of this file. */
static void merge_row(const Kernels *kernel, float *M, float *L, float *A, float m, float l, const float *a, size_t hd)
{
    if (m > *M) {
        float f = exp_f32(*M - m);
        *L = fmaf(*L, f, l);
        kernel->add_scaled(A, A, f, a, hd);
        *M = m;
    } else {
        float f = exp_f32(m - *M);
        *L = fmaf(l, f, *L);
        kernel->add_scaled(A, a, f, A, hd);
    }
}

/* Merge a block of a task into sum->m, sum->l and, in place of sum->a, at->out. After the last block divide at->out by
 * the sums. */
static void merge_block(const Plan *p, const Task *t, size_t block, const Partial *partial, const Partial *sum)
{
    const Attention *at = p->at;
    size_t hd = at->head_dim, from, to;
    for (size_t i = 0; i < t->end - t->begin; i++) {
        if (!key_range(at, t, i, block, &from, &to))
            continue;
        bool first = block == t->first || !key_range(at, t, i, block - 1, &from, &to);
        float *out = at->out + ((t->row + i) * at->n_heads + t->kv_head * p->group) * hd;
        for (size_t r = i * p->group; r < (i + 1) * p->group; r++, out += hd) {
            if (first) {
                sum->m[r] = partial->m[r];
                sum->l[r] = partial->l[r];
                memcpy(out, partial->a + r * hd, hd * sizeof *out);
            } else {
                merge_row(p->kernels, &sum->m[r], &sum->l[r], out, partial->m[r], partial->l[r], partial->a + r * hd,
                          hd);
            }
        }
    }
    if (block < t->last)
        return;
    for (size_t r = 0; r < (t->end - t->begin) * p->group; r++) {
        float *out = at->out + ((t->row + r / p->group) * at->n_heads + t->kv_head * p->group + r % p->group) * hd;
        float f = 1.0f / sum->l[r];
        for (size_t d = 0; d < hd; d++)
            out[d] *= f;
    }
}

/* ---- all blocks, in parallel ------------------------------------------------------------------------------------- */

/* Each thread computes all blocks of a task and merges them as it goes. */
static void do_tasks(void *context, size_t begin, size_t end, int thread)
{
    const Plan *p = context;
    float *memory = p->scratch + (size_t)thread * p->thread_floats;
    Partial sum = {carve(&memory, p->tile_rows), carve(&memory, p->tile_rows), NULL};
    Partial partial = carve_partial(&memory, p->tile_rows, p->at->head_dim);
    for (size_t i = begin; i < end; i++) {
        Task t = task_of(p, i);
        for (size_t b = t.first; b <= t.last; b++) {
            compute_block(p, &t, b, memory, partial);
            merge_block(p, &t, b, &partial, &sum);
        }
    }
}

static Partial slot_of(const Plan *p, size_t split)
{
    float *memory = p->slots + (split - p->first_split) * p->slot_floats;
    return carve_partial(&memory, p->tile_rows, p->at->head_dim);
}

/* Each thread computes single blocks, into their slots. */
static void do_splits(void *context, size_t begin, size_t end, int thread)
{
    const Plan *p = context;
    for (size_t split = p->first_split + begin; split < p->first_split + end; split++) {
        Task t;
        size_t block = block_of_split(p, split, &t);
        compute_block(p, &t, block, p->scratch + (size_t)thread * p->thread_floats, slot_of(p, split));
    }
}

/* Compute as many splits at a time as there are slots, then merge them in order. */
static void attend_by_splits(Plan *p)
{
    size_t splits = 0;
    for (size_t i = 0; i < p->tasks; i++) {
        Task t = task_of(p, i);
        splits += t.last - t.first + 1;
    }
    float *memory = p->slots + p->slot_count * p->slot_floats;
    Partial sum = {carve(&memory, p->tile_rows), carve(&memory, p->tile_rows), NULL};
    for (p->first_split = 0; p->first_split < splits; p->first_split += p->slot_count) {
        size_t end = MIN(p->first_split + p->slot_count, splits);
        threads_for(end - p->first_split, 1, do_splits, p);
        for (size_t split = p->first_split; split < end; split++) {
            Task t;
            size_t block = block_of_split(p, split, &t);
            Partial partial = slot_of(p, split);
            merge_block(p, &t, block, &partial, &sum);
        }
    }
}

static void set_tile(Plan *p, size_t queries)
{
    const Attention *at = p->at;
    size_t hd = at->head_dim, rows = queries * p->group;
    p->tile_queries = queries;
    p->tile_rows = rows;
    p->tasks = 0;
    for (size_t i = 0; i < at->n_sequences; i++)
        p->tasks += tiles_of(p, &at->sequences[i]) * at->n_kv_heads;
    p->slot_floats = partial_floats(rows, hd);
    p->thread_floats = 2 * align16(rows) + p->slot_floats + rows * ATTENTION_BLOCK + align16(rows * hd);
}

/* Choose tiles as large as the scratch memory allows, but smaller ones if threads would have nothing to do. */
static void make_plan(Plan *p, const Attention *at, const Workspace *ws)
{
    size_t threads = (size_t)threads_count(), floats = ws->size / sizeof(float), most_queries = 1, blocks = 0;
    for (size_t i = 0; i < at->n_sequences; i++) {
        const Queries *s = &at->sequences[i];
        most_queries = MAX(most_queries, s->n);
        blocks = MAX(blocks, (s->start + s->n - 1) / ATTENTION_BLOCK + 1);
    }
    *p = (Plan){.at = at, .kernels = &kernels[cpu_level()], .group = at->n_heads / at->n_kv_heads};
    set_tile(p, MIN(MAX(TILE_ROWS / p->group, 1), most_queries));
    while (p->tile_queries > 1 && (threads * p->thread_floats > floats || p->tasks * blocks < 2 * threads))
        set_tile(p, (p->tile_queries + 1) / 2);
    assert(threads * p->thread_floats <= floats);
    p->scratch = ws->memory;
    p->slots = p->scratch + threads * p->thread_floats;
    size_t left = floats - threads * p->thread_floats, sums = 2 * align16(p->tile_rows);
    bool few = threads > 1 && p->tasks < 4 * threads;
    if (few && left > sums && (left - sums) / p->slot_floats >= 2 * threads)
        p->slot_count = (left - sums) / p->slot_floats;
}

void attention(const Attention *at, Workspace *ws)
{
    Plan plan;
    make_plan(&plan, at, ws);
    if (plan.slot_count)
        attend_by_splits(&plan);
    else
        threads_for(plan.tasks, 1, do_tasks, &plan);
}
