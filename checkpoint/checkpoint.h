/* A checkpoint that is open: its one file, or the shards of its index. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "base/base.h"
#include "safetensors.h"

typedef struct {
    char *argument;      /* what the user named */
    char *directory;     /* folder of the weights: config.json and the tokenizer are looked for here */
    char *index_path;    /* model.safetensors.index.json, or NULL when there is one file */
    bool untied; /* config.json ties the head to the embedding, but the file has another: that is the head */
    bool from_directory; /* the argument named a model (directory, index, hub id) rather than one file */
    SafetensorsFile st;  /* one file, or all shards */
} Checkpoint;

/* Open and validate every file of a model: a .safetensors file, a folder, an index of shards, or a hub id in the local
 * Hugging Face cache. c need not be zeroed, and stays where it is until closed. read_into_memory: --no-mmap. */
int checkpoint_open(Checkpoint *c, const char *model, bool read_into_memory, char err[512]);
void checkpoint_close(Checkpoint *c);

/* All tensors of all shards, in order of shard and offset. i < checkpoint_tensor_count(). */
size_t checkpoint_tensor_count(const Checkpoint *c);
const SafetensorsTensor *checkpoint_tensor(const Checkpoint *c, size_t i);

/* Its files: the one, or the shards. i < checkpoint_file_count(). */
size_t checkpoint_file_count(const Checkpoint *c);
const SafetensorsFile *checkpoint_file(const Checkpoint *c, size_t i);

/* -1 if one of the files has another size than when it was opened. Reading a mapping beyond the new end raises a
 * signal, but in the last page it reads as zeros: so call this before telling anyone what was computed from a
 * mapping. */
int checkpoint_check_sizes(const Checkpoint *c, char err[512]);

/* Read and check the folder's config.json. Where it says that the head is tied, but the files have an lm_head.weight
 * that differs from the embedding, tie_word_embeddings becomes false. */
int checkpoint_read_config(Checkpoint *c, Config *config, char err[512]);

/* What a model's folder has beside the weights and their index. */
#define CHECKPOINT_COMPANIONS 9
extern const char *const checkpoint_companions[CHECKPOINT_COMPANIONS];

#endif
