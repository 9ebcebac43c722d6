/* From a prompt to an answer: the loop around forward() and the sampler, what ends it, and text as it comes. */
#ifndef GENERATE_H
#define GENERATE_H

#include "generate/sample.h"
#include "net.h"
#include "tokenizer.h"

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
