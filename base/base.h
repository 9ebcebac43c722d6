/* What every file of the program starts from; each header includes it before anything else. */
#ifndef BASE_H
#define BASE_H

/* Must be defined before the first system header: POSIX and what glibc adds to it, and sizes of files that do not end
 * at 2 GB where a long has 32 bits. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64
#endif

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a checkpoint's numbers are little-endian and are computed with as they lie: this machine is big-endian"
#endif

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "floats are computed in a wider type here, with other results: on 32-bit x86 build with -msse2 -mfpmath=sse"
#endif

/* A multiplication and an addition become one instruction only where the code says fma(): results must not depend on
 * the compiler. The Makefile's -ffp-contract=off says the same; this is for a bare `cc`. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

/* Each argument may be evaluated twice: pass values, not calls with effects. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* Eight bytes, wherever they lie in memory, as one number: the first byte is its lowest. */
static inline uint64_t load_u64(const void *bytes)
{
    uint64_t n;
    __builtin_memcpy(&n, bytes, sizeof n);
    return n;
}

/* Write one sentence into the caller's error buffer and return -1, so that a failure is one line: return fail(...). */
__attribute__((format(printf, 2, 3))) int fail(char err[512], const char *fmt, ...);

#endif
