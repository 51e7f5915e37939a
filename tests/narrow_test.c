/* Integers of 8 and 16 bits and floats of 16 bits: ops on them against plain C of 64 bits, at lengths on both sides of
 * the vectors and blocks that a loop takes at once, in a row in memory and not; conversions of floats bit by bit.
 *
 * Tier: quick address */
#include "../genie.h"

#include <math.h>

#include "test.h"

enum { LONGEST = 9001, FLOATS = 1 << 18 };

typedef enum op {
    ADD,
    SUB,
    MUL,
    MINIMUM,
    MAXIMUM,
    NEG,
    ABS,
    RELU,
    CLAMP,
    SIGN,
    AND,
    OR,
    XOR,
    NOT,
    LEFT,
    RIGHT,
    EQ,
    LT,
    WHERE,
    CHAIN,
    TO_TRUTH,
    OPS
} op;
static const char *const op_names[OPS] = {
    "add", "sub", "mul", "minimum",    "maximum",     "neg", "abs", "relu",  "clamp", "sign",   "and",
    "or",  "xor", "not", "shift_left", "shift_right", "eq",  "lt",  "where", "chain", "to bool"
};

static gn_ctx *g;
static int64_t a64[2 * LONGEST], b64[2 * LONGEST];

static gn_tensor build(op o, gn_tensor a, gn_tensor b) {
    switch (o) {
    case ADD: return gn_add(a, b);
    case SUB: return gn_sub(a, b);
    case MUL: return gn_mul(a, b);
    case MINIMUM: return gn_minimum(a, b);
    case MAXIMUM: return gn_maximum(a, b);
    case NEG: return gn_neg(a);
    case ABS: return gn_abs(a);
    case RELU: return gn_relu(a);
    case CLAMP: return gn_clamp(a, 1, 100);
    case SIGN: return gn_sign(a);
    case AND: return gn_and(a, b);
    case OR: return gn_or(a, b);
    case XOR: return gn_xor(a, b);
    case NOT: return gn_not(a);
    case LEFT: return gn_shift_left(a, b);
    case RIGHT: return gn_shift_right(a, b);
    case EQ: return gn_eq(a, b);
    case LT: return gn_lt(a, b);
    case WHERE: return gn_where(gn_lt(a, b), a, gn_add(b, b));
    case CHAIN: return gn_xor(gn_mul(gn_add(a, b), a), gn_neg(b));
    default: return gn_cast(a, GN_BOOL);
    }
}

static int64_t wrapped(gn_dtype d, int64_t v) {
    return d == GN_U8    ? (int64_t)(v & 0xff)
           : d == GN_I8  ? ((v & 0xff) ^ 0x80) - 0x80
           : d == GN_U16 ? (int64_t)(v & 0xffff)
                         : ((v & 0xffff) ^ 0x8000) - 0x8000;
}

static int64_t computed(op o, gn_dtype d, int64_t a, int64_t b) {
    switch (o) {
    case ADD: return wrapped(d, a + b);
    case SUB: return wrapped(d, a - b);
    case MUL: return wrapped(d, a * b);
    case MINIMUM: return a < b ? a : b;
    case MAXIMUM: return a > b ? a : b;
    case NEG: return wrapped(d, -a);
    case ABS: return wrapped(d, a < 0 ? -a : a);
    case RELU: return a < 0 ? 0 : a;
    case CLAMP: return a < 1 ? 1 : a > 100 ? 100 : a;
    case SIGN: return (a > 0) - (a < 0);
    case AND: return wrapped(d, a & b);
    case OR: return wrapped(d, a | b);
    case XOR: return wrapped(d, a ^ b);
    case NOT: return wrapped(d, ~a);
    case LEFT: return wrapped(d, a * ((int64_t)1 << (b & 7)));
    case RIGHT: return (a - (((a % (1 << (b & 7))) + (1 << (b & 7))) % (1 << (b & 7)))) / (1 << (b & 7));
    case EQ: return a == b;
    case LT: return a < b;
    case WHERE: return a < b ? a : wrapped(d, b + b);
    case CHAIN: return wrapped(d, wrapped(d, wrapped(d, a + b) * a) ^ wrapped(d, -b));
    default: return a != 0;
    }
}

/* step 2: every second element is read */
static void check_ints(op o, gn_dtype d, int64_t n, int step) {
    static int64_t got[LONGEST];
    static uint8_t bytes[LONGEST];
    gn_tensor a = gn_cast(gn_data(g, GN_I64, GN_SHAPE(n * step), a64), d),
              b = gn_cast(gn_data(g, GN_I64, GN_SHAPE(n * step), b64), d), all[2] = { a, b };
    gn_realize(all, 2); /* so that the loop reads memory */
    if (o == LEFT || o == RIGHT) b = gn_and(b, gn_full(g, d, GN_SHAPE(1), 7));
    gn_tensor x = gn_slice(a, 0, 0, GN_END, step), y = gn_slice(b, 0, 0, GN_END, step);
    gn_tensor t = build(o, x, y);
    gn_info info;
    gn_realize(&t, 1);
    bool truths = gn_describe(t, &info) == GN_OK && info.dtype == GN_BOOL;
    gn_result r = truths ? gn_read(t, bytes, (size_t)n) : gn_read(gn_cast(t, GN_I64), got, (size_t)n * sizeof *got);
    if (r != GN_OK) {
        test_fail(__FILE__, __LINE__, "%s", gn_last_error(g)->text);
        return;
    }
    for (int64_t i = 0; i < n && truths; i++) got[i] = bytes[i]; /* 0 or 1 in memory too */
    for (int64_t i = 0; i < n; i++) {
        int64_t want = computed(o, d, wrapped(d, a64[i * step]), wrapped(d, b64[i * step]));
        if (got[i] != want) {
            test_fail(__FILE__, __LINE__, "%s of %s, %lld elements, step %d: [%lld] is %lld, not %lld", op_names[o],
                      gn_dtype_name(d), (long long)n, step, (long long)i, (long long)got[i], (long long)want);
            return;
        }
    }
    gn_step(g);
}

TEST(narrow_integers_are_exact_at_all_lengths) {
    static const gn_dtype dtypes[] = { GN_U8, GN_I8, GN_U16, GN_I16 };
    static const int64_t lengths[] = { 1, 31, 33, 1024, 2049, 4096, 4097, LONGEST };
    for (int i = 0; i < 2 * LONGEST; i++) {
        a64[i] = (int64_t)(test_random() % 65536) - 32768;
        b64[i] = i % 5 ? (int64_t)(test_random() % 65536) - 32768 : a64[i];
    }
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int o = 0; o < OPS; o++)
        for (int d = 0; d < TEST_COUNT(dtypes); d++)
            for (int l = 0; l < TEST_COUNT(lengths); l++)
                for (int step = 1; step <= 2; step++) check_ints((op)o, dtypes[d], lengths[l], step);
    gn_close(g);
}

/* The value that the bits of an f16 stand for. */
static double f16_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

TEST(every_float_of_16_bits_is_read_as_its_value) {
    static uint16_t h[65536];
    static float f[65536], b[65536];
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    CHECK(gn_read(gn_cast(gn_data(g, GN_F16, GN_SHAPE(65536), h), GN_F32), f, sizeof f) == GN_OK);
    CHECK(gn_read(gn_cast(gn_data(g, GN_BF16, GN_SHAPE(65536), h), GN_F32), b, sizeof b) == GN_OK);
    for (int i = 0; i < 65536; i++) {
        uint32_t bits, wide = (uint32_t)i << 16;
        float one = gn_f16_to_f32(h[i]);
        CHECK(isnan(f[i]) ? isnan(f16_value(h[i])) : (double)f[i] == f16_value(h[i]));
        CHECK(memcmp(&f[i], &one, sizeof one) == 0); /* of NaN sign and fraction too */
        memcpy(&bits, &b[i], sizeof bits);
        CHECK(bits == wide);
    }
    gn_close(g);
}

/* Toward zero, within the bounds; NaN is 0. The last are fewer than a vector has. */
TEST(every_float_of_16_bits_becomes_double_and_byte_as_its_value_does) {
    enum { N = 65536 };
    static uint16_t h[N];
    static double wide[N];
    static int8_t bytes[N];
    static uint8_t plain[N];
    for (int i = 0; i < N; i++) h[i] = (uint16_t)(i * 7);
    for (int k = 0; k < 4; k++) {
        int64_t n = k / 2 ? N : N - 13;
        g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
        gn_tensor x = gn_data(g, k % 2 ? GN_BF16 : GN_F16, GN_SHAPE(n), h);
        CHECK(gn_read(gn_cast(x, GN_F64), wide, (size_t)n * sizeof *wide) == GN_OK);
        CHECK(gn_read(gn_cast(x, GN_I8), bytes, (size_t)n) == GN_OK);
        CHECK(gn_read(gn_cast(x, GN_U8), plain, (size_t)n) == GN_OK);
        for (int64_t i = 0; i < n; i++) {
            double is = (double)(k % 2 ? gn_bf16_to_f32(h[i]) : gn_f16_to_f32(h[i])), v = isnan(is) ? 0 : trunc(is);
            CHECK(isnan(is) ? isnan(wide[i]) : wide[i] == is && signbit(wide[i]) == signbit(is));
            CHECK(bytes[i] == (int8_t)fmax(fmin(v, 127), -128) && plain[i] == (uint8_t)fmax(fmin(v, 255), 0));
        }
        gn_close(g);
    }
}

TEST(bytes_and_doubles_become_floats_of_16_bits_as_their_value_does) {
    enum { N = 4096 };
    static uint8_t b[N];
    static double wide[N];
    static uint16_t got[N];
    static float want[N];
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int i = 0; i < N; i++) b[i] = (uint8_t)(i * 5), wide[i] = ldexp(test_random_real(-2, 2), (int)(i % 48) - 30);
    wide[1] = NAN, wide[2] = INFINITY, wide[3] = -65520, wide[4] = 1 + 0x1p-11 + 0x1p-40, wide[5] = -0.0;
    for (int64_t n = N; n > 0; n -= 1000) {
        for (int k = 0; k < 2; k++) {
            CHECK(gn_read(gn_cast(gn_data(g, k ? GN_I8 : GN_U8, GN_SHAPE(n), b), GN_BF16), got, 2 * (size_t)n) ==
                  GN_OK);
            for (int64_t i = 0; i < n; i++) CHECK(gn_bf16_to_f32(got[i]) == (float)(k ? (int8_t)b[i] : b[i]));
        }
        gn_tensor x = gn_data(g, GN_F64, GN_SHAPE(n), wide);
        CHECK(gn_read(gn_cast(x, GN_F16), got, 2 * (size_t)n) == GN_OK);
        CHECK(gn_read(gn_cast(gn_cast(gn_add_c(x, 0), GN_F16), GN_F32), want, (size_t)n * sizeof *want) == GN_OK);
        for (int64_t i = 0; i < n; i++) {
            float is = gn_f16_to_f32(got[i]);
            CHECK(isnan(want[i]) ? isnan(is) : is == want[i]);
        }
        CHECK(n < 6 || (gn_f16_to_f32(got[4]) == 1 + 0x1p-10f && isinf(gn_f16_to_f32(got[3]))));
    }
    gn_close(g);
}

TEST(floats_are_rounded_to_16_bits_as_one_at_a_time) {
    static float x[FLOATS], back[FLOATS];
    static uint16_t f[FLOATS], b[FLOATS];
    for (uint32_t i = 0; i < FLOATS; i++) {
        uint32_t bits = i * 16384 + (uint32_t)(test_random() % 3) * 4096 + (uint32_t)(test_random() % 3) - 1;
        memcpy(&x[i], &bits, sizeof bits);
    }
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(FLOATS), x);
    CHECK(gn_read(gn_cast(t, GN_F16), f, sizeof f) == GN_OK);
    CHECK(gn_read(gn_cast(t, GN_BF16), b, sizeof b) == GN_OK);
    CHECK(gn_read(gn_neg(gn_neg(gn_cast(gn_cast(t, GN_F16), GN_F32))), back, sizeof back) == GN_OK);
    for (int i = 0; i < FLOATS; i++) {
        float one = gn_f16_to_f32(gn_f32_to_f16(x[i]));
        CHECK(f[i] == gn_f32_to_f16(x[i]));
        CHECK(b[i] == gn_f32_to_bf16(x[i]));
        CHECK(memcmp(&back[i], &one, sizeof one) == 0);
        if (isfinite(x[i]) && f[i] < 0x7c00 && f[i]) {
            double below = f16_value((uint16_t)(f[i] - 1)), above = f16_value((uint16_t)(f[i] + 1)), v = (double)x[i];
            double at = f16_value(f[i]), off = fabs(v - at);
            CHECK(off <= fabs(v - below) && (isinf(above) || off <= fabs(above - v)));
        }
    }
    gn_close(g);
}

/* Once: by way of f32 each of these would be halfway between two results. */
TEST(doubles_are_rounded_once_to_16_bits) {
    double x[64];
    uint16_t f[64], b[64];
    for (int i = 0; i < 64; i++)
        x[i] = (i & 1 ? -1 : 1) * (1 + (i & 2 ? 0x1p-11 : 0x1p-8) + (i & 4 ? 0x1p-40 : -0x1p-40));
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor t = gn_data(g, GN_F64, GN_SHAPE(64), x);
    CHECK(gn_read(gn_cast(t, GN_F16), f, sizeof f) == GN_OK);
    CHECK(gn_read(gn_cast(t, GN_BF16), b, sizeof b) == GN_OK);
    for (int i = 0; i < 64; i++) {
        int sign = i & 1 ? 0x8000 : 0;
        if (i & 2) CHECK(f[i] == (sign | (i & 4 ? 0x3c01 : 0x3c00)));
        else CHECK(b[i] == (sign | (i & 4 ? 0x3f81 : 0x3f80)));
    }
    gn_close(g);
}

/* Largest and least of bytes: in rows, down columns, of all. */
TEST(extremes_of_bytes_are_exact) {
    enum { R = 37, C = 700 };
    static int8_t x[R * C];
    uint32_t seed = 7;
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int bits = 0; bits < 2; bits++) {
        gn_dtype d = bits ? GN_U8 : GN_I8;
        for (int i = 0; i < R * C; i++) x[i] = (int8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
        gn_tensor t = gn_data_copy(g, d, GN_SHAPE(R, C), x), all[6];
        int8_t got[6][C];
        for (int k = 0; k < 6; k++) {
            gn_axes axes = k < 2 ? GN_AXES(1) : k < 4 ? GN_AXES(0) : GN_AXES(0, 1);
            all[k] = k & 1 ? gn_min(t, axes, false) : gn_max(t, axes, false);
            CHECK(gn_read(all[k], got[k], k < 2 ? R : k < 4 ? C : 1) == GN_OK);
        }
        int most = -999, least = 999;
        for (int i = 0; i < R; i++) {
            int high = -999, low = 999;
            for (int j = 0; j < C; j++) {
                int v = bits ? (uint8_t)x[i * C + j] : x[i * C + j];
                high = v > high ? v : high;
                low = v < low ? v : low;
            }
            CHECK(got[0][i] == (int8_t)high && got[1][i] == (int8_t)low);
            most = high > most ? high : most;
            least = low < least ? low : least;
        }
        for (int j = 0; j < C; j++) {
            int high = -999, low = 999;
            for (int i = 0; i < R; i++) {
                int v = bits ? (uint8_t)x[i * C + j] : x[i * C + j];
                high = v > high ? v : high;
                low = v < low ? v : low;
            }
            CHECK(got[2][j] == (int8_t)high && got[3][j] == (int8_t)low);
        }
        CHECK(got[4][0] == (int8_t)most && got[5][0] == (int8_t)least);
    }
    gn_close(g);
}

/* Windows of 2 by 3, of f32 and f64 with NaN in some: largest, its place, sum. */
TEST(extremes_and_sums_of_small_windows_are_exact) {
    enum { B = 5, H = 7, W = 11, N = B * H * 2 * W * 3 };
    static float x[N], high[N / 6], sum[N / 6];
    static double wide[N], high64[N / 6];
    static int64_t at[N / 6];
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int i = 0; i < N; i++) wide[i] = x[i] = i % 97 == 5 ? NAN : (float)((i * 7919) % 211 - 105);
    gn_shape s = GN_SHAPE(B, H, 2, W, 3);
    gn_tensor t = gn_data(g, GN_F32, s, x), u = gn_data(g, GN_F64, s, wide);
    CHECK(gn_read(gn_max(t, GN_AXES(2, 4), false), high, sizeof high) == GN_OK);
    CHECK(gn_read(gn_max(u, GN_AXES(2, 4), false), high64, sizeof high64) == GN_OK);
    CHECK(gn_read(gn_sum(t, GN_AXES(2, 4), false), sum, sizeof sum) == GN_OK);
    CHECK(gn_read(gn_argmax(t, GN_AXES(2, 4), false), at, sizeof at) == GN_OK);
    for (int o = 0; o < N / 6; o++) {
        float best = -INFINITY, all = 0; /* sums of whole numbers are exact in any order */
        int place = 0;
        for (int r = 0; r < 6; r++) {
            float v = x[(o / W * 2 + r / 3) * W * 3 + o % W * 3 + r % 3];
            if (v > best || (v != v && best == best)) best = v, place = r;
            all += v;
        }
        CHECK(best == best ? high[o] == best && high64[o] == (double)best
                           : high[o] != high[o] && high64[o] != high64[o]);
        CHECK(all == all ? sum[o] == all : sum[o] != sum[o]);
        CHECK(at[o] == place);
    }
    gn_close(g);
}

/* Normals of 16 bits are those of f64 with the same key and counter, rounded once; aranges of whole numbers. */
TEST(generators_of_narrow_floats_round_once) {
    enum { N = 40000 };
    static double wide[N];
    static uint16_t got[2][N], want[2][N];
    gn_dtype d[3] = { GN_F64, GN_F16, GN_BF16 };
    for (int k = 0; k < 3; k++) {
        g = gn_open(&(gn_desc){ .devices = "cpu", .seed = 11 });
        gn_tensor t = gn_random_normal(g, d[k], GN_SHAPE(N));
        CHECK(gn_read(t, k ? (void *)got[k - 1] : wide, (size_t)N * (k ? 2 : 8)) == GN_OK);
        if (k)
            CHECK(gn_read(gn_cast(gn_data(g, GN_F64, GN_SHAPE(N), wide), d[k]), want[k - 1], sizeof want[0]) == GN_OK);
        gn_close(g);
    }
    CHECK(memcmp(got, want, sizeof got) == 0);
    static float f[N];
    static int32_t l[N];
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    CHECK(gn_read(gn_arange(g, GN_F32, N, 16777000, -3), f, sizeof f) == GN_OK);
    CHECK(gn_read(gn_arange(g, GN_I32, N, -7, 53000), l, sizeof l) == GN_OK);
    for (int i = 0; i < N; i++) {
        CHECK(f[i] == (float)(16777000.0 - 3.0 * i));
        CHECK(l[i] == -7 + 53000 * i);
    }
    gn_close(g);
}

/* What a choice takes may be rounded after it: no bit differs from rounding each result. */
TEST(choices_between_narrow_floats_are_as_of_rounded_ones) {
    enum { N = 4099 };
    static uint16_t fused[N], apart[N];
    static double wide[2][N];
    for (int i = 0; i < 2 * N; i++) wide[i / N][i % N] = i % 97 == 5 ? NAN : sin(i * 12.9) * exp2(i % 41 - 28);
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int k = 0; k < 2; k++) {
        gn_tensor a = gn_cast(gn_data(g, GN_F64, GN_SHAPE(N), wide[0]), k ? GN_BF16 : GN_F16);
        gn_tensor b = gn_cast(gn_data(g, GN_F64, GN_SHAPE(N), wide[1]), k ? GN_BF16 : GN_F16);
        gn_tensor product = gn_mul(a, b), sum = gn_add(a, b),
                  both = gn_where(gn_lt(a, b), product, gn_where(gn_gt(a, sum), sum, b));
        CHECK(gn_read(gn_add(gn_where(gn_gt(a, product), both, product), a), fused, sizeof fused) == GN_OK);
        CHECK(gn_realize(&product, 1) == GN_OK && gn_realize(&sum, 1) == GN_OK);
        both = gn_where(gn_lt(a, b), product, gn_where(gn_gt(a, sum), sum, b));
        CHECK(gn_realize(&both, 1) == GN_OK);
        CHECK(gn_read(gn_add(gn_where(gn_gt(a, product), both, product), a), apart, sizeof apart) == GN_OK);
        CHECK(memcmp(fused, apart, sizeof fused) == 0);
        CHECK(gn_read(gn_leaky_relu(a, 0.1), fused, sizeof fused) == GN_OK);
        product = gn_mul_c(a, 0.1);
        CHECK(gn_realize(&product, 1) == GN_OK);
        CHECK(gn_read(gn_where(gn_lt(a, gn_mul_c(a, 0)), product, a), apart, sizeof apart) == GN_OK);
        CHECK(memcmp(fused, apart, sizeof fused) == 0);
    }
    gn_close(g);
}

/* Rounded after each op: by a loop of 16-bit floats alone, or with the conversions written out. */
static gn_tensor half_op(int o, const gn_tensor *x) {
    switch (o) {
    case 0: return gn_add(x[0], x[1]);
    case 1: return gn_sub(x[0], x[1]);
    case 2: return gn_mul(x[0], x[1]);
    case 3: return gn_div(x[0], x[1]);
    case 4: return gn_minimum(x[0], x[1]);
    case 5: return gn_maximum(x[0], x[1]);
    case 6: return gn_neg(x[0]);
    case 7: return gn_abs(x[0]);
    case 8: return gn_relu(x[0]);
    case 9: return gn_square(x[0]);
    case 10: return gn_sqrt(x[0]);
    case 11: return gn_rsqrt(x[0]);
    case 12: return gn_reciprocal(x[0]);
    case 13: return gn_fma(x[0], x[1], x[2]);
    case 14: return gn_add_c(x[0], 0.3);
    default: return gn_leaky_relu(x[0], o == 15 ? 0.3 : o == 16 ? 1 : 0x1p-14);
    }
}

TEST(loops_of_16_bit_floats_round_as_conversions_do) {
    enum { N = 65536, HALF_OPS = 18 };
    static uint16_t h[3][N], got[N], want[N];
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (uint32_t i = 0; i < N; i++) {
        h[0][i] = (uint16_t)i;
        h[1][i] = i % 8 ? (uint16_t)(i * 40503u >> 3) : (uint16_t)(test_random() % 8 * 0x1f00u);
        h[2][i] = (uint16_t)(i % 5 ? i * 2654435761u >> 11 : 0x7c00u + i % 3);
    }
    for (int k = 0; k < 2 * HALF_OPS; k++) {
        gn_dtype d = k % 2 ? GN_BF16 : GN_F16;
        int64_t n = k % 3 ? N : 9001;
        gn_tensor x[3], wide[3];
        for (int l = 0; l < 3; l++) {
            x[l] = gn_data(g, d, GN_SHAPE(n), h[l]);
            wide[l] = gn_cast(x[l], GN_F32);
        }
        gn_tensor own = half_op(k / 2, x), other = half_op(k / 2, wide);
        if (k / 2 == 14) other = gn_add(wide[0], gn_cast(gn_like(x[0], 0.3), GN_F32));
        double slope = k / 2 == 15 ? 0.3 : k / 2 == 16 ? 1 : 0x1p-14;
        if (k / 2 > 14) /* not the comparison that the loop knows */
            other = gn_where(gn_gt(gn_like(x[0], 0), x[0]), gn_mul(x[0], gn_like(x[0], slope)), x[0]);
        CHECK(gn_read(own, got, (size_t)n * 2) == GN_OK);
        CHECK(gn_read(gn_cast(other, d), want, (size_t)n * 2) == GN_OK);
        for (int64_t i = 0; i < n; i++) CHECK(got[i] == want[i]);
    }
    gn_close(g);
}

/* The same of wider floats; and truth values, each from what it is computed in. */
TEST(slopes_and_truths_are_as_written_out) {
    enum { N = 4099 };
    static const double edges[] = { 0,     -0.0,   INFINITY,  -INFINITY, NAN,   -NAN,    1e-310,  -1e-310,
                                    1e-45, -1e-45, -0x1p-149, 3e38,      -3e38, 1.7e308, -1.7e308 };
    static double x[N], got[2][N];
    static uint8_t truths[N];
    for (int i = 0; i < N; i++) x[i] = i % 3 ? edges[i % TEST_COUNT(edges)] : sin(i * 12.9) * exp2(i % 41 - 28);
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    static const gn_dtype dtypes[] = { GN_F64, GN_F32, GN_F16, GN_BF16, GN_I32, GN_I64, GN_I8 };
    static const double slopes[] = { 0.125, 1, 0x1p-14, 1e-30, 0, 1.5, -0.5 };
    for (size_t d = 0; d < TEST_COUNT(dtypes); d++) {
        gn_tensor a = gn_cast(gn_data(g, GN_F64, GN_SHAPE(N), x), dtypes[d]), wide = gn_cast(a, GN_F64);
        CHECK(gn_realize(&a, 1) == GN_OK);
        for (size_t c = 0; c < TEST_COUNT(slopes) && d < 4; c++) {
            gn_tensor own = gn_leaky_relu(a, slopes[c]),
                      other = gn_where(gn_gt(gn_like(a, 0), a), gn_mul(a, gn_like(a, slopes[c])), a);
            size_t bytes = (size_t)N * gn_dtype_bytes(dtypes[d]);
            CHECK(gn_read(own, got[0], bytes) == GN_OK && gn_read(other, got[1], bytes) == GN_OK);
            CHECK(memcmp(got[0], got[1], bytes) == 0);
        }
        CHECK(gn_read(gn_cast(a, GN_BOOL), truths, sizeof truths) == GN_OK);
        CHECK(gn_read(wide, got[0], sizeof got[0]) == GN_OK);
        for (int i = 0; i < N; i++) CHECK(truths[i] == (got[0][i] != 0));
    }
    gn_close(g);
}

TEST(floats_to_long_integers_saturate) {
    enum { N = 71 };
    static const double edges[] = { 0,      -0.0,     0.5,       -0.5,    -1.5,     4294967040.0, 4294967296.0,
                                    0x1p62, -0x1p62,  0x1p63,    -0x1p63, 0x1p64,   -0x1p64,      1e300,
                                    -1e300, INFINITY, -INFINITY, NAN,     16777217, -3.999,       2147483648.0 };
    static double x[N];
    static float f[N];
    static int64_t got[N];
    static uint32_t small[N];
    for (int i = 0; i < N; i++) f[i] = (float)(x[i] = edges[i % TEST_COUNT(edges)]);
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int k = 0; k < 2; k++) {
        gn_tensor t = gn_data(g, k ? GN_F32 : GN_F64, GN_SHAPE(N), k ? (const void *)f : x);
        CHECK(gn_read(gn_cast(t, GN_I64), got, sizeof got) == GN_OK);
        CHECK(gn_read(gn_cast(t, GN_U32), small, sizeof small) == GN_OK);
        for (int i = 0; i < N; i++) {
            double v = k ? (double)f[i] : x[i];
            CHECK(got[i] == (v != v ? 0 : v >= 0x1p63 ? INT64_MAX : v <= -0x1p63 ? INT64_MIN : (int64_t)v));
            CHECK(small[i] == (v != v || v <= 0 ? 0 : v >= 0x1p32 ? UINT32_MAX : (uint32_t)v));
        }
    }
    gn_close(g);
}

/* Bytes times a few vectors, on both sides, wrapping; rows on both sides of what a vector and a block take. */
TEST(products_of_bytes_with_few_vectors_wrap) {
    enum { M = 67, K = 331, MOST = 3 };
    static uint8_t a[M * K], x[K * MOST], got[2][M * MOST];
    g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int i = 0; i < M * K; i++) a[i] = (uint8_t)test_random();
    for (int i = 0; i < K * MOST; i++) x[i] = (uint8_t)test_random();
    static const int depths[4] = { 64, 127, 256, K };
    for (int c = 0; c < 2 * 4 * MOST; c++) {
        gn_dtype d = c & 1 ? GN_U8 : GN_I8;
        int k = depths[c / 2 % 4], few = c / 8 + 1;
        gn_tensor w = gn_slice(gn_data_copy(g, d, GN_SHAPE(M, K), a), 1, 0, k, 1);
        gn_tensor v = gn_data_copy(g, d, GN_SHAPE(few, k), x);
        CHECK(gn_read(gn_matmul(w, gn_transpose(v, 0, 1)), got[0], (size_t)(M * few)) == GN_OK);
        CHECK(gn_read(gn_matmul(v, gn_transpose(w, 0, 1)), got[1], (size_t)(M * few)) == GN_OK);
        for (int i = 0; i < M; i++)
            for (int r = 0; r < few; r++) {
                int64_t sum = 0;
                for (int l = 0; l < k; l++)
                    sum += c & 1 ? a[i * K + l] * x[r * k + l] : (int8_t)a[i * K + l] * (int8_t)x[r * k + l];
                CHECK(got[0][i * few + r] == (uint8_t)sum && got[1][r * M + i] == (uint8_t)sum);
            }
    }
    gn_close(g);
}

static gn_tensor long_function(gn_tensor x, int which) {
    gn_dtype other = which & 1 ? GN_F16 : GN_BF16;
    switch (which) {
    case 0: return gn_gelu(x);
    case 1: return gn_exp(x);
    case 2: return gn_sin(x);
    case 3: return gn_silu(x);
    case 4: return gn_add_c(gn_mul_c(gn_tanh(x), 3), 0.5);
    case 5: return gn_cast(gn_log(x), other);
    case 6: return gn_cast(gn_erf(gn_cast(x, GN_F32)), other);
    case 7: return gn_div(gn_exp(x), gn_add_c(gn_exp(gn_neg(x)), 1));
    case 8: return gn_where(gn_gt(x, gn_like(x, 0)), gn_pow_c(x, 0.3), gn_expm1(x));
    default: return gn_cast(gn_cos(gn_cast(x, GN_F64)), other);
    }
}

/* Long functions of many elements are looked up in a table of all values: the bits are those of few elements. */
TEST(functions_of_all_16_bit_floats_are_the_same_of_many_and_few) {
    enum { VALUES = 1 << 16, ROWS = 9, COUNT = 10 };
    static uint16_t all[ROWS][VALUES], many[ROWS][VALUES], few[VALUES];
    for (int i = 0; i < VALUES; i++)
        for (int r = 0; r < ROWS; r++) all[r][i] = (uint16_t)(i * (2 * r + 1) + r);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        gn_ctx *ctx = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
        for (int f = 0; f < 2 * COUNT; f++) {
            gn_dtype d = f < COUNT ? GN_F16 : GN_BF16;
            gn_tensor x = gn_data(ctx, d, GN_SHAPE(ROWS, VALUES), all);
            gn_tensor one = gn_data(ctx, d, GN_SHAPE(VALUES), all[0]);
            CHECK_RESULT(gn_read(long_function(x, f % COUNT), many, sizeof many), GN_OK);
            CHECK_RESULT(gn_read(long_function(one, f % COUNT), few, sizeof few), GN_OK);
            int wrong = 0;
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < VALUES; i++) wrong += many[r][i] != few[all[r][i]];
            if (!CHECK(wrong == 0)) printf("function %d of %s: %d differ\n", f % COUNT, gn_dtype_name(d), wrong);
            gn_step(ctx);
        }
        gn_close(ctx);
    }
}

/* A large matrix times few vectors: as it lies, turned in memory, and as the f32 of its values, for other loops. What
   is added cancels nearly, so that another order of additions would give other bits. */
static void check_order(gn_ctx *ctx, gn_dtype d, const float *x, int few, int k, int n, const char *where) {
    enum { MOST = 1 << 21, RESULTS = 8192 };
    static float w[2][MOST], wide[RESULTS];
    static uint16_t narrow[3][MOST], got[2][RESULTS];
    static float got32[2][RESULTS];
    bool f32 = d == GN_F32;
    size_t bytes = (size_t)(few * n) * (f32 ? 4 : 2);
    void *out[2] = { f32 ? (void *)got32[0] : got[0], f32 ? (void *)got32[1] : got[1] };
    for (int i = 0; i < k; i++)
        for (int l = 0; l < n; l++) {
            bool rest = i % 16 / 2 == 2; /* what is left of a sum is small beside what it went through */
            float v = (float)ldexp(test_random_real(-1, 1), rest ? -18 : (int)test_random_int(-10, 10));
            if (i % 2 && !rest) v = -w[0][(i - 1) * n + l];
            w[0][i * n + l] = w[1][l * k + i] = v;
        }
    for (int i = 0; i < k * n; i++)
        for (int l = 0; l < 2; l++) narrow[l][i] = d == GN_F16 ? gn_f32_to_f16(w[l][i]) : gn_f32_to_bf16(w[l][i]);
    for (int i = 0; i < few * k; i++) narrow[2][i] = d == GN_F16 ? gn_f32_to_f16(x[i]) : gn_f32_to_bf16(x[i]);
    gn_tensor a = gn_data(ctx, d, GN_SHAPE(few, k), f32 ? (const void *)x : narrow[2]);
    gn_tensor b = gn_data(ctx, d, GN_SHAPE(k, n), f32 ? (void *)w[0] : narrow[0]);
    gn_tensor turned = gn_data(ctx, d, GN_SHAPE(n, k), f32 ? (void *)w[1] : narrow[1]);
    CHECK_RESULT(gn_read(gn_matmul(a, b), out[0], bytes), GN_OK);
    CHECK_RESULT(gn_read(gn_matmul(a, gn_transpose(turned, 0, 1)), out[1], bytes), GN_OK);
    if (!CHECK(memcmp(out[0], out[1], bytes) == 0))
        printf("%s of %s, %d x %d x %d: turned in memory it differs\n", where, gn_dtype_name(d), few, k, n);
    CHECK_RESULT(gn_read(gn_matmul(turned, gn_transpose(a, 0, 1)), out[1], bytes), GN_OK);
    int wrong = 0;
    for (int r = 0; r < few; r++)
        for (int l = 0; l < n; l++)
            wrong += memcmp((char *)out[0] + bytes / (size_t)(few * n) * (size_t)(r * n + l),
                            (char *)out[1] + bytes / (size_t)(few * n) * (size_t)(l * few + r),
                            bytes / (size_t)(few * n)) != 0;
    if (!CHECK(wrong == 0))
        printf("%s of %s, %d x %d x %d: on the other side %d differ\n", where, gn_dtype_name(d), few, k, n, wrong);
    if (f32) return;
    gn_tensor a32 = gn_cast(a, GN_F32), b32 = gn_cast(turned, GN_F32);
    CHECK_RESULT(gn_read(gn_matmul(a32, gn_transpose(b32, 0, 1)), wide, 2 * bytes), GN_OK);
    wrong = 0;
    for (int i = 0; i < few * n; i++)
        wrong += got[0][i] != (d == GN_F16 ? gn_f32_to_f16(wide[i]) : gn_f32_to_bf16(wide[i]));
    if (!CHECK(wrong == 0))
        printf("%s of %s, %d x %d x %d: %d differ from f32\n", where, gn_dtype_name(d), few, k, n, wrong);
}

TEST(large_products_with_vectors_add_in_one_order) {
    enum { LONG = 8192, FEW = 3 };
    static const int of[][3] = { { 1, 1024, 1031 }, { 1, 2048, 520 }, { 3, 3072, 350 }, { 1, 1500, 704 },
                                 { 2, 1049, 1001 }, { 1, 4096, 259 }, { 1, LONG, 130 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16 };
    static const char *const paths[] = { "base", "avx2", "avx512" };
    static float x[FEW * LONG];
    for (int i = 0; i < FEW * LONG; i += 2) x[i] = x[i + 1] = (float)test_random_real(500, 1000);
    for (int p = 0; p < TEST_COUNT(paths); p++) {
        setenv("GENIE_ISA", paths[p], 1);
        gn_ctx *ctx = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 + (uint32_t)p % 2 });
        unsetenv("GENIE_ISA");
        for (int i = 0; i < TEST_COUNT(of); i++)
            for (int d = 0; d < TEST_COUNT(dtypes); d++) {
                check_order(ctx, dtypes[d], x, of[i][0], of[i][1], of[i][2], paths[p]);
                gn_step(ctx);
            }
        gn_close(ctx);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(narrow_integers_are_exact_at_all_lengths),
        TEST_ENTRY(every_float_of_16_bits_is_read_as_its_value),
        TEST_ENTRY(every_float_of_16_bits_becomes_double_and_byte_as_its_value_does),
        TEST_ENTRY(bytes_and_doubles_become_floats_of_16_bits_as_their_value_does),
        TEST_ENTRY(floats_are_rounded_to_16_bits_as_one_at_a_time),
        TEST_ENTRY(doubles_are_rounded_once_to_16_bits),
        TEST_ENTRY(extremes_of_bytes_are_exact),
        TEST_ENTRY(extremes_and_sums_of_small_windows_are_exact),
        TEST_ENTRY(generators_of_narrow_floats_round_once),
        TEST_ENTRY(choices_between_narrow_floats_are_as_of_rounded_ones),
        TEST_ENTRY(loops_of_16_bit_floats_round_as_conversions_do),
        TEST_ENTRY(slopes_and_truths_are_as_written_out),
        TEST_ENTRY(floats_to_long_integers_saturate),
        TEST_ENTRY(products_of_bytes_with_few_vectors_wrap),
        TEST_ENTRY(functions_of_all_16_bit_floats_are_the_same_of_many_and_few),
        TEST_ENTRY(large_products_with_vectors_add_in_one_order),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
