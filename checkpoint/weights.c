/* Loading weights in the modes that keep no FP32 copy, and checking their shapes in every mode.
 *
 * safetensors_load_weights() is the plain way: every tensor by its name into an array of floats. Here the same names
 * stand in a table, with the shapes that config.json asks for:
 *
 *     norms and biases    float32 in every mode, stacked by layer
 *     matrices, bf16      stay in the mapping, in the file's own type: BF16, F16, F32. Others become float32
 *     matrices, q8, q4    quantized, one after another in w->storage
 *
 * Files are read from their beginning to their end, which is how a disk reads them fastest.
 */
#include "checkpoint/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/wrong_file.h"
#include "kernels/quantize.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define SIZE(field) offsetof(Config, field)
#define PLACE(field) offsetof(TransformerWeights, field)
#define VECTOR SIZE_MAX /* in cols: the tensor is a vector */

/* A tensor's name, its shape as sizes of Config, and its place in TransformerWeights: of a vector the array, of a
 * matrix the view. */
typedef struct {
    const char *name;
    size_t rows, cols, place;
} Row;

static const Row layer_rows[] = {
    {"input_layernorm.weight", SIZE(dim), VECTOR, PLACE(input_layernorm)},
    {"self_attn.q_proj.weight", SIZE(q_dim), SIZE(dim), PLACE(q)},
    {"self_attn.q_proj.bias", SIZE(q_dim), VECTOR, PLACE(q_bias)},
    {"self_attn.k_proj.weight", SIZE(kv_dim), SIZE(dim), PLACE(k)},
    {"self_attn.k_proj.bias", SIZE(kv_dim), VECTOR, PLACE(k_bias)},
    {"self_attn.v_proj.weight", SIZE(kv_dim), SIZE(dim), PLACE(v)},
    {"self_attn.v_proj.bias", SIZE(kv_dim), VECTOR, PLACE(v_bias)},
    {"self_attn.o_proj.weight", SIZE(dim), SIZE(q_dim), PLACE(o)},
    {"post_attention_layernorm.weight", SIZE(dim), VECTOR, PLACE(post_attention_layernorm)},
    {"mlp.gate_proj.weight", SIZE(hidden_dim), SIZE(dim), PLACE(gate)},
    {"mlp.up_proj.weight", SIZE(hidden_dim), SIZE(dim), PLACE(up)},
    {"mlp.down_proj.weight", SIZE(dim), SIZE(hidden_dim), PLACE(down)},
};

/* Outside of the layers. The last one is missing when the head is the embedding. */
static const Row outer_rows[] = {
    {"model.embed_tokens.weight", SIZE(vocab_size), SIZE(dim), PLACE(embedding)},
    {"model.norm.weight", SIZE(dim), VECTOR, PLACE(norm)},
    {"lm_head.weight", SIZE(vocab_size), SIZE(dim), PLACE(head)},
};

static size_t size_of(const Config *c, size_t offset)
{
    size_t size;
    memcpy(&size, (const char *)c + offset, sizeof size);
    return size;
}

/* One tensor that is to be loaded. */
typedef struct {
    SafetensorsTensor tensor;
    size_t rows, cols; /* cols 0: a vector */
    bool in_layer;
    size_t layer, place;
    WeightType type; /* what a matrix becomes */
} Item;

static size_t count_items(const Config *c)
{
    return c->n_layers * COUNT_OF(layer_rows) + COUNT_OF(outer_rows) - (c->tie_word_embeddings ? 1 : 0);
}

/* Describe item i of count_items(), all but its tensor, and write its name. */
static void describe_item(const Config *c, size_t i, Item *item, char name[128])
{
    size_t in_layers = c->n_layers * COUNT_OF(layer_rows);
    bool in_layer = i < in_layers;
    const Row *row = in_layer ? &layer_rows[i % COUNT_OF(layer_rows)] : &outer_rows[i - in_layers];
    *item = (Item){.in_layer = in_layer,
                   .layer = in_layer ? i / COUNT_OF(layer_rows) : 0,
                   .place = row->place,
                   .rows = size_of(c, row->rows),
                   .cols = row->cols == VECTOR ? 0 : size_of(c, row->cols)};
    if (in_layer)
        snprintf(name, 128, "model.layers.%zu.%s", item->layer, row->name);
    else
        snprintf(name, 128, "%s", row->name);
}

static int find_item(SafetensorsFile *st, const Config *c, size_t i, Item *item, char err[512])
{
    char name[128], here[SHAPE_TEXT], asked[SHAPE_TEXT];
    describe_item(c, i, item, name);
    const SafetensorsTensor *t = &item->tensor;
    if (safetensors_find_weight(st, name, &item->tensor) != 0)
        return wrong_file_explain_names(st, name, err);
    const uint64_t shape[2] = {item->rows, item->cols};
    size_t rank = item->cols ? 2 : 1;
    if (t->rank == rank && memcmp(t->shape, shape, rank * sizeof *shape) == 0)
        return 0;
    char path[TEXT_PRINTABLE];
    return fail(err, "%s: tensor \"%s\": is %s, but config.json asks for %s",
                text_printable(t->file->path, strlen(t->file->path), path), name, shape_text(t->shape, t->rank, here),
                shape_text(shape, rank, asked));
}

int weights_check(SafetensorsFile *st, const Config *c, char err[512])
{
    Item item;
    for (size_t i = 0; i < count_items(c); i++)
        if (find_item(st, c, i, &item, err) != 0)
            return -1;
    return 0;
}

/* ---- what becomes of a matrix ------------------------------------------------------------------------------------ */

const char *weights_mode_name(WeightMode mode)
{
    static const char *const names[] = {[MODE_F32] = "f32", [MODE_BF16] = "bf16", [MODE_Q8] = "q8", [MODE_Q4] = "q4"};
    return names[mode];
}

WeightType weights_type(WeightMode mode, Dtype dtype, bool in_layer)
{
    switch (mode) {
    case MODE_F32:
        return WEIGHT_F32;
    case MODE_BF16:
        if (dtype == DTYPE_BF16)
            return WEIGHT_BF16;
        return dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_F32;
    case MODE_Q8:
        return WEIGHT_Q8;
    case MODE_Q4:
        break;
    }
    return in_layer ? WEIGHT_Q4 : WEIGHT_Q8;
}

static bool is_quantized(WeightType type)
{
    return type == WEIGHT_Q8 || type == WEIGHT_Q4;
}

/* Does the matrix stay where it is in the file? */
static bool is_view(WeightMode mode, Dtype dtype)
{
    return mode == MODE_BF16 && (dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F32);
}

uint64_t weights_matrix_bytes(WeightType type, size_t rows, size_t cols)
{
    uint64_t bytes, size = type == WEIGHT_F32 ? 4 : 2;
    if (is_quantized(type))
        return cols % 32 ? UINT64_MAX : quantized_size(type, rows, cols);
    if (__builtin_mul_overflow((uint64_t)rows, (uint64_t)cols, &bytes) || __builtin_mul_overflow(bytes, size, &bytes))
        return UINT64_MAX;
    return bytes;
}

uint64_t weights_copy_bytes(const Config *c, WeightMode mode)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count_items(c) && mode != MODE_BF16; i++) {
        char name[128];
        Item item;
        describe_item(c, i, &item, name);
        WeightType type = item.cols ? weights_type(mode, DTYPE_BF16, item.in_layer) : WEIGHT_F32;
        if (__builtin_add_overflow(total, weights_matrix_bytes(type, item.rows, item.cols ? item.cols : 1), &total))
            return UINT64_MAX;
    }
    return total;
}

/* ---- what is left over ------------------------------------------------------------------------------------------- */

/* Is this the name of a weight? */
static bool is_weight(const char *name, const Config *c)
{
    static const char layers[] = "model.layers.";
    char *end;
    for (size_t i = 0; i < COUNT_OF(outer_rows); i++)
        if (strcmp(name, outer_rows[i].name) == 0)
            return true;
    if (strncmp(name, layers, strlen(layers)) != 0)
        return false;
    unsigned long long layer = strtoull(name + strlen(layers), &end, 10);
    for (size_t i = 0; i < COUNT_OF(layer_rows) && *end == '.' && layer < c->n_layers; i++)
        if (strcmp(end + 1, layer_rows[i].name) == 0)
            return true;
    return false;
}

/* Is t the tensor that is found for this weight? */
static bool stands_for(SafetensorsFile *st, const SafetensorsTensor *t, const char *weight, const Config *c)
{
    SafetensorsTensor found;
    return is_weight(weight, c) && safetensors_find_weight(st, weight, &found) == 0 && found.name == t->name;
}

/* Whether a tensor is a weight of the model; true of what transformers passes over without a word, too. */
static bool is_used(SafetensorsFile *st, const SafetensorsTensor *t, const Config *c)
{
    char longer[128] = "model.", *name = longer + 6;
    if (t->name_length >= sizeof longer - 6)
        return false;
    memcpy(name, t->name, t->name_length);
    if (strlen(name) != t->name_length)
        return false;
    return strstr(name, "rotary_emb.inv_freq") || stands_for(st, t, name, c) || stands_for(st, t, longer, c) ||
           (strncmp(name, longer, 6) == 0 && stands_for(st, t, name + 6, c));
}

size_t weights_unused(SafetensorsFile *st, const Config *c, char sentence[512])
{
    size_t n = 0, used = 0;
    char names[300] = "", shown[TEXT_PRINTABLE];
    for (size_t i = 0; i < st->n_tensors; i++) {
        const SafetensorsTensor *t = &st->tensors[i];
        if (is_used(st, t, c))
            continue;
        if (n++ < 3 && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", n > 1 ? ", " : "",
                                     text_printable(t->name, t->name_length, shown));
    }
    if (n > 0)
        fail(sentence, "the model does not use %zu of the tensors: %s%s", n, names, n > 3 ? ", ..." : "");
    return n;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static int compare_items(const void *left, const void *right)
{
    const SafetensorsTensor *a = &((const Item *)left)->tensor, *b = &((const Item *)right)->tensor;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return 0;
}

/* Bytes of the storage that an item takes, a multiple of 64. */
static size_t stored_bytes(const Item *item, WeightMode mode)
{
    if (!item->cols || is_view(mode, item->tensor.dtype))
        return 0;
    return ((size_t)weights_matrix_bytes(item->type, item->rows, item->cols) + 63) / 64 * 64;
}

/* A vector goes to its row of a stacked array; the norm after the layers is an array of its own. */
static int load_vector(SafetensorsFile *st, TransformerWeights *w, const Item *item, const char *name)
{
    float *values = safetensors_load_float(st, name), **array = (float **)(void *)((char *)w + item->place);
    if (!values)
        return -1;
    if (!item->in_layer) {
        *array = values;
        return 0;
    }
    memcpy(*array + item->layer * item->rows, values, item->rows * sizeof *values);
    free(values);
    return 0;
}

/* A matrix that is not viewed goes to `to`: quantized, or as float32. */
static int load_matrix(SafetensorsFile *st, const Item *item, const char *name, const Matrix *view, void *to,
                       char err[512])
{
    const SafetensorsTensor *t = &item->tensor;
    Matrix from = {safetensors_data(t), weights_type(MODE_BF16, t->dtype, item->in_layer), item->rows, item->cols};
    float *values = NULL;
    size_t bad_row = 0;
    int status = 0;
    if (!is_view(MODE_BF16, t->dtype)) {
        from.data = values = safetensors_load_float(st, name);
        if (!values)
            return fail(err, "%s", st->error);
    }
    if (!is_quantized(item->type))
        memcpy(to, from.data, item->rows * item->cols * sizeof *values);
    else if (quantize_matrix(view, to, &from, &bad_row) != 0)
        status = fail(err, "%s: tensor \"%s\": row %zu has a NaN or an infinity, which q8 and q4 cannot hold",
                      t->file->path, name, bad_row);
    free(values);
    if (!t->file->read_into_memory)
        file_release_pages(safetensors_data(t), (size_t)t->length);
    if (status == 0 && !values && st->progress)
        st->progress(st->progress_context, t->length);
    return status;
}

static int load_item(SafetensorsFile *st, TransformerWeights *w, const Item *item, void *to, char err[512])
{
    const SafetensorsTensor *t = &item->tensor;
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)t->name_length, t->name);
    if (!item->cols)
        return load_vector(st, w, item, name) == 0 ? 0 : fail(err, "%s", st->error);
    void *place = (char *)w + item->place;
    Matrix *view = item->in_layer ? *(Matrix **)place + item->layer : place;
    bool stays = is_view(w->mode, t->dtype);
    *view = (Matrix){stays ? safetensors_data(t) : to, item->type, item->rows, item->cols};
    return stays ? 0 : load_matrix(st, item, name, view, to, err);
}

/* The items in the order of the files, and how much storage they need. */
static int list_items(SafetensorsFile *st, const Config *c, WeightMode mode, Item *items, size_t *storage,
                      char err[512])
{
    size_t n = count_items(c);
    *storage = 0;
    for (size_t i = 0; i < n; i++) {
        Item *item = &items[i];
        if (find_item(st, c, i, item, err) != 0)
            return -1;
        item->type = weights_type(mode, item->tensor.dtype, item->in_layer);
        if (item->cols % 32 && is_quantized(item->type))
            return fail(err, "%s: tensor \"%.*s\": has rows of %zu numbers; q8 and q4 need a multiple of 32",
                        item->tensor.file->path, (int)item->tensor.name_length, item->tensor.name, item->cols);
        *storage += stored_bytes(item, mode); /* cannot overflow: the files fit the address space */
    }
    qsort(items, n, sizeof *items, compare_items);
    return 0;
}

static int load_items(SafetensorsFile *st, const Config *c, TransformerWeights *w, Item *items, char err[512])
{
    size_t storage;
    if (list_items(st, c, w->mode, items, &storage, err) != 0)
        return -1;
    if (weights_allocate(w, c, false) != 0)
        return fail(err, "out of memory for the weights of %zu layers", c->n_layers);
    w->storage = storage ? memory_large(storage, 1) : NULL;
    if (storage && !w->storage)
        return fail(err, "out of memory: the weights take %zu bytes", storage);
    unsigned char *to = w->storage;
    for (size_t i = 0; i < count_items(c); i++) {
        if (load_item(st, w, &items[i], to, err) != 0)
            return -1;
        if (w->storage)
            to += stored_bytes(&items[i], w->mode);
    }
    if (c->tie_word_embeddings)
        w->head = w->embedding;
    return 0;
}

static void expect_files(const SafetensorsFile *st)
{
    if (st->mapped && !st->read_into_memory)
        file_expect_all(st->mapped, st->mapped_size);
    for (size_t i = 0; i < st->n_shards; i++)
        expect_files(&st->shards[i]);
}

int weights_load(SafetensorsFile *st, const Config *c, WeightMode mode, TransformerWeights *w, char err[512])
{
    w->mode = mode;
    if (weights_check(st, c, err) != 0)
        return -1;
    expect_files(st);
    if (mode == MODE_F32)
        return safetensors_load_weights(st, c, w) == 0 ? 0 : fail(err, "%s", st->error);
    Item *items = calloc(count_items(c), sizeof *items);
    int status = items ? load_items(st, c, w, items, err) : fail(err, "out of memory for %zu tensors", count_items(c));
    free(items);
    if (status != 0)
        weights_free(w);
    return status;
}
