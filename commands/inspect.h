/* What `run info` shows of the data itself: --tensor, --slice, --npy, --stats, --at. Only the bytes that are needed are
 * read.
 */
#ifndef INSPECT_H
#define INSPECT_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"

#define INSPECT_NOWHERE UINT64_MAX

typedef struct {
    const char *tensor, *slice, *npy; /* NULL: not given */
    bool stats;
    uint64_t at; /* INSPECT_NOWHERE: not given */
} Inspection;

/* Answer what was asked about the data. False if nothing was. find: which tensors --stats is about. Dies on
 * mistakes. */
bool inspect(Checkpoint *c, const Inspection *what, const char *find);

#endif
