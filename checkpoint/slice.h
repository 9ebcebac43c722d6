/* Parts of a tensor: which elements a slice names, and what they amount to. */
#ifndef CHECKPOINT_SLICE_H
#define CHECKPOINT_SLICE_H

#include "base/base.h"
#include "safetensors.h"

/* ---- slices ------------------------------------------------------------------------------------------------------ */

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

/* spec as in NumPy, without the brackets: "0:4, :8", "-1", "::2, ..., 0"; NULL or "": the whole tensor. Negative
 * numbers count from the end, ranges that reach beyond it are clipped, steps may be negative; an index beyond the
 * end is an error. Tensors whose elements are smaller than a byte (F4, F6) are refused. tensor must outlive the
 * slice. */
int slice_parse(Slice *s, const char *spec, const SafetensorsTensor *tensor, char err[512]);
void slice_free(Slice *s);
size_t slice_rank(const Slice *s);                /* axes that the result has */
uint64_t slice_size(const Slice *s, size_t axis); /* of the result, axis < slice_rank() */

/* A walk through a slice in row-major order, from element `position` of it on, in runs of elements that lie side by
 * side. */
typedef struct {
    const Slice *slice;
    uint64_t *index; /* [slice->tensor->rank] */
    size_t outer;    /* axes before this one are walked; those from here on make one run */
    uint64_t run;    /* elements of a whole run */
    uint64_t skip;   /* of the first run */
    uint64_t left;   /* elements still to come */
} SliceWalk;
int slice_walk(SliceWalk *w, const Slice *s, uint64_t position, char err[512]);
/* The next run: elements first .. first + count - 1 of the tensor. False at the end. */
bool slice_next(SliceWalk *w, uint64_t *first, uint64_t *count);
void slice_walk_end(SliceWalk *w);
/* Copies elements position .. position + n - 1 of the slice to out. */
int slice_gather(const Slice *s, uint64_t position, size_t n, unsigned char *out, char err[512]);

/* ---- what they amount to ----------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t count; /* numbers: two per element of C64 */
    uint64_t nan, plus_inf, minus_inf, zero;
    double min, max, mean, std; /* of the finite ones; NaN if there are none. std divides by their number */
} Statistics;

/* In parallel; the result does not depend on the number of threads. */
int statistics_compute(const Slice *s, Statistics *stats, char err[512]);
/* The first element of the slice that has that value; UINT64_MAX: none. */
int statistics_find(const Slice *s, double value, uint64_t *at, char err[512]);
/* How many of the finite numbers lie in each of n equal parts of [low, high]. */
int statistics_histogram(const Slice *s, double low, double high, uint64_t *bins, size_t n, char err[512]);

/* A NumPy file (.npy, version 1.0) of the slice; BF16 and the 8-bit floats, which NumPy lacks, widened to float32.
 * Errors of writing stay in ferror(f). */
int npy_write(const Slice *s, FILE *f, char err[512]);

#endif
