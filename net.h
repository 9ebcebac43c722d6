/* The network: Qwen2's sizes, its weights, the state of a run, and forward(). */
#ifndef NET_H
#define NET_H

#include "base/base.h"
#include "kernels/attention.h"

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN } RopeType;

/* config.json, checked. Sizes are size_t: a 72B model's products pass 2^32. */
typedef struct {
    size_t dim;        /* hidden_size: length of the residual stream */
    size_t hidden_dim; /* intermediate_size */
    size_t n_layers, n_heads, n_kv_heads, head_dim;
    size_t q_dim, kv_dim; /* n_heads * head_dim, n_kv_heads * head_dim */
    size_t vocab_size, max_positions;
    float rms_norm_eps;
    bool tie_word_embeddings;
    double rope_theta;
    RopeType rope_type;
    struct {
        double factor, original_positions, beta_fast, beta_slow, attention_factor; /* the last: on cosine and sine */
        bool truncate;
    } rope;
    size_t sliding_window;  /* 0: none */
    bool *layer_is_sliding; /* [n_layers] */
    int bos_token_id;       /* -1: none */
    int eos_token_ids[16];  /* as many as the file may list */
    size_t n_eos;
} Config;

void config_free(Config *c); /* checkpoint/config.h reads one */

/* How weights are held in memory: as float32; as they are in the file; as integers of 8 or 4 bits with scales. */
typedef enum { MODE_F32, MODE_BF16, MODE_Q8, MODE_Q4 } WeightMode;

/* Arrays are stacked by layer: layer l of q_proj starts at q_proj + l * q_dim * dim. MODE_F32 fills all of them. In the
 * other modes the seven projections, the embedding and the head are NULL and exist only as the Matrix views below;
 * biases and norms are always here. */
typedef struct {
    float *token_embedding_table;    /* [vocab][dim] */
    float *input_layernorm;          /* [layer][dim] */
    float *q_proj, *q_bias;          /* [layer][q_dim][dim], [layer][q_dim] */
    float *k_proj, *k_bias;          /* [layer][kv_dim][dim], [layer][kv_dim] */
    float *v_proj, *v_bias;          /* [layer][kv_dim][dim], [layer][kv_dim] */
    float *o_proj;                   /* [layer][dim][q_dim], no bias */
    float *post_attention_layernorm; /* [layer][dim] */
    float *gate_proj, *up_proj;      /* [layer][hidden][dim] */
    float *down_proj;                /* [layer][dim][hidden] */
    float *norm;                     /* [dim] */
    float *lm_head;                  /* [vocab][dim]; the embedding itself when tie_word_embeddings */

    Matrix embedding, head;   /* what forward() reads: views into the arrays above, into the mapped file, */
    Matrix *q, *k, *v, *o;    /* or into storage; [layer] each */
    Matrix *gate, *up, *down; /* [layer] */
    void *storage;            /* owned: quantized matrices, and those that cannot be viewed in the file */
    WeightMode mode;
} TransformerWeights;

/* Room in w (zeroed) for norms and biases stacked by layer, for the views, and with `arrays` for the seven projections
 * as float32. The embedding, the last norm and the head come from elsewhere. -1: out of memory. */
int weights_allocate(TransformerWeights *w, const Config *c, bool arrays);
/* Point the views at the float32 arrays, which must all be filled. */
void weights_view_arrays(TransformerWeights *w, const Config *c);
void weights_free(TransformerWeights *w); /* everything; also after a load that failed half-way */

typedef struct {
    Config config;
    TransformerWeights weights;
} Model;

/* Called by forward() after each step with the values of the block's last token (run explain prints them). layer is -1
 * outside of the layers; step is the tensor's name without "model.layers.N." and ".weight", or "attention". o_proj and
 * down_proj add their product to the residual stream, and values are that stream then; after down_proj the observer may
 * call net_head(). */
typedef void Observer(void *context, int layer, const char *step, const float *values, size_t n);

/* The keys and values of one sequence, in blocks of ATTENTION_BLOCK positions. Sequences that begin alike may share
 * blocks; what a sequence is going to write is its own. */
typedef struct {
    KvType type;
    size_t pos; /* positions in the cache, and the position of the next token */
    size_t ctx; /* most positions */
    size_t n_layers, layer_bytes;
    KvBlock **blocks; /* [ctx / ATTENTION_BLOCK, rounded up], NULL until reserved */
    size_t n_blocks;  /* reserved */
} KvCache;

int kv_cache_init(KvCache *k, const Config *c, KvType type, size_t ctx, char err[512]);
void kv_cache_free(KvCache *k);
/* Make room for the next n positions (pos + n <= ctx). What is in the cache is not moved; shared blocks that would be
 * written are copied. */
int kv_cache_reserve(KvCache *k, size_t n, char err[512]);
/* Forget the positions from pos on. */
void kv_cache_rewind(KvCache *k, size_t pos);
/* Let k, which must be of the same model and type, begin with the first n <= from->pos positions of `from`: it shares
 * their blocks. What k had is forgotten. */
void kv_cache_share(KvCache *k, const KvCache *from, size_t n);

/* Tokens of a step that continue one sequence. */
typedef struct {
    KvCache *cache;
    size_t n;        /* tokens, at least 1; room for them is reserved */
    size_t n_logits; /* how many of them, at the end, need logits */
    float *logits;   /* [n_logits][vocab], set by forward(): within the state's */
} Piece;

/* The buffers of a step, and the cache of the sequence that most commands run. */
typedef struct {
    KvCache cache;
    size_t block;         /* most tokens in one forward() */
    size_t most_logits;   /* how many tokens can have logits in one forward() */
    float *x;             /* [block][dim], the residual stream */
    float *xb;            /* [block][dim], x normalized: the input of the projections */
    float *q;             /* [block][q_dim] */
    float *k, *v;         /* [block][kv_dim] */
    float *att;           /* [block][q_dim], attention's output */
    float *gate;          /* [block][hidden_dim] */
    float *up;            /* [block][hidden_dim] */
    float *logits;        /* [most_logits][vocab] */
    float *inv_freq;      /* [head_dim / 2] */
    float rope_scale;     /* YaRN's factor on cosine and sine; 1 without */
    float *cosine, *sine; /* [block][head_dim / 2] */
    Piece *pieces;        /* of this step: [n_pieces]; NULL if all tokens continue `cache` */
    size_t n_pieces;
    KvCache **cache_of;   /* [block], of each token */
    size_t *position_of;  /* [block], of each token */
    Queries *queries;     /* [block], of each piece */
    Workspace ws;
    Observer *observe; /* or NULL */
    void *observe_context;
} RunState;

/* Allocate buffers for up to `block` tokens at a time, of which up to most_logits have logits, and an empty cache for
 * ctx positions. Start the pool of threads first. */
int run_state_init(RunState *s, const Config *c, KvType type, size_t ctx, size_t block, size_t most_logits,
                   char err[512]);
void run_state_free(RunState *s);
/* Bytes that a state takes once its cache is full, without the workspace. */
size_t run_state_bytes(const Config *c, KvType type, size_t ctx, size_t block);

/* Run tokens[0..n) (1 <= n <= s->block, ids below vocab_size, room reserved in the cache) through the network and
 * advance the cache by n. Return the logits [vocab] after the last token, or, if the state has room for several, those
 * after each of the last MIN(n, most_logits) tokens. Nothing is allocated.
 *
 * When s->pieces is set, the tokens are those of the first piece, then of the second, and so on; each piece's cache
 * advances, and each gets the logits that it asks for. A token's numbers depend on its own sequence alone: they are the
 * same to the bit in whatever company it is computed. */
const float *forward(Model *m, RunState *s, const int *tokens, int n);

/* Logits [vocab] that the head gives for a residual vector x [dim]: final norm, then the head. Overwrites s->xb. */
void net_head(const Model *m, RunState *s, const float *x, float *logits);

/* inv_freq [head_dim / 2] and the factor on cosine and sine, by the rope type. */
void rope_frequencies(const Config *c, float *inv_freq, float *scale);

#endif
