/* SHA-256: blocks of 64 bytes are compressed, one after the other, into a state of eight 32-bit words a..h.
 *
 * A block's 16 words, most significant byte first, are expanded to 64:
 *     w[t] = s1(w[t-2]) + w[t-7] + s0(w[t-15]) + w[t-16]
 *     s0(x) = x>>>7 ^ x>>>18 ^ x>>3,   s1(x) = x>>>17 ^ x>>>19 ^ x>>10
 * and each of them, with its constant k[t], makes one round:
 *     t1 = h + (e>>>6 ^ e>>>11 ^ e>>>25) + (e & f ^ ~e & g) + k[t] + w[t]
 *     t2 = (a>>>2 ^ a>>>13 ^ a>>>22) + (a & b ^ a & c ^ b & c)
 *     (a, b, c, d, e, f, g, h) = (t1 + t2, a, b, c, d + t1, e, f, g)
 * and the result is added to the state. The message is padded with a bit 1, zeros, and its length in bits.
 */
#include "base/sha256.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/threads.h"

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* ---- the definition ---------------------------------------------------------------------------------------------- */

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress_portable(uint32_t state[8], const unsigned char *p, size_t blocks)
{
    for (; blocks; blocks--, p += 64) {
        uint32_t w[64];
        for (int t = 0; t < 16; t++)
            w[t] = (uint32_t)p[4 * t] << 24 | (uint32_t)p[4 * t + 1] << 16 | (uint32_t)p[4 * t + 2] << 8 | p[4 * t + 3];
        for (int t = 16; t < 64; t++) {
            uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
            uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
            w[t] = s1 + w[t - 7] + s0 + w[t - 16];
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
                 h = state[7];
        for (int t = 0; t < 64; t++) {
            uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + k[t] + w[t];
            uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const uint32_t result[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++)
            state[i] += result[i];
    }
}

/* ---- faster, same answer ----------------------------------------------------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <immintrin.h>

/* The instructions keep the state in two registers, {a b e f} and {c d g h}, and do two rounds each; m[] has the last
 * 16 w[t]. */
__attribute__((target("sha,sse4.1"))) static void compress_hardware(uint32_t state[8], const unsigned char *p,
                                                                    size_t blocks)
{
    const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
    for (; blocks; blocks--, p += 64) {
        __m128i abef0 = abef, cdgh0 = cdgh, m[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), swap);
            } else {
                __m128i seventh = _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4);
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(m[i & 3], m[(i + 1) & 3]), seventh);
                m[i & 3] = _mm_sha256msg2_epu32(sum, m[(i + 3) & 3]);
            }
            __m128i wk = _mm_add_epi32(m[i & 3], _mm_loadu_si128((const __m128i *)(const void *)(k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef0);
        cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool cpu_has_sha(void)
{
    unsigned a, b, c, d;
    bool sse41 = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSSE3) && (c & bit_SSE4_1);
    return sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}

#elif defined(__aarch64__) && (defined(__linux__) || defined(__ARM_FEATURE_SHA2))
#include <arm_neon.h>
#ifndef __ARM_FEATURE_SHA2
#include <sys/auxv.h>
#endif

#ifdef __clang__
#define WITH_SHA __attribute__((target("sha2")))
#else
#define WITH_SHA __attribute__((target("+crypto")))
#endif

WITH_SHA static void compress_hardware(uint32_t state[8], const unsigned char *p, size_t blocks)
{
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; blocks; blocks--, p += 64) {
        uint32x4_t abcd0 = abcd, efgh0 = efgh, m[4];
        for (int i = 0; i < 16; i++) {
            if (i < 4)
                m[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
            else
                m[i & 3] = vsha256su1q_u32(vsha256su0q_u32(m[i & 3], m[(i + 1) & 3]), m[(i + 2) & 3], m[(i + 3) & 3]);
            uint32x4_t wk = vaddq_u32(m[i & 3], vld1q_u32(k + 4 * i)), before = abcd;
            abcd = vsha256hq_u32(abcd, efgh, wk);
            efgh = vsha256h2q_u32(efgh, before, wk);
        }
        abcd = vaddq_u32(abcd, abcd0);
        efgh = vaddq_u32(efgh, efgh0);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}

static bool cpu_has_sha(void)
{
#ifdef __ARM_FEATURE_SHA2
    return true;
#else
    return getauxval(AT_HWCAP) & 1u << 6; /* HWCAP_SHA2 */
#endif
}

#else
#define compress_hardware compress_portable

static bool cpu_has_sha(void)
{
    return false;
}
#endif

bool sha256_in_hardware(void)
{
    static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
    if (!known)
        known = cpu_has_sha() ? 2 : 1;
    return known == 2 && cpu_level() != CPU_SCALAR;
}

/* ---- any number of bytes ----------------------------------------------------------------------------------------- */

void sha256_init(Sha256 *s)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, start, sizeof start);
    s->length = 0;
}

void sha256_update(Sha256 *s, const void *bytes, size_t n)
{
    void (*compress)(uint32_t *, const unsigned char *, size_t) =
        sha256_in_hardware() ? compress_hardware : compress_portable;
    const unsigned char *p = bytes;
    size_t used = s->length % 64, first = used ? 64 - used : 0;
    s->length += n;
    if (n < first || n == 0) {
        if (n)
            memcpy(s->pending + used, p, n);
        return;
    }
    if (first) {
        memcpy(s->pending + used, p, first);
        compress(s->state, s->pending, 1);
    }
    compress(s->state, p + first, (n - first) / 64);
    memcpy(s->pending, p + n - (n - first) % 64, (n - first) % 64);
}

void sha256_final(Sha256 *s, unsigned char digest[32])
{
    unsigned char end[72] = {0x80};
    uint64_t bits = s->length * 8;
    size_t zeros = (119 - s->length % 64) % 64;
    for (int i = 0; i < 8; i++)
        end[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_update(s, end, 9 + zeros);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_of(const void *bytes, size_t n, unsigned char digest[32])
{
    Sha256 s;
    sha256_init(&s);
    sha256_update(&s, bytes, n);
    sha256_final(&s, digest);
}

void sha256_hex(const unsigned char digest[32], char hex[65])
{
    for (int i = 0; i < 64; i++)
        hex[i] = "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    hex[64] = '\0';
}

int sha256_parse(const char *hex, unsigned char digest[32])
{
    memset(digest, 0, 32);
    for (int i = 0; i < 64; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = hex[i] ? strchr(digits, hex[i]) : NULL;
        if (!digit)
            return -1;
        int value = digit - digits < 16 ? (int)(digit - digits) : (int)(digit - digits) - 6;
        digest[i / 2] = (unsigned char)(digest[i / 2] << 4 | value);
    }
    return 0;
}

/* ---- many at a time ---------------------------------------------------------------------------------------------- */

#define PROGRESS_STEP ((uint64_t)1 << 20) /* bytes hashed between two reports */

typedef struct {
    const Sha256Task *tasks;
    FileProgress *progress;
    void *context;
    _Atomic uint64_t bytes; /* hashed, but not yet reported */
    _Atomic bool stopped;
} Work;

static void do_tasks(void *context, size_t begin, size_t end, int thread)
{
    Work *w = context;
    for (const Sha256Task *t = w->tasks + begin; t < w->tasks + end; t++) {
        Sha256 s;
        sha256_init(&s);
        for (uint64_t done = 0, n; done < t->length && !w->stopped; done += n) {
            n = MIN(t->length - done, PROGRESS_STEP);
            sha256_update(&s, t->bytes + done, (size_t)n);
            w->bytes += n;
            if (w->progress && thread == 0 && w->progress(w->context, atomic_exchange(&w->bytes, 0)) != 0)
                w->stopped = true;
        }
        sha256_final(&s, t->digest);
    }
}

static int compare_tasks(const void *a, const void *b)
{
    const Sha256Task *x = a, *y = b;
    if (x->length == y->length)
        return 0;
    return x->length < y->length ? 1 : -1;
}

int sha256_all(Sha256Task *tasks, size_t n, FileProgress *progress, void *context)
{
    Work w = {.tasks = tasks, .progress = progress, .context = context};
    qsort(tasks, n, sizeof *tasks,
          compare_tasks); /* the longest first, so that none is left to one thread at the end */
    threads_for(n, 1, do_tasks, &w);
    return w.stopped ? -1 : 0;
}
