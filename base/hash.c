#include "base/hash.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

HashKey hash_new_key(void)
{
    HashKey key;
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    key.a = hash_mix((uint64_t)now.tv_nsec);
    key.b = hash_mix((uintptr_t)&key);
    if (getentropy(&key, sizeof key) != 0)
        return key; /* an old kernel: the time and an address must do */
    return key;
}

static inline uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* Aumasson and Bernstein's, with one round for each word and three in the end. */
uint64_t hash_bytes(const char *bytes, size_t length, HashKey key)
{
    uint64_t last = (uint64_t)length << 56;
    uint64_t v[4] = {key.a ^ 0x736f6d6570736575u, key.b ^ 0x646f72616e646f6du, key.a ^ 0x6c7967656e657261u,
                     key.b ^ 0x7465646279746573u};
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word = load_u64(bytes);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < length; i++)
        last |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
