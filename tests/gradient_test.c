/* Gradients of every op whose row has one, against central differences in f64, and the optimisers against plain C
 * loops.
 *
 * A problem is an op on f64 inputs; the loss is the sum of its result times fixed random weights. Each problem runs
 * twice: on plain inputs, and on inputs that are stepped slices of permuted tensors, so that the derivative passes
 * through views. Inputs are points of a shuffled grid that keeps off zero and off each other: no difference quotient
 * crosses a kink.
 *
 * Tier: quick address */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#define MAX_INPUTS 6
#define MAX_ELEMENTS 256

typedef enum domain { ANY_SIGN, POSITIVE, ABOVE_ONE, EXACT_IN_F32 } domain;

typedef struct problem {
    const char *op, *what;
    int n; /* inputs that are differentiated */
    gn_shape shapes[MAX_INPUTS];
    domain domains[MAX_INPUTS];
    gn_tensor (*build)(gn_ctx *g, const gn_tensor *in);
    double step; /* of the difference quotient, 0: 1e-5 */
} problem;

static gn_ctx *g;

static int64_t elements(gn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    return n;
}

/* Shuffled points 0.07 apart: from 0.3 upwards, or on both sides of zero; `which` shifts the grid of each input. */
static void draw(double *x, int64_t n, domain d, int which) {
    for (int64_t j = 0; j < n; j++) {
        double place = d == POSITIVE || d == ABOVE_ONE ? (d == POSITIVE ? 0.3 : 1.2) + 0.07 * (double)j
                                                       : (j % 2 ? -1 : 1) * (0.035 + 0.07 * (double)(j / 2));
        x[j] = d == EXACT_IN_F32 ? (double)(j - n / 2) / 16 : place + 0.015 * which;
    }
    for (int64_t j = n - 1; j > 0; j--) {
        int64_t other = test_random_int(0, j);
        double t = x[j];
        x[j] = x[other];
        x[other] = t;
    }
}

/* ---- evaluating ---- */

typedef struct trial {
    const problem *p;
    bool viewed;
    gn_shape base[MAX_INPUTS]; /* of the tensors in memory */
    double x[MAX_INPUTS][MAX_ELEMENTS];
    double weights[4 * MAX_ELEMENTS]; /* of the loss */
} trial;

/* Viewed inputs are permuted to reversed axes, then every second row is taken, backwards. */
static gn_shape base_shape(gn_shape s, bool viewed) {
    gn_shape base = s;
    for (int i = 0; viewed && i < s.rank; i++) base.dims[s.rank - 1 - i] = i == 0 ? 2 * s.dims[0] : s.dims[i];
    return base;
}

static gn_tensor seen(gn_tensor t, int rank) {
    gn_axes order = { rank, { 0 } };
    for (int i = 0; i < rank; i++) order.axis[i] = rank - 1 - i;
    return rank == 0 ? t : gn_slice(gn_permute(t, order), 0, -1, INT64_MIN, -2);
}

/* The loss, its leaves into `leaves`. */
static gn_tensor build_loss(const trial *t, gn_tensor *leaves) {
    gn_tensor in[MAX_INPUTS];
    for (int i = 0; i < t->p->n; i++) {
        leaves[i] = gn_data(g, GN_F64, t->base[i], t->x[i]);
        in[i] = t->viewed ? seen(leaves[i], t->p->shapes[i].rank) : leaves[i];
    }
    gn_tensor y = t->p->build(g, in);
    gn_info info;
    if (gn_describe(y, &info) != GN_OK || elements(info.shape) > TEST_COUNT(t->weights)) return y;
    return gn_sum(gn_mul(y, gn_data(g, GN_F64, info.shape, t->weights)), GN_ALL_AXES, false);
}

static double loss_at(const trial *t) {
    gn_tensor leaves[MAX_INPUTS];
    double y = NAN;
    if (!CHECK_RESULT(gn_read(build_loss(t, leaves), &y, sizeof y), GN_OK))
        test_fail(__FILE__, __LINE__, "%s: %s", t->p->op, gn_last_error(g)->text);
    gn_step(g);
    return y;
}

static void check_input(trial *t, int i, const double *gradient) {
    double h = t->p->step > 0 ? t->p->step : 1e-5;
    for (int64_t j = 0; j < elements(t->base[i]); j++) {
        double x = t->x[i][j];
        t->x[i][j] = x + h;
        double up = loss_at(t);
        t->x[i][j] = x - h;
        double down = loss_at(t), want = (up - down) / (2 * h);
        t->x[i][j] = x;
        if (!(fabs(gradient[j] - want) <= 1e-6 * (1 + fabs(want)))) {
            test_fail(__FILE__, __LINE__,
                      "%s (%s%s): d loss / d input %d[%lld] is %.12g, the difference quotient %.12g", t->p->op,
                      t->p->what, t->viewed ? ", viewed" : "", i, (long long)j, gradient[j], want);
            return;
        }
    }
}

static void run_trial(const problem *p, bool viewed) {
    static trial t;
    static double gradients[MAX_INPUTS][MAX_ELEMENTS];
    gn_tensor leaves[MAX_INPUTS], out[MAX_INPUTS];
    void *hosts[MAX_INPUTS];
    size_t bytes[MAX_INPUTS];
    t.p = p;
    t.viewed = viewed;
    for (int i = 0; i < p->n; i++) {
        t.base[i] = base_shape(p->shapes[i], viewed);
        REQUIRE(elements(t.base[i]) <= MAX_ELEMENTS);
        draw(t.x[i], elements(t.base[i]), p->domains[i], i);
        hosts[i] = gradients[i];
        bytes[i] = (size_t)elements(t.base[i]) * sizeof(double);
    }
    for (int k = 0; k < TEST_COUNT(t.weights); k++)
        t.weights[k] = p->step > 0 ? (double)test_random_int(-8, 8) / 4 : test_random_real(-1, 1);
    gn_tensor loss = build_loss(&t, leaves);
    gn_result r = gn_grad(loss, leaves, p->n, out);
    if (r == GN_OK) r = gn_read_many(out, p->n, hosts, bytes);
    if (r != GN_OK)
        test_fail(__FILE__, __LINE__, "%s (%s): %s: %s", p->op, p->what, gn_result_name(r), gn_last_error(g)->text);
    gn_step(g);
    for (int i = 0; r == GN_OK && i < p->n; i++) check_input(&t, i, gradients[i]);
}

/* ---- the scalar rows ---- */

static uint16_t scalar_wire;

static gn_tensor build_unary(gn_ctx *c, const gn_tensor *in) { return gn_apply(c, scalar_wire, in, 1, NULL, 0); }
static gn_tensor build_binary(gn_ctx *c, const gn_tensor *in) { return gn_apply(c, scalar_wire, in, 2, NULL, 0); }
static gn_tensor build_ternary(gn_ctx *c, const gn_tensor *in) { return gn_apply(c, scalar_wire, in, 3, NULL, 0); }

static domain domain_of(const char *op, int input) {
    static const char *const positive[][2] = { { "log", "" }, { "sqrt", "" }, { "rsqrt", "" }, { "pow", "pow" },
                                               { "", "div" }, { "log2", "" }, { "log10", "" } };
    if (strcmp(op, "acosh") == 0) return ABOVE_ONE;
    if (input > 1) return ANY_SIGN;
    for (int k = 0; k < TEST_COUNT(positive); k++)
        if (strcmp(positive[k][input], op) == 0) return POSITIVE;
    return ANY_SIGN;
}

static void scalar_problems(const gn_op_info *row) {
    static const gn_shape shapes[][3] = {
        { { 2, { 3, 4 } }, { 2, { 3, 4 } }, { 2, { 3, 4 } } },    { { 0, { 0 } }, { 0, { 0 } }, { 0, { 0 } } },
        { { 2, { 3, 1 } }, { 2, { 1, 4 } }, { 1, { 4 } } },       { { 1, { 4 } }, { 3, { 2, 3, 4 } }, { 2, { 3, 1 } } },
        { { 3, { 2, 3, 4 } }, { 0, { 0 } }, { 3, { 2, 1, 1 } } },
    };
    scalar_wire = row->wire;
    for (int k = 0; k < (row->arity >= 2 ? TEST_COUNT(shapes) : 2); k++) {
        problem p = { .op = row->name,
                      .what = "scalar",
                      .n = row->arity,
                      .build = row->arity == 3   ? build_ternary
                               : row->arity == 2 ? build_binary
                                                 : build_unary };
        for (int i = 0; i < row->arity; i++) {
            p.shapes[i] = shapes[k][i];
            p.domains[i] = domain_of(row->name, i);
        }
        run_trial(&p, false);
        run_trial(&p, true);
    }
}

/* ---- the other rows ---- */

static gn_tensor indices(gn_ctx *c, gn_shape shape, int64_t limit) {
    int64_t x[MAX_ELEMENTS];
    for (int64_t j = 0; j < elements(shape); j++) x[j] = (j * 5 + 2) % limit; /* repeats */
    return gn_data_copy(c, GN_I64, shape, x);
}

static gn_tensor position(gn_ctx *c, int64_t x) { return gn_data_copy(c, GN_I64, GN_SCALAR, &x); }

static gn_tensor bools(gn_ctx *c, gn_shape shape) {
    uint8_t x[MAX_ELEMENTS];
    for (int64_t j = 0; j < elements(shape); j++) x[j] = j % 3 != 1;
    return gn_data_copy(c, GN_BOOL, shape, x);
}

#define BUILD(name, expression)                             \
    static gn_tensor name(gn_ctx *c, const gn_tensor *in) { \
        (void)c;                                            \
        return expression;                                  \
    }
BUILD(b_where, gn_where(bools(c, GN_SHAPE(3, 4)), in[0], in[1]))
BUILD(b_cast, gn_cast(gn_cast(in[0], GN_F32), GN_F64))
BUILD(b_clamp, gn_clamp(in[0], -0.25, 0.3))
BUILD(b_sum, gn_sum(in[0], GN_AXES(1), false))
BUILD(b_sum_keep, gn_sum(in[0], GN_AXES(0, -1), true))
BUILD(b_sum_all, gn_sum(in[0], GN_ALL_AXES, false))
BUILD(b_mean, gn_mean(in[0], GN_AXES(0, 2), false))
BUILD(b_mean_keep, gn_mean(in[0], GN_AXES(1), true))
BUILD(b_max, gn_max(in[0], GN_AXES(1), false))
BUILD(b_max_keep, gn_max(in[0], GN_AXES(0, 2), true))
BUILD(b_min, gn_min(in[0], GN_ALL_AXES, false))
BUILD(b_min_keep, gn_min(in[0], GN_AXES(2), true))
BUILD(b_softmax, gn_softmax(in[0], -1))
BUILD(b_softmax_first, gn_softmax(in[0], 0))
BUILD(b_log_softmax, gn_log_softmax(in[0], 1))
BUILD(b_layernorm, gn_layernorm(in[0], in[1], in[2], 1e-3))
static gn_tensor b_layernorm_over(gn_ctx *c, const gn_tensor *in) {
    gn_tensor mean, deviation, y = gn_layernorm_over(in[0], 1, in[1], in[2], 1e-3, &mean, &deviation);
    (void)c;
    return gn_add(y, gn_mul(mean, deviation));
}
BUILD(b_layernorm_gain, gn_layernorm(in[0], in[1], GN_NONE, 1e-3))
BUILD(b_layernorm_bias, gn_layernorm(in[0], GN_NONE, in[1], 1e-3))
BUILD(b_layernorm_bare, gn_layernorm(in[0], GN_NONE, GN_NONE, 1e-3))
BUILD(b_batch_norm, gn_batch_norm(in[0], in[1], in[2], in[3], in[4], 1e-3))
BUILD(b_batch_norm_bare, gn_batch_norm(in[0], in[1], in[2], GN_NONE, GN_NONE, 1e-3))
BUILD(b_batch_norm_train, gn_batch_norm_train(in[0], in[1], in[2], 1e-3, NULL, NULL))
static gn_tensor b_batch_norm_train_all(gn_ctx *c, const gn_tensor *in) {
    gn_tensor mean, variance, y = gn_batch_norm_train(in[0], GN_NONE, GN_NONE, 1e-3, &mean, &variance);
    (void)c;
    return gn_add(y, gn_unsqueeze(gn_mul(mean, variance), 1));
}
BUILD(b_group_norm, gn_group_norm(in[0], 2, in[1], in[2], 1e-3))
BUILD(b_group_norm_bare, gn_group_norm(in[0], 1, GN_NONE, GN_NONE, 1e-3))
BUILD(b_instance_norm, gn_instance_norm(in[0], in[1], in[2], 1e-3))
BUILD(b_local_response_norm, gn_local_response_norm(in[0], 3, 2, 0.75, 1))
BUILD(b_local_response_norm_even, gn_local_response_norm(in[0], 4, 1.5, 0.5, 0.7))
BUILD(b_matmul, gn_matmul(in[0], in[1]))
BUILD(b_linear, gn_linear(in[0], in[1], in[2]))
/* ids of -1 to 2 */
#define EXPERT_IDS(shape) gn_sub(indices(c, shape, 4), gn_scalar_i64(c, GN_I64, 1))
/* Sums of f32: exact enough by a long step, since they are linear. */
static gn_tensor b_linear_quantized(gn_ctx *c, const gn_tensor *in) {
    static const int8_t q[12] = { 1, -2, 0, 1, 2, 1, -1, 0, 1, 1, -1, 2 };
    static const float scales[6] = { 1, 0.5f, 2, 1, 0.25f, 1 };
    gn_quantized w = { .format = GN_QUANT_INT8,
                       .data = gn_data(c, GN_I8, GN_SHAPE(3, 4), q),
                       .scales = gn_data(c, GN_F32, GN_SHAPE(3, 2), scales) };
    return gn_cast(gn_linear_quantized(gn_cast(in[0], GN_F32), w, gn_cast(in[1], GN_F32)), GN_F64);
}
BUILD(b_expert_linear, gn_expert_linear(in[0], in[1], EXPERT_IDS(GN_SHAPE(5)), in[2]))
BUILD(b_expert_linear_repeats, gn_expert_linear(in[0], in[1], EXPERT_IDS(GN_SHAPE(2, 3)), GN_NONE))
BUILD(b_expert_linear_one, gn_expert_linear(in[0], in[1], EXPERT_IDS(GN_SHAPE(3)), GN_NONE))
#define CONV(...) (&(gn_conv_desc){ __VA_ARGS__ })
#define CONV_TWO .stride = { 2, 1 }, .dilation = { 1, 2 }, .before = { 1, 2 }, .after = { 0, 1 }
BUILD(b_conv, gn_conv(in[0], in[1], in[2], CONV(CONV_TWO)))
BUILD(b_conv_groups, gn_conv(in[0], in[1], GN_NONE, CONV(CONV_TWO, .groups = 2)))
BUILD(b_conv_own, gn_conv(in[0], in[1], GN_NONE, CONV(.stride = { 3 }, .groups = 3)))
BUILD(b_conv_tail, gn_conv(in[0], in[1], in[2], CONV(.residual = in[3], .clamps = true, .least = -0.4, .most = 0.9)))
BUILD(b_conv_volume, gn_conv(in[0], in[1], GN_NONE, CONV(.before = { 1 }, .stride = { 1, 2, 1 })))
BUILD(b_conv_back, gn_conv(in[0], in[1], in[2], CONV(.transposed = true, CONV_TWO, .extra = { 1 })))
BUILD(b_conv_back_groups, gn_conv(in[0], in[1], GN_NONE, CONV(.transposed = true, .stride = { 2 }, .groups = 2)))
#define POOL(...) gn_pool(in[0], &(gn_pool_desc){ __VA_ARGS__ })
#define POOL_TWO .kernel = { 2, 3 }, .stride = { 2, 1 }, .before = { 1, 1 }, .after = { 0, 2 }
BUILD(b_pool_max, POOL(.kind = GN_POOL_MAX, POOL_TWO))
BUILD(b_pool_sum, POOL(.kind = GN_POOL_SUM, .kernel = { 2, 2 }, .dilation = { 2, 1 }))
BUILD(b_pool_average, POOL(.kind = GN_POOL_AVERAGE, POOL_TWO, .ceiling = true))
BUILD(b_pool_pads, POOL(.kind = GN_POOL_AVERAGE, POOL_TWO, .counts_pads = true))
BUILD(b_pool_adaptive, POOL(.kind = GN_POOL_AVERAGE, .kernel = { 3, 2 }, .adaptive = true))
BUILD(b_pool_volume, POOL(.kind = GN_POOL_AVERAGE, .kernel = { 2, 1, 2 }, .stride = { 1, 1, 2 }))
BUILD(b_pool_apart, POOL(.kind = GN_POOL_AVERAGE, .kernel = { 2 }, .dilation = { 5 }, .before = { 4 }, .after = { 3 }))
#define INTERPOLATE(axes, sizes, ...) gn_interpolate(in[0], axes, sizes, &(gn_interpolate_desc){ __VA_ARGS__ })
BUILD(b_interpolate, INTERPOLATE(GN_AXES(1, 2), GN_SHAPE(5, 3)))
BUILD(b_interpolate_linear, INTERPOLATE(GN_AXES(1, 2), GN_SHAPE(5, 3), .kind = GN_INTERPOLATE_LINEAR))
BUILD(b_interpolate_cubic, INTERPOLATE(GN_AXES(0, 1, 2), GN_SHAPE(3, 2, 5), .kind = GN_INTERPOLATE_CUBIC,
                                       .stretch = { 1, 1.5, 1 }, .places = GN_INTERPOLATE_CORNERS))
/* x, w, r, then two of the desc's tensors. */
#define RECURRENT(...) gn_recurrent(in[0], in[1], in[2], &(gn_recurrent_desc){ __VA_ARGS__ })
BUILD(b_recurrent, RECURRENT(.bias = in[3], .h0 = in[4], .lengths = indices(c, GN_SHAPE(3), 4)))
BUILD(b_recurrent_back,
      RECURRENT(.recurrent_bias = in[3], .reverse = true, .act = { { { GN_ACTIVATION_ELU, 0.5, 0 } } }))
BUILD(b_gru,
      RECURRENT(.cell = GN_CELL_GRU, .recurrent_bias = in[3], .h0 = in[4], .lengths = indices(c, GN_SHAPE(3), 4)))
BUILD(b_gru_onnx, RECURRENT(.cell = GN_CELL_GRU, .onnx_gates = true, .clip = 1.1))
BUILD(b_gru_first, RECURRENT(.cell = GN_CELL_GRU, .reset_first = true, .recurrent_bias = in[3], .h0 = in[4],
                             .lengths = indices(c, GN_SHAPE(3), 4)))
BUILD(b_gru_first_onnx, RECURRENT(.cell = GN_CELL_GRU, .reset_first = true, .onnx_gates = true, .reverse = true))
BUILD(b_lstm, RECURRENT(.cell = GN_CELL_LSTM, .recurrent_bias = in[3], .h0 = in[4], .c0 = in[5],
                        .lengths = indices(c, GN_SHAPE(3), 4)))
BUILD(b_lstm_onnx, RECURRENT(.cell = GN_CELL_LSTM, .onnx_gates = true, .peepholes = in[3], .c0 = in[4]))
BUILD(b_lstm_coupled, RECURRENT(.cell = GN_CELL_LSTM, .coupled = true, .peepholes = in[3], .bias = in[4],
                                .act = { { { .kind = GN_ACTIVATION_SOFTSIGN },
                                           { .kind = GN_ACTIVATION_SOFTPLUS },
                                           { GN_ACTIVATION_SCALED_TANH, 1.5, 0.5 } } }))
BUILD(b_linear_bare, gn_linear(in[0], in[1], GN_NONE))
BUILD(b_reshape, gn_reshape(in[0], GN_SHAPE(2, -1)))
BUILD(b_permute, gn_permute(in[0], GN_AXES(2, 0, 1)))
BUILD(b_transpose, gn_transpose(in[0], 0, -1))
BUILD(b_slice, gn_slice(in[0], 1, 1, GN_END, 2))
BUILD(b_slice_back, gn_slice(in[0], -1, -1, 0, -1))
BUILD(b_slice_put, gn_slice_put(in[0], in[1], 1, GN_END, INT64_MIN, -2))
BUILD(b_concat, gn_concat(in, 3, 1))
BUILD(b_broadcast, gn_broadcast(in[0], GN_SHAPE(2, 3, 4)))
BUILD(b_gather, gn_gather(in[0], 0, indices(c, GN_SHAPE(5, 3), 4)))
BUILD(b_gather_last, gn_gather(in[0], -1, indices(c, GN_SHAPE(2, 6), 5)))
BUILD(b_embedding, gn_embedding(in[0], indices(c, GN_SHAPE(2, 3), 5)))
#define LENGTHS gn_data_copy(c, GN_I32, GN_SHAPE(2, 2), ((const int32_t[4]){ 3, 0, 1, 2 }))
BUILD(b_embedding_bag, gn_embedding_bag(in[0], indices(c, GN_SHAPE(8), 5), LENGTHS, GN_BAG_SUM))
BUILD(b_embedding_bag_mean, gn_embedding_bag(in[0], indices(c, GN_SHAPE(6), 5), LENGTHS, GN_BAG_MEAN))
#define OFFSETS gn_data_copy(c, GN_I64, GN_SHAPE(4), ((const int64_t[4]){ 0, 3, 3, 4 }))
BUILD(b_bag_offsets, gn_embedding_bag_offsets(in[0], indices(c, GN_SHAPE(6), 5), OFFSETS, false, GN_BAG_MEAN))
BUILD(b_bag_offsets_max, gn_embedding_bag_offsets(in[0], indices(c, GN_SHAPE(6), 5), OFFSETS, true, GN_BAG_MAX))
BUILD(b_grid_sample, gn_grid_sample(in[0], in[1], NULL))
/* Places on both sides of the edges; at 3.9 times a drawn number none is an element or half way between two. */
#define GRID_SAMPLE(...) gn_grid_sample(in[0], gn_mul_c(in[1], 3.9), &(gn_grid_sample_desc){ __VA_ARGS__ })
BUILD(b_grid_zeros, GRID_SAMPLE(.corners = true))
BUILD(b_grid_edge, GRID_SAMPLE(.padding = GN_GRID_EDGE))
BUILD(b_grid_edge_corners, GRID_SAMPLE(.padding = GN_GRID_EDGE, .corners = true))
BUILD(b_grid_reflect, GRID_SAMPLE(.padding = GN_GRID_REFLECT))
BUILD(b_grid_reflect_corners, GRID_SAMPLE(.padding = GN_GRID_REFLECT, .corners = true))
BUILD(b_grid_nearest, GRID_SAMPLE(.nearest = true, .padding = GN_GRID_REFLECT))
BUILD(b_grid_cubic, GRID_SAMPLE(.cubic = true))
BUILD(b_grid_cubic_edge, GRID_SAMPLE(.cubic = true, .padding = GN_GRID_EDGE))
BUILD(b_grid_cubic_reflect, GRID_SAMPLE(.cubic = true, .padding = GN_GRID_REFLECT, .corners = true))
/* Two images and three regions, one of which reaches outside. */
static gn_tensor regions_of(const gn_tensor *in, bool half_pixel, bool largest, bool adaptive) {
    static const double rois[12] = { 0.3, 0.4, 3.7, 2.9, -3.2, 1.1, 2.2, 6.3, 1.6, 0.2, 2.1, 3.3 };
    static const int32_t which[3] = { 0, 1, 1 };
    gn_roi_align_desc d = {
        .height = 2, .width = 3, .scale = 0.9, .half_pixel = half_pixel, .largest = largest, .adaptive = adaptive
    };
    d.samples = adaptive ? 3 : 0;
    gn_ctx *c = in[0].ctx;
    return gn_roi_align(in[0], gn_data(c, GN_F64, GN_SHAPE(3, 4), rois), gn_data(c, GN_I32, GN_SHAPE(3), which), &d);
}
BUILD(b_roi_align, regions_of(in, true, false, false))
BUILD(b_roi_align_whole, regions_of(in, false, false, false))
BUILD(b_roi_align_largest, regions_of(in, true, true, false))
BUILD(b_roi_align_adaptive, regions_of(in, true, false, true))
BUILD(b_roi_align_adaptive_largest, regions_of(in, false, true, true))
BUILD(b_affine_grid, gn_affine_grid(in[0], GN_SHAPE(2, 3), false))
BUILD(b_depth_to_space, gn_depth_to_space(in[0], 2, true))
BUILD(b_space_to_depth, gn_space_to_depth(in[0], 2, false))
BUILD(b_fft, gn_fft(in[0], 0, 0, true))
BUILD(b_rfft, gn_rfft(in[0], 1, 7))
BUILD(b_irfft, gn_irfft(in[0], 0, 0))
BUILD(b_stft, gn_stft(in[0], 4, 3, in[1], true))
#define WEIGHED .weights = in[1], .ignores = true, .ignored = 2, .smoothing = 0.2, .reduction = GN_REDUCE_SUM
#define CLASSES indices(c, GN_SHAPE(2, 3), 4)
BUILD(b_cross_entropy_with, gn_cross_entropy_with(in[0], CLASSES, &(gn_cross_entropy_desc){ WEIGHED }))
BUILD(b_scatter_min, gn_scatter_min(in[0], 1, indices(c, GN_SHAPE(3, 6), 4), in[1]))
BUILD(b_scatter_mul, gn_scatter_mul(in[0], 1, indices(c, GN_SHAPE(3, 6), 4), in[1]))
BUILD(b_embedding_bag_max, gn_embedding_bag(in[0], indices(c, GN_SHAPE(6), 5), LENGTHS, GN_BAG_MAX))
BUILD(b_bincount, gn_bincount(indices(c, GN_SHAPE(8), 5), 5, in[0]))
BUILD(b_scatter_add, gn_scatter_add(in[0], 1, indices(c, GN_SHAPE(3, 6), 4), in[1]))
BUILD(b_cross_entropy, gn_cross_entropy(in[0], indices(c, GN_SHAPE(2, 3), 4)))
BUILD(b_mse_loss, gn_mse_loss(in[0], in[1]))
BUILD(b_kv_append, gn_kv_append(in[0], in[1], position(c, 2)))
BUILD(b_attention, gn_attention(in[0], in[1], in[2], NULL))
BUILD(b_attention_causal, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .causal = true, .scale = 0.7 }))
BUILD(b_attention_bool, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .mask = bools(c, GN_SHAPE(3, 5)) }))
BUILD(b_attention_added, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .mask = in[3] }))
BUILD(b_attention_length,
      gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .causal = true, .length = position(c, 4) }))
BUILD(b_attention_window, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .causal = true, .window = 2 }))
BUILD(b_attention_cap, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .soft_cap = 0.4, .scale = 1.5 }))
BUILD(b_attention_slopes, gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .slopes = in[3] }))
BUILD(b_attention_sinks,
      gn_attention(in[0], in[1], in[2], &(gn_attention_desc){ .sinks = in[3], .mask = bools(c, GN_SHAPE(3, 5)) }))
BUILD(b_attention_all, gn_attention(in[0], in[1], in[2],
                                    &(gn_attention_desc){ .causal = true,
                                                          .mask = in[3],
                                                          .length = position(c, 4),
                                                          .window = 2,
                                                          .soft_cap = 0.6,
                                                          .slopes = in[4],
                                                          .sinks = in[5] }))

BUILD(b_prod, gn_prod(in[0], GN_AXES(1), false))
BUILD(b_prod_keep, gn_prod(in[0], GN_AXES(0, -1), true))
BUILD(b_cumsum, gn_cumsum(in[0], 1))
static gn_tensor dominated(gn_tensor a) { /* the diagonal outweighs the rows */
    gn_tensor at = gn_arange_i64(a.ctx, GN_I64, 3, 0, 1), on = gn_eq(gn_reshape(at, GN_SHAPE(3, 1)), at);
    return gn_add(a, gn_mul_c(gn_cast(on, GN_F64), 9));
}
BUILD(b_det, gn_mul_c(gn_det(dominated(in[0])), 0.01))
BUILD(b_inverse, gn_inverse(dominated(in[0])))
BUILD(b_solve, gn_solve(dominated(in[0]), in[1]))
BUILD(b_solve_upper, gn_solve_triangular(dominated(in[0]), in[1], true, false))
BUILD(b_solve_ones, gn_solve_triangular(in[0], in[1], false, true))
BUILD(b_cholesky, gn_cholesky(dominated(in[0])))
BUILD(b_deform_conv, gn_deform_conv(in[0], in[1], in[2], in[3], in[4], NULL))
BUILD(b_deform_conv_bare, gn_deform_conv(in[0], in[1], in[2], GN_NONE, GN_NONE, CONV(CONV_TWO, .groups = 2)))
BUILD(b_cumprod, gn_cumprod(in[0], -1))
BUILD(b_cummax, gn_cummax(in[0], 1))
BUILD(b_scatter, gn_scatter(in[0], 1, indices(c, GN_SHAPE(3, 6), 4), in[1]))
BUILD(b_scatter_max, gn_scatter_max(in[0], 0, indices(c, GN_SHAPE(5, 3), 4), in[1]))
BUILD(b_leaky_relu, gn_leaky_relu(in[0], 0.2))
BUILD(b_prelu, gn_prelu(in[0], in[1]))
BUILD(b_elu, gn_elu(in[0], 1.3))
BUILD(b_celu, gn_celu(in[0], 0.7))
BUILD(b_l1_norm, gn_l1_norm(in[0], GN_AXES(1), false))
BUILD(b_l2_norm, gn_l2_norm(in[0], GN_AXES(1), true))
BUILD(b_logsumexp, gn_logsumexp(in[0], GN_AXES(0, 2), false))
BUILD(b_logsumexp_keep, gn_logsumexp(in[0], GN_AXES(1), true))
BUILD(b_variance, gn_variance(in[0], GN_AXES(1), 1, false))
BUILD(b_std, gn_std(in[0], GN_AXES(0, 2), 0, true))
BUILD(b_rmsnorm, gn_rmsnorm(in[0], in[1], 1e-3))
BUILD(b_rmsnorm_1p, gn_rmsnorm_1p(in[0], in[1], 1e-3))
BUILD(b_normalize, gn_normalize(in[0], 1, 1e-9))
BUILD(b_sort, gn_sort(in[0], -1, true))
BUILD(b_outer, gn_outer(in[0], in[1]))
BUILD(b_vecdot, gn_vecdot(in[0], in[1], 1))
BUILD(b_einsum, gn_einsum("bij,jk,bk->kib", in, 3))
BUILD(b_einsum_trace, gn_einsum("iij,jk->k", in, 2))
BUILD(b_masked_fill, gn_masked_fill(in[0], bools(c, GN_SHAPE(4)), 3))
BUILD(b_pad, gn_pad(in[0], GN_SHAPE(1, 0), GN_SHAPE(0, 2), GN_PAD_CONSTANT, 2))
BUILD(b_pad_reflect, gn_pad(in[0], GN_SHAPE(1, 2), GN_SHAPE(0, 3), GN_PAD_REFLECT, 0))
BUILD(b_pad_edge, gn_pad(in[0], GN_SHAPE(2, 0), GN_SHAPE(1, 1), GN_PAD_EDGE, 0))
BUILD(b_flip, gn_flip(in[0], GN_AXES(0, 2)))
BUILD(b_roll, gn_roll(in[0], 2, 1))
BUILD(b_tile, gn_tile(in[0], GN_SHAPE(2, 3)))
BUILD(b_repeat, gn_repeat(in[0], 3, 0))
BUILD(b_expand, gn_expand(in[0], GN_SHAPE(2, -1, 4)))
BUILD(b_squeeze, gn_squeeze(in[0], GN_AXES(1)))
BUILD(b_unsqueeze, gn_unsqueeze(in[0], -1))
BUILD(b_einsum_dots, gn_einsum("...ij,...jk->k...", in, 2))
BUILD(b_vecdot_broadcast, gn_vecdot(in[0], in[1], -2))
BUILD(b_stack, gn_stack(in, 3, 1))
BUILD(b_tril, gn_tril(in[0], -1))
BUILD(b_triu, gn_triu(in[0], 1))
BUILD(b_diagonal, gn_diagonal(in[0], 1, 0, -1))
BUILD(b_im2col, gn_im2col(in[0], GN_SHAPE(2, 2), GN_SHAPE(1, 2), GN_SHAPE(1, 0), GN_SHAPE(1, 2)))
BUILD(b_col2im, gn_col2im(in[0], GN_SHAPE(3, 4), GN_SHAPE(2, 2), GN_SHAPE(1, 2), GN_SHAPE(1, 0), GN_SHAPE(1, 1)))
BUILD(b_index_select, gn_index_select(in[0], 1, indices(c, GN_SHAPE(5), 3)))
BUILD(b_gather_nd, gn_gather_nd(in[0], indices(c, GN_SHAPE(4, 2), 3)))
BUILD(b_rotary, gn_rotary(in[0], indices(c, GN_SHAPE(3), 7), 100, false))
BUILD(b_rotary_interleaved, gn_rotary(in[0], indices(c, GN_SHAPE(3), 7), 100, true))
BUILD(b_rotary_part,
      gn_rotary_with(in[0], indices(c, GN_SHAPE(3), 7),
                     &(gn_rotary_desc){ .size = 4, .scaling = GN_ROTARY_YARN, .base = 9, .factor = 3, .context = 5 }))
BUILD(b_rotary_by, gn_rotary_by(in[0], in[1], false))
BUILD(b_rotary_by_interleaved, gn_rotary_by(in[0], in[1], true))
/* Twice differentiable: the gradient turns back, and that has a gradient too. */
BUILD(b_rotary_back, gn_apply(c, 0x66, in, 2, (const int64_t[1]){ 3 }, 1))
BUILD(b_bce_loss, gn_bce_loss(gn_sigmoid(in[0]), gn_sigmoid(in[1])))
BUILD(b_bce_logits_loss, gn_bce_logits_loss(in[0], in[1]))
BUILD(b_nll_loss, gn_nll_loss(in[0], indices(c, GN_SHAPE(2, 3), 4)))
BUILD(b_kl_loss, gn_kl_loss(in[0], in[1]))
BUILD(b_smooth_l1_loss, gn_smooth_l1_loss(in[0], in[1], 0.4))
#define WEIGHTS(i, how) \
    &(gn_loss_desc) { .weights = in[i], .reduction = how }
#define SIGMOIDS gn_sigmoid(in[0]), gn_sigmoid(in[1])
BUILD(b_mse_loss_with, gn_mse_loss_with(in[0], in[1], WEIGHTS(2, GN_REDUCE_MEAN)))
BUILD(b_l1_loss_with, gn_l1_loss_with(in[0], in[1], WEIGHTS(2, GN_REDUCE_NONE)))
BUILD(b_smooth_l1_with, gn_smooth_l1_loss_with(in[0], in[1], 0.4, WEIGHTS(2, GN_REDUCE_MEAN)))
BUILD(b_huber_loss_with, gn_huber_loss_with(in[0], in[1], 0.4, WEIGHTS(2, GN_REDUCE_MEAN)))
BUILD(b_bce_loss_with, gn_bce_loss_with(SIGMOIDS, WEIGHTS(2, GN_REDUCE_SUM)))
#define POSITIVES \
    &(gn_loss_desc) { .weights = in[2], .positive = in[3] }
BUILD(b_bce_logits_with, gn_bce_logits_loss_with(in[0], gn_sigmoid(in[1]), POSITIVES))
BUILD(b_kl_loss_with, gn_kl_loss_with(in[0], in[1], WEIGHTS(2, GN_REDUCE_MEAN)))
#define LOG_TARGETS \
    &(gn_loss_desc) { .weights = in[2], .log_target = true, .over_elements = true }
BUILD(b_kl_log_target, gn_kl_loss_with(in[0], in[1], LOG_TARGETS))
#define COUNTED \
    &(gn_cross_entropy_desc) { .weights = in[1], .ignores = true, .ignored = 2 }
BUILD(b_nll_loss_with, gn_nll_loss_with(in[0], CLASSES, COUNTED))
BUILD(b_cross_entropy_smooth, gn_cross_entropy_smooth(in[0], indices(c, GN_SHAPE(2, 3), 4), 0.2))

static gn_tensor b_split(gn_ctx *c, const gn_tensor *in) {
    const int64_t sizes[3] = { 1, 2, 2 };
    gn_tensor out[3];
    (void)c;
    gn_split(in[0], 1, sizes, 3, out);
    return gn_mul(out[1], out[2]);
}

static gn_tensor b_topk(gn_ctx *c, const gn_tensor *in) {
    gn_tensor values;
    (void)c;
    gn_topk(in[0], 2, 1, false, &values, NULL);
    return values;
}

#define S(...)                                  \
    {                                           \
        GN__COUNT(__VA_ARGS__), { __VA_ARGS__ } \
    }
#define QKV S(2, 4, 3, 2), S(2, 2, 5, 2), S(2, 2, 5, 3)
static const problem problems[] = {
    { "where", "a and b", 2, { S(3, 4), S(4) }, { 0 }, b_where, 0 },
    { "cast", "there and back", 1, { S(3, 4) }, { EXACT_IN_F32 }, b_cast, 0x1p-6 },
    { "clamp", "inside and outside", 1, { S(3, 4) }, { 0 }, b_clamp, 0 },
    { "sum", "one axis", 1, { S(2, 3, 4) }, { 0 }, b_sum, 0 },
    { "sum", "keep", 1, { S(2, 3, 4) }, { 0 }, b_sum_keep, 0 },
    { "sum", "all", 1, { S(2, 3, 4) }, { 0 }, b_sum_all, 0 },
    { "mean", "two axes", 1, { S(2, 3, 4) }, { 0 }, b_mean, 0 },
    { "mean", "keep", 1, { S(2, 3, 4) }, { 0 }, b_mean_keep, 0 },
    { "max", "one axis", 1, { S(2, 3, 4) }, { 0 }, b_max, 0 },
    { "max", "keep", 1, { S(2, 3, 4) }, { 0 }, b_max_keep, 0 },
    { "min", "all", 1, { S(2, 3, 4) }, { 0 }, b_min, 0 },
    { "min", "keep", 1, { S(2, 3, 4) }, { 0 }, b_min_keep, 0 },
    { "softmax", "last axis", 1, { S(3, 4) }, { 0 }, b_softmax, 0 },
    { "softmax", "first axis", 1, { S(3, 4) }, { 0 }, b_softmax_first, 0 },
    { "log_softmax", "inner axis", 1, { S(2, 3, 2) }, { 0 }, b_log_softmax, 0 },
    { "layernorm_over", "mean and deviation", 3, { S(2, 3, 2), S(3, 2), S(3, 2) }, { 0 }, b_layernorm_over, 0 },
    { "layernorm", "gain and bias", 3, { S(3, 4), S(4), S(4) }, { 0 }, b_layernorm, 0 },
    { "layernorm", "gain", 2, { S(2, 2, 5), S(5) }, { 0 }, b_layernorm_gain, 0 },
    { "layernorm", "bias", 2, { S(2, 2, 5), S(5) }, { 0 }, b_layernorm_bias, 0 },
    { "layernorm", "bare", 1, { S(5) }, { 0 }, b_layernorm_bare, 0 },
    { "batch_norm", "gain and bias", 5, { S(2, 3, 2), S(3), S(3), S(3), S(3) }, { [2] = POSITIVE }, b_batch_norm, 0 },
    { "batch_norm", "bare", 3, { S(3, 2), S(2), S(2) }, { [2] = POSITIVE }, b_batch_norm_bare, 0 },
    { "batch_norm_train", "gain and bias", 3, { S(3, 2, 2, 2), S(2), S(2) }, { 0 }, b_batch_norm_train, 0 },
    { "batch_norm_train", "mean and variance", 1, { S(3, 2, 2) }, { 0 }, b_batch_norm_train_all, 0 },
    { "group_norm", "gain and bias", 3, { S(2, 4, 3), S(4), S(4) }, { 0 }, b_group_norm, 0 },
    { "group_norm", "one group", 1, { S(2, 3, 2, 2) }, { 0 }, b_group_norm_bare, 0 },
    { "instance_norm", "gain and bias", 3, { S(2, 3, 2, 2), S(3), S(3) }, { 0 }, b_instance_norm, 0 },
    { "local_response_norm", "three channels", 1, { S(2, 5, 2) }, { 0 }, b_local_response_norm, 0 },
    { "local_response_norm", "four channels", 1, { S(2, 5) }, { 0 }, b_local_response_norm_even, 0 },
    { "matmul", "matrices", 2, { S(3, 4), S(4, 2) }, { 0 }, b_matmul, 0 },
    { "matmul", "vectors", 2, { S(4), S(4) }, { 0 }, b_matmul, 0 },
    { "matmul", "vector and matrix", 2, { S(4), S(4, 3) }, { 0 }, b_matmul, 0 },
    { "matmul", "matrix and vector", 2, { S(3, 4), S(4) }, { 0 }, b_matmul, 0 },
    { "matmul", "vector and batch", 2, { S(4), S(2, 4, 3) }, { 0 }, b_matmul, 0 },
    { "matmul", "batch and vector", 2, { S(2, 3, 4), S(4) }, { 0 }, b_matmul, 0 },
    { "matmul", "batches that broadcast", 2, { S(2, 1, 3, 4), S(3, 4, 2) }, { 0 }, b_matmul, 0 },
    { "matmul", "batch of the right only", 2, { S(3, 4), S(2, 4, 2) }, { 0 }, b_matmul, 0 },
    { "linear", "with bias", 3, { S(2, 3, 4), S(4, 2), S(2) }, { 0 }, b_linear, 0 },
    { "linear", "vector", 3, { S(4), S(4, 2), S(2) }, { 0 }, b_linear, 0 },
    { "linear", "without bias", 2, { S(3, 4), S(4, 2) }, { 0 }, b_linear_bare, 0 },
    { "reshape", "matrix", 1, { S(3, 4) }, { 0 }, b_reshape, 0 },
    { "permute", "cycle", 1, { S(2, 3, 4) }, { 0 }, b_permute, 0 },
    { "permute", "transpose", 1, { S(2, 3, 4) }, { 0 }, b_transpose, 0 },
    { "slice", "steps", 1, { S(2, 5) }, { 0 }, b_slice, 0 },
    { "slice", "backwards", 1, { S(2, 5) }, { 0 }, b_slice_back, 0 },
    { "slice_put", "backwards", 2, { S(2, 5), S(2, 3) }, { 0 }, b_slice_put, 0 },
    { "concat", "three", 3, { S(2, 1), S(2, 3), S(2, 2) }, { 0 }, b_concat, 0 },
    { "broadcast", "new and grown axes", 1, { S(3, 1) }, { 0 }, b_broadcast, 0 },
    { "gather", "first axis", 1, { S(4, 3) }, { 0 }, b_gather, 0 },
    { "gather", "last axis, fewer rows", 1, { S(3, 5) }, { 0 }, b_gather_last, 0 },
    { "embedding", "repeated ids", 1, { S(5, 3) }, { 0 }, b_embedding, 0 },
    { "embedding_bag", "sum, repeated ids", 1, { S(5, 3) }, { 0 }, b_embedding_bag, 0 },
    { "embedding_bag", "mean", 1, { S(5, 3) }, { 0 }, b_embedding_bag_mean, 0 },
    { "embedding_bag", "max", 1, { S(5, 3) }, { 0 }, b_embedding_bag_max, 0 },
    { "embedding_bag", "offsets", 1, { S(5, 3) }, { 0 }, b_bag_offsets, 0 },
    { "embedding_bag", "offsets with the end", 1, { S(5, 3) }, { 0 }, b_bag_offsets_max, 0 },
    { "grid_sample", "linear", 2, { S(1, 2, 3, 4), S(1, 2, 2, 2) }, { 0 }, b_grid_sample, 0 },
    { "grid_sample", "zeros, from corner to corner", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_zeros, 0 },
    { "grid_sample", "one axis, edges", 2, { S(2, 2, 4), S(2, 5, 1) }, { 0 }, b_grid_edge, 0 },
    { "grid_sample", "edges", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_edge, 0 },
    { "grid_sample", "edges, corners", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_edge_corners, 0 },
    { "grid_sample", "mirrored", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_reflect, 0 },
    { "grid_sample", "mirrored, corners", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_reflect_corners, 0 },
    { "grid_sample", "mirrored in one row", 2, { S(1, 2, 1, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_reflect_corners, 0 },
    { "grid_sample", "three axes, zeros", 2, { S(1, 2, 2, 3, 2), S(1, 1, 2, 2, 3) }, { 0 }, b_grid_zeros, 0 },
    { "grid_sample", "three axes, edges", 2, { S(1, 2, 2, 3, 2), S(1, 1, 2, 2, 3) }, { 0 }, b_grid_edge, 0 },
    { "grid_sample", "three axes, mirrored", 2, { S(1, 2, 2, 3, 2), S(1, 1, 2, 2, 3) }, { 0 }, b_grid_reflect, 0 },
    { "grid_sample", "nearest, mirrored", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_nearest, 0 },
    { "grid_sample", "cubic", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_cubic, 0 },
    { "grid_sample", "cubic, edges", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_cubic_edge, 0 },
    { "grid_sample", "cubic, mirrored", 2, { S(1, 2, 3, 4), S(1, 3, 2, 2) }, { 0 }, b_grid_cubic_reflect, 0 },
    { "grid_sample", "cubic, three axes", 2, { S(1, 1, 2, 3, 2), S(1, 1, 1, 2, 3) }, { 0 }, b_grid_cubic_edge, 0 },
    { "roi_align", "half pixels", 1, { S(2, 2, 4, 5) }, { 0 }, b_roi_align, 0 },
    { "roi_align", "whole pixels", 1, { S(2, 2, 4, 5) }, { 0 }, b_roi_align_whole, 0 },
    { "roi_align", "the largest share", 1, { S(2, 2, 4, 5) }, { 0 }, b_roi_align_largest, 0 },
    { "roi_align", "adaptive", 1, { S(2, 2, 4, 5) }, { 0 }, b_roi_align_adaptive, 0 },
    { "roi_align", "adaptive, the largest share", 1, { S(2, 2, 4, 5) }, { 0 }, b_roi_align_adaptive_largest, 0 },
    { "affine_grid", "two axes", 1, { S(1, 2, 3) }, { 0 }, b_affine_grid, 0 },
    { "depth_to_space", "channels first", 1, { S(1, 8, 1, 2) }, { 0 }, b_depth_to_space, 0 },
    { "space_to_depth", "blocks of two", 1, { S(1, 1, 2, 4) }, { 0 }, b_space_to_depth, 0 },
    { "fft", "inverse", 1, { S(5, 2) }, { 0 }, b_fft, 0 },
    { "rfft", "filled", 1, { S(2, 5) }, { 0 }, b_rfft, 0 },
    { "irfft", "an even length", 1, { S(4, 2) }, { 0 }, b_irfft, 0 },
    { "stft", "centred", 2, { S(2, 11), S(4) }, { 0 }, b_stft, 0 },
    { "cross_entropy_with", "weights, smoothed", 2, { S(2, 3, 4), S(4) }, { 0 }, b_cross_entropy_with, 0 },
    { "scatter_min", "repeated indices", 2, { S(3, 4), S(3, 6) }, { 0 }, b_scatter_min, 0 },
    { "scatter_mul", "repeated indices", 2, { S(3, 4), S(3, 6) }, { 0 }, b_scatter_mul, 0 },
    { "bincount", "weights", 1, { S(8) }, { 0 }, b_bincount, 0 },
    { "scatter_add", "repeated indices", 2, { S(3, 4), S(3, 6) }, { 0 }, b_scatter_add, 0 },
    { "cross_entropy", "rows", 1, { S(2, 3, 4) }, { 0 }, b_cross_entropy, 0 },
    { "mse_loss", "matrices", 2, { S(3, 4), S(3, 4) }, { 0 }, b_mse_loss, 0 },
    { "kv_append", "cache and rows", 2, { S(1, 2, 5, 2), S(1, 2, 2, 2) }, { 0 }, b_kv_append, 0 },
    { "prod", "one axis", 1, { S(2, 3, 4) }, { 0 }, b_prod, 0 },
    { "prod", "keep", 1, { S(2, 3, 2) }, { 0 }, b_prod_keep, 0 },
    { "cumsum", "inner axis", 1, { S(2, 3, 4) }, { 0 }, b_cumsum, 0 },
    { "det", "two matrices", 1, { S(2, 3, 3) }, { 0 }, b_det, 0 },
    { "inverse", "one", 1, { S(3, 3) }, { 0 }, b_inverse, 0 },
    { "solve", "a matrix for two sides", 2, { S(3, 3), S(2, 3, 2) }, { 0 }, b_solve, 0 },
    { "solve", "an upper triangle", 2, { S(2, 3, 3), S(2, 3, 1) }, { 0 }, b_solve_upper, 0 },
    { "solve", "ones on the diagonal", 2, { S(3, 3), S(3, 2) }, { 0 }, b_solve_ones, 0 },
    { "cholesky", "two matrices", 1, { S(2, 3, 3) }, { 0 }, b_cholesky, 0 },
    { "deform_conv",
      "two groups of offsets, a mask, a bias",
      5,
      { S(1, 2, 4, 3), S(2, 2, 2, 1), S(1, 8, 3, 3), S(1, 4, 3, 3), S(2) },
      { 0 },
      b_deform_conv,
      0 },
    { "deform_conv",
      "groups, stride, dilation, padding",
      3,
      { S(1, 4, 3, 3), S(2, 2, 2, 2), S(1, 8, 2, 4) },
      { 0 },
      b_deform_conv_bare,
      0 },
    { "cumprod", "last axis", 1, { S(3, 4) }, { 0 }, b_cumprod, 0 },
    { "cummax", "inner axis", 1, { S(2, 5, 2) }, { 0 }, b_cummax, 0 },
    { "scatter", "repeated indices", 2, { S(3, 4), S(3, 6) }, { 0 }, b_scatter, 0 },
    { "scatter_max", "repeated indices", 2, { S(4, 3), S(5, 3) }, { 0 }, b_scatter_max, 0 },
    { "leaky_relu", "both sides", 1, { S(3, 4) }, { 0 }, b_leaky_relu, 0 },
    { "prelu", "slope of a row", 2, { S(3, 4), S(4) }, { 0 }, b_prelu, 0 },
    { "elu", "both sides", 1, { S(3, 4) }, { 0 }, b_elu, 0 },
    { "celu", "both sides", 1, { S(3, 4) }, { 0 }, b_celu, 0 },
    { "l1_norm", "one axis", 1, { S(2, 3, 4) }, { 0 }, b_l1_norm, 0 },
    { "l2_norm", "keep", 1, { S(2, 3, 4) }, { 0 }, b_l2_norm, 0 },
    { "logsumexp", "two axes", 1, { S(2, 3, 4) }, { 0 }, b_logsumexp, 0 },
    { "logsumexp", "keep", 1, { S(2, 3, 4) }, { 0 }, b_logsumexp_keep, 0 },
    { "variance", "sample", 1, { S(2, 3, 4) }, { 0 }, b_variance, 0 },
    { "std", "population", 1, { S(2, 3, 4) }, { 0 }, b_std, 0 },
    { "rmsnorm", "gain", 2, { S(3, 4), S(4) }, { 0 }, b_rmsnorm, 0 },
    { "rmsnorm_1p", "gain", 2, { S(3, 4), S(4) }, { 0 }, b_rmsnorm_1p, 0 },
    { "normalize", "inner axis", 1, { S(2, 3, 4) }, { 0 }, b_normalize, 0 },
    { "sort", "descending", 1, { S(3, 4) }, { 0 }, b_sort, 0 },
    { "topk", "smallest", 1, { S(2, 5) }, { 0 }, b_topk, 0 },
    { "outer", "vectors", 2, { S(3), S(4) }, { 0 }, b_outer, 0 },
    { "vecdot", "inner axis", 2, { S(2, 3, 4), S(2, 3, 4) }, { 0 }, b_vecdot, 0 },
    { "vecdot", "broadcast", 2, { S(2, 3, 1), S(3, 4) }, { 0 }, b_vecdot_broadcast, 0 },
    { "einsum", "three", 3, { S(2, 3, 4), S(4, 2), S(2, 2) }, { 0 }, b_einsum, 0 },
    { "einsum", "trace", 2, { S(3, 3, 4), S(4, 2) }, { 0 }, b_einsum_trace, 0 },
    { "einsum", "ellipsis", 2, { S(2, 1, 2, 3), S(3, 3, 2) }, { 0 }, b_einsum_dots, 0 },
    { "masked_fill", "a row", 1, { S(3, 4) }, { 0 }, b_masked_fill, 0 },
    { "pad", "constant", 1, { S(3, 4) }, { 0 }, b_pad, 0 },
    { "pad", "reflect", 1, { S(3, 4) }, { 0 }, b_pad_reflect, 0 },
    { "pad", "edge", 1, { S(3, 4) }, { 0 }, b_pad_edge, 0 },
    { "flip", "two axes", 1, { S(2, 3, 4) }, { 0 }, b_flip, 0 },
    { "roll", "inner axis", 1, { S(2, 3, 4) }, { 0 }, b_roll, 0 },
    { "tile", "two axes", 1, { S(2, 3) }, { 0 }, b_tile, 0 },
    { "repeat", "first axis", 1, { S(2, 3) }, { 0 }, b_repeat, 0 },
    { "expand", "a new and an old axis", 1, { S(3, 1) }, { 0 }, b_expand, 0 },
    { "squeeze", "one axis", 1, { S(3, 1, 4) }, { 0 }, b_squeeze, 0 },
    { "unsqueeze", "last axis", 1, { S(3, 4) }, { 0 }, b_unsqueeze, 0 },
    { "stack", "three", 3, { S(2, 3), S(2, 3), S(2, 3) }, { 0 }, b_stack, 0 },
    { "split", "sizes", 1, { S(2, 5) }, { 0 }, b_split, 0 },
    { "tril", "below", 1, { S(3, 4) }, { 0 }, b_tril, 0 },
    { "triu", "above", 1, { S(3, 4) }, { 0 }, b_triu, 0 },
    { "diagonal", "above", 1, { S(3, 2, 4) }, { 0 }, b_diagonal, 0 },
    { "im2col", "stride, pad, dilation", 1, { S(1, 2, 3, 4) }, { 0 }, b_im2col, 0 },
    { "col2im", "overlaps, cut off", 1, { S(1, 4, 8) }, { 0 }, b_col2im, 0 },
    { "index_select", "repeated ids", 1, { S(2, 3, 2) }, { 0 }, b_index_select, 0 },
    { "gather_nd", "two parts", 1, { S(3, 3, 2) }, { 0 }, b_gather_nd, 0 },
    { "rotary", "halves", 1, { S(2, 3, 4) }, { 0 }, b_rotary, 0 },
    { "rotary", "interleaved", 1, { S(2, 3, 4) }, { 0 }, b_rotary_interleaved, 0 },
    { "rotary", "part of the head", 1, { S(2, 3, 7) }, { 0 }, b_rotary_part, 0 },
    { "rotary", "its table too", 2, { S(2, 3, 7), S(3, 4) }, { 0 }, b_rotary_by, 0 },
    { "rotary", "its table too, interleaved", 2, { S(2, 3, 5), S(2, 1, 4) }, { 0 }, b_rotary_by_interleaved, 0 },
    { "rotary", "back", 2, { S(2, 3, 5), S(3, 4) }, { 0 }, b_rotary_back, 0 },
    { "bce_loss", "probabilities", 2, { S(3, 4), S(3, 4) }, { 0 }, b_bce_loss, 0 },
    { "bce_logits_loss", "logits", 2, { S(3, 4), S(3, 4) }, { 0 }, b_bce_logits_loss, 0 },
    { "nll_loss", "rows", 1, { S(2, 3, 4) }, { 0 }, b_nll_loss, 0 },
    { "kl_loss", "rows", 2, { S(3, 4), S(3, 4) }, { ANY_SIGN, POSITIVE }, b_kl_loss, 0 },
    { "smooth_l1_loss", "near and far", 2, { S(3, 4), S(3, 4) }, { 0 }, b_smooth_l1_loss, 0 },
    { "mse_loss", "weights", 3, { S(3, 4), S(3, 4), S(4) }, { 0, 0, POSITIVE }, b_mse_loss_with, 0 },
    { "l1_loss", "weights, elements", 3, { S(3, 4), S(3, 4), S(3, 4) }, { 0, 0, POSITIVE }, b_l1_loss_with, 0 },
    { "smooth_l1_loss", "weights", 3, { S(3, 4), S(3, 4), S(3, 1) }, { 0, 0, POSITIVE }, b_smooth_l1_with, 0 },
    { "huber_loss", "weights", 3, { S(3, 4), S(3, 4), S(4) }, { 0, 0, POSITIVE }, b_huber_loss_with, 0 },
    { "bce_loss", "weights, sum", 3, { S(3, 4), S(3, 4), S(4) }, { 0 }, b_bce_loss_with, 0 },
    { "bce_logits_loss", "weights, positives", 4, { S(3, 4), S(3, 4), S(3, 1), S(4) }, { 0 }, b_bce_logits_with, 0 },
    { "kl_loss", "weights", 3, { S(3, 4), S(3, 4), S(4) }, { 0, POSITIVE, 0 }, b_kl_loss_with, 0 },
    { "kl_loss", "logarithms", 3, { S(3, 4), S(3, 4), S(3, 4) }, { 0 }, b_kl_log_target, 0 },
    { "nll_loss", "weights", 2, { S(2, 3, 4), S(4) }, { 0, POSITIVE }, b_nll_loss_with, 0 },
    { "cross_entropy_smooth", "rows", 1, { S(2, 3, 4) }, { 0 }, b_cross_entropy_smooth, 0 },
    { "linear_quantized", "bias", 2, { S(2, 3, 4), S(3) }, { 0 }, b_linear_quantized, 4 },
    { "expert_linear", "bias", 3, { S(5, 4), S(3, 4, 2), S(3, 2) }, { 0 }, b_expert_linear, 0 },
    { "expert_linear", "repeated rows", 2, { S(2, 4), S(3, 4, 2) }, { 0 }, b_expert_linear_repeats, 0 },
    { "expert_linear", "one row", 2, { S(4), S(3, 4, 2) }, { 0 }, b_expert_linear_one, 0 },
    { "conv", "bias", 3, { S(2, 2, 4, 5), S(3, 2, 2, 2), S(3) }, { 0 }, b_conv, 0 },
    { "conv", "groups", 2, { S(1, 4, 5, 4), S(6, 2, 3, 2) }, { 0 }, b_conv_groups, 0 },
    { "conv", "a filter a channel", 2, { S(2, 3, 9), S(3, 1, 2) }, { 0 }, b_conv_own, 0 },
    { "conv", "residual, clamp", 4, { S(2, 2, 4), S(3, 2, 2), S(3), S(2, 3, 3) }, { 0 }, b_conv_tail, 0 },
    { "conv", "three axes", 2, { S(1, 2, 2, 3, 3), S(2, 2, 2, 2, 2) }, { 0 }, b_conv_volume, 0 },
    { "conv", "transposed", 3, { S(2, 2, 3, 3), S(2, 3, 2, 2), S(3) }, { 0 }, b_conv_back, 0 },
    { "conv", "transposed groups", 2, { S(2, 4, 3), S(4, 2, 3) }, { 0 }, b_conv_back_groups, 0 },
    { "interpolate", "nearest", 1, { S(2, 3, 4) }, { 0 }, b_interpolate, 0 },
    { "interpolate", "linear", 1, { S(2, 3, 4) }, { 0 }, b_interpolate_linear, 0 },
    { "interpolate", "cubic", 1, { S(2, 3, 4) }, { 0 }, b_interpolate_cubic, 0 },
    { "recurrent",
      "both directions",
      5,
      { S(3, 3, 2), S(2, 2, 2), S(2, 2, 2), S(2, 2), S(2, 3, 2) },
      { 0 },
      b_recurrent,
      0 },
    { "recurrent", "in reverse", 4, { S(3, 2, 1), S(1, 3, 1), S(1, 3, 3), S(1, 3) }, { 0 }, b_recurrent_back, 0 },
    { "recurrent", "GRU", 5, { S(3, 3, 2), S(2, 6, 2), S(2, 6, 2), S(2, 6), S(2, 3, 2) }, { 0 }, b_gru, 0 },
    { "recurrent",
      "GRU that resets first",
      5,
      { S(3, 3, 2), S(2, 6, 2), S(2, 6, 2), S(2, 6), S(2, 3, 2) },
      { 0 },
      b_gru_first,
      0 },
    { "recurrent",
      "GRU that resets first, in reverse",
      3,
      { S(3, 2, 1), S(1, 9, 1), S(1, 9, 3) },
      { 0 },
      b_gru_first_onnx,
      0 },
    { "recurrent", "GRU, clipped", 3, { S(2, 2, 1), S(1, 6, 1), S(1, 6, 2) }, { 0 }, b_gru_onnx, 0 },
    { "recurrent",
      "LSTM",
      6,
      { S(3, 3, 1), S(2, 8, 1), S(2, 8, 2), S(2, 8), S(2, 3, 2), S(2, 3, 2) },
      { 0 },
      b_lstm,
      0 },
    { "recurrent",
      "LSTM, peepholes",
      5,
      { S(2, 2, 2), S(2, 8, 2), S(2, 8, 2), S(2, 6), S(2, 2, 2) },
      { 0 },
      b_lstm_onnx,
      0 },
    { "recurrent",
      "LSTM, coupled",
      5,
      { S(2, 2, 2), S(1, 8, 2), S(1, 8, 2), S(1, 6), S(1, 8) },
      { 0 },
      b_lstm_coupled,
      0 },
    { "pool", "largest", 1, { S(2, 2, 4, 5) }, { 0 }, b_pool_max, 0 },
    { "pool", "sum", 1, { S(1, 2, 4, 5) }, { 0 }, b_pool_sum, 0 },
    { "pool", "average", 1, { S(2, 2, 4, 5) }, { 0 }, b_pool_average, 0 },
    { "pool", "average over pads", 1, { S(1, 2, 4, 5) }, { 0 }, b_pool_pads, 0 },
    { "pool", "adaptive", 1, { S(1, 2, 4, 5) }, { 0 }, b_pool_adaptive, 0 },
    { "pool", "windows that meet nothing", 1, { S(1, 2, 2) }, { 0 }, b_pool_apart, 0 },
    { "pool", "three axes", 1, { S(1, 2, 3, 2, 4) }, { 0 }, b_pool_volume, 0 },
    { "attention", "grouped heads", 3, { QKV }, { 0 }, b_attention, 0 },
    { "attention", "causal, scale", 3, { QKV }, { 0 }, b_attention_causal, 0 },
    { "attention", "bool mask", 3, { QKV }, { 0 }, b_attention_bool, 0 },
    { "attention", "added mask", 4, { QKV, S(4, 3, 5) }, { 0 }, b_attention_added, 0 },
    { "attention", "length", 3, { QKV }, { 0 }, b_attention_length, 0 },
    { "attention_with", "window", 3, { QKV }, { 0 }, b_attention_window, 0 },
    { "attention_with", "soft cap", 3, { QKV }, { 0 }, b_attention_cap, 0 },
    { "attention_with", "slopes", 4, { QKV, S(4) }, { 0 }, b_attention_slopes, 0 },
    { "attention_with", "sinks", 4, { QKV, S(4) }, { 0 }, b_attention_sinks, 0 },
    { "attention_with", "all of them", 6, { QKV, S(4, 3, 5), S(4), S(4) }, { 0 }, b_attention_all, 0 },
};

/* All problems of one row of the table; a row with a gradient but without a problem fails. */
static void test_row(const gn_op_info *row) {
    char name[96];
    int count = 0;
    snprintf(name, sizeof name, "gradient_%s_equals_difference_quotient", row->name);
    if (!row->has_gradient || !test_open(name)) return;
    for (int k = 0; k < TEST_COUNT(problems); k++) {
        if (strcmp(problems[k].op, row->name) == 0) {
            run_trial(&problems[k], false);
            run_trial(&problems[k], true);
            count++;
        }
    }
    if (count == 0 && row->kind == GN_CLASS_SCALAR && row->arity >= 1 && row->arity <= 3) {
        scalar_problems(row);
        count++;
    }
    if (count == 0) test_fail(__FILE__, __LINE__, "the op has a gradient and no problem here");
    test_close();
}

/* Ops without a row: the names of problems that the table does not have. */
static void test_composites(void) {
    for (int k = 0; k < TEST_COUNT(problems); k++) {
        gn_op_info row, composite = { .name = problems[k].op, .kind = GN_CLASS_STRUCTURED, .has_gradient = true };
        bool known = k > 0 && strcmp(problems[k - 1].op, problems[k].op) == 0; /* problems of one op stand together */
        for (int i = 0; i < gn_op_count() && !known; i++)
            known = gn_get_op(i, &row) == GN_OK && strcmp(row.name, problems[k].op) == 0;
        if (!known) test_row(&composite);
    }
}

/* ---- gn_grad itself ---- */

TEST(gradient_of_products_with_zeros_is_that_of_the_others) {
    static const double x[4][3] = { { 2, 5, 3 }, { 2, 0, 3 }, { 0, 5, 0 }, { 0, 0, 0 } };
    static const double prod[4][3] = { { 15, 6, 10 }, { 0, 6, 0 }, { 0, 0, 0 }, { 0, 0, 0 } };
    /* of x0 + x0 x1 + x0 x1 x2 */
    static const double running[4][3] = { { 21, 8, 10 }, { 1, 8, 0 }, { 6, 0, 0 }, { 1, 0, 0 } };
    double got[4][3];
    for (int k = 0; k < 2; k++) {
        gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(4, 3), x), out;
        gn_tensor y = k ? gn_cumprod(t, 1) : gn_prod(t, GN_AXES(1), false);
        CHECK_RESULT(gn_grad(gn_sum(y, GN_ALL_AXES, false), &t, 1, &out), GN_OK);
        CHECK_RESULT(gn_read(out, got, sizeof got), GN_OK);
        for (int i = 0; i < 12; i++) CHECK_NEAR(got[i / 3][i % 3], (k ? running : prod)[i / 3][i % 3], 0);
        gn_step(g);
    }
}

TEST(gradient_of_a_tensor_used_twice_adds_up) {
    double x[3] = { 1, 2, -3 }, got[3];
    gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(3), x), out;
    gn_tensor loss = gn_sum(gn_add(gn_mul(t, t), gn_mul_c(t, 5)), GN_ALL_AXES, false);
    CHECK_RESULT(gn_grad(loss, &t, 1, &out), GN_OK);
    CHECK_RESULT(gn_read(out, got, sizeof got), GN_OK);
    for (int i = 0; i < 3; i++) CHECK_NEAR(got[i], 2 * x[i] + 5, 0);
    gn_step(g);
}

TEST(gradient_of_an_inner_tensor_stops_there) {
    double x[2] = { 1, 2 }, got[2];
    gn_tensor inner = gn_mul_c(gn_data(g, GN_F64, GN_SHAPE(2), x), 3), out;
    CHECK_RESULT(gn_grad(gn_sum(gn_mul(inner, inner), GN_ALL_AXES, false), &inner, 1, &out), GN_OK);
    CHECK_RESULT(gn_read(out, got, sizeof got), GN_OK);
    CHECK_NEAR(got[0], 6, 0);
    CHECK_NEAR(got[1], 12, 0);
    gn_step(g);
}

TEST(gradient_of_a_tensor_that_no_gradient_passes_through_stops_there) {
    double got[2];
    int64_t ids[1] = { 1 };
    gn_tensor in[2] = { gn_random_normal(g, GN_F64, GN_SHAPE(2)),
                        gn_one_hot(gn_data(g, GN_I64, GN_SHAPE(1), ids), 2, GN_F64) },
              out[2];
    gn_tensor loss = gn_sum(gn_add(gn_mul_c(in[0], 3), gn_mul_c(in[1], 4)), GN_ALL_AXES, false);
    CHECK_RESULT(gn_grad(loss, in, 2, out), GN_OK);
    CHECK_RESULT(gn_read(out[0], got, sizeof got), GN_OK);
    CHECK(got[0] == 3 && got[1] == 3);
    CHECK_RESULT(gn_read(out[1], got, sizeof got), GN_OK);
    CHECK(got[0] == 4 && got[1] == 4);
    gn_step(g);
}

TEST(gradient_of_the_loss_itself_is_one) {
    double x = 4, got = 0;
    gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(1, 1), &x), out;
    CHECK_RESULT(gn_grad(t, &t, 1, &out), GN_OK);
    CHECK_RESULT(gn_read(out, &got, sizeof got), GN_OK);
    CHECK_NEAR(got, 1, 0);
    gn_step(g);
}

TEST(gradient_of_states_and_weights_has_their_shape_and_dtype) {
    float w[6] = { 1, 2, 3, 4, 5, 6 }, got[6];
    gn_tensor p[2] = { gn_state(g, GN_F32, GN_SHAPE(2, 3), w, "p"), gn_weight(g, GN_F32, GN_SHAPE(2, 3), w, "w") },
              out[2];
    gn_info info;
    CHECK_RESULT(gn_grad(gn_sum(gn_mul(p[0], p[1]), GN_ALL_AXES, false), p, 2, out), GN_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gn_describe(out[i], &info), GN_OK);
        CHECK_INT(info.dtype, GN_F32);
        CHECK(info.shape.rank == 2 && info.shape.dims[0] == 2 && info.shape.dims[1] == 3);
        CHECK_RESULT(gn_read(out[i], got, sizeof got), GN_OK);
        CHECK(memcmp(got, w, sizeof w) == 0);
    }
    gn_step(g);
    CHECK_RESULT(gn_release(p[0]), GN_OK);
    CHECK_RESULT(gn_release(p[1]), GN_OK);
}

TEST(gradient_of_mixed_dtypes_has_each_inputs_dtype) {
    float x[2] = { 1, 2 };
    double y[2] = { 3, 4 }, dy[2];
    float dx[2];
    gn_tensor in[2] = { gn_data(g, GN_F32, GN_SHAPE(2), x), gn_data(g, GN_F64, GN_SHAPE(2), y) }, out[2];
    CHECK_RESULT(gn_grad(gn_sum(gn_mul(in[0], in[1]), GN_ALL_AXES, false), in, 2, out), GN_OK);
    CHECK_RESULT(gn_read(out[0], dx, sizeof dx), GN_OK);
    CHECK_RESULT(gn_read(out[1], dy, sizeof dy), GN_OK);
    CHECK(dx[0] == 3 && dx[1] == 4 && dy[0] == 1 && dy[1] == 2);
    gn_step(g);
}

TEST(gradient_of_an_unreached_parameter_is_no_gradient) {
    double x[2] = { 1, 2 };
    gn_tensor in[2] = { gn_data(g, GN_F64, GN_SHAPE(2), x), gn_data(g, GN_F64, GN_SHAPE(2), x) }, out[2];
    CHECK_RESULT(gn_grad(gn_sum(in[0], GN_ALL_AXES, false), in, 2, out), GN_NO_GRADIENT);
    gn_tensor chosen = gn_sum(gn_cast(gn_argmax(in[0], GN_ALL_AXES, false), GN_F64), GN_ALL_AXES, false);
    CHECK_RESULT(gn_grad(chosen, in, 1, out), GN_NO_GRADIENT);
    gn_step(g);
}

TEST(gradient_of_a_loss_that_is_no_float_element_is_an_error) {
    double x[2] = { 1, 2 };
    gn_tensor in = gn_data(g, GN_F64, GN_SHAPE(2), x), out;
    CHECK(gn_grad(in, &in, 1, &out) != GN_OK);
    gn_tensor whole = gn_sum(gn_cast(in, GN_I32), GN_ALL_AXES, false);
    CHECK(gn_grad(whole, &in, 1, &out) != GN_OK);
    gn_tensor failed = gn_sum(gn_add(in, gn_data(g, GN_F64, GN_SHAPE(1, 3), NULL)), GN_ALL_AXES, false);
    CHECK(gn_grad(failed, &in, 1, &out) != GN_OK);
    gn_step(g);
}

/* ---- optimisers: loss = sum(c (p - t)^2) / 2, so that its gradient is c (p - t) ---- */

enum { PARAMS = 2, SIZE = 5, STEPS = 9 };
static const double targets[SIZE] = { 1, -2, 0.5, 3, -0.25 }, curvature[SIZE] = { 1, 0.3, 2, 0.7, 1.5 };

typedef struct training {
    gn_dtype dtype;
    gn_tensor p[PARAMS], first[PARAMS], second[PARAMS];
} training;

/* SIZE numbers of the training's dtype, from doubles. */
static gn_tensor numbers(const training *t, const double *x) {
    return gn_cast(gn_data_copy(g, GN_F64, GN_SHAPE(SIZE), x), t->dtype);
}

static gn_tensor zero_state(gn_dtype dtype, const char *label) {
    return gn_state(g, dtype, GN_SHAPE(SIZE), NULL, label);
}

static training start_training(gn_dtype dtype) {
    training t = { .dtype = dtype };
    for (int i = 0; i < PARAMS; i++) {
        t.p[i] = zero_state(dtype, "p");
        t.first[i] = zero_state(dtype, "m");
        t.second[i] = zero_state(dtype, "v");
    }
    return t;
}

static void end_training(training *t) {
    for (int i = 0; i < PARAMS; i++) {
        CHECK_RESULT(gn_release(t->p[i]), GN_OK);
        CHECK_RESULT(gn_release(t->first[i]), GN_OK);
        CHECK_RESULT(gn_release(t->second[i]), GN_OK);
    }
}

static void gradients_of(const training *t, gn_tensor *out) {
    gn_tensor loss = gn_scalar(g, t->dtype, 0);
    for (int i = 0; i < PARAMS; i++) {
        gn_tensor d = gn_sub(t->p[i], numbers(t, targets));
        gn_tensor terms = gn_mul_c(gn_mul(numbers(t, curvature), gn_mul(d, d)), 0.5 * (i + 1));
        loss = gn_add(loss, gn_sum(terms, GN_ALL_AXES, false));
    }
    CHECK_RESULT(gn_grad(loss, t->p, PARAMS, out), GN_OK);
}

static double slope(int i, int j, double p) { return curvature[j] * (i + 1) * (p - targets[j]); }

static void check_params(const training *t, double want[PARAMS][SIZE], double bound) {
    for (int i = 0; i < PARAMS; i++) {
        double got[SIZE];
        CHECK_RESULT(gn_read(gn_cast(t->p[i], GN_F64), got, sizeof got), GN_OK);
        for (int j = 0; j < SIZE; j++) CHECK_NEAR(got[j], want[i][j], bound * (1 + fabs(want[i][j])));
    }
}

static void run_sgd(gn_dtype dtype, double momentum, double decay, double bound) {
    training t = start_training(dtype);
    double p[PARAMS][SIZE] = { { 0 } }, v[PARAMS][SIZE] = { { 0 } };
    for (int step = 0; step < STEPS; step++) {
        gn_tensor grads[PARAMS];
        double lr = 0.1 / (1 + step);
        gn_sgd_desc desc = { .lr = gn_scalar(g, dtype, lr), .momentum = momentum, .weight_decay = decay };
        gradients_of(&t, grads);
        CHECK_RESULT(gn_sgd(&desc, t.p, grads, momentum > 0 ? t.first : NULL, PARAMS), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
        for (int i = 0; i < PARAMS; i++) {
            for (int j = 0; j < SIZE; j++) {
                v[i][j] = momentum * v[i][j] + slope(i, j, p[i][j]) + decay * p[i][j];
                p[i][j] -= lr * v[i][j];
            }
        }
    }
    check_params(&t, p, bound);
    end_training(&t);
    CHECK_RESULT(gn_step(g), GN_OK);
}

TEST(sgd_plain_follows_the_c_loop) { run_sgd(GN_F64, 0, 0, 1e-13); }
TEST(sgd_with_momentum_follows_the_c_loop) { run_sgd(GN_F64, 0.9, 0, 1e-13); }
TEST(sgd_with_weight_decay_follows_the_c_loop) { run_sgd(GN_F64, 0, 0.05, 1e-13); }
TEST(sgd_with_momentum_and_weight_decay_follows_the_c_loop) { run_sgd(GN_F64, 0.8, 0.1, 1e-13); }
TEST(sgd_in_f32_follows_the_c_loop) { run_sgd(GN_F32, 0.9, 0.01, 1e-5); }

static void adamw_loop(double p[SIZE], double m[SIZE], double v[SIZE], int i, int step, const gn_adamw_desc *d,
                       double lr) {
    double b1 = d->beta1 > 0 ? d->beta1 : 0.9, b2 = d->beta2 > 0 ? d->beta2 : 0.999, eps = d->eps > 0 ? d->eps : 1e-8;
    for (int j = 0; j < SIZE; j++) {
        double grad = slope(i, j, p[j]);
        m[j] = b1 * m[j] + (1 - b1) * grad;
        v[j] = b2 * v[j] + (1 - b2) * grad * grad;
        double mean = m[j] / (1 - pow(b1, step)), square = v[j] / (1 - pow(b2, step));
        p[j] -= lr * (mean / (sqrt(square) + eps) + d->weight_decay * p[j]);
    }
}

static void run_adamw(gn_dtype dtype, gn_adamw_desc desc, double bound) {
    training t = start_training(dtype);
    double p[PARAMS][SIZE] = { { 0 } }, m[PARAMS][SIZE] = { { 0 } }, v[PARAMS][SIZE] = { { 0 } };
    for (int step = 1; step <= STEPS; step++) {
        gn_tensor grads[PARAMS];
        desc.lr = gn_scalar(g, dtype, 0.05);
        desc.step = gn_scalar(g, dtype, step);
        gradients_of(&t, grads);
        CHECK_RESULT(gn_adamw(&desc, t.p, grads, t.first, t.second, PARAMS), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
        for (int i = 0; i < PARAMS; i++) adamw_loop(p[i], m[i], v[i], i, step, &desc, 0.05);
    }
    check_params(&t, p, bound);
    end_training(&t);
    CHECK_RESULT(gn_step(g), GN_OK);
}

TEST(adamw_by_default_follows_the_c_loop) { run_adamw(GN_F64, (gn_adamw_desc){ .beta1 = 0 }, 1e-11); }
TEST(adamw_with_own_betas_follows_the_c_loop) {
    run_adamw(GN_F64, (gn_adamw_desc){ .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4 }, 1e-11);
}
TEST(adamw_with_weight_decay_follows_the_c_loop) { run_adamw(GN_F64, (gn_adamw_desc){ .weight_decay = 0.1 }, 1e-11); }
TEST(adamw_in_f32_follows_the_c_loop) { run_adamw(GN_F32, (gn_adamw_desc){ .weight_decay = 0.01 }, 1e-4); }

TEST(optimisers_refuse_what_is_no_state) {
    double x[SIZE] = { 0 };
    gn_tensor p = gn_data(g, GN_F64, GN_SHAPE(SIZE), x);
    gn_sgd_desc sgd = { .lr = gn_scalar(g, GN_F64, 0.1) };
    CHECK_RESULT(gn_sgd(&sgd, &p, &p, NULL, 1), GN_NOT_A_STATE);
    gn_adamw_desc adamw = { .lr = sgd.lr, .step = gn_scalar(g, GN_F64, 1) };
    CHECK_RESULT(gn_adamw(&adamw, &p, &p, &p, &p, 1), GN_NOT_A_STATE);
    CHECK_RESULT(gn_step(g), GN_NOT_A_STATE);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(gradient_of_products_with_zeros_is_that_of_the_others),
        TEST_ENTRY(gradient_of_a_tensor_used_twice_adds_up),
        TEST_ENTRY(gradient_of_an_inner_tensor_stops_there),
        TEST_ENTRY(gradient_of_a_tensor_that_no_gradient_passes_through_stops_there),
        TEST_ENTRY(gradient_of_the_loss_itself_is_one),
        TEST_ENTRY(gradient_of_states_and_weights_has_their_shape_and_dtype),
        TEST_ENTRY(gradient_of_mixed_dtypes_has_each_inputs_dtype),
        TEST_ENTRY(gradient_of_an_unreached_parameter_is_no_gradient),
        TEST_ENTRY(gradient_of_a_loss_that_is_no_float_element_is_an_error),
        TEST_ENTRY(sgd_plain_follows_the_c_loop),
        TEST_ENTRY(sgd_with_momentum_follows_the_c_loop),
        TEST_ENTRY(sgd_with_weight_decay_follows_the_c_loop),
        TEST_ENTRY(sgd_with_momentum_and_weight_decay_follows_the_c_loop),
        TEST_ENTRY(sgd_in_f32_follows_the_c_loop),
        TEST_ENTRY(adamw_by_default_follows_the_c_loop),
        TEST_ENTRY(adamw_with_own_betas_follows_the_c_loop),
        TEST_ENTRY(adamw_with_weight_decay_follows_the_c_loop),
        TEST_ENTRY(adamw_in_f32_follows_the_c_loop),
        TEST_ENTRY(optimisers_refuse_what_is_no_state),
    };
    test_begin(argc, argv);
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int i = 0; i < gn_op_count(); i++) {
        gn_op_info row;
        if (gn_get_op(i, &row) == GN_OK) test_row(&row);
    }
    test_composites();
    test_all(tests, TEST_COUNT(tests));
    gn_close(g);
    return test_end();
}
