/* Logits -> the next token.
 *
 * The logits l_i of the ids go through these steps, each optional and in this order, as in the reference:
 *
 *     repeat penalty r   ids that have occurred: l_i / r if l_i > 0, else l_i * r
 *     temperature T      l_i / T
 *     top-k              only the k highest, and what equals the lowest of them
 *     weights            w_i = exp(l_i - the highest)                   the likeliest id weighs 1
 *     top-p              only the heaviest that together reach the share p: an id stays if those above it do not
 *     min-p              only weights of at least p
 *     draw               a random point on the line on which the weights lie one after the other, in order of ids
 *
 * Greedy: the highest after the penalty. Nothing is sorted: top-k and top-p need to know one value only, the lowest
 * that stays, and threshold() finds it in three passes.
 *
 * Random numbers, exp and the order of every sum are our own: the same seed gives the same text on every machine.
 */
#include "generate/sample.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/elementary.h"
#include "kernels/vector.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

int sample_options_check(const SampleOptions *o, char err[512])
{
    if (!(o->temperature >= 0 && o->temperature <= FLT_MAX))
        return fail(err, "temperature must be 0 or more, not %g", (double)o->temperature);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return fail(err, "top-p must be from 0 to 1, not %.9g", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fail(err, "min-p must be from 0 to 1, not %.9g", (double)o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= FLT_MAX))
        return fail(err, "repeat-penalty must be more than 0, not %g", (double)o->repeat_penalty);
    return 0;
}

/* ---- random numbers: xoshiro256** of Blackman and Vigna ---------------------------------------------------------- */

static uint64_t rotate_left(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static uint64_t next_random(uint64_t s[4])
{
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* splitmix64: four numbers from one. */
static void seed_random(uint64_t s[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        s[i] = z ^ z >> 31;
    }
}

/* ---- sampler ----------------------------------------------------------------------------------------------------- */

#define PIECE 64 /* logits whose maximum is taken together */

int sampler_init(Sampler *s, const SampleOptions *options, size_t vocab, size_t usable, char err[512])
{
    *s = (Sampler){.options = *options, .vocab = vocab, .usable = usable < vocab ? usable : vocab};
    if (sample_options_check(options, err))
        return -1;
    if (s->usable == 0 || vocab > INT_MAX)
        return fail(err, "found a vocabulary of %zu rows and %zu ids, expected 1 to %d", vocab, usable, INT_MAX);
    s->seen = malloc(vocab);
    s->candidates = calloc(s->usable + s->usable / PIECE + 1, sizeof *s->candidates);
    if (!s->seen || !s->candidates) {
        sampler_free(s);
        return fail(err, "out of memory to sample from %zu ids", vocab);
    }
    sampler_reset(s);
    return 0;
}

void sampler_free(Sampler *s)
{
    free(s->seen);
    free(s->candidates);
    *s = (Sampler){0};
}

void sampler_reset(Sampler *s)
{
    seed_random(s->state, s->options.seed);
    memset(s->seen, 0, s->vocab);
}

void sampler_accept(Sampler *s, int token)
{
    if (token >= 0 && (size_t)token < s->vocab)
        s->seen[token] = 1;
}

static void apply_penalty(const Sampler *s, float *logits)
{
    float penalty = s->options.repeat_penalty;
    const unsigned char *end = s->seen + s->usable;
    if (penalty == 1)
        return;
    for (const unsigned char *p = s->seen; (p = memchr(p, 1, (size_t)(end - p))); p++) {
        float *logit = logits + (p - s->seen);
        *logit = *logit < 0 ? *logit * penalty : *logit / penalty;
    }
}

/* What is wrong with logits whose highest is no finite number. */
static int fail_logits(const Sampler *s, const float *logits, char err[512])
{
    for (size_t i = 0; i < s->usable; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return fail(err, "the logit of token %zu is %s", i, isnan(logits[i]) ? "not a number" : "infinite");
    return fail(err, "the logits of all %zu tokens are -infinity", s->usable);
}

/* Floats in the order of their bits as unsigned integers, and back. */
static uint32_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float of_rank(uint32_t rank)
{
    uint32_t bits = rank >> 31 ? rank & 0x7fffffffu : ~rank;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The highest value t such that the candidates of at least t measure `share` or more (if rounding denies that: the
 * lowest). A candidate measures its weight or, by_count, 1. *above: what those higher than t measure. The bits of t's
 * rank are found from the top, 11, 11 and 10 at a time: in each pass every candidate that agrees so far adds to the sum
 * of its next bits. */
static float threshold(const Candidate *c, size_t n, double share, bool by_count, double *above)
{
    static const int shifts[] = {21, 10, 0};
    uint32_t found = 0, mask = 0;
    *above = 0;
    for (int pass = 0; pass < 3; pass++) {
        double sums[2048] = {0}, total = *above;
        uint32_t bits = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t rank = rank_of(c[i].weight);
            if ((rank & mask) == found)
                sums[rank >> shifts[pass] & 2047] += by_count ? 1 : (double)c[i].weight;
        }
        for (uint32_t b = 2048; b-- > 0 && total < share;)
            if (sums[b] > 0) {
                bits = b;
                *above = total;
                total += sums[b];
            }
        found |= bits << shifts[pass];
        mask |= 2047u << shifts[pass];
    }
    return of_rank(found);
}

static size_t keep_from(Candidate *c, size_t n, float lowest)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) { /* no branch that could be guessed wrongly */
        c[kept] = c[i];
        kept += c[i].weight >= lowest;
    }
    return kept;
}

/* Of ids that weigh as much as the last one that stays, the reference keeps the highest: its sort puts them last. */
static size_t keep_top_p(Candidate *c, size_t n, double p)
{
    double total = 0, above;
    size_t equals = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)c[i].weight;
    double share = fmax(p * total, DBL_MIN); /* at least one stays */
    /* ids that weigh less than the rest / n do not make up the rest even together: the others have the share already */
    n = keep_from(c, n, (float)((total - share) / (double)n) * 0.999f);
    float lowest = threshold(c, n, share, false, &above);
    for (size_t i = 0; i < n; i++)
        equals += c[i].weight == lowest;
    for (; equals > 0 && above < share; above += (double)lowest)
        equals--; /* one more of them stays */
    for (size_t i = 0; equals > 0; i++)
        if (c[i].weight == lowest) {
            c[i].weight = 0;
            equals--; /* one of the others goes */
        }
    return keep_from(c, n, lowest);
}

/* The highest logit of each piece, behind the candidates, and of all: NaN if one is there. */
static float find_highest(const Sampler *s, const float *logits)
{
    Candidate *pieces = s->candidates + s->usable;
    float best = -INFINITY;
    bool nan = false;
    for (size_t i = 0; i < s->usable; i += PIECE) {
        float highest = max_f32(logits + i, s->usable - i < PIECE ? s->usable - i : PIECE);
        pieces[i / PIECE] = (Candidate){highest, 0};
        nan |= isnan(highest);
        best = highest > best ? highest : best;
    }
    return nan ? NAN : best;
}

/* Temperature and top-k: the ids that are left, weighing their logit / temperature for now. At least k logits reach the
 * k-th highest of the pieces' highest ones, so that lower ones, and most pieces whole, need no second look. */
static size_t keep_top_k(const Sampler *s, const float *logits)
{
    size_t k = s->options.top_k, n = 0, n_pieces = (s->usable + PIECE - 1) / PIECE;
    Candidate *c = s->candidates, *pieces = c + s->usable;
    float t = s->options.temperature, bound = -INFINITY;
    double above;
    if (k > 0 && k < n_pieces)
        bound = threshold(pieces, n_pieces, (double)k, true, &above) / t;
    for (size_t begin = 0; begin < s->usable; begin += PIECE) {
        size_t end = begin + PIECE < s->usable ? begin + PIECE : s->usable;
        if (pieces[begin / PIECE].weight / t < bound)
            continue;
        for (size_t i = begin; i < end; i++) {
            c[n] = (Candidate){logits[i] / t, (int)i};
            n += c[n].weight >= bound;
        }
    }
    return k > 0 && k < n ? keep_from(c, n, threshold(c, n, (double)k, true, &above)) : n;
}

int sampler_candidates(Sampler *s, float *logits, size_t *n, char err[512])
{
    const SampleOptions *o = &s->options;
    Candidate *c = s->candidates;
    apply_penalty(s, logits);
    float best = find_highest(s, logits), highest = best / o->temperature;
    if (!isfinite(best))
        return fail_logits(s, logits, err);
    if (!isfinite(highest)) { /* as cold as that, only the best one has any weight */
        c[0] = (Candidate){1, (int)argmax_f32(logits, s->usable, NULL)};
        *n = 1;
        return 0;
    }
    *n = keep_top_k(s, logits);
    for (size_t i = 0; i < *n; i++)
        c[i].weight = exp_f32(c[i].weight - highest);
    if (o->top_p < 1)
        *n = keep_top_p(c, *n, (double)o->top_p);
    if (o->min_p > 0)
        *n = keep_from(c, *n, o->min_p);
    return 0;
}

static int next_greedy(Sampler *s, float *logits, char err[512])
{
    bool bad;
    apply_penalty(s, logits);
    size_t best = argmax_f32(logits, s->usable, &bad);
    return bad || logits[best] == -INFINITY ? fail_logits(s, logits, err) : (int)best;
}

int sampler_next(Sampler *s, float *logits, char err[512])
{
    const Candidate *c = s->candidates;
    double total = 0, sum = 0;
    size_t n, chosen = 0;
    if (s->options.greedy || s->options.temperature == 0)
        return next_greedy(s, logits, err);
    if (sampler_candidates(s, logits, &n, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        total += (double)c[i].weight;
    double point = total * ((double)(next_random(s->state) >> 11) * 0x1p-53);
    for (size_t i = 0; i < n && sum <= point; i++)
        if (c[i].weight > 0) {
            sum += (double)c[i].weight;
            chosen = i;
        }
    return c[chosen].id;
}
