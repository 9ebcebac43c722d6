/* config.json -> Config. What forward() does not compute is refused by name: other architectures, quantized
 * checkpoints, rope types other than default, linear and YaRN. */
#include "checkpoint/config.h"

#include <stdlib.h>

#include "base/download.h"
#include "json.h"
#include "kernels/elementary.h"

/* The largest size that config.json may ask for: far beyond any model, and small enough that the product of two fits 64
 * bits. */
#define MAX_SIZE 0x7fffffffu
#define MAX_LAYERS 65536u

/* Read a size that must be there. */
static int require_size(const JsonLookup *f, const char *key, size_t most, size_t *out)
{
    if (!json_lookup(f, key))
        return fail(f->err, "%s: \"%s\" is missing", f->file, key);
    return json_lookup_size(f, key, 1, most, out);
}

/* A name of the file, for a message: its first 80 bytes, or "?" if it is not text. */
typedef char Name[81];

static const char *name_of(const JsonValue *v, Name out)
{
    bool is_text = v && v->type == JSON_STRING;
    snprintf(out, sizeof(Name), "%.*s", is_text ? (int)MIN(v->length, sizeof(Name) - 1) : 1, is_text ? v->text : "?");
    return out;
}

/* MLX writes "quantization", and the same as "quantization_config", which has no method there. */
static int check_quantization(const JsonLookup *f)
{
    const JsonValue *mlx = json_lookup(f, "quantization"), *config = json_lookup(f, "quantization_config");
    const JsonValue *method = json_get(config, "quant_method");
    Name name;
    if (!mlx && !config)
        return 0;
    return fail(f->err,
                "%s: the weights are quantized (%s), which is not supported: use the original BF16 checkpoint, which "
                "-w q8 and -w q4 quantize",
                f->file, method ? name_of(method, name) : mlx ? "MLX" : "quantization_config");
}

static int check_architecture(const JsonLookup *f)
{
    const JsonValue *list = json_lookup(f, "architectures"), *type = json_lookup(f, "model_type");
    Name name;
    if (list) {
        const JsonValue *a = list->type == JSON_ARRAY ? list->child : NULL, *first = a ? a : list;
        while (a && !json_string_is(a, "Qwen2ForCausalLM") && !json_string_is(a, "Qwen2Model")) /* the base model */
            a = a->next;
        if (!a)
            return fail(f->err, "%s: architecture %s is not supported; this program runs Qwen2ForCausalLM", f->file,
                        name_of(first, name));
    } else if (!json_string_is(type, "qwen2")) {
        return fail(f->err, "%s: neither \"architectures\" nor \"model_type\" says that this is a Qwen2 model",
                    f->file);
    }
    if (check_quantization(f) != 0)
        return -1;
    const JsonValue *act = json_lookup(f, "hidden_act");
    if (act && !json_string_is(act, "silu"))
        return fail(f->err, "%s: \"hidden_act\" is %s; only silu is supported", f->file, name_of(act, name));
    return 0;
}

static int parse_sizes(const JsonLookup *f, Config *c)
{
    size_t n_bos;
    int bos = -1;
    if (require_size(f, "hidden_size", MAX_SIZE, &c->dim) ||
        require_size(f, "intermediate_size", MAX_SIZE, &c->hidden_dim) ||
        require_size(f, "num_hidden_layers", MAX_LAYERS, &c->n_layers) ||
        require_size(f, "num_attention_heads", MAX_SIZE, &c->n_heads) ||
        require_size(f, "vocab_size", MAX_SIZE, &c->vocab_size))
        return -1;
    c->n_kv_heads = c->n_heads;
    c->max_positions = 32768;
    if (json_lookup_size(f, "num_key_value_heads", 1, MAX_SIZE, &c->n_kv_heads) ||
        json_lookup_size(f, "max_position_embeddings", 1, MAX_SIZE, &c->max_positions) ||
        json_lookup_ids(f, "eos_token_id", c->eos_token_ids, COUNT_OF(c->eos_token_ids), &c->n_eos) ||
        json_lookup_ids(f, "bos_token_id", &bos, 1, &n_bos))
        return -1;
    c->bos_token_id = bos;
    if (c->n_heads % c->n_kv_heads)
        return fail(f->err, "%s: %zu key/value heads do not divide %zu attention heads", f->file, c->n_kv_heads,
                    c->n_heads);
    if (c->dim % c->n_heads == 0)
        c->head_dim = c->dim / c->n_heads;
    else if (!json_lookup(f, "head_dim"))
        return fail(f->err, "%s: %zu heads do not divide hidden_size %zu, and there is no head_dim", f->file,
                    c->n_heads, c->dim);
    if (json_lookup_size(f, "head_dim", 1, MAX_SIZE, &c->head_dim))
        return -1;
    if (c->head_dim % 2)
        return fail(f->err, "%s: head_dim %zu is odd, but rotary embedding works on pairs", f->file, c->head_dim);
    if (c->head_dim > MAX_SIZE / c->n_heads)
        return fail(f->err, "%s: %zu heads of %zu are too many", f->file, c->n_heads, c->head_dim);
    c->q_dim = c->n_heads * c->head_dim;
    c->kv_dim = c->n_kv_heads * c->head_dim;
    return 0;
}

/* Some layers see only the last sliding_window positions: those that layer_types lists, or without that list those from
 * max_window_layers on. */
static int parse_windows(const JsonLookup *f, Config *c)
{
    bool use = false;
    const JsonValue *window = json_get(f->object, "sliding_window"), *types = json_lookup(f, "layer_types");
    size_t first = 28; /* the reference's default */
    if (json_lookup_bool(f, "use_sliding_window", &use))
        return -1;
    if (use && !(window && window->type == JSON_NULL)) { /* null: no window, whatever use_sliding_window says */
        c->sliding_window = 4096;
        if (json_lookup_size(f, "sliding_window", 1, MAX_SIZE, &c->sliding_window))
            return -1;
    }
    if (json_lookup_size(f, "max_window_layers", 0, SIZE_MAX, &first))
        return -1;
    c->layer_is_sliding = calloc(c->n_layers, sizeof *c->layer_is_sliding);
    if (!c->layer_is_sliding)
        return fail(f->err, "%s: out of memory for %zu layers", f->file, c->n_layers);
    if (!types) {
        for (size_t l = 0; l < c->n_layers; l++)
            c->layer_is_sliding[l] = c->sliding_window && l >= first;
        return 0;
    }
    if (types->type != JSON_ARRAY || types->length != c->n_layers)
        return fail(f->err, "%s: \"layer_types\" must list %zu layers", f->file, c->n_layers);
    size_t l = 0;
    for (const JsonValue *t = types->child; t; t = t->next, l++) {
        c->layer_is_sliding[l] = json_string_is(t, "sliding_attention");
        if (!c->layer_is_sliding[l] && !json_string_is(t, "full_attention"))
            return fail(f->err,
                        "%s: type of layer %zu in \"layer_types\" is neither full_attention nor sliding_attention",
                        f->file, l);
        if (c->layer_is_sliding[l] && !c->sliding_window)
            return fail(f->err, "%s: layer %zu is sliding_attention, but no sliding window is in use", f->file, l);
    }
    return 0;
}

static double yarn_attention_factor(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log_f64(factor) + 1;
}

static int parse_yarn(const JsonLookup *rope, Config *c)
{
    double mscale = 0, mscale_all = 0;
    c->rope.original_positions = (double)c->max_positions;
    c->rope.beta_fast = 32;
    c->rope.beta_slow = 1;
    c->rope.truncate = true;
    if (json_lookup_number(rope, "original_max_position_embeddings", 1, MAX_SIZE, &c->rope.original_positions))
        return -1;
    c->rope.factor = (double)c->max_positions / c->rope.original_positions;
    if (json_lookup_number(rope, "factor", 1e-6, 1e6, &c->rope.factor) ||
        json_lookup_number(rope, "beta_fast", 0, 1e6, &c->rope.beta_fast) ||
        json_lookup_number(rope, "beta_slow", 0, 1e6, &c->rope.beta_slow) ||
        json_lookup_number(rope, "mscale", 0, 1e6, &mscale) ||
        json_lookup_number(rope, "mscale_all_dim", 0, 1e6, &mscale_all) ||
        json_lookup_bool(rope, "truncate", &c->rope.truncate))
        return -1;
    if (c->rope.beta_fast == 0)
        c->rope.beta_fast = 32;
    if (c->rope.beta_slow == 0)
        c->rope.beta_slow = 1;
    c->rope.attention_factor = yarn_attention_factor(c->rope.factor, 1);
    if (mscale > 0 && mscale_all > 0)
        c->rope.attention_factor =
            yarn_attention_factor(c->rope.factor, mscale) / yarn_attention_factor(c->rope.factor, mscale_all);
    return json_lookup_number(rope, "attention_factor", 0, 1e6, &c->rope.attention_factor);
}

/* Old files have rope_theta and rope_scaling, new ones rope_parameters with all of it. */
static int parse_rope(const JsonLookup *f, Config *c)
{
    const JsonValue *object = json_lookup(f, "rope_scaling");
    if (!object || !object->length)
        object = json_lookup(f, "rope_parameters");
    if (object && object->type != JSON_OBJECT)
        return fail(f->err, "%s: \"rope_scaling\" and \"rope_parameters\" must be objects", f->file);
    const JsonLookup rope = {object, f->file, f->err};
    double partial = 1;
    c->rope_theta = 10000;
    if (json_lookup_number(f, "rope_theta", 1e-3, 1e15, &c->rope_theta) ||
        json_lookup_number(&rope, "rope_theta", 1e-3, 1e15, &c->rope_theta) ||
        json_lookup_number(f, "partial_rotary_factor", 0, 1, &partial) ||
        json_lookup_number(&rope, "partial_rotary_factor", 0, 1, &partial))
        return -1;
    if (partial < 1)
        return fail(f->err, "%s: \"partial_rotary_factor\" is not supported", f->file);
    const JsonValue *type = json_lookup(&rope, "rope_type");
    if (!type)
        type = json_lookup(&rope, "type");
    if (!type || json_string_is(type, "default"))
        return 0;
    if (json_string_is(type, "linear")) {
        c->rope_type = ROPE_LINEAR;
        if (!json_lookup(&rope, "factor"))
            return fail(f->err, "%s: linear rope scaling without a \"factor\"", f->file);
        return json_lookup_number(&rope, "factor", 1e-6, 1e6, &c->rope.factor);
    }
    if (json_string_is(type, "yarn")) {
        c->rope_type = ROPE_YARN;
        return parse_yarn(&rope, c);
    }
    Name name;
    return fail(f->err, "%s: rope type \"%s\" is not supported; default, linear and yarn are", f->file,
                name_of(type, name));
}

/* As in the reference, attention is the usual one, which is the same up to the positions before stretching. */
static int parse_dual_chunk(const JsonLookup *f, Config *c)
{
    const JsonLookup dual = {json_lookup(f, "dual_chunk_attention_config"), f->file, f->err};
    size_t original = c->max_positions;
    if (json_lookup_size(&dual, "original_max_position_embeddings", 1, MAX_SIZE, &original) != 0)
        return -1;
    c->max_positions = MIN(c->max_positions, original);
    return 0;
}

static int parse(const JsonLookup *f, Config *c)
{
    double eps = 1e-6;
    if (f->object->type != JSON_OBJECT)
        return fail(f->err, "%s: not a JSON object", f->file);
    if (check_architecture(f) || parse_sizes(f, c) || parse_windows(f, c) || parse_rope(f, c) ||
        parse_dual_chunk(f, c) ||
        json_lookup_number(f, "rms_norm_eps", 0, 1, &eps) ||
        json_lookup_bool(f, "tie_word_embeddings", &c->tie_word_embeddings))
        return -1;
    c->rms_norm_eps = (float)eps;
    return 0;
}

int config_parse(Config *c, const char *text, size_t length, const char *name, char err[512])
{
    char why[512];
    *c = (Config){0};
    JsonValue *root = json_parse(text, length, why);
    if (!root)
        return download_fail(name, text, length, why, err);
    int status = parse(&(JsonLookup){root, name, err}, c);
    json_free(root);
    if (status != 0)
        config_free(c);
    return status;
}
