/* run split: write a model as shards with an index. */
#include "checkpoint/split.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/terminal.h"

int cmd_split(int argc, char **argv)
{
    uint64_t most = UINT64_MAX; /* not given */
    bool by_layer = false;
    const Option options[] = {
        {0, "max-shard-size", "SIZE", OPTION_BYTES, &most, "most bytes of tensors in a file: 2GB, 500MB, 1GiB"},
        {0, "by-layer", NULL, OPTION_FLAG, &by_layer,
         "write a file for each layer, and a first one for the tensors of no layer"},
        FORCE_OPTION,
        JSON_OPTION,
        {0},
    };
    options_parse(argc, argv, options, "run split MODEL DIR --max-shard-size SIZE | --by-layer",
                  "run split model.safetensors shards/ --max-shard-size 2GB\n"
                  "run split model.safetensors layers/ --by-layer\n"
                  "\n"
                  "DIR also gets config.json and the tokenizer's files. What is there already is "
                  "replaced only with --force.\n");
    if ((most != UINT64_MAX) == by_layer)
        usage_error("give either --max-shard-size or --by-layer");
    if (most == 0)
        usage_error("--max-shard-size must be at least 1 byte");
    Checkpoint c;
    char err[512];
    size_t shards;
    model_open(&c, argv[1]);
    Progress p = {.what = "copying", .total = model_bytes(&c)};
    prepare_writing();
    die_if(split_model(&c, argv[2], by_layer ? 0 : most, common.force, tell_progress, &p, &shards, err), err);
    progress_end();
    model_print_written(&c, "directory", argv[2], shards);
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
