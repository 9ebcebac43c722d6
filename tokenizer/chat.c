/* Chat messages -> text and ids, as the model's chat template writes them.
 *
 * A template is Jinja. This reads as much of it as ChatML templates use:
 *
 *     {% if C %} {% elif C %} {% else %} {% endif %}  {% for NAME in messages %} {% endfor %}  {{ S + S ... }}  {# #}
 *     C   or, and, not, parentheses, ==, !=, is [not] defined; messages[0], messages[-1], tools (always None),
 *         add_generation_prompt, loop.first, loop.last
 *     S   strings, and attributes of a message: message.role, message['content']
 *
 * Anything else is an error when it is reached; what a template does for tools never is. Each byte of the output has a
 * mark, 1 if it is from a message. A template can be used if it writes two trial conversations as ChatML does. */
#include "tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* What an expression may be. NOTHING is not defined; NONE is defined, as None. */
typedef enum { NOTHING, NONE, FLAG, INTEGER, LITERAL, GIVEN, MESSAGES, MESSAGE, LOOP } Kind;

typedef struct {
    Kind kind;
    long number;      /* FLAG, INTEGER: its value; MESSAGE: its index */
    const char *text; /* LITERAL: as the template writes it; GIVEN: from a message */
    size_t length;
} Value;

#define MAX_NESTING 32
/* An `if` or `for` that is open. */
typedef struct {
    bool outer_active, taken; /* taken: a branch of this `if` was active */
    bool line_start;          /* whether the body of this loop starts a line */
    const char *body;         /* of a loop: where it starts; NULL for an `if` */
} Block;

typedef struct {
    const char *at, *end; /* the rest of the template; a NUL follows */
    const Message *messages;
    size_t count, index; /* of messages; of the one that the loop is at */
    bool generation_prompt;
    const char *variable; /* the name that the loop gives to a message; NULL outside of a loop */
    size_t variable_length;
    Block blocks[MAX_NESTING];
    size_t depth;    /* of blocks */
    size_t nesting;  /* of parentheses */
    bool active;     /* false in a branch that is not taken */
    bool line_start; /* whether `at` is at the start of a line */
    int unevaluated; /* how many `or` and `and` around here are decided already */
    Text *out, *marks;
    const char *file; /* that the template was read from, for messages */
    char *err;
} Chat;

static bool is_blank(char b)
{
    return b == ' ' || (b >= '\t' && b <= '\r');
}

static int unknown_syntax(Chat *c, const char *from)
{
    while (is_blank(*from))
        from++;
    if (from == c->end)
        return fail(c->err, "%s: the chat template ends inside a tag", c->file);
    size_t n = 1 + strcspn(from + 1, "\n%}");
    n = text_complete_prefix(from, MIN(n, 48));
    return fail(c->err, "%s: the chat template has \"%.*s\", which is not supported", c->file, (int)n, from);
}

/* Write bytes to the output. mark: 1 if they are from a message, which may contain anything. */
static int emit(Chat *c, const char *bytes, size_t length, char mark)
{
    int status = mark ? text_append_replacing(c->out, bytes, length) : text_append(c->out, bytes, length);
    while (status == 0 && c->marks->length < c->out->length)
        status = text_append(c->marks, &mark, 1);
    return status ? fail_memory(c->err) : 0;
}

static bool is_name_byte(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_';
}

static void skip_blanks(Chat *c)
{
    while (is_blank(*c->at))
        c->at++;
}

/* Skip blanks, and then the word if it is next. */
static bool take(Chat *c, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(c);
    if (strncmp(c->at, word, n) != 0 || (is_name_byte(word[n - 1]) && is_name_byte(c->at[n])))
        return false;
    c->at += n;
    return true;
}

/* Skip blanks and a name, and return the length of the name. */
static size_t take_name(Chat *c, const char **name)
{
    skip_blanks(c);
    *name = c->at;
    while (is_name_byte(*c->at))
        c->at++;
    return (size_t)(c->at - *name);
}

static bool is_word(const char *name, size_t length, const char *word)
{
    return text_same(name, length, word, strlen(word));
}

/* 'text' or "text"; c is at the quote. */
static int take_literal(Chat *c, Value *v)
{
    const char *from = c->at++;
    while (c->at < c->end && *c->at != *from)
        c->at += *c->at == '\\' ? 2 : 1; /* an escaped quote does not end it */
    if (c->at >= c->end)
        return unknown_syntax(c, from);
    *v = (Value){.kind = LITERAL, .text = from + 1, .length = (size_t)(c->at - from - 1)};
    c->at++;
    return 0;
}

/* Replace v by v.name, or v['name']. */
static int attribute(Chat *c, Value *v, const char *name, size_t length)
{
    Value of = *v;
    bool first = is_word(name, length, "first"), role = is_word(name, length, "role");
    *v = (Value){.kind = NOTHING};
    if (c->unevaluated)
        return 0;
    if (of.kind == NOTHING)
        return fail(c->err, "%s: the chat template refers to a message that does not exist", c->file);
    if (of.kind == LOOP && (first || is_word(name, length, "last"))) {
        *v = (Value){.kind = FLAG, .number = first ? c->index == 0 : c->index + 1 == c->count};
        return 0;
    }
    if (of.kind != MESSAGE)
        return unknown_syntax(c, name);
    const Message *m = &c->messages[of.number];
    if (role)
        *v = (Value){.kind = GIVEN, .text = m->role, .length = m->role_length};
    else if (is_word(name, length, "content"))
        *v = (Value){.kind = GIVEN, .text = m->content, .length = m->content_length};
    return 0;
}

static int condition(Chat *c, Value *v);

/* A string, a number, a name, or a condition in parentheses. */
static int primary(Chat *c, Value *v)
{
    skip_blanks(c);
    const char *from = c->at, *name;
    *v = (Value){.kind = NOTHING};
    if (*c->at == '\'' || *c->at == '"')
        return take_literal(c, v);
    if (take(c, "(")) {
        if (c->nesting == MAX_NESTING)
            return unknown_syntax(c, from);
        c->nesting++;
        if (condition(c, v))
            return -1;
        c->nesting--;
        return take(c, ")") ? 0 : unknown_syntax(c, from);
    }
    size_t n = take_name(c, &name);
    if (n == 1 && *name >= '0' && *name <= '9')
        *v = (Value){.kind = INTEGER, .number = *name - '0'};
    else if (c->variable && text_same(name, n, c->variable, c->variable_length))
        *v = (Value){.kind = MESSAGE, .number = (long)c->index};
    else if (c->variable && is_word(name, n, "loop"))
        v->kind = LOOP;
    else if (is_word(name, n, "messages"))
        v->kind = MESSAGES;
    else if (is_word(name, n, "add_generation_prompt"))
        *v = (Value){.kind = FLAG, .number = c->generation_prompt};
    else if (is_word(name, n, "tools"))
        v->kind = NONE;
    else
        return unknown_syntax(c, from);
    return 0;
}

/* A primary with the .name, ['name'] and [number] behind it. */
static int operand(Chat *c, Value *v)
{
    const char *from = c->at, *name;
    if (primary(c, v))
        return -1;
    for (;;) {
        Value key;
        if (take(c, ".")) {
            size_t n = take_name(c, &name);
            if (attribute(c, v, name, n))
                return -1;
            continue;
        }
        if (!take(c, "["))
            return 0;
        bool from_end = take(c, "-");
        if (primary(c, &key) || !take(c, "]") || (key.kind != INTEGER && key.kind != LITERAL))
            return unknown_syntax(c, from);
        long i = from_end ? (long)c->count - key.number : key.number;
        if (key.kind == LITERAL && attribute(c, v, key.text, key.length))
            return -1;
        if (key.kind == INTEGER && v->kind != MESSAGES)
            return unknown_syntax(c, from);
        if (key.kind == INTEGER)
            *v = (Value){.kind = i >= 0 && i < (long)c->count ? MESSAGE : NOTHING, .number = i};
    }
}

static bool is_text(const Value *v)
{
    return v->kind == LITERAL || v->kind == GIVEN;
}

static bool is_true(const Value *v)
{
    if (is_text(v))
        return v->length > 0;
    if (v->kind == FLAG || v->kind == INTEGER)
        return v->number != 0;
    return v->kind != NOTHING && v->kind != NONE;
}

/* V, not V, V == V, V != V, V is [not] defined, where V is an operand. */
static int comparison(Chat *c, Value *v)
{
    const char *from = c->at;
    Value right;
    bool invert = false, result;
    while (take(c, "not"))
        invert = !invert;
    if (operand(c, v))
        return -1;
    if (take(c, "==") || take(c, "!=")) {
        bool unequal = c->at[-2] == '!';
        if (operand(c, &right) || !is_text(&right) || memchr(right.text, '\\', right.length))
            return unknown_syntax(c, from);
        result = (is_text(v) && text_same(v->text, v->length, right.text, right.length)) != unequal;
    } else if (take(c, "is")) {
        bool negated = take(c, "not");
        if (!take(c, "defined"))
            return unknown_syntax(c, from);
        result = (v->kind != NOTHING) != negated;
    } else if (invert) {
        result = is_true(v);
    } else {
        return 0;
    }
    *v = (Value){.kind = FLAG, .number = result != invert};
    return 0;
}

/* any = false: comparisons with `and` between them. any = true: such conditions with `or` between them. The first that
 * decides the outcome ends the evaluation. */
static int junction(Chat *c, Value *v, bool any)
{
    if (any ? junction(c, v, false) : comparison(c, v))
        return -1;
    while (take(c, any ? "or" : "and")) {
        bool left = is_true(v), decided = left == any;
        if (decided)
            c->unevaluated++;
        if (any ? junction(c, v, false) : comparison(c, v))
            return -1;
        if (decided)
            c->unevaluated--;
        *v = (Value){.kind = FLAG, .number = decided ? left : is_true(v)};
    }
    return 0;
}

static int condition(Chat *c, Value *v)
{
    return junction(c, v, true);
}

/* The end of a tag, and the white space that is dropped behind it: all of it if the tag ends with "-", one line feed
 * behind a block's tag unless it ends with "+". */
static int tag_end(Chat *c, const char *close)
{
    skip_blanks(c);
    const char *from = c->at;
    char sign = *c->at == '-' || *c->at == '+' ? *c->at++ : 0;
    if (strncmp(c->at, close, 2) != 0)
        return unknown_syntax(c, from);
    c->at += 2;
    if (sign == '-')
        skip_blanks(c);
    else if (sign != '+' && *close != '}' && *c->at == '\n')
        c->at++;
    c->line_start = c->at[-1] == '\n';
    return 0;
}

/* Skip a tag that is not evaluated. Strings in it may contain anything, even what closes a tag. */
static int skip_tag(Chat *c, const char *close)
{
    const char *from = c->at;
    Value ignored;
    while (c->at < c->end && strncmp(c->at, close, 2) != 0) {
        if (*close == '#' || (*c->at != '\'' && *c->at != '"'))
            c->at++;
        else if (take_literal(c, &ignored))
            return -1;
    }
    if (c->at > from && (c->at[-1] == '-' || c->at[-1] == '+'))
        c->at--; /* part of the end */
    return tag_end(c, close);
}

/* The rest of an `if` or `elif` tag. Its condition decides whether what follows is active. */
static int branch(Chat *c, bool evaluate)
{
    Value v;
    c->active = false;
    if (!evaluate)
        return skip_tag(c, "%}");
    if (condition(c, &v) || tag_end(c, "%}"))
        return -1;
    c->active = c->blocks[c->depth - 1].taken = is_true(&v);
    return 0;
}

/* The rest of an `if` or `for` tag. */
static int begin_block(Chat *c, bool loop, const char *from)
{
    Value list;
    if (c->depth == MAX_NESTING)
        return unknown_syntax(c, from);
    Block *b = &c->blocks[c->depth++];
    *b = (Block){.outer_active = c->active};
    if (!loop)
        return branch(c, c->active);
    if (!c->active)
        return skip_tag(c, "%}");
    if (c->variable)
        return unknown_syntax(c, from);
    c->variable_length = take_name(c, &c->variable);
    if (c->variable_length == 0 || !take(c, "in") || operand(c, &list) || list.kind != MESSAGES || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    c->index = 0;
    b->body = c->at;
    b->line_start = c->line_start;
    return 0;
}

/* The rest of an `endif` or `endfor` tag. A loop goes back to its body as long as there are messages. */
static int end_block(Chat *c, bool loop, const char *from)
{
    Block *b = c->depth ? &c->blocks[c->depth - 1] : NULL;
    if (!b || (b->outer_active && !b->body == loop) || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    if (b->body && ++c->index < c->count) {
        c->at = b->body;
        c->line_start = b->line_start;
        return 0;
    }
    if (b->body)
        c->variable = NULL;
    c->active = b->outer_active;
    c->depth--;
    return 0;
}

/* {% ... %}, from behind its opening. */
static int statement(Chat *c)
{
    const char *from = c->at;
    Block *b = c->depth ? &c->blocks[c->depth - 1] : NULL;
    if (take(c, "if"))
        return begin_block(c, false, from);
    if (take(c, "for"))
        return begin_block(c, true, from);
    if (take(c, "endif"))
        return end_block(c, false, from);
    if (take(c, "endfor"))
        return end_block(c, true, from);
    if (b && !b->body && take(c, "elif"))
        return branch(c, b->outer_active && !b->taken);
    if (b && !b->body && take(c, "else")) {
        c->active = b->outer_active && !b->taken;
        return tag_end(c, "%}");
    }
    return c->active ? unknown_syntax(c, from) : skip_tag(c, "%}");
}

/* Write a string of the template, with its escapes resolved. */
static int emit_literal(Chat *c, const Value *v)
{
    static const char escapes[] = "nrt\\'\"", meant[] = "\n\r\t\\'\"";
    for (size_t i = 0, run; i < v->length; i = run) {
        const char *s = v->text + i, *known = NULL;
        for (run = i; run < v->length && v->text[run] != '\\'; run++)
            ;
        if (run == i) {
            known = s[1] ? strchr(escapes, s[1]) : NULL;
            if (!known)
                return unknown_syntax(c, s);
            run += 2;
        }
        if (emit(c, known ? meant + (known - escapes) : s, known ? 1 : run - i, 0))
            return -1;
    }
    return 0;
}

/* {{ ... }}, from behind its opening. */
static int output(Chat *c)
{
    if (!c->active)
        return skip_tag(c, "}}");
    do {
        const char *from = c->at;
        Value v;
        if (operand(c, &v))
            return -1;
        if (!is_text(&v))
            return unknown_syntax(c, from);
        if (v.kind == LITERAL ? emit_literal(c, &v) : emit(c, v.text, v.length, 1))
            return -1;
    } while (take(c, "+"));
    return tag_end(c, "}}");
}

/* Write the text up to the next tag, without the white space that is dropped before it: all of it if the tag begins
 * with "-", blanks at the start of the line before a block's tag or comment unless it begins with "+". */
static int plain_text(Chat *c)
{
    const char *from = c->at, *tag = from;
    while (c->end - tag >= 2 && !(*tag == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
        tag++;
    tag = c->end - tag >= 2 ? tag : c->end;
    const char *stop = tag, *line = tag;
    char sign = tag < c->end ? tag[2] : 0;
    if (sign == '-') {
        while (stop > from && is_blank(stop[-1]))
            stop--;
    } else if (tag < c->end && tag[1] != '{' && sign != '+') {
        while (line > from && line[-1] != '\n' && is_blank(line[-1]))
            line--;
        if (line > from ? line[-1] == '\n' : c->line_start)
            stop = line;
    }
    c->at = tag;
    return c->active ? emit(c, from, (size_t)(stop - from), 0) : 0;
}

/* Write the messages as the template says. */
static int render(const Tokenizer *t, const Message *messages, size_t n, bool generation_prompt, Text *out, Text *marks,
                  char err[512])
{
    const Text *template = &t->chat.text;
    Chat c = {.at = template->bytes,
              .end = template->bytes + template->length,
              .messages = messages,
              .count = n,
              .out = out,
              .marks = marks,
              .file = t->chat.path,
              .err = err,
              .generation_prompt = generation_prompt,
              .active = true,
              .line_start = true};
    if (t->chat_problem[0])
        return fail(err, "%s", t->chat_problem);
    if (n == 0)
        return fail(err, "a chat needs at least one message");
    for (;;) {
        if (plain_text(&c))
            return -1;
        if (c.at == c.end)
            return c.depth ? fail(err, "%s: the chat template ends inside a block", c.file) : 0;
        char kind = c.at[1];
        c.at += 2;
        if (*c.at == '-' || *c.at == '+')
            c.at++;
        int status = 0;
        if (kind == '#')
            status = skip_tag(&c, "#}");
        else
            status = kind == '%' ? statement(&c) : output(&c);
        if (status)
            return -1;
    }
}

#define SYSTEM_BEGIN "<|im_start|>system\n"
#define USER_TURN "<|im_start|>user\nU<|im_end|>\n"
#define ASSISTANT_BEGIN "<|im_start|>assistant\n"
#define TURN_END "<|im_end|>\n"

/* The template must write two trial conversations as ChatML does; what it puts before the one without a system message
 * is the default system turn. */
static int try_chat(Tokenizer *t, char err[512])
{
    static const Message trial[] = {
        {"system", "S", 6, 1}, {"user", "U", 4, 1}, {"assistant", "A", 9, 1}, {"user", "V", 4, 1}};
    static const char whole[] = SYSTEM_BEGIN "S" TURN_END USER_TURN ASSISTANT_BEGIN
                                             "A<|im_end|>\n<|im_start|>user\nV<|im_end|>\n" ASSISTANT_BEGIN;
    static const char tail[] = USER_TURN ASSISTANT_BEGIN;
    const size_t begin = strlen(SYSTEM_BEGIN), end = strlen(TURN_END);
    Text all = {0}, one = {0}, marks = {0};
    int status = render(t, trial, 4, true, &all, &marks, err);
    if (status == 0)
        status = render(t, trial + 1, 1, true, &one, &marks, err);
    size_t head = status || one.length < strlen(tail) ? 0 : one.length - strlen(tail);
    bool known =
        status == 0 && is_word(all.bytes, all.length, whole) && is_word(one.bytes + head, one.length - head, tail);
    if (known && head > 0) {
        known = head >= begin + end && memcmp(one.bytes, SYSTEM_BEGIN, begin) == 0 &&
                memcmp(one.bytes + head - end, TURN_END, end) == 0 && !memchr(one.bytes, 0, head);
        if (known && !(t->default_system = strndup(one.bytes + begin, head - begin - end)))
            status = fail_memory(err);
    }
    if (status == 0 && !known)
        status = fail(err, "%s: the chat template does not write turns as ChatML does", t->chat.path);
    text_free(&all);
    text_free(&one);
    text_free(&marks);
    return status;
}

/* As Jinja does: CR LF and CR become LF, and one LF at the end is dropped. */
static void unify_newlines(Text *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->length; i++)
        if (text->bytes[i] != '\r')
            text->bytes[n++] = text->bytes[i];
        else if (text->bytes[i + 1] != '\n')
            text->bytes[n++] = '\n';
    if (n == 0)
        return;
    if (text->bytes[n - 1] == '\n')
        n--;
    text->bytes[n] = '\0';
    text->length = n;
}

/* Read the template from chat_template.jinja, or else from tokenizer_config.json, where it is a text or the one named
 * "default" of a list. */
static int read_template(Tokenizer *t, const char *folder, char err[512])
{
    int status = tokenizer_read_file(path_join(folder, "chat_template.jinja"), &t->chat, err);
    if (status == 0 && !text_is_utf8(t->chat.text.bytes, t->chat.text.length))
        return fail(err, "%s: is not UTF-8", t->chat.path);
    if (status <= 0)
        return status;
    InputFile config = {0};
    status = tokenizer_read_json(path_join(folder, "tokenizer_config.json"), &config, err);
    const JsonValue *found = json_get(config.root, "chat_template");
    for (const JsonValue *v = found && found->type == JSON_ARRAY ? found->child : NULL; v; v = v->next)
        if (json_string_is(json_get(v, "name"), "default"))
            found = json_get(v, "template");
    if (status == 0 && found && found->type == JSON_STRING)
        status = text_append(&t->chat.text, found->text, found->length) ? fail_memory(err) : 0;
    else if (status >= 0)
        status = fail(err, "%s: has no chat_template.jinja, and no chat template in tokenizer_config.json", folder);
    free(t->chat.path);
    t->chat.path = config.path;
    config.path = NULL;
    tokenizer_free_file(&config);
    return status;
}

void tokenizer_open_chat(Tokenizer *t, const char *folder)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};
    char problem[512];
    int status = read_template(t, folder, problem);
    unify_newlines(&t->chat.text);
    if (status == 0)
        status = try_chat(t, problem);
    for (size_t i = 0; i < COUNT_OF(needed) && status == 0; i++)
        if (!tokenizer_find_added(&t->added[BEFORE_NFC], needed[i], strlen(needed[i])))
            status = fail(problem, "%s: the tokenizer has no added token %s", folder, needed[i]);
    if (status)
        memcpy(t->chat_problem, problem, sizeof problem);
}

const char *tokenizer_chat_problem(const Tokenizer *t)
{
    return t->chat_problem[0] ? t->chat_problem : NULL;
}

const char *tokenizer_default_system(const Tokenizer *t)
{
    return t->chat_problem[0] ? NULL : t->default_system;
}

int tokenizer_chat_text(const Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, Text *out,
                        char err[512])
{
    Text marks = {0};
    int status = render(t, messages, n, add_generation_prompt, out, &marks, err);
    text_free(&marks);
    return status;
}

int tokenizer_chat_ids(Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt,
                       bool with_default_system, IdList *ids, char err[512])
{
    Text text = {0}, marks = {0};
    size_t skip = 0;
    int status = render(t, messages, n, add_generation_prompt, &text, &marks, err);
    if (status == 0 && t->default_system && !with_default_system) {
        size_t begin = strlen(SYSTEM_BEGIN), length = strlen(t->default_system);
        if (text.length > begin + length && memcmp(text.bytes + begin, t->default_system, length) == 0 &&
            !memchr(marks.bytes, 1, begin + length)) /* the same in a message stays */
            skip = begin + length + strlen(TURN_END);
    }
    if (status == 0 && text.length > skip &&
        tokenizer_encode_marked(t, text.bytes + skip, text.length - skip, true, marks.bytes + skip, ids))
        status = fail_memory(err);
    text_free(&text);
    text_free(&marks);
    return status;
}
