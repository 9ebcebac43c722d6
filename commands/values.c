#include "commands/values.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "checkpoint/number.h"
#include "commands/model.h"
#include "commands/terminal.h"

#define EDGE 3             /* how many numbers are shown at either end of a long axis */
#define WIDTH 14           /* of a column */
#define MOST_LISTS 1000000 /* empty lists that are written: a header may speak of 2^60 of them */

void write_element(Dtype dtype, const unsigned char *element)
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
    uint64_t *shape; /* [rank], to be freed */
    size_t rank;
    uint64_t rows, columns;
    bool edges; /* show only EDGE places at either end of an axis */
} Table;

static Table table_of(const Slice *s, bool edges)
{
    Table t = {
        .slice = s, .shape = model_slice_shape(s), .rank = slice_rank(s), .rows = 1, .columns = 1, .edges = edges};
    for (size_t i = 0; i + 1 < t.rank; i++)
        t.rows *= t.shape[i];
    if (t.rank)
        t.columns = t.shape[t.rank - 1];
    return t;
}

/* The first row from `row` on that is shown. An axis whose place is in its middle goes on to its last EDGE places, and
 * the axes after it start from 0 again; places 0 are always shown, so that one pass over the axes is enough. */
static uint64_t next_shown(const Table *t, uint64_t row)
{
    uint64_t stride = t->rows;
    for (size_t i = 0; t->edges && i + 1 < t->rank && row < t->rows; i++) {
        uint64_t size = t->shape[i];
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
        stride /= t->shape[i];
        printf("%" PRIu64 ", ", row / stride % t->shape[i]);
    }
    printf(":, :]\n");
}

void print_values(const Slice *s, bool edges)
{
    Table t = table_of(s, edges);
    uint64_t expected = 0, matrix = t.rank > 2 ? t.shape[t.rank - 2] : 0;
    if (s->elements == 0) {
        printf("(no numbers: shape ");
        shape_print(stdout, t.shape, t.rank);
        printf(")\n");
        t.rows = 0;
    }
    if (t.rank == 1 && !edges && s->elements > 0) { /* the rows of a vector are lines of the terminal */
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
    free(t.shape);
}

/* The first axis that is empty ends the lists; the axes after it cannot be seen. */
void write_values(const Slice *s)
{
    Table t = table_of(s, false);
    if (s->elements == 0) {
        for (t.rank = 1, t.rows = 1, t.columns = 0; t.shape[t.rank - 1] > 0; t.rank++)
            t.rows =
                t.shape[t.rank - 1] > MOST_LISTS ? MOST_LISTS + 1 : MIN(t.rows * t.shape[t.rank - 1], MOST_LISTS + 1);
        if (t.rows > MOST_LISTS)
            t.rank = t.rows = 1;
    }
    for (uint64_t row = 0; row < t.rows; row++) {
        size_t opened = t.rank > 0 ? 1 : 0, closed = opened; /* the row itself is a list */
        uint64_t stride = 1;
        for (size_t i = t.rank > 0 ? t.rank - 1 : 0; i-- > 0;) { /* axes that begin or end with this row */
            stride *= t.shape[i];
            bool begins = row % stride == 0, ends = (row + 1) % stride == 0;
            if (!begins && !ends)
                break;
            opened += begins ? 1 : 0;
            closed += ends ? 1 : 0;
        }
        if (row > 0)
            putchar(',');
        for (size_t i = 0; i < opened; i++)
            putchar('[');
        print_run(s, row * t.columns, t.columns, true);
        for (size_t i = 0; i < closed; i++)
            putchar(']');
    }
    free(t.shape);
}
