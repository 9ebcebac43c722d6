/* run tokenize: text into tokens, ids into text, or a stream of such requests, one JSON object a line. */
#include "commands/common.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one text ---------------------------------------------------------------------------------------------------- */

/* {"ids":[..],"tokens":[..]}, and the text if it is what was asked for. */
static void write_json(const Tokenizer *t, const int *ids, size_t n, const Text *text)
{
    printf("{\"ids\":");
    write_ids_json(stdout, ids, n);
    printf(",\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        fputs(i ? "," : "", stdout);
        write_token_json(stdout, t, ids[i]);
    }
    putchar(']');
    if (text) {
        printf(",\"text\":");
        json_write_string(stdout, text->length ? text->bytes : "", text->length);
    }
    printf("}\n");
}

static void print_tokens(const Tokenizer *t, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%7d  ", ids[i]);
        print_token(stdout, t, ids[i], 0);
        putchar('\n');
    }
}

static void tokenize_text(Tokenizer *t, const char *text, size_t length)
{
    char err[512];
    IdList ids = {0};
    if (tokenizer_encode(t, text, length, true, &ids, err))
        die(EXIT_FAILED, "%s", err);
    if (common.json)
        write_json(t, ids.items, ids.count, NULL);
    else
        print_tokens(t, ids.items, ids.count);
    id_list_free(&ids);
}

static void decode_ids(const Tokenizer *t, const char *list, bool skip_special)
{
    Text text = {0};
    size_t n;
    int *ids = parse_ids(list, &n);
    if (tokenizer_decode(t, ids, n, skip_special, &text))
        die(EXIT_FAILED, "out of memory");
    if (common.json) {
        write_json(t, ids, n, &text);
    } else {
        print_text(stdout, text.length ? text.bytes : "", text.length);
        putchar('\n');
    }
    text_free(&text);
    free(ids);
}

/* ---- requests, one a line ---------------------------------------------------------------------------------------- */

/* Adds the list of ids; those beyond an int are known to no tokenizer, and stand as -1. */
static int read_ids(const JsonValue *list, IdList *ids, char err[512])
{
    for (const JsonValue *v = list->child; v; v = v->next) {
        uint64_t id;
        if (json_u64(v, &id) || id > UINT32_MAX)
            return snprintf(err, 512, "\"ids\" should hold integers from 0 to %u", UINT32_MAX), -1;
        if (id_list_append(ids, id > INT_MAX ? -1 : (int)id))
            return snprintf(err, 512, "out of memory"), -1;
    }
    return 0;
}

/* The messages of a request, fresh; they point into it. */
static Message *read_messages(const JsonValue *list, char err[512])
{
    Message *messages = must(calloc(list->length + 1, sizeof *messages)), *m = messages;
    for (const JsonValue *v = list->child; v; v = v->next, m++) {
        const JsonValue *role = json_get(v, "role"), *content = json_get(v, "content"),
                        *calls = json_get(v, "tool_calls");
        const char *problem = NULL;
        if (!role || role->type != JSON_STRING || !content || content->type != JSON_STRING)
            problem = "each message should have a \"role\" and a \"content\", both strings";
        else if (calls && calls->type != JSON_NULL && calls->length)
            problem = "\"tool_calls\" are not supported";
        if (problem) {
            snprintf(err, 512, "%s", problem);
            free(messages);
            return NULL;
        }
        *m = (Message){role->text, content->text, role->length, content->length};
    }
    return messages;
}

/* What a request asks for, as ids and text. Text is printed before the ids. */
static int answer_messages(Tokenizer *t, const JsonValue *request, const JsonValue *list, Text *text, IdList *ids,
                           char err[512])
{
    const JsonValue *prompt = json_get(request, "add_generation_prompt"), *tools = json_get(request, "tools");
    bool add_prompt = false;
    if (prompt && prompt->type != JSON_NULL && json_bool(prompt, &add_prompt))
        return snprintf(err, 512, "\"add_generation_prompt\" should be true or false"), -1;
    if (tools && tools->type != JSON_NULL && tools->length)
        return snprintf(err, 512, "\"tools\" are not supported"), -1;
    Message *messages = read_messages(list, err);
    int failed = !messages || tokenizer_chat_text(t, messages, list->length, add_prompt, text, err) ||
                 tokenizer_encode(t, text->length ? text->bytes : "", text->length, true, ids, err);
    for (size_t i = 0; failed && messages && i < list->length; i++)
        if (messages[i].role_length == 4 && !memcmp(messages[i].role, "tool", 4))
            snprintf(err, 512, "messages of the role \"tool\" are not supported with this chat template");
    free(messages);
    return failed ? -1 : 0;
}

/* Prints the answer to one request. -1 and a sentence, and nothing printed, if it is none. */
static int answer(Tokenizer *t, const JsonValue *request, Text *out, IdList *ids, char err[512])
{
    const JsonValue *text = json_get(request, "text"), *list = json_get(request, "ids"),
                    *messages = json_get(request, "messages");
    const JsonValue *skip = json_get(request, "skip_special");
    bool skip_special = false;
    out->length = ids->count = 0;
    if (!!text + !!list + !!messages != 1)
        return snprintf(err, 512, "expected an object with one of \"text\", \"ids\" and \"messages\""), -1;
    if (text && text->type != JSON_STRING)
        return snprintf(err, 512, "\"text\" should be a string"), -1;
    if ((list && list->type != JSON_ARRAY) || (messages && messages->type != JSON_ARRAY))
        return snprintf(err, 512, "\"%s\" should be a list", list ? "ids" : "messages"), -1;
    if (skip && skip->type != JSON_NULL && json_bool(skip, &skip_special))
        return snprintf(err, 512, "\"skip_special\" should be true or false"), -1;
    if (text && tokenizer_encode(t, text->text, text->length, true, ids, err))
        return -1;
    if (messages && answer_messages(t, request, messages, out, ids, err))
        return -1;
    if (list && read_ids(list, ids, err))
        return -1;
    if (list && tokenizer_decode(t, ids->items, ids->count, skip_special, out))
        return snprintf(err, 512, "out of memory"), -1;
    putchar('{');
    if (!text) {
        printf("\"text\":");
        json_write_string(stdout, out->length ? out->bytes : "", out->length);
    }
    if (!list) {
        fputs(text ? "\"ids\":" : ",\"ids\":", stdout);
        write_ids_json(stdout, ids->items, ids->count);
    }
    puts("}");
    return 0;
}

/* Requests from standard input. All answers are out before more is waited for. */
static int answer_lines(Tokenizer *t)
{
    Text input = {0}, out = {0};
    IdList ids = {0};
    char err[512], chunk[1 << 14];
    bool end = false, bad = false;
    for (size_t from = 0, scanned = 0; !end || from < input.length;) {
        char *stop = scanned < input.length ? memchr(input.bytes + scanned, '\n', input.length - scanned) : NULL;
        if (!stop && !end) {
            fflush(stdout);
            memmove(input.bytes ? input.bytes : chunk, input.bytes ? input.bytes + from : chunk, input.length - from);
            input.length -= from;
            scanned = input.length;
            from = 0;
            ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
            if (n < 0 && errno != EINTR)
                die(EXIT_FAILED, "standard input: %s", strerror(errno));
            if (n > 0 && text_append(&input, chunk, (size_t)n))
                die(EXIT_FAILED, "out of memory");
            end = n == 0;
            continue;
        }
        size_t length = (size_t)((stop ? stop : input.bytes + input.length) - (input.bytes + from));
        JsonValue *request = json_parse(input.bytes + from, length, err);
        if (!request || answer(t, request, &out, &ids, err)) {
            bad = true;
            printf("{\"error\":");
            json_write_string(stdout, err, strlen(err));
            puts("}");
        }
        json_free(request);
        from += length + (stop != NULL);
        scanned = from;
    }
    id_list_free(&ids);
    text_free(&out);
    text_free(&input);
    return bad ? EXIT_FAILED : EXIT_OK;
}

int cmd_tokenize(int argc, char **argv)
{
    PromptArguments from = {0};
    bool lines = false, skip_special = false;
    const Option options[] = {
        {'f', "file", "FILE", OPTION_TEXT, &from.file, "the text from FILE, every byte of it; - is standard input"},
        {'e', "escapes", NULL, OPTION_FLAG, &from.escapes,
         "turn \\n, \\t, \\xHH, \\u{HEX} in the text into characters"},
        {0, "ids", "1,2,3", OPTION_TEXT, &from.ids, "the text of these ids"},
        {0, "skip-special", NULL, OPTION_FLAG, &skip_special,
         "with --ids: leave out special tokens such as <|im_end|>"},
        {0, "jsonl", NULL, OPTION_FLAG, &lines,
         "requests on standard input, a line each: {\"text\":..}, {\"ids\":[..]} or {\"messages\":[..]}"},
        {0},
    };
    int count = options_parse(argc, argv, options, true, NULL,
                              "run tokenize \"Hello, world\"\n"
                              "run tokenize --ids 9707,11,1879\n"
                              "run tokenize -m tokenizer.json -f book.txt --json\n"
                              "echo '{\"text\":\"Hello\"}' | run tokenize --jsonl\n");
    arguments_at_most(count, 1, argv);
    if (lines && (count || from.ids || from.file))
        usage_error("--jsonl reads standard input only");
    size_t length;
    char *text = lines ? NULL : prompt_text(&from, count ? argv[1] : NULL, &length);

    Tokenizer *t = open_tokenizer();
    int code = EXIT_OK;
    if (lines)
        code = answer_lines(t);
    else if (from.ids)
        decode_ids(t, from.ids, skip_special);
    else
        tokenize_text(t, text, length);
    free(text);
    tokenizer_close(t);
    return finish(code);
}
