/* Weights x vectors.
 *
 * out = W x is, for each row of W, a dot product: the sum over k of w[k] * x[k]. What additions of floats give depends
 * on their order, so the order is fixed here once, and all faster code gives the same bits:
 *
 *     s[0..15] = 0;  s[k % 16] = fma(w[k], x[k], s[k % 16]) for k = 0, 1, ...
 *     s[l] += s[l + 8] for l < 8;  s[l] += s[l + 4] for l < 4;  then l + 2, then l + 1;  the sum is s[0]
 *
 * The sixteen running sums fit one vector register of 512 bits, two of 256 or four of 128.
 *
 * Q8 and Q4 keep one FP16 scale for each group of 32 weights of a row:
 *
 *     Q8: weight = scale * (byte - 128), byte 1..255        Q4: weight = scale * (nibble - 8), nibble 0..15
 *
 * The vector x is rounded the same way, to integers within +-127 with a float32 scale for each 32. Within a group all
 * is integers, and exact; then total = fma(sum, weight scale * x scale, total), group by group. How rows lie in memory
 * is drawn in matmul_internal.h.
 */
#include "kernels/matmul.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "kernels/matmul_internal.h"
#include "kernels/vector.h"

#define ANY_CPU /* no attribute */

/* ---- the dot product --------------------------------------------------------------------------------------------- */

/* Number k of a row that is stored as in the file, at any address. */
INLINE float weight(WeightType type, const unsigned char *row, size_t k)
{
    if (type == WEIGHT_F32)
        return load_f32(row, k);
    return type == WEIGHT_BF16 ? bf16_to_f32(load_u16(row, k)) : f16_to_f32(load_u16(row, k));
}

/* The definition: see the top of this file. */
INLINE float dot(WeightType type, const unsigned char *row, const float *x, size_t n)
{
    float s[SUMS] = {0};
    for (size_t k = 0; k < n; k++)
        s[k % SUMS] = fmaf(weight(type, row, k), x[k], s[k % SUMS]);
    return add_sums(s);
}

/* Each row with each vector. */
INLINE void dots(const Dots *d, WeightType type)
{
    for (size_t r = 0; r < d->rows; r++)
        for (size_t t = 0; t < d->n; t++)
            d->out[t * d->out_stride + r] =
                dot(type, d->w + r * d->row_bytes, (const float *)d->x + t * d->x_stride, d->cols);
}

KERNEL(ANY_CPU, dots_f32_scalar, Dots, dots(d, WEIGHT_F32))
KERNEL(ANY_CPU, dots_bf16_scalar, Dots, dots(d, WEIGHT_BF16))
KERNEL(ANY_CPU, dots_f16_scalar, Dots, dots(d, WEIGHT_F16))

/* ---- the quantized dot product ----------------------------------------------------------------------------------- */

/* Weight k of a row in a group, k = 0..31, without its scale: -127..127 or -8..7. */
static int quantized_weight(WeightType type, const unsigned char *group, size_t row, size_t k)
{
    if (type == WEIGHT_Q8)
        return group[weight_at(row, k)] - 128;
    int both = group[weight_at(row, k % 16)];
    return (k < 16 ? both & 15 : both >> 4) - 8;
}

static float weight_scale(WeightType type, const unsigned char *block, size_t group, size_t row)
{
    return f16_to_f32(load_u16(block + scales_at(type, group), row));
}

/* The definition: a row of a block times a vector of integers q [groups][GROUP] with scales [groups]. The sum of a
 * group is at most 32 * 128 * 127 and so exact as a float, too. */
static float quantized_dot(WeightType type, const unsigned char *block, size_t row, size_t groups, const int8_t *q,
                           const float *scale)
{
    float total = 0;
    for (size_t g = 0; g < groups; g++) {
        int32_t sum = 0;
        for (size_t k = 0; k < GROUP; k++)
            sum += quantized_weight(type, block + weights_at(type, g), row, k) * q[g * GROUP + k];
        total = fmaf((float)sum, weight_scale(type, block, g, row) * scale[g], total);
    }
    return total;
}

/* Each row of each block with each vector. */
static void quantized_dots(const QuantDots *d, WeightType type)
{
    for (size_t r = 0; r < d->blocks * BLOCK_ROWS; r++)
        for (size_t t = 0; t < d->n; t++)
            d->out[t * d->out_stride + r] =
                quantized_dot(type, d->w + r / BLOCK_ROWS * block_bytes(type, d->groups), r % BLOCK_ROWS, d->groups,
                              d->q + t * d->groups * GROUP, d->scale + t * d->groups);
}

KERNEL(ANY_CPU, q8_scalar, QuantDots, quantized_dots(d, WEIGHT_Q8))
KERNEL(ANY_CPU, q4_scalar, QuantDots, quantized_dots(d, WEIGHT_Q4))

/* An input, group by group: q = round(x * 127 / max|x|), scale = max|x| / 127, and minus the sum of q. Groups too small
 * for a scale become zeros; a NaN or an infinity makes the scale one, and so all results. */
static void to_int8_scalar(int8_t *q, float *scale, int32_t *minus_sum, const float *x, size_t groups)
{
    for (size_t g = 0; g < groups; g++, x += GROUP, q += GROUP) {
        uint32_t bits = 0;
        for (size_t k = 0; k < GROUP; k++)
            bits = MAX(bits, magnitude_bits(x[k]));
        float max = from_bits(bits), inverse = max > 1e-30f ? 127 / max : 0;
        scale[g] = max <= 1e-30f ? 0 : max / 127;
        minus_sum[g] = 0;
        for (size_t k = 0; k < GROUP; k++) {
            q[k] = (int8_t)round_within(x[k] * inverse, -127, 127);
            minus_sum[g] -= q[k];
        }
    }
}

/* ---- the kernels of each level ----------------------------------------------------------------------------------- */

static const Kernels kernels_scalar = {
    .dots = {dots_f32_scalar, dots_bf16_scalar, dots_f16_scalar},
    .q8 = q8_scalar,
    .q4 = q4_scalar,
    .to_int8 = to_int8_scalar,
    .slice = SIZE_MAX,
};

/* The table of the level in use. Each of its kernels gives the bits of the scalar one. */
static const Kernels *kernels(void)
{
    const Kernels *k = cpu_level() == CPU_NEON ? kernels_neon() : kernels_x86(cpu_level());
    return k ? k : &kernels_scalar;
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

void matmul_row_slice(float *out, const Matrix *w, size_t row, size_t begin, size_t n)
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
        matmul_row_slice(out, w, row, 0, w->cols);
        return;
    }
    size_t groups = w->cols / GROUP, r = row % BLOCK_ROWS;
    const unsigned char *block = (const unsigned char *)w->data + row / BLOCK_ROWS * block_bytes(w->type, groups);
    for (size_t g = 0; g < groups; g++) {
        float scale = weight_scale(w->type, block, g, r);
        for (size_t k = 0; k < GROUP; k++)
            out[g * GROUP + k] = (float)quantized_weight(w->type, block + weights_at(w->type, g), r, k) * scale;
    }
}

/* ---- tiles and scratch memory ------------------------------------------------------------------------------------ */

/* The results are cut into tiles. Each product's rows are cut into panels of panel_rows (the last has the rest), which
 * are counted through all products; the vectors into batches of BATCH. A tile is what one panel gives with one batch;
 * tile number = panel * batches + batch. A thread takes a chunk of consecutive tiles at a time. */
#define PANEL_ROWS 128 /* of a panel, at most: its weights stay in the second-level cache while the batches pass by */
#define BATCH 48       /* vectors */

/* What the threads share. */
typedef struct {
    const Product *products;
    size_t count;
    const Kernels *kernels;
    const float *x; /* [n][cols] */
    size_t n, cols;
    bool few; /* at most FEW vectors: there is one batch, and neighboring panels are computed as one tile */
    size_t panel_rows, panels, batches;
    size_t threads, least_tiles; /* of a chunk */
    uint16_t *x_bf16;            /* [n][cols], the inputs as BF16; NULL if they are not rounded */
    int8_t *q;                   /* [n][cols], the inputs as integers, if a matrix is quantized */
    float *scale;                /* [n][cols / GROUP] */
    int32_t *minus_sum;          /* [n][cols / GROUP]: minus the sums of groups of q */
    unsigned char *memory;       /* [thread][thread_bytes(cols)] */
} Job;

/* Rows row .. row + rows - 1 of a product for the vectors t .. t + n - 1. */
typedef struct {
    const Product *product;
    size_t row, rows, t, n;
} Tile;

/* A thread's own. */
typedef struct {
    float *sums;     /* [BATCH][PANEL_ROWS][SUMS], of a tile */
    float *row;      /* [cols], a row as float32 */
    uint16_t *panel; /* [PANEL_ROWS][cols], a panel as BF16 */
} Scratch;

static size_t align_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

#define SUMS_BYTES (sizeof(float) * BATCH * PANEL_ROWS * SUMS)

static size_t thread_bytes(size_t cols)
{
    return SUMS_BYTES + align_up(cols * sizeof(float)) + align_up(PANEL_ROWS * cols * sizeof(uint16_t));
}

static Scratch scratch_of(const Job *j, int thread)
{
    unsigned char *p = j->memory + (size_t)thread * thread_bytes(j->cols), *row = p + SUMS_BYTES;
    return (Scratch){.sums = (float *)(void *)p,
                     .row = (float *)(void *)row,
                     .panel = (uint16_t *)(void *)(row + align_up(j->cols * sizeof(float)))};
}

/* n vectors rounded: up to 2 bytes a number, and for each group a scale and a sum. */
static size_t inputs_bytes(size_t n, size_t cols)
{
    return align_up(2 * n * cols) + 2 * align_up(4 * n * (cols / GROUP));
}

size_t matmul_scratch_bytes(size_t cols, size_t n)
{
    return (size_t)threads_count() * thread_bytes(cols) + inputs_bytes(n, cols);
}

/* ---- one tile ---------------------------------------------------------------------------------------------------- */

/* Add bias and what was there to complete sums, and write them to the product's out. sums [n][stride] are those of the
 * rows row .. row + rows - 1. */
static void store_results(const Tile *tile, const float *sums, size_t stride, size_t row, size_t rows)
{
    const Product *p = tile->product;
    for (size_t i = 0; i < tile->n; i++) {
        float *out = p->out + (tile->t + i) * p->out_stride + row;
        const float *in = sums + i * stride, *bias = p->bias ? p->bias + row : NULL;
        for (size_t r = 0; r < rows; r++) {
            float v = bias ? in[r] + bias[r] : in[r];
            out[r] = p->add ? out[r] + v : v;
        }
    }
}

/* The columns of a slice, a multiple of SUMS, such that slices of at most `most` columns are about equal. */
static size_t slice_columns(size_t cols, size_t most)
{
    size_t slices = (cols - 1) / most + 1;
    return ((cols - 1) / slices / SUMS + 1) * SUMS;
}

/* Some rows of a tile. If there are many vectors, a few of them stay in the first-level cache while the rows pass by:
 * columns are taken in slices that are short enough for that, and the running sums wait in memory meanwhile.
 * w: the rows' weights, of `bytes` each, either the matrix's own or (for the kernel of pairs) rounded to BF16. */
static void float_rows(const Job *j, const Tile *tile, DotsKernel *kernel, const unsigned char *w, size_t bytes,
                       size_t row, size_t rows, float *running_sums)
{
    float sums[BATCH * PANEL_ROWS];
    const Product *p = tile->product;
    bool pairs = kernel == j->kernels->pairs;
    size_t cols = j->cols, slice = j->few ? cols : slice_columns(cols, j->kernels->slice * (pairs ? 2 : 1));
    size_t stride = (rows + 3) / 4 * 4;
    for (size_t i = 0; i < tile->n && !j->few; i++) /* prefetch where the results go */
        for (size_t r = 0; r < rows; r += 64 / sizeof(float))
            __builtin_prefetch(p->out + (tile->t + i) * p->out_stride + row + r, 1);
    for (size_t k = 0; k < cols; k += slice) {
        size_t at = tile->t * cols + k;
        kernel(&(Dots){.w = w + k * bytes,
                       .row_bytes = cols * bytes,
                       .rows = rows,
                       .x = pairs ? (const void *)(j->x_bf16 + at) : (const void *)(j->x + at),
                       .x_stride = cols,
                       .n = tile->n,
                       .cols = MIN(cols - k, slice),
                       .sums = running_sums,
                       .first = k == 0,
                       .last = cols - k <= slice,
                       .out = sums,
                       .out_stride = stride});
    }
    store_results(tile, sums, stride, row, rows);
}

/* As many rows at a time as there is space for their sums. With inputs rounded to BF16, the rows of an F32 or F16
 * matrix are, too; panel_ready says that s->panel has them, since the last tile was of the same panel. */
static void float_tile(const Job *j, const Tile *tile, const Scratch *s, bool panel_ready)
{
    const Matrix *w = tile->product->w;
    size_t end = tile->row + tile->rows;
    if (j->x_bf16 && !j->few && w->type != WEIGHT_BF16) {
        for (size_t r = 0; r < tile->rows && !panel_ready; r++) {
            matmul_row_slice(s->row, w, tile->row + r, 0, j->cols);
            j->kernels->to_bf16(s->panel + r * j->cols, s->row, j->cols);
        }
        float_rows(j, tile, j->kernels->pairs, (unsigned char *)s->panel, sizeof *s->panel, tile->row, tile->rows,
                   s->sums);
        return;
    }
    DotsKernel *kernel = j->x_bf16 && w->type == WEIGHT_BF16 ? j->kernels->pairs : j->kernels->dots[w->type];
    size_t most = BATCH * PANEL_ROWS / tile->n / 4 * 4, bytes = element_bytes(w->type);
    for (size_t row = tile->row; row < end; row += most) {
        const unsigned char *p = (const unsigned char *)w->data + row * w->cols * bytes;
        float_rows(j, tile, kernel, p, bytes, row, MIN(end - row, most), s->sums);
    }
}

/* As many blocks of rows at a time as there is space for their sums. */
static void quantized_tile(const Job *j, const Tile *tile)
{
    float sums[BATCH * PANEL_ROWS];
    const Matrix *w = tile->product->w;
    QuantDotsKernel *kernel = w->type == WEIGHT_Q8 ? j->kernels->q8 : j->kernels->q4;
    size_t groups = j->cols / GROUP, end = tile->row + tile->rows;
    size_t most = BATCH * PANEL_ROWS / tile->n / BLOCK_ROWS * BLOCK_ROWS;
    for (size_t row = tile->row; row < end; row += most) {
        size_t rows = MIN(end - row, most), blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        kernel(&(QuantDots){.w = (const unsigned char *)w->data + row / BLOCK_ROWS * block_bytes(w->type, groups),
                            .blocks = blocks,
                            .groups = groups,
                            .q = j->q + tile->t * j->cols,
                            .scale = j->scale + tile->t * groups,
                            .minus_sum = j->minus_sum + tile->t * groups,
                            .n = tile->n,
                            .out = sums,
                            .out_stride = blocks * BLOCK_ROWS});
        store_results(tile, sums, blocks * BLOCK_ROWS, row, rows);
    }
}

/* ---- all tiles, in parallel -------------------------------------------------------------------------------------- */

static size_t panels_of(const Matrix *w, size_t panel_rows)
{
    return w->rows / panel_rows + (w->rows % panel_rows ? 1 : 0);
}

/* The first tile of chunk number `chunk`; the number of tiles if there is no such chunk. Chunks shrink towards the end:
 * each round gives half of what is left to the threads, one chunk each, so that they take chunks rarely and yet end
 * together, whatever their speed. 100 tiles for two threads: 25 25 12 12 6 6 3 3 2 2 1 1 1 1. */
static size_t chunk_begin(const Job *j, size_t chunk)
{
    size_t tiles = j->panels * j->batches, begin = 0;
    while (begin < tiles) {
        size_t size = MAX((tiles - begin) / (2 * j->threads), j->least_tiles);
        if (chunk <= j->threads)
            return MIN(begin + chunk * size, tiles);
        chunk -= j->threads;
        begin += j->threads * size;
    }
    return tiles;
}

/* Compute the tiles begin .. end - 1. They lie in one product, whose first panel is given, and, if there are many
 * vectors, in one panel. */
static void do_tiles(const Job *j, const Product *p, size_t first_panel, size_t begin, size_t end, const Scratch *s)
{
    size_t panel = begin / j->batches - first_panel, panel_end = (end + j->batches - 1) / j->batches - first_panel;
    size_t batch = begin % j->batches, batches = j->few ? 1 : end - begin;
    Tile tile = {.product = p, .row = panel * j->panel_rows};
    tile.rows = MIN(panel_end * j->panel_rows, p->w->rows) - tile.row;
    for (size_t i = 0; i < batches; i++) {
        tile.t = (batch + i) * BATCH;
        tile.n = MIN(j->n - tile.t, BATCH);
        if (is_quantized(p->w->type))
            quantized_tile(j, &tile);
        else
            float_tile(j, &tile, s, i > 0);
    }
}

/* Compute the chunks begin .. end - 1, product by product; with many vectors, panel by panel, so that a panel's weights
 * are still in the cache for the next batch. */
static void do_chunks(void *context, size_t begin, size_t end, int thread)
{
    const Job *j = context;
    Scratch s = scratch_of(j, thread);
    size_t tile = chunk_begin(j, begin), tiles_end = chunk_begin(j, end), first_panel = 0;
    for (size_t i = 0; i < j->count && tile < tiles_end; i++) {
        size_t next_panel = first_panel + panels_of(j->products[i].w, j->panel_rows);
        while (tile < tiles_end && tile < next_panel * j->batches) {
            size_t stop = j->few ? next_panel : (tile / j->batches + 1) * j->batches;
            stop = MIN(stop, tiles_end);
            do_tiles(j, &j->products[i], first_panel, tile, stop, &s);
            tile = stop;
        }
        first_panel = next_panel;
    }
}

static void inputs_to_int8(void *context, size_t begin, size_t end, int thread)
{
    const Job *j = context;
    size_t groups = j->cols / GROUP, first = begin * groups;
    (void)thread;
    j->kernels->to_int8(j->q + first * GROUP, j->scale + first, j->minus_sum + first, j->x + first * GROUP,
                        (end - begin) * groups);
}

static void inputs_to_bf16(void *context, size_t begin, size_t end, int thread)
{
    const Job *j = context;
    (void)thread;
    j->kernels->to_bf16(j->x_bf16 + begin * j->cols, j->x + begin * j->cols, (end - begin) * j->cols);
}

/* Round the inputs if a product needs that: to integers for Q8 and Q4, else to BF16 where it is allowed. memory:
 * inputs_bytes(n, cols) */
static void round_inputs(Job *j, unsigned char *memory, bool allow_rounding)
{
    bool integers = false;
    for (size_t i = 0; i < j->count; i++)
        integers = integers || is_quantized(j->products[i].w->type);
    unsigned char *scales = memory + align_up(2 * j->n * j->cols);
    j->scale = (float *)(void *)scales;
    j->minus_sum = (int32_t *)(void *)(scales + align_up(4 * j->n * (j->cols / GROUP)));
    if (integers) {
        j->q = (int8_t *)memory;
        threads_for(j->n, 8, inputs_to_int8, j);
    } else if (allow_rounding && j->kernels->to_bf16 && j->n > 1) {
        j->x_bf16 = (uint16_t *)(void *)memory;
        threads_for(j->n, 8, inputs_to_bf16, j);
    }
}

#define LEAST_BYTES 32768 /* of weights in a chunk, since taking a chunk costs time, too */

/* Decide how large panels are, how many panels and batches there are, and how small a chunk may be. */
static void cut_into_tiles(Job *j)
{
    size_t rows = 0;
    j->few = j->n <= FEW;
    j->batches = (j->n + BATCH - 1) / BATCH;
    j->panel_rows = j->few ? BLOCK_ROWS : PANEL_ROWS;
    j->least_tiles = j->batches == 1 ? 1 + LEAST_BYTES / j->n / (j->panel_rows * j->cols) : 1;
    for (size_t i = 0; i < j->count; i++)
        rows += j->products[i].w->rows;
    /* smaller panels until each thread has several tiles, since the last ones keep only some of the threads busy */
    while (j->panel_rows > 2 * BLOCK_ROWS && rows / j->panel_rows * j->batches < 16 * j->threads)
        j->panel_rows = j->panel_rows / 2 / BLOCK_ROWS * BLOCK_ROWS;
    for (size_t i = 0; i < j->count; i++)
        j->panels += panels_of(j->products[i].w, j->panel_rows);
}

void matmul(const Product *products, size_t count, const float *x, size_t n, Workspace *ws)
{
    Job j = {.products = products,
             .count = count,
             .kernels = kernels(),
             .x = x,
             .n = n,
             .cols = products[0].w->cols,
             .threads = (size_t)threads_count(),
             .memory = ws->memory};
    for (size_t i = 0; i < count; i++)
        assert(products[i].w->cols == j.cols);
    assert(ws->size >= matmul_scratch_bytes(j.cols, n));
    cut_into_tiles(&j);
    /* the workspace: each thread's scratch memory, then the rounded inputs */
    round_inputs(&j, j.memory + j.threads * thread_bytes(j.cols), ws->allow_rounding);
    size_t chunks = 0;
    while (chunk_begin(&j, chunks) < j.panels * j.batches)
        chunks++;
    threads_for(chunks, 1, do_chunks, &j);
}
