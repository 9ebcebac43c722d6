/* Logits -> the next token. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "base/base.h"

/* How to choose. Steps in the reference's order: repeat penalty, temperature, top-k, top-p, min-p, then a draw. */
typedef struct {
    bool greedy;          /* the highest logit, the lowest id among equals */
    float temperature;    /* 0: greedy */
    size_t top_k;         /* 0: off */
    float top_p;          /* [0, 1]; 1: off. 0 keeps the best one */
    float min_p;          /* [0, 1]; 0: off */
    float repeat_penalty; /* > 0; 1: off. Each id of prompt and answer once: logits > 0 divided, others multiplied */
    uint64_t seed;
} SampleOptions;

int sample_options_check(const SampleOptions *o, char err[512]); /* ranges; the sentence names the option */

/* An id that may be chosen, and how likely it is: the likeliest weighs 1. */
typedef struct {
    float weight;
    int id;
} Candidate;

typedef struct {
    SampleOptions options;
    uint64_t state[4];     /* xoshiro256**, seeded by splitmix64: the same numbers on every machine */
    size_t vocab;          /* rows of the head */
    size_t usable;         /* ids the tokenizer knows; those from here on are never chosen */
    unsigned char *seen;   /* [vocab], 1: the id has occurred */
    Candidate *candidates; /* [usable], and some scratch behind them */
} Sampler;

int sampler_init(Sampler *s, const SampleOptions *options, size_t vocab, size_t usable, char err[512]);
void sampler_free(Sampler *s);
void sampler_reset(Sampler *s);             /* seed and seen as at the start */
void sampler_accept(Sampler *s, int token); /* the id is part of the context from now on */
/* Chooses from logits [vocab], which are overwritten. -1 and a sentence if a usable one is NaN or infinite, or all are
 * -infinity. */
int sampler_next(Sampler *s, float *logits, char err[512]);
/* Everything before the draw, not greedy: candidates[0..*n) are what is left, in order of ids. */
int sampler_candidates(Sampler *s, float *logits, size_t *n, char err[512]);

#endif
