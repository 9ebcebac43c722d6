/* The functions of each module, with each of their allocations failing in turn: they must fail with a sentence or
 * succeed, and leave no memory behind. Not part of `make test`, because it brings a malloc() of its own
 * (preload_faults.c); fault_injection.sh builds and runs it.
 */
#include "base/base.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/threads.h"
#include "base/unicode.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/edit.h"
#include "checkpoint/undo.h"
#include "checkpoint/patch.h"
#include "checkpoint/slice.h"
#include "checkpoint/split.h"
#include "checkpoint/statistics.h"
#include "checkpoint/weights.h"
#include "generate/config.h"
#include "generate/generate.h"
#include "preload_faults.c"

#define DEMO "tests/demo"

static char work[] = "/tmp/run-faults-XXXXXX";
static char *demo_config, *demo_generation;
static size_t config_length, generation_length;
static SafetensorsFile demo;
static Config config;
static Model model;
static Tokenizer *tokenizer;

/* Each of these calls a function of a module and releases what it got. They return 0, or -1 and a sentence in err. */

static int do_json(char err[512])
{
    static const char text[] = "{\"a\\n\":[1,2.5e3,\"x\\u00e9\",{\"b\":null}],\"c\":{\"d\":[[[]]]}}";
    JsonValue *v = json_parse(text, sizeof text - 1, err);
    json_free(v);
    return v ? 0 : -1;
}

static int do_config(char err[512])
{
    Config c = {0};
    int status = config_parse(&c, demo_config, config_length, "config.json", err);
    config_free(&c);
    return status;
}

static int do_generation(char err[512])
{
    GenerationConfig g;
    return generation_config_parse(&g, demo_generation, generation_length, "generation_config.json", err);
}

static int do_open(char err[512])
{
    Checkpoint c;
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status == 0)
        checkpoint_close(&c);
    return status;
}

static int do_read(char err[512])
{
    Checkpoint c;
    Config read = {0};
    int status = checkpoint_open(&c, DEMO "/model.safetensors", true, err);
    if (status == 0)
        status = checkpoint_read_config(&c, &read, err);
    config_free(&read);
    checkpoint_close(&c);
    return status;
}

static int do_weights(WeightMode mode, char err[512])
{
    TransformerWeights w = {.mode = mode};
    int status = weights_load(&demo, &config, w.mode, &w, err);
    snprintf(err, 512, "%s", demo.error);
    if (status == 0)
        weights_free(&w);
    return status;
}

static int do_f32(char err[512])
{
    return do_weights(MODE_F32, err);
}

static int do_bf16(char err[512])
{
    return do_weights(MODE_BF16, err);
}

static int do_q4(char err[512])
{
    return do_weights(MODE_Q4, err);
}

static int do_float(char err[512])
{
    float *values = safetensors_load_float(&demo, "model.norm.weight");
    snprintf(err, 512, "%s", demo.error);
    free(values);
    return values ? 0 : -1;
}

static int do_tokenizer(char err[512])
{
    Tokenizer *t = tokenizer_open(DEMO, err);
    if (t)
        tokenizer_close(t);
    return t ? 0 : -1;
}

static int do_encode(char err[512])
{
    static const char text[] = "Once upon a time e\xcc\x81 <|im_end|> \xff thequickbrownfoxjumpsoverthelazydogs 12345";
    IdList ids = {0};
    Text out = {0};
    int status = tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, err);
    if (status == 0 && (status = tokenizer_decode(tokenizer, ids.items, ids.count, false, &out)) != 0)
        snprintf(err, 512, "memory");
    text_free(&out);
    id_list_free(&ids);
    return status;
}

static int do_chat(char err[512])
{
    const Message turns[] = {{"user", "hello <|im_end|>", 4, 16}};
    IdList ids = {0};
    Text out = {0};
    int status = tokenizer_chat_text(tokenizer, turns, 1, true, &out, err);
    if (status == 0)
        status = tokenizer_chat_ids(tokenizer, turns, 1, true, true, &ids, err);
    text_free(&out);
    id_list_free(&ids);
    return status;
}

static int do_nfc(char err[512])
{
    size_t n;
    char *text = unicode_nfc("e\xcc\x81\xcc\xa3 \xe1\x84\x80\xe1\x85\xa1", 12, &n);
    snprintf(err, 512, "memory");
    free(text);
    return text ? 0 : -1;
}

static int do_generate(char err[512])
{
    static const int prompt[] = {1, 2, 3};
    RunState s = {0};
    Sampler sampler = {0};
    Generated g = {0};
    SampleOptions o = {.temperature = 1, .top_k = 5, .top_p = 0.9f, .repeat_penalty = 1.1f, .seed = 1};
    GenerateOptions how = {.max_tokens = 3, .stops = (const char *const[]){"zzz"}, .n_stops = 1};
    int status = run_state_init(&s, &config, KV_F32, 16, 4, 1, err);
    if (status == 0)
        status = sampler_init(&sampler, &o, config.vocab_size, tokenizer_size(tokenizer), err);
    if (status == 0)
        status = generate(&model, &s, &sampler, tokenizer, prompt, 3, &how, &g, err);
    generated_free(&g);
    sampler_free(&sampler);
    run_state_free(&s);
    return status;
}

static int do_slice(char err[512])
{
    SafetensorsTensor t;
    Slice s = {0};
    Statistics stats;
    uint64_t bins[4];
    unsigned char bytes[16];
    int status = safetensors_find(&demo, "model.embed_tokens.weight", &t);
    if (status == 0)
        status = slice_parse(&s, "1:3,::-2", &t, err);
    if (status == 0)
        status = statistics_compute(&s, &stats, err);
    if (status == 0)
        status = statistics_histogram(&s, -1, 1, bins, 4, err);
    if (status == 0)
        status = slice_gather(&s, 1, 4, bytes, err);
    slice_free(&s);
    return status;
}

static void path_of(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", work, name);
}

static int do_merge(char err[512])
{
    Checkpoint c;
    char path[256];
    path_of(path, "merged.safetensors");
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status != 0)
        return -1;
    status = split_merge(&c, path, false, NULL, NULL, err);
    checkpoint_close(&c);
    if (status != 0)
        check(access(path, F_OK) != 0, "a half-written file has its name");
    unlink(path);
    strcat(path, ".part");
    check(access(path, F_OK) != 0, "%s is left", path);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static int do_split(char err[512])
{
    Checkpoint c;
    char path[256];
    size_t shards;
    path_of(path, "parts");
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status != 0)
        return -1;
    status = split_model(&c, path, 1000000, false, NULL, NULL, &shards, err);
    checkpoint_close(&c);
    check(status == 0 || access(path, F_OK) != 0, "a failed split left %s", path);
    long counted = calls;
    fail_at = 0;
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    calls = counted;
    return status;
}

/* Undo the edit that an earlier failure has cut off. */
static void put_back(const char *path)
{
    Checkpoint c;
    char err[512];
    Undone undone;
    Group g = group;
    group = NONE;
    if (checkpoint_open(&c, path, false, err) == 0) {
        check(!edit_pending(&c, err) || undo_last(&c, &undone, err) == 0, "%s", err);
        checkpoint_close(&c);
    }
    group = g;
}

static int do_edit(char err[512])
{
    static const unsigned char one = 1;
    Checkpoint c;
    char path[256];
    Undone undone;
    path_of(path, "edited.safetensors");
    put_back(path);
    int status = checkpoint_open(&c, path, false, err);
    if (status != 0)
        return -1;
    Edit e = {0};
    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    status = edit_begin(&e, &t, 1, err);
    if (status == 0)
        status = edit_bytes(&e, t, 3, &one, 1, err);
    if (status == 0)
        status = edit_commit(&e, err);
    edit_end(&e);
    if (status == 0)
        status = undo_last(&c, &undone, err);
    checkpoint_close(&c);
    return status;
}

static int do_patch(char err[512])
{
    Checkpoint a, b;
    PatchSize size;
    char path[256];
    path_of(path, "edited.safetensors");
    int status = checkpoint_open(&a, path, false, err);
    if (status != 0)
        return -1;
    status = checkpoint_open(&b, path, false, err);
    path_of(path, "patch.safetensors");
    if (status == 0) {
        status = patch_write(&a, &b, path, false, NULL, NULL, &size, err);
        checkpoint_close(&b);
    }
    checkpoint_close(&a);
    unlink(path);
    return status;
}

static const struct {
    const char *name;
    int (*run)(char err[512]);
} operations[] = {{"json_parse", do_json},
              {"config_parse", do_config},
              {"generation_config_parse", do_generation},
              {"checkpoint_open", do_open},
              {"checkpoint_open, read", do_read},
              {"weights f32", do_f32},
              {"weights bf16", do_bf16},
              {"weights q4", do_q4},
              {"load_float", do_float},
              {"tokenizer_open", do_tokenizer},
              {"encode, decode", do_encode},
              {"chat", do_chat},
              {"unicode_nfc", do_nfc},
              {"generate", do_generate},
              {"slice", do_slice},
              {"merge", do_merge},
              {"split", do_split},
              {"edit, undo", do_edit},
              {"patch", do_patch}};

/* Make each allocation of the operation fail in turn (of more than 3,000 about 1,000 of them); without failures it must
 * succeed before and after. Return how many failed. */
static long try_all(const char *name, int (*run)(char err[512]))
{
    char err[512];
    run(err); /* the C library allocates some things only once */
    calls = fail_at = 0;
    group = MEMORY;
    check(run(err) == 0, "%s: %s", name, err);
    long total = calls, step = total > 3000 ? total / 1000 : 1, tried = 0;
    for (long at = 1; at <= total; at += step, tried++) {
        long before = blocks;
        err[0] = '\0';
        calls = 0;
        fail_at = at;
        int status = run(err);
        fail_at = 0;
        check(blocks == before, "%s: allocation %ld of %ld fails: %ld blocks are left", name, at, total,
              blocks - before);
        check(status == 0 || err[0], "%s: allocation %ld of %ld fails without a sentence", name, at, total);
    }
    group = NONE;
    check(run(err) == 0, "%s afterwards: %s", name, err);
    return tried;
}

static void prepare(void)
{
    char err[512] = "", path[256];
    Checkpoint c;
    demo_config = file_read(DEMO "/config.json", 1 << 20, &config_length, err);
    demo_generation = file_read(DEMO "/generation_config.json", 1 << 20, &generation_length, err);
    tokenizer = tokenizer_open(DEMO, err);
    model.weights.mode = MODE_BF16;
    if (!demo_config || !demo_generation || !tokenizer || !mkdtemp(work) ||
        safetensors_open(DEMO "/model.safetensors", &demo) != 0 ||
        config_parse(&config, demo_config, config_length, "config.json", err) != 0 ||
        weights_load(&demo, &config, model.weights.mode, &model.weights, err) != 0 || threads_start(1, err) != 0 ||
        checkpoint_open(&c, DEMO, false, err) != 0) {
        printf("cannot begin: %s\n", err);
        exit(1);
    }
    model.config = config;
    path_of(path, "edited.safetensors");
    check(split_merge(&c, path, false, NULL, NULL, err) == 0, "%s", err);
    checkpoint_close(&c);
}

int main(void)
{
    long tried = 0;
    prepare();
    for (size_t i = 0; i < COUNT_OF(operations); i++) {
        long n = try_all(operations[i].name, operations[i].run);
        printf("%s: %ld failing allocations\n", operations[i].name, n);
        tried += n;
    }
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", work);
    if (system(command) != 0)
        printf("%s is left\n", work);
    printf("%ld failing allocations in all\n", tried);
    return report("failing_allocations");
}
