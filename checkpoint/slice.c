/* Slices of a tensor.
 *
 * A tensor is row-major: element [i0, i1, ..] of shape [n0, n1, ..] is number ((i0 * n1) + i1) * n2 + .. of its
 * bytes. A slice takes of each axis the indices start, start + step, ... The axes at the end that are taken whole,
 * and one more if its step is 1, make a run of elements that lie side by side; a walk through the slice goes from
 * run to run, so that only the bytes of the slice are ever touched.
 */
#include "checkpoint/slice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "checkpoint/number.h"

#define BLOCK 1024         /* elements that are decoded at a time: they stay in the nearest cache */
#define PIECE (64 * BLOCK) /* elements that a thread takes; sums are kept for each piece and added in order */

__attribute__((format(printf, 3, 4))) static int fail_tensor(char err[512], const SafetensorsTensor *t, const char *fmt, ...)
{
    char name[TEXT_PRINTABLE];
    int used = snprintf(err, 512, "tensor \"%s\": ", text_printable(t->name, t->name_length, name));
    va_list args;
    va_start(args, fmt);
    vsnprintf(err + used, 512 - (size_t)used, fmt, args);
    va_end(args);
    return -1;
}

/* ---- what a slice is called -------------------------------------------------------------------------------------- */

/* A signed whole number, or nothing (then *given is false). Advances *p. -1: too large for 63 bits. */
static int read_bound(const char **p, bool *given, int64_t *value)
{
    const char *s = *p + strspn(*p, " ");
    bool negative = *s == '-';
    uint64_t size = 0;
    s += *s == '-' || *s == '+';
    *given = *s >= '0' && *s <= '9';
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(size, 10u, &size) || __builtin_add_overflow(size, (uint64_t)(*s - '0'), &size) ||
            size > INT64_MAX)
            return -1;
    if (*given)
        *p = s + strspn(s, " ");
    *value = negative ? -(int64_t)size : (int64_t)size;
    return 0;
}

static int64_t clip(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Python's slice.indices(): bounds from the end made positive, then clipped; of a negative step both may be one
 * below zero. */
static void set_range(SliceAxis *a, uint64_t size, const bool given[2], const int64_t bound[2], int64_t step)
{
    int64_t n = (int64_t)size, low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    int64_t begin = step < 0 ? high : low, end = step < 0 ? low : high;
    if (given[0])
        begin = clip(bound[0] < 0 ? bound[0] + n : bound[0], low, high);
    if (given[1])
        end = clip(bound[1] < 0 ? bound[1] + n : bound[1], low, high);
    uint64_t distance = step < 0      ? (begin > end ? (uint64_t)(begin - end) : 0)
                        : end > begin ? (uint64_t)(end - begin)
                                      : 0;
    uint64_t stride = step < 0 ? 0 - (uint64_t)step : (uint64_t)step;
    a->step = step;
    a->count = distance ? (distance - 1) / stride + 1 : 0;
    a->start = a->count ? (uint64_t)begin : 0;
}

/* "3", "1:", ":-1", "::2" of one axis. Advances *p to the comma or the end. */
static int parse_axis(const char **p, const SafetensorsTensor *t, size_t axis, SliceAxis *a, char err[512])
{
    const char *start = *p;
    uint64_t size = t->shape[axis];
    bool given[3] = {false, false, false};
    int64_t bound[3] = {0, 0, 1};
    size_t parts = 0;
    if (size > INT64_MAX)
        return fail_tensor(err, t, "axis %zu is too long to be sliced: %" PRIu64, axis, size);
    for (bool more = true; more && parts < 3; parts++) {
        if (read_bound(p, &given[parts], &bound[parts]) != 0)
            return fail_tensor(err, t, "slice \"%.60s\": that number is too large", start);
        more = **p == ':';
        *p += more && parts < 2;
    }
    *p += strspn(*p, " ");
    if ((**p && **p != ',') || (parts == 1 && !given[0]))
        return fail_tensor(err, t, "slice \"%.60s\" is none: write an index such as 3 or -1, or a range such as 0:4, 2:, ::2",
                    start);
    if (parts == 1) {
        int64_t index = bound[0] < 0 ? bound[0] + (int64_t)size : bound[0];
        if (index < 0 || (uint64_t)index >= size)
            return fail_tensor(err, t, "index %" PRId64 " is outside axis %zu, which has %" PRIu64 " places", bound[0], axis,
                        size);
        *a = (SliceAxis){.start = (uint64_t)index, .count = 1, .step = 1, .dropped = true};
        return 0;
    }
    if (!given[2])
        bound[2] = 1;
    if (bound[2] == 0)
        return fail_tensor(err, t, "slice \"%.60s\": the step cannot be 0", start);
    set_range(a, size, given, bound, bound[2]);
    return 0;
}

/* Whether an axis follows at p: "0," is "0", as in Python. */
static bool at_comma(const char *p)
{
    return *p == ',' && p[1 + strspn(p + 1, " ")];
}

static size_t count_axes(const char *spec)
{
    size_t n = 1;
    for (; *spec; spec++)
        n += at_comma(spec);
    return n;
}

static int parse_axes(Slice *s, const char *spec, char err[512])
{
    const SafetensorsTensor *t = s->tensor;
    const char *dots = strstr(spec, "..."), *p = spec;
    size_t given = count_axes(spec) - (dots != NULL), axis = 0;
    if (given > t->rank)
        return fail_tensor(err, t, "slice \"%.60s\" has %zu axes, the tensor has %zu", spec, given, t->rank);
    for (bool more = true; more; more = at_comma(p++)) {
        p += strspn(p, " ");
        if (p == dots) {
            axis += t->rank - given; /* "..." stands for the axes that are not written */
            p += 3 + strspn(p + 3, " ");
            if (*p && *p != ',')
                return fail_tensor(err, t, "slice \"%.60s\": \"...\" stands alone", spec);
        } else if (parse_axis(&p, t, axis, &s->axes[axis], err) != 0) {
            return -1;
        } else {
            axis++;
        }
    }
    return 0;
}

int slice_parse(Slice *s, const char *spec, const SafetensorsTensor *tensor, char err[512])
{
    *s = (Slice){.tensor = tensor, .axes = calloc(tensor->rank + 1, sizeof *s->axes)};
    if (!s->axes)
        return fail_tensor(err, tensor, "out of memory for %zu axes", tensor->rank);
    if (dtype_bits(tensor->dtype) < 8) {
        slice_free(s);
        return fail_tensor(err, tensor, "numbers of %s are smaller than a byte: they cannot be taken one by one",
                    dtype_name(tensor->dtype));
    }
    for (size_t i = 0; i < tensor->rank; i++)
        s->axes[i] = (SliceAxis){.count = tensor->shape[i], .step = 1};
    if (spec && spec[strspn(spec, " ")] && parse_axes(s, spec, err) != 0) {
        slice_free(s);
        return -1;
    }
    s->elements = 1;
    for (size_t i = 0; i < tensor->rank; i++)
        s->elements = s->axes[i].count ? s->elements * s->axes[i].count : 0; /* at most the tensor's, unless one is 0 */
    for (size_t i = 0; i < tensor->rank; i++)
        s->elements = s->axes[i].count ? s->elements : 0;
    return 0;
}

void slice_free(Slice *s)
{
    free(s->axes);
    *s = (Slice){0};
}

size_t slice_rank(const Slice *s)
{
    size_t rank = 0;
    for (size_t i = 0; i < s->tensor->rank; i++)
        rank += !s->axes[i].dropped;
    return rank;
}

uint64_t slice_size(const Slice *s, size_t axis)
{
    for (size_t i = 0; i < s->tensor->rank; i++)
        if (!s->axes[i].dropped && axis-- == 0)
            return s->axes[i].count;
    return 0;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

int slice_walk(SliceWalk *w, const Slice *s, uint64_t position, char err[512])
{
    const SafetensorsTensor *t = s->tensor;
    *w = (SliceWalk){.slice = s, .outer = t->rank, .run = 1, .left = s->elements - position};
    w->index = calloc(t->rank + 1, sizeof *w->index);
    if (!w->index)
        return fail_tensor(err, t, "out of memory for %zu axes", t->rank);
    if (s->elements == 0)
        return 0;
    while (w->outer > 0 && s->axes[w->outer - 1].count == t->shape[w->outer - 1] && s->axes[w->outer - 1].step == 1)
        w->run *= t->shape[--w->outer];
    if (w->outer > 0 && s->axes[w->outer - 1].step == 1)
        w->run *= s->axes[--w->outer].count;
    w->skip = position % w->run;
    uint64_t row = position / w->run;
    for (size_t i = w->outer; i-- > 0; row /= s->axes[i].count)
        w->index[i] = row % s->axes[i].count;
    return 0;
}

bool slice_next(SliceWalk *w, uint64_t *first, uint64_t *count)
{
    const Slice *s = w->slice;
    if (w->left == 0)
        return false;
    uint64_t at = 0;
    for (size_t i = 0; i < s->tensor->rank; i++)
        at = at * s->tensor->shape[i] + s->axes[i].start +
             w->index[i] * (uint64_t)s->axes[i].step; /* a negative step wraps, rightly */
    *first = at + w->skip;
    *count = w->run - w->skip < w->left ? w->run - w->skip : w->left;
    w->left -= *count;
    w->skip = 0;
    for (size_t i = w->outer; i-- > 0;) {
        if (++w->index[i] < s->axes[i].count)
            break;
        w->index[i] = 0;
    }
    return true;
}

void slice_walk_end(SliceWalk *w)
{
    free(w->index);
    w->index = NULL;
}

int slice_gather(const Slice *s, uint64_t position, size_t n, unsigned char *out, char err[512])
{
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    const unsigned char *data = safetensors_data(s->tensor);
    SliceWalk w;
    uint64_t first, count;
    if (slice_walk(&w, s, position, err) != 0)
        return -1;
    for (size_t done = 0; done < n && slice_next(&w, &first, &count); done += (size_t)count) {
        count = count < n - done ? count : n - done;
        memcpy(out + done * size, data + first * size, (size_t)count * size);
    }
    slice_walk_end(&w);
    return 0;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* A loop over the slice in pieces of PIECE elements, in parallel; the numbers come decoded, a block at a time. */
typedef struct Scan Scan;
struct Scan {
    const Slice *slice;
    const unsigned char *side_by_side; /* first byte of a slice that is one run, else NULL */
    void (*raw)(Scan *scan, const unsigned char *in, size_t n, int thread); /* if given, takes the bytes as they are */
    /* x[n] are the numbers of elements at, at + 1, ... of the slice, in piece number `piece` */
    void (*block)(Scan *scan, double *x, size_t n, uint64_t at, size_t piece, int thread);
    void *results;
    double shrink, low, scale; /* histogram; shrink: 1/2 where the range is beyond the largest double */
    size_t bins;
    double wanted; /* statistics_find() */
    _Atomic uint64_t found;
    _Atomic bool failed;
};

static void scan_piece(void *context, size_t begin, size_t end, int thread)
{
    Scan *scan = context;
    const Slice *s = scan->slice;
    size_t size = dtype_bits(s->tensor->dtype) / 8, parts = number_parts(s->tensor->dtype), n;
    double x[2 * BLOCK];
    unsigned char gathered[8 * BLOCK];
    for (size_t at = begin; at < end && !scan->failed; at += n) {
        char err[512];
        n = end - at < BLOCK ? end - at : BLOCK;
        if (!scan->side_by_side && slice_gather(s, at, n, gathered, err) != 0) {
            scan->failed = true;
            return;
        }
        const unsigned char *in = scan->side_by_side ? scan->side_by_side + at * size : gathered;
        if (scan->raw) {
            scan->raw(scan, in, n, thread);
        } else {
            number_decode(s->tensor->dtype, in, n, x);
            scan->block(scan, x, n * parts, at, begin / PIECE, thread);
        }
    }
}

static int scan_slice(Scan *scan, char err[512])
{
    const Slice *s = scan->slice;
    SliceWalk w;
    uint64_t first, count;
    if (slice_walk(&w, s, 0, err) != 0)
        return -1;
    if (slice_next(&w, &first, &count) && count == s->elements)
        scan->side_by_side = safetensors_data(s->tensor) + first * (dtype_bits(s->tensor->dtype) / 8);
    slice_walk_end(&w);
    threads_for((size_t)s->elements, PIECE, scan_piece, scan);
    return scan->failed ? fail_tensor(err, s->tensor, "out of memory to walk through the slice") : 0;
}

/* Of a block, a piece, or all; stats.std is the sum of squared differences from the mean until the end. */
typedef struct {
    Statistics stats;
    uint64_t finite;
} Part;

/* Adds b, which comes later, to a. */
static void merge_parts(Part *a, const Part *b)
{
    Statistics *s = &a->stats;
    const Statistics *t = &b->stats;
    s->count += t->count, s->nan += t->nan, s->plus_inf += t->plus_inf, s->minus_inf += t->minus_inf,
        s->zero += t->zero;
    if (b->finite == 0)
        return;
    s->min = a->finite == 0 || t->min < s->min ? t->min : s->min;
    s->max = a->finite == 0 || t->max > s->max ? t->max : s->max;
    double n = (double)a->finite + (double)b->finite, difference = t->mean - s->mean;
    s->mean += difference * ((double)b->finite / n);
    s->std += t->std + difference * difference * ((double)a->finite * (double)b->finite / n);
    a->finite += b->finite;
}

/* The same number, n times. */
static void add_repeated(Part *p, double value, uint64_t n)
{
    Part same = {.stats = {.count = n}};
    same.stats.nan = isnan(value) ? n : 0;
    same.stats.plus_inf = isinf(value) && value > 0 ? n : 0;
    same.stats.minus_inf = isinf(value) && value < 0 ? n : 0;
    if (isfinite(value)) {
        same.finite = n;
        same.stats.zero = value == 0 ? n : 0;
        same.stats.min = same.stats.max = same.stats.mean = value;
    }
    merge_parts(p, &same);
}

/* Finite numbers. Sums go to lane i mod 4, so that they need not wait for one another. */
static void add_finite(Part *total, const double *x, size_t n)
{
    double low[4], high[4], sum[4] = {0}, squares[4] = {0};
    uint64_t zeros[4] = {0};
    Part p = {.stats = {.count = n}, .finite = n};
    for (int j = 0; j < 4; j++)
        low[j] = high[j] = x[0];
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < (n - i < 4 ? n - i : 4); j++) {
            double v = x[i + j];
            low[j] = v < low[j] ? v : low[j];
            high[j] = v > high[j] ? v : high[j];
            sum[j] += v;
            zeros[j] += v == 0;
        }
    }
    p.stats.mean = ((sum[0] + sum[2]) + (sum[1] + sum[3])) / (double)n;
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < (n - i < 4 ? n - i : 4); j++)
            squares[j] += (x[i + j] - p.stats.mean) * (x[i + j] - p.stats.mean);
    }
    p.stats.std = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    p.stats.zero = zeros[0] + zeros[1] + zeros[2] + zeros[3];
    p.stats.min = fmin(fmin(low[0], low[1]), fmin(low[2], low[3]));
    p.stats.max = fmax(fmax(high[0], high[1]), fmax(high[2], high[3]));
    merge_parts(total, &p);
}

static void stats_of_block(Scan *scan, double *x, size_t n, uint64_t at, size_t piece, int thread)
{
    Part *total = (Part *)scan->results + piece;
    size_t finite = 0;
    uint64_t others = 0;
    (void)at, (void)thread;
    for (size_t i = 0; i < n; i++)
        others += x[i] - x[i] != 0; /* NaN for NaN and infinities */
    if (others == 0) {
        add_finite(total, x, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (isfinite(x[i]))
            x[finite++] = x[i];
        else
            add_repeated(total, x[i], 1);
    }
    if (finite)
        add_finite(total, x, finite);
}

static int stats_by_block(const Slice *s, Part *all, char err[512])
{
    size_t pieces = (size_t)(s->elements / PIECE) + 1;
    Part *parts = calloc(pieces, sizeof *parts);
    Scan scan = {.slice = s, .block = stats_of_block, .results = parts};
    if (!parts)
        return fail_tensor(err, s->tensor, "out of memory for statistics of %" PRIu64 " elements", s->elements);
    int status = scan_slice(&scan, err);
    for (size_t i = 0; i < pieces; i++)
        merge_parts(all, &parts[i]);
    free(parts);
    return status;
}

/* Numbers of 16 bits have 65,536 values: counting how often each of them comes is all that has to be done element by
 * element. */
#define VALUES 65536

static void count_values(Scan *scan, const unsigned char *in, size_t n, int thread)
{
    uint32_t *counts = (uint32_t *)scan->results + (size_t)thread * VALUES;
    for (size_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, in + 2 * i, sizeof code);
        counts[code]++;
    }
}

static bool is_countable(const Slice *s)
{
    return dtype_bits(s->tensor->dtype) == 16 && s->elements >= 4 * VALUES && s->elements <= UINT32_MAX;
}

/* Fresh: values[i] are how many elements have code i; summed over the threads. */
static uint32_t *count_slice(const Slice *s, char err[512])
{
    uint32_t *counts = calloc((size_t)threads_count(), VALUES * sizeof *counts);
    Scan scan = {.slice = s, .raw = count_values, .results = counts};
    if (!counts) {
        fail_tensor(err, s->tensor, "out of memory to count values");
        return NULL;
    }
    if (scan_slice(&scan, err) != 0) {
        free(counts);
        return NULL;
    }
    for (int t = 1; t < threads_count(); t++)
        for (size_t i = 0; i < VALUES; i++)
            counts[i] += counts[(size_t)t * VALUES + i];
    return counts;
}

static double value_of_code(Dtype dtype, size_t code)
{
    unsigned char bytes[2] = {(unsigned char)code, (unsigned char)(code >> 8)};
    return number_read(dtype, bytes).value;
}

static int stats_by_value(const Slice *s, Part *all, char err[512])
{
    uint32_t *counts = count_slice(s, err);
    for (size_t i = 0; counts && i < VALUES; i++)
        if (counts[i])
            add_repeated(all, value_of_code(s->tensor->dtype, i), counts[i]);
    free(counts);
    return counts ? 0 : -1;
}

int statistics_compute(const Slice *s, Statistics *stats, char err[512])
{
    Part all = {0};
    if ((is_countable(s) ? stats_by_value : stats_by_block)(s, &all, err) != 0)
        return -1;
    *stats = all.stats;
    if (all.finite == 0)
        stats->min = stats->max = stats->mean = stats->std = (double)NAN;
    else
        stats->std = sqrt(stats->std / (double)all.finite);
    return 0;
}

/* ---- histogram, place of a value --------------------------------------------------------------------------------- */

static void add_to_bin(const Scan *scan, uint64_t *bins, double value, uint64_t n)
{
    double place = (value * scan->shrink - scan->low) * scan->scale;
    if (place >= 0 && place <= (double)scan->bins) /* the largest number belongs to the last part */
        bins[place < (double)scan->bins ? (size_t)place : scan->bins - 1] += n;
}

static void count_block(Scan *scan, double *x, size_t n, uint64_t at, size_t piece, int thread)
{
    (void)at, (void)piece;
    for (size_t i = 0; i < n; i++)
        add_to_bin(scan, (uint64_t *)scan->results + (size_t)thread * scan->bins, x[i], 1);
}

int statistics_histogram(const Slice *s, double low, double high, uint64_t *bins, size_t n, char err[512])
{
    size_t threads = (size_t)threads_count();
    uint64_t *parts = calloc(threads, n * sizeof *parts);
    uint32_t *counts = NULL;
    Scan scan = {.slice = s, .block = count_block, .results = parts, .bins = n};
    scan.shrink = isfinite(high - low) ? 1 : 0.5;
    scan.low = low * scan.shrink;
    scan.scale = high > low ? (double)n / (high * scan.shrink - scan.low) : 0;
    int status = parts ? 0 : fail_tensor(err, s->tensor, "out of memory for a histogram");
    if (status == 0 && is_countable(s))
        status = (counts = count_slice(s, err)) ? 0 : -1;
    else if (status == 0)
        status = scan_slice(&scan, err);
    for (size_t i = 0; counts && i < VALUES; i++)
        if (counts[i])
            add_to_bin(&scan, parts, value_of_code(s->tensor->dtype, i), counts[i]);
    memset(bins, 0, n * sizeof *bins);
    for (size_t i = 0; status == 0 && i < threads * n; i++)
        bins[i % n] += parts[i];
    free(counts);
    free(parts);
    return status;
}

static void find_in_block(Scan *scan, double *x, size_t n, uint64_t at, size_t piece, int thread)
{
    (void)piece, (void)thread;
    size_t matches = 0, i = 0;
    if (at >= scan->found)
        return;
    for (size_t j = 0; j < n; j++)
        matches += x[j] == scan->wanted;
    if (!matches)
        return;
    while (x[i] != scan->wanted)
        i++;
    uint64_t place = at + i / number_parts(scan->slice->tensor->dtype), before = scan->found;
    while (place < before && !atomic_compare_exchange_weak(&scan->found, &before, place)) {
    }
}

int statistics_find(const Slice *s, double value, uint64_t *at, char err[512])
{
    Scan scan = {.slice = s, .block = find_in_block, .wanted = value, .found = UINT64_MAX};
    int status = scan_slice(&scan, err);
    *at = scan.found;
    return status;
}

/* ---- NumPy files ------------------------------------------------------------------------------------------------- */

static const char *npy_type(Dtype dtype)
{
    switch (dtype) {
    case DTYPE_BOOL:
        return "|b1";
    case DTYPE_U8:
        return "|u1";
    case DTYPE_I8:
        return "|i1";
    case DTYPE_I16:
        return "<i2";
    case DTYPE_U16:
        return "<u2";
    case DTYPE_F16:
        return "<f2";
    case DTYPE_I32:
        return "<i4";
    case DTYPE_U32:
        return "<u4";
    case DTYPE_C64:
        return "<c8";
    case DTYPE_F64:
        return "<f8";
    case DTYPE_I64:
        return "<i8";
    case DTYPE_U64:
        return "<u8";
    default:
        return "<f4"; /* F32, and what is widened to it */
    }
}

/* Magic, version 1.0, length of the text as u16, the text: a Python dict, padded so that the data starts at a
 * multiple of 64. */
static int write_npy_header(const Slice *s, FILE *f, char err[512])
{
    size_t rank = slice_rank(s), room = 128 + 24 * rank, used;
    char *text = malloc(room);
    if (!text || room > 65000) {
        free(text);
        return fail_tensor(err, s->tensor, "%zu axes are too many for a NumPy file", rank);
    }
    used =
        (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_type(s->tensor->dtype));
    for (size_t i = 0; i < rank; i++)
        used += (size_t)snprintf(text + used, room - used, "%" PRIu64 "%s", slice_size(s, i),
                                 i + 1 < rank ? ", "
                                 : rank == 1  ? ","
                                              : "");
    used += (size_t)snprintf(text + used, room - used, "), }");
    size_t length = (10 + used + 1 + 63) / 64 * 64 - 10;
    unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    fwrite(start, 1, sizeof start, f);
    fwrite(text, 1, used, f);
    for (size_t i = used; i + 1 < length; i++)
        fputc(' ', f);
    fputc('\n', f);
    free(text);
    return 0;
}

int npy_write(const Slice *s, FILE *f, char err[512])
{
    Dtype dtype = s->tensor->dtype;
    size_t size = dtype_bits(dtype) / 8, n;
    bool widen = dtype == DTYPE_BF16 || (number_is_float(dtype) && size == 1);
    unsigned char raw[8 * BLOCK];
    double x[BLOCK];
    float y[BLOCK];
    if (write_npy_header(s, f, err) != 0)
        return -1;
    for (uint64_t at = 0; at < s->elements && !ferror(f); at += n) {
        n = s->elements - at < BLOCK ? (size_t)(s->elements - at) : BLOCK;
        if (slice_gather(s, at, n, raw, err) != 0)
            return -1;
        if (widen)
            number_decode(dtype, raw, n, x);
        for (size_t i = 0; widen && i < n; i++)
            y[i] = (float)x[i];
        if (widen)
            fwrite(y, sizeof *y, n, f);
        else
            fwrite(raw, size, n, f);
    }
    return 0;
}
