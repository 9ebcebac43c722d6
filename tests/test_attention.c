/* kernels/elementary.c, vector.c and attention.c: each level has the bits of the scalar definition, and that is
 * compared with double precision. */
#include "base/base.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"
#include "kernels/attention.h"
#include "kernels/elementary.h"
#include "kernels/matmul.h"
#include "kernels/vector.h"

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float random_float(float scale)
{
    return scale * ((float)(random_bits() >> 40) / (float)(1 << 23) - 1.0f);
}

static void fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(scale);
}

/* Memory of n floats that ends where an unmapped page begins. */
typedef struct {
    float *x;
    void *pages;
    size_t bytes;
} Edge;

static Edge at_edge(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (n * sizeof(float) + page - 1) / page * page;
    Edge e = {.bytes = used + page};
    e.pages = mmap(NULL, e.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e.pages == MAP_FAILED || mprotect((char *)e.pages + used, page, PROT_NONE)) {
        perror("mmap");
        exit(1);
    }
    e.x = (float *)(void *)((char *)e.pages + used) - n;
    return e;
}

static void drop(Edge e)
{
    munmap(e.pages, e.bytes);
}

/* Levels that this machine has, without those that share their kernels in these files with a lower one. */
static bool distinct(CpuLevel level)
{
    return cpu_has(level) && level != CPU_AVX512VNNI && level != CPU_AVX512BF16;
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* The worse of two errors; NaN is the worst. */
static double worse(double a, double b)
{
    return b > a || isnan(b) ? b : a;
}

/* ---- exp, log, sine, cosine -------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Error in units of the last place of the value, which for subnormals is that of the least normal number. */
static double ulps(double got, long double want, int digits, int least_exponent)
{
    int e;
    frexpl(want, &e);
    e = e < least_exponent ? least_exponent : e;
    return (double)fabsl((got - want) / ldexpl(1, e - digits));
}

static void test_exp_f32(void)
{
    double worst = 0;
    size_t wrong_edge = 0;
    for (uint32_t bits = 0; bits < 0x43000000; bits += 3001)
        for (int sign = 0; sign < 2; sign++) {
            float x = float_of(bits | (uint32_t)sign << 31), y = exp_f32(x);
            long double want = expl(x);
            if ((float)want == INFINITY || (float)want == 0)
                wrong_edge += y != (float)want;
            else
                worst = worse(worst, ulps(y, want, 24, -125));
        }
    check(worst < 1.0, "exp_f32 is off by %.3f ulp", worst);
    check(wrong_edge == 0, "%zu overflows or underflows of exp_f32 differ", wrong_edge);
    check(exp_f32(0) == 1 && exp_f32(-0.0f) == 1, "exp(0)");
    check(exp_f32(INFINITY) == INFINITY && exp_f32(-INFINITY) == 0, "exp of infinities");
    check(isnan(exp_f32(NAN)) && isnan(exp_f32(-NAN)), "exp of NaN");
    check(exp_f32(88.72283f) < INFINITY && exp_f32(88.72284f) == INFINITY, "where exp overflows");
    check(exp_f32(-103.97f) > 0 && exp_f32(-103.98f) == 0, "where exp vanishes");
}

static void test_f64(void)
{
    double worst_exp = 0, worst_log = 0, worst_sin = 0;
    for (int i = 0; i < 100000; i++) {
        double u = (double)(random_bits() >> 11) * 0x1p-53, x = -745 + u * 1454.7;
        long double want = expl(x);
        worst_exp = worse(worst_exp, ulps(exp_f64(x), want, 53, -1021));
        uint64_t bits = random_bits() % 0x7ff0000000000000;
        memcpy(&x, &bits, sizeof x);
        x = i % 2 ? x : 0.5 + u * 1.5;
        if (x > 0 && x != 1)
            worst_log = worse(worst_log, ulps(log_f64(x), logl(x), 53, -1021));
        double s, c, a = i % 3 ? (u - 0.5) * 2e6 : (u - 0.5) * 20;
        a = i % 5 ? (double)(float)a : a;
        sin_cos_f64(a, &s, &c);
        worst_sin = worse(worst_sin, (double)fmaxl(fabsl(s - sinl(a)), fabsl(c - cosl(a))));
    }
    check(worst_exp < 1.0, "exp_f64 is off by %.3f ulp", worst_exp);
    check(worst_log < 1.0, "log_f64 is off by %.3f ulp", worst_log);
    check(worst_sin < 2e-16, "sin_cos_f64 is off by %.3g", worst_sin);
    check(exp_f64(0) == 1 && exp_f64(1000) == INFINITY && exp_f64(-1000) == 0, "exp at its ends");
    check(log_f64(1) == 0 && log_f64(0) == -INFINITY && log_f64(INFINITY) == INFINITY, "log at its ends");
    check(isnan(exp_f64(NAN)) && isnan(log_f64(-1)) && isnan(log_f64(NAN)), "exp and log of NaN");
    double s, c;
    sin_cos_f64(0, &s, &c);
    check(s == 0 && c == 1, "sine and cosine of 0");
    sin_cos_f64(NAN, &s, &c);
    check(isnan(s) && isnan(c), "sine and cosine of NaN");
}

/* Values made with 60 digits: x, sin x, cos x. */
static void test_sin_cos_table(void)
{
    static const double table[][3] = {
        {1e-300, 1e-300, 1.0},
        {1e-09, 1e-09, 1.0},
        {0.5, 0.479425538604203, 0.8775825618903728},
        {0.7853981633974483, 0.7071067811865475, 0.7071067811865476},
        {0.7853981633974484, 0.7071067811865476, 0.7071067811865475},
        {1.5707963267948966, 1.0, 6.123233995736766e-17},
        {3.141592653589793, 1.2246467991473532e-16, -1.0},
        {100.0, -0.5063656411097588, 0.8623188722876839},
        {710.0, 6.0288706691585265e-05, 0.999999998182636},
        {32767.0, 0.18750655394138943, 0.9822633517692823},
        {131071.0, -0.5752416837547893, -0.8179834993879491},
        {262143.703125, 0.21106902330705812, -0.9774711593700371},
        {355.0, -3.014435335948845e-05, -0.999999999545659},
        {71000.0, 0.00602883415070045, 0.999981826414252},
        {311979.0, -5.738800730727115e-05, 0.9999999983533083},
        {833719.0, 2.3129194164527015e-06, -0.9999999999973253},
        {999999.5, -0.756251087561678, 0.654281508650351},
        {1000000.0, -0.34999350217129294, 0.9367521275331447},
        {123456.78125, -0.9990345494825916, 0.043931411770112026},
        {797744.5, -0.12221971308967713, 0.9925030688780146},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double s, c;
            sin_cos_f64(sign * table[i][0], &s, &c);
            check(fabs(s - sign * table[i][1]) < 1e-15 && fabs(c - table[i][2]) < 1e-15, "sin, cos %.17g: %.17g, %.17g",
                  table[i][0], s, c);
        }
}

/* A digest of what the functions give at this level, to compare it with another level's. */
static uint64_t functions_digest(void)
{
    uint64_t h = 1469598103934665603u;
    for (uint32_t i = 0; i < 40000; i++) {
        float x = float_of(i * 107374 + 17);
        double y[5] = {exp_f32(x), exp_f64((double)x * 7), log_f64(fabs((double)x))};
        sin_cos_f64(fabsf(x) < 1e6f ? (double)x : 1, &y[3], &y[4]);
        for (int k = 0; k < 5; k++) {
            uint64_t bits;
            memcpy(&bits, &y[k], sizeof bits);
            h = (h ^ (isnan(y[k]) ? 1 : bits)) * 1099511628211u;
        }
    }
    return h;
}

/* ---- loops over one vector --------------------------------------------------------------------------------------- */

/* Runs each loop over n numbers that end at an unmapped page; results go to out [5 * n]. */
static void run_loops(const float *data, size_t n, float *out)
{
    Edge x = at_edge(n), y = at_edge(n), z = at_edge(n);
    memcpy(x.x, data, n * sizeof *data);
    memcpy(y.x, data + n, n * sizeof *data);
    rmsnorm(z.x, x.x, y.x, n, 1e-6f);
    memcpy(out, z.x, n * sizeof *out);
    rmsnorm(x.x, x.x, y.x, n, 0.1f);
    memcpy(out + n, x.x, n * sizeof *out);
    memcpy(x.x, data, n * sizeof *data);
    swiglu(x.x, y.x, n);
    memcpy(out + 2 * n, x.x, n * sizeof *out);
    size_t half = n / 2;
    Edge cosine = at_edge(half), sine = at_edge(half), heads = at_edge(4 * half);
    memcpy(cosine.x, data, half * sizeof *data);
    memcpy(sine.x, data + n, half * sizeof *data);
    memcpy(heads.x, data + half, 2 * half * sizeof *data);
    memcpy(heads.x + 2 * half, data, 2 * half * sizeof *data);
    rope_rotate(heads.x, 2, 2 * half, cosine.x, sine.x);
    memcpy(out + 3 * n, heads.x, 4 * half * sizeof *out);
    drop(x), drop(y), drop(z), drop(cosine), drop(sine), drop(heads);
}

static void test_loops(CpuLevel level)
{
    for (size_t n = 1; n <= 300; n += n < 130 ? 1 : 17) {
        float data[600], out[1500] = {0}, want[1500] = {0};
        fill(data, 2 * n, n % 3 ? 1.0f : 50.0f);
        if (n % 7 == 0) {
            data[n / 2] = n % 2 ? 0.0f : -0.0f;
            data[n / 3] = -200;
            data[0] = n % 4 ? 1e30f : INFINITY;
            data[2 * n - 1] = NAN;
        }
        cpu_set_level(CPU_SCALAR);
        run_loops(data, n, want);
        cpu_set_level(level);
        run_loops(data, n, out);
        check(same_bits(out, want, 5 * n), "%s: loops over %zu", cpu_level_name(level), n);
    }
}

/* The definitions, compared with double precision. */
static void test_definitions(void)
{
    float x[896], y[896], out[896], cosine[32], sine[32];
    fill(x, 896, 3);
    fill(y, 896, 1);
    cpu_set_level(CPU_SCALAR);
    double squares = 0, worst_norm = 0, worst_silu = 0, worst_rope = 0;
    for (int i = 0; i < 896; i++)
        squares += (double)x[i] * (double)x[i];
    rmsnorm(out, x, y, 896, 1e-6f);
    for (int i = 0; i < 896; i++)
        worst_norm = worse(worst_norm, fabs((double)out[i] - (double)x[i] / sqrt(squares / 896 + 1e-6) * (double)y[i]));
    check(worst_norm < 1e-6, "rmsnorm is off by %g", worst_norm);
    memcpy(out, x, sizeof x);
    swiglu(out, y, 896);
    for (int i = 0; i < 896; i++)
        worst_silu = worse(worst_silu, fabs((double)out[i] - (double)x[i] / (1 + exp(-(double)x[i])) * (double)y[i]));
    check(worst_silu < 1e-6, "swiglu is off by %g", worst_silu);
    for (int i = 0; i < 32; i++) {
        cosine[i] = (float)cos(i);
        sine[i] = (float)sin(i);
    }
    memcpy(out, x, sizeof x);
    rope_rotate(out, 14, 64, cosine, sine);
    for (int h = 0; h < 14; h++)
        for (int d = 0; d < 32; d++) {
            double a = (double)x[h * 64 + d], b = (double)x[h * 64 + d + 32];
            worst_rope = worse(worst_rope, fabs((double)out[h * 64 + d] - (a * cos(d) - b * sin(d))));
            worst_rope = worse(worst_rope, fabs((double)out[h * 64 + d + 32] - (b * cos(d) + a * sin(d))));
        }
    check(worst_rope < 1e-6, "rope_rotate is off by %g", worst_rope);
}

static void test_max(CpuLevel level)
{
    bool bad = false, never = false;
    cpu_set_level(level);
    const char *name = cpu_level_name(level);
    check(max_f32(NULL, 0) == -INFINITY && argmax_f32(NULL, 0, &bad) == 0 && !bad, "%s: of nothing", name);
    for (size_t n = 1; n <= 129; n++) {
        Edge e = at_edge(n);
        for (size_t best = 0; best < n; best++) {
            for (size_t i = 0; i < n; i++)
                e.x[i] = i == best || (i > best && i % 5 == 0) ? 7 : random_float(6);
            size_t got = argmax_f32(e.x, n, &bad);
            never = never || got != best || bad || max_f32(e.x, n) != 7;
            e.x[best] = NAN;
            argmax_f32(e.x, n, &bad);
            never = never || !bad || !isnan(max_f32(e.x, n));
            e.x[best] = INFINITY;
            never = never || argmax_f32(e.x, n, &bad) != best || !bad || max_f32(e.x, n) != INFINITY;
            e.x[best] = -INFINITY;
            argmax_f32(e.x, n, &bad);
            never = never || bad;
        }
        for (size_t i = 0; i < n; i++)
            e.x[i] = -INFINITY;
        never = never || argmax_f32(e.x, n, &bad) != 0 || bad || max_f32(e.x, n) != -INFINITY;
        check(!never, "%s: largest of %zu", name, n);
        drop(e);
    }
    float zeros[40];
    for (int i = 0; i < 40; i++)
        zeros[i] = i == 23 ? 0.0f : -0.0f;
    check(!signbit(max_f32(zeros, 40)) && argmax_f32(zeros, 40, NULL) == 0, "%s: zeros of both signs", name);
    size_t vocab = 151936;
    Edge e = at_edge(vocab);
    fill(e.x, vocab, 10);
    e.x[150001] = e.x[777] = 11;
    check(argmax_f32(e.x, vocab, &bad) == 777 && !bad, "%s: largest of a vocabulary", name);
    e.x[151935] = NAN;
    argmax_f32(e.x, vocab, &bad);
    check(bad, "%s: NaN at the end of a vocabulary", name);
    drop(e);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t n_heads, n_kv_heads, head_dim, window, length;
    KvType type;
} Shape;

/* Queries, keys and values of `length` positions, and the cache that holds them. */
typedef struct {
    Shape s;
    float *q, *k, *v; /* [length][heads][head_dim] */
    Edge *edges;
    KvBlock *list, **blocks; /* each has two layers, of which the second is used */
    size_t n_blocks;
} Case;

static float *make_floats(size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    fill(x, n, scale);
    return x;
}

static void store(Case *c, size_t pos)
{
    size_t kv = c->s.n_kv_heads * c->s.head_dim;
    attention_store(c->blocks[pos / ATTENTION_BLOCK], 1, pos % ATTENTION_BLOCK, c->k + pos * kv, c->v + pos * kv,
                    c->s.n_kv_heads, c->s.head_dim);
}

static Case make_case(Shape s, float spread)
{
    size_t kv = s.n_kv_heads * s.head_dim, bytes = 2 * attention_layer_bytes(s.type, s.n_kv_heads, s.head_dim);
    Case c = {.s = s, .n_blocks = (s.length + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK};
    c.q = make_floats(s.length * s.n_heads * s.head_dim, spread);
    c.k = make_floats(s.length * kv, 1);
    c.v = make_floats(s.length * kv, 1);
    for (size_t i = 0; i < s.length * kv && s.type == KV_F16; i++) { /* numbers that FP16 has */
        c.k[i] = rintf(c.k[i] * 1024) / 1024;
        c.v[i] = rintf(c.v[i] * 1024) / 1024;
    }
    c.edges = calloc(c.n_blocks, sizeof *c.edges);
    c.list = calloc(c.n_blocks, sizeof *c.list);
    c.blocks = calloc(c.n_blocks, sizeof *c.blocks);
    for (size_t b = 0; b < c.n_blocks; b++) {
        c.edges[b] = at_edge(bytes / sizeof(float)); /* 64-byte aligned, since a layer is a multiple of 64 bytes */
        c.list[b] = (KvBlock){1, s.type, (unsigned char *)c.edges[b].x};
        c.blocks[b] = &c.list[b];
        memset(c.list[b].layers, 0xff, bytes); /* NaNs: what is not stored must change nothing */
    }
    for (size_t pos = 0; pos < s.length; pos++)
        store(&c, pos);
    return c;
}

static void free_case(Case c)
{
    for (size_t b = 0; b < c.n_blocks; b++)
        drop(c.edges[b]);
    free(c.edges), free(c.list), free(c.blocks), free(c.q), free(c.k), free(c.v);
}

/* The queries of start..start+n-1 as those of up to `parts` sequences that share a cache. Returns how many. */
static size_t cut_queries(const Case *c, size_t start, size_t n, size_t parts, Queries *list)
{
    size_t count = 0;
    for (size_t done = 0, some; done < n; done += some) {
        some = n / parts + count % 2;
        if (some == 0 || some > n - done || count + 1 == parts)
            some = n - done;
        list[count++] = (Queries){c->blocks, some, start + done};
    }
    return count;
}

/* Attention of the queries start..start+n-1, up to at_once at a time, cut into up to `parts` sequences, in a workspace
 * of at most `most` bytes. */
static void run_in(size_t most, const Case *c, size_t start, size_t n, size_t at_once, size_t parts, float *out)
{
    const Shape *s = &c->s;
    size_t width = s->n_heads * s->head_dim;
    Workspace ws = {.size = attention_scratch_bytes(s->n_heads / s->n_kv_heads, s->head_dim)};
    ws.size = MIN(ws.size, most);
    ws.memory = aligned_alloc(64, ws.size);
    for (size_t t = 0; t < n; t += at_once) {
        size_t count = n - t < at_once ? n - t : at_once;
        Edge q = at_edge(count * width), o = at_edge(count * width);
        Queries sequences[8];
        memcpy(q.x, c->q + (start + t) * width, count * width * sizeof *q.x);
        attention(&(Attention){.q = q.x,
                               .out = o.x,
                               .sequences = sequences,
                               .n_sequences = cut_queries(c, start + t, count, parts, sequences),
                               .layer = 1,
                               .window = s->window,
                               .n_heads = s->n_heads,
                               .n_kv_heads = s->n_kv_heads,
                               .head_dim = s->head_dim,
                               .scale = 1.0f / sqrtf((float)s->head_dim)},
                  &ws);
        memcpy(out + t * width, o.x, count * width * sizeof *out);
        drop(q), drop(o);
    }
    free(ws.memory);
}

static void run_attention(const Case *c, size_t start, size_t n, size_t at_once, float *out)
{
    run_in(SIZE_MAX, c, start, n, at_once, 1, out);
}

/* Softmax attention in double precision, of one query and head. */
static void reference(const Case *c, size_t pos, size_t head, double *out)
{
    const Shape *s = &c->s;
    size_t hd = s->head_dim, kv = s->n_kv_heads * hd, kv_head = head / (s->n_heads / s->n_kv_heads);
    const float *q = c->q + (pos * s->n_heads + head) * hd;
    size_t low = s->window && pos + 1 > s->window ? pos + 1 - s->window : 0;
    double max = -INFINITY, sum = 0, *p = malloc((pos + 1) * sizeof *p);
    for (size_t j = low; j <= pos; j++) {
        double dot = 0;
        for (size_t d = 0; d < hd; d++)
            dot += (double)q[d] * (double)c->k[j * kv + kv_head * hd + d];
        p[j] = dot / sqrt((double)hd);
        max = fmax(max, p[j]);
    }
    for (size_t d = 0; d < hd; d++)
        out[d] = 0;
    for (size_t j = low; j <= pos; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
        for (size_t d = 0; d < hd; d++)
            out[d] += p[j] * (double)c->v[j * kv + kv_head * hd + d];
    }
    for (size_t d = 0; d < hd; d++)
        out[d] /= sum;
    free(p);
}

static double worst_error(const Case *c, size_t start, size_t n, const float *out)
{
    const Shape *s = &c->s;
    double worst = 0, *want = malloc(s->head_dim * sizeof *want);
    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < s->n_heads; h++) {
            reference(c, start + t, h, want);
            for (size_t d = 0; d < s->head_dim; d++) {
                double e = fabs((double)out[(t * s->n_heads + h) * s->head_dim + d] - want[d]);
                worst = worse(worst, e);
            }
        }
    free(want);
    return worst;
}

/* All levels, several ways to cut the queries, and 1, 2 and 7 threads give the bits of want. */
static void compare_ways(const Case *c, size_t start, const float *want, const char *name)
{
    static const int threads[] = {1, 2, 7};
    char err[512];
    size_t n = c->s.length - start, floats = n * c->s.n_heads * c->s.head_dim;
    const size_t at_once[] = {1, 3, 37, n};
    float *got = malloc(floats * sizeof *got);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        if (emulated() && i != 1)
            continue;
        check(threads_start(threads[i], err) == 0, "%s", err);
        for (int level = 0; level < CPU_LEVELS; level++) {
            if (!distinct((CpuLevel)level) || (level == CPU_SCALAR && i != 1))
                continue;
            cpu_set_level((CpuLevel)level);
            for (size_t k = level == CPU_SCALAR ? 3 : 0; k < sizeof at_once / sizeof *at_once; k++) {
                memset(got, 0xff, floats * sizeof *got);
                run_attention(c, start, n, at_once[k] < n ? at_once[k] : n, got);
                check(same_bits(got, want, floats), "%s: %s, %d threads, %zu at a time", name,
                      cpu_level_name((CpuLevel)level), threads[i], at_once[k]);
            }
            for (size_t parts = 2; parts <= 5 && level != CPU_SCALAR; parts += 3) {
                memset(got, 0xff, floats * sizeof *got);
                run_in(SIZE_MAX, c, start, n, n, parts, got);
                check(same_bits(got, want, floats), "%s: %s, %d threads, %zu sequences", name,
                      cpu_level_name((CpuLevel)level), threads[i], parts);
            }
        }
    }
    free(got);
}

/* The scalar result, one query at a time without a pool, is compared with double precision and with all others. */
static void test_shape(Shape s, size_t start, float spread)
{
    char name[128];
    Case c = make_case(s, spread);
    size_t n = s.length - start;
    float *want = malloc(n * s.n_heads * s.head_dim * sizeof *want);
    snprintf(name, sizeof name, "heads %zu/%zu of %zu, window %zu, queries %zu..%zu, %s", s.n_heads, s.n_kv_heads,
             s.head_dim, s.window, start, s.length, s.type == KV_F32 ? "f32" : "f16");
    threads_stop();
    cpu_set_level(CPU_SCALAR);
    run_attention(&c, start, n, 1, want);
    double worst = worst_error(&c, start, n, want);
    check(worst < 2e-7 * fmax(10, (double)spread), "%s: off by %g", name, worst);
    compare_ways(&c, start, want, name);
    free(want);
    free_case(c);
}

static void test_shapes(void)
{
    static const struct {
        Shape s;
        size_t start;
        float spread;
    } cases[] = {
        {{1, 1, 8, 0, 1, KV_F32}, 0, 1},          {{2, 1, 8, 0, 40, KV_F32}, 0, 5},        {{14, 2, 64, 0, 70, KV_F32}, 0, 3},
        {{14, 2, 64, 0, 600, KV_F32}, 585, 3},    {{7, 1, 64, 0, 300, KV_F32}, 245, 100},  {{12, 2, 128, 0, 530, KV_F32}, 520, 2},
        {{5, 1, 24, 0, 280, KV_F32}, 250, 3},     {{8, 8, 80, 0, 270, KV_F32}, 240, 3},    {{3, 1, 2, 0, 33, KV_F32}, 0, 1},
        {{16, 1, 34, 0, 265, KV_F32}, 250, 3},    {{70, 1, 8, 0, 260, KV_F32}, 250, 1},    {{4, 2, 66, 0, 20, KV_F32}, 0, 3},
        {{14, 2, 64, 1, 300, KV_F32}, 240, 3},    {{7, 1, 64, 16, 300, KV_F32}, 230, 3},   {{6, 2, 32, 17, 90, KV_F32}, 0, 3},
        {{6, 3, 40, 256, 620, KV_F32}, 500, 3},   {{8, 1, 128, 300, 800, KV_F32}, 790, 3}, {{2, 2, 96, 1000, 520, KV_F32}, 500, 1},
        {{9, 3, 16, 257, 1100, KV_F32}, 1020, 3}, {{4, 4, 48, 100, 513, KV_F32}, 500, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (KvType type = KV_F32; type <= KV_F16; type++) {
            Shape s = cases[i].s;
            s.type = type;
            test_shape(s, cases[i].start, cases[i].spread);
        }
}

/* In a small workspace tiles shrink, and the results of all splits don't fit at once but are merged in several
 * rounds. */
static void test_small_workspace(void)
{
    char err[512];
    Case c = make_case((Shape){4, 2, 8, 0, 256 * 70, KV_F32}, 30);
    size_t start = c.s.length - 20;
    float want[20 * 32], got[20 * 32];
    threads_stop();
    cpu_set_level(CPU_SCALAR);
    run_attention(&c, start, 20, 1, want);
    double worst = worst_error(&c, start, 20, want);
    check(worst < 2e-6, "long context: off by %g", worst);
    cpu_set_level(cpu_level_best());
    for (int threads = emulated() ? 4 : 1; threads <= 4; threads++)
        for (size_t most = 16384; most <= 1 << 20; most *= 4) {
            check(threads_start(threads, err) == 0, "%s", err);
            run_in(most, &c, start, 20, 1, 1, got);
            check(same_bits(got, want, 20 * 32), "one at a time, %d threads, %zu bytes", threads, most);
            run_in(most, &c, start, 20, 20, 3, got);
            check(same_bits(got, want, 20 * 32), "all at once, %d threads, %zu bytes", threads, most);
        }
    free_case(c);
}

/* A NaN or an infinity makes NaNs of the queries and heads that see it, and changes no other. */
static void test_not_numbers(CpuLevel level)
{
    Shape s = {4, 2, 16, 0, 40, KV_F32};
    Case c = make_case(s, 1);
    float out[40 * 64], clean[40 * 64];
    cpu_set_level(level);
    run_attention(&c, 0, 40, 40, clean);
    c.v[20 * 32 + 3] = NAN; /* value of position 20, kv head 0 */
    store(&c, 20);
    run_attention(&c, 0, 40, 40, out);
    check(same_bits(out, clean, 20 * 64), "%s: earlier queries see nothing of it", cpu_level_name(level));
    bool right = true;
    for (size_t t = 20; t < 40; t++)
        for (size_t h = 0; h < 4; h++)
            for (size_t d = 0; d < 16; d++)
                right = right && isnan(out[(t * 4 + h) * 16 + d]) == (h < 2 && d == 3);
    check(right, "%s: a NaN among the values", cpu_level_name(level));
    c.k[10 * 32 + 16] = INFINITY; /* key of position 10, kv head 1 */
    store(&c, 10);
    run_attention(&c, 0, 40, 40, out);
    check(same_bits(out, clean, 10 * 64), "%s: an infinite key, earlier queries", cpu_level_name(level));
    free_case(c);
}

static void test_cache_layout(void)
{
    size_t heads = 2, hd = 6, bytes = attention_layer_bytes(KV_F32, heads, hd);
    check(bytes == 2 * heads * ATTENTION_BLOCK * hd * sizeof(float), "%zu bytes", bytes);
    float *numbers = calloc(2, bytes), *second = numbers + bytes / sizeof *numbers, k[12], v[12];
    KvBlock block = {1, KV_F32, (unsigned char *)numbers};
    bool right = true;
    for (size_t pos = 0; pos < ATTENTION_BLOCK; pos++) {
        for (size_t i = 0; i < 12; i++) {
            k[i] = (float)(pos * 100 + i);
            v[i] = -k[i];
        }
        attention_store(&block, 1, pos, k, v, heads, hd);
    }
    for (size_t pos = 0; pos < ATTENTION_BLOCK; pos++)
        for (size_t h = 0; h < heads; h++)
            for (size_t d = 0; d < hd; d++) {
                float want = (float)(pos * 100 + h * hd + d);
                right = right && second[((h * 16 + pos / 16) * hd + d) * 16 + pos % 16] == want &&
                        second[heads * 256 * hd + (h * 256 + pos) * hd + d] == -want;
            }
    for (size_t i = 0; i < bytes / sizeof *numbers; i++)
        right = right && numbers[i] == 0;
    check(right, "layout of a block");
    free(numbers);
}

/* The FP16 that a number becomes in the cache. */
static uint16_t rounded(float number)
{
    static unsigned char bytes[4 * ATTENTION_BLOCK * 2];
    KvBlock block = {1, KV_F16, bytes};
    uint16_t half;
    attention_store(&block, 0, 0, &number, (float[]){0}, 1, 1);
    memcpy(&half, bytes, sizeof half);
    return half;
}

/* Every finite FP16 becomes itself; what lies between two neighbors the nearer one, half-way the even one; what is
 * larger than all the largest one. FP16: 5 bits of exponent, bias 15, 10 bits of mantissa. */
static void test_rounding(void)
{
    bool right = true;
    for (unsigned h = 0; h < 0x7c00; h++) {
        int exponent = h >> 10 ? (int)(h >> 10) - 25 : -24;
        double value = ldexp((double)((h & 1023) + (h >> 10 ? 1024 : 0)), exponent), middle = value + ldexp(0.5, exponent);
        unsigned up = h + 1 < 0x7c00 ? h + 1 : h;
        right = right && rounded((float)value) == h && rounded((float)-value) == (h | 0x8000);
        right = right && rounded((float)middle) == (h & 1 ? up : h);
        right = right && rounded(nextafterf((float)middle, 0)) == h && rounded(nextafterf((float)middle, 1e9f)) == up;
    }
    check(right, "rounding to FP16");
    check(rounded(1e30f) == 0x7bff && rounded(-70000) == 0xfbff, "too large for FP16: the largest number");
    check(rounded(INFINITY) == 0x7c00 && rounded(-INFINITY) == 0xfc00, "an infinity stays one");
    check((rounded(NAN) & 0x7c00) == 0x7c00 && (rounded(NAN) & 0x3ff) != 0, "a NaN stays one");
    check(rounded(1e-9f) == 0 && rounded(-1e-9f) == 0x8000, "too small for FP16: zero");
}

int main(void)
{
    cpu_set_level(CPU_SCALAR);
    uint64_t digest = functions_digest();
    for (int i = 0; i < CPU_LEVELS; i++) {
        CpuLevel level = (CpuLevel)i;
        if (!distinct(level))
            continue;
        cpu_set_level(level);
        check(functions_digest() == digest, "%s: functions differ", cpu_level_name(level));
        test_loops(level);
        test_max(level);
        test_not_numbers(level);
    }
    cpu_set_level(cpu_level_best());
    test_exp_f32();
    test_f64();
    test_sin_cos_table();
    test_definitions();
    test_cache_layout();
    test_rounding();
    test_shapes();
    test_small_workspace();
    threads_stop();
    return report("attention");
}
