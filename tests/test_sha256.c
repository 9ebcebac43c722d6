/* base/sha256.c: known digests, both codes at every length around two blocks, and digests as text. */
#include "base/base.h"

#include "base/cpu.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "check.h"

static const char *hex_of(const void *bytes, size_t n)
{
    static char hex[65];
    unsigned char digest[32];
    sha256_of(bytes, n, digest);
    sha256_hex(digest, hex);
    return hex;
}

static void test_sha256(void)
{
    static const struct {
        const char *text, *hex;
    } known[] = {/* FIPS 180-4's examples */
                 {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    static unsigned char a[1000000];
    CpuLevel best = cpu_level();
    for (int hardware = 0; hardware < 2; hardware++) {
        cpu_set_level(hardware ? best : CPU_SCALAR);
        check(hardware || !sha256_in_hardware(), "scalar means the portable code");
        for (size_t i = 0; i < 3; i++)
            check(!strcmp(hex_of(known[i].text, strlen(known[i].text)), known[i].hex), "\"%s\"", known[i].text);
        memset(a, 'a', sizeof a);
        check(!strcmp(hex_of(a, sizeof a), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
              "a million a");
    }
    if (!sha256_in_hardware())
        skip("no SHA-256 instructions here");
    for (size_t i = 0; i < 1000; i++)
        a[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t n = 0; n < 300; n++) { /* every length around two blocks, with both codes, in pieces */
        char portable[65];
        unsigned char digest[32];
        Sha256 s;
        cpu_set_level(CPU_SCALAR);
        snprintf(portable, sizeof portable, "%s", hex_of(a + n % 8, n));
        cpu_set_level(best);
        sha256_init(&s);
        for (size_t done = 0, step = 1; done < n; done += step, step = step * 3 % 71 + 1) {
            step = step < n - done ? step : n - done;
            sha256_update(&s, a + n % 8 + done, step);
        }
        sha256_final(&s, digest);
        char pieces[65];
        sha256_hex(digest, pieces);
        unsigned char back[32];
        check(!strcmp(portable, pieces) && sha256_parse(pieces, back) == 0 && !memcmp(back, digest, 32), "%zu bytes",
              n);
    }
    unsigned char digest[32];
    check(sha256_parse("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85", digest) != 0, "63 digits");
    check(sha256_parse("g3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", digest) != 0,
          "g is no digit");
}

static uint64_t told;

static int note(void *context, uint64_t bytes)
{
    told += bytes;
    return *(const bool *)context ? 1 : 0;
}

/* Many texts at once give what each gives alone, on any number of threads and by either code. */
static void test_all(void)
{
    enum { N = 40, MOST = 200000 };
    static unsigned char bytes[MOST], digests[N][32];
    static const int counts[] = {1, 3};
    char err[512];
    bool stop = false;
    CpuLevel best = cpu_level();
    for (size_t i = 0; i < MOST; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 251);
    for (int hardware = 0; hardware < 2; hardware++)
        for (size_t t = 0; t < COUNT_OF(counts); t++) {
            Sha256Task tasks[N];
            uint64_t total = 0;
            size_t wrong = 0;
            for (size_t i = 0; i < N; i++) {
                tasks[i] = (Sha256Task){bytes + i, i % 5 == 4 ? MOST / 2 - i : i * 29, digests[i]};
                total += tasks[i].length;
            }
            cpu_set_level(hardware ? best : CPU_SCALAR);
            check(threads_start(counts[t], err) == 0, "%s", err);
            told = 0;
            check(sha256_all(tasks, N, note, &stop) == 0 && (counts[t] > 1 ? told <= total : told == total),
                  "%zu of %zu bytes were told", (size_t)told, (size_t)total); /* one thread tells, for all */
            for (size_t i = 0; i < N; i++) {
                unsigned char alone[32];
                sha256_of(tasks[i].bytes, (size_t)tasks[i].length, alone);
                wrong += memcmp(alone, tasks[i].digest, 32) != 0;
            }
            check(wrong == 0, "%d threads: %zu digests differ", counts[t], wrong);
            stop = counts[t] == 1; /* of several threads, the one that tells may have nothing to do */
            check(sha256_all(tasks, N, note, &stop) == (stop ? -1 : 0), "progress stops the work");
            stop = false;
            check(sha256_all(tasks, N, NULL, NULL) == 0 && sha256_all(NULL, 0, note, &stop) == 0, "without progress");
        }
    threads_stop();
}

int main(void)
{
    test_sha256();
    test_all();
    return report("sha256");
}
