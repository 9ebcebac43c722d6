/* run split and run merge: the same model in other files. */
#include "checkpoint/split.h"
#include "commands/slice.h"

#include <inttypes.h>
#include <string.h>

static uint64_t bytes_of(const Checkpoint *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++)
        bytes += checkpoint_tensor(c, i)->length;
    return bytes;
}

static void print_written(const char *what, const char *path, size_t files, const Checkpoint *c)
{
    char text[32];
    uint64_t bytes = bytes_of(c);
    size_t n = checkpoint_tensor_count(c);
    if (common.json) {
        printf("{\"%s\":", what);
        json_write_string(stdout, path, strlen(path));
        printf(",\"files\":%zu,\"tensors\":%zu,\"total_size\":%" PRIu64 "}\n", files, n, bytes);
    } else {
        print_escaped(stdout, path, strlen(path));
        printf(": %zu tensor%s, %s in %zu file%s\n", n, n == 1 ? "" : "s", human_bytes(bytes, text), files,
               files == 1 ? "" : "s");
    }
}

int cmd_split(int argc, char **argv)
{
    uint64_t most = UINT64_MAX; /* not given */
    bool by_layer = false;
    const Option options[] = {
        {0, "max-shard-size", "SIZE", OPTION_BYTES, &most,
         "at most so many bytes of tensors in a file: 2GB, 500MB, 1GiB"},
        {0, "by-layer", NULL, OPTION_FLAG, &by_layer, "a file for each layer, and the first for what belongs to none"},
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(
        argc, argv, options, false, "run split MODEL DIR --max-shard-size SIZE | --by-layer",
        "run split model.safetensors shards/ --max-shard-size 2GB\n"
        "run split Qwen/Qwen2.5-7B-Instruct layers/ --by-layer\n"
        "\n"
        "DIR also gets config.json and the tokenizer's files. Nothing that is there is replaced.\n");
    arguments_at_most(count, 2, argv);
    if (count < 2)
        usage_error("a model and a folder are needed");
    if ((most != UINT64_MAX) == by_layer)
        usage_error("one of --max-shard-size and --by-layer");
    if (most == 0)
        usage_error("--max-shard-size: a shard of no bytes holds nothing");
    Checkpoint c;
    char err[512];
    size_t shards;
    open_checkpoint(&c, argv[1]);
    Progress p = {.what = "copying", .total = bytes_of(&c)};
    prepare_writing();
    if (split_model(&c, argv[2], by_layer ? 0 : most, tell_progress, &p, &shards, err) != 0)
        die(interrupted ? EXIT_INTERRUPTED : EXIT_FAILED, "%s", err);
    progress_end();
    print_written("directory", argv[2], shards, &c);
    checkpoint_close(&c);
    return finish(EXIT_OK);
}

static bool same_text(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && memcmp(a, b, a_length) == 0;
}

static bool same_metadata(const SafetensorsFile *a, const SafetensorsFile *b)
{
    const JsonValue *m = json_get(a->header, "__metadata__"), *n = json_get(b->header, "__metadata__"),
                    *x = m ? m->child : NULL, *y = n ? n->child : NULL;
    while (x && y && same_text(x->key, x->key_length, y->key, y->key_length) &&
           same_text(x->text, x->length, y->text, y->length)) {
        x = x->next;
        y = y->next;
    }
    return !x && !y;
}

int cmd_merge(int argc, char **argv)
{
    const Option options[] = {
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(argc, argv, options, false, "run merge MODEL FILE",
                              "run merge shards/ model.safetensors\n"
                              "\n"
                              "FILE must not exist: nothing is replaced.\n");
    arguments_at_most(count, 2, argv);
    if (count < 2)
        usage_error("a model and a file are needed");
    Checkpoint c;
    char err[512];
    open_checkpoint(&c, argv[1]);
    bool same = true;
    for (size_t i = 1; i < checkpoint_file_count(&c); i++)
        same = same && same_metadata(checkpoint_file(&c, 0), checkpoint_file(&c, i));
    if (!same)
        warn("the shards' metadata differ: of equal keys the first shard's value is taken");
    Progress p = {.what = "copying", .total = bytes_of(&c)};
    prepare_writing();
    if (split_merge(&c, argv[2], tell_progress, &p, err) != 0)
        die(interrupted ? EXIT_INTERRUPTED : EXIT_FAILED, "%s", err);
    progress_end();
    print_written("file", argv[2], 1, &c);
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
