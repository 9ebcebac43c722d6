/* Files as downloads leave them: what stands where a model's file should, and the command that mends it. */
#ifndef DOWNLOAD_H
#define DOWNLOAD_H

#include "base/base.h"

/* The command that downloads a model, for messages, as it can be typed here: ./download.sh, FOLDER/download.sh if the
 * program is run from elsewhere, or run-download where it was installed. The text is static. */
const char *download_command(void);

/* The folder of the running program, fresh, links resolved. NULL if the system does not tell. */
char *download_program_folder(void);

/* Tell by its first bytes what kind of file stands where a model's file should: write "a Git LFS pointer, not the file
 * itself; get that with git lfs pull or ./download.sh", to follow "PATH is ". False if the bytes do not tell. */
bool download_tell(const char *bytes, size_t length, size_t file_size, char out[320]);

/* Write a sentence about the file at path, whose content is text[0..length): what it is instead of the file that was
 * expected or, if its bytes do not tell, `why`. Returns -1. */
int download_fail(const char *path, const char *text, size_t length, const char *why, char err[512]);

#endif
