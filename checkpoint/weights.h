/* A model's weights, from its files into TransformerWeights, in every mode. */
#ifndef CHECKPOINT_WEIGHTS_H
#define CHECKPOINT_WEIGHTS_H

#include "safetensors.h"

/* What a matrix becomes in a mode. MODE_BF16 keeps the type that it has in the file, if a Matrix can have it. In
 * MODE_Q4 the embedding and the head are Q8: rounding costs more there. */
WeightType weights_type(WeightMode mode, Dtype dtype, bool in_layer);

const char *weights_mode_name(WeightMode mode); /* "f32", as -w has it */

/* Bytes of a matrix of a type. UINT64_MAX if its rows are not made of groups of 32, which Q8 and Q4 need, or if it is
 * beyond 64 bits. */
uint64_t weights_matrix_bytes(WeightType type, size_t rows, size_t cols);

/* Check that every tensor that config.json asks for is there, in its shape. Return -1 and a sentence that names both
 * shapes otherwise. */
int weights_check(SafetensorsFile *st, const Config *c, char err[512]);

/* Find tensors that the model does not use, but for those that transformers passes over, too. Returns how many, and a
 * sentence that names the first ones. */
size_t weights_unused(SafetensorsFile *st, const Config *c, char sentence[512]);

/* Bytes of the copy that a mode makes of a model's weights; MODE_BF16 makes none: 0. UINT64_MAX as above. */
uint64_t weights_copy_bytes(const Config *c, WeightMode mode);

/* Check, then fill w (zeroed). MODE_F32 is safetensors_load_weights(); in the other modes matrices are views into st,
 * which must outlive w, or quantized. Free w with weights_free(). */
int weights_load(SafetensorsFile *st, const Config *c, WeightMode mode, TransformerWeights *w, char err[512]);

#endif
