/* A .npy file, version 1.0:
 *
 *     6   0x93 "NUMPY"
 *     2   the version: 1, 0
 *     2   length of the text, little-endian
 *         the text: a Python dict of the numbers' type, their order and the shape, padded with spaces and ended by a
 *         newline, so that the data begins at a multiple of 64
 *         the data
 */
#include "checkpoint/npy.h"

#include <inttypes.h>
#include <stdlib.h>

#include "checkpoint/number.h"
#include "checkpoint/tensor.h"

#define BLOCK 1024 /* elements that are copied at a time */

static bool is_widened(Dtype dtype)
{
    return dtype == DTYPE_BF16 || (number_is_float(dtype) && dtype_bits(dtype) == 8);
}

static const char *type_name(Dtype dtype)
{
    static const char names[DTYPE_COUNT][4] = {
        [DTYPE_BOOL] = "|b1", [DTYPE_U8] = "|u1",  [DTYPE_I8] = "|i1",  [DTYPE_I16] = "<i2", [DTYPE_U16] = "<u2",
        [DTYPE_F16] = "<f2",  [DTYPE_I32] = "<i4", [DTYPE_U32] = "<u4", [DTYPE_F32] = "<f4", [DTYPE_C64] = "<c8",
        [DTYPE_F64] = "<f8",  [DTYPE_I64] = "<i8", [DTYPE_U64] = "<u8",
    };
    return names[is_widened(dtype) ? DTYPE_F32 : dtype];
}

static int write_header(const Slice *s, FILE *f, char err[512])
{
    size_t rank = slice_rank(s), used;
    char *text;
    FILE *out = open_memstream(&text, &used);
    if (!out)
        return tensor_fail(err, NULL, s->tensor, "out of memory for the header of a NumPy file");
    fprintf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (", type_name(s->tensor->dtype));
    for (size_t i = 0; i < rank; i++)
        fprintf(out, "%s%" PRIu64, i ? ", " : "", slice_size(s, i));
    fputs(rank == 1 ? ",), }" : "), }", out); /* (3,) is a tuple, (3) is not */
    if (text_close_stream(out, &text) != 0)
        return tensor_fail(err, NULL, s->tensor, "out of memory for the header of a NumPy file");
    size_t length = (10 + used + 1 + 63) / 64 * 64 - 10;
    if (length > UINT16_MAX) {
        free(text);
        return tensor_fail(err, NULL, s->tensor, "%zu axes are too many for a NumPy file", rank);
    }
    unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    fwrite(start, 1, sizeof start, f);
    fprintf(f, "%-*s\n", (int)length - 1, text);
    free(text);
    return 0;
}

int npy_write(const Slice *s, FILE *f, char err[512])
{
    Dtype dtype = s->tensor->dtype;
    size_t size = dtype_bits(dtype) / 8, n;
    unsigned char bytes[8 * BLOCK];
    double x[BLOCK];
    float y[BLOCK];
    if (write_header(s, f, err) != 0)
        return -1;
    for (uint64_t at = 0; at < s->elements && !ferror(f); at += n) {
        n = (size_t)MIN(s->elements - at, BLOCK);
        if (slice_gather(s, at, n, bytes, err) != 0)
            return -1;
        if (!is_widened(dtype)) {
            fwrite(bytes, size, n, f);
            continue;
        }
        number_decode(dtype, bytes, n, x);
        for (size_t i = 0; i < n; i++)
            y[i] = (float)x[i];
        fwrite(y, sizeof *y, n, f);
    }
    return 0;
}
