/* The loop of generation: the prompt in blocks, then one token after the other. Their text goes out as soon as it is
 * certain: whole characters that cannot be the beginning of a stop text.
 */
#include "generate/generate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- text as it comes -------------------------------------------------------------------------------------------- */

typedef struct {
    Model *m;
    RunState *s;
    Sampler *sampler;
    const Tokenizer *tokenizer;
    const GenerateOptions *o;
    Generated *out;
    Text raw;     /* bytes of the answer's tokens, whole characters or not */
    size_t given; /* how many of them went out */
    double start;
    char *err;
} Generation;

const char *finish_reason_name(FinishReason r)
{
    static const char *const names[] = {"end", "length", "stop", "context", "time", "interrupted"};
    return names[r];
}

void generated_free(Generated *g)
{
    id_list_free(&g->ids);
    text_free(&g->text);
    *g = (Generated){0};
}

/* Gives out the bytes up to `end`. 1: the receiver wants no more. */
static int give_out(Generation *g, size_t end)
{
    Text *text = &g->out->text;
    size_t before = text->length;
    if (end <= g->given)
        return 0;
    if (text_append_replacing(text, g->raw.bytes + g->given, end - g->given))
        return fail(g->err, "out of memory for the text");
    g->given = end;
    return g->o->on_text && g->o->on_text(g->o->context, text->bytes + before, text->length - before) ? 1 : 0;
}

/* Where the first stop text begins that ends behind `from`; SIZE_MAX: nowhere. */
static size_t find_stop(const Generation *g, size_t from)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < g->o->n_stops; i++) {
        size_t length = strlen(g->o->stops[i]), begin = from < length ? 0 : from - length + 1;
        const char *at = length ? memmem(g->raw.bytes + begin, g->raw.length - begin, g->o->stops[i], length) : NULL;
        if (at && (size_t)(at - g->raw.bytes) < first)
            first = (size_t)(at - g->raw.bytes);
    }
    return first;
}

/* How many of the last bytes may be the beginning of a stop text. */
static size_t stop_begun(const Generation *g)
{
    size_t most = 0;
    for (size_t i = 0; i < g->o->n_stops; i++) {
        size_t length = strlen(g->o->stops[i]), n = length < g->raw.length + 1 ? length : g->raw.length + 1;
        while (n-- > most + 1)
            if (memcmp(g->raw.bytes + g->raw.length - n, g->o->stops[i], n) == 0)
                most = n;
    }
    return most;
}

/* Text of one more token: what is certain of it goes out. 1 if that was the last one, with the reason set. */
static int add_text(Generation *g, int id)
{
    size_t length, before = g->raw.length;
    if (!g->tokenizer || tokenizer_is_special(g->tokenizer, id))
        return 0;
    const char *piece = tokenizer_piece(g->tokenizer, id, &length);
    if (length == 0)
        return 0;
    if (text_append(&g->raw, piece, length))
        return fail(g->err, "out of memory for the text");
    size_t stop = find_stop(g, before);
    if (stop != SIZE_MAX) {
        g->raw.length = stop;
        g->out->reason = FINISH_STOP;
        return 1;
    }
    size_t certain = g->raw.length - stop_begun(g);
    if (certain <= g->given)
        return 0;
    int result = give_out(g, g->given + text_complete_prefix(g->raw.bytes + g->given, certain - g->given));
    if (result > 0)
        g->out->reason = FINISH_INTERRUPTED;
    return result;
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 1 if it is time to stop, with the reason set. */
static int must_stop(const Generation *g)
{
    if (g->o->interrupted && *g->o->interrupted)
        g->out->reason = FINISH_INTERRUPTED;
    else if (g->o->max_seconds > 0 && seconds_now() - g->start >= g->o->max_seconds)
        g->out->reason = FINISH_TIME;
    else
        return 0;
    return 1;
}

static int run(Generation *g, const int *tokens, size_t n)
{
    if (run_state_reserve(g->s, g->s->pos + n, g->err))
        return -1;
    forward(g->m, g->s, tokens, (int)n);
    return 0;
}

/* Feeds what the cache does not hold yet: one token at least, since its logits are wanted. 1 if it was stopped. */
static int feed_prompt(Generation *g, const int *prompt, size_t n, size_t *last_block)
{
    if (g->s->pos >= n)
        run_state_rewind(g->s, n - 1);
    for (size_t begin = g->s->pos; g->s->pos < n;) {
        size_t rest = n - g->s->pos;
        *last_block = rest < g->s->block ? rest : g->s->block;
        if (must_stop(g))
            return 1;
        if (run(g, prompt + g->s->pos, *last_block))
            return -1;
        if (g->o->on_prefill)
            g->o->on_prefill(g->o->context, g->s->pos - begin, n - begin);
    }
    return 0;
}

static bool is_end(const GenerateOptions *o, int id)
{
    bool found = false;
    for (size_t i = 0; i < o->n_eos; i++)
        found |= o->eos_ids[i] == id;
    return found && !o->ignore_eos;
}

/* Chooses a token and takes it into the answer. 1 if it was the last one. */
static int choose_token(Generation *g, float *logits)
{
    Generated *out = g->out;
    int id = sampler_next(g->sampler, logits, g->err);
    if (id < 0)
        return -1;
    if (id_list_append(&out->ids, id))
        return fail(g->err, "out of memory for %zu tokens", out->ids.count);
    sampler_accept(g->sampler, id);
    if (is_end(g->o, id)) {
        out->reason = FINISH_END;
        return 1;
    }
    int result = add_text(g, id);
    if (result == 0 && out->ids.count >= g->o->max_tokens) {
        out->reason = FINISH_LENGTH;
        return 1;
    }
    return result;
}

/* Prompt, first token, then each token after the one before. */
static int answer(Generation *g, const int *prompt, size_t n_prompt)
{
    RunState *s = g->s;
    size_t block = 1;
    int result = feed_prompt(g, prompt, n_prompt, &block);
    double first = seconds_now();
    g->out->prompt_seconds = first - g->start;
    if (result == 0 && g->o->max_tokens == 0) {
        g->out->reason = FINISH_LENGTH;
        return 0;
    }
    if (result == 0)
        result = choose_token(g, s->logits + (s->all_logits ? (block - 1) * g->m->config.vocab_size : 0));
    while (result == 0 && !must_stop(g)) {
        int id = g->out->ids.items[g->out->ids.count - 1];
        if (s->pos == s->ctx) {
            g->out->reason = FINISH_CONTEXT;
            break;
        }
        result = run(g, &id, 1) ? -1 : choose_token(g, s->logits);
    }
    g->out->seconds = seconds_now() - first;
    return result < 0 ? -1 : 0;
}

int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512])
{
    Generation g = {
        .m = m, .s = s, .sampler = sampler, .tokenizer = t, .o = o, .out = out, .start = seconds_now(), .err = err};
    *out = (Generated){0};
    if (n_prompt == 0)
        return fail(err, "the prompt has no tokens");
    if (n_prompt > s->ctx)
        return fail(err, "the prompt has %zu tokens, but the context holds %zu", n_prompt, s->ctx);
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (size_t)prompt[i] >= m->config.vocab_size)
            return fail(err, "token %zu of the prompt is %d, but the model knows 0 to %zu", i, prompt[i],
                        m->config.vocab_size - 1);
        sampler_accept(sampler, prompt[i]);
    }
    int result = answer(&g, prompt, n_prompt);
    if (result == 0 && give_out(&g, g.raw.length) < 0)
        result = -1;
    text_free(&g.raw);
    return result;
}
