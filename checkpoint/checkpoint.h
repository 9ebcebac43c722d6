/* A checkpoint as a thing on disk: which files a model argument means, its shards, and what a wrong file is. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "base/base.h"
#include "safetensors.h"

typedef struct {
    char *argument;      /* what the user named */
    char *directory;     /* folder of the weights: config.json and the tokenizer are looked for here */
    char *index_path;    /* model.safetensors.index.json, or NULL when there is one file */
    bool from_directory; /* the argument named a model (directory, index, hub id) rather than one file */
    SafetensorsFile st;  /* one file, or all shards */
} Checkpoint;

/* model: a .safetensors file, a directory, an index.json, or a hub id in the local Hugging Face cache. Opens and
 * validates every file. c need not be zeroed, and stays where it is until closed. read_into_memory: --no-mmap. */
int checkpoint_open(Checkpoint *c, const char *model, bool read_into_memory, char err[512]);
void checkpoint_close(Checkpoint *c);

/* The default model's path (fresh): "." if weights are there, else the demo model beside the executable (*is_demo). */
char *locate_default(bool *is_demo, char err[512]);
/* Folder (fresh) that model means, without opening weights: for tokenizers and configs. A file means its folder. */
char *locate_folder(const char *model, char err[512]);

/* All tensors of all shards, in order of shard and offset. i < checkpoint_tensor_count(). */
size_t checkpoint_tensor_count(const Checkpoint *c);
const SafetensorsTensor *checkpoint_tensor(const Checkpoint *c, size_t i);

/* What a model's folder has beside the weights and their index. */
#define CHECKPOINT_COMPANIONS 9
extern const char *const checkpoint_companions[CHECKPOINT_COMPANIONS];

/* Its files: the one, or the shards. i < checkpoint_file_count(). */
size_t checkpoint_file_count(const Checkpoint *c);
const SafetensorsFile *checkpoint_file(const Checkpoint *c, size_t i);
/* -1 if one of them has another size than when it was opened. Reading beyond the new end raises a signal, but not in
 * the last page, which reads as zeros there: what was computed from a mapping is only told after this. */
int checkpoint_check_sizes(const Checkpoint *c, char err[512]);

/* config.json of the folder, checked. A tied model whose file has an lm_head.weight that is not the embedding is not
 * tied: tie_word_embeddings is false then. */
int checkpoint_read_config(Checkpoint *c, Config *config, char err[512]);

/* What a file that is no safetensors is, by its first bytes: "a Git LFS pointer; get the file with ..." or NULL. */
const char *checkpoint_describe_wrong_file(const unsigned char *bytes, size_t length, uint64_t file_size);

#endif
