/* run generate --jsonl: requests come one a line and share the steps of the model; each answer is a line, written when
 * it is complete.
 *
 * A request takes a slot, of which there are as many as may run at a time. What a slot has in its cache stays there
 * until the next request takes it, so a request that begins as another one did, running or done, goes on from where
 * they part. If the other one is still reading that beginning, the request waits for it.
 */
#include "base/clock.h"
#include "commands/answer.h"
#include "commands/drafts.h"
#include "commands/generate.h"
#include "commands/output.h"
#include "commands/requests.h"
#include "commands/terminal.h"
#include "generate/batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARE_LEAST 16 /* tokens: less is computed again sooner than it is waited for */

typedef enum { SLOT_FREE, SLOT_WAITS, SLOT_RUNS } SlotState;

typedef struct Slot Slot;
struct Slot {
    SlotState state;
    Text line;          /* of the request, whose texts point into it */
    JsonValue *request; /* NULL if the line is no JSON */
    size_t number;      /* of the line */
    IdList tokens;      /* of the prompt; once the slot is free, those of the cache */
    KvCache cache;
    const Slot *like; /* NULL, or the slot whose cache has or will have the first `alike` tokens */
    size_t alike;
    const char **stops;
    Sampler sampler;
    GenerateOptions options;
    Generation generation;
    Generated out;
};

typedef struct {
    const GenerateArguments *arguments;
    Session *session;
    SamplingSettings plain, chat; /* chat: the end of a turn ends an answer, too */
    Drafter *drafter;
    Slot *slots; /* [n] */
    size_t n;
    Generation **running;                                /* [n], those of a step */
    size_t answers, prompt_tokens, shared_tokens, tokens; /* so far */
    bool failed;
} Runner;

/* ---- what a request says ----------------------------------------------------------------------------------------- */

/* The texts that end the answer: "stop" is one or a list; without it those of the command line. */
static int read_stops(Slot *slot, const GenerateArguments *a, char err[512])
{
    const JsonValue *stop = json_get(slot->request, "stop");
    GenerateOptions *o = &slot->options;
    if (!stop || stop->type == JSON_NULL) {
        o->stops = a->stops.items;
        o->n_stops = a->stops.count;
        return 0;
    }
    bool is_list = stop->type == JSON_ARRAY;
    o->stops = slot->stops = xcalloc(is_list ? MAX(stop->length, 1) : 1, sizeof *slot->stops);
    for (const JsonValue *v = is_list ? stop->child : stop; v; v = is_list ? v->next : NULL) {
        if (v->type != JSON_STRING || v->length == 0 || memchr(v->text, '\0', v->length))
            return fail(err, "\"stop\" should be a text or a list of texts, none of them empty");
        char *text = xmalloc(v->length + 1);
        memcpy(text, v->text, v->length);
        text[v->length] = '\0';
        slot->stops[o->n_stops++] = text;
    }
    return 0;
}

/* How to choose: what the request says over what the command line and generation_config.json say. */
static int read_sampling(const Slot *slot, SamplingArguments a, SampleOptions *o, char err[512])
{
    static const char *const not_greedy[] = {"temperature", "top_k", "top_p", "min_p"};
    const JsonLookup l = {slot->request, "the request", err};
    const JsonValue *seed = json_lookup(&l, "seed");
    a.seed = a.seed == a.random_seed ? sampling_random_seed() : a.seed;
    for (size_t i = 0; i < COUNT_OF(not_greedy); i++)
        a.greedy = a.greedy && !json_lookup(&l, not_greedy[i]);
    if (json_lookup_number(&l, "temperature", 0, INFINITY, &a.temperature) ||
        json_lookup_size(&l, "top_k", 0, SIZE_MAX / 2, &a.top_k) ||
        json_lookup_number(&l, "top_p", 0, 1, &a.top_p) || json_lookup_number(&l, "min_p", 0, 1, &a.min_p) ||
        json_lookup_number(&l, "repeat_penalty", 0, INFINITY, &a.repeat_penalty) ||
        json_lookup_bool(&l, "greedy", &a.greedy))
        return -1;
    if (seed && json_u64(seed, &a.seed) != 0)
        return fail(err, "\"seed\" should be a whole number from 0 to %" PRIu64, UINT64_MAX);
    return sampling_apply(&a, o, err);
}

/* The prompt's ids. *chat: whether it is a conversation. */
static int read_prompt(const Runner *r, Slot *slot, bool *chat, char err[512])
{
    const JsonValue *text = json_get(slot->request, "prompt"), *list = json_get(slot->request, "ids"),
                    *conversation = json_get(slot->request, "messages");
    Tokenizer *t = r->session->tokenizer;
    if ((text ? 1 : 0) + (list ? 1 : 0) + (conversation ? 1 : 0) != 1)
        return fail(err, "expected an object with one of \"prompt\", \"ids\" and \"messages\"");
    if (text && text->type != JSON_STRING)
        return fail(err, "\"prompt\" should be a string");
    if (list)
        return request_ids(list, &slot->tokens, err);
    if (!t)
        return fail(err, "there is no tokenizer in %s: only \"ids\" can be answered", r->session->checkpoint.directory);
    *chat = conversation || r->arguments->chat;
    if (text && *chat)
        return generate_chat_ids(t, r->arguments->system, text->text, text->length, &slot->tokens, err);
    if (text)
        return tokenizer_encode(t, text->text, text->length, true, &slot->tokens, err);
    if (tokenizer_chat_problem(t))
        return fail(err, "%s", tokenizer_chat_problem(t));
    Message *messages = request_messages(conversation, err);
    if (!messages)
        return -1;
    int status = tokenizer_chat_ids(t, messages, conversation->length, true, true, &slot->tokens, err);
    free(messages);
    return status;
}

/* Everything that a request says, into its slot. */
static int read_request(const Runner *r, Slot *slot, char err[512])
{
    static const char *const known[] = {"id", "prompt", "messages", "ids", "max_tokens", "temperature", "top_k", "top_p",
                                        "min_p", "repeat_penalty", "seed", "greedy", "stop", "ignore_eos",
                                        "max_seconds"};
    const GenerateArguments *a = r->arguments;
    const Session *s = r->session;
    const JsonLookup l = {slot->request, "the request", err};
    GenerateOptions *o = &slot->options;
    size_t given = a->max_tokens, vocab = s->model.config.vocab_size;
    bool chat = false;
    if (request_check_fields(slot->request, known, COUNT_OF(known), err) || read_prompt(r, slot, &chat, err))
        return -1;
    if (slot->tokens.count == 0 && s->model.config.bos_token_id < 0)
        return fail(err, "the prompt is empty, and the model's config.json names no bos_token_id to start from");
    if (slot->tokens.count == 0)
        xappend_id(&slot->tokens, s->model.config.bos_token_id);
    const SamplingSettings *settings = chat ? &r->chat : &r->plain;
    SampleOptions sampling = settings->sampling;
    *o = (GenerateOptions){.max_seconds = a->max_seconds > 0 ? a->max_seconds : settings->max_time,
                           .eos_ids = settings->eos,
                           .n_eos = settings->n_eos,
                           .ignore_eos = a->ignore_eos,
                           .drafter = r->drafter,
                           .interrupted = &interrupted};
    if (json_lookup_size(&l, "max_tokens", 0, SIZE_MAX / 2, &given) ||
        json_lookup_number(&l, "max_seconds", 0, INFINITY, &o->max_seconds) ||
        json_lookup_bool(&l, "ignore_eos", &o->ignore_eos) || read_stops(slot, a, err) ||
        read_sampling(slot, a->sampling, &sampling, err) ||
        sampling_max_tokens(settings, given, slot->tokens.count, &o->max_tokens, err))
        return -1;
    if (o->n_stops && !s->tokenizer)
        return fail(err, "there is no tokenizer in %s, which \"stop\" needs", s->checkpoint.directory);
    size_t usable = s->tokenizer ? MIN(tokenizer_size(s->tokenizer), vocab) : vocab;
    return sampler_init(&slot->sampler, &sampling, vocab, usable, err);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* {"id":, which is the request's, or the number of its line. */
static void write_id(const Slot *slot)
{
    const JsonValue *id = json_get(slot->request, "id");
    printf("{\"id\":");
    if (id)
        json_print(stdout, id, JSON_COMPACT);
    else
        printf("%zu", slot->number);
}

static void write_error(Runner *r, const Slot *slot, const char *err)
{
    r->failed = true;
    write_id(slot);
    write_name(",\"error\":", err);
    puts("}");
}

/* Free what belongs to the request. The cache stays, and slot->tokens say what is in it. */
static void clear(Slot *slot)
{
    if (slot->state == SLOT_RUNS) { /* these are the prompt and the answer */
        id_list_free(&slot->tokens);
        slot->tokens = slot->generation.tokens;
        slot->generation.tokens = (IdList){0};
        generation_free(&slot->generation);
    }
    generated_free(&slot->out);
    sampler_free(&slot->sampler);
    for (size_t i = 0; slot->stops && i < slot->options.n_stops; i++)
        free((char *)slot->stops[i]);
    free(slot->stops);
    slot->stops = NULL;
    json_free(slot->request);
    slot->request = NULL;
    slot->state = SLOT_FREE;
}

/* Write the answer of a slot that has come to its end, and free it for another request. */
static void write_answer(Runner *r, Slot *slot)
{
    Generation *g = &slot->generation;
    generation_finish(g);
    if (g->failed) {
        write_error(r, slot, g->err);
    } else {
        write_id(slot);
        answer_write_json(r->session, ",\"prompt_ids\":", &slot->out,
                          &(IdList){.items = g->tokens.items, .count = g->n_prompt}, slot->sampler.options.seed);
    }
    r->answers++;
    r->prompt_tokens += g->n_prompt;
    r->shared_tokens += g->begin;
    r->tokens += slot->out.ids.count;
    clear(slot);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static size_t common_beginning(const IdList *a, const IdList *b)
{
    size_t n = 0, most = MIN(a->count, b->count);
    while (n < most && a->items[n] == b->items[n])
        n++;
    return n;
}

/* Find the slot whose cache has, or will have, the longest beginning of the prompt. */
static void find_beginning(const Runner *r, Slot *slot, const IdList *prompt)
{
    slot->like = NULL;
    slot->alike = 0;
    for (size_t i = 0; i < r->n; i++) {
        const Slot *other = &r->slots[i];
        size_t alike = common_beginning(&other->tokens, prompt);
        if (other->state == SLOT_FREE)
            alike = MIN(alike, other->cache.pos);
        if (alike > slot->alike && alike >= SHARE_LEAST) {
            slot->like = other;
            slot->alike = alike;
        }
    }
}

/* The free slot that has least in its cache, so that long beginnings stay. NULL if none is free. */
static Slot *free_slot(const Runner *r)
{
    Slot *found = NULL;
    for (size_t i = 0; i < r->n; i++)
        if (r->slots[i].state == SLOT_FREE && (!found || r->slots[i].cache.pos < found->cache.pos))
            found = &r->slots[i];
    return found;
}

/* Start a request once the beginning that it shares is there. */
static void start_if_ready(Runner *r, Slot *slot)
{
    const Slot *like = slot->like;
    bool reading = like && like != slot && like->state != SLOT_FREE;
    if (reading && (like->state == SLOT_WAITS || like->cache.pos < slot->alike))
        return;
    size_t n = like ? MIN(slot->alike, like->cache.pos) : 0;
    if (like && like != slot) /* which another request may have taken meanwhile */
        n = MIN(n, common_beginning(&like->tokens, &slot->tokens));
    if (like && like != slot)
        kv_cache_share(&slot->cache, &like->cache, n);
    else
        kv_cache_rewind(&slot->cache, n);
    slot->state = SLOT_RUNS;
    Generation *g = &slot->generation;
    if (generation_start(g, &r->session->model, &slot->cache, &slot->sampler, r->session->tokenizer,
                         slot->tokens.items, slot->tokens.count, &slot->options, &slot->out, g->err) != 0) {
        write_error(r, slot, g->err);
        kv_cache_rewind(&slot->cache, 0);
        clear(slot);
    }
}

/* Give the line to the slot. If it is not a request that can be answered, its error is written. */
static void take_request(Runner *r, Slot *slot, const char *line, size_t length, size_t number)
{
    char err[512];
    IdList before = slot->tokens; /* what the cache has */
    slot->tokens = (IdList){0};
    slot->line.length = 0;
    xappend(&slot->line, line, length);
    slot->number = number;
    slot->request = json_parse(slot->line.bytes, length, err);
    if (!slot->request || read_request(r, slot, err) != 0) {
        write_error(r, slot, err);
        clear(slot);
        id_list_free(&slot->tokens);
        slot->tokens = before;
        return;
    }
    IdList prompt = slot->tokens;
    slot->tokens = before; /* the slot may be like itself */
    find_beginning(r, slot, &prompt);
    slot->tokens = prompt;
    slot->state = SLOT_WAITS;
    id_list_free(&before);
    start_if_ready(r, slot);
}

/* Fill free slots with requests, as far as there are some. False once there are no more. */
static bool take_requests(Runner *r, Lines *lines, bool idle)
{
    Slot *slot;
    const char *line;
    size_t length;
    while ((slot = free_slot(r))) {
        LinesStatus status = lines_take(lines, idle, &line, &length);
        if (status != LINES_TAKEN)
            return status == LINES_NOT_YET;
        take_request(r, slot, line, length, lines->number);
        idle = idle && slot->state == SLOT_FREE; /* go on waiting after an error */
    }
    return true;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* One step of all that run. Returns how many slots are taken afterwards. */
static size_t step(Runner *r)
{
    char err[512];
    size_t n = 0, taken = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->slots[i].state == SLOT_RUNS && generation_goes_on(&r->slots[i].generation))
            r->running[n++] = &r->slots[i].generation;
    if (n > 0)
        die_if(batch_step(&r->session->model, &r->session->state, r->running, n, r->drafter, err), err);
    for (size_t i = 0; i < r->n; i++) {
        if (r->slots[i].state == SLOT_RUNS && !generation_goes_on(&r->slots[i].generation))
            write_answer(r, &r->slots[i]);
        taken += r->slots[i].state != SLOT_FREE ? 1 : 0;
    }
    return taken;
}

/* Answer until the input ends. */
static void answer_all(Runner *r)
{
    Lines lines = {0};
    size_t taken = 0;
    for (bool more = true; (more || taken > 0) && !ferror(stdout); taken = step(r)) {
        for (size_t i = 0; i < r->n; i++)
            if (r->slots[i].state == SLOT_WAITS)
                start_if_ready(r, &r->slots[i]);
        if (more)
            more = take_requests(r, &lines, taken == 0);
        fflush(stdout);
    }
    text_free(&lines.text);
}

int generate_lines(const GenerateArguments *a)
{
    Session s;
    Drafts drafts;
    char err[512];
    size_t n = a->parallel ? a->parallel : 8, most = a->draft ? n * (DRAFT_MOST + 1) : n;
    if (n > common.block)
        usage_error("--parallel %zu is more than a step has room for: --block %zu", n, common.block);
    session_open(&s, false, MIN(MAX(n, MIN(most, 64)), common.block));
    Runner r = {.arguments = a, .session = &s, .n = n};
    r.drafter = drafts_open(&drafts, &s, a->draft);
    r.plain = r.chat = sampling_settings(&s, &a->sampling, false);
    sampling_end_with_turn(&r.chat, &s);
    r.slots = xcalloc(n, sizeof *r.slots);
    r.running = xcalloc(n, sizeof(Generation *));
    for (size_t i = 0; i < n; i++)
        die_if(kv_cache_init(&r.slots[i].cache, &s.model.config, s.state.cache.type, s.state.cache.ctx, err), err);
    catch_interrupts();
    end_within(3); /* a block of a long prompt can take longer */
    double begin = clock_seconds();
    answer_all(&r);
    end_within(0);
    session_check_sizes(&s);
    int code = finish(interrupted ? EXIT_INTERRUPTED : r.failed ? EXIT_FAILED : EXIT_OK);
    notice("%zu answer%s: %zu token%s, %.1f tok/s; %zu of %zu prompt tokens were shared", r.answers, plural(r.answers),
           r.tokens, plural(r.tokens), (double)r.tokens / (clock_seconds() - begin), r.shared_tokens, r.prompt_tokens);
    for (size_t i = 0; i < n; i++) {
        kv_cache_free(&r.slots[i].cache);
        id_list_free(&r.slots[i].tokens);
        text_free(&r.slots[i].line);
    }
    free(r.slots);
    free(r.running);
    drafts_close(&drafts);
    session_close(&s);
    return code;
}
