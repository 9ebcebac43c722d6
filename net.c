/* The forward pass of Qwen2, from token ids to logits.
 *
 * One layer, x being the residual stream [dim] of one token at position pos:
 *
 *     a = rmsnorm(x) * input_layernorm
 *     q, k, v = Wq a + bq, Wk a + bk, Wv a + bv             n_heads query heads share n_kv_heads keys and values
 *     q, k = rotated by the angles pos * inv_freq           pairs (i, i + head_dim / 2) of each head
 *     cache k and v at pos; for query head h and kv head h / (n_heads / n_kv_heads):
 *         att_h = sum over positions p <= pos of softmax(q_h . k_p / sqrt(head_dim)) v_p
 *     x = x + Wo att
 *     b = rmsnorm(x) * post_attention_layernorm
 *     x = x + Wdown (silu(Wgate b) * Wup b)
 *
 * After the last layer: logits = W_head (rmsnorm(x) * norm).
 */
#include "net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/threads.h"
#include "kernels/elementary.h"
#include "kernels/vector.h"

/* ---- weights ----------------------------------------------------------------------------------------------------- */

void config_free(Config *c)
{
    free(c->layer_is_sliding);
    *c = (Config){0};
}

/* Fresh floats [n][rows][cols], not zeroed; NULL when the size overflows or memory runs out. */
static float *stacked(size_t n, size_t rows, size_t cols)
{
    size_t each;
    if (__builtin_mul_overflow(rows, cols, &each) || __builtin_mul_overflow(each, sizeof(float), &each))
        return NULL;
    return memory_large(n, each);
}

int weights_allocate(TransformerWeights *w, const Config *c, bool arrays)
{
    size_t n = c->n_layers, dim = c->dim, q_dim = c->q_dim, kv_dim = c->kv_dim, hidden = c->hidden_dim;
    w->input_layernorm = stacked(n, 1, dim);
    w->q_bias = stacked(n, 1, q_dim);
    w->k_bias = stacked(n, 1, kv_dim);
    w->v_bias = stacked(n, 1, kv_dim);
    w->post_attention_layernorm = stacked(n, 1, dim);
    bool missing = !w->input_layernorm || !w->q_bias || !w->k_bias || !w->v_bias || !w->post_attention_layernorm;
    if (arrays) {
        w->q_proj = stacked(n, q_dim, dim);
        w->k_proj = stacked(n, kv_dim, dim);
        w->v_proj = stacked(n, kv_dim, dim);
        w->o_proj = stacked(n, dim, q_dim);
        w->gate_proj = stacked(n, hidden, dim);
        w->up_proj = stacked(n, hidden, dim);
        w->down_proj = stacked(n, dim, hidden);
        missing = missing || !w->q_proj || !w->k_proj || !w->v_proj || !w->o_proj || !w->gate_proj || !w->up_proj ||
                  !w->down_proj;
    }
    Matrix **const views[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
    Matrix *all = calloc(n + 1, COUNT_OF(views) * sizeof *all);
    for (size_t i = 0; i < COUNT_OF(views) && all; i++)
        *views[i] = all + i * n;
    if (!missing && all)
        return 0;
    weights_free(w);
    return -1;
}

/* The views of one array [n_layers][rows][cols]. */
static void view_layers(Matrix *views, const float *array, size_t n_layers, size_t rows, size_t cols)
{
    for (size_t l = 0; l < n_layers; l++)
        views[l] = (Matrix){array + l * rows * cols, WEIGHT_F32, rows, cols};
}

void weights_view_arrays(TransformerWeights *w, const Config *c)
{
    size_t n = c->n_layers, dim = c->dim, q_dim = c->q_dim, kv_dim = c->kv_dim, hidden = c->hidden_dim;
    w->embedding = (Matrix){w->token_embedding_table, WEIGHT_F32, c->vocab_size, dim};
    w->head = (Matrix){w->lm_head, WEIGHT_F32, c->vocab_size, dim};
    view_layers(w->q, w->q_proj, n, q_dim, dim);
    view_layers(w->k, w->k_proj, n, kv_dim, dim);
    view_layers(w->v, w->v_proj, n, kv_dim, dim);
    view_layers(w->o, w->o_proj, n, dim, q_dim);
    view_layers(w->gate, w->gate_proj, n, hidden, dim);
    view_layers(w->up, w->up_proj, n, hidden, dim);
    view_layers(w->down, w->down_proj, n, dim, hidden);
}

void weights_free(TransformerWeights *w)
{
    float *const arrays[] = {w->token_embedding_table,
                             w->input_layernorm,
                             w->q_proj,
                             w->q_bias,
                             w->k_proj,
                             w->k_bias,
                             w->v_proj,
                             w->v_bias,
                             w->o_proj,
                             w->post_attention_layernorm,
                             w->gate_proj,
                             w->up_proj,
                             w->down_proj,
                             w->norm,
                             w->lm_head == w->token_embedding_table ? NULL : w->lm_head};
    for (size_t i = 0; i < COUNT_OF(arrays); i++)
        free(arrays[i]);
    free(w->storage);
    free(w->q); /* the views of all seven */
    *w = (TransformerWeights){.mode = w->mode};
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

/* The dimension whose angle turns `rotations` times over the positions that the model was trained on. */
static double yarn_dimension(const Config *c, double rotations)
{
    const double pi = 3.14159265358979323846;
    return (double)c->head_dim * log_f64(c->rope.original_positions / (rotations * 2 * pi)) /
           (2 * log_f64(c->rope_theta));
}

/* YaRN: frequencies of dimensions below low stay as they are, those above high are divided by factor, and in between
 * the two are blended along a linear ramp. */
static void yarn_ramp(const Config *c, double *low, double *high)
{
    *low = yarn_dimension(c, c->rope.beta_fast);
    *high = yarn_dimension(c, c->rope.beta_slow);
    if (c->rope.truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = MAX(*low, 0);
    *high = MIN(*high, (double)c->head_dim - 1);
    if (*low == *high)
        *high += 0.001;
}

void rope_frequencies(const Config *c, float *inv_freq, float *scale)
{
    float factor = (float)c->rope.factor;
    double low = 0, high = 1;
    if (c->rope_type == ROPE_YARN)
        yarn_ramp(c, &low, &high);
    for (size_t i = 0; i < c->head_dim / 2; i++) {
        float power = (float)pow(c->rope_theta, (double)((float)(2 * i) / (float)c->head_dim));
        float ramp = ((float)i - (float)low) / (float)(high - low), keep = 1 - MIN(MAX(ramp, 0), 1);
        if (c->rope_type == ROPE_YARN)
            inv_freq[i] = (1 / (factor * power)) * (1 - keep) + (1 / power) * keep;
        else
            inv_freq[i] = c->rope_type == ROPE_LINEAR ? 1 / power / factor : 1 / power;
    }
    *scale = c->rope_type == ROPE_YARN ? (float)c->rope.attention_factor : 1;
}

/* Fill s->cosine and s->sine [n][half]: pair i turns by position * inv_freq[i]. */
static void rope_angles(RunState *s, size_t half, size_t n)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < half; i++) {
            double sine, cosine;
            float angle = (float)s->position_of[t] * s->inv_freq[i];
            sin_cos_f64((double)angle, &sine, &cosine);
            s->cosine[t * half + i] = (float)cosine * s->rope_scale;
            s->sine[t * half + i] = (float)sine * s->rope_scale;
        }
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* Not zeroed, and not in huge pages: what a short prompt doesn't use is never touched. */
static float *buffer(size_t n, size_t m)
{
    size_t bytes;
    return __builtin_mul_overflow(m, sizeof(float), &bytes) ? NULL : memory_aligned(n, bytes);
}

static size_t cache_blocks(size_t positions)
{
    return (positions + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

int kv_cache_init(KvCache *k, const Config *c, KvType type, size_t ctx, char err[512])
{
    *k = (KvCache){.type = type,
                   .ctx = ctx,
                   .n_layers = c->n_layers,
                   .layer_bytes = attention_layer_bytes(type, c->n_kv_heads, c->head_dim)};
    k->blocks = calloc(cache_blocks(ctx) + 1, sizeof *k->blocks);
    return k->blocks ? 0 : fail(err, "out of memory for a cache of %zu positions", ctx);
}

static KvBlock *new_block(const KvCache *k)
{
    KvBlock *block = malloc(sizeof *block);
    unsigned char *layers = memory_aligned(k->n_layers, k->layer_bytes);
    if (!block || !layers) {
        free(block);
        free(layers);
        return NULL;
    }
    *block = (KvBlock){1, k->type, layers};
    return block;
}

/* Let go of block b; whoever is last frees it. */
static void release_block(KvCache *k, size_t b)
{
    KvBlock *block = k->blocks[b];
    k->blocks[b] = NULL;
    if (--block->sequences > 0)
        return;
    free(block->layers);
    free(block);
}

void kv_cache_free(KvCache *k)
{
    while (k->n_blocks > 0)
        release_block(k, --k->n_blocks);
    free(k->blocks);
    *k = (KvCache){0};
}

int kv_cache_reserve(KvCache *k, size_t n, char err[512])
{
    if (n > k->ctx - k->pos)
        return fail(err, "%zu positions do not fit the context of %zu", k->pos + n, k->ctx);
    for (size_t b = k->pos / ATTENTION_BLOCK; b < cache_blocks(k->pos + n); b++) {
        KvBlock *old = k->blocks[b];
        if (old && old->sequences == 1)
            continue;
        KvBlock *block = new_block(k);
        if (!block)
            return fail(err, "out of memory for the cache of %zu positions", (b + 1) * ATTENTION_BLOCK);
        if (b > 0) /* long contexts are read faster from huge pages; short ones would wait for zeroing */
            memory_want_huge_pages(block->layers, k->n_layers * k->layer_bytes);
        if (old) {
            memcpy(block->layers, old->layers, k->n_layers * k->layer_bytes);
            release_block(k, b);
        }
        k->blocks[b] = block;
        k->n_blocks = MAX(k->n_blocks, b + 1);
    }
    return 0;
}

void kv_cache_rewind(KvCache *k, size_t pos)
{
    k->pos = MIN(pos, k->pos);
}

void kv_cache_share(KvCache *k, const KvCache *from, size_t n)
{
    while (k->n_blocks > 0)
        release_block(k, --k->n_blocks);
    for (; k->n_blocks < cache_blocks(n); k->n_blocks++) {
        k->blocks[k->n_blocks] = from->blocks[k->n_blocks];
        k->blocks[k->n_blocks]->sequences++;
    }
    k->pos = n;
}

/* ---- buffers of a step ------------------------------------------------------------------------------------------- */

int run_state_init(RunState *s, const Config *c, KvType type, size_t ctx, size_t block, size_t most_logits,
                   char err[512])
{
    size_t half = c->head_dim / 2;
    block = MIN(block, ctx);
    *s = (RunState){.block = block, .most_logits = MIN(most_logits, block)};
    if (kv_cache_init(&s->cache, c, type, ctx, err) != 0)
        return -1;
    s->x = buffer(block, c->dim);
    s->xb = buffer(block, c->dim);
    s->q = buffer(block, c->q_dim);
    s->k = buffer(block, c->kv_dim);
    s->v = buffer(block, c->kv_dim);
    s->att = buffer(block, c->q_dim);
    s->gate = buffer(block, c->hidden_dim);
    s->up = buffer(block, c->hidden_dim);
    s->logits = buffer(s->most_logits, c->vocab_size);
    s->inv_freq = buffer(half, 1);
    s->cosine = buffer(block, half);
    s->sine = buffer(block, half);
    s->cache_of = calloc(block, sizeof *s->cache_of);
    s->position_of = calloc(block, sizeof *s->position_of);
    s->queries = calloc(block, sizeof *s->queries);
    size_t widest = MAX(c->dim, MAX(c->hidden_dim, c->q_dim)); /* input of a product */
    size_t for_products = matmul_scratch_bytes(widest, block);
    size_t for_attention = attention_scratch_bytes(c->n_heads / c->n_kv_heads, c->head_dim);
    s->ws.size = MAX(for_products, for_attention);
    s->ws.memory = memory_aligned(s->ws.size, 1);
    if (!s->x || !s->xb || !s->q || !s->k || !s->v || !s->att || !s->gate || !s->up || !s->logits || !s->inv_freq ||
        !s->cosine || !s->sine || !s->cache_of || !s->position_of || !s->queries || !s->ws.memory) {
        run_state_free(s);
        return fail(err, "out of memory for the buffers of %zu tokens at a time and %zu positions", block, ctx);
    }
    rope_frequencies(c, s->inv_freq, &s->rope_scale);
    return 0;
}

void run_state_free(RunState *s)
{
    kv_cache_free(&s->cache);
    void *const buffers[] = {s->x,        s->xb,          s->q,       s->k,        s->v,      s->att,
                             s->gate,     s->up,          s->logits,  s->inv_freq, s->cosine, s->sine,
                             s->cache_of, s->position_of, s->queries, s->ws.memory};
    for (size_t i = 0; i < COUNT_OF(buffers); i++)
        free(buffers[i]);
    *s = (RunState){0};
}

size_t run_state_bytes(const Config *c, KvType type, size_t ctx, size_t block)
{
    size_t a_token = 2 * c->dim + 2 * c->q_dim + 2 * c->kv_dim + 2 * c->hidden_dim + c->head_dim;
    size_t cache = cache_blocks(ctx) * c->n_layers * attention_layer_bytes(type, c->n_kv_heads, c->head_dim);
    return sizeof(float) * (block * a_token + c->vocab_size) + cache;
}

/* ---- steps that take one token at a time, in parallel over the tokens of a block --------------------------------- */

typedef struct {
    const Config *c;
    RunState *s;
    const float *weight; /* [dim], of a norm */
    size_t layer;
} Step;

/* xb = rmsnorm(x) * weight */
static void norm_tokens(void *context, size_t begin, size_t end, int thread)
{
    const Step *p = context;
    size_t dim = p->c->dim;
    (void)thread;
    for (size_t t = begin; t < end; t++)
        rmsnorm(p->s->xb + t * dim, p->s->x + t * dim, p->weight, dim, p->c->rms_norm_eps);
}

/* Rotate q and k by their position's angles, and write k and v into the cache. */
static void rotate_and_store_tokens(void *context, size_t begin, size_t end, int thread)
{
    const Step *p = context;
    const Config *c = p->c;
    RunState *s = p->s;
    size_t half = c->head_dim / 2;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *cosine = s->cosine + t * half, *sine = s->sine + t * half;
        float *k = s->k + t * c->kv_dim;
        size_t pos = s->position_of[t];
        rope_rotate(s->q + t * c->q_dim, c->n_heads, c->head_dim, cosine, sine);
        rope_rotate(k, c->n_kv_heads, c->head_dim, cosine, sine);
        attention_store(s->cache_of[t]->blocks[pos / ATTENTION_BLOCK], p->layer, pos % ATTENTION_BLOCK, k,
                        s->v + t * c->kv_dim, c->n_kv_heads, c->head_dim);
    }
}

/* gate = silu(gate) * up */
static void swiglu_tokens(void *context, size_t begin, size_t end, int thread)
{
    const Step *p = context;
    size_t hidden = p->c->hidden_dim;
    (void)thread;
    swiglu(p->s->gate + begin * hidden, p->s->up + begin * hidden, (end - begin) * hidden);
}

/* Pass the last token's values to the observer, if there is one. */
static void observe(const RunState *s, int layer, const char *step, const float *values, size_t n, size_t last)
{
    if (s->observe)
        s->observe(s->observe_context, layer, step, values + last * n, n);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Tokens that a thread takes at a time: few enough that every thread gets some, enough that taking them costs little.
 * */
#define TOKENS_AT_A_TIME 4

/* Row r of the head scores token r. With tie_word_embeddings the head is the embedding itself: w->head and w->embedding
 * are views of the same numbers. */
void net_head(const Model *m, RunState *s, const float *x, float *logits)
{
    const Config *c = &m->config;
    rmsnorm(s->xb, x, m->weights.norm, c->dim, c->rms_norm_eps);
    matmul(&(Product){&m->weights.head, NULL, logits, c->vocab_size, false}, 1, s->xb, 1, &s->ws);
}

/* Which sequence and position each token has. */
static void place_tokens(RunState *s, const Piece *pieces, size_t n_pieces)
{
    size_t t = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        const Piece *piece = &pieces[i];
        s->queries[i] = (Queries){piece->cache->blocks, piece->n, piece->cache->pos};
        for (size_t k = 0; k < piece->n; k++, t++) {
            s->cache_of[t] = piece->cache;
            s->position_of[t] = piece->cache->pos + k;
        }
    }
}

/* The last norm, for those tokens of each piece that need logits: xb [rows][dim]. Returns how many rows these are, and
 * tells each piece where its logits will be. */
static size_t norm_wanted(RunState *s, Piece *pieces, size_t n_pieces, const Config *c, const float *weight)
{
    size_t rows = 0, end = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        Piece *piece = &pieces[i];
        end += piece->n;
        piece->logits = s->logits + rows * c->vocab_size;
        for (size_t t = end - piece->n_logits; t < end; t++, rows++)
            rmsnorm(s->xb + rows * c->dim, s->x + t * c->dim, weight, c->dim, c->rms_norm_eps);
    }
    return rows;
}

const float *forward(Model *m, RunState *s, const int *tokens, int n_tokens)
{
    const Config *c = &m->config;
    const TransformerWeights *w = &m->weights;
    size_t n = (size_t)n_tokens, last = n - 1, dim = c->dim;
    Step step = {.c = c, .s = s};

    /* the tokens continue one sequence, unless the caller has put together pieces of several */
    Piece only = {.cache = &s->cache, .n = n, .n_logits = MIN(n, s->most_logits)};
    Piece *pieces = s->pieces ? s->pieces : &only;
    size_t n_pieces = s->pieces ? s->n_pieces : 1;
    place_tokens(s, pieces, n_pieces);

    /* the residual stream starts as the tokens' rows of the embedding: x[t] = token_embedding_table[token] */
    for (size_t t = 0; t < n; t++)
        matmul_row(s->x + t * dim, &w->embedding, (size_t)tokens[t]);
    rope_angles(s, c->head_dim / 2, n);
    observe(s, -1, "embed_tokens", s->x, dim, last);

    for (size_t l = 0; l < c->n_layers; l++) {
        int layer = (int)l;

        /* attention's input, normalized */
        step.weight = w->input_layernorm + l * dim;
        threads_for(n, TOKENS_AT_A_TIME, norm_tokens, &step);
        observe(s, layer, "input_layernorm", s->xb, dim, last);

        /* queries, keys and values: q = Wq xb + bq, and so on */
        const Product qkv[] = {
            {&w->q[l], w->q_bias + l * c->q_dim, s->q, c->q_dim, false},
            {&w->k[l], w->k_bias + l * c->kv_dim, s->k, c->kv_dim, false},
            {&w->v[l], w->v_bias + l * c->kv_dim, s->v, c->kv_dim, false},
        };
        matmul(qkv, 3, s->xb, n, &s->ws);
        observe(s, layer, "self_attn.q_proj", s->q, c->q_dim, last);
        observe(s, layer, "self_attn.k_proj", s->k, c->kv_dim, last);
        observe(s, layer, "self_attn.v_proj", s->v, c->kv_dim, last);

        /* rotate queries and keys by their positions; store keys and values in the cache */
        step.layer = l;
        threads_for(n, TOKENS_AT_A_TIME, rotate_and_store_tokens, &step);

        /* every head looks back over the positions that it may see; x += Wo att */
        attention(&(Attention){.q = s->q,
                               .out = s->att,
                               .sequences = s->queries,
                               .n_sequences = n_pieces,
                               .layer = l,
                               .window = c->layer_is_sliding[l] ? c->sliding_window : 0,
                               .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .scale = (float)(1 / sqrt((double)c->head_dim))},
                  &s->ws);
        observe(s, layer, "attention", s->att, c->q_dim, last);
        matmul(&(Product){&w->o[l], NULL, s->x, dim, true}, 1, s->att, n, &s->ws);
        observe(s, layer, "self_attn.o_proj", s->x, dim, last);

        /* the feed-forward network: x += Wdown (silu(Wgate xb) * Wup xb) */
        step.weight = w->post_attention_layernorm + l * dim;
        threads_for(n, TOKENS_AT_A_TIME, norm_tokens, &step);
        observe(s, layer, "post_attention_layernorm", s->xb, dim, last);
        const Product gate_up[] = {
            {&w->gate[l], NULL, s->gate, c->hidden_dim, false},
            {&w->up[l], NULL, s->up, c->hidden_dim, false},
        };
        matmul(gate_up, 2, s->xb, n, &s->ws);
        observe(s, layer, "mlp.gate_proj", s->gate, c->hidden_dim, last);
        observe(s, layer, "mlp.up_proj", s->up, c->hidden_dim, last);
        threads_for(n, TOKENS_AT_A_TIME, swiglu_tokens, &step);
        matmul(&(Product){&w->down[l], NULL, s->x, dim, true}, 1, s->gate, n, &s->ws);
        observe(s, layer, "mlp.down_proj", s->x, dim, last);
    }
    for (size_t i = 0; i < n_pieces; i++)
        pieces[i].cache->pos += pieces[i].n;

    /* the head, for the tokens after which something is to be chosen: usually the last one alone */
    size_t rows = norm_wanted(s, pieces, n_pieces, c, w->norm);
    if (rows > 0)
        matmul(&(Product){&w->head, NULL, s->logits, c->vocab_size, false}, 1, s->xb, rows, &s->ws);
    return s->logits;
}
