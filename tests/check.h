/* The whole framework of the tests: check() counts, report() prints the closing line. */
#ifndef CHECK_H
#define CHECK_H

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks_passed, checks_failed, checks_skipped;

#define check(condition, ...)                                                \
    do {                                                                     \
        if (condition) {                                                     \
            checks_passed++;                                                 \
        } else {                                                             \
            checks_failed++;                                                 \
            printf("%s:%d: failed: %s: ", __FILE__, __LINE__, #condition);   \
            printf(__VA_ARGS__);                                             \
            printf("\n");                                                    \
        }                                                                    \
    } while (0)

static inline void skip(const char *what)
{
    checks_skipped++;
    printf("skipped: %s\n", what);
}

/* Does an emulator run this program? It is slow, so fewer ways to divide the same work will do. */
static inline int emulated(void)
{
    const char *emulator = getenv("EMULATOR");
    return emulator && *emulator;
}

#ifndef __has_feature /* clang's */
#define __has_feature(x) 0
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Does a sanitizer or valgrind watch? They need memory of their own, and bring a malloc() of their own. */
static inline int watched(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return SANITIZED || (preloaded && strstr(preloaded, "valgrind"));
}

static inline int report(const char *name)
{
    printf("%s: %d passed, %d failed, %d skipped\n", name, checks_passed, checks_failed, checks_skipped);
    return checks_failed > 0;
}

#endif
