/* What safetensors.c uses of safetensors_header.c: nobody else includes this. */
#ifndef SAFETENSORS_HEADER_H
#define SAFETENSORS_HEADER_H

#include "safetensors.h"

/* Writes `PATH: tensor "NAME": sentence` into st->error, t may be NULL; returns -1. */
__attribute__((format(printf, 3, 4))) int safetensors_fail(SafetensorsFile *st, const SafetensorsTensor *t,
                                                           const char *fmt, ...);

#define SHAPE_TEXT 112
/* "[151936,896]", cut short when it gets long. */
const char *safetensors_shape_text(const uint64_t *shape, size_t rank, char out[SHAPE_TEXT]);

/* The table of names: room for n tensors; the place of a name's index, or the empty place where it would go; and a
 * tensor added to it, true if it replaced the one of that name. */
int safetensors_allocate(SafetensorsFile *st, size_t n);
uint32_t *safetensors_place(const SafetensorsFile *st, const char *name, size_t length);
bool safetensors_add(SafetensorsFile *st, const SafetensorsTensor *t);

/* Fills st->tensors from st->header. Of equal names the last counts, as in the reference library. */
int safetensors_read_entries(SafetensorsFile *st);
/* data_offsets must be in order, and as far apart as dtype and shape need; counts the elements. */
int safetensors_check_tensor(SafetensorsFile *st, SafetensorsTensor *t);

#endif
