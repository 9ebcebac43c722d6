/* SHA-256 (FIPS 180-4): 32 bytes that stand for any number of bytes. */
#ifndef CHECKPOINT_SHA256_H
#define CHECKPOINT_SHA256_H

#include "base/base.h"

typedef struct {
    uint32_t state[8];
    uint64_t length;           /* bytes so far */
    unsigned char pending[64]; /* the first length % 64: a block that is not yet full */
} Sha256;

void sha256_init(Sha256 *s);
void sha256_update(Sha256 *s, const void *bytes, size_t n);
void sha256_final(Sha256 *s, unsigned char digest[32]); /* s is used up */

void sha256_of(const void *bytes, size_t n, unsigned char digest[32]);
void sha256_hex(const unsigned char digest[32], char hex[65]); /* 64 lower-case digits, NUL-terminated */
int sha256_parse(const char *hex, unsigned char digest[32]);   /* 64 digits of either case; -1 if they are none */

typedef struct {
    const unsigned char *bytes;
    uint64_t length;
    unsigned char *digest; /* [32] */
} Sha256Task;
/* All of them, in parallel; sorts them by length. progress (or NULL) is told of bytes that were read; anything but 0
 * stops the work: then -1. */
int sha256_all(Sha256Task *tasks, size_t n, int (*progress)(void *context, uint64_t bytes), void *context);

/* The CPU's own SHA-256 instructions are used, unless cpu_level() is CPU_SCALAR. */
bool sha256_in_hardware(void);

#endif
