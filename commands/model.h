/* The model that a command was given: its checkpoint or its tokenizer opened, and its tensors by name. What fails ends
 * the program with a message.
 */
#ifndef MODEL_H
#define MODEL_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/slice.h"
#include "commands/output.h"
#include "tokenizer.h"

/* Open the weights that model names (NULL: the default) without loading them. Warns of an edit that was interrupted. */
void model_open(Checkpoint *c, const char *model);
Tokenizer *model_tokenizer(void); /* of -m, without weights */

/* Warn of tensors that the model does not use, and of a head that config.json does not expect. */
void model_warn_of_tensors(Checkpoint *c, const Config *config);
/* Die if a file has another size than when it was opened: what was read from it is wrong then. */
void model_check_sizes(const Checkpoint *c);
/* out_open(), unless path means a file of the model itself. --force: replace a file that exists. */
int model_out_open(const Checkpoint *c, OutFile *o, const char *path, bool replace, char err[512]);
uint64_t model_bytes(const Checkpoint *c); /* of all tensors together */
/* Report, as text or JSON, that the tensors of c were written to this many files. what: the key of path in JSON. */
void model_print_written(const Checkpoint *c, const char *what, const char *path, size_t files);

/* In a pattern * is any text and ? any character. NULL matches everything. */
bool name_matches(const char *pattern, const char *name, size_t length);
/* The tensor of that name, or the only one that the pattern matches. */
SafetensorsTensor model_tensor(Checkpoint *c, const char *name);

/* The slice's shape, [slice_rank()], fresh; and which element of the tensor is at that position of the slice. */
uint64_t *model_slice_shape(const Slice *s);
uint64_t model_slice_element(const Slice *s, uint64_t position);

#endif
