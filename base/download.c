#include "base/download.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* The file of the running program, links resolved; fresh. NULL if the system does not tell. */
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

char *download_program_folder(void)
{
    char *program = program_path(), *folder = program ? path_folder(program) : NULL;
    free(program);
    return folder;
}

/* Can the path be typed as it is, and is it short enough for a message? */
static bool is_plain(const char *path)
{
    size_t length = strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-");
    return length <= 34 && !path[length];
}

const char *download_command(void)
{
    static char beside[64]; /* the script beside a program that is run from elsewhere */
    const char *command = "./download.sh";
    char *folder = file_exists("download.sh") ? NULL : download_program_folder();
    if (folder && file_exists_in(folder, "run-download")) {
        command = "run-download";
    } else if (folder && file_exists_in(folder, "download.sh") && is_plain(folder)) {
        snprintf(beside, sizeof beside, "%s/download.sh", folder);
        command = beside;
    }
    free(folder);
    return command;
}

/* ---- what a file is ---------------------------------------------------------------------------------------------- */

#define SERVER "a server's message that was saved under this name; "

/* What follows `what`: nothing, the command that downloads a model, or that and the word "fetches". */
typedef enum { NOTHING, COMMAND, COMMAND_FETCHES_IT } Then;

static const char git_lfs_pointer[] = "a Git LFS pointer, not the file itself; get that with git lfs pull or ";

#define BEGINS(bytes) bytes, sizeof bytes - 1

static const struct {
    const char *bytes;
    size_t length;
    const char *what;
    Then then;
} kinds[] = {
    {BEGINS("version https://git-lfs"), git_lfs_pointer, COMMAND},
    {BEGINS("\x1f\x8b\x08"), "compressed with gzip; unpack it with gunzip", NOTHING},
    {BEGINS("\x28\xb5\x2f\xfd"), "compressed with zstd; unpack it with zstd -d", NOTHING},
    {BEGINS("\xfd\x37zXZ"), "compressed with xz; unpack it with xz -d", NOTHING},
    {BEGINS("BZh"), "compressed with bzip2; unpack it with bunzip2", NOTHING},
    {BEGINS("Entry not found"), "\"Entry not found\", " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("Repository not found"), "\"Repository not found\", " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("Invalid rev id"), "\"Invalid rev id\", " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("Invalid username or password"), "\"Invalid username or password\", " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("Access to model"), "\"Access to model ... is restricted\", " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("<?xml"), "XML, most likely " SERVER, COMMAND_FETCHES_IT},
    {BEGINS("<Error>"), "XML, most likely " SERVER, COMMAND_FETCHES_IT},
};

/* The size that a Git LFS pointer gives in its line "size N"; 0 if it has none. */
static uint64_t pointer_size(const char *text)
{
    const char *line = strstr(text, "\nsize ");
    return line ? strtoull(line + 6, NULL, 10) : 0;
}

bool download_tell(const char *bytes, size_t length, size_t file_size, char out[320])
{
    char text[513]; /* the first bytes with a NUL behind them */
    const char *what = NULL;
    Then then = COMMAND_FETCHES_IT;
    length = MIN(length, sizeof text - 1);
    memcpy(text, bytes, length);
    text[length] = '\0';
    for (size_t i = 0; i < COUNT_OF(kinds) && !what; i++)
        if (length >= kinds[i].length && memcmp(text, kinds[i].bytes, kinds[i].length) == 0) {
            what = kinds[i].what;
            then = kinds[i].then;
        }
    if (file_size == 0) {
        what = "empty; ";
    } else if (length >= 262 && memcmp(text + 257, "ustar", 5) == 0) {
        what = "a tar archive; unpack it with tar -xf";
        then = NOTHING;
    } else if (length >= 16 && text[0] == 0 && memcmp(text, text + 1, length - 1) == 0) {
        what = "full of zeros, as a download that was cut short leaves them; ";
    } else if (!what && (strcasestr(text, "<!doctype html") || strcasestr(text, "<html"))) {
        what = "an HTML page that was saved under this name; ";
    }
    if (!what)
        return false;
    snprintf(out, 320, "%s%s%s", what, then == NOTHING ? "" : download_command(),
             then == COMMAND_FETCHES_IT ? " fetches it" : "");
    uint64_t real_size = what == git_lfs_pointer ? pointer_size(text) : 0;
    if (real_size > 0)
        snprintf(out + strlen(out), 64, "; the real file has %" PRIu64 " bytes", real_size);
    return true;
}

int download_fail(const char *path, const char *text, size_t length, const char *why, char err[512])
{
    char shown[TEXT_PRINTABLE], what[320];
    path_printable(path, shown);
    if (download_tell(text, length, length, what))
        return fail(err, "%s is %s", shown, what);
    return fail(err, "%s: %.370s", shown, why);
}
