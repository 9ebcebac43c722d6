/* What the files of kernels/ share: code that knows its constants, tables by level, floats as bits, numbers of 16 bits,
 * rounding, the sum of the sixteen running sums, and the constants of exp. */
#ifndef KERNELS_INTERNAL_H
#define KERNELS_INTERNAL_H

#include "base/base.h"

#include <string.h>

#include "base/cpu.h"

#define SUMS 16 /* running sums of a dot product: element k is added to sum k mod SUMS */

/* For code that is compiled again for each level or weight type. */
#define INLINE static inline __attribute__((always_inline))

/* A loop whose n the compiler knows and must unroll, so that what i indexes can stay in registers. */
#ifdef __clang__
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (size_t i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)
#endif

/* Make a call in which N is the number n, 1..most (at most 8), as a constant: the compiler makes a version of the code
 * for each. */
#define CONSTANT_CASE(n, most, call)                                                                                   \
    case n: {                                                                                                          \
        enum { N = MIN(n, most) };                                                                                     \
        call;                                                                                                          \
        break;                                                                                                         \
    }
#define WITH_CONSTANT(n, most, call)                                                                                   \
    switch (n) {                                                                                                       \
        CONSTANT_CASE(1, most, call);                                                                                  \
        CONSTANT_CASE(2, most, call);                                                                                  \
        CONSTANT_CASE(3, most, call);                                                                                  \
        CONSTANT_CASE(4, most, call);                                                                                  \
        CONSTANT_CASE(5, most, call);                                                                                  \
        CONSTANT_CASE(6, most, call);                                                                                  \
        CONSTANT_CASE(7, most, call);                                                                                  \
        CONSTANT_CASE(8, most, call);                                                                                  \
    }

/* A table of kernels by CpuLevel, in which kernels(level) stands for those of a level. */
#if defined(__x86_64__)
#define BY_LEVEL(kernels)                                                                                              \
    {                                                                                                                  \
        [CPU_SCALAR] = kernels(scalar), [CPU_AVX2] = kernels(avx2), [CPU_AVX512] = kernels(avx512),                    \
        [CPU_AVX512VNNI] = kernels(avx512), [CPU_AVX512BF16] = kernels(avx512),                                        \
    }
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define BY_LEVEL(kernels)                                                                                              \
    {                                                                                                                  \
        [CPU_SCALAR] = kernels(scalar), [CPU_NEON] = kernels(neon)                                                     \
    }
#else
#define BY_LEVEL(kernels)                                                                                              \
    {                                                                                                                  \
        [CPU_SCALAR] = kernels(scalar)                                                                                 \
    }
#endif

/* ---- floats as bits ---------------------------------------------------------------------------------------------- */

INLINE float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE uint32_t to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* |f| as bits, which order like the numbers they stand for, with infinity and then NaN above all others. */
INLINE uint32_t magnitude_bits(float f)
{
    return to_bits(f) & 0x7fffffff;
}

/* ---- numbers at any address -------------------------------------------------------------------------------------- */

INLINE float load_f32(const void *p, size_t i)
{
    float f;
    memcpy(&f, (const unsigned char *)p + 4 * i, sizeof f);
    return f;
}

INLINE uint16_t load_u16(const void *p, size_t i)
{
    uint16_t v;
    memcpy(&v, (const unsigned char *)p + 2 * i, sizeof v);
    return v;
}

/* BF16 is the upper half of a float32. */
INLINE float bf16_to_f32(uint16_t h)
{
    return from_bits((uint32_t)h << 16);
}

/* FP16: sign, 5 bits of exponent (bias 15), 10 of mantissa. A NaN keeps its payload and becomes quiet. */
INLINE float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent)
        return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * 0x1p-24f;
    return sign ? -f : f;
}

#define F16_MAX 65504.0f
#define F16_LEAST_NORMAL 0x1p-14f

/* Rounded to nearest, ties to even; F16_MAX for what is larger but finite. */
INLINE uint16_t f32_to_f16(float f)
{
    uint32_t sign = to_bits(f) >> 16 & 0x8000, bits = magnitude_bits(f);
    float a = MIN(from_bits(bits), F16_MAX);
    if (bits >= 0x7f800000)
        bits = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
    else if (a < F16_LEAST_NORMAL)
        bits = to_bits(a + 0.5f) - to_bits(0.5f); /* a subnormal counts multiples of 2^-24, the last place of 0.5 */
    else
        bits = ((to_bits(a) + 0xfff + (to_bits(a) >> 13 & 1)) >> 13) - (112 << 10);
    return (uint16_t)(bits | sign);
}

/* ---- rounding and summing ---------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 to a float of at most 2^22 rounds it to a whole number, ties to even, since no bits are left for a
 * fraction. The sum's low bits are that whole number; subtracting the constant again gives it as a float. */
#define ROUND_F32 0x1.8p23f

/* v cut off at low and high, then rounded to the nearest whole number, ties to even. A NaN becomes high. */
INLINE float round_within(float v, float low, float high)
{
    v = v < high ? v : high;
    v = v > low ? v : low;
    return v + ROUND_F32 - ROUND_F32;
}

/* Add the running sums by the tree l + 8, l + 4, l + 2, l + 1. */
INLINE float add_sums(float s[SUMS])
{
    EACH(l, 8)
        s[l] += s[l + 8];
    EACH(l, 4)
        s[l] += s[l + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* ---- exp --------------------------------------------------------------------------------------------------------- */

/* exp(x) = 2^n * exp(r), n = x / ln 2 rounded, |r| <= ln 2 / 2; exp(r) = 1 + r + r^2 * polynomial, minimax. The scalar
 * code is in elementary.c, the vector code in lanes_begin.h. */
#define LOG2_E_F32 0x1.715476p+0f
#define LN2_HIGH_F32 0x1.62e430p-1f
#define LN2_LOW_F32 -0x1.05c610p-29f
#define EXP_C2 0x1.fffffcp-2f
#define EXP_C3 0x1.555492p-3f
#define EXP_C4 0x1.5558f2p-5f
#define EXP_C5 0x1.123a20p-7f
#define EXP_C6 0x1.6a23d0p-10f
#define EXP_LEAST -104.0f /* from here down the result is zero, */
#define EXP_MOST 89.0f    /* from here up infinite */

#endif
