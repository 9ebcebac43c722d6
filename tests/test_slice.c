/* checkpoint/slice.c: slices as in NumPy, statistics, histograms, and .npy files. */
#include "base/base.h"

#include <inttypes.h>
#include <math.h>

#include "base/threads.h"
#include "check.h"
#include "checkpoint/npy.h"
#include "checkpoint/number.h"
#include "checkpoint/slice.h"
#include "checkpoint/statistics.h"
#include "model_files.h"

/* ---- slices ------------------------------------------------------------------------------------------------------ */

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
    static const char *const refused[] = {"4",   "-5",      "1,3",     "0,0,2",       "0,0,0,0",
                                          "::0", "1:2:3:4", "a",       ",",           ":,,",
                                          "1 2", "....",    "...,...", "0,0,0,...,0", "99999999999999999999",
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

/* The same elements come from wherever the walk starts and however long its pieces are. */
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

/* Doubles near the ends of their range, and integers that no double holds. */
static void test_extremes(void)
{
    struct {
        double large[3], opposite[2], tiny[2];
        int64_t i[4];
        uint64_t u[3];
    } numbers = {{DBL_MAX, DBL_MAX, DBL_MAX},
                 {DBL_MAX, -DBL_MAX},
                 {1e-200, 3e-200},
                 {INT64_MAX - 1, INT64_MAX, INT64_MIN + 1, INT64_MIN},
                 {UINT64_MAX - 1, UINT64_MAX, UINT64_MAX}};
    const char *path = in_folder("extremes.safetensors");
    write_model(path,
                "{\"large\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]},"
                "\"opposite\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[24,40]},"
                "\"tiny\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[40,56]},"
                "\"i\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[56,88]},"
                "\"u\":{\"dtype\":\"U64\",\"shape\":[3],\"data_offsets\":[88,112]}}",
                &numbers, sizeof numbers);
    SafetensorsFile st;
    Slice whole;
    char err[512];
    uint64_t at, bins[2];
    open_file(&st, path);
    Statistics s = stats_of(&st.tensors[0], NULL);
    check(s.mean == DBL_MAX && s.std == 0, "large: mean %g std %g", s.mean, s.std);
    s = stats_of(&st.tensors[1], NULL);
    check(s.mean == 0 && s.std == DBL_MAX, "opposite: mean %g std %g", s.mean, s.std);
    s = stats_of(&st.tensors[2], NULL);
    check(fabs(s.mean / 2e-200 - 1) < 1e-15 && fabs(s.std / 1e-200 - 1) < 1e-15, "tiny: mean %g std %g", s.mean, s.std);
    check(slice_parse(&whole, NULL, &st.tensors[1], err) == 0 &&
              statistics_histogram(&whole, -DBL_MAX, DBL_MAX, bins, 2, err) == 0 && bins[0] == 1 && bins[1] == 1,
          "a histogram whose range is no double");
    slice_free(&whole);
    check(slice_parse(&whole, NULL, &st.tensors[3], err) == 0, "%s", err);
    check(statistics_find(&whole, 0x1p63, true, &at, err) == 0 && at == 1, "the largest I64: %" PRIu64, at);
    check(statistics_find(&whole, -0x1p63, false, &at, err) == 0 && at == 3, "the smallest I64: %" PRIu64, at);
    slice_free(&whole);
    check(slice_parse(&whole, "-99999999999999999999:99999999999999999999:99999999999999999999", &st.tensors[4], err) ==
                  0 &&
              whole.elements == 1,
          "bounds beyond 64 bits are clipped");
    slice_free(&whole);
    check(slice_parse(&whole, "99999999999999999999", &st.tensors[4], err) != 0 &&
              strstr(err, "index 99999999999999999999 is"),
          "an index beyond 64 bits: %s", err);
    check(slice_parse(&whole, NULL, &st.tensors[4], err) == 0, "%s", err);
    check(statistics_find(&whole, 0x1p64, true, &at, err) == 0 && at == 1, "the first largest U64: %" PRIu64, at);
    check(statistics_find(&whole, 0x1p64, false, &at, err) == 0 && at == 0, "the smallest U64: %" PRIu64, at);
    slice_free(&whole);
    safetensors_close(&st);
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
    check(statistics_find(&whole, 4, false, &at, err) == 0 && at == 3, "place of 4: %" PRIu64, at);
    check(statistics_find(&whole, 7, false, &at, err) == 0 && at == UINT64_MAX, "no 7");
    check(statistics_histogram(&whole, -2, 4, bins, 3, err) == 0 && bins[0] == 1 && bins[1] == 3 && bins[2] == 1,
          "histogram");
    slice_free(&whole);
    safetensors_close(&st);
}

/* Every type whose elements are whole bytes: statistics and NumPy file of 3, 0, and its largest number or -5. */
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

/* Large tensors of 16-bit numbers are counted value by value, others block by block: equal numbers give equal results,
 * on any number of threads. */
static void test_large_stats(void)
{
    enum { N = 300007 };
    unsigned char *data = malloc(6 * N);
    char header[300], err[512];
    for (uint32_t i = 0, x = 1; i < N; i++) {
        x = x * 1664525 + 1013904223;
        uint16_t half = (uint16_t)(x >> 16) % 0x7c00 & 0x7fff; /* finite F16 from 0 up */
        memcpy(data + 4 * N + 2 * i, &half, 2);
        float wide = (float)number_read(DTYPE_F16, data + 4 * N + 2 * i).value;
        memcpy(data + 4 * i, &wide, 4);
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

int main(void)
{
    open_folder("slice");
    test_slices();
    test_walk();
    test_small_stats();
    test_extremes();
    test_each_type();
    test_large_stats();
    remove_folder();
    return report("slice");
}
