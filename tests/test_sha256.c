/* base/sha256.c: known digests, both codes at every length around two blocks, and digests as text. */
#include "base/base.h"

#include "base/cpu.h"
#include "base/sha256.h"
#include "check.h"

static const char *hex_of(const void *bytes, size_t n)
{
    static char hex[65];
    unsigned char digest[32];
    sha256_of(bytes, n, digest);
    sha256_hex(digest, hex);
    return hex;
}

static void test_sha256(void)
{
    static const struct {
        const char *text, *hex;
    } known[] = {/* FIPS 180-4's examples */
                 {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    static unsigned char a[1000000];
    CpuLevel best = cpu_level();
    for (int hardware = 0; hardware < 2; hardware++) {
        cpu_set_level(hardware ? best : CPU_SCALAR);
        check(hardware || !sha256_in_hardware(), "scalar means the portable code");
        for (size_t i = 0; i < 3; i++)
            check(!strcmp(hex_of(known[i].text, strlen(known[i].text)), known[i].hex), "\"%s\"", known[i].text);
        memset(a, 'a', sizeof a);
        check(!strcmp(hex_of(a, sizeof a), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
              "a million a");
    }
    if (!sha256_in_hardware())
        skip("no SHA-256 instructions here");
    for (size_t i = 0; i < 1000; i++)
        a[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t n = 0; n < 300; n++) { /* every length around two blocks, with both codes, in pieces */
        char portable[65];
        unsigned char digest[32];
        Sha256 s;
        cpu_set_level(CPU_SCALAR);
        snprintf(portable, sizeof portable, "%s", hex_of(a + n % 8, n));
        cpu_set_level(best);
        sha256_init(&s);
        for (size_t done = 0, step = 1; done < n; done += step, step = step * 3 % 71 + 1) {
            step = step < n - done ? step : n - done;
            sha256_update(&s, a + n % 8 + done, step);
        }
        sha256_final(&s, digest);
        char pieces[65];
        sha256_hex(digest, pieces);
        unsigned char back[32];
        check(!strcmp(portable, pieces) && sha256_parse(pieces, back) == 0 && !memcmp(back, digest, 32), "%zu bytes",
              n);
    }
    unsigned char digest[32];
    check(sha256_parse("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85", digest) != 0, "63 digits");
    check(sha256_parse("g3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", digest) != 0,
          "g is no digit");
}

int main(void)
{
    test_sha256();
    return report("sha256");
}
