/* Journals of edits. journal.h shows their layout. */
#include "checkpoint/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "safetensors.h"

#define MAGIC "RUNUNDO1"
#define HEAD 144 /* bytes before the records */

int journal_init(Journal *j, const char *file, char err[512])
{
    *j = (Journal){.part_fd = -1};
    j->path = path_with_suffix(file, ".undo");
    j->part = path_with_suffix(file, ".undo.part");
    j->old = path_with_suffix(file, ".undo.old");
    sha256_init(&j->records_hash);
    return j->path && j->part && j->old ? 0 : fail(err, "%s: out of memory", file);
}

void journal_end(Journal *j)
{
    if (j->path && j->part_fd >= 0) {
        close(j->part_fd);
        if (!j->published)
            unlink(j->part);
    }
    free(j->buffer);
    free(j->path);
    free(j->part);
    free(j->old);
    *j = (Journal){.part_fd = -1};
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static void put_u64(unsigned char *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(value >> 8 * i);
}

static void write_head(unsigned char out[HEAD], const JournalHead *h)
{
    memcpy(out, MAGIC, 8);
    put_u64(out + 8, h->state);
    put_u64(out + 16, h->step);
    put_u64(out + 24, h->files);
    put_u64(out + 32, h->size);
    memcpy(out + 40, h->header_hash, 32);
    put_u64(out + 72, h->records_bytes);
    memcpy(out + 80, h->records_hash, 32);
    sha256_of(out + 16, 96, out + 112);
}

static bool parse_head(const unsigned char in[HEAD], JournalHead *h)
{
    unsigned char hash[32];
    *h = (JournalHead){.state = read_u64_le(in + 8),
                       .step = read_u64_le(in + 16),
                       .files = read_u64_le(in + 24),
                       .size = read_u64_le(in + 32),
                       .records_bytes = read_u64_le(in + 72)};
    memcpy(h->header_hash, in + 40, 32);
    memcpy(h->records_hash, in + 80, 32);
    sha256_of(in + 16, 96, hash);
    return memcmp(in, MAGIC, 8) == 0 && memcmp(hash, in + 112, 32) == 0 &&
           (h->state == JOURNAL_CHANGING || h->state == JOURNAL_DONE);
}

static int open_journal(const Journal *j, int flags)
{
    return open(j->path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

int journal_read_head(const Journal *j, JournalHead *h, char err[512])
{
    unsigned char bytes[HEAD];
    int fd = open_journal(j, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT ? 1 : fail(err, "%s: %s", j->path, strerror(errno));
    int status = file_read_at(fd, bytes, HEAD, 0), error = errno;
    close(fd);
    if (status != 0 && error != ENODATA)
        return fail(err, "%s: %s", j->path, strerror(error));
    if (status != 0 || !parse_head(bytes, h))
        return fail(err, "%s is no journal of an edit, or it is damaged; nothing was changed", j->path);
    return 0;
}

int journal_set_state(const Journal *j, uint64_t state, char err[512])
{
    unsigned char bytes[8];
    int fd = open_journal(j, O_RDWR);
    put_u64(bytes, state);
    int status = fd < 0 || file_write_at(fd, bytes, 8, 8) != 0 || file_sync(fd) != 0
                     ? fail(err, "%s: %s", j->path, strerror(errno))
                     : 0;
    if (fd >= 0)
        close(fd);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int flush(Journal *j, char err[512])
{
    uint64_t at = HEAD + j->records_bytes - j->buffered;
    if (file_write_at(j->part_fd, j->buffer, j->buffered, at) != 0)
        return fail(err, "%s: %s (the journal of an edit needs as many bytes as it changes)", j->part, strerror(errno));
    j->buffered = 0;
    return 0;
}

static int put(Journal *j, const unsigned char *bytes, size_t n, char err[512])
{
    if (j->buffered + n > JOURNAL_MOST && flush(j, err) != 0)
        return -1;
    memcpy(j->buffer + j->buffered, bytes, n);
    j->buffered += n;
    j->records_bytes += n;
    sha256_update(&j->records_hash, bytes, n);
    return 0;
}

/* The shortest of 1, 2, 4, 8 bytes whose repetition the n bytes are; else n. */
static size_t period_of(const unsigned char *bytes, size_t n)
{
    for (size_t period = 1; period <= 8 && period < n; period *= 2)
        if (memcmp(bytes, bytes + period, n - period) == 0)
            return period;
    return n;
}

int journal_put(Journal *j, uint64_t offset, const unsigned char *before, const unsigned char *after, size_t n,
                mode_t mode, char err[512])
{
    unsigned char head[16];
    size_t period = period_of(after, n);
    if (j->part_fd < 0) {
        j->buffer = malloc(JOURNAL_MOST);
        j->part_fd = open(j->part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode & 0666);
        if (!j->buffer || j->part_fd < 0)
            return fail(err, "%s: %s", j->part, strerror(errno));
    }
    put_u64(head, offset);
    put_u64(head + 8, (uint64_t)n | (uint64_t)period << 32);
    if (put(j, head, 16, err) != 0 || put(j, before, n, err) != 0)
        return -1;
    return put(j, after, period, err);
}

int journal_finish(Journal *j, JournalHead *h, char err[512])
{
    unsigned char bytes[HEAD];
    h->state = JOURNAL_CHANGING;
    h->records_bytes = j->records_bytes;
    sha256_final(&j->records_hash, h->records_hash);
    write_head(bytes, h);
    if (flush(j, err) != 0)
        return -1;
    if (file_write_at(j->part_fd, bytes, HEAD, 0) != 0 || file_sync(j->part_fd) != 0)
        return fail(err, "%s: %s", j->part, strerror(errno));
    return 0;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

int journal_publish(Journal *j, char err[512])
{
    if (file_exists(j->path)) {
        if (rename(j->path, j->old) != 0)
            return fail(err, "%s: %s", j->old, strerror(errno));
        j->kept_old = true;
    }
    if (rename(j->part, j->path) != 0)
        return fail(err, "%s: %s", j->path, strerror(errno));
    j->published = true;
    return file_sync_folder(j->path) == 0 ? 0 : fail(err, "%s: its folder: %s", j->path, strerror(errno));
}

int journal_withdraw(Journal *j, char err[512])
{
    int status = 0;
    if (file_exists(j->old))
        status = rename(j->old, j->path);
    else if (j->published)
        status = unlink(j->path);
    if (status == 0)
        status = file_sync_folder(j->path);
    return status == 0 ? 0 : fail(err, "%s: %s", j->path, strerror(errno));
}

void journal_forget_old(Journal *j)
{
    if (j->kept_old)
        unlink(j->old);
    j->kept_old = false;
}

int journal_tidy(const Journal *j, char err[512])
{
    if (file_exists(j->old) && !file_exists(j->path) && rename(j->old, j->path) != 0)
        return fail(err, "%s: %s", j->old, strerror(errno));
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

int journal_check_records(const Journal *j, const JournalHead *h, char err[512])
{
    unsigned char hash[32], *chunk = malloc(JOURNAL_MOST);
    int fd = open_journal(j, O_RDONLY), status = chunk && fd >= 0 ? 0 : fail(err, "%s: %s", j->path, strerror(errno));
    Sha256 records;
    sha256_init(&records);
    for (uint64_t done = 0, n; status == 0 && done < h->records_bytes; done += n) {
        n = h->records_bytes - done < JOURNAL_MOST ? h->records_bytes - done : JOURNAL_MOST;
        if (file_read_at(fd, chunk, (size_t)n, HEAD + done) != 0)
            status = fail(err, "%s is cut short: it is damaged, and nothing is undone", j->path);
        else
            sha256_update(&records, chunk, (size_t)n);
    }
    sha256_final(&records, hash);
    if (status == 0 && memcmp(hash, h->records_hash, 32) != 0)
        status = fail(err, "%s is damaged: its records do not have the SHA-256 that it names, and nothing is undone",
                      j->path);
    if (fd >= 0)
        close(fd);
    free(chunk);
    return status;
}

/* 1: a record was read, 0: the end, -1: what is there is none. */
static int next_record(FILE *in, const JournalHead *h, uint64_t *left, JournalRecord *r)
{
    unsigned char head[16];
    if (*left == 0)
        return 0;
    if (*left < 16 || fread(head, 16, 1, in) != 1)
        return -1;
    uint64_t lengths = read_u64_le(head + 8);
    r->offset = read_u64_le(head);
    r->length = (uint32_t)lengths;
    r->period = (size_t)(lengths >> 32);
    if (r->length == 0 || r->length > JOURNAL_MOST || r->period == 0 || r->period > r->length ||
        *left - 16 < r->length + r->period || r->offset > h->size || h->size - r->offset < r->length)
        return -1;
    if (fread(r->before, r->length, 1, in) != 1 || fread(r->after, r->period, 1, in) != 1)
        return -1;
    for (size_t i = r->period; i < r->length; i++)
        r->after[i] = r->after[i - r->period];
    *left -= 16 + r->length + r->period;
    return 1;
}

int journal_visit(const Journal *j, JournalVisit *visit, void *context, char err[512])
{
    JournalHead h = {0};
    int found = journal_read_head(j, &h, err);
    if (found != 0)
        return found < 0 ? -1 : fail(err, "%s has gone", j->path);
    FILE *in = fopen(j->path, "rbe");
    unsigned char *memory = malloc(3 * JOURNAL_MOST);
    int status = in && memory && fseek(in, HEAD, SEEK_SET) == 0 ? 0 : fail(err, "%s: %s", j->path, strerror(errno)),
        more;
    JournalRecord r = {.before = memory};
    if (memory) {
        r.after = memory + JOURNAL_MOST;
        r.now = r.after + JOURNAL_MOST;
    }
    for (uint64_t left = h.records_bytes; status == 0 && (more = next_record(in, &h, &left, &r)) != 0;)
        status = more < 0 ? fail(err, "%s is damaged", j->path) : visit(context, &r, err);
    if (in)
        fclose(in);
    free(memory);
    return status;
}
