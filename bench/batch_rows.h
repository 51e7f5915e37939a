/* Many rows at once through the model of the decoding rows, bf16: 32 sequences that each decode a token, over caches in
 * pages, and prompts, whose head is computed for the last position of each. Rows of bench_gpu. */
#ifndef GN_BATCH_ROWS_H
#define GN_BATCH_ROWS_H

enum { BATCH = 32, BATCH_PAGE = 64, BATCH_PAGES = CONTEXT / BATCH_PAGE, BATCH_AHEAD = 16, PROMPT = 512 };

typedef struct batch {
    gpt m;
    gn_tensor pool[LAYERS][2], tokens, of, table;
    int32_t past[BATCH]; /* tokens that each sequence has */
} batch;

static uint16_t *batch_past; /* what each pool holds at first */

static void batch_open(batch *b, gn_ctx *g, bool mixed) {
    const gn_shape pool = GN_SHAPE(BATCH * BATCH_PAGES, HEADS, BATCH_PAGE, HEAD);
    static int32_t of[BATCH], pages[BATCH * BATCH_PAGES];
    static int64_t first[BATCH];
    if (!batch_past) batch_past = make_random(GN_BF16, (size_t)BATCH * CONTEXT * DIM, 1.7f);
    gpt_open(&b->m, g, model_weights, model_past);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++) b->pool[l][i] = gn_state(g, GN_BF16, pool, batch_past, "pool");
    for (int i = 0; i < BATCH; i++) {
        of[i] = i;
        first[i] = i * 31 + 1;
        b->past[i] = mixed ? 16 + i * (1000 - 16) / (BATCH - 1) : PAST;
        /* pages of a sequence lie apart */
        for (int k = 0; k < BATCH_PAGES; k++) pages[i * BATCH_PAGES + k] = (k * BATCH + i * 7 % BATCH);
    }
    b->of = gn_weight(g, GN_I32, GN_SHAPE(BATCH), of, "sequences");
    b->table = gn_weight(g, GN_I32, GN_SHAPE(BATCH, BATCH_PAGES), pages, "table");
    b->tokens = gn_state(g, GN_I64, GN_SHAPE(BATCH), first, "tokens");
}

static void batch_close(batch *b) {
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++) gn_release(b->pool[l][i]);
    gn_release(b->tokens);
    gn_release(b->of);
    gn_release(b->table);
    gpt_close(&b->m);
}

/* What stands behind the attention of a layer. */
static gn_tensor gpt_after(const gpt *m, int l, gn_tensor x, gn_tensor a) {
    const gn_tensor *w = m->w[l];
    x = gn_add(x, gn_linear(a, w[4], w[5]));
    gn_tensor h = gn_gelu_tanh(gn_linear(gn_layernorm(x, w[6], w[7], 1e-5), w[8], w[9]));
    return gn_add(x, gn_linear(h, w[10], w[11]));
}
static gn_tensor gpt_head(const gpt *m, gn_tensor x) {
    return gn_matmul(gn_layernorm(x, m->outer[2], m->outer[3], 1e-5), gn_transpose(m->outer[0], 0, 1));
}

/* The logits (BATCH, VOCAB) of the tokens after those in b->tokens in one of two batches of steps, the sequences `more`
   tokens longer. */
static gn_tensor batch_logits(const batch *b, int half, int more) {
    static int32_t all[2][BATCH_AHEAD][2][BATCH]; /* lent until the step has run */
    int32_t *at = all[half][more][0], *slots = all[half][more][1];
    const gpt *m = &b->m;
    for (int i = 0; i < BATCH; i++) {
        at[i] = b->past[i] + more;
        slots[i] = (at[i] / BATCH_PAGE * BATCH + i * 7 % BATCH) * BATCH_PAGE + at[i] % BATCH_PAGE;
    }
    gn_tensor places = gn_data(m->g, GN_I32, GN_SHAPE(BATCH), at), to = gn_data(m->g, GN_I32, GN_SHAPE(BATCH), slots);
    gn_tensor x = gn_add(gn_embedding(m->outer[0], b->tokens), gn_embedding(m->outer[1], places));
    for (int l = 0; l < LAYERS; l++) {
        gn_tensor qkv = gn_linear(gn_layernorm(x, m->w[l][0], m->w[l][1], 1e-5), m->w[l][2], m->w[l][3]), part[3];
        for (int i = 0; i < 3; i++)
            part[i] = gn_reshape(gn_slice(qkv, 1, i * DIM, (i + 1) * DIM, 1), GN_SHAPE(BATCH, HEADS, HEAD));
        for (int i = 1; i < 3; i++) part[i] = gn_page_append(b->pool[l][i - 1], part[i], to, b->of, b->table);
        gn_tensor a = gn_page_attention(part[0], part[1], part[2], b->of, places, b->table, NULL);
        x = gpt_after(m, l, x, gn_reshape(a, GN_SHAPE(BATCH, DIM)));
    }
    return gpt_head(m, x);
}

/* Of each sequence 4,096 logits, beside those of the CPU executor. */
static double batch_error(gn_ctx *g, bool mixed) {
    enum { LOGITS = 4096 };
    static float logits[2][BATCH * LOGITS];
    largest_error e = { 0 };
    for (int i = 0; i < 2; i++) {
        batch b;
        gn_ctx *on = i ? open_or_die("cpu", NULL) : g;
        batch_open(&b, on, mixed);
        gn_tensor some = gn_cast(gn_slice(batch_logits(&b, 0, 0), 1, 0, LOGITS, 1), GN_F32);
        ok_or_die(on, gn_read(some, logits[i], sizeof logits[i]), "logits");
        ok_or_die(on, gn_step(on), "step");
        batch_close(&b);
        if (i) gn_close(on);
    }
    for (int i = 0; i < BATCH * LOGITS; i++) error_add(&e, (double)logits[0][i], (double)logits[1][i]);
    return error_of(&e);
}

static double batch_row(gn_ctx *g, const char *name, bool mixed, double target) {
    batch b;
    double err = batch_error(g, mixed), keys = 0;
    queue q = queue_of(g, BATCH_AHEAD, VOCAB);
    batch_open(&b, g, mixed);
    for (int i = -QUEUE_WARM, times = repeats(12); i < times; i++)
        for (int k = 0; k < BATCH_AHEAD; k++) {
            gn_tensor best = gn_argmax(batch_logits(&b, i & 1, k), GN_AXES(1), false);
            gn_assign(b.tokens, best);
            queue_step(&q, best, BATCH);
        }
    double kernels, us = queue_end(&q, &kernels);
    for (int i = 0; i < BATCH; i++) keys += b.past[i];
    double bytes = (double)b.m.bytes + keys * LAYERS * 2 * DIM * 2;
    row *out = add_row(name, "tokens/s", target, false);
    out->value = BATCH * 1e6 / us;
    out->p95 = BATCH * 1e6 / quantile(samples, q.n, 0.95);
    out->error = err;
    out->bound = 0.04;
    set_ceiling(out, BATCH * 1e6 / (bytes / 4.3e6 + 1.5 * kernels), "bytes / 4.3 TB/s + 1.5 us * kernels");
    snprintf(out->note, sizeof out->note, "%d sequences, past %d to %d, %.0f us a step, %.0f kernels, %.2f GB", BATCH,
             b.past[0], b.past[BATCH - 1], us, kernels, 1e-9 * bytes);
    print_row(out);
    batch_close(&b);
    return out->value;
}

/* ---- prompts ---- */

/* The logits of the last position of each of n prompts of `length` tokens, whose keys and values go into the cache. */
static gn_tensor prompt_logits(const gpt *m, gn_tensor cache[LAYERS][2], gn_tensor ids, int64_t n, int64_t length) {
    gn_tensor zero = gn_scalar(m->g, GN_I32, 0), places = gn_arange_i64(m->g, GN_I32, length, 0, 1);
    gn_attention_desc causal = { .causal = true };
    gn_tensor x =
        gn_add(gn_reshape(gn_embedding(m->outer[0], ids), GN_SHAPE(n, length, DIM)), gn_embedding(m->outer[1], places));
    x = gn_reshape(x, GN_SHAPE(n * length, DIM));
    for (int l = 0; l < LAYERS; l++) {
        gn_tensor qkv = gn_linear(gn_layernorm(x, m->w[l][0], m->w[l][1], 1e-5), m->w[l][2], m->w[l][3]), part[3];
        for (int i = 0; i < 3; i++)
            part[i] =
                gn_transpose(gn_reshape(gn_slice(qkv, 1, i * DIM, (i + 1) * DIM, 1), GN_SHAPE(n, length, HEADS, HEAD)),
                             1, 2);
        for (int i = 1; i < 3; i++) (void)gn_kv_append(cache[l][i - 1], part[i], zero);
        gn_tensor a = gn_attention(part[0], part[1], part[2], &causal);
        x = gpt_after(m, l, x, gn_reshape(gn_transpose(a, 1, 2), GN_SHAPE(n * length, DIM)));
    }
    x = gn_slice(gn_reshape(x, GN_SHAPE(n, length, DIM)), 1, length - 1, length, 1);
    return gpt_head(m, gn_reshape(x, GN_SHAPE(n, DIM)));
}

typedef struct prompt {
    gpt m;
    gn_tensor cache[LAYERS][2];
    int64_t *ids, n;
} prompt;

static void prompt_open(prompt *p, gn_ctx *g, int64_t n) {
    gpt_open(&p->m, g, model_weights, model_past);
    p->n = n;
    p->ids = or_die(malloc((size_t)(n * PROMPT) * sizeof *p->ids));
    for (int64_t i = 0; i < n * PROMPT; i++) p->ids[i] = (i % PROMPT * 7919 + i / PROMPT * 104729) % VOCAB;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++)
            p->cache[l][i] = gn_state(g, GN_BF16, GN_SHAPE(n, HEADS, CONTEXT, HEAD), NULL, "cache");
}
static void prompt_close(prompt *p) {
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++) gn_release(p->cache[l][i]);
    free(p->ids);
    gpt_close(&p->m);
}
static gn_tensor prompt_value(prompt *p) {
    gn_tensor ids = gn_data(p->m.g, GN_I64, GN_SHAPE(p->n * PROMPT), p->ids);
    return prompt_logits(&p->m, p->cache, ids, p->n, PROMPT);
}

/* The logits of the first prompt beside those of the CPU executor, which computes that one alone. */
static double prompt_error(gn_ctx *g, int64_t n) {
    float *logits[2] = { NULL };
    largest_error e = { 0 };
    for (int i = 0; i < 2; i++) {
        prompt p;
        gn_ctx *on = i ? open_or_die("cpu", NULL) : g;
        logits[i] = or_die(malloc(VOCAB * sizeof **logits));
        prompt_open(&p, on, i ? 1 : n);
        gn_tensor first = gn_cast(gn_slice(prompt_value(&p), 0, 0, 1, 1), GN_F32);
        ok_or_die(on, gn_read(first, logits[i], VOCAB * sizeof **logits), "logits");
        ok_or_die(on, gn_step(on), "step");
        prompt_close(&p);
        if (i) gn_close(on);
    }
    for (int i = 0; i < VOCAB; i++) error_add(&e, (double)logits[0][i], (double)logits[1][i]);
    free(logits[0]);
    free(logits[1]);
    return error_of(&e);
}

static void prompt_row(gn_ctx *g, const char *name, int64_t n, double target) {
    prompt p;
    queue q = queue_of(g, 4, VOCAB);
    if (!wanted(name)) return;
    double err = prompt_error(g, n);
    prompt_open(&p, g, n);
    for (int i = -QUEUE_WARM * q.ahead, times = q.ahead * repeats(n > 1 ? 6 : 20); i < times; i++) {
        gn_tensor best = gn_argmax(prompt_value(&p), GN_AXES(1), false);
        gn_assign(p.m.token, gn_slice(best, 0, 0, 1, 1));
        queue_step(&q, best, (int)n);
    }
    double kernels, us = queue_end(&q, &kernels), products = 2. * (double)(n * PROMPT) * LAYERS * 12 * DIM * DIM;
    row *out = add_row(name, "us", target, true);
    out->value = us;
    out->p95 = quantile(samples, q.n, 0.95);
    out->error = err;
    out->bound = 0.06;
    set_ceiling(out, products / 800e6, "its products at 800 TFLOP/s");
    snprintf(out->note, sizeof out->note, "%lld prompts of %d, %.0f kernels; %.0f tokens/s", (long long)n, (int)PROMPT,
             kernels, (double)(n * PROMPT) * 1e6 / out->value);
    print_row(out);
    prompt_close(&p);
}

static void bench_batches(gn_ctx *g) {
    if (!wanted("batch_32") && !wanted("batch_32_mixed") && !wanted("prompt_512") && !wanted("prompt_32x512")) return;
    model_make();
    double even = 100000 / 0.85;
    if (wanted("batch_32")) even = batch_row(g, "batch_32", false, 100000);
    if (wanted("batch_32_mixed")) batch_row(g, "batch_32_mixed", true, 0.85 * even);
    prompt_row(g, "prompt_512", 1, 450);
    prompt_row(g, "prompt_32x512", BATCH, 6000);
    free(batch_past);
    batch_past = NULL;
}

#endif
