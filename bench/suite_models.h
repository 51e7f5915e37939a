/* Language models of genie_bench, with random weights in the shapes of GPT-2 124M (Radford et al. 2019) and Llama 3.2
 * 1B (Llama Team 2024). prefill: the tokens of one sequence at once; decode: one more token after them; batch: one more
 * token of each of --batch sequences. A step reads the token with the largest logit; the next begins with it. */
#ifndef GN_SUITE_MODELS_H
#define GN_SUITE_MODELS_H

enum { POSITIONS = 32 }; /* steps of decoding go through so many places behind the past */

static void shape_model(job *j, int64_t dim, int64_t layers, int64_t vocab) {
    bool prefill = strcmp(j->c->name, "prefill") == 0;
    if (!j->hidden) j->hidden = dim;
    if (!j->layers) j->layers = layers;
    if (!j->vocab) j->vocab = vocab;
    if (!job_is_wide(j)) die("a model needs --hidden that is a multiple of 64, not %lld", (long long)j->hidden);
    if (strcmp(j->c->name, "batch") != 0) j->batch = 1;
    j->head = 64;
    j->heads = j->kv_heads = j->hidden / 64;
    j->feed_forward = 4 * j->hidden;
    j->room = j->tokens + POSITIONS;
    j->new = prefill ? j->tokens : 1;
}
static void shape_gpt2(job *j) { shape_model(j, 768, 12, 50257); }
static void shape_llama(job *j) {
    shape_model(j, 2048, 16, 128256);
    if (j->heads % 4 == 0) j->kv_heads = j->heads / 4;
}

static double count_model(const job *j) { return (double)(j->batch * j->new); }

static void take_cache(job *j) {
    for (int i = 0; i < 2; i++)
        take_state(j, i ? "values" : "keys", GN_SHAPE(j->batch, j->kv_heads, j->room, j->head), 0, 1.7);
}

/* (batch * new, heads * head) to (batch, heads, new, head) */
static gn_tensor to_heads(const job *j, gn_tensor x, int64_t heads) {
    return gn_transpose(gn_reshape(x, GN_SHAPE(j->batch, j->new, heads, j->head)), 1, 2);
}
static gn_tensor from_heads(const job *j, gn_tensor x) {
    return gn_reshape(gn_transpose(x, 1, 2), GN_SHAPE(j->batch * j->new, j->heads * j->head));
}

/* Keys and values go into the cache at `at`; a prefill sees its own alone, a step of decoding the past too. */
static gn_tensor cached_attention(const job *j, gn_tensor q, gn_tensor k, gn_tensor v, int cache, gn_tensor at) {
    gn_attention_desc d = { .causal = true };
    gn_tensor keys = gn_kv_append(in(j, cache), k, at), values = gn_kv_append(in(j, cache + 1), v, at);
    if (j->new > 1) return gn_attention(q, k, v, &d);
    d.length = gn_add_c(at, 1);
    return gn_attention(q, keys, values, &d);
}

static gn_tensor first_position(const job *j, int step) {
    return gn_scalar(j->g, GN_I32, j->new > 1 ? 0 : (double)(j->tokens + step % POSITIONS));
}
static gn_tensor positions(const job *j, gn_tensor at) { return gn_add(gn_arange(j->g, GN_I32, j->new, 0, 1), at); }
/* Of each sequence the last of its new rows: (batch, hidden). */
static gn_tensor last_rows(const job *j, gn_tensor x) {
    gn_tensor all = gn_reshape(x, GN_SHAPE(j->batch, j->new, j->hidden));
    return gn_reshape(gn_slice(all, 1, j->new - 1, j->new, 1), GN_SHAPE(j->batch, j->hidden));
}

/* Ids of a prefill are data; a step of decoding begins with the tokens that the last one chose. */
static gn_tensor embedded(const job *j, gn_tensor table) {
    gn_tensor ids = j->new > 1 ? in(j, 0) : j->token;
    return gn_embedding(table, gn_reshape(ids, GN_SHAPE(j->batch * j->new)));
}
static gn_tensor answer_token(job *j, gn_tensor logits) {
    gn_tensor next = gn_argmax(logits, GN_AXES(1), false);
    gn_assign(j->token, gn_cast(next, GN_I32));
    return next;
}

/* ---- GPT-2 ---- */

enum { GPT_LAYER = 14 }; /* leaves of a layer, the cache last */

static void open_gpt2(job *j) {
    int64_t d = j->hidden;
    take_ids(j, "ids", GN_SHAPE(j->batch, j->new), j->vocab);
    take(j, "tokens", GN_SHAPE(j->vocab, d), 0, 0.05);
    take(j, "places", GN_SHAPE(j->room, d), 0, 0.5);
    take(j, "gain", GN_SHAPE(d), 1, 0.1);
    take(j, "bias", GN_SHAPE(d), 0, 0.1);
    for (int64_t l = 0; l < j->layers; l++) {
        const int64_t shapes[4][2] = { { d, 3 * d }, { d, d }, { d, 4 * d }, { 4 * d, d } };
        for (int i = 0; i < 2; i++) {
            take(j, "gain", GN_SHAPE(d), 1, 0.1);
            take(j, "bias", GN_SHAPE(d), 0, 0.1);
        }
        for (int i = 0; i < 4; i++) {
            take(j, "w", GN_SHAPE(shapes[i][0], shapes[i][1]), 0, fair(shapes[i][0]));
            take(j, "b", GN_SHAPE(shapes[i][1]), 0, 0.1);
        }
        take_cache(j);
    }
}

static gn_tensor gpt2_layer(const job *j, int at, gn_tensor x, gn_tensor first) {
    int64_t d = j->hidden;
    gn_tensor qkv = gn_linear(gn_layernorm(x, in(j, at), in(j, at + 1), 1e-5), in(j, at + 4), in(j, at + 5)), part[3];
    for (int i = 0; i < 3; i++) part[i] = to_heads(j, gn_slice(qkv, 1, i * d, (i + 1) * d, 1), j->heads);
    gn_tensor a = from_heads(j, cached_attention(j, part[0], part[1], part[2], at + 12, first));
    x = gn_add(x, gn_linear(a, in(j, at + 6), in(j, at + 7)));
    gn_tensor h = gn_linear(gn_layernorm(x, in(j, at + 2), in(j, at + 3), 1e-5), in(j, at + 8), in(j, at + 9));
    return gn_add(x, gn_linear(gn_gelu_tanh(h), in(j, at + 10), in(j, at + 11)));
}

static gn_tensor value_gpt2(job *j, int step) { /* logits (batch, vocab) */
    gn_tensor first = first_position(j, step), x = embedded(j, in(j, 1));
    gn_tensor places = gn_embedding(in(j, 2), positions(j, first)); /* (new, hidden), the same in each sequence */
    x = gn_reshape(gn_add(gn_reshape(x, GN_SHAPE(j->batch, j->new, j->hidden)), places),
                   GN_SHAPE(j->batch * j->new, j->hidden));
    for (int64_t l = 0; l < j->layers; l++) x = gpt2_layer(j, 5 + GPT_LAYER * (int)l, x, first);
    return gn_matmul(gn_layernorm(last_rows(j, x), in(j, 3), in(j, 4), 1e-5), gn_transpose(in(j, 1), 0, 1));
}

/* ---- Llama ---- */

enum { LLAMA_LAYER = 11 }; /* leaves of a layer, the cache last */

static void open_llama(job *j) {
    int64_t d = j->hidden, kv = j->kv_heads * j->head, f = j->feed_forward;
    take_ids(j, "ids", GN_SHAPE(j->batch, j->new), j->vocab);
    take(j, "tokens", GN_SHAPE(j->vocab, d), 0, 0.05);
    take(j, "gain", GN_SHAPE(d), 1, 0.1);
    for (int64_t l = 0; l < j->layers; l++) {
        const int64_t shapes[7][2] = { { d, d }, { d, kv }, { d, kv }, { d, d }, { d, f }, { d, f }, { f, d } };
        for (int i = 0; i < 2; i++) take(j, "gain", GN_SHAPE(d), 1, 0.1);
        for (int i = 0; i < 7; i++) take(j, "w", GN_SHAPE(shapes[i][0], shapes[i][1]), 0, fair(shapes[i][0]));
        take_cache(j);
    }
}

static gn_tensor llama_layer(const job *j, int at, gn_tensor x, gn_tensor first) {
    gn_tensor h = gn_rmsnorm(x, in(j, at), 1e-5), places = positions(j, first);
    gn_tensor q = gn_rotary(to_heads(j, gn_matmul(h, in(j, at + 2)), j->heads), places, 500000, false);
    gn_tensor k = gn_rotary(to_heads(j, gn_matmul(h, in(j, at + 3)), j->kv_heads), places, 500000, false);
    gn_tensor v = to_heads(j, gn_matmul(h, in(j, at + 4)), j->kv_heads);
    x = gn_add(x, gn_matmul(from_heads(j, cached_attention(j, q, k, v, at + 9, first)), in(j, at + 5)));
    h = gn_rmsnorm(x, in(j, at + 1), 1e-5);
    h = gn_mul(gn_silu(gn_matmul(h, in(j, at + 6))), gn_matmul(h, in(j, at + 7)));
    return gn_add(x, gn_matmul(h, in(j, at + 8)));
}

static gn_tensor value_llama(job *j, int step) { /* logits (batch, vocab) */
    gn_tensor first = first_position(j, step), x = embedded(j, in(j, 1));
    for (int64_t l = 0; l < j->layers; l++) x = llama_layer(j, 3 + LLAMA_LAYER * (int)l, x, first);
    return gn_matmul(gn_rmsnorm(last_rows(j, x), in(j, 2), 1e-5), gn_transpose(in(j, 1), 0, 1));
}

/* ---- all cases ---- */

/* clang-format off */
static const bench_case cases[] = {
    { "mlp", "", "samples", NULL, open_mlp, value_mlp, NULL, count_batch, 1 },
    { "matmul", "", "rows", NULL, open_matmul, value_matmul, NULL, count_hidden, 1 },
    { "elementwise", "", "rows", NULL, open_wide, value_elementwise, NULL, count_rows, 1 },
    { "rows", "softmax", "rows", NULL, open_rows, value_softmax, NULL, count_rows, 1 },
    { "rows", "layernorm", "rows", NULL, open_rows, value_layernorm, NULL, count_rows, 1 },
    { "rows", "rmsnorm", "rows", NULL, open_rows, value_rmsnorm, NULL, count_rows, 1 },
    { "rows", "sum", "rows", NULL, open_rows, value_sum, NULL, count_rows, 1 },
    { "attention", "", "tokens", shape_attention, open_attention, value_attention, NULL, count_tokens, 1 },
    { "gpt2", "prefill", "tokens", shape_gpt2, open_gpt2, value_gpt2, answer_token, count_model, 1 },
    { "gpt2", "decode", "tokens", shape_gpt2, open_gpt2, value_gpt2, answer_token, count_model, 1 },
    { "gpt2", "batch", "tokens", shape_gpt2, open_gpt2, value_gpt2, answer_token, count_model, 1 },
    { "llama", "prefill", "tokens", shape_llama, open_llama, value_llama, answer_token, count_model, 1 },
    { "llama", "decode", "tokens", shape_llama, open_llama, value_llama, answer_token, count_model, 1 },
    { "llama", "batch", "tokens", shape_llama, open_llama, value_llama, answer_token, count_model, 1 },
    { "training", "", "samples", NULL, open_training, value_training, answer_itself, count_batch, CHECKS },
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

#endif
