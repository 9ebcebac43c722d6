/* How near matmul() comes to this machine's limits. Not part of the tests.
 *
 *     make build/tests/bench/matmul
 *     build/tests/bench/matmul [LEVEL|all [THREADS [TYPE]]]       for example: avx512 2 bf16
 *
 * For each weight type it prints the GB/s of a decode step (one vector, the matrices of a 0.5B model) beside what the
 * same threads read from memory, and the GFLOP/s of each shape at several numbers of vectors beside the peak of the
 * level's multiply-adds.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/matmul.h"
#include "kernels/quantize.h"

#define REPEATS 9
#define LAYERS 24

/* Other work on the machine only ever adds time: the least of several is nearest to the truth. */
static double least(const double *v, size_t n)
{
    double m = v[0];
    for (size_t i = 1; i < n; i++)
        m = v[i] < m ? v[i] : m;
    return m;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

#define FMA_LOOP 2000000

static void spin_fma(void *context, size_t begin, size_t end, int thread)
{
    (void)begin, (void)end, (void)thread;
    CpuLevel level = *(CpuLevel *)context;
    (void)level;
#ifdef __x86_64__
    for (int i = 0; i < FMA_LOOP; i++) {
#define Z(n) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #n "\n\t"
#define Y(n) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #n "\n\t"
        if (level >= CPU_AVX512)
            __asm__ volatile(Z(4) Z(5) Z(6) Z(7) Z(8) Z(9) Z(10) Z(11) Z(12) Z(13) Z(14) Z(15)::
                                 : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                                   "xmm14", "xmm15");
        else if (level == CPU_AVX2)
            __asm__ volatile(Y(4) Y(5) Y(6) Y(7) Y(8) Y(9) Y(10) Y(11) Y(12) Y(13) Y(14) Y(15)::
                                 : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                                   "xmm14", "xmm15");
    }
#elif defined(__aarch64__)
    for (int i = 0; i < FMA_LOOP; i++) {
#define V(n) "fmla v" #n ".4s, v0.4s, v1.4s\n\t"
        __asm__ volatile(V(4) V(5) V(6) V(7) V(16) V(17) V(18) V(19) V(20) V(21) V(22) V(23)::
                             : "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23");
    }
#endif
}

/* GFLOP/s of fused multiply-adds on all threads; 0 where it is not measured at this level. */
static double fma_peak(CpuLevel level)
{
    double lanes = level == CPU_AVX2 ? 8 : level == CPU_NEON ? 4 : level == CPU_SCALAR ? 0 : 16, best = 0;
    size_t threads = (size_t)threads_count();
    for (int r = 0; r < REPEATS; r++) {
        double t = clock_seconds();
        threads_for(threads, 1, spin_fma, &level);
        double rate = lanes * 2 * 12 * FMA_LOOP * (double)threads / (clock_seconds() - t) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Read one word of each cache line, which fetches the whole line; the core has as many reads under way as it can. */
static void read_memory(void *context, size_t begin, size_t end, int thread)
{
    const unsigned char *p = context;
    (void)thread;
    for (size_t i = begin * 64; i < end * 64; i += 64) {
        __builtin_prefetch(p + i + 4096);
        (void)*(const volatile uint64_t *)(const void *)(p + i);
    }
}

/* Seconds to read size bytes with all threads. */
static double read_seconds(unsigned char *memory, size_t size)
{
    double t = clock_seconds();
    threads_for(size / 64, 1 << 18, read_memory, memory);
    return clock_seconds() - t;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    size_t cols, rows[3]; /* of products that are computed together */
} Shape;

static const Shape shapes[] = {
    {"qkv", 896, {896, 128, 128}},     {"kv", 896, {128, 128, 0}},  {"o", 896, {896, 0, 0}},
    {"gate up", 896, {4864, 4864, 0}}, {"down", 4864, {896, 0, 0}}, {"head", 896, {151936, 0, 0}},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static size_t matrix_bytes(WeightType type, size_t rows, size_t cols)
{
    if (type >= WEIGHT_Q8)
        return quantized_size(type, rows, cols);
    return rows * cols * (type == WEIGHT_F32 ? 4 : 2);
}

/* Run the shape's products with the matrices from *at on, and move *at behind them. */
static void run_shape(const Shape *s, WeightType type, const unsigned char **at, const float *x, float *out, size_t n,
                      Workspace *ws)
{
    Matrix m[3];
    Product p[3];
    size_t count = 0;
    for (; count < 3 && s->rows[count]; count++) {
        m[count] = (Matrix){*at, type, s->rows[count], s->cols};
        p[count] = (Product){&m[count], NULL, out, s->rows[count], false};
        *at += (matrix_bytes(type, s->rows[count], s->cols) + 63) / 64 * 64;
        out += n * s->rows[count];
    }
    matmul(p, count, x, n, ws);
}

/* GB/s of one token's products: all layers, then the head. */
static void bench_decode(WeightType type, const char *name, unsigned char *memory, size_t n, const float *x, float *out,
                         Workspace *ws)
{
    static const int layer[] = {0, 2, 3, 4};
    double t[REPEATS], limit[REPEATS];
    size_t bytes = 0;
    for (int i = 0; i < REPEATS; i++) {
        const unsigned char *at = memory;
        t[i] = clock_seconds();
        for (int l = 0; l < LAYERS; l++)
            for (size_t k = 0; k < sizeof layer / sizeof *layer; k++)
                run_shape(&shapes[layer[k]], type, &at, x, out, n, ws);
        run_shape(&shapes[5], type, &at, x, out, n, ws);
        t[i] = clock_seconds() - t[i];
        bytes = (size_t)(at - memory);
        limit[i] = read_seconds(memory, bytes);
    }
    double rate = (double)bytes / least(t, REPEATS) / 1e9, most = (double)bytes / least(limit, REPEATS) / 1e9;
    printf("  %-5s %2zu vectors: %6.1f GB/s of %5.1f: %5.1f%%   (%.2f ms)\n", name, n, rate, most, 100 * rate / most,
           1e3 * least(t, REPEATS));
}

static void bench_prefill(WeightType type, const char *name, const unsigned char *memory, size_t n, const float *x,
                          float *out, Workspace *ws, double peak)
{
    printf("  %-5s %3zu vectors:", name, n);
    for (size_t s = 0; s < SHAPES; s++) {
        double t[REPEATS], flops = 0;
        if (n * shapes[s].rows[0] > 512 * 9728u)
            continue;
        for (size_t k = 0; k < 3; k++)
            flops += 2 * (double)(n * shapes[s].rows[k] * shapes[s].cols);
        for (int i = 0; i < REPEATS; i++) {
            const unsigned char *at = memory;
            t[i] = clock_seconds();
            run_shape(&shapes[s], type, &at, x, out, n, ws);
            t[i] = clock_seconds() - t[i];
        }
        double rate = flops / least(t, REPEATS) / 1e9;
        printf("  %s %.0f (%.1f%%)", shapes[s].name, rate, 100 * rate / peak);
    }
    printf("\n");
}

/* Quantizing the head from BF16: ms, and what a model of 0.5 billion weights would take. */
static void bench_quantize(WeightType type, const char *name, unsigned char *memory, size_t size)
{
    double t[REPEATS];
    Matrix src = {memory, WEIGHT_BF16, 151936, 896}, dst = {memory + size / 2, type, 151936, 896};
    for (int i = 0; i < REPEATS; i++) {
        size_t bad;
        t[i] = clock_seconds();
        if (quantize_matrix(&dst, memory + size / 2, &src, &bad))
            printf("bad row %zu\n", bad);
        t[i] = clock_seconds() - t[i];
    }
    printf("  %-5s quantizing: %.0f ms for 494 million weights\n", name,
           1e3 * least(t, REPEATS) * 494 / (151936 * 896 / 1e6));
}

/* Memory in huge pages, where the system has them. */
static unsigned char *pages(size_t size)
{
    const size_t huge = (size_t)2 << 20;
    unsigned char *p = mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    p += (huge - (uintptr_t)p % huge) % huge;
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

int main(int argc, char **argv)
{
    char err[512];
    const size_t most_n = 512, size = (size_t)2100 << 20;
    static const char *const names[] = {"f32", "bf16", "f16", "q8", "q4"};
    const char *wish = argc > 1 ? argv[1] : "best", *type_wish = argc > 3 ? argv[3] : NULL;
    if (threads_start(argc > 2 ? atoi(argv[2]) : cpu_cores_usable(), err)) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    unsigned char *memory = pages(size);
    float *x = (float *)(void *)pages(most_n * 4864 * sizeof *x);
    float *out = (float *)(void *)pages(most_n * 2 * 4864 * sizeof *out);
    Workspace ws = {.size = matmul_scratch_bytes(4864, most_n)};
    ws.memory = aligned_alloc(64, ws.size);
    if (!memory || !x || !out || !ws.memory) {
        fprintf(stderr, "out of memory\n");
        return 1;
    }
    memset(memory, 0x3c, size);
    for (size_t i = 0; i < most_n * 4864; i++)
        x[i] = (float)(i % 251) / 251 - 0.5f;
    for (int l = 0; l < CPU_LEVELS; l++) {
        CpuLevel level = (CpuLevel)l;
        if (!cpu_has(level) || (strcmp(wish, "all") && strcmp(wish, cpu_level_name(level)) &&
                                (strcmp(wish, "best") || level != cpu_level_best())))
            continue;
        cpu_set_level(level);
        double peak = fma_peak(level);
        printf("%s, %d threads: %.0f GFLOP/s\n", cpu_level_name(level), threads_count(), peak);
        for (int type = 0; type < 5; type++) {
            if (type_wish && strcmp(type_wish, names[type]))
                continue;
            if (type >= WEIGHT_Q8)
                bench_quantize((WeightType)type, names[type], memory, size);
            for (size_t n = 1; n <= 8; n *= 2)
                bench_decode((WeightType)type, names[type], memory, n, x, out, &ws);
            for (size_t n = 16; n <= most_n; n *= 2)
                bench_prefill((WeightType)type, names[type], memory, n, x, out, &ws, peak);
            ws.allow_rounding = true;
            if (level == CPU_AVX512BF16 && type <= WEIGHT_F16) {
                printf("  with inputs rounded to BF16:\n");
                bench_prefill((WeightType)type, names[type], memory, most_n, x, out, &ws, peak);
            }
            ws.allow_rounding = false;
        }
    }
    return 0;
}
