/* checkpoint/edit.c, undo.c, journal.c and patch.c: edits and their undo, refusals, damaged journals, masks and patches. */
#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/edit.h"
#include "checkpoint/mask.h"
#include "checkpoint/patch.h"
#include "checkpoint/undo.h"
#include "model_files.h"

/* ---- edits ------------------------------------------------------------------------------------------------------- */

#define TWO                                                                                                            \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,64],\"data_offsets\":[0,1024]},\"b\":{\"dtype\":\"U8\",\"shape\":[100],"   \
    "\"data_offsets\":[1024,1124]}}"

/* The model of the edit tests: 256 floats and 100 bytes. */
static void write_two(const char *path)
{
    unsigned char data[1124];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31 % 251);
    write_model(path, TWO, data, sizeof data);
}

static int begin(Edit *e, const SafetensorsTensor *const *tensors, size_t n, bool dry, char err[512])
{
    *e = (Edit){.dry = dry};
    return edit_begin(e, tensors, n, err);
}

/* Set n bytes of a tensor from `offset` on. Return the status of edit_commit(), or of what failed before it. */
static int set_bytes(Checkpoint *c, const char *name, uint64_t offset, const void *bytes, size_t n, Edit *e,
                     char err[512])
{
    SafetensorsTensor t;
    check(safetensors_find(&c->st, name, &t) == 0, "%s", c->st.error);
    const SafetensorsTensor *only = &t;
    int status = begin(e, &only, 1, false, err);
    if (status == 0)
        status = edit_bytes(e, &t, offset, bytes, n, err);
    return status == 0 ? edit_commit(e, err) : status;
}

/* An edit of its own, which sets the first bytes of "b". */
static int edit_b(const char *path, const char *text, char err[512])
{
    Checkpoint c;
    Edit e;
    open_model(&c, path);
    int status = set_bytes(&c, "b", 0, text, strlen(text), &e, err);
    edit_end(&e);
    checkpoint_close(&c);
    return status;
}

static int undo(const char *path, char err[512])
{
    Checkpoint c;
    open_model(&c, path);
    Undone undone;
    int status = undo_last(&c, &undone, err);
    checkpoint_close(&c);
    return status;
}

static void write_state(const char *journal, uint64_t state)
{
    size_t n;
    unsigned char *bytes = read_bytes(journal, &n);
    memcpy(bytes + offsetof(JournalHead, state), &state, sizeof state);
    write_bytes(journal, bytes, n);
    free(bytes);
}

static bool pending(const char *path, char sentence[512])
{
    Checkpoint c;
    open_model(&c, path);
    bool found = edit_pending(&c, sentence);
    checkpoint_close(&c);
    return found;
}

/* How many files of the folder have a name that ends like that. */
static size_t count_names(const char *end)
{
    size_t n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        n += text_ends_with(e->d_name, end) ? 1 : 0;
    if (d)
        closedir(d);
    return n;
}

static void test_edit(void)
{
    char err[512], sentence[512];
    const char *path = in_folder("edit.safetensors"), *before = in_folder("before.safetensors"),
               *journal = in_folder("edit.safetensors.undo");
    unsigned char zeros[200] = {0};
    write_two(path);
    write_two(before);
    Checkpoint c;
    open_model(&c, path);
    Edit e;
    check(set_bytes(&c, "a", 100, zeros, 200, &e, err) == 0, "%s", err);
    check(e.bytes >= 198 && e.bytes <= 200 && e.ranges == 1, "%" PRIu64 " bytes", e.bytes);
    edit_end(&e);
    size_t n, m, wrong = 0;
    unsigned char *new = read_bytes(path, &n), *old = read_bytes(before, &m);
    size_t start = 8 + strlen(TWO) + 100;
    for (size_t i = 0; i < n; i++)
        wrong += i >= start && i < start + 200 ? new[i] != 0 : new[i] != old[i];
    check(n == m && wrong == 0, "%zu bytes are not what they should be", wrong);
    free(new);
    free(old);
    check(access(journal, F_OK) == 0 && !pending(path, sentence), "a journal of a complete edit");
    check(set_bytes(&c, "a", 100, zeros, 200, &e, err) == 0 && e.bytes == 0, "nothing left to change");
    edit_end(&e);
    check(undo(path, err) == 0, "%s", err);
    check(same_bytes(path, before) && access(journal, F_OK) != 0, "undone");
    check(undo(path, err) != 0 && strstr(err, "no edit to undo"), "%s", err);

    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    check(begin(&e, &t, 1, true, err) == 0 && edit_bytes(&e, t, 0, zeros, 200, err) == 0, "%s", err);
    check(e.bytes > 190 && same_bytes(path, before) && count_names(".part") == 0,
          "a dry run");
    check(edit_bytes(&e, t, 1000, zeros, 25, err) != 0, "beyond the tensor's end");
    edit_end(&e);
    check(begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, zeros, 200, err) == 0, "%s", err);
    edit_end(&e); /* without a commit */
    check(same_bytes(path, before) && count_names(".part") == 0,
          "an edit that was given up");
    checkpoint_close(&c);
}

static void test_two_edits(void)
{
    char err[512];
    const char *path = in_folder("twice.safetensors"), *first = in_folder("first.safetensors");
    write_two(path);
    Checkpoint c;
    open_model(&c, path);
    Edit e;
    check(set_bytes(&c, "b", 0, "first", 5, &e, err) == 0, "%s", err);
    edit_end(&e);
    size_t n;
    unsigned char *bytes = read_bytes(path, &n);
    write_bytes(first, bytes, n);
    free(bytes);
    check(set_bytes(&c, "b", 3, "second", 6, &e, err) == 0, "%s", err);
    edit_end(&e);
    check(!same_bytes(path, first) && undo(path, err) == 0 && same_bytes(path, first), "the last edit is undone");
    checkpoint_close(&c);
}

static void test_refusals(void)
{
    char err[512];
    const char *path = in_folder("refuse.safetensors"), *before = in_folder("before.safetensors");
    write_two(path);
    write_two(before);
    Checkpoint c;
    open_model(&c, path);
    Edit e, other;
    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    check(begin(&e, &t, 1, false, err) == 0, "%s", err);
    check(begin(&other, &t, 1, false, err) != 0 && strstr(err, "in use"), "a second editor: %s", err);
    edit_end(&other);
    edit_end(&e);
    chmod(path, 0444);
    check(begin(&e, &t, 1, false, err) != 0 && (strstr(err, "read-only") || strstr(err, "cannot be written")),
          "%s", err);
    edit_end(&e);
    chmod(path, 0644);
    check(begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, (const unsigned char *)"x", 1, err) == 0, "%s",
          err);
    write_two(in_folder("new"));
    rename(in_folder("new"), path); /* the file is replaced between opening and writing */
    check(edit_commit(&e, err) != 0 && strstr(err, "replaced"), "%s", err);
    edit_end(&e);
    check(same_bytes(path, before) && access(in_folder("refuse.safetensors.undo"), F_OK) != 0, "the new file is whole");
    check(begin(&e, &t, 1, false, err) != 0 && strstr(err, "replaced"), "opened before: %s", err);
    edit_end(&e);
    checkpoint_close(&c);
    open_model(&c, path);
    t = checkpoint_tensor(&c, 0);
    check(begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, (const unsigned char *)"x", 1, err) == 0, "%s",
          err);
    check(truncate(path, 1000) == 0 && edit_commit(&e, err) != 0 && strstr(err, "1000"), "truncated: %s", err);
    edit_end(&e);
    checkpoint_close(&c);
}

/* Journals that are damaged, belong to another file, or no longer fit: nothing is changed. */
static void test_bad_journals(void)
{
    char err[512];
    const char *path = in_folder("j.safetensors"), *journal = in_folder("j.safetensors.undo");
    write_two(path);
    check(edit_b(path, "hello", err) == 0, "%s", err);
    size_t n, m, accepted = 0;
    unsigned char *good = read_bytes(journal, &n), *edited = read_bytes(path, &m);
    for (size_t i = 0; i < n; i++) { /* every byte matters */
        good[i] ^= 0x10;
        write_bytes(journal, good, n);
        good[i] ^= 0x10;
        accepted += undo(path, err) == 0;
    }
    check(accepted == 0, "%zu damaged journals were accepted", accepted);
    for (size_t length = 0; length < n; length += 7) {
        write_bytes(journal, good, length);
        accepted += undo(path, err) == 0;
    }
    check(accepted == 0, "a journal that is cut short: %s", err);
    size_t now;
    unsigned char *bytes = read_bytes(path, &now);
    check(now == m && !memcmp(bytes, edited, m), "the file is untouched");
    free(bytes);

    write_bytes(journal, good, n);
    edited[m - 100] = 'J'; /* "hello" is there, at the start of b */
    write_bytes(path, edited, m);
    check(undo(path, err) != 0 && strstr(err, "something else has changed"), "%s", err);
    write_model(path, "{\"x\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", "abc", 3);
    check(undo(path, err) != 0 && strstr(err, "another file"), "%s", err);
    free(good);
    free(edited);
}

/* An edit that was cut off: the journal's state is 1, and the file has some of the new bytes. */
static void test_interrupted(void)
{
    char err[512], sentence[512];
    const char *path = in_folder("i.safetensors"), *journal = in_folder("i.safetensors.undo"),
               *before = in_folder("before.safetensors");
    write_two(path);
    write_two(before);
    Checkpoint c;
    open_model(&c, path);
    Edit e;
    check(set_bytes(&c, "b", 0, "hello", 5, &e, err) == 0, "%s", err);
    edit_end(&e);
    size_t n, m;
    unsigned char *j = read_bytes(journal, &n), *file = read_bytes(path, &m), *old = read_bytes(before, &m);
    j[8] = 1;
    memcpy(file + m - 100, old + m - 100, 2);
    write_bytes(journal, j, n);
    write_bytes(path, file, m);
    check(pending(path, sentence) && strstr(sentence, "interrupted") && strstr(sentence, "--undo"), "%s",
          sentence);
    checkpoint_close(&c);
    open_model(&c, path);
    check(set_bytes(&c, "b", 0, "other", 5, &e, err) != 0 && strstr(err, "interrupted"), "%s", err);
    edit_end(&e);
    checkpoint_close(&c);
    check(undo(path, err) == 0 && same_bytes(path, before) && !pending(path, sentence), "%s", err);
    free(j);
    free(file);
    free(old);
}

/* A file with two names in its folder: edited only when that is asked for, and then its journal is found under both. */
static void test_links(void)
{
    char err[512], sentence[512];
    const char *one = in_folder("one.safetensors"), *two = in_folder("two.safetensors"),
               *before = in_folder("before.safetensors");
    write_two(one);
    write_two(before);
    check(link(one, two) == 0, "link");
    Checkpoint c;
    open_model(&c, one);
    Edit e = {0};
    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    check(edit_begin(&e, &t, 1, err) != 0 && strstr(err, "2 names") && strstr(err, "--force"), "%s", err);
    edit_end(&e);
    e.force = true;
    check(edit_begin(&e, &t, 1, err) == 0 && edit_bytes(&e, t, 0, (const unsigned char *)"one", 3, err) == 0 &&
              edit_commit(&e, err) == 0 && e.links == 2,
          "%s", err);
    edit_end(&e);
    checkpoint_close(&c);
    write_state(in_folder("one.safetensors.undo"), JOURNAL_CHANGING);
    check(pending(one, sentence) && pending(two, sentence), "told under both names");
    open_model(&c, two);
    e.force = true;
    t = checkpoint_tensor(&c, 0);
    check(edit_begin(&e, &t, 1, err) != 0 && strstr(err, "interrupted"), "%s", err);
    edit_end(&e);
    checkpoint_close(&c);
    check(undo(two, err) == 0 && same_bytes(one, before), "undone through the other name: %s", err);
    unlink(two);
}

/* Files whose names leave no room for .undo or a temporary name. */
static void test_long_names(void)
{
    char err[512], name[260];
    size_t left = count_names(".undo") + count_names(".old") + count_names(".part");
    for (int length = 240; length <= 255; length++) {
        snprintf(name, sizeof name, "%0*d.safetensors", length - 12, length);
        const char *path = in_folder(name), *before = in_folder("before.safetensors");
        write_two(path);
        write_two(before);
        Checkpoint c;
        open_model(&c, path);
        Edit e;
        check(set_bytes(&c, "b", 0, "first", 5, &e, err) == 0, "%d bytes: %s", length, err);
        edit_end(&e);
        check(set_bytes(&c, "b", 0, "again", 5, &e, err) == 0, "%d bytes: %s", length, err);
        edit_end(&e);
        checkpoint_close(&c);
        check(!same_bytes(path, before) && undo(path, err) == 0, "%d bytes: %s", length, err);
        check(undo(path, err) != 0 && strstr(err, "no edit"), "%d bytes: %s", length, err);
        unlink(path);
    }
    check(count_names(".undo") + count_names(".old") + count_names(".part") == left, "nothing is left");
}

/* Names like those of journals that are something else. */
static void test_foreign_names(void)
{
    static const char *const names[] = {"f.safetensors.undo.part", "f.safetensors.undo.old",
                                        "f.safetensors.undo.01234567.part", "f.safetensors.part"};
    char err[512];
    const char *path = in_folder("f.safetensors"), *precious = in_folder("precious");
    write_bytes(precious, "precious", 8);
    write_two(path);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        write_bytes(in_folder(names[i]), "precious", 8);
    for (int i = 0; i < 3; i++) {
        Checkpoint c;
        open_model(&c, path);
        Edit e;
        char text[6] = {'n', 'u', 'm', 'b', (char)('0' + i), 0};
        int status = set_bytes(&c, "b", 0, text, 5, &e, err);
        /* the second edit needs the name .undo.old for the first one's journal */
        check(i == 0 ? status == 0 : status != 0 && strstr(err, "in the way"), "edit %d: %s", i, err);
        edit_end(&e);
        checkpoint_close(&c);
    }
    check(undo(path, err) == 0, "%s", err);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        check(same_bytes(in_folder(names[i]), precious), "%s was touched", names[i]);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unlink(in_folder(names[i]));
}

/* A journal that a killed edit left unfinished is told, and goes with the next edit; one that is being written stays. */
static void test_leftovers(void)
{
    char err[512];
    const char *path = in_folder("l.safetensors"), *left = in_folder("l.safetensors.undo.0badcafe.part"),
               *busy = in_folder("l.safetensors.undo.12345678.part");
    write_two(path);
    write_bytes(left, "RUNUNDO1", 8);
    write_bytes(busy, "RUNUNDO1", 8);
    int fd = open(busy, O_RDONLY);
    check(flock(fd, LOCK_EX) == 0 && journal_count_leftovers(path) == 1, "one leftover");
    check(edit_b(path, "words", err) == 0, "%s", err);
    check(!file_exists(left) && file_exists(busy) && journal_count_leftovers(path) == 0, "what is left");
    close(fd);
    unlink(busy);
}

/* Bytes that something else changed after the edit, beside what the edit changed. */
static void test_changed_since(void)
{
    char err[512];
    const char *path = in_folder("s.safetensors");
    for (int changed = 0; changed < 2; changed++) {
        write_two(path);
        check(edit_b(path, "hello", err) == 0, "%s", err);
        struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) + 2}};
        size_t n;
        unsigned char *bytes = read_bytes(path, &n);
        bytes[n - 1] = 'Z';
        if (changed) {
            write_bytes(path, bytes, n);
            utimensat(AT_FDCWD, path, later, 0);
        }
        free(bytes);
        Undone undone;
        Checkpoint c;
        open_model(&c, path);
        check(undo_last(&c, &undone, err) == 0 && undone.changed_since == (changed == 1), "%d: %s", changed, err);
        checkpoint_close(&c);
        bytes = read_bytes(path, &n);
        check(!changed || bytes[n - 1] == 'Z', "the other change stays");
        free(bytes);
    }
}

/* A step over three files, in each state in which it may be cut off: it is told of, and undone, through any of them.
 * When a journal is missing that is needed, nothing is undone. */
static void test_partners(void)
{
    enum { FILES = 3 };
    static const char *const names[FILES] = {"p1.safetensors", "p2.safetensors", "p3.safetensors"};
    static const struct {
        uint64_t states[FILES]; /* 0: this file is restored and has no journal */
        bool pending, possible;
    } cases[] = {
        {{JOURNAL_DONE, JOURNAL_DONE, JOURNAL_DONE}, false, true},
        {{JOURNAL_CHANGING, JOURNAL_CHANGING, JOURNAL_CHANGING}, true, true},
        {{JOURNAL_DONE, JOURNAL_CHANGING, JOURNAL_CHANGING}, true, true},
        {{JOURNAL_DONE, JOURNAL_DONE, JOURNAL_CHANGING}, true, true},
        {{JOURNAL_UNDOING, JOURNAL_DONE, JOURNAL_DONE}, true, true},
        {{JOURNAL_UNDOING, JOURNAL_UNDOING, JOURNAL_UNDOING}, true, true},
        {{0, JOURNAL_UNDOING, JOURNAL_UNDOING}, true, true},
        {{0, 0, JOURNAL_UNDOING}, true, true},
        {{0, JOURNAL_READY, JOURNAL_READY}, true, true},
        {{0, JOURNAL_DONE, JOURNAL_DONE}, false, false},
        {{0, JOURNAL_CHANGING, JOURNAL_CHANGING}, true, false},
    };
    char err[512], sentence[512], journal[64];
    write_two(in_folder("before.safetensors"));
    for (size_t k = 0; k < COUNT_OF(cases); k++)
        for (size_t by = 0; by < FILES; by++) {
            Checkpoint c[FILES];
            const SafetensorsTensor *tensors[FILES];
            Edit e = {0};
            if (!cases[k].states[by]) /* it has no journal */
                continue;
            for (size_t i = 0; i < FILES; i++) {
                write_two(in_folder(names[i]));
                open_model(&c[i], in_folder(names[i]));
                tensors[i] = checkpoint_tensor(&c[i], 1);
            }
            int status = edit_begin(&e, tensors, FILES, err);
            for (size_t i = 0; i < FILES && status == 0; i++)
                status = edit_bytes(&e, tensors[i], 7, (const unsigned char *)"all", 3, err);
            check(status == 0 && edit_commit(&e, err) == 0, "%s", err);
            edit_end(&e);
            for (size_t i = 0; i < FILES; i++) {
                checkpoint_close(&c[i]);
                snprintf(journal, sizeof journal, "%s.undo", names[i]);
                if (cases[k].states[i])
                    write_state(in_folder(journal), cases[k].states[i]);
                else
                    unlink(in_folder(journal));
                if (!cases[k].states[i] || cases[k].states[i] == JOURNAL_READY)
                    write_two(in_folder(names[i]));
            }
            check(pending(in_folder(names[by]), sentence) == cases[k].pending, "case %zu, file %zu", k, by);
            status = undo(in_folder(names[by]), err);
            check((status == 0) == cases[k].possible, "case %zu, file %zu: %s", k, by, err);
            for (size_t i = 0; i < FILES; i++) {
                bool old = same_bytes(in_folder(names[i]), in_folder("before.safetensors"));
                check(old == (cases[k].possible || !cases[k].states[i]), "case %zu by file %zu: file %zu", k, by, i);
                snprintf(journal, sizeof journal, "%s.undo", names[i]);
                check(!cases[k].possible || !file_exists(in_folder(journal)), "case %zu: a journal stays", k);
                unlink(in_folder(journal));
            }
        }
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static void test_masks(void)
{
    char err[512], header[512];
    const char *path = in_folder("m.safetensors"), *mask = in_folder("mask.safetensors");
    unsigned char keep[256 + 13] = {0};
    for (size_t i = 0; i < 256; i++)
        keep[i] = i % 3 != 0;
    for (size_t i = 0; i < 100; i++)
        keep[256 + i / 8] |= (unsigned char)((i % 5 != 0) << i % 8);
    snprintf(
        header, sizeof header,
        "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[4,64],\"data_offsets\":[0,256]},\"b\":{\"dtype\":\"U8\",\"shape\":[13],"
        "\"data_offsets\":[256,269]}}");
    write_two(path);
    write_model(mask, header, keep, sizeof keep);
    Checkpoint c, m;
    open_model(&c, path);
    open_model(&m, mask);
    Edit e = {0};
    uint64_t zeroed;
    check(mask_apply(&e, &c, &m, &zeroed, err) == 0 && edit_commit(&e, err) == 0, "%s", err);
    edit_end(&e);
    const unsigned char *a = safetensors_data(checkpoint_tensor(&c, 0)),
                        *b = safetensors_data(checkpoint_tensor(&c, 1));
    size_t wrong = 0;
    for (size_t i = 0; i < 1024; i++)
        wrong += a[i] != (i / 4 % 3 ? i * 31 % 251 : 0);
    for (size_t i = 0; i < 100; i++)
        wrong += b[i] != (i % 5 ? (i + 1024) * 31 % 251 : 0);
    check(wrong == 0, "%zu bytes are wrong", wrong);
    check(zeroed >= 100 && zeroed <= 106, "%" PRIu64 " weights were set to zero", zeroed);
    checkpoint_close(&m);
    write_model(mask, "{\"a\":{\"dtype\":\"U8\",\"shape\":[31],\"data_offsets\":[0,31]}}", keep, 31);
    open_model(&m, mask);
    check(mask_apply(&e, &c, &m, &zeroed, err) != 0 && strstr(err, "256 weights"), "%s", err);
    edit_end(&e);
    checkpoint_close(&m);
    write_model(mask, "{\"z\":{\"dtype\":\"U8\",\"shape\":[31],\"data_offsets\":[0,31]}}", keep, 31);
    open_model(&m, mask);
    check(mask_apply(&e, &c, &m, &zeroed, err) != 0 && strstr(err, "\"z\""), "%s", err);
    edit_end(&e);
    checkpoint_close(&m);
    checkpoint_close(&c);
}

/* ---- patches ----------------------------------------------------------------------------------------------------- */

static int apply_patch(const char *model, const char *file, char err[512])
{
    Checkpoint c, p;
    open_model(&c, model);
    open_model(&p, file);
    Edit e = {0};
    int status = patch_apply(&e, &c, &p, NULL, NULL, err);
    if (status == 0)
        status = edit_commit(&e, err);
    edit_end(&e);
    checkpoint_close(&p);
    checkpoint_close(&c);
    return status;
}

static void test_patches(void)
{
    char err[512];
    const char *base = in_folder("base.safetensors"), *tuned = in_folder("tuned.safetensors"),
               *patch = in_folder("p.safetensors");
    write_two(base);
    write_two(tuned);
    Checkpoint a, b;
    open_model(&a, base);
    open_model(&b, tuned);
    Edit e;
    PatchSize size;
    check(set_bytes(&b, "a", 40, "some bytes here", 15, &e, err) == 0, "%s", err);
    edit_end(&e);
    check(set_bytes(&b, "a", 1020, "end", 3, &e, err) == 0, "%s", err);
    edit_end(&e);
    check(patch_write(&a, &b, patch, false, NULL, NULL, &size, err) != 0 && strstr(err, "was changed") &&
              !file_exists(patch),
          "a file that was changed after it had been opened: %s", err);
    checkpoint_close(&b);
    open_model(&b, tuned);
    check(patch_write(&a, &b, patch, false, NULL, NULL, &size, err) == 0, "%s", err);
    check(size.tensors == 1 && size.ranges == 2 && size.bytes == 18, "%" PRIu64 " bytes", size.bytes);
    check(patch_write(&a, &b, patch, false, NULL, NULL, &size, err) != 0 && strstr(err, "exists"), "%s", err);
    checkpoint_close(&a);
    checkpoint_close(&b);
    check(apply_patch(tuned, patch, err) != 0 && strstr(err, "already"), "%s", err);
    check(apply_patch(base, patch, err) == 0 && same_bytes(base, tuned), "%s", err);
    check(undo(base, err) == 0, "%s", err);
    write_two(tuned);
    check(same_bytes(base, tuned), "the patch is undone");
    open_model(&a, base);
    check(set_bytes(&a, "b", 50, "?", 1, &e, err) == 0, "%s", err); /* a byte that the patch does not touch */
    edit_end(&e);
    checkpoint_close(&a);
    check(apply_patch(base, patch, err) != 0 && strstr(err, "another model"), "%s", err);
    check(undo(base, err) == 0, "%s", err);
    size_t n, accepted = 0;
    unsigned char *bytes = read_bytes(patch, &n);
    for (size_t i = 8 + read_u64_le(bytes); i < n; i++) { /* any damage to what it holds */
        bytes[i] ^= 1;
        write_bytes(patch, bytes, n);
        bytes[i] ^= 1;
        accepted += apply_patch(base, patch, err) == 0;
    }
    check(accepted == 0 && same_bytes(base, tuned), "%zu damaged patches were applied", accepted);
    free(bytes);
    check(apply_patch(base, tuned, err) != 0 && strstr(err, "not a patch"), "%s", err);
    const char *input = in_folder("q.safetensors.part"); /* like a temporary name */
    write_two(input);
    write_two(tuned);
    open_model(&a, base);
    open_model(&b, input);
    check(patch_write(&a, &b, in_folder("q.safetensors"), false, NULL, NULL, &size, err) == 0, "%s", err);
    check(patch_write(&a, &b, input, true, NULL, NULL, &size, err) != 0 && strstr(err, "same file"), "%s", err);
    checkpoint_close(&a);
    checkpoint_close(&b);
    check(same_bytes(input, tuned), "the input is as it was");
}

int main(void)
{
    open_folder("edit");
    test_edit();
    test_two_edits();
    test_refusals();
    test_bad_journals();
    test_interrupted();
    test_links();
    test_long_names();
    test_foreign_names();
    test_leftovers();
    test_changed_since();
    test_partners();
    test_masks();
    test_patches();
    remove_folder();
    return report("edit");
}
