/* language_model.h - language models as their authors ship them, written as graphs on genie.h.

   One C file of the program:   #define LANGUAGE_MODEL_IMPLEMENTATION
                                #include "language_model.h"
   Elsewhere:                   #include "language_model.h"   C99, C++11; POSIX; genie.h, gguf.h, json.h, mapping.h,
                                                              safetensors.h
       char error[LM_ERROR];
       lm_model *m = lm_open("model-dir", GN_DTYPE_NONE, error);       config.json and weights are checked
       lm_load(m, gn_open(NULL), LM_WEIGHTS, error);                   weights of the context, straight from the file
       lm_session s;
       lm_session_open(&s, m, 1024, error);                            a KV cache for 1024 tokens
       gn_tensor x = lm_forward(&s, ids, 5);                           ids (5) i32 or i64: -> (5, dim)
       gn_read(lm_logits(m, gn_slice(x, 0, -1, GN_END, 1)), ...);      (1, vocab) f32
       gn_step(m->g);
       ...                                                             many sequences in one plan: lm_pages_open
       gn_close(m->g);
       lm_close(m);                                                    after the context: it borrows the file

   Read: a directory with config.json and safetensors, or a GGUF file (its quantised weights are used as they lie,
   unless a dtype is asked for; the stacks of experts are widened when they are loaded). Families: the table
   lm__families; examples/adding_a_family.md says how to add one. What a configuration asks for that is not here is
   refused by its name, and so is a tensor that the family does not have:
   text that is nearly right is wrong. Of two things a GGUF file says nothing unless its writer adds the keys
   attention.scale and expert_weights_norm: llama.cpp's reader then knows from the architecture what is meant, and so
   does this one (lm_family's gguf_normed and width_scaled; lm_model's note says where scores are divided by another
   number than head_dim's root). Where a model has long and short factors of the rotary embedding, a session's context
   decides which are used, not how many tokens are in it. */
#ifndef LANGUAGE_MODEL_H
#define LANGUAGE_MODEL_H

#include "genie.h"
#include "gguf.h"
#include "safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LM_ERROR = 640, LM_LAYERS = 512, LM_ENDS = 16 };

/* What a tensor is for. One of each outside the layers, then one of each in every layer. */
typedef enum lm_role {
    LM_EMBEDDING,  /* (vocab, dim) */
    LM_PLACES,     /* (context, dim): learned positions */
    LM_FINAL_NORM, /* (dim) */
    LM_FINAL_NORM_BIAS,
    LM_HEAD, /* (vocab, dim); not there when tied */
    LM_HEAD_BIAS,
    LM_ROTARY_FACTORS, /* (pairs): what frequencies are divided by; GGUF */
    LM_ROTARY_LONG,    /* (pairs): the same in a session of more than config.rotary.context tokens */
    LM_ROTARY_SHORT,   /* (pairs): in the others */
    LM_OUTER,
    LM_NORM1 = LM_OUTER, /* before attention */
    LM_NORM1_BIAS,
    LM_QKV, /* queries, keys and values in one */
    LM_QKV_BIAS,
    LM_Q,
    LM_Q_BIAS,
    LM_K,
    LM_K_BIAS,
    LM_V,
    LM_V_BIAS,
    LM_Q_NORM, /* (head_dim) */
    LM_K_NORM,
    LM_O,
    LM_O_BIAS,
    LM_POST_NORM1, /* after attention */
    LM_NORM2,      /* before the MLP */
    LM_NORM2_BIAS,
    LM_GATE_UP, /* gate and up in one */
    LM_GATE_UP_BIAS,
    LM_GATE,
    LM_GATE_BIAS,
    LM_UP,
    LM_UP_BIAS,
    LM_DOWN,
    LM_DOWN_BIAS,
    LM_POST_NORM2, /* after the MLP */
    LM_ROUTER,     /* (experts, dim) */
    LM_SHARED, /* (1, dim), or (dim): the share of the expert that all tokens go through; it is LM_GATE to LM_DOWN */
    LM_EXPERT_GATE, /* (experts, expert_inner, dim) */
    LM_EXPERT_UP,
    LM_EXPERT_DOWN, /* (experts, dim, expert_inner) */
    LM_ROLES
} lm_role;

typedef enum lm_activation { LM_SILU, LM_GELU, LM_GELU_TANH, LM_RELU } lm_activation;

/* Numbers of a model; 0: the family has no such thing. */
typedef struct lm_config {
    int64_t vocab, dim, layers, heads, kv_heads, head_dim, inner, context; /* context: tokens it was made for */
    int64_t window, window_pattern, window_from; /* tokens that windowed layers see; every Nth layer sees all, 0: none;
                                                    layers before window_from see all */
    double norm_eps, rotary_base, rotary_part, local_rotary_base; /* part: share of a head that is turned */
    double query_scalar;                                          /* scores are divided by its root; 0: head_dim */
    double attention_cap, logit_cap;
    int64_t experts, experts_used, expert_inner, normed_experts; /* normed: shares of those used add up to 1; bool */
    int64_t shared_inner;                                        /* of the expert that all tokens go through */
    int64_t activation, tied;                                    /* lm_activation; bool, -1: as the files are */
    int64_t end[LM_ENDS], n_end;                                 /* tokens that end a text */
    gn_rotary_desc rotary;
    uint8_t windowed[LM_LAYERS];
} lm_config;

typedef struct lm_family lm_family;
typedef struct lm_tensor lm_tensor;

typedef struct lm_model {
    lm_config config;
    const lm_family *family;
    gn_dtype dtype;     /* of weights, cache and activations */
    const char *source; /* "safetensors", "GGUF" */
    gn_ctx *g;          /* from lm_load on */
    lm_tensor *tensors; /* (1 + layers) * LM_ROLES, outer ones are those of layer -1 */
    gn_tensor *w;       /* the same; GN_NONE: there is none */
    gn_quantized *q;    /* the same, of those that are quantised; others have no format */
    gn_quant quant;     /* what matrices become when they are loaded; GN_QUANT_NONE: as they are */
    bool as_stored;     /* no dtype was asked for */
    float *factors;     /* NULL, or (2, pairs) of config.json: LM_ROTARY_LONG, LM_ROTARY_SHORT */
    char note[288];     /* empty, or what was taken to be so where the file does not say: to be shown */
    safetensors *files;
    gguf *gguf;
} lm_model;

/* Many sequences in one plan: the KV caches of all layers as pools of pages, and who holds which page. */
typedef struct lm_pages {
    lm_model *m;
    gn_kv_pages *held;
    gn_kv_pages_desc desc;
    gn_tensor *pool; /* keys and values of each layer (pages, kv_heads, page_size, head_dim) */
} lm_pages;

/* The rows of one step, n tokens of any sequences: data of the step. slots -1 and sequences -1 where a row is of none;
   its position is still one of the model's. */
typedef struct lm_rows {
    int64_t n;
    gn_tensor ids, positions, sequences, slots; /* (n) i32 or i64 */
    gn_tensor table;                            /* (sequences, pages of the longest, or more) */
    gn_tensor from, to;                         /* pages to copy first; GN_NONE: none */
} lm_rows;

/* One pass of `tokens` tokens of each of `batch` sequences through the layers. */
typedef struct lm_pass {
    const lm_model *m;
    int64_t batch, tokens;
    gn_tensor position;    /* 0-d i32: of the first token; GN_NONE without a cache */
    gn_tensor places;      /* (tokens) i32: position + 0, 1 … */
    gn_tensor *cache;      /* keys and values of each layer (batch, kv_heads, context, head_dim); NULL: none */
    int64_t context;       /* most tokens of a sequence */
    const lm_pages *pages; /* NULL, or the batch is one, its tokens are `rows` */
    const lm_rows *rows;
} lm_pass;

/* A sequence: its KV cache, and where it ends. */
typedef struct lm_session {
    lm_model *m;
    int64_t context, position; /* tokens it has room for; tokens in it. May be set back */
    gn_tensor *cache;
} lm_session;

/* `path`: a directory, or a GGUF file (of splits the first). dtype: GN_F32, GN_F16 or GN_BF16, to which what the file
   holds is converted; GN_DTYPE_NONE: as the file has it; what is
   quantised stays so, and is computed with in f32. NULL: `error` says why. */
lm_model *lm_open(const char *path, gn_dtype dtype, char error[LM_ERROR]);
void lm_close(lm_model *m); /* after gn_close of its context */
/* Before lm_load: the matrices of layers, head and embedding become GN_QUANT_INT8 or INT4 (groups of 64 columns, or as
   many as divide a row, scales f16) or FP8_E4M3 (a scale a row); those of experts do not. Computed on this CPU. */
void lm_quantize(lm_model *m, gn_quant format);
typedef enum lm_kind { LM_WEIGHTS, LM_STATES } lm_kind;
/* Makes gn_weights of the tensors, which borrow the files' memory, or gn_states, which can be trained. False: out of
   memory, or a file became shorter. Weights are sent when they are first used. */
bool lm_load(lm_model *m, gn_ctx *g, lm_kind kind, char error[LM_ERROR]);
enum { LM_SEND = 128 };
/* Sends the weights of n layers from `first` on, LM_SEND at most, to where they will be used; -1 counts as a layer:
   those outside the layers. *out_bytes (may be NULL): how many that were. Not needed, but a program that calls it again
   and again can tell how far it is. */
gn_result lm_send(const lm_model *m, int first, int n, uint64_t *out_bytes);
/* False when a file became shorter since it was opened. */
bool lm_intact(const lm_model *m, char error[LM_ERROR]);
uint64_t lm_weight_bytes(const lm_model *m);
uint64_t lm_cache_bytes(const lm_model *m, int64_t context);
const char *lm_family_name(const lm_model *m);
/* The tensor of a role, layer -1 for those outside the layers; false: there is none. name is valid until lm_close. */
bool lm_tensor_at(const lm_model *m, int layer, int role, const char **out_name, gn_tensor *out, gn_shape *out_shape);

/* False, and `error`: context is above the model's, or memory is short. */
bool lm_session_open(lm_session *s, lm_model *m, int64_t context, char error[LM_ERROR]);
void lm_session_close(lm_session *s);
/* ids (tokens), i32 or i64, stand at s->position on: their rows after the last layer, (tokens, dim). Keys and values
   are appended with the step; the position is the caller's to raise. position + tokens is at most the context. */
gn_tensor lm_forward(lm_session *s, gn_tensor ids, int64_t tokens);
/* The same at a position that is data, 0-d i32: of a step that is recorded (gn_step_record) and run at others. */
gn_tensor lm_forward_at(lm_session *s, gn_tensor position, gn_tensor ids, int64_t tokens);
/* Makes the pools; nothing of desc but `tokens` may be 0, which is then the model's context. False, and `error`: more
   tokens than the model's context, or memory is short. */
bool lm_pages_open(lm_pages *p, lm_model *m, const gn_kv_pages_desc *desc, char error[LM_ERROR]);
void lm_pages_close(lm_pages *p);
/* The rows after the last layer, (n, dim). Keys and values are appended with the step. */
gn_tensor lm_forward_pages(const lm_pages *p, const lm_rows *rows);
/* The same without a cache, for training: ids (batch, tokens) -> (batch * tokens, dim). */
gn_tensor lm_forward_batch(const lm_model *m, gn_tensor ids, int64_t batch, int64_t tokens);
gn_tensor lm_logits(const lm_model *m, gn_tensor rows); /* (n, dim) -> (n, vocab) f32 */

#ifdef __cplusplus
}
#endif
#endif

#if defined(LANGUAGE_MODEL_IMPLEMENTATION) && !defined(LANGUAGE_MODEL_IMPLEMENTED)
#define LANGUAGE_MODEL_IMPLEMENTED
#define GGUF_IMPLEMENTATION
#include "gguf.h"
#define SAFETENSORS_IMPLEMENTATION
#include "safetensors.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef gn_tensor (*lm_block_fn)(const lm_pass *p, int layer, gn_tensor x);

enum {
    LM_OPTIONAL = 1, /* not every model of the family has it */
    LM_IN_OUT = 2,   /* in safetensors the product's input is the first dimension, in GGUF the second as elsewhere */
    LM_UNFUSED = 4,  /* not there when LM_QKV is */
    LM_BARE = 8      /* its name has no prefix */
};

/* A tensor of a family. shape: a letter a dimension, see lm__extent; flags: LM_OPTIONAL… */
typedef struct lm_weight {
    lm_role role;
    const char *name, *gguf, *shape;
    unsigned flags;
} lm_weight;

struct lm_family {
    const char *name;       /* config.json's model_type */
    const char *gguf;       /* general.architecture, of a family with experts that of files with experts; NULL: none */
    const char *prefix;     /* of names in safetensors; files without it are read too */
    lm_block_fn block;      /* one layer */
    const lm_weight *outer; /* ends with a NULL name, as does layer */
    const lm_weight *layer;
    bool layernorm;        /* norms have a mean and a bias; else root mean square */
    bool gain_less_1;      /* safetensors hold gains less 1 */
    bool scaled_embedding; /* by the root of dim */
    bool gguf_normed;      /* GGUF that says nothing means that shares of experts add up to 1 */
    int64_t width_scaled;  /* layers; GGUF of so many that says nothing divides scores by the root of dim / heads */
    bool gguf_interleaved; /* GGUF permutes queries and keys, so that neighbours are turned together */
    lm_config usual;       /* what a configuration that says nothing means */
};

struct lm_tensor {
    char *name;
    const void *data; /* in the file */
    const char *path; /* the file; NULL: in memory */
    uint64_t offset;  /* of data, there */
    void *owned;      /* NULL, or what replaces it: converted, or aligned */
    void *scales;     /* NULL, or those of what lm_quantize made */
    uint64_t bytes;   /* in the file */
    uint32_t type;    /* gguf_type */
    gn_shape shape;
    bool in_out;     /* as LM_IN_OUT */
    lm_tensor *part; /* NULL, or the tensors that it is the stack of, as many as its first dimension; experts */
};

static bool lm__fail(char error[LM_ERROR], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, LM_ERROR, format, args);
    va_end(args);
    return false;
}

static size_t lm__index(int layer, int role) { return (size_t)(layer + 1) * LM_ROLES + (size_t)role; }

/* All places for tensors. */
static size_t lm__count(const lm_model *m) { return lm__index((int)m->config.layers, 0); }

/* ---- layers, written on the public builders ---- */

static gn_tensor lm__w(const lm_pass *p, int layer, lm_role role) { return p->m->w[lm__index(layer, (int)role)]; }
static bool lm__has(const lm_pass *p, int layer, lm_role role) {
    return p->m->tensors[lm__index(layer, (int)role)].name != NULL;
}

/* x (n, in) -> (n, out); the bias is the role that follows. */
static gn_tensor lm__linear(const lm_pass *p, int layer, lm_role role, gn_tensor x) {
    const lm_tensor *t = &p->m->tensors[lm__index(layer, (int)role)];
    const gn_quantized *q = &p->m->q[lm__index(layer, (int)role)];
    gn_tensor w = lm__w(p, layer, role);
    if (q->format) return gn_linear_quantized(x, *q, lm__w(p, layer, (lm_role)(role + 1)));
    return gn_linear(x, t->in_out ? w : gn_transpose(w, 0, 1), lm__w(p, layer, (lm_role)(role + 1)));
}

static gn_tensor lm__norm(const lm_pass *p, int layer, lm_role role, gn_tensor x) {
    const lm_model *m = p->m;
    gn_tensor gain = lm__w(p, layer, role);
    if (m->family->layernorm) return gn_layernorm(x, gain, lm__w(p, layer, (lm_role)(role + 1)), m->config.norm_eps);
    if (m->family->gain_less_1 && m->files) return gn_rmsnorm_1p(x, gain, m->config.norm_eps);
    return gn_rmsnorm(x, gain, m->config.norm_eps);
}

static gn_tensor lm__activate(const lm_pass *p, gn_tensor x) {
    switch (p->m->config.activation) {
    case LM_GELU: return gn_gelu(x);
    case LM_GELU_TANH: return gn_gelu_tanh(x);
    case LM_RELU: return gn_relu(x);
    default: return gn_silu(x);
    }
}

/* (batch * tokens, heads * head_dim) -> (batch, heads, tokens, head_dim) */
static gn_tensor lm__split_heads(const lm_pass *p, gn_tensor x, int64_t heads) {
    return gn_transpose(gn_reshape(x, GN_SHAPE(p->batch, p->tokens, heads, p->m->config.head_dim)), 1, 2);
}

/* What frequencies of the rotary embedding are divided by; GN_NONE: nothing. */
static gn_tensor lm__rotary_factors(const lm_pass *p) {
    if (!lm__has(p, -1, LM_ROTARY_LONG)) return lm__w(p, -1, LM_ROTARY_FACTORS);
    return lm__w(p, -1, p->context > p->m->config.rotary.context ? LM_ROTARY_LONG : LM_ROTARY_SHORT);
}

/* Turns queries or keys by their positions. */
static gn_tensor lm__rotate(const lm_pass *p, int layer, gn_tensor x) {
    const lm_config *c = &p->m->config;
    gn_rotary_desc d = c->rotary;
    gn_tensor factors = lm__rotary_factors(p);
    if (d.base <= 0) return x;
    if (c->windowed[layer] && c->local_rotary_base > 0)
        d = (gn_rotary_desc){ .base = c->local_rotary_base, .size = d.size, .interleaved = d.interleaved };
    if (!factors.ctx) return gn_rotary_with(x, p->places, &d);
    /* base ** (-2i / size) / factor, for positions in f64: (tokens, pairs) */
    gn_ctx *g = p->m->g;
    gn_tensor power = gn_arange(g, GN_F64, d.size / 2, 0, -2.0 / (double)d.size);
    gn_tensor frequency = gn_div(gn_pow(gn_like(power, d.base), power), gn_cast(factors, GN_F64));
    gn_tensor angle = gn_mul(gn_unsqueeze(gn_cast(p->places, GN_F64), 1), frequency);
    gn_tensor table[2] = { gn_cos(angle), gn_sin(angle) };
    for (int i = 0; i < 2; i++)
        table[i] = gn_cast(d.magnitude > 0 ? gn_mul_c(table[i], d.magnitude) : table[i], GN_F32);
    return gn_rotary_by(x, gn_concat(table, 2, 1), d.interleaved);
}

/* Queries, keys and values of x: (batch, heads, tokens, head_dim) each, kv_heads for the last two. */
static void lm__queries_keys_values(const lm_pass *p, int layer, gn_tensor x, gn_tensor out[3]) {
    const lm_config *c = &p->m->config;
    int64_t heads[3] = { c->heads, c->kv_heads, c->kv_heads }, sizes[3];
    static const lm_role roles[3] = { LM_Q, LM_K, LM_V };
    for (int i = 0; i < 3; i++) sizes[i] = heads[i] * c->head_dim;
    if (lm__has(p, layer, LM_QKV)) gn_split(lm__linear(p, layer, LM_QKV, x), 1, sizes, 3, out);
    else
        for (int i = 0; i < 3; i++) out[i] = lm__linear(p, layer, roles[i], x);
    for (int i = 0; i < 3; i++) out[i] = lm__split_heads(p, out[i], heads[i]);
    if (lm__has(p, layer, LM_Q_NORM)) out[0] = lm__norm(p, layer, LM_Q_NORM, out[0]);
    if (lm__has(p, layer, LM_K_NORM)) out[1] = lm__norm(p, layer, LM_K_NORM, out[1]);
    for (int i = 0; i < 2; i++) out[i] = lm__rotate(p, layer, out[i]);
}

/* Queries over pages: (1, heads, rows, head_dim) -> (rows, heads * head_dim). */
static gn_tensor lm__attention_over_pages(const lm_pass *p, int layer, gn_tensor qkv[3], const gn_attention_desc *d) {
    const lm_config *c = &p->m->config;
    const lm_rows *r = p->rows;
    for (int i = 0; i < 3; i++)
        qkv[i] = gn_reshape(gn_transpose(qkv[i], 1, 2), GN_SHAPE(r->n, i ? c->kv_heads : c->heads, c->head_dim));
    for (int i = 1; i < 3; i++) {
        gn_tensor pool = p->pages->pool[2 * layer + i - 1];
        if (r->from.ctx) pool = gn_page_copy(pool, r->from, r->to);
        qkv[i] = gn_page_append(pool, qkv[i], r->slots, r->sequences, r->table);
    }
    gn_tensor y = gn_page_attention(qkv[0], qkv[1], qkv[2], r->sequences, r->positions, r->table, d);
    return gn_reshape(y, GN_SHAPE(r->n, c->heads * c->head_dim));
}

/* x (batch * tokens, dim) -> the same, with the output projection. */
static gn_tensor lm__attention(const lm_pass *p, int layer, gn_tensor x) {
    const lm_config *c = &p->m->config;
    gn_tensor qkv[3];
    gn_attention_desc d = { .causal = true, .soft_cap = c->attention_cap };
    lm__queries_keys_values(p, layer, x, qkv);
    if (c->query_scalar > 0) d.scale = 1 / sqrt(c->query_scalar);
    if (p->cache) {
        for (int i = 1; i < 3; i++) qkv[i] = gn_kv_append(p->cache[2 * layer + i - 1], qkv[i], p->position);
        d.length = gn_add_c(p->position, (double)p->tokens);
    }
    if (c->windowed[layer]) d.window = c->window;
    if (p->rows) return lm__linear(p, layer, LM_O, lm__attention_over_pages(p, layer, qkv, &d));
    gn_tensor y = gn_attention(qkv[0], qkv[1], qkv[2], &d);
    y = gn_transpose(y, 1, 2);
    return lm__linear(p, layer, LM_O, gn_reshape(y, GN_SHAPE(p->batch * p->tokens, c->heads * c->head_dim)));
}

static gn_tensor lm__mlp(const lm_pass *p, int layer, gn_tensor x) {
    return lm__linear(p, layer, LM_DOWN, lm__activate(p, lm__linear(p, layer, LM_UP, x)));
}

/* down(activation(gate(x)) * up(x)) (Shazeer 2020) */
static gn_tensor lm__gated_mlp(const lm_pass *p, int layer, gn_tensor x) {
    gn_tensor part[2];
    if (lm__has(p, layer, LM_GATE_UP)) {
        gn_split(lm__linear(p, layer, LM_GATE_UP, x), 1, NULL, 2, part);
    } else {
        part[0] = lm__linear(p, layer, LM_GATE, x);
        part[1] = lm__linear(p, layer, LM_UP, x);
    }
    return lm__linear(p, layer, LM_DOWN, gn_mul(lm__activate(p, part[0]), part[1]));
}

/* x (n, in) or (n, used, in) by the experts of each row, ids (n, used) -> (n, used, out) */
static gn_tensor lm__expert(const lm_pass *p, int layer, lm_role role, gn_tensor x, gn_tensor ids) {
    return gn_expert_linear(x, gn_transpose(lm__w(p, layer, role), 1, 2), ids, GN_NONE);
}

/* Each token goes through the experts that the router finds most probable, and their results are added by their share
   (Jiang et al. 2024). */
static gn_tensor lm__experts(const lm_pass *p, int layer, gn_tensor x) {
    const lm_config *c = &p->m->config;
    gn_tensor share, ids;
    gn_tensor score = gn_matmul(x, gn_transpose(lm__w(p, layer, LM_ROUTER), 0, 1));
    gn_topk(gn_softmax(gn_cast(score, GN_F32), 1), c->experts_used, 1, true, &share, &ids);
    if (c->normed_experts) share = gn_div(share, gn_sum(share, GN_AXES(1), true));
    gn_tensor h = lm__activate(p, lm__expert(p, layer, LM_EXPERT_GATE, x, ids));
    h = lm__expert(p, layer, LM_EXPERT_DOWN, gn_mul(h, lm__expert(p, layer, LM_EXPERT_UP, x, ids)), ids);
    return gn_sum(gn_mul(h, gn_unsqueeze(gn_cast(share, p->m->dtype), 2)), GN_AXES(1), false);
}

/* ---- one block a family: x (batch * tokens, dim) -> x of the next layer ---- */

/* Radford et al. 2019 */
static gn_tensor lm__gpt2_block(const lm_pass *p, int layer, gn_tensor x) {
    x = gn_add(x, lm__attention(p, layer, lm__norm(p, layer, LM_NORM1, x)));
    return gn_add(x, lm__mlp(p, layer, lm__norm(p, layer, LM_NORM2, x)));
}

/* Touvron et al. 2023; Llama 2 and 3, Mistral, Qwen 2 and 3, Phi-3 */
static gn_tensor lm__llama_block(const lm_pass *p, int layer, gn_tensor x) {
    x = gn_add(x, lm__attention(p, layer, lm__norm(p, layer, LM_NORM1, x)));
    return gn_add(x, lm__gated_mlp(p, layer, lm__norm(p, layer, LM_NORM2, x)));
}

/* Attention and MLP side by side (Gunasekar et al. 2023) */
static gn_tensor lm__phi_block(const lm_pass *p, int layer, gn_tensor x) {
    gn_tensor h = lm__norm(p, layer, LM_NORM1, x);
    return gn_add(gn_add(x, lm__attention(p, layer, h)), lm__mlp(p, layer, h));
}

/* Norms before and behind each part (Gemma Team 2024) */
static gn_tensor lm__gemma_block(const lm_pass *p, int layer, gn_tensor x) {
    gn_tensor a = lm__attention(p, layer, lm__norm(p, layer, LM_NORM1, x));
    x = gn_add(x, lm__norm(p, layer, LM_POST_NORM1, a));
    gn_tensor h = lm__gated_mlp(p, layer, lm__norm(p, layer, LM_NORM2, x));
    return gn_add(x, lm__norm(p, layer, LM_POST_NORM2, h));
}

/* Llama with experts in place of the MLP */
static gn_tensor lm__experts_block(const lm_pass *p, int layer, gn_tensor x) {
    x = gn_add(x, lm__attention(p, layer, lm__norm(p, layer, LM_NORM1, x)));
    return gn_add(x, lm__experts(p, layer, lm__norm(p, layer, LM_NORM2, x)));
}

/* And one expert more that all tokens go through, by a share of its own (Qwen Team 2024) */
static gn_tensor lm__shared_expert_block(const lm_pass *p, int layer, gn_tensor x) {
    x = gn_add(x, lm__attention(p, layer, lm__norm(p, layer, LM_NORM1, x)));
    gn_tensor h = lm__norm(p, layer, LM_NORM2, x);
    gn_tensor share = gn_matmul(h, gn_reshape(lm__w(p, layer, LM_SHARED), GN_SHAPE(p->m->config.dim, 1))); /* (n, 1) */
    gn_tensor shared = gn_mul(gn_sigmoid(share), lm__gated_mlp(p, layer, h));
    return gn_add(x, gn_add(lm__experts(p, layer, h), shared));
}

/* ---- the families ----
 * Letters of shapes: V vocab, D dim, C context, H head_dim, Q heads * head_dim, K kv_heads * head_dim, F all three of
 * them, I inner, G twice inner, R pairs that are turned, E experts, X the inner width of an expert, S that of the
 * shared one, 1 one. Safetensors hold experts one by one, their names have the number of the layer and that of the
 * expert; GGUF holds a layer's stacked. */

#define LM__NONE \
    { LM_ROLES, NULL, NULL, NULL, 0 }

static const lm_weight lm__gpt2_outer[] = {
    { LM_EMBEDDING, "wte.weight", "token_embd.weight", "VD", 0 },
    { LM_PLACES, "wpe.weight", "position_embd.weight", "CD", 0 },
    { LM_FINAL_NORM, "ln_f.weight", "output_norm.weight", "D", 0 },
    { LM_FINAL_NORM_BIAS, "ln_f.bias", "output_norm.bias", "D", 0 },
    { LM_HEAD, "lm_head.weight", "output.weight", "VD", LM_BARE },
    LM__NONE,
};
static const lm_weight lm__gpt2_layer[] = {
    { LM_NORM1, "h.%d.ln_1.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_NORM1_BIAS, "h.%d.ln_1.bias", "blk.%d.attn_norm.bias", "D", 0 },
    { LM_QKV, "h.%d.attn.c_attn.weight", "blk.%d.attn_qkv.weight", "FD", LM_IN_OUT },
    { LM_QKV_BIAS, "h.%d.attn.c_attn.bias", "blk.%d.attn_qkv.bias", "F", 0 },
    { LM_O, "h.%d.attn.c_proj.weight", "blk.%d.attn_output.weight", "DQ", LM_IN_OUT },
    { LM_O_BIAS, "h.%d.attn.c_proj.bias", "blk.%d.attn_output.bias", "D", 0 },
    { LM_NORM2, "h.%d.ln_2.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_NORM2_BIAS, "h.%d.ln_2.bias", "blk.%d.ffn_norm.bias", "D", 0 },
    { LM_UP, "h.%d.mlp.c_fc.weight", "blk.%d.ffn_up.weight", "ID", LM_IN_OUT },
    { LM_UP_BIAS, "h.%d.mlp.c_fc.bias", "blk.%d.ffn_up.bias", "I", 0 },
    { LM_DOWN, "h.%d.mlp.c_proj.weight", "blk.%d.ffn_down.weight", "DI", LM_IN_OUT },
    { LM_DOWN_BIAS, "h.%d.mlp.c_proj.bias", "blk.%d.ffn_down.bias", "D", 0 },
    LM__NONE,
};

static const lm_weight lm__llama_outer[] = {
    { LM_EMBEDDING, "embed_tokens.weight", "token_embd.weight", "VD", 0 },
    { LM_FINAL_NORM, "norm.weight", "output_norm.weight", "D", 0 },
    { LM_HEAD, "lm_head.weight", "output.weight", "VD", LM_BARE },
    { LM_ROTARY_FACTORS, NULL, "rope_freqs.weight", "R", LM_OPTIONAL },
    { LM_ROTARY_LONG, "rope_factors_long", "rope_factors_long.weight", "R", LM_OPTIONAL },
    { LM_ROTARY_SHORT, "rope_factors_short", "rope_factors_short.weight", "R", LM_OPTIONAL },
    LM__NONE,
};
static const lm_weight lm__llama_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", 0 },
    { LM_Q_BIAS, "layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias", "Q", LM_OPTIONAL },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", 0 },
    { LM_K_BIAS, "layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias", "K", LM_OPTIONAL },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", 0 },
    { LM_V_BIAS, "layers.%d.self_attn.v_proj.bias", "blk.%d.attn_v.bias", "K", LM_OPTIONAL },
    { LM_Q_NORM, "layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", "H", LM_OPTIONAL },
    { LM_K_NORM, "layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", "H", LM_OPTIONAL },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_O_BIAS, "layers.%d.self_attn.o_proj.bias", "blk.%d.attn_output.bias", "D", LM_OPTIONAL },
    { LM_NORM2, "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_GATE, "layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", "ID", 0 },
    { LM_GATE_BIAS, "layers.%d.mlp.gate_proj.bias", "blk.%d.ffn_gate.bias", "I", LM_OPTIONAL },
    { LM_UP, "layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", "ID", 0 },
    { LM_UP_BIAS, "layers.%d.mlp.up_proj.bias", "blk.%d.ffn_up.bias", "I", LM_OPTIONAL },
    { LM_DOWN, "layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", "DI", 0 },
    { LM_DOWN_BIAS, "layers.%d.mlp.down_proj.bias", "blk.%d.ffn_down.bias", "D", LM_OPTIONAL },
    LM__NONE,
};

static const lm_weight lm__gemma_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", 0 },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", 0 },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", 0 },
    { LM_Q_NORM, "layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", "H", LM_OPTIONAL },
    { LM_K_NORM, "layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", "H", LM_OPTIONAL },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_POST_NORM1, "layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", "D", 0 },
    { LM_NORM2, "layers.%d.pre_feedforward_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_GATE, "layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", "ID", 0 },
    { LM_UP, "layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", "ID", 0 },
    { LM_DOWN, "layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", "DI", 0 },
    { LM_POST_NORM2, "layers.%d.post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight", "D", 0 },
    LM__NONE,
};

static const lm_weight lm__phi3_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_QKV, "layers.%d.self_attn.qkv_proj.weight", "blk.%d.attn_qkv.weight", "FD", 0 },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_NORM2, "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_GATE_UP, "layers.%d.mlp.gate_up_proj.weight", "blk.%d.ffn_up.weight", "GD", 0 },
    { LM_DOWN, "layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", "DI", 0 },
    LM__NONE,
};

static const lm_weight lm__mixtral_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", 0 },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", 0 },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", 0 },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_NORM2, "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_ROUTER, "layers.%d.block_sparse_moe.gate.weight", "blk.%d.ffn_gate_inp.weight", "ED", 0 },
    { LM_EXPERT_GATE, "layers.%d.block_sparse_moe.experts.%d.w1.weight", "blk.%d.ffn_gate_exps.weight", "EXD", 0 },
    { LM_EXPERT_UP, "layers.%d.block_sparse_moe.experts.%d.w3.weight", "blk.%d.ffn_up_exps.weight", "EXD", 0 },
    { LM_EXPERT_DOWN, "layers.%d.block_sparse_moe.experts.%d.w2.weight", "blk.%d.ffn_down_exps.weight", "EDX", 0 },
    LM__NONE,
};
static const lm_weight lm__qwen_experts_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", 0 },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", 0 },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", 0 },
    { LM_Q_NORM, "layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", "H", 0 },
    { LM_K_NORM, "layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", "H", 0 },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_NORM2, "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_ROUTER, "layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight", "ED", 0 },
    { LM_EXPERT_GATE, "layers.%d.mlp.experts.%d.gate_proj.weight", "blk.%d.ffn_gate_exps.weight", "EXD", 0 },
    { LM_EXPERT_UP, "layers.%d.mlp.experts.%d.up_proj.weight", "blk.%d.ffn_up_exps.weight", "EXD", 0 },
    { LM_EXPERT_DOWN, "layers.%d.mlp.experts.%d.down_proj.weight", "blk.%d.ffn_down_exps.weight", "EDX", 0 },
    LM__NONE,
};

static const lm_weight lm__qwen_shared_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", 0 },
    { LM_Q_BIAS, "layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias", "Q", LM_OPTIONAL },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", 0 },
    { LM_K_BIAS, "layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias", "K", LM_OPTIONAL },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", 0 },
    { LM_V_BIAS, "layers.%d.self_attn.v_proj.bias", "blk.%d.attn_v.bias", "K", LM_OPTIONAL },
    { LM_O, "layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_NORM2, "layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", "D", 0 },
    { LM_GATE, "layers.%d.mlp.shared_expert.gate_proj.weight", "blk.%d.ffn_gate_shexp.weight", "SD", 0 },
    { LM_UP, "layers.%d.mlp.shared_expert.up_proj.weight", "blk.%d.ffn_up_shexp.weight", "SD", 0 },
    { LM_DOWN, "layers.%d.mlp.shared_expert.down_proj.weight", "blk.%d.ffn_down_shexp.weight", "DS", 0 },
    { LM_ROUTER, "layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight", "ED", 0 },
    { LM_SHARED, "layers.%d.mlp.shared_expert_gate.weight", NULL, "1D", 0 },
    { LM_SHARED, NULL, "blk.%d.ffn_gate_inp_shexp.weight", "D", 0 },
    { LM_EXPERT_GATE, "layers.%d.mlp.experts.%d.gate_proj.weight", "blk.%d.ffn_gate_exps.weight", "EXD", 0 },
    { LM_EXPERT_UP, "layers.%d.mlp.experts.%d.up_proj.weight", "blk.%d.ffn_up_exps.weight", "EXD", 0 },
    { LM_EXPERT_DOWN, "layers.%d.mlp.experts.%d.down_proj.weight", "blk.%d.ffn_down_exps.weight", "EDX", 0 },
    LM__NONE,
};

static const lm_weight lm__phi_outer[] = {
    { LM_EMBEDDING, "embed_tokens.weight", "token_embd.weight", "VD", 0 },
    { LM_FINAL_NORM, "final_layernorm.weight", "output_norm.weight", "D", 0 },
    { LM_FINAL_NORM_BIAS, "final_layernorm.bias", "output_norm.bias", "D", 0 },
    { LM_HEAD, "lm_head.weight", "output.weight", "VD", LM_BARE },
    { LM_HEAD_BIAS, "lm_head.bias", "output.bias", "V", LM_BARE },
    LM__NONE,
};
static const lm_weight lm__phi_layer[] = {
    { LM_NORM1, "layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", "D", 0 },
    { LM_NORM1_BIAS, "layers.%d.input_layernorm.bias", "blk.%d.attn_norm.bias", "D", 0 },
    { LM_QKV, NULL, "blk.%d.attn_qkv.weight", "FD", LM_OPTIONAL },
    { LM_QKV_BIAS, NULL, "blk.%d.attn_qkv.bias", "F", LM_OPTIONAL },
    { LM_Q, "layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", "QD", LM_UNFUSED },
    { LM_Q_BIAS, "layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias", "Q", LM_UNFUSED },
    { LM_K, "layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", "KD", LM_UNFUSED },
    { LM_K_BIAS, "layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias", "K", LM_UNFUSED },
    { LM_V, "layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", "KD", LM_UNFUSED },
    { LM_V_BIAS, "layers.%d.self_attn.v_proj.bias", "blk.%d.attn_v.bias", "K", LM_UNFUSED },
    { LM_O, "layers.%d.self_attn.dense.weight", "blk.%d.attn_output.weight", "DQ", 0 },
    { LM_O_BIAS, "layers.%d.self_attn.dense.bias", "blk.%d.attn_output.bias", "D", 0 },
    { LM_UP, "layers.%d.mlp.fc1.weight", "blk.%d.ffn_up.weight", "ID", 0 },
    { LM_UP_BIAS, "layers.%d.mlp.fc1.bias", "blk.%d.ffn_up.bias", "I", 0 },
    { LM_DOWN, "layers.%d.mlp.fc2.weight", "blk.%d.ffn_down.weight", "DI", 0 },
    { LM_DOWN_BIAS, "layers.%d.mlp.fc2.bias", "blk.%d.ffn_down.bias", "D", 0 },
    LM__NONE,
};

static const lm_family lm__families[] = {
    { .name = "gpt2",
      .gguf = "gpt2",
      .prefix = "transformer.",
      .block = lm__gpt2_block,
      .outer = lm__gpt2_outer,
      .layer = lm__gpt2_layer,
      .layernorm = true,
      .usual = { .context = 1024, .norm_eps = 1e-5, .activation = LM_GELU_TANH, .tied = 1 } },
    { .name = "llama",
      .gguf = "llama",
      .prefix = "model.",
      .block = lm__llama_block,
      .outer = lm__llama_outer,
      .layer = lm__llama_layer,
      .gguf_interleaved = true,
      .usual = { .context = 2048, .norm_eps = 1e-6, .rotary_base = 10000 } },
    { .name = "mistral",
      .prefix = "model.",
      .block = lm__llama_block,
      .outer = lm__llama_outer,
      .layer = lm__llama_layer,
      .usual = { .context = 131072, .norm_eps = 1e-6, .rotary_base = 10000, .kv_heads = 8, .window = 4096 } },
    { .name = "qwen2",
      .gguf = "qwen2",
      .prefix = "model.",
      .block = lm__llama_block,
      .outer = lm__llama_outer,
      .layer = lm__llama_layer,
      .usual = { .context = 32768, .norm_eps = 1e-6, .rotary_base = 10000, .window_from = 28 } },
    { .name = "qwen3",
      .gguf = "qwen3",
      .prefix = "model.",
      .block = lm__llama_block,
      .outer = lm__llama_outer,
      .layer = lm__llama_layer,
      .usual = { .context = 32768, .norm_eps = 1e-6, .rotary_base = 10000, .head_dim = 128, .window_from = 28 } },
    { .name = "gemma2",
      .gguf = "gemma2",
      .prefix = "model.",
      .block = lm__gemma_block,
      .outer = lm__llama_outer,
      .layer = lm__gemma_layer,
      .gain_less_1 = true,
      .scaled_embedding = true,
      .width_scaled = 46, /* its 27B */
      .usual = { .context = 8192,
                 .norm_eps = 1e-6,
                 .rotary_base = 10000,
                 .head_dim = 256,
                 .window = 4096,
                 .window_pattern = 2,
                 .query_scalar = 256,
                 .attention_cap = 50,
                 .logit_cap = 30,
                 .activation = LM_GELU_TANH,
                 .tied = 1 } },
    { .name = "gemma3_text",
      .gguf = "gemma3",
      .prefix = "model.",
      .block = lm__gemma_block,
      .outer = lm__llama_outer,
      .layer = lm__gemma_layer,
      .gain_less_1 = true,
      .scaled_embedding = true,
      .usual = { .context = 131072,
                 .norm_eps = 1e-6,
                 .rotary_base = 1e6,
                 .local_rotary_base = 10000,
                 .head_dim = 256,
                 .window = 4096,
                 .window_pattern = 6,
                 .query_scalar = 256,
                 .activation = LM_GELU_TANH,
                 .tied = 1 } },
    { .name = "mixtral",
      .gguf = "llama",
      .prefix = "model.",
      .block = lm__experts_block,
      .outer = lm__llama_outer,
      .layer = lm__mixtral_layer,
      .gguf_interleaved = true,
      .gguf_normed = true,
      .usual = { .context = 131072,
                 .norm_eps = 1e-5,
                 .rotary_base = 1e6,
                 .kv_heads = 8,
                 .experts = 8,
                 .experts_used = 2,
                 .normed_experts = 1 } },
    { .name = "qwen3_moe",
      .gguf = "qwen3moe",
      .prefix = "model.",
      .block = lm__experts_block,
      .outer = lm__llama_outer,
      .layer = lm__qwen_experts_layer,
      .gguf_normed = true,
      .usual = { .context = 32768,
                 .norm_eps = 1e-6,
                 .rotary_base = 10000,
                 .kv_heads = 4,
                 .experts = 128,
                 .experts_used = 8,
                 .expert_inner = 768 } },
    { .name = "qwen2_moe",
      .gguf = "qwen2moe",
      .prefix = "model.",
      .block = lm__shared_expert_block,
      .outer = lm__llama_outer,
      .layer = lm__qwen_shared_layer,
      .usual = { .context = 32768,
                 .norm_eps = 1e-6,
                 .rotary_base = 10000,
                 .window_from = 28,
                 .experts = 60,
                 .experts_used = 4,
                 .expert_inner = 1408,
                 .shared_inner = 5632 } },
    { .name = "phi",
      .gguf = "phi2",
      .prefix = "model.",
      .block = lm__phi_block,
      .outer = lm__phi_outer,
      .layer = lm__phi_layer,
      .layernorm = true,
      .usual = { .context = 2048,
                 .norm_eps = 1e-5,
                 .rotary_base = 10000,
                 .rotary_part = 0.5,
                 .activation = LM_GELU_TANH } },
    { .name = "phi3",
      .gguf = "phi3",
      .prefix = "model.",
      .block = lm__llama_block,
      .outer = lm__llama_outer,
      .layer = lm__phi3_layer,
      .usual = { .context = 4096, .norm_eps = 1e-5, .rotary_base = 10000 } },
};
enum { LM__FAMILIES = sizeof lm__families / sizeof *lm__families };

/* `experts`: a GGUF file has some. */
static const lm_family *lm__family(const char *name, bool of_gguf, bool experts, char error[LM_ERROR]) {
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; i < LM__FAMILIES; i++) {
        const lm_family *f = &lm__families[i];
        const char *own = of_gguf ? f->gguf : f->name;
        if (!own || (of_gguf && experts != (f->usual.experts > 0))) continue;
        if (!strcmp(own, name)) return f;
        if (n < sizeof known) n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", own);
    }
    lm__fail(error, "the architecture '%s'%s is not known%s; known are %s", name, experts ? " with experts" : "",
             of_gguf ? " in GGUF" : "", known);
    return NULL;
}

/* ---- configuration ---- */

/* A number of the configuration: its place, its names in config.json and in GGUF (behind the architecture). */
typedef struct lm__field {
    size_t at;
    bool real; /* double, else int64_t */
    const char *json[3], *gguf[2];
    double lo, hi;
} lm__field;

enum { LM__NEEDED = 4 }; /* the first of them: no model is without */
#define LM__INT(name) offsetof(lm_config, name), false
#define LM__REAL(name) offsetof(lm_config, name), true
static const lm__field lm__fields[] = {
    { LM__INT(vocab), { "vocab_size" }, { "vocab_size" }, 1, 1 << 23 },
    { LM__INT(dim), { "hidden_size", "n_embd" }, { "embedding_length" }, 1, 1 << 20 },
    { LM__INT(layers), { "num_hidden_layers", "n_layer" }, { "block_count" }, 1, LM_LAYERS },
    { LM__INT(heads), { "num_attention_heads", "n_head" }, { "attention.head_count" }, 1, 4096 },
    { LM__INT(kv_heads), { "num_key_value_heads" }, { "attention.head_count_kv" }, 1, 4096 },
    { LM__INT(head_dim), { "head_dim" }, { "attention.key_length" }, 1, 4096 },
    { LM__INT(inner), { "intermediate_size", "n_inner" }, { "feed_forward_length" }, 1, 1 << 22 },
    { LM__INT(context), { "max_position_embeddings", "n_positions", "n_ctx" }, { "context_length" }, 1, 1 << 28 },
    { LM__INT(window), { "sliding_window" }, { "attention.sliding_window" }, 0, 1 << 28 },
    { LM__INT(window_pattern), { "sliding_window_pattern", "_sliding_window_pattern" }, { NULL }, 0, LM_LAYERS },
    { LM__INT(window_from), { "max_window_layers" }, { NULL }, 0, 1 << 20 },
    { LM__REAL(norm_eps),
      { "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon" },
      { "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon" },
      0,
      1 },
    { LM__REAL(rotary_base), { "rope_theta" }, { "rope.freq_base" }, 1, 1e15 },
    { LM__REAL(rotary_part), { "partial_rotary_factor" }, { NULL }, 1e-3, 1 },
    { LM__REAL(local_rotary_base), { "rope_local_base_freq" }, { "rope.freq_base_swa" }, 1, 1e15 },
    { LM__REAL(query_scalar), { "query_pre_attn_scalar" }, { NULL }, 1e-3, 1e6 },
    { LM__REAL(attention_cap), { "attn_logit_softcapping" }, { "attn_logit_softcapping" }, 1e-3, 1e6 },
    { LM__INT(experts), { "num_local_experts", "num_experts" }, { "expert_count" }, 1, 1024 },
    { LM__INT(experts_used), { "num_experts_per_tok" }, { "expert_used_count" }, 1, 1024 },
    { LM__INT(expert_inner), { "moe_intermediate_size" }, { "expert_feed_forward_length" }, 1, 1 << 22 },
    { LM__INT(shared_inner),
      { "shared_expert_intermediate_size" },
      { "expert_shared_feed_forward_length" },
      1,
      1 << 22 },
    { LM__REAL(logit_cap), { "final_logit_softcapping" }, { "final_logit_softcapping" }, 1e-3, 1e6 },
};

static bool lm__store(lm_config *c, const lm__field *f, const char *name, double v, char error[LM_ERROR]) {
    if (!(v >= f->lo && v <= f->hi))
        return lm__fail(error, "%s is %.17g, which is not from %g to %g", name, v, f->lo, f->hi);
    if (!f->real && v != floor(v)) return lm__fail(error, "%s is %.17g, not a whole number", name, v);
    if (f->real) memcpy((char *)c + f->at, &v, sizeof v);
    else {
        int64_t whole = (int64_t)v;
        memcpy((char *)c + f->at, &whole, sizeof whole);
    }
    return true;
}

/* A value that is missing keeps what is usual; so does null, but for what may be none: a window, a cap. */
static bool lm__json_fields(lm_config *c, json_value root, char error[LM_ERROR]) {
    for (size_t i = 0; i < sizeof lm__fields / sizeof *lm__fields; i++)
        for (int k = 0; k < 3 && lm__fields[i].json[k]; k++) {
            const char *name = lm__fields[i].json[k];
            json_value v = json_get(root, name);
            double number;
            if (json_kind_of(v) == JSON_MISSING) continue;
            if (json_kind_of(v) == JSON_NULL) {
                size_t at = lm__fields[i].at;
                if (at == offsetof(lm_config, window)) c->window = 0;
                if (at == offsetof(lm_config, attention_cap)) c->attention_cap = 0;
                if (at == offsetof(lm_config, logit_cap)) c->logit_cap = 0;
                continue;
            }
            if (!json_get_double(v, &number)) return lm__fail(error, "%s is not a number", name);
            if (!lm__store(c, &lm__fields[i], name, number, error)) return false;
        }
    return true;
}

static bool lm__gguf_fields(lm_config *c, const gguf *g, const char *architecture, char error[LM_ERROR]) {
    for (size_t i = 0; i < sizeof lm__fields / sizeof *lm__fields; i++)
        for (int k = 0; k < 2 && lm__fields[i].gguf[k]; k++) {
            char key[160];
            double number;
            gguf_value any;
            snprintf(key, sizeof key, "%s.%s", architecture, lm__fields[i].gguf[k]);
            if (!gguf_get(g, key, &any)) continue;
            if (!gguf_get_f64(g, key, &number)) return lm__fail(error, "%s is not one number", key);
            if (!lm__store(c, &lm__fields[i], key, number, error)) return false;
        }
    return true;
}

static bool lm__add_end(lm_config *c, json_value v) {
    int64_t id;
    if (!json_get_i64(v, &id) || id < 0) return false;
    for (int64_t i = 0; i < c->n_end; i++)
        if (c->end[i] == id) return true;
    if (c->n_end == LM_ENDS) return false;
    c->end[c->n_end++] = id;
    return true;
}

/* A number, a list of numbers, or nothing. */
static bool lm__json_ends(lm_config *c, json_value root, char error[LM_ERROR]) {
    json_value v = json_get(root, "eos_token_id"), key, item;
    bool ok = json_kind_of(v) <= JSON_NULL || json_kind_of(v) == JSON_ARRAY;
    if (json_kind_of(v) == JSON_NUMBER) ok = lm__add_end(c, v);
    for (json_iter i = json_begin(v); ok && json_next(&i, &key, &item);) ok = lm__add_end(c, item);
    return ok || lm__fail(error, "eos_token_id is neither a token nor a list of at most %d", LM_ENDS);
}

static bool lm__json_activation(lm_config *c, json_value root, char error[LM_ERROR]) {
    static const struct {
        const char *name;
        lm_activation is;
    } known[] = { { "silu", LM_SILU },          { "swish", LM_SILU }, { "gelu", LM_GELU },
                  { "gelu_new", LM_GELU_TANH }, { "relu", LM_RELU },  { "gelu_pytorch_tanh", LM_GELU_TANH },
                  { "gelu_fast", LM_GELU_TANH } };
    static const char *const names[] = { "hidden_activation", "hidden_act", "activation_function" };
    for (size_t i = 0; i < 3; i++) {
        json_value v = json_get(root, names[i]);
        if (json_kind_of(v) != JSON_STRING) continue;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (json_is(v, known[k].name)) {
                c->activation = (int64_t)known[k].is;
                return true;
            }
        return lm__fail(error, "%s %.*s is not known", names[i], (int)(v.size < 60 ? v.size : 60), v.text);
    }
    return true;
}

static void lm__windows_by_rule(lm_config *c) {
    for (int64_t layer = 0; layer < c->layers; layer++)
        c->windowed[layer] =
            c->window > 0 && layer >= c->window_from && !(c->window_pattern && (layer + 1) % c->window_pattern == 0);
}

/* Layers that see a window alone: said layer by layer, or by a rule. */
static bool lm__json_windows(lm_config *c, json_value root, char error[LM_ERROR]) {
    json_value types = json_get(root, "layer_types"), key, item;
    int64_t layer = 0;
    bool use = true;
    if (json_get_bool(json_get(root, "use_sliding_window"), &use) && !use) c->window = 0;
    if (json_kind_of(types) == JSON_ARRAY) {
        for (json_iter i = json_begin(types); json_next(&i, &key, &item); layer++) {
            bool sliding = json_is(item, "sliding_attention");
            if (!sliding && !json_is(item, "full_attention"))
                return lm__fail(error, "layer_types: %.*s is not known", (int)(item.size < 60 ? item.size : 60),
                                item.text);
            if (layer < c->layers) c->windowed[layer] = sliding && c->window > 0;
        }
        return layer == c->layers ||
               lm__fail(error, "layer_types has %lld entries for %lld layers", (long long)layer, (long long)c->layers);
    }
    lm__windows_by_rule(c);
    return true;
}

static double lm__json_number(json_value object, const char *name, double otherwise) {
    double v;
    return json_get_double(json_get(object, name), &v) ? v : otherwise;
}

/* A number for each pair, (2, pairs): long, then short. */
static bool lm__json_factors(lm_model *m, json_value root, json_value rope, char error[LM_ERROR]) {
    static const char *const names[2] = { "long_factor", "short_factor" };
    lm_config *c = &m->config;
    gn_rotary_desc *d = &c->rotary;
    int64_t head = c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
    int64_t pairs = (int64_t)((double)head * (c->rotary_part > 0 ? c->rotary_part : 1)) / 2;
    double factor, context = lm__json_number(root, "original_max_position_embeddings", (double)c->context);
    m->factors = calloc((size_t)(2 * pairs) + 1, sizeof *m->factors);
    if (!m->factors) return lm__fail(error, "out of memory");
    for (int i = 0; i < 2; i++) {
        json_value list = json_get(rope, names[i]), key, item;
        int64_t n = 0;
        for (json_iter k = json_begin(list); json_kind_of(list) == JSON_ARRAY && json_next(&k, &key, &item); n++)
            if (!json_get_double(item, &factor) || !(factor > 0 && factor < 1e9)) n = pairs;
            else if (n < pairs) m->factors[i * pairs + n] = (float)factor;
        if (n != pairs)
            return lm__fail(error, "%s of the rotary embedding is not %lld numbers above 0", names[i],
                            (long long)pairs);
    }
    context = lm__json_number(rope, "original_max_position_embeddings", context);
    if (!(context > 1 && context <= 1 << 28)) return lm__fail(error, "original_max_position_embeddings is %g", context);
    factor = lm__json_number(rope, "factor", (double)c->context / context);
    d->context = (int64_t)context;
    d->magnitude = factor > 1 ? sqrt(1 + log(factor) / log(context)) : 1;
    d->magnitude = lm__json_number(rope, "attention_factor", d->magnitude);
    return true;
}

/* `rope`: rope_parameters, or rope_scaling with the base outside. */
static bool lm__json_scaling(lm_model *m, json_value root, json_value rope, char error[LM_ERROR]) {
    lm_config *c = &m->config;
    gn_rotary_desc *d = &c->rotary;
    json_value type = json_get(rope, "rope_type"), v;
    static const char *const refused[] = { "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor" };
    if (json_kind_of(type) != JSON_STRING) type = json_get(rope, "type");
    if (json_kind_of(type) != JSON_STRING || json_is(type, "default")) return true;
    if (json_is(type, "longrope") || json_is(type, "su")) return lm__json_factors(m, root, rope, error);
    if (json_is(type, "linear")) d->scaling = GN_ROTARY_LINEAR;
    else if (json_is(type, "llama3")) d->scaling = GN_ROTARY_LLAMA3;
    else if (json_is(type, "yarn")) d->scaling = GN_ROTARY_YARN;
    else
        return lm__fail(error, "rope_type %.*s is not known; default, linear, llama3, yarn and longrope are",
                        (int)(type.size < 60 ? type.size : 60), type.text);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        v = json_get(rope, refused[i]);
        bool yes;
        if (json_kind_of(v) > JSON_NULL && !(json_get_bool(v, &yes) && yes))
            return lm__fail(error, "%s of the rotary embedding is not read", refused[i]);
    }
    d->factor = lm__json_number(rope, "factor", 0);
    d->context = (int64_t)lm__json_number(rope, "original_max_position_embeddings", (double)c->context);
    d->low_frequency = lm__json_number(rope, "low_freq_factor", 0);
    d->high_frequency = lm__json_number(rope, "high_freq_factor", 0);
    d->beta_fast = lm__json_number(rope, "beta_fast", 0);
    d->beta_slow = lm__json_number(rope, "beta_slow", 0);
    d->magnitude = lm__json_number(rope, "attention_factor", 0);
    return d->factor > 0 || lm__fail(error, "the rotary embedding has a rope_type and no factor");
}

static bool lm__json_rotary(lm_model *m, json_value root, char error[LM_ERROR]) {
    lm_config *c = &m->config;
    json_value rope = json_get(root, "rope_parameters");
    if (json_kind_of(rope) != JSON_OBJECT) rope = json_get(root, "rope_scaling");
    if (json_kind_of(json_get(rope, "full_attention")) == JSON_OBJECT) { /* one for each kind of layer */
        json_value local = json_get(rope, "sliding_attention");
        c->local_rotary_base = lm__json_number(local, "rope_theta", c->local_rotary_base);
        if (json_kind_of(json_get(local, "rope_type")) == JSON_STRING &&
            !json_is(json_get(local, "rope_type"), "default"))
            return lm__fail(error, "a rope_type for windowed layers is not read");
        rope = json_get(rope, "full_attention");
    }
    c->rotary_base = lm__json_number(rope, "rope_theta", c->rotary_base);
    c->rotary_part = lm__json_number(rope, "partial_rotary_factor", c->rotary_part);
    return json_kind_of(rope) != JSON_OBJECT || lm__json_scaling(m, root, rope, error);
}

/* What no family here has. */
static bool lm__json_refused(json_value root, char error[LM_ERROR]) {
    static const struct {
        const char *name;
        bool usual;
    } flags[] = { { "scale_attn_by_inverse_layer_idx", false },
                  { "scale_attn_weights", true },
                  { "qk_layernorm", false },
                  { "use_bidirectional_attention", false } };
    json_value quantised = json_get(root, "quantization_config");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool is;
        if (json_get_bool(json_get(root, flags[i].name), &is) && is != flags[i].usual)
            return lm__fail(error, "%s is %s, which is not read", flags[i].name, is ? "true" : "false");
    }
    if (json_kind_of(quantised) == JSON_OBJECT) {
        json_value method = json_get(quantised, "quant_method");
        return lm__fail(error, "its weights are quantised by %.*s, which is not read",
                        method.text ? (int)(method.size < 60 ? method.size : 60) : 9,
                        method.text ? method.text : "a method");
    }
    return true;
}

static bool lm__config_json(lm_model *m, json_value root, char error[LM_ERROR]) {
    char type[64];
    lm_config *c = &m->config;
    bool tied;
    if (!json_get_string(json_get(root, "model_type"), type, sizeof type, NULL))
        return lm__fail(error, "it has no model_type of at most 63 bytes");
    m->family = lm__family(type, false, false, error);
    if (!m->family) return false;
    *c = m->family->usual;
    if (!lm__json_refused(root, error) || !lm__json_fields(c, root, error) || !lm__json_ends(c, root, error))
        return false;
    if (!lm__json_activation(c, root, error) || !lm__json_rotary(m, root, error)) return false;
    if (json_get_bool(json_get(root, "tie_word_embeddings"), &tied)) c->tied = tied;
    if (json_get_bool(json_get(root, "norm_topk_prob"), &tied)) c->normed_experts = tied;
    if (c->experts &&
        (json_count(json_get(root, "mlp_only_layers")) || lm__json_number(root, "decoder_sparse_step", 1) != 1.0))
        return lm__fail(error, "layers without experts between those with them are not read");
    return lm__json_windows(c, root, error);
}

static bool lm__gguf_is(gguf_string s, const char *word) {
    return s.size == strlen(word) && !memcmp(s.text, word, s.size);
}

static bool lm__gguf_scaling(lm_config *c, const gguf *g, const char *architecture, char error[LM_ERROR]) {
    char key[160], kind[160];
    gguf_string type;
    gn_rotary_desc *d = &c->rotary;
    uint64_t context = 0;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", architecture);
    d->context = gguf_get_u64(g, key, &context) && context < 1 << 28 ? (int64_t)context : c->context;
    snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", architecture);
    if (gguf_get_f64(g, key, &d->magnitude) && !(d->magnitude > 0 && d->magnitude < 1e6))
        return lm__fail(error, "%s is %g", key, d->magnitude);
    snprintf(kind, sizeof kind, "%s.rope.scaling.type", architecture);
    if (!gguf_get_string(g, kind, &type) || lm__gguf_is(type, "none") || lm__gguf_is(type, "longrope")) return true;
    if (lm__gguf_is(type, "linear")) d->scaling = GN_ROTARY_LINEAR;
    else if (lm__gguf_is(type, "yarn") && d->magnitude > 0) return lm__fail(error, "%s of yarn is not read", key);
    else if (lm__gguf_is(type, "yarn")) d->scaling = GN_ROTARY_YARN;
    else return lm__fail(error, "%s '%.*s' is not known", kind, (int)(type.size < 60 ? type.size : 60), type.text);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", architecture);
    return (gguf_get_f64(g, key, &d->factor) && d->factor > 0) || lm__fail(error, "%s is missing", key);
}

/* Which layers see a window alone: every how manyth does not, or a bool for each layer. */
static bool lm__gguf_windows(lm_config *c, const gguf *g, const char *architecture, char error[LM_ERROR]) {
    char key[160];
    gguf_value list, item;
    uint64_t pattern;
    int64_t layer = 0;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", architecture);
    bool given = gguf_get(g, key, &list);
    if (given && list.kind == GGUF_KIND_ARRAY) {
        for (; list.item == GGUF_KIND_BOOL && gguf_next(&list, &item); layer++)
            if (layer < c->layers) c->windowed[layer] = *item.data && c->window > 0;
        return layer == c->layers ||
               lm__fail(error, "%s is not a bool for each of %lld layers", key, (long long)c->layers);
    }
    if (given && !(gguf_get_u64(g, key, &pattern) && pattern <= LM_LAYERS))
        return lm__fail(error, "%s is neither a number up to %d nor a list", key, LM_LAYERS);
    if (given) c->window_pattern = (int64_t)pattern;
    lm__windows_by_rule(c);
    return true;
}

/* Numbers that GGUF has under other names, or in another form, than config.json. */
static bool lm__gguf_others(lm_model *m, const char *architecture, char error[LM_ERROR]) {
    lm_config *c = &m->config;
    char key[160];
    gguf_tensor embedding;
    uint64_t end, turned;
    double scale;
    bool normed;
    if (!c->vocab && gguf_find(m->gguf, "token_embd.weight", &embedding) && embedding.rank == 2)
        c->vocab = embedding.dims[0];
    if (gguf_get_u64(m->gguf, "tokenizer.ggml.eos_token_id", &end) && end <= INT32_MAX)
        c->end[c->n_end++] = (int64_t)end;
    snprintf(key, sizeof key, "%s.rope.dimension_count", architecture);
    if (gguf_get_u64(m->gguf, key, &turned) && turned <= 4096) c->rotary.size = (int64_t)turned;
    c->rotary.interleaved = m->family->gguf_interleaved;
    snprintf(key, sizeof key, "%s.attention.scale", architecture);
    c->query_scalar = 0;
    if (gguf_get_f64(m->gguf, key, &scale)) {
        if (!(scale > 1e-3 && scale < 1e3)) return lm__fail(error, "%s is %g", key, scale);
        c->query_scalar = 1 / (scale * scale);
    } else if (m->family->width_scaled && c->layers == m->family->width_scaled && c->heads > 0) {
        c->query_scalar = (double)c->dim / (double)c->heads;
        snprintf(m->note, sizeof m->note,
                 "%s is missing: for %lld layers scores are divided by the root of %g, width / heads", key,
                 (long long)c->layers, c->query_scalar);
    }
    snprintf(key, sizeof key, "%s.expert_weights_norm", architecture);
    c->normed_experts = m->family->gguf_normed;
    if (c->experts && gguf_get_bool(m->gguf, key, &normed)) c->normed_experts = normed;
    return true;
}

static bool lm__config_gguf(lm_model *m, char error[LM_ERROR]) {
    gguf_string name;
    gguf_value any;
    char architecture[64], key[160];
    lm_config *c = &m->config;
    if (!gguf_get_string(m->gguf, "general.architecture", &name) || name.size >= sizeof architecture)
        return lm__fail(error, "it has no general.architecture of at most 63 bytes");
    memcpy(architecture, name.text, name.size);
    architecture[name.size] = 0;
    snprintf(key, sizeof key, "%s.expert_count", architecture);
    m->family = lm__family(architecture, true, gguf_get(m->gguf, key, &any), error);
    if (!m->family) return false;
    *c = m->family->usual;
    c->tied = -1;
    return lm__gguf_fields(c, m->gguf, architecture, error) && lm__gguf_scaling(c, m->gguf, architecture, error) &&
           lm__gguf_windows(c, m->gguf, architecture, error) && lm__gguf_others(m, architecture, error);
}

/* What follows from the numbers, and whether they go together. */
static bool lm__config_finish(lm_config *c, char error[LM_ERROR]) {
    for (int i = 0; i < LM__NEEDED; i++) {
        const lm__field *f = &lm__fields[i];
        const char *other = f->json[1];
        if (*(const int64_t *)(const void *)((const char *)c + f->at) > 0) continue;
        return lm__fail(error, "%s%s%s%s is missing (%s in a GGUF file)", f->json[0], other ? " (or " : "",
                        other ? other : "", other ? ")" : "", f->gguf[0]);
    }
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim) c->head_dim = c->dim / c->heads;
    if (!c->inner) c->inner = 4 * c->dim;
    if (c->kv_heads > c->heads || c->heads % c->kv_heads)
        return lm__fail(error, "%lld heads cannot share %lld heads of keys", (long long)c->heads,
                        (long long)c->kv_heads);
    c->rotary.base = c->rotary_base;
    if (!c->rotary.size) c->rotary.size = (int64_t)((double)c->head_dim * (c->rotary_part > 0 ? c->rotary_part : 1));
    if (c->rotary_base > 0 && (c->rotary.size % 2 || c->rotary.size < 2 || c->rotary.size > c->head_dim))
        return lm__fail(error, "%lld of %lld elements of a head cannot be turned in pairs", (long long)c->rotary.size,
                        (long long)c->head_dim);
    if (!c->expert_inner) c->expert_inner = c->inner;
    return c->experts_used <= c->experts ||
           lm__fail(error, "%lld of %lld experts are to be used", (long long)c->experts_used, (long long)c->experts);
}

/* ---- tensors ---- */

static int64_t lm__extent(const lm_config *c, char letter) {
    int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    switch (letter) {
    case 'V': return c->vocab;
    case 'D': return c->dim;
    case 'C': return c->context;
    case 'H': return c->head_dim;
    case 'Q': return q;
    case 'K': return k;
    case 'F': return q + 2 * k;
    case 'I': return c->inner;
    case 'G': return 2 * c->inner;
    case 'E': return c->experts;
    case 'X': return c->expert_inner;
    case 'S': return c->shared_inner;
    case '1': return 1;
    default: return c->rotary.size / 2; /* R */
    }
}

static void lm__shape_text(const gn_shape *s, char out[80]) {
    size_t n = (size_t)snprintf(out, 80, "(");
    for (int i = 0; i < s->rank && n < 60; i++)
        n += (size_t)snprintf(out + n, 80 - n, "%s%lld", i ? ", " : "", (long long)s->dims[i]);
    snprintf(out + n, 80 - n, ")");
}

static bool lm__find_safetensors(const lm_model *m, const char *prefix, const char *name, lm_tensor *out,
                                 char error[LM_ERROR]) {
    static const struct {
        uint8_t from;
        gguf_type to;
    } types[] = { { SAFETENSORS_F32, GGUF_F32 },
                  { SAFETENSORS_F16, GGUF_F16 },
                  { SAFETENSORS_BF16, GGUF_BF16 },
                  { SAFETENSORS_F64, GGUF_F64 } };
    const safetensors_tensor *t = safetensors_find_prefixed(m->files, prefix, name);
    if (!t) return true;
    size_t i = 0;
    while (i < 4 && types[i].from != t->dtype) i++;
    if (i == 4)
        return lm__fail(error, "%s has dtype %s; F32, F16, BF16 and F64 are read", t->name,
                        safetensors_dtype_name(t->dtype));
    *out = (lm_tensor){ .name = strdup(t->name), .data = t->data, .bytes = t->bytes, .type = types[i].to };
    out->path = safetensors_path(m->files, t->file);
    out->offset = safetensors_offset(m->files, t);
    out->shape.rank = t->rank;
    for (int k = 0; k < t->rank; k++) out->shape.dims[k] = t->dims[k];
    return out->name || lm__fail(error, "out of memory");
}

static bool lm__find_gguf(const lm_model *m, const char *name, lm_tensor *out, char error[LM_ERROR]) {
    gguf_tensor t;
    if (!gguf_find(m->gguf, name, &t)) return true;
    *out = (lm_tensor){ .name = strdup(name), .data = t.data, .bytes = t.bytes, .type = t.type };
    out->path = gguf_path(m->gguf, t.file);
    out->offset = gguf_offset(m->gguf, &t);
    out->shape.rank = (int32_t)t.rank;
    for (uint32_t k = 0; k < t.rank; k++) out->shape.dims[k] = t.dims[k];
    return out->name || lm__fail(error, "out of memory");
}

/* The factors that config.json gave. */
static bool lm__find_factors(const lm_model *m, const lm_weight *row, lm_tensor *out, char error[LM_ERROR]) {
    int64_t pairs = m->config.rotary.size / 2;
    if (!m->factors) return true;
    *out = (lm_tensor){ .name = strdup(row->name), .type = GGUF_F32, .shape = GN_SHAPE(pairs) };
    out->data = m->factors + (row->role == LM_ROTARY_SHORT ? pairs : 0);
    out->bytes = (uint64_t)pairs * sizeof(float);
    return out->name || lm__fail(error, "out of memory");
}

/* shape: letters; the dimensions of t are theirs. */
static bool lm__check_shape(const lm_model *m, const lm_tensor *t, const char *shape, char error[LM_ERROR]) {
    char want_text[80], have_text[80];
    gn_shape want = { .rank = (int32_t)strlen(shape) };
    for (int i = 0; i < want.rank; i++) want.dims[t->in_out ? want.rank - 1 - i : i] = lm__extent(&m->config, shape[i]);
    bool equal = want.rank == t->shape.rank;
    for (int i = 0; equal && i < want.rank; i++) equal = want.dims[i] == t->shape.dims[i];
    if (equal) return true;
    lm__shape_text(&want, want_text);
    lm__shape_text(&t->shape, have_text);
    return lm__fail(error, "%s has shape %s; a %s of this configuration has %s", t->name, have_text, m->family->name,
                    want_text);
}

/* The tensor of a row of the family's table, with its shape checked. expert: which of the tensors that are stacked,
   else -1. */
static bool lm__find_one(const lm_model *m, const lm_weight *row, int layer, int expert, lm_tensor *t,
                         char error[LM_ERROR]) {
    const char *format = m->gguf ? row->gguf : row->name;
    char name[160] = "";
    bool factors = row->role == LM_ROTARY_LONG || row->role == LM_ROTARY_SHORT;
    bool tied = row->role == LM_HEAD && m->config.tied < 0;
    if (!format || (row->role == LM_HEAD && m->config.tied == 1)) return true;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
    snprintf(name, sizeof name, format, layer, expert);
#pragma GCC diagnostic pop
    const char *prefix = row->flags & LM_BARE ? "" : m->family->prefix;
    bool ok = m->gguf   ? lm__find_gguf(m, name, t, error)
              : factors ? lm__find_factors(m, row, t, error)
                        : lm__find_safetensors(m, prefix, name, t, error);
    if (!ok) return false;
    if (!t->name)
        return (row->flags & LM_OPTIONAL) || tied ||
               lm__fail(error, "the tensor %s%s is missing", m->gguf ? "" : prefix, name);
    t->in_out = (row->flags & LM_IN_OUT) && !m->gguf;
    return lm__check_shape(m, t, row->shape + (expert >= 0), error);
}

/* Experts that the files hold one by one become one tensor. */
static bool lm__find_stack(const lm_model *m, const lm_weight *row, int layer, lm_tensor *t, char error[LM_ERROR]) {
    int64_t n = m->config.experts;
    lm_tensor *part = t->part = calloc((size_t)n, sizeof *t->part);
    if (!part) return lm__fail(error, "out of memory");
    t->shape.dims[0] = n;
    for (int i = 0; i < n; i++)
        if (!lm__find_one(m, row, layer, i, &part[i], error)) return false;
    t->name = strdup(part[0].name);
    t->type = part[0].type;
    t->shape.rank = 3;
    memcpy(t->shape.dims + 1, part[0].shape.dims, 2 * sizeof *t->shape.dims);
    for (int64_t i = 0; i < n; i++) t->bytes += part[i].bytes;
    return t->name || lm__fail(error, "out of memory");
}

static bool lm__find(lm_model *m, const lm_weight *row, int layer, char error[LM_ERROR]) {
    lm_tensor *t = &m->tensors[lm__index(layer, (int)row->role)];
    if ((row->flags & LM_UNFUSED) && m->tensors[lm__index(layer, LM_QKV)].name) return true;
    if (!m->gguf && row->role >= LM_EXPERT_GATE) return lm__find_stack(m, row, layer, t, error);
    return lm__find_one(m, row, layer, -1, t, error);
}

static int lm__compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Buffers that older files carry, and a head that the configuration ties to the embedding. */
static bool lm__may_be_left(const lm_model *m, const char *name) {
    static const char *const ends[] = { ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq" };
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    return m->config.tied == 1 && !strcmp(name, "lm_head.weight");
}

/* Names of all tensors that were found, in order; NULL: out of memory. */
static char **lm__names(const lm_model *m, size_t *out_n) {
    size_t n = 0, most = lm__count(m);
    for (size_t i = 0; i < lm__count(m); i++) most += m->tensors[i].part ? (size_t)m->config.experts : 0;
    char **names = malloc(most * sizeof *names);
    for (size_t i = 0; names && i < lm__count(m); i++) {
        const lm_tensor *t = &m->tensors[i];
        for (int64_t k = 0; t->part && k < m->config.experts; k++) names[n++] = t->part[k].name;
        if (t->name && !t->part) names[n++] = t->name;
    }
    if (names) qsort(names, n, sizeof *names, lm__compare_names);
    *out_n = n;
    return names;
}

/* Every tensor of the files is one of the family's. */
static bool lm__all_used(const lm_model *m, char error[LM_ERROR]) {
    size_t used, all = m->gguf ? gguf_count(m->gguf) : safetensors_count(m->files);
    char **names = lm__names(m, &used);
    bool ok = names != NULL || lm__fail(error, "out of memory");
    for (size_t i = 0; ok && i < all; i++) {
        char text[256];
        gguf_tensor t;
        const char *name = text;
        if (m->gguf && gguf_at(m->gguf, i, &t)) snprintf(text, sizeof text, "%.*s", (int)t.name.size, t.name.text);
        else name = safetensors_at(m->files, i)->name;
        if (!bsearch(&name, names, used, sizeof *names, lm__compare_names) && !lm__may_be_left(m, name))
            ok = lm__fail(error, "the tensor %s is in the files, and no %s has it", name, m->family->name);
    }
    free(names);
    return ok;
}

static bool lm__find_all(lm_model *m, char error[LM_ERROR]) {
    size_t n = lm__count(m);
    m->tensors = calloc(n, sizeof *m->tensors);
    m->w = calloc(n, sizeof *m->w);
    m->q = calloc(n, sizeof *m->q);
    if (!m->tensors || !m->w || !m->q) return lm__fail(error, "out of memory");
    for (const lm_weight *row = m->family->outer; row->shape; row++)
        if (!lm__find(m, row, -1, error)) return false;
    if (!m->tensors[lm__index(-1, LM_ROTARY_LONG)].name != !m->tensors[lm__index(-1, LM_ROTARY_SHORT)].name)
        return lm__fail(error, "of the long and the short factors of the rotary embedding one is missing");
    for (int layer = 0; layer < m->config.layers; layer++)
        for (const lm_weight *row = m->family->layer; row->shape; row++)
            if (!lm__find(m, row, layer, error)) return false;
    return lm__all_used(m, error);
}

/* ---- opening ---- */

static gn_dtype lm__dtype_of(uint32_t type) {
    return type == GGUF_F16 ? GN_F16 : type == GGUF_BF16 ? GN_BF16 : type == GGUF_F32 ? GN_F32 : GN_DTYPE_NONE;
}

/* `file` of `path` as JSON. False: `error`; `map` is closed by the caller. */
static bool lm__json_open(const char *path, const char *file, mapping *map, json_value *root, char error[LM_ERROR]) {
    char name[4096], why[256];
    json_limits limits = { .bytes = 1 << 24 };
    json_error at;
    snprintf(name, sizeof name, "%s/%s", path, file);
    if (!mapping_open(map, name, why, sizeof why)) return lm__fail(error, "%s", why);
    if (json_check((const char *)map->data, map->size, &limits, root, &at)) return true;
    mapping_close(map);
    return lm__fail(error, "%s: byte %zu: %s", name, at.offset, at.text);
}

static bool lm__open_directory(lm_model *m, const char *path, char error[LM_ERROR]) {
    mapping map;
    json_value root;
    char why[LM_ERROR], unused[LM_ERROR], file_error[SAFETENSORS_ERROR];
    if (!lm__json_open(path, "config.json", &map, &root, error)) return false;
    bool ok = lm__config_json(m, root, why) || lm__fail(error, "%s/config.json: %.400s", path, why);
    mapping_close(&map);
    /* generation_config.json, where there is one, may name further tokens that end a text */
    if (ok && lm__json_open(path, "generation_config.json", &map, &root, unused)) {
        ok = lm__json_ends(&m->config, root, why) || lm__fail(error, "%s/generation_config.json: %.400s", path, why);
        mapping_close(&map);
    }
    if (!ok) return false;
    m->files = safetensors_open(path, file_error);
    m->source = "safetensors";
    return m->files != NULL || lm__fail(error, "%s", file_error);
}

static bool lm__open_gguf(lm_model *m, const char *path, char error[LM_ERROR]) {
    char why[GGUF_ERROR], text[LM_ERROR];
    m->gguf = gguf_open(path, why);
    m->source = "GGUF";
    if (!m->gguf) return lm__fail(error, "%s", why);
    return lm__config_gguf(m, text) || lm__fail(error, "%s: %.400s", path, text);
}

lm_model *lm_open(const char *path, gn_dtype dtype, char error[LM_ERROR]) {
    char why[LM_ERROR];
    struct stat st;
    lm_model *m = calloc(1, sizeof *m);
    bool ok = m != NULL || lm__fail(error, "out of memory");
    if (ok && stat(path, &st)) ok = lm__fail(error, "%s: there is no such file or directory", path);
    if (ok) ok = S_ISDIR(st.st_mode) ? lm__open_directory(m, path, error) : lm__open_gguf(m, path, error);
    if (ok)
        ok = (lm__config_finish(&m->config, why) && lm__find_all(m, why)) || lm__fail(error, "%s: %.600s", path, why);
    if (!ok) {
        lm_close(m);
        return NULL;
    }
    gn_dtype stored = lm__dtype_of(m->tensors[lm__index(-1, LM_EMBEDDING)].type);
    m->dtype = dtype ? dtype : stored ? stored : GN_F32;
    m->as_stored = dtype == GN_DTYPE_NONE;
    return m;
}

void lm_quantize(lm_model *m, gn_quant format) { m->quant = format; }

void lm_close(lm_model *m) {
    if (!m) return;
    size_t n = m->tensors ? lm__count(m) : 0;
    for (size_t i = 0; i < n; i++) {
        lm_tensor *t = &m->tensors[i];
        for (int64_t k = 0; t->part && k < m->config.experts; k++) free(t->part[k].name);
        free(t->part);
        free(t->name);
        free(t->owned);
        free(t->scales);
    }
    free(m->factors);
    free(m->tensors);
    free(m->w);
    free(m->q);
    safetensors_close(m->files);
    gguf_close(m->gguf);
    free(m);
}

bool lm_intact(const lm_model *m, char error[LM_ERROR]) {
    char why[512];
    bool ok = m->gguf ? gguf_intact(m->gguf, why) : safetensors_intact(m->files, why);
    return ok || lm__fail(error, "%s", why);
}

static uint64_t lm__elements(const gn_shape *s) {
    uint64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= (uint64_t)s->dims[i];
    return n;
}

/* Factors of the rotary embedding stay f32 whatever the model is. */
static gn_dtype lm__dtype_for(const lm_model *m, size_t i) {
    bool factors = i >= lm__index(-1, LM_ROTARY_FACTORS) && i <= lm__index(-1, LM_ROTARY_SHORT);
    return factors ? GN_F32 : m->dtype;
}

/* As it is used, to `out`; runs are whole blocks. False: out of memory. */
static bool lm__convert(const lm_tensor *t, gn_dtype to, char *out) {
    enum { RUN = 1 << 14 };
    uint64_t n = lm__elements(&t->shape), size = gn_dtype_bytes(to);
    uint32_t block, block_bytes;
    float *run = malloc(RUN * sizeof *run);
    bool ok = run && gguf_block(t->type, &block, &block_bytes);
    for (uint64_t i = 0; ok && i < n; i += RUN) {
        uint64_t count = n - i < RUN ? n - i : RUN;
        ok = gguf_to_f32(t->type, (const char *)t->data + i / block * block_bytes, count, run);
        for (uint64_t k = 0; ok && k < count; k++) {
            uint16_t half = to == GN_F16 ? gn_f32_to_f16(run[k]) : to == GN_BF16 ? gn_f32_to_bf16(run[k]) : 0;
            memcpy(out + (i + k) * size, to == GN_F32 ? (void *)&run[k] : (void *)&half, size);
        }
    }
    free(run);
    return ok;
}

/* The tensor in the dtype it is used in: where it lies in the file, or a copy. */
static const void *lm__host(const lm_model *m, size_t index) {
    lm_tensor *t = &m->tensors[index];
    gn_dtype to = lm__dtype_for(m, index);
    uint64_t n = lm__elements(&t->shape), size = gn_dtype_bytes(to);
    int64_t parts = t->part ? t->shape.dims[0] : 1;
    if (!t->part && lm__dtype_of(t->type) == to && (uintptr_t)t->data % size == 0) return t->data;
    char *out = t->owned = malloc((size_t)(n * size) + 1);
    bool ok = out != NULL;
    for (int64_t i = 0; ok && i < parts; i++)
        ok = lm__convert(t->part ? &t->part[i] : t, to, out + (uint64_t)i * (n / (uint64_t)parts) * size);
    return ok ? out : NULL;
}

/* ---- quantised matrices ---- */

/* What the weight will be: what was asked for, or what the file holds; GN_QUANT_NONE: numbers. */
static gn_quant lm__quant_of(const lm_model *m, size_t i) {
    static const uint8_t roles[] = { LM_EMBEDDING, LM_HEAD,    LM_QKV,  LM_Q,  LM_K,   LM_V,
                                     LM_O,         LM_GATE_UP, LM_GATE, LM_UP, LM_DOWN };
    const lm_tensor *t = &m->tensors[i];
    bool listed = false;
    for (size_t k = 0; k < sizeof roles; k++) listed = listed || roles[k] == i % LM_ROLES;
    if (!listed || !t->name || t->shape.rank != 2) return GN_QUANT_NONE;
    if (m->quant) return t->shape.dims[!t->in_out] % 2 ? GN_QUANT_NONE : m->quant;
    return m->as_stored && t->type != GGUF_F32 && gn_quant_block((gn_quant)t->type, NULL, NULL) ? (gn_quant)t->type
                                                                                                : GN_QUANT_NONE;
}

/* Rows and columns as it is used, and columns that share a scale. */
static void lm__quant_sizes(const lm_model *m, size_t i, int64_t *out_n, int64_t *out_k, int64_t *out_group) {
    const lm_tensor *t = &m->tensors[i];
    *out_n = t->shape.dims[t->in_out];
    *out_k = t->shape.dims[!t->in_out];
    *out_group = 64;
    while (*out_k % *out_group) *out_group /= 2;
    if (m->quant == GN_QUANT_FP8_E4M3) *out_group = *out_k;
}

static uint64_t lm__bytes(const lm_model *m, size_t i) {
    const lm_tensor *t = &m->tensors[i];
    gn_quant format = lm__quant_of(m, i);
    int64_t n, k, group;
    if (!format) return lm__elements(&t->shape) * gn_dtype_bytes(lm__dtype_for(m, i));
    if (!m->quant) return t->bytes;
    lm__quant_sizes(m, i, &n, &k, &group);
    return (uint64_t)n * ((uint64_t)k / (format == GN_QUANT_INT4 ? 2 : 1) +
                          (uint64_t)(k / group) * (format == GN_QUANT_FP8_E4M3 ? 4 : 2));
}

/* Quantises on `cpu` into memory of the tensor. False: out of memory. */
static bool lm__quantise(lm_model *m, size_t i, gn_ctx *cpu) {
    lm_tensor *t = &m->tensors[i];
    int64_t n, k, group;
    const void *host = lm__host(m, i);
    lm__quant_sizes(m, i, &n, &k, &group);
    bool fp8 = m->quant == GN_QUANT_FP8_E4M3;
    size_t row = (size_t)k / (m->quant == GN_QUANT_INT4 ? 2 : 1), each = fp8 ? 4 : 2;
    uint8_t *data = malloc((size_t)n * row), *scales = malloc((size_t)n * (size_t)(k / group) * each);
    bool ok = host && data && scales;
    if (ok) {
        gn_tensor a = gn_data(cpu, lm__dtype_for(m, i), t->shape, host);
        gn_quantized q =
            gn_quantize(t->in_out ? gn_transpose(a, 0, 1) : a,
                        &(gn_quantize_desc){
                            .format = m->quant, .group = group, .rows = 1, .scales = fp8 ? GN_F32 : GN_F16 });
        const gn_tensor both[2] = { q.data, q.scales };
        void *const out[2] = { data, scales };
        const size_t sizes[2] = { (size_t)n * row, (size_t)n * (size_t)(k / group) * each };
        ok = gn_read_many(both, 2, out, sizes) == GN_OK && gn_step(cpu) == GN_OK;
    }
    free(t->owned);
    t->owned = data;
    t->scales = scales;
    return ok;
}

/* Bytes as the file has them go to servers from there and take no memory here. A device of this machine reads the
   mapped file, which may be cut meanwhile: lm_intact. */
static gn_tensor lm__weight(lm_model *m, const lm_tensor *t, gn_dtype d, gn_shape shape, const void *host) {
    gn_device_info info;
    bool away = host == t->data && t->path;
    for (int i = 0; away && i < gn_device_count(m->g); i++)
        away = gn_get_device_at(m->g, i, &info) == GN_OK && (info.remote || info.absent);
    return away ? gn_weight_file(m->g, d, shape, t->path, t->offset, t->name)
                : gn_weight(m->g, d, shape, host, t->name);
}

/* The weight in its quantised form, as the file has it or as it was made. */
static void lm__load_quantised(lm_model *m, size_t i) {
    lm_tensor *t = &m->tensors[i];
    gn_quantized *q = &m->q[i];
    int elements, bytes;
    int64_t n, k, group;
    lm__quant_sizes(m, i, &n, &k, &group);
    *q = (gn_quantized){ .format = lm__quant_of(m, i) };
    gn_quant_block(q->format, &elements, &bytes);
    q->data = lm__weight(m, t, GN_U8, GN_SHAPE(n, k / elements * bytes), t->owned ? t->owned : t->data);
    if (t->scales)
        q->scales = gn_weight(m->g, q->format == GN_QUANT_FP8_E4M3 ? GN_F32 : GN_F16, GN_SHAPE(n, k / group), t->scales,
                              t->name);
    m->w[i] = q->data;
}

static bool lm__quantise_all(lm_model *m, char error[LM_ERROR]) {
    if (!m->quant) return true;
    gn_ctx *cpu = gn_open(&(gn_desc){ .devices = "cpu" });
    bool ok = gn_status(cpu) == GN_OK || lm__fail(error, "no CPU to quantise on");
    for (size_t i = 0; ok && i < lm__count(m); i++)
        if (lm__quant_of(m, i) && !lm__quantise(m, i, cpu))
            ok = lm__fail(error, "%s cannot be quantised: %.300s", m->tensors[i].name, gn_last_error(cpu)->text);
    gn_close(cpu);
    return ok;
}

bool lm_load(lm_model *m, gn_ctx *g, lm_kind kind, char error[LM_ERROR]) {
    size_t n = lm__count(m);
    m->g = g;
    if (kind == LM_WEIGHTS && !lm__quantise_all(m, error)) return false;
    for (size_t i = 0; i < n; i++) {
        lm_tensor *t = &m->tensors[i];
        if (!t->name) continue;
        if (kind == LM_WEIGHTS && lm__quant_of(m, i)) {
            lm__load_quantised(m, i);
            continue;
        }
        const void *host = lm__host(m, i);
        if (!host)
            return lm__fail(error, "no memory for %s as %s (%llu bytes)", t->name, gn_dtype_name(m->dtype),
                            (unsigned long long)(lm__elements(&t->shape) * gn_dtype_bytes(m->dtype)));
        m->w[i] = kind == LM_STATES ? gn_state(g, lm__dtype_for(m, i), t->shape, host, t->name)
                                    : lm__weight(m, t, lm__dtype_for(m, i), t->shape, host);
    }
    return lm_intact(m, error);
}

gn_result lm_send(const lm_model *m, int first, int n, uint64_t *out_bytes) {
    gn_tensor corner[LM_SEND * LM_ROLES];
    uint64_t bytes = 0;
    gn_result r = GN_OK;
    int held = 0;
    for (int k = 0; k < (n < LM_SEND ? n : LM_SEND) * LM_ROLES && first + k / LM_ROLES < m->config.layers; k++) {
        size_t i = lm__index(first + k / LM_ROLES, k % LM_ROLES);
        const lm_tensor *t = &m->tensors[i];
        if (!t->name) continue;
        corner[held] = m->w[i];
        for (int axis = 0; axis < t->shape.rank; axis++) corner[held] = gn_slice(corner[held], axis, 0, 1, 1);
        held++;
        bytes += lm__bytes(m, i);
    }
    if (held) r = gn_realize(corner, held);
    if (r == GN_OK) r = gn_step(m->g);
    if (out_bytes) *out_bytes = bytes;
    return r;
}

uint64_t lm_weight_bytes(const lm_model *m) {
    uint64_t sum = 0;
    for (size_t i = 0; i < lm__count(m); i++)
        if (m->tensors[i].name) sum += lm__bytes(m, i);
    return sum;
}

uint64_t lm_cache_bytes(const lm_model *m, int64_t context) {
    const lm_config *c = &m->config;
    return (uint64_t)(2 * c->layers * c->kv_heads * c->head_dim * context) * gn_dtype_bytes(m->dtype);
}

const char *lm_family_name(const lm_model *m) { return m->family->name; }

bool lm_tensor_at(const lm_model *m, int layer, int role, const char **out_name, gn_tensor *out, gn_shape *out_shape) {
    size_t i = lm__index(layer, role);
    if (layer < -1 || layer >= m->config.layers || role < 0 || role >= LM_ROLES || !m->tensors[i].name) return false;
    *out_name = m->tensors[i].name;
    *out = m->w[i];
    *out_shape = m->tensors[i].shape;
    return true;
}

/* ---- sequences ---- */

bool lm_session_open(lm_session *s, lm_model *m, int64_t context, char error[LM_ERROR]) {
    const lm_config *c = &m->config;
    *s = (lm_session){ .m = m, .context = context };
    if (context < 1 || context > c->context)
        return lm__fail(error, "a context of %lld tokens: this model has room for 1 to %lld", (long long)context,
                        (long long)c->context);
    s->cache = calloc(2 * LM_LAYERS, sizeof *s->cache);
    if (!s->cache) return lm__fail(error, "out of memory");
    for (int64_t i = 0; i < 2 * c->layers; i++)
        s->cache[i] =
            gn_state(m->g, m->dtype, GN_SHAPE(1, c->kv_heads, context, c->head_dim), NULL, i % 2 ? "values" : "keys");
    return true;
}

void lm_session_close(lm_session *s) {
    for (int64_t i = 0; s->cache && i < 2 * s->m->config.layers; i++) gn_release(s->cache[i]);
    free(s->cache);
    *s = (lm_session){ 0 };
}

static gn_tensor lm__layers(const lm_pass *p, gn_tensor ids) {
    const lm_model *m = p->m;
    const gn_quantized *table = &m->q[lm__index(-1, LM_EMBEDDING)];
    gn_tensor x =
        table->format ? gn_embedding_quantized(*table, ids, m->dtype) : gn_embedding(lm__w(p, -1, LM_EMBEDDING), ids);
    if (lm__has(p, -1, LM_PLACES)) x = gn_add(x, gn_embedding(lm__w(p, -1, LM_PLACES), p->places));
    x = gn_reshape(x, GN_SHAPE(p->batch * p->tokens, m->config.dim));
    if (m->family->scaled_embedding) x = gn_mul_c(x, sqrt((double)m->config.dim));
    for (int i = 0; i < m->config.layers; i++) x = m->family->block(p, i, x);
    return x;
}

gn_tensor lm_forward_at(lm_session *s, gn_tensor position, gn_tensor ids, int64_t tokens) {
    lm_pass p = { .m = s->m, .batch = 1, .tokens = tokens, .cache = s->cache, .context = s->context };
    p.position = position;
    p.places = gn_add(gn_arange(s->m->g, GN_I32, tokens, 0, 1), position);
    return lm__layers(&p, ids);
}

gn_tensor lm_forward(lm_session *s, gn_tensor ids, int64_t tokens) {
    return lm_forward_at(s, gn_scalar(s->m->g, GN_I32, (double)s->position), ids, tokens);
}

bool lm_pages_open(lm_pages *p, lm_model *m, const gn_kv_pages_desc *desc, char error[LM_ERROR]) {
    const lm_config *c = &m->config;
    *p = (lm_pages){ .m = m, .desc = *desc };
    if (!p->desc.tokens) p->desc.tokens = c->context;
    if (p->desc.tokens > c->context)
        return lm__fail(error, "a context of %lld tokens: this model has room for 1 to %lld", (long long)p->desc.tokens,
                        (long long)c->context);
    gn_result r = gn_kv_pages_open(&p->desc, &p->held);
    p->pool = calloc(2 * LM_LAYERS, sizeof *p->pool);
    if (r == GN_BAD_ARGUMENT)
        return lm__fail(error, "%lld pages of %lld tokens for %lld sequences: each is at least 1",
                        (long long)desc->pages, (long long)desc->page_size, (long long)desc->sequences);
    if (r != GN_OK || !p->pool) return lm__fail(error, "out of memory");
    gn_shape shape = GN_SHAPE(p->desc.pages, c->kv_heads, p->desc.page_size, c->head_dim);
    for (int64_t i = 0; i < 2 * c->layers; i++)
        p->pool[i] = gn_state(m->g, m->dtype, shape, NULL, i % 2 ? "values" : "keys");
    return true;
}

void lm_pages_close(lm_pages *p) {
    for (int64_t i = 0; p->pool && i < 2 * p->m->config.layers; i++) gn_release(p->pool[i]);
    free(p->pool);
    gn_kv_pages_close(p->held);
    *p = (lm_pages){ 0 };
}

gn_tensor lm_forward_pages(const lm_pages *p, const lm_rows *rows) {
    lm_pass pass = { .m = p->m, .batch = 1, .tokens = rows->n, .pages = p, .rows = rows };
    pass.places = rows->positions;
    pass.context = p->desc.tokens;
    return lm__layers(&pass, rows->ids);
}

gn_tensor lm_forward_batch(const lm_model *m, gn_tensor ids, int64_t batch, int64_t tokens) {
    lm_pass p = { .m = m, .batch = batch, .tokens = tokens, .context = tokens };
    p.places = gn_arange(m->g, GN_I32, tokens, 0, 1);
    return lm__layers(&p, ids);
}

gn_tensor lm_logits(const lm_model *m, gn_tensor rows) {
    lm_pass p = { .m = m };
    double cap = m->config.logit_cap;
    gn_tensor x = lm__norm(&p, -1, LM_FINAL_NORM, rows);
    const gn_quantized *table = &m->q[lm__index(-1, LM_EMBEDDING)];
    gn_tensor y = lm__has(&p, -1, LM_HEAD) ? lm__linear(&p, -1, LM_HEAD, x)
                  : table->format          ? gn_linear_quantized(x, *table, GN_NONE)
                                           : gn_matmul(x, gn_transpose(lm__w(&p, -1, LM_EMBEDDING), 0, 1));
    y = gn_cast(y, GN_F32);
    return cap > 0 ? gn_mul_c(gn_tanh(gn_div_c(y, cap)), cap) : y;
}

#endif /* LANGUAGE_MODEL_IMPLEMENTATION */
