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
 * So numbers leave the file by memcpy() only, here and in kernels/.
 */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/threads.h"
#include "kernels/vector.h"

/* ---- types of numbers, messages ---------------------------------------------------------------------------------- */

/* In the order of Dtype: name, bits of an element. Several elements below a byte must fill whole bytes. */
static const struct {
    char name[12];
    size_t bits;
} dtypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};
_Static_assert(COUNT_OF(dtypes) == DTYPE_COUNT, "a Dtype has no row in the table");

const char *dtype_name(Dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_bits(Dtype dtype)
{
    return dtypes[dtype].bits;
}

int dtype_parse(const char *text, size_t length, Dtype *dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (text_same(dtypes[i].name, strlen(dtypes[i].name), text, length)) {
            *dtype = (Dtype)i;
            return 0;
        }
    return -1;
}

/* Write `PATH: tensor "NAME": sentence` into st->error (without the name if t is NULL) and return -1. */
__attribute__((format(printf, 3, 4))) static int fail_file(SafetensorsFile *st, const SafetensorsTensor *t,
                                                           const char *fmt, ...)
{
    const char *path = t ? t->file->path : st->path;
    char shown[TEXT_PRINTABLE];
    size_t size = sizeof st->error, used;
    used = (size_t)snprintf(st->error, size, "%s: ", path ? text_printable(path, strlen(path), shown) : "file");
    if (t)
        used += (size_t)snprintf(st->error + used, size - used,
                                 "tensor \"%s\": ", text_printable(t->name, t->name_length, shown));
    va_list args;
    va_start(args, fmt);
    vsnprintf(st->error + used, size - used, fmt, args);
    va_end(args);
    return -1;
}

/* ---- the three parts: length, header, data ----------------------------------------------------------------------- */

uint64_t read_u64_le(const unsigned char *b)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)b[i] << (8 * i);
    return v;
}

/* The file as memory: st->mapped[0] is its first byte, and the system reads a page when it is touched. With --no-mmap
 * the whole file is read into memory of its own instead. */
static int map_file(SafetensorsFile *st)
{
    char why[512];
    size_t file_size;
    int fd = st->fd = file_open(st->path, &file_size, why);
    if (fd < 0)
        return fail_file(st, NULL, "%.200s", why);
    st->truncated = file_size < 8;
    if (st->truncated)
        return fail_file(st, NULL, "%zu byte%s missing: the file has %zu, and the length of the header alone takes 8",
                         8 - file_size, file_size == 7 ? "" : "s", file_size);
    void *map = st->read_into_memory ? file_map_copy(fd, file_size, st->progress, st->progress_context)
                                     : mmap(NULL, file_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (!map || map == MAP_FAILED)
        return fail_file(st, NULL, "cannot %s %zu bytes: %s", st->read_into_memory ? "read" : "map", file_size,
                         errno == ENODATA ? "the file became shorter" : strerror(errno));
    st->mapped = map;
    st->mapped_size = file_size;
    return 0;
}

/* Part one, the length, tells where parts two and three begin; part two becomes text and then a tree of JSON values.
 *
 *     mapped            mapped + 8           data = mapped + 8 + header_len         mapped + mapped_size
 *     | header_len (8)  | header             | data, data_size bytes                | */
static int read_header(SafetensorsFile *st)
{
    uint64_t length = read_u64_le(st->mapped), room = st->mapped_size - 8;
    if (length > SAFETENSORS_MAX_HEADER)
        return fail_file(st, NULL,
                         "the first 8 bytes announce a header of %" PRIu64 " bytes, but at most %d are allowed", length,
                         SAFETENSORS_MAX_HEADER);
    if (length > room) {
        st->truncated = true;
        return fail_file(
            st, NULL, "%" PRIu64 " byte%s missing at the end: the file has %zu, its header alone takes 8 + %" PRIu64,
            length - room, length - room == 1 ? "" : "s", st->mapped_size, length);
    }
    st->header_len = (size_t)length;
    st->data = st->mapped + 8 + st->header_len;
    st->data_size = st->mapped_size - 8 - st->header_len;
    st->header_json = malloc(st->header_len + 1);
    if (!st->header_json)
        return fail_file(st, NULL, "out of memory for a header of %zu bytes", st->header_len);
    memcpy(st->header_json, st->mapped + 8, st->header_len);
    st->header_json[st->header_len] = '\0';
    if (st->header_len > 0 && st->header_json[st->header_len - 1] == '\0')
        return fail_file(st, NULL, "the header is padded with NUL bytes; only spaces are allowed");
    char why[512];
    st->header = json_parse(st->header_json, st->header_len, why);
    if (!st->header)
        return fail_file(st, NULL, "the header is not valid JSON: %.200s", why);
    return st->header->type == JSON_OBJECT ? 0 : fail_file(st, NULL, "the header must be a JSON object");
}

/* ---- the header's entries ---------------------------------------------------------------------------------------- */

/* The table of names: open addressing, at most half full. Return the slot that has the name's index, or the empty slot
 * where it would go. */
static uint32_t *lookup_slot(const SafetensorsFile *st, const char *name, size_t length)
{
    for (size_t i = (size_t)hash_bytes(name, length, st->lookup_key);; i++) {
        uint32_t *slot = &st->lookup[i & (st->lookup_size - 1)];
        const SafetensorsTensor *t = *slot ? &st->tensors[*slot - 1] : NULL;
        if (!t || text_same(t->name, t->name_length, name, length))
            return slot;
    }
}

static int allocate_tensors(SafetensorsFile *st, size_t n)
{
    st->lookup_key = hash_new_key();
    st->lookup_size = 2;
    while (st->lookup_size / 2 < n)
        st->lookup_size *= 2;
    st->lookup = calloc(st->lookup_size, sizeof *st->lookup);
    st->tensors = calloc(n + 1, sizeof *st->tensors);
    if (!st->lookup || !st->tensors || n >= UINT32_MAX)
        return fail_file(st, NULL, "out of memory for %zu tensors", n);
    return 0;
}

/* Add t to the list and the table. Return true if it replaced one of that name. */
static bool add_tensor(SafetensorsFile *st, const SafetensorsTensor *t)
{
    uint32_t *slot = lookup_slot(st, t->name, t->name_length);
    bool replaces = *slot;
    if (!replaces)
        *slot = (uint32_t)++st->n_tensors;
    st->tensors[*slot - 1] = *t;
    return replaces;
}

/* An entry is {"dtype": ..., "shape": ..., "data_offsets": ...}; the reference library also takes the array of these
 * three. Return the value of `name`, or NULL if it is missing or there twice. */
static const JsonValue *entry_value(const JsonValue *entry, const char *name, size_t index)
{
    const JsonValue *found = NULL;
    if (entry->type == JSON_ARRAY && entry->length == 3) {
        for (found = entry->child; index > 0; index--)
            found = found->next;
        return found;
    }
    if (entry->type != JSON_OBJECT)
        return NULL;
    for (const JsonValue *v = entry->child; v; v = v->next) {
        if (!json_key_is(v, name))
            continue;
        if (found)
            return NULL;
        found = v;
    }
    return found;
}

/* "F32", or {"F32": null}, which means the same to the reference library. */
static int read_dtype(SafetensorsFile *st, SafetensorsTensor *t, const JsonValue *v)
{
    bool is_object = v->type == JSON_OBJECT && v->length == 1 && v->child->type == JSON_NULL;
    const char *text = is_object ? v->child->key : v->text;
    size_t length = is_object ? v->child->key_length : v->length;
    char shown[TEXT_PRINTABLE];
    if (!is_object && v->type != JSON_STRING)
        return fail_file(st, t, "dtype must be a string");
    if (dtype_parse(text, length, &t->dtype) != 0)
        return fail_file(st, t, "unknown dtype \"%s\"", text_printable(text, length, shown));
    return 0;
}

/* Read an array of sizes into out: whole numbers from 0 to 2^64-1, written as such. 8.0, 8e0 and -0 are refused. */
static int read_sizes(SafetensorsFile *st, const SafetensorsTensor *t, const char *what, const JsonValue *array,
                      uint64_t *out)
{
    char shown[TEXT_PRINTABLE] = "another kind of value";
    if (array->type != JSON_ARRAY)
        return fail_file(st, t, "%s must be an array", what);
    for (const JsonValue *v = array->child; v; v = v->next) {
        if (json_u64(v, out++) == 0)
            continue;
        if (v->type == JSON_INTEGER || v->type == JSON_REAL)
            text_printable(v->text, v->length, shown);
        return fail_file(st, t, "%s must hold whole numbers from 0 to 2^64-1, found %s", what, shown);
    }
    return 0;
}

/* Read an entry of the header into t, its shape into shape[]. Whether the values agree with one another is for
 * check_tensor() to say. */
static int read_entry(SafetensorsFile *st, const JsonValue *entry, uint64_t *shape, SafetensorsTensor *t)
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    const JsonValue *values[3];
    uint64_t offsets[2];
    *t = (SafetensorsTensor){.name = entry->key, .name_length = entry->key_length, .shape = shape, .file = st};
    for (size_t i = 0; i < 3; i++) {
        values[i] = entry_value(entry, names[i], i);
        if (!values[i])
            return fail_file(st, t, "its entry must be an object with exactly one \"%s\"", names[i]);
    }
    if (values[2]->type == JSON_ARRAY && values[2]->length != 2)
        return fail_file(st, t, "data_offsets must be two numbers, found %zu", values[2]->length);
    if (read_dtype(st, t, values[0]) != 0 || read_sizes(st, t, names[1], values[1], shape) != 0 ||
        read_sizes(st, t, names[2], values[2], offsets) != 0)
        return -1;
    t->rank = values[1]->length;
    t->offset = offsets[0];
    t->length = offsets[1] - offsets[0]; /* wraps if they are reversed; check_tensor() notices */
    return 0;
}

static int check_metadata(SafetensorsFile *st, const JsonValue *metadata)
{
    char shown[TEXT_PRINTABLE];
    if (metadata->type != JSON_OBJECT && metadata->type != JSON_NULL)
        return fail_file(st, NULL, "__metadata__ must be an object");
    for (const JsonValue *v = metadata->child; v; v = v->next)
        if (v->type != JSON_STRING)
            return fail_file(st, NULL, "__metadata__ must map text to text; \"%s\" has another value",
                             text_printable(v->key, v->key_length, shown));
    return 0;
}

/* Fill st->tensors from st->header. Of entries with the same name the last counts, as in the reference library. */
static int read_entries(SafetensorsFile *st)
{
    const JsonValue *metadata = NULL;
    /* a size and the comma or bracket behind it take at least two bytes of the header */
    uint64_t *shape = st->shapes = malloc(st->header_len / 2 * sizeof *shape);
    if (!shape)
        return fail_file(st, NULL, "out of memory for a header of %zu bytes", st->header_len);
    if (allocate_tensors(st, st->header->length) != 0)
        return -1;
    for (const JsonValue *v = st->header->child; v; v = v->next) {
        SafetensorsTensor t;
        if (json_key_is(v, "__metadata__")) {
            if (metadata)
                return fail_file(st, NULL, "__metadata__ is there twice");
            if (check_metadata(st, metadata = v) != 0)
                return -1;
            continue;
        }
        if (read_entry(st, v, shape, &t) != 0)
            return -1;
        shape += t.rank;
        if (add_tensor(st, &t) && !st->repeated_name)
            st->repeated_name = v;
    }
    return 0;
}

/* ---- do the tensors cover the data? ------------------------------------------------------------------------------ */

/* Compute the number of elements (the product of the shape; 1 for a scalar), and check that data_offsets span exactly
 * the bytes that they need. */
static int check_tensor(SafetensorsFile *st, SafetensorsTensor *t)
{
    uint64_t end = t->offset + t->length, bits;
    const char *dtype = dtype_name(t->dtype);
    char shape[SHAPE_TEXT];
    shape_text(t->shape, t->rank, shape);
    if (end < t->offset)
        return fail_file(st, t, "data_offsets [%" PRIu64 ", %" PRIu64 ") end before they begin", t->offset, end);
    bool overflow = false;
    t->elements = 1;
    for (size_t i = 0; i < t->rank && !overflow; i++) /* in order: [0,2^63,2] fits, [2^63,2,0] does not */
        overflow = __builtin_mul_overflow(t->elements, t->shape[i], &t->elements);
    if (overflow || __builtin_mul_overflow(t->elements, (uint64_t)dtype_bits(t->dtype), &bits))
        return fail_file(st, t, "the size of %s %s does not fit 64 bits", dtype, shape);
    if (bits % 8 != 0)
        return fail_file(st, t, "%s %s takes %" PRIu64 " bits, not a whole number of bytes", dtype, shape, bits);
    if (bits / 8 != t->length)
        return fail_file(st, t,
                         "data_offsets [%" PRIu64 ", %" PRIu64 ") hold %" PRIu64 " bytes, but %s %s needs %" PRIu64,
                         t->offset, end, t->length, dtype, shape, bits / 8);
    return 0;
}

/* By offset. At the same offset an empty tensor comes first, and empty ones are in order of their names. */
static int compare_offsets(const void *left, const void *right)
{
    const SafetensorsTensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return text_compare(a->name, a->name_length, b->name, b->name_length);
}

/* Bring the tensors in order of offset, which most files have already, and the table of names with them. */
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
        *lookup_slot(st, st->tensors[i].name, st->tensors[i].name_length) = (uint32_t)i + 1;
}

/* In order of offset each tensor must begin where the one before it ends, the first at byte 0, and the last must end
 * with the file. So no byte belongs to two tensors, and none can hide between them. */
static int check_cover(SafetensorsFile *st)
{
    const char *again = st->repeated_name ? " (a name is there twice: its last entry counts)" : "";
    uint64_t end = 0;
    sort_tensors(st);
    for (size_t i = 0; i < st->n_tensors; i++) {
        SafetensorsTensor *t = &st->tensors[i];
        if (check_tensor(st, t) != 0)
            return -1;
        bool hole = t->offset > end;
        if (t->offset != end)
            return fail_file(st, t,
                             "starts at byte %" PRIu64 " of the data, but what comes before it ends at %" PRIu64
                             ": %s of %" PRIu64 "%s",
                             t->offset, end, hole ? "a hole" : "an overlap", hole ? t->offset - end : end - t->offset,
                             again);
        end += t->length;
    }
    st->truncated = end > st->data_size;
    uint64_t more = st->truncated ? end - st->data_size : st->data_size - end;
    if (more > 0)
        return fail_file(st, NULL,
                         "%" PRIu64 " byte%s %s: the file has %zu, its header asks for 8 + %zu + %" PRIu64 "%s", more,
                         more == 1 ? "" : "s", st->truncated ? "missing at the end" : "too many", st->mapped_size,
                         st->header_len, end, again);
    return 0;
}

/* ---- open, close, find ------------------------------------------------------------------------------------------- */

int safetensors_open(const char *path, SafetensorsFile *st)
{
    st->error[0] = '\0';
    st->truncated = false;
    st->path = strdup(path);
    st->fd = -1;
    if (!st->path)
        return fail_file(st, NULL, "out of memory");
    if (map_file(st) == 0 && read_header(st) == 0 && read_entries(st) == 0 && check_cover(st) == 0)
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
    if (st->path && st->fd >= 0) /* a zeroed struct has fd 0 but opened nothing */
        close(st->fd);
    free(st->path);
    SafetensorsFile empty = {.fd = -1,
                             .read_into_memory = st->read_into_memory,
                             .progress = st->progress,
                             .progress_context = st->progress_context,
                             .truncated = st->truncated};
    memcpy(empty.error, st->error, sizeof empty.error);
    *st = empty;
}

int safetensors_join_shards(SafetensorsFile *st)
{
    size_t n = 0;
    for (size_t i = 0; i < st->n_shards; i++)
        n += st->shards[i].n_tensors;
    if (allocate_tensors(st, n) != 0)
        return -1;
    for (size_t i = 0; i < st->n_shards; i++)
        for (size_t j = 0; j < st->shards[i].n_tensors; j++) {
            const SafetensorsTensor *t = &st->shards[i].tensors[j];
            uint32_t found = *lookup_slot(st, t->name, t->name_length);
            char shown[TEXT_PRINTABLE];
            if (found) {
                const char *other = st->tensors[found - 1].file->path;
                return fail_file(st, t, "is also in %s", text_printable(other, strlen(other), shown));
            }
            add_tensor(st, t);
        }
    return 0;
}

int safetensors_find_n(SafetensorsFile *st, const char *name, size_t name_length, SafetensorsTensor *tensor)
{
    char shown[TEXT_PRINTABLE];
    uint32_t found = st->lookup ? *lookup_slot(st, name, name_length) : 0;
    if (!found) {
        fail_file(st, NULL, "there is no tensor \"%s\"", text_printable(name, name_length, shown));
        return -1;
    }
    *tensor = st->tensors[found - 1];
    return 0;
}

int safetensors_find(SafetensorsFile *st, const char *name, SafetensorsTensor *tensor)
{
    return safetensors_find_n(st, name, strlen(name), tensor);
}

int safetensors_find_weight(SafetensorsFile *st, const char *name, SafetensorsTensor *tensor)
{
    char longer[256];
    bool in_model = strncmp(name, "model.", 6) == 0;
    snprintf(longer, sizeof longer, "model.%s", name);
    if (safetensors_find(st, name, tensor) == 0 || safetensors_find(st, longer, tensor) == 0 ||
        (in_model && safetensors_find(st, name + 6, tensor) == 0))
        return 0;
    if (st->head_is_embedding && strcmp(name, "model.embed_tokens.weight") == 0)
        return safetensors_find_weight(st, "lm_head.weight", tensor);
    return safetensors_find(st, name, tensor); /* for its sentence */
}

const unsigned char *safetensors_data(const SafetensorsTensor *tensor)
{
    return tensor->file->data + tensor->offset;
}

/* ---- tensors as float32 ------------------------------------------------------------------------------------------ */

#define CHUNK ((size_t)1 << 17) /* elements that a thread converts at a time */

static int read_floats(SafetensorsFile *st, const SafetensorsTensor *tensor, float *dst);

typedef struct {
    SafetensorsFile *st;
    const SafetensorsTensor *tensor;
    float *dst;
} Reading;

/* Release the pages of a tensor that was read; they stay in the page cache. */
static void release_pages(const SafetensorsTensor *tensor)
{
    if (!tensor->file->read_into_memory)
        file_release_pages(safetensors_data(tensor), (size_t)tensor->length);
}

/* Convert elements [begin, end), described as a shorter tensor. */
static void read_chunk(void *context, size_t begin, size_t end, int thread)
{
    const Reading *r = context;
    size_t size = dtype_bits(r->tensor->dtype) / 8;
    SafetensorsTensor chunk = *r->tensor;
    (void)thread;
    chunk.offset += begin * size;
    chunk.elements = end - begin;
    chunk.length = chunk.elements * size;
    read_floats(r->st, &chunk, r->dst + begin);
}

/* A long tensor: the threads convert its chunks. An empty chunk is converted first, so that an unsupported dtype fails
 * here. */
static int read_chunks(SafetensorsFile *st, const SafetensorsTensor *tensor, float *dst)
{
    Reading reading = {st, tensor, dst};
    SafetensorsTensor empty = *tensor;
    empty.elements = empty.length = 0;
    if (read_floats(st, &empty, dst) != 0)
        return -1;
    threads_for((size_t)tensor->elements, CHUNK, read_chunk, &reading);
    release_pages(tensor); /* also the pages at the ends of chunks, which no chunk could release */
    return 0;
}

/* Convert a whole tensor to float32 at dst [elements], from whatever dtype it has. All weights that become float32 pass
 * here: a dtype that is added here works in every mode. The pages of the mapping that were read are released, so that
 * loading never takes much more memory than the float32 copy. */
static int read_floats(SafetensorsFile *st, const SafetensorsTensor *tensor, float *dst)
{
    const unsigned char *src = safetensors_data(tensor);
    size_t n = (size_t)tensor->elements;
    if (n > CHUNK)
        return read_chunks(st, tensor, dst);
    switch (tensor->dtype) {
    case DTYPE_BF16: /* the upper half of a float32 */
        for (size_t i = 0; i < n; i++) {
            uint16_t b;
            memcpy(&b, src + 2 * i, sizeof b);
            uint32_t bits = (uint32_t)b << 16;
            memcpy(&dst[i], &bits, sizeof bits);
        }
        break;
    case DTYPE_F16: /* f16_to_f32() in kernels/internal.h: subnormals, infinities, NaN */
        convert_f16(dst, src, n);
        break;
    case DTYPE_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case DTYPE_F64: /* rounded */
        for (size_t i = 0; i < n; i++) {
            double value;
            memcpy(&value, src + i * sizeof value, sizeof value);
            dst[i] = (float)value;
        }
        break;
    default:
        return fail_file(st, tensor, "is %s; only BF16, F16, F32 and F64 can be computed with",
                         dtype_name(tensor->dtype));
    }
    release_pages(tensor);
    return 0;
}

static void report_progress(const SafetensorsFile *st, const SafetensorsTensor *tensor)
{
    if (st->progress)
        st->progress(st->progress_context, tensor->length);
}

float *safetensors_load_float(SafetensorsFile *st, const char *name)
{
    SafetensorsTensor t;
    if (safetensors_find_weight(st, name, &t) != 0)
        return NULL;
    float *out = memory_large((size_t)t.elements, sizeof *out);
    if (!out) {
        fail_file(st, &t, "out of memory for %" PRIu64 " numbers", t.elements);
        return NULL;
    }
    if (read_floats(st, &t, out) != 0) {
        free(out);
        return NULL;
    }
    report_progress(st, &t);
    return out;
}

/* ---- all weights ------------------------------------------------------------------------------------------------- */

#define LAYER_NAME(name, size, layer, suffix) snprintf(name, size, "model.layers.%d.%s", layer, suffix)

static int find_sized(SafetensorsFile *st, const char *name, size_t elements, SafetensorsTensor *t)
{
    if (safetensors_find_weight(st, name, t) != 0)
        return -1;
    if (t->elements != elements)
        return fail_file(st, t, "has %" PRIu64 " numbers, but config.json asks for %zu", t->elements, elements);
    return 0;
}

/* One tensor of every layer, stacked: dst [n_layers][each_floats]. The chapter reads each layer into a fresh array and
 * copies that to dst + l * each_floats; here the numbers are converted right there, which saves the copy. */
static int load_layered(SafetensorsFile *st, float *dst, const char *suffix, int n_layers, size_t each_floats)
{
    char name[256];
    for (int l = 0; l < n_layers; l++) {
        SafetensorsTensor t;
        LAYER_NAME(name, sizeof(name), l, suffix); /* "model.layers.{l}.{suffix}" */
        if (find_sized(st, name, each_floats, &t) != 0 || read_floats(st, &t, dst + (size_t)l * each_floats) != 0)
            return -1;
        report_progress(st, &t);
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
 * With tie_word_embeddings the head is the embedding, even if there is an lm_head.weight. Some files have the same
 * tensors under other names: see safetensors_find_weight(). */
int safetensors_load_weights(SafetensorsFile *st, const Config *cfg, TransformerWeights *w)
{
    size_t dim = cfg->dim, q_dim = cfg->q_dim, kv_dim = cfg->kv_dim, hidden = cfg->hidden_dim, vocab = cfg->vocab_size;
    int n = (int)cfg->n_layers;
    SafetensorsTensor t;
    if (find_sized(st, "model.embed_tokens.weight", vocab * dim, &t) != 0 ||
        find_sized(st, "model.norm.weight", dim, &t) != 0 ||
        (!cfg->tie_word_embeddings && find_sized(st, "lm_head.weight", vocab * dim, &t) != 0))
        return -1;
    if (weights_allocate(w, cfg, true) != 0)
        return fail_file(st, NULL, "out of memory for the weights of %d layers", n);

    w->token_embedding_table = safetensors_load_float(st, "model.embed_tokens.weight");
    w->norm = safetensors_load_float(st, "model.norm.weight");
    w->lm_head = cfg->tie_word_embeddings ? w->token_embedding_table : safetensors_load_float(st, "lm_head.weight");
    if (!w->token_embedding_table || !w->norm || !w->lm_head ||
        load_layered(st, w->input_layernorm, "input_layernorm.weight", n, dim) != 0 ||
        load_layered(st, w->q_proj, "self_attn.q_proj.weight", n, q_dim * dim) != 0 ||
        load_layered(st, w->q_bias, "self_attn.q_proj.bias", n, q_dim) != 0 ||
        load_layered(st, w->k_proj, "self_attn.k_proj.weight", n, kv_dim * dim) != 0 ||
        load_layered(st, w->k_bias, "self_attn.k_proj.bias", n, kv_dim) != 0 ||
        load_layered(st, w->v_proj, "self_attn.v_proj.weight", n, kv_dim * dim) != 0 ||
        load_layered(st, w->v_bias, "self_attn.v_proj.bias", n, kv_dim) != 0 ||
        load_layered(st, w->o_proj, "self_attn.o_proj.weight", n, dim * q_dim) != 0 ||
        load_layered(st, w->post_attention_layernorm, "post_attention_layernorm.weight", n, dim) != 0 ||
        load_layered(st, w->gate_proj, "mlp.gate_proj.weight", n, hidden * dim) != 0 ||
        load_layered(st, w->up_proj, "mlp.up_proj.weight", n, hidden * dim) != 0 ||
        load_layered(st, w->down_proj, "mlp.down_proj.weight", n, dim * hidden) != 0) {
        weights_free(w);
        return -1;
    }
    weights_view_arrays(w, cfg);
    return 0;
}
