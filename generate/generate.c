#include "generate/generate.h"

#include "generate/batch.h"

int generate(Model *m, RunState *s, Sampler *sampler, const Tokenizer *t, const int *prompt, size_t n_prompt,
             const GenerateOptions *o, Generated *out, char err[512])
{
    Generation g, *running[] = {&g};
    int status = generation_start(&g, m, &s->cache, sampler, t, prompt, n_prompt, o, out, err);
    while (status == 0 && generation_goes_on(&g))
        status = batch_step(m, s, running, 1, o->drafter, err);
    if (status == 0)
        generation_finish(&g);
    if (g.failed)
        status = fail(err, "%s", g.err);
    generation_free(&g);
    return status;
}
