/* Reads what a tokenizer is from its files: tokenizer.json, or vocab.json and merges.txt. All of it is checked here,
 * and what it asks for beyond what tokenizer.c does is refused, quoting it.
 */
#include "tokenizer/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"

/* ---- files ------------------------------------------------------------------------------------------------------- */

int tokenizer_read_file(const char *path, Text *out, char err[512])
{
    if (!file_exists(path))
        return 1;
    out->bytes = file_read(path, FILE_LIMIT, &out->length, err);
    out->capacity = out->length + 1;
    return out->bytes ? 0 : -1;
}

int tokenizer_read_json(const char *path, Text *text, JsonValue **root, char err[512])
{
    char why[512];
    int result = tokenizer_read_file(path, text, err);
    if (result == 0 && !(*root = json_parse(text->bytes, text->length, why)))
        result = fail(err, "%s: %.400s", path, why);
    return result;
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

size_t tokenizer_written_bytes(const Tokenizer *t, char *out, const char *token, size_t length, bool *raw)
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

int tokenizer_written_id(const Tokenizer *t, const char *token, size_t length, char *scratch)
{
    bool raw;
    size_t n = tokenizer_written_bytes(t, scratch, token, length, &raw);
    return bytes_id(t, scratch, n, raw);
}

/* ---- what a tokenizer.json may ask for --------------------------------------------------------------------------- */

/* A value of the file as JSON text, as much as there is room for, for comparisons and messages. */
static const char *quoted(const JsonValue *value, char out[256])
{
    memset(out, 0, 256);
    strcpy(out, "nothing");
    FILE *f = value ? fmemopen(out, 255, "w") : NULL;
    if (!f)
        return out;
    json_print(f, value, JSON_COMPACT);
    fclose(f);
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
            return fail(err, "%s: %s is %.160s, which is not supported; expected %.*s", path,
                                  settings[i].path, quoted(v, quote), (int)strcspn(accepted + 1, "\n"), accepted + 1);
    }
    const JsonValue *pattern = value_at(root, "pre_tokenizer.pretokenizers.0.pattern.Regex");
    if (!json_string_is(pattern, SPLIT_PATTERN))
        return refuse(path, "the split pattern", pattern, "Qwen2's", err);
    t->nfc = strstr(quoted(json_get(root, "normalizer"), quote), "NFC") != NULL;
    return 0;
}

/* {"type": "TemplateProcessing", "single": [begin token, text]}: sets begin_id. There need not be a begin token. */
static bool read_begin(Tokenizer *t, const JsonValue *v)
{
    const JsonValue *part = value_at(v, "single.0"), *name = value_at(part, "SpecialToken.id"), *ids = NULL;
    uint64_t id;
    if (name) {
        const JsonValue *known = json_get(v, "special_tokens");
        for (const JsonValue *k = known ? known->child : NULL; k && name->type == JSON_STRING; k = k->next)
            if (k->key && k->key_length == name->length && memcmp(k->key, name->text, name->length) == 0)
                ids = json_get(k, "ids");
        if (!ids || ids->type != JSON_ARRAY || ids->length != 1 || json_u64(ids->child, &id) || id >= t->size)
            return false;
        t->begin_id = (int)id;
        part = part->next;
    }
    return part && !part->next && json_string_is(value_at(part, "Sequence.id"), "A");
}

/* ByteLevel (which changes no ids), a begin token, a sequence of these with one template at most, or nothing. */
static int read_post_processor(Tokenizer *t, const JsonValue *v, const char *path, char err[512])
{
    const JsonValue *list = json_string_is(json_get(v, "type"), "Sequence") ? json_get(v, "processors") : NULL;
    bool sequence = list && list->type == JSON_ARRAY, known = true, templated = false;
    if (!v || v->type == JSON_NULL)
        return 0;
    for (const JsonValue *p = sequence ? list->child : v; p && known; p = sequence ? p->next : NULL) {
        bool template = json_string_is(json_get(p, "type"), "TemplateProcessing");
        known = template ? !templated && read_begin(t, p) : json_string_is(json_get(p, "type"), "ByteLevel");
        templated = templated || template;
    }
    return known ? 0 : refuse(path, "post_processor", v, "ByteLevel, one known token before the text, or null", err);
}

/* ---- whole characters -------------------------------------------------------------------------------------------- */

/* Enters a merge's result, if it begins or ends within a character. */
static void note_crossing(Tokenizer *t, int id, int rank)
{
    const char *s = t->bytes + t->pieces[id].start;
    size_t n = t->pieces[id].length, end = 0; /* end: of the last character, were it whole */
    for (size_t k = 0; k < n; k++)
        if (!is_continuation(s[k]))
            end = k + unicode_length(s[k]);
    if (n > 0 && end == n && !is_continuation(s[0]))
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
    p->length = (uint32_t)tokenizer_written_bytes(t, t->bytes + t->bytes_used, token, length, &p->raw);
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
    t->bytes = memory_large(total, 1);
    t->pieces = memory_large(tokens, sizeof *t->pieces);
    t->names = memory_large(names, sizeof *t->names);
    t->names_mask = names - 1;
    t->merges = memory_large(slots, sizeof *t->merges);
    t->crossed = malloc(256 * sizeof *t->crossed);
    if (!t->bytes || !t->pieces || !t->names || !t->merges || !t->crossed)
        return fail(err, "out of memory for the tokenizer");
    for (size_t i = 0; i < tokens; i++)
        t->pieces[i] = (Piece){.start = UNSET};
    memset(t->names, 0xff, names * sizeof *t->names);   /* every id -1 */
    memset(t->merges, 0xff, slots * sizeof *t->merges); /* every pair NO_PAIR */
    for (t->merges_shift = 64; slots > 1; slots /= 2)
        t->merges_shift--;
    memset(t->crossed, 0x7f, 256 * sizeof *t->crossed); /* no rank is as high */
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
            return fail(err,
                                  "%s: token \"%.*s\" has the id %.60s, but %zu tokens should have the ids 0 to %zu",
                                  path, shown, v->key, quoted(v, quote), t->vocab_size, t->vocab_size - 1);
        if (t->pieces[id].start != UNSET)
            return fail(err, "%s: two tokens have the id %zu, one of them \"%.*s\"", path, (size_t)id, shown,
                                  v->key);
        add_piece(t, (size_t)id, v->key, v->key_length);
        const Piece *p = &t->pieces[id];
        uint64_t hash = hash_bytes(t->bytes + p->start, p->length, 0);
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
    int guess = (m->last + 1) % (int)t->vocab_size;
    const Piece *l = &t->pieces[left], *r = &t->pieces[right], *next = &t->pieces[guess];
    bool raw = l->raw || r->raw;
    if (!raw) {
        memcpy(both, t->bytes + l->start, l->length);
        memcpy(both + l->length, t->bytes + r->start, r->length);
        length = l->length + (size_t)r->length;
    }
    bool right_guess = next->length == length && next->raw == raw && memcmp(t->bytes + next->start, both, length) == 0;
    return right_guess ? guess : bytes_id(t, both, length, raw);
}

/* The next merge; of equal pairs the last one counts, as in the reference. */
static int add_merge(MergeReader *m, const char *left, size_t left_length, const char *right, size_t right_length,
                     char err[512])
{
    Tokenizer *t = m->t;
    m->scratch.length = 0;
    if (text_append(&m->scratch, left, left_length) || text_append(&m->scratch, right, right_length))
        return fail(err, "out of memory for the tokenizer");
    char *scratch = m->scratch.bytes;
    int l = tokenizer_written_id(t, left, left_length, scratch),
        r = tokenizer_written_id(t, right, right_length, scratch);
    if (l < 0 || r < 0)
        return fail(err, "%s: merge %zu has the part \"%.*s\", which is not in the vocabulary", m->path,
                              t->merge_count, l < 0 ? SHOWN(left_length) : SHOWN(right_length), l < 0 ? left : right);
    memcpy(scratch, left, left_length);
    memcpy(scratch + left_length, right, right_length);
    int id = merged_id(m, l, r, scratch, left_length + right_length);
    if (id < 0)
        return fail(err, "%s: merge %zu makes \"%.*s%.*s\", which is not in the vocabulary", m->path,
                              t->merge_count, SHOWN(left_length), left, SHOWN(right_length), right);
    Merge *merge = find_merge(t, l, r);
    Piece *pl = &t->pieces[l], *pr = &t->pieces[r], *made = &t->pieces[id];
    m->regular = m->regular && !made->made && (pl->made || pl->length <= 1) && (pr->made || pr->length <= 1);
    *merge = (Merge){(uint64_t)(uint32_t)l << 32 | (uint32_t)r, (int)t->merge_count++, id};
    note_crossing(t, id, merge->rank);
    made->made = true;
    m->last = id;
    return 0;
}

/* Merges as "left right" or, all of them, ["left", "right"]. */
static int read_merges(MergeReader *m, const JsonValue *merges, char err[512])
{
    char quote[256];
    for (const JsonValue *v = merges->child; v; v = v->next) {
        const JsonValue *left = v->type == JSON_ARRAY && v->length == 2 ? v->child : NULL;
        const char *space = v->type == JSON_STRING ? memchr(v->text, ' ', v->length) : NULL;
        size_t before = space ? (size_t)(space - v->text) : 0, after = space ? v->length - before - 1 : 0;
        bool alike = v->type == merges->child->type;
        int failed;
        if (alike && space && !memchr(space + 1, ' ', after))
            failed = add_merge(m, v->text, before, space + 1, after, err);
        else if (alike && left && left->type == JSON_STRING && left->next->type == JSON_STRING)
            failed = add_merge(m, left->text, left->length, left->next->text, left->next->length, err);
        else
            failed = fail(err, "%s: merge %zu is %.160s, expected \"a b\" or [\"a\", \"b\"], all alike",
                                    m->path, m->t->merge_count, quoted(v, quote));
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
    if (flags[2] || flags[3] || flags[4])
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
    char *copy = malloc(length);
    if (!copy)
        return fail(err, "out of memory for the tokenizer");
    int known = tokenizer_written_id(t, text->text, length, copy);
    size_t expected = known >= 0 ? (size_t)known : t->size;
    if (json_u64(number, &id) || id != expected) {
        free(copy);
        return fail(err,
                              "%s: added token \"%.*s\" has the id %.40s, expected %zu (the next, or the vocabulary's)",
                              path, SHOWN(length), text->text, quoted(number, quote), expected);
    }
    memcpy(copy, text->text, length);
    if (normalized && t->nfc) {
        free(copy);
        copy = unicode_nfc(text->text, text->length, &length);
    }
    if (append_added(normalized ? &t->nfc_added : &t->raw_added, copy, length, (int)id)) {
        free(copy);
        return fail(err, "out of memory for the tokenizer");
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
    int result = tokenizer_read_json(path, &text, &root, err);
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
    fail(err, "out of memory for the tokenizer");
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
    return fclose(f) || !json->bytes ? NULL : json_parse(json->bytes, json->length, err);
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
    char *paths[3] = {path_join(folder, "vocab.json"), path_join(folder, "merges.txt"),
                      path_join(folder, "tokenizer_config.json")};
    char usual_text[100];
    Text texts[4] = {{0}};
    JsonValue *vocab = NULL, *merges = NULL, *config = NULL, *usual = NULL;
    int result = paths[0] && paths[1] && paths[2] ? tokenizer_read_json(paths[0], &texts[0], &vocab, err)
                                                  : fail(err, "out of memory for the tokenizer");
    if (result == 0)
        result = tokenizer_read_file(paths[1], &texts[1], err);
    if (result == 0) {
        merges = parse_lines(&texts[1], &texts[2], err);
        usual = default_added(vocab, usual_text, err);
        result = merges && usual && tokenizer_read_json(paths[2], &texts[3], &config, err) >= 0 ? 0 : -1;
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
    void *const tables[] = {t->bytes,      t->pieces, t->names,     t->merges,        t->crossed,
                            t->characters, t->words,  t->chat_file, t->default_system};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        free(tables[i]);
    text_free(&t->chat_template);
    free(t);
}

static int make_caches(Tokenizer *t)
{
    const size_t characters = 0x10000 * sizeof *t->characters, words = sizeof *t->words << WORD_SLOTS_LOG;
    t->characters = memory_large(characters, 1);
    t->words = memory_large(words, 1);
    if (!t->characters || !t->words)
        return -1;
    memset(t->characters, 0xff, characters); /* every id NOT_SEEN */
    memset(t->words, 0, words);
    return 0;
}

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

Tokenizer *tokenizer_open(const char *path, char err[512])
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    Tokenizer *t = calloc(1, sizeof *t);
    char *file = folder ? path_join(path, "tokenizer.json") : strdup(path);
    int result = -1;
    if (!t || !file) {
        fail(err, "out of memory for the tokenizer");
    } else {
        t->begin_id = -1;
        make_letters(t);
        make_classes(t);
        result = read_tokenizer_json(t, file, err);
        if (result > 0 && folder)
            result = read_vocab_and_merges(t, path, err);
        if (result > 0)
            fail(err, "%s: %s", path,
                           folder ? "has no tokenizer.json, nor vocab.json and merges.txt" : "no such file");
    }
    if (result == 0 && make_caches(t))
        result = fail(err, "out of memory for the tokenizer");
    if (result == 0) {
        char *slash = strrchr(file, '/');
        if (slash)
            *slash = 0;
        tokenizer_open_chat(t, slash == file ? "/" : slash ? file : ".");
    } else {
        tokenizer_close(t);
    }
    free(file);
    return result == 0 ? t : NULL;
}
