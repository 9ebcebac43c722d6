/* Logits -> the next token. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "base/base.h"

/* How to choose. The steps are in the reference's order: repeat penalty, temperature, top-k, top-p, min-p, draw. */
typedef struct {
    bool greedy;          /* choose the highest logit, and the lowest id among equals */
    float temperature;    /* 0: greedy */
    size_t top_k;         /* 0: off */
    float top_p;          /* 0 to 1; 1: off; 0 leaves the likeliest one */
    float min_p;          /* 0 to 1; 0: off */
    float repeat_penalty; /* > 0; 1: off */
    uint64_t seed;
} SampleOptions;

/* -1 and a sentence that names the option if one is out of range. */
int sample_options_check(const SampleOptions *o, char err[512]);

/* An id that may be chosen, and how likely that is compared with the likeliest one, which weighs 1. */
typedef struct {
    float weight;
    int id;
} Candidate;

typedef struct {
    SampleOptions options;
    uint64_t state[4];     /* of the random numbers: xoshiro256**, the same on every machine */
    size_t vocab;          /* how many logits there are */
    size_t usable;         /* how many ids the tokenizer knows; those beyond are never chosen */
    unsigned char *seen;   /* [vocab], 1 if the id has occurred */
    Candidate *candidates; /* [usable], and behind them one for each block of logits */
} Sampler;

int sampler_init(Sampler *s, const SampleOptions *options, size_t vocab, size_t usable, char err[512]);
void sampler_free(Sampler *s);
void sampler_reset(Sampler *s);             /* go back to the seed and forget what has occurred */
void sampler_accept(Sampler *s, int token); /* the token occurs in the prompt or the answer */
/* Let `to`, of the same options, go on as `from` would: with the same random numbers, and what has occurred. */
void sampler_follow(Sampler *to, const Sampler *from);
/* Choose a token by its logits [vocab], which are overwritten. -1 and a sentence if one of them is NaN or infinite, or
 * if all are -infinity; those beyond `usable` don't matter. */
int sampler_next(Sampler *s, float *logits, char err[512]);
/* All steps but the draw, for options that are not greedy: candidates[0..*n) are what is left, in order of ids. */
int sampler_candidates(Sampler *s, float *logits, size_t *n, char err[512]);

#endif
