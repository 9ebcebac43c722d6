/* run explain: follows the last token of a prompt through the network, a line for each step: the tensor, where its
 * bytes are, its shape, and what comes out. After each layer, the next token that the model would choose if it ended
 * there. */
#include "commands/likelihood.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"
#include "kernels/vector.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUESSES = 3, JSON_VALUES = 8 };

typedef struct {
    Session *s;
    const SafetensorsFile *file; /* of the line before */
    float *logits;               /* [vocab], scratch */
    Ranked *best;                /* [vocab], scratch */
    int layer;                   /* of the line before */
    size_t positions;            /* that attention looks back over */
    size_t values;               /* shown in a line */
    bool narrow;                 /* a step takes several lines */
    const char *between;         /* what JSON has before the next step */
} Explainer;

static double norm_of(const float *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

/* Byte of the file where the tensor starts. */
static uint64_t byte_of(const SafetensorsTensor *t)
{
    return 8 + t->file->header_len + t->offset;
}

/* ---- as a table -------------------------------------------------------------------------------------------------- */

/* Print the first `count` of e->best; 0: the logits are not finite. */
static void print_guess(const Explainer *e, const char *label, size_t count)
{
    printf(e->narrow ? "  %s" : "  %-24s", label);
    for (size_t i = 0; i < count; i++) {
        fputs(e->narrow ? "\n     " : " ", stdout);
        print_token(e->s->tokenizer, e->best[i].id, e->narrow ? 24 : 0);
        printf(" %.1f%%", 100 * e->best[i].probability);
    }
    puts(count ? "" : " not a finite number");
}

static void print_step(Explainer *e, int layer, const char *step, const SafetensorsTensor *t, const float *values,
                       size_t n)
{
    char label[64], shape[SHAPE_TEXT], at[24] = "-";
    bool has_bias = text_ends_with(step, "q_proj") || text_ends_with(step, "k_proj") || text_ends_with(step, "v_proj");
    bool is_added = text_ends_with(step, "o_proj") || text_ends_with(step, "down_proj");
    snprintf(label, sizeof label, "%s%s%s", step, has_bias ? " +bias" : "", is_added ? " (added)" : "");
    if (t && t->file != e->file && e->s->checkpoint.st.n_shards) {
        printf("in ");
        print_name(t->file->path);
        printf(":\n");
    }
    if (layer != e->layer && layer >= 0)
        printf("layer %d\n", layer);
    e->layer = layer;
    if (t) {
        e->file = t->file;
        snprintf(at, sizeof at, "%" PRIu64, byte_of(t));
        shape_text(t->shape, t->rank, shape);
    } else {
        snprintf(shape, sizeof shape, "%zu key%s", e->positions, plural(e->positions));
    }
    if (e->narrow) /* the name has a line of its own */
        printf("%s%s\n%13s %-13s%9.4g\n    ", layer < 0 ? "" : "  ", label, at, shape, norm_of(values, n));
    else
        printf("%s%-*s%11s %-13s%9.4g", layer < 0 ? "" : "  ", layer < 0 ? 26 : 24, label, at, shape,
               norm_of(values, n));
    for (size_t i = 0; i < MIN(n, e->values); i++)
        printf(" %8.3g", (double)values[i]);
    putchar('\n');
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static void write_guess(const Explainer *e, size_t count)
{
    printf(",\"next\":[");
    for (size_t i = 0; i < count; i++) {
        printf("%s{\"id\":%d", i ? "," : "", e->best[i].id);
        write_token(",\"token\":", e->s->tokenizer, e->best[i].id);
        write_number(",\"prob\":", e->best[i].probability);
        putchar('}');
    }
    putchar(']');
}

static void write_step(int layer, const char *step, const SafetensorsTensor *t, const float *values, size_t n)
{
    printf("{\"layer\":");
    printf(layer < 0 ? "null" : "%d", layer);
    printf(",\"step\":\"%s\",\"tensor\":", step);
    if (t) {
        json_write_string(stdout, t->name, t->name_length);
        write_name(",\"file\":", t->file->path);
        printf(",\"byte\":%" PRIu64 ",\"dtype\":\"%s\",\"shape\":", byte_of(t), dtype_name(t->dtype));
        shape_print(stdout, t->shape, t->rank);
    } else {
        printf("null");
    }
    printf(",\"n\":%zu", n);
    write_number(",\"norm\":", norm_of(values, n));
    printf(",\"values\":[");
    for (size_t i = 0; i < n && i < JSON_VALUES; i++)
        write_number(i ? "," : "", (double)values[i]);
    putchar(']');
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* Print a step. tensor: its name, or NULL; guess: logits from which to tell the next token, or NULL. */
static void tell(Explainer *e, int layer, const char *step, const char *tensor, const float *values, size_t n,
                 const float *guess)
{
    SafetensorsFile *st = &e->s->checkpoint.st;
    SafetensorsTensor found, *t = tensor && !safetensors_find_weight(st, tensor, &found) ? &found : NULL;
    size_t vocab = e->s->model.config.vocab_size, count = MIN(vocab, GUESSES);
    if (guess && rank_logits(guess, vocab, count, e->best) != 0)
        count = 0;
    if (common.json) {
        fputs(e->between, stdout);
        e->between = ",\n";
        write_step(layer, step, t, values, n);
        if (guess)
            write_guess(e, count);
        putchar('}');
    } else {
        print_step(e, layer, step, t, values, n);
        if (guess)
            print_guess(e, layer < 0 ? "the next token:" : "next, if it ended here:", count);
    }
}

static void on_step(void *context, int layer, const char *step, const float *values, size_t n)
{
    Explainer *e = context;
    char tensor[128];
    if (layer < 0)
        snprintf(tensor, sizeof tensor, "model.%s.weight", step);
    else
        snprintf(tensor, sizeof tensor, "model.layers.%d.%s.weight", layer, step);
    bool ends_layer = layer >= 0 && !strcmp(step, "mlp.down_proj");
    if (ends_layer)
        net_head(&e->s->model, &e->s->state, values, e->logits);
    tell(e, layer, step, strcmp(step, "attention") ? tensor : NULL, values, n, ends_layer ? e->logits : NULL);
}

static void tell_end(Explainer *e, const float *logits)
{
    Session *s = e->s;
    const Config *c = &s->model.config;
    rmsnorm(s->state.xb, s->state.x, s->model.weights.norm, c->dim, c->rms_norm_eps);
    tell(e, -1, "norm", "model.norm.weight", s->state.xb, c->dim, NULL);
    tell(e, -1, c->tie_word_embeddings ? "embed_tokens, as head" : "lm_head",
         c->tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", logits, c->vocab_size, logits);
}

static void explain(Session *s, const IdList *prompt)
{
    const Config *c = &s->model.config;
    size_t last = prompt->count - 1;
    bool narrow = terminal_is_narrow();
    int room = (terminal_width(stdout) - (narrow ? 4 : 60)) / 9;
    Explainer e = {.s = s,
                   .layer = -1,
                   .logits = xmalloc(c->vocab_size * sizeof *e.logits),
                   .best = xmalloc(c->vocab_size * sizeof *e.best),
                   .positions = prompt->count,
                   .values = (size_t)MAX(MIN(room, 8), 2),
                   .narrow = narrow,
                   .between = ""};
    char err[512];
    die_if(kv_cache_reserve(&s->state.cache, prompt->count, err),
           err); /* nothing may fail once something was printed */
    session_forward(s, prompt->items, last);
    if (common.json) {
        write_ids("{\"prompt_ids\":", prompt->items, prompt->count);
        printf(",\"position\":%zu,\"steps\":[\n", last);
    } else {
        printf("token %zu of %zu: ", prompt->count, prompt->count);
        print_token(s->tokenizer, prompt->items[last], 0);
        printf(", id %d, at position %zu\n", prompt->items[last], last);
        if (!s->checkpoint.st.n_shards) {
            printf("weights in ");
            print_name(s->checkpoint.st.path);
            putchar('\n');
        }
        printf(narrow ? "\n%s\n%13s %-13s%9s\n    first values\n" : "\n%-26s%11s %-13s%9s first values\n", "step",
               "at byte", "shape", "norm");
    }
    s->state.observe = on_step;
    s->state.observe_context = &e;
    const float *logits = session_forward(s, prompt->items + last, 1);
    s->state.observe = NULL;
    tell_end(&e, logits);
    printf("%s", common.json ? "\n]}\n" : "");
    free(e.logits);
    free(e.best);
}

int cmd_explain(int argc, char **argv)
{
    Prompt from = {0};
    const Option options[] = {
        PROMPT_OPTIONS(from),
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run explain \"Once upon a\"\n"
                              "run explain --ids 16,11,220,17,11 --json\n");
    input_prompt(&from, count ? argv[1] : NULL);

    Session s;
    session_open(&s, !from.ids, 1);
    IdList prompt = session_prompt(&s, &from);
    text_free(&from.text);
    explain(&s, &prompt);
    id_list_free(&prompt);
    session_close(&s);
    return finish(EXIT_OK);
}
