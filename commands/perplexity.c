/* run perplexity: how well the model predicts a text.
 *
 * The surprise of a token is -log p(token | those before it), in nats; nll is the mean over all tokens but the first of
 * each window, and perplexity is exp(nll): as if the model chose among that many equally likely tokens. */
#include "base/threads.h"
#include "commands/likelihood.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"
#include "kernels/elementary.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    const float *logits; /* [n][vocab] */
    const int *next;     /* [n] the ids that follow */
    size_t vocab;
    double *surprise; /* [n] computed from these; -1: the logits are not finite */
} Block;

static void score_tokens(void *context, size_t begin, size_t end, int thread)
{
    const Block *b = context;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *logits = b->logits + t * b->vocab;
        float largest;
        double log_sum;
        bool bad = log_sum_exp(logits, b->vocab, &largest, &log_sum);
        b->surprise[t] = bad ? -1 : log_sum - ((double)logits[b->next[t]] - (double)largest);
    }
}

/* Compute surprise[ids], -1 for the first token of a window, which is not predicted. Returns the sum of the others. */
static double score_text(Session *s, const IdList *ids, double *surprise)
{
    size_t window = s->state.cache.ctx, step;
    double sum = 0;
    for (size_t at = 0; at < ids->count; at += window) {
        size_t n = MIN(ids->count - at, window);
        session_check_ids(s, ids->items + at, n);
        kv_cache_rewind(&s->state.cache, 0);
        surprise[at] = -1;
        for (size_t i = at; i + 1 < at + n; i += step) {
            step = MIN(at + n - 1 - i, s->state.block);
            Block b = {session_forward(s, ids->items + i, step), ids->items + i + 1, s->model.config.vocab_size,
                       surprise + i + 1};
            threads_for(step, 1, score_tokens, &b);
            for (size_t t = 0; t < step; t++) {
                if (b.surprise[t] < 0)
                    die(EXIT_FAILED, "the logits at position %zu are not finite: NaN or infinity in the weights?",
                        i + t);
                sum += b.surprise[t];
            }
            progress("scoring the text", i + step, ids->count);
        }
    }
    progress_end();
    if (window < 2)
        die(EXIT_FAILED, "--ctx must be at least 2: the first token of a window is not predicted");
    return sum;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static const struct {
    double below; /* nats */
    const char *color, *meaning;
} levels[] = {
    {0, "\033[2m", NULL}, /* not predicted */
    {0.7, "\033[32m", "more than 1 in 2"},
    {2.3, "\033[0m", "1 in 10"},
    {4.6, "\033[33m", "1 in 100"},
    {1e300, "\033[31m", "less"},
};

/* Print the text itself, each token in the color of its surprise. */
static void print_colored(const Session *s, const IdList *ids, const double *surprise)
{
    for (size_t i = 0; i < ids->count; i++) {
        size_t length, level = 0;
        const char *piece = tokenizer_piece(s->tokenizer, ids->items[i], &length);
        while (level + 1 < COUNT_OF(levels) && surprise[i] >= levels[level].below)
            level++;
        fputs(levels[level].color, stdout);
        print_text(stdout, piece, length);
        fputs("\033[0m", stdout);
    }
    printf("\n\n");
    for (size_t i = 1; i < COUNT_OF(levels); i++)
        printf("%s%s%s\033[0m", i > 1 ? "   " : "", levels[i].color, levels[i].meaning);
    printf("\n\n");
}

static void print_tokens(const Session *s, const IdList *ids, const double *surprise)
{
    if (s->tokenizer && use_color(stdout)) {
        print_colored(s, ids, surprise);
        return;
    }
    printf("surprise        id  token\n");
    for (size_t i = 0; i < ids->count; i++) {
        printf(surprise[i] < 0 ? "       -" : "%8.4f", surprise[i]);
        printf("  %8d  ", ids->items[i]);
        print_token(s->tokenizer, ids->items[i], 0);
        putchar('\n');
    }
    putchar('\n');
}

int cmd_perplexity(int argc, char **argv)
{
    const char *ids_text = NULL, *file = NULL;
    bool tokens = false;
    const Option options[] = {
        {'f', "file", "FILE", OPTION_TEXT, &file, "same as FILE"},
        {0, "ids", "1,2,3", OPTION_TEXT, &ids_text, "token ids instead of text; needs no tokenizer"},
        {0, "tokens", NULL, OPTION_FLAG, &tokens, "print each token's surprise, on a terminal as colors"},
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run perplexity book.txt --ctx 256\n"
                              "echo \"The sky is blue.\" | run perplexity --tokens\n"
                              "run perplexity --ids 16,11,220,17,11 --json\n");
    if (count + (file ? 1 : 0) + (ids_text ? 1 : 0) > 1)
        usage_error("give only one of FILE, --file and --ids");
    IdList ids = {0};
    Text text = {0};
    char err[512];
    if (ids_text)
        ids = input_ids(ids_text);
    else if (!input_text(&text, NULL, count ? argv[1] : file))
        usage_error("no text: name a FILE, or give it on standard input");

    Session s;
    session_open(&s, !ids_text, ALL_LOGITS);
    die_if(!ids_text && tokenizer_encode(s.tokenizer, text.bytes, text.length, true, &ids, err), err);
    text_free(&text);
    if (ids.count < 2)
        die(EXIT_FAILED, "the text has %zu token%s, but perplexity needs at least two", ids.count, plural(ids.count));

    double *surprise = xmalloc(ids.count * sizeof *surprise), sum = score_text(&s, &ids, surprise);
    size_t windows = (ids.count - 1) / s.state.cache.ctx + 1, predicted = ids.count - windows;
    double nll = sum / (double)predicted;
    if (common.json) {
        printf("{\"tokens\":%zu", predicted);
        write_number(",\"nll\":", nll);
        write_number(",\"perplexity\":", exp_f64(nll));
        printf(",\"windows\":%zu", windows);
        for (size_t i = 0; tokens && i < ids.count; i++)
            write_number(i ? "," : ",\"surprise\":[", surprise[i] < 0 ? (double)NAN : surprise[i]);
        printf("%s}\n", tokens ? "]" : "");
    } else {
        if (tokens)
            print_tokens(&s, &ids, surprise);
        printf("tokens      %zu\nnll         %.6f\nperplexity  %.4f\n", predicted, nll, exp_f64(nll));
        if (windows > 1)
            printf("windows     %zu of up to %zu tokens, each starting fresh\n", windows, s.state.cache.ctx);
    }
    free(surprise);
    id_list_free(&ids);
    session_close(&s);
    return finish(EXIT_OK);
}
