/* run perplexity: how well the model expects a text.
 *
 * The surprise of a token is -log p(token | those before it), in nats; nll is the mean over all tokens but the first of
 * each window, and perplexity is exp(nll): as if the model chose among that many equally likely tokens. */
#include "base/threads.h"
#include "commands/common.h"
#include "kernels/elementary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Surprises of a block: logits [n][vocab] against the ids that follow. */
typedef struct {
    const float *logits;
    const int *next; /* [n] */
    size_t vocab;
    double *surprise; /* [n]; -1: not finite */
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

/* Surprise of ids[1..n) into surprise[1..n), the cache starting empty. */
static void score_window(Session *s, const int *ids, size_t n, size_t window_start, double *surprise)
{
    run_state_rewind(&s->state, 0);
    for (size_t done = 0; done + 1 < n;) {
        size_t step = n - 1 - done < s->state.block ? n - 1 - done : s->state.block;
        Block b = {session_forward(s, ids + done, step), ids + done + 1, s->model.config.vocab_size,
                   surprise + done + 1};
        threads_for(step, 1, score_tokens, &b);
        for (size_t t = 0; t < step; t++)
            if (b.surprise[t] < 0)
                die(EXIT_FAILED, "the logits at position %zu are not finite: NaN or infinity in the weights?",
                    window_start + done + t);
        done += step;
    }
}

typedef struct {
    double *surprise; /* [ids]; -1: the first of a window, which nothing predicts */
    double nll;       /* mean of the others */
    size_t predicted, windows;
} Score;

static Score score_text(Session *s, const IdList *ids)
{
    Score score = {.surprise = must(malloc(ids->count * sizeof(double)))};
    size_t window = s->state.ctx;
    double sum = 0;
    for (size_t at = 0; at < ids->count; at += window, score.windows++) {
        size_t n = ids->count - at < window ? ids->count - at : window;
        check_ids(s, ids->items + at, n);
        score.surprise[at] = -1;
        score_window(s, ids->items + at, n, at, score.surprise + at);
        for (size_t i = at + 1; i < at + n; i++)
            sum += score.surprise[i];
        score.predicted += n - 1;
        progress("scoring the text", at + n, ids->count);
    }
    progress_end();
    if (!score.predicted)
        die(EXIT_FAILED, "windows of %zu token predict nothing: --ctx must be 2 or more", window);
    score.nll = sum / (double)score.predicted;
    return score;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static const struct {
    double below; /* nats */
    const char *color, *meaning;
} levels[] = {
    {0.7, "\033[32m", "more than 1 in 2"},
    {2.3, "\033[0m", "1 in 10"},
    {4.6, "\033[33m", "1 in 100"},
    {1e300, "\033[31m", "less"},
};

static const char *color_of(double surprise)
{
    size_t i = 0;
    while (surprise >= levels[i].below)
        i++;
    return levels[i].color;
}

/* The text itself, each token in the colour of its surprise. */
static void print_colored(const Session *s, const IdList *ids, const double *surprise)
{
    for (size_t i = 0; i < ids->count; i++) {
        size_t length;
        const char *piece = tokenizer_piece(s->tokenizer, ids->items[i], &length);
        fputs(surprise[i] < 0 ? "\033[2m" : color_of(surprise[i]), stdout);
        print_text(stdout, piece, length);
        fputs("\033[0m", stdout);
    }
    printf("\n\n");
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        printf("%s%s%s\033[0m", i ? "   " : "", levels[i].color, levels[i].meaning);
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
        if (surprise[i] < 0)
            printf("       -");
        else
            printf("%8.4f", surprise[i]);
        printf("  %8d  ", ids->items[i]);
        print_token(stdout, s->tokenizer, ids->items[i], 0);
        putchar('\n');
    }
    putchar('\n');
}

static void write_json(const Score *score, size_t n, bool tokens)
{
    printf("{\"tokens\":%zu,\"nll\":", score->predicted);
    json_write_double(stdout, score->nll);
    printf(",\"perplexity\":");
    json_write_double(stdout, exp_f64(score->nll));
    printf(",\"windows\":%zu", score->windows);
    for (size_t i = 0; tokens && i < n; i++) {
        printf("%s", i ? "," : ",\"surprise\":[");
        json_write_double(stdout, score->surprise[i] < 0 ? (double)NAN : score->surprise[i]);
    }
    printf("%s}\n", tokens ? "]" : "");
}

int cmd_perplexity(int argc, char **argv)
{
    const char *ids_text = NULL, *file = NULL;
    bool tokens = false;
    const Option options[] = {
        {'f', "file", "FILE", OPTION_TEXT, &file, "the same as FILE"},
        {0, "ids", "1,2,3", OPTION_TEXT, &ids_text, "token ids instead of a text; works without a tokenizer"},
        {0, "tokens", NULL, OPTION_FLAG, &tokens, "each token's surprise; as colours on a terminal"},
        {0},
    };
    int count = options_parse(argc, argv, options, true, NULL,
                              "run perplexity book.txt --ctx 2048\n"
                              "echo \"The sky is blue.\" | run perplexity --tokens\n"
                              "run perplexity --ids 9707,11,1879,0 --json\n");
    arguments_at_most(count, 1, argv);
    if ((count > 0) + !!file + !!ids_text > 1)
        usage_error("FILE, --file and --ids: give one of them");
    IdList ids = {0};
    size_t length = 0;
    char *text = NULL, err[512];
    if (ids_text)
        ids.items = parse_ids(ids_text, &ids.count);
    else if (!(text = read_prompt(NULL, count ? argv[1] : file, &length)))
        usage_error("no text: name a FILE, or give one on standard input");

    Session s;
    session_open(&s, !ids_text, true);
    if (text && tokenizer_encode(s.tokenizer, text, length, true, &ids, err))
        die(EXIT_FAILED, "%s", err);
    free(text);
    if (ids.count < 2)
        die(EXIT_FAILED, "a text of %zu token%s predicts nothing: it takes two", ids.count, ids.count == 1 ? "" : "s");

    Score score = score_text(&s, &ids);
    if (common.json) {
        write_json(&score, ids.count, tokens);
    } else {
        if (tokens)
            print_tokens(&s, &ids, score.surprise);
        printf("tokens      %zu\nnll         %.6f\nperplexity  %.4f\n", score.predicted, score.nll, exp_f64(score.nll));
        if (score.windows > 1)
            printf("windows     %zu of up to %zu tokens, each starting fresh\n", score.windows, s.state.ctx);
    }
    free(score.surprise);
    id_list_free(&ids);
    session_close(&s);
    return finish(EXIT_OK);
}
