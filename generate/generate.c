/* The loop of generation: the prompt in blocks, then one token after the other. The text is passed on as soon as it is
 * certain: when it is whole characters, and can't be the beginning of a stop text.
 */
#include "generate/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "generate/stops.h"

/* ---- text as it comes -------------------------------------------------------------------------------------------- */

typedef struct {
    Model *m;
    RunState *s;
    Sampler *sampler;
    const Tokenizer *tokenizer;
    const GenerateOptions *o;
    Generated *out;
    Stops stops;
    Text joined; /* the bytes of the answer's tokens */
    size_t sent; /* how many of the bytes were passed on */
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

/* Pass on the bytes up to `end`. Returns 1 if the receiver wants no more. */
static int send_text(Generation *g, size_t end)
{
    Text *text = &g->out->text;
    size_t before = text->length;
    if (end <= g->sent)
        return 0;
    if (text_append_replacing(text, g->joined.bytes + g->sent, end - g->sent))
        return fail(g->err, "out of memory for the text");
    g->sent = end;
    return g->o->on_text && g->o->on_text(g->o->context, text->bytes + before, text->length - before) ? 1 : 0;
}

/* Add the text of one more token, and pass on what is certain. Returns 1, with the reason set, if the answer ends
 * here. */
static int add_text(Generation *g, int id)
{
    size_t length, before = g->joined.length;
    if (!g->tokenizer || tokenizer_is_special(g->tokenizer, id))
        return 0;
    const char *piece = tokenizer_piece(g->tokenizer, id, &length);
    if (length == 0)
        return 0;
    if (text_append(&g->joined, piece, length))
        return fail(g->err, "out of memory for the text");
    size_t stop = stops_read(&g->stops, piece, length, before);
    if (stop != SIZE_MAX) {
        g->joined.length = stop;
        g->out->reason = FINISH_STOP;
        return 1;
    }
    size_t certain = g->joined.length - stops_begun(&g->stops);
    if (certain <= g->sent)
        return 0;
    int status = send_text(g, g->sent + text_complete_prefix(g->joined.bytes + g->sent, certain - g->sent));
    if (status > 0)
        g->out->reason = FINISH_INTERRUPTED;
    return status;
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* Whether generation was interrupted or has taken too long; sets the reason. */
static bool must_stop(const Generation *g)
{
    if (g->o->interrupted && *g->o->interrupted) {
        g->out->reason = FINISH_INTERRUPTED;
        return true;
    }
    if (g->o->max_seconds > 0 && clock_seconds() - g->start >= g->o->max_seconds) {
        g->out->reason = FINISH_TIME;
        return true;
    }
    return false;
}

static int run(Generation *g, const int *tokens, size_t n)
{
    if (run_state_reserve(g->s, g->s->pos + n, g->err))
        return -1;
    forward(g->m, g->s, tokens, (int)n);
    return 0;
}

/* Feed what the cache does not hold yet, and the last token in any case: its logits are needed. Returns 1 if generation
 * must stop. */
static int feed_prompt(Generation *g, const int *prompt, size_t n, size_t *last_block)
{
    if (g->s->pos >= n)
        run_state_rewind(g->s, n - 1);
    for (size_t begin = g->s->pos; g->s->pos < n;) {
        *last_block = MIN(n - g->s->pos, g->s->block);
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
    for (size_t i = 0; i < o->n_eos; i++)
        if (o->eos_ids[i] == id)
            return !o->ignore_eos;
    return false;
}

/* Choose a token and add it to the answer. Returns 1, with the reason set, if it is the last one. */
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
    int status = add_text(g, id);
    if (status == 0 && out->ids.count >= g->o->max_tokens) {
        out->reason = FINISH_LENGTH;
        return 1;
    }
    return status;
}

/* The prompt, the first token, then each token after the one before. */
static int answer(Generation *g, const int *prompt, size_t n_prompt)
{
    RunState *s = g->s;
    size_t last_block = 1;
    int status = feed_prompt(g, prompt, n_prompt, &last_block);
    double first = clock_seconds();
    g->out->prompt_seconds = first - g->start;
    if (status)
        return status < 0 ? -1 : 0;
    if (g->o->max_tokens == 0) {
        g->out->reason = FINISH_LENGTH;
        return 0;
    }
    /* with all_logits there is a row for each token of the block */
    status = choose_token(g, s->logits + (s->all_logits ? (last_block - 1) * g->m->config.vocab_size : 0));
    while (status == 0 && !must_stop(g)) {
        int id = g->out->ids.items[g->out->ids.count - 1];
        if (s->pos == s->ctx) {
            g->out->reason = FINISH_CONTEXT;
            break;
        }
        status = run(g, &id, 1) ? -1 : choose_token(g, s->logits);
    }
    g->out->seconds = clock_seconds() - first;
    return status < 0 ? -1 : 0;
}

int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512])
{
    Generation g = {
        .m = m, .s = s, .sampler = sampler, .tokenizer = t, .o = o, .out = out, .start = clock_seconds(), .err = err};
    *out = (Generated){0};
    if (n_prompt == 0)
        return fail(err, "the prompt has no tokens");
    if (n_prompt > s->ctx)
        return fail(err, "the prompt has %zu tokens, but the context holds %zu", n_prompt, s->ctx);
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (size_t)prompt[i] >= m->config.vocab_size)
            return fail(err, "token %zu of the prompt has the id %d, but the model has only the ids 0 to %zu", i,
                        prompt[i], m->config.vocab_size - 1);
        sampler_accept(sampler, prompt[i]);
    }
    int status = stops_begin(&g.stops, o->stops, o->n_stops) ? fail(err, "out of memory for %zu stop texts", o->n_stops)
                                                             : answer(&g, prompt, n_prompt);
    if (status == 0 && send_text(&g, g.joined.length) < 0)
        status = -1;
    stops_free(&g.stops);
    text_free(&g.joined);
    return status;
}
