/* One sequence on its way from a prompt to the end of its answer: what has been read and chosen, the text as it comes,
 * and what ends it. batch.h runs them, one or several at a time.
 */
#ifndef GENERATE_GENERATION_H
#define GENERATE_GENERATION_H

#include "generate/draft.h"
#include "generate/sample.h"
#include "generate/stops.h"
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
    double max_seconds;       /* from the start on; 0: no limit */
    const char *const *stops; /* texts that end the answer and are not part of it */
    size_t n_stops;
    const int *eos_ids; /* tokens that end the answer, unless ignore_eos */
    size_t n_eos;
    bool ignore_eos;
    Drafter *drafter;                /* NULL: no drafts */
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
    size_t steps;                   /* of the model, for all tokens after the first */
    size_t proposed, accepted;      /* tokens of drafts */
} Generated;
void generated_free(Generated *g);

typedef struct {
    const GenerateOptions *options;
    const Tokenizer *tokenizer; /* NULL: there is no text */
    Sampler *sampler;
    KvCache *cache;         /* has the first cache->pos tokens; in the end all but the last one chosen */
    IdList tokens;          /* the prompt, then the answer */
    size_t n_prompt, begin; /* begin: tokens of the prompt that the cache had at the start */
    Draft draft;
    Stops stops;
    Text joined;         /* the bytes of the answer's tokens */
    size_t sent;         /* how many of the bytes were passed on */
    double start, first; /* when it started, and when the first token was chosen */
    bool ended;          /* out->reason says why, unless it failed */
    bool failed;         /* err says why */
    Generated *out;      /* of the caller */
    char err[512];
} Generation;

/* Start from a prompt, of which `cache` may hold a beginning already. What is given must outlive g; *out grows as tokens
 * are chosen. -1 and a sentence on failure; generation_free() and generated_free() in any case. */
int generation_start(Generation *g, const Model *m, KvCache *cache, Sampler *sampler, const Tokenizer *t,
                     const int *prompt, size_t n_prompt, const GenerateOptions *o, Generated *out, char err[512]);
void generation_free(Generation *g);

/* Whether another step is wanted. If the answer was interrupted, its time is over or the context is full, it ends
 * here. */
bool generation_goes_on(Generation *g);
/* Tokens that the cache doesn't hold yet; 1 once the prompt was read. */
size_t generation_pending(const Generation *g);
/* Take what a step has computed for this sequence: if the piece has logits, choose tokens by them, as long as they are
 * those that were proposed. After the last token it has ended. */
void generation_take(Generation *g, const Piece *piece, size_t vocab);
/* Pass on the rest of the text. */
void generation_finish(Generation *g);

#endif
