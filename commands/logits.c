/* run logits: the most likely next tokens, or the logits of every position as a file. */
#include "base/file.h"
#include "commands/likelihood.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"
#include "kernels/vector.h"

#include <stdlib.h>

/* Print logit, probability and a bar for each, as wide as the terminal. */
static void print_table(const Session *s, const Ranked *best, size_t count)
{
    int width = terminal_width(stdout), token_columns = width < 70 ? 14 : 24;
    int room = MAX(MIN(width - token_columns - 36, 40), 4);
    const char *on = use_color(stdout) ? "\033[36m" : "", *off = use_color(stdout) ? "\033[0m" : "";
    printf("%8s  %-*s %9s %9s\n", "id", token_columns, "token", "logit", "prob");
    for (size_t i = 0; i < count; i++) {
        printf("%8d  ", best[i].id);
        print_token(s->tokenizer, best[i].id, token_columns);
        printf(" %9.4f %8.3f%%", (double)best[i].logit, 100 * best[i].probability);
        int bar = (int)(best[i].probability * room + 0.5);
        if (bar)
            printf("  %s%.*s%s", on, bar, "########################################", off);
        putchar('\n');
    }
}

static void write_json(const Session *s, const Ranked *best, size_t count, size_t position)
{
    printf("{\"position\":%zu,\"top\":[", position);
    for (size_t i = 0; i < count; i++) {
        printf("%s{\"id\":%d", i ? "," : "", best[i].id);
        write_token(",\"token\":", s->tokenizer, best[i].id);
        write_number(",\"logit\":", (double)best[i].logit);
        write_number(",\"prob\":", best[i].probability);
        putchar('}');
    }
    printf("]}\n");
}

/* Write the logits of every position, [n][vocab], as float32, least significant byte first. */
static void write_all(Session *s, const IdList *prompt, const char *path)
{
    OutFile out;
    size_t vocab = s->model.config.vocab_size, block = s->state.block;
    bool bad = false; /* warned of the first position whose logits are not finite */
    char err[512];
    die_if(model_out_open(&s->checkpoint, &out, path, common.force, err), err);
    for (size_t done = 0; done < prompt->count;) {
        size_t step = MIN(prompt->count - done, block);
        const float *logits = session_forward(s, prompt->items + done, step);
        for (size_t t = 0; t < step && !bad; t++) {
            argmax_f32(logits + t * vocab, vocab, &bad);
            if (bad)
                warn("the logits at position %zu are not finite: NaN or infinity in the weights?", done + t);
        }
        if (fwrite(logits, sizeof *logits, step * vocab, out.stream) < step * vocab)
            break; /* out_commit() tells why */
        done += step;
        progress("writing logits", done, prompt->count);
    }
    progress_end();
    die_if(out_commit(&out, err), err);
}

static void print_best(Session *s, const IdList *prompt, size_t top)
{
    size_t vocab = s->model.config.vocab_size, count = MIN(top, vocab);
    const float *logits = session_forward(s, prompt->items, prompt->count);
    Ranked *best = xmalloc(vocab * sizeof *best);
    if (rank_logits(logits, vocab, count, best))
        die(EXIT_FAILED, "the logits at position %zu are not finite: NaN or infinity in the weights?",
            prompt->count - 1);
    if (common.json)
        write_json(s, best, count, prompt->count - 1);
    else
        print_table(s, best, count);
    free(best);
}

int cmd_logits(int argc, char **argv)
{
    Prompt from = {0};
    const char *path = NULL;
    size_t top = 10;
    bool all = false;
    const Option options[] = {
        {0, "top", "N", OPTION_COUNT, &top, "list the N most likely tokens (default 10)"},
        PROMPT_OPTIONS(from),
        {0, "all", NULL, OPTION_FLAG, &all, "write the logits of every position to --out"},
        {0, "out", "FILE", OPTION_TEXT, &path,
         "of --all: float32, little-endian, [position][vocabulary]; - is standard output"},
        FORCE_OPTION,
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run logits \"The capital of France is\"\n"
                              "run logits --ids 16,11,220 --top 3 --json\n"
                              "run logits --ids 16,11,220 --all --out logits.f32\n");
    if (all != (path != NULL))
        usage_error("--all and --out FILE need each other");
    if (all && common.json)
        usage_error("give --all or --json, not both");
    if (all && from.file && file_same(path, from.file))
        die(EXIT_FAILED, "%s is the same file as the input %s", path, from.file);
    input_prompt(&from, count ? argv[1] : NULL);

    Session s;
    session_open(&s, !from.ids, all ? ALL_LOGITS : 1);
    IdList prompt = session_prompt(&s, &from);
    text_free(&from.text);
    if (all)
        write_all(&s, &prompt, path);
    else
        print_best(&s, &prompt, top);
    id_list_free(&prompt);
    session_close(&s);
    return finish(EXIT_OK);
}
