/* kernels/matmul.c and quantize.c: each level that this CPU has gives the bits of the scalar definition, and the
 * definition is what matmul.h says. */
#include "base/base.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"
#include "kernels/matmul.h"
#include "kernels/quantize.h"
#include "kernels/vector.h"

static const char *const type_names[] = {"f32", "bf16", "f16", "q8", "q4"};

/* ---- numbers and memory ------------------------------------------------------------------------------------------ */

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A number of either sign between 2^-8 and 2^8. One in eight is of another kind: zeros of both signs, and numbers so
 * small that products vanish, again to zeros of both signs. */
static float random_float(void)
{
    uint32_t r = random_u32(), sign = r & 0x80000000, mantissa = r & 0x7fffff;
    switch (random_u32() % 16) {
    case 0:
        return from_bits(sign);
    case 1:
        return from_bits(sign | 40u << 23 | mantissa);
    default:
        return from_bits(sign | (119 + random_u32() % 16) << 23 | mantissa);
    }
}

/* A weight of that type, written to p. */
static void random_weight(unsigned char *p, WeightType type)
{
    float f = random_float();
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, sizeof bits);
    half = (uint16_t)(bits >> 16);
    if (type == WEIGHT_F16)
        half = (uint16_t)((random_u32() & 0x83ff) | (random_u32() % 24) << 10);
    if (type == WEIGHT_F32)
        memcpy(p, &f, sizeof f);
    else
        memcpy(p, &half, sizeof half);
}

static size_t element_bytes(WeightType type)
{
    return type == WEIGHT_F32 ? 4 : 2;
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) {
        printf("out of memory\n");
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

/* Memory whose last byte is followed by a page that cannot be touched. */
typedef struct {
    unsigned char *pages, *at;
    size_t size;
} Guarded;

static Guarded guarded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page + page;
    Guarded g = {.size = size};
    g.pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.pages == MAP_FAILED || mprotect(g.pages + size - page, page, PROT_NONE)) {
        printf("no guarded memory\n");
        exit(1);
    }
    g.at = g.pages + size - page - bytes;
    return g;
}

static void unguard(Guarded *g)
{
    munmap(g->pages, g->size);
}

/* Equal bits, or both NaN. */
static bool same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static Workspace workspace(size_t cols, size_t n)
{
    size_t size = matmul_scratch_bytes(cols, n);
    return (Workspace){.memory = allocate(size), .size = size};
}

static void threads(int n)
{
    char err[512];
    check(threads_start(n, err) == 0, "%s", err);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

static float dot_by_the_rule(const float *w, const float *x, size_t n)
{
    float s[16] = {0};
    for (size_t k = 0; k < n; k++)
        s[k % 16] = fmaf(w[k], x[k], s[k % 16]);
    for (size_t l = 0; l < 8; l++)
        s[l] += s[l + 8];
    for (size_t l = 0; l < 4; l++)
        s[l] += s[l + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static void test_definition(void)
{
    cpu_set_level(CPU_SCALAR);
    Workspace ws = workspace(256, 3);
    for (size_t cols = 1; cols <= 130; cols++) {
        float w[2 * 130], x[3 * 130], out[3 * 2], bias[2] = {0.5f, -3};
        for (size_t i = 0; i < 2 * cols; i++)
            w[i] = random_float();
        for (size_t i = 0; i < 3 * cols; i++)
            x[i] = random_float();
        Matrix m = {w, WEIGHT_F32, 2, cols};
        bool right = true;
        matmul(&(Product){&m, NULL, out, 2, false}, 1, x, 3, &ws);
        for (size_t i = 0; i < 6; i++) {
            float want = dot_by_the_rule(w + i % 2 * cols, x + i / 2 * cols, cols);
            right = right && same(&want, &out[i], 1);
        }
        matmul(&(Product){&m, bias, out, 2, true}, 1, x, 3, &ws);
        for (size_t i = 0; i < 6; i++) {
            float sum = dot_by_the_rule(w + i % 2 * cols, x + i / 2 * cols, cols), want = sum + (sum + bias[i % 2]);
            right = right && same(&want, &out[i], 1);
        }
        check(right, "%zu columns", cols);
    }
    free(ws.memory);
}

/* ---- levels against the scalar definition ------------------------------------------------------------------------ */

/* out[n][rows], computed at the level that is set, with a check that nothing between the results is written. */
static void product(float *out, const Matrix *w, const float *x, size_t n, const float *bias, Workspace *ws)
{
    size_t stride = w->rows + 3;
    float *wide = allocate(n * stride * sizeof *wide);
    for (size_t i = 0; i < n * stride; i++)
        wide[i] = 77;
    matmul(&(Product){w, bias, wide, stride, bias != NULL}, 1, x, n, ws);
    bool clean = true;
    for (size_t t = 0; t < n; t++) {
        for (size_t i = w->rows; i < stride; i++)
            clean = clean && wide[t * stride + i] == 77;
        memcpy(out + t * w->rows, wide + t * stride, w->rows * sizeof *out);
    }
    if (!clean)
        check(clean, "%s %zux%zu, %zu vectors: wrote beyond its rows", type_names[w->type], w->rows, w->cols, n);
    free(wide);
}

/* One shape at each level. The inputs end where memory ends, and so does the matrix, but if it is to start at an odd
 * address, one byte before. */
static void compare_levels(WeightType type, size_t rows, size_t cols, size_t n, bool odd, bool with_bias)
{
    size_t bytes = rows * cols * element_bytes(type);
    Guarded w = guarded(odd ? bytes + 1 : bytes), x = guarded(n * cols * sizeof(float));
    float *want = allocate(n * rows * sizeof *want), *got = allocate(n * rows * sizeof *got),
          *bias = allocate(rows * sizeof *bias);
    unsigned char *start = w.at;
    for (size_t i = 0; i < rows * cols; i++)
        random_weight(start + i * element_bytes(type), type);
    for (size_t i = 0; i < n * cols; i++)
        ((float *)(void *)x.at)[i] = random_float();
    for (size_t r = 0; r < rows; r++)
        bias[r] = random_float();
    Matrix m = {start, type, rows, cols};
    Workspace ws = workspace(cols, n);
    cpu_set_level(CPU_SCALAR);
    product(want, &m, (float *)(void *)x.at, n, with_bias ? bias : NULL, &ws);
    for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
        if (!cpu_has(level))
            continue;
        cpu_set_level(level);
        memset(got, 0xff, n * rows * sizeof *got);
        product(got, &m, (float *)(void *)x.at, n, with_bias ? bias : NULL, &ws);
        check(same(got, want, n * rows), "%s: %s %zux%zu, %zu vectors%s", cpu_level_name(level), type_names[type], rows,
              cols, n, odd ? ", odd address" : "");
    }
    free(ws.memory);
    free(want);
    free(got);
    free(bias);
    unguard(&w);
    unguard(&x);
}

static void test_levels(void)
{
    for (WeightType type = WEIGHT_F32; type <= WEIGHT_F16; type++) {
        for (size_t cols = 1; cols <= 129; cols++)
            compare_levels(type, 1 + cols % 9, cols, 1 + cols % 17, cols % 2, cols % 3 == 0);
        for (size_t n = 1; n <= 17; n++) {
            compare_levels(type, 7, 61, n, true, false);
            compare_levels(type, 33, 1100, n, n % 2, n % 3 == 0);
        }
        for (int count = 1; count <= 3; count++) {
            threads(count);
            compare_levels(type, 300, 896, 1, count == 2, true);
            compare_levels(type, 37, 4864, 2, count == 2, false);
            compare_levels(type, 150, 96, 101, count == 2, true);
            compare_levels(type, 19, 2200, 50, count == 2, true);
        }
    }
}

/* ---- quantized matrices ------------------------------------------------------------------------------------------ */

static Matrix quantize(WeightType type, const Matrix *src)
{
    size_t bad, bytes = quantized_size(type, src->rows, src->cols);
    unsigned char *storage = allocate(bytes);
    Matrix q = {storage, type, src->rows, src->cols};
    memset(storage, 0xaa, bytes);
    check(quantize_matrix(&q, storage, src, &bad) == 0, "%s refused row %zu", type_names[type], bad);
    return q;
}

static void free_matrix(Matrix *m)
{
    union {
        const void *data;
        void *memory;
    } u = {m->data};
    free(u.memory);
}

/* The sum of the squared errors that quantizing makes in a matrix, and the same for the plain 4-bit rule, scale =
 * largest weight / -8. */
static void rounding_error(const Matrix *q, const float *w, double *ours, double *plain)
{
    float *row = allocate(q->cols * sizeof *row);
    *ours = *plain = 0;
    for (size_t r = 0; r < q->rows; r++) {
        matmul_row(row, q, r);
        for (size_t k = 0; k < q->cols; k++) {
            double e = (double)row[k] - (double)w[r * q->cols + k];
            *ours += e * e;
        }
        for (size_t g = 0; g < q->cols; g += 32) {
            const float *x = w + r * q->cols + g;
            float most = 0;
            for (size_t k = 0; k < 32; k++)
                most = fabsf(x[k]) > fabsf(most) ? x[k] : most;
            for (size_t k = 0; k < 32; k++) {
                float scale = most / -8, v = scale != 0 ? floorf(x[k] / scale + 8.5f) : 8;
                double e = (double)((v < 15 ? v : 15) - 8) * (double)scale - (double)x[k];
                *plain += e * e;
            }
        }
    }
    free(row);
}

static float normal(void)
{
    double s = 0;
    for (int i = 0; i < 12; i++)
        s += random_u32() / 4294967296.0;
    return (float)(s - 6);
}

/* Products and storage are the same at every level and with any number of threads. */
static void compare_quantized(WeightType type, size_t rows, size_t cols, size_t n)
{
    float *w = allocate(rows * cols * sizeof *w), *x = allocate(n * cols * sizeof *x);
    float *want = allocate(n * rows * sizeof *want), *got = allocate(n * rows * sizeof *got);
    for (size_t i = 0; i < rows * cols; i++)
        w[i] = random_float() * 0.01f;
    for (size_t i = 0; i < n * cols; i++)
        x[i] = i / 32 % 7 == 3 ? 0 : random_float();
    Matrix src = {w, WEIGHT_F32, rows, cols};
    Workspace ws = workspace(cols, n);
    cpu_set_level(CPU_SCALAR);
    Matrix m = quantize(type, &src);
    product(want, &m, x, n, NULL, &ws);
    for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
        if (!cpu_has(level))
            continue;
        cpu_set_level(level);
        Matrix again = quantize(type, &src);
        check(!memcmp(m.data, again.data, quantized_size(type, rows, cols)), "%s: storage of %s %zux%zu",
              cpu_level_name(level), type_names[type], rows, cols);
        product(got, &again, x, n, NULL, &ws);
        check(same(got, want, n * rows), "%s: %s %zux%zu, %zu vectors", cpu_level_name(level), type_names[type], rows,
              cols, n);
        free_matrix(&again);
    }
    free_matrix(&m);
    free(ws.memory);
    free(w);
    free(x);
    free(want);
    free(got);
}

/* Products are what their definition makes of the weights that matmul_row() gives. */
static void test_quantized_definition(WeightType type)
{
    const size_t rows = 21, cols = 160, n = 3;
    float w[21 * 160], x[3 * 160], out[3 * 21], row[160], ones[160];
    for (size_t i = 0; i < rows * cols; i++)
        w[i] = normal();
    for (size_t i = 0; i < n * cols; i++)
        x[i] = normal();
    Workspace ws = workspace(cols, n);
    cpu_set_level(CPU_SCALAR);
    Matrix src = {w, WEIGHT_F32, rows, cols}, m = quantize(type, &src);
    matmul(&(Product){&m, NULL, out, rows, false}, 1, x, n, &ws);
    double worst = 0;
    for (size_t t = 0; t < n; t++)
        for (size_t r = 0; r < rows; r++) {
            double sum = 0;
            matmul_row(row, &m, r);
            for (size_t g = 0; g < cols; g += 32) {
                double most = 0;
                for (size_t k = g; k < g + 32; k++)
                    most = fabs((double)x[t * cols + k]) > most ? fabs((double)x[t * cols + k]) : most;
                for (size_t k = g; k < g + 32; k++)
                    sum += (double)row[k] * rint((double)x[t * cols + k] * 127 / most) * most / 127;
            }
            worst = fabs(sum - (double)out[t * rows + r]) > worst ? fabs(sum - (double)out[t * rows + r]) : worst;
        }
    check(worst < 2e-5, "%s: products are %g from their definition", type_names[type], worst);

    /* inputs that are integers already are not rounded */
    for (size_t k = 0; k < cols; k++)
        ones[k] = k % 32 == 31 ? 127 : 1;
    matmul(&(Product){&m, NULL, out, rows, false}, 1, ones, 1, &ws);
    bool near = true;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        matmul_row(row, &m, r);
        for (size_t k = 0; k < cols; k++)
            sum += (double)row[k] * (double)ones[k];
        near = near && fabs(sum - (double)out[r]) < 1e-4;
    }
    check(near, "%s: products of whole numbers", type_names[type]);

    /* NaN and infinity reach the results; very small inputs count as zero */
    float odd[4] = {NAN, INFINITY, -INFINITY, 1e-38f};
    for (size_t i = 0; i < 4; i++) {
        float saved = x[40];
        x[40] = odd[i];
        for (size_t k = 32; k < 64 && i == 3; k++)
            x[k] = odd[i];
        for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            matmul(&(Product){&m, NULL, out, rows, false}, 1, x, 1, &ws);
            check(i == 3 ? isfinite(out[0]) : !isfinite(out[0]), "%s, %s: input %g gives %g", type_names[type],
                  cpu_level_name(level), (double)odd[i], (double)out[0]);
        }
        x[40] = saved;
    }
    free_matrix(&m);
    free(ws.memory);
}

/* A weight by its bits: any sign and mantissa, an exponent of the kind. */
static float weight_of_kind(const char *kind)
{
    uint32_t r = random_u32(), sign = r & 0x80000000, exponent = 127 - 8 + random_u32() % 8, mantissa = r & 0x7fffff;
    switch (kind[0]) {
    case 't': /* tiny: the scale is a subnormal FP16, or zero */
        exponent = 127 - 40 + random_u32() % 32;
        break;
    case 'h': /* huge: the scale is beyond FP16 */
        exponent = 254 - random_u32() % 130;
        break;
    case 's': /* subnormal */
        exponent = 0;
        break;
    case 'z': /* zeros of both signs, and among some of them a number */
        if (random_u32() % 40)
            return from_bits(sign);
        break;
    case 'e': /* equal magnitudes, of both signs */
        return (float)(r % 9) - 4;
    case 'a': /* any number */
        exponent = random_u32() % 255;
        break;
    }
    return from_bits(sign | exponent << 23 | mantissa);
}

/* Several rows at once, at each level, are stored as the definition stores one row's groups. */
static void test_quantized_kinds(WeightType type)
{
    static const char *const kinds[] = {"random", "tiny", "huge", "subnormal", "zeros", "equal", "any"};
    enum { ROWS = 75, COLS = 32 * 35 }; /* neither whole blocks nor pairs of groups, and more than a slice */
    float *w = allocate(ROWS * COLS * sizeof *w);
    Matrix src = {w, WEIGHT_F32, ROWS, COLS};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
            w[i] = weight_of_kind(kinds[kind]);
        cpu_set_level(CPU_SCALAR);
        Matrix want = quantize(type, &src);
        for (CpuLevel level = CPU_AVX2; level < CPU_LEVELS; level++) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            Matrix got = quantize(type, &src);
            check(!memcmp(got.data, want.data, quantized_size(type, ROWS, COLS)), "%s: %s of %s weights",
                  cpu_level_name(level), type_names[type], kinds[kind]);
            free_matrix(&got);
        }
        free_matrix(&want);
    }
    free(w);
}

static void test_quantized_accuracy(void)
{
    const size_t rows = 64, cols = 896;
    float *w = allocate(rows * cols * sizeof *w);
    double ours, plain, q8, unused, scale = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        w[i] = normal() * 0.02f;
        scale += (double)w[i] * (double)w[i];
    }
    Matrix src = {w, WEIGHT_F32, rows, cols}, m = quantize(WEIGHT_Q4, &src), m8 = quantize(WEIGHT_Q8, &src);
    rounding_error(&m, w, &ours, &plain);
    rounding_error(&m8, w, &q8, &unused);
    check(ours <= plain, "q4: relative error %g, the plain rule's %g", sqrt(ours / scale), sqrt(plain / scale));
    check(sqrt(q8 / scale) < 0.006, "q8: relative error %g", sqrt(q8 / scale));
    free_matrix(&m);
    free_matrix(&m8);
    for (size_t g = 0; g < 40; g++) { /* also for each single group, of different kinds */
        float group[32];
        for (size_t k = 0; k < 32; k++)
            group[k] = g < 20 ? random_float() : (float)(random_u32() % 16) - (g % 2 ? 8.0f : 7.0f);
        Matrix one = {group, WEIGHT_F32, 1, 32}, q = quantize(WEIGHT_Q4, &one);
        rounding_error(&q, group, &ours, &plain);
        check(ours <= plain * 1.0001 + 1e-12, "q4, group %zu: error %g, the plain rule's %g", g, ours, plain);
        free_matrix(&q);
    }
    free(w);
}

static void test_quantized_extremes(WeightType type)
{
    float w[2 * 64], row[64];
    const float largest = from_bits(0x7f7fffff), tiny[] = {0, -0.0f, 1e-42f, -1e-42f, 1e-30f};
    Matrix src = {w, WEIGHT_F32, 2, 64};
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
        for (size_t k = 0; k < 128; k++)
            w[k] = tiny[i];
        Matrix m = quantize(type, &src);
        matmul_row(row, &m, 1);
        check(row[0] == 0 && row[63] == 0, "%s: %g became %g", type_names[type], (double)tiny[i], (double)row[0]);
        free_matrix(&m);
    }
    for (size_t k = 0; k < 128; k++)
        w[k] = k % 3 == 0 ? largest : k % 3 == 1 ? -largest : 1;
    Matrix m = quantize(type, &src);
    bool finite = true;
    for (size_t r = 0; r < 2; r++) {
        matmul_row(row, &m, r);
        for (size_t k = 0; k < 64; k++)
            finite = finite && isfinite(row[k]);
    }
    check(finite, "%s: the largest floats are not finite any more", type_names[type]);
    free_matrix(&m);
    static const uint32_t refused[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001};
    for (size_t i = 0; i < 4; i++)
        for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            size_t bad = 0;
            w[64 + i * 20] = from_bits(refused[i]);
            unsigned char *storage = allocate(quantized_size(type, 2, 64));
            Matrix q = {storage, type, 2, 64};
            check(quantize_matrix(&q, storage, &src, &bad) == -1 && bad == 1, "%s, %s: %08x: bad row %zu",
                  type_names[type], cpu_level_name(level), (unsigned)refused[i], bad);
            w[64 + i * 20] = 1;
            free(storage);
        }
}

static void test_quantized(void)
{
    for (WeightType type = WEIGHT_Q8; type <= WEIGHT_Q4; type++) {
        test_quantized_definition(type);
        test_quantized_extremes(type);
        test_quantized_kinds(type);
        for (size_t n = 1; n <= 17; n++)
            compare_quantized(type, 1 + 5 * n % 50, 32 * (1 + n % 6), n);
        for (int count = 1; count <= 3; count++) {
            threads(count);
            compare_quantized(type, 300, 896, 1);
            compare_quantized(type, 90, 160, 101);
        }
    }
    test_quantized_accuracy();
}

/* ---- rounding to BF16, where it is allowed ----------------------------------------------------------------------- */

static void test_rounding(void)
{
    const size_t rows = 70, cols = 1000, n = 50;
    float *x = allocate(n * cols * sizeof *x), *exact = allocate(n * rows * sizeof *exact),
          *rounded = allocate(n * rows * sizeof *rounded);
    unsigned char *w = allocate(rows * cols * 4 + 1);
    Workspace ws = workspace(cols, n);
    for (size_t i = 0; i < n * cols; i++)
        x[i] = normal();
    for (WeightType type = WEIGHT_F32; type <= WEIGHT_F16; type++) {
        Matrix m = {w + 1, type, rows, cols};
        for (size_t i = 0; i < rows * cols; i++)
            random_weight(w + 1 + i * element_bytes(type), type);
        for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            for (size_t vectors = 1; vectors <= n; vectors += 7) {
                double error = 0, size = 0;
                ws.allow_rounding = false;
                product(exact, &m, x, vectors, NULL, &ws);
                ws.allow_rounding = true;
                product(rounded, &m, x, vectors, NULL, &ws);
                for (size_t i = 0; i < vectors * rows; i++) {
                    error += pow((double)exact[i] - (double)rounded[i], 2);
                    size += pow((double)exact[i], 2);
                }
                check(level == CPU_AVX512BF16 && vectors > 1 ? error < 1e-4 * size : error == 0,
                      "%s, %s, %zu vectors: off by %g", cpu_level_name(level), type_names[type], vectors,
                      sqrt(error / size));
            }
        }
    }
    free(ws.memory);
    free(x);
    free(w);
    free(exact);
    free(rounded);
}

/* ---- every number of 16 bits ------------------------------------------------------------------------------------- */

/* Conversions are right for each number, and products with 1 give the number back, both in a last column and in a whole
 * register. */
static void test_all_halves(void)
{
    uint16_t *halves = allocate(65536 * 17 * sizeof *halves);
    float *want = allocate(65536 * sizeof *want), *got = allocate(65536 * sizeof *got),
          *out = allocate(13 * 65536 * sizeof *out), x[13 * 17];
    Workspace ws = workspace(17, 13);
    for (WeightType type = WEIGHT_BF16; type <= WEIGHT_F16; type++) {
        for (uint32_t i = 0; i < 65536; i++) {
            halves[i] = (uint16_t)i;
            uint32_t exponent = i >> 10 & 31, mantissa = i & 1023;
            double value = ldexp((double)(exponent ? mantissa + 1024 : mantissa), (int)(exponent ? exponent : 1) - 25);
            want[i] = type == WEIGHT_BF16 ? from_bits(i << 16)
                      : exponent == 31
                          ? from_bits((i & 0x8000) << 16 | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0))
                          : (float)(i & 0x8000 ? -value : value);
        }
        for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            for (size_t cut = 0; cut < 40; cut++) { /* every alignment and tail */
                memset(got, 0, 65536 * sizeof *got);
                (type == WEIGHT_BF16 ? convert_bf16 : convert_f16)(got, halves, 65536 - cut);
                check(!memcmp(got, want, (65536 - cut) * sizeof *got), "%s: conversion from %s", cpu_level_name(level),
                      type_names[type]);
            }
            for (size_t cols = 1; cols <= 17; cols += 16)
                for (size_t n = 1; n <= 13; n += 4) {
                    for (size_t i = 0; i < 65536 * cols; i++)
                        halves[i] = (uint16_t)(i / cols);
                    for (size_t i = 0; i < n * cols; i++)
                        x[i] = i % cols == (i / cols) % cols;
                    Matrix m = {halves, type, 65536, cols};
                    matmul(&(Product){&m, NULL, out, 65536, false}, 1, x, n, &ws);
                    bool right = true;
                    for (size_t t = 0; t < n; t++)
                        for (size_t i = 0; i < 65536; i++) {
                            float o = out[t * 65536 + i];
                            right = right && (isfinite(want[i])            ? o == want[i]
                                              : cols > 1 || isnan(want[i]) ? isnan(o)
                                                                           : o == want[i]);
                        }
                    check(right, "%s: products of %s, %zu columns, %zu vectors", cpu_level_name(level),
                          type_names[type], cols, n);
                    for (size_t i = 0; i < 65536; i++)
                        halves[i] = (uint16_t)i;
                }
        }
    }
    free(ws.memory);
    free(halves);
    free(want);
    free(got);
    free(out);
}

/* ---- several products of one input ------------------------------------------------------------------------------- */

static void test_several_products(void)
{
    const size_t cols = 96, rows[] = {1, 40, 17, 300, 3};
    static const WeightType types[] = {WEIGHT_BF16, WEIGHT_F32, WEIGHT_Q8, WEIGHT_F16, WEIGHT_Q4};
    float *x = allocate(60 * cols * sizeof *x), *source = allocate(300 * cols * sizeof *source);
    for (size_t i = 0; i < 60 * cols; i++)
        x[i] = random_float();
    for (size_t i = 0; i < 300 * cols; i++)
        source[i] = random_float();
    Workspace ws = workspace(cols, 60);
    for (CpuLevel level = CPU_SCALAR; level < CPU_LEVELS; level++)
        for (size_t n = 1; n <= 60; n += 59) {
            if (!cpu_has(level))
                continue;
            cpu_set_level(level);
            Matrix m[5];
            Product p[5];
            float *together[5], *alone[5];
            for (size_t i = 0; i < 5; i++) {
                m[i] = (Matrix){source, types[i], rows[i], cols};
                if (types[i] >= WEIGHT_Q8)
                    m[i] = quantize(types[i], &(Matrix){source, WEIGHT_F32, rows[i], cols});
                together[i] = allocate(n * rows[i] * sizeof **together);
                alone[i] = allocate(n * rows[i] * sizeof **alone);
                p[i] = (Product){&m[i], i % 2 ? source : NULL, together[i], rows[i], false};
            }
            matmul(p, 5, x, n, &ws);
            for (size_t i = 0; i < 5; i++) {
                p[i].out = alone[i];
                matmul(&p[i], 1, x, n, &ws);
                check(same(together[i], alone[i], n * rows[i]), "%s: product %zu of 5, %zu vectors",
                      cpu_level_name(level), i, n);
                if (types[i] >= WEIGHT_Q8)
                    free_matrix(&m[i]);
                free(together[i]);
                free(alone[i]);
            }
        }
    free(ws.memory);
    free(x);
    free(source);
}

int main(void)
{
    threads(2);
    test_definition();
    test_levels();
    test_rounding();
    test_all_halves();
    test_several_products();
    test_quantized();
    threads_stop();
    return report("matmul");
}
