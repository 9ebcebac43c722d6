/* run json: json.c at work. Checks a JSON text and prints it again, or a checkpoint's header. */
#include "commands/common.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A terminal gets what could drive it made visible. */
static void print_document(const JsonValue *v, JsonStyle style)
{
    if (!isatty(STDOUT_FILENO)) {
        json_print(stdout, v, style);
    } else {
        char *text = NULL;
        size_t length = 0;
        FILE *memory = must(open_memstream(&text, &length));
        json_print(memory, v, style);
        close_memory(memory, &text);
        print_text(stdout, text, length);
        free(text);
    }
    putchar('\n');
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The header of a file; of a sharded checkpoint an object with the header of each of its files. */
static void print_header(const char *model, JsonStyle style)
{
    Checkpoint c = {0};
    open_checkpoint(&c, model);
    if (c.st.n_shards == 0) {
        print_document(c.st.header, style);
    } else {
        JsonValue all = {.type = JSON_OBJECT, .length = c.st.n_shards};
        JsonValue *members = must(calloc(c.st.n_shards, sizeof *members));
        for (size_t i = 0; i < c.st.n_shards; i++) {
            members[i] = *c.st.shards[i].header;
            members[i].key = base_name(c.st.shards[i].path);
            members[i].key_length = (uint32_t)strlen(members[i].key);
            members[i].next = i + 1 < c.st.n_shards ? &members[i + 1] : NULL;
        }
        all.child = members;
        print_document(&all, style);
        free(members);
    }
    checkpoint_close(&c);
}

static void print_file(const char *path, JsonStyle style)
{
    char err[512];
    size_t length;
    char *text = read_prompt(NULL, path, &length);
    JsonValue *v = json_parse(text, length, err);
    if (!v)
        die(EXIT_FAILED, "%s: %s", strcmp(path, "-") ? path : "standard input", err);
    print_document(v, style);
    json_free(v);
    free(text);
}

int cmd_json(int argc, char **argv)
{
    const char *model = NULL;
    bool canonical = false;
    const Option options[] = {
        {0, "canonical", NULL, OPTION_FLAG, &canonical,
         "one line: no spaces, ASCII only, equal names once with their last value, shortest numbers"},
        {0, "header", "MODEL", OPTION_TEXT, &model, "the header of a checkpoint; of each file when it is sharded"},
        {0},
    };
    int count = options_parse(argc, argv, options, false, NULL,
                              "run json config.json\n"
                              "curl -s https://example.org/data.json | run json --canonical\n"
                              "run json --header model.safetensors\n");
    JsonStyle style = canonical ? JSON_CANONICAL : JSON_INDENTED;
    arguments_at_most(count, 1, argv);
    if (model && count)
        usage_error("FILE and --header: give one of them");
    if (model)
        print_header(model, style);
    else
        print_file(count ? argv[1] : "-", style);
    return finish(EXIT_OK);
}
