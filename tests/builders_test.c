/* Every builder of the header, at arguments that change as little as they can (roll by 0, tile by ones, cast to the
 * same dtype, a slice of everything…): each gives a node of its own, never its operand's. And every error that operands
 * of all dtypes and shapes, missing and stale ones, and a full step can provoke: each has the op, the source line and
 * the shapes.
 *
 * The rows stand in BUILDERS; a declaration of genie.h without a row fails.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"
#include "loopback.h"

#define ZEROS4 GN_SHAPE(0, 0, 0, 0)
#define ONES4 GN_SHAPE(1, 1, 1, 1)
#define S4 GN_SHAPE(1, 1, 2, 3)
#define M23 GN_SHAPE(2, 3)
#define S11 GN_SHAPE(1, 1)
#define V1 GN_SHAPE(1)
#define V3 GN_SHAPE(3)

static gn_tensor whole(gn_ctx *g, gn_dtype d, gn_shape s, double x) { return gn_full(g, d, s, x); }
static gn_tensor identity(gn_ctx *g) {
    return gn_reshape(
        gn_cast(gn_eq(gn_arange(g, GN_I32, 9, 0, 1),
                      gn_mul_c(gn_floor_divide(gn_arange(g, GN_I32, 9, 0, 1), gn_full(g, GN_I32, GN_SCALAR, 4)), 4)),
                GN_F32),
        GN_SHAPE(3, 3));
}
static gn_quantized eights(gn_ctx *g, gn_tensor data, int64_t n) {
    return (gn_quantized){ .format = GN_QUANT_INT8, .data = data, .scales = whole(g, GN_F32, GN_SHAPE(n, 1), 1) };
}
static gn_tensor top_values(gn_tensor a) {
    gn_tensor v;
    gn_topk(a, 3, 0, true, &v, NULL);
    return v;
}
static gn_tensor top_logarithms(gn_tensor a) {
    gn_tensor v;
    gn_top_log_probs(a, 3, &v, NULL);
    return v;
}
static gn_tensor drawn(gn_tensor a) {
    return gn_sample(a, &(gn_sample_desc){ .seed = gn_full(a.ctx, GN_I64, GN_SCALAR, 0),
                                           .counter = gn_full(a.ctx, GN_I64, GN_SCALAR, 0) });
}
static gn_tensor one_part(gn_tensor a) {
    gn_tensor p;
    gn_split(a, 0, NULL, 1, &p);
    return p;
}
/* A network whose state is its input. */
static gn_tensor echo(gn_tensor a) {
    gn_tensor w = gn_reshape(identity(a.ctx), GN_SHAPE(1, 3, 3)), r = whole(a.ctx, GN_F32, GN_SHAPE(1, 3, 3), 0);
    gn_recurrent_desc d = { .act = { { { GN_ACTIVATION_AFFINE, 1, 0 } } } };
    return gn_reshape(gn_slice(gn_recurrent(a, w, r, &d), 1, 0, 2, 1), GN_SHAPE(2, 1, 3));
}
static gn_tensor row_places(gn_ctx *g) {
    return gn_broadcast(gn_reshape(gn_arange(g, GN_I64, 2, 0, 1), GN_SHAPE(2, 1)), M23);
}

/* Pages: nothing is written; each row sees the one token of its own sequence. */
static gn_tensor append_nothing(gn_tensor a) {
    gn_tensor rows = gn_full(a.ctx, GN_F32, GN_SHAPE(1, 1, 3), 0), none = whole(a.ctx, GN_I32, GN_SHAPE(1), -1);
    return gn_page_append(gn_add_c(a, 0), rows, none, GN_NONE, GN_NONE);
}
static gn_tensor copy_nothing(gn_tensor a) {
    return gn_page_copy(gn_add_c(a, 0), whole(a.ctx, GN_I32, GN_SHAPE(1), 0), whole(a.ctx, GN_I32, GN_SHAPE(1), -1));
}
static gn_tensor attend_alone(gn_tensor a) {
    gn_tensor pool = gn_reshape(a, GN_SHAPE(2, 1, 1, 3)), each = gn_arange_i64(a.ctx, GN_I64, 2, 0, 1);
    gn_tensor first = whole(a.ctx, GN_I32, GN_SHAPE(2), 0);
    return gn_page_attention(gn_reshape(a, GN_SHAPE(2, 1, 3)), pool, pool, each, first, gn_unsqueeze(each, 1), NULL);
}
/* Bytes whose scales are 1. */
static gn_quantized bytes_of(gn_tensor a, gn_shape s) {
    gn_shape each = s;
    each.dims[3] = 1;
    return (gn_quantized){ .format = GN_QUANT_INT8,
                           .data = gn_cast(gn_reshape(a, s), GN_I8),
                           .scales = whole(a.ctx, GN_F32, each, 1) };
}
static gn_tensor attend_bytes(gn_tensor a) {
    gn_tensor each = gn_arange_i64(a.ctx, GN_I64, 2, 0, 1), first = whole(a.ctx, GN_I32, GN_SHAPE(2), 0);
    gn_quantized pool = bytes_of(a, GN_SHAPE(2, 1, 1, 3));
    return gn_page_attention_quantized(gn_reshape(a, GN_SHAPE(2, 1, 3)), pool, pool, each, first, gn_unsqueeze(each, 1),
                                       NULL);
}
static gn_tensor attend_one_key(gn_tensor a) {
    gn_attention_desc d = { .causal = true };
    gn_quantized cache = bytes_of(a, GN_SHAPE(2, 1, 1, 3));
    return gn_attention_quantized(gn_reshape(a, GN_SHAPE(2, 1, 1, 3)), cache, cache, &d);
}
static gn_quantized append_no_bytes(gn_tensor a, bool pages) {
    gn_quantized cache = bytes_of(a, GN_SHAPE(2, 1, 1, 3));
    gn_tensor rows = gn_full(a.ctx, GN_F32, pages ? GN_SHAPE(1, 1, 3) : GN_SHAPE(2, 1, 0, 3), 0);
    if (!pages) return gn_kv_append_quantized(cache, rows, whole(a.ctx, GN_I32, GN_SCALAR, 0));
    return gn_page_append_quantized(cache, rows, whole(a.ctx, GN_I32, GN_SHAPE(1), -1), GN_NONE, GN_NONE);
}

/* X(name, dtype and shape of the operand a, a call of it on a) */
#define PLAIN(X, name) X(name, GN_F32, S4, gn_##name(a))
#define WITH(X, name, number) X(name, GN_F32, S4, gn_##name(a, whole(g, GN_F32, GN_SCALAR, number)))
#define WITH_INT(X, name, number) X(name, GN_I32, S4, gn_##name(a, whole(g, GN_I32, GN_SCALAR, number)))
#define NUMBER(X, name, number) X(name, GN_F32, S4, gn_##name(a, number))
#define REDUCE(X, name) \
    X(name, GN_F32, S4, gn_##name(a, GN_NO_AXES, true)) X(name, GN_F32, S4, gn_##name(a, GN_AXES(0), true))
#define BUILDERS(X)                                                                                                    \
    X(data, GN_F32, S4, gn_data(g, GN_F32, S4, zeros))                                                                 \
    X(data_copy, GN_F32, S4, gn_data_copy(g, GN_F32, S4, zeros))                                                       \
    X(scalar, GN_F32, S4, gn_scalar(g, GN_F32, 0))                                                                     \
    X(scalar_i64, GN_I64, S4, gn_scalar_i64(g, GN_I64, 0))                                                             \
    X(weight, GN_F32, S4, gn_weight(g, GN_F32, S4, zeros, "w"))                                                        \
    X(weight_file, GN_F32, S4, gn_weight_file(g, GN_F32, S4, "/proc/self/exe", 0, "w"))                                \
    X(state, GN_F32, S4, gn_state(g, GN_F32, S4, NULL, "s"))                                                           \
    X(full, GN_F32, S4, gn_full(g, GN_F32, S4, 0))                                                                     \
    X(full_i64, GN_I64, S4, gn_full_i64(g, GN_I64, S4, 0))                                                             \
    X(arange, GN_F32, S4, gn_arange(g, GN_F32, 0, 0, 1))                                                               \
    X(arange_i64, GN_I64, S4, gn_arange_i64(g, GN_I64, 0, 0, 1))                                                       \
    X(random_uniform, GN_F32, S4, gn_random_uniform(g, GN_F32, S4))                                                    \
    X(random_normal, GN_F32, S4, gn_random_normal(g, GN_F32, S4))                                                      \
    X(assign, GN_F32, S4, gn_assign(gn_state(g, GN_F32, S4, NULL, "s"), a))                                            \
    X(kv_append, GN_F32, S4,                                                                                           \
      gn_kv_append(gn_add_c(a, 0), gn_full(g, GN_F32, GN_SHAPE(1, 1, 0, 3), 0), gn_scalar(g, GN_I32, 0)))              \
    X(page_append, GN_F32, S4, append_nothing(a))                                                                      \
    X(page_copy, GN_F32, S4, copy_nothing(a))                                                                          \
    X(page_attention, GN_F32, GN_SHAPE(2, 1, 3), attend_alone(a))                                                      \
    X(page_attention_quantized, GN_F32, GN_SHAPE(2, 1, 3), attend_bytes(a))                                            \
    X(attention_quantized, GN_F32, GN_SHAPE(2, 1, 1, 3), attend_one_key(a))                                            \
    X(kv_append_quantized, GN_F32, GN_SHAPE(2, 1, 1, 3), append_no_bytes(a, false).data)                               \
    X(page_append_quantized, GN_F32, GN_SHAPE(2, 1, 1, 3), append_no_bytes(a, true).data)                              \
    X(where, GN_F32, S4, gn_where(whole(g, GN_BOOL, GN_SCALAR, 1), a, a))                                              \
    X(cast, GN_F32, S4, gn_cast(a, GN_F32))                                                                            \
    X(clamp, GN_F32, S4, gn_clamp(a, -INFINITY, INFINITY))                                                             \
    X(clamp, GN_I8, S4, gn_clamp(a, -INFINITY, INFINITY))                                                              \
    NUMBER(X, leaky_relu, 1)                                                                                           \
    NUMBER(X, elu, 1)                                                                                                  \
    NUMBER(X, celu, 1)                                                                                                 \
    NUMBER(X, like, 0)                                                                                                 \
    X(like_i64, GN_I64, S4, gn_like_i64(a, 0))                                                                         \
    X(variance, GN_F32, S4, gn_variance(a, GN_NO_AXES, 0, true))                                                       \
    X(std, GN_F32, S4, gn_std(a, GN_NO_AXES, 0, true))                                                                 \
    NUMBER(X, cumsum, 0)                                                                                               \
    NUMBER(X, cumprod, 0)                                                                                              \
    NUMBER(X, cummax, 0)                                                                                               \
    NUMBER(X, softmax, 0)                                                                                              \
    NUMBER(X, log_softmax, 0)                                                                                          \
    X(layernorm, GN_F32, S4, gn_layernorm(a, GN_NONE, GN_NONE, 0))                                                     \
    X(layernorm, GN_F32, S4, gn_layernorm(a, whole(g, GN_F32, V3, 1), whole(g, GN_F32, V3, 0), 0))                     \
    X(rmsnorm, GN_F32, S4, gn_rmsnorm(a, GN_NONE, 0))                                                                  \
    X(rmsnorm, GN_F32, S4, gn_rmsnorm(a, whole(g, GN_F32, V3, 1), 0))                                                  \
    X(batch_norm, GN_F32, S4, gn_batch_norm(a, whole(g, GN_F32, V1, 0), whole(g, GN_F32, V1, 1), GN_NONE, GN_NONE, 0)) \
    X(layernorm_over, GN_F32, S4, gn_layernorm_over(a, 1, GN_NONE, GN_NONE, 1, NULL, NULL))                            \
    X(batch_norm_train, GN_F32, S4, gn_batch_norm_train(a, GN_NONE, GN_NONE, 1, NULL, NULL))                           \
    X(group_norm, GN_F32, S4, gn_group_norm(a, 1, GN_NONE, GN_NONE, 1))                                                \
    X(instance_norm, GN_F32, S4, gn_instance_norm(a, GN_NONE, GN_NONE, 1))                                             \
    X(local_response_norm, GN_F32, S4, gn_local_response_norm(a, 1, 0, 1, 1))                                          \
    X(normalize, GN_F32, S4, gn_normalize(a, 0, 1))                                                                    \
    X(sort, GN_F32, S4, gn_sort(a, 0, false))                                                                          \
    X(argsort, GN_F32, S4, gn_argsort(a, 0, false))                                                                    \
    X(topk, GN_F32, V3, top_values(a))                                                                                 \
    X(matmul, GN_F32, S4, gn_matmul(a, identity(g)))                                                                   \
    X(expert_linear, GN_F32, M23,                                                                                      \
      gn_expert_linear(a, gn_reshape(identity(g), GN_SHAPE(1, 3, 3)), whole(g, GN_I32, GN_SHAPE(2), 0), GN_NONE))      \
    X(interpolate, GN_F32, S4, gn_interpolate(a, GN_AXES(-1), GN_SHAPE(3), NULL))                                      \
    X(recurrent, GN_F32, GN_SHAPE(2, 1, 3), echo(a))                                                                   \
    X(pool, GN_F32, GN_SHAPE(2, 1, 3), gn_pool(a, &(gn_pool_desc){ .kernel = { 1 } }))                                 \
    X(lp_pool, GN_F32, GN_SHAPE(2, 1, 3), gn_lp_pool(a, 2, &(gn_pool_desc){ .kernel = { 1 } }))                        \
    X(matmul_ints, GN_I8, M23, gn_matmul_ints(a, whole(g, GN_I8, GN_SHAPE(3, 1), 1), GN_NONE, GN_NONE))                \
    X(conv_ints, GN_I8, GN_SHAPE(2, 1, 3),                                                                             \
      gn_conv_ints(a, whole(g, GN_I8, GN_SHAPE(1, 1, 1), 1), GN_NONE, GN_NONE, NULL))                                  \
    X(conv, GN_F32, GN_SHAPE(2, 1, 3), gn_conv(a, whole(g, GN_F32, GN_SHAPE(1, 1, 1), 1), GN_NONE, NULL))              \
    X(linear_quantized, GN_F32, M23, gn_linear_quantized(a, eights(g, gn_cast(identity(g), GN_U8), 3), GN_NONE))       \
    X(embedding_quantized, GN_I8, M23, gn_embedding_quantized(eights(g, a, 2), gn_arange(g, GN_I64, 2, 0, 1), GN_F32)) \
    X(dequantize, GN_I8, M23, gn_dequantize(eights(g, a, 2), GN_F32))                                                  \
    X(quantize, GN_F32, M23, gn_quantize(a, &(gn_quantize_desc){ .format = GN_QUANT_INT8 }).data)                      \
    X(linear, GN_F32, S4, gn_linear(a, identity(g), GN_NONE))                                                          \
    X(linear, GN_F32, S4, gn_linear(a, identity(g), whole(g, GN_F32, V3, 0)))                                          \
    X(vecdot, GN_F32, S4, gn_vecdot(a, whole(g, GN_F32, GN_SCALAR, 1), 0))                                             \
    X(det, GN_F32, S11, gn_det(a))                                                                                     \
    X(inverse, GN_F32, S11, gn_inverse(a))                                                                             \
    X(cholesky, GN_F32, S11, gn_cholesky(a))                                                                           \
    X(solve, GN_F32, S11, gn_solve(a, a))                                                                              \
    X(solve_triangular, GN_F32, S11, gn_solve_triangular(a, a, true, true))                                            \
    X(unique, GN_F32, V3, gn_unique(a, 1, NULL, NULL, NULL, NULL))                                                     \
    X(roi_align, GN_F32, S4,                                                                                           \
      gn_roi_align(a, whole(g, GN_F32, GN_SHAPE(1, 4), 0), whole(g, GN_I32, GN_SHAPE(1), 0), NULL))                    \
    X(deform_conv, GN_F32, S4,                                                                                         \
      gn_deform_conv(a, whole(g, GN_F32, ONES4, 1), whole(g, GN_F32, GN_SHAPE(1, 2, 2, 3), 0), GN_NONE, GN_NONE,       \
                     NULL))                                                                                            \
    X(non_max_suppression, GN_F32, GN_SHAPE(1, 1, 4),                                                                  \
      gn_non_max_suppression(a, whole(g, GN_F32, GN_SHAPE(1, 1, 1), 0), 1, 0, 0, false))                               \
    X(connected_components, GN_I32, M23, gn_connected_components(a, 1, false))                                         \
    X(einsum, GN_F32, S4, gn_einsum("abcd->abcd", &a, 1))                                                              \
    X(einsum, GN_F32, S4, gn_einsum("...->...", &a, 1))                                                                \
    X(einsum, GN_F32, V3, gn_einsum("a", &a, 1))                                                                       \
    X(einsum, GN_F32, M23, gn_einsum("ab,bc->ac", (gn_tensor[]){ a, identity(g) }, 2))                                 \
    X(reshape, GN_F32, S4, gn_reshape(a, S4))                                                                          \
    X(reshape, GN_F32, S4, gn_reshape(a, GN_SHAPE(1, 1, -1, 3)))                                                       \
    X(transpose, GN_F32, S4, gn_transpose(a, 0, 0))                                                                    \
    X(transpose, GN_F32, S4, gn_transpose(a, 0, 1))                                                                    \
    X(permute, GN_F32, S4, gn_permute(a, GN_AXES(0, 1, 2, 3)))                                                         \
    X(permute, GN_F32, GN_SCALAR, gn_permute(a, GN_ALL_AXES))                                                          \
    X(slice, GN_F32, S4, gn_slice(a, 3, 0, GN_END, 1))                                                                 \
    X(slice_put, GN_F32, S4, gn_slice_put(a, whole(g, GN_F32, GN_SHAPE(1, 1, 2, 0), 0), 3, 0, 0, 1))                   \
    X(concat, GN_F32, S4, gn_concat(&a, 1, 0))                                                                         \
    X(broadcast, GN_F32, S4, gn_broadcast(a, S4))                                                                      \
    X(expand, GN_F32, S4, gn_expand(a, GN_SHAPE(-1, -1, -1, -1)))                                                      \
    X(stack, GN_F32, V3, gn_stack(&a, 1, 0))                                                                           \
    X(split, GN_F32, V3, one_part(a))                                                                                  \
    X(pad, GN_F32, S4, gn_pad(a, ZEROS4, ZEROS4, GN_PAD_CONSTANT, 0))                                                  \
    X(pad, GN_F32, S4, gn_pad(a, ZEROS4, ZEROS4, GN_PAD_EDGE, 0))                                                      \
    X(pad, GN_F32, S4, gn_pad(a, ZEROS4, ZEROS4, GN_PAD_REFLECT, 0))                                                   \
    X(pad, GN_F32, GN_SCALAR, gn_pad(a, GN_SCALAR, GN_SCALAR, GN_PAD_CONSTANT, 0))                                     \
    X(flip, GN_F32, S4, gn_flip(a, GN_NO_AXES))                                                                        \
    X(flip, GN_F32, GN_SCALAR, gn_flip(a, GN_ALL_AXES))                                                                \
    X(flip, GN_F32, S4, gn_flip(a, GN_AXES(0)))                                                                        \
    X(roll, GN_F32, S4, gn_roll(a, 0, 3))                                                                              \
    X(roll, GN_F32, S4, gn_roll(a, 6, 3))                                                                              \
    X(roll, GN_F32, S4, gn_roll(a, -3, -1))                                                                            \
    X(roll, GN_F32, S4, gn_roll(a, 1, 0))                                                                              \
    X(tile, GN_F32, S4, gn_tile(a, ONES4))                                                                             \
    X(tile, GN_F32, GN_SCALAR, gn_tile(a, GN_SCALAR))                                                                  \
    X(repeat, GN_F32, S4, gn_repeat(a, 1, 3))                                                                          \
    X(squeeze, GN_F32, S4, gn_squeeze(a, GN_NO_AXES))                                                                  \
    X(squeeze, GN_F32, M23, gn_squeeze(a, GN_ALL_AXES))                                                                \
    X(unsqueeze, GN_F32, S4, gn_unsqueeze(a, 0))                                                                       \
    X(tril, GN_F32, S4, gn_tril(a, 9))                                                                                 \
    X(triu, GN_F32, S4, gn_triu(a, -9))                                                                                \
    X(diagonal, GN_F32, GN_SHAPE(3, 1, 1), gn_diagonal(a, 0, 1, 2))                                                    \
    X(im2col, GN_F32, S4, gn_im2col(a, GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(0, 0), GN_SHAPE(1, 1)))                \
    X(col2im, GN_F32, GN_SHAPE(1, 2, 3), gn_col2im(a, V3, GN_SHAPE(1), GN_SHAPE(1), GN_SHAPE(0), GN_SHAPE(1)))         \
    X(gather, GN_F32, M23, gn_gather(a, 0, row_places(g)))                                                             \
    X(embedding, GN_F32, M23, gn_embedding(a, gn_arange(g, GN_I64, 2, 0, 1)))                                          \
    X(grid_sample, GN_F32, S4, gn_grid_sample(a, whole(g, GN_F32, GN_SHAPE(1, 1, 3, 2), 0), NULL))                     \
    X(affine_grid, GN_F32, GN_SHAPE(1, 2, 3), gn_affine_grid(a, GN_SHAPE(2, 2), false))                                \
    X(depth_to_space, GN_F32, S4, gn_depth_to_space(a, 1, false))                                                      \
    X(space_to_depth, GN_F32, S4, gn_space_to_depth(a, 1, true))                                                       \
    X(fft, GN_F32, GN_SHAPE(1, 2), gn_fft(a, 0, 0, false))                                                             \
    X(rfft, GN_F32, V3, gn_rfft(a, 0, 0))                                                                              \
    X(irfft, GN_F32, GN_SHAPE(1, 2), gn_irfft(a, 0, 0))                                                                \
    X(stft, GN_F32, V3, gn_stft(a, 2, 1, GN_NONE, false))                                                              \
    X(window, GN_F32, S4, gn_window(g, GN_F32, GN_WINDOW_HANN, 1, true))                                               \
    X(mel_filters, GN_F32, S4, gn_mel_filters(g, GN_F32, 1, 4, 8, 0, 4))                                               \
    X(scatter_min, GN_F32, V3, gn_scatter_min(a, 0, gn_arange_i64(g, GN_I64, 3, 0, 1), a))                             \
    X(scatter_mul, GN_F32, V3, gn_scatter_mul(a, 0, gn_arange_i64(g, GN_I64, 3, 0, 1), a))                             \
    X(cross_entropy_with, GN_F32, V3, gn_cross_entropy_with(a, whole(g, GN_I32, GN_SCALAR, 0), NULL))                  \
    X(bincount, GN_F32, V3, gn_bincount(gn_arange_i64(g, GN_I64, 3, 0, 1), 3, a))                                      \
    X(histogram, GN_F32, V3, gn_histogram(a, 1, -9, 9))                                                                \
    X(searchsorted, GN_F32, V3, gn_searchsorted(a, a, false))                                                          \
    X(embedding_bag, GN_F32, M23,                                                                                      \
      gn_embedding_bag(a, gn_arange(g, GN_I64, 2, 0, 1), whole(g, GN_I32, GN_SHAPE(2), 1), GN_BAG_SUM))                \
    X(embedding_bag_offsets, GN_F32, M23,                                                                              \
      gn_embedding_bag_offsets(a, gn_arange(g, GN_I64, 2, 0, 1), gn_arange(g, GN_I64, 2, 0, 1), false, GN_BAG_SUM))    \
    X(from_end, GN_I32, S4, gn_from_end(a, 9))                                                                         \
    X(from_end_nd, GN_I32, S4, gn_from_end_nd(a, S4))                                                                  \
    X(one_hot, GN_I32, GN_SCALAR, gn_one_hot(a, 1, GN_F32))                                                            \
    X(scatter_add, GN_F32, M23,                                                                                        \
      gn_scatter_add(a, 0, whole(g, GN_I64, GN_SHAPE(0, 3), 0), whole(g, GN_F32, GN_SHAPE(0, 3), 0)))                  \
    X(scatter, GN_F32, M23,                                                                                            \
      gn_scatter(a, 0, whole(g, GN_I64, GN_SHAPE(0, 3), 0), whole(g, GN_F32, GN_SHAPE(0, 3), 0)))                      \
    X(scatter_max, GN_F32, M23,                                                                                        \
      gn_scatter_max(a, 0, whole(g, GN_I64, GN_SHAPE(0, 3), 0), whole(g, GN_F32, GN_SHAPE(0, 3), 0)))                  \
    X(index_select, GN_F32, M23, gn_index_select(a, 0, gn_arange(g, GN_I64, 2, 0, 1)))                                 \
    X(gather_nd, GN_F32, V3, gn_gather_nd(a, gn_reshape(gn_arange(g, GN_I64, 3, 0, 1), GN_SHAPE(3, 1))))               \
    X(masked_fill, GN_F32, S4, gn_masked_fill(a, whole(g, GN_BOOL, GN_SCALAR, 0), 0))                                  \
    X(nonzero, GN_F32, S4, gn_nonzero(a, 6))                                                                           \
    X(cross_entropy, GN_F32, V3, gn_cross_entropy(a, whole(g, GN_I32, GN_SCALAR, 0)))                                  \
    X(mse_loss, GN_F32, S4, gn_mse_loss(a, a))                                                                         \
    X(bce_loss, GN_F32, S4, gn_bce_loss(a, a))                                                                         \
    X(bce_logits_loss, GN_F32, S4, gn_bce_logits_loss(a, a))                                                           \
    X(nll_loss, GN_F32, V3, gn_nll_loss(a, whole(g, GN_I32, GN_SCALAR, 0)))                                            \
    X(kl_loss, GN_F32, S4, gn_kl_loss(a, a))                                                                           \
    X(nll_loss_with, GN_F32, V3, gn_nll_loss_with(a, whole(g, GN_I32, GN_SCALAR, 0), NULL))                            \
    X(kl_loss_with, GN_F32, S4, gn_kl_loss_with(a, a, NULL))                                                           \
    X(mse_loss_with, GN_F32, S4, gn_mse_loss_with(a, a, NULL))                                                         \
    X(l1_loss_with, GN_F32, S4, gn_l1_loss_with(a, a, NULL))                                                           \
    X(smooth_l1_loss_with, GN_F32, S4, gn_smooth_l1_loss_with(a, a, 1, NULL))                                          \
    X(huber_loss_with, GN_F32, S4, gn_huber_loss_with(a, a, 1, NULL))                                                  \
    X(bce_loss_with, GN_F32, S4, gn_bce_loss_with(a, a, NULL))                                                         \
    X(bce_logits_loss_with, GN_F32, S4, gn_bce_logits_loss_with(a, a, NULL))                                           \
    X(smooth_l1_loss, GN_F32, S4, gn_smooth_l1_loss(a, a, 0))                                                          \
    X(smooth_l1_loss, GN_F32, S4, gn_smooth_l1_loss(a, a, 1))                                                          \
    X(cross_entropy_smooth, GN_F32, V3, gn_cross_entropy_smooth(a, whole(g, GN_I32, GN_SCALAR, 0), 0))                 \
    X(attention, GN_F32, S4, gn_attention(a, a, a, &(gn_attention_desc){ .soft_cap = 1 }))                             \
    X(attention, GN_F32, S4, gn_attention(a, a, a, NULL))                                                              \
    X(rotary, GN_F32, GN_SHAPE(2, 2), gn_rotary(a, whole(g, GN_I32, GN_SHAPE(2), 0), 1, false))                        \
    X(rotary, GN_F32, GN_SHAPE(2, 2), gn_rotary(a, whole(g, GN_I32, GN_SHAPE(2), 0), 1, true))                         \
    X(rmsnorm_1p, GN_F32, S4, gn_rmsnorm_1p(a, whole(g, GN_F32, V3, 0), 0))                                            \
    X(sample, GN_F32, V3, drawn(a))                                                                                    \
    X(adjust_logits, GN_F32, V3, gn_adjust_logits(a, NULL))                                                            \
    X(top_log_probs, GN_F32, V3, top_logarithms(a))                                                                    \
    X(rotary_with, GN_F32, GN_SHAPE(2, 2), gn_rotary_with(a, whole(g, GN_I32, GN_SHAPE(2), 0), NULL))                  \
    X(rotary_table, GN_I32, GN_SHAPE(2), gn_rotary_table(a, GN_F32, &(gn_rotary_desc){ .size = 2 }))                   \
    X(rotary_by, GN_F32, GN_SHAPE(2, 3), gn_rotary_by(a, whole(g, GN_F32, GN_SHAPE(0), 0), false))                     \
    WITH(X, add, 0)                                                                                                    \
    WITH(X, sub, 0)                                                                                                    \
    WITH(X, mul, 1)                                                                                                    \
    WITH(X, div, 1)                                                                                                    \
    WITH(X, pow, 1)                                                                                                    \
    WITH(X, minimum, INFINITY)                                                                                         \
    WITH(X, maximum, -INFINITY)                                                                                        \
    PLAIN(X, neg)                                                                                                      \
    PLAIN(X, abs)                                                                                                      \
    PLAIN(X, exp)                                                                                                      \
    PLAIN(X, log)                                                                                                      \
    PLAIN(X, sqrt)                                                                                                     \
    PLAIN(X, rsqrt)                                                                                                    \
    PLAIN(X, tanh)                                                                                                     \
    PLAIN(X, sigmoid)                                                                                                  \
    PLAIN(X, relu)                                                                                                     \
    PLAIN(X, gelu)                                                                                                     \
    PLAIN(X, gelu_tanh)                                                                                                \
    PLAIN(X, silu)                                                                                                     \
    WITH(X, eq, 0)                                                                                                     \
    WITH(X, ne, 0)                                                                                                     \
    WITH(X, lt, 0)                                                                                                     \
    WITH(X, le, 0)                                                                                                     \
    WITH(X, gt, 0)                                                                                                     \
    WITH(X, ge, 0)                                                                                                     \
    WITH_INT(X, and, -1)                                                                                               \
    WITH_INT(X, or, 0)                                                                                                 \
    WITH_INT(X, xor, 0)                                                                                                \
    X(not, GN_I32, S4, gn_not(a))                                                                                      \
    PLAIN(X, sign)                                                                                                     \
    PLAIN(X, floor)                                                                                                    \
    PLAIN(X, ceil)                                                                                                     \
    PLAIN(X, round)                                                                                                    \
    PLAIN(X, trunc)                                                                                                    \
    PLAIN(X, exp2)                                                                                                     \
    PLAIN(X, expm1)                                                                                                    \
    PLAIN(X, log2)                                                                                                     \
    PLAIN(X, log10)                                                                                                    \
    PLAIN(X, log1p)                                                                                                    \
    PLAIN(X, reciprocal)                                                                                               \
    PLAIN(X, square)                                                                                                   \
    PLAIN(X, sin)                                                                                                      \
    PLAIN(X, cos)                                                                                                      \
    PLAIN(X, tan)                                                                                                      \
    PLAIN(X, asin)                                                                                                     \
    PLAIN(X, acos)                                                                                                     \
    PLAIN(X, atan)                                                                                                     \
    PLAIN(X, sinh)                                                                                                     \
    PLAIN(X, cosh)                                                                                                     \
    PLAIN(X, asinh)                                                                                                    \
    PLAIN(X, acosh)                                                                                                    \
    PLAIN(X, atanh)                                                                                                    \
    PLAIN(X, erf)                                                                                                      \
    PLAIN(X, erfc)                                                                                                     \
    PLAIN(X, softplus)                                                                                                 \
    PLAIN(X, softsign)                                                                                                 \
    PLAIN(X, hard_sigmoid)                                                                                             \
    PLAIN(X, hard_swish)                                                                                               \
    PLAIN(X, selu)                                                                                                     \
    PLAIN(X, mish)                                                                                                     \
    PLAIN(X, log_sigmoid)                                                                                              \
    WITH(X, atan2, 1)                                                                                                  \
    WITH(X, fmod, INFINITY)                                                                                            \
    WITH(X, remainder, INFINITY)                                                                                       \
    WITH(X, floor_divide, 1)                                                                                           \
    WITH(X, hypot, 0)                                                                                                  \
    X(copysign, GN_F32, S4, gn_copysign(a, a))                                                                         \
    WITH_INT(X, shift_left, 0)                                                                                         \
    WITH_INT(X, shift_right, 0)                                                                                        \
    X(fma, GN_F32, S4, gn_fma(a, whole(g, GN_F32, GN_SCALAR, 1), whole(g, GN_F32, GN_SCALAR, 0)))                      \
    X(lerp, GN_F32, S4, gn_lerp(a, a, whole(g, GN_F32, GN_SCALAR, 0)))                                                 \
    PLAIN(X, isnan)                                                                                                    \
    PLAIN(X, isinf)                                                                                                    \
    PLAIN(X, isfinite)                                                                                                 \
    X(isnan, GN_I8, S4, gn_isnan(a))                                                                                   \
    X(isinf, GN_I8, S4, gn_isinf(a))                                                                                   \
    X(isfinite, GN_I8, S4, gn_isfinite(a))                                                                             \
    PLAIN(X, logical_not)                                                                                              \
    X(logical_and, GN_BOOL, S4, gn_logical_and(a, a))                                                                  \
    X(logical_or, GN_BOOL, S4, gn_logical_or(a, a))                                                                    \
    X(logical_xor, GN_BOOL, S4, gn_logical_xor(a, a))                                                                  \
    WITH(X, prelu, 1)                                                                                                  \
    NUMBER(X, add_c, 0)                                                                                                \
    NUMBER(X, sub_c, 0)                                                                                                \
    NUMBER(X, mul_c, 1)                                                                                                \
    NUMBER(X, div_c, 1)                                                                                                \
    NUMBER(X, pow_c, 1)                                                                                                \
    NUMBER(X, minimum_c, INFINITY)                                                                                     \
    NUMBER(X, maximum_c, -INFINITY)                                                                                    \
    NUMBER(X, eq_c, 0)                                                                                                 \
    NUMBER(X, ne_c, 0)                                                                                                 \
    NUMBER(X, lt_c, 0)                                                                                                 \
    NUMBER(X, le_c, 0)                                                                                                 \
    NUMBER(X, gt_c, 0)                                                                                                 \
    NUMBER(X, ge_c, 0)                                                                                                 \
    REDUCE(X, sum)                                                                                                     \
    REDUCE(X, mean)                                                                                                    \
    REDUCE(X, max)                                                                                                     \
    REDUCE(X, min)                                                                                                     \
    REDUCE(X, argmax)                                                                                                  \
    REDUCE(X, argmin)                                                                                                  \
    REDUCE(X, prod)                                                                                                    \
    REDUCE(X, any)                                                                                                     \
    REDUCE(X, all)                                                                                                     \
    REDUCE(X, count_nonzero)                                                                                           \
    REDUCE(X, l1_norm)                                                                                                 \
    REDUCE(X, l2_norm)                                                                                                 \
    REDUCE(X, logsumexp)                                                                                               \
    X(outer, GN_F32, V3, gn_outer(whole(g, GN_F32, GN_SHAPE(1), 1), a))

static const float zeros[6];
typedef struct builder {
    const char *name;
    gn_dtype dtype;
    gn_shape shape;
} builder;
static const builder builders[] = {
#define X(n, d, s, call) { #n, d, { 0, { 0 } } },
    BUILDERS(X)
#undef X
};

/* The k-th row's call on a; the line it stands on in *out_line. */
static gn_tensor build(int k, gn_ctx *g, gn_tensor a, int *out_line) {
    int row = 0;
    *out_line = __LINE__ + 2;
#define X(n, d, s, call) \
    if (row++ == k) return call;
    BUILDERS(X)
#undef X
    return GN_NONE;
}

static gn_shape shape_of(int k) {
    int row = 0;
#define X(n, d, s, call) \
    if (row++ == k) return s;
    BUILDERS(X)
#undef X
    return GN_SCALAR;
}

static int64_t count(gn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    return n;
}

static bool same_handle(gn_tensor a, gn_tensor b) { return a.ctx == b.ctx && a.id == b.id && a.gen == b.gen; }

/* ---- the header ---- */

static bool has_row(const char *name) {
    for (int k = 0; k < TEST_COUNT(builders); k++)
        if (strcmp(builders[k].name, name) == 0) return true;
    return false;
}

/* The builder that a line of the header declares; false for other lines. */
static bool declared(const char *line, char name[64]) {
    char kind[8], end = 0;
    if (sscanf(line, "GN__DECL%7[123NR](%60[a-z0-9_]%c", kind, name, &end) == 3 && end == ')') {
        if (kind[0] == 'N') strcat(name, "_c");
        return true;
    }
    if (sscanf(line, "GN_API gn_tensor gn_%60[a-z0-9_](", name) != 1 &&
        sscanf(line, "GN_API void gn_%60[a-z0-9_](", name) != 1)
        return false;
    size_t n = strlen(name);
    if (n < 4 || strcmp(name + n - 3, "_at") != 0) return false;
    name[n - 3] = 0;
    /* any op by its number; a value that exists: step_test */
    return strcmp(name, "apply") != 0 && strcmp(name, "recording_result") != 0;
}

TEST(every_builder_of_the_header_has_a_row) {
    FILE *f = fopen("genie.h", "r");
    char line[1024], name[80];
    int n = 0;
    if (!f) {
        test_skip("genie.h is not in this folder");
        return;
    }
    while (fgets(line, sizeof line, f))
        if (declared(line, name)) {
            n++;
            if (!has_row(name)) test_fail(__FILE__, __LINE__, "gn_%s has no row in BUILDERS", name);
        }
    fclose(f);
    CHECK(n > 150);
}

/* ---- nodes of their own ---- */

enum { DATA, WEIGHT, STATE, VERSION, NODE, KINDS };

static gn_tensor operand(gn_ctx *g, int kind, gn_dtype d, gn_shape s, const void *host) {
    gn_tensor t = kind == WEIGHT                     ? gn_weight(g, d, s, host, "operand")
                  : kind == STATE || kind == VERSION ? gn_state(g, d, s, host, "operand")
                                                     : gn_data(g, d, s, host);
    if (kind == VERSION) t = gn_assign(t, gn_data(g, d, s, host));
    if (kind == NODE) t = gn_add(t, gn_like(t, 0));
    return gn_label(t, "operand");
}

/* Of a result: another handle, a label that is its own, and no version of the state that it was built on. */
static void check_own(int k, int kind, gn_ctx *g, gn_tensor a, gn_tensor y) {
    gn_info info;
    const char *name = builders[k].name;
    if (gn_describe(y, &info) != GN_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", name, gn_last_error(g)->text);
        return;
    }
    if (same_handle(a, y))
        test_fail(__FILE__, __LINE__, "row %d, %s: its operand's own handle (kind %d)", k, name, kind);
    gn_label(y, "result");
    if (gn_describe(a, &info) != GN_OK || strcmp(info.label, "operand") != 0)
        test_fail(__FILE__, __LINE__, "row %d, %s: the operand is now labelled '%s'", k, name, info.label);
    bool is_state = strcmp(name, "assign") == 0 || strcmp(name, "state") == 0;
    gn_describe(y, &info);
    gn_tensor put = gn_assign(y, gn_full(g, info.dtype, info.shape, 0));
    if (!is_state && gn_describe(put, &info) != GN_NOT_A_STATE)
        test_fail(__FILE__, __LINE__, "row %d, %s: the result can be assigned", k, name);
}

/* The sum of y and of a, squared, seen from y alone: what goes by way of a does not count. */
static void check_gradient(int k, gn_ctx *g, gn_tensor a, gn_tensor y, const float *x) {
    float got[6];
    gn_tensor gy, loss = gn_sum(gn_mul(y, gn_square(a)), GN_ALL_AXES, false);
    int64_t n = count(shape_of(k));
    if (gn_grad(loss, &y, 1, &gy) != GN_OK || gn_read(gy, got, (size_t)n * sizeof *got) != GN_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", builders[k].name, gn_last_error(g)->text);
        return;
    }
    for (int i = 0; i < n; i++)
        if (got[i] != x[i] * x[i])
            test_fail(__FILE__, __LINE__, "row %d, %s: gradient %g, not %g", k, builders[k].name, (double)got[i],
                      (double)(x[i] * x[i]));
}

TEST(every_result_is_a_node_of_its_own) {
    static const float x[6] = { 1, 2, 3, 4, 5, 6 };
    static const int64_t ints[6];
    int line;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int k = 0; k < TEST_COUNT(builders); k++)
        for (int kind = 0; kind < KINDS; kind++) {
            gn_dtype d = builders[k].dtype;
            gn_shape s = shape_of(k);
            gn_info ia, iy;
            gn_tensor a = operand(g, kind, d, s, d == GN_F32 ? (const void *)x : ints), y = build(k, g, a, &line);
            check_own(k, kind, g, a, y);
            gn_step(g); /* the assign that was refused */
            a = operand(g, kind, d, s, d == GN_F32 ? (const void *)x : ints);
            y = build(k, g, a, &line);
            gn_describe(a, &ia);
            gn_describe(y, &iy);
            bool alike = iy.dtype == GN_F32 && ia.dtype == GN_F32 && memcmp(&ia.shape, &iy.shape, sizeof ia.shape) == 0;
            if (alike && strcmp(builders[k].name, "assign") != 0) check_gradient(k, g, a, y, x);
            gn_step(g);
        }
    gn_close(g);
}

/* Rows that go to a copy do not arrive in the state. */
TEST(append_to_a_neutral_result_leaves_the_state) {
    static const float x[6] = { 1, 2, 3, 4, 5, 6 };
    int line, tried = 0;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int k = 0; k < TEST_COUNT(builders); k++) {
        float got[6];
        gn_info info;
        gn_tensor s = gn_state(g, GN_F32, S4, x, "cache");
        gn_shape shape = shape_of(k);
        if (builders[k].dtype != GN_F32 || shape.rank != 4 || strcmp(builders[k].name, "assign") == 0 ||
            strcmp(builders[k].name, "state") == 0)
            continue;
        gn_tensor y = build(k, g, s, &line);
        if (gn_describe(y, &info) == GN_OK && info.dtype == GN_F32 && info.shape.rank == 4 && info.shape.dims[2] == 2 &&
            info.shape.dims[3] == 3) {
            tried++;
            gn_kv_append(y, gn_full(g, GN_F32, GN_SHAPE(1, 1, 1, 3), 9), gn_scalar(g, GN_I32, 0));
            CHECK_RESULT(gn_step(g), GN_OK);
            CHECK_RESULT(gn_read(s, got, sizeof got), GN_OK);
            if (memcmp(got, x, sizeof x) != 0)
                test_fail(__FILE__, __LINE__, "row %d, %s: the append wrote the state", k, builders[k].name);
        }
        gn_step(g);
        gn_release(s);
    }
    CHECK(tried > 40);
    gn_close(g);
}

/* Gradients of one value for two parameters, or one that is there twice, are nodes of their own as well. */
TEST(gradients_are_nodes_of_their_own) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor a = gn_data(g, GN_F32, V3, zeros), b = gn_data(g, GN_F32, V3, zeros), params[4] = { a, b, a, b },
              grads[4];
    CHECK_RESULT(gn_grad(gn_sum(gn_add(a, b), GN_ALL_AXES, false), params, 4, grads), GN_OK);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++) CHECK(!same_handle(grads[i], grads[k]));
    float got[3];
    gn_label(grads[0], "first");
    for (int i = 0; i < 4; i++) {
        gn_info info;
        gn_describe(grads[i], &info);
        CHECK_STR(info.label, i ? "" : "first");
        CHECK_RESULT(gn_read(grads[i], got, sizeof got), GN_OK);
        CHECK(got[0] == 1 && got[2] == 1);
    }
    gn_close(g);
}

/* ---- errors ---- */

/* "f32 (2, 3)" or "(2, 3)" somewhere in the text. */
static bool tells_a_shape(const char *text) {
    for (const char *p = strchr(text, '('); p; p = strchr(p + 1, '(')) {
        size_t n = strspn(p + 1, "-0123456789, ");
        if (p[1 + n] == ')') return true;
    }
    return false;
}

static bool is_of_shapes(gn_result r) {
    return r == GN_BAD_SHAPE || r == GN_BAD_RANK || r == GN_BAD_DTYPE || r == GN_TOO_MANY_NODES ||
           r == GN_OUT_OF_MEMORY || r == GN_LIMIT;
}

/* What the latest error of a row's call has to say. `line` 0: any but 0. */
static void check_error(int k, gn_ctx *g, gn_result r, int line, const char *what) {
    const gn_error *e = gn_last_error(g);
    const char *name = builders[k].name;
    if (e->result != r)
        test_fail(__FILE__, __LINE__, "row %d, %s, %s: %s was returned, the error is of %s: %s", k, name, what,
                  gn_result_name(r), gn_result_name(e->result), e->text);
    if (!e->op[0]) test_fail(__FILE__, __LINE__, "row %d, %s, %s: no op: %s", k, name, what, e->text);
    if (line ? e->line != line : !e->line)
        test_fail(__FILE__, __LINE__, "row %d, %s, %s: line %d, not %d: %s", k, name, what, e->line, line, e->text);
    if (!strstr(e->file, "builders_test.c"))
        test_fail(__FILE__, __LINE__, "row %d, %s, %s: file '%s'", k, name, what, e->file);
    if (!e->text[0]) test_fail(__FILE__, __LINE__, "row %d, %s, %s: no text", k, name, what);
    if (is_of_shapes(r) && !tells_a_shape(e->text))
        test_fail(__FILE__, __LINE__, "row %d, %s, %s: no shape: %s", k, name, what, e->text);
}

/* An error of another call that must not be told again. */
static void spoil(gn_ctx *g) { gn_release(gn_full(g, GN_F32, GN_SCALAR, 1)); }

static int provoke(int k, gn_ctx *g, gn_tensor a, const char *what) {
    int line;
    gn_info info;
    spoil(g);
    gn_tensor y = build(k, g, a, &line);
    gn_result r = gn_describe(y, &info);
    if (r != GN_OK) check_error(k, g, r, 0, what);
    gn_result read = gn_realize(&y, 1);
    if (r != GN_OK) {
        CHECK_RESULT(read, r);
        check_error(k, g, r, 0, what);
    }
    return r != GN_OK;
}

TEST(errors_of_all_dtypes_and_shapes_have_op_line_and_shapes) {
    static const gn_shape shapes[] = { { 0, { 0 } },          { 1, { 3 } },
                                       { 1, { 0 } },          { 2, { 2, 3 } },
                                       { 2, { 0, 3 } },       { 3, { 3, 1, 1 } },
                                       { 3, { 2, 3, 5 } },    { 4, { 1, 1, 2, 3 } },
                                       { 4, { 1, 1, 7, 5 } }, { 8, { 1, 1, 1, 1, 1, 1, 2, 3 } } };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    int failed = 0;
    for (int k = 0; k < TEST_COUNT(builders); k++)
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
            for (int s = 0; s < TEST_COUNT(shapes); s++) {
                char what[64];
                snprintf(what, sizeof what, "%s of rank %d", gn_dtype_name(d), shapes[s].rank);
                failed += provoke(k, g, gn_full(g, d, shapes[s], 0), what);
                gn_step(g);
            }
    printf("    %d errors of %d calls\n", failed, TEST_COUNT(builders) * (GN_DTYPE__COUNT - 1) * TEST_COUNT(shapes));
    CHECK(failed > 4000);
    gn_close(g);
}

/* A row that does not use its operand cannot fail by it. */
static bool uses_operand(int k) {
    gn_info info;
    int line;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor y = build(k, g, GN_NONE, &line);
    bool uses = gn_describe(y, &info) != GN_OK;
    gn_close(g);
    return uses;
}

TEST(errors_of_missing_stale_and_foreign_tensors_have_op_and_line) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" }), *other = gn_open(&(gn_desc){ .devices = "null" });
    int used = 0;
    for (int k = 0; k < TEST_COUNT(builders); k++) {
        gn_tensor stale = gn_full(g, builders[k].dtype, shape_of(k), 0);
        gn_step(g);
        gn_tensor foreign = gn_full(other, builders[k].dtype, shape_of(k), 0);
        if (!uses_operand(k)) continue;
        used++;
        CHECK(provoke(k, g, GN_NONE, "missing"));
        gn_step(g);
        CHECK(provoke(k, g, stale, "stale"));
        gn_step(g);
        int line;
        gn_tensor y = build(k, g, foreign, &line);
        float out[64];
        gn_result r = gn_read(y, out, 1);
        if (r == GN_OK) test_fail(__FILE__, __LINE__, "%s with a tensor of another context", builders[k].name);
        gn_step(g);
        gn_step(other);
    }
    CHECK(used > 150);
    gn_close(g);
    gn_close(other);
}

/* Whatever node of a builder is the first without room. */
TEST(errors_of_a_full_step_have_op_line_and_shapes) {
    enum { ROOM = 40 };
    int provoked = 0;
    for (int k = 0; k < TEST_COUNT(builders); k++)
        for (int left = 0; left < 4; left++) {
            gn_ctx *g = gn_open(&(gn_desc){ .devices = "null", .max_nodes = ROOM });
            gn_tensor a = gn_full(g, builders[k].dtype, shape_of(k), 0);
            gn_stats s;
            int line;
            gn_info info;
            for (gn_get_stats(g, &s); s.nodes_built < (uint64_t)(ROOM - 1 - left); gn_get_stats(g, &s))
                gn_full(g, GN_F32, GN_SCALAR, 0);
            gn_tensor y = build(k, g, a, &line);
            gn_result r = gn_describe(y, &info);
            if (r != GN_OK && strcmp(builders[k].name, "one_hot") != 0) {
                CHECK_RESULT(r, GN_TOO_MANY_NODES);
                check_error(k, g, r, 0, "a full step");
                CHECK(strstr(gn_last_error(g)->text, "max_nodes") != NULL);
                provoked++;
            }
            gn_close(g);
        }
    CHECK(provoked > 200);
}

/* Calls with arguments that no tensor can make good; each is refused, with the op, its line and the shapes. */
#define BAD_CALLS(X)                                                                                                \
    X(softmax, gn_softmax(a, 7))                                                                                    \
    X(sum, gn_sum(a, GN_AXES(9), false))                                                                            \
    X(sum, gn_sum(a, GN_AXES(0, 0), false))                                                                         \
    X(mean, gn_mean(a, GN_AXES(-5), false))                                                                         \
    X(cumsum, gn_cumsum(a, 4))                                                                                      \
    X(argsort, gn_argsort(a, -5, false))                                                                            \
    X(sort, gn_sort(a, 5, true))                                                                                    \
    X(topk, top_values(a))                                                                                          \
    X(reshape, gn_reshape(a, GN_SHAPE(4, -1)))                                                                      \
    X(reshape, gn_reshape(a, GN_SHAPE(-1, -1)))                                                                     \
    X(reshape, gn_reshape(a, GN_SHAPE(7)))                                                                          \
    X(reshape, gn_reshape(a, GN_SHAPE(0, -1)))                                                                      \
    X(reshape, gn_reshape(a, ((gn_shape){ 9, { 1 } })))                                                             \
    X(broadcast, gn_broadcast(a, GN_SHAPE(4)))                                                                      \
    X(broadcast, gn_broadcast(a, GN_SHAPE(-3, 1, 1, 2, 3)))                                                         \
    X(expand, gn_expand(a, GN_SHAPE(-1)))                                                                           \
    X(transpose, gn_transpose(a, 0, 9))                                                                             \
    X(permute, gn_permute(a, GN_AXES(0, 0, 1, 2)))                                                                  \
    X(permute, gn_permute(a, GN_AXES(0)))                                                                           \
    X(slice, gn_slice(a, 8, 0, 1, 1))                                                                               \
    X(slice, gn_slice(a, 0, 0, 1, 0))                                                                               \
    X(slice_put, gn_slice_put(a, a, 3, 0, 1, 1))                                                                    \
    X(concat, gn_concat(&a, 1, 9))                                                                                  \
    X(stack, gn_stack(&a, 1, 9))                                                                                    \
    X(split, one_part(gn_reshape(a, GN_SCALAR)))                                                                    \
    X(pad, gn_pad(a, GN_SHAPE(1), GN_SHAPE(1), GN_PAD_EDGE, 0))                                                     \
    X(pad, gn_pad(a, GN_SHAPE(0, 0, -1, 0), ZEROS4, GN_PAD_EDGE, 0))                                                \
    X(pad, gn_pad(a, GN_SHAPE(1, 0, 0, 0), ZEROS4, GN_PAD_REFLECT, 0))                                              \
    X(pad, gn_pad(a, ZEROS4, ZEROS4, (gn_pad_mode)7, 0))                                                            \
    X(flip, gn_flip(a, GN_AXES(4)))                                                                                 \
    X(roll, gn_roll(a, 1, 4))                                                                                       \
    X(tile, gn_tile(a, GN_SHAPE(2)))                                                                                \
    X(tile, gn_tile(a, GN_SHAPE(1, 1, 1, -1)))                                                                      \
    X(repeat, gn_repeat(a, -1, 0))                                                                                  \
    X(repeat, gn_repeat(a, INT64_MAX, 3))                                                                           \
    X(squeeze, gn_squeeze(a, GN_AXES(3)))                                                                           \
    X(squeeze, gn_squeeze(a, GN_AXES(9)))                                                                           \
    X(unsqueeze, gn_unsqueeze(a, 9))                                                                                \
    X(diagonal, gn_diagonal(a, 0, 1, 1))                                                                            \
    X(diagonal, gn_diagonal(a, 0, 1, 9))                                                                            \
    X(im2col, gn_im2col(a, GN_SHAPE(9, 9), GN_SHAPE(1, 1), GN_SHAPE(0, 0), GN_SHAPE(1, 1)))                         \
    X(im2col, gn_im2col(a, GN_SHAPE(1, 1), GN_SHAPE(0, 1), GN_SHAPE(0, 0), GN_SHAPE(1, 1)))                         \
    X(im2col, gn_im2col(a, GN_SHAPE(1), GN_SHAPE(1), GN_SHAPE(0), GN_SHAPE(1)))                                     \
    X(col2im, gn_col2im(a, GN_SHAPE(1), GN_SHAPE(1), GN_SHAPE(1), GN_SHAPE(0), GN_SHAPE(1)))                        \
    X(one_hot, gn_one_hot(gn_cast(a, GN_I32), -1, GN_F32))                                                          \
    X(one_hot, gn_one_hot(gn_cast(a, GN_I32), (int64_t)1 << 60, GN_F32))                                            \
    X(det, gn_det(a))                                                                                               \
    X(solve, gn_solve(a, a))                                                                                        \
    X(unique, gn_unique(a, -1, NULL, NULL, NULL, NULL))                                                             \
    X(roi_align, gn_roi_align(a, a, a, NULL))                                                                       \
    X(deform_conv, gn_deform_conv(a, a, a, GN_NONE, GN_NONE, NULL))                                                 \
    X(non_max_suppression, gn_non_max_suppression(a, a, 1, 0, 0, true))                                             \
    X(nonzero, gn_nonzero(a, -1))                                                                                   \
    X(cast, gn_cast(a, (gn_dtype)99))                                                                               \
    X(celu, gn_celu(a, -1))                                                                                         \
    X(rotary, gn_rotary(a, gn_full(g, GN_I32, GN_SHAPE(2), 0), 1, true))                                            \
    X(rotary, gn_rotary_table(a, GN_F16, NULL))                                                                     \
    X(rotary, gn_rotary_with(a, gn_full(g, GN_I32, GN_SCALAR, 0), NULL))                                            \
    X(rotary, gn_rotary_by(a, gn_full(g, GN_F16, GN_SHAPE(2), 0), true))                                            \
    X(smooth_l1_loss, gn_smooth_l1_loss(a, a, -1))                                                                  \
    X(cross_entropy_smooth, gn_cross_entropy_smooth(a, gn_full(g, GN_I32, GN_SHAPE(1, 1, 2), 0), 2))                \
    X(full, gn_full(g, GN_F32, GN_SHAPE((int64_t)1 << 50), 1))                                                      \
    X(full, gn_full(g, GN_F32, GN_SHAPE(-1), 1))                                                                    \
    X(full, gn_full(g, (gn_dtype)77, V3, 1))                                                                        \
    X(full, gn_full(g, GN_F32, ((gn_shape){ 9, { 0 } }), 1))                                                        \
    X(full, gn_full(g, GN_F32, ((gn_shape){ -1, { 0 } }), 1))                                                       \
    X(arange, gn_arange(g, GN_F32, -1, 0, 1))                                                                       \
    X(arange, gn_arange(g, GN_F32, (int64_t)1 << 60, 0, 1))                                                         \
    X(arange, gn_arange(g, GN_BOOL, 2, 0, 1))                                                                       \
    X(random_normal, gn_random_normal(g, GN_I32, V3))                                                               \
    X(random_uniform, gn_random_uniform(g, GN_F32, GN_SHAPE(-1)))                                                   \
    X(data, gn_data(g, GN_F32, GN_SHAPE(-1), zeros))                                                                \
    X(data, gn_data(g, (gn_dtype)0, V3, zeros))                                                                     \
    X(data, gn_data(g, GN_F32, V3, NULL))                                                                           \
    X(data, gn_data_copy(g, GN_F32, V3, NULL))                                                                      \
    X(data, gn_scalar(g, (gn_dtype)88, 1))                                                                          \
    X(weight, gn_weight(g, GN_F32, V3, NULL, "w"))                                                                  \
    X(weight, gn_weight_file(g, GN_F32, V3, "/nowhere", 0, "w"))                                                    \
    X(weight, gn_weight(g, GN_F32, GN_SHAPE(-1), zeros, "w"))                                                       \
    X(state, gn_state(g, GN_F32, GN_SHAPE((int64_t)1 << 60), NULL, "s"))                                            \
    X(einsum, gn_einsum("ab", &a, 1))                                                                               \
    X(einsum, gn_einsum("abcde", &a, 1))                                                                            \
    X(einsum, gn_einsum("abcc", &a, 1))                                                                             \
    X(einsum, gn_einsum("a?cd", &a, 1))                                                                             \
    X(einsum, gn_einsum("abcd->x", &a, 1))                                                                          \
    X(einsum, gn_einsum(NULL, &a, 1))                                                                               \
    X(einsum, gn_einsum("abcd,abcd", &a, 1))                                                                        \
    X(linear_quantized, gn_linear_quantized(a, (gn_quantized){ .format = GN_QUANT_Q8_0, .data = a }, GN_NONE))      \
    X(dequantize, gn_dequantize((gn_quantized){ .format = (gn_quant)1, .data = a }, GN_F32))                        \
    X(quantize,                                                                                                     \
      gn_quantize(gn_reshape(a, GN_SHAPE(2, -1)), &(gn_quantize_desc){ .format = GN_QUANT_INT4, .group = 7 }).data) \
    X(quantize, gn_quantize(gn_reshape(a, GN_SHAPE(2, -1)), NULL).data)                                             \
    X(expert_linear, gn_expert_linear(a, a, a, GN_NONE))                                                            \
    X(interpolate, gn_interpolate(a, GN_AXES(0), GN_SHAPE(1, 2), NULL))                                             \
    X(interpolate, gn_interpolate(a, GN_AXES(9), GN_SHAPE(1), NULL))                                                \
    X(recurrent, gn_recurrent(a, a, a, NULL))                                                                       \
    X(pool, gn_pool(a, NULL))                                                                                       \
    X(lp_pool, gn_lp_pool(a, 0, NULL))                                                                              \
    X(conv, gn_conv(a, a, a, NULL))                                                                                 \
    X(conv, gn_conv(a, a, GN_NONE, &(gn_conv_desc){ .extra = { 1 } }))                                              \
    X(matmul, gn_matmul(a, a))                                                                                      \
    X(matmul_ints, gn_matmul_ints(a, a, GN_NONE, GN_NONE))                                                          \
    X(conv_ints, gn_conv_ints(a, a, GN_NONE, GN_NONE, NULL))                                                        \
    X(outer, gn_outer(a, a))                                                                                        \
    X(index_select, gn_index_select(a, 0, a))                                                                       \
    X(gather_nd, gn_gather_nd(a, a))                                                                                \
    X(from_end, gn_from_end(a, 4))                                                                                  \
    X(from_end_nd, gn_from_end_nd(a, S4))                                                                           \
    X(embedding_bag, gn_embedding_bag_offsets(a, a, a, false, GN_BAG_SUM))                                          \
    X(bce_loss, gn_bce_loss(a, gn_reshape(a, GN_SHAPE(6))))                                                         \
    X(nll_loss, gn_nll_loss(a, a))                                                                                  \
    X(nll_loss, gn_nll_loss_with(a, a, NULL))                                                                       \
    X(huber_loss, gn_huber_loss_with(a, a, -1, NULL))                                                               \
    X(mse_loss, gn_mse_loss_with(a, gn_reshape(a, GN_SHAPE(6)), NULL))                                              \
    X(bce_loss, gn_bce_loss_with(a, a, &(gn_loss_desc){ .positive = a }))                                           \
    X(assign, gn_assign(a, a))                                                                                      \
    X(kv_append, gn_kv_append(a, a, a))                                                                             \
    X(page_append, gn_page_append(a, a, a, GN_NONE, GN_NONE))                                                       \
    X(page_copy, gn_page_copy(a, a, a))                                                                             \
    X(page_attention, gn_page_attention(a, a, a, a, a, a, NULL))                                                    \
    X(attention, gn_attention(a, a, a, &(gn_attention_desc){ .window = 1 }))                                        \
    X(attention, gn_attention(a, a, gn_reshape(a, GN_SHAPE(6)), NULL))

TEST(bad_arguments_are_told_with_op_line_and_shapes) {
    /* by these some of them are told: sort, expand… */
    static const char said_with[] = "argsort broadcast permute unsqueeze reshape attention_with";
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    int n = 0;
#define X(name, call)                                                                                              \
    do {                                                                                                           \
        gn_tensor a = gn_full(g, GN_F32, strcmp(#name, "topk") ? S4 : GN_SHAPE(2), 1);                             \
        gn_info info;                                                                                              \
        (void)a;                                                                                                   \
        spoil(g);                                                                                                  \
        int line = __LINE__;                                                                                       \
        gn_tensor y = call;                                                                                        \
        gn_result r = gn_describe(y, &info);                                                                       \
        const gn_error *e = gn_last_error(g);                                                                      \
        bool shaped = strcmp(#call, "gn_scalar(g, (gn_dtype)88, 1)") == 0 || tells_a_shape(e->text) ||             \
                      (r == GN_BAD_RANK && strstr(e->text, "rank "));                                              \
        if (r == GN_OK) test_fail(__FILE__, __LINE__, "%s is taken", #call);                                       \
        else if (!e->op[0] || !e->line || !strstr(e->file, "builders_test.c") || (r != GN_NOT_A_STATE && !shaped)) \
            test_fail(__FILE__, __LINE__, "%s: op '%s', line %d, %s", #call, e->op, e->line, e->text);             \
        else if (e->line == line && strcmp(e->op, #name) != 0 && !strstr(said_with, e->op))                        \
            test_fail(__FILE__, __LINE__, "%s is told as '%s'", #call, e->op);                                     \
        gn_step(g);                                                                                                \
        n++;                                                                                                       \
    } while (0);
    BAD_CALLS(X)
#undef X
    CHECK(n > 70);
    gn_close(g);
}

/* ---- errors of memory, of a server's limits, and of calls that are no ops ---- */

TEST(errors_of_memory_name_the_largest_tensor) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    float y;
    int line = __LINE__ + 1;
    gn_tensor big = gn_sort(gn_full(g, GN_F32, GN_SHAPE((int64_t)1 << 44), 1), 0, false);
    CHECK_RESULT(gn_read(gn_sum(big, GN_ALL_AXES, false), &y, sizeof y), GN_OUT_OF_MEMORY);
    const gn_error *e = gn_last_error(g);
    CHECK_INT(e->line, line);
    CHECK(e->op[0] && strstr(e->text, "17592186044416)"));
    gn_close(g);
}

TEST(errors_of_a_servers_limit_have_op_line_and_shape) {
    gn_server *s = NULL;
    gn_error error;
    float y, *host = calloc(1 << 20, sizeof *host);
    REQUIRE(
        gn_server_open(&(gn_server_desc){ .listen = "none", .memory_limit = 1 << 20, .no_costs = true, .threads = 1 },
                       &s, &error) == GN_OK);
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 &&
            gn_server_attach(s, loopback_transport(ends[0]), "test") == GN_OK);
    gn_ctx *g = gn_open_transport(NULL, loopback_transport(ends[1]), "cpu");
    REQUIRE(gn_status(g) == GN_OK);
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(1 << 20), host, "large");
    int line = __LINE__ - 1;
    gn_result r = gn_read(gn_sum(w, GN_ALL_AXES, false), &y, sizeof y);
    const gn_error *e = gn_last_error(g);
    printf("    %s: op %s, line %d, label %s: %s\n", gn_result_name(r), e->op, e->line, e->label, e->text);
    CHECK_RESULT(r, GN_LIMIT);
    CHECK(e->op[0] && tells_a_shape(e->text));
    CHECK(e->line == line || e->line == line + 2);
    gn_close(g);
    gn_server_close(s);
    free(host);
}

/* Calls whose tensors are all missing have no context to keep their error in: each still tells its own. */
TEST(calls_on_nothing_tell_their_own_error) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    float y;
    void *out = &y;
    size_t bytes = sizeof y;
    uint64_t ticket;
    gn_info info;
    gn_tensor none = GN_NONE;
    static const char *const names[] = { "gn_read",    "gn_read_many", "gn_read_later", "gn_realize", "gn_describe",
                                         "gn_explain", "gn_release",   "sgd",           "grad" };
    for (int i = 0; i < TEST_COUNT(names); i++) {
        gn_result r;
        spoil(g);
        CHECK_STR(gn_last_error(g)->op, "gn_release");
        switch (i) {
        case 0: r = gn_read(none, &y, sizeof y); break;
        case 1: r = gn_read_many(&none, 1, &out, &bytes); break;
        case 2: r = gn_read_later(&none, 1, &out, &bytes, &ticket); break;
        case 3: r = gn_realize(&none, 1); break;
        case 4: r = gn_describe(none, &info); break;
        case 5:
            r = gn_explain(&none, 1, NULL, NULL, 0, &bytes);
            bytes = sizeof y;
            break;
        case 6: r = gn_release(none); break;
        case 7: r = gn_sgd(&(gn_sgd_desc){ .lr = GN_NONE }, &none, &none, NULL, 1); break;
        default: r = gn_grad(none, &none, 1, &none); break;
        }
        CHECK_RESULT(r, GN_BAD_ARGUMENT);
        CHECK_RESULT(gn_last_error(g)->result, GN_BAD_ARGUMENT);
        CHECK_STR(gn_last_error(g)->op, names[i]);
        CHECK(gn_last_error(g)->text[0] != 0);
        CHECK_STR(gn_last_error(NULL)->op, names[i]);
        none = GN_NONE;
    }
    gn_close(g);
}

/* The first cause of a chain that begins on nothing is told, also where a sound tensor joins it, and where it is
   optional. */
TEST(chains_on_nothing_tell_where_they_began) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    float y[6];
    gn_tensor x = gn_full(g, GN_F32, M23, 1);
    int line = __LINE__ + 1;
    gn_tensor nothing = gn_relu(GN_NONE), chain = gn_exp(gn_neg(nothing));
    gn_tensor uses[] = { chain,
                         gn_add(x, chain),
                         gn_layernorm(x, nothing, GN_NONE, 0),
                         gn_rmsnorm(x, nothing, 0),
                         gn_linear(x, x, nothing),
                         gn_concat(NULL, 0, 0),
                         gn_stack(NULL, 0, 0),
                         gn_einsum("a", NULL, 0) };
    for (int i = 0; i < TEST_COUNT(uses); i++) {
        spoil(g);
        CHECK(gn_read(uses[i], y, sizeof y) != GN_OK);
        if (i < 2) CHECK_INT(gn_last_error(g)->line, line);
        if (i < 2) CHECK_STR(gn_last_error(g)->op, "relu");
        CHECK(strcmp(gn_last_error(g)->op, "gn_release") != 0);
    }
    gn_close(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(every_builder_of_the_header_has_a_row),
        TEST_ENTRY(every_result_is_a_node_of_its_own),
        TEST_ENTRY(append_to_a_neutral_result_leaves_the_state),
        TEST_ENTRY(gradients_are_nodes_of_their_own),
        TEST_ENTRY(errors_of_all_dtypes_and_shapes_have_op_line_and_shapes),
        TEST_ENTRY(errors_of_missing_stale_and_foreign_tensors_have_op_and_line),
        TEST_ENTRY(errors_of_a_full_step_have_op_line_and_shapes),
        TEST_ENTRY(bad_arguments_are_told_with_op_line_and_shapes),
        TEST_ENTRY(errors_of_memory_name_the_largest_tensor),
        TEST_ENTRY(errors_of_a_servers_limit_have_op_line_and_shape),
        TEST_ENTRY(calls_on_nothing_tell_their_own_error),
        TEST_ENTRY(chains_on_nothing_tell_where_they_began),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
