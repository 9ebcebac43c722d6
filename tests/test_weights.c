/* checkpoint/weights.c and safetensors_load_weights(): all weights of a model from files of every type, in every mode,
 * each number where it belongs; what is refused, failing allocations, pages given back, progress, shards. */
#include "base/base.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/weights.h"
#include "failing_calls.h"
#include "kernels/quantize.h"
#include "model_files.h"

static char path[300]; /* the file that most tests write */

/* ---- a model whose numbers are all known ------------------------------------------------------------------------- */

enum { LAYERS = 2, DIM = 32, HIDDEN = 64, KV = 12, VOCAB = 10, PER_LAYER = 12, COUNT = 1 + LAYERS * PER_LAYER + 2 };

#define FIELD(name) offsetof(TransformerWeights, name)

/* The tensors of a layer; a vector has no matrix. */
static const struct {
    const char *suffix;
    size_t rows, cols, array, matrix;
} layer_tensors[PER_LAYER] = {
    {"input_layernorm.weight", DIM, 0, FIELD(input_layernorm), 0},
    {"self_attn.q_proj.weight", DIM, DIM, FIELD(q_proj), FIELD(q)},
    {"self_attn.q_proj.bias", DIM, 0, FIELD(q_bias), 0},
    {"self_attn.k_proj.weight", KV, DIM, FIELD(k_proj), FIELD(k)},
    {"self_attn.k_proj.bias", KV, 0, FIELD(k_bias), 0},
    {"self_attn.v_proj.weight", KV, DIM, FIELD(v_proj), FIELD(v)},
    {"self_attn.v_proj.bias", KV, 0, FIELD(v_bias), 0},
    {"self_attn.o_proj.weight", DIM, DIM, FIELD(o_proj), FIELD(o)},
    {"post_attention_layernorm.weight", DIM, 0, FIELD(post_attention_layernorm), 0},
    {"mlp.gate_proj.weight", HIDDEN, DIM, FIELD(gate_proj), FIELD(gate)},
    {"mlp.up_proj.weight", HIDDEN, DIM, FIELD(up_proj), FIELD(up)},
    {"mlp.down_proj.weight", DIM, HIDDEN, FIELD(down_proj), FIELD(down)},
};

/* A tensor of the model; find_target() tells where it must be after loading. */
typedef struct {
    char name[64];
    size_t rows, cols;
    int layer, row; /* row: of layer_tensors; both are -1 outside of the layers */
} Wanted;

static void list_model(Wanted list[COUNT])
{
    size_t n = 0;
    list[n++] = (Wanted){"model.embed_tokens.weight", VOCAB, DIM, -1, -1};
    for (int layer = 0; layer < LAYERS; layer++)
        for (int row = 0; row < PER_LAYER; row++) {
            list[n] = (Wanted){"", layer_tensors[row].rows, layer_tensors[row].cols, layer, row};
            snprintf(list[n].name, sizeof list[n].name, "model.layers.%d.%s", layer, layer_tensors[row].suffix);
            n++;
        }
    list[n++] = (Wanted){"model.norm.weight", DIM, 0, -1, -1};
    list[n++] = (Wanted){"lm_head.weight", VOCAB, DIM, -1, -1};
}

/* Element i of tensor k, exact in every float type. */
static float value(size_t k, size_t i)
{
    return (float)((int)((k * 37 + i * 11) % 255) - 127) / 64;
}

static size_t put_number(unsigned char *p, const char *dtype, float v)
{
    double wide = v;
    uint32_t bits = bits_of(v);
    uint16_t half = 0;
    if (strcmp(dtype, "F64") == 0) {
        memcpy(p, &wide, 8);
        return 8;
    }
    if (strcmp(dtype, "F32") == 0) {
        memcpy(p, &v, 4);
        return 4;
    }
    if (strcmp(dtype, "BF16") == 0) {
        half = (uint16_t)(bits >> 16);
    } else if (v != 0) { /* F16 of a number in its normal range */
        half = (uint16_t)((bits >> 16 & 0x8000u) | (((bits >> 23 & 255u) - 112) << 10) | (bits >> 13 & 1023u));
    }
    memcpy(p, &half, 2);
    return 2;
}

/* How to write the model, and what is wrong with it. */
typedef struct {
    const char *dtypes[2]; /* the tensors have the first and the second in turn */
    size_t first, count;   /* only these tensors, for shards; count 0 means all */
    const char *missing;   /* left out */
    const char *bad;       /* has another shape or dtype: */
    const char *bad_shape, *bad_dtype;
    const char *nan; /* has a NaN in its row 3 */
} Making;

/* Write the tensors in reverse, so that the order in the file is not that of loading, with the data at an odd address.
 */
static void write_weights(const char *name, const Making *m)
{
    Wanted list[COUNT];
    list_model(list);
    unsigned char *data = malloc(COUNT * HIDDEN * DIM * 8), *to = data;
    char *header = NULL;
    size_t length, last = m->count ? m->first + m->count : COUNT;
    FILE *f = open_memstream(&header, &length);
    for (size_t k = last; k-- > m->first;) {
        const Wanted *t = &list[k];
        const char *dtype = m->dtypes[m->dtypes[1] ? k % 2 : 0];
        bool bad = m->bad && strcmp(t->name, m->bad) == 0;
        size_t begin = (size_t)(to - data), n = t->rows * (t->cols ? t->cols : 1);
        char shape[32];
        if (m->missing && strcmp(t->name, m->missing) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            to += put_number(to, dtype,
                             m->nan && strcmp(t->name, m->nan) == 0 && i == 3 * t->cols + 5 ? NAN : value(k, i));
        snprintf(shape, sizeof shape, t->cols ? "[%zu,%zu]" : "[%zu]", t->rows, t->cols);
        fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", ftell(f) ? "," : "{", t->name,
                bad && m->bad_dtype ? m->bad_dtype : dtype, bad && m->bad_shape ? m->bad_shape : shape, begin,
                (size_t)(to - data));
    }
    fprintf(f, "}");
    fflush(f);
    if (length % 2 == 0)
        fprintf(f, " ");
    fclose(f);
    write_parts(name, header, length, length, data, (size_t)(to - data));
    free(header);
    free(data);
}

static Config config_of(bool tied)
{
    return (Config){.dim = DIM,
                    .hidden_dim = HIDDEN,
                    .n_layers = LAYERS,
                    .n_heads = 4,
                    .n_kv_heads = 2,
                    .head_dim = 8,
                    .q_dim = DIM,
                    .kv_dim = KV,
                    .vocab_size = VOCAB,
                    .tie_word_embeddings = tied};
}

/* Like weights_load() in w->mode, with the sentence in st->error. */
static int load_weights(SafetensorsFile *st, const Config *config, TransformerWeights *w)
{
    char err[512];
    int status = weights_load(st, config, w->mode, w, err);
    if (status != 0)
        memcpy(st->error, err, sizeof err);
    return status;
}

static int load(SafetensorsFile *st, TransformerWeights *w, const Making *m, WeightMode mode, bool tied)
{
    Config config = config_of(tied);
    write_weights(path, m);
    memset(st, 0, sizeof *st);
    memset(w, 0, sizeof *w);
    w->mode = mode;
    if (safetensors_open(path, st) != 0) {
        check(false, "%s", st->error);
        return -1;
    }
    return load_weights(st, &config, w);
}

static bool is_view(const SafetensorsFile *st, const void *data)
{
    for (size_t i = 0; i < st->n_shards; i++)
        if (is_view(&st->shards[i], data))
            return true;
    const unsigned char *p = data;
    return st->mapped && p >= st->data && p < st->data + st->data_size;
}

/* Where tensor t's floats and its Matrix must be; NULL if it has none. */
static void find_target(TransformerWeights *w, const Wanted *t, float ***array, const Matrix **matrix)
{
    bool embedding = t->row < 0 && t->name[6] == 'e', norm = t->row < 0 && t->name[6] == 'n';
    *array = embedding ? &w->token_embedding_table : norm ? &w->norm : &w->lm_head;
    *matrix = embedding ? &w->embedding : norm ? NULL : &w->head;
    if (t->row >= 0) {
        size_t field = layer_tensors[t->row].matrix;
        *array = (float **)((char *)w + layer_tensors[t->row].array);
        *matrix = field ? *(Matrix **)((char *)w + field) + t->layer : NULL;
    }
}

static size_t differences(const float *got, size_t k, size_t first, size_t n, float most)
{
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += !(fabsf(got[i] - value(k, first + i)) <= most);
    return wrong;
}

/* Everything must be where it belongs, with the numbers that were written. */
static void check_weights(const SafetensorsFile *st, TransformerWeights *w, const char *const dtypes[2], bool tied)
{
    Wanted list[COUNT];
    list_model(list);
    for (size_t k = 0; k < COUNT - (tied ? 1 : 0); k++) {
        const Wanted *t = &list[k];
        const char *dtype = dtypes[dtypes[1] ? k % 2 : 0];
        float **array, row[HIDDEN];
        const Matrix *m;
        find_target(w, t, &array, &m);
        size_t n = t->rows * (t->cols ? t->cols : 1), layer = t->layer > 0 ? (size_t)t->layer : 0;
        if (!m || w->mode == MODE_F32) {
            check(*array && (uintptr_t)*array % 64 == 0, "%s: array's address", t->name);
            check(*array && differences(*array + layer * n, k, 0, n, 0) == 0, "%s: numbers", t->name);
        } else {
            check(!*array, "%s: there is an array", t->name);
        }
        if (!m)
            continue;
        WeightType own = strcmp(dtype, "BF16") == 0 ? WEIGHT_BF16 : strcmp(dtype, "F16") == 0 ? WEIGHT_F16 : WEIGHT_F32;
        WeightType want = w->mode == MODE_F32                   ? WEIGHT_F32
                          : w->mode == MODE_BF16                ? own
                          : w->mode == MODE_Q4 && t->layer >= 0 ? WEIGHT_Q4
                                                                : WEIGHT_Q8;
        check(m->type == want && m->rows == t->rows && m->cols == t->cols, "%s: type %d, %zu x %zu", t->name,
              (int)m->type, m->rows, m->cols);
        check(is_view(st, m->data) == (w->mode == MODE_BF16 && strcmp(dtype, "F64") != 0), "%s: view or copy", t->name);
        check(w->mode == MODE_BF16 || (uintptr_t)m->data % 64 == 0, "%s: address of the copy", t->name);
        check(w->mode != MODE_F32 || m->data == *array + layer * n, "%s: the matrix is the array", t->name);
        float most = want == WEIGHT_Q8   ? 2.0f / 127 / 2 * 1.01f
                     : want == WEIGHT_Q4 ? 2.0f / 7
                                         : 0; /* half a step; q4's may be a whole one */
        size_t wrong = 0;
        for (size_t r = 0; r < t->rows; r++) {
            matmul_row(row, m, r);
            wrong += differences(row, k, r * t->cols, t->cols, most);
        }
        check(wrong == 0, "%s: %zu numbers of the matrix are wrong", t->name, wrong);
    }
    if (tied) {
        check(w->lm_head == w->token_embedding_table, "the head's array is the embedding's");
        check(memcmp(&w->head, &w->embedding, sizeof w->head) == 0, "the head is the embedding");
    }
}

static void test_weights(void)
{
    static const char *const dtypes[][2] = {{"BF16", NULL}, {"F16", NULL},   {"F32", NULL},
                                            {"F64", NULL},  {"F16", "BF16"}, {"F64", "F32"}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++)
            for (int tied = 0; tied < 2; tied++) {
                SafetensorsFile st;
                TransformerWeights w;
                Making m = {.dtypes = {dtypes[d][0], dtypes[d][1]}};
                int result = load(&st, &w, &m, (WeightMode)mode, tied);
                check(result == 0, "%s: %s", dtypes[d][0], st.error);
                if (result == 0)
                    check_weights(&st, &w, m.dtypes, tied);
                weights_free(&w);
                check(!w.storage && !w.q && !w.norm && w.mode == (WeightMode)mode, "freed");
                weights_free(&w);
                safetensors_close(&st);
            }
}

/* The names stand twice: in the calls of safetensors_load_weights() and in the table of checkpoint/weights.c. Both must
 * read the same tensor into the same field: each matrix and vector of the model is the same whichever has loaded it,
 * and no two are alike. */
static void test_same_names(bool tied)
{
    char err[512];
    SafetensorsFile st;
    TransformerWeights by_calls = {.mode = MODE_F32}, by_table = {.mode = MODE_BF16};
    Config config = config_of(tied);
    Wanted list[COUNT];
    list_model(list);
    write_weights(path, &(Making){.dtypes = {"BF16"}});
    open_file(&st, path);
    check(safetensors_load_weights(&st, &config, &by_calls) == 0, "%s", st.error);
    check(weights_load(&st, &config, MODE_BF16, &by_table, err) == 0, "%s", err);
    for (size_t k = 0; k < COUNT; k++) {
        const Wanted *t = &list[k];
        float **array, **other, row[HIDDEN], other_row[HIDDEN];
        const Matrix *m, *n;
        find_target(&by_calls, t, &array, &m);
        find_target(&by_table, t, &other, &n);
        size_t layer = t->layer > 0 ? (size_t)t->layer : 0, wrong = 0;
        if (!m)
            wrong = memcmp(*array + layer * t->rows, *other + layer * t->rows, t->rows * sizeof **array) != 0;
        for (size_t r = 0; m && r < t->rows; r++) {
            matmul_row(row, m, r);
            matmul_row(other_row, n, r);
            wrong += memcmp(row, other_row, t->cols * sizeof *row) != 0;
        }
        check(wrong == 0, "%s: %zu rows differ", t->name, wrong);
        for (size_t other_k = 0; other_k < k; other_k++)
            check(value(k, 0) != value(other_k, 0), "%s and %s begin alike", t->name, list[other_k].name);
    }
    weights_free(&by_table);
    weights_free(&by_calls);
    safetensors_close(&st);
}

/* safetensors_load_weights() alone, which counts the numbers of each tensor and leaves shapes to weights_load(). */
static void test_refused_without_shapes(void)
{
    static const struct {
        size_t field, size;
        const char *words;
    } cases[] = {
        {offsetof(Config, vocab_size), VOCAB + 1, "has 320 numbers, but config.json asks for 352"},
        {offsetof(Config, dim), DIM - 1, "has 320 numbers, but config.json asks for 310"},
        {offsetof(Config, hidden_dim), HIDDEN - 1, "has 2048 numbers, but config.json asks for 2016"},
        {offsetof(Config, kv_dim), KV + 2, "has 384 numbers, but config.json asks for 448"},
        {offsetof(Config, n_layers), LAYERS + 1, "there is no tensor \"model.layers.2.input_layernorm.weight\""},
    };
    SafetensorsFile st;
    write_weights(path, &(Making){.dtypes = {"BF16"}});
    open_file(&st, path);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TransformerWeights w = {0};
        Config config = config_of(false);
        memcpy((char *)&config + cases[i].field, &cases[i].size, sizeof cases[i].size);
        check(safetensors_load_weights(&st, &config, &w) != 0 && strstr(st.error, cases[i].words), "case %zu: %s", i,
              st.error);
        check(!w.storage && !w.q && !w.norm && !w.token_embedding_table, "case %zu: w stays zeroed", i);
        weights_free(&w);
    }
    safetensors_close(&st);
}

/* Each allocation fails in turn. */
static void test_weights_without_memory(WeightMode mode, const char *dtype)
{
    write_weights(path, &(Making){.dtypes = {dtype, NULL}});
    SafetensorsFile st = {0};
    Config config = config_of(true);
    bool failed = ALLOCATIONS_FAIL;
    check(safetensors_open(path, &st) == 0, "%s", st.error);
    for (long at = 1; failed; at++) {
        TransformerWeights w = {.mode = mode};
        fail_call(ALLOCATION, at, ENOMEM);
        int result = load_weights(&st, &config, &w);
        failed = call_failed();
        check(failed ? result != 0 && strstr(st.error, "out of memory") : result == 0, "allocation %ld: %s", at,
              st.error);
        check(!failed || (!w.storage && !w.q && !w.norm && !w.token_embedding_table),
              "allocation %ld fails: w stays zeroed", at);
        weights_free(&w);
    }
    safetensors_close(&st);
}

/* Bytes of the copy that each mode makes: vectors as float32, matrices as weights_type() says. */
static void test_copy_bytes(void)
{
    Config config = config_of(false);
    Wanted list[COUNT];
    list_model(list);
    for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
        uint64_t bytes = 0;
        for (size_t k = 0; k < COUNT; k++) {
            const Wanted *t = &list[k];
            WeightType type = weights_type((WeightMode)mode, DTYPE_BF16, t->layer >= 0);
            if (t->cols && (type == WEIGHT_Q8 || type == WEIGHT_Q4))
                bytes += quantized_size(type, t->rows, t->cols);
            else if (mode != MODE_BF16)
                bytes += 4 * t->rows * (t->cols ? t->cols : 1);
        }
        check(weights_copy_bytes(&config, (WeightMode)mode) == bytes, "mode %d: %zu bytes", mode, (size_t)bytes);
    }
    config.hidden_dim = 65;
    check(weights_copy_bytes(&config, MODE_Q8) == UINT64_MAX, "rows that are not made of groups of 32");
    config.hidden_dim = (size_t)1 << 59;
    check(weights_copy_bytes(&config, MODE_F32) == UINT64_MAX, "beyond 64 bits");
}

/* How many of the whole pages in [p, p + n) this process holds; -1 if the system doesn't tell. */
static long pages_held(const unsigned char *p, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)p + page - 1) / page,
           end = ((uintptr_t)p + n) / page;
    long held = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    for (; first < end && held >= 0; first++) {
        uint64_t entry;
        held = pread(fd, &entry, 8, (off_t)(first * 8)) == 8 ? held + (long)(entry >> 63) : -1;
    }
    close(fd);
    return held;
}

/* The pages of what was converted or quantized are given back at once, but not those of the only copy, nor the pages
 * around it. The big tensor fills whole pages, or begins and ends within one. */
static void test_release(bool whole_pages)
{
    enum { ROWS = 16384 };
    static const char text[] = "{" ENTRY("model.embed_tokens.weight", "BF16", "[16384,32]", "[0,1048576]") "," ENTRY(
        "model.norm.weight", "F32", "[32]", "[1048576,1048704]") "}";
    size_t page = (size_t)sysconf(_SC_PAGESIZE), length = whole_pages ? page - 8 : sizeof text - 1;
    char *header = malloc(page);
    memset(header, ' ', page);
    memcpy(header, text, sizeof text - 1);
    Config config = config_of(true);
    config.vocab_size = ROWS;
    config.n_layers = 0;
    unsigned char *data = calloc(1, 1048704);
    for (size_t i = 0; i < 524288; i++)
        put_number(data + 2 * i, "BF16", value(0, i));
    write_parts(path, header, length, length, data, 1048704);
    for (int mode = MODE_F32; mode <= MODE_Q8; mode++)
        for (int memory = 0; memory < 2; memory++) {
            SafetensorsFile st = {.read_into_memory = memory};
            TransformerWeights w = {.mode = (WeightMode)mode};
            check(safetensors_open(path, &st) == 0 && memcmp(st.data, data, 1048704) == 0, "%s", st.error);
            long before = pages_held(st.data, 1048576);
            float *copy = safetensors_load_float(&st, "model.embed_tokens.weight");
            check(memory || before < 0 || pages_held(st.data, 1048576) == 0, "the pages of a tensor are given back");
            free(copy);
            check(memcmp(st.data, data, 1048704) == 0, "and come back");
            check(load_weights(&st, &config, &w) == 0, "%s", st.error);
            long after = pages_held(st.data, 1048576);
            if (before < 0)
                skip("pages given back: this system does not tell which are held");
            else if (memory || mode == MODE_BF16)
                check(before > 200 && after == before, "mode %d: %ld of %ld pages stay", mode, after, before);
            else
                check(before > 200 && after == 0, "mode %d: %ld of %ld pages are still held", mode, after, before);
            check(before < 0 || (pages_held(st.mapped, page) == 1 &&
                                 pages_held(st.mapped + (st.mapped_size - 1) / page * page, page) == 1),
                  "mode %d: the first page and the last stay", mode);
            check(memcmp(st.data, data, 1048704) == 0, "mode %d: the file's numbers are the same", mode);
            weights_free(&w);
            safetensors_close(&st);
        }
    free(data);
    free(header);
}

/* A FileProgress for modes that make a copy, which read the tensors in the file's order. context: the file, whose list
 * of tensors is in that order. */
static int note_order(void *context, uint64_t bytes)
{
    const SafetensorsFile *st = context;
    check(progress_calls < st->n_tensors && st->tensors[progress_calls].length == bytes,
          "the file is read in order: %llu bytes as number %llu", (unsigned long long)bytes,
          (unsigned long long)progress_calls);
    progress_calls++;
    return 0;
}

static void test_order_of_reading(void)
{
    for (int mode = MODE_Q8; mode <= MODE_Q4; mode++) {
        SafetensorsFile st = {.progress = note_order, .progress_context = &st};
        TransformerWeights w = {.mode = (WeightMode)mode};
        Config config = config_of(false);
        progress_calls = 0;
        write_weights(path, &(Making){.dtypes = {"BF16", NULL}});
        check(safetensors_open(path, &st) == 0 && load_weights(&st, &config, &w) == 0, "%s", st.error);
        check(progress_calls == COUNT, "%llu tensors are read", (unsigned long long)progress_calls);
        weights_free(&w);
        safetensors_close(&st);
    }
}

static void test_loading_progress(void)
{
    for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
        SafetensorsFile st = {.progress = note_progress, .progress_context = &progress_calls};
        TransformerWeights w = {.mode = (WeightMode)mode};
        Config config = config_of(false);
        bytes_told = progress_calls = 0;
        write_weights(path, &(Making){.dtypes = {"BF16", NULL}});
        check(safetensors_open(path, &st) == 0 && load_weights(&st, &config, &w) == 0, "%s", st.error);
        if (mode != MODE_BF16)
            check(progress_calls == COUNT && bytes_told == st.data_size, "mode %d: %llu calls, %llu of %zu bytes", mode,
                  (unsigned long long)progress_calls, (unsigned long long)bytes_told, st.data_size);
        weights_free(&w);
        safetensors_close(&st);
    }
}

static void test_shards(void)
{
    char second[300];
    snprintf(second, sizeof second, "%s/second.safetensors", folder);
    for (int twice = 0; twice < 2; twice++) {
        SafetensorsFile st = {.fd = -1};
        st.path = strdup("index");
        st.shards = calloc(3, sizeof *st.shards);
        st.n_shards = 2; /* the third is not part of it and must not be touched */
        SafetensorsTensor beyond = {.name = "beyond", .name_length = 6, .file = &st};
        st.shards[2] = (SafetensorsFile){.tensors = &beyond, .n_tensors = (size_t)1 << 40};
        int before = open_files();
        write_weights(path, &(Making){.dtypes = {"BF16", NULL}, .first = twice ? 11 : 0, .count = twice ? 1 : 11});
        write_weights(second, &(Making){.dtypes = {"BF16", NULL}, .first = 11, .count = COUNT - 11});
        check(safetensors_open(path, &st.shards[0]) == 0 && safetensors_open(second, &st.shards[1]) == 0, "%s %s",
              st.shards[0].error, st.shards[1].error);
        int result = safetensors_join_shards(&st);
        check(twice || st.n_tensors == COUNT, "%zu tensors", st.n_tensors);
        if (twice) {
            check(result != 0 &&
                      strstr(st.error, "second.safetensors: tensor \"model.layers.0.mlp.up_proj.weight\": is also "
                                       "in ") &&
                      strstr(st.error, path),
                  "%s", st.error);
        } else {
            for (int mode = MODE_F32; mode <= MODE_BF16; mode++) {
                TransformerWeights w = {.mode = (WeightMode)mode};
                Config config = config_of(false);
                check(result == 0 && load_weights(&st, &config, &w) == 0, "%s", st.error);
                check_weights(&st, &w, (const char *const[2]){"BF16", NULL}, false);
                weights_free(&w);
            }
        }
        safetensors_close(&st);
        check(open_files() == before, "a shard stays open");
    }
    unlink(second);
}

static void test_refused_weights(void)
{
    static const struct {
        Making making;
        WeightMode mode;
        bool tied;
        const char *refusal;
    } cases[] = {
        {{.dtypes = {"BF16"}, .missing = "model.layers.1.self_attn.k_proj.bias"},
         MODE_F32,
         true,
         ": there is no tensor \"model.layers.1.self_attn.k_proj.bias\""},
        {{.dtypes = {"BF16"}, .missing = "model.norm.weight"},
         MODE_BF16,
         true,
         "there is no tensor \"model.norm.weight\""},
        {{.dtypes = {"BF16"}, .missing = "lm_head.weight"}, MODE_F32, false, "there is no tensor \"lm_head.weight\""},
        {{.dtypes = {"BF16"}, .missing = "lm_head.weight"}, MODE_F32, true, NULL},
        {{.dtypes = {"BF16"}, .bad = "model.layers.0.mlp.up_proj.weight", .bad_shape = "[32,64]"},
         MODE_F32,
         true,
         "tensor \"model.layers.0.mlp.up_proj.weight\": is [32,64], but config.json asks for [64,32]"},
        {{.dtypes = {"BF16"}, .bad = "model.embed_tokens.weight", .bad_shape = "[320]"},
         MODE_BF16,
         true,
         "is [320], but config.json asks for [10,32]"},
        {{.dtypes = {"BF16"}, .bad = "model.layers.1.input_layernorm.weight", .bad_shape = "[32,1]"},
         MODE_Q8,
         true,
         "is [32,1], but config.json asks for [32]"},
        {{.dtypes = {"BF16"}, .bad = "lm_head.weight", .bad_shape = "[5,64]"},
         MODE_F32,
         false,
         "is [5,64], but config.json asks for [10,32]"},
        {{.dtypes = {"BF16"}, .bad = "lm_head.weight", .bad_shape = "[5,64]"}, MODE_F32, true, NULL},
        {{.dtypes = {"BF16"}, .bad = "model.layers.1.self_attn.o_proj.weight", .bad_dtype = "I16"},
         MODE_F32,
         true,
         "is I16; only BF16, F16, F32 and F64"},
        {{.dtypes = {"F32"}, .bad = "model.norm.weight", .bad_dtype = "U32"},
         MODE_Q4,
         true,
         "tensor \"model.norm.weight\": is U32; only"},
        {{.dtypes = {"F32"}, .nan = "model.layers.1.mlp.gate_proj.weight"},
         MODE_Q8,
         true,
         "tensor \"model.layers.1.mlp.gate_proj.weight\": row 3 has a NaN or an infinity"},
        {{.dtypes = {"F64"}, .nan = "model.embed_tokens.weight"},
         MODE_Q4,
         true,
         "tensor \"model.embed_tokens.weight\": row 3 has a NaN"},
        {{.dtypes = {"F32"}, .nan = "model.embed_tokens.weight"}, MODE_BF16, true, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SafetensorsFile st;
        TransformerWeights w;
        int result = load(&st, &w, &cases[i].making, cases[i].mode, cases[i].tied);
        check(result == (cases[i].refusal ? -1 : 0), "case %zu: %s", i, st.error);
        if (cases[i].refusal && result != 0)
            check(strstr(st.error, cases[i].refusal) && strncmp(st.error, path, strlen(path)) == 0 && !w.storage &&
                      !w.q,
                  "case %zu: %s", i, st.error);
        weights_free(&w);
        safetensors_close(&st);
    }
    Wanted list[COUNT];
    list_model(list);
    for (size_t k = 0; k < COUNT; k++) {
        const Wanted *t = &list[k];
        SafetensorsFile st;
        TransformerWeights w;
        char words[100], shape[64];
        snprintf(words, sizeof words, ": there is no tensor \"%.63s\"", t->name);
        check(load(&st, &w, &(Making){.dtypes = {"F16"}, .missing = t->name}, MODE_F32, false) != 0 &&
                  strstr(st.error, words),
              "%s, not %s", st.error, words);
        safetensors_close(&st);
        snprintf(shape, sizeof shape, t->cols ? "[%zu,%zu,1]" : "[%zu,1]", t->rows, t->cols);
        snprintf(words, sizeof words, "is %s, but config.json asks for", shape);
        check(load(&st, &w, &(Making){.dtypes = {"F16"}, .bad = t->name, .bad_shape = shape}, MODE_F32, false) != 0 &&
                  strstr(st.error, words),
              "%s: %s", t->name, st.error);
        safetensors_close(&st);
    }
    SafetensorsFile st;
    TransformerWeights w = {.mode = MODE_Q8};
    Config config = config_of(true);
    config.dim = config.q_dim = 6;
    config.n_layers = 0;
    write_model(path,
                "{" ENTRY("model.embed_tokens.weight", "F32", "[10,6]", "[0,240]") "," ENTRY(
                    "model.norm.weight", "F32", "[6]", "[240,264]") "}",
                NULL, 264);
    open_file(&st, path);
    check(load_weights(&st, &config, &w) != 0 &&
              strstr(st.error, "rows of 6 numbers; q8 and q4 need a multiple of 32"),
          "%s", st.error);
    safetensors_close(&st);
}

int main(void)
{
    open_folder("weights");
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    test_weights();
    test_same_names(false);
    test_same_names(true);
    test_weights_without_memory(MODE_F32, "BF16");
    test_weights_without_memory(MODE_BF16, "BF16"); /* vectors */
    test_weights_without_memory(MODE_Q8, "F64");
    test_copy_bytes();
    test_release(false);
    test_release(true);
    test_loading_progress();
    test_order_of_reading();
    test_shards();
    test_refused_weights();
    test_refused_without_shapes();
    remove_folder();
    return report("weights");
}
