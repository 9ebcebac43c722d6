/* What stands where a checkpoint should: most often a download that went wrong. */
#ifndef CHECKPOINT_WRONG_FILE_H
#define CHECKPOINT_WRONG_FILE_H

#include "base/base.h"
#include "safetensors.h"

/* Each writes a sentence into err, which says what was found and what to do about it, and returns -1. */

/* Explain why the file at path could not be opened: by what its first bytes are, or else by st->error. */
int wrong_file_explain(const SafetensorsFile *st, const char *path, char err[512]);
/* Explain why safetensors_find_weight() did not find that name: another prefix, a LoRA adapter, or else st->error. */
int wrong_file_explain_names(const SafetensorsFile *st, const char *name, char err[512]);
/* Is the open file, or what lies in the folder, a LoRA adapter? Then err tells what to do. st may be NULL. */
bool wrong_file_is_adapter(const SafetensorsFile *st, const char *folder, char err[512]);
/* Explain what a folder without weights has that may be meant. */
int wrong_file_explain_folder(const char *folder, char err[512]);

#endif
