/* run hash: SHA-256 of files and of their tensors, in the format of sha256sum.
 *
 *     HASH  FILE           as sha256sum prints it, and takes it with -c
 *     # HASH  "TENSOR"     the bytes of a tensor of the file above, its name as a JSON string in ASCII
 *     # HASH  model        the model's fingerprint (checkpoint/patch.h), however the model is cut into files
 *
 * sha256sum -c skips lines that begin with #.
 */
#include "base/sha256.h"
#include "base/threads.h"
#include "checkpoint/fingerprint.h"
#include "commands/input.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

static void run_tasks(Sha256Task *tasks, size_t n)
{
    Progress p = {.what = "hashing"};
    for (size_t i = 0; i < n; i++)
        p.total += tasks[i].length;
    sha256_all(tasks, n, tell_progress, &p);
    progress_end();
}

/* The hashes of a checkpoint's files and tensors. */
typedef struct {
    const Checkpoint *checkpoint;
    size_t n_files, n_tensors;
    Digest *files, *tensors;           /* [n_files], [n_tensors], in the checkpoint's order */
    const SafetensorsTensor **entries; /* [n_tensors] */
} Hashes;

static Hashes hash_all(const Checkpoint *c)
{
    Hashes h = {.checkpoint = c, .n_files = checkpoint_file_count(c), .n_tensors = checkpoint_tensor_count(c)};
    Sha256Task *tasks = xcalloc(h.n_files + h.n_tensors, sizeof *tasks);
    h.files = xcalloc(h.n_files, sizeof *h.files);
    h.tensors = xcalloc(h.n_tensors, sizeof *h.tensors);
    h.entries = xcalloc(h.n_tensors, sizeof *h.entries);
    for (size_t i = 0; i < h.n_files; i++)
        tasks[i] = (Sha256Task){checkpoint_file(c, i)->mapped, checkpoint_file(c, i)->mapped_size, h.files[i]};
    for (size_t i = 0; i < h.n_tensors; i++) {
        h.entries[i] = checkpoint_tensor(c, i);
        tasks[h.n_files + i] = (Sha256Task){safetensors_data(h.entries[i]), h.entries[i]->length, h.tensors[i]};
    }
    run_tasks(tasks, h.n_files + h.n_tensors);
    model_check_sizes(c);
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
    die_if(fingerprint_of(h->checkpoint, (const Digest *)h->tensors, hex, err), err);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

/* If the file's name has line ends or backslashes, sha256sum writes them as \n, \r and \\ and begins the line with
 * \. */
static void print_file_line(const char *hex, const char *path)
{
    static const char special[] = "\\\n\r", letters[] = "\\nr";
    printf("%s%s  ", strpbrk(path, special) ? "\\" : "", hex);
    for (; *path; path++) {
        const char *found = strchr(special, *path);
        if (found)
            printf("\\%c", letters[found - special]);
        else
            putchar(*path);
    }
    putchar('\n');
}

static void print_tensor_name(const SafetensorsTensor *t)
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
            print_tensor_name(h->entries[i]);
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
        write_name(f ? ",{\"file\":" : "{\"file\":", st->path);
        printf(",\"sha256\":\"%s\",\"tensors\":[", hex);
        for (; i < h->n_tensors && h->entries[i]->file == st; i++, between = ",") {
            sha256_hex(h->tensors[i], hex);
            printf("%s\n{", between);
            write_string("\"name\":", h->entries[i]->name, h->entries[i]->name_length);
            printf(",\"sha256\":\"%s\"}", hex);
        }
        printf("]}");
    }
    printf("]}\n");
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

typedef struct {
    Digest wanted, found;
    char *name; /* of the file or tensor; fresh, may hold NUL */
    size_t name_length;
    const char *problem; /* why found could not be computed, or NULL */
} Line;

typedef struct {
    Line *lines;
    Sha256Task *tasks;
    SafetensorsFile *files; /* opened for the lines of tensors that follow a file's line */
    size_t n, n_tasks, n_files;
    size_t n_malformed; /* lines that are neither a checksum nor a comment */
} List;

static void add_bytes(void *context, const void *bytes, size_t n)
{
    sha256_update(context, bytes, n);
}

/* Hash a file that is not a checkpoint. -1 with errno. */
static int hash_other(const char *path, Digest digest)
{
    Sha256 s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    sha256_init(&s);
    int status = input_read(fd, add_bytes, &s), error = errno;
    sha256_final(&s, digest);
    close(fd);
    errno = error;
    return status;
}

/* Undo in place what print_file_line() does to names. */
static void unescape(char *name)
{
    char *out = name;
    for (; *name; name++, out++) {
        *out = *name;
        if (*name != '\\' || !name[1])
            continue;
        *out = *++name;
        if (*name == 'n')
            *out = '\n';
        else if (*name == 'r')
            *out = '\r';
    }
    *out = '\0';
}

static void add_file(List *list, Line *line, const char *path)
{
    SafetensorsFile *st = &list->files[list->n_files++];
    line->name = xstrdup(path);
    line->name_length = strlen(path);
    if (safetensors_open(path, st) == 0) {
        list->tasks[list->n_tasks++] = (Sha256Task){st->mapped, st->mapped_size, line->found};
    } else if (hash_other(path, line->found) != 0) {
        warn("%s: %s", path, strerror(errno));
        line->problem = "FAILED open or read";
    }
}

/* Add a tensor of the last file. -1 if its name is not a JSON string. */
static int add_tensor(List *list, Line *line, const char *json)
{
    char err[512];
    JsonValue *name = json_parse(json, strlen(json), err);
    SafetensorsFile *st = list->n_files ? &list->files[list->n_files - 1] : NULL;
    SafetensorsTensor t;
    if (!name || name->type != JSON_STRING) {
        json_free(name);
        return -1;
    }
    line->name = xcalloc(name->length + 1, 1);
    line->name_length = name->length;
    memcpy(line->name, name->text, name->length);
    if (!st || !st->mapped)
        line->problem = "FAILED: its file cannot be read";
    else if (safetensors_find_n(st, name->text, name->length, &t) != 0)
        line->problem = "FAILED: no such tensor";
    else
        list->tasks[list->n_tasks++] = (Sha256Task){safetensors_data(&t), t.length, line->found};
    json_free(name);
    return 0;
}

static void add_line(List *list, char *text)
{
    bool is_tensor = text[0] == '#' && text[1] == ' ', is_escaped = text[0] == '\\';
    char *hex = text + (is_escaped ? 1 : 0) + (is_tensor ? 2 : 0), *name = hex + 66;
    Line *line = &list->lines[list->n];
    bool is_checksum = strnlen(hex, 67) == 67 && sha256_parse(hex, line->wanted) == 0 && hex[64] == ' ' &&
                       (hex[65] == ' ' || hex[65] == '*');
    if (!is_checksum) {
        if (text[0] != '#' && text[0] != '\0')
            list->n_malformed++;
        return;
    }
    if (is_tensor && strcmp(name, "model") == 0)
        return;
    if (is_escaped)
        unescape(name);
    if (!is_tensor)
        add_file(list, line, name);
    else if (add_tensor(list, line, name) != 0)
        list->n_malformed++;
    if (line->name)
        list->n++;
}

static List read_list(const char *path)
{
    Text text = {0};
    size_t most = 1;
    input_text(&text, NULL, path);
    for (size_t i = 0; i < text.length; i++)
        most += text.bytes[i] == '\n' ? 1 : 0;
    List list = {.lines = xcalloc(most, sizeof *list.lines),
                 .tasks = xcalloc(most, sizeof *list.tasks),
                 .files = xcalloc(most, sizeof *list.files)};
    for (char *line, *rest = text.bytes; (line = strsep(&rest, "\n"));) {
        size_t end = strlen(line);
        if (end && line[end - 1] == '\r')
            line[end - 1] = '\0';
        add_line(&list, line);
    }
    text_free(&text);
    return list;
}

/* problem: NULL if the checksum matches; before: how many others did not. */
static void print_line(const Line *l, const char *problem, size_t before)
{
    if (common.json && problem) {
        write_string(before ? ",{\"name\":" : "{\"name\":", l->name, l->name_length);
        printf(",\"problem\":\"%s\"}", problem);
    } else if (!common.json && (problem || !quiet)) {
        print_escaped(stdout, l->name, l->name_length);
        printf(": %s\n", problem ? problem : "OK");
    }
}

static void free_list(List *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->lines[i].name);
    for (size_t i = 0; i < list->n_files; i++)
        safetensors_close(&list->files[i]);
    free(list->files);
    free(list->tasks);
    free(list->lines);
}

static int check_list(const char *path)
{
    const char *name = input_name(path);
    List list = read_list(path);
    size_t unread = 0, wrong = 0, malformed = list.n_malformed;
    if (list.n == 0)
        die(EXIT_FAILED, "%s: no properly formatted checksum lines found", name);
    run_tasks(list.tasks, list.n_tasks);
    if (common.json)
        printf("{\"checked\":%zu,\"bad\":[", list.n);
    for (size_t i = 0; i < list.n; i++) {
        const Line *l = &list.lines[i];
        bool differs = !l->problem && memcmp(l->found, l->wanted, sizeof l->wanted) != 0;
        print_line(l, differs ? "FAILED" : l->problem, unread + wrong);
        wrong += differs ? 1 : 0;
        unread += l->problem ? 1 : 0;
    }
    if (common.json)
        printf("],\"no_checksums\":%zu}\n", malformed);
    if (malformed)
        warn("%s: %zu line%s improperly formatted", name, malformed, malformed == 1 ? " is" : "s are");
    if (unread)
        warn("%zu listed file%s or tensor%s could not be read", unread, plural(unread), plural(unread));
    if (wrong)
        warn("%zu of %zu computed checksum%s did NOT match", wrong, list.n - unread, plural(list.n - unread));
    free_list(&list);
    return finish(unread || wrong || malformed ? EXIT_FAILED : EXIT_OK);
}

int cmd_hash(int argc, char **argv)
{
    const char *list = NULL;
    const Option options[] = {
        {0, "check", "LIST", OPTION_TEXT, &list,
         "verify the checksums in LIST, as run hash or sha256sum printed them; - is standard input"},
        THREADS_OPTION,
        JSON_OPTION,
        {0},
    };
    int count = options_parse(argc, argv, options, "run hash MODEL\nrun hash --check LIST",
                              "run hash model.safetensors > list\n"
                              "run hash --check list -q       # prints only what does not match\n"
                              "sha256sum -c list              # the files alone\n");
    if (!list == !count)
        usage_error("give either MODEL or --check LIST");
    session_start_pool();
    if (list)
        return check_list(list);
    Checkpoint c;
    model_open(&c, argv[1]);
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
