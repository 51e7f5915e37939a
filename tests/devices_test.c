/* Contexts over several devices: this CPU and one or two servers in this process. Whatever is placed where, results are those of
 * one device, bit for bit; what fails is told with its cause, and the rest lives. */
#define GENIE_EXT
#include "genie.h"
#include "test.h"
#include "loopback.h"

/* ---- a cluster: this CPU and servers over socketpairs ---- */

enum { SERVERS = 2 };
static gn_server *servers[SERVERS];
static const char *const server_names[SERVERS] = { "first", "second" };
static char last_log[512];

static void note_log(void *user, gn_log_level level, const char *text)
{
    (void)user;
    (void)level;
    snprintf(last_log, sizeof last_log, "%s", text);
}

static gn_server *open_server(uint64_t memory)
{
    gn_server *s = NULL;
    gn_error error;
    gn_server_desc desc = { .listen = "none", .devices = "cpu", .threads = 1, .memory_limit = memory };
    if (gn_server_open(&desc, &s, &error) != GN_OK) {
        printf("a server does not open: %s\n0 passed, 1 failed, 0 skipped\n", error.text);
        exit(1);
    }
    return s;
}

static gn_transport connect_to(gn_server *s, const char *name)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || gn_server_attach(s, loopback_transport(ends[0]), "test") != GN_OK) {
        exit(2);
    }
    return loopback_transport_to(ends[1], name);
}

/* cpu, then n servers. */
static gn_ctx *open_cluster(const char *local, int n)
{
    static const char *const cpu[SERVERS] = { "cpu", "cpu" };
    gn_transport t[SERVERS];
    for (int i = 0; i < n; i++) {
        if (!servers[i]) {
            servers[i] = open_server(0);
        }
        t[i] = connect_to(servers[i], server_names[i]);
    }
    gn_desc desc = { .devices = local, .threads = 1, .deadline_ms = 20000, .log = note_log };
    return gn_open_transports(&desc, t, cpu, n);
}

static void close_servers(void)
{
    for (int i = 0; i < SERVERS; i++) {
        gn_server_close(servers[i]);
        servers[i] = NULL;
    }
}

static gn_ctx *open_cpu(void) { return gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 }); }

/* The nodes from here on run on a random device, or where the scheduler wants. On one device: nothing. */
static void anywhere(gn_ctx *g)
{
    int n = gn_device_count(g), device = (int)test_random_int(-1, n - 1);
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    if (n > 1) {
        gn_on(g, device < 0 ? NULL : index);
    }
}

static void on(gn_ctx *g, int device)
{
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    CHECK_RESULT(gn_on(g, index), GN_OK);
}

static gn_stats stats_of(gn_ctx *g)
{
    gn_stats s;
    gn_get_stats(g, &s);
    return s;
}

static bool same(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
            test_fail(__FILE__, __LINE__, "%s[%zu] is %.9g on several devices, %.9g on one", what, i, (double)a[i], (double)b[i]);
            return false;
        }
    }
    return true;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)test_random_real(-1, 1);
    }
}

/* ---- training ---- */

enum { IN = 12, HIDDEN = 20, OUT = 5, BATCH = 8 };

typedef struct mlp { gn_tensor w[4], m[4], v[4]; } mlp;
typedef struct mlp_start { float w1[IN * HIDDEN], b1[HIDDEN], w2[HIDDEN * OUT], b2[OUT]; } mlp_start;

static mlp mlp_make(gn_ctx *g, const mlp_start *s)
{
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

static gn_result mlp_step(gn_ctx *g, mlp *n, const float *x, const int32_t *labels, double step, float *out_loss)
{
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
    if (r == GN_OK) {
        r = gn_adamw(&d, n->w, grads, n->m, n->v, 4);
    }
    if (r == GN_OK) {
        r = gn_read(loss, out_loss, sizeof *out_loss);
    }
    gn_step(g);
    return r;
}

static void train(int n_servers, int steps)
{
    gn_ctx *g[2] = { open_cluster("cpu", n_servers), open_cpu() };
    mlp_start start;
    float x[BATCH * IN], loss[2] = { 0, 0 }, w[2][HIDDEN * OUT];
    int32_t labels[BATCH];
    fill((float *)&start, sizeof start / sizeof(float));
    REQUIRE(CHECK_RESULT(gn_status(g[0]), GN_OK));
    mlp n[2] = { mlp_make(g[0], &start), mlp_make(g[1], &start) };
    for (int step = 1; step <= steps; step++) {
        fill(x, BATCH * IN);
        for (int i = 0; i < BATCH; i++) {
            labels[i] = (int32_t)test_random_int(0, OUT - 1);
        }
        for (int k = 0; k < 2; k++) {
            gn_result r = mlp_step(g[k], &n[k], x, labels, step, &loss[k]);
            if (!CHECK_RESULT(r, GN_OK)) {
                printf("  %s\n", gn_last_error(g[k])->text);
                goto end;
            }
        }
        if (!same("loss", &loss[0], &loss[1], 1)) {
            break;
        }
    }
    for (int k = 0; k < 2; k++) {
        CHECK_RESULT(gn_read(n[k].w[2], w[k], sizeof w[k]), GN_OK);
    }
    same("w2", w[0], w[1], HIDDEN * OUT);
end:
    gn_close(g[0]);
    gn_close(g[1]);
}

TEST(training_placed_anywhere_equals_one_device)
{
    for (int i = 0; i < 6; i++) {
        train(1 + i % SERVERS, 6);
    }
}

/* ---- decoding ---- */

enum { WIDTH = 16, HEADS = 2, CONTEXT = 12, VOCABULARY = 11, LAYERS = 2 };

typedef struct layer { gn_tensor wq, wk, wv, wo, up, down, k, v; } layer;
typedef struct gpt { gn_tensor table; layer layers[LAYERS]; } gpt;
typedef struct gpt_start { float table[VOCABULARY * WIDTH], w[LAYERS][4][WIDTH * WIDTH], up[LAYERS][WIDTH * 2 * WIDTH], down[LAYERS][WIDTH * 2 * WIDTH]; } gpt_start;

static gpt gpt_make(gn_ctx *g, const gpt_start *s)
{
    gn_shape square = GN_SHAPE(WIDTH, WIDTH), cache = GN_SHAPE(1, HEADS, CONTEXT, WIDTH / HEADS);
    gpt n = { .table = gn_weight(g, GN_F32, GN_SHAPE(VOCABULARY, WIDTH), s->table, "table") };
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &n.layers[i];
        gn_tensor *const w[4] = { &l->wq, &l->wk, &l->wv, &l->wo };
        for (int k = 0; k < 4; k++) {
            *w[k] = gn_weight(g, GN_F32, square, s->w[i][k], "w");
        }
        l->up = gn_weight(g, GN_F32, GN_SHAPE(WIDTH, 2 * WIDTH), s->up[i], "up");
        l->down = gn_weight(g, GN_F32, GN_SHAPE(2 * WIDTH, WIDTH), s->down[i], "down");
        l->k = gn_state(g, GN_F32, cache, NULL, "k");
        l->v = gn_state(g, GN_F32, cache, NULL, "v");
    }
    return n;
}

static gn_tensor heads(gn_tensor x, int64_t rows)
{
    return gn_permute(gn_reshape(x, GN_SHAPE(1, rows, HEADS, WIDTH / HEADS)), GN_AXES(0, 2, 1, 3));
}

static gn_tensor block(gn_ctx *g, layer *l, gn_tensor x, int64_t rows, gn_tensor pos, gn_tensor length)
{
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

static gn_result gpt_step(gn_ctx *g, gpt *n, const int32_t *ids, int64_t rows, int64_t position, float *out_logits)
{
    anywhere(g);
    gn_tensor x = gn_embedding(n->table, gn_data(g, GN_I32, GN_SHAPE(rows), ids));
    gn_tensor pos = gn_scalar(g, GN_I64, (double)position), length = gn_scalar(g, GN_I64, (double)(position + rows));
    for (int i = 0; i < LAYERS; i++) {
        x = block(g, &n->layers[i], x, rows, pos, length);
    }
    anywhere(g);
    gn_tensor last = gn_slice(x, 0, rows - 1, rows, 1);
    gn_tensor logits = gn_matmul(last, gn_transpose(n->table, 0, 1));
    gn_result r = gn_read(logits, out_logits, VOCABULARY * sizeof *out_logits);
    gn_step(g);
    return r;
}

static void decode(int n_servers)
{
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
        if (!same("logits", logits[0], logits[1], VOCABULARY)) {
            break;
        }
        for (int i = 1; i < VOCABULARY; i++) {
            best = logits[0][i] > logits[0][best] ? i : best;
        }
        ids[0] = best;
    }
end:
    gn_close(g[0]);
    gn_close(g[1]);
}

TEST(decoding_placed_anywhere_equals_one_device)
{
    for (int i = 0; i < 6; i++) {
        decode(1 + i % SERVERS);
    }
}

/* ---- random graphs: branches, kept values, states read and written, old versions read late ---- */

enum { POOL = 24, SIDE = 7 };

typedef struct walk { gn_tensor pool[POOL]; gn_tensor states[3]; int n; } walk;

static gn_tensor walk_op(gn_tensor a, gn_tensor b, int64_t which)
{
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
static void walk_grow(gn_ctx *g, walk *w, uint64_t seed, const float *data)
{
    uint64_t places = test__.stream;
    test__.stream = seed;
    w->n = 0;
    w->pool[w->n++] = gn_data(g, GN_F32, GN_SHAPE(SIDE, SIDE), data);
    for (int i = 0; i < 3; i++) {
        w->pool[w->n++] = w->states[i];
    }
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
static gn_result walk_use(walk *w, uint64_t seed, float (*out)[SIDE * SIDE])
{
    uint64_t saved = test__.stream;
    gn_tensor reads[6], some[3];
    void *to[6];
    size_t bytes[6];
    test__.stream = seed ^ 0x5eed;
    for (int i = 0; i < 3; i++) {
        some[i] = w->pool[test_random_int(4, POOL - 1)];
    }
    gn_result r = test_random_int(0, 1) ? gn_realize(some, 3) : GN_OK;
    for (int i = 0; i < 3; i++) {
        if (test_random_int(0, 1)) {
            gn_assign(w->states[i], gn_tanh(w->pool[test_random_int(4, POOL - 1)]));
        }
    }
    for (int i = 0; i < 6; i++) {
        reads[i] = i < 2 ? w->pool[test_random_int(0, 3)] : w->pool[test_random_int(4, POOL - 1)];
        to[i] = out[i];
        bytes[i] = sizeof out[i];
    }
    if (r == GN_OK) {
        r = gn_read_many(reads, 6, to, bytes);
    }
    test__.stream = saved;
    return r;
}

static void random_graphs(int n_servers, int steps)
{
    gn_ctx *g[2] = { open_cluster("cpu", n_servers), open_cpu() };
    static float out[2][6][SIDE * SIDE];
    float data[SIDE * SIDE], first[SIDE * SIDE];
    walk w[2];
    fill(first, SIDE * SIDE);
    REQUIRE(CHECK_RESULT(gn_status(g[0]), GN_OK));
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++) {
            w[k].states[i] = gn_state(g[k], GN_F32, GN_SHAPE(SIDE, SIDE), first, "s");
        }
    }
    for (int step = 0; step < steps; step++) {
        uint64_t seed = test_random();
        bool ok = true;
        fill(data, SIDE * SIDE);
        for (int k = 0; k < 2 && ok; k++) {
            walk_grow(g[k], &w[k], seed, data);
            for (int again = 0; again < 2 && ok; again++) {
                gn_result r = walk_use(&w[k], seed + (uint64_t)again, out[k]);
                ok = CHECK_RESULT(r, again ? r == GN_SUPERSEDED ? GN_SUPERSEDED : GN_OK : GN_OK);
                if (!ok) {
                    printf("  context %d: %s\n", k, gn_last_error(g[k])->text);
                }
            }
            gn_step(g[k]);
        }
        if (!ok || !same("values", out[0][0], out[1][0], 6 * SIDE * SIDE)) {
            break;
        }
    }
    CHECK(n_servers == 0 || stats_of(g[0]).transfers > 0);
    CHECK_INT(stats_of(g[1]).transfers, 0);
    gn_close(g[0]);
    gn_close(g[1]);
}

TEST(random_graphs_placed_anywhere_equal_one_device)
{
    for (int i = 0; i < 8; i++) {
        random_graphs(1 + i % SERVERS, 12);
    }
}

int main(int argc, char **argv)
{
    static const test_entry tests[] = {
        TEST_ENTRY(training_placed_anywhere_equals_one_device),
        TEST_ENTRY(decoding_placed_anywhere_equals_one_device),
        TEST_ENTRY(random_graphs_placed_anywhere_equal_one_device),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    close_servers();
    return test_end();
}
