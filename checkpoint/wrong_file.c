#include "checkpoint/wrong_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/locate.h"

#define FETCH "./download.sh fetches it"
#define FETCH_SAFETENSORS "./download.sh fetches the safetensors"
#define SERVER "a server's message that was saved under this name; " FETCH
#define PYTORCH "a PyTorch checkpoint (.bin, .pt); run reads safetensors only: " FETCH

static const char git_lfs_pointer[] =
    "a Git LFS pointer, not the file itself; get that with git lfs pull or ./download.sh";

#define BEGINS(bytes) bytes, sizeof bytes - 1

static const struct {
    const char *bytes;
    size_t length;
    const char *what;
} kinds[] = {
    {BEGINS("version https://git-lfs"), git_lfs_pointer},
    {BEGINS("\x1f\x8b\x08"), "compressed with gzip; unpack it with gunzip"},
    {BEGINS("\x28\xb5\x2f\xfd"), "compressed with zstd; unpack it with zstd -d"},
    {BEGINS("\xfd\x37zXZ"), "compressed with xz; unpack it with xz -d"},
    {BEGINS("BZh"), "compressed with bzip2; unpack it with bunzip2"},
    {BEGINS("PK\x03\x04"), "a zip archive, most likely " PYTORCH},
    {BEGINS("\x80\x02"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x03"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x04"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("\x80\x05"), "a Python pickle, most likely " PYTORCH},
    {BEGINS("GGUF"), "a GGUF file, which is for llama.cpp; run reads safetensors only: " FETCH},
    {BEGINS("\x89HDF\r\n"), "an HDF5 file (TensorFlow, Keras); run reads safetensors only: " FETCH},
    {BEGINS("Entry not found"), "\"Entry not found\", " SERVER},
    {BEGINS("Repository not found"), "\"Repository not found\", " SERVER},
    {BEGINS("Invalid rev id"), "\"Invalid rev id\", " SERVER},
    {BEGINS("Invalid username or password"), "\"Invalid username or password\", " SERVER},
    {BEGINS("Access to model"), "\"Access to model ... is restricted\", " SERVER},
    {BEGINS("<?xml"), "XML, most likely " SERVER},
    {BEGINS("<Error>"), "XML, most likely " SERVER},
};

/* No control characters, and no bytes that UTF-8 never has. */
static bool is_text(const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] == 0x7f || bytes[i] >= 0xf5 || (bytes[i] < 0x20 && !memchr("\t\n\f\r", bytes[i], 4)))
            return false;
    return true;
}

/* Say what a file is, to follow "PATH is", by its first bytes, which a NUL ends. NULL if they do not tell. */
static const char *describe(const unsigned char *bytes, size_t length, uint64_t file_size)
{
    const char *text = (const char *)bytes;
    if (file_size == 0)
        return "empty; " FETCH;
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (length >= kinds[i].length && memcmp(bytes, kinds[i].bytes, kinds[i].length) == 0)
            return kinds[i].what;
    if (length >= 262 && memcmp(bytes + 257, "ustar", 5) == 0)
        return "a tar archive; unpack it with tar -xf";
    if (length >= 16 && bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0)
        return "full of zeros, as a download that was cut short leaves them; " FETCH;
    if (!is_text(bytes, length))
        return NULL;
    if (strcasestr(text, "<!doctype html") || strcasestr(text, "<html"))
        return "an HTML page that was saved under this name; " FETCH;
    if (strcasestr(text, "\"error\""))
        return "JSON, most likely " SERVER;
    if (strcasestr(text, "\"weight_map\""))
        return "an index of shards; its name should end in .index.json";
    return "a text file, not a safetensors file; " FETCH_MODEL;
}

/* The size that a Git LFS pointer gives in its line "size N"; 0 if it has none. */
static uint64_t pointer_size(const char *text)
{
    const char *line = strstr(text, "\nsize ");
    return line ? strtoull(line + 6, NULL, 10) : 0;
}

int wrong_file_explain(const SafetensorsFile *st, const char *path, char err[512])
{
    unsigned char bytes[513];
    char unused[512], shown[TEXT_PRINTABLE];
    const char *what = NULL;
    struct stat info;
    size_t size;
    path_printable(path, shown);
    int fd = file_open(path, &size, unused);
    if (fd >= 0) {
        ssize_t n = pread(fd, bytes, sizeof bytes - 1, 0);
        close(fd);
        if (n >= 0) {
            bytes[n] = '\0';
            what = describe(bytes, (size_t)n, size);
        }
    } else if (file_exists(path) && stat(path, &info) != 0) {
        return fail(err, "%s is a link to a file that is not there; " FETCH, shown);
    }
    if (what == git_lfs_pointer && pointer_size((const char *)bytes) > 0)
        return fail(err, "%s is %s; the real file has %" PRIu64 " bytes", shown, what,
                    pointer_size((const char *)bytes));
    if (what)
        return fail(err, "%s is %s", shown, what);
    return fail(err, "%.440s%s", st->error, st->truncated ? "; ./download.sh mends a download that was cut short" : "");
}

/* What a folder may have instead of weights. The first of these that is found is named. */
static const struct {
    const char *end, *what;
} others[] = {
    {".part", "an unfinished file: ./download.sh resumes a download; do a split or merge again"},
    {".safetensors", "name that file itself"},
    {".gguf", "a GGUF file, which is for llama.cpp: " FETCH_SAFETENSORS},
    {".bin", "a PyTorch checkpoint, which run does not read: " FETCH_SAFETENSORS},
    {".pt", "a PyTorch checkpoint, which run does not read: " FETCH_SAFETENSORS},
    {".pth", "a PyTorch checkpoint, which run does not read: " FETCH_SAFETENSORS},
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
        return fail(err, "%s has neither " WEIGHTS_NAME " nor " WEIGHTS_INDEX_NAME "; " FETCH_MODEL, shown);
    bool is_shard = text_ends_with(name, ".safetensors") && strstr(name, "-of-"); /* model-00001-of-00002.safetensors */
    return fail(err, "%s has no " WEIGHTS_NAME ", but %s: %s", shown, path_printable(name, other),
                is_shard ? "a shard, whose index is missing: " FETCH : others[best].what);
}
