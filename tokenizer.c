/* Byte-level BPE, as Qwen2.5's tokenizer.json describes it.
 *
 * Text becomes ids in five steps:
 *     added tokens   <|im_end|> and the like are cut out of the raw text: at each place the longest one
 *     NFC            of each piece between them
 *     words          each piece is cut by the pattern SPLIT_PATTERN below, here a scanner written by hand
 *     bytes          a word begins as one token for each byte of its UTF-8
 *     merges         the list of merges is in order of rank; of all neighbours that are a merge, the pair of the lowest
 *                    rank (the leftmost among equals) becomes one token, until no neighbours are a merge
 *
 * The file writes tokens in letters that can be printed: bytes 21..7e, a1..ac and ae..ff (hex) stand for the characters
 * of that number, the other 68 are U+0100, U+0101 and so on, so that a space is U+0120. A token with any other
 * character stands for its own UTF-8; no text ever becomes one of those, but decoding knows them.
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
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SPLIT_PATTERN                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define FILE_LIMIT (1u << 29) /* bytes of a file: offsets into its tokens fit 32 bits */
#define SHOWN(length) ((int)((length) > 60 ? 60 : (length))) /* bytes of a name in a message */

typedef struct {
    uint32_t start, length;   /* in Tokenizer.bytes; start UNSET: no such id yet */
    bool raw, special, made;  /* raw: not written in the byte letters; made: a merge makes it */
} Piece;
#define UNSET UINT32_MAX

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

typedef struct {
    int id, rank; /* see "whole characters" */
} Character;

#define WORD_SLOTS_LOG 16
/* A short word seen before. key: its bytes, then zeros, in the last byte their number. ids: those not needed are -1. */
typedef struct {
    uint64_t key[2];
    int ids[4];
} Word;

typedef enum { LETTER, NUMBER, SPACE, NEWLINE, OTHER, MANY_BYTES } Class;

#define LETTERS 0x144 /* all byte letters are below */
struct Tokenizer {
    char *bytes; /* of all pieces, one behind another */
    size_t bytes_used;
    Piece *pieces;           /* [size] */
    size_t size, vocab_size; /* vocab_size: those of the model's vocabulary, which come first */
    Name *names;             /* hash table of the vocabulary */
    size_t names_mask;
    Merge *merges; /* hash table */
    unsigned merges_shift;
    size_t merge_count;
    short letters[LETTERS];        /* the byte that a character stands for; -1: none */
    int byte_ids[256];             /* -1: the vocabulary lacks that byte, which then vanishes, as in the reference */
    AddedSet raw_added, nfc_added; /* those found before NFC, and after it ("normalized": true) */
    bool nfc;
    int begin_id;             /* put before every text; -1: none */
    unsigned char class[256]; /* of each ASCII byte; MANY_BYTES from 0x80 on */
    int (*crossed)[256];      /* see "whole characters" */
    Character *characters;
    Word *words; /* [1 << WORD_SLOTS_LOG] */
    Text chat_template;
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

/* Memory for tables that are read all over: in huge pages where the system has them. */
static void *big_alloc(size_t size)
{
    const size_t huge = (size_t)2 << 20;
    if (size < huge / 2)
        return malloc(size + !size);
    size = (size + huge - 1) / huge * huge;
    void *p = aligned_alloc(huge, size);
#ifdef MADV_HUGEPAGE
    if (p)
        madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

/* items again, with room for at least `needed` of that size; NULL: no memory. */
static void *grow(void *items, size_t *capacity, size_t needed, size_t size)
{
    size_t more = *capacity + *capacity / 2 + 64;
    more = more < needed ? needed : more;
    void *grown = more > SIZE_MAX / 2 / size ? NULL : realloc(items, more * size);
    *capacity = grown ? more : *capacity;
    return grown;
}

static int id_list_reserve(IdList *list, size_t extra)
{
    if (list->capacity - list->count >= extra)
        return 0;
    int *items = grow(list->items, &list->capacity, list->count + extra, sizeof *items);
    list->items = items ? items : list->items;
    return items ? 0 : -1;
}

int id_list_append(IdList *list, int id)
{
    if (id_list_reserve(list, 1))
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
    if (text->capacity - text->length <= length) {
        char *grown = grow(text->bytes, &text->capacity, text->length + length + 1, 1);
        if (!grown)
            return -1;
        text->bytes = grown;
    }
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

/* The whole file; 1 and nothing if there is none of that name. */
static int read_file(const char *path, Text *out, char err[512])
{
    struct stat st;
    if (stat(path, &st))
        return errno == ENOENT || errno == ENOTDIR ? 1 : fail(err, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(err, "%s: is not a regular file", path);
    if (st.st_size > FILE_LIMIT)
        return fail(err, "%s: has %lld bytes, expected at most %u", path, (long long)st.st_size, FILE_LIMIT);
    out->capacity = (size_t)st.st_size + 1;
    out->bytes = big_alloc(out->capacity);
    FILE *f = out->bytes ? fopen(path, "rb") : NULL;
    if (!f)
        return out->bytes ? fail(err, "%s: %s", path, strerror(errno)) : fail_memory(err);
    setvbuf(f, NULL, _IONBF, 0);
    out->length = fread(out->bytes, 1, out->capacity - 1, f);
    out->bytes[out->length] = 0;
    int failed = ferror(f) ? fail(err, "%s: %s", path, strerror(errno)) : 0;
    fclose(f);
    return failed;
}

/* A file's JSON, which points into text. 1 if there is no such file. */
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

/* ---- letters that stand for bytes -------------------------------------------------------------------------------- */

static void make_letters(Tokenizer *t)
{
    int next = 0x100;
    memset(t->letters, 0xff, sizeof t->letters);
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        t->letters[itself ? b : next++] = (short)b;
    }
}

/* The bytes that a token as it is written stands for, at most length of them; *raw: it isn't in the byte letters. */
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

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: multiplying by it spreads the bits */

static uint64_t load8(const char *bytes)
{
    uint64_t x;
    memcpy(&x, bytes, 8);
    return x;
}

static uint64_t mix(uint64_t x)
{
    x *= GOLDEN;
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

/* The id of bytes in the vocabulary; -1: none. */
static int bytes_id(const Tokenizer *t, const char *bytes, size_t length, bool raw)
{
    return find_name(t, bytes, length, raw, hash_bytes(bytes, length))->id;
}

/* The id of a token as the vocabulary writes it; -1: none. scratch: length bytes. */
static int token_id(const Tokenizer *t, const char *token, size_t length, char *scratch)
{
    bool raw;
    size_t n = token_bytes(t, scratch, token, length, &raw);
    return bytes_id(t, scratch, n, raw);
}

static Merge *find_merge(const Tokenizer *t, int left, int right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - t->merges_shift)) - 1;
    for (size_t i = pair * GOLDEN >> t->merges_shift;; i = (i + 1) & mask)
        if (t->merges[i].pair == pair || t->merges[i].pair == NO_PAIR)
            return &t->merges[i];
}

/* ---- what a tokenizer.json may ask for --------------------------------------------------------------------------- */

/* A value of the file as short JSON text, for comparisons and messages. */
static const char *quoted(const JsonValue *value, char out[256])
{
    memset(out, 0, 256);
    memcpy(out, "nothing", 8);
    FILE *f = value ? fmemopen(out, 252, "w") : NULL;
    if (!f)
        return out;
    json_print(f, value, JSON_COMPACT);
    fclose(f);
    if (strlen(out) >= 248)
        memcpy(out + 248, "...", 4);
    return out;
}

static int refuse(const char *path, const char *what, const JsonValue *found, const char *expected, char err[512])
{
    char quote[256];
    quoted(found, quote);
    return fail(err, "%s: %s is %.200s, which is not supported; expected %s", path, what, quote, expected);
}

/* The value at "name.name.0", NULL if there is none. */
static const JsonValue *value_at(const JsonValue *value, const char *path)
{
    for (const char *end; value && *path; path = end + (*end == '.')) {
        char name[32] = "";
        end = path + strcspn(path, ".");
        memcpy(name, path, (size_t)(end - path));
        if (value->type == JSON_ARRAY) {
            value = value->child;
            for (int i = *name - '0'; value && i > 0; i--)
                value = value->next;
        } else {
            value = json_get(value, name);
        }
    }
    return value;
}

/* What settings may be, as JSON text between line feeds. Missing settings have the text "nothing".
 * "truncation" and "padding" are not looked at: the reference's callers switch them off for a single text. */
static const struct {
    const char *path, *accepted;
} settings[] = {
    {"model.type", "\n\"BPE\"\nnothing\n"},
    {"model.dropout", "\nnull\n0.0\n0\nnothing\n"},
    {"model.unk_token", "\nnull\nnothing\n"},
    {"model.continuing_subword_prefix", "\n\"\"\nnull\nnothing\n"},
    {"model.end_of_word_suffix", "\n\"\"\nnull\nnothing\n"},
    {"model.byte_fallback", "\nfalse\nnothing\n"},
    {"model.ignore_merges", "\nfalse\nnothing\n"},
    {"normalizer", "\n{\"type\":\"NFC\"}\nnull\nnothing\n{\"type\":\"Sequence\",\"normalizers\":[]}\n"
                   "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}\n"},
    {"pre_tokenizer.type", "\n\"Sequence\"\n"},
    {"pre_tokenizer.pretokenizers.0.type", "\n\"Split\"\n"},
    {"pre_tokenizer.pretokenizers.0.behavior", "\n\"Isolated\"\n"},
    {"pre_tokenizer.pretokenizers.0.invert", "\nfalse\n"},
    {"pre_tokenizer.pretokenizers.1.type", "\n\"ByteLevel\"\n"},
    {"pre_tokenizer.pretokenizers.1.add_prefix_space", "\nfalse\n"},
    {"pre_tokenizer.pretokenizers.1.use_regex", "\nfalse\n"},
    {"pre_tokenizer.pretokenizers.2", "\nnothing\n"},
    {"decoder.type", "\n\"ByteLevel\"\n"},
};

static int check_settings(Tokenizer *t, const JsonValue *root, const char *path, char err[512])
{
    char quote[256], line[260];
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const JsonValue *v = value_at(root, settings[i].path);
        const char *accepted = settings[i].accepted;
        snprintf(line, sizeof line, "\n%s\n", quoted(v, quote));
        if (!strstr(accepted, line))
            return fail(err, "%s: %s is %.160s, which is not supported; expected %.*s", path, settings[i].path,
                        quoted(v, quote), (int)strcspn(accepted + 1, "\n"), accepted + 1);
    }
    const JsonValue *pattern = value_at(root, "pre_tokenizer.pretokenizers.0.pattern.Regex");
    if (!json_string_is(pattern, SPLIT_PATTERN))
        return refuse(path, "the split pattern", pattern, "Qwen2's", err);
    t->nfc = strstr(quoted(json_get(root, "normalizer"), quote), "NFC") != NULL;
    return 0;
}

/* {"type": "TemplateProcessing", "single": [begin token, text]}: sets begin_id. There need not be a begin token. */
static int read_begin(Tokenizer *t, const JsonValue *v)
{
    const JsonValue *part = value_at(v, "single.0"), *name = value_at(part, "SpecialToken.id"), *ids = NULL;
    uint64_t id;
    if (name) {
        const JsonValue *known = json_get(v, "special_tokens");
        for (const JsonValue *k = known ? known->child : NULL; k && name->type == JSON_STRING; k = k->next)
            if (k->key && k->key_length == name->length && memcmp(k->key, name->text, name->length) == 0)
                ids = json_get(k, "ids");
        if (!ids || ids->type != JSON_ARRAY || ids->length != 1 || json_u64(ids->child, &id) || id >= t->size)
            return -1;
        if (t->begin_id >= 0)
            return -1;
        t->begin_id = (int)id;
        part = part->next;
    }
    return part && !part->next && json_string_is(value_at(part, "Sequence.id"), "A") ? 0 : -1;
}

/* ByteLevel (which changes no ids), a begin token, a sequence of these, or nothing. */
static int read_post_processor(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "processors") : NULL;
    bool sequence = list && list->type == JSON_ARRAY, known = true;
    if (!v || v->type == JSON_NULL)
        return 0;
    for (const JsonValue *p = sequence ? list->child : v; p && known; p = sequence ? p->next : NULL)
        known = json_string_is(json_get(p, "type"), "ByteLevel") ||
                (json_string_is(json_get(p, "type"), "TemplateProcessing") && read_begin(t, p) == 0);
    return known ? 0 : refuse(path, "post_processor", v, "ByteLevel, one known token before the text, or null", err);
}

/* ---- whole characters -------------------------------------------------------------------------------------------- */

/* A word of Chinese has three bytes a character, and nearly always they become one token before anything else touches
 * them; then the word may as well begin as characters. When is that so? A merge reaches into an unfinished character
 * only if its result ends or begins within one. crossed[x][y] is the lowest rank of those whose result has, where a
 * character begins, byte x before it and byte y as its first. A character whose own merges all rank lower than
 * crossed[][] at its two ends is finished before. (This needs each token to be made by one merge, and before it is
 * part of another; else crossed[][] is -1 and every word begins as bytes.) */
enum { NOT_SEEN = -1, NOT_WHOLE = -2 }; /* Character.id; rank: the highest of its merges */

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
static void note_crossing(Tokenizer *t, int id, int rank)
{
    const char *s = t->bytes + t->pieces[id].start;
    size_t n = t->pieces[id].length, last = n ? n - 1 : 0;
    while (last > 0 && is_continuation(s[last]))
        last--;
    if (n == 0 || (!is_continuation(s[0]) && sequence_length(s[last]) == n - last))
        return;
    for (size_t k = 1; k < n; k++) {
        int *lowest = &t->crossed[(unsigned char)s[k - 1]][(unsigned char)s[k]];
        if (!is_continuation(s[k]) && rank < *lowest)
            *lowest = rank;
    }
}

/* ---- reading the vocabulary and the merges ----------------------------------------------------------------------- */

/* Puts a token's bytes behind the others; there is room. */
static void add_piece(Tokenizer *t, size_t id, const char *token, size_t length)
{
    Piece *p = &t->pieces[id];
    p->start = (uint32_t)t->bytes_used;
    p->length = (uint32_t)token_bytes(t, t->bytes + t->bytes_used, token, length, &p->raw);
    t->bytes_used += p->length;
}

/* Memory for the tokens of vocab and for added ones. */
static int make_room(Tokenizer *t, const JsonValue *vocab, const JsonValue *added, size_t merges, char err[512])
{
    size_t total = 1, names = table_size(vocab->length), slots = table_size(merges);
    for (const JsonValue *v = vocab->child; v; v = v->next)
        total += v->key_length;
    for (const JsonValue *v = added ? added->child : NULL; v; v = v->next)
        total += json_get(v, "content") ? 3 * json_get(v, "content")->length : 0; /* NFC may need that much */
    size_t tokens = vocab->length + (added ? added->length : 0);
    t->size = t->vocab_size = vocab->length;
    t->bytes = big_alloc(total);
    t->pieces = big_alloc(tokens * sizeof *t->pieces);
    t->names = big_alloc(names * sizeof *t->names);
    t->names_mask = names - 1;
    t->merges = big_alloc(slots * sizeof *t->merges);
    t->crossed = malloc(256 * sizeof *t->crossed);
    if (!t->bytes || !t->pieces || !t->names || !t->merges || !t->crossed)
        return fail_memory(err);
    for (size_t i = 0; i < tokens; i++)
        t->pieces[i] = (Piece){.start = UNSET};
    memset(t->names, 0xff, names * sizeof *t->names);    /* every id -1 */
    memset(t->merges, 0xff, slots * sizeof *t->merges);  /* every pair NO_PAIR */
    for (t->merges_shift = 64; slots > 1; slots /= 2)
        t->merges_shift--;
    for (size_t i = 0; i < 256 * 256; i++)
        t->crossed[i / 256][i % 256] = INT_MAX;
    return 0;
}

/* {token: id}: ids are 0..n-1, each once. */
static int read_vocabulary(Tokenizer *t, const JsonValue *vocab, const char *path, char err[512])
{
    char quote[256];
    for (const JsonValue *v = vocab->child; v; v = v->next) {
        uint64_t id;
        int shown = SHOWN(v->key_length);
        if (json_u64(v, &id) || id >= t->vocab_size)
            return fail(err, "%s: token \"%.*s\" has the id %.60s, but %zu tokens should have the ids 0 to %zu", path,
                        shown, v->key, quoted(v, quote), t->vocab_size, t->vocab_size - 1);
        if (t->pieces[id].start != UNSET)
            return fail(err, "%s: two tokens have the id %zu, one of them \"%.*s\"", path, (size_t)id, shown, v->key);
        add_piece(t, id, v->key, v->key_length);
        const Piece *p = &t->pieces[id];
        uint64_t hash = hash_bytes(t->bytes + p->start, p->length);
        Name *name = find_name(t, t->bytes + p->start, p->length, p->raw, hash);
        if (name->id >= 0)
            return fail(err, "%s: token \"%.*s\" is there twice", path, shown, v->key);
        *name = (Name){(uint32_t)(hash >> 32), (int)id};
    }
    for (int b = 0; b < 256; b++)
        t->byte_ids[b] = bytes_id(t, &(char){(char)b}, 1, false);
    return 0;
}

typedef struct {
    Tokenizer *t;
    Text scratch;
    int last;     /* id that the last merge made */
    bool regular; /* so far each token was made once, and before it was a part */
    const char *path;
} MergeReader;

/* What left and right become; -1: nothing that the vocabulary knows. Merges mostly come in the order of the ids that
 * they make: the one after the last is tried first. both: left and right as they are written, one behind the other. */
static int merged_id(const MergeReader *m, int left, int right, char *both, size_t length)
{
    const Tokenizer *t = m->t;
    const Piece *l = &t->pieces[left], *r = &t->pieces[right], *next = &t->pieces[m->last + 1];
    bool raw = l->raw || r->raw;
    if (!raw) {
        memcpy(both, t->bytes + l->start, l->length);
        memcpy(both + l->length, t->bytes + r->start, r->length);
        length = l->length + (size_t)r->length;
    }
    if ((size_t)m->last + 1 < t->vocab_size && next->length == length && next->raw == raw &&
        memcmp(t->bytes + next->start, both, length) == 0)
        return m->last + 1;
    return bytes_id(t, both, length, raw);
}

/* The next merge; of equal pairs the last one counts, as in the reference. */
static int add_merge(MergeReader *m, const char *left, size_t left_length, const char *right, size_t right_length,
                     char err[512])
{
    Tokenizer *t = m->t;
    m->scratch.length = 0;
    if (text_append(&m->scratch, left, left_length) || text_append(&m->scratch, right, right_length))
        return fail_memory(err);
    char *scratch = m->scratch.bytes;
    int l = token_id(t, left, left_length, scratch), r = token_id(t, right, right_length, scratch);
    if (l < 0 || r < 0)
        return fail(err, "%s: merge %zu has the part \"%.*s\", which is not in the vocabulary", m->path, t->merge_count,
                    l < 0 ? SHOWN(left_length) : SHOWN(right_length), l < 0 ? left : right);
    memcpy(scratch, left, left_length);
    memcpy(scratch + left_length, right, right_length);
    int id = merged_id(m, l, r, scratch, left_length + right_length);
    if (id < 0)
        return fail(err, "%s: merge %zu makes \"%.*s%.*s\", which is not in the vocabulary", m->path, t->merge_count,
                    SHOWN(left_length), left, SHOWN(right_length), right);
    Merge *merge = find_merge(t, l, r);
    Piece *pl = &t->pieces[l], *pr = &t->pieces[r], *made = &t->pieces[id];
    m->regular = m->regular && merge->pair == NO_PAIR && !made->made && (pl->made || pl->length <= 1) &&
                 (pr->made || pr->length <= 1);
    *merge = (Merge){(uint64_t)(uint32_t)l << 32 | (uint32_t)r, (int)t->merge_count++, id};
    note_crossing(t, id, merge->rank);
    made->made = true;
    m->last = id;
    return 0;
}

/* Merges as "left right" or ["left", "right"]. */
static int read_merges(MergeReader *m, const JsonValue *merges, char err[512])
{
    char quote[256];
    for (const JsonValue *v = merges->child; v; v = v->next) {
        const JsonValue *left = v->type == JSON_ARRAY && v->length == 2 ? v->child : NULL;
        const char *space = v->type == JSON_STRING ? memchr(v->text, ' ', v->length) : NULL;
        size_t before = space ? (size_t)(space - v->text) : 0, after = space ? v->length - before - 1 : 0;
        int failed;
        if (space && !memchr(space + 1, ' ', after))
            failed = add_merge(m, v->text, before, space + 1, after, err);
        else if (left && left->type == JSON_STRING && left->next->type == JSON_STRING)
            failed = add_merge(m, left->text, left->length, left->next->text, left->next->length, err);
        else
            failed = fail(err, "%s: merge %zu is %.160s, expected \"a b\" or [\"a\", \"b\"]", m->path,
                          m->t->merge_count, quoted(v, quote));
        if (failed)
            return -1;
    }
    if (m->t->merge_count == 0 && m->t->vocab_size > 256)
        return fail(err, "%s: has no merges for a vocabulary of %zu tokens", m->path, m->t->vocab_size);
    if (!m->regular)
        memset(m->t->crossed, 0xff, 256 * sizeof *m->t->crossed); /* -1: no rank is lower */
    return 0;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

static int compare_added(const void *a, const void *b)
{
    const Added *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : x->length < y->length ? -1 : x->length > y->length;
}

/* The first of [low, high), which all are longer than k, whose byte k is at least `byte`. */
static const Added *first_with(const Added *low, const Added *high, size_t k, int byte)
{
    while (low < high) {
        const Added *middle = low + (high - low) / 2;
        if ((unsigned char)middle->text[k] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token of the set that s begins with, or NULL. Those that fit are a range, shorter with every byte. */
static const Added *match_added(const AddedSet *set, const char *s, size_t n)
{
    const Added *best = NULL, *low = set->items, *high = set->count ? low + set->count : low;
    for (size_t k = 0; k < n && low < high; k++) {
        low += low->length == k; /* that one ends here */
        low = first_with(low, high, k, (unsigned char)s[k]);
        high = first_with(low, high, k, (unsigned char)s[k] + 1);
        if (low < high && low->length == k + 1)
            best = low;
    }
    return best;
}

static int append_added(AddedSet *set, char *text, size_t length, int id)
{
    Added *items = text ? realloc(set->items, (set->count + 1) * sizeof *items) : NULL;
    if (!items)
        return -1;
    set->items = items;
    items[set->count++] = (Added){text, length, id};
    set->first[(unsigned char)text[0]] = true;
    return 0;
}

/* Flags that change where a token is found; those of a token that are missing are false. */
static int read_flags(const JsonValue *token, bool *special, bool *normalized, const char *path, char err[512])
{
    static const char *const names[] = {"special", "normalized", "lstrip", "rstrip", "single_word"};
    bool flags[5] = {false};
    for (size_t i = 0; i < 5; i++)
        if (json_get(token, names[i]) && json_bool(json_get(token, names[i]), &flags[i]))
            return refuse(path, names[i], json_get(token, names[i]), "true or false", err);
    for (size_t i = 2; i < 5; i++)
        if (flags[i])
            return refuse(path, "an added token", token, "one without lstrip, rstrip and single_word", err);
    *special = flags[0];
    *normalized = flags[1];
    return 0;
}

/* One added token. Its id is that of the vocabulary if it is in there, else the next one behind all others: the
 * reference numbers them so, whatever the file says; a file that says something else means something else. */
static int read_added_token(Tokenizer *t, const JsonValue *token, const char *path, char err[512])
{
    const JsonValue key = {.type = JSON_INTEGER, .text = token->key, .length = token->key_length};
    const JsonValue *text = json_get(token, "content"), *number = token->key_length ? &key : json_get(token, "id");
    bool special = false, normalized = false;
    char quote[256];
    uint64_t id;
    if (!text || text->type != JSON_STRING || text->length == 0)
        return refuse(path, "an added token", token, "an object with a \"content\" that is not empty", err);
    if (read_flags(token, &special, &normalized, path, err))
        return -1;
    size_t length = text->length;
    char *copy = malloc(length + 1);
    if (!copy)
        return fail_memory(err);
    int known = token_id(t, text->text, length, copy);
    size_t expected = known >= 0 ? (size_t)known : t->size;
    if (json_u64(number, &id) || id != expected) {
        free(copy);
        return fail(err, "%s: added token \"%.*s\" has the id %.40s, expected %zu (the next, or the vocabulary's)",
                    path, SHOWN(length), text->text, quoted(number, quote), expected);
    }
    memcpy(copy, text->text, length);
    if (normalized && t->nfc) {
        free(copy);
        copy = unicode_nfc(text->text, text->length, &length);
    }
    if (append_added(normalized ? &t->nfc_added : &t->raw_added, copy, length, (int)id)) {
        free(copy);
        return fail_memory(err);
    }
    if (known < 0)
        add_piece(t, t->size++, copy, length);
    t->pieces[id].special = special;
    return 0;
}

/* A list of tokens with their ids, or a map of ids to tokens. */
static int read_added(Tokenizer *t, const JsonValue *list, const char *path, char err[512])
{
    for (const JsonValue *v = list ? list->child : NULL; v; v = v->next)
        if (read_added_token(t, v, path, err))
            return -1;
    for (AddedSet *set = &t->raw_added; set; set = set == &t->raw_added ? &t->nfc_added : NULL) {
        if (set->count)
            qsort(set->items, set->count, sizeof *set->items, compare_added);
        for (const Added *a = set->items; a && a + 1 < set->items + set->count; a++)
            if (compare_added(a, a + 1) == 0)
                return fail(err, "%s: added token \"%.*s\" is there twice", path, SHOWN(a->length), a->text);
    }
    return 0;
}

/* ---- reading the files ------------------------------------------------------------------------------------------- */

static int read_model(Tokenizer *t, const JsonValue *vocab, const JsonValue *merges, const JsonValue *added,
                      const char *path, char err[512])
{
    MergeReader m = {.t = t, .regular = true, .path = path};
    if (!vocab || vocab->type != JSON_OBJECT || vocab->length == 0)
        return refuse(path, "the vocabulary", vocab, "a map of tokens to ids", err);
    if (!merges || merges->type != JSON_ARRAY)
        return refuse(path, "model.merges", merges, "a list", err);
    if (added && added->type != JSON_ARRAY && added->type != JSON_OBJECT && added->type != JSON_NULL)
        return refuse(path, "added_tokens", added, "a list", err);
    int failed = make_room(t, vocab, added, merges->length, err) || read_vocabulary(t, vocab, path, err) ||
                 read_merges(&m, merges, err) || read_added(t, added, path, err);
    text_free(&m.scratch);
    return failed ? -1 : 0;
}

static int read_tokenizer_json(Tokenizer *t, const char *path, char err[512])
{
    Text text = {0};
    JsonValue *root = NULL;
    int result = read_json(path, &text, &root, err);
    if (result == 0 && (root->type != JSON_OBJECT || !json_get(root, "model")))
        result = fail(err, "%s: has no \"model\": it is no tokenizer.json", path);
    if (result == 0)
        result = check_settings(t, root, path, err);
    if (result == 0)
        result = read_model(t, value_at(root, "model.vocab"), value_at(root, "model.merges"),
                            json_get(root, "added_tokens"), path, err);
    if (result == 0)
        result = read_post_processor(t, json_get(root, "post_processor"), path, err);
    json_free(root);
    text_free(&text);
    return result;
}

/* The lines of merges.txt as a JSON list, whose text is left in json; a line "#version: ..." is none of them. */
static JsonValue *parse_lines(const Text *lines, Text *json, char err[512])
{
    FILE *f = open_memstream(&json->bytes, &json->length);
    bool first = true;
    fail_memory(err);
    if (!f)
        return NULL;
    putc('[', f);
    for (const char *at = lines->bytes, *end = at + lines->length; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at), shown = length;
        shown -= length && at[length - 1] == '\r';
        if (shown < 8 || memcmp(at, "#version", 8) != 0) {
            fputs(first ? "" : ",", f);
            json_write_string(f, at, shown);
            first = false;
        }
        at += length + 1;
    }
    putc(']', f);
    return fclose(f) ? NULL : json_parse(json->bytes, json->length, err);
}

/* The only added token of a vocabulary that comes without any: the reference's own default. text: room for the JSON. */
static JsonValue *default_added(const JsonValue *vocab, char text[100], char err[512])
{
    int n = snprintf(text, 100, "{\"%zu\":{\"content\":\"<|endoftext|>\",\"special\":true}}", vocab->length);
    return json_parse(text, (size_t)n, err);
}

/* The older form: vocab.json, merges.txt, and added tokens in tokenizer_config.json. 1 if they are not there. */
static int read_vocab_and_merges(Tokenizer *t, const char *folder, char err[512])
{
    char *paths[3] = {join_path(folder, "vocab.json"), join_path(folder, "merges.txt"),
                      join_path(folder, "tokenizer_config.json")};
    char usual_text[100];
    Text texts[4] = {{0}};
    JsonValue *vocab = NULL, *merges = NULL, *config = NULL, *usual = NULL;
    int result = paths[0] && paths[1] && paths[2] ? read_json(paths[0], &texts[0], &vocab, err) : fail_memory(err);
    if (result == 0)
        result = read_file(paths[1], &texts[1], err);
    if (result == 0) {
        merges = parse_lines(&texts[1], &texts[2], err);
        usual = default_added(vocab, usual_text, err);
        result = merges && usual && read_json(paths[2], &texts[3], &config, err) >= 0 ? 0 : -1;
    }
    t->nfc = true;
    if (result == 0) {
        const JsonValue *added = json_get(config, "added_tokens_decoder");
        result = read_model(t, vocab, merges, added ? added : usual, paths[0], err);
    }
    json_free(config);
    json_free(usual);
    json_free(merges);
    json_free(vocab);
    for (size_t i = 0; i < 4; i++)
        text_free(&texts[i]);
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

/* Merges ids[0..n), n <= SHORT_WORD, in place; returns how many are left. *highest is raised to the ranks used. */
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

static void heap_push(Heap *h, uint64_t item)
{
    size_t i = h->count++;
    for (; i > 0 && item < h->items[(i - 1) / 2]; i = (i - 1) / 2)
        h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = item;
}

static uint64_t heap_pop(Heap *h)
{
    uint64_t top = h->items[0], item = h->items[--h->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        child += child + 1 < h->count && h->items[child + 1] < h->items[child];
        if (item <= h->items[child])
            break;
        h->items[i] = h->items[child];
    }
    h->items[i] = item;
    return top;
}

typedef struct {
    int id, rank;       /* rank: with the next one; INT_MAX: no merge */
    int previous, next; /* -1: none */
} Link;

/* Looks up the pair that begins at `here`, and queues it. */
static void queue_pair(const Tokenizer *t, Link *links, Heap *h, int here)
{
    int next = here < 0 ? -1 : links[here].next, joined;
    if (here < 0)
        return;
    links[here].rank = next < 0 ? INT_MAX : pair_rank(t, links[here].id, links[next].id, &joined);
    if (links[here].rank != INT_MAX)
        heap_push(h, (uint64_t)links[here].rank << 32 | (uint32_t)here);
}

/* merge_short() for any n < 2^31, in O(n log n): a linked list of tokens, and a heap of pairs, some of them gone. */
static int merge_long(const Tokenizer *t, int *ids, size_t *n)
{
    Link *links = *n < INT_MAX ? malloc(*n * sizeof *links) : NULL;
    Heap h = {malloc(2 * *n * sizeof *h.items), 0}; /* each merge takes one pair away and adds two at most */
    if (!links || !h.items) {
        free(links);
        free(h.items);
        return -1;
    }
    for (int i = 0, last = (int)*n - 1; i <= last; i++)
        links[i] = (Link){ids[i], INT_MAX, i - 1, i < last ? i + 1 : -1};
    for (int i = 0; i >= 0; i = links[i].next)
        queue_pair(t, links, &h, i);
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
        queue_pair(t, links, &h, links[here].previous);
        queue_pair(t, links, &h, here);
    }
    *n = 0;
    for (int i = 0; i >= 0; i = links[i].next)
        ids[(*n)++] = links[i].id;
    free(links);
    free(h.items);
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
    if (c->id == NOT_SEEN) {
        int ids[3];
        for (size_t k = 0; k < 3; k++)
            ids[k] = t->byte_ids[(unsigned char)s[i + k]];
        c->rank = -1;
        c->id = merge_short(t, ids, 3, &c->rank) == 1 ? ids[0] : NOT_WHOLE;
    }
    bool whole = c->id >= 0 && (i == 0 || c->rank < t->crossed[(unsigned char)s[i - 1]][(unsigned char)s[i]]) &&
                 (next == length || c->rank < t->crossed[(unsigned char)s[next - 1]][(unsigned char)s[next]]);
    return whole ? c : NULL;
}

/* Appends the ids of one word. */
static int merge_word(const Tokenizer *t, const char *s, size_t length, IdList *ids)
{
    if (id_list_reserve(ids, length))
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
    if (n > SHORT_WORD && merge_long(t, word, &n))
        return -1;
    if (n > 1 && n <= SHORT_WORD)
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
    static const unsigned char ones[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                           255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t mask[2];
    memcpy(mask, ones + 16 - length, 16);
    if (readable >= 16) {
        memcpy(key, s, 16);
    } else {
        memset(key, 0, 16);
        memcpy(key, s, length);
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
    if (id_list_reserve(ids, 4))
        return -1;
    word_key(key, s, length, readable);
    Word *w = &t->words[mix(key[0] * GOLDEN + key[1] * 0xc2b2ae3d27d4eb4fu) * GOLDEN >> (64 - WORD_SLOTS_LOG)];
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

/* The first added token at or after *from, which becomes its place. plain: NULL, or 1 for each byte that is in none. */
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

/* A piece without added tokens that are found before NFC. added: those that are found after it are looked for. */
static int encode_piece(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids)
{
    char *normal = NULL;
    int failed = 0;
    if (t->nfc && !unicode_is_nfc(s, n)) {
        s = normal = unicode_nfc(s, n, &n);
        failed = s ? 0 : -1;
    }
    size_t from = 0, at = 0;
    for (const Added *a; added && !failed && (a = next_added(&t->nfc_added, s, n, NULL, &at)); from = at) {
        failed = encode_words(t, s + from, at - from, ids) || id_list_append(ids, a->id);
        at += a->length;
    }
    if (!failed)
        failed = encode_words(t, s + from, n - from, ids);
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

/* added: added tokens are looked for, but not in bytes marked in plain (NULL: anywhere). */
static int encode(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids, char err[512])
{
    Text valid = {0};
    int failed = 0;
    if (!is_valid_utf8(s, n)) {
        failed = text_append_replacing(&valid, s, n);
        s = valid.bytes;
        n = valid.length;
    }
    size_t from = 0, at = 0;
    for (const Added *a; added && !failed && (a = next_added(&t->raw_added, s, n, plain, &at)); from = at) {
        failed = encode_piece(t, s + from, at - from, !plain, ids) || id_list_append(ids, a->id);
        at += a->length;
    }
    if (!failed)
        failed = encode_piece(t, s + from, n - from, added && !plain, ids);
    text_free(&valid);
    return failed ? fail_memory(err) : 0;
}

int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512])
{
    if (added && t->begin_id >= 0 && id_list_append(ids, t->begin_id))
        return fail_memory(err);
    return encode(t, text, length, added, NULL, ids, err);
}

/* ---- decoding and looking up ------------------------------------------------------------------------------------- */

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
    const Added *a = match_added(&t->raw_added, token, length), *b = match_added(&t->nfc_added, token, length);
    if ((a && a->length == length) || (b && b->length == length))
        return a && a->length == length ? a->id : b->id;
    char *scratch = malloc(length + 1);
    int id = scratch ? token_id(t, token, length, scratch) : -1;
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
 *     {% if C %} {% elif C %} {% else %} {% endif %}  {% for NAME in messages %} {% endfor %}  {{ S + S ... }}  {# #}
 *     C   or, and, not, parentheses, ==, !=, is [not] defined; messages[0], messages[-1], tools (which are never
 *         given), add_generation_prompt, loop.first, loop.last
 *     S   strings, and a message's attributes: message.role, message['content']
 *
 * Anything else is an error when it is reached; parts for tools never are. Each byte of the output has a mark: 1 if it
 * came out of a message. A template is ChatML if it writes two trial conversations as it should. */

typedef enum { NOTHING, FLAG, INTEGER, LITERAL, GIVEN, MESSAGES, MESSAGE, LOOP } Kind;

typedef struct {
    Kind kind;
    long number;      /* FLAG, INTEGER; MESSAGE: which one */
    const char *text; /* LITERAL: as it is written in the template; GIVEN: out of a message */
    size_t length;
} Value;

#define MAX_NESTING 32
typedef struct {
    bool outer_active, taken, line_start; /* taken: a branch of this `if` was */
    const char *body;                     /* of a loop */
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
    bool active, line_start; /* active: not in a branch that isn't taken; line_start: at[-1] ended a line */
    int unevaluated;         /* in the right half of an `or` or `and` that is decided */
    Text *out, *marks;
    char *err;
} Chat;

static int unknown_syntax(Chat *c, const char *from)
{
    size_t n = 0;
    while (from + n < c->end && n < 48 && from[n] != '\n' && from[n] != '%' && from[n] != '}')
        n++;
    if (n == 0)
        return fail(c->err, "the chat template ends within a tag");
    return fail(c->err, "the chat template has \"%.*s\", which no known ChatML template has there", (int)n, from);
}

/* Writes out bytes; mark 1: of a message, which may hold anything. */
static int emit(Chat *c, const char *bytes, size_t length, char mark)
{
    int failed = mark ? text_append_replacing(c->out, bytes, length) : text_append(c->out, bytes, length);
    while (!failed && c->marks->length < c->out->length)
        failed = text_append(c->marks, &mark, 1);
    return failed ? fail_memory(c->err) : 0;
}

static bool is_name_byte(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_';
}

static bool is_blank(char b)
{
    return b == ' ' || (b >= '\t' && b <= '\r');
}

static void skip_blanks(Chat *c)
{
    while (c->at < c->end && is_blank(*c->at))
        c->at++;
}

/* Skips blanks, then word if it is next. */
static bool take(Chat *c, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    if (is_name_byte(word[n - 1]) && c->at + n < c->end && is_name_byte(c->at[n]))
        return false;
    c->at += n;
    return true;
}

static size_t take_name(Chat *c, const char **name)
{
    skip_blanks(c);
    *name = c->at;
    while (c->at < c->end && is_name_byte(*c->at))
        c->at++;
    return (size_t)(c->at - *name);
}

static bool same(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && (a_length == 0 || memcmp(a, b, a_length) == 0);
}

static bool is_word(const char *name, size_t length, const char *word)
{
    return same(name, length, word, strlen(word));
}

/* 'text' or "text"; the quote is next. */
static int take_literal(Chat *c, Value *v)
{
    const char *from = c->at++;
    while (c->at < c->end && *c->at != *from)
        c->at += *c->at == '\\' && c->end - c->at > 1 ? 2 : 1;
    if (c->at >= c->end)
        return unknown_syntax(c, from);
    *v = (Value){LITERAL, 0, from + 1, (size_t)(c->at - from - 1)};
    c->at++;
    return 0;
}

/* v.name or v['name'] becomes v. */
static int attribute(Chat *c, Value *v, const char *name, size_t length)
{
    Value of = *v;
    bool first = is_word(name, length, "first"), role = is_word(name, length, "role");
    *v = (Value){NOTHING, 0, NULL, 0};
    if (c->unevaluated)
        return 0;
    if (of.kind == NOTHING)
        return fail(c->err, "the chat template needs a message that is not there");
    if (of.kind == LOOP && (first || is_word(name, length, "last"))) {
        *v = (Value){FLAG, first ? c->index == 0 : c->index + 1 == c->count, NULL, 0};
        return 0;
    }
    if (of.kind != MESSAGE)
        return unknown_syntax(c, name);
    const Message *m = &c->messages[of.number];
    if (role)
        *v = (Value){GIVEN, 0, m->role, m->role_length};
    else if (is_word(name, length, "content"))
        *v = (Value){GIVEN, 0, m->content, m->content_length};
    return 0;
}

static int condition(Chat *c, Value *v);

static int primary(Chat *c, Value *v)
{
    skip_blanks(c);
    const char *from = c->at, *name;
    *v = (Value){NOTHING, 0, NULL, 0};
    if (c->at < c->end && (*c->at == '\'' || *c->at == '"'))
        return take_literal(c, v);
    if (take(c, "(")) {
        int failed = c->nesting++ == MAX_NESTING ? unknown_syntax(c, from) : condition(c, v);
        c->nesting--;
        return failed ? -1 : take(c, ")") ? 0 : unknown_syntax(c, from);
    }
    size_t n = take_name(c, &name);
    if (n == 1 && *name >= '0' && *name <= '9')
        *v = (Value){INTEGER, *name - '0', NULL, 0};
    else if (c->variable && same(name, n, c->variable, c->variable_length))
        *v = (Value){MESSAGE, (long)c->index, NULL, 0};
    else if (c->variable && is_word(name, n, "loop"))
        v->kind = LOOP;
    else if (is_word(name, n, "messages"))
        v->kind = MESSAGES;
    else if (is_word(name, n, "add_generation_prompt"))
        *v = (Value){FLAG, c->generation_prompt, NULL, 0};
    else if (!is_word(name, n, "tools"))
        return unknown_syntax(c, from);
    return 0;
}

/* A value with its .name, ['name'] and [number]. */
static int operand(Chat *c, Value *v)
{
    const char *from = c->at, *name;
    if (primary(c, v))
        return -1;
    while (c->at < c->end && (*c->at == '.' || *c->at == '[')) {
        Value key;
        if (*c->at++ == '.') {
            size_t n = take_name(c, &name);
            if (attribute(c, v, name, n))
                return -1;
            continue;
        }
        bool from_end = take(c, "-");
        if (primary(c, &key) || !take(c, "]") || (key.kind != INTEGER && key.kind != LITERAL))
            return unknown_syntax(c, from);
        long i = from_end ? (long)c->count - key.number : key.number;
        if (key.kind == LITERAL && attribute(c, v, key.text, key.length))
            return -1;
        if (key.kind == INTEGER && v->kind != MESSAGES)
            return unknown_syntax(c, from);
        if (key.kind == INTEGER)
            *v = (Value){i >= 0 && i < (long)c->count ? MESSAGE : NOTHING, i, NULL, 0};
    }
    return 0;
}

static bool is_text(const Value *v)
{
    return v->kind == LITERAL || v->kind == GIVEN;
}

static bool is_true(const Value *v)
{
    return is_text(v) ? v->length > 0 : v->kind == FLAG || v->kind == INTEGER ? v->number != 0 : v->kind != NOTHING;
}

/* V, not V, V == V, V != V, V is [not] defined */
static int comparison(Chat *c, Value *v)
{
    const char *from = c->at;
    Value right;
    bool invert = false, result;
    while (take(c, "not"))
        invert = !invert;
    if (operand(c, v))
        return -1;
    if (take(c, "==") || take(c, "!=")) {
        bool unequal = c->at[-2] == '!';
        if (operand(c, &right) || !is_text(&right) || memchr(right.text, '\\', right.length))
            return unknown_syntax(c, from);
        result = (is_text(v) && same(v->text, v->length, right.text, right.length)) != unequal;
    } else if (take(c, "is")) {
        bool negated = take(c, "not");
        if (!take(c, "defined"))
            return unknown_syntax(c, from);
        result = (v->kind != NOTHING) != negated;
    } else if (invert) {
        result = is_true(v);
    } else {
        return 0;
    }
    *v = (Value){FLAG, result != invert, NULL, 0};
    return 0;
}

/* Conditions with `and` between, or several of these with `or` between; decided from the left. */
static int junction(Chat *c, Value *v, bool any)
{
    if (any ? junction(c, v, false) : comparison(c, v))
        return -1;
    while (take(c, any ? "or" : "and")) {
        bool left = is_true(v), decided = left == any;
        c->unevaluated += decided;
        if (any ? junction(c, v, false) : comparison(c, v))
            return -1;
        c->unevaluated -= decided;
        *v = (Value){FLAG, decided ? left : is_true(v), NULL, 0};
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
    skip_blanks(c);
    const char *from = c->at;
    char sign = c->at < c->end && (*c->at == '-' || *c->at == '+') ? *c->at++ : 0;
    if (c->end - c->at < 2 || memcmp(c->at, close, 2) != 0)
        return unknown_syntax(c, from);
    c->at += 2;
    if (sign == '-')
        skip_blanks(c);
    else if (sign != '+' && *close != '}' && c->at < c->end && *c->at == '\n')
        c->at++;
    c->line_start = c->at[-1] == '\n';
    return 0;
}

/* A tag that is not evaluated: strings in it may hold anything. */
static int skip_tag(Chat *c, const char *close)
{
    const char *from = c->at;
    Value ignored;
    while (c->end - c->at >= 2 && memcmp(c->at, close, 2) != 0) {
        if (*close == '#' || (*c->at != '\'' && *c->at != '"'))
            c->at++;
        else if (take_literal(c, &ignored))
            return -1;
    }
    c->at -= c->at > from && (c->at[-1] == '-' || c->at[-1] == '+');
    return tag_end(c, close);
}

/* A condition to the end of its tag; it decides whether what follows is active. */
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
    Value list;
    if (c->depth == MAX_NESTING)
        return unknown_syntax(c, from);
    Block *b = &c->blocks[c->depth++];
    *b = (Block){.outer_active = c->active};
    if (!loop)
        return branch(c, c->active);
    if (!c->active)
        return skip_tag(c, "%}");
    if (c->variable || !(c->variable_length = take_name(c, &c->variable)) || !take(c, "in") || operand(c, &list) ||
        list.kind != MESSAGES || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    c->index = 0;
    b->body = c->at;
    b->line_start = c->line_start;
    return 0;
}

static int end_block(Chat *c, bool loop, const char *from)
{
    Block *b = c->depth ? &c->blocks[c->depth - 1] : NULL;
    if (!b || (b->outer_active && !b->body == loop) || tag_end(c, "%}"))
        return unknown_syntax(c, from);
    if (b->body && ++c->index < c->count) {
        c->at = b->body;
        c->line_start = b->line_start;
        return 0;
    }
    if (b->body)
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
    if (b && !b->body && take(c, "elif"))
        return branch(c, b->outer_active && !b->taken);
    if (b && !b->body && take(c, "else")) {
        c->active = b->outer_active && !b->taken;
        return tag_end(c, "%}");
    }
    return c->active ? unknown_syntax(c, from) : skip_tag(c, "%}");
}

/* A string of the template, its escapes resolved. */
static int emit_literal(Chat *c, const Value *v)
{
    static const char escapes[] = "nrt\\'\"", meant[] = "\n\r\t\\'\"";
    for (size_t i = 0, run; i < v->length; i = run) {
        const char *s = v->text + i, *known = NULL;
        for (run = i; run < v->length && v->text[run] != '\\'; run++)
            ;
        if (run == i) {
            known = i + 1 < v->length && s[1] ? strchr(escapes, s[1]) : NULL;
            if (!known)
                return unknown_syntax(c, s);
            run += 2;
        }
        if (emit(c, known ? meant + (known - escapes) : s, known ? 1 : run - i, 0))
            return -1;
    }
    return 0;
}

/* {{ ... }}, behind its opening. */
static int output(Chat *c)
{
    if (!c->active)
        return skip_tag(c, "}}");
    do {
        const char *from = c->at;
        Value v;
        if (operand(c, &v))
            return -1;
        if (!is_text(&v))
            return unknown_syntax(c, from);
        if (v.kind == LITERAL ? emit_literal(c, &v) : emit(c, v.text, v.length, 1))
            return -1;
    } while (take(c, "+"));
    return tag_end(c, "}}");
}

/* The text up to the next tag, less the white space that the tag's opening takes away: "-" all of it, a block's opening
 * (no "+") blanks with which the line begins. */
static int plain_text(Chat *c)
{
    const char *from = c->at, *tag = from;
    while (c->end - tag >= 2 && !(*tag == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
        tag++;
    tag = c->end - tag >= 2 ? tag : c->end;
    const char *stop = tag, *line = tag;
    char sign = c->end - tag > 2 ? tag[2] : 0;
    if (sign == '-') {
        while (stop > from && is_blank(stop[-1]))
            stop--;
    } else if (tag < c->end && tag[1] != '{' && sign != '+') {
        while (line > from && line[-1] != '\n' && is_blank(line[-1]))
            line--;
        if (line > from ? line[-1] == '\n' : c->line_start)
            stop = line;
    }
    c->at = tag;
    return c->active ? emit(c, from, (size_t)(stop - from), 0) : 0;
}

/* Messages through the model's template. */
static int render(const Tokenizer *t, const Message *messages, size_t n, bool generation_prompt, Text *out, Text *marks,
                  char err[512])
{
    const Text *template = &t->chat_template;
    size_t length = template->length;
    length -= length && template->bytes[length - 1] == '\n'; /* as Jinja does */
    Chat c = {.at = template->bytes, .end = template->bytes + length, .messages = messages, .count = n, .out = out,
              .marks = marks, .err = err, .generation_prompt = generation_prompt, .active = true, .line_start = true};
    if (t->chat_problem[0])
        return fail(err, "%s", t->chat_problem);
    if (n == 0)
        return fail(err, "a chat needs at least one message");
    for (;;) {
        if (plain_text(&c))
            return -1;
        if (c.at == c.end)
            return c.depth ? fail(err, "the chat template ends within a block") : 0;
        char kind = c.at[1];
        c.at += 2;
        c.at += kind != '#' && c.at < c.end && (*c.at == '-' || *c.at == '+');
        if (kind == '#' ? skip_tag(&c, "#}") : kind == '%' ? statement(&c) : output(&c))
            return -1;
    }
}

#define SYSTEM_BEGIN "<|im_start|>system\n"
#define TURN_END "<|im_end|>\n"

/* Two trial conversations. The longer must come out as its turns; the other too, but for a default system turn. */
static int try_chat(Tokenizer *t, char err[512])
{
    static const Message trial[] = {
        {"system", "S", 6, 1}, {"user", "U", 4, 1}, {"assistant", "A", 9, 1}, {"user", "V", 4, 1}};
    static const char whole[] = SYSTEM_BEGIN "S<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
                                "A<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n";
    static const char tail[] = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n";
    const size_t begin = strlen(SYSTEM_BEGIN), end = strlen(TURN_END);
    Text all = {0}, one = {0}, marks = {0};
    int failed = render(t, trial, 4, true, &all, &marks, err);
    marks.length = 0;
    failed = failed || render(t, trial + 1, 1, true, &one, &marks, err);
    size_t head = failed || one.length < strlen(tail) ? 0 : one.length - strlen(tail);
    bool known = !failed && is_word(all.bytes, all.length, whole) && is_word(one.bytes + head, one.length - head, tail);
    if (known && head) {
        known = head >= begin + end && memcmp(one.bytes, SYSTEM_BEGIN, begin) == 0 &&
                memcmp(one.bytes + head - end, TURN_END, end) == 0 && !memchr(one.bytes, 0, head);
        t->default_system = known ? strndup(one.bytes + begin, head - begin - end) : NULL;
        failed = known && !t->default_system ? fail_memory(err) : failed;
    }
    if (!failed && !known)
        failed = fail(err, "the chat template does not write its turns as ChatML does");
    text_free(&all);
    text_free(&one);
    text_free(&marks);
    return failed ? -1 : 0;
}

/* The chat template: chat_template.jinja, else tokenizer_config.json's, which is a text or a list of named ones. */
static int read_template(Tokenizer *t, const char *folder, char err[512])
{
    char *file = join_path(folder, "chat_template.jinja"), *config_path = join_path(folder, "tokenizer_config.json");
    Text config_text = {0};
    JsonValue *config = NULL;
    int result = file && config_path ? read_file(file, &t->chat_template, err) : fail_memory(err);
    if (result == 0 && !is_valid_utf8(t->chat_template.bytes, t->chat_template.length))
        result = fail(err, "%s: is not UTF-8", file);
    if (result > 0) {
        result = read_json(config_path, &config_text, &config, err);
        const JsonValue *found = json_get(config, "chat_template");
        for (const JsonValue *v = found && found->type == JSON_ARRAY ? found->child : NULL; v; v = v->next)
            if (json_string_is(json_get(v, "name"), "default"))
                found = json_get(v, "template");
        if (result == 0 && found && found->type == JSON_STRING)
            result = text_append(&t->chat_template, found->text, found->length) ? fail_memory(err) : 0;
        else if (result >= 0)
            result = fail(err, "%s has no chat_template.jinja, and no chat template in tokenizer_config.json", folder);
    }
    json_free(config);
    text_free(&config_text);
    free(config_path);
    free(file);
    return result;
}

/* Without a usable template only chat fails, by t->chat_problem. */
static void open_chat(Tokenizer *t, const char *folder)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};
    char problem[512];
    int failed = read_template(t, folder, problem) || try_chat(t, problem);
    for (size_t i = 0; i < 2 && !failed; i++) {
        const Added *a = match_added(&t->raw_added, needed[i], strlen(needed[i]));
        if (!a || a->length != strlen(needed[i]))
            failed = fail(problem, "the tokenizer has no added token %s", needed[i]);
    }
    if (failed)
        memcpy(t->chat_problem, problem, sizeof problem);
}

const char *tokenizer_chat_problem(const Tokenizer *t)
{
    return t->chat_problem[0] ? t->chat_problem : NULL;
}

const char *tokenizer_default_system(const Tokenizer *t)
{
    return t->chat_problem[0] ? NULL : t->default_system;
}

int tokenizer_chat_text(const Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, Text *out,
                        char err[512])
{
    Text marks = {0};
    int failed = render(t, messages, n, add_generation_prompt, out, &marks, err);
    text_free(&marks);
    return failed;
}

int tokenizer_chat_ids(Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt,
                       bool with_default_system, IdList *ids, char err[512])
{
    Text text = {0}, marks = {0};
    size_t skip = 0;
    int failed = render(t, messages, n, add_generation_prompt, &text, &marks, err);
    if (!failed && t->default_system && !with_default_system) {
        size_t begin = strlen(SYSTEM_BEGIN), length = strlen(t->default_system);
        if (text.length > begin + length && memcmp(text.bytes + begin, t->default_system, length) == 0 &&
            memchr(marks.bytes, 1, begin + length) == NULL)
            skip = begin + length + strlen(TURN_END);
    }
    if (!failed && text.length > skip)
        failed = encode(t, text.bytes + skip, text.length - skip, true, marks.bytes + skip, ids, err);
    text_free(&text);
    text_free(&marks);
    return failed;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

void tokenizer_close(Tokenizer *t)
{
    if (!t)
        return;
    for (AddedSet *set = &t->raw_added; set; set = set == &t->raw_added ? &t->nfc_added : NULL) {
        for (size_t i = 0; i < set->count; i++)
            free(set->items[i].text);
        free(set->items);
    }
    void *const tables[] = {t->bytes,   t->pieces,     t->names, t->merges,
                            t->crossed, t->characters, t->words, t->default_system};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        free(tables[i]);
    text_free(&t->chat_template);
    free(t);
}

static int make_caches(Tokenizer *t)
{
    const size_t characters = 0x10000 * sizeof *t->characters, words = sizeof *t->words << WORD_SLOTS_LOG;
    t->characters = big_alloc(characters);
    t->words = big_alloc(words);
    if (!t->characters || !t->words)
        return -1;
    memset(t->characters, 0xff, characters); /* every id NOT_SEEN */
    memset(t->words, 0, words);
    return 0;
}

Tokenizer *tokenizer_open(const char *path, char err[512])
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    Tokenizer *t = calloc(1, sizeof *t);
    char *file = folder ? join_path(path, "tokenizer.json") : strdup(path);
    int result = -1;
    if (!t || !file) {
        fail_memory(err);
    } else {
        t->begin_id = -1;
        make_letters(t);
        make_classes(t);
        result = read_tokenizer_json(t, file, err);
        if (result > 0 && folder)
            result = read_vocab_and_merges(t, path, err);
        if (result > 0)
            fail(err, "%s: %s", path, folder ? "has no tokenizer.json, nor vocab.json and merges.txt" : "no such file");
    }
    if (result == 0 && make_caches(t))
        result = fail_memory(err);
    if (result == 0) {
        char *slash = strrchr(file, '/');
        if (slash)
            *slash = 0;
        open_chat(t, slash == file ? "/" : slash ? file : ".");
    } else {
        tokenizer_close(t);
    }
    free(file);
    return result == 0 ? t : NULL;
}
