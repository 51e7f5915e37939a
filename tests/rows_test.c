/* Reductions, softmaxes and norms with what stands before, between and behind them: on the device of
 * $GENIE_TEST_DEVICES (cuda:0) one kernel each, beside the CPU executor. Known patterns with the number of kernels that
 * they take, then random programs over rows (GENIE_TEST_PROGRAMS=N of them). Where the device is absent they are
 * skipped, and their kernels compiled for each arch.
 *
 * Tier: quick kernels address */
#define GENIE_EXT
#include "../genie.h"

#include "numbers.h"

static gn_ctx *gpu, *cpu;
static const char *device_name;
static bool compiles_only;

GN_API size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text,
                                        size_t cap);

enum { MOST_OUTS = 4 };
typedef struct outs {
    gn_tensor t[MOST_OUTS];
    int n;
} outs;

/* What roundings do to each output: four times what they do on the CPU, relative to the same in f64. */
typedef struct roundings {
    double of[MOST_OUTS];
} roundings;
static roundings roundings_of(outs f32, outs f64) {
    roundings all = { 0 };
    for (int k = 0; k < f32.n; k++) {
        gn_info info;
        if (!CHECK_RESULT(gn_describe(f32.t[k], &info), GN_OK)) break;
        int64_t n = 1;
        for (int i = 0; i < info.shape.rank; i++) n *= info.shape.dims[i];
        float *x = malloc((size_t)n * sizeof *x);
        double *y = malloc((size_t)n * sizeof *y);
        CHECK_RESULT(gn_read(f32.t[k], x, (size_t)n * sizeof *x), GN_OK);
        CHECK_RESULT(gn_read(f64.t[k], y, (size_t)n * sizeof *y), GN_OK);
        for (int64_t i = 0; i < n; i++) all.of[k] = fmax(all.of[k], 4 * fabs((double)x[i] - y[i]));
        free(x);
        free(y);
    }
    return all;
}

/* Reads all of both devices, the GPU's first, into memory that was filled before, and compares them relative to the
   largest value of each; more: what else they may differ by. */
static void agree_within(const char *what, outs on_cpu, outs on_gpu, double tolerance, const roundings *more) {
    if (compiles_only) {
        gn_realize(on_gpu.t, on_gpu.n);
        gn_read(on_gpu.t[0], &tolerance, 0);
        gn_step(gpu);
        return;
    }
    for (int k = 0; k < on_cpu.n; k++) {
        gn_info info;
        if (!CHECK_RESULT(gn_describe(on_cpu.t[k], &info), GN_OK)) return;
        int64_t n = 1, at = 0;
        for (int i = 0; i < info.shape.rank; i++) n *= info.shape.dims[i];
        size_t bytes = (size_t)n * gn_dtype_bytes(info.dtype);
        void *want = malloc(bytes + 8), *got = malloc(bytes + 8);
        memset(got, 0xff, bytes);
        double largest = 0, worst = 0;
        gn_result r[2] = { gn_read(on_gpu.t[k], got, bytes), gn_read(on_cpu.t[k], want, bytes) };
        if (r[0] != GN_OK || r[1] != GN_OK)
            test_fail(__FILE__, __LINE__, "%s: output %d: %s on the GPU (%s), %s on the CPU", what, k,
                      gn_result_name(r[0]), gn_last_error(gpu)->text, gn_result_name(r[1]));
        for (int64_t i = 0; i < n && r[0] == GN_OK && r[1] == GN_OK; i++) {
            double x = element(info.dtype, want, i), y = element(info.dtype, got, i), error = fabs(x - y);
            if (x == y || (x != x && y != y)) error = 0;
            largest = fabs(x) > largest ? fabs(x) : largest;
            if (!(error <= worst)) {
                worst = error;
                at = i;
            }
        }
        if (!(worst <= tolerance * (largest + 0.01) + more->of[k]))
            test_fail(__FILE__, __LINE__, "%s: output %d: element %lld of %lld is %g, not %g; the largest is %g", what,
                      k, (long long)at, (long long)n, element(info.dtype, got, at), element(info.dtype, want, at),
                      largest);
        free(want);
        free(got);
    }
    gn_step(cpu);
    gn_step(gpu);
}

static void agree(const char *what, outs on_cpu, outs on_gpu, double tolerance) {
    agree_within(what, on_cpu, on_gpu, tolerance, &(roundings){ 0 });
}

/* ---- known patterns ---- */

/* kernels: how many they take on rows of some hundred elements, 0: not counted */
typedef struct pattern {
    const char *name;
    int kernels;
} pattern;
static const pattern patterns[] = {
    { "softmax written out", 1 },
    { "log-softmax written out", 1 },
    { "layernorm written out", 1 },
    { "rmsnorm", 1 },
    { "normalize", 1 },
    { "variance", 1 },
    { "std", 1 },
    { "logsumexp", 1 },
    { "l2 norm", 1 },
    { "sum of a product", 1 },
    { "root of a mean of squares", 1 },
    { "softmax with scale, mask and factor", 1 },
    { "sum and rmsnorm of a residual", 1 },
    { "slope of a softmax", 1 },
    { "slope of a layernorm", 1 },
    { "layernorm between loops", 1 },
    { "mean of distances", 1 },
    { "softmax of columns", 1 },
    { "argmax of a sum", 1 },
    { "norm over channels", 1 },
    { "two norms of one tensor", 2 },
    { "sum of a cast", 1 },
    { "softmax read twice", 0 },
    { "rows asked for between", 1 },
    { "softmax behind a view", 3 },
    { "rmsnorm with a gain stored less 1", 1 },
    { "group norm", 1 },
    { "batch norm in training", 1 },
    { "a difference read again behind a product", 0 },
};

static outs one(gn_tensor t) { return (outs){ { t }, 1 }; }

/* c in f32 of the rows of x is read by two groups of rows, between which there are products. */
static gn_tensor difference_read_again(gn_tensor x, gn_tensor y, gn_dtype d) {
    const gn_axes last = GN_AXES(1);
    gn_tensor wide = gn_cast(x, GN_F32), c = gn_sub(wide, gn_mean(wide, last, true));
    gn_tensor s = gn_cast(gn_mul(c, gn_rsqrt(gn_add_c(gn_mean(gn_square(c), last, true), 1e-5))), d);
    gn_tensor r = gn_cast(gn_matmul(gn_matmul(s, gn_transpose(y, 0, 1)), y), GN_F32);
    return gn_mul(c, gn_mean(gn_mul(c, gn_mul_c(r, 0.01)), last, true));
}

static outs build_pattern(gn_ctx *g, int which, gn_dtype d, int64_t a, int64_t b, void **data) {
    gn_tensor x = gn_data(g, d, GN_SHAPE(a, b), data[0]), y = gn_data(g, d, GN_SHAPE(a, b), data[1]),
              w = gn_data(g, d, GN_SHAPE(b), data[2]), s, c, r;
    const gn_axes last = GN_AXES(1);
    switch (which) {
    case 0: c = gn_exp(gn_sub(x, gn_max(x, last, true))); return one(gn_div(c, gn_sum(c, last, true)));
    case 1: c = gn_sub(x, gn_max(x, last, true)); return one(gn_sub(c, gn_log(gn_sum(gn_exp(c), last, true))));
    case 2:
        c = gn_sub(x, gn_mean(x, last, true));
        return one(gn_add(gn_mul(gn_mul(c, gn_rsqrt(gn_add_c(gn_mean(gn_square(c), last, true), 1e-5))), w), w));
    case 3: return one(gn_rmsnorm(x, w, 1e-5));
    case 4: return one(gn_normalize(x, 1, 1e-6));
    case 5: return one(gn_variance(x, last, 1, false));
    case 6: return one(gn_std(x, last, 0, true));
    case 7: return one(gn_logsumexp(x, last, false));
    case 8: return one(gn_l2_norm(x, last, false));
    case 9: return one(gn_sum(gn_mul(x, y), last, false));
    case 10: return one(gn_sqrt(gn_mean(gn_square(x), last, true)));
    case 11: return one(gn_mul(gn_softmax(gn_add(gn_mul_c(x, 0.125), w), 1), y));
    case 12: s = gn_add(x, y); return (outs){ { gn_rmsnorm(s, w, 1e-5), s }, 2 };
    case 13:
        s = gn_softmax(x, 1);
        r = gn_sum(gn_mul(y, s), last, true);
        return one(gn_mul(s, gn_sub(y, r)));
    case 14: {
        gn_tensor mean = gn_mean(x, last, true), away = gn_sub(x, mean),
                  scale = gn_rsqrt(gn_add_c(gn_mean(gn_square(away), last, true), 1e-5)), hat = gn_mul(away, scale),
                  dy = gn_mul(y, w);
        return one(gn_mul(scale, gn_sub(gn_sub(dy, gn_mean(dy, last, true)),
                                        gn_mul(hat, gn_mean(gn_mul(dy, hat), last, true)))));
    }
    case 15: return one(gn_gelu(gn_layernorm(gn_add(x, y), w, w, 1e-5)));
    case 16: return one(gn_mul_c(gn_mean(gn_abs(gn_sub(x, y)), GN_ALL_AXES, false), 0.5));
    case 17:
        c = gn_exp(gn_sub(gn_transpose(x, 0, 1), gn_max(gn_transpose(x, 0, 1), GN_AXES(1), true)));
        return one(gn_sum(c, GN_AXES(1), true));
    case 18: return one(gn_argmax(gn_add(x, w), last, false));
    case 19: {
        gn_tensor z = gn_data(g, d, GN_SHAPE(2, a / 2, b), data[0]), away = gn_sub(z, gn_mean(z, GN_AXES(0, 2), true));
        return one(gn_mul(away, gn_rsqrt(gn_add_c(gn_mean(gn_square(away), GN_AXES(0, 2), true), 1e-5))));
    }
    case 20: return (outs){ { gn_normalize(x, 1, 1e-6), gn_rmsnorm(gn_tanh(x), w, 1e-5) }, 2 };
    case 21: return one(gn_sum(gn_square(gn_cast(x, GN_F32)), last, false));
    case 22:
        s = gn_softmax(gn_mul_c(x, 0.5), 1);
        return (outs){ { gn_matmul(s, gn_transpose(y, 0, 1)), gn_mul(s, x) }, 2 };
    case 23:
        c = gn_sub(x, gn_mean(x, last, true));
        r = gn_mean(gn_square(c), last, true);
        return (outs){ { gn_mul(c, gn_rsqrt(gn_add_c(r, 1e-5))), r }, 2 };
    case 25: return one(gn_rmsnorm_1p(x, w, 1e-5));
    case 26: w = gn_slice(w, 0, 0, a, 1); return one(gn_group_norm(gn_reshape(x, GN_SHAPE(1, a, b)), 2, w, w, 1e-5));
    case 27:
        w = gn_slice(w, 0, 0, 2, 1);
        return one(gn_batch_norm_train(gn_reshape(x, GN_SHAPE(a / 2, 2, b)), w, w, 1e-5, NULL, NULL));
    case 28: return one(difference_read_again(x, y, d));
    default: return one(gn_softmax(gn_reshape(gn_transpose(gn_mul_c(x, 0.5), 0, 1), GN_SHAPE(a, b)), 1));
    }
}

static void patterns_take_their_kernels_and_agree_with_the_cpu(void) {
    static const int64_t shapes[][2] = { { 6, 96 }, { 10, 333 }, { 3, 1024 }, { 2, 12288 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16, GN_F16, GN_F64 };
    for (int i = 0; i < TEST_COUNT(patterns); i++) {
        int64_t a = shapes[i % 3][0] & ~(int64_t)1, b = shapes[i % 3][1];
        gn_dtype d = dtypes[test_random_int(0, 3)];
        /* the argmax of a sum that is not rounded may be another; casts and products round to f32 */
        if (i == 18 || i >= 21) d = GN_F32;
        if (i == 28) d = GN_BF16;
        if (compiles_only && i % 5 == 0) {
            a = shapes[3][0];
            b = shapes[3][1];
        }
        void *data[3] = { random_bytes(d, a * b, 2), random_bytes(d, a * b, 2), random_bytes(d, b, 2) };
        gn_stats before, after;
        char what[120];
        snprintf(what, sizeof what, "%s, %s, %lld x %lld", patterns[i].name, gn_dtype_name(d), (long long)a,
                 (long long)b);
        outs on_gpu = build_pattern(gpu, i, d, a, b, data);
        gn_get_stats(gpu, &before);
        gn_result r = gn_realize(on_gpu.t, on_gpu.n);
        gn_get_stats(gpu, &after);
        if (!compiles_only) CHECK_RESULT(r, GN_OK);
        int kernels = (int)(after.kernels_run - before.kernels_run);
        if (patterns[i].kernels && kernels != patterns[i].kernels && !compiles_only)
            test_fail(__FILE__, __LINE__, "%s: %d kernels, not %d", what, kernels, patterns[i].kernels);
        agree(what, build_pattern(cpu, i, d, a, b, data), on_gpu, eps_of(d) * (d == GN_F64 ? 1e4 : 40));
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

/* ---- random programs over rows ---- */

typedef struct program {
    uint64_t seed;
    gn_dtype d;
    gn_shape shape;
    gn_axes axes;
    int axis;
} program;

static uint64_t drawn(uint64_t *s, uint64_t n) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (*s >> 33) % n;
}

/* Values stay between about -3 and 3, so that errors are those of roundings. */
static outs build_program(gn_ctx *g, const program *p, void **data) {
    uint64_t s = p->seed;
    gn_shape along = p->shape;
    gn_tensor full[24], row[24];
    int n_full = 0, n_row = 0, n_axes = p->axes.n;
    for (int i = 0; i < along.rank; i++) {
        bool reduced = false;
        for (int k = 0; k < p->axes.n; k++) reduced = reduced || p->axes.axis[k] == i;
        if (!reduced) along.dims[i] = 1;
    }
    full[n_full++] = gn_data(g, p->d, p->shape, data[0]);
    full[n_full++] = gn_data(g, p->d, p->shape, data[1]);
    if (p->shape.rank == 2)
        full[n_full++] = gn_transpose(gn_data(g, p->d, GN_SHAPE(p->shape.dims[1], p->shape.dims[0]), data[1]), 0, 1);
    gn_tensor bias = gn_data(g, p->d, along, data[0]);
    for (int step = 4 + (int)drawn(&s, 9); step > 0; step--) {
        gn_tensor x = full[drawn(&s, (uint64_t)n_full)], y = full[drawn(&s, (uint64_t)n_full)], t = GN_NONE;
        if (drawn(&s, 2)) x = full[n_full - 1];
        uint64_t kind = drawn(&s, 14);
        bool is_row = (kind >= 4 && kind <= 7) || kind == 11;
        switch (kind) {
        case 0: t = gn_tanh(gn_add(x, y)); break;
        case 1: t = gn_mul(gn_tanh(x), y); break;
        case 2: t = gn_maximum(x, bias); break;
        case 3: t = gn_sigmoid(gn_mul(x, bias)); break;
        case 4: t = gn_mean(x, p->axes, true); break;
        case 5: t = gn_max(gn_mul(x, bias), p->axes, true); break;
        case 6: t = gn_sqrt(gn_add_c(gn_mean(gn_square(x), p->axes, true), 0.1)); break;
        case 7: t = gn_min(x, p->axes, true); break;
        case 8: t = n_axes == 1 ? gn_softmax(gn_mul_c(x, 0.5), p->axis) : GN_NONE; break;
        case 9:
            if (n_axes == 1 && p->axis == p->shape.rank - 1) t = gn_tanh(gn_layernorm(x, GN_NONE, GN_NONE, 0.1));
            break;
        case 10: t = n_row > 0 ? gn_tanh(gn_sub(x, row[drawn(&s, (uint64_t)n_row)])) : GN_NONE; break;
        case 11: t = n_row > 1 ? gn_mul(gn_tanh(row[n_row - 1]), row[drawn(&s, (uint64_t)n_row)]) : GN_NONE; break;
        case 12: t = n_row > 0 ? gn_div(x, gn_add_c(gn_abs(row[n_row - 1]), 1)) : GN_NONE; break;
        default: t = n_axes == 1 ? gn_log_softmax(gn_tanh(x), p->axis) : GN_NONE; break;
        }
        if (t.ctx && is_row) row[n_row++] = t;
        else if (t.ctx) full[n_full++] = t;
    }
    outs o = { .n = 0 };
    o.t[o.n++] = full[n_full - 1];
    if (n_row) o.t[o.n++] = row[n_row - 1];
    if (drawn(&s, 2)) o.t[o.n++] = full[drawn(&s, (uint64_t)n_full)];
    if (n_row && drawn(&s, 3) == 0) o.t[o.n++] = row[drawn(&s, (uint64_t)n_row)];
    return o;
}

/* A program may enlarge roundings: where it subtracts what is nearly equal, say. */
static roundings roundings_of_program(const program *p, outs on_cpu, void **data, int64_t count) {
    program wide = *p;
    void *wider[2];
    wide.d = GN_F64;
    for (int k = 0; k < 2; k++) {
        double *to = wider[k] = malloc((size_t)count * sizeof *to);
        for (int64_t i = 0; i < count; i++) to[i] = (double)((float *)data[k])[i];
    }
    roundings all = roundings_of(on_cpu, build_program(cpu, &wide, wider));
    free(wider[0]);
    free(wider[1]);
    return all;
}

static int n_programs = 16;

static void programs_of_random_steps_agree_with_the_cpu(void) {
    for (int i = 0; i < n_programs; i++) {
        static const int64_t lengths[] = { 2, 5, 32, 64, 100, 129, 257, 768, 1000, 4096, 9000 };
        program p = { .seed = test_random(), .d = test_random_int(0, 2) ? GN_F32 : GN_F64 };
        int64_t n = lengths[test_random_int(0, n_programs > 100 ? 10 : 7)],
                rows = test_random_int(1, n > 1000 ? 80 : 40);
        switch (test_random_int(0, 6)) {
        case 0:
            p.shape = GN_SHAPE(n, rows);
            p.axes = GN_AXES(0);
            p.axis = 0;
            break;
        case 1:
            p.shape = GN_SHAPE(rows, 3, n);
            p.axes = GN_AXES(1, 2);
            break;
        case 2:
            p.shape = GN_SHAPE(3, n, rows);
            p.axes = GN_AXES(1);
            p.axis = 1;
            break;
        case 3:
            p.shape = GN_SHAPE(3, rows, n);
            p.axes = GN_AXES(0, 2);
            break;
        default:
            p.shape = GN_SHAPE(rows, n);
            p.axes = GN_AXES(1);
            p.axis = 1;
            break;
        }
        int64_t count = 1;
        for (int k = 0; k < p.shape.rank; k++) count *= p.shape.dims[k];
        void *data[2] = { random_bytes(p.d, count, 2), random_bytes(p.d, count, 2) };
        char what[160];
        snprintf(what, sizeof what, "program %016llx, %s, %lld x %lld x %lld", (unsigned long long)p.seed,
                 gn_dtype_name(p.d), (long long)p.shape.dims[0], (long long)p.shape.dims[1],
                 p.shape.rank > 2 ? (long long)p.shape.dims[2] : 1);
        outs on_gpu = build_program(gpu, &p, data);
        gn_result r = gn_realize(on_gpu.t, on_gpu.n);
        if (!compiles_only && r != GN_OK)
            test_fail(__FILE__, __LINE__, "%s: %s: %s", what, gn_result_name(r), gn_last_error(gpu)->text);
        outs on_cpu = build_program(cpu, &p, data);
        roundings more = { 0 };
        if (p.d == GN_F32 && !compiles_only) more = roundings_of_program(&p, on_cpu, data, count);
        agree_within(what, on_cpu, on_gpu, p.d == GN_F64 ? 1e-10 : 1e-4, &more);
        free(data[0]);
        free(data[1]);
    }
}

/* A batch norm with what stands around it in a network for pictures, and its gradients. */
static outs build_channels(gn_ctx *g, gn_dtype d, gn_shape shape, void **data) {
    gn_shape each = GN_SHAPE(shape.dims[1]);
    gn_tensor p[4] = { gn_data(g, d, shape, data[0]), gn_data(g, d, shape, data[1]), gn_data(g, d, each, data[0]),
                       gn_data(g, d, each, data[1]) };
    gn_tensor y = gn_relu(gn_add(gn_batch_norm_train(p[0], p[2], p[3], 1e-5, NULL, NULL), p[1]));
    gn_tensor one = gn_cast(y, GN_F32), other = gn_cast(gn_mul(y, gn_sigmoid(y)), GN_F32), grads[4];
    gn_tensor loss = gn_mean(gn_add(gn_mul(one, gn_tanh(one)), other), GN_AXES(0, 1, 2, 3), false);
    gn_result r = gn_grad(gn_mul_c(loss, 1024), p, 4, grads);
    outs o = { { y, grads[0], grads[2], grads[3] }, 4 };
    CHECK_RESULT(r, GN_OK);
    return o;
}

/* Rows that one block would take too long for: of 2 to 16 parts and more, of planes of an odd size, of 16 bits and of
   more. */
static void long_rows_are_shared_by_blocks(void) {
    static const gn_dtype dtypes[] = { GN_BF16, GN_F32, GN_BF16, GN_F16, GN_BF16 };
    static const int64_t shapes[][4] = {
        { 16, 24, 36, 36 }, { 4, 12, 100, 100 }, { 3, 24, 77, 81 }, { 17, 140, 30, 34 }, { 8, 9, 112, 112 }
    };
    for (int i = 0; i < TEST_COUNT(shapes); i++) {
        const gn_shape shape = { 4, { shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3] } };
        const int64_t n = shape.dims[0] * shape.dims[1] * shape.dims[2] * shape.dims[3];
        const gn_dtype d = dtypes[i];
        void *data[2] = { random_bytes(d, n, 2), random_bytes(d, n, 2) };
        char what[80];
        snprintf(what, sizeof what, "channels of %s, %lld rows of %lld", gn_dtype_name(d), (long long)shape.dims[1],
                 (long long)(n / shape.dims[1]));
        agree(what, build_channels(cpu, d, shape, data), build_channels(gpu, d, shape, data), eps_of(d) * 40);
        free(data[0]);
        free(data[1]);
    }
}

/* The switch gives each op a kernel of its own, and the same values. */
static void without_fusion_each_op_is_a_kernel(void) {
    gn_ctx *usual = gpu;
    gn_stats s;
    setenv("GENIE_CUDA_FUSE", "0", 1);
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    if (CHECK_RESULT(gn_status(gpu), GN_OK)) {
        void *data[3] = { random_bytes(GN_F32, 600, 2), random_bytes(GN_F32, 600, 2), random_bytes(GN_F32, 100, 2) };
        agree("softmax written out, not fused", build_pattern(cpu, 0, GN_F32, 6, 100, data),
              build_pattern(gpu, 0, GN_F32, 6, 100, data), 1e-5);
        gn_get_stats(gpu, &s);
        CHECK_INT(s.kernels_run, 5);
        CHECK_INT(s.nodes_fused, 0);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
    gn_close(gpu);
    gpu = usual;
    unsetenv("GENIE_CUDA_FUSE");
}

/* Where there is no GPU: what the tests above need is generated, and compiled for each arch. */
static void kernels_compile_for(const char *arch) {
    static char why[8000];
    char name[64];
    size_t failed = 0;
    snprintf(name, sizeof name, "kernels_of_rows_compile_for_%s", arch);
    if (!test_open(name)) return;
    size_t n = TEST_SANITIZED ? 0 : gn_cuda_compile_collected(arch, false, &failed, why, sizeof why);
    if (TEST_SANITIZED) test_skip("NVRTC is not instrumented");
    else if (failed == n && strstr(why, "NVRTC")) test_skip(why);
    else if (failed || n < 30)
        test_fail(__FILE__, __LINE__, "%zu of %zu kernels do not compile; the first: %s", failed, n, why);
    test_close();
}

static void compile_all(void) {
    static const char *const archs[] = { "sm_90a", "sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120" };
    setenv("GENIE_CUDA_COMPILE_ONLY", archs[0], 1);
    gn_close(gpu);
    gpu = gn_open(&(gn_desc){ .devices = "cuda:0" });
    compiles_only = true;
    n_programs = 8;
    if (CHECK_RESULT(gn_status(gpu), GN_OK)) {
        patterns_take_their_kernels_and_agree_with_the_cpu();
        programs_of_random_steps_agree_with_the_cpu();
        long_rows_are_shared_by_blocks();
        for (int i = 0; i < TEST_COUNT(archs); i++) kernels_compile_for(archs[i]);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(patterns_take_their_kernels_and_agree_with_the_cpu),
        TEST_ENTRY(programs_of_random_steps_agree_with_the_cpu),
        TEST_ENTRY(long_rows_are_shared_by_blocks),
        TEST_ENTRY(without_fusion_each_op_is_a_kernel),
    };
    test_begin(argc, argv);
    if (getenv("GENIE_TEST_PROGRAMS")) n_programs = atoi(getenv("GENIE_TEST_PROGRAMS"));
    device_name = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0";
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    cpu = gn_open(&(gn_desc){ .devices = "cpu" });
    if (gn_status(gpu) == GN_OK) test_all(tests, TEST_COUNT(tests));
    else {
        for (int i = 0; i < TEST_COUNT(tests); i++) {
            if (!test_open(tests[i].name)) continue;
            test_skip(gn_last_error(gpu)->text);
            test_close();
        }
        compile_all();
    }
    gn_close(gpu);
    gn_close(cpu);
    return test_end();
}
