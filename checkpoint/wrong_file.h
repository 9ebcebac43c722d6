/* What stands where a checkpoint should: most often a download that went wrong. */
#ifndef CHECKPOINT_WRONG_FILE_H
#define CHECKPOINT_WRONG_FILE_H

#include "base/base.h"
#include "safetensors.h"

/* Both write a sentence into err, which says what was found and what to do about it, and return -1. */

/* Explain why the file at path could not be opened: by what its first bytes are, or else by st->error. */
int wrong_file_explain(const SafetensorsFile *st, const char *path, char err[512]);
/* Explain what a folder without weights has that may be meant. */
int wrong_file_explain_folder(const char *folder, char err[512]);

#endif
