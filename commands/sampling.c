#include "commands/sampling.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "commands/output.h"
#include "commands/terminal.h"
#include "generate/config.h"

uint64_t sampling_random_seed(void)
{
    uint32_t seed = 0;
    FILE *f = fopen("/dev/urandom", "rb");
    if (!f || fread(&seed, sizeof seed, 1, f) != 1)
        seed = (uint32_t)(clock_seconds() * 1e9) ^ (uint32_t)getpid();
    if (f)
        fclose(f);
    return seed;
}

SamplingArguments sampling_arguments(void)
{
    uint64_t seed = sampling_random_seed();
    return (SamplingArguments){-1, -1, -1, -1, SIZE_MAX, seed, seed, false};
}

int sampling_apply(const SamplingArguments *a, SampleOptions *o, char err[512])
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
    return sample_options_check(o, err);
}

void sampling_check(const SamplingArguments *a)
{
    SampleOptions o = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    char err[512];
    if (sampling_apply(a, &o, err) != 0)
        usage_error("%s", err);
}

/* Settings of the reference that would change which tokens are chosen, but do nothing here. */
static const struct {
    const char *name;
    double off; /* the number that means "not used"; null, false and an empty list mean that, too */
} unsupported[] = {
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"bad_words_ids", 0},
    {"sequence_bias", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"exponential_decay_length_penalty", 0},
    {"stop_strings", 0},
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"top_h", 0},
    {"guidance_scale", 1},
    {"dola_layers", 0},
};

static bool in_use(const JsonValue *v, double off)
{
    double number;
    if (!v || v->type == JSON_NULL || v->type == JSON_FALSE || (v->type == JSON_ARRAY && !v->length))
        return false;
    return json_double(v, &number) || number != off;
}

/* Say so, or nobody would know why the text differs from the reference's. */
static void tell_unsupported(const char *path, const char *text, size_t length)
{
    char err[512];
    JsonValue *root = text ? json_parse(text, length, err) : NULL;
    for (size_t i = 0; root && i < COUNT_OF(unsupported); i++)
        if (in_use(json_get(root, unsupported[i].name), unsupported[i].off))
            notice("%s: \"%s\" is not supported and has no effect", path, unsupported[i].name);
    json_free(root);
}

SamplingSettings sampling_settings(const Session *s, const SamplingArguments *a, bool chat)
{
    SamplingSettings c = {0};
    GenerationConfig file;
    size_t length = 0;
    char err[512], *text = NULL, *path = xpath_join(s->checkpoint.directory, "generation_config.json");
    if (!access(path, F_OK)) {
        text = file_read(path, 1 << 20, &length, err);
        die_if(!text, err);
    }
    die_if(generation_config_parse(&file, text, length, path, err), err);
    tell_unsupported(path, text, length);
    c.sampling = file.sampling;
    c.n_eos = file.n_eos;
    c.max_new_tokens = file.max_new_tokens;
    c.max_length = file.max_length;
    c.max_time = file.max_time;
    memcpy(c.eos, file.eos_ids, c.n_eos * sizeof *c.eos);
    free(text);
    free(path);
    if (sampling_apply(a, &c.sampling, err) != 0)
        usage_error("%s", err);
    if (!c.n_eos) {
        c.n_eos = s->model.config.n_eos;
        memcpy(c.eos, s->model.config.eos_token_ids, c.n_eos * sizeof *c.eos);
    }
    if (chat)
        sampling_end_with_turn(&c, s);
    return c;
}

void sampling_end_with_turn(SamplingSettings *c, const Session *s)
{
    int end_of_turn = s->tokenizer ? tokenizer_id(s->tokenizer, "<|im_end|>", 10) : -1;
    if (end_of_turn >= 0)
        c->eos[c->n_eos++] = end_of_turn;
}

int sampling_max_tokens(const SamplingSettings *c, size_t given, size_t n_prompt, size_t *most, char err[512])
{
    *most = given != SIZE_MAX ? given : c->max_new_tokens;
    if (*most != SIZE_MAX || c->max_length == SIZE_MAX)
        return 0;
    if (n_prompt >= c->max_length)
        return fail(err,
                    "the prompt has %zu tokens, but generation_config.json ends prompt and answer at max_length %zu: "
                    "give -n",
                    n_prompt, c->max_length);
    *most = c->max_length - n_prompt;
    return 0;
}

bool sampling_is_end(const SamplingSettings *c, int id)
{
    for (size_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

Sampler sampling_open(const Session *s, const SampleOptions *o)
{
    Sampler sampler;
    char err[512];
    size_t vocab = s->model.config.vocab_size, known = s->tokenizer ? tokenizer_size(s->tokenizer) : vocab;
    die_if(sampler_init(&sampler, o, vocab, MIN(known, vocab), err), err);
    return sampler;
}
