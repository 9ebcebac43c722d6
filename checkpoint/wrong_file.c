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

#define SERVER "a server's message that was saved under this name; "
#define PYTORCH "a PyTorch checkpoint (.bin, .pt); run reads safetensors only: "

/* What a file is, to follow "PATH is". If `then` is not NULL, the name of the program that fetches models follows, and
 * then `then`. */
typedef struct {
    const char *what, *then;
} Description;

static const char git_lfs_pointer[] = "a Git LFS pointer, not the file itself; get that with git lfs pull or ";

#define BEGINS(bytes) bytes, sizeof bytes - 1

static const struct {
    const char *bytes;
    size_t length;
    Description description;
} kinds[] = {
    {BEGINS("version https://git-lfs"), {git_lfs_pointer, ""}},
    {BEGINS("\x1f\x8b\x08"), {"compressed with gzip; unpack it with gunzip", NULL}},
    {BEGINS("\x28\xb5\x2f\xfd"), {"compressed with zstd; unpack it with zstd -d", NULL}},
    {BEGINS("\xfd\x37zXZ"), {"compressed with xz; unpack it with xz -d", NULL}},
    {BEGINS("BZh"), {"compressed with bzip2; unpack it with bunzip2", NULL}},
    {BEGINS("PK\x03\x04"), {"a zip archive, most likely " PYTORCH, " fetches it"}},
    {BEGINS("\x80\x02"), {"a Python pickle, most likely " PYTORCH, " fetches it"}},
    {BEGINS("\x80\x03"), {"a Python pickle, most likely " PYTORCH, " fetches it"}},
    {BEGINS("\x80\x04"), {"a Python pickle, most likely " PYTORCH, " fetches it"}},
    {BEGINS("\x80\x05"), {"a Python pickle, most likely " PYTORCH, " fetches it"}},
    {BEGINS("GGUF"), {"a GGUF file, which is for llama.cpp; run reads safetensors only: ", " fetches it"}},
    {BEGINS("\x89HDF\r\n"), {"an HDF5 file (TensorFlow, Keras); run reads safetensors only: ", " fetches it"}},
    {BEGINS("Entry not found"), {"\"Entry not found\", " SERVER, " fetches it"}},
    {BEGINS("Repository not found"), {"\"Repository not found\", " SERVER, " fetches it"}},
    {BEGINS("Invalid rev id"), {"\"Invalid rev id\", " SERVER, " fetches it"}},
    {BEGINS("Invalid username or password"), {"\"Invalid username or password\", " SERVER, " fetches it"}},
    {BEGINS("Access to model"), {"\"Access to model ... is restricted\", " SERVER, " fetches it"}},
    {BEGINS("<?xml"), {"XML, most likely " SERVER, " fetches it"}},
    {BEGINS("<Error>"), {"XML, most likely " SERVER, " fetches it"}},
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
static Description describe(const unsigned char *bytes, size_t length, uint64_t file_size)
{
    const char *text = (const char *)bytes;
    if (file_size == 0)
        return (Description){"empty; ", " fetches it"};
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (length >= kinds[i].length && memcmp(bytes, kinds[i].bytes, kinds[i].length) == 0)
            return kinds[i].description;
    if (length >= 262 && memcmp(bytes + 257, "ustar", 5) == 0)
        return (Description){"a tar archive; unpack it with tar -xf", NULL};
    if (length >= 16 && bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0)
        return (Description){"full of zeros, as a download that was cut short leaves them; ", " fetches it"};
    if (!is_text(bytes, length))
        return (Description){NULL, NULL};
    if (strcasestr(text, "<!doctype html") || strcasestr(text, "<html"))
        return (Description){"an HTML page that was saved under this name; ", " fetches it"};
    if (strcasestr(text, "\"error\""))
        return (Description){"JSON, most likely " SERVER, " fetches it"};
    if (strcasestr(text, "\"weight_map\""))
        return (Description){"an index of shards; its name should end in .index.json", NULL};
    return (Description){"a text file, not a safetensors file; ", " fetches a model"};
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
            is = describe(bytes, (size_t)n, size);
        }
    } else if (file_exists(path) && stat(path, &info) != 0) {
        return fail(err, "%s is a link to a file that is not there; %s fetches it", shown, locate_download_command());
    }
    if (!is.what)
        return fail(err, "%.400s%s%s%s", st->error, st->truncated ? "; " : "",
                    st->truncated ? locate_download_command() : "",
                    st->truncated ? " mends a download that was cut short" : "");
    int length = snprintf(err, 512, "%s is %s%s%s", shown, is.what, is.then ? locate_download_command() : "",
                          is.then ? is.then : "");
    uint64_t real_size = is.what == git_lfs_pointer ? pointer_size((const char *)bytes) : 0;
    if (real_size > 0)
        snprintf(err + length, 512 - (size_t)length, "; the real file has %" PRIu64 " bytes", real_size);
    return -1;
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
                    locate_download_command());
    Description is = others[best].description;
    if (text_ends_with(name, ".safetensors") && strstr(name, "-of-")) /* model-00001-of-00002.safetensors */
        is = (Description){"a shard, whose index is missing: ", " fetches it"};
    return fail(err, "%s has no " WEIGHTS_NAME ", but %s: %s%s%s", shown, path_printable(name, other), is.what,
                is.then ? locate_download_command() : "", is.then ? is.then : "");
}
