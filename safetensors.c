/* Opens, validates, searches and loads one .safetensors file. safetensors.h tells what such a file looks like.
 *
 * Strict aliasing. A tensor's bytes may start at any address, odd ones included, and are an array of unsigned char.
 * Reading a number there as `*(const float *)p` is wrong twice: the address need not be a multiple of 4, and C lets the
 * compiler assume that memory accessed as one type is never accessed as another. So it is with turning the bits of a
 * BF16 into a float by `*(float *)&bits`. Under -O3 such code may see old values, or crash in a vector load that wants
 * an aligned address. memcpy() of sizeof(float) bytes is right in both respects and compiles to a single move:
 *
 *     uint32_t bits = (uint32_t)bf16 << 16;
 *     float value;
 *     memcpy(&value, &bits, sizeof value);
 *
 * So numbers leave the file by memcpy() only, here and in matmul.c, which has the loops for BF16 and F16.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "threads.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a checkpoint's numbers are little-endian and are computed with as they lie: this machine is big-endian"
#endif

#ifndef MADV_HUGEPAGE /* Linux */
#define MADV_HUGEPAGE MADV_NORMAL
#endif

#define MAX_HEADER 100000000 /* the reference library's limit */
#define LAYER_NAME "model.layers.%d.%s"

/* ---- validation -------------------------------------------------------------------------------------------------- */

/* By offset; an empty tensor comes before one that starts at the same byte. */
static int compare_offsets(const void *left, const void *right)
{
    const SafetensorsTensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    int order = memcmp(a->name, b->name, a->name_length < b->name_length ? a->name_length : b->name_length);
    return order ? order : a->name_length < b->name_length ? -1 : 1;
}

/* Most files are in order already. */
static void sort_tensors(SafetensorsFile *st)
{
    size_t i = 1;
    while (i < st->n_tensors && compare_offsets(&st->tensors[i - 1], &st->tensors[i]) < 0)
        i++;
    if (i >= st->n_tensors)
        return;
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_offsets);
    memset(st->lookup, 0, st->lookup_size * sizeof *st->lookup);
    for (i = 0; i < st->n_tensors; i++)
        *safetensors_place(st, st->tensors[i].name, st->tensors[i].name_length) = (uint32_t)i + 1;
}

/* In order of offset the tensors must cover the data part exactly. */
static int check_cover(SafetensorsFile *st)
{
    const char *again = st->repeated_names ? " (a name is there twice: its last entry counts)" : "";
    uint64_t end = 0;
    sort_tensors(st);
    for (size_t i = 0; i < st->n_tensors; i++) {
        SafetensorsTensor *t = &st->tensors[i];
        if (safetensors_check_tensor(st, t) != 0)
            return -1;
        bool hole = t->offset > end;
        if (t->offset != end)
            return safetensors_fail(st, t,
                                    "starts at byte %" PRIu64 " of the data, but what comes before it ends at %" PRIu64
                                    ": %s of %" PRIu64 "%s",
                                    t->offset, end, hole ? "a hole" : "an overlap",
                                    hole ? t->offset - end : end - t->offset, again);
        end += t->length;
    }
    bool cut = end > st->data_size;
    uint64_t more = cut ? end - st->data_size : st->data_size - end;
    if (more > 0)
        return safetensors_fail(
            st, NULL, "%" PRIu64 " byte%s %s: the file has %zu, its header asks for 8 + %zu + %" PRIu64 "%s", more,
            more == 1 ? "" : "s", cut ? "missing at the end" : "too many", st->mapped_size, st->header_len, end, again);
    return 0;
}

/* ---- open, close, find ------------------------------------------------------------------------------------------- */

uint64_t read_u64_le(const unsigned char *p)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

/* With read_into_memory the mapping is anonymous memory, filled here; else the system reads what is touched. */
static int read_part(SafetensorsFile *st, size_t begin, size_t end)
{
    const size_t most = (size_t)16 << 20;
    while (st->read_into_memory && begin < end) {
        ssize_t n = pread(st->fd, st->mapped + begin, end - begin < most ? end - begin : most, (off_t)begin);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return safetensors_fail(st, NULL, "cannot read byte %zu: %s", begin,
                                    n ? strerror(errno) : "the file became shorter");
        begin += (size_t)n;
        if (st->progress)
            st->progress(st->progress_context, begin, st->mapped_size);
    }
    return 0;
}

static int map_file(SafetensorsFile *st)
{
    struct stat info;
    size_t size;
    int fd = st->fd = open(st->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: not to wait at a pipe */
    if (fd < 0 || fstat(fd, &info) != 0)
        return safetensors_fail(st, NULL, "%s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return safetensors_fail(st, NULL, "is %s", S_ISDIR(info.st_mode) ? "a folder, not a file" : "no regular file");
    if (info.st_size < 8)
        return safetensors_fail(st, NULL,
                                "%d byte%s missing: the file has %d, and the length of the header alone takes 8",
                                8 - (int)info.st_size, info.st_size == 7 ? "" : "s", (int)info.st_size);
    if ((uint64_t)info.st_size > SIZE_MAX)
        return safetensors_fail(st, NULL, "has %" PRIu64 " bytes, more than a program of %d bits can address",
                                (uint64_t)info.st_size, (int)(8 * sizeof size));
    size = st->mapped_size = (size_t)info.st_size;
    void *mapped = st->read_into_memory ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                        : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED)
        return safetensors_fail(st, NULL, "cannot map %zu bytes: %s", size, strerror(errno));
    st->mapped = mapped;
    if (st->read_into_memory)
        madvise(mapped, size, MADV_HUGEPAGE);
    return read_part(st, 0, 8);
}

/* The header's length, its text, and the tree of its values. */
static int read_header(SafetensorsFile *st)
{
    uint64_t length = read_u64_le(st->mapped), room = st->mapped_size - 8;
    if (length > MAX_HEADER)
        return safetensors_fail(st, NULL,
                                "the first 8 bytes announce a header of %" PRIu64 " bytes, but at most %d are allowed",
                                length, MAX_HEADER);
    if (length > room)
        return safetensors_fail(
            st, NULL, "%" PRIu64 " byte%s missing at the end: the file has %zu, its header alone takes 8 + %" PRIu64,
            length - room, length - room == 1 ? "" : "s", st->mapped_size, length);
    st->header_len = (size_t)length;
    st->data = st->mapped + 8 + st->header_len; /* data = mapped + 8 + header_len */
    st->data_size = st->mapped_size - 8 - st->header_len;
    st->header_json = malloc(st->header_len + 1);
    if (!st->header_json)
        return safetensors_fail(st, NULL, "not enough memory for a header of %zu bytes", st->header_len);
    if (read_part(st, 8, 8 + st->header_len) != 0)
        return -1;
    memcpy(st->header_json, st->mapped + 8, st->header_len);
    st->header_json[st->header_len] = '\0';
    if (st->header_len > 0 && st->header_json[st->header_len - 1] == '\0')
        return safetensors_fail(st, NULL, "the header is padded with NUL bytes; only spaces are allowed");
    char why[512];
    st->header = json_parse(st->header_json, st->header_len, why);
    if (!st->header)
        return safetensors_fail(st, NULL, "the header is no valid JSON: %.200s", why);
    return st->header->type == JSON_OBJECT ? 0 : safetensors_fail(st, NULL, "the header must be a JSON object");
}

int safetensors_open(const char *path, SafetensorsFile *st)
{
    st->error[0] = '\0';
    st->path = strdup(path);
    st->fd = -1;
    if (!st->path)
        return safetensors_fail(st, NULL, "not enough memory");
    if (map_file(st) == 0 && read_header(st) == 0 && safetensors_read_entries(st) == 0 && check_cover(st) == 0 &&
        read_part(st, 8 + st->header_len, st->mapped_size) == 0)
        return 0;
    safetensors_close(st);
    return -1;
}

void safetensors_close(SafetensorsFile *st)
{
    for (size_t i = 0; i < st->n_shards; i++)
        safetensors_close(&st->shards[i]); /* a shard has no shards */
    free(st->shards);
    free(st->shapes);
    free(st->tensors);
    free(st->lookup);
    json_free(st->header);
    free(st->header_json);
    if (st->mapped)
        munmap(st->mapped, st->mapped_size);
    if (st->path && st->fd >= 0) /* in a zeroed struct 0 is no open file */
        close(st->fd);
    free(st->path);
    SafetensorsFile empty = {.fd = -1,
                             .read_into_memory = st->read_into_memory,
                             .progress = st->progress,
                             .progress_context = st->progress_context};
    memcpy(empty.error, st->error, sizeof empty.error);
    *st = empty;
}

int safetensors_join_shards(SafetensorsFile *st)
{
    size_t n = 0;
    for (size_t i = 0; i < st->n_shards; i++)
        n += st->shards[i].n_tensors;
    if (safetensors_allocate(st, n) != 0)
        return -1;
    for (size_t i = 0; i < st->n_shards; i++)
        for (size_t j = 0; j < st->shards[i].n_tensors; j++) {
            const SafetensorsTensor *t = &st->shards[i].tensors[j];
            uint32_t place = *safetensors_place(st, t->name, t->name_length);
            char shown[SAFETENSORS_PRINTABLE];
            if (place) {
                const char *other = st->tensors[place - 1].file->path;
                return safetensors_fail(st, t, "is also in %s", safetensors_printable(other, strlen(other), shown));
            }
            safetensors_add(st, t);
        }
    return 0;
}

int safetensors_find_n(SafetensorsFile *st, const char *name, size_t name_length, SafetensorsTensor *tensor)
{
    char shown[SAFETENSORS_PRINTABLE];
    uint32_t place = st->lookup ? *safetensors_place(st, name, name_length) : 0;
    if (!place)
        return safetensors_fail(st, NULL, "there is no tensor \"%s\"", safetensors_printable(name, name_length, shown));
    *tensor = st->tensors[place - 1];
    return 0;
}

int safetensors_find(SafetensorsFile *st, const char *name, SafetensorsTensor *tensor)
{
    return safetensors_find_n(st, name, strlen(name), tensor);
}

const unsigned char *safetensors_data(const SafetensorsTensor *tensor)
{
    return tensor->file->data + tensor->offset;
}

/* ---- tensors as float32 ------------------------------------------------------------------------------------------ */

static int check_computable(SafetensorsFile *st, const SafetensorsTensor *t)
{
    if (t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_F32 || t->dtype == DTYPE_F64)
        return 0;
    return safetensors_fail(st, t, "is %s; only BF16, F16, F32 and F64 can be computed with", dtype_name(t->dtype));
}

static void widen(float *out, const unsigned char *in, Dtype dtype, size_t n)
{
    if (dtype == DTYPE_BF16)
        convert_bf16(out, in, n);
    else if (dtype == DTYPE_F16)
        convert_f16(out, in, n);
    else if (dtype == DTYPE_F32)
        memcpy(out, in, n * sizeof *out);
    else /* F64 */
        for (size_t i = 0; i < n; i++) {
            double value;
            memcpy(&value, in + i * sizeof value, sizeof value);
            out[i] = (float)value;
        }
}

/* Gives back the memory of the whole pages in a part of the mapping. They stay in the system's cache of the file and
 * return from there when touched. The page at either end is left: another thread may be reading it, and would bring
 * back much around it. */
static void release_pages(const SafetensorsFile *st, const unsigned char *data, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (size_t)(data - st->mapped);
    size_t begin = (at + page - 1) / page * page, end = (at + length) / page * page;
    if (!st->read_into_memory && begin < end)
        madvise(st->mapped + begin, end - begin, MADV_DONTNEED);
}

typedef struct {
    const SafetensorsTensor *tensor;
    float *out;
    bool release;
} Conversion;

static void convert_piece(void *context, size_t begin, size_t end, int thread)
{
    const Conversion *c = context;
    size_t size = dtype_bits(c->tensor->dtype) / 8;
    const unsigned char *in = safetensors_data(c->tensor) + begin * size;
    (void)thread;
    widen(c->out + begin, in, c->tensor->dtype, end - begin);
    if (c->release)
        release_pages(c->tensor->file, in, (end - begin) * size);
}

/* All of t to out, in parallel. */
static void convert(const SafetensorsTensor *t, float *out, bool release)
{
    Conversion c = {t, out, release};
    threads_for((size_t)t->elements, (size_t)1 << 17, convert_piece, &c);
    if (release)
        release_pages(t->file, safetensors_data(t), (size_t)t->length);
}

static float *load_tensor(SafetensorsFile *st, const SafetensorsTensor *t)
{
    if (check_computable(st, t) != 0)
        return NULL;
    float *out = calloc((size_t)t->elements + 1, sizeof *out);
    if (out)
        convert(t, out, false);
    else
        safetensors_fail(st, t, "not enough memory for %" PRIu64 " numbers", t->elements);
    return out;
}

float *safetensors_load_float(SafetensorsFile *st, const char *name)
{
    SafetensorsTensor t;
    return safetensors_find(st, name, &t) == 0 ? load_tensor(st, &t) : NULL;
}

/* ---- all weights ------------------------------------------------------------------------------------------------- */

/* One tensor's way from the file into TransformerWeights. */
typedef struct {
    SafetensorsTensor tensor;
    WeightType type; /* what it becomes */
    bool view;       /* stays in the mapping */
    uint64_t place;  /* else: where it goes in the storage */
    float **array;   /* gets the address of the place, if the tensor begins an array of floats; else NULL */
    Matrix *matrix;  /* NULL: a vector */
} Load;

typedef struct {
    SafetensorsFile *st;
    TransformerWeights *w;
    size_t n_layers;
    Load *loads;
    size_t n;
    uint64_t used;  /* bytes of the storage; no overflow: the files fit the address space, a number at most doubles */
    uint64_t total; /* bytes of the files */
} Loader;

/* A matrix must be [rows,cols], a vector, whose cols are 0, [rows]. */
static int check_weight(SafetensorsFile *st, const SafetensorsTensor *t, size_t rows, size_t cols)
{
    uint64_t asked[2] = {rows, cols};
    size_t rank = cols ? 2 : 1;
    char here[SHAPE_TEXT], there[SHAPE_TEXT];
    if (t->rank != rank || memcmp(t->shape, asked, rank * sizeof *asked) != 0)
        return safetensors_fail(st, t, "is %s, but config.json asks for %s",
                                safetensors_shape_text(t->shape, t->rank, here),
                                safetensors_shape_text(asked, rank, there));
    return check_computable(st, t);
}

static bool is_quantised(WeightMode mode)
{
    return mode == MODE_Q8 || mode == MODE_Q4;
}

/* What becomes of a matrix. MODE_BF16 keeps the type in the file, but F64, which a Matrix can't have, becomes F32. */
static WeightType weight_type(WeightMode mode, Dtype dtype, bool in_layer)
{
    if (is_quantised(mode))
        return mode == MODE_Q4 && in_layer ? WEIGHT_Q4 : WEIGHT_Q8;
    if (mode == MODE_BF16 && dtype == DTYPE_BF16)
        return WEIGHT_BF16;
    return mode == MODE_BF16 && dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_F32;
}

static int quantise(SafetensorsFile *st, const SafetensorsTensor *t, const Matrix *to, void *place)
{
    Matrix from = {safetensors_data(t), weight_type(MODE_BF16, t->dtype, false), to->rows, to->cols};
    float *widened = t->dtype == DTYPE_F64 ? load_tensor(st, t) : NULL;
    size_t bad_row = 0;
    if (t->dtype == DTYPE_F64 && !widened)
        return -1;
    if (widened)
        from.data = widened;
    int result = matmul_quantize(to, place, &from, &bad_row);
    free(widened);
    release_pages(t->file, safetensors_data(t), (size_t)t->length);
    return result == 0
               ? 0
               : safetensors_fail(st, t, "row %zu has a NaN or an infinity, which q8 and q4 can't hold", bad_row);
}

/* Finds and checks one tensor and gives it its place. Layers of an array of floats follow one another without a gap;
 * all else starts at a multiple of 64 bytes. Outside of the layers, layer is -1. Vectors have no cols and no matrix. */
static int add_weight(Loader *l, const char *name, int layer, size_t rows, size_t cols, float **array, Matrix *matrix)
{
    Load *load = &l->loads[l->n];
    SafetensorsTensor *t = &load->tensor;
    WeightMode mode = matrix ? l->w->mode : MODE_F32;
    if (safetensors_find(l->st, name, t) != 0 || check_weight(l->st, t, rows, cols) != 0)
        return -1;
    if (is_quantised(mode) && cols % 32 != 0)
        return safetensors_fail(l->st, t, "has rows of %zu numbers; q8 and q4 need a multiple of 32", cols);
    if (mode != MODE_F32 || layer <= 0)
        l->used = (l->used + 63) / 64 * 64;
    load->type = weight_type(mode, t->dtype, layer >= 0);
    load->view = mode == MODE_BF16 && t->dtype != DTYPE_F64;
    load->place = l->used;
    load->array = mode == MODE_F32 && layer <= 0 ? array : NULL;
    load->matrix = matrix;
    if (is_quantised(mode))
        l->used += matmul_quantized_size(load->type, rows, cols);
    else if (!load->view)
        l->used += t->elements * sizeof(float);
    l->total += t->length;
    l->n++;
    return 0;
}

/* One tensor of every layer, into an array that is stacked by layer. */
static int load_layered(Loader *l, const char *suffix, size_t rows, size_t cols, float **array, Matrix *matrices)
{
    for (int layer = 0; (size_t)layer < l->n_layers; layer++) {
        char name[96];
        snprintf(name, sizeof name, LAYER_NAME, layer, suffix);
        if (add_weight(l, name, layer, rows, cols, array, matrices ? &matrices[layer] : NULL) != 0)
            return -1;
    }
    return 0;
}

/* All tensors that config.json asks for. */
static int add_all(Loader *l, const Config *c)
{
    TransformerWeights *w = l->w;
    size_t vocab = c->vocab_size, dim = c->dim, q_dim = c->q_dim, kv_dim = c->kv_dim, hidden = c->hidden_dim;
    if (add_weight(l, "model.embed_tokens.weight", -1, vocab, dim, &w->token_embedding_table, &w->embedding) ||
        load_layered(l, "input_layernorm.weight", dim, 0, &w->input_layernorm, NULL) ||
        load_layered(l, "self_attn.q_proj.weight", q_dim, dim, &w->q_proj, w->q) ||
        load_layered(l, "self_attn.q_proj.bias", q_dim, 0, &w->q_bias, NULL) ||
        load_layered(l, "self_attn.k_proj.weight", kv_dim, dim, &w->k_proj, w->k) ||
        load_layered(l, "self_attn.k_proj.bias", kv_dim, 0, &w->k_bias, NULL) ||
        load_layered(l, "self_attn.v_proj.weight", kv_dim, dim, &w->v_proj, w->v) ||
        load_layered(l, "self_attn.v_proj.bias", kv_dim, 0, &w->v_bias, NULL) ||
        load_layered(l, "self_attn.o_proj.weight", dim, q_dim, &w->o_proj, w->o) ||
        load_layered(l, "post_attention_layernorm.weight", dim, 0, &w->post_attention_layernorm, NULL) ||
        load_layered(l, "mlp.gate_proj.weight", hidden, dim, &w->gate_proj, w->gate) ||
        load_layered(l, "mlp.up_proj.weight", hidden, dim, &w->up_proj, w->up) ||
        load_layered(l, "mlp.down_proj.weight", dim, hidden, &w->down_proj, w->down) ||
        add_weight(l, "model.norm.weight", -1, dim, 0, &w->norm, NULL))
        return -1;
    return c->tie_word_embeddings ? 0 : add_weight(l, "lm_head.weight", -1, vocab, dim, &w->lm_head, &w->head);
}

/* The matrices of all layers, and the list of tensors: three outside of the layers, twelve in each. */
static int allocate_lists(Loader *l)
{
    Matrix **fields[7] = {&l->w->q, &l->w->k, &l->w->v, &l->w->o, &l->w->gate, &l->w->up, &l->w->down};
    Matrix *all = calloc(l->n_layers, 7 * sizeof *all);
    l->loads = calloc(l->n_layers + 1, 12 * sizeof *l->loads);
    for (size_t i = 0; i < 7 && all; i++)
        *fields[i] = all + i * l->n_layers;
    return all && l->loads ? 0 : safetensors_fail(l->st, NULL, "not enough memory for %zu layers", l->n_layers);
}

static int allocate_storage(Loader *l)
{
    void *storage = MAP_FAILED;
    if (l->used <= SIZE_MAX)
        storage = mmap(NULL, (size_t)l->used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (storage == MAP_FAILED)
        return safetensors_fail(l->st, NULL, "not enough memory: the weights take %" PRIu64 " bytes", l->used);
    l->w->storage = storage;
    l->w->storage_size = (size_t)l->used;
    madvise(storage, l->w->storage_size, MADV_HUGEPAGE);
    return 0;
}

static int compare_loads(const void *left, const void *right)
{
    const SafetensorsTensor *a = &((const Load *)left)->tensor, *b = &((const Load *)right)->tensor;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* All of the file will be read. The system's cache then holds it in pieces of 2 MiB, if it doesn't yet hold it
 * otherwise: this start and all later ones need 500 entries of the page table where it would be 250,000. */
static void expect_all(const SafetensorsFile *st)
{
    madvise(st->mapped, st->mapped_size, MADV_HUGEPAGE);
}

/* Brings all tensors to their places, in the order of the files, which is how a disk reads them fastest. */
static int run_loads(Loader *l)
{
    uint64_t done = 0;
    qsort(l->loads, l->n, sizeof *l->loads, compare_loads);
    for (Load *load = l->loads; load < l->loads + l->n; load++) {
        const SafetensorsTensor *t = &load->tensor;
        unsigned char *place = (unsigned char *)l->w->storage + load->place;
        if (load == l->loads || t->file != load[-1].tensor.file)
            expect_all(t->file);
        if (load->array)
            *load->array = (float *)place;
        if (load->matrix)
            *load->matrix = (Matrix){load->view ? safetensors_data(t) : place, load->type, (size_t)t->shape[0],
                                     (size_t)t->shape[1]};
        if (load->matrix && is_quantised(l->w->mode)) {
            if (quantise(l->st, t, load->matrix, place) != 0)
                return -1;
        } else if (!load->view) {
            convert(t, (float *)place, true);
        }
        done += t->length;
        if (l->st->progress)
            l->st->progress(l->st->progress_context, done, l->total);
    }
    return 0;
}

/* Tensor                                           field of TransformerWeights  shape
 *
 * model.embed_tokens.weight                        token_embedding_table        [vocab][dim]
 * model.layers.N.input_layernorm.weight            input_layernorm              [layer][dim]
 * model.layers.N.self_attn.q_proj.weight, .bias    q_proj, q_bias               [layer][q_dim][dim], [layer][q_dim]
 * model.layers.N.self_attn.k_proj.weight, .bias    k_proj, k_bias               [layer][kv_dim][dim], [layer][kv_dim]
 * model.layers.N.self_attn.v_proj.weight, .bias    v_proj, v_bias               [layer][kv_dim][dim], [layer][kv_dim]
 * model.layers.N.self_attn.o_proj.weight           o_proj, which has no bias    [layer][dim][q_dim]
 * model.layers.N.post_attention_layernorm.weight   post_attention_layernorm     [layer][dim]
 * model.layers.N.mlp.gate_proj.weight              gate_proj                    [layer][hidden][dim]
 * model.layers.N.mlp.up_proj.weight                up_proj                      [layer][hidden][dim]
 * model.layers.N.mlp.down_proj.weight              down_proj                    [layer][dim][hidden]
 * model.norm.weight                                norm                         [dim]
 * lm_head.weight                                   lm_head                      [vocab][dim]
 *
 * With tie_word_embeddings the head is the embedding, even if there is an lm_head.weight. Each matrix has a Matrix as
 * well, which is all that there is of it in the modes that keep no FP32 copy. */
int safetensors_load_weights(SafetensorsFile *st, const Config *cfg, TransformerWeights *w)
{
    Loader l = {.st = st, .w = w, .n_layers = cfg->n_layers};
    int result = allocate_lists(&l) == 0 && add_all(&l, cfg) == 0 && allocate_storage(&l) == 0 ? run_loads(&l) : -1;
    free(l.loads);
    if (result != 0)
        safetensors_free_weights(w);
    else if (cfg->tie_word_embeddings) {
        w->lm_head = w->token_embedding_table;
        w->head = w->embedding;
    }
    return result;
}

void safetensors_free_weights(TransformerWeights *w)
{
    if (w->storage)
        munmap(w->storage, w->storage_size);
    free(w->q); /* the matrices of all fields */
    *w = (TransformerWeights){.mode = w->mode};
}
