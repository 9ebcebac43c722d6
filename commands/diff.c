/* run diff: what differs between two checkpoints, files or sharded models in any combination. */
#include "base/threads.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "checkpoint/tensor.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_DIFFERENT = 1, EXIT_TROUBLE = 2 };

#define BLOCK 512               /* elements that are decoded at a time */
#define CHUNK (128 * BLOCK)     /* elements of a task; each task has its own sums, which are added in order */
#define BYTES ((size_t)4 << 20) /* bytes of a task that only looks whether they are equal */

/* ---- one pair of tensors ----------------------------------------------------------------------------------------- */

/* Sums over the elements of a and b, with d = b - a. They give the cosine distance by
 *     1 - cos(a, b) = (|d|^2 - (|b| - |a|)^2) / (2 |a| |b|)
 * which has digits left where the cosine is nearly 1. */
typedef struct {
    uint64_t elements, changed;  /* changed: in their bytes, or with different dtypes in their values */
    uint64_t not_finite;         /* changed ones that are NaN or infinite on a side, which the sums leave out */
    double max, sum, dd, aa, ad; /* the largest |d|; sums of |d|, d d, a a, a d */
    bool b_is_not_zero;          /* else |b|, as computed from these sums, would be their rounding error */
    uint64_t max_at;             /* the first element with the largest |d| */
} Difference;

typedef enum { SAME, CHANGED, RETYPED, RESHAPED, ONLY_A, ONLY_B } Status;
static const char *const status_names[] = {"equal", "changed", "dtype", "shape", "only in A", "only in B"};

typedef struct {
    const SafetensorsTensor *a;
    SafetensorsTensor b;
    Status status;
    bool compared; /* difference holds figures */
    Difference difference;
} Pair;

typedef struct {
    const SafetensorsTensor *a, *b;
    Difference *tasks; /* [task] */
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

/* Add n pairs of finite numbers. Pair i goes to lane i mod 4, so that additions need not wait for one another. */
static void add_sums(Difference *total, const double *a, const double *b, size_t n)
{
    double sum[4] = {0}, dd[4] = {0}, aa[4] = {0}, ad[4] = {0};
    bool any[4] = {false};
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++) {
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

/* Replace pairs that are not both finite by 0 and 0. Returns how many of them differ; two NaNs do not. */
static uint64_t set_aside(double *a, double *b, size_t n)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(a[i]) && isfinite(b[i]))
            continue;
        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i])))
            count++;
        a[i] = b[i] = 0;
    }
    return count;
}

/* Add to the number of elements that changed, and find the first with the largest |b - a|. */
static void add_changes(Difference *total, const Comparison *c, size_t at, size_t n, const double *a, const double *b)
{
    size_t parts = number_parts(c->a->dtype), size = dtype_bits(c->a->dtype) / 8;
    bool by_bytes = c->a->dtype == c->b->dtype;
    const unsigned char *x = safetensors_data(c->a) + at * size, *y = safetensors_data(c->b) + at * size;
    for (size_t i = 0; i < n * parts; i++) {
        double d = fabs(b[i] - a[i]);
        if (d > total->max) {
            total->max = d;
            total->max_at = at + i / parts;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (by_bytes ? memcmp(x + i * size, y + i * size, size) != 0 : a[i] != b[i])
            total->changed++;
}

static void compare_numbers(void *context, size_t begin, size_t end, int thread)
{
    const Comparison *c = context;
    double a[2 * BLOCK], b[2 * BLOCK];
    size_t size_a = dtype_bits(c->a->dtype) / 8, size_b = dtype_bits(c->b->dtype) / 8, n;
    size_t parts = number_parts(c->a->dtype);
    bool same_type = c->a->dtype == c->b->dtype;
    Difference *d = &c->tasks[begin / CHUNK];
    (void)thread;
    for (size_t at = begin; at < end; at += n) {
        n = MIN(end - at, BLOCK);
        const unsigned char *x = safetensors_data(c->a) + at * size_a, *y = safetensors_data(c->b) + at * size_b;
        number_decode(c->a->dtype, x, n, a);
        number_decode(c->b->dtype, y, n, b);
        uint64_t infinite = set_aside(a, b, n * parts);
        d->elements += n;
        if (!same_type || memcmp(x, y, n * size_a) != 0) {
            d->not_finite += infinite;
            d->changed += same_type ? 0 : infinite; /* these are equal now, and add_changes() does not see them */
            add_changes(d, c, at, n, a, b);
        }
        add_sums(d, a, b, n * parts);
    }
}

static Difference difference_of(const SafetensorsTensor *a, const SafetensorsTensor *b)
{
    size_t tasks = (size_t)(a->elements / CHUNK) + 1;
    Comparison c = {.a = a, .b = b, .tasks = xcalloc(tasks, sizeof *c.tasks)};
    Difference total = {0};
    threads_for((size_t)a->elements, CHUNK, compare_numbers, &c);
    for (size_t i = 0; i < tasks; i++)
        add_difference(&total, &c.tasks[i]);
    free(c.tasks);
    return total;
}

static double relative(const Difference *d)
{
    return d->dd == 0 ? 0 : sqrt(d->dd / d->aa);
}

/* 1 - cos(a, b); NaN if one of them is zero, and so has no direction. */
static double cosine_distance(const Difference *d)
{
    if (d->dd == 0)
        return 0;
    if (d->aa == 0 || !d->b_is_not_zero)
        return NAN;
    double bb = d->aa + 2 * d->ad + d->dd, a = sqrt(d->aa), b = sqrt(MAX(bb, 0));
    double longer = (2 * d->ad + d->dd) / (a + b); /* |b| - |a| */
    double distance = (d->dd - longer * longer) / (2 * a * b);
    return distance < 0 ? 0 : distance;
}

static double mean(const Difference *d)
{
    return d->elements ? d->sum / (double)d->elements : 0;
}

/* Compare two tensors of the same name, whose status is SAME so far. */
static void compare_pair(Pair *p)
{
    const SafetensorsTensor *a = p->a, *b = &p->b;
    if (!tensor_same_shape(a, b)) {
        p->status = RESHAPED;
        return;
    }
    if (a->dtype == b->dtype && equal_bytes(a, b))
        return;
    p->status = a->dtype == b->dtype ? CHANGED : RETYPED;
    p->compared =
        dtype_bits(a->dtype) >= 8 && dtype_bits(b->dtype) >= 8 && number_parts(a->dtype) == number_parts(b->dtype);
    if (p->compared)
        p->difference = difference_of(a, b);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef struct {
    Checkpoint a, b;
    Pair *pairs;
    size_t n, counts[ONLY_B + 1]; /* pairs, and how many of each status */
} Diff;

static void open_side(Checkpoint *c, const char *name)
{
    char err[512];
    die_if(checkpoint_open(c, name, false, err), err);
}

/* List A's tensors in its order, then those that only B has. */
static void pair_tensors(Diff *d)
{
    size_t n_a = checkpoint_tensor_count(&d->a), n_b = checkpoint_tensor_count(&d->b);
    SafetensorsTensor unused;
    d->pairs = xcalloc(n_a + n_b, sizeof *d->pairs);
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
    Progress p = {.what = "comparing", .total = model_bytes(&d->a)};
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
    printf("%s ", dtype_name(t->dtype));
    shape_print(stdout, t->shape, t->rank);
}

static void print_value(const SafetensorsTensor *t, uint64_t element)
{
    char text[64];
    fputs(number_text(t->dtype, safetensors_data(t) + element * (dtype_bits(t->dtype) / 8), text), stdout);
}

/* A ratio as text, "-" if it is not finite: what it divides by is zero then. */
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
               figure(text[1], cosine_distance(d)));
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

/* The differences of all tensors of a layer together. */
typedef struct {
    uint64_t layer;
    bool is_layer;
    size_t tensors, different;
    Difference total;
} Layer;

/* Sum the differences up by layer: fresh, [*n], first the tensors of no layer, then layer 0, 1, ... */
static Layer *sum_layers(const Diff *d, size_t *n)
{
    Layer *layers = xcalloc(d->n + 1, sizeof *layers);
    uint64_t most = 0, layer;
    for (size_t i = 0; i < d->n; i++)
        if (tensor_layer(named(&d->pairs[i]), &layer) && layer < d->n)
            most = MAX(most, layer + 1);
    *n = (size_t)most + 1;
    for (size_t i = 0; i < d->n; i++) {
        const Pair *p = &d->pairs[i];
        bool is_layer = tensor_layer(named(p), &layer) && layer < d->n;
        Layer *l = &layers[is_layer ? layer + 1 : 0];
        l->layer = layer;
        l->is_layer = is_layer;
        l->tensors++;
        l->different += p->status == SAME ? 0 : 1;
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
                   figure(text[1], cosine_distance(&l->total)));
    }
    free(layers);
}

static void print_diff(const Diff *d, bool all)
{
    const char *between = "";
    for (size_t i = 0; i < d->n; i++) {
        if (all || d->pairs[i].status != SAME)
            print_pair(&d->pairs[i]);
    }
    if (d->counts[SAME] < d->n)
        print_layers(d);
    if (all || d->counts[SAME] < d->n)
        putchar('\n');
    printf("%zu tensors: %s", d->n, d->n ? "" : "nothing to compare");
    for (size_t i = 0; i < COUNT_OF(status_names); i++) {
        if (d->counts[i]) {
            printf("%s%zu %s", between, d->counts[i], status_names[i]);
            between = ", ";
        }
    }
    putchar('\n');
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_figures(const Difference *d)
{
    printf(",\"elements\":%" PRIu64 ",\"changed\":%" PRIu64 ",\"not_finite\":%" PRIu64, d->elements, d->changed,
           d->not_finite);
    write_number(",\"max\":", d->max);
    write_number(",\"mean\":", mean(d));
    write_number(",\"relative\":", relative(d));
    write_number(",\"cosine\":", cosine_distance(d));
}

static void write_type(const char *side, const SafetensorsTensor *t)
{
    printf(",\"dtype_%s\":\"%s\",\"shape_%s\":", side, dtype_name(t->dtype), side);
    shape_print(stdout, t->shape, t->rank);
}

static void write_pair(const Pair *p)
{
    const SafetensorsTensor *t = named(p);
    write_string("{\"name\":", t->name, t->name_length);
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
    write_name("{\"a\":", d->a.argument);
    write_name(",\"b\":", d->b.argument);
    printf(",\"same\":%s,\"counts\":{", d->counts[SAME] == d->n ? "true" : "false");
    for (size_t i = 0; i < COUNT_OF(status_names); i++)
        printf("%s\"%s\":%zu", i ? "," : "", status_names[i], d->counts[i]);
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
    Progress p = {.what = "writing the patch", .total = 2 * model_bytes(&d->a)};
    prepare_writing();
    die_if(patch_write(&d->a, &d->b, path, tell_progress, &p, &size, err), err);
    progress_end();
    notice("%s: %" PRIu64 " bytes in %" PRIu64 " range%s of %" PRIu64 " tensor%s", path, size.bytes, size.ranges,
           plural(size.ranges), size.tensors, plural(size.tensors));
}

int cmd_diff(int argc, char **argv)
{
    const char *patch = NULL;
    bool all = false;
    const Option options[] = {
        {0, "patch", "FILE", OPTION_TEXT, &patch, "write the changes from A to B, for run edit --patch"},
        {0, "all", NULL, OPTION_FLAG, &all, "list equal tensors, too"},
        THREADS_OPTION,
        JSON_OPTION,
        {0},
    };
    exit_failed = EXIT_TROUBLE;
    options_parse(argc, argv, options, NULL,
                  "run diff base.safetensors tuned.safetensors\n"
                  "run diff base-model/ tuned-model/            # folders, sharded or not\n"
                  "run diff base.safetensors tuned.safetensors --patch tuned.patch\n"
                  "\n"
                  "Exit code: 0 all tensors are equal, 1 something differs, 2 trouble.\n");
    Diff d = {0};
    snprintf(mapped_name, sizeof mapped_name, "%.120s or %.120s", argv[1], argv[2]);
    open_side(&d.a, argv[1]);
    open_side(&d.b, argv[2]);
    session_start_pool();
    pair_tensors(&d);
    compare_all(&d);
    model_check_sizes(&d.a);
    model_check_sizes(&d.b);
    bool same = d.counts[SAME] == d.n;
    if (patch && same)
        notice("the checkpoints are equal: no patch was written");
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
    return finish(same ? EXIT_OK : EXIT_DIFFERENT);
}
