/* What is said about an answer: the line of statistics, and JSON. */
#ifndef ANSWER_H
#define ANSWER_H

#include "base/base.h"
#include "commands/session.h"
#include "generate/generation.h"

/* Tokens and their rates, on standard error. */
void answer_print_statistics(const Session *s, const Generated *g, size_t n_prompt, const SampleOptions *o);
/* Print `before`, which ends with the name prompt_ids, and the rest of the object. */
void answer_write_json(const Session *s, const char *before, const Generated *g, const IdList *prompt, uint64_t seed);

#endif
