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
#include "checkpoint/edit.h"
#include "checkpoint/fingerprint.h"
#include "commands/input.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"

#include <errno.h>
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

/* ---- printing ---------------------------------------------------------------------------------------------------- */

/* If the file's name has line ends or backslashes, sha256sum writes them as \n, \r and \\ and begins the line with
 * \. On a terminal, what could drive it is written the same way. */
static void print_file_line(const char *hex, const char *path)
{
    static const char special[] = "\\\n\r", letters[] = "\\nr";
    char *shown = escaped(path, strlen(path));
    bool visible = !isatty(STDOUT_FILENO) || !strcmp(shown, path);
    printf("%s%s  ", !visible || strpbrk(path, special) ? "\\" : "", hex);
    for (const char *end = path + strlen(path); path < end;) {
        char out[TEXT_VISIBLE];
        const char *found = strchr(special, *path);
        size_t length = found || visible ? 1 : text_visible(path, (size_t)(end - path), "", out);
        if (found)
            printf("\\%c", letters[found - special]);
        else
            printf("%.*s", visible ? 1 : TEXT_VISIBLE, visible ? path : out);
        path += length;
    }
    putchar('\n');
    free(shown);
}

static void print_file(const SafetensorsFile *st, const Digest digest, bool first)
{
    char hex[65];
    sha256_hex(digest, hex);
    if (common.json) {
        write_name(first ? "{\"file\":" : ",{\"file\":", st->path);
        printf(",\"sha256\":\"%s\",\"tensors\":[", hex);
    } else {
        print_file_line(hex, st->path);
    }
}

static void print_tensor_hash(const SafetensorsTensor *t, const Digest digest, bool first)
{
    char hex[65];
    JsonValue name = {.type = JSON_STRING, .text = t->name, .length = t->name_length};
    sha256_hex(digest, hex);
    if (common.json) {
        write_string(first ? "\n{\"name\":" : ",\n{\"name\":", t->name, t->name_length);
        printf(",\"sha256\":\"%s\"}", hex);
    } else {
        printf("# %s  ", hex);
        json_print(stdout, &name, JSON_CANONICAL);
        putchar('\n');
    }
}

/* Hash the files and tensors of a checkpoint, and print the hashes in its order. */
static void hash_model(const Checkpoint *c)
{
    size_t n_files = checkpoint_file_count(c), n_tensors = checkpoint_tensor_count(c);
    Sha256Task *tasks = xcalloc(n_files + n_tensors, sizeof *tasks);
    Digest *of_files = xcalloc(n_files, sizeof *of_files), *of_tensors = xcalloc(n_tensors, sizeof *of_tensors);
    char fingerprint[65], err[512];
    die_if(edit_keep_off(c, err), err);
    for (size_t f = 0; f < n_files; f++)
        tasks[f] = (Sha256Task){checkpoint_file(c, f)->mapped, checkpoint_file(c, f)->mapped_size, of_files[f]};
    for (size_t i = 0; i < n_tensors; i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        tasks[n_files + i] = (Sha256Task){safetensors_data(t), t->length, of_tensors[i]};
    }
    run_tasks(tasks, n_files + n_tensors);
    die_if(checkpoint_check_unchanged(c, err), err);
    die_if(fingerprint_of(c, (const Digest *)of_tensors, fingerprint, err), err);

    if (common.json)
        printf("{\"fingerprint\":\"%s\",\"files\":[", fingerprint);
    for (size_t f = 0, i = 0; f < n_files; f++) {
        print_file(checkpoint_file(c, f), of_files[f], f == 0);
        for (size_t first = i; i < n_tensors && checkpoint_tensor(c, i)->file == checkpoint_file(c, f); i++)
            print_tensor_hash(checkpoint_tensor(c, i), of_tensors[i], i == first);
        if (common.json)
            printf("]}");
    }
    if (common.json)
        printf("]}\n");
    else
        printf("# %s  model\n", fingerprint);
    free(of_tensors);
    free(of_files);
    free(tasks);
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

typedef struct {
    Digest wanted, found;
    Text name;           /* of the file or tensor; may hold NUL */
    const char *problem; /* why found could not be computed, or NULL */
} Line;

#define MOST_OPEN 64 /* files at a time; a list may name more than a process may open */

typedef struct {
    Line *lines;
    Sha256Task *tasks;
    SafetensorsFile files[MOST_OPEN]; /* opened, for the lines of tensors that follow a file's line, too */
    size_t n, n_tasks, n_files;       /* n_tasks, n_files: of the files that are open */
    size_t n_malformed;               /* lines that are neither a checksum nor a comment */
} List;

static void add_bytes(void *context, const void *bytes, size_t n)
{
    sha256_update(context, bytes, n);
}

/* Hash a file that is not a checkpoint. */
static int hash_other(const char *path, Digest digest, char err[512])
{
    Sha256 s;
    size_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0)
        return -1;
    sha256_init(&s);
    int status = input_read(fd, add_bytes, &s) == 0 ? 0 : fail(err, "%s", strerror(errno));
    sha256_final(&s, digest);
    close(fd);
    return status;
}

/* Hash what is open, and close it. */
static void finish_files(List *list)
{
    run_tasks(list->tasks, list->n_tasks);
    for (size_t i = 0; i < list->n_files; i++)
        safetensors_close(&list->files[i]);
    list->n_tasks = list->n_files = 0;
}

static void add_file(List *list, Line *line, const char *path)
{
    char err[512];
    if (list->n_files == MOST_OPEN)
        finish_files(list);
    SafetensorsFile *st = &list->files[list->n_files++];
    *st = (SafetensorsFile){0};
    xappend(&line->name, path, strlen(path));
    if (safetensors_open(path, st) == 0) {
        list->tasks[list->n_tasks++] = (Sha256Task){st->mapped, st->mapped_size, line->found};
    } else if (hash_other(path, line->found, err) != 0) {
        warn("%s: %s", path, err);
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
    xappend(&line->name, name->text, name->length);
    if (!st || !st->mapped)
        line->problem = "FAILED: its file cannot be read";
    else if (safetensors_find_n(st, name->text, name->length, &t) != 0)
        line->problem = "FAILED: no such tensor";
    else
        list->tasks[list->n_tasks++] = (Sha256Task){safetensors_data(&t), t.length, line->found};
    json_free(name);
    return 0;
}

/* Cut a line of a list into the checksum's digits and the name: "HEX  NAME", "HEX *NAME", "HEX NAME", or with
 * sha256sum --tag "SHA256 (NAME) = HEX". False if it is something else. */
static bool cut_line(char *text, char **hex, char **name)
{
    static const char tag[] = "SHA256 (", end[] = ") = ";
    char *last = text + strlen(text);
    if (strncmp(text, tag, strlen(tag)) == 0) {
        *name = text + strlen(tag);
        if ((size_t)(last - *name) <= strlen(end) + 64) /* a name of one byte at least */
            return false;
        *hex = last - 64;
        char *close = *hex - strlen(end);
        bool closes = strncmp(close, end, strlen(end)) == 0;
        *close = '\0';
        return closes;
    }
    if (last - text < 66 || text[64] != ' ')
        return false;
    *hex = text;
    *name = text + 65 + (text[65] == ' ' || text[65] == '*' ? 1 : 0);
    return **name != '\0';
}

static void add_line(List *list, char *text)
{
    bool is_tensor = text[0] == '#' && text[1] == ' ', is_escaped = text[0] == '\\';
    char *hex, *name;
    Line *line = &list->lines[list->n];
    bool is_checksum = cut_line(text + (is_escaped ? 1 : 0) + (is_tensor ? 2 : 0), &hex, &name) &&
                       sha256_parse(hex, line->wanted) == 0;
    bool is_comment = is_checksum ? is_tensor && strcmp(name, "model") == 0 : text[0] == '#' || !text[0];
    if (is_comment)
        return;
    if (!is_checksum || (is_tensor && add_tensor(list, line, name) != 0)) {
        list->n_malformed++;
        return;
    }
    if (is_escaped)
        input_unescape(name, strlen(name));
    if (!is_tensor)
        add_file(list, line, name);
    list->n++;
}

static void read_list(List *list, const char *path)
{
    Text text = {0};
    size_t most = 1;
    input_text(&text, NULL, path);
    for (size_t i = 0; i < text.length; i++)
        most += text.bytes[i] == '\n' ? 1 : 0;
    *list = (List){.lines = xcalloc(most, sizeof *list->lines), .tasks = xcalloc(most, sizeof *list->tasks)};
    for (char *line, *rest = text.bytes; (line = strsep(&rest, "\n"));) {
        size_t end = strlen(line);
        if (end && line[end - 1] == '\r')
            line[end - 1] = '\0';
        add_line(list, line);
    }
    finish_files(list);
    text_free(&text);
}

static void free_list(List *list)
{
    for (size_t i = 0; i < list->n; i++)
        text_free(&list->lines[i].name);
    free(list->tasks);
    free(list->lines);
}

static int check_list(const char *path)
{
    const char *name = input_name(path);
    static List list;
    read_list(&list, path);
    size_t unread = 0, wrong = 0, malformed = list.n_malformed;
    if (list.n == 0)
        die(EXIT_FAILED, "%s: no properly formatted checksum lines found", name);
    if (common.json)
        printf("{\"checked\":%zu,\"bad\":[", list.n);
    for (size_t i = 0; i < list.n; i++) {
        const Line *l = &list.lines[i];
        bool differs = !l->problem && memcmp(l->found, l->wanted, sizeof l->wanted) != 0;
        const char *problem = differs ? "FAILED" : l->problem;
        if (common.json && problem) {
            write_string(unread + wrong ? ",{\"name\":" : "{\"name\":", l->name.bytes, l->name.length);
            printf(",\"problem\":\"%s\"}", problem);
        } else if (!common.json && (problem || !quiet)) {
            print_escaped(stdout, l->name.bytes, l->name.length);
            printf(": %s\n", problem ? problem : "OK");
        }
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
    hash_model(&c);
    threads_stop();
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
