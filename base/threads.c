/* One pool of threads.
 *
 * A parallel loop is cut into chunks; `remaining` counts those that nobody has taken. A thread takes a chunk by
 * lowering `remaining` with compare-and-swap: if that succeeds, it owns chunk number chunks - remaining. The loop's
 * description is written only while nothing remains and every chunk is done, so the owner of a chunk may read it, and a
 * thread that the system has put aside between two chunks holds up nobody, however many loops go by.
 *
 * Threads that wait, for work or for the last chunks, spin for a short while and then sleep in the kernel: on Linux on
 * a futex, elsewhere on a condition variable. A thread that goes to sleep says so first and then looks once more; one
 * that has news writes it first and then looks for sleepers: so one of the two sees the other. No more workers are
 * woken than there are processors for.
 */
#include "base/threads.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "base/cpu.h"

/* ---- sleeping until a word changes ------------------------------------------------------------------------------- */

#if defined(__linux__) && !defined(THREADS_PORTABLE)

/* From <linux/futex.h>, which may be missing with a C library other than glibc. */
enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };

static void sleep_while(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void change_and_wake(atomic_uint *word, int sleepers)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

#else

static pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_changed = PTHREAD_COND_INITIALIZER;

static void sleep_while(atomic_uint *word, unsigned value)
{
    pthread_mutex_lock(&sleep_mutex);
    while (atomic_load(word) == value)
        pthread_cond_wait(&sleep_changed, &sleep_mutex);
    pthread_mutex_unlock(&sleep_mutex);
}

/* All words and sleepers share the condition variable, so all sleepers must wake and look. */
static void change_and_wake(atomic_uint *word, int sleepers)
{
    (void)sleepers;
    pthread_mutex_lock(&sleep_mutex);
    atomic_fetch_add(word, 1);
    pthread_cond_broadcast(&sleep_changed);
    pthread_mutex_unlock(&sleep_mutex);
}

#endif

#define SPIN_NANOSECONDS 40000
#define PAUSES_PER_LOOK 16

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

/* Fields that different threads write have cache lines of their own: two each, since lines are fetched in pairs. */
static struct {
    pthread_t *workers; /* [count - 1]; worker i has thread number i + 1 */
    int count;          /* threads, the caller included; 0: no pool */
    int asked;          /* how many the caller wanted */
    int at_once;        /* how many of them can run at the same time */

    _Alignas(128) ThreadsBody *body; /* the loop's description */
    void *context;
    size_t n, grain, chunks;

    _Alignas(128) atomic_size_t remaining; /* chunks that nobody has taken */
    _Alignas(128) atomic_size_t done;      /* chunks finished */

    _Alignas(128) atomic_uint call;    /* changes to wake sleeping workers */
    _Alignas(128) atomic_uint finish;  /* changes to wake a sleeping caller, which then looks at `done` */
    _Alignas(128) atomic_int sleepers; /* workers asleep, or about to be */
    atomic_bool caller_sleeps, stop;
} pool;

/* Take chunks of the current loop until none remains; return how many this thread did. */
static size_t work(int thread)
{
    size_t did = 0, r = atomic_load(&pool.remaining);
    while (r) {
        if (!atomic_compare_exchange_weak(&pool.remaining, &r, r - 1))
            continue;
        size_t begin = (pool.chunks - r) * pool.grain;
        pool.body(pool.context, begin, begin + MIN(pool.n - begin, pool.grain), thread);
        did++;
        r = atomic_load(&pool.remaining);
    }
    return did;
}

/* Spin until there is a chunk to take, or the pool ends; false when the time for that is over. */
static bool spin_for_work(void)
{
    int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(&pool.remaining, memory_order_relaxed) ||
                atomic_load_explicit(&pool.stop, memory_order_relaxed))
                return true;
            pause_cpu();
        }
    } while (nanoseconds() < end);
    return false;
}

static void sleep_for_work(void)
{
    atomic_fetch_add(&pool.sleepers, 1);
    unsigned call = atomic_load(&pool.call);
    if (!atomic_load(&pool.remaining) && !atomic_load(&pool.stop))
        sleep_while(&pool.call, call);
    atomic_fetch_sub(&pool.sleepers, 1);
}

static void *worker(void *number)
{
    int thread = (int)(intptr_t)number;
    while (!atomic_load(&pool.stop)) {
        size_t did = work(thread);
        if (did) {
            atomic_fetch_add(&pool.done, did);
            if (atomic_load(&pool.caller_sleeps))
                change_and_wake(&pool.finish, 1);
        } else if (!spin_for_work()) {
            sleep_for_work();
        }
    }
    return NULL;
}

/* Wake sleeping workers, but only as many as there are chunks and processors for. */
static void call_workers(void)
{
    int sleepers = atomic_load(&pool.sleepers);
    if (!sleepers)
        return;
    int wanted = (int)MIN(pool.chunks, (size_t)pool.at_once) - 1;
    int awake = pool.count - 1 - sleepers;
    if (wanted > awake)
        change_and_wake(&pool.call, wanted - awake);
}

static void wait_until_done(void)
{
    int64_t end = 0;
    for (int i = 1; atomic_load(&pool.done) != pool.chunks; i++) {
        pause_cpu();
        if (i % PAUSES_PER_LOOK)
            continue;
        int64_t now = nanoseconds();
        end = end ? end : now + SPIN_NANOSECONDS;
        if (now < end)
            continue;
        atomic_store(&pool.caller_sleeps, true);
        unsigned finish = atomic_load(&pool.finish);
        if (atomic_load(&pool.done) != pool.chunks)
            sleep_while(&pool.finish, finish);
        atomic_store(&pool.caller_sleeps, false);
    }
}

void threads_for(size_t n, size_t grain, ThreadsBody *body, void *context)
{
    grain = MAX(grain, 1);
    if (pool.count < 2 || n <= grain) {
        for (size_t begin = 0; begin < n; begin += grain) {
            body(context, begin, begin + MIN(n - begin, grain), 0);
            if (n - begin <= grain) /* begin + grain might overflow */
                break;
        }
        return;
    }
    pool.body = body;
    pool.context = context;
    pool.n = n;
    pool.grain = grain;
    pool.chunks = n / grain + (n % grain ? 1 : 0);
    atomic_store(&pool.done, 0);
    atomic_store(&pool.remaining, pool.chunks);
    call_workers();
    atomic_fetch_add(&pool.done, work(0));
    wait_until_done();
}

void threads_stop(void)
{
    if (!pool.count)
        return;
    atomic_store(&pool.stop, true);
    change_and_wake(&pool.call, INT_MAX);
    for (int i = 0; i < pool.count - 1; i++)
        pthread_join(pool.workers[i], NULL);
    free(pool.workers);
    pool.workers = NULL;
    pool.count = pool.asked = 0;
    atomic_store(&pool.stop, false);
}

/* Block the process's signals, so that workers leave them to the caller, but not those that a thread's own instructions
 * raise. */
static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < COUNT_OF(own); i++)
        sigdelset(&set, own[i]);
    pthread_sigmask(SIG_SETMASK, &set, before);
}

#define WORKER_STACK ((size_t)1 << 20) /* the default may be as small as `ulimit -s` */

int threads_start(int count, char err[512])
{
    if (count < 1)
        return fail(err, "%d threads: at least 1 is needed", count);
    if (pool.asked == count)
        return 0;
    threads_stop();
    pool.workers = calloc((size_t)count, sizeof *pool.workers);
    if (!pool.workers)
        return fail(err, "out of memory for %d threads", count);
    pool.asked = count;
    pool.count = 1;
    pool.at_once = cpu_threads_usable();
    sigset_t before;
    pthread_attr_t attributes;
    block_signals(&before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    while (pool.count < count &&
           !pthread_create(&pool.workers[pool.count - 1], &attributes, worker, (void *)(intptr_t)pool.count))
        pool.count++;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return 0;
}

int threads_count(void)
{
    return pool.count ? pool.count : 1;
}
