/* What `run generate` is asked for. */
#ifndef COMMANDS_GENERATE_H
#define COMMANDS_GENERATE_H

#include "base/base.h"
#include "commands/input.h"
#include "commands/options.h"
#include "commands/sampling.h"

typedef struct {
    Prompt from;
    const char *system;
    TextList stops;
    SamplingArguments sampling;
    const char *draft; /* or NULL */
    double max_seconds;
    size_t max_tokens;
    size_t parallel; /* with jsonl: most sequences in a step */
    bool ignore_eos, chat, no_echo, jsonl;
} GenerateArguments;

/* The ids of a conversation that begins with a user's message, in the chat template; system may be NULL. -1 and a
 * sentence on failure. */
int generate_chat_ids(Tokenizer *t, const char *system, const char *text, size_t length, IdList *ids, char err[512]);

/* Answer the requests on standard input, a line of JSON each, several at a time. `a` has what a request does not say.
 * Returns the exit code. */
int generate_lines(const GenerateArguments *a);

#endif
