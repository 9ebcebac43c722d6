/* The text of an answer is passed on as soon as it is certain: when it is whole characters, and can't be the beginning
 * of a stop text.
 */
#include "generate/generation.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

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

/* ---- text as it comes -------------------------------------------------------------------------------------------- */

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
    return g->options->on_text && g->options->on_text(g->options->context, text->bytes + before, text->length - before)
               ? 1
               : 0;
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

/* ---- from prompt to answer --------------------------------------------------------------------------------------- */

int generation_start(Generation *g, const Model *m, KvCache *cache, Sampler *sampler, const Tokenizer *t,
                     const int *prompt, size_t n_prompt, const GenerateOptions *o, Generated *out, char err[512])
{
    *g = (Generation){.options = o,
                      .tokenizer = t,
                      .sampler = sampler,
                      .cache = cache,
                      .n_prompt = n_prompt,
                      .start = clock_seconds(),
                      .out = out};
    *out = (Generated){0};
    if (n_prompt == 0)
        return fail(err, "the prompt has no tokens");
    if (n_prompt > cache->ctx)
        return fail(err, "the prompt has %zu tokens, but the context holds %zu", n_prompt, cache->ctx);
    if (stops_begin(&g->stops, o->stops, o->n_stops) != 0)
        return fail(err, "out of memory for %zu stop texts", o->n_stops);
    if (id_list_reserve(&g->tokens, n_prompt) != 0)
        return fail(err, "out of memory for a prompt of %zu tokens", n_prompt);
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (size_t)prompt[i] >= m->config.vocab_size)
            return fail(err, "token %zu of the prompt has the id %d, but the model has only the ids 0 to %zu", i,
                        prompt[i], m->config.vocab_size - 1);
        g->tokens.items[g->tokens.count++] = prompt[i];
        sampler_accept(sampler, prompt[i]);
    }
    kv_cache_rewind(cache, n_prompt - 1); /* the last token's logits are needed in any case */
    g->begin = cache->pos;
    return o->drafter ? draft_init(&g->draft, o->drafter, sampler, cache->ctx, err) : 0;
}

void generation_free(Generation *g)
{
    draft_free(&g->draft);
    id_list_free(&g->tokens);
    stops_free(&g->stops);
    text_free(&g->joined);
}

static void end(Generation *g, FinishReason reason)
{
    g->ended = true;
    g->out->reason = reason;
}

bool generation_goes_on(Generation *g)
{
    const GenerateOptions *o = g->options;
    if (g->ended)
        return false;
    if (o->interrupted && *o->interrupted)
        end(g, FINISH_INTERRUPTED);
    else if (o->max_seconds > 0 && clock_seconds() - g->start >= o->max_seconds)
        end(g, FINISH_TIME);
    else if (g->cache->pos == g->cache->ctx)
        end(g, FINISH_CONTEXT);
    return !g->ended;
}

size_t generation_pending(const Generation *g)
{
    return g->tokens.count - g->cache->pos;
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
    if (id_list_append(&out->ids, id) != 0 || id_list_append(&g->tokens, id) != 0)
        return fail(g->err, "out of memory for %zu tokens", g->tokens.count);
    sampler_accept(g->sampler, id);
    if (is_end(g->options, id)) {
        out->reason = FINISH_END;
        return 1;
    }
    int status = add_text(g, id);
    if (status == 0 && out->ids.count >= g->options->max_tokens) {
        out->reason = FINISH_LENGTH;
        return 1;
    }
    return status;
}

/* Choose a token by each row of logits, as long as the one before was the one that had been proposed. */
static int choose_tokens(Generation *g, float *logits, size_t vocab)
{
    Draft *d = &g->draft;
    size_t right = 0;
    int status = choose_token(g, logits);
    while (status == 0 && right < d->n && g->tokens.items[g->tokens.count - 1] == d->proposal[right])
        status = choose_token(g, logits + ++right * vocab);
    g->out->proposed += d->n;
    g->out->accepted += right;
    draft_learn(d, right);
    return status;
}

void generation_take(Generation *g, const Piece *piece, size_t vocab)
{
    const GenerateOptions *o = g->options;
    bool first = g->out->ids.count == 0;
    if (first && o->on_prefill)
        o->on_prefill(o->context, g->cache->pos - g->begin, g->n_prompt - g->begin);
    if (piece->n_logits == 0)
        return;
    if (first)
        g->first = clock_seconds();
    else
        g->out->steps++;
    if (first && o->max_tokens == 0) {
        end(g, FINISH_LENGTH);
        return;
    }
    int status = choose_tokens(g, piece->logits, vocab);
    g->ended = status != 0;
    g->failed = status < 0;
    /* forget what was fed of proposals that were wrong; the last token chosen has not been fed, if there is one */
    size_t fed = g->tokens.count - (g->failed ? 0 : 1);
    kv_cache_rewind(g->cache, fed);
    kv_cache_rewind(&g->draft.cache, fed);
}

void generation_finish(Generation *g)
{
    double now = clock_seconds();
    g->out->prompt_seconds = (g->first > 0 ? g->first : now) - g->start;
    g->out->seconds = g->first > 0 ? now - g->first : 0;
    if (!g->failed && send_text(g, g->joined.length) < 0)
        g->failed = true;
}
