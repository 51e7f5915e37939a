/* How exact the mathematics of elementwise loops is: f32 densely over all floats beside the C library's double, f64 at random points
 * beside its long double, in units in the last place. The largest error of each function is printed. MATH_STRIDE=1 takes every float
 * (hours); the usual stride takes a few seconds. */
#include "../genie.h"

#include "test.h"

enum { CHUNK = 1 << 16 };

typedef gn_tensor (*op_fn)(gn_tensor a);
typedef struct function { const char *name; op_fn op; double (*wide)(double); long double (*widest)(long double); double most32, most64; } function;

#define OP(name) static gn_tensor op_##name(gn_tensor a) { return gn_##name(a); }
#define FUNCTION(name, most32, most64) { #name, op_##name, name, name##l, most32, most64 }
OP(exp) OP(exp2) OP(expm1) OP(log) OP(log2) OP(log10) OP(log1p) OP(sin) OP(cos) OP(tan) OP(asin) OP(acos) OP(atan)
OP(sinh) OP(cosh) OP(tanh) OP(asinh) OP(acosh) OP(atanh) OP(erf) OP(erfc)

static const function functions[] = {
    FUNCTION(exp, 1.5, 1.5), FUNCTION(exp2, 1.5, 1.5), FUNCTION(expm1, 2, 3), FUNCTION(log, 1.5, 1.5), FUNCTION(log2, 2.5, 2), FUNCTION(log10, 2.5, 2.5),
    FUNCTION(log1p, 2, 2), FUNCTION(sin, 2.5, 1.5), FUNCTION(cos, 2.5, 1.5), FUNCTION(tan, 2, 3), FUNCTION(asin, 3, 3), FUNCTION(acos, 1.5, 2),
    FUNCTION(atan, 2.5, 2), FUNCTION(sinh, 3, 3), FUNCTION(cosh, 2, 2), FUNCTION(tanh, 3, 3), FUNCTION(asinh, 2.5, 3), FUNCTION(acosh, 3, 3.5),
    FUNCTION(atanh, 3, 3), FUNCTION(erf, 3, 3), FUNCTION(erfc, 4, 5),
};

static gn_ctx *g;

/* |got - want| in units of the last place of want, in a format of so many bits and so small an exponent. */
static double units(double got, long double want, int bits, int least, double largest)
{
    int e = 0;
    if (want != want || got != got) {
        return want != want && got != got ? 0 : INFINITY;
    }
    if (isinf(got) || fabsl(want) > (long double)largest) {       /* either side of the overflow */
        return (isinf(got) || fabs(got) == largest) && fabsl(want) >= (long double)largest * (1 - ldexpl(1, 1 - bits)) && (got > 0) == (want > 0) ? 0 : INFINITY;
    }
    if (got == 0 && want == 0) {
        return !signbit(got) == !signbit(want) ? 0 : INFINITY;
    }
    (void)frexpl(want, &e);
    return (double)(fabsl((long double)got - want) / ldexpl(1, (e < least ? least : e) - bits));
}

static float x32[CHUNK], y32[CHUNK];
static double x64[CHUNK], y64[CHUNK];

TEST(f32_over_all_floats_is_within_bounds)
{
    const char *text = getenv("MATH_STRIDE");
    uint64_t stride = text ? strtoull(text, NULL, 10) : TEST_SANITIZED ? 400009 : 20011, first = (uint64_t)test_random_int(0, (int64_t)stride - 1);
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
                double e = units((double)y32[i], (long double)f->wide((double)x32[i]), 24, -125, 0x1.fffffep127);
                if (e > worst) { worst = e; at = x32[i]; }
            }
        }
        printf("    f32 %-6s %5.2f at %a\n", f->name, worst, (double)at);
        if (!(worst <= f->most32)) {
            test_fail(__FILE__, __LINE__, "%s of f32: %g units at %a", f->name, worst, (double)at);
        }
    }
}

/* Numbers of all sizes, more of them where functions bend. */
static double some_number(int i)
{
    static const double edges[] = { 0.0, -0.0, 1, -1, 0.5, -0.5, INFINITY, -INFINITY, NAN, 0x1p-1074, -0x1p-1074, 0x1p-1022, 0x1.fffffffffffffp1023, 709.782712893384, 710.475, -745.13, -745.14, 1e22 };
    static const double ranges[] = { 1e-3, 1, 1.5, 3, 30, 750, 1e5 };
    if (i < TEST_COUNT(edges)) {
        return edges[i];
    }
    if (i % 4 == 0) {
        return ldexp(test_random_real(-1, 1), (int)test_random_int(-1074, 1024));
    }
    return i % 4 == 1 ? 1 + test_random_real(-1, 1) * 1e-3 : ranges[(i >> 2) % TEST_COUNT(ranges)] * test_random_real(-1, 1);
}

TEST(f64_beside_long_double_is_within_bounds)
{
#if __LDBL_MANT_DIG__ < 64
    test_skip("long double is no wider than double here");
#else
    for (int k = 0; k < TEST_COUNT(functions); k++) {
        const function *f = &functions[k];
        double worst = 0, at = 0;
        for (int round = 0; round < (TEST_SANITIZED ? 1 : 3); round++) {
            for (int i = 0; i < CHUNK; i++) {
                x64[i] = some_number(i);
            }
            REQUIRE(gn_read(f->op(gn_data(g, GN_F64, GN_SHAPE(CHUNK), x64)), y64, sizeof y64) == GN_OK);
            for (int i = 0; i < CHUNK; i++) {
                double e = units(y64[i], f->widest((long double)x64[i]), 53, -1021, 0x1.fffffffffffffp1023);
                if (e > worst) { worst = e; at = x64[i]; }
            }
        }
        printf("    f64 %-6s %5.2f at %a\n", f->name, worst, at);
        if (!(worst <= f->most64)) {
            test_fail(__FILE__, __LINE__, "%s of f64: %g units at %a", f->name, worst, at);
        }
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

typedef struct pair { const char *name; op2_fn op; long double (*widest)(long double, long double); double most32, most64; } pair;
static const pair pairs[] = {
    { "pow", op_pow, powl, 1, 2 }, { "atan2", op_atan2, atan2l, 3, 3 }, { "hypot", op_hypot, hypotl, 1, 2 }, { "fmod", op_fmod, fmodl, 0, 0 },
};

/* The first 400 pairs are all of 20 numbers with all of them. */
static void check_pair(const pair *p, bool wide)
{
    double worst = 0, a = 0, b = 0;
    for (int i = 0; i < CHUNK; i++) {
        x64[i] = some_number(i < 400 ? i / 20 : i);
        b64[i] = some_number(i < 400 ? i % 20 : (int)test_random_int(20, 1 << 20));
        x32[i] = (float)x64[i];
        b32[i] = (float)b64[i];
    }
    gn_dtype d = wide ? GN_F64 : GN_F32;
    gn_tensor y = p->op(gn_data(g, d, GN_SHAPE(CHUNK), wide ? (void *)x64 : x32), gn_data(g, d, GN_SHAPE(CHUNK), wide ? (void *)b64 : b32));
    REQUIRE(gn_read(y, wide ? (void *)y64 : y32, wide ? sizeof y64 : sizeof y32) == GN_OK);
    for (int i = 0; i < CHUNK; i++) {
        long double u = wide ? x64[i] : (double)x32[i], v = wide ? b64[i] : (double)b32[i], want = p->widest(u, v);
        double e = wide ? units(y64[i], want, 53, -1021, 0x1.fffffffffffffp1023) : units((double)y32[i], want, 24, -125, 0x1.fffffep127);
        if (e > worst) { worst = e; a = (double)u; b = (double)v; }
    }
    printf("    %s %-6s %5.2f at %a, %a\n", wide ? "f64" : "f32", p->name, worst, a, b);
    if (!(worst <= (wide ? p->most64 : p->most32))) {
        test_fail(__FILE__, __LINE__, "%s of %s: %g units at %a, %a", p->name, gn_dtype_name(d), worst, a, b);
    }
}

TEST(two_inputs_beside_long_double_are_within_bounds)
{
    for (int k = 0; k < TEST_COUNT(pairs); k++) {
        check_pair(&pairs[k], false);
        if (__LDBL_MANT_DIG__ >= 64) {
            check_pair(&pairs[k], true);
        }
    }
}

/* An element alone has the bits that it has among others, wherever a tile ends. */
TEST(place_in_a_tile_changes_no_bit)
{
    for (int k = 0; k < TEST_COUNT(functions); k++) {
        for (int i = 0; i < 1100; i++) {
            x64[i] = some_number(100 + i);
        }
        REQUIRE(gn_read(functions[k].op(gn_data(g, GN_F64, GN_SHAPE(1100), x64)), y64, 1100 * sizeof *y64) == GN_OK);
        for (int i = 0; i < 1100; i += 37) {
            double one = 0;
            REQUIRE(gn_read(functions[k].op(gn_data(g, GN_F64, GN_SHAPE(1), &x64[i])), &one, sizeof one) == GN_OK);
            CHECK(memcmp(&one, &y64[i], sizeof one) == 0 || (one != one && y64[i] != y64[i]));
        }
    }
}

int main(int argc, char **argv)
{
    static const test_entry tests[] = {
        TEST_ENTRY(f32_over_all_floats_is_within_bounds), TEST_ENTRY(f64_beside_long_double_is_within_bounds),
        TEST_ENTRY(two_inputs_beside_long_double_are_within_bounds), TEST_ENTRY(place_in_a_tile_changes_no_bit),
    };
    test_begin(argc, argv);
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    test_all(tests, TEST_COUNT(tests));
    gn_close(g);
    return test_end();
}
