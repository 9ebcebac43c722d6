/* Which added tokens a tokenizer has. In a folder they are those of the reference, which takes them, in this order, from
 *
 *     tokenizer_config.json     "added_tokens_decoder", {ID: TOKEN}; if it is there, the next three are not looked at
 *     added_tokens.json         {TEXT: ID}
 *     tokenizer.json            "added_tokens", [TOKEN]; counts where added_tokens.json has the same id
 *     special_tokens_map.json   overrides what tokenizer_config.json says about the tokens with names, below
 *     tokenizer_config.json     tokens with a name, such as "eos_token", then "extra_special_tokens": these are special,
 *                               whatever the others say, and are added if they are not among them
 *
 * The reference numbers them in the order of their ids, and those without an id behind all others, whatever the files
 * say. Files that say something else are refused. Without a folder, tokenizer.json's list counts as it is. */
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/unicode.h"

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static AddedEntry *append_entry(AddedList *list, const JsonValue *text, const char *path)
{
    AddedEntry *e = &list->entries[list->count]; /* there is memory for all */
    *e = (AddedEntry){.text = text->text, .length = text->length, .order = list->appended++, .path = path};
    list->count++;
    return e;
}

/* An added token of tokenizer.json or of "added_tokens_decoder". Flags that are missing are false, but in
 * tokenizer_config.json "normalized" is then the opposite of "special". */
static int append_token(AddedList *list, const JsonValue *token, const char *path, char err[512])
{
    enum { SPECIAL, NORMALIZED, LSTRIP, RSTRIP, SINGLE_WORD, FLAGS };
    static const char *const names[FLAGS] = {"special", "normalized", "lstrip", "rstrip", "single_word"};
    const JsonValue *text = json_get(token, "content");
    bool flags[FLAGS] = {false}, in_map = token->key;
    if (!text || text->type != JSON_STRING || text->length == 0)
        return tokenizer_refuse(path, "an added token", token, "an object with a \"content\" that is not empty", err);
    for (size_t i = 0; i < FLAGS; i++) {
        const JsonValue *v = json_get(token, names[i]);
        if (v && json_bool(v, &flags[i]))
            return tokenizer_refuse(path, names[i], v, "true or false", err);
        if (!v && i == NORMALIZED && in_map)
            flags[i] = !flags[SPECIAL];
    }
    if (flags[LSTRIP] || flags[RSTRIP] || flags[SINGLE_WORD])
        return tokenizer_refuse(path, "an added token", token, "one without lstrip, rstrip and single_word", err);
    AddedEntry *e = append_entry(list, text, path);
    e->special = flags[SPECIAL];
    e->normalized = flags[NORMALIZED];
    const JsonValue *id = json_get(token, "id");
    e->number = in_map ? (JsonValue){.type = JSON_INTEGER, .text = token->key, .length = token->key_length}
                       : (id ? *id : (JsonValue){.type = JSON_NULL});
    return 0;
}

/* {TEXT: ID} */
static int append_map(AddedList *list, const InputFile *file, char err[512])
{
    if (file->root->type != JSON_OBJECT)
        return tokenizer_refuse(file->path, "the file", file->root, "a map of tokens to ids", err);
    for (const JsonValue *v = file->root->child; v; v = v->next) {
        const JsonValue text = {.text = v->key, .length = v->key_length};
        if (text.length == 0)
            return fail(err, "%s: a token is empty", file->path);
        AddedEntry *e = append_entry(list, &text, file->path);
        e->normalized = true;
        e->number = *v;
    }
    return 0;
}

/* The token that a value is: a text, or an object with one. *text is NULL if the value is null or missing. */
static int named_text(const char *path, const char *name, const JsonValue *value, const JsonValue **text, char err[512])
{
    *text = value && value->type == JSON_OBJECT ? json_get(value, "content") : value;
    if (!value || value->type == JSON_NULL) {
        *text = NULL;
        return 0;
    }
    if (*text && (*text)->type == JSON_STRING && (*text)->length > 0)
        return 0;
    return tokenizer_refuse(path, name, value, "a token", err);
}

static int append_named(AddedList *list, const char *path, const char *name, const JsonValue *value, char err[512])
{
    const JsonValue *text;
    if (named_text(path, name, value, &text, err))
        return -1;
    if (text) {
        AddedEntry *e = append_entry(list, text, path);
        e->special = e->named = true;
    }
    return 0;
}

/* ---- the tokens that have names ---------------------------------------------------------------------------------- */

static const char *const attributes[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

static bool is_attribute(const JsonValue *member)
{
    for (size_t i = 0; i < COUNT_OF(attributes); i++)
        if (json_key_is(member, attributes[i]))
            return true;
    return false;
}

static bool is_token_name(const JsonValue *member)
{
    return member->key_length > 6 && memcmp(member->key + member->key_length - 6, "_token", 6) == 0;
}

/* The value of a setting, and in *path the file that has it. */
static const JsonValue *setting(const AddedList *list, const char *name, const char **path)
{
    const JsonValue *v = list->use_map ? json_get(list->map.root, name) : NULL;
    *path = v ? list->map.path : list->config.path;
    return v ? v : json_get(list->config.root, name);
}

/* The usual names, in their order. The reference has <|endoftext|> for three of them if the files do not name them. */
static int append_attributes(AddedList *list, char err[512])
{
    static const JsonValue usual = {.type = JSON_STRING, .text = "<|endoftext|>", .length = 13};
    for (size_t i = 0; i < COUNT_OF(attributes); i++) {
        const char *path;
        const JsonValue *v = setting(list, attributes[i], &path);
        bool has_usual = strcmp(attributes[i], "eos_token") == 0 || strcmp(attributes[i], "unk_token") == 0 ||
                         strcmp(attributes[i], "pad_token") == 0;
        if (append_named(list, path, attributes[i], v || !has_usual ? v : &usual, err))
            return -1;
        if (i == 0 && named_text(path, attributes[i], v, &list->begin, err))
            return -1;
    }
    return 0;
}

/* Other names that end with "_token", first those whose value is an object. */
static int append_others(AddedList *list, char err[512])
{
    const JsonValue *root = list->config.root;
    static const JsonType types[] = {JSON_OBJECT, JSON_STRING};
    for (size_t i = 0; i < COUNT_OF(types); i++)
        for (const JsonValue *v = root ? root->child : NULL; v; v = v->next)
            if (v->type == types[i] && is_token_name(v) && !is_attribute(v) &&
                (v->type == JSON_STRING || json_string_is(json_get(v, "__type"), "AddedToken")) &&
                append_named(list, list->config.path, "a token", v, err))
                return -1;
    return 0;
}

/* "extra_special_tokens", whose older name is "additional_special_tokens": a list, or a map of names to tokens. */
static int append_extra(AddedList *list, char err[512])
{
    static const char older[] = "additional_special_tokens", name[] = "extra_special_tokens";
    const char *path = list->config.path;
    const JsonValue *v = json_get(list->config.root, name), *old = json_get(list->config.root, older);
    if (old && (!v || v->type == JSON_NULL || v->length == 0))
        v = old;
    if (!v && list->use_map) {
        path = list->map.path;
        v = json_get(list->map.root, older);
    }
    if (v && v->type != JSON_ARRAY && v->type != JSON_OBJECT && v->type != JSON_NULL)
        return tokenizer_refuse(path, name, v, "a list of tokens", err);
    for (const JsonValue *token = v ? v->child : NULL; token; token = token->next)
        if (append_named(list, path, name, token, err))
            return -1;
    return 0;
}

/* ---- settings that change ids or text ---------------------------------------------------------------------------- */

static int check_config(const AddedList *list, bool older_form, char err[512])
{
    static const struct {
        const char *name;
        bool only_older;
    } refused[] = {
        {"split_special_tokens", false},
        {"add_prefix_space", false},
        {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", false},
        {"add_eos_token", true},
    };
    const InputFile *files[] = {&list->config, &list->map, &list->tokens};
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (files[i]->root && files[i]->root->type != JSON_OBJECT)
            return tokenizer_refuse(files[i]->path, "the file", files[i]->root, "a JSON object", err);
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        const JsonValue *v = json_get(list->config.root, refused[i].name);
        if (v && v->type != JSON_FALSE && v->type != JSON_NULL && (older_form || !refused[i].only_older))
            return tokenizer_refuse(list->config.path, refused[i].name, v, "false", err);
    }
    for (const JsonValue *v = list->use_map ? list->map.root->child : NULL; v; v = v->next)
        if (!is_attribute(v) && !json_key_is(v, "additional_special_tokens")) {
            char shown[TEXT_PRINTABLE];
            return fail(err, "%s: \"%s\" is not supported there", list->map.path,
                        text_printable(v->key, v->key_length, shown));
        }
    return 0;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* By id; those of added_tokens.json, which are first in the list, before others of the same id. */
static int compare_ids(const void *a, const void *b)
{
    const AddedEntry *x = a, *y = b;
    uint64_t i = UINT64_MAX, k = UINT64_MAX;
    (void)json_u64(&x->number, &i);
    (void)json_u64(&y->number, &k);
    if (i != k)
        return i < k ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Put the entries in the order of their ids. */
static void sort_entries(AddedList *list)
{
    size_t out = 0;
    qsort(list->entries, list->count, sizeof *list->entries, compare_ids);
    for (size_t i = 0; i < list->count; i++) {
        const AddedEntry *e = &list->entries[i], *next = i + 1 < list->count ? e + 1 : NULL;
        uint64_t id, next_id;
        bool replaced = next && e->path != next->path && json_u64(&e->number, &id) == 0 &&
                        json_u64(&next->number, &next_id) == 0 && id == next_id;
        if (!replaced)
            list->entries[out++] = *e;
    }
    list->count = out;
}

static int compare_texts(const void *a, const void *b)
{
    const AddedEntry *x = *(const AddedEntry *const *)a, *y = *(const AddedEntry *const *)b;
    int order = text_compare(x->text, x->length, y->text, y->length);
    if (order == 0)
        return x->order < y->order ? -1 : 1;
    return order;
}

/* Of entries with the same text, the first stays; it is special if one with a name is among the others. */
static int unite_entries(AddedList *list, char err[512])
{
    AddedEntry **sorted = calloc(list->count + 1, sizeof *sorted), *first = NULL;
    char shown[TEXT_PRINTABLE];
    if (!sorted)
        return fail_memory(err);
    for (size_t i = 0; i < list->count; i++)
        sorted[i] = &list->entries[i];
    qsort(sorted, list->count, sizeof *sorted, compare_texts);
    int status = 0;
    for (size_t i = 0; i < list->count && status == 0; i++) {
        AddedEntry *e = sorted[i];
        if (!first || !text_same(first->text, first->length, e->text, e->length)) {
            first = e;
            continue;
        }
        if (!e->named)
            status =
                fail(err, "%s: added token \"%s\" is listed twice", e->path, text_printable(e->text, e->length, shown));
        first->special = true;
        first->normalized = false;
        e->length = 0; /* it is left out */
    }
    free(sorted);
    return status;
}

/* How many members the files' lists have, at most. */
static size_t count_members(const AddedList *list, const JsonValue *decoder, const JsonValue *own)
{
    const JsonValue *const lists[] = {decoder,
                                      own,
                                      list->config.root,
                                      list->map.root,
                                      list->tokens.root,
                                      json_get(list->config.root, "extra_special_tokens"),
                                      json_get(list->config.root, "additional_special_tokens"),
                                      json_get(list->map.root, "additional_special_tokens")};
    size_t n = COUNT_OF(attributes);
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        n += lists[i] ? lists[i]->length : 0;
    return n;
}

static int collect(AddedList *list, const JsonValue *own, const char *path, bool in_folder, char err[512])
{
    const JsonValue *decoder = json_get(list->config.root, "added_tokens_decoder");
    list->use_map = !decoder && list->map.root;
    if (check_config(list, own == NULL, err))
        return -1;
    list->entries = calloc(count_members(list, decoder, own), sizeof *list->entries);
    if (!list->entries)
        return fail_memory(err);
    if (decoder && decoder->type != JSON_OBJECT)
        return tokenizer_refuse(list->config.path, "added_tokens_decoder", decoder, "a map of ids to tokens", err);
    if (!decoder && list->tokens.root && append_map(list, &list->tokens, err))
        return -1;
    const JsonValue *tokens = decoder ? decoder : own;
    for (const JsonValue *v = tokens ? tokens->child : NULL; v; v = v->next)
        if (append_token(list, v, decoder ? list->config.path : path, err))
            return -1;
    if (in_folder) {
        sort_entries(list);
        if (append_attributes(list, err) || append_others(list, err) || append_extra(list, err))
            return -1;
    }
    return unite_entries(list, err);
}

int tokenizer_collect_added(AddedList *list, const JsonValue *own, const char *path, const char *folder, char err[512])
{
    if (own && own->type != JSON_ARRAY && own->type != JSON_NULL)
        return tokenizer_refuse(path, "added_tokens", own, "a list", err);
    if (folder && (tokenizer_read_json(path_join(folder, "tokenizer_config.json"), &list->config, err) < 0 ||
                   tokenizer_read_json(path_join(folder, "special_tokens_map.json"), &list->map, err) < 0 ||
                   tokenizer_read_json(path_join(folder, "added_tokens.json"), &list->tokens, err) < 0))
        return -1;
    return collect(list, own, path, folder != NULL, err);
}

void tokenizer_free_added(AddedList *list)
{
    tokenizer_free_file(&list->config);
    tokenizer_free_file(&list->map);
    tokenizer_free_file(&list->tokens);
    free(list->entries);
}

/* ---- into the tables --------------------------------------------------------------------------------------------- */

/* Enter one token. Its id is that of the vocabulary if the token is in there, else the next one behind all others. */
static int enter_token(Tokenizer *t, const AddedEntry *e, char err[512])
{
    char shown[TEXT_PRINTABLE], quote[TOKENIZER_QUOTED];
    size_t length = e->length;
    uint64_t stated;
    char *copy = malloc(length);
    if (!copy)
        return fail_memory(err);
    int known = tokenizer_vocab_id(t, e->text, length, copy);
    size_t id = known >= 0 ? (size_t)known : t->size;
    if (!e->named && (json_u64(&e->number, &stated) || stated != id)) {
        free(copy);
        return fail(err, "%s: the id of added token \"%s\" is %.40s; expected %zu", e->path,
                    text_printable(e->text, e->length, shown),
                    e->number.type == JSON_NULL ? "missing" : tokenizer_quoted(&e->number, quote), id);
    }
    memcpy(copy, e->text, length);
    if (e->normalized && t->nfc) {
        free(copy);
        copy = unicode_nfc(e->text, e->length, &length);
    }
    if (!copy)
        return fail_memory(err);
    AddedSet *set = &t->added[e->normalized ? AFTER_NFC : BEFORE_NFC];
    set->items[set->count++] = (AddedToken){copy, length, (int)id};
    if (known < 0)
        tokenizer_add_piece(t, t->size++, copy, length);
    t->pieces[id].special = e->special;
    return 0;
}

int tokenizer_enter_added(Tokenizer *t, const AddedList *list, char err[512])
{
    char shown[TEXT_PRINTABLE];
    for (size_t i = 0; i < COUNT_OF(t->added); i++) {
        t->added[i].items = calloc(list->count + 1, sizeof *t->added->items);
        if (!t->added[i].items)
            return fail_memory(err);
    }
    for (size_t i = 0; i < list->count; i++)
        if (list->entries[i].length && enter_token(t, &list->entries[i], err))
            return -1;
    for (size_t i = 0; i < COUNT_OF(t->added); i++) {
        AddedSet *set = &t->added[i];
        qsort(set->items, set->count, sizeof *set->items, tokenizer_compare_added);
        for (size_t k = 1; k < set->count; k++) /* different texts may have the same NFC */
            if (tokenizer_compare_added(&set->items[k - 1], &set->items[k]) == 0)
                return fail(err, "%s: added token \"%s\" is listed twice", list->entries->path,
                            text_printable(set->items[k].text, set->items[k].length, shown));
        if (set->count && tokenizer_build_trie(set))
            return fail_memory(err);
    }
    return 0;
}
