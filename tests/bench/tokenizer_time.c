/* Times the tokenizer, for tokenizer.py: tokenizer_time TOKENIZER IDS_OUT TEXT...
 *
 * Each TEXT is a file of documents, each ended by a NUL. Of every text the first document is encoded once without being
 * measured, then all of them. Prints JSON: the milliseconds to open the tokenizer and the seconds of each text, both in
 * CPU time. All ids go to IDS_OUT, 32 bits each in this machine's byte order.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer.h"

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const char *what)
{
    fprintf(stderr, "tokenizer_time: %s\n", what);
    exit(1);
}

/* Read the whole file; the caller frees it. */
static char *read_file(const char *path, size_t *length)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        stop(path);
    *length = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*length + 1);
    if (!bytes || fread(bytes, 1, *length, f) != *length)
        stop(path);
    fclose(f);
    return bytes;
}

static void encode(Tokenizer *t, const char *text, size_t length, IdList *ids)
{
    char err[512];
    if (tokenizer_encode(t, text, length, true, ids, err))
        stop(err);
}

/* Seconds for all documents of one text. */
static double time_text(Tokenizer *t, const char *bytes, size_t length, IdList *ids)
{
    encode(t, bytes, strlen(bytes), ids);
    ids->count = 0;
    double start = cpu_seconds();
    for (size_t at = 0, size; at < length; at += size + 1) {
        size = strlen(bytes + at);
        encode(t, bytes + at, size, ids);
    }
    return cpu_seconds() - start;
}

int main(int argc, char **argv)
{
    char err[512];
    if (argc < 4)
        stop("usage: tokenizer_time TOKENIZER IDS_OUT TEXT...");
    double start = cpu_seconds();
    Tokenizer *t = tokenizer_open(argv[1], err);
    if (!t)
        stop(err);
    printf("{\"open_ms\":%.3f,\"seconds\":[", 1e3 * (cpu_seconds() - start));
    FILE *out = fopen(argv[2], "wb");
    if (!out)
        stop(argv[2]);
    for (int i = 3; i < argc; i++) {
        size_t length;
        IdList ids = {0};
        char *bytes = read_file(argv[i], &length);
        if (!length || bytes[length - 1])
            stop("a text that doesn't end with NUL");
        printf("%s%.6f", i > 3 ? "," : "", time_text(t, bytes, length, &ids));
        fwrite(ids.items, sizeof *ids.items, ids.count, out);
        free(bytes);
        id_list_free(&ids);
    }
    printf("]}\n");
    tokenizer_close(t);
    return fclose(out) != 0;
}
