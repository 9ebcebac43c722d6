/* The parts of `run info`: a tensor's two lines, warnings, summary, map, the model's memory, JSON. */
#include "base/cpu.h"
#include "base/file.h"
#include "checkpoint/weights.h"
#include "commands/common.h"
#include "kernels/quantize.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t parameters_of(const SafetensorsFile *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++)
        n += f->tensors[i].elements;
    return n;
}

bool name_matches(const char *pattern, const char *name, size_t length)
{
    const char *star = NULL;
    size_t i = 0, star_i = 0;
    if (!pattern)
        return true;
    while (i < length) {
        if (*pattern == '*') {
            star = pattern++;
            star_i = i;
        } else if (*pattern && (*pattern == '?' || *pattern == name[i])) {
            pattern++;
            i++;
        } else if (star) {
            pattern = star + 1;
            i = ++star_i;
        } else {
            return false;
        }
    }
    return !pattern[strspn(pattern, "*")];
}

void print_tensor(const SafetensorsTensor *t)
{
    bool color = use_color(stdout);
    fputs(color ? "\033[1m" : "", stdout);
    print_escaped(stdout, t->name, t->name_length);
    printf("%s   dtype=%s  shape=[", color ? "\033[0m" : "", dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    printf("]\n%28sdata[%llu, %llu]   (%llu bytes)\n", "", (unsigned long long)t->offset,
           (unsigned long long)(t->offset + t->length), (unsigned long long)t->length);
}

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

/* A kind of laxity: how often it was seen, and where first. */
typedef struct {
    size_t count;
    const char *name, *detail;
    size_t name_length, detail_length;
} Sighting;

static void sight(Sighting *s, const JsonValue *entry, const char *detail, size_t detail_length)
{
    if (!s->count++)
        *s = (Sighting){1, entry->key, detail, entry->key_length, detail_length};
}

static void report_sighting(const char *file, const Sighting *s, const char *what)
{
    if (!s->count)
        return;
    char *name = escaped(s->name, s->name_length), *detail = escaped(s->detail ? s->detail : "", s->detail_length);
    char more[48] = "";
    if (s->count > 1)
        snprintf(more, sizeof more, " (and %zu more)", s->count - 1);
    warn("%s: tensor \"%.200s\": %s%s%.200s%s%s", file, name, what, s->detail ? " \"" : "", detail,
         s->detail ? "\"" : "", more);
    free(name);
    free(detail);
}

static bool is_known_field(const JsonValue *field)
{
    return json_key_is(field, "dtype") || json_key_is(field, "shape") || json_key_is(field, "data_offsets");
}

void info_warnings(const SafetensorsFile *f)
{
    Sighting unknown = {0}, control = {0};
    for (const JsonValue *entry = f->header->child; entry; entry = entry->next) {
        if (json_key_is(entry, "__metadata__"))
            continue;
        for (size_t i = 0; i < entry->key_length; i++)
            if ((unsigned char)entry->key[i] < 0x20 || entry->key[i] == 0x7f) {
                sight(&control, entry, NULL, 0);
                break;
            }
        for (const JsonValue *field = entry->type == JSON_OBJECT ? entry->child : NULL; field; field = field->next)
            if (!is_known_field(field))
                sight(&unknown, entry, field->key, field->key_length);
    }
    if (f->header_len && f->header_json[0] != '{')
        warn("%s: white space before the header's '{'", f->path);
    if (f->header_len % 8)
        warn("%s: a header of %zu bytes, no multiple of 8: the data is not aligned", f->path, f->header_len);
    if (f->repeated_names)
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
            printf("dtype           %s: %llu tensor%s, %llu parameters, %llu bytes\n", dtype_name((Dtype)d),
                   (unsigned long long)sums[d].tensors, sums[d].tensors == 1 ? "" : "s",
                   (unsigned long long)sums[d].elements, (unsigned long long)sums[d].bytes);
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

static void print_path(const char *path)
{
    print_escaped(stdout, path, strlen(path));
    putchar('\n');
}

static void print_files(const Checkpoint *c)
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *f = checkpoint_file(c, i);
        const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;
        printf("file            ");
        print_escaped(stdout, name, strlen(name));
        printf("   %zu bytes, header %zu, %zu tensor%s\n", f->mapped_size, f->header_len, f->n_tensors,
               f->n_tensors == 1 ? "" : "s");
    }
}

void info_summary(const Checkpoint *c)
{
    uint64_t bytes = 0, parameters = 0;
    char size[32];
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        bytes += checkpoint_file(c, i)->mapped_size;
        parameters += parameters_of(checkpoint_file(c, i));
    }
    print_path(c->st.n_shards ? c->index_path ? c->index_path : c->argument : c->st.path);
    printf("%s       %llu bytes", c->st.n_shards ? "all files" : "file size", (unsigned long long)bytes);
    printf(bytes < 1000 ? "\n" : " (%s)\n", human_bytes(bytes, size));
    if (c->st.n_shards)
        print_files(c);
    else
        printf("header length   %zu\ndata starts at  %zu\n", c->st.header_len, 8 + c->st.header_len);
    printf("tensors         %zu\nparameters      %llu\n", checkpoint_tensor_count(c), (unsigned long long)parameters);
    print_dtypes(c);
    for (size_t i = 0; i < checkpoint_file_count(c) && i < 1; i++)
        print_metadata(checkpoint_file(c, i));
}

/* ---- map --------------------------------------------------------------------------------------------------------- */

static void repeat(char character, int times)
{
    while (times-- > 0)
        putchar(character);
}

static void print_cell(const char *text, int width)
{
    printf("|%-*.*s", width, width, text);
}

/* The chapter's figure: length, header and data of one file. */
static void draw_parts(const SafetensorsFile *f, int width)
{
    const int third = width - 4 - 10 - (width < 56 ? 14 : 20);
    const int cells[3] = {10, width < 56 ? 14 : 20, third > 8 ? third : 8};
    char header_bytes[32], data_bytes[48], start[32], end[32];
    snprintf(header_bytes, sizeof header_bytes, " %zu bytes", f->header_len);
    snprintf(data_bytes, sizeof data_bytes, " %zu bytes", f->data_size);
    snprintf(start, sizeof start, "%zu", 8 + f->header_len);
    snprintf(end, sizeof end, "%zu", f->mapped_size);
    const char *const rows[2][3] = {{" N", " header: JSON", " data"}, {" 8 bytes", header_bytes, data_bytes}};
    printf("%-*s%-*s%-*s%*s\n", cells[0] + 1, "0", cells[1] + 1, "8", (int)strlen(start), start,
           cells[2] + 2 - (int)strlen(start), end);
    for (int row = -1; row < 3; row++) {
        for (int i = 0; i < 3; i++) {
            if (row >= 0 && row < 2) {
                print_cell(rows[row][i], cells[i]);
            } else {
                putchar('+');
                repeat('-', cells[i]);
            }
        }
        puts(row >= 0 && row < 2 ? "|" : "+");
    }
}

/* Tensors of all layers under one name: "model.layers.*.mlp.up_proj.weight". */
typedef struct {
    char *name;
    uint64_t bytes, count;
} Group;

static char *group_name(const SafetensorsTensor *t)
{
    char *name = escaped(t->name, t->name_length), *w = name;
    for (const char *r = name; *r;) {
        size_t digits = r == name || r[-1] == '.' ? strspn(r, "0123456789") : 0;
        if (digits && (r[digits] == '.' || !r[digits])) {
            *w++ = '*';
            r += digits;
        } else {
            *w++ = *r++;
        }
    }
    *w = 0;
    return name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Group *)a)->name, ((const Group *)b)->name);
}

static int by_bytes(const void *a, const void *b)
{
    const Group *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : by_name(a, b);
}

/* Groups of the same name become one; what is left is sorted by size. Returns their number. */
static size_t merge_groups(Group *groups, size_t n)
{
    size_t kept = 0;
    qsort(groups, n, sizeof *groups, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept && !strcmp(groups[kept - 1].name, groups[i].name)) {
            groups[kept - 1].bytes += groups[i].bytes;
            groups[kept - 1].count++;
            free(groups[i].name);
        } else {
            groups[kept++] = groups[i];
        }
    }
    qsort(groups, kept, sizeof *groups, by_bytes);
    return kept;
}

static void draw_bar(const Group *g, uint64_t total, int name_width, int width)
{
    double share = total ? (double)g->bytes / (double)total : 0;
    int room = width - name_width - 10, bar = (int)(share * room + 0.5);
    char count[24] = "", name[256];
    if (g->count > 1)
        snprintf(count, sizeof count, " x%llu", (unsigned long long)g->count);
    int left = name_width - (int)strlen(count);
    snprintf(name, sizeof name, "%s", g->name);
    if ((int)strlen(name) > left && left > 3)
        memcpy(name + left - 3, "...", 4);
    printf("%s%s%*s %5.1f%%%s%s", name, count, name_width - (int)strlen(name) - (int)strlen(count), "", 100 * share,
           bar ? "  " : "", use_color(stdout) ? "\033[36m" : "");
    repeat('#', bar);
    puts(use_color(stdout) ? "\033[0m" : "");
}

#define BARS 8

static void draw_shares(const Checkpoint *c, int width)
{
    size_t n = checkpoint_tensor_count(c);
    Group *groups = must(calloc(n + 1, sizeof *groups)), rest = {NULL, 0, 0};
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        groups[i] = (Group){group_name(t), t->length, 1};
        total += t->length;
    }
    n = merge_groups(groups, n);
    size_t shown = n <= BARS ? n : BARS - 1;
    for (size_t i = shown; i < n; i++) {
        rest.bytes += groups[i].bytes;
        rest.count += groups[i].count;
    }
    rest.name = "others";
    int name_width = 16;
    for (size_t i = 0; i < shown; i++) {
        int needed = (int)strlen(groups[i].name) + (groups[i].count > 1 ? 6 : 0);
        name_width = needed > name_width ? needed : name_width;
    }
    name_width = name_width < width * 5 / 9 ? name_width : width * 5 / 9;
    for (size_t i = 0; i < shown; i++)
        draw_bar(&groups[i], total, name_width, width);
    if (shown < n)
        draw_bar(&rest, total, name_width, width);
    for (size_t i = 0; i < n; i++)
        free(groups[i].name);
    free(groups);
}

void info_map(const Checkpoint *c)
{
    int width = terminal_width(stdout);
    width = width > 101 ? 100 : width < 41 ? 40 : width - 1;
    if (!c->st.n_shards) {
        putchar('\n');
        draw_parts(&c->st, width);
    }
    if (!checkpoint_tensor_count(c))
        return;
    printf("\nshare of the data\n");
    draw_shares(c, width);
}

/* ---- the model: config, tokenizer, memory ------------------------------------------------------------------------ */

/* Bytes of the weights in a mode; 0: not possible in it. BF16 leaves them as they are in the file. */
static uint64_t weight_bytes(const Checkpoint *cp, const Config *c, WeightMode mode)
{
    uint64_t bytes = 0;
    if (mode != MODE_BF16) {
        bytes = weights_copy_bytes(c, mode);
        return bytes == UINT64_MAX ? 0 : bytes;
    }
    for (size_t i = 0; i < checkpoint_tensor_count(cp); i++)
        bytes += checkpoint_tensor(cp, i)->length;
    return bytes;
}

static uint64_t memory_needed(const Checkpoint *cp, const Config *c, WeightMode mode, size_t ctx)
{
    uint64_t weights = weight_bytes(cp, c, mode);
    return weights ? weights + run_state_bytes(c, ctx, common.block < ctx ? common.block : ctx) : 0;
}

/* Context lengths worth a row: powers of four from 2,048 on below the most, then the most. Returns their number. */
static size_t context_rows(const Config *c, size_t rows[8])
{
    size_t n = 0;
    for (size_t ctx = 2048; ctx < usual_context(c) && n < 7; ctx *= 4)
        rows[n++] = ctx;
    rows[n++] = usual_context(c);
    return n;
}

static void print_memory(const Checkpoint *cp, const Config *c)
{
    uint64_t free_bytes = cpu_memory_available();
    size_t rows[8], n = context_rows(c, rows);
    char text[32], cell[40];
    bool some_too_big = false;
    printf("\nmemory for weights, cache and buffers, by context and -w");
    if (free_bytes != UINT64_MAX)
        printf("; %s are free here", human_bytes(free_bytes, text));
    printf("\n%10s", "context");
    for (int mode = MODE_F32; mode <= MODE_Q4; mode++)
        printf("%14s", weight_mode_name((WeightMode)mode));
    for (size_t i = 0; i < n; i++) {
        printf("\n%10zu", rows[i]);
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
            uint64_t need = memory_needed(cp, c, (WeightMode)mode, rows[i]);
            bool too_big = need > free_bytes;
            some_too_big = some_too_big || too_big;
            snprintf(cell, sizeof cell, "%s%s", too_big ? "! " : "", need ? human_bytes(need, text) : "-");
            printf("%14s", cell);
        }
    }
    printf("\n%s", some_too_big ? "         ! more than is free\n" : "");
}

static void print_config(const Config *c)
{
    printf("config          %zu layers, width %zu, %zu query and %zu key/value heads of %zu, inner width %zu,\n",
           c->n_layers, c->dim, c->n_heads, c->n_kv_heads, c->head_dim, c->hidden_dim);
    printf("                vocabulary %zu, %zu positions, head %s\n", c->vocab_size, c->max_positions,
           c->tie_word_embeddings ? "shared with the embedding" : "of its own");
}

static Tokenizer *find_tokenizer(const Checkpoint *c, char err[512])
{
    return tokenizer_open(c->directory, err);
}

void info_model(Checkpoint *c)
{
    Config config;
    char err[512];
    bool known = !checkpoint_read_config(c, &config, err);
    if (known) {
        print_config(&config);
    } else {
        printf("config          ");
        print_path(err);
    }
    Tokenizer *t = find_tokenizer(c, err);
    if (t) {
        printf("tokenizer       %zu ids, %zu merges; chat %s\n", tokenizer_size(t), tokenizer_merges(t),
               tokenizer_chat_problem(t) ? "not possible: see run chat" : "template known");
    } else {
        printf("tokenizer       ");
        print_path(err);
    }
    tokenizer_close(t);
    if (known) {
        print_memory(c, &config);
        config_free(&config);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_tensor_json(const SafetensorsTensor *t)
{
    printf("{\"name\":");
    json_write_string(stdout, t->name, t->name_length);
    printf(",\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    printf("],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
           (unsigned long long)(t->offset + t->length));
}

static void write_file_json(const SafetensorsFile *f, const char *find)
{
    const JsonValue *metadata = json_get(f->header, "__metadata__");
    bool first = true;
    printf("{\"file\":");
    json_write_string(stdout, f->path, strlen(f->path));
    printf(",\"size\":%zu,\"header_len\":%zu,\"data_start\":%zu,\"metadata\":", f->mapped_size, f->header_len,
           8 + f->header_len);
    if (metadata)
        json_print(stdout, metadata, JSON_CANONICAL);
    else
        printf("null");
    printf(",\"parameters\":%llu,\"tensors\":[", (unsigned long long)parameters_of(f));
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (!name_matches(find, f->tensors[i].name, f->tensors[i].name_length))
            continue;
        printf("%s", first ? "" : ",");
        write_tensor_json(&f->tensors[i]);
        first = false;
    }
    printf("]}");
}

static void write_memory_json(const Checkpoint *cp, const Config *c)
{
    size_t rows[8], n = context_rows(c, rows);
    uint64_t free_bytes = cpu_memory_available();
    printf(",\"memory_available\":");
    printf(free_bytes == UINT64_MAX ? "null" : "%llu", (unsigned long long)free_bytes);
    printf(",\"memory\":[");
    for (size_t i = 0; i < n; i++) {
        printf("%s{\"context\":%zu", i ? "," : "", rows[i]);
        for (int mode = MODE_F32; mode <= MODE_Q4; mode++) {
            uint64_t need = memory_needed(cp, c, (WeightMode)mode, rows[i]);
            printf(",\"%s\":", weight_mode_name((WeightMode)mode));
            printf(need ? "%llu" : "null", (unsigned long long)need);
        }
        putchar('}');
    }
    putchar(']');
}

/* config.json as it is; NULL if it is none. */
static JsonValue *read_config_json(const Checkpoint *c, char **text)
{
    size_t size = strlen(c->directory) + 32, length;
    char *path = must(malloc(size)), err[512];
    snprintf(path, size, "%s/config.json", c->directory);
    *text = file_read(path, (size_t)16 << 20, &length, err);
    free(path);
    return *text ? json_parse(*text, length, err) : NULL;
}

static void write_model_json(Checkpoint *c, const char *find)
{
    Config config;
    char err[512], *text;
    bool known = !checkpoint_read_config(c, &config, err);
    JsonValue *root = read_config_json(c, &text);
    printf("{\"model\":");
    json_write_string(stdout, c->argument ? c->argument : c->directory,
                      strlen(c->argument ? c->argument : c->directory));
    printf(",\"files\":[");
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        printf("%s", i ? "," : "");
        write_file_json(checkpoint_file(c, i), find);
    }
    printf("],\"config\":");
    if (root)
        json_print(stdout, root, JSON_COMPACT);
    else
        printf("null");
    json_free(root);
    free(text);
    printf(",\"config_problem\":");
    if (known)
        printf("null");
    else
        json_write_string(stdout, err, strlen(err));
    Tokenizer *t = find_tokenizer(c, err);
    if (t)
        printf(",\"tokenizer\":{\"ids\":%zu,\"merges\":%zu}", tokenizer_size(t), tokenizer_merges(t));
    else
        printf(",\"tokenizer\":null");
    tokenizer_close(t);
    if (known) {
        write_memory_json(c, &config);
        config_free(&config);
    }
    printf("}\n");
}

void info_json(Checkpoint *c, const char *find)
{
    if (c->from_directory) {
        write_model_json(c, find);
    } else {
        write_file_json(checkpoint_file(c, 0), find);
        putchar('\n');
    }
}
