/* Time that passes, for limits and statistics. */
#ifndef CLOCK_H
#define CLOCK_H

#include "base/base.h"

#include <time.h>

/* Seconds since some moment in the past. The clock never jumps, whatever happens to the time of day. */
static inline double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
