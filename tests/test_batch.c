/* Several sequences in one step, shared beginnings of the cache, drafts: on the demo model, everything gives the same
 * tokens and text as one sequence that runs alone, one token at a time. */
#include "base/base.h"

#include <math.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "generate/batch.h"
#include "generate/generate.h"

#define DEMO "tests/demo"
enum { CTX = 512, SEQUENCES = 6 };

static Checkpoint checkpoint;
static Model model, small; /* the demo, and the same with weights of 4 bits */
static Tokenizer *tokenizer;
static size_t vocab;

static void must(int status, const char *err)
{
    if (status != 0) {
        printf("%s\n", err);
        exit(1);
    }
}

static void open_models(void)
{
    char err[512];
    tokenizer = tokenizer_open(DEMO, err);
    must(tokenizer ? 0 : -1, err);
    must(checkpoint_open(&checkpoint, DEMO, false, err), err);
    must(checkpoint_read_config(&checkpoint, &model.config, err), err);
    must(checkpoint_read_config(&checkpoint, &small.config, err), err);
    must(weights_load(&checkpoint.st, &model.config, MODE_F32, &model.weights, err), err);
    must(weights_load(&checkpoint.st, &small.config, MODE_Q4, &small.weights, err), err);
    vocab = model.config.vocab_size;
}

static void close_models(void)
{
    weights_free(&model.weights);
    weights_free(&small.weights);
    config_free(&model.config);
    config_free(&small.config);
    checkpoint_close(&checkpoint);
    tokenizer_close(tokenizer);
}

static RunState state_of(KvType type, size_t block, size_t most_logits)
{
    RunState s;
    char err[512];
    must(run_state_init(&s, &model.config, type, CTX, block, most_logits, err), err);
    return s;
}

static KvCache cache_of(KvType type)
{
    KvCache k;
    char err[512];
    must(kv_cache_init(&k, &model.config, type, CTX, err), err);
    return k;
}

static void reserve(KvCache *k, size_t n)
{
    char err[512];
    must(kv_cache_reserve(k, n, err), err);
}

/* Token i of text number `seed`: the demo's texts use ids all over its vocabulary. */
static int some_id(size_t seed, size_t i)
{
    return (int)((seed * 7919 + i * i * 31 + i * 17) % vocab);
}

/* ---- pieces of a step -------------------------------------------------------------------------------------------- */

/* The logits [n][vocab] of a text's first n tokens, one token at a time. Fresh. */
static float *alone(KvType type, size_t seed, size_t n)
{
    RunState s = state_of(type, 1, 1);
    float *logits = malloc(n * vocab * sizeof *logits);
    reserve(&s.cache, n);
    for (size_t i = 0; i < n; i++) {
        int id = some_id(seed, i);
        memcpy(logits + i * vocab, forward(&model, &s, &id, 1), vocab * sizeof *logits);
    }
    run_state_free(&s);
    return logits;
}

/* Sequences of different lengths go forward together, each by another number of tokens a step. */
static void test_pieces(KvType type)
{
    enum { N = 4 };
    const size_t length = emulated() ? 50 : 300;
    static const size_t step[N] = {1, 3, 7, 40};
    RunState s = state_of(type, 64, 64);
    KvCache caches[N];
    float *want[N];
    for (size_t i = 0; i < N; i++) {
        want[i] = alone(type, i, length);
        caches[i] = cache_of(type);
    }
    bool right = true;
    while (caches[0].pos < 30 || caches[3].pos < length) {
        Piece pieces[N];
        int tokens[64];
        size_t n = 0, count = 0;
        for (size_t i = 0; i < N; i++) {
            size_t pos = caches[i].pos, take = MIN(step[i], length - pos);
            if (take == 0)
                continue;
            reserve(&caches[i], take);
            pieces[count++] = (Piece){.cache = &caches[i], .n = take, .n_logits = pos % 2 ? take : 1};
            for (size_t k = 0; k < take; k++)
                tokens[n++] = some_id(i, pos + k);
        }
        s.pieces = pieces;
        s.n_pieces = count;
        forward(&model, &s, tokens, (int)n);
        for (size_t p = 0; p < count; p++) {
            size_t i = (size_t)(pieces[p].cache - caches), first = caches[i].pos - pieces[p].n_logits;
            right = right && memcmp(pieces[p].logits, want[i] + first * vocab,
                                    pieces[p].n_logits * vocab * sizeof(float)) == 0;
        }
    }
    check(right, "logits in company, type %d", (int)type);
    for (size_t i = 0; i < N; i++) {
        kv_cache_free(&caches[i]);
        free(want[i]);
    }
    run_state_free(&s);
}

/* The first `common` tokens of a text are read once, and three sequences go on from there by turns: two with other
 * texts, one with the text itself. */
static void test_shared_beginning(size_t common)
{
    enum { MORE = 5 };
    RunState s = state_of(KV_F32, 64, 1);
    KvCache caches[3] = {cache_of(KV_F32), cache_of(KV_F32), cache_of(KV_F32)};
    float *want[3];
    int tokens[3][CTX];
    for (size_t i = 0; i < 3; i++) {
        RunState fresh = state_of(KV_F32, 64, 1);
        for (size_t k = 0; k < common + MORE; k++)
            tokens[i][k] = some_id(k < common ? 0 : i, k);
        reserve(&fresh.cache, common + MORE);
        want[i] = malloc(vocab * sizeof *want[i]);
        for (size_t k = 0; k < common + MORE; k++)
            memcpy(want[i], forward(&model, &fresh, &tokens[i][k], 1), vocab * sizeof *want[i]);
        run_state_free(&fresh);
    }
    for (size_t k = 0; k < common + MORE; k++)
        for (size_t i = 0; i < 3; i++) {
            if (i > 0 && k < common) /* that is what they share */
                continue;
            if (i > 0 && k == common)
                kv_cache_share(&caches[i], &caches[0], common);
            Piece piece = {.cache = &caches[i], .n = 1, .n_logits = 1};
            reserve(&caches[i], 1);
            s.pieces = &piece;
            s.n_pieces = 1;
            forward(&model, &s, &tokens[i][k], 1);
            if (k == common + MORE - 1)
                check(memcmp(piece.logits, want[i], vocab * sizeof *want[i]) == 0, "sequence %zu shares %zu tokens", i,
                      common);
        }
    check(common < ATTENTION_BLOCK || caches[0].blocks[0] == caches[2].blocks[0], "a full block is shared");
    for (size_t i = 0; i < 3; i++) {
        kv_cache_free(&caches[i]);
        free(want[i]);
    }
    run_state_free(&s);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static const int end_ids[] = {0};
static const char *const stops[] = {"sick in bed", "her close"};

/* A request: what differs from one to the next. */
typedef struct {
    const char *prompt;
    SampleOptions sampling;
    size_t max_tokens, n_stops;
    bool ignore_eos;
} Request;

#define GREEDY                                                                                                         \
    {                                                                                                                  \
        .greedy = true, .temperature = 1, .top_p = 1, .repeat_penalty = 1                                              \
    }

static const Request requests[SEQUENCES] = {
    {"Once upon a time", GREEDY, 130, 0, true},
    {"The old man", {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1, .seed = 5}, 70, 0, false},
    {"One day the cat and the dog went to the park. One day the cat and", GREEDY, 90, 0, true},
    {"She said", {.temperature = 1, .top_p = 1, .repeat_penalty = 1.2f, .seed = 77}, 60, 2, false},
    {"a big red ball", {.temperature = 0.5f, .top_p = 1, .repeat_penalty = 0.2f, .seed = 1}, 300, 0, true} /* repeats */,
    {"Lily", {.temperature = 1.4f, .top_p = 0.9f, .min_p = 0.02f, .repeat_penalty = 1, .seed = 9}, 1, 0, true},
};

/* Everything that a request needs to run. */
typedef struct {
    Sampler sampler;
    IdList prompt;
    KvCache cache;
    GenerateOptions options;
    Generation generation;
    Generated out;
} Running;

static void prepare(Running *r, const Request *q, KvType type, Drafter *drafter)
{
    char err[512];
    *r = (Running){.cache = cache_of(type)};
    r->options = (GenerateOptions){.max_tokens = q->max_tokens,
                                   .stops = stops,
                                   .n_stops = q->n_stops,
                                   .eos_ids = end_ids,
                                   .n_eos = 1,
                                   .ignore_eos = q->ignore_eos,
                                   .drafter = drafter};
    must(tokenizer_encode(tokenizer, q->prompt, strlen(q->prompt), true, &r->prompt, err), err);
    must(sampler_init(&r->sampler, &q->sampling, vocab, vocab, err), err);
    must(generation_start(&r->generation, &model, &r->cache, &r->sampler, tokenizer, r->prompt.items, r->prompt.count,
                          &r->options, &r->out, err),
         err);
}

static Generated take_result(Running *r)
{
    generation_finish(&r->generation);
    check(!r->generation.failed, "%s", r->generation.err);
    check(r->cache.pos + 1 == r->prompt.count + r->out.ids.count, "the cache has all but the last token");
    Generated out = r->out;
    generation_free(&r->generation);
    sampler_free(&r->sampler);
    id_list_free(&r->prompt);
    kv_cache_free(&r->cache);
    return out;
}

/* Run the requests first .. first + n - 1 together. */
static void run_together(size_t first, size_t n, KvType type, size_t block, Drafter *drafter, Generated *out)
{
    Running running[SEQUENCES];
    Generation *list[SEQUENCES];
    RunState s = state_of(type, block, MIN(block, 64));
    char err[512];
    if (drafter && drafter->same_cache)
        drafter->state = &s;
    for (size_t i = 0; i < n; i++) {
        prepare(&running[i], &requests[first + i], type, drafter);
        list[i] = &running[i].generation;
    }
    for (size_t left = n; left > 0;) {
        must(batch_step(&model, &s, list, n, drafter, err), err);
        left = 0;
        for (size_t i = 0; i < n; i++)
            left += generation_goes_on(list[i]) ? 1 : 0;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = take_result(&running[i]);
    run_state_free(&s);
}

static void check_same(Generated *got, const Generated *want, const char *what, size_t request)
{
    check(got->ids.count == want->ids.count &&
              memcmp(got->ids.items, want->ids.items, got->ids.count * sizeof *got->ids.items) == 0 &&
              got->reason == want->reason,
          "%s, request %zu: %zu tokens, %zu wanted", what, request, got->ids.count, want->ids.count);
    check(got->text.length == want->text.length && memcmp(got->text.bytes, want->text.bytes, got->text.length) == 0,
          "%s, request %zu: %s", what, request, got->text.bytes);
    generated_free(got);
}

static Generated plain[SEQUENCES];

static void test_together(void)
{
    static const size_t blocks[] = {6, 17, 512};
    Generated got[SEQUENCES];
    for (size_t k = 0; k < COUNT_OF(blocks); k++) {
        run_together(0, SEQUENCES, KV_F32, blocks[k], NULL, got);
        for (size_t i = 0; i < SEQUENCES; i++)
            check_same(&got[i], &plain[i], "together", i);
    }
    char err[512];
    RunState s = state_of(KV_F32, 32, 1);
    for (size_t i = 0; i < SEQUENCES; i++) {
        Running r;
        prepare(&r, &requests[i], KV_F32, NULL);
        kv_cache_rewind(&s.cache, 0);
        sampler_reset(&r.sampler);
        must(generate(&model, &s, &r.sampler, tokenizer, r.prompt.items, r.prompt.count, &r.options, &got[i], err), err);
        check_same(&got[i], &plain[i], "generate()", i);
        generation_free(&r.generation);
        generated_free(&r.out);
        sampler_free(&r.sampler);
        id_list_free(&r.prompt);
        kv_cache_free(&r.cache);
    }
    run_state_free(&s);
}

/* Drafts change no token, whoever proposes, however many sequences there are, and some of them are right. */
static void test_drafts(void)
{
    static const struct {
        const char *name;
        Model *model;
        bool same_cache;
    } kinds[] = {{"n-grams", NULL, false}, {"the model in q4", &small, true}, {"another model", &small, false}};
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t n = 1; n <= SEQUENCES; n += SEQUENCES - 1) {
            RunState s = state_of(KV_F32, 24, 24);
            Drafter drafter = {.model = kinds[k].model, .state = &s, .same_cache = kinds[k].same_cache, .fixed = n == 1 ? 7 : 3};
            size_t accepted = 0, proposed = 0;
            for (size_t i = 0; i < SEQUENCES; i += n) {
                Generated got[SEQUENCES];
                run_together(i, n, KV_F32, 512, &drafter, got);
                drafter.state = &s;
                for (size_t j = 0; j < n; j++) {
                    accepted += got[j].accepted;
                    proposed += got[j].proposed;
                    check_same(&got[j], &plain[i + j], kinds[k].name, i + j);
                }
            }
            check(accepted > (kinds[k].model ? 300 : 10) && accepted <= proposed, "%s, %zu together: %zu of %zu proposals were right",
                  kinds[k].name, n, accepted, proposed);
            run_state_free(&s);
        }
}

/* What followed the last four tokens when they occurred before, and after that what followed there. */
static void test_look_up(void)
{
    static const struct {
        int tokens[12];
        size_t n, most, proposed;
        int want[6];
    } cases[] = {
        {{1, 2, 3, 4, 5, 6, 1, 2, 3, 4}, 10, 2, 2, {5, 6}},
        {{1, 2, 3, 4, 5, 6, 1, 2, 3, 4}, 10, 6, 6, {5, 6, 1, 2, 3, 4}},
        {{1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3}, 12, 3, 0, {0}},
        {{1, 2, 3, 4, 7, 1, 2, 3, 4, 8, 0, 0}, 12, 3, 0, {0}},
        {{0, 1, 2, 3, 4, 1, 2, 3, 4}, 9, 5, 5, {1, 2, 3, 4, 1}}, /* the end repeats itself */
        {{9, 9, 9, 9, 9}, 5, 3, 3, {9, 9, 9}},
        {{9, 9, 9, 9}, 4, 3, 0, {0}},
        {{9}, 1, 3, 0, {0}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Draft d = {0};
        IdList tokens = {0};
        for (size_t k = 0; k < cases[i].n; k++) {
            id_list_append(&tokens, cases[i].tokens[k]);
            check(draft_look_up(&d, &tokens, cases[i].most) == 0, "memory");
        }
        check(d.n == cases[i].proposed && memcmp(d.proposal, cases[i].want, d.n * sizeof *d.proposal) == 0,
              "case %zu: %zu proposals", i, d.n);
        id_list_free(&tokens);
        draft_free(&d);
    }
    /* the last of several occurrences counts, in a text that makes the table grow */
    Draft d = {0};
    IdList tokens = {0};
    for (int i = 0; i < 5000; i++)
        id_list_append(&tokens, i % 500 == 0 ? 500 + i : i % 500);
    for (int i = 496; i < 500; i++)
        id_list_append(&tokens, i);
    check(draft_look_up(&d, &tokens, 2) == 0 && d.n == 2 && d.proposal[0] == 496 && d.proposal[1] == 497,
          "after the last occurrence: %d", d.proposal[0]);
    id_list_free(&tokens);
    draft_free(&d);
}

/* Numbers that are not finite are found at the same position and with the same sentence, drafts or none. */
static void test_failure(void)
{
    size_t bytes = vocab * model.config.dim * sizeof(float);
    Matrix good = model.weights.embedding;
    float *broken = malloc(bytes);
    memcpy(broken, good.data, bytes);
    broken[(size_t)plain[0].ids.items[40] * model.config.dim] = (float)NAN; /* the head keeps the good numbers */
    model.weights.embedding.data = broken;
    char sentence[512] = "";
    size_t position = 0;
    for (int with_draft = 0; with_draft < 2; with_draft++) {
        RunState s = state_of(KV_F32, 64, 32);
        Drafter drafter = {.model = &small, .state = &s, .same_cache = true, .fixed = 5};
        Running r;
        Generation *only[] = {&r.generation};
        char err[512];
        prepare(&r, &requests[0], KV_F32, with_draft ? &drafter : NULL);
        while (generation_goes_on(&r.generation))
            must(batch_step(&model, &s, only, 1, with_draft ? &drafter : NULL, err), err);
        check(r.generation.failed && strstr(r.generation.err, "not a number"), "%s", r.generation.err);
        if (with_draft)
            check(strcmp(sentence, r.generation.err) == 0 && r.cache.pos == position, "at %zu, not %zu: %s",
                  r.cache.pos, position, r.generation.err);
        memcpy(sentence, r.generation.err, sizeof sentence);
        position = r.cache.pos;
        generation_free(&r.generation);
        generated_free(&r.out);
        sampler_free(&r.sampler);
        id_list_free(&r.prompt);
        kv_cache_free(&r.cache);
        run_state_free(&s);
    }
    model.weights.embedding = good;
    free(broken);
}

static void test_answers(void)
{
    for (size_t i = 0; i < SEQUENCES; i++)
        run_together(i, 1, KV_F32, 1, NULL, &plain[i]);
    check(plain[3].reason == FINISH_STOP && plain[5].reason == FINISH_LENGTH && plain[1].ids.count > 5,
          "what the requests are for: %s, %s, %zu", finish_reason_name(plain[3].reason),
          finish_reason_name(plain[5].reason), plain[1].ids.count);
    for (int level = watched() ? (int)cpu_level_best() : CPU_SCALAR + 1; level < CPU_LEVELS; level++)
        if (cpu_has((CpuLevel)level)) {
            cpu_set_level((CpuLevel)level);
            test_together();
            test_drafts();
        }
    test_failure();
    cpu_set_level(CPU_SCALAR);
    test_shared_beginning(100);
    for (size_t i = 0; i < SEQUENCES; i++)
        generated_free(&plain[i]);
}

int main(void)
{
    char err[512];
    check(threads_start(2, err) == 0, "%s", err);
    open_models();
    test_look_up();
    test_pieces(KV_F32);
    test_pieces(KV_F16);
    if (emulated()) {
        skip("answers: under an emulator they take minutes");
    } else {
        for (size_t common = 1; common < 300; common += common == 1 ? 99 : 78)
            test_shared_beginning(common);
        test_answers();
    }
    close_models();
    threads_stop();
    return report("batch");
}
