/* What generate and chat share: how to choose tokens, and what is reported of a run. */
#include "base/cpu.h"
#include "base/file.h"
#include "base/threads.h"
#include "commands/common.h"
#include "generate/config.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    FILE *f = fopen("/dev/urandom", "rb");
    if (!f || fread(&seed, sizeof seed, 1, f) != 1)
        seed = (uint32_t)(seconds_now() * 1e9) ^ (uint32_t)getpid();
    if (f)
        fclose(f);
    return seed;
}

SamplingArguments sampling_arguments(void)
{
    return (SamplingArguments){-1, -1, -1, -1, SIZE_MAX, random_seed(), false};
}

/* What was asked for, over o. */
static void apply(const SamplingArguments *a, SampleOptions *o)
{
    if (a->temperature >= 0 || a->top_k != SIZE_MAX || a->top_p >= 0 || a->min_p >= 0)
        o->greedy = false;
    if (a->temperature >= 0)
        o->temperature = (float)a->temperature;
    if (a->top_k != SIZE_MAX)
        o->top_k = a->top_k;
    if (a->top_p >= 0)
        o->top_p = (float)a->top_p;
    if (a->min_p >= 0)
        o->min_p = (float)a->min_p;
    if (a->repeat_penalty >= 0)
        o->repeat_penalty = (float)a->repeat_penalty;
    if (a->greedy || a->temperature == 0) {
        o->greedy = true;
        o->temperature = 1;
    }
    o->seed = a->seed;
}

void check_sampling(const SamplingArguments *a)
{
    SampleOptions o = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    char err[512];
    apply(a, &o);
    if (sample_options_check(&o, err))
        usage_error("%s", err);
}

/* Settings of the reference that change which tokens come, and are not followed here. */
static const struct {
    const char *name;
    double off; /* the number that means: not used; so do null, false and an empty list */
} NOT_FOLLOWED[] = {
    {"no_repeat_ngram_size", 0},   {"encoder_no_repeat_ngram_size", 0}, {"encoder_repetition_penalty", 1},
    {"suppress_tokens", 0},        {"begin_suppress_tokens", 0},        {"bad_words_ids", 0},
    {"sequence_bias", 0},          {"forced_bos_token_id", -1},         {"forced_eos_token_id", -1},
    {"min_length", 0},             {"min_new_tokens", 0},               {"exponential_decay_length_penalty", 0},
    {"stop_strings", 0},           {"num_beams", 1},                    {"penalty_alpha", 0},
    {"typical_p", 1},              {"epsilon_cutoff", 0},               {"eta_cutoff", 0},
    {"top_h", 0},                  {"guidance_scale", 1},               {"dola_layers", 0},
};

static bool in_use(const JsonValue *v, double off)
{
    double number;
    if (!v || v->type == JSON_NULL || v->type == JSON_FALSE || (v->type == JSON_ARRAY && !v->length))
        return false;
    return json_double(v, &number) || number != off;
}

/* Text without them would differ from the reference's and nobody would know why. */
static void tell_not_followed(const char *path, const char *text, size_t length)
{
    char err[512];
    JsonValue *root = text ? json_parse(text, length, err) : NULL;
    for (size_t i = 0; root && i < sizeof NOT_FOLLOWED / sizeof *NOT_FOLLOWED; i++)
        if (in_use(json_get(root, NOT_FOLLOWED[i].name), NOT_FOLLOWED[i].off))
            notice("%s: \"%s\" is not followed", path, NOT_FOLLOWED[i].name);
    json_free(root);
}

Choosing choose_sampling(const Session *s, const SamplingArguments *a, bool chat)
{
    Choosing c = {0};
    GenerationConfig file;
    size_t size = strlen(s->checkpoint.directory) + 32, length = 0;
    char *path = must(malloc(size)), *text = NULL, err[512];
    snprintf(path, size, "%s/generation_config.json", s->checkpoint.directory);
    if (!access(path, F_OK) && !(text = file_read(path, 1 << 20, &length, err)))
        die(EXIT_FAILED, "%s", err);
    if (generation_config_parse(&file, text, length, path, err))
        die(EXIT_FAILED, "%s", err);
    tell_not_followed(path, text, length);
    c.sampling = file.sampling;
    c.n_eos = file.n_eos;
    memcpy(c.eos, file.eos_ids, c.n_eos * sizeof *c.eos);
    free(text);
    free(path);
    apply(a, &c.sampling);
    if (sample_options_check(&c.sampling, err))
        usage_error("%s", err);
    if (!c.n_eos) {
        c.n_eos = s->model.config.n_eos;
        memcpy(c.eos, s->model.config.eos_token_ids, c.n_eos * sizeof *c.eos);
    }
    if (chat && (c.eos[c.n_eos] = tokenizer_id(s->tokenizer, "<|im_end|>", 10)) >= 0)
        c.n_eos++;
    return c;
}

Sampler open_sampler(const Session *s, const SampleOptions *o)
{
    Sampler sampler;
    char err[512];
    size_t vocab = s->model.config.vocab_size, known = s->tokenizer ? tokenizer_size(s->tokenizer) : vocab;
    if (sampler_init(&sampler, o, vocab, known < vocab ? known : vocab, err))
        die(EXIT_FAILED, "%s", err);
    return sampler;
}

typedef struct {
    char *where; /* [64] */
    bool found;
} Search;

static void look_for_infinity(void *context, int layer, const char *step, const float *values, size_t n)
{
    Search *search = context;
    for (size_t i = 0; i < n && !search->found; i++)
        if (!isfinite(values[i])) {
            search->found = true;
            if (layer < 0)
                snprintf(search->where, 64, "%s", step);
            else
                snprintf(search->where, 64, "layer %d, %s", layer, step);
        }
}

bool find_not_finite(Session *s, int token, char where[64])
{
    Search search = {where, false};
    if (!s->state.pos)
        return false;
    run_state_rewind(&s->state, s->state.pos - 1);
    s->state.observe = look_for_infinity;
    s->state.observe_context = &search;
    const float *logits = forward(&s->model, &s->state, &token, 1);
    s->state.observe = NULL;
    look_for_infinity(&search, -1, "the last norm or the head", logits, s->model.config.vocab_size);
    return search.found;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

typedef struct {
    double prompt_rate, rate, gb_s; /* tokens/s, tokens/s after the first, GB/s of weights and cache; 0: unknown */
} Rates;

static Rates rates_of(const Session *s, const Generated *g, size_t n_prompt)
{
    Rates r = {0};
    double more = g->ids.count > 1 ? (double)(g->ids.count - 1) : 0;
    if (g->prompt_seconds > 0)
        r.prompt_rate = (double)n_prompt / g->prompt_seconds;
    if (g->seconds > 0 && more > 0) {
        uint64_t bytes = s->weight_bytes + cache_bytes(&s->model.config, n_prompt + g->ids.count / 2);
        r.rate = more / g->seconds;
        r.gb_s = r.rate * (double)bytes / 1e9;
    }
    return r;
}

/* Caches would hold a smaller model, and its speed would say nothing of the memory's. */
#define BEYOND_CACHES ((uint64_t)128 << 20)

void print_statistics(const Session *s, const Generated *g, size_t n_prompt, const SampleOptions *o)
{
    Rates r = rates_of(s, g, n_prompt);
    double bandwidth = r.rate > 0 && s->weight_bytes > BEYOND_CACHES ? read_bandwidth(s, 2 * BEYOND_CACHES) : 0;
    WeightMode mode = s->model.weights.mode;
    char rate[128] = "", share[48] = "", prompt[32] = "", seed[32] = "";
    if (bandwidth > 0)
        snprintf(share, sizeof share, ", %.0f%% of the read bandwidth", 100 * r.gb_s / bandwidth);
    if (r.rate > 0)
        snprintf(rate, sizeof rate, ", %.1f tok/s (%.1f GB/s%s)", r.rate, r.gb_s, share);
    if (r.prompt_rate > 0)
        snprintf(prompt, sizeof prompt, ", %.1f tok/s", r.prompt_rate);
    if (!o->greedy)
        snprintf(seed, sizeof seed, "; seed %llu", (unsigned long long)o->seed);
    notice("%zu token%s%s; prompt %zu%s; load %.2f s; %s, %d thread%s, %s%s", g->ids.count,
           g->ids.count == 1 ? "" : "s", rate, n_prompt, prompt, s->load_seconds, weight_mode_name(mode),
           threads_count(), threads_count() > 1 ? "s" : "", cpu_level_name(cpu_level()), seed);
    if (mode == MODE_F32 && s->holds_16_bits)
        notice("-w bf16: same text, about twice as fast");
}

void write_generated_json(const Session *s, const Generated *g, const IdList *prompt, uint64_t seed)
{
    Rates r = rates_of(s, g, prompt->count);
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"prompt_s", g->prompt_seconds},
                   {"s", g->seconds},
                   {"tok_s", r.rate},
                   {"gb_s", r.gb_s},
                   {"load_s", s->load_seconds}};
    printf("{\"prompt_ids\":");
    write_ids_json(stdout, prompt->items, prompt->count);
    printf(",\"ids\":");
    write_ids_json(stdout, g->ids.items, g->ids.count);
    printf(",\"text\":");
    if (s->tokenizer)
        json_write_string(stdout, g->text.bytes ? g->text.bytes : "", g->text.length);
    else
        printf("null");
    printf(",\"finish_reason\":\"%s\",\"stats\":{\"seed\":%llu,\"prompt_tokens\":%zu,\"tokens\":%zu",
           finish_reason_name(g->reason), (unsigned long long)seed, prompt->count, g->ids.count);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        printf(",\"%s\":", numbers[i].name);
        json_write_double(stdout, numbers[i].value);
    }
    printf(",\"weights\":\"%s\",\"threads\":%d,\"isa\":\"%s\"}}\n", weight_mode_name(s->model.weights.mode),
           threads_count(), cpu_level_name(cpu_level()));
}
