/* generation_config.json: how the model's makers recommend to choose tokens. */
#ifndef GENERATE_CONFIG_H
#define GENERATE_CONFIG_H

#include "generate/sample.h"

typedef struct {
    SampleOptions sampling;
    int eos_ids[16]; /* tokens that end an answer */
    size_t n_eos;
} GenerationConfig;

/* The reference's defaults, then what the file's text says (NULL: there is none; greedy). name is what messages call it.
 * -1 and a sentence if a value is of the wrong kind or out of range. */
int generation_config_parse(GenerationConfig *c, const char *text, size_t length, const char *name, char err[512]);

#endif
