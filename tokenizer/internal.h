/* What the files of the tokenizer share: tokenizer.c opens, encodes and decodes, tokenizer/read.c fills the tables from
 * the files, tokenizer/added.c collects the added tokens, tokenizer/trie.c finds them in text, tokenizer/chat.c formats chats. */
#ifndef TOKENIZER_INTERNAL_H
#define TOKENIZER_INTERNAL_H

#include "base/hash.h"
#include "json.h"
#include "tokenizer.h"

/* ---- the tables -------------------------------------------------------------------------------------------------- */

/* A token, by its id: its bytes, and what is known about it. */
typedef struct {
    uint32_t start, length; /* of its bytes in Tokenizer.bytes; start is UNSET as long as no token has this id */
    bool unmapped;          /* spelled with characters outside of the byte-to-unicode map: stands for its own UTF-8 */
    bool special;
    bool merged; /* a merge makes it */
} Piece;
#define UNSET UINT32_MAX

/* A slot of the table of merges: what two neighbors become, and how early. */
typedef struct {
    uint64_t pair; /* left id << 32 | right id; NO_PAIR: the slot is empty */
    int rank, id;  /* of all merges that are possible, the one of lowest rank comes first; id is what it makes */
} Merge;
#define NO_PAIR UINT64_MAX

typedef struct {
    char *text;
    size_t length;
    int id;
} AddedToken;

/* A node of the trie of added tokens, which are spelled backwards in it, from the last byte to the first. */
typedef struct {
    uint32_t children, child_count; /* its children are the nodes from that index on, in order of their bytes */
    uint32_t fail;                  /* the node of the longest other end of its bytes that is in the trie */
    uint32_t longest;               /* the longest token that its bytes end with, as an index; UNSET: none */
    unsigned char byte;
} TrieNode;

/* Added tokens, sorted by their bytes from the last to the first. */
typedef struct {
    AddedToken *items;
    size_t count;
    TrieNode *nodes; /* nodes[0] is the root; NULL if there are no tokens */
    bool last[256];  /* whether a token ends with that byte */
} AddedSet;

/* Most added tokens are found in the text as it is, those with "normalized": true only after NFC. */
enum { BEFORE_NFC, AFTER_NFC };

/* A file as a whole. If it is JSON, root is a tree that points into its text. */
typedef struct {
    char *path;
    Text text;
    JsonValue *root;
} InputFile;

typedef struct VocabSlot VocabSlot;           /* read.c */
typedef struct CharacterToken CharacterToken; /* tokenizer.c */
typedef struct CachedWord CachedWord;         /* tokenizer.c */

struct Tokenizer {
    char *bytes; /* of all pieces, one behind another */
    size_t bytes_used;
    Piece *pieces;           /* [size] */
    size_t size, vocab_size; /* the vocabulary has the ids below vocab_size, added tokens mostly the others */
    VocabSlot *vocab;        /* hash table: bytes -> id */
    size_t vocab_mask;
    HashKey vocab_key, merges_key;
    Merge *merges; /* hash table: two ids -> rank, id */
    unsigned merges_shift;
    size_t merge_count;
    short mapped_byte[0x144]; /* the byte-to-unicode map, backwards; -1: not a character of the map */
    int byte_ids[256]; /* the tokens of single bytes; -1: missing, and then the byte vanishes, as in the reference */
    AddedSet added[2]; /* BEFORE_NFC, AFTER_NFC */
    bool nfc;
    int begin_id;              /* put before every text; -1: none */
    int (*boundary_rank)[256]; /* [byte][byte], see "characters that are tokens" in tokenizer.c */

    unsigned char class[256]; /* tokenizer.c: of each byte */
    CharacterToken *character_tokens;
    CachedWord *word_cache;

    InputFile chat; /* chat.c: the template, and where it was read */
    char *default_system;
    char chat_problem[512]; /* empty if the template can be used */
};

/* The slot of that pair, or the empty one where it belongs. */
static inline Merge *find_merge(const Tokenizer *t, int left, int right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = hash_pair((uint32_t)left, (uint32_t)right, t->merges_key);
    size_t mask = ((size_t)1 << (64 - t->merges_shift)) - 1;
    for (size_t i = (size_t)(hash >> t->merges_shift);; i = (i + 1) & mask)
        if (t->merges[i].pair == pair || t->merges[i].pair == NO_PAIR)
            return &t->merges[i];
}

static inline int fail_memory(char err[512])
{
    return fail(err, "out of memory for the tokenizer");
}

/* ---- tokenizer/read.c -------------------------------------------------------------------------------------------- */

/* Fill the tables from tokenizer.json or, in a folder without one, from vocab.json and merges.txt. */
int tokenizer_read(Tokenizer *t, const char *path, bool is_folder, char err[512]);
/* The id of the vocabulary's token that is spelled like this in its file; -1 if there is none. scratch: [length] */
int tokenizer_vocab_id(const Tokenizer *t, const char *token, size_t length, char *scratch);

/* Read the file of that name, which becomes file->path: a fresh string, NULL counts as out of memory. Return 1, without
 * a sentence, if there is no such file. tokenizer_free_file() is to be called in any case. */
int tokenizer_read_file(char *path, InputFile *file, char err[512]);
int tokenizer_read_json(char *path, InputFile *file, char err[512]);
void tokenizer_free_file(InputFile *file);

/* Add a token of the file to pieces[id] and its bytes to those of the others; there is memory for both. */
void tokenizer_add_piece(Tokenizer *t, size_t id, const char *token, size_t length);

/* For messages: the value as JSON text, or as much of that as fits. Returns out. */
#define TOKENIZER_QUOTED 256
const char *tokenizer_quoted(const JsonValue *value, char out[TOKENIZER_QUOTED]);
/* Say that `what` in the file should be as expected; found is NULL if it is missing. Returns -1. */
int tokenizer_refuse(const char *path, const char *what, const JsonValue *found, const char *expected, char err[512]);

/* ---- tokenizer/added.c ------------------------------------------------------------------------------------------- */

/* An added token as the files have it. */
typedef struct {
    const char *text;
    size_t length; /* 0: left out, as an earlier entry has the same text */
    size_t order;  /* how many were appended before */
    JsonValue number;
    bool special, normalized;
    bool named; /* it has no number */
    const char *path;
} AddedEntry;

typedef struct {
    AddedEntry *entries;
    size_t count, appended;
    InputFile config, map, tokens; /* tokenizer_config.json, special_tokens_map.json, added_tokens.json */
    bool use_map;                  /* special_tokens_map.json counts */
    const JsonValue *begin;        /* the text of "bos_token"; NULL if there is none */
} AddedList;

/* List the added tokens, in the order of their ids: those of the folder or, if that is NULL, `own`, which is the list in
 * the tokenizer.json at path. Without a tokenizer.json, own is NULL. Settings in the folder that change ids or text in
 * other ways are refused. tokenizer_free_added() is to be called in any case; `own` must live until then. */
int tokenizer_collect_added(AddedList *list, const JsonValue *own, const char *path, const char *folder, char err[512]);
/* Enter them into the tables, which have the vocabulary and memory for them. */
int tokenizer_enter_added(Tokenizer *t, const AddedList *list, char err[512]);
void tokenizer_free_added(AddedList *list);

/* ---- tokenizer/trie.c -------------------------------------------------------------------------------------------- */

/* For qsort(): order tokens by their bytes from the last to the first, each before those that end with it. */
int tokenizer_compare_added(const void *a, const void *b);
/* Fill in the nodes and last[] of a set with one token or more, so sorted and all different. -1 when out of memory. */
int tokenizer_build_trie(AddedSet *set);
/* The token of the set with this text; NULL if there is none. */
const AddedToken *tokenizer_find_added(const AddedSet *set, const char *text, size_t length);
/* Where a token of the set begins in a text, the longest one that does. */
typedef struct {
    size_t at;
    const AddedToken *token;
} AddedMatch;
typedef struct {
    AddedMatch *items; /* the last one in the text first; to be freed */
    size_t count, capacity;
} AddedMatches;
/* Append all places where tokens begin, whether they overlap or not. plain: NULL, or a byte for each of s, which is 1 if
 * it is no part of a token. -1 when out of memory. */
int tokenizer_search_added(const AddedSet *set, const char *s, size_t n, const char *plain, AddedMatches *found);

/* ---- tokenizer.c ------------------------------------------------------------------------------------------------- */

/* Append the ids of valid UTF-8. added: added tokens are recognized. plain is NULL, or has a byte for each of s, which
 * is 1 where it is no part of an added token; those that are found after NFC then never are. -1 when out of memory. */
int tokenizer_encode_marked(Tokenizer *t, const char *s, size_t n, bool added, const char *plain, IdList *ids);

/* ---- tokenizer/chat.c -------------------------------------------------------------------------------------------- */

/* Read the chat template in the folder. If there is none that can be used, t->chat_problem says why. */
void tokenizer_open_chat(Tokenizer *t, const char *folder);

#endif
