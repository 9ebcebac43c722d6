/* Where a model is: which file or folder an argument means, and which one is the default. */
#ifndef CHECKPOINT_LOCATE_H
#define CHECKPOINT_LOCATE_H

#include "base/base.h"

/* The files of a model's weights: all of them, or the index of their shards. Hugging Face's names. */
#define WEIGHTS_NAME "model.safetensors"
#define WEIGHTS_INDEX_NAME "model.safetensors.index.json"
bool locate_has_weights(const char *folder); /* is one of these in the folder, even as a link to nothing? */

/* Each returns a fresh path, or NULL and a sentence. */

/* Find what a model argument means: the file or folder of that name, else the snapshot of a hub id in the local Hugging
 * Face cache. It exists, but nothing in it was looked at. */
char *locate_model(const char *model, char err[512]);
/* The same, but a file means its folder, where the tokenizer and config.json are. */
char *locate_folder(const char *model, char err[512]);
/* The model to use when none is named: "." if weights are there, else the demo model that comes with the program, which
 * *is_demo tells. */
char *locate_default(bool *is_demo, char err[512]);

#endif
