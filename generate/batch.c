/* A step: proposals, pieces, forward(), and to each sequence its logits. */
#include "generate/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Tokens of prompts in a step in which others wait for their next token. A step that reads the weights anyway has time
 * for about so many. */
#define PROMPT_SHARE 16

/* What a step computes: the pieces of the sequences that take part, and their tokens. */
typedef struct {
    Piece *pieces;   /* [n] */
    Generation **of; /* [n], the sequence of each piece */
    int *tokens;     /* [block] */
    size_t n, n_tokens, n_logits;
} Batch;

static int batch_init(Batch *b, size_t n, size_t block, char err[512])
{
    *b = (Batch){.pieces = calloc(n, sizeof *b->pieces),
                 .of = calloc(n, sizeof *b->of),
                 .tokens = calloc(block, sizeof *b->tokens)};
    return b->pieces && b->of && b->tokens ? 0 : fail(err, "out of memory for a step of %zu sequences", n);
}

static void batch_free(Batch *b)
{
    free(b->pieces);
    free(b->of);
    free(b->tokens);
}

/* Token number i of a sequence; what was proposed follows what was chosen. */
static int token_at(const Generation *g, size_t i)
{
    return i < g->tokens.count ? g->tokens.items[i] : g->draft.proposal[i - g->tokens.count];
}

/* Add the n tokens of a sequence that follow those in a cache; the last n_logits need logits. */
static int add_piece(Batch *b, Generation *g, KvCache *cache, size_t n, size_t n_logits, char err[512])
{
    if (kv_cache_reserve(cache, n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        b->tokens[b->n_tokens++] = token_at(g, cache->pos + i);
    b->of[b->n] = g;
    b->pieces[b->n++] = (Piece){.cache = cache, .n = n, .n_logits = n_logits};
    b->n_logits += n_logits;
    return 0;
}

/* Compute the pieces. Returns the seconds that it took. */
static double run(Model *m, RunState *s, const Batch *b)
{
    double begin = clock_seconds();
    s->pieces = b->pieces;
    s->n_pieces = b->n;
    forward(m, s, b->tokens, (int)b->n_tokens);
    s->pieces = NULL;
    return clock_seconds() - begin;
}

/* Whether a sequence waits for its next token. */
static bool decodes(const Generation *g)
{
    return !g->ended && generation_pending(g) == 1;
}

/* ---- proposals --------------------------------------------------------------------------------------------------- */

/* How many tokens may be proposed for one of `decoding` sequences: each needs a place in the cache, in the step and for
 * its logits, and must not come after the last one that is wanted. */
static size_t most_proposals(const Generation *g, const RunState *s, size_t decoding)
{
    size_t left = g->options->max_tokens - g->out->ids.count, context = g->cache->ctx - g->cache->pos;
    size_t rows = MIN(s->block, s->most_logits) / decoding;
    size_t most = MIN(MIN(left, context), MIN(rows, DRAFT_MOST + 1));
    return MAX(most, 1) - 1;
}

static KvCache *draft_cache(const Drafter *d, Generation *g)
{
    return d->same_cache ? g->cache : &g->draft.cache;
}

/* Add the next token for the draft model, and before it those that its cache lacks; as many as fit, if these are too
 * many. */
static int add_draft_piece(Batch *b, const Drafter *d, Generation *g, char err[512])
{
    KvCache *cache = draft_cache(d, g);
    size_t missing = g->tokens.count + g->draft.n - cache->pos, space = d->state->block - b->n_tokens;
    if (space == 0 || b->n_logits == d->state->most_logits)
        return 0;
    return add_piece(b, g, cache, MIN(missing, space), missing <= space ? 1 : 0, err);
}

/* Let each sequence that decodes have one more token proposed by the draft model, as long as it has fewer than
 * wanted[i]. Returns how many got one; -1 on failure. */
static int draft_round(Drafter *d, Generation *const *sequences, size_t n, size_t *wanted, Batch *b, char err[512])
{
    int proposed = 0;
    b->n = b->n_tokens = b->n_logits = 0;
    for (size_t i = 0; i < n; i++)
        if (sequences[i]->draft.n < wanted[i] && add_draft_piece(b, d, sequences[i], err) != 0)
            return -1;
    if (b->n == 0)
        return 0;
    double seconds = run(d->model, d->state, b);
    for (size_t i = 0; i < b->n; i++) {
        Draft *draft = &b->of[i]->draft;
        char ignored[512];
        int id = b->pieces[i].n_logits ? sampler_next(&draft->sampler, b->pieces[i].logits, ignored) : -1;
        if (id < 0)
            continue;
        sampler_accept(&draft->sampler, id);
        draft->proposal[draft->n++] = id;
        proposed++;
    }
    if (b->n_tokens == b->n_logits)
        draft_measured_model(&d->pace, seconds);
    return proposed;
}

/* Let the draft model propose, token after token. */
static int draft_by_model(Drafter *d, Generation *const *sequences, size_t n, size_t *wanted, char err[512])
{
    Batch b;
    int status = batch_init(&b, n, d->state->block, err);
    for (size_t i = 0; i < n; i++)
        if (wanted[i] > 0)
            sampler_follow(&sequences[i]->draft.sampler, sequences[i]->sampler);
    while (status == 0) {
        int proposed = draft_round(d, sequences, n, wanted, &b, err);
        if (proposed <= 0) {
            status = proposed;
            break;
        }
    }
    for (size_t i = 0; i < n && d->same_cache; i++)
        if (wanted[i] > 0) /* the model itself will read these tokens */
            kv_cache_rewind(sequences[i]->cache, sequences[i]->tokens.count - 1);
    batch_free(&b);
    return status;
}

/* Fill the drafts of the sequences that decode, `decoding` of them. */
static int propose(Drafter *d, const RunState *s, Generation *const *sequences, size_t n, size_t decoding,
                   char err[512])
{
    size_t *wanted = calloc(n, sizeof *wanted);
    int status = wanted ? 0 : fail(err, "out of memory for drafts of %zu sequences", n);
    for (size_t i = 0; i < n && status == 0; i++) {
        Generation *g = sequences[i];
        if (!decodes(g))
            continue;
        wanted[i] = draft_length(d, &g->draft, decoding, most_proposals(g, s, decoding));
        if (!d->model && draft_look_up(&g->draft, &g->tokens, wanted[i]) != 0)
            status = fail(err, "out of memory to look up %zu tokens", g->tokens.count);
    }
    if (status == 0 && d->model)
        status = draft_by_model(d, sequences, n, wanted, err);
    free(wanted);
    return status;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* A sequence whose piece finds no memory fails alone. */
static void add_or_fail(Batch *b, Generation *g, size_t n, size_t n_logits)
{
    g->failed = add_piece(b, g, g->cache, n, n_logits, g->err) != 0;
    g->ended = g->ended || g->failed;
}

/* First those that wait for their next token, then as much of the prompts as there is room for. */
static void fill(Batch *b, const RunState *s, Generation *const *sequences, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t tokens = 1 + sequences[i]->draft.n;
        if (decodes(sequences[i]))
            add_or_fail(b, sequences[i], tokens, tokens);
    }
    size_t most = b->n ? MIN(b->n_tokens + PROMPT_SHARE, s->block) : s->block;
    for (size_t i = 0; i < n && b->n_tokens < most; i++) {
        size_t pending = generation_pending(sequences[i]), tokens = MIN(pending, most - b->n_tokens);
        if (!sequences[i]->ended && pending > 1 && b->n_logits < s->most_logits)
            add_or_fail(b, sequences[i], tokens, tokens == pending ? 1 : 0);
    }
}

int batch_step(Model *m, RunState *s, Generation *const *sequences, size_t n, Drafter *drafter, char err[512])
{
    Batch b;
    size_t decoding = 0;
    int status = batch_init(&b, n, s->block, err);
    for (size_t i = 0; i < n; i++)
        decoding += decodes(sequences[i]) ? 1 : 0;
    if (status == 0 && drafter && decoding > 0)
        status = propose(drafter, s, sequences, n, decoding, err);
    if (status == 0)
        fill(&b, s, sequences, n);
    if (status == 0 && b.n > 0) {
        double seconds = run(m, s, &b);
        if (drafter && b.n_tokens == b.n_logits)
            draft_measured(&drafter->pace, b.n_tokens, seconds);
        for (size_t i = 0; i < b.n; i++)
            generation_take(b.of[i], &b.pieces[i], m->config.vocab_size);
    }
    batch_free(&b);
    return status;
}
