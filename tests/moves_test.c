/* What moves elements on the CPU: copies of views of any strides, concatenations, slices put, gathers and scatters,
 * rows of a table, one_hot. Random shapes, dtypes and views, on one thread and on three, beside plain loops over
 * dense arrays; every element is compared for equality. Of indices that are out of range the first in row-major order
 * is named, however many threads look.
 *
 * Tier: quick address thread */
#include "../genie.h"

#include "test.h"

static gn_ctx *contexts[2]; /* of one thread, of three */
static gn_ctx *g;

enum { MOST_RANK = 5 };

/* A tensor and its elements, dense. Whole numbers but for f32 and f64. */
typedef struct model {
    gn_tensor t;
    gn_dtype dtype;
    int rank;
    int64_t dims[MOST_RANK], n;
    double *v;
} model;

static const gn_dtype dtypes[] = { GN_U8,  GN_I8,  GN_I16, GN_U16, GN_F16, GN_BF16,
                                   GN_I32, GN_U32, GN_F32, GN_I64, GN_F64, GN_U64 };

static double **rooms; /* what models of one round hold */
static int n_rooms;

static double *room(int64_t n) {
    rooms = realloc(rooms, (size_t)(n_rooms + 1) * sizeof *rooms);
    return rooms[n_rooms++] = malloc((size_t)(n + 1) * sizeof(double));
}

static void rooms_free(void) {
    while (n_rooms > 0) free(rooms[--n_rooms]);
    free(rooms);
    rooms = NULL;
}

static gn_shape shape_of(const model *m) {
    gn_shape s = GN_SCALAR;
    s.rank = m->rank;
    for (int i = 0; i < m->rank; i++) s.dims[i] = m->dims[i];
    return s;
}

static void sized(model *m) {
    m->n = 1;
    for (int i = 0; i < m->rank; i++) m->n *= m->dims[i];
    m->v = room(m->n);
}

static bool whole(gn_dtype d) { return d != GN_F32 && d != GN_F64; }
static bool has_sign(gn_dtype d) { return d != GN_U8 && d != GN_U16 && d != GN_U32 && d != GN_U64; }

/* What a dtype keeps of a sum or of a number of low size. */
static double kept(gn_dtype d, double x) {
    switch (d) {
    case GN_U8: return (double)(uint8_t)(int64_t)x;
    case GN_I8: return (double)(int8_t)(uint8_t)(int64_t)x;
    case GN_U16: return (double)(uint16_t)(int64_t)x;
    case GN_U32: return (double)(uint32_t)(int64_t)x;
    case GN_F32: return (double)(float)x;
    default: return x;
    }
}

/* New values; the tensor is computed in f64 and cast, so that each dtype holds them exactly. */
static model fresh(gn_dtype d, int rank, const int64_t *dims) {
    model m = { .dtype = d, .rank = rank };
    for (int i = 0; i < rank; i++) m.dims[i] = dims[i];
    sized(&m);
    for (int64_t i = 0; i < m.n; i++) {
        double x = (double)test_random_int(has_sign(d) ? -12 : 0, 12);
        m.v[i] = whole(d) ? x : kept(d, x / 7);
    }
    m.t = gn_cast(gn_data_copy(g, GN_F64, shape_of(&m), m.v), d);
    return m;
}

static int64_t place(const model *m, const int64_t *at) {
    int64_t p = 0;
    for (int i = 0; i < m->rank; i++) p = p * m->dims[i] + at[i];
    return p;
}

static bool next(const model *m, int64_t *at) {
    for (int i = m->rank - 1; i >= 0; i--) {
        if (++at[i] < m->dims[i]) return true;
        at[i] = 0;
    }
    return false;
}

static model permuted(const model *a, const int *order) {
    model y = { .dtype = a->dtype, .rank = a->rank };
    gn_axes axes = { a->rank, { 0 } };
    int64_t at[MOST_RANK] = { 0 }, from[MOST_RANK] = { 0 }, i = 0;
    for (int k = 0; k < a->rank; k++) {
        axes.axis[k] = order[k];
        y.dims[k] = a->dims[order[k]];
    }
    sized(&y);
    if (y.n) do {
            for (int k = 0; k < a->rank; k++) from[order[k]] = at[k];
            y.v[i++] = a->v[place(a, from)];
        } while (next(&y, at));
    y.t = gn_permute(a->t, axes);
    return y;
}

static model sliced(const model *a, int axis, int64_t begin, int64_t count, int64_t step) {
    model y = *a;
    int64_t at[MOST_RANK] = { 0 }, from[MOST_RANK], i = 0, end = begin + count * step;
    y.dims[axis] = count;
    sized(&y);
    if (y.n) do {
            memcpy(from, at, sizeof from);
            from[axis] = begin + at[axis] * step;
            y.v[i++] = a->v[place(a, from)];
        } while (next(&y, at));
    y.t = gn_slice(a->t, axis, begin, end < 0 ? INT64_MIN : end, step);
    return y;
}

static model spread(const model *a, int axis, int64_t n) { /* an axis of one element grows */
    model y = *a;
    int64_t at[MOST_RANK] = { 0 }, from[MOST_RANK], i = 0;
    y.dims[axis] = n;
    sized(&y);
    if (y.n) do {
            memcpy(from, at, sizeof from);
            from[axis] = 0;
            y.v[i++] = a->v[place(a, from)];
        } while (next(&y, at));
    y.t = gn_broadcast(a->t, shape_of(&y));
    return y;
}

/* Some views, one of another. */
static model seen(model m) {
    for (int k = (int)test_random_int(0, 3); k > 0 && m.rank > 0; k--) {
        int axis = (int)test_random_int(0, m.rank - 1), order[MOST_RANK];
        int64_t n = m.dims[axis], step = test_random_int(1, 3);
        switch (test_random_int(0, 3)) {
        case 0:
            for (int i = 0; i < m.rank; i++) order[i] = i;
            for (int i = m.rank - 1; i > 0; i--) {
                int j = (int)test_random_int(0, i), o = order[i];
                order[i] = order[j];
                order[j] = o;
            }
            m = permuted(&m, order);
            break;
        case 1:
            if (n > 0) m = sliced(&m, axis, n - 1, (n - 1) / step + 1, -step);
            break;
        case 2:
            if (n > 0) m = sliced(&m, axis, n / 4, (n - n / 4 - 1) / step + 1, step);
            break;
        default:
            if (n == 1 && m.n < 100000) m = spread(&m, axis, test_random_int(1, 9));
            break;
        }
    }
    return m;
}

static model any(gn_dtype d, int64_t large) { /* large: about as many elements */
    int64_t dims[MOST_RANK], left = large;
    int rank = (int)test_random_int(large > 1 ? 2 : 1, MOST_RANK - 1);
    for (int i = 0; i < rank; i++) {
        dims[i] = test_random_int(0, 20) ? test_random_int(1, large > 1 ? 90 : 19) : 0;
        if (large > 1) dims[i] = i == rank - 1 ? left + 3 : dims[i] % left + 1;
        if (large > 1) left = left / dims[i] > 1 ? left / dims[i] : 1;
    }
    return fresh(d, rank, dims);
}

static gn_dtype any_dtype(void) { return dtypes[test_random_int(0, TEST_COUNT(dtypes) - 1)]; }

/* Reads t itself, so that a view is copied as it is, and widens here. */
static void agrees(const char *what, gn_tensor t, const model *want) {
    size_t bytes = (size_t)want->n * gn_dtype_bytes(want->dtype);
    char *raw = malloc(bytes + 8);
    double *got = room(want->n);
    memset(raw, 0xa5, bytes + 8);
    if (CHECK_RESULT(gn_read(t, raw, bytes), GN_OK)) {
        bool past = memcmp(raw + bytes, "\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5", 8) != 0;
        CHECK(!past);
        gn_tensor again = gn_cast(gn_data_copy(g, want->dtype, shape_of(want), raw), GN_F64);
        CHECK_RESULT(gn_read(again, got, (size_t)want->n * sizeof *got), GN_OK);
        for (int64_t i = 0; i < want->n; i++)
            if (got[i] != want->v[i]) {
                test_fail(__FILE__, __LINE__, "%s of dtype %d: element %lld of %lld is %g, not %g", what,
                          (int)want->dtype, (long long)i, (long long)want->n, got[i], want->v[i]);
                break;
            }
    }
    free(raw);
}

static void round_ends(void) {
    gn_step(g);
    rooms_free();
}

/* A quarter of them shows a thread sanitizer every kind of copy. */
static int rounds_of(int n) {
    int rounds = TEST_SANITIZED_THREADS ? n / 4 : n;
    if (rounds < n) printf("  %s: %d of %d rounds\n", test__.name, rounds, n);
    return rounds;
}

TEST(views_that_are_copied_have_their_elements) {
    for (int i = 0, n = rounds_of(600); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        model m = seen(any(any_dtype(), i % 30 ? 0 : 150000));
        agrees("a view", m.t, &m);
        model flat = { .dtype = m.dtype, .rank = 1, .dims = { m.n }, .n = m.n, .v = m.v };
        flat.t = gn_neg(gn_reshape(m.t, GN_SHAPE(m.n)));
        if (has_sign(m.dtype)) agrees("a view laid flat", gn_neg(flat.t), &flat);
    }
}

/* All sides from one vector to beyond two tiles, each size of element. */
TEST(matrices_that_are_turned_have_their_elements) {
    static const gn_dtype sizes[] = { GN_U8, GN_I16, GN_F32, GN_F64 };
    static const int64_t sides[] = { 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 300 };
    static const int turns[][3] = { { 0, 2, 1 }, { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 }, { 1, 0, 2 } };
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < TEST_COUNT(sides); i++, round_ends()) {
            g = contexts[i & 1];
            int64_t dims[3] = { 3, sides[i], sides[test_random_int(0, TEST_COUNT(sides) - 1)] };
            model m = fresh(sizes[s], 3, dims);
            for (int k = 0; k < TEST_COUNT(turns); k++) {
                model y = permuted(&m, turns[k]);
                agrees("a permutation", y.t, &y);
            }
        }
}

TEST(elements_are_repeated_and_reversed_in_rows_of_any_length) {
    for (int i = 0, n = rounds_of(300); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        int64_t dims[3] = { test_random_int(1, 40), test_random_int(1, 40), 1 };
        model m = fresh(any_dtype(), 3, dims), y = spread(&m, 2, test_random_int(1, 70));
        agrees("a repetition", y.t, &y);
        y = sliced(&y, 1, y.dims[1] - 1, y.dims[1], -1);
        agrees("a repetition of what is reversed", y.t, &y);
        dims[2] = test_random_int(1, 99);
        m = fresh(m.dtype, 3, dims);
        y = sliced(&m, 2, dims[2] - 1, dims[2], -1);
        agrees("reversed rows", y.t, &y);
    }
}

/* From some of 2 KiB, which are copied in pieces, to more than 16. */
TEST(long_rows_are_repeated_whole) {
    static const gn_dtype sizes[] = { GN_U8, GN_I16, GN_F32, GN_F64 };
    for (int i = 0, n = rounds_of(60); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        gn_dtype d = sizes[i / 2 % 4];
        int64_t each = (int64_t)gn_dtype_bytes(d), dims[2] = { 1, test_random_int(i % 3 ? 2000 : 1, 18000) / each + 1 };
        model m = fresh(d, 2, dims), y = spread(&m, 0, test_random_int(2, 20));
        agrees("a row repeated", y.t, &y);
    }
}

TEST(concatenations_and_put_slices_have_their_elements) {
    for (int i = 0, n = rounds_of(300); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        model a = seen(any(any_dtype(), i % 30 ? 0 : 150000)), b = a;
        if (a.rank == 0) continue;
        int axis = (int)test_random_int(0, a.rank - 1);
        b.dims[axis] = test_random_int(0, 9);
        b = fresh(b.dtype, b.rank, b.dims);
        model y = a;
        int64_t at[MOST_RANK] = { 0 }, from[MOST_RANK], e = 0;
        y.dims[axis] += b.dims[axis];
        sized(&y);
        if (y.n) do {
                memcpy(from, at, sizeof from);
                bool first = at[axis] < a.dims[axis];
                from[axis] -= first ? 0 : a.dims[axis];
                y.v[e++] = first ? a.v[place(&a, from)] : b.v[place(&b, from)];
            } while (next(&y, at));
        agrees("a concatenation", gn_concat(((gn_tensor[]){ a.t, b.t }), 2, axis), &y);
        int64_t step = test_random_int(1, 3) * (test_random_int(0, 1) ? 1 : -1), count = b.dims[axis],
                reach = count ? (count - 1) * (step < 0 ? -step : step) + 1 : 0;
        if (a.dims[axis] < reach || !count) continue;
        int64_t begin = test_random_int(0, a.dims[axis] - reach) + (step < 0 ? reach - 1 : 0);
        model put = a;
        sized(&put);
        memcpy(put.v, a.v, (size_t)a.n * sizeof *a.v);
        memset(at, 0, sizeof at);
        if (b.n) do {
                memcpy(from, at, sizeof from);
                from[axis] = begin + at[axis] * step;
                put.v[place(&put, from)] = b.v[place(&b, at)];
            } while (next(&b, at));
        int64_t end = begin + count * step;
        agrees("a slice put", gn_slice_put(a.t, b.t, axis, begin, end < 0 ? INT64_MIN : end, step), &put);
    }
}

static model constant(gn_dtype d, int rank, const int64_t *dims, double x) {
    model m = { .dtype = d, .rank = rank };
    for (int i = 0; i < rank; i++) m.dims[i] = dims[i];
    sized(&m);
    for (int64_t i = 0; i < m.n; i++) m.v[i] = x;
    m.t = gn_full(g, d, shape_of(&m), x);
    return m;
}

/* A constant is one element in memory: read, kept, seen through views, put into others and into states. */
TEST(constants_have_their_value_everywhere) {
    for (int i = 0, n = rounds_of(120); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        int64_t dims[3] = { test_random_int(0, 9), test_random_int(1, 9), i % 30 ? test_random_int(1, 9) : 90000 };
        gn_dtype d = any_dtype();
        model m = constant(d, 3, dims, 5), x = fresh(d, 3, dims), y = seen(m), two = x, flat = x;
        agrees("a constant", m.t, &m);
        agrees("a constant that is kept", m.t, &m);
        agrees("a view of a constant", y.t, &y);
        two.dims[1] *= 2;
        sized(&two);
        int64_t half = dims[1] * dims[2];
        for (int64_t k = 0; k < two.n; k++) two.v[k] = k / half % 2 ? x.v[k / half / 2 * half + k % half] : m.v[0];
        agrees("a constant beside a tensor", gn_concat(((gn_tensor[]){ m.t, x.t }), 2, 1), &two);
        flat.rank = 1;
        flat.dims[0] = x.n;
        sized(&flat);
        for (int64_t k = 0; k < flat.n; k++) flat.v[k] = kept(d, x.v[k] + 5);
        gn_axes turned = { 3, { 2, 1, 0 } };
        gn_tensor sum = gn_add(gn_permute(x.t, turned), gn_permute(m.t, turned));
        agrees("a sum with a view of a constant", gn_reshape(gn_permute(sum, turned), GN_SHAPE(flat.n)), &flat);
        gn_tensor state = gn_state(g, d, shape_of(&m), NULL, "held");
        gn_assign(state, m.t);
        CHECK_RESULT(gn_step(g), GN_OK);
        agrees("a state that was set to a constant", state, &m);
    }
}

/* Indices for positions `dims`, below `size`; some axes share theirs, some count upwards. */
static model indices(int rank, const int64_t *dims, int axis, int64_t size) {
    int64_t own[MOST_RANK];
    bool counts = test_random_int(0, 2) == 0, shares = test_random_int(0, 1);
    int order[MOST_RANK];
    for (int i = 0; i < rank; i++) {
        own[i] = shares && i != axis && test_random_int(0, 2) ? 1 : dims[i];
        order[i] = i;
    }
    model m = { .dtype = test_random_int(0, 1) ? GN_I32 : GN_I64, .rank = rank };
    for (int i = 0; i < rank; i++) m.dims[i] = own[i];
    sized(&m);
    for (int64_t i = 0; i < m.n; i++) m.v[i] = (double)(counts ? (i + i / 40) % size : test_random_int(0, size - 1));
    m.t = gn_cast(gn_data_copy(g, GN_F64, shape_of(&m), m.v), m.dtype);
    if (rank > 1 && test_random_int(0, 2) == 0) { /* the same, but columns lie in memory where rows do */
        order[0] = rank - 1;
        order[rank - 1] = 0;
        model turned = permuted(&m, order);
        turned.t = gn_add(turned.t, gn_cast(gn_full(g, GN_F64, GN_SCALAR, 0), m.dtype));
        m = permuted(&turned, order);
    }
    for (int i = 0; i < rank; i++)
        if (m.dims[i] != dims[i]) m = spread(&m, i, dims[i]);
    return m;
}

static double joined(int how, gn_dtype d, double a, double b) {
    return how == 0 ? b : how == 1 ? kept(d, a + b) : b > a ? b : a;
}

static void gather_and_scatter(int i) {
    static const char *const names[] = { "a scatter", "a sum scattered", "the larger scattered" };
    model a = seen(any(i % 4 ? any_dtype() : GN_F32, i % 20 ? 0 : 60000));
    if (a.rank == 0 || a.n == 0) return;
    int axis = (int)test_random_int(0, a.rank - 1);
    int64_t dims[MOST_RANK], at[MOST_RANK] = { 0 }, from[MOST_RANK], e = 0;
    for (int k = 0; k < a.rank; k++) dims[k] = k == axis ? test_random_int(1, 60) : test_random_int(1, a.dims[k]);
    if (i % 20 == 0)
        for (int k = 0; k < a.rank; k++) dims[k] = a.dims[k];
    model index = indices(a.rank, dims, axis, a.dims[axis]), y = index, src = seen(fresh(a.dtype, a.rank, dims));
    y.dtype = a.dtype;
    sized(&y);
    do {
        memcpy(from, at, sizeof from);
        from[axis] = (int64_t)index.v[e];
        y.v[e++] = a.v[place(&a, from)];
    } while (next(&y, at));
    agrees("a gather", gn_gather(a.t, axis, index.t), &y);
    for (int k = 0; k < a.rank; k++)
        if (src.dims[k] != dims[k]) src = fresh(a.dtype, a.rank, dims);
    for (int how = 0; how < 3; how++) {
        model to = a;
        sized(&to);
        memcpy(to.v, a.v, (size_t)a.n * sizeof *a.v);
        memset(at, 0, sizeof at);
        e = 0;
        do {
            memcpy(from, at, sizeof from);
            from[axis] = (int64_t)index.v[e];
            double *o = &to.v[place(&to, from)];
            *o = joined(how, a.dtype, *o, src.v[e++]);
        } while (next(&index, at));
        agrees(names[how],
               how == 0   ? gn_scatter(a.t, axis, index.t, src.t)
               : how == 1 ? gn_scatter_add(a.t, axis, index.t, src.t)
                          : gn_scatter_max(a.t, axis, index.t, src.t),
               &to);
    }
}

TEST(gathers_and_scatters_follow_their_indices_in_order) {
    for (int i = 0, n = rounds_of(800); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        gather_and_scatter(i);
    }
}

/* Places of a row one beside the other, and of a column, whose steps are others. */
TEST(larger_of_scattered_floats_is_nan_where_one_is_and_the_first_of_two_zeros) {
    enum { N = 6, PUT = 8 };
    static const gn_dtype some[] = { GN_F32, GN_F64, GN_F16, GN_BF16 };
    static const double a[N] = { 0.0, -0.0, NAN, 1, -INFINITY, 2 }, src[PUT] = { 7, NAN, 5, 3, NAN, 0.0, -0.0, 9 },
                        want[N] = { 0.0, -0.0, NAN, NAN, 3, NAN };
    static const int64_t at[PUT] = { 5, 5, 2, 4, 3, 1, 0, 5 };
    g = contexts[0];
    for (int i = 0; i < 2 * TEST_COUNT(some); i++) {
        gn_dtype d = some[i / 2];
        int columns = 1 + i % 2, wrong = 0;
        double y[2 * N];
        gn_tensor to = gn_cast(gn_data(g, GN_F64, GN_SHAPE(N, 1), a), d),
                  from = gn_cast(gn_data(g, GN_F64, GN_SHAPE(PUT, 1), src), d),
                  index = gn_data(g, GN_I64, GN_SHAPE(PUT, 1), at);
        to = gn_broadcast(to, GN_SHAPE(N, columns));
        from = gn_broadcast(from, GN_SHAPE(PUT, columns));
        to = gn_cast(gn_scatter_max(to, 0, gn_broadcast(index, GN_SHAPE(PUT, columns)), from), GN_F64);
        REQUIRE(gn_read(to, y, sizeof *y * N * (size_t)columns) == GN_OK);
        for (int k = 0; k < N * columns; k++) {
            double w = want[k / columns];
            wrong += w != w ? y[k] == y[k] : memcmp(&y[k], &w, sizeof w) != 0;
        }
        if (wrong) test_fail(__FILE__, __LINE__, "%s, %d columns: %d differ", gn_dtype_name(d), columns, wrong);
        round_ends();
    }
}

TEST(tables_are_read_by_rows_and_ids_made_one_hot) {
    for (int i = 0, n = rounds_of(200); i < n; i++, round_ends()) {
        g = contexts[i & 1];
        int64_t table_dims[2] = { test_random_int(1, 50), test_random_int(1, 90) },
                id_dims[2] = { test_random_int(0, 30), i % 20 ? test_random_int(1, 9) : 700 };
        model table = fresh(any_dtype(), 2, table_dims);
        if (i & 2) {
            table = permuted(&table, (const int[]){ 1, 0 });
            table = sliced(&table, 0, table.dims[0] - 1, table.dims[0], -1);
        }
        model ids = indices(2, id_dims, 0, table.dims[0]), y = { .dtype = table.dtype, .rank = 3 }, hot;
        y.dims[0] = ids.dims[0];
        y.dims[1] = ids.dims[1];
        y.dims[2] = table.dims[1];
        sized(&y);
        for (int64_t k = 0; k < y.n; k++) y.v[k] = table.v[(int64_t)ids.v[k / y.dims[2]] * y.dims[2] + k % y.dims[2]];
        agrees("an embedding", gn_embedding(table.t, ids.t), &y);
        hot = y;
        hot.dims[2] = table.dims[0];
        sized(&hot);
        for (int64_t k = 0; k < hot.n; k++) hot.v[k] = (int64_t)ids.v[k / hot.dims[2]] == k % hot.dims[2];
        agrees("one_hot", gn_one_hot(ids.t, table.dims[0], table.dtype), &hot);
    }
}

/* Elements of a row of `size` by all indices. */
static gn_tensor singles(gn_dtype d, int64_t size, gn_tensor index) {
    return gn_index_select(gn_full(g, d, GN_SHAPE(size), 1), 0, gn_reshape(index, GN_SHAPE(-1)));
}

/* Each of a few indices outside; the text names the first of them. */
static void outside(int64_t rows, int64_t columns, int axis) {
    int64_t n = rows * columns, *v = malloc((size_t)n * sizeof *v), first = n;
    int64_t size = test_random_int(1, 40);
    for (int64_t k = 0; k < n; k++) v[k] = test_random_int(0, size - 1);
    for (int k = 0; k < 3; k++) {
        int64_t at = test_random_int(0, n - 1);
        int kind = (int)test_random_int(0, 2);
        v[at] = kind == 0   ? size + test_random_int(0, 5)
                : kind == 1 ? -1 - test_random_int(0, INT64_MAX - 1)
                            : INT64_MAX - test_random_int(0, 1);
        first = at < first ? at : first;
    }
    char want[80];
    snprintf(want, sizeof want, "index %lld is outside 0 to %lld", (long long)v[first], (long long)(size - 1));
    gn_shape s = GN_SHAPE(rows, columns), table = s;
    table.dims[axis] = size;
    gn_tensor index = gn_data_copy(g, GN_I64, s, v), a = gn_full(g, GN_F32, table, 1), src = gn_full(g, GN_F32, s, 2);
    gn_tensor made[] = { gn_gather(a, axis, index),
                         gn_scatter(a, axis, index, src),
                         gn_scatter_add(a, axis, index, src),
                         gn_scatter_max(a, axis, index, src),
                         gn_embedding(gn_full(g, GN_F32, GN_SHAPE(size, 5), 1), index),
                         gn_embedding(gn_full(g, GN_F32, GN_SHAPE(size, 0), 1), index),
                         gn_one_hot(index, size, GN_U8),
                         singles(GN_U8, size, index),
                         singles(GN_I16, size, index),
                         singles(GN_F32, size, index),
                         singles(GN_F64, size, index) };
    for (int k = 0; k < TEST_COUNT(made); k++) {
        CHECK_RESULT(gn_realize(&made[k], 1), GN_INDEX_OUT_OF_RANGE);
        if (!strstr(gn_last_error(g)->text, want))
            test_fail(__FILE__, __LINE__, "op %d says \"%s\", not \"%s\"", k, gn_last_error(g)->text, want);
    }
    free(v);
}

TEST(first_index_outside_is_named_whatever_the_threads) {
    for (int i = 0; i < 60; i++, round_ends()) {
        g = contexts[i & 1];
        bool large = i % 6 == 0;
        outside(test_random_int(1, large ? 500 : 9), test_random_int(1, large ? 500 : 9), i & 2 ? 1 : 0);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(views_that_are_copied_have_their_elements),
        TEST_ENTRY(matrices_that_are_turned_have_their_elements),
        TEST_ENTRY(elements_are_repeated_and_reversed_in_rows_of_any_length),
        TEST_ENTRY(long_rows_are_repeated_whole),
        TEST_ENTRY(concatenations_and_put_slices_have_their_elements),
        TEST_ENTRY(constants_have_their_value_everywhere),
        TEST_ENTRY(gathers_and_scatters_follow_their_indices_in_order),
        TEST_ENTRY(larger_of_scattered_floats_is_nan_where_one_is_and_the_first_of_two_zeros),
        TEST_ENTRY(tables_are_read_by_rows_and_ids_made_one_hot),
        TEST_ENTRY(first_index_outside_is_named_whatever_the_threads),
    };
    test_begin(argc, argv);
    contexts[0] = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    contexts[1] = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    test_all(tests, TEST_COUNT(tests));
    gn_close(contexts[0]);
    gn_close(contexts[1]);
    return test_end();
}
