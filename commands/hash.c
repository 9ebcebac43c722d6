/* run hash: SHA-256 of files and of their tensors, in the form of sha256sum.
 *
 *     HASH  FILE           as sha256sum prints it, and takes it with -c
 *     # HASH  "TENSOR"     the bytes of a tensor of the file above, its name as a JSON string in ASCII
 *     # HASH  model        the model's fingerprint (checkpoint_patch.h), which does not depend on how it is cut into
 * files
 *
 * sha256sum -c passes over lines that begin with #.
 */
#include "base/sha256.h"
#include "base/threads.h"
#include "checkpoint/fingerprint.h"
#include "commands/slice.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

static void run_tasks(Sha256Task *tasks, size_t n)
{
    Progress p = {.what = "hashing"};
    for (size_t i = 0; i < n; i++)
        p.total += tasks[i].length;
    sha256_all(tasks, n, tell_progress, &p);
    progress_end();
}

/* The files of a checkpoint and their tensors, hashed. */
typedef struct {
    const Checkpoint *checkpoint;
    size_t n_files, n_tensors;
    Digest *files, *tensors;           /* in order; tensors as checkpoint_tensor() */
    const SafetensorsTensor **entries; /* [n_tensors] */
} Hashes;

static Hashes hash_all(const Checkpoint *c)
{
    Hashes h = {.checkpoint = c, .n_files = checkpoint_file_count(c), .n_tensors = checkpoint_tensor_count(c)};
    Sha256Task *tasks = must(calloc(h.n_files + h.n_tensors, sizeof *tasks));
    h.files = must(calloc(h.n_files, sizeof *h.files));
    h.tensors = must(calloc(h.n_tensors + 1, sizeof *h.tensors));
    h.entries = must(calloc(h.n_tensors + 1, sizeof *h.entries));
    for (size_t i = 0; i < h.n_files; i++)
        tasks[i] = (Sha256Task){checkpoint_file(c, i)->mapped, checkpoint_file(c, i)->mapped_size, h.files[i]};
    for (size_t i = 0; i < h.n_tensors; i++) {
        h.entries[i] = checkpoint_tensor(c, i);
        tasks[h.n_files + i] = (Sha256Task){safetensors_data(h.entries[i]), h.entries[i]->length, h.tensors[i]};
    }
    run_tasks(tasks, h.n_files + h.n_tensors);
    check_sizes(c);
    free(tasks);
    return h;
}

static void free_hashes(Hashes *h)
{
    free(h->entries);
    free(h->tensors);
    free(h->files);
}

static void model_fingerprint(const Hashes *h, char hex[65])
{
    char err[512];
    if (fingerprint_of(h->checkpoint, (const Digest *)h->tensors, hex, err) != 0)
        die(EXIT_FAILED, "%s", err);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

/* sha256sum puts \ before a line in which line ends and backslashes of the file's name are written as \n, \r and \\. */
static void print_file_line(const char *hex, const char *path)
{
    bool escape = strpbrk(path, "\\\n\r") != NULL;
    printf("%s%s  ", escape ? "\\" : "", hex);
    for (; *path; path++) {
        if (*path == '\\' || *path == '\n' || *path == '\r')
            printf("\\%c", *path == '\n' ? 'n' : *path == '\r' ? 'r' : '\\');
        else
            putchar(*path);
    }
    putchar('\n');
}

static void print_name(const SafetensorsTensor *t)
{
    JsonValue name = {.type = JSON_STRING, .text = t->name, .length = t->name_length};
    json_print(stdout, &name, JSON_CANONICAL);
}

static void print_hashes(const Hashes *h)
{
    char hex[65];
    size_t i = 0;
    for (size_t f = 0; f < h->n_files; f++) {
        const SafetensorsFile *st = checkpoint_file(h->checkpoint, f);
        sha256_hex(h->files[f], hex);
        print_file_line(hex, st->path);
        for (; i < h->n_tensors && h->entries[i]->file == st; i++) {
            sha256_hex(h->tensors[i], hex);
            printf("# %s  ", hex);
            print_name(h->entries[i]);
            putchar('\n');
        }
    }
    model_fingerprint(h, hex);
    printf("# %s  model\n", hex);
}

static void write_hashes(const Hashes *h)
{
    char hex[65];
    size_t i = 0;
    model_fingerprint(h, hex);
    printf("{\"fingerprint\":\"%s\",\"files\":[", hex);
    for (size_t f = 0; f < h->n_files; f++) {
        const SafetensorsFile *st = checkpoint_file(h->checkpoint, f);
        const char *between = "";
        sha256_hex(h->files[f], hex);
        printf("%s{\"file\":", f ? "," : "");
        json_write_string(stdout, st->path, strlen(st->path));
        printf(",\"sha256\":\"%s\",\"tensors\":[", hex);
        for (; i < h->n_tensors && h->entries[i]->file == st; i++, between = ",") {
            sha256_hex(h->tensors[i], hex);
            printf("%s\n{\"name\":", between);
            json_write_string(stdout, h->entries[i]->name, h->entries[i]->name_length);
            printf(",\"sha256\":\"%s\"}", hex);
        }
        printf("]}");
    }
    printf("]}\n");
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

/* A line of a list. */
typedef struct {
    Digest wanted, found;
    char *name; /* fresh; name_length bytes of the file's or tensor's name */
    size_t name_length;
    const char *problem; /* NULL: found tells */
} Line;

typedef struct {
    Line *lines;
    Sha256Task *tasks;
    SafetensorsFile *files; /* opened, for the tensors' lines after a file's */
    size_t n, n_tasks, n_files, odd;
} List;

/* A file that is no checkpoint. */
static int hash_other(const char *path, Digest digest)
{
    unsigned char *piece = must(malloc(PIECE));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 0;
    Sha256 s;
    sha256_init(&s);
    while (fd >= 0 && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR)))
        sha256_update(&s, piece, n > 0 ? (size_t)n : 0);
    int error = errno;
    sha256_final(&s, digest);
    if (fd >= 0)
        close(fd);
    free(piece);
    errno = error;
    return n < 0 ? -1 : 0;
}

/* Undoes what sha256sum does to names. In place. */
static void unescape(char *name)
{
    char *out = name;
    for (; *name; name++) {
        if (*name == '\\' && name[1])
            *out++ = *++name == 'n' ? '\n' : *name == 'r' ? '\r' : *name;
        else
            *out++ = *name;
    }
    *out = '\0';
}

static void add_file(List *list, Line *line, const char *path)
{
    SafetensorsFile *st = &list->files[list->n_files++];
    line->name = must(strdup(path));
    line->name_length = strlen(path);
    if (safetensors_open(path, st) == 0) {
        list->tasks[list->n_tasks++] = (Sha256Task){st->mapped, st->mapped_size, line->found};
    } else if (hash_other(path, line->found) != 0) {
        warn("%s: %s", path, strerror(errno));
        line->problem = "FAILED open or read";
    }
}

/* A tensor of the last file. -1: the name is no JSON string. */
static int add_tensor(List *list, Line *line, const char *json)
{
    char err[512];
    JsonValue *name = json_parse(json, strlen(json), err);
    SafetensorsTensor t;
    bool is_name = name && name->type == JSON_STRING;
    if (is_name) {
        line->name = must(calloc(name->length + 1, 1));
        line->name_length = name->length;
        memcpy(line->name, name->text, name->length);
        SafetensorsFile *st = list->n_files ? &list->files[list->n_files - 1] : NULL;
        if (st && st->mapped && safetensors_find_n(st, name->text, name->length, &t) == 0)
            list->tasks[list->n_tasks++] = (Sha256Task){safetensors_data(&t), t.length, line->found};
        else
            line->problem = st && st->mapped ? "FAILED: no such tensor" : "FAILED: its file cannot be read";
    }
    json_free(name);
    return is_name ? 0 : -1;
}

static void add_line(List *list, char *text)
{
    bool tensor = text[0] == '#' && text[1] == ' ', escape = text[0] == '\\';
    char *hex = text + (tensor ? 2 : escape), *name = hex + 66;
    Line *line = &list->lines[list->n];
    if (strnlen(hex, 67) < 67 || sha256_parse(hex, line->wanted) != 0 || hex[64] != ' ' ||
        (hex[65] != ' ' && hex[65] != '*')) {
        list->odd += text[0] != '#' && text[0] != '\0'; /* any other comment is fine */
        return;
    }
    if (tensor && strcmp(name, "model") == 0)
        return;
    if (escape)
        unescape(name);
    if (!tensor)
        add_file(list, line, name);
    else if (add_tensor(list, line, name) != 0)
        list->odd++;
    list->n += line->name != NULL;
}

static List read_list(const char *path)
{
    size_t length, most = 1;
    char *text = read_prompt(NULL, path, &length), *rest = text;
    for (size_t i = 0; i < length; i++)
        most += text[i] == '\n';
    List list = {.lines = must(calloc(most, sizeof *list.lines)),
                 .tasks = must(calloc(most, sizeof *list.tasks)),
                 .files = must(calloc(most, sizeof *list.files))};
    for (char *line; (line = strsep(&rest, "\n"));) {
        size_t end = strlen(line);
        if (end && line[end - 1] == '\r')
            line[end - 1] = '\0';
        add_line(&list, line);
    }
    free(text);
    return list;
}

/* problem: NULL if the line fits; before: how many others did not. */
static void tell_line(const Line *l, const char *problem, size_t before)
{
    if (common.json && problem) {
        printf("%s{\"name\":", before ? "," : "");
        json_write_string(stdout, l->name, l->name_length);
        printf(",\"problem\":\"%s\"}", problem);
    } else if (!common.json && (problem || !common.quiet)) {
        print_escaped(stdout, l->name, l->name_length);
        printf(": %s\n", problem ? problem : "OK");
    }
}

static int check_list(const char *path)
{
    const char *name = strcmp(path, "-") ? path : "standard input";
    List list = read_list(path);
    size_t bad = 0;
    if (list.n == 0)
        die(EXIT_FAILED, "%s: no line is a checksum", name);
    run_tasks(list.tasks, list.n_tasks);
    if (common.json)
        printf("{\"checked\":%zu,\"bad\":[", list.n);
    for (size_t i = 0; i < list.n; i++) {
        Line *l = &list.lines[i];
        const char *problem = l->problem ? l->problem : memcmp(l->found, l->wanted, 32) ? "FAILED" : NULL;
        tell_line(l, problem, bad);
        bad += problem != NULL;
        free(l->name);
    }
    if (common.json)
        printf("],\"no_checksums\":%zu}\n", list.odd);
    for (size_t i = 0; i < list.n_files; i++)
        safetensors_close(&list.files[i]);
    free(list.files);
    free(list.tasks);
    free(list.lines);
    if (list.odd)
        warn("%s: %zu line%s no checksum%s", name, list.odd, list.odd == 1 ? " is" : "s are", list.odd == 1 ? "" : "s");
    if (bad)
        warn("%zu of %zu do not fit", bad, list.n);
    return finish(bad || list.odd ? EXIT_FAILED : EXIT_OK);
}

int cmd_hash(int argc, char **argv)
{
    const char *list = NULL;
    const Option options[] = {
        {0, "check", "LIST", OPTION_TEXT, &list, "verify what run hash or sha256sum printed; - is standard input"},
        {'t', "threads", "N", OPTION_COUNT, &common.threads, "default: the cores that this process may use"},
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(argc, argv, options, false, "run hash MODEL\nrun hash --check LIST",
                              "run hash model.safetensors > list\n"
                              "run hash --check list -q       # only what does not fit\n"
                              "sha256sum -c list              # the files alone\n");
    arguments_at_most(count, list ? 0 : 1, argv);
    if (!list && count < 1)
        usage_error("name the checkpoint");
    start_pool();
    if (list)
        return check_list(list);
    Checkpoint c;
    open_checkpoint(&c, argv[1]);
    Hashes h = hash_all(&c);
    if (common.json)
        write_hashes(&h);
    else
        print_hashes(&h);
    free_hashes(&h);
    threads_stop();
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
