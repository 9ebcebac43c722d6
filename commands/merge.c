/* run merge: write all tensors of a sharded model as one file. */
#include "checkpoint/split.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/terminal.h"

static bool same_metadata(const SafetensorsFile *a, const SafetensorsFile *b)
{
    const JsonValue *m = json_get(a->header, "__metadata__"), *n = json_get(b->header, "__metadata__"),
                    *x = m ? m->child : NULL, *y = n ? n->child : NULL;
    while (x && y && text_same(x->key, x->key_length, y->key, y->key_length) &&
           text_same(x->text, x->length, y->text, y->length)) {
        x = x->next;
        y = y->next;
    }
    return !x && !y;
}

int cmd_merge(int argc, char **argv)
{
    const Option options[] = {
        FORCE_OPTION,
        JSON_OPTION,
        {0},
    };
    options_parse(argc, argv, options, NULL,
                  "run merge shards/ whole.safetensors\n");
    Checkpoint c;
    char err[512];
    model_open(&c, argv[1]);
    bool same = true;
    for (size_t i = 1; i < checkpoint_file_count(&c); i++)
        same = same && same_metadata(checkpoint_file(&c, 0), checkpoint_file(&c, i));
    if (!same)
        warn("the shards' metadata differ: of a key with several values the first shard's is taken");
    Progress p = {.what = "copying", .total = model_bytes(&c)};
    prepare_writing();
    die_if(split_merge(&c, argv[2], common.force, tell_progress, &p, err), err);
    progress_end();
    model_print_written(&c, "file", argv[2], 1);
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
