/* checkpoint/number.c: numbers of every type read, rounded, written and computed with. */
#include "base/base.h"

#include <inttypes.h>
#include <math.h>

#include "check.h"
#include "checkpoint/number.h"

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

/* Every code of a short format is read and written again, and so are points between it and the next: halfway goes to
 * the even code, a little more or less to the nearer one. What lies beyond the largest is refused. */
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
    /* decimals that would be rounded twice by way of a double */
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

/* Apply the operation with `operand` to the number `text`. Return the result as text, or NULL if it is refused. */
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
        {DTYPE_F32, "16777216", NUMBER_ADD, "1.0000000000000002", "16777218"}, /* not a double: rounded once */
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

int main(void)
{
    test_reference_codes();
    test_rounding();
    test_integers();
    test_arithmetic();
    return report("number");
}
