#include "checkpoint/statistics.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "checkpoint/number.h"
#include "checkpoint/tensor.h"

#define BLOCK 1024         /* elements that are decoded at a time: they stay in the nearest cache */
#define CHUNK (64 * BLOCK) /* elements that a thread takes; sums are kept for each chunk and added in order */

/* ---- a loop over a slice ----------------------------------------------------------------------------------------- */

/* Take in the numbers x[n] of the elements from `at` on. Or, where their order does not matter, any numbers, each of
 * which came so many times. */
typedef void Take(void *context, double *x, size_t n, uint64_t times, uint64_t at, int thread);

/* Numbers of 16 bits have 65,536 values. Where their order does not matter it is enough to count how often each comes,
 * and then to take each value once. */
#define VALUES 65536

typedef struct {
    const Slice *slice;
    const unsigned char *run; /* the first byte of a slice that is one run; NULL if it has to be gathered */
    Take *take;
    void *context;
    uint32_t *counts; /* [threads][VALUES] how often each value comes; NULL if numbers are taken as they come */
    _Atomic bool failed;
} Scan;

static void count_values(uint32_t *counts, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, bytes + 2 * i, sizeof code);
        counts[code]++;
    }
}

static void scan_block(const Scan *scan, const unsigned char *bytes, size_t n, size_t at, int thread)
{
    Dtype dtype = scan->slice->tensor->dtype;
    double x[2 * BLOCK];
    number_decode(dtype, bytes, n, x);
    scan->take(scan->context, x, n * number_parts(dtype), 1, at, thread);
}

static void scan_chunk(void *context, size_t begin, size_t end, int thread)
{
    Scan *scan = context;
    size_t size = dtype_bits(scan->slice->tensor->dtype) / 8, n;
    unsigned char gathered[8 * BLOCK];
    char unused[512];
    for (size_t at = begin; at < end && !scan->failed; at += n) {
        const unsigned char *bytes = scan->run ? scan->run + at * size : gathered;
        n = MIN(end - at, BLOCK);
        if (!scan->run && slice_gather(scan->slice, at, n, gathered, unused) != 0)
            scan->failed = true;
        else if (scan->counts)
            count_values(scan->counts + (size_t)thread * VALUES, bytes, n);
        else
            scan_block(scan, bytes, n, at, thread);
    }
}

/* Add the counts of all threads, and take each value that came. */
static void take_values(const Scan *scan)
{
    for (size_t i = 0; i < VALUES; i++) {
        unsigned char bytes[2] = {(unsigned char)i, (unsigned char)(i >> 8)};
        double value = number_read(scan->slice->tensor->dtype, bytes).value;
        uint64_t times = 0;
        for (int t = 0; t < threads_count(); t++)
            times += scan->counts[(size_t)t * VALUES + i];
        if (times > 0)
            scan->take(scan->context, &value, 1, times, 0, 0);
    }
}

/* Take all numbers of a slice, in parallel. */
static int scan_slice(const Slice *s, Take *take, void *context, bool in_order, char err[512])
{
    Scan scan = {.slice = s, .take = take, .context = context};
    SliceWalk w;
    uint64_t first, count;
    if (slice_walk(&w, s, 0, err) != 0)
        return -1;
    if (slice_next(&w, &first, &count) && count == s->elements)
        scan.run = safetensors_data(s->tensor) + first * (dtype_bits(s->tensor->dtype) / 8);
    slice_walk_end(&w);
    if (!in_order && dtype_bits(s->tensor->dtype) == 16 && s->elements >= 4 * VALUES && s->elements <= UINT32_MAX)
        scan.counts = calloc((size_t)threads_count(), VALUES * sizeof *scan.counts); /* else without them, but slower */
    threads_for((size_t)s->elements, CHUNK, scan_chunk, &scan);
    if (scan.counts)
        take_values(&scan);
    free(scan.counts);
    return scan.failed ? tensor_fail(err, NULL, s->tensor, "out of memory for a walk through the slice") : 0;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* Until the end, std stands for the sum of squared differences from the mean. With d = mean_m - mean_n, n and m numbers
 * together have
 *     mean    mean_n + d m / (n + m)
 *     std     std_n + std_m + d^2 n m / (n + m)
 */
static uint64_t finite_of(const Statistics *s)
{
    return s->count - s->nan - s->plus_inf - s->minus_inf;
}

/* Add the numbers of b, which come after those of a. */
static void add_statistics(Statistics *a, const Statistics *b)
{
    double n = (double)finite_of(a), m = (double)finite_of(b), difference = b->mean - a->mean;
    a->count += b->count;
    a->nan += b->nan;
    a->plus_inf += b->plus_inf;
    a->minus_inf += b->minus_inf;
    a->zero += b->zero;
    if (m == 0)
        return;
    if (n == 0 || b->min < a->min)
        a->min = b->min;
    if (n == 0 || b->max > a->max)
        a->max = b->max;
    a->mean += difference * (m / (n + m));
    a->std += b->std + difference * difference * (n * m / (n + m));
}

/* Add the same number n times. */
static void add_repeated(Statistics *total, double value, uint64_t n)
{
    Statistics same = {.count = n};
    if (isfinite(value))
        same.min = same.max = same.mean = value;
    same.nan = isnan(value) ? n : 0;
    same.plus_inf = value == (double)INFINITY ? n : 0;
    same.minus_inf = value == -(double)INFINITY ? n : 0;
    same.zero = value == 0 ? n : 0;
    add_statistics(total, &same);
}

/* Add n finite numbers. Sums go to lane i mod 4, so that they need not wait for one another. */
static void add_finite(Statistics *total, const double *x, size_t n)
{
    double low[4], high[4], sum[4] = {0}, squares[4] = {0};
    uint64_t zeros[4] = {0};
    Statistics t = {.count = n};
    for (int j = 0; j < 4; j++)
        low[j] = high[j] = x[0];
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++) {
            double v = x[i + j];
            low[j] = MIN(v, low[j]);
            high[j] = MAX(v, high[j]);
            sum[j] += v;
            if (v == 0)
                zeros[j]++;
        }
    }
    t.mean = ((sum[0] + sum[2]) + (sum[1] + sum[3])) / (double)n;
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++)
            squares[j] += (x[i + j] - t.mean) * (x[i + j] - t.mean);
    }
    t.std = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    t.zero = zeros[0] + zeros[1] + zeros[2] + zeros[3];
    t.min = fmin(fmin(low[0], low[1]), fmin(low[2], low[3]));
    t.max = fmax(fmax(high[0], high[1]), fmax(high[2], high[3]));
    add_statistics(total, &t);
}

typedef struct {
    Statistics *chunks; /* each chunk of the slice has statistics of its own */
    double scale;       /* of the numbers, a power of two: their squares must not overflow or vanish */
} Gathering;

static void take_statistics(void *context, double *x, size_t n, uint64_t times, uint64_t at, int thread)
{
    const Gathering *g = context;
    Statistics *total = g->chunks + at / CHUNK;
    size_t finite = 0, others = 0;
    (void)thread;
    for (size_t i = 0; i < n && g->scale != 1; i++)
        x[i] *= g->scale;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            others++;
    if (others == 0 && times == 1) {
        add_finite(total, x, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (times == 1 && isfinite(x[i]))
            x[finite++] = x[i];
        else
            add_repeated(total, x[i], times);
    }
    if (finite > 0)
        add_finite(total, x, finite);
}

static int compute_scaled(const Slice *s, double scale, Statistics *stats, char err[512])
{
    size_t n = (size_t)(s->elements / CHUNK) + 1;
    Gathering g = {calloc(n, sizeof *g.chunks), scale};
    if (!g.chunks)
        return tensor_fail(err, NULL, s->tensor, "out of memory for statistics of %" PRIu64 " elements", s->elements);
    int status = scan_slice(s, take_statistics, &g, false, err);
    *stats = (Statistics){0};
    for (size_t i = 0; i < n; i++)
        add_statistics(stats, &g.chunks[i]);
    free(g.chunks);
    return status;
}

int statistics_compute(const Slice *s, Statistics *stats, char err[512])
{
    int status = compute_scaled(s, 1, stats, err);
    double largest = fmax(fabs(stats->min), fabs(stats->max));
    if (status == 0 && largest > 0 && (largest > 0x1p500 || largest < 0x1p-450)) { /* only F64 numbers */
        int exponent = MAX(ilogb(largest), -1000);
        Statistics scaled;
        status = compute_scaled(s, ldexp(1, -exponent), &scaled, err);
        stats->mean = ldexp(scaled.mean, exponent);
        stats->std = ldexp(sqrt(scaled.std / (double)finite_of(stats)), exponent);
        return status;
    }
    if (finite_of(stats) == 0)
        stats->min = stats->max = stats->mean = stats->std = (double)NAN;
    else
        stats->std = sqrt(stats->std / (double)finite_of(stats));
    return status;
}

/* ---- histogram --------------------------------------------------------------------------------------------------- */

typedef struct {
    double low, scale; /* of half a number: the range of whole ones may be beyond the largest double */
    uint64_t *counts;  /* [threads][bins] */
    size_t bins;
} Histogram;

static void take_bins(void *context, double *x, size_t n, uint64_t times, uint64_t at, int thread)
{
    const Histogram *h = context;
    uint64_t *counts = h->counts + (size_t)thread * h->bins;
    double end = (double)h->bins;
    (void)at;
    for (size_t i = 0; i < n; i++) {
        double place = (x[i] / 2 - h->low) * h->scale;
        if (place >= 0 && place <= end) /* the largest number belongs to the last part */
            counts[place < end ? (size_t)place : h->bins - 1] += times;
    }
}

int statistics_histogram(const Slice *s, double low, double high, uint64_t *bins, size_t n, char err[512])
{
    size_t threads = (size_t)threads_count();
    Histogram h = {.low = low / 2, .counts = calloc(threads, n * sizeof *h.counts), .bins = n};
    if (!h.counts)
        return tensor_fail(err, NULL, s->tensor, "out of memory for a histogram");
    if (high > low)
        h.scale = (double)n / (high / 2 - h.low);
    int status = scan_slice(s, take_bins, &h, false, err);
    memset(bins, 0, n * sizeof *bins);
    for (size_t i = 0; i < threads * n; i++)
        bins[i % n] += h.counts[i];
    free(h.counts);
    return status;
}

/* ---- the place of a value ---------------------------------------------------------------------------------------- */

typedef struct {
    double wanted;
    size_t parts;           /* numbers of an element */
    _Atomic uint64_t found; /* the first element so far */
} Search;

static void take_search(void *context, double *x, size_t n, uint64_t times, uint64_t at, int thread)
{
    Search *search = context;
    double wanted = search->wanted;
    size_t matches = 0, i = 0;
    (void)times, (void)thread;
    for (size_t j = 0; j < n; j++) /* to the end: the compiler makes vectors of that */
        if (x[j] == wanted)
            matches++;
    if (matches == 0)
        return;
    while (x[i] != wanted)
        i++;
    uint64_t place = at + i / search->parts, before = search->found;
    while (place < before && !atomic_compare_exchange_weak(&search->found, &before, place)) {
    }
}

int statistics_find(const Slice *s, double value, uint64_t *at, char err[512])
{
    Search search = {.wanted = value, .parts = number_parts(s->tensor->dtype), .found = UINT64_MAX};
    int status = scan_slice(s, take_search, &search, true, err);
    *at = search.found;
    return status;
}
