/* generation_config.json -> GenerationConfig. */
#include "generate/config.h"

#include <math.h>

#include "base/download.h"
#include "json.h"

static int lookup_float(const JsonLookup *f, const char *key, float *out)
{
    double number = (double)*out;
    if (json_lookup_number(f, key, -(double)INFINITY, (double)INFINITY, &number))
        return -1;
    *out = (float)number;
    return 0;
}

static int parse(const JsonLookup *f, GenerationConfig *c)
{
    SampleOptions *o = &c->sampling;
    bool sample = false;
    char err[512];
    if (f->object->type != JSON_OBJECT)
        return fail(f->err, "%s: must be a JSON object", f->file);
    if (json_lookup_bool(f, "do_sample", &sample) || json_lookup_size(f, "top_k", 0, SIZE_MAX, &o->top_k) ||
        lookup_float(f, "temperature", &o->temperature) || lookup_float(f, "top_p", &o->top_p) ||
        lookup_float(f, "min_p", &o->min_p) || lookup_float(f, "repetition_penalty", &o->repeat_penalty) ||
        json_lookup_ids(f, "eos_token_id", c->eos_ids, COUNT_OF(c->eos_ids), &c->n_eos) ||
        json_lookup_size(f, "max_new_tokens", 1, SIZE_MAX, &c->max_new_tokens) ||
        json_lookup_size(f, "max_length", 1, SIZE_MAX, &c->max_length) ||
        json_lookup_number(f, "max_time", 0, (double)INFINITY, &c->max_time))
        return -1;
    o->greedy = !sample || o->temperature == 0;
    if (sample_options_check(o, err))
        return fail(f->err, "%.200s: %.200s", f->file, err);
    if (o->temperature == 0) /* which is greedy; the other options then apply at temperature 1 */
        o->temperature = 1;
    return 0;
}

int generation_config_parse(GenerationConfig *c, const char *text, size_t length, const char *name, char err[512])
{
    char why[512];
    *c = (GenerationConfig){
        .sampling = {.greedy = true, .temperature = 1, .top_k = 50, .top_p = 1, .repeat_penalty = 1},
        .max_new_tokens = SIZE_MAX,
        .max_length = SIZE_MAX};
    if (!text)
        return 0;
    JsonValue *root = json_parse(text, length, why);
    if (!root)
        return download_fail(name, text, length, why, err);
    int status = parse(&(JsonLookup){root, name, err}, c);
    json_free(root);
    return status;
}
