/* What the numbers of a slice amount to. The work is done in parallel, and the results do not depend on the number of
 * threads. */
#ifndef CHECKPOINT_STATISTICS_H
#define CHECKPOINT_STATISTICS_H

#include "base/base.h"
#include "checkpoint/slice.h"

typedef struct {
    uint64_t count; /* numbers: two per element of C64 */
    uint64_t nan, plus_inf, minus_inf, zero;
    double min, max, mean, std; /* of the finite ones; NaN if there are none. std divides by their number */
} Statistics;

int statistics_compute(const Slice *s, Statistics *stats, char err[512]);
/* Find the slice's first element that rounds to the double `value`, its minimum or maximum. Several integers of 64 bits
 * may do so: of these, the first that is exactly the smallest, or the largest. *at is UINT64_MAX if there is none. */
int statistics_find(const Slice *s, double value, bool largest, uint64_t *at, char err[512]);
/* Count the finite numbers in each of n equal parts of [low, high]. */
int statistics_histogram(const Slice *s, double low, double high, uint64_t *bins, size_t n, char err[512]);

#endif
