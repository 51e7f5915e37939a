/* Decoding with Llama-shaped models, batch 1, steps queued: rows of bench_gpu. Activations and caches are bf16;
 * matrices are bf16, or int8, fp8 or int4 with an f16 scale for each 128 of a row, and so is the table of embeddings,
 * which is the head too. They lie (N,K), as files have them; (K,N) in one row. Weights are random and lie in one pool
 * of host memory at places of their own, so that a model of 16 GB needs 2 GB of it, and each is uploaded once. Beside
 * each row stands what the bytes it reads take at 4.3 TB/s and its kernels at 1.5 us each. */
#ifndef GN_DECODER_ROWS_H
#define GN_DECODER_ROWS_H

typedef struct decoder_shape {
    const char *name;
    int64_t layers, dim, heads, groups, head, inner, vocab, past, room;
    double base, target; /* of rotary embedding; us */
    bool down;           /* matrices lie (K,N) */
    bool quantised;      /* in this format */
    gn_quant format;
} decoder_shape;

/* Zhang et al. 2024 (TinyLlama); Llama Team 2024 */
static const decoder_shape decoder_shapes[] = {
    { "decode_1b_queued", 22, 2048, 32, 4, 64, 5632, 32000, 512, 1024, 10000, 640, false, false, 0 },
    { "decode_llama_1b_queued", 16, 2048, 32, 8, 64, 8192, 128256, 512, 1024, 500000, 700, false, false, 0 },
    { "decode_llama_1b_down_queued", 16, 2048, 32, 8, 64, 8192, 128256, 512, 1024, 500000, NAN, true, false, 0 },
    { "decode_llama_1b_8k_queued", 16, 2048, 32, 8, 64, 8192, 128256, 8192, 9216, 500000, 805, false, false, 0 },
    { "decode_llama_1b_32k_queued", 16, 2048, 32, 8, 64, 8192, 128256, 32768, 33792, 500000, 1050, false, false, 0 },
    { "decode_llama_8b_queued", 32, 4096, 32, 8, 128, 14336, 128256, 512, 1024, 500000, 3922, false, false, 0 },
    { "decode_llama_8b_int8_queued", 32, 4096, 32, 8, 128, 14336, 128256, 512, 1024, 500000, 2174, false, true,
      GN_QUANT_INT8 },
    { "decode_llama_8b_fp8_queued", 32, 4096, 32, 8, 128, 14336, 128256, 512, 1024, 500000, 2174, false, true,
      GN_QUANT_FP8_E4M3 },
    { "decode_llama_8b_int4_queued", 32, 4096, 32, 8, 128, 14336, 128256, 512, 1024, 500000, 1471, false, true,
      GN_QUANT_INT4 },
};

enum { DECODER_LAYERS = 32, DECODER_WEIGHTS = 9, DECODER_AHEAD = 16, DECODER_GROUP = 128 };

typedef struct decoder {
    gn_ctx *g;
    const decoder_shape *s;
    int64_t layers, vocab;
    gn_tensor w[DECODER_LAYERS][DECODER_WEIGHTS], cache[DECODER_LAYERS][2], table, gain, token;
    gn_tensor scales[DECODER_LAYERS][DECODER_WEIGHTS], table_scales; /* of quantised matrices */
    size_t used, pool;
    double bytes; /* that a step reads */
} decoder;

static uint16_t *decoder_pool, *decoder_gains, *decoder_past, *decoder_scales;

/* n bytes at a place of their own: what is uploaded once is told by its content. */
static const char *decoder_place(decoder *m, size_t n) {
    m->bytes += (double)n;
    m->used = (m->used + 32 * 1009) % (m->pool - n) & ~(size_t)31;
    const char *at = (const char *)decoder_pool + m->used;
    m->used += n;
    return at;
}

/* k 0: a vector of gains. Quantised, its scales are drawn with it. */
static gn_tensor decoder_weight(decoder *m, int64_t n, int64_t k, bool quantised, gn_tensor *out_scales) {
    const bool int4 = m->s->format == GN_QUANT_INT4;
    if (!k) {
        m->bytes += 2. * (double)n;
        return gn_weight(m->g, GN_BF16, GN_SHAPE(n), decoder_gains, "gain");
    }
    if (!quantised) {
        const char *at = decoder_place(m, 2 * (size_t)(n * k));
        return gn_weight(m->g, GN_BF16, m->s->down ? GN_SHAPE(k, n) : GN_SHAPE(n, k), at, "w");
    }
    *out_scales = gn_weight(m->g, GN_F16, GN_SHAPE(n, k / DECODER_GROUP), decoder_scales, "scales");
    m->bytes += 2. * (double)(n * k / DECODER_GROUP);
    int64_t bytes = int4 ? k / 2 : k;
    return gn_weight(m->g, GN_U8, GN_SHAPE(n, bytes), decoder_place(m, (size_t)(n * bytes)), "w");
}

static void decoder_open(decoder *m, gn_ctx *g, const decoder_shape *s, int64_t layers, int64_t vocab, size_t pool) {
    int64_t d = s->dim, q = s->heads * s->head, kv = s->groups * s->head, f = s->inner;
    const int64_t shapes[DECODER_WEIGHTS][2] = { { d, 0 }, { q, d }, { kv, d }, { kv, d }, { d, q },
                                                 { d, 0 }, { f, d }, { f, d },  { d, f } };
    *m = (decoder){ .g = g, .s = s, .layers = layers, .vocab = vocab, .pool = pool };
    m->table = s->quantised
                   ? decoder_weight(m, vocab, d, true, &m->table_scales)
                   : gn_weight(g, GN_BF16, GN_SHAPE(vocab, d), decoder_place(m, 2 * (size_t)(vocab * d)), "table");
    m->gain = decoder_weight(m, d, 0, false, NULL);
    for (int64_t l = 0; l < layers; l++) {
        for (int i = 0; i < DECODER_WEIGHTS; i++)
            m->w[l][i] = decoder_weight(m, shapes[i][0], shapes[i][1], s->quantised && shapes[i][1], &m->scales[l][i]);
        for (int i = 0; i < 2; i++)
            m->cache[l][i] = gn_state(g, GN_BF16, GN_SHAPE(1, s->groups, s->room, s->head), decoder_past, "cache");
        m->bytes += 4. * (double)(s->groups * s->past * s->head);
    }
    m->token = gn_state(g, GN_I64, GN_SHAPE(1), NULL, "token");
}

static void decoder_close(decoder *m) {
    for (int64_t l = 0; l < m->layers; l++) {
        for (int i = 0; i < DECODER_WEIGHTS; i++) {
            gn_release(m->w[l][i]);
            gn_release(m->scales[l][i]);
        }
        for (int i = 0; i < 2; i++) gn_release(m->cache[l][i]);
    }
    gn_release(m->table);
    gn_release(m->table_scales);
    gn_release(m->gain);
    gn_release(m->token);
}

static gn_quantized decoder_quantised(const decoder *m, gn_tensor w, gn_tensor scales) {
    return (gn_quantized){ .format = m->s->format, .data = w, .scales = scales, .rows = 1 };
}

static gn_tensor decoder_times(const decoder *m, gn_tensor x, gn_tensor w, gn_tensor scales) {
    if (m->s->quantised) return gn_linear_quantized(x, decoder_quantised(m, w, scales), GN_NONE);
    return gn_matmul(x, m->s->down ? w : gn_transpose(w, 0, 1));
}

/* (1, vocab): of the token after the one in m->token. */
static gn_tensor decoder_logits(const decoder *m, int64_t position) {
    const decoder_shape *s = m->s;
    gn_tensor at = gn_scalar(m->g, GN_I32, (double)position), places = gn_reshape(at, GN_SHAPE(1)),
              x = s->quantised
                      ? gn_embedding_quantized(decoder_quantised(m, m->table, m->table_scales), m->token, GN_BF16)
                      : gn_embedding(m->table, m->token);
    const gn_shape heads = GN_SHAPE(1, s->heads, 1, s->head), groups = GN_SHAPE(1, s->groups, 1, s->head);
    for (int64_t l = 0; l < m->layers; l++) {
        const gn_tensor *w = m->w[l], *by = m->scales[l];
        gn_tensor h = gn_rmsnorm(x, w[0], 1e-5);
        gn_tensor q = gn_rotary(gn_reshape(decoder_times(m, h, w[1], by[1]), heads), places, s->base, false),
                  k = gn_rotary(gn_reshape(decoder_times(m, h, w[2], by[2]), groups), places, s->base, false),
                  v = gn_reshape(decoder_times(m, h, w[3], by[3]), groups);
        gn_attention_desc how = { .causal = true, .length = gn_add_c(at, 1) };
        gn_tensor a = gn_attention(q, gn_kv_append(m->cache[l][0], k, at), gn_kv_append(m->cache[l][1], v, at), &how);
        x = gn_add(x, decoder_times(m, gn_reshape(a, GN_SHAPE(1, s->heads * s->head)), w[4], by[4]));
        h = gn_rmsnorm(x, w[5], 1e-5);
        gn_tensor up = gn_mul(gn_silu(decoder_times(m, h, w[6], by[6])), decoder_times(m, h, w[7], by[7]));
        x = gn_add(x, decoder_times(m, up, w[8], by[8]));
    }
    x = gn_rmsnorm(x, m->gain, 1e-5);
    return s->quantised ? decoder_times(m, x, m->table, m->table_scales) : gn_matmul(x, gn_transpose(m->table, 0, 1));
}

/* Numbers of all sizes that products of `dim` keep, drawn once and repeated over the pool; bytes of all values but
   FP8's NaN for a quantised model. Bytes of the pool. */
static size_t decoder_make(const decoder_shape *s) {
    enum { DRAWN = 1 << 23 };
    size_t largest = (size_t)(s->vocab * s->dim), inner = (size_t)(s->dim * s->inner),
           pool = 2 * (largest > inner ? largest : inner) + DRAWN, past = (size_t)(s->groups * s->room * s->head),
           scales = (largest > inner ? largest : inner) / DECODER_GROUP;
    double spread = sqrt(3.0 / (double)s->dim), unit = spread / (s->format == GN_QUANT_INT4   ? 8
                                                                 : s->format == GN_QUANT_INT8 ? 128
                                                                                              : 224);
    decoder_pool = or_die(malloc(pool));
    uint8_t *bytes = (uint8_t *)decoder_pool;
    for (size_t i = 0; i < DRAWN / 2; i++) decoder_pool[i] = gn_f32_to_bf16((float)spread * draw());
    for (size_t i = 0; i < DRAWN && s->quantised; i++) {
        bytes[i] = (uint8_t)(128 + 127.99f * draw());
        bytes[i] ^= (bytes[i] & 127) == 127;
    }
    for (size_t at = DRAWN; at < pool; at += DRAWN) memcpy(bytes + at, bytes, pool - at < DRAWN ? pool - at : DRAWN);
    decoder_gains = or_die(malloc((size_t)s->dim * sizeof *decoder_gains));
    for (int64_t i = 0; i < s->dim; i++) decoder_gains[i] = gn_f32_to_bf16(1 + 0.1f * draw());
    decoder_scales = or_die(malloc(scales * sizeof *decoder_scales));
    for (size_t i = 0; i < scales; i++) decoder_scales[i] = gn_f32_to_f16((float)unit * (1 + 0.3f * draw()));
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
    queue q = queue_of(g, DECODER_AHEAD, s->vocab);
    if (!wanted(s->name)) return;
    size_t pool = decoder_make(s);
    row *out = add_row(s->name, "us", s->target, true);
    out->error = decoder_error(g, s, pool);
    out->bound = 0.04;
    decoder_open(&m, g, s, s->layers, s->vocab, pool);
    for (int i = -QUEUE_WARM, times = repeats(12); i < times; i++)
        for (int k = 0; k < DECODER_AHEAD; k++) {
            gn_tensor next = gn_argmax(decoder_logits(&m, s->past + k), GN_AXES(1), false);
            gn_assign(m.token, next);
            queue_step(&q, next, 1);
        }
    double kernels;
    out->value = queue_end(&q, &kernels);
    out->p95 = quantile(samples, q.n, 0.95);
    set_ceiling(out, m.bytes / 4.3e6 + 1.5 * kernels, "bytes / 4.3 TB/s + 1.5 us * kernels");
    snprintf(out->note, sizeof out->note, "past %lld, %.0f kernels, %.2f GB: %.0f us; %.0f tokens/s",
             (long long)s->past, kernels, 1e-9 * m.bytes, m.bytes / 4.3e6, 1e6 / out->value);
    print_row(out);
    decoder_close(&m);
    free(decoder_pool);
    free(decoder_gains);
    free(decoder_past);
    free(decoder_scales);
}

static void bench_decoders(gn_ctx *g) {
    for (size_t i = 0; i < sizeof decoder_shapes / sizeof *decoder_shapes; i++) bench_decoder(g, &decoder_shapes[i]);
}

#endif
