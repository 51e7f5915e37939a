/* One program, the same bits: whatever of it is realised on the way, however what it reads lies in memory (dense,
 * transposed, behind a step, reversed, in the rows of something wider, broadcast) and wherever its parts run. Random
 * programs of sums, products, norms, softmaxes and what is between them are computed plainly, then again and again with
 * everything disguised.
 *
 * $GENIE_TEST_DEVICES names another device than this CPU; $BITS_ROUNDS asks for so many programs a dtype, BITS_LARGE=1
 * for larger operands, of which a GPU's kernels differ. There attention written out is one kernel or three by what else
 * reads its scores: no product follows a softmax.
 *
 * Tier: quick address thread */
#include <stdbool.h>
#include <stdlib.h>
#define GENIE_EXT
#include "../genie.h"

#include "test.h"
#include "loopback.h"

/* The largest value of a program has 3000 x 40 elements; one that is read has MAX_OUT at most. */
enum { POOL = 1 << 17, MAX_OUT = 1 << 16, VARIANTS = 4, SERVERS = 2 };

typedef struct draws {
    uint64_t state;
} draws;

static int64_t draw(draws *d, int64_t least, int64_t most) {
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return least + (int64_t)((d->state >> 11) % (uint64_t)(most - least + 1));
}

/* A program is what `structure` draws; `disguise` (NULL: none) draws how it is written down. */
typedef struct builder {
    gn_ctx *g;
    gn_dtype dtype;
    draws structure, *disguise;
    int devices;  /* more than 1: nodes are placed on one of them */
    bool weights; /* the latest value is a softmax */
} builder;

static double pool64[POOL];
static char pools[GN_DTYPE__COUNT][POOL * 8];

static gn_shape shape_of(gn_tensor t) {
    gn_info info = { .result = GN_OK };
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    return info.shape;
}

static void place(builder *b) {
    char index[12];
    if (b->devices > 1 && b->disguise) {
        snprintf(index, sizeof index, "%d", (int)draw(b->disguise, 0, b->devices - 1));
        gn_on(b->g, index);
    }
}

static gn_tensor reversed(gn_tensor t, int rank) {
    gn_axes order = { .n = rank };
    for (int i = 0; i < rank; i++) order.axis[i] = rank - 1 - i;
    return rank > 1 ? gn_permute(t, order) : t;
}

static gn_tensor realized(gn_tensor t) {
    CHECK_RESULT(gn_realize(&t, 1), GN_OK);
    return t;
}

/* The same value, lying in another way. */
static gn_tensor disguised(builder *b, gn_tensor t) {
    gn_shape s = shape_of(t);
    place(b);
    if (!b->disguise || s.rank == 0) return b->disguise && draw(b->disguise, 0, 1) ? realized(t) : t;
    int axis = (int)draw(b->disguise, 0, s.rank - 1);
    int64_t n = s.dims[axis];
    switch (draw(b->disguise, 0, 6)) {
    case 0: return t;
    case 1: return realized(t);
    case 2: return reversed(realized(reversed(t, s.rank)), s.rank);
    case 3: return gn_slice(realized(gn_concat((gn_tensor[]){ t, t, t }, 3, axis)), axis, n, 2 * n, 1);
    case 4: {
        gn_shape pairs = s;
        if (s.rank == GN_MAX_RANK) return t;
        pairs.dims[pairs.rank++] = 1;
        gn_tensor column = gn_reshape(t, pairs);
        return gn_reshape(gn_slice(realized(gn_concat((gn_tensor[]){ column, column }, 2, s.rank)), s.rank, 1, 2, 1),
                          s);
    }
    case 5: return gn_flip(realized(gn_flip(t, GN_AXES(axis))), GN_AXES(axis));
    default: {
        gn_shape edge = { .rank = s.rank };
        for (int i = 0; i < s.rank; i++) edge.dims[i] = 1;
        gn_tensor u = realized(gn_pad(t, edge, edge, GN_PAD_CONSTANT, 7));
        for (int i = 0; i < s.rank; i++) u = gn_slice(u, i, 1, s.dims[i] + 1, 1);
        return u;
    }
    }
}

static gn_tensor leaf(builder *b, gn_shape s) {
    int64_t n = 1, at = draw(&b->structure, 0, 999);
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    if (!CHECK(n + at <= POOL)) return GN_NONE;
    return disguised(b, gn_data(b->g, b->dtype, s,
                                pools[b->dtype] + at * (b->dtype == GN_F64   ? 8
                                                        : b->dtype == GN_F32 ? 4
                                                                             : 2)));
}

/* A leaf that is one row or column, broadcast. */
static gn_tensor spread(builder *b, gn_shape s) {
    gn_shape small = s;
    small.dims[draw(&b->structure, 0, s.rank - 1)] = 1;
    return gn_broadcast(leaf(b, small), s);
}

static int64_t a_size(builder *b) {
    return draw(&b->structure, 0, 5) ? draw(&b->structure, 1, 21) : draw(&b->structure, 22, 90);
}

static gn_shape some_shape(builder *b) {
    gn_shape s = { .rank = (int32_t)draw(&b->structure, 1, 4) };
    for (int i = 0; i < s.rank; i++) s.dims[i] = s.rank > 2 ? draw(&b->structure, 1, 13) : a_size(b);
    if (draw(&b->structure, 0, 3) == 0) {
        s.rank = 2;
        s.dims[0] = draw(&b->structure, 1, 9);
        s.dims[1] = draw(&b->structure, 250, 3000);
        if (draw(&b->structure, 0, 1)) {
            int64_t t = s.dims[0];
            s.dims[0] = s.dims[1];
            s.dims[1] = t;
        }
    }
    return s;
}

static gn_axes some_axes(builder *b, int rank) {
    gn_axes a = { 0 };
    int64_t bits = draw(&b->structure, 1, (1 << rank) - 1);
    for (int i = 0; i < rank; i++)
        if (bits >> i & 1) a.axis[a.n++] = i;
    return a;
}

static gn_tensor product(builder *b, gn_tensor x, gn_shape s, bool layer) {
    int64_t k = s.dims[s.rank - 1], n = draw(&b->structure, 0, 2) ? draw(&b->structure, 1, 40) : 1,
            how = draw(&b->structure, 0, 3);
    if (k * n > 40000) n = 1;
    gn_tensor w = how == 0   ? spread(b, GN_SHAPE(k, n))
                  : how == 1 ? disguised(b, gn_transpose(leaf(b, GN_SHAPE(n, k)), 0, 1))
                             : leaf(b, GN_SHAPE(k, n));
    if (layer) return gn_linear(x, w, how == 2 ? leaf(b, GN_SHAPE(n)) : GN_NONE);
    if (how == 3 && n == 1) return gn_matmul(x, disguised(b, gn_reshape(w, GN_SHAPE(k))));
    return gn_matmul(x, w);
}

static gn_tensor attention(builder *b, gn_tensor x) {
    int64_t t = draw(&b->structure, 1, 40), keys = draw(&b->structure, 1, 90), d = draw(&b->structure, 1, 24),
            e = draw(&b->structure, 1, 24), heads = draw(&b->structure, 1, 3);
    gn_attention_desc desc = { .causal = t <= keys && draw(&b->structure, 0, 1) };
    gn_tensor y = gn_attention(leaf(b, GN_SHAPE(1, heads, t, d)), leaf(b, GN_SHAPE(1, heads, keys, d)),
                               leaf(b, GN_SHAPE(1, heads, keys, e)), &desc);
    return gn_add(disguised(b, gn_mean(y, GN_ALL_AXES, false)), x);
}

/* One more op on x. */
static gn_tensor another(builder *b, gn_tensor x) {
    gn_shape s = shape_of(x);
    int64_t op = draw(&b->structure, 0, 16);
    if (s.rank == 0) return gn_add(leaf(b, some_shape(b)), x);
    int axis = (int)draw(&b->structure, 0, s.rank - 1);
    if (b->weights && op >= 5 && op <= 7) op = 0;
    b->weights = op == 2 && getenv("GENIE_TEST_DEVICES");
    switch (op) {
    case 0: return gn_sum(x, some_axes(b, s.rank), draw(&b->structure, 0, 1) == 1);
    case 1: return gn_mean(x, some_axes(b, s.rank), draw(&b->structure, 0, 1) == 1);
    case 2: return gn_softmax(x, axis);
    case 3: return gn_log_softmax(x, axis);
    case 4: return gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
    case 5:
    case 6: return product(b, x, s, false);
    case 7: return product(b, x, s, true);
    case 8: return gn_cumsum(x, axis);
    case 9: return gn_prod(gn_mul_c(gn_tanh(x), 1.5), GN_AXES(axis), false);
    case 10: return gn_mse_loss(x, leaf(b, s));
    case 11: return gn_variance(x, some_axes(b, s.rank), 0, false);
    case 12: return gn_mul(gn_tanh(x), spread(b, s));
    case 13: return s.dims[axis] > 3 ? gn_slice(gn_gelu(x), axis, 1, s.dims[axis], 2) : reversed(x, s.rank);
    case 14: return reversed(x, s.rank);
    case 15: return attention(b, x);
    default:
        return s.rank == 2 && s.dims[0] < 200 ? gn_matmul(x, disguised(b, gn_transpose(x, 0, 1)))
                                              : gn_logsumexp(x, GN_AXES(axis), false);
    }
}

/* Runs the program of `seed`. Its result's bytes, 0 after a failed check. */
static size_t run(gn_ctx *g, int devices, gn_dtype dtype, uint64_t seed, draws *disguise, void *out, char *text,
                  size_t size) {
    builder b = { g, dtype, { seed }, disguise, devices, false };
    place(&b);
    gn_tensor x = leaf(&b, some_shape(&b));
    int n = (int)draw(&b.structure, 1, 6);
    for (int i = 0; i < n; i++) x = disguised(&b, another(&b, x));
    gn_info info = { .result = GN_OK };
    gn_result r = gn_describe(x, &info);
    if (r != GN_OK || info.bytes > MAX_OUT * 8) {
        gn_step(g);
        snprintf(text, size, "%.*s", (int)size - 1, r != GN_OK ? gn_last_error(g)->text : "");
        CHECK_RESULT(r, GN_OK);
        return 0;
    }
    r = gn_read(x, out, info.bytes);
    snprintf(text, size, "%.*s", (int)size - 1, r != GN_OK ? gn_last_error(g)->text : "");
    gn_on(g, NULL);
    gn_step(g);
    return CHECK_RESULT(r, GN_OK) ? info.bytes : 0;
}

static double value_at(gn_dtype d, const void *p, size_t i) {
    if (d == GN_F64) return ((const double *)p)[i];
    if (d == GN_F32) return (double)((const float *)p)[i];
    uint16_t bits = ((const uint16_t *)p)[i];
    return (double)(d == GN_F16 ? gn_f16_to_f32(bits) : gn_bf16_to_f32(bits));
}

static uint64_t want[MAX_OUT], got[MAX_OUT];

static void compare(gn_dtype d, uint64_t seed, const char *where, size_t n, size_t m, const char *text) {
    size_t width = d == GN_F64 ? 8 : d == GN_F32 ? 4 : 2;
    if (n != m) {
        test_fail(__FILE__, __LINE__, "%s, program %llu, %s: %zu bytes, not %zu %s", gn_dtype_name(d),
                  (unsigned long long)seed, where, m, n, text);
        return;
    }
    for (size_t i = 0; i < n / width; i++) {
        if (memcmp((char *)want + i * width, (char *)got + i * width, width) == 0) continue;
        double a = value_at(d, want, i), b = value_at(d, got, i);
        if (a != a && b != b) continue;
        test_fail(__FILE__, __LINE__, "%s, program %llu, %s: element %zu of %zu is %.17g, not %.17g", gn_dtype_name(d),
                  (unsigned long long)seed, where, i, n / width, b, a);
        return;
    }
}

static const gn_dtype dtypes[] = { GN_F64, GN_F32, GN_F16, GN_BF16 };

static void fill_pools(gn_ctx *g) {
    for (int i = 0; i < POOL; i++) pool64[i] = test_random_real(-2, 2);
    for (int d = 0; d < TEST_COUNT(dtypes); d++) {
        size_t width = dtypes[d] == GN_F64 ? 8 : dtypes[d] == GN_F32 ? 4 : 2;
        REQUIRE(gn_read(gn_cast(gn_data(g, GN_F64, GN_SHAPE(POOL), pool64), dtypes[d]), pools[dtypes[d]],
                        POOL * width) == GN_OK);
        gn_step(g);
    }
}

/* Programs on `g`, beside themselves in disguise on `other`. */
static void compare_programs(gn_ctx *g, gn_ctx *other, int devices, int rounds, const char *where) {
    const char *asked = getenv("BITS_ROUNDS");
    char text[300];
    rounds = asked ? atoi(asked) : test_rounds(rounds);
    fill_pools(g);
    for (int d = 0; d < TEST_COUNT(dtypes); d++) {
        for (int k = 0; k < rounds; k++) {
            uint64_t seed = (uint64_t)test_random_int(1, INT64_C(1) << 60);
            size_t n = run(g, 1, dtypes[d], seed, NULL, want, text, sizeof text);
            for (int v = 0; v < VARIANTS && n; v++) {
                draws disguise = { (uint64_t)test_random_int(1, INT64_C(1) << 60) };
                memset(got, 0xa5, sizeof got);
                compare(dtypes[d], seed, where, n,
                        run(other, devices, dtypes[d], seed, &disguise, got, text, sizeof text), text);
            }
        }
    }
}

TEST(views_and_cuts_on_one_device_change_no_bit) {
    const char *named = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 2 });
    compare_programs(g, g, 1, TEST_SANITIZED ? 40 : 200, "in disguise");
    gn_close(g);
}

TEST(views_and_cuts_on_every_instruction_path_change_no_bit) {
    static const char *const isas[] = { "base", "avx2" };
    if (getenv("GENIE_TEST_DEVICES")) {
        test_skip("instruction paths are this CPU's");
        return;
    }
    for (int i = 0; i < TEST_COUNT(isas); i++) {
        setenv("GENIE_ISA", isas[i], 1);
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
        unsetenv("GENIE_ISA");
        compare_programs(g, g, 1, TEST_SANITIZED ? 10 : 50, isas[i]);
        gn_close(g);
    }
}

/* This CPU and two servers in this process, every node where chance puts it. */
TEST(places_change_no_bit) {
    static const char *const cpu[SERVERS] = { "cpu", "cpu" }, *const names[SERVERS] = { "first", "second" };
    gn_server *servers[SERVERS] = { NULL };
    gn_transport t[SERVERS];
    gn_error error;
    if (getenv("GENIE_TEST_DEVICES")) {
        test_skip("servers of this CPU are compared with it");
        return;
    }
    for (int i = 0; i < SERVERS; i++) {
        int ends[2];
        gn_server_desc desc = { .listen = "none", .devices = "cpu", .threads = 1 };
        REQUIRE(gn_server_open(&desc, &servers[i], &error) == GN_OK && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        REQUIRE(gn_server_attach(servers[i], loopback_transport(ends[0]), "test") == GN_OK);
        t[i] = loopback_transport_to(ends[1], names[i]);
    }
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_ctx *cluster =
        gn_open_transports(&(gn_desc){ .devices = "cpu", .threads = 1, .deadline_ms = 20000 }, t, cpu, SERVERS);
    compare_programs(g, cluster, SERVERS + 1, TEST_SANITIZED ? 10 : 60, "on three devices");
    gn_close(cluster);
    gn_close(g);
    for (int i = 0; i < SERVERS; i++) gn_server_close(servers[i]);
}

/* ---- larger operands ---- */

enum { LARGE = 1 << 22, LARGE_OUT = 1 << 21, LARGE_PARTS = 4 };
static float large[LARGE];
static char plain_result[LARGE_OUT * 8], other_result[LARGE_OUT * 8];

static gn_tensor large_leaf(builder *b, gn_shape s, int64_t at) {
    return disguised(b, realized(gn_cast(gn_data(b->g, GN_F32, s, large + at), b->dtype)));
}

enum {
    PRODUCT,
    TAILED,
    NORMED,
    SUM,
    MEAN,
    PROD,
    SOFTMAX,
    LOG_SOFTMAX,
    NORM,
    VARIANCE,
    CUMSUM,
    ARGMAX,
    MSE,
    ENTROPY,
    ATTENTION
};
static const char *const large_names[] = {
    "product",  "product with a loop", "normed product", "sum",      "mean",   "prod",
    "softmax",  "log_softmax",         "layernorm",      "variance", "cumsum", "argmax",
    "mse_loss", "cross_entropy",       "attention"
};

/* sizes: of a product batches (0: none; below 0: leading dims of A alone), m, n, k; of rows a shape, over `axis`; of
   attention heads, queries, keys, width */
static const struct {
    int op, axis;
    int64_t size[4];
} large_cases[] = {
    { PRODUCT, 0, { 0, 1, 768, 768 } },
    { PRODUCT, 0, { 0, 1, 2304, 768 } },
    { PRODUCT, 0, { 0, 1, 5003, 256 } },
    { PRODUCT, 0, { 0, 1, 64, 2048 } },
    { PRODUCT, 0, { 0, 1, 128, 8192 } },
    { PRODUCT, 0, { 0, 1, 1, 9000 } },
    { PRODUCT, 0, { 0, 1, 768, 3072 } },
    { PRODUCT, 0, { 0, 1, 100, 77 } },
    { PRODUCT, 0, { 0, 2, 96, 520 } },
    { PRODUCT, 0, { 0, 5, 3001, 300 } },
    { PRODUCT, 0, { 0, 8, 8192, 256 } },
    { PRODUCT, 0, { 3, 4, 50, 70 } },
    { PRODUCT, 0, { 40, 8, 256, 64 } },
    { PRODUCT, 0, { 0, 16, 64, 64 } },
    { PRODUCT, 0, { 0, 33, 65, 67 } },
    { PRODUCT, 0, { 0, 64, 64, 4096 } },
    { PRODUCT, 0, { 0, 64, 96, 16384 } },
    { PRODUCT, 0, { 0, 128, 128, 128 } },
    { PRODUCT, 0, { 0, 200, 300, 400 } },
    { PRODUCT, 0, { 0, 256, 512, 1024 } },
    { PRODUCT, 0, { 0, 1024, 1024, 1024 } },
    { PRODUCT, 0, { 0, 1536, 1280, 320 } },
    { PRODUCT, 0, { 0, 130, 1000, 1001 } },
    { PRODUCT, 0, { 5, 64, 80, 96 } },
    { PRODUCT, 0, { 3, 257, 130, 72 } },
    { PRODUCT, 0, { -3, 40, 64, 128 } },
    { PRODUCT, 0, { -2, 2, 64, 128 } },
    { PRODUCT, 0, { -4, 256, 256, 256 } },
    { TAILED, 0, { 0, 1, 768, 768 } },
    { TAILED, 0, { 0, 3, 200, 100 } },
    { TAILED, 0, { 0, 64, 128, 4096 } },
    { TAILED, 0, { 0, 512, 512, 512 } },
    { TAILED, 0, { 0, 100, 100, 100 } },
    { NORMED, 0, { 0, 1, 768, 768 } },
    { NORMED, 0, { 0, 1, 3000, 2048 } },
    { NORMED, 0, { 0, 1, 512, 5000 } },
    { NORMED, 0, { 0, 20, 96, 300 } },
    { SUM, 0, { 1, 1 << 21 } },
    { SUM, 1, { 3, 100003 } },
    { SUM, 1, { 3000, 1024 } },
    { SUM, 1, { 5000, 400 } },
    { SUM, 0, { 1024, 3000 } },
    { SUM, 0, { 100003, 3 } },
    { SUM, 1, { 60, 500, 70 } },
    { SUM, 1, { 70, 20000 } },
    { SUM, 1, { 300, 9000 } },
    { SUM, 2, { 40, 25, 60, 17 } },
    { MEAN, 1, { 700, 2048 } },
    { MEAN, 0, { 513, 999 } },
    { PROD, 1, { 100, 3000 } },
    { PROD, 0, { 3000, 100 } },
    { SOFTMAX, 1, { 2000, 1024 } },
    { SOFTMAX, 1, { 50, 8192 } },
    { SOFTMAX, 1, { 7, 40000 } },
    { SOFTMAX, 1, { 100, 999 } },
    { SOFTMAX, 0, { 300, 1000 } },
    { SOFTMAX, 0, { 20000, 50 } },
    { LOG_SOFTMAX, 1, { 600, 3000 } },
    { LOG_SOFTMAX, 1, { 30, 50257 } },
    { LOG_SOFTMAX, 1, { 64, 96, 32 } },
    { NORM, 1, { 1000, 1024 } },
    { NORM, 1, { 30, 4096 } },
    { NORM, 1, { 900, 77 } },
    { NORM, 1, { 20, 20000 } },
    { VARIANCE, 1, { 900, 1500 } },
    { VARIANCE, 0, { 1500, 900 } },
    { VARIANCE, 1, { 40, 9000 } },
    { CUMSUM, 1, { 5, 100000 } },
    { CUMSUM, 0, { 300, 2000 } },
    { CUMSUM, 1, { 2000, 300 } },
    { ARGMAX, 1, { 50, 9999 } },
    { MSE, 0, { 700, 1100 } },
    { ENTROPY, 0, { 300, 2000 } },
    { ENTROPY, 0, { 20, 40000 } },
    { ATTENTION, 0, { 4, 1, 300, 64 } },
    { ATTENTION, 0, { 4, 70, 200, 64 } },
    { ATTENTION, 0, { 2, 200, 200, 128 } },
    { ATTENTION, 0, { 3, 20, 90, 32 } },
    { ATTENTION, 0, { 2, 33, 65, 40 } },
    { ATTENTION, 0, { 2, 300, 300, 24 } },
};

static gn_tensor large_product(builder *b, const int64_t *size) {
    int64_t batches = size[0], m = size[1], n = size[2], k = size[3];
    gn_tensor x =
        batches ? large_leaf(b, GN_SHAPE(batches < 0 ? -batches : batches, m, k), 5) : large_leaf(b, GN_SHAPE(m, k), 5);
    gn_tensor w = batches > 0 ? large_leaf(b, GN_SHAPE(batches, k, n), 1001) : large_leaf(b, GN_SHAPE(k, n), 1001);
    return gn_matmul(x, w);
}

static gn_tensor large_value(builder *b, int i) {
    const int64_t *size = large_cases[i].size;
    int axis = large_cases[i].axis, op = large_cases[i].op;
    gn_shape s = { .rank = size[2] == 0 ? 2 : size[3] == 0 ? 3 : 4 };
    static int64_t target[4096];
    memcpy(s.dims, size, sizeof large_cases[i].size);
    if (op == PRODUCT) return large_product(b, size);
    if (op == NORMED) {
        gn_tensor x = large_leaf(b, GN_SHAPE(size[1], size[3]), 5), gain = large_leaf(b, GN_SHAPE(size[3]), 9);
        gn_tensor y = disguised(b, gn_layernorm(disguised(b, gn_add(x, gain)), gain, GN_NONE, 1e-5));
        gn_tensor z = disguised(b, gn_matmul(y, large_leaf(b, GN_SHAPE(size[3], size[2]), 1001)));
        return gn_add(gn_gelu(z), large_leaf(b, GN_SHAPE(size[1], size[2]), 333));
    }
    if (op == TAILED) return gn_mul_c(gn_tanh(disguised(b, large_product(b, size))), 3);
    if (op == ATTENTION) {
        gn_attention_desc desc = { .causal = size[1] > 1 && size[1] <= size[2] };
        return gn_attention(large_leaf(b, GN_SHAPE(1, size[0], size[1], size[3]), 3),
                            large_leaf(b, GN_SHAPE(1, size[0], size[2], size[3]), 70),
                            large_leaf(b, GN_SHAPE(1, size[0], size[2], size[3]), 900), &desc);
    }
    gn_tensor x = large_leaf(b, s, 77);
    switch (op) {
    case SUM: return gn_sum(x, GN_AXES(axis), false);
    case MEAN: return gn_mean(x, GN_AXES(axis), false);
    case PROD: return gn_prod(gn_add_c(gn_mul_c(x, 0.01), 1), GN_AXES(axis), false);
    case SOFTMAX: return gn_softmax(x, axis);
    case LOG_SOFTMAX: return gn_log_softmax(x, axis);
    case NORM: return gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
    case VARIANCE: return gn_variance(x, GN_AXES(axis), 0, false);
    case CUMSUM: return gn_cumsum(x, axis);
    case ARGMAX: return gn_argmax(x, GN_AXES(axis), false);
    case MSE: return gn_mse_loss(x, large_leaf(b, s, 99));
    default:
        for (int r = 0; r < size[0]; r++) target[r] = (r * 37) % size[1];
        return gn_cross_entropy(x, gn_data(b->g, GN_I64, GN_SHAPE(size[0]), target));
    }
}

static size_t run_large(gn_ctx *g, gn_dtype d, int i, draws *disguise, char *out) {
    builder b = { g, d, { 1 }, disguise, 1, false };
    gn_tensor y = large_value(&b, i);
    gn_info info = { .result = GN_OK };
    if (disguise && draw(disguise, 0, 1)) y = realized(y);
    bool ok = CHECK_RESULT(gn_describe(y, &info), GN_OK) && CHECK(info.bytes <= sizeof plain_result) &&
              CHECK_RESULT(gn_read(y, out, info.bytes), GN_OK);
    gn_step(g);
    return ok ? info.bytes : 0;
}

/* Every fourth case from the part-th on. */
static void check_large(gn_dtype d, int part) {
    if (!getenv("BITS_LARGE")) {
        test_skip("BITS_LARGE=1 asks for it");
        return;
    }
    const char *named = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu" });
    for (int i = 0; i < LARGE; i++) large[i] = (float)test_random_real(-1, 1);
    for (int i = part; i < TEST_COUNT(large_cases); i += LARGE_PARTS) {
        bool narrow = d == GN_F16 || d == GN_BF16;
        size_t n, differ = 0;
        if (named && narrow && large_cases[i].op == NORMED && large_cases[i].size[1] == 1) continue;
        n = run_large(g, d, i, NULL, plain_result);
        for (int v = 0; v < VARIANTS && n; v++) {
            draws disguise = { (uint64_t)test_random_int(1, INT64_C(1) << 60) };
            if (run_large(g, d, i, &disguise, other_result) != n) continue;
            for (size_t k = 0; k < n; k++) differ += plain_result[k] != other_result[k];
        }
        if (differ) {
            const int64_t *s = large_cases[i].size;
            test_fail(__FILE__, __LINE__, "%s, %s of %lld %lld %lld %lld, axis %d: %zu bytes differ", gn_dtype_name(d),
                      large_names[large_cases[i].op], (long long)s[0], (long long)s[1], (long long)s[2],
                      (long long)s[3], large_cases[i].axis, differ);
        }
    }
    gn_close(g);
}
#define LARGE_TEST(dtype, part) \
    TEST(views_of_larger_operands_change_no_bit_##dtype##_##part) { check_large(GN_##dtype, part); }
#define LARGE_TESTS(dtype) LARGE_TEST(dtype, 0) LARGE_TEST(dtype, 1) LARGE_TEST(dtype, 2) LARGE_TEST(dtype, 3)
LARGE_TESTS(F64)
LARGE_TESTS(F32)
LARGE_TESTS(F16)
LARGE_TESTS(BF16)
#define LARGE_ENTRY(dtype, part) TEST_ENTRY(views_of_larger_operands_change_no_bit_##dtype##_##part)
#define LARGE_ENTRIES(dtype) LARGE_ENTRY(dtype, 0), LARGE_ENTRY(dtype, 1), LARGE_ENTRY(dtype, 2), LARGE_ENTRY(dtype, 3)

/* ---- sums over several rows ---- */

/* Rows that fill whole pieces of a sum, several at once, some and a rest: in a wider matrix each begins a run of its
   own, in a dense one all are one. `eps` is that of the dtype. */
static void check_rows(gn_ctx *g, gn_dtype d, double eps, int64_t rows, int64_t length, const char *where) {
    int64_t wide = length + 3;
    static double x[2][40 * 2051], sum[2];
    float *f[2] = { (float *)x[0], (float *)x[1] }, narrow[2];
    long double plain = 0, all = 0;
    for (int64_t i = 0; i < rows * wide; i++) {
        double v = test_random_real(-1, 2);
        int64_t row = i / wide, col = i % wide;
        if (d == GN_F32) v = (double)(float)v, f[0][i] = (float)v;
        else x[0][i] = v;
        if (col >= length) continue;
        if (d == GN_F32) f[1][row * length + col] = (float)v;
        else x[1][row * length + col] = v;
        plain += (long double)v;
        all += (long double)fabs(v);
    }
    gn_tensor apart = gn_slice(gn_data(g, d, GN_SHAPE(rows, wide), x[0]), 1, 0, length, 1),
              dense = gn_data(g, d, GN_SHAPE(rows, length), x[1]);
    gn_tensor s[2] = { gn_sum(apart, GN_AXES(0, 1), false), gn_sum(dense, GN_AXES(0, 1), false) };
    size_t bytes = d == GN_F32 ? sizeof *narrow : sizeof *sum;
    void *out[2] = { d == GN_F32 ? (void *)&narrow[0] : &sum[0], d == GN_F32 ? (void *)&narrow[1] : &sum[1] };
    REQUIRE(gn_read_many(s, 2, out, (size_t[]){ bytes, bytes }) == GN_OK);
    gn_step(g);
    if (d == GN_F32) sum[0] = (double)narrow[0], sum[1] = (double)narrow[1];
    CHECK(memcmp(&sum[0], &sum[1], sizeof *sum) == 0 &&
          fabsl((long double)sum[1] - plain) <= 2 * (long double)eps * all);
    if (sum[0] != sum[1])
        printf("%s: %s, %d rows of %d: %.17g apart, %.17g dense\n", where, gn_dtype_name(d), (int)rows, (int)length,
               sum[0], sum[1]);
}

TEST(sums_over_rows_of_any_length_are_those_of_dense_ones_on_every_instruction_path) {
    static const char *const isas[] = { "base", "avx2", "avx512" };
    static const int16_t lengths[] = { 1,   5,   63,  64,  65,  127, 128,  129,  192,
                                       256, 383, 384, 512, 640, 896, 1000, 1536, 2048 };
    const char *named = getenv("GENIE_TEST_DEVICES");
    for (int i = 0; i < (named ? 1 : TEST_COUNT(isas)); i++) {
        if (!named) setenv("GENIE_ISA", isas[i], 1);
        gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 1 });
        unsetenv("GENIE_ISA");
        for (int l = 0; l < TEST_COUNT(lengths); l++)
            for (int rows = 1; rows <= 40; rows += 13) {
                check_rows(g, GN_F32, 0x1p-23, rows, lengths[l], isas[i]);
                check_rows(g, GN_F64, 0x1p-52, rows, lengths[l], isas[i]);
            }
        gn_close(g);
    }
}

/* ---- what is read beside ---- */

enum { MOST_BESIDE = 6 };

static size_t bytes_of(gn_tensor t) {
    gn_info info = { .result = GN_OK };
    size_t n = gn_describe(t, &info) == GN_OK ? gn_dtype_bytes(info.dtype) : 0;
    for (int i = 0; i < info.shape.rank; i++) n *= (size_t)info.shape.dims[i];
    return n;
}

/* A reduction of an expression in `wide` of what `d` holds, and in t[1], t[2], ... what it comes from. */
static int sum_and_parts(gn_ctx *g, gn_dtype d, gn_dtype wide, const void *data, gn_shape shape, int kind,
                         gn_tensor *t) {
    gn_tensor x = gn_data(g, d, shape, data), f = gn_cast(x, wide), h = gn_mul(f, gn_exp(gn_mul_c(f, 0.25)));
    gn_axes axes = kind % 3 == 0 ? GN_AXES(1) : kind % 3 == 1 ? GN_AXES(0) : GN_AXES(0, 1);
    gn_tensor squares = gn_square(h), s = kind / 3 % 2 ? gn_mean(squares, axes, true) : gn_sum(h, axes, true);
    t[1] = f, t[2] = h, t[3] = squares, t[4] = s;
    t[5] = gn_cast(gn_div(h, gn_add(gn_abs(s), gn_scalar(g, wide, 1))), d);
    t[0] = kind / 6 == 1 ? gn_softmax(t[5], kind % 3 == 1 ? 0 : 1) : s;
    if (kind / 6 == 2) t[0] = gn_layernorm(h, GN_NONE, GN_NONE, 0);
    return 6;
}

/* The same bits whether the result alone is read, or with any of its parts, which are then stored. */
static void check_beside(gn_ctx *g, gn_dtype d, gn_dtype wide, const void *data, gn_shape shape, int kind) {
    size_t most = 8 * (size_t)(shape.dims[0] * shape.dims[1]);
    char *alone = (char *)malloc(3 * most), *other = alone + most, *part = other + most;
    REQUIRE(alone);
    int n = MOST_BESIDE;
    for (int k = 0; k < n; k++) {
        gn_tensor t[MOST_BESIDE], read[2];
        n = sum_and_parts(g, d, wide, data, shape, kind, t);
        read[0] = t[0], read[1] = t[k];
        size_t bytes[2] = { bytes_of(t[0]), bytes_of(t[k]) };
        REQUIRE(bytes[0] && bytes[0] <= most && bytes[1] <= most);
        REQUIRE(gn_read_many(read, k ? 2 : 1, (void *[]){ k ? other : alone, part }, bytes) == GN_OK);
        gn_step(g);
        if (k && memcmp(alone, other, bytes[0]) != 0)
            test_fail(__FILE__, __LINE__, "%s to %s, %d x %d, kind %d: other bits with part %d read", gn_dtype_name(d),
                      gn_dtype_name(wide), (int)shape.dims[0], (int)shape.dims[1], kind, k);
    }
    free(alone);
}

TEST(what_is_read_beside_changes_no_bit) {
    static const gn_dtype from[] = { GN_F16, GN_BF16, GN_F32, GN_F16 }, to[] = { GN_F32, GN_F32, GN_F64, GN_F64 };
    static const int16_t rows[] = { 1, 8, 64 }, lengths[] = { 96, 160, 384, 1000, 2048 };
    const char *named = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 2 });
    fill_pools(g);
    for (int i = 0; i < 3 * 5; i++) {
        gn_shape shape = GN_SHAPE(rows[i % 3], lengths[i / 3]);
        for (int dtype = 0; dtype < TEST_COUNT(from); dtype++)
            for (int k = 0; k < 3; k++)
                check_beside(g, from[dtype], to[dtype], pools[from[dtype]], shape, (int)test_random_int(0, 17));
    }
    gn_close(g);
}

/* Rows that several groups of threads of one block sum up, or blocks of their own. */
TEST(what_is_read_beside_changes_no_bit_of_long_rows) {
    static const gn_dtype from[] = { GN_F16, GN_F32, GN_F16 }, to[] = { GN_F32, GN_F32, GN_F64 };
    static const gn_shape shapes[] = { { 2, { 2, 40000 } }, { 2, { 66, 33000 } }, { 2, { 70, 12288 } } };
    static const int kinds[] = { 0, 3, 12 }; /* over the rows: a sum, a mean of squares, a norm */
    const char *named = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 2 });
    fill_pools(g);
    for (int i = 0; i < 3 * 3; i++) {
        gn_dtype d = from[i % 3];
        gn_shape shape = shapes[i / 3];
        size_t n = (size_t)(shape.dims[0] * shape.dims[1]), width = gn_dtype_bytes(d);
        char *data = (char *)malloc(n * width);
        REQUIRE(data);
        for (size_t k = 0; k < n; k++)
            memcpy(data + k * width, (const char *)pools[d] + (k * 7 + k / 40961) % POOL * width, width);
        check_beside(g, d, to[i % 3], data, shape, kinds[test_random_int(0, 2)]);
        free(data);
    }
    gn_close(g);
}

/* A norm of which a loop alone reads the result, where its rows are as long as runs of the loop's other operands or
   longer, with operands of its own or none, is that which is realised first. */
TEST(norms_inside_loops_change_no_bit) {
    static const int64_t sizes[][4] = { { 16, 8, 4, 784 }, { 6, 32, 2, 1024 }, { 9, 5, 5, 77 }, { 1, 1, 1, 1 } };
    const char *named = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = named ? named : "cpu", .threads = 1 });
    fill_pools(g);
    for (int i = 0; i < 4 * 2 * 4 * 2; i++) {
        const int64_t *size = sizes[i % 4];
        gn_dtype d = i / 4 % 2 ? GN_F32 : GN_F64;
        int64_t channels = size[1] / size[2], n = size[0] * size[1] * size[3];
        gn_shape whole = GN_SHAPE(size[0], size[1], size[3]),
                 rows = GN_SHAPE(size[0] * channels, size[1] / channels * size[3]);
        char *data[2], *read[2];
        for (int k = 0; k < 2; k++) {
            data[k] = (char *)malloc((size_t)n * gn_dtype_bytes(d));
            read[k] = (char *)malloc((size_t)n * gn_dtype_bytes(d));
            REQUIRE(data[k] && read[k]);
            for (int64_t e = 0; e < n; e++)
                memcpy(data[k] + (size_t)e * gn_dtype_bytes(d),
                       (const char *)pools[d] + (size_t)(e * 7 + k + e / 4099) % POOL * gn_dtype_bytes(d),
                       gn_dtype_bytes(d));
        }
        for (int k = 0; k < 2; k++) {
            gn_tensor x = gn_data(g, d, rows, data[0]), by = gn_data(g, d, GN_SHAPE(1, size[1], 1), data[1]);
            gn_tensor gain = i / 8 % 4 & 1 ? gn_data(g, d, GN_SHAPE(rows.dims[1]), data[1]) : GN_NONE;
            gn_tensor bias = i / 8 % 4 & 2 ? gn_data(g, d, GN_SHAPE(rows.dims[1]), data[1]) : GN_NONE;
            if (i / 32) x = gn_mul_c(gn_reshape(gn_cumsum(x, 1), rows), 0.5); /* whose memory the loop's may be */
            gn_tensor y = gn_reshape(gn_layernorm(x, gain, bias, 1e-5), whole);
            if (k) y = realized(y);
            y = gn_add(gn_mul(y, by), gn_slice(gn_flip(by, GN_AXES(1)), 1, 0, size[1], 1));
            CHECK_RESULT(gn_read(y, read[k], (size_t)n * gn_dtype_bytes(d)), GN_OK);
        }
        CHECK(memcmp(read[0], read[1], (size_t)n * gn_dtype_bytes(d)) == 0);
        for (int k = 0; k < 2; k++) free(data[k]), free(read[k]);
    }
    gn_close(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(views_and_cuts_on_one_device_change_no_bit),
        TEST_ENTRY(views_and_cuts_on_every_instruction_path_change_no_bit),
        TEST_ENTRY(sums_over_rows_of_any_length_are_those_of_dense_ones_on_every_instruction_path),
        TEST_ENTRY(places_change_no_bit),
        TEST_ENTRY(what_is_read_beside_changes_no_bit),
        TEST_ENTRY(what_is_read_beside_changes_no_bit_of_long_rows),
        TEST_ENTRY(norms_inside_loops_change_no_bit),
        LARGE_ENTRIES(F64),
        LARGE_ENTRIES(F32),
        LARGE_ENTRIES(F16),
        LARGE_ENTRIES(BF16),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
