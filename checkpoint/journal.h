/* The journal of an edit of one file, FILE.undo: the bytes before and after. It is whole and on disk before the
 * first byte of FILE changes, and tells whether the edit was completed:
 *
 *     8   "RUNUNDO1"
 *     8   state: 1 while FILE is being changed, 2 when all of it is written and was read back
 *     8   the step's number: files that were changed together have the same
 *     8   how many files the step changed
 *     8   bytes of FILE
 *     32  SHA-256 of FILE's header with its length
 *     8   bytes of the records
 *     32  SHA-256 of the records
 *     32  SHA-256 of the 96 bytes above from the step's number on
 *         the records: offset in FILE (8), length (4), period (4), the length bytes before, then period bytes: byte i
 *         afterwards is number i mod period of these
 *
 * All numbers little-endian. The journal is written as FILE.undo.part; an earlier one waits as FILE.undo.old until
 * the edit is complete.
 */
#ifndef CHECKPOINT_JOURNAL_H
#define CHECKPOINT_JOURNAL_H

#include "base/base.h"
#include "base/sha256.h"

#include <sys/types.h>

#define JOURNAL_MOST ((size_t)1 << 20) /* bytes of one record */
enum { JOURNAL_CHANGING = 1, JOURNAL_DONE = 2 };

typedef struct {
    uint64_t state, step, files, size, records_bytes;
    unsigned char header_hash[32], records_hash[32];
} JournalHead;

typedef struct {
    char *path, *part, *old; /* FILE.undo, FILE.undo.part, FILE.undo.old */
    int part_fd;
    unsigned char *buffer; /* what is not yet written to part_fd */
    size_t buffered;
    uint64_t records_bytes;
    Sha256 records_hash;
    bool published; /* this step's journal has the name FILE.undo */
    bool kept_old;  /* an earlier one has become FILE.undo.old */
} Journal;

int journal_init(Journal *j, const char *file, char err[512]);
void journal_end(Journal *j); /* removes a journal that was not published; safe on a zeroed struct */

/* An earlier journal that an edit, cut off, had put aside gets its name back. The file must be locked. */
int journal_tidy(const Journal *j, char err[512]);
/* 1: there is no journal. -1: it is none, or its head is damaged. */
int journal_read_head(const Journal *j, JournalHead *h, char err[512]);
int journal_check_records(const Journal *j, const JournalHead *h, char err[512]); /* their SHA-256 */

/* Writing one: records, then the head (its state and hash of the records are filled in), then the name. */
int journal_put(Journal *j, uint64_t offset, const unsigned char *before, const unsigned char *after, size_t n,
                mode_t mode, char err[512]);
int journal_finish(Journal *j, JournalHead *h, char err[512]);
int journal_publish(Journal *j, char err[512]);
int journal_set_state(const Journal *j, uint64_t state, char err[512]);
int journal_withdraw(Journal *j, char err[512]); /* FILE is as it was: the journal goes, an earlier one comes back */
void journal_forget_old(Journal *j);             /* the edit is complete */

typedef struct {
    uint64_t offset;
    size_t length, period;
    unsigned char *before, *after; /* [length], after is written out */
    unsigned char *now;            /* [length] scratch */
} JournalRecord;
typedef int JournalVisit(void *context, const JournalRecord *r, char err[512]);
/* Goes through the records in order until one of the calls is not 0. */
int journal_visit(const Journal *j, JournalVisit *visit, void *context, char err[512]);

#endif
