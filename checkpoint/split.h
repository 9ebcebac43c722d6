/* The same model in other files: cut into shards with an index, or put together in one. */
#ifndef CHECKPOINT_SPLIT_H
#define CHECKPOINT_SPLIT_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

/* Cut c into shards of at most max_bytes of data (a larger tensor gets one of its own), or with max_bytes 0 into one
 * for each layer and one for what belongs to no layer. Write them, their index and copies of config and tokenizer files
 * into the directory, which is made if need be. A single shard becomes model.safetensors without an index. What exists
 * is an error unless `replace` is set or, of config and tokenizer files, it has the same bytes. */
int split_model(const Checkpoint *c, const char *directory, uint64_t max_bytes, bool replace, FileProgress *progress,
                void *context, size_t *n_shards, char err[512]);
/* Write all tensors of c into the one file path. */
int split_merge(const Checkpoint *c, const char *path, bool replace, FileProgress *progress, void *context,
                char err[512]);

/* Both keep edits off the files of c until it is closed. */

#endif
