/* Lazy graphs: what is deferred, how steps and plans are found again, what states, labels and errors mean. The tests
 * run on the CPU of this process and again on a server reached over a socketpair; what only one of them can show says
 * so in its name.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include "loopback.h"

#include <pthread.h>

static bool on_loopback;

static gn_ctx *open_seeded(uint64_t seed) {
    gn_desc desc = { .devices = on_loopback ? NULL : "cpu", .threads = 1, .seed = seed };
    gn_ctx *g = on_loopback ? loopback_open(&desc) : gn_open(&desc);
    CHECK_RESULT(gn_status(g), GN_OK);
    return g;
}

static gn_ctx *open_context(void) { return open_seeded(7); }

static gn_stats stats_of(gn_ctx *g) {
    gn_stats s;
    gn_get_stats(g, &s);
    return s;
}

static bool is_computed(gn_tensor t) {
    gn_info info;
    return gn_describe(t, &info) == GN_OK && info.computed;
}

static double read_f64(gn_tensor t) {
    double x = NAN;
    gn_result r = gn_read(t, &x, sizeof x);
    if (r != GN_OK) test_fail(__FILE__, __LINE__, "the read is %s: %s", gn_result_name(r), gn_last_error(t.ctx)->text);
    return x;
}

/* A 0-d f64 of this step, copied. */
static gn_tensor number(gn_ctx *g, double x) { return gn_data_copy(g, GN_F64, GN_SCALAR, &x); }

static gn_result described(gn_tensor t) {
    gn_info info;
    return gn_describe(t, &info);
}

/* ---- laziness ---- */

TEST(nothing_is_computed_before_a_read) {
    gn_ctx *g = open_context();
    double x[4] = { 1, 2, 3, 4 }, out[4];
    gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(4), x), y = gn_exp(gn_add_c(gn_mul(t, t), 1));
    gn_stats before = stats_of(g);
    CHECK(is_computed(t));
    CHECK(!is_computed(y));
    CHECK_INT(before.steps_run, 0);
    CHECK_INT(before.kernels_run, 0);
    CHECK(before.nodes_built >= 4);
    CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
    CHECK_NEAR(out[1], exp(5), 1e-9);
    CHECK_INT(stats_of(g).steps_run, 1);
    gn_close(g);
}

TEST(unread_nodes_are_never_computed) {
    gn_ctx *g = open_context();
    gn_tensor x = number(g, 2);
    int32_t one = 1, zero = 0;
    gn_tensor bad = gn_div(gn_data_copy(g, GN_I32, GN_SCALAR, &one), gn_data_copy(g, GN_I32, GN_SCALAR, &zero));
    CHECK_RESULT(described(bad), GN_OK);
    CHECK_NEAR(read_f64(gn_mul(x, x)), 4, 0);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_close(g);
}

TEST(borrowed_data_is_seen_at_the_read_and_copied_data_is_not) {
    gn_ctx *g = open_context();
    double x = 1;
    gn_tensor borrowed = gn_data(g, GN_F64, GN_SCALAR, &x), copied = gn_data_copy(g, GN_F64, GN_SCALAR, &x);
    x = 5;
    CHECK_NEAR(read_f64(gn_add_c(borrowed, 0)), 5, 0);
    CHECK_NEAR(read_f64(gn_add_c(copied, 0)), 1, 0);
    gn_close(g);
}

TEST(describe_tells_op_shape_dtype_and_bytes) {
    gn_ctx *g = open_context();
    float x[6] = { 0 };
    gn_info info;
    gn_tensor t =
        gn_label(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(2, 3), x), gn_data(g, GN_F32, GN_SHAPE(3, 1), x)), "product");
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    CHECK_RESULT(info.result, GN_OK);
    CHECK_STR(info.op, "matmul");
    CHECK_STR(info.label, "product");
    CHECK_STR(info.device, "");
    CHECK_INT(info.dtype, GN_F32);
    CHECK_INT(info.bytes, 8);
    CHECK(info.shape.rank == 2 && info.shape.dims[0] == 2 && info.shape.dims[1] == 1);
    CHECK_STR(info.residency, "activation");
    CHECK_STR(info.phase, "unknown");
    CHECK_INT(stats_of(g).steps_run, 0);
    gn_close(g);
}

TEST(describe_tells_residency_of_leaves) {
    gn_ctx *g = open_context();
    static float x[16] = { 0 };
    gn_info info;
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), NULL, "cache");
    const struct {
        gn_tensor t;
        const char *want;
    } leaves[] = {
        { gn_data(g, GN_F32, GN_SHAPE(4), x), "input" },
        { gn_weight(g, GN_F32, GN_SHAPE(4), x, "w"), "weight" },
        { gn_state(g, GN_F32, GN_SHAPE(4), x, "s"), "state" },
    };
    for (int i = 0; i < TEST_COUNT(leaves); i++) {
        CHECK_RESULT(gn_describe(leaves[i].t, &info), GN_OK);
        CHECK_STR(info.residency, leaves[i].want);
    }
    cache = gn_kv_append(cache, gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 2), x), gn_scalar(g, GN_I64, 0));
    CHECK_RESULT(gn_describe(cache, &info), GN_OK);
    CHECK_STR(info.residency, "kv cache");
    gn_close(g);
}

TEST(phase_that_is_said_marks_the_nodes_that_follow) {
    gn_ctx *g = open_context();
    static const struct {
        gn_phase_kind kind;
        const char *text;
    } phases[] = {
        { GN_FORWARD, "forward" },
        { GN_PREFILL, "prefill" },
        { GN_DECODE, "decode" },
        { GN_TRAINING, "training" },
    };
    for (int i = 0; i < TEST_COUNT(phases); i++) {
        gn_info info;
        gn_phase(g, phases[i].kind);
        CHECK_RESULT(gn_describe(gn_neg(number(g, 1)), &info), GN_OK);
        CHECK_STR(info.phase, phases[i].text);
    }
    gn_close(g);
}

TEST(realize_keeps_the_value_on_the_device) {
    gn_ctx *g = open_context();
    gn_tensor x = number(g, 3), y = gn_mul(x, x), z = gn_add(y, x), both[2] = { y, z };
    gn_info info;
    CHECK_RESULT(gn_realize(both, 2), GN_OK);
    CHECK_INT(stats_of(g).steps_run, 1);
    CHECK(is_computed(y) && is_computed(z));
    CHECK_RESULT(gn_describe(y, &info), GN_OK);
    CHECK(strstr(info.device, "cpu") != NULL);
    CHECK_NEAR(read_f64(y), 9, 0);
    CHECK_NEAR(read_f64(gn_add(y, z)), 21, 0);
    CHECK_RESULT(gn_sync(g), GN_OK);
    gn_close(g);
}

TEST(read_many_submits_one_plan) {
    gn_ctx *g = open_context();
    gn_tensor x = number(g, 3), t[3] = { gn_mul(x, x), x, gn_neg(gn_mul(x, x)) };
    double out[3];
    void *const hosts[3] = { &out[0], &out[1], &out[2] };
    const size_t bytes[3] = { 8, 8, 8 };
    gn_stats before = stats_of(g);
    CHECK_RESULT(gn_read_many(t, 3, hosts, bytes), GN_OK);
    gn_stats after = stats_of(g);
    CHECK_INT(after.steps_run - before.steps_run, 1);
    /* the plan's first use may wait once more */
    CHECK(after.round_trips - before.round_trips <= (on_loopback ? 2u : 0u));
    CHECK(out[0] == 9 && out[1] == 3 && out[2] == -9);
    before = after;
    CHECK_RESULT(gn_step(g), GN_OK);
    x = number(g, 4);
    gn_tensor again[3] = { gn_mul(x, x), x, gn_neg(gn_mul(x, x)) };
    CHECK_RESULT(gn_read_many(again, 3, hosts, bytes), GN_OK);
    after = stats_of(g);
    CHECK_INT(after.round_trips - before.round_trips, on_loopback ? 1 : 0);
    CHECK_INT(after.frames_up - before.frames_up, on_loopback ? 1 : 0);
    CHECK_INT(after.frames_down - before.frames_down, on_loopback ? 1 : 0);
    CHECK_INT(after.plans_made - before.plans_made, 0);
    CHECK(out[0] == 16 && out[1] == 4 && out[2] == -16);
    gn_close(g);
}

enum { MANY = 40000 };

/* CPU microseconds of reading n results of n leaves at once, the least of three; no result's memory is an argument's
   but one's. */
static double time_of_many(int n) {
    static double from[MANY], to[MANY];
    static gn_tensor t[MANY];
    static void *hosts[MANY];
    static size_t bytes[MANY];
    double best = INFINITY;
    for (int round = 0; round < 3; round++) {
        gn_ctx *g = open_context();
        for (int i = 0; i < n; i++) {
            from[i] = i;
            to[i] = NAN;
            t[i] = gn_neg(gn_data(g, GN_F64, GN_SCALAR, from + i));
            hosts[i] = i == 1 ? &from[n / 2] : &to[i]; /* overwrites what another result is still computed from */
            bytes[i] = sizeof *to;
        }
        double start = (double)clock();
        CHECK_RESULT(gn_read_many(t, n, hosts, bytes), GN_OK);
        best = fmin(best, ((double)clock() - start) * 1e6 / CLOCKS_PER_SEC);
        bool right = from[n / 2] == -1;
        for (int i = 0; i < n && right; i++) right = i == 1 || to[i] == -i;
        CHECK(right);
        gn_close(g);
    }
    return best;
}

TEST(many_results_of_many_leaves_take_linear_time) {
    if (on_loopback) return; /* of a run, not of the wire */
    double few = time_of_many(MANY / 4), many = time_of_many(MANY);
    printf("  %d results: %.1f ms, %d: %.1f ms\n", MANY / 4, few * 1e-3, MANY, many * 1e-3);
    CHECK(many <= 8 * few);
}

TEST(leaves_and_one_tensor_twice_can_be_read) {
    gn_ctx *g = open_context();
    double x = 3, w = 4, first = 5, out[5] = { 0 };
    gn_tensor t = gn_exp(number(g, 0)), slot = gn_state(g, GN_F64, GN_SCALAR, &first, "s");
    gn_tensor all[5] = { gn_data(g, GN_F64, GN_SCALAR, &x), gn_weight(g, GN_F64, GN_SCALAR, &w, "w"), slot, t, t };
    void *const hosts[5] = { &out[0], &out[1], &out[2], &out[3], &out[4] };
    const size_t bytes[5] = { 8, 8, 8, 8, 8 };
    CHECK_RESULT(gn_read_many(all, 5, hosts, bytes), GN_OK);
    CHECK(out[0] == 3 && out[1] == 4 && out[2] == 5 && out[3] == 1 && out[4] == 1);
    CHECK_RESULT(gn_realize(all, 5), GN_OK);
    CHECK_NEAR(read_f64(gn_add(t, all[0])), 4, 0);
    CHECK_RESULT(gn_read_many(all, 0, hosts, bytes), GN_OK);
    gn_close(g);
}

TEST(empty_tensors_can_be_read) {
    gn_ctx *g = open_context();
    gn_tensor none = gn_data(g, GN_F64, GN_SHAPE(0, 3), NULL);
    double sums[3] = { 1, 1, 1 };
    CHECK_RESULT(gn_read(gn_exp(none), NULL, 0), GN_OK);
    CHECK_RESULT(gn_read(gn_sum(none, GN_AXES(0), false), sums, sizeof sums), GN_OK);
    CHECK(sums[0] == 0 && sums[1] == 0 && sums[2] == 0);
    gn_close(g);
}

/* ---- fusion: whatever runs in one loop gives the bits that it gives alone ---- */

enum { POOL = 64, ROWS = 4, COLUMNS = 300, CELLS = ROWS * COLUMNS };

typedef struct pool {
    gn_ctx *g;
    gn_tensor t[POOL];
    int n;
    bool stepwise;
} pool;

static void pool_add(pool *p, gn_tensor t) {
    if (p->stepwise) CHECK_RESULT(gn_realize(&t, 1), GN_OK);
    p->t[p->n++] = t;
}

static gn_tensor pool_pick(const pool *p) { return p->t[test_random_int(0, p->n - 1)]; }

static gn_tensor pool_pick_as(const pool *p, gn_dtype d) { return gn_cast(pool_pick(p), d); }

/* Leaves of shapes that broadcast together, every dtype that is rounded after each op. */
static void pool_leaves(pool *p) {
    const gn_shape shapes[] = { GN_SCALAR, GN_SHAPE(COLUMNS), GN_SHAPE(ROWS, COLUMNS), GN_SHAPE(ROWS, 1),
                                GN_SHAPE(1, COLUMNS) };
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_I32, GN_I64, GN_U8, GN_BOOL, GN_I8, GN_I16, GN_U16, GN_U32 };
    double x[CELLS];
    for (int k = 0; k < 7; k++) {
        for (int i = 0; i < CELLS; i++) x[i] = test_random_real(-5, 5);
        gn_tensor t = gn_data_copy(p->g, GN_F64, GN_SHAPE(ROWS, COLUMNS), x);
        gn_shape shape = shapes[test_random_int(0, TEST_COUNT(shapes) - 1)];
        int64_t n = shape.rank == 0 ? 1 : shape.rank == 1 ? shape.dims[0] : shape.dims[0] * shape.dims[1];
        t = gn_reshape(gn_slice(gn_reshape(t, GN_SHAPE(CELLS)), 0, 0, n, 1), shape);
        pool_add(p, gn_cast(t, dtypes[test_random_int(0, TEST_COUNT(dtypes) - 1)]));
    }
}

static gn_tensor random_float_op(const pool *p) {
    gn_tensor a = pool_pick_as(p, test_random() & 1 ? GN_F32 : GN_F64);
    switch (test_random_int(0, 8)) {
    case 0: return gn_tanh(a);
    case 1: return gn_exp(gn_clamp(a, -3, 3));
    case 2: return gn_sqrt(gn_abs(a));
    case 3: return gn_gelu(a);
    case 4: return gn_div(pool_pick(p), gn_add_c(gn_mul(a, a), 1));
    case 5: return gn_silu(a);
    case 6:
    case 7: /* loops that alone read it make it wait: what it reads must live that long */
        return gn_matmul(gn_slice(gn_broadcast(pool_pick_as(p, GN_F32), GN_SHAPE(ROWS, COLUMNS)), 1, 0, ROWS, 1),
                         gn_broadcast(gn_cast(a, GN_F32), GN_SHAPE(ROWS, COLUMNS)));
    default: return gn_softmax(gn_broadcast(a, GN_SHAPE(ROWS, COLUMNS)), -1);
    }
}

static gn_tensor random_number_op(const pool *p) {
    static const gn_dtype ints[] = { GN_I32, GN_U8, GN_I8, GN_I16, GN_U16, GN_U32 };
    gn_tensor a = pool_pick_as(p, ints[test_random_int(0, TEST_COUNT(ints) - 1)]), b = pool_pick(p),
              c = gn_cast(pool_pick(p), GN_BOOL);
    switch (test_random_int(0, 9)) {
    case 0: return gn_add(a, b);
    case 1: return gn_mul(b, pool_pick(p));
    case 2: return gn_maximum(b, a);
    case 3: return gn_minimum(b, pool_pick(p));
    case 4: return gn_lt(b, pool_pick(p));
    case 5: return gn_where(c, b, pool_pick(p));
    case 6: return gn_xor(gn_neg(a), pool_pick_as(p, GN_U8));
    case 7: return gn_relu(a);
    case 8:
        return gn_div(gn_cast(gn_sub(a, pool_pick_as(p, GN_U8)), GN_I32), gn_add_c(gn_abs(pool_pick_as(p, GN_I32)), 1));
    default: return gn_not(c);
    }
}

static gn_tensor random_move_op(const pool *p) {
    gn_tensor a = gn_broadcast(pool_pick(p), GN_SHAPE(ROWS, COLUMNS)), flat = gn_reshape(a, GN_SHAPE(CELLS)), halves[2];
    switch (test_random_int(0, 6)) {
    case 0: return gn_slice(a, 1, GN_END, INT64_MIN, -1);
    case 1: return gn_transpose(gn_eq(gn_transpose(a, 0, 1), gn_transpose(a, 0, 1)), 0, 1);
    case 2: return gn_sum(gn_cast(a, GN_F32), GN_AXES(1), true);
    case 3: return gn_max(a, GN_AXES(0), true);
    case 4: return gn_reshape(gn_slice(flat, 0, -1, INT64_MIN, -1), GN_SHAPE(ROWS, COLUMNS));
    case 5: return gn_cast(gn_sum(a, GN_ALL_AXES, false), GN_I32);
    default:
        halves[0] = gn_slice(a, 1, COLUMNS / 2, GN_END, 1);
        halves[1] = gn_slice(a, 1, 0, COLUMNS / 2, 1);
        return gn_concat(halves, 2, 1);
    }
}

/* A graph that depends on the stream alone; the last two nodes are its results. */
static void pool_grow(pool *p) {
    pool_leaves(p);
    while (p->n < POOL) {
        int64_t kind = test_random_int(0, 9);
        pool_add(p, kind < 4   ? random_number_op(p)
                    : kind < 7 ? random_float_op(p)
                    : kind < 8 ? random_move_op(p)
                               : gn_cast(pool_pick(p), kind == 8 ? GN_F32 : GN_I64));
    }
}

static size_t read_pool(gn_ctx *g, uint64_t stream, bool stepwise, unsigned char *out, size_t cap) {
    pool p = { .g = g, .stepwise = stepwise };
    void *hosts[2];
    size_t bytes[2] = { 0, 0 };
    gn_info info[2];
    test__.stream = stream;
    pool_grow(&p);
    for (int i = 0; i < 2; i++) {
        if (!CHECK_RESULT(gn_describe(p.t[POOL - 2 + i], &info[i]), GN_OK))
            test_fail(__FILE__, __LINE__, "%s", gn_last_error(g)->text);
        hosts[i] = out + (i ? bytes[0] : 0);
        bytes[i] = info[i].bytes;
    }
    CHECK(bytes[0] + bytes[1] <= cap);
    gn_result r = gn_read_many(p.t + POOL - 2, 2, hosts, bytes);
    if (!CHECK_RESULT(r, GN_OK)) test_fail(__FILE__, __LINE__, "%s: %s", gn_last_error(g)->op, gn_last_error(g)->text);
    gn_step(g);
    return bytes[0] + bytes[1];
}

TEST(fused_graphs_give_the_bits_of_single_steps) {
    static unsigned char whole[2 * CELLS * 8], single[2 * CELLS * 8];
    gn_ctx *g = open_context(), *local = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    for (int k = 0; k < (on_loopback ? 40 : 200); k++) {
        uint64_t stream = test_random();
        size_t n = read_pool(g, stream, false, whole, sizeof whole);
        size_t m = read_pool(local, stream, true, single, sizeof single);
        if (n != m || memcmp(whole, single, n) != 0)
            test_fail(__FILE__, __LINE__, "graph %d of stream %" PRIu64 " differs", k, stream);
    }
    CHECK(on_loopback || stats_of(g).nodes_fused > 0);
    gn_close(local);
    gn_close(g);
}

/* ---- plans ---- */

TEST(one_plan_serves_a_thousand_steps) {
    enum { STEPS = 1000, SLOTS = 1000 };
    gn_ctx *g = open_context();
    static float zeros[2] = { 0 };
    gn_tensor w = gn_state(g, GN_F32, GN_SHAPE(2), zeros, "w"),
              cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, SLOTS, 2), NULL, "cache");
    float want[2] = { 0, 0 }, out[2];
    for (int step = 0; step < STEPS; step++) {
        float goal[2] = { (float)step, 1 };
        gn_tensor pos = gn_scalar(g, GN_I64, step), lr = gn_scalar(g, GN_F32, 1.0 / (2 + step)), grad;
        gn_tensor d = gn_sub(w, gn_data(g, GN_F32, GN_SHAPE(2), goal)), loss = gn_sum(gn_mul(d, d), GN_ALL_AXES, false);
        gn_kv_append(cache, gn_reshape(gn_data(g, GN_F32, GN_SHAPE(2), goal), GN_SHAPE(1, 1, 1, 2)), pos);
        CHECK_RESULT(gn_grad(loss, &w, 1, &grad), GN_OK);
        CHECK_RESULT(gn_sgd(&(gn_sgd_desc){ .lr = lr }, &w, &grad, NULL, 1), GN_OK);
        REQUIRE(gn_read(loss, out, sizeof(float)) == GN_OK);
        REQUIRE(gn_step(g) == GN_OK);
        for (int i = 0; i < 2; i++) want[i] -= (float)(1.0 / (2 + step)) * 2 * (want[i] - goal[i]);
    }
    gn_stats s = stats_of(g);
    CHECK_INT(s.plans_made, 1);
    CHECK_INT(s.plans_found, STEPS - 1);
    CHECK_INT(s.steps_run, STEPS);
    CHECK_INT(s.state_copies, 0);
    CHECK_RESULT(gn_read(w, out, sizeof out), GN_OK);
    CHECK_NEAR(out[0], want[0], 1e-2);
    CHECK_NEAR(out[1], want[1], 1e-4);
    CHECK_RESULT(gn_read(gn_reshape(gn_slice(cache, 2, SLOTS - 1, GN_END, 1), GN_SHAPE(2)), out, sizeof out), GN_OK);
    CHECK(out[0] == STEPS - 1 && out[1] == 1);
    gn_close(g);
}

TEST(structures_that_differ_get_different_plans) {
    gn_ctx *g = open_context();
    CHECK_NEAR(read_f64(gn_add(number(g, 2), number(g, 3))), 5, 0);
    gn_tensor x = number(g, 2);
    gn_step(g);
    x = number(g, 2);
    CHECK_NEAR(read_f64(gn_add(x, x)), 4, 0);
    CHECK_INT(stats_of(g).plans_made, 2);
    gn_step(g);
    x = number(g, 2);
    gn_tensor y = number(g, 7);
    CHECK_NEAR(read_f64(gn_sub(y, x)), 5, 0);
    CHECK_INT(stats_of(g).plans_made, 3);
    gn_step(g);
    CHECK_NEAR(read_f64(gn_mul_c(number(g, 2), 3)), 6, 0);
    CHECK_NEAR(read_f64(gn_mul_c(number(g, 2), 4)), 8, 0); /* a baked-in constant is part of the structure */
    CHECK_INT(stats_of(g).plans_made, 5);
    gn_close(g);
}

TEST(a_chain_of_a_million_nodes_builds_runs_and_frees) {
    enum { NODES = 1000000 };
    gn_ctx *g = open_context();
    gn_tensor t = number(g, 1.5);
    for (int i = 0; i < NODES; i++) t = gn_neg(t);
    CHECK_NEAR(read_f64(t), 1.5, 0);
    CHECK(stats_of(g).nodes_built >= NODES);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(gn_neg(number(g, 2))), -2, 0);
    gn_close(g);
}

TEST(a_wide_graph_with_shared_nodes_is_computed_once) {
    gn_ctx *g = open_context();
    gn_tensor t = number(g, 1);
    for (int i = 0; i < 60; i++) t = gn_add(t, t); /* 2^60 paths */
    CHECK_NEAR(read_f64(t), 0x1p60, 0);
    gn_close(g);
}

/* relu(x w) + 1 */
static gn_tensor one_layer(gn_tensor x, gn_tensor w) { return gn_add_c(gn_relu(gn_matmul(x, w)), 1); }

TEST(equal_nodes_are_computed_once) {
    static const float x[6] = { 1, -2, 3, 4, -5, 6 }, w[6] = { 1, 2, -3, 4, 5, -6 };
    gn_ctx *g = open_context();
    gn_tensor tx = gn_data(g, GN_F32, GN_SHAPE(2, 3), x), tw = gn_weight(g, GN_F32, GN_SHAPE(3, 2), w, "w");
    float once[4], twice[2][4];
    void *out[2] = { twice[0], twice[1] };
    size_t bytes[2] = { sizeof twice[0], sizeof twice[1] };
    CHECK_RESULT(gn_read(one_layer(tx, tw), once, sizeof once), GN_OK);
    uint64_t shared = stats_of(g).nodes_shared, kernels = stats_of(g).kernels_run;
    CHECK_INT(shared, 0);
    gn_tensor both[2] = { one_layer(tx, tw), one_layer(tx, tw) };
    CHECK_RESULT(gn_read_many(both, 2, out, bytes), GN_OK);
    CHECK_INT(stats_of(g).nodes_shared, 4); /* matmul, relu, the constant, add */
    CHECK_INT(stats_of(g).kernels_run, 2 * kernels);
    CHECK(memcmp(once, twice[0], sizeof once) == 0 && memcmp(once, twice[1], sizeof once) == 0);
    gn_close(g);
}

TEST(drawn_tokens_follow_their_probabilities) {
    enum { DRAWS = 20000, V = 5 };
    static const float logits[V] = { 1, -0.5f, 2, -INFINITY, 0 };
    static int64_t tokens[DRAWS], again[DRAWS];
    gn_ctx *g = open_context();
    double share[V], total = 0, got[V] = { 0 };
    for (int k = 0; k < 2; k++) {
        gn_tensor x = gn_broadcast(gn_data(g, GN_F32, GN_SHAPE(V), logits), GN_SHAPE(DRAWS, V));
        gn_sample_desc d = { .seed = gn_arange(g, GN_I64, DRAWS, 7, 1),
                             .counter = gn_scalar_i64(g, GN_I64, 3),
                             .temperature = gn_scalar(g, GN_F32, 0.8) };
        CHECK_RESULT(gn_read(gn_sample(x, &d), k ? again : tokens, sizeof tokens), GN_OK);
        gn_step(g);
    }
    CHECK(memcmp(tokens, again, sizeof tokens) == 0);
    for (int i = 0; i < V; i++) total += share[i] = exp((double)logits[i] / 0.8);
    for (int i = 0; i < DRAWS; i++) got[tokens[i]]++;
    for (int i = 0; i < V; i++) {
        double want = share[i] / total * DRAWS;
        CHECK_NEAR(got[i], want, 4 * sqrt(want));
    }
    gn_close(g);
}

TEST(rotations_of_all_layers_share_one_table) {
    static const float rows[2 * 3 * 8];
    float out[48];
    gn_ctx *g = open_context();
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(2, 3, 8), rows);
    for (int layer = 0; layer < 3; layer++) {
        gn_tensor at = gn_arange(g, GN_I32, 3, 5, 1);
        x = gn_add(gn_rotary(x, at, 10000, false), gn_rotary(gn_neg(x), at, 10000, false));
    }
    CHECK_RESULT(gn_read(x, out, sizeof out), GN_OK);
    CHECK_INT(stats_of(g).nodes_shared, 2 + 5); /* positions of the other layers, and all tables but one */
    gn_close(g);
}

TEST(nodes_that_differ_in_attribute_input_or_phase_are_not_shared) {
    gn_ctx *g = open_context();
    gn_tensor x = number(g, 3), y = number(g, 3);
    double a = read_f64(gn_add(gn_clamp(x, 0, 1), gn_clamp(x, 0, 2)));
    CHECK_NEAR(a, 3, 0);
    CHECK_NEAR(read_f64(gn_add(gn_neg(x), gn_neg(y))), -6, 0);
    gn_tensor before = gn_exp(x);
    gn_phase(g, GN_DECODE);
    gn_tensor after = gn_exp(x);
    gn_phase(g, GN_PHASE_UNKNOWN);
    CHECK_NEAR(read_f64(gn_div(before, after)), 1, 0);
    CHECK_INT(stats_of(g).nodes_shared, 0);
    gn_close(g);
}

TEST(random_draws_and_effects_are_not_shared) {
    gn_ctx *g = open_context();
    float u[2][8];
    gn_tensor a = gn_random_uniform(g, GN_F32, GN_SHAPE(8)), b = gn_random_uniform(g, GN_F32, GN_SHAPE(8));
    gn_tensor both = gn_concat((const gn_tensor[]){ a, b }, 2, 0);
    CHECK_RESULT(gn_read(both, u, sizeof u), GN_OK);
    CHECK(memcmp(u[0], u[1], sizeof u[0]) != 0);
    CHECK_INT(stats_of(g).nodes_shared, 0);
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s"), t = gn_state(g, GN_F64, GN_SCALAR, NULL, "t"),
              x = number(g, 5);
    s = gn_assign(s, gn_neg(x));
    t = gn_assign(t, gn_neg(x));
    CHECK_NEAR(read_f64(gn_add(s, gn_mul_c(t, 2))), -15, 0);
    CHECK_INT(stats_of(g).nodes_shared, 1); /* the negation; each state has its own value */
    s = gn_assign(s, number(g, 7));
    CHECK_NEAR(read_f64(s), 7, 0);
    CHECK_NEAR(read_f64(t), -5, 0);
    gn_close(g);
}

TEST(dead_nodes_are_not_run) {
    gn_ctx *g = open_context();
    gn_tensor x = number(g, 2), y = gn_neg(x);
    CHECK_NEAR(read_f64(y), -2, 0);
    uint64_t kernels = stats_of(g).kernels_run;
    gn_tensor dead = gn_matmul(gn_full(g, GN_F64, GN_SHAPE(300, 300), 1), gn_full(g, GN_F64, GN_SHAPE(300, 300), 2));
    dead = gn_softmax(dead, 0);
    CHECK_NEAR(read_f64(gn_neg(gn_neg(x))), 2, 0);
    CHECK_INT(stats_of(g).kernels_run, kernels + 1);
    CHECK_NEAR(read_f64(gn_sum(dead, GN_ALL_AXES, false)), 300, 1e-9);
    gn_close(g);
}

TEST(a_step_past_max_nodes_is_too_many_nodes) {
    gn_desc desc = { .devices = on_loopback ? NULL : "cpu", .max_nodes = 100 };
    gn_ctx *g = on_loopback ? loopback_open(&desc) : gn_open(&desc);
    gn_tensor t = number(g, 1);
    double x;
    for (int i = 0; i < 200; i++) t = gn_neg(t);
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_TOO_MANY_NODES);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(gn_neg(number(g, 3))), -3, 0);
    gn_close(g);
}

/* ---- handles ---- */

TEST(step_makes_handles_stale) {
    gn_ctx *g = open_context();
    double x;
    gn_tensor old = gn_neg(number(g, 1)), slot = gn_state(g, GN_F64, GN_SCALAR, NULL, "s");
    CHECK_NEAR(read_f64(old), -1, 0);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_tensor fresh = gn_neg(number(g, 2)); /* may take old's place */
    CHECK_RESULT(gn_read(old, &x, sizeof x), GN_STALE_HANDLE);
    CHECK_RESULT(described(old), GN_STALE_HANDLE);
    CHECK_RESULT(described(gn_add(old, fresh)), GN_STALE_HANDLE);
    CHECK_RESULT(gn_realize(&old, 1), GN_STALE_HANDLE);
    CHECK_NEAR(read_f64(fresh), -2, 0);
    CHECK_NEAR(read_f64(slot), 0, 0); /* slots stay */
    gn_close(g);
}

TEST(closed_context_answers_every_handle_with_closed_context) {
    gn_ctx *g = open_context();
    double x;
    gn_tensor t = number(g, 1), s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s");
    gn_close(g);
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_CLOSED_CONTEXT);
    CHECK_RESULT(described(s), GN_CLOSED_CONTEXT);
    CHECK_RESULT(described(gn_add(t, s)), GN_CLOSED_CONTEXT);
    CHECK_RESULT(gn_release(s), GN_CLOSED_CONTEXT);
    gn_ctx *next = open_context(); /* may take the closed one's place */
    CHECK_NEAR(read_f64(gn_neg(number(next, 1))), -1, 0);
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_CLOSED_CONTEXT);
    CHECK_RESULT(described(gn_add(t, number(next, 1))), GN_CLOSED_CONTEXT);
    gn_close(next);
}

TEST(tensors_of_two_contexts_do_not_mix) {
    gn_ctx *a = open_context(), *b = open_context();
    double x, out[2];
    gn_tensor mixed = gn_add(number(a, 1), number(b, 2)), many[2] = { number(a, 1), number(b, 2) };
    void *const hosts[2] = { &out[0], &out[1] };
    const size_t bytes[2] = { 8, 8 };
    CHECK_RESULT(described(mixed), GN_MIXED_CONTEXTS);
    CHECK_RESULT(gn_read(mixed, &x, sizeof x), GN_MIXED_CONTEXTS);
    CHECK_RESULT(gn_read_many(many, 2, hosts, bytes), GN_MIXED_CONTEXTS);
    CHECK_NEAR(read_f64(gn_neg(many[1])), -2, 0);
    gn_close(a);
    gn_close(b);
}

TEST(no_tensor_is_a_bad_argument) {
    double x;
    CHECK_RESULT(gn_read(GN_NONE, &x, sizeof x), GN_BAD_ARGUMENT);
    CHECK_RESULT(described(GN_NONE), GN_BAD_ARGUMENT);
    gn_ctx *g = open_context();
    CHECK_RESULT(described(gn_add(number(g, 1), GN_NONE)), GN_BAD_ARGUMENT);
    CHECK_RESULT(described(gn_add(GN_NONE, number(g, 1))), GN_BAD_ARGUMENT);
    gn_close(g);
}

/* ---- states ---- */

TEST(assign_is_visible_after_the_step) {
    gn_ctx *g = open_context();
    double first = 10;
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, &first, "s");
    first = 99; /* was copied */
    for (int step = 0; step < 3; step++) {
        gn_assign(s, gn_add_c(s, 1));
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_NEAR(read_f64(s), 13, 0);
    gn_close(g);
}

TEST(state_without_a_first_value_is_zero) {
    gn_ctx *g = open_context();
    float out[3] = { 1, 2, 3 };
    CHECK_RESULT(gn_read(gn_state(g, GN_F32, GN_SHAPE(3), NULL, "s"), out, sizeof out), GN_OK);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0);
    gn_close(g);
}

TEST(nodes_built_on_an_old_version_keep_its_value) {
    gn_ctx *g = open_context();
    double first = 5;
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, &first, "s"), before = gn_mul_c(s, 2);
    gn_tensor next = gn_assign(s, gn_add_c(s, 1)), after = gn_mul_c(next, 2), t[2] = { before, after };
    double out[2];
    void *const hosts[2] = { &out[0], &out[1] };
    const size_t bytes[2] = { 8, 8 };
    CHECK_RESULT(gn_read_many(t, 2, hosts, bytes), GN_OK);
    CHECK_NEAR(out[0], 10, 0);
    CHECK_NEAR(out[1], 12, 0);
    CHECK_NEAR(read_f64(gn_mul_c(s, 2)), 12, 0); /* the handle denotes the latest committed version */
    CHECK_NEAR(read_f64(before), 10, 0);         /* computed values stay */
    gn_close(g);
}

TEST(versions_chain_within_a_step) {
    gn_ctx *g = open_context();
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s"), v = s;
    for (int i = 1; i <= 4; i++) v = gn_assign(v, gn_add_c(v, i));
    CHECK_NEAR(read_f64(v), 10, 0);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(s), 10, 0);
    gn_close(g);
}

TEST(uncomputed_node_of_a_superseded_version_is_an_error) {
    gn_ctx *g = open_context();
    double x;
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s"), old = gn_exp(s);
    CHECK_NEAR(read_f64(gn_assign(s, gn_add_c(s, 1))), 1, 0); /* commits; `old` was not asked for */
    CHECK_RESULT(gn_read(old, &x, sizeof x), GN_SUPERSEDED);
    CHECK_NEAR(read_f64(gn_exp(s)), exp(1), 1e-12);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(s), 1, 0);
    gn_close(g);
}

TEST(assigning_twice_to_one_version_is_superseded) {
    gn_ctx *g = open_context();
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s");
    gn_assign(s, gn_add_c(s, 1));
    CHECK_RESULT(described(gn_assign(s, gn_add_c(s, 2))), GN_SUPERSEDED);
    gn_close(g);
}

TEST(pending_assign_takes_part_exactly_once) {
    gn_ctx *g = open_context();
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s"), other = number(g, 4), kept = gn_neg(other);
    gn_assign(s, gn_add_c(s, 1));
    CHECK_NEAR(read_f64(gn_mul(other, other)), 16, 0);
    CHECK_NEAR(read_f64(gn_add(other, other)), 8, 0);
    CHECK_RESULT(gn_realize(&kept, 1), GN_OK);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(s), 1, 0);
    gn_assign(s, gn_add_c(s, 1));
    kept = number(g, 1);
    CHECK_RESULT(gn_realize(&kept, 1), GN_OK);
    CHECK_NEAR(read_f64(s), 2, 0);
    gn_close(g);
}

TEST(two_states_can_swap) {
    gn_ctx *g = open_context();
    double x[3] = { 1, 2, 3 }, y[3] = { 4, 5, 6 }, got[3];
    gn_tensor a = gn_state(g, GN_F64, GN_SHAPE(3), x, "a"), b = gn_state(g, GN_F64, GN_SHAPE(3), y, "b");
    gn_assign(a, b);
    gn_assign(b, a);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(a, got, sizeof got), GN_OK);
    CHECK(memcmp(got, y, sizeof y) == 0);
    CHECK_RESULT(gn_read(b, got, sizeof got), GN_OK);
    CHECK(memcmp(got, x, sizeof x) == 0);
    gn_close(g);
}

TEST(assign_of_the_state_to_itself_through_a_view_is_safe) {
    gn_ctx *g = open_context();
    double x[4] = { 1, 2, 3, 4 }, got[4];
    gn_tensor s = gn_state(g, GN_F64, GN_SHAPE(4), x, "s");
    gn_assign(s, gn_slice(s, 0, -1, INT64_MIN, -1));
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_assign(s, gn_reshape(gn_transpose(gn_reshape(s, GN_SHAPE(2, 2)), 0, 1), GN_SHAPE(4)));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(s, got, sizeof got), GN_OK);
    CHECK(got[0] == 4 && got[1] == 2 && got[2] == 3 && got[3] == 1);
    gn_close(g);
}

TEST(assign_needs_a_state_and_its_shape_and_dtype) {
    gn_ctx *g = open_context();
    float f = 1;
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, NULL, "s"), w = gn_weight(g, GN_F32, GN_SCALAR, &f, "w");
    CHECK_RESULT(described(gn_assign(number(g, 1), number(g, 2))), GN_NOT_A_STATE);
    CHECK_RESULT(described(gn_assign(w, w)), GN_NOT_A_STATE);
    CHECK_RESULT(described(gn_assign(s, gn_cast(number(g, 1), GN_F32))), GN_BAD_DTYPE);
    CHECK_RESULT(described(gn_assign(s, gn_reshape(number(g, 1), GN_SHAPE(1)))), GN_BAD_SHAPE);
    CHECK_RESULT(gn_step(g), GN_NOT_A_STATE); /* the first error of the step's updates */
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_NEAR(read_f64(s), 0, 0);
    gn_close(g);
}

/* A cache (1,1,4,2) and rows of ones at `pos`. */
static gn_tensor append_ones(gn_tensor cache, int64_t pos) {
    static const float ones[2] = { 1, 1 };
    gn_ctx *g = cache.ctx;
    return gn_kv_append(cache, gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 2), ones), gn_scalar(g, GN_I64, (double)pos));
}

static float read_f32(gn_tensor t) {
    float x = -1;
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_OK);
    return x;
}

TEST(kv_append_without_a_later_reader_is_in_place) {
    gn_ctx *g = open_context();
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), NULL, "cache");
    for (int pos = 0; pos < 4; pos++) {
        gn_tensor next = append_ones(cache, pos);
        CHECK_INT(read_f32(gn_sum(next, GN_ALL_AXES, false)), 2 * (pos + 1));
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_INT(stats_of(g).state_copies, 0);
    CHECK_INT(stats_of(g).plans_made, 1);
    gn_close(g);
}

TEST(kv_append_with_a_later_reader_copies_and_both_versions_hold) {
    gn_ctx *g = open_context();
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), NULL, "cache");
    CHECK_INT(read_f32(gn_sum(append_ones(cache, 0), GN_ALL_AXES, false)), 2);
    CHECK_RESULT(gn_step(g), GN_OK);
    /* reads the old after the new is made */
    gn_tensor next = append_ones(cache, 1), shared = gn_mul(gn_sub(next, cache), next);
    CHECK_INT(read_f32(gn_sum(shared, GN_ALL_AXES, false)), 2);
    if (!on_loopback) {
        CHECK_INT(stats_of(g).state_copies, 1);
        CHECK_INT(stats_of(g).state_copy_bytes, 8 * sizeof(float));
    }
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_INT(read_f32(gn_sum(cache, GN_ALL_AXES, false)), 4);
    gn_close(g);
}

TEST(kv_append_to_a_plain_tensor_is_a_plain_tensor) {
    gn_ctx *g = open_context();
    static const float zeros[8] = { 0 };
    gn_tensor cache = gn_data(g, GN_F32, GN_SHAPE(1, 1, 4, 2), zeros), next = append_ones(cache, 3);
    CHECK_INT(read_f32(gn_sum(next, GN_ALL_AXES, false)), 2);
    CHECK_INT(read_f32(gn_sum(cache, GN_ALL_AXES, false)), 0);
    CHECK_INT(zeros[7], 0);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_close(g);
}

TEST(release_makes_the_handle_stale_and_frees_the_device) {
    gn_ctx *g = open_context();
    static float big[1000];
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(1000), big, "s"), w = gn_weight(g, GN_F32, GN_SHAPE(1000), big, "w");
    CHECK_INT(read_f32(gn_sum(gn_add(s, w), GN_ALL_AXES, false)), 0);
    uint64_t held = stats_of(g).device_bytes;
    CHECK(on_loopback || held >= sizeof big);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_release(s), GN_OK);
    CHECK_RESULT(gn_release(w), GN_OK);
    CHECK_RESULT(described(s), GN_STALE_HANDLE);
    CHECK_RESULT(described(gn_neg(w)), GN_STALE_HANDLE);
    CHECK_RESULT(gn_release(s), GN_STALE_HANDLE);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK(on_loopback || stats_of(g).device_bytes < held);
    gn_tensor again = gn_state(g, GN_F32, GN_SHAPE(1000), NULL, "again"); /* may take the released place */
    CHECK_RESULT(described(s), GN_STALE_HANDLE);
    CHECK_INT(read_f32(gn_sum(again, GN_ALL_AXES, false)), 0);
    gn_close(g);
}

TEST(release_of_what_is_no_slot_is_an_error) {
    gn_ctx *g = open_context();
    gn_tensor t = number(g, 1);
    CHECK(gn_release(t) != GN_OK);
    CHECK_NEAR(read_f64(gn_neg(t)), -1, 0);
    gn_close(g);
}

/* ---- weights ---- */

TEST(weights_stay_over_steps) {
    gn_ctx *g = open_context();
    static const float w[3] = { 1, 2, 3 };
    gn_tensor t = gn_weight(g, GN_F32, GN_SHAPE(3), w, "fc1.weight");
    gn_info info;
    for (int step = 0; step < 3; step++) {
        CHECK_INT(read_f32(gn_sum(gn_mul(t, gn_scalar(g, GN_F32, step)), GN_ALL_AXES, false)), 6 * step);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    CHECK_STR(info.label, "fc1.weight");
    CHECK_INT(stats_of(g).plans_made, 1);
    gn_close(g);
}

TEST(weight_that_the_server_has_is_not_sent_again) {
    static float w[5000];
    for (int i = 0; i < TEST_COUNT(w); i++) w[i] = (float)test_random_real(-1, 1);
    gn_ctx *a = open_context(), *b = open_context();
    gn_ctx *both[2] = { a, b };
    for (int i = 0; i < 2; i++) {
        gn_tensor t = gn_weight(both[i], GN_F32, GN_SHAPE(5000), w, "w");
        CHECK_INT(read_f32(gn_reshape(gn_slice(gn_sub(t, t), 0, 0, 1, 1), GN_SCALAR)), 0);
        gn_stats s = stats_of(both[i]);
        CHECK_INT(s.weight_bytes_sent, on_loopback && i == 0 ? sizeof w : 0);
        CHECK_INT(s.weight_bytes_known, on_loopback && i == 1 ? sizeof w : 0);
    }
    gn_close(a);
    gn_close(b);
}

/* ---- random numbers ---- */

TEST(random_numbers_follow_seed_and_order_over_steps) {
    double x[2][4][2];
    for (int run = 0; run < 2; run++) {
        gn_ctx *g = open_seeded(11);
        for (int step = 0; step < 4; step++) {
            gn_tensor t[2] = { gn_random_uniform(g, GN_F64, GN_SCALAR), gn_random_uniform(g, GN_F64, GN_SCALAR) };
            void *const hosts[2] = { &x[run][step][0], &x[run][step][1] };
            const size_t bytes[2] = { 8, 8 };
            CHECK_RESULT(gn_read_many(t, 2, hosts, bytes), GN_OK);
            CHECK_NEAR(read_f64(t[0]), x[run][step][0], 0); /* one node, one value */
            CHECK_RESULT(gn_step(g), GN_OK);
        }
        CHECK(stats_of(g).plans_made <= 2);
        gn_close(g);
    }
    CHECK(memcmp(x[0], x[1], sizeof x[0]) == 0);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) CHECK((&x[0][0][0])[i] != (&x[0][0][0])[j]);
    gn_ctx *g = open_seeded(12);
    CHECK(read_f64(gn_random_uniform(g, GN_F64, GN_SCALAR)) != x[0][0][0]);
    gn_close(g);
}

/* ---- errors ---- */

static void check_error(gn_ctx *g, gn_result result, const char *op, const char *label, int line, const char *text) {
    const gn_error *e = gn_last_error(g);
    CHECK_RESULT(e->result, result);
    CHECK_STR(e->op, op);
    CHECK_STR(e->label, label);
    CHECK_INT(e->line, line);
    CHECK(strstr(e->file, "graph_test.c") != NULL);
    if (!strstr(e->text, text)) test_fail(__FILE__, __LINE__, "\"%s\" does not hold \"%s\"", e->text, text);
}

TEST(error_names_op_label_shapes_and_line) {
    gn_ctx *g = open_context();
    float x[12] = { 0 }, out[12];
    gn_tensor a = gn_label(gn_data(g, GN_F32, GN_SHAPE(3, 4), x), "left"), b = gn_data(g, GN_F32, GN_SHAPE(3, 4), x);
    int line = __LINE__ + 1;
    gn_tensor bad = gn_matmul(a, b);
    CHECK_RESULT(described(bad), GN_BAD_SHAPE);
    CHECK_RESULT(gn_read(bad, out, sizeof out), GN_BAD_SHAPE);
    check_error(g, GN_BAD_SHAPE, "matmul", "left", line, "(3, 4)");
    gn_close(g);
}

TEST(first_cause_spreads) {
    gn_ctx *g = open_context();
    float x[12] = { 0 }, out[12];
    gn_tensor a = gn_data(g, GN_F32, GN_SHAPE(3, 4), x);
    int line = __LINE__ + 1;
    gn_tensor bad = gn_reshape(a, GN_SHAPE(5, 2));
    gn_tensor later = gn_relu(gn_add(a, gn_softmax(gn_matmul(bad, a), 9)));
    CHECK_RESULT(gn_read(later, out, sizeof out), GN_BAD_SHAPE);
    check_error(g, GN_BAD_SHAPE, "reshape", "", line, "(3, 4)");
    CHECK_RESULT(gn_read(a, out, sizeof x), GN_OK); /* what did not fail still works */
    gn_close(g);
}

TEST(error_of_a_run_names_op_label_and_line) {
    gn_ctx *g = open_context();
    int32_t x[3] = { 1, 2, 3 }, y[3] = { 1, 0, 1 }, out[3];
    for (int step = 0; step < 2; step++) {
        gn_tensor a = gn_data(g, GN_I32, GN_SHAPE(3), x), b = gn_data(g, GN_I32, GN_SHAPE(3), y);
        int line = __LINE__ + 1;
        gn_tensor q = gn_label(gn_div(a, b), "quotient");
        CHECK_RESULT(gn_read(q, out, sizeof out), GN_DIVISION_BY_ZERO);
        check_error(g, GN_DIVISION_BY_ZERO, "div", "quotient", line, "");
        CHECK_INT(stats_of(g).faults, step + 1);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    gn_close(g);
}

TEST(result_names_and_texts_are_complete) {
#define RESULT(name, number, words)                    \
    CHECK_INT(GN_##name, number);                      \
    CHECK_STR(gn_result_name(GN_##name), "GN_" #name); \
    CHECK_STR(gn_result_text(GN_##name), words);
    GN_RESULTS(RESULT)
#undef RESULT
    CHECK(gn_result_name((gn_result)99) != NULL);
    CHECK(gn_result_text((gn_result)99) != NULL);
}

TEST(dtype_names_and_sizes_are_the_tables) {
#define DTYPE(name, number, size, words)        \
    CHECK_INT(GN_##name, number);               \
    CHECK_INT(gn_dtype_bytes(GN_##name), size); \
    CHECK_STR(gn_dtype_name(GN_##name), words);
    GN_DTYPES(DTYPE)
#undef DTYPE
    CHECK_INT(gn_dtype_bytes((gn_dtype)77), 0);
    CHECK(gn_dtype_name((gn_dtype)77) != NULL);
}

/* ---- contexts ---- */

static void *train_alone(void *arg) {
    gn_ctx *g = open_seeded(1);
    double *out = arg, first = *out;
    gn_tensor s = gn_state(g, GN_F64, GN_SCALAR, &first, "s");
    bool ok = true;
    for (int step = 0; step < 300; step++) {
        double x = step;
        gn_tensor next = gn_assign(s, gn_add(gn_mul_c(s, 0.5), gn_data(g, GN_F64, GN_SCALAR, &x)));
        ok = ok && gn_read(next, out, sizeof *out) == GN_OK && gn_step(g) == GN_OK;
    }
    gn_close(g);
    *out = ok ? *out : NAN;
    return NULL;
}

TEST(two_contexts_run_on_two_threads_at_once) {
    double values[2] = { 3, -5 };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, train_alone, &values[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        double want = i ? -5 : 3;
        for (int step = 0; step < 300; step++) want = want * 0.5 + step;
        CHECK_NEAR(values[i], want, 0);
    }
}

TEST(context_that_does_not_open_answers_with_its_cause) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "abacus:0" });
    double x;
    REQUIRE(g != NULL);
    gn_result cause = gn_status(g);
    CHECK(cause != GN_OK);
    gn_tensor t = gn_neg(number(g, 1));
    CHECK_RESULT(gn_read(t, &x, sizeof x), cause);
    CHECK_RESULT(gn_step(g), cause);
    CHECK(gn_last_error(g)->text[0] != 0);
    gn_close(g);
}

TEST(host_memory_can_be_had_and_given_back) {
    gn_ctx *g = open_context();
    double *x = gn_host_alloc(g, 1 << 16);
    REQUIRE(x != NULL);
    x[0] = 2;
    x[8191] = 3;
    CHECK_NEAR(read_f64(
                   gn_sum(gn_slice(gn_data(g, GN_F64, GN_SHAPE(8192), x), 0, 0, GN_END, 8191), GN_ALL_AXES, false)),
               5, 0);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_host_free(g, x);
    gn_close(g);
}

/* What came after a plan the last time is tried first: steps of three structures in an order that breaks the habit. */
TEST(plans_are_found_in_any_order) {
    gn_ctx *own = open_context();
    for (int k = 0; k < 60; k++) {
        int form = k < 20 ? k % 2 : (k * k / 3) % 3;
        float x[2] = { (float)k, 2 }, y[2];
        gn_tensor t = gn_data(own, GN_F32, GN_SHAPE(2), x);
        t = form == 0 ? gn_add_c(t, 1) : form == 1 ? gn_add_c(t, 2) : gn_mul_c(t, 3);
        CHECK_RESULT(gn_read(t, y, sizeof y), GN_OK);
        gn_step(own);
        CHECK(y[0] == (form == 0 ? x[0] + 1 : form == 1 ? x[0] + 2 : x[0] * 3));
    }
    CHECK_INT(stats_of(own).plans_made, 3);
    CHECK_INT(stats_of(own).plans_found, 57);
    gn_close(own);
}

static const test_entry tests[] = {
    TEST_ENTRY(nothing_is_computed_before_a_read),
    TEST_ENTRY(unread_nodes_are_never_computed),
    TEST_ENTRY(borrowed_data_is_seen_at_the_read_and_copied_data_is_not),
    TEST_ENTRY(describe_tells_op_shape_dtype_and_bytes),
    TEST_ENTRY(describe_tells_residency_of_leaves),
    TEST_ENTRY(phase_that_is_said_marks_the_nodes_that_follow),
    TEST_ENTRY(realize_keeps_the_value_on_the_device),
    TEST_ENTRY(read_many_submits_one_plan),
    TEST_ENTRY(many_results_of_many_leaves_take_linear_time),
    TEST_ENTRY(leaves_and_one_tensor_twice_can_be_read),
    TEST_ENTRY(empty_tensors_can_be_read),
    TEST_ENTRY(fused_graphs_give_the_bits_of_single_steps),
    TEST_ENTRY(one_plan_serves_a_thousand_steps),
    TEST_ENTRY(structures_that_differ_get_different_plans),
    TEST_ENTRY(a_chain_of_a_million_nodes_builds_runs_and_frees),
    TEST_ENTRY(a_wide_graph_with_shared_nodes_is_computed_once),
    TEST_ENTRY(equal_nodes_are_computed_once),
    TEST_ENTRY(drawn_tokens_follow_their_probabilities),
    TEST_ENTRY(rotations_of_all_layers_share_one_table),
    TEST_ENTRY(nodes_that_differ_in_attribute_input_or_phase_are_not_shared),
    TEST_ENTRY(random_draws_and_effects_are_not_shared),
    TEST_ENTRY(dead_nodes_are_not_run),
    TEST_ENTRY(a_step_past_max_nodes_is_too_many_nodes),
    TEST_ENTRY(step_makes_handles_stale),
    TEST_ENTRY(closed_context_answers_every_handle_with_closed_context),
    TEST_ENTRY(tensors_of_two_contexts_do_not_mix),
    TEST_ENTRY(no_tensor_is_a_bad_argument),
    TEST_ENTRY(assign_is_visible_after_the_step),
    TEST_ENTRY(state_without_a_first_value_is_zero),
    TEST_ENTRY(nodes_built_on_an_old_version_keep_its_value),
    TEST_ENTRY(versions_chain_within_a_step),
    TEST_ENTRY(uncomputed_node_of_a_superseded_version_is_an_error),
    TEST_ENTRY(assigning_twice_to_one_version_is_superseded),
    TEST_ENTRY(pending_assign_takes_part_exactly_once),
    TEST_ENTRY(two_states_can_swap),
    TEST_ENTRY(assign_of_the_state_to_itself_through_a_view_is_safe),
    TEST_ENTRY(assign_needs_a_state_and_its_shape_and_dtype),
    TEST_ENTRY(kv_append_without_a_later_reader_is_in_place),
    TEST_ENTRY(kv_append_with_a_later_reader_copies_and_both_versions_hold),
    TEST_ENTRY(kv_append_to_a_plain_tensor_is_a_plain_tensor),
    TEST_ENTRY(release_makes_the_handle_stale_and_frees_the_device),
    TEST_ENTRY(release_of_what_is_no_slot_is_an_error),
    TEST_ENTRY(plans_are_found_in_any_order),
    TEST_ENTRY(weights_stay_over_steps),
    TEST_ENTRY(weight_that_the_server_has_is_not_sent_again),
    TEST_ENTRY(random_numbers_follow_seed_and_order_over_steps),
    TEST_ENTRY(error_names_op_label_shapes_and_line),
    TEST_ENTRY(first_cause_spreads),
    TEST_ENTRY(error_of_a_run_names_op_label_and_line),
    TEST_ENTRY(result_names_and_texts_are_complete),
    TEST_ENTRY(dtype_names_and_sizes_are_the_tables),
    TEST_ENTRY(two_contexts_run_on_two_threads_at_once),
    TEST_ENTRY(context_that_does_not_open_answers_with_its_cause),
    TEST_ENTRY(host_memory_can_be_had_and_given_back),
};

int main(int argc, char **argv) {
    test_begin(argc, argv);
    for (int pass = 0; pass < 2; pass++) {
        on_loopback = pass == 1;
        for (int i = 0; i < TEST_COUNT(tests); i++) {
            char name[160];
            snprintf(name, sizeof name, "%s_on_%s", tests[i].name, on_loopback ? "loopback" : "cpu");
            if (test_open(name)) {
                tests[i].run();
                test_close();
            }
        }
    }
    loopback_close();
    return test_end();
}
