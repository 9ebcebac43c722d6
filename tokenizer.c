/* Byte-level BPE (byte pair encoding), as Qwen2.5's tokenizer.json describes it.
 *
 * Text becomes ids in five steps:
 *
 *     added tokens   <|im_end|> and the like are cut out of the text, at each position the longest that fits
 *     NFC            what is between them is normalized: an e followed by a combining accent becomes one character
 *     words          normalized text is cut into words: "It's 12 o'clock!" is It|'s| |1|2| o|'clock|!
 *     bytes          a word starts as one token for each byte of its UTF-8
 *     merges         pairs of neighbors become one token, until no pair of neighbors is in the list of merges
 *
 * The list of merges is in order of rank. Of all neighbors in the word that are a pair of the list, the pair of lowest
 * rank comes first, and the leftmost among equals. If the list is  "l o", "o w", "lo w",  then
 *
 *     l o w   ->   lo w   ->   low
 *
 * and if the second merge were the first, it would be  l o w -> l ow.  The tables are
 *
 *     byte_ids   byte -> id                     where a word starts
 *     merges     left id, right id -> rank, id  what becomes of two neighbors (a hash table)
 *     pieces     id -> bytes                    for decoding: the text of ids is their bytes, one behind another
 *     vocab      bytes -> id                    for reading the files and looking up tokens (a hash table)
 *
 * A tokenizer.json that asks for more than this is refused. It is checked when it is opened; the rest trusts it.
 */
#include "tokenizer/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/unicode.h"

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* The pattern of Qwen2 has seven alternatives. At each position the first one that fits takes a word:
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)   the end of a contraction
 *     [^\r\n\p{L}\p{N}]?\p{L}+       letters, with at most one other character before them, such as a blank
 *     \p{N}                          one digit
 *      ?[^\s\p{L}\p{N}]+[\r\n]*      punctuation and the like, with at most one blank before and newlines behind
 *     \s*[\r\n]+                     white space up to the last newline in it
 *     \s+(?!\S)                      white space, but for its last character if a word follows
 *     \s+                            white space
 *
 * A scanner written by hand does that without a regular expression; it sees a text as characters of these classes. */
typedef enum { LETTER, NUMBER, SPACE, NEWLINE, OTHER, MANY_BYTES } Class; /* MANY_BYTES: beyond ASCII, look further */

static Class class_of(uint32_t c)
{
    if (c == '\n' || c == '\r')
        return NEWLINE;
    if (unicode_is_letter(c))
        return LETTER;
    if (unicode_is_number(c))
        return NUMBER;
    return unicode_is_space(c) ? SPACE : OTHER;
}

/* U+5000..U+9FFF and U+B000..U+CFFF are all letters, of three bytes each: most of Chinese, and of Korean. */
static bool begins_cjk_letter(char lead)
{
    unsigned char b = (unsigned char)lead;
    return (b >= 0xe5 && b <= 0xe9) || b == 0xeb || b == 0xec;
}

/* The class of the character that s begins with (n >= 1 bytes of valid UTF-8), and how many bytes it has. */
static Class class_at(const Tokenizer *t, const char *s, size_t n, size_t *size)
{
    Class class = t->class[(unsigned char)*s];
    uint32_t c;
    *size = 1;
    if (class != MANY_BYTES)
        return class;
    if (begins_cjk_letter(*s)) {
        *size = 3;
        return LETTER;
    }
    *size = unicode_decode(s, n, &c);
    return class_of(c);
}

/* Where the characters of that class end that begin at s[i]. */
static size_t end_of_run(const Tokenizer *t, Class class, const char *s, size_t i, size_t n)
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

/* The length of 's 't 'm 'd 're 've 'll in any case, where the long s U+017F is an s, too; 0 if s is none of them. */
static size_t contraction(const char *s, size_t n)
{
    char second = n > 1 ? s[1] : 0, third = n > 2 ? s[2] : 0, a = (char)(second | 0x20), b = (char)(third | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return second == '\xc5' && third == '\xbf' ? 3 : 0;
}

/* The length of the word that s begins with, which is white space: the last three alternatives. */
static size_t space_word(const Tokenizer *t, const char *s, size_t n)
{
    size_t end, size, after_newline = 0, last = 0; /* last: where the last character begins */
    for (end = 0; end < n; end += size) {
        Class class = class_at(t, s + end, n - end, &size);
        if (class != SPACE && class != NEWLINE)
            break;
        last = end;
        if (class == NEWLINE)
            after_newline = end + size;
    }
    if (after_newline)
        return after_newline;
    return end == n || last == 0 ? end : last;
}

/* The length of the word that s begins with (n >= 1 bytes of valid UTF-8). */
static size_t next_word(const Tokenizer *t, const char *s, size_t n)
{
    size_t size, next_size, end;
    Class class = class_at(t, s, n, &size), next = SPACE;
    if (*s == '\'' && (end = contraction(s, n)))
        return end;
    if (class == LETTER)
        return end_of_run(t, LETTER, s, size, n);
    if (class == NUMBER)
        return size;
    if (class != NEWLINE && size < n) {
        next = class_at(t, s + size, n - size, &next_size);
        if (next == LETTER)
            return end_of_run(t, LETTER, s, size + next_size, n);
    }
    if (class == OTHER || (*s == ' ' && next == OTHER)) {
        end = end_of_run(t, OTHER, s, size, n);
        while (end < n && (s[end] == '\r' || s[end] == '\n'))
            end++;
        return end;
    }
    return space_word(t, s, n);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

#define SHORT_WORD 64 /* bytes */

/* The rank of the pair and the id that it becomes; INT_MAX if it is not in the list of merges. */
static int pair_rank(const Tokenizer *t, int left, int right, int *id)
{
    const Merge *m = find_merge(t, left, right);
    *id = m->id;
    return m->pair == NO_PAIR ? INT_MAX : m->rank;
}

/* Merge ids[0..n), n <= SHORT_WORD, in place and return how many are left. Each step looks at all pairs for the lowest
 * rank, which takes n^2 steps in all, but needs no memory. *highest becomes the highest rank that was used. */
static size_t merge_short(const Tokenizer *t, int *ids, size_t n, int *highest)
{
    int rank[SHORT_WORD], merged[SHORT_WORD]; /* of the pair ids[i], ids[i + 1] */
    *highest = -1;
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(t, ids[i], ids[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == INT_MAX)
            break;
        *highest = MAX(*highest, rank[best]);
        ids[best] = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            rank[i] = rank[i + 1];
            merged[i] = merged[i + 1];
        }
        if (best > 0)
            rank[best - 1] = pair_rank(t, ids[best - 1], ids[best], &merged[best - 1]);
        if (best + 1 < n)
            rank[best] = pair_rank(t, ids[best], ids[best + 1], &merged[best]);
    }
    return n;
}

/* A heap of numbers, the least on top: items[i] <= items[2i + 1], items[2i + 2]. */
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
        bool right_is_less = child + 1 < h->count && h->items[child + 1] < h->items[child];
        child += right_is_less; /* a branch here, which can't be predicted, costs 40% of the time for a long word */
        if (item <= h->items[child])
            break;
        h->items[i] = h->items[child];
    }
    h->items[i] = item;
    return top;
}

/* A token of a long word, in a list that is linked both ways. */
typedef struct {
    int id, rank; /* rank: of the pair with the next token; INT_MAX: not a merge */
    int previous, next;
} Link;

/* Look up the pair that begins at links[i], and put it into the heap as rank << 32 | i: the lowest rank comes first,
 * and the leftmost among equals. */
static void queue_pair(const Tokenizer *t, Link *links, Heap *h, int i)
{
    Link *link = &links[i];
    int merged;
    link->rank = pair_rank(t, link->id, links[link->next].id, &merged);
    if (link->rank != INT_MAX)
        heap_push(h, (uint64_t)link->rank << 32 | (uint32_t)i);
}

/* The same as merge_short() for any n < 2^31 - 1, in n log n steps. At either end of the list is a token, -1, that
 * merges with none. Pairs stay in the heap when one of their tokens is gone: the rank of their link is another then. */
static int merge_long(const Tokenizer *t, int *ids, size_t *n)
{
    Link *links = *n < INT_MAX - 1 ? malloc((*n + 2) * sizeof *links) : NULL;
    Heap h = {malloc(2 * *n * sizeof *h.items), 0}; /* each merge removes one pair and adds at most two */
    if (!links || !h.items) {
        free(links);
        free(h.items);
        return -1;
    }
    int end = (int)*n + 1;
    links[0] = links[end] = (Link){-1, INT_MAX, 0, end};
    for (int i = 1; i < end; i++)
        links[i] = (Link){ids[i - 1], INT_MAX, i - 1, i + 1};
    for (int i = 1; i < end; i++)
        queue_pair(t, links, &h, i);
    while (h.count) {
        uint64_t top = heap_pop(&h);
        int i = (int)(uint32_t)top, next = links[i].next;
        if (links[i].rank != (int)(top >> 32))
            continue;
        pair_rank(t, links[i].id, links[next].id, &links[i].id);
        links[next].rank = INT_MAX;
        links[i].next = links[next].next;
        links[links[i].next].previous = i;
        queue_pair(t, links, &h, links[i].previous);
        queue_pair(t, links, &h, i);
    }
    *n = 0;
    for (int i = 1; i < end; i = links[i].next)
        ids[(*n)++] = links[i].id;
    free(links);
    free(h.items);
    return 0;
}

/* ---- characters that are tokens ---------------------------------------------------------------------------------- */

/* A word of Chinese has three bytes for each character, and nearly always the bytes of a character become one token
 * before anything else happens to them. Then the word may as well start as characters, with a third of the tokens to
 * merge.
 *
 * When is the outcome the same? A merge takes bytes away from a character that is not complete only if what it makes
 * begins or ends inside a character and contains a boundary between two. boundary_rank[x][y] is the lowest rank of such
 * merges with byte x before the boundary and byte y behind it. A character whose own merges all have lower ranks than
 * boundary_rank at both of its ends is complete before any of them.
 *
 * This needs each token to be made by one merge only, which comes before those that the token is part of. For a list of
 * merges that breaks this rule boundary_rank is -1 everywhere, and every word starts as bytes. */
struct CharacterToken { /* of a character of three bytes */
    int id;             /* the token that its bytes become, or one of those below */
    int rank;           /* the highest rank of its merges */
};
enum { NOT_LOOKED_UP = -1, SEVERAL_TOKENS = -2 };

/* The token of the character of three bytes at s[i], or NULL if the word must start with its bytes. */
static const CharacterToken *character_token(const Tokenizer *t, const char *s, size_t i, size_t length)
{
    const unsigned char *b = (const unsigned char *)s + i;
    CharacterToken *c = &t->character_tokens[(b[0] & 0xf) << 12 | (b[1] & 0x3f) << 6 | (b[2] & 0x3f)];
    if (c->id == NOT_LOOKED_UP) {
        int ids[3] = {t->byte_ids[b[0]], t->byte_ids[b[1]], t->byte_ids[b[2]]};
        c->id = merge_short(t, ids, 3, &c->rank) == 1 ? ids[0] : SEVERAL_TOKENS;
    }
    bool complete = c->id >= 0 && (i == 0 || c->rank < t->boundary_rank[b[-1]][b[0]]) &&
                    (i + 3 == length || c->rank < t->boundary_rank[b[2]][b[3]]);
    return complete ? c : NULL;
}

/* Append the ids of one word. */
static int merge_word(const Tokenizer *t, const char *s, size_t length, IdList *ids)
{
    if (id_list_reserve(ids, length))
        return -1;
    int *word = ids->items + ids->count, highest;
    size_t n = 0;
    for (size_t i = 0, size; i < length; i += size) {
        size = unicode_length(s[i]);
        const CharacterToken *c = size == 3 ? character_token(t, s, i, length) : NULL;
        if (c) {
            word[n++] = c->id;
            continue;
        }
        for (size_t k = 0; k < size; k++) {
            int id = t->byte_ids[(unsigned char)s[i + k]];
            if (id >= 0)
                word[n++] = id;
        }
    }
    if (n <= SHORT_WORD)
        n = merge_short(t, word, n, &highest);
    else if (merge_long(t, word, &n))
        return -1;
    ids->count += n;
    return 0;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* Most words of a text have occurred before. Short words and their ids are kept in a table that has one slot for each
 * hash: a word replaces the one that was there. */
struct CachedWord {
    uint64_t key[2]; /* the bytes of the word, zeros, and in the last byte its length */
    int ids[4];      /* -1 behind the last one */
};
#define WORD_CACHE_BITS 16

/* The key of a word of less than 16 bytes, of which `readable` bytes can be read at s. */
static void word_key(uint64_t key[2], const char *s, size_t length, size_t readable)
{
    static const unsigned char ones[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                           255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t mask[2];
    memcpy(mask, ones + 16 - length, 16); /* `length` bytes of ones, then zeros */
    if (readable >= 16) {
        memcpy(key, s, 16);
    } else {
        memset(key, 0, 16);
        memcpy(key, s, length);
    }
    key[0] &= mask[0];
    key[1] = (key[1] & mask[1]) | (uint64_t)length << 56;
}

/* Append the ids of one word, from the cache if it is there. */
static int encode_word(Tokenizer *t, const char *s, size_t length, size_t readable, IdList *ids)
{
    uint64_t key[2];
    if (length >= 16)
        return merge_word(t, s, length, ids);
    if (id_list_reserve(ids, 4))
        return -1;
    word_key(key, s, length, readable);
    uint64_t hash = hash_mix(key[0] * HASH_GOLDEN + key[1] * 0xc2b2ae3d27d4eb4fu) * HASH_GOLDEN;
    CachedWord *w = &t->word_cache[hash >> (64 - WORD_CACHE_BITS)];
    size_t before = ids->count, n = 1;
    if (w->key[0] == key[0] && w->key[1] == key[1]) {
        memcpy(ids->items + before, w->ids, sizeof w->ids);
        while (n < 4 && w->ids[n] >= 0)
            n++;
        ids->count += n;
        return 0;
    }
    if (merge_word(t, s, length, ids))
        return -1;
    n = ids->count - before;
    if (n > 0 && n <= 4) {
        *w = (CachedWord){{key[0], key[1]}, {-1, -1, -1, -1}};
        memcpy(w->ids, ids->items + before, n * sizeof *w->ids);
    }
    return 0;
}

/* Append the ids of text without added tokens. */
static int encode_words(Tokenizer *t, const char *s, size_t n, IdList *ids)
{
    for (size_t i = 0, length; i < n; i += length) {
        length = next_word(t, s + i, n - i);
        if (encode_word(t, s + i, length, n - i, ids))
            return -1;
    }
    return 0;
}

static int encode_between(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids);

/* Append the ids of text with the added tokens of that set, if `added`, and words between them. plain: as for
 * tokenizer_encode_marked() */
static int encode_set(Tokenizer *t, int set, const char *s, size_t n, bool added, const char *plain, IdList *ids)
{
    AddedMatches found = {0};
    int status = added ? tokenizer_search_added(&t->added[set], s, n, plain, &found) : 0;
    for (size_t begin = 0; status == 0;) {
        while (found.count && found.items[found.count - 1].at < begin) /* overlaps the one before */
            found.count--;
        const AddedMatch *next = found.count ? &found.items[found.count - 1] : NULL;
        size_t length = (next ? next->at : n) - begin;
        if (set == BEFORE_NFC)
            status = encode_between(t, s + begin, length, added && !plain, ids);
        else
            status = encode_words(t, s + begin, length, ids);
        if (status || !next)
            break;
        status = id_list_append(ids, next->token->id);
        begin = next->at + next->token->length;
    }
    free(found.items);
    return status;
}

/* Append the ids of text between added tokens that were found before NFC. */
static int encode_between(Tokenizer *t, const char *s, size_t n, bool added, IdList *ids)
{
    if (!t->nfc || unicode_is_nfc(s, n))
        return encode_set(t, AFTER_NFC, s, n, added, NULL, ids);
    char *normalized = unicode_nfc(s, n, &n);
    int status = normalized ? encode_set(t, AFTER_NFC, normalized, n, added, NULL, ids) : -1;
    free(normalized);
    return status;
}

int tokenizer_encode_marked(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids)
{
    return encode_set(t, BEFORE_NFC, s, n, added, plain, ids);
}

int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512])
{
    Text valid = {0};
    if (added && t->begin_id >= 0 && id_list_append(ids, t->begin_id))
        return fail_memory(err);
    if (!text_is_utf8(text, length)) {
        if (text_append_replacing(&valid, text, length)) {
            text_free(&valid);
            return fail_memory(err);
        }
        text = valid.bytes;
        length = valid.length;
    }
    int status = tokenizer_encode_marked(t, text, length, added, NULL, ids);
    text_free(&valid);
    return status ? fail_memory(err) : 0;
}

/* ---- decoding and looking up ------------------------------------------------------------------------------------- */

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
    for (size_t i = 0; i < COUNT_OF(t->added); i++) {
        const AddedToken *a = tokenizer_find_added(&t->added[i], token, length);
        if (a)
            return a->id;
    }
    char *scratch = malloc(length + 1);
    int id = scratch ? tokenizer_vocab_id(t, token, length, scratch) : -1;
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
    int status = text_append(&joined, "", 0);
    for (size_t i = 0; i < n && status == 0; i++) {
        size_t length;
        const char *piece = tokenizer_piece(t, ids[i], &length);
        if (!skip_special || !tokenizer_is_special(t, ids[i]))
            status = text_append(&joined, piece, length);
    }
    if (status == 0)
        status = text_append_replacing(out, joined.bytes, joined.length);
    text_free(&joined);
    return status;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

void tokenizer_close(Tokenizer *t)
{
    if (!t)
        return;
    for (size_t set = 0; set < COUNT_OF(t->added); set++) {
        for (size_t i = 0; i < t->added[set].count; i++)
            free(t->added[set].items[i].text);
        free(t->added[set].items);
        free(t->added[set].nodes);
    }
    void *const tables[] = {t->bytes,         t->pieces,           t->vocab,      t->merges,
                            t->boundary_rank, t->character_tokens, t->word_cache, t->default_system};
    for (size_t i = 0; i < COUNT_OF(tables); i++)
        free(tables[i]);
    tokenizer_free_file(&t->chat);
    free(t);
}

static int make_caches(Tokenizer *t, char err[512])
{
    const size_t characters = 0x10000 * sizeof *t->character_tokens, words = sizeof *t->word_cache << WORD_CACHE_BITS;
    t->character_tokens = memory_large(characters, 1);
    t->word_cache = memory_large(words, 1);
    if (!t->character_tokens || !t->word_cache)
        return fail_memory(err);
    memset(t->character_tokens, 0xff, characters); /* each id is NOT_LOOKED_UP */
    memset(t->word_cache, 0, words);
    return 0;
}

Tokenizer *tokenizer_open(const char *path, char err[512])
{
    bool is_folder = file_is_folder(path);
    char *folder = is_folder ? strdup(path) : path_folder(path);
    Tokenizer *t = calloc(1, sizeof *t);
    int status = folder && t ? tokenizer_read(t, path, is_folder, err) : fail_memory(err);
    if (status == 0)
        status = make_caches(t, err);
    if (status == 0) {
        for (unsigned c = 0; c < 256; c++)
            t->class[c] = (unsigned char)(c < 0x80 ? class_of(c) : MANY_BYTES);
        tokenizer_open_chat(t, folder);
    } else {
        tokenizer_close(t);
        t = NULL;
    }
    free(folder);
    return t;
}
