/* N-grams of what was written, and how many tokens to propose.
 *
 * A summary, an edit of code, an answer that quotes: much of a text has occurred before. When its last four tokens are
 * those that occurred at an earlier place, what followed there is proposed.
 */
#include "generate/draft.h"

#include <stdlib.h>
#include <string.h>

/* ---- one sequence ------------------------------------------------------------------------------------------------ */

/* Careful at first, since text that repeats nothing should lose no time. */
#define RIGHT_AT_FIRST 0.5f
#define MOST_AT_FIRST 2

int draft_init(Draft *d, const Drafter *drafter, const Sampler *sampler, size_t ctx, char err[512])
{
    *d = (Draft){.right = RIGHT_AT_FIRST, .most = MOST_AT_FIRST};
    if (!drafter->model)
        return 0;
    const Config *c = &drafter->model->config;
    size_t usable = MIN(sampler->usable, c->vocab_size);
    if (sampler_init(&d->sampler, &sampler->options, c->vocab_size, usable, err) != 0)
        return -1;
    return drafter->same_cache ? 0 : kv_cache_init(&d->cache, c, drafter->state->cache.type, ctx, err);
}

void draft_free(Draft *d)
{
    if (d->cache.blocks)
        kv_cache_free(&d->cache);
    sampler_free(&d->sampler);
    free(d->table);
    *d = (Draft){0};
}

/* ---- n-grams ----------------------------------------------------------------------------------------------------- */

#define GRAM 4 /* tokens that must have occurred before */

/* The slot of the GRAM tokens that end at position `end`, or the empty one where they would go. A slot holds the
 * position of the token that followed. */
static uint32_t *slot_of(const Draft *d, const IdList *tokens, size_t end)
{
    const int *gram = tokens->items + end + 1 - GRAM;
    for (size_t i = (size_t)hash_bytes((const char *)gram, GRAM * sizeof *gram, d->table_key);; i++) {
        uint32_t *slot = &d->table[i & (d->table_size - 1)];
        if (!*slot || memcmp(tokens->items + *slot - GRAM, gram, GRAM * sizeof *gram) == 0)
            return slot;
    }
}

/* Enlarge the table so that it is at most half full with n entries. The old entries are indexed again. */
static int grow_table(Draft *d, size_t n)
{
    size_t size = d->table_size;
    if (2 * n <= size)
        return 0;
    for (size = MAX(size, 256); size < 4 * n;)
        size *= 2;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return -1;
    free(d->table);
    d->table = table;
    d->table_size = size;
    d->table_key = hash_new_key();
    d->indexed = 0;
    return 0;
}

int draft_look_up(Draft *d, const IdList *tokens, size_t most)
{
    size_t count = tokens->count;
    d->n = 0;
    if (count <= GRAM || count > UINT32_MAX)
        return 0;
    if (grow_table(d, count) != 0)
        return -1;
    for (size_t next = MAX(d->indexed, GRAM); next < count; next++)
        *slot_of(d, tokens, next - 1) = (uint32_t)next;
    d->indexed = count;
    size_t found = *slot_of(d, tokens, count - 1);
    while (found > 0 && d->n < most) {
        /* past the end of the text, what was proposed follows */
        size_t at = found + d->n;
        d->proposal[d->n++] = at < count ? tokens->items[at] : d->proposal[at - count];
    }
    return 0;
}

/* ---- how many ---------------------------------------------------------------------------------------------------- */

/* Seconds of a step of n tokens: measured, or else those of the longest shorter one that was, so that it is tried. */
static double step_seconds(const Pace *p, size_t n)
{
    n = MIN(n, DRAFT_MOST + 1);
    while (n > 1 && p->step[n] <= 0)
        n--;
    return p->step[n];
}

size_t draft_length(const Drafter *drafter, const Draft *d, size_t sequences, size_t limit)
{
    const Pace *p = &drafter->pace;
    double best = 0, tokens = 1, likely = 1;
    size_t length = 0, most = MIN(d->most, limit);
    if (drafter->fixed)
        return MIN(drafter->fixed, limit);
    for (size_t k = 0; k <= most; k++) {
        /* of k proposals, 1 + right + right^2 ... right^k tokens are expected to come out */
        double seconds = step_seconds(p, sequences * (k + 1)) + (double)k * p->draft;
        double rate = seconds > 0 ? tokens / seconds : tokens;
        if (rate > best) {
            best = rate;
            length = k;
        }
        likely *= (double)d->right;
        tokens += likely;
    }
    return length;
}

/* An average in which the newest measurement weighs 0.2. */
static void smooth(double *average, double measured)
{
    *average = *average > 0 ? *average + 0.2 * (measured - *average) : measured;
}

void draft_measured(Pace *p, size_t tokens, double seconds)
{
    smooth(&p->step[MIN(tokens, DRAFT_MOST + 1)], seconds);
}

void draft_measured_model(Pace *p, double seconds)
{
    smooth(&p->draft, seconds);
}

void draft_learn(Draft *d, size_t accepted)
{
    for (size_t i = 0; i < accepted; i++)
        d->right += 0.1f * (1 - d->right);
    if (d->n == 0) /* be tried again after a while */
        d->right += 0.004f * (RIGHT_AT_FIRST - MIN(d->right, RIGHT_AT_FIRST));
    else if (accepted == d->n)
        d->most = MIN(2 * d->most, DRAFT_MOST);
    else {
        d->right -= 0.2f * d->right;
        d->most = MAX(accepted, 1);
    }
    d->n = 0;
}
