/* From a prompt to an answer: the loop around forward() and the sampler, what ends it, and the text as it comes. */
#ifndef GENERATE_H
#define GENERATE_H

#include "generate/sample.h"
#include "net.h"
#include "tokenizer.h"

/* What ended an answer. */
typedef enum {
    FINISH_END,        /* an end token was chosen */
    FINISH_LENGTH,     /* max_tokens were chosen */
    FINISH_STOP,       /* the text has come to a stop text */
    FINISH_CONTEXT,    /* the context is full */
    FINISH_TIME,       /* max_seconds are over */
    FINISH_INTERRUPTED /* *interrupted was set, or on_text wanted no more */
} FinishReason;
const char *finish_reason_name(FinishReason r); /* "end", "length", "stop", "context", "time", "interrupted" */

typedef struct {
    size_t max_tokens;        /* SIZE_MAX: no limit */
    double max_seconds;       /* from the call on; 0: no limit */
    const char *const *stops; /* texts that end the answer and are not part of it */
    size_t n_stops;
    const int *eos_ids; /* tokens that end the answer, unless ignore_eos */
    size_t n_eos;
    bool ignore_eos;
    const volatile int *interrupted; /* a signal handler may set it; may be NULL */
    /* Called with the text of the answer as it comes: whole characters only, and nothing that may turn out to be part
     * of a stop text. Generation stops if it returns anything but 0. May be NULL. */
    int (*on_text)(void *context, const char *bytes, size_t length);
    /* Called after each block of the prompt: `done` of `total` tokens are in the cache. May be NULL. */
    void (*on_prefill)(void *context, size_t done, size_t total);
    void *context;
} GenerateOptions;

typedef struct {
    IdList ids; /* the tokens that were chosen, the end token included */
    Text text;  /* their text, without special tokens and without the stop text */
    FinishReason reason;
    double prompt_seconds, seconds; /* for the prompt; for all tokens after the first */
} Generated;
void generated_free(Generated *g);

/* Feed the prompt to the network in blocks, except for the s->pos tokens that the cache holds already, and then choose
 * one token after the other until something ends the answer. Without a tokenizer (NULL) there is no text. Afterwards
 * the cache holds all tokens but the last one chosen. -1 and a sentence on failure; *out must be freed in any case. */
int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512]);

#endif
