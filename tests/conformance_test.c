/* Every op of the table on every executor against tests/reference.h.
 *
 * The list of tests is made from gn_op_count and gn_get_op: a scalar row gets its cases from its arity and dtypes, any
 * other row from the generator of its name below, and a row without cases fails. A float element passes when
 *
 *     |got - want| <= gn_op_info.tolerance * eps * magnitude + smallest,
 *
 * eps being 2^-23, 2^-52, 2^-10, 2^-7 for f32, f64, f16, bf16, `magnitude` the sum of the absolute terms of that
 * element (see reference.h) and `smallest` the smallest subnormal of the dtype; past the largest number an infinity
 * passes when the bound reaches there. Ints, bools, movement, and what only selects or rounds must be exact. On the
 * null executor shapes and dtypes are checked and a read answers GN_NO_VALUE; on the loopback server, which has another
 * number of threads, the bytes must be those of the local CPU. Built with CONFORMANCE_WITHOUT_NET, for a program that
 * lacks the network unit, there is no loopback server.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include "loopback.h"
#include "reference.h"

/* ---- the devices under test ---- */

/* The last is the device of $GENIE_TEST_DEVICES ("cuda:0", or a server's URL), when that is set. */
typedef enum device { ON_NULL, ON_CPU, ON_LOOPBACK, ON_NAMED, DEVICES } device;
static const char *device_names[DEVICES] = { "null", "cpu", "loopback", "" };
static const char *named_device;
static gn_ctx *contexts[DEVICES];

static struct {
    device on;
    gn_op_info row; /* of the running test */
    double tolerance;
    int cases;
} running;

static void open_devices(void) {
    gn_desc desc = { .seed = test__.seed, .threads = 2 };
    desc.devices = "null";
    contexts[ON_NULL] = gn_open(&desc);
    desc.devices = "cpu";
    contexts[ON_CPU] = gn_open(&desc);
#ifndef CONFORMANCE_WITHOUT_NET
    contexts[ON_LOOPBACK] = loopback_open(&desc);
#endif
    desc.devices = named_device = getenv("GENIE_TEST_DEVICES");
    device_names[ON_NAMED] = named_device && strstr(named_device, "://") ? "remote" : named_device;
    contexts[ON_NAMED] = desc.devices ? gn_open(&desc) : NULL;
}

/* A device on which kernels are compiled and nothing runs answers like null. */
static bool computes_nothing(device on) {
    return on == ON_NULL || (on == ON_NAMED && getenv("GENIE_CUDA_COMPILE_ONLY"));
}

/* With $GENIE_CUDA_ONE_OF_EACH only plans with a kind of kernel that did not run before are made; the others answer
   GN_NO_VALUE. */
static bool runs_one_of_each(device on) { return on == ON_NAMED && getenv("GENIE_CUDA_ONE_OF_EACH"); }

/* ---- inputs: a tensor in memory, seen through up to two views ---- */

typedef enum fill {
    FILL_SMALL,    /* floats in (-2, 2), ints in [-9, 9] */
    FILL_POSITIVE, /* floats in (0.1, 4), ints in [1, 9] */
    FILL_WIDE,     /* floats over all exponents, ints over all bits */
    FILL_SPECIAL,  /* the special values in turn */
    FILL_DIVISOR,  /* special values without zero for ints */
    FILL_FACTORS,  /* special values without those whose products overflow or underflow on their way */
    FILL_SUMMABLE, /* special values without large finite floats, whose sums overflow on their way */
    FILL_INDEX,    /* ints in [0, limit) */
} fill;

typedef enum view {
    VIEW_NONE,
    VIEW_PERMUTE,
    VIEW_STEPS,
    VIEW_BACKWARDS,
    VIEW_BROADCAST,
    VIEW_PERMUTED_STEPS,
    VIEWS,
    VIEW_ANY
} view;

typedef struct input {
    ref *base, *value; /* as in memory; as the op sees it */
    void *bytes;       /* of base */
    bool permuted, sliced, broadcasted;
    gn_axes order;
    int axis;
    int64_t begin, end, step;
} input;

#define MAX_INPUTS 10

typedef struct sample {
    const char *what; /* names the case in a failure */
    input in[MAX_INPUTS];
    int n;
    gn_tensor (*build)(const struct sample *s, gn_ctx *g, const gn_tensor *in);
    ref *(*refer)(const struct sample *s, ref *const *in);
    const ref_scalar_op *scalar;
    gn_shape shape; /* parameters of the op, by its needs */
    gn_axes axes;
    gn_dtype dtype;
    int64_t p[4], q[8];
    const char *text;
    double d[2];
    bool flag;
    gn_conv_desc conv;
    gn_pool_desc pool;
    gn_interpolate_desc interpolate;
    gn_recurrent_desc recurrent;
    gn_result failure; /* GN_OK, or what the node must be */
} sample;

static const double special_floats[] = {
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.1,
    -0.1,
    7.5,
    -7.5,
    17.0,
    -17.0,
    90.0,
    -90.0,
    800.0,
    -800.0,
    255.5,
    256.0,
    -0.9,
    2147483647.5,
    2147483648.0,
    -2147483649.0,
    0x1p63,
    -0x1p63, /* where casts saturate */
    1 + 0x1p-11 + 0x1p-40,
    1 + 0x1p-8 + 0x1p-40, /* rounded twice, these would become 1 in f16 and bf16 */
};
static const int64_t special_ints[] = { 0, 1, -1, 2, -2, 3, -3, 7, -7, 127, 128, 255, 256, -128, 65535, 1 << 20 };

enum { SPECIAL_FLOATS = TEST_COUNT(special_floats) + 12, SPECIAL_INTS = TEST_COUNT(special_ints) + 4 };

static ref_real special_float(gn_dtype d, int64_t k) {
    const ref_real largest = ref_largest(d), tiny = ref_tiny(d), normal = ldexpl(1, ref_format_of(d).bottom);
    const ref_real extremes[12] = {
        (ref_real)INFINITY, -(ref_real)INFINITY, (ref_real)NAN,  largest, -largest, tiny, -tiny, normal, -normal,
        1 + ref_eps(d),     1 - ref_eps(d) / 2,  sqrtl(largest),
    };
    k %= SPECIAL_FLOATS;
    return k < 12 ? extremes[k] : (ref_real)special_floats[k - 12];
}

static int64_t special_int(gn_dtype d, int64_t k) {
    const int64_t low = ref_lowest_int(d), high = ref_highest_int(d);
    const int64_t extremes[4] = { low, high, low + 1, high - 1 };
    k %= SPECIAL_INTS;
    return ref_wrap(d, k < 4 ? extremes[k] : special_ints[k - 4]);
}

static ref_real random_float(gn_dtype d, fill f, int64_t k) {
    ref_format format = ref_format_of(d);
    if (f == FILL_SPECIAL || f == FILL_DIVISOR || f == FILL_SUMMABLE || f == FILL_FACTORS) {
        ref_real x = special_float(d, k);
        if (f == FILL_FACTORS && isfinite(x) && x != 0 && (fabsl(x) > 4 || fabsl(x) < 0.25L)) return x > 0 ? 2 : -0.5L;
        return f == FILL_SUMMABLE && isfinite(x) && fabsl(x) > 1000 ? 1000 : x;
    }
    if (f == FILL_WIDE)
        return ldexpl((ref_real)test_random_real(-2, 2), (int)test_random_int(format.bottom, format.top));
    return (ref_real)(f == FILL_POSITIVE ? test_random_real(0.1, 4) : test_random_real(-2, 2));
}

static int64_t random_int(gn_dtype d, fill f, int64_t k, int64_t limit) {
    if (f == FILL_SPECIAL || f == FILL_DIVISOR || f == FILL_SUMMABLE || f == FILL_FACTORS) {
        int64_t x = special_int(d, k);
        return f == FILL_DIVISOR && x == 0 ? 1 : x;
    }
    if (f == FILL_INDEX)
        return limit > 0 ? test_random_int(0, limit - 1) : 0; /* no element of the view, perhaps one of its base */
    int64_t x =
        f == FILL_WIDE ? (int64_t)test_random() : test_random_int(f == FILL_POSITIVE || ref_is_unsigned(d) ? 1 : -9, 9);
    return d == GN_BOOL ? x & 1 : x;
}

static void fill_ref(ref *r, fill f, int64_t limit) {
    for (int64_t k = 0; k < r->n; k++)
        if (r->f) r->f[k] = ref_round(r->dtype, random_float(r->dtype, f, k));
        else r->i[k] = ref_wrap(r->dtype, random_int(r->dtype, f, k, limit));
}

/* Chooses a view that ends in `shape`, and returns the shape to begin with. */
static gn_shape choose_view(input *in, gn_shape shape, view v) {
    v = v == VIEW_ANY ? (view)test_random_int(0, VIEWS - 1) : v;
    if (shape.rank == 0 || v == VIEW_NONE) return shape;
    gn_shape base = shape;
    in->axis = (int)test_random_int(0, shape.rank - 1);
    in->permuted = v == VIEW_PERMUTE || v == VIEW_PERMUTED_STEPS;
    in->sliced = v == VIEW_STEPS || v == VIEW_PERMUTED_STEPS || v == VIEW_BACKWARDS;
    int64_t *dim = &base.dims[in->axis];
    in->broadcasted = v == VIEW_BROADCAST && *dim <= 128; /* a long sum of equal terms rounds to one side */
    if (in->broadcasted) *dim = 1;
    if (in->sliced) {
        in->step = v == VIEW_BACKWARDS ? -test_random_int(1, 2) : test_random_int(1, 3);
        int64_t offset = test_random_int(0, 2), steps = in->step < 0 ? -in->step : in->step, length = *dim;
        *dim = offset + (length ? (length - 1) * steps + 1 : 0);
        in->begin = in->step < 0 ? *dim - 1 : offset;
        in->end = in->step < 0 ? offset - 1 : length ? GN_END : offset;
        in->end = in->end < 0 ? -*dim - 1 : in->end; /* -1 would be the last element */
    }
    if (in->permuted) {
        gn_shape seen = base;
        in->order.n = base.rank;
        for (int i = 0; i < base.rank; i++) {
            in->order.axis[i] = base.rank - 1 - i;
            base.dims[base.rank - 1 - i] = seen.dims[i];
        }
    }
    return base;
}

static ref *view_ref(const input *in, gn_shape shape) {
    ref *r = in->base;
    r = in->permuted ? ref_permute(r, in->order) : r;
    r = in->sliced ? ref_slice(r, in->axis, in->begin, in->end, in->step) : r;
    return in->broadcasted ? ref_broadcast(r, shape) : r;
}

static gn_tensor view_tensor(gn_ctx *g, const input *in) {
    gn_tensor t = gn_data(g, in->base->dtype, in->base->shape, in->bytes);
    t = in->permuted ? gn_permute(t, in->order) : t;
    t = in->sliced ? gn_slice(t, in->axis, in->begin, in->end, in->step) : t;
    return in->broadcasted ? gn_broadcast(t, in->value->shape) : t;
}

/* Adds an input to a sample. `limit` is FILL_INDEX's. */
static void add_limited(sample *s, gn_dtype dtype, gn_shape shape, fill f, view v, int64_t limit) {
    input *in = &s->in[s->n++];
    memset(in, 0, sizeof *in);
    in->base = ref_make(dtype, choose_view(in, shape, v));
    fill_ref(in->base, f, limit);
    in->value = view_ref(in, shape);
    in->bytes = ref_encode(in->base);
}

static void add_input(sample *s, gn_dtype dtype, gn_shape shape, fill f, view v) {
    add_limited(s, dtype, shape, f, v, 0);
}

/* ---- comparing ---- */

static bool float_matches(gn_dtype d, ref_real got, ref_real want, ref_real magnitude, double tolerance) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (got == want) return true;
    ref_real bound = (ref_real)tolerance * ref_eps(d) * magnitude + ref_tiny(d);
    ref_real overflow = ref_largest(d) * (1 + ref_eps(d) / 4); /* from here on rounding gives infinity */
    if (isinf(got)) return (got > 0) == (want > 0) && fabsl(want) + bound >= overflow;
    return !isinf(want) && fabsl(got - want) <= bound;
}

static void compare(const sample *s, const ref *got, const ref *want) {
    for (int64_t k = 0; k < want->n; k++) {
        if (want->f) {
            ref_real magnitude = want->mag ? want->mag[k] : 0;
            bool matches = want->mag ? float_matches(want->dtype, got->f[k], want->f[k], magnitude, running.tolerance)
                                     : got->f[k] == want->f[k] || (isnan(got->f[k]) && isnan(want->f[k]));
            if (!matches) {
                test_fail(__FILE__, __LINE__, "%s %s: element %lld is %.9Lg, not %.9Lg (%.3Lg eps of magnitude %.3Lg)",
                          s->what, gn_dtype_name(want->dtype), (long long)k, got->f[k], want->f[k],
                          fabsl(got->f[k] - want->f[k]) / ref_eps(want->dtype) / (magnitude > 0 ? magnitude : 1),
                          magnitude);
                return;
            }
        } else if (got->i[k] != want->i[k]) {
            test_fail(__FILE__, __LINE__, "%s %s: element %lld is %lld, not %lld", s->what, gn_dtype_name(want->dtype),
                      (long long)k, (long long)got->i[k], (long long)want->i[k]);
            return;
        }
    }
}

/* ---- running a sample ---- */

static gn_tensor build_on(const sample *s, gn_ctx *g) {
    gn_tensor in[MAX_INPUTS];
    for (int i = 0; i < s->n; i++) in[i] = view_tensor(g, &s->in[i]);
    return s->build(s, g, in);
}

static bool same_shape(gn_shape a, gn_shape b) {
    return a.rank == b.rank && (a.rank == 0 || memcmp(a.dims, b.dims, (size_t)a.rank * sizeof *a.dims) == 0);
}

static bool describes(const sample *s, gn_tensor t, gn_dtype dtype, gn_shape shape) {
    gn_info info;
    gn_result r = gn_describe(t, &info);
    if (r != s->failure) {
        test_fail(__FILE__, __LINE__, "%s: the node is %s, not %s (%s)", s->what, gn_result_name(r),
                  gn_result_name(s->failure), gn_last_error(contexts[running.on])->text);
        return false;
    }
    if (r == GN_OK && (info.dtype != dtype || !same_shape(info.shape, shape))) {
        test_fail(__FILE__, __LINE__,
                  "%s: the node is %s of rank %d (first dim %lld), not %s of rank %d (first dim %lld)", s->what,
                  gn_dtype_name(info.dtype), (int)info.shape.rank, (long long)info.shape.dims[0], gn_dtype_name(dtype),
                  (int)shape.rank, (long long)shape.dims[0]);
        return false;
    }
    return r == GN_OK;
}

/* The bytes of the sample's result on one device, or NULL after a failed check. The caller frees them. */
static void *read_on(device on, const sample *s, size_t bytes) {
    gn_ctx *g = contexts[on];
    unsigned char *out = ref__alloc(bytes + 1, 1);
    gn_result r = gn_read(build_on(s, g), out, bytes);
    gn_step(g);
    if (r == GN_OK) return out;
    if (r == GN_NO_VALUE && runs_one_of_each(on)) {
        free(out);
        return NULL;
    }
    test_fail(__FILE__, __LINE__, "%s: the read on %s is %s: %s", s->what, device_names[on], gn_result_name(r),
              gn_last_error(g)->text);
    free(out);
    return NULL;
}

static void check_values(const sample *s, const ref *want) {
    size_t bytes = ref_bytes(want);
    void *local = read_on(running.on == ON_NAMED ? ON_NAMED : ON_CPU, s, bytes), *remote = NULL;
    if (running.on != ON_LOOPBACK && local) {
        compare(s, ref_decode(want->dtype, want->shape, local), want);
    } else if (local) {
        remote = read_on(ON_LOOPBACK, s, bytes);
        if (remote && memcmp(local, remote, bytes) != 0)
            test_fail(__FILE__, __LINE__, "%s %s: the server's bytes differ", s->what, gn_dtype_name(want->dtype));
    }
    free(local);
    free(remote);
}

static void check_null(const sample *s, gn_tensor t, size_t bytes) {
    unsigned char *out = ref__alloc(bytes + 1, 1);
    gn_result r = gn_read(t, out, bytes);
    if (r != GN_NO_VALUE) test_fail(__FILE__, __LINE__, "%s: a read on null is %s", s->what, gn_result_name(r));
    free(out);
}

/* Runs a sample on the device of the running test and frees it. */
static void run(sample *s) {
    gn_ctx *g = contexts[running.on];
    ref *values[MAX_INPUTS], *want = NULL;
    for (int i = 0; i < s->n; i++) values[i] = s->in[i].value;
    if (s->failure == GN_OK) want = s->refer(s, values);
    gn_tensor t = build_on(s, g);
    if (describes(s, t, want ? want->dtype : GN_DTYPE_NONE, want ? want->shape : GN_SCALAR)) {
        if (computes_nothing(running.on)) {
            check_null(s, t, ref_bytes(want));
        } else {
            gn_step(g); /* the values are of a build of their own */
            check_values(s, want);
        }
    }
    gn_step(g);
    for (int i = 0; i < s->n; i++) free(s->in[i].bytes);
    ref_reset();
    running.cases++;
}

/* ---- scalar rows ---- */

/* The public builders: they promote. A row without one here is built by its wire id. */
typedef gn_tensor (*unary_fn)(const char *, int, gn_tensor);
typedef gn_tensor (*binary_fn)(const char *, int, gn_tensor, gn_tensor);
typedef gn_tensor (*ternary_fn)(const char *, int, gn_tensor, gn_tensor, gn_tensor);

static const struct {
    const char *name;
    unary_fn unary;
    binary_fn binary;
    ternary_fn ternary;
} builders[] = {
#define UNARY(name) { #name, gn_##name##_at, NULL, NULL },
#define BINARY(name) { #name, NULL, gn_##name##_at, NULL },
#define TERNARY(name) { #name, NULL, NULL, gn_##name##_at },
    /* clang-format off */
    BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(pow) BINARY(minimum) BINARY(maximum) UNARY(neg) UNARY(abs)
    UNARY(exp) UNARY(log) UNARY(sqrt) UNARY(rsqrt) UNARY(tanh) UNARY(sigmoid) UNARY(relu) UNARY(gelu) UNARY(gelu_tanh)
    UNARY(silu) BINARY(eq) BINARY(ne) BINARY(lt) BINARY(le) BINARY(gt) BINARY(ge) BINARY(and) BINARY(or) BINARY(xor)
    UNARY(not) UNARY(exp2) UNARY(expm1) UNARY(log2) UNARY(log10) UNARY(log1p) UNARY(reciprocal) UNARY(sin) UNARY(cos)
    UNARY(tan) UNARY(asin) UNARY(acos) UNARY(atan) UNARY(sinh) UNARY(cosh) UNARY(asinh) UNARY(acosh) UNARY(atanh)
    UNARY(erf) UNARY(erfc) UNARY(softplus) UNARY(softsign) UNARY(selu) UNARY(mish) UNARY(log_sigmoid) UNARY(floor)
    UNARY(ceil) UNARY(round) UNARY(trunc) UNARY(sign) UNARY(square) UNARY(hard_sigmoid) UNARY(hard_swish) BINARY(atan2)
    BINARY(fmod) BINARY(remainder) BINARY(floor_divide) BINARY(hypot) BINARY(copysign) BINARY(shift_left)
    BINARY(shift_right) TERNARY(fma) TERNARY(lerp)
/* clang-format on */
#undef UNARY
#undef BINARY
#undef TERNARY
};

static gn_tensor build_row(const sample *s, gn_ctx *g, const gn_tensor *in) {
    for (int k = 0; k < TEST_COUNT(builders); k++) {
        if (strcmp(builders[k].name, running.row.name) == 0) {
            return builders[k].unary    ? builders[k].unary(GN_HERE, in[0])
                   : builders[k].binary ? builders[k].binary(GN_HERE, in[0], in[1])
                                        : builders[k].ternary(GN_HERE, in[0], in[1], in[2]);
        }
    }
    return gn_apply(g, running.row.wire, in, s->n, NULL, 0);
}

static ref *refer_scalar(const sample *s, ref *const *in) { return ref_scalar(s->scalar, in); }

static bool takes(gn_dtype d) { return (running.row.dtypes >> d & 1) != 0; }

static sample scalar_sample(const char *what, const ref_scalar_op *op) {
    sample s = { .what = what, .build = build_row, .refer = refer_scalar, .scalar = op };
    return s;
}

static const gn_shape unary_shapes[] = {
    { 0, { 0 } },       { 1, { 1 } },      { 1, { 7 } },       { 1, { 0 } },
    { 3, { 2, 0, 3 } }, { 2, { 13, 11 } }, { 3, { 3, 5, 4 } }, { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } },
    { 1, { 20011 } },
};
static const gn_shape binary_shapes[][2] = {
    { { 0, { 0 } }, { 0, { 0 } } },
    { { 1, { 7 } }, { 1, { 7 } } },
    { { 1, { 1 } }, { 1, { 5 } } },
    { { 1, { 5 } }, { 0, { 0 } } },
    { { 0, { 0 } }, { 2, { 3, 4 } } },
    { { 2, { 3, 1 } }, { 2, { 1, 5 } } },
    { { 1, { 5 } }, { 3, { 2, 3, 5 } } },
    { { 3, { 2, 3, 5 } }, { 2, { 3, 1 } } },
    { { 1, { 0 } }, { 1, { 1 } } },
    { { 3, { 3, 0, 2 } }, { 2, { 1, 2 } } },
    { { 2, { 0, 4 } }, { 0, { 0 } } },
    { { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } }, { 8, { 2, 1, 2, 3, 1, 2, 1, 3 } } },
    { { 8, { 2, 1, 2, 1, 2, 1, 2, 3 } }, { 1, { 3 } } },
    { { 2, { 13, 11 } }, { 2, { 13, 11 } } },
    { { 1, { 20011 } }, { 1, { 20011 } } },
};

/* Divisors must not be zero where ints are divided. */
static fill second_fill(fill f) {
    const char *name = running.row.name;
    bool divides = strcmp(name, "div") == 0 || strcmp(name, "fmod") == 0 || strcmp(name, "remainder") == 0 ||
                   strcmp(name, "floor_divide") == 0;
    return !divides ? f : f == FILL_SPECIAL ? FILL_DIVISOR : f == FILL_WIDE ? FILL_DIVISOR : FILL_POSITIVE;
}

static void unary_cases(const ref_scalar_op *op, gn_dtype d) {
    for (int k = 0; k < TEST_COUNT(unary_shapes); k++) {
        for (int wide = 0; wide < 2; wide++) {
            sample s = scalar_sample("shape", op);
            add_input(&s, d, unary_shapes[k], wide ? FILL_WIDE : FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
    for (view v = VIEW_NONE; v < VIEWS; v++) {
        sample s = scalar_sample("view", op);
        add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_POSITIVE, v);
        run(&s);
    }
    sample s = scalar_sample("special values", op);
    add_input(&s, d, GN_SHAPE(SPECIAL_FLOATS + SPECIAL_INTS), FILL_SPECIAL, VIEW_NONE);
    run(&s);
}

static void binary_cases(const ref_scalar_op *op, gn_dtype d) {
    for (int k = 0; k < TEST_COUNT(binary_shapes); k++) {
        sample s = scalar_sample("shape", op);
        fill f = k % 2 ? FILL_WIDE : FILL_SMALL;
        add_input(&s, d, binary_shapes[k][0], f, VIEW_ANY);
        add_input(&s, d, binary_shapes[k][1], second_fill(f), VIEW_ANY);
        run(&s);
    }
    for (view v = VIEW_NONE; v < VIEWS; v++) {
        sample s = scalar_sample("view", op);
        add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_POSITIVE, v);
        add_input(&s, d, GN_SHAPE(4, 5), second_fill(FILL_SMALL), VIEW_ANY);
        run(&s);
    }
    int64_t n = ref_is_float(d) ? SPECIAL_FLOATS : SPECIAL_INTS;
    sample s = scalar_sample("special values", op);
    add_input(&s, d, GN_SHAPE(n, 1), FILL_SPECIAL, VIEW_NONE);
    add_input(&s, d, GN_SHAPE(1, n), second_fill(FILL_SPECIAL), VIEW_NONE);
    run(&s);
}

/* The third input is small, and lerp's others are: of two weighted sums past the largest number either may be the
   infinity. */
static void ternary_cases(const ref_scalar_op *op, gn_dtype d) {
    bool sums = strcmp(op->name, "lerp") == 0;
    for (int k = 0; k < TEST_COUNT(binary_shapes); k++) {
        sample s = scalar_sample("shape", op);
        fill f = k % 2 == 0 ? FILL_SMALL : sums ? FILL_SUMMABLE : FILL_WIDE;
        add_input(&s, d, binary_shapes[k][0], f, VIEW_ANY);
        add_input(&s, d, binary_shapes[k][1], f, VIEW_ANY);
        add_input(&s, d, binary_shapes[k][k / 2 % 2], FILL_SMALL, VIEW_ANY);
        run(&s);
    }
    int64_t n = ref_is_float(d) ? SPECIAL_FLOATS : SPECIAL_INTS;
    sample s = scalar_sample("special values", op);
    add_input(&s, d, GN_SHAPE(n, 1), sums ? FILL_SUMMABLE : FILL_SPECIAL, VIEW_NONE);
    add_input(&s, d, GN_SHAPE(1, n), sums ? FILL_SUMMABLE : FILL_SPECIAL, VIEW_NONE);
    add_input(&s, d, GN_SHAPE(n, n), FILL_SMALL, VIEW_NONE);
    run(&s);
}

/* Two dtypes in one op, each as a vector or 0-d: PyTorch's table. Rows that take few dtypes fail where their mask says
   so. */
static void promotion_case(const ref_scalar_op *op, gn_dtype a, gn_dtype b, int ranks) {
    gn_shape shapes[2] = { ranks & 1 ? GN_SCALAR : GN_SHAPE(5), ranks & 2 ? GN_SCALAR : GN_SHAPE(5) };
    sample s = scalar_sample("mixed dtypes", op);
    add_input(&s, a, shapes[0], FILL_SMALL, VIEW_NONE);
    add_input(&s, b, shapes[1], second_fill(FILL_SMALL), VIEW_NONE);
    ref *in[2] = { s.in[0].value, s.in[1].value };
    s.failure = takes(ref_promote(in, 2)) ? GN_OK : GN_BAD_DTYPE;
    run(&s);
}

static void promotion_cases(const ref_scalar_op *op) {
    bool all = strcmp(op->name, "add") == 0 || strcmp(op->name, "lt") == 0;
    for (gn_dtype a = GN_F32; a < GN_DTYPE__COUNT; a++) {
        for (gn_dtype b = GN_F32; b < GN_DTYPE__COUNT; b++) {
            for (int ranks = 0; ranks < 4 && takes(a) && takes(b); ranks++)
                if (all || test_random_int(0, 5) == 0) promotion_case(op, a, b, ranks);
        }
    }
}

static void scalar_cases(const ref_scalar_op *op) {
    CHECK_INT(running.row.arity, op->arity);
    CHECK_INT(running.row.compares, op->compares);
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        if (!takes(d)) {
            sample s = scalar_sample("dtype outside the mask", op);
            for (int i = 0; i < op->arity; i++) add_input(&s, d, GN_SHAPE(3), FILL_SMALL, VIEW_NONE);
            s.failure = GN_BAD_DTYPE;
            run(&s);
        } else if (op->arity == 1) {
            unary_cases(op, d);
        } else if (op->arity == 3) {
            ternary_cases(op, d);
        } else {
            binary_cases(op, d);
        }
    }
    if (op->arity == 2) promotion_cases(op);
}

static gn_tensor build_where(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_where(in[0], in[1], in[2]);
}
static ref *refer_where(const sample *s, ref *const *in) {
    (void)s;
    return ref_where(in);
}

static void where_case(const char *what, const gn_shape *shapes, gn_dtype a, gn_dtype b, fill f) {
    sample s = { .what = what, .build = build_where, .refer = refer_where };
    add_input(&s, GN_BOOL, shapes[0], FILL_SMALL, VIEW_ANY);
    add_input(&s, a, shapes[1], f, VIEW_ANY);
    add_input(&s, b, shapes[2], f, VIEW_ANY);
    ref *in[2] = { s.in[1].value, s.in[2].value };
    s.failure = ref_promote(in, 2) == GN_DTYPE_NONE ? GN_BAD_DTYPE : GN_OK;
    run(&s);
}

static void cases_where(void) {
    static const gn_shape shapes[][3] = {
        { { 0, { 0 } }, { 0, { 0 } }, { 0, { 0 } } },
        { { 1, { 7 } }, { 1, { 7 } }, { 1, { 7 } } },
        { { 2, { 3, 1 } }, { 1, { 5 } }, { 3, { 2, 1, 1 } } },
        { { 1, { 5 } }, { 0, { 0 } }, { 2, { 4, 1 } } },
        { { 2, { 4, 5 } }, { 2, { 4, 5 } }, { 0, { 0 } } },
        { { 1, { 0 } }, { 1, { 1 } }, { 2, { 3, 1 } } },
        { { 8, { 1, 2, 1, 3, 1, 1, 2, 3 } }, { 8, { 2, 1, 2, 3, 1, 2, 1, 3 } }, { 8, { 1, 1, 1, 1, 1, 1, 1, 1 } } },
    };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(shapes); k++)
            where_case("shape", shapes[k], d, d, k % 2 ? FILL_SPECIAL : FILL_SMALL);
        for (gn_dtype other = GN_F32; other < GN_DTYPE__COUNT; other++) {
            where_case("mixed dtypes", shapes[1], d, other, FILL_SMALL);
            where_case("mixed dtypes, b is 0-d", shapes[4], d, other, FILL_SMALL);
        }
    }
}

static gn_tensor build_cast(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_cast(in[0], s->dtype);
}
/* An int may be rounded on its way to a float; from float to float the result is the nearest. */
static ref *refer_cast(const sample *s, ref *const *in) {
    ref *y = ref_cast(in[0], s->dtype);
    for (int64_t k = 0; in[0]->i && y->f && k < y->n; k++) {
        y->mag = y->mag ? y->mag : ref__alloc((size_t)y->n, sizeof *y->mag);
        y->mag[k] = fabsl(ref_whole(in[0]->dtype, in[0]->i[k]));
    }
    return y;
}

static void cases_cast(void) {
    for (gn_dtype from = GN_F32; from < GN_DTYPE__COUNT; from++) {
        for (gn_dtype to = GN_F32; to < GN_DTYPE__COUNT; to++) {
            static const fill fills[] = { FILL_SPECIAL, FILL_WIDE, FILL_SMALL, FILL_SMALL };
            const gn_shape shapes[] = { GN_SHAPE(SPECIAL_FLOATS + SPECIAL_INTS), GN_SHAPE(401), GN_SHAPE(3, 0),
                                        GN_SHAPE(3, 5, 2) };
            for (int k = 0; k < TEST_COUNT(fills); k++) {
                sample s = { .what = gn_dtype_name(to), .build = build_cast, .refer = refer_cast, .dtype = to };
                add_input(&s, from, shapes[k], fills[k], k == 0 ? VIEW_NONE : VIEW_ANY);
                run(&s);
            }
        }
    }
}

/* A number as dtype d would hold it after a cast. */
static double held(gn_dtype d, double v) {
    static const double least[GN_DTYPE__COUNT] = {
        [GN_I8] = -128, [GN_I16] = -32768, [GN_I32] = -2147483648.0, [GN_I64] = -0x1p63
    };
    static const double most[GN_DTYPE__COUNT] = {
        [GN_I8] = 127, [GN_I16] = 32767, [GN_I32] = 2147483647.0, [GN_I64] = 0x1p62,
        [GN_U8] = 255, [GN_U16] = 65535, [GN_U32] = 4294967295.0, [GN_U64] = 0x1p62
    };
    if (d == GN_BOOL) return v != 0;
    return d <= GN_BF16 ? v : isnan(v) ? 0 : trunc(fmin(fmax(v, least[d]), most[d]));
}

static gn_dtype dtype_of(gn_tensor t) {
    gn_info info;
    gn_describe(t, &info);
    return info.dtype;
}

/* The builders refuse a number that the dtype cannot hold. A plan of another program may have it: then it is converted
   as by a cast. */
static gn_tensor unless_refused(const sample *s, gn_tensor t, gn_ctx *g, const char *op, const gn_tensor *in, int n_in,
                                const int64_t *attrs, int n_attrs) {
    gn_info info;
    gn_op_info row;
    int i = 0;
    if (s->failure != GN_OK || gn_describe(t, &info) != GN_BAD_ARGUMENT) return t;
    while (gn_get_op(i, &row) == GN_OK && strcmp(row.name, op) != 0) i++;
    return gn_apply_at(__FILE__, __LINE__, g, row.wire, in, n_in, attrs, n_attrs);
}

static int64_t word(double x) {
    int64_t w;
    memcpy(&w, &x, sizeof w);
    return w;
}

static gn_tensor build_clamp(const sample *s, gn_ctx *g, const gn_tensor *in) {
    int64_t attrs[2] = { word(s->d[0]), word(s->d[1]) };
    return unless_refused(s, gn_clamp(in[0], s->d[0], s->d[1]), g, "clamp", in, 1, attrs, 2);
}
static ref *refer_clamp(const sample *s, ref *const *in) { return ref_clamp(in[0], s->d[0], s->d[1]); }

static void cases_clamp(void) {
    static const double bounds[][2] = { { -1, 1 }, { 0.3, 5.7 }, { -1e300, 2.25 }, { 1, -1 }, { -3, INFINITY } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(bounds); k++) {
            for (fill f = FILL_SMALL; f <= FILL_SPECIAL; f++) {
                sample s = {
                    .what = "bounds", .build = build_clamp, .refer = refer_clamp, .d = { bounds[k][0], bounds[k][1] }
                };
                add_input(&s, d, f == FILL_SMALL ? GN_SHAPE(3, 4, 5) : GN_SHAPE(SPECIAL_FLOATS), f, VIEW_ANY);
                run(&s);
            }
        }
    }
}

/* ---- leaves and generators ---- */

static gn_tensor build_input(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return in[0];
}
static ref *refer_input(const sample *s, ref *const *in) {
    (void)s;
    return in[0];
}

static gn_tensor build_copied(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)in;
    unsigned char *bytes = ref_encode(s->in[0].base);
    gn_tensor t = gn_data_copy(g, s->in[0].base->dtype, s->in[0].base->shape, bytes);
    memset(bytes, 0xa5, ref_bytes(s->in[0].base));
    free(bytes);
    return t;
}

static const gn_shape leaf_shapes[] = {
    { 0, { 0 } }, { 1, { 7 } }, { 2, { 3, 0 } }, { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } }
};

static void leaf_cases(gn_tensor (*build)(const sample *, gn_ctx *, const gn_tensor *), view v) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(leaf_shapes); k++) {
            sample s = { .what = "leaf", .build = build, .refer = refer_input };
            add_input(&s, d, leaf_shapes[k], FILL_SPECIAL, v);
            run(&s);
        }
    }
}

static gn_tensor build_scalar(const sample *s, gn_ctx *g, const gn_tensor *in) {
    int64_t attr = s->dtype;
    gn_tensor wide = gn_scalar(g, GN_F64, s->d[0]);
    (void)in;
    return unless_refused(s, gn_scalar(g, s->dtype, s->d[0]), g, "cast", &wide, 1, &attr, 1);
}
static ref *refer_scalar_leaf(const sample *s, ref *const *in) {
    (void)in;
    return ref_number(s->dtype, s->d[0]);
}

static void cases_data(void) {
    leaf_cases(build_input, VIEW_NONE);
    leaf_cases(build_copied, VIEW_NONE);
    static const double values[] = { 0, 1, -1.5, 3.0000001, 300, -7e9, 1e30, INFINITY };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(values); k++) {
            sample s = { .what = "gn_scalar",
                         .build = build_scalar,
                         .refer = refer_scalar_leaf,
                         .dtype = d,
                         .d = { values[k], 0 } };
            run(&s);
        }
    }
}

/* Slots live until they are released: after the read, that is in the next build or at the end. */
static gn_tensor slot_of[DEVICES];

static void release_slot(gn_ctx *g) {
    for (int on = 0; on < DEVICES; on++) {
        if (slot_of[on].ctx == g && slot_of[on].ctx) {
            CHECK_RESULT(gn_release(slot_of[on]), GN_OK);
            slot_of[on] = GN_NONE;
        }
    }
}

static gn_tensor keep_slot(gn_ctx *g, gn_tensor t) {
    for (int on = 0; on < DEVICES; on++)
        if (contexts[on] == g) slot_of[on] = t;
    return t;
}

static gn_tensor build_weight(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)in;
    release_slot(g);
    return keep_slot(g, gn_weight(g, s->in[0].base->dtype, s->in[0].base->shape, s->in[0].bytes, "w"));
}

static gn_tensor build_state(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)in;
    release_slot(g);
    return keep_slot(g, gn_state(g, s->in[0].base->dtype, s->in[0].base->shape, s->in[0].bytes, "s"));
}

/* A state of zeros that the input is assigned to. */
static gn_tensor build_assign(const sample *s, gn_ctx *g, const gn_tensor *in) {
    release_slot(g);
    return gn_assign(keep_slot(g, gn_state(g, s->in[0].value->dtype, s->in[0].value->shape, NULL, "s")), in[0]);
}

static void release_slots(void) {
    for (int on = 0; on < DEVICES; on++) release_slot(contexts[on]);
}

static void cases_weight(void) {
    leaf_cases(build_weight, VIEW_NONE);
    release_slots();
}
static void cases_state(void) {
    leaf_cases(build_state, VIEW_NONE);
    release_slots();
}
static void cases_assign(void) {
    leaf_cases(build_assign, VIEW_NONE);
    leaf_cases(build_assign, VIEW_ANY);
    release_slots();
}

/* A value that was realised before the op that reads it is built. */
static gn_tensor build_value(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    gn_tensor kept = gn_or(gn_eq(in[0], in[0]), gn_ne(in[0], in[0])); /* all true */
    gn_result want = computes_nothing(running.on) || runs_one_of_each(running.on) ? GN_NO_VALUE : GN_OK,
              r = gn_realize(&kept, 1);
    CHECK(r == GN_OK || r == want);
    return gn_where(kept, in[0], gn_like(in[0], 0));
}

static void cases_value(void) { leaf_cases(build_value, VIEW_ANY); }

static gn_tensor build_full(const sample *s, gn_ctx *g, const gn_tensor *in) {
    int64_t attrs[2 + GN_MAX_RANK] = { s->dtype, word(s->d[0]) };
    memcpy(attrs + 2, s->shape.dims, sizeof s->shape.dims);
    return unless_refused(s, gn_full(g, s->dtype, s->shape, s->d[0]), g, "full", in, 0, attrs, 2 + s->shape.rank);
}
static ref *refer_full(const sample *s, ref *const *in) {
    (void)in;
    return ref_full(s->dtype, s->shape, s->d[0]);
}

static void cases_full(void) {
    static const double values[] = { 0, 1, -2.75, 1000.1, 1e300, -INFINITY, NAN };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(values) * TEST_COUNT(leaf_shapes); k++) {
            sample s = { .what = "full", .build = build_full, .refer = refer_full, .dtype = d };
            s.shape = leaf_shapes[k % TEST_COUNT(leaf_shapes)];
            s.d[0] = values[k / TEST_COUNT(leaf_shapes)];
            run(&s);
        }
    }
}

static gn_tensor build_arange(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)in;
    return gn_arange(g, s->dtype, s->p[0], s->d[0], s->d[1]);
}

static ref *refer_arange(const sample *s, ref *const *in) {
    (void)in;
    return ref_arange(s->dtype, s->p[0], s->d[0], s->d[1]);
}

static void cases_arange(void) {
    static const double params[][3] = { { 0, 0, 1 },     { 1, 5, 3 },       { 37, 0, 1 },
                                        { 20, 100, -5 }, { 11, 0.5, 0.25 }, { 1000, -3, 0.1 } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d = (gn_dtype)(d + 1 + (d + 1 == GN_BOOL))) {
        for (int k = 0; k < (ref_is_float(d) ? 6 : 4); k++) {
            sample s = { .what = "arange",
                         .build = build_arange,
                         .refer = refer_arange,
                         .dtype = d,
                         .p = { (int64_t)params[k][0] } };
            s.d[0] = params[k][1];
            s.d[1] = params[k][2];
            run(&s);
        }
    }
}

/* Philox4x32-10, from the paper's figure: two multiplications, a crossing, a key that grows by the golden ratio and
   sqrt(3) - 1. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t x[4], k[2] = { key[0], key[1] };
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        uint64_t left = UINT64_C(0xD2511F53) * x[0], right = UINT64_C(0xCD9E8D57) * x[2];
        uint32_t next[4] = { (uint32_t)(right >> 32) ^ x[1] ^ k[0], (uint32_t)right,
                             (uint32_t)(left >> 32) ^ x[3] ^ k[1], (uint32_t)left };
        memcpy(x, next, sizeof x);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, x, sizeof x);
}

/* The known answers that the authors' Random123 publishes for philox4x32-10. */
static void philox_known_answers(void) {
    static const uint32_t answers[3][10] = {
        /* counter, key, result */
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
          0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
          0x24126ea1 },
    };
    for (int k = 0; k < 3; k++) {
        uint32_t out[4];
        philox(answers[k], answers[k] + 4, out);
        CHECK(memcmp(out, answers[k] + 6, sizeof out) == 0);
    }
}

/* Element i of a run: counter words {i low, i high, run low, run high}. Uniforms take the top bits that the dtype holds
 * of word 0, f64 of words 1 and 0; normals are Box and Muller's of two such f64. */
static ref *refer_random(const sample *s, ref *const *in) {
    uint64_t key = (uint64_t)s->p[0], run_id = (uint64_t)in[0]->i[0];
    ref *y = s->flag ? ref_make_inexact(s->dtype, s->shape) : ref_make(s->dtype, s->shape);
    int bits = ref_format_of(s->dtype).digits;
    for (int64_t i = 0; i < y->n; i++) {
        uint32_t w[4], counter[4] = { (uint32_t)i, 0, (uint32_t)run_id, (uint32_t)(run_id >> 32) };
        uint32_t words[2] = { (uint32_t)key, (uint32_t)(key >> 32) };
        philox(counter, words, w);
        uint64_t low = (uint64_t)w[1] << 32 | w[0], high = (uint64_t)w[3] << 32 | w[2];
        ref_real u = ldexpl((ref_real)(low >> 11), -53), v = ldexpl((ref_real)(high >> 11), -53);
        if (s->flag) {
            ref_real radius = sqrtl(-2 * logl(1 - u)), angle = 2 * acosl(-1) * v;
            ref_put(y, i, radius * cosl(angle), radius * (1 + angle));
        } else {
            y->f[i] = s->dtype == GN_F64 ? u : ldexpl(w[0] >> (32 - bits), -bits);
        }
    }
    return y;
}

static gn_tensor build_random(const sample *s, gn_ctx *g, const gn_tensor *in) {
    int64_t attrs[2 + GN_MAX_RANK] = { s->dtype, s->p[0] };
    memcpy(attrs + 2, s->shape.dims, sizeof s->shape.dims);
    return gn_apply(g, running.row.wire, in, 1, attrs, 2 + s->shape.rank);
}

static void random_case(gn_dtype d, gn_shape shape, bool zero, bool normal) {
    sample s = {
        .what = "philox", .build = build_random, .refer = refer_random, .dtype = d, .shape = shape, .flag = normal
    };
    add_input(&s, GN_I64, GN_SCALAR, FILL_WIDE, VIEW_NONE);
    s.p[0] = (int64_t)test_random();
    if (zero) {
        s.p[0] = s.in[0].base->i[0] = 0;
        memset(s.in[0].bytes, 0, 8);
    }
    run(&s);
}

static void random_cases(bool normal) {
    philox_known_answers();
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        random_case(d, GN_SHAPE(1), true, normal);
        for (int k = 0; k < TEST_COUNT(leaf_shapes); k++) random_case(d, leaf_shapes[k], false, normal);
        random_case(d, GN_SHAPE(5001), false, normal);
    }
}

/* Mean and variance over the public builders; equal seeds give equal numbers; two calls differ. */
static void random_statistics(bool normal) {
    enum { N = 20000 };
    static double x[N], y[N], again[N];
    gn_desc desc = { .devices = running.on == ON_LOOPBACK ? NULL
                                : running.on == ON_NAMED  ? named_device
                                                          : "cpu",
                     .seed = test__.seed };
    double *out[3] = { x, y, again };
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = running.on == ON_LOOPBACK ? loopback_open(&desc) : gn_open(&desc);
        for (int call = 0; call < 2 - k; call++) {
            gn_tensor t = normal ? gn_random_normal(g, GN_F64, GN_SHAPE(N)) : gn_random_uniform(g, GN_F64, GN_SHAPE(N));
            CHECK_RESULT(gn_read(t, out[2 * k + call], sizeof x), GN_OK);
        }
        gn_close(g);
    }
    CHECK(memcmp(x, again, sizeof x) == 0);
    CHECK(memcmp(x, y, sizeof x) != 0);
    double mean = 0, square = 0, cross = 0, center = normal ? 0 : 0.5, variance = normal ? 1 : 1.0 / 12;
    for (int i = 0; i < N; i++) {
        mean += x[i] / N;
        square += (x[i] - center) * (x[i] - center) / N;
        cross += (x[i] - center) * (y[i] - center) / N;
        CHECK(normal || (x[i] >= 0 && x[i] < 1));
    }
    CHECK_NEAR(mean, center, 6 * sqrt(variance / N)); /* six standard deviations */
    CHECK_NEAR(square, variance, 6 * variance * sqrt(2.0 / N));
    CHECK_NEAR(cross, 0, 6 * variance / sqrt(N));
}

static void cases_random(bool normal) {
    random_cases(normal);
    if (!computes_nothing(running.on) && !runs_one_of_each(running.on)) random_statistics(normal);
}

static void cases_random_uniform(void) { cases_random(false); }
static void cases_random_normal(void) { cases_random(true); }

/* ---- reductions ---- */

static gn_tensor build_sum(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_sum(in[0], s->axes, s->flag);
}
static gn_tensor build_mean(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_mean(in[0], s->axes, s->flag);
}
static gn_tensor build_max(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_max(in[0], s->axes, s->flag);
}
static gn_tensor build_min(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_min(in[0], s->axes, s->flag);
}
static gn_tensor build_argmax(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_argmax(in[0], s->axes, s->flag);
}
static ref *refer_sum(const sample *s, ref *const *in) { return ref_sum(in[0], s->axes, s->flag, false); }
static ref *refer_mean(const sample *s, ref *const *in) { return ref_sum(in[0], s->axes, s->flag, true); }
static ref *refer_max(const sample *s, ref *const *in) { return ref_extreme(in[0], s->axes, s->flag, 1, false); }
static ref *refer_min(const sample *s, ref *const *in) { return ref_extreme(in[0], s->axes, s->flag, -1, false); }
static ref *refer_argmax(const sample *s, ref *const *in) { return ref_extreme(in[0], s->axes, s->flag, 1, true); }

typedef struct reduction {
    gn_shape shape;
    gn_axes axes;
} reduction;

static const reduction reductions[] = {
    { { 0, { 0 } }, { 0, { 0 } } },
    { { 1, { 1 } }, { 1, { 0 } } },
    { { 1, { 7 } }, { 0, { 0 } } },
    { { 2, { 13, 11 } }, { 1, { 0 } } },
    { { 2, { 13, 11 } }, { 1, { -1 } } },
    { { 3, { 4, 5, 6 } }, { 2, { 0, 2 } } },
    { { 3, { 4, 5, 6 } }, { 2, { -1, 1 } } },
    { { 3, { 4, 5, 6 } }, { 0, { 0 } } },
    { { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } }, { 4, { 7, 1, 4, 0 } } },
    { { 3, { 3, 0, 2 } }, { 1, { 0 } } },
    { { 3, { 3, 2, 0 } }, { 1, { 1 } } },
    { { 2, { 2, 4001 } }, { 1, { 1 } } },
    { { 3, { 3, 0, 2 } }, { 1, { 1 } } }, /* from here on over nothing */
    { { 1, { 0 } }, { 0, { 0 } } },
};

static void reduction_case(const sample *form, const char *what, const reduction *r, gn_dtype d, fill f) {
    sample s = *form;
    s.what = what;
    s.axes = r->axes;
    s.flag = (test_random() & 1) != 0;
    add_input(&s, d, r->shape, f, VIEW_ANY);
    run(&s);
}

/* `chooses`: max and its like, which over nothing are an error. */
static void reduction_cases(sample form, bool chooses, fill special) {
    /* each value comes to each place of a row */
    static const reduction specials = { { 2, { SPECIAL_FLOATS, 5 } }, { 1, { 1 } } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(reductions); k++) {
            bool over_nothing = chooses && k >= TEST_COUNT(reductions) - 2;
            form.failure = over_nothing ? GN_BAD_SHAPE : GN_OK;
            reduction_case(&form, "axes", &reductions[k], d, FILL_SMALL);
            reduction_case(&form, "axes", &reductions[k], d, ref_is_float(d) ? FILL_POSITIVE : FILL_WIDE);
        }
        form.failure = GN_OK;
        if (takes(d)) reduction_case(&form, "special values", &specials, d, special);
    }
}

static void cases_sum(void) {
    reduction_cases((sample){ .build = build_sum, .refer = refer_sum }, false, FILL_SUMMABLE);
}
static void cases_mean(void) {
    reduction_cases((sample){ .build = build_mean, .refer = refer_mean }, false, FILL_SUMMABLE);
}
static void cases_max(void) { reduction_cases((sample){ .build = build_max, .refer = refer_max }, true, FILL_SPECIAL); }
static void cases_min(void) { reduction_cases((sample){ .build = build_min, .refer = refer_min }, true, FILL_SPECIAL); }
static void cases_argmax(void) {
    reduction_cases((sample){ .build = build_argmax, .refer = refer_argmax }, true, FILL_SPECIAL);
}

/* ---- rows ---- */

static gn_tensor build_softmax(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return s->flag ? gn_log_softmax(in[0], (int)s->p[0]) : gn_softmax(in[0], (int)s->p[0]);
}

static ref *refer_softmax(const sample *s, ref *const *in) { return ref_softmax(in[0], (int)s->p[0], s->flag); }

static void softmax_cases(bool logarithm) {
    static const gn_shape shapes[] = {
        { 1, { 1 } },
        { 1, { 7 } },
        { 2, { 13, 11 } },
        { 3, { 4, 5, 6 } },
        { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } },
        { 2, { 0, 3 } },
        { 2, { 3, 0 } },
        { 2, { 3, 1031 } },
        { 2, { SPECIAL_FLOATS, 5 } },
    };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(shapes); k++) {
            for (int axis = -1; axis<shapes[k].rank; axis += shapes[k].rank> 4 ? 3 : 1) {
                sample s = {
                    .what = "axis", .build = build_softmax, .refer = refer_softmax, .p = { axis }, .flag = logarithm
                };
                bool special = k == TEST_COUNT(shapes) - 1;
                add_input(&s, d, shapes[k], special ? FILL_SUMMABLE : FILL_SMALL, special ? VIEW_NONE : VIEW_ANY);
                run(&s);
            }
        }
    }
}

static void cases_softmax(void) { softmax_cases(false); }
static void cases_log_softmax(void) { softmax_cases(true); }

/* in: a, then gain and bias as p[0]'s bits 1 and 2 say */
static gn_tensor build_layernorm(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_layernorm(in[0], s->p[0] & 1 ? in[1] : GN_NONE, s->p[0] & 2 ? in[s->n - 1] : GN_NONE, s->d[0]);
}

static ref *refer_layernorm(const sample *s, ref *const *in) {
    return ref_layernorm(in[0], s->p[0] & 1 ? in[1] : NULL, s->p[0] & 2 ? in[s->n - 1] : NULL, s->d[0]);
}

static void cases_layernorm(void) {
    static const gn_shape shapes[] = { { 1, { 7 } },       { 2, { 13, 11 } },
                                       { 3, { 4, 5, 6 } }, { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } },
                                       { 2, { 0, 3 } },    { 2, { 3, 0 } },
                                       { 2, { 2, 1031 } }, { 2, { 3, 1 } } };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(shapes) * 4; k++) {
            sample s = { .what = "gain and bias",
                         .build = build_layernorm,
                         .refer = refer_layernorm,
                         .p = { k % 4 },
                         .d = { 1e-3 } };
            gn_shape shape = shapes[k / 4], row = GN_SHAPE(shape.dims[shape.rank - 1]);
            add_input(&s, d, shape, FILL_SMALL, VIEW_ANY);
            for (int i = 0; i < (k & 1) + (k >> 1 & 1); i++) add_input(&s, d, row, FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- linear algebra ---- */

static gn_tensor build_matmul(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_matmul(in[0], in[1]);
}
static ref *refer_matmul(const sample *s, ref *const *in) {
    (void)s;
    return ref_matmul(in);
}

static const gn_shape matmul_shapes[][2] = {
    { { 2, { 1, 1 } }, { 2, { 1, 1 } } },
    { { 2, { 3, 5 } }, { 2, { 5, 7 } } },
    { { 1, { 5 } }, { 1, { 5 } } },
    { { 1, { 5 } }, { 2, { 5, 3 } } },
    { { 2, { 3, 5 } }, { 1, { 5 } } },
    { { 1, { 5 } }, { 3, { 2, 5, 3 } } },
    { { 3, { 2, 3, 5 } }, { 1, { 5 } } },
    { { 3, { 4, 3, 5 } }, { 2, { 5, 2 } } },
    { { 2, { 3, 5 } }, { 3, { 4, 5, 2 } } },
    { { 4, { 2, 1, 3, 5 } }, { 3, { 4, 5, 2 } } },
    { { 3, { 1, 3, 5 } }, { 4, { 3, 4, 5, 2 } } },
    { { 8, { 1, 2, 1, 2, 1, 2, 2, 3 } }, { 8, { 2, 1, 1, 1, 2, 2, 3, 2 } } },
    { { 2, { 0, 5 } }, { 2, { 5, 3 } } },
    { { 2, { 3, 0 } }, { 2, { 0, 4 } } },
    { { 3, { 0, 3, 5 } }, { 3, { 1, 5, 2 } } },
    { { 2, { 37, 65 } }, { 2, { 65, 51 } } },
    { { 2, { 1, 1031 } }, { 2, { 1031, 3 } } },
    { { 2, { 9, 300 } }, { 2, { 300, 10 } } },
};

static void matmul_cases(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(matmul_shapes); k++) {
            for (view v = VIEW_NONE; v <= VIEW_ANY; v += VIEW_ANY) {
                sample s = { .what = "shape", .build = build_matmul, .refer = refer_matmul };
                fill f = v == VIEW_NONE && !ref_is_float(d) ? FILL_WIDE : FILL_SMALL;
                add_input(&s, d, matmul_shapes[k][0], f, v);
                add_input(&s, d, matmul_shapes[k][1], f, v);
                run(&s);
            }
        }
    }
}

/* On this CPU also with the instruction sets below its own. */
static void cases_matmul(void) {
    static const char *const lower[] = { "avx2", "base" };
    matmul_cases();
    for (int k = 0; running.on == ON_CPU && !getenv("GENIE_ISA") && k < TEST_COUNT(lower); k++) {
        setenv("GENIE_ISA", lower[k], 1);
        matmul_cases();
        unsetenv("GENIE_ISA");
    }
}

static gn_tensor build_linear(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_linear(in[0], in[1], s->n == 3 ? in[2] : GN_NONE);
}

static ref *refer_linear(const sample *s, ref *const *in) { return ref_linear(in, s->n); }

static void cases_linear(void) {
    static const gn_shape shapes[][2] = {
        { { 1, { 5 } }, { 2, { 5, 3 } } },        { { 2, { 3, 5 } }, { 2, { 5, 7 } } },
        { { 3, { 2, 3, 5 } }, { 2, { 5, 1 } } },  { { 8, { 1, 2, 1, 2, 1, 2, 2, 3 } }, { 2, { 3, 4 } } },
        { { 2, { 0, 5 } }, { 2, { 5, 3 } } },     { { 2, { 3, 0 } }, { 2, { 0, 4 } } },
        { { 2, { 33, 70 } }, { 2, { 70, 41 } } },
    };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < 2 * TEST_COUNT(shapes); k++) {
            sample s = { .what = k % 2 ? "with bias" : "without bias", .build = build_linear, .refer = refer_linear };
            add_input(&s, d, shapes[k / 2][0], FILL_SMALL, VIEW_ANY);
            add_input(&s, d, shapes[k / 2][1], FILL_SMALL, VIEW_ANY);
            if (k % 2) add_input(&s, d, GN_SHAPE(shapes[k / 2][1].dims[1]), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- movement ---- */

/* One case for each dtype; `f` is cheap to move exactly whatever it holds. */
static void move_cases(sample form, gn_shape shape) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        sample s = form;
        add_input(&s, d, shape, FILL_SPECIAL, VIEW_ANY);
        run(&s);
    }
}

static gn_tensor build_reshape(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_reshape(in[0], s->shape);
}
static ref *refer_reshape(const sample *s, ref *const *in) { return ref_reshape(in[0], s->shape); }

static void cases_reshape(void) {
    static const gn_shape shapes[][2] = {
        { { 0, { 0 } }, { 1, { 1 } } },
        { { 1, { 1 } }, { 0, { 0 } } },
        { { 2, { 3, 4 } }, { 1, { 12 } } },
        { { 2, { 3, 4 } }, { 3, { 2, -1, 3 } } },
        { { 1, { 48 } }, { 8, { 1, 2, 1, 3, 2, 1, 2, 2 } } },
        { { 2, { 0, 4 } }, { 3, { 5, 0, 2 } } },
        { { 3, { 4, 5, 6 } }, { 2, { -1, 10 } } },
        { { 2, { 0, 4 } }, { 2, { -1, 4 } } },
    };
    for (int k = 0; k < TEST_COUNT(shapes) * 3; k++) {
        move_cases(
            (sample){ .what = "reshape", .build = build_reshape, .refer = refer_reshape, .shape = shapes[k / 3][1] },
            shapes[k / 3][0]);
    }
}

static gn_tensor build_permute(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return s->flag ? gn_transpose(in[0], s->axes.axis[0], s->axes.axis[1]) : gn_permute(in[0], s->axes);
}

static ref *refer_permute(const sample *s, ref *const *in) {
    return s->flag ? ref_transpose(in[0], s->axes.axis[0], s->axes.axis[1]) : ref_permute(in[0], s->axes);
}

static void cases_permute(void) {
    static const reduction orders[] = {
        { { 1, { 7 } }, { 1, { 0 } } },
        { { 2, { 3, 4 } }, { 2, { 1, 0 } } },
        { { 3, { 3, 4, 5 } }, { 3, { 1, 2, 0 } } },
        { { 3, { 3, 4, 5 } }, { 3, { -1, 0, -2 } } },
        { { 3, { 3, 0, 5 } }, { 3, { 2, 0, 1 } } },
        { { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } }, { 8, { 7, 1, 3, 0, 6, 2, 5, 4 } } },
    };
    static const int pairs[][2] = { { 0, 1 }, { 2, 2 }, { -1, 0 }, { 1, -1 } };
    for (int k = 0; k < TEST_COUNT(orders); k++) {
        move_cases(
            (sample){ .what = "permute", .build = build_permute, .refer = refer_permute, .axes = orders[k].axes },
            orders[k].shape);
    }
    for (int k = 0; k < TEST_COUNT(pairs); k++) {
        gn_axes axes = { 2, { pairs[k][0], pairs[k][1] } };
        move_cases(
            (sample){ .what = "transpose", .build = build_permute, .refer = refer_permute, .axes = axes, .flag = true },
            GN_SHAPE(3, 4, 5));
    }
}

static gn_tensor build_slice(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_slice(in[0], (int)s->p[0], s->p[1], s->p[2], s->p[3]);
}

static ref *refer_slice(const sample *s, ref *const *in) {
    return ref_slice(in[0], (int)s->p[0], s->p[1], s->p[2], s->p[3]);
}

static const int64_t slices[][3] = {
    /* begin, end, step, of an axis of 7 */
    { 0, 7, 1 },        { 0, GN_END, 1 },     { 2, 5, 1 },           { 1, GN_END, 2 },
    { -3, GN_END, 1 },  { 0, -2, 1 },         { -100, 100, 3 },      { 5, 2, 1 },
    { 3, 3, 1 },        { GN_END, -100, -1 }, { 6, 0, -2 },          { -1, -8, -1 },
    { 4, 1, -1 },       { 1, 4, -1 },         { 0, GN_END, GN_END }, { GN_END, INT64_MIN, INT64_MIN },
    { 100, GN_END, 1 }, { 2, GN_END, 100 },   { -1, INT64_MIN, -3 },
};

static void cases_slice(void) {
    for (int k = 0; k < TEST_COUNT(slices); k++) {
        sample s = { .what = "slice",
                     .build = build_slice,
                     .refer = refer_slice,
                     .p = { 0, slices[k][0], slices[k][1], slices[k][2] } };
        move_cases(s, GN_SHAPE(7));
        s.p[0] = -2;
        move_cases(s, GN_SHAPE(3, 7, 2));
    }
    for (int k = 0; k < 40; k++) {
        sample s = { .what = "random slice", .build = build_slice, .refer = refer_slice };
        s.p[0] = test_random_int(-3, 2);
        s.p[1] = test_random_int(-9, 9);
        s.p[2] = test_random_int(-9, 9);
        s.p[3] = test_random_int(1, 4) * (k % 2 ? 1 : -1);
        move_cases(s, k % 8 ? GN_SHAPE(5, 6, 7) : GN_SHAPE(0, 6, 0));
    }
}

static gn_tensor build_slice_put(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_slice_put(in[0], in[1], (int)s->p[0], s->p[1], s->p[2], s->p[3]);
}

static ref *refer_slice_put(const sample *s, ref *const *in) {
    return ref_slice_put(in[0], in[1], (int)s->p[0], s->p[1], s->p[2], s->p[3]);
}

static void cases_slice_put(void) {
    static const gn_shape shapes[] = { { 1, { 7 } }, { 3, { 3, 7, 2 } }, { 3, { 0, 7, 2 } } };
    for (int k = 0; k < TEST_COUNT(slices) * TEST_COUNT(shapes); k++) {
        gn_shape whole = shapes[k % TEST_COUNT(shapes)], part = whole;
        const int64_t *cut = slices[k / TEST_COUNT(shapes)];
        int axis = whole.rank == 1 ? -1 : 1;
        ref_slice_first(7, cut[0], cut[1], cut[2], &part.dims[whole.rank == 1 ? 0 : 1]);
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "slice_put",
                         .build = build_slice_put,
                         .refer = refer_slice_put,
                         .p = { axis, cut[0], cut[1], cut[2] } };
            add_input(&s, d, whole, FILL_SPECIAL, VIEW_ANY);
            add_input(&s, d, part, FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

static gn_tensor build_concat(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_concat(in, s->n, (int)s->p[0]);
}
static ref *refer_concat(const sample *s, ref *const *in) { return ref_concat(in, s->n, (int)s->p[0]); }

static void cases_concat(void) {
    static const int parts[] = { 1, 2, 3, 5, 2 };
    for (int k = 0; k < TEST_COUNT(parts) * 6; k++) {
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "concat", .build = build_concat, .refer = refer_concat, .p = { k % 6 - 3 } };
            for (int i = 0; i < parts[k / 6]; i++) {
                gn_shape shape = GN_SHAPE(3, 4, 2);
                shape.dims[k % 3] = k / 6 == 4 ? 2 * (1 - i) : test_random_int(0, 4); /* k % 6 - 3 names axis k % 3 */
                add_input(&s, d, shape, FILL_SPECIAL, VIEW_ANY);
            }
            run(&s);
        }
    }
}

static gn_tensor build_broadcast(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_broadcast(in[0], s->shape);
}
static ref *refer_broadcast(const sample *s, ref *const *in) { return ref_broadcast(in[0], s->shape); }

static void cases_broadcast(void) {
    static const gn_shape shapes[][2] = {
        { { 0, { 0 } }, { 2, { 3, 4 } } },
        { { 1, { 1 } }, { 1, { 7 } } },
        { { 1, { 4 } }, { 2, { 3, 4 } } },
        { { 2, { 3, 1 } }, { 3, { 2, 3, 5 } } },
        { { 2, { 3, 4 } }, { 2, { 3, 4 } } },
        { { 1, { 1 } }, { 2, { 3, 0 } } },
        { { 2, { 2, 3 } }, { 8, { 2, 1, 2, 1, 2, 1, 2, 3 } } },
        { { 0, { 0 } }, { 0, { 0 } } },
    };
    for (int k = 0; k < TEST_COUNT(shapes) * 2; k++) {
        sample s = {
            .what = "broadcast", .build = build_broadcast, .refer = refer_broadcast, .shape = shapes[k / 2][1]
        };
        move_cases(s, shapes[k / 2][0]);
    }
}

/* ---- indexing ---- */

static gn_dtype index_dtype(int k) { return k % 2 ? GN_I32 : GN_I64; }

static gn_tensor build_gather(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_gather(in[0], (int)s->p[0], in[1]);
}
static ref *refer_gather(const sample *s, ref *const *in) { return ref_gather(in[0], (int)s->p[0], in[1]); }

typedef struct indexing {
    gn_shape a;
    int axis;
    gn_shape index;
} indexing;

static const indexing indexings[] = {
    { { 1, { 7 } }, 0, { 1, { 11 } } },
    { { 1, { 7 } }, -1, { 1, { 0 } } },
    { { 2, { 5, 4 } }, 0, { 2, { 9, 4 } } },
    { { 2, { 5, 4 } }, 1, { 2, { 3, 6 } } },
    { { 3, { 3, 4, 5 } }, -2, { 3, { 2, 9, 4 } } },
    { { 3, { 3, 4, 5 } }, 2, { 3, { 3, 4, 1 } } },
    { { 3, { 3, 0, 5 } }, 1, { 3, { 3, 0, 5 } } },
    { { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } }, 3, { 8, { 1, 2, 1, 5, 2, 1, 1, 3 } } },
};

static void cases_gather(void) {
    for (int k = 0; k < TEST_COUNT(indexings) * 2; k++) {
        const indexing *x = &indexings[k / 2];
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "gather", .build = build_gather, .refer = refer_gather, .p = { x->axis } };
            add_input(&s, d, x->a, FILL_SPECIAL, VIEW_ANY);
            add_limited(&s, index_dtype(k), x->index, FILL_INDEX, VIEW_ANY,
                        x->a.dims[ref_axis(s.in[0].value, x->axis)]);
            run(&s);
        }
    }
}

static gn_tensor build_embedding(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_embedding(in[0], in[1]);
}
static ref *refer_embedding(const sample *s, ref *const *in) {
    (void)s;
    return ref_embedding(in[0], in[1]);
}

static const gn_shape id_shapes[] = {
    { 0, { 0 } }, { 1, { 5 } }, { 1, { 0 } }, { 2, { 3, 4 } }, { 7, { 1, 2, 1, 3, 2, 1, 2 } }
};

static void cases_embedding(void) {
    for (int k = 0; k < TEST_COUNT(id_shapes) * 2; k++) {
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "embedding", .build = build_embedding, .refer = refer_embedding };
            add_input(&s, d, GN_SHAPE(9, k == 3 ? 0 : 5), FILL_SPECIAL, VIEW_ANY);
            add_limited(&s, index_dtype(k), id_shapes[k / 2], FILL_INDEX, VIEW_ANY, 9);
            run(&s);
        }
    }
}

static gn_tensor build_one_hot(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_one_hot(in[0], s->p[0], s->dtype);
}
static ref *refer_one_hot(const sample *s, ref *const *in) { return ref_one_hot(in[0], s->p[0], s->dtype); }

static void cases_one_hot(void) {
    for (int k = 0; k < TEST_COUNT(id_shapes) * 2; k++) {
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "one_hot", .build = build_one_hot, .refer = refer_one_hot, .dtype = d, .p = { 6 } };
            add_limited(&s, index_dtype(k), id_shapes[k / 2], FILL_INDEX, VIEW_ANY, 6);
            run(&s);
        }
    }
}

static gn_tensor build_scatter_add(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_scatter_add(in[0], (int)s->p[0], in[1], in[2]);
}

static ref *refer_scatter_add(const sample *s, ref *const *in) {
    return ref_scatter_add(in[0], (int)s->p[0], in[1], in[2]);
}

static void cases_scatter_add(void) {
    for (int k = 0; k < TEST_COUNT(indexings) * 2; k++) {
        const indexing *x = &indexings[k / 2];
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            if (!takes(d)) continue;
            sample s = {
                .what = "scatter_add", .build = build_scatter_add, .refer = refer_scatter_add, .p = { x->axis }
            };
            add_input(&s, d, x->a, ref_is_float(d) ? FILL_SMALL : FILL_WIDE, VIEW_ANY);
            add_limited(&s, index_dtype(k), x->index, FILL_INDEX, VIEW_ANY,
                        x->a.dims[ref_axis(s.in[0].value, x->axis)]);
            add_input(&s, d, x->index, ref_is_float(d) ? FILL_SMALL : FILL_WIDE, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- losses ---- */

static gn_tensor build_cross_entropy(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_cross_entropy(in[0], in[1]);
}
static ref *refer_cross_entropy(const sample *s, ref *const *in) {
    (void)s;
    return ref_cross_entropy(in[0], in[1]);
}

static void cases_cross_entropy(void) {
    for (int k = 0; k < TEST_COUNT(id_shapes) * 2; k++) {
        for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
            sample s = { .what = "cross_entropy", .build = build_cross_entropy, .refer = refer_cross_entropy };
            add_input(&s, d, ref__with_axis(id_shapes[k / 2], 7), FILL_SMALL, VIEW_ANY);
            add_limited(&s, index_dtype(k), id_shapes[k / 2], FILL_INDEX, VIEW_ANY, 7);
            run(&s);
        }
    }
}

static gn_tensor build_mse_loss(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_mse_loss(in[0], in[1]);
}
static ref *refer_mse_loss(const sample *s, ref *const *in) {
    (void)s;
    return ref_mse_loss(in);
}

static void cases_mse_loss(void) {
    for (int k = 0; k < TEST_COUNT(unary_shapes); k++) {
        for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
            sample s = { .what = "mse_loss", .build = build_mse_loss, .refer = refer_mse_loss };
            add_input(&s, d, unary_shapes[k], FILL_SMALL, VIEW_ANY);
            add_input(&s, d, k % 2 ? unary_shapes[k] : GN_SHAPE(1), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- quantised weights: p is the format, the first input of scales, its rows, and what the op is given ---- */

enum { QUANT_SCALES = 1, QUANT_ZEROS = 2, QUANT_BIAS = 4 };

static const struct {
    gn_quant format;
    int64_t n, k, group, rows;
} quants[] = {
    { GN_QUANT_Q4_0, 5, 96, 0, 0 },      { GN_QUANT_Q4_1, 3, 64, 0, 0 },           { GN_QUANT_Q5_0, 4, 32, 0, 0 },
    { GN_QUANT_Q5_1, 70, 64, 0, 0 },     { GN_QUANT_Q8_0, 6, 160, 0, 0 },          { GN_QUANT_Q4_K, 3, 512, 0, 0 },
    { GN_QUANT_Q5_K, 5, 256, 0, 0 },     { GN_QUANT_Q6_K, 4, 512, 0, 0 },          { GN_QUANT_INT8, 4, 96, 32, 1 },
    { GN_QUANT_INT8, 9, 35, 7, 1 },      { GN_QUANT_INT8, 1, 1100, 1100, 1 },      { GN_QUANT_INT4, 4, 256, 128, 1 },
    { GN_QUANT_INT4, 3, 30, 6, 1 },      { GN_QUANT_INT4, 65, 64, 32, 1 },         { GN_QUANT_FP8_E4M3, 7, 48, 48, 7 },
    { GN_QUANT_FP8_E4M3, 5, 40, 40, 1 }, { GN_QUANT_FP8_E4M3, 7, 64, 32, 3 },      { GN_QUANT_FP8_E4M3, 2, 13, 13, 2 },
    { GN_QUANT_Q4_0, 33, 2080, 0, 0 },   { GN_QUANT_INT8, 3, 64, 16, 1 },          { GN_QUANT_Q8_0, 0, 32, 0, 0 },
    { GN_QUANT_INT8, 37, 1280, 128, 1 }, { GN_QUANT_INT8, 21, 320, 64, 1 },        { GN_QUANT_INT8, 18, 272, 16, 1 },
    { GN_QUANT_INT8, 3, 16640, 128, 1 }, { GN_QUANT_INT4, 37, 1152, 128, 1 },      { GN_QUANT_INT4, 19, 320, 64, 1 },
    { GN_QUANT_INT4, 18, 2176, 32, 1 },  { GN_QUANT_FP8_E4M3, 33, 1152, 128, 16 }, { GN_QUANT_FP8_E4M3, 17, 96, 48, 1 },
    { GN_QUANT_INT8, 5, 1536, 192, 1 },  { GN_QUANT_INT8, 5, 1280, 1280, 1 },      { GN_QUANT_INT4, 3, 2560, 1280, 1 },
    { GN_QUANT_INT4, 3, 16640, 128, 1 }, { GN_QUANT_FP8_E4M3, 5, 1152, 1152, 5 },
};

static ref_quant quant_of(const sample *s, ref *const *in) {
    int first = (int)s->p[1];
    ref_quant q = { .format = (int)s->p[0], .rows = s->p[2] ? s->p[2] : 1 };
    if (s->p[3] & QUANT_SCALES) q.scales = in[first++];
    if (s->p[3] & QUANT_ZEROS) q.zeros = in[first];
    return q;
}
static gn_quantized quantized_of(const sample *s, const gn_tensor *in, gn_tensor data) {
    int first = (int)s->p[1];
    gn_quantized q = { .format = (gn_quant)s->p[0], .data = data, .rows = s->p[2] };
    if (s->p[3] & QUANT_SCALES) q.scales = in[first++];
    if (s->p[3] & QUANT_ZEROS) q.zeros = in[first];
    return q;
}

/* Of bytes of FP8 those that are NaN become others. */
static void without_nan(input *in) {
    for (int64_t i = 0; i < in->base->n; i++)
        if ((in->base->i[i] & 127) == 127) in->base->i[i] ^= 1;
    free(in->bytes);
    in->bytes = ref_encode(in->base);
}

/* Bytes of all kinds, but of FP8 no NaN in a sum: they would be all there is to see. */
static void add_quant(sample *s, int k, bool sums) {
    int elements, bytes;
    gn_quant_block(quants[k].format, &elements, &bytes);
    bool plain = quants[k].format == GN_QUANT_FP8_E4M3 && sums;
    add_input(s, test_random_int(0, 1) ? GN_U8 : GN_I8, GN_SHAPE(quants[k].n, quants[k].k / elements * bytes),
              FILL_WIDE, plain ? VIEW_NONE : VIEW_ANY);
    if (plain) without_nan(&s->in[s->n - 1]);
}

static void add_quant_scales(sample *s, int k, int how) {
    static const gn_dtype types[] = { GN_F32, GN_F16, GN_BF16 };
    s->p[0] = quants[k].format, s->p[1] = s->n, s->p[2] = quants[k].rows;
    if (!quants[k].group) return;
    gn_shape shape = GN_SHAPE((quants[k].n + quants[k].rows - 1) / quants[k].rows, quants[k].k / quants[k].group);
    add_input(s, types[how % 3], shape, FILL_POSITIVE, VIEW_ANY);
    s->p[3] = QUANT_SCALES;
    if (how % 2 == 0 || quants[k].format == GN_QUANT_FP8_E4M3) return;
    if (quants[k].format == GN_QUANT_INT4) add_limited(s, GN_U8, shape, FILL_INDEX, VIEW_ANY, 16);
    else add_input(s, GN_I8, shape, FILL_SMALL, VIEW_ANY);
    s->p[3] |= QUANT_ZEROS;
}

static gn_tensor build_linear_quantized(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_linear_quantized(in[0], quantized_of(s, in, in[1]), s->p[3] & QUANT_BIAS ? in[s->n - 1] : GN_NONE);
}
static ref *refer_linear_quantized(const sample *s, ref *const *in) {
    ref_quant q = quant_of(s, in);
    q.data = in[1];
    return ref_linear_quantized(in[0], &q, s->p[3] & QUANT_BIAS ? in[s->n - 1] : NULL);
}
static void cases_linear_quantized(void) {
    static const gn_shape rows[] = { { 0, { 0 } },  { 1, { 1 } }, { 2, { 3, 2 } },
                                     { 1, { 19 } }, { 1, { 0 } }, { 1, { 140 } } };
    static const gn_dtype types[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < TEST_COUNT(quants) * TEST_COUNT(rows); k++) {
        int q = k / TEST_COUNT(rows), how = q + k % TEST_COUNT(rows);
        /* blocks of any bytes have weights that f16 cannot hold: many f16 rows see them as infinity */
        gn_dtype type = types[(k + (quants[q].format >= GN_QUANT_INT8 ? q : 0)) % 3];
        gn_shape x = rows[k % TEST_COUNT(rows)];
        if (x.rank == 1 && x.dims[0] == 140 && quants[q].k > 100) continue;
        x.dims[x.rank++] = quants[q].k;
        sample s = { .what = "product", .build = build_linear_quantized, .refer = refer_linear_quantized };
        add_input(&s, type, x, FILL_SMALL, VIEW_ANY);
        add_quant(&s, q, true);
        add_quant_scales(&s, q, how);
        if (how & 2) {
            add_input(&s, type, GN_SHAPE(quants[q].n), FILL_SMALL, VIEW_ANY);
            s.p[3] |= QUANT_BIAS;
        }
        run(&s);
    }
}

static gn_tensor build_embedding_quantized(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_embedding_quantized(quantized_of(s, in, in[0]), in[1], s->dtype);
}
static ref *refer_embedding_quantized(const sample *s, ref *const *in) {
    ref_quant q = quant_of(s, in);
    q.data = in[0];
    return ref_dequantize(&q, in[1], s->dtype);
}
static gn_tensor build_dequantize(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_dequantize(quantized_of(s, in, in[0]), s->dtype);
}
static ref *refer_dequantize(const sample *s, ref *const *in) {
    ref_quant q = quant_of(s, in);
    q.data = in[0];
    return ref_dequantize(&q, NULL, s->dtype);
}
static void cases_widen(bool by_ids) {
    static const gn_dtype types[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < TEST_COUNT(quants) * 3; k++) {
        sample s = { .what = "rows",
                     .build = by_ids ? build_embedding_quantized : build_dequantize,
                     .refer = by_ids ? refer_embedding_quantized : refer_dequantize,
                     .dtype = types[(k + k / 3) % 3] };
        if (by_ids && !quants[k / 3].n) continue;
        add_quant(&s, k / 3, false);
        if (by_ids)
            add_limited(&s, index_dtype(k), id_shapes[k % TEST_COUNT(id_shapes)], FILL_INDEX, VIEW_ANY,
                        quants[k / 3].n);
        add_quant_scales(&s, k / 3, k);
        run(&s);
    }
}
static void cases_embedding_quantized(void) { cases_widen(true); }
static void cases_dequantize(void) { cases_widen(false); }

/* By gn_apply: gn_quantize makes the scales itself. */
static gn_tensor build_quantize(const sample *s, gn_ctx *g, const gn_tensor *in) {
    return gn_apply(g, 0x73, in, s->n, (const int64_t[3]){ s->p[0], s->p[3], s->p[2] }, 3);
}
static ref *refer_quantize(const sample *s, ref *const *in) {
    ref_quant q = quant_of(s, in);
    gn_shape shape = in[0]->shape;
    if (s->p[0] == GN_QUANT_INT4) shape.dims[1] /= 2;
    return ref_quantize(in[0], &q, shape);
}
static void cases_quantize(void) {
    static const gn_dtype types[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < TEST_COUNT(quants) * 3; k++) {
        if (!quants[k / 3].group) continue;
        sample s = { .what = "bytes", .build = build_quantize, .refer = refer_quantize };
        add_input(&s, types[(k + k / 3) % 3], GN_SHAPE(quants[k / 3].n, quants[k / 3].k), FILL_SMALL, VIEW_ANY);
        for (int64_t i = 0; i < s.in[0].base->n; i++) s.in[0].base->f[i] *= 64;
        free(s.in[0].bytes);
        s.in[0].bytes = ref_encode(s.in[0].base);
        for (int64_t i = 0; i < s.in[0].value->n && s.in[0].value != s.in[0].base; i++) s.in[0].value->f[i] *= 64;
        add_quant_scales(&s, k / 3, k);
        run(&s);
    }
}

/* ---- rows by the weights of their experts ---- */

static gn_tensor build_expert_linear(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_expert_linear(in[0], in[1], in[2], s->n > 3 ? in[3] : GN_NONE);
}
static ref *refer_expert_linear(const sample *s, ref *const *in) { return ref_expert_linear(in, s->n); }

/* Ids from -1 on; every other case repeats rows over the last axis of ids. */
static void cases_expert_linear(void) {
    static const struct {
        gn_shape ids;
        int64_t experts, k, m;
    } forms[] = {
        { { 1, { 1 } }, 1, 1, 1 },
        { { 1, { 7 } }, 3, 5, 4 },
        { { 2, { 5, 2 } }, 4, 33, 70 },
        { { 3, { 2, 3, 2 } }, 2, 6, 65 },
        { { 2, { 90, 2 } }, 5, 40, 10 },
        { { 1, { 0 } }, 3, 5, 4 },
        { { 2, { 3, 2 } }, 4, 0, 5 },
        { { 2, { 3, 2 } }, 4, 5, 0 },
        { { 1, { 3 } }, 0, 5, 4 },
        { { 2, { 4, 3 } }, 300, 9, 8 },
        { { 7, { 1, 2, 1, 1, 2, 1, 2 } }, 3, 4, 3 },
    };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(forms) * 4; k++) {
            gn_shape ids = forms[k / 4].ids, x = ids;
            if (k % 2 == 0) x.rank++;
            x.dims[x.rank - 1] = forms[k / 4].k;
            sample s = { .what = k & 2 ? "with bias" : "without bias",
                         .build = build_expert_linear,
                         .refer = refer_expert_linear };
            add_input(&s, d, x, FILL_SMALL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(forms[k / 4].experts, forms[k / 4].k, forms[k / 4].m), FILL_SMALL, VIEW_ANY);
            add_limited(&s, index_dtype(k), ids, FILL_INDEX, VIEW_NONE, forms[k / 4].experts + 1);
            for (int64_t i = 0; i < s.in[2].base->n; i++) s.in[2].base->i[i]--;
            free(s.in[2].bytes);
            s.in[2].bytes = ref_encode(s.in[2].base);
            if (k & 2) add_input(&s, d, GN_SHAPE(forms[k / 4].experts, forms[k / 4].m), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- windows ---- */

/* flag: with a bias; an input more is the residual */
static gn_tensor build_conv(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_conv_desc d = s->conv;
    if (s->n > 2 + s->flag) d.residual = in[2 + s->flag];
    return gn_conv(in[0], in[1], s->flag ? in[2] : GN_NONE, &d);
}
static ref *refer_conv(const sample *s, ref *const *in) { return ref_conv(in, s->flag, s->n > 2 + s->flag, &s->conv); }

typedef struct conv_form {
    gn_shape x, w;
    gn_conv_desc d;
} conv_form;

static const conv_form conv_forms[] = {
    { { 3, { 2, 3, 9 } }, { 3, { 4, 3, 3 } }, { .groups = 1 } },
    { { 3, { 1, 6, 11 } },
      { 3, { 9, 2, 4 } },
      { .groups = 3, .stride = { 2 }, .dilation = { 3 }, .before = { 2 }, .after = { 5 } } },
    { { 4, { 2, 5, 6, 7 } }, { 4, { 9, 5, 3, 3 } }, { .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 1, 40, 5, 5 } }, { 4, { 33, 40, 1, 1 } }, { .groups = 1 } },
    { { 4, { 1, 2, 5, 1 } }, { 4, { 3, 2, 1, 1 } }, { .stride = { 1, 2 } } },
    { { 4, { 2, 3, 16, 14 } }, { 4, { 16, 3, 7, 7 } }, { .stride = { 2, 2 }, .before = { 3, 3 }, .after = { 3, 3 } } },
    { { 4, { 2, 6, 9, 10 } }, { 4, { 6, 1, 3, 3 } }, { .groups = 6, .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 1, 4, 13, 35 } },
      { 4, { 8, 1, 5, 3 } },
      { .groups = 4, .stride = { 2, 3 }, .before = { 2, 0 }, .after = { 1, 1 } } },
    { { 4, { 1, 8, 9, 9 } },
      { 4, { 8, 4, 3, 3 } },
      { .groups = 2, .stride = { 1, 2 }, .dilation = { 2, 1 }, .before = { -1, 2 }, .after = { 0, -2 } } },
    { { 5, { 1, 2, 4, 5, 6 } },
      { 5, { 3, 2, 2, 3, 2 } },
      { .stride = { 1, 2, 1 }, .before = { 1, 0, 1 }, .after = { 0, 1, 1 } } },
    { { 5, { 2, 3, 3, 4, 5 } }, { 5, { 3, 1, 2, 2, 3 } }, { .groups = 3, .dilation = { 1, 2, 1 } } },
    { { 4, { 1, 300, 3, 3 } }, { 4, { 2, 300, 2, 2 } }, { .groups = 1 } },
    { { 4, { 1, 264, 3, 4 } }, { 4, { 40, 264, 3, 3 } }, { .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 3, { 2, 4, 7 } }, { 3, { 4, 3, 3 } }, { .transposed = true } },
    { { 3, { 1, 4, 7 } },
      { 3, { 4, 5, 2 } },
      { .transposed = true, .stride = { 5 }, .before = { 1 }, .extra = { 2 } } },
    { { 4, { 2, 6, 5, 4 } },
      { 4, { 6, 4, 3, 3 } },
      { .transposed = true, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 }, .extra = { 1, 1 } } },
    { { 4, { 1, 6, 4, 5 } },
      { 4, { 6, 1, 4, 4 } },
      { .transposed = true, .groups = 6, .stride = { 2, 2 }, .before = { 1, 0 }, .after = { 1, 2 } } },
    { { 4, { 1, 6, 4, 5 } },
      { 4, { 6, 7, 3, 2 } },
      { .transposed = true, .groups = 2, .stride = { 3, 2 }, .dilation = { 2, 3 }, .after = { -2, 1 } } },
    { { 5, { 1, 2, 2, 3, 4 } },
      { 5, { 2, 3, 2, 2, 2 } },
      { .transposed = true, .stride = { 2, 1, 2 }, .extra = { 0, 0, 1 } } },
    { { 4, { 1, 2, 40, 300 } }, { 4, { 2, 1, 3, 3 } }, { .groups = 2, .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 2, 18, 9, 21 } }, { 4, { 14, 9, 3, 3 } }, { .groups = 2, .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 2, 64, 5, 8 } }, { 4, { 72, 64, 3, 3 } }, { .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 3, 40, 8, 8 } }, { 4, { 24, 40, 3, 3 } }, { .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } } },
    { { 4, { 2, 24, 5, 6 } }, { 4, { 40, 24, 3, 2 } }, { .before = { 1, 0 }, .after = { 1, 1 } } },
    { { 4, { 2, 128, 6, 5 } },
      { 4, { 20, 64, 2, 3 } },
      { .groups = 2, .dilation = { 2, 1 }, .before = { 2, 1 }, .after = { 1, 2 } } },
    { { 3, { 2, 64, 21 } }, { 3, { 16, 64, 5 } }, { .stride = { 3 }, .before = { 2 }, .after = { 2 } } },
    { { 4, { 1, 64, 5, 6 } },
      { 4, { 64, 24, 3, 3 } },
      { .transposed = true, .dilation = { 1, 2 }, .before = { 1, 1 }, .after = { 0, 1 } } },
    { { 5, { 1, 16, 3, 5, 4 } }, { 5, { 24, 16, 2, 3, 3 } }, { .before = { 0, 1, 1 }, .after = { 1, 1, 0 } } },
    { { 3, { 0, 3, 9 } }, { 3, { 4, 3, 3 } }, { .groups = 1 } },
    { { 3, { 2, 0, 9 } }, { 3, { 4, 0, 3 } }, { .groups = 1 } },
    { { 3, { 2, 3, 0 } }, { 3, { 4, 3, 3 } }, { .before = { 2 }, .after = { 1 } } },
};

static void cases_conv(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(conv_forms) * 4; k++) {
            const conv_form *f = &conv_forms[k / 4];
            gn_shape out = f->x;
            sample s = { .what = "window", .build = build_conv, .refer = refer_conv, .flag = k & 1, .conv = f->d };
            out.dims[1] = f->d.transposed ? f->w.dims[1] * (f->d.groups ? f->d.groups : 1) : f->w.dims[0];
            for (int i = 2; i < out.rank; i++) out.dims[i] = ref_conv_size(&f->d, i - 2, f->x.dims[i], f->w.dims[i]);
            if (k % 4 == 3) {
                s.conv.clamps = true;
                s.conv.least = -0.75;
                s.conv.most = d == GN_F32 ? INFINITY : 3;
            }
            add_input(&s, d, f->x, FILL_SMALL, VIEW_ANY);
            add_input(&s, d, f->w, FILL_SMALL, VIEW_ANY);
            if (s.flag) add_input(&s, d, GN_SHAPE(out.dims[1]), FILL_SMALL, VIEW_ANY);
            if (k & 2) add_input(&s, d, out, FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* What one convolution gives the next may lie in another order. */
static gn_tensor build_conv_chain(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_conv(gn_conv(in[0], in[1], s->flag ? in[3] : GN_NONE, &s->conv), in[2], GN_NONE, &s->conv);
}
static ref *refer_conv_chain(const sample *s, ref *const *in) {
    ref *first[] = { in[0], in[1], s->flag ? in[3] : NULL };
    ref *second[] = { ref_conv(first, s->flag, false, &s->conv), in[2] };
    return ref_conv(second, false, false, &s->conv);
}
static void cases_conv_chain(void) {
    static const conv_form forms[] = {
        { { 4, { 2, 16, 5, 6 } }, { 4, { 24, 16, 3, 3 } }, { .before = { 1, 1 }, .after = { 1, 1 } } },
        { { 4, { 1, 64, 4, 4 } }, { 4, { 64, 64, 1, 1 } }, { .clamps = true, .least = -20, .most = 30 } },
        { { 3, { 2, 64, 300 } }, { 3, { 72, 64, 3 } }, { .stride = { 2 }, .before = { 2 }, .after = { 1 } } },
    };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(forms) * 2; k++) {
            const conv_form *f = &forms[k / 2];
            gn_shape w2 = f->w;
            sample s = { .what = "chain", .build = build_conv_chain, .refer = refer_conv_chain, .flag = k & 1 };
            s.conv = f->d;
            w2.dims[1] = f->w.dims[0];
            w2.dims[0] = 40;
            add_input(&s, d, f->x, FILL_SMALL, VIEW_ANY);
            add_input(&s, d, f->w, FILL_SMALL, VIEW_ANY);
            add_input(&s, d, w2, FILL_SMALL, VIEW_ANY);
            if (s.flag) add_input(&s, d, GN_SHAPE(f->w.dims[0]), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
}

static gn_tensor build_pool(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_pool(in[0], &s->pool);
}
static ref *refer_pool(const sample *s, ref *const *in) { return ref_pool(in[0], &s->pool); }

static void cases_pool(void) {
    static const struct {
        gn_shape x;
        gn_pool_desc d;
    } forms[] = {
        { { 3, { 2, 3, 9 } }, { .kernel = { 3 } } },
        { { 3, { 1, 2, 10 } }, { .kernel = { 3 }, .stride = { 3 }, .before = { 1 }, .after = { 1 }, .ceiling = true } },
        { { 4, { 2, 3, 8, 9 } }, { .kernel = { 2, 2 }, .stride = { 2, 2 } } },
        { { 4, { 1, 5, 13, 38 } }, { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } } },
        { { 4, { 1, 3, 7, 8 } },
          { .kernel = { 3, 4 }, .stride = { 2, 3 }, .before = { 2, 1 }, .after = { 2, 3 }, .ceiling = true } },
        { { 4, { 1, 2, 9, 9 } }, { .kernel = { 2, 3 }, .dilation = { 3, 2 }, .before = { 1, 0 }, .stride = { 1, 2 } } },
        { { 4, { 2, 2, 6, 70 } }, { .kernel = { 1, 5 }, .before = { 0, 2 }, .after = { 0, 2 } } },
        { { 5, { 1, 2, 4, 5, 6 } }, { .kernel = { 2, 3, 2 }, .stride = { 2, 1, 2 }, .before = { 1, 1, 0 } } },
        { { 4, { 2, 3, 7, 10 } }, { .kernel = { 3, 4 }, .adaptive = true } },
        { { 4, { 1, 3, 2, 3 } }, { .kernel = { 5, 3 }, .adaptive = true } },
        { { 4, { 1, 4, 7, 7 } }, { .kernel = { 7, 7 } } },
        { { 3, { 0, 3, 9 } }, { .kernel = { 3 } } },
    };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(forms) * 5; k++) {
            sample s = { .what = "window", .build = build_pool, .refer = refer_pool, .pool = forms[k / 5].d };
            s.pool.kind = k % 5 < 4 ? (gn_pool_kind)(k % 5) : GN_POOL_AVERAGE;
            s.pool.counts_pads = k % 5 == 4;
            add_input(&s, d, forms[k / 5].x, FILL_SMALL, VIEW_ANY);
            run(&s);
        }
        static const gn_pool_desc near[] = { { .kernel = { 2 } },
                                             { .kernel = { 1 } },
                                             { .kernel = { 3 }, .before = { 2 }, .after = { 2 } },
                                             { .kernel = { 2 }, .dilation = { 3 }, .before = { 3 }, .after = { 2 } } };
        for (int k = 0; takes(d) && k < 2 * TEST_COUNT(near); k++) {
            sample s = { .what = "special values", .build = build_pool, .refer = refer_pool, .pool = near[k / 2] };
            s.pool.kind = k % 2 ? GN_POOL_INDEX : GN_POOL_MAX;
            add_input(&s, d, GN_SHAPE(1, 1, SPECIAL_FLOATS), FILL_SPECIAL, VIEW_NONE);
            run(&s);
        }
    }
}

static gn_tensor build_interpolate(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_interpolate(in[0], s->axes, s->shape, &s->interpolate);
}
static ref *refer_interpolate(const sample *s, ref *const *in) {
    return ref_interpolate(in[0], s->axes, s->shape, &s->interpolate);
}

#define MAPS(...) .places = GN_INTERPOLATE_MAPPED, .map = { __VA_ARGS__ }
static const struct {
    gn_shape x;
    gn_axes axes;
    gn_shape sizes;
    gn_interpolate_desc d;
} interpolate_forms[] = {
    { { 1, { 7 } }, { 1, { 0 } }, { 1, { 19 } }, { .rounding = GN_INTERPOLATE_HALF_UP } },
    { { 3, { 2, 3, 9 } }, { 1, { -1 } }, { 1, { 4 } }, { .places = GN_INTERPOLATE_EDGES } },
    { { 4, { 2, 3, 5, 6 } }, { 2, { 2, 3 } }, { 2, { 10, 12 } }, { .rounding = GN_INTERPOLATE_FLOOR } },
    { { 4, { 1, 2, 13, 33 } }, { 2, { 2, 3 } }, { 2, { 6, 41 } }, { .rounding = GN_INTERPOLATE_CEIL } },
    { { 4, { 2, 3, 5, 6 } }, { 2, { 2, 3 } }, { 2, { 7, 11 } }, { .places = GN_INTERPOLATE_CORNERS } },
    { { 4, { 1, 2, 20, 31 } }, { 2, { 2, 3 } }, { 2, { 6, 7 } }, { .stretch = { 20 / 6.0, 31 / 7.0 } } },
    { { 4, { 1, 2, 20, 31 } },
      { 2, { 2, 3 } },
      { 2, { 6, 7 } },
      { .stretch = { 20 / 6.0, 31 / 7.0 }, .inside = true } },
    { { 4, { 2, 5, 6, 3 } }, { 2, { 1, 2 } }, { 2, { 8, 9 } }, { .sets_cubic = true, .cubic = -0.5, .inside = true } },
    { { 4, { 2, 5, 6, 3 } }, { 2, { 0, 2 } }, { 2, { 3, 4 } }, { .places = GN_INTERPOLATE_EDGES } },
    { { 5, { 1, 2, 3, 4, 5 } }, { 3, { 2, 3, 4 } }, { 3, { 6, 3, 11 } }, { .stretch = { 1, 4 / 3.0, 1 } } },
    { { 5, { 2, 3, 2, 4, 2 } }, { 3, { 0, 1, 3 } }, { 3, { 3, 2, 6 } }, { .rounding = GN_INTERPOLATE_HALF_UP } },
    { { 3, { 1, 2, 9 } }, { 1, { 2 } }, { 1, { 8 } }, { MAPS({ 0.25, -2, 3, 6 }) } },
    { { 2, { 3, 1 } }, { 2, { 0, 1 } }, { 2, { 1, 5 } }, { .places = GN_INTERPOLATE_CORNERS } },
    { { 3, { 0, 2, 9 } }, { 1, { 2 } }, { 1, { 8 } }, { .sets_cubic = true } },
    { { 3, { 1, 2, 9 } }, { 1, { 2 } }, { 1, { 0 } }, { .sets_cubic = true } },
};

static void cases_interpolate(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(interpolate_forms) * 3; k++) {
            sample s = { .what = "places", .build = build_interpolate, .refer = refer_interpolate };
            s.interpolate = interpolate_forms[k / 3].d;
            s.interpolate.kind = (gn_interpolate_kind)(k % 3);
            s.axes = interpolate_forms[k / 3].axes;
            s.shape = interpolate_forms[k / 3].sizes;
            s.failure = k % 3 && !ref_is_float(d) ? GN_BAD_DTYPE : GN_OK;
            add_input(&s, d, interpolate_forms[k / 3].x, FILL_SMALL, VIEW_ANY);
            run(&s);
        }
}

/* ---- recurrent networks ---- */

/* Which inputs there are, by REF_CELL_; the lengths come last. */
static bool recurrent_has(const sample *s, int which) {
    return which < REF_CELL_BIAS || (s->flag && (which < REF_CELL_C0 || s->recurrent.cell == GN_CELL_LSTM));
}

static gn_tensor recurrent_of(const sample *s, const gn_tensor *in) {
    gn_recurrent_desc d = s->recurrent;
    gn_tensor *const to[REF_CELL_INPUTS] = { NULL, NULL, NULL, &d.bias, &d.recurrent_bias, &d.h0, &d.c0, &d.peepholes };
    int n = REF_CELL_BIAS;
    for (int k = n; k < REF_CELL_INPUTS; k++)
        if (recurrent_has(s, k)) *to[k] = in[n++];
    if (s->p[0]) d.lengths = in[n];
    return gn_recurrent(in[0], in[1], in[2], &d);
}

static gn_tensor build_recurrent(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return recurrent_of(s, in);
}

/* The weights of the loss: of a shape's elements in order. */
static double recurrent_weight(int64_t k) { return (double)(k * 7 % 11 - 5) / 4; }

/* The gradient by input p[1] of the result's weighted sum. */
static gn_tensor build_recurrent_back(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_info info;
    gn_tensor y = recurrent_of(s, in), by = in[s->p[1]], out;
    if (gn_describe(y, &info) != GN_OK) return y;
    int64_t n = ref_elements(info.shape);
    double *weights = ref__alloc((size_t)n, sizeof *weights);
    for (int64_t k = 0; k < n; k++) weights[k] = recurrent_weight(k);
    gn_tensor w = gn_cast(gn_data_copy(g, GN_F64, info.shape, weights), info.dtype);
    free(weights);
    gn_grad(gn_sum(gn_mul(y, w), GN_ALL_AXES, false), &by, 1, &out);
    return out;
}

/* The layer of a sample; what it holds is freed by free_recurrent. */
static ref_recurrent_layer recurrent_layer(const sample *s, ref *const *in) {
    ref_recurrent_layer l = { .d = s->recurrent, .D = in[1]->shape.dims[0], .T = in[0]->shape.dims[0] };
    int n = 0;
    l.B = in[0]->shape.dims[1], l.I = in[0]->shape.dims[2], l.H = in[2]->shape.dims[2];
    l.G = in[1]->shape.dims[1] / l.H;
    for (int k = 0; k < REF_CELL_INPUTS; k++) {
        if (!recurrent_has(s, k)) continue;
        l.in[k] = ref__alloc((size_t)in[n]->n, sizeof **l.in);
        for (int64_t i = 0; i < in[n]->n; i++) l.in[k][i] = ref__dual_of(in[n]->f[i]);
        n++;
    }
    if (s->p[0]) l.lengths = in[n]->i;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            bool sigmoid = s->recurrent.cell != GN_CELL_RNN && i == 0;
            gn_activation *a = &l.d.act[d][i];
            if (a->kind == GN_ACTIVATION_USUAL) a->kind = sigmoid ? GN_ACTIVATION_SIGMOID : GN_ACTIVATION_TANH;
        }
    return l;
}

static void free_recurrent(ref_recurrent_layer *l) {
    for (int k = 0; k < REF_CELL_INPUTS; k++) free(l->in[k]);
}

static ref *refer_recurrent(const sample *s, ref *const *in) {
    ref_recurrent_layer l = recurrent_layer(s, in);
    ref *y = ref_make_inexact(in[0]->dtype, GN_SHAPE(l.G == 4 ? 2 : 1, l.T + 1, l.D, l.B, l.H));
    ref__dual *out = ref__alloc((size_t)y->n, sizeof *out);
    ref_recurrent_run(&l, out);
    for (int64_t k = 0; k < y->n; k++) ref_put(y, k, out[k].v, out[k].e);
    free(out);
    free_recurrent(&l);
    return y;
}

static ref *refer_recurrent_back(const sample *s, ref *const *in) {
    ref_recurrent_layer l = recurrent_layer(s, in);
    int64_t n = (l.G == 4 ? 2 : 1) * (l.T + 1) * l.D * l.B * l.H;
    int which = (int)s->p[1];
    ref *y = ref_make_inexact(in[0]->dtype, in[which]->shape);
    ref__dual *out = ref__alloc((size_t)n, sizeof *out), sum;
    for (int64_t k = 0; k < y->n; k++) {
        l.in[which][k].d = 1;
        ref_recurrent_run(&l, out);
        l.in[which][k].d = 0;
        sum = ref__dual_of(0);
        for (int64_t i = 0; i < n; i++)
            sum = ref__dual_add(sum, ref__dual_mul(out[i], ref__dual_of((ref_real)recurrent_weight(i))));
        ref_put(y, k, sum.d, sum.m);
    }
    free(out);
    free_recurrent(&l);
    return y;
}

static const struct {
    const char *what;
    int64_t D, T, B, I, H;
    bool all, lengths; /* all inputs; lengths too */
    bool bends;        /* by activations whose slopes jump: no gradient is compared */
    gn_recurrent_desc d;
} recurrent_forms[] = {
    { "bare", 1, 3, 2, 2, 5, false, false, false, { 0 } },
    { "both directions", 2, 4, 3, 2, 3, true, true, false, { 0 } },
    { "in reverse", 1, 4, 5, 1, 4, true, true, false, { .reverse = true, .onnx_gates = true } },
    { "both directions, the other order", 2, 2, 1, 3, 2, true, false, false, { .onnx_gates = true } },
    { "one step of one unit", 2, 1, 6, 2, 1, true, true, false, { 0 } },
    { "coupled or reset first", 1, 3, 2, 2, 3, true, false, false, { .coupled = true, .reset_first = true } },
    { "both directions, reset first", 2, 3, 3, 2, 3, true, true, false, { .reset_first = true } },
    { "many units", 1, 2, 5, 3, 37, true, true, true, { .clip = 0.75, .coupled = true, .reset_first = true } },
    { "smooth activations",
      2,
      2,
      2,
      1,
      2,
      true,
      true,
      false,
      { .act = { { { .kind = GN_ACTIVATION_SOFTSIGN },
                   { .kind = GN_ACTIVATION_SOFTPLUS },
                   { GN_ACTIVATION_SCALED_TANH, 1.5, 0.5 } },
                 { { .kind = GN_ACTIVATION_TANH },
                   { GN_ACTIVATION_AFFINE, 0.5, 0.25 },
                   { .kind = GN_ACTIVATION_SIGMOID } } } } },
    { "other activations",
      2,
      2,
      3,
      2,
      3,
      true,
      false,
      true,
      { .act = { { { GN_ACTIVATION_HARD_SIGMOID, 0.2, 0.5 },
                   { GN_ACTIVATION_LEAKY_RELU, 0.1, 0 },
                   { GN_ACTIVATION_ELU, 0.7, 0 } },
                 { { .kind = GN_ACTIVATION_RELU },
                   { GN_ACTIVATION_ELU, 1.5, 0 },
                   { GN_ACTIVATION_HARD_SIGMOID, 0.5, 0.1 } } } } },
};

/* Form k of a cell; false: it has none, or no gradient. */
static bool recurrent_sample(sample *s, gn_dtype d, int k, gn_cell cell, bool back) {
    int64_t D = recurrent_forms[k].D, T = recurrent_forms[k].T, B = recurrent_forms[k].B, I = recurrent_forms[k].I,
            H = recurrent_forms[k].H,
            gates = (cell == GN_CELL_LSTM  ? 4
                     : cell == GN_CELL_GRU ? 3
                                           : 1) *
                    H;
    const gn_shape shapes[REF_CELL_INPUTS] = { GN_SHAPE(T, B, I),  GN_SHAPE(D, gates, I), GN_SHAPE(D, gates, H),
                                               GN_SHAPE(D, gates), GN_SHAPE(D, gates),    GN_SHAPE(D, B, H),
                                               GN_SHAPE(D, B, H),  GN_SHAPE(D, 3 * H) };
    memset(s, 0, sizeof *s);
    s->what = recurrent_forms[k].what;
    s->recurrent = recurrent_forms[k].d;
    s->recurrent.cell = cell;
    s->recurrent.coupled = s->recurrent.coupled && cell == GN_CELL_LSTM;
    s->recurrent.reset_first = s->recurrent.reset_first && cell == GN_CELL_GRU;
    s->flag = recurrent_forms[k].all;
    s->p[0] = recurrent_forms[k].lengths;
    if (back && recurrent_forms[k].bends) return false;
    for (int i = 0; i < REF_CELL_INPUTS; i++)
        if (recurrent_has(s, i)) add_input(s, d, shapes[i], FILL_SMALL, VIEW_ANY);
    if (s->p[0]) add_limited(s, index_dtype(k), GN_SHAPE(B), FILL_INDEX, VIEW_ANY, T + 1);
    return true;
}

static void cases_recurrent_of(bool back) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(recurrent_forms) * 3; k++) {
            sample s;
            if (!recurrent_sample(&s, d, k / 3, (gn_cell)(k % 3), back)) continue;
            s.build = back ? build_recurrent_back : build_recurrent;
            s.refer = back ? refer_recurrent_back : refer_recurrent;
            s.p[1] = back ? REF_CELL_X + (k + (int)d) % (s.flag ? 6 : 3) : 0;
            run(&s);
        }
}
static void cases_recurrent(void) { cases_recurrent_of(false); }
static void cases_recurrent_back(void) { cases_recurrent_of(true); }

/* ---- attention ---- */

/* length -1: none */
typedef struct attention {
    int64_t b, h, groups, t, s, d, e;
    bool causal;
    double scale;
    int mask, length;
} attention;

enum { MASK_NONE, MASK_BOOL, MASK_ADDED };

/* in: q, k, v, mask if any, length if any */
static gn_tensor build_attention(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_attention_desc desc = { .causal = s->flag, .scale = s->d[0] };
    desc.mask = s->p[0] ? in[3] : GN_NONE;
    desc.length = s->p[1] >= 0 ? in[s->n - 1] : GN_NONE;
    bool plain = !s->flag && s->d[0] == 0 && !s->p[0] && s->p[1] < 0;
    return gn_attention(in[0], in[1], in[2], plain ? NULL : &desc);
}

static ref *refer_attention(const sample *s, ref *const *in) {
    ref_attention p = { .q = in[0],
                        .k = in[1],
                        .v = in[2],
                        .mask = s->p[0] ? in[3] : NULL,
                        .causal = s->flag,
                        .scale = (ref_real)s->d[0],
                        .length = s->p[1],
                        .window = s->q[0],
                        .cap = (ref_real)s->d[1],
                        .slopes = s->q[1] ? in[s->n - 1 - s->q[2]] : NULL,
                        .sinks = s->q[2] ? in[s->n - 1] : NULL };
    p.scale = p.scale == 0 ? 1 / sqrtl((ref_real)in[0]->shape.dims[3]) : p.scale;
    p.length = p.length < 0 ? in[1]->shape.dims[2] : p.length;
    return ref_attend(&p);
}

/* in: q, k, v, mask if any, length if any, slopes if any, sinks if any */
static gn_tensor build_attention_with(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_attention_desc desc = { .causal = s->flag, .scale = s->d[0], .window = s->q[0], .soft_cap = s->d[1] };
    if (s->p[0]) desc.mask = in[3];
    if (s->p[1] >= 0) desc.length = in[3 + (s->p[0] != 0)];
    if (s->q[1]) desc.slopes = in[s->n - 1 - s->q[2]];
    if (s->q[2]) desc.sinks = in[s->n - 1];
    return gn_attention(in[0], in[1], in[2], &desc);
}

/* Beside what `a` says. */
typedef struct attention_more {
    int64_t window;
    double cap;
    bool slopes, sinks;
} attention_more;

static void attention_case(const attention *a, const attention_more *more, gn_dtype d, int k) {
    sample s = { .what = more ? "attention_with" : "attention",
                 .build = more ? build_attention_with : build_attention,
                 .refer = refer_attention,
                 .flag = a->causal,
                 .d = { a->scale } };
    s.p[0] = a->mask;
    s.p[1] = a->length;
    add_input(&s, d, GN_SHAPE(a->b, a->h, a->t, a->d), FILL_SMALL, VIEW_ANY);
    add_input(&s, d, GN_SHAPE(a->b, a->groups, a->s, a->d), FILL_SMALL, VIEW_ANY);
    add_input(&s, d, GN_SHAPE(a->b, a->groups, a->s, a->e), FILL_SMALL, VIEW_ANY);
    if (a->mask) {
        const gn_shape masks[] = { GN_SHAPE(a->b, a->h, a->t, a->s), GN_SHAPE(a->t, a->s), GN_SHAPE(a->b, 1, 1, a->s) };
        add_input(&s, a->mask == MASK_BOOL ? GN_BOOL : d, masks[test_random_int(0, 2)], FILL_SMALL, VIEW_ANY);
    }
    if (a->length >= 0) {
        add_input(&s, index_dtype(k), GN_SCALAR, FILL_SMALL, VIEW_NONE);
        s.in[s.n - 1].base->i[0] = a->length;
        free(s.in[s.n - 1].bytes);
        s.in[s.n - 1].bytes = ref_encode(s.in[s.n - 1].base);
    }
    if (more) {
        s.q[0] = more->window;
        s.q[1] = more->slopes;
        s.q[2] = more->sinks;
        s.d[1] = more->cap;
        if (more->slopes) add_input(&s, k % 2 ? GN_F32 : d, GN_SHAPE(a->h), FILL_SMALL, VIEW_ANY);
        if (more->sinks) add_input(&s, k % 2 ? d : GN_F32, GN_SHAPE(a->h), FILL_SMALL, VIEW_ANY);
    }
    run(&s);
}

static void cases_attention(void) {
    static const attention forms[] = {
        { 1, 1, 1, 1, 1, 1, 1, false, 0, MASK_NONE, -1 },
        { 2, 3, 3, 5, 7, 4, 4, false, 0, MASK_NONE, -1 },
        { 2, 4, 2, 5, 5, 3, 6, true, 0, MASK_NONE, -1 },
        { 1, 6, 1, 1, 33, 8, 8, true, 0, MASK_NONE, 17 },
        { 1, 2, 2, 4, 9, 5, 3, true, 0.3, MASK_NONE, 4 },
        { 1, 2, 1, 4, 9, 5, 3, false, 0.3, MASK_NONE, 0 },
        { 2, 2, 2, 5, 7, 4, 4, false, 0, MASK_BOOL, -1 },
        { 2, 2, 2, 5, 7, 4, 4, true, 0, MASK_BOOL, 6 },
        { 2, 2, 1, 5, 7, 4, 4, false, 0, MASK_ADDED, -1 },
        { 2, 4, 2, 3, 6, 4, 4, true, 0.5, MASK_ADDED, 5 },
        { 0, 2, 2, 5, 7, 4, 4, false, 0, MASK_NONE, -1 },
        { 2, 2, 2, 0, 7, 4, 4, false, 0, MASK_NONE, -1 },
        { 2, 2, 2, 5, 0, 4, 4, false, 0, MASK_NONE, -1 },
        { 1, 2, 1, 5, 3, 4, 4, true, 0, MASK_NONE, -1 }, /* the first two queries see nothing */
        { 1, 2, 2, 19, 70, 16, 16, true, 0, MASK_NONE, -1 },
    };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++)
        for (int k = 0; k < TEST_COUNT(forms) * 2; k++) attention_case(&forms[k / 2], NULL, d, k);
}

/* Those of 16 queries and more are tensor cores' on a GPU that has them, in 16 bits with a head of 16, 32, 64, 128. */
static void cases_attention_with(void) {
    static const struct {
        attention a;
        attention_more more;
    } forms[] = {
        { { 1, 1, 1, 1, 1, 1, 1, true, 0, MASK_NONE, -1 }, { 1, 0, false, false } },
        { { 2, 4, 2, 5, 9, 3, 6, true, 0, MASK_NONE, -1 }, { 3, 0, false, false } },
        { { 2, 4, 2, 5, 9, 3, 6, false, 0, MASK_NONE, -1 }, { 0, 0.75, false, false } },
        { { 2, 4, 2, 5, 9, 3, 6, true, 0.5, MASK_NONE, 7 }, { 0, 0, true, false } },
        { { 2, 4, 2, 5, 9, 3, 6, false, 0, MASK_NONE, -1 }, { 0, 0, false, true } },
        { { 1, 6, 2, 1, 33, 8, 8, true, 0, MASK_NONE, 17 }, { 5, 2, true, true } },
        { { 1, 4, 2, 1, 33, 32, 32, true, 0, MASK_NONE, 33 }, { INT64_MAX, 0, false, true } },
        { { 1, 4, 1, 1, 600, 32, 32, true, 0, MASK_NONE, 590 }, { 300, 1, false, true } },
        { { 1, 4, 1, 1, 600, 32, 32, false, 0, MASK_NONE, 600 }, { 0, 0, true, false } },
        { { 1, 2, 1, 1, 700, 12, 12, true, 0, MASK_NONE, 650 }, { 400, 0, false, true } },
        { { 2, 2, 2, 5, 7, 4, 4, true, 0, MASK_BOOL, 6 }, { 2, 1, true, true } },
        { { 2, 2, 1, 5, 7, 4, 4, false, 0, MASK_ADDED, -1 }, { 0, 1, true, true } },
        { { 0, 2, 2, 5, 7, 4, 4, true, 0, MASK_NONE, -1 }, { 2, 0, true, true } },
        { { 2, 2, 2, 5, 0, 4, 4, false, 0, MASK_NONE, -1 }, { 0, 0, false, true } },
        { { 1, 2, 1, 5, 3, 4, 4, true, 0, MASK_NONE, -1 }, { 1, 0, false, true } }, /* some see the sink alone */
        { { 1, 2, 1, 20, 70, 16, 16, true, 0, MASK_NONE, 60 }, { 7, 1, true, true } },
        { { 1, 2, 1, 70, 200, 32, 32, true, 0, MASK_NONE, 180 }, { 33, 0, false, false } },
        { { 1, 2, 1, 65, 65, 64, 64, true, 0, MASK_NONE, -1 }, { 200, 0.5, false, true } },
        { { 1, 2, 1, 130, 310, 64, 64, true, 0, MASK_NONE, 301 }, { 100, 0, false, true } },
        { { 1, 2, 1, 130, 310, 64, 64, true, 0, MASK_NONE, 301 }, { 129, 1, true, false } },
        { { 1, 1, 1, 150, 420, 128, 128, true, 0, MASK_NONE, -1 }, { 20, 0, false, false } },
        { { 1, 1, 1, 70, 130, 128, 128, false, 0, MASK_NONE, 100 }, { 0, 1, true, true } },
    };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++)
        for (int k = 0; k < TEST_COUNT(forms) * 2; k++) attention_case(&forms[k / 2].a, &forms[k / 2].more, d, k);
}

/* ---- caches in pages ---- */

/* Whole numbers as an input. */
static void add_numbers(sample *s, gn_dtype d, gn_shape shape, const int64_t *x) {
    add_input(s, d, shape, FILL_SMALL, VIEW_NONE);
    input *in = &s->in[s->n - 1];
    for (int64_t i = 0; i < in->base->n; i++) in->base->i[i] = x[i];
    free(in->bytes);
    in->bytes = ref_encode(in->base);
}

static gn_tensor build_page_append(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    return gn_page_append(in[0], in[1], in[2], s->n > 3 ? in[3] : GN_NONE, s->n > 3 ? in[4] : GN_NONE);
}
static ref *refer_page_append(const sample *s, ref *const *in) {
    (void)s;
    return ref_page_append(in);
}

static void cases_page_append(void) {
    static const int64_t slots[8] = { 14, -1, 0, 7, 4, -1, 8, 11 }, of[8] = { 1, -1, 0, 1, 0, 1, 1, 2 },
                         tables[6] = { 0, 1, 4, 2, 3, 2 }, forms[][2] = { { 8, 4 }, { 1, 4 }, { 0, 4 }, { 7, 0 } };
    for (int k = 0; k < TEST_COUNT(forms) * 2; k++) {
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            const int64_t *n = forms[k / 2];
            sample s = { .what = "page_append", .build = build_page_append, .refer = refer_page_append };
            bool checked = k % 2 && n[0] < 8;
            add_input(&s, d, GN_SHAPE(5, 2, 3, n[1]), FILL_SPECIAL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(n[0], 2, n[1]), FILL_SMALL, VIEW_ANY);
            add_numbers(&s, index_dtype(k), GN_SHAPE(n[0]), slots);
            if (checked) add_numbers(&s, index_dtype(k + 1), GN_SHAPE(n[0]), of);
            if (checked) add_numbers(&s, index_dtype(k), GN_SHAPE(3, 2), tables);
            run(&s);
        }
    }
}

/* in: q, keys, values, sequences, positions, table, slopes if any, sinks if any */
static gn_tensor build_page_attention(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_attention_desc desc = { .scale = s->d[0], .window = s->q[0], .soft_cap = s->d[1] };
    if (s->q[1]) desc.slopes = in[6];
    if (s->q[2]) desc.sinks = in[s->n - 1];
    return gn_page_attention(in[0], in[1], in[2], in[3], in[4], in[5], &desc);
}
static ref *refer_page_attention(const sample *s, ref *const *in) {
    ref_attention p = { .causal = true,
                        .scale = (ref_real)s->d[0],
                        .window = s->q[0],
                        .cap = (ref_real)s->d[1],
                        .slopes = s->q[1] ? in[6] : NULL,
                        .sinks = s->q[2] ? in[s->n - 1] : NULL };
    if (p.scale == 0) p.scale = 1 / sqrtl((ref_real)in[0]->shape.dims[2]);
    return ref_page_attention(in, &p);
}

/* in: q, bytes of keys and of values, sequences, positions, table, their scales, slopes if any, sinks if any */
static gn_tensor build_page_attention_quantized(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_attention_desc desc = { .scale = s->d[0], .window = s->q[0], .soft_cap = s->d[1] };
    gn_quantized k = { .format = (gn_quant)s->p[0], .data = in[1], .scales = in[6] }, v = k;
    v.data = in[2], v.scales = in[7];
    if (s->q[1]) desc.slopes = in[8];
    if (s->q[2]) desc.sinks = in[s->n - 1];
    return gn_page_attention_quantized(in[0], k, v, in[3], in[4], in[5], &desc);
}
static ref *refer_page_attention_quantized(const sample *s, ref *const *in) {
    sample plain = *s;
    ref *to[8] = { in[0], NULL, NULL, in[3], in[4], in[5] };
    for (int i = 1; i < 3; i++) {
        int64_t width = in[i]->shape.dims[3];
        to[i] = ref_make(in[0]->dtype, in[i]->shape);
        ref_quant q = { .format = (int)s->p[0], .rows = 1, .data = in[i], .scales = in[5 + i] };
        ref flat = *in[i], scales = *in[5 + i];
        flat.shape = GN_SHAPE(width ? in[i]->n / width : 0, width);
        scales.shape = GN_SHAPE(scales.n, 1);
        q.data = &flat, q.scales = &scales;
        for (int64_t k = 0; k < in[i]->n; k++) to[i]->f[k] = ref_quant_value(&q, k / width, k % width);
    }
    plain.n = s->n - 2;
    for (int i = 8; i < s->n; i++) to[i - 2] = in[i];
    return refer_page_attention(&plain, to);
}

/* Bytes of all kinds but NaN of FP8. */
static void add_bytes(sample *s, gn_shape shape, bool fp8) {
    add_input(s, fp8 ? GN_U8 : GN_I8, shape, FILL_WIDE, fp8 ? VIEW_NONE : VIEW_ANY);
    if (fp8) without_nan(&s->in[s->n - 1]);
}

/* Of rows whose largest is `most`: values up to 2. */
static void add_scales(sample *s, gn_dtype d, gn_shape shape, double most) {
    add_input(s, d, shape, FILL_POSITIVE, VIEW_NONE);
    input *in = &s->in[s->n - 1];
    for (int64_t i = 0; i < in->base->n; i++) in->base->f[i] /= (ref_real)(2 * most);
    free(in->bytes);
    in->bytes = ref_encode(in->base);
    ref *back = ref_decode(d, shape, in->bytes);
    for (int64_t i = 0; i < in->base->n; i++) in->base->f[i] = back->f[i];
}

/* Four sequences of up to 9 pages of `size`; the last row is of none. */
static void cases_pages(bool bytes) {
    static const struct {
        int64_t heads, groups, d, e, size;
        double scale;
        attention_more more;
    } forms[] = {
        { 1, 1, 1, 1, 1, 0, { 0, 0, false, false } },      { 4, 2, 8, 8, 4, 0, { 0, 0, false, false } },
        { 6, 2, 5, 3, 3, 0.3, { 4, 0, true, false } },     { 8, 2, 64, 64, 16, 0, { 0, 0, false, true } },
        { 4, 4, 32, 32, 70, 0, { 300, 1, true, true } },   { 3, 3, 16, 24, 5, 0, { 1, 0, false, true } },
        { 8, 1, 128, 128, 80, 0, { 0, 2, false, false } },
    };
    static const int64_t table[4 * 9] = { 3, 0, 9, 2, 7, 1, 8, 4, 6, 5, -1, 99, 0, 0,
                                          0, 0, 0, 0, 2, 3, 1, 0, 4, 5, 6,  7,  8 };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(forms) * 2; k++) {
            if (bytes && d == GN_F64) continue;
            const int64_t size = forms[k / 2].size, of[6] = { 2, 0, 1, 0, 2, -1 },
                          at[6] = { size * 9 - 1, 0, size - 1, size * 5, size * 2, -7 };
            sample s = { .what = "page_attention",
                         .build = bytes ? build_page_attention_quantized : build_page_attention,
                         .refer = bytes ? refer_page_attention_quantized : refer_page_attention,
                         .p = { k % 2 ? GN_QUANT_INT8 : GN_QUANT_FP8_E4M3 },
                         .d = { forms[k / 2].scale, forms[k / 2].more.cap } };
            s.q[0] = forms[k / 2].more.window;
            s.q[1] = forms[k / 2].more.slopes;
            s.q[2] = forms[k / 2].more.sinks;
            add_input(&s, d, GN_SHAPE(6, forms[k / 2].heads, forms[k / 2].d), FILL_SMALL, VIEW_ANY);
            for (int side = 0; side < 2; side++) {
                gn_shape pool = GN_SHAPE(10, forms[k / 2].groups, size, side ? forms[k / 2].e : forms[k / 2].d);
                if (bytes) add_bytes(&s, pool, k % 2 == 0);
                else add_input(&s, d, pool, FILL_SMALL, VIEW_ANY);
            }
            add_numbers(&s, index_dtype(k), GN_SHAPE(6), of);
            add_numbers(&s, index_dtype(k + 1), GN_SHAPE(6), at);
            add_numbers(&s, index_dtype(k), GN_SHAPE(4, 9), table);
            for (int side = 0; side < 2 && bytes; side++)
                add_scales(&s, side ? GN_F32 : d, GN_SHAPE(10, forms[k / 2].groups, size, 1), k % 2 ? 127 : 448);
            if (s.q[1]) add_input(&s, k % 2 ? GN_F32 : d, GN_SHAPE(forms[k / 2].heads), FILL_SMALL, VIEW_ANY);
            if (s.q[2]) add_input(&s, k % 2 ? d : GN_F32, GN_SHAPE(forms[k / 2].heads), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}
static void cases_page_attention(void) { cases_pages(false); }
static void cases_page_attention_quantized(void) { cases_pages(true); }

static gn_tensor build_kv_append(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)s;
    (void)g;
    return gn_kv_append(in[0], in[1], in[2]);
}
static ref *refer_kv_append(const sample *s, ref *const *in) {
    (void)s;
    return ref_kv_append(in[0], in[1], in[2]->i[0]);
}

static void cases_kv_append(void) {
    /* position, rows of 9 */
    static const int64_t forms[][2] = { { 0, 1 }, { 8, 1 }, { 3, 4 }, { 0, 9 }, { 9, 0 }, { 2, 0 } };
    for (int k = 0; k < TEST_COUNT(forms) * 2; k++) {
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = { .what = "kv_append", .build = build_kv_append, .refer = refer_kv_append };
            add_input(&s, d, GN_SHAPE(2, 3, 9, 4), FILL_SPECIAL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(2, 3, forms[k / 2][1], 4), FILL_SMALL, VIEW_ANY);
            add_input(&s, index_dtype(k), GN_SCALAR, FILL_SMALL, VIEW_NONE);
            s.in[2].base->i[0] = forms[k / 2][0];
            free(s.in[2].bytes);
            s.in[2].bytes = ref_encode(s.in[2].base);
            run(&s);
        }
    }
}

/* ---- ops that are said with others: no row of the table, but a meaning of their own ---- */

enum {
    FLOAT_DTYPES = 1 << GN_F32 | 1 << GN_F64 | 1 << GN_F16 | 1 << GN_BF16,
    ALL_DTYPES = (1 << GN_DTYPE__COUNT) - 2,
    NUMBER_DTYPES = ALL_DTYPES & ~(1 << GN_BOOL)
};

#define BUILD(name, expression)                                              \
    static gn_tensor name(const sample *s, gn_ctx *g, const gn_tensor *in) { \
        (void)s;                                                             \
        (void)g;                                                             \
        return expression;                                                   \
    }
#define REFER(name, expression)                         \
    static ref *name(const sample *s, ref *const *in) { \
        (void)s;                                        \
        return expression;                              \
    }

/* A sample of one input for each shape and dtype; dtypes that the op does not take must fail. */
static void each_shape(sample form, const gn_shape *shapes, int n_shapes, fill f) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < (takes(d) ? n_shapes : 1); k++) {
            sample s = form;
            add_input(&s, d, shapes[k], f, VIEW_ANY);
            s.failure = takes(d) ? form.failure : GN_BAD_DTYPE;
            run(&s);
        }
    }
}

static void one_element(sample form) {
    static const gn_shape special = { 1, { SPECIAL_FLOATS + SPECIAL_INTS } };
    each_shape(form, unary_shapes, TEST_COUNT(unary_shapes), FILL_SMALL);
    each_shape(form, &special, 1, FILL_SPECIAL);
}

BUILD(build_isnan, gn_isnan(in[0]))
BUILD(build_isinf, gn_isinf(in[0]))
BUILD(build_isfinite, gn_isfinite(in[0]))
BUILD(build_logical_not, gn_logical_not(in[0]))
REFER(refer_is, ref_is(in[0], (ref_test)s->p[0]))
static void cases_isnan(void) {
    one_element((sample){ .what = "isnan", .build = build_isnan, .refer = refer_is, .p = { REF_ISNAN } });
}
static void cases_isinf(void) {
    one_element((sample){ .what = "isinf", .build = build_isinf, .refer = refer_is, .p = { REF_ISINF } });
}
static void cases_isfinite(void) {
    one_element((sample){ .what = "isfinite", .build = build_isfinite, .refer = refer_is, .p = { REF_ISFINITE } });
}
static void cases_logical_not(void) {
    one_element((sample){ .what = "logical_not", .build = build_logical_not, .refer = refer_is, .p = { REF_ISZERO } });
}

BUILD(build_logical, s->p[0] == 0   ? gn_logical_and(in[0], in[1])
                     : s->p[0] == 1 ? gn_logical_or(in[0], in[1])
                                    : gn_logical_xor(in[0], in[1]))
REFER(refer_logical, ref_logical(in, (int)s->p[0]))
static void logical_cases(int kind) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(binary_shapes); k++) {
            sample s = { .what = "logical", .build = build_logical, .refer = refer_logical, .p = { kind } };
            add_input(&s, d, binary_shapes[k][0], FILL_SPECIAL, VIEW_ANY);
            add_input(&s, (gn_dtype)test_random_int(GN_F32, GN_DTYPE__COUNT - 1), binary_shapes[k][1], FILL_SPECIAL,
                      VIEW_ANY);
            run(&s);
        }
    }
}
static void cases_logical_and(void) { logical_cases(0); }
static void cases_logical_or(void) { logical_cases(1); }
static void cases_logical_xor(void) { logical_cases(2); }

BUILD(build_leaky_relu, gn_leaky_relu(in[0], s->d[0]))
BUILD(build_elu, gn_elu(in[0], s->d[0]))
BUILD(build_celu, gn_celu(in[0], s->d[0]))
REFER(refer_with_number, ref_with_number(s->scalar, in[0], s->d[0]))
static void cases_leaky_relu(void) {
    one_element((sample){
        .what = "slope", .build = build_leaky_relu, .refer = refer_with_number, .scalar = &ref_prelu, .d = { 0.01 } });
}
static void cases_elu(void) {
    one_element(
        (sample){ .what = "alpha", .build = build_elu, .refer = refer_with_number, .scalar = &ref_elu, .d = { 1.3 } });
}
static void cases_celu(void) {
    one_element((sample){
        .what = "alpha", .build = build_celu, .refer = refer_with_number, .scalar = &ref_celu, .d = { 0.7 } });
    sample s = { .what = "alpha of 0", .build = build_celu, .failure = GN_BAD_ARGUMENT };
    add_input(&s, GN_F32, GN_SHAPE(3), FILL_SMALL, VIEW_NONE);
    run(&s);
}

BUILD(build_prelu, gn_prelu(in[0], in[1]))
REFER(refer_prelu, ref_scalar(&ref_prelu, in))
static void cases_prelu(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < 4; k++) {
            const gn_shape slopes[] = { GN_SCALAR, GN_SHAPE(5), GN_SHAPE(4, 1), GN_SHAPE(3, 4, 5) };
            sample s = { .what = "slope", .build = build_prelu, .refer = refer_prelu };
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SMALL, VIEW_ANY);
            add_input(&s, d, slopes[k], FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- reductions ---- */

BUILD(build_argmin, gn_argmin(in[0], s->axes, s->flag))
BUILD(build_prod, gn_prod(in[0], s->axes, s->flag))
BUILD(build_any, gn_any(in[0], s->axes, s->flag))
BUILD(build_all, gn_all(in[0], s->axes, s->flag))
BUILD(build_count_nonzero, gn_count_nonzero(in[0], s->axes, s->flag))
BUILD(build_l1_norm, gn_l1_norm(in[0], s->axes, s->flag))
BUILD(build_l2_norm, gn_l2_norm(in[0], s->axes, s->flag))
BUILD(build_logsumexp, gn_logsumexp(in[0], s->axes, s->flag))
BUILD(build_variance, gn_variance(in[0], s->axes, (int)s->p[1], s->flag))
BUILD(build_std, gn_std(in[0], s->axes, (int)s->p[1], s->flag))
REFER(refer_argmin, ref_extreme(in[0], s->axes, s->flag, -1, true))
REFER(refer_reduce, ref_reduce(in[0], s->axes, s->flag, (ref_reduction)s->p[0], (int)s->p[1]))
static void cases_argmin(void) {
    reduction_cases((sample){ .build = build_argmin, .refer = refer_argmin }, true, FILL_SPECIAL);
}
static void cases_prod(void) {
    reduction_cases((sample){ .build = build_prod, .refer = refer_reduce, .p = { REF_PROD } }, false, FILL_FACTORS);
}
static void cases_any(void) {
    reduction_cases((sample){ .build = build_any, .refer = refer_reduce, .p = { REF_ANY } }, false, FILL_SUMMABLE);
}
static void cases_all(void) {
    reduction_cases((sample){ .build = build_all, .refer = refer_reduce, .p = { REF_ALL } }, false, FILL_SUMMABLE);
}
static void cases_count_nonzero(void) {
    reduction_cases((sample){ .build = build_count_nonzero, .refer = refer_reduce, .p = { REF_COUNT } }, false,
                    FILL_SUMMABLE);
}
static void cases_l1_norm(void) {
    reduction_cases((sample){ .build = build_l1_norm, .refer = refer_reduce, .p = { REF_L1 } }, false, FILL_SUMMABLE);
}
static void cases_l2_norm(void) {
    reduction_cases((sample){ .build = build_l2_norm, .refer = refer_reduce, .p = { REF_L2 } }, false, FILL_SUMMABLE);
}
static void cases_logsumexp(void) {
    reduction_cases((sample){ .build = build_logsumexp, .refer = refer_reduce, .p = { REF_LOGSUMEXP } }, false,
                    FILL_SPECIAL);
}
static void cases_variance(void) {
    reduction_cases((sample){ .build = build_variance, .refer = refer_reduce, .p = { REF_VARIANCE, 0 } }, false,
                    FILL_SUMMABLE);
    reduction_cases((sample){ .build = build_variance, .refer = refer_reduce, .p = { REF_VARIANCE, 1 } }, false,
                    FILL_SUMMABLE);
}
static void cases_std(void) {
    reduction_cases((sample){ .build = build_std, .refer = refer_reduce, .p = { REF_STD, 0 } }, false, FILL_SUMMABLE);
    reduction_cases((sample){ .build = build_std, .refer = refer_reduce, .p = { REF_STD, 1 } }, false, FILL_SUMMABLE);
}

/* ---- along an axis ---- */

static const gn_shape axis_shapes[] = {
    { 1, { 1 } },
    { 1, { 7 } },
    { 1, { 0 } },
    { 2, { 13, 11 } },
    { 3, { 4, 5, 6 } },
    { 3, { 2, 0, 3 } },
    { 8, { 1, 2, 1, 3, 2, 1, 2, 3 } },
    { 2, { 2, 1031 } },
};

/* Every axis of every shape; p[0] is the axis. An axis past the rank is refused. */
static void axis_cases(sample form, fill f) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; takes(d) && k < TEST_COUNT(axis_shapes); k++) {
            for (int axis = -1; axis<axis_shapes[k].rank; axis += axis_shapes[k].rank> 4 ? 3 : 1) {
                sample s = form;
                s.p[0] = axis;
                s.what = "axis";
                add_input(&s, d, axis_shapes[k], f, VIEW_ANY);
                run(&s);
            }
        }
        sample s = form;
        s.what = "axis outside";
        s.p[0] = 2;
        s.failure = takes(d) ? GN_BAD_RANK : GN_BAD_DTYPE;
        add_input(&s, d, GN_SHAPE(3, 4), f, VIEW_NONE);
        run(&s);
    }
}

BUILD(build_cumsum, gn_cumsum(in[0], (int)s->p[0]))
BUILD(build_cumprod, gn_cumprod(in[0], (int)s->p[0]))
BUILD(build_cummax, gn_cummax(in[0], (int)s->p[0]))
REFER(refer_cumulate, ref_cumulate(in[0], (int)s->p[0], (ref_running)s->p[1]))
static void cases_cumsum(void) {
    axis_cases((sample){ .build = build_cumsum, .refer = refer_cumulate, .p = { 0, REF_CUMSUM } }, FILL_SMALL);
    axis_cases((sample){ .build = build_cumsum, .refer = refer_cumulate, .p = { 0, REF_CUMSUM } }, FILL_SUMMABLE);
}
static void cases_cumprod(void) {
    axis_cases((sample){ .build = build_cumprod, .refer = refer_cumulate, .p = { 0, REF_CUMPROD } }, FILL_SMALL);
}
static void cases_cummax(void) {
    axis_cases((sample){ .build = build_cummax, .refer = refer_cumulate, .p = { 0, REF_CUMMAX } }, FILL_SMALL);
    axis_cases((sample){ .build = build_cummax, .refer = refer_cumulate, .p = { 0, REF_CUMMAX } }, FILL_SPECIAL);
}

BUILD(build_argsort, gn_argsort(in[0], (int)s->p[0], s->flag))
BUILD(build_sort, gn_sort(in[0], (int)s->p[0], s->flag))
REFER(refer_sort,
      ref_sort(in[0], (int)s->p[0], s->flag, in[0]->shape.dims[ref_axis(in[0], (int)s->p[0])], s->p[1] != 0))
static void sort_cases(sample form) {
    for (int k = 0; k < 2; k++) {
        form.flag = k == 1;
        axis_cases(form, FILL_SMALL);
        axis_cases(form, FILL_SPECIAL);
    }
}
static void cases_argsort(void) { sort_cases((sample){ .build = build_argsort, .refer = refer_sort, .p = { 0, 1 } }); }
static void cases_sort(void) { sort_cases((sample){ .build = build_sort, .refer = refer_sort, .p = { 0, 0 } }); }

static gn_tensor build_topk(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_tensor out[2];
    (void)g;
    gn_topk(in[0], s->p[2], (int)s->p[0], s->flag, s->p[1] ? NULL : &out[0], s->p[1] ? &out[1] : NULL);
    return out[s->p[1]];
}
REFER(refer_topk, ref_sort(in[0], (int)s->p[0], s->flag, s->p[2], s->p[1] != 0))
static void cases_topk(void) {
    static const int64_t forms[][2] = { { 0, 0 }, { 1, 1 },  { 5, 1 },  { 2, -1 },        { 6, -1 },
                                        { 4, 0 }, { 7, -1 }, { -1, 0 }, { INT64_MIN, 1 }, { INT64_MAX, 1 } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(forms) * 4; k++) {
            sample s = { .what = "topk",
                         .build = build_topk,
                         .refer = refer_topk,
                         .p = { forms[k / 4][1], k & 1, forms[k / 4][0] },
                         .flag = k & 2 };
            s.failure = k / 4 < 6 ? GN_OK : GN_BAD_ARGUMENT;
            add_input(&s, d, GN_SHAPE(4, 5, 6), FILL_SPECIAL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- rows ---- */

BUILD(build_rmsnorm, gn_rmsnorm(in[0], s->n > 1 ? in[1] : GN_NONE, s->d[0]))
REFER(refer_rmsnorm, ref_scale_rows(in[0], -1, s->n > 1 ? in[1] : NULL, s->d[0], 0))
static void cases_rmsnorm(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(axis_shapes) * 2; k++) {
            sample s = { .what = "gain", .build = build_rmsnorm, .refer = refer_rmsnorm, .d = { 1e-3 } };
            gn_shape shape = axis_shapes[k / 2];
            add_input(&s, d, shape, FILL_SMALL, VIEW_ANY);
            if (k % 2) add_input(&s, d, GN_SHAPE(shape.dims[shape.rank - 1]), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}
BUILD(build_rmsnorm_1p, gn_rmsnorm_1p(in[0], s->n > 1 ? in[1] : GN_NONE, s->d[0]))
static ref *refer_rmsnorm_1p(const sample *s, ref *const *in) {
    ref *gain = s->n > 1 ? ref_make(GN_F64, in[1]->shape) : NULL;
    for (int64_t k = 0; gain && k < gain->n; k++) gain->f[k] = 1 + in[1]->f[k];
    return ref_scale_rows(in[0], -1, gain, s->d[0], 0);
}
static void cases_rmsnorm_1p(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(axis_shapes) * 2; k++) {
            sample s = { .what = "gain", .build = build_rmsnorm_1p, .refer = refer_rmsnorm_1p, .d = { 1e-3 } };
            gn_shape shape = axis_shapes[k / 2];
            add_input(&s, d, shape, FILL_SMALL, VIEW_ANY);
            if (k % 2) add_input(&s, d, GN_SHAPE(shape.dims[shape.rank - 1]), FILL_POSITIVE, VIEW_ANY);
            run(&s);
        }
    }
}
/* p: groups (0: of the batch, -1: as given), q: gain, bias */
static gn_tensor build_channel_norm(const sample *s, gn_ctx *g, const gn_tensor *in) {
    (void)g;
    gn_tensor gain = s->q[0] ? in[1] : GN_NONE, bias = s->q[1] ? in[1 + s->q[0]] : GN_NONE;
    int64_t at = 1 + s->q[0] + s->q[1];
    if (s->p[0] < 0) return gn_batch_norm(in[0], in[at], in[at + 1], gain, bias, s->d[0]);
    if (s->p[0] == 0) return gn_batch_norm_train(in[0], gain, bias, s->d[0], NULL, NULL);
    if (s->p[0] == s->in[0].value->shape.dims[1]) return gn_instance_norm(in[0], gain, bias, s->d[0]);
    return gn_group_norm(in[0], s->p[0], gain, bias, s->d[0]);
}
static ref *refer_channel_norm(const sample *s, ref *const *in) {
    return ref_channel_norm(in, s->p[0], s->q[0] != 0, s->q[1] != 0, s->d[0]);
}
static void channel_norm_cases(const int64_t *groups, int n_groups) {
    static const gn_shape shapes[] = { { 4, { 2, 6, 5, 7 } }, { 2, { 9, 12 } }, { 5, { 1, 6, 2, 3, 4 } } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(shapes) * n_groups * 4; k++) {
            gn_shape x = shapes[k / 4 % 3], by = GN_SHAPE(x.dims[1]);
            sample s = { .what = "channels", .build = build_channel_norm, .refer = refer_channel_norm, .d = { 1e-3 } };
            s.p[0] = groups[k / 12];
            s.q[0] = k & 1;
            s.q[1] = k >> 1 & 1;
            add_input(&s, d, x, FILL_SMALL, VIEW_ANY);
            for (int i = 0; i < s.q[0] + s.q[1]; i++) add_input(&s, d, by, FILL_SMALL, VIEW_ANY);
            if (s.p[0] < 0) add_input(&s, d, by, FILL_SMALL, VIEW_ANY);
            if (s.p[0] < 0) add_input(&s, d, by, FILL_POSITIVE, VIEW_ANY);
            run(&s);
        }
}
static void cases_batch_norm(void) {
    static const int64_t groups[] = { -1, 0 };
    channel_norm_cases(groups, 2);
}
static void cases_group_norm(void) {
    static const int64_t groups[] = { 1, 2, 3, 6 };
    channel_norm_cases(groups, 4);
}

BUILD(build_local_response_norm, gn_local_response_norm(in[0], s->p[0], s->d[0], s->d[1], 1.5))
REFER(refer_local_response_norm, ref_local_response_norm(in[0], s->p[0], s->d[0], s->d[1], 1.5))
static void cases_local_response_norm(void) {
    static const gn_shape shapes[] = { { 4, { 2, 6, 5, 7 } }, { 2, { 9, 12 } }, { 3, { 1, 2, 9 } } };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(shapes) * 4; k++) {
            sample s = { .what = "channels",
                         .build = build_local_response_norm,
                         .refer = refer_local_response_norm,
                         .d = { 0.5, 0.75 },
                         .p = { 1 + k % 4 } };
            add_input(&s, d, shapes[k / 4], FILL_SMALL, VIEW_ANY);
            run(&s);
        }
}

BUILD(build_normalize, gn_normalize(in[0], (int)s->p[0], s->d[0]))
REFER(refer_normalize, ref_scale_rows(in[0], (int)s->p[0], NULL, 0, s->d[0]))
static void cases_normalize(void) {
    axis_cases((sample){ .build = build_normalize, .refer = refer_normalize, .d = { 1e-6 } }, FILL_SMALL);
    axis_cases((sample){ .build = build_normalize, .refer = refer_normalize, .d = { 2.5 } }, FILL_SMALL);
}

/* ---- linear algebra ---- */

static ref *refer_einsum(const sample *s, ref *const *in) {
    char text[64], *part[4] = { text, "", "", "" };
    int n = 1;
    snprintf(text, sizeof text, "%s", s->text);
    char *arrow = strchr(text, '>');
    arrow[-1] = 0;
    for (char *p = text; *p; p++) {
        if (*p == ',') {
            *p = 0;
            part[n++] = p + 1;
        }
    }
    return ref_einsum((const char *const *)part, arrow + 1, in, s->n);
}
BUILD(build_einsum, gn_einsum(s->text, in, s->n))
static void einsum_case(const char *text, gn_result failure) {
    static const int64_t sizes[] = { ['b' - 'a'] = 2, ['h' - 'a'] = 3, ['i' - 'a'] = 4, ['j' - 'a'] = 5,
                                     ['k' - 'a'] = 3, ['l' - 'a'] = 2, ['m' - 'a'] = 1, ['z' - 'a'] = 0 };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        sample s = { .what = text, .text = text, .build = build_einsum, .refer = refer_einsum, .failure = failure };
        for (const char *p = text; takes(d) && *p && *p != '-'; p += *p == ',') {
            gn_shape shape = GN_SCALAR;
            for (; *p && *p != ',' && *p != '-'; p++) shape.dims[shape.rank++] = sizes[*p - 'a'];
            add_input(&s, d, shape, FILL_SMALL, VIEW_ANY);
        }
        if (takes(d)) run(&s);
    }
}
static void cases_einsum(void) {
    static const char *const texts[] = {
        "ij->ij",     "ij->ji",     "ij->i",          "ij->",         "ii->i",           "ii->",
        "bii->ib",    "ij,jk->ik",  "ij,jk->ki",      "bij,bjk->bik", "bhik,bhjk->bhij", "i,j->ij",
        "i,i->",      "i,i->i",     "ij,ij->ij",      "bij,j->bi",    "ij,kl->iljk",     "ij,jk,kl->il",
        "ij,jk,kl->", "i,i,i->i",   "bi,bj,bk->bijk", ",i->i",        "iz,zj->ij",       "zi,ij->zj",
        "imj,mj->im", "iij,jk->ki", "ijij->ji",       "bhjk,i->hki",
    };
    for (int k = 0; k < TEST_COUNT(texts); k++) einsum_case(texts[k], GN_OK);
    einsum_case("ij,jk->il", GN_BAD_ARGUMENT); /* not a label of the inputs */
    einsum_case("ij,jk->ii", GN_BAD_ARGUMENT);
    einsum_case("ij,jk-ik", GN_BAD_ARGUMENT);
    einsum_case("bhij,klm->bhijklm", GN_OK);
}

BUILD(build_outer, gn_outer(in[0], in[1]))
REFER(refer_outer, ref_einsum((const char *const[]){ "i", "j" }, "ij", in, 2))
static void cases_outer(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int matrix = 0; matrix < 2; matrix++) {
            sample s = { .what = matrix ? "a matrix" : "vectors",
                         .build = build_outer,
                         .refer = refer_outer,
                         .failure = matrix ? GN_BAD_RANK : GN_OK };
            add_input(&s, d, matrix ? GN_SHAPE(5, 1) : GN_SHAPE(5), FILL_SMALL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(7), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

static ref *refer_vecdot(const sample *s, ref *const *in) {
    ref *y = ref_einsum((const char *const[]){ "ijk", "ijk" }, s->p[0] == 1 ? "ik" : "ij", in, 2);
    if (y->i) {
        y->dtype = ref_summed(in[0]->dtype);
        for (int64_t k = 0; k < y->n; k++) {
            int64_t outer = s->p[0] == 1 ? y->shape.dims[1] : 1, n = s->p[0] == 1 ? 4 : 5,
                    base = k / outer * outer * n + k % outer;
            y->i[k] = 0;
            for (int64_t j = 0; j < n; j++)
                y->i[k] += ref_wrap(in[0]->dtype, in[0]->i[base + j * outer] * in[1]->i[base + j * outer]);
        }
    }
    return y;
}
BUILD(build_vecdot, gn_vecdot(in[0], in[1], (int)s->p[0]))
static void cases_vecdot(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int axis = 1; takes(d) && axis <= 2; axis++) {
            sample s = { .what = "vecdot", .build = build_vecdot, .refer = refer_vecdot, .p = { axis } };
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SMALL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

/* ---- movement ---- */

static int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

static bool from_flip(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    for (int i = 0; i < a->shape.rank; i++) {
        bool named = s->axes.n == 0;
        for (int k = 0; k < s->axes.n; k++) named = named || ref_axis(a, s->axes.axis[k]) == i;
        from[i] = named ? a->shape.dims[i] - 1 - c[i] : c[i];
    }
    return true;
}
BUILD(build_flip, gn_flip(in[0], s->axes))
REFER(refer_flip, ref_moved(in[0], in[0]->shape, from_flip, s, 0))
static void cases_flip(void) {
    static const gn_axes axes[] = { { 0, { 0 } }, { 1, { 0 } }, { 2, { -1, 0 } }, { 3, { 2, 0, 1 } } };
    for (int k = 0; k < TEST_COUNT(axes); k++) {
        move_cases((sample){ .what = "flip", .build = build_flip, .refer = refer_flip, .axes = axes[k] },
                   k % 2 ? GN_SHAPE(3, 4, 5) : GN_SHAPE(2, 0, 3));
    }
    move_cases((sample){ .what = "flip twice", .build = build_flip, .axes = { 2, { 0, -3 } }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4, 5));
}

static bool from_roll(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    int axis = ref_axis(a, (int)s->p[1]);
    memcpy(from, c, (size_t)a->shape.rank * sizeof *c);
    from[axis] = modulo(c[axis] - s->p[0] % a->shape.dims[axis], a->shape.dims[axis]);
    return true;
}
BUILD(build_roll, gn_roll(in[0], s->p[0], (int)s->p[1]))
REFER(refer_roll, ref_moved(in[0], in[0]->shape, from_roll, s, 0))
static void cases_roll(void) {
    static const int64_t forms[][2] = { { 0, 0 },  { 1, 1 },         { -1, -1 },      { 7, 1 },
                                        { -9, 2 }, { INT64_MIN, 0 }, { INT64_MAX, 1 } };
    for (int k = 0; k < TEST_COUNT(forms); k++) {
        move_cases(
            (sample){ .what = "roll", .build = build_roll, .refer = refer_roll, .p = { forms[k][0], forms[k][1] } },
            GN_SHAPE(3, 4, 5));
        move_cases((sample){ .what = "roll of nothing",
                             .build = build_roll,
                             .refer = refer_roll,
                             .p = { forms[k][0], forms[k][1] } },
                   GN_SHAPE(0, 0, 0));
    }
    move_cases((sample){ .what = "axis outside", .build = build_roll, .p = { 1, 3 }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4, 5));
}

static bool from_tile(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    (void)how;
    for (int i = 0; i < a->shape.rank; i++) from[i] = c[i] % a->shape.dims[i];
    return true;
}
BUILD(build_tile, gn_tile(in[0], s->shape))
static ref *refer_tile(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape;
    for (int i = 0; i < shape.rank; i++) shape.dims[i] *= s->shape.dims[i];
    return ref_moved(in[0], shape, from_tile, s, 0);
}
static void cases_tile(void) {
    static const gn_shape times[] = { { 2, { 1, 1 } }, { 2, { 2, 1 } }, { 2, { 3, 2 } }, { 2, { 0, 2 } } };
    for (int k = 0; k < TEST_COUNT(times) * 2; k++) {
        move_cases((sample){ .what = "tile", .build = build_tile, .refer = refer_tile, .shape = times[k / 2] },
                   k % 2 ? GN_SHAPE(3, 4) : GN_SHAPE(3, 0));
    }
    move_cases((sample){ .what = "tile, rank 8",
                         .build = build_tile,
                         .refer = refer_tile,
                         .shape = { 8, { 1, 2, 1, 1, 2, 3, 1, 1 } } },
               GN_SHAPE(1, 2, 1, 3, 2, 1, 2, 3));
    move_cases((sample){ .what = "other rank", .build = build_tile, .shape = { 1, { 2 } }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4));
    move_cases((sample){ .what = "too many",
                         .build = build_tile,
                         .shape = { 2, { INT64_MAX, 1 } },
                         .failure = GN_BAD_ARGUMENT },
               GN_SHAPE(3, 4));
    move_cases((sample){ .what = "negative",
                         .build = build_tile,
                         .shape = { 2, { INT64_MIN, 1 } },
                         .failure = GN_BAD_ARGUMENT },
               GN_SHAPE(3, 4));
}

static bool from_repeat(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    memcpy(from, c, (size_t)a->shape.rank * sizeof *c);
    from[ref_axis(a, (int)s->p[1])] /= s->p[0];
    return true;
}
BUILD(build_repeat, gn_repeat(in[0], s->p[0], (int)s->p[1]))
static ref *refer_repeat(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape;
    shape.dims[ref_axis(in[0], (int)s->p[1])] *= s->p[0];
    return ref_moved(in[0], shape, from_repeat, s, 0);
}
static void cases_repeat(void) {
    static const int64_t forms[][2] = { { 1, 0 }, { 3, 0 }, { 2, -1 }, { 0, 1 } };
    for (int k = 0; k < TEST_COUNT(forms); k++) {
        move_cases((sample){ .what = "repeat",
                             .build = build_repeat,
                             .refer = refer_repeat,
                             .p = { forms[k][0], forms[k][1] } },
                   GN_SHAPE(3, 4, 5));
    }
    move_cases((sample){ .what = "negative", .build = build_repeat, .p = { INT64_MIN, 0 }, .failure = GN_BAD_ARGUMENT },
               GN_SHAPE(3, 4, 5));
    move_cases((sample){ .what = "axis outside", .build = build_repeat, .p = { 2, -4 }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4, 5));
}

BUILD(build_expand, gn_expand(in[0], s->shape))
static ref *refer_expand(const sample *s, ref *const *in) {
    gn_shape shape = s->shape;
    for (int i = 1; i <= in[0]->shape.rank; i++) {
        int64_t *d = &shape.dims[shape.rank - i];
        *d = *d == -1 ? in[0]->shape.dims[in[0]->shape.rank - i] : *d;
    }
    return ref_broadcast(in[0], shape);
}
static void cases_expand(void) {
    move_cases((sample){ .what = "expand", .build = build_expand, .refer = refer_expand, .shape = { 2, { -1, 4 } } },
               GN_SHAPE(3, 1));
    move_cases(
        (sample){ .what = "expand", .build = build_expand, .refer = refer_expand, .shape = { 3, { 2, -1, -1 } } },
        GN_SHAPE(3, 4));
    move_cases((sample){ .what = "a new axis of -1",
                         .build = build_expand,
                         .shape = { 3, { -1, 3, 4 } },
                         .failure = GN_BAD_SHAPE },
               GN_SHAPE(3, 4));
}

BUILD(build_squeeze, gn_squeeze(in[0], s->axes))
BUILD(build_unsqueeze, gn_unsqueeze(in[0], (int)s->p[0]))
REFER(refer_shaped, ref_reshape(in[0], s->shape))
static void cases_squeeze(void) {
    move_cases((sample){ .what = "all", .build = build_squeeze, .refer = refer_shaped, .shape = { 2, { 3, 4 } } },
               GN_SHAPE(1, 3, 1, 4));
    move_cases((sample){ .what = "one",
                         .build = build_squeeze,
                         .refer = refer_shaped,
                         .axes = { 1, { -2 } },
                         .shape = { 3, { 1, 3, 4 } } },
               GN_SHAPE(1, 3, 1, 4));
    move_cases((sample){ .what = "to a scalar", .build = build_squeeze, .refer = refer_shaped, .shape = { 0, { 0 } } },
               GN_SHAPE(1, 1));
    move_cases((sample){ .what = "size 3", .build = build_squeeze, .axes = { 1, { 1 } }, .failure = GN_BAD_SHAPE },
               GN_SHAPE(1, 3, 1, 4));
    move_cases((sample){ .what = "axis outside", .build = build_squeeze, .axes = { 1, { 4 } }, .failure = GN_BAD_RANK },
               GN_SHAPE(1, 3, 1, 4));
}
static void cases_unsqueeze(void) {
    move_cases(
        (sample){ .what = "front", .build = build_unsqueeze, .refer = refer_shaped, .shape = { 3, { 1, 3, 4 } } },
        GN_SHAPE(3, 4));
    move_cases(
        (sample){
            .what = "back", .build = build_unsqueeze, .refer = refer_shaped, .p = { -1 }, .shape = { 3, { 3, 4, 1 } } },
        GN_SHAPE(3, 4));
    move_cases((sample){ .what = "inside",
                         .build = build_unsqueeze,
                         .refer = refer_shaped,
                         .p = { 1 },
                         .shape = { 3, { 3, 1, 4 } } },
               GN_SHAPE(3, 4));
    move_cases((sample){ .what = "axis outside", .build = build_unsqueeze, .p = { 3 }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4));
    move_cases((sample){ .what = "rank 9", .build = build_unsqueeze, .failure = GN_BAD_RANK },
               GN_SHAPE(1, 2, 1, 3, 2, 1, 2, 3));
}

BUILD(build_stack, gn_stack(in, s->n, (int)s->p[0]))
static ref *refer_stack(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape;
    int axis = s->p[0] < 0 ? (int)s->p[0] + shape.rank + 1 : (int)s->p[0];
    for (int i = shape.rank++; i > axis; i--) shape.dims[i] = shape.dims[i - 1];
    shape.dims[axis] = s->n;
    ref *y = ref_make(in[0]->dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(shape, k, c);
        const ref *part = in[c[axis]];
        memmove(c + axis, c + axis + 1, (size_t)(shape.rank - axis - 1) * sizeof *c);
        ref_copy(y, k, part, ref_index(part->shape, c));
    }
    return y;
}
static void cases_stack(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int axis = -3; axis < 3; axis++) {
            sample s = { .what = "stack", .build = build_stack, .refer = refer_stack, .p = { axis } };
            for (int i = 0; i < 3; i++) add_input(&s, d, GN_SHAPE(3, 4), FILL_SPECIAL, VIEW_ANY);
            run(&s);
        }
    }
}

static gn_tensor build_split(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_tensor out[3] = { GN_NONE, GN_NONE, GN_NONE };
    (void)g;
    gn_split(in[0], (int)s->p[0], s->flag ? NULL : s->shape.dims, 3, out);
    return out[s->p[1]];
}
static ref *refer_split(const sample *s, ref *const *in) {
    int64_t begin = 0, sizes[3];
    for (int i = 0; i < 3; i++) {
        sizes[i] = s->flag ? in[0]->shape.dims[ref_axis(in[0], (int)s->p[0])] / 3 : s->shape.dims[i];
        begin += i < s->p[1] ? sizes[i] : 0;
    }
    return ref_slice(in[0], (int)s->p[0], begin, begin + sizes[s->p[1]], 1);
}
static void cases_split(void) {
    for (int k = 0; k < 3; k++) {
        move_cases((sample){ .what = "equal", .build = build_split, .refer = refer_split, .p = { 1, k }, .flag = true },
                   GN_SHAPE(2, 6, 3));
        move_cases((sample){ .what = "sizes",
                             .build = build_split,
                             .refer = refer_split,
                             .p = { -2, k },
                             .shape = { 3, { 1, 0, 5 } } },
                   GN_SHAPE(2, 6, 3));
        move_cases(
            (sample){ .what = "not equal", .build = build_split, .p = { 0, k }, .flag = true, .failure = GN_BAD_SHAPE },
            GN_SHAPE(2, 6, 3));
        move_cases((sample){ .what = "too short",
                             .build = build_split,
                             .p = { 1, k },
                             .shape = { 3, { 1, 2, 2 } },
                             .failure = GN_BAD_SHAPE },
                   GN_SHAPE(2, 6, 3));
        move_cases((sample){ .what = "overflow",
                             .build = build_split,
                             .p = { 1, k },
                             .shape = { 3, { INT64_MAX, INT64_MAX, 8 } },
                             .failure = GN_BAD_SHAPE },
                   GN_SHAPE(2, 6, 3));
        move_cases(
            (sample){
                .what = "axis outside", .build = build_split, .p = { 3, k }, .flag = true, .failure = GN_BAD_RANK },
            GN_SHAPE(2, 6, 3));
    }
}

static bool from_pad(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    bool inside = true;
    for (int i = 0; i < a->shape.rank; i++) {
        int64_t n = a->shape.dims[i], x = c[i] - s->shape.dims[i];
        inside = inside && x >= 0 && x < n;
        if (s->p[0] == GN_PAD_EDGE) x = x < 0 ? 0 : x >= n ? n - 1 : x;
        else if (s->p[0] == GN_PAD_REFLECT) x = x < 0 ? -x : x >= n ? 2 * n - 2 - x : x;
        from[i] = x;
    }
    return inside || s->p[0] != GN_PAD_CONSTANT;
}
static gn_shape after_pad(const sample *s) {
    gn_shape after = s->shape;
    after.dims[0] = s->p[1];
    return after;
}
BUILD(build_pad, gn_pad(in[0], s->shape, after_pad(s), (gn_pad_mode)s->p[0], held(dtype_of(in[0]), s->d[0])))
static ref *refer_pad(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape, after = after_pad(s);
    for (int i = 0; i < shape.rank; i++) shape.dims[i] += s->shape.dims[i] + after.dims[i];
    return ref_moved(in[0], shape, from_pad, s, s->d[0]);
}
static void pad_case(const char *what, int mode, gn_shape before, int64_t after, gn_shape shape, gn_result failure) {
    move_cases((sample){ .what = what,
                         .build = build_pad,
                         .refer = refer_pad,
                         .p = { mode, after },
                         .shape = before,
                         .d = { 1.5 },
                         .failure = failure },
               shape);
}
static void cases_pad(void) {
    for (int mode = GN_PAD_CONSTANT; mode < GN_PAD__COUNT; mode++) {
        pad_case("none", mode, GN_SHAPE(0, 0), 0, GN_SHAPE(3, 4), GN_OK);
        pad_case("both", mode, GN_SHAPE(2, 1), 1, GN_SHAPE(3, 4), GN_OK);
        pad_case("after", mode, GN_SHAPE(0, 3, 0), 2, GN_SHAPE(3, 4, 2), GN_OK);
        pad_case("an axis of 1", mode, GN_SHAPE(0, 2), 0, GN_SHAPE(1, 3), GN_OK);
        pad_case("one side", mode, GN_SHAPE(0), 1, GN_SHAPE(5), GN_OK);
        pad_case("an empty axis beside", mode, GN_SHAPE(1, 0), 1, GN_SHAPE(3, 0), GN_OK);
        pad_case("negative", mode, GN_SHAPE(INT64_MIN, 0), 0, GN_SHAPE(3, 4), GN_BAD_ARGUMENT);
        pad_case("too many", mode, GN_SHAPE(INT64_MAX, 0), 0, GN_SHAPE(3, 4), GN_BAD_ARGUMENT);
        pad_case("other rank", mode, GN_SHAPE(1), 0, GN_SHAPE(3, 4), GN_BAD_RANK);
    }
    pad_case("nothing", GN_PAD_CONSTANT, GN_SHAPE(2), 1, GN_SHAPE(0), GN_OK);
    pad_case("nothing to repeat", GN_PAD_EDGE, GN_SHAPE(2), 1, GN_SHAPE(0), GN_BAD_ARGUMENT);
    pad_case("more than is there", GN_PAD_REFLECT, GN_SHAPE(3), 0, GN_SHAPE(3), GN_BAD_ARGUMENT);
    pad_case("no such mode", GN_PAD__COUNT, GN_SHAPE(3), 0, GN_SHAPE(3), GN_BAD_ARGUMENT);
}

static bool from_triangle(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    int r = a->shape.rank;
    int64_t k = c[r - 1] - c[r - 2];
    memcpy(from, c, (size_t)r * sizeof *c);
    return s->flag ? k >= s->p[0] : k <= s->p[0];
}
BUILD(build_triangle, s->flag ? gn_triu(in[0], s->p[0]) : gn_tril(in[0], s->p[0]))
REFER(refer_triangle, ref_moved(in[0], in[0]->shape, from_triangle, s, 0))
static void triangle_cases(bool upper) {
    static const int64_t k[] = { 0, 1, -1, 2, -3, INT64_MAX, INT64_MIN };
    for (int i = 0; i < TEST_COUNT(k); i++) {
        move_cases(
            (sample){
                .what = "square", .build = build_triangle, .refer = refer_triangle, .p = { k[i] }, .flag = upper },
            GN_SHAPE(4, 4));
        move_cases(
            (sample){ .what = "batch", .build = build_triangle, .refer = refer_triangle, .p = { k[i] }, .flag = upper },
            GN_SHAPE(2, 3, 5));
        move_cases(
            (sample){
                .what = "narrow", .build = build_triangle, .refer = refer_triangle, .p = { k[i] }, .flag = upper },
            GN_SHAPE(1, 0));
    }
    move_cases((sample){ .what = "vector", .build = build_triangle, .flag = upper, .failure = GN_BAD_RANK },
               GN_SHAPE(4));
}
static void cases_tril(void) { triangle_cases(false); }
static void cases_triu(void) { triangle_cases(true); }

static bool from_diagonal(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    int rows = ref_axis(a, (int)s->p[1]), columns = ref_axis(a, (int)s->p[2]), k = 0;
    int64_t at = c[a->shape.rank - 2];
    for (int i = 0; i < a->shape.rank; i++) {
        from[i] = i == rows      ? at - (s->p[0] < 0 ? s->p[0] : 0)
                  : i == columns ? at + (s->p[0] > 0 ? s->p[0] : 0)
                                 : c[k++];
    }
    return true;
}
BUILD(build_diagonal, gn_diagonal(in[0], s->p[0], (int)s->p[1], (int)s->p[2]))
static ref *refer_diagonal(const sample *s, ref *const *in) {
    gn_shape shape = GN_SCALAR;
    int64_t n = 0;
    for (int i = 0; i < in[0]->shape.rank; i++)
        if (i != ref_axis(in[0], (int)s->p[1]) && i != ref_axis(in[0], (int)s->p[2]))
            shape.dims[shape.rank++] = in[0]->shape.dims[i];
    for (int64_t i = 0; i < in[0]->shape.dims[ref_axis(in[0], (int)s->p[1])]; i++)
        for (int64_t j = 0; j < in[0]->shape.dims[ref_axis(in[0], (int)s->p[2])]; j++) n += j - i == s->p[0];
    shape.dims[shape.rank++] = n;
    return ref_moved(in[0], shape, from_diagonal, s, 0);
}
static void cases_diagonal(void) {
    static const int64_t forms[][3] = { { 0, 0, 1 },         { 1, 0, 1 }, { -2, 0, 1 }, { 0, 1, 0 },
                                        { 1, -1, 0 },        { 2, 1, 2 }, { 5, 0, 1 },  { INT64_MIN, 0, 1 },
                                        { INT64_MAX, 0, 1 }, { -1, 2, 0 } };
    for (int k = 0; k < TEST_COUNT(forms); k++) {
        move_cases((sample){ .what = "diagonal",
                             .build = build_diagonal,
                             .refer = refer_diagonal,
                             .p = { forms[k][0], forms[k][1], forms[k][2] } },
                   GN_SHAPE(3, 4, 5));
    }
    move_cases((sample){ .what = "nothing", .build = build_diagonal, .refer = refer_diagonal, .p = { 0, 0, 1 } },
               GN_SHAPE(0, 4));
    move_cases((sample){ .what = "one axis twice", .build = build_diagonal, .p = { 0, 1, -2 }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4, 5));
    move_cases((sample){ .what = "axis outside", .build = build_diagonal, .p = { 0, 1, 3 }, .failure = GN_BAD_RANK },
               GN_SHAPE(3, 4, 5));
}

/* q: kernel, stride, pad, dilation, each y and x */
static int64_t windows(const sample *s, gn_shape shape, int i) {
    return (shape.dims[2 + i] + 2 * s->q[4 + i] - s->q[6 + i] * (s->q[i] - 1) - 1) / s->q[2 + i] + 1;
}
static bool from_window(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    int64_t kernel = s->q[0] * s->q[1], across = windows(s, a->shape, 1);
    from[0] = c[0];
    from[1] = c[1] / kernel;
    from[2] = c[2] / across * s->q[2] - s->q[4] + c[1] % kernel / s->q[1] * s->q[6];
    from[3] = c[2] % across * s->q[3] - s->q[5] + c[1] % s->q[1] * s->q[7];
    return from[2] >= 0 && from[2] < a->shape.dims[2] && from[3] >= 0 && from[3] < a->shape.dims[3];
}
BUILD(build_im2col, gn_im2col(in[0], GN_SHAPE(s->q[0], s->q[1]), GN_SHAPE(s->q[2], s->q[3]), GN_SHAPE(s->q[4], s->q[5]),
                              GN_SHAPE(s->q[6], s->q[7])))
static ref *refer_im2col(const sample *s, ref *const *in) {
    gn_shape x = in[0]->shape;
    return ref_moved(in[0], GN_SHAPE(x.dims[0], x.dims[1] * s->q[0] * s->q[1], windows(s, x, 0) * windows(s, x, 1)),
                     from_window, s, 0);
}
static void cases_im2col(void) {
    static const struct {
        int64_t q[8];
        gn_result failure;
    } forms[] = {
        { { 1, 1, 1, 1, 0, 0, 1, 1 }, GN_OK },
        { { 3, 3, 1, 1, 1, 1, 1, 1 }, GN_OK },
        { { 2, 3, 2, 1, 0, 2, 1, 1 }, GN_OK },
        { { 3, 2, 2, 3, 1, 0, 2, 3 }, GN_OK },
        { { 5, 6, 1, 1, 0, 0, 1, 1 }, GN_OK },
        { { 6, 1, 1, 1, 0, 0, 1, 1 }, GN_BAD_SHAPE },
        { { 3, 3, 1, 1, 0, 0, INT64_MAX / 2, 1 }, GN_BAD_ARGUMENT },
        { { 3, 3, 0, 1, 0, 0, 1, 1 }, GN_BAD_ARGUMENT },
        { { 3, 3, 1, INT64_MIN, 0, 0, 1, 1 }, GN_BAD_ARGUMENT },
        { { 3, 3, 1, 1, -1, 0, 1, 1 }, GN_BAD_ARGUMENT },
        { { 3, 3, 1, 1, 0, INT64_MAX, 1, 1 }, GN_BAD_ARGUMENT },
        { { 3, 3, 1, 1, 0, 0, 1, 0 }, GN_BAD_ARGUMENT },
        { { 0, 3, 1, 1, 0, 0, 1, 1 }, GN_BAD_ARGUMENT },
        { { INT64_MAX, 3, 1, 1, 0, 0, 1, 1 }, GN_BAD_SHAPE },
    };
    for (int k = 0; k < TEST_COUNT(forms); k++) {
        sample s = { .what = "window", .build = build_im2col, .refer = refer_im2col, .failure = forms[k].failure };
        memcpy(s.q, forms[k].q, sizeof s.q);
        move_cases(s, GN_SHAPE(2, 3, 5, 6));
    }
}

/* ---- indexing ---- */

BUILD(build_scatter,
      s->flag ? gn_scatter_max(in[0], (int)s->p[0], in[1], in[2]) : gn_scatter(in[0], (int)s->p[0], in[1], in[2]))
REFER(refer_scatter, ref_scatter(in[0], (int)s->p[0], in[1], in[2], s->flag))
static void scatter_cases(bool larger) {
    for (int k = 0; k < TEST_COUNT(indexings) * 2; k++) {
        const indexing *x = &indexings[k / 2];
        for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
            sample s = {
                .what = "scatter", .build = build_scatter, .refer = refer_scatter, .p = { x->axis }, .flag = larger
            };
            add_input(&s, d, x->a, FILL_SPECIAL, VIEW_ANY);
            add_limited(&s, index_dtype(k), x->index, FILL_INDEX, VIEW_ANY,
                        x->a.dims[ref_axis(s.in[0].value, x->axis)]);
            add_input(&s, d, x->index, FILL_SPECIAL, VIEW_ANY);
            run(&s);
        }
    }
}
static void cases_scatter(void) { scatter_cases(false); }
static void cases_scatter_max(void) { scatter_cases(true); }

static bool from_select(const void *how, const ref *a, const int64_t *c, int64_t *from) {
    const sample *s = how;
    memcpy(from, c, (size_t)a->shape.rank * sizeof *c);
    from[ref_axis(a, (int)s->p[0])] = s->in[1].value->i[c[ref_axis(a, (int)s->p[0])]];
    return true;
}
BUILD(build_index_select, gn_index_select(in[0], (int)s->p[0], in[1]))
static ref *refer_index_select(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape;
    shape.dims[ref_axis(in[0], (int)s->p[0])] = in[1]->n;
    return ref_moved(in[0], shape, from_select, s, 0);
}
static void cases_index_select(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int axis = -3; axis <= 3; axis++) {
            sample s = { .what = "index_select",
                         .build = build_index_select,
                         .refer = refer_index_select,
                         .p = { axis },
                         .failure = axis == 3 ? GN_BAD_RANK : GN_OK };
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SPECIAL, VIEW_ANY);
            add_limited(&s, index_dtype(axis + 4), GN_SHAPE(axis == 0 ? 0 : 7), FILL_INDEX, VIEW_ANY, 3);
            run(&s);
        }
    }
}

BUILD(build_embedding_bag, gn_embedding_bag(in[0], in[1], in[2], (gn_bag_mode)s->p[0]))
REFER(refer_embedding_bag, ref_embedding_bag(in[0], in[1], in[2], (int)s->p[0]))
/* Bags of 0 to 3 ids, some or none of which are left over. */
static void cases_embedding_bag(void) {
    const gn_shape lengths[] = { GN_SHAPE(5), GN_SHAPE(2, 3), GN_SCALAR, GN_SHAPE(0), GN_SHAPE(1, 2, 1, 1, 1, 2, 1) };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(lengths) * 6; k++) {
            sample s = { .what = "embedding_bag",
                         .build = build_embedding_bag,
                         .refer = refer_embedding_bag,
                         .p = { k % 3 },
                         .failure = ref_is_float(d) ? GN_OK : GN_BAD_DTYPE };
            add_input(&s, d, GN_SHAPE(9, k == 3 ? 0 : 7), k / 3 % 2 ? FILL_SMALL : FILL_SUMMABLE, VIEW_ANY);
            add_limited(&s, index_dtype(k), GN_SHAPE(k < 6 ? 15 : k < 18 ? 18 : 12), FILL_INDEX, VIEW_ANY, 9);
            add_limited(&s, index_dtype(k / 2), lengths[k / 6], FILL_INDEX, VIEW_ANY, 4);
            run(&s);
        }
    }
}

BUILD(build_gather_nd, gn_gather_nd(in[0], in[1]))
REFER(refer_gather_nd, ref_gather_nd(in[0], in[1]))
static void cases_gather_nd(void) {
    const gn_shape index[] = { GN_SHAPE(1),    GN_SHAPE(6, 2), GN_SHAPE(2, 3, 3),
                               GN_SHAPE(0, 1), GN_SHAPE(2, 4), GN_SHAPE(2, 0) };
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < TEST_COUNT(index); k++) {
            sample s = { .what = "gather_nd",
                         .build = build_gather_nd,
                         .refer = refer_gather_nd,
                         .failure = k < 4 ? GN_OK : GN_BAD_RANK };
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SPECIAL, VIEW_ANY);
            add_limited(&s, index_dtype(k), index[k], FILL_INDEX, VIEW_ANY, 3);
            run(&s);
        }
    }
}

BUILD(build_masked_fill, gn_masked_fill(in[0], in[1], held(dtype_of(in[0]), s->d[0])))
static ref *refer_masked_fill(const sample *s, ref *const *in) {
    ref *x[3] = { in[1], ref_number(in[0]->dtype, s->d[0]), in[0] };
    return ref_where(x);
}
static void cases_masked_fill(void) {
    for (gn_dtype d = GN_F32; d < GN_DTYPE__COUNT; d++) {
        for (int k = 0; k < 2; k++) {
            sample s = { .what = "masked_fill",
                         .build = build_masked_fill,
                         .refer = refer_masked_fill,
                         .d = { k ? -INFINITY : 7.3 } };
            add_input(&s, d, GN_SHAPE(3, 4, 5), FILL_SPECIAL, VIEW_ANY);
            add_input(&s, GN_BOOL, k ? GN_SHAPE(4, 1) : GN_SHAPE(3, 4, 5), FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

BUILD(build_nonzero, gn_nonzero(in[0], s->p[0]))
REFER(refer_nonzero, ref_nonzero(in[0], s->p[0]))
static void cases_nonzero(void) {
    const gn_shape shapes[] = { GN_SCALAR, GN_SHAPE(20), GN_SHAPE(3, 4, 5), GN_SHAPE(2, 0),
                                GN_SHAPE(1, 2, 1, 3, 2, 1, 2, 3) };
    for (int k = 0; k < TEST_COUNT(shapes); k++) {
        move_cases((sample){ .what = "as many as there are",
                             .build = build_nonzero,
                             .refer = refer_nonzero,
                             .p = { ref_elements(shapes[k]) } },
                   shapes[k]);
        move_cases((sample){ .what = "more",
                             .build = build_nonzero,
                             .refer = refer_nonzero,
                             .p = { ref_elements(shapes[k]) + 9 } },
                   shapes[k]);
        move_cases((sample){ .what = "negative", .build = build_nonzero, .p = { -1 }, .failure = GN_BAD_SHAPE },
                   shapes[k]);
    }
}

/* ---- rotary embedding and losses ---- */

/* Scalings as models are published with them, and small ones whose ramps lie within a small head. */
static const gn_rotary_desc turns[] = {
    { .base = 10000 },
    { .base = 500000, .scaling = GN_ROTARY_LINEAR, .factor = 4 },
    { .scaling = GN_ROTARY_NTK, .factor = 8 },
    { .base = 1000000, .scaling = GN_ROTARY_YARN, .factor = 4, .context = 32768 },
    { .base = 100, .scaling = GN_ROTARY_YARN, .factor = 16, .context = 64, .beta_fast = 8, .magnitude = 1.25 },
    { .base = 500000, .scaling = GN_ROTARY_LLAMA3, .factor = 8, .context = 8192 },
    { .base = 50,
      .scaling = GN_ROTARY_LLAMA3,
      .factor = 32,
      .context = 100,
      .low_frequency = 0.5,
      .high_frequency = 3 },
    { .scaling = GN_ROTARY_YARN, .factor = 0.5, .context = 1 },
};

static gn_rotary_desc turn_of(const sample *s) {
    gn_rotary_desc d = turns[s->p[0]];
    d.interleaved = s->flag;
    d.size = s->p[1];
    return d;
}
static gn_tensor build_turn(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_rotary_desc d = turn_of(s);
    (void)g;
    if (s->p[0] == 0 && s->p[1] == 0) return gn_rotary(in[0], in[1], d.base, d.interleaved);
    return gn_rotary_with(in[0], in[1], &d);
}
static ref *refer_turn(const sample *s, ref *const *in) {
    gn_rotary_desc d = turn_of(s);
    return ref_rotary(in[0], in[1], &d);
}
static void turn_cases(int first, int last, int64_t size, bool partial) {
    const gn_shape shapes[][2] = { { GN_SHAPE(5, 8), GN_SHAPE(5) },
                                   { GN_SHAPE(2, 3, 5, 4), GN_SHAPE(5) },
                                   { GN_SHAPE(2, 3, 5, 4), GN_SHAPE(2, 1, 5) },
                                   { GN_SHAPE(2, 3, 40), GN_SHAPE(2, 3) }, /* a position for each row */
                                   { GN_SHAPE(2, 0, 6), GN_SHAPE(1) },
                                   { GN_SHAPE(3, 1, 2), GN_SHAPE(1) },
                                   { GN_SHAPE(2, 2, 300), GN_SCALAR },
                                   { GN_SHAPE(5, 7), GN_SHAPE(5) } };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(shapes) * 2; k++) {
            for (int how = first; how <= last; how++) {
                const gn_shape *x = &shapes[k / 2][0];
                int64_t width = x->dims[x->rank - 1];
                sample s = { .what = k % 2 ? "interleaved" : "halves",
                             .build = build_turn,
                             .refer = refer_turn,
                             .p = { how, !partial       ? 0
                                         : size < width ? size
                                                        : width - width % 2 },
                             .flag = k % 2 };
                s.failure = !partial && width % 2 ? GN_BAD_SHAPE : GN_OK;
                if (turns[how].scaling == GN_ROTARY_NTK && width < 4 && !s.failure) s.failure = GN_BAD_ARGUMENT;
                add_input(&s, d, *x, FILL_SMALL, VIEW_ANY);
                add_limited(&s, index_dtype(k), shapes[k / 2][1], FILL_INDEX, VIEW_ANY, 3000);
                run(&s);
            }
        }
    }
}
static void cases_rotary_with(void) {
    turn_cases(0, TEST_COUNT(turns) - 1, 0, false);
    turn_cases(0, 1, 4, true);
    turn_cases(0, 0, 40, true);
}

BUILD(build_turn_by, gn_rotary_by(in[0], in[1], s->flag))
REFER(refer_turn_by, ref_rotary_by(in[0], in[1], s->flag))
static void cases_rotary(void) {
    const gn_shape shapes[][2] = {
        { GN_SHAPE(2, 5, 8), GN_SHAPE(5, 8) },      { GN_SHAPE(2, 3, 5, 12), GN_SHAPE(2, 1, 1, 8) },
        { GN_SHAPE(3, 128), GN_SHAPE(128) },        { GN_SHAPE(2, 3, 7), GN_SHAPE(2, 3, 6) },
        { GN_SHAPE(4, 600), GN_SHAPE(4, 520) },     { GN_SHAPE(2, 3, 6), GN_SHAPE(3, 0) },
        { GN_SHAPE(0, 3, 6), GN_SHAPE(3, 6) },      { GN_SHAPE(2, 3, 8), GN_SHAPE(3, 10) },
        { GN_SHAPE(2, 3, 8), GN_SHAPE(2, 2, 3, 8) }
    };
    turn_cases(0, 0, 0, false);
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(shapes) * 2; k++) {
            sample s = { .what = "by a table", .build = build_turn_by, .refer = refer_turn_by, .flag = k % 2 };
            s.failure = k / 2 >= 7 ? GN_BAD_SHAPE : GN_OK;
            add_input(&s, d, shapes[k / 2][0], FILL_SMALL, VIEW_ANY);
            add_input(&s, d == GN_F64 ? GN_F64 : GN_F32, shapes[k / 2][1], FILL_SMALL, VIEW_ANY);
            run(&s);
        }
    }
}

static gn_tensor build_turn_table(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_rotary_desc d = turn_of(s);
    (void)g;
    return gn_rotary_table(in[0], s->dtype, &d);
}
static ref *refer_turn_table(const sample *s, ref *const *in) {
    gn_rotary_desc d = turn_of(s);
    return ref_rotary_table(in[0], s->dtype, &d);
}
static void cases_rotary_table(void) {
    const gn_shape shapes[] = { GN_SCALAR, GN_SHAPE(7), GN_SHAPE(2, 1, 5), GN_SHAPE(3, 0) };
    for (int k = 0; k < TEST_COUNT(shapes); k++) {
        for (int how = 0; how < TEST_COUNT(turns); how++) {
            for (int size = 0; size < 3; size++) {
                sample s = { .what = "table",
                             .build = build_turn_table,
                             .refer = refer_turn_table,
                             .dtype = (k + how) % 2 ? GN_F64 : GN_F32,
                             .p = { how, size == 0   ? 4
                                         : size == 1 ? 128
                                                     : 1100 } };
                add_limited(&s, index_dtype(k), shapes[k], FILL_INDEX, VIEW_ANY, size == 1 ? 1000000 : 5000);
                run(&s);
            }
        }
    }
}

/* ---- sampling ---- */

enum { BY_TEMPERATURE = 1, BY_TOP_K = 2, BY_TOP_P = 4, BY_MIN_P = 8 };

static gn_tensor build_draw(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_sample_desc d = { .seed = in[1], .counter = in[2] };
    int at = 3;
    (void)g;
    if (s->p[0] & BY_TEMPERATURE) d.temperature = in[at++];
    if (s->p[0] & BY_TOP_K) d.top_k = in[at++];
    if (s->p[0] & BY_TOP_P) d.top_p = in[at++];
    if (s->p[0] & BY_MIN_P) d.min_p = in[at++];
    return gn_sample(in[0], &d);
}

static int falling(const void *a, const void *b) {
    ref_real x = *(const ref_real *)a, y = *(const ref_real *)b;
    return (x < y) - (x > y);
}

/* By the definitions, in long double: what is left of a row's weights, then the draw. *nearest: how close any of it
   came to a boundary. */
static int64_t draw_row(const ref_real *x, int64_t n, ref_real t, int64_t k, ref_real p, ref_real least, ref_real u,
                        ref_real *nearest) {
    ref_real *sorted = ref__alloc((size_t)n, sizeof *sorted), *weights = ref__alloc((size_t)n, sizeof *weights);
    ref_real top = -(ref_real)INFINITY, total = 0, sum = 0, from;
    int64_t first = -1, token = -1;
    bool known = t >= 0 && t < (ref_real)INFINITY && k >= 0 && p >= 0 && least >= 0 && least <= 1;
    for (int64_t i = 0; i < n; i++) {
        known = known && !isnan(x[i]);
        if (x[i] > top) top = x[i], first = i;
        sorted[i] = x[i];
    }
    if (!known || first < 0 || t == 0) {
        free(sorted);
        free(weights);
        return known ? first : -1;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    from = k > 0 && k < n ? sorted[k - 1] : -(ref_real)INFINITY;
    for (int64_t i = 0; i < n; i++) {
        weights[i] = x[i] == top ? 1 : top == (ref_real)INFINITY ? 0 : expl((x[i] - top) / t);
        total += x[i] >= from ? weights[i] : 0;
    }
    for (int64_t i = 0; p < 1 && i < n; i++) {
        sum += sorted[i] == top ? 1 : top == (ref_real)INFINITY ? 0 : expl((sorted[i] - top) / t);
        if (fabsl(sum / total - p) < *nearest) *nearest = fabsl(sum / total - p);
        if (sum < p * total) continue;
        from = sorted[i];
        break;
    }
    total = 0;
    for (int64_t i = 0; i < n; i++) {
        if (least > 0 && weights[i] < 1 && fabsl(weights[i] - least) < *nearest) *nearest = fabsl(weights[i] - least);
        if (x[i] < from || weights[i] < least) weights[i] = 0;
        total += weights[i];
    }
    sum = 0;
    for (int64_t i = 0; i < n && token < 0; i++) {
        sum += weights[i] / total;
        if (weights[i] > 0 && fabsl(sum - u) < *nearest) *nearest = fabsl(sum - u);
        if (sum > u) token = i;
    }
    free(sorted);
    free(weights);
    return token;
}

static ref *draw_rows(const sample *s, ref *const *in, ref_real *nearest) {
    gn_shape rows = in[0]->shape;
    int64_t n = rows.dims[--rows.rank], c[GN_MAX_RANK];
    ref *y = ref_make(GN_I64, rows);
    ref_real *x = ref__alloc((size_t)n, sizeof *x);
    for (int64_t row = 0; row < y->n; row++) {
        ref_real number[4] = { 1, 0, 1, 0 };
        uint32_t words[4], key[2], counter[4] = { 0 };
        ref_coords(rows, row, c);
        for (int b = 0, at = 3; b < 4; b++) {
            if (!(s->p[0] >> b & 1)) continue;
            int64_t k = ref_broadcast_index(in[at]->shape, rows, c);
            number[b] = in[at]->f ? in[at]->f[k] : (ref_real)in[at]->i[k];
            at++;
        }
        uint64_t seed = (uint64_t)in[1]->i[ref_broadcast_index(in[1]->shape, rows, c)],
                 count = (uint64_t)in[2]->i[ref_broadcast_index(in[2]->shape, rows, c)];
        key[0] = (uint32_t)seed, key[1] = (uint32_t)(seed >> 32);
        counter[0] = (uint32_t)count, counter[1] = (uint32_t)(count >> 32);
        philox(counter, key, words);
        for (int64_t i = 0; i < n; i++) x[i] = ref_round(GN_F32, in[0]->f[row * n + i]);
        y->i[row] = draw_row(x, n, number[0], (int64_t)number[1], number[2], number[3], ldexpl(words[0], -32), nearest);
    }
    free(x);
    return y;
}
static ref *refer_draw(const sample *s, ref *const *in) {
    ref_real nearest = 1;
    return draw_rows(s, in, &nearest);
}

/* Numbers of an input replaced, after it was made without a view. */
static void put_numbers(input *in, const double *numbers, int n) {
    for (int64_t k = 0; k < in->base->n; k++)
        if (in->base->f) in->base->f[k] = ref_round(in->base->dtype, (ref_real)numbers[test_random_int(0, n - 1)]);
        else in->base->i[k] = (int64_t)numbers[test_random_int(0, n - 1)];
    free(in->bytes);
    in->bytes = ref_encode(in->base);
}

static sample draw_sample(gn_dtype d, gn_shape shape, int64_t bits, fill f, bool each) {
    static const double warmth[] = { 0, 0.25, 0.7, 1, 1.5, 40 }, ks[] = { 0, 1, 2, 3, 5, 40, 9000 },
                        ps[] = { 0, 0.1, 0.5, 0.9, 0.97, 1, 2 }, leasts[] = { 0, 0.01, 0.2, 1 };
    sample s = { .what = "draw", .build = build_draw, .refer = refer_draw, .p = { bits } };
    gn_shape rows = shape;
    rows.rank -= 1;
    if (!each) rows = GN_SCALAR;
    add_input(&s, d, shape, f, VIEW_ANY);
    add_input(&s, GN_I64, rows, FILL_WIDE, VIEW_ANY);
    add_input(&s, (bits & 1) ? GN_I64 : GN_I32, rows, FILL_POSITIVE, VIEW_ANY);
    if (bits & BY_TEMPERATURE)
        add_input(&s, GN_F32, rows, FILL_SMALL, VIEW_NONE), put_numbers(&s.in[s.n - 1], warmth, 6);
    if (bits & BY_TOP_K)
        add_input(&s, index_dtype((int)bits), rows, FILL_SMALL, VIEW_NONE), put_numbers(&s.in[s.n - 1], ks, 7);
    if (bits & BY_TOP_P) add_input(&s, GN_F32, rows, FILL_SMALL, VIEW_NONE), put_numbers(&s.in[s.n - 1], ps, 7);
    if (bits & BY_MIN_P) add_input(&s, GN_F32, rows, FILL_SMALL, VIEW_NONE), put_numbers(&s.in[s.n - 1], leasts, 4);
    return s;
}

/* Other numbers while a draw or a share lies within 1e-5 of a boundary, where devices may differ. */
static void draw_case(gn_dtype d, gn_shape shape, int64_t bits, fill f, bool each) {
    for (int tries = 0; tries < 50; tries++) {
        sample s = draw_sample(d, shape, bits, f, each);
        ref *in[MAX_INPUTS];
        ref_real nearest = 1;
        for (int i = 0; i < s.n; i++) in[i] = s.in[i].value;
        draw_rows(&s, in, &nearest);
        if (nearest > 1.01e-5L) {
            run(&s);
            return;
        }
        for (int i = 0; i < s.n; i++) free(s.in[i].bytes);
    }
    test_fail(__FILE__, __LINE__, "no draw of %lld logits keeps off the boundaries",
              (long long)shape.dims[shape.rank - 1]);
}

static void cases_sample(void) {
    const gn_shape shapes[] = { GN_SHAPE(7), GN_SHAPE(6, 50), GN_SHAPE(2, 3, 8), GN_SHAPE(3, 1), GN_SHAPE(0, 5) };
    static const double outside[] = { -1, NAN };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int64_t bits = 0; bits < 16; bits++) {
            for (int k = 0; k < TEST_COUNT(shapes); k++) draw_case(d, shapes[k], bits, FILL_SMALL, k % 2);
            draw_case(d, GN_SHAPE(12, 6), bits, FILL_SPECIAL, true);
        }
        draw_case(d, GN_SHAPE(2, 4000), 15, FILL_SMALL, true);
    }
    for (int b = 0; b < 4; b++) {
        for (int k = 0; k < 2; k++) {
            sample s = draw_sample(GN_F32, GN_SHAPE(4, 9), 1 << b, FILL_SMALL, true);
            s.what = "a number that is outside";
            if (b == 1 && k) s.in[3].base->i[0] = INT64_MIN;
            put_numbers(&s.in[3], outside + (b == 1 ? 0 : k), 1);
            run(&s);
        }
    }
    for (int k = 0; k < 3; k++) {
        sample s = { .what = "refused", .build = build_draw, .refer = refer_draw };
        add_input(&s, GN_F32, k == 2 ? GN_SHAPE(3, 0) : GN_SHAPE(3, 4), FILL_SMALL, VIEW_NONE);
        add_input(&s, k == 0 ? GN_F32 : GN_I64, k == 1 ? GN_SHAPE(4) : GN_SCALAR, FILL_SMALL, VIEW_NONE);
        add_input(&s, GN_I64, GN_SCALAR, FILL_SMALL, VIEW_NONE);
        s.failure = k == 0 ? GN_BAD_DTYPE : GN_BAD_SHAPE;
        run(&s);
    }
}

static gn_tensor build_adjust(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_sample_desc d = { .counts = in[1],
                         .repetition = s->p[0] & 1 ? in[2] : GN_NONE,
                         .presence = s->p[0] & 2 ? in[3] : GN_NONE,
                         .frequency = s->p[0] & 4 ? in[4] : GN_NONE,
                         .bias = s->p[0] & 8 ? in[5] : GN_NONE,
                         .allowed = s->p[0] & 16 ? in[6] : GN_NONE };
    (void)g;
    return gn_adjust_logits(in[0], &d);
}
static ref *refer_adjust(const sample *s, ref *const *in) {
    ref *y = ref_make_inexact(GN_F32, in[0]->shape);
    gn_shape rows = in[0]->shape;
    rows.rank--;
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(in[0]->shape, k, c);
        ref_real x = ref_round(GN_F32, in[0]->f[k]), terms = fabsl(x),
                 count = (ref_real)in[1]->i[ref_broadcast_index(in[1]->shape, in[0]->shape, c)], by[3];
        for (int i = 0; i < 3; i++)
            by[i] = s->p[0] >> i & 1 ? in[2 + i]->f[ref_broadcast_index(in[2 + i]->shape, rows, c)] : i == 0;
        if (count > 0) x = (x > 0 ? x / by[0] : x * by[0]) - by[1] - by[2] * count;
        terms = terms * 4 + fabsl(by[1]) + fabsl(by[2] * count) + fabsl(x);
        ref_real bias = s->p[0] & 8 ? in[5]->f[ref_broadcast_index(in[5]->shape, in[0]->shape, c)] : 0;
        bool allowed = !(s->p[0] & 16) || in[6]->i[ref_broadcast_index(in[6]->shape, in[0]->shape, c)];
        ref_put(y, k, allowed ? x + bias : -(ref_real)INFINITY, terms + fabsl(bias));
    }
    return y;
}
static void cases_adjust_logits(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int bits = 0; bits < 32; bits += d == GN_F32 ? 1 : 31) {
            for (int k = 0; k < 2; k++) {
                sample s = { .what = "adjusted", .build = build_adjust, .refer = refer_adjust, .p = { bits } };
                add_input(&s, d, GN_SHAPE(3, 11), FILL_SMALL, VIEW_ANY);
                add_limited(&s, index_dtype(k), GN_SHAPE(3, 11), FILL_INDEX, VIEW_ANY, 3);
                for (int i = 0; i < 3; i++) add_input(&s, GN_F32, k ? GN_SHAPE(3) : GN_SCALAR, FILL_POSITIVE, VIEW_ANY);
                add_input(&s, GN_F32, k ? GN_SHAPE(3, 11) : GN_SHAPE(11), FILL_SMALL, VIEW_ANY);
                add_input(&s, GN_BOOL, k ? GN_SHAPE(11) : GN_SHAPE(3, 11), FILL_SMALL, VIEW_ANY);
                run(&s);
            }
        }
    }
}

static gn_tensor build_top_log_probs(const sample *s, gn_ctx *g, const gn_tensor *in) {
    gn_tensor out[2];
    (void)g;
    gn_top_log_probs(in[0], s->p[0], &out[0], &out[1]);
    return out[s->flag];
}
/* Logits are all different. */
static ref *refer_top_log_probs(const sample *s, ref *const *in) {
    gn_shape shape = in[0]->shape;
    int64_t n = shape.dims[shape.rank - 1], k = s->p[0];
    shape.dims[shape.rank - 1] = k;
    ref *y = s->flag ? ref_make(GN_I64, shape) : ref_make_inexact(GN_F32, shape);
    for (int64_t row = 0; k && row < y->n / k; row++) {
        const ref_real *x = in[0]->f + row * n;
        ref_real sum = 0;
        for (int64_t i = 0; i < n; i++) sum += expl(x[i]);
        for (int64_t i = 0; i < n; i++) {
            int64_t place = 0;
            for (int64_t l = 0; l < n; l++) place += x[l] > x[i];
            if (place >= k) continue;
            if (s->flag) y->i[row * k + place] = i;
            else ref_put(y, row * k + place, x[i] - logl(sum), fabsl(x[i]) + fabsl(logl(sum)) + 1);
        }
    }
    return y;
}
static void cases_top_log_probs(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < 8; k++) {
            sample s = { .what = "top", .build = build_top_log_probs, .refer = refer_top_log_probs, .flag = k % 2 };
            s.p[0] = k / 2 == 3 ? 12 : k;
            s.failure = k / 2 == 3 ? GN_BAD_ARGUMENT : GN_OK;
            add_input(&s, d, GN_SHAPE(4, 11), FILL_SMALL, VIEW_NONE);
            for (int64_t i = 0; i < 44; i++) s.in[0].base->f[i] = (ref_real)((i * 7 + i / 11) % 11) / 2;
            free(s.in[0].bytes);
            s.in[0].bytes = ref_encode(s.in[0].base);
            run(&s);
        }
    }
}

BUILD(build_bce_loss, gn_bce_loss(in[0], in[1]))
BUILD(build_bce_logits_loss, gn_bce_logits_loss(in[0], in[1]))
BUILD(build_kl_loss, gn_kl_loss(in[0], in[1]))
BUILD(build_smooth_l1_loss, gn_smooth_l1_loss(in[0], in[1], s->d[0]))
REFER(refer_loss, ref_elementwise_loss(in[0], in[1], (ref_loss)s->p[0], s->d[0]))

/* Probabilities: the fractions of small numbers, 0 and 1 among them. */
static void to_probabilities(input *in) {
    for (int64_t k = 0; k < in->base->n; k++)
        in->base->f[k] = k % 7 == 3 ? 0 : k % 7 == 5 ? 1 : ref_round(in->base->dtype, fabsl(in->base->f[k]) / 2);
    free(in->bytes);
    in->bytes = ref_encode(in->base);
    in->value = in->base;
}

static void loss_cases(sample form, bool probabilities, bool targets) {
    static const gn_shape shapes[] = { { 1, { 7 } }, { 2, { 13, 11 } }, { 3, { 4, 5, 6 } }, { 1, { 4001 } } };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
        for (int k = 0; k < TEST_COUNT(shapes); k++) {
            sample s = form;
            s.what = "loss";
            add_input(&s, d, shapes[k], FILL_SMALL, probabilities ? VIEW_NONE : VIEW_ANY);
            add_input(&s, d, shapes[k], FILL_SMALL, targets ? VIEW_NONE : VIEW_ANY);
            if (probabilities) to_probabilities(&s.in[0]);
            if (targets) to_probabilities(&s.in[1]);
            run(&s);
        }
    }
}
static void cases_bce_loss(void) {
    loss_cases((sample){ .build = build_bce_loss, .refer = refer_loss, .p = { REF_BCE } }, true, true);
}
static void cases_bce_logits_loss(void) {
    loss_cases((sample){ .build = build_bce_logits_loss, .refer = refer_loss, .p = { REF_BCE_LOGITS } }, false, true);
}
static void cases_kl_loss(void) {
    loss_cases((sample){ .build = build_kl_loss, .refer = refer_loss, .p = { REF_KL } }, false, true);
}
static void cases_smooth_l1_loss(void) {
    loss_cases((sample){ .build = build_smooth_l1_loss, .refer = refer_loss, .p = { REF_SMOOTH_L1 }, .d = { 0.75 } },
               false, false);
}

BUILD(build_class_loss, s->flag ? gn_cross_entropy_smooth(in[0], in[1], s->d[0]) : gn_nll_loss(in[0], in[1]))
REFER(refer_class_loss, ref_class_loss(in[0], in[1], s->flag, s->d[0]))
static void class_loss_cases(bool logits, double smoothing) {
    for (int k = 0; k < TEST_COUNT(id_shapes); k++) {
        for (gn_dtype d = GN_F32; d <= GN_BF16; d++) {
            sample s = { .what = "classes",
                         .build = build_class_loss,
                         .refer = refer_class_loss,
                         .flag = logits,
                         .d = { smoothing } };
            s.failure = smoothing > 1 ? GN_BAD_ARGUMENT : GN_OK;
            if (ref_elements(id_shapes[k]) == 0) continue;
            add_input(&s, d, ref__with_axis(id_shapes[k], 7), FILL_SMALL, VIEW_ANY);
            add_limited(&s, index_dtype(k), id_shapes[k], FILL_INDEX, VIEW_ANY, 7);
            run(&s);
        }
    }
}
static void cases_nll_loss(void) { class_loss_cases(false, 0); }
static void cases_cross_entropy_smooth(void) {
    class_loss_cases(true, 0);
    class_loss_cases(true, 0.1);
    class_loss_cases(true, 1);
    class_loss_cases(true, 1.5);
}

/* ---- matrices: whole numbers and a diagonal that outweighs their rows, so that all dtypes hold them exactly; p: what
   is wanted, the bits of a triangle, and what is added to the diagonal ---- */

enum { MATRIX_SOLVE, MATRIX_TRIANGLE, MATRIX_CHOLESKY, MATRIX_DET, MATRIX_INVERSE, MATRIX__COUNT };

static gn_tensor build_matrices(const sample *s, gn_ctx *g, const gn_tensor *in) {
    int64_t N = s->shape.dims[s->shape.rank - 1];
    gn_tensor at = gn_arange_i64(g, GN_I64, N, 0, 1), on = gn_eq(gn_reshape(at, GN_SHAPE(N, 1)), at);
    gn_tensor a = gn_add(gn_cast(in[0], s->dtype), gn_mul_c(gn_cast(on, s->dtype), (double)s->p[2]));
    gn_tensor b = s->n > 1 ? gn_cast(in[1], s->dtype) : GN_NONE;
    if (s->flag) a = gn_transpose(a, -1, -2);
    switch (s->p[0]) {
    case MATRIX_SOLVE: return gn_solve(a, b);
    case MATRIX_TRIANGLE: return gn_solve_triangular(a, b, s->p[1] & 1, s->p[1] & 2);
    case MATRIX_CHOLESKY: return gn_cholesky(a);
    case MATRIX_DET: return gn_det(a);
    default: return gn_inverse(a);
    }
}

/* m (N,W): Gauss and Jordan's elimination, the largest of each column as pivot. The determinant. */
static ref_real eliminate(ref_real *m, int64_t N, int64_t W) {
    ref_real det = 1;
    for (int64_t p = 0; p < N; p++) {
        int64_t best = p;
        for (int64_t i = p; i < N; i++)
            if (fabsl(m[i * W + p]) > fabsl(m[best * W + p])) best = i;
        for (int64_t k = 0; k < W && best != p; k++) {
            ref_real v = m[p * W + k];
            m[p * W + k] = m[best * W + k];
            m[best * W + k] = v;
        }
        ref_real d = m[p * W + p];
        det *= best == p ? d : -d;
        for (int64_t k = 0; k < W; k++) m[p * W + k] = d == 0 ? (ref_real)NAN : m[p * W + k] / d;
        for (int64_t i = 0; i < N && d != 0; i++) {
            ref_real f = m[i * W + p];
            for (int64_t k = 0; k < W && i != p; k++) m[i * W + k] -= f * m[p * W + k];
        }
        if (d == 0) return 0;
    }
    return det;
}

/* Column by column (Cholesky, Banachiewicz), of the lower triangle. */
static bool take_root(ref_real *m, int64_t N) {
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++) {
            ref_real sum = j > i ? 0 : m[i * N + j];
            for (int64_t k = 0; k < j && j <= i; k++) sum -= m[i * N + k] * m[j * N + k];
            if (i == j && !(sum > 0)) return false;
            m[i * N + j] = j > i ? 0 : i == j ? sqrtl(sum) : sum / m[j * N + j];
        }
    return true;
}

static ref *refer_matrices(const sample *s, ref *const *in) {
    int64_t kind = s->p[0], N = s->shape.dims[s->shape.rank - 1], bits = s->p[1], batch = in[0]->n / (N * N);
    gn_shape shape = s->shape;
    int64_t K = kind == MATRIX_INVERSE ? N
                : s->n > 1             ? in[1]->shape.dims[s->shape.rank - 1]
                                       : 0,
            W = N + K,
            each = kind == MATRIX_DET        ? 1
                   : kind == MATRIX_CHOLESKY ? N * N
                                             : N * K;
    if (kind == MATRIX_DET) shape.rank -= 2;
    else if (K) shape.dims[shape.rank - 1] = K;
    ref *y = ref_make_inexact(s->dtype, shape);
    ref_real *m = calloc((size_t)(N * W), sizeof *m);
    if (!m) return y;
    for (int64_t b = 0; b < batch; b++) {
        ref_real largest = 1, det = 1;
        bool ok = true;
        for (int64_t i = 0; i < N; i++) {
            for (int64_t k = 0; k < N; k++) {
                int64_t from = b * N * N + (s->flag ? k * N + i : i * N + k);
                ref_real v = (ref_real)in[0]->i[from] + (i == k ? (ref_real)s->p[2] : 0);
                if (kind == MATRIX_TRIANGLE && (bits & 1 ? k < i : k > i)) v = 0;
                m[i * W + k] = kind == MATRIX_TRIANGLE && bits & 2 && i == k ? 1 : v;
            }
            for (int64_t k = 0; k < K; k++)
                m[i * W + N + k] = kind == MATRIX_INVERSE ? i == k : (ref_real)in[1]->i[(b * N + i) * K + k];
        }
        if (kind == MATRIX_CHOLESKY) ok = take_root(m, N);
        else det = eliminate(m, N, W);
        if (kind == MATRIX_SOLVE || kind == MATRIX_INVERSE) ok = det != 0;
        for (int64_t k = 0; k < N * W && ok; k++) largest = fmaxl(largest, fabsl(m[k]));
        if (bits & 2) largest *= (ref_real)(9 * N); /* the diagonal does not outweigh a row then */
        /* (N + 1) / 4 eps of f64, in which all is added (Higham 2002, 10.1), in units of the tolerance */
        largest *= 1 + (ref_real)N / 16 * ref_eps(GN_F64) / ref_eps(s->dtype);
        for (int64_t k = 0; k < each; k++) {
            ref_real v = kind == MATRIX_DET ? det : kind == MATRIX_CHOLESKY ? m[k] : m[k / K * W + N + k % K];
            ref_put(y, b * each + k, ok ? v : (ref_real)NAN, kind == MATRIX_DET ? fabsl(det) * (ref_real)N : largest);
        }
    }
    free(m);
    return y;
}

static void matrix_case(const char *what, int64_t kind, gn_dtype d, gn_shape shape, int64_t K, int64_t diagonal,
                        int k) {
    int64_t N = shape.dims[shape.rank - 1];
    sample s = { .what = what,
                 .build = build_matrices,
                 .refer = refer_matrices,
                 .shape = shape,
                 .dtype = d,
                 .flag = k & 1,
                 .p = { kind, kind == MATRIX_TRIANGLE ? k / 2 % (N > 5 ? 2 : 4) : 0, diagonal } };
    add_input(&s, GN_I8, shape, FILL_SMALL, VIEW_ANY);
    shape.dims[shape.rank - 1] = K;
    if (kind == MATRIX_SOLVE || kind == MATRIX_TRIANGLE) add_input(&s, GN_I8, shape, FILL_SMALL, VIEW_ANY);
    run(&s);
}

static void cases_solve(void) {
    const gn_shape shapes[] = { GN_SHAPE(1, 1),      GN_SHAPE(2, 2),   GN_SHAPE(3, 2, 5, 5),
                                GN_SHAPE(2, 17, 17), GN_SHAPE(70, 70), GN_SHAPE(0, 3, 3) };
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++)
        for (int64_t kind = 0; kind < MATRIX__COUNT; kind++)
            for (int k = 0; k < TEST_COUNT(shapes); k++) {
                int64_t N = shapes[k].dims[shapes[k].rank - 1];
                if (N == 70 && d != GN_F32 && d != GN_F64) continue;
                matrix_case("dominated by its diagonal", kind, d, shapes[k], 1 + k % 3, 32 * N, k + (int)kind);
                if (kind == MATRIX_TRIANGLE && k < 3)
                    for (int bits = 0; bits < 8; bits++) matrix_case("a triangle", kind, d, shapes[k], 2, 32 * N, bits);
            }
    for (int64_t kind = 0; kind < MATRIX__COUNT; kind++) {
        sample s = { .what = "no squares",
                     .build = build_matrices,
                     .shape = GN_SHAPE(2, 3),
                     .dtype = GN_F32,
                     .p = { kind, 0, 1 },
                     .failure = GN_BAD_SHAPE };
        add_input(&s, GN_I8, GN_SHAPE(1, 2, 3), FILL_SMALL, VIEW_NONE);
        add_input(&s, GN_I8, GN_SHAPE(1, 3, 3), FILL_SMALL, VIEW_NONE);
        run(&s);
    }
    matrix_case("not positive definite", MATRIX_CHOLESKY, GN_F64, GN_SHAPE(2, 4, 4), 0, -40, 0);
}

/* ---- grids and boxes ---- */

BUILD(build_components, gn_connected_components(in[0], (int)s->p[0], s->flag))

/* Each element takes the least place around it until none changes. */
static ref *refer_components(const sample *s, ref *const *in) {
    int axes = (int)s->p[0], rank = in[0]->shape.rank;
    int64_t size[3] = { 1, 1, 1 }, n = 1, next = 0;
    ref *y = ref_make(GN_I64, in[0]->shape);
    for (int i = 0; i < axes; i++) n *= size[2 - i] = in[0]->shape.dims[rank - 1 - i];
    for (int64_t k = 0; k < y->n; k++) y->i[k] = in[0]->i[k] ? k % n : -1;
    for (bool changed = true; changed;) {
        changed = false;
        for (int64_t k = 0; k < y->n * 27; k++) {
            int64_t e = k / 27, d[3] = { k / 9 % 3 - 1, k / 3 % 3 - 1, k % 3 - 1 }, at = e % n, to = 0;
            int64_t place[3] = { at / (size[1] * size[2]), at / size[2] % size[1], at % size[2] };
            bool near = s->flag || d[0] * d[0] + d[1] * d[1] + d[2] * d[2] < 2;
            for (int i = 0; i < 3; i++) {
                near = near && place[i] + d[i] >= 0 && place[i] + d[i] < size[i];
                to = to * size[i] + place[i] + d[i];
            }
            to += e - at;
            if (!near || in[0]->i[e] != in[0]->i[to] || y->i[to] >= y->i[e]) continue;
            y->i[e] = y->i[to];
            changed = true;
        }
    }
    for (int64_t k = 0; k < y->n; k++) { /* what a number was is a place before it */
        if (k % n == 0) next = 0;
        y->i[k] = y->i[k] < 0 ? 0 : y->i[k] == k % n ? ++next : y->i[k - k % n + y->i[k]];
    }
    return y;
}

static void cases_components(void) {
    const gn_shape shapes[] = { GN_SHAPE(9), GN_SHAPE(7, 8), GN_SHAPE(2, 5, 6), GN_SHAPE(3, 4, 5, 3),
                                GN_SHAPE(2, 0, 3) };
    for (gn_dtype d = GN_I32; d < GN_DTYPE__COUNT; d++)
        for (int k = 0; takes(d) && k < TEST_COUNT(shapes) * 6; k++) {
            sample s = { .what = k % 2 ? "corners touch" : "along axes",
                         .build = build_components,
                         .refer = refer_components,
                         .p = { 1 + k / 2 % 3 },
                         .flag = k % 2 };
            if (shapes[k / 6].rank < s.p[0]) s.failure = GN_BAD_RANK;
            add_limited(&s, d, shapes[k / 6], FILL_INDEX, VIEW_ANY, d == GN_BOOL ? 2 : 3);
            run(&s);
        }
}

BUILD(build_suppress, gn_non_max_suppression(in[0], in[1], s->p[0], s->d[0], s->d[1], s->flag))

static bool boxes_share(const ref *b, int64_t i, int64_t j, bool centred, double most) {
    ref_real both = 1, area[2] = { 1, 1 };
    for (int a = 0; a < 2; a++) {
        ref_real low[2], high[2];
        for (int k = 0; k < 2; k++) {
            const ref_real *e = b->f + 4 * (k ? j : i);
            ref_real p = centred ? e[a] - e[a + 2] / 2 : e[a], q = centred ? e[a] + e[a + 2] / 2 : e[a + 2];
            low[k] = fminl(p, q), high[k] = fmaxl(p, q);
            area[k] *= high[k] - low[k];
        }
        both *= fmaxl(fminl(high[0], high[1]) - fmaxl(low[0], low[1]), 0);
    }
    ref_real all = area[0] + area[1] - both;
    return all > 0 && both / all > (ref_real)most;
}

static ref *refer_suppress(const sample *s, ref *const *in) {
    int64_t B = in[1]->shape.dims[0], C = in[1]->shape.dims[1], N = in[1]->shape.dims[2], bound = s->p[0];
    ref *y = ref_make(GN_I64, GN_SHAPE(B, C, bound));
    bool *seen = calloc((size_t)(B * C * N + 1), sizeof *seen);
    for (int64_t k = 0; k < y->n; k++) y->i[k] = -1;
    for (int64_t row = 0; row < B * C && seen; row++)
        for (int64_t kept = 0; kept < bound;) {
            int64_t best = -1;
            for (int64_t i = row * N; i < (row + 1) * N; i++)
                if (!seen[i] && in[1]->f[i] > (ref_real)s->d[1] && (best < 0 || in[1]->f[i] > in[1]->f[best])) best = i;
            if (best < 0) break;
            seen[best] = true;
            bool hit = false;
            for (int64_t k = 0; k < kept && !hit; k++)
                hit = boxes_share(in[0], row / C * N + best - row * N, row / C * N + y->i[row * bound + k], s->flag,
                                  s->d[0]);
            if (!hit) y->i[row * bound + kept++] = best - row * N;
        }
    free(seen);
    return y;
}

static void cases_suppress(void) {
    for (gn_dtype d = GN_F32; d <= GN_BF16; d++)
        for (int k = 0; k < 12; k++) {
            int64_t B = 1 + k % 2, C = 1 + k % 3, N = k == 11 ? 0 : 3 + 7 * k;
            sample s = { .what = k % 2 ? "centres and sizes" : "corners",
                         .build = build_suppress,
                         .refer = refer_suppress,
                         .flag = k % 2,
                         .d = { 0.31 - 0.02 * k, k % 4 ? -0.5 : -INFINITY } };
            s.p[0] = k % 5 == 4 ? 2 : N + k % 2;
            add_input(&s, d, GN_SHAPE(B, N, 4), FILL_SMALL, VIEW_ANY);
            add_input(&s, d, GN_SHAPE(B, C, N), k % 3 ? FILL_SMALL : FILL_SPECIAL, VIEW_ANY);
            run(&s);
        }
}

#undef BUILD
#undef REFER

typedef struct composite {
    const char *name;
    uint32_t dtypes;
    double tolerance;
    void (*cases)(void);
} composite;

static const composite composites[] = {
    { "isnan", ALL_DTYPES, 0, cases_isnan },
    { "isinf", ALL_DTYPES, 0, cases_isinf },
    { "isfinite", ALL_DTYPES, 0, cases_isfinite },
    { "logical_not", ALL_DTYPES, 0, cases_logical_not },
    { "logical_and", ALL_DTYPES, 0, cases_logical_and },
    { "logical_or", ALL_DTYPES, 0, cases_logical_or },
    { "logical_xor", ALL_DTYPES, 0, cases_logical_xor },
    { "leaky_relu", FLOAT_DTYPES, 2, cases_leaky_relu },
    { "prelu", FLOAT_DTYPES, 2, cases_prelu },
    { "elu", FLOAT_DTYPES, 4, cases_elu },
    { "celu", FLOAT_DTYPES, 4, cases_celu },
    { "any", ALL_DTYPES, 0, cases_any },
    { "all", ALL_DTYPES, 0, cases_all },
    { "count_nonzero", ALL_DTYPES, 0, cases_count_nonzero },
    { "l1_norm", ALL_DTYPES, 2, cases_l1_norm },
    { "l2_norm", FLOAT_DTYPES, 4, cases_l2_norm },
    { "logsumexp", FLOAT_DTYPES, 4, cases_logsumexp },
    { "variance", FLOAT_DTYPES, 4, cases_variance },
    { "std", FLOAT_DTYPES, 4, cases_std },
    { "sort", ALL_DTYPES, 0, cases_sort },
    { "topk", ALL_DTYPES, 0, cases_topk },
    { "rmsnorm", FLOAT_DTYPES, 4, cases_rmsnorm },
    { "rmsnorm_1p", FLOAT_DTYPES, 4, cases_rmsnorm_1p },
    { "normalize", FLOAT_DTYPES, 4, cases_normalize },
    { "conv_chain", FLOAT_DTYPES, 8, cases_conv_chain },
    { "batch_norm", FLOAT_DTYPES, 8, cases_batch_norm },
    { "group_norm", FLOAT_DTYPES, 8, cases_group_norm },
    { "local_response_norm", FLOAT_DTYPES, 4, cases_local_response_norm },
    { "adjust_logits", FLOAT_DTYPES, 4, cases_adjust_logits },
    { "top_log_probs", FLOAT_DTYPES, 16, cases_top_log_probs },
    { "einsum", NUMBER_DTYPES, 4, cases_einsum },
    { "outer", ALL_DTYPES, 1, cases_outer },
    { "vecdot", NUMBER_DTYPES, 4, cases_vecdot },
    { "flip", ALL_DTYPES, 0, cases_flip },
    { "roll", ALL_DTYPES, 0, cases_roll },
    { "tile", ALL_DTYPES, 0, cases_tile },
    { "repeat", ALL_DTYPES, 0, cases_repeat },
    { "expand", ALL_DTYPES, 0, cases_expand },
    { "squeeze", ALL_DTYPES, 0, cases_squeeze },
    { "unsqueeze", ALL_DTYPES, 0, cases_unsqueeze },
    { "stack", ALL_DTYPES, 0, cases_stack },
    { "split", ALL_DTYPES, 0, cases_split },
    { "pad", ALL_DTYPES, 0, cases_pad },
    { "tril", ALL_DTYPES, 0, cases_tril },
    { "triu", ALL_DTYPES, 0, cases_triu },
    { "diagonal", ALL_DTYPES, 0, cases_diagonal },
    { "im2col", ALL_DTYPES, 0, cases_im2col },
    { "index_select", ALL_DTYPES, 0, cases_index_select },
    { "embedding_bag", FLOAT_DTYPES, 4, cases_embedding_bag },
    { "gather_nd", ALL_DTYPES, 0, cases_gather_nd },
    { "masked_fill", ALL_DTYPES, 0, cases_masked_fill },
    { "rotary_with", FLOAT_DTYPES, 4, cases_rotary_with },
    { "bce_loss", FLOAT_DTYPES, 8, cases_bce_loss },
    { "bce_logits_loss", FLOAT_DTYPES, 8, cases_bce_logits_loss },
    { "nll_loss", FLOAT_DTYPES, 8, cases_nll_loss },
    { "kl_loss", FLOAT_DTYPES, 8, cases_kl_loss },
    { "smooth_l1_loss", FLOAT_DTYPES, 8, cases_smooth_l1_loss },
    { "cross_entropy_smooth", FLOAT_DTYPES, 8, cases_cross_entropy_smooth },
};

/* ---- the list ---- */

static const struct {
    const char *name;
    void (*cases)(void);
} generators[] = {
    { "where", cases_where },
    { "cast", cases_cast },
    { "clamp", cases_clamp },
    { "data", cases_data },
    { "value", cases_value },
    { "weight", cases_weight },
    { "state", cases_state },
    { "assign", cases_assign },
    { "full", cases_full },
    { "arange", cases_arange },
    { "random_uniform", cases_random_uniform },
    { "random_normal", cases_random_normal },
    { "sum", cases_sum },
    { "mean", cases_mean },
    { "max", cases_max },
    { "min", cases_min },
    { "argmax", cases_argmax },
    { "softmax", cases_softmax },
    { "log_softmax", cases_log_softmax },
    { "layernorm", cases_layernorm },
    { "matmul", cases_matmul },
    { "linear", cases_linear },
    { "expert_linear", cases_expert_linear },
    { "linear_quantized", cases_linear_quantized },
    { "embedding_quantized", cases_embedding_quantized },
    { "dequantize", cases_dequantize },
    { "quantize", cases_quantize },
    { "conv", cases_conv },
    { "pool", cases_pool },
    { "interpolate", cases_interpolate },
    { "recurrent", cases_recurrent },
    { "recurrent_back", cases_recurrent_back },
    { "reshape", cases_reshape },
    { "permute", cases_permute },
    { "slice", cases_slice },
    { "slice_put", cases_slice_put },
    { "concat", cases_concat },
    { "broadcast", cases_broadcast },
    { "gather", cases_gather },
    { "embedding", cases_embedding },
    { "one_hot", cases_one_hot },
    { "scatter_add", cases_scatter_add },
    { "cross_entropy", cases_cross_entropy },
    { "mse_loss", cases_mse_loss },
    { "attention", cases_attention },
    { "attention_with", cases_attention_with },
    { "kv_append", cases_kv_append },
    { "page_append", cases_page_append },
    { "page_attention", cases_page_attention },
    { "page_attention_quantized", cases_page_attention_quantized },
    { "prod", cases_prod },
    { "argmin", cases_argmin },
    { "cumsum", cases_cumsum },
    { "cumprod", cases_cumprod },
    { "cummax", cases_cummax },
    { "argsort", cases_argsort },
    { "scatter", cases_scatter },
    { "scatter_max", cases_scatter_max },
    { "nonzero", cases_nonzero },
    { "solve", cases_solve },
    { "components", cases_components },
    { "suppress", cases_suppress },
    { "rotary_table", cases_rotary_table },
    { "rotary", cases_rotary },
    { "sample", cases_sample },
};

static void run_cases(void) {
    const ref_scalar_op *op = ref_find_scalar(running.row.name);
    if (op) {
        scalar_cases(op);
        return;
    }
    for (int k = 0; k < TEST_COUNT(generators); k++)
        if (strcmp(generators[k].name, running.row.name) == 0) generators[k].cases();
    for (int k = 0; k < TEST_COUNT(composites); k++)
        if (strcmp(composites[k].name, running.row.name) == 0) composites[k].cases();
}

/* One test for a row on a device. The stream is seeded by the row's name alone: all devices see the same cases. */
static void test_row(const gn_op_info *row, device on) {
    char name[96];
    snprintf(name, sizeof name, "conformance_%s_on_%s", row->name, device_names[on]);
    if (!test_open(name)) return;
    test_reseed(row->name);
    running.row = *row;
    running.on = on;
    running.tolerance = row->tolerance;
    running.cases = 0;
    bool absent = gn_status(contexts[on]) != GN_OK;
    if (absent) test_skip(gn_last_error(contexts[on])->text);
    else run_cases();
    if (running.cases == 0 && !absent)
        test_fail(__FILE__, __LINE__, "the op has no cases: add it to reference.h or to the generators");
    test_close();
}

/* A generator whose op left the table is a mistake too. */
static void every_generator_has_its_row(void) {
    for (int k = 0; k < TEST_COUNT(generators) + TEST_COUNT(ref_scalar_ops); k++) {
        const char *name =
            k < TEST_COUNT(generators) ? generators[k].name : ref_scalar_ops[k - TEST_COUNT(generators)].name;
        bool found = false;
        for (int i = 0; i < gn_op_count(); i++) {
            gn_op_info row;
            found = found || (gn_get_op(i, &row) == GN_OK && strcmp(row.name, name) == 0);
        }
        if (!found) test_fail(__FILE__, __LINE__, "no op of the table is named %s", name);
    }
    CHECK_RESULT(gn_get_op(gn_op_count(), &running.row), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_get_op(-1, &running.row), GN_BAD_ARGUMENT);
}

static void einsum_refuses_what_makes_no_sense(void) {
    gn_ctx *g = contexts[ON_NULL];
    gn_tensor a = gn_full(g, GN_F32, GN_SHAPE(2, 3), 1), b = gn_full(g, GN_F32, GN_SHAPE(4, 2), 1), two[2] = { a, b };
    gn_tensor many[3] = { gn_full(g, GN_F32, GN_SHAPE(1, 1, 1, 1), 1), gn_full(g, GN_F32, GN_SHAPE(1, 1, 1, 1), 1), a };
    static const struct {
        const char *text;
        int n;
        gn_result failure;
    } forms[] = {
        { "ij,jk->ik", 2, GN_BAD_SHAPE },
        { "ij", 2, GN_BAD_ARGUMENT },
        { "ij,ki,k", 2, GN_BAD_ARGUMENT },
        { "ijk,kj", 2, GN_BAD_RANK },
        { "i,ki", 2, GN_BAD_RANK },
        { "i2,k2", 2, GN_BAD_ARGUMENT },
        { "...,ki", 2, GN_OK },
        { "..,ki", 2, GN_BAD_ARGUMENT },
        { "....,ki", 2, GN_BAD_ARGUMENT },
        { "...i...,ki", 2, GN_BAD_ARGUMENT },
        { "...ijk,ki", 2, GN_BAD_RANK },
        { "...,...", 2, GN_BAD_SHAPE },
        { "ij,ki->..", 2, GN_BAD_ARGUMENT },
        { "i...,ki->......", 2, GN_BAD_ARGUMENT },
        { "ij,ki->x", 2, GN_BAD_ARGUMENT },
        { "ij,ki-", 2, GN_BAD_ARGUMENT },
        { NULL, 2, GN_BAD_ARGUMENT },
        { "", 2, GN_BAD_RANK },
        { "ij,ki->kj>", 2, GN_BAD_ARGUMENT },
        { "ii,kj", 2, GN_BAD_SHAPE },
        { "ij->\xc3\xa9", 1, GN_BAD_ARGUMENT },
        { " i j , k i -> k j ", 2, GN_OK },
    };
    for (int k = 0; k < TEST_COUNT(forms); k++) {
        gn_info info;
        CHECK_RESULT(gn_describe(gn_einsum(forms[k].text, two, forms[k].n), &info), forms[k].failure);
    }
    gn_info info;
    CHECK_RESULT(gn_describe(gn_einsum("abcd,efgh,ij->abcdefghij", many, 3), &info), GN_BAD_RANK);
    CHECK(gn_einsum("ij", two, 0).ctx == NULL);
    gn_step(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = { TEST_ENTRY(every_generator_has_its_row),
                                        TEST_ENTRY(einsum_refuses_what_makes_no_sense) };
    test_begin(argc, argv);
#if defined(__SANITIZE_THREAD__)
    if (test__.n_words == 0 && test__.shards == 0 && !test__.list) { /* the other runs compute all of it */
        test__.shards = 3;
        test__.shard = (int)(test__.seed % 3);
        printf("the thread sanitizer sees a third of the cases each time: shard %d/3\n", test__.shard);
    }
#endif
    open_devices();
    test_all(tests, TEST_COUNT(tests));
    for (int on = 0; on < DEVICES; on++) {
        for (int i = 0; i < gn_op_count() && contexts[on]; i++) {
            gn_op_info row;
            if (gn_get_op(i, &row) == GN_OK) test_row(&row, (device)on);
        }
        for (int k = 0; k < TEST_COUNT(composites) && contexts[on]; k++) {
            gn_op_info row = { .name = composites[k].name,
                               .kind = GN_CLASS_STRUCTURED,
                               .dtypes = composites[k].dtypes,
                               .tolerance = composites[k].tolerance };
            test_row(&row, (device)on);
        }
    }
    for (int on = 0; on < DEVICES; on++)
        if (contexts[on]) gn_close(contexts[on]);
    loopback_close();
    return test_end();
}
