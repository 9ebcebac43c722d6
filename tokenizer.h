/* Text <-> token ids, exactly as the reference tokenizer does it, and chat messages -> text.
 *
 * Encoding: added tokens are found in the raw text (leftmost, longest); each piece between them is brought to NFC,
 * split into words by Qwen2's pattern, and each word's bytes are merged pair by pair, lowest rank first, leftmost among
 * equals.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "base/text.h"

typedef struct Tokenizer Tokenizer;

/* path: a tokenizer.json, or a folder with tokenizer.json (else vocab.json + merges.txt); tokenizer_config.json beside
 * it gives the chat template. Returns NULL with a sentence in err. */
Tokenizer *tokenizer_open(const char *path, char err[512]);
void tokenizer_close(Tokenizer *t);

size_t tokenizer_size(const Tokenizer *t);   /* 1 + highest id */
size_t tokenizer_merges(const Tokenizer *t); /* how many were read */
int tokenizer_id(const Tokenizer *t, const char *token,
                 size_t length); /* of an added token's text or a vocabulary entry as it is stored; -1 */
bool tokenizer_is_special(const Tokenizer *t, int id);

/* Appends the ids of text (valid UTF-8 or not: invalid bytes are replaced by U+FFFD as the reference's callers do).
 * added: added tokens in the text are recognised, and a begin token is put first if the tokenizer has one; false:
 * everything is plain text. Not re-entrant: t keeps a cache of words. */
int tokenizer_encode(Tokenizer *t, const char *text, size_t length, bool added, IdList *ids, char err[512]);

/* Bytes of one token: what it adds to the output, exactly (may be part of a character). Unknown ids: length 0. Valid
 * until close. */
const char *tokenizer_piece(const Tokenizer *t, int id, size_t *length);
/* All pieces joined, then invalid UTF-8 replaced by U+FFFD, as the reference does. */
int tokenizer_decode(const Tokenizer *t, const int *ids, size_t n, bool skip_special, Text *out);

typedef struct {
    const char *role, *content;
    size_t role_length, content_length;
} Message;

/* NULL if the model's chat template is a known ChatML form, else why it cannot be used. */
const char *tokenizer_chat_problem(const Tokenizer *t);
/* The default system text of the template (NULL: it has none). */
const char *tokenizer_default_system(const Tokenizer *t);
/* The template's text: exactly apply_chat_template(messages, tokenize=False). */
int tokenizer_chat_text(const Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt, Text *out,
                        char err[512]);
/* The same as ids, but with every content encoded as plain text: "<|im_end|>" in it closes no turn. Without a system
 * message first, the template's default system turn is added when with_default_system. */
int tokenizer_chat_ids(Tokenizer *t, const Message *messages, size_t n, bool add_generation_prompt,
                       bool with_default_system, IdList *ids, char err[512]);

#endif
