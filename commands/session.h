/* A model opened for running, by the common options: checkpoint, weights, tokenizer, state. What fails ends the program
 * with a message.
 */
#ifndef SESSION_H
#define SESSION_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "commands/input.h"
#include "net.h"
#include "tokenizer.h"

typedef struct {
    Checkpoint checkpoint;
    Model model;
    Tokenizer *tokenizer; /* NULL when there is none and none was demanded */
    RunState state;
    double load_seconds;
    uint64_t weight_bytes; /* read for one token */
} Session;

/* Open what -m names, or the default model: start the pool, load the weights, read the tokenizer. most_logits: how many
 * tokens of a step have logits; ALL_LOGITS: every one, in blocks that are small enough for memory. */
#define ALL_LOGITS SIZE_MAX
void session_open(Session *s, bool need_tokenizer, size_t most_logits);
void session_close(Session *s);
/* Choose the kernels by RUN_ISA, and start as many threads as --threads says or the machine has. session_open() does
 * it. */
void session_start_pool(void);
void session_check_sizes(const Session *s); /* model_check_sizes(), if the weights are read from the mapped file */

/* Die unless every id is below vocab_size, and n ids fit into the context. */
void session_check_ids(const Session *s, const int *ids, size_t n);
/* The ids of a prompt, checked. An empty text becomes the begin token. */
IdList session_prompt(Session *s, const Prompt *prompt);
/* Run ids through the network in blocks, from where the state is. Returns the logits of the last one (with ALL_LOGITS,
 * of the last block). Shows progress; ends the program after Ctrl-C. */
const float *session_forward(Session *s, const int *ids, size_t n);

void session_show_prefill(void *context, size_t done, size_t total); /* an on_prefill for GenerateOptions */

/* The type of the cache: what --kv says, else float32 unless the weights are quantized. */
KvType session_kv_type(WeightMode mode);

/* The default of --ctx: max_position_embeddings, times the factor of rope scaling. */
size_t session_usual_context(const Config *c);

/* Bytes of keys and values that one token at this position reads. */
uint64_t session_cache_bytes(const Session *s, size_t position);
/* The CPU's caches could hold a smaller model, whose speed says nothing about memory. */
#define BEYOND_CACHES ((uint64_t)128 << 20)
/* GB/s at which the pool reads the weights where they lie, measured over at most `limit` bytes of them. */
double session_read_bandwidth(const Session *s, uint64_t limit);

#endif
