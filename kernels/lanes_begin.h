/* Vectors of one level, for the files named *_lanes.h, which are compiled once for each level: they begin by including
 * this file, with LEVEL_AVX512, LEVEL_AVX2 or LEVEL_NEON defined, and end by including lanes_end.h, which takes all of
 * it back.
 *
 *   TARGET, NAME(f)              the attribute that lets a function use the level; f with the level's suffix
 *   V, WIDTH                     a vector, and how many floats it holds: its lanes
 *   LOAD(p) STORE(p, x) SET(f)   at any address; SET repeats one float
 *   LOAD_N(p, n) STORE_N(...)    only the first n lanes (all, if n is more); others are loaded as zeros
 *   FROM_BF16(p) FROM_F16(p)     WIDTH numbers of two bytes at any address, as floats
 *   ADD SUB MUL DIV NEGATE       lane by lane, as FMA(a, b, c) = a * b + c, rounded once
 *   V_MAX(a, b) V_MIN(a, b)      a > b ? a : b, a < b ? a : b; if either is a NaN, b
 *   HAS_NAN(x)                   true if a lane is a NaN
 *   TIMES_POWER_OF_2(p, n, t)    p * 2^n, rounded once; n is whole, and t = n + ROUND_F32
 *
 * The functions that several of those files need follow.
 */
#include "kernels/internal.h"

#if defined(LEVEL_AVX512)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define NAME(f) f##_avx512
#define V __m512
#define WIDTH 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define LOAD_N(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define STORE_N(p, x, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), x)
#define SET _mm512_set1_ps
#define HALVES(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define FROM_BF16(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(HALVES(p)), 16))
#define FROM_F16(p) _mm512_cvtph_ps(HALVES(p))
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define MUL _mm512_mul_ps
#define DIV _mm512_div_ps
#define FMA _mm512_fmadd_ps
#define V_MAX _mm512_max_ps
#define V_MIN _mm512_min_ps
#define NEGATE(x) _mm512_xor_ps(x, _mm512_set1_ps(-0.0f))
#define HAS_NAN(x) (_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0)
#define TIMES_POWER_OF_2(p, n, t) ((void)(t), _mm512_scalef_ps(p, n))

#elif defined(LEVEL_AVX2)

#include <immintrin.h>

/* Eight of all bits set, then eight zeros: the mask for the first n lanes starts at 8 - n. */
static const int32_t avx2_masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

#define TARGET __attribute__((target("avx2,fma,f16c")))

TARGET static inline __m256i first_avx2(size_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(avx2_masks + 8 - MIN(n, 8)));
}

TARGET static inline __m256 power_of_2_avx2(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

TARGET static inline __m256 times_power_of_2_avx2(__m256 p, __m256 t)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(ROUND_F32)));
    __m256i half = _mm256_srai_epi32(n, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power_of_2_avx2(half)), power_of_2_avx2(_mm256_sub_epi32(n, half)));
}

#define NAME(f) f##_avx2
#define V __m256
#define WIDTH 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define LOAD_N(p, n) _mm256_maskload_ps(p, first_avx2(n))
#define STORE_N(p, x, n) _mm256_maskstore_ps(p, first_avx2(n), x)
#define SET _mm256_set1_ps
#define HALVES(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define FROM_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(HALVES(p)), 16))
#define FROM_F16(p) _mm256_cvtph_ps(HALVES(p))
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define MUL _mm256_mul_ps
#define DIV _mm256_div_ps
#define FMA _mm256_fmadd_ps
#define V_MAX _mm256_max_ps
#define V_MIN _mm256_min_ps
#define NEGATE(x) _mm256_xor_ps(x, _mm256_set1_ps(-0.0f))
#define HAS_NAN(x) (_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0)
#define TIMES_POWER_OF_2(p, n, t) times_power_of_2_avx2(p, t)

#elif defined(LEVEL_NEON)

#include <arm_neon.h>

static inline float32x4_t load_n_neon(const float *p, size_t n)
{
    float f[4] = {0};
    memcpy(f, p, MIN(n, 4) * sizeof *f);
    return vld1q_f32(f);
}

static inline void store_n_neon(float *p, float32x4_t x, size_t n)
{
    float f[4];
    vst1q_f32(f, x);
    memcpy(p, f, MIN(n, 4) * sizeof *f);
}

static inline float32x4_t power_of_2_neon(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

static inline float32x4_t times_power_of_2_neon(float32x4_t p, float32x4_t t)
{
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(vdupq_n_f32(ROUND_F32)));
    int32x4_t half = vshrq_n_s32(n, 1);
    return vmulq_f32(vmulq_f32(p, power_of_2_neon(half)), power_of_2_neon(vsubq_s32(n, half)));
}

static inline float32x4_t greater_neon(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline float32x4_t less_neon(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

#define TARGET
#define NAME(f) f##_neon
#define V float32x4_t
#define WIDTH 4
#define LOAD vld1q_f32
#define STORE vst1q_f32
#define LOAD_N load_n_neon
#define STORE_N store_n_neon
#define SET vdupq_n_f32
#define FROM_BF16(p) vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16))
#define FROM_F16(p) vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)))
#define ADD vaddq_f32
#define SUB vsubq_f32
#define MUL vmulq_f32
#define DIV vdivq_f32
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define V_MAX greater_neon
#define V_MIN less_neon
#define NEGATE vnegq_f32
#define HAS_NAN(x) (vminvq_u32(vceqq_f32(x, x)) == 0)
#define TIMES_POWER_OF_2(p, n, t) times_power_of_2_neon(p, t)

#endif

/* add_sums() of sums that are held in vectors */
TARGET static inline float NAME(add_sum_vectors)(const V sums[SUMS / WIDTH])
{
    float s[SUMS];
    EACH(i, SUMS / WIDTH)
        STORE(s + i * WIDTH, sums[i]);
    return add_sums(s);
}

TARGET static inline float NAME(largest_lane)(V x)
{
    float m[WIDTH];
    STORE(m, x);
    EACH(i, WIDTH)
        m[0] = m[i] > m[0] ? m[i] : m[0];
    return m[0];
}

/* exp_f32(), lane by lane */
TARGET static inline V NAME(exp)(V x)
{
    x = V_MAX(SET(EXP_LEAST), x); /* a NaN stays one */
    x = V_MIN(SET(EXP_MOST), x);
    V t = FMA(x, SET(LOG2_E_F32), SET(ROUND_F32)), n = SUB(t, SET(ROUND_F32));
    V r = FMA(n, SET(-LN2_HIGH_F32), x);
    r = FMA(n, SET(-LN2_LOW_F32), r);
    V p = FMA(SET(EXP_C6), r, SET(EXP_C5));
    p = FMA(p, r, SET(EXP_C4));
    p = FMA(p, r, SET(EXP_C3));
    p = FMA(p, r, SET(EXP_C2));
    p = FMA(p, r, SET(1.0f));
    p = FMA(p, r, SET(1.0f));
    return TIMES_POWER_OF_2(p, n, t);
}
