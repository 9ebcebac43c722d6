/* The journal of an edit of one file, FILE.undo: the bytes before and after. It is complete and on disk before the
 * first byte of FILE changes, and tells whether the edit was completed. It is a JournalHead and then the records, each
 *
 *     8         where in FILE
 *     4         length: bytes that change
 *     4         period
 *     length    the bytes before
 *     period    bytes that, repeated, are the bytes after
 *
 * with all numbers little-endian. It is written under a fresh name, FILE.undo.XXXXXXXX.part, and locked while it is; an
 * earlier one waits as FILE.undo.old until the edit is complete. What is found under these names is taken for a journal
 * only if it begins like one. The name of a long FILE is cut (path_with_suffix()). When a file has several names in its
 * folder, the journal is beside whichever of them it was made for, and is found by each.
 */
#ifndef CHECKPOINT_JOURNAL_H
#define CHECKPOINT_JOURNAL_H

#include "base/base.h"
#include "base/file.h"
#include "base/sha256.h"

#include <sys/types.h>

#define JOURNAL_MOST FILE_BUFFER /* bytes of one record */

/* How far a step is, which changes one file or several. All its journals reach a state before the first goes on to the
 * next. */
enum {
    JOURNAL_CHANGING = 1, /* the files are being changed */
    JOURNAL_DONE = 2,     /* all of it was read back */
    JOURNAL_UNDOING = 3,  /* the files are being restored; then the journals are removed, one by one */
    JOURNAL_READY = 4     /* the journals are being published; no file has changed yet */
};

/* As it is on disk: 144 bytes, little-endian like the machine. */
typedef struct {
    char magic[8]; /* "RUNUNDO1" */
    uint64_t state;
    uint64_t step;                 /* files that were changed together have the same */
    uint64_t files;                /* that the step changed */
    uint64_t size;                 /* of FILE */
    unsigned char header_hash[32]; /* SHA-256 of FILE's header with its length */
    uint64_t records_bytes;
    unsigned char records_hash[32]; /* SHA-256 of the records */
    unsigned char hash[32];         /* SHA-256 of the 96 bytes from `step` on */
} JournalHead;

typedef struct {
    char *path, *old;   /* FILE.undo, FILE.undo.old */
    char *part;         /* NULL until it is begun */
    JournalHead head;   /* as it was read, or as it will be written */
    FileBuffer records; /* on their way to `part`, which is records.fd; -1: not begun */
    Sha256 records_hash;
    bool published; /* this step's journal has the name FILE.undo */
    bool kept_old;  /* an earlier one has become FILE.undo.old */
} Journal;

int journal_init(Journal *j, const char *file, char err[512]);
void journal_end(Journal *j); /* remove a journal that was not published; safe on a zeroed struct */

/* Rename FILE.undo.old back to FILE.undo if an interrupted edit left it there, and remove journals that were never
 * published. The file must be locked. */
int journal_clean_up(const Journal *j, char err[512]);
/* How many journals in a file's folder were begun by edits that were killed, and never published. */
size_t journal_count_leftovers(const char *file);
/* Call visit for each file in that file's folder whose journal is of this step, until it returns false. */
typedef bool JournalStepVisit(void *context, const char *file, const JournalHead *head);
void journal_visit_step(const char *file, uint64_t step, JournalStepVisit *visit, void *context);
/* Read the head. Returns 1 if there is no journal, -1 if the file is something else or its head is damaged. */
int journal_read_head(Journal *j, char err[512]);

/* Write a journal: records, then the head (the caller has filled in step, files, size and header_hash), then the
 * name. */
int journal_put(Journal *j, uint64_t offset, const unsigned char *before, const unsigned char *after, size_t n,
                mode_t mode, char err[512]);
int journal_finish(Journal *j, char err[512]);
int journal_publish(Journal *j, char err[512]);
int journal_set_state(Journal *j, uint64_t state, char err[512]);
int journal_withdraw(Journal *j, char err[512]); /* FILE is as it was: remove the journal, bring an earlier one back */
void journal_forget_old(Journal *j);             /* the edit is complete: remove the earlier journal */

typedef struct {
    uint64_t offset;
    size_t length;
    unsigned char *before, *after; /* [length] */
    unsigned char *now;            /* [length] scratch */
} JournalRecord;
typedef int JournalVisit(void *context, const JournalRecord *r, char err[512]);
/* Visit the records in order, until one of the calls returns -1; with visit NULL only check their SHA-256. The head
 * must have been read or written. */
int journal_visit(const Journal *j, JournalVisit *visit, void *context, char err[512]);

#endif
