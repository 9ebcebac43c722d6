/* Our verdicts on files, for safetensors_verdicts.py. Files come on standard input, each as its length (4 bytes,
 * little-endian) and its bytes. The answer to each is "reject SENTENCE", or "accept N" and N lines: a tensor's name in
 * hex, dtype, shape, and a hash (FNV-1a) of its bytes. */
#include "base/base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "safetensors.h"

static void print_tensor(const SafetensorsTensor *t)
{
    const unsigned char *bytes = safetensors_data(t);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < t->name_length; i++)
        printf("%02x", (unsigned char)t->name[i]);
    printf(" %s [", dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank; i++)
        printf("%s%" PRIu64, i ? "," : "", t->shape[i]);
    for (uint64_t i = 0; i < t->length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    printf("] %016" PRIx64 "\n", hash);
}

int main(void)
{
    unsigned char length[4];
    char path[64];
    int fd = memfd_create("file", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    while (fread(length, 4, 1, stdin) == 1) {
        size_t n = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
        char *bytes = malloc(n + 1);
        SafetensorsFile st = {0};
        if (!bytes || fread(bytes, 1, n, stdin) != n || ftruncate(fd, (off_t)n) != 0 ||
            pwrite(fd, bytes, n, 0) != (ssize_t)n)
            return 1;
        if (safetensors_open(path, &st) != 0)
            printf("reject %s\n", st.error);
        else
            printf("accept %zu\n", st.n_tensors);
        for (size_t i = 0; i < st.n_tensors; i++)
            print_tensor(&st.tensors[i]);
        safetensors_close(&st);
        free(bytes);
    }
    return 0;
}
