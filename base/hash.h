/* Hashes for hash tables in memory. Whoever writes the file that a table is filled from must not be able to choose keys
 * that all collide, so each table has a random key of its own. It decides where an entry lies, and nothing else. */
#ifndef HASH_H
#define HASH_H

#include "base/base.h"

#define HASH_GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: multiplying by it spreads bits upwards */

/* Spread the bits of x over all 64: where keys do not come from outside, or collisions cost nothing. */
static inline uint64_t hash_mix(uint64_t x)
{
    x *= HASH_GOLDEN;
    return x ^ x >> 32;
}

typedef struct {
    uint64_t a, b;
} HashKey;
HashKey hash_new_key(void);

/* SipHash-1-3: without the key, nobody can find texts that collide more often than by chance. All bits are good. */
uint64_t hash_bytes(const char *bytes, size_t length, HashKey key);

/* The upper bits of the result are the hash: for a random key, any two pairs agree in the upper k bits with a
 * probability of about 1 in 2^k (Thorup, High Speed Hashing for Integers and Strings). */
static inline uint64_t hash_pair(uint32_t x, uint32_t y, HashKey key)
{
    return (key.a + x) * (key.b + y);
}

#endif
