/* bench_core: convolutions of f32 and ResNet-50 on a CPU, beside ONNX Runtime when $ORT_BENCH names a Python that has
 * it. A run builds the graph, has the result computed and ends the step.
 *
 *   ORT_BENCH=python3 ./build/bench/bench_core --only conv_ --threads 1
 *   ORT_BENCH=python3 ./build/bench/bench_core --only resnet50
 *
 * Both sides take turns; with one thread all of it is processor time, of one core. */

#include "other_side.h"
#include "windows.h"

enum { CONV_ROUNDS = 40 };

static const window_row conv_rows[] = {
    { "conv_56_64", 1, 64, 56, 64, 3, 1, 1, 0.8 },
    { "conv_28_128", 1, 128, 28, 128, 3, 1, 1, NAN },
    { "conv_14_256", 1, 256, 14, 256, 3, 1, 1, NAN },
    { "conv_7_512", 1, 512, 7, 512, 3, 1, 1, NAN },
    { "conv_56_128_half", 1, 128, 56, 128, 3, 2, 1, NAN },
    { "conv_14_512_half", 1, 512, 14, 512, 3, 2, 1, NAN },
    { "conv_224_3", 1, 3, 224, 64, 7, 2, 1, NAN },
    { "conv_56_1x1_up", 1, 64, 56, 256, 1, 1, 1, NAN },
    { "conv_56_1x1_down", 1, 256, 56, 64, 1, 1, 1, NAN },
    { "conv_28_1x1_up", 1, 128, 28, 512, 1, 1, 1, NAN },
    { "conv_14_1x1_up", 1, 256, 14, 1024, 1, 1, 1, NAN },
    { "conv_14_1x1_down", 1, 1024, 14, 256, 1, 1, 1, NAN },
    { "conv_7_1x1_up", 1, 512, 7, 2048, 1, 1, 1, NAN },
    { "conv_7_1x1_down", 1, 2048, 7, 512, 1, 1, 1, NAN },
    { "conv_56_1x1_half", 1, 256, 56, 512, 1, 2, 1, NAN },
    { "conv_14_1x1_half", 1, 1024, 14, 2048, 1, 2, 1, NAN },
    { "conv_depthwise_3_112_32", 1, 32, 112, 32, 3, 1, 32, 0.7 },
    { "conv_depthwise_3_112_96_half", 1, 96, 112, 96, 3, 2, 96, 0.7 },
    { "conv_depthwise_3_56_128", 1, 128, 56, 128, 3, 1, 128, 0.7 },
    { "conv_depthwise_3_56_144_half", 1, 144, 56, 144, 3, 2, 144, 0.7 },
    { "conv_depthwise_3_28_192", 1, 192, 28, 192, 3, 1, 192, 0.7 },
    { "conv_depthwise_3_28_256_half", 1, 256, 28, 256, 3, 2, 256, 0.7 },
    { "conv_depthwise_3_14_512", 1, 512, 14, 512, 3, 1, 512, 0.7 },
    { "conv_depthwise_3_14_576_half", 1, 576, 14, 576, 3, 2, 576, 0.7 },
    { "conv_depthwise_3_7_1024", 1, 1024, 7, 1024, 3, 1, 1024, 0.7 },
    { "conv_depthwise_5_56_72_half", 1, 72, 56, 72, 5, 2, 72, 0.7 },
    { "conv_depthwise_5_28_120", 1, 120, 28, 120, 5, 1, 120, 0.7 },
    { "conv_depthwise_5_14_480", 1, 480, 14, 480, 5, 1, 480, 0.7 },
    { "conv_depthwise_5_14_672_half", 1, 672, 14, 672, 5, 2, 672, 0.7 },
    { "conv_depthwise_5_7_960", 1, 960, 7, 960, 5, 1, 960, 0.7 },
    { "conv_depthwise_7_56_96", 1, 96, 56, 96, 7, 1, 96, 0.7 },
    { "conv_depthwise_7_28_192", 1, 192, 28, 192, 7, 1, 192, 0.7 },
    { "conv_depthwise_7_14_384", 1, 384, 14, 384, 7, 1, 384, 0.7 },
    { "conv_depthwise_7_7_768", 1, 768, 7, 768, 7, 1, 768, 0.7 },
    { "conv_grouped_2_56_64", 1, 64, 56, 64, 3, 1, 2, 0.7 },
    { "conv_grouped_4_28_128", 1, 128, 28, 128, 3, 1, 4, 0.7 },
    { "conv_grouped_8_28_128", 1, 128, 28, 128, 3, 1, 8, 0.7 },
    { "conv_grouped_16_28_256", 1, 256, 28, 256, 3, 1, 16, 0.7 },
    { "conv_grouped_32_56_128", 1, 128, 56, 128, 3, 1, 32, 0.7 },
    { "conv_grouped_32_56_256_half", 1, 256, 56, 256, 3, 2, 32, 0.7 },
    { "conv_grouped_32_28_256", 1, 256, 28, 256, 3, 1, 32, 0.7 },
    { "conv_grouped_32_14_512", 1, 512, 14, 512, 3, 1, 32, 0.7 },
    { "conv_grouped_32_7_1024", 1, 1024, 7, 1024, 3, 1, 32, 0.7 },
    { "conv_grouped_3_28_240_1x1", 1, 240, 28, 240, 1, 1, 3, 0.7 },
    { "conv_grouped_8_14_480_1x1", 1, 480, 14, 480, 1, 1, 8, 0.7 },
};

static other_side onnx_side;

typedef struct conv_case {
    gn_ctx *g;
    const window_row *row; /* NULL: a network */
    gn_tensor x, y, w[RESNET_CONVS + 1], bias[RESNET_CONVS];
    float *host[RESNET_CONVS + 2], *result;
    gn_dtype dtype; /* in which a network computes */
    size_t results;
    int n, made;
} conv_case;

static void conv_run(conv_case *c, gn_tensor (*build)(conv_case *)) {
    gn_tensor y = build(c);
    gn_result r = gn_realize(&y, 1), ended = gn_step(c->g);
    if (!ex_check(c->g, r == GN_OK ? ended : r, "a run")) exit(EX_FAILED);
}

/* Seconds of a run: of n, after some that are not counted. */
static double conv_time(conv_case *c, gn_tensor (*build)(conv_case *), int n) {
    for (double end = ex_now() + 1e-6 * SIDE_WAKE_US; !set.once;) {
        conv_run(c, build);
        if (ex_now() >= end) break;
    }
    const double start = ops_clock();
    for (int i = 0; i < n; i++) conv_run(c, build);
    return (ops_clock() - start) / n;
}

/* ONNX Runtime's threads look for work 35 ms before they sleep. */
enum { ONNX_REST_US = 40000 };

/* Both sides in turn: medians, and the least of each. */
static void conv_measure(conv_case *c, const char *name, gn_tensor (*build)(conv_case *), const char *line,
                         double target) {
    double once = conv_time(c, build, 1), budget = set.quick ? 0.2 : 1;
    int times = once < 2e-3 ? (int)(2e-3 / once) + 1 : 1, n = 0, least = set.once ? 1 : set.quick ? 5 : 9;
    bool beside = !isnan(side_ask(&onnx_side, line));
    double begin = ex_now();
    char ask[32];
    snprintf(ask, sizeof ask, "time %d", times);
    while (n < CONV_ROUNDS && (n < least || (!set.once && ex_now() - begin < budget))) {
        samples_a[n] = conv_time(c, build, times);
        side_rest();
        if (beside) samples_b[n] = side_ask(&onnx_side, ask) / times;
        side_rest_us(ONNX_REST_US);
        n++;
    }
    summary own = summarize(samples_a, n), other = summarize(samples_b, beside ? n : 0);
    note_of(name, "us", 1e6 * own.p50, "us");
    note_of(name, "us_least", 1e6 * own.least, "us at the least");
    if (!beside) return;
    note_of(name, "onnxruntime_us", 1e6 * other.p50, "us");
    note_of(name, "onnxruntime_us_least", 1e6 * other.least, "us at the least");
    char full[64];
    snprintf(full, sizeof full, "%s_speed", name);
    if (isnan(target)) note(full, other.p50 / own.p50, "times ONNX Runtime's speed");
    else show(full, other.p50 / own.p50, false, target, "times ONNX Runtime's speed");
}

static gn_tensor conv_build(conv_case *c) { return window_conv(c->row, c->x, c->w[0], GN_NONE, NULL, false); }

/* The largest error of some results. */
static double conv_error(const conv_case *c) {
    const window_row *r = c->row;
    const int64_t in = r->channels / r->groups, side = r->side, k = r->kernel, to = window_side(r);
    largest_error e = { 0 };
    for (int s = 0; s < 256; s++) {
        int64_t m = s * 7919 % r->filters, a = s * 97 % to, b = s * 193 % to, from = m / (r->filters / r->groups) * in;
        double sum = 0;
        for (int64_t i = 0; i < in * k * k; i++) {
            int64_t y = a * r->stride + i / k % k - k / 2, x = b * r->stride + i % k - k / 2;
            if (y < 0 || x < 0 || y >= side || x >= side) continue;
            sum +=
                (double)c->host[1][((from + i / k / k) * side + y) * side + x] * (double)c->host[0][m * in * k * k + i];
        }
        error_add(&e, (double)c->result[(m * to + a) * to + b], sum);
    }
    return error_of(&e);
}

static void bench_conv(const window_row *r) {
    conv_case c = { .row = r };
    char line[120];
    if (!wanted(r->name)) return;
    gn_shape w = GN_SHAPE(r->filters, r->channels / r->groups, r->kernel, r->kernel),
             x = GN_SHAPE(r->images, r->channels, r->side, r->side);
    c.results = (size_t)(r->filters * window_side(r) * window_side(r));
    c.host[0] = make_floats((size_t)(w.dims[0] * w.dims[1] * w.dims[2] * w.dims[3]), 1);
    c.host[1] = make_floats((size_t)(r->channels * r->side * r->side), 1);
    c.result = make_floats(c.results, 1);
    c.g = open_or_die("cpu", set.threads);
    c.w[0] = gn_weight(c.g, GN_F32, w, c.host[0], "filters");
    c.x = gn_state(c.g, GN_F32, x, c.host[1], "x");
    poison(c.result, c.results);
    read_or_die(conv_build(&c), c.result, c.results * sizeof(float));
    double error = conv_error(&c);
    if (!(error < 1e-5)) failed(r->name);
    snprintf(line, sizeof line, "conv %d %d %d %d %d %d %d", r->images, r->channels, r->side, r->filters, r->kernel,
             r->stride, r->groups);
    conv_measure(&c, r->name, conv_build, line, r->target);
    note_of(r->name, "error", error, "of the largest result");
    gn_close(c.g);
    free(c.host[0]);
    free(c.host[1]);
    free(c.result);
}

/* ---- ResNet-50 of one picture ---- */

enum { CONV_CLASSES = 1000 };

static gn_tensor conv_of(const conv_case *c, gn_tensor t) { return c->dtype == GN_F32 ? t : gn_cast(t, c->dtype); }

static gn_tensor conv_layer(gn_ctx *g, void *of, gn_tensor x, window_row r, const gn_tensor *residual, bool relu) {
    conv_case *c = (conv_case *)of;
    gn_shape shape = GN_SHAPE(r.filters, r.channels, r.kernel, r.kernel);
    static const float zeros[2048];
    int n = c->n++, terms = r.channels * r.kernel * r.kernel;
    float scale = sqrtf(6.f / (float)terms) * (residual ? 0.3f : 1);
    r.groups = 1;
    if (n == c->made) {
        c->made++;
        c->host[n] = make_floats((size_t)(r.filters * terms), scale);
        c->w[n] = gn_weight(g, GN_F32, shape, c->host[n], "filters");
        c->bias[n] = gn_weight(g, GN_F32, GN_SHAPE(r.filters), zeros, "bias");
    }
    return window_conv(&r, x, conv_of(c, c->w[n]), conv_of(c, c->bias[n]), residual, relu);
}

static gn_tensor conv_network(conv_case *c) {
    c->n = 0;
    gn_tensor means = resnet_means(c->g, c, conv_of(c, c->x), 1, conv_layer);
    return gn_matmul(means, conv_of(c, c->w[RESNET_CONVS]));
}

static void bench_conv_network(void) {
    conv_case c = { .dtype = GN_F64, .results = CONV_CLASSES };
    static double want[CONV_CLASSES];
    if (!wanted("resnet50")) return;
    c.g = open_or_die("cpu", set.threads);
    c.result = make_floats(CONV_CLASSES, 0);
    c.host[RESNET_CONVS] = make_floats(2048 * CONV_CLASSES, 0.05f);
    c.host[RESNET_CONVS + 1] = make_floats(3 * 224 * 224, 1);
    c.w[RESNET_CONVS] = gn_weight(c.g, GN_F32, GN_SHAPE(2048, CONV_CLASSES), c.host[RESNET_CONVS], "head");
    c.x = gn_state(c.g, GN_F32, GN_SHAPE(1, 3, 224, 224), c.host[RESNET_CONVS + 1], "x");
    read_or_die(conv_network(&c), want, sizeof want);
    c.dtype = GN_F32;
    poison(c.result, c.results);
    read_or_die(conv_network(&c), c.result, c.results * sizeof(float));
    largest_error e = { 0 };
    for (int i = 0; i < CONV_CLASSES; i++) error_add(&e, (double)c.result[i], want[i]);
    if (!(error_of(&e) < 1e-4)) failed("resnet50");
    conv_measure(&c, "resnet50", conv_network, "resnet50", 1 / 1.3);
    note_of("resnet50", "error", error_of(&e), "of the largest result");
    gn_close(c.g);
    free(c.result);
    for (int i = 0; i < RESNET_CONVS + 2; i++) free(c.host[i]);
}

static void bench_convs(void) {
    char threads[16];
    snprintf(threads, sizeof threads, "%d", (int)set.threads);
    side_open(&onnx_side, "ORT_BENCH", "bench/conv_onnx.py", threads);
    for (size_t i = 0; i < sizeof conv_rows / sizeof *conv_rows; i++) bench_conv(&conv_rows[i]);
    bench_conv_network();
    side_close(&onnx_side);
}
