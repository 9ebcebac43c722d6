/* run bench: how fast a model runs on this machine. Prefill is limited by arithmetic, decoding by how fast the threads
 * can read the weights: so that is measured, too, over the same weights and in the same rounds. Each figure is the
 * median of the rounds. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "checkpoint/weights.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"
#include "kernels/vector.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

typedef struct {
    size_t prompt, tokens, depth, rounds;
    double first_token_ms, bandwidth, prefill, decode, decode_gb_s;
} Bench;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    if (x != y)
        return x < y ? -1 : 1;
    return 0;
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* The most memory that this process has used. */
static double peak_megabytes(void)
{
    struct rusage usage;
    char line[256];
    double kilobytes = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %lf", &kilobytes);
    if (f)
        fclose(f);
    if (kilobytes <= 0 && !getrusage(RUSAGE_SELF, &usage))
#ifdef __APPLE__
        kilobytes = (double)usage.ru_maxrss / 1024;
#else
        kilobytes = (double)usage.ru_maxrss;
#endif
    return kilobytes / 1024;
}

/* Pseudo-random ids, so that each token reads another row of the embedding. Fresh. */
static int *some_ids(size_t n, size_t vocab)
{
    int *ids = xmalloc(n * sizeof *ids);
    uint64_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int)((x >> 33) % vocab);
    }
    return ids;
}

/* Run n tokens from position pos on, `step` at a time, and return how many that were in a second. */
static double rate(Session *s, const int *ids, size_t n, size_t pos, size_t step)
{
    kv_cache_rewind(&s->state.cache, pos);
    double start = clock_seconds();
    for (size_t i = 0; i < n; i += step)
        session_forward(s, ids + i, step);
    return n ? (double)n / (clock_seconds() - start) : 0;
}

static void measure(Session *s, Bench *b)
{
    size_t longest = MAX(b->prompt, b->depth), warm_up = MIN(b->prompt, 64);
    int *ids = some_ids(longest + b->tokens, s->model.config.vocab_size);
    double *bandwidth = xcalloc(b->rounds, 3 * sizeof *bandwidth);
    double *prefill = bandwidth + b->rounds, *decode = prefill + b->rounds;
    rate(s, ids, warm_up, 0, warm_up);
    for (size_t r = 0; r < b->rounds; r++) {
        progress("measuring", r, b->rounds);
        bandwidth[r] = session_read_bandwidth(s, UINT64_MAX);
        prefill[r] = rate(s, ids, b->prompt, 0, b->prompt);
        rate(s, ids, b->depth, 0, b->depth); /* fills the cache */
        decode[r] = rate(s, ids + longest, b->tokens, b->depth, 1);
    }
    progress_end();
    b->bandwidth = median(bandwidth, b->rounds);
    b->prefill = median(prefill, b->rounds);
    b->decode = median(decode, b->rounds);
    uint64_t bytes = s->weight_bytes + session_cache_bytes(s, b->depth + b->tokens / 2);
    b->decode_gb_s = b->decode * (double)bytes / 1e9;
    free(bandwidth);
    free(ids);
}

/* Decoding's share of the bandwidth. NaN, which JSON writes as null, if that says nothing: the caches hold the weights,
 * or another process slowed one of the two measurements. */
static double share(const Session *s, const Bench *b)
{
    double share = b->tokens && b->bandwidth > 0 ? b->decode_gb_s / b->bandwidth : (double)NAN;
    return s->weight_bytes > BEYOND_CACHES && share <= 1 ? share : (double)NAN;
}

static void write_json(const Session *s, const Bench *b)
{
    write_number("{\"load_ms\":", 1e3 * s->load_seconds);
    write_number(",\"first_token_ms\":", b->first_token_ms);
    printf(",\"prefill\":{\"tokens\":%zu", b->prompt);
    write_number(",\"tok_s\":", b->prefill);
    printf("},\"decode\":{\"context\":%zu,\"tokens\":%zu", b->depth, b->tokens);
    write_number(",\"tok_s\":", b->decode);
    write_number(",\"gb_s\":", s->weight_bytes > BEYOND_CACHES && b->tokens ? b->decode_gb_s : (double)NAN);
    write_number(",\"bandwidth_share\":", share(s, b));
    write_number("},\"bandwidth_gb_s\":", s->weight_bytes > BEYOND_CACHES ? b->bandwidth : (double)NAN);
    write_number(",\"peak_rss_mb\":", peak_megabytes());
    printf(",\"weight_bytes\":%" PRIu64 ",\"rounds\":%zu,\"weights\":\"%s\",\"threads\":%d,\"isa\":\"%s\"}\n",
           s->weight_bytes, b->rounds, weights_mode_name(s->model.weights.mode), threads_count(),
           cpu_level_name(cpu_level()));
}

static void print_table(const Session *s, const Bench *b)
{
    printf("weights      %s, %.1f MB a token; %d thread%s, %s\n", weights_mode_name(s->model.weights.mode),
           (double)s->weight_bytes / 1e6, threads_count(), plural((uint64_t)threads_count()),
           cpu_level_name(cpu_level()));
    printf("load         %.0f ms; first token of a 4-token prompt after %.0f ms\n", 1e3 * s->load_seconds,
           b->first_token_ms);
    if (b->prompt)
        printf("prefill      %.1f tok/s over %zu tokens\n", b->prefill, b->prompt);
    if (b->tokens)
        printf("decode       %.1f tok/s over %zu tokens after %zu\n", b->decode, b->tokens, b->depth);
    if (s->weight_bytes <= BEYOND_CACHES)
        printf("bandwidth    not measured: the CPU's caches may hold these weights");
    else
        printf("bandwidth    %.1f GB/s: these threads reading these weights", b->bandwidth);
    if (share(s, b) >= 0)
        printf("; decoding reads %.1f GB/s, %.0f%%", b->decode_gb_s, 100 * share(s, b));
    else if (b->tokens && s->weight_bytes > BEYOND_CACHES)
        printf("; decoding's share of it not measured: another process disturbed it");
    printf("\npeak memory  %.0f MB\n", peak_megabytes());
}

/* Lengths that were not given become the usual ones, or what the context holds. */
static void settle_lengths(Bench *b, size_t ctx)
{
    if (b->prompt == SIZE_MAX)
        b->prompt = MIN(ctx, 512);
    if (b->tokens == SIZE_MAX)
        b->tokens = b->depth < ctx ? MIN(ctx - b->depth, 128) : 128;
    if (b->prompt > ctx)
        usage_error("-p %zu does not fit into the context of %zu", b->prompt, ctx);
    if (b->depth > ctx || b->tokens > ctx - b->depth)
        usage_error("-d %zu and -n %zu together do not fit into the context of %zu", b->depth, b->tokens, ctx);
}

int cmd_bench(int argc, char **argv)
{
    double start = clock_seconds();
    Bench b = {.prompt = SIZE_MAX, .tokens = SIZE_MAX, .rounds = 3};
    const Option options[] = {
        {'p', "prompt", "N", OPTION_SIZE, &b.prompt, "tokens of the prompt (default 512; 0: no prefill)"},
        {'n', "tokens", "N", OPTION_SIZE, &b.tokens, "tokens to generate (default 128; 0: none)"},
        {'d', "depth", "N", OPTION_SIZE, &b.depth, "tokens in the cache before that (default 0)"},
        {'r', "rounds", "N", OPTION_COUNT, &b.rounds, "number of rounds; medians are printed (default 3)"},
        JSON_OPTION,
        {0},
    };
    options_parse(argc, argv, options, NULL,
                  "run bench -w bf16\n"
                  "run bench -w q8 -t 1 -p 0 -n 64 -d 256 --json\n");

    Session s;
    session_open(&s, false, 1);
    settle_lengths(&b, s.state.cache.ctx);
    int *four = some_ids(4, s.model.config.vocab_size);
    const float *logits = session_forward(&s, four, MIN(s.state.cache.ctx, 4));
    argmax_f32(logits, s.model.config.vocab_size, NULL); /* choosing the token is part of its time */
    b.first_token_ms = 1e3 * (clock_seconds() - start);
    free(four);
    measure(&s, &b);
    if (common.json)
        write_json(&s, &b);
    else
        print_table(&s, &b);
    session_close(&s);
    return finish(EXIT_OK);
}
