/* Steps of decoding through random blocks of decoders: how many kernels a layer takes on the device of
 * $GENIE_TEST_DEVICES (cuda:0), and its results beside those of the CPU executor in f64 on the same numbers. Blocks
 * differ in rows (1 to 8), sizes of heads, numbers of key heads, widths, norms and where they stand, activations,
 * biases, rotary embeddings, and how weights lie (GENIE_TEST_PROGRAMS=N of them). Where the device is absent this is
 * skipped.
 *
 * Tier: slow kernels */
#define GENIE_EXT
#include "../genie.h"

#include "numbers.h"

static gn_ctx *gpu, *cpu;
static bool reads_products, has_tensor_cores; /* of 16 bits, for products of several rows */

enum { LAYERS = 2, MOST_LEAVES = 64, MOST_KERNELS = 5, PLACES = 40 };

typedef enum norm_place { NORM_PRE, NORM_POST, NORM_SANDWICH, NORM_PARALLEL, NORM_PLACES } norm_place;
typedef enum norm_kind { NORM_LAYER, NORM_RMS, NORM_RMS_FORMULA, NORM_RMS_1P, NORM_KINDS } norm_kind;

typedef struct block {
    uint64_t seed;
    gn_dtype d;
    int64_t batch, dim, head, heads, groups, inner, vocab, at;
    norm_place place;
    norm_kind kind;
    int act, turned; /* elements of a head that rotary embedding turns */
    int quant;       /* format of the matrices, or -1 */
    bool bias, gated, across, one_qkv, qk_norm, interleaved;
} block;

/* The leaves of one context, in the order they are asked for: the same numbers in each. */
typedef struct leaves {
    gn_ctx *g;
    const block *b;
    uint64_t s;
    gn_dtype d;
    void *data[MOST_LEAVES];
    gn_tensor slots[MOST_LEAVES];
    int n;
} leaves;

static int64_t drawn(uint64_t *s, int64_t from, int64_t to) {
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return from + (int64_t)((*s >> 33) % (uint64_t)(to - from + 1));
}

/* Numbers that the block's dtype holds, in the context's. */
static gn_tensor leaf(leaves *w, gn_shape shape, double middle, double spread, bool state) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    size_t bytes = gn_dtype_bytes(w->d);
    char *p = malloc((size_t)n * bytes + 16);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(middle + spread * (double)drawn(&w->s, -32768, 32768) / 32768);
        uint16_t h = w->b->d == GN_F16 ? gn_f32_to_f16(x) : gn_f32_to_bf16(x);
        if (w->b->d != GN_F32) x = w->b->d == GN_F16 ? gn_f16_to_f32(h) : gn_bf16_to_f32(h);
        double wide = x;
        memcpy(p + (size_t)i * bytes, bytes == 2 ? (void *)&h : bytes == 4 ? (void *)&x : (void *)&wide, bytes);
    }
    if (w->n == MOST_LEAVES) abort();
    w->data[w->n] = p;
    return w->slots[w->n++] =
               state ? gn_state(w->g, w->d, shape, p, "state") : gn_weight(w->g, w->d, shape, p, "weight");
}

static gn_tensor normed(leaves *w, gn_tensor x, int64_t n, norm_kind kind) {
    gn_tensor gain = leaf(w, GN_SHAPE(n), kind == NORM_RMS_1P ? 0 : 1, 0.2, false);
    const gn_axes last = GN_AXES(-1);
    switch (kind) {
    case NORM_LAYER: return gn_layernorm(x, gain, leaf(w, GN_SHAPE(n), 0, 0.2, false), 1e-5);
    case NORM_RMS: return gn_rmsnorm(x, gain, 1e-5);
    case NORM_RMS_1P: return gn_rmsnorm_1p(x, gain, 1e-5);
    default: break;
    }
    gn_tensor wide = gn_cast(x, w->d == GN_F64 ? GN_F64 : GN_F32);
    gn_tensor by = gn_rsqrt(gn_add_c(gn_mean(gn_mul(wide, wide), last, true), 1e-5));
    return gn_mul(gn_cast(gn_mul(wide, by), w->d), gain);
}

/* Bytes of all values but FP8's NaN. */
static gn_tensor quant_data(leaves *w, int64_t rows, int64_t bytes) {
    uint8_t *p = malloc((size_t)(rows * bytes));
    for (int64_t i = 0; i < rows * bytes; i++) p[i] = (uint8_t)drawn(&w->s, 0, 255);
    for (int64_t i = 0; i < rows * bytes && w->b->quant == GN_QUANT_FP8_E4M3; i++) p[i] ^= (p[i] & 127) == 127;
    if (w->n == MOST_LEAVES) abort();
    w->data[w->n] = p;
    return w->slots[w->n++] = gn_weight(w->g, GN_U8, GN_SHAPE(rows, bytes), p, "quantised");
}

/* (n, k) in the block's format, of numbers as large as those of other matrices. */
static gn_tensor quantised(leaves *w, gn_tensor x, int64_t k, int64_t n, gn_tensor bias) {
    enum { GROUP = 32 };
    const gn_quant f = (gn_quant)w->b->quant;
    double largest = f == GN_QUANT_FP8_E4M3 ? 224
                     : f == GN_QUANT_INT4   ? 8
                                            : 128,
           middle = sqrt(3.0 / (double)k) / largest;
    gn_quantized q = { .format = f, .data = quant_data(w, n, f == GN_QUANT_INT4 ? k / 2 : k), .rows = 1 };
    q.scales = leaf(w, GN_SHAPE(n, k / GROUP), middle, middle / 2, false);
    if (w->d != GN_F64) return gn_linear_quantized(x, q, bias);
    q.scales = gn_cast(q.scales, GN_F32);
    gn_tensor y = gn_matmul(x, gn_transpose(gn_cast(gn_dequantize(q, GN_F32), GN_F64), 0, 1));
    return w->b->bias ? gn_add(y, bias) : y;
}

static gn_tensor linear(leaves *w, gn_tensor x, int64_t k, int64_t n) {
    double spread = sqrt(3.0 / (double)k);
    if (w->b->quant >= 0) return quantised(w, x, k, n, w->b->bias ? leaf(w, GN_SHAPE(n), 0, 0.2, false) : GN_NONE);
    gn_tensor m = w->b->across ? gn_transpose(leaf(w, GN_SHAPE(n, k), 0, spread, false), 0, 1)
                               : leaf(w, GN_SHAPE(k, n), 0, spread, false);
    gn_tensor y = w->b->bias ? gn_linear(x, m, leaf(w, GN_SHAPE(n), 0, 0.2, false)) : gn_matmul(x, m);
    size_t bytes = (size_t)(w->b->batch * n) * gn_dtype_bytes(w->d);
    void *out = reads_products ? malloc(bytes) : NULL;
    if (out) CHECK_RESULT(gn_read(y, out, bytes), GN_OK);
    free(out);
    return y;
}

static gn_tensor activated(const block *b, gn_tensor x) {
    switch (b->act) {
    case 0: return gn_silu(x);
    case 1: return gn_gelu_tanh(x);
    case 2: return gn_gelu(x);
    case 3: return gn_relu(x);
    default: return gn_square(gn_relu(x));
    }
}

static gn_tensor heads_of(leaves *w, gn_tensor x, int64_t heads, gn_tensor at, bool norm, bool turn) {
    const block *b = w->b;
    x = gn_reshape(x, GN_SHAPE(b->batch, heads, 1, b->head));
    if (norm) x = normed(w, x, b->head, NORM_RMS);
    if (!turn || !b->turned) return x;
    gn_rotary_desc d = { .base = 10000, .size = b->turned, .interleaved = b->interleaved };
    return gn_rotary_with(x, gn_reshape(at, GN_SHAPE(1)), &d);
}

static gn_tensor attended(leaves *w, gn_tensor h, gn_tensor at) {
    const block *b = w->b;
    int64_t q = b->heads * b->head, kv = b->groups * b->head;
    gn_tensor part[3];
    if (b->one_qkv) {
        gn_tensor all = linear(w, h, b->dim, q + 2 * kv);
        for (int i = 0; i < 3; i++) part[i] = gn_slice(all, 1, i ? q + (i - 1) * kv : 0, i ? q + i * kv : q, 1);
    } else
        for (int i = 0; i < 3; i++) part[i] = linear(w, h, b->dim, i ? kv : q);
    gn_tensor query = heads_of(w, part[0], b->heads, at, b->qk_norm, true),
              key = heads_of(w, part[1], b->groups, at, b->qk_norm, true),
              value = heads_of(w, part[2], b->groups, at, false, false);
    gn_shape cache = GN_SHAPE(b->batch, b->groups, PLACES, b->head);
    gn_attention_desc how = { .causal = true, .length = gn_add_c(at, 1) };
    gn_tensor keys = gn_kv_append(leaf(w, cache, 0, 1, true), key, at),
              values = gn_kv_append(leaf(w, cache, 0, 1, true), value, at);
    gn_tensor a = gn_reshape(gn_attention(query, keys, values, &how), GN_SHAPE(b->batch, q));
    return linear(w, a, q, b->dim);
}

static gn_tensor fed_forward(leaves *w, gn_tensor h) {
    const block *b = w->b;
    gn_tensor up = linear(w, h, b->dim, b->inner);
    if (b->gated) up = gn_mul(activated(b, linear(w, h, b->dim, b->inner)), up);
    else up = activated(b, up);
    return linear(w, up, b->inner, b->dim);
}

static gn_tensor layer(leaves *w, gn_tensor x, gn_tensor at) {
    const block *b = w->b;
    int64_t n = b->dim;
    gn_tensor h;
    switch (b->place) {
    case NORM_PRE:
        x = gn_add(x, attended(w, normed(w, x, n, b->kind), at));
        return gn_add(x, fed_forward(w, normed(w, x, n, b->kind)));
    case NORM_POST:
        x = normed(w, gn_add(x, attended(w, x, at)), n, b->kind);
        return normed(w, gn_add(x, fed_forward(w, x)), n, b->kind);
    case NORM_SANDWICH:
        h = attended(w, normed(w, x, n, b->kind), at);
        x = gn_add(x, normed(w, h, n, b->kind));
        h = fed_forward(w, normed(w, x, n, b->kind));
        return gn_add(x, normed(w, h, n, b->kind));
    default: h = normed(w, x, n, b->kind); return gn_add(x, gn_add(attended(w, h, at), fed_forward(w, h)));
    }
}

/* The logits (batch, vocab) behind so many layers as f64, or what went wrong; *kernels: how many ran. */
static gn_result run_block(gn_ctx *g, const block *b, gn_dtype d, int layers, double *out, int64_t *tokens,
                           uint64_t *kernels) {
    leaves w = { .g = g, .b = b, .s = b->seed, .d = d };
    gn_stats before, after;
    gn_tensor x = leaf(&w, GN_SHAPE(b->batch, b->dim), 0, 1, false), at = gn_scalar(g, GN_I32, (double)b->at);
    gn_tensor table = leaf(&w, GN_SHAPE(b->vocab, b->dim), 0, sqrt(3.0 / (double)b->dim), false);
    for (int l = 0; l < layers; l++) x = layer(&w, x, at);
    gn_tensor logits = gn_matmul(x, gn_transpose(table, 0, 1)), all[2];
    gn_get_stats(g, &before);
    all[0] = gn_argmax(logits, GN_AXES(1), false);
    gn_result r = GN_OK;
    if (out) {
        all[0] = gn_cast(x, GN_F64);
        r = gn_read(all[0], out, sizeof(double) * (size_t)(b->batch * b->dim));
    } else r = gn_read(all[0], tokens, sizeof(int64_t) * (size_t)b->batch);
    gn_get_stats(g, &after);
    /* but for those that pack a weight's matrix, once */
    *kernels = after.kernels_run - before.kernels_run - (after.filters_packed - before.filters_packed);
    if (r == GN_OK) r = gn_step(g);
    for (int i = 0; i < w.n; i++) {
        gn_release(w.slots[i]);
        free(w.data[i]);
    }
    return r;
}

static block draw_block(void) {
    static const int64_t sizes[] = { 32, 64, 80, 96, 112, 128, 256, 48 };
    static const int64_t primes[] = { 61, 127, 251, 509 };
    block b = { .seed = test_random(), .d = GN_BF16, .batch = 1 };
    int kind = (int)test_random_int(0, 5);
    if (test_random_int(0, 1)) b.batch = test_random_int(2, 8);
    if (kind == 0) b.d = GN_F32;
    if (kind == 1) b.d = GN_F16;
    b.head = sizes[test_random_int(0, b.d == GN_F32 ? 5 : 7)];
    b.groups = test_random_int(1, 3);
    b.heads = b.groups * test_random_int(1, 3);
    b.dim = 8 * test_random_int(5, 40);
    b.inner = 8 * test_random_int(5, 60);
    b.vocab = primes[test_random_int(0, 3)];
    b.at = test_random_int(0, PLACES - 1);
    b.place = (norm_place)test_random_int(0, NORM_PLACES - 1);
    b.kind = (norm_kind)test_random_int(0, NORM_KINDS - 1);
    b.act = (int)test_random_int(0, 4);
    b.turned = test_random_int(0, 3) ? (int)b.head : test_random_int(0, 1) ? (int)b.head / 2 : 0;
    b.bias = test_random_int(0, 1);
    b.gated = test_random_int(0, 1);
    b.across = test_random_int(0, 1);
    b.one_qkv = test_random_int(0, 2) == 0;
    b.qk_norm = test_random_int(0, 2) == 0;
    b.interleaved = test_random_int(0, 3) == 0;
    b.quant = -1;
    if (b.batch > 1 || test_random_int(0, 2)) return b;
    static const int quants[] = { GN_QUANT_INT8, GN_QUANT_INT4, GN_QUANT_FP8_E4M3 };
    b.quant = quants[test_random_int(0, 2)];
    b.head = (b.head + 31) / 32 * 32;
    b.turned = b.turned ? (int)b.head : 0;
    b.dim = 64 * test_random_int(1, 20);
    b.inner = 64 * test_random_int(1, 20);
    return b;
}

static int n_programs = 12;

static void describe(const block *b, char *out, size_t size) {
    static const char *const places[] = { "pre", "post", "sandwich", "parallel" }, *const kinds[] = {
        "layernorm", "rmsnorm", "rmsnorm written out", "rmsnorm of 1 + gain"
    };
    snprintf(out, size,
             "block %016" PRIx64 ": %s, batch %lld, width %lld, %lld heads of %lld, %lld of keys, inner %lld%s, %s %s, "
             "activation %d, %d turned%s%s%s%s%s, format %d",
             b->seed, gn_dtype_name(b->d), (long long)b->batch, (long long)b->dim, (long long)b->heads,
             (long long)b->head, (long long)b->groups, (long long)b->inner, b->gated ? " gated" : "", places[b->place],
             kinds[b->kind], b->act, b->turned, b->interleaved ? " as neighbours" : "", b->bias ? ", biases" : "",
             b->across ? ", weights across" : "", b->one_qkv ? ", one product of q, k and v" : "",
             b->qk_norm ? ", q and k normed" : "", b->quant);
}

/* The same bits when each product's result is read before the next is asked for: the order of a sum is by its shape,
   not by what shares its kernel. */
static void check_cut(const block *b, const double *whole, const char *what) {
    size_t n = (size_t)(b->batch * b->dim), other = 0;
    double *cut = malloc(sizeof *cut * n);
    uint64_t kernels;
    reads_products = true;
    gn_result r = run_block(gpu, b, b->d, LAYERS, cut, NULL, &kernels);
    reads_products = false;
    if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s: %s", what, gn_last_error(gpu)->text);
    for (size_t i = 0; i < n && r == GN_OK; i++) other += memcmp(&cut[i], &whole[i], sizeof *cut) != 0;
    if (other) test_fail(__FILE__, __LINE__, "%s: %zu of %zu differ when products are read", what, other, n);
    free(cut);
}

/* f32 sums of few columns have more lanes: such products of one row do not share a kernel. Of several rows those do,
   and take in a norm, that tensor cores multiply, 16 bits on some devices, whose processors have all blocks at once. */
static uint64_t most_kernels(const block *b) {
    bool several = b->batch > 1, many_processors = !getenv("GENIE_SHIM_PROCESSORS");
    if (several && (b->d == GN_F32 || !has_tensor_cores || !many_processors)) return MOST_KERNELS + 7;
    return MOST_KERNELS + (b->d == GN_F32);
}

static void check_block(const block *b) {
    int64_t n = b->batch * b->dim, tokens[8];
    double *want = malloc(sizeof *want * (size_t)n), *got = malloc(sizeof *got * (size_t)n), largest = 0, worst = 0;
    uint64_t kernels[3];
    char what[400];
    describe(b, what, sizeof what);
    gn_result r[4] = { run_block(cpu, b, GN_F64, LAYERS, want, NULL, &kernels[0]),
                       run_block(gpu, b, b->d, LAYERS, got, NULL, &kernels[0]),
                       run_block(gpu, b, b->d, 1, NULL, tokens, &kernels[1]),
                       run_block(gpu, b, b->d, 2, NULL, tokens, &kernels[2]) };
    for (int i = 0; i < 4; i++)
        if (r[i] != GN_OK)
            test_fail(__FILE__, __LINE__, "%s: %s: %s", what, gn_result_name(r[i]), gn_last_error(i ? gpu : cpu)->text);
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(want[i]));
        if (!(fabs(want[i] - got[i]) <= worst)) worst = fabs(want[i] - got[i]);
    }
    double bound = b->d == GN_BF16 ? 0.06 : b->d == GN_F16 ? 0.01 : 1e-4;
    if (!(worst <= bound * largest))
        test_fail(__FILE__, __LINE__, "%s: an error of %g beside %g at most", what, worst, bound * largest);
    if (getenv("DECODER_VERBOSE"))
        printf("%llu %g %s\n", (unsigned long long)(kernels[2] - kernels[1]), worst / largest, what);
    uint64_t most = most_kernels(b);
    if (kernels[2] - kernels[1] > most)
        test_fail(__FILE__, __LINE__, "%s: a layer takes %llu kernels, %d are enough", what,
                  (unsigned long long)(kernels[2] - kernels[1]), (int)most);
    check_cut(b, got, what);
    free(want);
    free(got);
}

static void random_blocks_take_five_kernels_a_layer_and_agree_with_f64(void) {
    for (int i = 0; i < n_programs; i++) {
        block b = draw_block();
        check_block(&b);
    }
}

/* What gn_explain says of a norm, a product of it and an activation on three rows. */
static void explain_rows(gn_dtype d, char *out, size_t cap) {
    static const float zeros[64 * 64];
    gn_tensor gain = gn_data(gpu, d, GN_SHAPE(64), zeros), x = gn_data(gpu, d, GN_SHAPE(3, 64), zeros),
              y = gn_silu(gn_matmul(gn_rmsnorm(x, gain, 1e-5), gn_data(gpu, d, GN_SHAPE(64, 64), zeros)));
    out[0] = 0;
    if (gn_explain(&y, 1, NULL, out, cap, NULL) != GN_OK) test_fail(__FILE__, __LINE__, "%s", gn_last_error(gpu)->text);
    gn_step(gpu);
}

static void explain_names_the_op_that_stopped_a_rule(void) {
    char text[8192];
    explain_rows(GN_F32, text, sizeof text);
    CHECK(strstr(text, "kernels: matmul takes 1 more: several rows of it are no work for this GPU's tensor cores"));
    explain_rows(GN_BF16, text, sizeof text);
    CHECK((strstr(text, "kernels: matmul takes") != NULL) == !has_tensor_cores);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(random_blocks_take_five_kernels_a_layer_and_agree_with_f64),
        TEST_ENTRY(explain_names_the_op_that_stopped_a_rule),
    };
    const char *device = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0";
    test_begin(argc, argv);
    if (getenv("GENIE_TEST_PROGRAMS")) n_programs = atoi(getenv("GENIE_TEST_PROGRAMS"));
    gpu = gn_open(&(gn_desc){ .devices = device });
    cpu = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_device_info info;
    const char *sm = gn_get_device(gpu, &info) == GN_OK ? strstr(info.identity, "sm_") : NULL;
    has_tensor_cores = sm && atoi(sm + 3) >= 80;
    if (gn_status(gpu) == GN_OK) test_all(tests, TEST_COUNT(tests));
    for (int i = 0; i < TEST_COUNT(tests) && gn_status(gpu) != GN_OK; i++) {
        if (!test_open(tests[i].name)) continue;
        test_skip(gn_last_error(gpu)->text);
        test_close();
    }
    gn_close(gpu);
    gn_close(cpu);
    return test_end();
}
