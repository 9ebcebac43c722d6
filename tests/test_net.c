/* net.c and checkpoint/config.c: config.json, rope frequencies to the bit, and the whole network on the demo model
 * against the reference's logits, with the same bits at every kernel level, thread count, block size and exact weight
 * mode. */
#include "base/base.h"

#include <math.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "kernels/vector.h"
#include "net.h"

#define DEMO "tests/demo"

static char *read_all(const char *path, size_t *length)
{
    char err[512];
    char *text = file_read(path, 1u << 28, length, err);
    if (!text) {
        printf("%s\n", err);
        exit(1);
    }
    return text;
}

/* ---- config.json ---- */

#define BASE                                                                                                           \
    "\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":8,\"num_hidden_layers\":3,"     \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":10"

static const struct {
    const char *more, *want; /* added to BASE; words of the refusal */
} refused[] = {
    {",\"architectures\":[\"LlamaForCausalLM\"]", "LlamaForCausalLM is not supported"},
    {",\"architectures\":[7]", "is not supported"},
    {",\"architectures\":null", "neither \"architectures\" nor \"model_type\""},
    {",\"quantization_config\":{\"quant_method\":\"gptq\"}", "the weights are quantized (gptq)"},
    {",\"quantization_config\":[]", "the weights are quantized (quantization_config)"},
    {",\"quantization\":{\"bits\":4}", "the weights are quantized (MLX)"},
    {",\"dual_chunk_attention_config\":{\"original_max_position_embeddings\":\"x\"}", "must be a whole number"},
    {",\"hidden_act\":\"gelu\"", "hidden_act"},
    {",\"hidden_size\":null", "\"hidden_size\" is missing"},
    {",\"hidden_size\":0", "from 1 to 2147483647"},
    {",\"hidden_size\":-4", "from 1 to"},
    {",\"hidden_size\":64.0", "from 1 to"},
    {",\"hidden_size\":\"64\"", "from 1 to"},
    {",\"hidden_size\":2147483648", "from 1 to"},
    {",\"num_hidden_layers\":1000000000", "from 1 to 65536"},
    {",\"num_attention_heads\":5", "do not divide 5 attention heads"},
    {",\"num_attention_heads\":6", "do not divide hidden_size 64"},
    {",\"head_dim\":15", "is odd"},
    {",\"head_dim\":2000000000", "too many"},
    {",\"rms_norm_eps\":\"x\"", "rms_norm_eps"},
    {",\"rms_norm_eps\":-1", "rms_norm_eps"},
    {",\"tie_word_embeddings\":1", "true or false"},
    {",\"eos_token_id\":[1,-2]", "eos_token_id"},
    {",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", "rope type \"dynamic\""},
    {",\"rope_scaling\":{\"type\":\"mrope\"}", "rope type \"mrope\""},
    {",\"rope_scaling\":{\"type\":\"linear\"}", "without a \"factor\""},
    {",\"rope_scaling\":7", "must be objects"},
    {",\"partial_rotary_factor\":0.5", "partial_rotary_factor"},
    {",\"layer_types\":[\"full_attention\"]", "must list 3 layers"},
    {",\"layer_types\":[\"full_attention\",\"full_attention\",\"linear_attention\"]", "type of layer 2"},
    {",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]", "no sliding window is in use"},
};

static int parse(Config *c, const char *more, char err[512])
{
    char text[2048];
    int n = snprintf(text, sizeof text, "{%s%s}", BASE, more);
    return config_parse(c, text, (size_t)n, "config.json", err);
}

static void test_config(void)
{
    Config c;
    char err[512];
    check(parse(&c, "", err) == 0, "%s", err);
    check(c.head_dim == 16 && c.q_dim == 64 && c.kv_dim == 32 && c.max_positions == 32768, "derived sizes");
    check(c.rope_theta == 10000 && !c.tie_word_embeddings && c.bos_token_id == -1 && c.n_eos == 0,
          "the reference's defaults");
    check(c.rms_norm_eps == 1e-6f && c.sliding_window == 0 && !c.layer_is_sliding[2], "the reference's defaults");
    config_free(&c);

    check(parse(&c,
                ",\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":1,\"eos_token_id\":[3,4],"
                "\"bos_token_id\":0",
                err) == 0,
          "%s", err);
    check(c.sliding_window == 7 && !c.layer_is_sliding[0] && c.layer_is_sliding[1] && c.layer_is_sliding[2],
          "windows from layer 1");
    check(c.n_eos == 2 && c.eos_token_ids[1] == 4 && c.bos_token_id == 0, "ids");
    config_free(&c);

    check(parse(&c,
                ",\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":[\"sliding_attention\",\"full_"
                "attention\","
                "\"full_attention\"]",
                err) == 0,
          "%s", err);
    check(c.layer_is_sliding[0] && !c.layer_is_sliding[1], "layer_types decide");
    config_free(&c);

    check(parse(&c, ",\"use_sliding_window\":true,\"sliding_window\":null,\"num_key_value_heads\":null", err) == 0,
          "%s", err);
    check(c.sliding_window == 0 && c.n_kv_heads == 4, "null window, null kv heads");
    config_free(&c);

    check(parse(&c,
                ",\"max_position_embeddings\":1010000,\"dual_chunk_attention_config\":{\"chunk_size\":262144,"
                "\"local_size\":8192,\"original_max_position_embeddings\":262144}",
                err) == 0 && c.max_positions == 262144, "%s", err);
    config_free(&c);
    check(parse(&c, ",\"architectures\":[\"Qwen2Model\"]", err) == 0, "%s", err);
    config_free(&c);

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        strcpy(err, "accepted");
        check(parse(&c, refused[i].more, err) == -1 && strstr(err, refused[i].want) && strstr(err, "config.json"),
              "%s: %s", refused[i].more, err);
    }
    check(config_parse(&c, "[]", 2, "x", err) == -1 && strstr(err, "not a JSON object"), "%s", err);
    check(config_parse(&c, "{", 1, "x", err) == -1 && strstr(err, "byte"), "%s", err);
}

/* ---- rope ---- */

static void test_rope(void)
{
    size_t length;
    char *text = read_all("tests/data/rope_bits.txt", &length), err[512];
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        char *tab = strchr(line, '\t'), *at = tab;
        Config c;
        check(tab && config_parse(&c, line, (size_t)(tab - line), "rope_bits.txt", err) == 0, "%s", err);
        float got[65], scale;
        rope_frequencies(&c, got, &scale);
        memmove(got + 1, got, c.head_dim / 2 * sizeof *got);
        got[0] = scale;
        for (size_t i = 0; i <= c.head_dim / 2; i++) {
            uint32_t want = (uint32_t)strtoul(at, &at, 16), have;
            memcpy(&have, &got[i], 4);
            check(have == want, "line %d, head_dim %zu, number %zu: %08x, the reference has %08x", lines + 1,
                  c.head_dim, i, have, want);
        }
        config_free(&c);
    }
    check(lines == 18, "%d lines", lines);
    free(text);
}

/* ---- the demo model ---- */

typedef struct {
    Checkpoint checkpoint;
    Model model;
} Demo;

static void demo_open(Demo *d, WeightMode mode)
{
    char err[512];
    *d = (Demo){0};
    if (checkpoint_open(&d->checkpoint, DEMO, false, err) ||
        checkpoint_read_config(&d->checkpoint, &d->model.config, err)) {
        printf("%s\n", err);
        exit(1);
    }
    d->model.weights.mode = mode;
    if (weights_load(&d->checkpoint.st, &d->model.config, d->model.weights.mode, &d->model.weights, err)) {
        printf("%s\n", d->checkpoint.st.error);
        exit(1);
    }
}

static void demo_close(Demo *d)
{
    weights_free(&d->model.weights);
    config_free(&d->model.config);
    checkpoint_close(&d->checkpoint);
}

/* The logits after ids that are fed in blocks. */
static void logits_of(Demo *d, const int *ids, size_t n, size_t block, float *logits)
{
    RunState s;
    char err[512];
    const float *out = NULL;
    if (run_state_init(&s, &d->model.config, KV_F32, 512, block, 1, err) || kv_cache_reserve(&s.cache, n, err)) {
        printf("%s\n", err);
        exit(1);
    }
    for (size_t i = 0; i < n; i += block)
        out = forward(&d->model, &s, ids + i, (int)(n - i < block ? n - i : block));
    memcpy(logits, out, d->model.config.vocab_size * sizeof *logits);
    run_state_free(&s);
}

static size_t read_ids(const JsonValue *list, int *ids)
{
    size_t n = 0;
    for (const JsonValue *v = list->child; v; v = v->next) {
        uint64_t id = 0;
        json_u64(v, &id);
        ids[n++] = (int)id;
    }
    return n;
}

static double spread(const float *x, size_t n)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(squares / (double)n);
}

static void test_golden(Demo *d, const char *name)
{
    char path[256], err[512];
    size_t length, raw_length, vocab = d->model.config.vocab_size;
    snprintf(path, sizeof path, DEMO "/golden/%s.json", name);
    char *text = read_all(path, &length);
    JsonValue *golden = json_parse(text, length, err);
    snprintf(path, sizeof path, DEMO "/golden/%s.f32", name);
    char *want = read_all(path, &raw_length);
    check(golden && raw_length == vocab * sizeof(float), "%s", path);

    int ids[512], greedy[64];
    const JsonValue *greedy_value = json_get(golden, "greedy_ids");
    size_t n = read_ids(json_get(golden, "prompt_ids"), ids), n_greedy = read_ids(greedy_value, greedy);
    float *logits = malloc(raw_length), *reference = malloc(raw_length);
    memcpy(reference, want, raw_length);
    logits_of(d, ids, n, 512, logits);
    double worst = 0;
    for (size_t i = 0; i < vocab; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)reference[i]));
    check(worst < 1e-4 * spread(reference, vocab), "%s: off by %g", name, worst);

    RunState s;
    check(run_state_init(&s, &d->model.config, KV_F32, 512, 512, 1, err) == 0 &&
              kv_cache_reserve(&s.cache, n + n_greedy, err) == 0,
          "%s", err);
    const float *out = forward(&d->model, &s, ids, (int)n);
    check(n_greedy == 64, "%zu greedy ids", n_greedy);
    for (size_t i = 0; i < n_greedy; i++) {
        int best = (int)argmax_f32(out, vocab, NULL);
        check(best == greedy[i], "%s: greedy token %zu is %d, the reference's %d", name, i, best, greedy[i]);
        out = forward(&d->model, &s, &greedy[i], 1);
    }
    run_state_free(&s);
    free(logits);
    free(reference);
    free(want);
    json_free(golden);
    free(text);
}

/* 300 ids, so that the cache has two blocks. */
static void test_same_bits(void)
{
    int ids[300];
    for (int i = 0; i < 300; i++)
        ids[i] = (i * 7919 + 11) % 2813;
    size_t vocab = 2816;
    float *first = NULL, *logits = malloc(vocab * sizeof *logits);
    char err[512];
    for (int mode = MODE_F32; mode <= MODE_BF16; mode++) {
        Demo d;
        demo_open(&d, (WeightMode)mode);
        for (int level = 0; level < CPU_LEVELS; level++) {
            if (!cpu_has((CpuLevel)level))
                continue;
            cpu_set_level((CpuLevel)level);
            for (int threads = emulated() || watched() ? 3 : 1; threads <= 3; threads++) {
                static const size_t blocks[] = {512, 64, 7, 1};
                check(threads_start(threads, err) == 0, "%s", err);
                for (size_t b = 0; b < 4; b++) {
                    if (level == CPU_SCALAR && b > 1)
                        continue; /* slow, and the loops are the same */
                    logits_of(&d, ids, 300, blocks[b], logits);
                    if (!first) {
                        first = malloc(vocab * sizeof *first);
                        memcpy(first, logits, vocab * sizeof *first);
                    }
                    check(memcmp(first, logits, vocab * sizeof *first) == 0, "mode %d, %s, %d threads, blocks of %zu",
                          mode, cpu_level_name((CpuLevel)level), threads, blocks[b]);
                }
            }
        }
        demo_close(&d);
    }
    cpu_set_level(cpu_level_best());
    free(first);
    free(logits);
}

/* Going back in the cache and on from there gives what it would without the part that was taken back. */
static void test_rewind(Demo *d)
{
    static const int a[] = {5, 6, 7, 8, 9}, b[] = {5, 6, 40, 41};
    size_t vocab = d->model.config.vocab_size;
    float *fresh = malloc(vocab * sizeof *fresh);
    logits_of(d, b, 4, 512, fresh);
    RunState s;
    char err[512];
    check(run_state_init(&s, &d->model.config, KV_F32, 512, 512, 1, err) == 0 && kv_cache_reserve(&s.cache, 16, err) == 0, "%s",
          err);
    forward(&d->model, &s, a, 5);
    kv_cache_rewind(&s.cache, 2);
    check(s.cache.pos == 2, "at %zu", s.cache.pos);
    check(memcmp(forward(&d->model, &s, b + 2, 2), fresh, vocab * sizeof *fresh) == 0, "logits after rewinding");
    check(kv_cache_reserve(&s.cache, 513 - s.cache.pos, err) == -1 && strstr(err, "513 positions do not fit the context of 512"), "%s",
          err);
    run_state_free(&s);
    free(fresh);
}

int main(void)
{
    static const char *const names[] = {"en1", "en2", "en3", "en4", "zh1", "zh2", "chat1", "chat2"};
    Demo d;
    test_config();
    test_rope();
    test_same_bits();
    demo_open(&d, MODE_F32);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        test_golden(&d, names[i]);
    test_rewind(&d);
    demo_close(&d);
    threads_stop();
    return report("net");
}
