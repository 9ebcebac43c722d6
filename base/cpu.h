/* The machine: what CPU this is, and how much of it this process may use. */
#ifndef CPU_H
#define CPU_H

#include "base/base.h"

/* Levels of kernels, lowest first. Every level gives the same bits, except CPU_AVX512BF16 under --fast. */
typedef enum { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_NEON, CPU_LEVELS } CpuLevel;

const char *cpu_level_name(CpuLevel level); /* "scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "neon" */
bool cpu_has(CpuLevel level);               /* this CPU, this system and this build can run it */
CpuLevel cpu_level_best(void);

/* Set the level that kernels use: the one that the environment variable RUN_ISA names, else the best. Return -1 and a
 * sentence that lists the levels there are if RUN_ISA names another. Call it before the first kernel. */
int cpu_level_from_environment(char err[512]);
CpuLevel cpu_level(void); /* the level in use: the best, until one is set */
void cpu_set_level(CpuLevel level);
bool cpu_exact_fma(void); /* false: fmaf() is emulated in software here, which is slow but gives the same bits */

/* How many cores this process may use: the least of affinity, CPU quota of its control groups (rounded down) and
 * physical cores; at least 1. */
int cpu_cores_usable(void);
/* How many threads can run at once: the same, but the second threads of cores count. */
int cpu_threads_usable(void);
/* Bytes that this process may still take, by the system's memory, its control groups' limits and its own;
 * UINT64_MAX if the system does not tell. */
uint64_t cpu_memory_available(void);
/* Where the system's files (/proc, /sys) are looked for: "", or in tests the path of a folder that holds some. */
extern const char *cpu_root;

#endif
