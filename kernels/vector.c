/* Loops over one vector.
 *
 * The scalar code comes first: it is the definition. The vector code is in vector_lanes.h, which is compiled once for
 * each level. It gives the same bits: its lanes are different outputs, or different ones of the sixteen running sums.
 */
#include "kernels/vector.h"

#include <math.h>

#include "kernels/internal.h"
#include "kernels/elementary.h"

/* ---- the definitions --------------------------------------------------------------------------------------------- */

static void convert_bf16_scalar(float *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(load_u16(in, i));
}

static void convert_f16_scalar(float *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = f16_to_f32(load_u16(in, i));
}

static void rmsnorm_scalar(float *out, const float *x, const float *weight, size_t n, float eps)
{
    float s[SUMS] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % SUMS] = fmaf(x[i], x[i], s[i % SUMS]);
    float scale = 1.0f / sqrtf(add_sums(s) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

static void swiglu_scalar(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

/* Each product is rounded before the sum, as in the reference. */
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

/* The largest that is not a NaN; -infinity if there is none. *nan is set if one is a NaN. */
static float largest_scalar(const float *x, size_t n, bool *nan)
{
    float m = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        *nan = *nan || x[i] != x[i];
    }
    return m;
}

/* ---- faster, same answer ----------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define LEVEL_AVX512
#include "kernels/vector_lanes.h"
#define LEVEL_AVX2
#include "kernels/vector_lanes.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define LEVEL_NEON
#include "kernels/vector_lanes.h"
#endif

/* ---- the kernels of each level ----------------------------------------------------------------------------------- */

typedef struct {
    void (*convert_bf16)(float *out, const void *in, size_t n);
    void (*convert_f16)(float *out, const void *in, size_t n);
    void (*rmsnorm)(float *out, const float *x, const float *weight, size_t n, float eps);
    void (*swiglu)(float *gate, const float *up, size_t n);
    void (*rope)(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine);
    float (*largest)(const float *x, size_t n, bool *nan);
} Kernels;

#define KERNELS(level)                                                                                                 \
    {                                                                                                                  \
        convert_bf16_##level, convert_f16_##level, rmsnorm_##level, swiglu_##level, rope_##level, largest_##level      \
    }

static const Kernels kernels[CPU_LEVELS] = BY_LEVEL(KERNELS);

void convert_bf16(float *out, const void *in, size_t n)
{
    kernels[cpu_level()].convert_bf16(out, in, n);
}

void convert_f16(float *out, const void *in, size_t n)
{
    kernels[cpu_level()].convert_f16(out, in, n);
}

void rmsnorm(float *out, const float *x, const float *weight, size_t n, float eps)
{
    kernels[cpu_level()].rmsnorm(out, x, weight, n, eps);
}

void swiglu(float *gate, const float *up, size_t n)
{
    kernels[cpu_level()].swiglu(gate, up, n);
}

void rope_rotate(float *x, size_t n_heads, size_t head_dim, const float *cosine, const float *sine)
{
    kernels[cpu_level()].rope(x, n_heads, head_dim, cosine, sine);
}

float max_f32(const float *x, size_t n)
{
    bool nan = false;
    float m = kernels[cpu_level()].largest(x, n, &nan);
    return nan ? NAN : m + 0.0f; /* of zeros with both signs the positive one */
}

/* The largest of each chunk is found first; then the first chunk that holds the largest of all is searched for it. */
#define ARGMAX_CHUNK 1024

size_t argmax_f32(const float *x, size_t n, bool *bad)
{
    float best = -INFINITY;
    size_t chunk = 0;
    bool nan = false;
    for (size_t i = 0; i < n; i += ARGMAX_CHUNK) {
        float m = kernels[cpu_level()].largest(x + i, MIN(n - i, ARGMAX_CHUNK), &nan);
        if (m > best) {
            best = m;
            chunk = i;
        }
    }
    if (bad)
        *bad = nan || best == INFINITY;
    for (size_t i = chunk; i < n; i++)
        if (x[i] == best)
            return i;
    return 0;
}
