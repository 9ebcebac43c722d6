/* A checkpoint as a thing on disk.
 *
 * A model argument means, in this order,
 *     a folder               its model.safetensors, else the shards that its model.safetensors.index.json lists
 *     a file                 .json: an index; anything else: one file of weights
 *     a hub id               "Qwen/Qwen2.5-0.5B-Instruct": in the local Hugging Face cache, which is only read:
 *                            models--Qwen--Qwen2.5-0.5B-Instruct/refs/main names a folder of .../snapshots
 * An index is {"weight_map": {"tensor": "shard file", ...}}. Its shards lie in its own folder: a name with a separator
 * in it is refused. Every tensor of the map must be in its shard, and no name in two; what else the shards hold is
 * there too, as in transformers.
 */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/config.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#define WEIGHTS "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* ---- paths ------------------------------------------------------------------------------------------------------- */

typedef char Shown[TEXT_PRINTABLE];

static const char *show(const char *text, Shown out)
{
    return text_printable(text, strlen(text), out);
}

/* Is there anything of that name in the folder, be it a link to nothing? */
static bool contains(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    bool found = path && file_exists(path);
    free(path);
    return found;
}

/* ---- files that are something else ------------------------------------------------------------------------------- */

#define FETCH "./download.sh fetches it"
#define FETCH_MODEL "./download.sh fetches a model"
#define SERVER "a server's message that was saved under this name; " FETCH
#define POINTER "a Git LFS pointer, not the file itself; get that with git lfs pull or ./download.sh"
#define PYTORCH "a PyTorch checkpoint (.bin, .pt); run reads safetensors only: " FETCH

static const struct {
    const char *bytes;
    size_t length;
    const char *what;
} kinds[] = {
    {"version https://git-lfs", 23, POINTER},
    {"\x1f\x8b\x08", 3, "compressed with gzip; unpack it with gunzip"},
    {"\x28\xb5\x2f\xfd", 4, "compressed with zstd; unpack it with zstd -d"},
    {"\xfd"
     "7zXZ",
     5, "compressed with xz; unpack it with xz -d"},
    {"BZh", 3, "compressed with bzip2; unpack it with bunzip2"},
    {"PK\x03\x04", 4, "a zip archive, most likely " PYTORCH},
    {"\x80\x02", 2, "a Python pickle, most likely " PYTORCH},
    {"\x80\x03", 2, "a Python pickle, most likely " PYTORCH},
    {"\x80\x04", 2, "a Python pickle, most likely " PYTORCH},
    {"\x80\x05", 2, "a Python pickle, most likely " PYTORCH},
    {"GGUF", 4, "a GGUF file, which is for llama.cpp; run reads safetensors only: " FETCH},
    {"\x89HDF\r\n", 6, "an HDF5 file (TensorFlow, Keras); run reads safetensors only: " FETCH},
    {"Entry not found", 15, "\"Entry not found\", " SERVER},
    {"Repository not found", 20, "\"Repository not found\", " SERVER},
    {"Invalid rev id", 14, "\"Invalid rev id\", " SERVER},
    {"Invalid username or password", 28, "\"Invalid username or password\", " SERVER},
    {"Access to model", 15, "\"Access to model ... is restricted\", " SERVER},
    {"<?xml", 5, "an XML text, most likely " SERVER},
    {"<Error>", 7, "an XML text, most likely " SERVER},
};

/* Neither control characters nor bytes that UTF-8 never has. */
static bool is_text(const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] == 0x7f || bytes[i] >= 0xf5 || (bytes[i] < 0x20 && !memchr("\t\n\f\r", bytes[i], 4)))
            return false;
    return true;
}

static bool holds(const unsigned char *bytes, size_t length, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++)
        if (strncasecmp((const char *)bytes + i, word, n) == 0)
            return true;
    return false;
}

const char *checkpoint_describe_wrong_file(const unsigned char *bytes, size_t length, uint64_t file_size)
{
    size_t start = length < 512 ? length : 512;
    if (file_size == 0)
        return "empty; " FETCH;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (length >= kinds[i].length && memcmp(bytes, kinds[i].bytes, kinds[i].length) == 0)
            return kinds[i].what;
    if (length >= 262 && memcmp(bytes + 257, "ustar", 5) == 0)
        return "a tar archive; unpack it with tar -xf";
    if (length >= 16 && bytes[0] == 0 && memcmp(bytes, bytes + 1, start - 1) == 0)
        return "full of zeros, as a download that was cut short leaves them; " FETCH;
    if (!is_text(bytes, start))
        return NULL;
    if (holds(bytes, start, "<!doctype html") || holds(bytes, start, "<html"))
        return "an HTML page that was saved under this name; " FETCH;
    if (holds(bytes, start, "\"error\""))
        return "a JSON text, most likely " SERVER;
    if (holds(bytes, start, "\"weight_map\""))
        return "an index of shards; its name should end in .index.json";
    return "a text, not a safetensors file; " FETCH_MODEL;
}

/* The size that a Git LFS pointer gives: its line "size N". 0 if there is none. */
static uint64_t pointer_size(const char *text)
{
    const char *line = strstr(text, "\nsize ");
    return line ? strtoull(line + 6, NULL, 10) : 0;
}

/* Why a file of weights could not be opened: what it is instead, if that can be told, else what is wrong with it. */
static int explain_file(const SafetensorsFile *st, const char *path, char err[512])
{
    unsigned char bytes[513];
    struct stat info, link;
    Shown shown;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool opened = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    ssize_t n = opened ? pread(fd, bytes, sizeof bytes - 1, 0) : 0;
    if (fd >= 0)
        close(fd);
    if (fd < 0 && lstat(path, &link) == 0 && S_ISLNK(link.st_mode) && stat(path, &info) != 0)
        return fail(err, "%s is a link to a file that is not there; ./download.sh fetches it", show(path, shown));
    bytes[n > 0 ? n : 0] = '\0';
    const char *what = NULL;
    if (opened)
        what = checkpoint_describe_wrong_file(bytes, n > 0 ? (size_t)n : 0, (uint64_t)info.st_size);
    uint64_t size = what ? pointer_size((const char *)bytes) : 0;
    if (size > 0)
        return fail(err, "%s is %s; the real file has %" PRIu64 " bytes", show(path, shown), what, size);
    if (what)
        return fail(err, "%s is %s", show(path, shown), what);
    return fail(err, "%.440s%s", st->error, st->truncated ? "; ./download.sh mends a download that was cut short" : "");
}

/* What a folder without weights has instead. */
static int explain_folder(const char *folder, char err[512])
{
    static const struct {
        const char *end, *what;
    } others[] = {
        {".part", "an unfinished file: ./download.sh resumes a download, run split and run merge begin anew"},
        {".safetensors", "name that file itself"},
        {".gguf", "a GGUF file, which is for llama.cpp: ./download.sh fetches the safetensors"},
        {".bin", "a PyTorch checkpoint, which run does not read: ./download.sh fetches the safetensors"},
        {".pt", "a PyTorch checkpoint, which run does not read: ./download.sh fetches the safetensors"},
        {".pth", "a PyTorch checkpoint, which run does not read: ./download.sh fetches the safetensors"},
    };
    size_t best = sizeof others / sizeof *others;
    char name[256] = "";
    Shown shown, other;
    DIR *dir = opendir(folder);
    if (!dir)
        return fail(err, "%s: %s", show(folder, shown), strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));)
        for (size_t i = 0; i < sizeof others / sizeof *others && i <= best; i++)
            if (text_ends_with(entry->d_name, others[i].end) && (i < best || strcmp(entry->d_name, name) < 0)) {
                best = i;
                snprintf(name, sizeof name, "%s", entry->d_name);
            }
    closedir(dir);
    if (!*name)
        return fail(err, "%s has neither " WEIGHTS " nor " INDEX "; " FETCH_MODEL, show(folder, shown));
    bool shard = text_ends_with(name, ".safetensors") && strstr(name, "-of-");
    return fail(err, "%s has no " WEIGHTS ", but %s: %s", show(folder, shown), show(name, other),
                shard ? "a shard, whose index is missing: ./download.sh fetches it" : others[best].what);
}

/* Tied by config.json, and yet with another lm_head.weight: the reference then takes that head. */
static bool has_other_head(Checkpoint *c)
{
    SafetensorsTensor head, table;
    if (safetensors_find(&c->st, "lm_head.weight", &head) != 0 ||
        safetensors_find(&c->st, "model.embed_tokens.weight", &table) != 0)
        return false;
    return head.dtype != table.dtype || head.length != table.length ||
           memcmp(safetensors_data(&head), safetensors_data(&table), (size_t)head.length) != 0;
}

int checkpoint_read_config(Checkpoint *c, Config *config, char err[512])
{
    Shown shown;
    size_t length;
    char *path = path_join(c->directory, "config.json");
    if (!path)
        return fail(err, "out of memory");
    char *text = NULL;
    int result = -1;
    if (contains(c->directory, "config.json"))
        text = file_read(path, (size_t)16 << 20, &length, err);
    else
        fail(err, "%s is missing, which tells the model's sizes; ./download.sh fetches it", show(path, shown));
    if (text)
        result = config_parse(config, text, length, show(path, shown), err);
    if (result == 0 && config->tie_word_embeddings && has_other_head(c))
        config->tie_word_embeddings = false;
    free(text);
    free(path);
    return result;
}

/* ---- what a model argument means --------------------------------------------------------------------------------- */

/* $name, NULL if it is not set or empty; a leading ~ is the home folder. Fresh. */
static char *folder_from_environment(const char *name)
{
    const char *value = getenv(name), *home = getenv("HOME");
    if (!value || !*value)
        return NULL;
    bool at_home = value[0] == '~' && (value[1] == '/' || !value[1]) && home && *home;
    return at_home ? path_join(home, value + 1 + (value[1] == '/')) : strdup(value);
}

/* The Hugging Face cache. Fresh; NULL if no variable tells where it is. */
static char *hub_cache(void)
{
    static const struct {
        const char *variable, *rest;
    } places[] = {
        {"HF_HUB_CACHE", NULL},
        {"HUGGINGFACE_HUB_CACHE", NULL},
        {"HF_HOME", "hub"},
        {"XDG_CACHE_HOME", "huggingface/hub"},
        {"HOME", ".cache/huggingface/hub"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *folder = folder_from_environment(places[i].variable);
        char *path = folder && places[i].rest ? path_join(folder, places[i].rest) : folder;
        if (path != folder)
            free(folder);
        if (folder)
            return path;
    }
    return NULL;
}

/* "name" or "organisation/name". */
static bool is_hub_id(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t first = strspn(text, letters);
    const char *name = text[first] == '/' ? text + first + 1 : text;
    return first > 0 && text[0] != '.' && name[0] != '.' && name[0] != '\0' && name[strspn(name, letters)] == '\0' &&
           !text_ends_with(text, ".safetensors") && !text_ends_with(text, ".json");
}

/* A name of a file or folder, not a way to one. */
static bool is_plain_name(const char *name, size_t length)
{
    bool dots = (length == 1 || length == 2) && memcmp(name, "..", length) == 0;
    for (size_t i = 0; i < length; i++)
        if (name[i] == '/' || name[i] == '\\' || name[i] == '\0')
            return false;
    return length > 0 && !dots;
}

/* cache/models--organisation--name, fresh. */
static char *repository_folder(const char *cache, const char *id)
{
    size_t size = strlen(cache) + strlen(id) + 16;
    char *path = malloc(size);
    const char *slash = strchr(id, '/');
    if (path && slash)
        snprintf(path, size, "%s/models--%.*s--%s", cache, (int)(slash - id), id, slash + 1);
    else if (path)
        snprintf(path, size, "%s/models--%s", cache, id);
    return path;
}

/* The folder snapshots/COMMIT that refs/main of a repository in the cache names, fresh. */
static char *main_snapshot(const char *repository, const char *id, char err[512])
{
    Shown shown, name;
    size_t length = 0;
    char *refs = path_join(repository, "refs/main"), *snapshots = path_join(repository, "snapshots"), *path = NULL;
    char *commit = refs && snapshots ? file_read(refs, 256, &length, err) : NULL;
    while (commit && length > 0 && strchr(" \t\r\n", commit[length - 1]))
        commit[--length] = '\0';
    if (commit && is_plain_name(commit, length))
        path = path_join(snapshots, commit);
    if (!path || !file_is_folder(path)) {
        fail(err, "%s: the Hugging Face cache has no snapshot of it for refs/main (%s); ./download.sh %s fetches it",
             show(id, name), show(repository, shown), name);
        free(path);
        path = NULL;
    }
    free(commit);
    free(snapshots);
    free(refs);
    return path;
}

static char *find_in_cache(const char *id, char err[512])
{
    Shown shown, name;
    char *cache = hub_cache(), *repository = cache ? repository_folder(cache, id) : NULL, *path = NULL;
    bool there = repository && file_is_folder(repository);
    if (!cache || (!there && !strchr(id, '/'))) /* more likely a file's name than a model's */
        fail(err, "%s: no such file or folder; " FETCH_MODEL, show(id, name));
    else if (!there)
        fail(err, "%s: no such file or folder, and not in the Hugging Face cache (%s); ./download.sh %s fetches it",
             show(id, name), show(cache, shown), name);
    else
        path = main_snapshot(repository, id, err);
    free(repository);
    free(cache);
    return path;
}

/* The file or folder that model means, fresh. */
static char *find_model(const char *model, char err[512])
{
    Shown shown;
    struct stat info;
    if (stat(model, &info) == 0 || lstat(model, &info) == 0)
        return strdup(model);
    if (errno == ENOENT && is_hub_id(model))
        return find_in_cache(model, err);
    fail(err, "%s: %s%s", show(model, shown), strerror(errno), errno == ENOENT ? "; " FETCH_MODEL : "");
    return NULL;
}

char *locate_folder(const char *model, char err[512])
{
    char *path = find_model(model, err);
    if (!path || file_is_folder(path))
        return path;
    char *folder = path_folder(path);
    free(path);
    return folder;
}

/* The running program's own file, links resolved. Fresh; NULL if the system does not tell. */
static char *program_path(void)
{
#ifdef __APPLE__
    char path[4096];
    uint32_t size = sizeof path;
    return _NSGetExecutablePath(path, &size) == 0 ? realpath(path, NULL) : NULL;
#else
    return realpath("/proc/self/exe", NULL);
#endif
}

static bool has_weights(const char *folder)
{
    return contains(folder, WEIGHTS) || contains(folder, INDEX);
}

char *locate_default(bool *is_demo, char err[512])
{
    static const char *const demos[] = {"tests/demo", "../share/run/demo"};
    *is_demo = false;
    if (has_weights("."))
        return strdup(".");
    *is_demo = true;
    char *program = program_path(), *folder = program ? path_folder(program) : NULL, *found = NULL;
    for (size_t i = 0; i < 2 && folder && !found; i++) {
        char *path = path_join(folder, demos[i]);
        if (path && has_weights(path))
            found = path;
        else
            free(path);
    }
    if (!found)
        fail(err, "there is no " WEIGHTS " here, and no demo model beside the program; "
                  "./download.sh fetches Qwen2.5-0.5B-Instruct");
    free(folder);
    free(program);
    return found;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* The shards that a weight map names, each once, sorted. */
typedef struct {
    char **names;
    size_t n;
} ShardList;

static void free_list(ShardList *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i]);
    free(list->names);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int list_shards(const JsonValue *map, const char *index, ShardList *list, char err[512])
{
    Shown shown, name;
    list->names = calloc(map->length, sizeof *list->names);
    if (!list->names)
        return fail(err, "out of memory for %zu tensors", map->length);
    for (const JsonValue *v = map->child; v; v = v->next) {
        if (v->type != JSON_STRING)
            return fail(err, "%s: weight_map must give every tensor the name of a file", show(index, shown));
        if (!is_plain_name(v->text, v->length))
            return fail(err, "%s: the shard's name \"%s\" must be a plain file name", show(index, shown),
                        text_printable(v->text, v->length, name));
        list->names[list->n] = strndup(v->text, v->length);
        if (!list->names[list->n++])
            return fail(err, "out of memory for %zu tensors", map->length);
    }
    qsort(list->names, list->n, sizeof *list->names, compare_names);
    size_t kept = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0 && strcmp(list->names[i], list->names[kept - 1]) == 0)
            free(list->names[i]);
        else
            list->names[kept++] = list->names[i];
    }
    list->n = kept;
    return 0;
}

static bool value_is(const JsonValue *v, const char *text)
{
    return v->length == strlen(text) && memcmp(v->text, text, v->length) == 0;
}

static int explain_missing_shard(const Checkpoint *c, const JsonValue *map, const char *shard, char err[512])
{
    Shown shown, name, tensor;
    const JsonValue *first = NULL;
    size_t n = 0;
    for (const JsonValue *v = map->child; v; v = v->next)
        if (value_is(v, shard)) {
            first = first ? first : v;
            n++;
        }
    text_printable(first->key, first->key_length, tensor);
    return fail(err, "%s: its shard %s is missing, with %zu tensor%s (\"%s\"%s); " FETCH, show(c->index_path, shown),
                show(shard, name), n, n > 1 ? "s" : "", tensor, n > 1 ? " ..." : "");
}

static int open_shards(Checkpoint *c, const JsonValue *map, const ShardList *list, char err[512])
{
    SafetensorsFile *st = &c->st;
    st->shards = calloc(list->n, sizeof *st->shards);
    if (!st->shards)
        return fail(err, "out of memory for %zu shards", list->n);
    for (size_t i = 0; i < list->n; i++) {
        SafetensorsFile *shard = &st->shards[i];
        char *path = path_join(c->directory, list->names[i]);
        if (!path)
            return fail(err, "out of memory");
        if (!contains(c->directory, list->names[i])) {
            free(path);
            return explain_missing_shard(c, map, list->names[i], err);
        }
        shard->read_into_memory = st->read_into_memory;
        int result = safetensors_open(path, shard);
        if (result != 0)
            explain_file(shard, path, err);
        free(path);
        if (result != 0)
            return -1;
        st->n_shards++;
    }
    return safetensors_join_shards(st) == 0 ? 0 : fail(err, "%s", st->error);
}

/* Is every tensor of the map where the map says? */
static int check_map(Checkpoint *c, const JsonValue *map, char err[512])
{
    Shown shown, name, shard;
    for (const JsonValue *v = map->child; v; v = v->next) {
        SafetensorsTensor t;
        int found = safetensors_find_n(&c->st, v->key, v->key_length, &t);
        const char *slash = found == 0 ? strrchr(t.file->path, '/') : NULL;
        if (found != 0 || !value_is(v, slash ? slash + 1 : t.file->path))
            return fail(err, "%s: tensor \"%s\" is not in %s", show(c->index_path, shown),
                        text_printable(v->key, v->key_length, name),
                        text_printable(v->text, v->length, shard));
    }
    return 0;
}

static int open_map(Checkpoint *c, const JsonValue *map, char err[512])
{
    Shown shown;
    if (!map || map->type != JSON_OBJECT || map->length == 0)
        return fail(err, "%s is no index of shards: it must have a \"weight_map\" that names tensors",
                    show(c->index_path, shown));
    ShardList list = {0};
    int result = list_shards(map, c->index_path, &list, err);
    if (result == 0)
        result = open_shards(c, map, &list, err);
    if (result == 0)
        result = check_map(c, map, err);
    free_list(&list);
    return result;
}

static int open_index(Checkpoint *c, char err[512])
{
    Shown shown;
    size_t length;
    char why[512], *text = file_read(c->index_path, (size_t)256 << 20, &length, err);
    c->st.path = strdup(c->index_path);
    c->st.fd = -1;
    if (!text || !c->st.path) {
        free(text);
        return text ? fail(err, "out of memory") : -1;
    }
    JsonValue *root = json_parse(text, length, why);
    int result = root ? open_map(c, json_get(root, "weight_map"), err)
                      : fail(err, "%s is not valid JSON: %.200s", show(c->index_path, shown), why);
    json_free(root);
    free(text);
    return result;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static int open_file(Checkpoint *c, const char *path, char err[512])
{
    return safetensors_open(path, &c->st) == 0 ? 0 : explain_file(&c->st, path, err);
}

/* path exists: a folder, an index or a file of weights. */
static int open_path(Checkpoint *c, const char *path, char err[512])
{
    c->from_directory = file_is_folder(path) || text_ends_with(path, ".json");
    c->directory = file_is_folder(path) ? strdup(path) : path_folder(path);
    if (!c->directory)
        return fail(err, "out of memory");
    if (!c->from_directory)
        return open_file(c, path, err);
    if (file_is_folder(path) && !has_weights(path))
        return explain_folder(path, err);
    bool single = file_is_folder(path) && contains(path, WEIGHTS);
    char *file = single ? path_join(path, WEIGHTS) : file_is_folder(path) ? path_join(path, INDEX) : strdup(path);
    if (!file)
        return fail(err, "out of memory");
    if (!single) {
        c->index_path = file;
        return open_index(c, err);
    }
    int result = open_file(c, file, err);
    free(file);
    return result;
}

int checkpoint_open(Checkpoint *c, const char *model, bool read_into_memory, char err[512])
{
    *c = (Checkpoint){.argument = strdup(model), .st = {.fd = -1, .read_into_memory = read_into_memory}};
    fail(err, "out of memory"); /* unless something else is found */
    char *path = find_model(model, err);
    int result = path && c->argument ? open_path(c, path, err) : -1;
    free(path);
    if (result != 0)
        checkpoint_close(c);
    return result;
}

void checkpoint_close(Checkpoint *c)
{
    safetensors_close(&c->st);
    free(c->argument);
    free(c->directory);
    free(c->index_path);
    *c = (Checkpoint){.st = {.fd = -1}};
}

size_t checkpoint_tensor_count(const Checkpoint *c)
{
    return c->st.n_tensors;
}

const SafetensorsTensor *checkpoint_tensor(const Checkpoint *c, size_t i)
{
    return &c->st.tensors[i];
}

const char *const checkpoint_companions[CHECKPOINT_COMPANIONS] = {
    "config.json", "generation_config.json",  "tokenizer.json",    "tokenizer_config.json", "vocab.json",
    "merges.txt",  "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};

size_t checkpoint_file_count(const Checkpoint *c)
{
    return c->st.n_shards ? c->st.n_shards : 1;
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
        Shown shown;
        if (f->read_into_memory)
            continue;
        if (fstat(f->fd, &info) != 0)
            return fail(err, "%s: %s", show(f->path, shown), strerror(errno));
        if ((uint64_t)info.st_size != f->mapped_size)
            return fail(err, "%s had %zu bytes and has %lld now: it changed while it was in use", show(f->path, shown),
                        f->mapped_size, (long long)info.st_size);
    }
    return 0;
}
