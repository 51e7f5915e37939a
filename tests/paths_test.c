/* What the CPU executor computes does not depend on how many threads it has, to the last bit; between instruction paths
 * elementwise loops agree to the last bit, and sums within rounding.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

enum { MAX_OUT = 1 << 18 };

typedef struct path_case {
    const char *name;
    bool elementwise; /* equal bits on all instruction paths */
    gn_tensor (*build)(gn_ctx *g, gn_dtype dtype);
} path_case;

static double numbers[1 << 17]; /* one pool of inputs for all cases */

static void fill_numbers(void) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = test_random_real(-2, 2);
}

/* A tensor of the pool's numbers from `offset` on, in the dtype asked for. */
static gn_tensor input(gn_ctx *g, gn_dtype dtype, gn_shape shape, int offset) {
    return gn_cast(gn_data(g, GN_F64, shape, numbers + offset), dtype);
}

static gn_tensor product(gn_ctx *g, gn_dtype d) {
    return gn_matmul(input(g, d, GN_SHAPE(181, 301), 0), input(g, d, GN_SHAPE(301, 277), 7));
}
static gn_tensor product_of_transposed(gn_ctx *g, gn_dtype d) {
    return gn_matmul(gn_transpose(input(g, d, GN_SHAPE(301, 181), 3), 0, 1),
                     gn_transpose(input(g, d, GN_SHAPE(277, 301), 5), 0, 1));
}
static gn_tensor products_in_batch(gn_ctx *g, gn_dtype d) {
    return gn_matmul(input(g, d, GN_SHAPE(3, 29, 65), 0), input(g, d, GN_SHAPE(3, 65, 33), 1));
}
static gn_tensor layer(gn_ctx *g, gn_dtype d) {
    return gn_relu(gn_linear(input(g, d, GN_SHAPE(64, 257), 0), input(g, d, GN_SHAPE(257, 300), 9),
                             input(g, d, GN_SHAPE(300), 2)));
}
static gn_tensor row_by_matrix(gn_ctx *g, gn_dtype d) {
    return gn_matmul(input(g, d, GN_SHAPE(2, 300), 0), input(g, d, GN_SHAPE(300, 403), 9));
}
static gn_tensor row_by_transposed(gn_ctx *g, gn_dtype d) {
    return gn_matmul(input(g, d, GN_SHAPE(1, 300), 0), gn_transpose(input(g, d, GN_SHAPE(403, 300), 9), 0, 1));
}
static gn_tensor matrix_by_columns(gn_ctx *g, gn_dtype d) {
    return gn_linear(input(g, d, GN_SHAPE(301, 400), 0), input(g, d, GN_SHAPE(400, 3), 9), input(g, d, GN_SHAPE(3), 2));
}
static gn_tensor transposed_by_column(gn_ctx *g, gn_dtype d) {
    return gn_matmul(gn_transpose(input(g, d, GN_SHAPE(400, 301), 0), 0, 1), input(g, d, GN_SHAPE(400, 1), 9));
}
static gn_tensor sum_of_rows(gn_ctx *g, gn_dtype d) {
    return gn_sum(input(g, d, GN_SHAPE(97, 1025), 0), GN_AXES(1), false);
}
static gn_tensor mean_of_columns(gn_ctx *g, gn_dtype d) {
    return gn_mean(input(g, d, GN_SHAPE(97, 1025), 0), GN_AXES(0), false);
}
static gn_tensor sum_of_all(gn_ctx *g, gn_dtype d) {
    return gn_sum(input(g, d, GN_SHAPE(97, 1025), 0), GN_ALL_AXES, false);
}
static gn_tensor sum_of_tall_columns(gn_ctx *g, gn_dtype d) {
    return gn_sum(input(g, d, GN_SHAPE(4097, 19), 0), GN_AXES(0), false);
}
static gn_tensor mean_of_outer_axes(gn_ctx *g, gn_dtype d) {
    return gn_mean(gn_slice(input(g, d, GN_SHAPE(60, 53, 37), 0), 1, 1, 52, 1), GN_AXES(0, 1), false);
}
static gn_tensor largest_of_all(gn_ctx *g, gn_dtype d) {
    return gn_max(input(g, d, GN_SHAPE(97, 1025), 0), GN_ALL_AXES, false);
}
static gn_tensor place_of_smallest(gn_ctx *g, gn_dtype d) {
    return gn_argmin(input(g, d, GN_SHAPE(97, 1025), 0), GN_ALL_AXES, false);
}
static gn_tensor largest_of_rows(gn_ctx *g, gn_dtype d) {
    return gn_max(input(g, d, GN_SHAPE(97, 1025), 0), GN_AXES(1), true);
}
static gn_tensor largest_of_columns(gn_ctx *g, gn_dtype d) {
    return gn_max(input(g, d, GN_SHAPE(2100, 41), 0), GN_AXES(0), false);
}
static gn_tensor place_of_smallest_of_columns(gn_ctx *g, gn_dtype d) {
    return gn_argmin(input(g, d, GN_SHAPE(2100, 41), 0), GN_AXES(0), false);
}
static gn_tensor softmax_of_rows(gn_ctx *g, gn_dtype d) { return gn_softmax(input(g, d, GN_SHAPE(97, 1025), 0), -1); }
static gn_tensor log_softmax_of_columns(gn_ctx *g, gn_dtype d) {
    return gn_log_softmax(input(g, d, GN_SHAPE(97, 1025), 0), 0);
}
static gn_tensor layernorm_of_rows(gn_ctx *g, gn_dtype d) {
    return gn_layernorm(input(g, d, GN_SHAPE(97, 1025), 0), input(g, d, GN_SHAPE(1025), 4),
                        input(g, d, GN_SHAPE(1025), 8), 1e-5);
}
static gn_tensor causal_attention(gn_ctx *g, gn_dtype d) {
    gn_attention_desc desc = { .causal = true };
    return gn_attention(input(g, d, GN_SHAPE(2, 4, 70, 33), 0), input(g, d, GN_SHAPE(2, 2, 70, 33), 1),
                        input(g, d, GN_SHAPE(2, 2, 70, 40), 2), &desc);
}
static gn_tensor clip_loop(gn_ctx *g, gn_dtype d) {
    gn_tensor x = input(g, d, GN_SHAPE(97, 1025), 0);
    x = gn_add(gn_mul(x, gn_scalar(g, d, 1.5)), input(g, d, GN_SHAPE(1025), 11));
    return gn_minimum(gn_sub(gn_mul_c(gn_maximum(x, gn_like(x, 0)), 0.75), input(g, d, GN_SHAPE(97, 1), 5)),
                      gn_like(x, 0.9));
}
static gn_tensor smooth_loop(gn_ctx *g, gn_dtype d) {
    gn_tensor x = input(g, d, GN_SHAPE(97, 1025), 0), y = gn_mul_c(x, 3);
    gn_tensor a = gn_mul(gn_gelu(y), gn_sigmoid(x)), b = gn_add(gn_tanh(x), gn_log(gn_add_c(gn_abs(y), 0.01)));
    return gn_add(gn_add(a, gn_exp(x)), gn_mul(b, gn_silu(gn_gelu_tanh(y))));
}
/* On both sides of where the C library takes over. */
static gn_tensor turning_loop(gn_ctx *g, gn_dtype d) {
    gn_tensor x = gn_cast(input(g, d, GN_SHAPE(97, 1025), 0), d == GN_F64 ? GN_F64 : GN_F32);
    return gn_cast(gn_add(gn_sin(gn_mul_c(x, 3)), gn_cos(gn_mul_c(x, 40000))), d);
}

static const path_case cases[] = {
    { "product", false, product },
    { "product_of_transposed", false, product_of_transposed },
    { "products_in_batch", false, products_in_batch },
    { "layer", false, layer },
    { "row_by_matrix", false, row_by_matrix },
    { "row_by_transposed", false, row_by_transposed },
    { "matrix_by_columns", false, matrix_by_columns },
    { "transposed_by_column", false, transposed_by_column },
    { "sum_of_rows", false, sum_of_rows },
    { "mean_of_columns", false, mean_of_columns },
    { "sum_of_all", false, sum_of_all },
    { "sum_of_tall_columns", false, sum_of_tall_columns },
    { "mean_of_outer_axes", false, mean_of_outer_axes },
    { "largest_of_all", true, largest_of_all },
    { "place_of_smallest", true, place_of_smallest },
    { "largest_of_columns", true, largest_of_columns },
    { "place_of_smallest_of_columns", true, place_of_smallest_of_columns },
    { "largest_of_rows", true, largest_of_rows },
    { "softmax_of_rows", false, softmax_of_rows },
    { "log_softmax_of_columns", false, log_softmax_of_columns },
    { "layernorm_of_rows", false, layernorm_of_rows },
    { "causal_attention", false, causal_attention },
    { "turning_loop", true, turning_loop },
    { "clip_loop", true, clip_loop },
    { "smooth_loop", true, smooth_loop },
};

/* The bytes of a case's result in f64, on a context of its own; poisoned first. The number of elements, 0 after a
   failed check. */
static size_t run_case(const path_case *c, gn_dtype dtype, uint32_t threads, const char *isa, double *out) {
    gn_info info = { .result = GN_OK };
    if (isa) setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    gn_tensor y = c->build(g, dtype), wide = gn_cast(gn_add_c(y, 0), GN_F64);
    memset(out, 0xff, MAX_OUT * sizeof *out);
    bool ok = CHECK_RESULT(gn_describe(wide, &info), GN_OK) && CHECK(info.bytes <= MAX_OUT * sizeof *out) &&
              CHECK_RESULT(gn_read(wide, out, info.bytes), GN_OK);
    gn_close(g);
    unsetenv("GENIE_ISA");
    return ok ? info.bytes / sizeof *out : 0;
}

static double wanted[MAX_OUT], got[MAX_OUT];
static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_BF16, GN_F16 };

static void check_threads(const path_case *c) {
    for (int d = 0; d < TEST_COUNT(dtypes); d++) {
        size_t n = run_case(c, dtypes[d], 1, NULL, wanted);
        for (uint32_t threads = 2; threads <= 5; threads++) {
            size_t m = run_case(c, dtypes[d], threads, NULL, got);
            REQUIRE(n > 0 && m == n);
            if (memcmp(wanted, got, n * sizeof *got) != 0) {
                test_fail(__FILE__, __LINE__, "%s: %u threads do not give the bits of one", gn_dtype_name(dtypes[d]),
                          (unsigned)threads);
            }
        }
    }
}

static void check_isas(const path_case *c) {
    static const char *const isas[] = { "avx2", "base" };
    static const double eps[] = { 0x1p-23, 0x1p-52, 0x1p-8, 0x1p-11 };
    for (int d = 0; d < TEST_COUNT(dtypes); d++) {
        size_t n = run_case(c, dtypes[d], 2, NULL, wanted);
        double top = 1, worst = 0;
        for (size_t i = 0; i < n; i++) top = fmax(top, fabs(wanted[i]));
        for (int k = 0; k < TEST_COUNT(isas); k++) {
            size_t m = run_case(c, dtypes[d], 2, isas[k], got);
            REQUIRE(n > 0 && m == n);
            for (size_t i = 0; i < n; i++) {
                double error = fabs(got[i] - wanted[i]);
                worst = error <= worst ? worst : error; /* a NaN stays */
            }
            if (!(worst <= (c->elementwise ? 0 : 32 * eps[d] * top))) {
                test_fail(__FILE__, __LINE__, "%s: %s differs by %g of %g", gn_dtype_name(dtypes[d]), isas[k], worst,
                          top);
            }
        }
    }
}

/* ---- products whose sides lie otherwise, or which are one of a batch ---- */

static double left_side[1 << 17], right_side[1 << 17];

/* Transposed sides, dense ones and each item alone give the same bits. */
static void check_products(const char *isa) {
    static const int64_t shapes[][4] = { { 66, 4, 4, 4 },  { 5, 5, 9, 6 },     { 4, 32, 32, 32 }, { 3, 33, 71, 17 },
                                         { 2, 4, 100, 9 }, { 2, 70, 300, 33 }, { 3, 1, 40, 70 },  { 2, 80, 300, 2 } };
    static const gn_dtype kinds[] = { GN_F32, GN_F64, GN_BF16, GN_F16, GN_I8, GN_I16, GN_I32 };
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    unsetenv("GENIE_ISA");
    for (int c = 0; c < TEST_COUNT(shapes) * TEST_COUNT(kinds); c++) {
        const int64_t *s = shapes[c / TEST_COUNT(kinds)], batch = s[0], m = s[1], k = s[2], n = s[3];
        gn_dtype d = kinds[c % TEST_COUNT(kinds)];
        double scale = c % TEST_COUNT(kinds) > 3 ? 60 : 1;
        size_t bytes = (size_t)(batch * m * n) * sizeof *got;
        for (int64_t i = 0; i < batch * m * k; i++) left_side[i] = test_random_real(-scale, scale);
        for (int64_t i = 0; i < batch * k * n; i++) right_side[i] = test_random_real(-scale, scale);
        gn_tensor a = gn_cast(gn_data(g, GN_F64, GN_SHAPE(batch, m, k), left_side), d),
                  b = gn_cast(gn_data(g, GN_F64, GN_SHAPE(batch, k, n), right_side), d),
                  at = gn_add_c(gn_transpose(a, 1, 2), 0), bt = gn_add_c(gn_transpose(b, 1, 2), 0);
        gn_tensor sides[] = { a, b, at, bt };
        CHECK_RESULT(gn_realize(sides, 4), GN_OK);
        CHECK_RESULT(gn_read(gn_cast(gn_matmul(a, b), GN_F64), wanted, bytes), GN_OK);
        for (int how = 1; how < 4; how++) {
            gn_tensor y = gn_matmul(how & 1 ? gn_transpose(at, 1, 2) : a, how & 2 ? gn_transpose(bt, 1, 2) : b);
            CHECK_RESULT(gn_read(gn_cast(y, GN_F64), got, bytes), GN_OK);
            if (memcmp(wanted, got, bytes) != 0) {
                test_fail(__FILE__, __LINE__, "%s: transposed sides (%d) of (%d,%d,%d) by %d change bits",
                          gn_dtype_name(d), how, (int)batch, (int)m, (int)k, (int)n);
            }
        }
        for (int64_t i = 0; i < batch; i += batch - 1) {
            gn_tensor x = gn_reshape(gn_slice(a, 0, i, i + 1, 1), GN_SHAPE(m, k)),
                      w = gn_reshape(gn_slice(b, 0, i, i + 1, 1), GN_SHAPE(k, n));
            CHECK_RESULT(gn_read(gn_cast(gn_matmul(x, w), GN_F64), got, bytes / (size_t)batch), GN_OK);
            if (memcmp(wanted + i * m * n, got, bytes / (size_t)batch) != 0) {
                test_fail(__FILE__, __LINE__, "%s: (%d,%d) by %d alone has other bits than in a batch",
                          gn_dtype_name(d), (int)m, (int)k, (int)n);
            }
        }
        gn_step(g);
    }
    gn_close(g);
}

/* Sums and terms above and below the normal range, which instructions for pairs of bf16 take for 0. */
static double scale_of_left = 1;
static gn_tensor product_of_small(gn_ctx *g, gn_dtype d) {
    return gn_matmul(gn_mul_c(input(g, d, GN_SHAPE(70, 701), 0), scale_of_left),
                     gn_mul_c(input(g, d, GN_SHAPE(701, 90), 9), 1e-19));
}

static void check_small_numbers(void) {
    static const double scales[] = { 1, 1e-12, 1e-17, 1e-19, 1e-21 };
    const path_case c = { "", false, product_of_small };
    for (int i = 0; i < TEST_COUNT(scales); i++) {
        scale_of_left = scales[i];
        size_t n = run_case(&c, GN_BF16, 2, "avx512", wanted), m = run_case(&c, GN_BF16, 2, "avx2", got);
        REQUIRE(n > 0 && n == m);
        if (memcmp(wanted, got, n * sizeof *got) != 0)
            test_fail(__FILE__, __LINE__, "products of bf16 times %g differ from those of wider paths", scales[i]);
    }
}

/* ---- reductions against plain loops: every dtype, along rows, down columns and both, with ties and NaN ---- */

typedef gn_tensor (*reduce_fn)(const char *file, int line, gn_tensor a, gn_axes axes, bool keep);
enum { SUM, PROD, MAX, MIN, ARGMAX, ARGMIN, REDUCTIONS };
static const reduce_fn reductions[REDUCTIONS] = { gn_sum_at, gn_prod_at,   gn_max_at,
                                                  gn_min_at, gn_argmax_at, gn_argmin_at };
static double wide_in[1 << 17], real_want[1 << 17], real_got[1 << 17];
static int64_t int_in[1 << 17], int_want[1 << 17], int_got[1 << 17];

/* Few values, so that there are equal ones; of floats some are NaN, of integers some are the dtype's limits. */
static void draw_numbers(gn_dtype d, int n) {
    static const double low[GN_DTYPE__COUNT] = {
        [GN_I8] = -128, [GN_I16] = -32768, [GN_I32] = -2147483648.0, [GN_I64] = -1099511627776.0
    };
    static const double high[GN_DTYPE__COUNT] = {
        [GN_BOOL] = 1,    [GN_U8] = 255,         [GN_U16] = 65535,           [GN_U32] = 4294967295.0,   [GN_I8] = 127,
        [GN_I16] = 32767, [GN_I32] = 2147483647, [GN_I64] = 1099511627776.0, [GN_U64] = 1099511627776.0
    };
    for (int i = 0; i < n; i++) {
        int64_t pick = test_random_int(0, 999);
        double small = (double)test_random_int(0, 40);
        wide_in[i] = high[d] == 0 ? (pick == 0 ? (double)NAN : small - 20)
                     : pick == 0  ? low[d]
                     : pick < 3   ? high[d]
                                  : fmin(small, high[d]) + (low[d] < 0 ? -20 : 0);
        int_in[i] = isnan(wide_in[i]) ? 0 : (int64_t)wide_in[i];
    }
}

static bool is_better(int op, bool real, double x, double best, int64_t xi, int64_t besti) {
    bool least = op == MIN || op == ARGMIN;
    if (!real) return least ? xi < besti : xi > besti;
    return !isnan(best) && (isnan(x) || (least ? x < best : x > best));
}

static void reduce_plainly(int op, bool real, const int64_t dims[3], int axes) {
    static int64_t done[1 << 17], best_int[1 << 17];
    static double best[1 << 17];
    int64_t n_out = 1;
    memset(done, 0, sizeof done);
    for (int i = 0; i < 3; i++) n_out *= (axes >> i) & 1 ? 1 : dims[i];
    for (int64_t i = 0; i < n_out; i++) {
        int_want[i] = op == PROD;
        real_want[i] = op == PROD;
    }
    for (int64_t i = 0, at[3]; i < dims[0] * dims[1] * dims[2]; i++) {
        int64_t out = 0;
        at[0] = i / dims[2] / dims[1], at[1] = i / dims[2] % dims[1], at[2] = i % dims[2];
        for (int k = 0; k < 3; k++) out = (axes >> k) & 1 ? out : out * dims[k] + at[k];
        if (op == SUM)
            real_want[out] += wide_in[i], int_want[out] = (int64_t)((uint64_t)int_want[out] + (uint64_t)int_in[i]);
        else if (op == PROD)
            real_want[out] *= wide_in[i], int_want[out] = (int64_t)((uint64_t)int_want[out] * (uint64_t)int_in[i]);
        else if (op <= MIN &&
                 (done[out] == 0 || is_better(op, real, wide_in[i], real_want[out], int_in[i], int_want[out])))
            real_want[out] = wide_in[i], int_want[out] = int_in[i];
        else if (op > MIN) {
            if (done[out] == 0 || is_better(op, real, wide_in[i], best[out], int_in[i], best_int[out]))
                best[out] = wide_in[i], best_int[out] = int_in[i], int_want[out] = done[out];
        }
        done[out]++;
    }
}

static void check_reduction(gn_ctx *g, gn_dtype d, const int64_t dims[3], int op, int bits) {
    bool real = d == GN_F64 || d == GN_F32 || d == GN_F16 || d == GN_BF16;
    gn_axes axes = { 0 };
    for (int i = 0; i < 3; i++)
        if ((bits >> i) & 1) axes.axis[axes.n++] = i;
    if (real && op == PROD) return; /* has no vector code */
    gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(dims[0], dims[1], dims[2]), wide_in), d),
              y = reductions[op](__FILE__, __LINE__, x, axes, false);
    bool whole = !real || op > MIN;
    gn_info info;
    y = gn_cast(y, whole ? GN_I64 : GN_F64);
    if (!CHECK_RESULT(gn_describe(y, &info), GN_OK) ||
        !CHECK_RESULT(gn_read(y, whole ? (void *)int_got : real_got, info.bytes), GN_OK))
        return;
    reduce_plainly(op, real, dims, bits);
    for (size_t i = 0; i < info.bytes / 8; i++) {
        bool right = whole ? int_got[i] == int_want[i]
                     : op == SUM && d != GN_F64 && d != GN_F32
                         ? true
                         : real_got[i] == real_want[i] || (isnan(real_got[i]) && isnan(real_want[i]));
        if (!right) {
            test_fail(__FILE__, __LINE__, "%s, op %d, axes %d: result %d is %.17g, not %.17g", gn_dtype_name(d), op,
                      bits, (int)i, whole ? (double)int_got[i] : real_got[i],
                      whole ? (double)int_want[i] : real_want[i]);
            return;
        }
    }
    gn_step(g);
}

static void check_reductions(const char *isa) {
    static const int64_t shapes[][3] = { { 3, 1300, 9 }, { 2, 5, 700 }, { 1, 1, 70001 }, { 40, 11, 8 }, { 5, 3, 2 } };
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    unsetenv("GENIE_ISA");
    for (int d = 1; d < GN_DTYPE__COUNT; d++) {
        for (int s = 0; s < TEST_COUNT(shapes); s++) {
            draw_numbers((gn_dtype)d, (int)(shapes[s][0] * shapes[s][1] * shapes[s][2]));
            for (int op = 0; op < REDUCTIONS; op++)
                for (int bits = 1; bits < 8; bits++) check_reduction(g, (gn_dtype)d, shapes[s], op, bits);
        }
    }
    gn_close(g);
}

/* ---- attention by tiles against plain loops ---- */

/* CAP: 0.75; WINDOW: a third of the keys */
enum { HEADS = 4, HIDDEN_NAN = 1, MASK_BOOL = 2, MASK_ADDED = 4, CAUSAL = 8, WINDOW = 16, CAP = 32, SLOPES = 64 };
enum { SINKS = 128 };
/* length -1: none */
typedef struct attention {
    int t, s, d, e, groups, how, length;
} attention;
typedef struct attention_data {
    double slopes[HEADS], sinks[HEADS];
    double q[1 << 17], k[1 << 16], v[1 << 16], added[1 << 17], want[256];
    uint8_t seen[1 << 17];
} attention_data;
static attention_data at;
static float attention_got[1 << 17];

static bool is_seen(const attention *a, int t, int s) {
    int length = a->length < 0 ? a->s : a->length;
    return s < length && (!(a->how & CAUSAL) || s <= length - a->t + t) &&
           (!(a->how & WINDOW) || s > length - a->t + t - a->s / 3) && (!(a->how & MASK_BOOL) || at.seen[t * a->s + s]);
}

/* Row t of head h; all heads share a mask. */
static void attend_plainly(const attention *a, int h, int t, double *out) {
    double weight[512], top = -INFINITY, sum = 0;
    int g = h / (HEADS / a->groups);
    for (int s = 0; s < a->s; s++) {
        weight[s] = -INFINITY;
        if (!is_seen(a, t, s)) continue;
        double dot = 0;
        for (int d = 0; d < a->d; d++) dot += at.q[(h * a->t + t) * a->d + d] * at.k[(g * a->s + s) * a->d + d];
        dot /= sqrt(a->d);
        if (a->how & CAP) dot = 0.75 * tanh(dot / 0.75);
        if (a->how & SLOPES) dot += at.slopes[h] * (s - (a->length < 0 ? a->s : a->length) + a->t - t);
        weight[s] = dot + (a->how & MASK_ADDED ? at.added[t * a->s + s] : 0);
        top = fmax(top, weight[s]);
    }
    if (a->how & SINKS) top = fmax(top, at.sinks[h]), sum = exp(at.sinks[h] - top);
    for (int s = 0; s < a->s; s++) sum += weight[s] = weight[s] == -INFINITY ? 0 : exp(weight[s] - top);
    for (int e = 0; e < a->e; e++) {
        out[e] = 0;
        for (int s = 0; s < a->s; s++) out[e] += weight[s] == 0 ? 0 : weight[s] / sum * at.v[(g * a->s + s) * a->e + e];
    }
}

static gn_tensor draw_input(gn_ctx *g, gn_dtype d, gn_shape shape, double *x, int64_t room, double scale) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    if (!CHECK(n <= room)) return GN_NONE;
    for (int64_t i = 0; i < n; i++) x[i] = scale * (double)test_random_int(-64, 64) / 64; /* exact in every dtype */
    return gn_cast(gn_data(g, GN_F64, shape, x), d);
}

static void check_attention(gn_ctx *g, const attention *a, gn_dtype d) {
    gn_tensor q = draw_input(g, d, GN_SHAPE(1, HEADS, a->t, a->d), at.q, TEST_COUNT(at.q), 1),
              k = draw_input(g, d, GN_SHAPE(1, a->groups, a->s, a->d), at.k, TEST_COUNT(at.k), 2);
    gn_tensor v = draw_input(g, d, GN_SHAPE(1, a->groups, a->s, a->e), at.v, TEST_COUNT(at.v), 1),
              added = draw_input(g, d, GN_SHAPE(a->t, a->s), at.added, TEST_COUNT(at.added), 2);
    gn_attention_desc desc = { .causal = (a->how & CAUSAL) != 0 };
    gn_tensor slopes = draw_input(g, GN_F32, GN_SHAPE(HEADS), at.slopes, TEST_COUNT(at.slopes), 0.125),
              sinks = draw_input(g, d, GN_SHAPE(HEADS), at.sinks, TEST_COUNT(at.sinks), 3);
    if (a->how & WINDOW) desc.window = a->s / 3;
    if (a->how & CAP) desc.soft_cap = 0.75;
    if (a->how & SLOPES) desc.slopes = slopes;
    if (a->how & SINKS) desc.sinks = sinks;
    /* some rows see nothing */
    for (int i = 0; i < a->t * a->s; i++) at.seen[i] = test_random_int(0, 2) > 0 && i / a->s % 17 != 3;
    for (int i = 0; i < a->t; i++)
        if (a->how & HIDDEN_NAN) at.seen[i * a->s + a->s / 2] = 0;
    if (a->how & HIDDEN_NAN) /* one value that no query sees, or only the last ones */
        for (int h = 0; h < a->groups; h++) at.v[(h * a->s + (a->how & CAUSAL ? a->s - 1 : a->s / 2)) * a->e] = NAN;
    desc.mask = a->how & MASK_BOOL    ? gn_data(g, GN_BOOL, GN_SHAPE(a->t, a->s), at.seen)
                : a->how & MASK_ADDED ? added
                                      : GN_NONE;
    desc.length = a->length < 0 ? GN_NONE : gn_scalar(g, GN_I32, a->length);
    if (!CHECK_RESULT(gn_read(gn_cast(gn_attention(q, k, v, &desc), GN_F32), attention_got,
                              (size_t)(HEADS * a->t * a->e) * sizeof *attention_got),
                      GN_OK))
        return;
    double bound = d == GN_F32 ? 4e-6 : d == GN_F16 ? 1e-3 : 8e-3;
    for (int i = 0; i < HEADS * a->t; i += 1 + i % 3) {
        attend_plainly(a, i / a->t, i % a->t, at.want);
        for (int e = 0; e < a->e; e++) {
            double x = (double)attention_got[i * a->e + e];
            if (!(fabs(x - at.want[e]) <= bound) && !(isnan(x) && isnan(at.want[e]))) {
                test_fail(__FILE__, __LINE__, "%s, %d queries, %d keys, how %d: row %d, element %d is %.9g, not %.9g",
                          gn_dtype_name(d), a->t, a->s, a->how, i, e, x, at.want[e]);
                return;
            }
        }
    }
    gn_step(g);
}

static void check_attentions(const char *isa) {
    static const attention forms[] = {
        /* the first see nothing */
        { 16, 16, 8, 8, 4, 0, -1 },
        { 170, 300, 20, 24, 2, 0, -1 },
        { 321, 130, 33, 5, 1, CAUSAL, -1 },
        { 161, 253, 16, 40, 4, CAUSAL, 200 },
        { 40, 140, 7, 9, 2, MASK_BOOL, -1 },
        { 170, 260, 12, 16, 4, MASK_BOOL | CAUSAL, 230 },
        { 65, 127, 64, 64, 2, MASK_ADDED, 100 },
        { 48, 130, 8, 8, 4, MASK_BOOL | HIDDEN_NAN, -1 },
        { 40, 150, 8, 8, 2, CAUSAL | HIDDEN_NAN, -1 },
        { 20, 0, 8, 8, 4, 0, -1 },
        { 17, 90, 130, 150, 1, CAUSAL, -1 },
        { 170, 300, 20, 24, 2, CAUSAL | WINDOW, 280 },
        { 321, 330, 33, 5, 1, CAUSAL | WINDOW | SINKS, -1 },
        { 170, 300, 20, 24, 2, CAP, -1 },
        { 161, 253, 16, 40, 4, CAUSAL | SLOPES, 200 },
        { 65, 127, 64, 64, 2, MASK_BOOL | SINKS, 100 },
        { 170, 260, 12, 16, 4, MASK_BOOL | CAUSAL | WINDOW | CAP | SLOPES | SINKS, 230 },
        { 170, 260, 12, 16, 4, CAUSAL | WINDOW | HIDDEN_NAN, -1 },
        { 5, 90, 13, 15, 1, CAUSAL | WINDOW | CAP | SLOPES | SINKS, 80 },
        { 321, 130, 33, 5, 1, CAUSAL | WINDOW | SINKS, -1 }, /* the first see the sink alone */
    };
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    unsetenv("GENIE_ISA");
    for (int i = 0; i < TEST_COUNT(forms); i++) {
        check_attention(g, &forms[i], GN_F32);
        check_attention(g, &forms[i], GN_F16);
        check_attention(g, &forms[i], GN_BF16);
    }
    gn_close(g);
}

/* ---- convolutions: the order of additions is one, however wide vectors are and whatever is laid out or packed ---- */

typedef struct drawn_conv {
    gn_conv_desc d;
    gn_shape x, w;
    bool bias, residual, turned; /* turned: rows of x are those of all channels */
} drawn_conv;

/* A filter or two for each channel, groups, or all channels; now and then many of few places. */
static drawn_conv draw_conv(void) {
    drawn_conv k = { .bias = test_random_int(0, 1), .residual = test_random_int(0, 3) == 0 };
    int64_t kind = test_random_int(0, 3), c = test_random_int(1, 50), m = test_random_int(1, 50),
            groups = kind == 2 ? test_random_int(2, 4) : 1, most = kind == 3 ? 9 : 40, results;
    if (kind < 2) groups = c, m = test_random_int(1, 2), c = 1;
    if (kind == 3) c = test_random_int(1, 160), m = test_random_int(40, 90);
    k.turned = test_random_int(0, 3) == 0;
    k.d = (gn_conv_desc){ .groups = groups, .clamps = test_random_int(0, 1), .least = -1, .most = INFINITY };
    do {
        k.x = GN_SHAPE(test_random_int(1, 2), groups * c, test_random_int(1, most), test_random_int(1, most));
        k.w = GN_SHAPE(groups * m, c, test_random_int(1, 5), test_random_int(1, 5));
        results = k.x.dims[0] * k.w.dims[0];
        for (int i = 0; i < 2; i++) {
            k.d.stride[i] = test_random_int(1, 3);
            k.d.dilation[i] = test_random_int(1, 2);
            k.d.before[i] = test_random_int(0, 3);
            k.d.after[i] = test_random_int(0, 3);
            int64_t room = k.x.dims[i + 2] + k.d.before[i] + k.d.after[i] - (k.w.dims[i + 2] - 1) * k.d.dilation[i];
            results *= room < 1 ? 0 : (room - 1) / k.d.stride[i] + 1;
        }
    } while (results < 1 || results > 60000 || k.x.dims[0] * groups * c * k.x.dims[2] * k.x.dims[3] > 100000 ||
             k.w.dims[0] * c * k.w.dims[2] * k.w.dims[3] > 100000);
    return k;
}

/* Bytes of its result; 0 after a failed check. */
static size_t conv_bits(const drawn_conv *k, uint32_t threads, const char *isa, void *to) {
    gn_info info = { .result = GN_OK };
    gn_shape x = k->turned ? GN_SHAPE(k->x.dims[0], k->x.dims[2], k->x.dims[1], k->x.dims[3]) : k->x;
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    unsetenv("GENIE_ISA");
    gn_tensor in = gn_add_c(input(g, GN_F32, x, 0), 0), w = input(g, GN_F32, k->w, 11),
              bias = k->bias ? input(g, GN_F32, GN_SHAPE(k->w.dims[0]), 5) : GN_NONE;
    if (k->turned) in = gn_permute(in, GN_AXES(0, 2, 1, 3));
    gn_conv_desc d = k->d;
    bool ok = CHECK_RESULT(gn_describe(gn_conv(in, w, bias, &d), &info), GN_OK) && CHECK(info.bytes <= sizeof got);
    if (ok && k->residual) d.residual = gn_reshape(input(g, GN_F32, GN_SHAPE((int64_t)info.bytes / 4), 3), info.shape);
    ok = ok && CHECK_RESULT(gn_read(gn_conv(in, w, bias, &d), memset(to, 0xff, info.bytes), info.bytes), GN_OK);
    gn_close(g);
    return ok ? info.bytes : 0;
}

static void check_convs(void) {
    for (int i = 0; i < 150; i++) {
        drawn_conv k = draw_conv();
        size_t n = conv_bits(&k, 1, "avx2", wanted);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            size_t m = conv_bits(&k, threads, "avx512", got);
            REQUIRE(n > 0 && m == n);
            if (memcmp(wanted, got, n) != 0) {
                test_fail(__FILE__, __LINE__,
                          "(%d,%d,%d,%d) by %d filters of %dx%d in %d groups, strides %d %d, dilation %d %d, pads %d "
                          "%d%s%s: %u threads and wider vectors have other bits",
                          (int)k.x.dims[0], (int)k.x.dims[1], (int)k.x.dims[2], (int)k.x.dims[3], (int)k.w.dims[0],
                          (int)k.w.dims[2], (int)k.w.dims[3], (int)k.d.groups, (int)k.d.stride[0], (int)k.d.stride[1],
                          (int)k.d.dilation[0], (int)k.d.dilation[1], (int)k.d.before[0], (int)k.d.before[1],
                          k.residual ? ", residual" : "", k.turned ? ", turned" : "", (unsigned)threads);
            }
        }
    }
}

/* ---- bits of NaN and of what stands at the edges: every scalar op of floats, on each instruction path ---- */

enum { EDGES = 121 };

static size_t edges_of(const gn_op_info *op, gn_dtype d, const char *isa, void *out) {
    static const uint32_t edges32[] = { 0x7fc00000, 0xffc00000, 0x7fc12345, 0xffc12345, 0x7f800000, 0xff800000,
                                        0x80000000, 0,          0xbf800000, 0x3f800000, 0xc0000000 };
    static const uint64_t edges64[] = { 0x7ff8000000000000, 0xfff8000000000000, 0x7ff8123450000000, 0xfff8123450000000,
                                        0x7ff0000000000000, 0xfff0000000000000, 0x8000000000000000, 0,
                                        0xbff0000000000000, 0x3ff0000000000000, 0xc000000000000000 };
    uint32_t a32[EDGES], b32[EDGES];
    uint64_t a64[EDGES], b64[EDGES];
    for (int i = 0; i < EDGES; i++) {
        a32[i] = edges32[i % 11], b32[i] = edges32[i / 11];
        a64[i] = edges64[i % 11], b64[i] = edges64[i / 11];
    }
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    unsetenv("GENIE_ISA");
    gn_tensor a = gn_data(g, d, GN_SHAPE(EDGES), d == GN_F64 ? (void *)a64 : a32),
              b = gn_data(g, d, GN_SHAPE(EDGES), d == GN_F64 ? (void *)b64 : b32);
    size_t n = EDGES * (op->compares ? 1u : d == GN_F64 ? 8u : 4u);
    bool ok = CHECK_RESULT(gn_read(gn_apply(g, op->wire, (gn_tensor[]){ a, b, a }, op->arity, NULL, 0), out, n), GN_OK);
    gn_close(g);
    return ok ? n : 0;
}

static void check_edges(void) {
    static const char *const isas[] = { "base", "avx2", "avx512" };
    static uint8_t first[EDGES * 8], other[EDGES * 8];
    gn_op_info op;
    int n_ops = 0;
    for (int i = 0; gn_get_op(i, &op) == GN_OK; i++) {
        bool plain = op.kind == GN_CLASS_SCALAR && strcmp(op.name, "where") != 0 && strcmp(op.name, "cast") != 0 &&
                     strcmp(op.name, "clamp") != 0;
        for (int d = 0; d < 2 && plain; d++) {
            gn_dtype dtype = d ? GN_F64 : GN_F32;
            if (!(op.dtypes >> dtype & 1)) continue;
            size_t n = edges_of(&op, dtype, isas[0], first);
            for (int k = 1; k < TEST_COUNT(isas); k++) {
                size_t m = edges_of(&op, dtype, isas[k], other);
                if (n == 0 || m != n || memcmp(first, other, n) != 0)
                    test_fail(__FILE__, __LINE__, "%s of %s: %s gives other bits than %s", op.name,
                              gn_dtype_name(dtype), isas[k], isas[0]);
            }
        }
        n_ops += plain;
    }
    CHECK(n_ops > 60);
}

/* ---- few rows by a matrix larger than caches, whose threads share rows: bits of a few columns alone ---- */

enum { LARGE = 1200 * 1000, LARGE_DEEP = 1152, LARGE_ROWS = 4, LARGE_SOME = 96 };
/* terms and columns: rows that end within a piece, rows of whole pieces, more columns than are added up at a time */
static const int large_shapes[][2] = { { 1000, 1100 }, { LARGE_DEEP, 1000 }, { 200, 5900 } };

/* Columns [from, from + LARGE_SOME) of the product, of all columns or, if `some`, of these alone. */
static void large_columns(gn_dtype d, const int *shape, bool turned, bool some, int rows, int64_t from,
                          uint32_t threads, float *out) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    int64_t depth = shape[0], n = shape[1];
    static float w[LARGE];
    for (int i = 0; i < depth * n; i++) w[i] = (float)numbers[(i + i / 1000) % (int)TEST_COUNT(numbers)];
    gn_tensor b = gn_cast(gn_data(g, GN_F32, turned ? GN_SHAPE(n, depth) : GN_SHAPE(depth, n), w), d);
    b = turned ? gn_transpose(b, 0, 1) : b;
    gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(rows, depth), numbers), d);
    if (some) b = gn_slice(b, 1, from, from + LARGE_SOME, 1);
    gn_tensor y = gn_matmul(x, b);
    if (!some) y = gn_slice(y, 1, from, from + LARGE_SOME, 1);
    CHECK_RESULT(gn_read(gn_cast(y, GN_F32), out, (size_t)(rows * LARGE_SOME) * sizeof *out), GN_OK);
    gn_close(g);
}

static void check_large(const int *shape) {
    static float want[LARGE_ROWS * LARGE_SOME], made[LARGE_ROWS * LARGE_SOME];
    for (int k = 0; k < 2 * TEST_COUNT(dtypes) * LARGE_ROWS; k++) {
        gn_dtype d = dtypes[k / 2 % TEST_COUNT(dtypes)];
        int rows = 1 + k / 2 / TEST_COUNT(dtypes);
        int64_t from = test_random_int(0, shape[1] - LARGE_SOME);
        large_columns(d, shape, k % 2, true, rows, from, 1, want);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            large_columns(d, shape, k % 2, false, rows, from, threads, made);
            if (memcmp(made, want, (size_t)(rows * LARGE_SOME) * sizeof *made) != 0)
                test_fail(__FILE__, __LINE__,
                          "%s, %d rows of %d%s, %u threads: columns from %lld on have other bits alone",
                          gn_dtype_name(d), rows, shape[0], k % 2 ? ", turned" : "", threads, (long long)from);
        }
    }
}

enum { LONG = 1100000, LONG_ROWS = 2 };
/* A few products of long vectors, whose pieces threads share. */
static void check_long(gn_dtype d, int rows, int n, int64_t depth) {
    static double x[LONG_ROWS * LONG];
    double want[16], made[16];
    for (int64_t i = 0; i < TEST_COUNT(x); i++) x[i] = numbers[(i * 7 + i / 1000) % TEST_COUNT(numbers)];
    for (uint32_t threads = 1; threads <= 4; threads++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
        gn_tensor a = gn_cast(gn_data(g, GN_F64, GN_SHAPE(rows, depth), x), d),
                  b = gn_cast(gn_data(g, GN_F64, GN_SHAPE(n, depth), x + 77), d);
        gn_tensor y = gn_cast(gn_matmul(a, gn_transpose(b, 0, 1)), GN_F64);
        CHECK_RESULT(gn_read(y, threads > 1 ? made : want, (size_t)(rows * n) * sizeof *made), GN_OK);
        gn_close(g);
        if (threads > 1 && memcmp(made, want, (size_t)(rows * n) * sizeof *made) != 0)
            test_fail(__FILE__, __LINE__, "%s, %d by %d products of %lld: %u threads have other bits", gn_dtype_name(d),
                      rows, n, (long long)depth, threads);
    }
}

/* ---- what is made within its only reader: the same bits as realised ---- */

/* A tensor of at least 4 x 6 and what is made of it `depth` times: parts put side by side, padded, or seen another
   way. */
static gn_tensor joined(gn_tensor x, int depth, bool realised) {
    gn_tensor y = x;
    int64_t axis = test_random_int(0, 1), cut;
    switch (depth ? test_random_int(0, 4) : 5) {
    case 0:
    case 1:
        cut = test_random_int(1, 3);
        y = gn_concat((gn_tensor[]){ gn_slice(x, (int)axis, 0, cut, 1), x,
                                     gn_flip(gn_slice(x, (int)axis, cut, 4, 1), GN_AXES((int)axis)) },
                      3, (int)axis);
        break;
    case 2: y = gn_concat((gn_tensor[]){ x, x, gn_flip(x, GN_AXES((int)axis)) }, 3, (int)axis); break;
    case 3:
        y = gn_concat((gn_tensor[]){ gn_add_c(x, 1), gn_transpose(gn_transpose(x, 0, 1), 0, 1) }, 2, (int)axis);
        break;
    case 4:
        y = gn_pad(x, GN_SHAPE(1, 2), GN_SHAPE(2, 1), test_random_int(0, 1) ? GN_PAD_EDGE : GN_PAD_REFLECT, 0);
        break;
    default: break;
    }
    if (realised && depth) CHECK_RESULT(gn_realize(&y, 1), GN_OK);
    return depth ? joined(y, depth - 1, realised) : y;
}

static void check_joined(void) {
    static double want[1 << 16], made[1 << 16];
    static const gn_dtype kinds[] = { GN_F32, GN_F64, GN_F16, GN_U8 };
    for (int k = 0; k < 400; k++) {
        size_t bytes[2] = { 0, 0 };
        uint64_t stream = test__.stream;
        for (int realised = 0; realised < 2; realised++) {
            gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
            gn_info info;
            test__.stream = stream;
            gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(4, 6), numbers + k), kinds[k % TEST_COUNT(kinds)]);
            gn_tensor y = gn_cast(joined(x, 1 + k % 4, realised), GN_F64);
            if (CHECK_RESULT(gn_describe(y, &info), GN_OK))
                bytes[realised] = (size_t)(info.shape.dims[0] * info.shape.dims[1]) * sizeof *want;
            CHECK(bytes[realised] <= sizeof want);
            CHECK_RESULT(gn_read(y, realised ? made : want, bytes[realised]), GN_OK);
            gn_close(g);
        }
        CHECK(bytes[0] == bytes[1] && memcmp(want, made, bytes[0]) == 0);
    }
}

/* Sums of squares, and extremes down columns of bytes, of shapes that end within vectors, pieces and blocks. */
static void check_made_within(void) {
    for (int k = 0; k < 200; k++) {
        int64_t rows = test_random_int(1, k % 2 ? 700 : 9), cols = test_random_int(1, 100000 / rows);
        gn_axes axes = k % 3 == 0 ? GN_AXES(1) : k % 3 == 1 ? GN_AXES(0) : GN_ALL_AXES;
        gn_dtype d = k & 4 ? GN_F64 : GN_F32, b = k & 4 ? GN_U8 : GN_I8;
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)(k % 2) });
        gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(rows, cols), numbers), d), square = gn_square(x),
                  bytes = gn_cast(gn_mul_c(gn_data(g, GN_F64, GN_SHAPE(rows, cols), numbers), 60), b), two[4];
        CHECK_RESULT(gn_realize((gn_tensor[]){ x, bytes }, 2), GN_OK);
        two[0] = k & 8 ? gn_sum(gn_mul(x, x), axes, false) : gn_mean(gn_square(x), axes, false);
        two[2] = k & 8 ? gn_max(bytes, axes, false) : gn_min(bytes, axes, false);
        CHECK_RESULT(gn_realize((gn_tensor[]){ two[0], two[2], square }, 3), GN_OK);
        two[1] = k & 8 ? gn_sum(square, axes, false) : gn_mean(square, axes, false);
        bytes = gn_cast(bytes, GN_I32);
        two[3] = k & 8 ? gn_max(bytes, axes, false) : gn_min(bytes, axes, false);
        for (int i = 0; i < 4; i += 2) {
            int32_t same = 0;
            gn_tensor equal = gn_eq(gn_cast(two[i], GN_F64), gn_cast(two[i + 1], GN_F64));
            CHECK_RESULT(gn_read(gn_min(gn_cast(equal, GN_I32), GN_ALL_AXES, false), &same, sizeof same), GN_OK);
            if (!same) test_fail(__FILE__, __LINE__, "case %d, %d x %d: other bits", k, (int)rows, (int)cols);
        }
        gn_close(g);
    }
}

/* ---- runs of short ops, of which loops keep the values in registers ---- */

enum { LINKS = 40, MOST_CHAINED = 4096 + 37 };

typedef struct chain_link {
    int op, from, with; /* value 0 and 1: the inputs, 2: a number, 3 + i: what link i gave */
} chain_link;

static gn_tensor link_of(const chain_link *l, const gn_tensor *values) {
    gn_tensor a = values[l->from], b = values[l->with];
    switch (l->op) {
    case 0: return gn_add(a, b);
    case 1: return gn_sub(a, b);
    case 2: return gn_mul(a, b);
    case 3: return gn_minimum(a, b);
    case 4: return gn_maximum(a, b);
    case 5: return gn_relu(a);
    case 6: return gn_square(a);
    case 7: return gn_neg(a);
    default: return gn_sigmoid(a);
    }
}

/* Mostly the value before it, on either side; now and then two of any. */
static void choose_links(chain_link *links, int n) {
    for (int i = 0; i < n; i++) {
        int last = i ? 2 + i : (int)test_random_int(0, 1), other = (int)test_random_int(0, 2 + i);
        bool turned = test_random_int(0, 1) == 1, any = test_random_int(0, 7) == 0;
        links[i].op = (int)test_random_int(0, test_random_int(0, 3) ? 6 : 8);
        links[i].from = any ? (int)test_random_int(0, 2 + i) : turned ? other : last;
        links[i].with = turned && !any ? last : other;
    }
}

/* The last value, all ops in one read; or, if `alone`, each op in a step of its own. */
static bool run_links(gn_dtype d, const chain_link *links, int n, int64_t elements, const void *a, const void *b,
                      const char *isa, bool alone, void *out) {
    gn_tensor values[3 + LINKS];
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    unsetenv("GENIE_ISA");
    values[0] = gn_data(g, d, GN_SHAPE(elements), a);
    values[1] = gn_data(g, d, GN_SHAPE(elements), b);
    values[2] = gn_full(g, d, GN_SHAPE(elements), -0.75);
    for (int i = 0; i < n; i++) {
        values[3 + i] = link_of(&links[i], values);
        if (alone) CHECK_RESULT(gn_read(values[3 + i], out, (size_t)elements * gn_dtype_bytes(d)), GN_OK);
    }
    bool ok = CHECK_RESULT(gn_read(values[2 + n], out, (size_t)elements * gn_dtype_bytes(d)), GN_OK);
    gn_close(g);
    return ok;
}

/* Small numbers, with NaN, infinities and zeros among them; as bits of f32 or f64. */
static void fill_links(gn_dtype d, void *to, int64_t n) {
    static const uint32_t edges[] = { 0x7fc00000, 0xffc12345, 0x7f800000, 0xff800000, 0x80000000, 0 };
    static const uint64_t wide_edges[] = { 0x7ff8000000000000, 0xfff8123456789abc, 0x7ff0000000000000,
                                           0xfff0000000000000, 0x8000000000000000, 0 };
    for (int64_t i = 0; i < n; i++) {
        double x = test_random_real(-2, 2);
        int64_t edge = test_random_int(0, 15) ? -1 : test_random_int(0, TEST_COUNT(edges) - 1);
        if (d == GN_F32) ((float *)to)[i] = (float)x;
        else ((double *)to)[i] = x;
        if (edge >= 0 && d == GN_F32) memcpy((uint32_t *)to + i, &edges[edge], sizeof *edges);
        else if (edge >= 0) memcpy((uint64_t *)to + i, &wide_edges[edge], sizeof *wide_edges);
    }
}

static void check_links(gn_dtype d) {
    static const int64_t lengths[] = { 1, 31, 32, 33, 128, 161, 1024, MOST_CHAINED };
    static uint64_t a[MOST_CHAINED], b[MOST_CHAINED], want[MOST_CHAINED], made[MOST_CHAINED];
    static const char *const isas[] = { "avx512", "avx2", "base" };
    fill_links(d, a, MOST_CHAINED);
    fill_links(d, b, MOST_CHAINED);
    for (int k = 0; k < 60; k++) {
        chain_link links[LINKS];
        int n = (int)test_random_int(1, k % 3 ? 9 : LINKS);
        size_t bytes = (size_t)lengths[k % TEST_COUNT(lengths)] * gn_dtype_bytes(d);
        choose_links(links, n);
        run_links(d, links, n, lengths[k % TEST_COUNT(lengths)], a, b, "base", true, want);
        for (int i = 0; i < TEST_COUNT(isas); i++) {
            memset(made, 0xa5, sizeof made);
            run_links(d, links, n, lengths[k % TEST_COUNT(lengths)], a, b, isas[i], false, made);
            if (memcmp(made, want, bytes) != 0)
                test_fail(__FILE__, __LINE__, "%d ops of %zu bytes of %s on %s have other bits than one by one", n,
                          bytes, gn_dtype_name(d), isas[i]);
        }
    }
}

/* A result that is written past the caches, to the end of a tile that is not whole. */
static void check_large_links(gn_dtype d) {
    const int64_t n = (16 << 20) / (int64_t)gn_dtype_bytes(d) + 37;
    static const chain_link links[] = { { 2, 0, 2 }, { 0, 3, 1 }, { 4, 4, 2 }, { 1, 1, 5 }, { 5, 6, 0 } };
    static const char *const isas[] = { "avx512", "avx2" };
    size_t bytes = (size_t)n * gn_dtype_bytes(d);
    char *all = (char *)calloc(4, bytes), *a = all, *b = a + bytes, *want = b + bytes, *made = want + bytes;
    if (!CHECK(all != NULL)) return;
    fill_links(d, a, n);
    fill_links(d, b, n);
    run_links(d, links, TEST_COUNT(links), n, a, b, "base", true, want);
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        memset(made, 0xa5, bytes);
        run_links(d, links, TEST_COUNT(links), n, a, b, isas[i], false, made);
        CHECK(memcmp(made, want, bytes) == 0);
    }
    free(all);
}

/* ---- choices by comparing a number of each row with those of the columns: rows in two parts ---- */

/* Ascending numbers, or now and then others, which no part can be told from. */
static void fill_columns(double *to, int64_t n, bool ascends) {
    double x = test_random_real(-3, 3);
    for (int64_t i = 0; i < n; i++, x += (double)test_random_int(0, 2)) to[i] = x;
    if (!ascends) to[test_random_int(0, n - 1)] = test_random_int(0, 1) ? NAN : -5;
}

/* The choice with its condition within, or realised first, as f64. */
static bool parted(gn_dtype in, gn_dtype d, gn_shape shape, const double *columns, const double *edges, int form,
                   bool realised, double *out) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)(form % 2) });
    int last = shape.rank - 1;
    gn_shape tall = shape;
    tall.dims[last] = 1;
    gn_tensor c = gn_cast(gn_data(g, GN_F64, GN_SHAPE(shape.dims[last]), columns), in),
              e = gn_cast(gn_data(g, GN_F64, tall, edges), in), x = gn_cast(gn_data(g, GN_F64, shape, numbers), d),
              sides[] = { x, gn_neg(x), gn_like(x, 0), gn_cast(gn_data(g, GN_F64, GN_SHAPE(1), numbers + 7), d) };
    gn_tensor left = form & 2 ? e : c, right = form & 2 ? c : e;
    CHECK_RESULT(gn_realize((gn_tensor[]){ c, e, x, sides[1], sides[3] }, 5), GN_OK);
    gn_tensor chosen = form & 128 ? form & 4 ? gn_gt(left, right) : gn_ge(left, right)
                       : form & 4 ? gn_lt(left, right)
                                  : gn_le(left, right);
    if (realised) CHECK_RESULT(gn_realize(&chosen, 1), GN_OK);
    gn_tensor y = gn_where(chosen, sides[form >> 3 & 3], sides[form >> 5 & 3]);
    gn_info info;
    bool ok = CHECK_RESULT(gn_realize(&y, 1), GN_OK) && CHECK_RESULT(gn_describe(y, &info), GN_OK) &&
              CHECK_RESULT(gn_read(gn_cast(y, GN_F64), out, info.bytes / gn_dtype_bytes(d) * sizeof *out), GN_OK);
    gn_close(g);
    return ok;
}

static void check_parted(void) {
    static double columns[400], edges[3 * 60], want[3 * 60 * 400], made[3 * 60 * 400];
    static const gn_dtype in[] = { GN_F32, GN_F64, GN_I32, GN_I64 },
                          kinds[] = { GN_F32, GN_F64, GN_F16, GN_I8, GN_I64, GN_BF16, GN_I16 };
    for (int k = 0; k < 400; k++) {
        gn_shape shape = GN_SHAPE(test_random_int(1, 3), test_random_int(1, 60), test_random_int(1, k % 2 ? 400 : 40));
        int64_t rows = shape.dims[0] * shape.dims[1], n = rows * shape.dims[2];
        if (shape.dims[0] == 1) shape = GN_SHAPE(shape.dims[1], shape.dims[2]);
        fill_columns(columns, shape.dims[shape.rank - 1], k % 8 != 7);
        for (int64_t r = 0; r < rows; r++) {
            edges[r] = columns[test_random_int(0, shape.dims[shape.rank - 1] - 1)] + (double)test_random_int(-1, 1);
            if (test_random_int(0, 9) == 0) edges[r] = test_random_int(0, 1) ? NAN : INFINITY;
        }
        gn_dtype a = in[k % TEST_COUNT(in)], d = kinds[k % TEST_COUNT(kinds)];
        int form = (int)test_random_int(0, 255);
        memset(made, 0xa5, sizeof made);
        if (!parted(a, d, shape, columns, edges, form, true, want) ||
            !parted(a, d, shape, columns, edges, form, false, made))
            return;
        if (memcmp(made, want, (size_t)n * sizeof *made) != 0)
            test_fail(__FILE__, __LINE__, "%s by %s, form %d, %lld rows of %lld: not what the realised condition gives",
                      gn_dtype_name(d), gn_dtype_name(a), form, (long long)rows, (long long)shape.dims[shape.rank - 1]);
    }
}

/* ---- places of what is not 0, which threads put side by side ---- */

enum { PLACES = 3 * 41 * 1000 };

/* Of a (3,41,1000) tensor, or every third of its columns, with room for `spare` more than there are. */
static void check_places(gn_dtype d, int density, bool sliced, int64_t spare, uint32_t threads) {
    static double x[PLACES];
    static int64_t want[(PLACES + 8) * 3], made[(PLACES + 8) * 3];
    int64_t found = 0, step = sliced ? 3 : 1;
    for (int64_t i = 0; i < PLACES; i++) {
        x[i] = test_random_int(1, 8) <= density ? (double)test_random_int(1, 9) : 0;
        if (x[i] == 0 || i % 1000 % step) continue;
        want[3 * found] = i / 41000, want[3 * found + 1] = i / 1000 % 41, want[3 * found++ + 2] = i % 1000 / step;
    }
    int64_t bound = found + spare < 0 ? 0 : found + spare;
    for (int64_t i = 3 * found; i < 3 * bound; i++) want[i] = -1;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    gn_tensor t = gn_cast(gn_data(g, GN_F64, GN_SHAPE(3, 41, 1000), x), d);
    CHECK_RESULT(gn_realize(&t, 1), GN_OK);
    gn_tensor places = gn_nonzero(sliced ? gn_slice(t, 2, 0, GN_END, 3) : t, bound);
    bool fits = bound >= found;
    CHECK_RESULT(gn_read(places, made, (size_t)bound * 3 * sizeof *made), fits ? GN_OK : GN_INDEX_OUT_OF_RANGE);
    if (fits && memcmp(made, want, (size_t)bound * 3 * sizeof *made) != 0)
        test_fail(__FILE__, __LINE__, "%s, %d of 8%s, %u threads: other places", gn_dtype_name(d), density,
                  sliced ? ", sliced" : "", threads);
    gn_close(g);
}

/* ---- operands that are broadcast along rows ---- */

enum { RUN_OPS = 7 };
static gn_tensor with_column(int op, gn_tensor x, gn_tensor c, gn_tensor d) {
    switch (op) {
    case 0: return gn_add(x, c);
    case 1: return gn_sub(x, c);
    case 2: return gn_sub(c, x);
    case 3: return gn_mul(c, x);
    case 4: return gn_maximum(c, x);
    case 5: return gn_mul(gn_sub(x, c), d);
    default: return gn_div(x, c);
    }
}

/* rows by run elements x, and columns c and d: as they are, and written out to the shape of x. */
static void check_runs_of(const char *isa, gn_dtype dtype, int64_t rows, int64_t run) {
    static const char *const names[RUN_OPS] = { "x + c", "x - c", "c - x", "c x", "max(c, x)", "(x - c) d", "x / c" };
    bool real = dtype == GN_F32 || dtype == GN_F64 || dtype == GN_F16 || dtype == GN_BF16;
    size_t bytes = gn_dtype_bytes(dtype), all = (size_t)(rows * run) * bytes, column = (size_t)rows * bytes;
    char *x = (char *)aligned_alloc(64, (5 * all + 2 * column + 63) / 64 * 64), *c = x + 5 * all, *d = c + column,
         *wide[2] = { x + all, x + 2 * all }, *made = x + 3 * all, *plain = x + 4 * all;
    if (!CHECK(x != NULL)) return;
    for (size_t i = 0; i < all + 2 * column; i += 8) {
        size_t n = all + 2 * column - i < 8 ? all + 2 * column - i : 8;
        uint64_t word = test_random();
        for (size_t k = 0; k < n; k++) (i + k < all ? x + i + k : c + (i + k - all))[0] = (char)(word >> 8 * k);
    }
    for (int64_t i = 0; i < 2 * rows; i++) {
        size_t row = (size_t)run * bytes;
        char *to = wide[i % 2] + (size_t)(i / 2) * row;
        memcpy(to, (i % 2 ? d : c) + (size_t)(i / 2) * bytes, bytes);
        for (size_t have = bytes; have < row; have *= 2) memcpy(to + have, to, have < row - have ? have : row - have);
    }
    setenv("GENIE_ISA", isa, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    unsetenv("GENIE_ISA");
    for (int op = 0; op < RUN_OPS - !real; op++) {
        gn_shape shape = GN_SHAPE(rows, run), tall = GN_SHAPE(rows, 1);
        gn_tensor t = gn_data(g, dtype, shape, x);
        gn_tensor y = with_column(op, t, gn_data(g, dtype, tall, c), gn_data(g, dtype, tall, d)),
                  z = with_column(op, t, gn_data(g, dtype, shape, wide[0]), gn_data(g, dtype, shape, wide[1]));
        memset(made, 0xa5, all);
        CHECK_RESULT(gn_read(y, made, all), GN_OK);
        CHECK_RESULT(gn_read(z, plain, all), GN_OK);
        if (memcmp(made, plain, all) != 0)
            test_fail(__FILE__, __LINE__, "%s of %s on %s: rows of %lld have other bits than written out", names[op],
                      gn_dtype_name(dtype), isa, (long long)run);
        gn_step(g);
    }
    gn_close(g);
    free(x);
}

/* Random bits, NaNs among them. */
static void check_runs(void) {
    static const gn_dtype kinds[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_I32, GN_I8, GN_U8, GN_I64 };
    static const char *const isas[] = { "avx512", "avx2", "base" };
    static const int64_t runs[] = { 5, 255, 256, 288, 300, 320, 512, 896, 1088, 4096 };
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        for (int d = 0; d < TEST_COUNT(kinds); d++)
            for (int r = 0; r < TEST_COUNT(runs); r++) check_runs_of(isas[i], kinds[d], 37, runs[r]);
        check_runs_of(isas[i], GN_I8, 4200, 4128); /* written past the caches */
    }
}

static void columns_of_a_large_matrix_have_equal_bits_alone_and_among_others(void) {
    fill_numbers();
    for (int i = 0; i < TEST_COUNT(large_shapes); i++) check_large(large_shapes[i]);
    for (int i = 0; i < TEST_COUNT(dtypes); i++)
        for (int n = 1; n <= 3; n++)
            check_long(dtypes[i], (int)test_random_int(1, LONG_ROWS), n, (LONG - 1000) / n - test_random_int(0, 300));
}

static void concats_within_concats_have_the_bits_of_realised_ones(void) {
    fill_numbers();
    check_joined();
}

static void sums_of_squares_and_extremes_of_bytes_have_the_bits_of_realised_ones(void) {
    fill_numbers();
    check_made_within();
}

static void short_ops_in_a_row_have_the_bits_of_each_alone_on_every_instruction_path(void) {
    static const gn_dtype kinds[] = { GN_F32, GN_F64 };
    for (int i = 0; i < TEST_COUNT(kinds); i++) {
        check_links(kinds[i]);
        check_large_links(kinds[i]);
    }
}

static void places_of_what_is_not_0_are_those_of_a_plain_loop(void) {
    static const gn_dtype kinds[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_BOOL, GN_I8, GN_I16, GN_I32, GN_I64, GN_U64 };
    static const int densities[] = { 0, 1, 5, 8 };
    for (int k = 0; k < TEST_COUNT(kinds) * TEST_COUNT(densities); k++)
        for (uint32_t threads = 1; threads <= 3; threads++)
            check_places(kinds[k / TEST_COUNT(densities)], densities[k % TEST_COUNT(densities)],
                         test_random_int(0, 1) == 1, test_random_int(-1, 8), threads);
}

static void choices_by_a_number_of_each_row_are_those_of_the_realised_condition(void) {
    fill_numbers();
    check_parted();
}

static void operands_broadcast_along_rows_have_the_bits_of_written_out_ones(void) { check_runs(); }

static void convolutions_have_the_bits_of_narrower_vectors_and_of_one_thread(void) { check_convs(); }

int main(int argc, char **argv) {
    static const test_entry alone[] = {
        TEST_ENTRY(operands_broadcast_along_rows_have_the_bits_of_written_out_ones),
        TEST_ENTRY(columns_of_a_large_matrix_have_equal_bits_alone_and_among_others),
        TEST_ENTRY(concats_within_concats_have_the_bits_of_realised_ones),
        TEST_ENTRY(sums_of_squares_and_extremes_of_bytes_have_the_bits_of_realised_ones),
        TEST_ENTRY(convolutions_have_the_bits_of_narrower_vectors_and_of_one_thread),
        TEST_ENTRY(places_of_what_is_not_0_are_those_of_a_plain_loop),
        TEST_ENTRY(choices_by_a_number_of_each_row_are_those_of_the_realised_condition),
        TEST_ENTRY(short_ops_in_a_row_have_the_bits_of_each_alone_on_every_instruction_path)
    };
    static const char *const isas[] = { "avx512", "avx2", "base" };
    test_begin(argc, argv);
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        char name[160];
        snprintf(name, sizeof name, "reductions_of_every_dtype_match_plain_loops_on_%s", isas[i]);
        if (test_open(name)) {
            check_reductions(isas[i]);
            test_close();
        }
        snprintf(name, sizeof name, "attention_by_tiles_matches_plain_loops_on_%s", isas[i]);
        if (test_open(name)) {
            check_attentions(isas[i]);
            test_close();
        }
    }
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        char name[160];
        snprintf(name, sizeof name, "transposed_and_batched_products_have_the_bits_of_dense_ones_on_%s", isas[i]);
        if (test_open(name)) {
            check_products(isas[i]);
            test_close();
        }
    }
    if (test_open("products_of_small_bf16_have_equal_bits_with_and_without_pairs")) {
        fill_numbers();
        check_small_numbers();
        test_close();
    }
    if (test_open("nan_and_edges_have_equal_bits_on_every_instruction_path")) {
        check_edges();
        test_close();
    }
    test_all(alone, TEST_COUNT(alone));
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        char name[160];
        snprintf(name, sizeof name, "threads_change_no_bit_of_%s", cases[i].name);
        if (test_open(name)) {
            fill_numbers();
            check_threads(&cases[i]);
            test_close();
        }
        snprintf(name, sizeof name, "instruction_paths_agree_on_%s", cases[i].name);
        if (test_open(name)) {
            fill_numbers();
            check_isas(&cases[i]);
            test_close();
        }
    }
    return test_end();
}
