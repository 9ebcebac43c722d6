/* matmul's kernels for 64-bit ARM: NEON, with the dot product instructions of ARMv8.2 where the CPU has them. They give
 * the bits of the scalar definitions in matmul.c. Results are computed in register tiles, a few rows times a few
 * vectors. The sixteen running sums of a dot product take four registers, called quarters here. */
#include "kernels/matmul_internal.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include <arm_neon.h>
#include <string.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

#define NEON /* no attribute: all 64-bit ARM CPUs have it */
#ifdef __clang__
#define SDOT __attribute__((target("dotprod")))
#else
#define SDOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

/* ---- dot products ------------------------------------------------------------------------------------------------ */

/* The four weights at p as float32. */
INLINE float32x4_t load4(WeightType type, const unsigned char *p)
{
    if (type == WEIGHT_F32)
        return vreinterpretq_f32_u8(vld1q_u8(p));
    uint16x4_t half = vreinterpret_u16_u8(vld1_u8(p));
    if (type == WEIGHT_BF16)
        return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

/* Only the first n of the four weights at p + at. The others are -0: times +0 that is -0, which changes no sum. */
INLINE float32x4_t load4_tail(WeightType type, const unsigned char *p, size_t at, size_t n)
{
    unsigned char weights[16] = {0};
    n = MIN(n, 4);
    if (n)
        memcpy(weights, p + at, n * (type == WEIGHT_F32 ? 4 : 2));
    const int32x4_t number = {0, 1, 2, 3};
    uint32x4_t absent = vandq_u32(vcgeq_s32(number, vdupq_n_s32((int32_t)n)), vdupq_n_u32(0x80000000));
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(load4(type, weights)), absent));
}

/* Only the first n of the four inputs from number `at` on. The others are +0. */
INLINE float32x4_t load4_x_tail(const float *x, size_t at, size_t n)
{
    float inputs[4] = {0};
    if (n)
        memcpy(inputs, x + at, MIN(n, 4) * sizeof *x);
    return vld1q_f32(inputs);
}

/* Go along the columns once, for n vectors, four rows and `count` quarters of the running sums from quarter q on;
 * n * count <= 6. acc[row][vector * count + quarter] */
INLINE void run(const Dots *d, WeightType type, size_t n, size_t q, size_t count, const unsigned char *const w[4],
                const float *x, float32x4_t (*acc)[6])
{
    const size_t bytes = type == WEIGHT_F32 ? 4 : 2;
    size_t k = 0;
    for (; k + SUMS <= d->cols; k += SUMS) {
#pragma GCC unroll 4
        for (size_t g = 0; g < count; g++) {
            float32x4_t u[6];
            for (size_t j = 0; j < n; j++)
                u[j] = vld1q_f32(x + j * d->x_stride + k + 4 * (q + g));
            for (size_t i = 0; i < 4; i++) {
                float32x4_t v = load4(type, w[i] + (k + 4 * (q + g)) * bytes);
                for (size_t j = 0; j < n; j++)
                    acc[i][j * count + g] = vfmaq_f32(acc[i][j * count + g], v, u[j]);
            }
        }
    }
    if (k == d->cols)
        return;
#pragma GCC unroll 4
    for (size_t g = 0; g < count; g++) {
        size_t at = k + 4 * (q + g), left = at < d->cols ? d->cols - at : 0;
        float32x4_t v[4];
        for (size_t i = 0; i < 4; i++)
            v[i] = load4_tail(type, w[i] + k * bytes, 4 * (q + g) * bytes, left);
        for (size_t j = 0; j < n; j++) {
            float32x4_t u = load4_x_tail(x + j * d->x_stride + k, 4 * (q + g), left);
            for (size_t i = 0; i < 4; i++)
                acc[i][j * count + g] = vfmaq_f32(acc[i][j * count + g], v[i], u);
        }
    }
}

/* The tree for four rows: four lanes each, l + 8 and l + 4 being added already. */
INLINE float32x4_t add_sums_of_rows(const float32x4_t s[4])
{
    float32x4_t a = vaddq_f32(vcombine_f32(vget_low_f32(s[0]), vget_low_f32(s[1])),
                              vcombine_f32(vget_high_f32(s[0]), vget_high_f32(s[1])));
    float32x4_t b = vaddq_f32(vcombine_f32(vget_low_f32(s[2]), vget_low_f32(s[3])),
                              vcombine_f32(vget_high_f32(s[2]), vget_high_f32(s[3])));
    return vpaddq_f32(a, b);
}

/* The register tile of four rows from r on and n (at most 6) vectors from t on. One vector goes along the columns once,
 * two or three go twice, more go four times, for as many quarters at a time as the registers hold. */
INLINE void tile(const Dots *d, WeightType type, size_t n, size_t r, size_t t)
{
    const size_t count = n == 1 ? 4 : n <= 3 ? 2 : 1;
    size_t last = d->rows - 1, stride = (d->rows + 3) / 4 * 4 * SUMS;
    const float *x = (const float *)d->x + t * d->x_stride;
    float *sums = d->sums + t * stride + r * SUMS;
    const unsigned char *w[4];
    float32x4_t done[4][4][6];
    for (size_t i = 0; i < 4; i++)
        w[i] = d->w + MIN(r + i, last) * d->row_bytes;
    for (size_t q = 0; q < 4; q += count) {
        float32x4_t acc[4][6];
        for (size_t i = 0; i < 4; i++)
            for (size_t j = 0; j < n * count; j++)
                acc[i][j] =
                    d->first ? vdupq_n_f32(0) : vld1q_f32(sums + j / count * stride + i * SUMS + 4 * (q + j % count));
        run(d, type, n, q, count, w, x, acc);
        for (size_t i = 0; i < 4; i++)
            for (size_t j = 0; j < n * count; j++)
                done[q + j % count][i][j / count] = acc[i][j];
    }
    for (size_t j = 0; j < n; j++) {
        float32x4_t sum[4];
        for (size_t i = 0; i < 4; i++) {
            sum[i] = vaddq_f32(vaddq_f32(done[0][i][j], done[2][i][j]), vaddq_f32(done[1][i][j], done[3][i][j]));
            for (size_t q = 0; q < 4 && !d->last; q++)
                vst1q_f32(sums + j * stride + i * SUMS + 4 * q, done[q][i][j]);
        }
        if (d->last)
            vst1q_f32(d->out + (t + j) * d->out_stride + r, add_sums_of_rows(sum));
    }
}

INLINE void dots(const Dots *d, WeightType type)
{
    size_t rows_end = d->n <= FEW ? 4 : d->rows;
    for (size_t base = 0; base < d->rows; base += rows_end)
        for (size_t t = 0; t < d->n; t += 6)
            for (size_t r = base; r < base + rows_end; r += 4)
                WITH_CONSTANT(MIN(d->n - t, 6), 6, tile(d, type, N, r, t));
}

KERNEL(NEON, dots_f32, Dots, dots(d, WEIGHT_F32))
KERNEL(NEON, dots_bf16, Dots, dots(d, WEIGHT_BF16))
KERNEL(NEON, dots_f16, Dots, dots(d, WEIGHT_F16))

/* ---- quantized rows, sixteen side by side ------------------------------------------------------------------------ */

/* Four weights of each of four rows, number v = 0..7 of a group's, rows 4 i on; signed. */
INLINE int8x16_t quads(WeightType type, const unsigned char *group, size_t v, size_t i)
{
    if (type == WEIGHT_Q8)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 64 * v + 16 * i), vdupq_n_u8(128)));
    uint8x16_t both = vld1q_u8(group + 64 * (v % 4) + 16 * i);
    return vsubq_s8(vreinterpretq_s8_u8(v < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4)), vdupq_n_s8(8));
}

/* sum[row] + products of four bytes. The instruction sdot does just that; it is written out, since with the intrinsic
 * this function would need a CPU that has it. Without it, products of 16 bits are added in pairs, and then the pairs of
 * a row. */
INLINE int32x4_t dot_bytes(int32x4_t sum, int8x16_t w, int8x16_t x, bool has_sdot)
{
    if (has_sdot) {
        __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(x));
        return sum;
    }
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(x)));
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

/* The register tile of block b and n (at most 3) vectors from t on. */
INLINE void quant_tile(const QuantDots *d, WeightType type, bool has_sdot, size_t n, size_t b, size_t t)
{
    const size_t groups = d->groups;
    const unsigned char *block = d->w + b * block_bytes(type, groups);
    float32x4_t total[3][4];
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < 4; i++)
            total[j][i] = vdupq_n_f32(0);
    for (size_t g = 0; g < groups; g++) {
        const unsigned char *w = block + weights_at(type, g), *scales = block + scales_at(type, g);
        const int8_t *q = d->q + (t * groups + g) * GROUP;
        int32x4_t sum[3][4];
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < 4; i++)
                sum[j][i] = vdupq_n_s32(0);
        for (size_t v = 0; v < GROUP / 4; v++) {
            int8x16_t x[3];
            for (size_t j = 0; j < n; j++) {
                int32_t four;
                memcpy(&four, q + j * groups * GROUP + 4 * v, sizeof four);
                x[j] = vreinterpretq_s8_s32(vdupq_n_s32(four));
            }
            for (size_t i = 0; i < 4; i++) {
                int8x16_t four = quads(type, w, v, i);
                for (size_t j = 0; j < n; j++)
                    sum[j][i] = dot_bytes(sum[j][i], four, x[j], has_sdot);
            }
        }
        for (size_t i = 0; i < 4; i++) {
            float32x4_t scale = load4(WEIGHT_F16, scales + 8 * i);
            for (size_t j = 0; j < n; j++)
                total[j][i] = vfmaq_f32(total[j][i], vcvtq_f32_s32(sum[j][i]),
                                        vmulq_n_f32(scale, d->scale[(t + j) * groups + g]));
        }
    }
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < 4; i++)
            vst1q_f32(d->out + (t + j) * d->out_stride + b * BLOCK_ROWS + 4 * i, total[j][i]);
}

INLINE void quant(const QuantDots *d, WeightType type, bool has_sdot)
{
    size_t blocks_end = d->n <= FEW ? 1 : d->blocks;
    for (size_t base = 0; base < d->blocks; base += blocks_end)
        for (size_t t = 0; t < d->n; t += 3)
            for (size_t b = base; b < base + blocks_end; b++)
                WITH_CONSTANT(MIN(d->n - t, 3), 3, quant_tile(d, type, has_sdot, N, b, t));
}

KERNEL(SDOT, q8_sdot, QuantDots, quant(d, WEIGHT_Q8, true))
KERNEL(SDOT, q4_sdot, QuantDots, quant(d, WEIGHT_Q4, true))
KERNEL(NEON, q8_neon, QuantDots, quant(d, WEIGHT_Q8, false))
KERNEL(NEON, q4_neon, QuantDots, quant(d, WEIGHT_Q4, false))

static void to_int8_neon(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups)
{
    const int32x4_t high = vdupq_n_s32(127);
    for (size_t g = 0; g < groups; g++) {
        float32x4_t v[8];
        uint32x4_t m = vdupq_n_u32(0);
        int32x4_t sum = vdupq_n_s32(0);
        for (size_t i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + g * GROUP + 4 * i);
            m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(0x7fffffff)));
        }
        uint32_t bits = vmaxvq_u32(m);
        float most;
        memcpy(&most, &bits, sizeof most);
        float inverse = most > 1e-30f ? 127 / most : 0;
        for (size_t i = 0; i < 8; i += 2) {
            int32x4_t whole[2];
            for (size_t h = 0; h < 2; h++) {
                float32x4_t scaled = vmulq_n_f32(v[i + h], inverse);
                uint32x4_t number = vceqq_f32(scaled, scaled); /* a NaN becomes 127 */
                whole[h] = vbslq_s32(number, vmaxq_s32(vminq_s32(vcvtnq_s32_f32(scaled), high), vnegq_s32(high)), high);
                sum = vaddq_s32(sum, whole[h]);
            }
            vst1_s8(q + g * GROUP + 4 * i, vmovn_s16(vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]))));
        }
        minus_sum[g] = -vaddvq_s32(sum);
        scale[g] = most <= 1e-30f ? 0 : most / 127;
    }
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

static bool cpu_has_sdot(void)
{
#ifdef __ARM_FEATURE_DOTPROD
    return true;
#elif defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#else
    return false;
#endif
}

const Kernels *kernels_neon(void)
{
    static const Kernels plain = {
        .dots = {dots_f32, dots_bf16, dots_f16},
        .q8 = q8_neon,
        .q4 = q4_neon,
        .to_int8 = to_int8_neon,
        .slice = 928,
    };
    static const Kernels sdot = {
        .dots = {dots_f32, dots_bf16, dots_f16},
        .q8 = q8_sdot,
        .q4 = q4_sdot,
        .to_int8 = to_int8_neon,
        .slice = 928,
    };
    return cpu_has_sdot() ? &sdot : &plain;
}

#else

const Kernels *kernels_neon(void)
{
    return NULL;
}

#endif
