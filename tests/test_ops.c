/* Tests of what can be done with a checkpoint as data: SHA-256, numbers, slices, statistics, edits with undo, masks,
 * patches, split and merge.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"
#include "checkpoint/mask.h"
#include "checkpoint/npy.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "checkpoint/slice.h"
#include "checkpoint/split.h"
#include "checkpoint/statistics.h"
#include "checkpoint/writer.h"

static char folder[] = "/tmp/run-ops-XXXXXX";

/* A path in the test's folder, one of the last 64. */
static const char *in_folder(const char *name)
{
    static char paths[64][256];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        check(false, "cannot write %s", path);
}

static unsigned char *read_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes = calloc(1, (size_t)1 << 22);
    *n = f && bytes ? fread(bytes, 1, (size_t)1 << 22, f) : 0;
    if (f)
        fclose(f);
    return bytes;
}

static bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    unsigned char *x = read_bytes(a, &n), *y = read_bytes(b, &m);
    bool same = n == m && x && y && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* A .safetensors file of that header and n bytes of data; `pad` spaces in front of the header's end. */
static void write_model(const char *path, const char *header, const void *data, size_t n)
{
    size_t length = strlen(header);
    unsigned char *file = calloc(1, 8 + length + n + 1);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, data, n);
    write_bytes(path, file, 8 + length + n);
    free(file);
}

/* ---- SHA-256 ----------------------------------------------------------------------------------------------------- */

static const char *hex_of(const void *bytes, size_t n)
{
    static char hex[65];
    unsigned char digest[32];
    sha256_of(bytes, n, digest);
    sha256_hex(digest, hex);
    return hex;
}

static void test_sha256(void)
{
    static const struct {
        const char *text, *hex;
    } known[] = {/* FIPS 180-4's examples */
                 {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    static unsigned char a[1000000];
    CpuLevel best = cpu_level();
    for (int hardware = 0; hardware < 2; hardware++) {
        cpu_set_level(hardware ? best : CPU_SCALAR);
        check(hardware || !sha256_in_hardware(), "scalar means the portable code");
        for (size_t i = 0; i < 3; i++)
            check(!strcmp(hex_of(known[i].text, strlen(known[i].text)), known[i].hex), "\"%s\"", known[i].text);
        memset(a, 'a', sizeof a);
        check(!strcmp(hex_of(a, sizeof a), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
              "a million a");
    }
    if (!sha256_in_hardware())
        skip("no SHA-256 instructions here");
    for (size_t i = 0; i < 1000; i++)
        a[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t n = 0; n < 300; n++) { /* all lengths around two blocks, both codes, in pieces */
        char portable[65];
        unsigned char digest[32];
        Sha256 s;
        cpu_set_level(CPU_SCALAR);
        snprintf(portable, sizeof portable, "%s", hex_of(a + n % 8, n));
        cpu_set_level(best);
        sha256_init(&s);
        for (size_t done = 0, step = 1; done < n; done += step, step = step * 3 % 71 + 1) {
            step = step < n - done ? step : n - done;
            sha256_update(&s, a + n % 8 + done, step);
        }
        sha256_final(&s, digest);
        char pieces[65];
        sha256_hex(digest, pieces);
        unsigned char back[32];
        check(!strcmp(portable, pieces) && sha256_parse(pieces, back) == 0 && !memcmp(back, digest, 32), "%zu bytes",
              n);
    }
    unsigned char digest[32];
    check(sha256_parse("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85", digest) != 0, "63 digits");
    check(sha256_parse("g3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", digest) != 0,
          "g is no digit");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static Number parsed(const char *text)
{
    Number n = {0};
    char err[512];
    check(number_parse(&n, text, err) == 0, "%s: %s", text, err);
    return n;
}

/* The bits that text becomes, or -1 if it is refused. */
static int64_t code_of(Dtype dtype, const char *text)
{
    unsigned char bytes[8] = {0};
    char err[512];
    Number n = parsed(text);
    if (number_write(dtype, bytes, &n, err) != 0)
        return -1;
    return (int64_t)read_u64_le(bytes);
}

static double decoded(Dtype dtype, uint64_t code)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(code >> 8 * i);
    return number_read(dtype, bytes).value;
}

static void test_reference_codes(void)
{
    FILE *f = fopen("tests/data/number_codes.txt", "r");
    char dtype[32], text[64];
    unsigned code;
    size_t n = 0;
    check(f != NULL, "tests/data/number_codes.txt");
    while (f && fscanf(f, "%31s %63s %x", dtype, text, &code) == 3) {
        Dtype d = DTYPE_F64;
        dtype_parse(dtype, strlen(dtype), &d);
        int64_t ours = code_of(d, text);
        bool right = strcmp(text, "nan") ? ours == (int64_t)code : ours >= 0 && isnan(decoded(d, (uint64_t)ours));
        check(right, "%s as %s: %" PRIx64 ", not %x", text, dtype, (uint64_t)ours, code);
        n++;
    }
    check(n > 200, "%zu cases", n);
    if (f)
        fclose(f);
}

/* Every code of the short formats: read, written again, and the points between it and the next: halfway goes to the
 * even code, a bit more or less to the nearer one, and what lies beyond the largest is refused. */
static void test_every_code(Dtype dtype, uint64_t codes, uint64_t largest)
{
    size_t wrong = 0;
    double x[1];
    for (uint64_t code = 0; code < codes; code++) {
        unsigned char in[8] = {(unsigned char)code, (unsigned char)(code >> 8)}, out[8] = {0};
        Number n = number_read(dtype, in);
        char err[512];
        number_decode(dtype, in, 1, x);
        wrong += number_write(dtype, out, &n, err) != 0;
        wrong += isnan(n.value) ? !isnan(x[0]) || !isnan(number_read(dtype, out).value)
                                : memcmp(in, out, 8) != 0 || x[0] != n.value;
        if (code >= largest || dtype == DTYPE_F8_E8M0)
            continue;
        double low = decoded(dtype, code), high = decoded(dtype, code + 1), middle = low + (high - low) / 2;
        const double points[3] = {nextafter(middle, low), middle, nextafter(middle, high)};
        const uint64_t right[3] = {code, code % 2 ? code + 1 : code, code + 1};
        for (int i = 0; i < 3; i++) {
            Number m = {.value = points[i], .odd = points[i]};
            wrong += number_write(dtype, out, &m, err) != 0 || read_u64_le(out) != right[i];
        }
    }
    double most = decoded(dtype, largest),
           half_step = (most - decoded(dtype, largest - 1)) / (dtype == DTYPE_F8_E8M0 ? 1 : 2);
    Number beyond = {.value = nextafter(most + half_step, INFINITY), .odd = nextafter(most + half_step, INFINITY)};
    unsigned char out[8];
    char err[512];
    wrong += number_write(dtype, out, &beyond, err) == 0;
    check(wrong == 0, "%s: %zu wrong", dtype_name(dtype), wrong);
}

static void test_rounding(void)
{
    test_every_code(DTYPE_BF16, 65536, 0x7f7f);
    test_every_code(DTYPE_F16, 65536, 0x7bff);
    test_every_code(DTYPE_F8_E5M2, 256, 0x7b);
    test_every_code(DTYPE_F8_E4M3, 256, 0x7e);
    test_every_code(DTYPE_F8_E4M3FNUZ, 256, 0x7f);
    test_every_code(DTYPE_F8_E5M2FNUZ, 256, 0x7f);
    test_every_code(DTYPE_F8_E8M0, 256, 0xfe);
    /* decimals that a detour over double would round twice */
    check(code_of(DTYPE_BF16, "1.00390625") == 0x3f80, "halfway: to even");
    check(code_of(DTYPE_BF16, "1.00390625000000000000000000001") == 0x3f81,
          "above halfway by less than a double shows");
    check(code_of(DTYPE_BF16, "1.01171874999999999999999999999") == 0x3f81, "below halfway");
    check(code_of(DTYPE_F32, "16777217") == 0x4b800000, "2^24 + 1: to even");
    check(code_of(DTYPE_F32, "16777217.0000000000001") == 0x4b800001, "a little more");
    check(code_of(DTYPE_F64, "0x1.8p-1") == 0x3fe8000000000000, "hexadecimal");
    check(code_of(DTYPE_F32, "1e-50") == 0 && code_of(DTYPE_F32, "-1e-50") == 0x80000000, "tiny numbers become zero");
    static const Dtype tiny[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_F64, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++)
        check(code_of(tiny[i], "1e-400") == 0 && code_of(tiny[i], "0x1p-2000") == 0 && code_of(tiny[i], "-1e-400") != 0,
              "%s: what is below the least double becomes zero, with its sign", dtype_name(tiny[i]));
    char err[512];
    Number n;
    check(number_parse(&n, "1e999", err) != 0 && strstr(err, "1e999"), "%s", err);
    check(number_parse(&n, "1,5", err) != 0 && number_parse(&n, "", err) != 0 && number_parse(&n, " 1", err) != 0,
          "no numbers");
}

static void test_integers(void)
{
    check(code_of(DTYPE_I8, "-128") == 0x80 && code_of(DTYPE_I8, "127") == 0x7f, "I8's ends");
    check(code_of(DTYPE_I8, "128") == -1 && code_of(DTYPE_I8, "-129") == -1, "beyond I8");
    check(code_of(DTYPE_U8, "-1") == -1 && code_of(DTYPE_U8, "255") == 255 && code_of(DTYPE_U8, "256") == -1, "U8");
    check(code_of(DTYPE_U16, "1e3") == 1000 && code_of(DTYPE_I16, "-5.0") == 0xfffb, "whole numbers however written");
    check(code_of(DTYPE_I32, "0.5") == -1 && code_of(DTYPE_I32, "nan") == -1 && code_of(DTYPE_I32, "inf") == -1,
          "I32 refuses");
    check(code_of(DTYPE_I64, "9007199254740993") == 9007199254740993, "I64 beyond 2^53 is exact");
    check(code_of(DTYPE_I64, "9007199254740993.000") == 9007199254740993, "however written");
    if (!watched()) /* valgrind knows no rounding modes */
        check(code_of(DTYPE_I64, "9007199254740993.5") == -1 && code_of(DTYPE_I64, "1e-400") == -1, "no fractions");
    check(code_of(DTYPE_I64, "-9223372036854775808") == INT64_MIN && code_of(DTYPE_I64, "9223372036854775808") == -1,
          "I64's ends");
    unsigned char bytes[8];
    char err[512];
    Number n = parsed("18446744073709551615");
    check(number_write(DTYPE_U64, bytes, &n, err) == 0 && read_u64_le(bytes) == UINT64_MAX, "U64's end");
    check(code_of(DTYPE_U64, "18446744073709551616") == -1, "beyond U64");
    check(code_of(DTYPE_BOOL, "1") == 1 && code_of(DTYPE_BOOL, "0") == 0 && code_of(DTYPE_BOOL, "2") == -1, "BOOL");
}

/* What op with `operand` makes of the number `text`; NULL if it is refused. */
static const char *applied(Dtype dtype, const char *text, NumberOperation op, const char *operand)
{
    static char out[64];
    unsigned char bytes[8] = {0};
    char err[512];
    Number x = parsed(text), v = parsed(operand);
    check(number_write(dtype, bytes, &x, err) == 0, "%s", err);
    return number_apply(dtype, op, &v, bytes, err) == 0 ? number_text(dtype, bytes, out) : NULL;
}

static void test_arithmetic(void)
{
    static const struct {
        Dtype dtype;
        const char *x;
        NumberOperation op;
        const char *v, *result; /* NULL: refused */
    } cases[] = {
        {DTYPE_F32, "0.1", NUMBER_SCALE, "10", "1"},
        {DTYPE_F32, "16777216", NUMBER_ADD, "1", "16777216"},
        {DTYPE_F32, "16777216", NUMBER_ADD, "1.0000000000000002", "16777218"}, /* the sum is no double: rounded once */
        {DTYPE_F32, "3e38", NUMBER_SCALE, "2", NULL},
        {DTYPE_F64, "1e308", NUMBER_SCALE, "10", NULL},
        {DTYPE_F64, "0.1", NUMBER_ADD, "0.2", "0.30000000000000004"},
        {DTYPE_BF16, "1", NUMBER_ADD, "0.00390625", "1"},
        {DTYPE_BF16, "1", NUMBER_ADD, "0.0039062500000000009", "1.0078125"},
        {DTYPE_F16, "6e-8", NUMBER_SCALE, "0.5", "0"},
        {DTYPE_BF16, "inf", NUMBER_SCALE, "2", "inf"},
        {DTYPE_BF16, "nan", NUMBER_ADD, "1", "nan"},
        {DTYPE_I8, "100", NUMBER_ADD, "27", "127"},
        {DTYPE_I8, "100", NUMBER_ADD, "28", NULL},
        {DTYPE_I8, "-100", NUMBER_SCALE, "-1.25", "125"},
        {DTYPE_I8, "3", NUMBER_SCALE, "0.5", NULL},
        {DTYPE_U8, "5", NUMBER_ADD, "-6", NULL},
        {DTYPE_U8, "0", NUMBER_SCALE, "-1", "0"},
        {DTYPE_I64, "9007199254740993", NUMBER_SCALE, "3", "27021597764222979"},
        {DTYPE_I64, "-2", NUMBER_SCALE, "9007199254740993", "-18014398509481986"},
        {DTYPE_I64, "9007199254740994", NUMBER_SCALE, "0.5", "4503599627370497"},
        {DTYPE_I64, "9223372036854775807", NUMBER_ADD, "-9223372036854775807", "0"},
        {DTYPE_I64, "-9223372036854775808", NUMBER_ADD, "9223372036854775807", "-1"},
        {DTYPE_I64, "4611686018427387904", NUMBER_SCALE, "2", NULL},
        {DTYPE_U64, "18446744073709551615", NUMBER_ADD, "-1", "18446744073709551614"},
        {DTYPE_U64, "1", NUMBER_SCALE, "9223372036854775808", "9223372036854775808"},
        {DTYPE_BOOL, "1", NUMBER_SET, "0", "false"},
        {DTYPE_BOOL, "1", NUMBER_ADD, "0", NULL},
        {DTYPE_C64, "1.5", NUMBER_SCALE, "2", "3+0j"},
        {DTYPE_F8_E4M3, "448", NUMBER_ADD, "1", "448"},
        {DTYPE_F8_E4M3, "448", NUMBER_ADD, "17", NULL},
        {DTYPE_F8_E8M0, "1", NUMBER_SET, "0", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = applied(cases[i].dtype, cases[i].x, cases[i].op, cases[i].v);
        bool right = got && cases[i].result ? !strcmp(got, cases[i].result) : got == cases[i].result;
        check(right, "%s: %s, %s: %s", dtype_name(cases[i].dtype), cases[i].x, cases[i].v, got ? got : "refused");
    }
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

static void open_file(SafetensorsFile *st, const char *path)
{
    *st = (SafetensorsFile){0};
    check(safetensors_open(path, st) == 0, "%s", st->error);
}

static char *slice_as_text(const Slice *s, char out[1024])
{
    size_t used = 0;
    char err[512], number[64];
    out[0] = '\0';
    for (size_t i = 0; i < slice_rank(s); i++)
        used += (size_t)snprintf(out + used, 1024 - used, "%s%" PRIu64, i ? "," : "", slice_size(s, i));
    used += (size_t)snprintf(out + used, 1024 - used, "|");
    for (uint64_t i = 0; i < s->elements; i++) {
        unsigned char element[8];
        check(slice_gather(s, i, 1, element, err) == 0, "%s", err);
        used += (size_t)snprintf(out + used, 1024 - used, "%s%s", i ? " " : "",
                                 number_text(s->tensor->dtype, element, number));
    }
    return out;
}

static void test_slices(void)
{
    static const char *const refused[] = {
        "4",   "-5", "1,3", "0,0,2", "0,0,0,0", "::0",     "1:2:3:4",     "a",
        ",",   ":,,", "1 2", "....",    "...,...", "0,0,0,...,0", "99999999999999999999",
        "1.5", "--1"};
    int32_t numbers[24];
    char line[2048], err[512], text[1024];
    for (int i = 0; i < 24; i++)
        numbers[i] = i;
    const char *path = in_folder("slices.safetensors");
    write_model(path, "{\"a\":{\"dtype\":\"I32\",\"shape\":[4,3,2],\"data_offsets\":[0,96]}} ", numbers,
                sizeof numbers); /* odd address */
    SafetensorsFile st;
    open_file(&st, path);
    FILE *f = fopen("tests/data/slices.txt", "r");
    size_t cases = 0;
    check(f != NULL, "tests/data/slices.txt");
    while (f && fgets(line, sizeof line, f)) {
        char *wanted = strchr(line, '|');
        Slice s;
        *wanted++ = '\0';
        wanted[strcspn(wanted, "\n")] = '\0';
        int status = slice_parse(&s, line, &st.tensors[0], err);
        check(status == 0 && !strcmp(slice_as_text(&s, text), wanted), "[%s]: %s, not %s", line, status ? err : text,
              wanted);
        if (status == 0)
            slice_free(&s);
        cases++;
    }
    check(cases > 40, "%zu slices", cases);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Slice s;
        check(slice_parse(&s, refused[i], &st.tensors[0], err) != 0 && strlen(err) > 10, "[%s] should be refused",
              refused[i]);
    }
    if (f)
        fclose(f);
    safetensors_close(&st);
}

/* The walk gives the same elements from wherever it starts and however long the pieces are. */
static void test_walk(void)
{
    static const char *const specs[] = {NULL, "1:3", ":,1", ":,:,0", "::2,::-1", "1,1:", "::-1,::-1,::-1", "2:2"};
    int32_t numbers[24];
    char err[512];
    for (int i = 0; i < 24; i++)
        numbers[i] = i;
    const char *path = in_folder("walk.safetensors");
    write_model(path, "{\"a\":{\"dtype\":\"I32\",\"shape\":[4,3,2],\"data_offsets\":[0,96]}}", numbers, sizeof numbers);
    SafetensorsFile st;
    open_file(&st, path);
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        Slice s;
        unsigned char all[96], part[96];
        size_t wrong = 0;
        check(slice_parse(&s, specs[k], &st.tensors[0], err) == 0, "%s", err);
        check(slice_gather(&s, 0, (size_t)s.elements, all, err) == 0, "%s", err);
        for (uint64_t from = 0; from <= s.elements; from++)
            for (size_t n = 0; n <= s.elements - from; n++)
                wrong += slice_gather(&s, from, n, part, err) != 0 || memcmp(part, all + 4 * from, 4 * n) != 0;
        check(wrong == 0, "[%s]: %zu pieces differ", specs[k] ? specs[k] : "", wrong);
        slice_free(&s);
    }
    safetensors_close(&st);
    write_model(
        path,
        "{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]},\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],"
        "\"data_offsets\":[2,2]},\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[2,3]}}",
        "\1\2\3", 3);
    open_file(&st, path);
    Slice s;
    SafetensorsTensor t;
    char text[1024];
    safetensors_find(&st, "a", &t);
    check(slice_parse(&s, "0:2", &t, err) != 0 && strstr(err, "F4") && strstr(err, "smaller than a byte"), "%s", err);
    safetensors_find(&st, "e", &t);
    check(slice_parse(&s, ":,1", &t, err) == 0 && !strcmp(slice_as_text(&s, text), "0|"), "%s", text);
    slice_free(&s);
    check(slice_parse(&s, "0", &t, err) != 0, "an index into an axis of length 0");
    safetensors_find(&st, "s", &t);
    check(slice_parse(&s, "", &t, err) == 0 && !strcmp(slice_as_text(&s, text), "|3"), "%s", text);
    slice_free(&s);
    check(slice_parse(&s, "0", &t, err) != 0, "an index into a scalar");
    safetensors_close(&st);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static Statistics stats_of(const SafetensorsTensor *t, const char *spec)
{
    Slice s;
    Statistics stats = {0};
    char err[512];
    check(slice_parse(&s, spec, t, err) == 0 && statistics_compute(&s, &stats, err) == 0, "%s", err);
    slice_free(&s);
    return stats;
}

static void test_small_stats(void)
{
    const float numbers[8] = {1, -2, 0, 4, NAN, INFINITY, -INFINITY, -0.0f};
    char err[512];
    const char *path = in_folder("stats.safetensors");
    write_model(path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]}}", numbers, sizeof numbers);
    SafetensorsFile st;
    open_file(&st, path);
    Statistics s = stats_of(&st.tensors[0], NULL);
    check(s.count == 8 && s.nan == 1 && s.plus_inf == 1 && s.minus_inf == 1 && s.zero == 2, "counts");
    check(s.min == -2 && s.max == 4 && s.mean == 0.6, "min %g max %g mean %.17g", s.min, s.max, s.mean);
    check(fabs(s.std - sqrt(21.0 / 5 - 0.36)) < 1e-15, "std %.17g", s.std);
    s = stats_of(&st.tensors[0], ":,::2"); /* 1 0 NaN -inf */
    check(s.count == 4 && s.nan == 1 && s.minus_inf == 1 && s.max == 1 && s.mean == 0.5, "of a slice");
    s = stats_of(&st.tensors[0], "1,:2");
    check(s.count == 2 && isnan(s.min) && isnan(s.mean), "nothing finite");
    Slice whole;
    uint64_t at, bins[3];
    check(slice_parse(&whole, NULL, &st.tensors[0], err) == 0, "%s", err);
    check(statistics_find(&whole, 4, &at, err) == 0 && at == 3, "place of 4: %" PRIu64, at);
    check(statistics_find(&whole, 7, &at, err) == 0 && at == UINT64_MAX, "no 7");
    check(statistics_histogram(&whole, -2, 4, bins, 3, err) == 0 && bins[0] == 1 && bins[1] == 3 && bins[2] == 1,
          "histogram");
    slice_free(&whole);
    safetensors_close(&st);
}

/* Each type whose numbers stand in bytes of their own: 3, 0 and its largest, or -5, as statistics and as NumPy. */
static void test_each_type(void)
{
    static const struct {
        const char *dtype, *npy;
        size_t size;
        unsigned char data[24];
        double min, max;
    } types[] = {
        {"BOOL", "|b1", 1, {1, 0, 1}, 0, 1},
        {"U8", "|u1", 1, {3, 0, 255}, 0, 255},
        {"I8", "|i1", 1, {3, 0, 0xfb}, -5, 3},
        {"U16", "<u2", 2, {3, 0, 0, 0, 255, 255}, 0, 65535},
        {"I16", "<i2", 2, {3, 0, 0, 0, 0xfb, 255}, -5, 3},
        {"F16", "<f2", 2, {0, 0x42, 0, 0, 0, 0xc5}, -5, 3},
        {"U32", "<u4", 4, {3, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}, 0, 4294967295.0},
        {"I32", "<i4", 4, {3, 0, 0, 0, 0, 0, 0, 0, 0xfb, 255, 255, 255}, -5, 3},
        {"F32", "<f4", 4, {0, 0, 0x40, 0x40, 0, 0, 0, 0, 0, 0, 0xa0, 0xc0}, -5, 3},
        {"U64", "<u8", 8, {[0] = 3, [20] = 1}, 0, 4294967296.0},
        {"I64", "<i8", 8, {3, [16] = 0xfb, 255, 255, 255, 255, 255, 255, 255}, -5, 3},
        {"F64", "<f8", 8, {[6] = 8, 0x40, [22] = 0x14, 0xc0}, -5, 3},
        {"C64", "<c8", 8, {[2] = 0x40, 0x40, [22] = 0xa0, 0xc0}, -5, 3},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[200], err[512], *npy = NULL, want[64];
        size_t n = 3 * types[i].size, length = 0;
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 types[i].dtype, n);
        write_model(in_folder("type.safetensors"), header, types[i].data, n);
        SafetensorsFile st;
        open_file(&st, in_folder("type.safetensors"));
        Statistics stats = stats_of(&st.tensors[0], NULL);
        check(stats.min == types[i].min && stats.max == types[i].max, "%s: %g to %g", types[i].dtype, stats.min,
              stats.max);
        Slice whole;
        FILE *f = open_memstream(&npy, &length);
        check(slice_parse(&whole, NULL, &st.tensors[0], err) == 0 && npy_write(&whole, f, err) == 0, "%s", err);
        fclose(f);
        snprintf(want, sizeof want, "{'descr': '%s', 'fortran_order': False, 'shape': (3,), }", types[i].npy);
        check(length == 128 + n && !memcmp(npy + 10, want, strlen(want)) && !memcmp(npy + 128, types[i].data, n),
              "%s as NumPy", types[i].dtype);
        free(npy);
        slice_free(&whole);
        safetensors_close(&st);
    }
}

/* Large tensors of 16 bits are counted value by value, others block by block: same numbers, same results; and on any
 * number of threads. */
static void test_large_stats(void)
{
    enum { N = 300007 };
    unsigned char *data = malloc(6 * N);
    char header[300], err[512];
    for (uint32_t i = 0, x = 1; i < N; i++) {
        x = x * 1664525 + 1013904223;
        uint16_t half = (uint16_t)(x >> 16) % 0x7c00 & 0x7fff; /* finite F16 from 0 up */
        float wide = (float)decoded(DTYPE_F16, half);
        memcpy(data + 4 * i, &wide, 4);
        memcpy(data + 4 * N + 2 * i, &half, 2);
    }
    snprintf(
        header, sizeof header,
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},\"h\":{\"dtype\":\"F16\",\"shape\":[%d],"
        "\"data_offsets\":[%d,%d]}}",
        N, 4 * N, N, 4 * N, 6 * N);
    const char *path = in_folder("large.safetensors");
    write_model(path, header, data, 6 * N);
    SafetensorsFile st;
    open_file(&st, path);
    Statistics one[2], two[2];
    for (int i = 0; i < 2; i++)
        one[i] = stats_of(&st.tensors[i], NULL);
    check(threads_start(2, err) == 0, "%s", err);
    for (int i = 0; i < 2; i++)
        two[i] = stats_of(&st.tensors[i], NULL);
    check(!memcmp(one, two, sizeof one), "the same bits on one and two threads");
    threads_stop();
    check(one[0].min == one[1].min && one[0].max == one[1].max && one[0].zero == one[1].zero && one[0].count == N,
          "both ways");
    check(fabs(one[0].mean / one[1].mean - 1) < 1e-12 && fabs(one[0].std / one[1].std - 1) < 1e-12,
          "mean and std both ways");
    long double sum = 0;
    for (int i = 0; i < N; i++) {
        float x;
        memcpy(&x, data + 4 * i, 4);
        sum += x;
    }
    check(fabs(one[0].mean / (double)(sum / N) - 1) < 1e-13, "mean");
    Slice s;
    uint64_t bins[2][5] = {{0}};
    for (int i = 0; i < 2; i++) {
        check(slice_parse(&s, NULL, &st.tensors[i], err) == 0, "%s", err);
        check(statistics_histogram(&s, 0, 60000, bins[i], 5, err) == 0, "%s", err);
        slice_free(&s);
    }
    check(!memcmp(bins[0], bins[1], sizeof bins[0]) && bins[0][0] > bins[0][4], "histograms both ways");
    safetensors_close(&st);
    free(data);
}

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

static void open_model(Checkpoint *c, const char *path)
{
    char err[512];
    check(checkpoint_open(c, path, false, err) == 0, "%s", err);
}

/* Sets bytes offset.. of a tensor. Returns edit_commit()'s or an earlier status. */
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
    rename(in_folder("new"), path); /* replaced between opening and writing */
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

/* Journals that are damaged, of another file, or no longer fit: nothing is changed. */
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
    for (size_t i = 0; i < n; i++) { /* every single bit matters, but for which of the two states it is */
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

/* The state of an edit that was cut off: the journal says 1, the file has some of the new bytes. */
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
    check(patch_write(&a, &b, patch, NULL, NULL, &size, err) == 0, "%s", err);
    check(size.tensors == 1 && size.ranges == 2 && size.bytes == 18, "%" PRIu64 " bytes", size.bytes);
    check(patch_write(&a, &b, patch, NULL, NULL, &size, err) != 0 && strstr(err, "exists"), "%s", err);
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
    check(patch_write(&a, &b, in_folder("q.safetensors"), NULL, NULL, &size, err) != 0 && strstr(err, "same file"), "%s",
          err);
    checkpoint_close(&a);
    checkpoint_close(&b);
    check(same_bytes(input, tuned), "the input is as it was");
}

/* ---- split and merge --------------------------------------------------------------------------------------------- */

/* Five tensors in three layers, of mixed types, none of them aligned; with metadata and a name that has to be
 * escaped. */
static void write_mixed(const char *path)
{
    unsigned char data[3 + 16 + 10 + 8 + 6];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i + 1);
    write_model(path,
                "{\"__metadata__\":{\"format\":\"pt\",\"a \\\"key\\\"\":\"\\u00e9\\n\"},"
                "\"embed\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                "\"layers.0.w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[3,19]},"
                "\"layers.1.\\\"w\\u0000\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[19,29]},"
                "\"layers.0.v\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[29,37]},"
                "\"layers.10.w\":{\"dtype\":\"I16\",\"shape\":[3,1],\"data_offsets\":[37,43]}}  ",
                data, sizeof data);
}

static void check_same_tensors(Checkpoint *a, Checkpoint *b)
{
    check(checkpoint_tensor_count(a) == checkpoint_tensor_count(b), "as many tensors");
    for (size_t i = 0; i < checkpoint_tensor_count(a); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(a, i);
        SafetensorsTensor u;
        bool found = safetensors_find_n(&b->st, t->name, t->name_length, &u) == 0;
        check(found && t->dtype == u.dtype && t->rank == u.rank
                  && !memcmp(t->shape, u.shape, t->rank * sizeof *t->shape)
                  && !memcmp(safetensors_data(t), safetensors_data(&u), (size_t)t->length),
              "%s", t->name);
        size_t size = dtype_bits(u.dtype) / 8;
        check(found && (size_t)(safetensors_data(&u) - u.file->mapped) % size == 0 && (8 + u.file->header_len) % 8 == 0,
              "%s: aligned", t->name);
    }
    for (size_t i = 0; i < (b->st.n_shards ? b->st.n_shards : 1); i++) {
        const JsonValue *m = json_get((b->st.n_shards ? &b->st.shards[i] : &b->st)->header, "__metadata__");
        check(json_string_is(json_get(m, "format"), "pt") && json_string_is(json_get(m, "a \"key\""), "\xc3\xa9\n"),
              "metadata");
    }
}

static void test_split(void)
{
    static const struct {
        uint64_t most; /* 0: by layer */
        size_t shards;
    } cases[] = {{0, 4}, {1, 5}, {16, 4}, {24, 2}, {1000, 1}};
    char err[512];
    const char *path = in_folder("mixed.safetensors");
    write_mixed(path);
    Checkpoint c;
    open_model(&c, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char to[64], back[64];
        size_t shards, length;
        snprintf(to, sizeof to, "%s/split%zu", folder, i);
        snprintf(back, sizeof back, "%s/merged%zu", folder, i);
        check(split_model(&c, to, cases[i].most, NULL, NULL, &shards, err) == 0, "%s", err);
        check(shards == cases[i].shards, "%zu shards of at most %" PRIu64, shards, cases[i].most);
        Checkpoint parts;
        open_model(&parts, to);
        check(parts.st.n_shards == (shards > 1 ? shards : 0), "opened as %zu", parts.st.n_shards);
        check_same_tensors(&c, &parts);
        if (parts.index_path) {
            char *index = file_read(parts.index_path, 100000, &length, err);
            check(index && strstr(index, "\"total_size\": 43"), "total_size");
            free(index);
        }
        check(split_merge(&parts, back, NULL, NULL, err) == 0, "%s", err);
        Checkpoint one;
        open_model(&one, back);
        check_same_tensors(&c, &one);
        checkpoint_close(&one);
        check(split_model(&c, to, cases[i].most, NULL, NULL, &shards, err) != 0 && strstr(err, "exists"), "%s", err);
        check(split_merge(&parts, back, NULL, NULL, err) != 0 && strstr(err, "exists"), "%s", err);
        checkpoint_close(&parts);
    }
    const char *hard = in_folder("hard.safetensors"), *soft = in_folder("soft.safetensors");
    check(link(path, hard) == 0 && symlink(path, soft) == 0, "links");
    check(split_merge(&c, path, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, hard, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, soft, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, in_folder("no/such/folder"), NULL, NULL, err) != 0, "a folder that is not there");
    checkpoint_close(&c);
    write_mixed(in_folder("again.safetensors"));
    check(same_bytes(path, in_folder("again.safetensors")), "the input is as it was");
}

/* The writer refuses what no reader would take. */
static void test_writer(void)
{
    char err[512];
    const char *path = in_folder("written.safetensors"), *source = in_folder("slices.safetensors");
    SafetensorsFile st;
    open_file(&st, source);
    SafetensorsTensor a = st.tensors[0], b = a;
    const SafetensorsTensor *both[2] = {&a, &b};
    WriterContent content = {.tensors = both, .n = 2};
    NewFile f = {.fd = -1};
    b.name = "__metadata__";
    b.name_length = 12;
    check(writer_write(&f, path, &content, err) != 0 && strstr(err, "__metadata__"), "%s", err);
    new_file_end(&f);
    b.name = "a";
    b.name_length = 1;
    check(writer_write(&f, path, &content, err) != 0 && strlen(err) > 10, "a name twice: %s", err);
    new_file_end(&f);
    check(access(path, F_OK) != 0 && access(in_folder("written.safetensors.part"), F_OK) != 0, "nothing is left");
    content.n = 0;
    check(writer_write(&f, path, &content, err) == 0 && new_files_publish(&f, 1, err) == 0, "%s", err);
    new_file_end(&f);
    SafetensorsFile empty;
    open_file(&empty, path);
    check(empty.n_tensors == 0 && empty.mapped_size == 16, "no tensors: {} and spaces");
    safetensors_close(&empty);
    safetensors_close(&st);
}

/* ---- the disk ---------------------------------------------------------------------------------------------------- */

static int stop_at_once(void *context, uint64_t bytes)
{
    (void)context, (void)bytes;
    return 1;
}

/* Where the kernel cannot copy (here: a file that is only appended to) memory does; and all names appear, or none. */
static void test_disk(void)
{
    static unsigned char bytes[3000000];
    char err[512] = "";
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

    NewFile files[2] = {{.fd = -1}, {.fd = -1}};
    check(new_file_open(&files[0], in_folder("one"), err) == 0 && new_file_open(&files[1], in_folder("two"), err) == 0,
          "%s", err);
    check(mkdir(in_folder("two"), 0700) == 0, "a folder in the way");
    check(new_files_publish(files, 2, err) == -1 && strstr(err, "two"), "%s", err);
    check(!file_exists(in_folder("one")), "a name was given though the other could not be");
    new_file_end(&files[0]);
    new_file_end(&files[1]);
    check(!file_exists(in_folder("one.part")) && !file_exists(in_folder("two.part")), "temporary names");
    rmdir(in_folder("two"));
}

int main(void)
{
    if (!mkdtemp(folder)) {
        check(false, "no folder for the test");
        return report("ops");
    }
    test_sha256();
    test_reference_codes();
    test_rounding();
    test_integers();
    test_arithmetic();
    test_slices();
    test_walk();
    test_small_stats();
    test_each_type();
    test_large_stats();
    test_edit();
    test_two_edits();
    test_refusals();
    test_bad_journals();
    test_interrupted();
    test_masks();
    test_patches();
    test_split();
    test_writer();
    test_disk();
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return report("ops");
}
