#include "commands/requests.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/output.h"
#include "commands/terminal.h"

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Read some more, at the end of the text. */
static void read_some(Lines *l)
{
    char chunk[1 << 14];
    fflush(stdout);
    ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        die(EXIT_FAILED, "standard input: %s", strerror(errno));
    if (n > 0)
        xappend(&l->text, chunk, (size_t)n);
    l->ended = n == 0;
}

static bool something_is_there(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) > 0;
}

LinesStatus lines_take(Lines *l, bool wait, const char **line, size_t *length)
{
    if (l->at > l->text.length / 2) { /* forget the lines that were taken */
        l->text.length -= l->at;
        memmove(l->text.bytes, l->text.bytes + l->at, l->text.length);
        l->at = 0;
    }
    for (size_t searched = l->at; !interrupted;) {
        size_t more = l->text.length - searched;
        const char *end = more ? memchr(l->text.bytes + searched, '\n', more) : NULL;
        if (end || (l->ended && l->text.length > l->at)) {
            *line = l->text.bytes + l->at;
            *length = end ? (size_t)(end - *line) : l->text.length - l->at;
            l->at += *length + (end ? 1 : 0);
            l->number++;
            return LINES_TAKEN;
        }
        if (l->ended)
            return LINES_END;
        searched = l->text.length;
        if (!wait && !something_is_there())
            return LINES_NOT_YET;
        read_some(l);
    }
    return LINES_END;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

int request_check_fields(const JsonValue *request, const char *const *known, size_t n, char err[512])
{
    char name[TEXT_PRINTABLE];
    for (const JsonValue *v = request->type == JSON_OBJECT ? request->child : NULL; v; v = v->next) {
        bool is_known = false;
        for (size_t i = 0; i < n; i++)
            is_known = is_known || json_key_is(v, known[i]);
        if (!is_known)
            return fail(err, "unknown field \"%s\"", text_printable(v->key, v->key_length, name));
    }
    return 0;
}

int request_ids(const JsonValue *list, IdList *ids, char err[512])
{
    if (list->type != JSON_ARRAY)
        return fail(err, "\"ids\" should be a list");
    for (const JsonValue *v = list->child; v; v = v->next) {
        uint64_t id;
        if (json_u64(v, &id) || id > UINT32_MAX)
            return fail(err, "\"ids\" should hold integers from 0 to %u", UINT32_MAX);
        xappend_id(ids, id > INT_MAX ? -1 : (int)id);
    }
    return 0;
}

static int read_messages(const JsonValue *list, Message *messages, char err[512])
{
    for (const JsonValue *v = list->child; v; v = v->next) {
        const JsonValue *role = json_get(v, "role"), *content = json_get(v, "content"),
                        *calls = json_get(v, "tool_calls");
        if (!role || role->type != JSON_STRING || !content || content->type != JSON_STRING)
            return fail(err, "each message should have a \"role\" and a \"content\", both strings");
        if (calls && calls->type != JSON_NULL && calls->length)
            return fail(err, "\"tool_calls\" are not supported");
        *messages++ = (Message){role->text, content->text, role->length, content->length};
    }
    return 0;
}

Message *request_messages(const JsonValue *list, char err[512])
{
    if (list->type != JSON_ARRAY) {
        fail(err, "\"messages\" should be a list");
        return NULL;
    }
    Message *messages = xcalloc(MAX(list->length, 1), sizeof *messages);
    if (read_messages(list, messages, err) == 0)
        return messages;
    free(messages);
    return NULL;
}
