/* run json: json.c at work. Checks a JSON text and prints it again, or a checkpoint's header. */
#include "commands/input.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/terminal.h"

#include <stdlib.h>
#include <string.h>

/* Print the header of a file, or of a sharded checkpoint an object with the header of each of its files. */
static void print_header(const char *model, JsonStyle style)
{
    Checkpoint c = {0};
    model_open(&c, model);
    if (c.st.n_shards == 0) {
        json_print(stdout, c.st.header, style);
    } else {
        JsonValue all = {.type = JSON_OBJECT, .length = c.st.n_shards};
        JsonValue *members = xcalloc(c.st.n_shards, sizeof *members);
        for (size_t i = 0; i < c.st.n_shards; i++) {
            members[i] = *c.st.shards[i].header;
            members[i].key = path_name(c.st.shards[i].path);
            members[i].key_length = (uint32_t)strlen(members[i].key);
            members[i].next = i + 1 < c.st.n_shards ? &members[i + 1] : NULL;
        }
        all.child = members;
        json_print(stdout, &all, style);
        free(members);
    }
    checkpoint_close(&c);
}

static void print_file(const char *path, JsonStyle style)
{
    char err[512];
    Text text = {0};
    input_text(&text, NULL, path);
    JsonValue *v = json_parse(text.bytes, text.length, err);
    if (!v)
        die(EXIT_FAILED, "%s: %s", input_name(path), err);
    json_print(stdout, v, style);
    json_free(v);
    text_free(&text);
}

int cmd_json(int argc, char **argv)
{
    const char *model = NULL;
    bool canonical = false;
    const Option options[] = {
        {0, "canonical", NULL, OPTION_FLAG, &canonical,
         "print one line: no spaces, ASCII only, equal keys once with their last value, shortest numbers"},
        {0, "header", "MODEL", OPTION_TEXT, &model, "print the header of a checkpoint, or of each of its shards"},
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run json config.json\n"
                              "cat config.json | run json --canonical\n"
                              "run json --header model.safetensors\n");
    JsonStyle style = canonical ? JSON_CANONICAL : JSON_INDENTED;
    if (model && count)
        usage_error("give FILE or --header, not both");
    if (model)
        print_header(model, style);
    else
        print_file(count ? argv[1] : "-", style);
    putchar('\n');
    return finish(EXIT_OK);
}
