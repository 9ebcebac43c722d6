/* A model opened for running: checkpoint, weights, tokenizer and state, by the common options. */
#include "base/cpu.h"
#include "base/file.h"
#include "base/threads.h"
#include "checkpoint/edit.h"
#include "checkpoint/locate.h"
#include "checkpoint/weights.h"
#include "commands/common.h"
#include "kernels/elementary.h"
#include "kernels/quantize.h"
#include "kernels/vector.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which model ------------------------------------------------------------------------------------------------- */

/* The model that was named, or the default, with a line that says so if it is the demo. Fresh. */
static char *model_path(const char *model)
{
    char err[512];
    bool is_demo;
    if (model && !*model)
        usage_error("the model's path is empty");
    if (model)
        return must(strdup(model));
    char *path = locate_default(&is_demo, err);
    if (!path)
        die(EXIT_FAILED, "%s", err);
    if (is_demo)
        notice("no --model: this is the demo model, %s; ./download.sh fetches Qwen2.5-0.5B-Instruct", path);
    return path;
}

/* Weights that an edit left half-way are no model's: --undo brings it back. */
static void warn_of_edits(const Checkpoint *c)
{
    char sentence[512];
    for (size_t i = 0; i < checkpoint_file_count(c); i++)
        if (edit_pending(checkpoint_file(c, i)->path, sentence))
            warn("%s", sentence);
}

void open_checkpoint(Checkpoint *c, const char *model)
{
    char err[512], *path = model_path(model);
    struct stat st;
    bool missing = stat(path, &st) && errno == ENOENT;
    snprintf(mapped_name, sizeof mapped_name, "%s", path);
    if (checkpoint_open(c, path, common.no_mmap, err)) {
        bool hint = missing && !strstr(err, "download.sh");
        die(EXIT_FAILED, "%s%s", err, hint ? "; ./download.sh fetches a model" : "");
    }
    warn_of_edits(c);
    free(path);
}

static bool is_in_folder(const Checkpoint *c, const char *name, const char *path)
{
    size_t size = strlen(c->directory) + strlen(name) + 2;
    char *file = must(malloc(size));
    snprintf(file, size, "%s/%s", c->directory, name);
    bool same = file_same(path, file);
    free(file);
    return same;
}

bool is_model_file(const Checkpoint *c, const char *path)
{
    bool found = is_in_folder(c, "model.safetensors.index.json", path);
    for (size_t i = 0; i < checkpoint_file_count(c); i++)
        found = found || file_same(path, checkpoint_file(c, i)->path);
    for (size_t i = 0; i < CHECKPOINT_COMPANIONS; i++)
        found = found || is_in_folder(c, checkpoint_companions[i], path);
    return found;
}

static bool has_tokenizer(const char *directory)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json"};
    bool found = false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t size = strlen(directory) + 32;
        char *path = must(malloc(size));
        snprintf(path, size, "%s/%s", directory, files[i]);
        found = found || !access(path, F_OK);
        free(path);
    }
    return found;
}

Tokenizer *open_tokenizer(void)
{
    char err[512], *path = model_path(common.model);
    struct stat st;
    if (!stat(path, &st) && S_ISREG(st.st_mode) && text_ends_with(path, ".json") && !text_ends_with(path, ".index.json")) {
        Tokenizer *t = tokenizer_open(path, err); /* a tokenizer.json by any name */
        if (!t)
            die(EXIT_FAILED, "%s", err);
        free(path);
        return t;
    }
    char *directory = locate_folder(path, err);
    Tokenizer *t = directory ? tokenizer_open(directory, err) : NULL;
    if (!t)
        die(EXIT_FAILED, "%s", err);
    free(directory);
    free(path);
    return t;
}

/* ---- tokenizer, read beside the weights -------------------------------------------------------------------------- */

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
        warn("no text, only ids: %s", load->err);
    return load->tokenizer;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static const char *const mode_names[] = {[MODE_F32] = "f32", [MODE_BF16] = "bf16", [MODE_Q8] = "q8", [MODE_Q4] = "q4"};

const char *weight_mode_name(WeightMode mode)
{
    return mode_names[mode];
}

static WeightMode wanted_mode(void)
{
    if (!common.weights)
        return MODE_F32;
    for (size_t i = 0; i < sizeof mode_names / sizeof *mode_names; i++)
        if (!strcmp(common.weights, mode_names[i]))
            return (WeightMode)i;
    usage_error("--weights: '%.100s' is unknown; there are f32, bf16, q8 and q4", common.weights);
}

/* A copy only where it fits, together with what a first block of tokens takes. */
static WeightMode fitting_mode(const Session *s, WeightMode mode)
{
    if (mode == MODE_BF16)
        return mode;
    const Config *c = &s->model.config;
    size_t block = common.block < c->max_positions ? common.block : c->max_positions;
    uint64_t need = weights_copy_bytes(c, mode), free_bytes = cpu_memory_available();
    char a[32], b[32];
    if (need + run_state_bytes(c, block, block) < free_bytes)
        return mode;
    human_bytes(need, a);
    human_bytes(free_bytes, b);
    if (mode != MODE_F32)
        die(EXIT_FAILED, "the %s copy of the weights needs %s, but %s of memory are free: -w bf16 needs no copy",
            mode_names[mode], a, b);
    notice("the FP32 copy of the weights needs %s, but %s of memory are free: using -w bf16, which gives the same text",
           a, b);
    return MODE_BF16;
}

static uint64_t matrix_bytes(const Matrix *m)
{
    if (m->type == WEIGHT_F32)
        return 4 * (uint64_t)m->rows * m->cols;
    if (m->type == WEIGHT_BF16 || m->type == WEIGHT_F16)
        return 2 * (uint64_t)m->rows * m->cols;
    return quantized_size(m->type, m->rows, m->cols);
}

/* The matrices that one token reads, 7 a layer and the head: the i-th, or NULL after the last. */
static const Matrix *matrix_at(const Model *m, size_t i)
{
    const TransformerWeights *w = &m->weights;
    const Matrix *const of_layer[] = {w->q, w->k, w->v, w->o, w->gate, w->up, w->down};
    if (i < 7 * m->config.n_layers)
        return of_layer[i % 7] + i / 7;
    return i == 7 * m->config.n_layers ? &w->head : NULL;
}

void check_sizes(const Checkpoint *c)
{
    char err[512];
    if (checkpoint_check_sizes(c, err))
        die(EXIT_FAILED, "%s", err);
}

typedef struct {
    uint64_t done, total;
} Loading;

static int show_loading(void *context, uint64_t bytes)
{
    Loading *l = context;
    l->done += bytes;
    progress("loading the weights", l->done, l->total);
    return 0;
}

static void load_weights(Session *s, WeightMode mode)
{
    SafetensorsFile *st = &s->checkpoint.st;
    Loading loading = {0};
    char err[512];
    for (size_t i = 0; i < checkpoint_tensor_count(&s->checkpoint); i++)
        loading.total += checkpoint_tensor(&s->checkpoint, i)->length;
    st->progress = show_loading;
    st->progress_context = &loading;
    if (weights_check(st, &s->model.config, err) ||
        weights_load(st, &s->model.config, fitting_mode(s, mode), &s->model.weights, err))
        die(EXIT_FAILED, "%s", err);
    st->progress = NULL;
    check_sizes(&s->checkpoint);
    progress_end();
    const Matrix *m;
    for (size_t i = 0; (m = matrix_at(&s->model, i)); i++)
        s->weight_bytes += matrix_bytes(m);
    SafetensorsTensor embedding;
    s->holds_16_bits =
        !safetensors_find(st, "model.embed_tokens.weight", &embedding) && dtype_bits(embedding.dtype) == 16;
}

/* While the tokenizer is still being read: asks the system for the pages that the first token will need anyway. */
static void touch_weights(const Session *s, TokenizerLoad *load)
{
#ifdef MADV_POPULATE_READ
    const size_t piece = (size_t)4 << 20;
    const Checkpoint *c = &s->checkpoint;
    if (s->model.weights.mode != MODE_BF16 || common.no_mmap || !load->started)
        return;
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *f = checkpoint_file(c, i);
        for (size_t at = 0; at < f->mapped_size && !atomic_load(&load->done); at += piece)
            madvise(f->mapped + at, f->mapped_size - at < piece ? f->mapped_size - at : piece, MADV_POPULATE_READ);
    }
#else
    (void)s;
    (void)load;
#endif
}

/* ---- session ----------------------------------------------------------------------------------------------------- */

void start_pool(void)
{
    char err[512];
    if (cpu_level_from_environment(err))
        die(EXIT_USAGE, "%s", err);
    if (common.threads > 1024)
        usage_error("--threads: %zu is more than 1024", common.threads);
    if (threads_start(common.threads ? (int)common.threads : cpu_cores_usable(), err))
        die(EXIT_FAILED, "%s", err);
}

/* Logits of a whole block are kept below this. */
#define MOST_LOGITS ((size_t)64 << 20)

/* What the positions are worth: rope scaling is there to go beyond max_position_embeddings, factor times at most. */
size_t usual_context(const Config *c)
{
    double stretched = (double)c->max_positions * c->rope.factor;
    return c->rope_type == ROPE_DEFAULT || c->rope.factor <= 1 || stretched > 1e12 ? c->max_positions
                                                                                   : (size_t)stretched;
}

static void start_state(Session *s, bool all_logits)
{
    const Config *c = &s->model.config;
    size_t ctx = common.ctx ? common.ctx : usual_context(c), block = common.block,
           most = MOST_LOGITS / sizeof(float) / c->vocab_size;
    char err[512];
    if (ctx > usual_context(c))
        notice("--ctx %zu is beyond the %zu positions that the model was made for", ctx, usual_context(c));
    if (all_logits && block > most)
        block = most ? most : 1;
    if (run_state_init(&s->state, c, ctx, block, all_logits, err))
        die(EXIT_FAILED, "%s", err);
}

void session_open(Session *s, bool need_tokenizer, bool all_logits)
{
    double start = seconds_now();
    TokenizerLoad load = {0};
    char err[512];
    WeightMode mode = wanted_mode();
    *s = (Session){0};
    start_pool();
    if (!cpu_exact_fma())
        notice("this CPU or build has no fused multiply-add: results are right, but slow");
    matmul_allow_rounding(common.fast);
    open_checkpoint(&s->checkpoint, common.model);
    if (checkpoint_read_config(&s->checkpoint, &s->model.config, err))
        die(EXIT_FAILED, "%s", err);
    if (need_tokenizer || has_tokenizer(s->checkpoint.directory))
        start_tokenizer(&load, s->checkpoint.directory);
    load_weights(s, mode);
    start_state(s, all_logits);
    touch_weights(s, &load);
    s->tokenizer = finish_tokenizer(&load, need_tokenizer);
    if (s->tokenizer && tokenizer_size(s->tokenizer) > s->model.config.vocab_size)
        warn("the tokenizer has ids up to %zu, but the model only %zu rows: those beyond cannot be used",
             tokenizer_size(s->tokenizer) - 1, s->model.config.vocab_size);
    s->load_seconds = seconds_now() - start;
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

void session_check(const Session *s)
{
    if (s->model.weights.mode == MODE_BF16)
        check_sizes(&s->checkpoint);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

void check_ids(const Session *s, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((size_t)ids[i] >= s->model.config.vocab_size)
            die(EXIT_FAILED, "token id %d is beyond the model's vocabulary of %zu", ids[i], s->model.config.vocab_size);
    if (n > s->state.ctx)
        die(EXIT_FAILED, "the prompt has %zu tokens, but the context only %zu (--ctx)", n, s->state.ctx);
}

IdList session_prompt(Session *s, const char *text, size_t length, const char *ids)
{
    IdList list = {0};
    char err[512];
    if (ids) {
        list.items = parse_ids(ids, &list.count);
    } else if (tokenizer_encode(s->tokenizer, text, length, true, &list, err)) {
        die(EXIT_FAILED, "%s", err);
    }
    if (!list.count) {
        if (s->model.config.bos_token_id < 0)
            die(EXIT_FAILED, "the prompt is empty, and the model's config.json names no bos_token_id to start from");
        if (id_list_append(&list, s->model.config.bos_token_id))
            die(EXIT_FAILED, "out of memory");
    }
    check_ids(s, list.items, list.count);
    return list;
}

const float *session_forward(Session *s, const int *ids, size_t n)
{
    RunState *r = &s->state;
    const float *logits = NULL;
    char err[512];
    if (run_state_reserve(r, r->pos + n, err))
        die(EXIT_FAILED, "%s", err);
    for (size_t done = 0; done < n;) {
        size_t step = n - done < r->block ? n - done : r->block;
        logits = forward(&s->model, r, ids + done, (int)step);
        done += step;
        if (interrupted)
            die(EXIT_INTERRUPTED, "interrupted after %zu of %zu tokens", done, n);
        progress("reading the prompt", done, n);
    }
    progress_end();
    session_check(s);
    return logits;
}

uint64_t cache_bytes(const Config *c, size_t positions)
{
    uint64_t bytes = 0;
    for (size_t l = 0; l < c->n_layers; l++) {
        bool windowed = c->layer_is_sliding[l] && c->sliding_window < positions;
        bytes += 2 * sizeof(float) * (uint64_t)c->kv_dim * (windowed ? c->sliding_window : positions);
    }
    return bytes;
}

typedef struct {
    const unsigned char **pieces; /* each of PIECE bytes */
    uint64_t *sums;               /* [thread][8], of which the first counts: so that nothing is optimised away */
} Reading;
#define PIECE ((size_t)1 << 20)

/* A word of each cache line brings all of it; a core has the most lines on their way when it reads several streams. */
static void read_pieces(void *context, size_t begin, size_t end, int thread)
{
    const Reading *r = context;
    const size_t line = 64, stream = PIECE / 4;
    uint64_t sum = 0;
    for (size_t i = begin; i < end; i++)
        for (size_t at = 0; at < stream; at += line)
            for (size_t k = 0; k < 4; k++) {
                uint64_t word;
                memcpy(&word, r->pieces[i] + k * stream + at, sizeof word);
                sum += word;
            }
    r->sums[8 * thread] += sum;
}

double read_bandwidth(const Session *s, uint64_t limit)
{
    size_t most = (size_t)((limit < s->weight_bytes ? limit : s->weight_bytes) / PIECE) + 1, n = 0;
    Reading r = {must(calloc(most, sizeof *r.pieces)), must(calloc((size_t)threads_count() * 8, sizeof *r.sums))};
    const Matrix *m;
    for (size_t i = 0; n < most && (m = matrix_at(&s->model, i)); i++)
        for (uint64_t at = 0; n < most && at + PIECE <= matrix_bytes(m); at += PIECE)
            r.pieces[n++] = (const unsigned char *)m->data + at;
    double start = seconds_now();
    threads_for(n, 1, read_pieces, &r);
    double seconds = seconds_now() - start;
    free(r.pieces);
    free(r.sums);
    return n && seconds > 0 ? (double)n * (double)PIECE / seconds / 1e9 : 0;
}

/* ---- probabilities ----------------------------------------------------------------------------------------------- */

int log_sum_exp(const float *logits, size_t n, float *largest, double *log_sum)
{
    bool bad = false;
    float top = logits[argmax_f32(logits, n, &bad)];
    double sum = 0;
    if (bad || top != top || top - top != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        sum += exp_f64((double)logits[i] - (double)top);
    *largest = top;
    *log_sum = log_f64(sum);
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const Ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

int rank_logits(const float *logits, size_t n, size_t count, Ranked *out)
{
    float largest;
    double log_sum;
    if (log_sum_exp(logits, n, &largest, &log_sum))
        return -1;
    for (size_t i = 0; i < n; i++)
        out[i] = (Ranked){(int)i, logits[i], 0};
    qsort(out, n, sizeof *out, by_rank);
    for (size_t i = 0; i < count; i++)
        out[i].probability = exp_f64((double)out[i].logit - (double)largest - log_sum);
    return 0;
}
