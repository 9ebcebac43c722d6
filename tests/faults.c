/* Lets allocations and system calls fail, one in each run: what tests/fault.c is for calls that change files, this is
 * for memory, reading and threads.
 *
 * As a library for LD_PRELOAD (cc -shared): the calls of FAULT_GROUP are counted from 1, and number FAULT_AT fails.
 *     memory   malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap: ENOMEM
 *     files    open and fopen for reading, read, pread, fread, stat, fstat, copy_file_range: EIO
 *     stale    the same, and all that come after it: ESTALE
 *     short    read, pread, copy_file_range: half of what was asked for
 *     end      the same: nothing, as at the end of a file
 *     cut      nothing fails, but the file FAULT_FILE becomes FAULT_BYTES long
 *     swap     nothing fails, but the file FAULT_OTHER takes the name FAULT_FILE
 *     writes   open for writing, write, pwrite, fsync, ftruncate: EIO
 *     threads  pthread_create: EAGAIN
 * For cut and swap clock_gettime and mmap count, too: they are moments between the calls that read. FAULT_COUNT names a
 * file that gets the number of calls.
 *
 * As a program (-DROOMS, linked with the rooms): each room's functions with each allocation failing in turn. They must
 * fail with a sentence, or succeed, and leave no memory behind.
 */
#include "base/base.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

typedef enum { NONE, MEMORY, FILES, STALE, SHORT, END, CUT, SWAP, WRITES, THREADS } Group;

static Group group;
static atomic_long calls, fail_at, blocks; /* blocks: allocated and not freed */

static bool fails(Group g, int error)
{
    if (g != group || atomic_fetch_add(&calls, 1) + 1 != fail_at)
        return false;
    errno = error;
    return true;
}

/* What happens at a call that reads *n bytes, or (NULL) at one of another kind. */
static bool read_fails(size_t *n)
{
    if (group < FILES || group > SWAP || (!n && (group == SHORT || group == END)))
        return false;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (!fail_at || (group == STALE ? call < fail_at : call != fail_at))
        return false;
    if (group == SHORT)
        *n = (*n + 1) / 2;
    if (group == END)
        *n = 0;
    if (group == CUT && truncate(getenv("FAULT_FILE"), atol(getenv("FAULT_BYTES"))) != 0)
        abort();
    if (group == SWAP && rename(getenv("FAULT_OTHER"), getenv("FAULT_FILE")) != 0)
        abort();
    errno = group == FILES ? EIO : group == STALE ? ESTALE : errno;
    return group == FILES || group == STALE;
}

/* A moment at which a file can change. */
static void moment(void)
{
    if (group == CUT || group == SWAP)
        read_fails(NULL);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&blocks, 1);
    return p;
}

void *malloc(size_t n)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (fails(MEMORY, ENOMEM))
        return NULL;
    void *q = __libc_realloc(p, n);
    return p ? q : counted(q);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    void *q = aligned_alloc(alignment, n);
    if (q)
        *p = q;
    return q ? 0 : ENOMEM;
}

void free(void *p)
{
    if (p)
        atomic_fetch_sub(&blocks, 1);
    __libc_free(p);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    moment();
    return fails(MEMORY, ENOMEM) ? MAP_FAILED : REAL(mmap)(at, n, protection, flags, fd, offset);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT ? va_arg(args, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return (flags & O_CREAT ? fails(WRITES, EIO) : read_fails(NULL)) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return (mode[0] == 'r' ? read_fails(NULL) : fails(WRITES, EIO)) ? NULL : REAL(fopen)(path, mode);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    return read_fails(&n) ? -1 : REAL(read)(fd, bytes, n);
}

/* Reading /proc/self/mem at 0 is EIO, which the stream then finds by itself. */
size_t fread(void *restrict bytes, size_t size, size_t n, FILE *restrict f)
{
    if (read_fails(NULL)) {
        int bad = REAL(open)("/proc/self/mem", O_RDONLY);
        dup2(bad, fileno(f));
        close(bad);
    }
    return REAL(fread)(bytes, size, n, f);
}

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags)
{
    return read_fails(&n) ? -1 : REAL(copy_file_range)(in, from, out, to, n, flags);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    moment();
    return REAL(clock_gettime)(clock, t);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    return read_fails(&n) ? -1 : REAL(pread)(fd, bytes, n, offset);
}

int fstat(int fd, struct stat *info)
{
    return read_fails(NULL) ? -1 : REAL(fstat)(fd, info);
}

int stat(const char *restrict path, struct stat *restrict info)
{
    return read_fails(NULL) ? -1 : REAL(stat)(path, info);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return fd != 2 && fails(WRITES, EIO) ? -1 : REAL(write)(fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    return fails(WRITES, EIO) ? -1 : REAL(pwrite)(fd, bytes, n, offset);
}

int fsync(int fd)
{
    return fails(WRITES, EIO) ? -1 : REAL(fsync)(fd);
}

int ftruncate(int fd, off_t size)
{
    return fails(WRITES, EIO) ? -1 : REAL(ftruncate)(fd, size);
}

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*start)(void *),
                   void *restrict argument)
{
    return fails(THREADS, EAGAIN) ? EAGAIN : REAL(pthread_create)(thread, attributes, start, argument);
}

/* ---- as a library ------------------------------------------------------------------------------------------------ */

#ifndef ROOMS
__attribute__((constructor)) static void begin(void)
{
    static const char *const names[] = {"",    "memory", "files", "stale",  "short",
                                        "end", "cut",    "swap",  "writes", "threads"};
    const char *name = getenv("FAULT_GROUP"), *at = getenv("FAULT_AT");
    fail_at = at ? atol(at) : 0;
    for (Group g = MEMORY; name && g <= THREADS; g++)
        if (strcmp(name, names[g]) == 0)
            group = g;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAULT_COUNT");
    long n = calls;
    group = NONE;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", n);
        fclose(f);
    }
}
#else

/* ---- as a program ------------------------------------------------------------------------------------------------ */

#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"
#include "checkpoint/patch.h"
#include "generate/config.h"
#include "generate/generate.h"
#include "checkpoint/slice.h"
#include "base/threads.h"
#include "base/unicode.h"
#include "checkpoint/split.h"
#include "checkpoint/statistics.h"
#include "checkpoint/weights.h"
#include "check.h"

#define DEMO "tests/demo"

static char work[] = "/tmp/run-faults-XXXXXX";
static char *demo_config, *demo_generation;
static size_t config_length, generation_length;
static SafetensorsFile demo;
static Config config;
static Model model;
static Tokenizer *tokenizer;

/* Each does one thing and gives back all it got. 0, or -1 with a sentence in err. */

static int do_json(char err[512])
{
    static const char text[] = "{\"a\\n\":[1,2.5e3,\"x\\u00e9\",{\"b\":null}],\"c\":{\"d\":[[[]]]}}";
    JsonValue *v = json_parse(text, sizeof text - 1, err);
    json_free(v);
    return v ? 0 : -1;
}

static int do_config(char err[512])
{
    Config c = {0};
    int status = config_parse(&c, demo_config, config_length, "config.json", err);
    config_free(&c);
    return status;
}

static int do_generation(char err[512])
{
    GenerationConfig g;
    return generation_config_parse(&g, demo_generation, generation_length, "generation_config.json", err);
}

static int do_open(char err[512])
{
    Checkpoint c;
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status == 0)
        checkpoint_close(&c);
    return status;
}

static int do_read(char err[512])
{
    Checkpoint c;
    Config read = {0};
    int status = checkpoint_open(&c, DEMO "/model.safetensors", true, err);
    if (status == 0)
        status = checkpoint_read_config(&c, &read, err);
    config_free(&read);
    checkpoint_close(&c);
    return status;
}

static int do_weights(WeightMode mode, char err[512])
{
    TransformerWeights w = {.mode = mode};
    int status = weights_load(&demo, &config, w.mode, &w, err);
    snprintf(err, 512, "%s", demo.error);
    if (status == 0)
        weights_free(&w);
    return status;
}

static int do_f32(char err[512])
{
    return do_weights(MODE_F32, err);
}

static int do_bf16(char err[512])
{
    return do_weights(MODE_BF16, err);
}

static int do_q4(char err[512])
{
    return do_weights(MODE_Q4, err);
}

static int do_float(char err[512])
{
    float *values = safetensors_load_float(&demo, "model.norm.weight");
    snprintf(err, 512, "%s", demo.error);
    free(values);
    return values ? 0 : -1;
}

static int do_tokenizer(char err[512])
{
    Tokenizer *t = tokenizer_open(DEMO, err);
    if (t)
        tokenizer_close(t);
    return t ? 0 : -1;
}

static int do_encode(char err[512])
{
    static const char text[] = "Once upon a time e\xcc\x81 <|im_end|> \xff thequickbrownfoxjumpsoverthelazydogs 12345";
    IdList ids = {0};
    Text out = {0};
    int status = tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, err);
    if (status == 0 && (status = tokenizer_decode(tokenizer, ids.items, ids.count, false, &out)) != 0)
        snprintf(err, 512, "memory");
    text_free(&out);
    id_list_free(&ids);
    return status;
}

static int do_chat(char err[512])
{
    const Message turns[] = {{"user", "hello <|im_end|>", 4, 16}};
    IdList ids = {0};
    Text out = {0};
    int status = tokenizer_chat_text(tokenizer, turns, 1, true, &out, err);
    if (status == 0)
        status = tokenizer_chat_ids(tokenizer, turns, 1, true, true, &ids, err);
    text_free(&out);
    id_list_free(&ids);
    return status;
}

static int do_nfc(char err[512])
{
    size_t n;
    char *text = unicode_nfc("e\xcc\x81\xcc\xa3 \xe1\x84\x80\xe1\x85\xa1", 12, &n);
    snprintf(err, 512, "memory");
    free(text);
    return text ? 0 : -1;
}

static int do_generate(char err[512])
{
    static const int prompt[] = {1, 2, 3};
    RunState s = {0};
    Sampler sampler = {0};
    Generated g = {0};
    SampleOptions o = {.temperature = 1, .top_k = 5, .top_p = 0.9f, .repeat_penalty = 1.1f, .seed = 1};
    GenerateOptions how = {.max_tokens = 3, .stops = (const char *const[]){"zzz"}, .n_stops = 1};
    int status = run_state_init(&s, &config, 16, 4, false, err);
    if (status == 0)
        status = sampler_init(&sampler, &o, config.vocab_size, tokenizer_size(tokenizer), err);
    if (status == 0)
        status = generate(&model, &s, &sampler, tokenizer, prompt, 3, &how, &g, err);
    generated_free(&g);
    sampler_free(&sampler);
    run_state_free(&s);
    return status;
}

static int do_slice(char err[512])
{
    SafetensorsTensor t;
    Slice s = {0};
    Statistics stats;
    uint64_t bins[4];
    unsigned char bytes[16];
    int status = safetensors_find(&demo, "model.embed_tokens.weight", &t);
    if (status == 0)
        status = slice_parse(&s, "1:3,::-2", &t, err);
    if (status == 0)
        status = statistics_compute(&s, &stats, err);
    if (status == 0)
        status = statistics_histogram(&s, -1, 1, bins, 4, err);
    if (status == 0)
        status = slice_gather(&s, 1, 4, bytes, err);
    slice_free(&s);
    return status;
}

static void path_of(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", work, name);
}

static int do_merge(char err[512])
{
    Checkpoint c;
    char path[256];
    path_of(path, "merged.safetensors");
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status != 0)
        return -1;
    status = split_merge(&c, path, NULL, NULL, err);
    checkpoint_close(&c);
    if (status != 0)
        check(access(path, F_OK) != 0, "a half-written file has its name");
    unlink(path);
    strcat(path, ".part");
    check(access(path, F_OK) != 0, "%s is left", path);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static int do_split(char err[512])
{
    Checkpoint c;
    char path[256];
    size_t shards;
    path_of(path, "parts");
    int status = checkpoint_open(&c, DEMO, false, err);
    if (status != 0)
        return -1;
    status = split_model(&c, path, 1000000, NULL, NULL, &shards, err);
    checkpoint_close(&c);
    check(status == 0 || access(path, F_OK) != 0, "a failed split left %s", path);
    long counted = calls;
    fail_at = 0;
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    calls = counted;
    return status;
}

/* An edit that was cut off before can be undone. */
static void put_back(const char *path)
{
    Checkpoint c;
    char err[512];
    size_t undone;
    Group g = group;
    group = NONE;
    if (edit_pending(path, err) && checkpoint_open(&c, path, false, err) == 0) {
        check(edit_undo(&c, &undone, err) == 0, "%s", err);
        checkpoint_close(&c);
    }
    group = g;
}

static int do_edit(char err[512])
{
    static const unsigned char one = 1;
    Checkpoint c;
    char path[256];
    size_t undone;
    path_of(path, "edited.safetensors");
    put_back(path);
    int status = checkpoint_open(&c, path, false, err);
    if (status != 0)
        return -1;
    Edit e = {0};
    const SafetensorsTensor *t = checkpoint_tensor(&c, 0);
    status = edit_begin(&e, &t, 1, false, err);
    if (status == 0)
        status = edit_bytes(&e, t, 3, &one, 1, err);
    if (status == 0)
        status = edit_commit(&e, err);
    edit_end(&e);
    if (status == 0)
        status = edit_undo(&c, &undone, err);
    checkpoint_close(&c);
    return status;
}

static int do_patch(char err[512])
{
    Checkpoint a, b;
    PatchSize size;
    char path[256];
    path_of(path, "edited.safetensors");
    int status = checkpoint_open(&a, path, false, err);
    if (status != 0)
        return -1;
    status = checkpoint_open(&b, path, false, err);
    path_of(path, "patch.safetensors");
    if (status == 0) {
        status = patch_write(&a, &b, path, NULL, NULL, &size, err);
        checkpoint_close(&b);
    }
    checkpoint_close(&a);
    unlink(path);
    return status;
}

static const struct {
    const char *name;
    int (*run)(char err[512]);
} things[] = {{"json_parse", do_json},
              {"config_parse", do_config},
              {"generation_config_parse", do_generation},
              {"checkpoint_open", do_open},
              {"checkpoint_open, read", do_read},
              {"weights f32", do_f32},
              {"weights bf16", do_bf16},
              {"weights q4", do_q4},
              {"load_float", do_float},
              {"tokenizer_open", do_tokenizer},
              {"encode, decode", do_encode},
              {"chat", do_chat},
              {"unicode_nfc", do_nfc},
              {"generate", do_generate},
              {"slice", do_slice},
              {"merge", do_merge},
              {"split", do_split},
              {"edit, undo", do_edit},
              {"patch", do_patch}};

/* Every allocation of it fails in turn, or with many every step-th; then it succeeds again. */
static long try_all(const char *name, int (*run)(char err[512]))
{
    char err[512];
    run(err); /* what is only allocated once, by the C library, too */
    calls = fail_at = 0;
    group = MEMORY;
    check(run(err) == 0, "%s: %s", name, err);
    long total = calls, step = total > 3000 ? total / 1000 : 1, tried = 0;
    for (long at = 1; at <= total; at += step, tried++) {
        long before = blocks;
        err[0] = '\0';
        calls = 0;
        fail_at = at;
        int status = run(err);
        fail_at = 0;
        check(blocks == before, "%s: allocation %ld of %ld fails: %ld blocks are left", name, at, total,
              blocks - before);
        check(status == 0 || err[0], "%s: allocation %ld of %ld fails without a sentence", name, at, total);
    }
    group = NONE;
    check(run(err) == 0, "%s afterwards: %s", name, err);
    return tried;
}

static void prepare(void)
{
    char err[512] = "", path[256];
    Checkpoint c;
    demo_config = file_read(DEMO "/config.json", 1 << 20, &config_length, err);
    demo_generation = file_read(DEMO "/generation_config.json", 1 << 20, &generation_length, err);
    tokenizer = tokenizer_open(DEMO, err);
    model.weights.mode = MODE_BF16;
    if (!demo_config || !demo_generation || !tokenizer || !mkdtemp(work) ||
        safetensors_open(DEMO "/model.safetensors", &demo) != 0 ||
        config_parse(&config, demo_config, config_length, "config.json", err) != 0 ||
        weights_load(&demo, &config, model.weights.mode, &model.weights, err) != 0 || threads_start(1, err) != 0 ||
        checkpoint_open(&c, DEMO, false, err) != 0) {
        printf("cannot begin: %s\n", err);
        exit(1);
    }
    model.config = config;
    path_of(path, "edited.safetensors");
    check(split_merge(&c, path, NULL, NULL, err) == 0, "%s", err);
    checkpoint_close(&c);
}

int main(void)
{
    long tried = 0;
    prepare();
    for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
        long n = try_all(things[i].name, things[i].run);
        printf("%s: %ld failing allocations\n", things[i].name, n);
        tried += n;
    }
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", work);
    if (system(command) != 0)
        printf("%s is left\n", work);
    printf("%ld failing allocations\n", tried);
    return report("faults in rooms");
}
#endif
