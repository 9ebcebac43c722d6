/* Logits -> the next token, stop rules, and the generation loop that calls back with text. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "net.h"
#include "tokenizer.h"

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

/* Fills in the reference's defaults, then what generation_config.json's text says (NULL: greedy). eos_ids: [16]. */
int sample_options_parse(SampleOptions *o, int *eos_ids, size_t *n_eos, const char *text, size_t length,
                         const char *name, char err[512]);
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

typedef enum { FINISH_END, FINISH_LENGTH, FINISH_STOP, FINISH_CONTEXT, FINISH_TIME, FINISH_INTERRUPTED } FinishReason;
const char *finish_reason_name(FinishReason r); /* "end", "length", "stop", "context", "time", "interrupted" */

typedef struct {
    size_t max_tokens;        /* SIZE_MAX: until an end token or the context is full */
    double max_seconds;       /* 0: no limit */
    const char *const *stops; /* texts that end the answer and are not part of it */
    size_t n_stops;
    const int *eos_ids;
    size_t n_eos;
    bool ignore_eos;
    const volatile int *interrupted; /* set by a signal handler; may be NULL */
    /* Text of the answer as it comes, whole characters only, held back while it may begin a stop text; may be NULL.
     * Returns 0 to go on, else generation stops (FINISH_INTERRUPTED). */
    int (*on_text)(void *context, const char *bytes, size_t length);
    /* After each prefill block: tokens done of total. May be NULL. */
    void (*on_prefill)(void *context, size_t done, size_t total);
    void *context;
} GenerateOptions;

typedef struct {
    IdList ids; /* new tokens, the end token included */
    Text text;  /* their text without special tokens and without the stop text */
    FinishReason reason;
    double prompt_seconds, seconds; /* prefill; the tokens after the first */
} Generated;
void generated_free(Generated *g);

/* Feeds prompt ids (those beyond s->pos are new) in blocks, then samples until something ends it. tokenizer may be NULL
 * (no text). Afterwards the cache holds every token but the last one chosen. max_seconds count from the call on. */
int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512]);

#endif
