/* Slices of a tensor: which elements a text such as "0:4, :8" names, and a walk through them. */
#ifndef CHECKPOINT_SLICE_H
#define CHECKPOINT_SLICE_H

#include "base/base.h"
#include "safetensors.h"

/* The indices start, start + step, ... along one axis: count of them. */
typedef struct {
    uint64_t start, count;
    int64_t step;
    bool dropped; /* given as a single index: no axis of the result */
} SliceAxis;

typedef struct {
    const SafetensorsTensor *tensor;
    SliceAxis *axes;   /* [tensor->rank] */
    uint64_t elements; /* of the slice */
} Slice;

/* Read spec, which is written as in NumPy without the brackets: "0:4, :8", "-1", "::2, ..., 0"; NULL or "" is the whole
 * tensor. Negative numbers count from the end, ranges that reach beyond the end are clipped, and steps may be negative;
 * an index beyond the end is an error. Tensors whose elements are smaller than a byte (F4, F6) are refused. The tensor
 * must outlive the slice. */
int slice_parse(Slice *s, const char *spec, const SafetensorsTensor *tensor, char err[512]);
void slice_free(Slice *s);
size_t slice_rank(const Slice *s);                /* axes that the result has */
uint64_t slice_size(const Slice *s, size_t axis); /* of the result, axis < slice_rank() */

/* A walk through a slice in row-major order, in runs of elements that lie side by side. */
typedef struct {
    const Slice *slice;
    uint64_t *index; /* [slice->tensor->rank] */
    size_t outer;    /* axes before this one are walked; those from here on make one run */
    uint64_t run;    /* elements of a whole run */
    uint64_t skip;   /* of the first run */
    uint64_t left;   /* elements still to come */
} SliceWalk;
/* Begin at element `position` of the slice. */
int slice_walk(SliceWalk *w, const Slice *s, uint64_t position, char err[512]);
/* The next run: elements first .. first + count - 1 of the tensor. False at the end. */
bool slice_next(SliceWalk *w, uint64_t *first, uint64_t *count);
void slice_walk_end(SliceWalk *w);

/* Copy elements position .. position + n - 1 of the slice to out. */
int slice_gather(const Slice *s, uint64_t position, size_t n, unsigned char *out, char err[512]);

#endif
