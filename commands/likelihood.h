/* How likely each token is: the softmax of logits, in double. */
#ifndef LIKELIHOOD_H
#define LIKELIHOOD_H

#include "base/base.h"

/* Find the largest of logits[n] and the logarithm of the sum of exp(logit - largest). -1 if they are not finite. */
int log_sum_exp(const float *logits, size_t n, float *largest, double *log_sum);

typedef struct {
    int id;
    float logit;
    double probability;
} Ranked;
/* Sort all n ids into out[n], the most likely first, of equal ones the lower id first, and give the first `count` (<=
 * n) their probability. -1 if the logits are not finite. */
int rank_logits(const float *logits, size_t n, size_t count, Ranked *out);

#endif
