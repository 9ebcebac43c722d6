/* The tokenizer: the reference's ids and texts, what a tokenizer.json may ask for, merging against its definition,
 * chat. */
#include "base/base.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unicode.h"
#include "check.h"
#include "json.h"
#include "tokenizer.h"
#include "tokenizer/internal.h"

#define SMALL "tests/data/tokenizer"

static char folder[256]; /* where the tests write files */

static char *read_text(const char *path, size_t *length)
{
    struct stat st;
    FILE *f = stat(path, &st) ? NULL : fopen(path, "rb");
    char *text = f ? malloc((size_t)st.st_size + 1) : NULL;
    *length = text ? fread(text, 1, (size_t)st.st_size, f) : 0;
    if (text)
        text[*length] = 0;
    if (f)
        fclose(f);
    return text;
}

static void write_text(const char *name, const char *text, size_t length)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, length, f) != length || fclose(f))
        exit(1);
}

static void remove_file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* How many bytes this process has mapped. */
static size_t mapped_memory(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    size_t pages = 0;
    if (f && fscanf(f, "%zu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* How many bytes are allocated now; 0 if the C library doesn't tell. */
static size_t memory_in_use(void)
{
#if defined __GLIBC__ && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

static Tokenizer *open_or_fail(const char *path)
{
    char err[512];
    Tokenizer *t = tokenizer_open(path, err);
    check(t != NULL, "%s", err);
    return t;
}

/* Opening and closing must not need more memory each time, whether it succeeds or not. (The C library counts some of
 * what was freed as in use, a little more the first few times.) */
static void check_leaks(const char *path)
{
    char err[512];
    size_t before = 0, after = 0;
    if (watched()) /* by what finds leaks itself */
        return;
    for (int i = 0; i < 6 || (i < 60 && after > before); i++) {
        before = memory_in_use();
        tokenizer_close(tokenizer_open(path, err));
        after = memory_in_use();
    }
    check(after <= before, "%s: %zu more bytes are in use", path, after - before);
}

/* The file of the small tokenizer, without blanks. */
static char *compact_tokenizer(void)
{
    char err[512], *out = NULL;
    size_t length, n = 0;
    char *text = read_text(SMALL "/tokenizer.json", &length);
    JsonValue *root = text ? json_parse(text, length, err) : NULL;
    FILE *f = open_memstream(&out, &n);
    if (!root || !f)
        exit(1);
    json_print(f, root, JSON_COMPACT);
    fclose(f);
    json_free(root);
    free(text);
    return out;
}

/* A fresh copy of the text with the first `from` replaced. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at) {
        check(0, "the test does not find %s", from);
        return strdup(text);
    }
    char *out = malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, (size_t)(at - text));
    memcpy(out + (at - text), to, strlen(to));
    memcpy(out + (at - text) + strlen(to), at + strlen(from), strlen(at) - strlen(from) + 1);
    return out;
}

/* ---- the reference's cases ---- */

static IdList ids_of(const JsonValue *list)
{
    IdList ids = {0};
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next) {
        uint64_t id = 0;
        json_u64(v, &id);
        id_list_append(&ids, id > INT32_MAX ? -1 : (int)id);
    }
    return ids;
}

static bool same_ids(const IdList *a, const IdList *b)
{
    return a->count == b->count && (a->count == 0 || memcmp(a->items, b->items, a->count * sizeof *a->items) == 0);
}

static bool same_text(const Text *text, const JsonValue *expected)
{
    return expected && text->length == expected->length &&
           (text->length == 0 || memcmp(text->bytes, expected->text, text->length) == 0);
}

/* A copy of the bytes that ends where nothing may be read. */
static const char *guarded(const char *bytes, size_t length)
{
    enum { SIZE = 1 << 16 };
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED || mprotect(pages + SIZE, SIZE, PROT_NONE))
            exit(1);
    }
    return length <= SIZE ? memcpy(pages + SIZE - length, bytes, length) : bytes;
}

/* Encodes twice: the second time, short words are in the cache. */
static bool encodes_as(Tokenizer *t, const char *text, size_t length, bool added, const IdList *expected)
{
    char err[512];
    bool same = true;
    for (int i = 0; i < 2 && same; i++) {
        IdList ids = {0};
        same = tokenizer_encode(t, guarded(text, length), length, added, &ids, err) == 0 && same_ids(&ids, expected);
        id_list_free(&ids);
    }
    return same;
}

static bool encodes(Tokenizer *t, const char *text, size_t length, const IdList *expected)
{
    return encodes_as(t, text, length, true, expected);
}

typedef bool Case(void *t, const JsonValue *row);

/* "plain" has the ids of the text if no added tokens are recognized. */
static bool encode_case(void *t, const JsonValue *row)
{
    const JsonValue *text = json_get(row, "text"), *plain = json_get(row, "plain");
    IdList expected = ids_of(json_get(row, "ids")), expected_plain = ids_of(plain);
    bool same = encodes(t, text->text, text->length, &expected) &&
                (!plain || encodes_as(t, text->text, text->length, false, &expected_plain));
    id_list_free(&expected);
    id_list_free(&expected_plain);
    return same;
}

static bool decode_case(void *t, const JsonValue *row)
{
    IdList ids = ids_of(json_get(row, "ids"));
    Text text = {0};
    bool skip_special = false;
    json_bool(json_get(row, "skip_special_tokens"), &skip_special);
    bool same =
        tokenizer_decode(t, ids.items, ids.count, skip_special, &text) == 0 && same_text(&text, json_get(row, "text"));
    text_free(&text);
    id_list_free(&ids);
    return same;
}

static Message *messages_of(const JsonValue *list)
{
    Message *messages = calloc(list->length + 1, sizeof *messages), *m = messages;
    for (const JsonValue *v = list->child; v; v = v->next, m++) {
        const JsonValue *role = json_get(v, "role"), *content = json_get(v, "content");
        *m = (Message){role->text, content->text, role->length, content->length};
    }
    return messages;
}

/* Conversations with tools are skipped. */
static bool chat_case(void *t, const JsonValue *row)
{
    const JsonValue *kind = json_get(row, "kind"), *list = json_get(row, "messages");
    if (kind && kind->length >= 4 && memcmp(kind->text, "tool", 4) == 0)
        return true;
    Message *messages = messages_of(list);
    IdList expected = ids_of(json_get(row, "ids"));
    Text text = {0};
    char err[512];
    bool prompt = false;
    json_bool(json_get(row, "add_generation_prompt"), &prompt);
    bool same = tokenizer_chat_text(t, messages, list->length, prompt, &text, err) == 0 &&
                same_text(&text, json_get(row, "text")) && encodes(t, text.bytes, text.length, &expected);
    text_free(&text);
    id_list_free(&expected);
    free(messages);
    return same;
}

/* Every step-th line of a file of cases. */
static void check_cases(void *t, const char *path, Case *is_right, size_t step)
{
    size_t length, count = 0, wrong = 0, line = 0;
    char err[512], *text = read_text(path, &length);
    check(text != NULL, "%s", path);
    for (char *at = text, *end; at && t && at < text + length; at = end + 1, line++) {
        end = memchr(at, '\n', (size_t)(text + length - at));
        if (!end)
            break;
        if (line % step)
            continue;
        JsonValue *row = json_parse(at, (size_t)(end - at), err);
        count++;
        if (!row || !is_right(t, row)) {
            wrong++;
            if (wrong <= 5)
                printf("%s: line %zu: %.100s\n", path, line + 1, at);
        }
        json_free(row);
    }
    check(count > 0 && wrong == 0, "%s: %zu of %zu cases are wrong", path, wrong, count);
    free(text);
}

/* ---- spellings and refusals ---- */

#define TEMPLATE(single, ids)                                                                                          \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"pair\":[],\"special_tokens\":{"     \
    "\"<|endoftext|>\":{\"id\":\"<|endoftext|>\",\"ids\":" ids ",\"tokens\":[\"<|endoftext|>\"]}}},\"decoder\""
#define BEGIN "{\"SpecialToken\":{\"id\":\"<|endoftext|>\",\"type_id\":0}}"
#define SEQUENCE "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define POST                                                                                                           \
    "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,"                    \
    "\"use_regex\":false},\"decoder\""
#define SPLIT "\"behavior\":\"Isolated\",\"invert\":false"

/* Changes to the file of the small tokenizer, and part of the sentence that then refuses it. */
static const struct {
    const char *from, *to, *want;
} refused[] = {
    {"\"NFC\"", "\"NFKC\"", "normalizer is {\"type\":\"NFKC\"}, which is not supported; expected {\"type\":\"NFC\"}"},
    {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}", "Lowercase"},
    {"\"type\":\"Split\"", "\"type\":\"Digits\"", "pretokenizers.0.type is \"Digits\""},
    {"\\\\s+(?!\\\\S)", "\\\\s+", "split pattern"},
    {"\"Regex\":", "\"String\":", "split pattern is missing"},
    {SPLIT, "\"behavior\":\"Removed\",\"invert\":false", "behavior is \"Removed\""},
    {SPLIT, "\"behavior\":\"Isolated\",\"invert\":true", "invert is true"},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space is true"},
    {"\"use_regex\":false", "\"use_regex\":true", "use_regex is true"},
    {",\"use_regex\":false", "", "use_regex is missing"},
    {"\"pre_tokenizer\":{", "\"pre_tokenizer\":null,\"x\":{", "pre_tokenizer.type is missing"},
    {"\"pretokenizers\":[", "\"pretokenizers\":[[],", "pretokenizers.0.type is missing"},
    {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"ByteFallback\"",
     "decoder.type is \"ByteFallback\""},
    {POST, "\"post_processor\":{\"type\":\"RobertaProcessing\"},\"decoder\"", "RobertaProcessing"},
    {POST, "\"post_processor\":{\"type\":\"Sequence\",\"processors\":7},\"decoder\"", "post_processor is"},
    {POST,
     "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":[" SEQUENCE
     "]},{\"type\":\"TemplateProcessing\",\"single\":[" SEQUENCE "]}]},\"decoder\"",
     "post_processor is"},
    {POST, TEMPLATE(SEQUENCE "," BEGIN, "[594]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," BEGIN "," SEQUENCE, "[594]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," SEQUENCE, "[594,595]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," SEQUENCE, "[600]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," SEQUENCE, "[-1]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," SEQUENCE, "{\"a\":594}"), "post_processor is"},
    {POST, TEMPLATE(BEGIN "," SEQUENCE, "\"5\""), "post_processor is"},
    {POST, TEMPLATE("{\"SpecialToken\":{\"id\":\"<|endoftexT|>\"}}," SEQUENCE, "[594]"), "post_processor is"},
    {POST, TEMPLATE("{\"SpecialToken\":{\"id\":7}}," SEQUENCE, "[594]"), "post_processor is"},
    {POST, TEMPLATE(BEGIN, "[594]"), "post_processor is"},
    {"\"BPE\"", "\"WordPiece\"", "model.type is \"WordPiece\", which is not supported; expected \"BPE\""},
    {"\"dropout\":null", "\"dropout\":0.1", "dropout is 0.1"},
    {"\"unk_token\":null", "\"unk_token\":\"<unk>\"", "unk_token is \"<unk>\""},
    {"\"continuing_subword_prefix\":\"\"", "\"continuing_subword_prefix\":\"##\"", "subword_prefix is \"##\""},
    {"\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"</w>\"", "word_suffix is \"</w>\""},
    {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback is true"},
    {"\"byte_fallback\":false", "\"ignore_merges\":true", "ignore_merges is true"},
    {"\"model\":", "\"modell\":", "it is not a tokenizer.json"},
    {"\"vocab\":{", "\"vocab\":[],\"x\":{", "the vocabulary is []"},
    {"\"vocab\":{", "\"vocab\":{},\"x\":{", "the vocabulary is {}"},
    {"\"vocab\":{", "\"x\":{", "the vocabulary is missing"},
    {"\"merges\":[", "\"merges\":{},\"x\":[", "model.merges is {}"},
    {"\"merges\":[", "\"merges\":[],\"x\":[", "has a vocabulary of 594 tokens, but no merges"},
    {"\"merges\":[", "\"x\":[", "model.merges is missing"},
    {"\"merges\":[", "\"merges\":[7,", "merge 0 is 7"},
    {"\"merges\":[", "\"merges\":[\"\",", "merge 0 is \"\""},
    {"\"merges\":[", "\"merges\":[\"a\",", "merge 0 is \"a\""},
    {"\"merges\":[", "\"merges\":[\"a b c\",", "merge 0 is \"a b c\""},
    {"\"merges\":[", "\"merges\":[\" a\",", "contains \"\","},
    {"\"merges\":[", "\"merges\":[\"a \",", "contains \"\","},
    {"\"merges\":[", "\"merges\":[\"a QQ\",", "contains \"QQ\","},
    {"\"merges\":[", "\"merges\":[\"! QQ\",", "contains \"QQ\","},
    {"\"merges\":[", "\"merges\":[\"QQ !\",", "contains \"QQ\","},
    {"\"merges\":[", "\"merges\":[\"Q q\",", "makes \"Qq\""},
    {"\"merges\":[", "\"merges\":[[\"a\"],", "merge 0 is [\"a\"]"},
    {"\"merges\":[", "\"merges\":[[\"i\",\"n\"],", "expected \"a b\" or [\"a\",\"b\"], and the same form for all"},
    {"\"merges\":[", "\"merges\":[[\"a\",\"b\",\"c\"],", "merge 0 is ["},
    {"\"merges\":[", "\"merges\":[[\"a\",7],", "merge 0 is [\"a\",7]"},
    {"\"!\":0", "\"!\":1", "has the id 1; expected 0 to 593, each for one token"},
    {"\"!\":0", "\"!\":-1", "id -1"},
    {"\"!\":0", "\"!\":594", "id 594; expected 0 to 593"},
    {"\"!\":0", "\"!\":2147483648", "id 2147483648"},
    {"\"!\":0", "\"!\":18446744073709551616", "id 18446744073709551616"},
    {"\"!\":0", "\"!\":0.0", "id 0.0"},
    {"\"!\":0", "\"!\":\"0\"", "id \"0\""},
    {"\"!\":0", "\"!\":null", "id null"},
    {"\"!\":0", "\"!\":[0]", "id [0]"},
    {"\"!\":0", "\"\\\"\":0", "listed twice"},
    {"\"id\":594", "\"id\":593", "is 593; expected 594"},
    {"\"id\":599", "\"id\":600", "is 600; expected 599"},
    {"\"id\":594", "\"id\":-1", "is -1; expected 594"},
    {"\"id\":594", "\"id\":2147483648", "is 2147483648; expected 594"},
    {"\"id\":594", "\"id\":4294967890", "is 4294967890; expected 594"},
    {"\"id\":594", "\"id\":\"594\"", "is \"594\"; expected 594"},
    {"\"id\":594,", "", "is missing; expected 594"},
    {"\"id\":594,\"content\":\"<|endoftext|>\"", "\"id\":594,\"content\":\"a\"", "is 594; expected 64"},
    {"\"special\":false}]",
     "\"special\":false},{\"id\":600,\"content\":\"x\",\"normalized\":true},"
     "{\"id\":601,\"content\":\"xy\",\"normalized\":true}]",
     "is 600; expected 87"},
    {"\"special\":false}]",
     "\"special\":false},{\"id\":600,\"content\":\"xy\",\"normalized\":true},"
     "{\"id\":601,\"content\":\"xy\",\"normalized\":true}]",
     "\"xy\" is listed twice"},
    {"\"special\":false}]",
     "\"special\":false},{\"id\":600,\"content\":\"e\u0301y\",\"normalized\":true},"
     "{\"id\":601,\"content\":\"\u00e9y\",\"normalized\":true}]",
     "y\" is listed twice"},
    {"<|im_end|>", "<|im_start|>", "\"<|im_start|>\" is listed twice"},
    {"\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "an added token is"},
    {"\"content\":\"<|endoftext|>\"", "\"content\":7", "an added token is"},
    {"\"added_tokens\":[", "\"added_tokens\":[7,", "an added token is 7"},
    {"\"added_tokens\":[", "\"added_tokens\":7,\"x\":[", "added_tokens is 7"},
    {"\"single_word\":false", "\"single_word\":true", "an added token is"},
    {"\"lstrip\":false", "\"lstrip\":true", "an added token is"},
    {"\"rstrip\":false", "\"rstrip\":true", "an added token is"},
    {"\"special\":true", "\"special\":1", "special is 1, which is not supported; expected true or false"},
    {"{", "[", "byte 10"},
    {"{", "", "byte 9"},
};

/* A file of 2^29 bytes is not too large, but there may not be enough memory for it. */
static void check_largest_file(const char *path)
{
    char err[512] = "";
    struct rlimit usual;
    getrlimit(RLIMIT_AS, &usual);
    struct rlimit little = {mapped_memory() + (1 << 26), usual.rlim_max};
    if (mapped_memory() >> 40) /* a sanitizer's */
        return;
    setrlimit(RLIMIT_AS, &little);
    check(truncate(path, (off_t)1 << 29) == 0 && !tokenizer_open(path, err) && !strstr(err, "at most"), "%s", err);
    setrlimit(RLIMIT_AS, &usual);
}

/* 256 tokens may be just the bytes; more than that without merges is a mistake. */
static void check_merges_needed(const char *json)
{
    for (int n = 255; n <= 257; n++) {
        char err[512] = "", *vocab = NULL;
        size_t length;
        FILE *f = open_memstream(&vocab, &length);
        for (int i = 0; i < n; i++)
            fprintf(f, "%s%d\":%d", i ? ",\"" : "\"vocab\":{\"", i, i);
        fputs("},\"x\":{", f);
        fclose(f);
        char *first = replaced(json, "\"vocab\":{", vocab),
             *second = replaced(first, "\"merges\":[", "\"merges\":[],\"y\":["),
             *text = replaced(second, "\"added_tokens\":[", "\"added_tokens\":[],\"z\":[");
        write_text("tokenizer.json", text, strlen(text));
        Tokenizer *t = tokenizer_open(folder, err);
        bool refused_so = strstr(err, "has a vocabulary of 257 tokens, but no merges") != NULL;
        check(n <= 256 ? t != NULL : refused_so, "%d: %s", n, err);
        tokenizer_close(t);
        free(vocab);
        free(first);
        free(second);
        free(text);
    }
}

static void check_refusals(const char *json)
{
    char err[512], path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        char *text = replaced(json, refused[i].from, refused[i].to);
        write_text("tokenizer.json", text, strlen(text));
        err[0] = 0;
        Tokenizer *t = tokenizer_open(path, err);
        check(!t && strstr(err, refused[i].want) && strncmp(err, path, strlen(path)) == 0, "%s: %s", refused[i].to,
              err);
        tokenizer_close(t);
        free(text);
    }
    static const char *const texts[] = {"",    "7", "[]", "{}", "null", "\"model\"", "{\"model\":7}", "{\"model\":{}}",
                                        "\xff"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        write_text("tokenizer.json", texts[i], strlen(texts[i]));
        Tokenizer *t = tokenizer_open(path, err);
        check(!t && strncmp(err, path, strlen(path)) == 0, "%s: %s", texts[i], err);
        tokenizer_close(t);
    }
    check(!tokenizer_open("tests/data/nothing", err) && strstr(err, "no such file"), "%s", err);
    check(!tokenizer_open("tests/data", err) && strstr(err, "has neither tokenizer.json nor"), "%s", err);
    check(!tokenizer_open("/dev/null", err) && strstr(err, "not a regular file"), "%s", err);
    check(!tokenizer_open(SMALL "/tokenizer.json/x", err) && strstr(err, "no such file"), "%s", err);
    char name[5000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    check(!tokenizer_open(name, err) && err[0] == 'x', "%s", err);
    check(truncate(path, ((off_t)1 << 29) + 1) == 0 && !tokenizer_open(path, err) &&
              strstr(err, "has 536870913 bytes; at most 536870912 are read"),
          "%s", err);
    check_largest_file(path);
    check_merges_needed(json);
}

/* A change that is accepted, and what the changed tokenizer encodes and decodes. */
static bool variant_case(void *json, const JsonValue *row)
{
    char *text = strdup(json);
    for (const JsonValue *c = json_get(row, "change")->child; c; c = c->next->next) {
        char *from = strndup(c->text, c->length), *to = strndup(c->next->text, c->next->length), *before = text;
        text = replaced(before, from, to);
        free(before);
        free(from);
        free(to);
    }
    write_text("tokenizer.json", text, strlen(text));
    Tokenizer *t = open_or_fail(folder);
    bool same = t != NULL;
    uint64_t id;
    for (const JsonValue *c = json_get(row, "encode")->child; c && same; c = c->next)
        same = encode_case(t, c);
    for (const JsonValue *c = json_get(row, "decode")->child; c && same; c = c->next)
        same = decode_case(t, c);
    for (const JsonValue *c = json_get(row, "added")->child; c && same; c = c->next)
        same = json_u64(c, &id) == 0 && tokenizer_id(t, c->key, c->key_length) == (int)id;
    tokenizer_close(t);
    free(text);
    return same;
}

/* The vocabulary and merges as vocab.json, merges.txt and tokenizer_config.json. */
static void write_older_form(const JsonValue *root)
{
    char *out = NULL;
    size_t n = 0;
    const JsonValue *model = json_get(root, "model"), *merges = json_get(model, "merges");
    FILE *f = open_memstream(&out, &n);
    json_print(f, json_get(model, "vocab"), JSON_INDENTED);
    fclose(f);
    write_text("vocab.json", out, n);
    free(out);
    f = open_memstream(&out, &n);
    fputs("#version: 0.2\n#version\n", f);
    for (const JsonValue *m = merges->child; m; m = m->next)
        fprintf(f, "%.*s\r\n", (int)m->length, m->text);
    fclose(f);
    write_text("merges.txt", out, n);
    free(out);
    f = open_memstream(&out, &n);
    fputs("{\"added_tokens_decoder\":{", f);
    for (const JsonValue *a = json_get(root, "added_tokens")->child; a; a = a->next) {
        fprintf(f, "\"%.*s\":", (int)json_get(a, "id")->length, json_get(a, "id")->text);
        json_print(f, a, JSON_COMPACT);
        fputs(a->next ? "," : "}}", f);
    }
    fclose(f);
    write_text("tokenizer_config.json", out, n);
    free(out);
    remove_file("tokenizer.json");
}

/* The older form: with the small tokenizer's added tokens, with others, without any, and with a line that is not a
 * merge. */
static void check_older_form(const JsonValue *root)
{
    char err[512];
    write_older_form(root);
    Tokenizer *t = open_or_fail(folder);
    check_cases(t, SMALL "/encode.jsonl", encode_case, 1);
    check(t && tokenizer_merges(t) == 338 && tokenizer_size(t) == 600, "merges.txt");
    tokenizer_close(t);
    check_leaks(folder);
    static const char flags[] = "{\"added_tokens_decoder\":{\"594\":{\"content\":\"<|x|>\"},"
                                "\"595\":{\"content\":\"e\u0301\",\"special\":true,\"normalized\":true}}}";
    write_text("tokenizer_config.json", flags, strlen(flags));
    t = open_or_fail(folder);
    check(t && tokenizer_id(t, "<|x|>", 5) == 594 && !tokenizer_is_special(t, 594) && tokenizer_is_special(t, 595),
          "flags that are missing are false");
    tokenizer_close(t);
    check_leaks(folder);
    write_text("tokenizer_config.json", "{", 1);
    check(!tokenizer_open(folder, err) && strstr(err, "/tokenizer_config.json: byte 1"), "%s", err);
    check_leaks(folder);
    remove_file("tokenizer_config.json");
    t = open_or_fail(folder);
    check(t && tokenizer_size(t) == 595 && tokenizer_id(t, "<|endoftext|>", 13) == 594, "the usual added token");
    tokenizer_close(t);
    write_text("merges.txt", "a b c\n", 6);
    check(!tokenizer_open(folder, err) && strstr(err, "/vocab.json: merge 0 is \"a b c\""), "%s", err);
    check_leaks(folder);
    remove_file("merges.txt");
    check(!tokenizer_open(folder, err), "no merges.txt");
    remove_file("vocab.json");
}

/* A folder whose tokenizer_config.json, added_tokens.json or special_tokens_map.json says something about tokens, and
 * what the reference makes of it. */
static bool config_case(void *json, const JsonValue *row)
{
    char err[512] = "";
    const JsonValue *files = json_get(row, "files"), *refused_with = json_get(row, "refused");
    JsonValue *root = json_parse(json, strlen(json), err);
    bool older = false, same = true;
    json_bool(json_get(row, "older"), &older);
    write_older_form(root);
    json_free(root);
    remove_file("tokenizer_config.json");
    if (!older)
        write_text("tokenizer.json", json, strlen(json));
    for (const JsonValue *file = files->child; file; file = file->next) {
        char *content = NULL, name[64];
        size_t length;
        FILE *f = open_memstream(&content, &length);
        json_print(f, file, JSON_COMPACT);
        fclose(f);
        snprintf(name, sizeof name, "%.*s", (int)file->key_length, file->key);
        write_text(name, content, length);
        free(content);
    }
    Tokenizer *t = tokenizer_open(folder, err);
    if (refused_with) {
        char *want = strndup(refused_with->text, refused_with->length);
        same = !t && strstr(err, want) && strncmp(err, folder, strlen(folder)) == 0;
        free(want);
    } else {
        for (const JsonValue *c = json_get(row, "encode")->child; c && same; c = c->next)
            same = t && encode_case(t, c);
        for (const JsonValue *c = json_get(row, "decode")->child; c && same; c = c->next)
            same = t && decode_case(t, c);
    }
    if (!same)
        printf("%s: %s\n", t ? "opened" : "refused", err);
    tokenizer_close(t);
    static const char *const names[] = {
        "vocab.json",    "merges.txt", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
        "tokenizer.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        remove_file(names[i]);
    return same;
}

/* What a download may leave under each name is told, with the command that mends it. */
static void check_wrong_files(const char *json)
{
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"", "is empty; ./download.sh fetches it"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:c0382117\nsize 7031645\n",
         "is a Git LFS pointer, not the file itself; get that with git lfs pull or ./download.sh; the real file has "
         "7031645 bytes"},
        {"<!DOCTYPE html>\n<html><body>Sign in</body>",
         "is an HTML page that was saved under this name; ./download.sh fetches it"},
        {"Entry not found", "is \"Entry not found\", a server's message that was saved under this name; ./download.sh"},
        {"\x1f\x8b\x08\x08", "is compressed with gzip; unpack it with gunzip"},
    };
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json"};
    char err[512];
    JsonValue *root = json_parse(json, strlen(json), err);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (size_t k = 0; k < COUNT_OF(cases); k++) {
            char want[512];
            write_older_form(root);
            write_text(names[i], cases[k].bytes, strlen(cases[k].bytes));
            snprintf(want, sizeof want, "/%s %s", names[i], cases[k].want);
            check(!tokenizer_open(folder, err) && strstr(err, want), "%s", err);
        }
    static const char *const all[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        remove_file(all[i]);
    json_free(root);
}

/* Merges as pairs, and the older form. */
static void check_spellings(const char *json)
{
    char err[512], *out = NULL;
    size_t n = 0;
    JsonValue *root = json_parse(json, strlen(json), err);
    const JsonValue *merges = json_get(json_get(root, "model"), "merges");
    check_older_form(root);
    FILE *f = open_memstream(&out, &n);
    for (const JsonValue *m = merges->child; m; m = m->next) {
        const char *space = memchr(m->text, ' ', m->length);
        fputs(m == merges->child ? "\"merges\":[[" : "],[", f);
        json_write_string(f, m->text, (size_t)(space - m->text));
        putc(',', f);
        json_write_string(f, space + 1, m->length - (size_t)(space - m->text) - 1);
    }
    fputs("]],\"x\":[", f);
    fclose(f);
    char *pairs = replaced(json, "\"merges\":[", out);
    write_text("tokenizer.json", pairs, strlen(pairs));
    Tokenizer *t = open_or_fail(folder);
    check_cases(t, SMALL "/encode.jsonl", encode_case, 1);
    tokenizer_close(t);
    free(pairs);
    free(out);
    json_free(root);
}

/* A damaged file is either refused or read; nothing worse happens. */
static void check_damage(const char *json)
{
    char err[512], *text = strdup(json);
    size_t length = strlen(json), opened = 0;
    uint32_t random = 1;
    for (int i = 0; i < 400; i++) {
        random = random * 1664525 + 1013904223;
        size_t at = random % length;
        char before = text[at];
        text[at] = (char)(random >> 24);
        write_text("tokenizer.json", text, i % 8 ? length : at);
        Tokenizer *t = tokenizer_open(folder, err);
        IdList ids = {0};
        opened += t != NULL;
        if (t)
            check(tokenizer_encode(t, json, 2000, true, &ids, err) == 0, "%s", err);
        id_list_free(&ids);
        tokenizer_close(t);
        text[at] = before;
    }
    check(opened < 400, "%zu of 400 damaged files are accepted", opened);
    free(text);
}

/* ---- added tokens against their definition ---- */

static uint32_t random_state = 7;

static size_t random_below(size_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return random_state / 65536 % n;
}

/* The longest token that text[at..n) begins with and that has no plain byte; NULL if there is none. */
static const AddedToken *longest_at(const AddedSet *set, const char *text, const char *plain, size_t at, size_t n)
{
    const AddedToken *best = NULL;
    for (size_t i = 0; i < set->count; i++) {
        const AddedToken *a = &set->items[i];
        bool fits = a->length <= n - at && memcmp(text + at, a->text, a->length) == 0 &&
                    !(plain && memchr(plain + at, 1, a->length));
        if (fits && (!best || a->length > best->length))
            best = a;
    }
    return best;
}

/* A set of up to 8 different tokens of a, b and c, of 1 to 6 letters. */
static void random_set(AddedSet *set, char texts[8][8], AddedToken items[8])
{
    *set = (AddedSet){.items = items};
    for (size_t k = random_below(8) + 1; k > 0; k--) {
        size_t length = random_below(6) + 1, i;
        for (i = 0; i < length; i++)
            texts[set->count][i] = (char)('a' + random_below(3));
        for (i = 0; i < set->count; i++)
            if (items[i].length == length && memcmp(items[i].text, texts[set->count], length) == 0)
                break;
        if (i == set->count) {
            items[i] = (AddedToken){texts[i], length, (int)i};
            set->count++;
        }
    }
    qsort(items, set->count, sizeof *items, tokenizer_compare_added);
}

static void check_trie(void)
{
    size_t matches = 0;
    for (int round = 0; round < 2000; round++) {
        char texts[8][8], text[40], plain[40];
        AddedToken items[8];
        AddedSet set;
        AddedMatches found = {0};
        bool same = true, use_plain = round % 2;
        size_t n = random_below(40), k;
        random_set(&set, texts, items);
        for (size_t i = 0; i < n; i++) {
            text[i] = (char)('a' + random_below(3));
            plain[i] = random_below(6) == 0;
        }
        if (tokenizer_build_trie(&set) || tokenizer_search_added(&set, text, n, use_plain ? plain : NULL, &found))
            exit(1);
        k = found.count;
        for (size_t i = 0; i < n; i++) {
            const AddedToken *expected = longest_at(&set, text, use_plain ? plain : NULL, i, n);
            if (expected)
                same = same && k > 0 && found.items[k - 1].at == i && found.items[k - 1].token == expected && k--;
            const AddedToken *whole = longest_at(&set, text + i, NULL, 0, MIN(n - i, 3));
            same = same && (tokenizer_find_added(&set, text + i, MIN(n - i, 3)) ==
                            (whole && whole->length == MIN(n - i, 3) ? whole : NULL));
        }
        check(same && k == 0, "round %d: %zu tokens, %.*s", round, set.count, (int)n, text);
        matches += found.count;
        free(found.items);
        free(set.nodes);
    }
    check(matches > 5000, "%zu matches", matches);
}

/* ---- merging against its definition ---- */

static int ranks[600][600], results[600][600], byte_ids[256];

/* Merges are "left right" in this file; the last of equal ones counts. */
static void read_ranks(const Tokenizer *t, const char *json)
{
    char err[512], both[256];
    int rank = 1;
    JsonValue *root = json_parse(json, strlen(json), err);
    memset(ranks, 0, sizeof ranks);
    for (const JsonValue *m = json_get(json_get(root, "model"), "merges")->child; m; m = m->next, rank++) {
        size_t left = (size_t)((const char *)memchr(m->text, ' ', m->length) - m->text), right = m->length - left - 1;
        memcpy(both, m->text, left);
        memcpy(both + left, m->text + left + 1, right);
        int a = tokenizer_id(t, m->text, left), b = tokenizer_id(t, m->text + left + 1, right);
        ranks[a][b] = rank;
        results[a][b] = tokenizer_id(t, both, left + right);
    }
    json_free(root);
    for (int id = 0; id < 600; id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, id, &n);
        if (n == 1)
            byte_ids[(unsigned char)*piece] = id;
    }
}

/* Merge the pair of lowest rank, the leftmost among equals, again and again. */
static size_t merge_by_definition(int *ids, size_t n)
{
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (ranks[ids[i]][ids[i + 1]] && (best == n || ranks[ids[i]][ids[i + 1]] < ranks[ids[best]][ids[best + 1]]))
                best = i;
        if (best == n)
            return n;
        ids[best] = results[ids[best]][ids[best + 1]];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static bool merges_as_defined(Tokenizer *t, const char *word, size_t length)
{
    IdList expected = {0};
    for (size_t i = 0; i < length; i++)
        id_list_append(&expected, byte_ids[(unsigned char)word[i]]);
    expected.count = merge_by_definition(expected.items, expected.count);
    bool same = encodes(t, word, length, &expected);
    id_list_free(&expected);
    return same;
}

/* Check a random word of that many letters. */
static bool random_word_merges(Tokenizer *t, const char *const *letters, size_t kinds, size_t length)
{
    Text word = {0};
    for (size_t i = 0; i < length; i++) {
        const char *letter = letters[random_below(kinds)];
        text_append(&word, letter, strlen(letter));
    }
    bool same = merges_as_defined(t, word.bytes, word.length);
    text_free(&word);
    return same;
}

/* Words of letters of one, two and three bytes, of every length up to the one from which on the code works
 * differently. */
static void check_merging(Tokenizer *t, const char *json)
{
    static const char *const letters[] = {"a",      "e",      "n",      "t",      "h",      "i",
                                          "r",      "o",      "\u00e9", "\u00fc", "\u0434", "\u043e",
                                          "\u4e2d", "\u7684", "\u8fd9", "\u3042", "\uc5d0", "s"};
    size_t wrong = 0;
    read_ranks(t, json);
    for (size_t length = 1; length <= 400; length += length < 90 ? 1 : 37)
        for (int turn = 0; turn < 8; turn++)
            wrong += !random_word_merges(t, letters, turn % 2 ? 8 : COUNT_OF(letters), length);
    check(wrong == 0, "%zu words are not merged as defined", wrong);
}

static const char *const wide_letters[] = {"a", "\u00e9", "\u4e2e", "\u4e2f", "\u4e6e", "\u5e2e", "\U000218a3"};
#define WIDE_LETTERS COUNT_OF(wide_letters)
#define TOKENS 40

typedef struct {
    char tokens[TOKENS][12]; /* their bytes */
    size_t count, merges[2 * TOKENS][2], merge_count;
} Model;

static size_t find_token(const Model *m, const char *bytes, size_t length)
{
    size_t i = 0;
    while (i < m->count && !(strlen(m->tokens[i]) == length && memcmp(m->tokens[i], bytes, length) == 0))
        i++;
    return i;
}

/* Random merges of neighbors in words of wide_letters, inside a character or across a boundary. all_new: each makes a
 * token that no other makes, and no pair is listed twice. */
static void make_random_model(Model *m, bool all_new, bool shuffled)
{
    /* in the byte-to-unicode map these are the characters of the same number */
    static const char bytes[] = "a\xc3\xa9\xe4\xe5\xb8\xae\xaf\xb9\xf0\xa1\xa2\xa3";
    *m = (Model){.count = sizeof bytes - 1};
    for (size_t i = 0; i < m->count; i++)
        m->tokens[i][0] = bytes[i];
    while (m->count < TOKENS && m->merge_count < 2 * TOKENS) {
        char word[32] = "";
        for (int i = 0; i < 4; i++)
            strcat(word, wide_letters[random_below(WIDE_LETTERS)]);
        size_t left = 1 + random_below(4), right = 1 + random_below(3), at = random_below(strlen(word));
        if (at + left + right > strlen(word))
            continue;
        size_t l = find_token(m, word + at, left), r = find_token(m, word + at + left, right),
               result = find_token(m, word + at, left + right);
        if (l == m->count || r == m->count || (all_new && result < m->count))
            continue;
        memcpy(m->tokens[result], word + at, left + right);
        if (result == m->count)
            m->count++;
        m->merges[m->merge_count][0] = l;
        m->merges[m->merge_count++][1] = r;
    }
    for (size_t i = 0; shuffled && i < m->merge_count; i++) {
        size_t other = random_below(m->merge_count), kept[2];
        memcpy(kept, m->merges[i], sizeof kept);
        memcpy(m->merges[i], m->merges[other], sizeof kept);
        memcpy(m->merges[other], kept, sizeof kept);
    }
}

/* Spell the bytes: each is the character of the same number in the byte-to-unicode map. */
static void write_spelled(FILE *f, const char *before, const char *bytes)
{
    fputs(before, f);
    for (; *bytes; bytes++) {
        unsigned char b = (unsigned char)*bytes;
        if (b >= 0x80)
            putc(0xc0 | b >> 6, f);
        putc(b >= 0x80 ? 0x80 | (b & 0x3f) : b, f);
    }
}

/* The text of json with that model instead, and without added tokens. */
static char *with_model(const char *json, const Model *m)
{
    char *vocab = NULL, *merges = NULL;
    size_t length;
    FILE *f = open_memstream(&vocab, &length);
    for (size_t i = 0; i < m->count; i++) {
        write_spelled(f, i ? ",\"" : "\"vocab\":{\"", m->tokens[i]);
        fprintf(f, "\":%zu", m->count - 1 - i);
    }
    fputs("},\"x\":{", f);
    fclose(f);
    f = open_memstream(&merges, &length);
    for (size_t i = 0; i < m->merge_count; i++) {
        write_spelled(f, i ? "\",\"" : "\"merges\":[\"", m->tokens[m->merges[i][0]]);
        write_spelled(f, " ", m->tokens[m->merges[i][1]]);
    }
    fputs("\"],\"y\":[", f);
    fclose(f);
    char *first = replaced(json, "\"vocab\":{", vocab), *second = replaced(first, "\"merges\":[", merges),
         *text = replaced(second, "\"added_tokens\":[", "\"added_tokens\":[],\"z\":[");
    free(vocab);
    free(merges);
    free(first);
    free(second);
    return text;
}

static Tokenizer *open_model(const char *json, const Model *m)
{
    char *text = with_model(json, m);
    write_text("tokenizer.json", text, strlen(text));
    Tokenizer *t = open_or_fail(folder);
    if (!t)
        exit(1);
    read_ranks(t, text);
    free(text);
    return t;
}

static void check_random_models(const char *json)
{
    size_t wrong = 0;
    for (int turn = 0; turn < 30; turn++) {
        Model m;
        make_random_model(&m, turn % 3, turn % 2);
        Tokenizer *t = open_model(json, &m);
        for (size_t length = 1; length < 90; length += length < 12 ? 1 : 7)
            for (int i = 0; i < 10; i++)
                wrong += !random_word_merges(t, wide_letters, WIDE_LETTERS, length);
        tokenizer_close(t);
    }
    check(wrong == 0, "%zu words are not merged as defined", wrong);
}

/* A word in the cache is not taken for another that differs from it in one byte. */
static void check_similar_words(const char *json)
{
    const Model m = {.tokens = {"a", "b", "aa", "aaaa", "aaaaaaaa"},
                     .count = 5,
                     .merges = {{0, 0}, {2, 2}, {3, 3}},
                     .merge_count = 3};
    Tokenizer *t = open_model(json, &m);
    char word[] = "aaaaaaaaaaaaaaaaaa";
    size_t wrong = 0;
    for (size_t length = 1; length < sizeof word; length++) {
        wrong += !merges_as_defined(t, word, length);
        for (size_t i = 0; i < length; i++) {
            word[i] = 'b';
            wrong += !merges_as_defined(t, word, length);
            word[i] = 'a';
        }
    }
    check(wrong == 0, "%zu words were taken for others", wrong);
    tokenizer_close(t);
}

/* A million letters without a space. */
static void check_long_word(Tokenizer *t)
{
    enum { LENGTH = 1000000 };
    char err[512], *word = malloc(LENGTH);
    IdList ids = {0};
    Text text = {0};
    uint32_t random = 3;
    for (size_t i = 0; i < LENGTH; i++) {
        random = random * 1664525 + 1013904223;
        word[i] = (char)('a' + (random >> 16) % 26);
    }
    check(tokenizer_encode(t, word, LENGTH, true, &ids, err) == 0, "%s", err);
    check(tokenizer_decode(t, ids.items, ids.count, false, &text) == 0 && text.length == LENGTH &&
              memcmp(text.bytes, word, LENGTH) == 0,
          "%zu ids, %zu bytes", ids.count, text.length);
    text_free(&text);
    id_list_free(&ids);
    free(word);
}

/* With more and more memory: as long as it is too little, the tokenizer says so; then the ids and the text are
 * right. */
static void check_little_memory(Tokenizer *t)
{
    enum { LENGTH = 200000, STEP = 1 << 16 };
    char err[512], *text = malloc(LENGTH + 8);
    struct rlimit usual;
    IdList expected = {0};
    int failed = 1;
    if (watched()) {
        skip("too little memory: sanitizers and valgrind need some of their own");
        free(text);
        return;
    }
    memset(text, 'a', LENGTH);
    for (size_t i = 0; i < LENGTH; i += 3 + random_below(8))
        text[i] = i < LENGTH / 2 && random_below(3) == 0 ? ' ' : 't'; /* the second half is one word */
    memcpy(text + LENGTH, "e\u0301\xff", 4);                          /* must be made valid, and normalized */
    check(tokenizer_encode(t, text, LENGTH + 4, true, &expected, err) == 0, "%s", err);
    getrlimit(RLIMIT_AS, &usual);
    for (size_t i = 0; failed && i < 400; i++) {
        IdList ids = {0};
        Text out = {0};
        struct rlimit little = {mapped_memory() + i * STEP, usual.rlim_max};
        setrlimit(RLIMIT_AS, &little);
        err[0] = 0;
        failed = tokenizer_encode(t, text, LENGTH + 4, true, &ids, err);
        check(failed ? strstr(err, "out of memory") != NULL : same_ids(&ids, &expected), "%zu ids: %s", ids.count, err);
        bool decoded = tokenizer_decode(t, expected.items, expected.count, false, &out) == 0;
        check(!decoded || out.length == LENGTH + 5, "%zu bytes", out.length);
        failed = failed || !decoded;
        setrlimit(RLIMIT_AS, &usual);
        id_list_free(&ids);
        text_free(&out);
    }
    Tokenizer *opened = NULL;
    for (size_t i = 0; !opened && i < 400 && mapped_memory() >> 40 == 0; i++) {
        struct rlimit little = {mapped_memory() + i * STEP, usual.rlim_max};
        setrlimit(RLIMIT_AS, &little);
        err[0] = 0;
        opened = tokenizer_open(SMALL "/tokenizer.json", err);
        setrlimit(RLIMIT_AS, &usual);
        check(opened ? encodes(opened, text, LENGTH + 4, &expected) : err[0] != 0, "%s", err);
    }
    tokenizer_close(opened);
    check(!failed || mapped_memory() >> 40, "still out of memory");
    id_list_free(&expected);
    free(text);
}

/* ---- pieces of text ---- */

/* For every lead byte: text that ends with the beginning of a character may still become that character. */
static void check_complete_prefix(void)
{
    static unsigned char begun[3][1 << 24]; /* [length - 1][bytes]: they begin a character and are not one yet */
    static const unsigned char others[] = {'a', 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xe4, 0xff};
    enum { OTHERS = sizeof others };
    size_t wrong = 0;
    for (uint32_t c = 0x80; c < 0x110000; c += c == 0xd7ff ? 0x801 : 1) {
        char bytes[4];
        size_t size = unicode_encode(c, bytes);
        for (size_t n = 1, key = 0; n < size; n++) {
            key = key << 8 | (unsigned char)bytes[n - 1];
            begun[n - 1][key] = 1;
        }
    }
    for (size_t i = 0; i < 256 * OTHERS * OTHERS; i++) {
        const char text[] = {'\xf0', '\x9f', (char)(i / OTHERS / OTHERS), (char)others[i / OTHERS % OTHERS],
                             (char)others[i % OTHERS]};
        for (size_t from = 0; from <= 2; from += 2)
            for (size_t n = 0; n <= sizeof text - from; n++) {
                size_t expected = n, key = 0;
                for (size_t k = 1; k <= 3 && k <= n; k++) {
                    key |= (size_t)(unsigned char)text[from + n - k] << 8 * (k - 1);
                    expected = begun[k - 1][key] ? n - k : expected;
                }
                wrong += text_complete_prefix(text + from, n) != expected;
            }
    }
    check(wrong == 0, "%zu prefixes", wrong);
}

/* Invalid UTF-8 is encoded, and shown, as the text that unicode_decode() finds in it. */
static void check_invalid(Tokenizer *t)
{
    static const char *const parts[] = {"a",        "12345678", "\u4e2d",   " ",    "\u00e9", "\U0001f600", "\ufffd",
                                        "\xe6\xb8", "\xe4",     "\xf0\x9f", "\xc3", "\xff",   "\xef\xbf",   "\x80"};
    size_t wrong = 0;
    for (int turn = 0; turn < 2000; turn++) {
        char bytes[128] = "", err[512];
        for (size_t n = 1 + random_below(8); n > 0; n--)
            strcat(bytes, parts[random_below(turn % 2 ? 8 : COUNT_OF(parts))]);
        size_t length = strlen(bytes);
        Text expected = {0}, shown = {0};
        for (size_t at = 0, size; at < length; at += size) {
            uint32_t c;
            char character[4];
            size = unicode_decode(bytes + at, length - at, &c);
            text_append(&expected, character, unicode_encode(c, character));
        }
        IdList ids = {0};
        wrong += tokenizer_encode(t, expected.bytes, expected.length, true, &ids, err) != 0;
        wrong += !encodes(t, bytes, length, &ids) || text_append_replacing(&shown, guarded(bytes, length), length) ||
                 shown.length != expected.length || memcmp(shown.bytes, expected.bytes, shown.length) != 0;
        id_list_free(&ids);
        text_free(&expected);
        text_free(&shown);
    }
    check(wrong == 0, "%zu texts", wrong);
}

static void check_pieces(Tokenizer *t)
{
    Text text = {0};
    IdList list = {0};
    for (size_t i = 0; i < 300; i++)
        check(text_append(&text, "abc", i % 4) == 0 && text.bytes[text.length] == 0 && id_list_append(&list, 7) == 0,
              "%zu", i);
    check(text.length == 450 && list.count == 300 && list.items[299] == 7, "%zu bytes", text.length);
    text_free(&text);
    id_list_free(&list);
    check(!text.bytes && !text.length && !text.capacity && !list.items && !list.count && !list.capacity, "empty again");
    check(text_append_replacing(&text, "a\xe4\xb8z\xff\xc3\xa9\0b", 9) == 0 && text.length == 12 &&
              memcmp(text.bytes, "a\ufffdz\ufffd\u00e9\0b", 12) == 0,
          "%zu bytes", text.length);
    text_free(&text);

    size_t length;
    const int unknown[] = {-1, 600, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        tokenizer_piece(t, unknown[i], &length);
        check(length == 0 && !tokenizer_is_special(t, unknown[i]), "id %d", unknown[i]);
    }
    check(tokenizer_size(t) == 600 && tokenizer_merges(t) == 338, "%zu", tokenizer_size(t));
    check(tokenizer_id(t, "<|im_end|>", 10) == 596 && tokenizer_id(t, "\u0120a", 3) == 256, "by their names");
    check(tokenizer_id(t, " a", 2) == -1 && tokenizer_id(t, "", 0) == -1 && tokenizer_id(t, "<|im_end|", 9) == -1,
          "not tokens");
    check(tokenizer_id(t, guarded("\xc4", 1), 1) == -1 && tokenizer_id(t, guarded("a\xc4", 2), 2) == -1,
          "half a character");
    check(tokenizer_is_special(t, 596) && !tokenizer_is_special(t, 597) && !tokenizer_is_special(t, 64),
          "special ones");

    /* plain text: added tokens are not recognized; invalid bytes are U+FFFD */
    IdList plain = {0}, replaced_ids = {0};
    char err[512];
    check(tokenizer_encode(t, "a<|im_end|>", 11, false, &plain, err) == 0 && plain.count > 3, "plain text");
    for (size_t i = 0; i < plain.count; i++)
        check(plain.items[i] < 594, "id %d", plain.items[i]);
    check(tokenizer_encode(t, "a\ufffdb", 5, true, &replaced_ids, err) == 0 &&
              encodes(t, "a\xe4\xb8\x62", 4, &replaced_ids),
          "invalid UTF-8");
    id_list_free(&plain);
    id_list_free(&replaced_ids);
}

/* ---- chat ---- */

/* Whether the ids of the messages have the same text, and no content begins or ends a turn. */
static bool ids_are_safe(Tokenizer *t, const Message *messages, size_t n, bool prompt, const JsonValue *expected)
{
    char err[512];
    IdList ids = {0}, whole = {0};
    Text text = {0};
    size_t begins = 0, given = 0;
    const char *system = tokenizer_default_system(t);
    bool added = false;
    if (tokenizer_chat_ids(t, messages, n, prompt, true, &ids, err) ||
        tokenizer_decode(t, ids.items, ids.count, false, &text) ||
        tokenizer_encode(t, text.bytes, text.length, true, &whole, err))
        return false;
    for (size_t i = 0; i < ids.count; i++)
        begins += ids.items[i] == 595;
    for (size_t i = 0; i < n; i++) {
        given += messages[i].role_length != 9 || memcmp(messages[i].role, "developer", 9) != 0;
        added = added || memmem(messages[i].content, messages[i].content_length, "<|", 2) != NULL;
    }
    bool with_system = system && (messages[0].role_length != 6 || memcmp(messages[0].role, "system", 6) != 0);
    bool nfc = text.length == expected->length && memcmp(text.bytes, expected->text, text.length) == 0;
    bool same = (added || same_ids(&ids, &whole)) && (nfc || memmem(expected->text, expected->length, "\u0301", 2));
    /* templates differ in whether they write a developer's messages, and a prompt after the assistant's own message */
    size_t least = given + with_system, most = n + with_system + prompt;
    text_free(&text);
    id_list_free(&ids);
    id_list_free(&whole);
    return same && begins >= least && begins <= most;
}

static void check_template(const JsonValue *row)
{
    const JsonValue *name = json_get(row, "name"), *template = json_get(row, "template");
    char *config = NULL;
    size_t n = 0, wrong = 0;
    FILE *f = open_memstream(&config, &n);
    fputs("{\"chat_template\":", f);
    json_print(f, template, JSON_COMPACT);
    fputs("}", f);
    fclose(f);
    write_text("tokenizer_config.json", config, n);
    free(config);
    Tokenizer *t = open_or_fail(folder);
    check(!tokenizer_chat_problem(t), "%.*s: %s", (int)name->length, name->text, tokenizer_chat_problem(t));
    for (const JsonValue *c = json_get(row, "cases")->child; c; c = c->next) {
        const JsonValue *list = json_get(c, "messages"), *text = json_get(c, "text");
        Message *messages = messages_of(list);
        char err[512] = "";
        Text out = {0};
        bool prompt = false;
        json_bool(json_get(c, "add_generation_prompt"), &prompt);
        if (tokenizer_chat_text(t, messages, list->length, prompt, &out, err) || !same_text(&out, text) ||
            !ids_are_safe(t, messages, list->length, prompt, text)) {
            wrong++;
            printf("%.*s: %s\n%s\ninstead of\n%.*s\n", (int)name->length, name->text, err, out.bytes, (int)text->length,
                   text->text);
        }
        text_free(&out);
        free(messages);
    }
    check(wrong == 0, "%.*s: %zu conversations", (int)name->length, name->text, wrong);
    tokenizer_close(t);
}

static bool template_case(void *t, const JsonValue *row)
{
    (void)t;
    check_template(row);
    return true;
}

#define TURN "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
#define LOOP "{% for message in messages %}" TURN "{% endfor %}"
#define PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

#define FIRST "{% if messages[0].role != 'system' %}"

/* Templates that can't be used, and part of the reason. */
static const struct {
    const char *template, *want;
} unusable[] = {
    {"", "as ChatML does"},
    {LOOP, "as ChatML does"},
    {LOOP PROMPT "x", "as ChatML does"},
    {LOOP PROMPT "xyz", "as ChatML does"},
    {LOOP PROMPT "  ", "as ChatML does"},
    {LOOP PROMPT "\ufffd", "as ChatML does"},
    {"{{ '<|im_start|>assistant\\nx<|im_end|>\\n' }}" LOOP PROMPT, "as ChatML does"},
    {LOOP "\n\n" PROMPT, "as ChatML does"},
    {LOOP " \t" PROMPT, "as ChatML does"},
    {LOOP "{#-#} " PROMPT, "as ChatML does"},
    {LOOP "{# +#}\n" PROMPT, "as ChatML does"},
    {"{% if messages[1] is defined %}" LOOP PROMPT "{% endif %}", "as ChatML does"},
    {"{{ messages[0.role }}", "has \"messages[0.role \""},
    {"{{ messages[tools].role }}", "has \"messages[tools].role \""},
    {LOOP "{{ '<|im_start|>assistant\\n' }}\n\n", "as ChatML does"},
    {LOOP "{{ '<|im_start|>assistant\\n' }} ", "as ChatML does"},
    {"{{ bos_token }}" LOOP PROMPT, "\"bos_token \""},
    {"{% set x = 1 %}" LOOP PROMPT, "set x = 1"},
    {"{% set ns = namespace(is_first=false) %}{{ns.system_prompt}}", "has \"set ns = namespace(is_first=false) \""},
    {"{% for m in messages %}{% if m.role == 'user' or m.role == 'system' and not loop.first %}{{ m.content }}"
     "{%- elif m.role == \"assistant\" %}\n  {%- set content = m.content.split('</think>')[-1].lstrip('\\n') %}{% "
     "endif %}{% endfor %}",
     "has \"set content = m.content.split('</think>')[-1].ls\""},
    {"{{ }}", "has \"}\""},
    {"{{ x\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d",
     "has \"x\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\", which"},
    {"{% for message in messages %}{{ message['content'] | trim }}{% endfor %}", "| trim"},
    {"{% for message in messages %}{{ message.content.split('a')[-1] }}{% endfor %}", "split('a')"},
    {"{% for message in messages %}{{ message.content }}", "ends inside a block"},
    {"{% for message in messages %}{{ message.content ", "ends inside a tag"},
    {"{{ 'abc }}", "'abc "},
    {"{{ 'a\\x41' }}", "\\x41"},
    {"{% endif %}", "endif"},
    {"{% for m in messages %}{% endif %}{% endfor %}", "endif"},
    {"{% for m in messages %}{% for k in messages %}{% endfor %}{% endfor %}", "for k in messages"},
    {"{% if (((((((((((((((((((((((((((((((((((((((((((((((((((tools", "(((("},
    {"{{ messages[9].role }}", "does not exist"},
    {"{{ messages }}", "messages"},
    {"\xff" LOOP PROMPT, "is not UTF-8"},
    {FIRST "<|im_start|>system\nabcdefghijklmnop{% endif %}" LOOP PROMPT, "as ChatML does"},
    {FIRST "<|im_start|>systen\nx<|im_end|>\n{% endif %}" LOOP PROMPT, "as ChatML does"},
    {FIRST "x{% endif %}" LOOP PROMPT, "as ChatML does"},
    {"{{ messages[0 }}", "has \"messages[0 \""},
    {"{{ messages['role }}", "has \"messages['role \""},
    {"{{ messages[tools] }}", "has \"messages[tools] \""},
    {"{{ messages[tools", "has \"messages[tools\""},
    {"{{ 'a'[0] }}", "has \"'a'[0] \""},
    {"{{ tools.x }}", "has \"x \""},
    {"{{ tools['x'] }}", "has \"x'] \""},
    {"{{ 1 }}", "has \"1 \""},
    {"{{ tools }}", "has \"tools \""},
    {"{% if 'a' == 1 %}", "has \"'a' == 1 \""},
    {"{% if 'a' == x %}", "has \"'a' == x \""},
    {"{% if 'a' == 'b\\n' %}", "has \"'a' == 'b\\n' \""},
    {"{% if tools is none %}", "has \"tools is none \""},
    {"{% if tools or %}", "has \"%\""},
    {"{% if tools or ) %}", "has \") \""},
    {"{% if messages and ) %}", "has \") \""},
    {"{% if (tools %}", "has \"(tools \""},
    {"{% if tools ) %}", "has \") \""},
    {"{% for 1 in tools %}", "has \"for 1 in tools \""},
    {"{% for m in tools %}", "has \"for m in tools \""},
    {"{% for m of messages %}", "has \"for m of messages \""},
    {"{% for = in messages %}", "has \"for = in messages \""},
    {"{% for m in messages }}", "has \"for m in messages \""},
    {"{# abc", "ends inside a tag"},
    {"{% if tools %}{{ 'abc }}{% endif %}", "has \"'abc \""},
    {"{% elif tools %}", "has \"elif tools \""},
    {"{% else %}", "has \"else \""},
    {"{% endfor %}", "has \"endfor \""},
    {"{% if messages %}{% endfor %}", "has \"endfor \""},
    {"{% for m in messages %}{% else %}{% endfor %}", "has \"else \""},
    {"{{ 'a' + }}", "has \"}\""},
    {"{{ 'a' 'b' }}", "has \"'b' \""},
    {"{{ 'a\\' }}", "has \"'a\\' \""},
    {"{%", "ends inside a tag"},
    {"{{", "ends inside a tag"},
    {"{#", "ends inside a tag"},
    {"{%-", "ends inside a tag"},
};

static void check_unusable(void)
{
    char err[512];
    const Message hello = {"user", "hello", 4, 5};
    for (size_t i = 0; i < COUNT_OF(unusable); i++) {
        write_text("chat_template.jinja", unusable[i].template, strlen(unusable[i].template));
        Tokenizer *t = open_or_fail(folder);
        const char *problem = tokenizer_chat_problem(t);
        Text text = {0};
        IdList ids = {0};
        check(problem && strstr(problem, "/chat_template.jinja: ") && strstr(problem, unusable[i].want), "%s: %s",
              unusable[i].template, problem);
        check(tokenizer_chat_text(t, &hello, 1, true, &text, err) && problem && strcmp(err, problem) == 0, "%s", err);
        check(tokenizer_chat_ids(t, &hello, 1, true, true, &ids, err) && ids.count == 0, "%s", err);
        check(!tokenizer_default_system(t), "%s", unusable[i].template);
        id_list_free(&ids);
        text_free(&text);
        tokenizer_close(t);
    }
}

/* Templates that can be used: blanks before a block at the start of a line are dropped, as is one line feed at the
 * end. */
static const char *const usable[] = {
    "  " LOOP PROMPT,
    "\t" LOOP PROMPT,
    LOOP "\n" PROMPT,
    LOOP PROMPT "\n\n",
    LOOP "{{ '<|im_start|>assistant\\n' }}\n",
    LOOP "{{ '<|im_start|>assistant\\n' }}\r\n",
    LOOP "{{ '<|im_start|>assistant\\n' }}\r",
    LOOP "{{ '<|im_start|>assistant' }}\n\n",
    LOOP "{{ '<|im_start|>assistant' }}\r\r",
    "{% for message in messages %}\n" TURN "{% endfor %}\n" PROMPT,
    "{#\n#}" LOOP PROMPT "{# '#}",
    LOOP "{#+#}\n" PROMPT,
    "{#- -#} \n " LOOP PROMPT " \n {#--#} \n ",
};

static void check_usable(void)
{
    for (size_t i = 0; i < COUNT_OF(usable); i++) {
        write_text("chat_template.jinja", usable[i], strlen(usable[i]));
        Tokenizer *t = open_or_fail(folder);
        check(!tokenizer_chat_problem(t) && !tokenizer_default_system(t), "%s: %s", usable[i],
              tokenizer_chat_problem(t));
        tokenizer_close(t);
    }
}

/* Where a template may be: in a file of its own, else in tokenizer_config.json, where it may be one of a list. */
static void check_places(void)
{
    static const char list[] =
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},{\"name\":\"default\","
        "\"template\":\"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\\\n' + "
        "message['content'] + '<|im_end|>\\\\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\\\\n' }}{% endif %}\"}]}";
    remove_file("chat_template.jinja");
    write_text("tokenizer_config.json", list, strlen(list));
    Tokenizer *t = open_or_fail(folder);
    check(!tokenizer_chat_problem(t) && !tokenizer_default_system(t), "%s", tokenizer_chat_problem(t));
    tokenizer_close(t);
    write_text("chat_template.jinja", "x", 1);
    t = open_or_fail(folder);
    check(tokenizer_chat_problem(t) != NULL, "chat_template.jinja is read");
    tokenizer_close(t);
    write_text("chat_template.jinja", LOOP PROMPT "\n", strlen(LOOP PROMPT "\n"));
    write_text("tokenizer_config.json", "{}", 2);
    t = open_or_fail(folder);
    check(!tokenizer_chat_problem(t), "%s", tokenizer_chat_problem(t));
    char err[512];
    Text text = {0};
    check(tokenizer_chat_text(t, NULL, 0, true, &text, err) && strstr(err, "at least one message"), "%s", err);
    text_free(&text);
    tokenizer_close(t);
    remove_file("chat_template.jinja");
    write_text("tokenizer_config.json", "{", 1);
    check(!tokenizer_open(folder, err) && strstr(err, "tokenizer_config.json: byte 1"), "%s", err);
    static const char *const without[] = {"{}", "{\"chat_template\":7}", "{\"chat_template\":[7]}", NULL};
    for (size_t i = 0; i < 4; i++) {
        if (without[i])
            write_text("tokenizer_config.json", without[i], strlen(without[i]));
        else
            remove_file("tokenizer_config.json");
        t = open_or_fail(folder);
        check(tokenizer_chat_problem(t) && strstr(tokenizer_chat_problem(t), ": has no chat_template.jinja"), "%s: %s",
              without[i], tokenizer_chat_problem(t));
        tokenizer_close(t);
    }
}

/* A template may pass the trial and fail later: then no part of the conversation is returned. */
static void check_late_errors(const char *json)
{
    static const char template[] = LOOP PROMPT "{% if messages[0].content == 'go' %}{{ messages[5].role }}{% endif %}";
    const Message go = {"user", "go", 4, 2}, stay = {"user", "stay", 4, 4};
    char err[512];
    IdList ids = {0};
    Text text = {0};
    write_text("chat_template.jinja", template, strlen(template));
    Tokenizer *t = open_or_fail(folder);
    check(tokenizer_chat_ids(t, &go, 1, true, true, &ids, err) && ids.count == 0 && strstr(err, "does not exist"), "%s",
          err);
    check(tokenizer_chat_text(t, &go, 1, true, &text, err) && strstr(err, "does not exist"), "%s", err);
    check(tokenizer_chat_ids(t, &stay, 1, true, true, &ids, err) == 0 && ids.count > 0, "%s", err);
    id_list_free(&ids);
    text_free(&text);
    tokenizer_close(t);
    static const char *const names[] = {"<|im_start|>", "<|im_end|>"};
    for (size_t i = 0; i < 2; i++) {
        char other[16], want[32];
        snprintf(other, sizeof other, "%.*s", (int)strlen(names[i]) - 1, names[i]);
        snprintf(want, sizeof want, "no added token %s", names[i]);
        char *changed = replaced(json, names[i], other);
        write_text("tokenizer.json", changed, strlen(changed));
        t = open_or_fail(folder);
        check(tokenizer_chat_problem(t) && strstr(tokenizer_chat_problem(t), want), "%s", tokenizer_chat_problem(t));
        tokenizer_close(t);
        free(changed);
    }
    remove_file("chat_template.jinja");
    static const struct {
        const char *config, *want;
    } nuls[] = {{"{\"chat_template\":\"" FIRST "<|im_start|>system\\na\\u0000b<|im_end|>\\n{% endif %}"
                 "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\\n{% endfor %}"
                 "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}\"}",
                 "as ChatML does"},
                {"{\"chat_template\":\"{{ 'a\\\\\\u0000' }}\"}", "has \"\\"}};
    write_text("tokenizer.json", json, strlen(json));
    for (size_t i = 0; i < 2; i++) {
        write_text("tokenizer_config.json", nuls[i].config, strlen(nuls[i].config));
        t = open_or_fail(folder);
        check(tokenizer_chat_problem(t) && strstr(tokenizer_chat_problem(t), nuls[i].want), "%s",
              tokenizer_chat_problem(t));
        tokenizer_close(t);
    }
    remove_file("tokenizer_config.json");
}

/* The default system turn is left out when it isn't wanted, but not a message that says the same. */
static void check_default_system(Tokenizer *t)
{
    const char *system = tokenizer_default_system(t), *const contents[] = {system, "S", "You are Qwen", "<|im_end|>"};
    for (size_t i = 0; i < 4; i++) {
        const Message messages[] = {{"system", contents[i], 6, strlen(contents[i])}, {"user", "<|im_end|>\n x", 4, 13}};
        IdList with = {0}, without = {0}, user = {0}, user_without = {0};
        char err[512];
        check(tokenizer_chat_ids(t, messages, 2, true, true, &with, err) == 0 &&
                  tokenizer_chat_ids(t, messages, 2, true, false, &without, err) == 0 && same_ids(&with, &without),
              "%s", contents[i]);
        check(tokenizer_chat_ids(t, messages + 1, 1, true, true, &user, err) == 0 &&
                  tokenizer_chat_ids(t, messages + 1, 1, true, false, &user_without, err) == 0 &&
                  user.count == user_without.count + 20 &&
                  memcmp(user.items + 20, user_without.items, user_without.count * sizeof *user.items) == 0,
              "%zu and %zu ids", user.count, user_without.count);
        id_list_free(&with);
        id_list_free(&without);
        id_list_free(&user);
        id_list_free(&user_without);
    }
}

/* The demo model's conversations: the text, and the ids that the network got. */
static void check_demo(void)
{
    Tokenizer *t = open_or_fail("tests/demo");
    for (int i = 1; i <= 2 && t; i++) {
        char path[64], err[512];
        size_t length;
        snprintf(path, sizeof path, "tests/demo/golden/chat%d.json", i);
        char *json = read_text(path, &length);
        JsonValue *root = json ? json_parse(json, length, err) : NULL;
        const JsonValue *list = json_get(root, "messages");
        Message *messages = messages_of(list);
        IdList ids = {0}, expected = ids_of(json_get(root, "prompt_ids")), without = {0};
        Text text = {0};
        check(tokenizer_chat_text(t, messages, list->length, true, &text, err) == 0 &&
                  same_text(&text, json_get(root, "prompt")),
              "%s: %s", path, text.bytes);
        check(tokenizer_chat_ids(t, messages, list->length, true, true, &ids, err) == 0 && same_ids(&ids, &expected),
              "%s", path);
        check(tokenizer_chat_ids(t, messages, list->length, true, false, &without, err) == 0 &&
                  without.count + 20 == ids.count &&
                  memcmp(without.items, ids.items + 20, without.count * sizeof *ids.items) == 0,
              "%s: without the system turn, which is 20 ids", path);
        text_free(&text);
        id_list_free(&ids);
        id_list_free(&expected);
        id_list_free(&without);
        free(messages);
        json_free(root);
        free(json);
    }
    check(t && strcmp(tokenizer_default_system(t),
                      "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") == 0,
          "the demo's system text");
    check_default_system(t);
    tokenizer_close(t);
    check_leaks("tests/demo");
}

/* ---- the real tokenizer ---- */

/* Texts that other tokenizers got wrong. */
static const struct {
    const char *text;
    int ids[16];
} hard[] = {
    {"cafe\u0301", {924, 58858, -1}},
    {"\u212b", {144044, -1}},
    {"\u0958", {64704, 5502, 120, -1}},
    {"\u1112\u1161\u11ab", {23573, -1}},
    {"->", {405, -1}},
    {"(x):\n", {2075, 982, -1}},
    {"12345", {16, 17, 18, 19, 20, -1}},
    {"X.<|im_end|>", {55, 13, 151645, -1}},
    {"  x", {220, 856, -1}},
    {"a  b", {64, 220, 293, -1}},
    {"def f():\n    return  x", {750, 282, 3932, 262, 470, 220, 856, -1}},
    {"hello   ", {14990, 262, -1}},
    {"a \n b", {64, 715, 293, -1}},
    {"a\r\nb\r\n", {64, 319, 65, 319, -1}},
    {"I'm don't DON'T we'LL 'sup", {40, 2776, 1513, 944, 44273, 17323, 582, 6, 4086, 364, 12776, -1}},
    {"'\u017f", {6, 144815, -1}},
    {"'\u017fa", {6, 144815, 64, -1}},
    {"\u212a", {42, -1}},
};

static void check_real(const char *golden)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/qwen2.5", golden);
    Tokenizer *t = open_or_fail(path);
    for (size_t i = 0; t && i < COUNT_OF(hard); i++) {
        IdList expected = {0};
        for (const int *id = hard[i].ids; *id >= 0; id++)
            id_list_append(&expected, *id);
        check(encodes(t, hard[i].text, strlen(hard[i].text), &expected), "%s", hard[i].text);
        id_list_free(&expected);
    }
    const int tool_call[] = {151644, 151657};
    Text text = {0};
    check(tokenizer_decode(t, tool_call, 2, true, &text) == 0 && strcmp(text.bytes, "<tool_call>") == 0, "%s",
          text.bytes);
    text_free(&text);
    char line[50000];
    IdList ids = {0};
    memset(line, '_', sizeof line);
    check(tokenizer_encode(t, line, sizeof line, true, &ids, path) == 0 && ids.count == 782, "%zu ids", ids.count);
    id_list_free(&ids);
    static const struct {
        const char *name;
        Case *is_right;
    } files[] = {{"encode", encode_case}, {"decode", decode_case}, {"chat", chat_case}};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/given/tokenizer/%s.jsonl", golden, files[i].name);
        check_cases(t, path, files[i].is_right, 1);
    }
    tokenizer_close(t);
    snprintf(path, sizeof path, "%s/qwen2.5/tokenizer.pairs.json", golden);
    t = open_or_fail(path);
    check(tokenizer_merges(t) == 151387 && tokenizer_size(t) == 151665, "%zu", tokenizer_merges(t));
    snprintf(path, sizeof path, "%s/given/tokenizer/encode.jsonl", golden);
    check_cases(t, path, encode_case, 7);
    tokenizer_close(t);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_tokenizer.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    Tokenizer *t = open_or_fail(SMALL "/tokenizer.json");
    check_little_memory(t); /* first, while there is no memory that was freed */
    char *json = compact_tokenizer();
    check_cases(t, SMALL "/encode.jsonl", encode_case, 1);
    check_cases(t, SMALL "/decode.jsonl", decode_case, 1);
    check_complete_prefix();
    check_invalid(t);
    check_pieces(t);
    check_trie();
    check_merging(t, json);
    check_long_word(t);
    tokenizer_close(t);
    t = open_or_fail(SMALL "/seams.json");
    check_cases(t, SMALL "/seams.jsonl", encode_case, 1);
    tokenizer_close(t);
    check_random_models(json);
    check_similar_words(json);
    check_refusals(json);
    check_cases(json, SMALL "/variants.jsonl", variant_case, 1);
    check_spellings(json);
    check_cases(json, SMALL "/configs.jsonl", config_case, 1);
    check_wrong_files(json);
    check_damage(json);
    write_text("tokenizer.json", json, strlen(json));
    check_cases(json, SMALL "/chat.jsonl", template_case, 1);
    check_unusable();
    check_usable();
    check_places();
    check_late_errors(json);
    check_demo();
    remove_file("tokenizer.json");
    rmdir(folder);
    free(json);
    const char *golden = getenv("GOLDEN");
    if (golden)
        check_real(golden);
    else
        skip("the real tokenizer (GOLDEN)");
    return report("tokenizer");
}
