/* A .safetensors file has three parts, one after the other:
 *
 *     8 bytes           N: length of the header, unsigned 64-bit, little-endian
 *     N bytes           the header: a JSON object, UTF-8, possibly padded with spaces at its end:
 *                         "name": {"dtype": "BF16", "shape": [151936, 896], "data_offsets": [begin, end]}, ...
 *                         and optionally "__metadata__": {"text": "text", ...}
 *     the rest          the data: every tensor's numbers, row-major, little-endian. data_offsets count from
 *                         the start of this part, byte 8 + N of the file
 *
 * In order of offset the tensors follow one another from the first byte of the data to the last, without a hole.
 *
 * safetensors_open() checks all of that before it returns, and accepts exactly what the reference library accepts.
 * The functions return -1 or NULL on failure and leave one sentence in st->error.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "base/text.h"
#include "base/file.h"
#include "base/hash.h"
#include "json.h"
#include "net.h"

typedef enum {
    DTYPE_BOOL,
    DTYPE_F4,
    DTYPE_F6_E2M3,
    DTYPE_F6_E3M2,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E5M2,
    DTYPE_F8_E4M3,
    DTYPE_F8_E8M0,
    DTYPE_F8_E4M3FNUZ,
    DTYPE_F8_E5M2FNUZ,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F32,
    DTYPE_C64,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_U64,
} Dtype;
#define DTYPE_COUNT ((size_t)DTYPE_U64 + 1)

#define SAFETENSORS_MAX_HEADER 100000000 /* bytes: the reference library's limit */

const char *dtype_name(Dtype dtype); /* as in the file: "BF16" */
size_t dtype_bits(Dtype dtype);      /* bits of one element: 4 or 6 in types smaller than a byte */
int dtype_parse(const char *text, size_t length, Dtype *dtype);

typedef struct SafetensorsFile SafetensorsFile;

/* One entry of the header. Pointers belong to the file it is from. */
typedef struct {
    const char *name; /* name_length bytes of UTF-8; may hold NUL */
    size_t name_length;
    Dtype dtype;
    size_t rank;
    const uint64_t *shape; /* [rank], slowest axis first */
    uint64_t elements;
    uint64_t offset, length;     /* bytes in the data part: data_offsets are [offset, offset + length) */
    const SafetensorsFile *file; /* the shard that holds it */
} SafetensorsTensor;

struct SafetensorsFile {
    char *path;
    char *header_json; /* NUL-terminated copy of the header */
    size_t header_len;
    JsonValue *header;
    unsigned char *data; /* mapped + 8 + header_len: any alignment, odd included */
    size_t data_size;
    unsigned char *mapped; /* the whole file */
    size_t mapped_size;

    SafetensorsTensor *tensors; /* [n_tensors], in order of offset */
    size_t n_tensors;
    uint32_t *lookup;   /* hash table: 1 + index into tensors, 0 is empty */
    size_t lookup_size; /* a power of two */
    HashKey lookup_key;
    uint64_t *shapes;   /* storage for all shapes */

    SafetensorsFile *shards; /* sharded checkpoint: its files, opened by checkpoint/; this struct then has no data */
    size_t n_shards;

    bool head_is_embedding;          /* tied: lm_head.weight may stand for the embedding; checkpoint/ sets it */
    int fd;                          /* of the open file, for reading without mapping; -1 when closed */
    int64_t modified;                /* time of the last change when it was opened; checkpoint/ sets it */
    bool read_into_memory;           /* --no-mmap: set before opening */
    const JsonValue *repeated_name;  /* the first entry whose name was there before, or NULL: worth a warning */
    FileProgress *progress;          /* told of bytes while they are read and converted, by one thread; or NULL */
    void *progress_context;
    bool truncated; /* opening failed because bytes are missing at the end: a download that was cut short */
    char error[512];
};

/* 8 bytes at any address, least significant first. */
uint64_t read_u64_le(const unsigned char *b);

/* Map the file and validate all of it. st is zeroed, but for read_into_memory and progress, and stays where it is
 * until closed: its tensors point to it. On failure st->error is set and nothing stays open. */
int safetensors_open(const char *path, SafetensorsFile *st);
void safetensors_close(SafetensorsFile *st); /* also after a failed open, and of a zeroed struct */

/* Give st, which has shards but no data, the list and look-up of all their tensors. -1 if a name is in two shards. */
int safetensors_join_shards(SafetensorsFile *st);

/* Look a tensor up by name in the file, or in all shards: O(1). -1 and st->error if there is none.
 * safetensors_find_n() is for names that may hold NUL. */
int safetensors_find(SafetensorsFile *st, const char *name, SafetensorsTensor *tensor);
int safetensors_find_n(SafetensorsFile *st, const char *name, size_t name_length, SafetensorsTensor *tensor);
/* Look up a weight of the model, as transformers does: under its name; with one "model." more; without it, as a base
 * model has it ("layers.0.mlp.up_proj.weight"). If head_is_embedding, the embedding may be under the head's name. */
int safetensors_find_weight(SafetensorsFile *st, const char *name, SafetensorsTensor *tensor);
const unsigned char *safetensors_data(const SafetensorsTensor *tensor); /* its first byte, at any alignment */

/* A weight, found as above, as newly allocated float32, which the caller frees. BF16, F16, F32 and F64 (rounded) can be
 * read; for another dtype st->error names it. The pages of the mapping that were read are given back. */
float *safetensors_load_float(SafetensorsFile *st, const char *name);

/* The default mode, f32: fill w (zeroed) with all weights as float32, stacked by layer, and point its views at them.
 * Every tensor must have as many numbers as cfg asks for; checkpoint/weights.h compares their shapes, and has the other
 * modes. Free w with weights_free(). */
int safetensors_load_weights(SafetensorsFile *st, const Config *cfg, TransformerWeights *w);

#endif
