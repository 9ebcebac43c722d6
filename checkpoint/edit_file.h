/* A file of a checkpoint while it is edited or undone: its lock, its journal, and what is done with the journal's records.
 * For edit.c and undo.c.
 */
#ifndef CHECKPOINT_EDIT_FILE_H
#define CHECKPOINT_EDIT_FILE_H

#include "base/base.h"
#include "checkpoint/journal.h"
#include "safetensors.h"

typedef struct {
    const SafetensorsFile *st;
    char *path; /* links resolved */
    int fd;     /* locked; -1: not yet */
    mode_t mode;
    size_t links; /* how many names it has */
    Journal journal;
    SafetensorsFile *own; /* NULL, or st, opened for this alone */
} EditFile;

int edit_file_find(EditFile *f, const SafetensorsFile *st, char err[512]); /* its path and where its journal is */
int edit_file_lock(EditFile *f, char err[512]);
void edit_file_close(EditFile *f); /* gives the lock back; safe on a zeroed struct */
/* Check that the file of that name is still the one that was opened, and as long. */
int edit_file_check_same(const EditFile *f, char err[512]);
void edit_file_hash_header(const EditFile *f, unsigned char hash[32]);

/* First i in [begin, end) where a and b differ, else end. */
size_t edit_file_first_difference(const unsigned char *a, const unsigned char *b, size_t begin, size_t end);

/* Each is a JournalVisit of an EditFile: write what the record has for after the edit; check that it is in the file;
 * check that each byte is that of before or that of after. */
int edit_file_write_after(void *file, const JournalRecord *r, char err[512]);
int edit_file_check_after(void *file, const JournalRecord *r, char err[512]);
int edit_file_check_either(void *file, const JournalRecord *r, char err[512]);

/* Let file i be number *chosen, which grows: those of one step come first. */
void edit_files_choose(EditFile *files, size_t i, size_t *chosen);
/* Bring n files, which have journals, back to what they were before the step, and remove the journals. */
int edit_files_restore(EditFile *files, size_t n, char err[512]);

#endif
