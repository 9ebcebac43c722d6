/* The writer of .safetensors files (safetensors.h tells their layout), and models in several of them.
 *
 * A model in parts is its files, model-00001-of-00002.safetensors ..., each complete in itself, and
 * model.safetensors.index.json:
 *
 *     {"metadata": {"total_size": BYTES OF ALL TENSORS}, "weight_map": {"TENSOR": "FILE", ...}}
 *
 * The header is padded with spaces to a multiple of 8 bytes, and tensors with wider numbers come first: so every
 * tensor is aligned. Bytes are copied inside the kernel where it can. All files are complete and on disk under
 * temporary names before the first gets its own; the index is last.
 */
#include "checkpoint/shards.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool tensor_layer(const SafetensorsTensor *t, uint64_t *layer)
{
    size_t begin = 0;
    for (size_t i = 0; i <= t->name_length; i++) {
        if (i < t->name_length && t->name[i] != '.')
            continue;
        bool number = i > begin && i - begin < 19;
        uint64_t value = 0;
        for (size_t j = begin; j < i && number; j++) {
            number = t->name[j] >= '0' && t->name[j] <= '9';
            value = value * 10 + (uint64_t)(t->name[j] - '0');
        }
        if (number) {
            *layer = value;
            return true;
        }
        begin = i + 1;
    }
    return false;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* A tensor and its place among those that are given or written. */
typedef struct {
    const SafetensorsTensor *tensor;
    size_t given;
    uint64_t key; /* what it is sorted by, descending; then by given */
} Placed;

static int compare_placed(const void *a, const void *b)
{
    const Placed *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->given < y->given ? -1 : 1;
}

/* A member of the metadata of one of the files. */
typedef struct {
    const JsonValue *member;
    size_t file, place;
} Meta;

static int compare_keys(const JsonValue *a, const JsonValue *b)
{
    size_t shared = a->key_length < b->key_length ? a->key_length : b->key_length;
    int order = memcmp(a->key, b->key, shared);
    return order ? order : (a->key_length > b->key_length) - (a->key_length < b->key_length);
}

/* Of equal keys the first file's comes first, and in a file the last one: that is the one that counts. */
static int compare_meta(const void *a, const void *b)
{
    const Meta *x = a, *y = b;
    int order = compare_keys(x->member, y->member);
    if (order == 0)
        order = (x->file > y->file) - (x->file < y->file);
    return order ? order : (x->place < y->place) - (x->place > y->place);
}

/* "__metadata__":{...}, sorted by key; nothing if there are none. */
static int print_metadata(FILE *out, const ShardContent *c, bool *any)
{
    size_t n = 0, count = 0;
    for (size_t i = 0; i < c->n_metadata; i++)
        n += c->metadata[i] ? c->metadata[i]->length : 0;
    Meta *all = calloc(n + 1, sizeof *all);
    if (!all)
        return -1;
    for (size_t i = 0; i < c->n_metadata; i++)
        for (const JsonValue *v = c->metadata[i] ? c->metadata[i]->child : NULL; v; v = v->next, count++)
            all[count] = (Meta){v, i, count};
    qsort(all, count, sizeof *all, compare_meta);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && compare_keys(all[i].member, all[i - 1].member) == 0)
            continue;
        fputs(i ? "," : "\"__metadata__\":{", out);
        json_write_string(out, all[i].member->key, all[i].member->key_length);
        fputc(':', out);
        json_write_string(out, all[i].member->text, all[i].member->length);
    }
    fputs(count ? "}" : "", out);
    free(all);
    *any = count > 0;
    return 0;
}

static void print_entry(FILE *out, const SafetensorsTensor *t, uint64_t offset)
{
    json_write_string(out, t->name, t->name_length);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", t->shape[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + t->length);
}

/* Length and header, padded; fresh. *size: their bytes. */
static char *make_header(const char *path, const ShardContent *c, const Placed *order, size_t *size, char err[512])
{
    char *text = NULL;
    uint64_t offset = 0;
    FILE *out = open_memstream(&text, size);
    if (!out) {
        fail(err, "%s: out of memory for the header", path);
        return NULL;
    }
    fputs("12345678{", out); /* room for the length */
    bool any = false, failed = print_metadata(out, c, &any) != 0;
    for (size_t i = 0; i < c->n; offset += order[i++].tensor->length) {
        fputs(any || i ? "," : "", out);
        print_entry(out, order[i].tensor, offset);
    }
    fputc('}', out);
    for (long length = ftell(out); length % 8 != 0; length++)
        fputc(' ', out);
    failed = ferror(out) || failed;
    failed = fclose(out) != 0 || !text || failed;
    if (failed || *size - 8 > SAFETENSORS_MAX_HEADER) {
        if (failed)
            fail(err, "%s: out of memory for the header", path);
        else
            fail(err, "%s: the header would have %zu bytes; at most %d are allowed", path, *size - 8, SAFETENSORS_MAX_HEADER);
        free(text);
        return NULL;
    }
    for (int i = 0; i < 8; i++)
        text[i] = (char)((uint64_t)(*size - 8) >> 8 * i);
    return text;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static int copy_tensor(int out, uint64_t offset, const SafetensorsTensor *t, const ShardContent *c, char err[512])
{
    uint64_t from = 8 + t->file->header_len + t->offset;
    if (file_copy(out, offset, t->file->fd, from, t->length, c->progress, c->progress_context) == 0)
        return 0;
    return errno == ECANCELED ? fail(err, "interrupted; nothing was written")
           : errno == ENODATA ? fail(err, "%s became shorter meanwhile", t->file->path)
                              : fail(err, "copying from %s: %s", t->file->path, strerror(errno));
}

static int write_data(NewFile *f, const ShardContent *c, const Placed *order, const char *header, size_t header_size,
                      char err[512])
{
    uint64_t size = header_size;
    for (size_t i = 0; i < c->n; i++)
        size += order[i].tensor->length;
    if (file_write_at(f->fd, header, header_size, 0) != 0 || file_set_size(f->fd, size) != 0)
        return fail(err, "%s: %s", f->part, strerror(errno));
    uint64_t offset = header_size;
    for (size_t i = 0; i < c->n; offset += order[i++].tensor->length) {
        int status = c->fill ? c->fill(c->context, order[i].given, f->fd, offset, err)
                             : copy_tensor(f->fd, offset, order[i].tensor, c, err);
        if (status != 0)
            return -1;
    }
    return new_file_finish(f, err);
}

/* The reader's opinion of what was written. */
static int check_written(const NewFile *f, size_t n, char err[512])
{
    SafetensorsFile st = {0};
    if (safetensors_open(f->part, &st) != 0)
        return fail(err, "%s", st.error);
    bool right = st.n_tensors == n && !st.repeated_names;
    safetensors_close(&st);
    return right ? 0 : fail(err, "%s: a name would be there twice", f->path);
}

int shard_write(NewFile *f, const char *path, const ShardContent *c, char err[512])
{
    size_t size;
    Placed *order = calloc(c->n + 1, sizeof *order);
    int status = order ? 0 : fail(err, "%s: out of memory for %zu tensors", path, c->n);
    for (size_t i = 0; i < c->n && status == 0; i++) {
        const SafetensorsTensor *t = c->tensors[i];
        order[i] = (Placed){t, i, dtype_bits(t->dtype)};
        if (t->name_length == 12 && memcmp(t->name, "__metadata__", 12) == 0)
            status = fail(err, "%s: no tensor can be called \"__metadata__\"", path);
    }
    if (status == 0)
        qsort(order, c->n, sizeof *order, compare_placed);
    char *header = status == 0 ? make_header(path, c, order, &size, err) : NULL;
    status = header ? new_file_open(f, path, err) : -1;
    if (status == 0)
        status = write_data(f, c, order, header, size, err);
    if (status == 0)
        status = check_written(f, c->n, err);
    free(header);
    free(order);
    return status;
}

/* ---- a model in parts -------------------------------------------------------------------------------------------- */

/* All tensors of a checkpoint, cut: those of shard i are placed[first[i]] .. placed[first[i + 1] - 1]. */
typedef struct {
    const Checkpoint *checkpoint;
    const SafetensorsTensor **tensors; /* [n] */
    size_t *first;                     /* [n_shards + 1] */
    size_t n, n_shards;
    const JsonValue **metadata; /* [n_metadata], each file's, or NULL */
    size_t n_metadata;
} Plan;

static void free_plan(Plan *p)
{
    free(p->tensors);
    free(p->first);
    free(p->metadata);
}

static int start_plan(Plan *p, const Checkpoint *c, char err[512])
{
    size_t n = checkpoint_tensor_count(c), files = checkpoint_file_count(c);
    *p = (Plan){.checkpoint = c,
                .n = n,
                .n_metadata = files,
                .tensors = calloc(n + 1, sizeof *p->tensors),
                .first = calloc(n + 2, sizeof *p->first),
                .metadata = calloc(files, sizeof *p->metadata)};
    if (!p->tensors || !p->first || !p->metadata)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    for (size_t i = 0; i < n; i++)
        p->tensors[i] = checkpoint_tensor(c, i);
    for (size_t i = 0; i < files; i++)
        p->metadata[i] = json_get(checkpoint_file(c, i)->header, "__metadata__");
    p->n_shards = 1;
    p->first[1] = n;
    return 0;
}

static int plan_by_layer(Plan *p, char err[512])
{
    Placed *order = calloc(p->n + 1, sizeof *order);
    if (!order)
        return fail(err, "out of memory for %zu tensors", p->n);
    for (size_t i = 0; i < p->n; i++) {
        uint64_t layer;
        order[i] =
            (Placed){p->tensors[i], i, tensor_layer(p->tensors[i], &layer) ? UINT64_MAX - 1 - layer : UINT64_MAX};
    }
    qsort(order, p->n, sizeof *order, compare_placed);
    p->n_shards = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->tensors[i] = order[i].tensor;
        if (i == 0 || order[i].key != order[i - 1].key)
            p->first[p->n_shards++] = i;
    }
    p->n_shards += p->n_shards == 0;
    p->first[p->n_shards] = p->n;
    free(order);
    return 0;
}

static void plan_by_size(Plan *p, uint64_t max_bytes)
{
    uint64_t bytes = 0;
    p->n_shards = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (i == 0 || bytes + p->tensors[i]->length > max_bytes) {
            p->first[p->n_shards++] = i;
            bytes = 0;
        }
        bytes += p->tensors[i]->length;
    }
    p->n_shards += p->n_shards == 0;
    p->first[p->n_shards] = p->n;
}

/* Neither path nor its temporary name may be one of the files that are read, under whatever name, and nothing is
 * replaced. */
static int check_target(const Checkpoint *c, const char *path, char err[512])
{
    char *part = path_with_suffix(path, ".part");
    int status = part ? 0 : fail(err, "%s: out of memory", path);
    for (size_t i = 0; status == 0 && i < checkpoint_file_count(c); i++) {
        const char *input = checkpoint_file(c, i)->path;
        if (file_same(path, input) || file_same(part, input))
            status = fail(err, "%s is the same file as the input %s", path, input);
    }
    free(part);
    if (status == 0 && file_exists(path))
        status = fail(err, "%s exists already, and nothing is replaced: remove it, or write elsewhere", path);
    return status;
}

static int write_part(NewFile *f, const Plan *p, size_t shard, const char *path, FileProgress *progress, void *context,
                      char err[512])
{
    ShardContent content = {.tensors = p->tensors + p->first[shard],
                            .n = p->first[shard + 1] - p->first[shard],
                            .metadata = p->metadata,
                            .n_metadata = p->n_metadata,
                            .progress = progress,
                            .progress_context = context};
    return shard_write(f, path, &content, err);
}

int split_merge(const Checkpoint *c, const char *path, FileProgress *progress, void *context, char err[512])
{
    Plan p = {0};
    NewFile f = {.fd = -1};
    int status = check_target(c, path, err);
    if (status == 0)
        status = start_plan(&p, c, err);
    if (status == 0)
        status = write_part(&f, &p, 0, path, progress, context, err);
    if (status == 0)
        status = new_files_publish(&f, 1, err);
    new_file_end(&f);
    free_plan(&p);
    return status;
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

static void shard_name(const Plan *p, size_t shard, char out[64])
{
    if (p->n_shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, p->n_shards);
}

static char *index_text(const Plan *p, size_t *length)
{
    char *text = NULL, name[64];
    uint64_t total = 0;
    FILE *out = open_memstream(&text, length);
    if (!out)
        return NULL;
    for (size_t i = 0; i < p->n; i++)
        total += p->tensors[i]->length;
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
    for (size_t shard = 0, i = 0; i < p->n; i++) {
        shard += i == p->first[shard + 1];
        shard_name(p, shard, name);
        fputs(i ? ",\n    " : "\n    ", out);
        json_write_string(out, p->tensors[i]->name, p->tensors[i]->name_length);
        fprintf(out, ": \"%s\"", name);
    }
    fputs("\n  }\n}\n", out);
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

/* A new file of those bytes, or of what the file `from` holds. */
static int write_small(NewFile *f, const char *path, const char *bytes, size_t length, const char *from, char err[512])
{
    char *read = NULL;
    if (from && !(bytes = read = file_read(from, (size_t)1 << 30, &length, err)))
        return -1;
    int status = new_file_open(f, path, err);
    if (status == 0 && file_write_at(f->fd, bytes, length, 0) != 0)
        status = fail(err, "%s: %s", f->part, strerror(errno));
    if (status == 0)
        status = new_file_finish(f, err);
    free(read);
    return status;
}

/* The files of a split, in the order in which they get their names: companions, shards, index. */
typedef struct {
    const Plan *plan;
    const char *directory;
    NewFile *files, index;
    size_t n;
    FileProgress *progress;
    void *context;
} Split;

static int copy_companions(Split *s, char err[512])
{
    int status = 0;
    for (size_t i = 0; i < CHECKPOINT_COMPANIONS && status == 0; i++) {
        const char *name = checkpoint_companions[i];
        char *from = path_join(s->plan->checkpoint->directory, name), *to = path_join(s->directory, name);
        if (!from || !to)
            status = fail(err, "%s: out of memory", s->directory);
        else if (access(from, R_OK) == 0 && !file_exists(to) &&
                 (status = write_small(&s->files[s->n++], to, NULL, 0, from, err)) == 0)
            new_file_close(&s->files[s->n - 1]);
        free(from);
        free(to);
    }
    return status;
}

static int write_shards(Split *s, char err[512])
{
    int status = 0;
    for (size_t i = 0; i < s->plan->n_shards && status == 0; i++) {
        char name[64], *path;
        shard_name(s->plan, i, name);
        path = path_join(s->directory, name);
        status = path ? check_target(s->plan->checkpoint, path, err) : fail(err, "%s: out of memory", s->directory);
        if (status == 0)
            status = write_part(&s->files[s->n++], s->plan, i, path, s->progress, s->context, err);
        if (status == 0 && s->plan->n_shards > 1)
            new_file_close(&s->files[s->n - 1]);
        free(path);
    }
    return status;
}

/* The index is begun first: its lock keeps a second split out of the folder. It is there before the single file,
 * too, as just that. */
static int write_split(Split *s, char err[512])
{
    char *index = path_join(s->directory, "model.safetensors.index.json"), *single = path_join(s->directory, "model.safetensors");
    size_t length = 0;
    char *text = index_text(s->plan, &length);
    int status = index && single && text ? 0 : fail(err, "%s: out of memory", s->directory);
    if (status == 0)
        status = check_target(s->plan->checkpoint, index, err);
    if (status == 0)
        status = check_target(s->plan->checkpoint, single, err);
    if (status == 0)
        status = write_small(&s->index, index, text, length, NULL, err);
    if (status == 0)
        status = copy_companions(s, err);
    if (status == 0)
        status = write_shards(s, err);
    if (status == 0 && s->plan->n_shards > 1) {
        s->files[s->n++] = s->index;
        s->index = (NewFile){.fd = -1};
    }
    if (status == 0)
        status = new_files_publish(s->files, s->n, err);
    free(text);
    free(single);
    free(index);
    return status;
}

int split_model(const Checkpoint *c, const char *directory, uint64_t max_bytes, FileProgress *progress, void *context,
                 size_t *n_shards, char err[512])
{
    Plan p = {0};
    Split s = {.plan = &p, .directory = directory, .index = {.fd = -1}, .progress = progress, .context = context};
    int status = start_plan(&p, c, err);
    if (status == 0 && max_bytes == 0)
        status = plan_by_layer(&p, err);
    else if (status == 0)
        plan_by_size(&p, max_bytes);
    bool made = status == 0 && mkdir(directory, 0777) == 0;
    if (status == 0 && !made && errno != EEXIST)
        status = fail(err, "%s: %s", directory, strerror(errno));
    s.files = calloc(p.n_shards + CHECKPOINT_COMPANIONS + 1, sizeof *s.files);
    if (status == 0)
        status = s.files ? write_split(&s, err) : fail(err, "%s: out of memory", directory);
    for (size_t i = 0; i < s.n; i++)
        new_file_end(&s.files[i]);
    new_file_end(&s.index);
    if (status != 0 && made)
        rmdir(directory);
    free(s.files);
    *n_shards = p.n_shards;
    free_plan(&p);
    return status;
}
