/* Random programs whose results are exact: integers of every width, which wrap, and small whole floats, which no order
 * of addition rounds. Each is computed by tests/reference.h and must come out equal, number for number, on every
 * executor: the CPU on each of its instruction paths, a server in this process, the GPU of $GENIE_TEST_DEVICES
 * (cuda:0). Each program is read in several ways, since what is fused into one kernel depends on what is asked for.
 * GENIE_TEST_PROGRAMS=N: so many programs instead of a few. Then products of integers with what stands before and
 * behind them, for each dtype and each kind of product's kernel. Then convolutions of any size, stride, padding and
 * groups, and transposed ones of 16-bit floats.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"
#include "loopback.h"
#include "reference.h"

enum { MOST_STEPS = 200, MOST_ELEMENTS = 3000, READINGS = 4 };

typedef enum step_kind {
    LEAF,
    UNARY,
    BINARY,
    NUMBER,
    WHERE,
    CAST,
    REDUCE,
    PRODUCT,
    LINEAR,
    TRANSPOSE,
    SLICE,
    CONCAT,
    BROADCAST,
    RESHAPE,
    EMBEDDING,
    GATHER,
    SCATTER,
    SORT,
    RUNNING,
    ONE_HOT,
    NONZERO,
    KINDS
} step_kind;

/* What it is made of, and what it must be. */
typedef struct step {
    step_kind kind;
    int which, in[3];
    int64_t p[4];
    double number;
    gn_dtype dtype;
    gn_shape shape;
    ref *want;
    void *bytes;
} step;

typedef struct program {
    step steps[MOST_STEPS];
    int n;
} program;

/* ---- the ops ---- */

typedef gn_tensor (*unary_fn)(const char *, int, gn_tensor);
typedef gn_tensor (*binary_fn)(const char *, int, gn_tensor, gn_tensor);
typedef gn_tensor (*number_fn)(const char *, int, gn_tensor, double);
typedef gn_tensor (*reduce_fn)(const char *, int, gn_tensor, gn_axes, bool);

static const struct {
    const char *name;
    unary_fn build;
} unaries[] = {
    { "neg", gn_neg_at },     { "abs", gn_abs_at },     { "sign", gn_sign_at },   { "square", gn_square_at },
    { "relu", gn_relu_at },   { "not", gn_not_at },     { "floor", gn_floor_at }, { "ceil", gn_ceil_at },
    { "round", gn_round_at }, { "trunc", gn_trunc_at },
};
static const struct {
    const char *name;
    binary_fn build;
} binaries[] = {
    { "add", gn_add_at },
    { "sub", gn_sub_at },
    { "mul", gn_mul_at },
    { "add", gn_add_at },
    { "mul", gn_mul_at },
    { "minimum", gn_minimum_at },
    { "maximum", gn_maximum_at },
    { "eq", gn_eq_at },
    { "ne", gn_ne_at },
    { "lt", gn_lt_at },
    { "le", gn_le_at },
    { "gt", gn_gt_at },
    { "ge", gn_ge_at },
    { "and", gn_and_at },
    { "or", gn_or_at },
    { "xor", gn_xor_at },
    { "div", gn_div_at },
    { "fmod", gn_fmod_at },
    { "remainder", gn_remainder_at },
    { "floor_divide", gn_floor_divide_at },
    { "shift_left", gn_shift_left_at },
    { "shift_right", gn_shift_right_at },
};
static const struct {
    const char *name;
    number_fn build;
} numbered[] = {
    { "add", gn_add_c_at },         { "sub", gn_sub_c_at }, { "mul", gn_mul_c_at }, { "minimum", gn_minimum_c_at },
    { "maximum", gn_maximum_c_at }, { "eq", gn_eq_c_at },   { "lt", gn_lt_c_at },   { "ge", gn_ge_c_at },
};
static const struct {
    const char *name;
    reduce_fn build;
} reductions[] = {
    { "sum", gn_sum_at },       { "max", gn_max_at },       { "min", gn_min_at },
    { "argmax", gn_argmax_at }, { "argmin", gn_argmin_at }, { "prod", gn_prod_at },
    { "any", gn_any_at },       { "all", gn_all_at },       { "count_nonzero", gn_count_nonzero_at },
};

static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_F16, GN_BF16, GN_I64,  GN_I32, GN_I16,
                                   GN_I8,  GN_U32, GN_U16, GN_U8,   GN_BOOL, GN_U64 };

static bool divides(const char *op) {
    return strcmp(op, "div") == 0 || strcmp(op, "fmod") == 0 || strcmp(op, "remainder") == 0 ||
           strcmp(op, "floor_divide") == 0;
}

static gn_axes axes_of(int64_t bits) {
    gn_axes axes = { 0 };
    for (int i = 0; i < GN_MAX_RANK; i++)
        if ((bits >> i) & 1) axes.axis[axes.n++] = i;
    return axes;
}

static gn_tensor build_step(gn_ctx *g, const step *s, const gn_tensor *t) {
    gn_tensor a = s->kind == LEAF ? GN_NONE : t[s->in[0]];
    switch (s->kind) {
    case LEAF: return gn_data(g, s->dtype, s->shape, s->bytes);
    case UNARY: return unaries[s->which].build(GN_HERE, a);
    case BINARY: return binaries[s->which].build(GN_HERE, a, t[s->in[1]]);
    case NUMBER: return numbered[s->which].build(GN_HERE, a, s->number);
    case WHERE: return gn_where(a, t[s->in[1]], t[s->in[2]]);
    case CAST: return gn_cast(a, s->dtype);
    case REDUCE: return reductions[s->which].build(GN_HERE, a, axes_of(s->p[0]), s->p[1] != 0);
    case PRODUCT: return gn_matmul(a, t[s->in[1]]);
    case LINEAR: return gn_linear(a, t[s->in[1]], t[s->in[2]]);
    case TRANSPOSE: return gn_transpose(a, (int)s->p[0], (int)s->p[1]);
    case SLICE: return gn_slice(a, (int)s->p[0], s->p[1], s->p[2], s->p[3]);
    case CONCAT: {
        gn_tensor parts[2] = { a, t[s->in[1]] };
        return gn_concat(parts, 2, (int)s->p[0]);
    }
    case BROADCAST: return gn_broadcast(a, s->shape);
    case RESHAPE: return gn_reshape(a, s->shape);
    case EMBEDDING: return gn_embedding(a, t[s->in[1]]);
    case GATHER: return gn_gather(a, (int)s->p[0], t[s->in[1]]);
    case SCATTER:
        return (s->which == 0 ? gn_scatter_add_at : gn_scatter_max_at)(GN_HERE, a, (int)s->p[0], t[s->in[1]],
                                                                       t[s->in[2]]);
    case SORT: return (s->which == 0 ? gn_sort_at : gn_argsort_at)(GN_HERE, a, (int)s->p[0], s->p[1] != 0);
    case RUNNING:
        return (s->which == 0 ? gn_cumsum_at : s->which == 1 ? gn_cumprod_at : gn_cummax_at)(GN_HERE, a, (int)s->p[0]);
    case ONE_HOT: return gn_one_hot(a, s->p[0], s->dtype);
    default: return gn_nonzero(a, s->p[0]);
    }
}

static ref *refer_reduction(const step *s, ref *a) {
    gn_axes axes = axes_of(s->p[0]);
    bool keep = s->p[1] != 0;
    if (s->which == 0) return ref_sum(a, axes, keep, false);
    if (s->which < 5) return ref_extreme(a, axes, keep, s->which == 1 || s->which == 3 ? 1 : -1, s->which > 2);
    return ref_reduce(a, axes, keep,
                      s->which == 5   ? REF_PROD
                      : s->which == 6 ? REF_ANY
                      : s->which == 7 ? REF_ALL
                                      : REF_COUNT,
                      0);
}

static ref *refer_step(const program *p, const step *s) {
    ref *in[3] = { NULL, NULL, NULL };
    for (int i = 0; i < 3; i++)
        if (s->in[i] >= 0) in[i] = p->steps[s->in[i]].want;
    switch (s->kind) {
    case UNARY: return ref_scalar(ref_find_scalar(unaries[s->which].name), in);
    case BINARY: return ref_scalar(ref_find_scalar(binaries[s->which].name), in);
    case NUMBER: return ref_with_number(ref_find_scalar(numbered[s->which].name), in[0], s->number);
    case WHERE: return ref_where(in);
    case CAST: return ref_cast(in[0], s->dtype);
    case REDUCE: return refer_reduction(s, in[0]);
    case PRODUCT: return ref_matmul(in);
    case LINEAR: return ref_linear(in, 3);
    case TRANSPOSE: return ref_transpose(in[0], (int)s->p[0], (int)s->p[1]);
    case SLICE: return ref_slice(in[0], (int)s->p[0], s->p[1], s->p[2], s->p[3]);
    case CONCAT: return ref_concat(in, 2, (int)s->p[0]);
    case BROADCAST: return ref_broadcast(in[0], s->shape);
    case RESHAPE: return ref_reshape(in[0], s->shape);
    case EMBEDDING: return ref_embedding(in[0], in[1]);
    case GATHER: return ref_gather(in[0], (int)s->p[0], in[1]);
    case SCATTER:
        return s->which == 0 ? ref_scatter_add(in[0], (int)s->p[0], in[1], in[2])
                             : ref_scatter(in[0], (int)s->p[0], in[1], in[2], true);
    case SORT: return ref_sort(in[0], (int)s->p[0], s->p[1] != 0, in[0]->shape.dims[s->p[0]], s->which == 1);
    case RUNNING:
        return ref_cumulate(in[0], (int)s->p[0], s->which == 0 ? REF_CUMSUM : s->which == 1 ? REF_CUMPROD : REF_CUMMAX);
    case ONE_HOT: return ref_one_hot(in[0], s->p[0], s->dtype);
    default: return ref_nonzero(in[0], s->p[0]);
    }
}

/* ---- drawing a program ---- */

static gn_ctx *drafts; /* says which ops take which dtypes */

/* Whole, and so small that sums of some thousand terms of it are not rounded in any order. */
static bool is_exact(const ref *r) {
    const int bits = ref_format_of(r->dtype).digits > 20 ? 20 : ref_format_of(r->dtype).digits - 1;
    for (int64_t k = 0; r->f && k < r->n; k++) {
        ref_real x = fabsl(r->f[k]);
        if (!(x <= ldexpl(1, bits)) || x != floorl(x) ||
            (r->mag && !(r->mag[k] <= ldexpl(1, r->dtype == GN_F64 ? 50 : 22))))
            return false;
    }
    return true;
}

static int add_leaf(program *p, gn_dtype d, gn_shape shape, int64_t low, int64_t high) {
    step *s = &p->steps[p->n];
    *s = (step){ .kind = LEAF, .in = { -1, -1, -1 }, .dtype = d, .shape = shape, .want = ref_make(d, shape) };
    for (int64_t k = 0; k < s->want->n; k++) {
        int64_t x = high > low ? test_random_int(low, high) : (int64_t)test_random();
        if (s->want->f) s->want->f[k] = (ref_real)x;
        else s->want->i[k] = ref_wrap(d, x);
    }
    s->bytes = ref_encode(s->want);
    return p->n++;
}

/* Integers of the whole range half of the time; floats between -3 and 3. */
static int add_numbers(program *p, gn_dtype d, gn_shape shape) {
    bool wide = !ref_is_float(d) && test_random_int(0, 1);
    return add_leaf(p, d, shape, wide ? 0 : ref_is_unsigned(d) ? 0 : -3, wide ? 0 : 3);
}

static bool takes_zero_divisors(const program *p, const step *s) {
    ref *in[2] = { p->steps[s->in[0]].want, p->steps[s->in[1]].want };
    const ref *by = ref_cast(in[1], ref_promote(in, 2));
    for (int64_t k = 0; k < by->n; k++)
        if (by->f ? by->f[k] == 0 : by->i[k] == 0) return true;
    return false;
}

/* Takes the step if the library takes it and its result is exact. */
static bool add_step(program *p, step s) {
    static gn_tensor t[MOST_STEPS];
    gn_info info;
    for (int i = 0; i < 3; i++)
        if (s.in[i] >= 0) t[s.in[i]] = gn_full(drafts, p->steps[s.in[i]].want->dtype, p->steps[s.in[i]].want->shape, 0);
    gn_tensor y = build_step(drafts, &s, t);
    bool taken = gn_describe(y, &info) == GN_OK && info.result == GN_OK && info.bytes <= MOST_ELEMENTS * 8;
    gn_step(drafts);
    if (!taken || ref_elements(info.shape) > MOST_ELEMENTS ||
        (s.kind == BINARY && divides(binaries[s.which].name) && takes_zero_divisors(p, &s)))
        return false;
    s.want = refer_step(p, &s);
    if (!is_exact(s.want)) return false;
    CHECK_INT(s.want->dtype, info.dtype);
    CHECK_INT(s.want->n, ref_elements(info.shape));
    p->steps[p->n++] = s;
    return true;
}

/* Late ones more often: programs grow deep. */
static int pick(const program *p) {
    return test_random_int(0, 2) ? (int)test_random_int(p->n > 8 ? p->n - 8 : 0, p->n - 1)
                                 : (int)test_random_int(0, p->n - 1);
}

static int pick_alike(const program *p, int a) {
    for (int tries = 0; tries < 12; tries++) {
        int b = pick(p);
        const gn_shape *x = &p->steps[a].want->shape, *y = &p->steps[b].want->shape;
        bool fits = true;
        for (int i = 1; i <= x->rank && i <= y->rank; i++) {
            int64_t m = x->dims[x->rank - i], n = y->dims[y->rank - i];
            fits = fits && (m == n || m == 1 || n == 1);
        }
        if (fits) return b;
    }
    return a;
}

static int64_t draw_length(void) {
    static const int64_t lengths[] = { 1, 2, 3, 4, 7, 8, 16, 24, 33 };
    return lengths[test_random_int(0, TEST_COUNT(lengths) - 1)];
}

/* What the kind needs beside its first input: leaves where no result of the program would do. False: there is no such
   step. These are the kinds from TRANSPOSE on; `axis`: one of the first input, n: a length. */
static bool draw_movement(program *p, step *s, int axis, int64_t n) {
    ref *a = p->steps[s->in[0]].want;
    int rank = a->shape.rank;
    int64_t length = rank ? a->shape.dims[axis] : 1;
    switch (s->kind) {
    case TRANSPOSE: s->p[1] = test_random_int(0, rank - 1); return true;
    case SLICE:
        s->p[1] = test_random_int(0, length - 1);
        s->p[2] = length;
        s->p[3] = test_random_int(1, 3);
        if (test_random_int(0, 2) == 0) {
            s->p[2] = INT64_MIN;
            s->p[3] = -1;
        }
        return true;
    case CONCAT: s->in[1] = s->in[0]; return true;
    case BROADCAST:
        s->shape = a->shape;
        if (length == 1) s->shape.dims[axis] = n;
        else {
            if (rank > 3) return false;
            for (int i = rank++; i > 0; i--) s->shape.dims[i] = s->shape.dims[i - 1];
            s->shape.dims[0] = 3;
            s->shape.rank = rank;
        }
        return true;
    case RESHAPE:
        s->shape = rank > 1 && test_random_int(0, 1) ? GN_SHAPE(a->n)
                   : a->n % 2 == 0                   ? GN_SHAPE(2, a->n / 2)
                                                     : GN_SHAPE(a->n, 1);
        return true;
    case EMBEDDING:
        if (rank != 2) return false;
        s->in[1] = add_leaf(p, test_random_int(0, 1) ? GN_I32 : GN_I64, GN_SHAPE(n), 0, a->shape.dims[0] - 1);
        return a->shape.dims[0] > 1;
    case GATHER:
    case SCATTER: {
        gn_shape shape = a->shape;
        shape.dims[axis] = s->kind == SCATTER && n > length ? length : n;
        if (length < 2) return false;
        s->which = (int)test_random_int(0, 1);
        s->in[1] = add_leaf(p, GN_I64, shape, 0, length - 1);
        if (s->kind == SCATTER) s->in[2] = add_numbers(p, a->dtype, shape);
        return true;
    }
    case SORT:
        s->which = (int)test_random_int(0, 1);
        s->p[1] = test_random_int(0, 1);
        return true;
    case RUNNING: s->which = (int)test_random_int(0, 2); return true;
    case ONE_HOT:
        s->in[0] = add_leaf(p, GN_I32, GN_SHAPE(n), 0, 5);
        s->p[0] = 6;
        return true;
    default: s->p[0] = a->n + 2; return rank > 0;
    }
}

/* The same for every kind. */
static bool draw_details(program *p, step *s) {
    ref *a = p->steps[s->in[0]].want;
    int rank = a->shape.rank, axis = rank ? (int)test_random_int(0, rank - 1) : 0;
    int64_t last = rank ? a->shape.dims[rank - 1] : 1, n = draw_length();
    if (rank == 0 && s->kind >= REDUCE) return false;
    if (p->n + 4 > MOST_STEPS) return false;
    s->p[0] = axis;
    s->dtype = dtypes[test_random_int(0, TEST_COUNT(dtypes) - 1)];
    switch (s->kind) {
    case UNARY: s->which = (int)test_random_int(0, TEST_COUNT(unaries) - 1); return true;
    case BINARY:
        s->which = (int)test_random_int(0, TEST_COUNT(binaries) - 1);
        s->in[1] = pick_alike(p, s->in[0]);
        return true;
    case NUMBER:
        s->which = (int)test_random_int(0, TEST_COUNT(numbered) - 1);
        s->number = (double)test_random_int(a->f || !ref_is_unsigned(a->dtype) ? -3 : 0, a->dtype == GN_BOOL ? 1 : 3);
        return true;
    case WHERE:
        s->in[1] = s->in[0];
        s->in[0] = add_leaf(p, GN_BOOL, a->shape, 0, 1);
        s->in[2] = pick_alike(p, s->in[1]);
        return true;
    case CAST: return true;
    case REDUCE:
        s->which = (int)test_random_int(0, TEST_COUNT(reductions) - 1);
        s->p[0] = test_random_int(1, (1 << rank) - 1);
        s->p[1] = test_random_int(0, 1);
        return a->n > 0;
    case PRODUCT:
        s->in[1] = add_numbers(p, a->dtype, test_random_int(0, 3) ? GN_SHAPE(last, n) : GN_SHAPE(last));
        return true;
    case LINEAR:
        s->in[1] = add_numbers(p, a->dtype, GN_SHAPE(last, n));
        s->in[2] = add_numbers(p, a->dtype, GN_SHAPE(n));
        return true;
    default: return draw_movement(p, s, axis, n);
    }
}

static void draw_program(program *p, int ops) {
    static const step_kind kinds[] = { UNARY,  UNARY,   BINARY,    BINARY,  BINARY,  BINARY,    NUMBER,  NUMBER,
                                       WHERE,  CAST,    CAST,      CAST,    REDUCE,  REDUCE,    PRODUCT, PRODUCT,
                                       LINEAR, LINEAR,  TRANSPOSE, SLICE,   CONCAT,  BROADCAST, RESHAPE, EMBEDDING,
                                       GATHER, SCATTER, SORT,      RUNNING, ONE_HOT, NONZERO };
    p->n = 0;
    for (int i = 0; i < 3; i++)
        add_numbers(p, dtypes[test_random_int(0, TEST_COUNT(dtypes) - 1)],
                    i == 2 ? GN_SHAPE(draw_length()) : GN_SHAPE(draw_length(), draw_length()));
    for (int tries = 0; ops > 0 && tries < 400 && p->n + 4 < MOST_STEPS; tries++) {
        step s = { .kind = kinds[test_random_int(0, TEST_COUNT(kinds) - 1)], .in = { pick(p), -1, -1 } };
        int before = p->n;
        if (draw_details(p, &s) && add_step(p, s)) ops--;
        else
            while (p->n > before) free(p->steps[--p->n].bytes);
    }
}

static void forget(program *p) {
    for (int i = 0; i < p->n; i++) free(p->steps[i].bytes);
    ref_reset();
    p->n = 0;
}

/* ---- saying what a program is ---- */

static const char *op_name(const step *s) {
    static const char *const names[KINDS] = { "leaf",      "",        "",          "",          "where",   "cast",
                                              "",          "matmul",  "linear",    "transpose", "slice",   "concat",
                                              "broadcast", "reshape", "embedding", "gather",    "scatter", "sort",
                                              "running",   "one_hot", "nonzero" };
    return s->kind == UNARY    ? unaries[s->which].name
           : s->kind == BINARY ? binaries[s->which].name
           : s->kind == NUMBER ? numbered[s->which].name
           : s->kind == REDUCE ? reductions[s->which].name
                               : names[s->kind];
}

/* The steps that step `at` is made of, a line each. */
static void tell(const program *p, int at) {
    static bool needed[MOST_STEPS];
    memset(needed, 0, sizeof needed);
    needed[at] = true;
    for (int i = at; i >= 0; i--)
        for (int k = 0; k < 3 && needed[i]; k++)
            if (p->steps[i].in[k] >= 0) needed[p->steps[i].in[k]] = true;
    for (int i = 0; i <= at; i++) {
        const step *s = &p->steps[i];
        if (!needed[i]) continue;
        printf("    %%%d = %s %s (", i, op_name(s), gn_dtype_name(s->want->dtype));
        for (int k = 0; k < s->want->shape.rank; k++) printf(k ? ", %lld" : "%lld", (long long)s->want->shape.dims[k]);
        printf(")");
        for (int k = 0; k < 3; k++)
            if (s->in[k] >= 0) printf(" %%%d", s->in[k]);
        if (s->kind != LEAF)
            printf("  %lld %lld %lld %lld  %g\n", (long long)s->p[0], (long long)s->p[1], (long long)s->p[2],
                   (long long)s->p[3], s->number);
        else printf("\n");
    }
}

/* ---- readings ---- */

static bool read_step(const char *where, const program *p, gn_tensor t, int at) {
    const ref *want = p->steps[at].want;
    size_t bytes = ref_bytes(want);
    unsigned char *got = ref__alloc(bytes + 1, 1);
    memset(got, 0xa5, bytes);
    gn_result r = gn_read(t, got, bytes);
    ref *is = ref_decode(want->dtype, want->shape, got);
    int64_t k = 0;
    while (r == GN_OK && k < want->n && (want->f ? is->f[k] == want->f[k] : is->i[k] == want->i[k])) k++;
    bool same = r == GN_OK && k == want->n;
    if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s: step %d: %s", where, at, gn_result_name(r));
    else if (!same)
        test_fail(__FILE__, __LINE__, "%s: step %d: element %lld is %.17Lg, not %.17Lg", where, at, (long long)k,
                  want->f ? is->f[k] : (ref_real)is->i[k], want->f ? want->f[k] : (ref_real)want->i[k]);
    if (!same) tell(p, at);
    free(got);
    return same;
}

/* Reading 0: the last steps one by one. 1, 2: some steps at once, the second time by the same plan. 3: one in the
   middle before the others are built. */
static bool check_reading(const char *where, gn_ctx *g, const program *p, int reading, uint64_t subset) {
    gn_tensor t[MOST_STEPS], asked[MOST_STEPS];
    int n = 0, half = reading == 3 ? p->n / 2 : -1;
    bool same = true;
    for (int i = 0; i < p->n && same; i++) {
        t[i] = build_step(g, &p->steps[i], t);
        if (i == half) same = read_step(where, p, t[i], i);
    }
    for (int i = 0; i < p->n; i++)
        if (reading == 0 ? i + 3 >= p->n : reading == 3 ? i + 1 == p->n || i == half + 1 : (subset >> (i & 63)) & 1)
            asked[n++] = t[i];
    if (reading > 0 && same && n) {
        gn_result r = gn_realize(asked, n);
        if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s: %s: %s", where, gn_result_name(r), gn_last_error(g)->text);
        same = r == GN_OK;
    }
    for (int i = p->n - 1, k = n; i >= 0 && k > 0 && same; i--)
        if (asked[k - 1].id == t[i].id) {
            k--;
            same = read_step(where, p, t[i], i);
        }
    gn_step(g);
    return same;
}

/* ---- executors ---- */

enum { BASE, AVX2, AVX512, THREADS, SERVER, GPU, EXECUTORS };
static const char *const executor_names[EXECUTORS] = { "cpu_base", "cpu_avx2", "cpu_avx512", "cpu_of_three_threads",
                                                       "server",   "gpu" };
static gn_ctx *executors[EXECUTORS];
static int n_programs = 24;

static gn_ctx *open_executor(int which) {
    static const char *const isas[] = { "base", "avx2", "avx512" };
    const char *gpu = getenv("GENIE_TEST_DEVICES");
    gn_ctx *g;
    if (which == SERVER) return loopback_open(NULL);
    if (which == GPU) return gn_open(&(gn_desc){ .devices = gpu ? gpu : "cuda:0" });
    if (which < THREADS) setenv("GENIE_ISA", isas[which], 1);
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = which == THREADS ? 3 : 1 });
    unsetenv("GENIE_ISA");
    return g;
}

static void programs_are_exact(gn_ctx *g, const char *name) {
    static program p;
    char where[120];
    bool same = true;
    for (int i = 0; i < n_programs && same; i++) {
        draw_program(&p, (int)test_random_int(5, 60));
        uint64_t subset = test_random() & test_random();
        for (int reading = 0; reading < READINGS && same; reading++) {
            snprintf(where, sizeof where, "%s: program %d, reading %d", name, i, reading);
            same = check_reading(where, g, &p, reading, subset);
        }
        forget(&p);
    }
}

/* ---- products of integers ---- */

/* m, k, n; bits: 1 the left side is a transpose, 2 the right, 4 in a batch of 3, 8 a bias. One of each kind of kernel:
   few rows by columns and by rows, tiles, k in parts. */
static const struct {
    int64_t m, k, n;
    int bits;
} products[] = {
    { 2, 2, 8, 0 },    { 1, 40, 16, 8 },    { 3, 33, 7, 2 },        { 8, 64, 24, 2 | 8 }, { 40, 19, 33, 1 },
    { 70, 32, 20, 8 }, { 16, 2100, 12, 0 }, { 9, 1500, 10, 2 | 8 }, { 12, 9, 10, 4 },     { 2, 7, 12, 4 },
};
static const gn_dtype wholes[] = { GN_I8, GN_U8, GN_I16, GN_U16, GN_I32, GN_U32, GN_I64, GN_U64 };

static int last_of(const program *p) { return p->n - 1; }

static void then(program *p, step_kind kind, int which, int b, double number, gn_dtype d) {
    step s = { .kind = kind, .which = which, .in = { last_of(p), b, -1 }, .number = number, .dtype = d };
    if (b == last_of(p)) s.in[0] = b - 1;
    s.want = refer_step(p, &s);
    p->steps[p->n++] = s;
}

/* What follows a product in its kernel. Each begins with something that sees bits which the dtype does not hold. */
static void add_tail(program *p, int which, gn_dtype d) {
    int product = last_of(p);
    gn_shape shape = p->steps[product].want->shape;
    switch (which) {
    case 0:
        then(p, CAST, 0, -1, 0, GN_F64);
        then(p, NUMBER, 0, -1, 2, d);
        break;
    case 1:
        then(p, CAST, 0, -1, 0, GN_I64);
        then(p, NUMBER, 2, -1, 3, d);
        break;
    case 2: then(p, NUMBER, 6, -1, 1, d); break; /* a comparison */
    case 3:
        add_numbers(p, d, shape);
        then(p, BINARY, 6, last_of(p), 0, d);
        break; /* maximum */
    case 4:
        then(p, NUMBER, 0, -1, 1, d);
        then(p, CAST, 0, -1, 0, GN_I32);
        then(p, CAST, 0, -1, 0, GN_F64);
        break;
    case 5:
        add_numbers(p, d == GN_U64 ? d : GN_I64, shape);
        then(p, BINARY, 0, last_of(p), 0, d);
        break; /* promotes */
    case 6:
        then(p, UNARY, 1, -1, 0, d);
        then(p, CAST, 0, -1, 0, GN_BOOL);
        break;
    default:
        then(p, CAST, 0, -1, 0, GN_U8);
        then(p, CAST, 0, -1, 0, GN_F64);
        break;
    }
}

static void add_product(program *p, int which, gn_dtype d, gn_dtype from) {
    int64_t m = products[which].m, k = products[which].k, n = products[which].n;
    int bits = products[which].bits, side[2], bias = -1;
    int64_t most = d == GN_I64 || d == GN_U64 ? 30000 : 0, least = d == GN_I64 ? -most : 0;
    for (int i = 0; i < 2; i++) {
        int64_t rows = i ? k : m, columns = i ? n : k;
        bool turned = (bits >> i) & 1;
        gn_shape shape = turned ? GN_SHAPE(columns, rows) : GN_SHAPE(rows, columns);
        if (bits & 4) shape = GN_SHAPE(3, rows, columns);
        /* f64 holds all bits of the narrower */
        add_leaf(p, from, shape, least, most);
        if (from != d) then(p, CAST, 0, -1, 0, d);
        if (turned) {
            step s = { .kind = TRANSPOSE, .in = { last_of(p), -1, -1 }, .p = { 0, 1 } };
            s.want = refer_step(p, &s);
            p->steps[p->n++] = s;
        }
        side[i] = last_of(p);
    }
    if (bits & 8) bias = add_leaf(p, d, GN_SHAPE(n), least, most);
    step s = { .kind = bits & 8 ? LINEAR : PRODUCT, .in = { side[0], side[1], bias } };
    s.want = refer_step(p, &s);
    p->steps[p->n++] = s;
}

/* One plan for each dtype: every kind of product, with a tail each. What is asked for is the tails' ends alone, so that
   they are taken in. */
static void products_of_integers_wrap(gn_ctx *g, const char *name) {
    static program p;
    for (int d = 0; d < TEST_COUNT(wholes); d++) {
        gn_tensor t[MOST_STEPS], ends[64];
        int at[64], n = 0;
        char where[120];
        for (int i = 0; i < TEST_COUNT(products); i++) {
            bool own = i % 3 || wholes[d] == GN_U64; /* where no negative number becomes one past 2^63 */
            add_product(&p, i, wholes[d], own ? wholes[d] : wholes[test_random_int(0, TEST_COUNT(wholes) - 1)]);
            add_tail(&p, (i + d) % 8, wholes[d]);
            at[n++] = last_of(&p);
        }
        for (int i = 0; i < p.n; i++) t[i] = build_step(g, &p.steps[i], t);
        for (int i = 0; i < n; i++) ends[i] = t[at[i]];
        snprintf(where, sizeof where, "%s: products of %s", name, gn_dtype_name(wholes[d]));
        gn_result r = gn_realize(ends, n);
        if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s: %s: %s", where, gn_result_name(r), gn_last_error(g)->text);
        for (int i = 0; i < n && r == GN_OK; i++) read_step(where, &p, ends[i], at[i]);
        gn_step(g);
        forget(&p);
    }
}

/* ---- convolutions ---- */

enum { MOST_TERMS = 1500000 };

/* A convolution over two axes. turned: x lies as rows of channels, w backwards in filters. */
typedef struct conv_case {
    gn_conv_desc d;
    int64_t images, channels, filters, in[2], kernel[2], out[2]; /* of all groups */
    bool bias, residual, turned;
} conv_case;

static int64_t conv_terms(const conv_case *k) {
    return k->images * k->filters * (k->channels / k->d.groups) * k->kernel[0] * k->kernel[1] * k->out[0] * k->out[1];
}

/* One filter for all channels, one for each, or groups of a few; now and then a kernel of one element. */
static void draw_channels(conv_case *k) {
    int kind = (int)test_random_int(0, 2);
    int64_t few = test_random_int(1, 18), each = test_random_int(1, 18);
    k->channels = test_random_int(1, 70);
    k->filters = test_random_int(1, 70);
    if (kind == 1) k->d.groups = k->channels, k->filters = k->channels * test_random_int(1, 2);
    else k->d.groups = kind == 2 ? test_random_int(2, 5) : 1;
    if (kind == 2) k->channels = k->d.groups * few, k->filters = k->d.groups * each;
}

static conv_case draw_conv(void) {
    conv_case k;
    do {
        k = (conv_case){ .images = test_random_int(1, 3), .bias = test_random_int(0, 1) };
        k.residual = test_random_int(0, 2) == 0;
        k.turned = test_random_int(0, 3) == 0;
        k.d.transposed = test_random_int(0, 5) == 0;
        k.d.clamps = test_random_int(0, 1);
        k.d.least = -9;
        k.d.most = test_random_int(0, 1) ? 20 : INFINITY;
        draw_channels(&k);
        bool one = test_random_int(0, 3) == 0;
        for (int i = 0; i < 2; i++) {
            k.in[i] = test_random_int(1, 60);
            k.kernel[i] = one ? 1 : test_random_int(1, 5);
            k.d.stride[i] = test_random_int(1, 3);
            k.d.dilation[i] = test_random_int(1, 2);
            k.d.before[i] = test_random_int(0, 3);
            k.d.after[i] = test_random_int(0, 3);
            if (one && test_random_int(0, 1)) k.d.stride[i] = 1, k.d.before[i] = k.d.after[i] = 0;
            int64_t reach = (k.kernel[i] - 1) * k.d.dilation[i] + 1, room = k.in[i] + k.d.before[i] + k.d.after[i];
            k.out[i] = k.d.transposed || room >= reach ? ref_conv_size(&k.d, i, k.in[i], k.kernel[i]) : 0;
        }
    } while (k.out[0] < 1 || k.out[1] < 1 || conv_terms(&k) > MOST_TERMS);
    return k;
}

/* Which element of x tap t meets at place o of an axis, or -1. */
static int64_t conv_meets(const conv_case *k, int axis, int64_t o, int64_t t) {
    const gn_conv_desc *d = &k->d;
    int64_t at = o * d->stride[axis] + t * d->dilation[axis] - d->before[axis];
    if (d->transposed) {
        at = o + d->before[axis] - t * d->dilation[axis];
        if (at % d->stride[axis]) return -1;
        at /= d->stride[axis];
    }
    return at < k->in[axis] ? at : -1;
}

/* What conv k comes to in plane (image, m) of its result. All arrays are dense. */
static void conv_plane(const conv_case *k, const float *x, const float *w, int64_t image, int64_t m, float *y) {
    int64_t groups = k->d.groups, each = k->channels / groups, rows = k->filters / groups, g = m / rows;
    for (int64_t c = g * each; c < (g + 1) * each; c++)
        for (int64_t t = 0; t < k->kernel[0] * k->kernel[1]; t++) {
            int64_t row = k->d.transposed ? c * rows + m % rows : m * each + c % each;
            float by = w[row * k->kernel[0] * k->kernel[1] + t];
            for (int64_t o = 0; o < k->out[0]; o++) {
                int64_t i = conv_meets(k, 0, o, t / k->kernel[1]);
                const float *from = x + ((image * k->channels + c) * k->in[0] + i) * k->in[1];
                for (int64_t p = 0; p < k->out[1] && i >= 0; p++) {
                    int64_t j = conv_meets(k, 1, p, t % k->kernel[1]);
                    y[o * k->out[1] + p] += j < 0 ? 0 : by * from[j];
                }
            }
        }
}

static float *small_numbers(int64_t n) {
    float *x = ref__alloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)test_random_int(-3, 3);
    return x;
}

/* The same values, which lie as rows of the axes in another order. */
static gn_tensor turned_data(gn_ctx *g, const float *x, gn_shape s, float *room) {
    int64_t inner = s.dims[2] * s.dims[3], at = 0;
    for (int64_t n = 0; n < s.dims[0]; n++)
        for (int64_t i = 0; i < inner; i++)
            for (int64_t c = 0; c < s.dims[1]; c++) room[at++] = x[(n * s.dims[1] + c) * inner + i];
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(s.dims[0], s.dims[2], s.dims[3], s.dims[1]), room);
    return gn_permute(t, GN_AXES(0, 3, 1, 2));
}

static bool conv_is_exact(gn_ctx *g, const char *name, conv_case k) {
    int64_t groups = k.d.groups, plane = k.out[0] * k.out[1];
    bool back = k.d.transposed;
    gn_shape xs = GN_SHAPE(k.images, k.channels, k.in[0], k.in[1]),
             ys = GN_SHAPE(k.images, k.filters, k.out[0], k.out[1]),
             ws = GN_SHAPE(back ? k.channels : k.filters, (back ? k.filters : k.channels) / groups, k.kernel[0],
                           k.kernel[1]);
    int64_t n = ref_elements(ys);
    float *x = small_numbers(ref_elements(xs)), *w = small_numbers(ref_elements(ws)), *bias = small_numbers(k.filters),
          *residual = small_numbers(n), *y = ref__alloc((size_t)n, sizeof *y),
          *got = ref__alloc((size_t)n, sizeof *got),
          *room[2] = { small_numbers(ref_elements(xs)), small_numbers(ref_elements(ws)) };
    gn_tensor tx = k.turned ? turned_data(g, x, xs, room[0]) : gn_data(g, GN_F32, xs, x),
              tw = k.turned ? turned_data(g, w, ws, room[1]) : gn_data(g, GN_F32, ws, w);
    if (k.residual) k.d.residual = gn_data(g, GN_F32, ys, residual);
    gn_tensor t = gn_conv(tx, tw, k.bias ? gn_data(g, GN_F32, GN_SHAPE(k.filters), bias) : GN_NONE, &k.d);
    CHECK_RESULT(gn_read(t, got, (size_t)n * sizeof *got), GN_OK);
    int64_t wrong = -1;
    for (int64_t p = 0; p < n / plane; p++) {
        float *to = y + p * plane;
        memset(to, 0, (size_t)plane * sizeof *to);
        conv_plane(&k, x, w, p / k.filters, p % k.filters, to);
        for (int64_t i = 0; i < plane; i++) {
            to[i] += (k.bias ? bias[p % k.filters] : 0) + (k.residual ? residual[p * plane + i] : 0);
            if (k.d.clamps) to[i] = fminf(fmaxf(to[i], (float)k.d.least), (float)k.d.most);
            if (to[i] != got[p * plane + i] && wrong < 0) wrong = p * plane + i;
        }
    }
    if (wrong >= 0)
        test_fail(__FILE__, __LINE__,
                  "%s: conv of (%lld,%lld,%lld,%lld) by %lld filters of %lldx%lld in %lld groups, stride %lld %lld, "
                  "dilation %lld %lld, pads %lld %lld%s%s: element %lld is %g, not %g",
                  name, (long long)k.images, (long long)k.channels, (long long)k.in[0], (long long)k.in[1],
                  (long long)k.filters, (long long)k.kernel[0], (long long)k.kernel[1], (long long)groups,
                  (long long)k.d.stride[0], (long long)k.d.stride[1], (long long)k.d.dilation[0],
                  (long long)k.d.dilation[1], (long long)k.d.before[0], (long long)k.d.before[1],
                  back ? ", transposed" : "", k.turned ? ", turned" : "", (long long)wrong, (double)got[wrong],
                  (double)y[wrong]);
    gn_step(g);
    float *all[] = { x, w, bias, residual, y, got, room[0], room[1] };
    for (int i = 0; i < TEST_COUNT(all); i++) free(all[i]);
    return wrong < 0;
}

static void convs_are_exact(gn_ctx *g, const char *name) {
    bool same = true;
    for (int i = 0; i < 3 * n_programs && same; i++) same = conv_is_exact(g, name, draw_conv());
}

/* ---- transposed convolutions ---- */

enum { BACK_TERMS = 400000 };

/* Over one to three axes, of 16-bit floats too. turned: x lies as rows of channels; read: by a conv of one tap that
   changes nothing. */
typedef struct back_case {
    gn_conv_desc d;
    gn_dtype dtype;
    gn_shape x, w, y;
    bool bias, turned, residual, read;
} back_case;

static back_case draw_back(void) {
    static const gn_dtype all[] = { GN_BF16, GN_F16, GN_BF16, GN_F32 };
    back_case k;
    int64_t terms;
    do {
        int axes = (int)test_random_int(1, 3);
        int64_t by = test_random_int(0, 1) ? 8 : 1, groups = test_random_int(0, 2) ? 1 : test_random_int(2, 3);
        k = (back_case){ .dtype = all[test_random_int(0, 3)], .bias = test_random_int(0, 1) };
        k.d = (gn_conv_desc){ .transposed = true, .groups = groups, .clamps = test_random_int(0, 1), .least = -9 };
        k.d.most = test_random_int(0, 1) ? 20 : INFINITY;
        k.residual = test_random_int(0, 2) == 0;
        k.turned = test_random_int(0, 1);
        k.read = test_random_int(0, 1);
        k.x.rank = k.w.rank = k.y.rank = axes + 2;
        k.x.dims[0] = k.y.dims[0] = test_random_int(1, 3);
        k.x.dims[1] = k.w.dims[0] = groups * by * test_random_int(1, 80 / by);
        k.w.dims[1] = by * test_random_int(1, 80 / by);
        k.y.dims[1] = k.w.dims[1] * groups;
        terms = k.x.dims[0] * k.x.dims[1] * k.w.dims[1];
        for (int i = 0; i < axes; i++) {
            k.d.stride[i] = test_random_int(0, 4) ? test_random_int(1, 3) : test_random_int(4, 9);
            k.d.dilation[i] = test_random_int(1, 4);
            k.d.before[i] = test_random_int(-2, 4);
            k.d.after[i] = test_random_int(-2, 4);
            k.d.extra[i] = test_random_int(0, k.d.stride[i] - 1);
            k.x.dims[i + 2] = test_random_int(1, axes > 1 ? 9 : 60);
            k.w.dims[i + 2] = test_random_int(1, 5);
            k.y.dims[i + 2] = ref_conv_size(&k.d, i, k.x.dims[i + 2], k.w.dims[i + 2]);
            terms *= k.y.dims[i + 2] < 1 ? 2 * BACK_TERMS : k.y.dims[i + 2] * k.w.dims[i + 2];
            if (terms > BACK_TERMS) break;
        }
    } while (terms > BACK_TERMS);
    return k;
}

static ref *small_ref(gn_dtype d, gn_shape s) {
    ref *r = ref_make(d, s);
    for (int64_t i = 0; i < r->n; i++) r->f[i] = (ref_real)test_random_int(-2, 2);
    return r;
}

/* turned: the same values as rows of channels, seen as planes. */
static gn_tensor ref_data(gn_ctx *g, const ref *r, bool turned, void **out_room) {
    gn_axes order = { .n = r->shape.rank, .axis = { 0, r->shape.rank - 1, 1, 2, 3 } };
    ref *as = ref_make(r->dtype, r->shape);
    const int64_t rows = turned ? r->shape.dims[1] : 1, inner = turned ? r->n / (r->shape.dims[0] * rows) : 1;
    for (int64_t i = 0; i < r->n; i++)
        as->f[turned ? (i / inner / rows * inner + i % inner) * rows + i / inner % rows : i] = r->f[i];
    for (int i = 1; i < r->shape.rank && turned; i++)
        as->shape.dims[i] = r->shape.dims[i + 1 < r->shape.rank ? i + 1 : 1];
    gn_tensor t = gn_data(g, r->dtype, as->shape, *out_room = ref_encode(as));
    return turned ? gn_permute(t, order) : t;
}

static void say_back(const char *name, const back_case *k, int64_t at, double got, double want) {
    char axes[3][160] = { "" };
    for (int i = 0; i + 2 < k->x.rank; i++)
        snprintf(axes[i], sizeof axes[i], "; %lld by %lld, stride %lld dilation %lld pads %lld %lld extra %lld",
                 (long long)k->x.dims[i + 2], (long long)k->w.dims[i + 2], (long long)k->d.stride[i],
                 (long long)k->d.dilation[i], (long long)k->d.before[i], (long long)k->d.after[i],
                 (long long)k->d.extra[i]);
    test_fail(__FILE__, __LINE__,
              "%s: transposed conv of %s, %lld images of %lld channels to %lld in %lld groups%s%s%s%s%s%s%s%s: element "
              "%lld is %g, not %g",
              name, gn_dtype_name(k->dtype), (long long)k->x.dims[0], (long long)k->x.dims[1], (long long)k->y.dims[1],
              (long long)k->d.groups, axes[0], axes[1], axes[2], k->bias ? ", bias" : "",
              k->residual ? ", residual" : "", k->d.clamps ? ", clamps" : "", k->turned ? ", turned" : "",
              k->read ? ", read" : "", (long long)at, got, want);
}

static bool back_is_exact(gn_ctx *g, const char *name, back_case k) {
    ref *in[4] = { small_ref(k.dtype, k.x), small_ref(k.dtype, k.w) }, *one;
    int n = 2, at_residual = 0;
    void *room[5] = { NULL };
    gn_shape point = k.w;
    if (k.bias) in[n++] = small_ref(k.dtype, GN_SHAPE(k.y.dims[1]));
    if (k.residual) in[at_residual = n++] = small_ref(k.dtype, k.y);
    for (int i = 2; i < point.rank; i++) point.dims[i] = 1;
    point.dims[0] = point.dims[1] = k.y.dims[1];
    one = ref_make(k.dtype, point);
    for (int64_t i = 0; i < k.y.dims[1]; i++) one->f[i * k.y.dims[1] + i] = 1;
    const ref *want = ref_conv(in, k.bias, k.residual, &k.d);
    if (k.residual) k.d.residual = ref_data(g, in[at_residual], test_random_int(0, 1), &room[3]);
    gn_tensor t = gn_conv(ref_data(g, in[0], k.turned, &room[0]), ref_data(g, in[1], false, &room[1]),
                          k.bias ? ref_data(g, in[2], false, &room[2]) : GN_NONE, &k.d);
    if (k.read) t = gn_conv(t, ref_data(g, one, false, &room[4]), GN_NONE, &(gn_conv_desc){ 0 });
    float *got = ref__alloc((size_t)want->n, sizeof *got);
    CHECK_RESULT(gn_read(gn_cast(t, GN_F32), got, (size_t)want->n * sizeof *got), GN_OK);
    int64_t same = 0;
    while (same < want->n && (double)got[same] == (double)ref_round(k.dtype, want->f[same])) same++;
    if (same < want->n) say_back(name, &k, same, (double)got[same], (double)ref_round(k.dtype, want->f[same]));
    bool is = same == want->n;
    gn_step(g);
    for (int i = 0; i < TEST_COUNT(room); i++) free(room[i]);
    free(got);
    ref_reset();
    return is;
}

static void transposed_convs_are_exact(gn_ctx *g, const char *name) {
    bool same = true;
    for (int i = 0; i < n_programs && same; i++) same = back_is_exact(g, name, draw_back());
}

int main(int argc, char **argv) {
    static void (*const tests[])(gn_ctx *, const char *) = { programs_are_exact, products_of_integers_wrap,
                                                             convs_are_exact, transposed_convs_are_exact };
    static const char *const names[] = { "random_programs_are_exact", "products_of_integers_wrap",
                                         "convs_of_any_size_are_exact", "transposed_convs_are_exact" };
    test_begin(argc, argv);
    if (getenv("GENIE_TEST_PROGRAMS")) n_programs = atoi(getenv("GENIE_TEST_PROGRAMS"));
    drafts = gn_open(&(gn_desc){ .devices = "null" });
    for (int e = 0; e < EXECUTORS; e++) {
        for (int i = 0; i < TEST_COUNT(tests); i++) {
            char name[160];
            snprintf(name, sizeof name, "%s_on_%s", names[i], executor_names[e]);
            if (!test_open(name)) continue;
            if (!executors[e]) executors[e] = open_executor(e);
            if (gn_status(executors[e]) == GN_OK) tests[i](executors[e], executor_names[e]);
            else if (e == GPU) test_skip(gn_last_error(executors[e])->text);
            else CHECK_RESULT(gn_status(executors[e]), GN_OK);
            test_close();
        }
    }
    for (int e = 0; e < EXECUTORS; e++) gn_close(executors[e]);
    gn_close(drafts);
    loopback_close();
    return test_end();
}
