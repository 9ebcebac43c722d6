/* One pool of threads, which is the program's only shared state. A parallel loop is cut into pieces that threads take as
 * they become free, so that a thread that the system has put aside delays nobody; what is computed never depends on who
 * takes which piece.
 */
#ifndef THREADS_H
#define THREADS_H

#include "base/base.h"

/* Starts a pool of count threads (the caller is one of them); a pool of other size is stopped first. When the system
 * grants fewer threads, the pool works with those. Without a pool loops run in the caller. */
int threads_start(int count, char err[512]);
void threads_stop(void);
int threads_count(void); /* 1 without a pool */

/* Calls body(context, begin, end, thread) over disjoint pieces that cover [0, n), each of at most grain items and
 * starting at a multiple of grain; returns when all are done. thread is 0..threads_count()-1, for scratch memory of
 * one's own. Not reentrant: a body starts no loop. One caller at a time. Waiting threads spin for a short while, then
 * sleep. */
typedef void ThreadsBody(void *context, size_t begin, size_t end, int thread);
void threads_for(size_t n, size_t grain, ThreadsBody *body, void *context);

#endif
