/* Reading the header of a .safetensors file: the types of numbers, the entries, the table of names, and the sentences
 * that say what is wrong with them. safetensors.c opens the file, checks how its tensors lie, and loads them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "safetensors_header.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Bytes of the character at s if a terminal would obey it (controls, line separators, bidi marks), 0 if it shows it. */
static size_t invisible(const unsigned char *s, size_t n, unsigned *code)
{
    *code = s[0];
    if (s[0] < 0x20 || s[0] == 0x7f)
        return 1;
    if (n >= 2 && s[0] == 0xc2 && s[1] < 0xa0) {
        *code = s[1];
        return 2;
    }
    if (n < 3 || s[0] != 0xe2 || (s[1] != 0x80 && s[1] != 0x81))
        return 0;
    unsigned c = *code = 0x2000u + (s[1] & 1u) * 0x40u + (s[2] & 0x3fu);
    return c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) ? 3 : 0;
}

char *safetensors_printable(const char *text, size_t length, char out[SAFETENSORS_PRINTABLE])
{
    const unsigned char *s = (const unsigned char *)text, *end = s + length;
    size_t used = 0;
    if (length > 100) {
        s = end - 97;
        while (s < end && (*s & 0xc0) == 0x80) /* not from the middle of a character */
            s++;
        used = (size_t)snprintf(out, SAFETENSORS_PRINTABLE, "...");
    }
    while (s < end && used < SAFETENSORS_PRINTABLE - 12) { /* room for one more escape */
        unsigned code;
        size_t bytes = invisible(s, (size_t)(end - s), &code);
        if (bytes)
            used += (size_t)snprintf(out + used, 12, code == '\n' ? "\\n" : bytes == 1 ? "\\x%02x" : "\\u{%x}", code);
        else
            out[used++] = (char)*s;
        s += bytes ? bytes : 1;
    }
    out[used] = '\0';
    return out;
}

int safetensors_fail(SafetensorsFile *st, const SafetensorsTensor *t, const char *fmt, ...)
{
    const char *path = t ? t->file->path : st->path;
    char text[SAFETENSORS_PRINTABLE];
    size_t size = sizeof st->error, used;
    used = (size_t)snprintf(st->error, size, "%s: ", path ? safetensors_printable(path, strlen(path), text) : "file");
    if (t)
        used += (size_t)snprintf(st->error + used, size - used,
                                 "tensor \"%s\": ", safetensors_printable(t->name, t->name_length, text));
    va_list args;
    va_start(args, fmt);
    vsnprintf(st->error + used, size - used, fmt, args);
    va_end(args);
    return -1;
}

const char *safetensors_shape_text(const uint64_t *shape, size_t rank, char out[SHAPE_TEXT])
{
    size_t used = 1, i;
    out[0] = '[';
    for (i = 0; i < rank && used < 80; i++)
        used += (size_t)snprintf(out + used, SHAPE_TEXT - used, "%s%" PRIu64, i ? "," : "", shape[i]);
    snprintf(out + used, SHAPE_TEXT - used, i < rank ? ",...]" : "]");
    return out;
}

/* ---- number types ------------------------------------------------------------------------------------------------ */

/* In the order of Dtype. Those below a byte must fill whole bytes. */
static const struct {
    char name[12];
    size_t bits;
} dtypes[DTYPE_COUNT] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

const char *dtype_name(Dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_bits(Dtype dtype)
{
    return dtypes[dtype].bits;
}

int dtype_parse(const char *text, size_t length, Dtype *dtype)
{
    for (int i = 0; i < DTYPE_COUNT && length < sizeof dtypes->name; i++) {
        *dtype = (Dtype)i;
        if (memcmp(dtypes[i].name, text, length) == 0 && strlen(dtypes[i].name) == length)
            return 0;
    }
    return -1;
}

/* ---- look-up by name --------------------------------------------------------------------------------------------- */

/* Starts from the table's own address, which differs from run to run: no file can be made so that its names collide. */
static size_t hash_name(const SafetensorsFile *st, const char *name, size_t length)
{
    uint64_t hash = (uint64_t)(uintptr_t)st->lookup;
    uint32_t word;
    size_t i = 0;
    for (; i + sizeof word <= length; i += sizeof word) {
        memcpy(&word, name + i, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    }
    for (; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash ^ hash >> 32);
}

uint32_t *safetensors_place(const SafetensorsFile *st, const char *name, size_t length)
{
    for (size_t i = hash_name(st, name, length);; i++) {
        uint32_t *place = &st->lookup[i & (st->lookup_size - 1)];
        const SafetensorsTensor *t = *place ? &st->tensors[*place - 1] : NULL;
        if (!t || (t->name_length == length && memcmp(t->name, name, length) == 0))
            return place;
    }
}

int safetensors_allocate(SafetensorsFile *st, size_t n)
{
    st->lookup_size = 2;
    while (st->lookup_size / 2 < n)
        st->lookup_size *= 2;
    st->lookup = calloc(st->lookup_size, sizeof *st->lookup);
    st->tensors = calloc(n + 1, sizeof *st->tensors);
    if (!st->lookup || !st->tensors || n >= UINT32_MAX)
        return safetensors_fail(st, NULL, "not enough memory for %zu tensors", n);
    return 0;
}

bool safetensors_add(SafetensorsFile *st, const SafetensorsTensor *t)
{
    uint32_t *place = safetensors_place(st, t->name, t->name_length);
    bool replaces = *place;
    if (!replaces)
        *place = (uint32_t)++st->n_tensors;
    st->tensors[*place - 1] = *t;
    return replaces;
}

/* ---- the header's entries ---------------------------------------------------------------------------------------- */

/* The value of `name` in a tensor's entry, or NULL if it is missing or there twice. The reference library also takes an
 * entry that is the array [dtype, shape, data_offsets]. */
static const JsonValue *entry_value(const JsonValue *entry, const char *name, size_t index)
{
    const JsonValue *found = NULL, *v = entry->child;
    size_t length = strlen(name);
    if (entry->type == JSON_ARRAY && entry->length == 3) {
        for (found = v; index > 0; index--)
            found = found->next;
        return found;
    }
    for (; entry->type == JSON_OBJECT && v; v = v->next)
        if (v->key_length == length && memcmp(v->key, name, length) == 0) {
            if (found)
                return NULL;
            found = v;
        }
    return found;
}

/* A string, or {"F32": null}, which is the same to the reference library. */
static int read_dtype(SafetensorsFile *st, SafetensorsTensor *t, const JsonValue *v)
{
    bool is_object = v->type == JSON_OBJECT && v->length == 1 && v->child->type == JSON_NULL;
    const char *text = is_object ? v->child->key : v->text;
    size_t length = is_object ? v->child->key_length : v->length;
    char shown[SAFETENSORS_PRINTABLE];
    if (!is_object && v->type != JSON_STRING)
        return safetensors_fail(st, t, "dtype must be a string");
    if (dtype_parse(text, length, &t->dtype) != 0)
        return safetensors_fail(st, t, "unknown dtype \"%s\"", safetensors_printable(text, length, shown));
    return 0;
}

/* An array of sizes: whole numbers from 0 to 2^64-1, written as such. 8.0, 8e0 and -0 are none. */
static int read_sizes(SafetensorsFile *st, const SafetensorsTensor *t, const char *what, const JsonValue *array,
                      uint64_t *out)
{
    char shown[SAFETENSORS_PRINTABLE] = "no number";
    if (array->type != JSON_ARRAY)
        return safetensors_fail(st, t, "%s must be an array", what);
    for (const JsonValue *v = array->child; v; v = v->next)
        if (json_u64(v, out++) != 0) {
            if (v->type == JSON_INTEGER || v->type == JSON_REAL)
                safetensors_printable(v->text, v->length, shown);
            return safetensors_fail(st, t, "%s must hold whole numbers from 0 to 2^64-1, found %s", what, shown);
        }
    return 0;
}

/* An entry of the header into t; shape has room for its shape. Whether the values agree is not looked at here. */
static int read_tensor(SafetensorsFile *st, const JsonValue *entry, uint64_t *shape, SafetensorsTensor *t)
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    const JsonValue *values[3];
    uint64_t offsets[2];
    *t = (SafetensorsTensor){.name = entry->key, .name_length = entry->key_length, .shape = shape, .file = st};
    for (size_t i = 0; i < 3; i++) {
        values[i] = entry_value(entry, names[i], i);
        if (!values[i])
            return safetensors_fail(st, t, "its entry must be an object with exactly one \"%s\"", names[i]);
    }
    if (values[2]->type == JSON_ARRAY && values[2]->length != 2)
        return safetensors_fail(st, t, "data_offsets must be two numbers, found %zu", values[2]->length);
    if (read_dtype(st, t, values[0]) != 0 || read_sizes(st, t, names[1], values[1], shape) != 0 ||
        read_sizes(st, t, names[2], values[2], offsets) != 0)
        return -1;
    t->rank = values[1]->length;
    t->offset = offsets[0];
    t->length = offsets[1] - offsets[0]; /* wraps when they are reversed, and safetensors_check_tensor() sees that */
    return 0;
}

static int check_metadata(SafetensorsFile *st, const JsonValue *metadata)
{
    char shown[SAFETENSORS_PRINTABLE];
    if (metadata->type != JSON_OBJECT && metadata->type != JSON_NULL)
        return safetensors_fail(st, NULL, "__metadata__ must be an object");
    for (const JsonValue *v = metadata->child; v; v = v->next)
        if (v->type != JSON_STRING)
            return safetensors_fail(st, NULL, "__metadata__ must map text to text; \"%s\" is none",
                                    safetensors_printable(v->key, v->key_length, shown));
    return 0;
}

int safetensors_read_entries(SafetensorsFile *st)
{
    const JsonValue *metadata = NULL;
    /* a number and what comes behind it are two bytes */
    uint64_t *shape = st->shapes = malloc(st->header_len / 2 * sizeof *shape);
    if (!shape)
        return safetensors_fail(st, NULL, "not enough memory for a header of %zu bytes", st->header_len);
    if (safetensors_allocate(st, st->header->length) != 0)
        return -1;
    for (const JsonValue *v = st->header->child; v; v = v->next) {
        SafetensorsTensor t;
        if (json_key_is(v, "__metadata__")) {
            if (metadata)
                return safetensors_fail(st, NULL, "__metadata__ is there twice");
            if (check_metadata(st, metadata = v) != 0)
                return -1;
            continue;
        }
        if (read_tensor(st, v, shape, &t) != 0)
            return -1;
        shape += t.rank;
        if (safetensors_add(st, &t) && !st->repeated_names)
            st->repeated_names = v;
    }
    return 0;
}

int safetensors_check_tensor(SafetensorsFile *st, SafetensorsTensor *t)
{
    uint64_t end = t->offset + t->length, bits;
    const char *dtype = dtype_name(t->dtype);
    char shape[SHAPE_TEXT];
    if (end < t->offset)
        return safetensors_fail(st, t, "data_offsets [%" PRIu64 ", %" PRIu64 ") end before they begin", t->offset, end);
    bool overflow = false;
    t->elements = 1;
    for (size_t i = 0; i < t->rank && !overflow; i++) /* in this order: [0,2^63,2] fits, [2^63,2,0] does not */
        overflow = __builtin_mul_overflow(t->elements, t->shape[i], &t->elements);
    if (overflow || __builtin_mul_overflow(t->elements, (uint64_t)dtype_bits(t->dtype), &bits))
        return safetensors_fail(st, t, "the size of %s %s does not fit 64 bits", dtype,
                                safetensors_shape_text(t->shape, t->rank, shape));
    if (bits % 8 != 0)
        return safetensors_fail(st, t, "%s %s takes %" PRIu64 " bits, which are no whole bytes", dtype,
                                safetensors_shape_text(t->shape, t->rank, shape), bits);
    if (bits / 8 != t->length)
        return safetensors_fail(
            st, t, "data_offsets [%" PRIu64 ", %" PRIu64 ") hold %" PRIu64 " bytes, but %s %s needs %" PRIu64,
            t->offset, end, t->length, dtype, safetensors_shape_text(t->shape, t->rank, shape), bits / 8);
    return 0;
}
