/* run chat: a conversation that the model sees whole at every turn.
 *
 * Each time the system text, the turns so far and the new question are written as the model's chat template has them,
 * and encoded anew. As far as these ids are what the cache holds they are not read again. So an answer is the same as
 * if the conversation had been given at once, and yet a turn costs only what is new in it.
 *
 * When the context is full the oldest exchanges are left out, even in the middle of an answer, which then goes on.
 */
#include "base/file.h"
#include "commands/common.h"
#include "commands/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Session session;
    Choosing how; /* its seed is the next answer's */
    Sampler sampler;
    size_t max_tokens, block; /* most tokens of an answer; of a block of the prompt */
    Text system;         /* bytes NULL: there is no system turn */
    Text *turns;         /* question, answer, question, ... */
    size_t count, first; /* the model no longer sees the turns before first */
    IdList cached;       /* what the cache holds */
    Text argument;       /* of the command that runs */
    bool terminal;       /* standard input is one */
    bool failed, ended;
    char err[512];
} Chat;

/* What went wrong; the conversation goes on. */
static void complain(Chat *c)
{
    warn("%s", c->err);
    c->failed = true;
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
    c->turns = must(realloc(c->turns, (c->count + 1) * sizeof *c->turns));
    c->turns[c->count] = (Text){0};
    set_text(&c->turns[c->count++], bytes, length);
}

/* Down to n turns. */
static void drop_turns(Chat *c, size_t n)
{
    while (c->count > n)
        text_free(&c->turns[--c->count]);
    c->first = c->first < c->count ? c->first : c->count;
}

static void forget(Chat *c)
{
    drop_turns(c, 0);
    free(c->turns);
    c->turns = NULL;
    text_free(&c->system);
}

/* That text, or the template's if there is none. */
static void use_system(Chat *c, const char *text)
{
    if (!text && !c->system.bytes)
        text = tokenizer_default_system(c->session.tokenizer);
    if (text)
        set_text(&c->system, text, strlen(text));
}

/* What the model sees. Fresh. */
static Message *list_messages(const Chat *c, size_t *n)
{
    Message *list = must(calloc(c->count + 1, sizeof *list));
    *n = 0;
    if (c->system.bytes)
        list[(*n)++] = (Message){"system", c->system.bytes, 6, c->system.length};
    for (size_t i = c->first; i < c->count; i++)
        list[(*n)++] = (Message){roles[i % 2], c->turns[i].bytes, strlen(roles[i % 2]), c->turns[i].length};
    return list;
}

static int append_ids(IdList *to, const IdList *from, size_t most)
{
    int failed = 0;
    for (size_t i = 0; i < from->count && i < most && !failed; i++)
        failed = id_list_append(to, from->items[i]);
    return failed;
}

/* The ids of what the model sees, up to where the answer is to go on. */
static int conversation_ids(Chat *c, const IdList *answer, IdList *ids)
{
    size_t n;
    Message *list = list_messages(c, &n);
    ids->count = 0;
    int failed = tokenizer_chat_ids(c->session.tokenizer, list, n, true, false, ids, c->err);
    free(list);
    return failed || !append_ids(ids, answer, SIZE_MAX) ? failed : fail(c->err, "out of memory");
}

/* ---- an answer --------------------------------------------------------------------------------------------------- */

typedef struct {
    Chat *chat;
    Generated part; /* an answer has several parts if the context gets full meanwhile */
    size_t taken;   /* ids of part that are in ids */
    IdList ids;     /* of all parts */
    Text bytes;     /* of these */
    size_t shown;   /* bytes of them */
    bool ends_line; /* what was shown */
    size_t prompt, read, timed; /* ids of the last prompt; ids not in the cache; tokens that took `seconds` */
    double seconds, block_began;
} Reply;

static void take_ids(Reply *r)
{
    const Tokenizer *t = r->chat->session.tokenizer;
    const Choosing *how = &r->chat->how;
    for (; r->taken < r->part.ids.count; r->taken++) {
        int id = r->part.ids.items[r->taken];
        bool is_text = !tokenizer_is_special(t, id);
        for (size_t i = 0; i < how->n_eos; i++)
            is_text = is_text && how->eos[i] != id;
        size_t length = 0;
        const char *piece = is_text ? tokenizer_piece(t, id, &length) : "";
        if (id_list_append(&r->ids, id) || text_append(&r->bytes, piece, length))
            die(EXIT_FAILED, "out of memory");
    }
}

/* The next n bytes. */
static int show(Reply *r, size_t n)
{
    Text text = {0};
    if (!n)
        return 0;
    set_text(&text, r->bytes.bytes + r->shown, n);
    print_text(stdout, text.bytes, text.length);
    r->ends_line = text.bytes[text.length - 1] == '\n';
    r->shown += n;
    text_free(&text);
    return fflush(stdout) ? -1 : 0;
}

/* A character may begin in one part and end in the next: the text is put together from the ids. */
static int show_text(void *context, const char *bytes, size_t length)
{
    Reply *r = context;
    (void)bytes, (void)length;
    take_ids(r);
    return show(r, text_complete_prefix(r->bytes.bytes + r->shown, r->bytes.length - r->shown));
}

enum { FIRST_BLOCK = 128 };

/* Ctrl-C is noticed between blocks of the prompt, so they must not take long; short ones waste time. */
static void show_prefill(void *context, size_t done, size_t total)
{
    Reply *r = context;
    size_t *block = &r->chat->session.state.block;
    double now = seconds_now(), took = now - r->block_began;
    if (took > 1.5 && *block >= 2 * FIRST_BLOCK)
        *block /= 2;
    else if (took < 0.5 && *block <= r->chat->block / 2)
        *block *= 2;
    r->block_began = now;
    progress("reading", done, total);
    if (done == total)
        progress_end();
}

/* Goes on behind ids until something ends it: r->part.reason. */
static int generate_part(Chat *c, Reply *r, const IdList *ids)
{
    Session *s = &c->session;
    const GenerateOptions options = {.max_tokens = c->max_tokens - r->ids.count,
                                     .eos_ids = c->how.eos,
                                     .n_eos = c->how.n_eos,
                                     .interrupted = &interrupted,
                                     .on_text = show_text,
                                     .on_prefill = show_prefill,
                                     .context = r};
    size_t same = 0;
    while (same < ids->count && same < c->cached.count && ids->items[same] == c->cached.items[same])
        same++;
    run_state_rewind(&s->state, same);
    generated_free(&r->part);
    r->taken = 0;
    r->block_began = seconds_now();
    int failed = generate(&s->model, &s->state, &c->sampler, s->tokenizer, ids->items, ids->count, &options, &r->part,
                          c->err);
    progress_end();
    take_ids(r);
    r->prompt = ids->count;
    r->read += ids->count - same;
    r->timed += r->part.ids.count ? r->part.ids.count - 1 : 0;
    r->seconds += r->part.seconds;
    if (failed) /* whatever is in the cache now */
        run_state_rewind(&s->state, 0);
    c->cached.count = 0;
    if (append_ids(&c->cached, ids, s->state.pos) ||
        append_ids(&c->cached, &r->part.ids, s->state.pos - c->cached.count))
        die(EXIT_FAILED, "out of memory");
    return failed;
}

/* The ids to go on from, with room behind them: if need be a quarter of the context is made free. 1: there is no room
 * for more of the answer. */
static int fit(Chat *c, const Reply *r, IdList *ids)
{
    size_t ctx = c->session.state.ctx, before = c->first;
    int failed = conversation_ids(c, &r->ids, ids);
    if (failed || ids->count < ctx)
        return failed;
    while (!failed && ids->count > ctx - ctx / 4 && c->first + 1 < c->count) {
        c->first += 2;
        failed = conversation_ids(c, &r->ids, ids);
    }
    bool full = ids->count >= ctx;
    if (!failed && full && !r->ids.count)
        failed = fail(c->err, "the question has %zu tokens%s, but the context holds only %zu (--ctx)", ids->count,
                      c->system.bytes ? " with the system text" : "", ctx);
    if (failed) {
        c->first = before;
        return failed;
    }
    if (!r->ends_line && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    if (c->first > before)
        warn("the context of %zu tokens is full: the model no longer sees the first %zu exchange%s", ctx, c->first / 2,
             c->first == 2 ? "" : "s");
    if (full)
        warn("the context of %zu tokens is full: the answer ends here", ctx);
    return full;
}

static void print_short_statistics(const Chat *c, const Reply *r)
{
    char rate[32] = "", seed[32] = "";
    if (r->timed && r->seconds > 0)
        snprintf(rate, sizeof rate, ", %.1f tok/s", (double)r->timed / r->seconds);
    if (!c->how.sampling.greedy)
        snprintf(seed, sizeof seed, "; seed %llu", (unsigned long long)c->how.sampling.seed);
    if (isatty(STDERR_FILENO))
        notice("%zu token%s%s; prompt %zu, %zu of them new; context %zu of %zu%s", r->ids.count,
               r->ids.count == 1 ? "" : "s", rate, r->prompt, r->read, c->session.state.pos, c->session.state.ctx,
               seed);
}

/* Answers the last turn, a question, with a turn more; false: there is none. */
static bool answer(Chat *c)
{
    Reply r = {.chat = c, .ends_line = true};
    IdList ids = {0};
    int result;
    c->sampler.options.seed = c->how.sampling.seed;
    sampler_reset(&c->sampler);
    do {
        result = fit(c, &r, &ids);
        if (result == 0)
            result = generate_part(c, &r, &ids);
    } while (result == 0 && r.part.reason == FINISH_CONTEXT);
    bool answered = result >= 0 && (r.bytes.length || r.part.reason != FINISH_INTERRUPTED);
    show(&r, r.bytes.length - r.shown);
    if (!r.ends_line || (answered && !r.shown))
        putchar('\n');
    else if (interrupted && c->terminal)
        fputc('\n', stderr); /* behind the ^C */
    finish(EXIT_OK);
    if (answered) {
        push_turn(c, r.bytes.bytes, r.bytes.length);
        print_short_statistics(c, &r);
        c->how.sampling.seed++;
    } else if (result < 0) {
        complain(c);
    } else {
        notice("nothing was answered: the question is taken back");
    }
    generated_free(&r.part);
    id_list_free(&r.ids);
    id_list_free(&ids);
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
static char *conversation_json(const Chat *c, size_t *length)
{
    char *text = NULL;
    FILE *out = must(open_memstream(&text, length));
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
    close_memory(out, &text);
    return text;
}

static int do_save(Chat *c)
{
    NewFile f;
    size_t length, n = c->count / 2;
    if (is_model_file(&c->session.checkpoint, c->argument.bytes))
        return fail(c->err, "%s is a file of the model itself", c->argument.bytes);
    char *text = conversation_json(c, &length);
    int failed = new_file_open(&f, c->argument.bytes, c->err);
    if (!failed && file_write_at(f.fd, text, length, 0))
        failed = fail(c->err, "%s: could not be written: %s", c->argument.bytes, strerror(errno));
    failed = failed || new_file_finish(&f, c->err) || new_files_publish(&f, 1, c->err);
    new_file_end(&f);
    free(text);
    if (!failed)
        notice("%s: saved, %zu exchange%s", c->argument.bytes, n, n == 1 ? "" : "s");
    return failed;
}

/* Takes what root says into an empty conversation. */
static int read_conversation(Chat *c, const JsonValue *root, char err[512])
{
    const JsonValue *system = json_get(root, "system"), *messages = json_get(root, "messages");
    if (!messages || messages->type != JSON_ARRAY)
        return fail(err, "there is no list of \"messages\"");
    const JsonValue *m = messages->child;
    if (m && json_string_is(json_get(m, "role"), "system")) { /* as other programs write it */
        system = json_get(m, "content");
        m = m->next;
    }
    if (system && system->type == JSON_STRING)
        set_text(&c->system, system->text, system->length);
    else if (system && system->type != JSON_NULL)
        return fail(err, "the system text is neither a text nor null");
    for (; m; m = m->next) {
        const JsonValue *content = json_get(m, "content");
        const char *role = roles[c->count % 2];
        if (!json_string_is(json_get(m, "role"), role) || !content || content->type != JSON_STRING)
            return fail(err, "turn %zu is not the %s's, with a text as \"content\"", c->count + 1, role);
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
    int failed = root ? read_conversation(&loaded, root, why) : -1;
    if (failed) {
        forget(&loaded);
        fail(c->err, "%s: not a saved conversation: %.300s", c->argument.bytes, why);
    } else {
        forget(c);
        c->system = loaded.system;
        c->turns = loaded.turns;
        c->count = loaded.count;
        use_system(c, NULL);
        notice("%s: loaded, %zu exchange%s", c->argument.bytes, c->count / 2, c->count == 2 ? "" : "s");
    }
    json_free(root);
    free(text);
    return failed;
}

/* ---- the other commands ------------------------------------------------------------------------------------------ */

/* What they show goes to stderr: standard output has the answers and nothing else. */

static int do_system(Chat *c)
{
    if (c->argument.length) {
        set_text(&c->system, c->argument.bytes, c->argument.length);
        notice("the system text is changed%s", c->count ? "; the conversation goes on with it" : "");
    } else {
        print_text(stderr, c->system.bytes ? c->system.bytes : "(none)", c->system.bytes ? c->system.length : 6);
        fputc('\n', stderr);
    }
    return 0;
}

static int do_reset(Chat *c)
{
    drop_turns(c, 0);
    notice("a new conversation, with the same system text");
    return 0;
}

static int do_undo(Chat *c)
{
    if (!c->count)
        return fail(c->err, "there is nothing to undo");
    drop_turns(c, c->count - 2);
    notice("the last exchange is gone; %zu left", c->count / 2);
    return 0;
}

static int do_retry(Chat *c)
{
    if (!c->count)
        return fail(c->err, "there is no question yet");
    if (c->how.sampling.greedy)
        notice("greedy: the same answer again; --temperature lets it vary");
    Text old = c->turns[--c->count];
    c->first = c->first < c->count ? c->first : c->count - 1;
    if (answer(c))
        text_free(&old);
    else
        c->turns[c->count++] = old;
    return 0;
}

/* Ids of the first n messages. */
static size_t count_ids(const Chat *c, const Message *messages, size_t n)
{
    IdList ids = {0};
    char err[512];
    if (tokenizer_chat_ids(c->session.tokenizer, messages, n, false, false, &ids, err))
        die(EXIT_FAILED, "%s", err);
    n = ids.count;
    id_list_free(&ids);
    return n;
}

static int do_tokens(Chat *c)
{
    size_t n, i = 0, before = 0;
    Message *list = list_messages(c, &n);
    if (c->system.bytes)
        fprintf(stderr, "system   %7zu\n", before = count_ids(c, list, ++i));
    if (c->first)
        fprintf(stderr, "1..%-6zu      -   no longer seen by the model\n", c->first / 2);
    for (size_t turn = c->first / 2 + 1; i < n; i += 2, turn++) {
        size_t question = count_ids(c, list, i + 1) - before, both = count_ids(c, list, i + 2) - before;
        fprintf(stderr, "%-9zu%7zu = %zu + %zu\n", turn, both, question, both - question);
        before += both;
    }
    fprintf(stderr, "context  %7zu of %zu tokens\n", before, c->session.state.ctx);
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
    const char *name, *argument, *help;
    int (*run)(Chat *c); /* -1 and a sentence in c->err if it fails */
} chat_commands[] = {
    {"help", "", "this list", do_help},
    {"system", "[TEXT]", "the system text, or another one", do_system},
    {"reset", "", "begin a new conversation", do_reset},
    {"undo", "", "drop the last question and its answer", do_undo},
    {"retry", "", "answer the last question again, with another seed", do_retry},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"load", "FILE", "go on with a saved one", do_load},
    {"tokens", "", "how much of the context is used, turn by turn: question + answer", do_tokens},
    {"exit", "", "leave, as Ctrl-D does", do_exit},
};
enum { N_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static int do_help(Chat *c)
{
    (void)c;
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "/%-7s%-7s %s\n", chat_commands[i].name, chat_commands[i].argument, chat_commands[i].help);
    fputs("//              begins a message with /\n\\               at the end of a line: it goes on in the next one\n"
          "Ctrl-C          stops an answer, clears the line; leaves where that is empty\n", stderr);
    return 0;
}

/* Of that name, or of the nearest one with *distance above 0; NULL. */
static const struct ChatCommand *find_command(const char *name, size_t length, size_t *distance)
{
    const struct ChatCommand *best = NULL;
    *distance = SIZE_MAX;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        size_t d = edit_distance(name, length, chat_commands[i].name, strlen(chat_commands[i].name));
        if (d < *distance && (d == 0 || nearly(length, d))) {
            *distance = d;
            best = &chat_commands[i];
        }
    }
    return best;
}

/* A line that begins with one "/". */
static void run_command(Chat *c, const Text *line)
{
    size_t name = strcspn(line->bytes + 1, " \t\n"), begin = name + 1, end = line->length, distance;
    const struct ChatCommand *command = find_command(line->bytes + 1, name, &distance);
    int failed;
    while (begin < end && strchr(" \t\n", line->bytes[begin]))
        begin++;
    while (end > begin && strchr(" \t\n", line->bytes[end - 1]))
        end--;
    c->argument.length = 0;
    if (text_append(&c->argument, line->bytes + begin, end - begin)) /* a path may be other than UTF-8 */
        die(EXIT_FAILED, "out of memory");
    if (distance)
        failed = fail(c->err, "there is no /%.*s%s%s", (int)(name < 64 ? name : 64), line->bytes + 1,
                      command ? ": did you mean /" : "; /help lists the commands", command ? command->name : "");
    else if (*command->argument != '[' && !*command->argument != !c->argument.length)
        failed = fail(c->err, "/%s %s", command->name, *command->argument ? "needs a FILE" : "takes nothing behind it");
    else
        failed = command->run(c);
    if (failed)
        complain(c);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Line after line. Returns the exit code. */
static int converse(Chat *c)
{
    LineResult result = LINE_OK;
    Text line = {0};
    catch_interrupts();
    while (!c->ended && (c->terminal || !interrupted) && (result = line_read("> ", &line)) == LINE_OK) {
        catch_interrupts();
        if (c->terminal)
            line_remember(&line);
        bool slash = line.length && line.bytes[0] == '/', twice = slash && line.bytes[1] == '/';
        if (slash && !twice)
            run_command(c, &line);
        else if (line.length)
            ask(c, line.bytes + twice, line.length - twice);
    }
    text_free(&line);
    if (result == LINE_INTERRUPTED || (interrupted && !c->terminal))
        return EXIT_INTERRUPTED;
    return c->failed && !c->terminal ? EXIT_FAILED : EXIT_OK;
}

int cmd_chat(int argc, char **argv)
{
    Chat c = {.max_tokens = SIZE_MAX, .terminal = isatty(STDIN_FILENO)};
    const char *system = NULL, *problem;
    SamplingArguments a = sampling_arguments();
    const Option options[] = {
        {0, "system", "TEXT", OPTION_TEXT, &system, "the system message (default: the chat template's)"},
        {'n', "max-tokens", "N", OPTION_COUNT, &c.max_tokens, "most tokens of an answer"},
        SAMPLING_OPTIONS(a),
        {0},
    };
    int count = options_parse(argc, argv, options, true, NULL,
                              "run chat\n"
                              "run chat -m Qwen/Qwen2.5-0.5B-Instruct -w bf16 --system \"Be brief.\"\n"
                              "run chat --greedy -q <questions.txt >answers.txt    # a line each\n"
                              "\n"
                              "/help, typed there, lists the commands: /system /reset /undo /retry /save /load ...\n");
    arguments_at_most(count, 0, argv);
    if (common.json)
        usage_error("--json: not here; /save FILE writes the conversation as JSON");
    check_sampling(&a);
    session_open(&c.session, true, false);
    if ((problem = tokenizer_chat_problem(c.session.tokenizer)))
        die(EXIT_FAILED, "%s", problem);
    use_system(&c, system);
    c.block = c.session.state.block;
    c.session.state.block = c.block < FIRST_BLOCK ? c.block : FIRST_BLOCK;
    c.how = choose_sampling(&c.session, &a, true);
    c.sampler = open_sampler(&c.session, &c.how.sampling);
    if (c.terminal)
        notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
    int code = finish(converse(&c));
    forget(&c);
    text_free(&c.argument);
    id_list_free(&c.cached);
    sampler_free(&c.sampler);
    session_close(&c.session);
    return code;
}
