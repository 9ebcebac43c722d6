/* Stop texts against a search from the start at each byte. */
#include "base/base.h"

#include <string.h>

#include "base/clock.h"
#include "check.h"
#include "generate/stops.h"

static uint32_t random_below(uint32_t n)
{
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return (state >> 16) % n;
}

/* Where the first of the texts begins that end in answer[from, to); SIZE_MAX if none does. */
static size_t search(const char *const *texts, size_t n, const char *answer, size_t from, size_t to)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < n; i++)
        for (size_t at = 0, length = strlen(texts[i]); length && at + length <= to; at++)
            if (at + length > from && memcmp(answer + at, texts[i], length) == 0)
                first = MIN(first, at);
    return first;
}

/* How many of the last bytes of the answer one of the texts begins with, but not all of it. */
static size_t begun(const char *const *texts, size_t n, const char *answer, size_t length)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 1; k < strlen(texts[i]) && k <= length; k++)
            if (memcmp(answer + length - k, texts[i], k) == 0)
                most = MAX(most, k);
    return most;
}

static void test_random_texts(void)
{
    size_t found = 0, waiting = 0;
    for (int round = 0; round < 2000; round++) {
        char text[3][9] = {{0}}, answer[40];
        const char *const texts[] = {text[0], text[1], text[2]};
        size_t n = random_below(4), at = 0, first = SIZE_MAX;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0, length = random_below(9); k < length; k++)
                text[i][k] = (char)('a' + random_below(2));
        Stops stops = {0};
        check(stops_begin(&stops, texts, n) == 0, "memory");
        while (at < 30 && first == SIZE_MAX) {
            size_t piece = 1 + random_below(5);
            for (size_t k = 0; k < piece; k++)
                answer[at + k] = (char)('a' + random_below(2));
            first = stops_read(&stops, answer + at, piece, at);
            size_t expected = search(texts, n, answer, at, at + piece);
            check(first == expected, "%s %s %s in %.*s: %zu, not %zu", text[0], text[1], text[2], (int)(at + piece),
                  answer, first, expected);
            at += piece;
            if (first == SIZE_MAX) {
                size_t most = begun(texts, n, answer, at);
                check(stops_begun(&stops) == most, "%s %s %s in %.*s: %zu begun, not %zu", text[0], text[1], text[2],
                      (int)at, answer, stops_begun(&stops), most);
                waiting += most > 0;
            }
        }
        found += first != SIZE_MAX;
        stops_free(&stops);
    }
    check(found > 500 && waiting > 500, "%zu found, %zu begun", found, waiting);
}

/* Texts that nearly fit at every byte: comparing them anew would take 10^10 steps. */
static void test_long_texts(void)
{
    enum { N = 200000 };
    char *text = malloc(N + 2);
    if (!text)
        return;
    memset(text, 'a', N);
    memcpy(text + N, "b", 2);
    Stops stops = {0};
    double start = clock_seconds();
    check(stops_begin(&stops, (const char *const *)&text, 1) == 0, "memory");
    for (size_t i = 0; i < 3 * N; i++)
        if (stops_read(&stops, "a", 1, i) != SIZE_MAX || stops_begun(&stops) != MIN(i + 1, N))
            check(0, "byte %zu", i);
    check(stops_read(&stops, "b", 1, 3 * N) == 2 * N, "the end");
    check(clock_seconds() - start < 5, "%.1f seconds", clock_seconds() - start);
    stops_free(&stops);
    free(text);
}

int main(void)
{
    test_random_texts();
    test_long_texts();
    return report("stops");
}
