/* The parts of `run info` that look into the data, and what the commands on whole checkpoints share. */
#ifndef COMMANDS_SLICE_H
#define COMMANDS_SLICE_H

#include "base/base.h"
#include "checkpoint/slice.h"
#include "commands/common.h"

#define NOWHERE UINT64_MAX

/* What `run info` is asked about the data. */
typedef struct {
    const char *tensor, *slice, *npy; /* NULL: not given */
    bool stats;
    uint64_t at; /* NOWHERE: not given */
} DataArguments;
#define DATA_OPTIONS(a)                                                                                                \
    {                                                                                                                  \
        0,           "tensor",    "NAME",                                                                              \
        OPTION_TEXT, &(a).tensor, "the numbers of this tensor; * and ? as in --find if one matches"},                  \
        {0, "slice", "SPEC", OPTION_TEXT, &(a).slice, "of --tensor only these, as in NumPy: 0:4,:8  -1  ::2,...,0"},   \
        {0, "npy", "FILE", OPTION_TEXT, &(a).npy, "write them as a NumPy file; - is standard output"},                 \
        {0, "stats", NULL, OPTION_FLAG, &(a).stats, "min, max, mean, NaN and zeros, of --tensor or of each tensor"},   \
        {0, "at", "OFFSET", OPTION_U64, &(a).at, "which number of which tensor has this byte of the file, and its bits"}

/* Answers what was asked. False if nothing was. find: the tensors of --stats. Dies on mistakes. */
bool info_data(Checkpoint *c, const DataArguments *a, const char *find);

/* The tensor called that, or the only one that the pattern fits; dies. */
SafetensorsTensor find_tensor(Checkpoint *c, const char *name);
void parse_slice(Slice *s, const char *spec, const SafetensorsTensor *t);  /* dies */
void print_index(FILE *out, const SafetensorsTensor *t, uint64_t element); /* [3, 17] */
/* Before files are written: Ctrl-C is noted, and a file-size limit is an error like a full disk. */
void prepare_writing(void);

/* What a FileProgress is told with: shows done of total, and stops the work after Ctrl-C. */
typedef struct {
    const char *what;
    uint64_t done, total;
} Progress;
int tell_progress(void *context, uint64_t bytes);

#endif
