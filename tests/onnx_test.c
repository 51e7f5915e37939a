/* The reader of ONNX models under examples/formats: models of bytes that stand here, for what is easily read wrongly,
 * and files that are cut, altered or lie. What ops compute is onnx_node_test's.
 *
 * Tier: quick address */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "test.h"
#include <fcntl.h>
#include <sys/stat.h>

/* Counts what the reader holds. */
static size_t reader_held, reader_most;

static void *counted(void *p, size_t size) {
    size_t *old = p ? (size_t *)p - 2 : NULL, before = old ? *old : 0, *now = realloc(old, size + 2 * sizeof *now);
    if (!now) return NULL;
    *now = size;
    reader_held += size - before;
    if (reader_held > reader_most) reader_most = reader_held;
    return now + 2;
}
static void *counted_zeroed(size_t n, size_t size) {
    void *p = counted(NULL, n * size);
    return p ? memset(p, 0, n * size) : NULL;
}
static void counted_free(void *p) {
    if (!p) return;
    reader_held -= *((size_t *)p - 2);
    free((size_t *)p - 2);
}
static char *counted_text(const char *text) {
    char *p = counted(NULL, strlen(text) + 1);
    return p ? strcpy(p, text) : NULL;
}
static char *counted_path(const char *path, char *out) {
    char whole[4096];
    return realpath(path, out ? out : whole) ? out ? out : counted_text(whole) : NULL;
}

#define malloc(n) counted(NULL, n)
#define realloc counted
#define calloc counted_zeroed
#define free counted_free
#define strdup counted_text
#define realpath counted_path
#define ONNX_IMPLEMENTATION
#include "../examples/formats/onnx.h"
#include "../examples/common.h"
#include "../examples/onnx_check.h"
#include "../examples/onnx_model.h"
#undef malloc
#undef realloc
#undef calloc
#undef free
#undef strdup
#undef realpath

/* ---- writing messages ---- */

typedef struct bytes {
    uint8_t at[2048];
    size_t n;
} bytes;

static void put_varint(bytes *b, uint64_t v) {
    for (; v > 127; v >>= 7) b->at[b->n++] = (uint8_t)(v | 128);
    b->at[b->n++] = (uint8_t)v;
}
static void put_bytes(bytes *b, int field, const void *data, size_t n) {
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, n);
    if (n) memcpy(b->at + b->n, data, n);
    b->n += n;
}
static void put_text(bytes *b, int field, const char *text) { put_bytes(b, field, text, strlen(text)); }
static void put_message(bytes *b, int field, const bytes *m) { put_bytes(b, field, m->at, m->n); }
static void put_number(bytes *b, int field, uint64_t v) {
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, v);
}

/* Names are separated by commas; "" is an input that is left out. */
static void put_names(bytes *b, int field, const char *names) {
    for (const char *end; names; names = *end ? end + 1 : NULL) {
        end = strchr(names, ',');
        if (!end) end = names + strlen(names);
        put_bytes(b, field, names, (size_t)(end - names));
    }
}

static bytes node(const char *op, const char *in, const char *out) {
    bytes b = { .n = 0 };
    if (in) put_names(&b, 1, in);
    put_names(&b, 2, out);
    put_text(&b, 4, op);
    return b;
}
static void put_ints(bytes *n, const char *name, const int64_t *v, int count, bool packed) {
    bytes a = { .n = 0 }, list = { .n = 0 };
    put_text(&a, 1, name);
    for (int i = 0; i < count; i++)
        if (packed) put_varint(&list, (uint64_t)v[i]);
        else put_number(&a, 8, (uint64_t)v[i]);
    if (packed) put_message(&a, 8, &list);
    put_message(n, 5, &a);
}
static void put_attribute(bytes *n, const char *name, int field, const void *data, size_t size, uint64_t number) {
    bytes a = { .n = 0 };
    put_text(&a, 1, name);
    if (data) put_bytes(&a, field, data, size);
    else put_number(&a, field, number);
    put_message(n, 5, &a);
}

static bytes tensor(const char *name, int type, const int64_t *dims, int rank) {
    bytes t = { .n = 0 };
    for (int i = 0; i < rank; i++) put_number(&t, 1, (uint64_t)dims[i]);
    put_number(&t, 2, (uint64_t)type);
    put_text(&t, 8, name);
    return t;
}

/* A value's declaration; a size below 0 is the name "n". */
static bytes value(const char *name, int type, const int64_t *dims, int rank) {
    bytes v = { .n = 0 }, t = { .n = 0 }, tt = { .n = 0 }, shape = { .n = 0 };
    for (int i = 0; i < rank; i++) {
        bytes d = { .n = 0 };
        if (dims[i] < 0) put_text(&d, 2, "n");
        else put_number(&d, 1, (uint64_t)dims[i]);
        put_message(&shape, 1, &d);
    }
    put_number(&tt, 1, (uint64_t)type);
    put_message(&tt, 2, &shape);
    put_message(&t, 1, &tt);
    put_text(&v, 1, name);
    put_message(&v, 2, &t);
    return v;
}

static bytes model_of(const bytes *graph, int opset) {
    bytes m = { .n = 0 }, set = { .n = 0 };
    put_number(&m, 1, 8);
    put_number(&set, 2, (uint64_t)opset);
    put_message(&m, 8, &set);
    put_message(&m, 7, graph);
    return m;
}

/* Graph with nodes, names of inputs and of outputs. */
static bytes body_of(const bytes *nodes, int n, const char *in, const char *out) {
    bytes g = { .n = 0 };
    for (int i = 0; i < n; i++) put_message(&g, 1, &nodes[i]);
    for (int field = 11; field <= 12; field++)
        for (const char *p = field == 11 ? in : out; *p; p += strcspn(p, ","), p += *p == ',') {
            bytes name = { .n = 0 };
            put_bytes(&name, 1, p, strcspn(p, ","));
            put_message(&g, field, &name);
        }
    return g;
}

/* ---- running them ---- */

static char folder[64];
static char error[ONNX_ERROR];

static const char *file_of(const char *name, const void *data, size_t size) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
    return path;
}

/* Runs a model on x (f32); the elements of its first output in out, their number, or -1 with `error`. */
static int run(const bytes *m, const int64_t *dims, int rank, const float *x, onnx_tensor *t, double out[64]) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    onnx *o = onnx_open(file_of("model.onnx", m->at, m->n), error);
    onnx_session *s = o ? onnx_session_open(o, g, NULL, error) : NULL;
    onnx_tensor in = { .type = ONNX_FLOAT, .rank = rank, .data = x };
    int n = -1;
    if (rank) memcpy(in.dims, dims, (size_t)rank * sizeof *dims);
    if (s && (!x || onnx_bind(s, "x", &in, error)) && onnx_build(s, error) && onnx_run(s, error) &&
        onnx_result(s, 0, 0, t, error)) {
        n = (int)t->elements;
        for (int i = 0; i < n && i < 64; i++) out[i] = onnx__number(onnx_type_dtype(t->type), t->data, (size_t)i);
        static char kept[4096]; /* the session owns what it gives */
        if (t->data) t->data = memcpy(kept, t->data, t->bytes < sizeof kept ? (size_t)t->bytes : sizeof kept);
    }
    onnx_session_close(s);
    onnx_close(o);
    gn_close(g);
    return n;
}

/* One node y = op(x, …) on x. */
static int run_node(const bytes *nd, const bytes *extra, int opset, const int64_t *dims, int rank, const float *x,
                    onnx_tensor *t, double out[64]) {
    bytes g = { .n = 0 }, vx = value("x", 1, dims, rank), vy = value("y", 1, NULL, 0);
    put_message(&g, 1, nd);
    if (extra) put_message(&g, 5, extra);
    put_message(&g, 11, &vx);
    put_text(&g, 2, "g");
    bytes name = { .n = 0 };
    put_text(&name, 1, "y");
    put_message(&g, 12, &name);
    (void)vy;
    bytes m = model_of(&g, opset);
    return run(&m, dims, rank, x, t, out);
}

static const float counting[32] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

#define CHECK_VALUES(n, got, ...)                                                                      \
    do {                                                                                               \
        const double want_[] = { __VA_ARGS__ };                                                        \
        CHECK_INT(n, (int)(sizeof want_ / sizeof *want_));                                             \
        for (int i_ = 0; i_ < n && i_ < (int)(sizeof want_ / sizeof *want_); i_++)                     \
            if (!(fabs(got[i_] - want_[i_]) < 1e-6))                                                   \
                test_fail(__FILE__, __LINE__, "element %d is %.9g, not %.9g", i_, got[i_], want_[i_]); \
    } while (0)

TEST(softmax_before_13_goes_over_all_axes_from_its_own) {
    static const int64_t dims[] = { 1, 2, 2 };
    static const float zeros[4] = { 0 };
    double y[64];
    onnx_tensor t;
    bytes n = node("Softmax", "x", "y");
    CHECK_VALUES(run_node(&n, NULL, 11, dims, 3, zeros, &t, y), y, 0.25, 0.25, 0.25, 0.25);
    CHECK_VALUES(run_node(&n, NULL, 13, dims, 3, zeros, &t, y), y, 0.5, 0.5, 0.5, 0.5);
}

TEST(input_left_out_by_an_empty_name_is_none) {
    static const int64_t dims[] = { 4 }, one[] = { 1 };
    double y[64];
    onnx_tensor t;
    bytes n = node("Clip", "x,,most", "y"), most = tensor("most", 1, one, 0);
    put_bytes(&most, 9, "\0\0\0\x40", 4); /* 2 */
    CHECK_VALUES(run_node(&n, &most, 13, dims, 1, counting, &t, y), y, 1, 2, 2, 2);
}

TEST(zero_in_a_shape_keeps_the_size_unless_zeros_are_allowed) {
    static const int64_t dims[] = { 2, 3 }, none[] = { 0, 3 }, two[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes n = node("Reshape", "x,shape", "y"), shape = tensor("shape", 7, two, 1);
    put_bytes(&shape, 7, "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11); /* 0, -1 packed */
    CHECK_INT(run_node(&n, &shape, 14, dims, 2, counting, &t, y), 6);
    CHECK(t.rank == 2 && t.dims[0] == 2 && t.dims[1] == 3);
    bytes zero = tensor("shape", 7, two, 1);
    put_bytes(&zero, 7, "\x03\x00", 2);
    put_attribute(&n, "allowzero", 3, NULL, 0, 1);
    CHECK_INT(run_node(&n, &zero, 14, none, 2, counting, &t, y), 0);
    CHECK(t.rank == 2 && t.dims[0] == 3 && t.dims[1] == 0);
    CHECK_INT(run_node(&n, &shape, 14, dims, 2, counting, &t, y), -1);
}

TEST(same_lower_pads_the_beginning_and_ceil_mode_ends_in_the_input) {
    static const int64_t dims[] = { 1, 1, 4 }, k2[] = { 2 }, k3[] = { 3 }, pads[] = { 1, 1 };
    double y[64];
    onnx_tensor t;
    bytes n = node("MaxPool", "x", "y");
    put_ints(&n, "kernel_shape", k2, 1, true);
    put_attribute(&n, "auto_pad", 4, "SAME_LOWER", 10, 0);
    CHECK_VALUES(run_node(&n, NULL, 12, dims, 3, counting, &t, y), y, 1, 2, 3, 4);
    bytes u = node("MaxPool", "x", "y");
    put_ints(&u, "kernel_shape", k2, 1, false);
    put_attribute(&u, "auto_pad", 4, "SAME_UPPER", 10, 0);
    CHECK_VALUES(run_node(&u, NULL, 12, dims, 3, counting, &t, y), y, 2, 3, 4, 4);
    bytes c = node("AveragePool", "x", "y");
    put_ints(&c, "kernel_shape", k2, 1, true);
    put_ints(&c, "strides", k3, 1, true);
    put_ints(&c, "pads", pads, 2, true);
    put_attribute(&c, "ceil_mode", 3, NULL, 0, 1);
    CHECK_VALUES(run_node(&c, NULL, 19, dims, 3, counting, &t, y), y, 1,
                 3.5); /* a third window would begin in the pads */
}

/* y = Identity(w) of a tensor of the file. */
static int run_tensor(const bytes *w, onnx_tensor *t, double y[64]) {
    static const int64_t one[] = { 1 };
    bytes n = node("Identity", "w", "y");
    return run_node(&n, w, 21, one, 1, counting, t, y);
}

TEST(tensors_are_read_from_every_field_packed_or_not) {
    static const int64_t three[] = { 3 };
    double y[64];
    onnx_tensor t;
    bytes half = tensor("w", ONNX_FLOAT16, three, 1), each = tensor("w", ONNX_INT8, three, 1);
    bytes four = tensor("w", ONNX_INT4, three, 1), many = tensor("w", ONNX_UINT4, three, 1);
    put_bytes(&half, 5, "\x80\x78\x00\x80\x88\x03", 6); /* 15360 (1), 0, 50176 (-4) */
    CHECK_INT(run_tensor(&half, &t, y), 3);
    CHECK(t.type == ONNX_FLOAT16 && ((const uint16_t *)t.data)[0] == 15360 && ((const uint16_t *)t.data)[2] == 50176);
    put_number(&each, 5, 7);
    put_number(&each, 5, (uint64_t)-5);
    put_bytes(&each, 5, "\x09", 1);
    CHECK_VALUES(run_tensor(&each, &t, y), y, 7, -5, 9);
    put_bytes(&four, 9, "\xf1\x08", 2); /* two a byte, the lower first; the last half is not used */
    CHECK_VALUES(run_tensor(&four, &t, y), y, 1, -1, -8);
    put_bytes(&many, 5, "\xf1\x01\x08", 3); /* the same as numbers of a byte each */
    CHECK_VALUES(run_tensor(&many, &t, y), y, 1, 15, 8);
}

TEST(floats_and_doubles_in_pieces_are_joined) {
    static const int64_t three[] = { 3 };
    double y[64];
    onnx_tensor t;
    bytes f = tensor("w", ONNX_FLOAT, three, 1);
    f.at[f.n++] = 4 << 3 | 5;
    memcpy(f.at + f.n, "\0\0\x80\x3f", 4);
    f.n += 4;
    put_bytes(&f, 4, "\0\0\0\x40\0\0\x40\x40", 8);
    CHECK_VALUES(run_tensor(&f, &t, y), y, 1, 2, 3);
}

TEST(initialiser_that_is_an_input_is_its_default) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes g = { .n = 0 }, n = node("Add", "x,w", "y"), x = value("x", 1, dims, 1), w = value("w", 1, dims, 1);
    bytes def = tensor("w", 1, dims, 1), name = { .n = 0 };
    put_bytes(&def, 9, "\0\0\x80\x3f\0\0\0\x40", 8);
    put_text(&name, 1, "y");
    put_message(&g, 1, &n);
    put_message(&g, 5, &def);
    put_message(&g, 11, &x);
    put_message(&g, 11, &w);
    put_message(&g, 12, &name);
    bytes m = model_of(&g, 13);
    CHECK_VALUES(run(&m, dims, 1, counting, &t, y), y, 2, 4);
}

/* If(cond) with branches that use x of the graph around them. */
static bytes branch(const char *op) {
    bytes g = { .n = 0 }, n = node(op, "x", "z"), name = { .n = 0 };
    put_text(&name, 1, "z");
    put_message(&g, 1, &n);
    put_message(&g, 12, &name);
    return g;
}

TEST(branches_see_values_of_the_graph_around_them) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    for (int yes = 0; yes < 2; yes++) {
        bytes n = node("If", "w", "y"), w = tensor("w", ONNX_BOOL, NULL, 0), a = branch("Neg"), b = branch("Identity");
        put_bytes(&w, 9, yes ? "\1" : "\0", 1);
        put_attribute(&n, "then_branch", 6, a.at, a.n, 0);
        put_attribute(&n, "else_branch", 6, b.at, b.n, 0);
        CHECK_VALUES(run_node(&n, &w, 13, dims, 1, counting, &t, y), y, yes ? -1 : 1, yes ? -2 : 2);
    }
}

/* y = Relu(BatchNormalization(Conv(x)) + x), the convolution of one channel by 2. The number that joined it. */
static int64_t joined(bool also, double y[4]) {
    static const float w[] = { 2 }, stats[4][1] = { { 3 }, { 1 }, { 4 }, { 8.99999f } }, x[] = { 1, 2, 3, 4 };
    static const char *const names[] = { "gain", "bias", "mean", "var" };
    const int64_t dims[] = { 1, 1, 2, 2 }, one[] = { 1 };
    bytes g = { .n = 0 }, conv = node("Conv", "x,w", "c"),
          norm = node("BatchNormalization", "c,gain,bias,mean,var", "n"), add = node("Add", also ? "n,c" : "n,x", "a"),
          relu = node("Relu", "a", "y"), name = { .n = 0 };
    bytes vx = value("x", 1, dims, 4), tw = tensor("w", 1, (const int64_t[]){ 1, 1, 1, 1 }, 4);
    put_message(&g, 1, &conv);
    put_message(&g, 1, &norm);
    put_message(&g, 1, &add);
    put_message(&g, 1, &relu);
    put_text(&g, 2, "g");
    put_bytes(&tw, 9, w, sizeof w);
    put_message(&g, 5, &tw);
    for (int i = 0; i < 4; i++) {
        bytes t = tensor(names[i], 1, one, 1);
        put_bytes(&t, 9, stats[i], sizeof stats[i]);
        put_message(&g, 5, &t);
    }
    put_message(&g, 11, &vx);
    put_text(&name, 1, "y");
    put_message(&g, 12, &name);
    bytes m = model_of(&g, 15);
    gn_ctx *ctx = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    onnx *o = onnx_open(file_of("model.onnx", m.at, m.n), error);
    onnx_session *s = o ? onnx_session_open(o, ctx, NULL, error) : NULL;
    onnx_tensor in = { .type = ONNX_FLOAT, .rank = 4, .dims = { 1, 1, 2, 2 }, .elements = 4, .data = x, .bytes = 16 },
                t;
    int64_t n = -1;
    for (int turn = 0; turn < 2 && s; turn++) { /* the second build finds the weights of the first */
        bool ok = onnx_bind(s, "x", &in, error) && onnx_build(s, error) && onnx_run(s, error) &&
                  onnx_result(s, 0, 0, &t, error);
        if (!CHECK(ok)) break;
        n = onnx_get_counts(s).joined;
        for (int i = 0; i < 4; i++) y[i] = (double)((const float *)t.data)[i];
    }
    onnx_session_close(s);
    onnx_close(o);
    gn_close(ctx);
    return n;
}

/* (2 x - 4) / 3 * 3 + 1 + x, or + 2 x. */
TEST(norm_sum_and_bound_behind_a_convolution_join_it) {
    double y[4];
    CHECK_INT(joined(false, y), 3);
    const double want[] = { 0, 3, 6, 9 }, doubled[] = { 1, 5, 9, 13 };
    for (int i = 0; i < 4; i++) CHECK(fabs(y[i] - want[i]) < 1e-5);
    CHECK_INT(joined(true, y), 0); /* what is used twice stays by itself */
    for (int i = 0; i < 4; i++) CHECK(fabs(y[i] - doubled[i]) < 1e-5);
}

TEST(what_is_recognised_is_counted_with_its_repetitions) {
    static const char text[] =
        "23 ops in 16 groups, least latency: 1 of 1 device used\n"
        "cpu:0, 900 ns to 54 us: conv, 4 x conv, 3 x (conv, residual, add), 2 x gather, norm again, linear - the only "
        "device\n"
        "@s.url/cpu:1, 1 ms to 2 ms: 2 x (patch embedding, conv)\n"
        "within groups: residual 16, positional embedding 1\n"
        "crosses: 49 kB of conv from cpu:0 to cpu:1, residual\n"
        "kernels: conv takes 2 more: linear, conv to do\n";
    int64_t counts[OM_ROLES] = { 0 };
    om_count_roles(text, counts);
    for (int k = 0; k < OM_ROLES; k++)
        CHECK_INT(counts[k], k == GN_ROLE_CONV        ? 10
                             : k == GN_ROLE_RESIDUAL  ? 19
                             : k == GN_ROLE_POSITIONS ? 1
                             : k == GN_ROLE_PATCHES   ? 2
                             : k == GN_ROLE_LINEAR    ? 1
                                                      : 0);
}

/* Blocks as ResNet has them: what is counted is every convolution, in runs of like ones or not. */
TEST(convolutions_of_a_chain_of_blocks_are_recognised_one_for_one) {
    static const int64_t dims[] = { 1, 4, 8, 8 }, square[] = { 4, 4, 3, 3 }, pads[] = { 1, 1, 1, 1 };
    static const float pixels[256] = { 1 };
    static float weights[4 * 4 * 9];
    bytes nodes[17];
    int n = 0;
    char in[16] = "x", mid[16], out[16], two[40];
    for (int i = 0; i < 144; i++) weights[i] = (float)(i % 7) / 8;
    for (int b = 0; b < 4; b++) { /* conv, Relu, conv, Add */
        snprintf(mid, sizeof mid, "m%d", b);
        snprintf(out, sizeof out, "o%d", b);
        snprintf(two, sizeof two, "%s,w", in);
        nodes[n] = node("Conv", two, mid);
        put_ints(&nodes[n++], "pads", pads, 4, true);
        snprintf(two, sizeof two, "r%d", b);
        nodes[n++] = node("Relu", mid, two);
        strcat(two, ",w");
        snprintf(mid, sizeof mid, "c%d", b);
        nodes[n] = node("Conv", two, mid);
        put_ints(&nodes[n++], "pads", pads, 4, true);
        snprintf(two, sizeof two, "%s,%s", mid, in);
        nodes[n++] = node("Add", two, b == 3 ? "y" : out);
        memcpy(in, out, sizeof in);
    }
    bytes g = body_of(nodes, n, "", "y"), x = value("x", 1, dims, 4), w = tensor("w", 1, square, 4);
    put_bytes(&w, 9, weights, sizeof weights);
    put_message(&g, 5, &w);
    put_message(&g, 11, &x);
    bytes m = model_of(&g, 13);
    char said[256];
    gn_ctx *ctx = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    onnx *o = onnx_open(file_of("model.onnx", m.at, m.n), error);
    onnx_session *s = o ? onnx_session_open(o, ctx, NULL, error) : NULL;
    onnx_tensor t = { .type = ONNX_FLOAT, .rank = 4, .dims = { 1, 4, 8, 8 }, .elements = 256, .data = pixels };
    t.bytes = sizeof pixels;
    if (CHECK(s && onnx_bind(s, "x", &t, error) && onnx_build(s, error))) {
        om_recognise(s, said, sizeof said);
        CHECK_STR(said, "conv 8");
    }
    onnx_session_close(s);
    onnx_close(o);
    gn_close(ctx);
}

/* Version 8: of each sequence of a batch; lengths, its first input, are not read. */
TEST(scan_of_version_8_takes_batches_and_refuses_lengths) {
    static const int64_t dims[] = { 2, 3 };
    for (int given = 0; given < 2; given++) {
        double y[64] = { 0 };
        onnx_tensor t;
        bytes n = node("Scan", given ? "x,x" : ",x", "y"), g = { .n = 0 }, one = node("Neg", "v", "o");
        bytes in = { .n = 0 }, out = { .n = 0 };
        put_message(&g, 1, &one);
        put_text(&in, 1, "v");
        put_message(&g, 11, &in);
        put_text(&out, 1, "o");
        put_message(&g, 12, &out);
        put_attribute(&n, "body", 6, g.at, g.n, 0);
        put_attribute(&n, "num_scan_inputs", 3, NULL, 0, 1);
        CHECK_INT(run_node(&n, NULL, 8, dims, 2, counting, &t, y), given ? -1 : 6);
        if (!given) CHECK(t.rank == 2 && t.dims[0] == 2 && t.dims[1] == 3 && y[5] == -(double)counting[5]);
    }
}

TEST(loop_without_end_is_refused) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes n = node("Loop", ",,x", "y"), g = { .n = 0 }, one = node("Identity", "v", "o"), name = { .n = 0 };
    static const char *const in[] = { "i", "c", "v" }, *const out[] = { "c", "o" };
    put_message(&g, 1, &one);
    for (int i = 0; i < 3; i++) {
        name.n = 0;
        put_text(&name, 1, in[i]);
        put_message(&g, 11, &name);
    }
    for (int i = 0; i < 2; i++) {
        name.n = 0;
        put_text(&name, 1, out[i]);
        put_message(&g, 12, &name);
    }
    put_attribute(&n, "body", 6, g.at, g.n, 0);
    CHECK_INT(run_node(&n, NULL, 13, dims, 1, counting, &t, y), -1);
    CHECK(strstr(error, "nodes in one build") || strstr(error, "MiB"));
}

/* y: what no turn of a loop over x (2,3) made of each of its turns. */
static void loop_of_none(const bytes *b, onnx_tensor *t, int want) {
    static const int64_t dims[] = { 2, 3 };
    double y[64];
    bytes n = node("Loop", "w,,x", "last,y"), w = tensor("w", ONNX_INT64, NULL, 0);
    put_number(&w, 7, 0);
    put_attribute(&n, "body", 6, b->at, b->n, 0);
    CHECK_INT(run_node(&n, &w, 13, dims, 2, counting, t, y), want);
}

TEST(loop_of_no_turns_gives_type_and_shape_of_what_it_would_make) {
    static const int64_t open[] = { -1, 7 }, dims[] = { 2, 0, 3 };
    double y[64];
    onnx_tensor t = { .rank = 0 };
    bytes nodes[2] = { node("Identity", "v", "o"), node("Cast", "v", "s") };
    put_attribute(&nodes[1], "to", 3, NULL, 0, ONNX_INT64);
    bytes body = body_of(nodes, 2, "i,c,v", "c,o,s");
    loop_of_none(&body, &t, 0);
    CHECK(t.type == ONNX_INT64 && t.rank == 3 && t.dims[0] == 0 && t.dims[1] == 2 && t.dims[2] == 3);
    bytes declared = value("s", ONNX_DOUBLE, open, 2);
    nodes[1] = node("Reshape", "v,v", "s"); /* cannot be built: what is declared has to do */
    body = body_of(nodes, 2, "i,c,v", "c,o");
    put_message(&body, 12, &declared);
    loop_of_none(&body, &t, 0);
    CHECK(t.type == ONNX_DOUBLE && t.rank == 3 && t.dims[0] == 0 && t.dims[1] == 0 && t.dims[2] == 7);
    body = body_of(nodes, 2, "i,c,v", "c,o,s");
    loop_of_none(&body, &t, -1);
    bytes scan = node("Scan", "x", "y"), neg = node("Shape", "v", "s");
    body = body_of(&neg, 1, "v", "s");
    put_attribute(&scan, "body", 6, body.at, body.n, 0);
    put_attribute(&scan, "num_scan_inputs", 3, NULL, 0, 1);
    put_ints(&scan, "scan_input_axes", (const int64_t[]){ 1 }, 1, true);
    CHECK_INT(run_node(&scan, NULL, 13, dims, 3, counting, &t, y), 0);
    CHECK(t.type == ONNX_INT64 && t.rank == 2 && t.dims[0] == 0 && t.dims[1] == 2);
}

/* Version 7: more outputs than one mean training, and `spatial` 0 that each element has its own numbers. */
TEST(old_batch_norms_are_built_but_for_training_and_numbers_for_each_element) {
    static const int64_t dims[] = { 1, 2, 1 }, two[] = { 2 };
    static const char *const why[] = { "", "spatial 0", "output 3" };
    const double part = 1 / sqrt(1 + 1e-5); /* 0.5 (x - 0.5) / sqrt(1 + epsilon) + 0.5 */
    for (int i = 0; i < 3; i++) {
        double y[64];
        onnx_tensor t;
        bytes n = node("BatchNormalization", "x,w,w,w,one", i == 2 ? "y,,,saved" : "y"), w = tensor("w", 1, two, 1);
        put_bytes(&w, 9, "\0\0\0\x3f\0\0\0\x3f", 8); /* 0.5 */
        bytes nodes[2] = { node("Constant", NULL, "one"), n }, one = tensor("", 1, two, 1);
        put_bytes(&one, 9, "\0\0\x80\x3f\0\0\x80\x3f", 8);
        put_attribute(&nodes[0], "value", 5, one.at, one.n, 0);
        put_attribute(&nodes[1], "spatial", 3, NULL, 0, i != 1);
        bytes g = body_of(nodes, 2, "", "y"), x = value("x", 1, dims, 3);
        put_message(&g, 5, &w);
        put_message(&g, 11, &x);
        bytes m = model_of(&g, 7);
        int got = run(&m, dims, 3, counting, &t, y);
        if (!i) CHECK_VALUES(got, y, 0.5 + 0.25 * part, 0.5 + 0.75 * part);
        else CHECK(got < 0 && strstr(error, why[i]));
    }
}

TEST(function_of_the_model_takes_attributes_of_its_caller) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes f = { .n = 0 }, inner = node("LeakyRelu", "a", "b"), set = { .n = 0 }, a = { .n = 0 }, attribute = { .n = 0 };
    put_text(&attribute, 1, "alpha");
    put_text(&attribute, 21, "slope");
    put_message(&inner, 5, &attribute);
    put_text(&f, 1, "Mine");
    put_text(&f, 4, "a");
    put_text(&f, 5, "b");
    put_text(&f, 6, "slope");
    put_message(&f, 7, &inner);
    put_number(&set, 2, 16);
    put_message(&f, 9, &set);
    put_text(&f, 10, "own");
    bytes g = { .n = 0 }, n = node("Mine", "x", "y"), x = value("x", 1, dims, 1), name = { .n = 0 };
    put_text(&n, 7, "own");
    put_text(&a, 1, "slope");
    a.at[a.n++] = 2 << 3 | 5;
    memcpy(a.at + a.n, "\0\0\0\x3f", 4); /* 0.5 */
    a.n += 4;
    put_message(&n, 5, &a);
    put_text(&name, 1, "y");
    put_message(&g, 1, &n);
    put_message(&g, 11, &x);
    put_message(&g, 12, &name);
    bytes m = model_of(&g, 16);
    put_message(&m, 25, &f);
    static const float minus[2] = { -2, 4 };
    CHECK_VALUES(run(&m, dims, 1, minus, &t, y), y, -1, 4);
}

/* ---- what is refused ---- */

static void refused(const bytes *m, const char *why) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    error[0] = 0;
    CHECK_INT(run(m, dims, 1, counting, &t, y), -1);
    if (!strstr(error, why)) test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", error, why);
}

static bytes simple(const bytes *nd, const bytes *w, int opset) {
    static const int64_t dims[] = { 2 };
    bytes g = { .n = 0 }, x = value("x", 1, dims, 1), name = { .n = 0 };
    put_text(&name, 1, "y");
    put_message(&g, 1, nd);
    if (w) put_message(&g, 5, w);
    put_message(&g, 11, &x);
    put_message(&g, 12, &name);
    return model_of(&g, opset);
}

/* How many nodes of y = -ConstantOfShape(n) are folded when it is built for n floats. */
static int64_t folded(int64_t n) {
    static const int64_t one[] = { 1 };
    bytes g = { .n = 0 }, shape = tensor("n", ONNX_INT64, one, 1), name = { .n = 0 };
    bytes make = node("ConstantOfShape", "n", "c"), turn = node("Neg", "c", "y");
    put_number(&shape, 7, (uint64_t)n);
    put_text(&name, 1, "y");
    put_message(&g, 1, &make);
    put_message(&g, 1, &turn);
    put_message(&g, 5, &shape);
    put_message(&g, 12, &name);
    bytes m = model_of(&g, 13);
    gn_ctx *c = gn_open(&(gn_desc){ .devices = "null" });
    onnx *o = onnx_open(file_of("model.onnx", m.at, m.n), error);
    onnx_session *s = o ? onnx_session_open(o, c, NULL, error) : NULL;
    int64_t count = s && onnx_build(s, error) ? onnx_get_counts(s).folded : -1;
    onnx_session_close(s);
    onnx_close(o);
    gn_close(c);
    return count;
}

TEST(constants_are_folded_up_to_64_mib) {
    CHECK_INT(folded(4), 2);
    CHECK_INT(folded(16 << 20), 2);
    CHECK_INT(folded((16 << 20) + 1), 0);
}

/* y = the trees of x (1,2) of one node and two leaves: what is 4 at the most goes to `yes`, all else to leaf 1. */
static bytes tree_of(int64_t feature, int64_t yes, int64_t is_leaf, int64_t target, uint64_t after) {
    static const int64_t zero[] = { 0 }, one[] = { 1 }, rows[] = { 1, 2 }, two[] = { 2 };
    const int64_t targets[] = { 0, target };
    bytes n = node("TreeEnsemble", "x", "y"), g = { .n = 0 }, x = value("x", 1, rows, 2), name = { .n = 0 };
    bytes mode = tensor("m", ONNX_UINT8, one, 1), split = tensor("s", 1, one, 1), weight = tensor("w", 1, two, 1);
    put_text(&n, 7, "ai.onnx.ml");
    put_ints(&n, "tree_roots", zero, 1, true);
    put_ints(&n, "nodes_featureids", &feature, 1, true);
    put_ints(&n, "nodes_truenodeids", &yes, 1, true);
    put_ints(&n, "nodes_trueleafs", &is_leaf, 1, true);
    put_ints(&n, "nodes_falsenodeids", one, 1, true);
    put_ints(&n, "nodes_falseleafs", one, 1, true);
    put_ints(&n, "leaf_targetids", targets, 2, true);
    put_attribute(&n, "n_targets", 3, NULL, 0, 2);
    put_attribute(&n, "post_transform", 3, NULL, 0, after);
    put_bytes(&mode, 9, "\0", 1);
    put_bytes(&split, 9, "\0\0\x80\x40", 4);
    put_bytes(&weight, 9, "\0\0\x80\x3f\0\0\0\x40", 8);
    put_attribute(&n, "nodes_modes", 5, mode.at, mode.n, 0);
    put_attribute(&n, "nodes_splits", 5, split.at, split.n, 0);
    put_attribute(&n, "leaf_weights", 5, weight.at, weight.n, 0);
    put_text(&name, 1, "y");
    put_message(&g, 1, &n);
    put_message(&g, 11, &x);
    put_message(&g, 12, &name);
    bytes m = model_of(&g, 21), set = { .n = 0 };
    put_text(&set, 1, "ai.onnx.ml");
    put_number(&set, 2, 5);
    put_message(&m, 8, &set);
    return m;
}

TEST(trees_lead_to_leaves_and_their_results_are_transformed) {
    static const int64_t rows[] = { 1, 2 };
    const double e = exp(1), share = 1 / (1 + exp(-2));
    double y[64];
    onnx_tensor t;
    bytes m = tree_of(0, 0, 1, 1, 0);
    CHECK_VALUES(run(&m, rows, 2, counting, &t, y), y, 1, 0);     /* 1 is 4 at the most */
    CHECK_VALUES(run(&m, rows, 2, counting + 6, &t, y), y, 0, 2); /* 7 is more */
    m = tree_of(0, 0, 1, 1, 1);
    CHECK_VALUES(run(&m, rows, 2, counting, &t, y), y, e / (e + 1), 1 / (e + 1));
    m = tree_of(0, 0, 1, 1, 2);
    CHECK_VALUES(run(&m, rows, 2, counting + 6, &t, y), y, 0.5, share);
}

TEST(trees_that_lead_back_or_lie_are_refused) {
    static const int64_t rows[] = { 1, 2 };
    static const struct {
        int64_t feature, yes, is_leaf, target;
        uint64_t after;
        const char *why;
    } wrong[] = { { 0, 0, 0, 1, 0, "that lead back" },
                  { 2, 0, 1, 1, 0, "node 0 asks for feature 2 of 2" },
                  { -1, 0, 1, 1, 0, "node 0 asks for feature -1 of 2" },
                  { 0, 2, 1, 1, 0, "'nodes_truenodeids': there is no 2" },
                  { 0, 1, 0, 1, 0, "'nodes_truenodeids': there is no 1" },
                  { 0, 0, 1, 2, 0, "there is no target 2" },
                  { 0, 0, 1, 1, 4, "not transformed by 4" } };
    double y[64];
    onnx_tensor t;
    for (int i = 0; i < TEST_COUNT(wrong); i++) {
        bytes m = tree_of(wrong[i].feature, wrong[i].yes, wrong[i].is_leaf, wrong[i].target, wrong[i].after);
        CHECK_INT(run(&m, rows, 2, counting, &t, y), -1);
        if (!strstr(error, wrong[i].why)) test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", error, wrong[i].why);
    }
}

/* The lines about a model of that graph that its session gives before anything is built. */
static const char *listed(const bytes *m) {
    static char text[4096];
    FILE *f = fmemopen(text, sizeof text, "w");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    onnx *o = onnx_open(file_of("model.onnx", m->at, m->n), error);
    onnx_session *s = o ? onnx_session_open(o, g, f, error) : NULL;
    CHECK(o && !s);
    onnx_session_close(s);
    onnx_close(o);
    gn_close(g);
    fclose(f);
    return text;
}

/* ---- ai.onnx.ml ---- */

/* An attribute "name" of text, of ints (i:) or of floats (f:), separated by commas: "norm=L1", "labels=i:1,2". */
static void put_spec(bytes *n, const char *spec) {
    char name[64], one[64];
    bytes a = { .n = 0 };
    size_t length = strcspn(spec, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, spec);
    const char *p = spec + length + 1;
    bool ints = p[0] == 'i' && p[1] == ':', floats = p[0] == 'f' && p[1] == ':', texts = p[0] == 's' && p[1] == ':';
    put_text(&a, 1, name);
    if (!ints && !floats && !texts) put_text(&a, 4, p);
    for (p += 2; (ints || floats || texts) && *p; p += strcspn(p, ","), p += *p == ',') {
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        float v = (float)atof(one);
        if (ints) put_number(&a, 8, (uint64_t)atoll(one));
        else if (texts) put_text(&a, 9, one);
        else put_bytes(&a, 7, &v, sizeof v);
    }
    put_message(n, 5, &a);
}

/* y = op(x) of ai.onnx.ml with attributes that are separated by spaces. */
static bytes ml_model(const char *op, const char *in, const char *specs, int version) {
    bytes n = node(op, in, "y"), set = { .n = 0 };
    put_text(&n, 7, "ai.onnx.ml");
    for (const char *p = specs; *p; p += strcspn(p, " "), p += *p == ' ') {
        char one[400];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, " "), p);
        put_spec(&n, one);
    }
    bytes m = simple(&n, NULL, 18);
    put_text(&set, 1, "ai.onnx.ml");
    put_number(&set, 2, (uint64_t)version);
    put_message(&m, 8, &set);
    return m;
}

#define TREE_MODES \
    "nodes_treeids=i:3,3,3 nodes_nodeids=i:0,1,2 nodes_modes=s:BRANCH_LEQ,LEAF,LEAF nodes_values=f:1.5,0,0 "
#define TREE_NODES TREE_MODES "nodes_truenodeids=i:1,0,0 nodes_falsenodeids=i:2,0,0 "
#define TREE TREE_NODES "nodes_featureids=i:1,0,0 "
#define LEAVES(kind) kind "_treeids=i:3,3 " kind "_nodeids=i:1,2 " kind "_ids=i:0,0 " kind "_weights=f:5,7"

TEST(models_of_attributes_are_computed) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes m = ml_model("Scaler", "x", "offset=f:1,1 scale=f:2,3", 1);
    CHECK_VALUES(run(&m, dims, 1, counting, &t, y), y, 0, 3);
    m = ml_model("TreeEnsembleRegressor", "x", TREE LEAVES("target"), 3);
    CHECK_VALUES(run(&m, dims, 1, counting, &t, y), y, 7); /* 2 is more than 1.5 */
    m = ml_model("TreeEnsembleClassifier", "x", TREE LEAVES("class") " classlabels_int64s=i:8,9", 3);
    CHECK_VALUES(run(&m, dims, 1, counting, &t, y), y, 9);
}

/* An op's model that is refused. */
typedef struct ml_refusal {
    const char *op, *specs, *why;
} ml_refusal;

static void check_refused(const ml_refusal *wrong, int n) {
    for (int i = 0; i < n; i++) {
        bytes m = ml_model(wrong[i].op, "x", wrong[i].specs, 4);
        refused(&m, wrong[i].why);
    }
}

TEST(attributes_of_models_that_do_not_fit_are_refused) {
    static const ml_refusal wrong[] = {
        { "Scaler", "offset=f:1,2,3", "3 numbers in 'offset', 2 are needed" },
        { "Normalizer", "norm=L3", "known are MAX, L1, L2" },
        { "Imputer", "imputed_value_int64s=i:1", "no value for FLOAT to put in" },
        { "FeatureVectorizer", "inputdimensions=i:1,2", "2 numbers in 'inputdimensions', 1 are needed" },
        { "FeatureVectorizer", "inputdimensions=i:-1", "input 0 of width -1" },
        { "LabelEncoder", "keys_floats=f:1,2 values_int64s=i:1", "2 keys and 1 values" },
        { "LabelEncoder", "keys_int64s=i:1 values_int64s=i:1", "keys of another type than FLOAT" },
        { "LabelEncoder", "keys_floats=f:1", "none of 'values_int64s', 'values_floats' and 'values_tensor'" },
        { "LabelEncoder", "keys_strings=s:a values_int64s=i:1", "'keys_strings': strings are not held" },
        { "OneHotEncoder", "cats_strings=s:a", "'cats_strings': strings are not held" },
        { "LinearRegressor", "coefficients=f:1,2,3", "3 numbers in 'coefficients', 2 are needed" },
        { "LinearRegressor", "coefficients=f:1,2 post_transform=odd", "known are NONE, SOFTMAX" },
        { "LinearClassifier", "coefficients=f:1,2 intercepts=f:1 classlabels_ints=i:1", "1 labels of 1 intercepts" },
        { "LinearClassifier", "coefficients=f:1,2 intercepts=f:1", "there are no 'classlabels_ints'" },
        { "SVMRegressor", "coefficients=f:1,2 rho=f:1,2", "2 numbers in 'rho', 1 are needed" },
        { "SVMRegressor", "coefficients=f:1,2 rho=f:1 post_transform=LOGISTIC", "only the post_transform NONE" },
        { "SVMClassifier", "classlabels_ints=i:1,2 vectors_per_class=i:1,-1", "-1 vectors of class 1" },
        { "SVMClassifier", "classlabels_ints=i:1,2 vectors_per_class=i:1", "1 numbers in 'vectors_per_class'" },
        { "SVMClassifier", "classlabels_ints=i:1,2 vectors_per_class=i:1,1 coefficients=f:1", "1 coefficients, 2 are" },
        { "SVMClassifier",
          "classlabels_ints=i:1,2 vectors_per_class=i:1,1 coefficients=f:1,2 rho=f:1 support_vectors=f:1",
          "1 numbers in 'support_vectors', 4 are needed" },
        { "ZipMap", "classlabels_int64s=i:1,2,3", "3 keys of 2 values" },
        { "ZipMap", "", "there are no 'classlabels_int64s'" },
        { "CastMap", "", "input 0 is no map" },
        { "DictVectorizer", "int64_vocabulary=i:1", "input 0 is no map" },
    };
    check_refused(wrong, TEST_COUNT(wrong));
}

TEST(trees_of_old_versions_that_do_not_fit_are_refused) {
    static const ml_refusal wrong[] = {
        { "TreeEnsembleRegressor", TREE_NODES "nodes_featureids=i:2,0,0 " LEAVES("target"), "asks for feature 2 of 2" },
        { "TreeEnsembleRegressor", TREE_NODES "nodes_featureids=i:1,0 " LEAVES("target"),
          "2 numbers in 'nodes_featur" },
        { "TreeEnsembleRegressor",
          TREE_MODES "nodes_truenodeids=i:0,0,0 nodes_falsenodeids=i:2,0,0 nodes_featureids=i:1,0,0 " LEAVES("target"),
          "that lead back" },
        { "TreeEnsembleRegressor",
          TREE_MODES "nodes_truenodeids=i:5,0,0 nodes_falsenodeids=i:2,0,0 nodes_featureids=i:1,0,0 " LEAVES("target"),
          "tree 3 has no node 5" },
        { "TreeEnsembleRegressor",
          "nodes_treeids=i:3,3 nodes_nodeids=i:1,1 nodes_modes=s:LEAF,LEAF nodes_values=f:0,0 "
          "nodes_truenodeids=i:0,0 nodes_falsenodeids=i:0,0 nodes_featureids=i:0,0",
          "node 1 of tree 3 is there twice" },
        { "TreeEnsembleRegressor",
          "nodes_treeids=i:3 nodes_nodeids=i:1 nodes_modes=s:ODD nodes_values=f:0 "
          "nodes_truenodeids=i:0 nodes_falsenodeids=i:0 nodes_featureids=i:0",
          "node 0 has the mode 'ODD'" },
        { "TreeEnsembleRegressor", "nodes_treeids=i:", "there are no nodes" },
        { "TreeEnsembleRegressor", TREE "target_treeids=i:3 target_nodeids=i:4 target_ids=i:0 target_weights=f:5",
          "tree 3 has no node 4" },
        { "TreeEnsembleRegressor", TREE "target_treeids=i:3 target_nodeids=i:1 target_ids=i:1 target_weights=f:5",
          "there is no target 1" },
        { "TreeEnsembleRegressor",
          TREE "target_treeids=i:3,3 target_nodeids=i:1,1 target_ids=i:0,0 target_weights=f:5,6",
          "two weights of one target" },
        { "TreeEnsembleRegressor", TREE LEAVES("target") " base_values=f:1,2", "2 numbers in 'base_values', 1 are" },
        { "TreeEnsembleClassifier",
          TREE "class_treeids=i:3,3 class_nodeids=i:1,2 class_ids=i:0,1 class_weights=f:5,6 classlabels_int64s=i:8,9",
          "weights for both" },
        { "TreeEnsembleClassifier", TREE LEAVES("class") " classlabels_strings=s:a,b", "strings are not held" },
    };
    check_refused(wrong, TEST_COUNT(wrong));
}

/* Regions of no size, or of too many samples, whose counts are read while the step is built. */
TEST(regions_without_a_size_are_refused) {
    static const struct {
        float region[5];
        const char *op, *why;
    } wrong[] = { { { 0, 0, 2048, 1, 0 }, "RoiAlign", "region 0 takes 2048 samples a cell: at most 1024" },
                  { { 0, 0, NAN, 1, 0 }, "RoiAlign", "region 0 takes nan samples" },
                  { { 2, 0, 0, 1, 1 }, "MaxRoiPool", "region 0 is of image 2" },
                  { { -1, 0, 0, 1, 1 }, "MaxRoiPool", "region 0 is of image -1" },
                  { { 0, 0, 0, NAN, 1 }, "MaxRoiPool", "has no size" },
                  { { 0, 0, 0, 1e30f, 1 }, "MaxRoiPool", "has no size" } };
    static const int64_t dims[] = { 1, 1, 2, 2 }, one[] = { 1 };
    for (int i = 0; i < TEST_COUNT(wrong); i++) {
        bool align = wrong[i].op[0] == 'R';
        const int64_t shape[] = { 1, align ? 4 : 5 };
        bytes n = node(wrong[i].op, align ? "x,r,w" : "x,r", "y"), r = tensor("r", 1, shape, 2),
              w = tensor("w", 7, one, 1), g = body_of(&n, 1, "", "y"), x = value("x", 1, dims, 4);
        double y[64];
        onnx_tensor t;
        if (!align) {
            put_ints(&n, "pooled_shape", (const int64_t[]){ 1, 1 }, 2, true);
            g = body_of(&n, 1, "", "y");
        }
        put_bytes(&r, 9, wrong[i].region, align ? 16 : 20);
        put_bytes(&w, 9, "\0\0\0\0\0\0\0\0", 8);
        put_message(&g, 5, &r);
        put_message(&g, 5, &w);
        put_message(&g, 11, &x);
        bytes m = model_of(&g, 16);
        CHECK_INT(run(&m, dims, 4, counting, &t, y), -1);
        if (!strstr(error, wrong[i].why)) test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", error, wrong[i].why);
    }
}

/* ---- what is declared ---- */

/* A value's declaration as a map from `key`, or as a sequence of those. */
static bytes map_value(const char *name, int key, bool many) {
    bytes v = { .n = 0 }, tensor_type = { .n = 0 }, of = { .n = 0 }, map = { .n = 0 }, type = { .n = 0 };
    put_number(&tensor_type, 1, ONNX_FLOAT);
    put_message(&of, 1, &tensor_type);
    put_number(&map, 1, (uint64_t)key);
    put_message(&map, 2, &of);
    put_message(&type, 5, &map);
    if (many) {
        bytes inner = { .n = 0 }, outer = { .n = 0 };
        put_message(&inner, 1, &type);
        put_message(&outer, 4, &inner);
        type = outer;
    }
    put_text(&v, 1, name);
    put_message(&v, 2, &type);
    return v;
}

/* y = ZipMap(x), and its declaration. */
static bytes zipped(const bytes *declared) {
    static const int64_t dims[] = { 2 };
    bytes n = node("ZipMap", "x", "y"), g = { .n = 0 }, x = value("x", 1, dims, 1), set = { .n = 0 };
    put_text(&n, 7, "ai.onnx.ml");
    put_spec(&n, "classlabels_int64s=i:5,3");
    put_message(&g, 1, &n);
    put_message(&g, 11, &x);
    put_message(&g, 12, declared);
    bytes m = model_of(&g, 18);
    put_text(&set, 1, "ai.onnx.ml");
    put_number(&set, 2, 1);
    put_message(&m, 8, &set);
    return m;
}

TEST(maps_are_results_of_keys_and_values_as_they_are_declared) {
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes v = map_value("y", ONNX_INT64, true), m = zipped(&v);
    CHECK_VALUES(run(&m, dims, 1, counting, &t, y), y, 3, 5); /* the keys, in order */
    v = map_value("y", ONNX_INT64, false);
    m = zipped(&v);
    refused(&m, "it makes 'y' as a sequence of maps of INT64 to FLOAT, declared is maps to FLOAT");
    v = map_value("y", ONNX_STRING, true);
    m = zipped(&v);
    refused(&m, "it makes 'y' as a sequence of maps of INT64");
    v = value("y", 1, dims, 1);
    m = zipped(&v);
    refused(&m, "declared is FLOAT");
    bytes n = node("Neg", "x", "y"), g = body_of(&n, 1, "", "y"), x = map_value("x", ONNX_INT64, false);
    put_message(&g, 11, &x);
    m = model_of(&g, 18);
    CHECK(strstr(listed(&m), "input 'x': maps are not given from outside: cut the graph behind"));
    bytes cut = { .n = 0 }, type = { .n = 0 };
    put_bytes(&type, 5, "\x12\x7f", 2); /* a map type whose value type is longer than it */
    put_text(&cut, 1, "x");
    put_message(&cut, 2, &type);
    g = body_of(&n, 1, "", "y");
    put_message(&g, 11, &cut);
    m = model_of(&g, 18);
    refused(&m, "a field of a map type is cut");
}

/* y = Abs(Neg(x)): what the graph says of the value between them, of an initialiser, and of what a branch makes. */
TEST(values_of_another_type_than_their_graph_declares_are_refused) {
    static const int64_t two[] = { 2 }, three[] = { 3 };
    bytes nodes[] = { node("Neg", "x", "a"), node("Abs", "a", "y") }, x = value("x", 1, two, 1);
    for (int i = 0; i < 3; i++) { /* as it is, another type, another shape */
        bytes g = body_of(nodes, 2, "", "y"),
              a = value("a", i == 1 ? ONNX_DOUBLE : ONNX_FLOAT, i == 2 ? three : two, 1);
        put_message(&g, 11, &x);
        put_message(&g, 13, &a);
        bytes m = model_of(&g, 13);
        if (i == 1) {
            refused(&m, "node 'a' (Neg, version 13): it makes 'a' as FLOAT, declared is DOUBLE");
            continue;
        }
        gn_ctx *ctx = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
        onnx *o = onnx_open(file_of("model.onnx", m.at, m.n), error);
        onnx_session *s = onnx_session_open(o, ctx, NULL, error);
        onnx_tensor in = { .type = ONNX_FLOAT, .rank = 1, .dims = { 2 }, .data = counting };
        CHECK(onnx_bind(s, "x", &in, error) && onnx_build(s, error));
        CHECK_INT(onnx_get_counts(s).odd_shapes, i == 2);
        CHECK_STR(onnx_odd_shape(s), i == 2 ? "node '' (Neg): it makes 'a' of shape (2), declared is (3)" : "");
        onnx_session_close(s);
        onnx_close(o);
        gn_close(ctx);
    }
    bytes w = tensor("w", 1, two, 1), integer = value("w", ONNX_INT64, two, 1), n = node("Add", "x,w", "y");
    put_bytes(&w, 9, "\0\0\x80\x3f\0\0\0\x40", 8);
    bytes g = body_of(&n, 1, "", "y");
    put_message(&g, 5, &w);
    put_message(&g, 11, &x);
    put_message(&g, 11, &integer);
    bytes m = model_of(&g, 13);
    refused(&m, "the initialiser 'w' is FLOAT, declared is INT64");
    bytes yes = { .n = 0 }, one = node("Neg", "x", "z"), z = value("z", ONNX_INT32, two, 1);
    put_message(&yes, 1, &one);
    put_message(&yes, 12, &z);
    bytes choose = node("If", "w", "y"), flag = tensor("w", ONNX_BOOL, NULL, 0);
    put_bytes(&flag, 9, "\1", 1);
    put_attribute(&choose, "then_branch", 6, yes.at, yes.n, 0);
    put_attribute(&choose, "else_branch", 6, yes.at, yes.n, 0);
    m = simple(&choose, &flag, 13);
    refused(&m, "node 'z' (Neg, version 13): it makes 'z' as FLOAT, declared is INT32");
}

TEST(what_cannot_be_built_is_refused_by_name) {
    static const int64_t two[] = { 2 }, three[] = { 3 };
    bytes n = node("Frobnicate", "x", "y"), m = simple(&n, NULL, 13);
    refused(&m, "node 'y' (Frobnicate, version 13): there is no such op here");
    n = node("Neg", "y", "y");
    m = simple(&n, NULL, 13);
    refused(&m, "go round in a cycle");
    refused(&m, "/model.onnx: byte 10, node 'y' (Neg, version 13): it uses 'y'");
    n = node("Neg", "x", "y");
    m = simple(&n, NULL, 3);
    refused(&m, "operator set 3");
    bytes s = tensor("w", ONNX_STRING, two, 1);
    n = node("Identity", "w", "y");
    m = simple(&n, &s, 13);
    refused(&m, "STRING is not held");
    bytes w = tensor("w", 1, three, 1);
    put_bytes(&w, 9, "12345678", 8);
    m = simple(&n, &w, 13);
    refused(&m, "raw data has another length");
    static const int64_t huge[] = { INT64_C(1) << 40, INT64_C(1) << 40 };
    w = tensor("w", 1, huge, 2);
    put_bytes(&w, 9, "12345678", 8);
    m = simple(&n, &w, 13);
    refused(&m, "byte 28: the dimensions' product is too large");
}

TEST(attributes_of_values_that_are_not_known_are_refused) {
    static const struct {
        const char *op, *attribute, *why;
    } wrong[] = {
        { "Resize", "mode", "(Resize, version 20): attribute 'mode' is 'odd', known are nearest, linear, cubic" },
        { "Resize", "nearest_mode", "known are round_prefer_floor, round_prefer_ceil, floor, ceil" },
        { "Resize", "coordinate_transformation_mode", "known are half_pixel, " },
        { "Resize", "keep_aspect_ratio_policy", "known are stretch, not_larger, not_smaller" },
        { "Pad", "mode", "known are constant, reflect, edge, wrap" },
        { "Conv", "auto_pad", "known are NOTSET, SAME_UPPER, SAME_LOWER, VALID" },
        { "MaxPool", "auto_pad", "known are NOTSET, SAME_UPPER, SAME_LOWER, VALID" },
        { "GridSample", "mode", "known are linear, nearest, cubic, bilinear, bicubic" },
        { "GridSample", "padding_mode", "known are zeros, border, reflection" },
        { "Gelu", "approximate", "known are none, tanh" },
        { "DepthToSpace", "mode", "known are DCR, CRD" },
        { "LSTM", "direction", "known are forward, reverse, bidirectional" },
        { "BitShift", "direction", "known are LEFT, RIGHT" },
        { "ScatterND", "reduction", "known are none, add, mul, max, min" },
        { "NegativeLogLikelihoodLoss", "reduction", "known are none, sum, mean" },
        { "RoiAlign", "mode", "known are avg, max" },
        { "Relu", "alpha", "node 'y' (Relu, version 20): it has no attribute 'alpha'" },
    };
    for (int i = 0; i < TEST_COUNT(wrong); i++) {
        bytes n = node(wrong[i].op, "x", "y");
        put_attribute(&n, wrong[i].attribute, 4, "odd", 3, 0);
        bytes m = simple(&n, NULL, 20);
        refused(&m, wrong[i].why);
    }
    static const struct {
        const char *op, *in, *attribute;
        int version;
        const char *why;
    } early[] = { { "Resize", "x", "nearest_mode", 10, "it has no attribute 'nearest_mode' in this version" },
                  { "BatchNormalization", "x,w,w,w,w", "spatial", 9, "it has no attribute 'spatial' in this version" },
                  { "ReduceL1", "x", "axes", 18, "it has no attribute 'axes' in this version" },
                  { "ReduceL1", "x,w", "keepdims", 17, "2 inputs, the op takes 1" },
                  { "Clip", "x,w,w", "max", 10, "3 inputs, the op takes 1" },
                  { "Pad", "x,w,w,w", "mode", 17, "4 inputs, the op takes 3" },
                  { "Where", "x,x,x,w", "__mark", 16, "4 inputs, the op takes 3" } };
    static const int64_t dims[] = { 2 };
    double y[64];
    onnx_tensor t;
    bytes w = tensor("w", 1, dims, 1);
    put_bytes(&w, 9, "\0\0\x80\x3f\0\0\0\x40", 8);
    for (int i = 0; i < TEST_COUNT(early); i++) {
        bytes n = node(early[i].op, early[i].in, "y");
        put_attribute(&n, early[i].attribute, 3, NULL, 0, 1);
        bytes m = simple(&n, &w, early[i].version);
        const char *got = listed(&m);
        if (!strstr(got, early[i].why)) test_fail(__FILE__, __LINE__, "'%s' is not in: %s", early[i].why, got);
    }
    bytes n = node("Gelu", "x", "y");
    put_attribute(&n, "approximate", 4, "tanh", 4, 0);
    put_attribute(&n, "__mark", 4, "odd", 3, 0); /* exporters' own */
    CHECK_INT(run_node(&n, NULL, 20, dims, 1, counting, &t, y), 2);
}

TEST(every_op_has_a_row_of_its_inputs_and_attributes) {
    for (size_t i = 0; i < sizeof onnx__ops / sizeof *onnx__ops; i++)
        if (!onnx__find_form(&onnx__ops[i])) test_fail(__FILE__, __LINE__, "%s has none", onnx__ops[i].name);
    CHECK_INT(sizeof onnx__forms / sizeof *onnx__forms, sizeof onnx__ops / sizeof *onnx__ops);
}

TEST(text_that_a_function_gives_its_node_is_checked_when_it_is_known) {
    bytes f = { .n = 0 }, inner = node("Gelu", "a", "b"), set = { .n = 0 }, attribute = { .n = 0 };
    put_text(&attribute, 1, "approximate");
    put_text(&attribute, 21, "how");
    put_message(&inner, 5, &attribute);
    put_text(&f, 1, "Mine");
    put_text(&f, 4, "a");
    put_text(&f, 5, "b");
    put_text(&f, 6, "how");
    put_message(&f, 7, &inner);
    put_number(&set, 2, 20);
    put_message(&f, 9, &set);
    put_text(&f, 10, "own");
    for (int good = 0; good < 2; good++) {
        static const int64_t dims[] = { 2 };
        double y[64];
        onnx_tensor t;
        bytes n = node("Mine", "x", "y");
        put_text(&n, 7, "own");
        put_attribute(&n, "how", 4, good ? "tanh" : "sinh", 4, 0);
        bytes m = simple(&n, NULL, 20);
        put_message(&m, 25, &f);
        if (good) CHECK_INT(run(&m, dims, 1, counting, &t, y), 2);
        else refused(&m, "attribute 'approximate' is 'sinh', known are none, tanh");
    }
}

TEST(models_that_lie_are_refused) {
    static const int64_t two[] = { 2 };
    bytes w = tensor("w", 1, two, 1), x = value("x", 1, two, 1), integer = value("y", ONNX_INT64, two, 1);
    bytes twice[] = { node("Neg", "x", "y"), node("Abs", "x", "y") };
    bytes over_input[] = { node("Neg", "x", "x"), node("Abs", "x", "y") };
    bytes over_weight[] = { node("Neg", "x", "w"), node("Abs", "w", "y") };
    const bytes *const both[] = { twice, over_input, over_weight };
    static const char *const why[] = { "node 'y' (Abs, version 13): it makes 'y', which is an input",
                                       "node 'x' (Neg, version 13): it makes 'x'",
                                       "node 'w' (Neg, version 13): it makes 'w'" };
    put_bytes(&w, 9, "\0\0\x80\x3f\0\0\0\x40", 8);
    for (int i = 0; i < 3; i++) {
        bytes g = body_of(both[i], 2, "", "y");
        put_message(&g, 11, &x);
        put_message(&g, 5, &w);
        bytes m = model_of(&g, 13);
        refused(&m, why[i]);
    }
    bytes g = body_of(twice, 1, "", "");
    put_message(&g, 11, &x);
    put_message(&g, 12, &integer);
    bytes m = model_of(&g, 13);
    refused(&m, "node 'y' (Neg, version 13): it makes 'y' as FLOAT, declared is INT64");
    bytes n = node("Relu", "x,w", "y");
    m = simple(&n, &w, 13);
    refused(&m, "node 'y' (Relu, version 13): 2 inputs, the op takes 1");
    g = body_of(twice, 1, "", "y");
    put_message(&g, 5, &w);
    put_message(&g, 5, &w);
    put_message(&g, 11, &x);
    m = model_of(&g, 13);
    refused(&m, "the initialiser 'w' is there twice");
    put_bytes(&w, 4, "\0\0\x80\x3f\0\0\0\x40", 8);
    m = simple(twice, &w, 13);
    refused(&m, "a tensor has raw data and other data, too");
}

TEST(strings_and_types_that_no_op_takes_are_listed_before_anything_is_built) {
    static const int64_t two[] = { 2 };
    bytes nodes[] = { node("Identity", "s", "a"), node("Constant", NULL, "b"), node("Cast", "x", "c"),
                      node("Neg", "f", "d"), node("Identity", "f", "y") };
    bytes s = tensor("s", ONNX_STRING, two, 1), f = tensor("f", ONNX_FLOAT8E5M2, two, 1);
    bytes text = value("text", ONNX_STRING, two, 1), x = value("x", 1, two, 1);
    put_bytes(&s, 6, "a", 1);
    put_bytes(&s, 6, "b", 1);
    put_bytes(&f, 9, "\0\0", 2);
    put_attribute(&nodes[1], "value_string", 4, "odd", 3, 0);
    put_attribute(&nodes[2], "to", 3, NULL, 0, ONNX_STRING);
    bytes g = body_of(nodes, 5, "", "y");
    put_message(&g, 5, &s);
    put_message(&g, 5, &f);
    put_message(&g, 11, &x);
    put_message(&g, 11, &text);
    bytes m = model_of(&g, 21);
    const char *got = listed(&m);
    static const char *const lines[] = { "initialiser 's': STRING is not held\n",
                                         "input 'text': STRING is not held\n",
                                         "node 'a' (Identity, version 21): input 's': STRING is not held\n",
                                         "node 'b' (Constant, version 21): STRING is not held\n",
                                         "node 'c' (Cast, version 21): STRING is not held\n",
                                         "node 'd' (Neg, version 21): it does not compute with FLOAT8E5M2\n" };
    size_t n = 0;
    for (int i = 0; i < TEST_COUNT(lines); i++, n += strlen(lines[i - 1]))
        if (!strstr(got, lines[i])) test_fail(__FILE__, __LINE__, "'%s' is not in:\n%s", lines[i], got);
    CHECK_INT(strlen(got), n); /* and no other */
}

TEST(input_of_another_shape_names_both) {
    static const int64_t dims[] = { 2, 3 };
    double y[64];
    onnx_tensor t;
    bytes n = node("Neg", "x", "y"), m = simple(&n, NULL, 13);
    CHECK_INT(run(&m, dims, 2, counting, &t, y), -1);
    CHECK(strstr(error, "(2)") && strstr(error, "(2,3)"));
}

TEST(external_data_stays_beside_the_model) {
    static const int64_t two[] = { 2 };
    static const char *const places[] = { "../secret", "/etc/passwd", "a/../../secret", "link", "gone", "" };
    static const char *const why[] = { "leaves", "beside", "leaves", "by a link", "not there", "beside" };
    char link[128];
    double y[64];
    onnx_tensor t;
    bytes n = node("Identity", "w", "y");
    file_of("data.bin", "\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 12);
    snprintf(link, sizeof link, "%s/link", folder);
    CHECK(symlink("/etc/hostname", link) == 0 || access(link, F_OK) == 0);
    for (int i = 0; i < 7; i++) {
        bytes w = tensor("w", 1, two, 1), entry = { .n = 0 }, offset = { .n = 0 };
        put_text(&entry, 1, "location");
        put_text(&entry, 2, i < 6 ? places[i] : "data.bin");
        put_message(&w, 13, &entry);
        put_text(&offset, 1, "offset");
        put_text(&offset, 2, "4");
        put_message(&w, 13, &offset);
        put_number(&w, 14, 1);
        bytes m = simple(&n, &w, 13);
        if (i < 6) refused(&m, why[i]);
        else CHECK_VALUES(run(&m, two, 1, counting, &t, y), y, 1, 2);
    }
}

/* A model that is cut anywhere, or has any byte altered, is refused or read; the reader holds at most twice the
   file. */
TEST(cut_and_altered_models_are_read_or_refused) {
    static const int64_t two[] = { 2 };
    bytes n = node("If", "w", "y"), w = tensor("w", ONNX_BOOL, two, 0), a = branch("Neg");
    put_bytes(&w, 5, "\1", 1);
    put_attribute(&n, "then_branch", 6, a.at, a.n, 0);
    put_attribute(&n, "else_branch", 6, a.at, a.n, 0);
    bytes m = simple(&n, &w, 13);
    int opened = 0;
    for (size_t i = 0; i < 2 * m.n; i++) {
        bytes other = m;
        if (i < m.n) other.n = i;
        else other.at[i - m.n] ^= (uint8_t)test_random_int(1, 255);
        reader_most = reader_held;
        size_t before = reader_held;
        onnx *o = onnx_open(file_of("altered.onnx", other.at, other.n), error);
        CHECK(o || error[0]);
        CHECK(reader_most - before <= 2 * other.n + 2 * sizeof(onnx) + 256);
        opened += o != NULL;
        onnx_close(o);
        CHECK_INT(reader_held, before);
    }
    CHECK(opened > 0 && opened < (int)(2 * m.n));
}

TEST(nesting_past_the_limit_is_refused) {
    bytes g = branch("Neg");
    for (int i = 0; i < 60 && g.n < 1900; i++) {
        bytes n = node("If", "x", "z"), next = { .n = 0 };
        put_attribute(&n, "then_branch", 6, g.at, g.n, 0);
        put_message(&next, 1, &n);
        g = next;
    }
    bytes m = model_of(&g, 13);
    onnx *o = onnx_open(file_of("deep.onnx", m.at, m.n), error);
    CHECK(!o && strstr(error, "deep in each other"));
    onnx_close(o);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(softmax_before_13_goes_over_all_axes_from_its_own),
        TEST_ENTRY(input_left_out_by_an_empty_name_is_none),
        TEST_ENTRY(zero_in_a_shape_keeps_the_size_unless_zeros_are_allowed),
        TEST_ENTRY(same_lower_pads_the_beginning_and_ceil_mode_ends_in_the_input),
        TEST_ENTRY(tensors_are_read_from_every_field_packed_or_not),
        TEST_ENTRY(floats_and_doubles_in_pieces_are_joined),
        TEST_ENTRY(initialiser_that_is_an_input_is_its_default),
        TEST_ENTRY(branches_see_values_of_the_graph_around_them),
        TEST_ENTRY(norm_sum_and_bound_behind_a_convolution_join_it),
        TEST_ENTRY(what_is_recognised_is_counted_with_its_repetitions),
        TEST_ENTRY(convolutions_of_a_chain_of_blocks_are_recognised_one_for_one),
        TEST_ENTRY(scan_of_version_8_takes_batches_and_refuses_lengths),
        TEST_ENTRY(loop_without_end_is_refused),
        TEST_ENTRY(loop_of_no_turns_gives_type_and_shape_of_what_it_would_make),
        TEST_ENTRY(old_batch_norms_are_built_but_for_training_and_numbers_for_each_element),
        TEST_ENTRY(function_of_the_model_takes_attributes_of_its_caller),
        TEST_ENTRY(constants_are_folded_up_to_64_mib),
        TEST_ENTRY(trees_lead_to_leaves_and_their_results_are_transformed),
        TEST_ENTRY(trees_that_lead_back_or_lie_are_refused),
        TEST_ENTRY(models_of_attributes_are_computed),
        TEST_ENTRY(attributes_of_models_that_do_not_fit_are_refused),
        TEST_ENTRY(trees_of_old_versions_that_do_not_fit_are_refused),
        TEST_ENTRY(regions_without_a_size_are_refused),
        TEST_ENTRY(maps_are_results_of_keys_and_values_as_they_are_declared),
        TEST_ENTRY(values_of_another_type_than_their_graph_declares_are_refused),
        TEST_ENTRY(what_cannot_be_built_is_refused_by_name),
        TEST_ENTRY(attributes_of_values_that_are_not_known_are_refused),
        TEST_ENTRY(every_op_has_a_row_of_its_inputs_and_attributes),
        TEST_ENTRY(text_that_a_function_gives_its_node_is_checked_when_it_is_known),
        TEST_ENTRY(models_that_lie_are_refused),
        TEST_ENTRY(strings_and_types_that_no_op_takes_are_listed_before_anything_is_built),
        TEST_ENTRY(input_of_another_shape_names_both),
        TEST_ENTRY(external_data_stays_beside_the_model),
        TEST_ENTRY(cut_and_altered_models_are_read_or_refused),
        TEST_ENTRY(nesting_past_the_limit_is_refused),
    };
    test_begin(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/onnx-test-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    test_all(tests, TEST_COUNT(tests));
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) puts("the folder stays");
    return test_end();
}
