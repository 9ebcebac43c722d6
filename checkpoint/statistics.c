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

/* Take in the numbers x[n] of the elements from `at` on, whose bytes these are. Or, where their order does not matter,
 * any numbers, each of which came so many times; bytes is NULL then. */
typedef void Take(void *context, double *x, size_t n, uint64_t times, uint64_t at, const unsigned char *bytes,
                  int thread);

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
    scan->take(scan->context, x, n * number_parts(dtype), 1, at, bytes, thread);
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
            scan->take(scan->context, &value, 1, times, 0, NULL, 0);
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

/* Sums of numbers, divided by 2^exponent so that their squares neither overflow nor vanish. With d = mean_m - mean_n, n
 * and m numbers together have
 *     mean     mean_n + d m / (n + m)
 *     squares  squares_n + squares_m + d^2 n m / (n + m)
 */
typedef struct {
    Statistics s;         /* without mean and std */
    int exponent;         /* 0 for numbers of ordinary size */
    double mean, squares; /* squares: the sum of the squared differences from the mean */
} Sums;

static uint64_t finite_of(const Statistics *s)
{
    return s->count - s->nan - s->plus_inf - s->minus_inf;
}

/* The exponent for numbers up to that size: twice ORDINARY is far from the ends of a double, 2^-1074 and 2^1024. */
#define ORDINARY 400

static int exponent_for(double size)
{
    int exponent;
    frexp(size, &exponent);
    if (size == 0)
        return -2 * ORDINARY * ORDINARY; /* below every other: zero is zero at any scale */
    return abs(exponent) <= ORDINARY ? 0 : exponent;
}

static void set_exponent(Sums *a, int exponent)
{
    a->mean = ldexp(a->mean, a->exponent - exponent);
    a->squares = ldexp(a->squares, 2 * (a->exponent - exponent));
    a->exponent = exponent;
}

/* Add the numbers of b, which come after those of a. */
static void add_sums(Sums *a, const Sums *b)
{
    double n = (double)finite_of(&a->s), m = (double)finite_of(&b->s);
    Sums other = *b;
    a->s.count += b->s.count;
    a->s.nan += b->s.nan;
    a->s.plus_inf += b->s.plus_inf;
    a->s.minus_inf += b->s.minus_inf;
    a->s.zero += b->s.zero;
    if (m == 0)
        return;
    if (n == 0 || b->s.min < a->s.min)
        a->s.min = b->s.min;
    if (n == 0 || b->s.max > a->s.max)
        a->s.max = b->s.max;
    if (n == 0)
        a->exponent = b->exponent;
    if (a->exponent < b->exponent)
        set_exponent(a, b->exponent);
    else if (b->exponent < a->exponent)
        set_exponent(&other, a->exponent);
    double difference = other.mean - a->mean;
    a->mean += difference * (m / (n + m));
    a->squares += other.squares + difference * difference * (n * m / (n + m));
}

/* Add the same number n times. */
static void add_repeated(Sums *total, double value, uint64_t n)
{
    Sums same = {.s.count = n};
    if (isfinite(value)) {
        same.s.min = same.s.max = value;
        same.exponent = exponent_for(fabs(value));
        same.mean = ldexp(value, -same.exponent);
    }
    same.s.nan = isnan(value) ? n : 0;
    same.s.plus_inf = value == (double)INFINITY ? n : 0;
    same.s.minus_inf = value == -(double)INFINITY ? n : 0;
    same.s.zero = value == 0 ? n : 0;
    add_sums(total, &same);
}

/* Find the least and the largest of n finite numbers, and count the zeros. Number i goes to lane i mod 4, here and
 * below, so that no step need wait for the one before. */
static Statistics range_of(const double *x, size_t n)
{
    double low[4], high[4];
    uint64_t zeros[4] = {0};
    for (int j = 0; j < 4; j++)
        low[j] = high[j] = x[0];
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++) {
            double v = x[i + j];
            low[j] = MIN(v, low[j]);
            high[j] = MAX(v, high[j]);
            if (v == 0)
                zeros[j]++;
        }
    }
    return (Statistics){.count = n,
                        .zero = zeros[0] + zeros[1] + zeros[2] + zeros[3],
                        .min = fmin(fmin(low[0], low[1]), fmin(low[2], low[3])),
                        .max = fmax(fmax(high[0], high[1]), fmax(high[2], high[3]))};
}

/* Add n finite numbers; x is overwritten if they need another scale. The mean of what is left of them without the first
 * mean takes away most of that one's rounding error. */
static void add_finite(Sums *total, double *x, size_t n)
{
    Sums t = {.s = range_of(x, n)};
    double sum[4] = {0}, rest[4] = {0}, squares[4] = {0};
    t.exponent = exponent_for(fmax(fabs(t.s.min), fabs(t.s.max)));
    for (size_t i = 0; i < n && t.exponent != 0; i++)
        x[i] = ldexp(x[i], -t.exponent);
    for (size_t i = 0; i < n; i += 4)
        for (size_t j = 0; j < MIN(n - i, 4); j++)
            sum[j] += x[i + j];
    t.mean = ((sum[0] + sum[2]) + (sum[1] + sum[3])) / (double)n;
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++) {
            double d = x[i + j] - t.mean;
            rest[j] += d;
            squares[j] += d * d;
        }
    }
    double correction = ((rest[0] + rest[2]) + (rest[1] + rest[3])) / (double)n;
    t.mean += correction;
    t.squares = (squares[0] + squares[2]) + (squares[1] + squares[3]) - correction * correction * (double)n;
    t.squares = MAX(t.squares, 0);
    add_sums(total, &t);
}

/* A Take: each chunk of the slice has sums of its own. */
static void take_statistics(void *context, double *x, size_t n, uint64_t times, uint64_t at, const unsigned char *bytes,
                            int thread)
{
    Sums *total = (Sums *)context + at / CHUNK;
    size_t finite = 0, others = 0;
    (void)bytes, (void)thread;
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

int statistics_compute(const Slice *s, Statistics *stats, char err[512])
{
    size_t n = (size_t)(s->elements / CHUNK) + 1;
    Sums *chunks = calloc(n, sizeof *chunks), all = {.mean = 0};
    if (!chunks)
        return tensor_fail(err, NULL, s->tensor, "out of memory for statistics of %" PRIu64 " elements", s->elements);
    int status = scan_slice(s, take_statistics, chunks, false, err);
    for (size_t i = 0; i < n; i++)
        add_sums(&all, &chunks[i]);
    free(chunks);
    *stats = all.s;
    if (finite_of(stats) == 0) {
        stats->min = stats->max = stats->mean = stats->std = (double)NAN;
    } else { /* rounding may carry neither of them beyond where it can be */
        double std = ldexp(sqrt(all.squares / (double)finite_of(stats)), all.exponent);
        stats->mean = fmax(stats->min, fmin(ldexp(all.mean, all.exponent), stats->max));
        stats->std = fmin(std, DBL_MAX);
    }
    return status;
}

/* ---- histogram --------------------------------------------------------------------------------------------------- */

typedef struct {
    double unit;       /* 1/2 if the range is beyond the largest double, else 1 */
    double low, range; /* times unit */
    uint64_t *counts;  /* [threads][bins] */
    size_t bins;
} Histogram;

static void take_bins(void *context, double *x, size_t n, uint64_t times, uint64_t at, const unsigned char *bytes,
                      int thread)
{
    const Histogram *h = context;
    uint64_t *counts = h->counts + (size_t)thread * h->bins;
    double end = (double)h->bins;
    (void)at, (void)bytes;
    for (size_t i = 0; i < n; i++) {
        double place = (x[i] * h->unit - h->low) / h->range * end;
        if (place >= 0 && place <= end) /* the largest number belongs to the last part */
            counts[place < end ? (size_t)place : h->bins - 1] += times;
    }
}

int statistics_histogram(const Slice *s, double low, double high, uint64_t *bins, size_t n, char err[512])
{
    size_t threads = (size_t)threads_count();
    Histogram h = {.unit = isfinite(high - low) ? 1 : 0.5, .counts = calloc(threads, n * sizeof *h.counts), .bins = n};
    if (!h.counts)
        return tensor_fail(err, NULL, s->tensor, "out of memory for a histogram");
    h.low = low * h.unit;
    h.range = high > low ? high * h.unit - h.low : 1;
    int status = scan_slice(s, take_bins, &h, false, err);
    memset(bins, 0, n * sizeof *bins);
    for (size_t i = 0; i < threads * n; i++)
        bins[i % n] += h.counts[i];
    free(h.counts);
    return status;
}

/* ---- the place of an extreme ------------------------------------------------------------------------------------- */

/* Where a thread found the wanted number. Of integers with 64 bits, which are not all doubles, the smallest `order`
 * wins. */
typedef struct {
    uint64_t order, place;
} Finding;

typedef struct {
    double wanted;
    bool largest;
    Dtype dtype;
    Finding *findings; /* [threads] */
} Search;

/* A number that grows with the integer, or falls if the largest is searched; 0 for other types. */
static uint64_t order_of(const Search *search, const unsigned char *element)
{
    if (search->dtype != DTYPE_I64 && search->dtype != DTYPE_U64)
        return 0;
    uint64_t code = load_u64(element) ^ (search->dtype == DTYPE_I64 ? UINT64_C(1) << 63 : 0);
    return search->largest ? ~code : code;
}

static void keep_better(Finding *a, Finding b)
{
    if (a->place == UINT64_MAX || b.order < a->order || (b.order == a->order && b.place < a->place))
        *a = b;
}

static void take_search(void *context, double *x, size_t n, uint64_t times, uint64_t at, const unsigned char *bytes,
                        int thread)
{
    const Search *search = context;
    size_t matches = 0, parts = number_parts(search->dtype), size = dtype_bits(search->dtype) / 8;
    (void)times;
    for (size_t i = 0; i < n; i++) /* to the end: the compiler makes vectors of that */
        if (x[i] == search->wanted)
            matches++;
    for (size_t i = 0; matches > 0; i++) {
        if (x[i] != search->wanted)
            continue;
        keep_better(&search->findings[thread], (Finding){order_of(search, bytes + i / parts * size), at + i / parts});
        matches--;
    }
}

int statistics_find(const Slice *s, double value, bool largest, uint64_t *at, char err[512])
{
    size_t threads = (size_t)threads_count();
    Search search = {.wanted = value, .largest = largest, .dtype = s->tensor->dtype};
    search.findings = calloc(threads, sizeof *search.findings);
    if (!search.findings)
        return tensor_fail(err, NULL, s->tensor, "out of memory for a search");
    for (size_t i = 0; i < threads; i++)
        search.findings[i].place = UINT64_MAX;
    int status = scan_slice(s, take_search, &search, true, err);
    Finding best = {.place = UINT64_MAX};
    for (size_t i = 0; i < threads; i++)
        if (search.findings[i].place != UINT64_MAX)
            keep_better(&best, search.findings[i]);
    *at = best.place;
    free(search.findings);
    return status;
}
