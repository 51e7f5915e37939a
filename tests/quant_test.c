/* Quantised weights against what others say: GGUF's blocks against the reader of examples/formats (which is compared
 * with the format's own package) and against bytes that this package makes; the stated bounds of every format that is
 * made; a weight that is its file's bytes. On the CPU of this process and on a server reached over a socketpair.
 *
 * Tier: quick */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include "loopback.h"

#define GGUF_IMPLEMENTATION
#include "../examples/formats/gguf.h"

enum { N = 4, K = 512 };

static gn_ctx *g;

static void open_context(bool remote) {
    gn_desc desc = { .devices = remote ? NULL : "cpu", .threads = 2 };
    g = remote ? loopback_open(&desc) : gn_open(&desc);
    CHECK_RESULT(gn_status(g), GN_OK);
}

static bool read_all(gn_tensor t, void *out, size_t bytes) {
    if (CHECK_RESULT(gn_read(t, out, bytes), GN_OK)) return true;
    test_fail(__FILE__, __LINE__, "%s", gn_last_error(g)->text);
    return false;
}

static const gn_quant blocks[] = { GN_QUANT_Q4_0, GN_QUANT_Q4_1, GN_QUANT_Q5_0, GN_QUANT_Q5_1,
                                   GN_QUANT_Q8_0, GN_QUANT_Q4_K, GN_QUANT_Q5_K, GN_QUANT_Q6_K };

static void check_blocks(bool remote) {
    static uint8_t data[N * 2 * 256];
    static float got[N * 256], want[N * 256];
    open_context(remote);
    for (int f = 0; f < TEST_COUNT(blocks); f++) {
        int elements, bytes;
        CHECK(gn_quant_block(blocks[f], &elements, &bytes));
        int64_t row = 256 / elements * bytes;
        for (int i = 0; i < N * row; i++) data[i] = (uint8_t)test_random();
        gn_quantized w = { .format = blocks[f], .data = gn_data(g, GN_U8, GN_SHAPE(N, row), data) };
        CHECK(gguf_to_f32((uint32_t)blocks[f], data, N * 256, want));
        if (!read_all(gn_dequantize(w, GN_F32), got, sizeof got)) break;
        bool equal = true;
        for (int i = 0; i < N * 256; i++)
            equal = equal && (got[i] == want[i] || (got[i] != got[i] && want[i] != want[i]));
        if (!equal) test_fail(__FILE__, __LINE__, "values of format %d differ", (int)blocks[f]);
        gn_step(g);
    }
    gn_close(g);
}
TEST(gguf_blocks_are_the_values_that_a_reader_gives) { check_blocks(false); }
TEST(gguf_blocks_are_the_values_that_a_reader_gives_on_a_server) { check_blocks(true); }

/* Numbers that a few lines of any language make too. */
static void fill(float *x) {
    uint32_t s = 1;
    for (int i = 0; i < N * K; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)((int)((s >> 8) % 2001) - 1000) / 384.0f;
    }
    for (int i = 64; i < 96; i++) x[i] = 0;
}

/* FNV-1a of what gguf.quants.quantize (gguf 0.19.0, from PyPI) makes of fill's numbers, 4 rows of 512. */
TEST(gguf_blocks_are_made_byte_for_byte) {
    static const struct {
        gn_quant format;
        uint64_t hash;
    } made[] = { { GN_QUANT_Q4_0, UINT64_C(0x98014c64c7437dfb) },
                 { GN_QUANT_Q4_1, UINT64_C(0xa224628a9523fad7) },
                 { GN_QUANT_Q5_0, UINT64_C(0xc279ce02437788f9) },
                 { GN_QUANT_Q5_1, UINT64_C(0xfddf3a8320bcf0d4) },
                 { GN_QUANT_Q8_0, UINT64_C(0xc8912127d7da7a7a) } };
    static float x[N * K];
    static uint8_t bytes[N * K * 2];
    open_context(false);
    fill(x);
    for (int f = 0; f < TEST_COUNT(made); f++) {
        int elements, each;
        gn_quant_block(made[f].format, &elements, &each);
        size_t n = (size_t)(N * K / elements * each);
        gn_tensor a = gn_data(g, GN_F32, GN_SHAPE(N, K), x);
        gn_quantized q = gn_quantize(a, &(gn_quantize_desc){ .format = made[f].format });
        if (!read_all(q.data, bytes, n)) break;
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
        if (h != made[f].hash) test_fail(__FILE__, __LINE__, "bytes of format %d differ", (int)made[f].format);
        gn_step(g);
    }
    gn_close(g);
}

/* A step of a group: from its least and largest, and its largest absolute value. */
static double bound_of(const gn_quantize_desc *d, const float *x, int64_t n, int64_t k) {
    bool blocked = d->format < GN_QUANT_INT8;
    int64_t group = blocked ? 32 : d->group ? d->group : K, rows = d->rows ? d->rows : d->group ? 1 : N;
    if (blocked || d->format != GN_QUANT_FP8_E4M3) rows = 1;
    double low = 0, high = 0;
    for (int64_t i = n / rows * rows; i < (n / rows + 1) * rows && i < N; i++)
        for (int64_t j = k / group * group; j < (k / group + 1) * group; j++) {
            low = fmin(low, x[i * K + j]);
            high = fmax(high, x[i * K + j]);
        }
    double most = fmax(-low, high), range = high - low,
           scale = d->scales == GN_F16 || blocked ? 0x1p-11
                   : d->scales == GN_BF16         ? 0x1p-8
                                                  : 0x1p-23;
    double step = d->format == GN_QUANT_Q8_0       ? most / 254
                  : d->format == GN_QUANT_Q4_0     ? most / 8
                  : d->format == GN_QUANT_Q5_0     ? most / 16
                  : d->format == GN_QUANT_Q4_1     ? range / 30
                  : d->format == GN_QUANT_Q5_1     ? range / 62
                  : d->format == GN_QUANT_FP8_E4M3 ? fmax(fabs(x[n * K + k]) / 16, most / (1 << 18))
                  : d->zeros                       ? range / (d->format == GN_QUANT_INT4 ? 15 : 255)
                                                   : most / (d->format == GN_QUANT_INT4 ? 14 : 254);
    return step + most * scale * 1.01 + 1e-7;
}

TEST(what_is_quantised_is_within_its_bound) {
    static const gn_quantize_desc descs[] = { { .format = GN_QUANT_Q4_0 },
                                              { .format = GN_QUANT_Q4_1 },
                                              { .format = GN_QUANT_Q5_0 },
                                              { .format = GN_QUANT_Q5_1 },
                                              { .format = GN_QUANT_Q8_0 },
                                              { GN_QUANT_INT8, 32, 0, GN_F32, false },
                                              { GN_QUANT_INT8, 128, 0, GN_F16, true },
                                              { GN_QUANT_INT8, 0, 0, GN_BF16, false },
                                              { GN_QUANT_INT4, 32, 0, GN_F16, false },
                                              { GN_QUANT_INT4, 64, 0, GN_F32, true },
                                              { GN_QUANT_FP8_E4M3, 0, 0, GN_F32, false },
                                              { GN_QUANT_FP8_E4M3, 0, 1, GN_F32, false },
                                              { GN_QUANT_FP8_E4M3, 128, 3, GN_F32, false } };
    static float x[N * K], y[N * K];
    for (int remote = 0; remote < 2; remote++) {
        open_context(remote);
        fill(x);
        for (int i = 0; i < N * K; i++) x[i] += i % 3 == 0 ? 1.5f : 0;
        for (int f = 0; f < TEST_COUNT(descs); f++) {
            gn_tensor a = gn_data(g, GN_F32, GN_SHAPE(N, K), x);
            if (!read_all(gn_dequantize(gn_quantize(a, &descs[f]), GN_F32), y, sizeof y)) break;
            double worst = 0;
            for (int i = 0; i < N * K; i++)
                worst = fmax(worst, fabs((double)x[i] - y[i]) / bound_of(&descs[f], x, i / K, i % K));
            if (!(worst <= 1)) test_fail(__FILE__, __LINE__, "case %d is off by %.3f of its bound", f, worst);
            if (!(worst > 0.2)) test_fail(__FILE__, __LINE__, "case %d: its bound is not near, %.3f", f, worst);
            gn_step(g);
        }
        gn_close(g);
    }
}

/* The bytes of a file are the weight: what a second context holds already is not sent, whoever made it. */
TEST(a_weight_is_its_bytes_and_is_shared_by_products_and_lookups) {
    static uint8_t data[N * 34];
    static float x[3 * 32], y[3 * N], z[2 * 32], table[N * 32];
    open_context(true);
    for (int i = 0; i < N * 34; i++) data[i] = (uint8_t)(i % 34 == 1 ? 0x2c : i * 37);
    for (int i = 0; i < 3 * 32; i++) x[i] = (float)(i % 7) - 3;
    gguf_to_f32(GN_QUANT_Q8_0, data, N * 32, table);
    gn_quantized w = { .format = GN_QUANT_Q8_0,
                       .data = gn_weight(g, GN_U8, GN_SHAPE(N, 34), data, "blk.0.attn_q.weight") };
    static const int64_t ids[2] = { 3, 1 };
    gn_tensor product = gn_linear_quantized(gn_data(g, GN_F32, GN_SHAPE(3, 32), x), w, GN_NONE),
              rows = gn_embedding_quantized(w, gn_data(g, GN_I64, GN_SHAPE(2), ids), GN_F32);
    CHECK(read_all(product, y, sizeof y) && read_all(rows, z, sizeof z));
    for (int i = 0; i < 3 * N; i++) {
        double sum = 0, terms = 0;
        for (int k = 0; k < 32; k++) {
            sum += (double)x[i / N * 32 + k] * table[i % N * 32 + k];
            terms += fabs((double)x[i / N * 32 + k] * table[i % N * 32 + k]);
        }
        CHECK_NEAR(y[i], sum, terms * 0x1p-21);
    }
    for (int i = 0; i < 64; i++) CHECK(z[i] == table[ids[i / 32] * 32 + i % 32]);
    gn_close(g);
}

/* One product per instruction path, in double with the sum of absolute terms beside it. */
typedef struct path_product {
    gn_quant format;
    gn_dtype scales;
    int64_t n, k, group, m;
    bool zeros, apart; /* apart: scales do not lie together */
} path_product;

static void path_product_on(const path_product *p, const char *isa, const uint8_t *data, const float *scales,
                            const float *x, float *out) {
    int64_t row = p->format == GN_QUANT_INT4   ? p->k / 2
                  : p->format == GN_QUANT_Q8_0 ? p->k / 32 * 34
                                               : p->k,
            groups = p->k / p->group;
    if (isa) setenv("GENIE_ISA", isa, 1);
    open_context(false);
    gn_quantized w = { .format = p->format, .data = gn_data(g, GN_U8, GN_SHAPE(p->n, row), data) };
    if (p->format != GN_QUANT_Q8_0) {
        gn_tensor s = gn_data(g, GN_F32, GN_SHAPE(p->n, p->apart ? 2 * groups : groups), scales);
        w.scales = gn_cast(p->apart ? gn_slice(s, 1, 0, GN_END, 2) : s, p->scales);
        if (p->zeros) w.zeros = gn_slice(gn_data(g, GN_U8, GN_SHAPE(p->n, p->k), data), 1, 0, groups, 1);
    }
    gn_tensor y = gn_linear_quantized(gn_data(g, GN_F32, GN_SHAPE(p->m, p->k), x), w, GN_NONE);
    read_all(y, out, sizeof *out * (size_t)(p->m * p->n));
    gn_close(g);
    unsetenv("GENIE_ISA");
}

/* AVX-512 adds in the order of AVX2, so that a server of either gives the same tokens; with neither only the order is
   another. */
TEST(products_have_equal_bits_by_avx2_and_avx512) {
    static const path_product cases[] = {
        { GN_QUANT_INT4, GN_F16, 131, 768, 64, 1, false, false },
        { GN_QUANT_INT4, GN_F32, 70, 3072, 128, 2, true, false },
        { GN_QUANT_INT4, GN_BF16, 67, 1040, 16, 1, true, true },
        { GN_QUANT_INT4, GN_F16, 5, 2080, 2080, 1, false, false },
        { GN_QUANT_INT8, GN_F16, 131, 768, 64, 1, false, false },
        { GN_QUANT_INT8, GN_F32, 70, 3072, 48, 2, false, true },
        { GN_QUANT_INT8, GN_BF16, 3, 1040, 16, 1, true, false },
        { GN_QUANT_Q8_0, GN_F16, 66, 2080, 32, 2, false, false },
    };
    enum { MOST = 131 * 3072 };
    static uint8_t data[MOST * 2];
    static float scales[MOST], x[2 * 3072], y[3][2 * 131];
    for (int c = 0; c < TEST_COUNT(cases); c++) {
        const path_product *p = &cases[c];
        for (int i = 0; i < MOST * 2; i++) data[i] = (uint8_t)test_random();
        for (int64_t i = 0; i < p->n * p->k / 32 && p->format == GN_QUANT_Q8_0; i++)
            memcpy(data + 34 * i, &(uint16_t){ (uint16_t)(0x1400 + i % 64) }, 2);
        for (int i = 0; i < MOST; i++) scales[i] = (float)test_random_int(1, 500) / 512.f;
        for (int i = 0; i < 2 * 3072; i++) x[i] = (float)test_random_int(-4000, 4000) / 1024.f;
        path_product_on(p, NULL, data, scales, x, y[0]);
        path_product_on(p, "avx2", data, scales, x, y[1]);
        path_product_on(p, "base", data, scales, x, y[2]);
        size_t n = (size_t)(p->m * p->n);
        if (memcmp(y[0], y[1], n * sizeof **y)) test_fail(__FILE__, __LINE__, "case %d: the bits differ", c);
        double most = 0;
        for (size_t i = 0; i < n; i++) most = fmax(most, fabs(y[2][i]));
        for (size_t i = 0; i < n; i++) CHECK_NEAR(y[0][i], y[2][i], 1e-4 * most);
    }
}

/* Of int4 without zeros x is taken as fixed point of 21 bits below its largest element: the error stays below what that
   and sums in f32 allow; what is not finite, or too small or large for that, is summed as floats, row by row. */
TEST(products_of_int4_are_as_exact_as_their_inputs) {
    enum { WIDE = 37, DEEP = 1024, ROWS = 2 };
    static const int groups[] = { 64, 128, 512, 1024, 32 };
    static const struct {
        double outlier, unit;
    } inputs[] = { { 1, 1 },      { 1000, 1 }, { 1, 0x1p-50 },  { 1, 0x1p-70 }, { 1, 0x1p59 },
                   { 1, 0x1p70 }, { 1, 0 },    { INFINITY, 1 }, { NAN, 1 } };
    static uint8_t data[WIDE * DEEP / 2];
    static float scales[WIDE * DEEP / 32], x[ROWS * DEEP], y[2][ROWS * WIDE];
    for (int group = 0; group < TEST_COUNT(groups); group++)
        for (int c = 0; c < TEST_COUNT(inputs); c++) {
            path_product p = { GN_QUANT_INT4, GN_F32, WIDE, DEEP, groups[group], ROWS, false, false };
            for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)test_random();
            for (int i = 0; i < WIDE * DEEP / groups[group]; i++) scales[i] = (float)test_random_int(1, 500) / 512.f;
            for (int i = 0; i < ROWS * DEEP; i++) x[i] = (float)((double)test_random_int(-4000, 4000) / 1024);
            for (int i = 0; i < DEEP; i++) x[i] = (float)(x[i] * inputs[c].unit);
            x[test_random_int(0, DEEP - 1)] =
                (float)((inputs[c].unit > 0 ? inputs[c].unit : 1) * 3 * inputs[c].outlier);
            if (inputs[c].unit <= 0) memset(x, 0, DEEP * sizeof *x);
            path_product_on(&p, NULL, data, scales, x, y[0]);
            path_product_on(&p, "avx2", data, scales, x, y[1]);
            if (memcmp(y[0], y[1], sizeof y[0]))
                test_fail(__FILE__, __LINE__, "case %d of %d: the bits differ", c, group);
            for (int i = 0; i < ROWS * WIDE; i++) {
                double sum = 0, terms = 0, most = 0;
                for (int k = 0; k < DEEP; k++) {
                    int n = i % WIDE, w = (data[(n * DEEP + k) / 2] >> (k % 2 * 4) & 15) - 8;
                    double s = (double)scales[(n * DEEP + k) / groups[group]] * w, v = (double)x[i / WIDE * DEEP + k];
                    sum += s * v;
                    terms += fabs(s * v);
                    most += fabs(s) * 0x1p-22;
                }
                double largest = 0;
                for (int k = 0; k < DEEP; k++) largest = fmax(largest, fabs((double)x[i / WIDE * DEEP + k]));
                if (!isfinite(sum)) CHECK(!isfinite((double)y[0][i]));
                else CHECK_NEAR(y[0][i], sum, most * largest + terms * 0x1p-21);
            }
        }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(gguf_blocks_are_the_values_that_a_reader_gives),
        TEST_ENTRY(gguf_blocks_are_the_values_that_a_reader_gives_on_a_server),
        TEST_ENTRY(gguf_blocks_are_made_byte_for_byte),
        TEST_ENTRY(what_is_quantised_is_within_its_bound),
        TEST_ENTRY(products_have_equal_bits_by_avx2_and_avx512),
        TEST_ENTRY(products_of_int4_are_as_exact_as_their_inputs),
        TEST_ENTRY(a_weight_is_its_bytes_and_is_shared_by_products_and_lookups),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
