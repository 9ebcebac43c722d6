#include "checkpoint/patch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/threads.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/tensor.h"
#include "checkpoint/writer.h"

/* ---- writing a patch --------------------------------------------------------------------------------------------- */

/* A tensor of both models, and the two that the patch has for it. */
typedef struct {
    const SafetensorsTensor *a;
    SafetensorsTensor b, ranges, bytes;
    uint64_t ranges_shape[2], bytes_shape[1];
    char *names; /* of both */
} Delta;

typedef struct {
    Delta *deltas;                     /* [n] all tensors at first, then those that differ */
    const SafetensorsTensor **tensors; /* [2 n] of the patch */
    size_t n;
    Digest *digests;           /* [tensors of a model] */
    char base[65], result[65]; /* fingerprints */
} Patch;

/* Pair the tensors by their names. What a patch cannot express is refused. */
static int pair_tensors(Patch *p, const Checkpoint *a, Checkpoint *b, char err[512])
{
    if (checkpoint_tensor_count(b) != p->n)
        return fail(err, "%s has %zu tensors, %s %zu: a patch changes bytes, not names", a->argument, p->n, b->argument,
                    checkpoint_tensor_count(b));
    for (size_t i = 0; i < p->n; i++) {
        const SafetensorsTensor *t = p->deltas[i].a = checkpoint_tensor(a, i);
        SafetensorsTensor *other = &p->deltas[i].b;
        if (safetensors_find_n(&b->st, t->name, t->name_length, other) != 0)
            return tensor_fail(err, NULL, t, "it is not in %s: a patch changes bytes, not names", b->argument);
        if (t->dtype != other->dtype || !tensor_same_shape(t, other))
            return tensor_fail(err, NULL, t, "it has another dtype or shape in %s: a patch changes bytes only",
                               b->argument);
    }
    return 0;
}

static void count_changes(void *context, size_t begin, size_t end, int thread)
{
    (void)thread;
    for (Delta *d = (Delta *)context + begin; d < (Delta *)context + end; d++) {
        const unsigned char *a = safetensors_data(d->a), *b = safetensors_data(&d->b);
        for (size_t from, to = 0; edit_next_change(a, b, (size_t)d->a->length, &from, &to);) {
            d->ranges_shape[0]++;
            d->bytes_shape[0] += to - from;
        }
    }
}

/* Describe the patch's tensors for a delta whose changes are counted. */
static int describe_delta(Delta *d, char err[512])
{
    size_t length = d->a->name_length;
    d->names = malloc(2 * length + 13);
    if (!d->names)
        return tensor_fail(err, NULL, d->a, "out of memory");
    memcpy(d->names, d->a->name, length);
    memcpy(d->names + length, ".ranges", 7);
    memcpy(d->names + length + 7, d->a->name, length);
    memcpy(d->names + 2 * length + 7, ".bytes", 6);
    d->ranges_shape[1] = 2;
    d->ranges = (SafetensorsTensor){.name = d->names,
                                    .name_length = length + 7,
                                    .dtype = DTYPE_U64,
                                    .rank = 2,
                                    .shape = d->ranges_shape,
                                    .length = 16 * d->ranges_shape[0]};
    d->bytes = (SafetensorsTensor){.name = d->names + length + 7,
                                   .name_length = length + 6,
                                   .dtype = DTYPE_U8,
                                   .rank = 1,
                                   .shape = d->bytes_shape,
                                   .length = d->bytes_shape[0]};
    return 0;
}

/* Drop the deltas of tensors that do not differ, and describe the others. */
static int describe_deltas(Patch *p, PatchSize *size, char err[512])
{
    size_t kept = 0;
    threads_for(p->n, 1, count_changes, p->deltas);
    for (size_t i = 0; i < p->n; i++)
        if (p->deltas[i].ranges_shape[0] > 0)
            p->deltas[kept++] = p->deltas[i];
    p->n = kept;
    for (size_t i = 0; i < p->n; i++) {
        Delta *d = &p->deltas[i];
        if (describe_delta(d, err) != 0)
            return -1;
        p->tensors[2 * i] = &d->ranges;
        p->tensors[2 * i + 1] = &d->bytes;
        size->tensors++;
        size->ranges += d->ranges_shape[0];
        size->bytes += d->bytes_shape[0];
    }
    return 0;
}

/* A WriterFill: tensors 2i and 2i + 1 are ranges and bytes of delta i. */
static int fill_delta(void *context, size_t tensor, FileBuffer *out, char err[512])
{
    const Delta *d = (const Delta *)context + tensor / 2;
    const unsigned char *a = safetensors_data(d->a), *b = safetensors_data(&d->b);
    for (size_t from, to = 0; edit_next_change(a, b, (size_t)d->a->length, &from, &to);) {
        const uint64_t range[2] = {from, to - from};
        int status = tensor % 2 ? file_buffer_put(out, b + from, to - from) : file_buffer_put(out, range, sizeof range);
        if (status != 0)
            return fail(err, "writing the patch: %s", strerror(errno));
    }
    return 0;
}

static JsonValue member(const char *key, const char *text)
{
    return (JsonValue){
        .type = JSON_STRING, .key = key, .key_length = (uint32_t)strlen(key), .text = text, .length = strlen(text)};
}

static int write_file(const Patch *p, const Checkpoint *a, const Checkpoint *b, const char *path, bool replace,
                      char err[512])
{
    const JsonValue base = member("base", p->base), format = member("format", "run-patch"),
                    result = member("result", p->result), version = member("version", "1");
    WriterContent content = {.tensors = p->tensors,
                             .n = 2 * p->n,
                             .metadata = (const JsonValue *const[]){&base, &format, &result, &version},
                             .n_metadata = 4,
                             .fill = fill_delta,
                             .context = p->deltas,
                             .replace = replace};
    NewFile f = {.fd = -1};
    int status = writer_write(&f, path, &content, err);
    bool unchanged = status == 0 && checkpoint_check_unchanged(a, err) == 0 && checkpoint_check_unchanged(b, err) == 0;
    status = unchanged ? new_files_publish(&f, 1, err) : -1;
    new_file_end(&f);
    return status;
}

static int write_patch(Patch *p, Checkpoint *a, Checkpoint *b, const char *path, bool replace, FileProgress *progress,
                       void *context, PatchSize *size, char err[512])
{
    if (writer_check_target(path, a, err) != 0 || writer_check_target(path, b, err) != 0 ||
        edit_keep_off(a, err) != 0 || edit_keep_off(b, err) != 0 || pair_tensors(p, a, b, err) != 0 ||
        fingerprint_compute(a, p->digests, p->base, progress, context, err) != 0 ||
        fingerprint_compute(b, p->digests, p->result, progress, context, err) != 0 ||
        describe_deltas(p, size, err) != 0)
        return -1;
    return write_file(p, a, b, path, replace, err);
}

int patch_write(Checkpoint *a, Checkpoint *b, const char *path, bool replace, FileProgress *progress, void *context,
                PatchSize *size, char err[512])
{
    size_t n = checkpoint_tensor_count(a);
    Patch p = {.deltas = calloc(n + 1, sizeof *p.deltas),
               .tensors = calloc(2 * n + 1, sizeof *p.tensors),
               .n = n,
               .digests = calloc(n + 1, sizeof *p.digests)};
    *size = (PatchSize){0};
    int status = p.deltas && p.tensors && p.digests ? write_patch(&p, a, b, path, replace, progress, context, size, err)
                                                    : fail(err, "%s: out of memory for %zu tensors", path, n);
    for (size_t i = 0; p.deltas && i < p.n; i++)
        free(p.deltas[i].names);
    free(p.digests);
    free(p.tensors);
    free(p.deltas);
    return status;
}

/* ---- applying a patch -------------------------------------------------------------------------------------------- */

/* What a patch has for a tensor of the model. */
typedef struct {
    const SafetensorsTensor *tensor;
    unsigned char *digest; /* [32] of the tensor, among the model's */
    const unsigned char *ranges, *bytes;
    uint64_t n, length; /* of ranges, of bytes */
} Change;

typedef struct {
    uint64_t offset, length; /* in bytes of the tensor */
} Range;

static Range range_of(const Change *c, uint64_t i)
{
    return (Range){read_u64_le(c->ranges + 16 * i), read_u64_le(c->ranges + 16 * i + 8)};
}

/* A patch that is being applied. */
typedef struct {
    Checkpoint *model, *patch;
    Digest *digests;                   /* [tensors of the model] */
    Change *changes;                   /* [n] */
    const SafetensorsTensor **touched; /* [n] their tensors */
    size_t n;
} Application;

static const JsonValue *metadata_of(const Checkpoint *patch, const char *key)
{
    return json_get(json_get(checkpoint_file(patch, 0)->header, "__metadata__"), key);
}

static int check_format(const Checkpoint *patch, char err[512])
{
    const JsonValue *version = metadata_of(patch, "version");
    if (!json_string_is(metadata_of(patch, "format"), "run-patch"))
        return fail(err, "%s is not a patch: its metadata does not say \"format\": \"run-patch\"", patch->argument);
    if (!json_string_is(version, "1"))
        return fail(err, "%s is a patch of version %.20s; only version 1 is known", patch->argument,
                    version ? version->text : "(none)");
    return 0;
}

/* The ranges must be in order and inside the tensor, with as many bytes as they ask for. */
static int check_ranges(const Change *c, const char *patch, char err[512])
{
    uint64_t at = 0, bytes = 0;
    for (uint64_t i = 0; i < c->n; i++) {
        Range r = range_of(c, i);
        if (r.offset < at || r.offset > c->tensor->length || r.length > c->tensor->length - r.offset)
            return tensor_fail(err, patch, c->tensor,
                               "range [%" PRIu64 ", +%" PRIu64 ") is out of order or outside its %" PRIu64 " bytes",
                               r.offset, r.length, c->tensor->length);
        at = r.offset + r.length;
        bytes += r.length;
    }
    if (bytes != c->length)
        return tensor_fail(err, patch, c->tensor, "its ranges need %" PRIu64 " bytes, but the patch has %" PRIu64,
                           bytes, c->length);
    return 0;
}

/* Find what the patch has for tensor t of the model. 1: it is in *c, 0: nothing, -1: something is wrong with it. */
static int find_change(const SafetensorsTensor *t, Checkpoint *patch, Change *c, char err[512])
{
    SafetensorsTensor ranges, bytes;
    char *name = malloc(t->name_length + 7);
    if (!name)
        return fail(err, "%s: out of memory", patch->argument);
    memcpy(name, t->name, t->name_length);
    memcpy(name + t->name_length, ".ranges", 7);
    bool found = safetensors_find_n(&patch->st, name, t->name_length + 7, &ranges) == 0;
    memcpy(name + t->name_length, ".bytes", 6);
    bool complete = found && safetensors_find_n(&patch->st, name, t->name_length + 6, &bytes) == 0;
    free(name);
    if (!found)
        return 0;
    if (!complete || ranges.dtype != DTYPE_U64 || ranges.rank != 2 || ranges.shape[1] != 2 || bytes.dtype != DTYPE_U8 ||
        bytes.rank != 1)
        return tensor_fail(err, patch->argument, t, "it needs .ranges as U64 [n,2] and .bytes as U8 [m]");
    c->tensor = t;
    c->ranges = safetensors_data(&ranges);
    c->bytes = safetensors_data(&bytes);
    c->n = ranges.shape[0];
    c->length = bytes.length;
    return check_ranges(c, patch->argument, err) == 0 ? 1 : -1;
}

static int find_changes(Application *a, char err[512])
{
    for (size_t i = 0; i < checkpoint_tensor_count(a->model); i++) {
        Change *c = &a->changes[a->n];
        int found = find_change(checkpoint_tensor(a->model, i), a->patch, c, err);
        if (found < 0)
            return -1;
        if (found == 0)
            continue;
        c->digest = a->digests[i];
        a->touched[a->n++] = c->tensor;
    }
    if (2 * a->n != checkpoint_tensor_count(a->patch))
        return fail(err, "%s changes tensors that the model does not have", a->patch->argument);
    return 0;
}

/* Replace the digests of tensors by those that they will have. */
static void hash_changed(void *context, size_t begin, size_t end, int thread)
{
    (void)thread;
    for (const Change *c = (const Change *)context + begin; c < (const Change *)context + end; c++) {
        const unsigned char *data = safetensors_data(c->tensor), *bytes = c->bytes;
        uint64_t at = 0;
        Sha256 s;
        sha256_init(&s);
        for (uint64_t i = 0; i < c->n; i++) {
            Range r = range_of(c, i);
            sha256_update(&s, data + at, (size_t)(r.offset - at));
            sha256_update(&s, bytes, (size_t)r.length);
            bytes += r.length;
            at = r.offset + r.length;
        }
        sha256_update(&s, data + at, (size_t)(c->tensor->length - at));
        sha256_final(&s, c->digest);
    }
}

/* The model's fingerprint must be the patch's base, and with the changes its result. */
static int check_ends(Application *a, FileProgress *progress, void *context, char err[512])
{
    const JsonValue *base = metadata_of(a->patch, "base"), *result = metadata_of(a->patch, "result");
    char hex[65];
    if (fingerprint_compute(a->model, a->digests, hex, progress, context, err) != 0)
        return -1;
    if (!json_string_is(base, hex) && json_string_is(result, hex))
        return fail(err, "%s has been applied already: the model is its result", a->patch->argument);
    if (!json_string_is(base, hex))
        return fail(err, "%s is for another model: its base has the fingerprint %.12s.., this one %.12s..",
                    a->patch->argument, base && base->type == JSON_STRING ? base->text : "(none)", hex);
    threads_for(a->n, 1, hash_changed, a->changes);
    if (fingerprint_of(a->model, (const Digest *)a->digests, hex, err) != 0)
        return -1;
    if (!json_string_is(result, hex))
        return fail(err, "%s is damaged: with its changes the model would not be the result that it names",
                    a->patch->argument);
    return 0;
}

static int note_changes(Edit *e, const Application *a, char err[512])
{
    for (const Change *c = a->changes; c < a->changes + a->n; c++) {
        const unsigned char *bytes = c->bytes;
        for (uint64_t i = 0; i < c->n; i++) {
            Range r = range_of(c, i);
            if (edit_bytes(e, c->tensor, r.offset, bytes, (size_t)r.length, err) != 0)
                return -1;
            bytes += r.length;
        }
    }
    return 0;
}

static int apply(Edit *e, Application *a, FileProgress *progress, void *context, char err[512])
{
    if (check_format(a->patch, err) != 0 || find_changes(a, err) != 0 || edit_begin(e, a->touched, a->n, err) != 0 ||
        check_ends(a, progress, context, err) != 0)
        return -1;
    return note_changes(e, a, err);
}

int patch_apply(Edit *e, Checkpoint *c, Checkpoint *patch, FileProgress *progress, void *context, char err[512])
{
    size_t n = checkpoint_tensor_count(c);
    Application a = {.model = c,
                     .patch = patch,
                     .digests = calloc(n + 1, sizeof *a.digests),
                     .changes = calloc(n + 1, sizeof *a.changes),
                     .touched = calloc(n + 1, sizeof *a.touched)};
    int status = a.digests && a.changes && a.touched ? apply(e, &a, progress, context, err)
                                                     : fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    free(a.touched);
    free(a.changes);
    free(a.digests);
    return status;
}
