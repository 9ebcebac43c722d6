/* Logits -> the next token.
 *
 * The logits l_i of all ids i go through these steps. Each is optional, and the order is that of the reference:
 *
 *     repeat penalty r   of ids that have occurred: l_i / r if l_i > 0, else l_i * r
 *     temperature T      l_i / T
 *     top-k              keep the k highest, and all that equal the lowest of them
 *     weights            w_i = exp(l_i - the highest), so that the likeliest id weighs 1
 *     top-p              keep the heaviest that together have the share p of all weight: an id is kept as long as
 *                        those above it do not have that share yet
 *     min-p              keep weights of at least p
 *     draw               the weights lie one after the other on a line, in order of ids: a random point is in one
 *
 * Greedy takes the highest logit after the penalty. Nothing is sorted: for top-k and top-p it is enough to know the
 * lowest value that is kept, and threshold() finds it in three passes.
 *
 * Random numbers, exp and the order of each sum are our own: the same seed gives the same text on every machine.
 */
#include "generate/sample.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Make four numbers from one, by splitmix64. */
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

#define BLOCK 64 /* logits, of which the highest one is noted */

int sampler_init(Sampler *s, const SampleOptions *options, size_t vocab, size_t usable, char err[512])
{
    *s = (Sampler){.options = *options, .vocab = vocab, .usable = MIN(usable, vocab)};
    if (sample_options_check(options, err))
        return -1;
    if (s->usable == 0 || vocab > INT_MAX)
        return fail(err, "the model has %zu logits and the tokenizer %zu ids; both must be from 1 to %d", vocab, usable,
                    INT_MAX);
    s->seen = malloc(vocab);
    s->candidates = calloc(s->usable + s->usable / BLOCK + 1, sizeof *s->candidates);
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

void sampler_follow(Sampler *to, const Sampler *from)
{
    memcpy(to->state, from->state, sizeof to->state);
    if (from->options.repeat_penalty != 1)
        memcpy(to->seen, from->seen, MIN(to->vocab, from->vocab));
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

/* Say what is wrong with logits of which the highest is not a finite number. */
static int fail_logits(const Sampler *s, const float *logits, char err[512])
{
    for (size_t i = 0; i < s->usable; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return fail(err, "the logit of token %zu is %s", i, isnan(logits[i]) ? "not a number" : "infinite");
    return fail(err, "the logits of all %zu tokens are -infinity", s->usable);
}

/* The rank of a float is an unsigned integer made of its bits, such that ranks are in the order of the floats: of
 * negative ones all bits are flipped, of others the sign. */
static uint32_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float float_of_rank(uint32_t rank)
{
    uint32_t bits = rank >> 31 ? rank & 0x7fffffffu : ~rank;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Find where candidates would be cut if they were sorted: the highest weight t such that those of t or more together
 * reach `share`. By count each of them counts 1, else its weight. Of the weights 5 4 4 1, a share of 2 by count gives t
 * = 4; so does a share of 8 by weight. *above becomes what those heavier than t have: 1 by count, 5 by weight. If
 * rounding keeps all of them from reaching the share, t is the lowest weight.
 *
 * The rank of t is found like a number in a phone book, its first digits first. Its upper 11 bits: add up all
 * candidates in 2048 sums, by these bits of their ranks, and go down from the highest sum until the share is reached.
 * The next 11 bits: do the same with the candidates that have these upper bits, to tell where within that sum the share
 * is reached. Then the last 10. */
static float threshold(const Candidate *c, size_t n, double share, bool by_count, double *above)
{
    enum { SUMS = 2048 };
    static const int shifts[] = {21, 10, 0};
    uint32_t found = 0, mask = 0; /* the bits of the rank of t that are known, and which they are */
    *above = 0;
    for (int pass = 0; pass < 3; pass++) {
        double sums[SUMS] = {0}, total = *above;
        uint32_t bits = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t rank = rank_of(c[i].weight);
            if ((rank & mask) == found)
                sums[rank >> shifts[pass] & (SUMS - 1)] += by_count ? 1 : (double)c[i].weight;
        }
        for (uint32_t b = SUMS; b-- > 0 && total < share;)
            if (sums[b] > 0) {
                bits = b;
                *above = total;
                total += sums[b];
            }
        found |= bits << shifts[pass];
        mask |= (uint32_t)(SUMS - 1) << shifts[pass];
    }
    return float_of_rank(found);
}

/* Keep the candidates that weigh at least `lowest`, and return how many they are. */
static size_t keep_from(Candidate *c, size_t n, float lowest)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        c[kept] = c[i];
        if (c[i].weight >= lowest)
            kept++;
    }
    return kept;
}

/* Keep the heaviest that have the share p. If several ids weigh as much as the last one that is kept, the reference
 * keeps the highest of these ids: its sort puts them last. */
static size_t keep_top_p(Candidate *c, size_t n, double p)
{
    double total = 0, above;
    for (size_t i = 0; i < n; i++)
        total += (double)c[i].weight;
    double share = fmax(p * total, DBL_MIN); /* at least one is kept */
    /* what weighs less than the rest / n is not needed: n of these weigh less than the rest, so the others have the
     * share */
    n = keep_from(c, n, (float)((total - share) / (double)n) * 0.999f);
    float lowest = threshold(c, n, share, false, &above);
    size_t dropped = 0; /* of those that weigh `lowest` */
    for (size_t i = 0; i < n; i++)
        if (c[i].weight == lowest)
            dropped++;
    for (; dropped > 0 && above < share; above += (double)lowest)
        dropped--;
    for (size_t i = 0; dropped > 0; i++)
        if (c[i].weight == lowest) {
            c[i].weight = 0;
            dropped--;
        }
    return keep_from(c, n, lowest);
}

/* The highest of all logits, NaN if one of them is NaN. Notes the highest of each block behind the candidates. */
static float find_highest(const Sampler *s, const float *logits)
{
    Candidate *blocks = s->candidates + s->usable;
    float best = -INFINITY;
    for (size_t i = 0; i < s->usable; i += BLOCK) {
        float highest = max_f32(logits + i, MIN(s->usable - i, BLOCK));
        if (isnan(highest))
            return NAN;
        blocks[i / BLOCK] = (Candidate){highest, 0};
        best = MAX(best, highest);
    }
    return best;
}

/* Temperature and top-k: keep ids, with their logit / temperature as weight for now. The k-th highest of the blocks'
 * highest logits is a lower bound: k logits are at least as high. Most blocks have none of these, and are skipped as a
 * whole. */
static size_t keep_top_k(const Sampler *s, const float *logits)
{
    size_t k = s->options.top_k, n = 0, n_blocks = (s->usable + BLOCK - 1) / BLOCK;
    Candidate *c = s->candidates, *blocks = c + s->usable;
    float t = s->options.temperature, bound = -INFINITY;
    double above;
    if (k > 0 && k < n_blocks)
        bound = threshold(blocks, n_blocks, (double)k, true, &above) / t;
    for (size_t begin = 0; begin < s->usable; begin += BLOCK) {
        if (blocks[begin / BLOCK].weight / t < bound)
            continue;
        for (size_t i = begin; i < MIN(begin + BLOCK, s->usable); i++) {
            c[n] = (Candidate){logits[i] / t, (int)i};
            if (c[n].weight >= bound)
                n++;
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
    if (!isfinite(highest)) { /* so cold that only the best one has any weight */
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
