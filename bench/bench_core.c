/* How fast the core is: building and cutting graphs, planning, the CPU executor, and a step over TLS on this machine.
 *
 *   ./build.sh bench && ./build/bench/bench_core            all rows as a table
 *   ./build/bench/bench_core --json                         the same, and one JSON object on the last line
 *   ./build/bench/bench_core --only matmul --quick          some rows, fewer repetitions
 *   ./build/bench/bench_core --only ops_                    each op, see ops.h
 *
 * Every ratio has both of its sides measured in turn, in this process, and printed beside it. Inputs are random,
 * outputs are poisoned before each run and compared with a plain computation afterwards; the error is printed beside
 * the time. Times are medians after a warm-up. "of 0.60" beside a row is its target; a row whose counterpart is missing
 * says so.
 */
#ifndef GENIE_EXT
#define GENIE_EXT
#endif
#define _GNU_SOURCE
#include "examples/common.h"
#include "bench.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MAX_SAMPLES = 20000 };

static struct settings {
    const char *only;
    bool json, quick, once;
    int64_t threads;
} set = { .threads = 2 };

/* ---- figures: printed as they come, and kept for the JSON line ---- */

typedef struct figure {
    char name[64];
    double value;
} figure;
static figure figures[8192];
static int n_figures;
static int failures;

static void keep(const char *name, double value) {
    if (n_figures == (int)(sizeof figures / sizeof *figures)) {
        fprintf(stderr, "bench_core: no room for the figure %s\n", name);
        exit(EX_FAILED);
    }
    snprintf(figures[n_figures].name, sizeof figures[0].name, "%s", name);
    figures[n_figures++].value = value;
}

/* A figure with a target: `most` tells whether it is to stay below or above. */
static void show(const char *name, double value, bool most, double target, const char *unit) {
    bool ok = isfinite(value) && (most ? value <= target : value >= target);
    printf("  %-24s %10.3f %-6s %s %g %s\n", name, value, unit, most ? "at most" : "at least", target,
           ok ? "" : "MISSED");
    keep(name, value);
}

static void note(const char *name, double value, const char *unit) {
    printf("    %-22s %10.3f %s\n", name, value, unit);
    keep(name, value);
}

static void note_of(const char *row, const char *what, double value, const char *unit) {
    char name[64];
    snprintf(name, sizeof name, "%s_%s", row, what);
    note(name, value, unit);
}

static bool wanted(const char *name) {
    bool is = !set.only || strstr(name, set.only) != NULL;
    if (is) printf("%s\n", name);
    fflush(stdout);
    return is;
}

static void failed(const char *what) {
    fprintf(stderr, "bench_core: %s\n", what);
    failures++;
}

static double samples_a[MAX_SAMPLES], samples_b[MAX_SAMPLES], samples_c[MAX_SAMPLES];

static int repeats(int usual) { return set.once ? 1 : set.quick ? (usual + 3) / 4 : usual; }

static float *make_floats(size_t n, float scale) {
    float *p = aligned_alloc(64, (n * sizeof *p + 63) & ~(size_t)63);
    if (!p) {
        fprintf(stderr, "bench_core: no memory for %zu floats\n", n);
        exit(EX_FAILED);
    }
    for (size_t i = 0; i < n; i++) p[i] = scale * draw();
    return p;
}

static void poison(float *p, size_t n) { memset(p, 0xff, n * sizeof *p); } /* NaN everywhere */

static gn_ctx *open_or_die(const char *device, int64_t threads) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device, .threads = (uint32_t)threads });
    if (!ex_check(g, gn_status(g), device)) exit(EX_FAILED);
    return g;
}

static void read_or_die(gn_tensor t, void *out, size_t bytes) {
    if (!ex_check(t.ctx, gn_read(t, out, bytes), "read")) exit(EX_FAILED);
}

/* ---- a transformer-like graph of about 300 nodes ---- */

enum { BLOCKS = 9, HEADS = 4, TIMES = 8, BLOCK_WEIGHTS = 12, WORDS = 64 };

typedef struct model {
    gn_ctx *g;
    int64_t dim;
    gn_tensor w[BLOCKS][BLOCK_WEIGHTS], table;
    float *host;
} model;

static void model_open(model *m, gn_ctx *g, int64_t dim) {
    static const int shapes[BLOCK_WEIGHTS][2] = { { 1, 0 }, { 1, 0 }, { 1, 3 }, { 3, 0 }, { 1, 1 }, { 1, 0 },
                                                  { 1, 0 }, { 1, 0 }, { 1, 4 }, { 4, 0 }, { 4, 1 }, { 1, 0 } };
    m->g = g;
    m->dim = dim;
    m->host = make_floats((size_t)((4 * dim > WORDS ? 4 * dim : WORDS) * dim), 0.05f); /* the largest of the weights */
    for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < BLOCK_WEIGHTS; i++) {
            const int *s = shapes[i];
            m->w[b][i] =
                gn_weight(g, GN_F32, s[1] ? GN_SHAPE(s[0] * dim, s[1] * dim) : GN_SHAPE(s[0] * dim), m->host, "w");
        }
    m->table = gn_weight(g, GN_F32, GN_SHAPE(WORDS, dim), m->host, "table");
}

static gn_tensor model_heads(const model *m, gn_tensor qkv, int which, int64_t t) {
    gn_tensor x = gn_slice(qkv, 1, which * m->dim, (which + 1) * m->dim, 1);
    return gn_transpose(gn_reshape(x, GN_SHAPE(1, t, HEADS, m->dim / HEADS)), 1, 2);
}

static gn_tensor model_block(const model *m, int b, gn_tensor x, int64_t t) {
    const gn_tensor *w = m->w[b];
    gn_tensor h = gn_layernorm(x, w[0], w[1], 1e-5);
    gn_tensor qkv = gn_linear(h, w[2], w[3]);
    gn_attention_desc d = { .causal = true };
    gn_tensor a = gn_attention(model_heads(m, qkv, 0, t), model_heads(m, qkv, 1, t), model_heads(m, qkv, 2, t), &d);
    a = gn_reshape(gn_transpose(a, 1, 2), GN_SHAPE(t, m->dim));
    x = gn_add(x, gn_linear(a, w[4], w[5]));
    h = gn_layernorm(x, w[6], w[7], 1e-5);
    return gn_add(x, gn_linear(gn_gelu(gn_linear(h, w[8], w[9])), w[10], w[11]));
}

static gn_tensor model_build(const model *m, const int32_t *ids, int64_t t) {
    gn_tensor x = gn_embedding(m->table, gn_data(m->g, GN_I32, GN_SHAPE(t), ids));
    for (int b = 0; b < BLOCKS; b++) x = model_block(m, b, x, t);
    return gn_softmax(gn_matmul(x, gn_transpose(m->table, 0, 1)), -1);
}

static const int32_t some_ids[WORDS] = { 3, 1, 4, 1, 5, 9, 2, 6 };

static void bench_node_build(void) {
    if (!wanted("node_build")) return;
    gn_ctx *g = open_or_die("null", 1);
    model m;
    model_open(&m, g, 64);
    int n = repeats(4000);
    double nodes = 0;
    for (int i = 0; i < n + 50; i++) {
        gn_stats before, after;
        gn_get_stats(g, &before);
        double start = ex_now();
        gn_tensor y = model_build(&m, some_ids, TIMES);
        double took = ex_now() - start;
        gn_info info;
        if (i == 0 && !ex_check(g, gn_describe(y, &info), "build")) failures++;
        gn_get_stats(g, &after);
        gn_step(g);
        nodes = (double)(after.nodes_built - before.nodes_built);
        if (i >= 50) samples_a[i - 50] = took * 1e9 / nodes;
    }
    show("node_build_ns", quantile(samples_a, n, 0.5), true, 40, "ns");
    note("node_build_nodes", nodes, "nodes of one graph, leaves included");
    gn_close(g);
    free(m.host);
}

static void bench_plan(void) {
    if (!wanted("plan")) return;
    gn_cluster_device costs[2] = { { .bytes_per_s = 1e11 }, { .bytes_per_s = 1e8 } };
    gn_cluster_link links[9] = { { 0, 0 } };
    gn_ctx *g = open_or_die("cpu,null", 1); /* two devices, so that there is something to schedule */
    model m;
    int n = repeats(40);
    float out[64 * 64];
    if (!ex_check(g, gn_set_cluster(g, &(gn_cluster){ 2, costs, links }), "cluster")) failures++;
    model_open(&m, g, 8);
    for (int i = 0; i < n; i++)
        for (int again = 0; again < 2; again++) { /* another length is another structure; the second time it is known */
            int64_t t = 8 + i;
            double start = ex_now();
            read_or_die(model_build(&m, some_ids, t), out, (size_t)t * 64 * sizeof *out);
            (again ? samples_b : samples_a)[i] = (ex_now() - start) * 1e3;
            gn_step(g);
        }
    for (int i = 0; i < n; i++) samples_c[i] = samples_a[i] - samples_b[i];
    show("plan_ms", quantile(samples_c, n, 0.5), true, 5, "ms"); /* meaning, schedule, views, loops, memory */
    note("plan_first_ms", quantile(samples_a, n, 0.5), "ms, first step of a structure");
    note("plan_known_ms", quantile(samples_b, n, 0.5), "ms, second step of it");
    gn_close(g);
    free(m.host);
}

/* ---- a read of a tiny graph whose plan is known: built, submitted, computed, copied, recycled ---- */

static double tiny_run(gn_ctx *g, gn_tensor x, int i) {
    float y[16];
    double start = ex_now();
    for (int k = 0; k < 100; k++) {
        read_or_die(gn_add(gn_mul(x, x), gn_scalar(g, GN_F32, i + k)), y, sizeof y);
        gn_step(g);
    }
    double took = ex_now() - start;
    if (y[3] != 9 + (float)(i + 99)) failed("a tiny read computes wrong values");
    return took / 100;
}

static void bench_tiny(void) {
    if (!wanted("tiny")) return;
    static const float x[16] = { 0, 1, 2, 3 };
    int runs = repeats(400);
    for (int threads = 1; threads <= 2; threads++) {
        gn_ctx *g = open_or_die("cpu", threads);
        gn_tensor state = gn_state(g, GN_F32, GN_SHAPE(16), x, "x");
        for (int i = -2; i < runs; i++) samples_a[i < 0 ? 0 : i] = 1e6 * tiny_run(g, state, i);
        if (threads == 1) show("tiny_read_us", quantile(samples_a, runs, 0.25), true, 1.5, "us");
        else note("tiny_read_2t_us", quantile(samples_a, runs, 0.25), "us, with two threads");
        gn_close(g);
    }
}

/* ---- the client's work of a step: a transport that only notes when the bytes come ---- */

typedef struct held_link {
    int fd;
    bool hold;
    double handed;
    size_t n;
    uint8_t bytes[1 << 18];
    uint64_t up, down;
} held_link;

static gn_result held_put(held_link *l, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t sent = send(l->fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return GN_DISCONNECTED;
        p += sent;
        n -= (size_t)sent;
    }
    return GN_OK;
}

static gn_result held_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    held_link *l = self;
    (void)timeout_ms;
    if (l->handed == 0) l->handed = ex_now();
    l->up += n;
    if (!l->hold || n > sizeof l->bytes - l->n) return held_put(l, data, n);
    memcpy(l->bytes + l->n, data, n);
    l->n += n;
    return GN_OK;
}

static gn_result held_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    held_link *l = self;
    struct pollfd p = { l->fd, POLLIN, 0 };
    if (poll(&p, 1, (int)(timeout_ms > 60000 ? 60000 : timeout_ms)) <= 0) return GN_TIMEOUT;
    ssize_t got = recv(l->fd, data, max, 0);
    if (got <= 0) return GN_DISCONNECTED;
    *out_n = (size_t)got;
    l->down += (uint64_t)got;
    return GN_OK;
}

static void held_interrupt(void *self) { shutdown(((held_link *)self)->fd, SHUT_RDWR); }
static void held_close(void *self) {
    close(((held_link *)self)->fd);
    free(self);
}
static void held_info(void *self, gn_link_info *out) {
    const held_link *l = self;
    memset(out, 0, sizeof *out);
    snprintf(out->peer, sizeof out->peer, "held");
    out->bytes_up = l->up;
    out->bytes_down = l->down;
}
static size_t held_auth(void *self, uint8_t out[256]) {
    (void)self;
    out[0] = 0;
    return 0;
}
static gn_result held_granted(void *self, const uint8_t *grant, size_t n) {
    (void)self;
    (void)grant;
    (void)n;
    return GN_OK;
}

static gn_transport held_transport(int fd, held_link **out) {
    static const gn_transport_i table = {
        .send = held_send,
        .recv = held_recv,
        .interrupt = held_interrupt,
        .close = held_close,
        .info = held_info,
        .auth = held_auth,
        .granted = held_granted,
    };
    held_link *l = calloc(1, sizeof *l);
    if (!l) exit(EX_FAILED);
    l->fd = fd;
    *out = l;
    return (gn_transport){ &table, l };
}

/* Steps are built and handed over in batches smaller than what may be unanswered; only then does the server see
   them. */
static void step_batches(const model *m, held_link *l, gn_tensor last, int batches, int *out_n) {
    enum { BATCH = 16 };
    *out_n = 0;
    for (int b = 0; b < batches + 2; b++) {
        l->hold = b > 0;
        for (int i = 0; i < BATCH; i++) {
            l->handed = 0;
            double start = ex_now();
            gn_assign(last, model_build(m, some_ids, TIMES));
            gn_result r = gn_step(m->g);
            if (b >= 2) samples_a[(*out_n)++] = (l->handed - start) * 1e6;
            if (!ex_check(m->g, r, "step")) exit(EX_FAILED);
        }
        l->hold = false;
        if (held_put(l, l->bytes, l->n) != GN_OK) exit(EX_FAILED);
        l->n = 0;
        if (!ex_check(m->g, gn_sync(m->g), "sync")) exit(EX_FAILED);
    }
}

static void bench_step_client(void) {
    if (!wanted("step_client")) return;
    ex_place place;
    int ends[2], n;
    held_link *l;
    model m;
    if (!ex_place_open(&place, NULL, NULL) || !place.server || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        failed("no server for step_client");
        return;
    }
    held_link *far;
    if (gn_server_attach(place.server, held_transport(ends[0], &far), "bench") != GN_OK) exit(EX_FAILED);
    gn_ctx *g = gn_open_transport(NULL, held_transport(ends[1], &l), "cpu");
    if (!ex_check(g, gn_status(g), "step_client")) exit(EX_FAILED);
    model_open(&m, g, 8);
    gn_tensor last = gn_state(g, GN_F32, GN_SHAPE(TIMES, 64), NULL, "last");
    step_batches(&m, l, last, repeats(200), &n);
    gn_stats s;
    gn_get_stats(g, &s);
    show("step_client_us", quantile(samples_a, n, 0.5), true, 30, "us");
    show("step_client_p95_us", quantile(samples_a, n, 0.95), true, 30, "us");
    note("step_client_bytes_up", (double)s.tensor_bytes_up / (double)s.steps_run, "bytes of tensors a step");
    gn_close(g);
    ex_place_close(&place);
    free(m.host);
}

/* ---- the same of a decoder of 1.1 billion parameters in structure (22 layers, 32 heads, 4 of them of keys), its
   matrices narrow: the program's part does not depend on width. Built anew in each step, and recorded. ---- */

enum { LLAMA_LAYERS = 22, LLAMA_HEADS = 32, LLAMA_KV = 4, LLAMA_HEAD = 4, LLAMA_DIM = LLAMA_HEADS * LLAMA_HEAD };

typedef struct llama {
    gn_ctx *g;
    gn_tensor w[LLAMA_LAYERS][9], cache[LLAMA_LAYERS][2], table, norm, head, last, token, position;
    float *host;
} llama;

static void llama_open(llama *m, gn_ctx *g) {
    enum { D = LLAMA_DIM, KV = LLAMA_KV * LLAMA_HEAD };
    static const int shapes[9][2] = { { 0, D }, { D, D }, { D, KV }, { D, KV }, { D, D },
                                      { 0, D }, { D, D }, { D, D },  { D, D } };
    m->g = g;
    m->host = make_floats((size_t)D * D, 0.05f);
    for (int l = 0; l < LLAMA_LAYERS; l++) {
        for (int i = 0; i < 9; i++)
            m->w[l][i] = gn_weight(g, GN_F32, i % 5 ? GN_SHAPE(shapes[i][0], shapes[i][1]) : GN_SHAPE(D), m->host, "w");
        for (int i = 0; i < 2; i++)
            m->cache[l][i] = gn_state(g, GN_F32, GN_SHAPE(1, LLAMA_KV, 64, LLAMA_HEAD), NULL, "kv");
    }
    m->table = gn_weight(g, GN_F32, GN_SHAPE(WORDS, D), m->host, "table");
    m->head = gn_weight(g, GN_F32, GN_SHAPE(D, WORDS), m->host, "head");
    m->norm = gn_weight(g, GN_F32, GN_SHAPE(D), m->host, "norm");
    m->last = gn_state(g, GN_I32, GN_SHAPE(1), NULL, "last");
}

static gn_tensor llama_heads(gn_tensor x, int n) { return gn_reshape(x, GN_SHAPE(1, n, 1, LLAMA_HEAD)); }

static void llama_build(llama *m, int32_t token, int32_t position) {
    m->token = gn_scalar(m->g, GN_I32, token);
    m->position = gn_scalar(m->g, GN_I32, position);
    gn_tensor x = gn_embedding(m->table, gn_reshape(m->token, GN_SHAPE(1))), at = gn_reshape(m->position, GN_SHAPE(1)),
              length = gn_add_c(m->position, 1);
    for (int l = 0; l < LLAMA_LAYERS; l++) {
        const gn_tensor *w = m->w[l];
        gn_tensor h = gn_rmsnorm(x, w[0], 1e-5);
        gn_tensor q = gn_rotary(llama_heads(gn_matmul(h, w[1]), LLAMA_HEADS), at, 10000, false),
                  k = gn_rotary(llama_heads(gn_matmul(h, w[2]), LLAMA_KV), at, 10000, false);
        k = gn_kv_append(m->cache[l][0], k, m->position);
        gn_tensor v = gn_kv_append(m->cache[l][1], llama_heads(gn_matmul(h, w[3]), LLAMA_KV), m->position);
        gn_attention_desc d = { .causal = true, .length = length };
        x = gn_add(x, gn_matmul(gn_reshape(gn_attention(q, k, v, &d), GN_SHAPE(1, LLAMA_DIM)), w[4]));
        h = gn_rmsnorm(x, w[5], 1e-5);
        x = gn_add(x, gn_matmul(gn_mul(gn_silu(gn_matmul(h, w[6])), gn_matmul(h, w[7])), w[8]));
    }
    x = gn_matmul(gn_rmsnorm(x, m->norm, 1e-5), m->head);
    gn_assign(m->last, gn_cast(gn_argmax(x, GN_AXES(1), false), GN_I32));
}

/* us from the first call of a step until it is handed over: to the null device, or, with a link, to it. */
static int llama_steps(llama *m, held_link *l, bool recorded, int batches) {
    enum { BATCH = 16 };
    gn_recording s;
    int n = 0;
    if (recorded) llama_build(m, 1, 0);
    if (recorded &&
        !ex_check(m->g, gn_step_record(m->g, (gn_tensor[]){ m->token, m->position }, 2, NULL, 0, &s), "record"))
        exit(EX_FAILED);
    for (int b = 0; b < batches + 2; b++) {
        if (l) l->hold = b > 0;
        for (int32_t i = 0; i < BATCH; i++) {
            gn_result r = GN_OK;
            if (l) l->handed = 0;
            double start = ex_now();
            if (recorded) {
                r = gn_step_give(s, 0, &i, sizeof i);
                r = r ? r : gn_step_give(s, 1, &i, sizeof i);
                r = r ? r : gn_step_run(s, NULL, NULL, NULL);
            } else {
                llama_build(m, i, i);
                r = gn_step(m->g);
            }
            if (b >= 2) samples_a[n++] = 1e6 * ((l ? l->handed : ex_now()) - start);
            if (r != GN_NO_VALUE && !ex_check(m->g, r, "step")) exit(EX_FAILED);
        }
        if (l) {
            l->hold = false;
            if (held_put(l, l->bytes, l->n) != GN_OK) exit(EX_FAILED);
            l->n = 0;
            if (!ex_check(m->g, gn_sync(m->g), "sync")) exit(EX_FAILED);
        }
    }
    return n;
}

static void llama_rows(llama *m, held_link *l, const char *built, const char *recorded) {
    gn_stats before, after;
    llama_open(m, m->g);
    gn_get_stats(m->g, &before);
    llama_build(m, 1, 0);
    gn_get_stats(m->g, &after);
    if (!ex_check(m->g, gn_step(m->g) == GN_NO_VALUE ? GN_OK : gn_status(m->g), "step")) exit(EX_FAILED);
    int n = llama_steps(m, l, false, repeats(60));
    show(built, quantile(samples_a, n, 0.5), true, 30, "us");
    if (!l) note("step_1b_nodes", (double)(after.nodes_built - before.nodes_built), "nodes of that step");
    gn_step(m->g);
    uint64_t up = l ? l->up : 0;
    n = llama_steps(m, l, true, repeats(60));
    show(recorded, quantile(samples_a, n, 0.5), true, 3, "us");
    if (l) note("step_recorded_bytes_up", (double)(l->up - up) / (n + 32), "bytes of frames a recorded step");
    gn_close(m->g);
    free(m->host);
}

static void bench_step_recorded(void) {
    if (!wanted("step_recorded")) return;
    ex_place place;
    int ends[2];
    held_link *l, *far;
    llama m = { .g = open_or_die("null", 1) };
    llama_rows(&m, NULL, "step_1b_us", "step_recorded_us");
    if (!ex_place_open(&place, NULL, NULL) || !place.server || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        failed("no server for step_recorded");
        return;
    }
    if (gn_server_attach(place.server, held_transport(ends[0], &far), "bench") != GN_OK) exit(EX_FAILED);
    m.g = gn_open_transport(NULL, held_transport(ends[1], &l), "cpu");
    if (!ex_check(m.g, gn_status(m.g), "step_recorded")) exit(EX_FAILED);
    llama_rows(&m, l, "step_1b_remote_us", "step_recorded_remote_us");
    ex_place_close(&place);
}

/* ---- what a trace costs: nobody traces, the stages, those of every call however short, the kernels too; the file is
   written meanwhile ---- */

enum { TRACED_DIM = 256, TRACED_ROWS = 64, TRACED_KINDS = 4 };
static const char *const traced_kinds[TRACED_KINDS] = { "off", "stages", "all", "kernels" };

typedef struct traced {
    gn_ctx *g;
    gn_tensor x, w[3];
    char path[64];
} traced;

static void traced_open(traced *t, int kind, const float *values) {
    snprintf(t->path, sizeof t->path, "/tmp/genie_trace_%ld_%d.json", (long)getpid(), kind);
    t->g = gn_open(&(gn_desc){ .devices = "cpu",
                               .threads = 1,
                               .trace_file = kind ? t->path : NULL,
                               .trace_all = kind == 2,
                               .trace_kernels = kind == 3 });
    if (!ex_check(t->g, gn_status(t->g), "trace")) exit(EX_FAILED);
    t->x = gn_state(t->g, GN_F32, GN_SHAPE(16), values, "x");
    for (int i = 0; i < 3; i++) t->w[i] = gn_weight(t->g, GN_F32, GN_SHAPE(TRACED_DIM, TRACED_DIM), values, "w");
}

/* Seconds of CPU, those of the thread that writes the file included. */
static double traced_step(traced *t, const float *batch, float *y) {
    clock_t start = clock();
    gn_tensor h = gn_data(t->g, GN_F32, GN_SHAPE(TRACED_ROWS, TRACED_DIM), batch);
    for (int i = 0; i < 3; i++) h = gn_relu(gn_matmul(h, t->w[i]));
    read_or_die(h, y, TRACED_ROWS * TRACED_DIM * sizeof *y);
    gn_step(t->g);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static void bench_traced(void) {
    if (!wanted("traced")) return;
    float *values = make_floats(TRACED_DIM * TRACED_DIM, 0.01f), *y = make_floats(TRACED_ROWS * TRACED_DIM, 1);
    traced t[TRACED_KINDS];
    double tiny[TRACED_KINDS], step[TRACED_KINDS], read[2];
    int runs = repeats(400);
    for (int k = 0; k < 16; k++) values[k] = (float)k;
    for (int k = 0; k < TRACED_KINDS; k++) traced_open(&t[k], k, values);
    for (int k = 0; k < TRACED_KINDS; k++) tiny[k] = step[k] = INFINITY;
    for (int i = -2; i < runs; i++)
        for (int k = 0; k < TRACED_KINDS; k++) {
            double took = 1e6 * tiny_run(t[k].g, t[k].x, i);
            if (i >= 0) tiny[k] = fmin(tiny[k], took);
            if (k < 2) (k ? samples_b : samples_a)[i < 0 ? 0 : i] = took;
        }
    for (int i = -2; i < runs; i++)
        for (int k = 0; k < TRACED_KINDS; k++) step[k] = fmin(step[k], traced_step(&t[k], values, y));
    for (int k = 0; k < 2; k++) read[k] = quantile(k ? samples_b : samples_a, runs, 0.25);
    for (int k = 0; k < TRACED_KINDS; k++) {
        char name[64];
        snprintf(name, sizeof name, "traced_read_%s_us", traced_kinds[k]);
        note(name, tiny[k], "us a tiny read");
    }
    show("traced_read_percent", 100 * (read[1] / read[0] - 1), true, 5, "% of a tiny read, its stages");
    show("traced_event_ns", 1e3 / 6 * (tiny[2] - tiny[0]), true, 80, "ns of the program's thread, six events a read");
    note("traced_step_ms", 1e3 * step[0], "ms of CPU, three layers, nobody traces");
    show("traced_stages_percent", 100 * (step[1] / step[0] - 1), true, 5, "% of that step");
    note("traced_kernels_percent", 100 * (step[3] / step[0] - 1), "% of it, each kernel too");
    for (int k = 0; k < TRACED_KINDS; k++) {
        gn_close(t[k].g);
        if (k) remove(t[k].path);
    }
    free(values);
    free(y);
}

/* ---- round trip over TLS beside raw TCP, both sides spinning for 50 us before they block ---- */

enum { ECHO_BYTES = 256, SPIN_US = 50 };

static bool hybrid_recv(int fd, uint8_t *p, size_t n) {
    double end = ex_now() + SPIN_US * 1e-6;
    while (n > 0) {
        ssize_t got = recv(fd, p, n, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (got > 0) {
            p += got;
            n -= (size_t)got;
            continue;
        }
        if (ex_now() < end) {
            sched_yield();
            continue;
        }
        struct pollfd q = { fd, POLLIN, 0 };
        poll(&q, 1, -1);
    }
    return true;
}

/* Two ends that take turns on one core answer without a core ever waking: not what is to be measured. */
static void pin(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int i = 0; i < (int)sysconf(_SC_NPROCESSORS_ONLN); i++)
        if (core < 0 || i == core) CPU_SET((size_t)i, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

static void *echo_main(void *arg) {
    uint8_t bytes[ECHO_BYTES];
    int fd = *(int *)arg;
    pin(1);
    while (hybrid_recv(fd, bytes, sizeof bytes) &&
           send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes) { }
    return NULL;
}

static bool tcp_pair(int ends[2]) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = l >= 0 && ends[0] >= 0 && !bind(l, (struct sockaddr *)&a, n) && !listen(l, 1) &&
              !getsockname(l, (struct sockaddr *)&a, &n) && !connect(ends[0], (struct sockaddr *)&a, n);
    ends[1] = ok ? accept(l, NULL, NULL) : -1;
    close(l);
    for (int i = 0; i < 2 && ends[1] >= 0; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return ends[1] >= 0;
}

/* One TLS step: 64 floats go up, 64 come back. */
static double tls_trip(gn_ctx *g, const float *x, float *y) {
    double start = ex_now();
    gn_result r = gn_read(gn_add_c(gn_data(g, GN_F32, GN_SHAPE(64), x), 1), y, 64 * sizeof *y);
    double took = ex_now() - start;
    if (!ex_check(g, r, "round trip") || y[0] != x[0] + 1) exit(EX_FAILED);
    gn_step(g);
    return took * 1e6;
}

static double raw_trip(int fd) {
    uint8_t bytes[ECHO_BYTES] = { 1 };
    double start = ex_now();
    if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != (ssize_t)sizeof bytes || !hybrid_recv(fd, bytes, sizeof bytes))
        exit(EX_FAILED);
    return (ex_now() - start) * 1e6;
}

static void bench_round_trip(void) {
    if (!wanted("rtt")) return;
    ex_place place;
    pthread_t echo;
    int ends[2], n = 0, rounds = repeats(24), block = 200;
    float x[64] = { 1 }, y[64];
    if (!ex_place_open(&place, NULL, NULL) || !place.server || !tcp_pair(ends) ||
        pthread_create(&echo, NULL, echo_main, &ends[1])) {
        failed("no server for rtt");
        return;
    }
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    if (!ex_check(g, gn_status(g), "rtt")) exit(EX_FAILED);
    pin(0);
    for (int r = 0; r < rounds; r++) { /* in turn; the first tenth of each block warms up */
        for (int i = -block / 10; i < block; i++) samples_a[n + (i < 0 ? 0 : i)] = raw_trip(ends[0]);
        for (int i = -block / 10; i < block; i++) samples_b[n + (i < 0 ? 0 : i)] = tls_trip(g, x, y);
        n += block;
    }
    double raw = quantile(samples_a, n, 0.5), tls = quantile(samples_b, n, 0.5);
    show("rtt_vs_raw_tcp", tls / raw, true, 2, "");
    note("rtt_tls_us", tls, "us, builder call to value");
    note("rtt_raw_us", raw, "us, send to receive");
    pin(-1);
    shutdown(ends[0], SHUT_RDWR);
    pthread_join(echo, NULL);
    close(ends[0]);
    close(ends[1]);
    gn_close(g);
    ex_place_close(&place);
}

/* ---- weights to a server that has none of them, and values back, beside one stream of plain TCP ---- */

enum { UPLOAD_WEIGHTS = 8, UPLOAD_SIDE = 2048 }; /* 16 MiB each */

typedef struct raw_stream {
    int fd;
    size_t n;
    uint8_t *room;
} raw_stream;

static void *raw_take(void *arg) {
    raw_stream *s = arg;
    for (size_t got = 0; got < s->n;) {
        ssize_t k = recv(s->fd, s->room, 256 << 10, 0);
        if (k <= 0) exit(EX_FAILED);
        got += (size_t)k;
    }
    if (send(s->fd, "", 1, MSG_NOSIGNAL) != 1) exit(EX_FAILED);
    return NULL;
}

/* Seconds for n bytes there and one back. */
static double raw_upload(const int ends[2], const float *p, size_t n) {
    raw_stream s = { ends[1], n, malloc(256 << 10) };
    pthread_t thread;
    char done;
    double start = ex_now();
    if (!s.room || pthread_create(&thread, NULL, raw_take, &s)) exit(EX_FAILED);
    for (size_t at = 0; at < n; at += 256 << 10)
        for (size_t k = 0, all = n - at < 256 << 10 ? n - at : 256 << 10; k < all;) {
            ssize_t took = send(ends[0], (const char *)p + at + k, all - k, MSG_NOSIGNAL);
            if (took <= 0) exit(EX_FAILED);
            k += (size_t)took;
        }
    if (recv(ends[0], &done, 1, MSG_WAITALL) != 1) exit(EX_FAILED);
    pthread_join(thread, NULL);
    free(s.room);
    return ex_now() - start;
}

/* Seconds of processor time of this process: client and server. */
static double cpu_now(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* From the first weight of a new context to an answer that needs all of them. */
static double upload_once(const ex_place *place, float *host, double *out_cpu, gn_stats *out_stats) {
    size_t n = (size_t)UPLOAD_SIDE * UPLOAD_SIDE;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place->devices, .home = place->home });
    if (!ex_check(g, gn_status(g), "upload")) exit(EX_FAILED);
    gn_tensor last[UPLOAD_WEIGHTS], w[UPLOAD_WEIGHTS];
    float y[UPLOAD_WEIGHTS];
    poison(y, UPLOAD_WEIGHTS);
    /* the server has not seen it */
    for (int i = 0; i < UPLOAD_WEIGHTS; i++) host[(size_t)i * n + (size_t)(draw() * 1000 + 1000)] = draw();
    double start = ex_now(), cpu = cpu_now();
    for (int i = 0; i < UPLOAD_WEIGHTS; i++) {
        w[i] = gn_weight(g, GN_F32, GN_SHAPE(UPLOAD_SIDE, UPLOAD_SIDE), host + (size_t)i * n, "w");
        last[i] = gn_reshape(gn_slice(gn_reshape(w[i], GN_SHAPE(UPLOAD_SIDE * UPLOAD_SIDE)), 0,
                                      UPLOAD_SIDE * UPLOAD_SIDE - 1, UPLOAD_SIDE * UPLOAD_SIDE, 1),
                             GN_SHAPE(1));
    }
    read_or_die(gn_concat(last, UPLOAD_WEIGHTS, 0), y, sizeof y);
    double took = ex_now() - start;
    *out_cpu = cpu_now() - cpu;
    for (int i = 0; i < UPLOAD_WEIGHTS; i++)
        if (y[i] != host[(size_t)(i + 1) * n - 1]) failed("an uploaded weight is not what was sent");
    gn_get_stats(g, out_stats);
    gn_close(g);
    return took;
}

/* Bell-shaped, as weights are; or bits that nothing packs, though numbers. */
static void upload_values(float *host, size_t n, bool noise) {
    for (size_t i = 0; i < n && !noise; i++) host[i] += 0.02f * draw() + 0.02f * draw();
    for (size_t i = 0; i < n && noise; i++) {
        float x = draw(), y = draw(); /* the low bits of both are as random as bits are */
        uint32_t a, b;
        memcpy(&a, &x, 4);
        memcpy(&b, &y, 4);
        a = a << 20 ^ b << 8 ^ (uint32_t)i * 0x9E3779B9u ^ a >> 8;
        if ((a >> 23 & 255) == 255) a ^= 1u << 23;
        memcpy(&host[i], &a, 4);
    }
}

static void bench_upload(const char *name, bool noise) {
    if (!wanted(name)) return;
    ex_place place;
    int ends[2], runs = repeats(8);
    size_t n = (size_t)UPLOAD_WEIGHTS * UPLOAD_SIDE * UPLOAD_SIDE, bytes = n * sizeof(float);
    char about[200];
    double cpu[64];
    gn_stats s;
    if (!ex_place_open(&place, NULL, NULL) || !place.server || !tcp_pair(ends)) {
        failed("no server for upload");
        return;
    }
    float *host = make_floats(n, 0.02f);
    upload_values(host, n, noise);
    for (int i = -1; i < runs; i++) {
        int at = i < 0 ? 0 : i;
        samples_a[at] = upload_once(&place, host, &cpu[at], &s);
        samples_c[at] = raw_upload(ends, host, bytes);
    }
    double up = quantile(samples_a, runs, 0.5), busy = quantile(cpu, runs, 0.5), raw = quantile(samples_c, runs, 0.5);
    char row[64];
    snprintf(row, sizeof row, "%s_gb_s", name);
    show(row, 1e-9 * (double)bytes / up, false, 0.5, "GB/s");
    note_of(name, "raw_tcp_gb_s", 1e-9 * (double)bytes / raw, "GB/s, one stream of plain TCP");
    note_of(name, "packed_share", (double)s.packed_bytes_up / (double)s.tensor_bytes_up,
            "of the bytes were sent, after compression");
    note_of(name, "cpu_s_gb", busy / (1e-9 * (double)bytes), "s of processor time a GB, both ends");
    note_of(name, "cores_busy", busy / up, "cores at work, both ends together");
    if (gn_describe_network(about, sizeof about) > 0) printf("    %s\n", about);
    free(host);
    close(ends[0]);
    close(ends[1]);
    ex_place_close(&place);
}

enum { DOWNLOAD_PIECES = 4 }; /* of UPLOAD_SIDE squared floats each: a value of 64 MiB */

/* Seconds from asking for a value that is there to having it; ends the step. The factor is what each of its floats was
   multiplied by. */
static double download_once(gn_tensor z, float factor, const float *host, float *back, size_t pieces, double *out_cpu) {
    size_t n = (size_t)UPLOAD_SIDE * UPLOAD_SIDE;
    poison(back, n * pieces);
    if (!ex_check(z.ctx, gn_realize(&z, 1), "download") || !ex_check(z.ctx, gn_sync(z.ctx), "download"))
        exit(EX_FAILED);
    double start = ex_now(), cpu = cpu_now();
    read_or_die(z, back, n * pieces * sizeof *back);
    double took = ex_now() - start;
    *out_cpu = cpu_now() - cpu;
    for (size_t i = 0; i < n * pieces; i++)
        if (back[i] != host[i % n] * factor) {
            failed("a downloaded value is wrong");
            break;
        }
    gn_step(z.ctx);
    return took;
}

static void bench_download(void) {
    if (!wanted("download")) return;
    ex_place place;
    int ends[2], runs = repeats(8);
    size_t n = (size_t)UPLOAD_SIDE * UPLOAD_SIDE, bytes = DOWNLOAD_PIECES * n * sizeof(float);
    double cpu[64], unused;
    gn_stats s;
    if (!ex_place_open(&place, NULL, NULL) || !place.server || !tcp_pair(ends)) {
        failed("no server for download");
        return;
    }
    float *host = make_floats(n, 0.02f), *back = malloc(bytes);
    if (!back) exit(EX_FAILED);
    for (size_t i = 0; i < n; i++) host[i] += 0.02f * draw() + 0.02f * draw();
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    if (!ex_check(g, gn_status(g), "download")) exit(EX_FAILED);
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(UPLOAD_SIDE, UPLOAD_SIDE), host, "w"), pieces[DOWNLOAD_PIECES];
    for (int i = 0; i < DOWNLOAD_PIECES; i++) pieces[i] = w;
    for (int i = -1; i < runs; i++) {
        int at = i < 0 ? 0 : i;
        gn_ctx *fresh = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
        if (!ex_check(fresh, gn_status(fresh), "download")) exit(EX_FAILED);
        samples_b[at] =
            download_once(gn_mul_c(gn_weight(fresh, GN_F32, GN_SHAPE(UPLOAD_SIDE, UPLOAD_SIDE), host, "w"), 3), 3, host,
                          back, 1, &unused);
        gn_close(fresh);
        samples_a[at] = download_once(gn_mul_c(gn_concat(pieces, DOWNLOAD_PIECES, 0), i + 4), (float)(i + 4), host,
                                      back, DOWNLOAD_PIECES, &cpu[at]);
        samples_c[at] = raw_upload(ends, back, bytes);
    }
    gn_get_stats(g, &s);
    double down = quantile(samples_a, runs, 0.5), first = quantile(samples_b, runs, 0.5),
           busy = quantile(cpu, runs, 0.5), raw = quantile(samples_c, runs, 0.5);
    show("download_gb_s", 1e-9 * (double)bytes / down, false, 0.5, "GB/s");
    note("download_first_gb_s", 1e-9 * (double)(n * sizeof *host) / first,
         "GB/s, the first value of a new context, 16 MiB");
    note("download_raw_tcp_gb_s", 1e-9 * (double)bytes / raw, "GB/s, one stream of plain TCP");
    note("download_packed_share", (double)s.packed_bytes_down / (double)s.tensor_bytes_down,
         "of the bytes were sent, after compression");
    note("download_cpu_s_gb", busy / (1e-9 * (double)bytes), "s of processor time a GB, both ends");
    note("download_cores_busy", busy / down, "cores at work, both ends together");
    gn_close(g);
    free(host);
    free(back);
    close(ends[0]);
    close(ends[1]);
    ex_place_close(&place);
}

/* ---- memory and elementwise loops ---- */

typedef struct memory_job {
    char *to;
    const char *from;
    size_t n;
    double sum;
} memory_job;

static void *copy_main(void *arg) {
    memory_job *j = arg;
    memcpy(j->to, j->from, j->n);
    return NULL;
}

static void *read_main(void *arg) { /* eight sums, so that the additions are not what limits */
    memory_job *j = arg;
    const uint64_t *p = (const uint64_t *)(const void *)j->from;
    uint64_t s[8] = { 0 };
    for (size_t i = 0; i + 8 <= j->n / 8; i += 8)
        for (int l = 0; l < 8; l++) s[l] += p[i + (size_t)l];
    for (int l = 1; l < 8; l++) s[0] += s[l];
    j->sum = (double)s[0];
    return NULL;
}

/* Seconds that all threads together take over n bytes, this thread being one of them. */
static double in_threads(void *(*fn)(void *), void *to, const void *from, size_t n) {
    memory_job jobs[64];
    pthread_t threads[64];
    size_t count = (size_t)(set.threads < 64 ? set.threads : 64), each = n / count & ~(size_t)63;
    double start = ex_now();
    for (size_t i = 0; i < count; i++) {
        jobs[i] = (memory_job){ to ? (char *)to + i * each : NULL, (const char *)from + i * each,
                                i + 1 < count ? each : n - i * each, 0 };
        if (i && pthread_create(&threads[i], NULL, fn, &jobs[i])) exit(EX_FAILED);
    }
    fn(&jobs[0]);
    for (size_t i = 1; i < count; i++) pthread_join(threads[i], NULL);
    double took = ex_now() - start;
    volatile double sink = jobs[0].sum;
    (void)sink;
    return took;
}

typedef gn_tensor (*expression_fn)(gn_ctx *g, const float *x, const float *c, size_t n);

/* min(max(x a + b, 0) c - d, e) */
static gn_tensor clip_expression(gn_ctx *g, const float *x, const float *c, size_t n) {
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE((int64_t)n), x);
    (void)c;
    t = gn_add(gn_mul(t, gn_scalar(g, GN_F32, 1.5)), gn_scalar(g, GN_F32, 0.25));
    t = gn_sub(gn_mul(gn_maximum(t, gn_like(t, 0)), gn_scalar(g, GN_F32, 0.75)), gn_scalar(g, GN_F32, 0.125));
    return gn_minimum(t, gn_scalar(g, GN_F32, 0.9));
}

/* gelu(x a + b) sigmoid(c), c as large as x */
static gn_tensor gelu_expression(gn_ctx *g, const float *x, const float *c, size_t n) {
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE((int64_t)n), x);
    t = gn_add(gn_mul(t, gn_scalar(g, GN_F32, 1.5)), gn_scalar(g, GN_F32, 0.25));
    return gn_mul(gn_gelu(t), gn_sigmoid(gn_data(g, GN_F32, GN_SHAPE((int64_t)n), c)));
}

static double clip_value(double x, double c) {
    (void)c;
    return fmin(fmax(x * 1.5 + 0.25, 0) * 0.75 - 0.125, (double)0.9f);
}
static double gelu_value(double x, double c) {
    double t = x * 1.5 + 0.25;
    return 0.5 * t * erfc(-t * 0.70710678118654752440) / (1 + exp(-c));
}

/* From the device's memory to the device's memory: the result becomes the value of a state. */
static double expression_run(gn_tensor result, expression_fn make, const float *x, const float *c, size_t n) {
    double start = ex_now();
    gn_assign(result, make(result.ctx, x, c, n));
    gn_result r = gn_step(result.ctx);
    double took = ex_now() - start;
    if (!ex_check(result.ctx, r, "fused")) exit(EX_FAILED);
    return took;
}

static gn_tensor poisoned_state(gn_ctx *g, float *y, size_t n) {
    poison(y, n);
    return gn_state(g, GN_F32, GN_SHAPE((int64_t)n), y, "result");
}

static double expression_error(double (*value)(double, double), const float *x, const float *c, const float *y,
                               size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i += 997) {
        double error = fabs((double)y[i] - value((double)x[i], (double)c[i]));
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void bench_fused(void) {
    if (!wanted("fused")) return;
    size_t n = (size_t)16 << 20, bytes = n * sizeof(float); /* 64 MiB */
    float *x = make_floats(n, 2), *c = make_floats(n, 2), *y = make_floats(n, 1), *z = make_floats(n, 1);
    gn_ctx *g = open_or_die("cpu", set.threads);
    int runs = repeats(24);
    gn_tensor result = poisoned_state(g, y, n);
    for (int i = -2; i < runs; i++) {
        samples_a[i < 0 ? 0 : i] = in_threads(copy_main, z, x, bytes);
        samples_b[i < 0 ? 0 : i] = expression_run(result, clip_expression, x, c, n);
    }
    read_or_die(result, y, bytes);
    gn_release(result);
    double error = expression_error(clip_value, x, c, y, n), copy = quantile(samples_a, runs, 0.5),
           fused = quantile(samples_b, runs, 0.5);
    show("fused_vs_memcpy", copy / fused, false, 0.6, "");
    note("fused_gb_s", 2e-9 * (double)bytes / fused, "GB/s read and written");
    note("fused_memcpy_gb_s", 2e-9 * (double)bytes / copy, "GB/s read and written by memcpy");
    note("fused_error", error, "largest error");
    result = poisoned_state(g, y, n);
    for (int i = -2; i < runs; i++) samples_a[i < 0 ? 0 : i] = expression_run(result, gelu_expression, x, c, n);
    read_or_die(result, y, bytes);
    note("fused_gelu_gb_s", 3e-9 * (double)bytes / quantile(samples_a, runs, 0.5), "GB/s of x, c and the result");
    note("fused_gelu_error", expression_error(gelu_value, x, c, y, n), "largest error");
    if (!(error < 1e-6) || !(expression_error(gelu_value, x, c, y, n) < 4e-6))
        failed("a fused loop computes wrong values");
    gn_close(g);
    free(x);
    free(c);
    free(y);
    free(z);
}

/* ---- elementwise mathematics beside the C library's ---- */

enum { MATH_N = 1 << 17 };

typedef struct math_case {
    const char *name;
    gn_tensor (*op)(const char *file, int line, gn_tensor a);
    float (*f32)(float);
    double (*f64)(double);
    double low, high;
} math_case;

static const math_case math_cases[] = {
    { "exp", gn_exp_at, expf, exp, -10, 10 },
    { "log", gn_log_at, logf, log, 0.01, 100 },
    { "log10", gn_log10_at, log10f, log10, 0.01, 100 },
    { "sin", gn_sin_at, sinf, sin, -100, 100 },
    { "tan", gn_tan_at, tanf, tan, -100, 100 },
    { "tanh", gn_tanh_at, tanhf, tanh, -4, 4 },
    { "atan", gn_atan_at, atanf, atan, -5, 5 },
    { "asin", gn_asin_at, asinf, asin, -1, 1 },
    { "sinh", gn_sinh_at, sinhf, sinh, -10, 10 },
    { "asinh", gn_asinh_at, asinhf, asinh, -10, 10 },
    { "erf", gn_erf_at, erff, erf, -3, 3 },
    { "erfc", gn_erfc_at, erfcf, erfc, -3, 3 },
};

/* Seconds of one op over x, which stays where it is, to a state. */
static double math_run(const math_case *c, gn_tensor x, gn_tensor y) {
    double start = ex_now();
    gn_assign(y, c->op(GN_HERE, x));
    gn_result r = gn_step(x.ctx);
    double took = ex_now() - start;
    if (!ex_check(x.ctx, r, c->name)) exit(EX_FAILED);
    return took;
}

static void math_note(const math_case *c, const char *dtype, int runs) {
    char name[48];
    snprintf(name, sizeof name, "%s_%s_ns", c->name, dtype);
    double own = quantile(samples_a, runs, 0.5), library = quantile(samples_b, runs, 0.5);
    printf("    %-22s %10.3f ns an element, the C library's %.3f\n", name, 1e9 * own / MATH_N, 1e9 * library / MATH_N);
    keep(name, 1e9 * own / MATH_N);
}

static void bench_transcendental(void) {
    if (!wanted("transcendental")) return;
    static float x[MATH_N], y[MATH_N], z[MATH_N];
    static double a[MATH_N], b[MATH_N], d[MATH_N];
    gn_ctx *g = open_or_die("cpu", 1);
    int runs = repeats(40);
    double bytes = 0, seconds = 0;
    for (size_t k = 0; k < sizeof math_cases / sizeof *math_cases; k++) {
        const math_case *c = &math_cases[k];
        for (size_t i = 0; i < MATH_N; i++)
            x[i] = (float)(a[i] = c->low + (c->high - c->low) * (0.5 + 0.5 * (double)draw()));
        memset(y, 0xff, sizeof y);
        memset(b, 0xff, sizeof b);
        gn_tensor from32 = gn_weight(g, GN_F32, GN_SHAPE(MATH_N), x, "x"),
                  to32 = gn_state(g, GN_F32, GN_SHAPE(MATH_N), y, "y");
        gn_tensor from64 = gn_weight(g, GN_F64, GN_SHAPE(MATH_N), a, "a"),
                  to64 = gn_state(g, GN_F64, GN_SHAPE(MATH_N), b, "b");
        for (int r = -1; r < runs; r++) {
            samples_a[r < 0 ? 0 : r] = math_run(c, from32, to32);
            double start = ex_now();
            for (size_t i = 0; i < MATH_N; i++) z[i] = c->f32(x[i]);
            samples_b[r < 0 ? 0 : r] = ex_now() - start;
        }
        math_note(c, "f32", runs);
        bytes += 2.0 * sizeof y;
        seconds += quantile(samples_a, runs, 0.5);
        for (int r = -1; r < runs; r++) {
            samples_a[r < 0 ? 0 : r] = math_run(c, from64, to64);
            double start = ex_now();
            for (size_t i = 0; i < MATH_N; i++) d[i] = c->f64(a[i]);
            samples_b[r < 0 ? 0 : r] = ex_now() - start;
        }
        math_note(c, "f64", runs);
        read_or_die(to32, y, sizeof y);
        read_or_die(to64, b, sizeof b);
        gn_release(from32);
        gn_release(to32);
        gn_release(from64);
        gn_release(to64);
        for (size_t i = 0; i < MATH_N; i += 97)
            if (!(fabs((double)(y[i] - z[i])) <= 8e-7 * (fabs((double)z[i]) + 1e-30)) ||
                !(fabs(b[i] - d[i]) <= 2e-15 * (fabs(d[i]) + 1e-300))) {
                failed(c->name);
                break;
            }
    }
    note("transcendental_gb_s", 1e-9 * bytes / seconds, "GB/s read and written in f32, over all of these");
    gn_close(g);
}

/* ---- single ops that no other row measures: activations, products over all elements, a row times a matrix ---- */

enum { SINGLE_SIDE = 512, SINGLE_N = SINGLE_SIDE * SINGLE_SIDE };

static double gelu_of(double a) { return 0.5 * a * erfc(-a * 0.70710678118654752440); }
static double sigmoid_of(double a) { return 1 / (1 + exp(-a)); }
static double silu_of(double a) { return a / (1 + exp(-a)); }
static double gelu_tanh_of(double a) { return a / (1 + exp(-1.5957691216057307118 * (a + 0.044715 * a * a * a))); }
static double mish_of(double a) { return a * tanh(log1p(exp(a))); }
static gn_tensor prod_all(const char *file, int line, gn_tensor x) {
    return gn_prod_at(file, line, x, GN_ALL_AXES, false);
}
static gn_tensor row_times(const char *file, int line, gn_tensor x) {
    return gn_matmul_at(file, line, gn_slice(x, 0, 0, 1, 1), x);
}

typedef struct single {
    const char *name;
    gn_tensor (*op)(const char *file, int line, gn_tensor a);
    double (*value)(double); /* of an element; NULL: `results` of all of them, not checked here */
    int64_t results;
} single;

static const single singles[] = {
    { "gelu", gn_gelu_at, gelu_of, SINGLE_N },
    { "gelu_tanh", gn_gelu_tanh_at, gelu_tanh_of, SINGLE_N },
    { "silu", gn_silu_at, silu_of, SINGLE_N },
    { "sigmoid", gn_sigmoid_at, sigmoid_of, SINGLE_N },
    { "mish", gn_mish_at, mish_of, SINGLE_N },
    { "prod", prod_all, NULL, 1 },
    { "row_times_matrix", row_times, NULL, SINGLE_SIDE },
};

static void single_run(gn_ctx *g, const single *s, gn_dtype d) {
    static float x32[SINGLE_N], y32[SINGLE_N];
    static double x64[SINGLE_N], y64[SINGLE_N];
    char name[48];
    bool wide = d == GN_F64;
    int runs = repeats(60);
    for (size_t i = 0; i < SINGLE_N; i++)
        x32[i] = (float)(x64[i] = s->results == 1 ? 1 + 1e-4 * (double)draw() : 5 * (double)draw());
    gn_tensor x = gn_weight(g, d, GN_SHAPE(SINGLE_SIDE, SINGLE_SIDE), wide ? (void *)x64 : x32, "x"),
              y = gn_state(g, d, GN_SHAPE(s->results), NULL, "y");
    for (int r = -2; r < runs; r++) {
        double start = ex_now();
        gn_assign(y, gn_reshape(s->op(GN_HERE, x), GN_SHAPE(s->results)));
        gn_result e = gn_step(g);
        samples_a[r < 0 ? 0 : r] = ex_now() - start;
        if (!ex_check(g, e, s->name)) exit(EX_FAILED);
    }
    read_or_die(y, wide ? (void *)y64 : y32, (size_t)s->results * (wide ? 8 : 4));
    for (size_t i = 0; i < SINGLE_N && s->value; i += 97) {
        double want = s->value(wide ? x64[i] : (double)x32[i]), got = wide ? y64[i] : (double)y32[i];
        if (!(fabs(got - want) <= (wide ? 1e-13 : 1e-6) * (fabs(want) + 1e-3))) {
            failed(s->name);
            break;
        }
    }
    snprintf(name, sizeof name, "%s_%s_us", s->name, gn_dtype_name(d));
    note(name, 1e6 * quantile(samples_a, runs, 0.5), "us, 512 x 512 elements");
    gn_release(x);
    gn_release(y);
}

static void bench_single(void) {
    if (!wanted("single")) return;
    gn_ctx *g = open_or_die("cpu", 1);
    for (size_t k = 0; k < sizeof singles / sizeof *singles; k++) {
        single_run(g, &singles[k], GN_F32);
        single_run(g, &singles[k], GN_F64);
    }
    gn_close(g);
}

/* ---- reductions: each beside reading the same bytes ---- */

typedef struct reduction {
    const char *name;
    gn_dtype dtype;
    bool largest, columns;
} reduction;

static gn_tensor reduce_one(gn_tensor x, const reduction *r) {
    gn_axes axes = r->columns ? GN_AXES(0) : GN_AXES(1);
    return r->largest ? gn_max(x, axes, false) : gn_sum(x, axes, false);
}

/* The first results against plain loops; integers are exact, and so are extremes. */
static double reduction_error(const reduction *r, const void *x, const double *y, int64_t side) {
    double worst = 0;
    for (int64_t i = 0; i < 16; i++) {
        double want = r->largest ? -INFINITY : 0;
        for (int64_t l = 0; l < side; l++) {
            int64_t at = r->columns ? l * side + i : i * side + l;
            double v = r->dtype == GN_F32   ? (double)((const float *)x)[at]
                       : r->dtype == GN_I32 ? (double)((const int32_t *)x)[at]
                                            : (double)((const int8_t *)x)[at];
            want = r->largest ? fmax(want, v) : want + v;
        }
        if (!(fabs(want - y[i]) <= worst)) worst = fabs(want - y[i]);
    }
    return worst;
}

static double reduction_case(gn_ctx *g, const reduction *r, const float *noise, double *y, int64_t side) {
    gn_tensor x = gn_data(g, r->dtype, GN_SHAPE(side, side), noise); /* integers: the bits of the floats */
    gn_info info;
    int runs = repeats(16);
    for (int i = -2; i < runs; i++) {
        samples_b[i < 0 ? 0 : i] =
            in_threads(read_main, NULL, noise, (size_t)(side * side) * (r->dtype == GN_I8 ? 1 : 4));
        gn_tensor result = reduce_one(x, r);
        memset(y, 0xff, (size_t)side * sizeof *y);
        if (!ex_check(g, gn_describe(result, &info), r->name)) exit(EX_FAILED);
        double start = ex_now();
        read_or_die(result, y, info.bytes);
        samples_a[i < 0 ? 0 : i] = ex_now() - start;
    }
    read_or_die(gn_cast(reduce_one(x, r), GN_F64), y, (size_t)side * sizeof *y);
    double error = reduction_error(r, noise, y, side);
    if (!(error <= (r->dtype == GN_F32 && !r->largest ? 1e-2 : 0))) failed("a reduction computes wrong values");
    gn_step(g);
    return quantile(samples_a, runs, 0.5);
}

static void bench_reduce(void) {
    static const reduction rows[] = {
        { "f32_row_sum", GN_F32, false, false }, { "f32_column_sum", GN_F32, false, true },
        { "f32_row_max", GN_F32, true, false },  { "f32_column_max", GN_F32, true, true },
        { "i32_row_sum", GN_I32, false, false }, { "i32_column_max", GN_I32, true, true },
        { "i8_row_sum", GN_I8, false, false },   { "i8_column_sum", GN_I8, false, true },
    };
    if (!wanted("reduce")) return;
    const int64_t side = 4096;
    float *x = make_floats((size_t)(side * side), 2);
    double *y = calloc((size_t)side, sizeof *y), speed[sizeof rows / sizeof *rows];
    gn_ctx *g = open_or_die("cpu", set.threads);
    for (size_t i = 0; y && i < sizeof rows / sizeof *rows; i++) {
        char name[48];
        double bytes = (double)(side * side) * (rows[i].dtype == GN_I8 ? 1 : 4);
        speed[i] = 1e-9 * bytes / reduction_case(g, &rows[i], x, y, side);
        snprintf(name, sizeof name, "reduce_%s_gb_s", rows[i].name);
        note(name, speed[i], "GB/s read");
        snprintf(name, sizeof name, "reduce_%s_read", rows[i].name);
        note(name, 1e-9 * bytes / quantile(samples_b, repeats(16), 0.5), "GB/s of reading alone, in turn");
    }
    note("column_max_vs_row_sum", speed[3] / speed[0], "of the speed of a row's sum");
    gn_close(g);
    free(x);
    free(y);
}

/* ---- matrix products beside OpenBLAS ---- */

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
static struct {
    sgemm_fn sgemm;
    void (*set_threads)(int);
    char core[32];
    bool tried;
} blas;

static bool blas_load(void) {
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return false;
    void *sgemm = dlsym(lib, "cblas_sgemm"), *threads = dlsym(lib, "openblas_set_num_threads");
    memcpy(&blas.sgemm, &sgemm, sizeof sgemm);
    memcpy(&blas.set_threads, &threads, sizeof threads);
    return sgemm && threads;
}

static void blas_run(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c) {
    blas.sgemm(101, 111, 111, (int)m, (int)n, (int)k, 1, a, (int)k, b, (int)n, 0, c, (int)n);
}

/* In a child, since the library chooses its kernels when it is loaded: GFLOP/s with this core type, 0 if it cannot. */
static double blas_try(const char *core) {
    int ends[2];
    double best = 0;
    if (pipe(ends)) return 0;
    pid_t child = fork();
    if (child == 0) {
        const int64_t n = 768;
        if (core[0]) setenv("OPENBLAS_CORETYPE", core, 1);
        if (!blas_load()) _exit(1);
        float *a = make_floats((size_t)(n * n), 1), *b = make_floats((size_t)(n * n), 1),
              *c = make_floats((size_t)(n * n), 1);
        blas.set_threads(1);
        for (int i = 0; i < 6; i++) {
            double start = ex_now();
            blas_run(n, n, n, a, b, c);
            best = fmax(best, 2e-9 * (double)(n * n * n) / (ex_now() - start));
        }
        _exit(write(ends[1], &best, sizeof best) == sizeof best ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &best, sizeof best) != sizeof best) best = 0;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return best;
}

static bool blas_ready(void) {
#if defined(__aarch64__)
    static const char *const cores[] = { "", "ARMV8", "NEOVERSEN1", "NEOVERSEV1" };
#else
    static const char *const cores[] = { "", "Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids" };
#endif
    double best = 0;
    if (blas.tried) return blas.sgemm != NULL;
    blas.tried = true;
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        double got = blas_try(cores[i]);
        if (got <= best * 1.02) continue;
        best = got;
        snprintf(blas.core, sizeof blas.core, "%s", cores[i]);
    }
    if (blas.core[0]) setenv("OPENBLAS_CORETYPE", blas.core, 1);
    if (best == 0 || !blas_load()) {
        printf("  OpenBLAS is absent (libopenblas.so.0): no ratio\n");
        blas.sgemm = NULL;
        return false;
    }
    printf("  OpenBLAS's best core type here: %s\n", blas.core[0] ? blas.core : "its own choice");
    return true;
}

static double product_error(const float *a, const float *b, const float *c, int64_t n, int64_t k, int64_t m) {
    double worst = 0;
    for (int s = 0; s < 64; s++) {
        int64_t i = s * 7919 % m, j = s * 104729 % n;
        double sum = 0;
        for (int64_t l = 0; l < k; l++) sum += (double)a[i * k + l] * (double)b[l * n + j];
        double error = fabs(sum - (double)c[i * n + j]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

/* A thread of OpenBLAS looks for work 2^28 ticks of the processor's clock before it sleeps, 104 ms at 2.6 GHz. */
enum { BLAS_REST_US = 110000 };

/* Each side's turn: once so that its processors are awake, then timed. Both write into memory that is theirs. */
static double matmul_turn(gn_tensor y, gn_tensor a, gn_tensor b) {
    double start = 0;
    for (int i = 0; i < 2; i++) {
        start = ex_now();
        gn_assign(y, gn_matmul(a, b));
        if (!ex_check(y.ctx, gn_step(y.ctx), "matmul")) exit(EX_FAILED);
    }
    return ex_now() - start;
}

static double blas_turn(int64_t n, const float *a, const float *b, float *c) {
    double start = 0, took;
    for (int i = 0; i < 2; i++) {
        start = ex_now();
        blas_run(n, n, n, a, b, c);
    }
    took = ex_now() - start;
    usleep(BLAS_REST_US);
    return took;
}

static double matmul_case(int64_t n, int threads) {
    char name[64];
    float *a = make_floats((size_t)(n * n), 1), *b = make_floats((size_t)(n * n), 1),
          *c = make_floats((size_t)(n * n), 1);
    gn_ctx *g = open_or_die("cpu", threads);
    gn_tensor wa = gn_weight(g, GN_F32, GN_SHAPE(n, n), a, "a"), wb = gn_weight(g, GN_F32, GN_SHAPE(n, n), b, "b"),
              y = gn_state(g, GN_F32, GN_SHAPE(n, n), NULL, "c");
    int runs = repeats(n > 1500 ? 8 : 24);
    if (blas.sgemm) blas.set_threads(threads);
    for (int i = 0; i < runs; i++) {
        if (blas.sgemm) samples_b[i] = blas_turn(n, a, b, c);
        samples_a[i] = matmul_turn(y, wa, wb);
    }
    poison(c, (size_t)(n * n));
    read_or_die(y, c, (size_t)(n * n) * sizeof *c);
    double flops = 2e-9 * (double)n * (double)n * (double)n, own = flops / quantile(samples_a, runs, 0.5),
           other = blas.sgemm ? flops / quantile(samples_b, runs, 0.5) : NAN;
    double error = product_error(a, b, c, n, n, n);
    snprintf(name, sizeof name, "matmul_%lld_%dt_gflops", (long long)n, threads);
    note(name, own, "GFLOP/s");
    snprintf(name, sizeof name, "openblas_%lld_%dt_gflops", (long long)n, threads);
    note(name, other, "GFLOP/s");
    snprintf(name, sizeof name, "matmul_%lld_%dt_error", (long long)n, threads);
    keep(name, error);
    if (!(error < 1e-5 * (double)n)) failed("a matmul computes wrong values");
    gn_close(g);
    free(a);
    free(b);
    free(c);
    return own / other;
}

static void bench_matmul(void) {
    if (!wanted("matmul")) return;
    bool beside = blas_ready();
    double worst = INFINITY;
    for (int threads = 1; threads <= 2; threads++)
        for (int64_t n = 1024; n <= 2048; n *= 2) worst = fmin(worst, matmul_case(n, threads));
    if (beside) show("matmul_vs_openblas", worst, false, 0.6, "least");
    else keep("matmul_vs_openblas", NAN);
}

enum { MLP_ROWS = 64, MLP_DIM = 2048, MLP_LAYERS = 3 };

static gn_tensor mlp(gn_ctx *g, const float *x, const gn_tensor *w, const gn_tensor *b) {
    gn_tensor h = gn_data(g, GN_F32, GN_SHAPE(MLP_ROWS, MLP_DIM), x);
    for (int i = 0; i < MLP_LAYERS; i++) h = gn_relu(gn_linear(h, w[i], b[i]));
    return h;
}

static double mlp_error(const float *x, float *const *w, const float *bias, const float *y) {
    double *h = calloc(2 * MLP_DIM, sizeof *h), worst = 0;
    for (int j = 0; h && j < MLP_DIM; j++) h[j] = (double)x[j];
    for (int l = 0; h && l < MLP_LAYERS; l++) {
        double *next = h + MLP_DIM;
        for (int j = 0; j < MLP_DIM; j++) next[j] = (double)bias[j];
        for (int k = 0; k < MLP_DIM; k++)
            for (int j = 0; j < MLP_DIM; j++) next[j] += h[k] * (double)w[l][k * MLP_DIM + j];
        for (int j = 0; j < MLP_DIM; j++) h[j] = fmax(next[j], 0);
    }
    for (int j = 0; h && j < MLP_DIM; j++)
        if (!(fabs(h[j] - (double)y[j]) <= worst)) worst = fabs(h[j] - (double)y[j]);
    free(h);
    return worst;
}

static void bench_mlp(void) {
    if (!wanted("mlp")) return;
    bool beside = blas_ready();
    float *x = make_floats(MLP_ROWS * MLP_DIM, 1), *bias = make_floats(MLP_DIM, 0.1f),
          *y = make_floats(MLP_ROWS * MLP_DIM, 1), *host[MLP_LAYERS];
    gn_ctx *g = open_or_die("cpu", set.threads);
    gn_tensor w[MLP_LAYERS], b[MLP_LAYERS];
    int runs = repeats(60);
    for (int i = 0; i < MLP_LAYERS; i++) {
        host[i] = make_floats((size_t)MLP_DIM * MLP_DIM, 0.05f);
        w[i] = gn_weight(g, GN_F32, GN_SHAPE(MLP_DIM, MLP_DIM), host[i], "w");
        b[i] = gn_weight(g, GN_F32, GN_SHAPE(MLP_DIM), bias, "b");
    }
    if (beside) blas.set_threads((int)set.threads);
    for (int i = -2; i < runs; i++) {
        double start = ex_now();
        if (beside) blas_run(MLP_ROWS, MLP_DIM, MLP_DIM, x, host[(i + 3) % MLP_LAYERS], y);
        samples_b[i < 0 ? 0 : i] = ex_now() - start;
        poison(y, MLP_ROWS * MLP_DIM);
        start = ex_now();
        read_or_die(mlp(g, x, w, b), y, MLP_ROWS * MLP_DIM * sizeof *y);
        samples_a[i < 0 ? 0 : i] = ex_now() - start;
        gn_step(g);
    }
    double flops = 2e-9 * MLP_ROWS * MLP_DIM * MLP_DIM, seconds = quantile(samples_a, runs, 0.5),
           own = MLP_LAYERS * flops / seconds;
    double other = beside ? flops / quantile(samples_b, runs, 0.5) : NAN, error = mlp_error(x, host, bias, y);
    if (beside) show("mlp_vs_openblas", own / other, false, 0.75, "");
    else keep("mlp_vs_openblas", NAN);
    note("mlp_ms", seconds * 1e3, "ms, three layers");
    note("mlp_gflops", own, "GFLOP/s");
    note("mlp_openblas_gflops", other, "GFLOP/s of one bare product");
    note("mlp_error", error, "largest error of the first row");
    if (!(error < 1e-2)) failed("the MLP computes wrong values");
    gn_close(g);
    free(x);
    free(bias);
    free(y);
    for (int i = 0; i < MLP_LAYERS; i++) free(host[i]);
}

/* ---- attention beside the same said with products and a softmax, whose scores lie in memory ---- */

enum { ATTENTION_HEADS = 8, ATTENTION_T = 1024, ATTENTION_D = 64 };

static gn_tensor attention_parts(gn_tensor q, gn_tensor k, gn_tensor v) {
    return gn_matmul(gn_softmax(gn_mul_c(gn_matmul(q, gn_transpose(k, 2, 3)), 0.125), -1), v);
}

/* Queries 0, 512 and the last one of three heads. */
static double attention_error(const float *q, const float *k, const float *v, const float *y, bool causal) {
    static double s[ATTENTION_T];
    double worst = 0;
    for (int64_t c = 0; c < 9; c++) {
        int64_t h = c / 3 * 3,
                t = c % 3 == 0   ? 0
                    : c % 3 == 1 ? ATTENTION_T / 2
                                 : ATTENTION_T - 1,
                seen = causal ? t + 1 : ATTENTION_T, head = h * ATTENTION_T * ATTENTION_D;
        double sum = 0;
        for (int64_t i = 0; i < seen; i++) {
            s[i] = 0;
            for (int64_t d = 0; d < ATTENTION_D; d++)
                s[i] += (double)q[head + t * ATTENTION_D + d] * (double)k[head + i * ATTENTION_D + d];
            sum += s[i] = exp(s[i] * 0.125);
        }
        for (int64_t d = 0; d < ATTENTION_D; d++) {
            double want = 0;
            for (int64_t i = 0; i < seen; i++) want += s[i] / sum * (double)v[head + i * ATTENTION_D + d];
            double error = fabs(want - (double)y[head + t * ATTENTION_D + d]);
            if (!(error <= worst)) worst = error;
        }
    }
    return worst;
}

static double attention_time(gn_tensor result, float *y, size_t bytes) {
    poison(y, bytes / sizeof *y);
    double start = ex_now();
    read_or_die(result, y, bytes);
    return ex_now() - start;
}

static void bench_attention(void) {
    if (!wanted("attention")) return;
    const size_t n = (size_t)ATTENTION_HEADS * ATTENTION_T * ATTENTION_D, bytes = n * sizeof(float);
    const double flops = 4e-9 * ATTENTION_HEADS * ATTENTION_T * ATTENTION_T * ATTENTION_D;
    float *host[3] = { make_floats(n, 2), make_floats(n, 2), make_floats(n, 1) }, *y = make_floats(n, 1);
    gn_ctx *g = open_or_die("cpu", set.threads);
    gn_attention_desc causal = { .causal = true };
    gn_tensor x[3];
    int runs = repeats(16);
    double error = 0;
    for (int i = 0; i < 3; i++)
        x[i] = gn_weight(g, GN_F32, GN_SHAPE(1, ATTENTION_HEADS, ATTENTION_T, ATTENTION_D), host[i], "x");
    for (int i = -2; i < runs; i++) {
        int at = i < 0 ? 0 : i;
        samples_b[at] = attention_time(attention_parts(x[0], x[1], x[2]), y, bytes);
        samples_c[at] = attention_time(gn_attention(x[0], x[1], x[2], &causal), y, bytes);
        error = fmax(error, attention_error(host[0], host[1], host[2], y, true));
        samples_a[at] =
            attention_time(gn_attention(x[0], x[1], x[2], &(gn_attention_desc){ .causal = false }), y, bytes);
        error = fmax(error, attention_error(host[0], host[1], host[2], y, false));
        gn_step(g);
    }
    show("attention_vs_parts", quantile(samples_b, runs, 0.5) / quantile(samples_a, runs, 0.5), false, 1,
         "times as fast");
    note("attention_gflops", flops / quantile(samples_a, runs, 0.5), "GFLOP/s, 8 heads, 1024 queries and keys of 64");
    note("attention_causal_gflops", 0.5 * flops / quantile(samples_c, runs, 0.5), "GFLOP/s of the half that is seen");
    note("attention_parts_gflops", flops / quantile(samples_b, runs, 0.5), "GFLOP/s of products and softmax");
    note("attention_error", error, "largest error");
    if (!(error < 1e-5)) failed("attention computes wrong values");
    gn_close(g);
    for (int i = 0; i < 3; i++) free(host[i]);
    free(y);
}

/* ---- what gn_desc.batch_invariant costs: a block of GPT-2's width, of one row and of a prompt ---- */

enum { STEADY_DIM = 768, STEADY_HEADS = 12, STEADY_PAST = 512, STEADY_PROMPT = 256 };

static double steady_time(gn_ctx *g, const gn_tensor *w, const gn_tensor *kv, const float *x, int64_t n, float *y) {
    const gn_shape heads = GN_SHAPE(1, n, STEADY_HEADS, STEADY_DIM / STEADY_HEADS);
    gn_attention_desc d = { .causal = true };
    double start = ex_now();
    gn_tensor h = gn_data(g, GN_F32, GN_SHAPE(n, STEADY_DIM), x),
              q = gn_permute(gn_reshape(gn_linear(h, w[0], GN_NONE), heads), GN_AXES(0, 2, 1, 3));
    gn_tensor a = gn_permute(gn_attention(q, kv[0], kv[1], &d), GN_AXES(0, 2, 1, 3));
    h = gn_add(h, gn_linear(gn_reshape(a, GN_SHAPE(n, STEADY_DIM)), w[0], GN_NONE));
    h = gn_linear(gn_gelu_tanh(gn_linear(h, w[1], GN_NONE)), w[2], GN_NONE);
    read_or_die(h, y, (size_t)n * STEADY_DIM * sizeof *y);
    gn_step(g);
    return ex_now() - start;
}

static void bench_batch_invariant(void) {
    if (!wanted("batch_invariant")) return;
    enum { D = STEADY_DIM };
    float *host = make_floats((size_t)4 * D * D, 0.05f), *y = make_floats((size_t)STEADY_PROMPT * D, 1);
    double us[2][2];
    int runs = repeats(16);
    for (int steady = 0; steady < 2; steady++) {
        gn_ctx *g =
            gn_open(&(gn_desc){ .devices = "cpu", .threads = (uint32_t)set.threads, .batch_invariant = steady != 0 });
        if (!ex_check(g, gn_status(g), "batch_invariant")) exit(EX_FAILED);
        gn_tensor w[3] = { gn_weight(g, GN_F32, GN_SHAPE(D, D), host, "square"),
                           gn_weight(g, GN_F32, GN_SHAPE(D, 4 * D), host, "up"),
                           gn_weight(g, GN_F32, GN_SHAPE(4 * D, D), host, "down") },
                  kv[2];
        for (int i = 0; i < 2; i++)
            kv[i] = gn_weight(g, GN_F32, GN_SHAPE(1, STEADY_HEADS, STEADY_PAST, D / STEADY_HEADS), host, "kv");
        for (int k = 0; k < 2; k++) {
            for (int i = -2; i < runs; i++)
                samples_a[i < 0 ? 0 : i] = 1e6 * steady_time(g, w, kv, host, k ? STEADY_PROMPT : 1, y);
            us[steady][k] = quantile(samples_a, runs, 0.5);
        }
        gn_close(g);
    }
    note("batch_invariant_one", us[1][0] / us[0][0], "times as long, a block of 768 by one row past 512");
    note("batch_invariant_prompt", us[1][1] / us[0][1], "times as long, the same of 256 rows");
    free(host);
    free(y);
}

/* ---- one decode step of a model as large as GPT-2 124M ---- */

enum {
    GPT_DIM = 768,
    GPT_LAYERS = 12,
    GPT_HEADS = 12,
    GPT_VOCAB = 50257,
    GPT_CONTEXT = 1024,
    GPT_HEAD = GPT_DIM / GPT_HEADS,
    GPT_WEIGHTS = 12
};

typedef struct gpt {
    gn_ctx *g;
    gn_tensor w[GPT_LAYERS][GPT_WEIGHTS], cache[GPT_LAYERS][2], token_table, place_table, gain, bias;
    gn_quantized q[GPT_LAYERS][GPT_WEIGHTS], table; /* matrices (N,K) of a format, where one is asked for */
    uint8_t *bytes_of_q;
    float *host;
    size_t used, bytes; /* floats taken from host; bytes that one step reads */
} gpt;

static gn_tensor gpt_weight(gpt *m, int64_t rows, int64_t cols, bool all) {
    float *p = m->host + m->used;
    size_t n = (size_t)((rows ? rows : 1) * cols);
    m->used += (n + 15) & ~(size_t)15;
    m->bytes += all ? n * sizeof *p : 0;
    return gn_weight(m->g, GN_F32, rows ? GN_SHAPE(rows, cols) : GN_SHAPE(cols), p, "w");
}

static void gpt_open(gpt *m, gn_ctx *g) {
    static const int shapes[GPT_WEIGHTS][2] = { { 0, 1 }, { 0, 1 }, { 1, 3 }, { 0, 3 }, { 1, 1 }, { 0, 1 },
                                                { 0, 1 }, { 0, 1 }, { 1, 4 }, { 0, 4 }, { 4, 1 }, { 0, 1 } };
    memset(m, 0, sizeof *m);
    m->g = g;
    m->host = make_floats((size_t)140 << 20, 0.04f); /* weights, and room for bench_decode to read as much as caches */
    for (int l = 0; l < GPT_LAYERS; l++) {
        for (int i = 0; i < GPT_WEIGHTS; i++)
            m->w[l][i] = gpt_weight(m, shapes[i][0] * GPT_DIM, shapes[i][1] * GPT_DIM, true);
        for (int i = 0; i < 2; i++)
            m->cache[l][i] = gn_state(g, GN_F32, GN_SHAPE(1, GPT_HEADS, GPT_CONTEXT, GPT_HEAD), NULL, "kv");
    }
    m->token_table = gpt_weight(m, GPT_VOCAB, GPT_DIM, true);
    m->place_table = gpt_weight(m, GPT_CONTEXT, GPT_DIM, false);
    m->gain = gpt_weight(m, 0, GPT_DIM, true);
    m->bias = gpt_weight(m, 0, GPT_DIM, true);
}

/* Matrices of random bytes, groups of 64 columns with a scale of f16. */
static gn_quantized gpt_quantized(gpt *m, gn_quant format, int64_t n, int64_t k, size_t *at) {
    int64_t row = format == GN_QUANT_INT4 ? k / 2 : k;
    uint8_t *data = m->bytes_of_q + *at, *scales = data + n * row;
    *at += ((size_t)(n * row + n * k / 64 * 2) + 63) & ~(size_t)63;
    for (int64_t i = 0; i < n * row; i++) data[i] = (uint8_t)(i * 37 + (i >> 9));
    for (int64_t i = 0; i < n * k / 64; i++) memcpy(scales + 2 * i, &(uint16_t){ 0x1400 }, 2); /* 2^-10 */
    return (gn_quantized){ .format = format,
                           .data = gn_weight(m->g, GN_U8, GN_SHAPE(n, row), data, "q"),
                           .scales = gn_weight(m->g, GN_F16, GN_SHAPE(n, k / 64), scales, "s") };
}

static void gpt_quantise(gpt *m, gn_quant format) {
    static const int shapes[GPT_WEIGHTS][2] = { [2] = { 1, 3 }, [4] = { 1, 1 }, [8] = { 1, 4 }, [10] = { 4, 1 } };
    size_t at = 0;
    m->bytes_of_q = aligned_alloc(64, (size_t)160 << 20);
    if (!m->bytes_of_q) failed("memory");
    for (int l = 0; l < GPT_LAYERS; l++)
        for (int i = 0; i < GPT_WEIGHTS; i++)
            if (shapes[i][0])
                m->q[l][i] = gpt_quantized(m, format, shapes[i][1] * GPT_DIM, shapes[i][0] * GPT_DIM, &at);
    m->table = gpt_quantized(m, format, GPT_VOCAB, GPT_DIM, &at);
}

static gn_tensor gpt_product(const gpt *m, gn_tensor x, int l, int i) {
    return m->q[l][i].format ? gn_linear_quantized(x, m->q[l][i], m->w[l][i + 1])
                             : gn_linear(x, m->w[l][i], m->w[l][i + 1]);
}

static gn_tensor gpt_heads(gn_tensor qkv, int which) {
    return gn_reshape(gn_slice(qkv, 1, which * GPT_DIM, (which + 1) * GPT_DIM, 1), GN_SHAPE(1, GPT_HEADS, 1, GPT_HEAD));
}

static gn_tensor gpt_token(const gpt *m, int32_t token, int32_t position) {
    gn_tensor pos = gn_scalar(m->g, GN_I32, position), id = gn_reshape(gn_scalar(m->g, GN_I32, token), GN_SHAPE(1));
    gn_tensor x = m->table.format ? gn_embedding_quantized(m->table, id, GN_F32) : gn_embedding(m->token_table, id);
    x = gn_add(x, gn_embedding(m->place_table, gn_reshape(pos, GN_SHAPE(1))));
    for (int l = 0; l < GPT_LAYERS; l++) {
        const gn_tensor *w = m->w[l];
        gn_tensor qkv = gpt_product(m, gn_layernorm(x, w[0], w[1], 1e-5), l, 2);
        gn_tensor k = gn_kv_append(m->cache[l][0], gpt_heads(qkv, 1), pos),
                  v = gn_kv_append(m->cache[l][1], gpt_heads(qkv, 2), pos);
        gn_attention_desc d = { .causal = true, .length = gn_add_c(pos, 1) };
        gn_tensor a = gn_reshape(gn_attention(gpt_heads(qkv, 0), k, v, &d), GN_SHAPE(1, GPT_DIM));
        x = gn_add(x, gpt_product(m, a, l, 4));
        gn_tensor h = gn_gelu_tanh(gpt_product(m, gn_layernorm(x, w[6], w[7], 1e-5), l, 8));
        x = gn_add(x, gpt_product(m, h, l, 10));
    }
    x = gn_layernorm(x, m->gain, m->bias, 1e-5);
    x = m->table.format ? gn_linear_quantized(x, m->table, GN_NONE) : gn_matmul(x, gn_transpose(m->token_table, 0, 1));
    return gn_argmax(x, GN_AXES(1), false);
}

static void bench_decode(void) {
    if (!wanted("decode")) return;
    gpt m;
    gn_ctx *g = open_or_die("cpu", set.threads);
    int runs = repeats(24);
    int64_t token = 1;
    gpt_open(&m, g);
    /* a step reads the weights, and of the caches the positions before it */
    size_t bytes = m.bytes + (size_t)(GPT_LAYERS * 2 * GPT_DIM * (512 + runs / 2)) * sizeof *m.host;
    for (int i = -2; i < runs; i++) {
        samples_b[i < 0 ? 0 : i] = in_threads(read_main, NULL, m.host, bytes);
        double start = ex_now();
        read_or_die(gpt_token(&m, (int32_t)token, 512 + i), &token, sizeof token);
        samples_a[i < 0 ? 0 : i] = ex_now() - start;
        gn_step(g);
    }
    double step = quantile(samples_a, runs, 0.5), memory = quantile(samples_b, runs, 0.5);
    show("decode_vs_bandwidth", step / memory, true, 1.15, "");
    note("decode_ms", step * 1e3, "ms a token, past position 512");
    note("decode_weights_ms", memory * 1e3, "ms to read the weights once, and the caches so far");
    note("decode_read_gb_s", 1e-9 * (double)bytes / memory, "GB/s, reading alone");
    gn_close(g);
    free(m.host);
}

/* The same step with all matrices int8 or int4, beside f32 in turn; head and embedding too. */
static void bench_decode_quantised(void) {
    static const struct {
        const char *name, *ms;
        gn_quant format;
        double target;
    } rows[] = { { "decode_int8_vs_f32", "decode_int8_ms", GN_QUANT_INT8, 2.8 },
                 { "decode_int4_vs_f32", "decode_int4_ms", GN_QUANT_INT4, 4 } };
    for (int k = 0; k < 2; k++) {
        if (!wanted(rows[k].name)) continue;
        gpt m;
        gn_ctx *g = open_or_die("cpu", set.threads);
        int runs = repeats(24);
        int64_t token = 1;
        gpt_open(&m, g);
        gpt_quantise(&m, rows[k].format);
        gpt plain = m;
        memset(plain.q, 0, sizeof plain.q);
        plain.table.format = GN_QUANT_NONE;
        for (int i = -4; i < 2 * runs; i++) {
            double start = ex_now();
            read_or_die(gpt_token(i % 2 ? &plain : &m, (int32_t)(token % GPT_VOCAB), 512 + i / 2), &token,
                        sizeof token);
            (i % 2 ? samples_b : samples_a)[i < 0 ? 0 : i / 2] = ex_now() - start;
            gn_step(g);
        }
        show(rows[k].name, quantile(samples_b, runs, 0.5) / quantile(samples_a, runs, 0.5), false, rows[k].target, "x");
        note(rows[k].ms, 1e3 * quantile(samples_a, runs, 0.5), "ms a token, groups of 64, past position 512");
        gn_close(g);
        free(m.host);
        free(m.bytes_of_q);
    }
}

/* ---- two servers, each a process with a core of its own, beside one of them: work that is halved, several steps
   always under way */

enum { PAIR_ROWS = 128, PAIR_SIDE = 256, PAIR_LAYERS = 16, PAIR_DEEP = 4, PAIR_STEPS = 24 };

typedef struct pinned_server {
    pid_t pid;
    char url[512];
} pinned_server;

/* The n-th of the cores that this process may use. */
static int core_at(int n) {
    cpu_set_t cores;
    int core = 0;
    sched_getaffinity(0, sizeof cores, &cores);
    for (; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &cores) && n-- == 0) return core;
    return -1;
}

static int core_count(void) {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/* In a process of its own, forked before there are threads; it ends with the pipe. */
static void pinned_main(int core, int out, int until) {
    ex_place place;
    char byte;
    gn_server_desc d = { .listen = "127.0.0.1:0", .threads = 1 };
    gn_server *s;
    gn_error error;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t)core, &cores);
    memset(&place, 0, sizeof place);
    snprintf(place.folder, sizeof place.folder, "/tmp/genie-XXXXXX");
    d.home = mkdtemp(place.folder);
    if (!d.home || sched_setaffinity(0, sizeof cores, &cores) != 0 || gn_server_open(&d, &s, &error) != GN_OK) _exit(1);
    size_t n = strlen(gn_server_url(s)) + 1;
    if (write(out, gn_server_url(s), n) == (ssize_t)n)
        while (read(until, &byte, 1) < 0 && errno == EINTR) { }
    place.server = s;
    ex_place_close(&place);
    _exit(0);
}

static int pair_ends[2] = { -1, -1 }; /* of the pipe that tells the servers to end */

static bool pinned_open(pinned_server *s, int n) {
    int said[2];
    size_t at = 0;
    ssize_t got = 1;
    memset(s, 0, sizeof *s);
    if (pipe(said) != 0 || (pair_ends[0] < 0 && pipe(pair_ends) != 0)) return false;
    fflush(NULL);
    s->pid = fork();
    if (s->pid == 0) {
        close(said[0]);
        close(pair_ends[1]);
        pinned_main(core_at(n % core_count()), said[1], pair_ends[0]);
    }
    close(said[1]);
    while (s->pid > 0 && at < sizeof s->url - 1 && (got = read(said[0], s->url + at, sizeof s->url - 1 - at)) > 0 &&
           !memchr(s->url + at, 0, (size_t)got))
        at += (size_t)got;
    close(said[0]);
    return s->pid > 0 && got > 0;
}

/* Turns of a plain loop in 0.3 s, in n processes, each with a core of its own: what the host itself gives. 0: that
   failed. */
static double plain_loops(int n) {
    int said[2];
    double sum = 0, turns = 0;
    if (pipe(said) != 0) return 0;
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        if (fork() != 0) continue;
        volatile double x = 1;
        pin(core_at(i % core_count()));
        for (double end = ex_now() + 0.3; ex_now() < end; turns++)
            for (int k = 0; k < 100000; k++) x = x * 1.0000001;
        _exit(write(said[1], &turns, sizeof turns) != sizeof turns);
    }
    close(said[1]);
    for (; read(said[0], &turns, sizeof turns) == sizeof turns; sum += turns) { }
    close(said[0]);
    while (wait(NULL) > 0) { }
    return sum;
}

typedef struct pair_run {
    gn_ctx *g;
    gn_tensor w[2];
    int device[2];
    uint64_t tickets[PAIR_DEEP];
} pair_run;
static float pair_x[PAIR_ROWS * PAIR_SIDE], pair_w[PAIR_SIDE * PAIR_SIDE],
    pair_out[2][PAIR_DEEP][PAIR_ROWS * PAIR_SIDE];

static void pair_ok(gn_ctx *g, gn_result r) {
    if (!ex_check(g, r, "devices")) exit(EX_FAILED);
}

static gn_tensor pair_half(pair_run *p, int which, gn_tensor x) {
    gn_on(p->g, p->device[which] ? "1" : "0");
    for (int i = 0; i < PAIR_LAYERS; i++) x = gn_relu(gn_matmul(x, p->w[which]));
    return x;
}

static void pair_step(pair_run *p, bool stages, int step) {
    gn_tensor x = gn_data(p->g, GN_F32, GN_SHAPE(PAIR_ROWS, PAIR_SIDE), pair_x), a = pair_half(p, 0, x),
              b = pair_half(p, 1, stages ? a : x), y[2] = { b, a };
    void *to[2] = { pair_out[0][step % PAIR_DEEP], pair_out[1][step % PAIR_DEEP] };
    size_t bytes[2] = { sizeof pair_out[0][0], sizeof pair_out[0][0] };
    pair_ok(p->g, gn_read_later(y, stages ? 1 : 2, to, bytes, &p->tickets[step % PAIR_DEEP]));
    pair_ok(p->g, gn_step(p->g));
}

/* Seconds a step. */
static double pair_time(pair_run *p, bool stages, int steps) {
    double start = 0;
    for (int i = -1; i < steps + PAIR_DEEP; i++) {
        if (i == 0) start = ex_now();
        if (i >= PAIR_DEEP) pair_ok(p->g, gn_wait(p->g, p->tickets[(i - PAIR_DEEP) % PAIR_DEEP]));
        if (i < steps) pair_step(p, stages, i < 0 ? 0 : i);
        if (i < 0) pair_ok(p->g, gn_sync(p->g));
    }
    return (ex_now() - start) / steps;
}

/* `counts`: the host gives two processes the time of two. */
static void pair_row(gn_ctx *g, const gn_tensor w[2], bool stages, bool counts) {
    int rounds = repeats(5);
    double best = 0, cpu = 0, wall = 0;
    char name[48];
    for (int r = 0; r < rounds; r++) {
        for (int two = 0; two < 2; two++) {
            pair_run p = { g, { w[0], w[1] }, { 0, two }, { 0 } };
            double begin = cpu_now(), from = ex_now(), took = pair_time(&p, stages, PAIR_STEPS);
            if (two) {
                cpu += cpu_now() - begin;
                wall += ex_now() - from;
            }
            (two ? samples_b : samples_a)[r] = took;
        }
        samples_c[r] = samples_a[r] / samples_b[r];
        best = fmax(best, samples_c[r]);
    }
    double median = quantile(samples_c, rounds, 0.5);
    snprintf(name, sizeof name, "%s_two_over_one", stages ? "stages" : "towers");
    if (counts) show(name, median, false, 1.7, "times");
    else note(name, median, "times as fast on two servers");
    if (counts && !(best >= 1.7)) failed("two servers with a core each are not 1.7 times as fast as one");
    snprintf(name, sizeof name, "%s_best", stages ? "stages" : "towers");
    note(name, best, "times, in the best of the rounds");
    snprintf(name, sizeof name, "%s_one_ms", stages ? "stages" : "towers");
    note(name, 1e3 * quantile(samples_a, rounds, 0.5), "ms a step on one server");
    snprintf(name, sizeof name, "%s_client_share", stages ? "stages" : "towers");
    note(name, cpu / wall, "of a core is what the client takes");
}

/* First of all rows, for it forks. */
static void bench_devices(void) {
    pinned_server s[2];
    char both[1100];
    if (!wanted("devices")) return;
    double one = plain_loops(1), host = one > 0 ? plain_loops(2) / one : 0;
    bool counts = core_count() >= 3 && host >= 1.9;
    note("devices_host", host,
         counts ? "times a plain loop's work in two processes"
                : "times a plain loop's work in two processes: 3 cores and 1.9 are needed for what follows to count");
    if (!pinned_open(&s[0], 0) || !pinned_open(&s[1], 1)) {
        failed("no servers for devices");
        return;
    }
    ex_place home = { 0 };
    snprintf(home.folder, sizeof home.folder, "/tmp/genie-XXXXXX");
    home.home = mkdtemp(home.folder);
    snprintf(both, sizeof both, "%s,%s", s[0].url, s[1].url);
    if (core_count() >= 3) pin(core_at(2));
    gn_ctx *g = gn_open(&(gn_desc){ .devices = both, .threads = 1, .home = home.home, .keep_placement = true });
    if (ex_check(g, gn_status(g), "devices")) {
        gn_tensor w[2];
        for (int i = 0; i < PAIR_ROWS * PAIR_SIDE; i++) pair_x[i] = draw();
        for (int i = 0; i < PAIR_SIDE * PAIR_SIDE; i++) pair_w[i] = draw() / 8;
        for (int i = 0; i < 2; i++)
            w[i] = gn_weight(g, GN_F32, GN_SHAPE(PAIR_SIDE, PAIR_SIDE), pair_w, i ? "second" : "first");
        pair_row(g, w, false, counts);
        pair_row(g, w, true, counts);
    } else failures++;
    gn_close(g);
    pin(-1);
    close(pair_ends[1]);
    for (int i = 0; i < 2; i++) waitpid(s[i].pid, NULL, 0);
    ex_place_close(&home);
}

#include "ops.h" /* each op beside its ceiling and beside PyTorch */
#include "conv_rows.h"

/* ---- all of it ---- */

static void print_json(void) {
    ex_json j = { 0 };
    gn_device_info d;
    gn_ctx *g = open_or_die("cpu", set.threads);
    gn_get_device(g, &d);
    ex_json_text(&j, "device", d.identity);
    ex_json_text(&j, "openblas_core", blas.core);
    ex_json_number(&j, "threads", (double)set.threads);
    for (int i = 0; i < n_figures; i++) ex_json_number(&j, figures[i].name, figures[i].value);
    ex_json_end(&j);
    gn_close(g);
}

int main(int argc, char **argv) {
    const char *keep_path = NULL, *check_path = NULL;
    const ex_option options[] = {
        { "only", EX_TEXT, &set.only, "NAME", "only rows whose name contains NAME", 0, 0 },
        { "threads", EX_INT, &set.threads, "N", "threads of the rows that do not say (2)", 1, 64 },
        { "quick", EX_FLAG, &set.quick, NULL, "a quarter of the repetitions", 0, 0 },
        { "once", EX_FLAG, &set.once, NULL, "each row once: shows that it works, not how fast", 0, 0 },
        { "keep", EX_TEXT, &keep_path, "FILE", "rows ops_: writes their shares of their ceilings", 0, 0 },
        { "check", EX_TEXT, &check_path, "FILE", "rows ops_: none may fall by a third below that table", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "the last line is one JSON object", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "Measures the core and the CPU executor.", options);
    bench_devices();
    bench_node_build();
    bench_plan();
    bench_tiny();
    bench_traced();
    bench_step_client();
    bench_step_recorded();
    bench_round_trip();
    bench_upload("upload", false);
    bench_upload("upload_noise", true);
    bench_download();
    bench_fused();
    bench_transcendental();
    bench_single();
    bench_reduce();
    bench_matmul();
    bench_mlp();
    bench_attention();
    bench_batch_invariant();
    bench_decode();
    bench_decode_quantised();
    bench_convs();
    bench_ops(keep_path, check_path);
    if (set.json) print_json();
    return failures ? EX_FAILED : EX_OK;
}
