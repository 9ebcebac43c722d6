/* Attention, and the functions and loops of a transformer that are not products.
 *
 * A query looks back over the keys: weights = softmax of scale * dot(q, k_j), out = sum of weight_j * v_j. Keys come in
 * blocks of 256 by absolute position. Within a block, for the positions j that the query may see:
 *
 *     s_j = scale * dot(q, k_j)       sixteen running sums, added by the tree, as everywhere (see matmul.c)
 *     m   = the largest s_j           p_j = exp(s_j - m)
 *     l   = sum of p_j                sixteen running sums by j mod 16, then the same tree
 *     a   = sum of p_j * v_j          by fused multiply-add, j ascending
 *
 * What blocks found is merged in ascending order. Let (M, L, A) be the sum so far; the first block is copied.
 *
 *     m >  M:  f = exp(M - m);  L = fma(L, f, l);  A = fma(A, f, a);  M = m
 *     m <= M:  f = exp(m - M);  L = fma(l, f, L);  A = fma(a, f, A)
 *
 * out = A * (1 / L). A block is computed by itself, whoever does it, so neither threads nor the number of queries at a
 * time can change a bit.
 *
 * The scalar code comes first: it is the definition. The vector code is in attention_kernels.h.
 */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/elementary.h"
#include "kernels/vector.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A loop of few steps, known to the compiler, which must unroll it: what it indexes shall be registers. */
#ifdef __clang__
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (size_t i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)
#endif

/* Calls with a ROWS that the compiler knows, 1..most. */
#define ROW_CASE(n, most, call)                                                                                        \
    case n: {                                                                                                          \
        enum { ROWS = (n) < (most) ? (n) : (most) };                                                                   \
        call;                                                                                                          \
        break;                                                                                                         \
    }
#define BY_ROWS(r, most, call)                                                                                         \
    switch (r) {                                                                                                       \
        ROW_CASE(1, most, call)                                                                                        \
        ROW_CASE(2, most, call)                                                                                        \
        ROW_CASE(3, most, call) ROW_CASE(4, most, call) ROW_CASE(5, most, call) ROW_CASE(6, most, call)                \
            ROW_CASE(7, most, call) ROW_CASE(8, most, call)                                                            \
    }

/* ---- exp, log, sine and cosine ----------------------------------------------------------------------------------- */

/* Written once, compiled twice: with the CPU's fused multiply-add, and with the library's, which gives the same. */

#ifdef __x86_64__
#define FMA_TARGET __attribute__((target("fma")))
#else
#define FMA_TARGET
#endif

static bool cpu_fma(void)
{
    return cpu_level() != CPU_SCALAR;
}

/* Adding 1.5 * 2^23 rounds a float to a whole number, which is then in the sum's low bits. */
#define ROUND_F32 0x1.8p23f
#define ROUND_F64 0x1.8p52

#define LOG2_E_F32 0x1.715476p+0f
#define LN2_HIGH_F32 0x1.62e430p-1f
#define LN2_LOW_F32 -0x1.05c610p-29f

/* exp(x) = 2^n * exp(r), n = x / ln 2 rounded, |r| <= ln 2 / 2; exp(r) = 1 + r + r^2 * polynomial, minimax. */
#define EXP_C2 0x1.fffffcp-2f
#define EXP_C3 0x1.555492p-3f
#define EXP_C4 0x1.5558f2p-5f
#define EXP_C5 0x1.123a20p-7f
#define EXP_C6 0x1.6a23d0p-10f
#define EXP_LEAST -104.0f /* the result is zero from here down, */
#define EXP_MOST 89.0f    /* infinite from here up */

/* 2^n, |n| <= 126 */
ALWAYS_INLINE float power_of_2(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

ALWAYS_INLINE float exp_f32_body(float x)
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

ALWAYS_INLINE double power_of_2_f64(int64_t n)
{
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#define LOG2_E 0x1.71547652b82fep+0
#define LN2_HIGH 0x1.62e42fefa39efp-1
#define LN2_LOW 0x1.abc9e3b39803fp-56

/* As above, with the series 1 / k! up to r^13. */
ALWAYS_INLINE double exp_f64_body(double x)
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
    double p = c[0];
    for (size_t i = 1; i < sizeof c / sizeof *c; i++)
        p = fma(p, r, c[i]);
    int64_t whole = (int64_t)n, half = whole / 2;
    return p * power_of_2_f64(half) * power_of_2_f64(whole - half);
}

/* x = 2^n * (1 + f), 1 + f within sqrt(1/2)..sqrt(2). With s = f / (2 + f):
 * log(1 + f) = 2s + 2/3 s^3 + 2/5 s^5 + ... = f - f^2 / 2 + s * (f^2 / 2 + R), R = 2/3 s^2 + 2/5 s^4 + ... */
ALWAYS_INLINE double log_f64_body(double x)
{
    static const double c[] = {0x1.642c8590b2164p-4, 0x1.8618618618618p-4, 0x1.af286bca1af28p-4, 0x1.e1e1e1e1e1e1ep-4,
                               0x1.1111111111111p-3, 0x1.3b13b13b13b14p-3, 0x1.745d1745d1746p-3, 0x1.c71c71c71c71cp-3,
                               0x1.2492492492492p-2, 0x1.999999999999ap-2, 0x1.5555555555555p-1};
    if (!(x > 0))
        return x == 0 ? -(double)INFINITY : (double)NAN;
    if (!(x < (double)INFINITY))
        return x;
    double n = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        n = -54;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffff) | (uint64_t)1023 << 52;
    memcpy(&x, &bits, sizeof x);
    if (x > 0x1.6a09e667f3bcdp+0) {
        x *= 0.5;
        exponent++;
    }
    n += (double)exponent;
    double f = x - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f, r = c[0];
    for (size_t i = 1; i < sizeof c / sizeof *c; i++)
        r = fma(r, z, c[i]);
    return fma(n, LN2_HIGH, f - (half - fma(s, fma(r, z, half), n * LN2_LOW)));
}

/* x = n * pi/2 + r, |r| <= pi/4, pi/2 in two parts: the first product is exact and so is its difference. */
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define HALF_PI_HIGH 0x1.921fb54442d18p+0
#define HALF_PI_LOW 0x1.1a62633145c07p-54

ALWAYS_INLINE void sin_cos_f64_body(double x, double *sine, double *cosine)
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
    double z = r * r, s = sines[0], c = cosines[0];
    for (size_t i = 1; i < sizeof sines / sizeof *sines; i++) {
        s = fma(s, z, sines[i]);
        c = fma(c, z, cosines[i]);
    }
    s = fma(s * z, r, r);
    c = fma(c, z, 1.0);
    uint64_t quadrant;
    memcpy(&quadrant, &rounded, sizeof quadrant);
    double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -a : a;
    *cosine = (quadrant + 1) & 2 ? -b : b;
}

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

/* ---- the definitions --------------------------------------------------------------------------------------------- */

/* Adds sixteen running sums by the tree. */
ALWAYS_INLINE float add_sums(float s[16])
{
    EACH(l, 8)
        s[l] += s[l + 8];
    EACH(l, 4)
        s[l] += s[l + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static void rmsnorm_scalar(float *out, const float *x, const float *weight, size_t n, float eps)
{
    float s[16] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
    float scale = 1.0f / sqrtf(add_sums(s) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

static void swiglu_scalar(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + exp_f32_body(-gate[i])) * up[i];
}

/* Each product is rounded, as in the reference. */
static void rope_scalar(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine)
{
    size_t half = head_dim / 2;
    for (size_t h = 0; h < n_heads; h++, x += head_dim)
        for (size_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            x[i] = a * cosine[i] - b * sine[i];
            x[i + half] = b * cosine[i] + a * sine[i];
        }
}

/* The largest number, -infinity if there is none; *nan is set if one is not a number. */
static float largest_scalar(const float *x, size_t n, bool *nan)
{
    float m = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        *nan = *nan || x[i] != x[i];
    }
    return m;
}

/* score[r][j] = scale * dot(q[r], k_j) for the groups of 16 keys from..to-1 of a block; others may be overwritten.
 * q [rows][head_dim], k [ATTENTION_BLOCK / 16][head_dim][16], score [rows][ATTENTION_BLOCK] */
static void scores_scalar(float *score, const float *q, size_t rows, const float *k, size_t head_dim, float scale,
                          size_t from, size_t to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = from * 16; j < to * 16; j++) {
            const float *key = k + j / 16 * head_dim * 16 + j % 16;
            float s[16] = {0};
            for (size_t d = 0; d < head_dim; d++)
                s[d % 16] = fmaf(q[r * head_dim + d], key[d * 16], s[d % 16]);
            score[r * ATTENTION_BLOCK + j] = scale * add_sums(s);
        }
}

/* score[j] = exp(score[j] - *max) for from <= j < to, and their *sum. Other scores of the groups of 16 that hold the
 * ends may be overwritten. */
static void softmax_scalar(float *score, size_t from, size_t to, float *max, float *sum)
{
    float m = -INFINITY, s[16] = {0};
    for (size_t j = from; j < to; j++)
        m = score[j] > m ? score[j] : m;
    for (size_t j = from; j < to; j++) {
        score[j] = exp_f32_body(score[j] - m);
        s[j % 16] += score[j];
    }
    *max = m;
    *sum = add_sums(s);
}

/* a[r] += p[r][j] * v_j for from <= j < to.
 * a [rows][head_dim], p [rows][ATTENTION_BLOCK], v [ATTENTION_BLOCK][head_dim] */
static void values_scalar(float *a, const float *p, size_t rows, const float *v, size_t head_dim, size_t from,
                          size_t to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = from; j < to; j++)
            for (size_t d = 0; d < head_dim; d++)
                a[r * head_dim + d] = fmaf(p[r * ATTENTION_BLOCK + j], v[j * head_dim + d], a[r * head_dim + d]);
}

/* out = fma(x, f, y), [n]; out may be x or y. */
static void add_scaled_scalar(float *out, const float *x, float f, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = fmaf(x[i], f, y[i]);
}

typedef struct {
    void (*rmsnorm)(float *out, const float *x, const float *weight, size_t n, float eps);
    void (*swiglu)(float *gate, const float *up, size_t n);
    void (*rope)(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine);
    float (*largest)(const float *x, size_t n, bool *nan);
    void (*scores)(float *score, const float *q, size_t rows, const float *k, size_t head_dim, float scale, size_t from,
                   size_t to);
    void (*softmax)(float *score, size_t from, size_t to, float *max, float *sum);
    void (*values)(float *a, const float *p, size_t rows, const float *v, size_t head_dim, size_t from, size_t to);
    void (*add_scaled)(float *out, const float *x, float f, const float *y, size_t n);
} Kernels;

#define KERNELS(set)                                                                                                   \
    {rmsnorm_##set, swiglu_##set,  rope_##set,   largest_##set,                                                        \
     scores_##set,  softmax_##set, values_##set, add_scaled_##set}

static const Kernels scalar_kernels = KERNELS(scalar);

/* ---- faster, same answer ----------------------------------------------------------------------------------------- */

/* The queries and the keys that a tile of scores is made of, and the memory wanted next. */
typedef struct {
    const float *q, *k, *ahead;
    size_t head_dim, lines;
} ScoreTile;

#ifdef __x86_64__

#define KERNELS_AVX512
#include "kernels/attention_kernels.h"
#undef KERNELS_AVX512
#define KERNELS_AVX2
#include "kernels/attention_kernels.h"
#undef KERNELS_AVX2

static const Kernels *kernels(void)
{
    static const Kernels avx512_kernels = KERNELS(avx512), avx2_kernels = KERNELS(avx2);
    CpuLevel level = cpu_level();
    return level == CPU_SCALAR ? &scalar_kernels : level == CPU_AVX2 ? &avx2_kernels : &avx512_kernels;
}

#elif defined(__aarch64__) && defined(__ARM_NEON)

#define KERNELS_NEON
#include "kernels/attention_kernels.h"
#undef KERNELS_NEON

static const Kernels *kernels(void)
{
    static const Kernels neon_kernels = KERNELS(neon);
    return cpu_level() == CPU_NEON ? &neon_kernels : &scalar_kernels;
}

#else

static const Kernels *kernels(void)
{
    return &scalar_kernels;
}

#endif

/* ---- loops over one vector --------------------------------------------------------------------------------------- */

void rmsnorm(float *out, const float *x, const float *weight, size_t n, float eps)
{
    kernels()->rmsnorm(out, x, weight, n, eps);
}

void swiglu(float *gate, const float *up, size_t n)
{
    kernels()->swiglu(gate, up, n);
}

void rope_rotate(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine)
{
    kernels()->rope(x, n_heads, head_dim, cosine, sine);
}

float max_f32(const float *x, size_t n)
{
    bool nan = false;
    float m = kernels()->largest(x, n, &nan);
    return nan ? NAN : m + 0.0f; /* of zeros with both signs the positive one */
}

#define ARGMAX_PIECE 1024

size_t argmax_f32(const float *x, size_t n, bool *bad)
{
    float best = -INFINITY;
    size_t piece = 0;
    bool nan = false;
    for (size_t i = 0; i < n; i += ARGMAX_PIECE) {
        float m = kernels()->largest(x + i, n - i < ARGMAX_PIECE ? n - i : ARGMAX_PIECE, &nan);
        if (m > best) {
            best = m;
            piece = i;
        }
    }
    if (bad)
        *bad = nan || best == INFINITY;
    for (size_t i = piece; i < n; i++)
        if (x[i] == best)
            return i;
    return 0;
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

size_t attention_block_floats(size_t n_kv_heads, size_t head_dim)
{
    return 2 * n_kv_heads * ATTENTION_BLOCK * head_dim;
}

void attention_store(float *block, size_t position, const float *k, const float *v, size_t n_kv_heads, size_t head_dim)
{
    size_t per_head = ATTENTION_BLOCK * head_dim;
    float *keys = block + position / 16 * head_dim * 16 + position % 16;
    float *values = block + n_kv_heads * per_head + position * head_dim;
    for (size_t h = 0; h < n_kv_heads; h++) {
        for (size_t d = 0; d < head_dim; d++)
            keys[h * per_head + d * 16] = k[h * head_dim + d];
        memcpy(values + h * per_head, v + h * head_dim, head_dim * sizeof *v);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Queries are taken in tiles. A tile has, for one kv head, a row for each of its queries and each query head of the
 * group: row = query * group + head. Its scores for a block stay in the second-level cache, the values at hand in the
 * first. */
#define TILE_ROWS 64
#define VALUES_AT_A_TIME 64

typedef struct {
    float *m, *l; /* [rows] */
    float *a;     /* [rows][head_dim] */
} Partial;

typedef struct {
    const Attention *at;
    const Kernels *kernels;
    size_t group;      /* query heads of a kv head */
    size_t tile, rows; /* queries and rows of a full tile */
    size_t tiles;
    size_t tasks;   /* a task is a tile and a kv head */
    float *scratch; /* [thread][thread_floats] */
    size_t thread_floats;
    float *slots;      /* [slot_count][slot_floats]: partial results, if a piece of the loop is one block of a task; */
    size_t slot_count; /* 0: a piece is a task with all its blocks */
    size_t slot_floats;
    size_t first_piece; /* of those that the slots hold */
} Plan;

static size_t align16(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static float *carve(float **memory, size_t floats)
{
    float *p = *memory;
    *memory += align16(floats);
    return p;
}

static Partial carve_partial(float **memory, size_t rows, size_t head_dim)
{
    Partial p;
    p.m = carve(memory, rows);
    p.l = carve(memory, rows);
    p.a = carve(memory, rows * head_dim);
    return p;
}

static size_t partial_floats(size_t rows, size_t head_dim)
{
    return 2 * align16(rows) + align16(rows * head_dim);
}

/* A task's queries [begin, end) and its blocks [first, last]. Later tiles, which see more keys, come first. */
typedef struct {
    size_t kv_head, begin, end, first, last;
} Task;

static Task task_of(const Plan *p, size_t index)
{
    const Attention *at = p->at;
    Task t = {.kv_head = index % at->n_kv_heads};
    t.begin = (p->tiles - 1 - index / at->n_kv_heads) * p->tile;
    t.end = t.begin + p->tile < at->n ? t.begin + p->tile : at->n;
    size_t seen = at->start + t.begin + 1; /* positions up to the first query's own */
    t.first = at->window && seen > at->window ? (seen - at->window) / ATTENTION_BLOCK : 0;
    t.last = (at->start + t.end - 1) / ATTENTION_BLOCK;
    return t;
}

/* The positions from..to-1 within a block that a query sees; false if it sees none. */
static bool key_range(const Attention *at, size_t query, size_t block, size_t *from, size_t *to)
{
    size_t seen = at->start + query + 1, base = block * ATTENTION_BLOCK;
    size_t low = at->window && seen > at->window ? seen - at->window : 0;
    *from = low > base ? low - base : 0;
    *to = seen > base ? seen - base : 0;
    *to = *to < ATTENTION_BLOCK ? *to : ATTENTION_BLOCK;
    return *from < *to;
}

/* (m, l, a) of one block for the rows of a task that see any of it. */
static void block_partial(const Plan *p, const Task *t, size_t block, float *scratch, Partial out)
{
    const Attention *at = p->at;
    size_t hd = at->head_dim, group = p->group, queries = t->end - t->begin, from, to, low = ATTENTION_BLOCK, high = 0;
    const float *k = at->blocks[block] + t->kv_head * ATTENTION_BLOCK * hd;
    const float *v = k + at->n_kv_heads * ATTENTION_BLOCK * hd;
    float *score = carve(&scratch, queries * group * ATTENTION_BLOCK), *q = carve(&scratch, queries * group * hd);
    for (size_t i = 0; i < queries; i++) {
        size_t first_head = (t->begin + i) * at->n_heads + t->kv_head * group;
        memcpy(q + i * group * hd, at->q + first_head * hd, group * hd * sizeof *q);
        if (key_range(at, t->begin + i, block, &from, &to)) {
            low = from < low ? from : low;
            high = to > high ? to : high;
        }
    }
    p->kernels->scores(score, q, queries * group, k, hd, at->scale, low / 16, (high + 15) / 16);
    for (size_t i = 0; i < queries; i++)
        if (key_range(at, t->begin + i, block, &from, &to))
            for (size_t r = i * group; r < (i + 1) * group; r++)
                p->kernels->softmax(score + r * ATTENTION_BLOCK, from, to, &out.m[r], &out.l[r]);
    memset(out.a, 0, queries * group * hd * sizeof *out.a);
    for (size_t j = 0; j < ATTENTION_BLOCK; j += VALUES_AT_A_TIME)
        for (size_t i = 0; i < queries; i++) {
            if (!key_range(at, t->begin + i, block, &from, &to))
                continue;
            from = from > j ? from : j;
            to = to < j + VALUES_AT_A_TIME ? to : j + VALUES_AT_A_TIME;
            if (from < to)
                p->kernels->values(out.a + i * group * hd, score + i * group * ATTENTION_BLOCK, group, v, hd, from, to);
        }
}

/* Merges one row of a block into what came before. */
static void merge_row(const Kernels *k, float *m, float *l, float *a, float block_m, float block_l,
                      const float *block_a, size_t hd)
{
    if (block_m > *m) {
        float f = exp_f32(*m - block_m);
        *l = fmaf(*l, f, block_l);
        k->add_scaled(a, a, f, block_a, hd);
        *m = block_m;
    } else {
        float f = exp_f32(block_m - *m);
        *l = fmaf(block_l, f, *l);
        k->add_scaled(a, block_a, f, a, hd);
    }
}

/* Merges a block of a task: sum.m and sum.l [rows] hold what came before, and at->out does. */
static void merge_block(const Plan *p, const Task *t, size_t block, Partial part, Partial sum)
{
    const Attention *at = p->at;
    size_t hd = at->head_dim, from, to;
    for (size_t i = 0; i < t->end - t->begin; i++) {
        if (!key_range(at, t->begin + i, block, &from, &to))
            continue;
        size_t before, unused;
        bool first = block == t->first || !key_range(at, t->begin + i, block - 1, &before, &unused);
        float *out = at->out + ((t->begin + i) * at->n_heads + t->kv_head * p->group) * hd;
        for (size_t r = i * p->group; r < (i + 1) * p->group; r++, out += hd) {
            if (first) {
                sum.m[r] = part.m[r];
                sum.l[r] = part.l[r];
                memcpy(out, part.a + r * hd, hd * sizeof *out);
            } else {
                merge_row(p->kernels, &sum.m[r], &sum.l[r], out, part.m[r], part.l[r], part.a + r * hd, hd);
            }
        }
    }
    if (block < t->last)
        return;
    for (size_t r = 0; r < (t->end - t->begin) * p->group; r++) {
        float *out = at->out + ((t->begin + r / p->group) * at->n_heads + t->kv_head * p->group + r % p->group) * hd;
        float f = 1.0f / sum.l[r];
        for (size_t d = 0; d < hd; d++)
            out[d] *= f;
    }
}

/* Pieces are tasks: a thread does all blocks of one, merging as it goes. */
static void whole_tasks(void *context, size_t begin, size_t end, int thread)
{
    const Plan *p = context;
    float *memory = p->scratch + (size_t)thread * p->thread_floats;
    Partial sum = {carve(&memory, p->rows), carve(&memory, p->rows), NULL};
    Partial part = carve_partial(&memory, p->rows, p->at->head_dim);
    for (size_t i = begin; i < end; i++) {
        Task t = task_of(p, i);
        for (size_t b = t.first; b <= t.last; b++) {
            block_partial(p, &t, b, memory, part);
            merge_block(p, &t, b, part, sum);
        }
    }
}

/* The block that piece number `piece` is, its task in *t; pieces count the blocks of one task after the other. */
static size_t piece_of(const Plan *p, size_t piece, Task *t)
{
    size_t index = 0;
    *t = task_of(p, index);
    while (piece > t->last - t->first) {
        piece -= t->last - t->first + 1;
        *t = task_of(p, ++index);
    }
    return t->first + piece;
}

static Partial slot(const Plan *p, size_t piece)
{
    float *memory = p->slots + (piece - p->first_piece) * p->slot_floats;
    return carve_partial(&memory, p->rows, p->at->head_dim);
}

/* Pieces are single blocks of a task, for when there are few tasks. */
static void single_blocks(void *context, size_t begin, size_t end, int thread)
{
    const Plan *p = context;
    for (size_t piece = p->first_piece + begin; piece < p->first_piece + end; piece++) {
        Task t;
        size_t block = piece_of(p, piece, &t);
        block_partial(p, &t, block, p->scratch + (size_t)thread * p->thread_floats, slot(p, piece));
    }
}

/* As many blocks at a time as there are slots, then their merging in order. */
static void attend_by_blocks(Plan *p)
{
    size_t pieces = 0;
    for (size_t i = 0; i < p->tasks; i++) {
        Task t = task_of(p, i);
        pieces += t.last - t.first + 1;
    }
    float *memory = p->slots + p->slot_count * p->slot_floats;
    Partial sum = {carve(&memory, p->rows), carve(&memory, p->rows), NULL};
    for (p->first_piece = 0; p->first_piece < pieces; p->first_piece += p->slot_count) {
        size_t left = pieces - p->first_piece, count = left < p->slot_count ? left : p->slot_count;
        threads_for(count, 1, single_blocks, p);
        for (size_t piece = p->first_piece; piece < p->first_piece + count; piece++) {
            Task t;
            size_t block = piece_of(p, piece, &t);
            merge_block(p, &t, block, slot(p, piece), sum);
        }
    }
}

static void set_tile(Plan *p, size_t tile)
{
    size_t hd = p->at->head_dim;
    p->tile = tile;
    p->rows = tile * p->group;
    p->tiles = (p->at->n + tile - 1) / tile;
    p->tasks = p->tiles * p->at->n_kv_heads;
    p->slot_floats = partial_floats(p->rows, hd);
    p->thread_floats = 2 * align16(p->rows) + p->slot_floats + p->rows * ATTENTION_BLOCK + align16(p->rows * hd);
}

/* Tiles as large as scratch memory allows; smaller if threads would go without. */
static void make_plan(Plan *p, const Attention *at, Workspace *ws)
{
    size_t threads = (size_t)threads_count(), blocks = (at->start + at->n - 1) / ATTENTION_BLOCK + 1;
    size_t skip = (64 - (uintptr_t)ws->memory % 64) % 64, floats = (ws->size - skip) / sizeof(float);
    *p = (Plan){.at = at, .kernels = kernels(), .group = at->n_heads / at->n_kv_heads};
    size_t tile = p->group < TILE_ROWS ? TILE_ROWS / p->group : 1;
    set_tile(p, tile < at->n ? tile : at->n);
    while (p->tile > 1 && (threads * p->thread_floats > floats || p->tasks * blocks < 2 * threads))
        set_tile(p, (p->tile + 1) / 2);
    p->scratch = (float *)(void *)((unsigned char *)ws->memory + skip);
    p->slots = p->scratch + threads * p->thread_floats;
    size_t left = floats - threads * p->thread_floats, sums = 2 * align16(p->rows);
    bool few = threads > 1 && p->tasks < 4 * threads;
    if (few && left > sums && (left - sums) / p->slot_floats >= 2 * threads)
        p->slot_count = (left - sums) / p->slot_floats;
}

void attention(const Attention *at, Workspace *ws)
{
    Plan plan;
    if (!at->n)
        return;
    make_plan(&plan, at, ws);
    if (plan.slot_count)
        attend_by_blocks(&plan);
    else
        threads_for(plan.tasks, 1, whole_tasks, &plan);
}
