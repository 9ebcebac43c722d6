/* The machine: what CPU this is, and how much of it this process may use. */
#ifndef CPU_H
#define CPU_H

#include "base/base.h"

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
int cpu_threads_usable(void); /* how many threads can run at once: the same, but a core's second threads count */
uint64_t cpu_memory_available(void); /* bytes this process may still take: MemAvailable, cgroup limit, address-space
                                        limit; UINT64_MAX when nothing tells */
/* The same, with the system's files (/proc, /sys) looked for under root. */
int cpu_cores_usable_under(const char *root);
uint64_t cpu_memory_available_under(const char *root);

#endif
