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

#define DRAFT_OPTION(what)                                                                                             \
    {                                                                                                                  \
        0, "draft", "WHAT", OPTION_TEXT, &(what),                                                                      \
            "propose tokens for the model to verify, several in a step: lookup (what followed the same words "         \
            "before), q8 or q4 "                                                                                       \
            "(the model itself, quantized), or a smaller model with the same tokenizer; the text stays the same"       \
    }

/* Open what --draft names for a session that was opened with room for DRAFT_MOST + 1 logits, or for NULL nothing. Returns
 * the drafter, or NULL. Dies if it cannot be. */
Drafter *drafts_open(Drafts *d, Session *s, const char *what);
void drafts_close(Drafts *d);

#endif
