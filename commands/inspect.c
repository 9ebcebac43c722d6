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

#define BINS 20
#define EDGE 3   /* how many numbers are shown at either end of a long axis */
#define MANY 200 /* a tensor with more numbers is shown by its edges, unless a slice asks for all of them */
#define WIDTH 14 /* of a column */

/* ---- numbers as text --------------------------------------------------------------------------------------------- */

static void write_element(Dtype dtype, const unsigned char *element)
{
    char text[64];
    double value = number_read(dtype, element).value;
    if (dtype == DTYPE_C64) {
        putchar('[');
        write_element(DTYPE_F32, element);
        putchar(',');
        write_element(DTYPE_F32, element + 4);
        putchar(']');
    } else if (isnan(value)) {
        printf("\"NaN\"");
    } else if (isinf(value)) {
        printf(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    } else {
        printf("%s", number_text(dtype, element, text));
    }
}

/* Print elements position .. position + n - 1 of a slice. */
static void print_run(const Slice *s, uint64_t position, uint64_t n, bool json)
{
    unsigned char elements[8 * 1024];
    char err[512], text[64];
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    for (uint64_t at = 0, m; at < n; at += m) {
        m = MIN(n - at, 1024);
        die_if(slice_gather(s, position + at, (size_t)m, elements, err), err);
        for (size_t i = 0; i < m; i++) {
            const unsigned char *element = elements + i * size;
            if (json) {
                fputs(at + i > 0 ? "," : "", stdout);
                write_element(s->tensor->dtype, element);
            } else {
                printf(" %*s", WIDTH - 1, number_text(s->tensor->dtype, element, text));
            }
        }
    }
}

/* The axes of a slice as a table: rows of its last axis, one after the other. */
typedef struct {
    const Slice *slice;
    size_t rank;
    uint64_t rows, columns;
    bool edges; /* show only EDGE places at either end of an axis */
} Table;

static Table table_of(const Slice *s, bool edges)
{
    Table t = {.slice = s, .rank = slice_rank(s), .rows = 1, .columns = 1, .edges = edges};
    for (size_t i = 0; i + 1 < t.rank; i++)
        t.rows *= slice_size(s, i);
    if (t.rank)
        t.columns = slice_size(s, t.rank - 1);
    return t;
}

/* The first row from `row` on that is shown. An axis whose place is in its middle goes on to its last EDGE places, and
 * the axes after it start from 0 again; places 0 are always shown, so that one pass over the axes is enough. */
static uint64_t next_shown(const Table *t, uint64_t row)
{
    uint64_t stride = t->rows;
    for (size_t i = 0; t->edges && i + 1 < t->rank && row < t->rows; i++) {
        uint64_t size = slice_size(t->slice, i);
        stride /= size;
        uint64_t place = row / stride % size;
        if (size > 2 * EDGE && place >= EDGE && place < size - EDGE)
            return (row / stride / size * size + size - EDGE) * stride;
    }
    return row;
}

static void print_row(const Table *t, uint64_t row)
{
    uint64_t begin = row * t->columns, n = MIN(t->columns, t->slice->elements - begin);
    if (t->edges && n > 2 * EDGE) {
        print_run(t->slice, begin, EDGE, false);
        printf("  ...");
        print_run(t->slice, begin + n - EDGE, EDGE, false);
    } else {
        print_run(t->slice, begin, n, false);
    }
    putchar('\n');
}

/* Print "[2, 0, :, :]", which stands above each matrix of a tensor with more than two axes. */
static void print_heading(const Table *t, uint64_t row)
{
    uint64_t stride = t->rows;
    printf("[");
    for (size_t i = 0; i + 2 < t->rank; i++) {
        stride /= slice_size(t->slice, i);
        printf("%" PRIu64 ", ", row / stride % slice_size(t->slice, i));
    }
    printf(":, :]\n");
}

static void print_values(const Slice *s, bool edges)
{
    Table t = table_of(s, edges);
    uint64_t expected = 0, matrix = t.rank > 2 ? slice_size(s, t.rank - 2) : 0;
    if (s->elements == 0) {
        uint64_t *shape = model_slice_shape(s);
        printf("(no numbers: shape ");
        shape_print(stdout, shape, slice_rank(s));
        printf(")\n");
        free(shape);
        return;
    }
    if (t.rank == 1 && !edges) { /* the rows of a vector are lines of the terminal */
        t.columns = (uint64_t)terminal_width(stdout) / WIDTH;
        t.rows = (s->elements - 1) / t.columns + 1;
    }
    for (uint64_t row = 0; (row = next_shown(&t, row)) < t.rows; expected = ++row) {
        if (row != expected)
            printf("%*s\n", WIDTH, "...");
        if (t.rank > 2 && (row == 0 || row / matrix != (expected - 1) / matrix))
            print_heading(&t, row);
        print_row(&t, row);
    }
}

/* Print nested lists, as NumPy's tolist() makes them. */
static void write_values(const Slice *s)
{
    Table t = table_of(s, false);
    if (s->elements == 0) {
        printf("[]");
        return;
    }
    for (uint64_t row = 0; row < t.rows; row++) {
        size_t opened = t.rank > 0 ? 1 : 0, closed = opened; /* the row itself is a list */
        uint64_t stride = 1;
        for (size_t i = t.rank > 0 ? t.rank - 1 : 0; i-- > 0;) { /* axes that begin or end with this row */
            stride *= slice_size(s, i);
            opened += row % stride == 0 ? 1 : 0;
            closed += (row + 1) % stride == 0 ? 1 : 0;
        }
        if (row > 0)
            putchar(',');
        for (size_t i = 0; i < opened; i++)
            putchar('[');
        print_run(s, row * t.columns, t.columns, true);
        for (size_t i = 0; i < closed; i++)
            putchar(']');
    }
}

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

static void print_extreme(const char *what, const Slice *s, double value)
{
    uint64_t position;
    char err[512];
    die_if(statistics_find(s, value, &position, err), err);
    printf("%-6s %.9g at ", what, value);
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
    print_extreme("min", s, stats.min);
    print_extreme("max", s, stats.max);
    printf("mean   %.9g\nstd    %.9g\n", stats.mean, stats.std);
    if (stats.max > stats.min)
        print_histogram(s, &stats);
}

static void write_stats(const Statistics *stats)
{
    printf("{\"count\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"plus_inf\":%" PRIu64 ",\"minus_inf\":%" PRIu64
           ",\"zero\":%" PRIu64,
           stats->count, stats->nan, stats->plus_inf, stats->minus_inf, stats->zero);
    write_number(",\"min\":", stats->min);
    write_number(",\"max\":", stats->max);
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
    Slice s;
    Statistics stats = {0}, *known = NULL;
    char err[512];
    if (dtype_bits(t->dtype) >= 8) {
        die_if(slice_parse(&s, NULL, t, err), err);
        stats = stats_of(&s);
        slice_free(&s);
        known = &stats;
    }
    if (common.json) {
        write_tensor(first ? "\n{" : ",\n{", t);
        printf(known ? ",\"stats\":" : ",\"stats\":null");
        if (known)
            write_stats(known);
        putchar('}');
    } else {
        print_stats_line(t, known);
    }
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
        write_stats(&stats);
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
