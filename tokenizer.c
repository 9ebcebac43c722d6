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
#include "tokenizer/internal.h"

#include <limits.h>
#include <stdlib.h>

#include "base/unicode.h"

/* ---- words ------------------------------------------------------------------------------------------------------- */

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
    char second = n > 1 ? s[1] : 0, third = n > 2 ? s[2] : 0, a = (char)(second | 0x20), b = (char)(third | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return second == '\xc5' && third == '\xbf' ? 3 : 0;
}

/* The length of the word of SPLIT_PATTERN that s (n >= 1 bytes) begins with; its alternatives are taken in order. */
static size_t next_word(const Tokenizer *t, const char *s, size_t n)
{
    size_t size, size2 = 0, end;
    Class class = class_at(t, s, n, &size), class2 = SPACE;
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
    if (class == OTHER || (*s == ' ' && class2 == OTHER)) {
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
    int id, rank; /* rank: with the next one; INT_MAX: no merge */
    int previous, next;
} Link;

/* Looks up the pair that begins at `here`, and queues it. */
static void queue_pair(const Tokenizer *t, Link *links, Heap *h, int here)
{
    Link *link = &links[here];
    int joined;
    link->rank = pair_rank(t, link->id, links[link->next].id, &joined);
    if (link->rank != INT_MAX)
        heap_push(h, (uint64_t)link->rank << 32 | (uint32_t)here);
}

/* merge_short() for any n < 2^31 - 1, in O(n log n): a linked list of tokens between two that merge with none (id -1),
 * and a heap of pairs, some of them gone. */
static int merge_long(const Tokenizer *t, int *ids, size_t *n)
{
    Link *links = *n < INT_MAX - 1 ? malloc((*n + 2) * sizeof *links) : NULL;
    Heap h = {malloc(2 * *n * sizeof *h.items), 0}; /* each merge takes one pair away and adds two at most */
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
        int here = (int)(uint32_t)top, next = links[here].next;
        if (links[here].rank != (int)(top >> 32))
            continue;
        pair_rank(t, links[here].id, links[next].id, &links[here].id);
        links[next].rank = INT_MAX;
        links[here].next = links[next].next;
        links[links[here].next].previous = here;
        queue_pair(t, links, &h, links[here].previous);
        queue_pair(t, links, &h, here);
    }
    *n = 0;
    for (int i = 1; i < end; i = links[i].next)
        ids[(*n)++] = links[i].id;
    free(links);
    free(h.items);
    return 0;
}

/* The character of three bytes at s[i], if it may be one token from the start, else NULL; its bytes. */
static const Character *character_at(const Tokenizer *t, const char *s, size_t i, size_t length, size_t *size)
{
    *size = unicode_length(s[i]);
    if (*size != 3)
        return NULL;
    const unsigned char *b = (const unsigned char *)s + i;
    Character *c = &t->characters[(b[0] & 0xf) << 12 | (b[1] & 0x3f) << 6 | (b[2] & 0x3f)];
    if (c->id == NOT_SEEN) {
        int ids[3] = {t->byte_ids[b[0]], t->byte_ids[b[1]], t->byte_ids[b[2]]};
        c->rank = -1;
        c->id = merge_short(t, ids, 3, &c->rank) == 1 ? ids[0] : NOT_WHOLE;
    }
    /* no merge of its bytes with those before or after comes first: see "whole characters" */
    bool whole = c->id >= 0 && (i == 0 || c->rank < t->crossed[b[-1]][b[0]]) &&
                 (i + 3 == length || c->rank < t->crossed[b[2]][b[3]]);
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
    if (n <= SHORT_WORD)
        n = merge_short(t, word, n, &highest);
    else if (merge_long(t, word, &n))
        return -1;
    ids->count += n;
    return 0;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

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
const Added *tokenizer_match_added(const AddedSet *set, const char *s, size_t n)
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

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* A word of less than 16 bytes as a key, its length in the last byte; so many bytes can be read from s. */
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
    key[1] = (key[1] & mask[1]) | (uint64_t)length << 56;
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
    Word *w = &t->words[hash_mix(key[0] * HASH_GOLDEN + key[1] * 0xc2b2ae3d27d4eb4fu) * HASH_GOLDEN >> (64 - WORD_SLOTS_LOG)];
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
        const Added *found = tokenizer_match_added(set, s + i, n - i);
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

/* added: added tokens are looked for, but not in bytes marked in plain (NULL: anywhere). */
int tokenizer_encode_marked(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids,
                            char err[512])
{
    Text valid = {0};
    int failed = 0;
    if (!text_is_utf8(s, n)) {
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
    return failed ? fail(err, "out of memory for the tokenizer") : 0;
}

int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512])
{
    if (added && t->begin_id >= 0 && id_list_append(ids, t->begin_id))
        return fail(err, "out of memory for the tokenizer");
    return tokenizer_encode_marked(t, text, length, added, NULL, ids, err);
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
    const AddedSet *const sets[] = {&t->raw_added, &t->nfc_added};
    for (size_t i = 0; i < 2; i++) {
        const Added *a = tokenizer_match_added(sets[i], token, length);
        if (a && a->length == length)
            return a->id;
    }
    char *scratch = malloc(length + 1);
    int id = scratch ? tokenizer_written_id(t, token, length, scratch) : -1;
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
