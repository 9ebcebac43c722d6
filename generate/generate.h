/* From a prompt to an answer. */
#ifndef GENERATE_H
#define GENERATE_H

#include "generate/generation.h"

/* Feed the prompt to the network in blocks, except for the tokens that the state's cache holds already, and then choose
 * one token after the other until something ends the answer. Without a tokenizer (NULL) there is no text. Afterwards
 * the cache holds all tokens but the last one chosen. -1 and a sentence on failure; *out must be freed in any case. */
int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512]);

#endif
