/* Misuse of the public API: NULL everywhere, handles of nothing, of ended steps, of other contexts and of closed ones,
 * shapes that are none, too large, empty or of rank 8, and a long random walk over all builders with such arguments.
 * Nothing may crash, hang or answer GN_INTERNAL; each failure has a text. On the null device and on the CPU; meant to
 * run under sanitizers too.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

static gn_ctx *g, *other;
static bool computes;

static gn_tensor small(gn_dtype d, gn_shape s) {
    static const double x[64] = { 0 };
    return gn_cast(gn_data(g, GN_F64, s, x), d);
}

/* ---- the builders, with arguments that may be anything ---- */

/* Numbers that a caller may get wrong; those in the middle would be valid sizes that take time, and are for null
   alone. */
static int64_t any_int(void) {
    static const int64_t x[] = { 0,
                                 1,
                                 2,
                                 3,
                                 -1,
                                 -2,
                                 4,
                                 8,
                                 INT64_MIN,
                                 INT64_MAX,
                                 INT64_MIN + 1,
                                 INT32_MAX,
                                 INT32_MIN,
                                 INT64_C(1) << 46,
                                 INT64_C(1) << 47,
                                 1 << 10,
                                 1 << 20,
                                 INT64_C(1) << 32,
                                 INT64_C(1) << 40 };
    int64_t k = test_random_int(0, computes ? 10 : TEST_COUNT(x) - 1);
    return test_random_int(0, 3) ? test_random_int(-1, 3) : x[k];
}

static int any_axis(void) { return test_random_int(0, 9) ? (int)test_random_int(-3, 3) : (int)any_int(); }
static double any_number(void) {
    static const double x[] = { 0, 1, -1, 0.5, 2, 1e300, -1e300, 1e-310, INFINITY, -INFINITY, NAN, -0.0 };
    return x[test_random_int(0, TEST_COUNT(x) - 1)];
}
static bool any_flag(void) { return (test_random() & 1) != 0; }
static gn_dtype any_dtype(void) {
    return (gn_dtype)(test_random_int(0, 30) ? test_random_int(1, GN_DTYPE__COUNT - 1) : test_random_int(-2, 99));
}

static gn_shape any_shape(void) {
    gn_shape s = { (int32_t)test_random_int(0, 4), { 0 } };
    if (test_random_int(0, 15) == 0) s.rank = (int32_t)any_int();
    for (int i = 0; i < GN_MAX_RANK; i++) s.dims[i] = any_int();
    return s;
}

static gn_axes any_axes(void) {
    gn_axes a = { (int32_t)test_random_int(0, 3), { 0 } };
    if (test_random_int(0, 15) == 0) a.n = (int32_t)any_int();
    for (int i = 0; i < GN_MAX_RANK; i++) a.axis[i] = any_axis();
    return a;
}

static const char *any_spec(void) {
    static const char *const x[] = {
        "ij,jk->ik",   "ij,jk", "...,...",    "i...->...i", "ii",   "ij->",   "",
        ",",           "->",    "i-",         "...",        "..",   "i,i->i", "...ij,...jk->...ik",
        "ABCDEFGHIJ",  ",,,,",  "....",       "i i",        "\xff", "ij,ij",  "iii,i",
        "ab,cd->abcd", "->...", "ij->ij...ij"
    };
    return x[test_random_int(0, TEST_COUNT(x) - 1)];
}

static gn_tensor topk_of(gn_tensor a, bool positions) {
    gn_tensor out[2] = { GN_NONE, GN_NONE };
    gn_topk(a, any_int(), any_axis(), any_flag(), &out[0], &out[1]);
    return out[positions];
}

static gn_tensor split_of(gn_tensor a) {
    gn_tensor out[3] = { GN_NONE, GN_NONE, GN_NONE };
    const int64_t sizes[3] = { any_int(), any_int(), any_int() };
    gn_split(a, any_axis(), any_flag() ? sizes : NULL, 3, out);
    return out[test_random_int(0, 2)];
}

static gn_tensor attention_of(const gn_tensor *in, int n) {
    gn_attention_desc d = {
        .causal = any_flag(), .scale = any_number(), .mask = n > 3 ? in[3] : GN_NONE, .length = n > 4 ? in[4] : GN_NONE
    };
    if (any_flag()) {
        d.window = any_int();
        d.soft_cap = any_number();
        d.slopes = in[3];
        d.sinks = in[4];
    }
    return gn_attention(in[0], in[1], in[2], any_flag() ? &d : NULL);
}

static gn_tensor sample_of(const gn_tensor *in, bool draws) {
    gn_sample_desc d = { .counts = in[1] };
    if (draws) {
        d.seed = in[2];
        d.counter = in[3];
        d.presence = d.top_k = in[4];
        return gn_sample(in[0], &d);
    }
    d.repetition = d.frequency = in[2];
    d.bias = in[3];
    d.allowed = in[4];
    return gn_adjust_logits(in[0], &d);
}
static gn_tensor top_log_probs_of(gn_tensor a, bool tokens) {
    gn_tensor out[2];
    gn_top_log_probs(a, any_int(), &out[0], &out[1]);
    return out[tokens];
}

static gn_quantized quantized_of(const gn_tensor *in) {
    static const int formats[] = { 2, 3, 6, 7, 8, 12, 13, 14, 64, 65, 66, 0, 99 };
    return (gn_quantized){ .format = (gn_quant)formats[test_random_int(0, 12)],
                           .data = in[0],
                           .scales = any_flag() ? in[1] : GN_NONE,
                           .zeros = any_flag() ? in[2] : GN_NONE,
                           .rows = any_flag() ? any_int() : 0 };
}
static gn_tensor attention_quantized_of(const gn_tensor *in) {
    gn_attention_desc d = { .causal = any_flag(), .length = any_flag() ? in[2] : GN_NONE };
    return gn_attention_quantized(in[3], quantized_of(in), quantized_of(in), any_flag() ? &d : NULL);
}
static gn_tensor quantize_of(gn_tensor a) {
    const gn_tensor in[3] = { a, a, a };
    gn_quantize_desc d = { quantized_of(in).format, any_flag() ? any_int() : 0, any_flag() ? any_int() : 0, any_dtype(),
                           any_flag() };
    return gn_quantize(a, any_flag() ? &d : NULL).data;
}

static gn_tensor rotary_of(const gn_tensor *in, bool whole) {
    gn_rotary_desc d = { .base = any_number(),
                         .interleaved = any_flag(),
                         .size = any_int(),
                         .scaling = (gn_rotary_scaling)any_int(),
                         .factor = any_number(),
                         .context = any_int(),
                         .beta_fast = any_number(),
                         .beta_slow = any_number(),
                         .low_frequency = any_number(),
                         .high_frequency = any_number(),
                         .magnitude = any_number() };
    const gn_rotary_desc *desc = any_flag() ? &d : NULL;
    return whole ? gn_rotary_with(in[0], in[1], desc) : gn_rotary_table(in[0], any_dtype(), desc);
}

static gn_tensor conv_of(const gn_tensor *in) {
    gn_conv_desc d = { .groups = any_int(),
                       .transposed = any_flag(),
                       .residual = any_flag() ? in[3] : GN_NONE,
                       .clamps = any_flag(),
                       .least = any_number(),
                       .most = any_number() };
    for (int i = 0; i < 3; i++) {
        d.stride[i] = any_int();
        d.dilation[i] = any_int();
        d.before[i] = any_int();
        d.after[i] = any_int();
        d.extra[i] = any_int();
    }
    return gn_conv(in[0], in[1], any_flag() ? in[2] : GN_NONE, any_flag() ? &d : NULL);
}

static gn_tensor pool_of(const gn_tensor *in) {
    gn_pool_desc d = {
        .kind = (gn_pool_kind)any_int(), .ceiling = any_flag(), .counts_pads = any_flag(), .adaptive = any_flag()
    };
    for (int i = 0; i < 3; i++) {
        d.kernel[i] = any_int();
        d.stride[i] = any_int();
        d.dilation[i] = any_int();
        d.before[i] = any_int();
        d.after[i] = any_int();
    }
    return gn_pool(in[0], any_flag() ? &d : NULL);
}

/* X(name, inputs, call) */
#define CALLS(X)                                                                                             \
    X(clamp, 1, gn_clamp(in[0], any_number(), any_number()))                                                 \
    X(where, 3, gn_where(in[0], in[1], in[2]))                                                               \
    X(cast, 1, gn_cast(in[0], any_dtype()))                                                                  \
    X(isnan, 1, gn_isnan(in[0]))                                                                             \
    X(isinf, 1, gn_isinf(in[0]))                                                                             \
    X(isfinite, 1, gn_isfinite(in[0]))                                                                       \
    X(logical_not, 1, gn_logical_not(in[0]))                                                                 \
    X(logical_and, 2, gn_logical_and(in[0], in[1]))                                                          \
    X(logical_xor, 2, gn_logical_xor(in[0], in[1]))                                                          \
    X(leaky_relu, 1, gn_leaky_relu(in[0], any_number()))                                                     \
    X(prelu, 2, gn_prelu(in[0], in[1]))                                                                      \
    X(elu, 1, gn_elu(in[0], any_number()))                                                                   \
    X(celu, 1, gn_celu(in[0], any_number()))                                                                 \
    X(add_c, 1, gn_add_c(in[0], any_number()))                                                               \
    X(lt_c, 1, gn_lt_c(in[0], any_number()))                                                                 \
    X(like, 1, gn_like(in[0], any_number()))                                                                 \
    X(sum, 1, gn_sum(in[0], any_axes(), any_flag()))                                                         \
    X(mean, 1, gn_mean(in[0], any_axes(), any_flag()))                                                       \
    X(max, 1, gn_max(in[0], any_axes(), any_flag()))                                                         \
    X(argmin, 1, gn_argmin(in[0], any_axes(), any_flag()))                                                   \
    X(prod, 1, gn_prod(in[0], any_axes(), any_flag()))                                                       \
    X(any, 1, gn_any(in[0], any_axes(), any_flag()))                                                         \
    X(all, 1, gn_all(in[0], any_axes(), any_flag()))                                                         \
    X(count_nonzero, 1, gn_count_nonzero(in[0], any_axes(), any_flag()))                                     \
    X(l1_norm, 1, gn_l1_norm(in[0], any_axes(), any_flag()))                                                 \
    X(l2_norm, 1, gn_l2_norm(in[0], any_axes(), any_flag()))                                                 \
    X(logsumexp, 1, gn_logsumexp(in[0], any_axes(), any_flag()))                                             \
    X(variance, 1, gn_variance(in[0], any_axes(), any_axis(), any_flag()))                                   \
    X(std, 1, gn_std(in[0], any_axes(), any_axis(), any_flag()))                                             \
    X(cumsum, 1, gn_cumsum(in[0], any_axis()))                                                               \
    X(cumprod, 1, gn_cumprod(in[0], any_axis()))                                                             \
    X(cummax, 1, gn_cummax(in[0], any_axis()))                                                               \
    X(softmax, 1, gn_softmax(in[0], any_axis()))                                                             \
    X(log_softmax, 1, gn_log_softmax(in[0], any_axis()))                                                     \
    X(layernorm, 3, gn_layernorm(in[0], in[1], in[2], any_number()))                                         \
    X(rmsnorm, 2, gn_rmsnorm(in[0], in[1], any_number()))                                                    \
    X(normalize, 1, gn_normalize(in[0], any_axis(), any_number()))                                           \
    X(sort, 1, gn_sort(in[0], any_axis(), any_flag()))                                                       \
    X(argsort, 1, gn_argsort(in[0], any_axis(), any_flag()))                                                 \
    X(topk_values, 1, topk_of(in[0], false))                                                                 \
    X(topk_positions, 1, topk_of(in[0], true))                                                               \
    X(matmul, 2, gn_matmul(in[0], in[1]))                                                                    \
    X(expert_linear, 4, gn_expert_linear(in[0], in[1], in[2], in[3]))                                        \
    X(pool, 1, pool_of(in))                                                                                  \
    X(linear_quantized, 5, gn_linear_quantized(in[3], quantized_of(in), any_flag() ? in[4] : GN_NONE))       \
    X(embedding_quantized, 4, gn_embedding_quantized(quantized_of(in), in[3], any_dtype()))                  \
    X(dequantize, 3, gn_dequantize(quantized_of(in), any_dtype()))                                           \
    X(quantize, 1, quantize_of(in[0]))                                                                       \
    X(conv, 4, conv_of(in))                                                                                  \
    X(matmul_ints, 2, gn_matmul_ints(in[0], in[1], GN_NONE, GN_NONE))                                        \
    X(conv_ints, 2, gn_conv_ints(in[0], in[1], GN_NONE, GN_NONE, NULL))                                      \
    X(linear, 3, gn_linear(in[0], in[1], in[2]))                                                             \
    X(outer, 2, gn_outer(in[0], in[1]))                                                                      \
    X(vecdot, 2, gn_vecdot(in[0], in[1], any_axis()))                                                        \
    X(einsum, 2, gn_einsum(any_spec(), in, (int)test_random_int(1, 2)))                                      \
    X(reshape, 1, gn_reshape(in[0], any_shape()))                                                            \
    X(transpose, 1, gn_transpose(in[0], any_axis(), any_axis()))                                             \
    X(permute, 1, gn_permute(in[0], any_axes()))                                                             \
    X(slice, 1, gn_slice(in[0], any_axis(), any_int(), any_int(), any_int()))                                \
    X(slice_put, 2, gn_slice_put(in[0], in[1], any_axis(), any_int(), any_int(), any_int()))                 \
    X(concat, 3, gn_concat(in, (int)test_random_int(1, 3), any_axis()))                                      \
    X(broadcast, 1, gn_broadcast(in[0], any_shape()))                                                        \
    X(stack, 3, gn_stack(in, (int)test_random_int(1, 3), any_axis()))                                        \
    X(split, 1, split_of(in[0]))                                                                             \
    X(pad, 1, gn_pad(in[0], any_shape(), any_shape(), (gn_pad_mode)test_random_int(-1, 3), any_number()))    \
    X(flip, 1, gn_flip(in[0], any_axes()))                                                                   \
    X(roll, 1, gn_roll(in[0], any_int(), any_axis()))                                                        \
    X(tile, 1, gn_tile(in[0], any_shape()))                                                                  \
    X(repeat, 1, gn_repeat(in[0], any_int(), any_axis()))                                                    \
    X(expand, 1, gn_expand(in[0], any_shape()))                                                              \
    X(squeeze, 1, gn_squeeze(in[0], any_axes()))                                                             \
    X(unsqueeze, 1, gn_unsqueeze(in[0], any_axis()))                                                         \
    X(tril, 1, gn_tril(in[0], any_int()))                                                                    \
    X(triu, 1, gn_triu(in[0], any_int()))                                                                    \
    X(diagonal, 1, gn_diagonal(in[0], any_int(), any_axis(), any_axis()))                                    \
    X(im2col, 1, gn_im2col(in[0], any_shape(), any_shape(), any_shape(), any_shape()))                       \
    X(col2im, 1, gn_col2im(in[0], any_shape(), any_shape(), any_shape(), any_shape(), any_shape()))          \
    X(lp_pool, 1, gn_lp_pool(in[0], any_number(), &(gn_pool_desc){ .kernel = { any_int() } }))               \
    X(gather, 2, gn_gather(in[0], any_axis(), in[1]))                                                        \
    X(embedding, 2, gn_embedding(in[0], in[1]))                                                              \
    X(from_end, 1, gn_from_end(in[0], any_int()))                                                            \
    X(from_end_nd, 1, gn_from_end_nd(in[0], any_shape()))                                                    \
    X(embedding_bag_offsets, 3, gn_embedding_bag_offsets(in[0], in[1], in[2], any_flag(), GN_BAG_MEAN))      \
    X(one_hot, 1, gn_one_hot(in[0], any_int(), any_dtype()))                                                 \
    X(scatter_add, 3, gn_scatter_add(in[0], any_axis(), in[1], in[2]))                                       \
    X(scatter, 3, gn_scatter(in[0], any_axis(), in[1], in[2]))                                               \
    X(scatter_max, 3, gn_scatter_max(in[0], any_axis(), in[1], in[2]))                                       \
    X(index_select, 2, gn_index_select(in[0], any_axis(), in[1]))                                            \
    X(gather_nd, 2, gn_gather_nd(in[0], in[1]))                                                              \
    X(masked_fill, 2, gn_masked_fill(in[0], in[1], any_number()))                                            \
    X(nonzero, 1, gn_nonzero(in[0], any_int()))                                                              \
    X(det, 1, gn_det(in[0]))                                                                                 \
    X(inverse, 1, gn_inverse(in[0]))                                                                         \
    X(cholesky, 1, gn_cholesky(in[0]))                                                                       \
    X(solve, 2, gn_solve(in[0], in[1]))                                                                      \
    X(solve_triangular, 2, gn_solve_triangular(in[0], in[1], any_flag(), any_flag()))                        \
    X(unique, 1, gn_unique(in[0], any_int(), NULL, NULL, NULL, NULL))                                        \
    X(roi_align, 3, gn_roi_align(in[0], in[1], in[2], NULL))                                                 \
    X(deform_conv, 5, gn_deform_conv(in[0], in[1], in[2], in[3], in[4], NULL))                               \
    X(non_max_suppression, 2, gn_non_max_suppression(in[0], in[1], any_int(), 0.5, 0, any_flag()))           \
    X(connected_components, 1, gn_connected_components(in[0], any_axis(), any_flag()))                       \
    X(cross_entropy, 2, gn_cross_entropy(in[0], in[1]))                                                      \
    X(mse_loss, 2, gn_mse_loss(in[0], in[1]))                                                                \
    X(bce_loss, 2, gn_bce_loss(in[0], in[1]))                                                                \
    X(bce_logits_loss, 2, gn_bce_logits_loss(in[0], in[1]))                                                  \
    X(nll_loss, 2, gn_nll_loss(in[0], in[1]))                                                                \
    X(kl_loss, 2, gn_kl_loss(in[0], in[1]))                                                                  \
    X(nll_loss_with, 2, gn_nll_loss_with(in[0], in[1], NULL))                                                \
    X(kl_loss_with, 2, gn_kl_loss_with(in[0], in[1], NULL))                                                  \
    X(mse_loss_with, 2, gn_mse_loss_with(in[0], in[1], NULL))                                                \
    X(l1_loss_with, 2, gn_l1_loss_with(in[0], in[1], NULL))                                                  \
    X(huber_loss_with, 2, gn_huber_loss_with(in[0], in[1], any_number(), NULL))                              \
    X(bce_logits_loss_with, 2, gn_bce_logits_loss_with(in[0], in[1], NULL))                                  \
    X(smooth_l1_loss, 2, gn_smooth_l1_loss(in[0], in[1], any_number()))                                      \
    X(cross_entropy_smooth, 2, gn_cross_entropy_smooth(in[0], in[1], any_number()))                          \
    X(attention, 5, attention_of(in, 5))                                                                     \
    X(rotary, 2, gn_rotary(in[0], in[1], any_number(), any_flag()))                                          \
    X(sample, 5, sample_of(in, true))                                                                        \
    X(adjust_logits, 5, sample_of(in, false))                                                                \
    X(top_log_probs, 1, top_log_probs_of(in[0], any_flag()))                                                 \
    X(rmsnorm_1p, 2, gn_rmsnorm_1p(in[0], in[1], any_number()))                                              \
    X(rotary_with, 2, rotary_of(in, true))                                                                   \
    X(rotary_table, 1, rotary_of(in, false))                                                                 \
    X(rotary_by, 2, gn_rotary_by(in[0], in[1], any_flag()))                                                  \
    X(assign, 2, gn_assign(in[0], in[1]))                                                                    \
    X(kv_append, 3, gn_kv_append(in[0], in[1], in[2]))                                                       \
    X(page_append, 5, gn_page_append(in[0], in[1], in[2], in[3], in[4]))                                     \
    X(page_copy, 3, gn_page_copy(in[0], in[1], in[2]))                                                       \
    X(page_attention, 5, gn_page_attention(in[0], in[1], in[2], in[3], in[4], in[4], NULL))                  \
    X(kv_append_quantized, 5, gn_kv_append_quantized(quantized_of(in), in[3], in[4]).data)                   \
    X(page_append_quantized, 5, gn_page_append_quantized(quantized_of(in), in[3], in[4], in[1], in[2]).data) \
    X(page_attention_quantized, 5,                                                                           \
      gn_page_attention_quantized(in[3], quantized_of(in), quantized_of(in), in[4], in[4], in[4], NULL))     \
    X(attention_quantized, 4, attention_quantized_of(in))                                                    \
    X(label, 1, gn_label(in[0], any_flag() ? any_spec() : NULL))

typedef struct call {
    const char *name;
    int n;
    gn_tensor (*build)(const gn_tensor *in);
} call;
#define X(name, n, expression) \
    static gn_tensor call_##name(const gn_tensor *in) { return expression; }
CALLS(X)
#undef X
static const call calls[] = {
#define X(name, n, expression) { #name, n, call_##name },
    CALLS(X)
#undef X
};

/* A scalar row of the table by its number, through the wire id: all ops without parameters. */
static gn_tensor table_call(int k, const gn_tensor *in, int *out_n) {
    gn_op_info row;
    CHECK_RESULT(gn_get_op(k, &row), GN_OK);
    *out_n = row.arity;
    return row.kind == GN_CLASS_SCALAR && row.arity >= 1 && row.arity <= 3
               ? gn_apply(g, row.wire, in, row.arity, NULL, 0)
               : GN_NONE;
}

/* ---- NULL ---- */

TEST(reads_without_waiting_answer_misuse) {
    gn_ctx *own = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_tensor t = gn_scalar(own, GN_F32, 1);
    float x[2];
    void *host[1] = { x };
    size_t bytes[1] = { sizeof *x };
    uint64_t ticket = 5;
    CHECK_RESULT(gn_read_later(NULL, 1, host, bytes, &ticket), GN_BAD_ARGUMENT);
    CHECK_INT(ticket, 0);
    CHECK_RESULT(gn_read_later(&t, 1, NULL, bytes, &ticket), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_later(&t, 1, host, NULL, &ticket), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_later(&t, 1, host, bytes, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_later(NULL, 0, NULL, NULL, &ticket), GN_OK);
    CHECK_RESULT(gn_wait(own, 0), GN_OK);
    CHECK_RESULT(gn_wait(own, UINT64_MAX), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_wait(NULL, 0), gn_status(NULL));
    CHECK_RESULT(gn_read_later(&t, 1, host, bytes, &ticket), GN_OK);
    CHECK(gn_wait(own, ticket) == GN_OK && x[0] == 1);
    CHECK_RESULT(gn_wait(own, ticket + 1), GN_BAD_ARGUMENT);
    gn_close(own);
    CHECK_RESULT(gn_wait(own, ticket), GN_CLOSED_CONTEXT);
}

TEST(null_servers_are_answered_not_followed) {
    gn_error error;
    CHECK_RESULT(gn_server_open(NULL, NULL, &error), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_server_run(NULL), GN_BAD_ARGUMENT);
    gn_server_stop(NULL);
    gn_server_close(NULL);
    gn_server_stats(NULL, NULL);
    CHECK_STR(gn_server_url(NULL), "");
    CHECK_INT(gn_server_port(NULL), 0);
}

TEST(null_pointers_are_answered_not_followed) {
    gn_tensor t = small(GN_F32, GN_SHAPE(2)), out[2] = { t, t };
    float x[2];
    void *host[1] = { x };
    size_t bytes[1] = { sizeof x };
    gn_op_info row;
    gn_get_stats(g, NULL);
    gn_get_stats(NULL, &(gn_stats){ 0 });
    CHECK_RESULT(gn_get_device(g, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_get_device(NULL, &(gn_device_info){ .remote = false }), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(t, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(GN_NONE, &(gn_info){ .result = GN_OK }), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_get_op(0, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_get_op(INT32_MIN, &row), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_many(NULL, 1, host, bytes), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_many(&t, 1, NULL, bytes), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_many(&t, 1, host, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_read_many(NULL, 0, NULL, NULL), GN_OK);
    CHECK_RESULT(gn_realize(NULL, 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_grad(t, NULL, 1, out), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_grad(t, &t, 1, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_grad(t, &t, -1, out), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_sgd(NULL, &t, &t, NULL, 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_sgd(&(gn_sgd_desc){ .lr = t }, NULL, &t, NULL, 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_sgd(&(gn_sgd_desc){ .lr = t }, &t, NULL, NULL, 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_sgd(&(gn_sgd_desc){ .lr = t }, &t, &t, NULL, -1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_adamw(NULL, &t, &t, &t, &t, 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_adamw(&(gn_adamw_desc){ .lr = t, .step = t }, &t, &t, NULL, &t, 1), GN_BAD_ARGUMENT);
    CHECK(gn_concat(NULL, 2, 0).ctx == NULL && gn_stack(NULL, 2, 0).ctx == NULL &&
          gn_einsum("ij", NULL, 1).ctx == NULL);
    gn_split(t, 0, NULL, 2, NULL);
    gn_topk(t, 1, 0, true, NULL, NULL);
    CHECK_RESULT(gn_status(NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step(NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_sync(NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_last_error(NULL)->result, GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_release(GN_NONE), GN_BAD_ARGUMENT);
    gn_phase(NULL, GN_DECODE);
    gn_phase(g, (gn_phase_kind)99);
    gn_phase(g, (gn_phase_kind)-1);
    gn_close(NULL);
    gn_host_free(g, NULL);
    gn_host_free(NULL, NULL);
    gn_free(NULL);
    CHECK(gn_host_alloc(g, SIZE_MAX) == NULL);
    CHECK(gn_result_name((gn_result)-5)[0] && gn_result_text((gn_result)12345)[0]);
    CHECK_STR(gn_dtype_name((gn_dtype)-1), "none");
    CHECK_INT(gn_dtype_bytes((gn_dtype)1000), 0);
    CHECK_RESULT(gn_describe(gn_data(NULL, GN_F32, GN_SHAPE(2), x), &(gn_info){ .result = GN_OK }), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_neg_at(NULL, -7, gn_data_copy_at(NULL, 0, g, GN_F32, GN_SHAPE(2), NULL)),
                             &(gn_info){ .result = GN_OK }),
                 GN_BAD_ARGUMENT);
    gn_step(g);
}

/* ---- handles ---- */

static void check_bad_handle(const char *what, int line, gn_tensor t, gn_result want) {
    gn_info info;
    gn_result r = gn_describe(t, &info);
    if (r != want)
        test_fail(__FILE__, line, "%s: the node is %s, not %s", what, gn_result_name(r), gn_result_name(want));
}

/* Inputs that a call may leave out: by GN_NONE, or by a number of inputs or a description that is drawn; a label is
   given back. */
static bool may_lack(const char *name, int place, gn_result want) {
    static const char *const drawn[] = { "einsum", "concat", "stack", "attention", "label" }, *const optional[] = {
        "layernorm", "linear", "rmsnorm", "rmsnorm_1p"
    };
    bool may = false;
    for (int i = 0; i < TEST_COUNT(drawn); i++) may = may || strcmp(name, drawn[i]) == 0;
    for (int i = 0; i < TEST_COUNT(optional); i++)
        may = may || (place > 0 && want == GN_BAD_ARGUMENT && strcmp(name, optional[i]) == 0);
    return may;
}

/* In every place of every op. */
static void each_place(gn_tensor bad, gn_result want) {
    for (int k = 0; k < TEST_COUNT(calls) + gn_op_count(); k++) {
        for (int place = 0, n = 1; place < n; place++) {
            gn_tensor in[5];
            for (int i = 0; i < 5; i++) in[i] = i == place ? bad : small(GN_F32, GN_SHAPE(2, 2));
            if (k >= TEST_COUNT(calls)) {
                gn_tensor t = table_call(k - TEST_COUNT(calls), in, &n);
                if (t.ctx) check_bad_handle("an op of the table", __LINE__, t, want);
                continue;
            }
            n = calls[k].n;
            gn_tensor t = calls[k].build(in);
            gn_info info;
            gn_result r = gn_describe(t, &info);
            bool also = place > 0 && r != GN_OK; /* the drawn arguments may be refused first */
            if (r == GN_INTERNAL || (r != want && !also && !may_lack(calls[k].name, place, want)))
                test_fail(__FILE__, __LINE__, "%s, input %d: %s", calls[k].name, place, gn_result_name(r));
        }
        gn_step(g);
    }
}

TEST(handles_of_nothing_in_every_place_are_bad_argument) { each_place(GN_NONE, GN_BAD_ARGUMENT); }

TEST(handles_of_ended_steps_in_every_place_are_stale) {
    gn_tensor old = small(GN_F32, GN_SHAPE(2, 2));
    gn_step(g);
    each_place(old, GN_STALE_HANDLE);
}

TEST(handles_of_released_slots_in_every_place_are_stale) {
    gn_tensor state = gn_state(g, GN_F32, GN_SHAPE(2, 2), NULL, "s");
    CHECK_RESULT(gn_release(state), GN_OK);
    CHECK_RESULT(gn_release(state), GN_STALE_HANDLE);
    each_place(state, GN_STALE_HANDLE);
}

TEST(ops_over_two_contexts_are_mixed_contexts) {
    static const float x[4] = { 0 };
    gn_tensor mine = small(GN_F32, GN_SHAPE(4)), theirs = gn_data(other, GN_F32, GN_SHAPE(4), x),
              both[2] = { mine, theirs };
    check_bad_handle("add", __LINE__, gn_add(mine, theirs), GN_MIXED_CONTEXTS);
    check_bad_handle("where", __LINE__, gn_where(gn_isnan(theirs), mine, mine), GN_MIXED_CONTEXTS);
    check_bad_handle("concat", __LINE__, gn_concat(both, 2, 0), GN_MIXED_CONTEXTS);
    check_bad_handle("stack", __LINE__, gn_stack(both, 2, 0), GN_MIXED_CONTEXTS);
    check_bad_handle("einsum", __LINE__, gn_einsum("i,i->i", both, 2), GN_MIXED_CONTEXTS);
    check_bad_handle("outer", __LINE__, gn_outer(mine, theirs), GN_MIXED_CONTEXTS);
    check_bad_handle("vecdot", __LINE__, gn_vecdot(mine, theirs, 0), GN_MIXED_CONTEXTS);
    check_bad_handle("bce", __LINE__, gn_bce_loss(mine, theirs), GN_MIXED_CONTEXTS);
    check_bad_handle("rmsnorm", __LINE__, gn_rmsnorm(mine, theirs, 1), GN_MIXED_CONTEXTS);
    check_bad_handle("gather_nd", __LINE__, gn_gather_nd(mine, gn_cast(gn_reshape(theirs, GN_SHAPE(4, 1)), GN_I64)),
                     GN_MIXED_CONTEXTS);
    float out[8];
    void *hosts[2] = { out, out + 4 };
    const size_t bytes[2] = { 16, 16 };
    CHECK_RESULT(gn_read_many(both, 2, hosts, bytes), GN_MIXED_CONTEXTS);
    CHECK_RESULT(gn_realize(both, 2), GN_MIXED_CONTEXTS);
    gn_tensor grad;
    CHECK_RESULT(gn_grad(gn_sum(mine, GN_ALL_AXES, false), &theirs, 1, &grad), GN_MIXED_CONTEXTS);
    CHECK_RESULT(gn_sgd(&(gn_sgd_desc){ .lr = gn_scalar(g, GN_F32, 1) }, &theirs, &mine, NULL, 1), GN_MIXED_CONTEXTS);
    gn_step(g);
    gn_step(other);
}

TEST(the_error_of_a_missing_input_can_be_read_from_the_context_of_the_other) {
    float x;
    gn_tensor t = gn_sub(GN_NONE, small(GN_F32, GN_SHAPE(2)));
    CHECK(t.ctx == g);
    CHECK_RESULT(gn_read(t, &x, sizeof x), GN_BAD_ARGUMENT);
    CHECK_STR(gn_last_error(g)->op, "sub");
    gn_step(g);
}

/* ---- labels, sizes, ranks ---- */

/* As the header says at assign, read and step: all updates of a step or none, and what can be read when. */
TEST(one_refused_update_holds_back_all_until_the_step_has_ended) {
    gn_ctx *c = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    const float x[3] = { 1, 2, 3 };
    float out[3];
    gn_tensor good = gn_state(c, GN_F32, GN_SHAPE(3), x, "good"), bad = gn_state(c, GN_F32, GN_SHAPE(3), x, "bad"),
              cache = gn_state(c, GN_F32, GN_SHAPE(1, 1, 3, 1), x, "cache");
    for (int kind = 0; kind < 4; kind++) {
        gn_tensor before = gn_add_c(good, 10);
        CHECK_RESULT(gn_read(before, out, sizeof out), GN_OK); /* what is needed in any case is read before */
        CHECK(out[2] == 13);
        gn_assign(good, gn_add_c(good, 1));
        int line = __LINE__ + 1 + kind; /* each choice has a line of its own */
        gn_tensor refused = kind == 0   ? gn_assign(bad, gn_full(c, GN_F32, GN_SHAPE(4), 0))
                            : kind == 1 ? gn_assign(bad, gn_matmul(bad, gn_full(c, GN_F32, GN_SHAPE(4), 0)))
                            : kind == 2 ? gn_kv_append(cache, good, good)
                                        : gn_assign(bad, GN_NONE);
        gn_tensor reads[] = { before, good, gn_full(c, GN_F32, GN_SHAPE(3), 0), refused };
        for (int i = 0; i < TEST_COUNT(reads); i++) {
            gn_result r = gn_read(reads[i], out, sizeof out);
            CHECK(r != GN_OK && r == gn_realize(&reads[i], 1));
            CHECK_INT(gn_last_error(c)->line, line);
        }
        CHECK(gn_step(c) != GN_OK);
        CHECK_INT(gn_last_error(c)->line, line);
        CHECK_RESULT(gn_read(good, out, sizeof out), GN_OK); /* none has happened, and the next step begins clean */
        CHECK(memcmp(out, x, sizeof x) == 0);
        CHECK_RESULT(gn_read(bad, out, sizeof out), GN_OK);
        CHECK(memcmp(out, x, sizeof x) == 0);
        gn_assign(good, gn_add_c(good, 0));
        CHECK_RESULT(gn_step(c), GN_OK);
    }
    gn_close(c);
}

TEST(labels_of_any_length_are_cut_and_kept) {
    char label[5000];
    gn_info info;
    memset(label, 'x', sizeof label);
    label[sizeof label - 1] = 0;
    gn_tensor t = gn_label(gn_state(g, GN_F32, GN_SHAPE(2), NULL, label), label);
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    CHECK_INT(strlen(info.label), sizeof gn_last_error(g)->label - 1);
    gn_label(t, "");
    gn_label(t, NULL);
    gn_label(GN_NONE, label);
    CHECK_RESULT(gn_release(t), GN_OK);
    for (int i = 0; i < 3000; i++) {
        snprintf(label, sizeof label, "label %d", i);
        gn_label(small(GN_F32, GN_SCALAR), label);
    }
    gn_step(g);
}

static void check_any(const char *what, gn_tensor t) {
    gn_info info;
    gn_result r = gn_describe(t, &info);
    if (r == GN_INTERNAL || (r != GN_OK && t.ctx == g && !gn_last_error(g)->text[0]))
        test_fail(__FILE__, __LINE__, "%s: %s \"%s\"", what, gn_result_name(r), gn_last_error(g)->text);
    if (r != GN_OK || info.bytes > 1 << 20) return;
    void *out = malloc(info.bytes + 1);
    r = gn_read(t, out, info.bytes);
    free(out);
    if (r == GN_INTERNAL || r == GN_BAD_SIZE || (computes ? r == GN_NO_VALUE : r == GN_OK)) {
        test_fail(__FILE__, __LINE__, "%s of rank %d: the read is %s: %s", what, (int)info.shape.rank,
                  gn_result_name(r), gn_last_error(g)->text);
    }
}

/* Every op on one kind of shape, every input with it, in floats, ints and bools. */
static void every_op_on(gn_shape shape) {
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16, GN_I64, GN_U8, GN_BOOL };
    for (int k = 0; k < TEST_COUNT(calls) + gn_op_count(); k++) {
        for (int d = 0; d < TEST_COUNT(dtypes); d++) {
            for (int again = 0; again < 4; again++) {
                gn_tensor in[5];
                int n;
                for (int i = 0; i < 5; i++)
                    in[i] = gn_full(g, again && i ? dtypes[test_random_int(0, 4)] : dtypes[d], shape, 0);
                if (k < TEST_COUNT(calls)) {
                    check_any(calls[k].name, calls[k].build(in));
                } else if (again == 0) {
                    gn_tensor t = table_call(k - TEST_COUNT(calls), in, &n);
                    if (t.ctx) check_any("an op of the table", t);
                }
            }
            gn_step(g);
        }
    }
}

TEST(every_op_takes_or_refuses_empty_tensors) {
    every_op_on(GN_SHAPE(0));
    every_op_on(GN_SHAPE(2, 0, 3));
    every_op_on(GN_SHAPE(0, 0, 0, 0));
}
TEST(every_op_takes_or_refuses_rank_8) { every_op_on(GN_SHAPE(1, 2, 1, 2, 1, 1, 2, 1)); }
TEST(every_op_takes_or_refuses_scalars) { every_op_on(GN_SCALAR); }

/* Products of dims near and past what fits: built, and read where nothing is computed. */
TEST(every_op_takes_or_refuses_huge_tensors) {
    bool was = computes;
    if (was) return;
    every_op_on(GN_SHAPE(INT64_C(1) << 44));
    every_op_on(GN_SHAPE(INT64_C(1) << 22, INT64_C(1) << 22));
    every_op_on(GN_SHAPE(1, INT64_C(1) << 15, INT64_C(1) << 15, INT64_C(1) << 14));
}

/* ---- a walk ---- */

enum { POOL = 24, WALK = 40000 };

static gn_tensor leaf(void) {
    static const double x[64] = { 1, 0, -1, 2, 0.5, 3, 1e10, -3, 0, 1, 2, 3 };
    gn_shape s = { (int32_t)test_random_int(0, 4), { 0 } };
    for (int i = 0; i < s.rank; i++) s.dims[i] = test_random_int(0, 6) ? test_random_int(1, 2) : 0;
    gn_tensor t = gn_data(g, GN_F64, s, x);
    return test_random_int(0, 2) ? gn_cast(t, (gn_dtype)test_random_int(1, GN_DTYPE__COUNT - 1)) : t;
}

static gn_tensor any_tensor(const gn_tensor *pool) {
    static const float x[2] = { 0 };
    int64_t k = test_random_int(0, 60);
    gn_tensor t = pool[test_random_int(0, POOL - 1)];
    if (k == 0) return GN_NONE;
    if (k == 1) return gn_data(other, GN_F32, GN_SHAPE(2), x);
    t.id ^= k == 2 ? (uint32_t)test_random() : 0;
    t.gen ^= k == 3 ? (uint32_t)test_random() : 0;
    return t;
}

/* The gradient of a sum with respect to one of the pool. */
static void walk_gradient(const gn_tensor *pool) {
    gn_tensor loss = gn_sum(any_tensor(pool), GN_ALL_AXES, any_flag()), param = any_tensor(pool), out;
    if (gn_grad(loss, &param, 1, &out) == GN_OK) check_any("a gradient", out);
}

static void walk(int steps) {
    gn_tensor pool[POOL], state = gn_state(g, GN_F64, GN_SHAPE(2, 2), NULL, "state");
    for (int i = 0; i < steps; i++) {
        if (i % 200 == 0) {
            CHECK(gn_step(g) != GN_INTERNAL);
            gn_step(other);
            for (int k = 0; k < POOL; k++) pool[k] = k ? leaf() : state;
        }
        const call *c = &calls[test_random_int(0, TEST_COUNT(calls) - 1)];
        if (c->build == call_assign && test_random_int(0, 40))
            continue; /* nearly all fail, and with them every read of the step */
        gn_tensor in[5], t;
        int n;
        for (int k = 0; k < 5; k++) in[k] = any_tensor(pool);
        t = test_random_int(0, 2) ? c->build(in) : table_call((int)test_random_int(0, gn_op_count() - 1), in, &n);
        gn_info info;
        if (gn_describe(t, &info) == GN_OK && info.bytes <= 1 << 14 && t.ctx == g)
            pool[test_random_int(1, POOL - 1)] = t;
        if (i % 4 == 0) check_any(c->name, t);
        if (i % 32 == 0) walk_gradient(pool);
    }
    gn_step(g);
    gn_step(other);
    CHECK_RESULT(gn_release(state), GN_OK);
}

TEST(a_random_walk_over_all_builders_ends_well) { walk(WALK); }

/* Nodes run out in the middle of ops that are made of others, of gradients and of updates. */
TEST(a_random_walk_with_few_nodes_ends_well) {
    gn_ctx *full = g;
    for (uint32_t most = 1; most < 200; most += most < 8 ? 1 : 37) {
        g = gn_open(&(gn_desc){ .devices = computes ? "cpu" : "null", .threads = 1, .max_nodes = most });
        walk(2000);
        gn_close(g);
    }
    g = full;
}

/* ---- one read at the end against a read after every op ---- */

enum { TWIN_BYTES = 1 << 12, TWIN_OPS = 40, TWIN_STEPS = 400 };

typedef struct twin {
    gn_tensor lazy, eager;
    gn_info info;
    unsigned char bytes[TWIN_BYTES];
} twin;

/* rounded at the edge of a fused loop: values depend on where that is */
static bool narrow(gn_dtype d) { return d == GN_F16 || d == GN_BF16; }

/* Values equal, any NaN being like another. */
static bool same_values(const gn_info *info, const unsigned char *a, const unsigned char *b) {
    size_t n = gn_dtype_bytes(info->dtype);
    for (size_t i = 0; i < info->bytes; i += n) {
        float x[2];
        double y[2];
        if (memcmp(a + i, b + i, n) == 0) continue;
        if (info->dtype == GN_F32) {
            memcpy(&x[0], a + i, n);
            memcpy(&x[1], b + i, n);
            if (isnan(x[0]) && isnan(x[1])) continue;
        } else if (info->dtype == GN_F64) {
            memcpy(&y[0], a + i, n);
            memcpy(&y[1], b + i, n);
            if (isnan(y[0]) && isnan(y[1])) continue;
        }
        return false;
    }
    return true;
}

/* Takes up a pair: the eager one is read and becomes data. */
static bool twin_keep(twin *t, gn_tensor lazy, gn_tensor eager) {
    gn_info twin_info;
    gn_result r = gn_describe(lazy, &t->info), q = gn_describe(eager, &twin_info);
    CHECK_RESULT(r, q);
    if (r != GN_OK || t->info.bytes > TWIN_BYTES || narrow(t->info.dtype) ||
        gn_read(eager, t->bytes, t->info.bytes) != GN_OK)
        return false;
    t->lazy = lazy;
    t->eager = gn_data_copy(other, t->info.dtype, t->info.shape, t->bytes);
    return true;
}

static void twin_leaf(twin *t) {
    gn_dtype d;
    double x[64];
    gn_shape s = { (int32_t)test_random_int(0, 4), { 0 } };
    do {
        d = (gn_dtype)test_random_int(1, GN_DTYPE__COUNT - 1);
    } while (narrow(d));
    for (int i = 0; i < s.rank; i++) s.dims[i] = test_random_int(0, 9) ? test_random_int(1, 2 + (i == 0)) : 0;
    for (int i = 0; i < 64; i++) x[i] = (double)test_random_int(-3, 8) / (test_random_int(0, 3) ? 1 : 4);
    gn_tensor lazy = gn_cast(gn_data_copy(g, GN_F64, s, x), d), eager = gn_cast(gn_data_copy(other, GN_F64, s, x), d);
    CHECK(twin_keep(t, lazy, eager));
}

static void twin_step(twin *pool) {
    static unsigned char out[TWIN_BYTES];
    static twin next;
    for (int k = 0; k < POOL; k++) twin_leaf(&pool[k]);
    for (int i = 0; i < TWIN_OPS; i++) {
        const call *c = &calls[test_random_int(0, TEST_COUNT(calls) - 1)];
        gn_tensor in[2][5], y[2];
        bool of_table = test_random_int(0, 2) == 0;
        int row = (int)test_random_int(0, gn_op_count() - 1), n;
        for (int k = 0; k < 5; k++) {
            const twin *t = &pool[test_random_int(0, POOL - 1)];
            in[0][k] = t->lazy;
            in[1][k] = t->eager;
        }
        uint64_t stream = test__.stream; /* equal arguments for both */
        for (int k = 0; k < 2; k++) {
            gn_ctx *mine = g;
            test__.stream = stream;
            g = in[k][0].ctx;
            y[k] = of_table ? table_call(row, in[k], &n) : c->build == call_assign ? in[k][0] : c->build(in[k]);
            g = mine;
        }
        if (y[0].ctx && twin_keep(&next, y[0], y[1])) pool[test_random_int(0, POOL - 1)] = next;
    }
    for (int k = 0; k < POOL; k++) {
        gn_result r = gn_read(pool[k].lazy, out, pool[k].info.bytes);
        if (r != GN_OK || !same_values(&pool[k].info, out, pool[k].bytes)) {
            test_fail(__FILE__, __LINE__, "%s %s: the values differ, %s", pool[k].info.op,
                      gn_dtype_name(pool[k].info.dtype), gn_result_name(r));
        }
    }
    gn_step(g);
    gn_step(other);
}

TEST(a_step_read_at_its_end_equals_one_read_after_every_op) {
    static twin pool[POOL];
    for (int i = 0; i < TWIN_STEPS && computes; i++) twin_step(pool);
}

TEST(closed_contexts_answer_every_op) {
    gn_tensor t = small(GN_F32, GN_SHAPE(2, 2)), in[5] = { t, t, t, t, t };
    gn_close(g);
    for (int k = 0; k < TEST_COUNT(calls); k++) {
        gn_info info;
        CHECK_RESULT(gn_describe(calls[k].build(in), &info), GN_CLOSED_CONTEXT);
    }
    CHECK_RESULT(gn_step(g), GN_CLOSED_CONTEXT);
    CHECK_RESULT(gn_sync(g), GN_CLOSED_CONTEXT);
    gn_close(g);
    g = gn_open(&(gn_desc){ .devices = computes ? "cpu" : "null", .threads = 2 });
    CHECK_RESULT(gn_status(g), GN_OK);
}

static const test_entry tests[] = {
    TEST_ENTRY(reads_without_waiting_answer_misuse),
    TEST_ENTRY(null_pointers_are_answered_not_followed),
    TEST_ENTRY(null_servers_are_answered_not_followed),
    TEST_ENTRY(handles_of_nothing_in_every_place_are_bad_argument),
    TEST_ENTRY(handles_of_ended_steps_in_every_place_are_stale),
    TEST_ENTRY(handles_of_released_slots_in_every_place_are_stale),
    TEST_ENTRY(ops_over_two_contexts_are_mixed_contexts),
    TEST_ENTRY(the_error_of_a_missing_input_can_be_read_from_the_context_of_the_other),
    TEST_ENTRY(one_refused_update_holds_back_all_until_the_step_has_ended),
    TEST_ENTRY(labels_of_any_length_are_cut_and_kept),
    TEST_ENTRY(every_op_takes_or_refuses_empty_tensors),
    TEST_ENTRY(every_op_takes_or_refuses_rank_8),
    TEST_ENTRY(every_op_takes_or_refuses_scalars),
    TEST_ENTRY(every_op_takes_or_refuses_huge_tensors),
    TEST_ENTRY(a_random_walk_over_all_builders_ends_well),
    TEST_ENTRY(a_random_walk_with_few_nodes_ends_well),
    TEST_ENTRY(a_step_read_at_its_end_equals_one_read_after_every_op),
    TEST_ENTRY(closed_contexts_answer_every_op),
};

int main(int argc, char **argv) {
    static const char *const devices[] = { "null", "cpu" };
    test_begin(argc, argv);
    for (int pass = 0; pass < 2; pass++) {
        computes = pass == 1;
        g = gn_open(&(gn_desc){ .devices = devices[pass], .threads = 2 });
        other = gn_open(&(gn_desc){ .devices = devices[pass], .threads = 1 });
        for (int i = 0; i < TEST_COUNT(tests); i++) {
            char name[160];
            snprintf(name, sizeof name, "%s_on_%s", tests[i].name, devices[pass]);
            if (test_open(name)) {
                tests[i].run();
                test_close();
            }
        }
        gn_close(g);
        gn_close(other);
    }
    return test_end();
}
