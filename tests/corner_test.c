/* Corners of ops, as the comments of genie.h and the libraries they follow (NumPy, PyTorch) say: signs and zeros of
 * divisions, reductions over nothing, ties, infinities, gradients at kinks. Values are written out by hand; on the CPU
 * of this process, or on the device of $GENIE_TEST_DEVICES.
 *
 * Tier: quick address */
#include "../genie.h"

#include "test.h"

static gn_ctx *g;

enum { MOST = 32 };

static gn_tensor numbers(gn_dtype d, int n, const double *x) {
    return gn_cast(gn_data_copy(g, GN_F64, GN_SHAPE(n), x), d);
}

#define V(d, ...) numbers(d, (int)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)), (const double[]){ __VA_ARGS__ })
#define ROWS(t, rows) gn_reshape(t, GN_SHAPE(rows, -1))

/* NaN equals NaN, and zeros are told apart by their sign. */
static bool same(double got, double want, double bound) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    return got == want ? signbit(got) == signbit(want) : fabs(got - want) <= bound * fabs(want);
}

static void check_values(int line, gn_tensor t, double bound, int n, const double *want) {
    double got[MOST];
    gn_info info;
    if (gn_describe(t, &info) != GN_OK || gn_read(gn_cast(t, GN_F64), got, (size_t)n * sizeof *got) != GN_OK) {
        test_fail(__FILE__, line, "%s", gn_last_error(g)->text);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (!same(got[i], want[i], bound)) {
            test_fail(__FILE__, line, "%s: element %d is %.9g, not %.9g", gn_dtype_name(info.dtype), i, got[i],
                      want[i]);
        }
    }
}

#define NEAR(t, bound, ...)                                                                     \
    check_values(__LINE__, t, bound, (int)(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double)), \
                 (const double[]){ __VA_ARGS__ })
#define IS(t, ...) NEAR(t, 0, __VA_ARGS__)

static void check_refused(int line, gn_tensor t, gn_result want) {
    gn_info info;
    gn_result r = gn_describe(t, &info);
    if (r != want) test_fail(__FILE__, line, "the node is %s, not %s", gn_result_name(r), gn_result_name(want));
}

#define REFUSED(t, want) check_refused(__LINE__, t, want)

/* The gradient of the sum of y at x. */
static gn_tensor slope(gn_tensor y, gn_tensor x) {
    gn_tensor out = GN_NONE;
    CHECK_RESULT(gn_grad(gn_sum(y, GN_ALL_AXES, false), &x, 1, &out), GN_OK);
    return out;
}

static const gn_dtype signed_dtypes[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_I8, GN_I16, GN_I32, GN_I64 };

TEST(divisions_of_signed_numbers_have_the_signs_of_python_and_c) {
    for (int k = 0; k < TEST_COUNT(signed_dtypes); k++) {
        gn_tensor a = V(signed_dtypes[k], 7, -7, 7, -7, 1), b = V(signed_dtypes[k], 3, 3, -3, -3, 5);
        IS(gn_fmod(a, b), 1, -1, 1, -1, 1);
        IS(gn_remainder(a, b), 1, 2, -2, -1, 1);
        IS(gn_floor_divide(a, b), 2, -3, -3, 2, 0);
        IS(gn_trunc(gn_div(gn_cast(a, GN_F64), gn_cast(b, GN_F64))), 2, -2, -2, 2, 0);
        gn_step(g);
    }
    IS(gn_div(V(GN_I32, 7, -7, 7, -7), V(GN_I32, 3, 3, -3, -3)), 2, -2, -2, 2);
}

TEST(lowest_integer_over_minus_one_wraps) {
    static const gn_dtype ints[] = { GN_I8, GN_I16, GN_I32, GN_I64 };
    static const double lowest[] = { -128, -32768, -2147483648.0, -0x1p63 };
    for (int k = 0; k < 4; k++) {
        gn_tensor a = V(ints[k], lowest[k]), b = V(ints[k], -1);
        IS(gn_div(a, b), lowest[k]);
        IS(gn_floor_divide(a, b), lowest[k]);
        IS(gn_fmod(a, b), 0);
        IS(gn_remainder(a, b), 0);
        IS(gn_neg(a), lowest[k]);
        IS(gn_abs(a), lowest[k]);
    }
}

TEST(float_divisions_by_zero_and_of_infinities_follow_python) {
    gn_tensor a = V(GN_F32, 1, -1, 0, -0.0), zero = V(GN_F32, 0);
    IS(gn_fmod(a, zero), NAN, NAN, NAN, NAN);
    IS(gn_remainder(a, zero), NAN, NAN, NAN, NAN);
    IS(gn_floor_divide(a, zero), INFINITY, -INFINITY, NAN, NAN);
    gn_tensor big = V(GN_F32, INFINITY, -INFINITY);
    IS(gn_remainder(V(GN_F32, 5, -5), big), 5, -5);
    IS(gn_remainder(V(GN_F32, -5, 5), big), INFINITY, -INFINITY);
    IS(gn_floor_divide(V(GN_F32, -1, 1), big), -1, -1);
    IS(gn_floor_divide(big, V(GN_F32, 2)), NAN, NAN);
    /* 1 / 0.1 rounds to 10, the exact quotient is below */
    IS(gn_floor_divide(V(GN_F64, 1, -1), V(GN_F64, 0.1)), 9, -10);
}

TEST(rounding_goes_to_even_and_keeps_signs) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        gn_tensor a = V(d, 0.5, 1.5, 2.5, -0.5, -1.5, -0.0, INFINITY, NAN);
        IS(gn_round(a), 0, 2, 2, -0.0, -2, -0.0, INFINITY, NAN);
        IS(gn_trunc(a), 0, 1, 2, -0.0, -1, -0.0, INFINITY, NAN);
        IS(gn_floor(a), 0, 1, 2, -1, -2, -0.0, INFINITY, NAN);
        IS(gn_ceil(a), 1, 2, 3, -0.0, -1, -0.0, INFINITY, NAN);
        gn_step(g);
    }
}

TEST(shifts_past_the_width_give_zero_or_the_sign) {
    static const gn_dtype ints[] = { GN_I8, GN_I16, GN_I32, GN_I64 };
    static const double bits[] = { 8, 16, 32, 64 };
    for (int k = 0; k < 4; k++) {
        double w = bits[k], low = -ldexp(1, (int)w - 1);
        gn_tensor by = V(ints[k], 0, w - 1, w, 100, -1);
        IS(gn_shift_left(V(ints[k], 1), by), 1, low, 0, 0, 0);
        IS(gn_shift_right(V(ints[k], -5), by), -5, -1, -1, -1, -1);
        IS(gn_shift_right(V(ints[k], 5), by), 5, 0, 0, 0, 0);
    }
    IS(gn_shift_right(V(GN_U32, 4294967295.0), V(GN_U32, 0, 31, 32)), 4294967295.0, 1, 0);
    IS(gn_shift_right(V(GN_U64, 0x1p63), V(GN_U64, 0, 63, 64)), 0x1p63, 1, 0);
    IS(gn_shift_left(V(GN_U8, 255), V(GN_U8, 1, 7, 8)), 254, 128, 0);
}

/* Order and division as PyTorch's and NumPy's of uint64; with a signed int PyTorch has no dtype. */
TEST(u64_is_unsigned_past_2_63_and_meets_no_signed_int) {
    gn_tensor big = V(GN_U64, 0x1p63, 0x1.8p63, 1), two = V(GN_U64, 2, 2, 2);
    IS(gn_div(big, two), 0x1p62, 0x1.8p62, 0);
    IS(gn_remainder(big, V(GN_U64, 10, 10, 10)), 8, 2, 1); /* 9223372036854775808 and 13835058055282163712 */
    IS(gn_lt(big, two), 0, 0, 1);
    IS(gn_maximum(big, two), 0x1p63, 0x1.8p63, 2);
    IS(gn_abs(big), 0x1p63, 0x1.8p63, 1);
    IS(gn_sign(big), 1, 1, 1);
    IS(gn_clamp(big, 2, INFINITY), 0x1p63, 0x1.8p63, 2);
    IS(gn_max(big, GN_ALL_AXES, false), 0x1.8p63);
    IS(gn_argmin(big, GN_ALL_AXES, false), 2);
    IS(gn_sort(big, 0, false), 1, 0x1p63, 0x1.8p63);
    IS(gn_cummax(big, 0), 0x1p63, 0x1.8p63, 0x1.8p63);
    IS(gn_sum(V(GN_U64, 0x1p63, 0x1p62), GN_ALL_AXES, false), 0x1.8p63);
    IS(gn_not(V(GN_U64, 0x1p63)), 0x1p63); /* 2^63 - 1 as f64 */
    IS(V(GN_U64, -1, NAN, INFINITY, 1.9), 0, 0, 0x1p64, 1);
    IS(gn_cast(V(GN_I8, -1), GN_U64), 0x1p64);
    IS(gn_cast(big, GN_I64), -0x1p63, -0x1p62, 1);
    IS(gn_cast(big, GN_F32), 0x1p63, 0x1.8p63, 1);
    IS(gn_arange_i64(g, GN_U64, 3, INT64_C(1) << 60, -(INT64_C(1) << 58)), 0x1p60, 0x1.8p59, 0x1p59);
    REFUSED(gn_arange_i64(g, GN_U64, 2, 0, -1), GN_BAD_ARGUMENT);
    IS(gn_add(big, V(GN_U32, 1, 1, 1)), 0x1p63, 0x1.8p63, 2);
    IS(gn_add(big, V(GN_F32, 1, 1, 1)), 0x1p63, 0x1.8p63, 2);
    IS(gn_add(big, gn_full(g, GN_I32, GN_SCALAR, 1)), 0x1p63, 0x1.8p63, 2); /* a 0-d one does not count */
    REFUSED(gn_add(big, V(GN_I64, 1, 1, 1)), GN_BAD_DTYPE);
    REFUSED(gn_eq(V(GN_I8, 1, 1, 1), big), GN_BAD_DTYPE);
    REFUSED(gn_fma(big, V(GN_I8, 1, 1, 1), two), GN_BAD_DTYPE);
    double got[3];
    CHECK_RESULT(gn_read(gn_cast(gn_div(big, V(GN_U64, 2, 0, 2)), GN_F64), got, sizeof got), GN_DIVISION_BY_ZERO);
}

TEST(reductions_over_nothing_have_their_neutral_element) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        gn_tensor none = gn_full(g, d, GN_SHAPE(2, 0), 0);
        gn_axes last = GN_AXES(-1);
        bool is_float = d <= GN_BF16;
        IS(gn_sum(none, last, false), 0, 0);
        IS(gn_prod(none, last, false), 1, 1);
        IS(gn_any(none, last, false), 0, 0);
        IS(gn_all(none, last, false), 1, 1);
        IS(gn_count_nonzero(none, last, false), 0, 0);
        if (d != GN_BOOL) IS(gn_l1_norm(none, last, false), 0, 0);
        if (is_float) {
            IS(gn_l2_norm(none, last, false), 0, 0);
            IS(gn_mean(none, last, false), NAN, NAN);
            IS(gn_variance(none, last, 1, false), NAN, NAN);
            IS(gn_std(none, last, 0, false), NAN, NAN);
            IS(gn_logsumexp(none, last, false), -INFINITY, -INFINITY);
            IS(gn_logsumexp(none, last, true), -INFINITY, -INFINITY);
        }
        REFUSED(gn_max(none, last, false), GN_BAD_SHAPE);
        REFUSED(gn_argmin(none, last, false), GN_BAD_SHAPE);
        gn_step(g);
    }
}

TEST(variance_without_degrees_of_freedom_divides_by_zero) {
    gn_tensor one = V(GN_F32, 3), two = V(GN_F32, 3, 5);
    IS(gn_variance(one, GN_ALL_AXES, 0, false), 0);
    IS(gn_variance(one, GN_ALL_AXES, 1, false), NAN);
    IS(gn_variance(two, GN_ALL_AXES, 1, false), 2);
    IS(gn_variance(two, GN_ALL_AXES, 2, false), INFINITY);
    IS(gn_variance(two, GN_ALL_AXES, 5, false), INFINITY);
    IS(gn_std(one, GN_ALL_AXES, 1, false), NAN);
    /* rounded to f16; the sum of squares is past its range */
    IS(gn_variance(V(GN_F16, 60000, 60000, 59968), GN_ALL_AXES, 0, false), 227.5);
}

TEST(logsumexp_keeps_infinities_and_does_not_overflow) {
    gn_tensor rows = ROWS(V(GN_F32, -INFINITY, -INFINITY, INFINITY, 0, 1000, 1000, NAN, 0), 4);
    NEAR(gn_logsumexp(rows, GN_AXES(1), false), 1e-6, -INFINITY, INFINITY, 1000.6931472, NAN);
}

TEST(softmax_of_rows_without_a_finite_largest_is_not_a_number) {
    gn_tensor rows = ROWS(V(GN_F32, -INFINITY, -INFINITY, INFINITY, 0, NAN, 0, -INFINITY, 3, 1000, -1000), 5);
    IS(gn_softmax(rows, 1), NAN, NAN, NAN, NAN, NAN, NAN, 0, 1, 1, 0);
    IS(gn_log_softmax(rows, -1), NAN, NAN, NAN, NAN, NAN, NAN, -INFINITY, 0, 0, -2000);
}

TEST(norms_of_the_lowest_integers_are_positive) {
    IS(gn_l1_norm(V(GN_I8, -128, -128), GN_ALL_AXES, false), 256);
    IS(gn_l1_norm(V(GN_I16, -32768, 1), GN_ALL_AXES, false), 32769);
    IS(gn_l1_norm(V(GN_I32, -2147483648.0, 0), GN_ALL_AXES, false), 2147483648.0);
    IS(gn_l1_norm(V(GN_U8, 255, 255), GN_ALL_AXES, false), 510);
}

TEST(narrow_integers_sum_and_multiply_wide) {
    IS(gn_sum(V(GN_I8, 127, 127), GN_ALL_AXES, false), 254);
    IS(gn_prod(V(GN_U16, 65535, 65535), GN_ALL_AXES, false), 4294836225.0);
    IS(gn_cumsum(V(GN_U8, 255, 255), 0), 255, 510);
    IS(gn_cumprod(V(GN_I8, -128, 2, 2), 0), -128, -256, -512);
}

TEST(largest_keeps_nan_and_the_first_of_equals) {
    gn_tensor a = V(GN_F32, 2, NAN, 5, NAN), ties = V(GN_F32, 1, 3, 3, 1);
    IS(gn_max(a, GN_ALL_AXES, false), NAN);
    IS(gn_argmax(a, GN_ALL_AXES, false), 1);
    IS(gn_argmin(a, GN_ALL_AXES, false), 1);
    IS(gn_argmax(ties, GN_ALL_AXES, false), 1);
    IS(gn_argmin(ties, GN_ALL_AXES, false), 0);
    IS(gn_cummax(V(GN_F32, 1, -1, 2, NAN, 9), 0), 1, 1, 2, NAN, NAN);
}

TEST(sorting_is_stable_and_puts_nan_last) {
    gn_tensor a = V(GN_F32, 1, NAN, 0, -0.0, 1, -INFINITY, NAN, INFINITY), at, value;
    IS(gn_argsort(a, 0, false), 5, 2, 3, 0, 4, 7, 1, 6);
    IS(gn_argsort(a, -1, true), 7, 0, 4, 2, 3, 5, 1, 6);
    IS(gn_sort(a, 0, true), INFINITY, 1, 1, 0, -0.0, -INFINITY, NAN, NAN);
    gn_topk(a, 3, 0, true, &value, &at);
    IS(value, INFINITY, 1, 1);
    IS(at, 7, 0, 4);
    gn_topk(a, 4, 0, false, NULL, &at);
    IS(at, 5, 2, 3, 0);
    gn_topk(a, 0, 0, false, &value, &at);
    gn_info info;
    CHECK_RESULT(gn_describe(value, &info), GN_OK);
    CHECK_INT(info.shape.dims[0], 0);
}

/* ---- gradients at corners: finite where PyTorch's are ---- */

TEST(gradient_of_norms_at_zero_is_zero) {
    gn_tensor x = V(GN_F64, 0, 0, 3, 4), rows = ROWS(x, 2);
    NEAR(slope(gn_l2_norm(rows, GN_AXES(1), false), x), 1e-15, 0, 0, 0.6, 0.8);
    IS(slope(gn_l1_norm(x, GN_ALL_AXES, false), x), 0, 0, 1, 1);
    gn_tensor flat = V(GN_F64, 2, 2, 2);
    IS(slope(gn_std(flat, GN_ALL_AXES, 1, false), flat), 0, 0, 0);
    gn_tensor zero = V(GN_F64, 0, 0);
    IS(slope(gn_normalize(zero, 0, 0.5), zero), 2, 2);
}

TEST(gradient_of_bce_is_finite_at_zero_and_one) {
    gn_tensor p = V(GN_F64, 0, 1, 0, 1, 0.5), target = V(GN_F64, 0, 1, 1, 0, 1);
    NEAR(gn_bce_loss(p, target), 1e-12, (100 + 100 + 0.693147180559945) / 5);
    NEAR(slope(gn_bce_loss(p, target), p), 1e-12, 0.2, -0.2, 0, 0, -0.4);
}

TEST(losses_keep_what_is_not_a_number) {
    gn_tensor p = V(GN_F32, 0.5, NAN), t = V(GN_F32, 1, 1), log_p = V(GN_F32, -1, -2);
    IS(gn_bce_loss(p, t), NAN);
    IS(gn_bce_loss(V(GN_F32, 1.5, 0.5), t), NAN);
    IS(gn_kl_loss(log_p, V(GN_F32, NAN, 1)), NAN);
    IS(gn_kl_loss(log_p, V(GN_F32, -1, 1)), NAN);
    IS(gn_kl_loss(V(GN_F32, -INFINITY, 0), V(GN_F32, 0, 1)), 0);
    gn_tensor q = V(GN_F64, 0, 1), hidden = V(GN_F64, -INFINITY, -2);
    IS(slope(gn_kl_loss(V(GN_F64, -1, -2), q), q), 0, 3);
    IS(slope(gn_kl_loss(hidden, q), q), 0, 3);
    IS(slope(gn_kl_loss(hidden, q), hidden), -0.0, -1);
}

TEST(losses_of_extreme_logits_do_not_overflow) {
    REFUSED(gn_bce_loss(V(GN_F32, 0, 1), V(GN_F32, 1)), GN_BAD_SHAPE); /* a column with a row would make a matrix */
    REFUSED(gn_bce_logits_loss(V(GN_F32, 0, 1), gn_reshape(V(GN_F32, 0, 1), GN_SHAPE(2, 1))), GN_BAD_SHAPE);
    IS(gn_bce_logits_loss(V(GN_F32, 1000, -1000), V(GN_F32, 1, 0)), 0);
    IS(gn_bce_logits_loss(V(GN_F32, 1000, -1000), V(GN_F32, 0, 1)), 1000);
    gn_tensor logits = ROWS(V(GN_F32, 0, -INFINITY, 0), 1), target = V(GN_I64, 2);
    NEAR(gn_cross_entropy(logits, target), 1e-6, 0.69314718);
    NEAR(gn_cross_entropy_smooth(logits, target, 0), 1e-6, 0.69314718);
    IS(gn_cross_entropy_smooth(logits, target, 0.1), INFINITY);
}

TEST(losses_over_nothing_are_not_a_number) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        gn_tensor none = gn_full(g, d, GN_SHAPE(0, 3), 0), class = gn_full(g, GN_I64, GN_SHAPE(0), 0);
        IS(gn_bce_loss(none, none), NAN);
        IS(gn_bce_logits_loss(none, none), NAN);
        IS(gn_kl_loss(none, none), NAN);
        IS(gn_smooth_l1_loss(none, none, 1), NAN);
        IS(gn_mse_loss(none, none), NAN);
        IS(gn_nll_loss(none, class), NAN);
        IS(gn_cross_entropy(none, class), NAN);
        IS(gn_cross_entropy_smooth(none, class, 0.1), NAN);
        gn_step(g);
    }
}

TEST(products_of_vectors_broadcast_and_promote) {
    gn_tensor a = gn_reshape(V(GN_F32, 1, 2, 3, 4), GN_SHAPE(2, 1, 2)), b = ROWS(V(GN_F64, 1, 0, 0, 1, 2, 2), 3);
    IS(gn_vecdot(a, b, -1), 1, 2, 6, 3, 4, 14);
    IS(gn_vecdot(V(GN_I8, 100, 100), V(GN_I8, 1, 1), 0), 200);
    IS(gn_vecdot(V(GN_U8, 200), V(GN_I32, -3), 0), -600);
    IS(gn_vecdot(gn_full(g, GN_F32, GN_SHAPE(2, 0), 1), gn_full(g, GN_F32, GN_SHAPE(0), 1), 1), 0, 0);
    IS(gn_outer(V(GN_U8, 200, 2), V(GN_I8, -1)), -200, -2);
}

TEST(smooth_l1_with_beta_zero_is_l1) {
    gn_tensor a = V(GN_F64, 1, -3, 0), b = V(GN_F64, 0, 0, 0);
    NEAR(gn_smooth_l1_loss(a, b, 0), 1e-15, 4.0 / 3);
    NEAR(slope(gn_smooth_l1_loss(a, b, 0), a), 1e-15, 1.0 / 3, -1.0 / 3, 0);
    REFUSED(gn_smooth_l1_loss(a, b, -1), GN_BAD_ARGUMENT);
    REFUSED(gn_smooth_l1_loss(a, b, NAN), GN_BAD_ARGUMENT);
}

TEST(gradient_of_powers_at_zero_is_finite) {
    gn_tensor a = V(GN_F64, 0, 0, 0, 2), b = V(GN_F64, 0, 1, 2, 3);
    IS(slope(gn_pow(a, b), a), 0, 1, 0, 12);
    NEAR(slope(gn_pow(a, b), b), 1e-15, 0, 0, 0, 5.545177444479562);
}

TEST(gradient_of_the_largest_is_shared_among_equals) {
    gn_tensor x = V(GN_F64, 3, 1, 3, 2), low = V(GN_F64, 0, 0, -1);
    IS(slope(gn_max(x, GN_ALL_AXES, false), x), 0.5, 0, 0.5, 0);
    IS(slope(gn_relu(low), low), 0, 0, 0);
    IS(slope(gn_abs(low), low), 0, 0, -1);
    IS(slope(gn_clamp(x, 1, 2.5), x), 0, 1, 0, 1);
}

TEST(gradient_of_scatter_max_is_shared_among_equals) {
    gn_tensor a = V(GN_F64, 1, 5, 3), at = V(GN_I64, 0, 0, 1, 1), src = V(GN_F64, 2, 2, 4, 5);
    gn_tensor y = gn_scatter_max(a, 0, at, src);
    IS(y, 2, 5, 3);
    IS(slope(y, a), 0, 0.5, 1);
    IS(slope(y, src), 0.5, 0.5, 0, 0.5);
}

TEST(rmsnorm_takes_a_gain_of_the_last_axis_alone) {
    gn_tensor a = ROWS(V(GN_F32, 3, 4, 5, 12), 2);
    REFUSED(gn_rmsnorm(a, V(GN_F32, 1), 0), GN_BAD_SHAPE);
    REFUSED(gn_rmsnorm(a, gn_reshape(V(GN_F32, 1, 1), GN_SHAPE(2, 1)), 0), GN_BAD_SHAPE);
    REFUSED(gn_rmsnorm(a, V(GN_I32, 1, 1), 0), GN_BAD_DTYPE);
    REFUSED(gn_rmsnorm(gn_like(a, 1), V(GN_F32, 1), 0), GN_BAD_RANK);
}

TEST(activations_at_infinity_have_their_limits_or_say_nan) {
    gn_tensor x = V(GN_F32, -INFINITY, INFINITY, NAN, -0.0);
    IS(gn_leaky_relu(x, 0.5), -INFINITY, INFINITY, NAN, -0.0);
    IS(gn_elu(x, 2), -2, INFINITY, NAN, -0.0);
    IS(gn_celu(x, 2), -2, INFINITY, NAN, -0.0);
    IS(gn_hard_swish(x), 0, INFINITY, NAN, -0.0);
    IS(gn_hard_sigmoid(x), 0, 1, NAN, 0.5);
    IS(gn_softplus(V(GN_F32, -INFINITY, INFINITY, NAN)), 0, INFINITY, NAN);
    IS(gn_log_sigmoid(V(GN_F32, -INFINITY, INFINITY, NAN)), -INFINITY, 0, NAN);
    IS(gn_sign(x), -1, 1, NAN, -0.0);
    gn_tensor top = V(GN_F64, 800);
    IS(slope(gn_elu(top, 1), top), 1);
    IS(slope(gn_celu(top, 1), top), 1);
}

/* ---- einsum ---- */

TEST(einsum_without_an_arrow_keeps_letters_that_occur_once_in_order) {
    gn_tensor m = ROWS(V(GN_F64, 1, 2, 3, 4, 5, 6), 2), square = ROWS(V(GN_F64, 1, 2, 3, 4), 2), two[2] = { square, m };
    IS(gn_einsum("ij", &m, 1), 1, 2, 3, 4, 5, 6);
    IS(gn_einsum("ba", &m, 1), 1, 4, 2, 5, 3, 6);
    IS(gn_einsum("aB", &m, 1), 1, 4, 2, 5, 3, 6); /* capitals come first, as in ASCII */
    IS(gn_einsum("ii", &square, 1), 5);
    IS(gn_einsum("ij,jk", two, 2), 9, 12, 15, 19, 26, 33);
    IS(gn_einsum("kj,ki", two, 2), 13, 18, 17, 24, 21, 30);
}

TEST(einsum_with_an_ellipsis_broadcasts_what_has_no_letter) {
    gn_tensor a = gn_reshape(V(GN_F64, 1, 2, 3, 4, 5, 6, 7, 8), GN_SHAPE(2, 2, 2)), m = ROWS(V(GN_F64, 1, 1, 0, 2), 2);
    gn_tensor one = gn_reshape(V(GN_F64, 10, 20), GN_SHAPE(1, 2)), two[2] = { a, m }, narrow[2] = { a, one };
    IS(gn_einsum("...j->...", &a, 1), 3, 7, 11, 15);
    IS(gn_einsum("i...->...", &a, 1), 6, 8, 10, 12);
    IS(gn_einsum("...ii->...", &a, 1), 5, 13);
    IS(gn_einsum("...ij->...ji", &a, 1), 1, 3, 2, 4, 5, 7, 6, 8);
    IS(gn_einsum("i...j->ij", &a, 1), 4, 6, 12, 14); /* not in the output: summed, as by PyTorch */
    IS(gn_einsum("...ij,jk", two, 2), 1, 5, 3, 11, 5, 17, 7, 23);
    IS(gn_einsum("...,...->...", narrow, 2), 10, 40, 30, 80, 50, 120, 70, 160);
    IS(gn_einsum("i...,...->i", narrow, 2), 160, 400);
    IS(gn_einsum("...", &a, 1), 1, 2, 3, 4, 5, 6, 7, 8);
    IS(gn_einsum("ij...,ij->...", two, 2), 0 + 1 + 3 + 2 * 7, 2 + 4 + 2 * 8);
}

/* ---- numbers as the second operand ---- */

static gn_tensor counted(int *calls, gn_tensor t) {
    ++*calls;
    return t;
}

TEST(ops_with_a_number_evaluate_their_tensor_once) {
    int calls = 0;
    gn_tensor a = V(GN_F32, 1, 2, 3);
    IS(gn_add_c(counted(&calls, a), 0.5), 1.5, 2.5, 3.5);
    IS(gn_sub_c(counted(&calls, a), 1), 0, 1, 2);
    IS(gn_mul_c(counted(&calls, a), 2), 2, 4, 6);
    IS(gn_div_c(counted(&calls, a), 2), 0.5, 1, 1.5);
    IS(gn_pow_c(counted(&calls, a), 2), 1, 4, 9);
    IS(gn_minimum_c(counted(&calls, a), 2), 1, 2, 2);
    IS(gn_maximum_c(counted(&calls, a), 2), 2, 2, 3);
    IS(gn_eq_c(counted(&calls, a), 2), 0, 1, 0);
    IS(gn_ne_c(counted(&calls, a), 2), 1, 0, 1);
    IS(gn_lt_c(counted(&calls, a), 2), 1, 0, 0);
    IS(gn_le_c(counted(&calls, a), 2), 1, 1, 0);
    IS(gn_gt_c(counted(&calls, a), 2), 0, 0, 1);
    IS(gn_ge_c(counted(&calls, a), 2), 0, 1, 1);
    CHECK_INT(calls, 13);
}

/* What a dtype cannot hold is an error wherever a C number goes into a tensor; what it can is exact. */
static const struct {
    gn_dtype d;
    double held[3], refused[6];
} numbers_of[] = {
    { GN_I8, { -128, 0, 127 }, { 0.5, -128.5, 128, -129, INFINITY, NAN } },
    { GN_I16, { -32768, 0, 32767 }, { 0.5, 32768, -32769, 1e9, INFINITY, NAN } },
    { GN_I32, { -2147483648.0, 0, 2147483647.0 }, { 0.5, 2147483648.0, -2147483649.0, 1e-9, -INFINITY, NAN } },
    { GN_I64, { -0x1p63, 0, 0x1p62 }, { 0.5, 0x1p63, -0x1.8p63, 1e300, INFINITY, NAN } },
    { GN_U8, { 0, 1, 255 }, { 0.5, 256, -1, 1e9, INFINITY, NAN } },
    { GN_U16, { 0, 1, 65535 }, { 0.5, 65536, -1, 1e9, INFINITY, NAN } },
    { GN_U32, { 0, 1, 4294967295.0 }, { 0.5, 4294967296.0, -1, 1e19, INFINITY, NAN } },
    { GN_U64, { 0, 1, 0x1p63 }, { 0.5, 0x1p64, -1, 1e300, INFINITY, NAN } },
    { GN_BOOL, { 0, 1, 1 }, { 0.5, 2, -1, 1e9, INFINITY, NAN } },
    { GN_F16, { 65504, -65519, 1e-9 }, { 65520, -65520, 1e300, 1e5, -1e5, 7e4 } },
    { GN_BF16, { 3.38e38, -3.38e38, 1e-60 }, { 3.4e38, -3.4e38, 1e300, 1e39, -1e39, 1e40 } },
    { GN_F32, { 3.4028235e38, -3.4028235e38, 0.1 }, { 3.4028236e38, -3.4028236e38, 1e300, 1e39, -1e39, 1e40 } },
};

TEST(numbers_that_a_dtype_cannot_hold_are_refused) {
    for (int k = 0; k < TEST_COUNT(numbers_of); k++) {
        gn_dtype d = numbers_of[k].d;
        bool is_float = d <= GN_BF16, is_bool = d == GN_BOOL;
        gn_tensor a = gn_full(g, d, GN_SHAPE(2, 3), 1), mask = gn_full(g, GN_BOOL, GN_SCALAR, 0);
        gn_shape none = GN_SHAPE(0, 0), one = GN_SHAPE(1, 0);
        for (int i = 0; i < 9; i++) {
            double v = i < 3 ? numbers_of[k].held[i] : numbers_of[k].refused[i - 3];
            gn_result want = i < 3 ? GN_OK : GN_BAD_ARGUMENT;
            REFUSED(gn_full(g, d, GN_SHAPE(2), v), want);
            REFUSED(gn_scalar(g, d, v), want);
            REFUSED(gn_like(a, v), want);
            REFUSED(gn_masked_fill(a, mask, v), want);
            REFUSED(gn_pad(a, one, none, GN_PAD_CONSTANT, v), want);
            REFUSED(gn_pad(a, none, none, GN_PAD_CONSTANT, v), want);
            REFUSED(gn_eq_c(a, v), want);
            REFUSED(gn_ne_c(a, v), want);
            REFUSED(gn_lt_c(a, v), want);
            REFUSED(gn_le_c(a, v), want);
            REFUSED(gn_gt_c(a, v), want);
            REFUSED(gn_ge_c(a, v), want);
            REFUSED(gn_minimum_c(a, v), want);
            REFUSED(gn_maximum_c(a, v), want);
            REFUSED(gn_mul_c(a, v), want);
            REFUSED(gn_add_c(a, v), want);
            if (!is_bool) {
                REFUSED(gn_sub_c(a, v), want);
                REFUSED(gn_div_c(a, v), want);
            }
            if (is_float) {
                REFUSED(gn_pow_c(a, v), want);
                REFUSED(gn_leaky_relu(a, v), want);
                REFUSED(gn_elu(a, v), want);
            }
            if (!is_bool && !isinf(v)) {
                REFUSED(gn_clamp(a, v, INFINITY), want);
                REFUSED(gn_clamp(a, -INFINITY, v), want);
            }
            if (!is_bool && (i > 2 || fabs(v) <= 0x1p53)) REFUSED(gn_arange(g, d, 1, v, 1), want);
        }
        gn_step(g);
    }
    IS(gn_clamp(V(GN_U8, 0, 7, 255), -INFINITY, INFINITY), 0, 7, 255);
    REFUSED(gn_arange(g, GN_I32, 3, 0, 0.5), GN_BAD_ARGUMENT);
    REFUSED(gn_arange(g, GN_U8, 257, 0, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_arange(g, GN_F16, 3, 0, 60000), GN_BAD_ARGUMENT);
    IS(gn_arange(g, GN_U8, 4, 3, -1), 3, 2, 1, 0);
}

/* Whole numbers are given exactly up to the last, and checked to the last. */
TEST(whole_numbers_past_2_to_53_are_exact) {
    static const int64_t values[] = { INT64_MIN,
                                      INT64_MIN + 1,
                                      -((int64_t)1 << 53) - 1,
                                      -1,
                                      0,
                                      1,
                                      ((int64_t)1 << 53) + 1,
                                      ((int64_t)1 << 62) + 12345,
                                      INT64_MAX - 1,
                                      INT64_MAX };
    for (int i = 0; i < TEST_COUNT(values); i++) {
        int64_t v = values[i], got[3] = { 7, 7, 7 };
        CHECK_RESULT(gn_read(gn_full_i64(g, GN_I64, GN_SHAPE(3), v), got, sizeof got), GN_OK);
        CHECK(got[0] == v && got[2] == v);
        CHECK_RESULT(gn_read(gn_scalar_i64(g, GN_I64, v), got, 8), GN_OK);
        CHECK(got[0] == v);
        CHECK_RESULT(gn_read(gn_add(gn_full(g, GN_I64, GN_SHAPE(3), 0),
                                    gn_like_i64(gn_full(g, GN_I64, GN_SHAPE(3), 0), v)),
                             got, sizeof got),
                     GN_OK);
        CHECK(got[1] == v);
        int64_t step = v > 0 ? -1 : 1;
        CHECK_RESULT(gn_read(gn_arange_i64(g, GN_I64, 3, v, step), got, sizeof got), GN_OK);
        CHECK(got[0] == v && got[1] == v + step && got[2] == v + 2 * step);
        for (gn_dtype d = GN_I32; d < GN_DTYPE__COUNT; d++) {
            bool held = d == GN_I64 || (d == GN_U64 && v >= 0) || v == 0 || v == 1 ||
                        (v == -1 && (d == GN_I32 || d == GN_I8 || d == GN_I16));
            REFUSED(gn_full_i64(g, d, GN_SHAPE(2), v), held ? GN_OK : GN_BAD_ARGUMENT);
            REFUSED(gn_scalar_i64(g, d, v), held ? GN_OK : GN_BAD_ARGUMENT);
            REFUSED(gn_like_i64(gn_full(g, d, GN_SHAPE(2), 0), v), held ? GN_OK : GN_BAD_ARGUMENT);
        }
    }
    REFUSED(gn_arange_i64(g, GN_I64, 3, INT64_MAX - 1, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_arange_i64(g, GN_I64, 2, INT64_MIN, -1), GN_BAD_ARGUMENT);
    REFUSED(gn_arange_i64(g, GN_I64, 3, INT64_MIN, INT64_MAX), GN_OK);
    REFUSED(gn_arange_i64(g, GN_U8, 256, 0, 1), GN_OK);
    REFUSED(gn_arange_i64(g, GN_U8, 257, 0, 1), GN_BAD_ARGUMENT);
    REFUSED(gn_arange(g, GN_I64, 2, 0x1p53, 1), GN_BAD_ARGUMENT);
    IS(gn_full_i64(g, GN_F32, GN_SHAPE(1), 3), 3);
}

/* Values of PyTorch 2: torch.maximum, torch.minimum, F.elu, F.celu, F.normalize, F.binary_cross_entropy, at ties and
   kinks. */
TEST(gradients_at_ties_are_shared_as_in_pytorch) {
    gn_tensor a = V(GN_F64, 1, 2, 3, -0.0, INFINITY), b = V(GN_F64, 1, 3, 2, 0, INFINITY);
    IS(slope(gn_maximum(a, b), a), 0.5, 0, 1, 0.5, 0.5);
    IS(slope(gn_maximum(a, b), b), 0.5, 1, 0, 0.5, 0.5);
    IS(slope(gn_minimum(a, b), a), 0.5, 1, 0, 0.5, 0.5);
    IS(slope(gn_minimum(a, b), b), 0.5, 0, 1, 0.5, 0.5);
    gn_tensor x = V(GN_F64, -1, 0, 1, NAN), one = V(GN_F64, 0, 0, 0, 0);
    IS(slope(gn_maximum(x, one), x), 0, 0.5, 1, 1);
    IS(slope(gn_maximum(x, one), one), 1, 0.5, 0, 1);
    IS(slope(gn_maximum_c(x, 0), x), 0, 0.5, 1, 1);
    gn_tensor row = V(GN_F64, 1, 2), column = gn_reshape(V(GN_F64, 1, 2), GN_SHAPE(2, 1));
    IS(slope(gn_maximum(row, column), row), 0.5, 1.5); /* a tie of broadcast operands */
    IS(slope(gn_maximum(row, column), column), 0.5, 1.5);
    IS(slope(gn_maximum(row, row), row), 1, 1); /* both sides at once */
    gn_tensor k = V(GN_F64, 0, 1);
    IS(slope(gn_elu(k, 3), k), 3, 1);
    IS(slope(gn_celu(k, 3), k), 1, 1);
    gn_tensor n = V(GN_F64, 3, 4);
    IS(gn_normalize(n, 0, 5), 0.6, 0.8);
}

/* A reduction over no axes leaves each element, and its shape, alone. */
TEST(reductions_over_no_axes_leave_each_element) {
    for (int keep = 0; keep < 2; keep++) {
        gn_tensor a = ROWS(V(GN_F32, -1, 2, 0, 4), 2), i = ROWS(V(GN_I8, -1, 2, 0, 4), 2);
        IS(gn_sum(a, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_sum(i, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_mean(a, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_max(a, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_min(i, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_prod(a, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_argmax(a, GN_NO_AXES, keep), 0, 0, 0, 0);
        IS(gn_argmin(i, GN_NO_AXES, keep), 0, 0, 0, 0);
        IS(gn_any(a, GN_NO_AXES, keep), 1, 1, 0, 1);
        IS(gn_all(a, GN_NO_AXES, keep), 1, 1, 0, 1);
        IS(gn_count_nonzero(a, GN_NO_AXES, keep), 1, 1, 0, 1);
        IS(gn_l1_norm(a, GN_NO_AXES, keep), 1, 2, 0, 4);
        IS(gn_l2_norm(a, GN_NO_AXES, keep), 1, 2, 0, 4);
        IS(gn_logsumexp(a, GN_NO_AXES, keep), -1, 2, 0, 4);
        IS(gn_variance(a, GN_NO_AXES, 0, keep), 0, 0, 0, 0);
        IS(gn_variance(a, GN_NO_AXES, 1, keep), NAN, NAN, NAN, NAN);
        IS(gn_std(a, GN_NO_AXES, 0, keep), 0, 0, 0, 0);
        IS(slope(gn_sum(a, GN_NO_AXES, keep), a), 1, 1, 1, 1);
        gn_info info;
        gn_describe(gn_sum(a, GN_NO_AXES, keep), &info);
        CHECK(info.shape.rank == 2 && info.shape.dims[0] == 2 && info.shape.dims[1] == 2);
        gn_describe(gn_max(gn_reshape(a, GN_SHAPE(1, 1, 1, 1, 1, 1, 2, 2)), GN_NO_AXES, keep), &info);
        CHECK(info.shape.rank == 8 && info.shape.dims[7] == 2);
        gn_describe(gn_max(gn_full(g, GN_F32, GN_SHAPE(0, 3), 0), GN_NO_AXES, keep), &info);
        CHECK(info.result == GN_OK && info.shape.rank == 2 && info.shape.dims[0] == 0);
        IS(gn_sum(V(GN_F32, 7), GN_NO_AXES, keep), 7);
    }
    IS(gn_squeeze(ROWS(V(GN_F32, 1, 2), 1), GN_NO_AXES), 1, 2);
    IS(gn_flip(V(GN_F32, 1, 2), GN_NO_AXES), 1, 2);
}

/* Where pow takes an int with a float, what is said with products does, too. */
/* 2^90 taps, of which one is of x. */
TEST(windows_far_larger_than_what_they_see_take_no_longer) {
    enum { B = 1 << 30 };
    gn_pool_desc d = { .kernel = { B, B, B }, .before = { B - 1, B - 1, B - 1 } };
    float x = -3, y = 0;
    for (int kind = GN_POOL_MAX; kind <= GN_POOL_AVERAGE; kind++) {
        d.kind = (gn_pool_kind)kind;
        gn_tensor one = gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 1, 1), &x);
        CHECK_RESULT(gn_read(gn_pool(one, &d), &y, sizeof y), GN_OK);
        CHECK(y == -3);
        gn_step(g);
    }
}

TEST(ints_with_floats_promote_in_composites_as_in_pow) {
    gn_tensor i = V(GN_U8, 0, 2, 4), f = V(GN_F32, 0.5, 0.5, 0.5);
    IS(gn_pow(i, f), 0, 0x1.6a09e6p+0, 2);
    IS(gn_prelu(i, f), 0, 2, 4);
    IS(gn_prelu(f, i), 0.5, 0.5, 0.5);
    IS(gn_prelu(V(GN_I8, -2, 2, -4), f), -1, 2, -2);
    IS(gn_smooth_l1_loss(i, V(GN_F32, 0, 2, 3), 1), 0x1.555556p-3);
    IS(gn_smooth_l1_loss(V(GN_F32, 0, 2, 3), i, 0), 0x1.555556p-2);
    REFUSED(gn_prelu(i, i), GN_BAD_DTYPE);
    REFUSED(gn_smooth_l1_loss(i, i, 1), GN_BAD_DTYPE);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(divisions_of_signed_numbers_have_the_signs_of_python_and_c),
        TEST_ENTRY(lowest_integer_over_minus_one_wraps),
        TEST_ENTRY(float_divisions_by_zero_and_of_infinities_follow_python),
        TEST_ENTRY(rounding_goes_to_even_and_keeps_signs),
        TEST_ENTRY(shifts_past_the_width_give_zero_or_the_sign),
        TEST_ENTRY(u64_is_unsigned_past_2_63_and_meets_no_signed_int),
        TEST_ENTRY(reductions_over_nothing_have_their_neutral_element),
        TEST_ENTRY(variance_without_degrees_of_freedom_divides_by_zero),
        TEST_ENTRY(logsumexp_keeps_infinities_and_does_not_overflow),
        TEST_ENTRY(softmax_of_rows_without_a_finite_largest_is_not_a_number),
        TEST_ENTRY(norms_of_the_lowest_integers_are_positive),
        TEST_ENTRY(narrow_integers_sum_and_multiply_wide),
        TEST_ENTRY(largest_keeps_nan_and_the_first_of_equals),
        TEST_ENTRY(sorting_is_stable_and_puts_nan_last),
        TEST_ENTRY(gradient_of_norms_at_zero_is_zero),
        TEST_ENTRY(gradient_of_bce_is_finite_at_zero_and_one),
        TEST_ENTRY(losses_keep_what_is_not_a_number),
        TEST_ENTRY(losses_of_extreme_logits_do_not_overflow),
        TEST_ENTRY(losses_over_nothing_are_not_a_number),
        TEST_ENTRY(products_of_vectors_broadcast_and_promote),
        TEST_ENTRY(smooth_l1_with_beta_zero_is_l1),
        TEST_ENTRY(gradient_of_powers_at_zero_is_finite),
        TEST_ENTRY(gradient_of_the_largest_is_shared_among_equals),
        TEST_ENTRY(gradient_of_scatter_max_is_shared_among_equals),
        TEST_ENTRY(rmsnorm_takes_a_gain_of_the_last_axis_alone),
        TEST_ENTRY(activations_at_infinity_have_their_limits_or_say_nan),
        TEST_ENTRY(einsum_without_an_arrow_keeps_letters_that_occur_once_in_order),
        TEST_ENTRY(einsum_with_an_ellipsis_broadcasts_what_has_no_letter),
        TEST_ENTRY(ops_with_a_number_evaluate_their_tensor_once),
        TEST_ENTRY(numbers_that_a_dtype_cannot_hold_are_refused),
        TEST_ENTRY(whole_numbers_past_2_to_53_are_exact),
        TEST_ENTRY(gradients_at_ties_are_shared_as_in_pytorch),
        TEST_ENTRY(reductions_over_no_axes_leave_each_element),
        TEST_ENTRY(windows_far_larger_than_what_they_see_take_no_longer),
        TEST_ENTRY(ints_with_floats_promote_in_composites_as_in_pow),
    };
    test_begin(argc, argv);
    const char *named = getenv("GENIE_TEST_DEVICES");
    g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 2 });
    if (gn_status(g) != GN_OK) {
        printf("SKIP: every test: %s\n0 passed, 0 failed, %d skipped\n", gn_last_error(g)->text, TEST_COUNT(tests));
        return 0;
    }
    test_all(tests, TEST_COUNT(tests));
    gn_close(g);
    return test_end();
}
