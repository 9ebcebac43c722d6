#include "checkpoint/wrong_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/download.h"
#include "base/file.h"
#include "checkpoint/locate.h"

#define PYTORCH "a PyTorch checkpoint (.bin, .pt); run reads safetensors only: "

/* What a file is, to follow "PATH is". If `then` is not NULL, the name of the program that fetches models follows, and
 * then `then`. */
typedef struct {
    const char *what, *then;
} Description;

#define BEGINS(bytes) bytes, sizeof bytes - 1

/* Checkpoints of other formats. */
static const struct {
    const char *bytes;
    size_t length;
    const char *what;
} formats[] = {
    {BEGINS("PK\x03\x04"), "a zip archive, most likely " PYTORCH},
    {BEGINS("\x80\x02"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x03"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x04"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x05"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("GGUF"), "a GGUF file, which is for llama.cpp; run reads safetensors only: "},
    {BEGINS("\x89HDF\r\n"), "an HDF5 file (TensorFlow, Keras); run reads safetensors only: "},
};

/* No control characters, and no bytes that UTF-8 never has. */
static bool is_text(const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] == 0x7f || bytes[i] >= 0xf5 || (bytes[i] < 0x20 && !memchr("\t\n\f\r", bytes[i], 4)))
            return false;
    return true;
}

/* Tell what a file is by its first bytes, which a NUL ends; what is NULL if they do not tell. */
static Description describe(const unsigned char *bytes, size_t length)
{
    const char *text = (const char *)bytes;
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (length >= formats[i].length && memcmp(bytes, formats[i].bytes, formats[i].length) == 0)
            return (Description){formats[i].what, " fetches it"};
    if (!is_text(bytes, length))
        return (Description){NULL, NULL};
    if (strcasestr(text, "\"error\""))
        return (Description){"JSON, most likely a server's message that was saved under this name; ", " fetches it"};
    if (strcasestr(text, "\"weight_map\""))
        return (Description){"an index of shards; its name should end in .index.json", NULL};
    return (Description){"a text file, not a safetensors file; ", " fetches a model"};
}

int wrong_file_explain(const SafetensorsFile *st, const char *path, char err[512])
{
    unsigned char bytes[513];
    char unused[512], shown[TEXT_PRINTABLE], told[320];
    Description is = {NULL, NULL};
    struct stat info;
    size_t size;
    path_printable(path, shown);
    int fd = file_open(path, &size, unused);
    if (fd >= 0) {
        ssize_t n = pread(fd, bytes, sizeof bytes - 1, 0);
        close(fd);
        if (n >= 0) {
            bytes[n] = '\0';
            if (download_tell((const char *)bytes, (size_t)n, size, told))
                return fail(err, "%s is %s", shown, told);
            is = describe(bytes, (size_t)n);
        }
    } else if (file_exists(path) && stat(path, &info) != 0) {
        return fail(err, "%s is a link to a file that is not there; %s fetches it", shown, download_command());
    }
    if (!is.what)
        return fail(err, "%.400s%s%s%s", st->error, st->truncated ? "; " : "", st->truncated ? download_command() : "",
                    st->truncated ? " mends a download that was cut short" : "");
    return fail(err, "%s is %s%s%s", shown, is.what, is.then ? download_command() : "", is.then ? is.then : "");
}

/* ---- LoRA adapters, and names that the model's do not have ------------------------------------------------------- */

/* The model that the folder's adapter_config.json names as the adapter's base, for a message: "" if it names none. */
static void adapter_base(const char *folder, char out[TEXT_PRINTABLE])
{
    char unused[512], *path = path_join(folder, "adapter_config.json");
    size_t length;
    char *text = path ? file_read(path, (size_t)1 << 20, &length, unused) : NULL;
    JsonValue *root = text ? json_parse(text, length, unused) : NULL;
    const JsonValue *base = json_get(root, "base_model_name_or_path");
    out[0] = '\0';
    if (base && base->type == JSON_STRING)
        text_printable(base->text, base->length, out);
    json_free(root);
    free(text);
    free(path);
}

/* base: "", or what adapter_base() gave. */
static int explain_adapter(const char *path, const char *base, char err[512])
{
    char shown[TEXT_PRINTABLE];
    return fail(err,
                "%s is a LoRA adapter, not a model: merge it into its base%s%s first (PEFT: merge_and_unload(), then "
                "save_pretrained())",
                path_printable(path, shown), *base ? " " : "", base);
}

static bool has_lora(const SafetensorsFile *st)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        if (memmem(st->tensors[i].name, st->tensors[i].name_length, ".lora_A.", 8))
            return true;
    return false;
}

bool wrong_file_is_adapter(const SafetensorsFile *st, const char *folder, char err[512])
{
    char base[TEXT_PRINTABLE];
    if (!file_exists_in(folder, "adapter_config.json") && !file_exists_in(folder, "adapter_model.safetensors") &&
        !(st && has_lora(st)))
        return false;
    adapter_base(folder, base);
    explain_adapter(st ? st->path : folder, base, err);
    return true;
}

/* Who leaves a prefix before the names of a model. */
static const char *prefix_source(const char *prefix)
{
    static const char *const known[][2] = {{"module.", ", which DataParallel adds"},
                                           {"_orig_mod.", ", which torch.compile() adds"},
                                           {"base_model.", ", which PEFT adds"}};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strncmp(prefix, known[i][0], strlen(known[i][0])) == 0)
            return known[i][1];
    return "";
}

int wrong_file_explain_names(const SafetensorsFile *st, const char *name, char err[512])
{
    const char *layers = strstr(name, "layers."), *tail = layers ? layers : name;
    size_t n = strlen(tail);
    char prefix[TEXT_PRINTABLE];
    if (has_lora(st))
        return explain_adapter(st->path, "", err);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const SafetensorsTensor *t = &st->tensors[i];
        size_t before = t->name_length > n ? t->name_length - n : 0;
        if (!before || t->name[before - 1] != '.' || memcmp(t->name + before, tail, n) != 0)
            continue;
        if (before > 6 && memcmp(t->name + before - 6, "model.", 6) == 0)
            before -= 6;
        text_printable(t->name, before, prefix);
        return fail(err,
                    "%.300s; its names begin with \"%s\"%s: rename its tensors without it, in Python "
                    "save_file({k[%zu:]: v for k, v in load_file(OLD).items()}, NEW)",
                    st->error, prefix, prefix_source(prefix), before);
    }
    return fail(err, "%s", st->error);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* What a folder may have instead of weights. The first of these that is found is named. */
static const struct {
    const char *end;
    Description description;
} others[] = {
    {".part", {"an unfinished file: do a split or merge again; a download is resumed by ", ""}},
    {".safetensors", {"name that file itself", NULL}},
    {".gguf", {"a GGUF file, which is for llama.cpp: ", " fetches the safetensors"}},
    {".bin", {"a PyTorch checkpoint, which run does not read: ", " fetches the safetensors"}},
    {".pt", {"a PyTorch checkpoint, which run does not read: ", " fetches the safetensors"}},
    {".pth", {"a PyTorch checkpoint, which run does not read: ", " fetches the safetensors"}},
};

/* Is there a model or an adapter in this sub-folder, checkpoint-STEP, as a trainer saves it? STEP is at least 1. */
static bool is_trainers(const char *folder, const char *name, uint64_t *step)
{
    static const char begin[] = "checkpoint-";
    const char *digits = name + strlen(begin);
    char *path;
    if (strncmp(name, begin, strlen(begin)) != 0 || strspn(digits, "0123456789") != strlen(digits) ||
        !(path = path_join(folder, name)))
        return false;
    bool is = locate_has_weights(path) || file_exists_in(path, "adapter_model.safetensors");
    free(path);
    *step = strtoull(digits, NULL, 10);
    return is;
}

int wrong_file_explain_folder(const char *folder, char err[512])
{
    size_t best = COUNT_OF(others);
    char name[256] = "", shown[TEXT_PRINTABLE], other[TEXT_PRINTABLE];
    uint64_t step, last_step = 0;
    if (wrong_file_is_adapter(NULL, folder, err))
        return -1;
    DIR *dir = opendir(folder);
    path_printable(folder, shown);
    if (!dir)
        return fail(err, "%s: %s", shown, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t kind = 0;
        if (is_trainers(folder, entry->d_name, &step))
            last_step = MAX(last_step, step);
        while (kind < COUNT_OF(others) && !text_ends_with(entry->d_name, others[kind].end))
            kind++;
        if (kind < best || (kind == best && *name && strcmp(entry->d_name, name) < 0)) {
            best = kind;
            snprintf(name, sizeof name, "%s", entry->d_name);
        }
    }
    closedir(dir);
    if (last_step)
        return fail(err,
                    "%s has no " WEIGHTS_NAME ", but a trainer's checkpoints: give the newest, %s/checkpoint-%" PRIu64,
                    shown, shown, last_step);
    if (!*name)
        return fail(err, "%s has neither " WEIGHTS_NAME " nor " WEIGHTS_INDEX_NAME "; %s fetches a model", shown,
                    download_command());
    Description is = others[best].description;
    if (text_ends_with(name, ".safetensors") && strstr(name, "-of-")) /* model-00001-of-00002.safetensors */
        is = (Description){"a shard, whose index is missing: ", " fetches it"};
    return fail(err, "%s has no " WEIGHTS_NAME ", but %s: %s%s%s", shown, path_printable(name, other), is.what,
                is.then ? download_command() : "", is.then ? is.then : "");
}
