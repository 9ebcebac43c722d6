/* run diff: what two checkpoints, files or sharded models in any combination, have that differs. */
#include "base/threads.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "checkpoint/tensor.h"
#include "commands/slice.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_TROUBLE 2
#define BLOCK        512               /* elements that are decoded at a time */
#define PIECE        (128 * BLOCK)     /* that a thread takes; sums are kept for each and added in order */
#define BYTES        ((size_t)4 << 20) /* that a thread takes when it only looks whether they are equal */

/* ---- one pair of tensors ----------------------------------------------------------------------------------------- */

/* Of numbers a and d = b - a: 1 - cos(a, b) = (|d|^2 - (|b| - |a|)^2) / (2 |a| |b|), which has digits left where cos is
 * nearly 1. */
typedef struct {
    uint64_t elements, changed;  /* changed: their bytes, or of different dtypes their values */
    uint64_t not_finite;         /* changed ones that are NaN or infinite on a side; the figures below leave them out */
    double max, sum, dd, aa, ad; /* of |d|: largest and sum; sums of d d, a a, a d */
    bool b_is_not_zero;          /* else |b|, which comes from these sums, would be nothing but their rounding */
    uint64_t max_at;             /* element */
} Difference;

typedef enum { SAME, CHANGED, RETYPED, RESHAPED, ONLY_A, ONLY_B } Status;
static const char *const status_names[] = {"equal", "changed", "dtype", "shape", "only in A", "only in B"};

typedef struct {
    const SafetensorsTensor *a;
    SafetensorsTensor b;
    Status status;
    bool compared; /* difference is filled in */
    Difference difference;
} Pair;

typedef struct {
    const SafetensorsTensor *a, *b;
    Difference *pieces;
    _Atomic bool different;
} Comparison;

static void compare_bytes(void *context, size_t begin, size_t end, int thread)
{
    Comparison *c = context;
    (void)thread;
    if (!c->different && memcmp(safetensors_data(c->a) + begin, safetensors_data(c->b) + begin, end - begin) != 0)
        c->different = true;
}

static bool equal_bytes(const SafetensorsTensor *a, const SafetensorsTensor *b)
{
    Comparison c = {.a = a, .b = b};
    threads_for((size_t)a->length, BYTES, compare_bytes, &c);
    return !c.different;
}

static void add_difference(Difference *total, const Difference *d)
{
    if (d->max > total->max) {
        total->max = d->max;
        total->max_at = d->max_at;
    }
    total->elements += d->elements, total->changed += d->changed, total->not_finite += d->not_finite;
    total->sum += d->sum, total->dd += d->dd, total->aa += d->aa, total->ad += d->ad;
    total->b_is_not_zero = total->b_is_not_zero || d->b_is_not_zero;
}

/* Sums over n pairs of finite numbers go to lane i mod 4, so that they need not wait for one another. */
static void add_sums(Difference *total, const double *a, const double *b, size_t n)
{
    double sum[4] = {0}, dd[4] = {0}, aa[4] = {0}, ad[4] = {0};
    bool any[4] = {false};
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < (n - i < 4 ? n - i : 4); j++) {
            double x = a[i + j], d = b[i + j] - x;
            any[j] |= b[i + j] != 0;
            sum[j] += fabs(d);
            dd[j] += d * d;
            aa[j] += x * x;
            ad[j] += x * d;
        }
    }
    total->sum += (sum[0] + sum[2]) + (sum[1] + sum[3]);
    total->dd += (dd[0] + dd[2]) + (dd[1] + dd[3]);
    total->aa += (aa[0] + aa[2]) + (aa[1] + aa[3]);
    total->ad += (ad[0] + ad[2]) + (ad[1] + ad[3]);
    total->b_is_not_zero = total->b_is_not_zero || any[0] || any[1] || any[2] || any[3];
}

/* Pairs that are not both finite become 0 and 0. Returns how many differ: one is NaN or infinite and the other is not
 * the same. */
static uint64_t set_aside(double *a, double *b, size_t n)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(a[i]) && isfinite(b[i]))
            continue;
        count += !(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
        a[i] = b[i] = 0;
    }
    return count;
}

/* The largest |b - a|, where it comes first, and the number of elements that changed. */
static void add_changes(Difference *total, const Comparison *c, size_t at, size_t n, const double *a, const double *b)
{
    size_t parts = number_parts(c->a->dtype), size = dtype_bits(c->a->dtype) / 8;
    const unsigned char *x = safetensors_data(c->a) + at * size, *y = safetensors_data(c->b) + at * size;
    for (size_t i = 0; i < n * parts; i++) {
        double d = fabs(b[i] - a[i]);
        if (d > total->max) {
            total->max = d;
            total->max_at = at + i / parts;
        }
    }
    for (size_t i = 0; i < n; i++)
        total->changed += c->a->dtype == c->b->dtype ? memcmp(x + i * size, y + i * size, size) != 0 : a[i] != b[i];
}

static void compare_numbers(void *context, size_t begin, size_t end, int thread)
{
    const Comparison *c = context;
    double a[2 * BLOCK], b[2 * BLOCK];
    size_t size_a = dtype_bits(c->a->dtype) / 8, size_b = dtype_bits(c->b->dtype) / 8, parts = number_parts(c->a->dtype),
           n;
    Difference *d = &c->pieces[begin / PIECE];
    (void)thread;
    for (size_t at = begin; at < end; at += n) {
        n = end - at < BLOCK ? end - at : BLOCK;
        const unsigned char *x = safetensors_data(c->a) + at * size_a, *y = safetensors_data(c->b) + at * size_b;
        uint64_t infinite = 0;
        number_decode(c->a->dtype, x, n, a);
        number_decode(c->b->dtype, y, n, b);
        d->elements += n;
        if (c->a->dtype != c->b->dtype || memcmp(x, y, n * size_a) != 0) {
            infinite = set_aside(a, b, n * parts);
            add_changes(d, c, at, n, a, b);
            d->changed += c->a->dtype == c->b->dtype ? 0 : infinite;
        } else {
            set_aside(a, b, n * parts);
        }
        d->not_finite += infinite;
        add_sums(d, a, b, n * parts);
    }
}

static Difference difference_of(const SafetensorsTensor *a, const SafetensorsTensor *b)
{
    size_t pieces = (size_t)(a->elements / PIECE) + 1;
    Comparison c = {.a = a, .b = b, .pieces = calloc(pieces, sizeof *c.pieces)};
    Difference total = {0};
    if (!c.pieces)
        die(EXIT_TROUBLE, "out of memory");
    threads_for((size_t)a->elements, PIECE, compare_numbers, &c);
    for (size_t i = 0; i < pieces; i++)
        add_difference(&total, &c.pieces[i]);
    free(c.pieces);
    return total;
}

static double relative(const Difference *d)
{
    return d->dd == 0 ? 0 : sqrt(d->dd / d->aa);
}

/* NaN: one of them is zero, and has no direction. */
static double cosine(const Difference *d)
{
    if (d->dd == 0)
        return 0;
    if (d->aa == 0 || !d->b_is_not_zero)
        return NAN;
    double bb = d->aa + 2 * d->ad + d->dd, a = sqrt(d->aa), b = sqrt(bb > 0 ? bb : 0),
           longer = (2 * d->ad + d->dd) / (a + b);
    double distance = (d->dd - longer * longer) / (2 * a * b);
    return distance < 0 ? 0 : distance;
}

static double mean(const Difference *d)
{
    return d->elements ? d->sum / (double)d->elements : 0;
}

static void compare_pair(Pair *p)
{
    const SafetensorsTensor *a = p->a, *b = &p->b;
    if (a->rank != b->rank || memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) != 0) {
        p->status = RESHAPED;
        return;
    }
    p->status = a->dtype != b->dtype ? RETYPED : equal_bytes(a, b) ? SAME : CHANGED;
    p->compared = p->status != SAME && dtype_bits(a->dtype) >= 8 && dtype_bits(b->dtype) >= 8
                  && number_parts(a->dtype) == number_parts(b->dtype);
    if (p->compared)
        p->difference = difference_of(a, b);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef struct {
    Checkpoint a, b;
    Pair *pairs;
    size_t n, counts[6]; /* by status */
} Diff;

static void open_side(Checkpoint *c, const char *name)
{
    char err[512];
    if (checkpoint_open(c, name, false, err) != 0)
        die(EXIT_TROUBLE, "%s", err);
}

/* A's tensors in its order, then those that only B has. */
static void pair_tensors(Diff *d)
{
    size_t n_a = checkpoint_tensor_count(&d->a), n_b = checkpoint_tensor_count(&d->b);
    SafetensorsTensor unused;
    d->pairs = must(calloc(n_a + n_b + 1, sizeof *d->pairs));
    for (size_t i = 0; i < n_a; i++) {
        Pair *p = &d->pairs[d->n++];
        p->a = checkpoint_tensor(&d->a, i);
        p->status = safetensors_find_n(&d->b.st, p->a->name, p->a->name_length, &p->b) == 0 ? SAME : ONLY_A;
    }
    for (size_t i = 0; i < n_b; i++) {
        const SafetensorsTensor *b = checkpoint_tensor(&d->b, i);
        if (safetensors_find_n(&d->a.st, b->name, b->name_length, &unused) != 0)
            d->pairs[d->n++] = (Pair){.b = *b, .status = ONLY_B};
    }
}

static void compare_all(Diff *d)
{
    Progress p = {.what = "comparing"};
    for (size_t i = 0; i < d->n; i++)
        p.total += d->pairs[i].a ? d->pairs[i].a->length : 0;
    for (size_t i = 0; i < d->n; i++) {
        if (d->pairs[i].status == SAME)
            compare_pair(&d->pairs[i]);
        d->counts[d->pairs[i].status]++;
        tell_progress(&p, d->pairs[i].a ? d->pairs[i].a->length : 0);
    }
    progress_end();
}

static const SafetensorsTensor *named(const Pair *p)
{
    return p->a ? p->a : &p->b;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_type(const SafetensorsTensor *t)
{
    printf("%s [", dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank; i++)
        printf("%s%" PRIu64, i ? "," : "", t->shape[i]);
    putchar(']');
}

static void print_value(const SafetensorsTensor *t, uint64_t element)
{
    char text[64];
    fputs(number_text(t->dtype, safetensors_data(t) + element * (dtype_bits(t->dtype) / 8), text), stdout);
}

/* A ratio; "-" where there is none, since what it divides by is zero. */
static const char *figure(char out[32], double ratio)
{
    snprintf(out, 32, "%.6g", ratio);
    return isfinite(ratio) ? out : "-";
}

static void print_difference(const Pair *p)
{
    const Difference *d = &p->difference;
    printf("    %" PRIu64 " of %" PRIu64 " changed (%.3g%%)", d->changed, d->elements,
           d->elements ? 100 * (double)d->changed / (double)d->elements : 0);
    if (d->not_finite)
        printf(", %" PRIu64 " with NaN or infinity", d->not_finite);
    if (d->max > 0) {
        printf("   max %.6g at ", d->max);
        print_index(stdout, p->a, d->max_at);
        printf(": ");
        print_value(p->a, d->max_at);
        printf(" -> ");
        print_value(&p->b, d->max_at);
        char text[2][32];
        printf("\n    mean %.6g   relative %s   1-cosine %s", mean(d), figure(text[0], relative(d)),
               figure(text[1], cosine(d)));
    }
    putchar('\n');
}

static void print_pair(const Pair *p)
{
    const SafetensorsTensor *t = named(p);
    print_escaped(stdout, t->name, t->name_length);
    printf("   ");
    print_type(t);
    if (p->status == RETYPED || p->status == RESHAPED) {
        printf(" -> ");
        print_type(&p->b);
    }
    printf("   %s\n", status_names[p->status]);
    if (p->compared)
        print_difference(p);
    else if (p->status == CHANGED)
        printf("    bytes differ\n");
}

/* What the tensors of a layer have that differs, taken together. */
typedef struct {
    uint64_t layer;
    bool is_layer;
    size_t tensors, different;
    Difference total;
} Layer;

/* The layers that occur, those without a number first; fresh, *n of them. */
static Layer *sum_layers(const Diff *d, size_t *n)
{
    Layer *layers = must(calloc(d->n + 1, sizeof *layers));
    uint64_t most = 0, layer;
    for (size_t i = 0; i < d->n; i++)
        if (tensor_layer(named(&d->pairs[i]), &layer) && layer < d->n && layer >= most)
            most = layer + 1;
    *n = (size_t)most + 1;
    for (size_t i = 0; i < d->n; i++) {
        const Pair *p = &d->pairs[i];
        bool is_layer = tensor_layer(named(p), &layer) && layer < d->n;
        Layer *l = &layers[is_layer ? layer + 1 : 0];
        l->layer = layer;
        l->is_layer = is_layer;
        l->tensors++;
        l->different += p->status != SAME;
        add_difference(&l->total, &p->difference);
    }
    return layers;
}

static void print_layers(const Diff *d)
{
    size_t n;
    Layer *layers = sum_layers(d, &n);
    printf("\n%-8s %10s %10s %14s %12s %12s %12s\n", "layer", "tensors", "different", "elements", "max", "relative",
           "1-cosine");
    for (size_t i = 0; i < n; i++) {
        const Layer *l = &layers[i];
        char name[32] = "others", text[2][32];
        if (l->is_layer)
            snprintf(name, sizeof name, "%" PRIu64, l->layer);
        if (l->different)
            printf("%-8s %10zu %10zu %14" PRIu64 " %12.6g %12s %12s\n", name, l->tensors, l->different,
                   l->total.changed, l->total.max, figure(text[0], relative(&l->total)),
                   figure(text[1], cosine(&l->total)));
    }
    free(layers);
}

static void print_diff(const Diff *d, bool all)
{
    bool first = true;
    for (size_t i = 0; i < d->n; i++) {
        if (all || d->pairs[i].status != SAME)
            print_pair(&d->pairs[i]);
    }
    if (d->counts[SAME] < d->n)
        print_layers(d);
    if (all || d->counts[SAME] < d->n)
        putchar('\n');
    printf("%zu tensors: ", d->n);
    for (int s = 0; s < 6; s++) {
        if (d->counts[s]) {
            printf("%s%zu %s", first ? "" : ", ", d->counts[s], status_names[s]);
            first = false;
        }
    }
    printf("%s\n", first ? "nothing to compare" : "");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_figures(const Difference *d)
{
    const double values[4] = {d->max, mean(d), relative(d), cosine(d)};
    printf(",\"elements\":%" PRIu64 ",\"changed\":%" PRIu64 ",\"not_finite\":%" PRIu64, d->elements, d->changed,
           d->not_finite);
    for (int i = 0; i < 4; i++) {
        printf(",\"%s\":", (const char *const[]){"max", "mean", "relative", "cosine"}[i]);
        json_write_double(stdout, values[i]);
    }
}

static void write_type(const char *side, const SafetensorsTensor *t)
{
    printf(",\"dtype_%s\":\"%s\",\"shape_%s\":[", side, dtype_name(t->dtype), side);
    for (size_t i = 0; i < t->rank; i++)
        printf("%s%" PRIu64, i ? "," : "", t->shape[i]);
    putchar(']');
}

static void write_pair(const Pair *p)
{
    const SafetensorsTensor *t = named(p);
    printf("{\"name\":");
    json_write_string(stdout, t->name, t->name_length);
    printf(",\"status\":\"%s\"", status_names[p->status]);
    if (p->status != ONLY_B)
        write_type("a", p->a);
    if (p->status != ONLY_A)
        write_type("b", &p->b);
    if (p->compared) {
        write_figures(&p->difference);
        printf(",\"max_at\":");
        if (p->difference.max > 0)
            print_index(stdout, p->a, p->difference.max_at);
        else
            printf("null");
    }
    putchar('}');
}

static void write_diff(const Diff *d)
{
    size_t n;
    Layer *layers = sum_layers(d, &n);
    const char *between = "";
    printf("{\"a\":");
    json_write_string(stdout, d->a.argument, strlen(d->a.argument));
    printf(",\"b\":");
    json_write_string(stdout, d->b.argument, strlen(d->b.argument));
    printf(",\"same\":%s,\"counts\":{", d->counts[SAME] == d->n ? "true" : "false");
    for (int s = 0; s < 6; s++)
        printf("%s\"%s\":%zu", s ? "," : "", status_names[s], d->counts[s]);
    printf("},\"tensors\":[");
    for (size_t i = 0; i < d->n; i++) {
        printf(i ? ",\n" : "\n");
        write_pair(&d->pairs[i]);
    }
    printf("],\"layers\":[");
    for (size_t i = 0; i < n; i++) {
        if (!layers[i].tensors)
            continue;
        printf("%s\n{\"layer\":", between);
        between = ",";
        if (layers[i].is_layer)
            printf("%" PRIu64, layers[i].layer);
        else
            printf("null");
        printf(",\"tensors\":%zu,\"different\":%zu", layers[i].tensors, layers[i].different);
        write_figures(&layers[i].total);
        putchar('}');
    }
    printf("]}\n");
    free(layers);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void write_patch(Diff *d, const char *path)
{
    char err[512];
    PatchSize size;
    Progress p = {.what = "writing the patch", .total = 0};
    for (size_t i = 0; i < d->n; i++)
        p.total += d->pairs[i].a ? 2 * d->pairs[i].a->length : 0;
    prepare_writing();
    if (patch_write(&d->a, &d->b, path, tell_progress, &p, &size, err) != 0)
        die(interrupted ? EXIT_INTERRUPTED : EXIT_TROUBLE, "%s", err);
    progress_end();
    notice("%s: %" PRIu64 " bytes in %" PRIu64 " range%s of %" PRIu64 " tensor%s", path, size.bytes, size.ranges,
           size.ranges == 1 ? "" : "s", size.tensors, size.tensors == 1 ? "" : "s");
}

int cmd_diff(int argc, char **argv)
{
    const char *patch = NULL;
    bool all = false;
    const Option options[] = {
        {0, "patch", "FILE", OPTION_TEXT, &patch, "write what turns A into B, for run edit --patch"},
        {0, "all", NULL, OPTION_FLAG, &all, "list equal tensors, too"},
        {'t', "threads", "N", OPTION_COUNT, &common.threads, "default: the cores that this process may use"},
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(argc, argv, options, false, "run diff A B",
                              "run diff base.safetensors tuned.safetensors\n"
                              "run diff base-model/ tuned-model/            # folders, sharded or not\n"
                              "run diff base.safetensors tuned.safetensors --patch tuned.patch\n"
                              "\n"
                              "Exit code: 0 all tensors are equal, 1 something differs, 2 trouble.\n");
    arguments_at_most(count, 2, argv);
    if (count < 2)
        usage_error("two checkpoints are needed");
    Diff d = {0};
    snprintf(mapped_name, sizeof mapped_name, "%.120s or %.120s", argv[1], argv[2]);
    open_side(&d.a, argv[1]);
    open_side(&d.b, argv[2]);
    start_pool();
    pair_tensors(&d);
    compare_all(&d);
    check_sizes(&d.a);
    check_sizes(&d.b);
    bool same = d.counts[SAME] == d.n;
    if (patch && same)
        notice("no difference: no patch was written");
    else if (patch)
        write_patch(&d, patch);
    if (common.json)
        write_diff(&d);
    else
        print_diff(&d, all);
    threads_stop();
    free(d.pairs);
    checkpoint_close(&d.a);
    checkpoint_close(&d.b);
    return finish(EXIT_OK) != EXIT_OK ? EXIT_TROUBLE : same ? EXIT_OK : EXIT_FAILED;
}
