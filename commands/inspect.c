#include "commands/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/threads.h"
#include "checkpoint/edit.h"
#include "checkpoint/npy.h"
#include "checkpoint/number.h"
#include "checkpoint/statistics.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"
#include "commands/values.h"

#define BINS 20
#define MANY 200 /* a tensor with more numbers is shown by its edges, unless a slice asks for all of them */

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static Statistics stats_of(const Slice *s)
{
    Statistics stats;
    char err[512];
    die_if(statistics_compute(s, &stats, err), err);
    return stats;
}

static void print_histogram(const Slice *s, const Statistics *stats)
{
    uint64_t bins[BINS], most = 1;
    char err[512];
    die_if(statistics_histogram(s, stats->min, stats->max, bins, BINS, err), err);
    for (size_t i = 0; i < BINS; i++)
        most = MAX(bins[i], most);
    putchar('\n');
    for (size_t i = 0; i < BINS; i++) {
        double part = (double)i / BINS, range = stats->max - stats->min;
        double from = isfinite(range) ? stats->min + range * part : stats->min * (1 - part) + stats->max * part;
        int length = (int)ceil(50.0 * (double)bins[i] / (double)most);
        printf("%14.6g  %-50.*s %" PRIu64 "\n", from, length, "##################################################",
               bins[i]);
    }
}

/* Find the slice's minimum or maximum. Returns its position in the slice, and its bytes, in which
 * integers are exact. */
static uint64_t find_extreme(const Slice *s, const Statistics *stats, bool largest, unsigned char element[8])
{
    uint64_t position;
    char err[512];
    die_if(statistics_find(s, largest ? stats->max : stats->min, largest, &position, err), err);
    die_if(slice_gather(s, position, 1, element, err), err);
    return position;
}

static void print_extreme(const Slice *s, const Statistics *stats, bool largest)
{
    Dtype dtype = s->tensor->dtype;
    unsigned char element[8];
    char text[64];
    uint64_t position = find_extreme(s, stats, largest, element);
    printf("%-6s ", largest ? "max" : "min");
    if (number_is_float(dtype) || dtype == DTYPE_BOOL)
        printf("%.9g at ", largest ? stats->max : stats->min);
    else
        printf("%s at ", number_text(dtype, element, text));
    print_index(stdout, s->tensor, model_slice_element(s, position));
    putchar('\n');
}

static void print_stats(const Slice *s)
{
    Statistics stats = stats_of(s);
    printf("count  %" PRIu64 "   zero %" PRIu64 "   NaN %" PRIu64 "   +inf %" PRIu64 "   -inf %" PRIu64 "\n",
           stats.count, stats.zero, stats.nan, stats.plus_inf, stats.minus_inf);
    if (isnan(stats.mean))
        return;
    print_extreme(s, &stats, false);
    print_extreme(s, &stats, true);
    printf("mean   %.9g\nstd    %.9g\n", stats.mean, stats.std);
    if (stats.max > stats.min)
        print_histogram(s, &stats);
}

static void write_extreme(const char *before, const Slice *s, const Statistics *stats, bool largest)
{
    unsigned char element[8];
    if (isnan(stats->mean) || number_is_float(s->tensor->dtype) || s->tensor->dtype == DTYPE_BOOL) {
        write_number(before, largest ? stats->max : stats->min);
        return;
    }
    find_extreme(s, stats, largest, element);
    fputs(before, stdout);
    write_element(s->tensor->dtype, element);
}

static void write_stats(const Slice *s, const Statistics *stats)
{
    printf("{\"count\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"plus_inf\":%" PRIu64 ",\"minus_inf\":%" PRIu64
           ",\"zero\":%" PRIu64,
           stats->count, stats->nan, stats->plus_inf, stats->minus_inf, stats->zero);
    write_extreme(",\"min\":", s, stats, false);
    write_extreme(",\"max\":", s, stats, true);
    write_number(",\"mean\":", stats->mean);
    write_number(",\"std\":", stats->std);
    putchar('}');
}

static void write_histogram(const Slice *s, const Statistics *stats)
{
    uint64_t bins[BINS];
    char err[512];
    die_if(statistics_histogram(s, stats->min, stats->max, bins, BINS, err), err);
    printf(",\"histogram\":[");
    for (size_t i = 0; i < BINS; i++)
        printf("%s%" PRIu64, i ? "," : "", bins[i]);
    putchar(']');
}

/* A line of the table of all tensors. stats: NULL if the numbers are smaller than a byte. */
static void print_stats_line(const SafetensorsTensor *t, const Statistics *stats)
{
    if (stats)
        printf("%12.5g %12.5g %12.5g %12.5g  %8" PRIu64 " %6" PRIu64 " %6" PRIu64, stats->min, stats->max, stats->mean,
               stats->std, stats->zero, stats->nan, stats->plus_inf + stats->minus_inf);
    else
        printf("%56s %-5s", "(numbers smaller than a byte)", "");
    printf("  %-5s ", dtype_name(t->dtype));
    print_escaped(stdout, t->name, t->name_length);
    putchar('\n');
}

/* Report on the tensor as a whole. Returns whether it has numbers that are not finite. */
static bool tell_stats(const SafetensorsTensor *t, bool first)
{
    Slice s = {0};
    Statistics stats = {0}, *known = NULL;
    char err[512];
    if (dtype_bits(t->dtype) >= 8) {
        die_if(slice_parse(&s, NULL, t, err), err);
        stats = stats_of(&s);
        known = &stats;
    }
    if (common.json) {
        write_tensor(first ? "\n{" : ",\n{", t);
        printf(known ? ",\"stats\":" : ",\"stats\":null");
        if (known)
            write_stats(&s, known);
        putchar('}');
    } else {
        print_stats_line(t, known);
    }
    slice_free(&s);
    return stats.nan + stats.plus_inf + stats.minus_inf > 0;
}

static void stats_of_all(const Checkpoint *c, const char *find)
{
    size_t shown = 0, bad = 0;
    Progress p = {.what = "reading", .total = model_bytes(c)};
    if (common.json)
        printf("{\"tensors\":[");
    else
        printf("%12s %12s %12s %12s  %8s %6s %6s  %-5s %s\n", "min", "max", "mean", "std", "zero", "NaN", "inf",
               "dtype", "tensor");
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        if (name_matches(find, t->name, t->name_length)) {
            bad += tell_stats(t, shown == 0) ? 1 : 0;
            shown++;
        }
        tell_progress(&p, t->length);
    }
    progress_end();
    model_check_sizes(c);
    if (common.json)
        printf("\n]}\n");
    else if (bad)
        printf("%zu of %zu tensors hold NaN or infinity\n", bad, shown);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static void write_one_tensor(const Slice *s, const Inspection *what)
{
    const SafetensorsTensor *t = s->tensor;
    uint64_t *shape = model_slice_shape(s); /* before anything is printed: it may fail */
    write_name("{\"file\":", t->file->path);
    write_tensor(",", t);
    printf(",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]", t->offset, t->offset + t->length);
    write_name(",\"slice\":", what->slice);
    printf(",\"slice_shape\":");
    shape_print(stdout, shape, slice_rank(s));
    free(shape);
    if (what->stats) {
        Statistics stats = stats_of(s);
        printf(",\"stats\":");
        write_stats(s, &stats);
        if (stats.max > stats.min)
            write_histogram(s, &stats);
    } else {
        printf(",\"values\":");
        write_values(s);
    }
    printf("}\n");
}

static void one_tensor(Checkpoint *c, const Inspection *what)
{
    SafetensorsTensor t = model_tensor(c, what->tensor);
    Slice s;
    OutFile out;
    char err[512];
    if (dtype_bits(t.dtype) < 8 && !what->slice && !what->npy && !what->stats && !common.json) {
        print_tensor(&t);
        notice("%s numbers are smaller than a byte and cannot be shown one by one", dtype_name(t.dtype));
        return;
    }
    die_if(slice_parse(&s, what->slice, &t, err), err);
    if (what->npy) {
        die_if(edit_keep_off(c, err) != 0 || model_out_open(c, &out, what->npy, common.force, err), err);
        die_if(npy_write(&s, out.stream, err) != 0 || checkpoint_check_unchanged(c, err) != 0, err);
        die_if(out_commit(&out, err), err);
    } else if (common.json) {
        write_one_tensor(&s, what);
    } else {
        print_tensor(&t);
        if (what->stats)
            print_stats(&s);
        else
            print_values(&s, !what->slice && s.elements > MANY);
    }
    slice_free(&s);
}

/* ---- one byte ---------------------------------------------------------------------------------------------------- */

/* The tensor that the byte at that offset of the data belongs to: one after the other, they cover all of it. */
static const SafetensorsTensor *tensor_at(const SafetensorsFile *st, uint64_t offset)
{
    const SafetensorsTensor *t = st->tensors;
    while (offset >= t->offset + t->length)
        t++;
    return t;
}

/* Has an element an exponent? *exponent and *mantissa are then how many bits these have. */
static bool has_exponent(const SafetensorsTensor *t, int *exponent, int *mantissa)
{
    return number_float_layout(t->dtype, exponent, mantissa) && t->dtype != DTYPE_C64;
}

/* The bits of an element, with spaces between sign, exponent and mantissa, or between bytes. */
static const char *bits_text(const SafetensorsTensor *t, const unsigned char *element, char out[80])
{
    int exponent = 0, mantissa = 0, bits = (int)dtype_bits(t->dtype), used = 0;
    bool real = has_exponent(t, &exponent, &mantissa);
    for (int i = bits - 1; i >= 0; i--) {
        out[used++] = (char)('0' + (element[i / 8] >> i % 8 & 1));
        if (i > 0 && (real ? i == mantissa || i == mantissa + exponent : i % 8 == 0))
            out[used++] = ' ';
    }
    out[used] = '\0';
    return out;
}

static void write_byte(const SafetensorsFile *st, uint64_t at, const SafetensorsTensor *t, uint64_t element,
                       const unsigned char *bytes)
{
    char bits[80];
    const char *part = at < 8 ? "length" : "header";
    write_name("{\"file\":", st->path);
    printf(",\"offset\":%" PRIu64 ",\"byte\":%u,\"part\":\"%s\"", at, st->mapped[at], t ? "data" : part);
    if (t) {
        write_string(",\"tensor\":", t->name, t->name_length);
        printf(",\"dtype\":\"%s\"", dtype_name(t->dtype));
    }
    if (bytes) {
        printf(",\"index\":");
        print_index(stdout, t, element);
        printf(",\"bits\":\"%s\",\"value\":", bits_text(t, bytes, bits));
        write_element(t->dtype, bytes);
    }
    printf("}\n");
}

static void print_element(const SafetensorsTensor *t, uint64_t element, uint64_t byte, const unsigned char *bytes)
{
    char bits[80], value[64];
    int exponent, mantissa;
    size_t size = dtype_bits(t->dtype) / 8;
    const char *parts = "";
    if (t->dtype == DTYPE_F8_E8M0)
        parts = "   (exponent)";
    else if (has_exponent(t, &exponent, &mantissa))
        parts = "   (sign, exponent, mantissa)";
    printf("element ");
    print_index(stdout, t, element);
    printf(", byte %" PRIu64 " of its %zu\nbytes   ", byte, size);
    for (size_t i = 0; i < size; i++)
        printf("%02x ", bytes[i]);
    printf("%s\nbits    %s%s\n", size > 1 ? "  (least significant first)" : "", bits_text(t, bytes, bits), parts);
    printf("value   %s\n", number_text(t->dtype, bytes, value));
}

static void print_header_place(const SafetensorsFile *st, uint64_t at)
{
    size_t place = (size_t)(at - 8), begin = MAX(place, 30) - 30, end = MIN(place + 31, st->header_len);
    printf("byte %zu of the header's JSON, between the markers:\n", place);
    print_escaped(stdout, st->header_json + begin, place - begin);
    printf(" >>");
    print_escaped(stdout, st->header_json + place, 1);
    printf("<< ");
    print_escaped(stdout, st->header_json + place + 1, end - place - 1);
    putchar('\n');
}

static void one_byte(const Checkpoint *c, uint64_t at)
{
    const SafetensorsFile *st = &c->st;
    if (st->n_shards)
        die(EXIT_FAILED, "--at counts bytes from the start of a file, but %s has %zu files: name one of them",
            c->argument, st->n_shards);
    if (at >= st->mapped_size)
        die(EXIT_FAILED, "%s has %zu bytes; there is no byte %" PRIu64, st->path, st->mapped_size, at);
    uint64_t start = 8 + st->header_len, element = 0, byte = 0;
    const SafetensorsTensor *t = at >= start ? tensor_at(st, at - start) : NULL;
    const unsigned char *bytes = NULL;
    if (t && dtype_bits(t->dtype) >= 8) {
        size_t size = dtype_bits(t->dtype) / 8;
        element = (at - start - t->offset) / size;
        byte = (at - start - t->offset) % size;
        bytes = safetensors_data(t) + element * size;
    }
    if (common.json) {
        write_byte(st, at, t, element, bytes);
        return;
    }
    printf("byte %" PRIu64 " of ", at);
    print_name(st->path);
    printf(" is 0x%02x\n", st->mapped[at]);
    if (at < 8)
        printf("byte %" PRIu64 " of the header's length, %zu, least significant first\n", at, st->header_len);
    else if (at < start)
        print_header_place(st, at);
    else
        print_tensor(t);
    if (bytes)
        print_element(t, element, byte, bytes);
}

bool inspect(Checkpoint *c, const Inspection *what, const char *find)
{
    if ((what->slice || what->npy) && !what->tensor)
        usage_error("--%s needs --tensor NAME", what->slice ? "slice" : "npy");
    if (what->at != INSPECT_NOWHERE && (what->tensor || what->stats))
        usage_error("give --at or --%s, not both", what->tensor ? "tensor" : "stats");
    if (what->npy && (what->stats || common.json))
        usage_error("give --npy or --%s, not both", what->stats ? "stats" : "json");
    if (what->at == INSPECT_NOWHERE && !what->tensor && !what->stats)
        return false;
    if (what->stats)
        session_start_pool();
    if (what->at != INSPECT_NOWHERE)
        one_byte(c, what->at);
    else if (what->tensor)
        one_tensor(c, what);
    else
        stats_of_all(c, find);
    threads_stop();
    return true;
}
