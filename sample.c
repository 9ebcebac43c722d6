/* Logits -> the next token, and the loop around it.
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
 *
 * generate() feeds the prompt in blocks, then one token after the other, and gives out their text as soon as it is
 * certain: whole characters that cannot be the beginning of a stop text.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sample.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

__attribute__((format(printf, 2, 3))) static int fail(char err[512], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, 512, fmt, args);
    va_end(args);
    return -1;
}

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

/* generation_config.json, for messages and look-ups. A key that is missing or null leaves the default. */
typedef struct {
    const JsonValue *root;
    const char *name;
    char *err;
} ConfigFile;

static const JsonValue *find(const ConfigFile *f, const char *key)
{
    const JsonValue *v = json_get(f->root, key);
    return v && v->type != JSON_NULL ? v : NULL;
}

static int get_number(const ConfigFile *f, const char *key, float *out)
{
    const JsonValue *v = find(f, key);
    double number;
    if (!v)
        return 0;
    if (json_double(v, &number))
        return fail(f->err, "%s: \"%s\" must be a number", f->name, key);
    *out = (float)number;
    return 0;
}

static int get_ids(const ConfigFile *f, const char *key, int ids[16], size_t *n)
{
    const JsonValue *v = find(f, key), *first = v && v->type == JSON_ARRAY ? v->child : v;
    uint64_t id;
    for (*n = 0; first; first = first == v ? NULL : first->next) {
        if (json_u64(first, &id) || id > INT_MAX)
            return fail(f->err, "%s: \"%s\" must be a token id or a list of them", f->name, key);
        if (*n == 16)
            return fail(f->err, "%s: \"%s\" lists more than 16 ids", f->name, key);
        ids[(*n)++] = (int)id;
    }
    return 0;
}

static int parse_options(const ConfigFile *f, SampleOptions *o, int *eos_ids, size_t *n_eos)
{
    const JsonValue *top_k = find(f, "top_k"), *do_sample = find(f, "do_sample");
    uint64_t k = o->top_k;
    bool sample = false;
    char err[512];
    if (f->root->type != JSON_OBJECT)
        return fail(f->err, "%s: must be a JSON object", f->name);
    if (do_sample && json_bool(do_sample, &sample))
        return fail(f->err, "%s: \"do_sample\" must be true or false", f->name);
    if (top_k && json_u64(top_k, &k))
        return fail(f->err, "%s: \"top_k\" must be a whole number of 0 or more", f->name);
    if (get_number(f, "temperature", &o->temperature) || get_number(f, "top_p", &o->top_p) ||
        get_number(f, "min_p", &o->min_p) || get_number(f, "repetition_penalty", &o->repeat_penalty) ||
        get_ids(f, "eos_token_id", eos_ids, n_eos))
        return -1;
    o->top_k = k < SIZE_MAX ? (size_t)k : SIZE_MAX;
    o->greedy = !sample || o->temperature == 0;
    if (sample_options_check(o, err))
        return fail(f->err, "%.200s: %.200s", f->name, err);
    if (o->temperature == 0)
        o->temperature = 1;
    return 0;
}

int sample_options_parse(SampleOptions *o, int *eos_ids, size_t *n_eos, const char *text, size_t length,
                         const char *name, char err[512])
{
    char problem[512];
    *o = (SampleOptions){.greedy = true, .temperature = 1, .top_k = 50, .top_p = 1, .min_p = 0, .repeat_penalty = 1};
    *n_eos = 0;
    if (!text)
        return 0;
    JsonValue *root = json_parse(text, length, problem);
    if (!root)
        return fail(err, "%.200s: %.300s", name, problem);
    int result = parse_options(&(ConfigFile){root, name, err}, o, eos_ids, n_eos);
    json_free(root);
    return result;
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
        return fail(err, "not enough memory to sample from %zu ids", vocab);
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
        return fail(g->err, "not enough memory for the text");
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
        return fail(g->err, "not enough memory for the text");
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
        return fail(g->err, "not enough memory for %zu tokens", out->ids.count);
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
