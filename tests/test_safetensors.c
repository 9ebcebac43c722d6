/* safetensors.c: what it accepts, how it refuses, look-up, numbers, and big files; test_weights.c is about the weights
 * of a whole model. Verdicts are those of the reference library (safetensors 0.8.0), numbers come from first
 * principles. */
#include "base/base.h"

#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/threads.h"
#include "check.h"
#include "failing_calls.h"
#include "model_files.h"
#include "safetensors.h"

static char path[300]; /* the file that most tests write */

/* ---- files ---- */

static int open_text_n(SafetensorsFile *st, const char *header, size_t length, size_t n)
{
    write_parts(path, header, length, length, NULL, n);
    memset(st, 0, sizeof *st);
    return safetensors_open(path, st);
}

static int open_text(SafetensorsFile *st, const char *header, size_t n)
{
    return open_text_n(st, header, strlen(header), n);
}

/* ---- verdicts ---- */

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define WITH(extra) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]," extra "}}"
#define SHAPE(shape) "{" ENTRY("a", "F32", shape, "[0,8]") "}"
#define OFFSETS(offsets) "{" ENTRY("a", "F32", "[2]", offsets) "}"
#define DTYPE(dtype) "{\"a\":{\"dtype\":" dtype ",\"shape\":[2],\"data_offsets\":[0,8]}}"
#define META(value) "{\"__metadata__\":" value "," A "}"

static const struct {
    const char *header;
    size_t data;
    const char *refusal; /* words of the sentence; NULL: accepted */
} verdicts[] = {
    {"{" A "}", 8, NULL},
    {"{}", 0, NULL},
    {" \n{" A "}\t\r\n  ", 8, NULL},
    {"{}", 1, "1 byte too many: the file has 11, its header asks for 8 + 2 + 0"},
    {"{" A "}", 9, "1 byte too many"},
    {"{" A "}", 16, "8 bytes too many"},
    {"{" A "}", 7, "1 byte missing at the end: the file has 69, its header asks for 8 + 54 + 8"},
    {"{" A "}", 0, "8 bytes missing at the end"},
    {"[]", 0, "the header must be a JSON object"},
    {"null", 0, "the header must be a JSON object"},
    {"", 0, "the header is not valid JSON: byte 0"},
    {"{" A, 8, "the header is not valid JSON: byte 53"},
    {"{" A ",}", 8, "not valid JSON"},
    {"{'a':1}", 8, "not valid JSON"},
    /* entries */
    {"{\"a\":null}", 0, "tensor \"a\": its entry must be an object with exactly one \"dtype\""},
    {"{\"a\":{}}", 0, "with exactly one \"dtype\""},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "with exactly one \"shape\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "with exactly one \"data_offsets\""},
    {WITH("\"dtype\":\"F32\""), 8, "with exactly one \"dtype\""},
    {WITH("\"shape\":[2]"), 8, "with exactly one \"shape\""},
    {WITH("\"data_offsets\":[0,8]"), 8, "with exactly one \"data_offsets\""},
    {WITH("\"Dtype\":7,\"\":[],\"x\":{\"dtype\":1,\"dtype\":2},\"x\":1e308"), 8, NULL},
    {WITH("\"x\":1e309"), 8, "not valid JSON"},
    {WITH("\"x\":\"\\ud800\""), 8, "not valid JSON"},
    {"{\"a\":[\"F32\",[2],[0,8]]}", 8, NULL},
    {"{\"a\":[{\"F32\":null},[2],[0,8]]}", 8, NULL},
    {"{\"a\":[\"F32\",[2],[0,8],0]}", 8, "exactly one"},
    {"{\"a\":[[2],\"F32\",[0,8]]}", 8, "dtype must be a string"},
    {"{\"a\":{\"data_offsets\":[0,8],\"sh\\u0061pe\":[2],\"dtype\":\"F32\"}}", 8, NULL},
    /* dtype */
    {DTYPE("\"F\\u0033\\u0032\""), 8, NULL},
    {DTYPE("{\"F32\":null}"), 8, NULL},
    {DTYPE("{\"F32\":{}}"), 8, "dtype must be a string"},
    {DTYPE("{\"F32\":null,\"F32\":null}"), 8, "dtype must be a string"},
    {DTYPE("[\"F32\"]"), 8, "dtype must be a string"},
    {DTYPE("17"), 8, "dtype must be a string"},
    {DTYPE("\"\""), 8, "unknown dtype \"\""},
    {DTYPE("\"f32\""), 8, "unknown dtype \"f32\""},
    {DTYPE("\"F32\\u0000\""), 8, "unknown dtype \"F32\\x00\""},
    {DTYPE("\"F32 \""), 8, "unknown dtype \"F32 \""},
    {DTYPE("\"F3\""), 8, "unknown dtype \"F3\""},
    {DTYPE("\"F8_E4M3FN\""), 8, "unknown dtype \"F8_E4M3FN\""},
    {DTYPE("\"F8_E4M3FNUZZ\""), 8, "unknown dtype \"F8_E4M3FNUZZ\""},
    /* shape */
    {SHAPE("[2,1,1]"), 8, NULL},
    {SHAPE("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]"), 8, NULL},
    {SHAPE("[2.0]"), 8, "tensor \"a\": shape must hold whole numbers from 0 to 2^64-1, found 2.0"},
    {SHAPE("[2e0]"), 8, "found 2e0"},
    {SHAPE("[-2]"), 8, "found -2"},
    {SHAPE("[-0,2]"), 8, "found -0"},
    {SHAPE("[02]"), 8, "not valid JSON"},
    {SHAPE("[\"2\"]"), 8, "found another kind of value"},
    {SHAPE("[null]"), 8, "found another kind of value"},
    {SHAPE("[18446744073709551616]"), 8, "found 18446744073709551616"},
    {SHAPE("2"), 8, "shape must be an array"},
    {SHAPE("{\"0\":2}"), 8, "shape must be an array"},
    {SHAPE("null"), 8, "shape must be an array"},
    {SHAPE("[0,1000000000,100000000,100000000,100000000,100000000,100000000,100000000,100000000,2]"), 8,
     "F32 [0,1000000000,100000000,100000000,100000000,100000000,100000000,100000000,100000000,...] needs 0"},
    {SHAPE("[1]"), 8, "data_offsets [0, 8) hold 8 bytes, but F32 [1] needs 4"},
    {SHAPE("[4]"), 8, "data_offsets [0, 8) hold 8 bytes, but F32 [4] needs 16"},
    {SHAPE("[]"), 8, "but F32 [] needs 4"},
    {SHAPE("[18446744073709551615]"), 8, "the size of F32 [18446744073709551615] does not fit 64 bits"},
    {SHAPE("[4294967296,4294967296]"), 8, "the size of F32 [4294967296,4294967296] does not fit 64 bits"},
    {SHAPE("[9223372036854775808,2,2]"), 8, "does not fit 64 bits"},
    {SHAPE("[9223372036854775808,2,0]"), 0, "does not fit 64 bits"},
    {SHAPE("[576460752303423488]"), 8, "does not fit 64 bits"}, /* 2^59: the bytes fit, the bits don't */
    {SHAPE("[576460752303423487]"), 8, "needs 2305843009213693948"},
    {"{" ENTRY("a", "F32", "[0,18446744073709551615,18446744073709551615]", "[0,0]") "}", 0, NULL},
    {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "does not fit 64 bits"},
    /* less than a byte */
    {"{" ENTRY("a", "F4", "[4]", "[0,2]") "}", 2, NULL},
    {"{" ENTRY("a", "F4", "[3]", "[0,2]") "}", 2, "F4 [3] takes 12 bits, not a whole number of bytes"},
    {"{" ENTRY("a", "F4", "[3]", "[0,1]") "}", 1, "not a whole number of bytes"},
    {"{" ENTRY("a", "F6_E2M3", "[2,2]", "[0,3]") "}", 3, NULL},
    {"{" ENTRY("a", "F6_E3M2", "[2]", "[0,2]") "}", 2, "not a whole number of bytes"},
    /* data_offsets */
    {OFFSETS("[0]"), 8, "data_offsets must be two numbers, found 1"},
    {OFFSETS("[]"), 8, "data_offsets must be two numbers, found 0"},
    {OFFSETS("[0,8,8]"), 8, "data_offsets must be two numbers, found 3"},
    {OFFSETS("{\"0\":0,\"1\":8}"), 8, "data_offsets must be an array"},
    {OFFSETS("[0,8e0]"), 8, "data_offsets must hold whole numbers"},
    {OFFSETS("[0,-8]"), 8, "data_offsets must hold whole numbers"},
    {OFFSETS("[8,0]"), 8, "data_offsets [8, 0) end before they begin"},
    {OFFSETS("[18446744073709551612,4]"), 8, "end before they begin"},
    {OFFSETS("[0,9223372036854775808]"), 8, "hold 9223372036854775808 bytes, but F32 [2] needs 8"},
    {OFFSETS("[1,9]"), 9, "starts at byte 1 of the data, but what comes before it ends at 0: a hole of 1"},
    {OFFSETS("[9223372036854775808,9223372036854775816]"), 8, "a hole of 9223372036854775808"},
    /* several tensors */
    {"{" ENTRY("b", "U8", "[3]", "[2,5]") "," ENTRY("a", "U8", "[2]", "[0,2]") "}", 5, NULL},
    {"{" ENTRY("b", "U8", "[3]", "[3,6]") "," ENTRY("a", "U8", "[2]", "[0,2]") "}", 6,
     "tensor \"b\": starts at byte 3 of the data, but what comes before it ends at 2: a hole of 1"},
    {"{" ENTRY("b", "U8", "[3]", "[1,4]") "," ENTRY("a", "U8", "[2]", "[0,2]") "}", 4, "an overlap of 1"},
    {"{" ENTRY("b", "U8", "[2]", "[0,2]") "," ENTRY("a", "U8", "[2]", "[0,2]") "}", 2, "an overlap of 2"},
    {"{" ENTRY("b", "U8", "[1]", "[1,2]") "," ENTRY("a", "U8", "[4]", "[0,4]") "}", 4, "an overlap of 3"},
    /* empty tensors lie between others, in any order */
    {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("z", "F32", "[0]", "[0,0]") "}", 2, NULL},
    {"{" ENTRY("z", "F32", "[0,3]", "[2,2]") "," ENTRY("a", "U8", "[2]", "[0,2]") "}", 2, NULL},
    {"{" ENTRY("y", "I8", "[0]", "[0,0]") "," ENTRY("z", "F64", "[0]", "[0,0]") "}", 0, NULL},
    {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("z", "F32", "[0]", "[1,1]") "}", 2,
     "tensor \"z\": starts at byte 1"},
    {"{" ENTRY("z", "F32", "[0]", "[8,8]") "}", 0, "a hole of 8"},
    {"{" ENTRY("z", "F32", "[0]", "[0,0]") "}", 1, "1 byte too many"},
    /* __metadata__ */
    {META("null"), 8, NULL},
    {META("{}"), 8, NULL},
    {META("{\"a\":\"b\",\"\":\"\",\"a\":\"c\"}"), 8, NULL},
    {"{" A ",\"\\u005f_metadata__\":{\"x\":\"y\"}}", 8, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
    {META("[]"), 8, "__metadata__ must be an object"},
    {META("\"pt\""), 8, "__metadata__ must be an object"},
    {META("{\"a\":\"b\",\"n\":1}"), 8, "__metadata__ must map text to text; \"n\" has another value"},
    {META("{\"a\":null}"), 8, "\"a\" has another value"},
    {META("null,\"__metadata__\":null"), 8, "__metadata__ is there twice"},
    {"{" ENTRY("__metadata__", "F32", "[2]", "[0,8]") "}", 8, "\"shape\" has another value"},
    {"{" ENTRY("__metadata__ ", "F32", "[2]", "[0,8]") "}", 8, NULL},
    /* equal names: the last counts, the others must be well-formed */
    {"{" A "," A "}", 8, NULL},
    {"{" A ",\"\\u0061\":[\"I64\",[1],[0,8]]}", 8, NULL},
    {"{" ENTRY("a", "F32", "[9]", "[9,3]") "," A "}", 8, NULL},
    {"{" ENTRY("a", "X", "[2]", "[0,8]") "," A "}", 8, "unknown dtype \"X\""},
    {"{" A "," ENTRY("a", "F32", "[2]", "[8,16]") "}", 16,
     "a hole of 8 (a name is there twice: its last entry counts)"},
    {"{" ENTRY("a", "F32", "[2]", "[8,16]") "," A "}", 16,
     "8 bytes too many: the file has 132, its header asks for 8 + 108 + 8 (a name is there twice"},
    /* names */
    {"{" ENTRY("", "F32", "[2]", "[0,8]") "}", 8, NULL},
    {"{" ENTRY("../../etc/passwd", "F32", "[2]", "[0,8]") "}", 8, NULL},
    {"{" ENTRY("\xc3\xa9\x7f\xc2\x85\xf0\x9f\x98\x80", "F32", "[2]", "[0,8]") "}", 8, NULL},
    {"{" ENTRY("\\udbff\\udfff", "F32", "[2]", "[0,8]") "}", 8, NULL},
    {"{" ENTRY("\\ud800\\u0041", "F32", "[2]", "[0,8]") "}", 8, "not valid JSON"},
    {"{" ENTRY("\\u12", "F32", "[2]", "[0,8]") "}", 8, "not valid JSON"},
    {"{" ENTRY("\t", "F32", "[2]", "[0,8]") "}", 8, "not valid JSON"},
    {"{" ENTRY("\xc0\xaf", "F32", "[2]", "[0,8]") "}", 8, "not valid JSON"},
    {"{" ENTRY("\\u001b[2J\\n\\u009b\\u202e", "F32", "[3]", "[0,8]") "}", 8,
     "tensor \"\\x1b[2J\\n\\u{9b}\\u{202e}\": data_offsets"},
};

static void test_verdicts(void)
{
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
        SafetensorsFile st;
        int result = open_text(&st, verdicts[i].header, verdicts[i].data);
        const char *want = verdicts[i].refusal;
        check(result == (want ? -1 : 0), "%s: %s", verdicts[i].header, st.error);
        if (want && result != 0)
            check(strncmp(st.error, path, strlen(path)) == 0 && strstr(st.error, want), "%s: '%s' instead of '%s'",
                  verdicts[i].header, st.error, want);
        check(result == 0 || (!st.mapped && !st.path && !st.header && st.fd < 0), "%s: something stays open",
              verdicts[i].header);
        safetensors_close(&st);
    }
}

/* The reference's parser refuses the 128th level: there may be the header, the entry, and 125 more. */
static void test_depth(void)
{
    for (int levels = 124; levels < 128; levels++) {
        char header[600], open[128] = "", close[128] = "";
        SafetensorsFile st;
        memset(open, '[', (size_t)levels);
        memset(close, ']', (size_t)levels);
        snprintf(header, sizeof header, WITH("\"x\":%.*s%.*s"), levels, open, levels, close);
        check((open_text(&st, header, 8) == 0) == (levels <= 125), "%d levels", levels);
        safetensors_close(&st);
    }
    size_t n = 60000;
    char *deep = malloc(n);
    memset(deep, '[', n);
    memcpy(deep, "{\"a\":", 5);
    SafetensorsFile st;
    check(open_text_n(&st, deep, n, 0) != 0 && strstr(st.error, "not valid JSON"), "%s", st.error);
    free(deep);
}

/* ---- the header's length ---- */

static void test_lengths(void)
{
    static const struct {
        uint64_t announced;
        const char *refusal;
    } cases[] = {
        {0, "not valid JSON"},
        {1, "not valid JSON"},
        {53, "not valid JSON"},
        {62, "the header is not valid JSON: byte 54"}, /* takes in the data, whose first byte is 0 */
        {63, "1 byte missing at the end: the file has 70, its header alone takes 8 + 63"},
        {100000000, "99999938 bytes missing at the end"},
        {100000001, "the first 8 bytes announce a header of 100000001 bytes, but at most 100000000 are allowed"},
        {(uint64_t)1 << 31, "announce a header of 2147483648 bytes"},
        {((uint64_t)1 << 32) + 54, "announce a header of 4294967350 bytes"},
        {(uint64_t)1 << 63, "announce a header of 9223372036854775808"},
        {UINT64_MAX, "announce a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "announce a header of 18446744073709551608 bytes"},
    };
    const char *header = "{" A "}";
    SafetensorsFile st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_parts(path, header, strlen(header), cases[i].announced, NULL, 8);
        memset(&st, 0, sizeof st);
        check(safetensors_open(path, &st) != 0 && strstr(st.error, cases[i].refusal), "%llu: %s",
              (unsigned long long)cases[i].announced, st.error);
    }
    check(open_text_n(&st, "", 1, 0) != 0 && strstr(st.error, "the header is padded with NUL bytes"), "%s", st.error);
    check(open_text_n(&st, "{" A "}\0\0", 56, 8) != 0 && strstr(st.error, "the header is padded with NUL bytes"), "%s",
          st.error);
    check(open_text_n(&st, "{" A "}  ", 56, 8) == 0, "padded with spaces: %s", st.error);
    check(st.header_len == 56 && st.data == st.mapped + 8 + 56 && st.data_size == 8 && st.mapped_size == 72,
          "the three parts");
    check(memcmp(st.header_json, "{" A "}  ", 57) == 0, "the header's copy ends in NUL");
    safetensors_close(&st);
    for (int size = 0; size < 70; size++) {
        write_parts(path, header, strlen(header), strlen(header), NULL, 8);
        memset(&st, 0, sizeof st);
        int more = size < 8 ? 8 - size : size < 62 ? 62 - size : 70 - size;
        char want[200];
        snprintf(want, sizeof want, ": %d byte%s missing%s: the file has %d, %s", more, more == 1 ? "" : "s",
                 size < 8 ? "" : " at the end", size,
                 size < 8    ? "and the length of the header alone takes 8"
                 : size < 62 ? "its header alone takes 8 + 54"
                             : "its header asks for 8 + 54 + 8");
        check(truncate(path, size) == 0 && safetensors_open(path, &st) != 0 && strstr(st.error, want),
              "%d bytes: %s instead of %s", size, st.error, want);
    }
}

static void test_largest_header(void)
{
    size_t n = 100000000;
    char *header = malloc(n);
    memset(header, ' ', n);
    memcpy(header, "{" A "}", 54);
    SafetensorsFile st;
    check(open_text_n(&st, header, n, 8) == 0 && st.n_tensors == 1, "100,000,000 bytes of header: %s", st.error);
    safetensors_close(&st);
    free(header);
    unlink(path);
}

/* What is missing at the end is told apart from everything else that is wrong with a file. */
static void test_truncated(void)
{
    static const char header[] = "{" ENTRY("a", "U8", "[4]", "[0,4]") "}";
    static const struct {
        size_t announced, bytes; /* of the header; of the data */
        bool truncated;
    } cases[] = {
        {sizeof header - 1, 4, false},
        {sizeof header - 1, 3, true},
        {sizeof header - 1, 5, false},
        {sizeof header + 8, 4, true}, /* the header itself is cut short */
        {SAFETENSORS_MAX_HEADER + 1, 4, false},
    };
    SafetensorsFile st = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_parts(path, header, sizeof header - 1, cases[i].announced, NULL, cases[i].bytes);
        bool opened = safetensors_open(path, &st) == 0;
        check(opened == (i == 0) && st.truncated == cases[i].truncated, "case %zu: %s", i, st.error);
        safetensors_close(&st);
        check(safetensors_open("/nonexistent", &st) != 0 && !st.truncated, "a file that does not exist is not cut");
    }
    unlink(path);
}

/* ---- files that are none ---- */

static void test_other_files(void)
{
    SafetensorsFile st = {0};
    int before = open_files();
    check(safetensors_open("/nonexistent/x.safetensors", &st) != 0 &&
              strstr(st.error, "/nonexistent/x.safetensors: No such file"),
          "%s", st.error);
    check(safetensors_open(folder, &st) != 0 && strstr(st.error, "is a folder, not a file"), "%s", st.error);
    check(safetensors_open("/dev/null", &st) != 0 && strstr(st.error, "is not a regular file"), "%s", st.error);
    char fifo[300];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    check(mkfifo(fifo, 0600) == 0 && safetensors_open(fifo, &st) != 0 && strstr(st.error, "is not a regular file"),
          "%s", st.error);
    unlink(fifo);
    char long_path[5000];
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = '\0';
    check(safetensors_open(long_path, &st) != 0 && strstr(st.error, "...xxx") && strlen(st.error) < 200, "%s",
          st.error);
    check(safetensors_open("/tmp/\x1b[2J\n", &st) != 0 && strncmp(st.error, "/tmp/\\x1b[2J\\n: ", 15) == 0, "%s",
          st.error);
    check(open_files() == before, "a file stays open");
    safetensors_close(&st);
    safetensors_close(&st);
    memset(&st, 0, sizeof st);
    safetensors_close(&st); /* file 0 must stay open */
    check(open_files() == before, "closing a zeroed struct closes a file");
    int input = dup(0);
    close(0);
    check(open_text(&st, "{" A "}", 8) == 0 && st.fd == 0, "file %d is free: %s", st.fd, st.error);
    safetensors_close(&st);
    check(fcntl(0, F_GETFD) < 0, "file 0 is closed if it is the checkpoint");
    dup2(input, 0);
    close(input);
}

/* ---- look-up ---- */

static void test_names(void)
{
    SafetensorsFile st;
    SafetensorsTensor t;
    const char *header = "{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("a\\u0000b", "U8", "[1]", "[1,2]") "," ENTRY(
        "", "U8", "[1]", "[2,3]") "," ENTRY("a\\u0000", "U8", "[1]", "[3,4]") "}";
    check(open_text(&st, header, 4) == 0, "%s", st.error);
    check(safetensors_find(&st, "a", &t) == 0 && t.offset == 0 && *safetensors_data(&t) == 0, "a");
    check(safetensors_find_n(&st, "a\0b", 3, &t) == 0 && t.offset == 1 && t.name_length == 3, "a NUL b");
    check(safetensors_find_n(&st, "a\0", 2, &t) == 0 && t.offset == 3, "a NUL");
    check(safetensors_find(&st, "", &t) == 0 && t.offset == 2 && t.file == &st, "the empty name");
    memset(&t, 0, sizeof t);
    check(safetensors_find(&(SafetensorsFile){0}, "a", &t) != 0, "nothing is found in no file");
    check(safetensors_find(&st, "b\n", &t) != 0 && strstr(st.error, ": there is no tensor \"b\\n\""), "%s", st.error);
    safetensors_close(&st);
    check(open_text(&st, "{" A "}", 8) == 0 && !st.repeated_name, "no name twice");
    safetensors_close(&st);
    check(open_text(&st, "{" ENTRY("a", "F64", "[7]", "[3,1]") "," ENTRY("b", "I8", "[8]", "[8,16]") "," A "}", 16) ==
              0,
          "%s", st.error);
    check(st.repeated_name && json_key_is(st.repeated_name, "a") && st.n_tensors == 2, "the repeated name is told");
    check(safetensors_find(&st, "a", &t) == 0 && t.dtype == DTYPE_F32 && t.rank == 1 && t.shape[0] == 2,
          "the last entry counts");
    safetensors_close(&st);
}

/* Tensors are in order of offset, of one offset the empty ones first, then in order of name, whatever the order of the
 * entries. */
static void test_order(void)
{
    static const char *const entries[] = {
        ENTRY("a", "U8", "[0]", "[0,0]"), ENTRY("aa", "U8", "[0]", "[0,0]"), ENTRY("ab", "I8", "[0,2]", "[0,0]"),
        ENTRY("A", "U8", "[2]", "[0,2]"), ENTRY("b", "U8", "[0]", "[2,2]"),  ENTRY("c", "F32", "[0]", "[2,2]"),
        ENTRY("0", "U8", "[1]", "[2,3]"),
    };
    enum { N = sizeof entries / sizeof *entries };
    for (size_t first = 0; first < N; first++)
        for (size_t step = 1; step < N; step++) {
            char header[1000] = "{";
            SafetensorsFile st;
            for (size_t i = 0; i < N; i++) {
                strcat(header, entries[(first + i * step) % N]);
                strcat(header, i + 1 < N ? "," : "}");
            }
            check(open_text(&st, header, 3) == 0, "%s: %s", header, st.error);
            for (size_t i = 0; i < st.n_tensors; i++) {
                SafetensorsTensor *t = &st.tensors[i], found;
                check(strncmp(t->name, entries[i] + 1, t->name_length) == 0 && entries[i][t->name_length + 1] == '"',
                      "%s: tensor %zu", header, i);
                check(safetensors_find_n(&st, t->name, t->name_length, &found) == 0 && found.name == t->name,
                      "%s: tensor %zu is found", header, i);
            }
            SafetensorsTensor none;
            check(safetensors_find(&st, "", &none) != 0, "%s: no tensor has an empty name", header);
            safetensors_close(&st);
        }
}

/* repeated_name is the first entry whose name was there before. */
static void test_repeated(void)
{
    SafetensorsFile st;
    check(open_text(&st,
                    "{" ENTRY("b", "U8", "[0]", "[0,0]") "," A "," A "," ENTRY("b", "U8", "[0]", "[0,0]") "," A "}",
                    8) == 0,
          "%s", st.error);
    check(st.n_tensors == 2 && st.repeated_name && json_key_is(st.repeated_name, "a") &&
              st.repeated_name == st.header->child->next->next,
          "the second a");
    safetensors_close(&st);
}

/* n tensors of one byte each. Unless step is 1, their order in the header is not that of the data. */
static void test_many(size_t n, size_t step)
{
    char *header = NULL;
    size_t length;
    FILE *f = open_memstream(&header, &length);
    for (size_t i = 0; i < n; i++) {
        size_t at = i * step % n;
        fprintf(f, "%c\"t.%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? ',' : '{', i, at,
                at + 1);
    }
    fprintf(f, "}");
    fclose(f);
    SafetensorsFile st;
    check(open_text_n(&st, header, length, n) == 0 && st.n_tensors == n, "%zu tensors: %s", n, st.error);
    size_t wrong = 0;
    for (size_t i = 0; i < st.n_tensors; i++) {
        char name[32];
        SafetensorsTensor t;
        snprintf(name, sizeof name, "t.%zu", i);
        wrong += safetensors_find(&st, name, &t) != 0 || t.offset != i * step % n ||
                 *safetensors_data(&t) != (t.offset & 255);
        wrong += st.tensors[i].offset != i;
    }
    check(wrong == 0, "%zu of %zu tensors are not found where they are", wrong, n);
    safetensors_close(&st);
    free(header);
}

/* ---- numbers ---- */

/* Open a file with one tensor; pad decides whether its data starts at an odd or an even address. */
static int open_tensor(SafetensorsFile *st, const char *dtype, const char *shape, const void *data, size_t n, int pad)
{
    char *header;
    int length = asprintf(&header, "{\"t\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,%zu]}}%*s", dtype, shape,
                          n, pad, "");
    if (length < 0)
        die("asprintf");
    write_parts(path, header, (size_t)length, (size_t)length, data, n);
    free(header);
    memset(st, 0, sizeof *st);
    return safetensors_open(path, st);
}

/* IEEE 754 binary16, by its definition. */
static uint32_t float_bits_of_f16(unsigned h)
{
    unsigned sign = h >> 15, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return sign << 31 | 0x7f800000u | fraction << 13;
    double value = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
    return bits_of((float)(sign ? -value : value));
}

/* All 65536 patterns of a 16-bit type. A signalling NaN may come out quiet. */
static void test_16_bits(const char *dtype, bool bf16)
{
    static unsigned char data[131072];
    for (size_t i = 0; i < 65536; i++) {
        data[2 * i] = (unsigned char)i;
        data[2 * i + 1] = (unsigned char)(i >> 8);
    }
    for (int pad = 0; pad < 2; pad++) {
        SafetensorsFile st;
        check(open_tensor(&st, dtype, "[256,256]", data, sizeof data, pad) == 0, "%s", st.error);
        float *out = safetensors_load_float(&st, "t");
        size_t wrong = 0;
        for (unsigned i = 0; i < 65536 && out; i++) {
            uint32_t want = bf16 ? (uint32_t)i << 16 : float_bits_of_f16(i), got = bits_of(out[i]);
            bool nan = (want & 0x7fffffffu) > 0x7f800000u;
            wrong += nan && !bf16 ? (got | 0x400000u) != (want | 0x400000u) : got != want;
        }
        check(out && wrong == 0, "%s, data at address %zu mod 2: %zu patterns differ", dtype, (size_t)st.data % 2,
              wrong);
        free(out);
        safetensors_close(&st);
    }
}

static void test_wide_floats(void)
{
    static const double values[] = {0,        -0.0,        1,
                                    1.0 / 3,  1e-45,       7e-46,
                                    1e300,    -1e300,      3.4028235677973366e38,
                                    16777217, 1 + 0x1p-24, 1 + 3 * 0x1p-24,
                                    0x1p-149, 0x1p-150,    INFINITY,
                                    NAN};
    static const uint32_t want[] = {0,           0x80000000u, 0x3f800000u, 0x3eaaaaabu, 1, 0, 0x7f800000u, 0xff800000u,
                                    0x7f800000u, 0x4b800000u, 0x3f800000u, 0x3f800002u, 1, 0, 0x7f800000u, 0x7fc00000u};
    SafetensorsFile st;
    for (int pad = 0; pad < 8; pad++) {
        check(open_tensor(&st, "F64", "[16]", values, sizeof values, pad) == 0, "%s", st.error);
        float *out = safetensors_load_float(&st, "t");
        for (size_t i = 0; i < 16 && out; i++)
            check(bits_of(out[i]) == want[i], "F64 %g: %08x instead of %08x", values[i], bits_of(out[i]), want[i]);
        free(out);
        safetensors_close(&st);
        check(open_tensor(&st, "F32", "[4,1,4]", want, sizeof want, pad) == 0, "%s", st.error);
        out = safetensors_load_float(&st, "t");
        check(out && memcmp(out, want, sizeof want) == 0, "F32 comes out as it is");
        free(out);
        safetensors_close(&st);
    }
    const float one = 1.5f;
    check(open_tensor(&st, "F32", "[]", &one, sizeof one, 1) == 0, "%s", st.error);
    float *out = safetensors_load_float(&st, "t");
    check(out && *out == 1.5f, "a number without axes");
    free(out);
    check(!safetensors_load_float(&st, "u") && strstr(st.error, "there is no tensor \"u\""), "%s", st.error);
    safetensors_close(&st);
    check(open_tensor(&st, "BF16", "[3,0]", "", 0, 0) == 0, "%s", st.error);
    out = safetensors_load_float(&st, "t");
    check(out != NULL, "no numbers are no failure: %s", st.error);
    free(out);
    safetensors_close(&st);
}

/* Every type, in a file that ends with a page: it has the right size, and only floats of 16 bits and more can be
 * loaded. */
static void test_every_dtype(void)
{
    static const char *const names[] = {"BOOL",    "F4",      "F6_E2M3", "F6_E3M2",     "U8",          "I8",
                                        "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
                                        "U16",     "F16",     "BF16",    "I32",         "U32",         "F32",
                                        "C64",     "F64",     "I64",     "U64"};
    static const size_t bits[] = {8, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *data = calloc(1, page);
    check(sizeof names / sizeof *names == DTYPE_COUNT, "22 types");
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        SafetensorsFile st;
        SafetensorsTensor t;
        char shape[32];
        size_t bytes = 1944, header = page - 8 - bytes; /* 1944 is a whole number of each type */
        snprintf(shape, sizeof shape, "[%zu]", bytes * 8 / bits[i]);
        int used = snprintf(NULL, 0, "{\"t\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,%zu]}}", names[i],
                            shape, bytes);
        check(open_tensor(&st, names[i], shape, data, bytes, (int)header - used) == 0 && st.mapped_size == page,
              "%s: %s", names[i], st.error);
        check(safetensors_find(&st, "t", &t) == 0 && t.dtype == (Dtype)i &&
                  strcmp(dtype_name(t.dtype), names[i]) == 0 && dtype_bits(t.dtype) == bits[i] &&
                  t.elements * bits[i] == bytes * 8,
              "%s", names[i]);
        float *out = safetensors_load_float(&st, "t");
        bool computable = i == DTYPE_F16 || i == DTYPE_BF16 || i == DTYPE_F32 || i == DTYPE_F64;
        check(!out == !computable, "%s", names[i]);
        char want[64];
        snprintf(want, sizeof want, "tensor \"t\": is %s; only", names[i]);
        check(computable || strstr(st.error, want), "%s", st.error);
        free(out);
        safetensors_close(&st);
    }
    free(data);
}

/* The numbers do not depend on the number of threads. */
static void test_threads(void)
{
    size_t n = 700001;
    uint16_t *data = malloc(n * sizeof *data);
    float *one = NULL;
    char shape[32], err[512];
    for (size_t i = 0; i < n; i++)
        data[i] = (uint16_t)(i * 40503u >> 3);
    snprintf(shape, sizeof shape, "[%zu]", n);
    for (int threads = 1; threads <= 3; threads++) {
        SafetensorsFile st;
        check(threads_start(threads, err) == 0, "%s", err);
        check(open_tensor(&st, "F16", shape, data, n * 2, 1) == 0, "%s", st.error);
        float *out = safetensors_load_float(&st, "t");
        check(out && (!one || memcmp(one, out, n * sizeof *out) == 0), "%d threads", threads);
        size_t wrong = 0;
        for (size_t i = 0; out && i < n; i++)
            wrong += bits_of(out[i]) != float_bits_of_f16(data[i]) && !isnan(out[i]);
        check(wrong == 0, "%d threads: %zu numbers differ", threads, wrong);
        if (one)
            free(out);
        else
            one = out;
        safetensors_close(&st);
    }
    threads_stop();
    SafetensorsFile st;
    check(open_tensor(&st, "I16", shape, data, n * 2, 0) == 0, "%s", st.error);
    check(!safetensors_load_float(&st, "t") && strstr(st.error, "tensor \"t\": is I16; only"),
          "many numbers of another type: %s", st.error);
    safetensors_close(&st);
    free(one);
    free(data);
}

/* ---- reading into memory ---- */

static void test_into_memory(void)
{
    write_parts(path, "{" A "}", 54, 54, NULL, 8);
    SafetensorsFile st = {.read_into_memory = true, .progress = note_progress, .progress_context = &progress_calls};
    bytes_told = progress_calls = 0;
    check(safetensors_open(path, &st) == 0, "%s", st.error);
    check(bytes_told == 70 && progress_calls == 1, "%llu bytes were read", (unsigned long long)bytes_told);
    check(fcntl(st.fd, F_GETFD) & FD_CLOEXEC, "a child must not inherit the file");
    write_parts(path, "{" A "}", 54, 54, "12345678", 8);
    check(memcmp(st.data, "\0\1\2\3\4\5\6\7", 8) == 0, "what was read stays");
    safetensors_close(&st);
    check(st.read_into_memory && st.progress == note_progress, "the settings outlive closing");
    check(safetensors_open("/nonexistent", &st) != 0 && *st.error, "no sentence");
    check(safetensors_open(path, &st) == 0 && memcmp(st.data, "12345678", 8) == 0, "opened again: %s", st.error);
    check(!*st.error, "an old sentence stays: %s", st.error);
    safetensors_close(&st);
    check(truncate(path, 69) == 0 && safetensors_open(path, &st) != 0 && strstr(st.error, "1 byte missing"), "%s",
          st.error);
    check(open_text(&st, "{" A "}", 8) == 0 && st.fd >= 0 && (fcntl(st.fd, F_GETFD) & FD_CLOEXEC), "mapped files "
                                                                                                   "neither");
    safetensors_close(&st);
}

/* ---- calls that fail ---- */

static bool is_closed(const SafetensorsFile *st)
{
    return st->fd == -1 && !st->path && !st->mapped && !st->header && !st->header_json && !st->tensors && !st->lookup &&
           !st->shapes;
}

/* Make that call fail: opening must say so in these words and leave nothing open. */
static void fails_to_open(bool read_into_memory, FailingCall call, long at, int error, const char *words)
{
    SafetensorsFile st = {.read_into_memory = read_into_memory};
    int before = open_files();
    fail_call(call, at, error);
    errno = EINTR; /* an old error means nothing */
    int result = safetensors_open(path, &st);
    check(call_failed() && result != 0 && strncmp(st.error, path, strlen(path)) == 0 &&
              strcmp(st.error + strlen(path), words) == 0,
          "%s, not %s", st.error, words);
    check(is_closed(&st) && open_files() == before, "%s: something stays open", words);
}

static void test_failing_calls(void)
{
    write_parts(path, "{" A "}", 54, 54, NULL, 8);
    for (int memory = 0; memory < 2; memory++) {
        fails_to_open(memory, FSTAT, 1, EIO, ": Input/output error");
        fails_to_open(memory, MMAP, 1, ENOMEM,
                      memory ? ": cannot read 70 bytes: Cannot allocate memory"
                             : ": cannot map 70 bytes: Cannot allocate memory");
    }
    fails_to_open(true, PREAD, 1, EIO, ": cannot read 70 bytes: Input/output error");
    fails_to_open(true, PREAD, 1, 0, ": cannot read 70 bytes: the file became shorter");

    SafetensorsFile again = {.read_into_memory = true};
    fail_call(PREAD, 1, EINTR);
    check(safetensors_open(path, &again) == 0 && call_failed(), "an interrupted call is repeated: %s", again.error);
    check(memcmp(again.data, "\0\1\2\3\4\5\6\7", 8) == 0, "the numbers are there");
    safetensors_close(&again);
    SafetensorsFile st = {.read_into_memory = true, .progress = note_progress, .progress_context = &progress_calls};
    bytes_told = progress_calls = 0;
    pread_most = 1;
    check(safetensors_open(path, &st) == 0 && memcmp(st.data, "\0\1\2\3\4\5\6\7", 8) == 0, "read byte by byte: %s",
          st.error);
    pread_most = SIZE_MAX;
    check(bytes_told == 70, "%llu bytes were read", (unsigned long long)bytes_told);
    safetensors_close(&st);
}

/* Each allocation of opening fails in turn. */
static void test_no_memory(void)
{
    SafetensorsFile st = {0};
    long at = 0;
    bool failed = true;
    write_parts(path, "{" A "}", 54, 54, NULL, 8);
    while (failed) {
        int before = open_files();
        fail_call(ALLOCATION, ++at, ENOMEM);
        int result = safetensors_open(path, &st);
        failed = call_failed();
        check(failed ? result != 0 && strstr(st.error, "out of memory") : result == 0, "allocation %ld: %s", at,
              st.error);
        check(!failed || strncmp(st.error, at == 1 ? "file: " : path, at == 1 ? 6 : strlen(path)) == 0, "%s", st.error);
        check(!failed || (is_closed(&st) && open_files() == before), "allocation %ld: something stays open", at);
    }
    check(at > 7, "path, header, its tree, shapes, look-up, tensors");
    fail_call(ALLOCATION, 1, ENOMEM);
    check(!safetensors_load_float(&st, "a") && call_failed() &&
              strstr(st.error, ": tensor \"a\": out of memory for 2 numbers"),
          "%s", st.error);
    SafetensorsFile all = {.shards = &st, .n_shards = 1};
    for (long i = 1; i <= 2; i++) {
        fail_call(ALLOCATION, i, ENOMEM);
        check(safetensors_join_shards(&all) != 0 && call_failed() &&
                  strstr(all.error, "out of memory for 1 tensors"),
              "%s", all.error);
        free(all.lookup);
        free(all.tensors);
    }
    safetensors_close(&st);
}

/* ---- beyond 4 GB ---- */

/* One number, then a tensor of `bytes` bytes whose first and last two bytes are set; the rest of the file is a hole. */
static void test_sparse(const char *dtype, const char *shape, uint64_t bytes)
{
    char header[256];
    int length = snprintf(header, sizeof header,
                          "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"big\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[4,%llu]}}",
                          dtype, shape, (unsigned long long)bytes + 4);
    write_parts(path, header, (size_t)length, (size_t)length, "\0\0\xc0\x3f", 4);
    off_t begin = 8 + length + 4, end = begin + (off_t)bytes;
    int fd = open(path, O_RDWR);
    if (fd < 0 || ftruncate(fd, end) != 0 || pwrite(fd, "\x80\x3f", 2, begin) != 2 ||
        pwrite(fd, "\x20\xc0", 2, end - 2) != 2) {
        skip("files beyond 4 GB: this file system has none");
        close(fd);
        return;
    }
    close(fd);
    struct rusage before, after;
    SafetensorsFile st = {0};
    SafetensorsTensor t;
    getrusage(RUSAGE_SELF, &before);
    check(safetensors_open(path, &st) == 0, "%s", st.error);
    getrusage(RUSAGE_SELF, &after);
    long faults = after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt;
    if (emulated())
        skip("opening touches no data: an emulator's own pages are counted");
    else
        check(faults < 500, "opening touches the data: %ld pages", faults);
    check(safetensors_find(&st, "big", &t) == 0 && t.length == bytes && t.offset == 4, "%s", shape);
    const unsigned char *data = safetensors_data(&t);
    check(memcmp(data, "\x80\x3f", 2) == 0 && memcmp(data + t.length - 2, "\x20\xc0", 2) == 0, "both ends of %s",
          shape);
    float *one = safetensors_load_float(&st, "a");
    check(one && *one == 1.5f, "the tensor before it");
    free(one);
    safetensors_close(&st);
    check(truncate(path, end - 4096) == 0 && safetensors_open(path, &st) != 0 &&
              strstr(st.error, "4096 bytes missing at the end"),
          "%s", st.error);
    unlink(path);
}

/* ---- the reference library's verdicts on more files ---- */

static void check_golden_tensor(SafetensorsFile *st, const JsonValue *want, const char *file)
{
    SafetensorsTensor t;
    const JsonValue *shape = json_get(want, "shape"), *hex = json_get(want, "sha256");
    uint64_t bytes = 0, n = 0;
    if (safetensors_find_n(st, want->key, want->key_length, &t) != 0) {
        check(false, "%s", st->error);
        return;
    }
    check(json_string_is(json_get(want, "dtype"), dtype_name(t.dtype)), "%s: dtype", file);
    check(json_u64(json_get(want, "bytes"), &bytes) == 0 && bytes == t.length, "%s: length", file);
    check(shape && shape->length == t.rank, "%s: rank", file);
    size_t i = 0;
    for (const JsonValue *v = shape ? shape->child : NULL; v && i < t.rank; v = v->next, i++)
        check(json_u64(v, &n) == 0 && n == t.shape[i], "%s: shape", file);
    unsigned char digest[32];
    char text[65];
    sha256_of(safetensors_data(&t), (size_t)t.length, digest);
    sha256_hex(digest, text);
    check(json_string_is(hex, text), "%s: the bytes of a tensor", file);
}

static void test_golden(const char *golden)
{
    char name[600], err[512], *text = NULL;
    size_t length = 0, files = 0;
    snprintf(name, sizeof name, "%s/given/safetensors/verdicts.json", golden);
    FILE *f = fopen(name, "rb"), *copy = open_memstream(&text, &length);
    for (int c; f && (c = getc(f)) != EOF;)
        putc(c, copy);
    fclose(copy);
    if (f)
        fclose(f);
    JsonValue *root = json_parse(text, length, err);
    const JsonValue *list = json_get(root, "files");
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next, files++) {
        SafetensorsFile st = {0};
        snprintf(name, sizeof name, "%s/given/safetensors/%.*s", golden, (int)v->key_length, v->key);
        bool accepted = safetensors_open(name, &st) == 0;
        check(accepted == json_string_is(json_get(v, "verdict"), "accept"), "%s: %s", name,
              accepted ? "accepted" : st.error);
        const JsonValue *tensors = json_get(v, "tensors");
        check(!accepted || !tensors || tensors->length == st.n_tensors, "%s: %zu tensors", name, st.n_tensors);
        for (const JsonValue *t = tensors && accepted ? tensors->child : NULL; t; t = t->next)
            check_golden_tensor(&st, t, name);
        safetensors_close(&st);
    }
    check(files > 300, "%s: %zu files", name, files);
    json_free(root);
    free(text);
}

int main(void)
{
    const char *golden = getenv("GOLDEN");
    open_folder("safetensors");
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    check(read_u64_le((const unsigned char *)"\1\2\3\4\5\6\7\x88") == 0x8807060504030201u, "little-endian");
    test_verdicts();
    test_depth();
    test_lengths();
    test_largest_header();
    test_truncated();
    test_other_files();
    test_names();
    test_order();
    test_repeated();
    test_many(1, 1);
    test_many(1000, 1);
    test_many(100000, 61);
    test_16_bits("BF16", true);
    test_16_bits("F16", false);
    test_wide_floats();
    test_every_dtype();
    test_threads();
    test_into_memory();
    test_failing_calls();
    if (ALLOCATIONS_FAIL)
        test_no_memory();
    else
        skip("failing allocations: not with this C library or sanitizer");
    test_sparse("F32", "[65536,40000]", (uint64_t)65536 * 40000 * 4);
    test_sparse("BF16", "[2147483664]", ((uint64_t)1 << 32) + 32);
    if (golden && *golden)
        test_golden(golden);
    else
        skip("the reference library's verdicts on 342 files: GOLDEN is not set");
    remove_folder();
    return report("safetensors");
}
