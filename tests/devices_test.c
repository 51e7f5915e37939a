/* Contexts over several devices: this CPU and one or two servers in this process. Whatever is placed where, results are
 * those of one device, bit for bit; what fails is told with its cause, and the rest lives.
 *
 * Tier: quick address thread */
#include <stdbool.h>
#include <stdlib.h>

/* Allocations of the program's thread fail from the n-th on, or only the n-th. */
static __thread bool may_fail;
static long fail_at = -1, fail_count;
static bool fail_for_ever;

static bool must_fail(void) {
    long n = may_fail && fail_at >= 0 ? fail_count++ : -1;
    return n >= 0 && (fail_for_ever ? n >= fail_at : n == fail_at);
}

/* Blocks of about so many bytes are counted, whoever asks for them; 0: none are. */
static size_t watched;
static long watched_n;

static size_t noted(size_t n) {
    size_t at = __atomic_load_n(&watched, __ATOMIC_RELAXED);
    if (at && n >= at && n < at + 64) __atomic_add_fetch(&watched_n, 1, __ATOMIC_RELAXED);
    return n;
}

#define GN_MALLOC(n) (must_fail() ? NULL : malloc(noted(n)))
#define GN_REALLOC(p, n) (must_fail() ? NULL : realloc(p, n))
#define GN_FREE(p) free(p)
#define GENIE_EXT
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"
#include "loopback.h"

/* ---- a cluster: this CPU and servers over socketpairs ---- */

enum { SERVERS = 2 };
static gn_server *servers[SERVERS];
static const char *const server_names[SERVERS] = { "first", "second" };
static char last_log[512];

static void note_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    (void)level;
    snprintf(last_log, sizeof last_log, "%s", text);
}

static gn_server *open_server(uint64_t memory) {
    gn_server *s = NULL;
    gn_error error;
    gn_server_desc desc = { .listen = "none", .devices = "cpu", .threads = 1, .memory_limit = memory };
    if (gn_server_open(&desc, &s, &error) != GN_OK) {
        printf("a server does not open: %s\n0 passed, 1 failed, 0 skipped\n", error.text);
        exit(1);
    }
    return s;
}

static gn_transport connect_to(gn_server *s, const char *name) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        gn_server_attach(s, loopback_transport(ends[0]), "test") != GN_OK)
        exit(2);
    return loopback_transport_to(ends[1], name);
}

/* cpu, then n servers. */
static gn_ctx *open_cluster(const char *local, int n) {
    static const char *const cpu[SERVERS] = { "cpu", "cpu" };
    gn_transport t[SERVERS];
    for (int i = 0; i < n; i++) {
        if (!servers[i]) servers[i] = open_server(0);
        t[i] = connect_to(servers[i], server_names[i]);
    }
    gn_desc desc = { .devices = local, .threads = 1, .deadline_ms = 20000, .log = note_log };
    return gn_open_transports(&desc, t, cpu, n);
}

static void close_servers(void) {
    for (int i = 0; i < SERVERS; i++) {
        gn_server_close(servers[i]);
        servers[i] = NULL;
    }
}

static gn_ctx *open_cpu(void) { return gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 }); }

/* The nodes from here on run on a random device, or where the scheduler wants. On one device: nothing. */
static void anywhere(gn_ctx *g) {
    int n = gn_device_count(g), device = (int)test_random_int(-1, n - 1);
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    if (n > 1) gn_on(g, device < 0 ? NULL : index);
}

static void on(gn_ctx *g, int device) {
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    CHECK_RESULT(gn_on(g, index), GN_OK);
}

static gn_stats stats_of(gn_ctx *g) {
    gn_stats s;
    gn_get_stats(g, &s);
    return s;
}

static bool same(const char *what, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
            test_fail(__FILE__, __LINE__, "%s[%zu] is %.9g on several devices, %.9g on one", what, i, (double)a[i],
                      (double)b[i]);
            return false;
        }
    }
    return true;
}

static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)test_random_real(-1, 1);
}

/* ---- training ---- */

enum { IN = 12, HIDDEN = 20, OUT = 5, BATCH = 8 };

typedef struct mlp {
    gn_tensor w[4], m[4], v[4];
} mlp;
typedef struct mlp_start {
    float w1[IN * HIDDEN], b1[HIDDEN], w2[HIDDEN * OUT], b2[OUT];
} mlp_start;

static mlp mlp_make(gn_ctx *g, const mlp_start *s) {
    const void *first[4] = { s->w1, s->b1, s->w2, s->b2 };
    const gn_shape shapes[4] = { GN_SHAPE(IN, HIDDEN), GN_SHAPE(HIDDEN), GN_SHAPE(HIDDEN, OUT), GN_SHAPE(OUT) };
    static const char *const names[4] = { "w1", "b1", "w2", "b2" };
    mlp n;
    for (int i = 0; i < 4; i++) {
        n.w[i] = gn_state(g, GN_F32, shapes[i], first[i], names[i]);
        n.m[i] = gn_state(g, GN_F32, shapes[i], NULL, "m");
        n.v[i] = gn_state(g, GN_F32, shapes[i], NULL, "v");
    }
    return n;
}

static gn_result mlp_step(gn_ctx *g, mlp *n, const float *x, const int32_t *labels, double step, float *out_loss) {
    gn_tensor grads[4];
    anywhere(g);
    gn_tensor h = gn_linear(gn_data(g, GN_F32, GN_SHAPE(BATCH, IN), x), n->w[0], n->w[1]);
    anywhere(g);
    h = gn_gelu_tanh(h);
    anywhere(g);
    gn_tensor y = gn_linear(h, n->w[2], n->w[3]);
    anywhere(g);
    gn_tensor loss = gn_cross_entropy(y, gn_data(g, GN_I32, GN_SHAPE(BATCH), labels));
    anywhere(g);
    gn_result r = gn_grad(loss, n->w, 4, grads);
    gn_adamw_desc d = { .lr = gn_scalar(g, GN_F32, 1e-2), .step = gn_scalar(g, GN_F32, step), .weight_decay = 0.01 };
    anywhere(g);
    if (r == GN_OK) r = gn_adamw(&d, n->w, grads, n->m, n->v, 4);
    if (r == GN_OK) r = gn_read(loss, out_loss, sizeof *out_loss);
    gn_step(g);
    return r;
}

static void train(int n_servers, int steps) {
    gn_ctx *g[2] = { open_cluster("cpu", n_servers), open_cpu() };
    mlp_start start;
    float x[BATCH * IN], loss[2] = { 0, 0 }, w[2][HIDDEN * OUT];
    int32_t labels[BATCH];
    fill((float *)&start, sizeof start / sizeof(float));
    REQUIRE(CHECK_RESULT(gn_status(g[0]), GN_OK));
    mlp n[2] = { mlp_make(g[0], &start), mlp_make(g[1], &start) };
    for (int step = 1; step <= steps; step++) {
        fill(x, BATCH * IN);
        for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)test_random_int(0, OUT - 1);
        for (int k = 0; k < 2; k++) {
            gn_result r = mlp_step(g[k], &n[k], x, labels, step, &loss[k]);
            if (!CHECK_RESULT(r, GN_OK)) {
                printf("  %s\n", gn_last_error(g[k])->text);
                goto end;
            }
        }
        if (!same("loss", &loss[0], &loss[1], 1)) break;
    }
    for (int k = 0; k < 2; k++) CHECK_RESULT(gn_read(n[k].w[2], w[k], sizeof w[k]), GN_OK);
    same("w2", w[0], w[1], HIDDEN * OUT);
end:
    gn_close(g[0]);
    gn_close(g[1]);
}

TEST(training_placed_anywhere_equals_one_device) {
    for (int i = 0; i < 6; i++) train(1 + i % SERVERS, 6);
}

/* ---- decoding ---- */

enum { WIDTH = 16, HEADS = 2, CONTEXT = 12, VOCABULARY = 11, LAYERS = 2 };

typedef struct layer {
    gn_tensor wq, wk, wv, wo, up, down, k, v;
} layer;
typedef struct gpt {
    gn_tensor table;
    layer layers[LAYERS];
} gpt;
typedef struct gpt_start {
    float table[VOCABULARY * WIDTH], w[LAYERS][4][WIDTH * WIDTH], up[LAYERS][WIDTH * 2 * WIDTH],
        down[LAYERS][WIDTH * 2 * WIDTH];
} gpt_start;

static gpt gpt_make(gn_ctx *g, const gpt_start *s) {
    gn_shape square = GN_SHAPE(WIDTH, WIDTH), cache = GN_SHAPE(1, HEADS, CONTEXT, WIDTH / HEADS);
    gpt n = { .table = gn_weight(g, GN_F32, GN_SHAPE(VOCABULARY, WIDTH), s->table, "table") };
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &n.layers[i];
        gn_tensor *const w[4] = { &l->wq, &l->wk, &l->wv, &l->wo };
        for (int k = 0; k < 4; k++) *w[k] = gn_weight(g, GN_F32, square, s->w[i][k], "w");
        l->up = gn_weight(g, GN_F32, GN_SHAPE(WIDTH, 2 * WIDTH), s->up[i], "up");
        l->down = gn_weight(g, GN_F32, GN_SHAPE(2 * WIDTH, WIDTH), s->down[i], "down");
        l->k = gn_state(g, GN_F32, cache, NULL, "k");
        l->v = gn_state(g, GN_F32, cache, NULL, "v");
    }
    return n;
}

static gn_tensor heads(gn_tensor x, int64_t rows) {
    return gn_permute(gn_reshape(x, GN_SHAPE(1, rows, HEADS, WIDTH / HEADS)), GN_AXES(0, 2, 1, 3));
}

static gn_tensor block(gn_ctx *g, layer *l, gn_tensor x, int64_t rows, gn_tensor pos, gn_tensor length) {
    anywhere(g);
    gn_tensor h = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
    gn_tensor q = heads(gn_matmul(h, l->wq), rows);
    anywhere(g);
    gn_tensor k = gn_kv_append(l->k, heads(gn_matmul(h, l->wk), rows), pos);
    gn_tensor v = gn_kv_append(l->v, heads(gn_matmul(h, l->wv), rows), pos);
    anywhere(g);
    gn_attention_desc d = { .causal = true, .length = length };
    gn_tensor a = gn_attention(q, k, v, &d);
    a = gn_reshape(gn_permute(a, GN_AXES(0, 2, 1, 3)), GN_SHAPE(rows, WIDTH));
    anywhere(g);
    x = gn_add(x, gn_matmul(a, l->wo));
    anywhere(g);
    return gn_add(x, gn_matmul(gn_gelu(gn_matmul(gn_layernorm(x, GN_NONE, GN_NONE, 1e-5), l->up)), l->down));
}

static gn_result gpt_step(gn_ctx *g, gpt *n, const int32_t *ids, int64_t rows, int64_t position, float *out_logits) {
    anywhere(g);
    gn_tensor x = gn_embedding(n->table, gn_data(g, GN_I32, GN_SHAPE(rows), ids));
    gn_tensor pos = gn_scalar(g, GN_I64, (double)position), length = gn_scalar(g, GN_I64, (double)(position + rows));
    for (int i = 0; i < LAYERS; i++) x = block(g, &n->layers[i], x, rows, pos, length);
    anywhere(g);
    gn_tensor last = gn_slice(x, 0, rows - 1, rows, 1);
    gn_tensor logits = gn_matmul(last, gn_transpose(n->table, 0, 1));
    gn_result r = gn_read(logits, out_logits, VOCABULARY * sizeof *out_logits);
    gn_step(g);
    return r;
}

static void decode(int n_servers) {
    gn_ctx *g[2] = { open_cluster("cpu", n_servers), open_cpu() };
    gpt_start start;
    int32_t ids[4] = { 1, 5, 3, 2 };
    float logits[2][VOCABULARY];
    fill((float *)&start, sizeof start / sizeof(float));
    REQUIRE(CHECK_RESULT(gn_status(g[0]), GN_OK));
    gpt n[2] = { gpt_make(g[0], &start), gpt_make(g[1], &start) };
    for (int64_t at = 0, rows = 4; at < CONTEXT - 1; at += rows, rows = 1) {
        int best = 0;
        for (int k = 0; k < 2; k++) {
            if (!CHECK_RESULT(gpt_step(g[k], &n[k], ids, rows, at, logits[k]), GN_OK)) {
                printf("  %s\n", gn_last_error(g[k])->text);
                goto end;
            }
        }
        if (!same("logits", logits[0], logits[1], VOCABULARY)) break;
        for (int i = 1; i < VOCABULARY; i++) best = logits[0][i] > logits[0][best] ? i : best;
        ids[0] = best;
    }
end:
    gn_close(g[0]);
    gn_close(g[1]);
}

TEST(decoding_placed_anywhere_equals_one_device) {
    for (int i = 0; i < 6; i++) decode(1 + i % SERVERS);
}

/* ---- random graphs: branches, kept values, states read and written, old versions read late ---- */

enum { POOL = 24, SIDE = 7 };

typedef struct walk {
    gn_tensor pool[POOL];
    gn_tensor states[3];
    int n;
} walk;

static gn_tensor walk_op(gn_tensor a, gn_tensor b, int64_t which) {
    switch (which) {
    case 0: return gn_add(a, b);
    case 1: return gn_mul(a, b);
    case 2: return gn_matmul(a, b);
    case 3: return gn_tanh(a);
    case 4: return gn_softmax(a, -1);
    case 5: return gn_sub(a, gn_transpose(b, 0, 1));
    case 6: return gn_maximum(a, gn_mean(b, GN_AXES(0), true));
    default: return gn_mul_c(a, 0.5);
    }
}

/* The same moves on every context; only the places differ. */
static void walk_grow(gn_ctx *g, walk *w, uint64_t seed, const float *data) {
    uint64_t places = test__.stream;
    test__.stream = seed;
    w->n = 0;
    w->pool[w->n++] = gn_data(g, GN_F32, GN_SHAPE(SIDE, SIDE), data);
    for (int i = 0; i < 3; i++) w->pool[w->n++] = w->states[i];
    while (w->n < POOL) {
        int a = (int)test_random_int(0, w->n - 1), b = (int)test_random_int(0, w->n - 1);
        int64_t which = test_random_int(0, 7);
        uint64_t moves = test__.stream;
        test__.stream = places;
        anywhere(g);
        places = test__.stream;
        test__.stream = moves;
        w->pool[w->n++] = walk_op(w->pool[a], w->pool[b], which);
    }
    test__.stream = places;
}

/* Assigns states, realises some nodes, reads some. */
static gn_result walk_use(walk *w, uint64_t seed, float (*out)[SIDE * SIDE]) {
    uint64_t saved = test__.stream;
    gn_tensor reads[6], some[3];
    void *to[6];
    size_t bytes[6];
    test__.stream = seed ^ 0x5eed;
    for (int i = 0; i < 3; i++) some[i] = w->pool[test_random_int(4, POOL - 1)];
    gn_result r = test_random_int(0, 1) ? gn_realize(some, 3) : GN_OK;
    for (int i = 0; i < 3; i++)
        if (test_random_int(0, 1)) gn_assign(w->states[i], gn_tanh(w->pool[test_random_int(4, POOL - 1)]));
    for (int i = 0; i < 6; i++) {
        reads[i] = i < 2 ? w->pool[test_random_int(0, 3)] : w->pool[test_random_int(4, POOL - 1)];
        to[i] = out[i];
        bytes[i] = sizeof out[i];
    }
    if (r == GN_OK) r = gn_read_many(reads, 6, to, bytes);
    test__.stream = saved;
    return r;
}

static gn_stats random_graphs(const char *local, int n_servers, int steps) {
    gn_ctx *g[2] = { open_cluster(local, n_servers), open_cpu() };
    static float out[2][6][SIDE * SIDE];
    float data[SIDE * SIDE], first[SIDE * SIDE];
    walk w[2];
    fill(first, SIDE * SIDE);
    CHECK_RESULT(gn_status(g[0]), GN_OK);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) w[k].states[i] = gn_state(g[k], GN_F32, GN_SHAPE(SIDE, SIDE), first, "s");
    for (int step = 0; step < steps; step++) {
        uint64_t seed = test_random();
        bool ok = true;
        fill(data, SIDE * SIDE);
        for (int k = 0; k < 2 && ok; k++) {
            walk_grow(g[k], &w[k], seed, data);
            for (int again = 0; again < 2 && ok; again++) {
                gn_result r = walk_use(&w[k], seed + (uint64_t)again, out[k]);
                ok = CHECK_RESULT(r, again ? r == GN_SUPERSEDED ? GN_SUPERSEDED : GN_OK : GN_OK);
                if (!ok) printf("  context %d: %s\n", k, gn_last_error(g[k])->text);
            }
            gn_step(g[k]);
        }
        if (!ok || !same("values", out[0][0], out[1][0], 6 * SIDE * SIDE)) break;
    }
    gn_stats several = stats_of(g[0]);
    CHECK(several.transfers > 0);
    CHECK_INT(stats_of(g[1]).transfers, 0);
    gn_close(g[0]);
    gn_close(g[1]);
    return several;
}

TEST(random_graphs_placed_anywhere_equal_one_device) {
    for (int i = 0; i < 8; i++) CHECK_INT(random_graphs("cpu", 1 + i % SERVERS, 12).transfers_direct, 0);
}

/* ---- names ---- */

TEST(devices_are_counted_and_named) {
    gn_ctx *g = open_cluster("cpu", 2);
    gn_device_info d;
    gn_stats s;
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK_INT(gn_device_count(g), 3);
    CHECK_RESULT(gn_get_device(g, &d), GN_OK);
    CHECK_STR(d.name, "cpu:0");
    CHECK_RESULT(gn_get_device_at(g, 2, &d), GN_OK);
    CHECK_STR(d.name, "second/cpu:0");
    CHECK(d.remote);
    CHECK_RESULT(gn_get_device_at(g, 3, &d), GN_NO_DEVICE);
    CHECK_RESULT(gn_get_device_at(g, -1, &d), GN_NO_DEVICE);
    CHECK_RESULT(gn_get_device_stats(g, 3, &s), GN_NO_DEVICE);
    gn_close(g);
    CHECK_INT(gn_device_count(g), 0);
    g = open_cpu();
    CHECK_INT(gn_device_count(g), 1);
    CHECK_RESULT(gn_get_device_at(g, 0, &d), GN_OK);
    CHECK_STR(d.name, "cpu:0");
    gn_close(g);
}

TEST(a_device_named_twice_is_refused) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu, cpu:0" });
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    CHECK_STR(gn_last_error(g)->text, "device cpu:0 is named twice");
    gn_close(g);
    g = gn_open(&(gn_desc){ .devices = "cpu,nothing:0" }); /* a device that is not there is told as it is alone */
    CHECK(gn_status(g) != GN_OK);
    gn_close(g);
    g = gn_open(&(gn_desc){ .devices = "cpu", .policy = GN_POLICY__COUNT });
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    gn_close(g);
}

/* Where a weight, a state and a kept value are; and that each is where the program said. */
TEST(describe_names_the_device_of_each_value) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[4] = { 1, 2, 3, 4 };
    float out[4];
    gn_info info;
    on(g, 1);
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(4), x, "w"), s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s");
    CHECK_RESULT(gn_describe(w, &info), GN_OK);
    CHECK_STR(info.device, "");
    gn_tensor a = gn_add(w, s);
    on(g, 2);
    gn_tensor b = gn_mul(a, a), both[2] = { a, b };
    CHECK_RESULT(gn_realize(both, 2), GN_OK);
    CHECK_RESULT(gn_describe(w, &info), GN_OK);
    CHECK_STR(info.device, "first/cpu:0");
    CHECK_RESULT(gn_describe(s, &info), GN_OK);
    CHECK_STR(info.device, "first/cpu:0");
    CHECK_RESULT(gn_describe(a, &info), GN_OK);
    CHECK_STR(info.device, "first/cpu:0");
    CHECK_RESULT(gn_describe(b, &info), GN_OK);
    CHECK_STR(info.device, "second/cpu:0");
    on(g, 0);
    CHECK_RESULT(gn_read(gn_sub(b, a), out, sizeof out), GN_OK); /* both are fetched */
    CHECK_NEAR(out[3], 8.0 * 8 - 8, 0);
    gn_stats cpu, first, second;
    CHECK_RESULT(gn_get_device_stats(g, 0, &cpu), GN_OK);
    CHECK_RESULT(gn_get_device_stats(g, 1, &first), GN_OK);
    CHECK_RESULT(gn_get_device_stats(g, 2, &second), GN_OK);
    CHECK_INT(second.transfers, 1); /* a */
    CHECK_INT(second.transfer_bytes, sizeof x);
    CHECK_INT(cpu.transfers, 2); /* a and b */
    CHECK_INT(first.transfers, 0);
    CHECK_INT(stats_of(g).transfers, 3);
    CHECK_INT(first.weight_bytes_sent + first.weight_bytes_known, sizeof x);
    CHECK_INT(second.weight_bytes_sent + second.weight_bytes_known, 0);
    gn_close(g);
}

/* ---- states: one home, old versions, a state that moves ---- */

TEST(a_state_keeps_its_home_and_its_old_value_until_all_have_read_it) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[3] = { 1, 2, 3 };
    float out[3][3];
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(3), x, "s");
    gn_tensor next = gn_assign(s, gn_add(s, gn_like(s, 10))); /* written by the first piece of its device */
    on(g, 2);
    gn_tensor away = gn_mul(next, gn_like(next, 2));
    on(g, 1);
    gn_tensor late = gn_add(away, s); /* a later piece of that device reads the old value */
    on(g, 0);
    gn_tensor other = gn_sub(s, away), reads[3] = { late, other, next };
    void *to[3] = { out[0], out[1], out[2] };
    CHECK_RESULT(gn_read_many(reads, 3, to, (size_t[3]){ 12, 12, 12 }), GN_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(out[0][i], 2 * (x[i] + 10) + x[i], 0);
        CHECK_NEAR(out[1][i], x[i] - 2 * (x[i] + 10), 0);
        CHECK_NEAR(out[2][i], x[i] + 10, 0);
    }
    gn_step(g);
    on(g, 2);
    CHECK_RESULT(gn_read(gn_mul_c(s, 1), out[0], 12), GN_OK);
    CHECK_NEAR(out[0][2], 13, 0);
    CHECK_RESULT(gn_release(s), GN_OK);
    CHECK_RESULT(gn_read(s, out[0], 12), GN_STALE_HANDLE);
    gn_close(g);
}

/* ---- errors ---- */

TEST(an_error_of_a_device_has_op_label_and_place) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float table[6] = { 0, 1, 2, 3, 4, 5 };
    const int32_t bad[2] = { 1, 3 }, good[2] = { 1, 2 };
    float out[4];
    on(g, 1);
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(3, 2), table, "table");
    for (int round = 0; round < 3; round++) {
        on(g, 2);
        gn_tensor x = gn_neg(gn_data(g, GN_I32, GN_SHAPE(2), round == 1 ? bad : good));
        on(g, 1);
        gn_tensor e = gn_label(gn_embedding(w, gn_neg(x)), "picked");
        int line = __LINE__ - 1;
        on(g, 0);
        gn_result r = gn_read(gn_mul_c(e, 2), out, sizeof out);
        CHECK_RESULT(r, round == 1 ? GN_INDEX_OUT_OF_RANGE : GN_OK);
        if (round == 1) {
            CHECK_STR(gn_last_error(g)->op, "embedding");
            CHECK_STR(gn_last_error(g)->label, "picked");
            CHECK_INT(gn_last_error(g)->line, line);
        } else {
            CHECK_NEAR(out[3], 10, 0);
        }
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    gn_close(g);
}

/* A step writes a state on one server and then fails on another: the state is failed, the rest lives. */
TEST(a_state_written_by_a_step_that_fails_elsewhere_is_failed) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[2] = { 1, 2 };
    const int32_t bad[1] = { 7 };
    float out[2];
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s"), t = gn_state(g, GN_F32, GN_SHAPE(2), x, "t");
    on(g, 2);
    gn_tensor u = gn_state(g, GN_F32, GN_SHAPE(2), x, "u");
    on(g, 1);
    gn_tensor s2 = gn_assign(s, gn_mul_c(s, 3));
    on(g, 2);
    gn_tensor picked = gn_index_select(s2, 0, gn_data(g, GN_I32, GN_SHAPE(1), bad));
    gn_assign(u, gn_add(u, gn_expand(picked, GN_SHAPE(2))));
    CHECK_RESULT(gn_step(g), GN_OK); /* nobody waits */
    CHECK_RESULT(gn_sync(g), GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_sync(g), GN_OK);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_STATE_FAILED);
    CHECK_STR(gn_last_error(g)->label, "s");
    CHECK_RESULT(gn_assign(s, s).ctx == g ? gn_step(g) : GN_OK, GN_STATE_FAILED);
    CHECK_RESULT(gn_read(t, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 2, 0);
    CHECK_RESULT(gn_read(u, out, sizeof out), GN_OK); /* its own step did not write it */
    CHECK_NEAR(out[1], 2, 0);
    CHECK_RESULT(gn_release(s), GN_OK);
    s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    gn_close(g);
}

/* Where all updates of a step are on the device that fails, none happens. */
TEST(a_state_of_the_device_that_fails_keeps_its_value) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[2] = { 1, 2 };
    const int32_t bad[1] = { 7 };
    float out[2];
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
    on(g, 2);
    gn_tensor y = gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(2), x), 5);
    on(g, 1);
    gn_tensor picked = gn_index_select(y, 0, gn_data(g, GN_I32, GN_SHAPE(1), bad));
    gn_assign(s, gn_add(s, gn_expand(picked, GN_SHAPE(2))));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_sync(g), GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 2, 0);
    gn_close(g);
}

TEST(a_lost_device_is_named_and_the_rest_lives) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[2] = { 1, 2 };
    float out[2];
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
    CHECK_RESULT(gn_read(gn_mul_c(s, 2), out, sizeof out), GN_OK);
    gn_step(g);
    gn_server_close(servers[0]);
    servers[0] = NULL;
    on(g, 1);
    CHECK_RESULT(gn_read(gn_mul_c(s, 2), out, sizeof out), GN_DEVICE_LOST);
    CHECK(strstr(gn_last_error(g)->text, "first/cpu:0") != NULL);
    CHECK_STR(gn_last_error(g)->op, "");
    on(g, 2);
    CHECK_RESULT(gn_read(gn_mul_c(s, 2), out, sizeof out), GN_DEVICE_LOST); /* its value is gone with it */
    CHECK_STR(gn_last_error(g)->label, "s");
    if (!CHECK(strstr(gn_last_error(g)->text, "this state lived on first/cpu:0, which is lost") != NULL))
        printf("  %s\n", gn_last_error(g)->text);
    on(g, 1);
    CHECK_RESULT(gn_read(gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(2), x), 4), out, sizeof out), GN_DEVICE_LOST);
    gn_on(g, NULL);
    CHECK_RESULT(gn_read(gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(2), x), 4), out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 8, 0);
    on(g, 2);
    gn_tensor t = gn_state(g, GN_F32, GN_SHAPE(2), x, "t");
    CHECK_RESULT(gn_read(gn_add(t, t), out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 4, 0);
    CHECK_RESULT(gn_release(s), GN_OK);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_close(g);
}

/* A server that goes in the middle of a training: the step fails with its name, and nothing hangs. */
TEST(a_server_that_closes_mid_step_is_an_error) {
    for (int when = 1; when < 4; when++) {
        gn_ctx *g = open_cluster("cpu", 2);
        mlp_start start;
        float x[BATCH * IN], loss;
        const int32_t labels[BATCH] = { 0, 1, 2, 3, 4, 0, 1, 2 };
        fill((float *)&start, sizeof start / sizeof(float));
        fill(x, BATCH * IN);
        mlp n = mlp_make(g, &start);
        gn_result r = GN_OK;
        for (int step = 1; step < 6; step++) {
            if (step == when) gn_server_stop(servers[1]);
            r = mlp_step(g, &n, x, labels, step, &loss);
            CHECK(r == GN_OK || r == GN_DEVICE_LOST || r == GN_STATE_FAILED);
        }
        gn_close(g);
        gn_server_close(servers[1]);
        servers[1] = NULL;
    }
}

TEST(a_device_without_room_is_a_typed_error_and_the_rest_lives) {
    static float big[1 << 16];
    gn_ctx *g;
    float out;
    gn_server *small = open_server(200 << 10);
    gn_transport t = connect_to(small, "small");
    const char *cpu = "cpu";
    g = gn_open_transports(&(gn_desc){ .devices = "cpu", .threads = 1 }, &t, &cpu, 1);
    REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(1 << 16), big, "big");
    gn_result r = gn_read(gn_sum(gn_mul_c(s, 1), GN_ALL_AXES, false), &out, sizeof out);
    CHECK(r == GN_OUT_OF_MEMORY || r == GN_LIMIT);
    gn_on(g, NULL);
    s = gn_state(g, GN_F32, GN_SHAPE(1 << 16), big, "big");
    /* where there is room */
    CHECK_RESULT(gn_read(gn_sum(gn_mul_c(s, 1), GN_ALL_AXES, false), &out, sizeof out), GN_OK);
    gn_close(g);
    gn_server_close(small);
}

/* A program over two devices whose n-th allocation fails; true when it succeeded, for there are fewer. */
static bool run_without_memory(long n, bool for_ever) {
    const float x[4] = { 1, 2, 3, 4 };
    float out[4] = { 0 };
    gn_ctx *g = open_cluster("cpu", 1);
    gn_on(g, "1");
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s"), w = gn_weight(g, GN_F32, GN_SHAPE(4), x, "w");
    gn_tensor a = gn_exp(gn_add(s, w));
    may_fail = true;
    fail_at = n;
    fail_count = 0;
    fail_for_ever = for_ever;
    gn_on(g, "0");
    gn_tensor b = gn_mul(a, gn_data(g, GN_F32, GN_SHAPE(4), x));
    gn_on(g, "1");
    gn_assign(s, gn_sub(b, s));
    gn_result r = gn_realize(&a, 1);
    r = r ? r : gn_read(gn_sub(b, a), out, sizeof out);
    fail_at = -1;
    may_fail = false;
    CHECK(r == GN_OK || r == GN_OUT_OF_MEMORY || r == GN_STATE_FAILED || r == GN_DEVICE_LOST || r == GN_STALE_HANDLE);
    if (r == GN_OK) CHECK_NEAR(out[1], 2 * exp(4) - exp(4), 1e-4);
    bool all = fail_count <= n;
    gn_close(g);
    return all && r == GN_OK;
}

TEST(contexts_over_several_devices_survive_memory_that_runs_out) {
    for (int i = 0; i < 2; i++) {
        long n = 0;
        while (n < 1000 && !run_without_memory(n, i != 0)) n++;
        CHECK(n > 20 && n < 1000);
    }
}

/* ---- what crosses is what the schedule said ---- */

static uint64_t predicted(gn_ctx *g) {
    uint64_t bytes = 0;
    const gn__multi_plan *p = g->plans[g->n_plans - 1].exec_plan;
    const gn_schedule *s = &p->splits[p->n_splits - 1]->schedule;
    for (uint32_t i = 0; i < s->n_transfers; i++) {
        bytes += s->transfers[i].from < s->n_devices && s->transfers[i].to < s->n_devices &&
                         s->transfers[i].why != GN_TRANSFER_STATE_MOVE
                     ? s->transfers[i].bytes
                     : 0;
    }
    return bytes;
}

TEST(bytes_that_cross_are_those_of_the_schedule) {
    gn_ctx *g = open_cluster("cpu", 2);
    for (int round = 0; round < 20; round++) {
        gn_tensor pool[16];
        float data[SIDE * SIDE], out[SIDE * SIDE];
        fill(data, SIDE * SIDE);
        pool[0] = gn_data(g, GN_F32, GN_SHAPE(SIDE, SIDE), data);
        for (int i = 1; i < 16; i++) {
            anywhere(g);
            pool[i] = walk_op(pool[test_random_int(0, i - 1)], pool[i - 1], test_random_int(0, 4));
        }
        gn_tensor last = gn_add_c(pool[15], round); /* each round has a plan of its own, which predicted() reads */
        uint64_t before = stats_of(g).transfer_bytes;
        CHECK_RESULT(gn_read(last, out, sizeof out), GN_OK);
        CHECK_INT(stats_of(g).transfer_bytes - before, predicted(g));
        gn_step(g);
    }
    CHECK(stats_of(g).transfer_bytes > 0);
    gn_close(g);
}

/* The costs of the devices decide; gn_set_cluster gives others. */
TEST(the_scheduler_sees_the_cluster_that_was_set) {
    gn_ctx *g = open_cluster("cpu", 1);
    float x[64 * 64];
    static float out[64 * 64];
    gn_info info;
    gn_cluster_device d[2] = { { .flops_per_s = { 1e6, 1e6, 1e6, 1e6 }, .bytes_per_s = 1e6 },
                               { .flops_per_s = { 1e12, 1e12, 1e12, 1e12 }, .bytes_per_s = 1e12 } };
    gn_cluster_link l[9] = { { 0, 0 } };
    gn_cluster c = { 2, d, l };
    fill(x, 64 * 64);
    CHECK_RESULT(gn_set_cluster(g, &(gn_cluster){ 3, d, l }), GN_BAD_ARGUMENT);
    for (int turn = 0; turn < 2; turn++) {
        CHECK_RESULT(gn_set_cluster(g, &c), GN_OK);
        gn_tensor a = gn_data(g, GN_F32, GN_SHAPE(64, 64), x), y = gn_matmul(gn_add_c(a, turn), a);
        CHECK_RESULT(gn_realize(&y, 1), GN_OK);
        CHECK_RESULT(gn_describe(y, &info), GN_OK);
        CHECK_STR(info.device, turn ? "cpu:0" : "first/cpu:0");
        CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
        gn_step(g);
        gn_cluster_device saved = d[0];
        d[0] = d[1];
        d[1] = saved;
    }
    CHECK_RESULT(gn_set_cluster(g, NULL), GN_OK);
    gn_close(g);
}

/* ---- a device that lacks kernels: the CPU under another name, which refuses tanh, and matmul of f64 ---- */

static gn_exec_i odd_tables[2];
static gn__atomic odd_plans;

static gn_result odd_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn_part_node *n = &part->nodes[i];
        if (n->op == GN_OP_TANH || (n->op == GN_OP_MATMUL && n->dtype == GN_F64)) {
            gn_fail(f, GN_UNSUPPORTED, "no tables for it");
            f->node = i;
            return GN_UNSUPPORTED;
        }
    }
    gn__atomic_add(&odd_plans, 1);
    return gn__cpu_plan_make(self, part, out_plan, f);
}

static void odd_describe(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "odd:0");
}

static void odd_describe_second(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "odd:1");
}

/* Two of them take values over from each other, which the CPU itself does not. */
static bool odd_reaches(void *self, void *from, gn_cluster_link *out_link) {
    *out_link = (gn_cluster_link){ 1e-6, 1e11 };
    return self != from;
}

static long odd_taken;

static gn_result odd_value_import(void *self, uint64_t id, void *from, uint64_t theirs, gn_fault *f) {
    gn__cpu *c = self;
    const gn__cpu_value *v = gn__cpu_value_find(from, theirs);
    if (!v) return gn_fail(f, GN_STALE_HANDLE, "a kept value is gone");
    size_t bytes = gn__type_bytes(&v->type);
    char *mem = GN__GROW(c, values, 1) ? gn__cpu_alloc(c, bytes, false, f) : NULL;
    if (!mem) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a kept value");
    memcpy(mem, v->mem, bytes);
    c->values[c->n_values++] = (gn__cpu_value){ id, v->type, mem };
    odd_taken++;
    return GN_OK;
}

static gn_result odd_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn_result r = gn__cpu_open(d, out, f);
    gn_exec_i *table = &odd_tables[strcmp(d->device, "odd:1") == 0];
    *table = gn__cpu_i;
    table->plan_make = odd_plan_make;
    table->describe = table == odd_tables ? odd_describe : odd_describe_second;
    table->reaches = odd_reaches;
    table->value_import = odd_value_import;
    out->i = table;
    return r;
}

static void use_odd_driver(void) {
    static const gn_driver_i driver = { .prefix = "odd", .open = odd_open };
    gn_register_driver(&driver);
}

/* tanh between other ops, a state that it updates, a value that is kept and read by it. */
static gn_result odd_program(gn_ctx *g, float out[2][4]) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s"), reads[2];
    gn_result r = GN_OK;
    for (int step = 0; step < 3 && r == GN_OK; step++) {
        gn_tensor a = gn_mul(s, s), b = gn_tanh(gn_add(a, gn_data(g, GN_F32, GN_SHAPE(4), x)));
        r = step == 1 ? gn_realize(&a, 1) : GN_OK;
        gn_assign(s, gn_sub(gn_tanh(b), a));
        reads[0] = gn_exp(b);
        reads[1] = gn_sum(b, GN_AXES(0), true);
        void *to[2] = { out[0], out[1] };
        r = r ? r : gn_read_many(reads, 2, to, (size_t[2]){ 16, 4 });
        gn_step(g);
    }
    return r ? r : gn_read(s, out[1], 16);
}

static void check_odd(gn_ctx *g, const char *name) {
    gn_ctx *one = open_cpu();
    float out[2][2][4];
    gn_device_info d;
    memset(out, 0, sizeof out);
    CHECK_RESULT(gn_get_device(g, &d), GN_OK);
    CHECK_STR(d.name, name);
    last_log[0] = 0;
    CHECK_RESULT(odd_program(g, out[0]), GN_OK);
    CHECK_RESULT(odd_program(one, out[1]), GN_OK);
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    CHECK(strstr(last_log, "tanh of f32 has no kernel on odd:0 (no tables for it): it runs on the CPU beside it") !=
          NULL);
    CHECK(stats_of(g).fallbacks >= 2);
    CHECK_INT(stats_of(one).fallbacks, 0);
    char words[2000];
    gn_tensor t = gn_tanh(gn_full(g, GN_F32, GN_SHAPE(2), 1));
    CHECK_RESULT(gn_explain(&t, 1, NULL, words, sizeof words, NULL), GN_OK);
    CHECK(strstr(words, "ops of the plans so far run elsewhere than chosen") != NULL);
    gn_close(g);
    gn_close(one);
}

TEST(what_a_device_refuses_runs_on_the_cpu_beside_it) {
    use_odd_driver();
    check_odd(gn_open(&(gn_desc){ .devices = "odd:0", .threads = 1, .log = note_log }), "odd:0");
}

static gn_ctx *open_odd_server(gn_server **s, bool strict) {
    gn_server_desc desc = { .listen = "none", .devices = "odd:0", .threads = 1 };
    use_odd_driver();
    if (gn_server_open(&desc, s, NULL) != GN_OK) exit(2);
    return gn_open_transport(&(gn_desc){ .strict = strict, .log = note_log }, connect_to(*s, "oddly"), "odd:0");
}

TEST(what_a_server_s_device_refuses_runs_on_its_cpu_and_is_told) {
    gn_server *s;
    check_odd(open_odd_server(&s, false), "oddly/odd:0");
    gn_server_close(s);
}

static void check_strict(gn_ctx *g) {
    const double m[4] = { 1, 2, 3, 4 };
    double out[4];
    gn_tensor a = gn_data(g, GN_F64, GN_SHAPE(2, 2), m), y = gn_label(gn_matmul(gn_add(a, a), a), "product");
    int line = __LINE__ - 1;
    CHECK_RESULT(gn_read(y, out, sizeof out), GN_STRICT);
    CHECK(strstr(gn_last_error(g)->text, "matmul of f64 has no kernel on odd:0 (no tables for it)") != NULL);
    CHECK_STR(gn_last_error(g)->op, "matmul");
    CHECK_STR(gn_last_error(g)->label, "product");
    CHECK_INT(gn_last_error(g)->line, line);
    CHECK_INT(stats_of(g).fallbacks, 0);
    CHECK_RESULT(gn_read(gn_add(a, a), out, sizeof out), GN_OK); /* the rest lives */
    CHECK_NEAR(out[3], 8, 0);
    gn_close(g);
}

TEST(strict_makes_a_fallback_an_error) {
    use_odd_driver();
    check_strict(gn_open(&(gn_desc){ .devices = "odd:0", .strict = true, .log = note_log }));
}

TEST(strict_makes_a_fallback_of_a_server_an_error) {
    gn_server *s;
    check_strict(open_odd_server(&s, true));
    gn_server_close(s);
}

/* ---- one device of a driver is not wrapped as several until it refuses an op ---- */

enum { CHAIN = 300 };

/* Ops in a row over x, as many every time; the last value with its one input is what came out. */
static gn_result chain_read(gn_ctx *g, const float x[4], double c, float out[4]) {
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(4), x);
    for (int i = 0; i < CHAIN; i++) t = i % 2 ? gn_abs(t) : gn_exp(gn_neg(t));
    return gn_read(gn_mul_c(t, c), out, 4 * sizeof *out);
}

/* Blocks of the size of the part of such a step that are made on its way. */
static long chain_copies(gn_ctx *g, double c, float out[4]) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    gn_ctx *one = open_cpu();
    size_t at[8];
    float expected[4];
    CHECK_RESULT(chain_read(one, x, c, expected), GN_OK);
    gn__part_size size = gn__part_size_of(one->plans[0].part);
    gn_close(one);
    __atomic_store_n(&watched_n, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&watched, gn__part_places(&size, at), __ATOMIC_RELAXED);
    CHECK_RESULT(chain_read(g, x, c, out), GN_OK);
    __atomic_store_n(&watched, 0, __ATOMIC_RELAXED);
    gn_step(g);
    CHECK(memcmp(out, expected, sizeof expected) == 0);
    return __atomic_load_n(&watched_n, __ATOMIC_RELAXED);
}

TEST(a_graph_is_copied_once_on_its_way_to_a_device) {
    gn_server *s;
    float out[4];
    use_odd_driver();
    for (int device = 0; device < 2; device++) { /* the CPU of this process; a driver's device */
        gn_ctx *g = gn_open(&(gn_desc){ .devices = device ? "odd:0" : "cpu", .threads = 1 });
        CHECK_INT(chain_copies(g, 2, out), 1); /* of the context's own tables, which the next step needs again */
        CHECK_INT(chain_copies(g, 2, out), 0);
        gn_tensor t = gn_tanh(gn_full(g, GN_F32, GN_SHAPE(2), 1));
        CHECK_RESULT(gn_read(t, out, 8), GN_OK);
        CHECK_INT(chain_copies(g, 3, out), 1);
        CHECK_INT(stats_of(g).fallbacks, device);
        gn_close(g);
    }
    gn_ctx *g = open_odd_server(&s, false);
    CHECK_INT(chain_copies(g, 2, out), 2); /* here, and of the message there */
    CHECK_INT(chain_copies(g, 2, out), 0);
    gn_close(g);
    gn_server_close(s);
}

/* Before the first op that is refused: a state, a plan, a kept value, a step whose ticket is still to be waited for. */
TEST(what_a_device_holds_goes_on_when_the_cpu_comes_beside_it) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    float out[4], early[4];
    uint64_t ticket = 0, plans = 0;
    use_odd_driver();
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "odd:0", .threads = 1 });
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s"), w = gn_weight(g, GN_F32, GN_SHAPE(4), x, "w");
    for (int step = 0; step < 3; step++) {
        gn_tensor k = gn_mul(s, w), late = gn_sub(s, w);
        void *to = early;
        CHECK_RESULT(gn_realize(&k, 1), GN_OK);
        CHECK_RESULT(step ? gn_read(late, early, sizeof early)
                          : gn_read_later(&late, 1, &to, (size_t[1]){ sizeof early }, &ticket),
                     GN_OK);
        if (step == 1) {
            CHECK_RESULT(gn_read(gn_tanh(k), out, sizeof out), GN_OK);
            CHECK_NEAR(out[3], tanh(0.8 * 0.4), 1e-6);
            CHECK_RESULT(gn_wait(g, ticket), GN_OK);
            plans = gn__atomic_load(&odd_plans);
        }
        gn_assign(s, gn_add(s, s));
        CHECK_RESULT(gn_read(gn_neg(k), out, sizeof out), GN_OK);
        CHECK_NEAR(out[3], -0.16 * (1 << step), 1e-6);
        CHECK_NEAR(early[3], 0.4 * (1 << step) - 0.4, 1e-6);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_INT(gn__atomic_load(&odd_plans), plans); /* those that it had are run again */
    CHECK_INT(stats_of(g).fallbacks, 1);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK_NEAR(out[3], 3.2, 1e-6);
    CHECK_RESULT(gn_release(s), GN_OK);
    CHECK_RESULT(gn_release(w), GN_OK);
    gn_close(g);
}

/* Random programs on one device that refuses some of their ops. */
TEST(random_graphs_with_ops_that_are_refused_equal_one_device) {
    use_odd_driver();
    for (int i = 0; i < 8; i++) CHECK(random_graphs("odd:0", 0, 12).fallbacks > 0);
}

/* The n-th allocation fails while the CPU is put beside the device: the step is told so, and the next ones are well. */
TEST(putting_the_cpu_beside_a_device_survives_memory_that_runs_out) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    long failed = 0;
    use_odd_driver();
    for (long n = 0; n < 150; n++) {
        float out[4];
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "odd:0", .threads = 1 });
        gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s"), t = gn_add(s, s);
        CHECK_RESULT(gn_realize(&t, 1), GN_OK);
        gn_tensor y = gn_tanh(t);
        fail_at = n;
        fail_count = 0;
        fail_for_ever = false;
        may_fail = true;
        gn_result r = gn_read(y, out, sizeof out);
        may_fail = false;
        fail_at = -1;
        failed += r != GN_OK;
        CHECK(r == GN_OK || r == GN_OUT_OF_MEMORY);
        if (CHECK_RESULT(gn_read(gn_tanh(gn_sub(t, s)), out, sizeof out), GN_OK)) CHECK_NEAR(out[3], tanh(0.4), 1e-6);
        gn_close(g);
    }
    CHECK(failed > 20 && failed < 150);
}

/* A client chooses the ids of kept values. Those of the device's own, for what goes between it and the CPU, lie above
   them. */
TEST(kept_values_with_the_largest_ids_leave_no_room_for_the_cpu_beside_a_device) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    gn_stats counts = { 0 };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_exec e;
    void *plan = NULL, *refused = NULL;
    uint64_t ticket;
    const int64_t four = 4;
    const uint32_t ins[1] = { 0 }, args[1] = { 0 }, outs[1] = { 1 };
    gn_part_node nodes[2] = {
        { .op = (uint16_t)gn__op_leaf(GN_LEAF_DATA), .dtype = GN_F32, .leaf = GN_LEAF_DATA, .rank = 1 },
        { .op = GN_OP_NEG, .dtype = GN_F32, .rank = 1, .n_ins = 1 }
    };
    gn_part part = { .n_nodes = 2,
                     .n_ins = 1,
                     .n_dims = 1,
                     .n_args = 1,
                     .n_outs = 1,
                     .nodes = nodes,
                     .ins = ins,
                     .dims = &four,
                     .args = args,
                     .outs = outs };
    gn_arg arg = { x, sizeof x, 0 };
    use_odd_driver();
    gn_exec_desc d = { .device = "odd:0", .threads = 1, .stats = &counts };
    REQUIRE(CHECK_RESULT(gn__exec_open(&d, &e, &f), GN_OK));
    REQUIRE(CHECK_RESULT(e.i->plan_make(e.self, &part, &plan, &f), GN_OK));
    for (uint64_t id = 5; id; id = id == 5 ? UINT64_MAX - 1 : 0) {
        gn_out out = { NULL, 0, id };
        CHECK_RESULT(e.i->submit(e.self, plan, &arg, &out, &ticket, &f), GN_OK);
    }
    nodes[1].op = GN_OP_TANH;
    CHECK_RESULT(e.i->plan_make(e.self, &part, &refused, &f), GN_LIMIT);
    CHECK(strstr(f.text, "above 2^63 none are left") != NULL);
    CHECK(!refused);
    e.i->plan_destroy(e.self, plan);
    e.i->values_release(e.self, UINT64_MAX);
    e.i->close(e.self);
}

/* Among several devices what one refuses is placed on another. */
TEST(what_a_device_of_several_refuses_runs_on_another) {
    const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    float out[4];
    use_odd_driver();
    gn_ctx *g = open_cluster("cpu,odd:0", 1);
    CHECK_RESULT(gn_status(g), GN_OK);
    on(g, 1);
    gn_tensor a = gn_exp(gn_data(g, GN_F32, GN_SHAPE(4), x)), y = gn_tanh(a);
    CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
    CHECK_NEAR(out[0], tanh(exp(0.1)), 1e-6);
    CHECK(stats_of(g).fallbacks > 0);
    gn_close(g);
}

/* Between the two values are taken over directly, but for results of tanh, which lie with the CPU beside them. */
TEST(values_that_are_taken_over_equal_those_of_one_device) {
    use_odd_driver();
    odd_taken = 0;
    for (int i = 0; i < 6; i++) {
        gn_stats s = random_graphs("odd:0,odd:1", 0, 12);
        CHECK(s.transfers_direct > 0 && s.transfers > s.transfers_direct && s.fallbacks > 0);
    }
    CHECK(odd_taken > 0);
    gn_stats s = random_graphs("cpu,odd:0,odd:1", 1, 12);
    CHECK(s.transfers_direct > 0 && s.transfers > s.transfers_direct);
}

/* ---- costs ---- */

TEST(costs_of_servers_and_links_are_known_and_kept_current) {
    gn_ctx *g = open_cluster("cpu", 1);
    gn__remote *r = (gn__remote *)g->multi->devices[1].exec.self;
    float x[64], out[64];
    gn_cluster_device d[2];
    gn_cluster_link l[9];
    gn_cluster c;
    fill(x, 64);
    gn__multi_cluster(g->multi, d, l, &c);
    for (int i = 0; i < 2; i++) {
        CHECK(d[i].flops_per_s[GN_RATE_F32] > 1e6 && d[i].flops_per_s[GN_RATE_F64] > 1e6 && d[i].bytes_per_s > 1e6 &&
              d[i].launch_s > 0);
    }
    CHECK_INT(d[1].memory, (int64_t)8 << 30);
    CHECK(d[1].memory_free <= d[1].memory && d[1].n_ops > 0);
    CHECK(l[2 * 3 + 1].latency_s > 0 && l[2 * 3 + 1].bytes_per_s > 1e3 && l[1 * 3 + 2].latency_s > 0);
    r->link_up.latency_s = 1; /* as if it had been slow once */
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(64), x, "s");
    for (int step = 0; step < 60; step++) {
        CHECK_RESULT(gn_read(gn_mul_c(s, 2), out, sizeof out), GN_OK);
        gn_step(g);
    }
    gn__multi_cluster(g->multi, d, l, &c);
    CHECK(l[2 * 3 + 1].latency_s < 0.1);
    CHECK(d[1].memory_free < d[1].memory); /* the state and the plans */
    gn_close(g);
}

/* Whatever a peer says, numbers stay finite, and what is out of bounds or not asked for ends the connection. */
TEST(costs_that_make_no_sense_are_refused) {
    gn_ctx *g = open_cluster("cpu", 1);
    gn__remote *r = (gn__remote *)g->multi->devices[1].exec.self;
    gn__buf b = { NULL, 0, 0, false };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    static const uint64_t values[] = { 0, 1, GN__RATE_MOST, GN__RATE_MOST + 1, (uint64_t)1 << 63, UINT64_MAX };
    for (size_t v = 0; v < GN__LENGTH(values); v++) {
        gn__msg_costs m = { .f32 = values[v], .half = 1, .memory_free = 5 };
        gn__buf_reset(&b);
        gn__msg_encode(&b, GN__MSG_COSTS, &m);
        gn__msg msg = { GN__MSG_COSTS, 0, b.p, b.n, 0 };
        CHECK_RESULT(gn__remote_handle(r, &msg, &f), values[v] <= GN__RATE_MOST ? GN_OK : GN_BAD_MESSAGE);
        CHECK(r->costs.flops_per_s[GN_RATE_F32] >= 0 && r->costs.flops_per_s[GN_RATE_F32] <= 1e18);
        CHECK(r->costs.memory_free <= r->costs.memory);
        r->lost = false;
    }
    gn__msg_costs m = { .f32 = 1 };
    gn__buf_reset(&b);
    gn__msg_encode(&b, GN__MSG_COSTS, &m);
    gn__msg msg = { GN__MSG_COSTS, 0, b.p, b.n, 0 };
    r->unasked = 0;
    gn_result e = GN_OK;
    for (int i = 0; i < 100000 && e == GN_OK; i++) e = gn__remote_handle(r, &msg, &f);
    CHECK_RESULT(e, GN_BAD_MESSAGE); /* a flood */
    r->lost = false;
    r->unasked = 0;
    r->features = 0;
    CHECK_RESULT(gn__remote_handle(r, &msg, &f), GN_BAD_MESSAGE);
    r->lost = true;
    gn__buf_deinit(&b);
    gn_close(g);
}

TEST(a_server_that_tells_no_costs_is_a_device_like_others) {
    gn_server *s = NULL;
    gn_server_desc desc = { .listen = "none", .devices = "cpu", .threads = 1, .no_costs = true };
    CHECK_RESULT(gn_server_open(&desc, &s, NULL), GN_OK);
    gn_transport t = connect_to(s, "silent");
    const char *cpu = "cpu";
    const float x[2] = { 1, 2 };
    float out[2];
    gn_ctx *g = gn_open_transports(&(gn_desc){ .devices = "cpu", .threads = 1 }, &t, &cpu, 1);
    CHECK_RESULT(gn_status(g), GN_OK);
    on(g, 1);
    CHECK_RESULT(gn_read(gn_exp(gn_data(g, GN_F32, GN_SHAPE(2), x)), out, sizeof out), GN_OK);
    CHECK(((gn__remote *)g->multi->devices[1].exec.self)->costs.flops_per_s[0] == 0);
    gn_close(g);
    gn_server_close(s);
}

/* ---- costs that change ---- */

enum { FOLLOW = 48 };

/* The same step each time, a product of data with itself; false when its value is not that of the first step. */
static bool follow_step(gn_ctx *g) {
    static float x[FOLLOW * FOLLOW], want[FOLLOW * FOLLOW], out[FOLLOW * FOLLOW];
    static bool known;
    if (!known) {
        fill(x, FOLLOW * FOLLOW);
        gn_ctx *one = open_cpu();
        gn_tensor d = gn_data(one, GN_F32, GN_SHAPE(FOLLOW, FOLLOW), x);
        known = CHECK_RESULT(gn_read(gn_gelu(gn_matmul(d, d)), want, sizeof want), GN_OK);
        gn_close(one);
    }
    gn_tensor d = gn_data(g, GN_F32, GN_SHAPE(FOLLOW, FOLLOW), x);
    bool ok = CHECK_RESULT(gn_read(gn_gelu(gn_matmul(d, d)), out, sizeof out), GN_OK) &&
              same("product", out, want, FOLLOW * FOLLOW);
    gn_step(g);
    return ok;
}

/* The device of the latest plan's latest placement. */
static uint32_t placed(gn_ctx *g) {
    const gn__multi_plan *p = g->plans[g->n_plans - 1].exec_plan;
    return p->splits[p->n_splits - 1]->pieces[p->splits[p->n_splits - 1]->only].device;
}

/* Device i does so many operations and bytes a second; links are equal. */
static void set_speeds(gn_ctx *g, double first, double second, double link) {
    gn_cluster_device d[2];
    gn_cluster_link l[9];
    memset(d, 0, sizeof d);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < GN_RATE__COUNT; k++) d[i].flops_per_s[k] = i ? second : first;
        d[i].bytes_per_s = i ? second : first;
    }
    for (int i = 0; i < 9; i++) l[i] = (gn_cluster_link){ 1e-6, link };
    CHECK_RESULT(gn_set_cluster(g, &(gn_cluster){ 2, d, l }), GN_OK);
}

TEST(a_plan_follows_the_costs_and_comes_back) {
    static const struct {
        double first, second;
        uint32_t device;
        uint64_t reschedules;
    } turns[] = {
        { 1e9, 1e6, 0, 0 },   { 1e6, 1e9, 1, 1 }, { 1e6, 0.7e9, 1, 1 }, { 1e6, 0.5e9, 1, 1 },
        { 1e9, 1.1e9, 1, 1 }, { 1e9, 1e8, 0, 2 }, { 1e6, 1e9, 1, 3 },
    };
    gn_ctx *g = open_cluster("cpu", 1);
    for (size_t i = 0; i < GN__LENGTH(turns); i++) {
        set_speeds(g, turns[i].first, turns[i].second, 1e10);
        CHECK(follow_step(g) && follow_step(g));
        CHECK_INT(placed(g), turns[i].device);
        CHECK_INT(stats_of(g).reschedules, turns[i].reschedules);
        CHECK_INT(stats_of(g).reschedule_bytes, 0);
    }
    CHECK(strstr(last_log, "costs have changed: 2 of 2 ops of a plan go to another device") != NULL);
    CHECK_INT(stats_of(g).plans_made, 1);
    char words[4000];
    gn_tensor t = gn_full(g, GN_F32, GN_SHAPE(2), 1);
    CHECK_RESULT(gn_explain(&t, 1, NULL, words, sizeof words, NULL), GN_OK);
    CHECK(strstr(words, "placed anew: 3 times so far a plan of this program") != NULL);
    gn_close(g);
}

TEST(a_plan_stays_where_the_program_wants_it_to_stay) {
    gn_transport t = connect_to(servers[0] = servers[0] ? servers[0] : open_server(0), "first");
    const char *cpu = "cpu";
    gn_ctx *g = gn_open_transports(&(gn_desc){ .devices = "cpu", .threads = 1, .keep_placement = true }, &t, &cpu, 1);
    for (int i = 0; i < 4; i++) {
        set_speeds(g, i % 2 ? 1e6 : 1e9, i % 2 ? 1e9 : 1e6, 1e10);
        CHECK(follow_step(g));
        CHECK_INT(placed(g), 0);
    }
    CHECK_INT(stats_of(g).reschedules, 0);
    CHECK(!((gn__remote *)g->multi->devices[1].exec.self)->n_probes);
    gn_close(g);
}

/* A state of 4 KiB whose way takes 4 s, where a step gains about half a second: it goes when it has lost that much. */
TEST(a_state_moves_when_that_pays) {
    gn_ctx *g = open_cluster("cpu", 1);
    static float x[1024], out[1024];
    uint64_t left = 0;
    set_speeds(g, 1e9, 1e3, 1e10);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(1024), x, "s");
    for (int step = 1; step <= 20; step++) {
        if (step == 3) set_speeds(g, 1e4, 1e9, 1024);
        gn_assign(s, gn_add_c(s, 1));
        CHECK_RESULT(gn_step(g), GN_OK);
        CHECK_RESULT(gn_sync(g), GN_OK);
        left = left ? left : stats_of(g).reschedules ? (uint64_t)step : 0;
        CHECK_INT(placed(g), left != 0);
        CHECK_INT(stats_of(g).reschedule_bytes, left ? sizeof x : 0);
    }
    CHECK(left >= 5 && left <= 15);
    CHECK_INT(stats_of(g).reschedules, 1);
    CHECK_INT(stats_of(g).transfer_bytes, sizeof x);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1023], 20, 0);
    gn_close(g);
}

/* Two servers that tell nothing of their costs, so that what this context knows of the links is what a test says. */
static gn_ctx *open_silent(gn_server **out_servers) {
    static const char *const cpu[2] = { "cpu", "cpu" };
    gn_transport t[2];
    for (int i = 0; i < 2; i++) {
        gn_server_desc desc = { .listen = "none", .devices = "cpu", .threads = 1, .no_costs = true };
        if (gn_server_open(&desc, &out_servers[i], NULL) != GN_OK) exit(2);
        t[i] = connect_to(out_servers[i], server_names[i]);
    }
    return gn_open_transports(&(gn_desc){ .threads = 1, .log = note_log }, t, cpu, 2);
}

static void set_latency(gn_ctx *g, int device, double seconds) {
    gn__remote *r = (gn__remote *)g->multi->devices[device].exec.self;
    r->link_up = r->link_down = (gn_cluster_link){ seconds, 1e9 };
}

/* Latencies that jump about, with outliers, move nothing; a change that lasts does, after some rounds, and once. */
TEST(noise_moves_no_plan) {
    gn_server *silent[2];
    gn_ctx *g = open_silent(silent);
    gn__running_median steady[2] = { { { 0 }, 0 }, { { 0 }, 0 } };
    double now[2] = { 1e-4, 1e-4 };
    int waited = 0;
    set_latency(g, 0, now[0]);
    set_latency(g, 1, now[1]);
    CHECK(follow_step(g));
    uint32_t home = placed(g);
    for (int i = 0; i < 800; i++) {
        bool slow = i >= 400;
        for (int d = 0; d < 2; d++) {
            double outlier = i % 7 == d ? 30 : 1, change = slow && (uint32_t)d == home ? 20 : 1;
            now[d] = gn__running_median_add(&steady[d], now[d], 1e-4 * test_random_real(0.7, 1.4) * outlier * change);
            set_latency(g, d, now[d]);
        }
        g->multi->round++;
        if (!follow_step(g) || !CHECK(stats_of(g).reschedules <= slow)) break;
        waited += slow && placed(g) == home;
    }
    CHECK_INT(stats_of(g).reschedules, 1);
    CHECK(placed(g) != home);
    CHECK(waited >= GN__DRIFT_ROUNDS - 1 && waited <= 2 * GN__DRIFT_ROUNDS * GN__WAIT_ROUNDS_MOST);
    gn_close(g);
    gn_server_close(silent[0]);
    gn_server_close(silent[1]);
}

/* A link whose answers come late. */
static int late_us[SERVERS];

static gn_result late_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    const loopback_link *l = self;
    int us = late_us[strcmp(l->peer, server_names[1]) == 0];
    gn_result r = loopback__ready(l->fd, POLLIN, timeout_ms);
    if (r == GN_OK && us) usleep((useconds_t)us);
    return r == GN_OK ? loopback__recv(self, data, max, out_n, timeout_ms) : r;
}

/* Steps until the plan is on the device, for at most so many seconds. A device is measured at each step, which a
 * program would wait longer for. */
static bool follow_until(gn_ctx *g, uint32_t device, double seconds) {
    uint64_t end = gn_now_us() + (uint64_t)(seconds * 1e6);
    bool ok = true;
    while (ok && placed(g) != device && gn_now_us() < end) {
        g->multi->measure_us = 0;
        ok = follow_step(g);
    }
    return ok && placed(g) == device;
}

TEST(a_plan_leaves_a_slow_link_and_comes_back) {
    static const char *const cpu[SERVERS] = { "cpu", "cpu" };
    static gn_transport_i late;
    gn_transport t[SERVERS];
    for (int i = 0; i < SERVERS; i++) {
        servers[i] = servers[i] ? servers[i] : open_server(0);
        t[i] = connect_to(servers[i], server_names[i]);
        late = *t[i].i;
        late.recv = late_recv;
        t[i].i = &late;
    }
    gn_ctx *g = gn_open_transports(&(gn_desc){ .threads = 1, .log = note_log }, t, cpu, SERVERS);
    CHECK(follow_step(g));
    for (int turn = 0; turn < 2; turn++) {
        uint32_t home = placed(g);
        late_us[home] = 15000;
        late_us[1 - home] = 0;
        CHECK(follow_until(g, 1 - home, 60));
    }
    late_us[0] = late_us[1] = 15000;
    g->multi->measure_us = 0;
    CHECK(follow_step(g));
    CHECK(g->multi->measure_us > gn_now_us() + 50 * 15000); /* a hundredth of the time, less what the step took */
    late_us[0] = late_us[1] = 0;
    CHECK(stats_of(g).reschedules >= 2);
    CHECK_INT(stats_of(g).faults, 0);
    gn_close(g);
}

/* This CPU becomes slow: its runs take so much longer. */
static gn_exec_i slow_table;
static int slow_us;
static double told_work;

static gn_result slow_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket,
                             gn_fault *f) {
    usleep((useconds_t)slow_us);
    return gn__cpu_submit(self, plan, args, outs, out_ticket, f);
}

static double tell_work(void *self) {
    (void)self;
    return told_work;
}

TEST(a_plan_leaves_a_slow_device_and_comes_back) {
    gn_ctx *g = open_cluster("cpu", 1);
    gn__device *u = &g->multi->devices[0];
    slow_table = gn__cpu_i;
    slow_table.submit = slow_submit;
    u->exec.i = &slow_table;
    slow_us = 20000;
    CHECK(u->probe == gn__device_work && u->probe(u) >= 0.02 && u->probe(u) < 10);
    slow_us = 0;
    u->probe = tell_work; /* from here on the same on a machine that is busy with other things */
    told_work = 1e-3;
    on(g, 0);
    for (int i = 0; i < 12; i++) {
        g->multi->measure_us = 0;
        CHECK(follow_step(g));
    }
    CHECK_NEAR(u->work_first, 1e-3, 1e-9);
    gn_on(g, NULL);
    CHECK(follow_step(g));
    CHECK_INT(placed(g), 0); /* as quick as the server, and nearer */
    told_work = 1;
    CHECK(follow_until(g, 1, 60));
    told_work = 1e-5; /* so that it wins by more than what keeps a plan from going to and fro */
    CHECK(follow_until(g, 0, 60));
    CHECK_INT(stats_of(g).reschedules, 2);
    gn_close(g);
}

/* A device that refuses an op: in strict mode a plan with it stays where it runs, and no step fails for having looked;
 * otherwise it goes there, and that the op runs on the CPU beside it is counted as ever. */
TEST(placing_anew_respects_strict) {
    for (int strict = 0; strict < 2; strict++) {
        const char *cpu = "cpu";
        const float x[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
        float out[4];
        use_odd_driver();
        servers[0] = servers[0] ? servers[0] : open_server(0);
        gn_transport t = connect_to(servers[0], "first");
        gn_ctx *g =
            gn_open_transports(&(gn_desc){ .devices = "odd:0", .threads = 1, .strict = strict, .log = note_log }, &t,
                               &cpu, 1);
        REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
        uint64_t before = stats_of(g).fallbacks; /* of what it was measured with */
        for (int step = 0; step < 4; step++) {
            set_speeds(g, step ? 1e9 : 1e3, step ? 1e3 : 1e9, 1e10);
            CHECK_RESULT(gn_read(gn_tanh(gn_data(g, GN_F32, GN_SHAPE(4), x)), out, sizeof out), GN_OK);
            CHECK_NEAR(out[0], tanh(0.1), 1e-6);
            CHECK_INT(placed(g), !step || strict);
            gn_step(g);
        }
        CHECK(!strict || strstr(last_log, "a plan stays where it is, since it could not be placed again") != NULL);
        CHECK_INT(stats_of(g).reschedules, !strict);
        CHECK_INT(stats_of(g).fallbacks - before, !strict);
        gn_close(g);
    }
}

/* The n-th allocation fails while a plan with a state is placed anew: the step ends well all the same, or with a typed
   error. */
TEST(placing_anew_survives_memory_that_runs_out) {
    for (long n = 0; n < 200; n++) {
        gn_ctx *g = open_cluster("cpu", 1);
        const float x[4] = { 1, 2, 3, 4 };
        float out[4];
        gn_result r = GN_OK;
        set_speeds(g, 1e9, 1e3, 1e10);
        gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s");
        for (int step = 0; step < 3 && !r; step++) {
            if (step == 1) set_speeds(g, 1e3, 1e9, 1e10);
            gn_assign(s, gn_add(s, s));
            fail_at = n;
            fail_count = 0;
            fail_for_ever = false;
            may_fail = step == 1;
            r = gn_step(g);
            r = r ? r : gn_sync(g);
            may_fail = false;
            fail_at = -1;
        }
        CHECK(r == GN_OK || r == GN_OUT_OF_MEMORY || r == GN_DEVICE_LOST);
        if (r == GN_OK && CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK)) CHECK_NEAR(out[3], 32, 0);
        gn_close(g);
    }
}

/* ---- trace ---- */

typedef struct seen {
    char names[4000];
    uint64_t bytes, last;
    bool ordered;
} seen;

static void note_event(void *user, const gn_trace_event *e) {
    seen *s = user;
    size_t n = strlen(s->names);
    s->ordered = s->ordered && e->begin_us <= e->end_us && e->end_us >= s->last;
    s->last = e->end_us;
    s->bytes += e->bytes;
    snprintf(s->names + n, sizeof s->names - n, "%s%s%s;", e->device, e->device[0] ? ":" : "", e->name);
}

/* ---- what goes wrong while nobody waits ---- */

TEST(an_error_of_a_queued_step_is_told_by_the_next_call) {
    gn_ctx *g = open_cluster("cpu", 2);
    const float x[2] = { 1, 2 };
    const int32_t bad[1] = { 7 };
    float out[2];
    on(g, 1);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
    on(g, 2);
    gn_tensor u = gn_state(g, GN_F32, GN_SHAPE(2), x, "u");
    on(g, 1);
    gn_assign(s, gn_add(s, gn_expand(gn_index_select(s, 0, gn_data(g, GN_I32, GN_SHAPE(1), bad)), GN_SHAPE(2))));
    CHECK_RESULT(gn_step(g), GN_OK); /* nobody waits */
    CHECK_RESULT(gn_sync(g), GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_sync(g), GN_OK);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 2, 0);
    on(g, 1);
    gn_assign(s, gn_add(s, gn_expand(gn_index_select(s, 0, gn_data(g, GN_I32, GN_SHAPE(1), bad)), GN_SHAPE(2))));
    CHECK_RESULT(gn_step(g), GN_OK);
    on(g, 2); /* the next step writes on both: on the other device it has by the time of the error */
    gn_assign(u, gn_add(u, u));
    on(g, 1);
    gn_assign(s, gn_add(s, s));
    gn_result r = gn_step(g);
    CHECK(r == GN_OK || r == GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(r ? r : gn_sync(g), GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], 2, 0);
    gn_result second = gn_read(u, out, sizeof out);
    CHECK(second == GN_STATE_FAILED || (second == GN_OK && out[1] == 2));
    CHECK(r || second == GN_STATE_FAILED);
    gn_close(g);
}

/* A server that is there and says nothing: the step ends at the deadline, with its name. */
TEST(a_device_that_does_not_answer_is_lost_at_the_deadline) {
    gn_ctx *g = open_cluster("cpu", 2);
    gn__remote *r = (gn__remote *)g->multi->devices[1].exec.self;
    loopback_link *link = r->link.t.self;
    const float x[2] = { 1, 2 };
    float out[2];
    int dead[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, dead) == 0 && dup2(dead[0], link->fd) >= 0);
    close(dead[0]);
    r->link.deadline_ms = 200;
    on(g, 1);
    gn_tensor a = gn_exp(gn_data(g, GN_F32, GN_SHAPE(2), x));
    on(g, 2);
    uint64_t begin = gn_now_us();
    CHECK_RESULT(gn_read(gn_neg(a), out, sizeof out), GN_DEVICE_LOST);
    CHECK(gn_now_us() - begin < 10000000);
    CHECK(strstr(gn_last_error(g)->text, "first/cpu:0 is lost") != NULL);
    CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), x)), out, sizeof out), GN_OK);
    gn_close(g);
    close(dead[1]);
}

/* ---- the same through TCP and TLS ---- */

TEST(this_cpu_and_a_server_over_tls_equal_one_device) {
    gn_server *s = loopback_server();
    char devices[600], home[96];
    const float x[4] = { 1, 2, 3, 4 };
    float out[4], want[4];
    snprintf(devices, sizeof devices, "cpu,%s", gn_server_url(s));
    snprintf(home, sizeof home, "%s/client", loopback__home);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = devices, .home = home, .threads = 1 }), *one = open_cpu();
    REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
    gn_device_info d;
    CHECK_RESULT(gn_get_device_at(g, 1, &d), GN_OK);
    CHECK(d.remote && d.tls[0]);
    for (int k = 0; k < 2; k++) {
        gn_ctx *c = k ? one : g;
        gn_on(c, k ? NULL : "1");
        gn_tensor a = gn_exp(gn_data(c, GN_F32, GN_SHAPE(4), x));
        gn_on(c, k ? NULL : "cpu");
        CHECK_RESULT(gn_read(gn_softmax(a, 0), k ? want : out, sizeof out), GN_OK);
    }
    CHECK(memcmp(out, want, sizeof out) == 0);
    CHECK_INT(stats_of(g).transfer_bytes, sizeof x);
    gn_close(g);
    gn_close(one);
    /* one device under two names */
    snprintf(devices, sizeof devices, "127.0.0.1:%u,127.0.0.1:%u/cpu", gn_server_port(s), gn_server_port(s));
    g = gn_open(&(gn_desc){ .devices = devices, .home = home });
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    CHECK(strstr(gn_last_error(g)->text, "is named twice") != NULL);
    gn_close(g);
}

static long place_of(const char *text, const char *what) {
    const char *at = strstr(text, what);
    return at ? (long)(at - text) : -1;
}

/* Nodes, calls, and what each device was asked; two servers are asked before one is waited for. */
TEST(trace_tells_every_call_and_every_slot) {
    static const char *const cpu[2] = { "cpu", "cpu" };
    static const char *const must[] = { "gn_open;data;exp;neg;add;",
                                        "first/cpu:0:plan_make;",
                                        "second/cpu:0:plan_make;",
                                        ";cpu:0:plan_make;",
                                        ";cpu:0:submit;",
                                        "gn_read;gn_step;",
                                        "first/cpu:0:close;second/cpu:0:close;gn_close;" };
    static seen s;
    s = (seen){ .ordered = true };
    for (int i = 0; i < SERVERS; i++) servers[i] = servers[i] ? servers[i] : open_server(0);
    gn_transport t[2] = { connect_to(servers[0], "first"), connect_to(servers[1], "second") };
    gn_ctx *g = gn_open_transports(
        &(gn_desc){ .devices = "cpu", .threads = 1, .trace = note_event, .trace_user = &s, .keep_placement = true }, t,
        cpu, 2);
    const float x[4] = { 1, 2, 3, 4 };
    float out[4];
    on(g, 1);
    gn_tensor d = gn_data(g, GN_F32, GN_SHAPE(4), x), a = gn_exp(d);
    on(g, 2);
    gn_tensor b = gn_neg(d);
    on(g, 0);
    CHECK_RESULT(gn_read(gn_add(a, b), out, sizeof out), GN_OK);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_close(g);
    for (size_t i = 0; i < GN__LENGTH(must); i++)
        if (place_of(s.names, must[i]) < 0) test_fail(__FILE__, __LINE__, "no \"%s\" in %s", must[i], s.names);
    long wait = place_of(s.names, ":wait;");
    CHECK(place_of(s.names, "first/cpu:0:submit;") < wait && place_of(s.names, "second/cpu:0:submit;") < wait);
    CHECK(s.ordered);
    CHECK_INT(s.bytes, 16 + 16 + 32 + 16); /* the data to both, both results to the third, what is read */
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(training_placed_anywhere_equals_one_device),
        TEST_ENTRY(decoding_placed_anywhere_equals_one_device),
        TEST_ENTRY(random_graphs_placed_anywhere_equal_one_device),
        TEST_ENTRY(devices_are_counted_and_named),
        TEST_ENTRY(a_device_named_twice_is_refused),
        TEST_ENTRY(describe_names_the_device_of_each_value),
        TEST_ENTRY(a_state_keeps_its_home_and_its_old_value_until_all_have_read_it),
        TEST_ENTRY(an_error_of_a_device_has_op_label_and_place),
        TEST_ENTRY(a_state_written_by_a_step_that_fails_elsewhere_is_failed),
        TEST_ENTRY(a_state_of_the_device_that_fails_keeps_its_value),
        TEST_ENTRY(a_lost_device_is_named_and_the_rest_lives),
        TEST_ENTRY(a_server_that_closes_mid_step_is_an_error),
        TEST_ENTRY(a_device_without_room_is_a_typed_error_and_the_rest_lives),
        TEST_ENTRY(contexts_over_several_devices_survive_memory_that_runs_out),
        TEST_ENTRY(bytes_that_cross_are_those_of_the_schedule),
        TEST_ENTRY(the_scheduler_sees_the_cluster_that_was_set),
        TEST_ENTRY(what_a_device_refuses_runs_on_the_cpu_beside_it),
        TEST_ENTRY(what_a_server_s_device_refuses_runs_on_its_cpu_and_is_told),
        TEST_ENTRY(strict_makes_a_fallback_an_error),
        TEST_ENTRY(strict_makes_a_fallback_of_a_server_an_error),
        TEST_ENTRY(what_a_device_of_several_refuses_runs_on_another),
        TEST_ENTRY(a_graph_is_copied_once_on_its_way_to_a_device),
        TEST_ENTRY(what_a_device_holds_goes_on_when_the_cpu_comes_beside_it),
        TEST_ENTRY(random_graphs_with_ops_that_are_refused_equal_one_device),
        TEST_ENTRY(putting_the_cpu_beside_a_device_survives_memory_that_runs_out),
        TEST_ENTRY(kept_values_with_the_largest_ids_leave_no_room_for_the_cpu_beside_a_device),
        TEST_ENTRY(values_that_are_taken_over_equal_those_of_one_device),
        TEST_ENTRY(costs_of_servers_and_links_are_known_and_kept_current),
        TEST_ENTRY(costs_that_make_no_sense_are_refused),
        TEST_ENTRY(a_server_that_tells_no_costs_is_a_device_like_others),
        TEST_ENTRY(a_plan_follows_the_costs_and_comes_back),
        TEST_ENTRY(a_plan_stays_where_the_program_wants_it_to_stay),
        TEST_ENTRY(a_state_moves_when_that_pays),
        TEST_ENTRY(noise_moves_no_plan),
        TEST_ENTRY(a_plan_leaves_a_slow_link_and_comes_back),
        TEST_ENTRY(a_plan_leaves_a_slow_device_and_comes_back),
        TEST_ENTRY(placing_anew_respects_strict),
        TEST_ENTRY(placing_anew_survives_memory_that_runs_out),
        TEST_ENTRY(an_error_of_a_queued_step_is_told_by_the_next_call),
        TEST_ENTRY(a_device_that_does_not_answer_is_lost_at_the_deadline),
        TEST_ENTRY(this_cpu_and_a_server_over_tls_equal_one_device),
        TEST_ENTRY(trace_tells_every_call_and_every_slot),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    close_servers();
    loopback_close();
    return test_end();
}
