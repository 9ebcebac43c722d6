#include "commands/likelihood.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/elementary.h"
#include "kernels/vector.h"

int log_sum_exp(const float *logits, size_t n, float *largest, double *log_sum)
{
    bool bad = false;
    float top = logits[argmax_f32(logits, n, &bad)];
    double sum = 0;
    if (bad || !isfinite(top))
        return -1;
    for (size_t i = 0; i < n; i++)
        sum += exp_f64((double)logits[i] - (double)top);
    *largest = top;
    *log_sum = log_f64(sum);
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const Ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

int rank_logits(const float *logits, size_t n, size_t count, Ranked *out)
{
    float largest;
    double log_sum;
    if (log_sum_exp(logits, n, &largest, &log_sum))
        return -1;
    for (size_t i = 0; i < n; i++)
        out[i] = (Ranked){(int)i, logits[i], 0};
    qsort(out, n, sizeof *out, by_rank);
    for (size_t i = 0; i < count; i++)
        out[i].probability = exp_f64((double)out[i].logit - (double)largest - log_sum);
    return 0;
}
