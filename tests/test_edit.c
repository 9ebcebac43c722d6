/* checkpoint/edit.c, journal.c and patch.c: edits and their undo, refusals, damaged journals, masks and patches. */
#include "base/base.h"

#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/edit.h"
#include "checkpoint/mask.h"
#include "checkpoint/patch.h"
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

/* Set n bytes of a tensor from `offset` on. Return the status of edit_commit(), or of what failed before it. */
static int set_bytes(Checkpoint *c, const char *name, uint64_t offset, const void *bytes, size_t n, Edit *e,
                     char err[512])
{
    SafetensorsTensor t;
    check(safetensors_find(&c->st, name, &t) == 0, "%s", c->st.error);
    const SafetensorsTensor *only = &t;
    int status = edit_begin(e, &only, 1, false, err);
    if (status == 0)
        status = edit_bytes(e, &t, offset, bytes, n, err);
    return status == 0 ? edit_commit(e, err) : status;
}

static int undo(const char *path, char err[512])
{
    Checkpoint c;
    open_model(&c, path);
    size_t files;
    int status = edit_undo(&c, &files, err);
    checkpoint_close(&c);
    return status;
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
    check(access(journal, F_OK) == 0 && !edit_pending(path, sentence), "a journal of a complete edit");
    check(set_bytes(&c, "a", 100, zeros, 200, &e, err) == 0 && e.bytes == 0, "nothing left to change");
    edit_end(&e);
    check(undo(path, err) == 0, "%s", err);
    check(same_bytes(path, before) && access(journal, F_OK) != 0, "undone");
    check(undo(path, err) != 0 && strstr(err, "no edit to undo"), "%s", err);

    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    check(edit_begin(&e, &t, 1, true, err) == 0 && edit_bytes(&e, t, 0, zeros, 200, err) == 0, "%s", err);
    check(e.bytes > 190 && same_bytes(path, before) && access(in_folder("edit.safetensors.undo.part"), F_OK) != 0,
          "a dry run");
    check(edit_bytes(&e, t, 1000, zeros, 25, err) != 0, "beyond the tensor's end");
    edit_end(&e);
    check(edit_begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, zeros, 200, err) == 0, "%s", err);
    edit_end(&e); /* without a commit */
    check(same_bytes(path, before) && access(in_folder("edit.safetensors.undo.part"), F_OK) != 0,
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
    check(edit_begin(&e, &t, 1, false, err) == 0, "%s", err);
    check(edit_begin(&other, &t, 1, false, err) != 0 && strstr(err, "being edited"), "a second editor: %s", err);
    edit_end(&other);
    edit_end(&e);
    chmod(path, 0444);
    check(edit_begin(&e, &t, 1, false, err) != 0 && (strstr(err, "read-only") || strstr(err, "cannot be written")),
          "%s", err);
    edit_end(&e);
    chmod(path, 0644);
    check(edit_begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, (const unsigned char *)"x", 1, err) == 0, "%s",
          err);
    write_two(in_folder("new"));
    rename(in_folder("new"), path); /* the file is replaced between opening and writing */
    check(edit_commit(&e, err) != 0 && strstr(err, "replaced"), "%s", err);
    edit_end(&e);
    check(same_bytes(path, before) && access(in_folder("refuse.safetensors.undo"), F_OK) != 0, "the new file is whole");
    check(edit_begin(&e, &t, 1, false, err) != 0 && strstr(err, "replaced"), "opened before: %s", err);
    edit_end(&e);
    checkpoint_close(&c);
    open_model(&c, path);
    t = checkpoint_tensor(&c, 0);
    check(edit_begin(&e, &t, 1, false, err) == 0 && edit_bytes(&e, t, 0, (const unsigned char *)"x", 1, err) == 0, "%s",
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
    Checkpoint c;
    open_model(&c, path);
    Edit e;
    check(set_bytes(&c, "b", 0, "hello", 5, &e, err) == 0, "%s", err);
    edit_end(&e);
    checkpoint_close(&c);
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
    check(edit_pending(path, sentence) && strstr(sentence, "interrupted") && strstr(sentence, "--undo"), "%s",
          sentence);
    checkpoint_close(&c);
    open_model(&c, path);
    check(set_bytes(&c, "b", 0, "other", 5, &e, err) != 0 && strstr(err, "interrupted"), "%s", err);
    edit_end(&e);
    checkpoint_close(&c);
    check(undo(path, err) == 0 && same_bytes(path, before) && !edit_pending(path, sentence), "%s", err);
    free(j);
    free(file);
    free(old);
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
    check(mask_apply(&e, &c, &m, false, &zeroed, err) == 0 && edit_commit(&e, err) == 0, "%s", err);
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
    check(mask_apply(&e, &c, &m, false, &zeroed, err) != 0 && strstr(err, "256 weights"), "%s", err);
    edit_end(&e);
    checkpoint_close(&m);
    write_model(mask, "{\"z\":{\"dtype\":\"U8\",\"shape\":[31],\"data_offsets\":[0,31]}}", keep, 31);
    open_model(&m, mask);
    check(mask_apply(&e, &c, &m, false, &zeroed, err) != 0 && strstr(err, "\"z\""), "%s", err);
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
    int status = patch_apply(&e, &c, &p, false, NULL, NULL, err);
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
    const char *input = in_folder("q.safetensors.part"); /* what would be written first has the name of an input */
    write_two(input);
    write_two(tuned);
    open_model(&a, base);
    open_model(&b, input);
    check(patch_write(&a, &b, in_folder("q.safetensors"), false, NULL, NULL, &size, err) != 0 && strstr(err, "same file"), "%s",
          err);
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
    test_masks();
    test_patches();
    remove_folder();
    return report("edit");
}
