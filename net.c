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
 *
 * Refused by name, in config_parse(): other architectures, quantised checkpoints, rope types but linear and YaRN.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "net.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "threads.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

__attribute__((format(printf, 2, 3))) static int fail(char err[512], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, 512, fmt, args);
    va_end(args);
    return -1;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* Most that a size in config.json may be: far beyond any model, and the product of two fits 64 bits. */
#define MAX_SIZE 0x7fffffffu
#define MAX_LAYERS 65536u

typedef struct {
    const JsonValue *root;
    const char *name; /* of the file, for messages */
    char *err;
} ConfigFile;

static bool is_absent(const JsonValue *v)
{
    return !v || v->type == JSON_NULL;
}

/* A whole number of 1..max; the default when the key is missing or null; a default of 0: it is required. */
static int get_size(const ConfigFile *f, const char *key, size_t default_value, size_t max, size_t *out)
{
    const JsonValue *v = json_get(f->root, key);
    uint64_t n;
    if (is_absent(v)) {
        if (!default_value)
            return fail(f->err, "%s: \"%s\" is missing", f->name, key);
        *out = default_value;
        return 0;
    }
    if (json_u64(v, &n) || n < 1 || n > max)
        return fail(f->err, "%s: \"%s\" must be a whole number from 1 to %zu", f->name, key, max);
    *out = (size_t)n;
    return 0;
}

/* A number that object may hold within [low, high]. */
static int get_number(const ConfigFile *f, const JsonValue *object, const char *key, double default_value, double low,
                      double high, double *out)
{
    const JsonValue *v = json_get(object, key);
    *out = default_value;
    if (is_absent(v))
        return 0;
    if (json_double(v, out) || !(*out >= low && *out <= high))
        return fail(f->err, "%s: \"%s\" must be a number from %g to %g", f->name, key, low, high);
    return 0;
}

static int get_bool(const ConfigFile *f, const JsonValue *object, const char *key, bool default_value, bool *out)
{
    const JsonValue *v = json_get(object, key);
    *out = default_value;
    if (!is_absent(v) && json_bool(v, out))
        return fail(f->err, "%s: \"%s\" must be true or false", f->name, key);
    return 0;
}

/* One id or a list of ids into ids[max]. */
static int get_ids(const ConfigFile *f, const char *key, int *ids, size_t max, size_t *count)
{
    const JsonValue *v = json_get(f->root, key);
    *count = 0;
    if (is_absent(v))
        return 0;
    for (const JsonValue *e = v->type == JSON_ARRAY ? v->child : v; e; e = v->type == JSON_ARRAY ? e->next : NULL) {
        uint64_t id;
        if (json_u64(e, &id) || id > MAX_SIZE || *count == max)
            return fail(f->err, "%s: \"%s\" must be a token id or a list of at most %zu", f->name, key, max);
        ids[(*count)++] = (int)id;
    }
    return 0;
}

static int check_architecture(const ConfigFile *f)
{
    const JsonValue *list = json_get(f->root, "architectures"), *type = json_get(f->root, "model_type");
    if (!is_absent(list)) {
        const JsonValue *a = list->type == JSON_ARRAY ? list->child : NULL;
        while (a && !json_string_is(a, "Qwen2ForCausalLM"))
            a = a->next;
        if (!a) {
            const JsonValue *first = list->type == JSON_ARRAY ? list->child : list;
            bool text = first && first->type == JSON_STRING;
            return fail(f->err, "%s: architecture %.*s is not supported; this program runs Qwen2ForCausalLM", f->name,
                        text ? (int)(first->length < 80 ? first->length : 80) : 1, text ? first->text : "?");
        }
    } else if (!json_string_is(type, "qwen2")) {
        return fail(f->err, "%s: neither \"architectures\" nor \"model_type\" says that this is a Qwen2 model",
                    f->name);
    }
    static const char *const refused[] = {"quantization_config", "dual_chunk_attention_config"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_absent(json_get(f->root, refused[i])))
            return fail(f->err, "%s: \"%s\" is not supported: use the original BF16 checkpoint", f->name, refused[i]);
    const JsonValue *act = json_get(f->root, "hidden_act");
    if (!is_absent(act) && !json_string_is(act, "silu"))
        return fail(f->err, "%s: \"hidden_act\" is not silu", f->name);
    return 0;
}

static int parse_sizes(const ConfigFile *f, Config *c)
{
    size_t derived = 0, n_bos;
    int bos = -1;
    if (get_size(f, "hidden_size", 0, MAX_SIZE, &c->dim) ||
        get_size(f, "intermediate_size", 0, MAX_SIZE, &c->hidden_dim) ||
        get_size(f, "num_hidden_layers", 0, MAX_LAYERS, &c->n_layers) ||
        get_size(f, "num_attention_heads", 0, MAX_SIZE, &c->n_heads) ||
        get_size(f, "num_key_value_heads", c->n_heads, MAX_SIZE, &c->n_kv_heads) ||
        get_size(f, "vocab_size", 0, MAX_SIZE, &c->vocab_size) ||
        get_size(f, "max_position_embeddings", 32768, MAX_SIZE, &c->max_positions) ||
        get_ids(f, "eos_token_id", c->eos_token_ids, sizeof c->eos_token_ids / sizeof *c->eos_token_ids, &c->n_eos) ||
        get_ids(f, "bos_token_id", &bos, 1, &n_bos))
        return -1;
    c->bos_token_id = bos;
    if (c->n_heads % c->n_kv_heads)
        return fail(f->err, "%s: %zu key/value heads do not divide %zu attention heads", f->name, c->n_kv_heads,
                    c->n_heads);
    if (c->dim % c->n_heads == 0)
        derived = c->dim / c->n_heads;
    else if (is_absent(json_get(f->root, "head_dim")))
        return fail(f->err, "%s: %zu heads do not divide hidden_size %zu, and there is no head_dim", f->name,
                    c->n_heads, c->dim);
    if (get_size(f, "head_dim", derived, MAX_SIZE, &c->head_dim))
        return -1;
    if (c->head_dim % 2)
        return fail(f->err, "%s: head_dim %zu is odd, but rotary embedding works on pairs", f->name, c->head_dim);
    if (c->head_dim > MAX_SIZE / c->n_heads)
        return fail(f->err, "%s: %zu heads of %zu are too many", f->name, c->n_heads, c->head_dim);
    c->q_dim = c->n_heads * c->head_dim;
    c->kv_dim = c->n_kv_heads * c->head_dim;
    return 0;
}

/* Which layers see only the last sliding_window positions: layer_types if the file lists them, else those from
 * max_window_layers on. */
static int parse_windows(const ConfigFile *f, Config *c)
{
    bool use;
    const JsonValue *window = json_get(f->root, "sliding_window"), *types = json_get(f->root, "layer_types");
    uint64_t first = 28; /* the reference's default */
    if (get_bool(f, f->root, "use_sliding_window", false, &use))
        return -1;
    if (use && !(window && window->type == JSON_NULL) &&
        get_size(f, "sliding_window", 4096, MAX_SIZE, &c->sliding_window))
        return -1;
    const JsonValue *first_value = json_get(f->root, "max_window_layers");
    if (!is_absent(first_value) && json_u64(first_value, &first))
        return fail(f->err, "%s: \"max_window_layers\" must be a whole number", f->name);
    c->layer_is_sliding = calloc(c->n_layers, sizeof *c->layer_is_sliding);
    if (!c->layer_is_sliding)
        return fail(f->err, "%s: out of memory for %zu layers", f->name, c->n_layers);
    if (is_absent(types)) {
        for (size_t l = 0; l < c->n_layers; l++)
            c->layer_is_sliding[l] = c->sliding_window && l >= first;
        return 0;
    }
    if (types->type != JSON_ARRAY || types->length != c->n_layers)
        return fail(f->err, "%s: \"layer_types\" must list %zu layers", f->name, c->n_layers);
    size_t l = 0;
    for (const JsonValue *t = types->child; t; t = t->next, l++) {
        c->layer_is_sliding[l] = json_string_is(t, "sliding_attention");
        if (!c->layer_is_sliding[l] && !json_string_is(t, "full_attention"))
            return fail(f->err,
                        "%s: type of layer %zu in \"layer_types\" is neither full_attention nor sliding_attention",
                        f->name, l);
        if (c->layer_is_sliding[l] && !c->sliding_window)
            return fail(f->err, "%s: layer %zu is sliding_attention, but no sliding window is in use", f->name, l);
    }
    return 0;
}

static double yarn_attention_factor(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log_f64(factor) + 1;
}

static int parse_yarn(const ConfigFile *f, const JsonValue *rope, Config *c)
{
    double mscale, mscale_all;
    if (get_number(f, rope, "original_max_position_embeddings", (double)c->max_positions, 1, MAX_SIZE,
                   &c->rope.original_positions) ||
        get_number(f, rope, "factor", (double)c->max_positions / c->rope.original_positions, 1e-6, 1e6,
                   &c->rope.factor) ||
        get_number(f, rope, "beta_fast", 32, 0, 1e6, &c->rope.beta_fast) ||
        get_number(f, rope, "beta_slow", 1, 0, 1e6, &c->rope.beta_slow) ||
        get_number(f, rope, "mscale", 0, 0, 1e6, &mscale) ||
        get_number(f, rope, "mscale_all_dim", 0, 0, 1e6, &mscale_all) ||
        get_bool(f, rope, "truncate", true, &c->rope.truncate))
        return -1;
    if (c->rope.beta_fast == 0)
        c->rope.beta_fast = 32;
    if (c->rope.beta_slow == 0)
        c->rope.beta_slow = 1;
    double natural = yarn_attention_factor(c->rope.factor, 1);
    if (mscale > 0 && mscale_all > 0)
        natural = yarn_attention_factor(c->rope.factor, mscale) / yarn_attention_factor(c->rope.factor, mscale_all);
    return get_number(f, rope, "attention_factor", natural, 0, 1e6, &c->rope.attention_factor);
}

/* Old files have rope_theta and rope_scaling, new ones rope_parameters with all of it. */
static int parse_rope(const ConfigFile *f, Config *c)
{
    const JsonValue *rope = json_get(f->root, "rope_scaling");
    if (is_absent(rope) || !rope->length)
        rope = json_get(f->root, "rope_parameters");
    double theta, partial;
    if (!is_absent(rope) && rope->type != JSON_OBJECT)
        return fail(f->err, "%s: \"rope_scaling\" and \"rope_parameters\" must be objects", f->name);
    if (get_number(f, f->root, "rope_theta", 10000, 1e-3, 1e15, &theta) ||
        get_number(f, rope, "rope_theta", theta, 1e-3, 1e15, &theta) ||
        get_number(f, f->root, "partial_rotary_factor", 1, 0, 1, &partial) ||
        get_number(f, rope, "partial_rotary_factor", partial, 0, 1, &partial))
        return -1;
    c->rope_theta = theta;
    if (partial < 1)
        return fail(f->err, "%s: \"partial_rotary_factor\" is not supported", f->name);
    const JsonValue *type = json_get(rope, "rope_type");
    if (is_absent(type))
        type = json_get(rope, "type");
    if (is_absent(type) || json_string_is(type, "default"))
        return 0;
    if (json_string_is(type, "linear")) {
        c->rope_type = ROPE_LINEAR;
        if (is_absent(json_get(rope, "factor")))
            return fail(f->err, "%s: linear rope scaling without a \"factor\"", f->name);
        return get_number(f, rope, "factor", 1, 1e-6, 1e6, &c->rope.factor);
    }
    if (json_string_is(type, "yarn")) {
        c->rope_type = ROPE_YARN;
        return parse_yarn(f, rope, c);
    }
    return fail(f->err, "%s: rope type \"%.*s\" is not supported; there are default, linear and yarn", f->name,
                type->type == JSON_STRING ? (int)(type->length < 80 ? type->length : 80) : 1,
                type->text ? type->text : "?");
}

int config_parse(Config *c, const char *text, size_t length, const char *name, char err[512])
{
    char why[512];
    double eps;
    *c = (Config){0};
    JsonValue *root = json_parse(text, length, why);
    if (!root)
        return fail(err, "%s: %.400s", name, why);
    ConfigFile f = {root, name, err};
    int bad = root->type != JSON_OBJECT ? fail(err, "%s: not a JSON object", name) : 0;
    bad = bad || check_architecture(&f) || parse_sizes(&f, c) || parse_windows(&f, c) || parse_rope(&f, c) ||
          get_number(&f, root, "rms_norm_eps", 1e-6, 0, 1, &eps) ||
          get_bool(&f, root, "tie_word_embeddings", false, &c->tie_word_embeddings);
    json_free(root);
    if (bad) {
        config_free(c);
        return -1;
    }
    c->rms_norm_eps = (float)eps;
    return 0;
}

void config_free(Config *c)
{
    free(c->layer_is_sliding);
    *c = (Config){0};
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

/* Dimension at which the angle turns `rotations` times over the positions that the model was trained on. */
static double yarn_dimension(const Config *c, double rotations)
{
    const double pi = 3.14159265358979323846;
    return (double)c->head_dim * log_f64(c->rope.original_positions / (rotations * 2 * pi)) /
           (2 * log_f64(c->rope_theta));
}

/* YaRN: dimensions below low keep their frequency, those above high are divided by factor, between is a ramp. */
static void yarn_ramp(const Config *c, double *low, double *high)
{
    *low = yarn_dimension(c, c->rope.beta_fast);
    *high = yarn_dimension(c, c->rope.beta_slow);
    if (c->rope.truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = *low > 0 ? *low : 0;
    *high = *high < (double)c->head_dim - 1 ? *high : (double)c->head_dim - 1;
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
        float ramp = ((float)i - (float)low) / (float)(high - low), keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        if (c->rope_type == ROPE_YARN)
            inv_freq[i] = (1 / (factor * power)) * (1 - keep) + (1 / power) * keep;
        else
            inv_freq[i] = c->rope_type == ROPE_LINEAR ? 1 / power / factor : 1 / power;
    }
    *scale = c->rope_type == ROPE_YARN ? (float)c->rope.attention_factor : 1;
}

/* Cosine and sine [n][head_dim / 2] of the positions from s->pos on. */
static void rope_angles(RunState *s, size_t half, size_t n)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < half; i++) {
            double sine, cosine;
            float angle = (float)(s->pos + t) * s->inv_freq[i];
            sin_cos_f64((double)angle, &sine, &cosine);
            s->cosine[t * half + i] = (float)cosine * s->rope_scale;
            s->sine[t * half + i] = (float)sine * s->rope_scale;
        }
}

/* ---- buffers and cache ------------------------------------------------------------------------------------------- */

/* Floats at a multiple of 64 bytes, not zeroed: what a short prompt doesn't use is never touched. NULL when the size
 * overflows or memory ran out. */
static float *floats(size_t n, size_t m)
{
    size_t bytes;
    void *p = NULL;
    if (__builtin_mul_overflow(n, m, &n) || __builtin_mul_overflow(n, sizeof(float), &bytes) || bytes > SIZE_MAX - 64 ||
        posix_memalign(&p, 64, bytes ? bytes : 64))
        return NULL;
    return p;
}

static size_t cache_blocks(size_t positions)
{
    return (positions + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

int run_state_init(RunState *s, const Config *c, size_t ctx, size_t block, bool all_logits, char err[512])
{
    size_t half = c->head_dim / 2, blocks = cache_blocks(ctx);
    block = block < ctx ? block : ctx;
    *s = (RunState){.ctx = ctx, .block = block, .all_logits = all_logits, .n_layers = c->n_layers};
    s->block_floats = attention_block_floats(c->n_kv_heads, c->head_dim);
    s->x = floats(block, c->dim);
    s->xb = floats(block, c->dim);
    s->q = floats(block, c->q_dim);
    s->k = floats(block, c->kv_dim);
    s->v = floats(block, c->kv_dim);
    s->att = floats(block, c->q_dim);
    s->gate = floats(block, c->hidden_dim);
    s->up = floats(block, c->hidden_dim);
    s->logits = floats(all_logits ? block : 1, c->vocab_size);
    s->inv_freq = floats(half, 1);
    s->cosine = floats(block, half);
    s->sine = floats(block, half);
    s->kv = blocks <= SIZE_MAX / c->n_layers ? calloc(blocks * c->n_layers, sizeof *s->kv) : NULL;
    size_t widest = c->dim > c->hidden_dim ? c->dim : c->hidden_dim;
    widest = widest > c->q_dim ? widest : c->q_dim;
    if (!s->x || !s->xb || !s->q || !s->k || !s->v || !s->att || !s->gate || !s->up || !s->logits || !s->inv_freq ||
        !s->cosine || !s->sine || !s->kv) {
        run_state_free(s);
        return fail(err, "out of memory for the buffers of %zu tokens at a time and %zu positions", block, ctx);
    }
    if (workspace_init(&s->ws, widest, block, c->head_dim, c->n_heads / c->n_kv_heads, err)) {
        run_state_free(s);
        return -1;
    }
    rope_frequencies(c, s->inv_freq, &s->rope_scale);
    return 0;
}

void run_state_free(RunState *s)
{
    workspace_free(&s->ws);
    for (size_t b = 0; b < s->kv_blocks; b++)
        free(s->kv[b]);
    free(s->kv);
    float *const buffers[] = {s->x,    s->xb, s->q,      s->k,        s->v,      s->att,
                              s->gate, s->up, s->logits, s->inv_freq, s->cosine, s->sine};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    *s = (RunState){0};
}

/* Long contexts are read faster from huge pages; a short one would only wait for them to be zeroed. */
static void want_huge_pages(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, begin = ((uintptr_t)memory + page - 1) / page * page;
    if ((uintptr_t)memory + bytes > begin)
        madvise((void *)begin, (uintptr_t)memory + bytes - begin, MADV_HUGEPAGE); /* refused: as it was */
#else
    (void)memory, (void)bytes;
#endif
}

/* Block b of all layers is one piece of memory, owned by kv[b], which is layer 0's. */
int run_state_reserve(RunState *s, size_t positions, char err[512])
{
    size_t want = cache_blocks(positions), per_layer = cache_blocks(s->ctx);
    if (positions > s->ctx)
        return fail(err, "%zu positions do not fit the context of %zu", positions, s->ctx);
    for (; s->kv_blocks < want; s->kv_blocks++) {
        float *memory = floats(s->block_floats, s->n_layers);
        if (!memory)
            return fail(err, "out of memory for the cache of %zu positions", (s->kv_blocks + 1) * ATTENTION_BLOCK);
        if (s->kv_blocks > 0)
            want_huge_pages(memory, s->block_floats * s->n_layers * sizeof *memory);
        for (size_t l = 0; l < s->n_layers; l++)
            s->kv[l * per_layer + s->kv_blocks] = memory + l * s->block_floats;
    }
    return 0;
}

void run_state_rewind(RunState *s, size_t pos)
{
    if (pos < s->pos)
        s->pos = pos;
}

size_t run_state_bytes(const Config *c, size_t ctx, size_t block)
{
    size_t a_token = 2 * c->dim + 2 * c->q_dim + 2 * c->kv_dim + 2 * c->hidden_dim + c->head_dim;
    size_t cache = cache_blocks(ctx) * c->n_layers * attention_block_floats(c->n_kv_heads, c->head_dim);
    return sizeof(float) * (block * a_token + c->vocab_size + cache);
}

/* ---- the steps that go token by token, in parallel over the tokens of a block ------------------------------------ */

typedef struct {
    const Config *c;
    RunState *s;
    const float *weight; /* [dim], of a norm */
    float **blocks;      /* this layer's cache */
} Step;

/* xb = rmsnorm(x) */
static void norm_tokens(void *context, size_t begin, size_t end, int thread)
{
    const Step *p = context;
    size_t dim = p->c->dim;
    (void)thread;
    for (size_t t = begin; t < end; t++)
        rmsnorm(p->s->xb + t * dim, p->s->x + t * dim, p->weight, dim, p->c->rms_norm_eps);
}

/* q and k rotated; k and v written to the cache */
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
        size_t pos = s->pos + t;
        rope_rotate(s->q + t * c->q_dim, c->n_heads, c->head_dim, cosine, sine);
        rope_rotate(k, c->n_kv_heads, c->head_dim, cosine, sine);
        attention_store(p->blocks[pos / ATTENTION_BLOCK], pos % ATTENTION_BLOCK, k, s->v + t * c->kv_dim, c->n_kv_heads,
                        c->head_dim);
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

static void observe(const RunState *s, int layer, const char *step, const float *values, size_t n, size_t last)
{
    if (s->observe)
        s->observe(s->observe_context, layer, step, values + last * n, n);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* How many tokens a thread takes at a time: small enough to share, large enough not to queue. */
#define TOKENS_AT_A_TIME 4

void net_head(const Model *m, RunState *s, const float *x, float *logits)
{
    const Config *c = &m->config;
    rmsnorm(s->xb, x, m->weights.norm, c->dim, c->rms_norm_eps);
    matmul(&(Product){&m->weights.head, NULL, logits, c->vocab_size, false}, 1, s->xb, 1, &s->ws);
}

const float *forward(Model *m, RunState *s, const int *tokens, int n_tokens)
{
    const Config *c = &m->config;
    const TransformerWeights *w = &m->weights;
    size_t n = (size_t)n_tokens, last = n - 1, dim = c->dim;
    Step step = {.c = c, .s = s};

    /* the residual stream starts as the tokens' rows of the embedding */
    for (size_t t = 0; t < n; t++)
        matmul_row(s->x + t * dim, &w->embedding, (size_t)tokens[t]);
    rope_angles(s, c->head_dim / 2, n);
    observe(s, -1, "embed_tokens", s->x, dim, last);

    for (size_t l = 0; l < c->n_layers; l++) {
        int layer = (int)l;

        /* attention's input, normalised */
        step.weight = w->input_layernorm + l * dim;
        threads_for(n, TOKENS_AT_A_TIME, norm_tokens, &step);
        observe(s, layer, "input_layernorm", s->xb, dim, last);

        /* queries, keys and values */
        const Product qkv[] = {
            {&w->q[l], w->q_bias + l * c->q_dim, s->q, c->q_dim, false},
            {&w->k[l], w->k_bias + l * c->kv_dim, s->k, c->kv_dim, false},
            {&w->v[l], w->v_bias + l * c->kv_dim, s->v, c->kv_dim, false},
        };
        matmul(qkv, 3, s->xb, n, &s->ws);
        observe(s, layer, "self_attn.q_proj", s->q, c->q_dim, last);
        observe(s, layer, "self_attn.k_proj", s->k, c->kv_dim, last);
        observe(s, layer, "self_attn.v_proj", s->v, c->kv_dim, last);

        /* positions turned into angles; keys and values remembered */
        step.blocks = s->kv + l * cache_blocks(s->ctx);
        threads_for(n, TOKENS_AT_A_TIME, rotate_and_store_tokens, &step);

        /* every head looks back over the positions it may see */
        attention(&(Attention){.q = s->q,
                               .out = s->att,
                               .blocks = step.blocks,
                               .n = n,
                               .start = s->pos,
                               .window = c->layer_is_sliding[l] ? c->sliding_window : 0,
                               .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .scale = (float)(1 / sqrt((double)c->head_dim))},
                  &s->ws);
        observe(s, layer, "attention", s->att, c->q_dim, last);
        matmul(&(Product){&w->o[l], NULL, s->x, dim, true}, 1, s->att, n, &s->ws);
        observe(s, layer, "self_attn.o_proj", s->x, dim, last);

        /* the feed-forward network: silu(gate) * up, then down */
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
    s->pos += n;

    /* the head: of every token, or only of the last, which alone decides what comes next */
    if (!s->all_logits) {
        net_head(m, s, s->x + last * dim, s->logits);
        return s->logits;
    }
    step.weight = w->norm;
    threads_for(n, TOKENS_AT_A_TIME, norm_tokens, &step);
    matmul(&(Product){&w->head, NULL, s->logits, c->vocab_size, false}, 1, s->xb, n, &s->ws);
    return s->logits;
}
