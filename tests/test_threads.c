/* base/cpu.c: what it says of the machine. base/threads.c: the pool under loops of many shapes. */
#include "base/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "check.h"

/* ---- kernel levels ----------------------------------------------------------------------------------------------- */

static void test_levels(void)
{
    char err[512] = "";
    CpuLevel best = cpu_level_best();
    check(cpu_has(CPU_SCALAR) && cpu_has(best), "best level is %s", cpu_level_name(best));
    unsetenv("RUN_ISA");
    check(cpu_level_from_environment(err) == 0 && cpu_level() == best, "%s", cpu_level_name(cpu_level()));
    for (int i = 0; i < CPU_LEVELS; i++) {
        const char *name = cpu_level_name((CpuLevel)i);
        setenv("RUN_ISA", name, 1);
        int status = cpu_level_from_environment(err);
        check((status == 0) == cpu_has((CpuLevel)i), "RUN_ISA=%s gives %d: %s", name, status, err);
        if (status == 0)
            check(cpu_level() == (CpuLevel)i, "RUN_ISA=%s gives %s", name, cpu_level_name(cpu_level()));
        else
            check(strstr(err, name) && strstr(err, "choose from scalar"), "%s", err);
    }
    setenv("RUN_ISA", "AVX9", 1);
    cpu_set_level(CPU_SCALAR);
    check(cpu_level_from_environment(err) == -1 && strstr(err, "RUN_ISA=AVX9") && strstr(err, "scalar"), "%s", err);
    setenv("RUN_ISA", "", 1);
    check(cpu_level_from_environment(err) == 0 && cpu_level() == best, "an empty RUN_ISA counts as unset");
    unsetenv("RUN_ISA");
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

#ifdef __linux__

static char root[64]; /* a folder in place of the system's files */

static void put(const char *path, const char *text)
{
    char full[256];
    size_t length = (size_t)snprintf(full, sizeof full, "%s%s", root, path);
    for (size_t i = strlen(root) + 1; i < length; i++)
        if (full[i] == '/') {
            full[i] = '\0';
            mkdir(full, 0700);
            full[i] = '/';
        }
    FILE *f = fopen(full, "w");
    check(f && fputs(text, f) >= 0 && !fclose(f), "%s", full);
}

static void empty_root(void)
{
    char command[192];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", root, root);
    check(system(command) == 0, "%s", command);
}

static void test_cores(void)
{
    int real = cpu_cores_usable();
    cpu_root = root;
    int all = cpu_cores_usable(); /* nothing but the affinity */
    check(all >= 1 && real >= 1 && real <= all, "%d cores, %d usable", all, real);
    static const struct {
        const char *max;
        int cores;
    } quotas[] = {{"max 100000\n", 0},
                  {"100000 100000\n", 1},
                  {"50000 100000\n", 1},
                  {"199999 100000\n", 1},
                  {"90000000 100000\n", 0}};
    put("/proc/self/cgroup", "0::/outer/inner\n");
    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++) {
        int want = quotas[i].cores ? quotas[i].cores : all;
        put("/sys/fs/cgroup/outer/inner/cpu.max", quotas[i].max);
        check(cpu_cores_usable() == want, "cpu.max %s: %d", quotas[i].max, cpu_cores_usable());
    }
    put("/sys/fs/cgroup/outer/cpu.max", "100000 100000\n");
    check(cpu_cores_usable() == 1, "the outer group's quota holds too");
    put("/proc/self/cgroup", "0::/elsewhere\n");
    check(cpu_cores_usable() == all, "another group");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    check(cpu_cores_usable() == 1, "inside a container only the mount point is there");
    empty_root();
    put("/proc/self/cgroup", "3:cpuset:/a\n2:cpu,cpuacct:/a/b\n1:name=systemd:/a\n0::/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    check(cpu_cores_usable() == all, "version 1 without a quota");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
    check(cpu_cores_usable() == 1, "version 1 with one and a half");
    empty_root();
    put("/proc/self/cgroup", "no colon\n:\n::\n0:\n9999\n");
    check(cpu_cores_usable() == all, "nonsense in /proc/self/cgroup");
    empty_root();
}

/* Processors that are threads of one core count as one core. */
static void test_siblings(void)
{
    cpu_set_t set;
    int all = cpu_cores_usable(), first = -1, count = 0;
    if (sched_getaffinity(0, sizeof set, &set)) {
        skip("more processors than a cpu_set_t holds");
        return;
    }
    char list[64], path[96];
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) {
            first = first < 0 ? cpu : first;
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
            snprintf(list, sizeof list, count % 2 ? "%d-%d\n" : "%d,%d\n", first, cpu);
            put(path, list);
            count++;
        }
    check(all == count, "%d processors without topology, %d in the set", all, count);
    check(cpu_cores_usable() == 1, "all are threads of one core: %d", cpu_cores_usable());
    empty_root();
}

static void test_memory(void)
{
    cpu_root = "";
    uint64_t real = cpu_memory_available();
    cpu_root = root;
    check(real > 1 << 20, "%llu bytes", (unsigned long long)real);
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY}, space;
    getrlimit(RLIMIT_AS, &space);
    if (space.rlim_cur == none.rlim_cur)
        check(cpu_memory_available() == UINT64_MAX, "nothing tells");
    put("/proc/meminfo", "MemTotal: 100 kB\nMemAvailable:    5000 kB\nCommitLimit: 900 kB\nCommitted_AS: 400 kB\n");
    check(cpu_memory_available() == 5000 * 1024, "MemAvailable");
    put("/proc/sys/vm/overcommit_memory", "2\n");
    check(cpu_memory_available() == 500 * 1024, "strict overcommit");
    put("/proc/sys/vm/overcommit_memory", "0\n");
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/memory.max", "3000000\n");
    put("/sys/fs/cgroup/g/memory.current", "1000000\n");
    check(cpu_memory_available() == 2000000, "group's limit");
    put("/sys/fs/cgroup/g/memory.stat",
        "anon 5\nfile 900000\ninactive_file 300000\nactive_file 500000\nunevictable 0\n");
    check(cpu_memory_available() == 2800000, "page cache gives way");
    put("/sys/fs/cgroup/memory.max", "max\n");
    check(cpu_memory_available() == 2800000, "no limit above");
    put("/sys/fs/cgroup/g/memory.current", "9000000\n");
    check(cpu_memory_available() == 0, "over the limit");
    empty_root();
    put("/proc/self/statm", "1000 10 5 1 0 20 0\n");
    fflush(stdout);
    if (fork() == 0) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), limit = (uint64_t)64 << 30;
        if (space.rlim_max != none.rlim_cur && space.rlim_max < limit)
            limit = space.rlim_max;
        setrlimit(RLIMIT_AS, &(struct rlimit){limit, space.rlim_max});
        getrlimit(RLIMIT_AS, &space);
        _exit(space.rlim_cur != limit ? 2 : cpu_memory_available() != limit - 1000 * page);
    }
    int status = -1;
    wait(&status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        skip("this system keeps no address-space limit");
    else
        check(status == 0, "address-space limit: status %d", status);
    empty_root();
}

static void test_machine(void)
{
    strcpy(root, "/tmp/test_threads_XXXXXX");
    check(mkdtemp(root) != NULL, "%s", root);
    test_cores();
    test_siblings();
    test_memory();
    cpu_root = "";
    rmdir(root);
}

#else

static void test_machine(void)
{
    check(cpu_cores_usable() >= 1 && cpu_memory_available() > 1 << 20, "%d cores", cpu_cores_usable());
    skip("limits of groups and processors: Linux's");
}

#endif

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t n, grain;
    unsigned char *seen; /* [n] */
    atomic_size_t calls, wrong;
    int threads;
} Coverage;

static void cover(void *context, size_t begin, size_t end, int thread)
{
    Coverage *c = context;
    atomic_fetch_add(&c->calls, 1);
    if (begin % c->grain || end <= begin || end - begin > c->grain || end > c->n || thread < 0 ||
        thread >= c->threads || (end - begin < c->grain && end != c->n))
        atomic_fetch_add(&c->wrong, 1);
    for (size_t i = begin; i < end; i++)
        c->seen[i]++;
}

static uint32_t random_state = 12345;

static size_t random_below(size_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

static void test_cover(size_t n, size_t grain)
{
    Coverage c = {.n = n, .grain = grain, .seen = calloc(n + 1, 1), .threads = threads_count()};
    size_t once = 0;
    threads_for(n, grain, cover, &c);
    for (size_t i = 0; i < n; i++)
        once += c.seen[i] == 1;
    size_t chunks = (n + grain - 1) / grain;
    check(once == n && atomic_load(&c.wrong) == 0 && atomic_load(&c.calls) == chunks,
          "n %zu, grain %zu, %d threads: %zu once, %zu calls", n, grain, c.threads, once, atomic_load(&c.calls));
    free(c.seen);
}

/* Each thread sums in plain memory of its own, and the caller reads the sums after the loop: its end orders the two. */
typedef struct {
    size_t sums[64][16];
} Sums;

static void sum(void *context, size_t begin, size_t end, int thread)
{
    Sums *s = context;
    for (size_t i = begin; i < end; i++)
        s->sums[thread][0] += i;
}

static void test_quick_loops(int loops)
{
    Sums s = {0};
    size_t want = 0, got = 0;
    for (int i = 0; i < loops; i++) {
        size_t n = 1 + (size_t)i % 97, grain = 1 + (size_t)i % 5;
        threads_for(n, grain, sum, &s);
        want += n * (n - 1) / 2;
    }
    for (int t = 0; t < 64; t++)
        got += s.sums[t][0];
    check(got == want, "%d loops, %d threads: %zu, not %zu", loops, threads_count(), got, want);
}

static void sleep_a_little(void *context, size_t begin, size_t end, int thread)
{
    (void)context, (void)end, (void)thread;
    if (begin % 3 == 0)
        usleep(300);
}

/* Loops whose chunks take longer than threads spin, with pauses in which the workers go to sleep. */
static void test_sleepers(void)
{
    for (int i = 0; i < 20; i++) {
        threads_for(7, 1, sleep_a_little, NULL);
        usleep((useconds_t)(i % 4) * 100);
        test_cover(20, 3);
    }
}

static double processor_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void test_idle(void)
{
    usleep(5000);
    double before = processor_seconds();
    usleep(100000);
    double used = processor_seconds() - before;
    check(used < 0.02, "%d idle threads took %.0f ms of 100", threads_count(), 1e3 * used);
}

static void test_pool(int count)
{
    char err[512] = "";
    check(threads_start(count, err) == 0, "%s", err);
    check(threads_count() >= 1 && threads_count() <= count, "%d of %d", threads_count(), count);
    static const size_t shapes[][2] = {{0, 1},   {1, 1},   {1, 9},    {2, 1},     {3, 2},
                                       {16, 16}, {17, 16}, {1000, 1}, {100000, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        test_cover(shapes[i][0], shapes[i][1]);
    for (int i = 0; i < 200; i++)
        test_cover(random_below(300), 1 + random_below(40));
    test_quick_loops(3000);
    test_sleepers();
    test_idle();
}

static void *do_nothing(void *unused)
{
    return unused;
}

/* If the system grants no threads, loops still run. */
static void test_no_threads(void)
{
    if (watched()) {
        skip("sanitizers and valgrind need the memory that is denied here");
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char err[512];
        Sums s = {0};
        pthread_t probe;
        struct rlimit space = {(rlim_t)1 << 20, (rlim_t)1 << 20}; /* less than is mapped already */
        threads_stop();
        setrlimit(RLIMIT_AS, &space);
        if (!pthread_create(&probe, NULL, do_nothing, NULL))
            _exit(2); /* this system grants them all the same */
        if (threads_start(5, err) || threads_count() != 1)
            _exit(1);
        threads_for(100, 3, sum, &s);
        _exit(s.sums[0][0] != 4950);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        skip("the address-space limit does not stop new threads here");
    else
        check(status == 0, "no threads to be had: status %d", status);
}

int main(void)
{
    test_levels();
    test_machine();
    char err[512] = "";
    check(threads_start(0, err) == -1 && strstr(err, "at least 1"), "%s", err);
    check(threads_count() == 1, "no pool");
    test_cover(100, 7);
    test_no_threads();
    static const int counts[] = {1, 2, 3, 8, 2, 2, 17, 1};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        test_pool(counts[i]);
    threads_stop();
    threads_stop();
    test_cover(50, 4);
    return report("threads");
}
