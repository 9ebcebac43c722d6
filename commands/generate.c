/* run generate: continues a prompt, token by token. */
#include "commands/generate.h"

#include "commands/answer.h"
#include "commands/drafts.h"
#include "commands/output.h"
#include "commands/terminal.h"
#include "generate/generate.h"

#include <math.h>
#include <string.h>

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static GenerateArguments parse_generate(int argc, char **argv)
{
    static GenerateArguments a = {.max_tokens = SIZE_MAX};
    a.sampling = sampling_arguments();
    const Option options[] = {
        {'n', "max-tokens", "N", OPTION_SIZE, &a.max_tokens, "at most N tokens (default: by generation_config.json)"},
        PROMPT_OPTIONS(a.from),
        SAMPLING_OPTIONS(a.sampling),
        {0, "stop", "TEXT", OPTION_LIST, &a.stops, "stop before TEXT; may be given several times"},
        {0, "ignore-eos", NULL, OPTION_FLAG, &a.ignore_eos, "do not stop at end tokens"},
        {0, "chat", NULL, OPTION_FLAG, &a.chat, "the prompt is a user's message, in the chat template"},
        {0, "system", "TEXT", OPTION_ANY, &a.system, "system message (implies --chat)"},
        {0, "no-echo", NULL, OPTION_FLAG, &a.no_echo, "print the continuation without the prompt"},
        DRAFT_OPTION(a.draft),
        {0, "max-seconds", "S", OPTION_NUMBER, &a.max_seconds, "stop after S seconds (0: no limit)"},
        JSON_OPTION,
        {0, "jsonl", NULL, OPTION_FLAG, &a.jsonl,
         "answer JSON requests from standard input, a line each"},
        {0, "parallel", "N", OPTION_COUNT, &a.parallel, "with --jsonl: up to N at a time (default 8)"},
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run generate \"Once upon a time\"\n"
                              "run generate --chat \"Why is the sky blue?\" -w bf16 --temperature 0.8 --seed 7\n"
                              "echo '{\"prompt\":\"Once\",\"max_tokens\":20}' | run generate --jsonl\n");
    a.chat = a.chat || a.system;
    for (size_t i = 0; i < a.stops.count && a.from.escapes; i++) {
        char *stop = xstrdup(a.stops.items[i]);
        stop[input_unescape(stop, strlen(stop))] = '\0';
        a.stops.items[i] = stop;
    }
    if (a.from.ids && a.chat)
        usage_error("give --ids or --chat, not both");
    sampling_check(&a.sampling);
    if (a.jsonl && (count || a.from.ids || a.from.file || a.from.escapes || a.no_echo || common.json))
        usage_error("--jsonl takes prompts and how to show them from its requests only");
    if (a.parallel && !a.jsonl)
        usage_error("--parallel goes with --jsonl");
    if (!a.jsonl)
        input_prompt(&a.from, count ? argv[1] : NULL);
    return a;
}

/* ---- the prompt and the text as it comes ------------------------------------------------------------------------- */

int generate_chat_ids(Tokenizer *t, const char *system, const char *text, size_t length, IdList *ids, char err[512])
{
    Message messages[2];
    size_t n = 0;
    if (tokenizer_chat_problem(t))
        return fail(err, "%s", tokenizer_chat_problem(t));
    if (system)
        messages[n++] = (Message){"system", system, 6, strlen(system)};
    messages[n++] = (Message){"user", text, 4, length};
    return tokenizer_chat_ids(t, messages, n, true, !system, ids, err);
}

static IdList chat_prompt(Session *s, const GenerateArguments *a)
{
    IdList ids = {0};
    char err[512];
    die_if(generate_chat_ids(s->tokenizer, a->system, a->from.text.bytes, a->from.text.length, &ids, err), err);
    session_check_ids(s, ids.items, ids.count);
    return ids;
}

/* context: whether what was shown so far ends a line. */
static int show_text(void *context, const char *bytes, size_t length)
{
    bool *ends_line = context;
    if (!length)
        return 0;
    progress_end();
    print_text(stdout, bytes, length);
    *ends_line = bytes[length - 1] == '\n';
    return fflush(stdout) ? -1 : 0;
}

static void echo_prompt(const Session *s, const Prompt *prompt, const IdList *ids, bool *ends_line)
{
    Text shown = {0};
    int status = prompt->ids ? tokenizer_decode(s->tokenizer, ids->items, ids->count, false, &shown)
                             : text_append_replacing(&shown, prompt->text.bytes, prompt->text.length);
    die_if(status, "out of memory");
    show_text(ends_line, shown.bytes, shown.length);
    text_free(&shown);
}

/* The answer where there is no tokenizer. */
static void print_ids(const IdList *prompt, const IdList *ids, bool echo)
{
    size_t before = echo ? prompt->count : 0;
    for (size_t i = 0; i < before + ids->count; i++)
        printf("%s%d", i ? "," : "", i < before ? prompt->items[i] : ids->items[i - before]);
    putchar('\n');
}

/* ---- logits that are not finite ---------------------------------------------------------------------------------- */

#define WHERE 64 /* bytes of the name of a step; "": none was found yet */

static void look_for_nonfinite(void *context, int layer, const char *step, const float *values, size_t n)
{
    char *where = context;
    for (size_t i = 0; i < n && !*where; i++)
        if (!isfinite(values[i]) && layer < 0)
            snprintf(where, WHERE, "%s", step);
        else if (!isfinite(values[i]))
            snprintf(where, WHERE, "layer %d, %s", layer, step);
}

/* generate() failed with err: say at which position, and after running the last token again, which step was the first
 * to make NaN or infinity of its numbers. */
static _Noreturn void die_not_finite(Session *s, const Generated *g, const IdList *prompt, const char *err)
{
    size_t position = MAX(s->state.cache.pos, 1) - 1;
    const IdList *last = g->ids.count ? &g->ids : prompt;
    char where[WHERE] = "";
    if (s->state.cache.pos > 0) {
        kv_cache_rewind(&s->state.cache, position);
        s->state.observe = look_for_nonfinite;
        s->state.observe_context = where;
        const float *logits = forward(&s->model, &s->state, &last->items[last->count - 1], 1);
        look_for_nonfinite(where, -1, "the last norm or the head", logits, s->model.config.vocab_size);
    }
    die(EXIT_FAILED, "position %zu: %s%s%s", position, err, *where ? "; the first NaN or infinity comes from " : "",
        where);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

int cmd_generate(int argc, char **argv)
{
    GenerateArguments a = parse_generate(argc, argv);
    if (a.jsonl)
        return generate_lines(&a);
    Session s;
    Generated g = {0};
    char err[512];

    Drafts drafts;
    session_open(&s, !a.from.ids, a.draft ? DRAFT_MOST + 1 : 1);
    Drafter *drafter = drafts_open(&drafts, &s, a.draft);
    SamplingSettings how = sampling_settings(&s, &a.sampling, a.chat);
    if (a.stops.count && !s.tokenizer)
        die(EXIT_FAILED, "--stop needs a tokenizer, and there is none in %s", s.checkpoint.directory);

    bool as_text = s.tokenizer && !common.json, ends_line = false;
    IdList prompt = a.chat ? chat_prompt(&s, &a) : session_prompt(&s, &a.from);
    if (as_text && !a.no_echo && !a.chat)
        echo_prompt(&s, &a.from, &prompt, &ends_line);
    text_free(&a.from.text);

    Sampler sampler = sampling_open(&s, &how.sampling);
    size_t most;
    die_if(sampling_max_tokens(&how, a.max_tokens, prompt.count, &most, err), err);
    GenerateOptions options = {.max_tokens = most,
                               .max_seconds = a.max_seconds > 0 ? a.max_seconds : how.max_time,
                               .stops = a.stops.items,
                               .n_stops = a.stops.count,
                               .eos_ids = how.eos,
                               .n_eos = how.n_eos,
                               .ignore_eos = a.ignore_eos,
                               .drafter = drafter,
                               .interrupted = &interrupted,
                               .on_text = as_text ? show_text : NULL,
                               .on_prefill = session_show_prefill,
                               .context = &ends_line};
    catch_interrupts();
    end_within(1); /* a block of a long prompt can take longer */
    if (generate(&s.model, &s.state, &sampler, s.tokenizer, prompt.items, prompt.count, &options, &g, err)) {
        if (as_text && !ends_line)
            putchar('\n');
        fflush(stdout); /* the error starts a line of its own */
        die_not_finite(&s, &g, &prompt, err);
    }
    end_within(0);
    progress_end();
    session_check_sizes(&s);
    if (common.json)
        answer_write_json(&s, "{\"prompt_ids\":", &g, &prompt, how.sampling.seed);
    else if (!s.tokenizer)
        print_ids(&prompt, &g.ids, !a.no_echo);
    else if (!ends_line)
        putchar('\n');
    int code = finish(interrupted ? EXIT_INTERRUPTED : EXIT_OK);
    if (!common.json)
        answer_print_statistics(&s, &g, prompt.count, &how.sampling);

    generated_free(&g);
    id_list_free(&prompt);
    sampler_free(&sampler);
    drafts_close(&drafts);
    session_close(&s);
    return code;
}
