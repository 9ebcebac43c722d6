/* Byte-level BPE, as Qwen2.5's tokenizer.json describes it.
 *
 * Text becomes ids in five steps:
 *     added tokens   <|im_end|> and the like are cut out of the raw text: at each place the longest one
 *     NFC            of each piece between them
 *     words          each piece is cut by the pattern SPLIT_PATTERN below, here a scanner written by hand
 *     bytes          a word begins as one token for each byte of its UTF-8
 *     merges         the list of merges is in order of rank; of all neighbours that are a merge, the pair of the lowest rank (the
 *                    leftmost among equals) becomes one token, until no neighbours are a merge
 *
 * The file writes tokens in letters that can be printed: bytes 21..7e, a1..ac and ae..ff (hex) stand for the characters of that
 * number, the other 68 for U+0100, U+0101 and so on, so that a space is U+0120. A token with any other character stands for its own
 * UTF-8; nothing is ever merged into one of those, but decoding must know them.
 *
 * What a tokenizer.json asks for beyond this is refused by name. It is checked whole on opening; the rest trusts it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tokenizer.h"

#include "json.h"
#include "unicode.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPLIT_PATTERN                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"    \
    "\\s+(?!\\S)|\\s+"
#define FILE_LIMIT ((size_t)1 << 29) /* of tokenizer.json: offsets into its tokens fit 32 bits */

typedef struct {
    uint32_t start, length; /* in Tokenizer.bytes; start UNSET: no such id yet */
    bool raw, special;      /* raw: written as its own UTF-8, not in the byte letters */
} Piece;
#define UNSET UINT32_MAX
#define SHOWN(length) ((int)((length) > 60 ? 60 : (length))) /* of a name, in messages */

typedef struct {
    uint32_t tag; /* upper half of the hash */
    int id;       /* -1: free */
} Name;

typedef struct {
    uint64_t pair; /* left id << 32 | right id; NO_PAIR: free */
    int rank, id;  /* id: what the two become */
} Merge;
#define NO_PAIR UINT64_MAX

typedef struct {
    char *text;
    size_t length;
    int id;
} Added;

/* Added tokens in order of their bytes, and which bytes they begin with. */
typedef struct {
    Added *items;
    size_t count;
    bool first[256];
} AddedSet;

#define LETTERS 0x144 /* the byte letters are below */
#define WORD_SLOTS_LOG 16
/* A short word seen before, half a cache line. key: its bytes, zeros, in the last byte their number. ids: the rest -1. */
typedef struct {
    uint64_t key[2];
    int ids[4];
} Word;

typedef enum { LETTER, NUMBER, SPACE, NEWLINE, OTHER, MANY_BYTES } Class;

struct Tokenizer {
    char *bytes; /* of all pieces, one behind another */
    size_t bytes_used;
    Piece *pieces; /* [size] */
    size_t size, vocab_size; /* vocab_size: those of the model's vocabulary, which come first */
    Name *names;             /* hash table of the vocabulary */
    size_t names_mask;
    Merge *merges; /* hash table */
    unsigned merges_shift;
    size_t merge_count;
    short letters[LETTERS];
    int byte_ids[256];             /* -1: the vocabulary lacks that byte, which then vanishes, as in the reference */
    AddedSet raw_added, nfc_added; /* those found before NFC, and after it ("normalized": true) */
    bool nfc;
    int begin_id;            /* put before every text; -1: none */
    int (*crossed)[256];      /* see "whole characters" */
    struct Character *characters;
    unsigned char class[256]; /* of each ASCII byte; MANY_BYTES from 0x80 on */
    Word *words;              /* [1 << WORD_SLOTS_LOG] */
    char *chat_template;      /* chat_length bytes */
    size_t chat_length;
    char *default_system;
    char chat_problem[512]; /* empty: chat works */
};

/* ---- errors, lists, files ---------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static int fail(char err[512], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, 512, fmt, args);
    va_end(args);
    return -1;
}

static int fail_memory(char err[512])
{
    return fail(err, "not enough memory for the tokenizer");
}

/* Room for more than count + extra things of that size behind *items. */
static int reserve(void *items, size_t *capacity, size_t count, size_t extra, size_t size)
{
    if (extra >= SIZE_MAX / 2 / size - count)
        return -1;
    size_t needed = count + extra + 1, grown = *capacity + *capacity / 2 + 64;
    if (needed <= *capacity)
        return 0;
    if (grown < needed)
        grown = needed;
    void *old, *fresh;
    memcpy(&old, items, sizeof old);
    if (!(fresh = realloc(old, grown * size)))
        return -1;
    memcpy(items, &fresh, sizeof fresh);
    *capacity = grown;
    return 0;
}

/* Memory for tables that are read all over: in huge pages where the system has them. */
static void *big_alloc(size_t size)
{
    const size_t huge = (size_t)2 << 20;
    if (size < huge / 2)
        return malloc(size + !size);
    if (size > SIZE_MAX - huge)
        return NULL;
    size = (size + huge - 1) & ~(huge - 1);
    void *p = aligned_alloc(huge, size);
#ifdef MADV_HUGEPAGE
    if (p)
        madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

int id_list_append(IdList *list, int id)
{
    if (list->count == list->capacity && reserve(&list->items, &list->capacity, list->count, 0, sizeof *list->items))
        return -1;
    list->items[list->count++] = id;
    return 0;
}

void id_list_free(IdList *list)
{
    free(list->items);
    *list = (IdList){0};
}

int text_append(Text *text, const char *bytes, size_t length)
{
    if (reserve(&text->bytes, &text->capacity, text->length, length, 1))
        return -1;
    if (length)
        memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return 0;
}

void text_free(Text *text)
{
    free(text->bytes);
    *text = (Text){0};
}

/* The whole file, fresh; 1 and nothing if there is none of that name. */
static int read_file(const char *path, Text *out, char err[512])
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? 1 : fail(err, "%s: %s", path, strerror(errno));
    int result = 0;
    if (fstat(fd, &st))
        result = fail(err, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        result = fail(err, "%s: is not a regular file", path);
    else if ((uint64_t)st.st_size > FILE_LIMIT)
        result = fail(err, "%s: has %lld bytes, more than the %zu that are accepted", path, (long long)st.st_size, FILE_LIMIT);
    else if (!(out->bytes = big_alloc(out->capacity = (size_t)st.st_size + 1)))
        result = fail_memory(err);
    while (!result && out->length < (size_t)st.st_size) {
        ssize_t n = read(fd, out->bytes + out->length, (size_t)st.st_size - out->length);
        if (n < 0 && errno != EINTR)
            result = fail(err, "%s: %s", path, strerror(errno));
        else if (n == 0)
            break;
        out->length += n > 0 ? (size_t)n : 0;
    }
    if (!result)
        out->bytes[out->length] = 0;
    close(fd);
    return result;
}

/* A file's JSON; what it points into is left in text. 1 if there is no such file. */
static int read_json(const char *path, Text *text, JsonValue **root, char err[512])
{
    char why[512];
    int result = read_file(path, text, err);
    if (result == 0 && !(*root = json_parse(text->bytes, text->length, why)))
        result = fail(err, "%s: %.400s", path, why);
    return result;
}

static char *join_path(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* ---- letters that stand for bytes ------------------------------------------------------------------------------- */

/* t->letters[c]: the byte that character c stands for; -1: none. */
static void make_letters(Tokenizer *t)
{
    int next = 0x100;
    memset(t->letters, 0xff, sizeof t->letters);
    for (int b = 0; b < 256; b++)
        if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad))
            t->letters[b] = (short)b;
        else
            t->letters[next++] = (short)b;
}

/* The bytes that a token as it is written stands for, at most length of them; *raw: it isn't written in the byte letters. */
static size_t token_bytes(const Tokenizer *t, char *out, const char *token, size_t length, bool *raw)
{
    const unsigned char *s = (const unsigned char *)token;
    size_t n = 0;
    *raw = false;
    for (size_t i = 0; i < length; n++) {
        unsigned c = s[i++];
        if (c >= 0x80)
            c = c < 0xc6 && i < length ? (c & 0x1f) << 6 | (s[i++] & 0x3f) : 0;
        if (c >= LETTERS || t->letters[c] < 0) {
            *raw = true;
            memcpy(out, token, length);
            return length;
        }
        out[n] = (char)t->letters[c];
    }
    return n;
}

/* ---- hash tables ------------------------------------------------------------------------------------------------- */

static uint64_t load8(const char *bytes)
{
    uint64_t x;
    memcpy(&x, bytes, 8);
    return x;
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

static uint64_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t h = mix(length + 1), last = 0;
    for (; length >= 8; bytes += 8, length -= 8)
        h = mix(h ^ load8(bytes));
    for (size_t i = 0; i < length; i++)
        last = last << 8 | (unsigned char)bytes[i];
    return mix(h ^ last);
}

/* A power of two that leaves a table of n things at most two thirds full. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n + n / 2 + 1)
        size *= 2;
    return size;
}

/* Where a token of the vocabulary is in t->names, or the free place for it. */
static Name *find_name(const Tokenizer *t, const char *bytes, size_t length, bool raw, uint64_t hash)
{
    for (size_t i = hash & t->names_mask;; i = (i + 1) & t->names_mask) {
        Name *name = &t->names[i];
        if (name->id < 0)
            return name;
        const Piece *p = &t->pieces[name->id];
        if (name->tag == (uint32_t)(hash >> 32) && p->length == length && p->raw == raw &&
            memcmp(t->bytes + p->start, bytes, length) == 0)
            return name;
    }
}

static Merge *find_merge(const Tokenizer *t, int left, int right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - t->merges_shift)) - 1;
    for (size_t i = pair * 0x9e3779b97f4a7c15u >> t->merges_shift;; i = (i + 1) & mask)
        if (t->merges[i].pair == pair || t->merges[i].pair == NO_PAIR)
            return &t->merges[i];
}

/* ---- reading the vocabulary and the merges ----------------------------------------------------------------------- */

/* A value of the file as short JSON text, for messages. */
static const char *quoted(const JsonValue *value, char out[160])
{
    memset(out, 0, 160);
    FILE *f = value ? fmemopen(out, 156, "w") : NULL;
    if (!f)
        return value ? "?" : "nothing";
    json_print(f, value, JSON_COMPACT);
    fclose(f);
    if (strlen(out) >= 150)
        memcpy(out + 150, "...", 4);
    return out;
}

/* Puts a token's bytes behind the others; the room was made before. */
static void add_piece(Tokenizer *t, size_t id, const char *token, size_t length)
{
    Piece *p = &t->pieces[id];
    p->start = (uint32_t)t->bytes_used;
    p->length = (uint32_t)token_bytes(t, t->bytes + t->bytes_used, token, length, &p->raw);
    t->bytes_used += p->length;
}

/* Memory for the tokens of vocab and for added ones, with so many bytes of text. */
static int make_room(Tokenizer *t, const JsonValue *vocab, size_t added, size_t added_bytes, char err[512])
{
    size_t total = added_bytes + 1, slots = table_size(vocab->length);
    for (const JsonValue *v = vocab->child; v; v = v->next)
        total += v->key_length;
    t->size = vocab->length + added;
    t->vocab_size = vocab->length;
    t->bytes = big_alloc(total);
    t->pieces = big_alloc(t->size * sizeof *t->pieces);
    t->names = big_alloc(slots * sizeof *t->names);
    t->names_mask = slots - 1;
    if (!t->bytes || !t->pieces || !t->names)
        return fail_memory(err);
    for (size_t i = 0; i < t->size; i++)
        t->pieces[i] = (Piece){.start = UNSET};
    memset(t->names, 0xff, slots * sizeof *t->names); /* every id -1 */
    return 0;
}

/* {token: id}: ids are 0..n-1, each once. */
static int read_vocabulary(Tokenizer *t, const JsonValue *vocab, const char *path, char err[512])
{
    char quote[160];
    for (const JsonValue *v = vocab->child; v; v = v->next) {
        uint64_t id;
        if (json_u64(v, &id))
            return fail(err, "%s: token \"%.*s\" has the id %s, expected an integer of 0 or more", path, SHOWN(v->key_length), v->key,
                        quoted(v, quote));
        if (id >= t->vocab_size)
            return fail(err, "%s: token \"%.*s\" has the id %llu, but %zu tokens should have the ids 0 to %zu", path,
                        SHOWN(v->key_length), v->key, (unsigned long long)id, t->vocab_size, t->vocab_size - 1);
        if (t->pieces[id].start != UNSET)
            return fail(err, "%s: two tokens have the id %llu, one of them \"%.*s\"", path, (unsigned long long)id,
                        SHOWN(v->key_length), v->key);
        add_piece(t, id, v->key, v->key_length);
        const Piece *p = &t->pieces[id];
        uint64_t hash = hash_bytes(t->bytes + p->start, p->length);
        Name *name = find_name(t, t->bytes + p->start, p->length, p->raw, hash);
        if (name->id >= 0)
            return fail(err, "%s: token \"%.*s\" is there twice", path, SHOWN(v->key_length), v->key);
        *name = (Name){(uint32_t)(hash >> 32), (int)id};
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_ids[b] = find_name(t, &byte, 1, false, hash_bytes(&byte, 1))->id;
    }
    return 0;
}

/* A token's id as the vocabulary writes it; -1: none. scratch: length bytes. */
static int vocabulary_id(const Tokenizer *t, const char *token, size_t length, char *scratch)
{
    bool raw;
    size_t n = token_bytes(t, scratch, token, length, &raw);
    return find_name(t, scratch, n, raw, hash_bytes(scratch, n))->id;
}

static int make_merges(Tokenizer *t, size_t count, char err[512])
{
    size_t slots = table_size(count);
    t->merges = big_alloc(slots * sizeof *t->merges);
    if (!t->merges || count > INT_MAX)
        return fail_memory(err);
    memset(t->merges, 0xff, slots * sizeof *t->merges); /* every pair NO_PAIR */
    for (t->merges_shift = 64; slots > 1; slots /= 2)
        t->merges_shift--;
    return 0;
}

/* What left and right become. Merges mostly come in the order of the ids that they make: the one after `last` is tried first.
 * both: memory for left and right as they are written, one behind the other. */
static int merged_id(const Tokenizer *t, int left, int right, int last, char *both, size_t length)
{
    const Piece *l = &t->pieces[left], *r = &t->pieces[right];
    if (l->raw || r->raw)
        return find_name(t, both, length, true, hash_bytes(both, length))->id;
    memcpy(both, t->bytes + l->start, l->length);
    memcpy(both + l->length, t->bytes + r->start, r->length);
    length = l->length + (size_t)r->length;
    if ((size_t)last + 1 < t->vocab_size) {
        const Piece *next = &t->pieces[last + 1];
        if (next->length == length && !next->raw && memcmp(t->bytes + next->start, both, length) == 0)
            return last + 1;
    }
    return find_name(t, both, length, false, hash_bytes(both, length))->id;
}

typedef struct {
    Tokenizer *t;
    Text scratch;
    int last; /* id that the last merge made */
    const char *path;
} MergeReader;

/* The next merge; of equal pairs the last one counts, as in the reference. */
static int add_merge(MergeReader *m, const char *left, size_t left_length, const char *right, size_t right_length, char err[512])
{
    Tokenizer *t = m->t;
    size_t length = left_length + right_length;
    if (reserve(&m->scratch.bytes, &m->scratch.capacity, 0, length, 1))
        return fail_memory(err);
    char *scratch = m->scratch.bytes;
    int l = vocabulary_id(t, left, left_length, scratch), r = vocabulary_id(t, right, right_length, scratch);
    if (l < 0 || r < 0)
        return fail(err, "%s: merge %zu has the part \"%.*s\", which is not in the vocabulary", m->path, t->merge_count,
                    l < 0 ? SHOWN(left_length) : SHOWN(right_length), l < 0 ? left : right);
    memcpy(scratch, left, left_length);
    memcpy(scratch + left_length, right, right_length);
    int id = merged_id(t, l, r, m->last, scratch, length);
    if (id < 0)
        return fail(err, "%s: merge %zu makes \"%.*s%.*s\", which is not in the vocabulary", m->path, t->merge_count,
                    SHOWN(left_length), left, SHOWN(right_length), right);
    *find_merge(t, l, r) = (Merge){(uint64_t)(uint32_t)l << 32 | (uint32_t)r, (int)t->merge_count++, id};
    m->last = id;
    return 0;
}

/* "left right" */
static int add_merge_line(MergeReader *m, const char *line, size_t length, char err[512])
{
    const char *space = memchr(line, ' ', length), *end = line + length;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return fail(err, "%s: merge %zu is \"%.*s\", expected two tokens with one space between", m->path, m->t->merge_count,
                    SHOWN(length), line);
    return add_merge(m, line, (size_t)(space - line), space + 1, (size_t)(end - space - 1), err);
}

/* Merges as "left right" or ["left", "right"]. */
static int read_merges(MergeReader *m, const JsonValue *merges, char err[512])
{
    char quote[160];
    for (const JsonValue *v = merges->child; v; v = v->next) {
        const JsonValue *left = v->child;
        int failed;
        if (v->type == JSON_STRING)
            failed = add_merge_line(m, v->text, v->length, err);
        else if (v->type == JSON_ARRAY && v->length == 2 && left->type == JSON_STRING && left->next->type == JSON_STRING)
            failed = add_merge(m, left->text, left->length, left->next->text, left->next->length, err);
        else
            failed = fail(err, "%s: merge %zu is %s, expected \"a b\" or [\"a\", \"b\"]", m->path, m->t->merge_count, quoted(v, quote));
        if (failed)
            return -1;
    }
    return 0;
}

static size_t count_lines(const Text *text)
{
    size_t lines = 1;
    for (size_t i = 0; i < text->length; i++)
        lines += text->bytes[i] == '\n';
    return lines;
}

/* merges.txt: a merge a line, and perhaps a first line "#version: ...". */
static int read_merge_lines(MergeReader *m, const Text *text, char err[512])
{
    for (const char *at = text->bytes, *end = at + text->length; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        size_t shown = length && at[length - 1] == '\r' ? length - 1 : length;
        bool version = shown >= 8 && memcmp(at, "#version", 8) == 0;
        if (!version && add_merge_line(m, at, shown, err))
            return -1;
        at += length + 1;
    }
    return 0;
}

static int check_merge_count(const Tokenizer *t, const char *path, char err[512])
{
    if (t->merge_count == 0 && t->vocab_size > 256)
        return fail(err, "%s: has no merges for a vocabulary of %zu tokens", path, t->vocab_size);
    return 0;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

static int compare_added(const void *a, const void *b)
{
    const Added *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : x->length < y->length ? -1 : x->length > y->length;
}

/* The longest token of the set that s begins with, or NULL. Byte by byte, the tokens that still fit are a shrinking range. */
static const Added *match_added(const AddedSet *set, const char *s, size_t n)
{
    const Added *best = NULL, *low = set->items, *high = low + set->count;
    for (size_t k = 0; k < n && low < high; k++) {
        low += low->length == k; /* it ends here */
        const Added *bounds[2];
        for (int above = 0; above < 2; above++) { /* the first whose byte k is s[k] or more; is more */
            const Added *from = low, *to = high;
            while (from < to) {
                const Added *middle = from + (to - from) / 2;
                if ((unsigned char)middle->text[k] < (unsigned char)s[k] + above)
                    from = middle + 1;
                else
                    to = middle;
            }
            bounds[above] = from;
        }
        low = bounds[0];
        high = bounds[1];
        if (low < high && low->length == k + 1)
            best = low;
    }
    return best;
}

static int append_added(AddedSet *set, char *text, size_t length, int id)
{
    Added *items = realloc(set->items, (set->count + 1) * sizeof *items);
    if (!items)
        return -1;
    set->items = items;
    items[set->count++] = (Added){text, length, id};
    set->first[(unsigned char)text[0]] = true;
    return 0;
}

/* A flag of an added token; what is not there is false. */
static int read_flag(const JsonValue *token, const char *name, bool *out, const char *path, char err[512])
{
    const JsonValue *v = json_get(token, name);
    char quote[160];
    *out = false;
    if (v && json_bool(v, out))
        return fail(err, "%s: added token %s: \"%s\" should be true or false", path, quoted(token, quote), name);
    return 0;
}

/* The id of one added token: what the vocabulary says if it is in there, else one of those that follow the vocabulary's. */
static int added_id(Tokenizer *t, const JsonValue *token, const JsonValue *text, int *id, const char *path, char err[512])
{
    JsonValue key = {.type = JSON_INTEGER, .text = token->key, .length = token->key_length}; /* {"151643": {...}} */
    const JsonValue *number = token->key_length ? &key : json_get(token, "id");
    uint64_t value;
    char quote[160];
    if (json_u64(number, &value))
        return fail(err, "%s: added token %s: its id should be an integer of 0 or more", path, quoted(token, quote));
    char *scratch = malloc(text->length + 1);
    if (!scratch)
        return fail_memory(err);
    int known = vocabulary_id(t, text->text, text->length, scratch);
    free(scratch);
    if (known >= 0 && (uint64_t)known != value)
        return fail(err, "%s: added token \"%.*s\" has the id %llu, but %d in the vocabulary", path, SHOWN(text->length), text->text,
                    (unsigned long long)value, known);
    if (known < 0 && (value < t->vocab_size || value >= t->size || t->pieces[value].start != UNSET))
        return fail(err, "%s: added token \"%.*s\" has the id %llu, expected one that is free and follows the others' without a gap",
                    path, SHOWN(text->length), text->text, (unsigned long long)value);
    *id = (int)value;
    return 0;
}

static int read_added_token(Tokenizer *t, const JsonValue *token, const char *path, char err[512])
{
    static const char *const refused[] = {"lstrip", "rstrip", "single_word"};
    const JsonValue *text = json_get(token, "content");
    char quote[160];
    bool flag, special, normalized;
    int id = -1;
    if (!text || text->type != JSON_STRING || text->length == 0)
        return fail(err, "%s: added token %s: expected an object with a \"content\" that is not empty", path, quoted(token, quote));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (read_flag(token, refused[i], &flag, path, err))
            return -1;
        else if (flag)
            return fail(err, "%s: added token \"%.*s\" has \"%s\": true, which is not supported", path, SHOWN(text->length), text->text,
                        refused[i]);
    if (read_flag(token, "special", &special, path, err) || read_flag(token, "normalized", &normalized, path, err) ||
        added_id(t, token, text, &id, path, err))
        return -1;
    size_t length = text->length;
    char *copy = normalized && t->nfc ? unicode_nfc(text->text, text->length, &length) : malloc(length + 1);
    if (copy && !(normalized && t->nfc))
        memcpy(copy, text->text, length);
    if (!copy || append_added(normalized ? &t->nfc_added : &t->raw_added, copy, length, id)) {
        free(copy);
        return fail_memory(err);
    }
    if (t->pieces[id].start == UNSET)
        add_piece(t, (size_t)id, text->text, text->length);
    t->pieces[id].special = special;
    return 0;
}

/* A list of tokens with their ids, or a map of ids to tokens. */
static int read_added(Tokenizer *t, const JsonValue *list, const char *path, char err[512])
{
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next)
        if (read_added_token(t, v, path, err))
            return -1;
    size_t used = t->vocab_size;
    while (used < t->size && t->pieces[used].start != UNSET)
        used++;
    for (size_t i = used; i < t->size; i++)
        if (t->pieces[i].start != UNSET)
            return fail(err, "%s: no token has the id %zu, but one has %zu", path, used, i);
    t->size = used;
    AddedSet *sets[] = {&t->raw_added, &t->nfc_added};
    for (size_t s = 0; s < 2; s++) {
        if (sets[s]->count)
            qsort(sets[s]->items, sets[s]->count, sizeof *sets[s]->items, compare_added);
        for (size_t i = 1; i < sets[s]->count; i++)
            if (compare_added(&sets[s]->items[i - 1], &sets[s]->items[i]) == 0)
                return fail(err, "%s: added token \"%.*s\" is there twice", path, SHOWN(sets[s]->items[i].length), sets[s]->items[i].text);
    }
    return 0;
}

/* ---- what a tokenizer.json may ask for --------------------------------------------------------------------------- */

static bool is_null(const JsonValue *v)
{
    return !v || v->type == JSON_NULL;
}

static bool is_false(const JsonValue *v)
{
    return v && v->type == JSON_FALSE;
}

static int refuse(const char *path, const char *what, const JsonValue *found, const char *expected, char err[512])
{
    char quote[160];
    return fail(err, "%s: %s is %s, which is not supported; expected %s", path, what, quoted(found, quote), expected);
}

/* Nothing, NFC, or a sequence of these. */
static int check_normalizer(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "normalizers") : NULL;
    bool known = is_null(v) || json_string_is(json_get(v, "type"), "NFC");
    t->nfc = known && !is_null(v);
    if (list && list->type == JSON_ARRAY) {
        known = true;
        for (const JsonValue *n = list->child; n; n = n->next) {
            known = known && json_string_is(json_get(n, "type"), "NFC");
            t->nfc = true;
        }
    }
    return known ? 0 : refuse(path, "\"normalizer\"", v, "NFC or none", err);
}

/* The split pattern, then the byte letters. */
static int check_pre_tokenizer(const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_get(v, "pretokenizers");
    const JsonValue *split = list && list->type == JSON_ARRAY && list->length == 2 ? list->child : NULL;
    const JsonValue *bytes = split ? split->next : NULL, *pattern = json_get(json_get(split, "pattern"), "Regex");
    if (!json_string_is(json_get(v, "type"), "Sequence") || !json_string_is(json_get(split, "type"), "Split") ||
        !json_string_is(json_get(bytes, "type"), "ByteLevel"))
        return refuse(path, "\"pre_tokenizer\"", v, "a Sequence of Split and ByteLevel, as Qwen2 has it", err);
    if (!json_string_is(pattern, SPLIT_PATTERN))
        return refuse(path, "the split pattern", json_get(split, "pattern"), "Qwen2's", err);
    if (!json_string_is(json_get(split, "behavior"), "Isolated") || !is_false(json_get(split, "invert")))
        return refuse(path, "\"Split\"", split, "\"behavior\": \"Isolated\", \"invert\": false", err);
    if (!is_false(json_get(bytes, "add_prefix_space")) || !is_false(json_get(bytes, "use_regex")))
        return refuse(path, "\"ByteLevel\"", bytes, "\"add_prefix_space\": false, \"use_regex\": false", err);
    return 0;
}

/* {"type": "TemplateProcessing", "single": [begin token, text]}: sets begin_id. */
static int check_template(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *single = json_get(v, "single"), *part = single && single->type == JSON_ARRAY ? single->child : NULL;
    const JsonValue *begin = json_get(part, "SpecialToken"), *name = json_get(begin, "id"), *token = NULL;
    if (begin) {
        const JsonValue *known = json_get(v, "special_tokens");
        for (const JsonValue *k = known ? known->child : NULL; k && name && name->type == JSON_STRING; k = k->next)
            if (k->key && k->key_length == name->length && memcmp(k->key, name->text, name->length) == 0)
                token = json_get(k, "ids");
        uint64_t id;
        if (!token || token->type != JSON_ARRAY || token->length != 1 || json_u64(token->child, &id) || id >= t->size || t->begin_id >= 0)
            return refuse(path, "\"post_processor\"", v, "one that puts at most one known token before the text", err);
        t->begin_id = (int)id;
        part = part->next;
    }
    if (!part || part->next || !json_string_is(json_get(json_get(part, "Sequence"), "id"), "A"))
        return refuse(path, "\"post_processor\"", v, "one that puts at most one known token before the text", err);
    return 0;
}

/* ByteLevel (which changes no ids), a begin token, a sequence of these, or nothing. */
static int check_post_processor(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "processors") : NULL;
    if (is_null(v) || json_string_is(json_get(v, "type"), "ByteLevel"))
        return 0;
    if (json_string_is(json_get(v, "type"), "TemplateProcessing"))
        return check_template(t, v, path, err);
    for (const JsonValue *p = list && list->type == JSON_ARRAY ? list->child : NULL; p; p = p->next) {
        bool template = json_string_is(json_get(p, "type"), "TemplateProcessing");
        if (template && check_template(t, p, path, err))
            return -1;
        if (!template && !json_string_is(json_get(p, "type"), "ByteLevel"))
            list = NULL;
        if (!list)
            break;
    }
    return list ? 0 : refuse(path, "\"post_processor\"", v, "ByteLevel, a begin token, or none", err);
}

static int check_decoder(const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "decoders") : NULL;
    const JsonValue *only = list && list->type == JSON_ARRAY && list->length == 1 ? list->child : v;
    return json_string_is(json_get(only, "type"), "ByteLevel") ? 0 : refuse(path, "\"decoder\"", v, "ByteLevel", err);
}

/* Options of the model that would change its ids. */
static int check_model(const JsonValue *model, const char *path, char err[512])
{
    static const char *const empty[] = {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const off[] = {"byte_fallback", "ignore_merges"};
    const JsonValue *type = json_get(model, "type"), *dropout = json_get(model, "dropout"), *vocab = json_get(model, "vocab");
    double p = 0;
    if (!model || model->type != JSON_OBJECT || (type && !json_string_is(type, "BPE")))
        return refuse(path, "the type of \"model\"", type, "\"BPE\"", err);
    if (!is_null(dropout) && (json_double(dropout, &p) || p != 0))
        return refuse(path, "\"dropout\"", dropout, "none", err);
    for (size_t i = 0; i < 3; i++) {
        const JsonValue *v = json_get(model, empty[i]);
        if (!is_null(v) && (i == 0 || !json_string_is(v, "")))
            return refuse(path, empty[i], v, "none", err);
    }
    for (size_t i = 0; i < 2; i++) {
        const JsonValue *v = json_get(model, off[i]);
        if (!is_null(v) && !is_false(v))
            return refuse(path, off[i], v, "false", err);
    }
    if (!vocab || vocab->type != JSON_OBJECT || vocab->length == 0)
        return refuse(path, "\"vocab\"", vocab && vocab->type == JSON_OBJECT ? NULL : vocab, "a map of tokens to ids", err);
    if (!json_get(model, "merges") || json_get(model, "merges")->type != JSON_ARRAY)
        return refuse(path, "\"merges\"", json_get(model, "merges"), "a list", err);
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static size_t added_bytes(const JsonValue *list)
{
    size_t total = 0;
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next) {
        const JsonValue *text = json_get(v, "content");
        total += text && text->type == JSON_STRING ? text->length : 0;
    }
    return total;
}

/* "truncation" and "padding" are not looked at: the reference's callers switch them off for a single text. */
static int read_tokenizer(Tokenizer *t, const JsonValue *root, const char *path, char err[512])
{
    const JsonValue *model = json_get(root, "model"), *added = json_get(root, "added_tokens");
    const JsonValue *vocab = json_get(model, "vocab"), *merges = json_get(model, "merges");
    MergeReader m = {.t = t, .path = path};
    if (root->type != JSON_OBJECT || !model)
        return fail(err, "%s: has no \"model\": it is no tokenizer.json", path);
    if (!is_null(added) && added->type != JSON_ARRAY)
        return refuse(path, "\"added_tokens\"", added, "a list", err);
    if (check_model(model, path, err) || check_normalizer(t, json_get(root, "normalizer"), path, err) ||
        check_pre_tokenizer(json_get(root, "pre_tokenizer"), path, err) || check_decoder(json_get(root, "decoder"), path, err))
        return -1;
    int failed = make_room(t, vocab, is_null(added) ? 0 : added->length, added_bytes(added), err) ||
                 read_vocabulary(t, vocab, path, err) || make_merges(t, merges->length, err) || read_merges(&m, merges, err) ||
                 check_merge_count(t, path, err) || read_added(t, added, path, err) ||
                 check_post_processor(t, json_get(root, "post_processor"), path, err);
    text_free(&m.scratch);
    return failed ? -1 : 0;
}

static int read_tokenizer_file(Tokenizer *t, const char *path, char err[512])
{
    Text text = {0};
    JsonValue *root = NULL;
    int result = read_json(path, &text, &root, err);
    if (result == 0)
        result = read_tokenizer(t, root, path, err);
    json_free(root);
    text_free(&text);
    return result;
}

/* The added tokens of tokenizer_config.json; without that, the one that the reference adds by itself. */
static int read_config_tokens(Tokenizer *t, const JsonValue *config, const JsonValue *vocab, const char *path, char err[512])
{
    const JsonValue *added = json_get(config, "added_tokens_decoder");
    char text[128], why[512];
    snprintf(text, sizeof text, "{\"%zu\":{\"content\":\"<|endoftext|>\",\"special\":true}}", vocab->length);
    JsonValue *usual = json_parse(text, strlen(text), why);
    if (!usual)
        return fail_memory(err);
    if (!added)
        added = usual;
    int failed = added->type != JSON_OBJECT ? refuse(path, "\"added_tokens_decoder\"", added, "a map of ids to tokens", err)
                                            : make_room(t, vocab, added->length, added_bytes(added), err) ||
                                                  read_vocabulary(t, vocab, path, err) || read_added(t, added, path, err);
    json_free(usual);
    return failed ? -1 : 0;
}

/* The older form: vocab.json, merges.txt, and added tokens in tokenizer_config.json. 1 if they are not there. */
static int read_vocab_and_merges(Tokenizer *t, const char *folder, char err[512])
{
    char *paths[] = {join_path(folder, "vocab.json"), join_path(folder, "merges.txt"), join_path(folder, "tokenizer_config.json")};
    Text vocab_text = {0}, merges_text = {0}, config_text = {0};
    JsonValue *vocab = NULL, *config = NULL;
    MergeReader m = {.t = t, .path = paths[1]};
    int result = paths[0] && paths[1] && paths[2] ? 0 : fail_memory(err);
    t->nfc = true;
    if (!result)
        result = read_json(paths[0], &vocab_text, &vocab, err);
    if (!result)
        result = read_file(paths[1], &merges_text, err);
    if (!result)
        result = read_json(paths[2], &config_text, &config, err) < 0 ? -1 : 0;
    if (!result && (vocab->type != JSON_OBJECT || vocab->length == 0))
        result = refuse(paths[0], "it", vocab, "a map of tokens to ids", err);
    if (!result)
        result = read_config_tokens(t, config, vocab, config ? paths[2] : paths[0], err);
    if (!result)
        result = make_merges(t, count_lines(&merges_text), err) || read_merge_lines(&m, &merges_text, err) ||
                 check_merge_count(t, paths[1], err) ? -1 : 0;
    json_free(config);
    json_free(vocab);
    text_free(&m.scratch);
    text_free(&config_text);
    text_free(&merges_text);
    text_free(&vocab_text);
    for (size_t i = 0; i < 3; i++)
        free(paths[i]);
    return result;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static void make_classes(Tokenizer *t)
{
    for (unsigned c = 0; c < 256; c++) {
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        t->class[c] = (unsigned char)(c >= 0x80                ? MANY_BYTES
                                      : letter                 ? LETTER
                                      : c >= '0' && c <= '9'   ? NUMBER
                                      : c == '\n' || c == '\r' ? NEWLINE
                                      : unicode_is_space(c)    ? SPACE
                                                               : OTHER);
    }
}

/* U+5000..U+9FFF and U+B000..U+CFFF are all letters, of three bytes each. */
static bool is_ideograph(char lead)
{
    unsigned char b = (unsigned char)lead;
    return (b >= 0xe5 && b <= 0xe9) || b == 0xeb || b == 0xec;
}

/* The class of the character that s (n >= 1 bytes of valid UTF-8) begins with, and its bytes. */
static Class class_at(const Tokenizer *t, const char *s, size_t n, size_t *size)
{
    Class class = t->class[(unsigned char)*s];
    uint32_t c;
    *size = 1;
    if (class != MANY_BYTES)
        return class;
    if (is_ideograph(*s)) {
        *size = 3;
        return LETTER;
    }
    *size = unicode_decode(s, n, &c);
    return unicode_is_letter(c) ? LETTER : unicode_is_number(c) ? NUMBER : unicode_is_space(c) ? SPACE : OTHER;
}

/* Where the run of characters of that class ends that begins at i. */
static size_t run_of(const Tokenizer *t, Class class, const char *s, size_t i, size_t n)
{
    for (;;) {
        while (i < n && t->class[(unsigned char)s[i]] == class)
            i++;
        size_t size;
        if (i == n || t->class[(unsigned char)s[i]] != MANY_BYTES || class_at(t, s + i, n - i, &size) != class)
            return i;
        i += size;
    }
}

/* 's 't 'm 'd 're 've 'll in any case; the long s U+017F is an s. 0: none of them. */
static size_t contraction(const char *s, size_t n)
{
    char a = n > 1 ? (char)(s[1] | 0x20) : 0, b = n > 2 ? (char)(s[2] | 0x20) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return n > 2 && s[1] == '\xc5' && s[2] == '\xbf' ? 3 : 0;
}

/* The length of the word of SPLIT_PATTERN that s (n >= 1 bytes) begins with; its alternatives are taken in order. */
static size_t next_word(const Tokenizer *t, const char *s, size_t n)
{
    size_t size, size2 = 0, end;
    Class class = class_at(t, s, n, &size), class2 = OTHER;
    if (*s == '\'' && (end = contraction(s, n)))
        return end;
    if (class == LETTER)
        return run_of(t, LETTER, s, size, n);
    if (class == NUMBER)
        return size;
    if (class != NEWLINE && size < n) {
        class2 = class_at(t, s + size, n - size, &size2);
        if (class2 == LETTER)
            return run_of(t, LETTER, s, size + size2, n);
    }
    if (class == OTHER || (*s == ' ' && size < n && class2 == OTHER)) {
        end = run_of(t, OTHER, s, size, n);
        while (end < n && (s[end] == '\r' || s[end] == '\n'))
            end++;
        return end;
    }
    size_t after_newline = 0, last = 0; /* last: where the last space begins */
    for (end = 0; end < n; end += size) {
        class = class_at(t, s + end, n - end, &size);
        if (class != SPACE && class != NEWLINE)
            break;
        last = end;
        if (class == NEWLINE)
            after_newline = end + size;
    }
    return after_newline ? after_newline : end == n || last == 0 ? end : last;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

#define SHORT_WORD 64

static int pair_rank(const Tokenizer *t, int left, int right, int *id)
{
    const Merge *m = find_merge(t, left, right);
    *id = m->id;
    return m->pair == NO_PAIR ? INT_MAX : m->rank;
}

/* Merges ids[0..n), n <= SHORT_WORD, in place; returns how many are left. *highest is raised to the ranks that were used. */
static size_t merge_short(const Tokenizer *t, int *ids, size_t n, int *highest)
{
    int rank[SHORT_WORD], joined[SHORT_WORD]; /* of ids[i] and ids[i + 1] */
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(t, ids[i], ids[i + 1], &joined[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == INT_MAX)
            break;
        if (rank[best] > *highest)
            *highest = rank[best];
        ids[best] = joined[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            rank[i] = rank[i + 1];
            joined[i] = joined[i + 1];
        }
        if (best > 0)
            rank[best - 1] = pair_rank(t, ids[best - 1], ids[best], &joined[best - 1]);
        if (best + 1 < n)
            rank[best] = pair_rank(t, ids[best], ids[best + 1], &joined[best]);
    }
    return n;
}

/* A heap of rank << 32 | place, the least on top. */
typedef struct {
    uint64_t *items;
    size_t count;
} Heap;

static void sift_down(Heap *h, size_t i)
{
    uint64_t item = h->items[i];
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        child += child + 1 < h->count && h->items[child + 1] < h->items[child];
        if (item <= h->items[child])
            break;
        h->items[i] = h->items[child];
    }
    h->items[i] = item;
}

static void heap_push(Heap *h, uint64_t item)
{
    size_t i = h->count++;
    for (; i > 0 && item < h->items[(i - 1) / 2]; i = (i - 1) / 2)
        h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = item;
}

static uint64_t heap_pop(Heap *h)
{
    uint64_t top = h->items[0];
    h->items[0] = h->items[--h->count];
    sift_down(h, 0);
    return top;
}

typedef struct {
    int id, rank; /* rank: with the next one; INT_MAX: no merge */
    int previous, next; /* -1: none */
} Link;

/* The same for any n < 2^31 in O(n log n): a linked list of tokens and a heap of the pairs, some of which are out of date. */
static int merge_long(const Tokenizer *t, int *ids, size_t *n)
{
    Link *links = *n < INT_MAX ? malloc(*n * sizeof *links) : NULL;
    Heap h = {malloc(2 * *n * sizeof *h.items), 0}; /* each merge takes one pair away and adds two at most */
    int joined, last = (int)*n - 1;
    if (!links || !h.items) {
        free(links);
        free(h.items);
        return -1;
    }
    for (int i = 0; i <= last; i++) {
        links[i] = (Link){ids[i], INT_MAX, i - 1, i < last ? i + 1 : -1};
        if (i < last && (links[i].rank = pair_rank(t, ids[i], ids[i + 1], &joined)) != INT_MAX)
            h.items[h.count++] = (uint64_t)links[i].rank << 32 | (uint32_t)i;
    }
    for (size_t i = h.count / 2; i-- > 0;)
        sift_down(&h, i);
    while (h.count) {
        uint64_t top = heap_pop(&h);
        int here = (int)(uint32_t)top, next = links[here].next;
        if (links[here].rank != (int)(top >> 32))
            continue;
        pair_rank(t, links[here].id, links[next].id, &links[here].id);
        links[next].rank = INT_MAX;
        links[here].next = links[next].next;
        if (links[here].next >= 0)
            links[links[here].next].previous = here;
        for (int left = links[here].previous, k = 0; k < 2; k++, left = here) {
            if (left < 0)
                continue;
            int right = links[left].next;
            links[left].rank = right < 0 ? INT_MAX : pair_rank(t, links[left].id, links[right].id, &joined);
            if (links[left].rank != INT_MAX)
                heap_push(&h, (uint64_t)links[left].rank << 32 | (uint32_t)left);
        }
    }
    *n = 0;
    for (int i = 0; i >= 0; i = links[i].next)
        ids[(*n)++] = links[i].id;
    free(links);
    free(h.items);
    return 0;
}

/* ---- whole characters ---------------------------------------------------------------------------------------------- */

/* A word of Chinese has three bytes a character, and nearly always they become one token before anything else touches them; then
 * the word may as well begin as characters. When is that so? A merge reaches into an unfinished character only if its result ends
 * or begins within one; crossed[x][y] is the lowest rank of those whose result has, where a character begins, byte x before it and
 * byte y as its first. A character whose own merges all rank lower than crossed[][] at both its ends is finished before. (If merges
 * need parts that are made later, this fails; then there are no characters.) */

typedef struct Character {
    int id, rank; /* id 0 - 1: not looked at yet, or - 2: not one token; rank: the highest of its merges */
} Character;

static bool is_continuation(char byte)
{
    return (byte & 0xc0) == 0x80;
}

static size_t sequence_length(char lead)
{
    unsigned char b = (unsigned char)lead;
    return b < 0xc0 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

/* Enters a merge's result, if it begins or ends within a character. */
static void note_crossing(Tokenizer *t, const Merge *m)
{
    const char *s = t->bytes + t->pieces[m->id].start;
    size_t n = t->pieces[m->id].length, last = n - 1;
    while (last > 0 && is_continuation(s[last]))
        last--;
    if (!is_continuation(s[0]) && sequence_length(s[last]) == n - last)
        return;
    for (size_t k = 1; k < n; k++) {
        int *rank = &t->crossed[(unsigned char)s[k - 1]][(unsigned char)s[k]];
        if (!is_continuation(s[k]) && m->rank < *rank)
            *rank = m->rank;
    }
}

static int make_characters(Tokenizer *t)
{
    size_t slots = (size_t)1 << (64 - t->merges_shift);
    int *made = malloc(t->size * sizeof *made); /* the highest rank that makes each token */
    t->crossed = malloc(256 * sizeof *t->crossed);
    t->characters = big_alloc(0x10000 * sizeof *t->characters);
    if (!made || !t->crossed || !t->characters) {
        free(made);
        return -1;
    }
    for (size_t i = 0; i < 256 * 256; i++)
        t->crossed[0][i] = INT_MAX;
    memset(made, 0xff, t->size * sizeof *made);
    memset(t->characters, 0xff, 0x10000 * sizeof *t->characters);
    for (size_t i = 0; i < slots; i++)
        if (t->merges[i].pair != NO_PAIR) {
            note_crossing(t, &t->merges[i]);
            if (t->merges[i].rank > made[t->merges[i].id])
                made[t->merges[i].id] = t->merges[i].rank;
        }
    for (size_t i = 0; i < slots; i++) {
        const Merge *m = &t->merges[i];
        if (m->pair != NO_PAIR && (m->rank <= made[m->pair >> 32] || m->rank <= made[(uint32_t)m->pair]))
            memset(t->crossed, 0xff, 256 * sizeof *t->crossed); /* -1: no rank is lower */
    }
    free(made);
    return 0;
}

/* The character of three bytes at s[i], if it may be one token from the start, else NULL; its bytes. */
static const Character *character_at(const Tokenizer *t, const char *s, size_t i, size_t length, size_t *size)
{
    *size = sequence_length(s[i]);
    if (*size != 3)
        return NULL;
    Character *c = &t->characters[(s[i] & 0xf) << 12 | (s[i + 1] & 0x3f) << 6 | (s[i + 2] & 0x3f)];
    size_t next = i + 3;
    if (c->id == -1) {
        int ids[3];
        for (size_t k = 0; k < 3; k++)
            ids[k] = t->byte_ids[(unsigned char)s[i + k]];
        c->rank = -1;
        c->id = merge_short(t, ids, 3, &c->rank) == 1 ? ids[0] : -2;
    }
    bool whole = c->id >= 0 && (i == 0 || c->rank < t->crossed[(unsigned char)s[i - 1]][(unsigned char)s[i]]) &&
                 (next == length || c->rank < t->crossed[(unsigned char)s[next - 1]][(unsigned char)s[next]]);
    return whole ? c : NULL;
}

/* Appends the ids of one word. */
static int merge_word(const Tokenizer *t, const char *s, size_t length, IdList *ids)
{
    if (reserve(&ids->items, &ids->capacity, ids->count, length, sizeof *ids->items))
        return -1;
    int *word = ids->items + ids->count, highest = -1;
    size_t n = 0;
    for (size_t i = 0, size; i < length; i += size) {
        const Character *whole = character_at(t, s, i, length, &size);
        if (whole)
            word[n++] = whole->id;
        for (size_t k = 0; k < size && !whole; k++) {
            word[n] = t->byte_ids[(unsigned char)s[i + k]];
            n += word[n] >= 0;
        }
    }
    if (n > SHORT_WORD) {
        if (merge_long(t, word, &n))
            return -1;
    } else if (n > 1)
        n = merge_short(t, word, n, &highest);
    ids->count += n;
    return 0;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LAST_BYTE_SHIFT 56
#else
#define LAST_BYTE_SHIFT 0
#endif

/* A word of less than 16 bytes as a key; so many bytes can be read from s. */
static void word_key(uint64_t key[2], const char *s, size_t length, size_t readable)
{
    static const unsigned char ones[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t mask[2];
    memcpy(mask, ones + 16 - length, 16);
    if (readable >= 16) {
        memcpy(key, s, 16);
    } else {
        char padded[16] = {0};
        memcpy(padded, s, length);
        memcpy(key, padded, 16);
    }
    key[0] &= mask[0];
    key[1] = (key[1] & mask[1]) | (uint64_t)length << LAST_BYTE_SHIFT;
}

/* Appends the ids of one word, from t->words if it was there lately. */
static int encode_word(Tokenizer *t, const char *s, size_t length, size_t readable, IdList *ids)
{
    uint64_t key[2];
    if (length >= 16)
        return merge_word(t, s, length, ids);
    if (ids->capacity - ids->count <= 4 && reserve(&ids->items, &ids->capacity, ids->count, 4, sizeof *ids->items))
        return -1;
    word_key(key, s, length, readable);
    uint64_t hash = key[0] * 0x9e3779b97f4a7c15u + key[1] * 0xc2b2ae3d27d4eb4fu;
    Word *w = &t->words[(hash ^ hash >> 32) * 0x9e3779b97f4a7c15u >> (64 - WORD_SLOTS_LOG)];
    if (w->key[0] == key[0] && w->key[1] == key[1]) {
        memcpy(ids->items + ids->count, w->ids, sizeof w->ids);
        ids->count += 1u + (w->ids[1] >= 0) + (w->ids[2] >= 0) + (w->ids[3] >= 0);
        return 0;
    }
    size_t before = ids->count;
    if (merge_word(t, s, length, ids))
        return -1;
    size_t n = ids->count - before;
    if (n > 0 && n <= 4) {
        *w = (Word){{key[0], key[1]}, {-1, -1, -1, -1}};
        memcpy(w->ids, ids->items + before, n * sizeof *w->ids);
    }
    return 0;
}

static int encode_words(Tokenizer *t, const char *s, size_t n, IdList *ids)
{
    for (size_t i = 0, length; i < n; i += length) {
        length = next_word(t, s + i, n - i);
        if (encode_word(t, s + i, length, n - i, ids))
            return -1;
    }
    return 0;
}

/* The first added token at or after *from that has no byte marked in plain (NULL: none is marked); *from becomes its place. */
static const Added *next_added(const AddedSet *set, const char *s, size_t n, const char *plain, size_t *from)
{
    for (size_t i = *from; set->count && i < n; i++) {
        if (!set->first[(unsigned char)s[i]])
            continue;
        const Added *found = match_added(set, s + i, n - i);
        if (found && !(plain && memchr(plain + i, 1, found->length))) {
            *from = i;
            return found;
        }
    }
    return NULL;
}

typedef int EncodePiece(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids);

/* Cuts the tokens of set out of s and hands the pieces between them on. */
static int encode_between(Tokenizer *t, const AddedSet *set, const char *s, size_t n, const char *plain, EncodePiece *piece, IdList *ids)
{
    size_t from = 0, at = 0;
    for (const Added *a; (a = next_added(set, s, n, plain, &at)); from = at) {
        if (piece(t, s + from, at - from, !plain, ids) || id_list_append(ids, a->id))
            return -1;
        at += a->length;
    }
    return piece(t, s + from, n - from, !plain, ids);
}

static int encode_normal(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids)
{
    (void)added;
    return encode_words(t, s, n, ids);
}

static int encode_piece(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids)
{
    static const AddedSet none;
    char *normal = NULL;
    if (t->nfc && !unicode_is_nfc(s, n)) {
        s = normal = unicode_nfc(s, n, &n);
        if (!normal)
            return -1;
    }
    int failed = encode_between(t, added ? &t->nfc_added : &none, s, n, NULL, encode_normal, ids);
    free(normal);
    return failed;
}

static bool is_valid_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        if (n - i >= 8 && !(load8(s + i) & 0x8080808080808080u)) {
            i += 8;
            continue;
        }
        if (n - i >= 3 && is_ideograph(s[i]) && is_continuation(s[i + 1]) && is_continuation(s[i + 2])) {
            i += 3;
            continue;
        }
        size_t size = unicode_decode(s + i, n - i, &c);
        if (c == 0xfffd && (size != 3 || memcmp(s + i, "\xef\xbf\xbd", 3) != 0))
            return false;
        i += size;
    }
    return true;
}

/* plain: NULL, or for each byte whether it belongs to no added token. */
static int encode(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids, char err[512])
{
    Text valid = {0};
    int failed = 0;
    if (!is_valid_utf8(s, n)) {
        failed = text_append_replacing(&valid, s, n);
        s = valid.bytes;
        n = valid.length;
    }
    if (!failed && added && encode_between(t, &t->raw_added, s, n, plain, encode_piece, ids))
        failed = -1;
    if (!failed && !added && encode_piece(t, s, n, false, ids))
        failed = -1;
    text_free(&valid);
    return failed ? fail_memory(err) : 0;
}

int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512])
{
    if (added && t->begin_id >= 0 && id_list_append(ids, t->begin_id))
        return fail_memory(err);
    return encode(t, text, length, added, NULL, ids, err);
}

/* ---- decoding and looking up -------------------------------------------------------------------------------------- */

int text_append_replacing(Text *out, const char *bytes, size_t length)
{
    size_t from = 0, i = 0; /* [from, i) is valid and not yet copied */
    while (i < length) {
        uint32_t c;
        size_t size = unicode_decode(bytes + i, length - i, &c);
        if (c == 0xfffd && (size != 3 || memcmp(bytes + i, "\xef\xbf\xbd", 3) != 0)) {
            if (text_append(out, bytes + from, i - from) || text_append(out, "\xef\xbf\xbd", 3))
                return -1;
            from = i + size;
        }
        i += size;
    }
    return text_append(out, bytes + from, i - from);
}

size_t text_complete_prefix(const char *bytes, size_t length)
{
    for (size_t k = 1; k <= 3 && k <= length; k++) {
        unsigned char lead = (unsigned char)bytes[length - k];
        uint32_t c;
        if ((lead & 0xc0) == 0x80)
            continue;
        bool cut = lead >= 0xc2 && lead <= 0xf4 && k < (lead < 0xe0 ? 2u : lead < 0xf0 ? 3u : 4u);
        return cut && unicode_decode(bytes + length - k, k, &c) == k ? length - k : length;
    }
    return length;
}

size_t tokenizer_size(const Tokenizer *t)
{
    return t->size;
}

size_t tokenizer_merges(const Tokenizer *t)
{
    return t->merge_count;
}

bool tokenizer_is_special(const Tokenizer *t, int id)
{
    return id >= 0 && (size_t)id < t->size && t->pieces[id].special;
}

int tokenizer_id(const Tokenizer *t, const char *token, size_t length)
{
    const AddedSet *sets[] = {&t->raw_added, &t->nfc_added};
    for (size_t s = 0; s < 2; s++) {
        const Added *a = match_added(sets[s], token, length);
        if (a && a->length == length)
            return a->id;
    }
    char *scratch = malloc(length + 1);
    int id = scratch ? vocabulary_id(t, token, length, scratch) : -1;
    free(scratch);
    return id;
}

const char *tokenizer_piece(const Tokenizer *t, int id, size_t *length)
{
    bool known = id >= 0 && (size_t)id < t->size;
    *length = known ? t->pieces[id].length : 0;
    return known ? t->bytes + t->pieces[id].start : "";
}

int tokenizer_decode(const Tokenizer *t, const int *ids, size_t n, bool skip_special, Text *out)
{
    Text joined = {0};
    int failed = 0;
    for (size_t i = 0; i < n && !failed; i++) {
        size_t length;
        const char *piece = tokenizer_piece(t, ids[i], &length);
        if (!skip_special || !tokenizer_is_special(t, ids[i]))
            failed = text_append(&joined, piece, length);
    }
    if (!failed)
        failed = text_append_replacing(out, joined.length ? joined.bytes : "", joined.length);
    text_free(&joined);
    return failed;
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

/* A template is Jinja, of which this reads what ChatML templates are made of:
 *
 *     {% if C %} {% elif C %} {% else %} {% endif %}   {% for NAME in messages %} {% endfor %}   {{ S }}   {# comment #}
 *     C   or, and, not, ==, !=, is [not] defined|none|string     S   strings and attributes of messages, joined by + or ~
 *     messages[i], message.role, message['content'], loop.first, .last, .index0, .index, add_generation_prompt, tools (never given)
 *
 * Anything else is an error when it is reached; parts for tools never are. Each byte of the output is marked: 1 if it came out of a
 * message. A template is ChatML if it writes two trial conversations as it should. */

typedef enum { NOTHING, BOOLEAN, INTEGER, STRING, MESSAGES, MESSAGE, LOOP } Kind;

typedef struct {
    Kind kind;
    long number;          /* BOOLEAN, INTEGER; MESSAGE: which one */
    size_t start, length; /* STRING: in Chat.work, where it is the last thing */
} Value;

typedef struct {
    Text text, marks; /* of the same length */
} Marked;

#define MAX_NESTING 32
typedef struct {
    bool loop, outer_active, taken, line_start;
    const char *body;
} Block;

typedef struct {
    const char *at, *end; /* what is left of the template */
    const Message *messages;
    size_t count, index; /* index: of the loop */
    bool generation_prompt;
    const char *variable; /* the loop's; NULL outside of it */
    size_t variable_length;
    Block blocks[MAX_NESTING];
    size_t depth, nesting;
    bool active, line_start; /* line_start: at[-1] ended a line */
    int unevaluated;         /* in the right half of an `or` or `and` that is decided */
    Marked work, *out;
    char *err;
} Chat;

static int append_marked(Marked *m, const char *bytes, size_t length, char mark)
{
    size_t before = m->text.length;
    if ((mark ? text_append_replacing(&m->text, bytes, length) : text_append(&m->text, bytes, length)) ||
        reserve(&m->marks.bytes, &m->marks.capacity, before, m->text.length - before, 1))
        return -1;
    memset(m->marks.bytes + before, mark, m->text.length - before);
    m->marks.length = m->text.length;
    return 0;
}

static void truncate_marked(Marked *m, size_t length)
{
    m->text.length = m->marks.length = length;
}

static void marked_free(Marked *m)
{
    text_free(&m->text);
    text_free(&m->marks);
}

static int unknown_syntax(Chat *c, const char *from)
{
    size_t n = 0;
    while (from + n < c->end && n < 48 && from[n] != '\n' && from[n] != '%' && from[n] != '}')
        n++;
    return fail(c->err, "the chat template has \"%.*s\", which no known ChatML template has there", (int)n, from);
}

static bool is_name_byte(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_';
}

static bool is_blank(char b)
{
    return b == ' ' || (b >= '\t' && b <= '\r');
}

/* Skips blanks, then word if it is next. */
static bool take(Chat *c, const char *word)
{
    size_t n = strlen(word);
    while (c->at < c->end && is_blank(*c->at))
        c->at++;
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    if (is_name_byte(word[n - 1]) && c->at + n < c->end && is_name_byte(c->at[n]))
        return false;
    c->at += n;
    return true;
}

static size_t take_name(Chat *c, const char **name)
{
    take(c, " ");
    *name = c->at;
    while (c->at < c->end && is_name_byte(*c->at))
        c->at++;
    return (size_t)(c->at - *name);
}

static bool name_is(const char *name, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(name, word, length) == 0;
}

/* 'text' or "text"; the quote is next. */
static int take_string(Chat *c, Value *v)
{
    static const char escapes[] = "nrt\\'\"", meant[] = "\n\r\t\\'\"";
    const char *from = c->at;
    char quote = *c->at++;
    *v = (Value){STRING, 0, c->work.text.length, 0};
    for (; c->at < c->end && *c->at != quote; c->at++) {
        char byte = *c->at;
        if (byte == '\\') {
            const char *known = ++c->at < c->end && *c->at ? strchr(escapes, *c->at) : NULL;
            if (!known)
                return unknown_syntax(c, from);
            byte = meant[known - escapes];
        }
        if (append_marked(&c->work, &byte, 1, 0))
            return fail_memory(c->err);
    }
    if (c->at == c->end)
        return unknown_syntax(c, from);
    c->at++;
    v->length = c->work.text.length - v->start;
    return 0;
}

/* v.name or v['name'] */
static int attribute(Chat *c, Value *v, const char *name, size_t length)
{
    Value of = *v;
    *v = (Value){NOTHING, 0, 0, 0};
    if (c->unevaluated)
        return 0;
    if (of.kind == MESSAGE) {
        const Message *m = &c->messages[of.number];
        bool role = name_is(name, length, "role");
        if (!role && !name_is(name, length, "content"))
            return 0;
        *v = (Value){STRING, 0, c->work.text.length, 0};
        if (append_marked(&c->work, role ? m->role : m->content, role ? m->role_length : m->content_length, 1))
            return fail_memory(c->err);
        v->length = c->work.text.length - v->start;
        return 0;
    }
    if (of.kind == LOOP) {
        long i = (long)c->index, last = (long)c->count - 1;
        bool index0 = name_is(name, length, "index0"), index = name_is(name, length, "index");
        bool first = name_is(name, length, "first");
        if (index0 || index)
            *v = (Value){INTEGER, i + index, 0, 0};
        else if (first || name_is(name, length, "last"))
            *v = (Value){BOOLEAN, first ? i == 0 : i == last, 0, 0};
        else
            return unknown_syntax(c, name);
        return 0;
    }
    if (of.kind == NOTHING)
        return fail(c->err, "the chat template asks for \"%.*s\" of a message that is not there", (int)length, name);
    return unknown_syntax(c, name);
}

static int condition(Chat *c, Value *v);

static int primary(Chat *c, Value *v)
{
    take(c, " ");
    const char *from = c->at, *name;
    *v = (Value){NOTHING, 0, 0, 0};
    if (c->at < c->end && (*c->at == '\'' || *c->at == '"'))
        return take_string(c, v);
    if (take(c, "(")) {
        if (++c->nesting > MAX_NESTING || condition(c, v))
            return c->nesting > MAX_NESTING ? unknown_syntax(c, from) : -1;
        c->nesting--;
        return take(c, ")") ? 0 : unknown_syntax(c, from);
    }
    bool minus = take(c, "-");
    size_t n = take_name(c, &name);
    if (n > 0 && n < 6 && strspn(name, "0123456789") >= n) {
        *v = (Value){INTEGER, strtol(name, NULL, 10) * (minus ? -1 : 1), 0, 0};
        return 0;
    }
    if (c->variable && n == c->variable_length && memcmp(name, c->variable, n) == 0)
        *v = (Value){MESSAGE, (long)c->index, 0, 0};
    else if (c->variable && name_is(name, n, "loop"))
        v->kind = LOOP;
    else if (name_is(name, n, "messages"))
        v->kind = MESSAGES;
    else if (name_is(name, n, "add_generation_prompt"))
        *v = (Value){BOOLEAN, c->generation_prompt, 0, 0};
    else if (minus || !name_is(name, n, "tools"))
        return unknown_syntax(c, from);
    return 0;
}

static int postfix(Chat *c, Value *v)
{
    const char *from = c->at, *name;
    if (primary(c, v))
        return -1;
    for (;;) {
        Value key;
        if (c->at < c->end && *c->at == '.') {
            c->at++;
            size_t n = take_name(c, &name);
            if (attribute(c, v, name, n))
                return -1;
        } else if (c->at < c->end && *c->at == '[') {
            c->at++;
            if (condition(c, &key) || !take(c, "]"))
                return unknown_syntax(c, from);
            if (key.kind == STRING) {
                char word[16];
                size_t n = key.length < sizeof word ? key.length : 0;
                memcpy(word, c->work.text.bytes ? c->work.text.bytes + key.start : "", n);
                truncate_marked(&c->work, key.start);
                if (attribute(c, v, word, n))
                    return -1;
            } else if (key.kind == INTEGER && v->kind == MESSAGES) {
                long i = key.number < 0 ? key.number + (long)c->count : key.number;
                *v = (Value){i >= 0 && i < (long)c->count ? MESSAGE : NOTHING, i, 0, 0};
            } else
                return unknown_syntax(c, from);
        } else
            return c->at < c->end && *c->at == '(' ? unknown_syntax(c, from) : 0;
    }
}

/* Strings and attributes joined by + or ~; integers by + and -. */
static int sum(Chat *c, Value *v)
{
    const char *from = c->at;
    if (postfix(c, v))
        return -1;
    for (;;) {
        take(c, " ");
        char sign = c->at < c->end ? *c->at : 0;
        bool tag_end = c->end - c->at > 1 && (c->at[1] == '%' || c->at[1] == '}');
        Value right;
        if ((sign != '+' && sign != '-' && sign != '~') || tag_end)
            return 0;
        c->at++;
        if (postfix(c, &right))
            return -1;
        if (v->kind == STRING && right.kind == STRING && sign != '-')
            v->length += right.length;
        else if (v->kind == INTEGER && right.kind == INTEGER && sign != '~')
            v->number += sign == '+' ? right.number : -right.number;
        else if (!c->unevaluated)
            return unknown_syntax(c, from);
    }
}

static bool is_true(const Value *v)
{
    return v->kind == STRING ? v->length > 0 : v->kind == BOOLEAN || v->kind == INTEGER ? v->number != 0 : v->kind != NOTHING;
}

static bool are_equal(const Chat *c, const Value *a, const Value *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == STRING)
        return a->length == b->length && (!a->length || memcmp(c->work.text.bytes + a->start, c->work.text.bytes + b->start, a->length) == 0);
    return a->number == b->number;
}

/* not S, S == S, S != S, S is [not] defined, or S alone */
static int comparison(Chat *c, Value *v)
{
    const char *from = c->at;
    bool invert = false, result;
    size_t before = c->work.text.length;
    Value right;
    while (take(c, "not"))
        invert = !invert;
    if (sum(c, v))
        return -1;
    if (take(c, "==") || take(c, "!=")) {
        bool unequal = c->at[-2] == '!';
        if (sum(c, &right))
            return -1;
        result = are_equal(c, v, &right) != unequal;
    } else if (take(c, "is")) {
        bool negated = take(c, "not");
        if (take(c, "defined"))
            result = (v->kind != NOTHING) != negated;
        else if (take(c, "none"))
            result = negated; /* messages hold no null */
        else if (take(c, "string"))
            result = (v->kind == STRING) != negated;
        else
            return unknown_syntax(c, from);
    } else if (invert)
        result = is_true(v);
    else
        return 0;
    truncate_marked(&c->work, before);
    *v = (Value){BOOLEAN, result != invert, 0, 0};
    return 0;
}

/* C and C ..., or several of these with or between; decided from the left. */
static int junction(Chat *c, Value *v, bool any)
{
    size_t before = c->work.text.length;
    if (any ? junction(c, v, false) : comparison(c, v))
        return -1;
    while (take(c, any ? "or" : "and")) {
        bool left = is_true(v);
        c->unevaluated += left == any;
        if (any ? junction(c, v, false) : comparison(c, v))
            return -1;
        c->unevaluated -= left == any;
        truncate_marked(&c->work, before);
        *v = (Value){BOOLEAN, left == any ? left : is_true(v), 0, 0};
    }
    return 0;
}

static int condition(Chat *c, Value *v)
{
    return junction(c, v, true);
}

/* The end of a tag, and the white space that it takes away: "-" all of it, a block's end one line feed. */
static int tag_end(Chat *c, const char *close)
{
    take(c, " ");
    const char *from = c->at;
    char sign = c->at < c->end && (*c->at == '-' || *c->at == '+') ? *c->at++ : 0;
    if (!take(c, close))
        return unknown_syntax(c, from);
    if (sign == '-')
        while (c->at < c->end && is_blank(*c->at))
            c->at++;
    else if (sign != '+' && *close != '}' && c->at < c->end && *c->at == '\n')
        c->at++;
    c->line_start = c->at[-1] == '\n';
    return 0;
}

/* A tag that is not evaluated: strings in it may hold anything. */
static int skip_tag(Chat *c, const char *close)
{
    const char *from = c->at;
    for (char quote = 0; c->end - c->at >= 2; c->at++) {
        if (quote && *c->at == '\\')
            c->at++;
        else if (quote)
            quote = *c->at == quote ? 0 : quote;
        else if (*c->at == '\'' || *c->at == '"')
            quote = *c->at;
        else if (memcmp(c->at, close, 2) == 0) {
            c->at -= c->at[-1] == '-' || c->at[-1] == '+';
            return tag_end(c, close);
        }
    }
    return unknown_syntax(c, from);
}

/* Evaluates a condition to the end of its tag; it decides whether what follows is active. */
static int branch(Chat *c, bool evaluate)
{
    Value v;
    c->active = false;
    if (!evaluate)
        return skip_tag(c, "%}");
    if (condition(c, &v) || tag_end(c, "%}"))
        return -1;
    c->active = c->blocks[c->depth - 1].taken = is_true(&v);
    return 0;
}

static int begin_block(Chat *c, bool loop, const char *from)
{
    if (c->depth == MAX_NESTING)
        return unknown_syntax(c, from);
    c->blocks[c->depth++] = (Block){.loop = loop, .outer_active = c->active};
    if (!loop || !c->active)
        return loop ? skip_tag(c, "%}") : branch(c, c->active);
    Value list;
    const char *name;
    size_t length = take_name(c, &name);
    if (c->variable || !length || !take(c, "in") || condition(c, &list) || list.kind != MESSAGES || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    c->variable = name;
    c->variable_length = length;
    c->index = 0;
    c->blocks[c->depth - 1].body = c->at;
    c->blocks[c->depth - 1].line_start = c->line_start;
    return 0;
}

static int end_block(Chat *c, bool loop, const char *from)
{
    Block *b = c->depth ? &c->blocks[c->depth - 1] : NULL;
    if (!b || b->loop != loop || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    if (loop && b->body && ++c->index < c->count) {
        c->at = b->body;
        c->line_start = b->line_start;
        return 0;
    }
    if (loop && b->body)
        c->variable = NULL;
    c->active = b->outer_active;
    c->depth--;
    return 0;
}

/* {% ... %}, behind its opening. */
static int statement(Chat *c)
{
    const char *from = c->at;
    Block *b = c->depth ? &c->blocks[c->depth - 1] : NULL;
    if (take(c, "if"))
        return begin_block(c, false, from);
    if (take(c, "for"))
        return begin_block(c, true, from);
    if (take(c, "endif"))
        return end_block(c, false, from);
    if (take(c, "endfor"))
        return end_block(c, true, from);
    if (b && !b->loop && take(c, "elif"))
        return branch(c, b->outer_active && !b->taken);
    if (b && !b->loop && take(c, "else")) {
        c->active = b->outer_active && !b->taken;
        return tag_end(c, "%}");
    }
    return c->active ? unknown_syntax(c, from) : skip_tag(c, "%}");
}

/* {{ ... }}, behind its opening. */
static int output(Chat *c)
{
    const char *from = c->at;
    Value v;
    if (!c->active)
        return skip_tag(c, "}}");
    if (condition(c, &v) || tag_end(c, "}}"))
        return -1;
    if (v.kind != STRING)
        return unknown_syntax(c, from);
    Marked *w = &c->work;
    for (size_t i = v.start, end = v.start + v.length, run; i < end; i = run) {
        for (run = i; run < end && w->marks.bytes[run] == w->marks.bytes[i]; run++)
            ;
        if (append_marked(c->out, w->text.bytes + i, run - i, w->marks.bytes[i]))
            return fail_memory(c->err);
    }
    truncate_marked(w, 0);
    return 0;
}

/* The text up to the next tag, less what the tag's opening takes away. */
static int literal(Chat *c)
{
    const char *from = c->at, *tag = from;
    while (c->end - tag >= 2 && !(*tag == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
        tag++;
    const char *stop = c->end - tag >= 2 ? tag : c->end;
    c->at = stop;
    if (c->end - stop > 2 && stop[2] == '-') {
        while (stop > from && is_blank(stop[-1]))
            stop--;
    } else if (c->at < c->end && stop[1] != '{' && !(c->end - stop > 2 && stop[2] == '+')) {
        const char *line = stop;
        while (line > from && line[-1] != '\n' && is_blank(line[-1]))
            line--;
        if (line > from ? line[-1] == '\n' : c->line_start)
            stop = line;
    }
    return c->active && append_marked(c->out, from, (size_t)(stop - from), 0) ? fail_memory(c->err) : 0;
}

static int render(Chat *c)
{
    while (literal(c) == 0) {
        if (c->at == c->end)
            return c->depth ? fail(c->err, "the chat template ends within a block") : 0;
        char kind = c->at[1];
        c->at += 2;
        c->at += kind != '#' && c->at < c->end && (*c->at == '-' || *c->at == '+');
        if (kind == '#') {
            while (c->end - c->at >= 2 && memcmp(c->at, "#}", 2) != 0)
                c->at++;
            c->at -= c->at[-1] == '-' || c->at[-1] == '+';
            if (tag_end(c, "#}"))
                return -1;
        } else if (kind == '%' ? statement(c) : output(c))
            return -1;
    }
    return -1;
}

/* Messages through the model's template. */
static int render_chat(const Tokenizer *t, const Message *messages, size_t n, bool generation_prompt, Marked *out, char err[512])
{
    size_t length = t->chat_length;
    length -= length && t->chat_template[length - 1] == '\n'; /* as Jinja does */
    if (n == 0)
        return fail(err, "a chat needs at least one message");
    Chat c = {.at = t->chat_template, .end = t->chat_template + length, .messages = messages, .count = n, .out = out, .err = err,
              .generation_prompt = generation_prompt, .active = true, .line_start = true};
    int failed = render(&c);
    marked_free(&c.work);
    return failed;
}

/* <|im_start|>role\ncontent<|im_end|>\n */
static int append_turn(Text *text, const char *role, const char *content)
{
    const char *parts[] = {"<|im_start|>", role, "\n", content, "<|im_end|>\n"};
    for (size_t i = 0; i < 5; i++)
        if (text_append(text, parts[i], strlen(parts[i])))
            return -1;
    return 0;
}

/* Two trial conversations: one must come out as its turns; the other too, but for a system turn before it, whose text is kept. */
static int try_chat(Tokenizer *t, char err[512])
{
    static const Message trial[] = {{"system", "S", 6, 1}, {"user", "U", 4, 1}, {"assistant", "A", 9, 1}, {"user", "V", 4, 1}};
    static const char begin[] = "<|im_start|>system\n", end[] = "<|im_end|>\n", prompt[] = "<|im_start|>assistant\n";
    Marked whole = {0}, start = {0};
    Text expected = {0};
    int failed = render_chat(t, trial, 4, true, &whole, err) || render_chat(t, trial + 1, 1, true, &start, err);
    if (!failed && (append_turn(&expected, "user", "U") || text_append(&expected, prompt, strlen(prompt))))
        failed = fail_memory(err);
    size_t head = start.text.length - expected.length, frame = strlen(begin) + strlen(end);
    bool known = !failed && start.text.length >= expected.length && memcmp(start.text.bytes + head, expected.bytes, expected.length) == 0;
    if (known && head) {
        known = head >= frame && memcmp(start.text.bytes, begin, strlen(begin)) == 0 &&
                memcmp(start.text.bytes + head - strlen(end), end, strlen(end)) == 0;
        t->default_system = known ? strndup(start.text.bytes + strlen(begin), head - frame) : NULL;
    }
    expected.length = 0;
    for (size_t i = 0; i < 4 && !failed; i++)
        failed = append_turn(&expected, trial[i].role, trial[i].content);
    if (!failed)
        failed = text_append(&expected, prompt, strlen(prompt));
    if (known && !failed)
        known = whole.text.length == expected.length && memcmp(whole.text.bytes, expected.bytes, expected.length) == 0;
    if (!failed && !known)
        failed = fail(err, "the chat template does not write its turns as ChatML does");
    marked_free(&whole);
    marked_free(&start);
    text_free(&expected);
    return failed;
}

/* The text of the chat template: chat_template.jinja, else tokenizer_config.json's, which is a text or a list of named ones. */
static int read_template(Tokenizer *t, const char *folder, char err[512])
{
    char *file = join_path(folder, "chat_template.jinja"), *config_path = join_path(folder, "tokenizer_config.json");
    Text text = {0}, config_text = {0};
    JsonValue *config = NULL;
    int result = file && config_path ? read_file(file, &text, err) : fail_memory(err);
    if (result > 0) {
        result = read_json(config_path, &config_text, &config, err);
        const JsonValue *template = json_get(config, "chat_template"), *found = template;
        for (const JsonValue *v = template && template->type == JSON_ARRAY ? template->child : NULL; v; v = v->next)
            if (json_string_is(json_get(v, "name"), "default"))
                found = json_get(v, "template");
        if (result == 0 && found && found->type == JSON_STRING)
            result = text_append(&text, found->text, found->length) ? fail_memory(err) : 0;
        else if (result >= 0)
            result = fail(err, "there is no chat template: neither %s nor \"chat_template\" in %s", file, config_path);
    }
    if (result == 0) {
        t->chat_template = text.bytes;
        t->chat_length = text.length;
        text = (Text){0};
    }
    json_free(config);
    text_free(&config_text);
    text_free(&text);
    free(config_path);
    free(file);
    return result;
}

/* Without a usable template only chat fails, by t->chat_problem. */
static void open_chat(Tokenizer *t, const char *folder)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};
    int failed = read_template(t, folder, t->chat_problem) || try_chat(t, t->chat_problem);
    for (size_t i = 0; i < 2 && !failed; i++) {
        const Added *a = match_added(&t->raw_added, needed[i], strlen(needed[i]));
        if (!a || a->length != strlen(needed[i]))
            failed = fail(t->chat_problem, "the tokenizer has no added token %s", needed[i]);
    }
    if (!failed)
        t->chat_problem[0] = 0;
}

const char *tokenizer_chat_problem(const Tokenizer *t)
{
    return t->chat_problem[0] ? t->chat_problem : NULL;
}

const char *tokenizer_default_system(const Tokenizer *t)
{
    return t->chat_problem[0] ? NULL : t->default_system;
}

int tokenizer_chat_text(const Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, Text *out, char err[512])
{
    Marked whole = {0};
    if (t->chat_problem[0])
        return fail(err, "%s", t->chat_problem);
    int failed = render_chat(t, messages, n, add_generation_prompt, &whole, err);
    if (!failed && text_append(out, whole.text.length ? whole.text.bytes : "", whole.text.length))
        failed = fail_memory(err);
    marked_free(&whole);
    return failed;
}

int tokenizer_chat_ids(Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, bool with_default_system, IdList *ids,
                       char err[512])
{
    Marked whole = {0};
    size_t skip = 0;
    if (t->chat_problem[0])
        return fail(err, "%s", t->chat_problem);
    int failed = render_chat(t, messages, n, add_generation_prompt, &whole, err);
    if (!failed && t->default_system && !with_default_system && !name_is(messages[0].role, messages[0].role_length, "system")) {
        Text turn = {0};
        failed = append_turn(&turn, "system", t->default_system) ? fail_memory(err) : 0;
        if (!failed && whole.text.length >= turn.length && memcmp(whole.text.bytes, turn.bytes, turn.length) == 0)
            skip = turn.length;
        text_free(&turn);
    }
    if (!failed && whole.text.length > skip)
        failed = encode(t, whole.text.bytes + skip, whole.text.length - skip, true, whole.marks.bytes + skip, ids, err);
    marked_free(&whole);
    return failed;
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

void tokenizer_close(Tokenizer *t)
{
    if (!t)
        return;
    AddedSet *sets[] = {&t->raw_added, &t->nfc_added};
    for (size_t s = 0; s < 2; s++) {
        for (size_t i = 0; i < sets[s]->count; i++)
            free(sets[s]->items[i].text);
        free(sets[s]->items);
    }
    free(t->bytes);
    free(t->pieces);
    free(t->names);
    free(t->merges);
    free(t->words);
    free(t->crossed);
    free(t->characters);
    free(t->chat_template);
    free(t->default_system);
    free(t);
}

Tokenizer *tokenizer_open(const char *path, char err[512])
{
    Tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->words = big_alloc(sizeof *t->words << WORD_SLOTS_LOG);
    if (!t || !t->words) {
        fail_memory(err);
        tokenizer_close(t);
        return NULL;
    }
    memset(t->words, 0, sizeof *t->words << WORD_SLOTS_LOG);
    t->begin_id = -1;
    make_letters(t);
    make_classes(t);
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *file = folder ? join_path(path, "tokenizer.json") : strdup(path);
    int result = file ? read_tokenizer_file(t, file, err) : fail_memory(err);
    if (result > 0 && folder)
        result = read_vocab_and_merges(t, path, err);
    if (result == 0 && make_characters(t))
        result = fail_memory(err);
    if (result == 0) {
        char *slash = strrchr(file, '/');
        if (slash)
            *slash = 0;
        open_chat(t, slash ? slash == file ? "/" : file : ".");
    }
    if (result > 0)
        result = fail(err, folder ? "%s: has neither tokenizer.json nor vocab.json with merges.txt" : "%s: no such file", path);
    free(file);
    if (result == 0)
        return t;
    tokenizer_close(t);
    return NULL;
}
