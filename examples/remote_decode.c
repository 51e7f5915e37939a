/* Generates tokens with a small transformer on a device that is reached only over TLS, in three modes that differ only
 * in what the device is told about the values; the tokens are the same in all, and on the local CPU.
 *
 *   ./examples/remote_decode                    weights, KV cache and next token stay on the device, argmax runs there
 *   ./examples/remote_decode --ahead 16         the same, 16 steps queued before anything is waited for
 *   ./examples/remote_decode --mode cached      weights stay, the KV cache travels
 *   ./examples/remote_decode --mode blind       all values travel with every step
 *   ./examples/remote_decode --size gpt2        a model as large as GPT-2 124M
 *   add --connect @genie.url for a genie_serve; without, the program opens a server of its own
 *
 * The weights are random, so the text means nothing; the traffic is a real model's.
 */
#include "common.h"

typedef struct model_size {
    const char *name;
    int vocab, dim, layers, heads, kv_heads, context;
    double embedding; /* standard deviation of the token table */
    bool tied;        /* the head is the token table */
} model_size;

static const model_size sizes[] = {
    { "small", 512, 256, 4, 4, 2, 256, 1, false },
    { "gpt2", 50257, 768, 12, 12, 12, 1024, 0.02, true },
};
static const model_size *model = &sizes[0];

enum { HEAD = 64, MAX_LAYERS = 12, MAX_CACHES = 2 * MAX_LAYERS, MAX_CONTEXT = 1024 };

static int caches(void) { return 2 * model->layers; } /* keys and values of each layer */
static size_t kv_bytes(void) { return (size_t)(model->kv_heads * model->context * HEAD) * 4; } /* of one cache, f32 */
static gn_shape kv_shape(void) { return GN_SHAPE(1, model->kv_heads, model->context, HEAD); }

typedef enum run_mode { SEMANTIC, CACHED, BLIND } run_mode;
static const char *const mode_names[] = { "semantic", "cached", "blind" };

typedef struct settings {
    const char *connect, *home, *mode_name, *size_name;
    run_mode mode;
    int64_t tokens, prompt, ahead, seed;
    bool json, no_check;
} settings;

/* ---- the model: one table of weights ----------------------------------------------------------------
 * Spread 0 means ones; EVEN is 1 / sqrt(rows); otherwise normal with that standard deviation (biases and offsets are
 * small but not 0). */
enum { LN1_GAIN, LN1_BIAS, WQ, WK, WV, WO, LN2_GAIN, LN2_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS, PER_LAYER };
enum { EMBED = MAX_LAYERS * PER_LAYER, PLACE, LN_GAIN, LN_BIAS, HEAD_W, WEIGHTS };
#define EVEN (-1.0)

/* rows 0: (cols) */
typedef struct weight_info {
    const char *name;
    int rows, cols;
    double spread;
} weight_info;

/* name NULL: this size has no such weight. */
static weight_info weight_at(int i) {
    int dim = model->dim, kv = model->kv_heads * HEAD;
    const weight_info layer[PER_LAYER] = {
        { "ln1.gain", 0, dim, 0 },       { "ln1.bias", 0, dim, 0.02 },   { "wq", dim, dim, EVEN },
        { "wk", dim, kv, EVEN },         { "wv", dim, kv, EVEN },        { "wo", dim, dim, EVEN },
        { "ln2.gain", 0, dim, 0 },       { "ln2.bias", 0, dim, 0.02 },   { "up", dim, 4 * dim, EVEN },
        { "up.bias", 0, 4 * dim, 0.02 }, { "down", 4 * dim, dim, EVEN }, { "down.bias", 0, dim, 0.02 },
    };
    const weight_info outer[WEIGHTS - EMBED] = {
        { "embedding", model->vocab, dim, model->embedding },
        { "position", model->context, dim, 0.5 },
        { "ln.gain", 0, dim, 0 },
        { "ln.bias", 0, dim, 0.02 },
        { model->tied ? NULL : "head", dim, model->vocab, EVEN },
    };
    weight_info none = { NULL, 0, 0, 0 };
    return i >= EMBED ? outer[i - EMBED] : i / PER_LAYER < model->layers ? layer[i % PER_LAYER] : none;
}

static size_t weight_count(const weight_info *w) { return (size_t)w->cols * (size_t)(w->rows ? w->rows : 1); }
static gn_shape weight_shape(const weight_info *w) { return w->rows ? GN_SHAPE(w->rows, w->cols) : GN_SHAPE(w->cols); }

static uint64_t next_random(uint64_t *rng) { /* xorshift64* (Vigna 2016) */
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return *rng * UINT64_C(2685821657736338717);
}

/* Mean 0, standard deviation 1: the sum of twelve uniform numbers less 6. Exact in doubles, so equal everywhere. */
static double next_normal(uint64_t *rng) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(next_random(rng) >> 32) * 0x1p-32;
    return sum;
}

static void model_destroy(float *host[WEIGHTS]) {
    for (int i = 0; i < WEIGHTS; i++) free(host[i]);
}

static bool model_make(float *host[WEIGHTS], int64_t seed) {
    uint64_t rng = (uint64_t)seed * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0xD1B54A32D192ED03);
    bool ok = true;
    for (int i = 0; i < WEIGHTS; i++) {
        weight_info w = weight_at(i);
        double spread = w.spread == EVEN ? 1 / sqrt(w.rows) : w.spread;
        if (!w.name) continue;
        host[i] = malloc(weight_count(&w) * sizeof(float));
        ok = ok && host[i];
        for (size_t k = 0; ok && k < weight_count(&w); k++)
            host[i][k] = (float)(spread > 0 ? spread * next_normal(&rng) : 1);
    }
    if (!ok) fprintf(stderr, "out of memory\n");
    return ok;
}

/* ---- one generation on one context --------------------------------------------------------------------*/
typedef struct generation {
    gn_ctx *g;
    const settings *set;
    run_mode mode;
    float *const *host;          /* the weights */
    gn_tensor w[WEIGHTS];        /* gn_weight, or in blind mode gn_data of this step */
    gn_tensor cache[MAX_CACHES]; /* (1, kv_heads, context, 64): states, or in the other modes gn_data of this step */
    gn_tensor token, window;     /* states of semantic mode: next token (1) i64; tokens queued ahead (ahead) i32 */
    uint8_t *kv[2];              /* caches of the other modes, before and after a step: caches() * kv_bytes() each */
    int64_t last;                /* the last token of the other modes */
    int32_t *tokens;             /* (set->tokens) */
    gn_stats prefill, decode;
    double prefill_s, decode_s;
} generation;

static bool generation_make(generation *n, gn_ctx *g, const settings *set, run_mode mode, float *const *host) {
    memset(n, 0, sizeof *n);
    n->g = g;
    n->set = set;
    n->mode = mode;
    n->host = host;
    n->tokens = calloc((size_t)set->tokens, sizeof *n->tokens);
    n->kv[0] = calloc((size_t)caches(), kv_bytes());
    n->kv[1] = calloc((size_t)caches(), kv_bytes());
    if (!n->tokens || !n->kv[0] || !n->kv[1]) {
        fprintf(stderr, "out of memory\n");
        return false;
    }
    for (int i = 0; mode != BLIND && i < WEIGHTS; i++) {
        weight_info w = weight_at(i);
        if (w.name) n->w[i] = gn_weight(g, GN_F32, weight_shape(&w), host[i], w.name);
    }
    if (mode != SEMANTIC) return true;
    for (int i = 0; i < caches(); i++) n->cache[i] = gn_state(g, GN_F32, kv_shape(), NULL, i % 2 ? "values" : "keys");
    n->token = gn_state(g, GN_I64, GN_SHAPE(1), NULL, "token");
    n->window = gn_state(g, GN_I32, GN_SHAPE(set->ahead), NULL, "window");
    return true;
}

static void generation_destroy(generation *n) {
    free(n->tokens);
    free(n->kv[0]);
    free(n->kv[1]);
}

/* The values that travel with this step in the modes that keep them here. */
static void offer_values(generation *n) {
    for (int i = 0; n->mode == BLIND && i < WEIGHTS; i++) {
        weight_info w = weight_at(i);
        if (w.name) n->w[i] = gn_data(n->g, GN_F32, weight_shape(&w), n->host[i]);
    }
    for (int i = 0; n->mode != SEMANTIC && i < caches(); i++)
        n->cache[i] = gn_data(n->g, GN_F32, kv_shape(), n->kv[0] + (size_t)i * kv_bytes());
}

/* (T, heads * 64) -> (1, heads, T, 64) */
static gn_tensor split_heads(gn_tensor x, int64_t t, int heads) {
    return gn_transpose(gn_reshape(x, GN_SHAPE(1, t, heads, HEAD)), 1, 2);
}

/* x (T, dim) at positions pos… -> x + attention; grown[0] and grown[1] are the caches with this step's keys and
   values. */
static gn_tensor attention_block(const generation *n, int layer, gn_tensor x, int64_t t, gn_tensor pos,
                                 gn_tensor grown[2]) {
    const gn_tensor *w = &n->w[layer * PER_LAYER];
    gn_tensor h = gn_layernorm(x, w[LN1_GAIN], w[LN1_BIAS], 1e-5);
    gn_tensor q = split_heads(gn_linear(h, w[WQ], GN_NONE), t, model->heads);
    for (int i = 0; i < 2; i++)
        grown[i] = gn_kv_append(n->cache[2 * layer + i],
                                split_heads(gn_linear(h, w[WK + i], GN_NONE), t, model->kv_heads), pos);
    gn_attention_desc d = { .causal = true, .length = gn_add_c(pos, (double)t) };
    gn_tensor a = gn_attention(q, grown[0], grown[1], &d); /* (1, heads, T, 64) */
    a = gn_reshape(gn_transpose(a, 1, 2), GN_SHAPE(t, model->dim));
    return gn_add(x, gn_linear(a, w[WO], GN_NONE));
}

static gn_tensor forward_block(const generation *n, int layer, gn_tensor x) {
    const gn_tensor *w = &n->w[layer * PER_LAYER];
    gn_tensor h = gn_layernorm(x, w[LN2_GAIN], w[LN2_BIAS], 1e-5);
    h = gn_gelu_tanh(gn_linear(h, w[UP], w[UP_BIAS]));
    return gn_add(x, gn_linear(h, w[DOWN], w[DOWN_BIAS]));
}

/* ids (T) at positions pos… -> the next token (1) i64. The position is a running value, so all of them share one
   plan. */
static gn_tensor next_token(generation *n, gn_tensor ids, int64_t t, int64_t position, gn_tensor grown[MAX_CACHES]) {
    gn_tensor pos = gn_scalar(n->g, GN_I32, (double)position);
    gn_tensor places = gn_add(gn_arange(n->g, GN_I32, t, 0, 1), pos);
    gn_tensor x = gn_add(gn_embedding(n->w[EMBED], ids), gn_embedding(n->w[PLACE], places));
    for (int l = 0; l < model->layers; l++) {
        x = attention_block(n, l, x, t, pos, &grown[2 * l]);
        x = forward_block(n, l, x);
    }
    x = gn_layernorm(gn_slice(x, 0, -1, GN_END, 1), n->w[LN_GAIN], n->w[LN_BIAS], 1e-5); /* the last row: (1, dim) */
    gn_tensor head = model->tied ? gn_transpose(n->w[EMBED], 0, 1) : n->w[HEAD_W];
    return gn_argmax(gn_linear(x, head, GN_NONE), GN_AXES(1), false);
}

/* Semantic mode: appends and the next token become new versions of states; what is read is one number, or nothing. */
static gn_result finish_semantic(generation *n, gn_tensor next, int64_t slot, int64_t *out) {
    gn_assign(n->token, next);
    if (out) {
        gn_result r = gn_read(next, out, sizeof *out);
        return r == GN_OK ? gn_step(n->g) : r;
    }
    gn_tensor here = gn_eq(gn_arange(n->g, GN_I32, n->set->ahead, 0, 1), gn_scalar(n->g, GN_I32, (double)slot));
    gn_assign(n->window, gn_where(here, gn_cast(next, GN_I32), n->window));
    return gn_step(n->g);
}

/* The other modes: the token and all caches come back, to be sent again. */
static gn_result finish_traveling(generation *n, gn_tensor next, const gn_tensor *grown) {
    gn_tensor want[MAX_CACHES + 1];
    void *out[MAX_CACHES + 1];
    size_t bytes[MAX_CACHES + 1];
    for (int i = 0; i < caches(); i++) {
        want[i] = grown[i];
        out[i] = n->kv[1] + (size_t)i * kv_bytes();
        bytes[i] = kv_bytes();
    }
    want[caches()] = next;
    out[caches()] = &n->last;
    bytes[caches()] = sizeof n->last;
    gn_result r = gn_read_many(want, caches() + 1, out, bytes);
    if (r == GN_OK) r = gn_step(n->g);
    uint8_t *old = n->kv[0];
    n->kv[0] = n->kv[1];
    n->kv[1] = old;
    return r;
}

/* ---- prefill and decoding -----------------------------------------------------------------------------*/
static bool prefill(generation *n) {
    int32_t prompt[MAX_CONTEXT];
    int64_t t = n->set->prompt, first = 0;
    uint64_t rng = (uint64_t)n->set->seed + 12345;
    gn_tensor grown[MAX_CACHES];
    double begin = ex_now();
    for (int64_t i = 0; i < t; i++) prompt[i] = (int32_t)((uint32_t)(next_random(&rng) >> 32) % (uint32_t)model->vocab);
    gn_phase(n->g, GN_PREFILL);
    offer_values(n);
    gn_tensor next = next_token(n, gn_data(n->g, GN_I32, GN_SHAPE(t), prompt), t, 0, grown);
    gn_result r = n->mode == SEMANTIC ? finish_semantic(n, next, 0, &first) : finish_traveling(n, next, grown);
    n->tokens[0] = (int32_t)(n->mode == SEMANTIC ? first : n->last);
    n->prefill_s = ex_now() - begin;
    gn_get_stats(n->g, &n->prefill);
    return ex_check(n->g, r, "prefill");
}

/* The step that makes tokens[i] from tokens[i - 1]. With steps queued ahead nothing is read here. */
static gn_result decode_one(generation *n, int64_t i, int64_t slot) {
    int64_t value = 0, position = n->set->prompt + i - 1;
    bool ahead = n->mode == SEMANTIC && n->set->ahead > 1;
    gn_tensor grown[MAX_CACHES];
    offer_values(n);
    gn_tensor ids = n->mode == SEMANTIC ? n->token : gn_data_copy(n->g, GN_I64, GN_SHAPE(1), &n->last);
    gn_tensor next = next_token(n, ids, 1, position, grown);
    gn_result r =
        n->mode == SEMANTIC ? finish_semantic(n, next, slot, ahead ? NULL : &value) : finish_traveling(n, next, grown);
    if (!ahead) n->tokens[i] = (int32_t)(n->mode == SEMANTIC ? value : n->last);
    return r;
}

static void show_progress(const generation *n, int64_t done, double *last, bool show) {
    double now = ex_now();
    if (!show || done == n->set->tokens || now - *last < (ex_terminal() ? 0.1 : 2)) return;
    printf("%stoken %lld of %lld%s", ex_terminal() ? "\r" : "", (long long)done, (long long)n->set->tokens,
           ex_terminal() ? "" : "\n");
    fflush(stdout);
    *last = now;
}

static bool decode(generation *n, bool show) {
    int64_t block = n->mode == SEMANTIC ? n->set->ahead : 1, count = n->set->tokens;
    int32_t window[MAX_CONTEXT];
    double begin = ex_now(), last = begin;
    gn_stats before, after;
    gn_get_stats(n->g, &before);
    gn_phase(n->g, GN_DECODE);
    for (int64_t i = 1; i < count; i += block) {
        int64_t k = 0;
        for (; k < block && i + k < count; k++)
            if (!ex_check(n->g, decode_one(n, i + k, k), "decoding")) return false;
        if (block > 1) {
            if (!ex_check(n->g, gn_read(n->window, window, (size_t)block * sizeof *window), "reading the tokens"))
                return false;
            if (!ex_check(n->g, gn_step(n->g), "step")) return false;
            memcpy(n->tokens + i, window, (size_t)k * sizeof *window);
        }
        if (ex_interrupted) {
            fprintf(stderr, "\ninterrupted\n");
            return false;
        }
        show_progress(n, i + k, &last, show);
    }
    n->decode_s = ex_now() - begin;
    gn_get_stats(n->g, &after);
    ex_stats_add(&n->decode, &before, &after);
    if (show && ex_terminal()) printf("\r\033[K");
    return true;
}

/* ---- report -------------------------------------------------------------------------------------------*/
static double steps_of(const generation *n) { return n->set->tokens > 1 ? (double)(n->set->tokens - 1) : 1; }

static void print_report(const generation *n, const gn_device_info *d) {
    double per = 1 / steps_of(n);
    const gn_stats *s = &n->decode;
    ex_row("mode", "%s%s", mode_names[n->mode],
           n->mode == SEMANTIC ? ": weights, KV cache, next token and argmax on the device"
           : n->mode == CACHED ? ": weights on the device, the KV cache travels"
                               : ": all values travel with every step");
    ex_row("ran on", "%s%s", d->name, d->remote ? "" : ", in this process");
    if (d->remote) ex_row("secured by", "%s, %s, records by %s", d->tls, d->cipher, d->records);
    ex_row("prefill", "%lld tokens in %.1f ms, %llu weight bytes sent", (long long)n->set->prompt, 1e3 * n->prefill_s,
           (unsigned long long)n->prefill.weight_bytes_sent);
    ex_row("decode", "%.3f ms a token over %.0f steps, %lld queued ahead", 1e3 * n->decode_s * per, steps_of(n),
           (long long)(n->mode == SEMANTIC ? n->set->ahead : 1));
    ex_row("plans", "%llu made for positions %lld to %lld%s", (unsigned long long)s->plans_made,
           (long long)n->set->prompt, (long long)(n->set->prompt + n->set->tokens - 2),
           n->mode == SEMANTIC && n->set->ahead > 1 ? ": one to decode, one to read the tokens" : "");
    ex_row("a token", "%.2f round trips, %.0f bytes at the socket (%.0f up, %.0f down)", (double)s->round_trips * per,
           (double)(s->socket_bytes_up + s->socket_bytes_down) * per, (double)s->socket_bytes_up * per,
           (double)s->socket_bytes_down * per);
    ex_row("KV cache", "%llu bytes moved", (unsigned long long)s->kv_bytes_moved);
    printf("  tokens      ");
    for (int64_t i = 0; i < n->set->tokens; i++) printf(" %d", n->tokens[i]);
    printf("\n");
}

static void print_json(const generation *n, const gn_device_info *d, bool checked) {
    double per = 1 / steps_of(n);
    const gn_stats *s = &n->decode;
    ex_json j = { 0 };
    ex_json_text(&j, "mode", mode_names[n->mode]);
    ex_json_number(&j, "bytes_per_token", (double)(s->socket_bytes_up + s->socket_bytes_down) * per);
    ex_json_number(&j, "round_trips_per_token", (double)s->round_trips * per);
    ex_json_number(&j, "ms_per_token", 1e3 * n->decode_s * per);
    ex_json_number(&j, "prefill_ms", 1e3 * n->prefill_s);
    ex_json_number(&j, "plans_made", (double)s->plans_made);
    ex_json_number(&j, "kv_bytes_moved", (double)s->kv_bytes_moved);
    ex_json_number(&j, "weight_bytes_sent", (double)n->prefill.weight_bytes_sent);
    ex_json_number(&j, "ahead", (double)(n->mode == SEMANTIC ? n->set->ahead : 1));
    ex_json_stats(&j, "counters", s);
    ex_json_text(&j, "tls", d->tls);
    ex_json_text(&j, "cipher", d->cipher);
    ex_json_text(&j, "records", d->records);
    ex_json_text(&j, "device", d->name);
    ex_json_name(&j, "checked");
    printf(checked ? "true" : "false");
    ex_json_name(&j, "tokens");
    for (int64_t i = 0; i < n->set->tokens; i++) printf("%c%d", i ? ',' : '[', n->tokens[i]);
    printf("]");
    ex_json_end(&j);
}

/* The same generation on the local CPU must give the same tokens. */
static bool check_local(const settings *set, float *const *host, const int32_t *tokens) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    generation n;
    int64_t i = 0;
    bool ok = generation_make(&n, g, set, SEMANTIC, host) && prefill(&n) && decode(&n, false);
    while (ok && i < set->tokens && tokens[i] == n.tokens[i]) i++;
    bool same = ok && i == set->tokens;
    if (same) ex_verdict(true, "the local CPU gives the same tokens");
    else if (ok) {
        char text[96];
        snprintf(text, sizeof text, "the local CPU gives another token at %lld: %d instead of %d", (long long)i,
                 n.tokens[i], tokens[i]);
        ex_verdict(false, text);
    }
    generation_destroy(&n);
    gn_close(g);
    return same;
}

/* ---- the run --------------------------------------------------------------------------------------------*/
static bool run_on(gn_ctx *g, const settings *set, float *const *host) {
    gn_device_info device;
    generation n;
    if (!ex_check(g, gn_status(g), "cannot connect") || !ex_check(g, gn_get_device(g, &device), "device")) return false;
    bool ok = generation_make(&n, g, set, set->mode, host) && prefill(&n) && decode(&n, true);
    if (ok) {
        print_report(&n, &device);
        ok = set->no_check || check_local(set, host, n.tokens);
        if (set->json) print_json(&n, &device, !set->no_check);
    }
    generation_destroy(&n);
    return ok;
}

static int run(const settings *set, float *const *host) {
    ex_place place;
    ex_catch_signals();
    if (!ex_place_open(&place, set->connect, set->home)) return EX_FAILED;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    bool ok = run_on(g, set, host);
    gn_close(g);
    ex_place_close(&place);
    return ex_interrupted ? EX_INTERRUPTED : ok ? EX_OK : EX_FAILED;
}

static void check_settings(const char *program, settings *set) {
    size_t size = 0;
    while (size < sizeof sizes / sizeof *sizes && strcmp(set->size_name, sizes[size].name)) size++;
    if (size == sizeof sizes / sizeof *sizes) ex_usage(program, "--size is small or gpt2, not '%s'", set->size_name);
    model = &sizes[size];
    while (set->mode <= BLIND && strcmp(set->mode_name, mode_names[set->mode])) set->mode++;
    if (set->mode > BLIND) ex_usage(program, "--mode is semantic, cached or blind, not '%s'", set->mode_name);
    if (set->mode != SEMANTIC && set->ahead > 1)
        ex_usage(program, "--ahead needs --mode semantic: values come back at every step of mode %s", set->mode_name);
    if (set->prompt + set->tokens > model->context)
        ex_usage(program, "--prompt and --tokens together must be at most %d", model->context);
}

int main(int argc, char **argv) {
    settings set = {
        .mode_name = "semantic", .size_name = "small", .tokens = 128, .prompt = 16, .ahead = 1, .seed = 1
    };
    const ex_option options[] = {
        { "connect", EX_MAYBE, &set.connect, "WHERE",
          "a URL, @FILE, - or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { "mode", EX_TEXT, &set.mode_name, "MODE", "semantic, cached or blind (semantic)", 0, 0 },
        { "size", EX_TEXT, &set.size_name, "SIZE", "small, or gpt2: as large as GPT-2 124M (small)", 0, 0 },
        { "tokens", EX_INT, &set.tokens, "N", "tokens to generate (128)", 2, MAX_CONTEXT },
        { "prompt", EX_INT, &set.prompt, "N", "tokens of the prompt (16)", 1, MAX_CONTEXT },
        { "ahead", EX_INT, &set.ahead, "N", "semantic: steps in flight before tokens are read (1)", 1, MAX_CONTEXT },
        { "seed", EX_INT, &set.seed, "N", "seed of weights and prompt (1)", 0, 1e15 },
        { "no-check", EX_FLAG, &set.no_check, NULL, "do not check the tokens against the local CPU", 0, 0 },
        { "home", EX_TEXT, &set.home, "DIR", "folder of client credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv,
             "remote_decode generates tokens on a device reached over TLS, and checks them against the local CPU.",
             options);
    check_settings(argv[0], &set);
    float *host[WEIGHTS] = { NULL };
    int status = model_make(host, set.seed) ? run(&set, host) : EX_FAILED;
    model_destroy(host);
    return status;
}
