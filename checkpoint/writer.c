#include "checkpoint/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* A member of one of the metadata objects. Of equal keys the lowest rank counts. */
typedef struct {
    const JsonValue *member;
    size_t rank;
} Meta;

static int compare_meta(const void *left, const void *right)
{
    const Meta *a = left, *b = right;
    int order = text_compare(a->member->key, a->member->key_length, b->member->key, b->member->key_length);
    if (order != 0)
        return order;
    return a->rank < b->rank ? -1 : 1;
}

const JsonValue **writer_join_metadata(const JsonValue *const *objects, size_t n_objects, size_t *n)
{
    size_t room = 1, count = 0;
    for (size_t i = 0; i < n_objects; i++)
        room += objects[i] ? objects[i]->length : 0;
    Meta *all = calloc(room, sizeof *all);
    const JsonValue **joined = calloc(room, sizeof *joined);
    if (!all || !joined) {
        free(all);
        free(joined);
        return NULL;
    }
    for (size_t i = 0; i < n_objects; i++) {
        size_t rank = objects[i] ? count + objects[i]->length : 0;
        for (const JsonValue *v = objects[i] ? objects[i]->child : NULL; v; v = v->next)
            all[count++] = (Meta){v, rank--};
    }
    qsort(all, count, sizeof *all, compare_meta);
    *n = 0;
    for (size_t i = 0; i < count; i++) {
        const JsonValue *v = all[i].member, *before = *n ? joined[*n - 1] : NULL;
        if (!before || text_compare(v->key, v->key_length, before->key, before->key_length) != 0)
            joined[(*n)++] = v;
    }
    free(all);
    return joined;
}

/* Print "__metadata__":{...}; nothing if there is no member. */
static void print_metadata(FILE *out, const WriterContent *c)
{
    for (size_t i = 0; i < c->n_metadata; i++) {
        const JsonValue *v = c->metadata[i];
        fputs(i ? "," : "\"__metadata__\":{", out);
        json_write_string(out, v->key, v->key_length);
        fputc(':', out);
        json_write_string(out, v->text, v->length);
    }
    fputs(c->n_metadata ? "}" : "", out);
}

static void print_entry(FILE *out, const SafetensorsTensor *t, uint64_t offset)
{
    json_write_string(out, t->name, t->name_length);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":", dtype_name(t->dtype));
    shape_print(out, t->shape, t->rank);
    fprintf(out, ",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + t->length);
}

/* A tensor of the file, and its place among those that were given. */
typedef struct {
    const SafetensorsTensor *tensor;
    size_t given;
} Placed;

static int compare_placed(const void *left, const void *right)
{
    const Placed *a = left, *b = right;
    size_t x = dtype_bits(a->tensor->dtype), y = dtype_bits(b->tensor->dtype);
    if (x != y)
        return x > y ? -1 : 1;
    return a->given < b->given ? -1 : 1;
}

static void print_header(FILE *out, const WriterContent *c, const Placed *order)
{
    uint64_t offset = 0;
    fputs("12345678{", out); /* room for the length */
    print_metadata(out, c);
    for (size_t i = 0; i < c->n; offset += order[i++].tensor->length) {
        fputs(c->n_metadata || i ? "," : "", out);
        print_entry(out, order[i].tensor, offset);
    }
    fputc('}', out);
    for (long length = ftell(out); length % 8 != 0; length++)
        fputc(' ', out);
}

/* Return the length and the header, padded, as a fresh text of *size bytes. */
static char *make_header(const char *path, const WriterContent *c, const Placed *order, size_t *size, char err[512])
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (out)
        print_header(out, c, order);
    if (!out || text_close_stream(out, &text) != 0) {
        fail(err, "%s: out of memory for the header", path);
        free(text);
        return NULL;
    }
    uint64_t length = *size - 8;
    if (length > SAFETENSORS_MAX_HEADER) {
        fail(err, "%s: the header would have %" PRIu64 " bytes; at most %d are allowed", path, length,
             SAFETENSORS_MAX_HEADER);
        free(text);
        return NULL;
    }
    memcpy(text, &length, 8); /* little-endian, as the machine is */
    return text;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static int copy_tensor(const WriterContent *c, const SafetensorsTensor *t, FileBuffer *out, char err[512])
{
    uint64_t from = 8 + t->file->header_len + t->offset, to = out->offset;
    out->offset += t->length;
    if (file_copy(out->fd, to, t->file->fd, from, t->length, c->progress, c->progress_context) == 0)
        return 0;
    if (errno == ECANCELED)
        return fail(err, "interrupted; nothing was written");
    if (errno == ENODATA)
        return fail(err, "%s became shorter while it was copied", t->file->path);
    return fail(err, "copying from %s: %s", t->file->path, strerror(errno));
}

static int write_tensors(const NewFile *f, const WriterContent *c, const Placed *order, uint64_t offset, char err[512])
{
    FileBuffer out = {.fd = f->fd, .offset = offset};
    int status = 0;
    for (size_t i = 0; i < c->n && status == 0; i++)
        status = c->fill ? c->fill(c->context, order[i].given, &out, err) : copy_tensor(c, order[i].tensor, &out, err);
    if (status == 0 && file_buffer_flush(&out) != 0)
        status = fail(err, "%s: %s", f->part, strerror(errno));
    free(out.bytes);
    return status;
}

static int write_file(NewFile *f, const char *path, const WriterContent *c, const Placed *order, const char *header,
                      size_t size, char err[512])
{
    uint64_t end = size;
    for (size_t i = 0; i < c->n; i++)
        end += order[i].tensor->length;
    if (new_file_open(f, path, c->replace, err) != 0)
        return -1;
    if (file_write_at(f->fd, header, size, 0) != 0 || file_set_size(f->fd, end) != 0)
        return fail(err, "%s: %s", f->part, strerror(errno));
    if (write_tensors(f, c, order, size, err) != 0 || new_file_finish(f, err) != 0)
        return -1;
    SafetensorsFile st = {0}; /* what does the reader think of it? */
    if (safetensors_open(f->part, &st) != 0)
        return fail(err, "%s", st.error);
    bool complete = st.n_tensors == c->n && !st.repeated_name;
    safetensors_close(&st);
    return complete ? 0 : fail(err, "%s: a name would be there twice", path);
}

int writer_write(NewFile *f, const char *path, const WriterContent *c, char err[512])
{
    size_t size;
    for (size_t i = 0; i < c->n; i++)
        if (text_compare(c->tensors[i]->name, c->tensors[i]->name_length, "__metadata__", 12) == 0)
            return fail(err, "%s: a tensor cannot be called \"__metadata__\"", path);
    Placed *order = calloc(c->n + 1, sizeof *order);
    if (!order)
        return fail(err, "%s: out of memory for %zu tensors", path, c->n);
    for (size_t i = 0; i < c->n; i++)
        order[i] = (Placed){c->tensors[i], i};
    qsort(order, c->n, sizeof *order, compare_placed);
    char *header = make_header(path, c, order, &size, err);
    int status = header ? write_file(f, path, c, order, header, size, err) : -1;
    free(header);
    free(order);
    return status;
}

static int check_other(const char *path, const char *input, char err[512])
{
    char shown[TEXT_PRINTABLE], other[TEXT_PRINTABLE];
    return file_same(path, input) ? fail(err, "%s is the same file as the input %s", path_printable(path, shown),
                                         path_printable(input, other))
                                  : 0;
}

int writer_check_target(const char *path, const Checkpoint *input, char err[512])
{
    if (!file_exists(path))
        return 0;
    if (input->index_path && check_other(path, input->index_path, err) != 0)
        return -1;
    for (size_t i = 0; i < checkpoint_file_count(input); i++)
        if (check_other(path, checkpoint_file(input, i)->path, err) != 0)
            return -1;
    for (size_t i = 0; i < CHECKPOINT_COMPANIONS; i++) {
        char *file = path_join(input->directory, checkpoint_companions[i]);
        int status = file ? check_other(path, file, err) : fail(err, "%s: out of memory", path);
        free(file);
        if (status != 0)
            return -1;
    }
    return 0;
}
