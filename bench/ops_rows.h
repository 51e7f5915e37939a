/* The rows of bench_core's ops_: what is computed, from what, and the same said to PyTorch.
 *
 * X(name, dtypes, sizes, inputs, operations, result, PyTorch's)
 *
 * dtypes: a row each. sizes: of one tensor of n elements in bytes (16K, 4M; OPS_ALL, OPS_SMALL), or n itself. s is the
 * largest power of 2 with s * s <= n.
 * inputs: a, b, c…: KIND:DIM,DIM… each; a DIM is a product and quotient of n, s and numbers from left to right; a row
 * with a DIM of 0 does not exist. A leading '-' says that only as much of it is read as there are results.
 *   u  floats -1 to 1, ints -100 to 100, bools    p  floats 0.25 to 4, ints 1 to 15    w  floats -10 to 10
 *   o  floats close to 1                         d  all different                     z  one of eight is not 0
 *   s  ints 0 to 7                               b  bool                              iK i64 below K
 *   qK i64 below K, each once in K of them
 * operations: how many floating-point (or, of ints, integer) operations a good program needs; 0: it only moves.
 * result: one tensor over a, b, c, n, s, d (the dtype), g; or with MANY statements that fill y[0], y[1]… and their
 * number. PyTorch's: the same; "~" before it: the values are not comparable. dt is the dtype. */

#define OPS_ALL "4K 16K 4M 64M"
#define OPS_SMALL "4K 16K 4M"
#define OPS_F (BIT(F32) | BIT(F64) | BIT(F16) | BIT(BF16))
#define OPS_W (BIT(F32) | BIT(F64))
#define OPS_I (BIT(I32) | BIT(I8) | BIT(U8))
#define OPS_MOVE (BIT(F32) | BIT(F64) | BIT(F16) | BIT(U8))

/* clang-format off */
#define OPS_ELEMENTWISE(X)                                                                                             \
    X(add, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_add(a, b), "a + b")                                                \
    X(sub, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_sub(a, b), "a - b")                                                \
    X(mul, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_mul(a, b), "a * b")                                                \
    X(div, OPS_F, OPS_ALL, "u:n p:n", 0, gn_div(a, b), "a / b")                                                        \
    X(div_int, OPS_I, OPS_ALL, "u:n p:n", 0, gn_div(a, b), "torch.div(a, b, rounding_mode='trunc')")                   \
    X(add_c, OPS_F | OPS_I, OPS_ALL, "u:n", 0, gn_add_c(a, 3), "a + 3")                                                \
    X(add_row, OPS_F, OPS_ALL, "u:n/1024,1024 u:1024", 0, gn_add(a, b), "a + b")                                       \
    X(add_column, OPS_F, OPS_ALL, "u:n/1024,1024 u:n/1024,1", 0, gn_add(a, b), "a + b")                                \
    X(minimum, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_minimum(a, b), "torch.minimum(a, b)")                          \
    X(maximum, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_maximum(a, b), "torch.maximum(a, b)")                          \
    X(neg, OPS_F | BIT(I32) | BIT(I8), OPS_ALL, "u:n", 0, gn_neg(a), "-a")                                             \
    X(abs, OPS_F | BIT(I32) | BIT(I8), OPS_ALL, "u:n", 0, gn_abs(a), "a.abs()")                                        \
    X(sign, OPS_F | BIT(I32), OPS_ALL, "u:n", 0, gn_sign(a), "a.sign()")                                               \
    X(square, OPS_F | BIT(I32), OPS_ALL, "u:n", 0, gn_square(a), "a.square()")                                         \
    X(relu, OPS_F | OPS_I, OPS_ALL, "u:n", 0, gn_relu(a), "a.relu()")                                                  \
    X(clamp, OPS_F | BIT(I32), OPS_ALL, "w:n", 0, gn_clamp(a, -2, 2), "a.clamp(-2, 2)")                                \
    X(sqrt, OPS_F, OPS_ALL, "p:n", 0, gn_sqrt(a), "a.sqrt()")                                                          \
    X(rsqrt, OPS_F, OPS_ALL, "p:n", 0, gn_rsqrt(a), "a.rsqrt()")                                                       \
    X(reciprocal, OPS_F, OPS_ALL, "p:n", 0, gn_reciprocal(a), "a.reciprocal()")                                        \
    X(floor, OPS_F, OPS_ALL, "w:n", 0, gn_floor(a), "a.floor()")                                                       \
    X(ceil, OPS_W, OPS_ALL, "w:n", 0, gn_ceil(a), "a.ceil()")                                                          \
    X(round, OPS_W, OPS_ALL, "w:n", 0, gn_round(a), "a.round()")                                                       \
    X(trunc, OPS_W, OPS_ALL, "w:n", 0, gn_trunc(a), "a.trunc()")                                                       \
    X(exp, OPS_F, OPS_ALL, "w:n", 16 * n, gn_exp(a), "a.exp()")                                                        \
    X(exp2, OPS_W, OPS_SMALL, "w:n", 16 * n, gn_exp2(a), "a.exp2()")                                                   \
    X(expm1, OPS_W, OPS_SMALL, "w:n", 24 * n, gn_expm1(a), "a.expm1()")                                                \
    X(log, OPS_F, OPS_ALL, "p:n", 20 * n, gn_log(a), "a.log()")                                                        \
    X(log2, OPS_W, OPS_SMALL, "p:n", 22 * n, gn_log2(a), "a.log2()")                                                   \
    X(log10, OPS_W, OPS_SMALL, "p:n", 22 * n, gn_log10(a), "a.log10()")                                                \
    X(log1p, OPS_W, OPS_SMALL, "p:n", 24 * n, gn_log1p(a), "a.log1p()")                                                \
    X(sin, OPS_F, OPS_ALL, "w:n", 24 * n, gn_sin(a), "a.sin()")                                                        \
    X(cos, OPS_W, OPS_ALL, "w:n", 24 * n, gn_cos(a), "a.cos()")                                                        \
    X(tan, OPS_W, OPS_ALL, "u:n", 32 * n, gn_tan(a), "a.tan()")                                                        \
    X(asin, OPS_W, OPS_SMALL, "u:n", 24 * n, gn_asin(a), "a.asin()")                                                   \
    X(acos, OPS_W, OPS_SMALL, "u:n", 24 * n, gn_acos(a), "a.acos()")                                                   \
    X(atan, OPS_W, OPS_SMALL, "w:n", 28 * n, gn_atan(a), "a.atan()")                                                   \
    X(sinh, OPS_W, OPS_SMALL, "w:n", 28 * n, gn_sinh(a), "a.sinh()")                                                   \
    X(cosh, OPS_W, OPS_SMALL, "w:n", 28 * n, gn_cosh(a), "a.cosh()")                                                   \
    X(asinh, OPS_W, OPS_SMALL, "w:n", 32 * n, gn_asinh(a), "a.asinh()")                                                \
    X(acosh, OPS_W, OPS_SMALL, "p:n", 32 * n, gn_acosh(gn_add_c(a, 1)), "(a + 1).acosh()")                             \
    X(atanh, OPS_W, OPS_SMALL, "u:n", 32 * n, gn_atanh(a), "a.atanh()")                                                \
    X(tanh, OPS_F, OPS_ALL, "w:n", 26 * n, gn_tanh(a), "a.tanh()")                                                     \
    X(sigmoid, OPS_F, OPS_ALL, "w:n", 20 * n, gn_sigmoid(a), "a.sigmoid()")                                            \
    X(erf, OPS_W, OPS_ALL, "w:n", 30 * n, gn_erf(a), "a.erf()")                                                        \
    X(erfc, OPS_W, OPS_SMALL, "u:n", 32 * n, gn_erfc(a), "a.erfc()")                                                   \
    X(gelu, OPS_F, OPS_ALL, "w:n", 32 * n, gn_gelu(a), "F.gelu(a)")                                                    \
    X(gelu_tanh, OPS_F, OPS_ALL, "w:n", 32 * n, gn_gelu_tanh(a), "F.gelu(a, approximate='tanh')")                      \
    X(silu, OPS_F, OPS_ALL, "w:n", 20 * n, gn_silu(a), "F.silu(a)")                                                    \
    X(softplus, OPS_W, OPS_SMALL, "w:n", 36 * n, gn_softplus(a), "F.softplus(a)")                                      \
    X(mish, OPS_W, OPS_SMALL, "w:n", 40 * n, gn_mish(a), "F.mish(a)")                                                  \
    X(selu, OPS_W, OPS_SMALL, "w:n", 24 * n, gn_selu(a), "F.selu(a)")                                                  \
    X(elu, OPS_W, OPS_SMALL, "w:n", 24 * n, gn_elu(a, 1), "F.elu(a)")                                                  \
    X(log_sigmoid, OPS_W, OPS_SMALL, "w:n", 36 * n, gn_log_sigmoid(a), "F.logsigmoid(a)")                              \
    X(softsign, OPS_W, OPS_SMALL, "w:n", 0, gn_softsign(a), "F.softsign(a)")                                           \
    X(hard_sigmoid, OPS_W, OPS_SMALL, "w:n", 0, gn_hard_sigmoid(a), "F.hardsigmoid(a)")                                \
    X(hard_swish, OPS_W, OPS_SMALL, "w:n", 0, gn_hard_swish(a), "F.hardswish(a)")                                      \
    X(leaky_relu, OPS_F, OPS_SMALL, "w:n", 0, gn_leaky_relu(a, 0.125), "F.leaky_relu(a, 0.125)")                       \
    X(pow, OPS_W, OPS_ALL, "p:n u:n", 60 * n, gn_pow(a, b), "torch.pow(a, b)")                                         \
    X(atan2, OPS_W, OPS_SMALL, "u:n p:n", 36 * n, gn_atan2(a, b), "torch.atan2(a, b)")                                 \
    X(fmod, OPS_W, OPS_SMALL, "w:n p:n", 0, gn_fmod(a, b), "torch.fmod(a, b)")                                         \
    X(remainder, OPS_W | BIT(I32), OPS_SMALL, "w:n p:n", 0, gn_remainder(a, b), "torch.remainder(a, b)")               \
    X(floor_divide, OPS_W | BIT(I32), OPS_SMALL, "w:n p:n", 0, gn_floor_divide(a, b), "torch.floor_divide(a, b)")      \
    X(hypot, OPS_W, OPS_SMALL, "u:n p:n", 0, gn_hypot(a, b), "torch.hypot(a, b)")                                      \
    X(copysign, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_copysign(a, b), "torch.copysign(a, b)")                             \
    X(fma, OPS_F, OPS_ALL, "u:n u:n u:n", 0, gn_fma(a, b, c), "torch.addcmul(c, a, b)")                                \
    X(lerp, OPS_W, OPS_ALL, "u:n u:n u:n", 0, gn_lerp(a, b, c), "torch.lerp(a, b, c)")                                 \
    X(where, OPS_F | OPS_I, OPS_ALL, "b:n u:n u:n", 0, gn_where(a, b, c), "torch.where(a, b, c)")                      \
    X(masked_fill, OPS_F | OPS_I, OPS_ALL, "u:n b:n", 0, gn_masked_fill(a, b, 7), "a.masked_fill(b, 7)")               \
    X(eq, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_eq(a, b), "a == b")                                                 \
    X(lt, OPS_F | OPS_I, OPS_ALL, "u:n u:n", 0, gn_lt(a, b), "a < b")                                                  \
    X(ne, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_ne(a, b), "a != b")                                                       \
    X(le, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_le(a, b), "a <= b")                                                       \
    X(gt, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_gt(a, b), "a > b")                                                        \
    X(ge, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_ge(a, b), "a >= b")                                                       \
    X(isnan, OPS_F, OPS_SMALL, "u:n", 0, gn_isnan(a), "a.isnan()")                                                     \
    X(and, OPS_I | BIT(BOOL), OPS_ALL, "u:n u:n", 0, gn_and(a, b), "a & b")                                            \
    X(or, OPS_I | BIT(BOOL), OPS_SMALL, "u:n u:n", 0, gn_or(a, b), "a | b")                                            \
    X(xor, OPS_I | BIT(BOOL), OPS_SMALL, "u:n u:n", 0, gn_xor(a, b), "a ^ b")                                          \
    X(not, OPS_I | BIT(BOOL), OPS_ALL, "u:n", 0, gn_not(a), "torch.bitwise_not(a)")                                    \
    X(logical_and, OPS_W | BIT(BOOL), OPS_SMALL, "z:n z:n", 0, gn_logical_and(a, b), "torch.logical_and(a, b)")        \
    X(shift_left, OPS_I, OPS_SMALL, "u:n s:n", 0, gn_shift_left(a, b), "a << b")                                       \
    X(shift_right, OPS_I, OPS_SMALL, "u:n s:n", 0, gn_shift_right(a, b), "a >> b")                                     \
    X(cast_f32, BIT(F64) | BIT(F16) | BIT(BF16) | OPS_I | BIT(BOOL), OPS_ALL, "u:n", 0, gn_cast(a, GN_F32),            \
      "a.to(torch.float32)")                                                                                           \
    X(cast_f64, BIT(F32) | BIT(F16) | BIT(I32), OPS_SMALL, "u:n", 0, gn_cast(a, GN_F64), "a.to(torch.float64)")        \
    X(cast_f16, OPS_W | BIT(BF16) | OPS_I, OPS_ALL, "u:n", 0, gn_cast(a, GN_F16), "a.to(torch.float16)")               \
    X(cast_bf16, OPS_W | BIT(F16) | OPS_I, OPS_ALL, "u:n", 0, gn_cast(a, GN_BF16), "a.to(torch.bfloat16)")             \
    X(cast_i32, OPS_F | BIT(I8) | BIT(U8) | BIT(BOOL), OPS_ALL, "w:n", 0, gn_cast(a, GN_I32), "a.to(torch.int32)")     \
    X(cast_i64, BIT(F32) | OPS_I | BIT(BOOL), OPS_SMALL, "w:n", 0, gn_cast(a, GN_I64), "a.to(torch.int64)")            \
    X(cast_u8, OPS_F | BIT(I32) | BIT(BOOL), OPS_ALL, "p:n", 0, gn_cast(a, GN_U8), "a.to(torch.uint8)")                \
    X(cast_bool, OPS_F | OPS_I, OPS_ALL, "z:n", 0, gn_cast(a, GN_BOOL), "a.to(torch.bool)")

#define OPS_REDUCE(X)                                                                                                  \
    X(sum_all, OPS_F | OPS_I | BIT(BOOL), OPS_ALL, "u:n", 0, gn_sum(a, GN_ALL_AXES, false), "a.sum()")                 \
    X(sum_rows, OPS_F | OPS_I, OPS_ALL, "u:s,n/s", 0, gn_sum(a, GN_AXES(1), false), "a.sum(1)")                        \
    X(sum_columns, OPS_F | OPS_I, OPS_ALL, "u:s,n/s", 0, gn_sum(a, GN_AXES(0), false), "a.sum(0)")                     \
    X(sum_middle, OPS_W, OPS_SMALL, "u:n/1024,16,64", 0, gn_sum(a, GN_AXES(1), false), "a.sum(1)")                     \
    X(mean_all, OPS_F, OPS_ALL, "u:n", 0, gn_mean(a, GN_ALL_AXES, false), "a.mean()")                                  \
    X(max_all, OPS_F | OPS_I, OPS_ALL, "u:n", 0, gn_max(a, GN_ALL_AXES, false), "a.amax()")                            \
    X(max_rows, OPS_F | OPS_I, OPS_ALL, "u:s,n/s", 0, gn_max(a, GN_AXES(1), false), "a.amax(1)")                       \
    X(max_columns, OPS_F | OPS_I, OPS_ALL, "u:s,n/s", 0, gn_max(a, GN_AXES(0), false), "a.amax(0)")                    \
    X(min_all, OPS_W, OPS_SMALL, "u:n", 0, gn_min(a, GN_ALL_AXES, false), "a.amin()")                                  \
    X(prod_all, OPS_W | BIT(I32), OPS_ALL, "o:n", 0, gn_prod(a, GN_ALL_AXES, false), "a.prod()")                       \
    X(prod_rows, OPS_W, OPS_SMALL, "o:s,n/s", 0, gn_prod(a, GN_AXES(1), false), "a.prod(1)")                           \
    X(prod_columns, OPS_W, OPS_SMALL, "o:s,n/s", 0, gn_prod(a, GN_AXES(0), false), "a.prod(0)")                        \
    X(argmax_all, OPS_F | OPS_I, OPS_ALL, "d:n", 0, gn_argmax(a, GN_ALL_AXES, false), "a.argmax()")                    \
    X(argmax_rows, OPS_W | BIT(I32) | BIT(I8), OPS_ALL, "d:s,n/s", 0, gn_argmax(a, GN_AXES(1), false), "a.argmax(1)")  \
    X(argmax_columns, OPS_W | BIT(I32) | BIT(I8), OPS_ALL, "d:s,n/s", 0, gn_argmax(a, GN_AXES(0), false),              \
      "a.argmax(0)")                                                                                                   \
    X(argmin_rows, OPS_W, OPS_SMALL, "d:s,n/s", 0, gn_argmin(a, GN_AXES(1), false), "a.argmin(1)")                     \
    X(any_all, BIT(BOOL), OPS_ALL, "u:n", 0, gn_any(a, GN_ALL_AXES, false), "a.any()")                                 \
    X(any_rows, BIT(BOOL) | BIT(F32), OPS_SMALL, "z:s,n/s", 0, gn_any(a, GN_AXES(1), false), "a.any(1)")               \
    X(count_nonzero, BIT(F32) | BIT(BOOL) | BIT(I32), OPS_SMALL, "z:n", 0, gn_count_nonzero(a, GN_ALL_AXES, false),    \
      "torch.count_nonzero(a)")                                                                                        \
    X(l2_norm_all, OPS_W, OPS_SMALL, "u:n", 0, gn_l2_norm(a, GN_ALL_AXES, false), "torch.linalg.vector_norm(a)")       \
    X(l2_norm_rows, OPS_W, OPS_SMALL, "u:s,n/s", 0, gn_l2_norm(a, GN_AXES(1), false),                                  \
      "torch.linalg.vector_norm(a, dim=1)")                                                                            \
    X(variance_all, OPS_W, OPS_ALL, "u:n", 0, gn_variance(a, GN_ALL_AXES, 1, false), "a.var()")                        \
    X(variance_rows, OPS_F, OPS_ALL, "u:s,n/s", 0, gn_variance(a, GN_AXES(1), 1, false), "a.var(1)")                   \
    X(variance_columns, OPS_W, OPS_ALL, "u:s,n/s", 0, gn_variance(a, GN_AXES(0), 1, false), "a.var(0)")                \
    X(logsumexp_rows, OPS_W, OPS_SMALL, "u:s,n/s", 16 * n, gn_logsumexp(a, GN_AXES(1), false), "a.logsumexp(1)")       \
    X(cumsum_flat, OPS_W | BIT(I32), OPS_ALL, "u:n", 0, gn_cumsum(a, 0), "a.cumsum(0)")                                \
    X(cumsum_rows, OPS_F | BIT(I32) | BIT(I8), OPS_SMALL, "u:n/1024,1024", 0, gn_cumsum(a, 1), "a.cumsum(1)")          \
    X(cumsum_columns, OPS_W, OPS_ALL, "u:s,n/s", 0, gn_cumsum(a, 0), "a.cumsum(0)")                                    \
    X(cumprod_rows, OPS_W, OPS_SMALL, "o:n/1024,1024", 0, gn_cumprod(a, 1), "a.cumprod(1)")                            \
    X(cummax_rows, OPS_W, OPS_SMALL, "u:n/1024,1024", 0, gn_cummax(a, 1), "a.cummax(1)[0]")                            \
    X(softmax_rows, OPS_F, OPS_ALL, "w:n/1024,1024", 20 * n, gn_softmax(a, 1), "a.softmax(1)")                         \
    X(softmax_columns, OPS_F, OPS_ALL, "w:s,n/s", 20 * n, gn_softmax(a, 0), "a.softmax(0)")                            \
    X(log_softmax_rows, OPS_W, OPS_ALL, "w:n/1024,1024", 20 * n, gn_log_softmax(a, 1), "a.log_softmax(1)")             \
    X(log_softmax_columns, OPS_W, OPS_SMALL, "w:s,n/s", 20 * n, gn_log_softmax(a, 0), "a.log_softmax(0)")              \
    X(layernorm, OPS_F, OPS_ALL, "u:n/1024,1024 u:1024 u:1024", 0, gn_layernorm(a, b, c, 1e-5),                        \
      "F.layer_norm(a, (1024,), b, c)")                                                                                \
    X(rmsnorm, OPS_W, OPS_ALL, "u:n/1024,1024 u:1024", 0, gn_rmsnorm(a, b, 1e-5), "F.rms_norm(a, (1024,), b, 1e-5)")   \
    X(cross_entropy, OPS_W | BIT(BF16), OPS_ALL, "w:n/1024,1024 i1024:n/1024", 16 * n, gn_cross_entropy(a, b),         \
      "F.cross_entropy(a, b)")                                                                                         \
    X(mse_loss, OPS_W, OPS_SMALL, "u:n u:n", 0, gn_mse_loss(a, b), "F.mse_loss(a, b)")                                 \
    X(sort_flat, OPS_W | BIT(I32), OPS_SMALL, "d:n", 0, gn_sort(a, 0, false), "a.sort(stable=True)[0]")                \
    X(sort_rows, OPS_F | OPS_I, OPS_SMALL, "d:n/1024,1024", 0, gn_sort(a, 1, false), "a.sort(dim=1, stable=True)[0]")  \
    X(sort_columns, BIT(F32) | BIT(I32), OPS_SMALL, "d:s,n/s", 0, gn_sort(a, 0, false),                                \
      "a.sort(dim=0, stable=True)[0]")                                                                                 \
    X(argsort_flat, BIT(F32) | BIT(I32), OPS_SMALL, "d:n", 0, gn_argsort(a, 0, false), "a.argsort(stable=True)")       \
    X(argsort_rows, BIT(F32) | BIT(I32), OPS_SMALL, "d:n/1024,1024", 0, gn_argsort(a, 1, false),                       \
      "a.argsort(dim=1, stable=True)")                                                                                 \
    X(topk_10_of_1024, OPS_W | BIT(BF16) | BIT(I32), OPS_ALL, "d:n/1024,1024", 0,                                      \
      MANY(gn_topk(a, 10, 1, true, &y[0], &y[1]), d == GN_BF16 ? 1 : 2), "torch.topk(a, 10)")                          \
    X(topk_40_of_131072, OPS_W | BIT(I32), OPS_ALL, "d:n/131072,131072", 0,                                            \
      MANY(gn_topk(a, 40, 1, true, &y[0], &y[1]), 2), "torch.topk(a, 40)")                                             \
    X(nonzero, OPS_W | BIT(BOOL) | BIT(I32), OPS_SMALL, "z:n", 0, gn_nonzero(a, n / 8), "a.nonzero()")

#define OPS_MOVES(X)                                                                                                   \
    X(tile, OPS_MOVE, OPS_ALL, "u:n/1024,256", 0, gn_tile(a, GN_SHAPE(1, 4)), "a.tile(1, 4)")                          \
    X(tile_rows, OPS_MOVE, OPS_ALL, "u:n/1024,256", 0, gn_tile(a, GN_SHAPE(4, 1)), "a.tile(4, 1)")                     \
    X(repeat, OPS_MOVE, OPS_ALL, "u:n/1024,256", 0, gn_repeat(a, 4, 1), "a.repeat_interleave(4, 1)")                   \
    X(repeat_rows, OPS_MOVE, OPS_SMALL, "u:n/1024,256", 0, gn_repeat(a, 4, 0), "a.repeat_interleave(4, 0)")            \
    X(broadcast_row, OPS_MOVE, OPS_ALL, "u:1024", 0, gn_broadcast(a, GN_SHAPE(n / 1024, 1024)),                        \
      "a.expand(n // 1024, 1024).contiguous()")                                                                        \
    X(broadcast_column, OPS_MOVE, OPS_ALL, "u:n/1024,1", 0, gn_broadcast(a, GN_SHAPE(n / 1024, 1024)),                 \
      "a.expand(n // 1024, 1024).contiguous()")                                                                        \
    X(roll, OPS_MOVE, OPS_ALL, "u:n/1024,1024", 0, gn_roll(a, 5, 1), "a.roll(5, 1)")                                   \
    X(roll_rows, OPS_MOVE, OPS_SMALL, "u:s,n/s", 0, gn_roll(a, 5, 0), "a.roll(5, 0)")                                  \
    X(pad_constant, OPS_MOVE, OPS_ALL, "u:s,n/s", 0,                                                                   \
      gn_pad(a, GN_SHAPE(8, 8), GN_SHAPE(8, 8), GN_PAD_CONSTANT, 1), "F.pad(a, (8, 8, 8, 8), value=1)")                \
    X(pad_reflect, OPS_MOVE, OPS_ALL, "u:s,n/s", 0,                                                                    \
      gn_pad(a, GN_SHAPE(8, 8), GN_SHAPE(8, 8), GN_PAD_REFLECT, 0), "F.pad(a[None], (8, 8, 8, 8), 'reflect')")         \
    X(pad_edge, OPS_MOVE, OPS_ALL, "u:s,n/s", 0,                                                                       \
      gn_pad(a, GN_SHAPE(8, 8), GN_SHAPE(8, 8), GN_PAD_EDGE, 0), "F.pad(a[None], (8, 8, 8, 8), 'replicate')")          \
    X(transpose, OPS_MOVE, OPS_ALL, "u:s,n/s", 0, gn_transpose(a, 0, 1), "a.t().contiguous()")                         \
    X(permute_210, OPS_MOVE, OPS_ALL, "u:n/4096,64,64", 0, gn_permute(a, GN_AXES(2, 1, 0)),                            \
      "a.permute(2, 1, 0).contiguous()")                                                                               \
    X(permute_0213, OPS_MOVE, OPS_ALL, "u:n/4096,8,8,64", 0, gn_permute(a, GN_AXES(0, 2, 1, 3)),                       \
      "a.permute(0, 2, 1, 3).contiguous()")                                                                            \
    X(permute_0231, OPS_MOVE, OPS_ALL, "u:n/1024,16,8,8", 0, gn_permute(a, GN_AXES(0, 2, 3, 1)),                       \
      "a.permute(0, 2, 3, 1).contiguous()")                                                                            \
    X(flip, OPS_MOVE, OPS_ALL, "u:n/1024,1024", 0, gn_flip(a, GN_AXES(1)), "a.flip(1)")                                \
    X(flip_rows, OPS_MOVE, OPS_SMALL, "u:s,n/s", 0, gn_flip(a, GN_AXES(0)), "a.flip(0)")                               \
    X(slice_rows, OPS_MOVE, OPS_ALL, "-u:s,n/s", 0, gn_slice(a, 0, 1, GN_END, 2), "a[1::2].clone()")                   \
    X(slice_columns, OPS_MOVE, OPS_ALL, "-u:s,n/s", 0, gn_slice(a, 1, 1, GN_END, 2), "a[:, 1::2].contiguous()")        \
    X(slice_part, OPS_MOVE, OPS_ALL, "-u:n/1024,1024", 0, gn_slice(a, 1, 256, 768, 1), "a[:, 256:768].contiguous()")   \
    X(slice_put, OPS_MOVE, OPS_ALL, "u:n/1024,1024 u:n/1024,512", 0, gn_slice_put(a, b, 1, 256, 768, 1),               \
      "torch.slice_scatter(a, b, 1, 256, 768)")                                                                        \
    X(concat_rows, OPS_MOVE, OPS_ALL, "u:n/2048,1024 u:n/2048,1024", 0, gn_concat(in, 2, 0), "torch.cat((a, b), 0)")   \
    X(concat_columns, OPS_MOVE, OPS_ALL, "u:n/1024,512 u:n/1024,512", 0, gn_concat(in, 2, 1), "torch.cat((a, b), 1)")  \
    X(stack_last, OPS_MOVE, OPS_SMALL, "u:n/2 u:n/2", 0, gn_stack(in, 2, 1), "torch.stack((a, b), 1)")                 \
    X(tril, OPS_MOVE | BIT(I32), OPS_ALL, "u:s,n/s", 0, gn_tril(a, 0), "a.tril()")                                     \
    X(triu, OPS_W, OPS_SMALL, "u:s,n/s", 0, gn_triu(a, 1), "a.triu(1)")                                                \
    X(diagonal, OPS_W, OPS_SMALL, "-u:n/1024,32,32", 0, gn_diagonal(a, 0, 1, 2),                                       \
      "a.diagonal(0, 1, 2).contiguous()")                                                                              \
    X(im2col, OPS_W | BIT(F16), OPS_ALL, "u:1,n/2304,16,16", 0,                                                        \
      gn_im2col(a, GN_SHAPE(3, 3), GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(1, 1)), "F.unfold(a, 3, padding=1)")       \
    X(im2col_grad, OPS_W, OPS_ALL, "-u:1,n/2304,16,16 u:1,n/2304*9,256", 0,                                            \
      MANY(gn_grad(gn_sum(gn_mul(gn_im2col(a, GN_SHAPE(3, 3), GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(1, 1)), b),     \
                          GN_ALL_AXES, false), in, 1, y), 1), "F.fold(b, (16, 16), 3, padding=1)")                     \
    X(gather_columns, OPS_MOVE, OPS_ALL, "u:n/1024,1024 i1024:n/1024,1024", 0, gn_gather(a, 1, b), "a.gather(1, b)")   \
    X(gather_rows, OPS_MOVE, OPS_ALL, "u:s,n/s is:s,n/s", 0, gn_gather(a, 0, b), "a.gather(0, b)")                     \
    X(index_select_rows, OPS_MOVE, OPS_ALL, "u:n/64,64 in/64:n/64", 0, gn_index_select(a, 0, b),                       \
      "a.index_select(0, b)")                                                                                          \
    X(index_select_columns, OPS_MOVE, OPS_ALL, "u:n/1024,1024 i1024:1024", 0, gn_index_select(a, 1, b),                \
      "a.index_select(1, b)")                                                                                          \
    X(index_select_flat, OPS_MOVE, OPS_ALL, "u:n in:n", 0, gn_index_select(a, 0, b), "a.index_select(0, b)")           \
    X(embedding, OPS_F, OPS_ALL, "-u:1024,256 i1024:n/256", 0, gn_embedding(a, b), "F.embedding(b, a)")                \
    X(gather_nd, OPS_MOVE, OPS_ALL, "-u:s,n/s is:n/4,2", 0, gn_gather_nd(a, b), "a[b[:, 0], b[:, 1]]")                 \
    X(one_hot, OPS_W | BIT(U8), OPS_ALL, "i256:n/256", 0, gn_one_hot(a, 256, d),                                       \
      "torch.zeros(n // 256, 256, dtype=dt).scatter_(1, a[:, None], 1)")                                               \
    X(scatter, OPS_MOVE, OPS_ALL, "u:n/1024,1024 q1024:n/1024,1024 u:n/1024,1024", 0, gn_scatter(a, 1, b, c),          \
      "a.scatter(1, b, c)")                                                                                            \
    X(scatter_rows, OPS_W, OPS_SMALL, "u:s,s is:1,s u:1,s", 0, gn_scatter(a, 0, b, c), "a.scatter(0, b, c)")           \
    X(scatter_add, OPS_W | BIT(I32) | BIT(F16), OPS_ALL, "u:n/1024,1024 i1024:n/1024,1024 u:n/1024,1024", 0,           \
      gn_scatter_add(a, 1, b, c), "a.scatter_add(1, b, c)")                                                            \
    X(scatter_max, OPS_W | BIT(I32), OPS_SMALL, "u:n/1024,1024 i1024:n/1024,1024 u:n/1024,1024", 0,                    \
      gn_scatter_max(a, 1, b, c), "a.scatter_reduce(1, b, c, 'amax')")                                                 \
    X(full, OPS_MOVE, OPS_ALL, "", 0, gn_full(g, d, GN_SHAPE(n), 3), "torch.full((n,), 3, dtype=dt)")                  \
    X(arange, BIT(F32) | BIT(I32) | BIT(F64), OPS_SMALL, "", 0, gn_arange(g, d, n, 0, 1),                              \
      "torch.arange(n, dtype=dt)")                                                                                     \
    X(random_uniform, OPS_F, OPS_ALL, "", 8 * n, gn_random_uniform(g, d, GN_SHAPE(n)), "~torch.rand(n, dtype=dt)")     \
    X(random_normal, OPS_F, OPS_ALL, "", 32 * n, gn_random_normal(g, d, GN_SHAPE(n)), "~torch.randn(n, dtype=dt)")     \
    X(sample, BIT(F32), OPS_SMALL, "w:n/1024,1024", 40 * n,                                                            \
      gn_sample(a, &(gn_sample_desc){ .seed = gn_scalar_i64(g, GN_I64, 3), .counter = gn_scalar_i64(g, GN_I64, 5) }),  \
      "~torch.multinomial(a.softmax(1), 1)")

#define OPS_PRODUCTS(X)                                                                                                \
    X(matmul, OPS_F | BIT(I32) | BIT(I8), "128 512 1024", "u:n,n u:n,n", 2 * n * n * n, gn_matmul(a, b), "a @ b")      \
    X(matmul_right_t, OPS_F, "512", "u:n,n u:n,n", 2 * n * n * n, gn_matmul(a, gn_transpose(b, 0, 1)), "a @ b.t()")    \
    X(matmul_left_t, OPS_F, "512", "u:n,n u:n,n", 2 * n * n * n, gn_matmul(gn_transpose(a, 0, 1), b), "a.t() @ b")     \
    X(matmul_thin, OPS_F, "2048", "u:8,n u:n,n", 16 * n * n, gn_matmul(a, b), "a @ b")                                 \
    X(matmul_wide, OPS_W, "2048", "u:n,16 u:16,n", 32 * n * n, gn_matmul(a, b), "a @ b")                               \
    X(matvec, OPS_F, "2048", "u:n,n u:n", 2 * n * n, gn_matmul(a, b), "a @ b")                                         \
    X(vecmat, OPS_F, "2048", "u:n u:n,n", 2 * n * n, gn_matmul(a, b), "a @ b")                                         \
    X(row_times_rows, OPS_F, "32000", "u:1,1024 u:n,1024", 2048 * n, gn_matmul(a, gn_transpose(b, 0, 1)), "a @ b.t()") \
    X(dot, OPS_W, OPS_ALL, "u:n u:n", 2 * n, gn_matmul(a, b), "a @ b")                                                 \
    X(outer, OPS_F, OPS_ALL, "u:s u:n/s", 0, gn_outer(a, b), "torch.outer(a, b)")                                      \
    X(bmm_32, OPS_F, OPS_SMALL, "u:n/1024,32,32 u:n/1024,32,32", 64 * n, gn_matmul(a, b), "a @ b")                     \
    X(bmm_4, OPS_W, OPS_SMALL, "u:n/16,4,4 u:n/16,4,4", 8 * n, gn_matmul(a, b), "a @ b")                               \
    X(bmm_64_right_t, OPS_W, OPS_SMALL, "u:n/4096,64,64 u:n/4096,64,64", 128 * n,                                      \
      gn_matmul(a, gn_transpose(b, 1, 2)), "a @ b.transpose(1, 2)")                                                    \
    X(linear, OPS_W, "512", "u:64,n u:n,n u:n", 128 * n * n, gn_linear(a, b, c), "torch.addmm(c, a, b)")               \
    X(attention, OPS_W | BIT(BF16), "256", "u:1,8,n,64 u:1,8,n,64 u:1,8,n,64", 2048 * n * n,                           \
      gn_attention(a, b, c, NULL), "F.scaled_dot_product_attention(a, b, c)")                                          \
    X(attention_with, OPS_W, "256", "u:1,8,n,64 u:1,8,n,64 u:1,8,n,64", 512 * n * n,                                   \
      gn_attention(a, b, c, &(gn_attention_desc){ .causal = true, .window = 64 }),                                     \
      "F.scaled_dot_product_attention(a, b, c, attn_mask=torch.ones(n, n, dtype=torch.bool).tril().triu(-63))")        \
    X(expert_linear, OPS_W, "64", "u:n,256 u:8,256,256 i8:n", 131072 * n, gn_expert_linear(a, b, c, GN_NONE),          \
      "(a[:, None] @ b[c])[:, 0]")                                                                                     \
    X(quantize, BIT(F32) | BIT(BF16), OPS_SMALL, "u:n/1024,1024", 0,                                                   \
      gn_dequantize(gn_quantize(a, &(gn_quantize_desc){ .format = GN_QUANT_Q8_0 }), d),                                \
      "~(lambda g, s: (g / s).round() * s)(a.reshape(-1, 32), a.reshape(-1, 32).abs().amax(1, True) / 127)")           \
    X(conv, OPS_W, "64", "u:1,n,56,56 u:n,n,3,3", 56448 * n * n,                                                       \
      gn_conv(a, b, GN_NONE, &(gn_conv_desc){ .before = { 1, 1 }, .after = { 1, 1 } }), "F.conv2d(a, b, padding=1)")   \
    X(conv_depthwise, OPS_W, "128", "u:1,n,56,56 u:n,1,3,3", 56448 * n,                                                \
      gn_conv(a, b, GN_NONE, &(gn_conv_desc){ .before = { 1, 1 }, .after = { 1, 1 }, .groups = n }),                   \
      "F.conv2d(a, b, padding=1, groups=n)")                                                                           \
    X(conv_grouped, OPS_W, "128", "u:1,n,28,28 u:n,4,3,3", 56448 * n,                                                  \
      gn_conv(a, b, GN_NONE, &(gn_conv_desc){ .before = { 1, 1 }, .after = { 1, 1 }, .groups = n / 4 }),               \
      "F.conv2d(a, b, padding=1, groups=n // 4)")                                                                      \
    X(conv_transposed, OPS_W, "64", "u:1,n,14,14 u:n,n,4,4", 6272 * n * n,                                             \
      gn_conv(a, b, GN_NONE,                                                                                           \
              &(gn_conv_desc){ .before = { 1, 1 }, .after = { 1, 1 }, .stride = { 2, 2 }, .transposed = true }),       \
      "F.conv_transpose2d(a, b, stride=2, padding=1)")                                                                 \
    X(pool, OPS_W, "64", "u:1,n,112,112", 28224 * n,                                                                   \
      gn_pool(a, &(gn_pool_desc){ .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } }),    \
      "F.max_pool2d(a, 3, 2, 1)")                                                                                      \
    X(pool_index, OPS_W, "64", "u:1,n,112,112", 28224 * n,                                                             \
      gn_pool(a, &(gn_pool_desc){ .kind = GN_POOL_INDEX, .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 },   \
                                  .after = { 1, 1 } }),                                                                \
      "F.max_pool2d(a, 3, 2, 1, return_indices=True)[1]")                                                              \
    X(interpolate, OPS_W, "64", "u:1,n,56,56", 0, gn_interpolate(a, GN_AXES(2, 3), GN_SHAPE(112, 112), NULL),          \
      "F.interpolate(a, scale_factor=2)")                                                                              \
    X(interpolate_linear, OPS_W, "64", "u:1,n,56,56", 0,                                                               \
      gn_interpolate(a, GN_AXES(2, 3), GN_SHAPE(112, 112), &(gn_interpolate_desc){ .kind = GN_INTERPOLATE_LINEAR }),   \
      "F.interpolate(a, scale_factor=2, mode='bilinear')")                                                             \
    X(interpolate_cubic, OPS_W, "64", "u:1,n,56,56", 0,                                                                \
      gn_interpolate(a, GN_AXES(2, 3), GN_SHAPE(112, 112), &(gn_interpolate_desc){ .kind = GN_INTERPOLATE_CUBIC }),    \
      "F.interpolate(a, scale_factor=2, mode='bicubic')")                                                              \
    X(lstm, OPS_W, "512", "u:100,1,n u:1,2048,n u:1,2048,512", 1664000 * n,                                            \
      gn_recurrent(a, b, gn_mul_c(c, 0.05), &(gn_recurrent_desc){ .cell = GN_CELL_LSTM }),                             \
      "~torch.lstm(a, [a.new_zeros(1, 1, 512)] * 2, [b[0], c[0] * 0.05], False, 1, 0.0, False, False, False)[0]")      \
    X(batch_norm, OPS_W, "64", "u:1,n,112,112 u:n p:n", 0, gn_batch_norm(a, b, c, GN_NONE, GN_NONE, 1e-5),             \
      "F.batch_norm(a, b, c)")                                                                                         \
    X(batch_norm_train, OPS_W, "64", "u:4,n,56,56", 0, gn_batch_norm_train(a, GN_NONE, GN_NONE, 1e-5, NULL, NULL),     \
      "F.batch_norm(a, None, None, training=True)")                                                                    \
    X(group_norm, OPS_W, "64", "u:1,n,112,112 u:n u:n", 0, gn_group_norm(a, 8, b, c, 1e-5),                            \
      "F.group_norm(a, 8, b, c)")                                                                                      \
    X(instance_norm, OPS_W, "64", "u:1,n,112,112", 0, gn_instance_norm(a, GN_NONE, GN_NONE, 1e-5),                     \
      "F.instance_norm(a)")                                                                                            \
    X(local_response_norm, OPS_W, "64", "u:1,n,56,56", 0, gn_local_response_norm(a, 5, 1e-4, 0.75, 1),                 \
      "F.local_response_norm(a, 5)")                                                                                   \
    X(solve, OPS_W, "64", "u:n,64,64 u:n,64,8", 180000 * n, gn_solve(a, b), "~torch.linalg.solve(a, b)")               \
    X(inverse, OPS_W, "64", "u:n,64,64", 520000 * n, gn_inverse(a), "~torch.linalg.inv(a)")                            \
    X(det, OPS_W, "64", "u:n,64,64", 175000 * n, gn_det(a), "~torch.linalg.det(a)")                                    \
    X(cholesky, OPS_W, "64", "u:n,64,64", 600000 * n,                                                                  \
      gn_cholesky(gn_add_c(gn_matmul(a, gn_transpose(a, 1, 2)), 1)), "torch.linalg.cholesky(a @ a.mT + 1)")            \
    X(solve_triangular, OPS_W, "64", "p:n,64,64 u:n,64,8", 33000 * n, gn_solve_triangular(a, b, false, false),         \
      "~torch.linalg.solve_triangular(a, b, upper=False)")                                                             \
    X(components, BIT(I32) | BIT(BOOL), "64", "s:n,64,64", 0, gn_connected_components(a, 2, false), "~components(a)")  \
    X(suppress, BIT(F32), "64", "u:1,n*16,4 u:1,1,n*16", 0, gn_non_max_suppression(a, b, 64, 0.3, -1, true),           \
      "~suppress(a[0], b[0, 0], 64, 0.3)")                                                                             \
    X(unique, OPS_W | BIT(I32), OPS_SMALL, "u:n", 0, MANY(gn_unique(a, 256, &y[0], NULL, NULL, NULL), 1),              \
      "~torch.unique(a)")                                                                                              \
    X(rotary, OPS_W, OPS_SMALL, "u:8,n/512,64 i2048:n/512", 0, gn_rotary(a, b, 10000, false), "rotary(a, b)")          \
    X(lenet_step, BIT(F32), "64",                                                                                      \
      "u:n,1,28,28 i10:n u:6,25 u:6,1 u:16,150 u:16,1 u:400,120 u:120 u:120,84 u:84 u:84,10 u:10",                     \
      3 * 2 * 418000 * n, MANY(ops_lenet(in, y, n), 11), "lenet(a, b, (c, d, e, f, g, h, i, j, k, l))")
/* clang-format on */

#define OPS_ROWS(X) OPS_ELEMENTWISE(X) OPS_REDUCE(X) OPS_MOVES(X) OPS_PRODUCTS(X)
