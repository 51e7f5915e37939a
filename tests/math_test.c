/* How exact the mathematics of elementwise loops is: f32 densely over all floats beside the C library's double (long
 * double where that is needed), f16 and bf16 at all of their numbers, f64 at random points beside long double, in units
 * in the last place; and sums, means and products over many lengths and along every axis, in units of the sum of
 * absolute terms. The largest error of each is printed: the bounds are those of the op table and of README.
 * MATH_STRIDE=1 takes every float (hours); the usual stride takes a few seconds. $GENIE_TEST_DEVICES names another
 * device than this CPU; its bounds are then twice as large.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

enum { CHUNK = 1 << 16 };

typedef gn_tensor (*op_fn)(gn_tensor a);
/* wide NULL: by widest */
typedef struct function {
    const char *name;
    op_fn op;
    double (*wide)(double);
    long double (*widest)(long double);
    double most32, most64;
} function;

#define OP(name) \
    static gn_tensor op_##name(gn_tensor a) { return gn_##name(a); }
#define FUNCTION(name, most32, most64) \
    { #name, op_##name, name, name##l, most32, most64 }
OP(exp)
OP(exp2)
OP(expm1)
OP(log)
OP(log2)
OP(log10)
OP(log1p)
OP(sin)
OP(cos)
OP(tan)
OP(asin)
OP(acos)
OP(atan)
OP(sinh)
OP(cosh)
OP(tanh)
OP(asinh)
OP(acosh)
OP(atanh)
OP(erf)
OP(erfc)
OP(sigmoid)
OP(silu)
OP(gelu)
OP(gelu_tanh)
OP(mish)
OP(softplus)
OP(log_sigmoid)
OP(selu)
OP(softsign)
OP(hard_sigmoid)
OP(hard_swish)
OP(rsqrt)
OP(sqrt)
OP(reciprocal)

static long double logistic(long double a) { return a >= 0 ? 1 / (1 + expl(-a)) : expl(a) / (1 + expl(a)); }
static long double sigmoidl(long double a) { return logistic(a); }
static long double silul(long double a) { return a * logistic(a); }
static long double gelul(long double a) { return a / 2 * erfcl(-a * 0.707106781186547524400844362104849039L); }
static long double gelu_tanhl(long double a) {
    return a * logistic(1.5957691216057307117597842397375274739L * (a + 0.044715L * a * a * a));
}
static long double mishl(long double a) {
    long double e = expl(a), t = e * (e + 2);
    return a > 40 ? a : a * (t / (t + 2));
}
static long double softplusl(long double a) { return (a > 0 ? a : 0) + log1pl(expl(-fabsl(a))); }
static long double log_sigmoidl(long double a) { return (a < 0 ? a : 0) - log1pl(expl(-fabsl(a))); }
static long double selul(long double a) {
    return 1.0507009873554804934193349852946L * (a > 0 ? a : 1.6732632423543772848170429916717L * expm1l(a));
}
static long double softsignl(long double a) { return a / (1 + fabsl(a)); }
static long double hard_sigmoidl(long double a) { return a <= -3 ? 0 : a >= 3 ? 1 : (a + 3) / 6; }
static long double hard_swishl(long double a) { return a <= -3 ? 0 : a >= 3 ? a : a * (a + 3) / 6; }
static long double rsqrtl(long double a) { return 1 / sqrtl(a); }
static long double reciprocall(long double a) { return 1 / a; }
#define WIDEST(name, most32, most64) \
    { #name, op_##name, NULL, name##l, most32, most64 }

static const function functions[] = {
    FUNCTION(exp, 1.5, 1.5),
    FUNCTION(exp2, 1.5, 1.5),
    FUNCTION(expm1, 2, 3),
    FUNCTION(log, 1.5, 1.5),
    FUNCTION(log2, 2.5, 2),
    FUNCTION(log10, 2.5, 2.5),
    FUNCTION(log1p, 2, 2),
    FUNCTION(sin, 2.5, 1.5),
    FUNCTION(cos, 2.5, 1.5),
    FUNCTION(tan, 2, 3),
    FUNCTION(asin, 3, 3),
    FUNCTION(acos, 1.5, 2),
    FUNCTION(atan, 2.5, 2),
    FUNCTION(sinh, 3, 3),
    FUNCTION(cosh, 2, 2),
    FUNCTION(tanh, 3, 3),
    FUNCTION(asinh, 2.5, 3),
    FUNCTION(acosh, 3, 3.5),
    FUNCTION(atanh, 3, 3),
    FUNCTION(erf, 3, 3),
    FUNCTION(erfc, 4, 5),
    WIDEST(sigmoid, 3, 3),
    WIDEST(silu, 3, 3),
    WIDEST(gelu, 5, 6),
    WIDEST(gelu_tanh, 3, 3),
    WIDEST(mish, 3, 4),
    WIDEST(softplus, 2, 3),
    WIDEST(log_sigmoid, 2, 3),
    WIDEST(selu, 2.5, 3.5),
    WIDEST(softsign, 1.5, 1.5),
    WIDEST(hard_sigmoid, 1.5, 1.5),
    WIDEST(hard_swish, 2, 2),
    WIDEST(rsqrt, 1.5, 1.5),
    WIDEST(sqrt, 0.5, 0.5),
    WIDEST(reciprocal, 0.5, 0.5),
};

static gn_ctx *g;
static double slack = 1; /* how much larger bounds are than this CPU's */

/* |got - want| in units of the last place of want, in a format of so many bits and so small an exponent. */
static double units(double got, long double want, int bits, int least, double largest) {
    int e = 0;
    if (want != want || got != got) return want != want && got != got ? 0 : INFINITY;
    if (isinf(got) || fabsl(want) > (long double)largest) { /* either side of the overflow */
        return (isinf(got) || fabs(got) == largest) &&
                       fabsl(want) >= (long double)largest * (1 - ldexpl(1, 1 - bits)) && (got > 0) == (want > 0)
                   ? 0
                   : INFINITY;
    }
    if (got == 0 && want == 0) return !signbit(got) == !signbit(want) || slack > 1 ? 0 : INFINITY;
    (void)frexpl(want, &e);
    return (double)(fabsl((long double)got - want) / ldexpl(1, (e < least ? least : e) - bits));
}

static float x32[CHUNK], y32[CHUNK];
static double x64[CHUNK], y64[CHUNK];

TEST(f32_over_all_floats_is_within_bounds) {
    const char *text = getenv("MATH_STRIDE");
    uint64_t stride = text             ? strtoull(text, NULL, 10)
                      : TEST_SANITIZED ? 400009
                                       : 20011,
             first = (uint64_t)test_random_int(0, (int64_t)stride - 1);
    REQUIRE(stride > 0);
    for (int k = 0; k < TEST_COUNT(functions); k++) {
        const function *f = &functions[k];
        double worst = 0;
        float at = 0;
        for (uint64_t u = first; u < UINT64_C(1) << 32;) {
            int n = 0;
            for (; n < CHUNK && u < UINT64_C(1) << 32; n++, u += stride) {
                uint32_t bits = (uint32_t)u;
                memcpy(&x32[n], &bits, sizeof bits);
            }
            REQUIRE(gn_read(f->op(gn_data(g, GN_F32, GN_SHAPE(n), x32)), y32, (size_t)n * sizeof *y32) == GN_OK);
            for (int i = 0; i < n; i++) {
                double e = units((double)y32[i],
                                 f->wide ? (long double)f->wide((double)x32[i]) : f->widest((long double)x32[i]), 24,
                                 -125, 0x1.fffffep127);
                if (e > worst) {
                    worst = e;
                    at = x32[i];
                }
            }
        }
        printf("    f32 %-12s %5.2f at %a\n", f->name, worst, (double)at);
        if (!(worst <= slack * f->most32))
            test_fail(__FILE__, __LINE__, "%s of f32: %g units at %a", f->name, worst, (double)at);
    }
}

/* Numbers of all sizes, more of them where functions bend. */
static double some_number(int i) {
    static const double edges[] = { 0.0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.5,
                                    -0.5,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    0x1p-1074,
                                    -0x1p-1074,
                                    0x1p-1022,
                                    0x1.fffffffffffffp1023,
                                    709.782712893384,
                                    710.475,
                                    -745.13,
                                    -745.14,
                                    1e22 };
    static const double ranges[] = { 1e-3, 1, 1.5, 3, 30, 750, 1e5 };
    if (i < TEST_COUNT(edges)) return edges[i];
    if (i % 4 == 0) return ldexp(test_random_real(-1, 1), (int)test_random_int(-1074, 1024));
    return i % 4 == 1 ? 1 + test_random_real(-1, 1) * 1e-3
                      : ranges[(i >> 2) % TEST_COUNT(ranges)] * test_random_real(-1, 1);
}

TEST(f64_beside_long_double_is_within_bounds) {
#if __LDBL_MANT_DIG__ < 64
    test_skip("long double is no wider than double here");
#else
    for (int k = 0; k < TEST_COUNT(functions); k++) {
        const function *f = &functions[k];
        double worst = 0, at = 0;
        for (int round = 0; round < (TEST_SANITIZED ? 1 : 3); round++) {
            for (int i = 0; i < CHUNK; i++) x64[i] = some_number(i);
            REQUIRE(gn_read(f->op(gn_data(g, GN_F64, GN_SHAPE(CHUNK), x64)), y64, sizeof y64) == GN_OK);
            for (int i = 0; i < CHUNK; i++) {
                double e = units(y64[i], f->widest((long double)x64[i]), 53, -1021, 0x1.fffffffffffffp1023);
                if (e > worst) {
                    worst = e;
                    at = x64[i];
                }
            }
        }
        printf("    f64 %-12s %5.2f at %a\n", f->name, worst, at);
        if (!(worst <= slack * f->most64))
            test_fail(__FILE__, __LINE__, "%s of f64: %g units at %a", f->name, worst, at);
    }
#endif
}

static float b32[CHUNK];
static double b64[CHUNK];

typedef gn_tensor (*op2_fn)(gn_tensor a, gn_tensor b);
static gn_tensor op_pow(gn_tensor a, gn_tensor b) { return gn_pow(a, b); }
static gn_tensor op_atan2(gn_tensor a, gn_tensor b) { return gn_atan2(a, b); }
static gn_tensor op_hypot(gn_tensor a, gn_tensor b) { return gn_hypot(a, b); }
static gn_tensor op_fmod(gn_tensor a, gn_tensor b) { return gn_fmod(a, b); }

typedef struct pair {
    const char *name;
    op2_fn op;
    long double (*widest)(long double, long double);
    double most32, most64;
} pair;
static const pair pairs[] = {
    { "pow", op_pow, powl, 1, 2 },
    { "atan2", op_atan2, atan2l, 3, 3 },
    { "hypot", op_hypot, hypotl, 1, 2 },
    { "fmod", op_fmod, fmodl, 0, 0 },
};

/* The first 400 pairs are all of 20 numbers with all of them. */
static void check_pair(const pair *p, bool wide) {
    double worst = 0, a = 0, b = 0;
    for (int i = 0; i < CHUNK; i++) {
        x64[i] = some_number(i < 400 ? i / 20 : i);
        b64[i] = some_number(i < 400 ? i % 20 : (int)test_random_int(20, 1 << 20));
        x32[i] = (float)x64[i];
        b32[i] = (float)b64[i];
    }
    gn_dtype d = wide ? GN_F64 : GN_F32;
    gn_tensor y = p->op(gn_data(g, d, GN_SHAPE(CHUNK), wide ? (void *)x64 : x32),
                        gn_data(g, d, GN_SHAPE(CHUNK), wide ? (void *)b64 : b32));
    REQUIRE(gn_read(y, wide ? (void *)y64 : y32, wide ? sizeof y64 : sizeof y32) == GN_OK);
    for (int i = 0; i < CHUNK; i++) {
        long double u = wide ? x64[i] : (double)x32[i], v = wide ? b64[i] : (double)b32[i], want = p->widest(u, v);
        double e = wide ? units(y64[i], want, 53, -1021, 0x1.fffffffffffffp1023)
                        : units((double)y32[i], want, 24, -125, 0x1.fffffep127);
        if (e > worst) {
            worst = e;
            a = (double)u;
            b = (double)v;
        }
    }
    printf("    %s %-6s %5.2f at %a, %a\n", wide ? "f64" : "f32", p->name, worst, a, b);
    if (!(worst <= slack * (wide ? p->most64 : p->most32)))
        test_fail(__FILE__, __LINE__, "%s of %s: %g units at %a, %a", p->name, gn_dtype_name(d), worst, a, b);
}

TEST(two_inputs_beside_long_double_are_within_bounds) {
    for (int k = 0; k < TEST_COUNT(pairs); k++) {
        check_pair(&pairs[k], false);
        if (__LDBL_MANT_DIG__ >= 64) check_pair(&pairs[k], true);
    }
}

/* Floats of 16 bits are computed in f32 and rounded once: half a unit, and what the f32 before it was off. */
TEST(all_16_bit_floats_are_within_bounds) {
    static uint16_t in[CHUNK], out[CHUNK];
    static double exact[CHUNK], back[CHUNK];
    for (int d = 0; d < 2; d++) {
        gn_dtype dtype = d ? GN_BF16 : GN_F16;
        for (int i = 0; i < CHUNK; i++) in[i] = (uint16_t)i;
        REQUIRE(gn_read(gn_cast(gn_data(g, dtype, GN_SHAPE(CHUNK), in), GN_F64), exact, sizeof exact) == GN_OK);
        for (int k = 0; k < TEST_COUNT(functions); k++) {
            const function *f = &functions[k];
            double worst = 0, at = 0;
            REQUIRE(gn_read(f->op(gn_data(g, dtype, GN_SHAPE(CHUNK), in)), out, sizeof out) == GN_OK);
            REQUIRE(gn_read(gn_cast(gn_data(g, dtype, GN_SHAPE(CHUNK), out), GN_F64), back, sizeof back) == GN_OK);
            for (int i = 0; i < CHUNK; i++) {
                double e = d ? units(back[i], f->widest((long double)exact[i]), 8, -125, 0x1.fep127)
                             : units(back[i], f->widest((long double)exact[i]), 11, -13, 65504);
                if (e > worst) {
                    worst = e;
                    at = exact[i];
                }
            }
            if (!(worst <= 0.5 + slack * f->most32 * (d ? 0x1p-16 : 0x1p-13)))
                test_fail(__FILE__, __LINE__, "%s of %s: %g units at %a", f->name, gn_dtype_name(dtype), worst, at);
            gn_step(g);
        }
    }
}

/* ---- sums over many lengths, along every axis: one, equal numbers (whose roundings do not cancel), and drawn ones */

enum { LONGEST = 1 << 21 };
static double terms64[LONGEST];
static float terms32[LONGEST];

/* Of a product of n terms. On a GPU a thread adds f32 plainly, which those of equal numbers show. */
static double most_of_product(gn_dtype d, int64_t n) {
    return 4 + (d == GN_F32 && slack > 1 ? sqrt((double)n) / 2 : 0);
}

/* The largest |got - want| of `results` sums of n terms in eps of the sum of absolute terms. */
static void check_sums(gn_dtype d, const char *what, gn_tensor (*op)(gn_tensor x, int axis), bool mean, int64_t n,
                       int64_t beside, int axis, double most) {
    double eps = d == GN_F64 ? 0x1p-52 : 0x1p-23, worst = 0;
    int64_t step = axis ? 1 : beside, across = axis ? n : 1;
    gn_shape s = axis ? GN_SHAPE(beside, n) : GN_SHAPE(n, beside);
    REQUIRE(n * beside <= LONGEST && beside <= CHUNK);
    if (!CHECK_RESULT(gn_read(op(gn_data(g, d, s, d == GN_F64 ? (void *)terms64 : terms32), axis),
                              d == GN_F64 ? (void *)y64 : y32, (size_t)beside * (d == GN_F64 ? 8 : 4)),
                      GN_OK))
        return;
    for (int64_t r = 0; r < beside; r++) {
        long double sum = 0, lost = 0, all = 0; /* long double alone would be off by several eps of 2^20 doubles */
        for (int64_t i = 0; i < n; i++) {
            long double x = d == GN_F64 ? terms64[r * across + i * step] : terms32[r * across + i * step], to = sum + x,
                        back = to - sum;
            lost += (sum - (to - back)) + (x - back);
            sum = to;
            all += fabsl(x);
        }
        sum += lost;
        double e = (double)(fabsl((d == GN_F64 ? (long double)y64[r] : (long double)y32[r]) - (mean ? sum / n : sum)) /
                            (mean ? all / n : all)) /
                   eps;
        worst = e <= worst ? worst : e;
    }
    if (!(worst <= slack * most)) {
        test_fail(__FILE__, __LINE__, "%s of %lld %s numbers, axis %d, %lld beside: off by %g eps", what, (long long)n,
                  gn_dtype_name(d), axis, (long long)beside, worst);
    }
    gn_step(g);
}

static gn_tensor sum_along(gn_tensor x, int axis) { return gn_sum(x, GN_AXES(axis), false); }
static gn_tensor mean_along(gn_tensor x, int axis) { return gn_mean(x, GN_AXES(axis), false); }
static gn_tensor ones_along(gn_tensor x, int axis) /* a product with ones */
{
    gn_shape s = { .rank = 2 };
    gn_info info = { .result = GN_OK };
    (void)gn_describe(x, &info);
    s.dims[axis] = 1;
    s.dims[1 - axis] = info.shape.dims[axis];
    gn_tensor ones = gn_full(x.ctx, info.dtype, axis ? GN_SHAPE(s.dims[0], 1) : GN_SHAPE(1, s.dims[1]), 1);
    return axis ? gn_matmul(x, ones) : gn_matmul(ones, x);
}
static gn_tensor last_of_cumsum(gn_tensor x, int axis) { return gn_slice(gn_cumsum(x, axis), axis, -1, GN_END, 1); }

/* `equal`: the number that all are, or 0. */
static void check_lengths(double equal) {
    static const int64_t lengths[] = { 1,   2,    7,    8,    9,    31,    64,    65,    100,    255,    256,
                                       257, 1000, 1024, 1025, 4099, 30000, 65536, 65537, 100003, 1 << 20 };
    static const int64_t besides[] = { 1, 3, 8, 17 };
    for (int i = 0; i < LONGEST; i++) {
        terms64[i] = equal != 0 ? equal : test_random_real(-1, 1);
        terms32[i] = (float)terms64[i];
    }
    for (int l = 0; l < TEST_COUNT(lengths); l++) {
        for (int b = 0; b < TEST_COUNT(besides); b++) {
            for (int axis = 0; axis < 2 && lengths[l] * besides[b] <= LONGEST; axis++) {
                check_sums(GN_F64, "sum", sum_along, false, lengths[l], besides[b], axis, 2);
                check_sums(GN_F32, "sum", sum_along, false, lengths[l], besides[b], axis, 2);
                check_sums(GN_F64, "mean", mean_along, true, lengths[l], besides[b], axis, 2);
                check_sums(GN_F32, "mean", mean_along, true, lengths[l], besides[b], axis, 2);
                check_sums(GN_F64, "product with ones", ones_along, false, lengths[l], besides[b], axis,
                           most_of_product(GN_F64, lengths[l]));
                check_sums(GN_F32, "product with ones", ones_along, false, lengths[l], besides[b], axis,
                           most_of_product(GN_F32, lengths[l]));
                check_sums(GN_F64, "cumsum", last_of_cumsum, false, lengths[l], besides[b], axis, 2);
                check_sums(GN_F32, "cumsum", last_of_cumsum, false, lengths[l], besides[b], axis, 2);
            }
        }
    }
}
TEST(sums_of_equal_numbers_are_within_bounds_of_any_length) { check_lengths(0.1); }
TEST(sums_of_drawn_numbers_are_within_bounds_of_any_length) { check_lengths(0); }

/* Rows of k times x by a matrix of ones: the largest error in eps of f32 (of f64 in its own), beyond the half unit that
   a result of 16 bits is rounded by. */
static double equal_product(gn_ctx *on, gn_dtype d, int64_t rows, int64_t columns, int64_t k, double x) {
    double at = 0, ends[2] = { 0 }, unit = d == GN_F16 ? 0x1p-11 : d == GN_BF16 ? 0x1p-8 : 0;
    gn_tensor a = gn_full(on, d, GN_SHAPE(rows, k), x), b = gn_full(on, d, GN_SHAPE(k, columns), 1);
    gn_realize(&a, 1);
    gn_realize(&b, 1);
    gn_tensor y = gn_cast(gn_matmul(a, b), GN_F64);
    gn_tensor first = gn_cast(gn_slice(gn_slice(a, 0, 0, 1, 1), 1, 0, 1, 1), GN_F64);
    if (gn_read(gn_min(y, GN_ALL_AXES, false), &ends[0], sizeof ends[0]) != GN_OK ||
        gn_read(gn_max(y, GN_ALL_AXES, false), &ends[1], sizeof ends[1]) != GN_OK ||
        gn_read(first, &at, sizeof at) != GN_OK)
        return INFINITY;
    long double want = (long double)k * at;
    double off = (double)fmaxl(fabsl(ends[0] - want), fabsl(ends[1] - want));
    gn_step(on);
    return isnan(ends[1]) ? INFINITY : (off / (double)want - unit) / (d == GN_F64 ? 0x1p-52 : 0x1p-23);
}

/* Thin products, tiles, and tiles enough for all of a GPU. */
TEST(products_of_equal_numbers_are_within_bounds_on_a_device) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16, GN_F64 };
    static const int64_t sides[] = { 1, 5, 129, 1536 }, depths[] = { 17, 256, 1000, 4100, 16385 };
    for (int s = 0; s < TEST_COUNT(sides) - (slack > 1 ? 0 : 1); s++) {
        for (int d = 0; d < TEST_COUNT(dtypes); d++) {
            for (int k = 0; k < TEST_COUNT(depths) - (slack > 1 ? 0 : 1); k++) {
                double x = test_random_real(1, 2),
                       most = slack > 1 && dtypes[d] != GN_F64 ? 4 + (double)depths[k] / 8 : 5;
                double e = equal_product(g, dtypes[d], sides[s], sides[s] + 4, depths[k], x);
                if (getenv("MATH_PRINT")) {
                    printf("%s (%d,%d) @ (%d,%d): %g eps\n", gn_dtype_name(dtypes[d]), (int)sides[s], (int)depths[k],
                           (int)depths[k], (int)sides[s] + 4, e);
                }
                if (!(e <= most)) {
                    test_fail(__FILE__, __LINE__, "%lld rows of %lld times %a as %s: off by %g eps",
                              (long long)sides[s], (long long)depths[k], x, gn_dtype_name(dtypes[d]), e);
                }
            }
        }
    }
}

TEST(products_of_equal_numbers_are_within_bounds_on_every_instruction_path) {
    static const char *const isas[] = { "base", "avx2", "avx512" };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16 };
    static const int64_t depths[] = { 15, 16, 17, 128, 129, 256, 300, 1024, 1025, 5000 };
    if (getenv("GENIE_TEST_DEVICES")) test_skip("the instruction paths are this CPU's");
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        setenv("GENIE_ISA", isas[i], 1);
        gn_ctx *on = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
        unsetenv("GENIE_ISA");
        for (int d = 0; d < TEST_COUNT(dtypes); d++) {
            for (int k = 0; k < TEST_COUNT(depths); k++) {
                for (int64_t rows = 1; rows <= 5; rows += 4) {
                    double x = test_random_real(1, 2), e = equal_product(on, dtypes[d], rows, 9, depths[k], x);
                    if (!(e <= 4.5)) { /* terms are exact here: half a unit less than README says */
                        test_fail(__FILE__, __LINE__, "%s: %lld rows of %lld times %a as %s: off by %g eps", isas[i],
                                  (long long)rows, (long long)depths[k], x, gn_dtype_name(dtypes[d]), e);
                    }
                }
            }
        }
        gn_close(on);
    }
}

/* n factors each of which rounds are not off by n roundings. */
TEST(products_of_many_factors_are_within_bounds) {
    for (int64_t n = 1; n <= 30000; n = n * 3 + 1) {
        long double want = 1;
        for (int64_t i = 0; i < n; i++) {
            terms64[i] = 1 + test_random_real(-1, 1) * 1e-2 + 1e-5;
            want *= (long double)terms64[i];
        }
        double got = 0;
        REQUIRE(gn_read(gn_prod(gn_data(g, GN_F64, GN_SHAPE(n), terms64), GN_ALL_AXES, false), &got, sizeof got) ==
                GN_OK);
        if (!(fabsl(got - want) <= (4 * 0x1p-52L + (long double)n * 0x1p-63L) * slack * fabsl(want))) {
            test_fail(__FILE__, __LINE__, "a product of %lld factors is off by %g eps", (long long)n,
                      (double)(fabsl(got - want) / fabsl(want) / 0x1p-52L));
        }
        gn_step(g);
    }
}

/* Softmax of equal numbers is 1 / n, along either axis and of any length. */
TEST(softmax_of_equal_numbers_is_within_bounds) {
    static const int64_t lengths[] = { 1, 10, 1000, 4099, 100000 };
    for (int i = 0; i < LONGEST; i++) terms64[i] = 0.1;
    for (int l = 0; l < TEST_COUNT(lengths); l++) {
        for (int axis = 0; axis < 2; axis++) {
            int64_t n = lengths[l];
            gn_tensor x = gn_data(g, GN_F64, axis ? GN_SHAPE(3, n) : GN_SHAPE(n, 3), terms64);
            REQUIRE(gn_read(gn_slice(gn_softmax(x, axis), axis, 0, 1, 1), y64, 3 * sizeof *y64) == GN_OK);
            CHECK(fabs(y64[1] * (double)n - 1) <= 2 * slack * 0x1p-52);
            REQUIRE(gn_read(gn_slice(gn_log_softmax(x, axis), axis, 0, 1, 1), y64, 3 * sizeof *y64) == GN_OK);
            CHECK(fabs(y64[1] + log((double)n)) <= 2 * slack * 0x1p-52 * (1 + log((double)n)));
            gn_step(g);
        }
    }
}

/* An element alone has the bits that it has among others, wherever a tile ends. */
TEST(place_in_a_tile_changes_no_bit) {
    for (int k = 0; k < TEST_COUNT(functions); k++) {
        for (int i = 0; i < 1100; i++) x64[i] = some_number(100 + i);
        REQUIRE(gn_read(functions[k].op(gn_data(g, GN_F64, GN_SHAPE(1100), x64)), y64, 1100 * sizeof *y64) == GN_OK);
        for (int i = 0; i < 1100; i += 37) {
            double one = 0;
            REQUIRE(gn_read(functions[k].op(gn_data(g, GN_F64, GN_SHAPE(1), &x64[i])), &one, sizeof one) == GN_OK);
            CHECK(memcmp(&one, &y64[i], sizeof one) == 0 || (one != one && y64[i] != y64[i]));
        }
    }
}

/* ---- random numbers ---- */

/* Philox4x32-10, by the paper. */
static void random_words(uint64_t element, uint64_t run, uint64_t key, uint32_t w[4]) {
    uint32_t k[2] = { (uint32_t)key, (uint32_t)(key >> 32) };
    w[0] = (uint32_t)element, w[1] = (uint32_t)(element >> 32), w[2] = (uint32_t)run, w[3] = (uint32_t)(run >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * w[0], b = (uint64_t)0xCD9E8D57u * w[2];
        uint32_t next[4] = { (uint32_t)(b >> 32) ^ w[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ w[3] ^ k[1],
                             (uint32_t)a };
        memcpy(w, next, sizeof next);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

static double random_number(gn_dtype d, bool normal, const uint32_t w[4]) {
    double first = (double)((((uint64_t)w[1] << 32) | w[0]) >> 11) * 0x1p-53,
           second = (double)((((uint64_t)w[3] << 32) | w[2]) >> 11) * 0x1p-53;
    if (normal) return sqrt(-2 * log(1 - first)) * cos(6.283185307179586477 * second);
    return d == GN_F64   ? first
           : d == GN_F32 ? (double)(w[0] >> 8) * 0x1p-24
           : d == GN_F16 ? (double)(w[0] >> 21) * 0x1p-11
                         : (double)(w[0] >> 24) * 0x1p-8;
}

/* Their mathematics is vector code; the bits are those of the C library's functions. */
TEST(random_numbers_have_the_bits_of_their_formula_on_every_instruction_path) {
    enum { N = 200003 };
    static const char *const isas[] = { "avx512", "avx2", "base" };
    static const gn_dtype some[] = { GN_F32, GN_F64, GN_F16, GN_BF16 };
    static double got[N], formula[N], want[N];
    for (int i = 0; i < 3 * TEST_COUNT(some) * 2; i++) {
        gn_dtype d = some[i / 3 % TEST_COUNT(some)];
        bool normal = i >= 3 * TEST_COUNT(some);
        int64_t n = d == GN_F32 ? N : 1003, run = (int64_t)test_random(), wrong = 0,
                attrs[3] = { d, (int64_t)test_random(), n };
        setenv("GENIE_ISA", isas[i % 3], 1);
        gn_ctx *on = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)i % 2 });
        unsetenv("GENIE_ISA");
        gn_tensor counter = gn_data(on, GN_I64, GN_SCALAR, &run);
        gn_tensor y = gn_cast(gn_apply(on, normal ? 0x0b : 0x0a, &counter, 1, attrs, 3), GN_F64);
        for (int64_t l = 0; l < n; l++) {
            uint32_t w[4];
            random_words((uint64_t)l, (uint64_t)run, (uint64_t)attrs[1], w);
            formula[l] = random_number(d, normal, w);
        }
        gn_tensor rounded = gn_cast(gn_cast(gn_data(on, GN_F64, GN_SHAPE(n), formula), d), GN_F64);
        REQUIRE(gn_read(y, got, (size_t)n * sizeof *got) == GN_OK &&
                gn_read(rounded, want, (size_t)n * sizeof *want) == GN_OK);
        for (int64_t l = 0; l < n; l++) wrong += memcmp(&got[l], &want[l], sizeof *got) != 0;
        if (wrong) {
            test_fail(__FILE__, __LINE__, "%s, %s, %s: %d numbers differ", gn_dtype_name(d), isas[i % 3],
                      normal ? "normal" : "uniform", (int)wrong);
        }
        gn_close(on);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(f32_over_all_floats_is_within_bounds),
        TEST_ENTRY(f64_beside_long_double_is_within_bounds),
        TEST_ENTRY(two_inputs_beside_long_double_are_within_bounds),
        TEST_ENTRY(place_in_a_tile_changes_no_bit),
        TEST_ENTRY(all_16_bit_floats_are_within_bounds),
        TEST_ENTRY(sums_of_equal_numbers_are_within_bounds_of_any_length),
        TEST_ENTRY(sums_of_drawn_numbers_are_within_bounds_of_any_length),
        TEST_ENTRY(products_of_many_factors_are_within_bounds),
        TEST_ENTRY(random_numbers_have_the_bits_of_their_formula_on_every_instruction_path),
        TEST_ENTRY(softmax_of_equal_numbers_is_within_bounds),
        TEST_ENTRY(products_of_equal_numbers_are_within_bounds_on_every_instruction_path),
        TEST_ENTRY(products_of_equal_numbers_are_within_bounds_on_a_device),
    };
    test_begin(argc, argv);
    const char *named = getenv("GENIE_TEST_DEVICES");
    slack = named ? 2 : 1;
    g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 2 });
    test_all(tests, TEST_COUNT(tests));
    gn_close(g);
    return test_end();
}
