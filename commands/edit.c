/* run edit: changes numbers of a checkpoint in place. checkpoint_edit.c sees to it that nothing is lost. */
#include "base/threads.h"
#include "checkpoint/edit.h"
#include "checkpoint/mask.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "commands/slice.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK ((size_t)1 << 17) /* elements that are computed at a time */
#define SHOWN 8                 /* changes that are shown one by one */

typedef struct {
    const char *tensor, *slice, *set, *scale, *add, *from, *mask, *patch;
    bool dry, undo;
} EditArguments;

/* ---- new numbers ------------------------------------------------------------------------------------------------- */

/* What becomes of the elements of a chunk: an operation with a number, or another tensor's elements. */
typedef struct {
    Dtype dtype;
    NumberOperation operation;
    Number operand;
    const SafetensorsTensor *source; /* NULL: the operation */
    uint64_t position;               /* of the chunk's first element in the slice, and so in the source */
    unsigned char *elements;         /* [CHUNK] before, then after */
    uint32_t *table;                 /* [65536] what becomes of each 16-bit number; or NULL */
    _Atomic size_t failed;           /* the first element that cannot be written; SIZE_MAX: none */
} Change;

#define CODES   65536
#define REFUSED CODES /* in the table */

/* An operation on many numbers of 16 bits is done once for each value there is. */
static void make_table(Change *c, uint64_t elements)
{
    char err[512];
    if (c->source || dtype_bits(c->dtype) != 16 || elements < 2 * CODES)
        return;
    c->table = must(malloc(CODES * sizeof *c->table));
    for (uint32_t code = 0; code < CODES; code++) {
        unsigned char bytes[2] = {(unsigned char)code, (unsigned char)(code >> 8)};
        bool fits = number_apply(c->dtype, c->operation, &c->operand, bytes, err) == 0;
        c->table[code] = fits ? bytes[0] | (uint32_t)bytes[1] << 8 : REFUSED;
    }
}

static int change_element(const Change *c, size_t i, char err[512])
{
    size_t size = dtype_bits(c->dtype) / 8;
    unsigned char *element = c->elements + i * size;
    uint32_t code = c->table ? c->table[element[0] | (uint32_t)element[1] << 8] : REFUSED;
    if (code != REFUSED) {
        element[0] = (unsigned char)code;
        element[1] = (unsigned char)(code >> 8);
        return 0;
    }
    if (!c->source)
        return number_apply(c->dtype, c->operation, &c->operand, element, err);
    const unsigned char *from = safetensors_data(c->source) + (c->position + i) * (dtype_bits(c->source->dtype) / 8);
    if (c->source->dtype == c->dtype) {
        memcpy(element, from, size);
        return 0;
    }
    Number n = number_read(c->source->dtype, from);
    return number_write(c->dtype, element, &n, err);
}

static void change_elements(void *context, size_t begin, size_t end, int thread)
{
    Change *c = context;
    char err[512];
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        if (change_element(c, i, err) == 0)
            continue;
        size_t before = c->failed;
        while (i < before && !atomic_compare_exchange_weak(&c->failed, &before, i)) {}
        return;
    }
}

/* "tensor "NAME", element [3, 5]: why" */
static int refuse(const Slice *s, uint64_t position, const char *why, char err[512])
{
    SliceWalk w;
    uint64_t element, count;
    if (slice_walk(&w, s, position, err) != 0)
        return -1;
    slice_next(&w, &element, &count);
    slice_walk_end(&w);
    char *index = NULL, *name = escaped(s->tensor->name, s->tensor->name_length);
    size_t length;
    FILE *out = must(open_memstream(&index, &length));
    print_index(out, s->tensor, element);
    close_memory(out, &index);
    snprintf(err, 512, "tensor \"%.150s\", element %.80s: %.200s; nothing was changed", name, index, why);
    free(name);
    free(index);
    return -1;
}

/* The elements after the change, or the reason why one of them cannot be. */
static int change_chunk(Change *c, const Slice *s, size_t n, char err[512])
{
    char why[512];
    c->failed = SIZE_MAX;
    if (slice_gather(s, c->position, n, c->elements, err) != 0)
        return -1;
    threads_for(n, 1024, change_elements, c);
    if (c->failed == SIZE_MAX)
        return 0;
    change_element(c, c->failed, why);
    return refuse(s, c->position + c->failed, why, err);
}

/* ---- the plan of an edit ----------------------------------------------------------------------------------------- */

/* What changes, for the report. */
typedef struct {
    uint64_t elements, changed;
    size_t shown;
    uint64_t at[SHOWN]; /* the first changes: element, bytes before and after */
    unsigned char before[SHOWN][8], after[SHOWN][8];
} Report;

static void note_run(Report *r, const SafetensorsTensor *t, uint64_t first, const unsigned char *after, size_t n)
{
    size_t size = dtype_bits(t->dtype) / 8;
    const unsigned char *before = safetensors_data(t) + first * size;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(before + i * size, after + i * size, size) == 0)
            continue;
        r->changed++;
        if (r->shown == SHOWN)
            continue;
        r->at[r->shown] = first + i;
        memcpy(r->before[r->shown], before + i * size, size);
        memcpy(r->after[r->shown++], after + i * size, size);
    }
}

/* Brings n changed elements from `position` of the slice on to where they belong. */
static int note_chunk(Edit *e, const Slice *s, uint64_t position, const unsigned char *after, size_t n, Report *r,
                      char err[512])
{
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    SliceWalk w;
    uint64_t first, count;
    int status = slice_walk(&w, s, position, err);
    for (size_t done = 0; status == 0 && done < n && slice_next(&w, &first, &count); done += (size_t)count) {
        count = count < n - done ? count : n - done;
        note_run(r, s->tensor, first, after + done * size, (size_t)count);
        status = edit_bytes(e, s->tensor, first * size, after + done * size, (size_t)count * size, err);
    }
    slice_walk_end(&w);
    return status;
}

static int plan_change(Edit *e, const Slice *s, Change *c, Report *r, char err[512])
{
    Progress p = {.what = "computing", .total = s->elements};
    size_t n;
    int status = 0;
    c->dtype = s->tensor->dtype;
    c->elements = must(malloc(CHUNK * dtype_bits(c->dtype) / 8));
    r->elements = s->elements;
    make_table(c, s->elements);
    for (c->position = 0; status == 0 && !interrupted && c->position < s->elements; c->position += n) {
        n = s->elements - c->position < CHUNK ? (size_t)(s->elements - c->position) : CHUNK;
        status = change_chunk(c, s, n, err);
        if (status == 0)
            status = note_chunk(e, s, c->position, c->elements, n, r, err);
        tell_progress(&p, n);
    }
    progress_end();
    free(c->table);
    free(c->elements);
    return status;
}

/* ---- where numbers come from ------------------------------------------------------------------------------------- */

static Number operand(const char *text)
{
    Number n;
    char err[512];
    if (number_parse(&n, text, err) != 0)
        usage_error("%s", err);
    return n;
}

/* FILE2 or FILE2:NAME2. */
static SafetensorsTensor open_source(Checkpoint *c, const char *from, const char *name)
{
    struct stat info;
    char *path = must(strdup(from)), *colon = strrchr(path, ':');
    if (stat(path, &info) != 0 && colon) {
        *colon = '\0';
        name = from + (colon - path) + 1;
    }
    open_checkpoint(c, path);
    free(path);
    return find_tensor(c, name);
}

static void die_of_shape(const Slice *s, const SafetensorsTensor *source)
{
    char have[SHAPE_TEXT], want[SHAPE_TEXT], from[TEXT_PRINTABLE], to[TEXT_PRINTABLE];
    uint64_t *shape = must(malloc((slice_rank(s) + 1) * sizeof *shape));
    for (size_t i = 0; i < slice_rank(s); i++)
        shape[i] = slice_size(s, i);
    die(EXIT_FAILED, "--from: tensor \"%s\" is %s, what it shall replace of \"%s\" is %s",
        text_printable(source->name, source->name_length, from),
        shape_text(source->shape, source->rank, have),
        text_printable(s->tensor->name, s->tensor->name_length, to),
        shape_text(shape, slice_rank(s), want));
}

static void check_source(const Slice *s, const SafetensorsTensor *source)
{
    bool fits = slice_rank(s) == source->rank;
    for (size_t i = 0; fits && i < source->rank; i++)
        fits = slice_size(s, i) == source->shape[i];
    if (!fits)
        die_of_shape(s, source);
    if (dtype_bits(source->dtype) < 8 || (source->dtype == DTYPE_C64 && s->tensor->dtype != DTYPE_C64))
        die(EXIT_FAILED, "--from: numbers of %s do not become %s", dtype_name(source->dtype),
            dtype_name(s->tensor->dtype));
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static void print_changes(const SafetensorsTensor *t, const Report *r)
{
    for (size_t i = 0; i < r->shown; i++) {
        char before[64], after[64];
        printf("  ");
        print_index(stdout, t, r->at[i]);
        printf("  %s -> %s\n", number_text(t->dtype, r->before[i], before), number_text(t->dtype, r->after[i], after));
    }
    if (r->changed > r->shown)
        printf("  ... and %" PRIu64 " more\n", r->changed - r->shown);
}

static void print_edit(const Edit *e, const char *file, const char *what, uint64_t count, bool dry)
{
    if (common.json) {
        printf("{\"file\":");
        json_write_string(stdout, file, strlen(file));
        printf(",\"%s\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"ranges\":%" PRIu64 ",\"dry_run\":%s}\n", what, count,
               e->bytes, e->ranges, dry ? "true" : "false");
    } else if (e->ranges == 0) {
        printf("nothing %s: all of it is so already\n", dry ? "would change" : "changed");
    } else {
        printf("%s: %" PRIu64 ", %" PRIu64 " byte%s in %" PRIu64 " range%s %s\n", what, count, e->bytes,
               e->bytes == 1 ? "" : "s", e->ranges, e->ranges == 1 ? "" : "s", dry ? "would change" : "changed");
    }
    if (!dry && e->ranges)
        notice("run edit %s --undo brings the old bytes back", file);
}

/* Ends the program if there is an error; else makes the changes. */
static void commit(Edit *e, int status, bool dry, char err[512])
{
    if (status == 0 && interrupted) {
        snprintf(err, 512, "interrupted; nothing was changed");
        status = -1;
    }
    if (status == 0 && !dry)
        status = edit_commit(e, err);
    if (status != 0) {
        edit_end(e);
        die(interrupted ? EXIT_INTERRUPTED : EXIT_FAILED, "%s", err);
    }
}

/* The hub's cache is read only: a blob is the file of every snapshot that links to it, and is named by its hash; where
 * there are no links, snapshots hold the files. */
static void refuse_cache(const Checkpoint *c)
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        char *real = realpath(checkpoint_file(c, i)->path, NULL);
        if (real && (strstr(real, "/blobs/") || (strstr(real, "/models--") && strstr(real, "/snapshots/"))))
            die(EXIT_FAILED, "%s belongs to the Hugging Face cache, which is only read; edit a copy", real);
        free(real);
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void edit_numbers(Checkpoint *c, const EditArguments *a)
{
    char err[512];
    Checkpoint other = {0};
    SafetensorsTensor t = find_tensor(c, a->tensor), source;
    const SafetensorsTensor *only = &t;
    const char *text = a->set ? a->set : a->scale ? a->scale : a->add;
    Change change = {.operation = a->set ? NUMBER_SET : a->scale ? NUMBER_SCALE : NUMBER_ADD};
    Slice s;
    Edit e;
    Report r = {0};
    parse_slice(&s, a->slice, &t);
    if (a->from) {
        source = open_source(&other, a->from, a->tensor);
        check_source(&s, &source);
        change.source = &source;
    } else {
        change.operand = operand(text);
    }
    int status = edit_begin(&e, &only, 1, a->dry, err);
    if (status == 0)
        status = plan_change(&e, &s, &change, &r, err);
    commit(&e, status, a->dry, err);
    if (!common.json) {
        print_tensor(&t);
        print_changes(&t, &r);
    }
    print_edit(&e, c->argument, "numbers", r.changed, a->dry);
    edit_end(&e);
    slice_free(&s);
    checkpoint_close(&other);
}

static void edit_by_mask(Checkpoint *c, const EditArguments *a)
{
    Checkpoint mask;
    Edit e = {0};
    char err[512];
    uint64_t zeroed;
    open_checkpoint(&mask, a->mask);
    commit(&e, mask_apply(&e, c, &mask, a->dry, &zeroed, err), a->dry, err);
    print_edit(&e, c->argument, "weights set to zero", zeroed, a->dry);
    edit_end(&e);
    checkpoint_close(&mask);
}

static void edit_by_patch(Checkpoint *c, const EditArguments *a)
{
    Checkpoint patch;
    Edit e = {0};
    char err[512];
    Progress p = {.what = "checking"};
    open_checkpoint(&patch, a->patch);
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++)
        p.total += checkpoint_tensor(c, i)->length;
    commit(&e, patch_apply(&e, c, &patch, a->dry, tell_progress, &p, err), a->dry, err);
    progress_end();
    print_edit(&e, c->argument, "tensors", checkpoint_tensor_count(&patch) / 2, a->dry);
    edit_end(&e);
    checkpoint_close(&patch);
}

static void undo(const Checkpoint *c)
{
    size_t files;
    char err[512];
    if (edit_undo(c, &files, err) != 0)
        die(EXIT_FAILED, "%s", err);
    if (common.json)
        printf("{\"undone_files\":%zu}\n", files);
    else
        printf("undone: %zu file%s as before the last edit\n", files, files == 1 ? "" : "s");
}

/* Mapped, whatever the options say, and without a word on an interrupted edit: that is told by what comes next. */
static void open_for_edit(Checkpoint *c, const char *path)
{
    char err[512];
    snprintf(mapped_name, sizeof mapped_name, "%s", path);
    if (checkpoint_open(c, path, false, err) != 0)
        die(EXIT_FAILED, "%s", err);
}

static EditArguments parse_edit(int argc, char **argv)
{
    static EditArguments a;
    const Option options[] = {
        {0, "tensor", "NAME", OPTION_TEXT, &a.tensor, "the tensor to change"},
        {0, "slice", "SPEC", OPTION_TEXT, &a.slice, "only these numbers of it, as in NumPy: 0:128  :,5  -1"},
        {0, "set", "V", OPTION_TEXT, &a.set, "they become V"},
        {0, "scale", "V", OPTION_TEXT, &a.scale, "they are multiplied by V"},
        {0, "add", "V", OPTION_TEXT, &a.add, "V is added"},
        {0, "from", "FILE2[:NAME2]", OPTION_TEXT, &a.from, "they become the numbers of this tensor, of the same shape"},
        {0, "mask", "FILE2", OPTION_TEXT, &a.mask,
         "zero every weight whose mask is 0, of all tensors that FILE2 names: BOOL, U8, or U8 with "
         "a bit each, lowest first"},
        {0, "patch", "FILE", OPTION_TEXT, &a.patch, "apply what run diff --patch wrote"},
        {0, "undo", NULL, OPTION_FLAG, &a.undo,
         "bring back what was before the last edit, or before one that was interrupted"},
        {0, "dry-run", NULL, OPTION_FLAG, &a.dry, "show what would change, and change nothing"},
        {'t', "threads", "N", OPTION_COUNT, &common.threads, "default: the cores that this process may use"},
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(
        argc, argv, options, false,
        "run edit FILE --tensor NAME [--slice SPEC] --set V | --scale V | --add V | --from FILE2[:NAME2]\n"
        "run edit FILE --mask FILE2\nrun edit FILE --patch FILE2\nrun edit FILE --undo",
        "run edit model.safetensors --tensor model.norm.weight --scale 1.01 --dry-run\n"
        "run edit model/ --tensor lm_head.weight --slice 151808: --set 0\n"
        "run edit model/ --undo\n"
        "\n"
        "Numbers are rounded once, to nearest; what the tensor's type cannot hold is refused. FILE.undo keeps the\n"
        "bytes before the last edit.\n");
    arguments_at_most(count, 1, argv);
    if (count < 1)
        usage_error("name the checkpoint");
    size_t numbers = (size_t)(a.set != NULL) + (a.scale != NULL) + (a.add != NULL) + (a.from != NULL);
    if (numbers + (a.mask != NULL) + (a.patch != NULL) + a.undo != 1)
        usage_error("one of --set, --scale, --add, --from, --mask, --patch, --undo");
    if (numbers ? !a.tensor : a.tensor || a.slice)
        usage_error(numbers ? "which tensor? --tensor NAME"
                            : "--mask, --patch and --undo go without --tensor and --slice");
    if (a.undo && a.dry)
        usage_error("--undo and --dry-run: give one of them");
    return a;
}

int cmd_edit(int argc, char **argv)
{
    EditArguments a = parse_edit(argc, argv);
    Checkpoint c;
    prepare_writing(); /* from here on Ctrl-C ends the work before the first change, or waits until all is done */
    open_for_edit(&c, argv[1]);
    start_pool();
    if (!a.dry && !a.undo)
        refuse_cache(&c);
    if (a.undo)
        undo(&c);
    else if (a.mask)
        edit_by_mask(&c, &a);
    else if (a.patch)
        edit_by_patch(&c, &a);
    else
        edit_numbers(&c, &a);
    threads_stop();
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
