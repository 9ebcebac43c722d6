/* A model in one file is that file. A model in shards is an index, model.safetensors.index.json, and the files that it
 * names:
 *     {"weight_map": {"TENSOR": "SHARD", ...}}
 * The shards lie in the folder of the index: a name with a separator in it is refused. Every tensor of the map must be
 * in its shard, and none in two shards; other tensors that the shards hold belong to the model, too, as in
 * transformers.
 *
 * A folder that has both means the one file, as in transformers.
 */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/download.h"
#include "base/file.h"
#include "checkpoint/config.h"
#include "checkpoint/locate.h"
#include "checkpoint/wrong_file.h"

static int open_file(SafetensorsFile *st, const char *path, char err[512])
{
    if (safetensors_open(path, st) != 0)
        return wrong_file_explain(st, path, err);
    st->modified = file_modified(st->fd);
    return 0;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static int compare_shards(const JsonValue *a, const JsonValue *b)
{
    return text_compare(a->text, a->length, b->text, b->length);
}

/* By shard, and in a shard by tensor. */
static int compare_entries(const void *left, const void *right)
{
    const JsonValue *a = *(const JsonValue *const *)left, *b = *(const JsonValue *const *)right;
    int order = compare_shards(a, b);
    return order ? order : text_compare(a->key, a->key_length, b->key, b->key_length);
}

static int list_entries(const JsonValue *map, const char *index, const JsonValue **entries, char err[512])
{
    char shown[TEXT_PRINTABLE], name[TEXT_PRINTABLE];
    for (const JsonValue *v = map->child; v; v = v->next) {
        if (v->type != JSON_STRING)
            return fail(err, "%s: weight_map must give every tensor the name of a file", path_printable(index, shown));
        if (!path_is_name(v->text, v->length))
            return fail(err, "%s: the shard's name \"%s\" must be a plain file name", path_printable(index, shown),
                        text_printable(v->text, v->length, name));
        *entries++ = v;
    }
    qsort(entries - map->length, map->length, sizeof *entries, compare_entries);
    return 0;
}

static int explain_missing_shard(const Checkpoint *c, const JsonValue *first, size_t n, char err[512])
{
    char shown[TEXT_PRINTABLE], name[TEXT_PRINTABLE], tensor[TEXT_PRINTABLE];
    return fail(err, "%s: its shard %s is missing, with %zu tensor%s (\"%s\"%s); %s fetches it",
                path_printable(c->index_path, shown), text_printable(first->text, first->length, name), n,
                n > 1 ? "s" : "", text_printable(first->key, first->key_length, tensor), n > 1 ? " ..." : "",
                download_command());
}

/* Open the shard that n entries name: all of their tensors must be in it. */
static int open_shard(Checkpoint *c, const JsonValue *const *entries, size_t n, char err[512])
{
    char shown[TEXT_PRINTABLE], tensor[TEXT_PRINTABLE];
    SafetensorsFile *shard = &c->st.shards[c->st.n_shards];
    SafetensorsTensor unused;
    char *name = strndup(entries[0]->text, entries[0]->length), *path = name ? path_join(c->directory, name) : NULL;
    free(name);
    if (!path)
        return fail(err, "out of memory");
    shard->read_into_memory = c->st.read_into_memory;
    int status = file_exists(path) ? open_file(shard, path, err) : explain_missing_shard(c, entries[0], n, err);
    free(path);
    if (status != 0)
        return -1;
    c->st.n_shards++;
    for (size_t i = 0; i < n; i++)
        if (safetensors_find_n(shard, entries[i]->key, entries[i]->key_length, &unused) != 0)
            return fail(err, "%s: tensor \"%s\" is not in %s", path_printable(c->index_path, shown),
                        text_printable(entries[i]->key, entries[i]->key_length, tensor), path_name(shard->path));
    return 0;
}

/* Each shard stays open, for its lock and for copying. Up to its hard limit, a process may ask for more descriptors. */
static int want_descriptors(const Checkpoint *c, size_t n_shards, char err[512])
{
    enum { OTHERS = 24 }; /* files that a command has open beside the shards */
    struct rlimit limit;
    char shown[TEXT_PRINTABLE];
    rlim_t needed = (rlim_t)n_shards + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 2 * needed) /* 2: diff has two models open */
        return 0;
    limit.rlim_cur = MIN(limit.rlim_max, MAX(2 * needed, limit.rlim_cur));
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) /* refused: open() fails and says so */
        return 0;
    return fail(err, "%s names %zu shards, but a process may have only %llu files open: raise the limit (ulimit -Hn)",
                path_printable(c->index_path, shown), n_shards, (unsigned long long)limit.rlim_cur);
}

static int open_shards(Checkpoint *c, const JsonValue *const *entries, size_t n, char err[512])
{
    size_t n_shards = 1;
    for (size_t i = 1; i < n; i++)
        if (compare_shards(entries[i - 1], entries[i]) != 0)
            n_shards++;
    if (want_descriptors(c, n_shards, err) != 0)
        return -1;
    c->st.shards = calloc(n_shards, sizeof *c->st.shards);
    if (!c->st.shards)
        return fail(err, "out of memory for %zu shards", n_shards);
    for (size_t i = 0, end = 1; i < n; i = end++) {
        while (end < n && compare_shards(entries[i], entries[end]) == 0)
            end++;
        if (open_shard(c, entries + i, end - i, err) != 0)
            return -1;
    }
    return safetensors_join_shards(&c->st) == 0 ? 0 : fail(err, "%s", c->st.error);
}

static int open_map(Checkpoint *c, const JsonValue *map, char err[512])
{
    char shown[TEXT_PRINTABLE];
    if (!map || map->type != JSON_OBJECT || map->length == 0)
        return fail(err, "%s is not an index of shards: it must have a \"weight_map\" that names tensors",
                    path_printable(c->index_path, shown));
    const JsonValue **entries = calloc(map->length, sizeof *entries);
    if (!entries)
        return fail(err, "out of memory for %zu tensors", map->length);
    int status = list_entries(map, c->index_path, entries, err);
    if (status == 0)
        status = open_shards(c, entries, map->length, err);
    free(entries);
    return status;
}

static int open_index(Checkpoint *c, char err[512])
{
    size_t length;
    char why[512];
    c->st.path = strdup(c->index_path);
    if (!c->st.path)
        return fail(err, "out of memory");
    char *text = file_read(c->index_path, (size_t)256 << 20, &length, err);
    if (!text)
        return -1;
    JsonValue *root = json_parse(text, length, why);
    int status = root ? open_map(c, json_get(root, "weight_map"), err)
                      : download_fail(c->index_path, text, length, why, err);
    json_free(root);
    free(text);
    return status;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* path exists: a folder, an index or a file of weights. */
static int open_path(Checkpoint *c, const char *path, char err[512])
{
    bool is_folder = file_is_folder(path);
    if (is_folder && !locate_has_weights(path))
        return wrong_file_explain_folder(path, err);
    bool is_single = is_folder ? file_exists_in(path, WEIGHTS_NAME) : !text_ends_with(path, ".json");
    char *file = is_folder ? path_join(path, is_single ? WEIGHTS_NAME : WEIGHTS_INDEX_NAME) : strdup(path);
    c->directory = is_folder ? strdup(path) : path_folder(path);
    c->from_directory = is_folder || !is_single;
    c->index_path = is_single ? NULL : file;
    int status = -1;
    if (!file || !c->directory)
        fail(err, "out of memory");
    else
        status = is_single ? open_file(&c->st, file, err) : open_index(c, err);
    if (is_single)
        free(file);
    return status;
}

int checkpoint_open(Checkpoint *c, const char *model, bool read_into_memory, char err[512])
{
    *c = (Checkpoint){.argument = strdup(model), .st = {.fd = -1, .read_into_memory = read_into_memory}};
    char *path = locate_model(model, err);
    int status = -1;
    if (path)
        status = c->argument ? open_path(c, path, err) : fail(err, "out of memory");
    free(path);
    if (status != 0)
        checkpoint_close(c);
    return status;
}

void checkpoint_close(Checkpoint *c)
{
    safetensors_close(&c->st);
    free(c->argument);
    free(c->directory);
    free(c->index_path);
    *c = (Checkpoint){.st = {.fd = -1}};
}

/* ---- what an open checkpoint has --------------------------------------------------------------------------------- */

size_t checkpoint_tensor_count(const Checkpoint *c)
{
    return c->st.n_tensors;
}

const SafetensorsTensor *checkpoint_tensor(const Checkpoint *c, size_t i)
{
    return &c->st.tensors[i];
}

size_t checkpoint_file_count(const Checkpoint *c)
{
    return MAX(c->st.n_shards, 1);
}

const SafetensorsFile *checkpoint_file(const Checkpoint *c, size_t i)
{
    return c->st.n_shards ? &c->st.shards[i] : &c->st;
}

int checkpoint_check_sizes(const Checkpoint *c, char err[512])
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *f = checkpoint_file(c, i);
        struct stat info;
        char shown[TEXT_PRINTABLE];
        if (f->read_into_memory)
            continue;
        if (fstat(f->fd, &info) != 0)
            return fail(err, "%s: %s", path_printable(f->path, shown), strerror(errno));
        if ((uint64_t)info.st_size != f->mapped_size)
            return fail(err, "%s had %zu bytes and has %lld now: it changed while it was in use",
                        path_printable(f->path, shown), f->mapped_size, (long long)info.st_size);
    }
    return 0;
}

int checkpoint_check_unchanged(const Checkpoint *c, char err[512])
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *f = checkpoint_file(c, i);
        char shown[TEXT_PRINTABLE];
        if (file_modified(f->fd) != f->modified)
            return fail(err, "%s was changed while it was being read: nothing is written, so try again",
                        path_printable(f->path, shown));
    }
    return checkpoint_check_sizes(c, err);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* Is there an lm_head.weight that is not the embedding? The reference takes that head, whatever config.json says. */
static bool has_other_head(Checkpoint *c)
{
    SafetensorsTensor head, table;
    if (safetensors_find_weight(&c->st, "lm_head.weight", &head) != 0 ||
        safetensors_find_weight(&c->st, "model.embed_tokens.weight", &table) != 0)
        return false;
    return head.dtype != table.dtype || head.length != table.length ||
           memcmp(safetensors_data(&head), safetensors_data(&table), (size_t)head.length) != 0;
}

int checkpoint_read_config(Checkpoint *c, Config *config, char err[512])
{
    size_t length;
    char shown[TEXT_PRINTABLE], *path = path_join(c->directory, "config.json"), *text = NULL;
    if (!path)
        return fail(err, "out of memory");
    path_printable(path, shown);
    if (file_exists(path))
        text = file_read(path, (size_t)16 << 20, &length, err);
    else if (!wrong_file_is_adapter(&c->st, c->directory, err))
        fail(err, "%s is missing, which tells the model's sizes; %s fetches it", shown, download_command());
    free(path);
    int status = text ? config_parse(config, text, length, shown, err) : -1;
    free(text);
    c->untied = status == 0 && config->tie_word_embeddings && has_other_head(c);
    if (c->untied)
        config->tie_word_embeddings = false;
    c->st.head_is_embedding = status == 0 && config->tie_word_embeddings;
    return status;
}

const char *const checkpoint_companions[CHECKPOINT_COMPANIONS] = {
    "config.json", "generation_config.json",  "tokenizer.json",    "tokenizer_config.json", "vocab.json",
    "merges.txt",  "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};
