#include "commands/session.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "checkpoint/weights.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/terminal.h"
#include "kernels/quantize.h"

/* ---- tokenizer, read while the weights are loaded ---------------------------------------------------------------- */

static bool has_tokenizer(const char *directory)
{
    char *whole = xpath_join(directory, "tokenizer.json"), *parts = xpath_join(directory, "vocab.json");
    bool found = !access(whole, F_OK) || !access(parts, F_OK);
    free(whole);
    free(parts);
    return found;
}

typedef struct {
    pthread_t thread;
    bool started;
    atomic_bool done;
    const char *directory;
    Tokenizer *tokenizer;
    char err[512];
} TokenizerLoad;

static void *load_tokenizer(void *context)
{
    TokenizerLoad *load = context;
    load->tokenizer = tokenizer_open(load->directory, load->err);
    atomic_store(&load->done, true);
    return NULL;
}

static void start_tokenizer(TokenizerLoad *load, const char *directory)
{
    load->directory = directory;
    load->started = !pthread_create(&load->thread, NULL, load_tokenizer, load);
    if (!load->started)
        load_tokenizer(load);
}

static Tokenizer *finish_tokenizer(TokenizerLoad *load, bool needed)
{
    if (load->started)
        pthread_join(load->thread, NULL);
    if (!load->tokenizer && needed)
        die(EXIT_FAILED, "%s", load->err);
    if (!load->tokenizer && load->directory)
        warn("printing ids instead of text: %s", load->err);
    return load->tokenizer;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* What --weights says, else RUN_WEIGHTS in the environment, else f32. */
static WeightMode wanted_mode(void)
{
    const char *usual = getenv("RUN_WEIGHTS"), *name = common.weights;
    if (!name)
        name = usual && *usual ? usual : weights_mode_name(MODE_F32);
    for (int mode = MODE_F32; mode <= MODE_Q4; mode++)
        if (!strcmp(name, weights_mode_name((WeightMode)mode)))
            return (WeightMode)mode;
    usage_error("%s: '%.100s' is not one of f32, bf16, q8 and q4", common.weights ? "--weights" : "RUN_WEIGHTS", name);
}

KvType session_kv_type(WeightMode mode)
{
    if (!common.kv)
        return mode == MODE_Q8 || mode == MODE_Q4 ? KV_F16 : KV_F32;
    if (strcmp(common.kv, "f16") != 0 && strcmp(common.kv, "f32") != 0)
        usage_error("--kv: '%.100s' is not one of f32 and f16", common.kv);
    return strcmp(common.kv, "f16") == 0 ? KV_F16 : KV_F32;
}

/* Die, or choose bf16 instead of f32, if the copy of the weights and a first block of tokens do not fit into memory. */
static WeightMode fitting_mode(const Session *s, WeightMode mode)
{
    if (mode == MODE_BF16)
        return mode;
    const Config *c = &s->model.config;
    size_t block = MIN(common.block, c->max_positions);
    uint64_t need = weights_copy_bytes(c, mode), free_bytes = cpu_memory_available();
    char a[32], b[32];
    if (need == UINT64_MAX) /* weights_load() will say why it cannot be */
        return mode;
    if (need + run_state_bytes(c, session_kv_type(mode), block, block) < free_bytes)
        return mode;
    human_bytes(need, a);
    human_bytes(free_bytes, b);
    if (mode != MODE_F32)
        die(EXIT_FAILED, "the %s copy of the weights needs %s, but only %s of memory is free: -w bf16 needs no copy",
            weights_mode_name(mode), a, b);
    notice("the FP32 copy of the weights needs %s, but only %s of memory is free: using -w bf16, which gives the same "
           "text",
           a, b);
    return MODE_BF16;
}

/* The i-th of the matrices that one token reads, 7 in each layer and the head; NULL after the last. */
static const Matrix *matrix_at(const Model *m, size_t i)
{
    const TransformerWeights *w = &m->weights;
    const Matrix *const of_layer[] = {w->q, w->k, w->v, w->o, w->gate, w->up, w->down};
    if (i < 7 * m->config.n_layers)
        return of_layer[i % 7] + i / 7;
    return i == 7 * m->config.n_layers ? &w->head : NULL;
}

static void load_weights(Session *s, WeightMode mode)
{
    SafetensorsFile *st = &s->checkpoint.st;
    Progress loading = {.what = "loading the weights", .total = model_bytes(&s->checkpoint)};
    char err[512];
    st->progress = tell_progress;
    st->progress_context = &loading;
    die_if(weights_check(st, &s->model.config, err), err);
    model_warn_of_tensors(&s->checkpoint, &s->model.config);
    die_if(weights_load(st, &s->model.config, fitting_mode(s, mode), &s->model.weights, err), err);
    st->progress = NULL;
    model_check_sizes(&s->checkpoint);
    progress_end();
    const Matrix *m;
    for (size_t i = 0; (m = matrix_at(&s->model, i)); i++)
        s->weight_bytes += weights_matrix_bytes(m->type, m->rows, m->cols);
}

/* While the tokenizer is still being read, ask the system for the pages that the first token will need anyway. */
static void touch_weights(const Session *s, TokenizerLoad *load)
{
#ifdef MADV_POPULATE_READ
    const size_t chunk = (size_t)4 << 20;
    const Checkpoint *c = &s->checkpoint;
    if (s->model.weights.mode != MODE_BF16 || common.no_mmap || !load->started)
        return;
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *f = checkpoint_file(c, i);
        for (size_t at = 0; at < f->mapped_size && !atomic_load(&load->done); at += chunk)
            madvise(f->mapped + at, MIN(f->mapped_size - at, chunk), MADV_POPULATE_READ);
    }
#else
    (void)s, (void)load;
#endif
}

/* ---- session ----------------------------------------------------------------------------------------------------- */

void session_start_pool(void)
{
    char err[512];
    if (cpu_level_from_environment(err))
        die(EXIT_USAGE, "%s", err);
    if (common.threads > 1024)
        usage_error("--threads: %zu is more than 1024", common.threads);
    die_if(threads_start(common.threads ? (int)common.threads : cpu_cores_usable(), err), err);
}

#define MOST_LOGITS ((size_t)64 << 20) /* bytes of the logits of a block */

size_t session_usual_context(const Config *c)
{
    double stretched = (double)c->max_positions * c->rope.factor;
    bool plain = c->rope_type == ROPE_DEFAULT || c->rope.factor <= 1 || stretched > 1e12;
    return plain ? c->max_positions : (size_t)stretched;
}

static void start_state(Session *s, size_t most_logits)
{
    const Config *c = &s->model.config;
    size_t usual = session_usual_context(c), ctx = common.ctx ? common.ctx : usual, block = common.block;
    char err[512];
    if (ctx > usual)
        notice("--ctx %zu is beyond the %zu positions that the model was made for", ctx, usual);
    if (most_logits == ALL_LOGITS)
        block = MIN(block, MAX(MOST_LOGITS / sizeof(float) / c->vocab_size, 1));
    die_if(run_state_init(&s->state, c, session_kv_type(s->model.weights.mode), ctx, block, most_logits, err), err);
    s->state.ws.allow_rounding = common.fast;
}

void session_open(Session *s, bool need_tokenizer, size_t most_logits)
{
    double start = clock_seconds();
    TokenizerLoad load = {0};
    char err[512];
    WeightMode mode = wanted_mode();
    *s = (Session){0};
    session_start_pool();
    if (!cpu_exact_fma())
        notice("this CPU or build has no fused multiply-add: results are correct, but slow");
    model_open(&s->checkpoint, common.model);
    die_if(checkpoint_read_config(&s->checkpoint, &s->model.config, err), err);
    if (need_tokenizer || has_tokenizer(s->checkpoint.directory))
        start_tokenizer(&load, s->checkpoint.directory);
    load_weights(s, mode);
    start_state(s, most_logits);
    touch_weights(s, &load);
    s->tokenizer = finish_tokenizer(&load, need_tokenizer);
    if (s->tokenizer && tokenizer_size(s->tokenizer) > s->model.config.vocab_size)
        warn("the tokenizer has ids up to %zu, but the model has only %zu rows: ids beyond them cannot be used",
             tokenizer_size(s->tokenizer) - 1, s->model.config.vocab_size);
    s->load_seconds = clock_seconds() - start;
}

void session_close(Session *s)
{
    run_state_free(&s->state);
    tokenizer_close(s->tokenizer);
    weights_free(&s->model.weights);
    config_free(&s->model.config);
    checkpoint_close(&s->checkpoint);
    threads_stop();
    *s = (Session){0};
}

void session_check_sizes(const Session *s)
{
    if (s->model.weights.mode == MODE_BF16)
        model_check_sizes(&s->checkpoint);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

void session_check_ids(const Session *s, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((size_t)ids[i] >= s->model.config.vocab_size)
            die(EXIT_FAILED, "token id %d is beyond the model's vocabulary of %zu", ids[i], s->model.config.vocab_size);
    if (n > s->state.cache.ctx)
        die(EXIT_FAILED, "the prompt has %zu tokens, but the context has room for only %zu (--ctx)", n, s->state.cache.ctx);
}

IdList session_prompt(Session *s, const Prompt *prompt)
{
    IdList ids = {0};
    char err[512];
    if (prompt->ids)
        ids = input_ids(prompt->ids);
    else
        die_if(tokenizer_encode(s->tokenizer, prompt->text.bytes, prompt->text.length, true, &ids, err), err);
    if (!ids.count && s->model.config.bos_token_id < 0)
        die(EXIT_FAILED, "the prompt is empty, and the model's config.json names no bos_token_id to start from");
    if (!ids.count)
        xappend_id(&ids, s->model.config.bos_token_id);
    session_check_ids(s, ids.items, ids.count);
    return ids;
}

void session_show_prefill(void *context, size_t done, size_t total)
{
    (void)context;
    progress("reading the prompt", done, total);
    if (done == total)
        progress_end();
}

const float *session_forward(Session *s, const int *ids, size_t n)
{
    RunState *r = &s->state;
    const float *logits = NULL;
    char err[512];
    die_if(kv_cache_reserve(&r->cache, n, err), err);
    for (size_t done = 0; done < n;) {
        size_t step = MIN(n - done, r->block);
        logits = forward(&s->model, r, ids + done, (int)step);
        done += step;
        if (interrupted)
            die(EXIT_INTERRUPTED, "interrupted after %zu of %zu tokens", done, n);
        if (n > r->block)
            session_show_prefill(NULL, done, n);
    }
    session_check_sizes(s);
    return logits;
}

uint64_t session_cache_bytes(const Session *s, size_t position)
{
    const Config *c = &s->model.config;
    uint64_t bytes = 0, each = s->state.cache.type == KV_F16 ? 2 : 4;
    for (size_t l = 0; l < c->n_layers; l++) {
        size_t seen = c->layer_is_sliding[l] ? MIN(c->sliding_window, position) : position;
        bytes += 2 * each * c->kv_dim * seen;
    }
    return bytes;
}

/* ---- the speed of memory ----------------------------------------------------------------------------------------- */

#define CHUNK ((size_t)1 << 20)

/* One word brings its whole cache line; reading four streams keeps more lines in flight than one. */
static void read_chunks(void *context, size_t begin, size_t end, int thread)
{
    const unsigned char *const *chunks = context;
    const size_t line = 64, stream = CHUNK / 4;
    uint64_t sum = 0;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        for (size_t at = 0; at < stream; at += line)
            for (size_t k = 0; k < 4; k++)
                sum += load_u64(chunks[i] + k * stream + at);
    __asm__ volatile("" : : "r"(sum)); /* without a use of the sum the compiler would drop the reads */
}

double session_read_bandwidth(const Session *s, uint64_t limit)
{
    size_t most = (size_t)(MIN(limit, s->weight_bytes) / CHUNK) + 1, n = 0;
    const unsigned char **chunks = xcalloc(most, sizeof *chunks);
    const Matrix *m;
    for (size_t i = 0; n < most && (m = matrix_at(&s->model, i)); i++)
        for (uint64_t at = 0; n < most && at + CHUNK <= weights_matrix_bytes(m->type, m->rows, m->cols); at += CHUNK)
            chunks[n++] = (const unsigned char *)m->data + at;
    double start = clock_seconds();
    threads_for(n, 1, read_chunks, chunks);
    double seconds = clock_seconds() - start;
    free(chunks);
    return n && seconds > 0 ? (double)n * (double)CHUNK / seconds / 1e9 : 0;
}
