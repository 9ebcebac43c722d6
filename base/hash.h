/* Hashes of bytes, for hash tables in memory. */
#ifndef HASH_H
#define HASH_H

#include "base/base.h"

#define HASH_GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: multiplying by it spreads bits upwards */

/* Spread the bits of x over all 64. */
static inline uint64_t hash_mix(uint64_t x)
{
    x *= HASH_GOLDEN;
    return x ^ x >> 32;
}

/* A table whose keys come from outside should pass a seed that differs from run to run, such as the table's own
 * address: then nobody can write a file whose keys all collide. */
static inline uint64_t hash_bytes(const char *bytes, size_t length, uint64_t seed)
{
    uint64_t h = hash_mix(seed + length + 1), last = 0;
    for (; length >= 8; bytes += 8, length -= 8)
        h = hash_mix(h ^ load_u64(bytes));
    for (size_t i = 0; i < length; i++)
        last = last << 8 | (unsigned char)bytes[i];
    return hash_mix(h ^ last);
}

#endif
