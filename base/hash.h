/* Hashes of bytes for tables in memory. */
#ifndef HASH_H
#define HASH_H

#include "base/base.h"

#include <string.h>

#define HASH_GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: multiplying by it spreads the bits */

static inline uint64_t hash_mix(uint64_t x)
{
    x *= HASH_GOLDEN;
    return x ^ x >> 32;
}

/* A table that outsiders fill takes a seed that differs from run to run, such as its own address: no file can then be
 * made so that its names collide. */
static inline uint64_t hash_bytes(const char *bytes, size_t length, uint64_t seed)
{
    uint64_t h = hash_mix(seed + length + 1), last = 0;
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t eight;
        memcpy(&eight, bytes, 8);
        h = hash_mix(h ^ eight);
    }
    for (size_t i = 0; i < length; i++)
        last = last << 8 | (unsigned char)bytes[i];
    return hash_mix(h ^ last);
}

#endif
