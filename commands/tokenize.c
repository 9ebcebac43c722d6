/* run tokenize: text into tokens, ids into text, or a stream of such requests, one JSON object a line. */
#include "commands/input.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/requests.h"
#include "commands/terminal.h"

#include <stdlib.h>
#include <string.h>

/* ---- one text ---------------------------------------------------------------------------------------------------- */

/* Ids that stand for no token: decoding leaves them out, as the reference does. */
static size_t count_unknown(const Tokenizer *t, const IdList *ids)
{
    size_t unknown = 0, length;
    for (size_t i = 0; i < ids->count; i++) {
        tokenizer_piece(t, ids->items[i], &length);
        if (!length)
            unknown++;
    }
    return unknown;
}

static void tell_unknown(size_t n)
{
    if (n)
        notice("ids that the tokenizer does not know are left out of the text: %zu", n);
}

/* Encode a text and print its tokens, or decode a list of ids and print their text. */
static void tokenize_one(Tokenizer *t, const Prompt *from, bool skip_special)
{
    char err[512];
    Text text = {0};
    IdList ids = {0};
    if (from->ids) {
        ids = input_ids(from->ids);
        die_if(tokenizer_decode(t, ids.items, ids.count, skip_special, &text), "out of memory");
        tell_unknown(count_unknown(t, &ids));
    } else {
        die_if(tokenizer_encode(t, from->text.bytes, from->text.length, true, &ids, err), err);
    }
    if (common.json) {
        write_ids("{\"ids\":", ids.items, ids.count);
        printf(",\"tokens\":[");
        for (size_t i = 0; i < ids.count; i++)
            write_token(i ? "," : "", t, ids.items[i]);
        putchar(']');
        if (from->ids)
            write_string(",\"text\":", text.bytes, text.length);
        printf("}\n");
    } else if (from->ids) {
        print_text(stdout, text.length ? text.bytes : "", text.length);
        putchar('\n');
    } else {
        for (size_t i = 0; i < ids.count; i++) {
            printf("%7d  ", ids.items[i]);
            print_token(t, ids.items[i], 0);
            putchar('\n');
        }
    }
    text_free(&text);
    id_list_free(&ids);
}

/* ---- requests, one a line ---------------------------------------------------------------------------------------- */

typedef struct {
    Tokenizer *tokenizer;
    Text text; /* of the answer */
    IdList ids;
    size_t unknown; /* ids that were left out of texts */
} Requests;

/* Write the request's messages as the chat template has them, and encode that. Says so when it fails because of a
 * tool's message. */
static int answer_messages(Requests *r, const JsonValue *request, const JsonValue *list, char err[512])
{
    const JsonValue *prompt = json_get(request, "add_generation_prompt"), *tools = json_get(request, "tools");
    bool add_prompt = false;
    if (prompt && prompt->type != JSON_NULL && json_bool(prompt, &add_prompt))
        return fail(err, "\"add_generation_prompt\" should be true or false");
    if (tools && tools->type != JSON_NULL && tools->length)
        return fail(err, "\"tools\" are not supported");
    Message *messages = request_messages(list, err);
    if (!messages)
        return -1;
    int status = tokenizer_chat_text(r->tokenizer, messages, list->length, add_prompt, &r->text, err);
    if (status == 0)
        status =
            tokenizer_encode(r->tokenizer, r->text.length ? r->text.bytes : "", r->text.length, true, &r->ids, err);
    for (const JsonValue *v = list->child; v && status != 0; v = v->next)
        if (json_string_is(json_get(v, "role"), "tool"))
            fail(err, "messages of the role \"tool\" are not supported with this chat template");
    free(messages);
    return status;
}

/* Print the answer to one request. Return -1 and a sentence, and print nothing, when it has no answer. */
static int answer(Requests *r, const JsonValue *request, char err[512])
{
    const JsonValue *text = json_get(request, "text"), *list = json_get(request, "ids"),
                    *messages = json_get(request, "messages"), *skip = json_get(request, "skip_special");
    static const char *const known[] = {"text", "ids", "messages", "skip_special", "add_generation_prompt", "tools"};
    bool skip_special = false;
    r->text.length = r->ids.count = 0;
    if (request_check_fields(request, known, COUNT_OF(known), err) != 0)
        return -1;
    if ((text ? 1 : 0) + (list ? 1 : 0) + (messages ? 1 : 0) != 1)
        return fail(err, "expected an object with one of \"text\", \"ids\" and \"messages\"");
    if (text && text->type != JSON_STRING)
        return fail(err, "\"text\" should be a string");
    if (skip && skip->type != JSON_NULL && json_bool(skip, &skip_special))
        return fail(err, "\"skip_special\" should be true or false");
    if (text && tokenizer_encode(r->tokenizer, text->text, text->length, true, &r->ids, err))
        return -1;
    if (messages && answer_messages(r, request, messages, err))
        return -1;
    if (list && request_ids(list, &r->ids, err))
        return -1;
    if (list && tokenizer_decode(r->tokenizer, r->ids.items, r->ids.count, skip_special, &r->text))
        return fail(err, "out of memory");
    if (list)
        r->unknown += count_unknown(r->tokenizer, &r->ids);
    putchar('{');
    if (!text)
        write_string("\"text\":", r->text.bytes, r->text.length);
    if (!list)
        write_ids(text ? "\"ids\":" : ",\"ids\":", r->ids.items, r->ids.count);
    puts("}");
    return 0;
}

/* Answer requests from standard input. Returns the exit code. */
static int answer_lines(Tokenizer *t)
{
    Requests r = {.tokenizer = t};
    Lines lines = {0};
    const char *line;
    char err[512];
    size_t length;
    bool failed = false;
    while (lines_take(&lines, true, &line, &length) == LINES_TAKEN) {
        JsonValue *request = json_parse(line, length, err);
        if (!request || answer(&r, request, err) != 0) {
            failed = true;
            write_name("{\"error\":", err);
            puts("}");
        }
        json_free(request);
    }
    tell_unknown(r.unknown);
    id_list_free(&r.ids);
    text_free(&r.text);
    text_free(&lines.text);
    return failed ? EXIT_FAILED : EXIT_OK;
}

int cmd_tokenize(int argc, char **argv)
{
    Prompt from = {0};
    bool lines = false, skip_special = false;
    const Option options[] = {
        {'m', "model", "PATH", OPTION_TEXT, &common.model,
         "a tokenizer.json, or a model, of which only the tokenizer is read (default: the current folder, else the "
         "demo model)"},
        {'f', "file", "FILE", OPTION_TEXT, &from.file, "the text is all of FILE; - is standard input"},
        {'e', "escapes", NULL, OPTION_FLAG, &from.escapes, "interpret \\n, \\t, \\xHH and \\u{HEX} in the text"},
        {0, "ids", "1,2,3", OPTION_TEXT, &from.ids, "print the text of these ids"},
        {0, "skip-special", NULL, OPTION_FLAG, &skip_special,
         "with --ids: leave out special tokens such as <|im_end|>"},
        {0, "jsonl", NULL, OPTION_FLAG, &lines,
         "answer requests from standard input, a line each: {\"text\":..}, {\"ids\":[..]} or {\"messages\":[..]}"},
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run tokenize \"Hello, world\"\n"
                              "run tokenize --ids 16,11,220,17,11\n"
                              "run tokenize -m tokenizer.json -f book.txt --json\n"
                              "echo '{\"text\":\"Hello\"}' | run tokenize --jsonl\n");
    if (lines && (count || from.ids || from.file))
        usage_error("--jsonl reads requests from standard input only");
    if (skip_special && !from.ids)
        usage_error("--skip-special goes with --ids; in a request of --jsonl it is \"skip_special\":true");
    if (!lines)
        input_prompt(&from, count ? argv[1] : NULL);

    Tokenizer *t = model_tokenizer();
    int code = EXIT_OK;
    if (lines)
        code = answer_lines(t);
    else
        tokenize_one(t, &from, skip_special);
    text_free(&from.text);
    tokenizer_close(t);
    return finish(code);
}
