/* Decoding with Llama-shaped models, bf16, batch 1, steps queued: rows of bench_gpu. Weights are random; matrices lie
 * (N,K), as in the files of model hubs, but (K,N) in the row whose name says so; all in one pool of host memory at
 * places of their own, so that a model of 16 GB needs 2 GB of it, and each is uploaded once. Beside each row stands
 * what the bytes it reads take at 4.3 TB/s and its kernels at 1.5 us each. With an empty folder as $GENIE_CACHE,
 * GENIE_CUDA_RING=1 and GENIE_LOG=info each form of each kernel is timed alone. */
#ifndef GN_DECODER_ROWS_H
#define GN_DECODER_ROWS_H

typedef struct decoder_shape {
    const char *name;
    int64_t layers, dim, heads, groups, head, inner, vocab, past, room;
    double base, target; /* of rotary embedding; us */
    bool columns;        /* matrices lie (K,N): an input's weights, then the next input's */
} decoder_shape;

/* Zhang et al. 2024 (TinyLlama); Llama Team 2024 */
static const decoder_shape decoder_shapes[] = {
    { "decode_1b_queued", 22, 2048, 32, 4, 64, 5632, 32000, 512, 1024, 10000, 640, false },
    { "decode_llama_1b_queued", 16, 2048, 32, 8, 64, 8192, 128256, 512, 1024, 500000, 700, false },
    { "decode_llama_1b_kn_queued", 16, 2048, 32, 8, 64, 8192, 128256, 512, 1024, 500000, 700, true },
    { "decode_llama_1b_8k_queued", 16, 2048, 32, 8, 64, 8192, 128256, 8192, 9216, 500000, 805, false },
    { "decode_llama_8b_queued", 32, 4096, 32, 8, 128, 14336, 128256, 512, 1024, 500000, 3922, false },
};

enum { DECODER_LAYERS = 32, DECODER_WEIGHTS = 9, DECODER_AHEAD = 16 };

typedef struct decoder {
    gn_ctx *g;
    const decoder_shape *s;
    int64_t layers, vocab;
    gn_tensor w[DECODER_LAYERS][DECODER_WEIGHTS], cache[DECODER_LAYERS][2], table, gain, token;
    size_t used, pool;
    double bytes; /* that a step reads */
} decoder;

static uint16_t *decoder_pool, *decoder_gains, *decoder_past;

/* What takes `down` values to `columns` of them; columns 0: a vector of gains. */
static gn_tensor decoder_weight(decoder *m, int64_t down, int64_t columns) {
    size_t n = (size_t)(down * (columns ? columns : 1));
    m->bytes += 2. * (double)n;
    if (!columns) return gn_weight(m->g, GN_BF16, GN_SHAPE(down), decoder_gains, "gain");
    m->used = (m->used + 16 * 1009) % (m->pool - n) & ~(size_t)15;
    const uint16_t *at = decoder_pool + m->used;
    m->used += n;
    return gn_weight(m->g, GN_BF16, m->s->columns ? GN_SHAPE(down, columns) : GN_SHAPE(columns, down), at, "w");
}

static gn_tensor decoder_product(const decoder *m, gn_tensor x, gn_tensor w) {
    return gn_matmul(x, m->s->columns ? w : gn_transpose(w, 0, 1));
}

static void decoder_open(decoder *m, gn_ctx *g, const decoder_shape *s, int64_t layers, int64_t vocab, size_t pool) {
    int64_t d = s->dim, q = s->heads * s->head, kv = s->groups * s->head, f = s->inner;
    const int64_t shapes[DECODER_WEIGHTS][2] = { { d, 0 }, { d, q }, { d, kv }, { d, kv }, { q, d },
                                                 { d, 0 }, { d, f }, { d, f },  { f, d } };
    *m = (decoder){ .g = g, .s = s, .layers = layers, .vocab = vocab, .pool = pool };
    m->table = s->columns ? decoder_weight(m, vocab, d) : decoder_weight(m, d, vocab); /* (vocab, d) */
    m->gain = decoder_weight(m, d, 0);
    for (int64_t l = 0; l < layers; l++) {
        for (int i = 0; i < DECODER_WEIGHTS; i++) m->w[l][i] = decoder_weight(m, shapes[i][0], shapes[i][1]);
        for (int i = 0; i < 2; i++)
            m->cache[l][i] = gn_state(g, GN_BF16, GN_SHAPE(1, s->groups, s->room, s->head), decoder_past, "cache");
        m->bytes += 4. * (double)(s->groups * s->past * s->head);
    }
    m->token = gn_state(g, GN_I64, GN_SHAPE(1), NULL, "token");
}

static void decoder_close(decoder *m) {
    for (int64_t l = 0; l < m->layers; l++) {
        for (int i = 0; i < DECODER_WEIGHTS; i++) gn_release(m->w[l][i]);
        for (int i = 0; i < 2; i++) gn_release(m->cache[l][i]);
    }
    gn_release(m->table);
    gn_release(m->gain);
    gn_release(m->token);
}

/* (1, vocab): of the token after the one in m->token. */
static gn_tensor decoder_logits(const decoder *m, int64_t position) {
    const decoder_shape *s = m->s;
    gn_tensor at = gn_scalar(m->g, GN_I32, (double)position), places = gn_reshape(at, GN_SHAPE(1)),
              x = gn_embedding(m->table, m->token);
    const gn_shape heads = GN_SHAPE(1, s->heads, 1, s->head), groups = GN_SHAPE(1, s->groups, 1, s->head);
    for (int64_t l = 0; l < m->layers; l++) {
        const gn_tensor *w = m->w[l];
        gn_tensor h = gn_rmsnorm(x, w[0], 1e-5);
        gn_tensor q = gn_rotary(gn_reshape(decoder_product(m, h, w[1]), heads), places, s->base, false),
                  k = gn_rotary(gn_reshape(decoder_product(m, h, w[2]), groups), places, s->base, false),
                  v = gn_reshape(decoder_product(m, h, w[3]), groups);
        gn_attention_desc how = { .causal = true, .length = gn_add_c(at, 1) };
        gn_tensor a = gn_attention(q, gn_kv_append(m->cache[l][0], k, at), gn_kv_append(m->cache[l][1], v, at), &how);
        x = gn_add(x, decoder_product(m, gn_reshape(a, GN_SHAPE(1, s->heads * s->head)), w[4]));
        h = gn_rmsnorm(x, w[5], 1e-5);
        gn_tensor inner = gn_mul(gn_silu(decoder_product(m, h, w[6])), decoder_product(m, h, w[7]));
        x = gn_add(x, decoder_product(m, inner, w[8]));
    }
    return gn_matmul(gn_rmsnorm(x, m->gain, 1e-5), gn_transpose(m->table, 0, 1));
}

static void decoder_step(const decoder *m, int64_t position, int64_t *out) {
    gn_tensor next = gn_argmax(decoder_logits(m, position), GN_AXES(1), false);
    gn_assign(m->token, next);
    if (out) ok_or_die(m->g, gn_read(next, out, sizeof *out), "decode");
    ok_or_die(m->g, gn_step(m->g), "decode");
}

/* Numbers of all sizes that products of `dim` keep, drawn once and repeated over the pool. */
static size_t decoder_make(const decoder_shape *s) {
    enum { DRAWN = 1 << 22 };
    size_t largest = (size_t)(s->vocab * s->dim), inner = (size_t)(s->dim * s->inner),
           pool = (largest > inner ? largest : inner) + DRAWN, past = (size_t)(s->groups * s->room * s->head);
    decoder_pool = or_die(malloc(pool * sizeof *decoder_pool));
    for (size_t i = 0; i < DRAWN; i++) decoder_pool[i] = gn_f32_to_bf16((float)sqrt(3.0 / (double)s->dim) * draw());
    for (size_t at = DRAWN; at < pool; at += DRAWN)
        memcpy(decoder_pool + at, decoder_pool, (pool - at < DRAWN ? pool - at : DRAWN) * sizeof *decoder_pool);
    decoder_gains = or_die(malloc((size_t)s->dim * sizeof *decoder_gains));
    for (int64_t i = 0; i < s->dim; i++) decoder_gains[i] = gn_f32_to_bf16(1 + 0.1f * draw());
    decoder_past = make_random(GN_BF16, past, 1.7f);
    return pool;
}

/* The logits of two layers with the first tokens of the vocabulary beside those of the CPU executor. */
static double decoder_error(gn_ctx *g, const decoder_shape *s, size_t pool) {
    enum { LOGITS = 4096 };
    static float logits[2][LOGITS];
    largest_error e = { 0 };
    for (int i = 0; i < 2; i++) {
        decoder m;
        gn_ctx *on = i ? open_or_die("cpu", NULL) : g;
        decoder_open(&m, on, s, 2, LOGITS, pool);
        ok_or_die(on, gn_read(gn_cast(decoder_logits(&m, s->past), GN_F32), logits[i], sizeof logits[i]), "logits");
        ok_or_die(on, gn_step(on), "step");
        decoder_close(&m);
        if (i) gn_close(on);
    }
    for (int i = 0; i < LOGITS; i++) error_add(&e, (double)logits[0][i], (double)logits[1][i]);
    return error_of(&e);
}

static void bench_decoder(gn_ctx *g, const decoder_shape *s) {
    decoder m;
    gn_stats stats[2];
    int64_t token = 0, position = s->past;
    int n = 0, times = repeats(12);
    if (!wanted(s->name)) return;
    size_t pool = decoder_make(s);
    row *out = add_row(s->name, "us", s->target, true);
    out->error = decoder_error(g, s, pool);
    out->bound = 0.04;
    decoder_open(&m, g, s, s->layers, s->vocab, pool);
    for (int i = -2; i < times; i++) {
        double start = ex_now();
        gn_get_stats(g, &stats[0]);
        for (int k = 0; k < DECODER_AHEAD; k++) decoder_step(&m, position + k, k + 1 == DECODER_AHEAD ? &token : NULL);
        gn_get_stats(g, &stats[1]);
        if (i >= 0) samples[n++] = (ex_now() - start) * 1e6 / DECODER_AHEAD;
        if (token < 0 || token >= s->vocab) failed("decode gives a token that is none");
    }
    double kernels = (double)(stats[1].kernels_run - stats[0].kernels_run) / DECODER_AHEAD;
    out->value = quantile(samples, n, 0.5);
    out->p95 = quantile(samples, n, 0.95);
    set_ceiling(out, m.bytes / 4.3e6 + 1.5 * kernels, "bytes / 4.3 TB/s + 1.5 us * kernels");
    snprintf(out->note, sizeof out->note, "past %lld, %.0f kernels, %.2f GB: %.0f us; %.0f tokens/s",
             (long long)s->past, kernels, 1e-9 * m.bytes, m.bytes / 4.3e6, 1e6 / out->value);
    print_row(out);
    decoder_close(&m);
    free(decoder_pool);
    free(decoder_gains);
    free(decoder_past);
}

static void bench_decoders(gn_ctx *g) {
    for (size_t i = 0; i < sizeof decoder_shapes / sizeof *decoder_shapes; i++) bench_decoder(g, &decoder_shapes[i]);
}

#endif
