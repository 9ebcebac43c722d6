/* exp, log, sine and cosine.
 *
 * Each argument is reduced to a short interval, where a polynomial in fused multiply-adds gives the function. Each
 * function is written once and compiled twice: with the CPU's fused multiply-add, and with the library's fma(), which
 * rounds the same but may be slower.
 */
#include "kernels/elementary.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/internal.h"

#ifdef __x86_64__
#define FMA_TARGET __attribute__((target("fma")))
#else
#define FMA_TARGET
#endif

static bool cpu_fma(void)
{
    return cpu_level() != CPU_SCALAR;
}

/* ---- exp --------------------------------------------------------------------------------------------------------- */

/* 2^n, |n| <= 126 */
INLINE float power_of_2(int32_t n)
{
    return from_bits((uint32_t)(n + 127) << 23);
}

/* Formula and constants: see internal.h. */
INLINE float exp_f32_body(float x)
{
    x = x < EXP_LEAST ? EXP_LEAST : x;
    x = x > EXP_MOST ? EXP_MOST : x;
    if (x != x)
        return x + x;
    float n = fmaf(x, LOG2_E_F32, ROUND_F32) - ROUND_F32;
    float r = fmaf(n, -LN2_HIGH_F32, x);
    r = fmaf(n, -LN2_LOW_F32, r);
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* in two steps, of which the first is exact: 2^n itself may be out of range where the result is not */
    int32_t whole = (int32_t)n, half = whole / 2;
    return p * power_of_2(half) * power_of_2(whole - half);
}

INLINE double from_bits_f64(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE uint64_t to_bits_f64(double f)
{
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* 2^n, |n| <= 1022 */
INLINE double power_of_2_f64(int64_t n)
{
    return from_bits_f64((uint64_t)(n + 1023) << 52);
}

/* c[0] * x^(n-1) + ... + c[n-1] */
INLINE double polynomial(const double *c, size_t n, double x)
{
    double p = c[0];
    for (size_t i = 1; i < n; i++)
        p = fma(p, x, c[i]);
    return p;
}

#define ROUND_F64 0x1.8p52 /* ROUND_F32 for doubles */

#define LOG2_E 0x1.71547652b82fep+0
#define LN2_HIGH 0x1.62e42fefa39efp-1
#define LN2_LOW 0x1.abc9e3b39803fp-56

/* The same in double, exp(r) being the series r^k / k! up to k = 13. */
INLINE double exp_f64_body(double x)
{
    static const double c[] = {0x1.6124613a86d09p-33,
                               0x1.1eed8eff8d898p-29,
                               0x1.ae64567f544e4p-26,
                               0x1.27e4fb7789f5cp-22,
                               0x1.71de3a556c734p-19,
                               0x1.a01a01a01a01ap-16,
                               0x1.a01a01a01a01ap-13,
                               0x1.6c16c16c16c17p-10,
                               0x1.1111111111111p-7,
                               0x1.5555555555555p-5,
                               0x1.5555555555555p-3,
                               0.5,
                               1,
                               1};
    x = x < -746 ? -746 : x;
    x = x > 710 ? 710 : x;
    if (x != x)
        return x + x;
    double n = fma(x, LOG2_E, ROUND_F64) - ROUND_F64;
    double r = fma(n, -LN2_HIGH, x);
    r = fma(n, -LN2_LOW, r);
    double p = polynomial(c, COUNT_OF(c), r);
    int64_t whole = (int64_t)n, half = whole / 2;
    return p * power_of_2_f64(half) * power_of_2_f64(whole - half);
}

/* ---- log --------------------------------------------------------------------------------------------------------- */

/* x = 2^n * (1 + f), 1 + f within sqrt(1/2)..sqrt(2). With s = f / (2 + f):
 * log(1 + f) = 2s + 2/3 s^3 + 2/5 s^5 + ... = f - f^2 / 2 + s * (f^2 / 2 + R), R = 2/3 s^2 + 2/5 s^4 + ... */
INLINE double log_f64_body(double x)
{
    static const double c[] = {0x1.642c8590b2164p-4, 0x1.8618618618618p-4, 0x1.af286bca1af28p-4, 0x1.e1e1e1e1e1e1ep-4,
                               0x1.1111111111111p-3, 0x1.3b13b13b13b14p-3, 0x1.745d1745d1746p-3, 0x1.c71c71c71c71cp-3,
                               0x1.2492492492492p-2, 0x1.999999999999ap-2, 0x1.5555555555555p-1};
    if (!(x > 0))
        return x == 0 ? -(double)INFINITY : (double)NAN;
    if (!(x < (double)INFINITY))
        return x;
    double n = 0;
    if (x < 0x1p-1022) { /* subnormal */
        x *= 0x1p54;
        n = -54;
    }
    uint64_t bits = to_bits_f64(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    x = from_bits_f64((bits & 0xfffffffffffff) | (uint64_t)1023 << 52);
    if (x > 0x1.6a09e667f3bcdp+0) { /* sqrt(2) */
        x *= 0.5;
        exponent++;
    }
    n += (double)exponent;
    double f = x - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f, r = polynomial(c, COUNT_OF(c), z);
    return fma(n, LN2_HIGH, f - (half - fma(s, fma(r, z, half), n * LN2_LOW)));
}

/* ---- sine and cosine --------------------------------------------------------------------------------------------- */

/* x = n * pi/2 + r, |r| <= pi/4, with pi/2 as the sum of two doubles: n times the first is subtracted exactly. n mod 4
 * is the quadrant, and says which of sine and cosine of r, and with which sign, is which of x. */
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define HALF_PI_HIGH 0x1.921fb54442d18p+0
#define HALF_PI_LOW 0x1.1a62633145c07p-54

INLINE void sin_cos_f64_body(double x, double *sine, double *cosine)
{
    static const double sines[] = {0x1.952c77030ad4ap-49,  -0x1.ae7f3e733b81fp-41, 0x1.6124613a86d09p-33,
                                   -0x1.ae64567f544e4p-26, 0x1.71de3a556c734p-19,  -0x1.a01a01a01a01ap-13,
                                   0x1.1111111111111p-7,   -0x1.5555555555555p-3};
    static const double cosines[] = {
        0x1.ae7f3e733b81fp-45, -0x1.93974a8c07c9dp-37, 0x1.1eed8eff8d898p-29, -0x1.27e4fb7789f5cp-22,
        0x1.a01a01a01a01ap-16, -0x1.6c16c16c16c17p-10, 0x1.5555555555555p-5,  -0.5};
    double rounded = fma(x, TWO_OVER_PI, ROUND_F64), n = rounded - ROUND_F64;
    double r = fma(n, -HALF_PI_HIGH, x);
    r = fma(n, -HALF_PI_LOW, r);
    double z = r * r;
    double s = fma(polynomial(sines, COUNT_OF(sines), z) * z, r, r);
    double c = fma(polynomial(cosines, COUNT_OF(cosines), z), z, 1.0);
    uint64_t quadrant = to_bits_f64(rounded); /* the low bits are n */
    double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -a : a;
    *cosine = (quadrant + 1) & 2 ? -b : b;
}

/* ---- compiled twice ---------------------------------------------------------------------------------------------- */

FMA_TARGET static float exp_f32_fma(float x)
{
    return exp_f32_body(x);
}

FMA_TARGET static double exp_f64_fma(double x)
{
    return exp_f64_body(x);
}

FMA_TARGET static double log_f64_fma(double x)
{
    return log_f64_body(x);
}

FMA_TARGET static void sin_cos_f64_fma(double x, double *sine, double *cosine)
{
    sin_cos_f64_body(x, sine, cosine);
}

float exp_f32(float x)
{
    return cpu_fma() ? exp_f32_fma(x) : exp_f32_body(x);
}

double exp_f64(double x)
{
    return cpu_fma() ? exp_f64_fma(x) : exp_f64_body(x);
}

double log_f64(double x)
{
    return cpu_fma() ? log_f64_fma(x) : log_f64_body(x);
}

void sin_cos_f64(double x, double *sine, double *cosine)
{
    if (cpu_fma())
        sin_cos_f64_fma(x, sine, cosine);
    else
        sin_cos_f64_body(x, sine, cosine);
}
