/* Products by AMX, in software, so that packing, blocks and edges are tested on any processor; where there is AMX, also
 * by the processor, whose bits must be those of the software.
 *
 * Tier: quick address thread */
#define GENIE_AMX_IN_SOFTWARE
#define GENIE_IMPLEMENTATION
#include "../genie.h"

#include "test.h"

#if GN__AMX

enum { MOST = 1 << 17 };

/* batch (B,M,K) by (B,K,N); sides: bit 0 the left one transposed, 1 the right one, 2 every second column of the right
   one, 3 rows of the left one that no stride tells */
typedef struct form {
    int64_t b, m, k, n;
    int sides;
} form;

static const form forms[] = {
    { 1, 32, 32, 32, 0 },    { 1, 33, 65, 37, 0 },    { 1, 5, 1000, 40, 0 },   { 1, 70, 300, 33, 3 },
    { 1, 181, 301, 277, 0 }, { 1, 64, 2100, 48, 0 },  { 1, 64, 2100, 49, 2 },  { 1, 40, 64, 600, 1 },
    { 1, 200, 40, 40, 4 },   { 1, 90, 129, 70, 8 },   { 3, 29, 65, 33, 0 },    { 4, 32, 32, 32, 0 },
    { 2, 64, 64, 64, 3 },    { 5, 40, 31, 28, 4 },    { 1, 17, 6000, 19, 0 },  { 1, 5, 63, 200, 2 },
    { 2, 100, 200, 60, 1 },  { 1, 160, 512, 288, 0 }, { 1, 161, 513, 256, 0 }, { 1, 6, 17000, 8, 0 },
};

static double left[MOST * 2], right[MOST * 2];
static uint8_t want[MOST * 2], got[MOST * 2];

static gn_ctx *open_cpu(uint32_t threads, bool invariant) {
    return gn_open(&(gn_desc){ .devices = "cpu", .threads = threads, .batch_invariant = invariant });
}

static gn_tensor left_of(gn_ctx *g, const form *f, gn_dtype d) {
    gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(f->b, f->m, f->k), left), d);
    if (f->sides & 8) { /* (2,M/2,K), of planes that lie two rows too far apart */
        x = gn_reshape(x, GN_SHAPE(2, f->m / 2, f->k));
        x = gn_pad(x, GN_SHAPE(0, 0, 0), GN_SHAPE(0, 2, 0), GN_PAD_CONSTANT, 0);
        CHECK_RESULT(gn_realize(&x, 1), GN_OK);
        return gn_slice(x, 1, 0, f->m / 2, 1);
    }
    if (f->sides & 1) {
        x = gn_add_c(gn_transpose(x, 1, 2), 0);
        CHECK_RESULT(gn_realize(&x, 1), GN_OK);
        return gn_transpose(x, 1, 2);
    }
    CHECK_RESULT(gn_realize(&x, 1), GN_OK);
    return x;
}

static gn_tensor right_of(gn_ctx *g, const form *f, gn_dtype d) {
    gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(f->b, f->k, f->n), right), d);
    if (f->sides & 2) x = gn_add_c(gn_transpose(x, 1, 2), 0);
    if (f->sides & 4) x = gn_repeat(x, 2, 2);
    CHECK_RESULT(gn_realize(&x, 1), GN_OK);
    if (f->sides & 4) x = gn_slice(x, 2, 0, 2 * f->n, 2);
    if (f->sides & 2) x = gn_transpose(x, 1, 2);
    return f->b == 1 ? gn_reshape(x, GN_SHAPE(f->k, f->n)) : x;
}

/* The tiles of a product of bf16: of strided sides it is not known whether there are small numbers. */
static int tiles_of(const form *f) { return f->sides & 12 ? -1 : 0; }

/* The product's bytes; that no thread holds tiles then, and whether there were any of a kind (-1: none at all). */
static void multiply(const form *f, gn_dtype d, uint32_t threads, int kind, uint8_t *out) {
    gn_ctx *g = open_cpu(threads, false);
    gn_tensor a = left_of(g, f, d), b = right_of(g, f, d);
    memset(amx_products, 0, sizeof amx_products);
    CHECK_RESULT(gn_read(gn_matmul(a, b), out, (size_t)(f->b * f->m * f->n) * gn__bytes_of(d)), GN_OK);
    CHECK_INT(amx_tiles_live, 0);
    for (int i = 0; i < 3; i++)
        if ((amx_products[i] > 0) != (i == kind))
            test_fail(__FILE__, __LINE__, "(%d,%d,%d) by %d of %s: %d products of kind %d", (int)f->b, (int)f->m,
                      (int)f->k, (int)f->n, gn_dtype_name(d), amx_products[i], i);
    gn_close(g);
}

static float bf16_of(double x) { return gn_bf16_to_f32(gn_f32_to_bf16((float)x)); }
static double draw_one(double scale, bool whole) {
    return whole ? (double)test_random_int(-(int64_t)scale, (int64_t)scale)
                 : (double)bf16_of(test_random_real(-scale, scale));
}
static void draw(const form *f, double scale, bool whole) {
    for (int64_t i = 0; i < f->b * f->m * f->k; i++) left[i] = draw_one(scale, whole);
    for (int64_t i = 0; i < f->b * f->k * f->n; i++) right[i] = draw_one(scale, whole);
}

/* The second half of the terms undoes the first: what is left is what roundings were, and so tells the order. */
static void draw_undone(const form *f) {
    int64_t half = f->k / 2;
    draw(f, 2, false);
    for (int64_t i = 0; i < f->b * f->m; i++)
        for (int64_t l = 0; l < f->k - half; l++) left[i * f->k + half + l] = l < half ? left[i * f->k + l] : 0;
    for (int64_t b = 0; b < f->b; b++)
        for (int64_t i = 0; i < half * f->n; i++) right[(b * f->k + half) * f->n + i] = -right[b * f->k * f->n + i];
}

static float number(const uint8_t *from, int64_t i) {
    uint16_t x;
    memcpy(&x, from + 2 * i, sizeof x);
    return gn_bf16_to_f32(x);
}

/* What the order of tiles gives: of 32 terms the even and the odd ones apart, then both, then to the sum; sums of 1,024
   terms are added in double. */
static float sum_in_order(const form *f, int64_t b, int64_t row, int64_t col, double *out_magnitude) {
    double total = 0, magnitude = 0;
    float sum = 0;
    for (int64_t at = 0; at < f->k; at += 32) {
        float parts[2] = { 0, 0 };
        for (int64_t l = at; l < f->k && l < at + 32; l++) {
            float x = bf16_of(left[(b * f->m + row) * f->k + l]), w = bf16_of(right[(b * f->k + l) * f->n + col]);
            parts[l % 2] = fmaf(x, w, parts[l % 2]);
            magnitude += fabs((double)x * (double)w);
        }
        sum += parts[0] + parts[1];
        if (f->k > 1024 && (at + 32) % 1024 == 0) total += (double)sum, sum = 0;
    }
    *out_magnitude = magnitude;
    return f->k > 1024 ? (float)(total + (double)sum) : sum;
}

static double exact_sum(const form *f, int64_t b, int64_t row, int64_t col) {
    long double sum = 0;
    for (int64_t l = 0; l < f->k; l++)
        sum += (long double)bf16_of(left[(b * f->m + row) * f->k + l]) *
               (long double)bf16_of(right[(b * f->k + l) * f->n + col]);
    return (double)sum;
}

TEST(bf16_products_have_the_sums_of_tiles_in_order_and_are_within_the_bound) {
    int told = 0;
    for (int c = 0; c < 2 * TEST_COUNT(forms); c++) {
        const form *f = &forms[c / 2];
        if (c % 2) draw_undone(f);
        else draw(f, 2, false);
        multiply(f, GN_BF16, 1 + (uint32_t)c % 3, tiles_of(f), want);
        for (int64_t i = 0; i < f->b * f->m * f->n; i += 1 + i % 3) {
            int64_t b = i / f->n / f->m, row = i / f->n % f->m, col = i % f->n;
            double magnitude, is = (double)number(want, i);
            float sum = sum_in_order(f, b, row, col, &magnitude);
            double exact = exact_sum(f, b, row, col);
            told += c % 2 && sum != 0;
            if (is != (double)bf16_of((double)sum) || fabs((double)sum - exact) > 49 * 0x1p-24 * magnitude)
                test_fail(__FILE__, __LINE__, "form %d, element %d is %.9g; in order %.9g, exact %.17g", c, (int)i, is,
                          (double)sum, exact);
        }
    }
    CHECK(told > 5000);
}

TEST(products_of_bytes_are_exact) {
    static const struct {
        gn_dtype d;
        int kind;
        double scale;
    } kinds[] = { { GN_I8, 1, 127 }, { GN_U8, 2, 255 } };
    for (int c = 0; c < TEST_COUNT(forms) * TEST_COUNT(kinds); c++) {
        const form *f = &forms[c / 2];
        draw(f, kinds[c % 2].scale, true);
        for (int64_t i = 0; i < f->b * f->m * f->k && c % 2; i++) left[i] = fabs(left[i]);
        for (int64_t i = 0; i < f->b * f->k * f->n && c % 2; i++) right[i] = fabs(right[i]);
        multiply(f, kinds[c % 2].d, 1 + (uint32_t)c % 3, kinds[c % 2].kind, want);
        for (int64_t i = 0; i < f->b * f->m * f->n; i += 1 + i % 3) {
            int64_t b = i / f->n / f->m, row = i / f->n % f->m, col = i % f->n, sum = 0;
            for (int64_t l = 0; l < f->k; l++)
                sum += (int64_t)left[(b * f->m + row) * f->k + l] * (int64_t)right[(b * f->k + l) * f->n + col];
            if (want[i] != (uint8_t)sum)
                test_fail(__FILE__, __LINE__, "form %d of %s, element %d is %d, not %d", c / 2,
                          gn_dtype_name(kinds[c % 2].d), (int)i, want[i], (int)(uint8_t)sum);
        }
    }
}

TEST(threads_and_how_sides_lie_change_no_bit_of_products_by_tiles) {
    static const gn_dtype dtypes[] = { GN_BF16, GN_I8, GN_U8 };
    for (int c = 0; c < TEST_COUNT(forms) * TEST_COUNT(dtypes); c++) {
        form f = forms[c / 3];
        size_t bytes = (size_t)(f.b * f.m * f.n) * gn__bytes_of(dtypes[c % 3]);
        if (c % 3) draw(&f, 100, false);
        else draw_undone(&f);
        multiply(&f, dtypes[c % 3], 1, c % 3 ? c % 3 : tiles_of(&f), want);
        multiply(&f, dtypes[c % 3], 3, c % 3 ? c % 3 : tiles_of(&f), got);
        if (memcmp(want, got, bytes) != 0) test_fail(__FILE__, __LINE__, "form %d: threads change bits", c / 3);
        if (!f.sides) continue;
        f.sides = 0;
        multiply(&f, dtypes[c % 3], 2, c % 3, got);
        if (memcmp(want, got, bytes) != 0) test_fail(__FILE__, __LINE__, "form %d: dense sides change bits", c / 3);
    }
}

/* Numbers below the normal range are no zeros, and whether there is one changes no bit of rows without it. */
TEST(small_numbers_are_not_flushed_and_change_no_other_row) {
    const form f = { 1, 70, 701, 90, 0 };
    draw_undone(&f);
    multiply(&f, GN_BF16, 2, 0, want);
    for (int64_t l = 0; l < f.k; l++) left[l] = 0x1p-133 * (double)(1 + l % 100);
    multiply(&f, GN_BF16, 2, -1, got);
    CHECK(memcmp(want + 2 * f.n, got + 2 * f.n, (size_t)(2 * (f.m - 1) * f.n)) == 0);
    for (int64_t i = 0; i < f.n; i++) {
        double magnitude;
        CHECK(number(got, i) == bf16_of((double)sum_in_order(&f, 0, 0, i, &magnitude)));
    }
    draw(&f, 2, false);
    for (int64_t i = 0; i < f.m * f.k; i++) left[i] *= 1e-19;
    for (int64_t i = 0; i < f.k * f.n; i++) right[i] *= 1e-20; /* sums below the range, of terms within it */
    multiply(&f, GN_BF16, 2, -1, got);
    int zeros = 0;
    for (int64_t i = 2 * f.n; i < 4 * f.n; i++) {
        double magnitude;
        CHECK(number(got, i) == bf16_of((double)sum_in_order(&f, 0, i / f.n, i % f.n, &magnitude)));
        zeros += number(got, i) == 0;
    }
    CHECK(zeros < f.n / 4);
}

TEST(nan_and_infinity_go_where_they_belong) {
    const form f = { 1, 40, 70, 50, 0 };
    draw(&f, 2, false);
    left[3 * f.k + 5] = NAN;
    left[7 * f.k + 69] = INFINITY;
    right[5 * f.n + 8] = -INFINITY;
    right[9] = right[69 * f.n + 10] = INFINITY; /* which what sides are filled with does not meet */
    multiply(&f, GN_BF16, 1, 0, want);
    for (int64_t i = 0; i < f.m * f.n; i++) {
        double exact = exact_sum(&f, 0, i / f.n, i % f.n), is = (double)number(want, i);
        CHECK(isnan(exact) ? isnan(is) != 0 : isinf(exact) ? is == exact : isfinite(is) != 0);
    }
}

/* Of an invariant context a row alone has the bits it has among others: where one row is a product for tiles, and where
   only many are. */
static void check_rows_alone(const form *f) {
    gn_ctx *g = open_cpu(2, true);
    gn_tensor w = right_of(g, f, GN_BF16), x = left_of(g, f, GN_BF16);
    gn_device_info info;
    CHECK_RESULT(gn_get_device(g, &info), GN_OK);
    CHECK(strstr(info.identity, "isa amx ") && strstr(info.identity, "batch invariant"));
    memset(amx_products, 0, sizeof amx_products);
    CHECK_RESULT(gn_read(gn_matmul(x, w), want, (size_t)(2 * f->m * f->n)), GN_OK);
    for (int i = 0; i + 4 <= f->m; i += 7) {
        gn_tensor row = gn_slice(gn_reshape(x, GN_SHAPE(f->m, f->k)), 0, i, i + 1 + i % 4, 1);
        size_t bytes = (size_t)((1 + i % 4) * 2 * f->n);
        CHECK_RESULT(gn_read(gn_matmul(row, w), got, bytes), GN_OK);
        CHECK(memcmp(got, want + 2 * i * f->n, bytes) == 0);
    }
    CHECK((amx_products[0] > 0) == (f->n * f->k >= GN__PAIRS_TERMS));
    gn_close(g);
}

TEST(rows_alone_have_equal_bits_if_asked_for) {
    static const form products[] = { { 1, 40, 300, 200, 0 }, { 1, 40, 100, 200, 0 } };
    for (int i = 0; i < TEST_COUNT(products); i++) {
        draw_undone(&products[i]);
        check_rows_alone(&products[i]);
    }
}

TEST(lower_paths_use_no_tiles_and_say_so) {
    static const char *const paths[] = { "avx512", "avx2", "base" };
    const form f = { 1, 64, 64, 64, 0 };
    draw(&f, 2, false);
    for (int i = 0; i < TEST_COUNT(paths); i++) {
        gn_device_info info;
        setenv("GENIE_ISA", paths[i], 1);
        multiply(&f, GN_BF16, 1, -1, want);
        multiply(&f, GN_U8, 1, -1, want);
        gn_ctx *g = open_cpu(1, false);
        CHECK_RESULT(gn_get_device(g, &info), GN_OK);
        CHECK(!strstr(info.identity, "isa amx"));
        gn_close(g);
        unsetenv("GENIE_ISA");
    }
}

TEST(the_processor_has_the_bits_of_the_software) {
    static const gn_dtype dtypes[] = { GN_BF16, GN_I8, GN_U8 };
    if (!gn__amx_is_there()) {
        test_skip("no AMX here, or the system does not let this process use it");
        return;
    }
    for (int c = 0; c < TEST_COUNT(forms) * TEST_COUNT(dtypes); c++) {
        const form *f = &forms[c / 3];
        if (c % 3) draw(f, 100, false);
        else draw_undone(f);
        multiply(f, dtypes[c % 3], 2, c % 3 ? c % 3 : tiles_of(f), want);
        amx_real = true;
        multiply(f, dtypes[c % 3], 2, c % 3 ? c % 3 : tiles_of(f), got);
        amx_real = false;
        if (memcmp(want, got, (size_t)(f->b * f->m * f->n) * gn__bytes_of(dtypes[c % 3])) != 0)
            test_fail(__FILE__, __LINE__, "form %d of %s: the processor gives other bits", c / 3,
                      gn_dtype_name(dtypes[c % 3]));
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(bf16_products_have_the_sums_of_tiles_in_order_and_are_within_the_bound),
        TEST_ENTRY(products_of_bytes_are_exact),
        TEST_ENTRY(threads_and_how_sides_lie_change_no_bit_of_products_by_tiles),
        TEST_ENTRY(small_numbers_are_not_flushed_and_change_no_other_row),
        TEST_ENTRY(nan_and_infinity_go_where_they_belong),
        TEST_ENTRY(rows_alone_have_equal_bits_if_asked_for),
        TEST_ENTRY(lower_paths_use_no_tiles_and_say_so),
        TEST_ENTRY(the_processor_has_the_bits_of_the_software),
    };
    test_begin(argc, argv);
    if (!__builtin_cpu_supports("avx512f") && test_open("products_by_tiles")) {
        test_skip("tiles are used on the path avx512");
        test_close();
    } else test_all(tests, TEST_COUNT(tests));
    return test_end();
}

#else

int main(int argc, char **argv) {
    test_begin(argc, argv);
    if (test_open("products_by_tiles")) {
        test_skip("AMX is of x86-64 under Linux");
        test_close();
    }
    return test_end();
}

#endif
