/* What an element's bytes mean, for every dtype: reading, exact arithmetic, and writing with a single correct
 * rounding. */
#ifndef CHECKPOINT_NUMBER_H
#define CHECKPOINT_NUMBER_H

#include "base/base.h"
#include "safetensors.h"

/* A real number. Whole ones of up to 64 bits are exact whatever their type. */
typedef struct {
    double value; /* the nearest double */
    double odd; /* of a number between two doubles the one whose last bit is 1: rounding that again is rounding once */
    bool whole; /* then its value is (negative ? -1 : 1) * magnitude */
    bool negative;
    uint64_t magnitude;
} Number;

typedef enum { NUMBER_SET, NUMBER_SCALE, NUMBER_ADD } NumberOperation;

int number_parse(Number *n, const char *text, char err[512]);  /* decimal, hexadecimal, inf, nan */
Number number_read(Dtype dtype, const unsigned char *element); /* of C64 the real part */
/* Write n rounded to the dtype: to nearest, ties to even. -1 and the reason when it cannot be: too large, a fraction or
 * NaN for an integer, a sign where there is none. The imaginary part of a C64 becomes 0. */
int number_write(Dtype dtype, unsigned char *element, const Number *n, char err[512]);
/* element = v, element * v, element + v; computed exactly, then rounded once. NaN stays as it is. */
int number_apply(Dtype dtype, NumberOperation operation, const Number *v, unsigned char *element, char err[512]);
/* The fewest digits that read back the same; those of 16- and 8-bit floats do so as float32. */
const char *number_text(Dtype dtype, const unsigned char *element, char out[64]);

/* Read n elements as doubles; U64 and I64 are rounded. Of C64 these are 2n: real and imaginary parts in turn. */
void number_decode(Dtype dtype, const unsigned char *in, size_t n, double *out);
size_t number_parts(Dtype dtype); /* numbers that an element has: 2 for C64, else 1 */

bool number_is_float(Dtype dtype); /* false for floats smaller than a byte, too */
/* How many bits of a float are its exponent and its mantissa. Its sign, if it has one, comes first. False if
 * number_is_float() is. */
bool number_float_layout(Dtype dtype, int *exponent_bits, int *mantissa_bits);

#endif
