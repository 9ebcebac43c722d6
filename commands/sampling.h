/* Sampling for generate and chat: options of the command line override generation_config.json. */
#ifndef SAMPLING_H
#define SAMPLING_H

#include "base/base.h"
#include "commands/session.h"
#include "generate/sample.h"

typedef struct {
    double temperature, top_p, min_p, repeat_penalty; /* -1: not given */
    size_t top_k;                                     /* SIZE_MAX: not given */
    uint64_t seed, random_seed;                       /* equal: not given */
    bool greedy;
} SamplingArguments;

/* Rows for a command's table of options. */
#define SAMPLING_OPTIONS(a)                                                                                           \
    {0, "temperature", "T", OPTION_NUMBER, &(a).temperature, "0 greedy; below 1 more predictable, above more varied"},\
    {0, "top-k", "K", OPTION_SIZE, &(a).top_k, "choose among the K most likely tokens (0: among all)"},               \
    {0, "top-p", "P", OPTION_NUMBER, &(a).top_p, "choose among the likeliest that together reach P"},                 \
    {0, "min-p", "P", OPTION_NUMBER, &(a).min_p, "drop tokens less than P times as likely as the first"},             \
    {0, "repeat-penalty", "R", OPTION_NUMBER, &(a).repeat_penalty, "above 1: make repetition less likely"},           \
    {0, "seed", "N", OPTION_U64, &(a).seed, "same seed, same text everywhere (default: random)"},                     \
    {0, "greedy", NULL, OPTION_FLAG, &(a).greedy, "always choose the most likely token"}

SamplingArguments sampling_arguments(void);      /* nothing given; a random seed */
void sampling_check(const SamplingArguments *a); /* values out of range are a usage error */
/* Put what is given over what is in o. -1 and a sentence if a value is out of range. */
int sampling_apply(const SamplingArguments *a, SampleOptions *o, char err[512]);
uint64_t sampling_random_seed(void);

typedef struct {
    SampleOptions sampling;
    int eos[17]; /* tokens that end an answer: generation_config.json's 16 and the end of a chat turn */
    size_t n_eos;
    size_t max_new_tokens, max_length; /* generation_config.json's; SIZE_MAX: none */
    double max_time;
} SamplingSettings;
/* chat: the end of a turn ends an answer, too. */
SamplingSettings sampling_settings(const Session *s, const SamplingArguments *a, bool chat);
/* The end of a chat turn ends an answer, too. */
void sampling_end_with_turn(SamplingSettings *c, const Session *s);
/* *most: how many tokens an answer to n_prompt tokens may have, which is what was given (SIZE_MAX: nothing), else by
 * generation_config.json. -1 and a sentence if that leaves no room for an answer. */
int sampling_max_tokens(const SamplingSettings *c, size_t given, size_t n_prompt, size_t *most, char err[512]);
bool sampling_is_end(const SamplingSettings *c, int id);
Sampler sampling_open(const Session *s, const SampleOptions *o); /* never chooses ids that the tokenizer doesn't know */

#endif
