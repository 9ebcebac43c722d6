/* matmul's kernels for x86-64: AVX-512 and AVX2. They give the bits of the scalar definitions in matmul.c. Each
 * function names the instructions that it needs, so that one program holds them all, and which are used is decided at
 * run time. Results are computed in register tiles: a few rows times a few vectors, a register for each result. */
#include "kernels/matmul_internal.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE512 AVX512 __attribute__((always_inline)) static inline
#define INLINE256 AVX2 __attribute__((always_inline)) static inline

/* Weights that come from memory are prefetched. Memory is fastest when it is read in one stream, so it is asked for in
 * the order in which it lies, this far ahead; into the second-level cache, since the first one is full of inputs. */
#define BYTES_AHEAD 16384

/* While `rows` rows from w on are multiplied, at byte `at` of each: prefetch `step` bytes for each of them. Rows that
 * are cut into slices do not lie one behind the other: then the next rows, while the inputs are in short slices, too. */
static inline __attribute__((always_inline)) void prefetch_rows(const Dots *d, const unsigned char *w, size_t rows,
                                                                size_t at, size_t bytes, size_t step)
{
    bool whole = d->cols * bytes == d->row_bytes;
    for (size_t i = 0; i < rows; i++)
        if (whole)
            __builtin_prefetch(w + rows * at + i * step + BYTES_AHEAD, 0, 2);
        else
            __builtin_prefetch(w + at + (rows + i) * d->row_bytes, 0, 3);
}

/* The same for a group of quantized rows. The integers of one or two vectors leave room in the first-level cache. */
static inline __attribute__((always_inline)) void prefetch_group(const unsigned char *w, size_t bytes, size_t n)
{
    for (size_t i = 0; i < bytes; i += 64)
        if (n <= 2)
            __builtin_prefetch(w + i + BYTES_AHEAD / 2, 0, 3);
        else
            __builtin_prefetch(w + i + BYTES_AHEAD, 0, 2);
}

/* How many of the vectors that are left make the next register tile, of at most 6. */
static inline size_t next_vectors(size_t left)
{
    return left == 7 || left == 8 ? 4 : MIN(left, 6);
}

static inline int32_t load_i32(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- AVX-512: dot products --------------------------------------------------------------------------------------- */

/* Not a type of weights: both weights and inputs are BF16, and are multiplied and added in pairs. */
#define PAIRS ((WeightType)16)

/* The sixteen weights at p as float32, or eight pairs. Those that mask leaves out are zero, and their memory is not
 * read. */
INLINE512 __m512 load512(WeightType type, const unsigned char *p, __mmask16 mask)
{
    if (type == WEIGHT_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    __m256i half = _mm256_maskz_loadu_epi16(mask, p);
    if (type == PAIRS)
        return _mm512_castsi512_ps(_mm512_zextsi256_si512(half));
    if (type == WEIGHT_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    return _mm512_cvtph_ps(half);
}

/* Sixteen weights of the 64 bytes at p as float32: the first or the second, if there are two times sixteen. Or sixteen
 * pairs. */
INLINE512 __m512 load_line512(WeightType type, const unsigned char *p, bool second)
{
    __m512i line = _mm512_loadu_si512(p);
    if (type == WEIGHT_F32 || type == PAIRS)
        return _mm512_castsi512_ps(line);
    if (type == WEIGHT_F16)
        return _mm512_cvtph_ps(second ? _mm512_extracti64x4_epi64(line, 1) : _mm512_castsi512_si256(line));
    const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                           4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512i from = second ? _mm512_add_epi16(twice, _mm512_set1_epi16(16)) : twice;
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, from, line));
}

/* acc + v * u where mask is set. Of pairs, both products are added; the instruction is written out, since with the
 * intrinsic the whole function would need a CPU that has it. */
INLINE512 __m512 multiply_add512(WeightType type, __m512 v, __m512 u, __m512 acc, __mmask16 mask)
{
    if (type != PAIRS)
        return _mm512_mask3_fmadd_ps(v, u, acc, mask);
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(v), "v"(u));
    return acc;
}

/* Add the upper half of each vector to its lower half: lanes 0-7 of the result are a's, 8-15 are b's. */
INLINE512 __m512 add_halves(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Half the tree, l + 8 and l + 4, for four vectors of running sums: each has four lanes of the result. */
INLINE512 __m512 add_quarters(__m512 a, __m512 b, __m512 c, __m512 d)
{
    __m512 ab = add_halves(a, b), cd = add_halves(c, d);
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/* The tree for one vector of running sums. */
INLINE512 float add_sums512_one(__m512 a)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The tree for the running sums acc[r][first + t] of four rows and n (at most 4) vectors: out[t * stride + r]. */
INLINE512 void add_sums512(float *out, size_t stride, __m512 (*acc)[6], size_t first, size_t n)
{
    __m512 quarters[4];
    size_t last = n - 1;
    for (size_t r = 0; r < 4; r++)
        quarters[r] = add_quarters(acc[r][first], acc[r][first + MIN(1, last)], acc[r][first + MIN(2, last)],
                                   acc[r][first + last]);
    __m512 p = _mm512_add_ps(_mm512_shuffle_ps(quarters[0], quarters[1], 0x44),
                             _mm512_shuffle_ps(quarters[0], quarters[1], 0xee));
    __m512 q = _mm512_add_ps(_mm512_shuffle_ps(quarters[2], quarters[3], 0x44),
                             _mm512_shuffle_ps(quarters[2], quarters[3], 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd));
    _mm_storeu_ps(out, _mm512_castps512_ps128(s));
    if (n > 1)
        _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(s, 1));
    if (n > 2)
        _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(s, 2));
    if (n > 3)
        _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(s, 3));
}

/* The register tile of `rows` (1 or 4) rows from r on and n (at most 6) vectors from t on. */
INLINE512 void tile512(const Dots *d, WeightType type, size_t rows, size_t n, bool fetch, size_t r, size_t t)
{
    const size_t bytes = type == WEIGHT_F32 ? 4 : 2, x_bytes = type == PAIRS ? 2 : 4;
    const size_t step = 64 / bytes, vectors = x_bytes / bytes; /* columns of a cache line of weights; vectors of them */
    size_t last = d->rows - 1, stride = (d->rows + 3) / 4 * 4 * SUMS, k = 0;
    const unsigned char *x = (const unsigned char *)d->x + t * d->x_stride * x_bytes;
    float *sums = d->sums + t * stride + r * SUMS, *out = d->out + t * d->out_stride + r;
    const unsigned char *w[4];
    __m512 acc[4][6];
    for (size_t i = 0; i < rows; i++) {
        w[i] = d->w + MIN(r + i, last) * d->row_bytes;
        for (size_t j = 0; j < n; j++)
            acc[i][j] = d->first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + j * stride + i * SUMS);
    }
    for (; k + step <= d->cols; k += step) {
        if (fetch)
            prefetch_rows(d, w[0], rows, k * bytes, bytes, 64);
        for (size_t part = 0; part < vectors; part++) {
            __m512 v[4];
            for (size_t i = 0; i < rows; i++) /* a single input waits for loads: short ones cross fewer cache lines */
                v[i] = n == 1 && vectors == 2 ? load512(type, w[i] + k * bytes + 32 * part, 0xffff)
                                              : load_line512(type, w[i] + k * bytes, part == 1);
            for (size_t j = 0; j < n; j++) {
                __m512 u = _mm512_loadu_ps(x + (j * d->x_stride + k) * x_bytes + 64 * part);
                for (size_t i = 0; i < rows; i++)
                    acc[i][j] = multiply_add512(type, v[i], u, acc[i][j], 0xffff);
            }
        }
    }
    for (; k < d->cols; k += SUMS) {
        __mmask16 mask = (__mmask16)(d->cols - k < SUMS ? (1u << (d->cols - k)) - 1 : 0xffff);
        __m512 v[4];
        for (size_t i = 0; i < rows; i++)
            v[i] = load512(type, w[i] + k * bytes, mask);
        for (size_t j = 0; j < n; j++) {
            __m512 u = load512(type == PAIRS ? PAIRS : WEIGHT_F32, x + (j * d->x_stride + k) * x_bytes, mask);
            for (size_t i = 0; i < rows; i++)
                acc[i][j] = multiply_add512(type, v[i], u, acc[i][j], mask);
        }
    }
    if (!d->last) {
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < n; j++)
                _mm512_storeu_ps(sums + j * stride + i * SUMS, acc[i][j]);
    } else if (rows == 1) {
        *out = add_sums512_one(acc[0][0]);
    } else {
        add_sums512(out, d->out_stride, acc, 0, MIN(n, 4));
        if (n > 4)
            add_sums512(out + 4 * d->out_stride, d->out_stride, acc, 4, n - 4);
    }
}

INLINE512 void dots512(const Dots *d, WeightType type)
{
    size_t rows_end = d->n <= FEW ? 4 : d->rows;
    for (size_t r = 0; r < d->rows && d->n == 1; r++)
        tile512(d, type, 1, 1, true, r, 0);
    for (size_t base = 0; base < d->rows && d->n > 1; base += rows_end)
        for (size_t t = 0, n; t < d->n; t += n) {
            n = next_vectors(d->n - t);
            for (size_t r = base; r < base + rows_end; r += 4)
                if (n == 1)
                    tile512(d, type, 4, 1, t == 0, r, t);
                else if (n == 2)
                    tile512(d, type, 4, 2, t == 0, r, t);
                else if (n == 3)
                    tile512(d, type, 4, 3, t == 0, r, t);
                else if (n == 4)
                    tile512(d, type, 4, 4, t == 0, r, t);
                else if (n == 5)
                    tile512(d, type, 4, 5, t == 0, r, t);
                else
                    tile512(d, type, 4, 6, t == 0, r, t);
        }
}

KERNEL(AVX512, dots512_f32, Dots, dots512(d, WEIGHT_F32))
KERNEL(AVX512, dots512_bf16, Dots, dots512(d, WEIGHT_BF16))
KERNEL(AVX512, dots512_f16, Dots, dots512(d, WEIGHT_F16))
KERNEL(AVX512, dots512_pairs, Dots, dots512(d, PAIRS))

__attribute__((target("avx512bf16,avx512bw,avx512vl"))) static void to_bf16_512(uint16_t *out, const float *in,
                                                                                size_t n)
{
    for (size_t i = 0; i < n; i += SUMS) {
        __mmask16 mask = (__mmask16)(n - i < SUMS ? (1u << (n - i)) - 1 : 0xffff);
        _mm256_mask_storeu_epi16(out + i, mask, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, in + i)));
    }
}

/* ---- AVX-512 with VNNI: quantized rows, sixteen side by side ----------------------------------------------------- */

/* Four weights of each of sixteen rows, number v = 0..7 of a group's. */
INLINE512 __m512i quads512(WeightType type, const unsigned char *group, size_t v)
{
    if (type == WEIGHT_Q8)
        return _mm512_loadu_si512(group + 64 * v);
    __m512i both = _mm512_loadu_si512(group + 64 * (v % 4));
    return _mm512_and_si512(v < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}

/* sum + products of bytes, unsigned in w and signed in x, added in fours. */
INLINE512 __m512i dot_bytes512(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}

AVX512 static void to_int8_512(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512 high = _mm512_set1_ps(127), low = _mm512_set1_ps(-127);
    for (size_t g = 0; g < groups; g++) {
        __m512 a = _mm512_loadu_ps(x + g * GROUP), b = _mm512_loadu_ps(x + g * GROUP + 16);
        __m512i m = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                     _mm512_and_si512(_mm512_castps_si512(b), magnitude));
        float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(m))));
        __m512 inverse = _mm512_set1_ps(most > 1e-30f ? 127 / most : 0);
        __m512i i = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(a, inverse), high), low));
        __m512i j = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(b, inverse), high), low));
        _mm_storeu_si128((__m128i *)(void *)(q + g * GROUP), _mm512_cvtepi32_epi8(i));
        _mm_storeu_si128((__m128i *)(void *)(q + g * GROUP + 16), _mm512_cvtepi32_epi8(j));
        minus_sum[g] = -_mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
        scale[g] = most <= 1e-30f ? 0 : most / 127;
    }
}

/* The register tile of `blocks` blocks of sixteen rows from b on and n vectors from t on: a register for each sixteen
 * results. Stored weights are too large by 128 or 8: a group's sum starts with what takes that back. */
INLINE512 void quant_tile512(const QuantDots *d, WeightType type, size_t blocks, size_t n, bool fetch, size_t b,
                             size_t t)
{
    const size_t bytes = block_bytes(type, d->groups), groups = d->groups;
    __m512 total[2][6];
    for (size_t i = 0; i < blocks; i++)
        for (size_t j = 0; j < n; j++)
            total[i][j] = _mm512_setzero_ps();
    for (size_t g = 0; g < groups; g++) {
        const unsigned char *w = d->w + b * bytes + weights_at(type, g),
                            *scales = d->w + b * bytes + scales_at(type, g);
        const int8_t *q = d->q + (t * groups + g) * GROUP;
        __m512i sum[2][6];
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < blocks; i++)
                sum[i][j] =
                    _mm512_slli_epi32(_mm512_set1_epi32(d->minus_sum[(t + j) * groups + g]), type == WEIGHT_Q8 ? 7 : 3);
        if (fetch)
            prefetch_group(w, weights_bytes(type) + 64, n);
#pragma GCC unroll 8
        for (size_t v = 0; v < GROUP / 4; v++) {
            __m512i four[2];
            for (size_t i = 0; i < blocks; i++)
                four[i] = quads512(type, w + i * bytes, v);
            for (size_t j = 0; j < n; j++)
                for (size_t i = 0; i < blocks; i++)
                    sum[i][j] =
                        dot_bytes512(sum[i][j], four[i], _mm512_set1_epi32(load_i32(q + j * groups * GROUP + 4 * v)));
        }
        for (size_t i = 0; i < blocks; i++) {
            __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(scales + i * bytes)));
            for (size_t j = 0; j < n; j++)
                total[i][j] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][j]),
                                    _mm512_mul_ps(scale, _mm512_set1_ps(d->scale[(t + j) * groups + g])), total[i][j]);
        }
    }
    for (size_t i = 0; i < blocks; i++)
        for (size_t j = 0; j < n; j++)
            _mm512_storeu_ps(d->out + (t + j) * d->out_stride + (b + i) * BLOCK_ROWS, total[i][j]);
}

/* With few vectors, one block follows the other, so that memory is read in one stream. With many, two blocks share the
 * loads of the vectors. */
INLINE512 void quant512(const QuantDots *d, WeightType type)
{
    bool few = d->n <= FEW;
    size_t blocks_end = few ? 1 : d->blocks;
    for (size_t base = 0; base < d->blocks; base += blocks_end)
        for (size_t t = 0, n; t < d->n; t += n) {
            n = next_vectors(d->n - t);
            for (size_t b = base; b < base + blocks_end; b++) {
                if (n == 1)
                    quant_tile512(d, type, 1, 1, t == 0, b, t);
                else if (n == 2)
                    quant_tile512(d, type, 1, 2, t == 0, b, t);
                else if (n == 3)
                    quant_tile512(d, type, 1, 3, t == 0, b, t);
                else if (n == 4)
                    quant_tile512(d, type, 1, 4, t == 0, b, t);
                else if (n == 5)
                    quant_tile512(d, type, 1, 5, t == 0, b, t);
                else if (few || b + 1 == d->blocks)
                    quant_tile512(d, type, 1, 6, t == 0, b, t);
                else
                    quant_tile512(d, type, 2, 6, false, b++, t);
            }
        }
}

KERNEL(AVX512, q8_vnni, QuantDots, quant512(d, WEIGHT_Q8))
KERNEL(AVX512, q4_vnni, QuantDots, quant512(d, WEIGHT_Q4))

/* ---- AVX2: the sixteen running sums are two registers ------------------------------------------------------------ */

/* The eight weights at p as float32. */
INLINE256 __m256 load256(WeightType type, const unsigned char *p)
{
    if (type == WEIGHT_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (type == WEIGHT_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    return _mm256_cvtph_ps(half);
}

/* Only the first n of the eight weights from number `at` on. The others are -0: times +0 that is -0, which changes no
 * sum. */
INLINE256 __m256 load256_tail(WeightType type, const unsigned char *p, size_t at, size_t n)
{
    const __m256i number = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8);
    size_t bytes = type == WEIGHT_F32 ? 4 : 2;
    unsigned char weights[32] = {0};
    if (n)
        memcpy(weights, p + at * bytes, MIN(n, 8) * bytes);
    __m256i absent = _mm256_cmpgt_epi32(number, _mm256_set1_epi32((int)n));
    return _mm256_or_ps(load256(type, weights), _mm256_castsi256_ps(_mm256_slli_epi32(absent, 31)));
}

/* Only the first n of the eight inputs from number `at` on. The others are +0. */
INLINE256 __m256 load256_x_tail(const float *x, size_t at, size_t n)
{
    float inputs[8] = {0};
    if (n)
        memcpy(inputs, x + at, MIN(n, 8) * sizeof *x);
    return _mm256_loadu_ps(inputs);
}

/* Go along the columns once, for n vectors, `rows` rows and `halves` halves of the running sums from half h on;
 * n * halves <= 3. acc[row][vector * halves + half] */
INLINE256 void run256(const Dots *d, WeightType type, size_t rows, size_t n, size_t h, size_t halves, bool fetch,
                      const unsigned char *const w[4], const float *x, __m256 (*acc)[3])
{
    const size_t bytes = type == WEIGHT_F32 ? 4 : 2;
    size_t k = 0;
    for (; k + SUMS <= d->cols; k += SUMS) {
        if (fetch && h == 0)
            prefetch_rows(d, w[0], rows, k * bytes, bytes, SUMS * bytes);
        for (size_t g = 0; g < halves; g++) {
            __m256 u[3];
            for (size_t j = 0; j < n; j++)
                u[j] = _mm256_loadu_ps(x + j * d->x_stride + k + 8 * (h + g));
            for (size_t i = 0; i < rows; i++) {
                __m256 v = load256(type, w[i] + (k + 8 * (h + g)) * bytes);
                for (size_t j = 0; j < n; j++)
                    acc[i][j * halves + g] = _mm256_fmadd_ps(v, u[j], acc[i][j * halves + g]);
            }
        }
    }
    if (k == d->cols)
        return;
#pragma GCC unroll 2
    for (size_t g = 0; g < halves; g++) {
        size_t at = 8 * (h + g), left = k + at < d->cols ? d->cols - k - at : 0;
        __m256 u[3];
        for (size_t j = 0; j < n; j++)
            u[j] = load256_x_tail(x + j * d->x_stride + k, at, left);
        for (size_t i = 0; i < rows; i++) {
            __m256 v = load256_tail(type, w[i] + k * bytes, at, left);
            for (size_t j = 0; j < n; j++)
                acc[i][j * halves + g] = _mm256_fmadd_ps(v, u[j], acc[i][j * halves + g]);
        }
    }
}

/* The tree for four rows: eight lanes each, l + 8 being added already. */
INLINE256 __m128 add_sums256(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256 p = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    __m256 q = _mm256_add_ps(_mm256_shuffle_ps(p, p, 0x88), _mm256_shuffle_ps(p, p, 0xdd));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
}

/* The register tile of `rows` (1 or 4) rows from r on and n (at most 3) vectors from t on. Several vectors go along the
 * columns twice, once for each half of the running sums. */
INLINE256 void tile256(const Dots *d, WeightType type, size_t rows, size_t n, bool fetch, size_t r, size_t t)
{
    const size_t halves = n == 1 ? 2 : 1;
    size_t last = d->rows - 1, stride = (d->rows + 3) / 4 * 4 * SUMS;
    const float *x = (const float *)d->x + t * d->x_stride;
    float *sums = d->sums + t * stride + r * SUMS;
    const unsigned char *w[4];
    __m256 done[2][4][3];
    for (size_t i = 0; i < rows; i++)
        w[i] = d->w + MIN(r + i, last) * d->row_bytes;
    for (size_t h = 0; h < 2; h += halves) {
        __m256 acc[4][3];
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < n * halves; j++)
                acc[i][j] = d->first ? _mm256_setzero_ps()
                                     : _mm256_loadu_ps(sums + j / halves * stride + i * SUMS + 8 * (h + j % halves));
        run256(d, type, rows, n, h, halves, fetch, w, x, acc);
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < n * halves; j++)
                done[h + j % halves][i][j / halves] = acc[i][j];
    }
    for (size_t j = 0; j < n; j++) {
        __m256 sum[4];
        for (size_t i = 0; i < 4; i++)
            sum[i] = i < rows ? _mm256_add_ps(done[0][i][j], done[1][i][j]) : sum[0];
        for (size_t i = 0; i < rows && !d->last; i++) {
            _mm256_storeu_ps(sums + j * stride + i * SUMS, done[0][i][j]);
            _mm256_storeu_ps(sums + j * stride + i * SUMS + 8, done[1][i][j]);
        }
        __m128 four = add_sums256(sum[0], sum[1], sum[2], sum[3]);
        if (d->last && rows == 1)
            _mm_store_ss(d->out + (t + j) * d->out_stride + r, four);
        else if (d->last)
            _mm_storeu_ps(d->out + (t + j) * d->out_stride + r, four);
    }
}

INLINE256 void dots256(const Dots *d, WeightType type)
{
    size_t rows_end = d->n <= FEW ? 4 : d->rows;
    for (size_t r = 0; r < d->rows && d->n == 1; r++)
        tile256(d, type, 1, 1, true, r, 0);
    for (size_t base = 0; base < d->rows && d->n > 1; base += rows_end)
        for (size_t t = 0; t < d->n; t += 3)
            for (size_t r = base; r < base + rows_end; r += 4) {
                if (d->n - t == 1)
                    tile256(d, type, 4, 1, t == 0, r, t);
                else if (d->n - t == 2)
                    tile256(d, type, 4, 2, t == 0, r, t);
                else
                    tile256(d, type, 4, 3, t == 0, r, t);
            }
}

KERNEL(AVX2, dots256_f32, Dots, dots256(d, WEIGHT_F32))
KERNEL(AVX2, dots256_bf16, Dots, dots256(d, WEIGHT_BF16))
KERNEL(AVX2, dots256_f16, Dots, dots256(d, WEIGHT_F16))

/* ---- AVX2: quantized rows ---------------------------------------------------------------------------------------- */

AVX2 static void to_int8_256(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 high = _mm256_set1_ps(127), low = _mm256_set1_ps(-127);
    for (size_t g = 0; g < groups; g++) {
        __m256 v[4];
        __m256i m = _mm256_setzero_si256(), i[4];
        for (size_t p = 0; p < 4; p++) {
            v[p] = _mm256_loadu_ps(x + g * GROUP + 8 * p);
            m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[p]), magnitude));
        }
        __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1))));
        __m256 inverse = _mm256_set1_ps(most > 1e-30f ? 127 / most : 0);
        for (size_t p = 0; p < 4; p++)
            i[p] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(_mm256_mul_ps(v[p], inverse), high), low));
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
        _mm256_storeu_si256((__m256i *)(void *)(q + g * GROUP), _mm256_permutevar8x32_epi32(bytes, order));
        m = _mm256_add_epi32(_mm256_add_epi32(i[0], i[1]), _mm256_add_epi32(i[2], i[3]));
        h = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        minus_sum[g] = -_mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
        scale[g] = most <= 1e-30f ? 0 : most / 127;
    }
}

/* The register tile of `halves` halves of block b from half h on, eight rows each, and n (at most 4) vectors from t on.
 * Four bits times eight, added in pairs, eight times: that fits 16 bits. So the lower and the upper four bits of the
 * bytes are summed apart: of Q8 they belong to one weight, of Q4 to a group's first and last sixteen weights. */
INLINE256 void quant_tile256(const QuantDots *d, WeightType type, size_t halves, size_t n, bool fetch, size_t b,
                             size_t h, size_t t)
{
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1),
                  upper_worth = type == WEIGHT_Q8 ? _mm256_set1_epi16(16) : one;
    const size_t groups = d->groups;
    const unsigned char *block = d->w + b * block_bytes(type, groups);
    __m256 total[2][4];
    for (size_t i = 0; i < halves; i++)
        for (size_t j = 0; j < n; j++)
            total[i][j] = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; g++) {
        const unsigned char *w = block + weights_at(type, g) + 32 * h,
                            *scales = block + scales_at(type, g) + BLOCK_ROWS * h;
        const int8_t *q = d->q + (t * groups + g) * GROUP;
        __m256i lower[2][4], upper[2][4];
        if (fetch)
            prefetch_group(w, weights_bytes(type) + 64, n);
        for (size_t i = 0; i < halves; i++)
            for (size_t j = 0; j < n; j++)
                lower[i][j] = upper[i][j] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (size_t v = 0; v < weights_bytes(type) / 64; v++)
            for (size_t i = 0; i < halves; i++) {
                __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)(w + 64 * v + 32 * i));
                __m256i below = _mm256_and_si256(both, low), above = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
                for (size_t j = 0; j < n; j++) {
                    const int8_t *x = q + j * groups * GROUP + 4 * v;
                    __m256i first = _mm256_set1_epi32(load_i32(x)),
                            last = type == WEIGHT_Q8 ? first : _mm256_set1_epi32(load_i32(x + 16));
                    lower[i][j] = _mm256_add_epi16(lower[i][j], _mm256_maddubs_epi16(below, first));
                    upper[i][j] = _mm256_add_epi16(upper[i][j], _mm256_maddubs_epi16(above, last));
                }
            }
#pragma GCC unroll 2
        for (size_t i = 0; i < halves; i++) {
            __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(scales + BLOCK_ROWS * i)));
#pragma GCC unroll 4
            for (size_t j = 0; j < n; j++) {
                __m256i sum =
                    _mm256_slli_epi32(_mm256_set1_epi32(d->minus_sum[(t + j) * groups + g]), type == WEIGHT_Q8 ? 7 : 3);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(lower[i][j], one));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(upper[i][j], upper_worth));
                total[i][j] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                    _mm256_mul_ps(scale, _mm256_set1_ps(d->scale[(t + j) * groups + g])), total[i][j]);
            }
        }
    }
    for (size_t i = 0; i < halves; i++)
        for (size_t j = 0; j < n; j++)
            _mm256_storeu_ps(d->out + (t + j) * d->out_stride + b * BLOCK_ROWS + 8 * (h + i), total[i][j]);
}

INLINE256 void quant256(const QuantDots *d, WeightType type)
{
    size_t halves_end = d->n <= FEW ? 2 : 2 * d->blocks;
    for (size_t b = 0; b < d->blocks && d->n == 1; b++)
        quant_tile256(d, type, 2, 1, true, b, 0, 0);
    for (size_t base = 0; base < 2 * d->blocks && d->n > 1; base += halves_end)
        for (size_t t = 0, n; t < d->n; t += n) {
            n = d->n - t >= 4 ? 4 : MIN(d->n - t, 2);
            for (size_t h = base; h < base + halves_end; h++)
                if (n == 1)
                    quant_tile256(d, type, 1, 1, t == 0, h / 2, h % 2, t);
                else if (n == 2)
                    quant_tile256(d, type, 1, 2, t == 0, h / 2, h % 2, t);
                else
                    quant_tile256(d, type, 1, 4, t == 0, h / 2, h % 2, t);
        }
}

KERNEL(AVX2, q8_256, QuantDots, quant256(d, WEIGHT_Q8))
KERNEL(AVX2, q4_256, QuantDots, quant256(d, WEIGHT_Q4))

/* ---- the tables -------------------------------------------------------------------------------------------------- */

static const Kernels avx512bf16 = {
    .dots = {dots512_f32, dots512_bf16, dots512_f16},
    .pairs = dots512_pairs,
    .to_bf16 = to_bf16_512,
    .q8 = q8_vnni,
    .q4 = q4_vnni,
    .to_int8 = to_int8_512,
    .slice = 928,
};

static const Kernels avx512vnni = {
    .dots = {dots512_f32, dots512_bf16, dots512_f16},
    .q8 = q8_vnni,
    .q4 = q4_vnni,
    .to_int8 = to_int8_512,
    .slice = 928,
};

/* Without VNNI, vectors of 512 bits multiply bytes no faster than those of 256. */
static const Kernels avx512 = {
    .dots = {dots512_f32, dots512_bf16, dots512_f16},
    .q8 = q8_256,
    .q4 = q4_256,
    .to_int8 = to_int8_512,
    .slice = 928,
};

static const Kernels avx2 = {
    .dots = {dots256_f32, dots256_bf16, dots256_f16},
    .q8 = q8_256,
    .q4 = q4_256,
    .to_int8 = to_int8_256,
    .slice = 928,
};

const Kernels *kernels_x86(CpuLevel level)
{
    switch (level) {
    case CPU_AVX2:
        return &avx2;
    case CPU_AVX512:
        return &avx512;
    case CPU_AVX512VNNI:
        return &avx512vnni;
    case CPU_AVX512BF16:
        return &avx512bf16;
    default:
        return NULL;
    }
}

#else

const Kernels *kernels_x86(CpuLevel level)
{
    (void)level;
    return NULL;
}

#endif
