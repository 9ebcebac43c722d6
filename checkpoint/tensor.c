#include "checkpoint/tensor.h"

#include <stdarg.h>
#include <string.h>

int tensor_fail(char err[512], const char *file, const SafetensorsTensor *t, const char *fmt, ...)
{
    char name[TEXT_PRINTABLE], path[TEXT_PRINTABLE];
    int used = snprintf(err, 512, "%s%stensor \"%s\": ", file ? path_printable(file, path) : "", file ? ": " : "",
                        text_printable(t->name, t->name_length, name));
    va_list args;
    va_start(args, fmt);
    vsnprintf(err + used, 512 - (size_t)used, fmt, args);
    va_end(args);
    return -1;
}

bool tensor_layer(const SafetensorsTensor *t, uint64_t *layer)
{
    const char *name = t->name;
    for (size_t begin = 0, end, n = t->name_length; begin < n; begin = end + 1) {
        uint64_t number = 0;
        for (end = begin; end < n && name[end] >= '0' && name[end] <= '9'; end++)
            number = number * 10 + (uint64_t)(name[end] - '0');
        size_t digits = end - begin;
        if (digits > 0 && digits < 19 && (end == n || name[end] == '.')) {
            *layer = number;
            return true;
        }
        while (end < n && name[end] != '.')
            end++;
    }
    return false;
}

bool tensor_same_shape(const SafetensorsTensor *a, const SafetensorsTensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}
