/* sample.c and generate.c: each step against the reference's logits processors and against plain sorting, the random
 * numbers against published vectors, generate() on a network whose answer is known, and on the demo model. */
#include "base/base.h"

#include <math.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "generate/config.h"
#include "generate/generate.h"

#define DEMO "tests/demo"
#define ANYTHING {.temperature = 1, .top_p = 1, .repeat_penalty = 1}

static char *read_all(const char *path, size_t *length)
{
    char err[512];
    char *text = file_read(path, 1u << 28, length, err);
    if (!text) {
        printf("%s\n", err);
        exit(1);
    }
    return text;
}

static uint64_t random_state = 1;

static double uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static float gauss(void)
{
    double u = 1 - uniform();
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * uniform()));
}

/* ---- options ---- */

static void test_options(void)
{
    static const struct {
        const char *text;
        SampleOptions want;
        int eos[3];
        size_t n_eos;
    } good[] = {
        {NULL, {true, 1, 50, 1, 0, 1, 0}, {0}, 0},
        {"{}", {true, 1, 50, 1, 0, 1, 0}, {0}, 0},
        {"{\"do_sample\":true}", {false, 1, 50, 1, 0, 1, 0}, {0}, 0},
        {"{\"do_sample\":false,\"temperature\":0.5,\"repetition_penalty\":1.25}",
         {true, 0.5f, 50, 1, 0, 1.25f, 0}, {0}, 0},
        {"{\"bos_token_id\":1,\"do_sample\":true,\"eos_token_id\":[151645,151643],\"repetition_penalty\":1.1,"
         "\"temperature\":0.7,\"top_p\":0.8,\"top_k\":20}",
         {false, 0.7f, 20, 0.8f, 0, 1.1f, 0}, {151645, 151643}, 2},
        {"{\"eos_token_id\":7,\"do_sample\":true,\"temperature\":null,\"top_k\":0,\"top_p\":null,\"min_p\":0.05}",
         {false, 1, 0, 1, 0.05f, 1, 0}, {7}, 1},
        {"{\"eos_token_id\":null,\"do_sample\":null}", {true, 1, 50, 1, 0, 1, 0}, {0}, 0},
        {"{\"eos_token_id\":[]}", {true, 1, 50, 1, 0, 1, 0}, {0}, 0},
        {"{\"do_sample\":true,\"temperature\":0,\"top_p\":0}", {true, 1, 50, 0, 0, 1, 0}, {0}, 0},
    };
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"", "g.json is empty; ./download.sh"},
        {"[]", "g.json: must be a JSON object"},
        {"{\"do_sample\":1}", "g.json: \"do_sample\" must be true or false"},
        {"{\"temperature\":\"hot\"}", "g.json: \"temperature\" must be a number"},
        {"{\"temperature\":-1}", "g.json: temperature must be 0 or more, not -1"},
        {"{\"top_k\":-1}", "g.json: \"top_k\" must be a whole number"},
        {"{\"top_k\":2.5}", "g.json: \"top_k\" must be a whole number"},
        {"{\"top_p\":1.0000002}", "g.json: top-p must be from 0 to 1, not 1.0000002"},
        {"{\"top_p\":-1}", "g.json: top-p must be from 0 to 1, not -1"},
        {"{\"min_p\":1.5}", "g.json: min-p must be from 0 to 1, not 1.5"},
        {"{\"repetition_penalty\":0}", "g.json: repeat-penalty must be more than 0, not 0"},
        {"{\"eos_token_id\":\"x\"}", "g.json: \"eos_token_id\" must be a token id or a list of at most 16"},
        {"{\"eos_token_id\":[1,-2]}", "g.json: \"eos_token_id\" must be a token id or a list of at most 16"},
        {"{\"eos_token_id\":2147483648}", "g.json: \"eos_token_id\" must be a token id or a list of at most 16"},
        {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "g.json: \"eos_token_id\" must be a token id or a list of at most 16"},
    };
    GenerationConfig g;
    SampleOptions o;
    char err[512];
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        const SampleOptions *w = &good[i].want;
        const char *text = good[i].text;
        size_t length = text ? strlen(text) : 0;
        check(generation_config_parse(&g, text, length, "g.json", err) == 0, "%s: %s", text, err);
        o = g.sampling;
        check(o.greedy == w->greedy && o.temperature == w->temperature && o.top_k == w->top_k && o.top_p == w->top_p &&
              o.min_p == w->min_p && o.repeat_penalty == w->repeat_penalty, "%s", text);
        check(g.n_eos == good[i].n_eos && memcmp(g.eos_ids, good[i].eos, g.n_eos * sizeof(int)) == 0,
              "%s: %zu end tokens", text, g.n_eos);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        int status = generation_config_parse(&g, bad[i].text, strlen(bad[i].text), "g.json", err);
        check(status == -1 && strncmp(err, bad[i].want, strlen(bad[i].want)) == 0, "%s: %s", bad[i].text, err);
    }
    o = (SampleOptions){.temperature = NAN, .top_p = 1, .repeat_penalty = 1};
    check(sample_options_check(&o, err) == -1, "a temperature of NaN");
    o = (SampleOptions){.temperature = 1, .top_p = NAN, .repeat_penalty = 1};
    check(sample_options_check(&o, err) == -1, "a top-p of NaN");
    o = (SampleOptions){.temperature = 1, .top_p = 1, .repeat_penalty = INFINITY};
    check(sample_options_check(&o, err) == -1, "a penalty of infinity");
}

/* ---- random numbers ---- */

/* With 65536 equal logits the id drawn is the upper 16 bits of the random number. */
static void test_random(void)
{
    /* splitmix64 from 1234567, and xoshiro256** from {1, 2, 3, 4}: what implementations are checked against */
    static const uint64_t seeded[4] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                       4593380528125082431u};
    static const uint64_t outputs[10] = {
        11520, 0, 1509978240, 1215971899390074240u, 1216172134540287360u, 607988272756665600u, 16172922978634559625u,
        8476171486693032832u, 10595114339597558777u, 2904607092377533576u,
    };
    SampleOptions o = ANYTHING;
    Sampler s;
    char err[512];
    float *logits = calloc(65536, sizeof *logits);
    o.seed = 1234567;
    check(sampler_init(&s, &o, 65536, 65536, err) == 0, "%s", err);
    check(memcmp(s.state, seeded, sizeof seeded) == 0, "the seed's four numbers");
    memcpy(s.state, (uint64_t[]){1, 2, 3, 4}, sizeof s.state);
    for (int i = 0; i < 10; i++) {
        int id = sampler_next(&s, logits, err);
        check(id == (int)(outputs[i] >> 48), "draw %d: %d, not %d", i, id, (int)(outputs[i] >> 48));
    }
    sampler_reset(&s);
    check(memcmp(s.state, seeded, sizeof seeded) == 0, "the seed's four numbers, again");
    sampler_free(&s);
    free(logits);
}

/* Ids come as often as their probability says: 100,000 draws, each count within five standard deviations. */
static void test_frequencies(void)
{
    enum { DRAWS = 100000 };
    static const float logits[5] = {0, 1, -1, 2, -INFINITY};
    SampleOptions o = ANYTHING;
    Sampler s;
    char err[512];
    int counts[5] = {0};
    double total = 0;
    o.seed = 5;
    check(sampler_init(&s, &o, 5, 5, err) == 0, "%s", err);
    for (int i = 0; i < DRAWS; i++) {
        float copy[5];
        memcpy(copy, logits, sizeof copy);
        counts[sampler_next(&s, copy, err)]++;
    }
    for (int i = 0; i < 5; i++)
        total += exp((double)logits[i]);
    for (int i = 0; i < 5; i++) {
        double p = exp((double)logits[i]) / total;
        check(fabs(counts[i] - DRAWS * p) <= 5 * sqrt(DRAWS * p * (1 - p)), "id %d: %d times, not %g", i, counts[i],
              DRAWS * p);
    }
    sampler_free(&s);
}

/* ---- the steps ---- */

static size_t read_numbers(const JsonValue *list, double *out, size_t most)
{
    size_t n = 0;
    for (const JsonValue *v = list ? list->child : NULL; v && n < most; v = v->next)
        json_double(v, &out[n++]);
    return n;
}

static double option(const JsonValue *c, const char *name, double otherwise)
{
    json_double(json_get(c, name), &otherwise);
    return otherwise;
}

static void test_reference_case(size_t number, const JsonValue *c)
{
    enum { MOST = 512 };
    static double numbers[MOST], ids[MOST], probs[MOST];
    float logits[MOST];
    char err[512];
    Sampler s;
    size_t n = read_numbers(json_get(c, "logits"), numbers, MOST);
    size_t left = read_numbers(json_get(c, "ids"), ids, MOST), got = 0;
    SampleOptions o = {.temperature = (float)option(c, "temperature", 1), .top_k = (size_t)option(c, "top_k", 0),
                       .top_p = (float)option(c, "top_p", 1), .min_p = (float)option(c, "min_p", 0),
                       .repeat_penalty = (float)option(c, "repetition_penalty", 1)};
    read_numbers(json_get(c, "probs"), probs, MOST);
    check(n > 0 && left > 0 && sampler_init(&s, &o, n, n, err) == 0, "case %zu: %s", number, err);
    for (size_t i = 0; i < n; i++)
        logits[i] = (float)numbers[i];
    n = read_numbers(json_get(c, "seen"), numbers, MOST);
    for (size_t i = 0; i < n; i++)
        sampler_accept(&s, (int)numbers[i]);
    check(sampler_candidates(&s, logits, &got, err) == 0, "case %zu: %s", number, err);
    double total = 0;
    for (size_t i = 0; i < got; i++)
        total += (double)s.candidates[i].weight;
    bool same = got == left;
    for (size_t i = 0; same && i < got; i++)
        same = s.candidates[i].id == (int)ids[i] && fabs((double)s.candidates[i].weight / total - probs[i]) < 1e-6;
    check(same, "case %zu: %zu ids are left, the reference's %zu, or their probabilities differ", number, got, left);
    sampler_free(&s);
}

static void test_reference(void)
{
    size_t length, number = 0;
    char *text = read_all("tests/data/sample_cases.jsonl", &length), err[512];
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        JsonValue *c = json_parse(line, (size_t)(end - line), err);
        check(c != NULL, "case %zu: %s", number, err);
        test_reference_case(number++, c);
        json_free(c);
    }
    check(number > 100, "only %zu cases", number);
    free(text);
}

/* The same steps by sorting everything, in double. */
typedef struct {
    double score, weight;
    int id;
} Sorted;

static int by_score(const void *a, const void *b)
{
    const Sorted *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : y->id - x->id;
}

static size_t sort_and_cut(const float *logits, size_t n, const SampleOptions *o, Sorted *c)
{
    for (size_t i = 0; i < n; i++)
        c[i] = (Sorted){(double)(logits[i] / o->temperature), 0, (int)i};
    qsort(c, n, sizeof *c, by_score);
    if (o->top_k) {
        size_t k = o->top_k < n ? o->top_k : n;
        while (k < n && c[k].score == c[k - 1].score)
            k++;
        n = k;
    }
    double total = 0, above = 0;
    for (size_t i = 0; i < n; i++)
        total += c[i].weight = exp(c[i].score - c[0].score);
    for (size_t i = 0; o->top_p < 1 && i < n; above += c[i++].weight)
        if (i > 0 && above >= (double)o->top_p * total)
            n = i;
    while (n > 1 && c[n - 1].weight < (double)o->min_p)
        n--;
    return n;
}

static void test_against_sorting(void)
{
    static const size_t sizes[] = {1, 2, 63, 64, 65, 1000, 20000, 151936}, ks[] = {0, 1, 20, 50, 700, 5000, 100000};
    static const float ps[] = {1, 0, 0.3f, 0.8f, 0.95f, 0.9999f}, temperatures[] = {0.2f, 0.7f, 1, 3};
    static const float mins[] = {0, 0, 0.01f, 0.2f};
    float *logits = malloc(151936 * sizeof *logits);
    Sorted *sorted = malloc(151936 * sizeof *sorted);
    unsigned char *expected = malloc(151936);
    char err[512];
    for (int round = 0; round < 150; round++) {
        size_t n = sizes[round % (round < 140 ? 7 : 8)], got = 0;
        bool coarse = uniform() < 0.3; /* many of them are equal */
        for (size_t i = 0; i < n; i++)
            logits[i] = coarse ? floorf(4 * gauss()) / 2 : 2.5f * gauss();
        SampleOptions o = {.temperature = temperatures[(int)(uniform() * 4)], .top_k = ks[(int)(uniform() * 7)],
                           .top_p = ps[(int)(uniform() * 6)], .min_p = mins[(int)(uniform() * 4)], .repeat_penalty = 1};
        Sampler s;
        check(sampler_init(&s, &o, n, n, err) == 0, "%s", err);
        size_t want = sort_and_cut(logits, n, &o, sorted);
        check(sampler_candidates(&s, logits, &got, err) == 0, "%s", err);
        memset(expected, 0, n);
        for (size_t i = 0; i < want; i++)
            expected[sorted[i].id] = 1;
        size_t wrong = got > want ? got - want : want - got;
        for (size_t i = 0; i < got; i++)
            wrong += !expected[s.candidates[i].id];
        /* one id in 50,000 may be so close to the limit that rounding puts it on the other side */
        check(wrong <= want / 25000,
              "%zu logits, temperature %g, top-k %zu, top-p %g, min-p %g: %zu left, want %zu, %zu wrong", n,
              (double)o.temperature, o.top_k, (double)o.top_p, (double)o.min_p, got, want, wrong);
        for (size_t i = 1; i < got; i++)
            wrong += s.candidates[i - 1].id >= s.candidates[i].id;
        check(wrong <= want / 25000, "candidates are in order of ids");
        sampler_free(&s);
    }
    free(expected);
    free(sorted);
    free(logits);
}

/* ---- which id ---- */

static int choose(SampleOptions o, const float *logits, size_t vocab, size_t usable, const int *seen, char err[512])
{
    Sampler s;
    float copy[16];
    memcpy(copy, logits, vocab * sizeof *copy);
    if (sampler_init(&s, &o, vocab, usable, err))
        return -2;
    for (; seen && *seen >= 0; seen++)
        sampler_accept(&s, *seen);
    int id = sampler_next(&s, copy, err);
    sampler_free(&s);
    return id;
}

static void test_choices(void)
{
    SampleOptions greedy = {.greedy = true, .temperature = 1, .top_p = 1, .repeat_penalty = 1}, any = ANYTHING;
    char err[512] = "";
    check(choose(greedy, (float[]){1, 3, 2, 3}, 4, 4, NULL, err) == 1, "the lowest id among equals");
    check(choose(greedy, (float[]){1, 2, 3, 9}, 4, 3, NULL, err) == 2, "ids that the tokenizer does not know");
    check(choose(greedy, (float[]){-INFINITY, -5, -INFINITY}, 3, 3, NULL, err) == 1, "one finite logit");
    any.temperature = 0;
    check(choose(any, (float[]){1, 3, 2, 3}, 4, 4, NULL, err) == 1, "temperature 0 is greedy");
    greedy.repeat_penalty = 2;
    check(choose(greedy, (float[]){3, 2, 1}, 3, 3, (int[]){0, 0, 0, -1}, err) == 1, "3 / 2 is below 2");
    check(choose(greedy, (float[]){3.5f, 1, 1}, 3, 3, (int[]){0, 0, 0, -1}, err) == 0, "once, not three times");
    check(choose(greedy, (float[]){-1, -1.5f, -9}, 3, 3, (int[]){0, 7, -1}, err) == 1, "-1 * 2 is below -1.5");

    any = (SampleOptions)ANYTHING;
    for (uint64_t seed = 0; seed < 200; seed++) {
        any.seed = seed;
        any.top_k = 0;
        int id = choose(any, (float[]){0, 0, 0, 9, 9}, 5, 3, NULL, err);
        check(id >= 0 && id < 3, "id %d is not the tokenizer's", id);
        any.top_k = 2;
        id = choose(any, (float[]){0, -INFINITY, 0.1f, 9}, 4, 3, NULL, err);
        check(id == 0 || id == 2, "id %d has no probability", id);
    }
    any.temperature = 1e-40f;
    check(choose(any, (float[]){1, 30, 29.99f, 9}, 4, 4, NULL, err) == 1, "so cold that it is greedy");
    check(choose(any, (float[]){-31, -30, -32, -40}, 4, 4, NULL, err) == 1, "so cold that it is greedy");
    any.temperature = 1e38f;
    any.top_k = 0;
    check(choose(any, (float[]){-31, -30, -32, -40}, 4, 4, NULL, err) >= 0, "so hot that all are equal");
    any.top_p = 0;
    any.temperature = 1;
    for (any.seed = 0; any.seed < 50; any.seed++)
        check(choose(any, (float[]){1, 3, 2, 2.9f}, 4, 4, NULL, err) == 1, "top-p 0 keeps the best");
}

static void test_bad_logits(void)
{
    SampleOptions greedy = {.greedy = true, .temperature = 1, .top_p = 1, .repeat_penalty = 1}, any = ANYTHING;
    const SampleOptions *const both[] = {&greedy, &any};
    char err[512];
    for (int i = 0; i < 2; i++) {
        check(choose(*both[i], (float[]){1, 2, NAN, 4}, 4, 4, NULL, err) == -1 &&
              !strcmp(err, "the logit of token 2 is not a number"), "%s", err);
        check(choose(*both[i], (float[]){1, 2, 3, INFINITY}, 4, 4, NULL, err) == -1 &&
              !strcmp(err, "the logit of token 3 is infinite"), "%s", err);
        check(choose(*both[i], (float[]){-INFINITY, -INFINITY}, 2, 2, NULL, err) == -1 &&
              !strcmp(err, "the logits of all 2 tokens are -infinity"), "%s", err);
        check(choose(*both[i], (float[]){1, -INFINITY, NAN}, 3, 2, NULL, err) == 0,
              "what the tokenizer does not know does not matter");
    }
    check(choose(any, (float[]){1}, 1, 0, NULL, err) == -2 && strstr(err, "must be from 1 to"), "%s", err);
    any.top_p = 2;
    check(choose(any, (float[]){1}, 1, 1, NULL, err) == -2 && strstr(err, "top-p"), "%s", err);
}

static void print_speed(void)
{
    enum { VOCAB = 151936 };
    static const struct {
        const char *name;
        SampleOptions o;
    } cases[] = {
        {"greedy", {true, 1, 0, 1, 0, 1, 0}},
        {"temperature 0.7, top-k 20, top-p 0.8, repeat-penalty 1.1", {false, 0.7f, 20, 0.8f, 0, 1.1f, 1}},
        {"no limit", {false, 1, 0, 1, 0, 1, 1}},
        {"top-p 0.95", {false, 1, 0, 0.95f, 0, 1, 1}},
    };
    float *logits = malloc(VOCAB * sizeof *logits), *copy = malloc(VOCAB * sizeof *copy);
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = 2.5f * gauss();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Sampler s;
        char err[512];
        double best = INFINITY;
        check(sampler_init(&s, &cases[i].o, VOCAB, VOCAB, err) == 0, "%s", err);
        for (int r = 0; r < 5; r++) {
            struct timespec a, b;
            memcpy(copy, logits, VOCAB * sizeof *copy);
            clock_gettime(CLOCK_MONOTONIC, &a);
            check(sampler_next(&s, copy, err) >= 0, "%s", err);
            clock_gettime(CLOCK_MONOTONIC, &b);
            best = fmin(best, (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3);
        }
        printf("a draw from %d logits, %s: %.0f us\n", VOCAB, cases[i].name, best);
        sampler_free(&s);
    }
    free(copy);
    free(logits);
}

/* ---- generate(), on a network whose answer is known ---- */

#define SCRIPT 32 /* the most tokens of a script, and the width of its network */

/* The network has one layer that adds nothing. Token i of the script has the i-th unit vector as its embedding, for
 * which the head gives token i + 1 a large logit. No token may occur twice. */
typedef struct {
    Model model;
    RunState state;
    Sampler sampler;
    float *embedding, *head;                /* [vocab][SCRIPT] */
    float ones[SCRIPT], zeros[SCRIPT * SCRIPT];
    Matrix square[7];
    bool sliding[1];
} Script;

static void script_open(Script *p, const int *ids, size_t n, size_t vocab, size_t ctx, size_t block)
{
    char err[512];
    SampleOptions greedy = {.greedy = true, .temperature = 1, .top_p = 1, .repeat_penalty = 1};
    *p = (Script){.embedding = calloc(vocab * SCRIPT, sizeof(float)), .head = calloc(vocab * SCRIPT, sizeof(float))};
    for (size_t i = 0; i < SCRIPT; i++)
        p->ones[i] = 1;
    for (size_t i = 0; i < n; i++) {
        p->embedding[(size_t)ids[i] * SCRIPT + i] = 1;
        if (i + 1 < n)
            p->head[(size_t)ids[i + 1] * SCRIPT + i] = 10;
    }
    for (int i = 0; i < 7; i++)
        p->square[i] = (Matrix){p->zeros, WEIGHT_F32, SCRIPT, SCRIPT};
    p->model.config = (Config){
        .dim = SCRIPT, .hidden_dim = SCRIPT, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = SCRIPT,
        .q_dim = SCRIPT, .kv_dim = SCRIPT, .vocab_size = vocab, .max_positions = ctx, .rms_norm_eps = 1e-6f,
        .rope_theta = 10000, .layer_is_sliding = p->sliding,
    };
    TransformerWeights *w = &p->model.weights;
    w->input_layernorm = w->post_attention_layernorm = w->norm = p->ones;
    w->q_bias = w->k_bias = w->v_bias = p->zeros;
    w->q = &p->square[0], w->k = &p->square[1], w->v = &p->square[2], w->o = &p->square[3];
    w->gate = &p->square[4], w->up = &p->square[5], w->down = &p->square[6];
    w->embedding = (Matrix){p->embedding, WEIGHT_F32, vocab, SCRIPT};
    w->head = (Matrix){p->head, WEIGHT_F32, vocab, SCRIPT};
    check(run_state_init(&p->state, &p->model.config, KV_F32, ctx, block, 1, err) == 0, "%s", err);
    check(sampler_init(&p->sampler, &greedy, vocab, vocab, err) == 0, "%s", err);
}

static void script_close(Script *p)
{
    sampler_free(&p->sampler);
    run_state_free(&p->state);
    free(p->embedding);
    free(p->head);
}

/* What on_text got, with a '|' after each call. */
typedef struct {
    char text[1024];
    int calls, stop_after; /* 0: never */
} Received;

static int receive(void *context, const char *bytes, size_t length)
{
    Received *r = context;
    check(length > 0 && text_complete_prefix(bytes, length) == length, "whole characters");
    strncat(r->text, bytes, length);
    strcat(r->text, "|");
    return ++r->calls == r->stop_after;
}

/* The lowest id whose bytes are these; special tokens by their name. */
static int token_of(const Tokenizer *t, const char *piece)
{
    size_t want = strlen(piece), length;
    if (strncmp(piece, "<|", 2) == 0)
        return tokenizer_id(t, piece, want);
    for (size_t id = 0; id < tokenizer_size(t); id++) {
        const char *bytes = tokenizer_piece(t, (int)id, &length);
        if (length == want && memcmp(bytes, piece, want) == 0)
            return (int)id;
    }
    return -1;
}

#define END "<|im_end|>"

static const struct {
    const char *pieces[16], *stops[4];
    const char *received, *text;
    FinishReason reason;
    size_t count;
    bool ignore_eos;
    int stop_after;
} scripts[] = {
    {{"a", "b", "c", END, "d"}, {0}, "a|b|c|", "abc", FINISH_END, 4, false, 0},
    {{"a", "b", "c", END, "d"}, {0}, "a|b|c|d|", "abcd", FINISH_LENGTH, 5, true, 0},
    {{"<|im_start|>", "a", "<|endoftext|>"}, {0}, "a|", "a", FINISH_END, 3, false, 0},
    {{"<|im_start|>", "a"}, {0}, "a|", "a", FINISH_LENGTH, 2, false, 0},
    {{"a", "b", "c"}, {0}, "a|b|", "ab", FINISH_INTERRUPTED, 2, false, 2},
    /* characters in several tokens */
    {{"\xe4", "\xb8", "\xad", "x"}, {0}, "\xe4\xb8\xad|x|", "\xe4\xb8\xadx", FINISH_LENGTH, 4, false, 0},
    {{"\xf0", "\x9f", "\x98", "\x80", END}, {0}, "\xf0\x9f\x98\x80|", "\xf0\x9f\x98\x80", FINISH_END, 5, false, 0},
    {{"\xf0", "\x9f", "\x98", END}, {0}, "\xef\xbf\xbd|", "\xef\xbf\xbd", FINISH_END, 4, false, 0},
    {{"a", "\xe4", "\xb8"}, {0}, "a|\xef\xbf\xbd|", "a\xef\xbf\xbd", FINISH_LENGTH, 3, false, 0},
    {{"\xe4", "\xb8", "x"}, {0}, "\xef\xbf\xbdx|", "\xef\xbf\xbdx", FINISH_LENGTH, 3, false, 0},
    {{"\xff", "\xad", "x"}, {0}, "\xef\xbf\xbd|\xef\xbf\xbd|x|", "\xef\xbf\xbd\xef\xbf\xbdx",
     FINISH_LENGTH, 3, false, 0},
    {{"\xe4", "<|im_start|>", "\xb8", "\xad"}, {0}, "\xe4\xb8\xad|", "\xe4\xb8\xad", FINISH_LENGTH, 4, false, 0},
    /* stop texts */
    {{"a", "E", "N", "D", "b"}, {"END"}, "a|", "a", FINISH_STOP, 4, false, 0},
    {{"a", "E", "N", "x", "b"}, {"END"}, "a|ENx|b|", "aENxb", FINISH_LENGTH, 5, false, 0},
    {{"a", "E", "N"}, {"END"}, "a|EN|", "aEN", FINISH_LENGTH, 3, false, 0},
    {{"a", "E", "N", END}, {"END"}, "a|EN|", "aEN", FINISH_END, 4, false, 0},
    {{"a", "b", "c", "d"}, {"bcx", "cd"}, "a|b|", "ab", FINISH_STOP, 4, false, 0},
    {{"a", "b", "c", "d"}, {"d", "bcd"}, "a|", "a", FINISH_STOP, 4, false, 0},
    {{"a", "b", "c", "d"}, {"", "c"}, "a|b|", "ab", FINISH_STOP, 3, false, 0},
    {{"a", "b"}, {"a"}, "", "", FINISH_STOP, 1, false, 0},
    {{"a", " the", "b"}, {"h"}, "a| t|", "a t", FINISH_STOP, 2, false, 0},
    {{"\xe4", "\xb8", "\xad", "x", "y"}, {"\xe4\xb8\xadxz"}, "\xe4\xb8\xadxy|", "\xe4\xb8\xadxy",
     FINISH_LENGTH, 5, false, 0},
    {{"q", "\xe4", "\xb8", "\xad", "x"}, {"\xe4\xb8\xad"}, "q|", "q", FINISH_STOP, 4, false, 0},
    {{"a", "b", "<|im_start|>", "c"}, {"bc"}, "a|", "a", FINISH_STOP, 4, false, 0},
};

static void test_scripts(const Tokenizer *t)
{
    int eos[2] = {token_of(t, END), token_of(t, "<|endoftext|>")};
    for (size_t k = 0; k < COUNT_OF(scripts); k++) {
        int ids[17] = {token_of(t, "!")};
        size_t n = 1, n_stops = 0;
        bool known = true;
        for (; scripts[k].pieces[n - 1]; n++)
            known &= (ids[n] = token_of(t, scripts[k].pieces[n - 1])) >= 0;
        check(known, "script %zu: the demo tokenizer has these tokens", k);
        if (!known)
            continue;
        while (scripts[k].stops[n_stops])
            n_stops++;
        Script p;
        Received r = {.stop_after = scripts[k].stop_after};
        GenerateOptions o = {.max_tokens = n - 1, .stops = scripts[k].stops, .n_stops = n_stops, .eos_ids = eos,
                             .n_eos = 2, .ignore_eos = scripts[k].ignore_eos, .on_text = receive, .context = &r};
        Generated g;
        char err[512] = "";
        script_open(&p, ids, n, tokenizer_size(t), 64, 8);
        int status = generate(&p.model, &p.state, &p.sampler, t, ids, 1, &o, &g, err);
        const char *text = g.text.length ? g.text.bytes : "";
        check(status == 0 && g.reason == scripts[k].reason, "script %zu: %s %s", k, err, finish_reason_name(g.reason));
        check(strcmp(r.text, scripts[k].received) == 0, "script %zu: received %s", k, r.text);
        check(g.text.length == strlen(text) && strcmp(text, scripts[k].text) == 0, "script %zu: text %s", k, text);
        check(g.ids.count == scripts[k].count, "script %zu: %zu tokens", k, g.ids.count);
        check(!memcmp(g.ids.items, ids + 1, g.ids.count * sizeof *ids), "script %zu: other tokens", k);
        check(p.state.cache.pos == g.ids.count, "script %zu: the cache holds all but the last one: %zu", k, p.state.cache.pos);
        generated_free(&g);
        script_close(&p);
    }
}

/* ---- limits ---- */

static int calls;
static volatile int flag;

static void raise_flag(void *context, size_t done, size_t total)
{
    check(total == *(size_t *)context && done <= total, "%zu of %zu", done, total);
    calls++;
    flag = 1;
}

static void count_calls(void *context, size_t done, size_t total)
{
    (void)context;
    (void)done;
    (void)total;
    calls++;
}

static const int digits[] = {3, 1, 4, 5, 9, 2, 6, 8, 7, 0};

static int answer(Script *p, const int *prompt, size_t n, const GenerateOptions *o, Generated *g, char err[512])
{
    return generate(&p->model, &p->state, &p->sampler, NULL, prompt, n, o, g, err);
}

static void test_limits(void)
{
    char err[512] = "";
    Script p;
    Generated g;
    GenerateOptions o = {.max_tokens = SIZE_MAX};
    script_open(&p, digits, 10, 20, 5, 8);

    check(answer(&p, digits, 1, &o, &g, err) == 0 && g.reason == FINISH_CONTEXT, "%s", err);
    check(g.ids.count == 5 && p.state.cache.pos == 5, "a full context: %zu tokens", g.ids.count);
    check(!memcmp(g.ids.items, digits + 1, 5 * sizeof *digits), "the tokens of a full context");
    check(!g.text.bytes && g.prompt_seconds > 0 && g.seconds > 0, "no text without a tokenizer");
    generated_free(&g);

    /* what is in the cache is not fed again, but if all of the prompt is, its last token is */
    o.max_tokens = 2;
    o.on_prefill = count_calls;
    kv_cache_rewind(&p.state.cache, 2);
    check(answer(&p, digits, 2, &o, &g, err) == 0 && g.reason == FINISH_LENGTH, "%s", err);
    check(g.ids.count == 2 && g.ids.items[0] == 4, "from the cache: %zu tokens", g.ids.count);
    check(p.state.cache.pos == 3 && calls == 1, "one block fed, then one token: at %zu", p.state.cache.pos);
    generated_free(&g);

    kv_cache_rewind(&p.state.cache, 0);
    o.max_tokens = 0;
    check(answer(&p, digits, 5, &o, &g, err) == 0 && g.reason == FINISH_LENGTH, "%s", err);
    check(g.ids.count == 0 && p.state.cache.pos == 5, "no tokens wanted: %zu", g.ids.count);
    generated_free(&g);

    check(answer(&p, digits, 0, &o, &g, err) == -1 && !strcmp(err, "the prompt has no tokens"), "%s", err);
    check(answer(&p, digits, 6, &o, &g, err) == -1, "a prompt beyond the context");
    check(!strcmp(err, "the prompt has 6 tokens, but the context holds 5"), "%s", err);
    check(answer(&p, (int[]){3, 20}, 2, &o, &g, err) == -1, "an id beyond the vocabulary");
    check(!strcmp(err, "token 1 of the prompt has the id 20, but the model has only the ids 0 to 19"), "%s", err);
    check(answer(&p, (int[]){-1}, 1, &o, &g, err) == -1, "a negative id");

    p.head[7 * SCRIPT] = NAN;
    kv_cache_rewind(&p.state.cache, 0);
    o.max_tokens = 3;
    check(answer(&p, digits, 1, &o, &g, err) == -1 && !strcmp(err, "the logit of token 7 is not a number"), "%s", err);
    generated_free(&g);
    script_close(&p);
}

static void test_interrupts(void)
{
    char err[512] = "";
    Script p;
    Generated g;
    size_t total = 10;
    GenerateOptions o = {.max_tokens = 4, .interrupted = &flag, .on_prefill = raise_flag, .context = &total};
    script_open(&p, digits, 10, 20, 100, 4);
    flag = calls = 0;
    check(answer(&p, digits, 10, &o, &g, err) == 0 && g.reason == FINISH_INTERRUPTED && g.ids.count == 0, "%s", err);
    check(p.state.cache.pos == 4 && calls == 1, "stopped after a block of the prompt, at %zu", p.state.cache.pos);
    generated_free(&g);

    /* the flag is raised after the only block: one token is chosen */
    total = 2;
    flag = 0;
    kv_cache_rewind(&p.state.cache, 0);
    check(answer(&p, digits, 2, &o, &g, err) == 0 && g.reason == FINISH_INTERRUPTED && g.ids.count == 1, "%s", err);
    generated_free(&g);

    o = (GenerateOptions){.max_tokens = SIZE_MAX, .max_seconds = 1e-9};
    check(answer(&p, digits, 9, &o, &g, err) == 0 && g.reason == FINISH_TIME && g.ids.count == 0, "%s", err);
    generated_free(&g);
    script_close(&p);
}

/* With logits of every position, the last row counts. */
static void test_all_logits(void)
{
    char err[512] = "";
    Script p;
    Generated g;
    GenerateOptions o = {.max_tokens = 2};
    script_open(&p, digits, 5, 20, 100, 8);
    run_state_free(&p.state);
    check(run_state_init(&p.state, &p.model.config, KV_F32, 100, 8, 8, err) == 0, "%s", err);
    check(answer(&p, digits, 3, &o, &g, err) == 0 && g.ids.count == 2, "%s", err);
    check(!memcmp(g.ids.items, digits + 3, 2 * sizeof *digits), "the tokens after the prompt");
    generated_free(&g);
    script_close(&p);
}

/* ---- the demo model ---- */

typedef struct {
    Checkpoint checkpoint;
    Model model;
    Tokenizer *tokenizer;
} Demo;

static void demo_open(Demo *d)
{
    char err[512];
    *d = (Demo){0};
    d->model.weights.mode = MODE_F32;
    d->tokenizer = tokenizer_open(DEMO, err);
    if (!d->tokenizer || checkpoint_open(&d->checkpoint, DEMO, false, err) ||
        checkpoint_read_config(&d->checkpoint, &d->model.config, err)) {
        printf("%s\n", err);
        exit(1);
    }
    if (weights_load(&d->checkpoint.st, &d->model.config, d->model.weights.mode, &d->model.weights, err)) {
        printf("%s\n", d->checkpoint.st.error);
        exit(1);
    }
}

static void demo_close(Demo *d)
{
    weights_free(&d->model.weights);
    config_free(&d->model.config);
    checkpoint_close(&d->checkpoint);
    tokenizer_close(d->tokenizer);
}

static Generated demo_generate(Demo *d, const SampleOptions *options, const int *prompt, size_t n, size_t block,
                               size_t max_tokens)
{
    char err[512];
    RunState s;
    Sampler sampler;
    Generated g;
    GenerateOptions o = {.max_tokens = max_tokens, .ignore_eos = true};
    size_t vocab = d->model.config.vocab_size;
    if (run_state_init(&s, &d->model.config, KV_F32, 512, block, 1, err) ||
        sampler_init(&sampler, options, vocab, vocab, err) ||
        generate(&d->model, &s, &sampler, d->tokenizer, prompt, n, &o, &g, err)) {
        printf("%s\n", err);
        exit(1);
    }
    sampler_free(&sampler);
    run_state_free(&s);
    return g;
}

/* The reference's greedy ids and text; then one seed, which gives the same on every machine, whatever the kernels, the
 * threads and the blocks. Those ids are our own: the reference draws other random numbers. */
static void test_demo(Demo *d)
{
    size_t length, n = 0;
    char *text = read_all(DEMO "/golden/en1.json", &length), err[512];
    JsonValue *golden = json_parse(text, length, err);
    static const int known[16] = {11, 488, 296, 258, 1894, 455, 1213, 13, 430, 558, 496, 262, 2349, 357, 258, 459};
    double numbers[64];
    int prompt[64];
    SampleOptions greedy = {.greedy = true, .temperature = 1, .top_p = 1, .repeat_penalty = 1};
    SampleOptions sampled = {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1.1f, .seed = 42};
    for (const JsonValue *v = json_get(golden, "prompt_ids")->child; v; v = v->next) {
        uint64_t id = 0;
        json_u64(v, &id);
        prompt[n++] = (int)id;
    }
    const JsonValue *ids = json_get(golden, "greedy_ids"), *want = json_get(golden, "greedy_text");
    Generated g = demo_generate(d, &greedy, prompt, n, 512, ids->length);
    read_numbers(ids, numbers, 64);
    for (size_t i = 0; i < g.ids.count; i++)
        check(g.ids.items[i] == (int)numbers[i], "greedy token %zu is %d", i, g.ids.items[i]);
    check(g.ids.count == ids->length && g.text.length == want->length &&
          !memcmp(g.text.bytes, want->text, want->length), "%s", g.text.bytes);
    generated_free(&g);

    Generated first = demo_generate(d, &sampled, prompt, n, 512, 40);
    check(!memcmp(first.ids.items, known, sizeof known), "the ids of seed 42");
    for (int level = 0; level < CPU_LEVELS; level++) {
        static const size_t blocks[] = {512, 3, 1};
        if (!cpu_has((CpuLevel)level))
            continue;
        cpu_set_level((CpuLevel)level);
        for (int threads = 1; threads <= 3; threads++) {
            check(threads_start(threads, err) == 0, "%s", err);
            g = demo_generate(d, &sampled, prompt, n, blocks[threads - 1], 40);
            check(g.ids.count == 40 && !memcmp(g.ids.items, first.ids.items, 40 * sizeof(int)) &&
                  !strcmp(g.text.bytes, first.text.bytes),
                  "%s, %d threads, blocks of %zu: %s", cpu_level_name((CpuLevel)level), threads, blocks[threads - 1],
                  g.text.bytes);
            generated_free(&g);
        }
    }
    cpu_set_level(cpu_level_best());
    sampled.seed = 43;
    g = demo_generate(d, &sampled, prompt, n, 512, 40);
    check(strcmp(g.text.bytes, first.text.bytes) != 0, "another seed, another text");
    generated_free(&g);
    generated_free(&first);
    json_free(golden);
    free(text);
}

int main(void)
{
    Demo d;
    char err[512];
    check(threads_start(1, err) == 0, "%s", err);
    test_options();
    test_random();
    test_frequencies();
    test_reference();
    test_against_sorting();
    test_choices();
    test_bad_logits();
    demo_open(&d);
    test_scripts(d.tokenizer);
    test_limits();
    test_interrupts();
    test_all_logits();
    test_demo(&d);
    demo_close(&d);
    print_speed();
    threads_stop();
    return report("sample");
}
