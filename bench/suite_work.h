/* The workloads of genie_bench: inputs from a seed, and what each case computes of them.
 * bench/adapters/workloads.py says the same for other stacks. A step computes `value`; that stays on the device, or
 * `answer` of it is read. */
#ifndef GN_SUITE_WORK_H
#define GN_SUITE_WORK_H

enum { SEED = 1, PIXELS = 784, CLASSES = 10, ROWS_EACH = 64 };

/* ---- numbers ---- */

/* The finaliser of MurmurHash3 (Appleby): 32 bits to 32 bits. */
static uint32_t mixed(uint32_t h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

static void store(gn_dtype d, void *p, size_t i, float x) {
    if (d == GN_F16) ((uint16_t *)p)[i] = gn_f32_to_f16(x);
    else if (d == GN_BF16) ((uint16_t *)p)[i] = gn_f32_to_bf16(x);
    else if (d == GN_F64) ((double *)p)[i] = (double)x;
    else ((float *)p)[i] = x;
}

static float rounded(gn_dtype d, float x) {
    return d == GN_F16 ? gn_f16_to_f32(gn_f32_to_f16(x)) : d == GN_BF16 ? gn_bf16_to_f32(gn_f32_to_bf16(x)) : x;
}

/* `as`: the dtype whose values these are; `d`: the one that they are stored in. */
static void leaf_fill(leaf *l, int place, gn_dtype as, gn_dtype d) {
    size_t n = count_of(&l->shape);
    uint32_t key = mixed((uint32_t)(SEED * 1000003 + place));
    l->host = or_die(malloc(n * (l->below ? 4 : gn_dtype_bytes(d))));
    for (size_t i = 0; i < n; i++) {
        uint32_t h = mixed((uint32_t)i ^ key);
        if (l->below) ((int32_t *)l->host)[i] = (int32_t)(h % (uint32_t)l->below);
        else store(d, l->host, i, rounded(as, l->middle + l->spread * ((float)(h >> 8) * 0x1p-23f - 1)));
    }
}

static int take(job *j, const char *name, gn_shape shape, double middle, double spread) {
    if (j->n_leaves == MAX_LEAVES) die("more than %d inputs: ask for fewer layers", MAX_LEAVES);
    j->leaves[j->n_leaves] = (leaf){ .name = name, .shape = shape, .middle = (float)middle, .spread = (float)spread };
    return j->n_leaves++;
}
static void take_ids(job *j, const char *name, gn_shape shape, int64_t below) {
    j->leaves[take(j, name, shape, 0, 0)].below = below;
}
static void take_state(job *j, const char *name, gn_shape shape, double middle, double spread) {
    j->leaves[take(j, name, shape, middle, spread)].state = true;
}
/* So spread that a product has the size of what goes in. */
static double fair(int64_t rows) { return sqrt(3.0 / (double)rows); }

static gn_tensor in(const job *j, int i) { return j->leaves[i].t; }

static bool job_is_wide(const job *j) { return j->hidden >= 64 && j->hidden % 64 == 0; }

/* ---- simple cases ---- */

static double count_batch(const job *j) { return (double)j->batch; }
static double count_rows(const job *j) { return (double)(j->batch * ROWS_EACH); }
static double count_hidden(const job *j) { return (double)j->hidden; }
static double count_tokens(const job *j) { return (double)(j->batch * j->tokens); }

static void open_mlp(job *j) {
    const int64_t side[4] = { PIXELS, j->hidden, j->hidden, CLASSES };
    take(j, "x", GN_SHAPE(j->batch, PIXELS), 0, 1);
    for (int i = 0; i < 3; i++) {
        take(j, "w", GN_SHAPE(side[i], side[i + 1]), 0, fair(side[i]));
        take(j, "b", GN_SHAPE(side[i + 1]), 0, 0.1);
    }
}
static gn_tensor value_mlp(job *j, int step) {
    (void)step;
    gn_tensor x = gn_relu(gn_linear(in(j, 0), in(j, 1), in(j, 2)));
    return gn_softmax(gn_linear(gn_relu(gn_linear(x, in(j, 3), in(j, 4))), in(j, 5), in(j, 6)), -1);
}

static void open_matmul(job *j) {
    take(j, "a", GN_SHAPE(j->hidden, j->hidden), 0, 1);
    take(j, "b", GN_SHAPE(j->hidden, j->hidden), 0, fair(j->hidden));
}
static gn_tensor value_matmul(job *j, int step) {
    (void)step;
    return gn_matmul(in(j, 0), in(j, 1));
}

static void open_wide(job *j) {
    take(j, "x", GN_SHAPE(j->batch * ROWS_EACH, j->hidden), 0, 2);
    take(j, "y", GN_SHAPE(j->batch * ROWS_EACH, j->hidden), 0, 2);
}
static gn_tensor value_elementwise(job *j, int step) { /* gelu(1.5 x + 0.25) sigmoid(y) */
    (void)step;
    return gn_mul(gn_gelu(gn_add_c(gn_mul_c(in(j, 0), 1.5), 0.25)), gn_sigmoid(in(j, 1)));
}

static void open_rows(job *j) {
    take(j, "x", GN_SHAPE(j->batch * ROWS_EACH, j->hidden), 0, 2);
    take(j, "gain", GN_SHAPE(j->hidden), 1, 0.1);
    take(j, "bias", GN_SHAPE(j->hidden), 0, 0.1);
}
static gn_tensor value_softmax(job *j, int step) {
    (void)step;
    return gn_softmax(in(j, 0), -1);
}
static gn_tensor value_layernorm(job *j, int step) {
    (void)step;
    return gn_layernorm(in(j, 0), in(j, 1), in(j, 2), 1e-5);
}
static gn_tensor value_rmsnorm(job *j, int step) {
    (void)step;
    return gn_rmsnorm(in(j, 0), in(j, 1), 1e-5);
}
static gn_tensor value_sum(job *j, int step) {
    (void)step;
    return gn_sum(in(j, 0), GN_AXES(1), false);
}

static void shape_attention(job *j) {
    if (!job_is_wide(j)) die("attention needs --hidden that is a multiple of 64, not %lld", (long long)j->hidden);
    j->head = 64;
    j->heads = j->hidden / 64;
}
static void open_attention(job *j) {
    for (int i = 0; i < 3; i++)
        take(j, i == 0 ? "q" : i == 1 ? "k" : "v", GN_SHAPE(j->batch, j->heads, j->tokens, j->head), 0, 1.7);
}
static gn_tensor value_attention(job *j, int step) {
    gn_attention_desc d = { .causal = true };
    (void)step;
    return gn_attention(in(j, 0), in(j, 1), in(j, 2), &d);
}

/* A step of stochastic gradient descent; the loss is of the weights before it. */
static void open_training(job *j) {
    const int64_t side[3] = { PIXELS, j->hidden, CLASSES };
    take(j, "x", GN_SHAPE(j->batch, PIXELS), 0, 1);
    take_ids(j, "targets", GN_SHAPE(j->batch), CLASSES);
    for (int i = 0; i < 2; i++) {
        take_state(j, "w", GN_SHAPE(side[i], side[i + 1]), 0, fair(side[i]));
        take_state(j, "b", GN_SHAPE(side[i + 1]), 0, 0.1);
    }
}
static gn_tensor value_training(job *j, int step) {
    gn_tensor params[4] = { in(j, 2), in(j, 3), in(j, 4), in(j, 5) }, grads[4];
    gn_sgd_desc sgd = { .lr = gn_scalar(j->g, j->d, 0.0625) };
    (void)step;
    gn_tensor h = gn_relu(gn_linear(in(j, 0), params[0], params[1]));
    gn_tensor loss = gn_cross_entropy(gn_linear(h, params[2], params[3]), in(j, 1));
    ok_or_die(j->g, gn_grad(loss, params, 4, grads), "training");
    ok_or_die(j->g, gn_sgd(&sgd, params, grads, NULL, 4), "training");
    return loss;
}
static gn_tensor answer_itself(job *j, gn_tensor value) {
    (void)j;
    return value;
}

#endif
