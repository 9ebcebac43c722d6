/* generation_config.json: how the model's makers recommend to choose tokens, and which tokens end an answer. */
#ifndef GENERATE_CONFIG_H
#define GENERATE_CONFIG_H

#include "generate/sample.h"

typedef struct {
    SampleOptions sampling;
    int eos_ids[16]; /* tokens that end an answer */
    size_t n_eos;
    size_t max_new_tokens, max_length; /* of the answer; of prompt and answer, unless the other is given. SIZE_MAX: none */
    double max_time;                   /* seconds; 0: none */
} GenerationConfig;

/* Start from the reference's defaults and take over what the text of the file says; text is NULL if there is no file.
 * `name` is the name of the file for messages. -1 and a sentence if a value is of the wrong kind or out of range. */
int generation_config_parse(GenerationConfig *c, const char *text, size_t length, const char *name, char err[512]);

#endif
