#include "checkpoint/wrong_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

int wrong_file_explain_folder(const char *folder, char err[512])
{
    size_t best = COUNT_OF(others);
    char name[256] = "", shown[TEXT_PRINTABLE], other[TEXT_PRINTABLE];
    DIR *dir = opendir(folder);
    path_printable(folder, shown);
    if (!dir)
        return fail(err, "%s: %s", shown, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t kind = 0;
        while (kind < COUNT_OF(others) && !text_ends_with(entry->d_name, others[kind].end))
            kind++;
        if (kind < best || (kind == best && *name && strcmp(entry->d_name, name) < 0)) {
            best = kind;
            snprintf(name, sizeof name, "%s", entry->d_name);
        }
    }
    closedir(dir);
    if (!*name)
        return fail(err, "%s has neither " WEIGHTS_NAME " nor " WEIGHTS_INDEX_NAME "; %s fetches a model", shown,
                    download_command());
    Description is = others[best].description;
    if (text_ends_with(name, ".safetensors") && strstr(name, "-of-")) /* model-00001-of-00002.safetensors */
        is = (Description){"a shard, whose index is missing: ", " fetches it"};
    return fail(err, "%s has no " WEIGHTS_NAME ", but %s: %s%s%s", shown, path_printable(name, other), is.what,
                is.then ? download_command() : "", is.then ? is.then : "");
}
