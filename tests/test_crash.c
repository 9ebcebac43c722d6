/* Crash tests: at each call that changes a file, the program is killed, loses power, or finds the disk full or failing,
 * while it edits, undoes, masks, patches, splits and merges (preload_crashes.c makes that happen). After each run the
 * files must be as before or as after, or there is a journal that brings back what was before, to the byte.
 */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"

static char folder[] = "/tmp/run-crash-XXXXXX";
static char library[64]; /* preload_crashes.c as a library */
static const char *program;
static size_t runs, undone;

static const struct {
    const char *kind;
    const char *power;
    bool killed; /* the process does not end by itself */
} faults[] = {{"kill", "0", true},  {"after", "0", true}, {"half", "0", true},   {"power", "0", true},
              {"power", "1", true}, {"power", "2", true}, {"power", "3", true},  {"enospc", "0", false},
              {"eio", "0", false},  {"full", "0", false}, {"eintr", "0", false}, {"short", "0", false}};
#define FAULTS (sizeof faults / sizeof *faults)

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_all(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void path_in(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", folder, name);
}

/* The bytes of a file. */
typedef struct {
    unsigned char *bytes;
    size_t n;
} Bytes;

static Bytes read_file(const char *name)
{
    char path[256];
    struct stat info;
    Bytes b = {0};
    path_in(path, name);
    FILE *f = fopen(path, "rb");
    if (f && fstat(fileno(f), &info) == 0 && (b.bytes = malloc((size_t)info.st_size + 1)))
        b.n = fread(b.bytes, 1, (size_t)info.st_size, f);
    if (f)
        fclose(f);
    return b;
}

static void write_file(const char *name, Bytes b)
{
    char path[256];
    path_in(path, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b.bytes, 1, b.n, f) != b.n || fclose(f) != 0)
        check(false, "cannot write %s", path);
}

static bool is_file(const char *name, Bytes b)
{
    Bytes now = read_file(name);
    bool same = now.bytes && now.n == b.n && memcmp(now.bytes, b.bytes, b.n) == 0;
    free(now.bytes);
    return same;
}

static int is_part(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 5 && strcmp(e->d_name + n - 5, ".part") == 0;
}

static void remove_parts(void)
{
    struct dirent **list;
    int n = scandir(folder, &list, is_part, NULL);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        unlink(path);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
}

/* Does a name in the folder end like that? */
static bool has_name(const char *where, const char *end)
{
    DIR *d = opendir(where);
    bool found = false;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name), m = strlen(end);
        found = found || (n >= m && strcmp(e->d_name + n - m, end) == 0);
    }
    if (d)
        closedir(d);
    return found;
}

/* A .safetensors file of this header and n bytes made from `seed`. */
static Bytes make_file(const char *header, size_t n, unsigned seed)
{
    size_t length = strlen(header);
    Bytes b = {calloc(1, 8 + length + n), 8 + length + n};
    b.bytes[0] = (unsigned char)length;
    b.bytes[1] = (unsigned char)(length >> 8);
    memcpy(b.bytes + 8, header, length);
    for (size_t i = 0; i < n; i++)
        b.bytes[8 + length + i] = (unsigned char)((i * 2654435761u + seed) >> 13);
    return b;
}

/* ---- running the program ----------------------------------------------------------------------------------------- */

/* Run the command (words separated by spaces) in the folder, with that fault at that call. Return its exit code, or -1
 * if it was killed. */
static int run(const char *command, const char *kind, const char *power, long at)
{
    char text[512], *words[32], number[24], count[256];
    size_t n = 0;
    int status = 0;
    snprintf(text, sizeof text, "%s", command);
    words[n++] = strdup(program);
    for (char *word = strtok(text, " "); word && n < 31; word = strtok(NULL, " "))
        words[n++] = word;
    words[n] = NULL;
    snprintf(number, sizeof number, "%ld", at);
    path_in(count, "count");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        if (chdir(folder) != 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0
            || (!getenv("CRASH_SHOW") && dup2(nothing, 2) < 0))
            _exit(99);
        setenv("LD_PRELOAD", library, 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
        setenv("FAULT_KIND", kind, 1);
        setenv("FAULT_POWER", power, 1);
        setenv("FAULT_AT", number, 1);
        if (strcmp(kind, "count") == 0)
            setenv("FAULT_COUNT", count, 1);
        execv(program, words);
        _exit(98);
    }
    free(words[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    runs++;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* How many calls of the command change files. */
static long count_calls(const char *command)
{
    Bytes b = {0};
    check(run(command, "count", "0", 0) == 0, "run %s", command);
    b = read_file("count");
    long n = b.n ? atol((const char *)b.bytes) : 0;
    free(b.bytes);
    return n;
}

/* ---- edits ------------------------------------------------------------------------------------------------------- */

#define MOST_FILES 2

/* A command that changes files in place. */
typedef struct {
    const char *what, *command, *model; /* model: the argument for --undo */
    size_t n;
    const char *files[MOST_FILES];
    Bytes before[MOST_FILES], after[MOST_FILES];
    Bytes journals[MOST_FILES]; /* of an earlier edit, there before the step */
    bool is_undo;
} Step;

static void set_up(const Step *s)
{
    char name[128], path[256];
    remove_parts();
    for (size_t i = 0; i < s->n; i++) {
        static const char *const suffixes[] = {".undo", ".undo.old"};
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s%s", s->files[i], suffixes[k]);
            path_in(path, name);
            unlink(path);
        }
        write_file(s->files[i], s->before[i]);
        snprintf(name, sizeof name, "%s.undo", s->files[i]);
        if (s->journals[i].bytes)
            write_file(name, s->journals[i]);
    }
}

static bool all_are(const Step *s, const Bytes files[MOST_FILES])
{
    for (size_t i = 0; i < s->n; i++)
        if (!is_file(s->files[i], files[i]))
            return false;
    return true;
}

static bool is_pending(const char *file, char sentence[512])
{
    char path[256], err[512];
    Checkpoint c;
    path_in(path, file);
    if (checkpoint_open(&c, path, false, err) != 0)
        return false;
    bool pending = edit_pending(&c, sentence);
    checkpoint_close(&c);
    return pending;
}

/* Whether an interrupted edit is told when one of the files is named, with the sentence that tells it. Which file is
 * asked first differs from run to run. */
static bool any_pending(const Step *s, char sentence[512])
{
    for (size_t i = 0; i < s->n; i++)
        if (is_pending(s->files[(runs + i) % s->n], sentence))
            return true;
    return is_pending(s->model, sentence);
}

/* Run --undo without faults: as the sentence says, or without one for one of the files. Return its exit code. */
static int undo(const Step *s, const char *sentence)
{
    char command[600], path[256];
    const char *begin = sentence ? strstr(sentence, "`run ") : NULL, *end = begin ? strchr(begin + 1, '`') : NULL;
    path_in(path, s->files[runs % s->n]);
    if (end)
        snprintf(command, sizeof command, "%.*s", (int)(end - begin - 5), begin + 5);
    else
        snprintf(command, sizeof command, "edit %s --undo", path);
    undone++;
    return sentence && !end ? -1 : run(command, "", "0", 0);
}

/* Look at what the step has left. Return NULL, or what is wrong. code is -1 if the process was killed. */
static const char *judge(const Step *s, int code, const Bytes earlier[MOST_FILES])
{
    char sentence[512];
    bool pending = any_pending(s, sentence);
    const char *advice = pending ? sentence : NULL;
    if (code == 0 && (pending || !all_are(s, s->after)))
        return "it says success, and it was none";
    if (code > 0 && !s->is_undo && !pending && !all_are(s, s->before))
        return "it says failure, and the old bytes are not there";
    if (code > 0 && !s->is_undo && !pending && has_name(folder, ".part"))
        return "it failed and left a .part";
    if (!pending && !all_are(s, s->before) && !all_are(s, s->after))
        return "neither old nor new, and no journal says so";
    bool new = !pending && all_are(s, s->after);
    if (s->is_undo) {
        if (pending && (undo(s, advice) != 0 || !all_are(s, s->after)))
            return "undo could not be repeated";
        if (!pending && !new && (undo(s, NULL) != 0 || !all_are(s, s->after)))
            return "the edit cannot be undone any more";
        return NULL;
    }
    if ((pending || new) && (undo(s, advice) != 0 || !all_are(s, s->before)))
        return pending ? "the journal does not bring the old bytes back" : "the edit cannot be undone";
    if (any_pending(s, sentence))
        return "an interrupted edit, after undo";
    if (earlier && !new && (undo(s, NULL) != 0 || !all_are(s, earlier)))
        return "the edit before cannot be undone any more";
    return NULL;
}

static void test_step(Step *s, const Bytes earlier[MOST_FILES])
{
    size_t wrong = 0, before = runs;
    set_up(s);
    long calls = count_calls(s->command), stride = SANITIZED || emulated() ? 9 : 1;
    for (size_t i = 0; i < s->n; i++)
        if (!s->after[i].bytes)
            s->after[i] = read_file(s->files[i]);
    check(calls > 5 && !all_are(s, s->before), "%s: %ld calls", s->what, calls);
    for (size_t f = 0; f < FAULTS; f++) {
        for (long at = 1 + (long)f % stride; at <= calls; at += stride) {
            set_up(s);
            int code = run(s->command, faults[f].kind, faults[f].power, at);
            const char *problem = judge(s, code, earlier);
            wrong += problem != NULL;
            if (problem)
                check(false, "%s: %s %s at call %ld of %ld (exit %d): %s", s->what, faults[f].kind, faults[f].power, at,
                      calls, code, problem);
            if (!problem && strcmp(faults[f].kind, "eintr") == 0 && code != 0)
                check(false, "%s: EINTR at call %ld is no reason to fail", s->what, at);
            if (!problem && strcmp(faults[f].kind, "short") == 0 && code != 0)
                check(false, "%s: a short write at call %ld is no reason to fail", s->what, at);
        }
    }
    check(wrong == 0, "%s: %zu of %zu runs lost something", s->what, wrong, runs - before);
    printf("%-28s %2ld calls, %4zu runs\n", s->what, calls, runs - before);
}

/* Let `next` start from the files and journals that the command has left. */
static void keep_state(Step *next, const Step *first)
{
    for (size_t i = 0; i < first->n; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.undo", first->files[i]);
        next->before[i] = read_file(first->files[i]);
        next->journals[i] = read_file(name);
    }
}

static void free_step(Step *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->before[i].bytes);
        free(s->after[i].bytes);
        free(s->journals[i].bytes);
    }
}

#define MODEL                                                                                                          \
    "{\"a.0.w\":{\"dtype\":\"F32\",\"shape\":[64,16],\"data_offsets\":[0,4096]},"                                      \
    "\"a.1.w\":{\"dtype\":\"BF16\",\"shape\":[300],\"data_offsets\":[4096,4696]}}"

static void test_edits(void)
{
    Step edit = {.what = "edit",
                 .command = "edit m.safetensors -t 1 --tensor a.0.w --slice 1:7,3:5 --set 0.5",
                 .model = "m.safetensors",
                 .n = 1,
                 .files = {"m.safetensors"}};
    Step second = edit, back = edit;
    edit.before[0] = make_file(MODEL, 4696, 1);
    test_step(&edit, NULL);

    set_up(&edit); /* now the same after an earlier edit */
    check(run("edit m.safetensors -t 1 --tensor a.1.w --slice :9 --set 2", "", "0", 0) == 0, "first edit");
    second.what = "edit after an edit";
    keep_state(&second, &edit);
    test_step(&second, edit.before);

    set_up(&edit);
    check(run(edit.command, "", "0", 0) == 0, "edit");
    back.what = "undo";
    back.command = "edit m.safetensors -t 1 --undo";
    back.is_undo = true;
    keep_state(&back, &edit);
    test_step(&back, NULL);
    free_step(&back);
    free_step(&second);
    free_step(&edit);
}

/* A model of two files. */
#define SHARD_A "{\"a.0.w\":{\"dtype\":\"F32\",\"shape\":[64,16],\"data_offsets\":[0,4096]}}"
#define SHARD_B "{\"a.1.w\":{\"dtype\":\"BF16\",\"shape\":[300],\"data_offsets\":[0,600]}}"
#define INDEX                                                                                                          \
    "{\"metadata\":{\"total_size\":4696},\"weight_map\":{\"a.0.w\":\"a.safetensors\",\"a.1.w\":\"b.safetensors\"}}"

static void test_masks(void)
{
    Step mask = {.what = "mask over two shards",
                 .command = "edit shards -t 1 --mask mask.safetensors",
                 .model = "shards",
                 .n = 2,
                 .files = {"shards/a.safetensors", "shards/b.safetensors"}};
    Step back = mask;
    char path[256];
    path_in(path, "shards");
    mkdir(path, 0777);
    write_file("shards/model.safetensors.index.json", (Bytes){(unsigned char *)(uintptr_t)INDEX, strlen(INDEX)});
    Bytes bits = make_file("{\"a.0.w\":{\"dtype\":\"U8\",\"shape\":[128],\"data_offsets\":[0,128]},"
                           "\"a.1.w\":{\"dtype\":\"U8\",\"shape\":[38],\"data_offsets\":[128,166]}}",
                           166, 3);
    memset(bits.bytes + bits.n - 160, 0xff, 140); /* few weights are pruned */
    write_file("mask.safetensors", bits);
    free(bits.bytes);
    mask.before[0] = make_file(SHARD_A, 4096, 1);
    mask.before[1] = make_file(SHARD_B, 600, 2);
    test_step(&mask, NULL);
    set_up(&mask);
    check(run(mask.command, "", "0", 0) == 0, "mask");
    back.what = "undo over two shards";
    back.command = "edit shards -t 1 --undo";
    back.is_undo = true;
    keep_state(&back, &mask);
    test_step(&back, NULL);
    free_step(&back);
    free_step(&mask);
}

static void test_patches(void)
{
    Step patch = {.what = "patch",
                  .command = "edit m.safetensors -t 1 --patch p.safetensors",
                  .model = "m.safetensors",
                  .n = 1,
                  .files = {"m.safetensors"}};
    patch.before[0] = make_file(MODEL, 4696, 1);
    write_file("base.safetensors", patch.before[0]);
    write_file("tuned.safetensors", patch.before[0]);
    check(run("edit tuned.safetensors -t 1 --tensor a.0.w --slice 5:9 --set 1", "", "0", 0) == 0, "tuned");
    check(run("edit tuned.safetensors -t 1 --tensor a.1.w --slice ::7 --set 2", "", "0", 0) == 0, "tuned");
    check(run("diff base.safetensors tuned.safetensors -t 1 --patch p.safetensors", "", "0", 0) == 1, "patch");
    test_step(&patch, NULL);
    free_step(&patch);
}

/* ---- new files --------------------------------------------------------------------------------------------------- */

/* Are both names the same model? */
static bool same_model(const char *a, const char *b)
{
    char x[256], y[256], err[512];
    Checkpoint p, q;
    path_in(x, a);
    path_in(y, b);
    if (checkpoint_open(&p, x, false, err) != 0)
        return false;
    bool same = checkpoint_open(&q, y, false, err) == 0;
    if (same) {
        same = checkpoint_tensor_count(&p) == checkpoint_tensor_count(&q);
        for (size_t i = 0; same && i < checkpoint_tensor_count(&p); i++) {
            const SafetensorsTensor *t = checkpoint_tensor(&p, i);
            SafetensorsTensor u;
            same = safetensors_find_n(&q.st, t->name, t->name_length, &u) == 0 && t->length == u.length
                   && memcmp(safetensors_data(t), safetensors_data(&u), (size_t)t->length) == 0;
        }
        checkpoint_close(&q);
    }
    checkpoint_close(&p);
    return same;
}

/* A command that writes new files: `result` is one of them, or a folder with an index. */
typedef struct {
    const char *what, *command, *source, *model,
        *result; /* source: a file that is read; model: what the result must equal */
    bool is_folder, is_patch;
} Writing;

/* Is every file complete that has its final name? */
static bool all_open(const char *where)
{
    char path[512];
    bool good = true;
    DIR *d = opendir(where);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 12 || strcmp(e->d_name + n - 12, ".safetensors") != 0)
            continue;
        SafetensorsFile st = {0};
        snprintf(path, sizeof path, "%s/%s", where, e->d_name);
        good = safetensors_open(path, &st) == 0 && good;
        safetensors_close(&st);
    }
    if (d)
        closedir(d);
    return good;
}

static const char *judge_writing(const Writing *w, int code, Bytes source, int success)
{
    char path[256], index[300];
    path_in(path, w->result);
    snprintf(index, sizeof index, "%s%s", path, w->is_folder ? "/model.safetensors.index.json" : "");
    bool there = access(index, F_OK) == 0;
    if (!is_file(w->source, source))
        return "the source was changed";
    if (code == success && !there)
        return "it says success, and there is no result";
    if (code >= 0 && code != success && (w->is_folder ? access(path, F_OK) == 0 : there || has_name(folder, ".part")))
        return "it failed and left something";
    if (w->is_folder && !all_open(path))
        return "a file has its name and is not complete";
    if (there && !w->is_patch && !same_model(w->model, w->result))
        return "the result is not the model";
    if (there && w->is_patch) {
        SafetensorsFile st = {0};
        bool good = safetensors_open(path, &st) == 0 && st.n_tensors == 4;
        safetensors_close(&st);
        return good ? NULL : "the patch is not complete";
    }
    return NULL;
}

static void test_writing(const Writing *w, int success)
{
    size_t wrong = 0, before = runs;
    char path[256], count[256];
    Bytes source = read_file(w->source);
    path_in(path, w->result);
    path_in(count, "count");
    remove_all(path);
    check(run(w->command, "count", "0", 0) == success, "run %s", w->command);
    Bytes b = read_file("count");
    long calls = b.n ? atol((const char *)b.bytes) : 0, stride = SANITIZED || emulated() ? 9 : 1;
    free(b.bytes);
    check(calls > 4, "%s: %ld calls", w->what, calls);
    for (size_t f = 0; f < FAULTS; f++) {
        for (long at = 1 + (long)f % stride; at <= calls; at += stride) {
            remove_all(path);
            remove_parts();
            int code = run(w->command, faults[f].kind, faults[f].power, at);
            const char *problem = judge_writing(w, code, source, success);
            wrong += problem != NULL;
            if (problem)
                check(false, "%s: %s %s at call %ld of %ld (exit %d): %s", w->what, faults[f].kind, faults[f].power, at,
                      calls, code, problem);
            if (!problem && (strcmp(faults[f].kind, "eintr") == 0 || strcmp(faults[f].kind, "short") == 0)
                && code != success)
                check(false, "%s: %s at call %ld is no reason to fail", w->what, faults[f].kind, at);
        }
    }
    remove_all(path);
    remove_parts();
    check(wrong == 0, "%s: %zu of %zu runs lost something", w->what, wrong, runs - before);
    printf("%-28s %2ld calls, %4zu runs\n", w->what, calls, runs - before);
    free(source.bytes);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool build_library(void)
{
    char command[512];
    const char *cc = getenv("CC");
    snprintf(library, sizeof library, "%s/preload_crashes.so", folder);
    snprintf(command, sizeof command, "%s -std=c11 -O1 -shared -fPIC -I. -o %s %s -ldl 2>/dev/null",
             cc && *cc ? cc : "cc", library, "tests/preload_crashes.c");
    return system(command) == 0;
}

int main(void)
{
    static const Writing split = {"split",
                                  "split base.safetensors out --max-shard-size 4096B",
                                  "base.safetensors",
                                  "base.safetensors",
                                  "out",
                                  true,
                                  false};
    static const Writing merge = {"merge",
                                  "merge parts merged.safetensors",
                                  "parts/model-00001-of-00002.safetensors",
                                  "parts",
                                  "merged.safetensors",
                                  false,
                                  false};
    static const Writing patch = {"diff --patch",
                                  "diff base.safetensors tuned.safetensors -t 1 --patch q.safetensors",
                                  "base.safetensors",
                                  "base.safetensors",
                                  "q.safetensors",
                                  false,
                                  true};
    char absolute[4096];
    const char *run_path = getenv("RUN");
    program = realpath(run_path && *run_path ? run_path : "./run", absolute);
    bool compiler = system("cc --version >/dev/null 2>&1") == 0;
    if (!program || !compiler || !mkdtemp(folder)) {
        skip(program ? "crash tests: there is no cc to build a library" : "crash tests: there is no ./run");
        return report("crash");
    }
    if (!build_library()) {
        check(false, "the library does not build");
        remove_all(folder);
        return report("crash");
    }
    Bytes model = make_file(MODEL, 4696, 1);
    write_file("m.safetensors", model);
    run("edit m.safetensors -t 1 --tensor a.0.w --set 0", "count", "0", 0);
    Bytes counted = read_file("count");
    if (counted.n == 0) {
        skip("crash tests: LD_PRELOAD has no effect on this build");
    } else {
        test_edits();
        test_masks();
        test_patches();
        test_writing(&patch, 1);
        test_writing(&split, 0);
        check(run("split base.safetensors parts --max-shard-size 4096B", "", "0", 0) == 0, "split");
        test_writing(&merge, 0);
        printf("%zu runs, %zu times undone\n", runs, undone);
    }
    free(counted.bytes);
    free(model.bytes);
    remove_all(folder);
    return report("crash");
}
