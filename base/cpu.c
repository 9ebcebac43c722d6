/* The machine: which kernels this CPU can run, and how much of it this process may use.
 *
 * Limits come from several places, and the least counts. For processors: affinity, the CPU quota of control groups (a
 * container may have 2 of 64 processors), cores that have two threads. For memory: what the system has left, and what
 * the limits of control groups and of the process leave.
 */
#include "base/cpu.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

/* ---- which kernels this CPU can run ------------------------------------------------------------------------------ */

#ifdef __x86_64__

/* Which registers the system saves when it switches threads: bits 1-2 are for AVX, 5-7 for AVX-512. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_bits(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static CpuLevel detect_level(bool *fma)
{
    uint32_t a, b, c, d, leaf1_c;
    *fma = false;
    if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !has_bits(leaf1_c, bit_OSXSAVE | bit_AVX))
        return CPU_SCALAR;
    uint64_t saved = saved_state();
    if ((saved & 0x06) != 0x06)
        return CPU_SCALAR;
    *fma = has_bits(leaf1_c, bit_FMA);
    if (!has_bits(leaf1_c, bit_FMA | bit_F16C) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_bits(b, bit_AVX2))
        return CPU_SCALAR;
    if ((saved & 0xe6) != 0xe6 || !has_bits(b, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL))
        return CPU_AVX2;
    if (!has_bits(c, bit_AVX512VNNI))
        return CPU_AVX512;
    bool bf16 = __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_bits(a, bit_AVX512BF16);
    return bf16 ? CPU_AVX512BF16 : CPU_AVX512VNNI;
}

#elif defined(__aarch64__) && defined(__ARM_NEON)

static CpuLevel detect_level(bool *fma)
{
    *fma = true;
    return CPU_NEON;
}

#else

static CpuLevel detect_level(bool *fma)
{
#ifdef __FP_FAST_FMAF
    *fma = true;
#else
    *fma = false;
#endif
    return CPU_SCALAR;
}

#endif

static const char *const level_names[CPU_LEVELS] = {"scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "neon"};

const char *cpu_level_name(CpuLevel level)
{
    return level < CPU_LEVELS ? level_names[level] : "?";
}

CpuLevel cpu_level_best(void)
{
    bool fma;
    return detect_level(&fma);
}

bool cpu_has(CpuLevel level)
{
    CpuLevel best = cpu_level_best();
    if (level == CPU_NEON || best == CPU_NEON)
        return level == CPU_SCALAR || level == best;
    return level <= best;
}

/* glibc's fmaf() looks for the instruction at run time; other libraries use it only if the compiler was told to. */
bool cpu_exact_fma(void)
{
    bool fma;
    detect_level(&fma);
#if defined(__x86_64__) && !defined(__GLIBC__) && !defined(__FMA__)
    return false;
#else
    return fma;
#endif
}

static atomic_int level_in_use = -1; /* -1: nobody has asked yet */

CpuLevel cpu_level(void)
{
    int level = level_in_use;
    if (level < 0)
        level_in_use = level = (int)cpu_level_best();
    return (CpuLevel)level;
}

void cpu_set_level(CpuLevel level)
{
    level_in_use = (int)level;
}

int cpu_level_from_environment(char err[512])
{
    const char *wish = getenv("RUN_ISA");
    if (!wish || !*wish) {
        cpu_set_level(cpu_level_best());
        return 0;
    }
    char list[128] = "";
    bool known = false;
    for (int i = 0; i < CPU_LEVELS; i++) {
        CpuLevel level = (CpuLevel)i;
        bool wanted = !strcmp(wish, level_names[i]);
        known = known || wanted;
        if (!cpu_has(level))
            continue;
        if (wanted) {
            cpu_set_level(level);
            return 0;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", level_names[i]);
    }
    const char *problem = known ? "this CPU or system cannot run these kernels" : "there are no kernels of that name";
    return fail(err, "RUN_ISA=%.40s: %s; choose from %s", wish, problem, list);
}

/* ---- numbers in small system files ------------------------------------------------------------------------------- */

const char *cpu_root = "";

/* Read directory/name into text; false if it can't be read or doesn't fit. (Not file_read(): these files tell no size,
 * and there is no message to write.) */
static bool read_file(char *text, size_t size, const char *directory, const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s/%s", cpu_root, directory, name) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, size - 1, f);
    bool whole = !ferror(f) && n < size - 1;
    fclose(f);
    text[n] = '\0';
    return whole;
}

#ifdef __linux__

/* The number at the start of a file. UINT64_MAX means no limit: "max", "-1", or there is no such file. */
static uint64_t read_limit(const char *directory, const char *name)
{
    char text[128];
    if (!read_file(text, sizeof text, directory, name) || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The number after the word that a line begins with; 0 if there is no such line. */
static uint64_t find_number(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, word, length))
            return strtoull(line + length, NULL, 10);
    }
    return 0;
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

/* What the group with this directory leaves of something; version is that of its hierarchy, 1 or 2. */
typedef uint64_t GroupLimit(const char *directory, int version);

/* Lower *least to the limits of a group. It limits those below it, so each directory from its own up to the mount point
 * is asked. Inside a container perhaps only the upper ones are visible. */
static void lower_to_group(uint64_t *least, const char *mount, const char *group, GroupLimit *limit, int version)
{
    char path[PATH_MAX];
    int top = snprintf(path, sizeof path, "/sys/fs/cgroup/%s", mount), n = (int)sizeof path - top;
    if (n <= 0 || snprintf(path + top, (size_t)n, "%s", group) >= n)
        return;
    char *slash;
    do {
        uint64_t here = limit(path, version);
        *least = MIN(*least, here);
        slash = strrchr(path + top, '/');
        if (slash)
            *slash = '\0';
    } while (slash);
}

/* Whether a list such as "cpu,cpuacct" has the word. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at++)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

/* The least limit of the process's groups. Lines of /proc/self/cgroup: "0::/path" is the one hierarchy of version 2,
 * "5:cpu,cpuacct:/path" is one of version 1. */
static uint64_t group_limit(const char *controller, GroupLimit *limit)
{
    char text[16384], *rest;
    uint64_t least = UINT64_MAX;
    if (!read_file(text, sizeof text, "/proc/self", "cgroup"))
        return least;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        if (!*++list) {
            lower_to_group(&least, "", group, limit, 2);
            lower_to_group(&least, "unified", group, limit, 2);
        } else if (list_has(list, controller)) {
            lower_to_group(&least, list, group, limit, 1);
            lower_to_group(&least, controller, group, limit, 1);
        }
    }
    return least;
}

/* Whole processors that the group's quota of time per period amounts to, at least 1. */
static uint64_t processors_granted(const char *directory, int version)
{
    uint64_t quota = read_limit(directory, version == 1 ? "cpu.cfs_quota_us" : "cpu.max");
    uint64_t period = read_limit(directory, "cpu.cfs_period_us");
    char text[128], *second;
    if (version == 2 && read_file(text, sizeof text, directory, "cpu.max")) { /* "max 100000" or "150000 100000" */
        strtoull(text, &second, 10);
        period = strtoull(second, NULL, 10);
    }
    if (quota == UINT64_MAX || period == UINT64_MAX || !period)
        return UINT64_MAX;
    return MAX(quota / period, 1);
}

/* Bytes that the group may still take. Files in the page cache count as used there, but give way. */
static uint64_t memory_left(const char *directory, int version)
{
    bool old = version == 1;
    uint64_t limit = read_limit(directory, old ? "memory.limit_in_bytes" : "memory.max");
    uint64_t used = read_limit(directory, old ? "memory.usage_in_bytes" : "memory.current");
    char text[8192];
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return limit;
    if (read_file(text, sizeof text, directory, "memory.stat")) {
        uint64_t cache = find_number(text, old ? "total_active_file " : "active_file ") +
                         find_number(text, old ? "total_inactive_file " : "inactive_file ");
        used -= MIN(cache, used);
    }
    return limit - MIN(used, limit);
}

/* ---- processors and memory --------------------------------------------------------------------------------------- */

/* The set of processors that this process may run on, of *bytes bytes (fresh); NULL if the system doesn't tell. */
static cpu_set_t *affinity(size_t *bytes)
{
    for (size_t cpus = 1024; cpus <= 1u << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        *bytes = CPU_ALLOC_SIZE(cpus);
        if (set && !sched_getaffinity(0, *bytes, set))
            return set;
        bool larger = set && errno == EINVAL;
        CPU_FREE(set);
        if (!larger)
            return NULL;
    }
    return NULL;
}

/* Whether processor `cpu` shares its core with a lower one of the set. The files say "0,64" or "0-1". */
static bool is_second_thread(const cpu_set_t *set, size_t bytes, size_t cpu)
{
    char directory[64], text[256], *p = text;
    snprintf(directory, sizeof directory, "/sys/devices/system/cpu/cpu%zu/topology", cpu);
    if (!read_file(text, sizeof text, directory, "thread_siblings_list"))
        return false;
    while (*p >= '0' && *p <= '9') {
        unsigned long first = strtoul(p, &p, 10), last = first;
        if (*p == '-')
            last = strtoul(p + 1, &p, 10);
        for (unsigned long i = first; i <= last && i < cpu; i++)
            if (CPU_ISSET_S(i, bytes, set))
                return true;
        p += *p == ',';
    }
    return false;
}

/* What the system has left: MemAvailable, and if it never grants more than it has, what is left of its commit limit. */
static uint64_t memory_of_system(void)
{
    char text[8192];
    if (!read_file(text, sizeof text, "/proc", "meminfo") || !strstr(text, "MemAvailable:"))
        return UINT64_MAX;
    uint64_t left = find_number(text, "MemAvailable:") * 1024;
    if (read_limit("/proc/sys/vm", "overcommit_memory") == 2) {
        uint64_t limit = find_number(text, "CommitLimit:") * 1024, used = find_number(text, "Committed_AS:") * 1024;
        left = MIN(left, limit - MIN(used, limit));
    }
    return left;
}

#else

/* There are no control groups. */
#define group_limit(controller, limit) UINT64_MAX

/* What the system has left: pages that are free or were not used lately. */
static uint64_t memory_of_system(void)
{
#ifdef __APPLE__
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&pages, &count) == KERN_SUCCESS)
        return ((uint64_t)pages.free_count + pages.inactive_count) * (uint64_t)sysconf(_SC_PAGESIZE);
#endif
    return UINT64_MAX;
}

#endif

/* Count the processors that this process may run on, and the cores among them. */
static void count_processors(size_t *logical, size_t *cores)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *logical = *cores = (size_t)MAX(online, 1);
#ifdef __linux__
    size_t bytes;
    cpu_set_t *set = affinity(&bytes);
    if (!set)
        return;
    *logical = *cores = 0;
    for (size_t cpu = 0; cpu < bytes * 8; cpu++)
        if (CPU_ISSET_S(cpu, bytes, set)) {
            *logical += 1;
            if (!is_second_thread(set, bytes, cpu))
                *cores += 1;
        }
    CPU_FREE(set);
#elif defined(__APPLE__)
    int physical;
    size_t size = sizeof physical;
    if (!sysctlbyname("hw.physicalcpu", &physical, &size, NULL, 0) && physical > 0)
        *cores = (size_t)physical;
#endif
}

static int least_count(uint64_t a, uint64_t b)
{
    uint64_t least = MIN(a, b);
    return (int)MIN(MAX(least, 1), INT_MAX);
}

int cpu_cores_usable(void)
{
    size_t logical, cores;
    count_processors(&logical, &cores);
    return least_count(cores, group_limit("cpu", processors_granted));
}

int cpu_threads_usable(void)
{
    size_t logical, cores;
    count_processors(&logical, &cores);
    return least_count(logical, group_limit("cpu", processors_granted));
}

/* The bytes that a resource limit leaves when this many pages are used. */
static uint64_t below_limit(const struct rlimit *limit, uint64_t used_pages)
{
    uint64_t most = (uint64_t)limit->rlim_cur, used = used_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit->rlim_cur == RLIM_INFINITY ? UINT64_MAX : most - MIN(used, most);
}

uint64_t cpu_memory_available(void)
{
    char text[256], *p = text;
    uint64_t pages[6] = {0}; /* statm: size, resident, shared, text, 0, data */
    if (read_file(text, sizeof text, "/proc/self", "statm"))
        for (int i = 0; i < 6; i++)
            pages[i] = strtoull(p, &p, 10);
    struct rlimit space = {RLIM_INFINITY, RLIM_INFINITY}, data = space;
    getrlimit(RLIMIT_AS, &space);
    getrlimit(RLIMIT_DATA, &data);
    const uint64_t limits[] = {memory_of_system(), group_limit("memory", memory_left), below_limit(&space, pages[0]),
                               below_limit(&data, pages[5])};
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < COUNT_OF(limits); i++)
        least = MIN(limits[i], least);
    return least;
}
