/* Writing checkpoint files: one, or a model in parts with its index. */
#ifndef CHECKPOINT_SHARDS_H
#define CHECKPOINT_SHARDS_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

/* Writes the bytes of tensor i from that offset of fd on. */
typedef int ShardFill(void *context, size_t i, int fd, uint64_t offset, char err[512]);

/* What is written into a file; its order there: widest numbers first, so that all are aligned, else as given. */
typedef struct {
    const SafetensorsTensor *const *tensors; /* [n] name, dtype, shape, length */
    size_t n;
    const JsonValue *const
        *metadata; /* [n_metadata] objects of strings; NULLs are none; of equal keys the first counts */
    size_t n_metadata;
    ShardFill *fill; /* NULL: the bytes come from the tensors' files */
    void *context;
    FileProgress *progress; /* may be NULL */
    void *progress_context;
} ShardContent;

/* Writes path.part, complete and checked by safetensors_open(); the caller publishes it. Refuses what no reader
 * would take: a tensor called "__metadata__", a name twice, a header over 100,000,000 bytes. */
int shard_write(NewFile *f, const char *path, const ShardContent *content, char err[512]);

/* Cuts c into shards of at most max_bytes of data (a larger tensor gets its own), or with max_bytes 0 into one of
 * what belongs to no layer and one a layer; writes them, their index and copies of config and tokenizer files into
 * directory, which is made if need be. Nothing that is there is replaced. A single shard becomes model.safetensors
 * without an index. */
int split_model(const Checkpoint *c, const char *directory, uint64_t max_bytes, FileProgress *progress, void *context,
                 size_t *n_shards, char err[512]);
/* All tensors of c in the one file path, which must not exist. */
int split_merge(const Checkpoint *c, const char *path, FileProgress *progress, void *context, char err[512]);

/* The layer that a tensor's name tells: the first part between dots that is a number. False if there is none. */
bool tensor_layer(const SafetensorsTensor *t, uint64_t *layer);

#endif
