/* A context over two GPUs beside one over the first of them: equal bits, whatever runs where; states that move, faults,
 * large values in plain and pinned memory, contexts of several threads, a server with both. Numbers are whole and
 * small, so that every sum is exact. Skips with fewer than two GPUs; tests/shim_test.sh runs it on two devices of
 * tests/cuda_shim.c.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include <pthread.h>

#include "test.h"
#include "loopback.h"

static const char *const names = "cuda:0,cuda:1", *const first_name = "cuda:0";
static bool real; /* not the shim: large shapes, and times that mean something */

static gn_ctx *open_on(const char *devices) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = devices });
    if (!CHECK_RESULT(gn_status(g), GN_OK)) printf("  %s: %s\n", devices, gn_last_error(g)->text);
    return g;
}

/* The nodes from here on run on that device; in a context over one device: there. */
static void on(gn_ctx *g, int device) {
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    if (gn_device_count(g) > 1) CHECK_RESULT(gn_on(g, index), GN_OK);
}

static void anywhere(gn_ctx *g) { on(g, (int)test_random_int(0, 1)); }

static bool well(gn_ctx *g, gn_result r) {
    if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s: %s", gn_result_name(r), gn_last_error(g)->text);
    return r == GN_OK;
}

/* Whole numbers of -2 to 2. */
static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)test_random_int(-2, 2);
}

static void same(const char *what, const float *several, const float *one, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&several[i], &one[i], sizeof one[i]) != 0) {
            test_fail(__FILE__, __LINE__, "%s[%zu] is %.9g on two devices, %.9g on one", what, i, (double)several[i],
                      (double)one[i]);
            return;
        }
    }
}

static gn_stats stats_at(gn_ctx *g, int device) {
    gn_stats s;
    memset(&s, 0, sizeof s);
    CHECK_RESULT(gn_get_device_stats(g, device, &s), GN_OK);
    return s;
}

/* ---- random graphs with states, placed anywhere ---- */

enum { POOL = 16, SIDE = 8, STATES = 3, STEPS = 5 };

typedef struct walk {
    gn_tensor pool[POOL], states[STATES];
    int n;
} walk;

static gn_tensor walk_op(gn_tensor a, gn_tensor b, int64_t which) {
    gn_tensor low = gn_clamp(a, -2, 2), other = gn_clamp(b, -2, 2); /* so that all numbers stay exact */
    switch (which) {
    case 0: return gn_add(low, other);
    case 1: return gn_mul(low, other);
    case 2: return gn_matmul(low, other);
    case 3: return gn_relu(low);
    case 4: return gn_sub(low, gn_transpose(other, 0, 1));
    case 5: return gn_maximum(low, gn_sum(other, GN_AXES(0), true));
    default: return gn_mul_c(low, 2);
    }
}

/* later: the results are there when the context was waited for. */
static void walk_step(gn_ctx *g, walk *w, uint64_t moves, const float *data, float (*out)[SIDE * SIDE], bool later) {
    uint64_t places = test__.stream;
    gn_tensor reads[4];
    void *to[4];
    size_t bytes[4];
    w->n = 0;
    w->pool[w->n++] = gn_data(g, GN_F32, GN_SHAPE(SIDE, SIDE), data);
    for (int i = 0; i < STATES; i++) w->pool[w->n++] = w->states[i];
    while (w->n < POOL) {
        test__.stream = places;
        anywhere(g);
        places = test__.stream;
        test__.stream = moves;
        int a = (int)test_random_int(0, w->n - 1), b = (int)test_random_int(0, w->n - 1);
        w->pool[w->n] = walk_op(w->pool[a], w->pool[b], test_random_int(0, 6));
        w->n++;
        moves = test__.stream;
    }
    test__.stream = moves;
    if (test_random_int(0, 1)) well(g, gn_realize(w->pool + POOL - 2, 2)); /* kept, then used by the next cut */
    for (int i = 0; i < STATES; i++)
        if (test_random_int(0, 1)) gn_assign(w->states[i], gn_clamp(w->pool[test_random_int(4, POOL - 1)], -2, 2));
    for (int i = 0; i < 4; i++) {
        reads[i] = w->pool[test_random_int(i ? 4 : 0, POOL - 1)];
        to[i] = out[i];
        bytes[i] = sizeof out[i];
    }
    uint64_t ticket;
    well(g, later ? gn_read_later(reads, 4, to, bytes, &ticket) : gn_read_many(reads, 4, to, bytes));
    CHECK_RESULT(gn_step(g), GN_OK);
    test__.stream = places;
}

static void graphs_placed_anywhere_equal_one_device(void) {
    static float out[2][4][SIDE * SIDE];
    float data[SIDE * SIDE], start[SIDE * SIDE];
    gn_ctx *g[2] = { open_on(names), open_on(first_name) };
    walk w[2];
    fill(start, SIDE * SIDE);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < STATES; i++) w[k].states[i] = gn_state(g[k], GN_F32, GN_SHAPE(SIDE, SIDE), start, "s");
    for (int step = 0; step < (real ? 40 : STEPS); step++) {
        uint64_t moves = test_random();
        fill(data, SIDE * SIDE);
        for (int k = 0; k < 2; k++) walk_step(g[k], &w[k], moves, data, out[k], false);
        same("values", out[0][0], out[1][0], sizeof out[0] / sizeof(float));
    }
    CHECK(stats_at(g[0], 0).kernels_run > 0 && stats_at(g[0], 1).kernels_run > 0);
    CHECK(stats_at(g[0], 0).transfers + stats_at(g[0], 1).transfers > 0);
    CHECK((stats_at(g[0], 0).transfers_direct + stats_at(g[0], 1).transfers_direct > 0) == !getenv("GENIE_CUDA_PEER"));
    gn_close(g[0]);
    gn_close(g[1]);
}

/* The same with some steps under way at once. */
static void steps_under_way_together_equal_one_device(void) {
    enum { AHEAD = 4 };
    static float out[2][AHEAD][4][SIDE * SIDE];
    float data[SIDE * SIDE], start[SIDE * SIDE];
    gn_ctx *g[2] = { open_on(names), open_on(first_name) };
    walk w[2];
    fill(start, SIDE * SIDE);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < STATES; i++) w[k].states[i] = gn_state(g[k], GN_F32, GN_SHAPE(SIDE, SIDE), start, "s");
    for (int step = 0; step < (real ? 40 : AHEAD); step++) {
        uint64_t moves = test_random();
        fill(data, SIDE * SIDE);
        for (int k = 0; k < 2; k++) walk_step(g[k], &w[k], moves, data, out[k][step % AHEAD], true);
        if (step % AHEAD != AHEAD - 1) continue;
        for (int k = 0; k < 2; k++) well(g[k], gn_sync(g[k]));
        same("values", out[0][0][0], out[1][0][0], sizeof out[0] / sizeof(float));
    }
    gn_close(g[0]);
    gn_close(g[1]);
}

/* ---- what the scheduler offers: branches, stages, a product cut by columns ---- */

/* Two towers that meet; each begins with a product. */
static gn_tensor branches(gn_ctx *g, const gn_tensor w[4], gn_tensor x) {
    gn_tensor y[2];
    for (int i = 0; i < 2; i++) {
        on(g, i);
        y[i] = gn_relu(gn_matmul(gn_clamp(gn_matmul(x, w[2 * i]), -2, 2), w[2 * i + 1]));
    }
    on(g, 0);
    return gn_sub(y[0], y[1]);
}

/* Layers one after the other, half of them on each device. */
static gn_tensor stages(gn_ctx *g, const gn_tensor w[4], gn_tensor x) {
    for (int i = 0; i < 4; i++) {
        on(g, i / 2);
        x = gn_clamp(gn_matmul(x, w[i]), -2, 2);
    }
    return x;
}

/* Half of the columns of each product on each device. */
static gn_tensor columns(gn_ctx *g, const gn_tensor w[4], gn_tensor x) {
    int64_t n = real ? 512 : 16;
    for (int i = 0; i < 2; i++) {
        gn_tensor half[2];
        for (int d = 0; d < 2; d++) {
            on(g, d);
            half[d] = gn_clamp(gn_matmul(x, gn_slice(w[i], 1, d * n / 2, (d + 1) * n / 2, 1)), -2, 2);
        }
        on(g, 1);
        x = gn_concat(half, 2, 1);
    }
    return x;
}

/* Half of the rows of the batch on each device, with the same weights. */
static gn_tensor rows(gn_ctx *g, const gn_tensor w[4], gn_tensor x) {
    gn_tensor half[2];
    int64_t n = real ? 256 : 8;
    for (int d = 0; d < 2; d++) {
        on(g, d);
        half[d] = gn_matmul(gn_clamp(gn_matmul(gn_slice(x, 0, d * n / 2, (d + 1) * n / 2, 1), w[0]), -2, 2), w[1]);
    }
    on(g, 0);
    return gn_concat(half, 2, 0);
}

static void branches_stages_and_cut_products_equal_one_device(void) {
    static gn_tensor (*const forms[])(gn_ctx *, const gn_tensor[4], gn_tensor) = { branches, stages, columns, rows };
    int64_t n = real ? 512 : 16, batch = real ? 256 : 8;
    size_t bytes = (size_t)(n * batch) * sizeof(float);
    gn_ctx *g[2] = { open_on(names), open_on(first_name) };
    float *x = malloc(bytes), *out[2] = { malloc(bytes), malloc(bytes) }, *weights[4];
    gn_tensor w[2][4];
    for (int i = 0; i < 4; i++) {
        fill(weights[i] = malloc((size_t)(n * n) * sizeof(float)), (size_t)(n * n));
        for (int k = 0; k < 2; k++) w[k][i] = gn_weight(g[k], GN_F32, GN_SHAPE(n, n), weights[i], "w");
    }
    for (int form = 0; form < TEST_COUNT(forms); form++) {
        for (int step = 0; step < 3; step++) { /* from the second on replayed, where that is possible */
            fill(x, (size_t)(n * batch));
            for (int k = 0; k < 2; k++) {
                memset(out[k], 0xff, bytes);
                gn_tensor y = forms[form](g[k], w[k], gn_data(g[k], GN_F32, GN_SHAPE(batch, n), x));
                well(g[k], gn_read(y, out[k], bytes));
                gn_step(g[k]);
            }
            same("values", out[0], out[1], bytes / sizeof(float));
        }
    }
    CHECK(stats_at(g[0], 1).kernels_run > 0 && stats_at(g[0], 1).transfers > 0);
    for (int k = 0; k < 2; k++) {
        gn_close(g[k]);
        free(out[k]);
    }
    for (int i = 0; i < 4; i++) free(weights[i]);
    free(x);
}

/* ---- states ---- */

/* A state that the program wants elsewhere moves there with its value, and back. */
static void a_state_moves_between_devices_with_its_value(void) {
    gn_ctx *g = open_on(names);
    enum { N = 300 };
    float start[N], out[N];
    fill(start, N);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(N), start, "s");
    for (int step = 0; step < 6; step++) {
        on(g, step / 2 % 2);
        gn_tensor next = gn_assign(s, gn_add_c(s, 1));
        memset(out, 0xff, sizeof out);
        well(g, gn_read(next, out, sizeof out));
        gn_step(g);
        for (int i = 0; i < N; i++) {
            if (out[i] != start[i] + (float)(step + 1)) {
                test_fail(__FILE__, __LINE__, "step %d: element %d is %g", step, i, (double)out[i]);
                break;
            }
        }
    }
    gn_close(g);
}

enum { WIDTH = 16, HEADS = 2, CONTEXT = 40, VOCABULARY = 29, LAYERS = 2 };
typedef struct decoder {
    gn_ctx *g;
    gn_tensor table, w[LAYERS][6], k[LAYERS], v[LAYERS];
} decoder;

static gn_tensor split_heads(gn_tensor x, int64_t n) {
    return gn_permute(gn_reshape(x, GN_SHAPE(1, n, HEADS, WIDTH / HEADS)), GN_AXES(0, 2, 1, 3));
}

/* The first layer and its cache on device 0, the second on device 1. Both contexts make the same pieces, so that the
   bits agree. */
static gn_result decode_step(decoder *m, const int32_t *ids, int64_t n, int64_t position, float *logits) {
    on(m->g, 0);
    gn_tensor x = gn_embedding(m->table, gn_data(m->g, GN_I32, GN_SHAPE(n), ids)),
              pos = gn_scalar(m->g, GN_I64, (double)position), length = gn_scalar(m->g, GN_I64, (double)(position + n));
    for (int i = 0; i < LAYERS; i++) {
        on(m->g, i);
        gn_tensor h = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
        gn_tensor k = gn_kv_append(m->k[i], split_heads(gn_matmul(h, m->w[i][1]), n), pos),
                  v = gn_kv_append(m->v[i], split_heads(gn_matmul(h, m->w[i][2]), n), pos);
        gn_attention_desc d = { .causal = true, .length = length };
        gn_tensor a = gn_attention(split_heads(gn_matmul(h, m->w[i][0]), n), k, v, &d);
        x = gn_add(x, gn_matmul(gn_reshape(gn_permute(a, GN_AXES(0, 2, 1, 3)), GN_SHAPE(n, WIDTH)), m->w[i][3]));
        x = gn_add(x, gn_matmul(gn_gelu(gn_matmul(gn_layernorm(x, GN_NONE, GN_NONE, 1e-5), m->w[i][4])), m->w[i][5]));
    }
    gn_tensor y = gn_matmul(gn_slice(x, 0, n - 1, n, 1), gn_transpose(m->table, 0, 1));
    gn_result r = gn_read(y, logits, VOCABULARY * sizeof *logits);
    gn_step(m->g);
    return r;
}

static void decoding_over_two_devices_chooses_the_tokens_of_one(void) {
    static float table[VOCABULARY * WIDTH], data[LAYERS][6][WIDTH * 2 * WIDTH];
    decoder m[2] = { { .g = open_on(names) }, { .g = open_on(first_name) } };
    int32_t ids[4] = { 1, 5, 3, 2 };
    float logits[2][VOCABULARY];
    for (int i = 0; i < VOCABULARY * WIDTH; i++) table[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < LAYERS * 6 * WIDTH * 2 * WIDTH; i++)
        data[i / (6 * WIDTH * 2 * WIDTH)][i / (WIDTH * 2 * WIDTH) % 6][i % (WIDTH * 2 * WIDTH)] =
            (float)test_random_real(-0.3, 0.3);
    for (int c = 0; c < 2; c++) {
        m[c].table = gn_weight(m[c].g, GN_F32, GN_SHAPE(VOCABULARY, WIDTH), table, "table");
        for (int i = 0; i < LAYERS; i++) {
            for (int k = 0; k < 6; k++)
                m[c].w[i][k] = gn_weight(m[c].g, GN_F32,
                                         k < 4    ? GN_SHAPE(WIDTH, WIDTH)
                                         : k == 4 ? GN_SHAPE(WIDTH, 2 * WIDTH)
                                                  : GN_SHAPE(2 * WIDTH, WIDTH),
                                         data[i][k], "w");
            m[c].k[i] = gn_state(m[c].g, GN_F32, GN_SHAPE(1, HEADS, CONTEXT, WIDTH / HEADS), NULL, "k");
            m[c].v[i] = gn_state(m[c].g, GN_F32, GN_SHAPE(1, HEADS, CONTEXT, WIDTH / HEADS), NULL, "v");
        }
    }
    for (int64_t at = 0, n = 4; at < (real ? CONTEXT - 4 : 9); at += n, n = 1) {
        int best[2] = { 0, 0 };
        for (int c = 0; c < 2; c++) {
            well(m[c].g, decode_step(&m[c], ids, n, at, logits[c]));
            for (int i = 1; i < VOCABULARY; i++) best[c] = logits[c][i] > logits[c][best[c]] ? i : best[c];
        }
        CHECK_INT(best[0], best[1]);
        for (int i = 0; i < VOCABULARY; i++) CHECK_NEAR(logits[0][i], logits[1][i], 1e-4);
        ids[0] = best[1];
    }
    CHECK(stats_at(m[0].g, 0).kernels_run > 0 && stats_at(m[0].g, 1).kernels_run > 0);
    gn_close(m[0].g);
    gn_close(m[1].g);
}

/* ---- large values: they land, leave and cross beside the kernels, in plain memory and in the context's pinned
   memory */

typedef struct large {
    gn_ctx *g;
    int64_t n, few;
    float *start, *x[2], *out[2], *ends[2];
    gn_tensor states[2];
} large;

/* Of what lands only the end is computed with, and what leaves are the states: fibres are slow. */
static void large_step(large *l) {
    size_t bytes = (size_t)l->n * sizeof(float), few = (size_t)l->few * sizeof(float);
    gn_tensor y[2];
    for (int i = 0; i < 2; i++) {
        fill(l->x[i], (size_t)l->n);
        memset(l->out[i], 0xff, bytes);
        memset(l->ends[i], 0xff, few);
        on(l->g, i);
        y[i] = gn_mul_c(gn_slice(gn_data(l->g, GN_F32, GN_SHAPE(l->n), l->x[i]), 0, l->n - l->few, l->n, 1), 3);
    }
    on(l->g, 1);
    /* the other device's state too */
    gn_tensor sum = gn_add(y[0], y[1]), mixed = gn_add(gn_slice(l->states[0], 0, 0, l->few, 1), y[1]);
    on(l->g, 0);
    gn_tensor want[4] = { gn_sub(sum, y[1]), mixed, l->states[0], l->states[1] };
    well(l->g, gn_read_many(want, 4, (void *[4]){ l->ends[0], l->ends[1], l->out[0], l->out[1] },
                            (size_t[4]){ few, few, bytes, bytes }));
    gn_step(l->g);
    int64_t wrong = 0;
    for (int64_t i = 0, at = l->n - l->few; i < l->few; i++, at++)
        wrong += l->ends[0][i] != 3 * l->x[0][at] || l->ends[1][i] != l->start[i] + 3 * l->x[1][at];
    CHECK_INT(wrong, 0);
    CHECK(memcmp(l->out[0], l->start, bytes) == 0 && memcmp(l->out[1], l->start, bytes) == 0);
}

static void large_values_cross_from_plain_and_pinned_memory(void) {
    large l = { .g = open_on(names), .n = real ? 8 << 20 : 600 << 10, .few = real ? 1 << 20 : 64 };
    size_t bytes = (size_t)l.n * sizeof(float);
    fill(l.start = malloc(bytes), (size_t)l.n);
    for (int i = 0; i < 2; i++) {
        on(l.g, i);
        l.states[i] = gn_state(l.g, GN_F32, GN_SHAPE(l.n), l.start, "large");
        l.ends[i] = malloc((size_t)l.few * sizeof(float));
    }
    for (int pinned = 0; pinned < 2; pinned++) {
        for (int i = 0; i < 2; i++) {
            l.x[i] = pinned ? gn_host_alloc(l.g, bytes) : malloc(bytes);
            l.out[i] = pinned ? gn_host_alloc(l.g, bytes) : malloc(bytes);
            REQUIRE(l.x[i] && l.out[i]);
        }
        for (int step = 0; step < 3; step++) large_step(&l);
        for (int i = 0; i < 2; i++) {
            pinned ? gn_host_free(l.g, l.x[i]) : free(l.x[i]);
            pinned ? gn_host_free(l.g, l.out[i]) : free(l.out[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        CHECK(stats_at(l.g, i).copies_aside > 0 && stats_at(l.g, i).copies_waited == 0);
        free(l.ends[i]);
    }
    gn_close(l.g);
    free(l.start);
}

/* ---- faults ---- */

/* An index out of range on one device: told with its op, and the state of the other device is what it was or failed. */
static void a_fault_on_the_second_device_is_told_with_its_op(void) {
    gn_ctx *g = open_on(names);
    const float x[4] = { 1, 2, 3, 4 };
    int32_t index = 9, good = 2;
    float out = 0;
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(4), x, "s");
    for (int step = 0; step < 4; step++) {
        on(g, 0);
        gn_tensor y = gn_add_c(s, 1);
        on(g, 1);
        gn_tensor z = gn_gather(y, 0, gn_data(g, GN_I32, GN_SHAPE(1), step % 2 ? &good : &index));
        on(g, 0);
        gn_result r = gn_read(gn_add_c(z, 1), &out, sizeof out);
        if (step % 2) {
            well(g, r);
            CHECK(out == 5);
        } else {
            CHECK_RESULT(r, GN_INDEX_OUT_OF_RANGE);
            CHECK(strstr(gn_last_error(g)->text, "index 9 is outside 0 to 3") != NULL);
        }
        gn_step(g);
    }
    gn_close(g);
}

/* ---- threads: contexts of both devices at once; some close while others run ---- */

enum { THREADS = 4, ROUNDS = 6 };
typedef struct worker {
    pthread_t thread;
    const char *devices;
    int number, wrong;
} worker;

static void *worker_main(void *self) {
    worker *t = self;
    int rounds = real ? 4 * ROUNDS : ROUNDS;
    for (int open = 0; open < 2; open++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = t->devices });
        gn_tensor sum = gn_state(g, GN_F32, GN_SHAPE(64), NULL, "sum");
        float x[64], out[64];
        t->wrong += gn_status(g) != GN_OK;
        for (int step = 0; step < rounds; step++) {
            for (int i = 0; i < 64; i++) x[i] = (float)(t->number + i + step);
            if (gn_device_count(g) > 1) gn_on(g, step % 2 ? "1" : "0");
            gn_tensor y = gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(64), x), 2);
            gn_tensor next = gn_assign(sum, gn_add(sum, y));
            t->wrong += gn_read(next, out, sizeof out) != GN_OK;
            gn_step(g);
            for (int i = 0; i < 64; i++)
                t->wrong += out[i] != (float)((step + 1) * 2 * (t->number + i) + step * (step + 1));
        }
        gn_close(g);
    }
    return NULL;
}

static void contexts_of_several_threads_do_not_disturb_each_other(void) {
    static const char *const devices[THREADS] = { "cuda:0", "cuda:1", "cuda:0,cuda:1", "cuda:1,cuda:0" };
    worker all[THREADS];
    for (int i = 0; i < THREADS; i++) {
        all[i] = (worker){ .devices = devices[i], .number = 10 * i };
        REQUIRE(pthread_create(&all[i].thread, NULL, worker_main, &all[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(all[i].thread, NULL);
        CHECK_INT(all[i].wrong, 0);
    }
}

/* One thread works with both in turn: each call finds its own context. */
static void contexts_of_one_thread_take_turns(void) {
    gn_ctx *g[2] = { open_on("cuda:0"), open_on("cuda:1") };
    uint64_t tickets[2];
    float x[2] = { 1, 2 }, out[2][4];
    size_t bytes = sizeof x;
    gn_tensor s[2];
    for (int k = 0; k < 2; k++) s[k] = gn_state(g[k], GN_F32, GN_SHAPE(2), x, "s");
    for (int step = 0; step < 6; step++) {
        for (int k = 0; k < 2; k++) {
            gn_tensor next = gn_assign(s[k], gn_mul_c(s[k], k + 2));
            well(g[k], gn_read_later(&next, 1, (void *[1]){ out[k] }, &bytes, &tickets[k]));
            gn_step(g[k]);
        }
        for (int k = 1; k >= 0; k--) well(g[k], gn_wait(g[k], tickets[k]));
        CHECK(out[0][1] == 2 * (float)(1 << (step + 1)) && out[1][0] == powf(3, (float)(step + 1)));
    }
    gn_release(s[1]);
    gn_close(g[0]);
    gn_close(g[1]);
}

/* ---- a server that lends both ---- */

static gn_ctx *client_of(gn_server *s, const char *device) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        gn_server_attach(s, loopback_transport(ends[0]), "test") != GN_OK)
        exit(2);
    return gn_open_transport(&(gn_desc){ .deadline_ms = 60000 }, loopback_transport(ends[1]), device);
}

static void a_server_lends_each_of_two_clients_its_own_device(void) {
    static const char *const devices[2] = { "cuda:0", "cuda:1" };
    gn_server *s = NULL;
    gn_error error;
    gn_ctx *g[2];
    gn_tensor sums[2];
    float x[8], out[2][8];
    REQUIRE(CHECK_RESULT(gn_server_open(&(gn_server_desc){ .listen = "none", .devices = names }, &s, &error), GN_OK));
    for (int k = 0; k < 2; k++) {
        gn_device_info info;
        g[k] = client_of(s, devices[k]);
        CHECK_RESULT(gn_get_device(g[k], &info), GN_OK);
        CHECK(strstr(info.name, devices[k]) != NULL);
        sums[k] = gn_state(g[k], GN_F32, GN_SHAPE(8), NULL, "sum");
    }
    for (int step = 1; step <= 5; step++) {
        fill(x, 8);
        for (int k = 0; k < 2; k++) {
            gn_tensor next = gn_assign(sums[k], gn_add_c(sums[k], k + 1));
            gn_tensor y = gn_add(gn_mul_c(gn_data(g[k], GN_F32, GN_SHAPE(8), x), 10), next);
            well(g[k], gn_read(y, out[k], sizeof out[k]));
            gn_step(g[k]);
            for (int i = 0; i < 8; i++) CHECK(out[k][i] == 10 * x[i] + (float)(step * (k + 1)));
        }
    }
    gn_close(g[0]);
    gn_close(g[1]);
    gn_server_close(s);
}

/* ---- both work at the same time ---- */

static void both_devices_work_at_the_same_time(void) {
    enum { N = 4096, LAYERS_OF_ONE = 24, RUNS = 7 };
    if (!real) {
        test_skip("fibres run one after another");
        return;
    }
    gn_ctx *g = open_on(names);
    float *w = malloc((size_t)N * N * sizeof *w), out[2];
    double best[2] = { 1e9, 1e9 };
    fill(w, (size_t)N * N);
    gn_tensor weight = gn_weight(g, GN_F32, GN_SHAPE(N, N), w, "w");
    for (int run = 0; run < RUNS; run++) {
        for (int both = 0; both < 2; both++) {
            gn_tensor y[2];
            for (int d = 0; d <= both; d++) {
                on(g, d);
                gn_tensor x = gn_clamp(gn_mul_c(weight, run % 3 + 1), -1, 1);
                for (int i = 0; i < LAYERS_OF_ONE; i++) x = gn_clamp(gn_matmul(x, weight), -1, 1);
                y[d] = gn_sum(x, GN_ALL_AXES, false);
            }
            uint64_t from = gn_now_us();
            well(g, gn_read_many(y, both + 1, (void *[2]){ &out[0], &out[1] }, (size_t[2]){ 4, 4 }));
            double s = (double)(gn_now_us() - from) * 1e-6;
            if (run && s < best[both]) best[both] = s;
            gn_step(g);
        }
        CHECK(out[0] == out[1]);
    }
    printf("one branch on one GPU %.2f ms, two on two %.2f ms: %.2f times\n", best[0] * 1e3, best[1] * 1e3,
           best[1] / best[0]);
    CHECK(best[1] < 1.3 * best[0]);
    gn_close(g);
    free(w);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(graphs_placed_anywhere_equal_one_device),
        TEST_ENTRY(steps_under_way_together_equal_one_device),
        TEST_ENTRY(branches_stages_and_cut_products_equal_one_device),
        TEST_ENTRY(a_state_moves_between_devices_with_its_value),
        TEST_ENTRY(decoding_over_two_devices_chooses_the_tokens_of_one),
        TEST_ENTRY(large_values_cross_from_plain_and_pinned_memory),
        TEST_ENTRY(a_fault_on_the_second_device_is_told_with_its_op),
        TEST_ENTRY(contexts_of_several_threads_do_not_disturb_each_other),
        TEST_ENTRY(contexts_of_one_thread_take_turns),
        TEST_ENTRY(a_server_lends_each_of_two_clients_its_own_device),
        TEST_ENTRY(both_devices_work_at_the_same_time),
    };
    test_begin(argc, argv);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cuda:1" });
    gn_device_info info = { 0 };
    if (gn_status(g) != GN_OK || getenv("GENIE_CUDA_COMPILE_ONLY")) {
        printf("SKIP: gpu_several_test: two GPUs are needed: %s\n0 passed, 0 failed, %d skipped\n",
               gn_status(g) != GN_OK ? gn_last_error(g)->text : "kernels are compiled, not run", TEST_COUNT(tests));
        return 0;
    }
    gn_get_device(g, &info);
    real = strstr(info.identity, "fibres") == NULL;
    gn_close(g);
    for (int i = 0; i < TEST_COUNT(tests); i++) {
        uint64_t from = gn_now_us();
        test_all(tests + i, 1);
        if (test_wanted(tests[i].name)) printf("%6.1f s %s\n", (double)(gn_now_us() - from) * 1e-6, tests[i].name);
    }
    return test_end();
}
