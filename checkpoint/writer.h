/* Writing one .safetensors file; safetensors.h shows the layout. The header is padded with spaces to a multiple of 8
 * bytes, and tensors with wider numbers come first: so every tensor is aligned.
 */
#ifndef CHECKPOINT_WRITER_H
#define CHECKPOINT_WRITER_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

/* Put the bytes of tensor i into out. */
typedef int WriterFill(void *context, size_t i, FileBuffer *out, char err[512]);

/* What a file is made of. In it the tensors with the widest numbers come first, so that all are aligned, else as
 * given. */
typedef struct {
    const SafetensorsTensor *const *tensors; /* [n] their name, dtype, shape, length */
    size_t n;
    const JsonValue *const *metadata; /* [n_metadata] strings with keys that are sorted and all different */
    size_t n_metadata;
    WriterFill *fill; /* NULL: the bytes are copied from the tensors' files */
    void *context;
    FileProgress *progress; /* or NULL */
    void *progress_context;
    bool replace; /* the file that has the name */
} WriterContent;

/* The members of all objects, each of which is one of strings, or NULL, as a WriterContent wants them. Of equal keys the
 * first object's counts, and in an object the last. Fresh, or NULL when out of memory. */
const JsonValue **writer_join_metadata(const JsonValue *const *objects, size_t n_objects, size_t *n);

/* Write a new file, complete and accepted by safetensors_open(). The caller publishes it, and ends f in any case. What
 * no reader would take is refused: a tensor called "__metadata__", a name twice, a header over 100,000,000 bytes. */
int writer_write(NewFile *f, const char *path, const WriterContent *content, char err[512]);

/* Refuse a path that means a file of the input. */
int writer_check_target(const char *path, const Checkpoint *input, char err[512]);

#endif
