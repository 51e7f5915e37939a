/* Ops along an axis on the CPU executor against plain loops: sort, argsort and top-k of every dtype, length and layout,
 * with ties, zeros of both signs and NaN; on one thread and several, on every instruction path.
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
         sign = dtype != GN_U8 && dtype != GN_U16 && dtype != GN_U32 && dtype != GN_BOOL;
    int64_t most = dtype == GN_I8 || dtype == GN_U8 ? 100 : 30000;
    for (int64_t i = 0; i < n; i++) {
        int64_t few = test_random_int(0, 3) ? most : 5;
        values[i] = (double)test_random_int(sign ? -few : 0, few);
        if (real && test_random_int(0, 9) == 0) {
            values[i] = special[test_random_int(0, 5)];
        }
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
    if (nan_a != nan_b) {
        return nan_a ? 1 : -1;
    }
    if (!nan_a && a->x != b->x) {
        return (a->x < b->x) != sorts_down ? -1 : 1;
    }
    return a->at < b->at ? -1 : 1;
}

/* Whether the first k positions of each line are those of a stable sort of `read_back`. */
static bool in_order(const lines *s, int64_t k, bool down) {
    static item items[MOST];
    sorts_down = down;
    for (int64_t line = 0; line < s->lines; line++) {
        for (int64_t i = 0; i < s->n; i++) {
            items[i] = (item){ read_back[place(s, line, i, s->n)], i };
        }
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
    if (k < s->n) {
        gn_topk(x, k, s->axis, down, &top, &at);
    }
    gn_tensor rest = gn_argsort(x, s->axis, down), both[2] = { at, rest };
    bool ok = CHECK_RESULT(gn_read(wide, read_back, count * sizeof *read_back), GN_OK);
    if (whole) {
        ok = ok && CHECK_RESULT(gn_realize(both, 2), GN_OK);
    }
    ok = ok && CHECK_RESULT(gn_read(at, positions, some * sizeof *positions), GN_OK) && in_order(s, k, down);
    if (ok && whole && CHECK_RESULT(gn_read(rest, positions, count * sizeof *positions), GN_OK)) {
        in_order(s, s->n, down);
    }
    gn_close(g);
}

static const gn_dtype every_dtype[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_BOOL, GN_U8,
                                        GN_I8,  GN_I16, GN_U16, GN_I32,  GN_U32,  GN_I64 };

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
                for (int64_t i = 0; i < firsts[f]; i++) {
                    wrong += positions[i] != ((down != 0) == ((k & 2) != 0) ? i : 19999 - i);
                }
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

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(argsort_of_every_dtype_and_layout_is_a_stable_sort),
        TEST_ENTRY(argsort_of_long_rows_is_a_stable_sort_whatever_the_threads),
        TEST_ENTRY(topk_of_every_dtype_is_the_first_of_a_stable_sort),
        TEST_ENTRY(topk_of_rising_and_falling_rows_is_right),
        TEST_ENTRY(slices_of_an_argsort_read_what_a_whole_one_gives),
        TEST_ENTRY(argsort_and_topk_of_nothing_give_nothing),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
