/* Fingerprints, patches and masks. patch.h tells the formats. */
#include "checkpoint/patch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/threads.h"
#include "checkpoint/shards.h"

#define PIECE ((size_t)1 << 20)

static const char *printable(const SafetensorsTensor *t, char out[TEXT_PRINTABLE])
{
    return text_printable(t->name, t->name_length, out);
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

int tensors_digest(const SafetensorsTensor *const *tensors, size_t n, Digest *digests, FileProgress *progress,
                   void *context, char err[512])
{
    Sha256Task *tasks = calloc(n + 1, sizeof *tasks);
    if (!tasks)
        return fail(err, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        tasks[i] = (Sha256Task){safetensors_data(tensors[i]), tensors[i]->length, digests[i]};
    int status = sha256_all(tasks, n, progress, context);
    free(tasks);
    return status == 0 ? 0 : fail(err, "interrupted; nothing was written");
}

typedef struct {
    const SafetensorsTensor *tensor;
    const unsigned char *digest;
} Named;

static int compare_names(const void *a, const void *b)
{
    const SafetensorsTensor *x = ((const Named *)a)->tensor, *y = ((const Named *)b)->tensor;
    int order = memcmp(x->name, y->name, x->name_length < y->name_length ? x->name_length : y->name_length);
    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

int tensors_fingerprint(const SafetensorsTensor *const *tensors, size_t n, const Digest *digests, char hex[65],
                        char err[512])
{
    Named *names = calloc(n + 1, sizeof *names);
    Sha256 s;
    Digest all;
    if (!names)
        return fail(err, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        names[i] = (Named){tensors[i], digests[i]};
    qsort(names, n, sizeof *names, compare_names);
    sha256_init(&s);
    for (size_t i = 0; i < n; i++) {
        const SafetensorsTensor *t = names[i].tensor;
        char text[128], digest[65];
        sha256_hex(names[i].digest, digest);
        sha256_update(&s, text, (size_t)snprintf(text, sizeof text, "%s %s [", digest, dtype_name(t->dtype)));
        for (size_t d = 0; d < t->rank; d++)
            sha256_update(&s, text, (size_t)snprintf(text, sizeof text, "%s%" PRIu64, d ? "," : "", t->shape[d]));
        sha256_update(&s, text, (size_t)snprintf(text, sizeof text, "] %zu ", t->name_length));
        sha256_update(&s, t->name, t->name_length);
        sha256_update(&s, "\n", 1);
    }
    sha256_final(&s, all);
    sha256_hex(all, hex);
    free(names);
    return 0;
}

/* A model's tensors, in any order, with their digests. */
typedef struct {
    size_t n;
    const SafetensorsTensor **tensors; /* [n] */
    Digest *digests;                   /* [n] */
    char hex[65];
} HashedModel;

static void free_model(HashedModel *m)
{
    free(m->tensors);
    free(m->digests);
}

/* Room for the tensors of c, which are put there in its order. */
static int list_tensors(HashedModel *m, const Checkpoint *c, char err[512])
{
    m->n = checkpoint_tensor_count(c);
    m->tensors = calloc(m->n + 1, sizeof *m->tensors);
    m->digests = calloc(m->n + 1, sizeof *m->digests);
    if (!m->tensors || !m->digests)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, m->n);
    for (size_t i = 0; i < m->n; i++)
        m->tensors[i] = checkpoint_tensor(c, i);
    return 0;
}

static int hash_model(HashedModel *m, FileProgress *progress, void *context, char err[512])
{
    if (tensors_digest(m->tensors, m->n, m->digests, progress, context, err) != 0)
        return -1;
    return tensors_fingerprint(m->tensors, m->n, (const Digest *)m->digests, m->hex, err);
}

/* ---- writing a patch --------------------------------------------------------------------------------------------- */

/* A tensor that differs, and the two that the patch has of it. */
typedef struct {
    const SafetensorsTensor *a, *b;
    SafetensorsTensor ranges, bytes;
    uint64_t ranges_shape[2], bytes_shape[1];
    char *names; /* both */
} Delta;

static void count_changes(void *context, size_t begin, size_t end, int thread)
{
    Delta *d = context;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const unsigned char *a = safetensors_data(d[i].a), *b = safetensors_data(d[i].b);
        for (size_t from, to = 0; edit_next_change(a, b, (size_t)d[i].a->length, &from, &to);) {
            d[i].ranges_shape[0]++;
            d[i].bytes_shape[0] += to - from;
        }
    }
}

static int name_delta(Delta *d, char err[512])
{
    size_t length = d->a->name_length;
    d->names = malloc(2 * length + 16);
    if (!d->names)
        return fail(err, "out of memory for a tensor's name");
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

/* Bytes on their way to a descriptor. */
typedef struct {
    int fd;
    uint64_t offset;
    size_t used;
    unsigned char buffer[1 << 16];
} Out;

static int drain(Out *o)
{
    size_t n = o->used;
    o->used = 0;
    o->offset += n;
    return file_write_at(o->fd, o->buffer, n, o->offset - n);
}

static int emit(Out *o, const unsigned char *bytes, size_t n)
{
    for (size_t m; n > 0; bytes += m, n -= m) {
        if (o->used == sizeof o->buffer && drain(o) != 0)
            return -1;
        m = n < sizeof o->buffer - o->used ? n : sizeof o->buffer - o->used;
        memcpy(o->buffer + o->used, bytes, m);
        o->used += m;
    }
    return 0;
}

/* ShardFill: tensors 2i and 2i + 1 are ranges and bytes of delta i. */
static int fill_delta(void *context, size_t tensor, int fd, uint64_t offset, char err[512])
{
    const Delta *d = (const Delta *)context + tensor / 2;
    const unsigned char *a = safetensors_data(d->a), *b = safetensors_data(d->b);
    Out *o = malloc(sizeof *o);
    int status = o ? 0 : -1;
    if (o)
        o->fd = fd, o->offset = offset, o->used = 0;
    for (size_t from, to = 0; status == 0 && edit_next_change(a, b, (size_t)d->a->length, &from, &to);) {
        unsigned char range[16];
        for (size_t i = 0; i < 8; i++)
            range[i] = (unsigned char)((uint64_t)from >> 8 * i),
            range[8 + i] = (unsigned char)((uint64_t)(to - from) >> 8 * i);
        status = tensor % 2 ? emit(o, b + from, to - from) : emit(o, range, 16);
    }
    if (status == 0)
        status = drain(o);
    free(o);
    return status == 0 ? 0 : fail(err, "writing the patch: %s", strerror(errno));
}

/* b's tensor of the same name; refuses what a patch cannot express. */
static int counterpart(const SafetensorsTensor *t, Checkpoint *b, SafetensorsTensor *other, char err[512])
{
    char name[TEXT_PRINTABLE];
    if (safetensors_find_n(&b->st, t->name, t->name_length, other) != 0)
        return fail(err, "tensor \"%s\" is not in %s: a patch changes bytes, not names", printable(t, name),
                    b->argument);
    if (t->dtype != other->dtype || t->rank != other->rank ||
        memcmp(t->shape, other->shape, t->rank * sizeof *t->shape) != 0)
        return fail(err, "tensor \"%s\" has another dtype or shape in %s: a patch changes bytes only",
                    printable(t, name), b->argument);
    return 0;
}

static JsonValue member(const char *key, const char *text, const JsonValue *next)
{
    return (JsonValue){.type = JSON_STRING,
                       .key = key,
                       .key_length = (uint32_t)strlen(key),
                       .text = text,
                       .length = strlen(text),
                       .next = (JsonValue *)(uintptr_t)next};
}

static int write_deltas(Delta *deltas, size_t n, const char *base, const char *result, const char *path,
                        PatchSize *size, char err[512])
{
    const SafetensorsTensor **tensors = calloc(2 * n + 1, sizeof *tensors);
    JsonValue to = member("result", result, NULL), from = member("base", base, &to),
              version = member("version", "1", &from);
    JsonValue format = member("format", "run-patch", &version),
              metadata = {.type = JSON_OBJECT, .length = 4, .child = &format};
    ShardContent content = {.tensors = tensors,
                            .n = 2 * n,
                            .metadata = (const JsonValue *const[]){&metadata},
                            .n_metadata = 1,
                            .fill = fill_delta,
                            .context = deltas};
    NewFile f = {.fd = -1};
    int status = tensors ? 0 : fail(err, "%s: out of memory", path);
    threads_for(n, 1, count_changes, deltas);
    for (size_t i = 0; i < n && status == 0; i++) {
        status = name_delta(&deltas[i], err);
        tensors[2 * i] = &deltas[i].ranges;
        tensors[2 * i + 1] = &deltas[i].bytes;
        size->tensors++;
        size->ranges += deltas[i].ranges_shape[0];
        size->bytes += deltas[i].bytes_shape[0];
    }
    if (status == 0 && (status = shard_write(&f, path, &content, err)) == 0)
        status = new_files_publish(&f, 1, err);
    new_file_end(&f);
    free(tensors);
    return status;
}

int patch_write(Checkpoint *a, Checkpoint *b, const char *path, FileProgress *progress, void *context, PatchSize *size,
                char err[512])
{
    HashedModel before = {0}, after = {0};
    size_t n = checkpoint_tensor_count(a), n_deltas = 0;
    SafetensorsTensor *partners = calloc(n + 1, sizeof *partners);
    Delta *deltas = calloc(n + 1, sizeof *deltas);
    int status = partners && deltas ? 0 : fail(err, "%s: out of memory for %zu tensors", path, n);
    *size = (PatchSize){0};
    if (status == 0 && file_exists(path))
        status = fail(err, "%s exists already, and nothing is replaced: remove it, or write elsewhere", path);
    if (status == 0 && checkpoint_tensor_count(b) != n)
        status = fail(err, "%s has %zu tensors, %s %zu: a patch changes bytes, not names", a->argument, n, b->argument,
                      checkpoint_tensor_count(b));
    if (status == 0)
        status = list_tensors(&before, a, err) != 0 ? -1 : list_tensors(&after, b, err);
    for (size_t i = 0; i < n && status == 0; i++) {
        status = counterpart(before.tensors[i], b, &partners[i], err);
        after.tensors[i] = &partners[i];
    }
    if (status == 0)
        status = hash_model(&before, progress, context, err) != 0 ? -1 : hash_model(&after, progress, context, err);
    for (size_t i = 0; i < n && status == 0; i++)
        if (memcmp(before.digests[i], after.digests[i], 32) != 0)
            deltas[n_deltas++] = (Delta){.a = before.tensors[i], .b = after.tensors[i]};
    if (status == 0)
        status = write_deltas(deltas, n_deltas, before.hex, after.hex, path, size, err);
    for (size_t i = 0; i < n_deltas; i++)
        free(deltas[i].names);
    free(deltas);
    free(partners);
    free_model(&after);
    free_model(&before);
    return status;
}

/* ---- applying a patch -------------------------------------------------------------------------------------------- */

/* Ranges [ranges + 16 i] of a tensor and their new bytes, as a patch has them. */
typedef struct {
    const SafetensorsTensor *tensor;
    const unsigned char *ranges, *bytes;
    uint64_t n, length; /* of ranges, of bytes */
} Change;

static const JsonValue *metadata_of(const Checkpoint *patch, const char *key)
{
    return json_get(json_get(checkpoint_file(patch, 0)->header, "__metadata__"), key);
}

static int check_format(const Checkpoint *patch, char err[512])
{
    const JsonValue *version = metadata_of(patch, "version");
    if (!json_string_is(metadata_of(patch, "format"), "run-patch"))
        return fail(err, "%s is no patch: its metadata does not say \"format\": \"run-patch\"", patch->argument);
    if (!json_string_is(version, "1"))
        return fail(err, "%s is a patch of version %.20s; only version 1 is known", patch->argument,
                    version ? version->text : "(none)");
    return 0;
}

/* Ranges in order, inside the tensor, and as many bytes as they ask for. */
static int check_ranges(const Change *c, const Checkpoint *patch, char err[512])
{
    char name[TEXT_PRINTABLE];
    uint64_t at = 0, bytes = 0;
    for (uint64_t i = 0; i < c->n; i++) {
        uint64_t offset = read_u64_le(c->ranges + 16 * i), length = read_u64_le(c->ranges + 16 * i + 8);
        if (offset < at || offset > c->tensor->length || length > c->tensor->length - offset)
            return fail(err,
                        "%s: tensor \"%s\": range [%" PRIu64 ", +%" PRIu64 ") is out of order or outside its %" PRIu64
                        " bytes",
                        patch->argument, printable(c->tensor, name), offset, length, c->tensor->length);
        at = offset + length;
        bytes += length;
    }
    if (bytes != c->length)
        return fail(err, "%s: tensor \"%s\": %" PRIu64 " bytes for ranges of %" PRIu64, patch->argument,
                    printable(c->tensor, name), c->length, bytes);
    return 0;
}

/* What the patch has for tensor t of the model. 0: nothing, 1: *c, -1: something wrong. */
static int find_change(const SafetensorsTensor *t, Checkpoint *patch, Change *c, char err[512])
{
    SafetensorsTensor ranges, bytes;
    char shown[TEXT_PRINTABLE], *name = malloc(t->name_length + 7);
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
        return fail(err, "%s: tensor \"%s\" needs .ranges, U64 [n,2], and .bytes, U8 [m]", patch->argument,
                    printable(t, shown));
    *c = (Change){t, safetensors_data(&ranges), safetensors_data(&bytes), ranges.shape[0], bytes.length};
    return check_ranges(c, patch, err) == 0 ? 1 : -1;
}

static int find_changes(const HashedModel *m, Checkpoint *patch, Change *changes, size_t *n, char err[512])
{
    for (size_t i = 0; i < m->n; i++) {
        int found = find_change(m->tensors[i], patch, &changes[*n], err);
        if (found < 0)
            return -1;
        *n += (size_t)found;
    }
    if (2 * *n != checkpoint_tensor_count(patch))
        return fail(err, "%s changes tensors that the model does not have", patch->argument);
    return 0;
}

/* The digests of tensors as they will be. */
typedef struct {
    const Change *changes;
    Digest **digests; /* [changes] */
} Outcome;

static void hash_changed(void *context, size_t begin, size_t end, int thread)
{
    const Outcome *o = context;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const Change *c = &o->changes[i];
        const unsigned char *data = safetensors_data(c->tensor), *bytes = c->bytes;
        uint64_t at = 0;
        Sha256 s;
        sha256_init(&s);
        for (uint64_t r = 0; r < c->n; r++) {
            uint64_t offset = read_u64_le(c->ranges + 16 * r), length = read_u64_le(c->ranges + 16 * r + 8);
            sha256_update(&s, data + at, (size_t)(offset - at));
            sha256_update(&s, bytes, (size_t)length);
            bytes += length;
            at = offset + length;
        }
        sha256_update(&s, data + at, (size_t)(c->tensor->length - at));
        sha256_final(&s, *o->digests[i]);
    }
}

/* Replaces the digests of the tensors that change, and the fingerprint. changes are in the order of the tensors. */
static int hash_outcome(HashedModel *m, const Change *changes, size_t n, char err[512])
{
    Outcome o = {changes, calloc(n + 1, sizeof *o.digests)};
    if (!o.digests)
        return fail(err, "out of memory for %zu tensors", n);
    for (size_t i = 0, t = 0; i < n; i++, t++) {
        while (m->tensors[t] != changes[i].tensor)
            t++;
        o.digests[i] = &m->digests[t];
    }
    threads_for(n, 1, hash_changed, &o);
    free(o.digests);
    return tensors_fingerprint(m->tensors, m->n, (const Digest *)m->digests, m->hex, err);
}

/* The model's fingerprint must be the patch's base, and with the changes its result. */
static int check_ends(HashedModel *m, const Change *changes, size_t n, const Checkpoint *patch, FileProgress *progress,
                      void *context, char err[512])
{
    const JsonValue *base = metadata_of(patch, "base"), *result = metadata_of(patch, "result");
    if (hash_model(m, progress, context, err) != 0)
        return -1;
    if (!json_string_is(base, m->hex) && json_string_is(result, m->hex))
        return fail(err, "%s has been applied already: the model is its result", patch->argument);
    if (!json_string_is(base, m->hex))
        return fail(err, "%s is for another model: its base has the fingerprint %.12s.., this one %.12s..",
                    patch->argument, base && base->type == JSON_STRING ? base->text : "(none)", m->hex);
    if (hash_outcome(m, changes, n, err) != 0)
        return -1;
    if (!json_string_is(result, m->hex))
        return fail(err, "%s is damaged: with its changes the model would not be the result that it names",
                    patch->argument);
    return 0;
}

static int note_change(Edit *e, const Change *c, char err[512])
{
    const unsigned char *bytes = c->bytes;
    for (uint64_t i = 0; i < c->n; i++) {
        uint64_t offset = read_u64_le(c->ranges + 16 * i), length = read_u64_le(c->ranges + 16 * i + 8);
        if (edit_bytes(e, c->tensor, offset, bytes, (size_t)length, err) != 0)
            return -1;
        bytes += length;
    }
    return 0;
}

int patch_apply(Edit *e, Checkpoint *c, Checkpoint *patch, bool dry, FileProgress *progress, void *context,
                char err[512])
{
    HashedModel m = {0};
    size_t n = 0;
    int status = check_format(patch, err) != 0 ? -1 : list_tensors(&m, c, err);
    Change *changes = calloc(m.n + 1, sizeof *changes);
    const SafetensorsTensor **touched = calloc(m.n + 1, sizeof *touched);
    if (status == 0 && (!changes || !touched))
        status = fail(err, "%s: out of memory for %zu tensors", c->argument, m.n);
    if (status == 0)
        status = find_changes(&m, patch, changes, &n, err);
    for (size_t i = 0; i < n && status == 0; i++)
        touched[i] = changes[i].tensor;
    if (status == 0)
        status = edit_begin(e, touched, n, dry, err);
    if (status == 0)
        status = check_ends(&m, changes, n, patch, progress, context, err);
    for (size_t i = 0; i < n && status == 0; i++)
        status = note_change(e, &changes[i], err);
    free(touched);
    free(changes);
    free_model(&m);
    return status;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

typedef enum { MASK_BYTES, MASK_BITS } MaskKind;

static int check_mask(const SafetensorsTensor *weights, const SafetensorsTensor *mask, MaskKind *kind, char err[512])
{
    char name[TEXT_PRINTABLE];
    printable(mask, name);
    if (dtype_bits(weights->dtype) < 8 || weights->dtype == DTYPE_F8_E8M0)
        return fail(err, "tensor \"%s\": %s has no zero that stands in bytes of its own", name,
                    dtype_name(weights->dtype));
    if (mask->dtype != DTYPE_BOOL && mask->dtype != DTYPE_U8)
        return fail(err, "tensor \"%s\": a mask is BOOL or U8, not %s", name, dtype_name(mask->dtype));
    *kind = mask->elements == weights->elements ? MASK_BYTES : MASK_BITS;
    uint64_t packed = weights->elements / 8 + (weights->elements % 8 != 0);
    if (*kind == MASK_BITS && (mask->dtype != DTYPE_U8 || mask->elements != packed))
        return fail(err,
                    "tensor \"%s\": %" PRIu64 " weights need a mask of as many elements, or U8 of %" PRIu64
                    " with a bit each; this one "
                    "has %" PRIu64,
                    name, weights->elements, packed, mask->elements);
    return 0;
}

static bool is_kept(const unsigned char *mask, MaskKind kind, uint64_t i)
{
    return kind == MASK_BYTES ? mask[i] != 0 : mask[i / 8] >> i % 8 & 1;
}

static int mask_tensor(Edit *e, const SafetensorsTensor *t, const unsigned char *mask, MaskKind kind, uint64_t *zeroed,
                       char err[512])
{
    static const unsigned char zero[8];
    size_t size = dtype_bits(t->dtype) / 8, most = PIECE / size, n;
    unsigned char *piece = malloc(PIECE);
    int status = piece ? 0 : fail(err, "out of memory for a mask");
    for (uint64_t at = 0; at < t->elements && status == 0; at += n) {
        n = t->elements - at < most ? (size_t)(t->elements - at) : most;
        memcpy(piece, safetensors_data(t) + at * size, n * size);
        for (size_t i = 0; i < n; i++) {
            if (is_kept(mask, kind, at + i))
                continue;
            *zeroed += memcmp(piece + i * size, zero, size) != 0;
            memset(piece + i * size, 0, size);
        }
        status = edit_bytes(e, t, at * size, piece, n * size, err);
    }
    free(piece);
    return status;
}

int mask_apply(Edit *e, Checkpoint *c, const Checkpoint *mask, bool dry, uint64_t *zeroed, char err[512])
{
    size_t n = checkpoint_tensor_count(mask);
    SafetensorsTensor *weights = calloc(n + 1, sizeof *weights);
    const SafetensorsTensor **touched = calloc(n + 1, sizeof *touched);
    MaskKind *kinds = calloc(n + 1, sizeof *kinds);
    int status =
        weights && touched && kinds ? 0 : fail(err, "%s: out of memory for %zu tensors", mask->argument, n);
    *zeroed = 0;
    for (size_t i = 0; i < n && status == 0; i++) {
        const SafetensorsTensor *m = checkpoint_tensor(mask, i);
        char name[TEXT_PRINTABLE];
        if (safetensors_find_n(&c->st, m->name, m->name_length, &weights[i]) != 0)
            status = fail(err, "%s names tensor \"%s\", which %s does not have", mask->argument, printable(m, name),
                          c->argument);
        else
            status = check_mask(&weights[i], m, &kinds[i], err);
        touched[i] = &weights[i];
    }
    if (status == 0)
        status = edit_begin(e, touched, n, dry, err);
    for (size_t i = 0; i < n && status == 0; i++)
        status = mask_tensor(e, &weights[i], safetensors_data(checkpoint_tensor(mask, i)), kinds[i], zeroed, err);
    free(kinds);
    free(touched);
    free(weights);
    return status;
}
