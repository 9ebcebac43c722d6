#include "commands/input.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unicode.h"
#include "commands/output.h"
#include "commands/terminal.h"

int input_read(int fd, InputTake *take, void *context)
{
    char chunk[1 << 14];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n > 0)
            take(context, chunk, (size_t)n);
        else if (errno != EINTR)
            return -1;
    }
    return 0;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

#define TEXT_MOST ((size_t)1 << 30) /* bytes of a text: reading one that never ends stops there */

typedef struct {
    Text *text;
    const char *path;
    size_t most;
} Reading;

static void append_bytes(void *context, const void *bytes, size_t n)
{
    const Reading *r = context;
    if (r->most == 0)
        die(EXIT_FAILED, "%s: is a device, not a text", input_name(r->path));
    if (r->text->length + n > r->most)
        die(EXIT_FAILED, "%s: has more than %zu bytes: a text can have no more", input_name(r->path), r->most);
    xappend(r->text, bytes, n);
}

const char *input_name(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

/* Open a file that was named as a text. It may be a pipe, such as a shell's <(...), but not one that nothing writes to:
 * whether that is so shows only in reading, so its first bytes are taken here. */
static int open_text(Reading *r)
{
    struct stat info;
    int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &info) != 0)
        die(EXIT_FAILED, "%s: %s", r->path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        die(EXIT_FAILED, "%s: is a folder, not a file", r->path);
    if (S_ISFIFO(info.st_mode)) {
        char first[4096];
        ssize_t n = read(fd, first, sizeof first);
        for (int tries = 0; n == 0 && tries < 50; tries++) { /* who writes may have been started together with us */
            poll(NULL, 0, 10);
            n = read(fd, first, sizeof first);
        }
        if (n == 0)
            die(EXIT_FAILED, "%s: is an empty pipe: nothing writes to it", r->path);
        if (n > 0)
            xappend(r->text, first, (size_t)n);
    }
    fcntl(fd, F_SETFL, 0); /* from now on wait for what comes */
    return fd;
}

bool input_text(Text *text, const char *argument, const char *file)
{
    if (argument && file)
        usage_error("give a text or --file, not both");
    xappend(text, "", 0);
    if (argument && strcmp(argument, "-")) {
        xappend(text, argument, strlen(argument));
        return true;
    }
    if (!argument && !file && isatty(STDIN_FILENO))
        return false;
    Reading r = {.text = text, .path = file ? file : "-"};
    int fd = strcmp(r.path, "-") ? open_text(&r) : STDIN_FILENO;
    struct stat info;
    if (fstat(fd, &info) == 0 && !S_ISBLK(info.st_mode) && (!S_ISCHR(info.st_mode) || isatty(fd)))
        r.most = TEXT_MOST;
    if (input_read(fd, append_bytes, &r) != 0)
        die(EXIT_FAILED, "%s: %s", input_name(r.path), strerror(errno));
    if (fd != STDIN_FILENO)
        close(fd);
    return true;
}

/* Read at most `most` hexadecimal digits at s. Returns how many there are, their value in *c. */
static size_t hex_digits(const char *s, size_t most, uint32_t *c)
{
    size_t n = 0;
    *c = 0;
    for (; n < most && strchr("0123456789abcdefABCDEF", s[n]) && s[n]; n++)
        *c = *c * 16 + (uint32_t)(s[n] <= '9' ? s[n] - '0' : (s[n] | 32) - 'a' + 10);
    return n;
}

size_t input_unescape(char *text, size_t length)
{
    static const char from[] = "ntre\\", to[] = "\n\t\r\033\\";
    size_t w = 0;
    for (size_t r = 0; r < length;) {
        const char *known;
        uint32_t c;
        size_t digits;
        if (text[r] != '\\' || r + 1 == length) {
            text[w++] = text[r++];
        } else if (text[r + 1] && (known = strchr(from, text[r + 1]))) {
            text[w++] = to[known - from];
            r += 2;
        } else if (text[r + 1] == 'x' && hex_digits(text + r + 2, 2, &c) == 2) {
            text[w++] = (char)c;
            r += 4;
        } else if (text[r + 1] == 'u' && text[r + 2] == '{' && (digits = hex_digits(text + r + 3, 6, &c)) &&
                   text[r + 3 + digits] == '}' && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff)) {
            w += unicode_encode(c, text + w);
            r += digits + 4;
        } else {
            text[w++] = text[r++];
        }
    }
    text[w] = 0;
    return w;
}

/* ---- ids and prompts --------------------------------------------------------------------------------------------- */

IdList input_ids(const char *text)
{
    IdList list = {0};
    for (const char *s = text; s;) {
        char *end;
        errno = 0;
        s += strspn(s, " ");
        unsigned long id = strtoul(s, &end, 10);
        char after = end[strspn(end, " ")];
        if (*s < '0' || *s > '9' || errno || id > INT_MAX || (after && after != ','))
            usage_error("--ids: '%.100s' is not a list of token ids such as 1,2,3", text);
        xappend_id(&list, (int)id);
        s = after ? strchr(end, ',') + 1 : NULL;
    }
    return list;
}

void input_prompt(Prompt *p, const char *argument)
{
    if (p->ids && (argument || p->file))
        usage_error("give a text or --ids, not both");
    if (p->ids) { /* wrong ids are reported before anything is loaded */
        IdList ids = input_ids(p->ids);
        id_list_free(&ids);
        return;
    }
    if (!input_text(&p->text, argument, p->file))
        usage_error("no PROMPT: give one as an argument, with -f FILE, or on standard input");
    if (p->escapes)
        p->text.length = input_unescape(p->text.bytes, p->text.length);
}
