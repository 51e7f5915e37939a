/* Ops along an axis on the CPU executor against plain loops: sort, argsort and top-k of every dtype, length and layout,
 * with ties, zeros of both signs and NaN; running sums, softmax and reductions, along rows and down columns; on one
 * thread and several, on every instruction path.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

enum { MOST = 1 << 18 };

static double values[MOST], read_back[MOST];
static int64_t positions[MOST];

/* ---- tensors: `lines` lines of n elements along `axis` of a matrix, in one of these layouts ---- */

typedef enum layout { DENSE, EVERY_SECOND, REVERSED, LAYOUTS } layout;

typedef struct lines {
    gn_dtype dtype;
    int64_t n, lines;
    int axis; /* 0: lines lie down the columns */
    layout layout;
} lines;

/* Few different values, so that ties are frequent; with NaN, infinities and zeros of both signs in floats. */
static void fill_values(gn_dtype dtype, int64_t n) {
    static const double special[] = { NAN, -NAN, 0.0, -0.0, INFINITY, -INFINITY };
    bool real = dtype == GN_F32 || dtype == GN_F64 || dtype == GN_F16 || dtype == GN_BF16,
         sign = dtype != GN_U8 && dtype != GN_U16 && dtype != GN_U32 && dtype != GN_U64 && dtype != GN_BOOL;
    int64_t most = dtype == GN_I8 || dtype == GN_U8 ? 100 : 30000;
    for (int64_t i = 0; i < n; i++) {
        int64_t few = test_random_int(0, 3) ? most : 5;
        values[i] = (double)test_random_int(sign ? -few : 0, few);
        if (real && test_random_int(0, 9) == 0) values[i] = special[test_random_int(0, 5)];
    }
}

static gn_tensor tensor_of(gn_ctx *g, const lines *s) {
    int64_t rows = s->axis == 0 ? s->n : s->lines, cols = s->axis == 0 ? s->lines : s->n;
    gn_tensor x;
    if (s->layout == EVERY_SECOND) {
        x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(rows, 2 * cols), values), s->dtype);
        return gn_slice(x, 1, 1, GN_END, 2);
    }
    x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(rows, cols), values), s->dtype);
    return s->layout == REVERSED ? gn_slice(x, s->axis, GN_END, INT64_MIN, -1) : x;
}

/* Where element i of a line is in row-major order. */
static int64_t place(const lines *s, int64_t line, int64_t i, int64_t n) {
    return s->axis == 0 ? i * s->lines + line : line * n + i;
}

static const char *text_of(const lines *s) {
    static char text[128];
    snprintf(text, sizeof text, "%s, %d lines of %d along axis %d, layout %d", gn_dtype_name(s->dtype), (int)s->lines,
             (int)s->n, s->axis, (int)s->layout);
    return text;
}

/* ---- sort ---- */

typedef struct item {
    double x;
    int64_t at;
} item;
static bool sorts_down;

static int compare_items(const void *pa, const void *pb) {
    const item *a = (const item *)pa, *b = (const item *)pb;
    bool nan_a = a->x != a->x, nan_b = b->x != b->x;
    if (nan_a != nan_b) return nan_a ? 1 : -1;
    if (!nan_a && a->x != b->x) return (a->x < b->x) != sorts_down ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

/* Whether the first k positions of each line are those of a stable sort of `read_back`. */
static bool in_order(const lines *s, int64_t k, bool down) {
    static item items[MOST];
    sorts_down = down;
    for (int64_t line = 0; line < s->lines; line++) {
        for (int64_t i = 0; i < s->n; i++) items[i] = (item){ read_back[place(s, line, i, s->n)], i };
        qsort(items, (size_t)s->n, sizeof *items, compare_items);
        for (int64_t i = 0; i < k; i++) {
            if (positions[place(s, line, i, k)] != items[i].at) {
                test_fail(__FILE__, __LINE__, "%s, %s: number %d of line %d is %d, not %d", text_of(s),
                          down ? "down" : "up", (int)i, (int)line, (int)positions[place(s, line, i, k)],
                          (int)items[i].at);
                return false;
            }
        }
    }
    return true;
}

/* The first k of each line by argsort (k is n) or top-k, its own argsort beside it when `whole`. */
static void check_order(const lines *s, uint32_t threads, int64_t k, bool down, bool whole) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    fill_values(s->dtype, s->n * s->lines * (s->layout == EVERY_SECOND ? 2 : 1));
    gn_tensor x = tensor_of(g, s), wide = gn_cast(x, GN_F64), top, at = gn_argsort(x, s->axis, down);
    size_t count = (size_t)(s->n * s->lines), some = (size_t)(k * s->lines);
    memset(positions, 0xff, sizeof positions);
    if (k < s->n) gn_topk(x, k, s->axis, down, &top, &at);
    gn_tensor rest = gn_argsort(x, s->axis, down), both[2] = { at, rest };
    bool ok = CHECK_RESULT(gn_read(wide, read_back, count * sizeof *read_back), GN_OK);
    if (whole) ok = ok && CHECK_RESULT(gn_realize(both, 2), GN_OK);
    ok = ok && CHECK_RESULT(gn_read(at, positions, some * sizeof *positions), GN_OK) && in_order(s, k, down);
    if (ok && whole && CHECK_RESULT(gn_read(rest, positions, count * sizeof *positions), GN_OK))
        in_order(s, s->n, down);
    gn_close(g);
}

static const gn_dtype every_dtype[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_BOOL, GN_U8, GN_I8,
                                        GN_I16, GN_U16, GN_I32, GN_U32,  GN_I64,  GN_U64 };

TEST(argsort_of_every_dtype_and_layout_is_a_stable_sort) {
    static const int64_t sizes[] = { 1, 2, 31, 64, 65, 513, 1030 };
    for (int d = 0; d < TEST_COUNT(every_dtype); d++) {
        for (int i = 0; i < TEST_COUNT(sizes); i++) {
            lines s = { every_dtype[d], sizes[i], test_random_int(1, 5), (int)test_random_int(0, 1),
                        (layout)test_random_int(0, LAYOUTS - 1) };
            check_order(&s, 1, s.n, i & 1, false);
            check_order(&s, 3, s.n, !(i & 1), false);
        }
    }
}

TEST(argsort_of_long_rows_is_a_stable_sort_whatever_the_threads) {
    static const gn_dtype some[] = { GN_F32, GN_F64, GN_U8, GN_I64 };
    for (int d = 0; d < TEST_COUNT(some); d++) {
        lines s = { some[d], 65536 + 4 * d, 1, 0, (layout)(d % LAYOUTS) };
        check_order(&s, 1, s.n, false, false);
        check_order(&s, 4, s.n, true, false);
        s.n = 100003;
        check_order(&s, 3, s.n, d & 1, false);
    }
}

/* Each digit comes as often as each other, so that their places lie apart by a power of two. */
TEST(argsort_of_numbers_spread_evenly_is_right) {
    enum { N = 1 << 19 };
    static const gn_dtype some[] = { GN_I32, GN_I64, GN_F32, GN_F64 };
    static int64_t at[N];
    for (int d = 0; d < TEST_COUNT(some); d++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = d & 1 ? 3 : 1 });
        gn_tensor x = gn_mul_c(gn_arange(g, GN_I64, N, 0, 1), 2654435761.), order;
        x = gn_cast(gn_and(x, gn_full(g, GN_I64, GN_SHAPE(1), N - 1)), some[d]);
        for (int way = 0; way < 4; way++) { /* up, down; all, half of them */
            const int64_t n = way & 2 ? N / 2 : N;
            int wrong = 0;
            if (way & 2) gn_topk(x, n, 0, way & 1, NULL, &order);
            else order = gn_argsort(x, 0, way & 1);
            memset(at, 0xff, sizeof at);
            REQUIRE(gn_read(order, at, (size_t)n * sizeof *at) == GN_OK);
            for (int64_t i = 0; i < n; i++)
                wrong += ((uint64_t)at[i] * 2654435761u & (N - 1)) != (uint64_t)(way & 1 ? N - 1 - i : i);
            CHECK_INT(wrong, 0);
        }
        gn_close(g);
    }
}

TEST(topk_of_every_dtype_is_the_first_of_a_stable_sort) {
    static const int64_t sizes[] = { 5, 70, 600, 3001, 12289 }, firsts[] = { 1, 3, 64, 65, 300, 2000 };
    for (int d = 0; d < TEST_COUNT(every_dtype); d++) {
        for (int i = 0; i < TEST_COUNT(sizes); i++) {
            for (int k = 0; k < TEST_COUNT(firsts) && firsts[k] < sizes[i]; k++) {
                lines s = { every_dtype[d], sizes[i], test_random_int(1, 3), (int)test_random_int(0, 1),
                            (layout)test_random_int(0, LAYOUTS - 1) };
                check_order(&s, 1 + (uint32_t)(k & 1), firsts[k], (i + k + d) & 1, k == 2);
            }
        }
    }
}

/* Every element replaces one that was kept. */
TEST(topk_of_rising_and_falling_rows_is_right) {
    static const int64_t firsts[] = { 40, 500 };
    for (int k = 0; k < 4; k++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
        gn_tensor x = gn_arange(g, k & 1 ? GN_F32 : GN_I64, 20000, k & 2 ? 20000 : -7, k & 2 ? -1 : 1), at;
        for (int f = 0; f < TEST_COUNT(firsts); f++) {
            for (int down = 0; down < 2; down++) {
                gn_topk(x, firsts[f], 0, down, NULL, &at);
                REQUIRE(gn_read(at, positions, (size_t)firsts[f] * sizeof *positions) == GN_OK);
                int wrong = 0;
                for (int64_t i = 0; i < firsts[f]; i++)
                    wrong += positions[i] != ((down != 0) == ((k & 2) != 0) ? i : 19999 - i);
                CHECK_INT(wrong, 0);
            }
        }
        gn_close(g);
    }
}

/* What lies behind the first ones is not sorted, so nothing may read it. */
TEST(slices_of_an_argsort_read_what_a_whole_one_gives) {
    static const struct {
        int64_t begin, end, step;
    } slices[] = { { 0, 3, 1 }, { 2, 9, 3 }, { 5, 6, 1 }, { -4, GN_END, 1 }, { 7, 2, -2 }, { GN_END, INT64_MIN, -1 },
                   { 4, 4, 1 } };
    enum { ROWS = 3, N = 700 };
    static int64_t all[ROWS * N];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    fill_values(GN_F32, ROWS * N);
    gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(ROWS, N), values), GN_F32);
    REQUIRE(gn_read(gn_argsort(x, -1, true), all, sizeof all) == GN_OK);
    for (int i = 0; i < TEST_COUNT(slices); i++) {
        gn_info info;
        gn_tensor order = gn_argsort(x, -1, true), y;
        y = gn_slice(order, 1, slices[i].begin, slices[i].end, slices[i].step);
        if (i == 1) { /* the deeper of two counts, and an axis that is not the sort's does not */
            y = gn_concat((gn_tensor[]){ y, gn_slice(order, 1, 600, 603, 1) }, 2, 1);
            order = gn_add_c(gn_slice(order, 0, 1, 2, 1), 0);
        }
        REQUIRE(gn_describe(y, &info) == GN_OK && gn_read(y, positions, info.bytes) == GN_OK);
        int64_t cols = info.shape.dims[1], wrong = 0,
                begin = slices[i].begin < 0 ? N + slices[i].begin : slices[i].begin;
        begin = slices[i].begin == GN_END ? N - 1 : begin;
        for (int64_t k = 0; k < ROWS * cols; k++) {
            int64_t at = k % cols, from = i == 1 && at >= 3 ? 600 + at - 3 : begin + at * slices[i].step;
            wrong += positions[k] != all[k / cols * N + from];
        }
        CHECK_INT(wrong, 0);
    }
    gn_close(g);
}

TEST(argsort_and_topk_of_nothing_give_nothing) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor none = gn_full(g, GN_F32, GN_SHAPE(3, 0), 1), some = gn_full(g, GN_F32, GN_SHAPE(0, 5), 1), at;
    CHECK_RESULT(gn_read(gn_argsort(none, 1, false), positions, 0), GN_OK);
    CHECK_RESULT(gn_read(gn_argsort(some, 1, true), positions, 0), GN_OK);
    gn_topk(gn_full(g, GN_F32, GN_SHAPE(3, 5), 1), 0, 1, true, NULL, &at);
    CHECK_RESULT(gn_read(at, positions, 0), GN_OK);
    gn_topk(none, 0, 1, true, NULL, &at);
    CHECK_RESULT(gn_read(at, positions, 0), GN_OK);
    gn_close(g);
}

/* ---- the axis ---- */

static gn_tensor softmax_of(gn_tensor x, int axis) { return gn_softmax(x, axis); }
static gn_tensor log_softmax_of(gn_tensor x, int axis) { return gn_log_softmax(x, axis); }
static gn_tensor sum_of(gn_tensor x, int axis) { return gn_sum(x, GN_AXES(axis), true); }
static gn_tensor product_of(gn_tensor x, int axis) { return gn_prod(x, GN_AXES(axis), true); }
static gn_tensor largest_of(gn_tensor x, int axis) { return gn_max(x, GN_AXES(axis), true); }
static gn_tensor running_sum_of(gn_tensor x, int axis) { return gn_cumsum(x, axis); }
static gn_tensor running_product_of(gn_tensor x, int axis) { return gn_cumprod(x, axis); }
static gn_tensor running_largest_of(gn_tensor x, int axis) { return gn_cummax(x, axis); }

static const struct {
    const char *name;
    gn_tensor (*build)(gn_tensor x, int axis);
    bool integers; /* takes them too */
} along[] = {
    { "softmax", softmax_of, false },
    { "log_softmax", log_softmax_of, false },
    { "sum", sum_of, true },
    { "prod", product_of, true },
    { "max", largest_of, true },
    { "cumsum", running_sum_of, true },
    { "cumprod", running_product_of, true },
    { "cummax", running_largest_of, true },
};

static double turned[MOST], across[MOST];

/* `lines` lines of n numbers by an op along the rows, and of the same lines as columns: equal bits. */
static void check_axis(int op, gn_dtype dtype, int64_t count, int64_t n, uint32_t threads) {
    static const char *const isas[] = { "avx512", "avx2", "base" };
    setenv("GENIE_ISA", isas[threads % 3], 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    gn_info info = { .result = GN_OK };
    for (int64_t i = 0; i < count * n; i++) turned[i % n * count + i / n] = values[i];
    gn_tensor rows = gn_cast(gn_data(g, GN_F64, GN_SHAPE(count, n), values), dtype),
              columns = gn_cast(gn_data(g, GN_F64, GN_SHAPE(n, count), turned), dtype);
    gn_tensor y = gn_cast(along[op].build(rows, 1), GN_F64), z = gn_cast(along[op].build(columns, 0), GN_F64);
    bool ok = CHECK_RESULT(gn_describe(y, &info), GN_OK) && CHECK_RESULT(gn_read(y, read_back, info.bytes), GN_OK) &&
              CHECK_RESULT(gn_read(z, across, info.bytes), GN_OK);
    int64_t m = (int64_t)(info.bytes / sizeof *across) / count, wrong = 0;
    for (int64_t i = 0; i < count * m && ok; i++) {
        double a = read_back[i], b = across[i % m * count + i / m];
        wrong += a != a ? b == b : memcmp(&a, &b, sizeof a) != 0;
    }
    if (wrong) {
        test_fail(__FILE__, __LINE__, "%s of %s, %d lines of %d: %d bits of the columns differ", along[op].name,
                  gn_dtype_name(dtype), (int)count, (int)n, (int)wrong);
    }
    unsetenv("GENIE_ISA");
    gn_close(g);
}

TEST(axis_of_an_op_changes_no_bit) {
    static const gn_dtype some[] = { GN_F32, GN_F64, GN_BF16, GN_F16, GN_I32, GN_I64 };
    static const int64_t sizes[][2] = { { 1, 7 }, { 3, 1 }, { 17, 129 }, { 40, 513 }, { 9, 1300 }, { 530, 70 } };
    for (int op = 0; op < TEST_COUNT(along); op++) {
        for (int d = 0; d < (along[op].integers ? TEST_COUNT(some) : 4); d++) {
            for (int i = 0; i < TEST_COUNT(sizes); i++) {
                for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++) {
                    values[k] = d < 4 ? test_random_real(0.5, 1.6) * (test_random_int(0, 1) ? -1 : 1)
                                      : (double)test_random_int(-9, 9);
                }
                if (i % 2) values[5] = d > 3 ? 0 : i == 3 ? INFINITY : NAN;
                check_axis(op, some[d], sizes[i][0], sizes[i][1], 1 + (uint32_t)(i + d) % 3);
            }
        }
    }
}

TEST(running_sums_products_and_extremes_are_those_of_plain_loops) {
    enum { N = 3000 };
    static double x[N], sum[N], product[N], most[N];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int d = 0; d < 2; d++) {
        long double s = 0;
        double p = 1, m = -INFINITY;
        int wrong = 0;
        gn_tensor t = gn_cast(gn_data(g, GN_F64, GN_SHAPE(N), x), d ? GN_F64 : GN_F32), y[3];
        for (int i = 0; i < N; i++) {
            x[i] = (double)(float)test_random_real(0.9, 1.1) * (i % 3 ? 1 : -1);
            s += (long double)x[i];
            p *= x[i];
            m = x[i] > m ? x[i] : m;
            sum[i] = (double)s;
            product[i] = p;
            most[i] = m;
        }
        y[0] = gn_cast(gn_cumsum(t, 0), GN_F64), y[1] = gn_cast(gn_cumprod(t, 0), GN_F64);
        y[2] = gn_cast(gn_cummax(t, 0), GN_F64);
        for (int k = 0; k < 3; k++) {
            const double *want = k == 0 ? sum : k == 1 ? product : most;
            REQUIRE(gn_read(y[k], across, sizeof x) == GN_OK);
            for (int i = 0; i < N; i++) {
                double w = d ? want[i] : (double)(float)want[i];
                wrong += !(fabs(across[i] - w) <= (d ? 0x1p-52 : 0x1p-23) * fabs(w));
            }
        }
        CHECK_INT(wrong, 0);
        gn_step(g);
    }
    gn_close(g);
}

/* Rows are added up several at a time, also where one of them is not finite from some element on. */
TEST(running_sums_of_rows_have_the_bits_of_each_row_alone) {
    enum { ROWS = 11, LONGEST = 1031 };
    static const char *const isas[] = { "base", "avx2", "avx512" };
    static const int lengths[] = { 1, 3, 4, 7, 130, LONGEST };
    static double x[ROWS * LONGEST], all[ROWS * LONGEST], alone[LONGEST];
    for (int i = 0; i < 3 * TEST_COUNT(lengths); i++) {
        int n = lengths[i % TEST_COUNT(lengths)], wrong = 0;
        setenv("GENIE_ISA", isas[i % 3], 1);
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)i % 2 });
        unsetenv("GENIE_ISA");
        for (int k = 0; k < ROWS * n; k++) x[k] = ldexp(test_random_real(-1, 1), (int)test_random_int(-30, 30));
        for (int k = 0; k < 4; k++)
            x[test_random_int(0, ROWS * n - 1)] = k == 0 ? NAN : k == 1 ? -INFINITY : k == 2 ? INFINITY : -0.0;
        CHECK_RESULT(gn_read(gn_cumsum(gn_data(g, GN_F64, GN_SHAPE(ROWS, n), x), 1), all, (size_t)(ROWS * n) * 8),
                     GN_OK);
        for (int r = 0; r < ROWS; r++) {
            gn_tensor row = gn_data(g, GN_F64, GN_SHAPE(n), x + r * n);
            CHECK_RESULT(gn_read(gn_cumsum(row, 0), alone, (size_t)n * 8), GN_OK);
            wrong += memcmp(alone, all + r * n, (size_t)n * 8) != 0;
        }
        if (!CHECK(wrong == 0)) printf("%s: %d of %d rows of %d differ\n", isas[i % 3], wrong, ROWS, n);
        gn_close(g);
    }
}

/* Sums far below 1 beside a sure class count: a loss of 1e-9 is not 0. */
TEST(cross_entropy_of_sure_and_of_unsure_rows_is_that_of_plain_loops) {
    enum { ROWS = 37, CLASSES = 700 };
    static const gn_dtype some[] = { GN_F32, GN_F64, GN_BF16 };
    static int64_t targets[ROWS];
    for (int d = 0; d < TEST_COUNT(some); d++) {
        for (int sure = 0; sure < 2; sure++) {
            gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)sure });
            double got = 0, want = 0;
            for (int64_t i = 0; i < ROWS * CLASSES; i++) values[i] = (double)(int)test_random_real(-8, 8) * 0.25;
            for (int64_t r = 0; r < ROWS; r++) {
                long double sum = 0;
                targets[r] = test_random_int(0, CLASSES - 1);
                values[r * CLASSES + targets[r]] += sure ? 24 : 0;
                for (int64_t k = 0; k < CLASSES; k++) {
                    sum += k == targets[r]
                               ? 0
                               : expl((long double)(values[r * CLASSES + k] - values[r * CLASSES + targets[r]]));
                }
                want += (double)log1pl(sum) / ROWS;
            }
            gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(ROWS, CLASSES), values), some[d]);
            gn_tensor loss = gn_cross_entropy(x, gn_data(g, GN_I64, GN_SHAPE(ROWS), targets));
            REQUIRE(gn_read(gn_cast(loss, GN_F64), &got, sizeof got) == GN_OK);
            CHECK_NEAR(got / want, 1, some[d] == GN_BF16 ? 0x1p-8 : some[d] == GN_F32 ? 3e-6 : 1e-8);
            targets[30] = CLASSES;
            targets[7] = -1;
            loss = gn_cross_entropy(x, gn_data(g, GN_I64, GN_SHAPE(ROWS), targets));
            CHECK_RESULT(gn_read(gn_cast(loss, GN_F64), &got, sizeof got), GN_INDEX_OUT_OF_RANGE);
            gn_close(g);
        }
    }
}

/* ---- nonzero and extremes ---- */

TEST(nonzero_of_every_dtype_and_layout_is_that_of_a_plain_loop) {
    for (int d = 0; d < TEST_COUNT(every_dtype); d++) {
        for (int i = 0; i < LAYOUTS; i++) {
            lines s = { every_dtype[d], 1100, 3, 1, (layout)i };
            gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
            fill_values(s.dtype, s.n * s.lines * 2);
            gn_tensor x = tensor_of(g, &s);
            int64_t count = 0, wrong = 0, all = s.n * s.lines;
            REQUIRE(gn_read(gn_cast(x, GN_F64), read_back, (size_t)all * sizeof *read_back) == GN_OK);
            for (int64_t k = 0; k < all; k++) count += read_back[k] != 0;
            REQUIRE(gn_read(gn_nonzero(x, count + 5), positions, (size_t)(count + 5) * 2 * sizeof *positions) == GN_OK);
            for (int64_t k = 0, at = 0; k < all; k++) {
                if (read_back[k] != 0) {
                    wrong += positions[2 * at] != k / s.n || positions[2 * at + 1] != k % s.n;
                    at++;
                }
            }
            for (int64_t k = 2 * count; k < 2 * count + 10; k++) wrong += positions[k] != -1;
            CHECK_INT(wrong, 0);
            gn_tensor row = gn_nonzero(gn_reshape(x, GN_SHAPE(all)), count + 5);
            REQUIRE(gn_read(row, positions, (size_t)(count + 5) * sizeof *positions) == GN_OK);
            for (int64_t k = 0, at = 0; k < all; k++)
                if (read_back[k] != 0) wrong += positions[at++] != k;
            for (int64_t k = count; k < count + 5; k++) wrong += positions[k] != -1;
            CHECK_INT(wrong, 0);
            CHECK_RESULT(gn_read(gn_nonzero(x, count), positions, (size_t)count * 2 * sizeof *positions), GN_OK);
            CHECK_RESULT(gn_read(gn_nonzero(gn_reshape(x, GN_SHAPE(all)), count - 1), positions,
                                 (size_t)(count - 1) * sizeof *positions),
                         GN_INDEX_OUT_OF_RANGE);
            gn_close(g);
        }
    }
}

TEST(extremes_of_integers_are_those_of_plain_loops) {
    static const int64_t edges[] = { INT32_MIN, INT32_MAX, 0, -1, 1 };
    for (int64_t n = 1; n < 5000; n = n * 2 + 3) {
        for (int d = 5; d < TEST_COUNT(every_dtype); d++) {
            gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
            fill_values(every_dtype[d], n);
            values[n / 2] = every_dtype[d] == GN_I32 ? (double)edges[n % 5] : values[n / 2];
            gn_tensor x = gn_cast(gn_data(g, GN_F64, GN_SHAPE(n), values), every_dtype[d]), y[2];
            double least = INFINITY, most = -INFINITY, got[2] = { 0, 0 };
            for (int64_t i = 0; i < n; i++) {
                least = fmin(least, values[i]);
                most = fmax(most, values[i]);
            }
            y[0] = gn_cast(gn_min(x, GN_ALL_AXES, false), GN_F64);
            y[1] = gn_cast(gn_max(x, GN_ALL_AXES, false), GN_F64);
            REQUIRE(gn_read(y[0], &got[0], 8) == GN_OK && gn_read(y[1], &got[1], 8) == GN_OK);
            CHECK(got[0] == least && got[1] == most);
            gn_close(g);
        }
    }
}

static gn_tensor reduced(int kind, gn_tensor x, gn_axes axes) {
    switch (kind) {
    case 0: return gn_sum(x, axes, false);
    case 1: return gn_mean(x, axes, false);
    case 2: return gn_max(x, axes, false);
    case 3: return gn_prod(x, axes, false);
    default: return gn_argmax(x, axes, false);
    }
}

/* A loop runs inside the reduction that alone reads its result; where its result is read too it runs before. */
TEST(reduction_of_a_loop_has_the_bits_of_that_of_its_stored_result) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_I32, GN_I8 };
    static const int64_t sizes[][2] = { { 3, 70001 }, { 500, 777 }, { 1, 65 }, { 40, 2048 } };
    static uint8_t alone[8 * 500], beside[8 * 500];
    void *stored = malloc(8 * 500 * 777);
    for (int threads = 1; threads <= 2; threads++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = (uint32_t)threads });
        for (int i = 0; i < TEST_COUNT(dtypes) * TEST_COUNT(sizes) * 10; i++) {
            const int64_t *s = sizes[i / 10 % TEST_COUNT(sizes)];
            gn_dtype d = dtypes[i / 10 / TEST_COUNT(sizes)];
            gn_axes axes = i % 2 ? GN_AXES(1) : GN_ALL_AXES;
            if (i % 10 / 2 == 1 && d > GN_BF16) continue; /* no mean of integers */
            gn_tensor x = gn_cast(gn_mul_c(gn_arange(g, GN_F32, s[0] * s[1], 0, 1), 0.000123), d);
            x = gn_reshape(x, GN_SHAPE(s[0], s[1]));
            gn_tensor y = reduced(i % 10 / 2, gn_add(gn_mul(x, x), x), axes), z[2];
            gn_info info;
            REQUIRE(gn_describe(y, &info) == GN_OK);
            REQUIRE(gn_read(y, alone, info.bytes) == GN_OK);
            z[1] = gn_add(gn_mul(x, x), x);
            z[0] = reduced(i % 10 / 2, z[1], axes);
            REQUIRE(gn_read_many(z, 2, (void *[]){ beside, stored },
                                 (size_t[]){ info.bytes, (size_t)(s[0] * s[1]) * gn_dtype_bytes(d) }) == GN_OK);
            if (memcmp(alone, beside, info.bytes))
                test_fail(__FILE__, __LINE__, "%s (%d,%d), kind %d, %d threads: other bits", gn_dtype_name(d),
                          (int)s[0], (int)s[1], i % 10, threads);
            gn_step(g);
        }
        gn_close(g);
    }
    free(stored);
}

TEST(reduction_of_a_loop_that_divides_by_zero_fails) {
    static int32_t a[4000], b[4000];
    for (int i = 0; i < 4000; i++) a[i] = i, b[i] = i != 3333;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor x = gn_data(g, GN_I32, GN_SHAPE(4000), a), y = gn_data(g, GN_I32, GN_SHAPE(4000), b);
    int64_t sum;
    CHECK_RESULT(gn_read(gn_sum(gn_div(x, y), GN_ALL_AXES, false), &sum, sizeof sum), GN_DIVISION_BY_ZERO);
    gn_close(g);
}

/* Along the first axis whole rows are worked on, along the last one lines: they have the same bits. */
TEST(softmax_down_columns_has_the_bits_of_that_along_rows) {
    enum { N = 331, M = 75 };
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_F16, GN_BF16 };
    static uint8_t down[N * M * 8], in_rows[N * M * 8];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    for (int i = 0; i < 4 * TEST_COUNT(dtypes); i++) {
        gn_dtype d = dtypes[i / 4];
        gn_tensor x = gn_sin(gn_mul_c(gn_arange(g, GN_F32, N * M, 0, 1), 1.7));
        x = gn_cast(gn_reshape(gn_mul_c(x, 20), GN_SHAPE(N, M)), d);
        if (i % 2) x = gn_where(gn_lt_c(x, -19), gn_like(x, i % 4 == 1 ? -INFINITY : NAN), x);
        gn_tensor t = gn_transpose(x, 0, 1);
        REQUIRE(gn_realize(&t, 1) == GN_OK); /* stored: its rows lie in a row */
        gn_tensor y[2] = { i & 2 ? gn_log_softmax(x, 0) : gn_softmax(x, 0),
                           gn_transpose(i & 2 ? gn_log_softmax(t, 1) : gn_softmax(t, 1), 0, 1) };
        size_t bytes = N * M * gn_dtype_bytes(d);
        REQUIRE(gn_read(y[0], down, bytes) == GN_OK && gn_read(y[1], in_rows, bytes) == GN_OK);
        CHECK_INT(memcmp(down, in_rows, bytes), 0);
        gn_step(g);
    }
    gn_close(g);
}

/* Whole columns of the least and of the largest numbers: as many as running sums of fewer bits could not hold. Bools
   are bytes of any kind, of which all but 0 are true. */
TEST(sums_of_the_largest_integers_are_those_of_plain_loops) {
    enum { ROWS = 1100, COLS = 530 };
    static const gn_dtype dtypes[] = { GN_I8, GN_U8, GN_I16, GN_U16, GN_I32, GN_U32, GN_BOOL };
    static const char *const isas[] = { "base", "avx2", "avx512" };
    static uint8_t bytes[ROWS * COLS * 4];
    static int64_t sums[ROWS];
    static double whole[ROWS * COLS];
    for (int i = 0; i < 3 * TEST_COUNT(dtypes); i++) {
        gn_dtype d = dtypes[i / 3];
        size_t size = gn_dtype_bytes(d);
        setenv("GENIE_ISA", isas[i % 3], 1);
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)i % 2 });
        int64_t rows = test_random_int(1, ROWS), cols = test_random_int(1, COLS), wrong = 0;
        for (int64_t k = 0; k < rows * cols; k++) { /* by columns: all least, all largest, or any */
            bool sign = d == GN_I8 || d == GN_I16 || d == GN_I32;
            uint64_t any = (uint64_t)test_random_int(0, UINT32_MAX), top = (uint64_t)1 << (8 * size - 1),
                     v = k % cols % 3 == 0   ? (sign ? top : 0)
                         : k % cols % 3 == 1 ? (sign ? top - 1 : UINT64_MAX)
                                             : any;
            memcpy(bytes + (size_t)k * size, &v, size);
            whole[k] = d == GN_BOOL  ? (uint8_t)v != 0
                       : d == GN_I8  ? (double)(int8_t)v
                       : d == GN_U8  ? (double)(uint8_t)v
                       : d == GN_I16 ? (double)(int16_t)v
                       : d == GN_U16 ? (double)(uint16_t)v
                       : d == GN_I32 ? (double)(int32_t)v
                                     : (double)(uint32_t)v;
        }
        gn_tensor x = gn_state(g, d, GN_SHAPE(rows, cols), bytes, "x");
        for (int axis = 0; axis < 3; axis++) { /* 2: both */
            int64_t n = axis == 0 ? cols : axis == 1 ? rows : 1;
            gn_tensor y = axis < 2 ? gn_sum(x, GN_AXES(axis), false) : gn_sum(x, GN_ALL_AXES, false);
            gn_info info;
            REQUIRE(gn_describe(y, &info) == GN_OK && (info.dtype == GN_I64 || info.dtype == GN_U64));
            y = gn_cast(y, GN_I64);
            REQUIRE(gn_read(y, sums, (size_t)n * sizeof *sums) == GN_OK);
            for (int64_t k = 0; k < n; k++) {
                double want = 0;
                for (int64_t l = 0; l < rows * cols / n; l++)
                    want += whole[axis == 0 ? l * cols + k : axis == 1 ? k * cols + l : l];
                wrong += (double)sums[k] != want;
            }
        }
        if (wrong) test_fail(__FILE__, __LINE__, "%s, %s: %d sums", gn_dtype_name(d), isas[i % 3], (int)wrong);
        gn_close(g);
    }
    unsetenv("GENIE_ISA");
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(argsort_of_every_dtype_and_layout_is_a_stable_sort),
        TEST_ENTRY(argsort_of_long_rows_is_a_stable_sort_whatever_the_threads),
        TEST_ENTRY(argsort_of_numbers_spread_evenly_is_right),
        TEST_ENTRY(topk_of_every_dtype_is_the_first_of_a_stable_sort),
        TEST_ENTRY(topk_of_rising_and_falling_rows_is_right),
        TEST_ENTRY(slices_of_an_argsort_read_what_a_whole_one_gives),
        TEST_ENTRY(argsort_and_topk_of_nothing_give_nothing),
        TEST_ENTRY(axis_of_an_op_changes_no_bit),
        TEST_ENTRY(nonzero_of_every_dtype_and_layout_is_that_of_a_plain_loop),
        TEST_ENTRY(extremes_of_integers_are_those_of_plain_loops),
        TEST_ENTRY(running_sums_products_and_extremes_are_those_of_plain_loops),
        TEST_ENTRY(running_sums_of_rows_have_the_bits_of_each_row_alone),
        TEST_ENTRY(cross_entropy_of_sure_and_of_unsure_rows_is_that_of_plain_loops),
        TEST_ENTRY(reduction_of_a_loop_has_the_bits_of_that_of_its_stored_result),
        TEST_ENTRY(reduction_of_a_loop_that_divides_by_zero_fails),
        TEST_ENTRY(softmax_down_columns_has_the_bits_of_that_along_rows),
        TEST_ENTRY(sums_of_the_largest_integers_are_those_of_plain_loops),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
