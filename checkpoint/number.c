/* A float of E exponent and M mantissa bits, from the most significant bit on: sign, exponent e, mantissa m. With the
 * dtype's bias its value is
 *     (1 + m / 2^M) * 2^(e - bias)      if e > 0
 *     m / 2^M * 2^(1 - bias)            if e = 0: zero and the subnormal numbers
 * so that codes in ascending order are values in ascending order, and rounding up past the last mantissa carries into
 * the exponent by itself. The codes above the largest finite one are infinity and NaN, or only NaN.
 *
 * What is computed is rounded once. A product or sum that no double holds lies between two doubles, and is kept as the
 * one whose last bit is 1 ("rounded to odd"): it lies on the same side of every midpoint of a shorter format as the
 * exact number.
 */
#include "checkpoint/number.h"

#include <errno.h>
#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/vector.h"

/* ---- the formats ------------------------------------------------------------------------------------------------- */

typedef struct {
    int exponent_bits, mantissa_bits, bias;
    uint64_t largest, infinity, nan; /* codes without their sign; infinity is 0 where the format has none */
    bool no_sign;                    /* E8M0: only powers of two, and no zero */
    bool one_zero;                   /* FNUZ: the code of -0 is the NaN */
} FloatFormat;

static const FloatFormat floats[DTYPE_COUNT] = {
    [DTYPE_F64] = {11, 52, 1023, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000, false, false},
    [DTYPE_F32] = {8, 23, 127, 0x7f7fffff, 0x7f800000, 0x7fc00000, false, false},
    [DTYPE_C64] = {8, 23, 127, 0x7f7fffff, 0x7f800000, 0x7fc00000, false, false}, /* each of its two parts */
    [DTYPE_BF16] = {8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, false, false},
    [DTYPE_F16] = {5, 10, 15, 0x7bff, 0x7c00, 0x7e00, false, false},
    [DTYPE_F8_E5M2] = {5, 2, 15, 0x7b, 0x7c, 0x7f, false, false},
    [DTYPE_F8_E4M3] = {4, 3, 7, 0x7e, 0, 0x7f, false, false},
    [DTYPE_F8_E8M0] = {8, 0, 127, 0xfe, 0, 0xff, true, false},
    [DTYPE_F8_E4M3FNUZ] = {4, 3, 8, 0x7f, 0, 0x80, false, true},
    [DTYPE_F8_E5M2FNUZ] = {5, 2, 16, 0x7f, 0, 0x80, false, true},
};

bool number_is_float(Dtype dtype)
{
    return floats[dtype].exponent_bits > 0;
}

bool number_float_layout(Dtype dtype, int *exponent_bits, int *mantissa_bits)
{
    *exponent_bits = floats[dtype].exponent_bits;
    *mantissa_bits = floats[dtype].mantissa_bits;
    return number_is_float(dtype);
}

static bool is_signed_integer(Dtype dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

size_t number_parts(Dtype dtype)
{
    return dtype == DTYPE_C64 ? 2 : 1;
}

/* Bytes of one number; a C64 has two. */
static size_t part_bytes(Dtype dtype)
{
    return dtype_bits(dtype) / 8 / number_parts(dtype);
}

static uint64_t read_code(Dtype dtype, const unsigned char *p)
{
    uint64_t code = 0;
    memcpy(&code, p, part_bytes(dtype));
    return code;
}

static void write_code(Dtype dtype, unsigned char *p, uint64_t code)
{
    memset(p, 0, dtype_bits(dtype) / 8);
    memcpy(p, &code, part_bytes(dtype));
}

/* ---- numbers from bits ------------------------------------------------------------------------------------------- */

static double float_from_code(const FloatFormat *f, size_t bits, uint64_t code)
{
    uint64_t sign = f->no_sign ? 0 : code >> (bits - 1), size = code - (sign << (bits - 1));
    uint64_t e = size >> f->mantissa_bits, m = size & ((UINT64_C(1) << f->mantissa_bits) - 1);
    double value;
    if (f->infinity && size == f->infinity)
        value = (double)INFINITY;
    else if (size > f->largest || (f->one_zero && code == f->nan))
        value = (double)NAN;
    else if (e == 0 && f->mantissa_bits > 0)
        value = ldexp((double)m, 1 - f->bias - f->mantissa_bits);
    else
        value = ldexp((double)(m + (UINT64_C(1) << f->mantissa_bits)), (int)e - f->bias - f->mantissa_bits);
    return sign ? -value : value;
}

static Number number_from_double(double value, double odd)
{
    Number n = {.value = value, .odd = odd, .negative = signbit(value)};
    double size = fabs(value);
    n.whole = value == odd && size < 0x1p64 && size == floor(size);
    n.magnitude = n.whole ? (uint64_t)size : 0;
    return n;
}

static Number number_from_whole(bool negative, uint64_t magnitude)
{
    double size = (double)magnitude, value = negative ? -size : size;
    return (Number){.value = value, .odd = value, .whole = true, .negative = negative, .magnitude = magnitude};
}

Number number_read(Dtype dtype, const unsigned char *element)
{
    uint64_t code = read_code(dtype, element), sign = UINT64_C(1) << (8 * part_bytes(dtype) - 1);
    if (number_is_float(dtype)) {
        double value = float_from_code(&floats[dtype], 8 * part_bytes(dtype), code);
        return number_from_double(value, value);
    }
    bool negative = is_signed_integer(dtype) && (code & sign);
    return number_from_whole(negative, negative ? 2 * sign - code : code); /* modulo 2^64, which 2 * sign may be */
}

/* Round value + error to odd, where value is the double nearest to it. */
static double round_to_odd(double value, double error)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (error == 0 || !isfinite(value) || !isfinite(error) || bits & 1)
        return value;
    if (value == 0)
        return error > 0 ? 0x1p-1074 : -0x1p-1074;
    bits = (error > 0) == (value > 0) ? bits + 1 : bits - 1;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Do what strtod() does, in a rounding mode. False unless all of the text is a number. */
static bool parse_rounded(const char *text, int mode, double *out)
{
    char *end;
    int before = fegetround();
    fesetround(mode);
    *out = strtod(text, &end);
    fesetround(before);
    return end != text && *end == '\0';
}

/* Read digits, which may be followed by zeros after a point, as a whole number of up to 64 bits. */
static bool parse_whole(const char *digits, uint64_t *magnitude)
{
    const char *rest = digits + strspn(digits, "0123456789");
    if (rest == digits)
        return false;
    errno = 0;
    *magnitude = strtoull(digits, NULL, 10);
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0");
    return *rest == '\0' && errno == 0;
}

int number_parse(Number *n, const char *text, char err[512])
{
    bool negative = *text == '-';
    const char *digits = negative || *text == '+' ? text + 1 : text;
    double low, high, nearest;
    uint64_t whole;
    if (parse_whole(digits, &whole) && !(whole == 0 && negative)) { /* -0 is a float */
        *n = number_from_whole(negative, whole);
        return 0;
    }
    if (*text == ' ' || !parse_rounded(text, FE_TONEAREST, &nearest) || !parse_rounded(text, FE_DOWNWARD, &low) ||
        !parse_rounded(text, FE_UPWARD, &high))
        return fail(err, "\"%.100s\" is not a number", text);
    if (isinf(nearest) && (*digits | 32) != 'i')
        return fail(err, "%.100s is beyond the largest double, 1.8e308", text);
    bool exact = low == high || isnan(nearest);
    double odd = low == nearest ? round_to_odd(low, 1) : round_to_odd(high, -1);
    *n = number_from_double(nearest, exact ? nearest : odd);
    n->whole = n->whole && exact;
    return 0;
}

/* ---- numbers to bits --------------------------------------------------------------------------------------------- */

static int write_float(Dtype dtype, unsigned char *element, double value, char err[512])
{
    const FloatFormat *f = &floats[dtype];
    uint64_t sign = f->no_sign || !signbit(value) ? 0 : UINT64_C(1) << (f->exponent_bits + f->mantissa_bits), code;
    double size = fabs(value);
    int exponent;
    if (isnan(value)) {
        write_code(dtype, element, f->nan);
        return 0;
    }
    if (f->no_sign && (signbit(value) || size < 0x1p-127))
        return fail(err, "%.9g cannot be held by %s, which has only powers of two from 2^-127 on", value,
                    dtype_name(dtype));
    frexp(size, &exponent); /* size = [1/2, 1) * 2^exponent */
    int e = exponent - 1 + f->bias;
    bool subnormal = size == 0 || (e < 1 && f->mantissa_bits > 0);
    int quantum = (subnormal ? 1 : e) - f->bias - f->mantissa_bits; /* neighbors differ by 2^quantum */
    if (isinf(size)) {
        code = f->infinity ? f->infinity : UINT64_MAX;
    } else {
        code = (uint64_t)rint(ldexp(size, -quantum));
        if (!subnormal) /* e takes the place of the leading 1 */
            code += ((uint64_t)e << f->mantissa_bits) - (UINT64_C(1) << f->mantissa_bits);
    }
    if (code > f->largest && !(isinf(size) && f->infinity))
        return fail(err, "%.9g does not fit %s, whose largest number is %.9g", value, dtype_name(dtype),
                    float_from_code(f, 8 * part_bytes(dtype), f->largest));
    write_code(dtype, element, f->one_zero && code == 0 ? 0 : sign | code);
    return 0;
}

static int write_whole(Dtype dtype, unsigned char *element, const Number *n, char err[512])
{
    uint64_t half = UINT64_C(1) << (dtype_bits(dtype) - 1);
    uint64_t most = is_signed_integer(dtype) ? half - 1 : 2 * (half - 1) + 1;
    uint64_t least = is_signed_integer(dtype) ? half : 0; /* how far below zero the type reaches */
    if (dtype == DTYPE_BOOL)
        most = 1;
    if (isinf(n->value) || (!n->whole && fabs(n->value) >= 0x1p64))
        return fail(err, "%.17g does not fit %s", n->value, dtype_name(dtype));
    if (!n->whole) {
        bool looks_whole = n->value == floor(n->value); /* as 1 + 1e-20 does */
        return fail(err, "%s%.17g is not a whole number, and %s holds no others",
                    looks_whole ? "the exact result, close to " : "", n->value, dtype_name(dtype));
    }
    if (n->magnitude > (n->negative ? least : most))
        return fail(err, "%s%" PRIu64 " does not fit %s: %s%" PRIu64 " to %" PRIu64, n->negative ? "-" : "",
                    n->magnitude, dtype_name(dtype), least ? "-" : "", least, most);
    write_code(dtype, element, n->negative ? 0 - n->magnitude : n->magnitude);
    return 0;
}

int number_write(Dtype dtype, unsigned char *element, const Number *n, char err[512])
{
    if (number_is_float(dtype))
        return write_float(dtype, element, dtype == DTYPE_F64 ? n->value : n->odd, err);
    return write_whole(dtype, element, n, err);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static Number real_result(NumberOperation operation, double x, double v)
{
    double result, error;
    if (operation == NUMBER_SCALE) {
        result = x * v;
        error = fma(x, v, -result);
    } else {
        result = x + v;
        double v_part = result - x; /* what of v arrived in the sum */
        error = (x - (result - v_part)) + (v - v_part);
    }
    return number_from_double(result, round_to_odd(result, error));
}

/* Multiply a whole x by v = odd * 2^e. That is whole, and computed exactly, if e >= 0 or 2^-e divides x. */
static bool whole_product(uint64_t x, double v, uint64_t *product)
{
    int e;
    uint64_t odd = (uint64_t)ldexp(frexp(fabs(v), &e), 53);
    for (e -= 53; odd && odd % 2 == 0; odd /= 2)
        e++;
    if (x == 0 || odd == 0) {
        *product = 0;
        return true;
    }
    for (; e < 0 && x % 2 == 0; x /= 2)
        e++;
    if (e < 0 || e > 63 || __builtin_mul_overflow(x, odd, product))
        return false;
    return !__builtin_mul_overflow(*product, UINT64_C(1) << e, product);
}

static bool whole_sum(const Number *a, const Number *b, bool *negative, uint64_t *magnitude)
{
    if (a->negative == b->negative) {
        *negative = a->negative;
        return !__builtin_add_overflow(a->magnitude, b->magnitude, magnitude);
    }
    const Number *larger = a->magnitude >= b->magnitude ? a : b, *smaller = larger == a ? b : a;
    *negative = larger->negative;
    *magnitude = larger->magnitude - smaller->magnitude;
    return true;
}

/* What an operation makes of an integer: exact where the result is whole, else a number that number_write() refuses. */
static Number whole_result(NumberOperation operation, const Number *x, const Number *v)
{
    bool negative = x->negative != v->negative;
    uint64_t magnitude;
    if (operation == NUMBER_SCALE && v->whole && !__builtin_mul_overflow(x->magnitude, v->magnitude, &magnitude))
        return number_from_whole(negative, magnitude);
    if (operation == NUMBER_SCALE && isfinite(v->value) && whole_product(x->magnitude, v->value, &magnitude))
        return number_from_whole(negative, magnitude);
    if (operation == NUMBER_ADD && v->whole && whole_sum(x, v, &negative, &magnitude))
        return number_from_whole(negative, magnitude);
    Number n = {.value = operation == NUMBER_SCALE ? x->value * v->value : x->value + v->value};
    n.odd = n.value;
    return n;
}

static int apply_to_part(Dtype dtype, NumberOperation operation, const Number *v, unsigned char *part, char err[512])
{
    Dtype format = dtype == DTYPE_C64 ? DTYPE_F32 : dtype;
    Number x = number_read(format, part), result = *v;
    if (isnan(x.value) && operation != NUMBER_SET)
        return 0;
    if (operation != NUMBER_SET && dtype == DTYPE_BOOL)
        return fail(err, "BOOL has no arithmetic");
    if (operation != NUMBER_SET)
        result = number_is_float(dtype) ? real_result(operation, x.value, v->value) : whole_result(operation, &x, v);
    if (isinf(result.value) && isfinite(x.value) && isfinite(v->value))
        return fail(err, "the result is beyond the largest double");
    return number_write(format, part, &result, err);
}

int number_apply(Dtype dtype, NumberOperation operation, const Number *v, unsigned char *element, char err[512])
{
    static const Number zero = {.whole = true};
    if (apply_to_part(dtype, operation, v, element, err) != 0)
        return -1;
    if (dtype != DTYPE_C64 || operation == NUMBER_ADD)
        return 0;
    return apply_to_part(dtype, operation, operation == NUMBER_SET ? &zero : v, element + 4, err);
}

/* ---- many at a time, and as text --------------------------------------------------------------------------------- */

static void decode_small(Dtype dtype, const unsigned char *in, size_t n, double *out)
{
    double table[256];
    for (size_t i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        table[i] = number_read(dtype, &byte).value;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = table[in[i]];
}

/* The case of a dtype whose numbers are as C's. */
#define DECODE(dtype, type)                                                                                            \
    case dtype:                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                               \
            type number;                                                                                               \
            memcpy(&number, in + i * sizeof number, sizeof number);                                                    \
            out[i] = (double)number;                                                                                   \
        }                                                                                                              \
        break

void number_decode(Dtype dtype, const unsigned char *in, size_t n, double *out)
{
    float block[512];
    switch (dtype) {
    case DTYPE_BF16:
    case DTYPE_F16:
        for (size_t done = 0, m; done < n; done += m) {
            m = MIN(n - done, COUNT_OF(block));
            (dtype == DTYPE_BF16 ? convert_bf16 : convert_f16)(block, in + 2 * done, m);
            for (size_t i = 0; i < m; i++)
                out[done + i] = (double)block[i];
        }
        break;
    case DTYPE_C64:
        number_decode(DTYPE_F32, in, 2 * n, out);
        break;
        DECODE(DTYPE_F32, float);
        DECODE(DTYPE_F64, double);
        DECODE(DTYPE_I16, int16_t);
        DECODE(DTYPE_U16, uint16_t);
        DECODE(DTYPE_I32, int32_t);
        DECODE(DTYPE_U32, uint32_t);
        DECODE(DTYPE_I64, int64_t);
        DECODE(DTYPE_U64, uint64_t);
    default: /* a byte each */
        decode_small(dtype, in, n, out);
    }
}

/* Print the fewest digits that read back the same. 17 tell every double, 9 every float. */
static void real_text(double value, bool is_double, char out[28])
{
    int most = is_double ? 17 : 9;
    for (int digits = is_double ? 15 : 6; digits <= most; digits++) {
        snprintf(out, 28, "%.*g", digits, isnan(value) ? fabs(value) : value); /* not "-nan" */
        if (is_double ? strtod(out, NULL) == value : strtof(out, NULL) == (float)value)
            break;
    }
}

const char *number_text(Dtype dtype, const unsigned char *element, char out[64])
{
    Number n = number_read(dtype, element);
    if (dtype == DTYPE_BOOL) {
        snprintf(out, 64, n.magnitude ? "true" : "false");
    } else if (!number_is_float(dtype)) {
        snprintf(out, 64, "%s%" PRIu64, n.negative ? "-" : "", n.magnitude);
    } else if (dtype == DTYPE_C64) {
        char real[28], imaginary[28];
        double i = number_read(DTYPE_F32, element + 4).value;
        real_text(n.value, false, real);
        real_text(fabs(i), false, imaginary);
        snprintf(out, 64, "%s%c%sj", real, signbit(i) ? '-' : '+', imaginary);
    } else {
        real_text(n.value, dtype == DTYPE_F64, out);
    }
    return out;
}
