/* --draft: what proposes tokens while a model generates (generate/draft.h). */
#ifndef DRAFTS_H
#define DRAFTS_H

#include "base/base.h"
#include "commands/session.h"
#include "generate/draft.h"

typedef struct {
    Drafter drafter;
    Model model; /* that proposes, if there is one */
    RunState state;
    Checkpoint checkpoint; /* of another model */
} Drafts;

/* A row for a command's table of options. */
#define DRAFT_OPTION(what)                        \
    {0, "draft", "WHAT", OPTION_TEXT, &(what),    \
     "guess tokens by lookup, q8, q4 or a smaller model"}

/* Open what --draft names for a session that was opened with room for DRAFT_MOST + 1 logits, or for NULL nothing. Returns
 * the drafter, or NULL. Dies if it cannot be. */
Drafter *drafts_open(Drafts *d, Session *s, const char *what);
void drafts_close(Drafts *d);

#endif
