/* run chat: a conversation, which the model sees whole at every turn.
 *
 * Each time the system text, the turns so far and the new question are put into the model's chat template and encoded
 * anew. The ids that the cache holds already are not read again. So an answer is the same as if the whole conversation
 * had been given at once, and yet a turn costs only what is new in it.
 *
 * When the context is full the oldest exchanges are left out, even in the middle of an answer, which then goes on.
 */
#include "base/clock.h"
#include "commands/keys.h"
#include "commands/line.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/requests.h"
#include "commands/sampling.h"
#include "commands/terminal.h"
#include "generate/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Session session;
    SamplingSettings how; /* its seed is the next answer's */
    Sampler sampler;
    size_t max_tokens;   /* of an answer */
    double max_seconds;  /* of an answer; 0: no limit */
    TextList stops;      /* texts that end an answer */
    size_t block;        /* most tokens of a block of the prompt: --block */
    Text system;         /* bytes is NULL if there is no system turn */
    Text *turns;         /* question, answer, question, ... */
    size_t count, first; /* how many turns; the model no longer sees those before first */
    IdList cached;       /* what the cache holds */
    Text argument;       /* of the /command that runs */
    bool terminal;       /* standard input is a terminal */
    bool jsonl;          /* questions and answers are JSON, one a line */
    bool failed;         /* something went wrong */
    bool ended;          /* /exit was given */
    char err[512];
} Chat;

/* Say what went wrong and go on. */
static void complain(Chat *c)
{
    c->failed = true;
    if (!c->jsonl) {
        warn("%s", c->err);
        return;
    }
    write_name("{\"error\":", c->err);
    puts("}");
}

static void set_text(Text *text, const char *bytes, size_t length)
{
    text->length = 0;
    if (text_append_replacing(text, length ? bytes : "", length))
        die(EXIT_FAILED, "out of memory");
}

/* ---- the conversation -------------------------------------------------------------------------------------------- */

static const char *const roles[] = {"user", "assistant"};

static void push_turn(Chat *c, const char *bytes, size_t length)
{
    c->turns = xrealloc(c->turns, (c->count + 1) * sizeof *c->turns);
    c->turns[c->count] = (Text){0};
    set_text(&c->turns[c->count++], bytes, length);
}

/* Drop all turns but the first n. */
static void drop_turns(Chat *c, size_t n)
{
    while (c->count > n)
        text_free(&c->turns[--c->count]);
    c->first = MIN(c->first, c->count);
}

static void forget(Chat *c)
{
    drop_turns(c, 0);
    free(c->turns);
    c->turns = NULL;
    text_free(&c->system);
}

/* Make text the system text; if it is NULL and there is none yet, the template's. */
static void use_system(Chat *c, const char *text)
{
    if (!text && !c->system.bytes)
        text = tokenizer_default_system(c->session.tokenizer);
    if (text)
        set_text(&c->system, text, strlen(text));
}

/* The messages that the model sees. Fresh. */
static Message *list_messages(const Chat *c, size_t *n)
{
    Message *list = xcalloc(c->count + 1, sizeof *list);
    *n = 0;
    if (c->system.bytes)
        list[(*n)++] = (Message){"system", c->system.bytes, 6, c->system.length};
    for (size_t i = c->first; i < c->count; i++)
        list[(*n)++] = (Message){roles[i % 2], c->turns[i].bytes, strlen(roles[i % 2]), c->turns[i].length};
    return list;
}

static void append_ids(IdList *to, const IdList *from)
{
    for (size_t i = 0; i < from->count; i++)
        xappend_id(to, from->items[i]);
}

/* The ids that the model sees, with the beginning of an answer that is to go on. */
static int conversation_ids(Chat *c, const IdList *answer, IdList *ids)
{
    size_t n;
    Message *list = list_messages(c, &n);
    ids->count = 0;
    int status = tokenizer_chat_ids(c->session.tokenizer, list, n, true, false, ids, c->err);
    free(list);
    if (status == 0)
        append_ids(ids, answer);
    return status;
}

/* ---- an answer --------------------------------------------------------------------------------------------------- */

/* An answer has several parts if the context gets full meanwhile. */
typedef struct {
    Chat *chat;
    Generated part; /* the current one */
    size_t taken;   /* how many ids of it are in ids */
    IdList ids;     /* of all parts */
    Text bytes;     /* their text, up to a stop text */
    Stops stops;
    bool stopped;   /* at a stop text */
    size_t shown;   /* how many of these bytes were shown */
    bool ends_line; /* what was shown ends with a line end */
    size_t prompt;  /* ids of the last prompt */
    size_t read;    /* ids of all prompts that were not in the cache */
    size_t timed;   /* tokens that took `seconds` */
    double seconds, block_began;
} Reply;

static void take_ids(Reply *r)
{
    const Tokenizer *t = r->chat->session.tokenizer;
    for (; r->taken < r->part.ids.count; r->taken++) {
        int id = r->part.ids.items[r->taken];
        bool is_text = !tokenizer_is_special(t, id) && !sampling_is_end(&r->chat->how, id);
        size_t length = 0;
        const char *piece = is_text ? tokenizer_piece(t, id, &length) : "";
        size_t before = r->bytes.length, stop = SIZE_MAX;
        xappend_id(&r->ids, id);
        if (r->stopped)
            continue;
        xappend(&r->bytes, piece, length);
        stop = stops_read(&r->stops, piece, length, before);
        r->stopped = stop != SIZE_MAX;
        r->bytes.length = MIN(r->bytes.length, stop);
    }
}

/* Show the next n bytes of the answer. */
static int show(Reply *r, size_t n)
{
    Text text = {0};
    if (!n || r->chat->jsonl)
        return 0;
    set_text(&text, r->bytes.bytes + r->shown, n);
    print_text(stdout, text.bytes, text.length);
    r->ends_line = text.bytes[text.length - 1] == '\n';
    r->shown += n;
    text_free(&text);
    return fflush(stdout) ? -1 : 0;
}

/* The text is put together from the ids, since a character or a stop text may begin in one part and end in the next. */
static int show_text(void *context, const char *bytes, size_t length)
{
    Reply *r = context;
    (void)bytes, (void)length;
    take_ids(r);
    size_t certain = r->bytes.length - (r->stopped ? 0 : stops_begun(&r->stops));
    int status = show(r, text_complete_prefix(r->bytes.bytes + r->shown, certain - r->shown));
    return r->stopped ? 1 : status;
}

enum { FIRST_BLOCK = 128 };

/* Ctrl-C is noticed between blocks of the prompt, so they must not take long; but short ones waste time. */
static void adapt_block(void *context, size_t done, size_t total)
{
    Reply *r = context;
    size_t *block = &r->chat->session.state.block;
    double now = clock_seconds(), took = now - r->block_began;
    if (took > 1.5 && *block >= 2 * FIRST_BLOCK)
        *block /= 2;
    else if (took < 0.5 && *block <= r->chat->block / 2)
        *block *= 2;
    r->block_began = now;
    session_show_prefill(NULL, done, total);
}

/* Generate what follows ids until something ends it, which is r->part.reason. */
static int generate_part(Chat *c, Reply *r, const IdList *ids)
{
    Session *s = &c->session;
    size_t same = 0, most;
    if (sampling_max_tokens(&c->how, c->max_tokens, ids->count - r->ids.count, &most, c->err) != 0)
        return -1;
    const GenerateOptions options = {.max_tokens = most - MIN(r->ids.count, most - 1), /* at least one */
                                     .max_seconds = c->max_seconds > 0 ? c->max_seconds : c->how.max_time,
                                     .eos_ids = c->how.eos,
                                     .n_eos = c->how.n_eos,
                                     .interrupted = &interrupted,
                                     .on_text = show_text,
                                     .on_prefill = adapt_block,
                                     .context = r};
    while (same < ids->count && same < c->cached.count && ids->items[same] == c->cached.items[same])
        same++;
    kv_cache_rewind(&s->state.cache, same);
    generated_free(&r->part);
    r->taken = 0;
    r->block_began = clock_seconds();
    int status =
        generate(&s->model, &s->state, &c->sampler, s->tokenizer, ids->items, ids->count, &options, &r->part, c->err);
    progress_end();
    take_ids(r);
    r->prompt = ids->count;
    r->read += ids->count - same;
    r->timed += MAX(r->part.ids.count, 1) - 1;
    r->seconds += r->part.seconds;
    if (status != 0) /* nobody knows what is in the cache now */
        kv_cache_rewind(&s->state.cache, 0);
    c->cached.count = 0;
    append_ids(&c->cached, ids);
    append_ids(&c->cached, &r->part.ids);
    c->cached.count = MIN(c->cached.count, s->state.cache.pos);
    return status;
}

typedef enum { FITS, FULL, TROUBLE } Fit; /* FULL: the answer cannot go on; TROUBLE: c->err says why */

/* Leave out the oldest exchanges until at most `most` ids are left, or only the question. It is known that all are more.
 * How many can stay is searched from the end: what is encoded depends on what fits, not on how much was said. */
static int drop_oldest(Chat *c, const Reply *r, size_t most, IdList *ids)
{
    size_t question = c->count - 1, kept = 0, too_many = (question - c->first) / 2;
    while (kept + 1 < too_many) {
        size_t n = kept ? MIN(2 * kept, (kept + too_many) / 2) : 1;
        c->first = question - 2 * n;
        if (conversation_ids(c, &r->ids, ids) != 0)
            return -1;
        if (ids->count <= most)
            kept = n;
        else
            too_many = n;
    }
    c->first = question - 2 * kept;
    return conversation_ids(c, &r->ids, ids);
}

/* Get the ids to go on from. If they fill the context, leave out exchanges until a quarter of it is free. */
static Fit fit(Chat *c, const Reply *r, IdList *ids)
{
    size_t ctx = c->session.state.cache.ctx, before = c->first;
    if (conversation_ids(c, &r->ids, ids) != 0 ||
        (ids->count >= ctx && c->first + 1 < c->count && drop_oldest(c, r, ctx - ctx / 4, ids) != 0))
        return TROUBLE;
    if (ids->count < ctx && c->first == before)
        return FITS;
    if (ids->count >= ctx && !r->ids.count) {
        fail(c->err, "the question has %zu tokens%s, but the context holds only %zu (--ctx)", ids->count,
             c->system.bytes ? " with the system text" : "", ctx);
        return TROUBLE;
    }
    if (!r->ends_line && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    if (c->first > before)
        warn("the context of %zu tokens is full: the model no longer sees the first %zu exchange%s", ctx, c->first / 2,
             plural(c->first / 2));
    if (ids->count < ctx)
        return FITS;
    warn("the context of %zu tokens is full: the answer ends here", ctx);
    return FULL;
}

static void print_short_statistics(const Chat *c, const Reply *r)
{
    char rate[32] = "", seed[32] = "";
    if (r->timed && r->seconds > 0)
        snprintf(rate, sizeof rate, ", %.1f tok/s", (double)r->timed / r->seconds);
    if (!c->how.sampling.greedy)
        snprintf(seed, sizeof seed, "; seed %" PRIu64, c->how.sampling.seed);
    if (isatty(STDERR_FILENO))
        notice("%zu token%s%s; prompt %zu, %zu of them new; context %zu of %zu%s", r->ids.count, plural(r->ids.count),
               rate, r->prompt, r->read, c->session.state.cache.pos, c->session.state.cache.ctx, seed);
}

static void write_reply(const Chat *c, const Reply *r)
{
    write_string("{\"text\":", r->bytes.bytes, r->bytes.length);
    printf(",\"finish_reason\":\"%s\",\"stats\":{\"seed\":%" PRIu64 ",\"prompt_tokens\":%zu,\"tokens\":%zu}}\n",
           finish_reason_name(r->stopped ? FINISH_STOP : r->part.reason), c->how.sampling.seed, r->prompt, r->ids.count);
}

/* Answer the last turn, which is a question, by a new turn. False if no answer came. */
static bool answer(Chat *c)
{
    Reply r = {.chat = c, .ends_line = true};
    IdList ids = {0};
    size_t first = c->first;
    Fit found;
    die_if(stops_begin(&r.stops, c->stops.items, c->stops.count), "out of memory for the stop texts");
    c->sampler.options.seed = c->how.sampling.seed;
    sampler_reset(&c->sampler);
    do {
        found = fit(c, &r, &ids);
        if (found == FITS && generate_part(c, &r, &ids) != 0)
            found = TROUBLE;
    } while (found == FITS && r.part.reason == FINISH_CONTEXT && !r.stopped);
    bool answered = found != TROUBLE && (r.bytes.length || r.stopped || r.part.reason != FINISH_INTERRUPTED);
    show(&r, r.bytes.length - r.shown);
    if (c->jsonl && answered)
        write_reply(c, &r);
    else if (!c->jsonl && (!r.ends_line || (answered && !r.shown)))
        putchar('\n');
    else if (interrupted && c->terminal)
        fputc('\n', stderr); /* after the ^C */
    finish(EXIT_OK);
    if (answered) {
        push_turn(c, r.bytes.bytes, r.bytes.length);
        print_short_statistics(c, &r);
        c->how.sampling.seed++;
    } else if (found == TROUBLE) {
        c->first = first;
        complain(c);
    } else {
        notice("no answer came: the question is taken back");
    }
    generated_free(&r.part);
    id_list_free(&r.ids);
    id_list_free(&ids);
    stops_free(&r.stops);
    text_free(&r.bytes);
    return answered;
}

static void ask(Chat *c, const char *question, size_t length)
{
    push_turn(c, question, length);
    if (!answer(c))
        drop_turns(c, c->count - 1);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* {"system": TEXT or null, "messages": [{"role": "user", "content": TEXT}, {"role": "assistant", ..}, ..]} */
static void write_conversation(FILE *out, const Chat *c)
{
    fputs("{\"system\": ", out);
    if (c->system.bytes)
        json_write_string(out, c->system.bytes, c->system.length);
    else
        fputs("null", out);
    fputs(",\n \"messages\": [", out);
    for (size_t i = 0; i < c->count; i++) {
        fprintf(out, "%s\n  {\"role\": \"%s\", \"content\": ", i ? "," : "", roles[i % 2]);
        json_write_string(out, c->turns[i].bytes, c->turns[i].length);
        fputc('}', out);
    }
    fputs("]}\n", out);
}

static int do_save(Chat *c)
{
    OutFile out;
    const char *path = c->argument.bytes, force[] = "--force ";
    bool replace = !strncmp(path, force, strlen(force));
    if (replace)
        path += strlen(force);
    if (model_out_open(&c->session.checkpoint, &out, path, replace, c->err) != 0)
        return -1;
    write_conversation(out.stream, c);
    if (out_commit(&out, c->err) != 0)
        return -1;
    notice("%s: saved, %zu exchange%s", path, c->count / 2, plural(c->count / 2));
    return 0;
}

/* Fill an empty conversation with what root holds. */
static int read_conversation(Chat *c, const JsonValue *root, char err[512])
{
    const JsonValue *system = json_get(root, "system"), *messages = json_get(root, "messages");
    if (!messages || messages->type != JSON_ARRAY)
        return fail(err, "there is no list of \"messages\"");
    const JsonValue *m = messages->child;
    if (m && json_string_is(json_get(m, "role"), "system")) { /* where other programs put it */
        system = json_get(m, "content");
        m = m->next;
    }
    if (system && system->type == JSON_STRING)
        set_text(&c->system, system->text, system->length);
    else if (system && system->type != JSON_NULL)
        return fail(err, "\"system\" is neither a string nor null");
    for (; m; m = m->next) {
        const JsonValue *content = json_get(m, "content");
        const char *role = roles[c->count % 2];
        if (!json_string_is(json_get(m, "role"), role) || !content || content->type != JSON_STRING)
            return fail(err, "message %zu should have the role \"%s\" and a string as \"content\"", c->count + 1, role);
        push_turn(c, content->text, content->length);
    }
    return c->count % 2 == 0 ? 0 : fail(err, "the last question has no answer");
}

static int do_load(Chat *c)
{
    size_t length;
    char *text = file_read(c->argument.bytes, (size_t)1 << 28, &length, c->err), why[512];
    if (!text)
        return -1;
    Chat loaded = {0};
    JsonValue *root = json_parse(text, length, why);
    int status = root ? read_conversation(&loaded, root, why) : -1;
    json_free(root);
    free(text);
    if (status != 0) {
        forget(&loaded);
        return fail(c->err, "%s: not a saved conversation: %.300s", c->argument.bytes, why);
    }
    forget(c);
    c->system = loaded.system;
    c->turns = loaded.turns;
    c->count = loaded.count;
    use_system(c, NULL);
    notice("%s: loaded, %zu exchange%s", c->argument.bytes, c->count / 2, plural(c->count / 2));
    return 0;
}

/* ---- the other commands ------------------------------------------------------------------------------------------ */

/* What they show goes to stderr, since standard output has the answers and nothing else. */

static int do_system(Chat *c)
{
    if (c->argument.length) {
        set_text(&c->system, c->argument.bytes, c->argument.length);
        notice("the system text was changed%s", c->count ? "; the conversation goes on with it" : "");
    } else if (c->system.bytes) {
        print_text(stderr, c->system.bytes, c->system.length);
        fputc('\n', stderr);
    } else {
        fputs("(none)\n", stderr);
    }
    return 0;
}

static int do_reset(Chat *c)
{
    drop_turns(c, 0);
    notice("new conversation, with the same system text");
    return 0;
}

static int do_undo(Chat *c)
{
    if (!c->count)
        return fail(c->err, "there is nothing to undo");
    drop_turns(c, c->count - 2);
    notice("the last exchange was dropped; %zu left", c->count / 2);
    return 0;
}

static int do_retry(Chat *c)
{
    if (!c->count)
        return fail(c->err, "there is no question yet");
    if (c->how.sampling.greedy)
        notice("tokens are chosen greedily, so the answer is the same again; --temperature makes it vary");
    Text old = c->turns[--c->count];
    c->first = MIN(c->first, c->count - 1);
    if (answer(c))
        text_free(&old);
    else
        c->turns[c->count++] = old;
    return 0;
}

/* How many ids a message makes. */
static size_t count_ids(const Chat *c, const Message *message)
{
    IdList ids = {0};
    char err[512];
    die_if(tokenizer_chat_ids(c->session.tokenizer, message, 1, false, false, &ids, err), err);
    size_t n = ids.count;
    id_list_free(&ids);
    return n;
}

static int do_tokens(Chat *c)
{
    size_t n, i = 0, sum = 0;
    Message *list = list_messages(c, &n);
    if (c->system.bytes) {
        sum = count_ids(c, &list[i++]);
        fprintf(stderr, "system   %7zu\n", sum);
    }
    if (c->first)
        fprintf(stderr, "1..%-6zu      -   no longer seen by the model\n", c->first / 2);
    for (size_t turn = c->first / 2 + 1; i < n; i += 2, turn++) {
        size_t question = count_ids(c, &list[i]), reply = count_ids(c, &list[i + 1]);
        fprintf(stderr, "%-9zu%7zu = %zu + %zu\n", turn, question + reply, question, reply);
        sum += question + reply;
    }
    fprintf(stderr, "context  %7zu of %zu tokens\n", sum, c->session.state.cache.ctx);
    free(list);
    return 0;
}

static int do_exit(Chat *c)
{
    c->ended = true;
    return 0;
}

static int do_help(Chat *c);

static const struct ChatCommand {
    const char *name, *argument;
    bool needs_argument;
    const char *help;
    int (*run)(Chat *c); /* -1 with a sentence in c->err if it fails */
} chat_commands[] = {
    {"help", "", false, "print this list", do_help},
    {"system", "[TEXT]", false, "print the system text, or replace it by TEXT", do_system},
    {"reset", "", false, "begin a new conversation", do_reset},
    {"undo", "", false, "drop the last question and its answer", do_undo},
    {"retry", "", false, "answer the last question again, with another seed", do_retry},
    {"save", "FILE", true, "write the conversation as JSON (--force FILE replaces one)", do_save},
    {"load", "FILE", true, "go on with a saved conversation", do_load},
    {"tokens", "", false, "show how much of the context is used, turn by turn: question + answer", do_tokens},
    {"exit", "", false, "leave, as Ctrl-D does", do_exit},
    {"bye", "", false, "the same", do_exit},
};

static int do_help(Chat *c)
{
    (void)c;
    for (size_t i = 0; i < COUNT_OF(chat_commands); i++)
        fprintf(stderr, "/%-7s%-7s %s\n", chat_commands[i].name, chat_commands[i].argument, chat_commands[i].help);
    fputs("//              begins a message with /\n"
          "\\               at the end of a line continues the message on the next one\n"
          "Ctrl-C          stops an answer or clears the line; twice at an empty one leaves\n",
          stderr);
    return 0;
}

/* Run a line that begins with one "/". */
static void run_command(Chat *c, const Text *line)
{
    static const char blanks[] = " \t\n";
    const char *typed = line->bytes + 1;
    size_t name = strcspn(typed, blanks), end = line->length, begin = 1 + name + strspn(typed + name, blanks);
    const struct ChatCommand *command = NULL;
    Nearest nearest = nearest_to(typed, name);
    for (size_t i = 0; i < COUNT_OF(chat_commands); i++)
        if (nearest_offer(&nearest, chat_commands[i].name, strlen(chat_commands[i].name)))
            command = &chat_commands[i];
    while (end > begin && strchr(blanks, line->bytes[end - 1]))
        end--;
    c->argument.length = 0;
    xappend(&c->argument, line->bytes + begin, end - begin); /* as it is: a path need not be UTF-8 */
    int status;
    if (nearest.distance > 0)
        status = fail(c->err, "there is no /%.*s%s%s", (int)MIN(name, 64), typed,
                      command ? ": did you mean /" : "; /help lists the commands", command ? command->name : "");
    else if (command->needs_argument && !c->argument.length)
        status = fail(c->err, "/%s needs a %s", command->name, command->argument);
    else if (!*command->argument && c->argument.length)
        status = fail(c->err, "/%s takes no argument", command->name);
    else
        status = command->run(c);
    if (status != 0)
        complain(c);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static bool is_word(const Text *line, const char *word)
{
    return text_same(line->bytes, line->length, word, strlen(word));
}

/* Read and answer line after line. Returns the exit code. */
static int converse(Chat *c)
{
    LineResult result = LINE_OK, before;
    Text line = {0};
    while (!c->ended) {
        keys_show();
        exit_on_interrupt(); /* while it waits for a line */
        if (interrupted && !c->terminal)
            break;
        before = result;
        result = line_read("> ", &line);
        if (result == LINE_INTERRUPTED && before != LINE_INTERRUPTED) {
            fputs("Ctrl-C again to leave\n", stderr); /* the first may have come too late for an answer */
            continue;
        }
        if (result != LINE_OK)
            break;
        if (c->terminal && (is_word(&line, "exit") || is_word(&line, "quit")))
            break;
        exit_on_interrupt(); /* line_read() has taken these signals back */
        catch_interrupts();
        if (c->terminal)
            keys_hide();
        size_t skipped = line.length > 1 && line.bytes[0] == '/' && line.bytes[1] == '/' ? 1 : 0;
        if (!skipped && line.length && line.bytes[0] == '/')
            run_command(c, &line);
        else if (line.length)
            ask(c, line.bytes + skipped, line.length - skipped);
    }
    keys_show();
    text_free(&line);
    if (result == LINE_INTERRUPTED || (interrupted && !c->terminal))
        return EXIT_INTERRUPTED;
    return c->failed && !c->terminal ? EXIT_FAILED : EXIT_OK;
}

/* Read a question: {"content": TEXT}. */
static int read_question(const JsonValue *request, const JsonValue **content, char err[512])
{
    static const char *const known[] = {"content"};
    *content = json_get(request, "content");
    if (request_check_fields(request, known, COUNT_OF(known), err) != 0)
        return -1;
    return *content && (*content)->type == JSON_STRING ? 0 : fail(err, "expected an object with the text \"content\"");
}

/* Answer requests, a line of JSON each. Returns the exit code. */
static int converse_in_json(Chat *c)
{
    Lines lines = {0};
    const JsonValue *content;
    const char *line;
    size_t length;
    catch_interrupts();
    while (lines_take(&lines, true, &line, &length) == LINES_TAKEN) {
        JsonValue *request = json_parse(line, length, c->err);
        if (!request || read_question(request, &content, c->err) != 0)
            complain(c);
        else
            ask(c, content->text, content->length);
        json_free(request);
    }
    text_free(&lines.text);
    return interrupted ? EXIT_INTERRUPTED : c->failed ? EXIT_FAILED : EXIT_OK;
}

int cmd_chat(int argc, char **argv)
{
    Chat c = {.max_tokens = SIZE_MAX};
    const char *system = NULL;
    SamplingArguments a = sampling_arguments();
    const Option options[] = {
        {0, "system", "TEXT", OPTION_ANY, &system, "system message (default: the chat template's)"},
        {'n', "max-tokens", "N", OPTION_COUNT, &c.max_tokens, "stop an answer after N tokens"},
        {0, "max-seconds", "S", OPTION_NUMBER, &c.max_seconds, "stop an answer after S seconds (0: no limit)"},
        SAMPLING_OPTIONS(a),
        {0, "stop", "TEXT", OPTION_LIST, &c.stops, "stop an answer before TEXT; may be given several times"},
        {0, "jsonl", NULL, OPTION_FLAG, &c.jsonl, "a line is a question, {\"content\":TEXT}, and an answer"},
        {0},
    };
    options_parse(argc, argv, options, NULL,
                  "run chat\n"
                  "run chat -w bf16 --system \"Be brief.\"\n"
                  "run chat --greedy -q <questions.txt >answers.txt    # a line each\n"
                  "\n"
                  "In the chat, /help lists its commands: /system /reset /undo /retry /save ...\n");
    sampling_check(&a);
    c.terminal = !c.jsonl && isatty(STDIN_FILENO);
    session_open(&c.session, true, 1);
    const char *problem = tokenizer_chat_problem(c.session.tokenizer);
    die_if(problem, problem);
    use_system(&c, system);
    c.block = c.session.state.block;
    c.session.state.block = MIN(c.block, FIRST_BLOCK);
    c.how = sampling_settings(&c.session, &a, true);
    c.sampler = sampling_open(&c.session, &c.how.sampling);
    if (c.terminal)
        notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
    int code = finish(c.jsonl ? converse_in_json(&c) : converse(&c));
    forget(&c);
    free(c.stops.items);
    text_free(&c.argument);
    id_list_free(&c.cached);
    sampler_free(&c.sampler);
    session_close(&c.session);
    return code;
}
