#include "checkpoint/mask.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/tensor.h"

#define CHUNK ((size_t)1 << 20) /* bytes of weights that are masked at a time */

/* A tensor of the mask and the weights that it is for. */
typedef struct {
    SafetensorsTensor weights;
    const unsigned char *mask;
    bool packed; /* a bit for each weight, not a byte */
} Masked;

static int check_mask(Masked *m, const SafetensorsTensor *mask, char err[512])
{
    const SafetensorsTensor *weights = &m->weights;
    uint64_t packed = (weights->elements + 7) / 8;
    if (dtype_bits(weights->dtype) < 8 || weights->dtype == DTYPE_F8_E8M0)
        return tensor_fail(err, NULL, mask, "weights of %s cannot be masked: it has no zero in bytes of its own",
                           dtype_name(weights->dtype));
    if (mask->dtype != DTYPE_BOOL && mask->dtype != DTYPE_U8)
        return tensor_fail(err, NULL, mask, "a mask is BOOL or U8, not %s", dtype_name(mask->dtype));
    m->mask = safetensors_data(mask);
    m->packed = mask->elements != weights->elements;
    if (m->packed && (mask->dtype != DTYPE_U8 || mask->elements != packed))
        return tensor_fail(err, NULL, mask,
                           "%" PRIu64 " weights need a mask of as many elements, or U8 of %" PRIu64
                           " with a bit each; this one has %" PRIu64,
                           weights->elements, packed, mask->elements);
    return 0;
}

static bool is_kept(const Masked *m, uint64_t i)
{
    return m->packed ? m->mask[i / 8] >> i % 8 & 1 : m->mask[i] != 0;
}

static int mask_tensor(Edit *e, const Masked *m, unsigned char *chunk, uint64_t *zeroed, char err[512])
{
    static const unsigned char zero[8];
    const SafetensorsTensor *t = &m->weights;
    size_t size = dtype_bits(t->dtype) / 8, n;
    for (uint64_t at = 0; at < t->elements; at += n) {
        n = (size_t)MIN(t->elements - at, CHUNK / size);
        memcpy(chunk, safetensors_data(t) + at * size, n * size);
        for (size_t i = 0; i < n; i++) {
            unsigned char *weight = chunk + i * size;
            if (is_kept(m, at + i) || memcmp(weight, zero, size) == 0)
                continue;
            memset(weight, 0, size);
            ++*zeroed;
        }
        if (edit_bytes(e, t, at * size, chunk, n * size, err) != 0)
            return -1;
    }
    return 0;
}

static int find_weights(Checkpoint *c, const Checkpoint *mask, Masked *masked, const SafetensorsTensor **touched,
                        char err[512])
{
    for (size_t i = 0; i < checkpoint_tensor_count(mask); i++) {
        const SafetensorsTensor *m = checkpoint_tensor(mask, i);
        if (safetensors_find_n(&c->st, m->name, m->name_length, &masked[i].weights) != 0)
            return tensor_fail(err, mask->argument, m, "there is no such tensor in %s", c->argument);
        if (check_mask(&masked[i], m, err) != 0)
            return -1;
        touched[i] = &masked[i].weights;
    }
    return 0;
}

static int mask_tensors(Edit *e, const Masked *masked, size_t n, uint64_t *zeroed, char err[512])
{
    unsigned char *chunk = malloc(CHUNK);
    int status = chunk ? 0 : fail(err, "out of memory for a mask");
    for (size_t i = 0; i < n && status == 0; i++)
        status = mask_tensor(e, &masked[i], chunk, zeroed, err);
    free(chunk);
    return status;
}

int mask_apply(Edit *e, Checkpoint *c, const Checkpoint *mask, uint64_t *zeroed, char err[512])
{
    size_t n = checkpoint_tensor_count(mask);
    Masked *masked = calloc(n + 1, sizeof *masked);
    const SafetensorsTensor **touched = calloc(n + 1, sizeof *touched);
    *zeroed = 0;
    int status = masked && touched ? find_weights(c, mask, masked, touched, err)
                                   : fail(err, "%s: out of memory for %zu tensors", mask->argument, n);
    if (status == 0)
        status = edit_begin(e, touched, n, err);
    if (status == 0)
        status = mask_tensors(e, masked, n, zeroed, err);
    free(touched);
    free(masked);
    return status;
}
