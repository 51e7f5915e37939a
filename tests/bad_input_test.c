/* Bad input gets a typed error and nothing is lost: each case names the exact result, then the same context must
 * compute, and states must hold what they held before the step that failed. On the CPU of this process and on a server
 * reached over a socketpair.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include "loopback.h"

static bool on_loopback;
static gn_ctx *g;      /* of the running test */
static gn_tensor kept; /* a state that every failed step tries to write: SIZE numbers, 1, 2, 3, … */

enum { SIZE = 6 };

static void open_context(void) {
    double x[SIZE];
    gn_desc desc = { .devices = on_loopback ? NULL : "cpu", .threads = 2 };
    g = on_loopback ? loopback_open(&desc) : gn_open(&desc);
    CHECK_RESULT(gn_status(g), GN_OK);
    for (int i = 0; i < SIZE; i++) x[i] = i + 1;
    kept = gn_state(g, GN_F64, GN_SHAPE(SIZE), x, "kept");
}

/* The context still computes, and the state holds what it held. */
static void check_alive(void) {
    double x[2] = { 3, 4 }, y = 0, held[SIZE] = { 0 };
    gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(2), x);
    if (!CHECK_RESULT(gn_read(gn_matmul(t, t), &y, sizeof y), GN_OK) ||
        !CHECK_RESULT(gn_read(kept, held, sizeof held), GN_OK))
        test_fail(__FILE__, __LINE__, "%s", gn_last_error(g)->text);
    CHECK_NEAR(y, 25, 0);
    bool as_before = true;
    for (int i = 0; i < SIZE; i++) as_before = as_before && held[i] == i + 1;
    CHECK(as_before);
    CHECK_RESULT(gn_step(g), GN_OK);
}

enum { ZEROS = 128 };

/* A shape that asks for more than there is would read past the array. */
static void check_zeros(gn_shape shape) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    if (n <= ZEROS) return;
    printf("a tensor of %lld zeros: there are %d\n", (long long)n, ZEROS);
    exit(1);
}

static gn_tensor floats(gn_shape shape) {
    static const float x[ZEROS] = { 0 };
    check_zeros(shape);
    return gn_data(g, GN_F32, shape, x);
}

static gn_tensor ints(gn_dtype dtype, gn_shape shape) {
    static const int64_t x[ZEROS] = { 0 };
    check_zeros(shape);
    return gn_data(g, dtype, shape, x);
}

/* A node that cannot be built says so at once and at the read, and so does what is built on it. */
static void check_refused(int line, gn_tensor t, gn_result want) {
    gn_info info;
    float x[64];
    gn_result now = gn_describe(t, &info), later = gn_read(gn_neg(t), x, sizeof(float));
    if (now != want || later != want) {
        test_fail(__FILE__, line, "the node is %s, the read %s, not %s: %s", gn_result_name(now), gn_result_name(later),
                  gn_result_name(want), gn_last_error(g)->text);
    }
    const gn_error *e = gn_last_error(g);
    if (e->result != want || e->line != line || !strstr(e->file, "bad_input_test.c") || !e->text[0]) {
        test_fail(__FILE__, line, "the last error is %s of line %d of \"%s\": \"%s\"", gn_result_name(e->result),
                  e->line, e->file, e->text);
    }
}

#define REFUSED(tensor, want) check_refused(__LINE__, tensor, want)

/* ---- shapes, ranks, dtypes ---- */

TEST(shapes_that_do_not_fit_are_bad_shape) {
    gn_tensor a = floats(GN_SHAPE(2, 3)), row = floats(GN_SHAPE(3)), pair[2] = { a, floats(GN_SHAPE(3, 2)) };
    REFUSED(gn_add(a, floats(GN_SHAPE(2))), GN_BAD_SHAPE);
    REFUSED(gn_where(ints(GN_BOOL, GN_SHAPE(4)), a, a), GN_BAD_SHAPE);
    REFUSED(gn_matmul(a, a), GN_BAD_SHAPE);
    REFUSED(gn_matmul(row, floats(GN_SHAPE(2))), GN_BAD_SHAPE);
    REFUSED(gn_matmul(floats(GN_SHAPE(2, 2, 3)), floats(GN_SHAPE(3, 3, 2))), GN_BAD_SHAPE);
    REFUSED(gn_linear(a, floats(GN_SHAPE(3, 4)), row), GN_BAD_SHAPE);
    REFUSED(gn_layernorm(a, floats(GN_SHAPE(2)), GN_NONE, 1e-5), GN_BAD_SHAPE);
    REFUSED(gn_reshape(a, GN_SHAPE(4)), GN_BAD_SHAPE);
    REFUSED(gn_reshape(a, GN_SHAPE(-1, 4)), GN_BAD_SHAPE);
    REFUSED(gn_reshape(a, GN_SHAPE(-1, -1)), GN_BAD_SHAPE);
    REFUSED(gn_reshape(a, GN_SHAPE(-2, -3)), GN_BAD_SHAPE);
    REFUSED(gn_broadcast(a, GN_SHAPE(3, 2)), GN_BAD_SHAPE);
    REFUSED(gn_broadcast(a, GN_SHAPE(3)), GN_BAD_SHAPE);
    REFUSED(gn_concat(pair, 2, 0), GN_BAD_SHAPE);
    REFUSED(gn_slice_put(a, floats(GN_SHAPE(2, 2)), 1, 0, 1, 1), GN_BAD_SHAPE);
    REFUSED(gn_gather(a, 0, ints(GN_I64, GN_SHAPE(2, 4))), GN_BAD_SHAPE);
    REFUSED(gn_gather(a, 0, ints(GN_I64, GN_SHAPE(2))), GN_BAD_SHAPE);
    REFUSED(gn_scatter_add(a, 0, ints(GN_I64, GN_SHAPE(2, 3)), floats(GN_SHAPE(2, 2))), GN_BAD_SHAPE);
    REFUSED(gn_cross_entropy(a, ints(GN_I64, GN_SHAPE(3))), GN_BAD_SHAPE);
    REFUSED(gn_mse_loss(a, floats(GN_SHAPE(2))), GN_BAD_SHAPE);
    check_alive();
}

TEST(attention_and_cache_shapes_that_do_not_fit_are_bad_shape) {
    gn_tensor q = floats(GN_SHAPE(1, 4, 2, 3)), k = floats(GN_SHAPE(1, 2, 5, 3)), three = floats(GN_SHAPE(1, 3, 5, 3));
    gn_tensor cache = floats(GN_SHAPE(1, 2, 5, 3)), at = ints(GN_I64, GN_SCALAR);
    REFUSED(gn_attention(q, three, three, NULL), GN_BAD_SHAPE); /* 4 heads are no multiple of 3 */
    REFUSED(gn_attention(q, k, floats(GN_SHAPE(1, 2, 4, 3)), NULL), GN_BAD_SHAPE);
    REFUSED(gn_attention(q, floats(GN_SHAPE(1, 2, 5, 2)), k, NULL), GN_BAD_SHAPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .mask = ints(GN_BOOL, GN_SHAPE(4)) }), GN_BAD_SHAPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .slopes = floats(GN_SHAPE(2)) }), GN_BAD_SHAPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .sinks = floats(GN_SHAPE(4, 1)) }), GN_BAD_SHAPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .sinks = ints(GN_I64, GN_SHAPE(4)) }), GN_BAD_DTYPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .slopes = gn_cast(floats(GN_SHAPE(4)), GN_F64) }),
            GN_BAD_DTYPE);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .window = 2 }), GN_BAD_ARGUMENT); /* not causal */
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .causal = true, .window = -1 }), GN_BAD_ARGUMENT);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .soft_cap = -1 }), GN_BAD_ARGUMENT);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .soft_cap = NAN }), GN_BAD_ARGUMENT);
    REFUSED(gn_attention(q, k, k, &(gn_attention_desc){ .soft_cap = INFINITY }), GN_BAD_ARGUMENT);
    REFUSED(gn_kv_append(cache, floats(GN_SHAPE(1, 2, 6, 3)), at), GN_BAD_SHAPE);
    REFUSED(gn_kv_append(cache, floats(GN_SHAPE(1, 1, 1, 3)), at), GN_BAD_SHAPE);
    check_alive();
}

TEST(ranks_and_axes_outside_are_bad_rank) {
    gn_tensor a = floats(GN_SHAPE(2, 3)), scalar = floats(GN_SCALAR), one[1] = { a },
              full = ints(GN_I64, GN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
    REFUSED(gn_sum(a, GN_AXES(2), false), GN_BAD_RANK);
    REFUSED(gn_argmax(a, GN_AXES(-3), false), GN_BAD_RANK);
    REFUSED(gn_sum(a, GN_AXES(1, -1), false), GN_BAD_RANK); /* one axis twice */
    REFUSED(gn_softmax(a, 2), GN_BAD_RANK);
    REFUSED(gn_softmax(scalar, 0), GN_BAD_RANK);
    REFUSED(gn_layernorm(scalar, GN_NONE, GN_NONE, 1e-5), GN_BAD_RANK);
    REFUSED(gn_matmul(scalar, a), GN_BAD_RANK);
    REFUSED(gn_linear(a, floats(GN_SHAPE(3)), GN_NONE), GN_BAD_RANK);
    REFUSED(gn_transpose(a, 0, 2), GN_BAD_RANK);
    REFUSED(gn_permute(a, GN_AXES(0, 1, 2)), GN_BAD_RANK);
    REFUSED(gn_permute(a, GN_AXES(0, 0)), GN_BAD_RANK);
    REFUSED(gn_slice(a, 2, 0, 1, 1), GN_BAD_RANK);
    REFUSED(gn_concat(one, 1, 2), GN_BAD_RANK);
    REFUSED(gn_gather(a, 2, ints(GN_I64, GN_SHAPE(2, 3))), GN_BAD_RANK);
    REFUSED(gn_embedding(floats(GN_SHAPE(4)), ints(GN_I64, GN_SHAPE(2))), GN_BAD_RANK);
    REFUSED(gn_embedding(a, full), GN_BAD_RANK); /* would be of rank 9 */
    REFUSED(gn_one_hot(full, 3, GN_F32), GN_BAD_RANK);
    REFUSED(gn_cross_entropy(scalar, ints(GN_I64, GN_SCALAR)), GN_BAD_RANK);
    REFUSED(gn_attention(a, a, a, NULL), GN_BAD_RANK);
    REFUSED(gn_kv_append(a, a, ints(GN_I64, GN_SCALAR)), GN_BAD_RANK);
    REFUSED(gn_kv_append(floats(GN_SHAPE(1, 1, 4, 2)), floats(GN_SHAPE(1, 1, 1, 2)), ints(GN_I64, GN_SHAPE(1))),
            GN_BAD_RANK);
    check_alive();
}

TEST(shapes_that_are_none_are_refused) {
    static const float x[4] = { 0 };
    gn_shape nine = { 9, { 1, 1, 1, 1, 1, 1, 1, 1 } }, below = { -1, { 0 } };
    gn_info info;
    CHECK(gn_describe(gn_data(g, GN_F32, nine, x), &info) != GN_OK);
    CHECK(gn_describe(gn_data(g, GN_F32, below, x), &info) != GN_OK);
    CHECK(gn_describe(gn_full(g, GN_F32, nine, 0), &info) == GN_BAD_RANK);
    CHECK(gn_describe(gn_data(g, GN_F32, GN_SHAPE(-4), x), &info) == GN_BAD_SHAPE);
    CHECK(gn_describe(gn_full(g, GN_F32, GN_SHAPE(3, -1), 0), &info) == GN_BAD_SHAPE);
    CHECK(gn_describe(gn_full(g, GN_F32, GN_SHAPE(INT64_MAX, INT64_MAX), 0), &info) == GN_BAD_SHAPE);
    CHECK(gn_describe(gn_full(g, GN_F32, GN_SHAPE(INT64_C(1) << 32, INT64_C(1) << 32, 0), 0), &info) == GN_BAD_SHAPE);
    CHECK(gn_describe(gn_state(g, GN_F32, GN_SHAPE(INT64_C(1) << 62, 4), NULL, "s"), &info) == GN_BAD_SHAPE);
    CHECK(gn_describe(gn_arange(g, GN_F32, -1, 0, 1), &info) != GN_OK);
    CHECK(gn_describe(gn_one_hot(ints(GN_I64, GN_SHAPE(2)), -1, GN_F32), &info) != GN_OK);
    gn_tensor wide = gn_full(g, GN_F32, GN_SHAPE(INT64_C(1) << 28), 1);
    REFUSED(gn_mul(gn_reshape(wide, GN_SHAPE(-1, 1)), gn_reshape(wide, GN_SHAPE(1, -1))), GN_BAD_SHAPE);
    check_alive();
}

TEST(dtypes_outside_the_mask_are_bad_dtype) {
    gn_tensor f = floats(GN_SHAPE(2, 3)), i = ints(GN_I64, GN_SHAPE(2, 3)), b = ints(GN_BOOL, GN_SHAPE(2, 3));
    REFUSED(gn_exp(i), GN_BAD_DTYPE);
    REFUSED(gn_sub(b, b), GN_BAD_DTYPE);
    REFUSED(gn_and(f, f), GN_BAD_DTYPE);
    REFUSED(gn_pow(i, i), GN_BAD_DTYPE);
    REFUSED(gn_where(f, f, f), GN_BAD_DTYPE);
    REFUSED(gn_mean(i, GN_ALL_AXES, false), GN_BAD_DTYPE);
    REFUSED(gn_softmax(i, 0), GN_BAD_DTYPE);
    REFUSED(gn_layernorm(i, GN_NONE, GN_NONE, 1e-5), GN_BAD_DTYPE);
    REFUSED(gn_matmul(b, gn_transpose(b, 0, 1)), GN_BAD_DTYPE);
    REFUSED(gn_gather(f, 0, f), GN_BAD_DTYPE);
    REFUSED(gn_gather(f, 0, ints(GN_U8, GN_SHAPE(2, 3))), GN_BAD_DTYPE);
    REFUSED(gn_embedding(f, f), GN_BAD_DTYPE);
    REFUSED(gn_one_hot(f, 3, GN_F32), GN_BAD_DTYPE);
    REFUSED(gn_scatter_add(f, 0, i, i), GN_BAD_DTYPE);
    REFUSED(gn_cross_entropy(f, floats(GN_SHAPE(2))), GN_BAD_DTYPE);
    REFUSED(gn_mse_loss(i, i), GN_BAD_DTYPE);
    REFUSED(gn_kv_append(floats(GN_SHAPE(1, 1, 4, 2)), floats(GN_SHAPE(1, 1, 1, 2)), floats(GN_SCALAR)), GN_BAD_DTYPE);
    REFUSED(gn_cast(f, (gn_dtype)77), GN_BAD_DTYPE);
    REFUSED(gn_one_hot(i, 3, (gn_dtype)0), GN_BAD_DTYPE);
    REFUSED(gn_random_uniform(g, GN_I32, GN_SHAPE(3)), GN_BAD_DTYPE);
    REFUSED(gn_random_normal(g, GN_BOOL, GN_SHAPE(3)), GN_BAD_DTYPE);
    REFUSED(gn_full(g, (gn_dtype)-1, GN_SHAPE(3), 0), GN_BAD_DTYPE);
    REFUSED(gn_scalar(g, GN_DTYPE__COUNT, 0), GN_BAD_DTYPE);
    check_alive();
}

TEST(arguments_outside_their_range_are_bad_argument) {
    gn_tensor a = floats(GN_SHAPE(2, 3));
    REFUSED(gn_slice(a, 0, 0, 1, 0), GN_BAD_ARGUMENT);
    REFUSED(gn_slice_put(a, a, 0, 0, 1, 0), GN_BAD_ARGUMENT);
    REFUSED(gn_add(a, GN_NONE), GN_BAD_ARGUMENT);
    gn_info info;
    CHECK_RESULT(gn_describe(gn_concat(NULL, 0, 0), &info), GN_BAD_ARGUMENT);
    check_alive();
}

TEST(null_data_is_bad_argument) {
    gn_info info;
    CHECK_RESULT(gn_describe(gn_data(g, GN_F32, GN_SHAPE(3), NULL), &info), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_weight(g, GN_F32, GN_SHAPE(3), NULL, "w"), &info), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_data(g, GN_F32, GN_SHAPE(0), NULL), &info), GN_OK); /* nothing is there to point at */
    check_alive();
}

/* ---- reads ---- */

TEST(read_of_another_size_is_bad_size) {
    unsigned char out[64];
    memset(out, 0x5a, sizeof out);
    gn_tensor t = gn_neg(floats(GN_SHAPE(2, 3))), both[2] = { t, t };
    void *const hosts[2] = { out, out + 32 };
    const size_t bytes[2] = { 24, 25 };
    CHECK_RESULT(gn_read(t, out, 23), GN_BAD_SIZE);
    CHECK_RESULT(gn_read(t, out, 25), GN_BAD_SIZE);
    CHECK_RESULT(gn_read(t, out, 0), GN_BAD_SIZE);
    CHECK_RESULT(gn_read_many(both, 2, hosts, bytes), GN_BAD_SIZE);
    for (int i = 0; i < TEST_COUNT(out); i++) CHECK_INT(out[i], 0x5a);
    CHECK_RESULT(gn_read(t, NULL, 24), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_many(both, -1, hosts, bytes), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read(t, out, 24), GN_OK);
    check_alive();
}

TEST(stale_handle_is_stale_handle) {
    float x;
    gn_tensor old = floats(GN_SCALAR), forged = old;
    CHECK_RESULT(gn_step(g), GN_OK);
    REFUSED(gn_exp(old), GN_STALE_HANDLE);
    CHECK_RESULT(gn_read(old, &x, sizeof x), GN_STALE_HANDLE);
    forged.id = UINT32_MAX;
    CHECK_RESULT(gn_read(forged, &x, sizeof x), GN_STALE_HANDLE);
    forged = floats(GN_SCALAR);
    forged.gen += 1000;
    CHECK_RESULT(gn_read(forged, &x, sizeof x), GN_STALE_HANDLE);
    check_alive();
}

TEST(closed_context_is_closed_context) {
    float x;
    gn_tensor t = floats(GN_SCALAR);
    gn_close(g);
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_CLOSED_CONTEXT);
    CHECK_RESULT(gn_realize(&t, 1), GN_CLOSED_CONTEXT);
    CHECK_RESULT(gn_release(kept), GN_CLOSED_CONTEXT);
    open_context();
    check_alive();
}

/* ---- values that cannot be: found while running ---- */

/* Reads `t`, after building an update of `kept` that the same step would make. */
static void check_fault(int line, gn_tensor t, gn_result want) {
    unsigned char out[1024];
    gn_info info;
    if (gn_describe(t, &info) != GN_OK || info.bytes > sizeof out) {
        test_fail(__FILE__, line, "the node was not built: %s", gn_result_name(info.result));
        return;
    }
    gn_assign(kept, gn_mul_c(kept, 2));
    gn_result r = gn_read(t, out, info.bytes);
    const gn_error *e = gn_last_error(g);
    if (r != want || e->result != want || e->line != line || !e->text[0] || !e->op[0]) {
        test_fail(__FILE__, line, "the read is %s, not %s: \"%s\" of line %d", gn_result_name(r), gn_result_name(want),
                  e->text, e->line);
    }
    gn_step(g);
    check_alive();
}

#define FAULTS(tensor, want) check_fault(__LINE__, tensor, want)

/* Numbers of this step, made of int64 arguments. */
static gn_tensor values(gn_dtype dtype, gn_shape shape, const int64_t *x) {
    int32_t narrow[16];
    unsigned char bytes[16];
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = (int32_t)x[i];
        bytes[i] = (unsigned char)x[i];
    }
    return gn_data_copy(g, dtype, shape,
                        dtype == GN_I64   ? (const void *)x
                        : dtype == GN_I32 ? (const void *)narrow
                                          : (const void *)bytes);
}

#define INTS(dtype, ...) values(dtype, GN_SHAPE(GN__COUNT(__VA_ARGS__)), (const int64_t[]){ __VA_ARGS__ })
#define INT0(dtype, x) values(dtype, GN_SCALAR, (const int64_t[]){ x })

TEST(integer_division_by_zero_is_division_by_zero) {
    static const gn_dtype dtypes[] = { GN_I32, GN_I64, GN_U8 };
    for (int k = 0; k < TEST_COUNT(dtypes); k++) {
        FAULTS(gn_div(INTS(dtypes[k], 1, 2, 3), INTS(dtypes[k], 1, 0, 1)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_div(INTS(dtypes[k], 0, 0), INT0(dtypes[k], 0)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_div(INT0(dtypes[k], 7), gn_slice(INTS(dtypes[k], 5, 5, 5, 0), 0, 3, 4, 1)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_div(INTS(dtypes[k], 1, 2), gn_like(INTS(dtypes[k], 1), 0)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_fmod(INTS(dtypes[k], 1, 2), INTS(dtypes[k], 1, 0)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_remainder(INTS(dtypes[k], 1, 2), INTS(dtypes[k], 1, 0)), GN_DIVISION_BY_ZERO);
        FAULTS(gn_floor_divide(INTS(dtypes[k], 1, 2), INTS(dtypes[k], 1, 0)), GN_DIVISION_BY_ZERO);
    }
}

TEST(integer_division_by_zero_inside_a_fused_chain_is_found) {
    gn_tensor a = INTS(GN_I32, 4, 5, 6), b = INTS(GN_I32, 2, 3, 4);
    int line = __LINE__ + 1;
    gn_tensor q = gn_div(a, gn_sub(b, gn_like(b, 3)));
    gn_tensor t = gn_where(gn_gt(gn_add(q, a), a), q, b);
    int32_t out[3];
    CHECK_RESULT(gn_read(t, out, sizeof out), GN_DIVISION_BY_ZERO);
    CHECK_STR(gn_last_error(g)->op, "div");
    CHECK_INT(gn_last_error(g)->line, line);
    CHECK_RESULT(gn_step(g), GN_OK);
    check_alive();
}

/* Long enough for several threads, each of which meets zeros. */
TEST(integer_division_by_zero_in_every_tile_is_found_once) {
    enum { N = 60000 };
    static int32_t out[N];
    gn_tensor zeros = gn_sub(gn_arange(g, GN_I32, N, 0, 1), gn_arange(g, GN_I32, N, 0, 1));
    gn_assign(kept, gn_neg(kept));
    CHECK_RESULT(gn_read(gn_div(gn_arange(g, GN_I32, N, 1, 1), zeros), out, sizeof out), GN_DIVISION_BY_ZERO);
    CHECK_STR(gn_last_error(g)->op, "div");
    gn_step(g);
    check_alive();
}

TEST(float_division_by_zero_is_infinity) {
    double x[3] = { 1, -1, 0 }, y[3] = { 0, 0, 0 }, out[3];
    CHECK_RESULT(gn_read(gn_div(gn_data(g, GN_F64, GN_SHAPE(3), x), gn_data(g, GN_F64, GN_SHAPE(3), y)), out,
                         sizeof out),
                 GN_OK);
    CHECK(isinf(out[0]) && out[0] > 0 && isinf(out[1]) && out[1] < 0 && isnan(out[2]));
    check_alive();
}

TEST(division_of_nothing_by_zero_is_no_error) {
    int32_t out[1] = { 9 };
    gn_tensor none = gn_data(g, GN_I32, GN_SHAPE(0), NULL);
    CHECK_RESULT(gn_read(gn_div(none, INT0(GN_I32, 0)), out, 0), GN_OK);
    check_alive();
}

static const int64_t outside[] = { -1, 4, 5, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_C(1) << 32 };

/* The k-th index outside [0, 4), of either dtype; those of 33 bits and more only as i64. */
static bool next_outside(int k, gn_dtype *dtype, int64_t *index) {
    int values_n = TEST_COUNT(outside);
    *index = outside[k % values_n];
    *dtype = k < values_n ? GN_I64 : GN_I32;
    return *dtype == GN_I64 || (*index >= INT32_MIN && *index <= INT32_MAX);
}

enum { OUTSIDE = 2 * TEST_COUNT(outside) };

TEST(gather_index_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(gn_gather(floats(GN_SHAPE(4)), 0, INTS(d, 0, 3, x)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_gather(floats(GN_SHAPE(2, 4)), 1, gn_reshape(INTS(d, 0, x, 3, 1), GN_SHAPE(2, 2))),
                   GN_INDEX_OUT_OF_RANGE);
        }
    }
    FAULTS(gn_gather(gn_data(g, GN_F32, GN_SHAPE(0), NULL), 0, INTS(GN_I64, 0)), GN_INDEX_OUT_OF_RANGE);
}

TEST(embedding_id_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++)
        if (next_outside(k, &d, &x)) FAULTS(gn_embedding(floats(GN_SHAPE(4, 3)), INTS(d, 1, x)), GN_INDEX_OUT_OF_RANGE);
    FAULTS(gn_embedding(floats(GN_SHAPE(4, 0)), INTS(GN_I64, 4)), GN_INDEX_OUT_OF_RANGE);
}

/* Means of a table of four rows. */
#define BAGS(ids, lengths) gn_embedding_bag(floats(GN_SHAPE(4, 3)), ids, lengths, GN_BAG_MEAN)

TEST(embedding_bag_ids_and_lengths_outside_are_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(BAGS(INTS(d, 1, x, 0, 2), INTS(GN_I32, 1, 1)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(BAGS(INTS(GN_I32, 1, 2, 0), INTS(d, 1, x, 0)), GN_INDEX_OUT_OF_RANGE);
        }
    }
    FAULTS(BAGS(INTS(GN_I32, 1, 2, 0, 3), INTS(GN_I64, 2, -1, 2)), GN_INDEX_OUT_OF_RANGE); /* below 0 */
    FAULTS(BAGS(INTS(GN_I32, 1, 2, 0, 3), INTS(GN_I64, 2, 3)), GN_INDEX_OUT_OF_RANGE);     /* more than ids */
    FAULTS(BAGS(INTS(GN_I32, 1, 2, 0, 4), INTS(GN_I64, 2, 1)), GN_INDEX_OUT_OF_RANGE);     /* in no bag */
}

#define FROM(...)                                                                                               \
    gn_embedding_bag_offsets(floats(GN_SHAPE(4, 3)), INTS(GN_I32, 1, 2, 0), INTS(GN_I64, __VA_ARGS__), has_end, \
                             GN_BAG_SUM)

TEST(offsets_that_are_no_bags_are_index_out_of_range) {
    for (int k = 0; k < 2; k++) {
        bool has_end = k;
        FAULTS(FROM(1, 2), GN_INDEX_OUT_OF_RANGE);
        FAULTS(FROM(-1, 2), GN_INDEX_OUT_OF_RANGE);
        FAULTS(FROM(0, 2, 1), GN_INDEX_OUT_OF_RANGE);
        FAULTS(FROM(0, 4), GN_INDEX_OUT_OF_RANGE);
        FAULTS(FROM(0, INT64_MAX, INT64_MIN), GN_INDEX_OUT_OF_RANGE);
    }
    bool has_end = true;
    gn_tensor f = floats(GN_SHAPE(4, 3)), ids = ints(GN_I32, GN_SHAPE(2)), none = ints(GN_I64, GN_SHAPE(0));
    REFUSED(gn_embedding_bag_offsets(f, ids, none, has_end, GN_BAG_SUM), GN_BAD_SHAPE);
    REFUSED(gn_embedding_bag_offsets(f, ids, f, has_end, GN_BAG_SUM), GN_BAD_RANK);
    REFUSED(gn_embedding_bag_offsets(f, ids, floats(GN_SHAPE(2)), has_end, GN_BAG_SUM), GN_BAD_DTYPE);
    REFUSED(gn_embedding_bag_offsets(f, ids, ids, has_end, (gn_bag_mode)9), GN_BAD_ARGUMENT);
    REFUSED(gn_embedding_bag_offsets(ids, ids, ids, has_end, GN_BAG_SUM), GN_BAD_DTYPE);
}

TEST(indices_before_the_first_are_index_out_of_range) {
    static const gn_dtype dtypes[] = { GN_I32, GN_I64 };
    for (int k = 0; k < 2; k++) {
        gn_dtype d = dtypes[k];
        for (int64_t x = -5; x > -1000; x -= 331) {
            FAULTS(gn_gather(floats(GN_SHAPE(4)), 0, gn_from_end(INTS(d, 0, x), 4)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_embedding(floats(GN_SHAPE(4, 3)), gn_from_end(INTS(d, -1, x), 4)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_scatter(floats(GN_SHAPE(4)), 0, gn_from_end(INTS(d, 0, x), 4), floats(GN_SHAPE(2))),
                   GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_gather_nd(floats(GN_SHAPE(9, 4)), gn_from_end_nd(INTS(d, 0, x), GN_SHAPE(9, 4))),
                   GN_INDEX_OUT_OF_RANGE);
        }
    }
    FAULTS(gn_embedding(floats(GN_SHAPE(4, 3)), gn_from_end(INTS(GN_I64, INT64_MIN), 4)), GN_INDEX_OUT_OF_RANGE);
    gn_tensor f = floats(GN_SHAPE(2)), ids = ints(GN_I32, GN_SHAPE(2));
    REFUSED(gn_from_end(f, 4), GN_BAD_DTYPE);
    REFUSED(gn_from_end(ints(GN_U8, GN_SHAPE(2)), 4), GN_BAD_DTYPE);
    REFUSED(gn_from_end(ids, -1), GN_BAD_ARGUMENT);
    REFUSED(gn_from_end(ids, (int64_t)INT32_MAX + 1), GN_BAD_ARGUMENT);
    REFUSED(gn_from_end_nd(f, GN_SHAPE(4, 4)), GN_BAD_DTYPE);
    REFUSED(gn_from_end_nd(ids, GN_SHAPE(4)), GN_BAD_RANK);
    REFUSED(gn_from_end_nd(ids, GN_SHAPE(4, -1)), GN_BAD_ARGUMENT);
}

TEST(scatter_index_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(gn_scatter_add(floats(GN_SHAPE(4)), 0, INTS(d, 0, x), floats(GN_SHAPE(2))), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_scatter(floats(GN_SHAPE(4)), 0, INTS(d, 0, x), floats(GN_SHAPE(2))), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_scatter_max(floats(GN_SHAPE(4)), 0, INTS(d, 0, x), floats(GN_SHAPE(2))), GN_INDEX_OUT_OF_RANGE);
        }
    }
}

TEST(select_index_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(gn_index_select(floats(GN_SHAPE(3, 4)), 1, INTS(d, 0, x)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_gather_nd(floats(GN_SHAPE(4, 3)), gn_reshape(INTS(d, 0, 2, x, 0), GN_SHAPE(2, 2))),
                   GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_gather_nd(floats(GN_SHAPE(3, 4)), gn_reshape(INTS(d, 0, 2, 1, x), GN_SHAPE(2, 2))),
                   GN_INDEX_OUT_OF_RANGE);
        }
    }
    FAULTS(gn_gather_nd(gn_data(g, GN_F32, GN_SHAPE(0, 3), NULL), gn_reshape(INTS(GN_I64, 0, 0), GN_SHAPE(1, 2))),
           GN_INDEX_OUT_OF_RANGE);
}

TEST(nonzero_bound_too_small_is_index_out_of_range) {
    FAULTS(gn_nonzero(INTS(GN_I64, 1, 0, 2, 3), 2), GN_INDEX_OUT_OF_RANGE);
    FAULTS(gn_nonzero(INT0(GN_I32, 5), 0), GN_INDEX_OUT_OF_RANGE);
}

TEST(class_losses_with_a_target_outside_are_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(gn_nll_loss(floats(GN_SHAPE(2, 4)), INTS(d, 3, x)), GN_INDEX_OUT_OF_RANGE);
            FAULTS(gn_cross_entropy_smooth(floats(GN_SHAPE(2, 4)), INTS(d, 3, x), 0.1), GN_INDEX_OUT_OF_RANGE);
        }
    }
}

static void rotations_refuse_what_their_comments_exclude(void) {
    gn_tensor x = floats(GN_SHAPE(2, 4)), at = ints(GN_I32, GN_SHAPE(2)), table = floats(GN_SHAPE(2, 4));
    static const struct {
        gn_rotary_desc d;
        gn_result want;
    } bad[] = {
        { { .base = -1 }, GN_BAD_ARGUMENT },
        { { .base = NAN }, GN_BAD_ARGUMENT },
        { { .size = 3 }, GN_BAD_SHAPE },
        { { .size = -2 }, GN_BAD_SHAPE },
        { { .size = 6 }, GN_BAD_SHAPE },
        { { .size = INT64_MAX - 1 }, GN_BAD_SHAPE },
        { { .scaling = (gn_rotary_scaling)9, .factor = 2 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_LINEAR }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_LINEAR, .factor = INFINITY }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_NTK, .factor = 2, .size = 2 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_YARN, .factor = 2 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_YARN, .factor = 2, .context = 9, .base = 1 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_YARN, .factor = 2, .context = 9, .beta_slow = 40 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_YARN, .factor = 2, .context = 9, .magnitude = NAN }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_LLAMA3, .factor = 2, .context = -1 }, GN_BAD_ARGUMENT },
        { { .scaling = GN_ROTARY_LLAMA3, .factor = 2, .context = 9, .high_frequency = 1 }, GN_BAD_ARGUMENT },
    };
    for (int k = 0; k < TEST_COUNT(bad); k++) REFUSED(gn_rotary_with(x, at, &bad[k].d), bad[k].want);
    REFUSED(gn_rotary_table(at, GN_F16, NULL), GN_BAD_DTYPE);
    REFUSED(gn_rotary_table(x, GN_F32, NULL), GN_BAD_DTYPE);
    REFUSED(gn_rotary_table(ints(GN_I32, GN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), GN_F32, NULL), GN_BAD_RANK);
    REFUSED(gn_rotary_by(x, ints(GN_I32, GN_SHAPE(2, 4)), false), GN_BAD_DTYPE);
    REFUSED(gn_rotary_by(x, gn_cast(table, GN_F64), false), GN_BAD_DTYPE);
    REFUSED(gn_rotary_by(x, floats(GN_SHAPE(2, 3)), false), GN_BAD_SHAPE);
    REFUSED(gn_rotary_by(x, floats(GN_SHAPE(3, 4)), false), GN_BAD_SHAPE);
    REFUSED(gn_rotary_by(floats(GN_SHAPE(4)), table, false), GN_BAD_RANK);
}

TEST(composites_refuse_what_their_comments_exclude) {
    gn_tensor f = floats(GN_SHAPE(2, 3)), i = ints(GN_I64, GN_SHAPE(2, 3)), b = ints(GN_BOOL, GN_SHAPE(2, 3)),
              scalar = floats(GN_SCALAR), out[2];
    static const int64_t sizes[2] = { -1, 4 };
    REFUSED(gn_prelu(i, i), GN_BAD_DTYPE);
    REFUSED(gn_leaky_relu(i, 0.1), GN_BAD_DTYPE);
    REFUSED(gn_elu(b, 1), GN_BAD_DTYPE);
    REFUSED(gn_celu(f, NAN), GN_BAD_ARGUMENT);
    REFUSED(gn_variance(i, GN_ALL_AXES, 1, false), GN_BAD_DTYPE);
    REFUSED(gn_std(b, GN_ALL_AXES, 1, false), GN_BAD_DTYPE);
    REFUSED(gn_std(f, GN_AXES(2), 1, false), GN_BAD_RANK);
    REFUSED(gn_l2_norm(i, GN_ALL_AXES, false), GN_BAD_DTYPE);
    REFUSED(gn_logsumexp(i, GN_ALL_AXES, false), GN_BAD_DTYPE);
    REFUSED(gn_count_nonzero(f, GN_AXES(0, 0), false), GN_BAD_RANK);
    REFUSED(gn_cumsum(scalar, 0), GN_BAD_RANK);
    REFUSED(gn_sort(f, 2, false), GN_BAD_RANK);
    REFUSED(gn_normalize(i, 0, 1), GN_BAD_DTYPE);
    gn_tensor x = floats(GN_SHAPE(2, 6, 3)), three = floats(GN_SHAPE(3)), six = floats(GN_SHAPE(6));
    REFUSED(gn_batch_norm(x, six, three, GN_NONE, GN_NONE, 1), GN_BAD_SHAPE);
    REFUSED(gn_batch_norm(x, three, six, GN_NONE, GN_NONE, 1), GN_BAD_SHAPE);
    REFUSED(gn_batch_norm(x, six, six, three, GN_NONE, 1), GN_BAD_SHAPE);
    REFUSED(gn_batch_norm(x, six, gn_cast(six, GN_F64), GN_NONE, GN_NONE, 1), GN_BAD_DTYPE);
    REFUSED(gn_batch_norm_train(six, GN_NONE, GN_NONE, 1, NULL, NULL), GN_BAD_RANK);
    REFUSED(gn_group_norm(x, 4, GN_NONE, GN_NONE, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_group_norm(x, 0, GN_NONE, GN_NONE, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_group_norm(x, 2, GN_NONE, three, 1), GN_BAD_SHAPE);
    REFUSED(gn_instance_norm(x, three, GN_NONE, 1), GN_BAD_SHAPE);
    REFUSED(gn_local_response_norm(x, 0, 1, 1, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_rmsnorm(scalar, GN_NONE, 1), GN_BAD_RANK);
    REFUSED(gn_vecdot(f, floats(GN_SHAPE(3)), 2), GN_BAD_RANK);
    REFUSED(gn_vecdot(f, floats(GN_SHAPE(2)), 0), GN_BAD_SHAPE);
    REFUSED(gn_masked_fill(f, f, 0), GN_BAD_DTYPE);
    REFUSED(gn_masked_fill(f, ints(GN_BOOL, GN_SHAPE(2)), 0), GN_BAD_SHAPE);
    REFUSED(gn_index_select(f, 0, i), GN_BAD_RANK);
    REFUSED(gn_index_select(f, 0, floats(GN_SHAPE(2))), GN_BAD_DTYPE);
    REFUSED(gn_gather_nd(f, f), GN_BAD_RANK);
    REFUSED(gn_gather_nd(f, floats(GN_SHAPE(2, 2))), GN_BAD_DTYPE);
    REFUSED(gn_nonzero(f, INT64_MAX), GN_BAD_SHAPE);
    REFUSED(gn_rotary(f, f, 100, false), GN_BAD_DTYPE);
    REFUSED(gn_rotary(floats(GN_SHAPE(2, 4)), ints(GN_I64, GN_SHAPE(2)), 0, false), GN_BAD_ARGUMENT);
    REFUSED(gn_rotary(floats(GN_SHAPE(2, 4)), ints(GN_I64, GN_SHAPE(3)), 100, false), GN_BAD_SHAPE);
    REFUSED(gn_rotary(floats(GN_SHAPE(4)), ints(GN_I64, GN_SHAPE(4)), 100, false), GN_BAD_RANK);
    rotations_refuse_what_their_comments_exclude();
    REFUSED(gn_sample(f, NULL), GN_BAD_ARGUMENT);
    REFUSED(gn_sample(f, &(gn_sample_desc){ .seed = ints(GN_I64, GN_SCALAR) }), GN_BAD_ARGUMENT);
    REFUSED(gn_sample(i, NULL), GN_BAD_DTYPE);
    REFUSED(gn_adjust_logits(f, &(gn_sample_desc){ .presence = scalar }), GN_BAD_ARGUMENT);
    REFUSED(gn_adjust_logits(f, &(gn_sample_desc){ .bias = floats(GN_SHAPE(4, 2, 3)) }), GN_BAD_SHAPE);
    REFUSED((gn_top_log_probs(f, 4, &out[0], &out[1]), out[1]), GN_BAD_ARGUMENT);
    REFUSED(gn_nll_loss(f, ints(GN_I64, GN_SHAPE(3))), GN_BAD_SHAPE);
    REFUSED(gn_kl_loss(scalar, scalar), GN_BAD_RANK);
    REFUSED(gn_cross_entropy_smooth(f, ints(GN_I64, GN_SHAPE(2)), NAN), GN_BAD_ARGUMENT);
    REFUSED(gn_fma(b, b, b), GN_BAD_DTYPE);
    REFUSED(gn_shift_left(f, f), GN_BAD_DTYPE);
    REFUSED(gn_expand(f, GN_SHAPE(-1)), GN_BAD_SHAPE);
    REFUSED((gn_split(f, 1, sizes, 2, out), out[1]), GN_BAD_SHAPE);
    CHECK_STR(gn_last_error(g)->op, "split");
    REFUSED(gn_tile(f, GN_SHAPE(2)), GN_BAD_RANK);
    CHECK_STR(gn_last_error(g)->op, "tile");
    check_alive();
}

#define WITH(...) \
    &(gn_loss_desc) { __VA_ARGS__ }

TEST(losses_refuse_what_their_comments_exclude) {
    gn_tensor f = floats(GN_SHAPE(2, 3)), row = floats(GN_SHAPE(3)), two = floats(GN_SHAPE(2)),
              i = ints(GN_I64, GN_SHAPE(2, 3)), ids = ints(GN_I64, GN_SHAPE(2)), half = gn_cast(row, GN_F16),
              large = floats(GN_SHAPE(1, 2, 3));
    REFUSED(gn_mse_loss_with(f, f, WITH(.weights = two)), GN_BAD_SHAPE);
    REFUSED(gn_mse_loss_with(f, f, WITH(.weights = large)), GN_BAD_SHAPE);
    REFUSED(gn_mse_loss_with(f, two, NULL), GN_BAD_SHAPE);
    REFUSED(gn_l1_loss_with(f, row, WITH(.weights = half)), GN_BAD_DTYPE);
    REFUSED(gn_l1_loss_with(i, i, NULL), GN_BAD_DTYPE);
    REFUSED(gn_l1_loss_with(f, f, WITH(.reduction = (gn_reduction)3)), GN_BAD_ARGUMENT);
    REFUSED(gn_smooth_l1_loss_with(f, f, -1, NULL), GN_BAD_ARGUMENT);
    REFUSED(gn_smooth_l1_loss_with(f, f, 1, WITH(.positive = row)), GN_BAD_ARGUMENT);
    REFUSED(gn_huber_loss_with(f, f, 0, NULL), GN_BAD_ARGUMENT);
    REFUSED(gn_huber_loss_with(f, f, NAN, NULL), GN_BAD_ARGUMENT);
    REFUSED(gn_huber_loss_with(f, f, 1, WITH(.log_target = true)), GN_BAD_ARGUMENT);
    REFUSED(gn_bce_loss_with(f, row, NULL), GN_BAD_SHAPE);
    REFUSED(gn_bce_loss_with(f, f, WITH(.over_elements = true)), GN_BAD_ARGUMENT);
    REFUSED(gn_bce_logits_loss_with(f, f, WITH(.positive = two)), GN_BAD_SHAPE);
    REFUSED(gn_bce_logits_loss_with(f, f, WITH(.positive = i)), GN_BAD_DTYPE);
    REFUSED(gn_kl_loss_with(f, f, WITH(.positive = row)), GN_BAD_ARGUMENT);
    REFUSED(gn_kl_loss_with(f, two, NULL), GN_BAD_SHAPE);
    REFUSED(gn_nll_loss_with(f, i, NULL), GN_BAD_SHAPE);
    REFUSED(gn_nll_loss_with(f, two, NULL), GN_BAD_DTYPE);
    REFUSED(gn_nll_loss_with(f, ids, &(gn_cross_entropy_desc){ .smoothing = 0.5 }), GN_BAD_ARGUMENT);
    REFUSED(gn_nll_loss_with(f, ids, &(gn_cross_entropy_desc){ .weights = two }), GN_BAD_SHAPE);
    check_alive();
}

#define FOLD(a, size, pad) gn_col2im(a, size, GN_SHAPE(2, 2), GN_SHAPE(1, 1), pad, GN_SHAPE(1, 1))

TEST(folds_refuse_what_their_comments_exclude) {
    gn_tensor x = floats(GN_SHAPE(2, 8, 6)), none = floats(GN_SHAPE(2, 0, 1));
    gn_shape size = GN_SHAPE(3, 4), pad = GN_SHAPE(0, 0), one = GN_SHAPE(1), big = GN_SHAPE((int64_t)1 << 40);
    REFUSED(FOLD(floats(GN_SHAPE(8, 6)), size, pad), GN_BAD_RANK);
    REFUSED(FOLD(x, GN_SHAPE(3), pad), GN_BAD_RANK);
    REFUSED(FOLD(x, size, GN_SHAPE(0, 0, 0)), GN_BAD_RANK);
    REFUSED(FOLD(x, GN_SHAPE(3, -1), pad), GN_BAD_ARGUMENT);
    REFUSED(FOLD(x, size, GN_SHAPE(0, -1)), GN_BAD_ARGUMENT);
    REFUSED(FOLD(x, size, GN_SHAPE(0, 0, 0, -1)), GN_BAD_ARGUMENT);
    REFUSED(FOLD(x, size, GN_SHAPE(0, 1)), GN_BAD_SHAPE);
    REFUSED(FOLD(x, GN_SHAPE(1, 4), pad), GN_BAD_SHAPE);
    REFUSED(FOLD(floats(GN_SHAPE(2, 7, 6)), size, pad), GN_BAD_SHAPE);
    REFUSED(gn_col2im(x, one, GN_SHAPE(0), one, GN_SHAPE(0), one), GN_BAD_ARGUMENT);
    REFUSED(gn_col2im(x, one, one, GN_SHAPE(INT64_MAX), GN_SHAPE(0), one), GN_BAD_ARGUMENT);
    REFUSED(gn_col2im(none, big, big, one, GN_SHAPE(INT64_MAX), one), GN_BAD_ARGUMENT);
    REFUSED(gn_col2im(none, GN_SHAPE(1 << 30, 1 << 30), GN_SHAPE(1, 1), GN_SHAPE(1, 1), pad, GN_SHAPE(1, 1)),
            GN_BAD_SHAPE);
    check_alive();
}

TEST(products_of_bytes_refuse_what_their_comments_exclude) {
    gn_tensor a = ints(GN_U8, GN_SHAPE(2, 3)), b = ints(GN_I8, GN_SHAPE(3, 2)), two = ints(GN_I8, GN_SHAPE(2)),
              f = floats(GN_SHAPE(2, 3)), x = ints(GN_U8, GN_SHAPE(1, 2, 5)), w = ints(GN_I8, GN_SHAPE(3, 2, 2)),
              three = ints(GN_I8, GN_SHAPE(3)), one = ints(GN_U8, GN_SCALAR), line = ints(GN_U8, GN_SHAPE(2));
    REFUSED(gn_matmul_ints(f, b, GN_NONE, GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_matmul_ints(a, ints(GN_I32, GN_SHAPE(3, 2)), GN_NONE, GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_matmul_ints(a, b, two, GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_matmul_ints(a, b, GN_NONE, three), GN_BAD_SHAPE);
    REFUSED(gn_matmul_ints(a, b, GN_NONE, ints(GN_I8, GN_SHAPE(1, 3, 2))), GN_BAD_SHAPE);
    REFUSED(gn_matmul_ints(a, ints(GN_I8, GN_SHAPE(2, 2)), GN_NONE, GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(floats(GN_SHAPE(1, 2, 5)), w, GN_NONE, GN_NONE, NULL), GN_BAD_DTYPE);
    REFUSED(gn_conv_ints(x, w, two, GN_NONE, NULL), GN_BAD_DTYPE);
    REFUSED(gn_conv_ints(x, w, line, GN_NONE, NULL), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(x, w, one, two, NULL), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(x, w, one, three, &(gn_conv_desc){ .transposed = true }), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(x, w, one, three, &(gn_conv_desc){ .clamps = true }), GN_BAD_ARGUMENT);
    REFUSED(gn_conv_ints(x, w, one, three, &(gn_conv_desc){ .residual = x }), GN_BAD_ARGUMENT);
    REFUSED(gn_conv_ints(x, w, one, three, &(gn_conv_desc){ .groups = -1 }), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(x, ints(GN_I8, GN_SHAPE(3, 0, 2)), one, three, NULL), GN_BAD_SHAPE);
    REFUSED(gn_conv_ints(a, b, GN_NONE, GN_NONE, NULL), GN_BAD_RANK);
    REFUSED(gn_conv_ints(x, b, GN_NONE, GN_NONE, NULL), GN_BAD_RANK);
    check_alive();
}

TEST(grids_and_blocks_refuse_what_their_comments_exclude) {
    gn_tensor x = floats(GN_SHAPE(2, 6, 3)), image = floats(GN_SHAPE(1, 4, 2, 3)),
              places = floats(GN_SHAPE(1, 2, 2, 2)), waves = floats(GN_SHAPE(4, 2));
    REFUSED(gn_grid_sample(image, x, NULL), GN_BAD_RANK);
    REFUSED(gn_grid_sample(waves, waves, NULL), GN_BAD_RANK);
    REFUSED(gn_grid_sample(image, image, NULL), GN_BAD_SHAPE);
    REFUSED(gn_grid_sample(floats(GN_SHAPE(1, 4, 0, 3)), places, NULL), GN_BAD_SHAPE);
    REFUSED(gn_grid_sample(image, gn_cast(places, GN_F64), NULL), GN_BAD_DTYPE);
    REFUSED(gn_grid_sample(image, places, &(gn_grid_sample_desc){ .padding = (gn_grid_padding)3 }), GN_BAD_ARGUMENT);
    REFUSED(gn_affine_grid(x, GN_SHAPE(2), false), GN_BAD_RANK);
    REFUSED(gn_affine_grid(x, GN_SHAPE(2, 2), false), GN_BAD_SHAPE);
    REFUSED(gn_affine_grid(floats(GN_SHAPE(1, 2, 3)), GN_SHAPE(1 << 20, 1 << 20), false), GN_BAD_SHAPE);
    REFUSED(gn_depth_to_space(x, 2, false), GN_BAD_RANK);
    REFUSED(gn_depth_to_space(image, 3, false), GN_BAD_SHAPE);
    REFUSED(gn_depth_to_space(image, 0, false), GN_BAD_SHAPE);
    REFUSED(gn_depth_to_space(image, INT64_MIN, false), GN_BAD_SHAPE);
    REFUSED(gn_space_to_depth(image, 2, false), GN_BAD_SHAPE);
    check_alive();
}

TEST(matrices_and_regions_refuse_what_their_comments_exclude) {
    gn_tensor f = floats(GN_SHAPE(2, 3)), square = floats(GN_SHAPE(3, 3)), three = floats(GN_SHAPE(3)),
              wide = gn_full(f.ctx, GN_F32, GN_SHAPE(1025, 1025), 0), image = floats(GN_SHAPE(1, 4, 2, 3)),
              one = ints(GN_I64, GN_SHAPE(1)), grid = ints(GN_I32, GN_SHAPE(2, 3)), boxes = floats(GN_SHAPE(1, 5, 4)),
              scores = floats(GN_SHAPE(1, 2, 5)), rois = floats(GN_SHAPE(1, 4)), taps = floats(GN_SHAPE(4, 4, 1, 1)),
              none = GN_NONE;
    REFUSED(gn_det(three), GN_BAD_RANK);
    REFUSED(gn_det(f), GN_BAD_SHAPE);
    REFUSED(gn_det(wide), GN_BAD_SHAPE);
    REFUSED(gn_det(grid), GN_BAD_DTYPE);
    REFUSED(gn_inverse(f), GN_BAD_SHAPE);
    REFUSED(gn_cholesky(f), GN_BAD_SHAPE);
    REFUSED(gn_solve(square, three), GN_BAD_RANK);
    REFUSED(gn_solve(square, f), GN_BAD_SHAPE);
    REFUSED(gn_solve(square, gn_cast(square, GN_F64)), GN_BAD_DTYPE);
    REFUSED(gn_solve(floats(GN_SHAPE(2, 3, 3)), floats(GN_SHAPE(3, 3, 1))), GN_BAD_SHAPE);
    REFUSED(gn_solve_triangular(square, f, true, false), GN_BAD_SHAPE);
    REFUSED(gn_unique(floats(GN_SHAPE(0)), 1, NULL, NULL, NULL, NULL), GN_BAD_SHAPE);
    REFUSED(gn_unique(f, -1, NULL, NULL, NULL, NULL), GN_BAD_ARGUMENT);
    REFUSED(gn_connected_components(grid, 0, false), GN_BAD_ARGUMENT);
    REFUSED(gn_connected_components(grid, 3, false), GN_BAD_RANK);
    REFUSED(gn_connected_components(f, 1, false), GN_BAD_DTYPE);
    REFUSED(gn_non_max_suppression(f, scores, 1, 0, 0, false), GN_BAD_RANK);
    REFUSED(gn_non_max_suppression(boxes, floats(GN_SHAPE(1, 2, 4)), 1, 0, 0, false), GN_BAD_SHAPE);
    REFUSED(gn_non_max_suppression(boxes, scores, -1, 0, 0, false), GN_BAD_SHAPE);
    REFUSED(gn_non_max_suppression(boxes, scores, INT64_MAX, 0, 0, false), GN_BAD_SHAPE);
    REFUSED(gn_roi_align(image, rois, f, NULL), GN_BAD_RANK);
    REFUSED(gn_roi_align(image, rois, three, NULL), GN_BAD_DTYPE);
    REFUSED(gn_roi_align(image, floats(GN_SHAPE(2, 4)), one, NULL), GN_BAD_SHAPE);
    REFUSED(gn_roi_align(image, rois, one, &(gn_roi_align_desc){ .samples = 65 }), GN_BAD_ARGUMENT);
    REFUSED(gn_roi_align(image, rois, one, &(gn_roi_align_desc){ .samples = -1 }), GN_BAD_ARGUMENT);
    REFUSED(gn_roi_align(image, rois, one, &(gn_roi_align_desc){ .samples = 1025, .adaptive = true }), GN_BAD_ARGUMENT);
    REFUSED(gn_roi_align(gn_full(f.ctx, GN_F32, GN_SHAPE(1, 1, 1, 1025), 0), rois, one,
                         &(gn_roi_align_desc){ .adaptive = true }),
            GN_BAD_ARGUMENT);
    REFUSED(gn_deform_conv(image, taps, f, none, none, NULL), GN_BAD_RANK);
    REFUSED(gn_deform_conv(image, taps, floats(GN_SHAPE(1, 3, 2, 3)), none, none, NULL), GN_BAD_SHAPE);
    REFUSED(gn_deform_conv(image, taps, image, none, none, &(gn_conv_desc){ .transposed = true }), GN_BAD_ARGUMENT);
    check_alive();
}

TEST(transforms_and_counts_refuse_what_their_comments_exclude) {
    gn_tensor f = floats(GN_SHAPE(2, 3)), i = ints(GN_I64, GN_SHAPE(2, 3)), scalar = floats(GN_SCALAR),
              three = floats(GN_SHAPE(3)), six = floats(GN_SHAPE(6)), image = floats(GN_SHAPE(1, 4, 2, 3)),
              waves = floats(GN_SHAPE(4, 2));
    REFUSED(gn_fft(f, 0, 0, false), GN_BAD_SHAPE);
    REFUSED(gn_fft(waves, 1, 0, false), GN_BAD_RANK);
    REFUSED(gn_fft(scalar, 0, 0, false), GN_BAD_RANK);
    REFUSED(gn_fft(waves, 0, -1, false), GN_BAD_ARGUMENT);
    REFUSED(gn_fft(waves, 0, INT64_MAX, false), GN_BAD_ARGUMENT);
    REFUSED(gn_fft(gn_cast(waves, GN_BF16), 0, 0, false), GN_BAD_DTYPE);
    REFUSED(gn_fft(floats(GN_SHAPE(0, 2)), 0, 4, false), GN_BAD_SHAPE);
    REFUSED(gn_rfft(waves, 2, 0), GN_BAD_RANK);
    REFUSED(gn_rfft(i, 0, 0), GN_BAD_DTYPE);
    REFUSED(gn_irfft(waves, 0, (1 << 22) + 1), GN_BAD_ARGUMENT);
    REFUSED(gn_stft(six, 7, 1, GN_NONE, false), GN_BAD_ARGUMENT);
    REFUSED(gn_stft(six, 4, 0, GN_NONE, false), GN_BAD_ARGUMENT);
    REFUSED(gn_stft(three, 6, 1, GN_NONE, true), GN_BAD_ARGUMENT);
    REFUSED(gn_stft(six, 4, 1, three, false), GN_BAD_SHAPE);
    REFUSED(gn_window(f.ctx, GN_F32, (gn_window_kind)9, 4, true), GN_BAD_ARGUMENT);
    REFUSED(gn_window(f.ctx, GN_I32, GN_WINDOW_HANN, 4, true), GN_BAD_DTYPE);
    REFUSED(gn_window(f.ctx, GN_F32, GN_WINDOW_HANN, 0, true), GN_BAD_ARGUMENT);
    REFUSED(gn_mel_filters(f.ctx, GN_F32, 0, 16, 8000, 0, 4000), GN_BAD_ARGUMENT);
    REFUSED(gn_mel_filters(f.ctx, GN_F32, 4, 16, NAN, 0, 4000), GN_BAD_ARGUMENT);
    REFUSED(gn_mel_filters(f.ctx, (gn_dtype)77, 4, 16, 8000, 0, 4000), GN_BAD_DTYPE);
    REFUSED(gn_bincount(f, 4, GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_bincount(i, 0, GN_NONE), GN_BAD_ARGUMENT);
    REFUSED(gn_bincount(i, 4, image), GN_BAD_SHAPE);
    REFUSED(gn_histogram(i, 4, 0, 1), GN_BAD_DTYPE);
    REFUSED(gn_histogram(f, 4, 1, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_histogram(f, 4, -INFINITY, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_searchsorted(f, f, false), GN_BAD_RANK);
    REFUSED(gn_searchsorted(three, i, false), GN_BAD_DTYPE);
    gn_tensor pair = ints(GN_I64, GN_SHAPE(2));
    REFUSED(gn_cross_entropy_with(f, i, NULL), GN_BAD_SHAPE);
    REFUSED(gn_cross_entropy_with(scalar, scalar, NULL), GN_BAD_SHAPE);
    REFUSED(gn_cross_entropy_with(f, floats(GN_SHAPE(2)), NULL), GN_BAD_DTYPE);
    REFUSED(gn_cross_entropy_with(f, pair, &(gn_cross_entropy_desc){ .smoothing = 2 }), GN_BAD_ARGUMENT);
    REFUSED(gn_cross_entropy_with(f, pair, &(gn_cross_entropy_desc){ .weights = six }), GN_BAD_SHAPE);
    REFUSED(gn_cross_entropy_with(f, pair, &(gn_cross_entropy_desc){ .weights = i }), GN_BAD_DTYPE);
    REFUSED(gn_scatter_min(f, 0, i, i), GN_BAD_DTYPE);
    REFUSED(gn_scatter_mul(f, 0, i, i), GN_BAD_DTYPE);
    REFUSED(gn_scatter_mul(f, 0, i, gn_cast(gn_cast(i, GN_F32), GN_F16)), GN_BAD_DTYPE);
    REFUSED(gn_scatter_mul(f, 0, i, floats(GN_SHAPE(1, 3))), GN_BAD_SHAPE);
    REFUSED(gn_scatter_mul(f, 7, i, i), GN_BAD_RANK);
    REFUSED(gn_layernorm_over(floats(GN_SHAPE(2, 6, 3)), 1, three, GN_NONE, 1, NULL, NULL), GN_BAD_SHAPE);
    REFUSED(gn_layernorm_over(three, 3, GN_NONE, GN_NONE, 1, NULL, NULL), GN_BAD_RANK);
    REFUSED(gn_layernorm_over(i, 0, GN_NONE, GN_NONE, 1, NULL, NULL), GN_BAD_DTYPE);
    check_alive();
}

TEST(one_hot_class_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++)
        if (next_outside(k, &d, &x)) FAULTS(gn_one_hot(INTS(d, 3, x), 4, GN_F32), GN_INDEX_OUT_OF_RANGE);
}

TEST(cross_entropy_target_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++)
        if (next_outside(k, &d, &x))
            FAULTS(gn_cross_entropy(floats(GN_SHAPE(2, 4)), INTS(d, 3, x)), GN_INDEX_OUT_OF_RANGE);
}

/* Its gradient selects by the targets too. */
TEST(cross_entropy_gradient_with_a_target_outside_is_index_out_of_range) {
    gn_tensor logits = floats(GN_SHAPE(2, 4)), grad;
    float out[8];
    CHECK_RESULT(gn_grad(gn_cross_entropy(logits, INTS(GN_I64, 3, 4)), &logits, 1, &grad), GN_OK);
    CHECK_RESULT(gn_read(grad, out, sizeof out), GN_INDEX_OUT_OF_RANGE);
    gn_step(g);
    check_alive();
}

TEST(kv_append_position_outside_is_index_out_of_range) {
    gn_dtype d;
    int64_t x;
    for (int k = 0; k < OUTSIDE; k++) {
        if (next_outside(k, &d, &x)) {
            FAULTS(gn_kv_append(floats(GN_SHAPE(1, 2, 4, 2)), floats(GN_SHAPE(1, 2, 1, 2)), INT0(d, x)),
                   GN_INDEX_OUT_OF_RANGE);
        }
    }
    FAULTS(gn_kv_append(floats(GN_SHAPE(1, 2, 4, 2)), floats(GN_SHAPE(1, 2, 3, 2)), INT0(GN_I64, 2)),
           GN_INDEX_OUT_OF_RANGE);
}

static gn_quantized quantized(gn_quant format, gn_shape data, gn_shape scales) {
    gn_quantized w = { .format = format, .data = ints(GN_U8, data) };
    if (scales.rank) w.scales = floats(scales);
    return w;
}

TEST(quantised_weights_that_do_not_fit_are_refused) {
    gn_tensor x = floats(GN_SHAPE(1, 32));
    gn_quantized fits = quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SHAPE(2, 4)), w = fits;
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SHAPE(2, 5)), GN_NONE), GN_BAD_SHAPE);
    CHECK(strstr(gn_last_error(g)->text, "5 scales a row do not divide its 32 elements"));
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_Q8_0, GN_SHAPE(1, 33), GN_SCALAR), GN_NONE), GN_BAD_SHAPE);
    CHECK(strstr(gn_last_error(g)->text, "33 bytes is not a whole number of blocks of q8_0, 34 bytes for 32 elements"));
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_INT4, GN_SHAPE(2, 8), GN_SHAPE(2, 1)), GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_INT4, GN_SHAPE(2, 3), GN_SHAPE(2, 2)), GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SHAPE(1, 4)), GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SCALAR), GN_NONE), GN_BAD_ARGUMENT);
    REFUSED(gn_linear_quantized(x, quantized(GN_QUANT_Q8_0, GN_SHAPE(1, 34), GN_SHAPE(1, 1)), GN_NONE),
            GN_BAD_ARGUMENT);
    REFUSED(gn_linear_quantized(x, quantized((gn_quant)5, GN_SHAPE(1, 34), GN_SCALAR), GN_NONE), GN_BAD_ARGUMENT);
    REFUSED(gn_linear_quantized(gn_cast(x, GN_F64), fits, GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_linear_quantized(x, fits, floats(GN_SHAPE(3))), GN_BAD_SHAPE);
    w.data = gn_cast(w.data, GN_I32);
    REFUSED(gn_linear_quantized(x, w, GN_NONE), GN_BAD_DTYPE);
    w = fits;
    w.rows = 3;
    REFUSED(gn_dequantize(w, GN_F32), GN_BAD_SHAPE);
    REFUSED(gn_dequantize(quantized(GN_QUANT_FP8_E4M3, GN_SHAPE(5, 4), GN_SHAPE(2, 1)), GN_F32), GN_BAD_SHAPE);
    REFUSED(gn_dequantize(fits, GN_F64), GN_BAD_DTYPE);
    REFUSED(gn_quantize(x, &(gn_quantize_desc){ .format = GN_QUANT_Q4_K }).data, GN_UNSUPPORTED);
    REFUSED(gn_quantize(x, &(gn_quantize_desc){ .format = GN_QUANT_INT8, .group = 5 }).data, GN_BAD_SHAPE);
    REFUSED(gn_embedding_quantized(fits, floats(GN_SHAPE(1)), GN_F32), GN_BAD_DTYPE);
    static const int64_t none[] = { -1, 2, INT64_MAX, INT64_MIN };
    for (int k = 0; k < TEST_COUNT(none); k++) {
        FAULTS(gn_embedding_quantized(quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SHAPE(2, 4)), INT0(GN_I64, none[k]),
                                      GN_F32),
               GN_INDEX_OUT_OF_RANGE);
    }
    fits = quantized(GN_QUANT_INT8, GN_SHAPE(2, 32), GN_SHAPE(2, 4));
    x = floats(GN_SHAPE(1, 32));
    gn_tensor grad, loss = gn_sum(gn_linear_quantized(x, fits, GN_NONE), GN_ALL_AXES, false);
    CHECK_RESULT(gn_grad(loss, &fits.data, 1, &grad), GN_NO_GRADIENT);
    CHECK(strstr(gn_last_error(g)->text, "is u8: only floats have gradients"));
}

TEST(convolutions_that_make_no_sense_are_refused) {
    gn_tensor x = floats(GN_SHAPE(2, 4, 5)), w = floats(GN_SHAPE(6, 4, 3));
    static const struct {
        gn_conv_desc d;
        gn_result want;
    } bad[] = {
        { { .stride = { -1 } }, GN_BAD_ARGUMENT },
        { { .dilation = { INT64_MAX } }, GN_BAD_ARGUMENT },
        { { .before = { INT64_MIN } }, GN_BAD_ARGUMENT },
        { { .after = { INT64_MAX } }, GN_BAD_ARGUMENT },
        { { .extra = { 1 } }, GN_BAD_ARGUMENT },
        { { .extra = { INT64_MAX }, .transposed = true }, GN_BAD_ARGUMENT },
        { { .clamps = true, .least = 1, .most = -1 }, GN_BAD_ARGUMENT },
        { { .clamps = true, .least = NAN, .most = 1 }, GN_BAD_ARGUMENT },
        { { .dilation = { 3 } }, GN_BAD_SHAPE },
        { { .before = { -3 } }, GN_BAD_SHAPE },
        { { .groups = 2 }, GN_BAD_SHAPE },
        { { .groups = -1 }, GN_BAD_SHAPE },
        { { .groups = INT64_MAX }, GN_BAD_SHAPE },
        { { .transposed = true }, GN_BAD_SHAPE },
    };
    for (int k = 0; k < TEST_COUNT(bad); k++) REFUSED(gn_conv(x, w, GN_NONE, &bad[k].d), bad[k].want);
    REFUSED(gn_conv(x, w, floats(GN_SHAPE(4)), NULL), GN_BAD_SHAPE);
    REFUSED(gn_conv(x, w, gn_cast(floats(GN_SHAPE(6)), GN_F16), NULL), GN_BAD_DTYPE);
    REFUSED(gn_conv(x, w, GN_NONE, &(gn_conv_desc){ .residual = floats(GN_SHAPE(2, 6, 5)) }), GN_BAD_SHAPE);
    REFUSED(gn_conv(x, floats(GN_SHAPE(6, 4, 0)), GN_NONE, NULL), GN_BAD_SHAPE);
    REFUSED(gn_conv(x, floats(GN_SHAPE(6, 4)), GN_NONE, NULL), GN_BAD_RANK);
    REFUSED(gn_conv(floats(GN_SHAPE(2, 4)), floats(GN_SHAPE(6, 4)), GN_NONE, NULL), GN_BAD_RANK);
    REFUSED(gn_conv(ints(GN_I32, GN_SHAPE(2, 4, 5)), ints(GN_I32, GN_SHAPE(6, 4, 3)), GN_NONE, NULL), GN_BAD_DTYPE);
    gn_tensor in[2] = { x, w };
    static const int64_t attrs[] = { 2, 1, 0, 0, 1, 1, 0, 0, 9 }; /* a bias that is not there; one number too many */
    REFUSED(gn_apply(g, 0x78, in, 2, attrs, 8), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x78, in, 2, attrs + 1, 8), GN_BAD_SHAPE);
    REFUSED(gn_apply(g, 0x78, in, 2, attrs, 9), GN_BAD_ARGUMENT);
}

TEST(pools_that_make_no_sense_are_refused) {
    gn_tensor x = floats(GN_SHAPE(2, 4, 5));
    static const struct {
        gn_pool_desc d;
        gn_result want;
    } bad[] = {
        { { .kernel = { 0 } }, GN_BAD_ARGUMENT },
        { { .kernel = { INT64_MAX } }, GN_BAD_ARGUMENT },
        { { .kernel = { 2 }, .stride = { -1 } }, GN_BAD_ARGUMENT },
        { { .kernel = { 2 }, .dilation = { INT64_MIN } }, GN_BAD_ARGUMENT },
        { { .kernel = { 2 }, .before = { 2 } }, GN_BAD_ARGUMENT },
        { { .kernel = { 2 }, .after = { -1 } }, GN_BAD_ARGUMENT },
        { { .kernel = { 2 }, .kind = (gn_pool_kind)4 }, GN_BAD_ARGUMENT },
        { { .kernel = { 6 } }, GN_BAD_SHAPE },
    };
    for (int k = 0; k < TEST_COUNT(bad); k++) REFUSED(gn_pool(x, &bad[k].d), bad[k].want);
    gn_pool_desc one = { .kernel = { 1 } };
    REFUSED(gn_pool(floats(GN_SHAPE(2, 4)), &one), GN_BAD_RANK);
    REFUSED(gn_pool(floats(GN_SHAPE(2, 4, 0)), &one), GN_BAD_SHAPE);
    REFUSED(gn_pool(ints(GN_I32, GN_SHAPE(2, 4, 5)), &one), GN_BAD_DTYPE);
    static const int64_t attrs[] = { 0, 8, 1, 1, 1, 0, 0, 0 }; /* a bit that is none; one number too many */
    REFUSED(gn_apply(g, 0x79, &x, 1, attrs, 7), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x79, &x, 1, attrs, 8), GN_BAD_ARGUMENT);
}

TEST(recurrent_layers_that_do_not_fit_are_refused) {
    gn_tensor x = gn_full(g, GN_F32, GN_SHAPE(3, 2, 4), 1), w = gn_full(g, GN_F32, GN_SHAPE(1, 20, 4), 1),
              r = gn_full(g, GN_F32, GN_SHAPE(1, 20, 5), 1), odd = gn_full(g, GN_F32, GN_SHAPE(1, 2, 4), 1);
    const struct {
        gn_recurrent_desc d;
        gn_result want;
    } bad[] = {
        { { .cell = (gn_cell)3 }, GN_BAD_ARGUMENT },
        { { .cell = (gn_cell)-1 }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_RNN }, GN_BAD_SHAPE }, /* w has four gates */
        { { .cell = GN_CELL_GRU }, GN_BAD_SHAPE },
        { { .cell = GN_CELL_LSTM, .clip = -1 }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_LSTM, .clip = NAN }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_LSTM, .reset_first = true }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_GRU, .coupled = true }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_RNN, .c0 = odd }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_LSTM, .h0 = odd }, GN_BAD_SHAPE },
        { { .cell = GN_CELL_LSTM, .c0 = x }, GN_BAD_SHAPE },
        { { .cell = GN_CELL_LSTM, .bias = odd }, GN_BAD_SHAPE },
        { { .cell = GN_CELL_LSTM, .recurrent_bias = odd }, GN_BAD_RANK },
        { { .cell = GN_CELL_LSTM, .lengths = odd }, GN_BAD_DTYPE },
        { { .cell = GN_CELL_LSTM, .lengths = gn_full(g, GN_I64, GN_SHAPE(3), 1) }, GN_BAD_SHAPE },
        { { .cell = GN_CELL_LSTM, .peepholes = odd }, GN_BAD_RANK },
        { { .cell = GN_CELL_LSTM, .act = { { { .kind = (gn_activation_kind)12 } } } }, GN_BAD_ARGUMENT },
        { { .cell = GN_CELL_LSTM, .act = { { { GN_ACTIVATION_AFFINE, NAN, 0 } } } }, GN_BAD_ARGUMENT },
    };
    for (int k = 0; k < TEST_COUNT(bad); k++) REFUSED(gn_recurrent(x, w, r, &bad[k].d), bad[k].want);
    gn_recurrent_desc d = { .cell = GN_CELL_LSTM };
    REFUSED(gn_recurrent(x, w, x, &d), GN_BAD_SHAPE);
    REFUSED(gn_recurrent(x, r, r, &d), GN_BAD_SHAPE);
    REFUSED(gn_recurrent(gn_full(g, GN_F32, GN_SHAPE(0, 2, 4), 1), w, r, &d), GN_BAD_SHAPE);
    REFUSED(gn_recurrent(gn_full(g, GN_F64, GN_SHAPE(3, 2, 4), 1), w, r, &d), GN_BAD_DTYPE);
    REFUSED(gn_recurrent(x, gn_full(g, GN_F32, GN_SHAPE(3, 20, 4), 1), r, &d), GN_BAD_SHAPE);
    gn_tensor in[5] = { gn_full(g, GN_F32, GN_SHAPE(1, 3, 2, 5), 1), gn_full(g, GN_F32, GN_SHAPE(1, 5, 5), 1), x, x,
                        x };
    static const int64_t attrs[] = { 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0 };
    REFUSED(gn_apply(g, 0x6c, in, 2, attrs, 13), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x6c, in, 2, attrs, 3), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x6c, in, 2, attrs + 1, 12), GN_BAD_ARGUMENT); /* an activation of number 0 */
    REFUSED(gn_apply(g, 0x6c, in, 3, attrs, 12), GN_BAD_ARGUMENT);     /* a bias that no bit tells of */
    REFUSED(gn_apply(g, 0x6c, in + 1, 2, attrs, 12), GN_BAD_RANK);
    REFUSED(gn_apply(g, 0x6d, in, 5, attrs, 12), GN_BAD_SHAPE);
}

TEST(length_beyond_the_steps_is_told_at_the_read) {
    static const int64_t lengths[2] = { 2, 4 };
    gn_ctx *c = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_tensor y = gn_recurrent(gn_full(c, GN_F32, GN_SHAPE(3, 2, 4), 1), gn_full(c, GN_F32, GN_SHAPE(1, 5, 4), 1),
                               gn_full(c, GN_F32, GN_SHAPE(1, 5, 5), 1),
                               &(gn_recurrent_desc){ .lengths = gn_data(c, GN_I64, GN_SHAPE(2), lengths) });
    CHECK_RESULT(gn_realize(&y, 1), GN_INDEX_OUT_OF_RANGE);
    CHECK(strstr(gn_last_error(c)->text, "length 4 of row 1 is outside 0 to 3") != NULL);
    gn_close(c);
}

TEST(interpolations_that_make_no_sense_are_refused) {
    gn_tensor x = floats(GN_SHAPE(2, 4, 5));
    static const struct {
        gn_interpolate_desc d;
        gn_axes axes;
        int64_t size;
        gn_result want;
    } bad[] = {
        { { .kind = (gn_interpolate_kind)3 }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .kind = (gn_interpolate_kind)-1 }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .rounding = (gn_interpolate_rounding)4 }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .places = (gn_interpolate_places)4 }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .stretch = { 0.5 } }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .stretch = { NAN } }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .sets_cubic = true, .cubic = INFINITY }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .places = GN_INTERPOLATE_MAPPED }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT }, /* over 0 */
        { { .places = GN_INTERPOLATE_MAPPED, .map = { { 1, 3e9, 1, 0 } } }, { 1, { 2 } }, 2, GN_BAD_ARGUMENT },
        { { .kind = GN_INTERPOLATE_LINEAR }, { 1, { 3 } }, 2, GN_BAD_RANK },
        { { .kind = GN_INTERPOLATE_LINEAR }, { 1, { 2 } }, -1, GN_BAD_SHAPE },
        { { .kind = GN_INTERPOLATE_LINEAR }, { 1, { 2 } }, INT64_MAX, GN_BAD_SHAPE },
        { { .kind = GN_INTERPOLATE_LINEAR }, { 0, { 2 } }, 2, GN_BAD_ARGUMENT },
    };
    for (int k = 0; k < TEST_COUNT(bad); k++)
        REFUSED(gn_interpolate(x, bad[k].axes, GN_SHAPE(bad[k].size), &bad[k].d), bad[k].want);
    REFUSED(gn_interpolate(x, GN_AXES(2, 1), GN_SHAPE(2, 2), NULL), GN_BAD_RANK);
    REFUSED(gn_interpolate(x, GN_AXES(1, 1), GN_SHAPE(2, 2), NULL), GN_BAD_RANK);
    REFUSED(gn_interpolate(floats(GN_SHAPE(2, 0)), GN_AXES(1), GN_SHAPE(2), NULL), GN_BAD_SHAPE);
    static const int64_t attrs[] = { 0, 8, 0, 0, 1, 0, 0, 0, 0, 0 }; /* a bit that is none; one number too few */
    REFUSED(gn_apply(g, 0x7a, &x, 1, attrs, 10), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x7a, &x, 1, attrs, 9), GN_BAD_ARGUMENT);
    REFUSED(gn_apply(g, 0x7a, &x, 1, attrs, 3), GN_BAD_ARGUMENT);
}

TEST(experts_that_are_not_there_are_index_out_of_range) {
    gn_tensor x = floats(GN_SHAPE(2, 3)), w = floats(GN_SHAPE(4, 3, 5));
    REFUSED(gn_expert_linear(x, w, ints(GN_I64, GN_SHAPE(3)), GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_expert_linear(x, w, ints(GN_I64, GN_SHAPE(2)), floats(GN_SHAPE(5))), GN_BAD_SHAPE);
    REFUSED(gn_expert_linear(x, floats(GN_SHAPE(4, 2, 5)), ints(GN_I64, GN_SHAPE(2)), GN_NONE), GN_BAD_SHAPE);
    REFUSED(gn_expert_linear(x, floats(GN_SHAPE(3, 5)), ints(GN_I64, GN_SHAPE(2)), GN_NONE), GN_BAD_RANK);
    REFUSED(gn_expert_linear(x, w, ints(GN_I64, GN_SCALAR), GN_NONE), GN_BAD_RANK);
    REFUSED(gn_expert_linear(x, w, floats(GN_SHAPE(2)), GN_NONE), GN_BAD_DTYPE);
    REFUSED(gn_expert_linear(x, gn_cast(w, GN_F16), ints(GN_I64, GN_SHAPE(2)), GN_NONE), GN_BAD_DTYPE);
    static const int64_t none[] = { -2, 4, INT64_MAX, INT64_MIN };
    for (int k = 0; k < TEST_COUNT(none); k++) {
        FAULTS(gn_expert_linear(floats(GN_SHAPE(3)), floats(GN_SHAPE(4, 3, 5)),
                                gn_reshape(INT0(GN_I64, none[k]), GN_SHAPE(1)), GN_NONE),
               GN_INDEX_OUT_OF_RANGE);
    }
}

TEST(attention_length_outside_is_index_out_of_range) {
    gn_tensor q = GN_NONE;
    static const int64_t lengths[] = { -1, 5, 1000, INT64_MAX, INT64_MIN };
    for (int k = 0; k < TEST_COUNT(lengths); k++) {
        q = floats(GN_SHAPE(1, 1, 2, 3));
        gn_tensor kv = floats(GN_SHAPE(1, 1, 4, 3));
        FAULTS(gn_attention(q, kv, kv, &(gn_attention_desc){ .length = INT0(GN_I64, lengths[k]) }),
               GN_INDEX_OUT_OF_RANGE);
    }
    q = floats(GN_SHAPE(1, 1, 2, 3));
    gn_tensor kv = floats(GN_SHAPE(1, 1, 4, 3));
    FAULTS(gn_attention(q, kv, kv, &(gn_attention_desc){ .causal = true, .length = INT0(GN_I64, 1) }),
           GN_INDEX_OUT_OF_RANGE);
    q = floats(GN_SHAPE(1, 1, 2, 3));
    kv = floats(GN_SHAPE(1, 1, 4, 3));
    FAULTS(gn_attention(q, kv, kv,
                        &(gn_attention_desc){
                            .causal = true, .length = INT0(GN_I64, 5), .window = 1, .sinks = floats(GN_SHAPE(1)) }),
           GN_INDEX_OUT_OF_RANGE);
}

/* ---- states and a step that fails ---- */

TEST(a_failed_step_leaves_every_state_as_it_was) {
    static const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    float cached[8];
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), ones, "cache");
    for (int64_t pos = 0; pos <= 4; pos += 2) { /* the last does not fit */
        gn_tensor rows = gn_data(g, GN_F32, GN_SHAPE(1, 1, 2, 2), ones);
        gn_assign(kept, gn_mul_c(kept, pos == 4 ? 2 : 1));
        gn_kv_append(cache, gn_mul_c(rows, 5), gn_scalar(g, GN_I64, (double)pos));
        CHECK_RESULT(gn_sync(g), GN_OK);
        gn_result r = gn_step(g), later = gn_sync(g);
        CHECK(r == GN_OK || pos == 4);
        CHECK_RESULT(pos == 4 && r == GN_OK ? later : r, pos == 4 ? GN_INDEX_OUT_OF_RANGE : GN_OK);
    }
    CHECK_RESULT(gn_read(cache, cached, sizeof cached), GN_OK);
    for (int i = 0; i < 8; i++) CHECK_NEAR((double)cached[i], 5, 0);
    check_alive();
}

/* The append comes first and could be done in place; the fault comes after it. */
TEST(a_fault_after_an_append_in_place_leaves_the_cache_as_it_was) {
    static const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    float out[8];
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), ones, "cache");
    for (int step = 0; step < 2; step++) {
        gn_tensor rows = gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(1, 1, 2, 2), ones), 5);
        gn_tensor next = gn_kv_append(cache, rows, gn_scalar(g, GN_I64, 1));
        gn_tensor picked = gn_gather(gn_reshape(next, GN_SHAPE(8)), 0, INTS(GN_I64, 0, 8 - step));
        CHECK_RESULT(gn_read(picked, out, 8), step ? GN_OK : GN_INDEX_OUT_OF_RANGE);
        gn_step(g);
        CHECK_RESULT(gn_read(cache, out, sizeof out), GN_OK);
        for (int i = 0; i < 8; i++) CHECK_NEAR((double)out[i], step && i >= 2 && i < 6 ? 5 : 1, 0);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    check_alive();
}

TEST(a_fault_in_one_result_of_many_fails_the_read_and_writes_no_state) {
    gn_tensor good = gn_neg(floats(GN_SHAPE(4))), bad = gn_one_hot(INTS(GN_I64, 7), 4, GN_F32), t[2] = { good, bad };
    float out[8];
    void *const hosts[2] = { out, out + 4 };
    const size_t bytes[2] = { 16, 16 };
    gn_assign(kept, gn_mul_c(kept, 3));
    CHECK_RESULT(gn_read_many(t, 2, hosts, bytes), GN_INDEX_OUT_OF_RANGE);
    gn_step(g);
    check_alive();
}

TEST(a_failed_assignment_is_reported_by_the_step_and_writes_nothing) {
    gn_assign(kept, gn_slice(kept, 0, 0, 2, 1));
    CHECK_RESULT(gn_step(g), GN_BAD_SHAPE);
    CHECK_RESULT(gn_step(g), GN_OK);
    check_alive();
}

TEST(a_hundred_failed_steps_are_followed_by_a_good_one) {
    for (int i = 0; i < 100; i++) {
        float out[4];
        gn_tensor t = gn_embedding(floats(GN_SHAPE(3, 4)), INTS(GN_I32, 3 + i));
        gn_assign(kept, gn_neg(kept));
        CHECK_RESULT(gn_read(t, out, sizeof out), GN_INDEX_OUT_OF_RANGE);
        gn_step(g);
    }
    check_alive();
}

/* ---- devices ---- */

TEST(device_that_is_not_there_is_a_typed_error) {
    static const char *const names[] = { "abacus", "cpu:7", ",", "cpu:-1", "cpu:x" };
    for (int i = 0; i < TEST_COUNT(names); i++) {
        gn_ctx *c = gn_open(&(gn_desc){ .devices = names[i] });
        gn_result r = gn_status(c);
        if (r == GN_OK || r == GN_INTERNAL || !gn_last_error(c)->text[0]) {
            test_fail(__FILE__, __LINE__, "\"%s\" gives %s \"%s\"", names[i], gn_result_name(r),
                      gn_last_error(c)->text);
        }
        gn_close(c);
    }
    check_alive();
}

static const test_entry tests[] = {
    TEST_ENTRY(shapes_that_do_not_fit_are_bad_shape),
    TEST_ENTRY(attention_and_cache_shapes_that_do_not_fit_are_bad_shape),
    TEST_ENTRY(ranks_and_axes_outside_are_bad_rank),
    TEST_ENTRY(shapes_that_are_none_are_refused),
    TEST_ENTRY(dtypes_outside_the_mask_are_bad_dtype),
    TEST_ENTRY(arguments_outside_their_range_are_bad_argument),
    TEST_ENTRY(null_data_is_bad_argument),
    TEST_ENTRY(read_of_another_size_is_bad_size),
    TEST_ENTRY(stale_handle_is_stale_handle),
    TEST_ENTRY(closed_context_is_closed_context),
    TEST_ENTRY(integer_division_by_zero_is_division_by_zero),
    TEST_ENTRY(integer_division_by_zero_inside_a_fused_chain_is_found),
    TEST_ENTRY(integer_division_by_zero_in_every_tile_is_found_once),
    TEST_ENTRY(float_division_by_zero_is_infinity),
    TEST_ENTRY(division_of_nothing_by_zero_is_no_error),
    TEST_ENTRY(gather_index_outside_is_index_out_of_range),
    TEST_ENTRY(embedding_id_outside_is_index_out_of_range),
    TEST_ENTRY(embedding_bag_ids_and_lengths_outside_are_index_out_of_range),
    TEST_ENTRY(offsets_that_are_no_bags_are_index_out_of_range),
    TEST_ENTRY(indices_before_the_first_are_index_out_of_range),
    TEST_ENTRY(scatter_index_outside_is_index_out_of_range),
    TEST_ENTRY(select_index_outside_is_index_out_of_range),
    TEST_ENTRY(nonzero_bound_too_small_is_index_out_of_range),
    TEST_ENTRY(class_losses_with_a_target_outside_are_index_out_of_range),
    TEST_ENTRY(composites_refuse_what_their_comments_exclude),
    TEST_ENTRY(losses_refuse_what_their_comments_exclude),
    TEST_ENTRY(folds_refuse_what_their_comments_exclude),
    TEST_ENTRY(products_of_bytes_refuse_what_their_comments_exclude),
    TEST_ENTRY(grids_and_blocks_refuse_what_their_comments_exclude),
    TEST_ENTRY(matrices_and_regions_refuse_what_their_comments_exclude),
    TEST_ENTRY(transforms_and_counts_refuse_what_their_comments_exclude),
    TEST_ENTRY(one_hot_class_outside_is_index_out_of_range),
    TEST_ENTRY(cross_entropy_target_outside_is_index_out_of_range),
    TEST_ENTRY(cross_entropy_gradient_with_a_target_outside_is_index_out_of_range),
    TEST_ENTRY(kv_append_position_outside_is_index_out_of_range),
    TEST_ENTRY(quantised_weights_that_do_not_fit_are_refused),
    TEST_ENTRY(convolutions_that_make_no_sense_are_refused),
    TEST_ENTRY(pools_that_make_no_sense_are_refused),
    TEST_ENTRY(recurrent_layers_that_do_not_fit_are_refused),
    TEST_ENTRY(length_beyond_the_steps_is_told_at_the_read),
    TEST_ENTRY(interpolations_that_make_no_sense_are_refused),
    TEST_ENTRY(experts_that_are_not_there_are_index_out_of_range),
    TEST_ENTRY(attention_length_outside_is_index_out_of_range),
    TEST_ENTRY(a_failed_step_leaves_every_state_as_it_was),
    TEST_ENTRY(a_fault_after_an_append_in_place_leaves_the_cache_as_it_was),
    TEST_ENTRY(a_fault_in_one_result_of_many_fails_the_read_and_writes_no_state),
    TEST_ENTRY(a_failed_assignment_is_reported_by_the_step_and_writes_nothing),
    TEST_ENTRY(a_hundred_failed_steps_are_followed_by_a_good_one),
    TEST_ENTRY(device_that_is_not_there_is_a_typed_error),
};

int main(int argc, char **argv) {
    test_begin(argc, argv);
    for (int pass = 0; pass < 2; pass++) {
        on_loopback = pass == 1;
        for (int i = 0; i < TEST_COUNT(tests); i++) {
            char name[160];
            snprintf(name, sizeof name, "%s_on_%s", tests[i].name, on_loopback ? "loopback" : "cpu");
            if (test_open(name)) {
                open_context();
                tests[i].run();
                gn_close(g);
                test_close();
            }
        }
    }
    loopback_close();
    return test_end();
}
