/* The tests' whole framework: check() counts, report() prints the closing line. */
#ifndef CHECK_H
#define CHECK_H

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

static inline void skip(const char *what) {
    checks_skipped++;
    printf("skipped: %s\n", what);
}

static inline int report(const char *name) {
    printf("%s: %d passed, %d failed, %d skipped\n", name, checks_passed, checks_failed, checks_skipped);
    return checks_failed > 0;
}

#endif
