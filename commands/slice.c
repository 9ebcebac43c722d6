/* `run info --tensor, --slice, --npy, --stats, --at`: the numbers of a checkpoint, reading only what is shown. */
#include "commands/slice.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/threads.h"
#include "checkpoint/npy.h"
#include "checkpoint/number.h"
#include "checkpoint/statistics.h"

#define BINS  20
#define EDGE  3   /* numbers that are shown at either end of a long axis */
#define MANY  200 /* more numbers than these are not shown unless a slice asks for them */
#define WIDTH 14  /* of a column */

/* ---- shared ------------------------------------------------------------------------------------------------------ */

void prepare_writing(void)
{
    catch_interrupts();
    signal(SIGXFSZ, SIG_IGN);
}

int tell_progress(void *context, uint64_t bytes)
{
    Progress *p = context;
    p->done += bytes;
    progress(p->what, p->done, p->total);
    return interrupted;
}

/* There is none of that name: says so, with the nearest one if it is near. */
static _Noreturn void no_such_tensor(const Checkpoint *c, const char *name)
{
    const SafetensorsTensor *best = NULL;
    size_t least = SIZE_MAX, length = strlen(name);
    char shown[TEXT_PRINTABLE], wrong[TEXT_PRINTABLE];
    for (size_t i = 0; length < 256 && i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        size_t distance = t->name_length < 256 ? edit_distance(name, length, t->name, t->name_length) : SIZE_MAX;
        if (distance < least && nearly(length, distance)) {
            least = distance;
            best = t;
        }
    }
    text_printable(name, length, wrong);
    if (best)
        die(EXIT_FAILED, "%s: there is no tensor \"%s\"; did you mean \"%s\"?", c->argument, wrong,
            text_printable(best->name, best->name_length, shown));
    die(EXIT_FAILED, "%s: there is no tensor \"%s\"", c->argument, wrong);
}

SafetensorsTensor find_tensor(Checkpoint *c, const char *name)
{
    SafetensorsTensor t;
    size_t found = 0;
    if (safetensors_find(&c->st, name, &t) == 0)
        return t;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *other = checkpoint_tensor(c, i);
        if (!name_matches(name, other->name, other->name_length))
            continue;
        found++;
        t = *other;
    }
    if (found > 1)
        die(EXIT_FAILED, "%s: %zu tensors match \"%s\"; name one of them (run info --find '%s' lists them)",
            c->argument, found, name, name);
    if (found == 0)
        no_such_tensor(c, name);
    return t;
}

void parse_slice(Slice *s, const char *spec, const SafetensorsTensor *t)
{
    char err[512];
    if (slice_parse(s, spec, t, err) != 0)
        die(EXIT_FAILED, "%s", err);
}

void print_index(FILE *out, const SafetensorsTensor *t, uint64_t element)
{
    uint64_t *index = must(calloc(t->rank + 1, sizeof *index));
    for (size_t i = t->rank; i-- > 0; element /= t->shape[i])
        index[i] = element % t->shape[i];
    fputc('[', out);
    for (size_t i = 0; i < t->rank; i++)
        fprintf(out, "%s%" PRIu64, i ? ", " : "", index[i]);
    fputc(']', out);
    free(index);
}

/* Which element of the tensor is number `position` of the slice. */
static uint64_t element_of(const Slice *s, uint64_t position)
{
    SliceWalk w;
    char err[512];
    uint64_t first = 0, count;
    if (slice_walk(&w, s, position, err) != 0)
        die(EXIT_FAILED, "%s", err);
    slice_next(&w, &first, &count);
    slice_walk_end(&w);
    return first;
}

static void gather(const Slice *s, uint64_t position, size_t n, unsigned char *out)
{
    char err[512];
    if (slice_gather(s, position, n, out, err) != 0)
        die(EXIT_FAILED, "%s", err);
}

static void print_shape(const uint64_t *shape, size_t rank)
{
    putchar('[');
    for (size_t i = 0; i < rank; i++)
        printf("%s%" PRIu64, i ? "," : "", shape[i]);
    putchar(']');
}

static void print_slice_shape(const Slice *s)
{
    putchar('[');
    for (size_t i = 0; i < slice_rank(s); i++)
        printf("%s%" PRIu64, i ? "," : "", slice_size(s, i));
    putchar(']');
}

/* ---- numbers as text --------------------------------------------------------------------------------------------- */

static void write_number_json(Dtype dtype, const unsigned char *element)
{
    char text[64];
    double value = number_read(dtype, element).value;
    if (isnan(value))
        printf("\"NaN\"");
    else if (isinf(value))
        printf(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    else
        printf("%s", number_text(dtype, element, text));
}

static void print_number(Dtype dtype, const unsigned char *element, bool json, int width)
{
    if (json && dtype == DTYPE_C64) {
        putchar('[');
        write_number_json(DTYPE_F32, element);
        putchar(',');
        write_number_json(DTYPE_F32, element + 4);
        putchar(']');
    } else if (json) {
        write_number_json(dtype, element);
    } else {
        char text[64];
        number_text(dtype, element, text);
        printf("%s%*s", width ? " " : "", width ? width - 1 : 0, text);
    }
}

/* Columns begin .. begin + n - 1 of a row; row * columns is where it starts in the slice. */
static void print_run(const Slice *s, uint64_t position, uint64_t n, bool json)
{
    unsigned char piece[8 * 1024];
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    for (uint64_t at = 0, m; at < n; at += m) {
        m = n - at < 1024 ? n - at : 1024;
        gather(s, position + at, (size_t)m, piece);
        for (size_t i = 0; i < m; i++) {
            if (json && (at > 0 || i > 0))
                putchar(',');
            print_number(s->tensor->dtype, piece + i * size, json, json ? 0 : WIDTH);
        }
    }
}

/* The axes of a slice as a table: rows of its last axis, one after the other. */
typedef struct {
    const Slice *slice;
    size_t rank;
    uint64_t rows, columns;
    bool edges; /* only EDGE places at either end of an axis */
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

static bool is_shown(const Table *t, uint64_t place, uint64_t size)
{
    return !t->edges || size <= 2 * EDGE || place < EDGE || place >= size - EDGE;
}

/* The first row from `row` on that is shown: an axis whose place is in the middle jumps to its end. */
static uint64_t next_shown(const Table *t, uint64_t row)
{
    uint64_t stride = t->rows;
    for (size_t i = 0; i + 1 < t->rank && row < t->rows; i++) {
        uint64_t size = slice_size(t->slice, i);
        stride /= size;
        uint64_t place = row / stride % size;
        if (!is_shown(t, place, size)) {
            row = (row / stride / size * size + size - EDGE) * stride;
            i = (size_t)-1; /* all axes again, with their rows */
            stride = t->rows;
        }
    }
    return row;
}

/* The numbers of a vector take as many lines as they need; a row of a matrix is one line. */
static void print_vector(const Table *t)
{
    uint64_t line = (uint64_t)terminal_width(stdout) / WIDTH, n;
    for (uint64_t at = 0; at < t->columns; at += n) {
        n = t->columns - at < line ? t->columns - at : line;
        print_run(t->slice, at, n, false);
        putchar('\n');
    }
}

static void print_row(const Table *t, uint64_t row)
{
    uint64_t begin = row * t->columns;
    if (t->rank == 1 && !t->edges) {
        print_vector(t);
        return;
    }
    if (t->edges && t->columns > 2 * EDGE) {
        print_run(t->slice, begin, EDGE, false);
        printf("  ...");
        print_run(t->slice, begin + t->columns - EDGE, EDGE, false);
    } else {
        print_run(t->slice, begin, t->columns, false);
    }
    putchar('\n');
}

/* "[2, 0, :, :]" above each matrix of a tensor with more than two axes. */
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
        printf("(no numbers: shape ");
        print_slice_shape(s);
        printf(")\n");
        return;
    }
    for (uint64_t row = 0; (row = next_shown(&t, row)) < t.rows; expected = ++row) {
        if (row != expected)
            printf("%*s\n", WIDTH, "...");
        if (t.rank > 2 && (row == 0 || row / matrix != (expected - 1) / matrix))
            print_heading(&t, row);
        print_row(&t, row);
    }
}

/* Nested lists, as NumPy's tolist(). */
static void print_values_json(const Slice *s)
{
    Table t = table_of(s, false);
    if (s->elements == 0) {
        printf("[]");
        return;
    }
    for (uint64_t row = 0; row < t.rows; row++) {
        size_t opened = 0, closed = 0;
        uint64_t stride = 1;
        for (size_t i = t.rank > 0 ? t.rank - 1 : 0; i-- > 0;) { /* axes that begin or end with this row */
            stride *= slice_size(s, i);
            opened += row % stride == 0;
            closed += (row + 1) % stride == 0;
        }
        if (row > 0)
            putchar(',');
        for (size_t i = 0; i < opened + (t.rank > 0); i++)
            putchar('[');
        print_run(s, row * t.columns, t.columns, true);
        for (size_t i = 0; i < closed + (t.rank > 0); i++)
            putchar(']');
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static Statistics stats_of(const Slice *s)
{
    Statistics stats;
    char err[512];
    if (statistics_compute(s, &stats, err) != 0)
        die(EXIT_FAILED, "%s", err);
    return stats;
}

static uint64_t place_of(const Slice *s, double value)
{
    uint64_t at;
    char err[512];
    if (statistics_find(s, value, &at, err) != 0)
        die(EXIT_FAILED, "%s", err);
    return at;
}

static void histogram_of(const Slice *s, const Statistics *stats, uint64_t bins[BINS])
{
    char err[512];
    if (statistics_histogram(s, stats->min, stats->max, bins, BINS, err) != 0)
        die(EXIT_FAILED, "%s", err);
}

static void print_histogram(const Slice *s, const Statistics *stats)
{
    uint64_t bins[BINS], most = 1;
    histogram_of(s, stats, bins);
    for (size_t i = 0; i < BINS; i++)
        most = bins[i] > most ? bins[i] : most;
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
    printf("%-6s %.9g at ", what, value);
    print_index(stdout, s->tensor, element_of(s, place_of(s, value)));
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

static void print_stats_json(const Statistics *stats)
{
    printf("{\"count\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"plus_inf\":%" PRIu64 ",\"minus_inf\":%" PRIu64
           ",\"zero\":%" PRIu64,
           stats->count, stats->nan, stats->plus_inf, stats->minus_inf, stats->zero);
    const double values[4] = {stats->min, stats->max, stats->mean, stats->std};
    for (int i = 0; i < 4; i++) {
        printf(",\"%s\":", (const char *const[]){"min", "max", "mean", "std"}[i]);
        json_write_double(stdout, values[i]);
    }
    putchar('}');
}

static void print_histogram_json(const Slice *s, const Statistics *stats)
{
    uint64_t bins[BINS];
    histogram_of(s, stats, bins);
    printf(",\"histogram\":[");
    for (size_t i = 0; i < BINS; i++)
        printf("%s%" PRIu64, i ? "," : "", bins[i]);
    putchar(']');
}

/* One line of the table of all tensors. Returns whether it has numbers that are not finite. */
static bool print_stats_line(const SafetensorsTensor *t)
{
    Slice s;
    Statistics stats = {0};
    bool sliceable = dtype_bits(t->dtype) >= 8;
    if (sliceable) {
        parse_slice(&s, NULL, t);
        stats = stats_of(&s);
        slice_free(&s);
    }
    uint64_t infinite = stats.plus_inf + stats.minus_inf;
    if (!sliceable)
        printf("%56s %-5s", "(numbers below a byte)", "");
    else
        printf("%12.5g %12.5g %12.5g %12.5g  %8" PRIu64 " %6" PRIu64 " %6" PRIu64, stats.min, stats.max, stats.mean,
               stats.std, stats.zero, stats.nan, infinite);
    printf("  %-5s ", dtype_name(t->dtype));
    print_escaped(stdout, t->name, t->name_length);
    putchar('\n');
    return stats.nan + infinite > 0;
}

static void print_stats_entry_json(const SafetensorsTensor *t, bool first)
{
    Slice s;
    printf(first ? "\n" : ",\n");
    printf("{\"name\":");
    json_write_string(stdout, t->name, t->name_length);
    printf(",\"dtype\":\"%s\",\"shape\":", dtype_name(t->dtype));
    print_shape(t->shape, t->rank);
    printf(",\"stats\":");
    if (dtype_bits(t->dtype) < 8) {
        printf("null}");
        return;
    }
    parse_slice(&s, NULL, t);
    Statistics stats = stats_of(&s);
    print_stats_json(&stats);
    putchar('}');
    slice_free(&s);
}

static void stats_of_all(const Checkpoint *c, const char *find)
{
    size_t shown = 0, bad = 0;
    Progress p = {.what = "reading"};
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++)
        p.total += checkpoint_tensor(c, i)->length;
    if (common.json)
        printf("{\"tensors\":[");
    else
        printf("%12s %12s %12s %12s  %8s %6s %6s  %-5s %s\n", "min", "max", "mean", "std", "zero", "NaN", "inf",
               "dtype", "tensor");
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        if (name_matches(find, t->name, t->name_length)) {
            if (common.json)
                print_stats_entry_json(t, shown == 0);
            else
                bad += print_stats_line(t);
            shown++;
        }
        tell_progress(&p, t->length);
    }
    progress_end();
    check_sizes(c);
    if (common.json)
        printf("\n]}\n");
    else if (bad)
        printf("%zu of %zu tensors hold NaN or infinite numbers\n", bad, shown);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static void tensor_json(const Slice *s, const DataArguments *a)
{
    const SafetensorsTensor *t = s->tensor;
    printf("{\"file\":");
    json_write_string(stdout, t->file->path, strlen(t->file->path));
    printf(",\"name\":");
    json_write_string(stdout, t->name, t->name_length);
    printf(",\"dtype\":\"%s\",\"shape\":", dtype_name(t->dtype));
    print_shape(t->shape, t->rank);
    printf(",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "],\"slice\":", t->offset, t->offset + t->length);
    if (a->slice)
        json_write_string(stdout, a->slice, strlen(a->slice));
    else
        printf("null");
    printf(",\"slice_shape\":");
    print_slice_shape(s);
    if (a->stats) {
        Statistics stats = stats_of(s);
        printf(",\"stats\":");
        print_stats_json(&stats);
        if (stats.max > stats.min)
            print_histogram_json(s, &stats);
    } else {
        printf(",\"values\":");
        print_values_json(s);
    }
    printf("}\n");
}

static void write_npy(const Checkpoint *c, const Slice *s, const char *path)
{
    OutFile out;
    char err[512];
    if (is_model_file(c, path))
        die(EXIT_FAILED, "--npy: %s is a file of the model itself", path);
    out_open(&out, path);
    if (npy_write(s, out.f, err) != 0)
        die(EXIT_FAILED, "%s", err);
    out_commit(&out);
}

static void one_tensor(Checkpoint *c, const DataArguments *a)
{
    SafetensorsTensor t = find_tensor(c, a->tensor);
    Slice s;
    if (dtype_bits(t.dtype) < 8 && !a->slice && !a->npy && !a->stats && !common.json) {
        print_tensor(&t);
        notice("numbers of %s are smaller than a byte: they cannot be shown one by one", dtype_name(t.dtype));
        return;
    }
    parse_slice(&s, a->slice, &t);
    if (a->npy) {
        write_npy(c, &s, a->npy);
    } else if (common.json) {
        tensor_json(&s, a);
    } else {
        print_tensor(&t);
        if (a->stats)
            print_stats(&s);
        else
            print_values(&s, !a->slice && s.elements > MANY);
    }
    slice_free(&s);
}

/* ---- one byte ---------------------------------------------------------------------------------------------------- */

/* The tensor whose bytes hold that one of the data. */
static const SafetensorsTensor *tensor_at(const SafetensorsFile *st, uint64_t offset)
{
    size_t low = 0, high = st->n_tensors;
    while (high - low > 1) { /* tensors[low] begins at or before the byte; empty ones come before the one that has it */
        size_t middle = low + (high - low) / 2;
        if (st->tensors[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return &st->tensors[low];
}

static const char *bits_text(const SafetensorsTensor *t, const unsigned char *element, char out[80])
{
    int exponent = 0, mantissa = 0, bits = (int)dtype_bits(t->dtype), used = 0;
    bool real = number_float_layout(t->dtype, &exponent, &mantissa) && t->dtype != DTYPE_C64;
    for (int i = bits - 1; i >= 0; i--) {
        out[used++] = (char)('0' + (element[i / 8] >> i % 8 & 1));
        if (i > 0 && (real ? i == mantissa || i == mantissa + exponent : i % 8 == 0))
            out[used++] = ' ';
    }
    out[used] = '\0';
    return out;
}

static void print_byte_json(const SafetensorsFile *st, uint64_t at, const char *part, const SafetensorsTensor *t,
                            uint64_t element, const unsigned char *bytes)
{
    char bits[80];
    printf("{\"file\":");
    json_write_string(stdout, st->path, strlen(st->path));
    printf(",\"offset\":%" PRIu64 ",\"byte\":%u,\"part\":\"%s\"", at, st->mapped[at], part);
    if (t) {
        printf(",\"tensor\":");
        json_write_string(stdout, t->name, t->name_length);
        printf(",\"dtype\":\"%s\"", dtype_name(t->dtype));
    }
    if (bytes) {
        printf(",\"index\":");
        print_index(stdout, t, element);
        printf(",\"bits\":\"%s\",\"value\":", bits_text(t, bytes, bits));
        print_number(t->dtype, bytes, true, 0);
    }
    printf("}\n");
}

static void print_element(const SafetensorsTensor *t, uint64_t element, uint64_t byte, const unsigned char *bytes)
{
    char bits[80], value[64];
    int exponent, mantissa;
    size_t size = dtype_bits(t->dtype) / 8;
    bool real = number_float_layout(t->dtype, &exponent, &mantissa) && t->dtype != DTYPE_C64;
    printf("element ");
    print_index(stdout, t, element);
    printf(", byte %" PRIu64 " of its %zu\nbytes   ", byte, size);
    for (size_t i = 0; i < size; i++)
        printf("%02x ", bytes[i]);
    printf("%s\nbits    %s%s\n", size > 1 ? "  (least significant first)" : "", bits_text(t, bytes, bits),
           !real                       ? ""
           : t->dtype == DTYPE_F8_E8M0 ? "   (exponent)"
                                       : "   (sign, exponent, mantissa)");
    printf("value   %s\n", number_text(t->dtype, bytes, value));
}

static void print_header_place(const SafetensorsFile *st, uint64_t at)
{
    size_t place = (size_t)(at - 8), begin = place > 30 ? place - 30 : 0,
           end = st->header_len - place > 31 ? place + 31 : st->header_len;
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
        die(EXIT_FAILED, "--at counts from the start of a file, and %s has %zu: name one of them", c->argument,
            st->n_shards);
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
    const char *part = at < 8 ? "length" : at < start ? "header" : "data";
    if (common.json) {
        print_byte_json(st, at, part, t, element, bytes);
        return;
    }
    printf("byte %" PRIu64 " of ", at);
    print_escaped(stdout, st->path, strlen(st->path));
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

bool info_data(Checkpoint *c, const DataArguments *a, const char *find)
{
    if ((a->slice || a->npy) && !a->tensor)
        usage_error("--%s needs --tensor NAME", a->slice ? "slice" : "npy");
    if (a->at != NOWHERE && (a->tensor || a->stats))
        usage_error("--at and --%s: give one of them", a->tensor ? "tensor" : "stats");
    if (a->npy && (a->stats || common.json))
        usage_error("--npy and --%s: give one of them", a->stats ? "stats" : "json");
    if (a->at == NOWHERE && !a->tensor && !a->stats)
        return false;
    if (a->stats)
        start_pool();
    if (a->at != NOWHERE)
        one_byte(c, a->at);
    else if (a->tensor)
        one_tensor(c, a);
    else
        stats_of_all(c, find);
    threads_stop();
    return true;
}
