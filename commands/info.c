/* run info: what is in the files of a checkpoint. What looks into the data itself is in inspect.c. */
#include "base/cpu.h"
#include "checkpoint/journal.h"
#include "checkpoint/weights.h"
#include "commands/inspect.h"
#include "commands/map.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t parameters_of(const SafetensorsFile *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++)
        n += f->tensors[i].elements;
    return n;
}

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

/* Something that the reference library lets pass, though its own rules forbid it: how often, and where first. */
typedef struct {
    size_t count;
    const JsonValue *entry, *field; /* the tensor's entry in the header; the field in it, or NULL */
} Sighting;

static void sight(Sighting *s, const JsonValue *entry, const JsonValue *field)
{
    if (s->count++ == 0)
        *s = (Sighting){1, entry, field};
}

static void report_sighting(const char *file, const Sighting *s, const char *what)
{
    char name[TEXT_PRINTABLE], key[TEXT_PRINTABLE], field[TEXT_PRINTABLE + 8] = "", more[48] = "";
    if (!s->count)
        return;
    if (s->field)
        snprintf(field, sizeof field, " \"%s\"", text_printable(s->field->key, s->field->key_length, key));
    if (s->count > 1)
        snprintf(more, sizeof more, " (and %zu more)", s->count - 1);
    warn("%s: tensor \"%s\": %s%s%s", file, text_printable(s->entry->key, s->entry->key_length, name), what, field,
         more);
}

static bool has_control_character(const JsonValue *entry)
{
    for (size_t i = 0; i < entry->key_length; i++)
        if ((unsigned char)entry->key[i] < 0x20 || entry->key[i] == 0x7f)
            return true;
    return false;
}

static void print_warnings(const SafetensorsFile *f)
{
    Sighting unknown = {0}, control = {0};
    for (const JsonValue *entry = f->header->child; entry; entry = entry->next) {
        if (json_key_is(entry, "__metadata__"))
            continue;
        if (has_control_character(entry))
            sight(&control, entry, NULL);
        for (const JsonValue *field = entry->child; field; field = field->next)
            if (!json_key_is(field, "dtype") && !json_key_is(field, "shape") && !json_key_is(field, "data_offsets"))
                sight(&unknown, entry, field);
    }
    if (f->header_len && f->header_json[0] != '{')
        warn("%s: white space before the header's '{'", f->path);
    if (f->header_len % 8)
        warn("%s: the header has %zu bytes, not a multiple of 8: the data is not aligned", f->path, f->header_len);
    if (f->repeated_name)
        warn("%s: a name appears twice in the header", f->path);
    report_sighting(f->path, &unknown, "unknown field");
    report_sighting(f->path, &control, "control characters in the name");
}

/* ---- summary ----------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t tensors, elements, bytes;
} DtypeSum;

static void print_dtypes(const Checkpoint *c)
{
    DtypeSum sums[DTYPE_COUNT] = {{0}};
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        sums[t->dtype].tensors++;
        sums[t->dtype].elements += t->elements;
        sums[t->dtype].bytes += t->length;
    }
    for (size_t d = 0; d < DTYPE_COUNT; d++)
        if (sums[d].tensors)
            print_field("dtype", "%s: %" PRIu64 " tensor%s, %" PRIu64 " parameters, %" PRIu64 " bytes",
                        dtype_name((Dtype)d), sums[d].tensors, plural(sums[d].tensors), sums[d].elements,
                        sums[d].bytes);
}

static void print_metadata(const SafetensorsFile *f)
{
    const JsonValue *metadata = json_get(f->header, "__metadata__");
    for (const JsonValue *m = metadata && metadata->type == JSON_OBJECT ? metadata->child : NULL; m; m = m->next) {
        printf("metadata        ");
        print_escaped(stdout, m->key, m->key_length);
        printf(" = ");
        print_escaped(stdout, m->text ? m->text : "", m->text ? m->length : 0);
        putchar('\n');
    }
}

static void print_summary(const Checkpoint *c)
{
    uint64_t bytes = 0, parameters = 0;
    char size[32];
    bool sharded = c->st.n_shards > 0;
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        bytes += checkpoint_file(c, i)->mapped_size;
        parameters += parameters_of(checkpoint_file(c, i));
    }
    print_name(c->st.path);
    printf("\n%s       %" PRIu64 " bytes", sharded ? "all files" : "file size", bytes);
    printf(bytes < 1000 ? "\n" : " (%s)\n", human_bytes(bytes, size));
    if (!sharded)
        printf("header length   %zu\ndata starts at  %zu\n", c->st.header_len, 8 + c->st.header_len);
    for (size_t i = 0; i < c->st.n_shards; i++) {
        const SafetensorsFile *f = &c->st.shards[i];
        printf("file            ");
        print_name(path_name(f->path));
        printf("   %zu bytes, header %zu, %zu tensor%s\n", f->mapped_size, f->header_len, f->n_tensors,
               plural(f->n_tensors));
    }
    printf("tensors         %zu\nparameters      %" PRIu64 "\n", checkpoint_tensor_count(c), parameters);
    print_dtypes(c);
    print_metadata(checkpoint_file(c, 0));
}

/* ---- the model: config, tokenizer, memory ------------------------------------------------------------------------ */

/* Bytes of weights, cache and buffers; 0: the model cannot run in that mode. In bf16 the weights stay as they are in
 * the file. */
static uint64_t memory_needed(const Checkpoint *cp, const Config *c, WeightMode mode, size_t ctx)
{
    uint64_t weights = mode == MODE_BF16 ? model_bytes(cp) : weights_copy_bytes(c, mode);
    if (weights == 0 || weights == UINT64_MAX)
        return 0;
    return weights + run_state_bytes(c, session_kv_type(mode), ctx, MIN(common.block, ctx));
}

/* Which context lengths to show: 2,048 times powers of four, then the usual one. Returns how many. */
static size_t context_rows(const Config *c, size_t rows[8])
{
    size_t n = 0, usual = session_usual_context(c);
    for (size_t ctx = 2048; ctx < usual && n < 7; ctx *= 4)
        rows[n++] = ctx;
    rows[n++] = usual;
    return n;
}

static void print_memory(const Checkpoint *cp, const Config *c)
{
    uint64_t free_bytes = cpu_memory_available();
    size_t rows[8], n = context_rows(c, rows);
    char text[32], row[256], label[32];
    bool some_too_big = false, narrow = terminal_is_narrow();
    printf("\nmemory for weights, cache and buffers, by context and -w");
    if (free_bytes != UINT64_MAX)
        printf("; %s free here", human_bytes(free_bytes, text));
    putchar('\n');
    if (!narrow) {
        printf("%10s", "context");
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++)
            printf("%14s", weights_mode_name((WeightMode)mode));
        putchar('\n');
    }
    for (size_t i = 0; i < n; i++) {
        size_t used = 0;
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
            uint64_t need = memory_needed(cp, c, (WeightMode)mode, rows[i]);
            char cell[40];
            some_too_big = some_too_big || need > free_bytes;
            snprintf(cell, sizeof cell, "%s%s", need > free_bytes ? "! " : "", need ? human_bytes(need, text) : "-");
            used += (size_t)snprintf(row + used, sizeof row - used, narrow ? "%s%s %s" : "%.0s%.0s%14s",
                                     mode == MODE_F32 ? "" : ", ", weights_mode_name((WeightMode)mode), cell);
        }
        snprintf(label, sizeof label, "%10zu", rows[i]);
        if (narrow)
            print_field(label, "%s", row);
        else
            printf("%s%s\n", label, row);
    }
    printf("%s", some_too_big ? "         ! more than is free\n" : "");
    uint64_t f32_bytes = weights_copy_bytes(c, MODE_F32);
    if (f32_bytes != UINT64_MAX && model_bytes(cp) < f32_bytes / 3 * 2)
        printf("bf16 gives the same text as f32, about twice as fast: -w bf16, or RUN_WEIGHTS=bf16 in the environment\n");
}

static void print_problem(const char *label, const char *err)
{
    printf("%-16s", label);
    print_name(err);
    putchar('\n');
}

static void print_model(Checkpoint *c)
{
    Config config;
    char err[512];
    bool known = !checkpoint_read_config(c, &config, err);
    if (known) {
        print_field("config", "%zu layers, width %zu, %zu query and %zu key/value heads of %zu, inner width %zu,",
                    config.n_layers, config.dim, config.n_heads, config.n_kv_heads, config.head_dim, config.hidden_dim);
        print_field("", "vocabulary %zu, %zu positions, head %s", config.vocab_size, config.max_positions,
                    config.tie_word_embeddings ? "shared with the embedding" : "of its own");
        if (weights_check(&c->st, &config, err) != 0)
            print_problem("weights", err);
        else
            model_warn_of_tensors(c, &config);
    } else {
        print_problem("config", err);
    }
    Tokenizer *t = tokenizer_open(c->directory, err);
    if (t)
        print_field("tokenizer", "%zu ids, %zu merges; chat %s", tokenizer_size(t), tokenizer_merges(t),
                    tokenizer_chat_problem(t) ? "not possible: see run chat" : "template known");
    else
        print_problem("tokenizer", err);
    tokenizer_close(t);
    if (known) {
        print_memory(c, &config);
        config_free(&config);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const JsonValue json_null = {.type = JSON_NULL};

static void write_file(const char *before, const SafetensorsFile *f, const char *find)
{
    const JsonValue *metadata = json_get(f->header, "__metadata__");
    const char *between = "{";
    printf("%s{", before);
    write_name("\"file\":", f->path);
    printf(",\"size\":%zu,\"header_len\":%zu,\"data_start\":%zu,\"metadata\":", f->mapped_size, f->header_len,
           8 + f->header_len);
    json_print(stdout, metadata ? metadata : &json_null, JSON_CANONICAL);
    printf(",\"parameters\":%" PRIu64 ",\"tensors\":[", parameters_of(f));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const SafetensorsTensor *t = &f->tensors[i];
        if (!name_matches(find, t->name, t->name_length))
            continue;
        write_tensor(between, t);
        printf(",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset, t->offset + t->length);
        between = ",{";
    }
    printf("]}");
}

static void write_memory(const Checkpoint *cp, const Config *c)
{
    size_t rows[8], n = context_rows(c, rows);
    uint64_t free_bytes = cpu_memory_available();
    printf(",\"memory_available\":");
    if (free_bytes == UINT64_MAX)
        printf("null");
    else
        printf("%" PRIu64, free_bytes);
    printf(",\"memory\":[");
    for (size_t i = 0; i < n; i++) {
        printf("%s{\"context\":%zu", i ? "," : "", rows[i]);
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
            uint64_t need = memory_needed(cp, c, (WeightMode)mode, rows[i]);
            printf(",\"%s\":", weights_mode_name((WeightMode)mode));
            if (need)
                printf("%" PRIu64, need);
            else
                printf("null");
        }
        putchar('}');
    }
    putchar(']');
}

/* config.json as it is: NULL if it is missing or not JSON. *text, which it points into, is to be freed, too. */
static JsonValue *read_config_json(const Checkpoint *c, char **text)
{
    size_t length;
    char err[512], *path = xpath_join(c->directory, "config.json");
    *text = file_read(path, (size_t)16 << 20, &length, err);
    free(path);
    return *text ? json_parse(*text, length, err) : NULL;
}

static void write_model(Checkpoint *c, const char *find)
{
    Config config;
    char err[512], *text;
    bool known = !checkpoint_read_config(c, &config, err);
    JsonValue *root = read_config_json(c, &text); /* before anything is printed: it may fail */
    write_name("{\"model\":", c->argument);
    printf(",\"files\":[");
    for (size_t i = 0; i < checkpoint_file_count(c); i++)
        write_file(i ? "," : "", checkpoint_file(c, i), find);
    printf("],\"config\":");
    json_print(stdout, root ? root : &json_null, JSON_COMPACT);
    json_free(root);
    free(text);
    write_name(",\"config_problem\":", known && weights_check(&c->st, &config, err) == 0 ? NULL : err);
    Tokenizer *t = tokenizer_open(c->directory, err);
    if (t)
        printf(",\"tokenizer\":{\"ids\":%zu,\"merges\":%zu}", tokenizer_size(t), tokenizer_merges(t));
    else
        printf(",\"tokenizer\":null");
    tokenizer_close(t);
    if (known) {
        write_memory(c, &config);
        config_free(&config);
    }
    printf("}\n");
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Print the tensors that match, with a heading before those of each shard. */
static void print_tensors(const Checkpoint *c, const char *find)
{
    const SafetensorsFile *file = NULL;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        if (!name_matches(find, t->name, t->name_length))
            continue;
        if (c->st.n_shards && t->file != file) {
            printf("%sin ", file ? "\n" : "");
            print_name(t->file->path);
            printf(":\n");
        }
        file = t->file;
        print_tensor(t);
    }
}

int cmd_info(int argc, char **argv)
{
    const char *find = NULL;
    Inspection data = {.at = INSPECT_NOWHERE};
    const Option options[] = {
        {'m', "model", "PATH", OPTION_TEXT, &common.model, "same as MODEL"},
        {0, "find", "GLOB", OPTION_TEXT, &find, "only tensors whose name matches: * is any text, ? any character"},
        {0, "tensor", "NAME", OPTION_TEXT, &data.tensor,
         "print the numbers of this tensor; a pattern as for --find, if only one tensor matches"},
        {0, "slice", "SPEC", OPTION_ANY, &data.slice,
         "with --tensor: only these numbers, as in NumPy: 0:4,:8  -1  ::2,...,0"},
        {0, "npy", "FILE", OPTION_TEXT, &data.npy,
         "with --tensor: write the numbers as a NumPy file; - is standard output"},
        FORCE_OPTION,
        {0, "stats", NULL, OPTION_FLAG, &data.stats,
         "print min, max, mean and std, and count zeros and NaNs, of --tensor or of each tensor"},
        {0, "at", "OFFSET", OPTION_U64, &data.at,
         "print which element of which tensor this byte of the file belongs to, and its bits"},
        THREADS_OPTION,
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, NULL,
                              "run info model.safetensors\n"
                              "run info .                        # a model folder: also what memory it needs\n"
                              "run info model.safetensors --find '*.0.*' --stats\n"
                              "run info model.safetensors --tensor model.norm.weight --slice 0:8\n"
                              "run info model.safetensors --json\n");
    if (count && common.model)
        usage_error("give MODEL or --model, not both");
    Checkpoint c;
    model_open(&c, count ? argv[1] : common.model);
    for (size_t i = 0; i < checkpoint_file_count(&c) && !quiet; i++)
        print_warnings(checkpoint_file(&c, i));
    size_t left = journal_count_leftovers(checkpoint_file(&c, 0)->path);
    if (left)
        notice(
            "%zu file%s beside it named *.undo.*.part %s begun by an edit that was killed before it changed anything: "
            "the next edit removes %s",
            left, plural(left), left == 1 ? "was" : "were", left == 1 ? "it" : "them");
    bool found = !find;
    for (size_t i = 0; i < checkpoint_tensor_count(&c) && !found; i++)
        found = name_matches(find, checkpoint_tensor(&c, i)->name, checkpoint_tensor(&c, i)->name_length);
    if (!found)
        die(EXIT_FAILED, "%s: no tensor's name matches '%s'", c.argument, find);
    if (inspect(&c, &data, find)) {
        /* the numbers that were asked for, and nothing else */
    } else if (common.json && c.from_directory) {
        write_model(&c, find);
    } else if (common.json) {
        write_file("", checkpoint_file(&c, 0), find);
        putchar('\n');
    } else if (find) {
        print_tensors(&c, find);
    } else {
        print_summary(&c);
        if (c.from_directory)
            print_model(&c);
        draw_map(&c);
        putchar('\n');
        print_tensors(&c, NULL);
    }
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
