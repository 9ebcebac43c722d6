/* config.json, which decides every size of a model. */
#ifndef CHECKPOINT_CONFIG_H
#define CHECKPOINT_CONFIG_H

#include "net.h"

/* Read config.json's text; name is what messages call it. Keys of old files (rope_theta, rope_scaling) and of new ones
 * (rope_parameters) are known; what is missing has the reference's default. -1 and a sentence if a value is wrong or
 * asks for what forward() does not compute. Free c with config_free(). */
int config_parse(Config *c, const char *text, size_t length, const char *name, char err[512]);

#endif
