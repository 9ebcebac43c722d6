/* The kernels of attention.c in vectors, written once for vectors of any width. Part of attention.c, which includes
 * this file once for each instruction set, with KERNELS_AVX512, KERNELS_AVX2 or KERNELS_NEON defined. A set defines:
 *
 *   TARGET, NAME(f)              the attribute that lets a function use the set; f with the set's suffix
 *   V, WIDTH                     a vector, and how many floats it holds
 *   LOAD STORE SET               at any address; SET repeats one float
 *   LOAD_N STORE_N               the first n floats, those beyond are zeros and stay as they are in memory
 *   ADD SUB MUL DIV NEGATE       FMA(a, b, c) = a * b + c
 *   V_MAX V_MIN HAS_NAN              V_MAX(a, b) = a > b ? a : b, so that a NaN in b stays and one in a goes
 *   TIMES_POWER_OF_2(p, n, t)    p * 2^n, rounded once; n is whole, t = n + ROUND_F32
 *   SCORE_ROWS, SCORE_VECTORS    queries x vectors of keys whose scores are computed together
 *   VALUE_ROWS, VALUE_VECTORS    queries x vectors of a value that are summed together
 *
 * Results have the bits of the scalar code: lanes are different outputs, or the sixteen running sums.
 */

#if defined(KERNELS_AVX512)

#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define NAME(f) f##_avx512
#define V __m512
#define WIDTH 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define LOAD_N(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define STORE_N(p, x, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), x)
#define SET _mm512_set1_ps
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define MUL _mm512_mul_ps
#define DIV _mm512_div_ps
#define FMA _mm512_fmadd_ps
#define V_MAX _mm512_max_ps /* the second if one is not a number: just a > b ? a : b */
#define V_MIN _mm512_min_ps
#define NEGATE(x) _mm512_xor_ps(x, _mm512_set1_ps(-0.0f))
#define HAS_NAN(x) (_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0)
#define TIMES_POWER_OF_2(p, n, t) ((void)(t), _mm512_scalef_ps(p, n))
#define SCORE_ROWS 4
#define SCORE_VECTORS 2
#define VALUE_ROWS 8
#define VALUE_VECTORS 4

#elif defined(KERNELS_AVX2)

/* Eight ones, then eight zeros: n ones and the rest zeros start at 8 - n. */
static const int32_t avx2_masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

#define TARGET __attribute__((target("avx2,fma")))

TARGET static inline __m256i first_avx2(size_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(avx2_masks + 8 - (n < 8 ? n : 8)));
}

TARGET static inline __m256 exponent_avx2(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* t is n + ROUND_F32, n being whole */
TARGET static inline __m256 times_power_of_2_avx2(__m256 p, __m256 t)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(ROUND_F32)));
    __m256i half = _mm256_srai_epi32(n, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, exponent_avx2(half)), exponent_avx2(_mm256_sub_epi32(n, half)));
}

#define NAME(f) f##_avx2
#define V __m256
#define WIDTH 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define LOAD_N(p, n) _mm256_maskload_ps(p, first_avx2(n))
#define STORE_N(p, x, n) _mm256_maskstore_ps(p, first_avx2(n), x)
#define SET _mm256_set1_ps
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
#define SCORE_ROWS 4
#define SCORE_VECTORS 2
#define VALUE_ROWS 4
#define VALUE_VECTORS 2

#elif defined(KERNELS_NEON)

static inline float32x4_t load_n_neon(const float *p, size_t n)
{
    float f[4] = {0};
    memcpy(f, p, (n < 4 ? n : 4) * sizeof *f);
    return vld1q_f32(f);
}

static inline void store_n_neon(float *p, float32x4_t x, size_t n)
{
    float f[4];
    vst1q_f32(f, x);
    memcpy(p, f, (n < 4 ? n : 4) * sizeof *f);
}

static inline float32x4_t exponent_neon(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

/* t is n + ROUND_F32, n being whole */
static inline float32x4_t times_power_of_2_neon(float32x4_t p, float32x4_t t)
{
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(vdupq_n_f32(ROUND_F32)));
    int32x4_t half = vshrq_n_s32(n, 1);
    return vmulq_f32(vmulq_f32(p, exponent_neon(half)), exponent_neon(vsubq_s32(n, half)));
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
#define SCORE_ROWS 4
#define SCORE_VECTORS 4
#define VALUE_ROWS 4
#define VALUE_VECTORS 4

#endif

#define SUMS (16 / WIDTH) /* vectors that hold sixteen running sums */

TARGET static inline float NAME(add_sum_vectors)(const V *sums)
{
    float s[16];
    EACH(i, SUMS)
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

TARGET static inline V NAME(exp)(V x)
{
    x = V_MAX(SET(EXP_LEAST), x); /* a NaN stays */
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

TARGET static void NAME(rmsnorm)(float *out, const float *x, const float *weight, size_t n, float eps)
{
    V sums[SUMS];
    size_t i = 0;
    EACH(j, SUMS)
        sums[j] = SET(0.0f);
    for (; i + 16 <= n; i += 16)
        EACH(j, SUMS) {
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

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* sum[r][i] = sum over d = lane, lane + 16, ... of q[r][d] * k_j[d], one of a dot product's sixteen, for vectors i of
 * keys j. The number of rows is known to the compiler. At each step `lines` cache lines at t->ahead are sent for. */
TARGET ALWAYS_INLINE void NAME(running_sum)(V (*sum)[SCORE_VECTORS], ScoreTile *t, size_t lane, size_t rows)
{
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            sum[r][i] = SET(0.0f);
    for (size_t d = lane; d < t->head_dim; d += 16) {
        V key[SCORE_VECTORS];
        EACH(i, SCORE_VECTORS)
            key[i] = LOAD(t->k + i * WIDTH / 16 * t->head_dim * 16 + d * 16 + i * WIDTH % 16);
        for (size_t i = 0; i < t->lines; i++, t->ahead += 16)
            __builtin_prefetch(t->ahead);
        EACH(r, rows) {
            V query = SET(t->q[r * t->head_dim + d]);
            EACH(i, SCORE_VECTORS)
                sum[r][i] = FMA(query, key[i], sum[r][i]);
        }
    }
}

TARGET ALWAYS_INLINE void NAME(add)(V (*a)[SCORE_VECTORS], V (*b)[SCORE_VECTORS], size_t rows)
{
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            a[r][i] = ADD(a[r][i], b[r][i]);
}

/* The sums are added as soon as the tree allows, so that few are alive at a time. A quarter is the sums l, l + 8, l + 4
 * and l + 12; the first two quarters, l = 0 and l = 2, make a half. */
TARGET ALWAYS_INLINE void NAME(score_tile)(float *score, ScoreTile *t, float scale, size_t rows)
{
    V a[SCORE_ROWS][SCORE_VECTORS], b[SCORE_ROWS][SCORE_VECTORS], c[SCORE_ROWS][SCORE_VECTORS];
    V before[2][SCORE_ROWS][SCORE_VECTORS]; /* [1]: the half's first quarter, [0]: the first half */
    for (size_t quarter = 0; quarter < 4; quarter++) {
        size_t l = quarter / 2 + quarter % 2 * 2;
        NAME(running_sum)(a, t, l, rows);
        NAME(running_sum)(b, t, l + 8, rows);
        NAME(add)(a, b, rows);
        NAME(running_sum)(b, t, l + 4, rows);
        NAME(running_sum)(c, t, l + 12, rows);
        NAME(add)(b, c, rows);
        NAME(add)(a, b, rows);
        if (quarter % 2)
            NAME(add)(a, before[1], rows);
        if (quarter == 3)
            NAME(add)(a, before[0], rows);
        EACH(r, rows)
            EACH(i, SCORE_VECTORS)
                before[quarter % 2 == 0][r][i] = a[r][i];
    }
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            STORE(score + r * ATTENTION_BLOCK + i * WIDTH, MUL(SET(scale), a[r][i]));
}

/* Up to SCORE_ROWS rows are a tile; the compiler makes a version for each number of them. While they meet some keys,
 * the keys after these are sent for, line by line, so that memory is always busy: the first tiles do a line at a step,
 * a single tile does all. */
TARGET static void NAME(scores)(float *score, const float *q, size_t rows, const float *k, size_t head_dim, float scale,
                                size_t from, size_t to)
{
    const size_t keys = SCORE_VECTORS * WIDTH, lines = keys / 16; /* lines that a step of a tile's sums meets */
    for (size_t j = from * 16 / keys * keys; j < to * 16; j += keys) {
        ScoreTile t = {q, k + j * head_dim, k + (j + keys) * head_dim, head_dim, 0};
        for (size_t i = 0; i < rows; i += SCORE_ROWS, t.q += SCORE_ROWS * head_dim) {
            size_t r = rows - i < SCORE_ROWS ? rows - i : SCORE_ROWS;
            t.lines = rows <= SCORE_ROWS ? lines : i / SCORE_ROWS < lines;
            BY_ROWS(r, SCORE_ROWS, NAME(score_tile)(score + i * ATTENTION_BLOCK + j, &t, scale, ROWS))
        }
    }
}

/* Scores beside the range become -infinity, which is the largest of nothing, and then a weight of zero. */
TARGET static void NAME(softmax)(float *score, size_t from, size_t to, float *max, float *sum)
{
    size_t begin = from / 16 * 16, end = (to + 15) / 16 * 16;
    for (size_t j = begin; j < from; j++)
        score[j] = -INFINITY;
    for (size_t j = to; j < end; j++)
        score[j] = -INFINITY;
    V m = SET(-INFINITY), sums[SUMS];
    for (size_t j = begin; j < end; j += WIDTH)
        m = V_MAX(LOAD(score + j), m);
    float largest = NAME(largest_lane)(m);
    m = SET(largest);
    EACH(i, SUMS)
        sums[i] = SET(0.0f);
    for (size_t j = begin; j < end; j += 16)
        EACH(i, SUMS) {
            V p = NAME(exp)(SUB(LOAD(score + j + i * WIDTH), m));
            STORE(score + j + i * WIDTH, p);
            sums[i] = ADD(sums[i], p);
        }
    *max = largest;
    *sum = NAME(add_sum_vectors)(sums);
}

#define KEYS_AHEAD 32 /* about 8 KB: what memory sends while the sums of that much are made */

/* rows x vectors of the sums of weighted values. With one vector, it may have n < WIDTH floats: a head's last. */
TARGET ALWAYS_INLINE void NAME(value_tile)(float *a, const float *p, const float *v, size_t head_dim, size_t from,
                                           size_t to, size_t rows, size_t vectors, size_t n)
{
    V sum[VALUE_ROWS][VALUE_VECTORS];
    EACH(r, rows)
        EACH(i, vectors)
            sum[r][i] = vectors > 1 ? LOAD(a + r * head_dim + i * WIDTH) : LOAD_N(a + r * head_dim, n);
    for (size_t j = from; j < to; j++) {
        V value[VALUE_VECTORS];
        EACH(i, vectors) {
            __builtin_prefetch(v + (j + KEYS_AHEAD) * head_dim + i * WIDTH);
            value[i] = vectors > 1 ? LOAD(v + j * head_dim + i * WIDTH) : LOAD_N(v + j * head_dim, n);
        }
        EACH(r, rows) {
            V weight = SET(p[r * ATTENTION_BLOCK + j]);
            EACH(i, vectors)
                sum[r][i] = FMA(weight, value[i], sum[r][i]);
        }
    }
    EACH(r, rows)
        EACH(i, vectors)
            if (vectors > 1)
                STORE(a + r * head_dim + i * WIDTH, sum[r][i]);
            else
                STORE_N(a + r * head_dim, sum[r][i], n);
}

TARGET ALWAYS_INLINE void NAME(value_columns)(float *a, const float *p, const float *v, size_t head_dim, size_t from,
                                              size_t to, size_t rows)
{
    size_t d = 0;
    for (; d + VALUE_VECTORS * WIDTH <= head_dim; d += VALUE_VECTORS * WIDTH)
        NAME(value_tile)(a + d, p, v + d, head_dim, from, to, rows, VALUE_VECTORS, WIDTH);
    for (; d < head_dim; d += WIDTH)
        NAME(value_tile)(a + d, p, v + d, head_dim, from, to, rows, 1, head_dim - d < WIDTH ? head_dim - d : WIDTH);
}

TARGET static void NAME(values)(float *a, const float *p, size_t rows, const float *v, size_t head_dim, size_t from,
                                size_t to)
{
    for (size_t i = 0; i < rows; i += VALUE_ROWS, a += VALUE_ROWS * head_dim, p += VALUE_ROWS * ATTENTION_BLOCK) {
        size_t r = rows - i < VALUE_ROWS ? rows - i : VALUE_ROWS;
        BY_ROWS(r, VALUE_ROWS, NAME(value_columns)(a, p, v, head_dim, from, to, ROWS))
    }
}

TARGET static void NAME(add_scaled)(float *out, const float *x, float f, const float *y, size_t n)
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        STORE(out + i, FMA(LOAD(x + i), SET(f), LOAD(y + i)));
    if (i < n)
        STORE_N(out + i, FMA(LOAD_N(x + i, n - i), SET(f), LOAD_N(y + i, n - i)), n - i);
}

#undef NAME
#undef TARGET
#undef V
#undef WIDTH
#undef LOAD
#undef STORE
#undef LOAD_N
#undef STORE_N
#undef SET
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef FMA
#undef V_MAX
#undef V_MIN
#undef NEGATE
#undef HAS_NAN
#undef TIMES_POWER_OF_2
#undef SCORE_ROWS
#undef SCORE_VECTORS
#undef VALUE_ROWS
#undef VALUE_VECTORS
#undef SUMS
#undef KEYS_AHEAD
