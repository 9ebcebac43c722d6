/* exp, log, sine and cosine: our own, since those of C libraries differ in the last bits. The results are the same on
 * every machine. */
#ifndef ELEMENTARY_H
#define ELEMENTARY_H

#include "base/base.h"

float exp_f32(float x); /* within 2 ulp */
double exp_f64(double x);
double log_f64(double x);                                 /* for probabilities in sampling and perplexity */
void sin_cos_f64(double x, double *sine, double *cosine); /* |x| up to 1e6: error below 1e-15 */

#endif
