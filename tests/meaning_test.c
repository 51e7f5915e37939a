/* What Genie sees in a graph: each recogniser on graphs that are written differently and mean the same, and on graphs
 * that look alike and mean something else; scopes that win; groups that hold every node once and form no cycle.
 *
 * Tier: quick address */
#define _GNU_SOURCE
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static _Atomic long fails_at = -1, allocations, blocks_held; /* threads of executors allocate too */

static void *counted_resize(void *p, size_t n) {
    if (fails_at >= 0 && allocations++ >= fails_at) return NULL;
    void *q = realloc(p, n);
    blocks_held += q && !p;
    return q;
}

static void counted_free(void *p) {
    blocks_held -= p != NULL;
    free(p);
}
#define GN_MALLOC(n) counted_resize(NULL, n)
#define GN_REALLOC(p, n) counted_resize(p, n)
#define GN_FREE(p) counted_free(p)
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"

enum { BATCH = 2, TIMES = 8, HEADS = 4, HEAD = 16, DIM = HEADS * HEAD, WORDS = 96, CONTEXT = 32 };

static gn_ctx *g;
static gn_meaning m;
static float zeros[1 << 20];
static int32_t ids[4096];

/* ---- leaves, parts, questions ---- */

static gn_tensor weight(int64_t rows, int64_t columns) {
    return gn_weight(g, GN_F32, rows ? GN_SHAPE(rows, columns) : GN_SHAPE(columns), zeros, "w");
}

static gn_tensor given(gn_shape s) { return gn_data(g, GN_F32, s, zeros); }
static gn_tensor rows(int64_t n) { return given(GN_SHAPE(n, DIM)); }

static void open_null(void) {
    g = gn_open(&(gn_desc){ .devices = "null" });
    memset(&m, 0, sizeof m);
}

static void close_null(void) {
    gn_meaning_deinit(&m);
    gn_close(g);
}

/* The meaning of what `roots` and the pending updates need. */
static bool understand_without(const gn_tensor *roots, int n, uint64_t off) {
    uint32_t ids_of[16], bad;
    gn_result why;
    gn_meaning_deinit(&m);
    for (int i = 0; i < n; i++) {
        ids_of[i] = gn__resolve(g, roots[i], &why);
        if (!CHECK_RESULT(why, GN_OK) || !CHECK(g->nodes[ids_of[i]].op != GN_OP_FAILED)) return false;
    }
    return CHECK_RESULT(gn__cut_make(g, ids_of, n, &bad), GN_OK) &&
           CHECK_RESULT(gn_meaning_make(&g->cut.part, off, NULL, &m, NULL), GN_OK);
}

static bool understand(gn_tensor root) { return understand_without(&root, 1, 0); }
static bool understand_updates(void) { return understand_without(NULL, 0, 0); }

/* Of this process's processor time: others on the machine do not count. */
static double seconds_of(gn_tensor root) {
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    understand(root);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
}

static const gn_node_meaning *of(gn_tensor t) {
    gn_result why;
    uint32_t id = gn__resolve(g, t, &why);
    uint32_t node = t.id & GN__SLOT_BIT ? g->slots[t.id & ~GN__SLOT_BIT].cut_node : g->cut.where[id];
    return &m.nodes[node];
}

#define CHECK_ROLE(t, want) CHECK_STR(gn__role_names[of(t)->role], gn__role_names[want])
#define CHECK_PHASE(t, want) CHECK_STR(gn__phase_names[of(t)->phase], gn__phase_names[want])
#define CHECK_RESIDENCY(t, want) CHECK_STR(gn__residency_names[of(t)->residency], gn__residency_names[want])
#define CHECK_MODALITY(t, want) CHECK_STR(gn__modality_names[of(t)->modality], gn__modality_names[want])
#define CHECK_TOGETHER(a, b) CHECK_INT(of(a)->group, of(b)->group)

static bool has_role(gn_role_kind role) {
    for (uint32_t i = 0; i < m.n_nodes; i++)
        if (m.nodes[i].role == role) return true;
    return false;
}

/* Every node in exactly one group; a node's inputs lie in its own group or an earlier one. */
static void check_groups(void) {
    const gn_part *p = &g->cut.part;
    uint32_t at = 0, bad = 0;
    for (uint32_t k = 0; k < m.n_groups; k++) {
        CHECK_INT(m.groups[k].first, at);
        CHECK(m.groups[k].n_nodes > 0);
        for (uint32_t i = 0; i < m.groups[k].n_nodes && at < m.n_nodes; i++, at++) {
            bad += m.members[at] >= m.n_nodes || m.nodes[m.members[at]].group != k ||
                   (i && m.members[at] <= m.members[at - 1]);
        }
    }
    CHECK_INT(at, p->n_nodes);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        for (uint32_t k = 0; k < p->nodes[i].n_ins; k++)
            bad += m.nodes[p->ins[p->nodes[i].ins + k]].group > m.nodes[i].group;
    CHECK_INT(bad, 0);
}

/* ---- linear ---- */

TEST(linear_is_seen_in_every_writing) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), w = weight(DIM, 32), wt = weight(32, DIM), b = weight(0, 32);
    gn_tensor in[2] = { x, w };
    gn_tensor op = gn_linear(x, w, b), product = gn_matmul(x, w), sum = gn_add(product, b),
              flipped = gn_matmul(x, gn_transpose(wt, 0, 1));
    gn_tensor columns = gn_matmul(wt, gn_transpose(x, 0, 1)), einsum = gn_einsum("td,de->te", in, 2),
              relu = gn_relu(op);
    gn_tensor all[] = { relu, sum, flipped, columns, einsum };
    REQUIRE(understand_without(all, TEST_COUNT(all), 0));
    CHECK_ROLE(op, GN_ROLE_LINEAR);
    CHECK_ROLE(product, GN_ROLE_LINEAR);
    CHECK_ROLE(sum, GN_ROLE_LINEAR);
    CHECK_ROLE(flipped, GN_ROLE_LINEAR);
    CHECK_ROLE(columns, GN_ROLE_LINEAR);
    CHECK_ROLE(einsum, GN_ROLE_LINEAR);
    CHECK_TOGETHER(product, sum);
    CHECK_TOGETHER(op, relu);
    CHECK(of(op)->group != of(product)->group);
    CHECK_ROLE(w, GN_ROLE_LINEAR);
    check_groups();
    close_null();
}

TEST(products_of_activations_are_not_linear) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), y = gn_matmul(x, gn_transpose(gn_sigmoid(x), 0, 1)),
              z = gn_matmul(weight(DIM, DIM), weight(DIM, DIM));
    gn_tensor all[] = { y, z };
    REQUIRE(understand_without(all, 2, 0));
    CHECK_ROLE(y, GN_ROLE_NONE);
    CHECK_ROLE(z, GN_ROLE_NONE);
    close_null();
}

/* ---- MLP ---- */

static gn_tensor hand_gelu(gn_tensor x) {
    return gn_mul(gn_mul_c(x, 0.5), gn_add_c(gn_erf(gn_mul_c(x, 0.70710678)), 1));
}

static gn_tensor mlp_down(gn_tensor h) { return gn_linear(h, weight(4 * DIM, DIM), GN_NONE); }
static gn_tensor mlp_up(gn_tensor x) { return gn_linear(x, weight(DIM, 4 * DIM), weight(0, 4 * DIM)); }
static gn_tensor mlp_matmul(gn_tensor x) { return gn_add(gn_matmul(x, weight(DIM, 4 * DIM)), weight(0, 4 * DIM)); }

TEST(mlp_is_seen_in_every_writing) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), up[5], down[5];
    up[0] = mlp_up(x), down[0] = mlp_down(gn_relu(up[0]));
    up[1] = mlp_matmul(x),
    down[1] =
        gn_add(gn_matmul(gn_reshape(hand_gelu(up[1]), GN_SHAPE(TIMES, 4 * DIM)), weight(4 * DIM, DIM)), weight(0, DIM));
    up[2] = mlp_up(x), down[2] = mlp_down(gn_mul(gn_silu(mlp_up(x)), up[2]));
    up[3] = mlp_up(x), down[3] = mlp_down(gn_mul(up[3], gn_sigmoid(up[3])));
    up[4] = mlp_matmul(x), down[4] = mlp_down(gn_leaky_relu(up[4], 0.1));
    REQUIRE(understand_without(down, TEST_COUNT(down), 0));
    for (int i = 0; i < TEST_COUNT(down); i++) {
        CHECK_ROLE(up[i], GN_ROLE_MLP);
        CHECK_ROLE(down[i], GN_ROLE_MLP);
        CHECK_TOGETHER(up[i], down[i]);
    }
    check_groups();
    close_null();
}

/* A mixture of experts: an MLP of a router's choice. */
TEST(mlp_of_experts_is_seen) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), w[3], gates, ids_of, h, y;
    for (int i = 0; i < 3; i++)
        w[i] = gn_weight(g, GN_F32, i < 2 ? GN_SHAPE(4, DIM, 32) : GN_SHAPE(4, 32, DIM), zeros, "experts");
    gn_topk(gn_softmax(gn_linear(x, weight(DIM, 4), GN_NONE), -1), 2, -1, true, &gates, &ids_of);
    gn_tensor up = gn_expert_linear(x, w[1], ids_of, GN_NONE);
    h = gn_mul(gn_silu(gn_expert_linear(x, w[0], ids_of, GN_NONE)), up);
    y = gn_expert_linear(h, w[2], ids_of, GN_NONE);
    REQUIRE(understand(gn_sum(gn_mul(y, gn_unsqueeze(gates, -1)), GN_AXES(1), false)));
    CHECK_ROLE(up, GN_ROLE_MLP);
    CHECK_ROLE(y, GN_ROLE_MLP);
    CHECK_TOGETHER(up, y);
    for (int i = 0; i < 3; i++) CHECK_RESIDENCY(w[i], GN_RESIDENCY_WEIGHT);
    CHECK(of(up)->flops == 2.0 * TIMES * 2 * DIM * 32);
    check_groups();
    close_null();
}

/* Gates as models write them: each activation, either side first, and gate and up as halves of one product. */
TEST(gated_mlp_is_seen_in_every_writing) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), first[6], down[6];
    for (int i = 0; i < 4; i++) first[i] = mlp_up(x);
    down[0] = mlp_down(gn_mul(gn_gelu_tanh(first[0]), mlp_up(x)));
    down[1] = mlp_down(gn_mul(mlp_matmul(x), hand_gelu(first[1])));
    down[2] = mlp_down(gn_mul(gn_mul(first[2], gn_sigmoid(first[2])), mlp_up(x)));
    down[3] = mlp_down(gn_mul(gn_square(gn_relu(first[3])), mlp_up(x)));
    for (int i = 4; i < 6; i++) {
        first[i] = gn_linear(x, weight(DIM, 8 * DIM), i == 4 ? GN_NONE : weight(0, 8 * DIM));
        gn_tensor gate = gn_slice(first[i], 1, 0, 4 * DIM, 1), up = gn_slice(first[i], 1, 4 * DIM, GN_END, 1);
        down[i] = mlp_down(i == 4 ? gn_mul(gn_silu(gate), up) : gn_mul(up, gn_mul(gate, gn_sigmoid(gate))));
    }
    REQUIRE(understand_without(down, TEST_COUNT(down), 0));
    for (int i = 0; i < TEST_COUNT(down); i++) {
        CHECK_ROLE(first[i], GN_ROLE_MLP);
        CHECK_ROLE(down[i], GN_ROLE_MLP);
        CHECK_TOGETHER(first[i], down[i]);
    }
    check_groups();
    close_null();
}

TEST(two_products_without_an_activation_or_with_a_skip_between_are_no_mlp) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), w[6];
    for (int i = 0; i < 6; i++) w[i] = weight(DIM, DIM);
    gn_tensor plain = gn_matmul(gn_matmul(x, w[0]), w[1]), scaled = gn_matmul(gn_mul_c(gn_matmul(x, w[2]), 2), w[3]);
    gn_tensor skip = gn_matmul(gn_relu(gn_add(gn_matmul(x, w[4]), x)), w[5]), all[] = { plain, scaled, skip };
    REQUIRE(understand_without(all, TEST_COUNT(all), 0));
    CHECK(!has_role(GN_ROLE_MLP));
    CHECK_ROLE(plain, GN_ROLE_LINEAR);
    check_groups();
    close_null();
}

/* ---- norm ---- */

static gn_tensor mean_row(gn_tensor x) { return gn_mean(x, GN_AXES(-1), true); }

static gn_tensor hand_layernorm(gn_tensor x, gn_tensor gain, gn_tensor bias) {
    gn_tensor d = gn_sub(x, mean_row(x));
    return gn_add(gn_mul(gn_div(d, gn_sqrt(gn_add_c(mean_row(gn_mul(d, d)), 1e-5))), gain), bias);
}

TEST(norm_is_seen_in_every_writing) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), gain = weight(0, DIM), bias = weight(0, DIM), y[8];
    y[0] = gn_layernorm(x, gain, bias, 1e-5);
    y[1] = hand_layernorm(x, gain, bias);
    y[2] = gn_rmsnorm(x, gain, 1e-6);
    y[3] = gn_mul(gain, gn_div(x, gn_sqrt(gn_add_c(mean_row(gn_square(x)), 1e-6))));
    y[4] = gn_mul(gn_sub(x, mean_row(x)), gn_rsqrt(gn_add_c(gn_variance(x, GN_AXES(-1), 0, true), 1e-5)));
    y[5] = gn_normalize(x, -1, 1e-8);
    y[6] = gn_mul(x, gn_pow_c(gn_add_c(gn_div_c(gn_sum(gn_pow_c(x, 2), GN_AXES(-1), true), DIM), 1e-6), -0.5));
    y[7] = gn_rmsnorm_1p(x, gain, 1e-5); /* of another eps: equal nodes would be one */
    REQUIRE(understand_without(y, TEST_COUNT(y), 0));
    for (int i = 0; i < TEST_COUNT(y); i++) CHECK_ROLE(y[i], GN_ROLE_NORM);
    CHECK_INT(m.n_groups, 1 + TEST_COUNT(y)); /* x is a group of its own */
    check_groups();
    close_null();
}

TEST(divisions_by_other_roots_are_no_norm) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), y[4];
    y[0] = gn_div(x, gn_sqrt(gn_add_c(gn_abs(x), 1)));
    y[1] = gn_div(x, gn_sum(gn_square(x), GN_AXES(-1), true));
    y[2] = gn_mul(x, gn_rsqrt(mean_row(gn_square(gn_tanh(gn_matmul(x, weight(DIM, DIM)))))));
    y[3] = gn_div(x, gn_sqrt(gn_sum(gn_abs(x), GN_AXES(-1), true)));
    REQUIRE(understand_without(y, TEST_COUNT(y), 0));
    CHECK(!has_role(GN_ROLE_NORM));
    close_null();
}

/* ---- attention ---- */

static gn_tensor project(gn_tensor x) { return gn_linear(x, weight(DIM, DIM), GN_NONE); }

/* (T, DIM) to (1, heads, T, DIM / HEADS) */
static gn_tensor split_heads(gn_tensor x, int64_t t, int64_t heads) {
    return gn_transpose(gn_reshape(x, GN_SHAPE(1, t, heads, HEAD)), 1, 2);
}

typedef gn_tensor (*attention_fn)(gn_tensor q, gn_tensor k, gn_tensor v);

static gn_tensor attention_op(gn_tensor q, gn_tensor k, gn_tensor v) { return gn_attention(q, k, v, NULL); }

static gn_tensor attention_matmuls(gn_tensor q, gn_tensor k, gn_tensor v) {
    return gn_matmul(gn_softmax(gn_mul_c(gn_matmul(q, gn_transpose(k, 2, 3)), 0.25), -1), v);
}

/* The scale on the queries, a causal mask from positions, the softmax by hand. */
static gn_tensor attention_by_hand(gn_tensor q, gn_tensor k, gn_tensor v) {
    gn_tensor row = gn_arange(g, GN_I32, TIMES, 0, 1),
              scores = gn_matmul(gn_div_c(q, 4), gn_permute(k, GN_AXES(0, 1, 3, 2)));
    scores = gn_where(gn_ge(gn_reshape(row, GN_SHAPE(TIMES, 1)), row), scores, gn_like(scores, -1e9));
    gn_tensor e = gn_exp(gn_sub(scores, gn_max(scores, GN_AXES(-1), true)));
    return gn_matmul(gn_div(e, gn_sum(e, GN_AXES(-1), true)), v);
}

/* Columns instead of rows: v^T softmax(k q^T). */
static gn_tensor attention_columns(gn_tensor q, gn_tensor k, gn_tensor v) {
    gn_tensor p = gn_softmax(gn_mul_c(gn_matmul(k, gn_transpose(q, 2, 3)), 0.25), -2);
    return gn_transpose(gn_matmul(gn_transpose(v, 2, 3), p), 2, 3);
}

static const attention_fn attentions[] = { attention_op, attention_matmuls, attention_by_hand, attention_columns };

TEST(self_attention_is_seen_in_every_writing) {
    for (int i = 0; i < TEST_COUNT(attentions); i++) {
        open_null();
        gn_tensor x = gn_tanh(rows(TIMES)), h = gn_layernorm(x, weight(0, DIM), GN_NONE, 1e-5);
        gn_tensor q = split_heads(project(h), TIMES, HEADS), k = split_heads(project(h), TIMES, HEADS),
                  v = split_heads(project(h), TIMES, HEADS);
        gn_tensor a = attentions[i](gn_rotary(q, gn_arange(g, GN_I32, TIMES, 0, 1), 10000, false), k, v);
        REQUIRE(understand(a));
        CHECK_ROLE(a, GN_ROLE_ATTENTION);
        CHECK_ROLE(h, GN_ROLE_NORM);
        CHECK(!has_role(GN_ROLE_CROSS_ATTENTION) && !has_role(GN_ROLE_GROUPED_ATTENTION));
        check_groups();
        close_null();
    }
}

TEST(attention_written_out_is_one_group) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), q = split_heads(project(x), TIMES, HEADS),
              k = split_heads(project(x), TIMES, HEADS), v = split_heads(project(x), TIMES, HEADS);
    gn_tensor scores = gn_matmul(q, gn_transpose(k, 2, 3)), p = gn_softmax(gn_mul_c(scores, 0.25), -1),
              a = gn_matmul(gn_mul(p, gn_ge(p, gn_like(p, 0.1))), v);
    REQUIRE(understand(gn_tanh(a)));
    CHECK_ROLE(scores, GN_ROLE_ATTENTION);
    CHECK_TOGETHER(scores, p);
    CHECK_TOGETHER(p, a);
    CHECK_INT(m.groups[of(a)->group].role, GN_ROLE_ATTENTION);
    check_groups();
    close_null();
}

TEST(cross_attention_is_seen_in_every_writing) {
    for (int i = 0; i < TEST_COUNT(attentions); i++) {
        open_null();
        gn_tensor x = gn_tanh(rows(TIMES)), memory = gn_tanh(rows(TIMES));
        gn_tensor q = split_heads(project(gn_layernorm(x, GN_NONE, GN_NONE, 1e-5)), TIMES, HEADS),
                  k = split_heads(project(memory), TIMES, HEADS), v = split_heads(project(memory), TIMES, HEADS);
        gn_tensor a = attentions[i](q, k, v);
        REQUIRE(understand(a));
        CHECK_ROLE(a, GN_ROLE_CROSS_ATTENTION);
        check_groups();
        close_null();
    }
}

TEST(norms_before_the_projections_do_not_make_self_attention_cross) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), gain = weight(0, DIM);
    gn_tensor q = split_heads(project(gn_rmsnorm(x, gain, 1e-5)), TIMES, HEADS),
              k = split_heads(project(hand_layernorm(x, gain, gain)), TIMES, HEADS),
              v = split_heads(project(x), TIMES, HEADS);
    gn_tensor a = attention_matmuls(q, k, v);
    REQUIRE(understand(a));
    CHECK_ROLE(a, GN_ROLE_ATTENTION);
    close_null();
}

TEST(grouped_attention_is_seen_in_every_writing) {
    open_null();
    enum { GROUPS = 2 };
    gn_tensor x = gn_tanh(rows(TIMES)), q = split_heads(project(x), TIMES, HEADS);
    gn_tensor narrow = gn_linear(x, weight(DIM, GROUPS * HEAD), GN_NONE), k = split_heads(narrow, TIMES, GROUPS);
    gn_tensor v = split_heads(gn_linear(x, weight(DIM, GROUPS * HEAD), GN_NONE), TIMES, GROUPS), a[3];
    a[0] = attention_op(q, k, v);
    a[1] = attention_matmuls(q, gn_repeat(k, HEADS / GROUPS, 1), gn_repeat(v, HEADS / GROUPS, 1));
    a[2] = attention_matmuls(gn_reshape(q, GN_SHAPE(GROUPS, HEADS / GROUPS, TIMES, HEAD)),
                             gn_reshape(k, GN_SHAPE(GROUPS, 1, TIMES, HEAD)),
                             gn_reshape(v, GN_SHAPE(GROUPS, 1, TIMES, HEAD)));
    REQUIRE(understand_without(a, 3, 0));
    for (int i = 0; i < 3; i++) CHECK_ROLE(a[i], GN_ROLE_GROUPED_ATTENTION);
    check_groups();
    close_null();
}

static uint32_t node_of(gn_tensor t) {
    gn_result why;
    return g->cut.where[gn__resolve(g, t, &why)];
}

/* What an executor may compute in one, whatever its role: products that a softmax stands between as its rows. */
TEST(attention_written_out_is_listed_with_its_products) {
    open_null();
    gn_tensor x = gn_tanh(given(GN_SHAPE(BATCH, HEADS, TIMES, HEAD))), y[6], scores[3], soft[3];
    gn_written_attention *found = NULL;
    gn_flag ended = { GN_CANCELLED };
    gn_fault f;
    uint32_t n = 7;
    scores[0] = gn_matmul(x, gn_transpose(x, 2, 3));
    soft[0] = gn_softmax(gn_add(gn_mul_c(scores[0], 0.25), weight(TIMES, TIMES)), -1); /* a bias that is learned */
    y[0] = gn_matmul(gn_reshape(gn_cast(soft[0], GN_F32), GN_SHAPE(BATCH * HEADS, TIMES, TIMES)),
                     gn_reshape(x, GN_SHAPE(BATCH * HEADS, TIMES, HEAD)));
    scores[1] = gn_matmul(gn_neg(x), gn_transpose(x, 2, 3)); /* a bias of positions, and values that are a table */
    scores[2] = gn_matmul(gn_exp(x), gn_transpose(x, 2, 3));
    soft[1] = gn_softmax(gn_fma(scores[1], gn_like(scores[1], 2), scores[2]), -1);
    y[1] = gn_matmul(soft[1], weight(TIMES, DIM));
    y[2] = attention_by_hand(x, x, x);
    y[3] = attention_columns(x, x, x);
    y[4] = attention_op(x, x, x);
    y[5] = gn_matmul(gn_softmax(gn_tanh(x), -1), gn_transpose(x, 2, 3)); /* no scores */
    REQUIRE(understand_without(y, TEST_COUNT(y), 0));
    REQUIRE(CHECK_RESULT(gn_written_attentions(&g->cut.part, NULL, &found, &n, &f), GN_OK) && CHECK_INT(n, 2));
    for (uint32_t i = 0; i < n; i++) {
        CHECK_INT(found[i].values, node_of(y[i]));
        CHECK_INT(found[i].softmax, node_of(soft[i]));
        CHECK_INT(found[i].n_scores, 1 + i);
    }
    CHECK_INT(found[0].scores[0], node_of(scores[0]));
    CHECK_INT(found[1].scores[0] + found[1].scores[1], node_of(scores[1]) + node_of(scores[2]));
    gn_free(found);
    CHECK_RESULT(gn_written_attentions(&g->cut.part, &ended, &found, &n, &f), GN_CANCELLED);
    CHECK(!found && !n);
    for (long k = 0; k < 4; k++) {
        allocations = 0;
        fails_at = k;
        gn_result r = gn_written_attentions(&g->cut.part, NULL, &found, &n, &f);
        fails_at = -1;
        CHECK_RESULT(r, k < 3 ? GN_OUT_OF_MEMORY : GN_OK);
        CHECK_INT(n, k < 3 ? 0 : 2);
        gn_free(found);
    }
    REQUIRE(understand(y[2]));
    CHECK_RESULT(gn_written_attentions(&g->cut.part, NULL, &found, &n, &f), GN_OK);
    CHECK(!found && !n);
    close_null();
}

TEST(softmax_between_other_products_is_no_attention) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), y[5];
    /* nothing attended to */
    y[4] = gn_matmul(gn_softmax(gn_matmul(x, gn_transpose(gn_tanh(x), 0, 1)), -1), weight(TIMES, DIM));
    y[0] = gn_matmul(gn_softmax(gn_matmul(x, weight(DIM, 8)), -1), weight(8, DIM)); /* a mixture of rows of a table */
    /* routing by a product with parameters */
    y[1] = gn_matmul(gn_softmax(gn_matmul(x, weight(DIM, TIMES)), -1), gn_tanh(x));
    y[2] = gn_matmul(gn_mul_c(gn_matmul(x, gn_transpose(gn_tanh(x), 0, 1)), 0.5), gn_sigmoid(x)); /* no softmax */
    y[3] = gn_matmul(gn_softmax(gn_tanh(x), -1), gn_transpose(gn_sigmoid(x), 0, 1));              /* no scores */
    REQUIRE(understand_without(y, TEST_COUNT(y), 0));
    CHECK(!has_role(GN_ROLE_ATTENTION) && !has_role(GN_ROLE_CROSS_ATTENTION) && !has_role(GN_ROLE_GROUPED_ATTENTION));
    close_null();
}

/* ---- KV append, prefill, decode ---- */

static gn_tensor cache_state(void) { return gn_state(g, GN_F32, GN_SHAPE(1, HEADS, CONTEXT, HEAD), NULL, "kv"); }

typedef gn_tensor (*append_fn)(gn_tensor cache, gn_tensor new_rows, int64_t t);

static gn_tensor append_op(gn_tensor cache, gn_tensor new_rows, int64_t t) {
    (void)t;
    return gn_kv_append(cache, new_rows, gn_scalar(g, GN_I32, 3));
}
static gn_tensor append_slice(gn_tensor cache, gn_tensor new_rows, int64_t t) {
    return gn_assign(cache, gn_slice_put(cache, new_rows, 2, 3, 3 + t, 1));
}
static gn_tensor append_concat(gn_tensor cache, gn_tensor new_rows, int64_t t) {
    (void)t;
    gn_tensor both[2] = { cache, new_rows };
    return gn_concat(both, 2, 2);
}

static const append_fn appends[] = { append_op, append_slice, append_concat };

static gn_tensor appended_attention(int how, int writing, int64_t t, gn_tensor *out_keys) {
    gn_tensor x = gn_tanh(rows(t)), q = split_heads(project(x), t, HEADS), k = split_heads(project(x), t, HEADS),
              v = split_heads(project(x), t, HEADS);
    gn_tensor keys = appends[how](cache_state(), k, t), values = appends[how](cache_state(), v, t);
    *out_keys = keys;
    return writing ? attention_matmuls(q, keys, values) : gn_attention(q, keys, values, NULL);
}

TEST(append_and_phase_are_seen_in_every_writing) {
    for (int how = 0; how < TEST_COUNT(appends); how++) {
        for (int i = 0; i < 4; i++) {
            open_null();
            gn_tensor keys, a = appended_attention(how, i & 1, i & 2 ? 1 : TIMES, &keys);
            REQUIRE(understand(gn_tanh(a)));
            CHECK_ROLE(a, GN_ROLE_ATTENTION);
            CHECK(has_role(GN_ROLE_KV_APPEND));
            CHECK_TOGETHER(keys, a);
            CHECK_RESIDENCY(keys, how == 1 ? GN_RESIDENCY_STATE : GN_RESIDENCY_KV_CACHE);
            for (uint32_t k = 0; k < m.n_nodes; k++)
                CHECK_STR(gn__phase_names[m.nodes[k].phase], i & 2 ? "decode" : "prefill");
            check_groups();
            close_null();
        }
    }
}

TEST(an_append_is_seen_behind_a_scale_and_a_rotation) {
    for (int how = 0; how < TEST_COUNT(appends); how++) {
        open_null();
        gn_tensor x = gn_tanh(rows(TIMES)), q = split_heads(project(x), TIMES, HEADS),
                  k = appends[how](cache_state(), q, TIMES), v = appends[how](cache_state(), q, TIMES);
        gn_tensor turned = gn_rotary(k, gn_arange(g, GN_I32, how == 2 ? CONTEXT + TIMES : CONTEXT, 0, 1), 10000, false),
                  a = attention_matmuls(q, gn_mul_c(turned, 0.25), v);
        REQUIRE(understand(a));
        CHECK_ROLE(a, GN_ROLE_ATTENTION);
        CHECK_INT(of(k)->role, GN_ROLE_KV_APPEND);
        CHECK_PHASE(a, GN_PREFILL);
        check_groups();
        close_null();
    }
}

/* Keys that are turned before they are appended, queries by the same table. */
TEST(a_decode_step_with_rotations_is_self_attention) {
    open_null();
    gn_tensor x = gn_tanh(rows(1)), h = gn_layernorm(x, weight(0, DIM), GN_NONE, 1e-5),
              at = gn_scalar_i64(g, GN_I64, 3);
    gn_rotary_desc turn = { .scaling = GN_ROTARY_LLAMA3, .factor = 8, .context = 8192 };
    gn_tensor q = gn_rotary_with(split_heads(project(h), 1, HEADS), at, &turn),
              rows_of_k = gn_rotary_with(split_heads(project(h), 1, HEADS), at, &turn),
              k = gn_kv_append(cache_state(), rows_of_k, at),
              v = gn_kv_append(cache_state(), split_heads(project(h), 1, HEADS), at), a = gn_attention(q, k, v, NULL);
    REQUIRE(understand(a));
    CHECK_ROLE(a, GN_ROLE_ATTENTION);
    CHECK(!has_role(GN_ROLE_CROSS_ATTENTION));
    CHECK_INT(of(k)->role, GN_ROLE_KV_APPEND);
    CHECK_PHASE(a, GN_DECODE);
    check_groups();
    close_null();
}

/* Queries and keys that are normed by head before they are turned, as the ops and written out; with a cache, without
   one, and with keys of something else. */
TEST(norms_of_queries_and_keys_leave_attention_what_it_is) {
    for (int i = 0; i < 6; i++) {
        open_null();
        gn_tensor x = gn_tanh(rows(1)), h = gn_rmsnorm(x, weight(0, DIM), 1e-6), gain = weight(0, HEAD),
                  other = i / 2 == 2 ? gn_exp(rows(1)) : h, at = gn_scalar_i64(g, GN_I64, 3),
                  q = split_heads(project(h), 1, HEADS), k = split_heads(project(other), 1, HEADS),
                  v = split_heads(project(other), 1, HEADS), all[2];
        if (i % 2) q = gn_rmsnorm(q, gain, 1e-6), k = gn_rmsnorm(k, gain, 1e-6);
        else q = hand_layernorm(q, gain, gain), k = hand_layernorm(k, gain, gain);
        all[1] = k;
        q = gn_rotary(q, at, 10000, false), k = gn_rotary(k, at, 10000, false);
        if (i / 2 == 1) k = gn_kv_append(cache_state(), k, at), v = gn_kv_append(cache_state(), v, at);
        all[0] = gn_attention(q, k, v, NULL);
        REQUIRE(understand_without(all, 2, 0));
        CHECK_ROLE(all[0], i / 2 == 2 ? GN_ROLE_CROSS_ATTENTION : GN_ROLE_ATTENTION);
        CHECK_ROLE(all[1], GN_ROLE_NORM);
        if (i / 2 == 1) CHECK_PHASE(all[0], GN_DECODE);
        check_groups();
        close_null();
    }
}

/* What a window and sinks make of it: the same, but for the keys that it reads. */
TEST(attention_of_a_window_is_seen_and_costs_its_keys) {
    enum { WINDOW = 4 };
    open_null();
    gn_tensor x = gn_tanh(rows(1)), pos = gn_scalar(g, GN_I32, 20), length = gn_add_c(pos, 1),
              q = split_heads(project(x), 1, HEADS), k = gn_kv_append(cache_state(), q, pos),
              v = gn_kv_append(cache_state(), split_heads(project(x), 1, HEADS), pos), all[2];
    all[0] = gn_attention(q, k, v, &(gn_attention_desc){ .causal = true, .length = length });
    all[1] = gn_attention(q, k, v,
                          &(gn_attention_desc){
                              .causal = true, .length = length, .window = WINDOW, .sinks = weight(0, HEADS) });
    REQUIRE(understand_without(all, 2, 0));
    for (int i = 0; i < 2; i++) {
        CHECK_ROLE(all[i], GN_ROLE_ATTENTION);
        CHECK_PHASE(all[i], GN_DECODE);
        double keys = i ? WINDOW : CONTEXT / 2; /* half of the cache where nothing says more */
        CHECK(of(all[i])->flops == 4.0 * DIM * keys);
        CHECK_INT((int64_t)of(all[i])->bytes_read - 2 * DIM * 4 * (int64_t)keys, (DIM + 1 + i * HEADS) * 4);
    }
    CHECK_INT(of(k)->role, GN_ROLE_KV_APPEND);
    check_groups();
    close_null();
}

TEST(rotated_queries_of_other_keys_are_cross_attention) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), other = gn_exp(rows(TIMES)), at = gn_arange(g, GN_I32, TIMES, 0, 1);
    gn_tensor q = gn_rotary(split_heads(project(x), TIMES, HEADS), at, 10000, false),
              k = gn_rotary(split_heads(project(other), TIMES, HEADS), at, 10000, false),
              a = gn_attention(q, k, split_heads(project(other), TIMES, HEADS), NULL);
    REQUIRE(understand(a));
    CHECK_ROLE(a, GN_ROLE_CROSS_ATTENTION);
    close_null();
}

TEST(phases_of_an_encoder_and_a_decoder_stay_apart) {
    open_null();
    gn_tensor source = gn_layernorm(gn_tanh(rows(TIMES)), weight(0, DIM), GN_NONE, 1e-5),
              q = split_heads(project(source), TIMES, HEADS);
    gn_tensor memory = gn_reshape(gn_transpose(gn_attention(q, q, q, NULL), 1, 2), GN_SHAPE(TIMES, DIM)),
              behind = project(memory);
    gn_tensor keys, self = appended_attention(0, 0, 1, &keys),
                    x = gn_reshape(gn_transpose(self, 1, 2), GN_SHAPE(1, DIM));
    gn_tensor k = split_heads(behind, TIMES, HEADS),
              cross = gn_attention(split_heads(project(x), 1, HEADS), k, k, NULL), end = gn_tanh(cross);
    REQUIRE(understand(end));
    CHECK_ROLE(cross, GN_ROLE_CROSS_ATTENTION);
    CHECK_PHASE(source, GN_ENCODE);
    CHECK_PHASE(behind, GN_ENCODE);
    CHECK_PHASE(self, GN_DECODE);
    CHECK_PHASE(end, GN_DECODE);
    close_null();
}

TEST(rows_put_into_a_state_that_no_attention_reads_are_no_kv_append) {
    open_null();
    gn_tensor log = gn_state(g, GN_F32, GN_SHAPE(CONTEXT, DIM), NULL, "log"),
              x = gn_tanh(gn_matmul(rows(1), weight(DIM, DIM)));
    gn_assign(log, gn_slice_put(log, x, 0, 3, 4, 1));
    gn_tensor both[2] = { given(GN_SHAPE(4, DIM)), x }, joined = gn_concat(both, 2, 0);
    REQUIRE(understand(joined));
    CHECK(!has_role(GN_ROLE_KV_APPEND));
    CHECK_PHASE(joined, GN_FORWARD);
    close_null();
}

TEST(attention_without_a_cache_is_neither_prefill_nor_decode) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), q = split_heads(project(x), TIMES, HEADS);
    gn_attention_desc causal = { .causal = true };
    gn_tensor a = gn_attention(q, q, q, &causal), b = gn_attention(q, q, q, NULL), both[2] = { a, b };
    REQUIRE(understand(a));
    CHECK_PHASE(a, GN_FORWARD);
    REQUIRE(understand_without(both, 2, 0));
    CHECK_PHASE(b, GN_ENCODE);
    close_null();
}

TEST(one_query_over_a_cache_that_is_only_read_is_decode) {
    open_null();
    gn_tensor x = gn_tanh(rows(1)), q = split_heads(project(x), 1, HEADS),
              many = split_heads(project(gn_tanh(rows(TIMES))), TIMES, HEADS);
    gn_tensor a = gn_attention(q, cache_state(), cache_state(), NULL),
              b = attention_matmuls(many, cache_state(), cache_state());
    REQUIRE(understand(a));
    CHECK_PHASE(a, GN_DECODE);
    CHECK_ROLE(a, GN_ROLE_CROSS_ATTENTION);
    REQUIRE(understand(b));
    CHECK_PHASE(b, GN_FORWARD);
    close_null();
}

/* ---- embedding ---- */

static gn_tensor words(int64_t n) { return gn_data(g, GN_I32, GN_SHAPE(n), ids); }

TEST(embedding_is_seen_in_every_writing) {
    open_null();
    gn_tensor table = weight(WORDS, DIM), places = weight(CONTEXT, DIM), e[4];
    e[0] = gn_embedding(table, words(TIMES));
    e[1] = gn_index_select(table, 0, words(TIMES));
    e[2] = gn_matmul(gn_one_hot(words(TIMES), WORDS, GN_F32), table);
    e[3] =
        gn_mul_c(gn_add(gn_embedding(table, words(TIMES)), gn_embedding(places, gn_arange(g, GN_I32, TIMES, 0, 1))), 8);
    REQUIRE(understand_without(e, TEST_COUNT(e), 0));
    for (int i = 0; i < TEST_COUNT(e); i++) {
        CHECK_ROLE(e[i], GN_ROLE_EMBEDDING);
        CHECK_MODALITY(e[i], i < 3 ? GN_MODALITY_TABULAR : GN_MODALITY_TEXT); /* with places they have an order */
    }
    CHECK_INT(of(e[0])->bytes_read, TIMES * DIM * 4 + TIMES * 4); /* rows and ids, not the table */
    check_groups();
    close_null();
}

TEST(picking_rows_of_activations_is_no_embedding) {
    open_null();
    gn_tensor x = gn_tanh(gn_matmul(rows(TIMES), weight(DIM, DIM))), a = gn_index_select(x, 0, words(3)),
              b = gn_embedding(x, words(3));
    gn_tensor c = gn_gather(weight(WORDS, DIM), 1, gn_data(g, GN_I32, GN_SHAPE(WORDS, 2), ids)), all[] = { a, b, c };
    REQUIRE(understand_without(all, 3, 0));
    CHECK(!has_role(GN_ROLE_EMBEDDING));
    close_null();
}

/* ---- residual ---- */

TEST(residual_is_seen_around_mlp_and_attention) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), h = hand_layernorm(x, weight(0, DIM), weight(0, DIM)),
              q = split_heads(project(h), TIMES, HEADS);
    gn_tensor a = project(gn_reshape(gn_transpose(attention_by_hand(q, q, q), 1, 2), GN_SHAPE(TIMES, DIM))),
              y = gn_add(x, a);
    gn_tensor f = mlp_down(gn_silu(mlp_up(gn_rmsnorm(y, GN_NONE, 1e-5)))), z = gn_add(f, y),
              direct = gn_add(gn_tanh(z), z);
    REQUIRE(understand(direct));
    CHECK_ROLE(y, GN_ROLE_RESIDUAL);
    CHECK_ROLE(z, GN_ROLE_RESIDUAL);
    CHECK_ROLE(direct, GN_ROLE_RESIDUAL);
    CHECK_TOGETHER(y, a);
    CHECK_TOGETHER(z, f);
    check_groups();
    close_null();
}

TEST(sums_of_branches_are_not_residual) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), y = gn_add(project(x), project(x)),
              z = gn_add(gn_relu(y), gn_tanh(rows(TIMES))), b = gn_add(gn_tanh(z), weight(0, DIM));
    REQUIRE(understand(b));
    CHECK(!has_role(GN_ROLE_RESIDUAL));
    close_null();
}

/* ---- loss ---- */

TEST(loss_is_seen_in_every_writing) {
    open_null();
    gn_tensor logits = gn_matmul(rows(TIMES), weight(DIM, 16)), target = given(GN_SHAPE(TIMES, 16)),
              classes = words(TIMES), l[9];
    gn_tensor logs = gn_log_softmax(logits, -1), hot = gn_one_hot(classes, 16, GN_F32), d = gn_sub(logits, target);
    l[0] = gn_cross_entropy(logits, classes);
    l[1] = gn_mse_loss(logits, target);
    l[2] = gn_neg(gn_mean(gn_gather(logs, 1, gn_reshape(classes, GN_SHAPE(TIMES, 1))), GN_ALL_AXES, false));
    l[3] = gn_neg(gn_div_c(gn_sum(gn_mul(logs, hot), GN_ALL_AXES, false), TIMES));
    l[4] = gn_mean(gn_mul(d, d), GN_ALL_AXES, false);
    l[5] = gn_mean(gn_abs(gn_sub(target, logits)), GN_ALL_AXES, false);
    l[6] = gn_bce_logits_loss(logits, target);
    l[7] = gn_mean(gn_sum(gn_neg(gn_mul(hot, gn_log(gn_softmax(logits, -1)))), GN_AXES(1), false), GN_ALL_AXES, false);
    l[8] = gn_smooth_l1_loss(logits, target, 1);
    REQUIRE(understand_without(l, TEST_COUNT(l), 0));
    for (int i = 0; i < TEST_COUNT(l); i++) CHECK_ROLE(l[i], GN_ROLE_LOSS);
    CHECK_ROLE(logs, GN_ROLE_LOSS);
    check_groups();
    close_null();
}

TEST(means_that_compare_with_no_target_are_no_loss) {
    open_null();
    gn_tensor x = gn_matmul(rows(TIMES), weight(DIM, 16)), target = given(GN_SHAPE(TIMES, 16)), y[5];
    y[0] = gn_mean(gn_square(x), GN_ALL_AXES, false);
    y[1] = gn_variance(x, GN_ALL_AXES, 0, false);
    y[2] = gn_mean(gn_square(gn_sub(x, target)), GN_AXES(1), false); /* one number a row */
    /* two givens: nothing predicted */
    y[3] = gn_mean(gn_square(gn_sub(given(GN_SHAPE(TIMES, 16)), target)), GN_ALL_AXES, false);
    y[4] = gn_sum(gn_mul(x, target), GN_ALL_AXES, false);
    REQUIRE(understand_without(y, TEST_COUNT(y), 0));
    CHECK(!has_role(GN_ROLE_LOSS));
    close_null();
}

/* ---- optimiser ---- */

static gn_tensor parameter(void) { return gn_state(g, GN_F32, GN_SHAPE(DIM, 16), zeros, "p"); }

static gn_tensor loss_of(gn_tensor p) { return gn_mse_loss(gn_matmul(rows(TIMES), p), given(GN_SHAPE(TIMES, 16))); }

static gn_tensor gradient_of(gn_tensor p) {
    gn_tensor grad;
    CHECK_RESULT(gn_grad(loss_of(p), &p, 1, &grad), GN_OK);
    return grad;
}

/* 0: momentum, 1: AdamW, 2: AdamW with decay, 3: by hand, 4: with decay of the parameter by hand */
static void optimise(int how, gn_tensor p, gn_tensor grad) {
    gn_tensor lr = gn_scalar(g, GN_F32, 0.1), a = parameter(), b = parameter();
    gn_sgd_desc sgd = { .lr = lr, .momentum = 0.9 };
    gn_adamw_desc adam = { .lr = lr, .step = gn_scalar(g, GN_F32, 1), .weight_decay = how == 2 ? 0.01 : 0 };
    if (how == 0) CHECK_RESULT(gn_sgd(&sgd, &p, &grad, &a, 1), GN_OK);
    else if (how < 3) CHECK_RESULT(gn_adamw(&adam, &p, &grad, &a, &b, 1), GN_OK);
    else if (how == 3) gn_assign(p, gn_sub(p, gn_mul(lr, grad)));
    else gn_assign(p, gn_add(gn_mul_c(p, 0.999), gn_mul(gn_neg(lr), grad)));
}

TEST(optimiser_is_seen_in_every_writing) {
    for (int how = 0; how < 5; how++) {
        open_null();
        gn_tensor p = parameter(), grad = gradient_of(p);
        optimise(how, p, grad);
        REQUIRE(understand_updates());
        CHECK(has_role(GN_ROLE_OPTIMIZER));
        CHECK_RESIDENCY(grad, GN_RESIDENCY_GRADIENT);
        CHECK_INT(m.groups[m.n_groups - 1].role, GN_ROLE_OPTIMIZER);
        for (uint32_t k = 0; k < m.n_nodes; k++) CHECK_STR(gn__phase_names[m.nodes[k].phase], "training");
        check_groups();
        close_null();
    }
}

TEST(optimiser_step_is_one_group_a_parameter) {
    open_null();
    gn_tensor p[3], grads[3], lr = gn_scalar(g, GN_F32, 0.1), step = gn_scalar(g, GN_F32, 1), mm[3], v[3];
    for (int i = 0; i < 3; i++) {
        p[i] = gn_state(g, GN_F32, GN_SHAPE(DIM, DIM), zeros, "p"),
        mm[i] = gn_state(g, GN_F32, GN_SHAPE(DIM, DIM), NULL, "m"),
        v[i] = gn_state(g, GN_F32, GN_SHAPE(DIM, DIM), NULL, "v");
    }
    gn_tensor y = gn_matmul(gn_relu(gn_matmul(gn_relu(gn_matmul(rows(TIMES), p[0])), p[1])), p[2]),
              loss = gn_mse_loss(y, rows(TIMES));
    CHECK_RESULT(gn_grad(loss, p, 3, grads), GN_OK);
    CHECK_RESULT(gn_adamw(&(gn_adamw_desc){ .lr = lr, .step = step }, p, grads, mm, v, 3), GN_OK);
    REQUIRE(understand(loss));
    int steps = 0;
    for (uint32_t k = 0; k < m.n_groups; k++) steps += m.groups[k].role == GN_ROLE_OPTIMIZER;
    CHECK_INT(steps, 3);
    for (uint32_t u = 0; u < g->cut.part.n_updates; u++)
        CHECK_INT(m.groups[m.nodes[g->cut.part.updates[u].node].group].role, GN_ROLE_OPTIMIZER);
    check_groups();
    close_null();
}

TEST(steps_that_share_a_rate_stay_two_groups) {
    open_null();
    gn_tensor p[2] = { parameter(), parameter() },
              rate = gn_mul(gn_scalar(g, GN_F32, 0.1), gn_sqrt(gn_scalar(g, GN_F32, 0.5)));
    gn_tensor a = gradient_of(p[0]), b = gradient_of(p[1]);
    gn_assign(p[0], gn_sub(p[0], gn_mul(rate, a)));
    gn_assign(p[1], gn_sub(p[1], gn_mul(rate, b)));
    REQUIRE(understand_updates());
    const gn_part_update *u = g->cut.part.updates;
    CHECK(m.nodes[u[0].node].group != m.nodes[u[1].node].group);
    CHECK_INT(m.groups[m.nodes[u[1].node].group].role, GN_ROLE_OPTIMIZER);
    check_groups();
    close_null();
}

TEST(gradients_from_another_step_are_seen_as_gradients) {
    open_null();
    gn_tensor p = parameter(), grad = given(GN_SHAPE(DIM, 16));
    gn_assign(p, gn_sub(p, gn_mul_c(grad, 0.1)));
    REQUIRE(understand_updates());
    CHECK(has_role(GN_ROLE_OPTIMIZER));
    close_null();
}

TEST(other_updates_of_states_are_no_optimiser) {
    open_null();
    gn_tensor x = gn_tanh(gn_matmul(rows(TIMES), weight(DIM, 16))), mean = gn_mean(x, GN_AXES(0), false),
              h = gn_state(g, GN_F32, GN_SHAPE(TIMES, 16), NULL, "h");
    gn_tensor average = gn_state(g, GN_F32, GN_SHAPE(16), NULL, "average"),
              total = gn_state(g, GN_F32, GN_SHAPE(16), NULL, "total");
    gn_assign(average, gn_add(gn_mul_c(average, 0.9), gn_mul_c(mean, 0.1)));
    gn_assign(total, gn_add(total, mean));
    gn_tensor z = gn_sigmoid(gn_add(x, gn_matmul(h, weight(16, 16)))); /* a gated recurrent unit */
    gn_assign(h, gn_add(gn_mul(gn_sub(gn_like(z, 1), z), gn_tanh(x)), gn_mul(z, h)));
    REQUIRE(understand_updates());
    CHECK(!has_role(GN_ROLE_OPTIMIZER));
    close_null();
}

/* ---- head and sampling ---- */

TEST(head_with_sampling_is_seen_in_every_writing) {
    open_null();
    gn_tensor x = gn_layernorm(gn_tanh(rows(TIMES)), GN_NONE, GN_NONE, 1e-5), table = weight(WORDS, DIM),
              token = gn_state(g, GN_I64, GN_SHAPE(TIMES), NULL, "token");
    gn_tensor logits[5], out[6];
    for (int i = 0; i < 4; i++) logits[i] = gn_matmul(x, gn_transpose(table, 0, 1));
    logits[4] = gn_linear(x, weight(DIM, WORDS), weight(0, WORDS));
    out[0] = gn_argmax(logits[0], GN_AXES(1), false);
    out[1] = gn_softmax(gn_div(logits[1], gn_scalar(g, GN_F32, 0.7)), -1);
    gn_topk(logits[2], 5, -1, true, &out[2], &out[3]);
    out[4] = gn_argmax(gn_add(logits[3], gn_random_uniform(g, GN_F32, GN_SHAPE(TIMES, WORDS))), GN_AXES(1), false);
    gn_assign(token, gn_argmax(logits[4], GN_AXES(1), false));
    out[5] = gn_tanh(logits[4]);
    REQUIRE(understand_without(out, 6, 0));
    for (int i = 0; i < 5; i++) CHECK_ROLE(logits[i], GN_ROLE_HEAD);
    for (int i = 0; i < 5; i++) CHECK_ROLE(out[i], GN_ROLE_SAMPLING);
    CHECK_TOGETHER(out[0], logits[0]);
    CHECK_TOGETHER(out[1], logits[1]);
    CHECK_TOGETHER(out[2], logits[2]);
    CHECK_TOGETHER(out[3], logits[2]);
    CHECK_TOGETHER(out[4], logits[3]);
    check_groups();
    close_null();
}

/* Penalties, a bias of the step and a mask lie between the logits and the draw. */
TEST(head_of_drawn_tokens_is_seen) {
    open_null();
    static const int32_t counts[TIMES * WORDS];
    static const uint8_t allowed[WORDS];
    gn_tensor x = gn_layernorm(gn_tanh(rows(TIMES)), GN_NONE, GN_NONE, 1e-5),
              logits = gn_linear(x, weight(DIM, WORDS), weight(0, WORDS));
    gn_sample_desc d = { .counts = gn_data(g, GN_I32, GN_SHAPE(TIMES, WORDS), counts),
                         .repetition = gn_scalar(g, GN_F32, 1.2),
                         .allowed = gn_data(g, GN_BOOL, GN_SHAPE(WORDS), allowed),
                         .temperature = gn_scalar(g, GN_F32, 0.7),
                         .top_p = gn_scalar(g, GN_F32, 0.9),
                         .seed = gn_arange(g, GN_I64, TIMES, 0, 1),
                         .counter = gn_scalar_i64(g, GN_I64, 3) };
    gn_tensor token = gn_sample(logits, &d);
    REQUIRE(understand(token));
    CHECK_ROLE(logits, GN_ROLE_HEAD);
    CHECK_ROLE(token, GN_ROLE_SAMPLING);
    CHECK_TOGETHER(token, logits);
    check_groups();
    close_null();
}

TEST(choices_within_the_graph_and_plain_outputs_are_no_head) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), route = gn_softmax(gn_matmul(x, weight(DIM, 4)), -1),
              best = gn_argmax(x, GN_AXES(1), false);
    gn_tensor y = gn_mul(gn_slice(route, 1, 0, 1, 1), gn_matmul(x, weight(DIM, DIM))), all[] = { y, best };
    REQUIRE(understand_without(all, 2, 0));
    CHECK(!has_role(GN_ROLE_HEAD) && !has_role(GN_ROLE_SAMPLING));
    close_null();
}

/* ---- convolution and modality ---- */

TEST(convolution_by_windows_is_seen_and_is_vision) {
    open_null();
    gn_tensor image = given(GN_SHAPE(1, 3, 8, 8)),
              columns = gn_im2col(image, GN_SHAPE(3, 3), GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(1, 1));
    gn_tensor y = gn_relu(gn_matmul(weight(8, 27), columns)),
              flat = gn_matmul(gn_reshape(gn_tanh(y), GN_SHAPE(1, 512)), weight(512, 10));
    REQUIRE(understand(flat));
    CHECK_ROLE(y, GN_ROLE_CONV);
    CHECK_ROLE(flat, GN_ROLE_LINEAR);
    CHECK_MODALITY(flat, GN_MODALITY_VISION);
    CHECK_MODALITY(image, GN_MODALITY_VISION);
    check_groups();
    gn_step(g);
    gn_tensor row = gn_matmul(gn_index_select(gn_tanh(rows(TIMES)), 0, words(1)), weight(DIM, DIM)); /* a choice */
    REQUIRE(understand(row));
    CHECK_ROLE(row, GN_ROLE_LINEAR);
    close_null();
}

TEST(convolution_and_its_activation_are_one_stage) {
    open_null();
    gn_tensor image = given(GN_SHAPE(1, 3, 8, 8)), filters = gn_reshape(weight(8, 27), GN_SHAPE(8, 3, 3, 3)),
              y = gn_conv(image, filters, GN_NONE, &(gn_conv_desc){ .before = { 1, 1 }, .after = { 1, 1 } }),
              bent = gn_relu(y), flat = gn_matmul(gn_reshape(bent, GN_SHAPE(1, 512)), weight(512, 10));
    REQUIRE(understand(flat));
    CHECK_ROLE(y, GN_ROLE_CONV);
    CHECK_ROLE(bent, GN_ROLE_CONV);
    CHECK_ROLE(flat, GN_ROLE_LINEAR);
    CHECK_MODALITY(image, GN_MODALITY_VISION);
    check_groups();
    close_null();
}

TEST(recurrent_layer_is_one_op_behind_a_linear) {
    open_null();
    gn_tensor w = gn_reshape(weight(32, 3), GN_SHAPE(1, 32, 3)), r = gn_reshape(weight(32, 8), GN_SHAPE(1, 32, 8)),
              y = gn_recurrent(given(GN_SHAPE(5, 2, 3)), w, r, &(gn_recurrent_desc){ .cell = GN_CELL_LSTM }),
              flat = gn_matmul(gn_reshape(gn_tanh(y), GN_SHAPE(24, 8)), weight(8, 10));
    REQUIRE(understand(flat));
    CHECK_ROLE(y, GN_ROLE_RECURRENT);
    CHECK_ROLE(flat, GN_ROLE_LINEAR);
    check_groups();
    close_null();
}

static gn_tensor filters(int64_t out, int64_t in, int64_t kernel) {
    return gn_reshape(weight(out, in * kernel * kernel), GN_SHAPE(out, in, kernel, kernel));
}

static gn_tensor conv(gn_tensor x, gn_tensor w, int64_t stride, int64_t pad, int64_t groups) {
    return gn_conv(x, w, GN_NONE,
                   &(gn_conv_desc){
                       .stride = { stride, stride }, .before = { pad, pad }, .after = { pad, pad }, .groups = groups });
}

/* (channels,8,16) as 8 rows of 4 x 4 pixels */
static gn_tensor tiles(gn_tensor x) {
    gn_info of = { 0 };
    gn_describe(x, &of);
    int64_t c = of.shape.dims[0];
    x = gn_permute(gn_reshape(x, GN_SHAPE(c, 2, 4, 4, 4)), GN_AXES(1, 3, 0, 2, 4));
    return gn_reshape(x, GN_SHAPE(8, c * 16));
}

TEST(modalities_spread_and_mix) {
    open_null();
    gn_tensor found = gn_embedding(weight(WORDS, DIM), words(TIMES)), heads = split_heads(found, TIMES, HEADS),
              text = gn_reshape(gn_attention(heads, heads, heads, NULL), GN_SHAPE(TIMES, DIM)),
              picture = gn_matmul(tiles(given(GN_SHAPE(3, 8, 16))), weight(48, DIM));
    gn_tensor both = gn_mul(gn_tanh(text), gn_tanh(picture)), all[] = { both };
    REQUIRE(understand_without(all, 1, 0));
    CHECK_MODALITY(text, GN_MODALITY_TEXT);
    CHECK_MODALITY(picture, GN_MODALITY_VISION);
    CHECK_MODALITY(both, GN_MODALITY_MIXED);
    close_null();
}

/* What looks alike and is not: axes alone tell nothing, nor do ids that nothing orders or that are known beforehand. */
TEST(axes_and_ids_alone_are_no_modality) {
    open_null();
    gn_tensor flat = gn_matmul(gn_reshape(given(GN_SHAPE(TIMES, 3, 4, 4)), GN_SHAPE(TIMES, 48)), weight(48, DIM)),
              table = gn_matmul(rows(TIMES), weight(DIM, DIM)),
              heads = gn_matmul(split_heads(rows(TIMES), TIMES, HEADS), weight(HEAD, 8)),
              deep = conv(given(GN_SHAPE(1, 16, 8, 8)), filters(8, 16, 3), 1, 1, 1),
              thin =
                  gn_conv(given(GN_SHAPE(1, 1, 8, 64)), gn_reshape(weight(8, 5), GN_SHAPE(8, 1, 1, 5)), GN_NONE, NULL),
              points = conv(given(GN_SHAPE(1, 3, 8, 8)), filters(8, 3, 1), 1, 0, 1),
              series = gn_conv(given(GN_SHAPE(1, 8, 64)), gn_reshape(weight(8, 40), GN_SHAPE(8, 8, 5)), GN_NONE, NULL),
              swapped = gn_matmul(gn_reshape(gn_permute(given(GN_SHAPE(3, 8, 16)), GN_AXES(1, 0, 2)), GN_SHAPE(8, 48)),
                                  weight(48, DIM)),
              wide = gn_matmul(gn_reshape(tiles(given(GN_SHAPE(12, 8, 16))), GN_SHAPE(8, 192)), weight(192, DIM)),
              bias = gn_embedding(weight(WORDS, DIM), gn_arange(g, GN_I32, TIMES, 0, 1));
    gn_tensor all[] = { flat, table, heads, deep, thin, points, series, swapped, wide, bias };
    REQUIRE(understand_without(all, TEST_COUNT(all), 0));
    for (int i = 0; i < TEST_COUNT(all); i++) CHECK_MODALITY(all[i], GN_MODALITY_UNKNOWN);
    close_null();
}

TEST(ids_are_text_where_the_order_of_their_rows_counts) {
    open_null();
    gn_tensor h = split_heads(gn_tanh(gn_matmul(rows(TIMES), weight(DIM, DIM))), TIMES, HEADS),
              sum = gn_embedding(weight(WORDS, DIM), words(TIMES)), one = gn_embedding(weight(WORDS, DIM), words(1));
    sum = gn_add(sum, gn_embedding(weight(WORDS, DIM), words(TIMES))); /* categories, into an MLP */
    gn_tensor score = mlp_down(gn_relu(mlp_up(sum)));
    /* a class that all rows of an attention are given */
    gn_tensor told = split_heads(gn_add(gn_reshape(h, GN_SHAPE(TIMES, DIM)), one), TIMES, HEADS),
              a = gn_attention(told, told, told, NULL);
    /* a bias of an attention, at places that are known beforehand */
    gn_tensor bias = gn_embedding(weight(WORDS, HEADS), gn_weight(g, GN_I32, GN_SHAPE(TIMES * TIMES), ids, "where")),
              b = gn_attention(h, h, h,
                               &(gn_attention_desc){ .mask =
                                                         gn_permute(gn_reshape(bias, GN_SHAPE(1, TIMES, TIMES, HEADS)),
                                                                    GN_AXES(0, 3, 1, 2)) });
    gn_tensor w = gn_reshape(weight(4 * DIM, DIM), GN_SHAPE(1, 4 * DIM, DIM)),
              steps = gn_embedding(weight(WORDS, DIM), words(TIMES)),
              r = gn_recurrent(gn_reshape(steps, GN_SHAPE(TIMES, 1, DIM)), w,
                               gn_reshape(weight(4 * DIM, DIM), GN_SHAPE(1, 4 * DIM, DIM)),
                               &(gn_recurrent_desc){ .cell = GN_CELL_LSTM });
    gn_tensor all[] = { score, a, b, r };
    REQUIRE(understand_without(all, TEST_COUNT(all), 0));
    CHECK_MODALITY(score, GN_MODALITY_TABULAR);
    CHECK_MODALITY(one, GN_MODALITY_TABULAR);
    CHECK_MODALITY(bias, GN_MODALITY_UNKNOWN);
    CHECK_MODALITY(steps, GN_MODALITY_TEXT);
    close_null();
}

TEST(depthwise_and_pointwise_convs_are_one_block) {
    open_null();
    gn_tensor x = gn_tanh(conv(given(GN_SHAPE(1, 3, 8, 8)), filters(8, 3, 3), 1, 1, 1)),
              deep = conv(x, filters(8, 1, 3), 1, 1, 8),
              bent = gn_relu(gn_mul(deep, gn_reshape(weight(0, 8), GN_SHAPE(8, 1, 1)))),
              y = gn_relu(conv(bent, filters(16, 8, 1), 1, 0, 1));
    REQUIRE(understand(y));
    const gn_tensor all[] = { deep, bent, y };
    for (int i = 0; i < TEST_COUNT(all); i++) {
        CHECK_ROLE(all[i], GN_ROLE_SEPARABLE_CONV);
        CHECK_TOGETHER(all[i], deep);
    }
    CHECK_ROLE(x, GN_ROLE_CONV);
    check_groups();
    gn_step(g);
    /* neither of these: a filter over several channels, a pointwise conv in groups, a kernel of several places */
    x = given(GN_SHAPE(1, 8, 8, 8));
    gn_tensor others[] = { conv(conv(x, filters(8, 2, 3), 1, 1, 4), filters(16, 8, 1), 1, 0, 1),
                           conv(conv(x, filters(8, 1, 3), 1, 1, 8), filters(8, 2, 1), 1, 0, 4),
                           conv(conv(x, filters(8, 1, 3), 1, 1, 8), filters(16, 8, 3), 1, 1, 1) };
    REQUIRE(understand_without(others, TEST_COUNT(others), 0));
    CHECK(!has_role(GN_ROLE_SEPARABLE_CONV));
    close_null();
}

TEST(patches_of_pictures_are_seen_in_every_writing) {
    open_null();
    gn_tensor picture = given(GN_SHAPE(BATCH, 3, 8, 8)), by_conv = conv(picture, filters(DIM, 3, 4), 4, 0, 1),
              tiles = gn_permute(gn_reshape(picture, GN_SHAPE(BATCH, 3, 2, 4, 2, 4)), GN_AXES(0, 2, 4, 1, 3, 5)),
              by_product = gn_matmul(gn_reshape(tiles, GN_SHAPE(BATCH, 4, 48)), weight(48, DIM)),
              placed = gn_add(by_product, weight(4, DIM)), all[] = { gn_tanh(by_conv), gn_tanh(placed) };
    REQUIRE(understand_without(all, 2, 0));
    CHECK_ROLE(by_conv, GN_ROLE_PATCHES);
    CHECK_ROLE(by_product, GN_ROLE_PATCHES);
    CHECK_ROLE(placed, GN_ROLE_POSITIONS);
    CHECK_TOGETHER(placed, by_product);
    CHECK_MODALITY(by_conv, GN_MODALITY_VISION);
    CHECK_MODALITY(placed, GN_MODALITY_VISION);
    gn_step(g);
    /* neither: places that overlap or that are padded, a picture as one row */
    picture = given(GN_SHAPE(BATCH, 3, 8, 8));
    gn_tensor others[] = { conv(picture, filters(DIM, 3, 4), 2, 0, 1), conv(picture, filters(DIM, 3, 2), 2, 1, 1),
                           gn_matmul(gn_reshape(picture, GN_SHAPE(BATCH, 192)), weight(192, DIM)) };
    REQUIRE(understand_without(others, TEST_COUNT(others), 0));
    CHECK(!has_role(GN_ROLE_PATCHES));
    close_null();
}

TEST(pooling_runs_with_the_conv_before_it) {
    open_null();
    gn_tensor x = gn_relu(conv(given(GN_SHAPE(1, 3, 8, 8)), filters(8, 3, 3), 1, 1, 1)),
              y = gn_pool(x, &(gn_pool_desc){ .kernel = { 2, 2 }, .stride = { 2, 2 } }),
              z = gn_relu(conv(y, filters(8, 8, 3), 1, 1, 1)), mean = gn_mean(z, GN_AXES(2, 3), false),
              out = gn_matmul(mean, weight(8, 10));
    REQUIRE(understand(out));
    CHECK_ROLE(y, GN_ROLE_POOLING);
    CHECK_ROLE(mean, GN_ROLE_POOLING);
    CHECK_TOGETHER(y, x);
    CHECK_TOGETHER(mean, z);
    check_groups();
    gn_step(g);
    gn_tensor other = gn_mean(gn_tanh(gn_matmul(rows(TIMES), weight(DIM, DIM))), GN_AXES(1), false); /* of no conv */
    REQUIRE(understand(other));
    CHECK(!has_role(GN_ROLE_POOLING));
    close_null();
}

TEST(skips_of_a_u_net_run_with_the_conv_that_reads_them) {
    open_null();
    gn_tensor a = gn_relu(conv(given(GN_SHAPE(1, 3, 8, 8)), filters(8, 3, 3), 1, 1, 1)),
              b = gn_relu(conv(gn_pool(a, &(gn_pool_desc){ .kernel = { 2, 2 }, .stride = { 2, 2 } }), filters(8, 8, 3),
                               1, 1, 1)),
              up = gn_interpolate(b, GN_AXES(2, 3), GN_SHAPE(8, 8), NULL),
              both = gn_concat((gn_tensor[]){ a, gn_tanh(up) }, 2, 1), y = conv(both, filters(4, 16, 3), 1, 1, 1);
    REQUIRE(understand(y));
    CHECK_ROLE(both, GN_ROLE_SKIP);
    CHECK_TOGETHER(both, y);
    check_groups();
    close_null();
}

/* A table of categories, three ids a bag. */
static gn_tensor bag_rows(gn_tensor table, int64_t n) {
    return gn_embedding(table, gn_reshape(words(3 * n), GN_SHAPE(n, 3)));
}

TEST(embedding_bags_are_seen_in_every_writing) {
    open_null();
    gn_tensor table = weight(WORDS, DIM), e[4];
    e[0] = gn_sum(bag_rows(table, 4), GN_AXES(1), false);
    e[1] = gn_mean(bag_rows(table, 4), GN_AXES(1), false);
    e[2] = gn_sum(gn_mul(bag_rows(table, 4), gn_reshape(given(GN_SHAPE(4, 3)), GN_SHAPE(4, 3, 1))), GN_AXES(1), false);
    gn_tensor where = gn_broadcast(gn_reshape(words(12), GN_SHAPE(12, 1)), GN_SHAPE(12, DIM));
    e[3] = gn_scatter_add(gn_full(g, GN_F32, GN_SHAPE(4, DIM), 0), 0, where, gn_embedding(table, words(12)));
    REQUIRE(understand_without(e, TEST_COUNT(e), 0));
    for (int i = 0; i < TEST_COUNT(e); i++) {
        CHECK_ROLE(e[i], GN_ROLE_EMBEDDING_BAG);
        CHECK_MODALITY(e[i], GN_MODALITY_TABULAR);
    }
    check_groups();
    gn_step(g);
    gn_tensor kept = bag_rows(table, 4),
              others[] = { kept, gn_sum(kept, GN_AXES(1), false) }; /* the rows are read too */
    REQUIRE(understand_without(others, 2, 0));
    CHECK(!has_role(GN_ROLE_EMBEDDING_BAG));
    close_null();
}

TEST(interactions_of_features_are_seen) {
    open_null();
    gn_tensor a = gn_reshape(gn_tanh(rows(TIMES)), GN_SHAPE(TIMES, 1, DIM)),
              b = gn_reshape(gn_exp(rows(TIMES)), GN_SHAPE(TIMES, 1, DIM)), x = gn_concat((gn_tensor[]){ a, b }, 2, 1),
              y = gn_matmul(x, gn_transpose(x, 1, 2));
    REQUIRE(understand(y));
    CHECK_ROLE(y, GN_ROLE_INTERACTION);
    CHECK_ROLE(x, GN_ROLE_INTERACTION);
    close_null();
}

TEST(adapters_run_where_their_base_is) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), base = gn_matmul(x, weight(DIM, DIM)), mid = gn_matmul(x, weight(DIM, 4)),
              low = gn_matmul(mid, weight(4, DIM)), y = gn_add(base, gn_mul_c(low, 0.5));
    REQUIRE(understand(gn_tanh(y)));
    CHECK_ROLE(base, GN_ROLE_LINEAR);
    const gn_tensor own[] = { mid, low, y };
    for (int i = 0; i < TEST_COUNT(own); i++) {
        CHECK_ROLE(own[i], GN_ROLE_ADAPTER);
        CHECK_TOGETHER(own[i], base);
    }
    gn_step(g);
    x = gn_tanh(rows(TIMES)); /* neither: factors as large as the product they would stand for, another input */
    gn_tensor others[] = { gn_add(gn_matmul(x, weight(DIM, DIM)),
                                  gn_matmul(gn_matmul(x, weight(DIM, 48)), weight(48, DIM))),
                           gn_add(gn_matmul(x, weight(DIM, DIM)),
                                  gn_matmul(gn_matmul(gn_exp(rows(TIMES)), weight(DIM, 4)), weight(4, DIM))) };
    REQUIRE(understand_without(others, 2, 0));
    CHECK(!has_role(GN_ROLE_ADAPTER));
    close_null();
}

TEST(sound_is_seen_by_the_power_of_its_waves) {
    open_null();
    gn_tensor frames = rows(TIMES), re = gn_matmul(frames, given(GN_SHAPE(DIM, 16))),
              im = gn_matmul(frames, given(GN_SHAPE(DIM, 16))), power = gn_add(gn_square(re), gn_mul(im, im)),
              mel = gn_log(gn_add_c(gn_matmul(power, weight(16, 8)), 1e-6)),
              wave = gn_conv(given(GN_SHAPE(1, 1, 64)), gn_reshape(weight(8, 5), GN_SHAPE(8, 1, 5)), GN_NONE,
                             &(gn_conv_desc){ .stride = { 2 } }),
              of_wave = gn_stft(given(GN_SHAPE(256)), 64, 16, GN_NONE, false), all[] = { mel, wave, of_wave };
    REQUIRE(understand_without(all, 3, 0));
    CHECK_MODALITY(mel, GN_MODALITY_AUDIO);
    CHECK_MODALITY(frames, GN_MODALITY_AUDIO);
    CHECK_MODALITY(wave, GN_MODALITY_AUDIO);
    CHECK_MODALITY(of_wave, GN_MODALITY_AUDIO);
    close_null();
}

/* ---- rotary and positional embedding, recurrent cells, fusion ---- */

static gn_tensor angles(int64_t pairs) {
    gn_tensor at = gn_reshape(given(GN_SHAPE(TIMES)), GN_SHAPE(TIMES, 1));
    return gn_mul(at, gn_exp(gn_arange(g, GN_F32, pairs, 0, 1)));
}
static gn_tensor half(gn_tensor x, int64_t k) { return gn_slice(x, -1, k * HEAD / 2, (k + 1) * HEAD / 2, 1); }
static gn_tensor beside(gn_tensor a, gn_tensor b) { return gn_concat((gn_tensor[]){ a, b }, 2, -1); }
static gn_tensor turn_op(gn_tensor x) { return gn_rotary(x, words(TIMES), 10000, true); }
static gn_tensor turn_by_table(gn_tensor x) {
    return gn_rotary_by(x, gn_rotary_table(words(TIMES), GN_F32, &(gn_rotary_desc){ .size = HEAD / 2 }), false);
}
static gn_tensor turn_halves(gn_tensor x) {
    gn_tensor a = angles(HEAD / 2), both = beside(a, a);
    return gn_add(gn_mul(x, gn_cos(both)), gn_mul(beside(gn_neg(half(x, 1)), half(x, 0)), gn_sin(both)));
}
/* of cosines and sines that are given, and -1 times a half */
static gn_tensor turn_given(gn_tensor x) {
    gn_tensor c = given(GN_SHAPE(TIMES, HEAD)), s = given(GN_SHAPE(TIMES, HEAD));
    return gn_add(gn_mul(beside(gn_mul_c(half(x, 1), -1), half(x, 0)), s), gn_mul(x, c));
}
static gn_tensor turn_parts(gn_tensor x) {
    gn_tensor c = gn_cos(angles(HEAD / 2)), s = gn_sin(angles(HEAD / 2)), a = half(x, 0), b = half(x, 1);
    return beside(gn_sub(gn_mul(a, c), gn_mul(b, s)), gn_add(gn_mul(b, c), gn_mul(a, s)));
}
static gn_tensor turn_neighbours(gn_tensor x) {
    gn_tensor c = gn_cos(angles(HEAD / 2)), s = gn_sin(angles(HEAD / 2)), p[2], y[2];
    x = gn_reshape(x, GN_SHAPE(1, HEADS, TIMES, HEAD / 2, 2));
    for (int i = 0; i < 2; i++) p[i] = gn_reshape(gn_slice(x, 4, i, i + 1, 1), GN_SHAPE(1, HEADS, TIMES, HEAD / 2));
    y[0] = gn_sub(gn_mul(p[0], c), gn_mul(p[1], s));
    y[1] = gn_add(gn_mul(p[0], s), gn_mul(p[1], c));
    return gn_reshape(gn_stack(y, 2, 4), GN_SHAPE(1, HEADS, TIMES, HEAD));
}
/* the first half of a head is turned */
static gn_tensor turn_some(gn_tensor x) {
    gn_tensor a = half(x, 0), p = gn_slice(a, -1, 0, HEAD / 4, 1), q = gn_slice(a, -1, HEAD / 4, HEAD / 2, 1),
              angle = angles(HEAD / 4), both = beside(angle, angle);
    a = gn_add(gn_mul(a, gn_cos(both)), gn_mul(beside(gn_neg(q), p), gn_sin(both)));
    return beside(a, half(x, 1));
}

TEST(rotary_embedding_is_seen_in_every_writing) {
    static gn_tensor (*const turns[])(gn_tensor) = { turn_op,    turn_by_table,   turn_halves, turn_given,
                                                     turn_parts, turn_neighbours, turn_some };
    for (int i = 0; i < TEST_COUNT(turns); i++) {
        open_null();
        gn_tensor x = gn_tanh(rows(TIMES)), project_of_q = project(x), q = split_heads(project_of_q, TIMES, HEADS),
                  k = split_heads(project(x), TIMES, HEADS), turned = turns[i](q),
                  a = attention_matmuls(turned, turns[i](k), k);
        REQUIRE(understand(a));
        if (!CHECK(of(turned)->role == GN_ROLE_ROTARY)) printf("    writing %d\n", i);
        CHECK_ROLE(a, GN_ROLE_ATTENTION);
        uint32_t first = 0;
        while (first + 1 < m.n_nodes && (m.nodes[first].role != GN_ROLE_ROTARY || m.nodes[first].flops == 0)) first++;
        CHECK(m.nodes[first].group < of(a)->group && m.nodes[first].group > of(project_of_q)->group);
        CHECK_STR(gn__role_names[m.groups[m.nodes[first].group].role], "rotary embedding");
        check_groups();
        REQUIRE(understand_without(&a, 1, GN_OFF_ROLE(GN_ROLE_ROTARY)));
        CHECK(!has_role(GN_ROLE_ROTARY));
        close_null();
    }
}

TEST(products_that_turn_nothing_are_no_rotary_embedding) {
    open_null();
    gn_tensor x = split_heads(project(gn_tanh(rows(TIMES))), TIMES, HEADS), a = angles(HEAD), c = gn_cos(a),
              s = gn_sin(a), p = half(x, 0), q = half(x, 1),
              other = split_heads(project(gn_exp(rows(TIMES))), TIMES, HEADS);
    gn_tensor hc = gn_cos(angles(HEAD / 2)), hs = gn_sin(angles(HEAD / 2));
    gn_tensor none[] = {
        gn_add(gn_mul(x, c), gn_mul(beside(q, p), s)),                          /* no half changes its sign */
        gn_add(gn_mul(x, c), gn_mul(beside(gn_neg(half(other, 1)), p), s)),     /* a half of something else */
        gn_add(gn_mul(other, c), gn_mul(beside(gn_neg(q), p), s)),              /* the same */
        gn_add(gn_mul(x, gn_exp(a)), gn_mul(beside(gn_neg(q), p), gn_tanh(a))), /* by no waves */
        beside(gn_sub(gn_mul(p, hc), gn_mul(p, hs)), gn_add(gn_mul(q, hc), gn_mul(q, hs))), /* each half by itself */
        gn_add(gn_mul(x, given(GN_SHAPE(TIMES, HEAD))), gn_mul(beside(gn_neg(q), p), given(GN_SHAPE(TIMES, HEAD))))
    }; /* given numbers, and no attention */
    REQUIRE(understand_without(none, TEST_COUNT(none), 0));
    CHECK(!has_role(GN_ROLE_ROTARY));
    close_null();
}

TEST(positional_embedding_is_seen_in_every_writing) {
    open_null();
    gn_tensor table = weight(WORDS, DIM), angle = angles(DIM / 2), word[8], y[8];
    for (int i = 0; i < 8; i++) word[i] = gn_embedding(table, words(TIMES));
    gn_tensor count = gn_arange(g, GN_I32, TIMES, 0, 1), places = weight(CONTEXT, DIM);
    y[0] = gn_add(word[0], gn_embedding(places, count));
    y[1] = gn_add(gn_embedding(places, gn_add(count, gn_scalar(g, GN_I32, 3))), word[1]);
    y[2] = gn_add(word[2], gn_slice(places, 0, 0, TIMES, 1));
    y[3] = gn_add(gn_mul_c(word[3], 8), beside(gn_sin(angle), gn_cos(angle)));
    y[4] = gn_add(gn_add(word[4], gn_embedding(weight(2, DIM), words(TIMES))), gn_embedding(places, count));
    word[5] = conv(given(GN_SHAPE(1, 3, 8, 8)), filters(DIM, 3, 4), 4, 0, 1);
    y[5] = gn_add(word[5], gn_reshape(weight(DIM, 4), GN_SHAPE(1, DIM, 2, 2)));
    word[6] =
        gn_permute(gn_reshape(conv(given(GN_SHAPE(1, 3, 8, 8)), filters(DIM, 3, 4), 4, 0, 1), GN_SHAPE(1, DIM, 4)),
                   GN_AXES(0, 2, 1));
    y[6] = gn_add(gn_concat((gn_tensor[]){ gn_reshape(weight(0, DIM), GN_SHAPE(1, 1, DIM)), word[6] }, 2, 1),
                  weight(5, DIM));
    word[7] = gn_linear(rows(TIMES), weight(DIM, DIM), weight(0, DIM));
    y[7] = gn_add(word[7], weight(TIMES, DIM));
    REQUIRE(understand_without(y, 8, 0));
    for (int i = 0; i < 8; i++) {
        if (!CHECK(of(y[i])->role == GN_ROLE_POSITIONS)) printf("    writing %d\n", i);
        CHECK_TOGETHER(y[i], word[i]);
        if (i < 5) CHECK_MODALITY(y[i], GN_MODALITY_TEXT);
    }
    check_groups();
    REQUIRE(understand_without(y, 8, GN_OFF_ROLE(GN_ROLE_POSITIONS)));
    CHECK(!has_role(GN_ROLE_POSITIONS));
    for (int i = 0; i < 7; i++) CHECK(of(y[i])->group != of(word[i])->group); /* the last looks like a bias then */
    gn_step(g);
    /* a bias, two tables of what stands there, places of activations, waves of activations */
    gn_tensor x = gn_embedding(weight(WORDS, DIM), words(TIMES)), deep = project(gn_tanh(rows(TIMES)));
    gn_tensor none[] = { gn_add(x, weight(0, DIM)), gn_add(x, gn_embedding(weight(WORDS, DIM), words(TIMES))),
                         gn_add(deep, weight(TIMES, DIM)), gn_add(x, gn_sin(project(rows(TIMES)))) };
    REQUIRE(understand_without(none, TEST_COUNT(none), 0));
    CHECK(!has_role(GN_ROLE_POSITIONS));
    close_null();
}

static gn_tensor gate(gn_tensor all, int k) { return gn_slice(all, -1, k * DIM, (k + 1) * DIM, 1); }
static gn_tensor some_w[6];
static gn_tensor lstm(gn_tensor x, gn_tensor h, gn_tensor *c) {
    gn_tensor all = gn_add(gn_add(gn_matmul(x, some_w[0]), gn_matmul(h, some_w[1])), weight(0, 4 * DIM));
    *c = gn_add(gn_mul(gn_sigmoid(gate(all, 0)), *c), gn_mul(gn_sigmoid(gate(all, 1)), gn_tanh(gate(all, 2))));
    return gn_mul(gn_sigmoid(gate(all, 3)), gn_tanh(*c));
}
static gn_tensor cell_lstm(gn_tensor x, gn_tensor h, gn_tensor *c) { return lstm(x, h, c); }
/* the gate before the product with the carried value, and behind it */
static gn_tensor cell_gru(gn_tensor x, gn_tensor h, gn_tensor *c) {
    (void)c;
    gn_tensor z = gn_sigmoid(gn_add(gn_matmul(x, some_w[0]), gn_matmul(h, some_w[1]))),
              r = gn_sigmoid(gn_add(gn_matmul(x, some_w[2]), gn_matmul(h, some_w[3])));
    gn_tensor n = gn_tanh(gn_add(gn_matmul(x, some_w[4]), gn_matmul(gn_mul(r, h), some_w[5])));
    return gn_add(gn_mul(gn_sub(gn_like(z, 1), z), n), gn_mul(z, h));
}
static gn_tensor cell_gru_behind(gn_tensor x, gn_tensor h, gn_tensor *c) {
    (void)c;
    gn_tensor z = gn_sigmoid(gn_add(gn_matmul(x, some_w[0]), gn_matmul(h, some_w[1]))),
              r = gn_sigmoid(gn_add(gn_matmul(x, some_w[2]), gn_matmul(h, some_w[3])));
    gn_tensor n = gn_tanh(gn_add(gn_matmul(x, some_w[4]), gn_mul(r, gn_matmul(h, some_w[5]))));
    return gn_add(n, gn_mul(z, gn_sub(h, n)));
}
static gn_tensor cell_rnn(gn_tensor x, gn_tensor h, gn_tensor *c) {
    (void)c;
    return gn_tanh(gn_add(gn_linear(x, some_w[0], GN_NONE), gn_linear(h, some_w[1], weight(0, DIM))));
}
static gn_tensor cell_of_both(gn_tensor x, gn_tensor h, gn_tensor *c) {
    (void)c;
    return gn_relu(gn_add(gn_matmul(beside(x, h), some_w[0]), weight(0, DIM)));
}
static const struct {
    gn_tensor (*cell)(gn_tensor x, gn_tensor h, gn_tensor *c);
    int rows, gates;
} cells[] = {
    { cell_lstm, 1, 4 }, { cell_gru, 1, 1 }, { cell_gru_behind, 1, 1 }, { cell_rnn, 1, 1 }, { cell_of_both, 2, 1 }
};

static void cell_weights(int k) {
    for (int i = 0; i < TEST_COUNT(some_w); i++) some_w[i] = weight(cells[k].rows * DIM, cells[k].gates * DIM);
}

TEST(recurrent_cells_are_seen_when_they_are_written_out) {
    for (int k = 0; k < TEST_COUNT(cells); k++)
        for (int begun = 0; begun < 2; begun++) {
            open_null();
            cell_weights(k);
            gn_tensor x = gn_tanh(rows(TIMES)),
                      h[5] = { begun ? gn_tanh(rows(1)) : gn_full(g, GN_F32, GN_SHAPE(1, DIM), 0) }, c = h[0], end;
            for (int t = 0; t < 4; t++) h[t + 1] = cells[k].cell(gn_slice(x, 0, t, t + 1, 1), h[t], &c);
            end = project(gn_concat(h + 1, 4, 0));
            REQUIRE(understand(end));
            for (int t = 1; t < 5; t++) {
                if (!CHECK(of(h[t])->role == GN_ROLE_RECURRENT)) printf("    cell %d, step %d\n", k, t);
                CHECK(t < 2 || of(h[t])->group != of(h[t - 1])->group);
                CHECK_STR(gn__role_names[m.groups[of(h[t])->group].role], "recurrent");
            }
            CHECK_ROLE(end, GN_ROLE_LINEAR);
            CHECK_INT(m.nodes[m.members[m.groups[of(h[3])->group].first]].role, GN_ROLE_RECURRENT);
            check_groups();
            close_null();
        }
}

TEST(a_recurrent_cell_is_seen_by_its_state) {
    for (int k = 0; k < TEST_COUNT(cells); k++) {
        open_null();
        cell_weights(k);
        gn_tensor h = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), zeros, "h"),
                  was = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), zeros, "c"), c = was,
                  y = cells[k].cell(gn_tanh(rows(TIMES)), h, &c);
        if (!k) gn_assign(was, c);
        gn_assign(h, y);
        REQUIRE(understand(y));
        if (!CHECK(of(y)->role == GN_ROLE_RECURRENT)) printf("    cell %d\n", k);
        if (!k) CHECK_TOGETHER(c, y);
        check_groups();
        close_null();
    }
}

TEST(what_carries_nothing_is_no_recurrent_cell) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), w = weight(DIM, DIM), u = weight(DIM, DIM), y = x, z = x, p, none[4];
    for (int i = 0; i < 3; i++) y = gn_relu(gn_matmul(y, w));                            /* nothing comes in */
    for (int i = 0; i < 3; i++) z = gn_add(gn_matmul(z, u), gn_matmul(x, w));            /* nothing bends */
    p = gn_tanh(gn_add(gn_matmul(x, weight(DIM, DIM)), gn_matmul(x, weight(DIM, DIM)))); /* other weights each time */
    p = gn_tanh(gn_add(gn_matmul(x, weight(DIM, DIM)), gn_matmul(p, weight(DIM, DIM))));
    gn_tensor average = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), zeros, "of what was seen");
    none[0] = y, none[1] = z, none[2] = p;
    none[3] = gn_assign(average, gn_add(gn_mul_c(average, 0.9), gn_mul_c(gn_tanh(project(x)), 0.1)));
    REQUIRE(understand_without(none, 4, 0));
    CHECK(!has_role(GN_ROLE_RECURRENT));
    close_null();
}

TEST(a_long_recurrence_takes_linear_time) {
    double t[2];
    for (int i = 0; i < 2; i++) {
        open_null();
        cell_weights(0);
        gn_tensor h = gn_tanh(rows(1)), c = h, x = gn_tanh(rows(1));
        for (int k = 0, n = test_rounds(i ? 20000 : 2000); k < n; k++) h = lstm(x, h, &c);
        t[i] = seconds_of(h);
        CHECK_ROLE(h, GN_ROLE_RECURRENT);
        check_groups();
        close_null();
    }
    CHECK(t[1] < 40 * t[0] + 0.5);
}

/* ---- encoders ---- */

static uint32_t encoder_of(gn_tensor t) { return m.groups[of(t)->group].encoder; }

static gn_tensor text_read(void) {
    gn_tensor x = split_heads(gn_embedding(weight(WORDS, DIM), words(TIMES)), TIMES, HEADS);
    return gn_tanh(gn_reshape(gn_attention(x, x, x, NULL), GN_SHAPE(TIMES, DIM)));
}

static gn_tensor picture_read(void) {
    gn_tensor x = gn_relu(conv(given(GN_SHAPE(1, 3, 8, 8)), filters(8, 3, 3), 1, 1, 1));
    return gn_tanh(gn_relu(conv(x, filters(TIMES * DIM / 64, 8, 3), 1, 1, 1)));
}

TEST(encoders_are_connected_blocks_of_one_modality) {
    open_null();
    gn_tensor text = text_read(), left = picture_read(), right = picture_read(), both = gn_mul(left, right),
              sum = gn_add(text, gn_reshape(left, GN_SHAPE(TIMES, DIM))), end = project(gn_exp(sum)),
              all[] = { end, right, both };
    REQUIRE(understand_without(all, 2, 0));
    CHECK_INT(m.n_encoders, 3); /* two of the same modality are not connected */
    CHECK(encoder_of(text) && encoder_of(left) && encoder_of(right));
    CHECK(encoder_of(text) != encoder_of(left) && encoder_of(left) != encoder_of(right));
    CHECK_INT(encoder_of(end), 0); /* where they meet */
    check_groups();
    REQUIRE(understand_without(all, 3, 0));
    CHECK_INT(m.n_encoders, 2);
    CHECK_INT(encoder_of(left), encoder_of(right));
    REQUIRE(understand_without(all, 2, GN_OFF_MODALITY(GN_MODALITY_VISION)));
    CHECK(encoder_of(left) == encoder_of(text));
    gn_step(g);
    gn_tensor found = gn_tanh(gn_embedding(weight(WORDS, DIM), words(TIMES))); /* rows of a table are none */
    REQUIRE(understand(found));
    CHECK_INT(m.n_encoders, 0);
    close_null();
}

static gn_tensor pooled(gn_tensor x) { return gn_tanh(gn_mean(gn_reshape(x, GN_SHAPE(TIMES, DIM)), GN_AXES(0), true)); }

TEST(fusions_of_modalities_are_seen) {
    open_null();
    gn_tensor y[6], z[6], text = pooled(text_read()), image = pooled(picture_read()), two[] = { text, image };
    gn_tensor unit = gn_div(image, gn_sqrt(gn_sum(gn_square(image), GN_AXES(-1), true)));
    z[0] = gn_concat(two, 2, 1);
    y[0] = gn_matmul(z[0], weight(2 * DIM, 8));
    z[1] = gn_add(text, image);
    y[1] = project(z[1]);
    z[2] = gn_mul(image, text);
    y[2] = mlp_down(gn_relu(mlp_up(z[2])));
    z[3] = gn_matmul(gn_reshape(text, GN_SHAPE(8, 8)), gn_transpose(gn_reshape(unit, GN_SHAPE(8, 8)), 0, 1));
    y[3] = gn_mul(z[3], gn_exp(weight(1, 1))); /* each with each */
    z[4] = gn_mul(text, unit);
    y[4] = gn_sum(z[4], GN_AXES(1), false); /* each with its own */
    z[5] = gn_add(gn_add(text, image), project(gn_sum(bag_rows(weight(WORDS, DIM), 1), GN_AXES(1), false)));
    y[5] = project(z[5]);
    REQUIRE(understand_without(y, 6, 0));
    for (int i = 0; i < 6; i++) {
        if (!CHECK(of(z[i])->role == GN_ROLE_FUSION)) printf("    writing %d\n", i);
        CHECK_MODALITY(z[i], GN_MODALITY_MIXED);
        CHECK_TOGETHER(z[i], y[i]);
        CHECK_STR(gn__role_names[m.groups[of(z[i])->group].role], "fusion");
    }
    check_groups();
    REQUIRE(understand_without(y, 6, GN_OFF_ROLE(GN_ROLE_FUSION)));
    CHECK(!has_role(GN_ROLE_FUSION));
    REQUIRE(understand_without(y, 6, GN_OFF_MODALITY(GN_MODALITY_VISION) | GN_OFF_MODALITY(GN_MODALITY_TABULAR)));
    CHECK(!has_role(GN_ROLE_FUSION)); /* of one modality, as far as is known */
    gn_step(g);
    /* none: two of one modality, one with what has none, data beside a tower, attention over another tower */
    gn_tensor other = pooled(text_read()), same[] = { pooled(text_read()), pooled(text_read()) };
    gn_tensor q = split_heads(project(text_read()), TIMES, HEADS),
              k = split_heads(project(gn_reshape(picture_read(), GN_SHAPE(TIMES, DIM))), TIMES, HEADS);
    gn_tensor none[] = { gn_concat(same, 2, 1), gn_add(other, project(gn_tanh(rows(1)))), gn_mul(other, rows(1)),
                         attention_matmuls(q, k, k) };
    REQUIRE(understand_without(none, 4, 0));
    CHECK(!has_role(GN_ROLE_FUSION) && has_role(GN_ROLE_CROSS_ATTENTION));
    close_null();
}

TEST(what_is_said_of_modality_divides_encoders) {
    open_null();
    gn_tensor a = text_read();
    CHECK_RESULT(gn_modality(g, GN_MODALITY_AUDIO), GN_OK);
    gn_tensor b = project(gn_exp(project(a)));
    CHECK_RESULT(gn_modality(g, GN_MODALITY_UNKNOWN), GN_OK);
    REQUIRE(understand(b));
    CHECK_INT(m.n_encoders, 2);
    CHECK(encoder_of(a) != encoder_of(b));
    close_null();
}

/* ---- scopes ---- */

TEST(scopes_win_over_what_is_recognised) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), plain = project(x);
    CHECK_RESULT(gn_role(g, GN_ROLE_HEAD), GN_OK);
    CHECK_RESULT(gn_phase(g, GN_DENOISE), GN_OK);
    CHECK_RESULT(gn_modality(g, GN_MODALITY_AUDIO), GN_OK);
    gn_tensor y = project(plain);
    CHECK_RESULT(gn_role(g, GN_ROLE_NONE), GN_OK);
    CHECK_RESULT(gn_phase(g, GN_PHASE_UNKNOWN), GN_OK);
    CHECK_RESULT(gn_modality(g, GN_MODALITY_UNKNOWN), GN_OK);
    gn_tensor z = project(y);
    REQUIRE(understand(z));
    CHECK_ROLE(plain, GN_ROLE_LINEAR);
    CHECK_ROLE(y, GN_ROLE_HEAD);
    CHECK_ROLE(z, GN_ROLE_LINEAR);
    CHECK_PHASE(y, GN_DENOISE);
    CHECK_MODALITY(y, GN_MODALITY_AUDIO);
    CHECK_INT(of(y)->hinted, GN_HINTED_PHASE | GN_HINTED_ROLE | GN_HINTED_MODALITY);
    CHECK_INT(of(plain)->hinted, 0);
    CHECK_INT(m.groups[of(y)->group].role, GN_ROLE_HEAD);
    CHECK_INT(m.n_disagreements, 0); /* a linear is part of a head */
    check_groups();
    close_null();
}

TEST(nodes_of_one_scope_are_one_group) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES));
    gn_role(g, GN_ROLE_MLP);
    gn_tensor a = gn_exp(x), b = gn_sum(a, GN_AXES(1), true), c = gn_mul(b, gn_tanh(a));
    gn_role(g, GN_ROLE_NONE);
    gn_tensor d = gn_tanh(gn_neg(c));
    REQUIRE(understand(d));
    CHECK_TOGETHER(a, b);
    CHECK_TOGETHER(b, c);
    CHECK(of(c)->group != of(d)->group && of(c)->group != of(x)->group);
    CHECK_INT(m.groups[of(c)->group].role, GN_ROLE_MLP);
    check_groups();
    close_null();
}

TEST(residency_is_said_where_a_state_is_made) {
    open_null();
    gn_residency(g, GN_RESIDENCY_KV_CACHE);
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), NULL, "cache");
    gn_residency(g, GN_RESIDENCY_UNKNOWN);
    gn_tensor plain = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), NULL, "plain"), y = gn_add(gn_tanh(cache), plain);
    gn_info info;
    CHECK_RESULT(gn_describe(cache, &info), GN_OK);
    CHECK_STR(info.residency, "kv cache");
    REQUIRE(understand(y));
    CHECK_RESIDENCY(cache, GN_RESIDENCY_KV_CACHE);
    CHECK_RESIDENCY(plain, GN_RESIDENCY_STATE);
    CHECK_RESIDENCY(y, GN_RESIDENCY_ACTIVATION);
    CHECK_INT(m.n_disagreements, 0);
    close_null();
}

TEST(describe_tells_role_and_modality) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), linear = project(x), norm = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
    gn_role(g, GN_ROLE_CONV);
    gn_modality(g, GN_MODALITY_VISION);
    gn_tensor said = project(x);
    gn_info info;
    CHECK_RESULT(gn_describe(linear, &info), GN_OK);
    CHECK_STR(info.role, "linear");
    CHECK_STR(info.modality, "unknown");
    CHECK_RESULT(gn_describe(norm, &info), GN_OK);
    CHECK_STR(info.role, "norm");
    CHECK_RESULT(gn_describe(x, &info), GN_OK);
    CHECK_STR(info.role, "none");
    CHECK_RESULT(gn_describe(said, &info), GN_OK);
    CHECK_STR(info.role, "conv");
    CHECK_STR(info.modality, "vision");
    close_null();
}

TEST(scopes_out_of_range_are_refused_and_change_nothing) {
    open_null();
    CHECK_RESULT(gn_role(g, GN_ROLE_NORM), GN_OK);
    CHECK_RESULT(gn_role(g, GN_ROLE__COUNT), GN_BAD_ARGUMENT);
    CHECK_STR(gn_last_error(g)->text, "gn_role: there is no such role");
    CHECK_RESULT(gn_phase(g, (gn_phase_kind)-1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_residency(g, GN_RESIDENCY__COUNT), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_modality(g, GN_MODALITY__COUNT), GN_BAD_ARGUMENT);
    gn_tensor x = gn_tanh(rows(TIMES));
    REQUIRE(understand(x));
    CHECK_ROLE(x, GN_ROLE_NORM);
    close_null();
    CHECK_RESULT(gn_role(NULL, GN_ROLE_NORM), GN_BAD_ARGUMENT);
}

TEST(devices_are_said_by_name_or_index) {
    open_null();
    gn_free(g->device_names);
    REQUIRE(gn__device_names_keep(g, "null,127.0.0.1:5556?pin=a&code=b", NULL, 0));
    static const struct {
        const char *name;
        uint32_t want;
        gn_result result;
    } names[] = {
        { "null", 1, GN_OK },
        { "0", 1, GN_OK },
        { "127.0.0.1:5556", 2, GN_OK },
        { "127.0.0.1:5556?pin=other", 2, GN_OK },
        { "1", 2, GN_OK },
        { NULL, 0, GN_OK },
        { "2", 0, GN_NO_DEVICE },
        { "cpu", 0, GN_NO_DEVICE },
        { "", 0, GN_NO_DEVICE },
        { "nul", 0, GN_NO_DEVICE },
        { "127.0.0.1", 0, GN_NO_DEVICE },
    };
    for (int i = 0; i < TEST_COUNT(names); i++) {
        CHECK_RESULT(gn_on(g, NULL), GN_OK);
        CHECK_RESULT(gn_on(g, names[i].name), names[i].result);
        gn_tensor x = gn_tanh(given(GN_SHAPE(i + 1)));
        REQUIRE(understand(x));
        CHECK_INT(m.groups[of(x)->group].on, names[i].want);
        CHECK((g->cut.part.hints != NULL) == (names[i].want != 0));
    }
    CHECK(strstr(g->device_names, "code") == NULL);
    close_null();
}

TEST(recognised_blocks_end_where_the_device_changes) {
    g = gn_open(&(gn_desc){ .devices = "null,cpu" });
    memset(&m, 0, sizeof m);
    gn_tensor x = gn_tanh(rows(TIMES)), up = mlp_up(x);
    gn_on(g, "cpu");
    gn_tensor down = mlp_down(gn_relu(up));
    REQUIRE(understand(down));
    CHECK_ROLE(up, GN_ROLE_MLP);
    CHECK_ROLE(down, GN_ROLE_MLP);
    CHECK_INT(m.groups[of(up)->group].on, 0);
    CHECK_INT(m.groups[of(down)->group].on, 2);
    check_groups();
    close_null();
}

TEST(different_scopes_are_different_plans) {
    static const gn_role_kind roles[] = { GN_ROLE_NONE, GN_ROLE_MLP, GN_ROLE_NONE, GN_ROLE_MLP, GN_ROLE_HEAD };
    static const uint64_t made[] = { 1, 2, 2, 2, 3 };
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int i = 0; i < TEST_COUNT(roles); i++) {
        float y[4];
        gn_stats s;
        gn_role(g, roles[i]);
        CHECK_RESULT(gn_read(gn_tanh(given(GN_SHAPE(4))), y, sizeof y), GN_OK);
        gn_step(g);
        gn_get_stats(g, &s);
        CHECK_INT(s.plans_made, made[i]);
    }
    gn_close(g);
}

/* Equal parts under other scopes: found without a look at each other. */
TEST(plans_that_differ_in_scopes_have_keys_of_their_own) {
    open_null();
    for (int i = 0; i < GN_ROLE__COUNT * GN_PHASE__COUNT; i++) {
        gn_role(g, (gn_role_kind)(i % GN_ROLE__COUNT));
        gn_phase(g, (gn_phase_kind)(i / GN_ROLE__COUNT));
        gn_tensor y = gn_tanh(given(GN_SHAPE(4)));
        gn_result r = gn_realize(&y, 1);
        CHECK(r == GN_OK || r == GN_NO_VALUE);
        gn_step(g);
    }
    REQUIRE(CHECK_INT(g->n_plans, GN_ROLE__COUNT * GN_PHASE__COUNT));
    for (size_t i = 0; i < g->n_plans; i++)
        for (size_t k = 0; k < i; k++) CHECK(g->plans[i].key != g->plans[k].key);
    close_null();
}

/* ---- disagreements ---- */

static void check_disagreement(uint32_t i, gn_tensor t, uint8_t which, int said, int recognised) {
    if (CHECK(i < m.n_disagreements)) {
        CHECK_INT(m.disagreements[i].node, of(t) - m.nodes);
        CHECK_INT(m.disagreements[i].which, which);
        CHECK_INT(m.disagreements[i].hinted, said);
        CHECK_INT(m.disagreements[i].recognised, recognised);
    }
}

TEST(disagreements_name_node_kind_and_both_sides) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), data = given(GN_SHAPE(TIMES, DIM));
    gn_role(g, GN_ROLE_LOSS);
    gn_tensor norm = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5), e = gn_embedding(weight(WORDS, DIM), words(TIMES));
    gn_role(g, GN_ROLE_NONE);
    gn_residency(g, GN_RESIDENCY_WEIGHT);
    gn_tensor activation = gn_tanh(norm);
    gn_residency(g, GN_RESIDENCY_UNKNOWN);
    gn_modality(g, GN_MODALITY_VISION);
    gn_tensor ids_read = gn_embedding(weight(WORDS, DIM), words(TIMES));
    gn_modality(g, GN_MODALITY_UNKNOWN);
    gn_phase(g, GN_DECODE);
    gn_tensor keys, a = appended_attention(0, 0, TIMES, &keys), all[] = { activation, ids_read, e, a, gn_tanh(data) };
    REQUIRE(understand_without(all, TEST_COUNT(all), 0));
    uint32_t n = m.n_disagreements;
    check_disagreement(n - 1, ids_read, GN_HINTED_MODALITY, GN_MODALITY_VISION, GN_MODALITY_TABULAR);
    CHECK_INT(n, 7); /* two roles, a residency, two appends and an attention, a modality */
    check_disagreement(1, e, GN_HINTED_ROLE, GN_ROLE_LOSS, GN_ROLE_EMBEDDING);
    check_disagreement(2, activation, GN_HINTED_RESIDENCY, GN_RESIDENCY_WEIGHT, GN_RESIDENCY_ACTIVATION);
    check_disagreement(5, a, GN_HINTED_PHASE, GN_DECODE, GN_PREFILL);
    CHECK_PHASE(a, GN_DECODE);
    CHECK_MODALITY(ids_read, GN_MODALITY_VISION);
    CHECK_RESIDENCY(activation, GN_RESIDENCY_WEIGHT);
    close_null();
}

static char logged[1024];
static int n_logged;

static void take_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    n_logged += level == GN_LOG_WARN;
    snprintf(logged, sizeof logged, "%s", text);
}

TEST(disagreements_are_counted_and_logged_once_a_plan) {
    static const float gain[4] = { 1, 1, 1, 1 };
    n_logged = 0;
    g = gn_open(&(gn_desc){ .devices = "cpu", .log = take_log });
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(4), gain, "gain");
    for (int step = 0; step < 3; step++) {
        float y[8];
        gn_stats s;
        gn_role(g, GN_ROLE_SAMPLING);
        gn_tensor t = gn_layernorm(given(GN_SHAPE(2, 4)), w, GN_NONE, 1e-5);
        gn_role(g, GN_ROLE_NONE);
        CHECK_RESULT(gn_read(t, y, sizeof y), GN_OK);
        gn_step(g);
        gn_get_stats(g, &s);
        CHECK_INT(s.meaning_disagreements, 1);
    }
    CHECK_INT(n_logged, 1);
    CHECK(strstr(logged, "layernorm") && strstr(logged, "'sampling'") && strstr(logged, "'norm'") &&
          strstr(logged, "meaning_test.c"));
    gn_close(g);
}

TEST(agreeing_and_broader_scopes_are_no_disagreement) {
    open_null();
    gn_phase(g, GN_PREFILL);
    gn_role(g, GN_ROLE_ATTENTION);
    gn_tensor keys, a = appended_attention(0, 1, TIMES, &keys);
    gn_role(g, GN_ROLE_LINEAR);
    gn_tensor y = project(gn_reshape(gn_transpose(a, 1, 2), GN_SHAPE(TIMES, DIM)));
    REQUIRE(understand(y));
    CHECK_INT(m.n_disagreements, 0);
    check_groups();
    close_null();
}

/* ---- cost, edges, the critical path ---- */

TEST(nodes_and_edges_carry_flops_and_bytes) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), w = weight(DIM, 16), y = gn_matmul(x, w), v = gn_transpose(y, 0, 1),
              s = gn_sum(v, GN_AXES(0), false);
    REQUIRE(understand(s));
    const gn_part *p = &g->cut.part;
    CHECK_INT(of(y)->flops, 2 * TIMES * DIM * 16);
    CHECK_INT(of(y)->bytes_read, 4 * (TIMES * DIM + DIM * 16));
    CHECK_INT(of(y)->bytes_written, 4 * TIMES * 16);
    CHECK_INT(of(v)->bytes_read + of(v)->bytes_written, 0);
    CHECK_INT(of(w)->bytes_read + of(w)->bytes_written, 0);
    const gn_edge_meaning *e = &m.edges[p->nodes[of(y) - m.nodes].ins];
    CHECK_INT(e[0].bytes, 4 * TIMES * DIM);
    CHECK_INT(e[1].bytes, 4 * DIM * 16);
    CHECK_NEAR(e[0].change, 16.0 / DIM, 0);
    CHECK_NEAR(m.edges[p->nodes[of(s) - m.nodes].ins].change, 1.0 / 16, 0);
    close_null();
}

TEST(an_append_costs_its_rows_and_a_broadcast_its_source) {
    open_null();
    gn_tensor x = gn_tanh(given(GN_SHAPE(1, HEADS, 1, HEAD))),
              c = gn_kv_append(cache_state(), x, gn_scalar(g, GN_I32, 0));
    gn_tensor wide = gn_add(gn_broadcast(gn_tanh(given(GN_SHAPE(1, DIM))), GN_SHAPE(512, DIM)), gn_tanh(rows(512))),
              all[] = { c, wide };
    REQUIRE(understand_without(all, 2, 0));
    CHECK_INT(of(c)->bytes_read, 4 * HEADS * HEAD + 4);
    CHECK_INT(of(c)->bytes_written, 4 * HEADS * HEAD);
    CHECK_INT(of(wide)->bytes_read, 4 * (DIM + 512 * DIM));
    close_null();
}

TEST(groups_sum_what_passes_through_memory) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), y = gn_linear(x, weight(DIM, 32), weight(0, 32)), z = gn_relu(y);
    REQUIRE(understand(z));
    const gn_group *k = &m.groups[of(z)->group];
    CHECK_INT(k->kernels, 2);
    /* the product's operands and result, read and written once more */
    CHECK_INT(k->bytes, 4 * (TIMES * DIM + DIM * 32 + 32 + 3 * TIMES * 32));
    CHECK_INT(k->flops, of(y)->flops + of(z)->flops);
    gn_tensor chain = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5), loop = hand_gelu(chain);
    gn_tensor down = mlp_down(hand_gelu(mlp_up(gn_add(loop, chain))));
    REQUIRE(understand(down));
    CHECK_INT(m.groups[of(down)->group].kernels, 3); /* product, one loop, product */
    close_null();
}

TEST(critical_path_takes_the_longer_branch) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)),
              slow = gn_tanh(gn_matmul(gn_tanh(gn_matmul(x, weight(DIM, DIM))), weight(DIM, DIM))), fast = gn_exp(x),
              y = gn_add(fast, slow);
    REQUIRE(understand(y));
    CHECK(of(x)->critical && of(slow)->critical && of(y)->critical && !of(fast)->critical);
    const gn_edge_meaning *e = &m.edges[g->cut.part.nodes[of(y) - m.nodes].ins];
    CHECK(!e[0].critical && e[1].critical);
    close_null();
}

/* ---- groups: complete and without cycles ---- */

TEST(a_member_that_is_read_too_early_leaves_its_group) {
    open_null();
    gn_tensor x = gn_tanh(rows(TIMES)), up = mlp_up(x), act = gn_relu(up), probe = gn_sum(act, GN_AXES(1), true),
              scaled = gn_mul(act, probe);
    gn_tensor down = mlp_down(act), all[] = { down, scaled };
    REQUIRE(understand_without(all, 2, 0));
    CHECK_ROLE(up, GN_ROLE_MLP);
    CHECK(of(act)->group != of(down)->group); /* `probe` reads it and was built before the end of the MLP */
    check_groups();
    close_null();
}

TEST(versions_of_a_state_stand_in_order) {
    open_null();
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(TIMES, DIM), NULL, "s"), early = gn_tanh(rows(TIMES)),
              late = gn_exp(rows(TIMES));
    gn_assign(gn_assign(s, late), early);
    REQUIRE(understand_without(&late, 1, 0));
    CHECK_INT(g->cut.part.n_updates, 1);
    check_groups();
    close_null();
}

TEST(the_gradient_of_an_activation_is_one_group) {
    open_null();
    gn_tensor p = parameter(), x = gn_matmul(rows(TIMES), p), y = gn_gelu(x), grads[2], at[2] = { p, x };
    CHECK_RESULT(gn_grad(gn_mse_loss(gn_matmul(y, weight(16, 16)), given(GN_SHAPE(TIMES, 16))), at, 2, grads), GN_OK);
    REQUIRE(understand_without(grads, 2, 0));
    const gn_group *k = &m.groups[of(grads[1])->group];
    CHECK(k->n_nodes > 8);
    CHECK_INT(k->kernels, 1);
    CHECK_RESIDENCY(grads[1], GN_RESIDENCY_GRADIENT);
    CHECK(of(grads[1])->group != of(grads[0])->group && of(grads[1])->group != of(y)->group);
    check_groups();
    close_null();
}

TEST(a_transformer_layer_falls_into_its_blocks) {
    static const uint8_t want[] = { GN_ROLE_EMBEDDING, GN_ROLE_NORM, GN_ROLE_LINEAR, GN_ROLE_ATTENTION, GN_ROLE_LINEAR,
                                    GN_ROLE_NORM,      GN_ROLE_MLP,  GN_ROLE_NORM,   GN_ROLE_HEAD };
    open_null();
    gn_tensor table = weight(WORDS, DIM), x = gn_embedding(table, words(TIMES)),
              h = gn_layernorm(x, weight(0, DIM), weight(0, DIM), 1e-5);
    gn_tensor qkv = gn_linear(h, weight(DIM, 3 * DIM), weight(0, 3 * DIM)), part[3];
    for (int i = 0; i < 3; i++) part[i] = split_heads(gn_slice(qkv, 1, i * DIM, (i + 1) * DIM, 1), TIMES, HEADS);
    gn_tensor pos = gn_scalar(g, GN_I32, 0), k = gn_kv_append(cache_state(), part[1], pos),
              v = gn_kv_append(cache_state(), part[2], pos);
    gn_tensor a = gn_attention(part[0], k, v, &(gn_attention_desc){ .causal = true, .length = gn_add_c(pos, TIMES) });
    x = gn_add(x, project(gn_reshape(gn_transpose(a, 1, 2), GN_SHAPE(TIMES, DIM))));
    x = gn_add(x, mlp_down(gn_gelu(mlp_up(gn_layernorm(x, weight(0, DIM), weight(0, DIM), 1e-5)))));
    gn_tensor y =
        gn_argmax(gn_matmul(gn_rmsnorm(x, weight(0, DIM), 1e-5), gn_transpose(table, 0, 1)), GN_AXES(1), false);
    REQUIRE(understand(y));
    uint32_t n = 0;
    for (uint32_t i = 0; i < m.n_groups; i++) {
        bool bare = m.groups[i].role == GN_ROLE_NONE; /* pos + 1 */
        if (!bare && CHECK(n < TEST_COUNT(want))) {
            CHECK_STR(gn__role_names[m.groups[i].role], gn__role_names[want[n]]);
            n++;
        }
        CHECK_INT(m.groups[i].phase, GN_PREFILL);
    }
    CHECK_INT(n, TEST_COUNT(want));
    CHECK(m.n_groups <= TEST_COUNT(want) + 1);
    check_groups();
    close_null();
}

/* A graph of a few dozen nodes of shape (8, 8) or (1, 1, 8, 8), from ops that recognisers look at, joined at random. */
static gn_tensor random_node(gn_tensor *t, int n) {
    gn_tensor a = t[test_random_int(n > 8 ? n - 8 : 0, n - 1)], b = t[test_random_int(0, n - 1)],
              c = t[test_random_int(0, n - 1)];
    switch (test_random_int(0, 19)) {
    case 0: return gn_matmul(a, b);
    case 1: return gn_matmul(gn_softmax(gn_mul_c(gn_matmul(a, gn_transpose(b, 0, 1)), 0.5), -1), c);
    case 2:
        return gn_reshape(gn_attention(gn_reshape(a, GN_SHAPE(1, 1, 8, 8)), gn_reshape(b, GN_SHAPE(1, 1, 8, 8)),
                                       gn_reshape(c, GN_SHAPE(1, 1, 8, 8)), NULL),
                          GN_SHAPE(8, 8));
    case 3: return gn_layernorm(a, GN_NONE, GN_NONE, 1e-5);
    case 4: return gn_rmsnorm(a, GN_NONE, 1e-5);
    case 5: return gn_softmax(a, -1);
    case 6: return gn_add(a, b);
    case 7: return gn_mul(a, b);
    case 8: return gn_sub(a, gn_mul_c(b, 0.1));
    case 9: return gn_relu(a);
    case 10: return gn_transpose(a, 0, 1);
    case 11: return gn_broadcast(gn_sum(a, GN_AXES(0), true), GN_SHAPE(8, 8));
    case 12: return gn_slice_put(a, gn_slice(b, 0, 0, 2, 1), 0, 2, 4, 1);
    case 13: return gn_embedding(a, gn_data(g, GN_I32, GN_SHAPE(8), ids));
    case 14: return gn_div(a, gn_sqrt(gn_add_c(gn_mean(gn_square(b), GN_AXES(-1), true), 1e-5)));
    case 15: return gn_linear(gn_silu(a), b, GN_NONE);
    case 16: return gn_add(b, gn_broadcast(gn_mean(gn_square(gn_sub(a, c)), GN_ALL_AXES, false), GN_SHAPE(8, 8)));
    case 17: return gn_cast(gn_cast(a, GN_F64), GN_F32);
    case 18: return gn_reshape(gn_reshape(a, GN_SHAPE(64)), GN_SHAPE(8, 8));
    default: return gn_where(gn_gt(a, b), a, c);
    }
}

static void say_something(void) {
    gn_role(g, test_random_int(0, 3) ? GN_ROLE_NONE : (gn_role_kind)test_random_int(0, GN_ROLE__COUNT - 1));
    gn_residency(g, test_random_int(0, 3) ? GN_RESIDENCY_UNKNOWN
                                          : (gn_residency_kind)test_random_int(0, GN_RESIDENCY__COUNT - 1));
    gn_phase(g, test_random_int(0, 3) ? GN_PHASE_UNKNOWN : (gn_phase_kind)test_random_int(0, GN_PHASE__COUNT - 1));
    gn_on(g, test_random_int(0, 3) ? NULL : "0");
}

TEST(groups_of_random_graphs_are_complete_and_without_cycles) {
    open_null();
    gn_tensor state[2];
    for (int i = 0; i < 2; i++) state[i] = gn_state(g, GN_F32, GN_SHAPE(8, 8), zeros, "s");
    for (int round = 0, n_rounds = test_rounds(TEST_SANITIZED ? 500 : 5000); round < n_rounds; round++) {
        gn_tensor t[64] = { given(GN_SHAPE(8, 8)), state[0], state[1], given(GN_SHAPE(8, 8)),
                            gn_full(g, GN_F32, GN_SHAPE(8, 8), 1) },
                  outs[4];
        int n = 5, want = (int)test_random_int(6, 60);
        for (; n < want; n++) {
            if (round % 3 == 2 && test_random_int(0, 5) == 0) say_something();
            t[n] = random_node(t, n);
        }
        if (round % 2) gn_assign(state[0], t[n - 2]);
        for (int i = 0; i < 4; i++) outs[i] = t[i ? test_random_int(0, n - 1) : n - 1];
        REQUIRE(understand_without(outs, 4, round % 5 ? 0 : test_random()));
        check_groups();
        gn_role(g, GN_ROLE_NONE), gn_residency(g, GN_RESIDENCY_UNKNOWN), gn_phase(g, GN_PHASE_UNKNOWN), gn_on(g, NULL);
        gn__pending_drop(g);
        gn_step(g);
    }
    close_null();
}

static gn_tensor long_chain(int n, int links) {
    gn_tensor x = gn_tanh(rows(1)), y = x, w = weight(DIM, DIM);
    for (int i = 0; i < n; i++) {
        int link = i % links;
        if (links > 5) { /* every product might be a norm, and needs a look upwards */
            y = gn_mul(y, gn_rsqrt(gn_add(y, x)));
            continue;
        }
        y = link == 0   ? gn_relu(y)
            : link == 1 ? gn_reshape(y, GN_SHAPE(DIM, 1))
            : link == 2 ? gn_reshape(y, GN_SHAPE(1, DIM))
            : link == 3 ? gn_add(y, x)
                        : gn_matmul(y, w);
    }
    return y;
}

TEST(a_chain_of_a_million_nodes_takes_linear_time) {
    const int most = test_rounds(1000000);
    for (int links = 1; links <= 7; links += 2) {
        double t[2];
        for (int i = 0; i < 2; i++) {
            open_null();
            t[i] = seconds_of(long_chain(most / (i ? 1 : 10) / (links > 5 ? 3 : 1), links));
            CHECK(m.n_nodes > (uint32_t)(most / (i ? 1 : 10)) - 100);
            check_groups();
            close_null();
        }
        CHECK(TEST_SANITIZED || t[1] < 10);
        CHECK(t[1] < 40 * t[0] + 0.5); /* ten times the nodes; a square would be a hundred times */
    }
}

TEST(a_shared_node_with_a_million_readers_takes_linear_time) {
    open_null();
    gn_tensor x = gn_tanh(rows(1)), y = x;
    for (int i = 0, n_rounds = test_rounds(500000); i < n_rounds; i++) y = gn_add(gn_relu(x), y);
    CHECK(seconds_of(y) < 10);
    check_groups();
    close_null();
}

TEST(every_allocation_may_fail) {
    open_null();
    gn_role(g, GN_ROLE_LOSS);
    gn_tensor x = gn_layernorm(gn_tanh(rows(TIMES)), GN_NONE, GN_NONE, 1e-5);
    gn_role(g, GN_ROLE_NONE);
    gn_tensor y = mlp_down(gn_relu(mlp_up(x)));
    REQUIRE(understand(y));
    CHECK_INT(m.n_disagreements, 1);
    gn_meaning_deinit(&m);
    long before = blocks_held, n = 0;
    for (;; n++) {
        gn_fault f = { GN_OK, 0, "" };
        allocations = 0;
        fails_at = n;
        gn_result r = gn_meaning_make(&g->cut.part, 0, NULL, &m, &f);
        fails_at = -1;
        if (r == GN_OK) break;
        CHECK_RESULT(r, GN_OUT_OF_MEMORY);
        CHECK(f.result == GN_OUT_OF_MEMORY && f.text[0]);
        CHECK(!m.nodes && !m.groups && m.n_nodes == 0);
        CHECK_INT(blocks_held, before);
    }
    CHECK_INT(n, 8);
    close_null();
}

TEST(a_graph_of_three_hundred_nodes_takes_under_a_millisecond) {
    open_null();
    gn_tensor x = gn_embedding(weight(WORDS, DIM), words(TIMES));
    for (int layer = 0; layer < 9; layer++) {
        gn_tensor h = hand_layernorm(x, weight(0, DIM), weight(0, DIM)), q = split_heads(project(h), TIMES, HEADS),
                  k = split_heads(project(h), TIMES, HEADS);
        x = gn_add(x, project(gn_reshape(gn_transpose(attention_by_hand(q, k, k), 1, 2), GN_SHAPE(TIMES, DIM))));
        x = gn_add(x, mlp_down(gn_gelu(mlp_up(gn_rmsnorm(x, weight(0, DIM), 1e-5)))));
    }
    double best = 1;
    for (int i = 0; i < 20; i++) {
        double t = seconds_of(x);
        best = t < best ? t : best;
    }
    CHECK(m.n_nodes >= 300);
    CHECK(best < (TEST_SANITIZED ? 0.05 : 0.001));
    printf("  %u nodes, %u groups: %.0f us with the cut\n", m.n_nodes, m.n_groups, best * 1e6);
    close_null();
}

/* ---- what each recogniser changes in a schedule ---- */

/* Two equal devices. `far`: latency between them; the program is 0.1 ms away. link_bytes_per_s 0: all links are
   free. */
typedef struct pair {
    gn_cluster cluster;
    gn_cluster_device devices[2];
    gn_cluster_link links[9];
} pair;

static void pair_make(pair *c, double flops_per_s, double bytes_per_s, double launch_s, double far,
                      double link_bytes_per_s) {
    memset(c, 0, sizeof *c);
    c->cluster = (gn_cluster){ 2, c->devices, c->links };
    for (int d = 0; d < 2; d++) {
        for (int k = 0; k < GN_RATE__COUNT; k++) c->devices[d].flops_per_s[k] = flops_per_s;
        c->devices[d].bytes_per_s = bytes_per_s;
        c->devices[d].launch_s = launch_s;
    }
    for (int i = 0; i < 9; i++) {
        bool program = i % 3 == 2 || i / 3 == 2;
        c->links[i] = program && link_bytes_per_s > 0 ? (gn_cluster_link){ 1e-4, 1e9 }
                                                      : (gn_cluster_link){ far, link_bytes_per_s };
    }
}

static gn_tensor built[2];

static void build_norm(void) {
    gn_tensor gain = weight(0, DIM);
    built[0] = gn_tanh(hand_layernorm(gn_tanh(rows(TIMES)), gain, gain));
}

static void build_mlp(void) {
    gn_tensor x = gn_tanh(rows(TIMES)), up = mlp_up(x);
    built[0] = mlp_down(gn_mul(gn_silu(mlp_up(x)), up));
}

static gn_tensor biased(gn_tensor x, int64_t in, int64_t out) {
    return gn_add(gn_matmul(x, weight(in, out)), weight(0, out));
}
static void build_linear(void) { built[0] = gn_relu(biased(given(GN_SHAPE(256, 4)), 4, DIM)); }

static gn_tensor hidden(void) { return gn_tanh(gn_matmul(gn_tanh(rows(TIMES)), weight(DIM, DIM))); }

static void build_attention(void) {
    gn_tensor h = hidden(), k = split_heads(project(h), TIMES, HEADS);
    built[0] = attention_by_hand(split_heads(project(h), TIMES, HEADS), k, k);
}

static void build_cross(void) {
    gn_tensor k = split_heads(project(hidden()), TIMES, HEADS);
    built[0] = attention_by_hand(split_heads(project(hidden()), TIMES, HEADS), k, k);
}

static void build_grouped(void) {
    gn_tensor h = hidden(), k = gn_broadcast(split_heads(gn_linear(h, weight(DIM, HEAD), GN_NONE), TIMES, 1),
                                             GN_SHAPE(1, HEADS, TIMES, HEAD));
    built[0] = attention_by_hand(split_heads(project(h), TIMES, HEADS), k, k);
}

static void build_embedding(void) {
    gn_tensor sum = gn_add(gn_embedding(weight(WORDS, DIM), words(TIMES)),
                           gn_embedding(weight(CONTEXT, DIM), gn_arange(g, GN_I32, TIMES, 0, 1)));
    built[0] = gn_tanh(gn_mul_c(sum, 8));
}

static void build_residual(void) {
    gn_tensor h = gn_tanh(gn_matmul(gn_tanh(given(GN_SHAPE(256, 2))), weight(2, 16)));
    built[0] = gn_matmul(gn_add(h, biased(h, 16, 16)), weight(16, 8));
}

static void build_loss(void) {
    gn_tensor logits = gn_matmul(gn_tanh(rows(TIMES)), weight(DIM, 16)), hot = gn_one_hot(words(TIMES), 16, GN_F32);
    built[0] = gn_neg(gn_div_c(gn_sum(gn_mul(gn_log_softmax(logits, -1), hot), GN_ALL_AXES, false), TIMES));
}

static void build_optimizer(void) {
    gn_tensor p[2] = { parameter(), parameter() }, grads[2], a[2] = { parameter(), parameter() },
              b[2] = { parameter(), parameter() };
    built[0] = gn_mse_loss(gn_matmul(rows(TIMES), gn_mul(p[0], p[1])), given(GN_SHAPE(TIMES, 16)));
    gn_grad(built[0], p, 2, grads);
    gn_adamw(&(gn_adamw_desc){ .lr = gn_scalar(g, GN_F32, 0.1), .step = gn_scalar(g, GN_F32, 1) }, p, grads, a, b, 2);
}

static void build_head(void) {
    gn_tensor logits = biased(gn_relu(given(GN_SHAPE(64, 4))), 4, 512);
    gn_topk(gn_softmax(gn_div(logits, gn_scalar(g, GN_F32, 0.7)), -1), 8, -1, true, &built[0], &built[1]);
}

static void build_conv(void) {
    gn_tensor columns =
        gn_im2col(given(GN_SHAPE(1, 3, 8, 8)), GN_SHAPE(3, 3), GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(1, 1));
    built[0] = gn_relu(gn_add(gn_matmul(weight(8, 27), columns), weight(8, 1)));
}

static void build_separable(void) {
    gn_tensor x = gn_tanh(given(GN_SHAPE(1, 16, 8, 8)));
    built[0] = gn_relu(conv(gn_relu(conv(x, filters(16, 1, 3), 1, 1, 16)), filters(4, 16, 1), 1, 0, 1));
}

static void build_pooling(void) {
    gn_tensor x = conv(gn_tanh(given(GN_SHAPE(1, 3, 16, 16))), filters(16, 3, 3), 1, 1, 1),
              y = gn_pool(gn_relu(x), &(gn_pool_desc){ .kernel = { 4, 4 }, .stride = { 4, 4 } });
    built[0] = gn_tanh(conv(y, filters(8, 16, 3), 1, 1, 1));
}

static void build_skip(void) {
    gn_tensor a = gn_relu(conv(given(GN_SHAPE(1, 3, 16, 16)), filters(16, 3, 3), 1, 1, 1)),
              b = gn_tanh(conv(a, filters(16, 16, 3), 1, 1, 1));
    built[0] = gn_relu(conv(gn_concat((gn_tensor[]){ a, b }, 2, 1), filters(2, 32, 3), 1, 1, 1));
}

static void build_bag(void) {
    built[0] = gn_tanh(gn_matmul(gn_sum(bag_rows(weight(WORDS, DIM), 8), GN_AXES(1), false), weight(DIM, 8)));
}

static void build_interaction(void) {
    gn_tensor part[4], x = gn_tanh(rows(TIMES));
    for (int i = 0; i < 4; i++) part[i] = gn_reshape(gn_tanh(project(x)), GN_SHAPE(TIMES, 1, DIM));
    x = gn_concat(part, 4, 1);
    built[0] = gn_tanh(gn_matmul(gn_reshape(gn_matmul(x, gn_transpose(x, 1, 2)), GN_SHAPE(TIMES, 16)), weight(16, 8)));
}

static void build_recurrent(void) {
    gn_tensor w = gn_reshape(weight(4 * DIM, DIM), GN_SHAPE(1, 4 * DIM, DIM)), x = gn_tanh(given(GN_SHAPE(8, 2, DIM)));
    x = gn_recurrent(x, w, w, &(gn_recurrent_desc){ .cell = GN_CELL_LSTM });
    built[0] = gn_matmul(gn_relu(gn_reshape(x, GN_SHAPE(36, DIM))), weight(DIM, 4));
}

/* x less a part of what a network of convs takes for its noise, as DDIM does. */
static void build_rotary(void) {
    gn_tensor x = hidden(), q = split_heads(project(x), TIMES, HEADS), k = split_heads(project(x), TIMES, HEADS);
    built[0] = gn_matmul(turn_halves(q), gn_transpose(turn_halves(k), 2, 3));
}

static void build_positions(void) {
    gn_tensor x = gn_mul_c(gn_embedding(weight(WORDS, DIM), words(TIMES)), 8), angle = angles(DIM / 2);
    built[0] = gn_tanh(gn_add(x, beside(gn_sin(angle), gn_cos(angle))));
}

static void build_patch_positions(void) {
    gn_tensor x = conv(given(GN_SHAPE(1, 3, 16, 16)), filters(DIM, 3, 4), 4, 0, 1);
    x = gn_permute(gn_reshape(x, GN_SHAPE(1, DIM, 16)), GN_AXES(0, 2, 1));
    x = gn_concat((gn_tensor[]){ gn_reshape(weight(0, DIM), GN_SHAPE(1, 1, DIM)), x }, 2, 1);
    built[0] = gn_tanh(gn_add(x, weight(17, DIM)));
}

static void build_cells(void) {
    cell_weights(0);
    gn_tensor x = hidden(), h = gn_tanh(rows(1)), c = h;
    for (int t = 0; t < 3; t++) h = lstm(gn_slice(x, 0, t, t + 1, 1), h, &c);
    built[0] = h;
}

static void build_gru_cells(void) {
    cell_weights(1);
    gn_tensor x = hidden(), h = gn_tanh(rows(1)), c = h;
    for (int t = 0; t < 3; t++) h = cell_gru(gn_slice(x, 0, t, t + 1, 1), h, &c);
    built[0] = h;
}

static void build_fusion(void) {
    gn_tensor image = gn_tanh(gn_matmul(tiles(given(GN_SHAPE(3, 8, 16))), weight(48, DIM))),
              text = gn_tanh(gn_add(gn_embedding(weight(WORDS, DIM), words(TIMES)), weight(TIMES, DIM)));
    built[0] = gn_tanh(gn_matmul(beside(image, text), weight(2 * DIM, 8)));
}

static gn_tensor denoised(gn_tensor x, gn_tensor noise, gn_tensor keep, gn_tensor take) {
    gn_tensor picture = gn_clamp(gn_div(gn_sub(x, gn_mul(take, noise)), keep), -1, 1);
    return gn_add(gn_mul(picture, keep), gn_mul(noise, take));
}
static gn_tensor noise_in(gn_tensor x) {
    return conv(gn_tanh(conv(x, filters(16, 3, 3), 1, 1, 1)), filters(3, 16, 3), 1, 1, 1);
}
static void build_denoising(void) {
    gn_tensor x = gn_state(g, GN_F32, GN_SHAPE(1, 3, 16, 16), NULL, "pictures");
    built[0] = gn_assign(x, denoised(x, noise_in(x), gn_scalar(g, GN_F32, 0.8), gn_scalar(g, GN_F32, 0.6)));
}

static void build_adapter(void) {
    gn_tensor x = gn_tanh(rows(TIMES)), low = gn_matmul(gn_matmul(x, weight(DIM, 4)), weight(4, DIM));
    built[0] = gn_tanh(gn_add(gn_matmul(x, weight(DIM, DIM)), gn_mul_c(low, 0.5)));
}

/* Figures of a schedule; devices: a bit for each that runs something. */
typedef struct figures {
    double seconds;
    uint64_t bytes;
    uint32_t devices;
} figures;

static bool schedule_of(const gn_cluster *cluster, gn_policy policy, uint64_t off, figures *out) {
    gn_schedule s;
    gn_fault f = { GN_OK, 0, "" };
    if (!understand_without(built, built[1].ctx ? 2 : 1, off) ||
        !CHECK_RESULT(gn_schedule_make(&g->cut.part, &m, cluster, policy, NULL, NULL, &s, &f), GN_OK))
        return false;
    *out = (figures){ s.seconds, s.bytes, 0 };
    for (uint32_t i = 0; i < s.n_segments; i++) out->devices |= 1u << s.segments[i].device;
    gn_schedule_deinit(&s);
    return true;
}

static const struct block {
    const char *name;
    void (*build)(void);
    uint64_t off;
    bool steady;
} blocks[] = {
    { "norm", build_norm, GN_OFF_ROLE(GN_ROLE_NORM), false },
    { "mlp", build_mlp, GN_OFF_ROLE(GN_ROLE_MLP), false },
    { "linear", build_linear, GN_OFF_ROLE(GN_ROLE_LINEAR), true },
    { "attention", build_attention, GN_OFF_ROLE(GN_ROLE_ATTENTION), false },
    { "cross attention", build_cross, GN_OFF_ROLE(GN_ROLE_CROSS_ATTENTION), false },
    { "grouped attention", build_grouped, GN_OFF_ROLE(GN_ROLE_GROUPED_ATTENTION), false },
    { "embedding", build_embedding, GN_OFF_ROLE(GN_ROLE_EMBEDDING), false },
    { "residual", build_residual, GN_OFF_ROLE(GN_ROLE_RESIDUAL), true },
    { "loss", build_loss, GN_OFF_ROLE(GN_ROLE_LOSS), false },
    { "optimizer", build_optimizer, GN_OFF_ROLE(GN_ROLE_OPTIMIZER), false },
    { "head", build_head, GN_OFF_ROLE(GN_ROLE_HEAD), true },
    { "sampling", build_head, GN_OFF_ROLE(GN_ROLE_SAMPLING), true },
    { "conv", build_conv, GN_OFF_ROLE(GN_ROLE_CONV), true },
};

static const struct block further[] = {
    { "separable conv", build_separable, GN_OFF_ROLE(GN_ROLE_SEPARABLE_CONV), true },
    { "pooling", build_pooling, GN_OFF_ROLE(GN_ROLE_POOLING), true },
    { "skip", build_skip, GN_OFF_ROLE(GN_ROLE_SKIP), true },
    { "embedding bag", build_bag, GN_OFF_ROLE(GN_ROLE_EMBEDDING_BAG), true },
    { "adapter", build_adapter, GN_OFF_ROLE(GN_ROLE_ADAPTER), true },
    { "denoising", build_denoising, GN_OFF_ROLE(GN_ROLE_DENOISING), true },
    { "interaction", build_interaction, GN_OFF_ROLE(GN_ROLE_INTERACTION), true },
    { "recurrent", build_recurrent, GN_OFF_ROLE(GN_ROLE_RECURRENT), true },
    { "LSTM cells, written out", build_cells, GN_OFF_ROLE(GN_ROLE_RECURRENT), true },
    { "GRU cells, written out", build_gru_cells, GN_OFF_ROLE(GN_ROLE_RECURRENT), true },
    { "rotary embedding", build_rotary, GN_OFF_ROLE(GN_ROLE_ROTARY), true },
    { "positional embedding", build_positions, GN_OFF_ROLE(GN_ROLE_POSITIONS), true },
    { "positions of patches", build_patch_positions, GN_OFF_ROLE(GN_ROLE_POSITIONS), true },
    { "fusion", build_fusion, GN_OFF_ROLE(GN_ROLE_FUSION), true },
};

static bool both_schedules(const struct block *b, const gn_cluster *cluster, gn_policy policy, figures *with,
                           figures *without) {
    built[1] = GN_NONE;
    b->build();
    return schedule_of(cluster, policy, 0, with) && schedule_of(cluster, policy, b->off, without);
}

/* Devices that are too far apart to share work, launches of 10 us: what runs together is launched together. */
TEST(each_recogniser_changes_the_time_of_a_schedule) {
    for (int i = 0; i < TEST_COUNT(blocks); i++) {
        pair c;
        figures with, without;
        if (blocks[i].off == GN_OFF_ROLE(GN_ROLE_CONV))
            continue; /* the windows have a kernel of their own in any case: it saves bytes alone */
        open_null();
        pair_make(&c, 1e12, 1e11, 1e-5, 1, 1e9);
        if (both_schedules(&blocks[i], &c.cluster, GN_LEAST_LATENCY, &with, &without) &&
            !CHECK(with.seconds < 0.98 * without.seconds))
            printf("    %s: %g s, without %g s\n", blocks[i].name, with.seconds, without.seconds);
        close_null();
    }
}

/* Devices close together: blocks stay whole, single nodes are spread. */
TEST(recognised_blocks_send_less) {
    uint64_t with_bytes = 0, without_bytes = 0;
    for (int i = 0; i < TEST_COUNT(blocks); i++) {
        pair c;
        figures with, without;
        open_null();
        pair_make(&c, 1e9, 1e10, 1e-6, blocks[i].steady ? 1e-5 : 1e-6, blocks[i].steady ? 1e9 : 1e10);
        if (both_schedules(&blocks[i], &c.cluster, blocks[i].steady ? GN_MOST_THROUGHPUT : GN_LEAST_LATENCY, &with,
                           &without)) {
            with_bytes += with.bytes;
            without_bytes += without.bytes;
            CHECK(blocks[i].off != GN_OFF_ROLE(GN_ROLE_CONV) || with.bytes < without.bytes);
        }
        close_null();
    }
    CHECK(with_bytes < without_bytes);
}

/* The k-th of 324 clusters: slow and fast arithmetic, memory and links, devices near and far, alike and not. */
static void pair_of(pair *c, int k) {
    static const double flops[] = { 1e8, 1e10, 1e12 }, bytes[] = { 1e8, 1e10, 1e12 }, links[] = { 1e8, 1e9, 1e11 },
                        delays[] = { 1e-5, 1e-7, 1e-6 };
    pair_make(c, flops[k % 3], bytes[k / 3 % 3], delays[k / 9 % 2], delays[k / 18 % 3], links[k / 54 % 3]);
    for (int r = 0; r < GN_RATE__COUNT && k / 162 % 2; r++) c->devices[1].flops_per_s[r] *= 4;
}

/* By every policy: what is seen saves bytes or time more often than it costs some. */
TEST(further_blocks_save_over_clusters_of_every_kind) {
    for (int i = 0; i < TEST_COUNT(further); i++) {
        int saved = 0, lost = 0;
        for (int k = 0; k < 324 * 3; k++) {
            pair c;
            figures with, without;
            open_null();
            pair_of(&c, k / 3);
            REQUIRE(both_schedules(&further[i], &c.cluster, (gn_policy)(k % 3), &with, &without));
            saved += with.bytes < without.bytes || with.seconds < 0.999 * without.seconds;
            lost += with.bytes > without.bytes || with.seconds > 1.001 * without.seconds;
            close_null();
        }
        printf("  %s: less in %d, more in %d\n", further[i].name, saved, lost);
        CHECK(saved > lost);
    }
}

/* A cache of 4096 rows: device 0 is near, device 1 reads memory twice as fast. What has to be read decides. */
static void check_phase_places(int64_t t, uint64_t off, gn_phase_kind phase, gn_phase_kind said) {
    pair c;
    figures with, without;
    open_null();
    gn_phase(g, said);
    gn_tensor pos = gn_scalar(g, GN_I32, 0), q = given(GN_SHAPE(1, HEADS, t, HEAD)), cache[2];
    for (int i = 0; i < 2; i++)
        cache[i] = gn_kv_append(gn_state(g, GN_F32, GN_SHAPE(1, HEADS, 4096, HEAD), NULL, "kv"), gn_tanh(q), pos);
    built[0] =
        gn_attention(q, cache[0], cache[1], &(gn_attention_desc){ .causal = true, .length = gn_add_c(pos, (double)t) });
    built[1] = GN_NONE;
    pair_make(&c, 0, 1e9, 1e-6, 1e-6, 1e10);
    c.devices[1].bytes_per_s = 2e9;
    c.links[5].latency_s = c.links[7].latency_s = 4.5e-4; /* device 1 and the program: 0.7 ms more for both ways */
    REQUIRE(schedule_of(&c.cluster, GN_LEAST_LATENCY, 0, &with));
    CHECK_PHASE(built[0], said ? said : phase);
    if (schedule_of(&c.cluster, GN_LEAST_LATENCY, off, &without)) {
        CHECK_INT(without.devices, said ? 1 : 2);
        CHECK_INT(with.devices, 1);
        CHECK(said || with.seconds < without.seconds);
    }
    close_null();
}

TEST(appends_prefill_and_decode_change_where_an_attention_runs) {
    check_phase_places(1, GN_OFF_PHASE(GN_DECODE), GN_DECODE, GN_PHASE_UNKNOWN);
    check_phase_places(1, GN_OFF_ROLE(GN_ROLE_KV_APPEND), GN_DECODE, GN_PHASE_UNKNOWN);
    check_phase_places(TIMES, GN_OFF_PHASE(GN_PREFILL), GN_PREFILL, GN_PHASE_UNKNOWN);
    /* what is said does not need a recogniser */
    check_phase_places(TIMES, GN_OFF_PHASE(GN_PREFILL), GN_PREFILL, GN_PREFILL);
}

TEST(a_step_of_denoising_is_seen_where_a_network_refines_what_it_reads) {
    open_null();
    gn_tensor given_x = given(GN_SHAPE(1, 3, 16, 16)), keep = gn_scalar(g, GN_F32, 0.8),
              take = gn_scalar(g, GN_F32, 0.6);
    build_denoising();
    gn_tensor of_state = built[0], noise = noise_in(given_x), of_data = denoised(given_x, noise, keep, take);
    REQUIRE(understand_without((gn_tensor[]){ of_state, of_data }, 2, 0));
    CHECK_ROLE(of_data, GN_ROLE_DENOISING);
    CHECK_TOGETHER(of_data, noise);
    CHECK_PHASE(of_data, GN_DENOISE);
    CHECK_PHASE(noise, GN_DENOISE);
    CHECK_PHASE(of_state, GN_DENOISE);
    check_groups();
    REQUIRE(understand_without(&of_data, 1, GN_OFF_PHASE(GN_DENOISE)));
    CHECK_PHASE(of_data, GN_FORWARD);
    gn_step(g);
    /* neither: of other data than the network reads, by no number of the run, a parameter's step */
    gn_tensor x = given(GN_SHAPE(1, 3, 16, 16)), other = given(GN_SHAPE(1, 3, 16, 16)), p = parameter(), slope;
    keep = gn_scalar(g, GN_F32, 0.8);
    gn_tensor loss = gn_mse_loss(gn_matmul(rows(TIMES), p), given(GN_SHAPE(TIMES, 16)));
    gn_grad(loss, &p, 1, &slope);
    gn_tensor none[] = { gn_add(gn_mul(other, keep), noise_in(x)), gn_add(x, noise_in(x)),
                         gn_assign(p, gn_sub(p, gn_mul(slope, keep))) };
    REQUIRE(understand_without(none, 3, 0));
    CHECK(!has_role(GN_ROLE_DENOISING));
    close_null();
}

static const test_entry tests[] = {
    TEST_ENTRY(a_step_of_denoising_is_seen_where_a_network_refines_what_it_reads),
    TEST_ENTRY(linear_is_seen_in_every_writing),
    TEST_ENTRY(products_of_activations_are_not_linear),
    TEST_ENTRY(mlp_is_seen_in_every_writing),
    TEST_ENTRY(mlp_of_experts_is_seen),
    TEST_ENTRY(gated_mlp_is_seen_in_every_writing),
    TEST_ENTRY(two_products_without_an_activation_or_with_a_skip_between_are_no_mlp),
    TEST_ENTRY(norm_is_seen_in_every_writing),
    TEST_ENTRY(divisions_by_other_roots_are_no_norm),
    TEST_ENTRY(self_attention_is_seen_in_every_writing),
    TEST_ENTRY(attention_written_out_is_one_group),
    TEST_ENTRY(cross_attention_is_seen_in_every_writing),
    TEST_ENTRY(norms_before_the_projections_do_not_make_self_attention_cross),
    TEST_ENTRY(grouped_attention_is_seen_in_every_writing),
    TEST_ENTRY(attention_written_out_is_listed_with_its_products),
    TEST_ENTRY(softmax_between_other_products_is_no_attention),
    TEST_ENTRY(append_and_phase_are_seen_in_every_writing),
    TEST_ENTRY(an_append_is_seen_behind_a_scale_and_a_rotation),
    TEST_ENTRY(a_decode_step_with_rotations_is_self_attention),
    TEST_ENTRY(norms_of_queries_and_keys_leave_attention_what_it_is),
    TEST_ENTRY(attention_of_a_window_is_seen_and_costs_its_keys),
    TEST_ENTRY(rotated_queries_of_other_keys_are_cross_attention),
    TEST_ENTRY(phases_of_an_encoder_and_a_decoder_stay_apart),
    TEST_ENTRY(rows_put_into_a_state_that_no_attention_reads_are_no_kv_append),
    TEST_ENTRY(attention_without_a_cache_is_neither_prefill_nor_decode),
    TEST_ENTRY(one_query_over_a_cache_that_is_only_read_is_decode),
    TEST_ENTRY(embedding_is_seen_in_every_writing),
    TEST_ENTRY(picking_rows_of_activations_is_no_embedding),
    TEST_ENTRY(residual_is_seen_around_mlp_and_attention),
    TEST_ENTRY(sums_of_branches_are_not_residual),
    TEST_ENTRY(loss_is_seen_in_every_writing),
    TEST_ENTRY(means_that_compare_with_no_target_are_no_loss),
    TEST_ENTRY(optimiser_is_seen_in_every_writing),
    TEST_ENTRY(optimiser_step_is_one_group_a_parameter),
    TEST_ENTRY(steps_that_share_a_rate_stay_two_groups),
    TEST_ENTRY(gradients_from_another_step_are_seen_as_gradients),
    TEST_ENTRY(other_updates_of_states_are_no_optimiser),
    TEST_ENTRY(head_with_sampling_is_seen_in_every_writing),
    TEST_ENTRY(head_of_drawn_tokens_is_seen),
    TEST_ENTRY(choices_within_the_graph_and_plain_outputs_are_no_head),
    TEST_ENTRY(convolution_by_windows_is_seen_and_is_vision),
    TEST_ENTRY(convolution_and_its_activation_are_one_stage),
    TEST_ENTRY(recurrent_layer_is_one_op_behind_a_linear),
    TEST_ENTRY(depthwise_and_pointwise_convs_are_one_block),
    TEST_ENTRY(patches_of_pictures_are_seen_in_every_writing),
    TEST_ENTRY(pooling_runs_with_the_conv_before_it),
    TEST_ENTRY(skips_of_a_u_net_run_with_the_conv_that_reads_them),
    TEST_ENTRY(embedding_bags_are_seen_in_every_writing),
    TEST_ENTRY(interactions_of_features_are_seen),
    TEST_ENTRY(adapters_run_where_their_base_is),
    TEST_ENTRY(sound_is_seen_by_the_power_of_its_waves),
    TEST_ENTRY(axes_and_ids_alone_are_no_modality),
    TEST_ENTRY(ids_are_text_where_the_order_of_their_rows_counts),
    TEST_ENTRY(rotary_embedding_is_seen_in_every_writing),
    TEST_ENTRY(products_that_turn_nothing_are_no_rotary_embedding),
    TEST_ENTRY(positional_embedding_is_seen_in_every_writing),
    TEST_ENTRY(recurrent_cells_are_seen_when_they_are_written_out),
    TEST_ENTRY(a_recurrent_cell_is_seen_by_its_state),
    TEST_ENTRY(what_carries_nothing_is_no_recurrent_cell),
    TEST_ENTRY(a_long_recurrence_takes_linear_time),
    TEST_ENTRY(fusions_of_modalities_are_seen),
    TEST_ENTRY(modalities_spread_and_mix),
    TEST_ENTRY(scopes_win_over_what_is_recognised),
    TEST_ENTRY(nodes_of_one_scope_are_one_group),
    TEST_ENTRY(residency_is_said_where_a_state_is_made),
    TEST_ENTRY(encoders_are_connected_blocks_of_one_modality),
    TEST_ENTRY(what_is_said_of_modality_divides_encoders),
    TEST_ENTRY(describe_tells_role_and_modality),
    TEST_ENTRY(scopes_out_of_range_are_refused_and_change_nothing),
    TEST_ENTRY(devices_are_said_by_name_or_index),
    TEST_ENTRY(recognised_blocks_end_where_the_device_changes),
    TEST_ENTRY(different_scopes_are_different_plans),
    TEST_ENTRY(plans_that_differ_in_scopes_have_keys_of_their_own),
    TEST_ENTRY(disagreements_name_node_kind_and_both_sides),
    TEST_ENTRY(disagreements_are_counted_and_logged_once_a_plan),
    TEST_ENTRY(agreeing_and_broader_scopes_are_no_disagreement),
    TEST_ENTRY(nodes_and_edges_carry_flops_and_bytes),
    TEST_ENTRY(an_append_costs_its_rows_and_a_broadcast_its_source),
    TEST_ENTRY(groups_sum_what_passes_through_memory),
    TEST_ENTRY(critical_path_takes_the_longer_branch),
    TEST_ENTRY(a_member_that_is_read_too_early_leaves_its_group),
    TEST_ENTRY(versions_of_a_state_stand_in_order),
    TEST_ENTRY(the_gradient_of_an_activation_is_one_group),
    TEST_ENTRY(a_transformer_layer_falls_into_its_blocks),
    TEST_ENTRY(groups_of_random_graphs_are_complete_and_without_cycles),
    TEST_ENTRY(a_chain_of_a_million_nodes_takes_linear_time),
    TEST_ENTRY(a_shared_node_with_a_million_readers_takes_linear_time),
    TEST_ENTRY(every_allocation_may_fail),
    TEST_ENTRY(a_graph_of_three_hundred_nodes_takes_under_a_millisecond),
    TEST_ENTRY(each_recogniser_changes_the_time_of_a_schedule),
    TEST_ENTRY(recognised_blocks_send_less),
    TEST_ENTRY(further_blocks_save_over_clusters_of_every_kind),
    TEST_ENTRY(appends_prefill_and_decode_change_where_an_attention_runs),
};

int main(int argc, char **argv) {
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
