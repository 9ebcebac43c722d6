#include "commands/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/download.h"
#include "checkpoint/edit.h"
#include "checkpoint/locate.h"
#include "checkpoint/weights.h"
#include "checkpoint/writer.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/terminal.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The path of the model that was named, or of the default model. Fresh. */
static char *model_path(const char *model)
{
    char err[512];
    bool is_demo;
    if (model && !*model)
        usage_error("the model's path is empty");
    if (model)
        return xstrdup(model);
    char *path = locate_default(&is_demo, err);
    die_if(!path, err);
    if (is_demo)
        notice("using the demo model, %s; %s fetches Qwen2.5-0.5B-Instruct", path, download_command());
    return path;
}

void model_open(Checkpoint *c, const char *model)
{
    char err[512], *path = model_path(model);
    path_printable(path, mapped_name);
    die_if(checkpoint_open(c, path, common.no_mmap, err), err);
    free(path);
    if (edit_pending(c, err))
        warn("%s", err);
}

Tokenizer *model_tokenizer(void)
{
    char err[512], *path = model_path(common.model);
    bool is_file = file_exists(path) && !file_is_folder(path); /* a tokenizer.json by any name */
    if (!is_file || !text_ends_with(path, ".json") || text_ends_with(path, ".index.json")) {
        char *directory = locate_folder(path, err);
        die_if(!directory, err);
        free(path);
        path = directory;
    }
    Tokenizer *t = tokenizer_open(path, err);
    die_if(!t, err);
    free(path);
    return t;
}

void model_warn_of_tensors(Checkpoint *c, const Config *config)
{
    char sentence[512];
    if (weights_unused(&c->st, config, sentence))
        warn("%s", sentence);
    if (c->untied)
        warn("lm_head.weight differs from the embedding: it is the head, as in transformers, though config.json says "
             "tie_word_embeddings");
}

/* ---- its files --------------------------------------------------------------------------------------------------- */

void model_check_sizes(const Checkpoint *c)
{
    char err[512];
    die_if(checkpoint_check_sizes(c, err), err);
}

int model_out_open(const Checkpoint *c, OutFile *o, const char *path, bool replace, char err[512])
{
    if (writer_check_target(path, c, err) != 0)
        return -1;
    return out_open(o, path, replace, err);
}

uint64_t model_bytes(const Checkpoint *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++)
        bytes += checkpoint_tensor(c, i)->length;
    return bytes;
}

void model_print_written(const Checkpoint *c, const char *what, const char *path, size_t files)
{
    char text[32];
    uint64_t bytes = model_bytes(c);
    size_t n = checkpoint_tensor_count(c);
    if (common.json) {
        printf("{\"%s\":", what);
        write_name("", path);
        printf(",\"files\":%zu,\"tensors\":%zu,\"total_size\":%" PRIu64 "}\n", files, n, bytes);
    } else {
        print_name(path);
        printf(": %zu tensor%s, %s in %zu file%s\n", n, plural(n), human_bytes(bytes, text), files, plural(files));
    }
}

/* ---- its tensors ------------------------------------------------------------------------------------------------- */

bool name_matches(const char *pattern, const char *name, size_t length)
{
    const char *star = NULL; /* the last *; what follows it is being tried at name[star_i] */
    size_t i = 0, star_i = 0;
    if (!pattern)
        return true;
    while (i < length) {
        if (*pattern == '*') {
            star = pattern++;
            star_i = i;
        } else if (*pattern && (*pattern == '?' || *pattern == name[i])) {
            pattern++;
            i++;
        } else if (star) {
            pattern = star + 1;
            i = ++star_i;
        } else {
            return false;
        }
    }
    return !pattern[strspn(pattern, "*")];
}

SafetensorsTensor model_tensor(Checkpoint *c, const char *name)
{
    SafetensorsTensor t;
    const SafetensorsTensor *best = NULL;
    Nearest nearest = nearest_to(name, strlen(name));
    char shown[TEXT_PRINTABLE], wrong[TEXT_PRINTABLE];
    size_t found = 0;
    if (safetensors_find(&c->st, name, &t) == 0)
        return t;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *other = checkpoint_tensor(c, i);
        if (nearest_offer(&nearest, other->name, other->name_length))
            best = other;
        if (!name_matches(name, other->name, other->name_length))
            continue;
        found++;
        t = *other;
    }
    if (found == 1)
        return t;
    if (found > 1)
        die(EXIT_FAILED, "%s: %zu tensors match \"%s\"; name one of them (run info --find '%s' lists them)",
            c->argument, found, name, name);
    text_printable(name, strlen(name), wrong);
    if (!best)
        die(EXIT_FAILED, "%s: there is no tensor \"%s\"", c->argument, wrong);
    die(EXIT_FAILED, "%s: there is no tensor \"%s\"; did you mean \"%s\"?", c->argument, wrong,
        text_printable(best->name, best->name_length, shown));
}

uint64_t *model_slice_shape(const Slice *s)
{
    uint64_t *shape = xcalloc(slice_rank(s), sizeof *shape), *end = shape;
    for (size_t i = 0; i < s->tensor->rank; i++)
        if (!s->axes[i].dropped)
            *end++ = s->axes[i].count;
    return shape;
}

uint64_t model_slice_element(const Slice *s, uint64_t position)
{
    uint64_t element = 0, stride = 1;
    for (size_t i = s->tensor->rank; i-- > 0; stride *= s->tensor->shape[i]) {
        const SliceAxis *axis = &s->axes[i];
        element += (axis->start + position % axis->count * (uint64_t)axis->step) * stride;
        position /= axis->count;
    }
    return element;
}
