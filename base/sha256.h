/* SHA-256 (FIPS 180-4): a digest of 32 bytes for any number of bytes. */
#ifndef SHA256_H
#define SHA256_H

#include "base/base.h"
#include "base/file.h"

typedef struct {
    uint32_t state[8];
    uint64_t length;           /* bytes so far */
    unsigned char pending[64]; /* the length % 64 bytes of a block that is not yet full */
} Sha256;

void sha256_init(Sha256 *s);
void sha256_update(Sha256 *s, const void *bytes, size_t n);
void sha256_final(Sha256 *s, unsigned char digest[32]); /* s is used up */

void sha256_of(const void *bytes, size_t n, unsigned char digest[32]);
void sha256_hex(const unsigned char digest[32], char hex[65]); /* 64 lower-case digits, NUL-terminated */
int sha256_parse(const char *hex, unsigned char digest[32]);   /* 64 digits, of either case; -1 if one is not */

typedef struct {
    const unsigned char *bytes;
    uint64_t length;
    unsigned char *digest; /* [32] */
} Sha256Task;

/* Do n tasks in parallel; sorts them by length. progress may be NULL. Return -1 if it stopped the work. */
int sha256_all(Sha256Task *tasks, size_t n, FileProgress *progress, void *context);

/* Whether the CPU's own SHA-256 instructions are used: if it has them, and cpu_level() is not CPU_SCALAR. */
bool sha256_in_hardware(void);

#endif
