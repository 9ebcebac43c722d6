#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

int fail(char err[512], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, 512, fmt, args);
    va_end(args);
    return -1;
}
