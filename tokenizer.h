/* Text <-> token ids, exactly as the reference tokenizer does it, and chat messages -> text and ids. tokenizer.c
 * explains how. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "base/text.h"

typedef struct Tokenizer Tokenizer;

/* Open a tokenizer.json, or the one in a folder; a folder may also have the older form, vocab.json and merges.txt. The
 * chat template is read from the same folder, if there is one. NULL and a sentence if a file can't be read or asks for
 * something that this tokenizer does not do. */
Tokenizer *tokenizer_open(const char *path, char err[512]);
void tokenizer_close(Tokenizer *t); /* does nothing for NULL */

size_t tokenizer_size(const Tokenizer *t);   /* the highest id + 1 */
size_t tokenizer_merges(const Tokenizer *t); /* how many merges the files list */
/* The id of an added token, by its text, or of a token of the vocabulary, as its file spells it; -1 if there is
 * none. */
int tokenizer_id(const Tokenizer *t, const char *token, size_t length);
bool tokenizer_is_special(const Tokenizer *t, int id);

/* Append the ids of the text to the list. What is not UTF-8 counts as U+FFFD. With `added`, added tokens like
 * <|im_end|> are recognized in the text, and a begin token is put first if the tokenizer has one; without, everything
 * is plain text. Not reentrant: t has caches. -1 and a sentence when out of memory. */
int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512]);

/* The bytes of one token, which may be part of a character; valid until the tokenizer is closed. An unknown id has
 * none. */
const char *tokenizer_piece(const Tokenizer *t, int id, size_t *length);
/* Append the bytes of all tokens to the text, special tokens aside if skip_special, with U+FFFD in place of what is
 * then not UTF-8. -1 when out of memory. */
int tokenizer_decode(const Tokenizer *t, const int *ids, size_t n, bool skip_special, Text *out);

/* ---- chat ---- */

typedef struct {
    const char *role, *content;
    size_t role_length, content_length;
} Message;

/* Why the model's chat template can't be used; NULL if it can. */
const char *tokenizer_chat_problem(const Tokenizer *t);
/* The system text that the template puts before a conversation without one; NULL if it does not. */
const char *tokenizer_default_system(const Tokenizer *t);
/* Append the conversation as the template writes it: what apply_chat_template(messages, tokenize=False) returns. */
int tokenizer_chat_text(const Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, Text *out,
                        char err[512]);
/* Append the ids of that text, with each content encoded as plain text: "<|im_end|>" in a message does not end a turn.
 * The default system turn is left out unless with_default_system. */
int tokenizer_chat_ids(Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt,
                       bool with_default_system, IdList *ids, char err[512]);

#endif
