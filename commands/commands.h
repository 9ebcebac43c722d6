/* The table of commands: run.c holds it and calls the one that was named. Each command is in the file of its name. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include "base/base.h"

typedef struct {
    const char *name;
    const char *arguments; /* positional ones: "[PROMPT]" */
    int least, most;       /* how many of them */
    bool runs_model;       /* takes the common options */
    const char *summary;   /* one line for `run --help` */
    int (*main)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
} Command;

extern const Command *this_command; /* the one that runs; NULL until main() has found it */

int cmd_info(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_edit(int argc, char **argv);
int cmd_split(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_json(int argc, char **argv);
int cmd_hash(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
