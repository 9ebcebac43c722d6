#include "commands/drafts.h"

#include <string.h>

#include "base/cpu.h"
#include "checkpoint/weights.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/terminal.h"

/* Load weights of d->model, if they fit into memory beside what is there. */
static void load(Drafts *d, SafetensorsFile *st, WeightMode mode)
{
    uint64_t need = weights_copy_bytes(&d->model.config, mode), room = cpu_memory_available();
    char err[512], a[32], b[32];
    if (need != UINT64_MAX && need >= room)
        die(EXIT_FAILED, "--draft: a copy of the weights in %s needs %s, but only %s of memory is free",
            weights_mode_name(mode), human_bytes(need, a), human_bytes(room, b));
    die_if(weights_load(st, &d->model.config, mode, &d->model.weights, err), err);
}

/* The model itself, with quantized weights: it reads the session's keys and values. */
static void open_same(Drafts *d, Session *s, WeightMode mode)
{
    char err[512];
    die_if(checkpoint_read_config(&s->checkpoint, &d->model.config, err), err);
    load(d, &s->checkpoint.st, mode);
    d->drafter = (Drafter){.model = &d->model, .state = &s->state, .same_cache = true};
}

/* Die unless the ids of the folder's tokenizer mean the same as the session's. */
static void check_tokenizer(const Session *s, const char *folder)
{
    char err[512];
    if (!s->tokenizer)
        return;
    Tokenizer *other = tokenizer_open(folder, err);
    die_if(!other, err);
    size_t n = tokenizer_size(s->tokenizer), length, other_length;
    bool same = tokenizer_size(other) == n;
    for (size_t i = 0; i < n && same; i++) {
        const char *a = tokenizer_piece(s->tokenizer, (int)i, &length);
        const char *b = tokenizer_piece(other, (int)i, &other_length);
        same = text_same(a, length, b, other_length);
    }
    if (!same)
        die(EXIT_FAILED, "--draft: %s has another tokenizer: its ids mean other tokens", folder);
    tokenizer_close(other);
}

static void open_other(Drafts *d, Session *s, const char *what)
{
    char err[512];
    model_open(&d->checkpoint, what);
    die_if(checkpoint_read_config(&d->checkpoint, &d->model.config, err), err);
    check_tokenizer(s, d->checkpoint.directory);
    load(d, &d->checkpoint.st, s->model.weights.mode);
    size_t ctx = s->state.cache.ctx, block = s->state.block;
    die_if(run_state_init(&d->state, &d->model.config, s->state.cache.type, ctx, block, s->state.most_logits, err), err);
    d->drafter = (Drafter){.model = &d->model, .state = &d->state};
}

Drafter *drafts_open(Drafts *d, Session *s, const char *what)
{
    *d = (Drafts){0};
    if (!what)
        return NULL;
    if (!strcmp(what, "q8"))
        open_same(d, s, MODE_Q8);
    else if (!strcmp(what, "q4"))
        open_same(d, s, MODE_Q4);
    else if (strcmp(what, "lookup") != 0)
        open_other(d, s, what);
    return &d->drafter;
}

void drafts_close(Drafts *d)
{
    if (d->state.x)
        run_state_free(&d->state);
    weights_free(&d->model.weights);
    config_free(&d->model.config);
    checkpoint_close(&d->checkpoint);
}
