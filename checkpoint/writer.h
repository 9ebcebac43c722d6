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
    const JsonValue *const *metadata; /* [n_metadata] objects of strings, or NULL; of equal keys the first counts */
    size_t n_metadata;
    WriterFill *fill; /* NULL: the bytes are copied from the tensors' files */
    void *context;
    FileProgress *progress; /* or NULL */
    void *progress_context;
    bool replace; /* the file that has the name */
} WriterContent;

/* Write a new file, complete and accepted by safetensors_open(). The caller publishes it, and ends f in any case. What
 * no reader would take is refused: a tensor called "__metadata__", a name twice, a header over 100,000,000 bytes. */
int writer_write(NewFile *f, const char *path, const WriterContent *content, char err[512]);

/* Refuse a path that means a file of the input. */
int writer_check_target(const char *path, const Checkpoint *input, char err[512]);

#endif
