/* One pool of threads for the whole program. A parallel loop is cut into chunks that threads take as they become free,
 * so that a thread that the system has put aside delays nobody. What is computed never depends on who takes which
 * chunk.
 */
#ifndef THREADS_H
#define THREADS_H

#include "base/base.h"

/* Start a pool of `count` threads, of which the caller is one; a pool of another size is stopped first. If the system
 * grants fewer threads, the pool works with those. Without a pool, loops run in the caller. */
int threads_start(int count, char err[512]);
void threads_stop(void);
int threads_count(void); /* 1 without a pool */

/* Call body(context, begin, end, thread) for disjoint chunks that cover [0, n), each of at most `grain` items and
 * starting at a multiple of grain; return when all are done. `thread` is 0..threads_count()-1, so that a body can have
 * scratch memory of its own. A body may not start a loop, and only one thread at a time may call this. Threads that
 * wait spin for a short while, then sleep. */
typedef void ThreadsBody(void *context, size_t begin, size_t end, int thread);
void threads_for(size_t n, size_t grain, ThreadsBody *body, void *context);

#endif
