#include "commands/answer.h"

#include "base/cpu.h"
#include "base/threads.h"
#include "checkpoint/weights.h"
#include "commands/output.h"
#include "commands/terminal.h"

#include <inttypes.h>
#include <math.h>

typedef struct {
    double prompt_rate, rate, gb_s; /* tokens/s, tokens/s after the first, GB/s of weights and cache; 0: unknown */
} Rates;

static Rates rates_of(const Session *s, const Generated *g, size_t n_prompt)
{
    Rates r = {0};
    if (g->prompt_seconds > 0)
        r.prompt_rate = (double)n_prompt / g->prompt_seconds;
    if (g->seconds > 0 && g->ids.count > 1) {
        uint64_t bytes = s->weight_bytes + session_cache_bytes(s, n_prompt + g->ids.count / 2);
        r.rate = (double)(g->ids.count - 1) / g->seconds;
        r.gb_s = (double)g->steps / g->seconds * (double)bytes / 1e9; /* a step may choose several tokens */
    }
    return r;
}

void answer_print_statistics(const Session *s, const Generated *g, size_t n_prompt, const SampleOptions *o)
{
    Rates r = rates_of(s, g, n_prompt);
    double bandwidth = r.rate > 0 && s->weight_bytes > BEYOND_CACHES ? session_read_bandwidth(s, 2 * BEYOND_CACHES) : 0;
    WeightMode mode = s->model.weights.mode;
    char drafts[96] = "", rate[128] = "", share[48] = "", prompt[32] = "", seed[32] = "";
    if (bandwidth > 0 && r.gb_s <= bandwidth && g->proposed == 0)
        snprintf(share, sizeof share, ", %.0f%% of the read bandwidth", 100 * r.gb_s / bandwidth);
    else if (g->proposed == 0) /* another process disturbed the measurement */
        snprintf(share, sizeof share, ", share of the read bandwidth not measured");
    if (r.rate > 0 && s->weight_bytes > BEYOND_CACHES)
        snprintf(rate, sizeof rate, ", %.1f tok/s (%.1f GB/s%s)", r.rate, r.gb_s, share);
    else if (r.rate > 0)
        snprintf(rate, sizeof rate, ", %.1f tok/s", r.rate);
    if (r.prompt_rate > 0)
        snprintf(prompt, sizeof prompt, ", %.1f tok/s", r.prompt_rate);
    if (!o->greedy)
        snprintf(seed, sizeof seed, "; seed %" PRIu64, o->seed);
    if (g->proposed > 0)
        snprintf(drafts, sizeof drafts, "; %zu of %zu proposed tokens were right, %.1f a step", g->accepted, g->proposed,
                 (double)(g->ids.count - 1) / (double)MAX(g->steps, 1));
    notice("%zu token%s%s%s; prompt %zu%s; load %.2f s; %s, %d thread%s, %s%s", g->ids.count, plural(g->ids.count), rate, drafts,
           n_prompt, prompt, s->load_seconds, weights_mode_name(mode), threads_count(),
           plural((uint64_t)threads_count()), cpu_level_name(cpu_level()), seed);
}

void answer_write_json(const Session *s, const char *before, const Generated *g, const IdList *prompt, uint64_t seed)
{
    Rates r = rates_of(s, g, prompt->count);
    write_ids(before, prompt->items, prompt->count);
    write_ids(",\"ids\":", g->ids.items, g->ids.count);
    if (s->tokenizer)
        write_string(",\"text\":", g->text.bytes, g->text.length);
    else
        printf(",\"text\":null");
    printf(",\"finish_reason\":\"%s\",\"stats\":{\"seed\":%" PRIu64 ",\"prompt_tokens\":%zu,\"tokens\":%zu",
           finish_reason_name(g->reason), seed, prompt->count, g->ids.count);
    printf(",\"proposed\":%zu,\"accepted\":%zu,\"steps\":%zu", g->proposed, g->accepted, g->steps);
    write_number(",\"prompt_s\":", g->prompt_seconds);
    write_number(",\"s\":", g->seconds);
    write_number(",\"tok_s\":", r.rate);
    write_number(",\"gb_s\":", s->weight_bytes > BEYOND_CACHES && r.rate > 0 ? r.gb_s : (double)NAN);
    write_number(",\"load_s\":", s->load_seconds);
    printf(",\"weights\":\"%s\",\"threads\":%d,\"isa\":\"%s\"}}\n", weights_mode_name(s->model.weights.mode),
           threads_count(), cpu_level_name(cpu_level()));
}
