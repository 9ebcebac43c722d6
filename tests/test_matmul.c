/* Every kernel level that this CPU has gives the bits of the scalar definition, and the definition is what matmul.h says. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../matmul.h"
#include "../threads.h"
#include "check.h"

static const char *const type_names[] = {"f32", "bf16", "f16", "q8", "q4"};

/* ---- numbers and memory ------------------------------------------------------------------------------------------------------ */

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

/* Of either sign, between 2^-8 and 2^8; one in eight of another kind: zeros of both signs, and numbers so small that products
 * vanish, to zeros of both signs again. */
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

/* A number of the weight type. */
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

/* Memory whose last byte is followed by a page that must not be touched. */
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
    char err[512];
    Workspace ws;
    if (workspace_init(&ws, cols, n, 64, 7, err)) {
        printf("%s\n", err);
        exit(1);
    }
    return ws;
}

static void threads(int n)
{
    char err[512];
    check(threads_start(n, err) == 0, "%s", err);
}

/* ---- the definition ------------------------------------------------------------------------------------------------------------ */

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
    workspace_free(&ws);
}

/* ---- levels against the scalar definition --------------------------------------------------------------------------------------- */

/* out[n][rows] by the level now set, sentinels around and between untouched, rows fenced off. */
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

/* One shape at every level; the matrix and the inputs end where memory ends. odd: the matrix starts at an odd address. */
static void compare_levels(WeightType type, size_t rows, size_t cols, size_t n, bool odd, bool with_bias)
{
    size_t bytes = rows * cols * element_bytes(type);
    Guarded w = guarded(bytes), x = guarded(n * cols * sizeof(float));
    float *want = allocate(n * rows * sizeof *want), *got = allocate(n * rows * sizeof *got), *bias = allocate(rows * sizeof *bias);
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
        check(same(got, want, n * rows), "%s: %s %zux%zu, %zu vectors%s", cpu_level_name(level), type_names[type], rows, cols, n,
              odd ? ", odd address" : "");
    }
    workspace_free(&ws);
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

int main(void)
{
    threads(2);
    test_definition();
    test_levels();
    threads_stop();
    return report("matmul");
}
