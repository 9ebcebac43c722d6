/* base/: text that may be broken UTF-8 or drive a terminal, shapes, memory, files and paths, hashes. test_unicode.c,
 * test_threads.c and test_sha256.c are about the rest. */
#include "base/base.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unicode.h"
#include "check.h"
#include "model_files.h"

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void test_fail(void)
{
    char err[512], text[700];
    check(fail(err, "%s: %d", "a", 7) == -1 && strcmp(err, "a: 7") == 0, "%s", err);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    check(fail(err, "%s", text) == -1 && strlen(err) == 511, "a long sentence is cut: %zu bytes", strlen(err));
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void test_text(void)
{
    Text text = {0};
    check(text_append(&text, "", 0) == 0 && text.length == 0 && text.bytes && !text.bytes[0], "nothing, with its NUL");
    check(text_append(&text, "a\0b", 3) == 0 && text_append(&text, NULL, 0) == 0 && text.length == 3 &&
              memcmp(text.bytes, "a\0b", 4) == 0,
          "a NUL inside");
    text_free(&text);
    IdList list = {0};
    check(id_list_reserve(&list, 0) == 0 && !list.items, "no room for nothing");
    check(id_list_reserve(&list, 1000) == 0 && list.capacity >= 1000 && list.count == 0, "room for 1000");
    const int *items = list.items;
    for (int i = 0; i < 1000; i++)
        check(id_list_append(&list, i) == 0, "%d", i);
    check(list.items == items && list.count == 1000 && list.items[999] == 999, "the room that was reserved is used");
    id_list_free(&list);
    check(text_ends_with("a.safetensors", ".safetensors") && text_ends_with("a", "") && text_ends_with("", ""), "ends");
    check(!text_ends_with("tensors", ".safetensors") && !text_ends_with("a.safetensors.part", ".safetensors"),
          "other ends");
}

/* ---- broken UTF-8 ------------------------------------------------------------------------------------------------ */

/* `replaced` is what Python's bytes.decode("utf-8", "replace") gives; complete: how many bytes end in whole
 * characters. */
static const struct {
    const char *bytes, *replaced;
    size_t complete;
} utf8[] = {
    {"", "", 0},
    {"abc", "abc", 3},
    {"a\xe4", "a\ufffd", 1},
    {"a\xe4\xb8", "a\ufffd", 1},
    {"a\xe4\xb8\xad", "a\u4e2d", 4},
    {"\xe4\xb8z", "\ufffdz", 3},
    {"\xc3", "\ufffd", 0},
    {"\xc3\xa9", "\u00e9", 2},
    {"\xf0\x9f\x98", "\ufffd", 0},
    {"\xf0\x9f\x98\x80", "\U0001f600", 4},
    {"\xf0\x9f\x98x", "\ufffdx", 4},
    {"\xff", "\ufffd", 1},
    {"\x80\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd", 4},
    {"\xc0", "\ufffd", 1}, /* begins only what could be said shorter */
    {"\xc0\xaf", "\ufffd\ufffd", 2},
    {"\xe0\x80", "\ufffd\ufffd", 2},
    {"\xe0\x80\x80", "\ufffd\ufffd\ufffd", 3},
    {"\xed\x9f\xbf", "\ud7ff", 3},
    {"\xed\xa0", "\ufffd\ufffd", 2}, /* a surrogate */
    {"\xed\xa0\x80", "\ufffd\ufffd\ufffd", 3},
    {"\xf4\x8f\xbf\xbf", "\U0010ffff", 4},
    {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd", 4}, /* above U+10FFFF */
    {"\xf5\x80", "\ufffd\ufffd", 2},
    {"\xef\xbf\xbd", "\ufffd", 3}, /* U+FFFD itself is valid */
    {"\xef\xbf", "\ufffd", 0},
    {"ab\xd8\x9c", "ab\u061c", 4},
};

static void test_utf8(void)
{
    for (size_t i = 0; i < COUNT_OF(utf8); i++) {
        const char *bytes = utf8[i].bytes, *replaced = utf8[i].replaced;
        size_t n = strlen(bytes);
        Text out = {0};
        check(text_append_replacing(&out, bytes, n) == 0 && strcmp(out.bytes, replaced) == 0, "text %zu: %s", i,
              out.bytes);
        check(text_is_utf8(bytes, n) == (strcmp(bytes, replaced) == 0), "text %zu: valid or not", i);
        check(text_is_utf8(out.bytes, out.length), "text %zu: what was replaced is valid", i);
        check(text_complete_prefix(bytes, n) == utf8[i].complete, "text %zu: %zu bytes are complete", i,
              text_complete_prefix(bytes, n));
        text_free(&out);
    }
    check(text_is_utf8("a\0b", 3), "a NUL is a character");
    char text[40];
    memset(text, 'a', sizeof text);
    for (size_t n = 1; n <= sizeof text; n++)
        for (size_t at = 0; at < n; at++) {
            text[at] = (char)0xff;
            check(!text_is_utf8(text, n), "a broken byte at %zu of %zu", at, n);
            text[at] = 'a';
        }
}

/* ---- text on a terminal ------------------------------------------------------------------------------------------ */

static void test_visible(void)
{
    static const struct {
        const char *text, *keep, *want;
        size_t read;
    } cases[] = {
        {"a", "", "a", 1},
        {"\n", "", "\\n", 1},
        {"\n", "\n\t", "\n", 1},
        {"\t", "\n", "\\t", 1},
        {"\r", "", "\\r", 1},
        {"\x1b[2J", "\n", "\\x1b", 1},
        {"\x7f", "", "\\x7f", 1},
        {"\xc2\x85", "", "\\u{85}", 2},
        {"\xc2\x85", "\x85", "\\u{85}", 2}, /* only ASCII is kept */
        {"\xc2\xa0", "", "\xc2\xa0", 2},
        {"\xd8\x9c", "", "\\u{61c}", 2}, /* Arabic letter mark: a bidi mark */
        {"\xe2\x80\x8e", "", "\\u{200e}", 3},
        {"\xe2\x80\xae", "", "\\u{202e}", 3},
        {"\xe2\x81\xa9", "", "\\u{2069}", 3},
        {"\xe4\xb8\xad", "", "\xe4\xb8\xad", 3},
        {"\xf0\x9f\x98\x80", "", "\xf0\x9f\x98\x80", 4},
        {"\xef\xbf\xbd", "", "\xef\xbf\xbd", 3},
        {"\xe4\xb8", "", "\\xe4", 1},
        {"\x9b", "", "\\x9b", 1},
        {"\xff", "\xff", "\\xff", 1},
    };
    char out[TEXT_VISIBLE];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t read = text_visible(cases[i].text, strlen(cases[i].text), cases[i].keep, out);
        check(read == cases[i].read && strcmp(out, cases[i].want) == 0, "case %zu: %zu bytes: %s", i, read, out);
    }
    check(text_visible("\0", 1, "\n", out) == 1 && strcmp(out, "\\x00") == 0, "a NUL: %s", out);
    for (uint32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        size_t size = unicode_encode(c, bytes), read = text_visible(bytes, size, "", out);
        if (read != size || (strlen(out) == size && memcmp(out, bytes, size) == 0) == text_drives_terminal(c))
            check(c >= 0xd800 && c < 0xe000, "U+%04X: %s", (unsigned)c, out);
    }
}

static void test_printable(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"model.norm.weight", "model.norm.weight"},
        {"\xe5\x90\x8d\xf0\x9f\x98\x80", "\xe5\x90\x8d\xf0\x9f\x98\x80"},
        {"a\nb\tc\x7f", "a\\nb\\tc\\x7f"},
        {"\xc2\x9b\xc2\xa0", "\\u{9b}\xc2\xa0"},
        {"\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8\xe2\x80\x8f", "\\u{202e}\\u{2066}\\u{2028}\\u{200f}"},
        {"\xe2\x80\xa6\xe2\x81\x84\xe2\x82\xac",
         "\xe2\x80\xa6\xe2\x81\x84\xe2\x82\xac"}, /* ellipsis, fraction slash, euro */
        {"\x1f \x7e\x7f", "\\x1f ~\\x7f"},
        {"\xc2\x80\xc2\x9f\xc3\x80", "\\u{80}\\u{9f}\xc3\x80"},
        {"\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x90", "\xe2\x80\x8d\\u{200e}\xe2\x80\x90"},
        {"\xe2\x80\xa7\xe2\x80\xaf", "\xe2\x80\xa7\xe2\x80\xaf"},
        {"\xe2\x81\xa5\xe2\x81\xa9\xe2\x81\xaa", "\xe2\x81\xa5\\u{2069}\xe2\x81\xaa"},
        {"\xe3\x80\xa8\xe1\x80\xae", "\xe3\x80\xa8\xe1\x80\xae"},
        {"\xc2\x9b", "\\u{9b}"},
        {"\xe2\x80", "\\xe2\\x80"},
        {"\xc2", "\\xc2"},
        {"\xd8\x9c", "\\u{61c}"},
    };
    char out[TEXT_PRINTABLE], text[180];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(strcmp(text_printable(cases[i].text, strlen(cases[i].text), out), cases[i].want) == 0, "case %zu: %s", i,
              out);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "\xe5\x90\x8d"[i % 3];
    text_printable(text, sizeof text, out);
    check(strncmp(out, "...\xe5\x90\x8d", 6) == 0 && strlen(out) == 3 + 96, "a long text is cut between characters: %s",
          out);
    memset(text, 'x', sizeof text);
    text[0] = text[3] = '!';
    check(strlen(text_printable(text, 100, out)) == 100 && strncmp(out, text, 100) == 0, "100 bytes stay: %s", out);
    text_printable(text, 101, out);
    check(strlen(out) == 100 && strncmp(out, "...xxx", 6) == 0, "101 bytes are cut: %s", out);
    memset(text, 0x80, sizeof text);
    check(strcmp(text_printable(text, sizeof text, out), "...") == 0, "the inside of characters: %s", out);
    memset(text, 1, sizeof text);
    check(strlen(text_printable(text, sizeof text, out)) < sizeof out, "many escapes fit");
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* The whole shape, or its beginning and "...": whatever the sizes, it fits. */
static void check_shape(const uint64_t *shape, size_t rank)
{
    char out[SHAPE_TEXT], *whole = NULL;
    size_t length;
    FILE *f = open_memstream(&whole, &length);
    shape_print(f, shape, rank);
    fclose(f);
    check(shape_text(shape, rank, out) == out, "it returns out");
    size_t n = strlen(out);
    bool cut = n > 5 && strcmp(out + n - 5, ",...]") == 0;
    check(cut ? n - 5 >= 80 && strncmp(out, whole, n - 4) == 0 : strcmp(out, whole) == 0, "%s of %s", out, whole);
    check(n + 1 <= SHAPE_TEXT, "%zu bytes", n);
    free(whole);
}

static void test_shapes(void)
{
    uint64_t shape[200];
    char out[SHAPE_TEXT];
    check(strcmp(shape_text(NULL, 0, out), "[]") == 0, "%s", out);
    check(strcmp(shape_text((uint64_t[]){151936, 896}, 2, out), "[151936,896]") == 0, "%s", out);
    check(strcmp(shape_text((uint64_t[]){UINT64_MAX}, 1, out), "[18446744073709551615]") == 0, "%s", out);
    for (uint64_t first = 1; first < UINT64_MAX / 10; first *= 10)
        for (size_t rank = 0; rank <= 200; rank++) {
            for (size_t i = 0; i < rank; i++)
                shape[i] = i == 0 ? first : 1;
            check_shape(shape, rank);
            if (rank > 0)
                shape[rank - 1] = UINT64_MAX;
            check_shape(shape, rank);
        }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void test_memory(void)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 1048575, 1048576, 1048577, 5000000};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *a = memory_aligned(sizes[i], 1), *l = memory_large(sizes[i], 1);
        check(a && (uintptr_t)a % 64 == 0 && l && (uintptr_t)l % 64 == 0, "%zu bytes", sizes[i]);
        if (a && l) { /* all of it can be used: a sanitizer looks */
            memset(a, 1, sizes[i]);
            memset(l, 1, sizes[i]);
            memory_want_huge_pages(l, sizes[i]);
            check(sizes[i] == 0 || (a[sizes[i] - 1] == 1 && l[sizes[i] - 1] == 1), "%zu bytes stay", sizes[i]);
        }
        free(a);
        free(l);
    }
    static const size_t wrong[][2] = {{SIZE_MAX, 2}, {SIZE_MAX / 2 + 2, 2}, {SIZE_MAX, 1}, {2, SIZE_MAX / 2 + 1}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        check(!memory_aligned(wrong[i][0], wrong[i][1]) && !memory_large(wrong[i][0], wrong[i][1]),
              "%zu * %zu bytes are refused", wrong[i][0], wrong[i][1]);
}

static void test_growth(void)
{
    uint64_t *items = NULL;
    size_t capacity = 0, moves = 0;
    for (size_t n = 0; n < 100000; n++) {
        if (n == capacity) {
            items = memory_grow(items, &capacity, n + 1, sizeof *items);
            moves++;
            check(items && capacity > n, "%zu items", n);
        }
        items[n] = n;
    }
    size_t wrong = 0;
    for (size_t n = 0; n < 100000; n++)
        wrong += items[n] != n;
    check(wrong == 0 && moves < 30, "%zu items are wrong after %zu moves", wrong, moves);
    size_t before = capacity;
    check(!memory_grow(items, &capacity, SIZE_MAX / 2 / sizeof *items + 1, sizeof *items) && capacity == before,
          "more than there can be is refused");
    check(items[99999] == 99999, "and the items stay");
    items = memory_grow(items, &capacity, 1000000, sizeof *items);
    check(items && capacity >= 1000000 && items[99999] == 99999, "as much as was asked for");
    free(items);
}

/* ---- paths ------------------------------------------------------------------------------------------------------- */

/* `got` is fresh. */
static void check_path(char *got, const char *want)
{
    check(got && strcmp(got, want) == 0, "%s, not %s", got, want);
    free(got);
}

static void test_paths(void)
{
    check_path(path_join("a", "b"), "a/b");
    check_path(path_join("a/", "b/c"), "a/b/c");
    check_path(path_join("/", "b"), "/b");
    check_path(path_folder("a/b/c"), "a/b");
    check_path(path_folder("/a"), "/");
    check_path(path_folder("a"), ".");
    check_path(path_with_suffix("a/b", ".part"), "a/b.part");
    check_path(path_with_suffix("", ""), "");
    check(strcmp(path_name("a/b.c"), "b.c") == 0 && strcmp(path_name("b"), "b") == 0, "the name alone");

    const char *file = in_folder("file"), *hard = in_folder("hard"), *soft = in_folder("soft"),
               *nowhere = in_folder("nowhere");
    write_bytes(file, "1", 1);
    check(link(file, hard) == 0 && symlink("file", soft) == 0 && symlink("missing", nowhere) == 0, "links");
    check(file_exists(file) && file_exists(soft) && file_exists(nowhere) && !file_exists(in_folder("missing")),
          "what exists, a link to nothing among it");
    check(file_same(file, hard) && file_same(file, soft) && !file_same(file, nowhere) && !file_same(file, folder),
          "which names are one file");
    check(!file_is_folder(file) && file_is_folder(folder) && !file_is_folder(nowhere), "which names are folders");
    check(symlink(".", in_folder("here")) == 0 && file_is_folder(in_folder("here")), "a link to a folder");
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void test_refused_files(void)
{
    const char *fifo = in_folder("fifo");
    check(mkfifo(fifo, 0600) == 0, "a FIFO");
    const struct {
        const char *path, *words;
    } cases[] = {{in_folder("none"), "No such file"},
                 {folder, "is a folder"},
                 {fifo, "not a regular file"}, /* and opening it does not wait for a writer */
                 {"/dev/null", "not a regular file"},
                 {in_folder("file/below"), "Not a directory"}};
    write_bytes(in_folder("file"), "1", 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char err[512];
        size_t size;
        int before = open_files();
        check(file_open(cases[i].path, &size, err) == -1 && strstr(err, cases[i].words), "%s: %s", cases[i].path, err);
        check(!file_read(cases[i].path, 100, &size, err) && strstr(err, cases[i].words) &&
                  strncmp(err, cases[i].path, strlen(cases[i].path)) == 0,
              "%s: %s", cases[i].path, err);
        check(open_files() == before, "%s stays open", cases[i].path);
    }
}

static void test_reading(void)
{
    char err[512] = "";
    size_t length = 0;
    const char *path = in_folder("r");
    write_bytes(path, "a\0b\n", 4);
    int fd = file_open(path, &length, err);
    check(fd >= 0 && length == 4 && (fcntl(fd, F_GETFD) & FD_CLOEXEC), "%s", err);
    close(fd);
    for (size_t limit = 4; limit < 6; limit++) {
        char *text = file_read(path, limit, &length, err);
        check(text && length == 4 && memcmp(text, "a\0b\n", 5) == 0, "%s", err);
        free(text);
    }
    check(!file_read(path, 3, &length, err) && strstr(err, "/r: has 4 bytes; at most 3 are read"), "%s", err);
    write_bytes(path, "", 0);
    char *text = file_read(path, 0, &length, err);
    check(text && length == 0 && !*text, "an empty file: %s", err);
    free(text);
}

static void test_at_offsets(void)
{
    const char *path = in_folder("at");
    char bytes[8] = "";
    int fd = open(path, O_RDWR | O_CREAT, 0600), reading = open(path, O_RDONLY);
    check(file_set_size(fd, 6) == 0 && file_write_at(fd, "abc", 3, 5) == 0, "%s", strerror(errno));
    check(file_read_at(reading, bytes, 8, 0) == 0 && memcmp(bytes, "\0\0\0\0\0abc", 8) == 0, "what was written");
    check(file_read_at(reading, bytes, 1, 8) == -1 && errno == ENODATA, "behind the end: %s", strerror(errno));
    check(file_read_at(reading, bytes, 8, 1) == -1 && errno == ENODATA, "across the end: %s", strerror(errno));
    check(file_read_at(reading, bytes, 0, 100) == 0 && file_write_at(fd, "", 0, 100) == 0, "no bytes, no failure");
    check(file_write_at(reading, "x", 1, 0) == -1 && errno == EBADF, "opened for reading: %s", strerror(errno));
    check(file_sync(fd) == 0 && file_sync_folder(path) == 0, "%s", strerror(errno));
    bytes_told = 0;
    unsigned char *copy = file_map_copy(fd, 8, note_progress, &progress_calls);
    check(copy && memcmp(copy, "\0\0\0\0\0abc", 8) == 0 && bytes_told == 8, "a copy in memory: %s", strerror(errno));
    if (copy)
        munmap(copy, 8);
    check(!file_map_copy(fd, 9, NULL, NULL) && errno == ENODATA, "more than there is: %s", strerror(errno));
    close(fd);
    close(reading);
}

/* Advice about pages changes no byte of a mapped file. */
static void test_advice(void)
{
    enum { N = 300000 };
    static unsigned char bytes[N];
    for (size_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)(i % 251);
    write_bytes(in_folder("mapped"), bytes, N);
    int fd = open(in_folder("mapped"), O_RDONLY);
    unsigned char *mapped = mmap(NULL, N, PROT_READ, MAP_PRIVATE, fd, 0);
    check(mapped != MAP_FAILED, "%s", strerror(errno));
    file_expect_all(mapped, N);
    check(memcmp(mapped, bytes, N) == 0, "before");
    file_release_pages(mapped + 5, 3); /* no whole page */
    file_release_pages(mapped + 100, N - 200);
    check(memcmp(mapped, bytes, N) == 0, "released pages return when they are touched");
    munmap(mapped, N);
    close(fd);
}

/* ---- copying and new files --------------------------------------------------------------------------------------- */

static int stop_at_once(void *context, uint64_t bytes)
{
    (void)context, (void)bytes;
    return 1;
}

/* Where the kernel cannot copy (here: into a file that is only appended to), copying goes through memory. */
static void test_copying(void)
{
    static unsigned char bytes[3000000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i % 251);
    write_bytes(in_folder("from"), bytes, sizeof bytes);
    write_bytes(in_folder("to"), "", 0);
    int in = open(in_folder("from"), O_RDONLY), out = open(in_folder("to"), O_WRONLY | O_APPEND);
    check(file_copy(out, 0, in, 0, sizeof bytes, NULL, NULL) == 0, "copying: %s", strerror(errno));
    check(same_bytes(in_folder("from"), in_folder("to")), "copied through memory");
    check(file_copy(out, 0, in, 0, 5, stop_at_once, NULL) == -1 && errno == ECANCELED, "stopped");
    check(file_copy(in, 0, in, 0, 5, NULL, NULL) == -1 && errno == EBADF, "into a file that is open for reading");
    close(in);
    close(out);
}

/* How many temporary files are in the folder. */
static size_t count_parts(void)
{
    size_t n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        n += text_ends_with(e->d_name, ".part") ? 1 : 0;
    if (d)
        closedir(d);
    return n;
}

/* All names appear, or none. */
static void test_new_files(void)
{
    char err[512] = "";
    NewFile files[2] = {{.fd = -1}, {.fd = -1}};
    check(new_file_open(&files[0], in_folder("one"), false, err) == 0 &&
              new_file_open(&files[1], in_folder("two"), false, err) == 0,
          "%s", err);
    check(mkdir(in_folder("two"), 0700) == 0, "a folder in the way");
    check(new_files_publish(files, 2, err) == -1 && strstr(err, "two"), "%s", err);
    check(!file_exists(in_folder("one")), "a name was given though the other could not be");
    new_file_end(&files[0]);
    new_file_end(&files[1]);
    check(count_parts() == 0, "temporary names");
    rmdir(in_folder("two"));
}

static void test_holes(void)
{
    static unsigned char bytes[100000];
    const char *from = in_folder("holes"), *to = in_folder("copy");
    int in = open(from, O_RDWR | O_CREAT, 0600), out = open(to, O_RDWR | O_CREAT, 0600);
    check(file_set_size(in, 1 << 20) == 0 && file_write_at(in, "abc", 3, 500000) == 0, "%s", strerror(errno));
    check(file_set_size(out, 1 << 20) == 0 && file_copy(out, 0, in, 0, 1 << 20, NULL, NULL) == 0, "%s",
          strerror(errno));
    check(same_bytes(from, to), "a file of holes");
    struct stat info;
    check(fstat(out, &info) == 0 && info.st_blocks * 512 < 1 << 19, "holes stay holes: %ld blocks",
          (long)info.st_blocks);
    memset(bytes, 7, sizeof bytes);
    check(file_write_at(in, bytes, sizeof bytes, 0) == 0 && file_copy(out, 5, in, 3, 1000, NULL, NULL) == 0 &&
              file_read_at(out, bytes, 1010, 0) == 0 && bytes[4] == 0 && bytes[5] == 7 && bytes[1004] == 7 &&
              bytes[1005] == 0,
          "from one place to another");
    check(file_copy(out, 0, in, 1 << 20, 1, NULL, NULL) == -1 && errno == ENODATA, "behind the end: %s",
          strerror(errno));
    close(in);
    close(out);
}

static bool has_bytes(const char *path, const char *text)
{
    size_t n;
    unsigned char *bytes = read_bytes(path, &n);
    bool same = n == strlen(text) && memcmp(bytes, text, n) == 0;
    free(bytes);
    return same;
}

/* Write a new file of that text. */
static int put_new(const char *path, const char *text, bool replace, char err[512])
{
    NewFile f;
    int status = new_file_open(&f, path, replace, err);
    if (status == 0 && (file_write_at(f.fd, text, strlen(text), 0) != 0 || new_file_finish(&f, err) != 0))
        status = -1;
    if (status == 0)
        status = new_files_publish(&f, 1, err);
    new_file_end(&f);
    return status;
}

/* What exists is replaced only where that is asked for, and only a regular file; and not before the new one is
 * complete. */
static void test_replacing(void)
{
    char err[512] = "";
    const char *path = in_folder("new"), *link = in_folder("link");
    NewFile f, other;
    write_bytes(path, "old", 3);
    check(put_new(path, "newer", false, err) == -1 && strstr(err, "exists already") && strstr(err, "--force"), "%s", err);
    check(new_file_open(&f, path, true, err) == 0 && new_file_open(&other, path, true, err) == 0, "%s", err);
    check(file_write_at(f.fd, "newer", 5, 0) == 0 && new_file_finish(&f, err) == 0 && has_bytes(path, "old"), "%s", err);
    check(file_write_at(other.fd, "newest", 6, 0) == 0 && new_file_finish(&other, err) == 0, "a second writer: %s", err);
    check(new_files_publish(&f, 1, err) == 0 && has_bytes(path, "newer"), "%s", err);
    check(new_files_publish(&other, 1, err) == 0 && has_bytes(path, "newest"), "%s", err);
    new_file_end(&f);
    new_file_end(&other);

    write_bytes(path, "", 0);
    check(put_new(path, "into an empty file", false, err) == 0 && has_bytes(path, "into an empty file"), "%s", err);
    write_bytes(path, "", 0);
    check(new_file_open(&f, path, false, err) == 0 && new_file_finish(&f, err) == 0, "%s", err);
    write_bytes(path, "meanwhile", 9);
    check(new_files_publish(&f, 1, err) == -1 && has_bytes(path, "meanwhile"), "no longer empty: %s", err);
    new_file_end(&f);

    unlink(path);
    check(new_file_open(&f, path, false, err) == 0 && new_file_open(&other, path, false, err) == 0, "%s", err);
    check(file_write_at(f.fd, "first", 5, 0) == 0 && new_file_finish(&f, err) == 0 && new_file_finish(&other, err) == 0,
          "%s", err);
    check(new_files_publish(&f, 1, err) == 0 && new_files_publish(&other, 1, err) == -1 && strstr(err, "exists"),
          "the first of two writers wins: %s", err);
    new_file_end(&f);
    new_file_end(&other);

    check(symlink("nothing", link) == 0 && put_new(link, "x", false, err) == -1 && put_new(link, "x", true, err) == -1 &&
              strstr(err, "not a regular file") && !file_exists(in_folder("nothing")),
          "a link: %s", err);
    check(put_new(folder, "x", true, err) == -1 && strstr(err, "not a regular file"), "a folder: %s", err);
    check(put_new(in_folder("no/such/folder"), "x", false, err) == -1 && strstr(err, "no/such/folder: No such file"),
          "%s", err);
    check(count_parts() == 0, "temporary names");
}

/* Nothing that lies under a name like a temporary one is touched, and names may be as long as the system allows. */
static void test_names(void)
{
    char err[512] = "", name[260], *part;
    const char *other = in_folder("fresh.part");
    write_bytes(other, "precious", 8);
    check(put_new(in_folder("fresh"), "x", false, err) == 0 && has_bytes(other, "precious"), "%s", err);
    unlink(other);
    for (int length = 230; length <= 255; length++) {
        snprintf(name, sizeof name, "%0*d", length, length);
        memcpy(name + length - 30, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 16);
        const char *path = in_folder(name);
        check(put_new(path, "long", false, err) == 0 && has_bytes(path, "long"), "%d bytes: %s", length, err);
        int fd = file_open_part(path, 0600, &part);
        check(fd >= 0 && file_is_part_of(part, path) && text_is_utf8(part, strlen(part)), "%s", part);
        check(!file_is_part_of(part, in_folder("other")) && !file_is_part_of(path, path), "of another file");
        close(fd);
        unlink(part);
        free(part);
        char *journal = path_with_suffix(path, ".undo"), *old = path_with_suffix(path, ".undo.old");
        check(strlen(path_name(journal)) <= 255 && text_ends_with(journal, ".undo") && strcmp(journal, old) != 0,
              "%s", journal);
        check(length <= 250 ? strncmp(journal, path, strlen(path)) == 0 : strchr(journal, '~') != NULL, "%s", journal);
        name[0] = 'x';
        char *another = path_with_suffix(in_folder(name), ".undo");
        check(strcmp(another, journal) != 0, "two long names have two journals");
        free(another);
        free(journal);
        free(old);
    }
    check(count_parts() == 0, "temporary names");
}

/* Words for a shell. */
static void test_quoted(void)
{
    static const char *const cases[][2] = {
        {"model.safetensors", "model.safetensors"}, {"a b", "'a b'"},          {"", "''"},
        {"it's", "'it'\\''s'"},                     {"-x", "./-x"},            {"$HOME", "'$HOME'"},
        {"\xe4\xb8\xad", "'\xe4\xb8\xad'"},           {"a\033[1m", "$'a\\x1b\\x5b1m'"}, {"\xff'", "$'\\xff\\x27'"},
    };
    char out[TEXT_QUOTED], path[300];
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(strcmp(text_quoted(cases[i][0], out), cases[i][1]) == 0, "%s", out);
    memset(path, 'x', sizeof path);
    path[299] = '\0';
    check(strstr(text_quoted(path, out), "..."), "too long: %s", out);
}

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

static void test_hash(void)
{
    enum { NAMES = 100000, BUCKETS = 1 << 17 };
    const HashKey zero = {0, 0}, key = {1, 0};
    char bytes[64] = "", name[64];
    /* the figures are Python's, whose hash() is SipHash-1-3, with the key 0 under PYTHONHASHSEED=0 */
    check(hash_bytes("a", 1, zero) == 0x407448d2b89b1813u, "one byte");
    check(hash_bytes("model.layers.0", 14, zero) == 0x0ec64dad99f8356eu, "14 bytes");
    check(hash_bytes("0123456789abcdef", 16, zero) == 0x1d42b30f7e060c24u, "16 bytes");
    HashKey one = hash_new_key(), other = hash_new_key();
    check(one.a != other.a && one.b != other.b, "each table has a key of its own");
    for (size_t n = 0; n <= 40; n++) {
        uint64_t all = hash_bytes(bytes, n, key);
        check(all != hash_bytes(bytes, n, (HashKey){2, 0}) && all != hash_bytes(bytes, n, (HashKey){1, 1}),
              "%zu bytes: the key counts", n);
        check(all != hash_bytes(bytes, n + 1, key), "%zu bytes of zero are not %zu", n, n + 1);
        for (size_t i = 0; i < 8 * n; i++) {
            bytes[i / 8] ^= (char)(1 << i % 8);
            check(hash_bytes(bytes, n, key) != all, "bit %zu of %zu bytes counts", i, n);
            bytes[i / 8] ^= (char)(1 << i % 8);
        }
    }
    memcpy(name + 1, "model.layers.0", 14);
    check(hash_bytes("model.layers.0", 14, key) == hash_bytes(name + 1, 14, key), "at any address");
    unsigned char *buckets = calloc(BUCKETS, 1);
    size_t most = 0;
    for (size_t i = 0; i < NAMES; i++) {
        size_t n = (size_t)snprintf(name, sizeof name, "model.layers.%zu.mlp.up_proj.weight", i);
        size_t bucket = hash_bytes(name, n, key) % BUCKETS;
        buckets[bucket]++;
        most = MAX(most, buckets[bucket]);
    }
    check(most <= 12, "%zu of %d names meet in one of %d places", most, NAMES, BUCKETS);
    /* pairs that a hash without a key puts into one place */
    memset(buckets, 0, BUCKETS);
    most = 0;
    for (uint32_t x = 0; x < 4096; x++)
        for (uint32_t y = 0; y < 4096; y++)
            if (((uint64_t)x << 32 | y) * HASH_GOLDEN >> 52 == 0) {
                size_t bucket = hash_pair(x, y, one) >> 52;
                buckets[bucket]++;
                most = MAX(most, buckets[bucket]);
            }
    check(most > 0 && most <= 40, "%zu of 4096 pairs meet in one of 4096 places", most);
    free(buckets);
}

int main(void)
{
    open_folder("base");
    test_fail();
    test_text();
    test_utf8();
    test_visible();
    test_printable();
    test_shapes();
    test_memory();
    test_growth();
    test_paths();
    test_refused_files();
    test_reading();
    test_at_offsets();
    test_advice();
    test_copying();
    test_new_files();
    test_holes();
    test_replacing();
    test_names();
    test_quoted();
    test_hash();
    remove_folder();
    return report("base");
}
