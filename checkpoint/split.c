/* A model in shards is its files, model-00001-of-00002.safetensors ..., each complete in itself, and
 * model.safetensors.index.json:
 *
 *     {"metadata": {"total_size": BYTES OF ALL TENSORS}, "weight_map": {"TENSOR": "FILE", ...}}
 *
 * All files are complete and on disk under temporary names before the first gets its own. The index gets its name last.
 */
#include "checkpoint/split.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/edit.h"
#include "checkpoint/locate.h"
#include "checkpoint/tensor.h"
#include "checkpoint/writer.h"

#define SHARDS_MOST 1000 /* files that a model is cut into; more is a size without its M or G */

typedef struct {
    const Checkpoint *checkpoint;
    const SafetensorsTensor **tensors; /* [n] all tensors, in the order in which they are written */
    size_t *first;                     /* [n_shards + 1] tensors of shard i: first[i] .. first[i + 1] - 1 */
    size_t n, n_shards;
    const JsonValue **metadata; /* [n_metadata] of all files */
    size_t n_metadata;
    const char *directory;
    bool made;      /* the directory was made */
    NewFile *files; /* [n_files] companions, shards, index: in the order in which they get their names */
    size_t n_files;
    bool replace; /* files that exist */
    FileProgress *progress;
    void *context;
} Split;

/* ---- which tensors go into which file ---------------------------------------------------------------------------- */

/* 0 for what belongs to no layer, else 1 + the layer. */
static uint64_t layer_key(const SafetensorsTensor *t)
{
    uint64_t layer;
    return tensor_layer(t, &layer) ? 1 + layer : 0;
}

static int compare_layers(const void *left, const void *right)
{
    const SafetensorsTensor *a = *(const SafetensorsTensor *const *)left, *b = *(const SafetensorsTensor *const *)right;
    uint64_t x = layer_key(a), y = layer_key(b);
    if (x != y)
        return x < y ? -1 : 1;
    return a < b ? -1 : 1; /* in the checkpoint's order */
}

static void cut(Split *s, uint64_t max_bytes)
{
    uint64_t bytes = 0;
    if (max_bytes == 0)
        qsort(s->tensors, s->n, sizeof *s->tensors, compare_layers);
    for (size_t i = 0; i < s->n; i++) {
        const SafetensorsTensor *t = s->tensors[i];
        bool full = i > 0 && (max_bytes ? bytes + t->length > max_bytes : layer_key(t) != layer_key(s->tensors[i - 1]));
        if (i == 0 || full) {
            s->first[s->n_shards++] = i;
            bytes = 0;
        }
        bytes += t->length;
    }
    s->n_shards = MAX(s->n_shards, 1); /* a model without tensors is a file, too */
    s->first[s->n_shards] = s->n;
}

static int begin(Split *s, const Checkpoint *c, uint64_t max_bytes, char err[512])
{
    size_t n = checkpoint_tensor_count(c);
    if (edit_keep_off(c, err) != 0)
        return -1;
    s->checkpoint = c;
    s->tensors = calloc(n + 1, sizeof *s->tensors);
    s->first = calloc(n + 2, sizeof *s->first);
    const JsonValue **each = calloc(checkpoint_file_count(c), sizeof *each);
    s->files = calloc(n + CHECKPOINT_COMPANIONS + 2, sizeof *s->files);
    for (size_t i = 0; each && i < checkpoint_file_count(c); i++)
        each[i] = json_get(checkpoint_file(c, i)->header, "__metadata__");
    s->metadata = each ? writer_join_metadata(each, checkpoint_file_count(c), &s->n_metadata) : NULL;
    free(each);
    if (!s->tensors || !s->first || !s->metadata || !s->files)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    for (; s->n < n; s->n++)
        s->tensors[s->n] = checkpoint_tensor(c, s->n);
    cut(s, max_bytes);
    return 0;
}

/* Give all files their names, if they were made from one state of the checkpoint. */
static int publish(Split *s, char err[512])
{
    return checkpoint_check_unchanged(s->checkpoint, err) == 0 ? new_files_publish(s->files, s->n_files, err) : -1;
}

/* Remove what was not published. */
static void end(Split *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        new_file_end(&s->files[i]);
    free(s->files);
    free(s->metadata);
    free(s->first);
    free(s->tensors);
}

static int write_shard(Split *s, size_t shard, const char *path, char err[512])
{
    WriterContent content = {.tensors = s->tensors + s->first[shard],
                             .n = s->first[shard + 1] - s->first[shard],
                             .metadata = s->metadata,
                             .n_metadata = s->n_metadata,
                             .progress = s->progress,
                             .progress_context = s->context,
                             .replace = s->replace};
    if (writer_check_target(path, s->checkpoint, err) != 0)
        return -1;
    return writer_write(&s->files[s->n_files++], path, &content, err);
}

int split_merge(const Checkpoint *c, const char *path, bool replace, FileProgress *progress, void *context,
                char err[512])
{
    Split s = {.replace = replace, .progress = progress, .context = context};
    int status = begin(&s, c, UINT64_MAX, err);
    if (status == 0)
        status = write_shard(&s, 0, path, err);
    if (status == 0)
        status = publish(&s, err);
    end(&s);
    return status;
}

/* ---- a folder of shards ------------------------------------------------------------------------------------------ */

static void shard_name(const Split *s, size_t shard, char out[64])
{
    if (s->n_shards == 1)
        snprintf(out, 64, WEIGHTS_NAME);
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, s->n_shards);
}

#define COMPANION_MOST ((size_t)1 << 30) /* bytes */

static void print_index(FILE *out, const Split *s)
{
    char name[64];
    uint64_t total = 0;
    for (size_t i = 0; i < s->n; i++)
        total += s->tensors[i]->length;
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
    for (size_t shard = 0; shard < s->n_shards; shard++) {
        shard_name(s, shard, name);
        for (size_t i = s->first[shard]; i < s->first[shard + 1]; i++) {
            fputs(i ? ",\n    " : "\n    ", out);
            json_write_string(out, s->tensors[i]->name, s->tensors[i]->name_length);
            fprintf(out, ": \"%s\"", name);
        }
    }
    fputs("\n  }\n}\n", out);
}

static int write_bytes(Split *s, const char *path, const char *bytes, size_t length, char err[512])
{
    NewFile *f = &s->files[s->n_files++];
    if (new_file_open(f, path, s->replace, err) != 0)
        return -1;
    if (file_write_at(f->fd, bytes, length, 0) != 0)
        return fail(err, "%s: %s", f->path, strerror(errno));
    return new_file_finish(f, err);
}

static int write_index(Split *s, const char *path, char err[512])
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (out)
        print_index(out, s);
    if (!out || text_close_stream(out, &text) != 0)
        return fail(err, "%s: out of memory", path);
    int status = write_bytes(s, path, text, length, err);
    free(text);
    return status;
}

/* A companion that is there already with the same bytes is left alone. */
static int copy_companion(Split *s, const char *from, const char *to, char err[512])
{
    size_t length, old_length = 0;
    char unused[512];
    if (access(from, R_OK) != 0)
        return 0;
    char *bytes = file_read(from, COMPANION_MOST, &length, err);
    if (!bytes)
        return -1;
    char *old = file_exists(to) ? file_read(to, COMPANION_MOST, &old_length, unused) : NULL;
    bool same = old && length == old_length && memcmp(old, bytes, length) == 0;
    int status = same ? 0 : write_bytes(s, to, bytes, length, err);
    free(old);
    free(bytes);
    return status;
}

static int copy_companions(Split *s, char err[512])
{
    int status = 0;
    for (size_t i = 0; i < CHECKPOINT_COMPANIONS && status == 0; i++) {
        char *from = path_join(s->checkpoint->directory, checkpoint_companions[i]);
        char *to = path_join(s->directory, checkpoint_companions[i]);
        status = from && to ? copy_companion(s, from, to, err) : fail(err, "%s: out of memory", s->directory);
        free(from);
        free(to);
    }
    return status;
}

static int write_shards(Split *s, char err[512])
{
    int status = 0;
    for (size_t i = 0; i < s->n_shards && status == 0; i++) {
        char name[64];
        shard_name(s, i, name);
        char *path = path_join(s->directory, name);
        status = path ? write_shard(s, i, path, err) : fail(err, "%s: out of memory", s->directory);
        free(path);
    }
    return status;
}

/* Neither a file of shards nor a single one may be there already: the folder would hold two models. */
static int check_folder(const Split *s, const char *index, const char *single, char err[512])
{
    const char *other = s->n_shards == 1 ? index : single;
    if (writer_check_target(single, s->checkpoint, err) != 0 || writer_check_target(index, s->checkpoint, err) != 0)
        return -1;
    return file_exists(other) ? fail(err, "%s exists already: the folder would hold two models", other) : 0;
}

static int write_files(Split *s, const char *index, const char *single, char err[512])
{
    if (check_folder(s, index, single, err) != 0 || copy_companions(s, err) != 0 || write_shards(s, err) != 0)
        return -1;
    if (s->n_shards > 1 && write_index(s, index, err) != 0)
        return -1;
    return publish(s, err);
}

static int write_folder(Split *s, char err[512])
{
    s->made = mkdir(s->directory, 0777) == 0;
    if (!s->made && errno != EEXIST)
        return fail(err, "%s: %s", s->directory, strerror(errno));
    char *index = path_join(s->directory, WEIGHTS_INDEX_NAME), *single = path_join(s->directory, WEIGHTS_NAME);
    int status = index && single ? write_files(s, index, single, err) : fail(err, "%s: out of memory", s->directory);
    free(single);
    free(index);
    return status;
}

int split_model(const Checkpoint *c, const char *directory, uint64_t max_bytes, bool replace, FileProgress *progress,
                void *context, size_t *n_shards, char err[512])
{
    Split s = {.directory = directory, .replace = replace, .progress = progress, .context = context};
    int status = begin(&s, c, max_bytes, err);
    if (status == 0 && s.n_shards > SHARDS_MOST)
        status = fail(err, "%s would be cut into %zu files, more than %d: choose a larger --max-shard-size",
                      c->argument, s.n_shards, SHARDS_MOST);
    if (status == 0)
        status = write_folder(&s, err);
    *n_shards = s.n_shards;
    end(&s);
    if (status != 0 && s.made)
        rmdir(directory);
    return status;
}
