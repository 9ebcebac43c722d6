/* What the three files of the tokenizer share: tokenizer.c encodes and decodes, tokenizer_read.c reads the files,
 * tokenizer_chat.c writes chats. Nobody else includes this. */
#ifndef TOKENIZER_PARTS_H
#define TOKENIZER_PARTS_H

#include "base/hash.h"
#include "base/unicode.h"
#include "json.h"
#include "tokenizer.h"

#include <string.h>

#define SPLIT_PATTERN                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define FILE_LIMIT (1u << 29)                                /* bytes of a file: offsets into its tokens fit 32 bits */
#define SHOWN(length) ((int)((length) > 60 ? 60 : (length))) /* bytes of a name in a message */

typedef struct {
    uint32_t start, length;  /* in Tokenizer.bytes; start UNSET: no such id yet */
    bool raw, special, made; /* raw: not written in the byte letters; made: a merge makes it */
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
    char *chat_file; /* that the template is in */
    char *default_system;
    char chat_problem[512]; /* empty: chat works */
};

/* tokenizer/read.c. The whole file; 1 and nothing if there is none of that name. */
int tokenizer_read_file(const char *path, Text *out, char err[512]);
/* A file's JSON, which points into text. 1 if there is no such file. */
int tokenizer_read_json(const char *path, Text *text, JsonValue **root, char err[512]);
/* The bytes that a token as it is written stands for, at most length of them; *raw: it isn't in the byte letters. */
size_t tokenizer_written_bytes(const Tokenizer *t, char *out, const char *token, size_t length, bool *raw);
/* The id of a token as the vocabulary writes it; -1: none. scratch: length bytes. */
int tokenizer_written_id(const Tokenizer *t, const char *token, size_t length, char *scratch);

/* tokenizer.c. The longest token of the set that s begins with, or NULL. */
const Added *tokenizer_match_added(const AddedSet *set, const char *s, size_t n);
/* Appends the ids of s. plain: NULL, or a byte for each of s that is 1 where no added token may be seen. */
int tokenizer_encode_marked(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids,
                            char err[512]);

/* tokenizer_chat.c. Reads the chat template; without a usable one only chat fails, by t->chat_problem. */
void tokenizer_open_chat(Tokenizer *t, const char *folder);

/* ---- hash tables ------------------------------------------------------------------------------------------------- */

/* A power of two that leaves a table of n things at most two thirds full. */
static inline size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n + n / 2 + 1)
        size *= 2;
    return size;
}

/* Where a token of the vocabulary is in t->names, or the free place for it. */
static inline Name *find_name(const Tokenizer *t, const char *bytes, size_t length, bool raw, uint64_t hash)
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
static inline int bytes_id(const Tokenizer *t, const char *bytes, size_t length, bool raw)
{
    return find_name(t, bytes, length, raw, hash_bytes(bytes, length, 0))->id;
}

static inline Merge *find_merge(const Tokenizer *t, int left, int right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - t->merges_shift)) - 1;
    for (size_t i = (size_t)(pair * HASH_GOLDEN >> t->merges_shift);; i = (i + 1) & mask)
        if (t->merges[i].pair == pair || t->merges[i].pair == NO_PAIR)
            return &t->merges[i];
}

/* ---- whole characters -------------------------------------------------------------------------------------------- */

/* A word of Chinese has three bytes a character, and nearly always they become one token before anything else touches
 * them; then the word may as well begin as characters. When is that so? A merge reaches into an unfinished character
 * only if its result ends or begins within one. crossed[x][y] is the lowest rank of those whose result has, where a
 * character begins, byte x before it and byte y as its first. A character whose own merges all rank lower than
 * crossed[][] at its two ends is finished before. (This needs each token to be made by one merge, and before it is
 * part of another; else crossed[][] is -1 and every word begins as bytes.) */
enum { NOT_SEEN = -1, NOT_WHOLE = -2 }; /* Character.id; rank: the highest of its merges */

static inline bool is_continuation(char byte)
{
    return (byte & 0xc0) == 0x80;
}


#endif
