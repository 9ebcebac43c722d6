/* run edit: changes numbers of a checkpoint in place. checkpoint/edit.c makes sure that nothing is lost. */
#include "base/threads.h"
#include "checkpoint/edit.h"
#include "checkpoint/mask.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "checkpoint/undo.h"
#include "commands/model.h"
#include "commands/options.h"
#include "commands/output.h"
#include "commands/session.h"
#include "commands/terminal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)1 << 17) /* elements that are computed at a time */
#define SHOWN 8                 /* how many changes are shown one by one */

typedef struct {
    const char *tensor, *slice, *from, *mask, *patch;
    const char *operands[NUMBER_ADD + 1]; /* [NumberOperation] of --set, --scale and --add */
    bool dry, undo;
} EditArguments;

/* ---- new numbers ------------------------------------------------------------------------------------------------- */

/* How the elements of a chunk change: by an operation with a number, or into another tensor's elements. */
typedef struct {
    Dtype dtype;
    NumberOperation operation;
    Number operand;
    const SafetensorsTensor *source; /* NULL: the operation */
    uint64_t position;               /* of the chunk's first element in the slice, and so in the source */
    unsigned char *elements;         /* [CHUNK] before, then after */
    uint32_t *table;                 /* [CODES] what each 16-bit number becomes; or NULL */
    _Atomic size_t failed;           /* the first element that cannot be written; SIZE_MAX: none */
} Change;

#define CODES 65536
#define REFUSED CODES /* in the table: the result does not fit the type */

/* Where there are many 16-bit numbers, compute what each of the 65,536 values becomes: six times as fast. */
static void make_table(Change *c, uint64_t elements)
{
    char err[512];
    if (c->source || dtype_bits(c->dtype) != 16 || elements < 2 * CODES)
        return;
    c->table = xmalloc(CODES * sizeof *c->table);
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

/* Compute the elements of a chunk after the change. Fails with the reason why one of them cannot be changed. */
static int change_chunk(Change *c, const Slice *s, size_t n, char err[512])
{
    char why[512], name[TEXT_PRINTABLE], *index;
    size_t length;
    c->failed = SIZE_MAX;
    if (slice_gather(s, c->position, n, c->elements, err) != 0)
        return -1;
    threads_for(n, 1024, change_elements, c);
    if (c->failed == SIZE_MAX)
        return 0;
    change_element(c, c->failed, why);
    FILE *out = xopen_memory(&index, &length);
    print_index(out, s->tensor, model_slice_element(s, c->position + c->failed));
    xclose_memory(out, &index);
    fail(err, "tensor \"%s\", element %.80s: %.200s; nothing was changed",
         text_printable(s->tensor->name, s->tensor->name_length, name), index, why);
    free(index);
    return -1;
}

/* ---- the plan of an edit ----------------------------------------------------------------------------------------- */

/* What changes, for the report. */
typedef struct {
    uint64_t changed;
    struct {
        uint64_t element;
        unsigned char before[8], after[8];
    } first[SHOWN];
} Report;

static void note_run(Report *r, const SafetensorsTensor *t, uint64_t first, const unsigned char *after, size_t n)
{
    size_t size = dtype_bits(t->dtype) / 8;
    const unsigned char *before = safetensors_data(t) + first * size;
    for (size_t i = 0; i < n; i++, before += size, after += size) {
        if (memcmp(before, after, size) == 0)
            continue;
        if (r->changed < SHOWN) {
            r->first[r->changed].element = first + i;
            memcpy(r->first[r->changed].before, before, size);
            memcpy(r->first[r->changed].after, after, size);
        }
        r->changed++;
    }
}

/* Enter the n elements from `position` of the slice on into the edit and the report. */
static int note_chunk(Edit *e, const Slice *s, uint64_t position, const unsigned char *after, size_t n, Report *r,
                      char err[512])
{
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    SliceWalk w;
    uint64_t first, count;
    int status = slice_walk(&w, s, position, err);
    for (size_t done = 0; status == 0 && done < n && slice_next(&w, &first, &count); done += (size_t)count) {
        count = MIN(count, n - done);
        note_run(r, s->tensor, first, after + done * size, (size_t)count);
        status = edit_bytes(e, s->tensor, first * size, after + done * size, (size_t)count * size, err);
    }
    slice_walk_end(&w);
    return status;
}

static int plan_change(Edit *e, const Slice *s, Change *c, Report *r, char err[512])
{
    Progress p = {.what = "computing", .total = s->elements};
    int status = 0;
    size_t n;
    c->dtype = s->tensor->dtype;
    c->elements = xmalloc(CHUNK * dtype_bits(c->dtype) / 8);
    make_table(c, s->elements);
    for (; status == 0 && c->position < s->elements && !interrupted; c->position += n) {
        n = (size_t)MIN(s->elements - c->position, CHUNK);
        if (change_chunk(c, s, n, err) != 0 || note_chunk(e, s, c->position, c->elements, n, r, err) != 0)
            status = -1;
        tell_progress(&p, n);
    }
    progress_end();
    free(c->table);
    free(c->elements);
    return status;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void print_changes(const SafetensorsTensor *t, const Report *r)
{
    char before[64], after[64];
    for (size_t i = 0; i < MIN(r->changed, SHOWN); i++) {
        printf("  ");
        print_index(stdout, t, r->first[i].element);
        printf("  %s -> %s\n", number_text(t->dtype, r->first[i].before, before),
               number_text(t->dtype, r->first[i].after, after));
    }
    if (r->changed > SHOWN)
        printf("  ... and %" PRIu64 " more\n", r->changed - SHOWN);
}

/* Report how many things changed: noun is what text calls one of them, key what JSON calls all. */
static void print_edit(const Edit *e, const char *file, const char *key, const char *noun, uint64_t count)
{
    char word[TEXT_QUOTED];
    if (common.json) {
        write_name("{\"file\":", file);
        printf(",\"%s\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"ranges\":%" PRIu64 ",\"dry_run\":%s}\n", key, count,
               e->bytes, e->ranges, e->dry ? "true" : "false");
    } else if (e->ranges == 0) {
        printf("nothing to change: the new bytes are the old ones\n");
    } else {
        printf("%s %" PRIu64 " %s%s: %" PRIu64 " byte%s in %" PRIu64 " range%s\n", e->dry ? "would change" : "changed",
               count, noun, plural(count), e->bytes, plural(e->bytes), e->ranges, plural(e->ranges));
    }
    if (!e->dry && e->ranges)
        notice("the old bytes can be restored: run edit %s --undo", text_quoted(file, word));
    if (!e->dry && e->ranges && e->links > 1)
        warn("the file has %zu names, and changed under each; --undo finds its journal under those in its folder only",
             e->links);
}

/* Make the changes, unless status says that planning them failed with err. Ends the program on failure. */
static void commit(Edit *e, int status, char err[512])
{
    if (status == 0 && interrupted)
        status = fail(err, "interrupted; nothing was changed");
    if (status == 0 && !e->dry)
        status = edit_commit(e, err);
    if (status != 0)
        edit_end(e);
    die_if(status != 0, err);
}

/* Whether a path leads through .../models--ORG--NAME/blobs/... or .../models--ORG--NAME/snapshots/... */
static bool is_in_cache(const char *path)
{
    for (const char *at = path; (at = strstr(at, "/models--"));) {
        const char *below = strchr(++at, '/');
        if (below && (!strncmp(below, "/blobs/", 7) || !strncmp(below, "/snapshots/", 11)))
            return true;
    }
    return false;
}

/* The hub's cache must not be changed: a blob is named by its hash, and is the file of every snapshot that links to it.
 * Where there are no links, snapshots hold the files. */
static void refuse_cache(const Checkpoint *c)
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        char *real = realpath(checkpoint_file(c, i)->path, NULL);
        if (real && is_in_cache(real))
            die(EXIT_FAILED, "%s is in the Hugging Face cache, which must not be changed: edit a copy", real);
        free(real);
    }
}

/* Open a file that the edit reads, and keep other edits off it. What is edited itself will be locked anyway. */
static void open_other(Checkpoint *other, const char *path, const Checkpoint *edited)
{
    char err[512];
    bool same = false;
    if (!file_exists(path))
        die(EXIT_FAILED, "%s: %s", path, strerror(ENOENT));
    model_open(other, path);
    for (size_t i = 0; i < checkpoint_file_count(edited); i++)
        same = same || file_same(checkpoint_file(edited, i)->path, checkpoint_file(other, 0)->path);
    die_if(!same && edit_keep_off(other, err), err);
}

/* ---- where numbers come from ------------------------------------------------------------------------------------- */

/* Open --from FILE2 or FILE2:NAME2 and find its tensor, which without NAME2 is `name`. */
static SafetensorsTensor open_source(Checkpoint *c, const Checkpoint *edited, const char *from, const char *name)
{
    char *path = xstrdup(from), *colon = strrchr(path, ':');
    if (!file_exists(path) && colon) {
        *colon = '\0';
        name = from + (colon - path) + 1;
    }
    open_other(c, path, edited);
    free(path);
    return model_tensor(c, name);
}

static void check_source(const Slice *s, const SafetensorsTensor *source)
{
    size_t rank = slice_rank(s);
    uint64_t *shape = model_slice_shape(s);
    if (rank != source->rank || memcmp(shape, source->shape, rank * sizeof *shape) != 0) {
        char have[SHAPE_TEXT], want[SHAPE_TEXT], from[TEXT_PRINTABLE], to[TEXT_PRINTABLE];
        die(EXIT_FAILED, "--from: tensor \"%s\" has the shape %s, but the part of \"%s\" to be changed has %s",
            text_printable(source->name, source->name_length, from), shape_text(source->shape, source->rank, have),
            text_printable(s->tensor->name, s->tensor->name_length, to), shape_text(shape, rank, want));
    }
    free(shape);
    if (dtype_bits(source->dtype) < 8 || (source->dtype == DTYPE_C64 && s->tensor->dtype != DTYPE_C64))
        die(EXIT_FAILED, "--from: %s numbers cannot be converted to %s", dtype_name(source->dtype),
            dtype_name(s->tensor->dtype));
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* The tensors to change: the one of that name, or all that match. Fresh; *n of them. */
static const SafetensorsTensor **find_tensors(Checkpoint *c, const char *name, size_t *n)
{
    const SafetensorsTensor **list = xcalloc(checkpoint_tensor_count(c) + 1, sizeof *list);
    SafetensorsTensor exact;
    bool is_name = safetensors_find(&c->st, name, &exact) == 0;
    *n = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        bool wanted = is_name ? text_same(t->name, t->name_length, name, strlen(name))
                              : name_matches(name, t->name, t->name_length);
        if (wanted)
            list[(*n)++] = t;
    }
    if (*n == 0)
        model_tensor(c, name); /* dies, with the nearest name */
    return list;
}

/* What the options say, as the change of every element. */
static Change parse_change(const EditArguments *a)
{
    Change change = {0};
    char err[512];
    for (size_t i = 0; i < COUNT_OF(a->operands); i++) {
        if (!a->operands[i])
            continue;
        change.operation = (NumberOperation)i;
        if (number_parse(&change.operand, a->operands[i], err) != 0)
            usage_error("%s", err);
    }
    return change;
}

static void edit_numbers(Checkpoint *c, const EditArguments *a)
{
    char err[512];
    Checkpoint other = {0};
    size_t n;
    const SafetensorsTensor **tensors = find_tensors(c, a->tensor, &n);
    SafetensorsTensor source;
    Change change = parse_change(a);
    Slice *slices = xcalloc(n, sizeof *slices);
    Report *reports = xcalloc(n, sizeof *reports);
    Edit e = {.dry = a->dry, .force = common.force};
    uint64_t changed = 0;
    if (a->from) {
        if (n > 1)
            die(EXIT_FAILED, "--from copies one tensor, but %zu match \"%s\"", n, a->tensor);
        source = open_source(&other, c, a->from, a->tensor);
        change.source = &source;
    }
    for (size_t i = 0; i < n; i++) {
        die_if(slice_parse(&slices[i], a->slice, tensors[i], err), err);
        if (a->from)
            check_source(&slices[i], &source);
    }
    int status = edit_begin(&e, tensors, n, err);
    for (size_t i = 0; i < n && status == 0; i++) {
        change.position = 0;
        status = plan_change(&e, &slices[i], &change, &reports[i], err);
        changed += reports[i].changed;
    }
    commit(&e, status, err);
    for (size_t i = 0; i < n && !common.json; i++) {
        print_tensor(tensors[i]);
        print_changes(tensors[i], &reports[i]);
    }
    print_edit(&e, c->argument, "numbers", "number", changed);
    edit_end(&e);
    for (size_t i = 0; i < n; i++)
        slice_free(&slices[i]);
    free(slices);
    free(reports);
    free(tensors);
    checkpoint_close(&other);
}

/* Change what a mask or a patch says. */
static void edit_by_file(Checkpoint *c, const EditArguments *a)
{
    Checkpoint file;
    Edit e = {.dry = a->dry, .force = common.force};
    char err[512];
    Progress p = {.what = "checking", .total = model_bytes(c)};
    uint64_t zeroed;
    open_other(&file, a->mask ? a->mask : a->patch, c);
    if (a->mask)
        commit(&e, mask_apply(&e, c, &file, &zeroed, err), err);
    else
        commit(&e, patch_apply(&e, c, &file, tell_progress, &p, err), err);
    progress_end();
    if (a->mask)
        print_edit(&e, c->argument, "weights_zeroed", "weight", zeroed);
    else
        print_edit(&e, c->argument, "tensors", "tensor", checkpoint_tensor_count(&file) / 2);
    edit_end(&e);
    checkpoint_close(&file);
}

static void undo(const Checkpoint *c)
{
    Undone undone;
    char err[512];
    die_if(undo_last(c, &undone, err), err);
    if (common.json)
        printf("{\"undone_files\":%zu}\n", undone.files);
    else
        printf("undone: %zu file%s restored to the bytes before the last edit\n", undone.files, plural(undone.files));
    if (undone.changed_since)
        warn("something else has changed the file after that edit: outside of the restored bytes it stays as it is");
}

static EditArguments parse_edit(int argc, char **argv)
{
    static EditArguments a;
    const Option options[] = {
        {0, "tensor", "NAME", OPTION_TEXT, &a.tensor,
         "the tensor to change; a pattern such as '*.bias' changes all that match, in one step"},
        {0, "slice", "SPEC", OPTION_ANY, &a.slice, "change only these numbers of it, as in NumPy: 0:128  :,5  -1"},
        {0, "set", "V", OPTION_TEXT, &a.operands[NUMBER_SET], "set the numbers to V"},
        {0, "scale", "V", OPTION_TEXT, &a.operands[NUMBER_SCALE], "multiply the numbers by V"},
        {0, "add", "V", OPTION_TEXT, &a.operands[NUMBER_ADD], "add V to the numbers"},
        {0, "from", "FILE2[:NAME2]", OPTION_TEXT, &a.from, "copy the numbers of this tensor, which has the same shape"},
        {0, "mask", "FILE2", OPTION_TEXT, &a.mask,
         "set to zero every weight whose mask is 0, in all tensors that FILE2 names; masks are BOOL, U8, or U8 with a "
         "bit for each weight, lowest bit first"},
        {0, "patch", "FILE2", OPTION_TEXT, &a.patch, "apply a patch that run diff --patch wrote"},
        {0, "undo", NULL, OPTION_FLAG, &a.undo,
         "restore the bytes from before the last edit, or before one that was interrupted"},
        {0, "dry-run", NULL, OPTION_FLAG, &a.dry, "show what would change without changing it"},
        {0, "force", NULL, OPTION_FLAG, &common.force, "edit a file that has several names (hard links), too"},
        THREADS_OPTION,
        JSON_OPTION,
        {0},
    };
    options_parse(argc, argv, options,
                  "run edit FILE --tensor NAME [--slice SPEC] --set V | --scale V | --add V | --from FILE2[:NAME2]\n"
                  "run edit FILE --mask FILE2\nrun edit FILE --patch FILE2\nrun edit FILE --undo",
                  "run edit model.safetensors --tensor model.norm.weight --scale 1.01 --dry-run\n"
                  "run edit model.safetensors --tensor '*.bias' --set 0\n"
                  "run edit model.safetensors --undo\n"
                  "\n"
                  "Numbers are rounded once, to nearest; a result that the tensor's type cannot hold is refused. "
                  "FILE.undo keeps the bytes from before the last edit.\n");
    int numbers = a.from ? 1 : 0, others = (a.mask ? 1 : 0) + (a.patch ? 1 : 0) + (a.undo ? 1 : 0);
    for (size_t i = 0; i < COUNT_OF(a.operands); i++)
        numbers += a.operands[i] ? 1 : 0;
    if (numbers + others != 1)
        usage_error("give one of --set, --scale, --add, --from, --mask, --patch and --undo");
    if (numbers && !a.tensor)
        usage_error("name the tensor to change: --tensor NAME");
    if (others && (a.tensor || a.slice))
        usage_error("--mask, --patch and --undo do not go together with --tensor and --slice");
    if (a.undo && a.dry)
        usage_error("give --undo or --dry-run, not both");
    return a;
}

int cmd_edit(int argc, char **argv)
{
    EditArguments a = parse_edit(argc, argv);
    Checkpoint c;
    char err[512];
    prepare_writing(); /* from here on Ctrl-C ends the work before the first change, or waits until all is done */
    path_printable(argv[1], mapped_name);
    /* not model_open(), which warns of an interrupted edit: --undo mends it, and edit_begin() refuses it */
    die_if(checkpoint_open(&c, argv[1], false, err), err);
    session_start_pool();
    if (!a.dry && !a.undo)
        refuse_cache(&c);
    if (a.undo)
        undo(&c);
    else if (a.mask || a.patch)
        edit_by_file(&c, &a);
    else
        edit_numbers(&c, &a);
    threads_stop();
    checkpoint_close(&c);
    return finish(EXIT_OK);
}
