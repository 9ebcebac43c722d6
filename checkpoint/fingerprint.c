#include "checkpoint/fingerprint.h"

#include <stdlib.h>

#include "base/sha256.h"

static int compare_names(const void *left, const void *right)
{
    const SafetensorsTensor *a = *(const SafetensorsTensor *const *)left, *b = *(const SafetensorsTensor *const *)right;
    return text_compare(a->name, a->name_length, b->name, b->name_length);
}

static void print_line(FILE *out, const SafetensorsTensor *t, const Digest digest)
{
    char hex[65];
    sha256_hex(digest, hex);
    fprintf(out, "%s %s ", hex, dtype_name(t->dtype));
    shape_print(out, t->shape, t->rank);
    fprintf(out, " %zu ", t->name_length);
    fwrite(t->name, 1, t->name_length, out);
    fputc('\n', out);
}

int fingerprint_of(const Checkpoint *c, const Digest *digests, char hex[65], char err[512])
{
    size_t n = checkpoint_tensor_count(c), length;
    char *text = NULL;
    Digest all;
    const SafetensorsTensor **tensors = calloc(n + 1, sizeof *tensors);
    if (!tensors)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    for (size_t i = 0; i < n; i++)
        tensors[i] = checkpoint_tensor(c, i);
    qsort(tensors, n, sizeof *tensors, compare_names);
    FILE *out = open_memstream(&text, &length);
    for (size_t i = 0; out && i < n; i++)
        print_line(out, tensors[i], digests[tensors[i] - checkpoint_tensor(c, 0)]);
    free(tensors);
    if (!out || text_close_stream(out, &text) != 0)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    sha256_of(text, length, all);
    sha256_hex(all, hex);
    free(text);
    return 0;
}

int fingerprint_compute(const Checkpoint *c, Digest *digests, char hex[65], FileProgress *progress, void *context,
                        char err[512])
{
    size_t n = checkpoint_tensor_count(c);
    Sha256Task *tasks = calloc(n + 1, sizeof *tasks);
    if (!tasks)
        return fail(err, "%s: out of memory for %zu tensors", c->argument, n);
    for (size_t i = 0; i < n; i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        tasks[i] = (Sha256Task){safetensors_data(t), t->length, digests[i]};
    }
    int status = sha256_all(tasks, n, progress, context);
    free(tasks);
    if (status != 0)
        return fail(err, "interrupted; nothing was written");
    return fingerprint_of(c, (const Digest *)digests, hex, err);
}
