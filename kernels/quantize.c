/* Float weights to Q8 and Q4.
 *
 * Each group of 32 weights of a row gets one FP16 scale and 32 integers (see matmul.c): integer = round(w / scale),
 * with the scale as it was rounded to FP16. The scale is chosen as follows:
 *
 *     Q8: scale = max|w| / 127.
 *
 *     Q4: The weight of largest magnitude is tried as each of a few numbers near -8 and 7. A try gives integers
 *         q = round(w * number / largest weight). The scale that fits them best is sum(w q) / sum(q q); with it the
 *         squared errors add up to sum(w w) - sum(w q)^2 / sum(q q). The try with the least error gives the scale.
 *
 * The code for one group comes first: it is the definition. Then comes the same for several rows at once.
 */
#include "kernels/quantize.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/threads.h"
#include "kernels/matmul_internal.h"

/* ---- one group of a row ------------------------------------------------------------------------------------------ */

/* The weight of largest magnitude; infinity and NaN are larger than all else. Of equal magnitudes with both signs the
 * tree of comparisons decides. */
static float largest_weight(const float w[GROUP])
{
    float m[GROUP];
    memcpy(m, w, sizeof m);
    for (size_t half = GROUP / 2; half; half /= 2)
        for (size_t k = 0; k < half; k++)
            m[k] = magnitude_bits(m[k]) < magnitude_bits(m[k + half]) ? m[k + half] : m[k];
    return m[0];
}

/* A scale in FP16; of what is too large, infinite or a NaN the largest. */
static uint16_t scale_to_f16(float scale)
{
    return f32_to_f16(from_bits(magnitude_bits(scale)) < F16_MAX ? scale : copysignf(F16_MAX, scale));
}

/* 1 / scale, or 0 if the scale is zero: all weights of the group then count as zero. */
static float inverse_scale(uint16_t half)
{
    float scale = f16_to_f32(half);
    return scale == 0 ? 0 : 1 / scale;
}

/* Writes integers + 128 and returns the scale as FP16. */
static uint16_t quantize_q8(uint8_t q[GROUP], const float w[GROUP])
{
    uint16_t half = scale_to_f16(from_bits(magnitude_bits(largest_weight(w))) / 127);
    float inverse = inverse_scale(half);
    for (size_t k = 0; k < GROUP; k++)
        q[k] = (uint8_t)(round_within(w[k] * inverse, -127, 127) + 128);
    return half;
}

/* What the largest weight is tried as. */
static const float q4_tries[] = {-8.8f, -8.4f, -8, -7.6f, 7.2f, 6.8f};

/* Writes integers + 8 and returns the scale as FP16. Sums are of even k and of odd k, then of both. */
static uint16_t quantize_q4(uint8_t q[GROUP], const float w[GROUP])
{
    float largest = largest_weight(w), scale = largest / -8, best = 0;
    for (size_t i = 0; i < COUNT_OF(q4_tries); i++) {
        float inverse = q4_tries[i] / largest, wq[2] = {0}, qq[2] = {0};
        for (size_t k = 0; k < GROUP; k++) {
            float v = round_within(w[k] * inverse, -8, 7);
            wq[k % 2] += w[k] * v;
            qq[k % 2] += v * v;
        }
        wq[0] += wq[1];
        qq[0] += qq[1];
        float gain = wq[0] * wq[0] / qq[0];
        if (gain > best) {
            best = gain;
            scale = wq[0] / qq[0];
        }
    }
    uint16_t half = scale_to_f16(scale);
    float inverse = inverse_scale(half);
    for (size_t k = 0; k < GROUP; k++)
        q[k] = (uint8_t)(round_within(w[k] * inverse, -8, 7) + 8);
    return half;
}

/* ---- one group of a block ---------------------------------------------------------------------------------------- */

/* Columns of a block that are made float32 at a time, and the distance of its rows then: not a multiple of a page. */
#define SLICE 512
#define SLICE_STRIDE (SLICE + 16)

/* Quantize a group of a block; returns the first row that holds a NaN or an infinity, BLOCK_ROWS if there is none.
 * w [BLOCK_ROWS][SLICE_STRIDE], of which the first GROUP columns are meant */
typedef size_t QuantizeGroup(WeightType type, unsigned char *block, size_t group, const float *w);

static bool is_finite(float f)
{
    return magnitude_bits(f) < 0x7f800000;
}

static size_t quantize_group_scalar(WeightType type, unsigned char *block, size_t group, const float *w)
{
    unsigned char *scales = block + scales_at(type, group), *weights = block + weights_at(type, group);
    size_t bad = BLOCK_ROWS;
    for (size_t r = 0; r < BLOCK_ROWS; r++, w += SLICE_STRIDE) {
        uint8_t q[GROUP];
        uint16_t half = type == WEIGHT_Q8 ? quantize_q8(q, w) : quantize_q4(q, w);
        memcpy(scales + 2 * r, &half, sizeof half);
        for (size_t k = 0; k < weights_bytes(type) / BLOCK_ROWS; k++)
            weights[weight_at(r, k)] = (uint8_t)(type == WEIGHT_Q8 ? q[k] : q[k] | q[k + 16] << 4);
        if (bad == BLOCK_ROWS && !is_finite(largest_weight(w)))
            bad = r;
    }
    return bad;
}

/* ---- faster, same answer ----------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define ROWS_AT_ONCE 8
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define ROWS_AT_ONCE 4
#endif

#ifdef ROWS_AT_ONCE

/* These are vectors as compilers know them: operators work lane by lane, comparisons give all bits or none. A lane is a
 * row. */
typedef float Lanes __attribute__((vector_size(4 * ROWS_AT_ONCE)));
typedef int32_t LaneBits __attribute__((vector_size(4 * ROWS_AT_ONCE)));
#define CHOOSE(condition, a, b) ((Lanes)(((condition) & (LaneBits)(a)) | (~(condition) & (LaneBits)(b))))

/* round_within() without the last subtraction: the low bits of the result are the whole number's. */
INLINE void round_lanes(Lanes *v, float low, float high)
{
    const Lanes zero = {0};
    *v = CHOOSE(*v < high, *v, zero + high);
    *v = CHOOSE(*v > low, *v, zero + low) + ROUND_F32;
}

/* scale_to_f16() and inverse_scale() */
INLINE void round_scales(uint16_t half[ROWS_AT_ONCE], Lanes *inverse, const Lanes *scale)
{
    const Lanes zero = {0};
    const LaneBits sign = (LaneBits)*scale & INT32_MIN;
    Lanes a = (Lanes)((LaneBits)*scale & INT32_MAX);
    a = CHOOSE(a < F16_MAX, a, zero + F16_MAX);
    LaneBits is_small = a < F16_LEAST_NORMAL;
    LaneBits normal = ((LaneBits)a + 0xfff + ((LaneBits)a >> 13 & 1)) >> 13;
    Lanes small = a + 0.5f;
    LaneBits bits = (is_small & ((LaneBits)small - (LaneBits)(zero + 0.5f))) | (~is_small & (normal - (112 << 10)));
    a = CHOOSE(is_small, small - 0.5f, (Lanes)(normal << 13));
    *inverse = CHOOSE(a == 0, zero, 1 / (Lanes)((LaneBits)a | sign));
    bits |= sign >> 16 & 0x8000;
    for (size_t r = 0; r < ROWS_AT_ONCE; r++)
        half[r] = (uint16_t)bits[r];
}

/* largest_weight() */
#define LARGER(a, b) CHOOSE((INT32_MAX & (LaneBits)(a)) < (INT32_MAX & (LaneBits)(b)), b, a)

INLINE void largest_lanes(Lanes *largest, const Lanes w[GROUP])
{
    Lanes m[GROUP / 2];
    for (size_t k = 0; k < GROUP / 2; k++)
        m[k] = LARGER(w[k], w[k + GROUP / 2]);
    for (size_t half = GROUP / 4; half; half /= 2)
        for (size_t k = 0; k < half; k++)
            m[k] = LARGER(m[k], m[k + half]);
    *largest = m[0];
}

/* quantize_q8() of the rows w [k][row]: out[k / 4] has four weights of each row, as a block has them. */
INLINE void quantize_q8_lanes(LaneBits out[GROUP / 4], uint16_t half[ROWS_AT_ONCE], const Lanes w[GROUP],
                              const Lanes *largest)
{
    Lanes scale = (Lanes)((LaneBits)*largest & INT32_MAX) / 127, inverse;
    round_scales(half, &inverse, &scale);
    for (size_t k = 0; k < GROUP; k += 4) {
        LaneBits four = {0};
        for (int j = 3; j >= 0; j--) {
            Lanes v = w[k + (size_t)j] * inverse;
            round_lanes(&v, -127, 127);
            four = four << 8 | (((LaneBits)v + 128) & 255);
        }
        out[k / 4] = four;
    }
}

/* quantize_q4() of the rows w [k][row] */
INLINE void quantize_q4_lanes(LaneBits out[GROUP / 8], uint16_t half[ROWS_AT_ONCE], const Lanes w[GROUP],
                              const Lanes *largest)
{
    const Lanes zero = {0};
    Lanes scale = *largest / -8, inverse, best = zero;
    for (size_t i = 0; i < COUNT_OF(q4_tries); i++) {
        Lanes wq[2] = {zero, zero}, qq[2] = {zero, zero};
        inverse = q4_tries[i] / *largest;
        for (size_t k = 0; k < GROUP; k++) {
            Lanes v = w[k] * inverse;
            if (q4_tries[i] < 0)
                round_lanes(&v, -8, 7);
            else
                v += ROUND_F32; /* within +-7 already, but in groups of zeros and subnormals, which gain nothing */
            v -= ROUND_F32;
            wq[k % 2] += w[k] * v;
            qq[k % 2] += v * v;
        }
        wq[0] += wq[1];
        qq[0] += qq[1];
        Lanes gain = wq[0] * wq[0] / qq[0];
        scale = CHOOSE(gain > best, wq[0] / qq[0], scale);
        best = CHOOSE(gain > best, gain, best);
    }
    round_scales(half, &inverse, &scale);
    for (size_t k = 0; k < GROUP / 2; k += 4) {
        LaneBits four = {0};
        for (int j = 7; j >= 0; j--) {
            Lanes v = w[k + (size_t)j / 2 + (size_t)j % 2 * GROUP / 2] * inverse;
            round_lanes(&v, -8, 7);
            four = four << 4 | (((LaneBits)v + 8) & 15);
        }
        out[k / 4] = four;
    }
}

INLINE size_t quantize_group_lanes(WeightType type, unsigned char *block, size_t group, const float *w)
{
    unsigned char *scales = block + scales_at(type, group), *weights = block + weights_at(type, group);
    size_t bad = BLOCK_ROWS;
    for (size_t first = 0; first < BLOCK_ROWS; first += ROWS_AT_ONCE) {
        Lanes turned[GROUP], largest;
        LaneBits out[GROUP / 4];
        uint16_t half[ROWS_AT_ONCE];
        for (size_t k = 0; k < GROUP; k++)
            for (size_t r = 0; r < ROWS_AT_ONCE; r++)
                turned[k][r] = w[(first + r) * SLICE_STRIDE + k];
        largest_lanes(&largest, turned);
        if (type == WEIGHT_Q8)
            quantize_q8_lanes(out, half, turned, &largest);
        else
            quantize_q4_lanes(out, half, turned, &largest);
        memcpy(scales + 2 * first, half, sizeof half);
        for (size_t k = 0; k < weights_bytes(type) / BLOCK_ROWS; k += 4)
            memcpy(weights + weight_at(first, k), &out[k / 4], sizeof *out);
        for (size_t r = 0; r < ROWS_AT_ONCE; r++)
            if (bad == BLOCK_ROWS && !is_finite(largest[r]))
                bad = first + r;
    }
    return bad;
}

#define QUANTIZE_GROUP(level, target)                                                                                  \
    target static size_t quantize_group_##level(WeightType type, unsigned char *block, size_t group, const float *w)   \
    {                                                                                                                  \
        return quantize_group_lanes(type, block, group, w);                                                            \
    }

#ifdef __x86_64__
QUANTIZE_GROUP(avx2, __attribute__((target("avx2"))))
QUANTIZE_GROUP(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#else
QUANTIZE_GROUP(neon, )
#endif

#endif

/* ---- the kernels of each level ----------------------------------------------------------------------------------- */

#define KERNEL_OF(level) quantize_group_##level

static QuantizeGroup *const quantize_group[CPU_LEVELS] = BY_LEVEL(KERNEL_OF);

/* ---- a matrix ---------------------------------------------------------------------------------------------------- */

size_t quantized_size(WeightType type, size_t rows, size_t cols)
{
    size_t blocks = rows / BLOCK_ROWS + (rows % BLOCK_ROWS ? 1 : 0), bytes;
    return __builtin_mul_overflow(blocks, block_bytes(type, cols / GROUP), &bytes) ? SIZE_MAX : bytes;
}

/* What the threads share. */
typedef struct {
    const Matrix *src;
    WeightType type;
    unsigned char *storage;
    atomic_size_t bad_row; /* the first with a NaN or an infinity; SIZE_MAX if there is none */
} Job;

static void note_bad_row(Job *j, size_t row)
{
    size_t seen = atomic_load(&j->bad_row);
    while (row < seen && !atomic_compare_exchange_weak(&j->bad_row, &seen, row)) {
    }
}

static void quantize_blocks(void *context, size_t begin, size_t end, int thread)
{
    Job *j = context;
    size_t cols = j->src->cols, groups = cols / GROUP;
    float slice[BLOCK_ROWS * SLICE_STRIDE] = {0};
    QuantizeGroup *quantize = quantize_group[cpu_level()];
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        unsigned char *block = j->storage + b * block_bytes(j->type, groups);
        size_t first = b * BLOCK_ROWS, rows = MIN(j->src->rows - first, BLOCK_ROWS);
        for (size_t r = rows; r < BLOCK_ROWS; r++)
            memset(slice + r * SLICE_STRIDE, 0, SLICE * sizeof *slice);
        for (size_t g = 0; g < groups + groups % 2; g++) {
            size_t k = g * GROUP % SLICE;
            for (size_t r = 0; r < rows && k == 0 && g < groups; r++)
                matmul_row_slice(slice + r * SLICE_STRIDE, j->src, first + r, g * GROUP, MIN(cols - g * GROUP, SLICE));
            if (g == groups) /* the group that the last pair lacks */
                memset(slice, 0, sizeof slice);
            size_t bad = quantize(j->type, block, g, slice + k);
            if (bad < BLOCK_ROWS)
                note_bad_row(j, first + bad);
        }
    }
}

int quantize_matrix(const Matrix *dst, void *storage, const Matrix *src, size_t *bad_row)
{
    Job j = {.src = src, .type = dst->type, .storage = storage, .bad_row = SIZE_MAX};
    threads_for((dst->rows + BLOCK_ROWS - 1) / BLOCK_ROWS, 4, quantize_blocks, &j);
    *bad_row = atomic_load(&j.bad_row);
    return *bad_row == SIZE_MAX ? 0 : -1;
}
