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
static const char *const status_keys[] = {"equal", "changed", "dtype", "shape", "only_in_a", "only_in_b"}; /* in JSON */

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

/* Add n finite pairs a and b = a + d. Pair i goes to lane i mod 4, so that additions need not wait for one another. */
static void add_sums(Difference *total, const double *a, const double *b, const double *difference, size_t n)
{
    double sum[4] = {0}, dd[4] = {0}, aa[4] = {0}, ad[4] = {0};
    bool any[4] = {false};
    for (size_t i = 0; i < n; i += 4) {
        for (size_t j = 0; j < MIN(n - i, 4); j++) {
            double x = a[i + j], d = difference[i + j];
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

/* Find the first element with the largest |d|; difference[0] belongs to element `at`. */
static void find_maximum(Difference *total, const double *difference, size_t n, size_t at, size_t parts)
{
    for (size_t i = 0; i < n * parts; i++) {
        double d = fabs(difference[i]);
        if (d > total->max) {
            total->max = d;
            total->max_at = at + i / parts;
        }
    }
}

static bool is_long_integer(Dtype dtype)
{
    return dtype == DTYPE_I64 || dtype == DTYPE_U64;
}

/* b - a, where one of them is an integer of 64 bits, which its double may not be. */
static double long_difference(const SafetensorsTensor *a, const unsigned char *x, const SafetensorsTensor *b,
                              const unsigned char *y)
{
    Number from = number_read(a->dtype, x), to = number_read(b->dtype, y);
    if (!from.whole || !to.whole)
        return to.value - from.value;
    if (from.negative != to.negative)
        return (to.negative ? -1 : 1) * ((double)from.magnitude + (double)to.magnitude);
    bool grows = to.magnitude >= from.magnitude;
    double size = (double)(grows ? to.magnitude - from.magnitude : from.magnitude - to.magnitude);
    return grows == to.negative ? -size : size;
}

static void compare_numbers(void *context, size_t begin, size_t end, int thread)
{
    const Comparison *c = context;
    double a[2 * BLOCK], b[2 * BLOCK], difference[2 * BLOCK];
    size_t size_a = dtype_bits(c->a->dtype) / 8, size_b = dtype_bits(c->b->dtype) / 8, n;
    size_t parts = number_parts(c->a->dtype);
    bool same_type = c->a->dtype == c->b->dtype, exact = is_long_integer(c->a->dtype) || is_long_integer(c->b->dtype);
    Difference *d = &c->tasks[begin / CHUNK];
    (void)thread;
    for (size_t at = begin; at < end; at += n) {
        n = MIN(end - at, BLOCK);
        const unsigned char *x = safetensors_data(c->a) + at * size_a, *y = safetensors_data(c->b) + at * size_b;
        number_decode(c->a->dtype, x, n, a);
        number_decode(c->b->dtype, y, n, b);
        uint64_t infinite = set_aside(a, b, n * parts);
        for (size_t i = 0; i < n * parts; i++)
            difference[i] = b[i] - a[i];
        for (size_t i = 0; exact && i < n; i++)
            if (a[i] != 0 || b[i] != 0) /* not set aside */
                difference[i] = long_difference(c->a, x + i * size_a, c->b, y + i * size_b);
        d->elements += n;
        if (!same_type || memcmp(x, y, n * size_a) != 0) {
            d->not_finite += infinite;
            d->changed += same_type ? 0 : infinite; /* these are equal now, and the loop does not see them */
            for (size_t i = 0; i < n; i++)
                if (same_type ? memcmp(x + i * size_a, y + i * size_a, size_a) != 0 : difference[i] != 0)
                    d->changed++;
            find_maximum(d, difference, n, at, parts);
        }
        add_sums(d, a, b, difference, n * parts);
    }
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
    Comparison c = {.a = a, .b = b};
    if (!tensor_same_shape(a, b)) {
        p->status = RESHAPED;
        return;
    }
    if (a->dtype == b->dtype)
        threads_for((size_t)a->length, BYTES, compare_bytes, &c);
    if (a->dtype == b->dtype && !c.different)
        return;
    p->status = a->dtype == b->dtype ? CHANGED : RETYPED;
    p->compared =
        dtype_bits(a->dtype) >= 8 && dtype_bits(b->dtype) >= 8 && number_parts(a->dtype) == number_parts(b->dtype);
    if (!p->compared)
        return;
    size_t tasks = (size_t)(a->elements / CHUNK) + 1;
    c.tasks = xcalloc(tasks, sizeof *c.tasks);
    threads_for((size_t)a->elements, CHUNK, compare_numbers, &c);
    for (size_t i = 0; i < tasks; i++)
        add_difference(&p->difference, &c.tasks[i]);
    free(c.tasks);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef struct {
    Checkpoint a, b;
    Pair *pairs;
    size_t n, counts[ONLY_B + 1]; /* pairs, and how many of each status */
} Diff;

/* List and compare A's tensors in its order, then list those that only B has. */
static void compare_all(Diff *d)
{
    size_t n_a = checkpoint_tensor_count(&d->a), n_b = checkpoint_tensor_count(&d->b);
    Progress progress = {.what = "comparing", .total = model_bytes(&d->a)};
    SafetensorsTensor unused;
    d->pairs = xcalloc(n_a + n_b, sizeof *d->pairs);
    for (size_t i = 0; i < n_a; i++) {
        Pair *p = &d->pairs[d->n++];
        p->a = checkpoint_tensor(&d->a, i);
        if (safetensors_find_n(&d->b.st, p->a->name, p->a->name_length, &p->b) != 0)
            p->status = ONLY_A;
        else
            compare_pair(p);
        tell_progress(&progress, p->a->length);
    }
    progress_end();
    for (size_t i = 0; i < n_b; i++) {
        const SafetensorsTensor *b = checkpoint_tensor(&d->b, i);
        if (safetensors_find_n(&d->a.st, b->name, b->name_length, &unused) != 0)
            d->pairs[d->n++] = (Pair){.b = *b, .status = ONLY_B};
    }
    for (size_t i = 0; i < d->n; i++)
        d->counts[d->pairs[i].status]++;
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

static const char *value_text(const SafetensorsTensor *t, uint64_t element, char out[64])
{
    return number_text(t->dtype, safetensors_data(t) + element * (dtype_bits(t->dtype) / 8), out);
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
    char a[64], b[64];
    printf("    %" PRIu64 " of %" PRIu64 " changed (%.3g%%)", d->changed, d->elements,
           d->elements ? 100 * (double)d->changed / (double)d->elements : 0);
    if (d->not_finite)
        printf(", %" PRIu64 " with NaN or infinity", d->not_finite);
    if (d->max > 0) {
        printf("   max %.6g at ", d->max);
        print_index(stdout, p->a, d->max_at);
        printf(": %s -> %s", value_text(p->a, d->max_at, a), value_text(&p->b, d->max_at, b));
        printf("\n    mean %.6g   relative %s   1-cosine %s", mean(d), figure(a, relative(d)),
               figure(b, cosine_distance(d)));
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
    size_t tensors, different;
    Difference total;
} Layer;

/* Sum the differences up by layer: fresh, [d->n + 1], first the tensors of no layer, then layer 0, 1, ... */
static Layer *sum_layers(const Diff *d)
{
    Layer *layers = xcalloc(d->n + 1, sizeof *layers);
    for (size_t i = 0; i < d->n; i++) {
        const Pair *p = &d->pairs[i];
        uint64_t layer;
        bool in_layer = tensor_layer(named(p), &layer) && layer < d->n;
        Layer *l = &layers[in_layer ? layer + 1 : 0];
        l->tensors++;
        l->different += p->status == SAME ? 0 : 1;
        add_difference(&l->total, &p->difference);
    }
    return layers;
}

/* The name of layers[i]; `others` is that of the first. */
static const char *layer_name(size_t i, const char *others, char out[32])
{
    snprintf(out, 32, "%zu", i - 1);
    return i ? out : others;
}

static void print_layers(const Diff *d)
{
    Layer *layers = sum_layers(d);
    char name[32], text[2][32];
    printf("\n%-8s %10s %10s %14s %12s %12s %12s\n", "layer", "tensors", "different", "elements", "max", "relative",
           "1-cosine");
    for (size_t i = 0; i <= d->n; i++) {
        const Layer *l = &layers[i];
        if (l->different)
            printf("%-8s %10zu %10zu %14" PRIu64 " %12.6g %12s %12s\n", layer_name(i, "others", name), l->tensors,
                   l->different, l->total.changed, l->total.max, figure(text[0], relative(&l->total)),
                   figure(text[1], cosine_distance(&l->total)));
    }
    free(layers);
}

static void print_diff(const Diff *d, bool all)
{
    const char *between = "";
    bool same = d->counts[SAME] == d->n;
    for (size_t i = 0; i < d->n; i++)
        if (all || d->pairs[i].status != SAME)
            print_pair(&d->pairs[i]);
    if (!same)
        print_layers(d);
    printf("%s%zu tensors: %s", all || !same ? "\n" : "", d->n, d->n ? "" : "nothing to compare");
    for (size_t i = 0; i < COUNT_OF(status_names); i++)
        if (d->counts[i]) {
            printf("%s%zu %s", between, d->counts[i], status_names[i]);
            between = ", ";
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
    printf(",\"status\":\"%s\"", status_keys[p->status]);
    if (p->status != ONLY_B)
        write_type("a", p->a);
    if (p->status != ONLY_A)
        write_type("b", &p->b);
    if (p->compared) {
        write_figures(&p->difference);
        printf(p->difference.max > 0 ? ",\"max_at\":" : ",\"max_at\":null");
        if (p->difference.max > 0)
            print_index(stdout, p->a, p->difference.max_at);
    }
    putchar('}');
}

static void write_diff(const Diff *d)
{
    Layer *layers = sum_layers(d);
    const char *between = "";
    char name[32];
    write_name("{\"a\":", d->a.argument);
    write_name(",\"b\":", d->b.argument);
    printf(",\"same\":%s,\"counts\":{", d->counts[SAME] == d->n ? "true" : "false");
    for (size_t i = 0; i < COUNT_OF(status_names); i++)
        printf("%s\"%s\":%zu", i ? "," : "", status_keys[i], d->counts[i]);
    printf("},\"tensors\":[");
    for (size_t i = 0; i < d->n; i++) {
        printf(i ? ",\n" : "\n");
        write_pair(&d->pairs[i]);
    }
    printf("],\"layers\":[");
    for (size_t i = 0; i <= d->n; i++) {
        const Layer *l = &layers[i];
        if (!l->tensors)
            continue;
        printf("%s\n{\"layer\":%s,\"tensors\":%zu,\"different\":%zu", between, layer_name(i, "null", name), l->tensors,
               l->different);
        write_figures(&l->total);
        putchar('}');
        between = ",";
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
    die_if(patch_write(&d->a, &d->b, path, common.force, tell_progress, &p, &size, err), err);
    progress_end();
    notice("%s: %" PRIu64 " bytes in %" PRIu64 " range%s of %" PRIu64 " tensor%s", path, size.bytes, size.ranges,
           plural(size.ranges), size.tensors, plural(size.tensors));
}

int cmd_diff(int argc, char **argv)
{
    const char *patch = NULL;
    char err[512];
    bool all = false;
    const Option options[] = {
        {0, "patch", "FILE", OPTION_TEXT, &patch, "write the changes from A to B, for run edit --patch"},
        FORCE_OPTION,
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
    char both[256];
    snprintf(both, sizeof both, "%.60s or %.60s", argv[1], argv[2]);
    text_printable(both, strlen(both), mapped_name);
    die_if(checkpoint_open(&d.a, argv[1], false, err), err);
    die_if(checkpoint_open(&d.b, argv[2], false, err), err);
    session_start_pool();
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
