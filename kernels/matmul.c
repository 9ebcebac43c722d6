/* Weights x vectors.
 *
 * out = W x is, for each row of W, a dot product: the sum over k of w[k] * x[k]. Additions of floats depend on their
 * order, so the order is fixed here once, and everything else in this file and its neighbours gives the same bits:
 *
 *     s[0..15] = 0;  s[k % 16] = fma(w[k], x[k], s[k % 16]) for k = 0, 1, ...
 *     s[l] += s[l + 8] for l < 8;  s[l] += s[l + 4] for l < 4;  then l + 2, then l + 1;  the sum is s[0]
 *
 * Sixteen sums are what a vector register of 512 bits holds; two of 256 or four of 128 do as well.
 *
 * Q8 and Q4 keep one FP16 scale for 32 weights of a row. The vector x is rounded the same way, to integers within +-127
 * with one float32 scale for 32. In a group all is integers, and exact; then total = fma(sum, weight scale * x scale,
 * total), group by group.
 *
 *     Q8: weight = scale * (byte - 128), byte 1..255        Q4: weight = scale * (nibble - 8), nibble 0..15
 *
 * Sixteen rows lie side by side, four weights of each in turn, so that a vector instruction that multiplies bytes and
 * adds them in fours leaves sixteen rows' sums where they belong. Such a block of rows holds its groups by twos:
 *
 *     scales [2][row], then quants [2]:   Q8: byte [k / 4][row][k % 4], k = 0..31
 *                                         Q4: byte [k / 4][row][k % 4], k = 0..15: weight k below, weight k + 16 above
 *
 * Rows missing in the last block are zeros, and so is a group missing in the last two.
 */
#include "kernels/matmul.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "kernels/attention.h"
#include "kernels/matmul_internal.h"
#include "kernels/quantize.h"
#include "kernels/vector.h"

/* Code that is compiled once more for each width of vectors. */
#define INLINE static inline __attribute__((always_inline))

/* ---- numbers of 16 bits ------------------------------------------------------------------------------------------ */

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

static uint16_t load_u16(const void *p, size_t i)
{
    uint16_t v;
    memcpy(&v, (const unsigned char *)p + 2 * i, sizeof v);
    return v;
}

static float load_f32(const void *p, size_t i)
{
    float v;
    memcpy(&v, (const unsigned char *)p + 4 * i, sizeof v);
    return v;
}

/* BF16 is the upper half of a float32. */
static void convert_bf16_scalar(float *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = from_bits((uint32_t)load_u16(in, i) << 16);
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

static void convert_f16_scalar(float *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = f16_to_f32(load_u16(in, i));
}

/* ---- the dot product --------------------------------------------------------------------------------------------- */

/* Number k of a row that is stored as it came, at any address. */
INLINE float weight(WeightType type, const unsigned char *row, size_t k)
{
    if (type == WEIGHT_F32)
        return load_f32(row, k);
    return type == WEIGHT_BF16 ? from_bits((uint32_t)load_u16(row, k) << 16) : f16_to_f32(load_u16(row, k));
}

INLINE float dot(WeightType type, const unsigned char *row, const float *x, size_t n)
{
    float s[LANES] = {0};
    for (size_t k = 0; k < n; k++)
        s[k % LANES] = fmaf(weight(type, row, k), x[k], s[k % LANES]);
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

INLINE void dots(const Dots *d, WeightType type)
{
    for (size_t r = 0; r < d->rows; r++)
        for (size_t t = 0; t < d->n; t++)
            d->out[t * d->out_stride + r] =
                dot(type, d->w + r * d->row_bytes, (const float *)d->x + t * d->x_stride, d->cols);
}

static void dots_f32_scalar(const Dots *d)
{
    dots(d, WEIGHT_F32);
}

static void dots_bf16_scalar(const Dots *d)
{
    dots(d, WEIGHT_BF16);
}

static void dots_f16_scalar(const Dots *d)
{
    dots(d, WEIGHT_F16);
}

/* ---- the quantised dot product ----------------------------------------------------------------------------------- */

/* Weight k (0..31) of a group, without its scale. */
static int quant(WeightType type, const unsigned char *group, size_t row, size_t k)
{
    if (type == WEIGHT_Q8)
        return group[(k / 4 * SIDE_BY_SIDE + row) * 4 + k % 4] - 128;
    int both = group[(k % 16 / 4 * SIDE_BY_SIDE + row) * 4 + k % 4];
    return (k < 16 ? both & 15 : both >> 4) - 8;
}

static float quant_dot(WeightType type, const unsigned char *block, size_t row, size_t groups, const int8_t *q,
                       const float *scale)
{
    float total = 0;
    for (size_t g = 0; g < groups; g++) {
        int32_t sum = 0;
        for (size_t k = 0; k < GROUP; k++)
            sum += quant(type, block + quants_at(type, g), row, k) * q[g * GROUP + k];
        total = fmaf((float)sum, f16_to_f32(load_u16(block + scales_at(type, g), row)) * scale[g], total);
    }
    return total;
}

INLINE void quant_dots(const QuantDots *d, WeightType type)
{
    for (size_t r = 0; r < d->blocks * SIDE_BY_SIDE; r++)
        for (size_t t = 0; t < d->n; t++)
            d->out[t * d->out_stride + r] =
                quant_dot(type, d->w + r / SIDE_BY_SIDE * block_bytes(type, d->groups), r % SIDE_BY_SIDE, d->groups,
                          d->q + t * d->groups * GROUP, d->scale + t * d->groups);
}

static void q8_scalar(const QuantDots *d)
{
    quant_dots(d, WEIGHT_Q8);
}

static void q4_scalar(const QuantDots *d)
{
    quant_dots(d, WEIGHT_Q4);
}

/* ---- rounding to integers ---------------------------------------------------------------------------------------- */

/* v within low..high, rounded to the nearest whole number, ties to even; a NaN becomes high. The addition leaves no
 * bits for fractions. */
#define MAGIC 0x1.8p23f

INLINE float round_within(float v, float low, float high)
{
    v = v < high ? v : high;
    v = v > low ? v : low;
    return v + MAGIC - MAGIC;
}

/* Largest magnitude of n numbers; infinity and NaN are larger than all else. */
static float largest(const float *x, size_t n)
{
    uint32_t m = 0;
    for (size_t k = 0; k < n; k++)
        m = (to_bits(x[k]) & 0x7fffffff) > m ? to_bits(x[k]) & 0x7fffffff : m;
    return from_bits(m);
}

/* An input, group by group: q = round(x * 127 / max|x|), scale = max|x| / 127, and minus the sum of q. Groups too small
 * for a scale become zeros; a NaN or an infinity makes the scale one. */
static void inputs_scalar(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups)
{
    for (size_t g = 0; g < groups; g++) {
        float m = largest(x + g * GROUP, GROUP), inverse = m > 1e-30f ? 127 / m : 0;
        scale[g] = m <= 1e-30f ? 0 : m / 127;
        minus_sum[g] = 0;
        for (size_t k = g * GROUP; k < (g + 1) * GROUP; k++) {
            q[k] = (int8_t)round_within(x[k] * inverse, -127, 127);
            minus_sum[g] -= q[k];
        }
    }
}

/* Weights are rounded for several rows at once. These are vectors as compilers know them: operators work lane by lane,
 * comparisons give all bits or none. */
#ifdef __x86_64__
#define ROWS_AT_ONCE 8
#else
#define ROWS_AT_ONCE 4
#endif
typedef float Lanes __attribute__((vector_size(4 * ROWS_AT_ONCE)));
typedef int32_t LaneBits __attribute__((vector_size(4 * ROWS_AT_ONCE)));
#define CHOOSE(condition, a, b) ((Lanes)(((condition) & (LaneBits)(a)) | (~(condition) & (LaneBits)(b))))

/* round_within() without the last subtraction: the low bits of the result are the whole number's. */
INLINE void round_lanes(Lanes *v, float low, float high)
{
    const Lanes zero = {0};
    *v = CHOOSE(*v < high, *v, zero + high);
    *v = CHOOSE(*v > low, *v, zero + low) + MAGIC;
}

/* The scales rounded to FP16, ties to even, and their inverses; 1 / 0 counts as 0. Beyond FP16's range scales are its
 * largest. */
INLINE void round_scales(uint16_t half[ROWS_AT_ONCE], Lanes *inverse, const Lanes *scale)
{
    const Lanes zero = {0};
    const LaneBits sign = (LaneBits)*scale & INT32_MIN;
    Lanes a = (Lanes)((LaneBits)*scale & INT32_MAX);
    a = CHOOSE(a < 65504, a, zero + 65504);
    LaneBits is_small = a < 0x1p-14f,
             normal = ((LaneBits)a + 0xfff + ((LaneBits)a >> 13 & 1)) >> 13; /* ten bits of mantissa */
    Lanes small = a + 0.5f;                                                  /* multiples of 2^-24 */
    LaneBits bits = (is_small & ((LaneBits)small - (LaneBits)(zero + 0.5f))) | (~is_small & (normal - (112 << 10)));
    a = CHOOSE(is_small, small - 0.5f, (Lanes)(normal << 13));
    *inverse = CHOOSE(a == 0, zero, 1 / (Lanes)((LaneBits)a | sign));
    bits |= sign >> 16 & 0x8000;
    for (size_t r = 0; r < ROWS_AT_ONCE; r++)
        half[r] = (uint16_t)bits[r];
}

/* The weight of largest magnitude of each row; infinity and NaN are larger than all else. */
#define LARGER(a, b) CHOOSE(((LaneBits)(a) & INT32_MAX) < ((LaneBits)(b) & INT32_MAX), b, a)

INLINE void largest_lanes(Lanes *most, const Lanes w[GROUP])
{
    Lanes m[GROUP / 2];
    for (size_t k = 0; k < GROUP / 2; k++)
        m[k] = LARGER(w[k], w[k + GROUP / 2]);
    for (size_t half = GROUP / 4; half; half /= 2)
        for (size_t k = 0; k < half; k++)
            m[k] = LARGER(m[k], m[k + half]);
    *most = m[0];
}

/* Q8 of a group: the scale is max|w| / 127 rounded to FP16, and weights are counted in the rounded scale. w [k][row] */
INLINE void quantize_q8(LaneBits out[GROUP / 4], uint16_t half[ROWS_AT_ONCE], const Lanes w[GROUP], const Lanes *most)
{
    Lanes scale = (Lanes)((LaneBits)*most & INT32_MAX) / 127, inverse;
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

/* Q4 of a group. The largest weight is tried as each of `ends`, -8 being what it plainly would be. The whole numbers q
 * that one try gives are matched best by the scale sum(w q) / sum(q q), and that try is best which makes sum(w q)^2 /
 * sum(q q) largest: the squares of what is left add up to sum(w w) less that. Sums are of even k and of odd k, then of
 * both. */
INLINE void quantize_q4(LaneBits out[GROUP / 8], uint16_t half[ROWS_AT_ONCE], const Lanes w[GROUP], const Lanes *most)
{
    static const float ends[] = {-8.8f, -8.4f, -8, -7.6f, 7.2f, 6.8f};
    const Lanes zero = {0};
    Lanes scale = *most / -8, inverse, best = zero;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        Lanes wq[2] = {zero, zero}, qq[2] = {zero, zero};
        inverse = ends[i] / *most;
        for (size_t k = 0; k < GROUP; k++) {
            Lanes v = w[k] * inverse;
            if (ends[i] < 0)
                round_lanes(&v, -8, 7);
            else
                v += MAGIC; /* is within +-7 */
            v -= MAGIC;
            wq[k % 2] += w[k] * v;
            qq[k % 2] += v * v;
        }
        wq[0] += wq[1];
        qq[0] += qq[1];
        Lanes good = wq[0] * wq[0] / qq[0];
        scale = CHOOSE(good > best, wq[0] / qq[0], scale);
        best = CHOOSE(good > best, good, best);
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

/* ---- kernels in use ---------------------------------------------------------------------------------------------- */

static const Kernels kernels_scalar = {
    .dots = {dots_f32_scalar, dots_bf16_scalar, dots_f16_scalar},
    .q8 = q8_scalar,
    .q4 = q4_scalar,
    .inputs = inputs_scalar,
    .bf16 = convert_bf16_scalar,
    .f16 = convert_f16_scalar,
    .cut = SIZE_MAX,
};

static const Kernels *kernels(void)
{
    const Kernels *k = cpu_level() == CPU_NEON ? kernels_neon() : kernels_x86(cpu_level());
    return k ? k : &kernels_scalar;
}

static atomic_bool rounding_allowed;

void matmul_allow_rounding(bool allow)
{
    atomic_store(&rounding_allowed, allow);
}

void convert_bf16(float *out, const void *in, size_t n)
{
    kernels()->bf16(out, in, n);
}

void convert_f16(float *out, const void *in, size_t n)
{
    kernels()->f16(out, in, n);
}

/* ---- rows of a matrix -------------------------------------------------------------------------------------------- */

static size_t element_bytes(WeightType type)
{
    return type == WEIGHT_F32 ? 4 : 2;
}

static bool is_quantized(WeightType type)
{
    return type == WEIGHT_Q8 || type == WEIGHT_Q4;
}

/* n numbers of a matrix that is not quantised, from a row's column begin on. */
static void widen(float *out, const Matrix *w, size_t row, size_t begin, size_t n)
{
    const unsigned char *p = (const unsigned char *)w->data + (row * w->cols + begin) * element_bytes(w->type);
    if (w->type == WEIGHT_BF16)
        convert_bf16(out, p, n);
    else if (w->type == WEIGHT_F16)
        convert_f16(out, p, n);
    else
        memcpy(out, p, n * sizeof *out);
}

void matmul_row(float *out, const Matrix *w, size_t row)
{
    if (!is_quantized(w->type)) {
        widen(out, w, row, 0, w->cols);
        return;
    }
    size_t groups = w->cols / GROUP, side = row % SIDE_BY_SIDE;
    const unsigned char *block = (const unsigned char *)w->data + row / SIDE_BY_SIDE * block_bytes(w->type, groups);
    for (size_t g = 0; g < groups; g++) {
        float scale = f16_to_f32(load_u16(block + scales_at(w->type, g), side));
        for (size_t k = 0; k < GROUP; k++)
            out[g * GROUP + k] = (float)quant(w->type, block + quants_at(w->type, g), side, k) * scale;
    }
}

/* ---- quantising a matrix ----------------------------------------------------------------------------------------- */

size_t quantized_size(WeightType type, size_t rows, size_t cols)
{
    size_t blocks = rows / SIDE_BY_SIDE + (rows % SIDE_BY_SIDE != 0), bytes;
    return __builtin_mul_overflow(blocks, block_bytes(type, cols / GROUP), &bytes) ? SIZE_MAX : bytes;
}

typedef struct {
    const Matrix *dst, *src;
    unsigned char *storage;
    atomic_size_t bad_row; /* the first with a NaN or an infinity; SIZE_MAX: none */
} Quantizing;

static void note_bad_row(Quantizing *z, size_t row)
{
    size_t seen = atomic_load(&z->bad_row);
    while (row < seen && !atomic_compare_exchange_weak(&z->bad_row, &seen, row)) {
    }
}

/* Columns that a block is widened at a time, and the distance of its rows in memory: not a multiple of a page. */
#define CHUNK 512
#define CHUNK_STRIDE (CHUNK + 16)

/* A group of a chunk, turned: w [k][row]; and its largest weights. Notes rows that hold an infinity or a NaN. */
INLINE void turn_group(Quantizing *z, Lanes w[GROUP], Lanes *most, const float *chunk, size_t first_row)
{
    for (size_t k = 0; k < GROUP; k++)
        for (size_t r = 0; r < ROWS_AT_ONCE; r++)
            w[k][r] = chunk[r * CHUNK_STRIDE + k];
    largest_lanes(most, w);
    for (size_t r = 0; r < ROWS_AT_ONCE; r++)
        if ((to_bits((*most)[r]) & 0x7fffffff) >= 0x7f800000)
            note_bad_row(z, first_row + r);
}

INLINE void quantize_blocks(Quantizing *z, size_t begin, size_t end)
{
    WeightType type = z->dst->type;
    size_t cols = z->dst->cols, groups = cols / GROUP;
    float chunk[SIDE_BY_SIDE * CHUNK_STRIDE] = {0};
    Lanes w[GROUP], most;
    LaneBits out[GROUP / 4] = {{0}};
    uint16_t half[ROWS_AT_ONCE];
    for (size_t b = begin; b < end; b++) {
        size_t first = b * SIDE_BY_SIDE,
               rows = z->src->rows - first < SIDE_BY_SIDE ? z->src->rows - first : SIDE_BY_SIDE;
        unsigned char *block = z->storage + b * block_bytes(type, groups);
        for (size_t r = rows; r < SIDE_BY_SIDE; r++)
            memset(chunk + r * CHUNK_STRIDE, 0, CHUNK * sizeof *chunk);
        for (size_t g = 0; g < groups + groups % 2; g++) {
            size_t k = g * GROUP % CHUNK, left = cols - (g < groups ? g * GROUP : cols);
            for (size_t r = 0; r < rows && k == 0; r++)
                widen(chunk + r * CHUNK_STRIDE, z->src, first + r, g * GROUP, left < CHUNK ? left : CHUNK);
            if (g == groups)
                memset(chunk, 0, sizeof chunk);
            for (size_t r = 0; r < SIDE_BY_SIDE; r += ROWS_AT_ONCE) {
                turn_group(z, w, &most, chunk + r * CHUNK_STRIDE + k, first + r);
                if (type == WEIGHT_Q8)
                    quantize_q8(out, half, w, &most);
                else
                    quantize_q4(out, half, w, &most);
                for (size_t v = 0; v < quants_bytes(type) / 64; v++)
                    memcpy(block + quants_at(type, g) + 64 * v + 4 * r, &out[v], sizeof *out);
                memcpy(block + scales_at(type, g) + 2 * r, half, sizeof half);
            }
        }
    }
}

/* The same code for each width of vectors. */
#define QUANTIZE_BLOCKS(name, target)                                                                                  \
    target static void name(void *context, size_t begin, size_t end, int thread)                                       \
    {                                                                                                                  \
        (void)thread;                                                                                                  \
        quantize_blocks(context, begin, end);                                                                          \
    }

QUANTIZE_BLOCKS(quantize_blocks_plain, )
#ifdef __x86_64__
QUANTIZE_BLOCKS(quantize_blocks_avx2, __attribute__((target("avx2"))))
QUANTIZE_BLOCKS(quantize_blocks_avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

static ThreadsBody *quantize_body(void)
{
#ifdef __x86_64__
    if (cpu_level() != CPU_SCALAR)
        return cpu_level() == CPU_AVX2 ? quantize_blocks_avx2 : quantize_blocks_avx512;
#endif
    return quantize_blocks_plain;
}

int quantize_matrix(const Matrix *dst, void *storage, const Matrix *src, size_t *bad_row)
{
    Quantizing z = {.dst = dst, .src = src, .storage = storage, .bad_row = SIZE_MAX};
    threads_for((dst->rows + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE, 4, quantize_body(), &z);
    *bad_row = atomic_load(&z.bad_row);
    return *bad_row == SIZE_MAX ? 0 : -1;
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

static size_t align_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* A thread's own: the running sums of a tile, one row as float32, and a panel of rows as BF16. */
#define SUMS_BYTES (sizeof(float) * PANEL_ROWS * TILE_TOKENS * LANES)

static size_t thread_bytes(size_t cols)
{
    return SUMS_BYTES + align_up(cols * sizeof(float)) + align_up(PANEL_ROWS * cols * sizeof(uint16_t));
}

/* n vectors rounded: up to 2 bytes a number, and for each group a scale and a sum. */
static size_t inputs_bytes(size_t n, size_t cols)
{
    return align_up(2 * n * cols) + 2 * align_up(4 * n * (cols / GROUP));
}

int workspace_init(Workspace *ws, size_t max_cols, size_t max_n, size_t head_dim, size_t group, char err[512])
{
    size_t threads = (size_t)threads_count();
    size_t attention = threads * 64 * group * (head_dim + ATTENTION_BLOCK + 8) * sizeof(float);
    size_t size = threads * thread_bytes(max_cols) + inputs_bytes(max_n, max_cols);
    size = align_up(size > attention ? size : attention);
    *ws = (Workspace){0};
    if (posix_memalign(&ws->memory, 64, size))
        return fail(err, "out of memory for a workspace of %zu bytes", size);
    ws->size = size;
    return 0;
}

void workspace_free(Workspace *ws)
{
    free(ws->memory);
    *ws = (Workspace){0};
}

/* ---- one piece of a product -------------------------------------------------------------------------------------- */

/* What the threads share. Rows of all products are counted in units, one product after the other, each product's last
 * unit being as short as it is; vectors in parts of TILE_TOKENS. The loop's items are unit * parts + part. */
typedef struct {
    const Product *products;
    size_t count;
    const Kernels *kernels;
    const float *x; /* [n][cols] */
    size_t n, cols;
    bool few; /* vectors: FEW at most; there is one part, and units next to each other are done together */
    size_t unit, units, parts;
    size_t threads, least;  /* items of a piece, at least */
    uint16_t *narrow;       /* [n][cols], the inputs as BF16; NULL: not rounded */
    int8_t *q;              /* [n][cols], the inputs as integers, if a matrix is quantised */
    float *scale;           /* [n][cols / GROUP] */
    int32_t *minus_sum;     /* [n][cols / GROUP]: sums of groups of q, negative */
    unsigned char *scratch; /* [thread][thread_bytes(cols)] */
} Job;

/* Rows begin .. end of a product, vectors t .. t + n. */
typedef struct {
    const Product *p;
    size_t begin, end, t, n;
} Piece;

/* A sum is whole: bias, and what was there, are added now. tile [n][stride] holds the rows from row on. */
static void finish(const Piece *b, const float *tile, size_t stride, size_t row, size_t rows)
{
    for (size_t i = 0; i < b->n; i++) {
        float *out = b->p->out + (b->t + i) * b->p->out_stride + row;
        const float *in = tile + i * stride, *bias = b->p->bias ? b->p->bias + row : NULL;
        for (size_t r = 0; r < rows; r++) {
            float v = bias ? in[r] + bias[r] : in[r];
            out[r] = b->p->add ? out[r] + v : v;
        }
    }
}

/* Columns are cut into equal pieces, multiples of LANES, of at most `most`. */
static size_t cut_columns(size_t cols, size_t most)
{
    size_t pieces = (cols - 1) / most + 1;
    return ((cols - 1) / pieces / LANES + 1) * LANES;
}

/* One tile: rows row .. row + rows with the piece's vectors. Of many vectors a few stay in the first cache while the
 * rows pass by: so many columns are taken at a time that they fit, and the running sums wait in memory meanwhile. from:
 * the matrix's numbers, or (pairs) such as were made BF16. */
static void float_tile(const Job *j, const Piece *b, DotsKernel *kernel, const unsigned char *from, size_t bytes,
                       size_t row, size_t rows, float *sums)
{
    float tile[TILE_TOKENS * PANEL_ROWS];
    bool pairs = kernel == j->kernels->pairs;
    size_t cols = j->cols, cut = j->few ? cols : cut_columns(cols, j->kernels->cut * (pairs ? 2 : 1)),
           stride = (rows + 3) / 4 * 4;
    for (size_t i = 0; i < b->n && !j->few; i++) /* where the results go is asked for in time */
        for (size_t r = 0; r < rows; r += 64 / sizeof(float))
            __builtin_prefetch(b->p->out + (b->t + i) * b->p->out_stride + row + r, 1);
    for (size_t k = 0; k < cols; k += cut) {
        const void *x = pairs ? (const void *)(j->narrow + b->t * cols + k) : (const void *)(j->x + b->t * cols + k);
        kernel(&(Dots){.w = from + k * bytes,
                       .row_bytes = cols * bytes,
                       .rows = rows,
                       .x = x,
                       .x_stride = cols,
                       .n = b->n,
                       .cols = cols - k < cut ? cols - k : cut,
                       .sums = sums,
                       .first = k == 0,
                       .last = cols - k <= cut,
                       .out = tile,
                       .out_stride = stride});
    }
    finish(b, tile, stride, row, rows);
}

/* The piece's rows as BF16 in the thread's panel; ready: they are there already. */
static const unsigned char *narrow_rows(const Job *j, const Piece *b, unsigned char *scratch, bool ready)
{
    float *row = (float *)(void *)(scratch + SUMS_BYTES);
    uint16_t *panel = (uint16_t *)(void *)(scratch + SUMS_BYTES + align_up(j->cols * sizeof *row));
    for (size_t r = b->begin; r < b->end && !ready; r++) {
        widen(row, b->p->w, r, 0, j->cols);
        j->kernels->narrow(panel + (r - b->begin) * j->cols, row, j->cols);
    }
    return (unsigned char *)panel;
}

static void floats(const Job *j, const Piece *b, unsigned char *scratch, bool ready)
{
    const Matrix *w = b->p->w;
    float *sums = (float *)(void *)scratch;
    if (j->narrow && !j->few && w->type != WEIGHT_BF16) {
        const unsigned char *panel = narrow_rows(j, b, scratch, ready);
        float_tile(j, b, j->kernels->pairs, panel, sizeof(uint16_t), b->begin, b->end - b->begin, sums);
        return;
    }
    DotsKernel *kernel = j->narrow && w->type == WEIGHT_BF16 ? j->kernels->pairs : j->kernels->dots[w->type];
    size_t most = TILE_TOKENS * PANEL_ROWS / b->n / 4 * 4, bytes = element_bytes(w->type);
    for (size_t row = b->begin; row < b->end; row += most) {
        const unsigned char *from = (const unsigned char *)w->data + row * w->cols * bytes;
        float_tile(j, b, kernel, from, bytes, row, b->end - row < most ? b->end - row : most, sums);
    }
}

static void quantized(const Job *j, const Piece *b)
{
    float tile[TILE_TOKENS * PANEL_ROWS];
    const Matrix *w = b->p->w;
    size_t groups = j->cols / GROUP, most = TILE_TOKENS * PANEL_ROWS / b->n / SIDE_BY_SIDE * SIDE_BY_SIDE;
    for (size_t row = b->begin; row < b->end; row += most) {
        size_t rows = b->end - row < most ? b->end - row : most, blocks = (rows + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE;
        const unsigned char *p = (const unsigned char *)w->data + row / SIDE_BY_SIDE * block_bytes(w->type, groups);
        (w->type == WEIGHT_Q8 ? j->kernels->q8 : j->kernels->q4)(&(QuantDots){.w = p,
                                                                              .blocks = blocks,
                                                                              .groups = groups,
                                                                              .q = j->q + b->t * j->cols,
                                                                              .scale = j->scale + b->t * groups,
                                                                              .minus_sum = j->minus_sum + b->t * groups,
                                                                              .n = b->n,
                                                                              .out = tile,
                                                                              .out_stride = blocks * SIDE_BY_SIDE});
        finish(b, tile, blocks * SIDE_BY_SIDE, row, rows);
    }
}

/* ---- products in parallel ---------------------------------------------------------------------------------------- */

static size_t units_of(const Matrix *w, size_t unit)
{
    return w->rows / unit + (w->rows % unit != 0);
}

/* Pieces shrink towards the end: each round gives half of what is left to the threads, so that they end together,
 * whatever their speed, and take pieces rarely. Returns where piece number p begins. */
static size_t piece_begin(const Job *j, size_t p)
{
    size_t total = j->units * j->parts, begin = 0;
    while (begin < total) {
        size_t size = (total - begin) / (2 * j->threads);
        size = size < j->least ? j->least : size;
        if (p <= j->threads)
            return begin + p * size < total ? begin + p * size : total;
        p -= j->threads;
        begin += j->threads * size;
    }
    return total;
}

/* Items begin .. end, which lie in one product and, with many vectors, in one unit. */
static void do_items(const Job *j, const Product *p, size_t begin, size_t end, size_t first_unit,
                     unsigned char *scratch)
{
    size_t row = (begin / j->parts - first_unit) * j->unit,
           stop = ((end + j->parts - 1) / j->parts - first_unit) * j->unit;
    Piece b = {.p = p, .begin = row, .end = stop < p->w->rows ? stop : p->w->rows};
    for (size_t part = begin % j->parts; part < begin % j->parts + (j->few ? 1 : end - begin); part++) {
        b.t = part * TILE_TOKENS;
        b.n = j->n - b.t < TILE_TOKENS ? j->n - b.t : TILE_TOKENS;
        if (is_quantized(p->w->type))
            quantized(j, &b);
        else
            floats(j, &b, scratch, part > begin % j->parts);
    }
}

/* Piece number `piece`, product by product; with many vectors, unit by unit. */
static void do_piece(void *context, size_t piece, size_t end_piece, int thread)
{
    const Job *j = context;
    unsigned char *scratch = j->scratch + (size_t)thread * thread_bytes(j->cols);
    size_t at = piece_begin(j, piece), end = piece_begin(j, end_piece), first_unit = 0;
    for (size_t i = 0; i < j->count && at < end; i++) {
        size_t next_unit = first_unit + units_of(j->products[i].w, j->unit);
        while (at < end && at < next_unit * j->parts) {
            size_t stop = j->few ? next_unit : (at / j->parts + 1) * j->parts;
            stop = stop < end ? stop : end;
            do_items(j, &j->products[i], at, stop, first_unit, scratch);
            at = stop;
        }
        first_unit = next_unit;
    }
}

static void quantize_inputs(void *context, size_t begin, size_t end, int thread)
{
    const Job *j = context;
    size_t groups = j->cols / GROUP, first = begin * groups;
    (void)thread;
    j->kernels->inputs(j->q + first * GROUP, j->scale + first, j->minus_sum + first, j->x + first * GROUP,
                       (end - begin) * groups);
}

static void narrow_inputs(void *context, size_t begin, size_t end, int thread)
{
    const Job *j = context;
    (void)thread;
    j->kernels->narrow(j->narrow + begin * j->cols, j->x + begin * j->cols, (end - begin) * j->cols);
}

/* Rounds the inputs, for those products that want it. */
static void round_inputs(Job *j, unsigned char *memory)
{
    bool integers = false;
    for (size_t i = 0; i < j->count; i++)
        integers = integers || is_quantized(j->products[i].w->type);
    size_t numbers = align_up(2 * j->n * j->cols), groups = align_up(4 * j->n * (j->cols / GROUP));
    j->scale = (float *)(void *)(memory + numbers);
    j->minus_sum = (int32_t *)(void *)(memory + numbers + groups);
    if (integers) {
        j->q = (int8_t *)memory;
        threads_for(j->n, 8, quantize_inputs, j);
    } else if (j->kernels->narrow && j->n > 1 && atomic_load(&rounding_allowed)) {
        j->narrow = (uint16_t *)(void *)memory;
        threads_for(j->n, 8, narrow_inputs, j);
    }
}

/* What a piece of a product is worth taking for: bytes of weights. */
#define LEAST_BYTES 32768

void matmul(const Product *products, size_t count, const float *x, size_t n, Workspace *ws)
{
    size_t cols = products[0].w->cols, threads = (size_t)threads_count(), pieces = 0, rows = 0;
    Job j = {.products = products,
             .count = count,
             .kernels = kernels(),
             .x = x,
             .n = n,
             .cols = cols,
             .threads = threads,
             .least = 1};
    j.parts = (n + TILE_TOKENS - 1) / TILE_TOKENS;
    j.few = n <= FEW;
    j.unit = j.few ? SIDE_BY_SIDE : PANEL_ROWS;
    if (j.parts == 1)
        j.least = 1 + LEAST_BYTES / n / (j.unit * cols);
    for (size_t i = 0; i < count; i++)
        rows += products[i].w->rows;
    while (j.unit > 2 * SIDE_BY_SIDE && rows / j.unit * j.parts < 16 * threads)
        j.unit = j.unit / 2 / SIDE_BY_SIDE * SIDE_BY_SIDE;
    for (size_t i = 0; i < count; i++) {
        assert(products[i].w->cols == cols);
        j.units += units_of(products[i].w, j.unit);
    }
    assert(ws->size >= threads * thread_bytes(cols) + inputs_bytes(n, cols));
    j.scratch = ws->memory;
    round_inputs(&j, j.scratch + threads * thread_bytes(cols));
    while (piece_begin(&j, pieces) < j.units * j.parts)
        pieces++;
    threads_for(pieces, 1, do_piece, &j);
}
