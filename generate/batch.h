/* Steps of the model that several sequences share: their weights are read once for all. */
#ifndef GENERATE_BATCH_H
#define GENERATE_BATCH_H

#include "generate/generation.h"

/* Compute one step for those of the n sequences that go on (generation_goes_on() was true): for each a token and the
 * drafts of those that may follow, or some of its prompt. Prompts are read in blocks; while others wait for their next
 * token, in short ones. The state must have room for the logits of n tokens, with a drafter of more. A sequence that
 * fails has failed alone; -1 and a sentence if there is no memory for the step. */
int batch_step(Model *m, RunState *s, Generation *const *sequences, size_t n, Drafter *drafter, char err[512]);

#endif
