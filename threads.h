/* The machine and its threads: what CPU this is, how much of it this process may use, and one pool of threads.
 *
 * The pool is the program's only shared state. A parallel loop is cut into pieces that threads take as they become
 * free, so that a thread that the system has put aside delays nobody; what is computed never depends on who takes which
 * piece.
 */
#ifndef THREADS_H
#define THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kernel levels, lowest first. Every level gives the same bits; CPU_AVX512BF16 differs only under --fast. */
typedef enum { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_NEON, CPU_LEVELS } CpuLevel;

const char *cpu_level_name(CpuLevel level); /* "scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "neon" */
bool cpu_has(CpuLevel level);               /* this CPU, this system and this build can run it */
CpuLevel cpu_level_best(void);
/* The level that kernels use: the best, or what the environment's RUN_ISA names. -1 and a sentence that lists the
 * levels there are if RUN_ISA is unknown or not to be had here. Call it before the first kernel; tests may set a level
 * directly. */
int cpu_level_from_environment(char err[512]);
CpuLevel cpu_level(void);
void cpu_set_level(CpuLevel level);
bool cpu_exact_fma(void); /* false: fmaf() is emulated in software here: right, but slow */

int cpu_cores_usable(void); /* least of affinity, cgroup CPU quota (rounded down) and physical cores; at least 1 */
uint64_t cpu_memory_available(void); /* bytes this process may still take: MemAvailable, cgroup limit, address-space
                                        limit; UINT64_MAX when nothing tells */
/* The same, with the system's files (/proc, /sys) looked for under root. */
int cpu_cores_usable_under(const char *root);
uint64_t cpu_memory_available_under(const char *root);

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
