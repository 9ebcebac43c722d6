/* Drafts: tokens that are proposed cheaply, so that one step of the model can verify several. Each proposal is compared
 * with what the model and the sampler choose at its position, and the first that differs ends the draft: the answer is
 * the same to the bit as without.
 */
#ifndef GENERATE_DRAFT_H
#define GENERATE_DRAFT_H

#include "base/hash.h"
#include "base/text.h"
#include "generate/sample.h"
#include "net.h"

#define DRAFT_MOST 15 /* tokens that are proposed at a time */

/* How long steps take, by measurement, to decide how many proposals are worth their time. */
typedef struct {
    double step[DRAFT_MOST + 2]; /* seconds of a step of so many tokens, smoothed; 0: not measured yet */
    double draft;                /* seconds that the draft model takes for a token; 0: n-grams */
} Pace;

/* What proposes; all sequences of a run share it. */
typedef struct {
    Model *model;    /* NULL: n-grams of the text, without a model */
    RunState *state; /* buffers for `model`; its cache is not used */
    /* model is the main model with quantized weights: it reads the main model's keys and values, and leaves its own
     * only where these are going to be overwritten. Otherwise each sequence has a second cache for it. */
    bool same_cache;
    size_t fixed; /* tokens to propose, whatever they cost; 0: as many as are worth their time */
    Pace pace;
} Drafter;

/* What one sequence needs to have its tokens proposed. */
typedef struct {
    KvCache cache;      /* of a draft model with a cache of its own */
    Sampler sampler;    /* draws with the random numbers that the verification will use */
    uint32_t *table;    /* hash table: behind which position four tokens were seen last */
    size_t table_size;  /* a power of two; 0: no table yet */
    HashKey table_key;
    size_t indexed;     /* tokens that were entered */
    float right;        /* recent share of proposals that were right */
    size_t most;        /* tokens to propose at a time: more while all are right */
    int proposal[DRAFT_MOST];
    size_t n; /* tokens proposed */
} Draft;

int draft_init(Draft *d, const Drafter *drafter, const Sampler *sampler, size_t ctx, char err[512]);
void draft_free(Draft *d);

/* Propose up to `most` tokens that followed when the last four tokens occurred before: d->n of them. -1: out of
 * memory. */
int draft_look_up(Draft *d, const IdList *tokens, size_t most);

/* How many proposals, up to `limit`, make the most tokens per second, when `sequences` of them share a step. */
size_t draft_length(const Drafter *drafter, const Draft *d, size_t sequences, size_t limit);
/* Note that a step of that many tokens took so long; a token of the draft model. */
void draft_measured(Pace *p, size_t tokens, double seconds);
void draft_measured_model(Pace *p, double seconds);
/* Note that of d->n proposals the first `accepted` were right. */
void draft_learn(Draft *d, size_t accepted);

#endif
