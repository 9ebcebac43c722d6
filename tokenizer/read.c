/* Fills the tables of a tokenizer from its files: tokenizer.json, or the older form, vocab.json and merges.txt.
 * Everything is checked here; what asks for more than tokenizer.c does is refused with a sentence that quotes it.
 *
 * The files spell tokens, which are bytes, with printable characters. In this byte-to-unicode map the bytes 21..7e,
 * a1..ac and ae..ff (hex) are the characters of the same number. The other 68 are U+0100, U+0101 and so on, in order: a
 * blank is U+0120. A token that is spelled with any other character stands for its own UTF-8; no text is ever encoded
 * as one of those, but decoding knows them.
 */
#include "tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/download.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/unicode.h"

#define FILE_LIMIT (1u << 29) /* bytes: offsets into the tokens of a file fit 32 bits */

/* ---- files ------------------------------------------------------------------------------------------------------- */

int tokenizer_read_file(char *path, InputFile *file, char err[512])
{
    file->path = path;
    if (!path)
        return fail_memory(err);
    if (!file_exists(path))
        return 1;
    file->text.bytes = file_read(path, FILE_LIMIT, &file->text.length, err);
    file->text.capacity = file->text.length + 1;
    return file->text.bytes ? 0 : -1;
}

int tokenizer_read_json(char *path, InputFile *file, char err[512])
{
    char why[512];
    int status = tokenizer_read_file(path, file, err);
    if (status)
        return status;
    file->root = json_parse(file->text.bytes, file->text.length, why);
    return file->root ? 0 : download_fail(path, file->text.bytes, file->text.length, why, err);
}

void tokenizer_free_file(InputFile *file)
{
    free(file->path);
    json_free(file->root);
    text_free(&file->text);
}

/* ---- the byte-to-unicode map, and the vocabulary ----------------------------------------------------------------- */

static void make_byte_map(Tokenizer *t)
{
    int next = 0x100;
    memset(t->mapped_byte, 0xff, sizeof t->mapped_byte); /* each is -1 */
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        t->mapped_byte[printable ? b : next++] = (short)b;
    }
}

/* Write the bytes that a token stands for, at most `length` of them, and return how many they are. Every character of
 * the map has one or two bytes of UTF-8. */
static size_t token_bytes(const Tokenizer *t, char *out, const char *token, size_t length, bool *unmapped)
{
    size_t n = 0;
    *unmapped = false;
    for (size_t i = 0; i < length; n++) {
        unsigned c = (unsigned char)token[i++];
        if (c >= 0x80)
            c = c >= 0xc2 && c < 0xc6 && i < length ? (c & 0x1f) << 6 | (token[i++] & 0x3f) : 0;
        if (c >= COUNT_OF(t->mapped_byte) || t->mapped_byte[c] < 0) {
            *unmapped = true;
            memcpy(out, token, length);
            return length;
        }
        out[n] = (char)t->mapped_byte[c];
    }
    return n;
}

/* A slot of the hash table of the vocabulary. */
struct VocabSlot {
    uint32_t tag; /* the upper half of the hash: tells most other tokens apart */
    int id;       /* -1: the slot is empty */
};

/* A power of two that leaves a table with n entries at most two thirds full. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n + n / 2 + 1)
        size *= 2;
    return size;
}

/* The slot of the token with these bytes, or the empty one where it belongs. */
static VocabSlot *find_slot(const Tokenizer *t, const char *bytes, size_t length, bool unmapped, uint64_t hash)
{
    for (size_t i = hash & t->vocab_mask;; i = (i + 1) & t->vocab_mask) {
        VocabSlot *slot = &t->vocab[i];
        if (slot->id < 0)
            return slot;
        const Piece *p = &t->pieces[slot->id];
        if (slot->tag == (uint32_t)(hash >> 32) && p->length == length && p->unmapped == unmapped &&
            memcmp(t->bytes + p->start, bytes, length) == 0)
            return slot;
    }
}

/* The id of the vocabulary's token with these bytes; -1 if there is none. */
static int find_id(const Tokenizer *t, const char *bytes, size_t length, bool unmapped)
{
    return find_slot(t, bytes, length, unmapped, hash_bytes(bytes, length, t->vocab_key))->id;
}

int tokenizer_vocab_id(const Tokenizer *t, const char *token, size_t length, char *scratch)
{
    bool unmapped;
    size_t n = token_bytes(t, scratch, token, length, &unmapped);
    return find_id(t, scratch, n, unmapped);
}

/* ---- what a tokenizer.json may ask for --------------------------------------------------------------------------- */

const char *tokenizer_quoted(const JsonValue *value, char out[TOKENIZER_QUOTED])
{
    memset(out, 0, TOKENIZER_QUOTED);
    FILE *f = fmemopen(out, TOKENIZER_QUOTED - 1, "w");
    if (!f)
        return "?"; /* out of memory */
    json_print(f, value, JSON_COMPACT);
    fclose(f);
    return out;
}

int tokenizer_refuse(const char *path, const char *what, const JsonValue *found, const char *expected, char err[512])
{
    char quote[TOKENIZER_QUOTED];
    if (!found)
        return fail(err, "%s: %s is missing; expected %s", path, what, expected);
    return fail(err, "%s: %s is %.200s, which is not supported; expected %s", path, what,
                tokenizer_quoted(found, quote), expected);
}

/* The value at a path like "names.0.name"; NULL if there is none. */
static const JsonValue *value_at(const JsonValue *value, const char *path)
{
    for (const char *end; value && *path; path = *end ? end + 1 : end) {
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

/* Settings, and what they may be, as JSON text. "truncation" and "padding" are not looked at: the reference's callers
 * switch them off for a single text. */
static const struct {
    const char *path;
    bool optional;
    const char *accepted[4];
} settings[] = {
    {"model.type", true, {"\"BPE\""}},
    {"model.dropout", true, {"null", "0.0", "0"}},
    {"model.unk_token", true, {"null"}},
    {"model.continuing_subword_prefix", true, {"\"\"", "null"}},
    {"model.end_of_word_suffix", true, {"\"\"", "null"}},
    {"model.byte_fallback", true, {"false"}},
    {"model.ignore_merges", true, {"false"}},
    {"normalizer",
     true,
     {"{\"type\":\"NFC\"}", "null", "{\"type\":\"Sequence\",\"normalizers\":[]}",
      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"}},
    {"pre_tokenizer.type", false, {"\"Sequence\""}},
    {"pre_tokenizer.pretokenizers.0.type", false, {"\"Split\""}},
    {"pre_tokenizer.pretokenizers.0.behavior", false, {"\"Isolated\""}},
    {"pre_tokenizer.pretokenizers.0.invert", false, {"false"}},
    {"pre_tokenizer.pretokenizers.1.type", false, {"\"ByteLevel\""}},
    {"pre_tokenizer.pretokenizers.1.add_prefix_space", false, {"false"}},
    {"pre_tokenizer.pretokenizers.1.use_regex", false, {"false"}},
    {"pre_tokenizer.pretokenizers.2", true, {NULL}},
    {"decoder.type", false, {"\"ByteLevel\""}},
};

#define SPLIT_PATTERN                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static int check_settings(Tokenizer *t, const JsonValue *root, const char *path, char err[512])
{
    char quote[TOKENIZER_QUOTED];
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const JsonValue *v = value_at(root, settings[i].path);
        const char *const *accepted = settings[i].accepted, *expected = accepted[0] ? accepted[0] : "no such entry";
        bool good = !v && settings[i].optional;
        for (size_t k = 0; v && k < COUNT_OF(settings[i].accepted) && accepted[k]; k++)
            good = good || strcmp(tokenizer_quoted(v, quote), accepted[k]) == 0;
        if (!good)
            return tokenizer_refuse(path, settings[i].path, v, expected, err);
    }
    const JsonValue *pattern = value_at(root, "pre_tokenizer.pretokenizers.0.pattern.Regex");
    if (!json_string_is(pattern, SPLIT_PATTERN))
        return tokenizer_refuse(path, "the split pattern", pattern, "Qwen2's", err);
    t->nfc = json_string_is(value_at(root, "normalizer.type"), "NFC") ||
             json_string_is(value_at(root, "normalizer.normalizers.0.type"), "NFC");
    return 0;
}

/* {"type": "TemplateProcessing", "single": [begin token, text]}, where the begin token may be missing: sets begin_id.
 * False if it is anything else. */
static bool read_begin(Tokenizer *t, const JsonValue *v)
{
    const JsonValue *item = value_at(v, "single.0"), *name = value_at(item, "SpecialToken.id"), *ids = NULL;
    uint64_t id;
    if (name) {
        const JsonValue *known = json_get(v, "special_tokens");
        for (const JsonValue *k = known ? known->child : NULL; k && name->type == JSON_STRING; k = k->next)
            if (text_same(k->key, k->key_length, name->text, name->length))
                ids = json_get(k, "ids");
        if (!ids || ids->type != JSON_ARRAY || ids->length != 1 || json_u64(ids->child, &id) || id >= t->size)
            return false;
        t->begin_id = (int)id;
        item = item->next;
    }
    return item && !item->next && json_string_is(value_at(item, "Sequence.id"), "A");
}

/* ByteLevel, which changes no ids; one template with a begin token; a sequence of these; or nothing. */
static int read_post_processor(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "processors") : NULL;
    bool is_list = list && list->type == JSON_ARRAY, has_template = false;
    if (!v || v->type == JSON_NULL)
        return 0;
    for (const JsonValue *p = is_list ? list->child : v; p; p = is_list ? p->next : NULL) {
        const JsonValue *type = json_get(p, "type");
        if (json_string_is(type, "ByteLevel"))
            continue;
        if (!json_string_is(type, "TemplateProcessing") || has_template || !read_begin(t, p))
            return tokenizer_refuse(path, "post_processor", v, "ByteLevel, one known token before the text, or null",
                                    err);
        has_template = true;
    }
    return 0;
}

/* ---- vocabulary -------------------------------------------------------------------------------------------------- */

void tokenizer_add_piece(Tokenizer *t, size_t id, const char *token, size_t length)
{
    Piece *p = &t->pieces[id];
    p->start = (uint32_t)t->bytes_used;
    p->length = (uint32_t)token_bytes(t, t->bytes + t->bytes_used, token, length, &p->unmapped);
    t->bytes_used += p->length;
}

/* Allocate the tables, empty, for the tokens of the vocabulary and the added ones. */
static int make_tables(Tokenizer *t, const JsonValue *vocab, const AddedList *added, size_t merges, char err[512])
{
    size_t total = 1, vocab_slots = table_size(vocab->length), merge_slots = table_size(merges);
    for (const JsonValue *v = vocab->child; v; v = v->next)
        total += v->key_length;
    for (size_t i = 0; i < added->count; i++)
        total += 3 * added->entries[i].length; /* NFC may need that much */
    size_t tokens = vocab->length + added->count;
    t->size = t->vocab_size = vocab->length;
    t->bytes = memory_large(total, 1);
    t->pieces = memory_large(tokens, sizeof *t->pieces);
    t->vocab = memory_large(vocab_slots, sizeof *t->vocab);
    t->vocab_mask = vocab_slots - 1;
    t->merges = memory_large(merge_slots, sizeof *t->merges);
    t->vocab_key = hash_new_key();
    t->merges_key = hash_new_key();
    t->boundary_rank = malloc(256 * sizeof *t->boundary_rank);
    if (!t->bytes || !t->pieces || !t->vocab || !t->merges || !t->boundary_rank)
        return fail_memory(err);
    for (size_t i = 0; i < tokens; i++)
        t->pieces[i] = (Piece){.start = UNSET};
    memset(t->vocab, 0xff, vocab_slots * sizeof *t->vocab);   /* each id is -1 */
    memset(t->merges, 0xff, merge_slots * sizeof *t->merges); /* each pair is NO_PAIR */
    for (t->merges_shift = 64; merge_slots > 1; merge_slots /= 2)
        t->merges_shift--;
    memset(t->boundary_rank, 0x7f, 256 * sizeof *t->boundary_rank); /* higher than any rank */
    return 0;
}

/* Read {token: id}, where the ids are 0 to n-1, each once. */
static int read_vocabulary(Tokenizer *t, const JsonValue *vocab, const char *path, char err[512])
{
    char token[TEXT_PRINTABLE], quote[TOKENIZER_QUOTED];
    for (const JsonValue *v = vocab->child; v; v = v->next) {
        uint64_t id;
        if (json_u64(v, &id) || id >= t->vocab_size || t->pieces[id].start != UNSET)
            return fail(err, "%s: token \"%s\" has the id %.60s; expected 0 to %zu, each for one token", path,
                        text_printable(v->key, v->key_length, token), tokenizer_quoted(v, quote), t->vocab_size - 1);
        tokenizer_add_piece(t, (size_t)id, v->key, v->key_length);
        const Piece *p = &t->pieces[id];
        uint64_t hash = hash_bytes(t->bytes + p->start, p->length, t->vocab_key);
        VocabSlot *slot = find_slot(t, t->bytes + p->start, p->length, p->unmapped, hash);
        if (slot->id >= 0)
            return fail(err, "%s: token \"%s\" is listed twice", path, text_printable(v->key, v->key_length, token));
        *slot = (VocabSlot){(uint32_t)(hash >> 32), (int)id};
    }
    for (int b = 0; b < 256; b++)
        t->byte_ids[b] = find_id(t, &(char){(char)b}, 1, false);
    return 0;
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

typedef struct {
    Tokenizer *t;
    Text scratch;
    int last;     /* what the last merge made */
    bool ordered; /* so far each token was made by one merge, before it was part of another */
    const char *path;
} MergeReader;

/* What the two become, whose spelling is in both[0..length); -1 if the vocabulary does not have it. Merges are mostly
 * in the order of the ids that they make, so the id after the last one is tried first. */
static int merged_id(const MergeReader *m, int left, int right, char *both, size_t length)
{
    const Tokenizer *t = m->t;
    int guess = (m->last + 1) % (int)t->vocab_size;
    const Piece *l = &t->pieces[left], *r = &t->pieces[right], *next = &t->pieces[guess];
    bool unmapped = l->unmapped || r->unmapped;
    if (!unmapped) {
        memcpy(both, t->bytes + l->start, l->length);
        memcpy(both + l->length, t->bytes + r->start, r->length);
        length = l->length + (size_t)r->length;
    }
    if (next->length == length && next->unmapped == unmapped && memcmp(t->bytes + next->start, both, length) == 0)
        return guess;
    return find_id(t, both, length, unmapped);
}

/* Lower boundary_rank for a merge whose result begins or ends inside a character, at each boundary in it. */
static void note_boundaries(Tokenizer *t, const Piece *result, int rank)
{
    const char *s = t->bytes + result->start;
    size_t n = result->length, end = 0; /* where the last character ends, if it is complete */
    for (size_t k = 0; k < n; k++)
        if (!unicode_is_continuation(s[k]))
            end = k + unicode_length(s[k]);
    if (n > 0 && end == n && !unicode_is_continuation(s[0]))
        return;
    for (size_t k = 1; k < n; k++) {
        int *lowest = &t->boundary_rank[(unsigned char)s[k - 1]][(unsigned char)s[k]];
        if (!unicode_is_continuation(s[k]))
            *lowest = MIN(*lowest, rank);
    }
}

/* Enter the next merge. If a pair is listed twice, the last one counts, as in the reference. */
static int add_merge(MergeReader *m, const char *left, size_t left_length, const char *right, size_t right_length,
                     char err[512])
{
    Tokenizer *t = m->t;
    char shown[TEXT_PRINTABLE], shown_right[TEXT_PRINTABLE];
    m->scratch.length = 0;
    if (text_append(&m->scratch, left, left_length) || text_append(&m->scratch, right, right_length))
        return fail_memory(err);
    char *scratch = m->scratch.bytes;
    int l = tokenizer_vocab_id(t, left, left_length, scratch), r = tokenizer_vocab_id(t, right, right_length, scratch);
    if (l < 0 || r < 0)
        return fail(err, "%s: merge %zu contains \"%s\", which is not in the vocabulary", m->path, t->merge_count,
                    l < 0 ? text_printable(left, left_length, shown) : text_printable(right, right_length, shown));
    memcpy(scratch, left, left_length);
    memcpy(scratch + left_length, right, right_length);
    int id = merged_id(m, l, r, scratch, left_length + right_length);
    if (id < 0)
        return fail(err, "%s: merge %zu makes \"%s%s\", which is not in the vocabulary", m->path, t->merge_count,
                    text_printable(left, left_length, shown), text_printable(right, right_length, shown_right));
    const Piece *pl = &t->pieces[l], *pr = &t->pieces[r];
    Piece *result = &t->pieces[id];
    m->ordered = m->ordered && !result->merged && (pl->merged || pl->length <= 1) && (pr->merged || pr->length <= 1);
    result->merged = true;
    Merge merge = {(uint64_t)(uint32_t)l << 32 | (uint32_t)r, (int)t->merge_count++, id};
    *find_merge(t, l, r) = merge;
    note_boundaries(t, result, merge.rank);
    m->last = id;
    return 0;
}

/* Read merges, which are "left right" or, all of them, ["left", "right"]. */
static int read_merges(MergeReader *m, const JsonValue *merges, char err[512])
{
    char quote[TOKENIZER_QUOTED];
    for (const JsonValue *v = merges->child; v; v = v->next) {
        const JsonValue *left = v->type == JSON_ARRAY && v->length == 2 ? v->child : NULL;
        const char *space = v->type == JSON_STRING ? memchr(v->text, ' ', v->length) : NULL;
        size_t before = space ? (size_t)(space - v->text) : 0, after = space ? v->length - before - 1 : 0;
        bool alike = v->type == merges->child->type;
        int status;
        if (alike && space && !memchr(space + 1, ' ', after))
            status = add_merge(m, v->text, before, space + 1, after, err);
        else if (alike && left && left->type == JSON_STRING && left->next->type == JSON_STRING)
            status = add_merge(m, left->text, left->length, left->next->text, left->next->length, err);
        else
            status = fail(err, "%s: merge %zu is %.160s; expected \"a b\" or [\"a\",\"b\"], and the same form for all",
                          m->path, m->t->merge_count, tokenizer_quoted(v, quote));
        if (status)
            return -1;
    }
    if (m->t->merge_count == 0 && m->t->vocab_size > 256)
        return fail(err, "%s: has a vocabulary of %zu tokens, but no merges", m->path, m->t->vocab_size);
    if (!m->ordered)
        memset(m->t->boundary_rank, 0xff, 256 * sizeof *m->t->boundary_rank); /* -1: lower than any rank */
    return 0;
}

/* ---- reading the files ------------------------------------------------------------------------------------------- */

static int read_model(Tokenizer *t, const JsonValue *vocab, const JsonValue *merges, const AddedList *added,
                      const char *path, char err[512])
{
    MergeReader m = {.t = t, .ordered = true, .path = path};
    if (!vocab || vocab->type != JSON_OBJECT || vocab->length == 0)
        return tokenizer_refuse(path, "the vocabulary", vocab, "a map of tokens to ids", err);
    if (!merges || merges->type != JSON_ARRAY)
        return tokenizer_refuse(path, "model.merges", merges, "a list", err);
    if (make_tables(t, vocab, added, merges->length, err) || read_vocabulary(t, vocab, path, err))
        return -1;
    int status = read_merges(&m, merges, err);
    text_free(&m.scratch);
    return status ? -1 : tokenizer_enter_added(t, added, err);
}

/* folder: NULL if only the file counts. */
static int read_root(Tokenizer *t, const JsonValue *root, const char *path, const char *folder, char err[512])
{
    static const JsonValue none = {.type = JSON_NULL};
    AddedList added = {0};
    if (root->type != JSON_OBJECT || !json_get(root, "model"))
        return fail(err, "%s: has no \"model\": it is not a tokenizer.json", path);
    if (check_settings(t, root, path, err))
        return -1;
    const JsonValue *own = json_get(root, "added_tokens");
    int status = tokenizer_collect_added(&added, own ? own : &none, path, folder, err);
    if (status == 0)
        status = read_model(t, value_at(root, "model.vocab"), value_at(root, "model.merges"), &added, path, err);
    tokenizer_free_added(&added);
    return status ? -1 : read_post_processor(t, json_get(root, "post_processor"), path, err);
}

/* Turn the lines of merges.txt into a JSON list; a line "#version: ..." is not a merge. */
static int parse_lines(const Text *lines, InputFile *list, char err[512])
{
    FILE *f = open_memstream(&list->text.bytes, &list->text.length);
    bool first = true;
    if (!f)
        return fail_memory(err);
    putc('[', f);
    for (const char *at = lines->bytes, *end = at + lines->length, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        size_t length = (size_t)(stop - at);
        if (length && at[length - 1] == '\r')
            length--;
        if (length >= 8 && memcmp(at, "#version", 8) == 0)
            continue;
        fputs(first ? "" : ",", f);
        json_write_string(f, at, length);
        first = false;
    }
    putc(']', f);
    if (fclose(f) || !list->text.bytes)
        return fail_memory(err);
    list->root = json_parse(list->text.bytes, list->text.length, err);
    return list->root ? 0 : -1;
}

/* vocab.json, merges.txt, and the files with the added tokens, which may be missing. */
typedef struct {
    InputFile vocab, lines, merges;
    AddedList added;
} OlderFiles;

/* "add_bos_token" puts the token "bos_token", if there is one, before every text. */
static int read_older_begin(Tokenizer *t, const AddedList *added, char err[512])
{
    const JsonValue *add = json_get(added->config.root, "add_bos_token");
    bool wanted = false;
    if (add && add->type != JSON_NULL && json_bool(add, &wanted))
        return tokenizer_refuse(added->config.path, "add_bos_token", add, "true or false", err);
    if (wanted && added->begin)
        t->begin_id = tokenizer_id(t, added->begin->text, added->begin->length);
    return 0;
}

/* Returns 1, without a sentence, if there are no such files. */
static int read_older_files(Tokenizer *t, const char *folder, OlderFiles *f, char err[512])
{
    int status = tokenizer_read_json(path_join(folder, "vocab.json"), &f->vocab, err);
    if (status == 0)
        status = tokenizer_read_file(path_join(folder, "merges.txt"), &f->lines, err);
    if (status)
        return status;
    const Text *lines = &f->lines.text;
    char what[320], shown[TEXT_PRINTABLE];
    if (download_tell(lines->bytes, lines->length, lines->length, what))
        return fail(err, "%s is %s", path_printable(f->lines.path, shown), what);
    t->nfc = true;
    if (parse_lines(lines, &f->merges, err) || tokenizer_collect_added(&f->added, NULL, NULL, folder, err) ||
        read_model(t, f->vocab.root, f->merges.root, &f->added, f->vocab.path, err))
        return -1;
    return read_older_begin(t, &f->added, err);
}

int tokenizer_read(Tokenizer *t, const char *path, bool is_folder, char err[512])
{
    InputFile file = {0};
    t->begin_id = -1;
    make_byte_map(t);
    int status = tokenizer_read_json(is_folder ? path_join(path, "tokenizer.json") : strdup(path), &file, err);
    if (status == 0)
        status = read_root(t, file.root, file.path, is_folder ? path : NULL, err);
    tokenizer_free_file(&file);
    if (status > 0 && is_folder) {
        OlderFiles f = {0};
        status = read_older_files(t, path, &f, err);
        tokenizer_free_file(&f.vocab);
        tokenizer_free_file(&f.lines);
        tokenizer_free_file(&f.merges);
        tokenizer_free_added(&f.added);
        if (status > 0)
            return fail(err, "%s: has neither tokenizer.json nor vocab.json and merges.txt", path);
    }
    return status > 0 ? fail(err, "%s: no such file", path) : status;
}
