/* The vector code of attention.c, written for vectors of any width. attention.c includes this file once for each level,
 * and lanes_begin.h says what the names in capitals mean. Lanes are different keys of a strip, or different dimensions
 * of a value. */
#include "kernels/lanes_begin.h"

/* WIDTH numbers of a key or value, from number i on; the first n of them, if a value ends there. */
TARGET INLINE V NAME(numbers)(KvType type, const unsigned char *p, size_t i, size_t n)
{
    if (n == WIDTH)
        return type == KV_F32 ? LOAD((const float *)(const void *)p + i) : FROM_F16(p + 2 * i);
    if (type == KV_F32)
        return LOAD_N((const float *)(const void *)p + i, n);
    unsigned char some[2 * WIDTH] = {0};
    memcpy(some, p + 2 * i, 2 * n);
    return FROM_F16(some);
}

/* sum[r][i] = running sum number l of the dot products of row r with the keys of vector i: the sum over d = l, l + 16,
 * ... of q[r][d] * k_j[d]. The number of rows is known to the compiler. At each step t->lines cache lines are
 * prefetched. */
TARGET INLINE void NAME(running_sum)(KvType type, V (*sum)[SCORE_VECTORS], ScoreTile *t, size_t l, size_t rows)
{
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            sum[r][i] = SET(0.0f);
    for (size_t d = l; d < t->head_dim; d += SUMS) {
        V key[SCORE_VECTORS];
        EACH(i, SCORE_VECTORS)
            key[i] = NAME(numbers)(
                type, t->k, (i * WIDTH / KEY_STRIP * t->head_dim + d) * KEY_STRIP + i * WIDTH % KEY_STRIP, WIDTH);
        for (size_t i = 0; i < t->lines; i++, t->ahead += CACHE_LINE)
            __builtin_prefetch(t->ahead);
        EACH(r, rows) {
            V query = SET(t->q[r * t->head_dim + d]);
            EACH(i, SCORE_VECTORS)
                sum[r][i] = FMA(query, key[i], sum[r][i]);
        }
    }
}

TARGET INLINE void NAME(add)(V (*a)[SCORE_VECTORS], V (*b)[SCORE_VECTORS], size_t rows)
{
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            a[r][i] = ADD(a[r][i], b[r][i]);
}

/* The scores of a tile's rows for SCORE_VECTORS vectors of keys. The sixteen sums are added as soon as the tree allows,
 * so that few are held at a time: a quarter is the sums l, l + 8, l + 4 and l + 12, in the order l = 0, 2, 1, 3; the
 * first two quarters make the first half. */
TARGET INLINE void NAME(score_tile)(KvType type, float *score, ScoreTile *t, float scale, size_t rows)
{
    V a[SCORE_ROWS][SCORE_VECTORS], b[SCORE_ROWS][SCORE_VECTORS], c[SCORE_ROWS][SCORE_VECTORS];
    V before[2][SCORE_ROWS][SCORE_VECTORS]; /* [1]: the first quarter of a half, [0]: the first half */
    for (size_t quarter = 0; quarter < 4; quarter++) {
        size_t l = quarter / 2 + quarter % 2 * 2;
        NAME(running_sum)(type, a, t, l, rows);
        NAME(running_sum)(type, b, t, l + 8, rows);
        NAME(add)(a, b, rows);
        NAME(running_sum)(type, b, t, l + 4, rows);
        NAME(running_sum)(type, c, t, l + 12, rows);
        NAME(add)(b, c, rows);
        NAME(add)(a, b, rows);
        if (quarter % 2)
            NAME(add)(a, before[1], rows);
        if (quarter == 3)
            NAME(add)(a, before[0], rows);
        EACH(r, rows)
            EACH(i, SCORE_VECTORS)
                before[quarter % 2 ? 0 : 1][r][i] = a[r][i];
    }
    EACH(r, rows)
        EACH(i, SCORE_VECTORS)
            STORE(score + r * ATTENTION_BLOCK + i * WIDTH, MUL(SET(scale), a[r][i]));
}

/* Up to SCORE_ROWS rows make a tile. While the tiles meet some keys, the keys after these are prefetched line by line,
 * so that memory is always busy: by the first tiles, a line at each step, or all by a single tile. */
TARGET INLINE void NAME(scores_of)(KvType type, float *score, const float *q, size_t rows, const unsigned char *k,
                                   size_t head_dim, float scale, size_t from, size_t to)
{
    const size_t keys = SCORE_VECTORS * WIDTH, number = number_bytes(type);
    const size_t lines = MAX(keys * number / CACHE_LINE, 1); /* that a step meets */
    for (size_t j = from * KEY_STRIP / keys * keys; j < to * KEY_STRIP; j += keys) {
        const unsigned char *these = k + j * head_dim * number, *next = these + keys * head_dim * number;
        ScoreTile t = {q, these, next, head_dim, 0};
        for (size_t i = 0; i < rows; i += SCORE_ROWS, t.q += SCORE_ROWS * head_dim) {
            bool among_first = i / SCORE_ROWS < lines, only = rows <= SCORE_ROWS;
            t.lines = among_first ? 1 : 0;
            if (only)
                t.lines = lines;
            WITH_CONSTANT(MIN(rows - i, SCORE_ROWS), SCORE_ROWS,
                          NAME(score_tile)(type, score + i * ATTENTION_BLOCK + j, &t, scale, N));
        }
    }
}

TARGET static void NAME(scores)(KvType type, float *score, const float *q, size_t rows, const unsigned char *k,
                                size_t head_dim, float scale, size_t from, size_t to)
{
    if (type == KV_F32)
        NAME(scores_of)(KV_F32, score, q, rows, k, head_dim, scale, from, to);
    else
        NAME(scores_of)(KV_F16, score, q, rows, k, head_dim, scale, from, to);
}

/* Scores beside the range become -infinity, which changes no maximum, and then weights of zero, which change no sum. */
TARGET static void NAME(softmax)(float *score, size_t from, size_t to, float *max, float *sum)
{
    size_t begin = from / KEY_STRIP * KEY_STRIP, end = (to + KEY_STRIP - 1) / KEY_STRIP * KEY_STRIP;
    for (size_t j = begin; j < from; j++)
        score[j] = -INFINITY;
    for (size_t j = to; j < end; j++)
        score[j] = -INFINITY;
    V m = SET(-INFINITY), sums[SUMS / WIDTH];
    for (size_t j = begin; j < end; j += WIDTH)
        m = V_MAX(LOAD(score + j), m);
    float largest = NAME(largest_lane)(m);
    m = SET(largest);
    EACH(i, SUMS / WIDTH)
        sums[i] = SET(0.0f);
    for (size_t j = begin; j < end; j += SUMS)
        EACH(i, SUMS / WIDTH) {
            V p = NAME(exp)(SUB(LOAD(score + j + i * WIDTH), m));
            STORE(score + j + i * WIDTH, p);
            sums[i] = ADD(sums[i], p);
        }
    *max = largest;
    *sum = NAME(add_sum_vectors)(sums);
}

/* The sums of weighted values for `rows` rows and `vectors` vectors of the value's dimensions. A single vector may have
 * n < WIDTH of them: the last of a head. */
TARGET INLINE void NAME(value_tile)(KvType type, float *a, const float *p, const unsigned char *v, size_t head_dim,
                                    size_t from, size_t to, size_t rows, size_t vectors, size_t n)
{
    V sum[VALUE_ROWS][VALUE_VECTORS];
    EACH(r, rows)
        EACH(i, vectors)
            sum[r][i] = vectors > 1 ? LOAD(a + r * head_dim + i * WIDTH) : LOAD_N(a + r * head_dim, n);
    for (size_t j = from; j < to; j++) {
        V value[VALUE_VECTORS];
        EACH(i, vectors) {
            __builtin_prefetch(v + ((j + KEYS_AHEAD) * head_dim + i * WIDTH) * number_bytes(type));
            value[i] = NAME(numbers)(type, v, j * head_dim + i * WIDTH, n);
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

TARGET INLINE void NAME(value_columns)(KvType type, float *a, const float *p, const unsigned char *v, size_t head_dim,
                                       size_t from, size_t to, size_t rows)
{
    const size_t number = number_bytes(type);
    size_t d = 0;
    for (; d + VALUE_VECTORS * WIDTH <= head_dim; d += VALUE_VECTORS * WIDTH)
        NAME(value_tile)(type, a + d, p, v + d * number, head_dim, from, to, rows, VALUE_VECTORS, WIDTH);
    for (; d + WIDTH <= head_dim; d += WIDTH)
        NAME(value_tile)(type, a + d, p, v + d * number, head_dim, from, to, rows, 1, WIDTH);
    if (d < head_dim)
        NAME(value_tile)(type, a + d, p, v + d * number, head_dim, from, to, rows, 1, head_dim - d);
}

TARGET static void NAME(values)(KvType type, float *a, const float *p, size_t rows, const unsigned char *v,
                                size_t head_dim, size_t from, size_t to)
{
    for (size_t i = 0; i < rows; i += VALUE_ROWS, a += VALUE_ROWS * head_dim, p += VALUE_ROWS * ATTENTION_BLOCK) {
        size_t n = MIN(rows - i, VALUE_ROWS);
        if (type == KV_F32) {
            WITH_CONSTANT(n, VALUE_ROWS, NAME(value_columns)(KV_F32, a, p, v, head_dim, from, to, N));
        } else {
            WITH_CONSTANT(n, VALUE_ROWS, NAME(value_columns)(KV_F16, a, p, v, head_dim, from, to, N));
        }
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

#include "kernels/lanes_end.h"
