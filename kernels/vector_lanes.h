/* The vector code of vector.c, written for vectors of any width. vector.c includes this file once for each level, and
 * lanes_begin.h says what the names in capitals mean. */
#include "kernels/lanes_begin.h"

/* Convert n numbers of two bytes, which are FP16 or else BF16. */
TARGET INLINE void NAME(convert)(float *out, const unsigned char *in, size_t n, bool f16)
{
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS) {
        __builtin_prefetch(in + 2 * i + BYTES_AHEAD);
        EACH(j, SUMS / WIDTH) {
            const unsigned char *p = in + 2 * (i + j * WIDTH);
            STORE(out + i + j * WIDTH, f16 ? FROM_F16(p) : FROM_BF16(p));
        }
    }
    for (; i < n; i += WIDTH) {
        unsigned char last[2 * WIDTH] = {0};
        size_t left = MIN(n - i, WIDTH);
        memcpy(last, in + 2 * i, 2 * left);
        STORE_N(out + i, f16 ? FROM_F16(last) : FROM_BF16(last), left);
    }
}

TARGET static void NAME(convert_bf16)(float *out, const void *in, size_t n)
{
    NAME(convert)(out, in, n, false);
}

TARGET static void NAME(convert_f16)(float *out, const void *in, size_t n)
{
    NAME(convert)(out, in, n, true);
}

TARGET static void NAME(rmsnorm)(float *out, const float *x, const float *weight, size_t n, float eps)
{
    V sums[SUMS / WIDTH];
    size_t i = 0;
    EACH(j, SUMS / WIDTH)
        sums[j] = SET(0.0f);
    for (; i + SUMS <= n; i += SUMS)
        EACH(j, SUMS / WIDTH) {
            V a = LOAD(x + i + j * WIDTH);
            sums[j] = FMA(a, a, sums[j]);
        }
    for (size_t j = 0; i < n; i += WIDTH, j++) {
        V a = LOAD_N(x + i, n - i);
        sums[j] = FMA(a, a, sums[j]);
    }
    V scale = SET(1.0f / sqrtf(NAME(add_sum_vectors)(sums) / (float)n + eps));
    for (i = 0; i + WIDTH <= n; i += WIDTH)
        STORE(out + i, MUL(MUL(LOAD(x + i), scale), LOAD(weight + i)));
    if (i < n)
        STORE_N(out + i, MUL(MUL(LOAD_N(x + i, n - i), scale), LOAD_N(weight + i, n - i)), n - i);
}

TARGET static inline V NAME(silu_times)(V gate, V up)
{
    return MUL(DIV(gate, ADD(SET(1.0f), NAME(exp)(NEGATE(gate)))), up);
}

TARGET static void NAME(swiglu)(float *gate, const float *up, size_t n)
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        STORE(gate + i, NAME(silu_times)(LOAD(gate + i), LOAD(up + i)));
    if (i < n)
        STORE_N(gate + i, NAME(silu_times)(LOAD_N(gate + i, n - i), LOAD_N(up + i, n - i)), n - i);
}

TARGET static void NAME(rope)(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine)
{
    size_t half = head_dim / 2;
    for (size_t h = 0; h < n_heads; h++, x += head_dim) {
        size_t i = 0;
        for (; i + WIDTH <= half; i += WIDTH) {
            V a = LOAD(x + i), b = LOAD(x + half + i), c = LOAD(cosine + i), s = LOAD(sine + i);
            STORE(x + i, SUB(MUL(a, c), MUL(b, s)));
            STORE(x + half + i, ADD(MUL(b, c), MUL(a, s)));
        }
        if (i < half) {
            size_t m = half - i;
            V a = LOAD_N(x + i, m), b = LOAD_N(x + half + i, m), c = LOAD_N(cosine + i, m), s = LOAD_N(sine + i, m);
            STORE_N(x + i, SUB(MUL(a, c), MUL(b, s)), m);
            STORE_N(x + half + i, ADD(MUL(b, c), MUL(a, s)), m);
        }
    }
}

TARGET static float NAME(largest)(const float *x, size_t n, bool *nan)
{
    V m[4];
    size_t i = 0;
    for (size_t j = 0; j < 4; j++)
        m[j] = SET(-INFINITY);
    bool any = false;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        for (size_t j = 0; j < 4; j++) {
            V a = LOAD(x + i + j * WIDTH);
            m[j] = V_MAX(a, m[j]);
            any |= HAS_NAN(a);
        }
    float largest = NAME(largest_lane)(V_MAX(V_MAX(m[0], m[1]), V_MAX(m[2], m[3])));
    for (; i < n; i++) {
        largest = x[i] > largest ? x[i] : largest;
        any |= x[i] != x[i];
    }
    *nan = *nan || any;
    return largest;
}

#include "kernels/lanes_end.h"
