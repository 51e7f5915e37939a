/* Larger shapes than the conformance suite's on the device of $GENIE_TEST_DEVICES (cuda:0), beside the CPU executor:
 * tiled and tensor-core products, flash attention, long reductions and rows, replayed plans with states, faults. Skips
 * where it is absent. GPU_LARGE=1 runs those as well that take most of the GPU's memory.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include "numbers.h"

static gn_ctx *gpu, *cpu;
static const char *device_name;
static bool compiles_only; /* $GENIE_CUDA_COMPILE_ONLY: kernels are generated, and compiled at the end */

GN_API size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text,
                                        size_t cap);

typedef struct job {
    gn_dtype d;
    int64_t a, b, c, e;
    int form;
} job;
typedef gn_tensor (*build_fn)(gn_ctx *g, const job *j, void **data);

/* Builds on both devices and compares, relative to the largest value. */
static void compare(const char *what, build_fn build, const job *j, void **data, double tolerance) {
    if (compiles_only) {
        char nothing;
        gn_tensor only = build(gpu, j, data);
        gn_realize(&only, 1);
        gn_read(only, &nothing, 0);
        gn_step(gpu);
        return;
    }
    gn_tensor t[2] = { build(cpu, j, data), build(gpu, j, data) };
    gn_info info;
    void *out[2];
    if (!CHECK_RESULT(gn_describe(t[0], &info), GN_OK)) return;
    int64_t n = 1;
    for (int i = 0; i < info.shape.rank; i++) n *= info.shape.dims[i];
    size_t bytes = (size_t)n * gn_dtype_bytes(info.dtype);
    for (int i = 1; i >= 0; i--) {
        out[i] = calloc(1, bytes + 8);
        gn_result r = gn_read(t[i], out[i], bytes);
        if (r == GN_NO_VALUE && i && getenv("GENIE_CUDA_ONE_OF_EACH")) {
            free(out[1]);
            return;
        }
        if (r != GN_OK) {
            test_fail(__FILE__, __LINE__, "%s on %s: %s: %s", what, i ? "the GPU" : "the CPU", gn_result_name(r),
                      gn_last_error(i ? gpu : cpu)->text);
        }
        gn_step(i ? gpu : cpu);
    }
    double largest = 0, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = fabs(element(info.dtype, out[0], i)),
               error = fabs(element(info.dtype, out[0], i) - element(info.dtype, out[1], i));
        largest = x > largest ? x : largest;
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    if (!(worst <= tolerance * largest) || largest == 0) {
        test_fail(__FILE__, __LINE__,
                  "%s %s (%lld %lld %lld %lld form %d): element %lld of %lld is %g, not %g; the largest is %g", what,
                  gn_dtype_name(j->d), (long long)j->a, (long long)j->b, (long long)j->c, (long long)j->e, j->form,
                  (long long)at, (long long)n, element(info.dtype, out[1], at), element(info.dtype, out[0], at),
                  largest);
    }
    free(out[0]);
    free(out[1]);
}

/* ---- products: form bit 0 transposes a, bit 1 b, bit 2 adds a bias by linear ---- */

static gn_tensor build_product(gn_ctx *g, const job *j, void **data) {
    gn_tensor a = j->form & 1 ? gn_transpose(gn_data(g, j->d, GN_SHAPE(j->c, j->a), data[0]), 0, 1)
                              : gn_data(g, j->d, GN_SHAPE(j->a, j->c), data[0]);
    gn_tensor b = j->form & 2 ? gn_transpose(gn_data(g, j->d, GN_SHAPE(j->b, j->c), data[1]), 0, 1)
                              : gn_data(g, j->d, GN_SHAPE(j->c, j->b), data[1]);
    return j->form & 4 ? gn_linear(a, b, gn_data(g, j->d, GN_SHAPE(j->b), data[2])) : gn_matmul(a, b);
}

static void products_of_all_forms_agree_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 128, 128, 128 },    { 256, 384, 512 }, { 64, 2048, 2048 }, { 200, 136, 72 },
                                         { 1000, 1000, 1000 }, { 17, 40, 1032 },  { 33, 257, 65 },    { 130, 66, 100 },
                                         { 1, 768, 768 },      { 1, 3072, 768 },  { 1, 768, 3072 },   { 3, 1000, 513 },
                                         { 8, 50, 4096 },      { 1, 50257, 768 }, { 512, 64, 8192 },  { 36, 36, 4 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16, GN_F64 };
    for (int k = 0; k < TEST_COUNT(shapes); k++) {
        for (int d = 0; d < TEST_COUNT(dtypes); d++) {
            if (dtypes[d] == GN_F64 && shapes[k][0] * shapes[k][1] * shapes[k][2] > 100000000) continue;
            int64_t m = shapes[k][0], n = shapes[k][1], kk = shapes[k][2];
            void *data[3] = { random_bytes(dtypes[d], m * kk, 1), random_bytes(dtypes[d], kk * n, 1),
                              random_bytes(dtypes[d], n, 1) };
            for (int form = 0; form < 8; form++) {
                job j = { dtypes[d], m, n, kk, 0, form };
                compare("product", build_product, &j, data, eps_of(dtypes[d]) * 64);
            }
            free(data[0]);
            free(data[1]);
            free(data[2]);
        }
    }
}

/* Products on tensor cores by another of the ways that the model knows; -1: by the best. */
static void set_rank(int rank) {
    char text[12];
    snprintf(text, sizeof text, "%d", rank);
    if (rank < 0) unsetenv("GENIE_CUDA_RANK");
    else setenv("GENIE_CUDA_RANK", text, 1);
}

/* Tails of every tile that warpgroup kernels have, of 128 x 256 to 64 x 64, in all four directions, and results that
   are too narrow for TMA; f32 in all directions where the tiles are wide. */
static void large_products_agree_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 650, 5128, 72 },  { 650, 5126, 72 },    { 400, 2056, 200 },
                                         { 200, 2056, 136 }, { 70, 1032, 1160 },   { 72, 264, 3000 },
                                         { 200, 520, 328 },  { 1024, 1024, 1024 }, { 512, 768, 768 },
                                         { 512, 3072, 768 }, { 64, 2048, 2048 },   { 1160, 7052, 20 },
                                         { 4100, 2064, 52 } };
    static const gn_dtype dtypes[] = { GN_BF16, GN_F16, GN_F32 };
    for (int k = 0; k < TEST_COUNT(shapes) * 4; k++) {
        job j = {
            dtypes[k % 4 && k / 4 < 11 ? k / 4 % 2 : 2], shapes[k / 4][0], shapes[k / 4][1], shapes[k / 4][2], 0, k % 4
        };
        void *data[3] = { random_bytes(j.d, j.a * j.c, 1), random_bytes(j.d, j.c * j.b, 1), NULL };
        set_rank(k * 5 % 23);
        compare("large product", build_product, &j, data, eps_of(j.d) * 64);
        free(data[0]);
        free(data[1]);
    }
    set_rank(-1);
}

/* Plain f32 in every tile, whole and in parts of k, beside ends of tiles and of k, from where rows lie in each way:
 * form bits 0, 1 transpose a side, bit 2 adds a bias by linear, bit 3 takes all but the first column of what lies in
 * memory, so that nothing stands at 16 bytes. */

static gn_tensor build_any_product(gn_ctx *g, const job *j, void **data) {
    int64_t skip = j->form & 8 ? 1 : 0;
    gn_tensor a = j->form & 1 ? gn_data(g, j->d, GN_SHAPE(j->c, j->a + skip), data[0])
                              : gn_data(g, j->d, GN_SHAPE(j->a, j->c + skip), data[0]);
    gn_tensor b = j->form & 2 ? gn_data(g, j->d, GN_SHAPE(j->b, j->c + skip), data[1])
                              : gn_data(g, j->d, GN_SHAPE(j->c, j->b + skip), data[1]);
    if (skip) {
        a = gn_slice(a, 1, 1, GN_END, 1);
        b = gn_slice(b, 1, 1, GN_END, 1);
    }
    if (j->form & 1) a = gn_transpose(a, 0, 1);
    if (j->form & 2) b = gn_transpose(b, 0, 1);
    return j->form & 4 ? gn_linear(a, b, gn_data(g, j->d, GN_SHAPE(j->b), data[2])) : gn_matmul(a, b);
}

static void plain_products_of_every_tile_agree_with_the_cpu(void) {
    static const struct {
        int64_t m, n, k;
        int forms;
    } shapes[] = { /* forms: a bit for each that is run */
                   { 1540, 3076, 20, 0x0011 }, { 1537, 3075, 68, 0x0008 },  { 1540, 644, 513, 0x0005 },
                   { 257, 500, 513, 0x0105 },  { 130, 2050, 70, 0x0402 },   { 129, 255, 600, 0x1002 },
                   { 700, 700, 200, 0x0041 },  { 2049, 772, 513, 0x0109 },  { 770, 392, 1001, 0x0104 },
                   { 2049, 772, 300, 0x0001 }, { 1025, 2572, 300, 0x0001 }, { 770, 644, 1030, 0x0021 },
                   { 257, 2572, 513, 0x0104 }, { 770, 1540, 513, 0x0004 },  { 250, 1028, 1030, 0x0011 },
                   { 2049, 132, 700, 0x0001 }, { 1540, 392, 1001, 0x0001 }, { 515, 68, 4100, 0x0005 },
                   { 2570, 68, 1001, 0x0001 }, { 3075, 132, 100, 0x0011 },  { 64, 2048, 520, 0x0106 },
                   { 63, 257, 1000, 0x0208 },  { 65, 1024, 90, 0x0005 },    { 32, 1028, 300, 0x0102 },
                   { 33, 640, 64, 0x0004 },    { 31, 130, 2001, 0x0809 },   { 64, 64, 3000, 0x0403 },
                   { 60, 66, 65, 0x0112 },     { 16, 2600, 129, 0x0107 },   { 515, 500, 33, 0x0001 },
                   { 15, 127, 2000, 0x0209 },  { 17, 4100, 33, 0x0021 },    { 9, 31, 2000, 0x0803 },
                   { 2000, 16, 129, 0x0104 },  { 513, 9, 1000, 0x0202 },    { 1000, 33, 257, 0x0409 },
                   { 1300, 16, 129, 0x0003 },  { 1540, 129, 33, 0x0101 },   { 3075, 257, 20, 0x0001 },
                   { 640, 31, 66, 0x0103 },    { 4100, 64, 80, 0x0005 },    { 100, 1300, 513, 0x0004 },
                   { 100, 100, 100, 0x0109 },  { 70000, 10, 1, 0x0101 }
    };
    for (int k = 0; k < TEST_COUNT(shapes); k++) {
        int64_t m = shapes[k].m, n = shapes[k].n, kk = shapes[k].k;
        void *data[3] = { random_bytes(GN_F32, (m + 1) * (kk + 1), 1), random_bytes(GN_F32, (kk + 1) * (n + 1), 1),
                          random_bytes(GN_F32, n, 1) };
        for (int form = 0; form < 16; form++) {
            job j = { GN_F32, m, n, kk, 0, form };
            if (shapes[k].forms >> form & 1) compare("plain product", build_any_product, &j, data, eps_of(GN_F32) * 64);
        }
        free(data[0]);
        free(data[1]);
        free(data[2]);
    }
}

/* In a context of its own: f32 products that were asked to be of TF32 are as exact as 10 bits of mantissa are. In all
 * four directions, of one step of 32 k, of two, of odd and even numbers, in every tile. */
static void tf32_products_are_as_exact_as_their_inputs(void) {
    static const int64_t shapes[][3] = { { 200, 520, 328 },  { 72, 264, 3000 },   { 650, 1028, 72 },
                                         { 132, 36, 32 },    { 36, 132, 60 },     { 512, 516, 1024 },
                                         { 64, 1024, 2048 }, { 1028, 2052, 100 }, { 2052, 1028, 68 },
                                         { 516, 3076, 100 }, { 1024, 1024, 1024 } };
    gn_ctx *of_all = gpu;
    setenv("GENIE_TF32", "1", 1);
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    for (int k = 0; k < TEST_COUNT(shapes) * 4 && CHECK_RESULT(gn_status(gpu), GN_OK); k++) {
        job j = { GN_F32, shapes[k / 4][0], shapes[k / 4][1], shapes[k / 4][2], 0, k % 4 + (k % 3 ? 0 : 4) };
        void *data[3] = { random_bytes(j.d, j.a * j.c, 1), random_bytes(j.d, j.c * j.b, 1), random_bytes(j.d, j.b, 1) };
        set_rank(k * 5 % 23);
        compare("TF32 product", build_product, &j, data, 2e-3);
        free(data[0]);
        free(data[1]);
        free(data[2]);
    }
    set_rank(-1);
    gn_close(gpu);
    gpu = of_all;
    unsetenv("GENIE_TF32");
}

/* A side of whole sixty-fourths to a half, with columns to its left that the product does not see: matrix z, `outer`
   rows, k deep, lies at `across` by rows of k. */
typedef struct exact_side {
    int64_t batches, outer, k, left;
    bool across;
    int *values;
} exact_side;

static gn_tensor exact_tensor(exact_side *s, gn_dtype d) {
    int64_t rows = s->across ? s->k : s->outer, columns = (s->across ? s->outer : s->k) + s->left,
            n = s->batches * rows * columns;
    float *x = calloc((size_t)n, sizeof *x);
    s->values = calloc((size_t)n, sizeof *s->values);
    for (int64_t i = 0; i < n; i++) {
        s->values[i] = (int)test_random_int(-32, 32);
        x[i] = (float)s->values[i] / 64.f;
    }
    gn_tensor t =
        gn_cast(gn_data(gpu, GN_F32, s->batches > 1 ? GN_SHAPE(s->batches, rows, columns) : GN_SHAPE(rows, columns), x),
                d);
    gn_realize(&t, 1); /* so that what follows is a view of memory */
    gn_read(t, x, 0);
    free(x);
    return s->left ? gn_slice(t, -1, s->left, INT64_MAX, 1) : t;
}
static int64_t exact_at(const exact_side *s, int64_t z, int64_t outer, int64_t k) {
    int64_t rows = s->across ? s->k : s->outer, columns = (s->across ? s->outer : s->k) + s->left;
    return s->values[((s->batches > 1 ? z : 0) * rows + (s->across ? k : outer)) * columns + s->left +
                     (s->across ? outer : k)];
}

static double as_held(gn_dtype d, float x) {
    return d == GN_F32 ? x : d == GN_F16 ? gn_f16_to_f32(gn_f32_to_f16(x)) : gn_bf16_to_f32(gn_f32_to_bf16(x));
}

/* Sums of such numbers have no more than 24 bits: whatever their order, they are exact. form bit 0 a lies across, bit 1
   b; bit 2 relu(y + bias); bits 3 and 4 two of a, of b. */
static void check_exact(gn_dtype d, int64_t m, int64_t n, int64_t k, int64_t left, int form) {
    exact_side a = { form & 8 ? 2 : 1, m, k, left, form & 1, NULL },
               b = { form & 16 ? 2 : 1, n, k, left, !(form & 2), NULL }, bias = { 1, n, 1, 0, true, NULL };
    gn_tensor ta = exact_tensor(&a, d), tb = exact_tensor(&b, d), tc = exact_tensor(&bias, d);
    gn_tensor y = gn_matmul(a.across ? gn_transpose(ta, -1, -2) : ta, b.across ? tb : gn_transpose(tb, -1, -2));
    int64_t batches = form & 24 ? 2 : 1;
    size_t bytes = (size_t)(batches * m * n) * gn_dtype_bytes(d);
    void *out = malloc(bytes + 8);
    memset(out, 0xff, bytes + 8);
    gn_result r = gn_read(form & 4 ? gn_relu(gn_add(y, tc)) : y, out, bytes);
    if (!(compiles_only && r == GN_NO_VALUE)) CHECK_RESULT(r, GN_OK);
    for (int64_t i = 0; i < batches * m * n && r == GN_OK; i++) {
        int64_t sum = 0, z = i / (m * n), row = i / n % m, column = i % n;
        for (int64_t l = 0; l < k; l++) sum += exact_at(&a, z, row, l) * exact_at(&b, z, column, l);
        double want = as_held(d, (float)sum / 4096.f);
        if (form & 4) want = as_held(d, (float)(want + (double)exact_at(&bias, 0, column, 0) / 64.));
        if (form & 4 && want < 0) want = 0;
        if (element(d, out, i) == want) continue;
        test_fail(__FILE__, __LINE__, "%s %lldx%lldx%lld, %lld left, form %d, rank %s: element %lld is %g, not %g",
                  gn_dtype_name(d), (long long)m, (long long)n, (long long)k, (long long)left, form,
                  getenv("GENIE_CUDA_RANK"), (long long)i, element(d, out, i), want);
        break;
    }
    gn_step(gpu);
    free(out);
    free(a.values);
    free(b.values);
    free(bias.values);
}

/* One below, at and above what tiles and steps hold, in all directions, at offsets that leave rows at multiples of 2,
 * 4, 8 and 16 bytes, each by another of the ways that the model knows. */
static void products_on_tensor_cores_are_exact(void) {
    static const struct {
        int64_t m, n, k, left;
        int form;
    } cases[] = {
        { 63, 65, 31, 0, 0 },   { 65, 127, 33, 1, 3 },  { 129, 130, 1, 3, 1 },   { 64, 10, 256, 0, 4 },
        { 9, 4096, 17, 0, 2 },  { 64, 64, 64, 8, 8 },   { 100, 16, 520, 2, 16 }, { 17, 64, 129, 4, 24 },
        { 31, 9, 1000, 1, 4 },  { 300, 3, 100, 0, 0 },  { 40, 1, 333, 0, 1 },    { 200, 136, 72, 4, 6 },
        { 128, 128, 96, 0, 1 }, { 128, 128, 64, 2, 2 }, { 130, 260, 40, 0, 3 },  { 16, 64, 700, 5, 0 },
        { 70, 70, 70, 0, 28 },  { 32, 32, 512, 0, 0 },  { 33, 31, 640, 6, 3 },   { 192, 192, 65, 1, 2 },
        { 12, 20, 3, 0, 1 },    { 255, 34, 63, 7, 0 },  { 64, 200, 128, 8, 4 },  { 10, 10, 10, 2, 25 },
    };
    static const gn_dtype dtypes[] = { GN_BF16, GN_F32, GN_F16 };
    gn_ctx *of_all = gpu;
    setenv("GENIE_TF32", "1", 1);
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    for (int i = 0; i < TEST_COUNT(cases) * 3 && CHECK_RESULT(gn_status(gpu), GN_OK); i++) {
        if (getenv("GENIE_SHIM_ARCH") && i % 3 != i / 3 % 3) continue; /* where compiling takes long */
        set_rank(i * 7 % 37);
        check_exact(dtypes[i % 3], cases[i / 3].m, cases[i / 3].n, cases[i / 3].k, cases[i / 3].left,
                    cases[i / 3].form);
    }
    for (int i = 0; i < 3 * 47 && compiles_only; i++) { /* every way of one product */
        set_rank(i / 3);
        check_exact(dtypes[i % 3], 192, 256, 512 + i / 3 * 8, 0, i / 3 % 4); /* a plan of its own */
    }
    gn_close(gpu);
    gpu = of_all;
    unsetenv("GENIE_TF32");
    set_rank(-1);
}

static gn_tensor build_batched(gn_ctx *g, const job *j, void **data) {
    gn_tensor a = j->form & 2 ? gn_transpose(gn_data(g, j->d, GN_SHAPE(j->e, j->c, j->a), data[0]), 1, 2)
                              : gn_data(g, j->d, GN_SHAPE(j->e, j->a, j->c), data[0]);
    gn_tensor b = j->form & 2 ? gn_transpose(gn_data(g, j->d, GN_SHAPE(j->e, j->b, j->c), data[1]), 1, 2)
                              : gn_data(g, j->d, GN_SHAPE(j->e, j->c, j->b), data[1]);
    if (j->form & 4)
        return gn_matmul(gn_reshape(a, GN_SHAPE(2, j->e / 2, j->a, j->c)),
                         gn_slice(gn_reshape(b, GN_SHAPE(2, j->e / 2, j->c, j->b)), 1, 0, j->e / 2, 1));
    return j->form & 1 ? gn_matmul(a, gn_slice(b, 0, 0, 1, 1)) : gn_matmul(a, b);
}

static void batched_products_agree_with_the_cpu(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < 15; k++) {
        job j = { dtypes[k / 5], 96, 72, 160, 6, k % 5 };
        void *data[2] = { random_bytes(j.d, j.e * j.a * j.c, 1), random_bytes(j.d, j.e * j.c * j.b, 1) };
        compare("batched product", build_batched, &j, data, eps_of(j.d) * 16);
        free(data[0]);
        free(data[1]);
    }
}

/* Rows, k or matrices from the last to the first, and a side that repeats along k: form 0 to 4. TMA takes none of them
   as they lie. */
static gn_tensor build_backwards(gn_ctx *g, const job *j, void **data) {
    gn_tensor a = gn_data(g, j->d, GN_SHAPE(j->e, j->a, j->c), data[0]),
              b = gn_data(g, j->d, GN_SHAPE(j->e, j->c, j->b), data[1]);
    switch (j->form) {
    case 0: return gn_matmul(a, gn_flip(b, GN_AXES(1)));
    case 1: return gn_matmul(gn_flip(a, GN_AXES(1)), b);
    case 2: return gn_matmul(gn_flip(a, GN_AXES(0)), b);
    case 3:
        return gn_matmul(gn_transpose(gn_flip(gn_reshape(a, GN_SHAPE(j->e, j->c, j->a)), GN_AXES(1)), 1, 2),
                         gn_flip(b, GN_AXES(0, 2)));
    default: return gn_matmul(a, gn_broadcast(gn_slice(b, 1, 1, 2, 1), GN_SHAPE(j->e, j->c, j->b)));
    }
}

static void products_of_views_that_lie_backwards_agree_with_the_cpu(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16, GN_F16 };
    for (int k = 0; k < 15; k++) {
        job j = { dtypes[k / 5], 96, 136, 72, 3, k % 5 };
        void *data[2] = { random_bytes(j.d, j.e * j.a * j.c, 1), random_bytes(j.d, j.e * j.c * j.b, 1) };
        for (int rank = k % 2; rank < 10; rank += 9) {
            set_rank(rank);
            compare("product of views that lie backwards", build_backwards, &j, data, eps_of(j.d) * 16);
        }
        free(data[0]);
        free(data[1]);
    }
    set_rank(-1);
}

/* ---- products of more than 2^31 elements: made on the device; windows of the results come back ---- */

static double small_at(int64_t r, int64_t c) { return (double)((3 * r + 5 * c) & 3) - 1; }

/* (rows,columns) of whole numbers from -1 to 2, resident. False: there is no room. */
static bool large_matrix(gn_dtype d, int64_t rows, int64_t columns, gn_tensor *out) {
    gn_tensor r = gn_reshape(gn_arange(gpu, GN_I32, rows, 0, 3), GN_SHAPE(rows, 1)),
              c = gn_arange(gpu, GN_I32, columns, 0, 5);
    *out = gn_state(gpu, d, GN_SHAPE(rows, columns), NULL, "large");
    gn_assign(*out, gn_cast(gn_add_c(gn_and(gn_add(r, c), gn_full(gpu, GN_I32, GN_SCALAR, 3)), -1), d));
    gn_result e = gn_step(gpu);
    if (e == GN_OK) e = gn_sync(gpu);
    if (e != GN_OUT_OF_MEMORY) CHECK_RESULT(e, GN_OK);
    return e == GN_OK;
}

/* Windows of y around positions 0, 2^30, 2^31, 2^32 and at the end; form bit 0: a lies across, bit 1: b. */
static void check_large_product(gn_dtype d, int64_t m, int64_t n, int64_t k, int form) {
    enum { WINDOW = 16 };
    const int64_t at[] = { 0, 1ll << 30, (1ll << 31) - 8, 1ll << 31, 1ll << 32, m * n / 2, m * n - 1 };
    gn_tensor a, b, y;
    unsigned char got[WINDOW * 4];
    bool is_room = large_matrix(d, form & 1 ? k : m, form & 1 ? m : k, &a);
    is_room = large_matrix(d, form & 2 ? n : k, form & 2 ? k : n, &b) && is_room;
    y = gn_matmul(form & 1 ? gn_transpose(a, 0, 1) : a, form & 2 ? gn_transpose(b, 0, 1) : b);
    gn_result e = is_room ? gn_realize(&y, 1) : GN_OUT_OF_MEMORY;
    for (int i = 0; i < TEST_COUNT(at) && e == GN_OK; i++) {
        int64_t p = at[i] < m * n ? at[i] : m * n - 1, r = p / n, c = p % n < n - WINDOW ? p % n : n - WINDOW;
        e = gn_read(gn_slice(gn_slice(y, 0, r, r + 1, 1), 1, c, c + WINDOW, 1), got, WINDOW * gn_dtype_bytes(d));
        for (int64_t w = 0; w < WINDOW && e == GN_OK; w++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum +=
                    (form & 1 ? small_at(l, r) : small_at(r, l)) * (form & 2 ? small_at(c + w, l) : small_at(l, c + w));
            double want = d == GN_F32 ? sum : gn_bf16_to_f32(gn_f32_to_bf16((float)sum));
            if (element(d, got, w) == want) continue;
            test_fail(__FILE__, __LINE__, "%s %lldx%lldx%lld form %d: (%lld,%lld) is %g, not %g", gn_dtype_name(d),
                      (long long)m, (long long)n, (long long)k, form, (long long)r, (long long)(c + w),
                      element(d, got, w), want);
            break;
        }
    }
    if (e == GN_OUT_OF_MEMORY) test_skip("no room for products of more than 2^31 elements");
    else CHECK_RESULT(e, GN_OK);
    gn_step(gpu);
    gn_release(a);
    gn_release(b);
}

/* Tests that take the memory of a GPU, of which others in it would have none. */
static bool takes_the_gpu(void) {
    const char *asked = getenv("GPU_LARGE");
    const bool takes = asked && atoi(asked) && !compiles_only;
    if (!takes) test_skip("it takes most of a GPU's memory: GPU_LARGE=1 runs it");
    return takes;
}

static void products_of_more_than_2_to_the_31_elements_are_exact(void) {
    static const gn_dtype dtypes[] = { GN_BF16, GN_F32 };
    if (!takes_the_gpu()) return;
    for (int i = 0; i < 2 && !test__.skipped; i++) {
        check_large_product(dtypes[i], 70016, 64, 40000, 0); /* a, in rows or across, then b, then y */
        check_large_product(dtypes[i], 70016, 72, 40000, 1);
        check_large_product(dtypes[i], 65, 70016, 40000, 2);
        check_large_product(dtypes[i], 64, 70017, 40000, 0);
        check_large_product(dtypes[i], 70016, 40008, 40, 0);
    }
}

/* ---- epilogues: form % 8 an activation, bit 3 adds a residual, bit 4 the bias by linear and not by add, bit 5 ends in
   f32, bit 6 two rows of products */

static gn_tensor build_epilogue(gn_ctx *g, const job *j, void **data) {
    gn_shape rows = j->form & 64 ? GN_SHAPE(2, j->a, j->c) : GN_SHAPE(j->a, j->c),
             out = j->form & 64 ? GN_SHAPE(2, j->a, j->b) : GN_SHAPE(j->a, j->b);
    gn_tensor x = gn_data(g, j->d, rows, data[0]), w = gn_data(g, j->d, GN_SHAPE(j->c, j->b), data[1]),
              b = gn_data(g, j->d, GN_SHAPE(j->b), data[2]), r = gn_data(g, j->d, out, data[3]);
    gn_tensor y = j->form & 16 ? gn_linear(x, w, b) : gn_add(gn_matmul(x, w), b);
    switch (j->form % 8) {
    case 0: y = gn_relu(y); break;
    case 1: y = gn_gelu(y); break;
    case 2: y = gn_gelu_tanh(y); break;
    case 3: y = gn_silu(y); break;
    case 4: y = gn_tanh(y); break;
    case 5: y = gn_sigmoid(y); break;
    case 6: y = gn_add(gn_mul_c(y, 0.5), gn_matmul(x, w)); break; /* only one of the two products can take the loop */
    default: break;
    }
    if (j->form & 8) y = gn_add(y, r);
    return j->form & 32 ? gn_cast(y, GN_F32) : y;
}

static void loops_after_products_agree_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 17, 40, 32 }, { 64, 64, 64 }, { 136, 72, 200 },  { 33, 65, 9 },
                                         { 1, 96, 64 },  { 3, 50, 70 },  { 64, 192, 1024 }, { 300, 520, 64 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16, GN_F64 };
    for (int k = 0; k < TEST_COUNT(shapes) * 4; k++) {
        job j = { dtypes[k % 4], shapes[k / 4][0], shapes[k / 4][1], shapes[k / 4][2], 0, 0 };
        void *data[4] = { random_bytes(j.d, 2 * j.a * j.c, 1), random_bytes(j.d, j.b * j.c, 1),
                          random_bytes(j.d, j.b, 1), random_bytes(j.d, 2 * j.a * j.b, 1) };
        for (int i = 0; i < 16; i++) {
            j.form = i % 8 | (i & 1 ? 8 : 0) | ((i + k) & 2 ? 16 : 0) | (i & 4 ? 32 : 0) | (i & 8 ? 64 : 0);
            /* sums of 1000 products are wrong by more than what tanh leaves of them */
            compare("product with a loop", build_epilogue, &j, data, eps_of(j.d) * (j.c > 500 ? 512 : 64));
        }
        for (int i = 0; i < 4; i++) free(data[i]);
    }
}

/* relu(x w + b) + r is one kernel, and so is the loop that reads two products beside the first of them. */
static void a_loop_after_a_product_is_no_kernel_of_its_own(void) {
    static float x[32 * 32], out[32 * 32];
    for (int two = 0; two < 2; two++) {
        gn_stats before, after;
        gn_tensor a = gn_data(gpu, GN_F32, GN_SHAPE(32, 32), x), y = gn_matmul(a, a);
        y = gn_add(gn_relu(gn_add(y, gn_slice(gn_reshape(a, GN_SHAPE(1024)), 0, 0, 32, 1))),
                   two ? gn_matmul(a, gn_transpose(a, 0, 1)) : a);
        gn_get_stats(gpu, &before);
        CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
        gn_get_stats(gpu, &after);
        CHECK_INT(after.kernels_run - before.kernels_run, 1 + two);
        gn_step(gpu);
    }
}

/* The compute capability, as 80; 0 where tensor cores are switched off. */
static int tensor_cores(void) {
    gn_device_info info;
    const char *arch = gn_get_device(gpu, &info) == GN_OK ? strstr(info.identity, " sm_") : NULL;
    return arch && !getenv("GENIE_CUDA_TENSOR") ? atoi(arch + 4) : 0;
}

/* ---- few rows: a rows of c by (c,b) or (b,c); form bit 0 columns along memory, 1 a norm before, 2 a gated pair, 3 a
   bias and an activation, 4 a residual ---- */

static gn_tensor build_few_rows(gn_ctx *g, const job *j, void **data) {
    bool across = j->form & 1;
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->a, j->c), data[0]), w[2], y;
    for (int i = 0; i < 2; i++) {
        const char *from = (const char *)data[1] + (size_t)(i * j->b * j->c) * gn_dtype_bytes(j->d);
        w[i] = gn_weight(g, j->d, across ? GN_SHAPE(j->b, j->c) : GN_SHAPE(j->c, j->b), from, "w");
        if (across) w[i] = gn_transpose(w[i], 0, 1);
    }
    if (j->form & 2) x = gn_rmsnorm(x, gn_data(g, j->d, GN_SHAPE(j->c), data[2]), 1e-5);
    y = gn_matmul(x, w[0]);
    if (j->form & 4) y = gn_mul(gn_silu(y), gn_matmul(x, w[1]));
    if (j->form & 8) y = gn_gelu_tanh(gn_add(y, gn_data(g, j->d, GN_SHAPE(j->b), data[3])));
    return j->form & 16 ? gn_add(y, gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[4])) : y;
}

static void few_rows_agree(job j) {
    double spread = 1 / sqrt((double)j.c);
    void *data[5] = { random_bytes(j.d, j.a * j.c, 1), random_bytes(j.d, 2 * j.b * j.c, 2 * spread),
                      random_bytes(j.d, j.c, 1), random_bytes(j.d, j.b, 1), random_bytes(j.d, j.a * j.b, 1) };
    compare("product of few rows", build_few_rows, &j, data, eps_of(j.d) * 16);
    for (int k = 0; k < 5; k++) free(data[k]);
}

/* Up to 32 rows, of depths that give each warp one step, several, and a last one that not all have. */
static void products_of_few_rows_agree_with_the_cpu(void) {
    static const int64_t rows[] = { 2, 7, 8, 9, 16, 17, 24, 32, 33 },
                         depths[] = { 72, 256, 520, 1024, 1600, 3072, 6144 }, columns[] = { 16, 40, 104, 200 };
    for (int i = 0; i < TEST_COUNT(rows) * TEST_COUNT(depths); i++)
        few_rows_agree((job){ i & 1 ? GN_BF16 : GN_F16, rows[i % TEST_COUNT(rows)], columns[i % TEST_COUNT(columns)],
                              depths[i / TEST_COUNT(rows)], 0, (int)test_random_int(0, 31) });
}

/* Of matrices so wide that fewer blocks share their k, or none. */
static void few_rows_by_wide_matrices_agree_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 32, 2304, 768 }, { 9, 3104, 520 }, { 23, 4232, 1024 }, { 32, 6400, 264 } };
    for (int i = 0; i < TEST_COUNT(shapes) * 2; i++) {
        const int64_t *n = shapes[i / 2];
        few_rows_agree((job){ i & 1 ? GN_BF16 : GN_F16, n[0], n[1], n[2], 0, (i & 1) | (i & 2 ? 24 : 4) });
    }
}

/* As build_few_rows, with sums that nothing rounds: form bit 0 k along memory, 3 a bias and a relu, 4 a residual. */
static gn_tensor build_large_product(gn_ctx *g, const job *j, void **data) {
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->a, j->c), data[0]),
              w = gn_weight(g, j->d, j->form & 1 ? GN_SHAPE(j->b, j->c) : GN_SHAPE(j->c, j->b), data[1], "w"),
              y = gn_matmul(x, j->form & 1 ? gn_transpose(w, 0, 1) : w);
    if (j->form & 8) y = gn_relu(gn_add(y, gn_data(g, j->d, GN_SHAPE(j->b), data[3])));
    return j->form & 16 ? gn_add(y, gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[4])) : y;
}

/* Whole numbers from -2 to 2. */
static uint16_t *small_numbers(gn_dtype d, int64_t n) {
    static const uint16_t bits[2][5] = { { 0xc000, 0xbf80, 0, 0x3f80, 0x4000 }, { 0xc000, 0xbc00, 0, 0x3c00, 0x4000 } };
    uint16_t *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = bits[d == GN_F16][test_random_int(0, 4)];
    return x;
}

/* Rows by matrices so large that they are streamed, by one warp or by two or four that share k; of columns and of k
   along memory, of lengths that are read 16 bytes at a time and of others. Sums are exact in any order. */
static void few_rows_by_large_matrices_are_exact(void) {
    static const struct {
        int64_t rows, columns, depth;
        int form;
    } cases[] = { { 32, 33801, 264, 1 },  { 9, 8500, 1000, 1 | 24 }, { 17, 8501, 1003, 1 | 16 },
                  { 32, 8504, 1032, 24 }, { 24, 18000, 520, 8 },     { 11, 34000, 250, 16 } };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        job j = { i & 1 ? GN_F16 : GN_BF16, cases[i].rows, cases[i].columns, cases[i].depth, 0, cases[i].form };
        void *data[5] = { small_numbers(j.d, j.a * j.c), small_numbers(j.d, j.b * j.c), NULL, small_numbers(j.d, j.b),
                          small_numbers(j.d, j.a * j.b) };
        compare("few rows by a large matrix", build_large_product, &j, data, 0);
        for (int k = 0; k < 5; k++) free(data[k]);
    }
}

/* Products of all directions and with what follows them, as cuBLASLt computes them. In a context of its own, whose
   plans are new. */
static void products_by_blas_are_as_exact_as_our_own(void) {
    static const int64_t shapes[][3] = { { 200, 136, 72 }, { 257, 65, 129 }, { 512, 384, 168 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16, GN_F16 };
    gn_ctx *usual = gpu;
    gn_stats s;
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    setenv("GENIE_CUDA_TUNE", "blas", 1);
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    for (int k = 0; k < TEST_COUNT(shapes) * 3; k++) {
        job j = { dtypes[k % 3], shapes[k / 3][0], shapes[k / 3][1], shapes[k / 3][2], 6, k % 4 };
        void *data[4] = { random_bytes(j.d, 6 * j.a * j.c, 1), random_bytes(j.d, 6 * j.b * j.c, 1),
                          random_bytes(j.d, j.b, 1), random_bytes(j.d, 2 * j.a * j.b, 1) };
        compare("product by cuBLASLt", build_product, &j, data, eps_of(j.d) * 64);
        j.form = 7 - k % 4;
        compare("product by cuBLASLt", build_product, &j, data, eps_of(j.d) * 64);
        j.form = k % 6 | (k & 2 ? 24 : 32);
        compare("product by cuBLASLt with a loop", build_epilogue, &j, data, eps_of(j.d) * 64);
        j.form = k % 5;
        compare("batched product by cuBLASLt", build_batched, &j, data, eps_of(j.d) * 64);
        for (int i = 0; i < 4; i++) free(data[i]);
    }
    gn_get_stats(gpu, &s);
    gn_device_info info;
    if (gn_get_device(gpu, &info) == GN_OK && info.remote) test_skip("a server computes as its own environment says");
    else if (s.choices_lost && !s.products_by_blas)
        test_skip("there is no cuBLASLt here (GENIE_CUBLASLT names its place)");
    else CHECK(s.products_by_blas >= 24 && s.blas_faults == 0);
    gn_close(gpu);
    gpu = usual;
    unsetenv("GENIE_CUDA_TUNE");
}

/* A product that is large enough to be measured: its choice is made once, and sessions that follow it get equal
   bits. */
static void a_measured_product_has_equal_bits_in_all_sessions(void) {
    enum { N = 1792 };
    if (compiles_only || getenv("GENIE_CUDA_TUNE")) {
        test_skip(compiles_only ? "kernels are compiled, not run" : "GENIE_CUDA_TUNE is set");
        return;
    }
    float *data[2] = { random_bytes(GN_F32, N * N, 1), random_bytes(GN_F32, N * N, 1) }, *out[2];
    gn_device_info info[2];
    uint64_t measured = 0;
    for (int i = 0; i < 2; i++) {
        gn_stats s;
        gn_ctx *g = gn_open(&(gn_desc){ .devices = device_name });
        out[i] = calloc(N * N, sizeof(float));
        CHECK_RESULT(gn_read(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(N, N), data[0]),
                                       gn_data(g, GN_F32, GN_SHAPE(N, N), data[1])),
                             out[i], N * N * sizeof(float)),
                     GN_OK);
        gn_step(g);
        CHECK_RESULT(gn_get_device(g, &info[i]), GN_OK);
        gn_get_stats(g, &s);
        measured += s.products_measured;
        CHECK_INT(s.choices_lost + s.blas_faults, 0);
        gn_close(g);
    }
    CHECK(measured <= 1);
    CHECK_STR(info[0].identity, info[1].identity);
    CHECK(memcmp(out[0], out[1], N * N * sizeof(float)) == 0);
    for (int i = 0; i < 2; i++) {
        free(data[i]);
        free(out[i]);
    }
}

/* Products that differ in rows alone are measured a few times, small ones without cuBLASLt; the choices of all stay. */
static void products_of_ever_other_rows_are_measured_a_few_times(void) {
    enum { N = 640, FIRST = 497, ROWS = 10, MOST = 8 };
    if (compiles_only || getenv("GENIE_CUDA_TUNE")) {
        test_skip(compiles_only ? "kernels are compiled, not run" : "GENIE_CUDA_TUNE is set");
        return;
    }
    float *a = random_bytes(GN_F32, (FIRST + ROWS) * N, 1), *b = random_bytes(GN_F32, N * N, 1),
          *out = calloc((FIRST + ROWS) * N, sizeof *out), *again = calloc((FIRST + ROWS) * N, sizeof *out);
    gn_stats s[2];
    for (int turn = 0; turn < 2; turn++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = device_name });
        for (int m = FIRST; m < FIRST + ROWS; m++) {
            float *to = turn && m == FIRST + ROWS - 1 ? again : out;
            CHECK_RESULT(gn_read(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(m, N), a),
                                           gn_data(g, GN_F32, GN_SHAPE(N, N), b)),
                                 to, (size_t)(m * N) * sizeof *out),
                         GN_OK);
            gn_step(g);
            for (int i = 0; i < N; i += 91) {
                double sum = 0;
                for (int k = 0; k < N; k++) sum += (double)a[(m - 1) * N + k] * (double)b[k * N + i];
                CHECK(fabs((double)to[(m - 1) * N + i] - sum) <= 1e-4);
            }
        }
        gn_get_stats(g, &s[turn]);
        gn_close(g);
    }
    CHECK(s[0].products_measured <= MOST);
    CHECK_INT(s[1].products_measured, 0);
    CHECK_INT(s[0].products_by_blas + s[1].products_by_blas, 0);
    CHECK(memcmp(out, again, (FIRST + ROWS - 1) * N * sizeof *out) == 0);
    free(a);
    free(b);
    free(out);
    free(again);
}

/* ---- attention: a = T, b = S, c = D, e = heads; form bit 0 causal, bit 1 two query heads for each key head ---- */

static gn_tensor build_attention(gn_ctx *g, const job *j, void **data) {
    gn_attention_desc desc = { .causal = (j->form & 1) != 0 };
    int64_t groups = j->form & 2 ? j->e / 2 : j->e;
    return gn_attention(gn_data(g, j->d, GN_SHAPE(2, j->e, j->a, j->c), data[0]),
                        gn_data(g, j->d, GN_SHAPE(2, groups, j->b, j->c), data[1]),
                        gn_data(g, j->d, GN_SHAPE(2, groups, j->b, j->c), data[2]), &desc);
}

static void compare_attention(const job *j) {
    int64_t keys = 2 * j->e * j->b * j->c;
    void *data[3] = { random_bytes(j->d, 2 * j->e * j->a * j->c, 2), random_bytes(j->d, keys, 2),
                      random_bytes(j->d, keys, 1) };
    compare("attention", build_attention, j, data, eps_of(j->d) * (j->d == GN_F32 ? 64 : 16));
    for (int i = 0; i < 3; i++) free(data[i]);
}

/* a: B, b: H, c: T, e: D; form: 0 (B,T,H,D), 1 (T,B,H,D), 2 (H,B,T,D); 4: written out, with a mask that is added; 8:
   read once more, so that it is copied; 16: put back in its order, which is another copy. */
static gn_tensor build_laid(gn_ctx *g, const job *j, void **data) {
    const gn_axes orders[3] = { GN_AXES(0, 2, 1, 3), GN_AXES(2, 0, 1, 3), GN_AXES(1, 0, 2, 3) };
    gn_shape rows = GN_SHAPE(j->a, j->c, j->b, j->e);
    gn_tensor q[3], y;
    for (int i = 0; i < 3; i++) q[i] = gn_transpose(gn_data(g, j->d, rows, data[i]), 1, 2);
    if (j->form & 4) {
        gn_tensor mask = gn_data(g, j->d, GN_SHAPE(j->c, j->c), data[3]);
        y = gn_mul_c(gn_matmul(q[0], gn_transpose(q[1], 2, 3)), 1 / sqrt((double)j->e));
        y = gn_matmul(gn_softmax(gn_add(y, gn_mul_c(mask, 2)), 3), q[2]);
    } else y = gn_attention(q[0], q[1], q[2], &(gn_attention_desc){ .causal = true });
    gn_tensor copy = gn_reshape(gn_permute(y, orders[j->form & 3]), GN_SHAPE(-1, j->b * j->e));
    if (j->form & 16) copy = gn_permute(gn_reshape(copy, GN_SHAPE(j->a, j->c, j->b, j->e)), orders[0]);
    if (j->form & 8) copy = gn_add(copy, gn_reshape(gn_mul_c(y, 3), GN_SHAPE(-1, j->b * j->e)));
    return j->form & 16 ? gn_reshape(copy, GN_SHAPE(-1, j->e)) : copy;
}

/* The copy behind an attention is how it stores its result. */
static void attention_is_stored_as_it_is_copied(void) {
    static const int64_t shapes[][4] = {
        { 2, 3, 40, 64 }, { 1, 2, 130, 64 }, { 3, 1, 17, 32 }, { 2, 2, 64, 128 }, { 1, 16, 16, 32 }
    };
    gn_stats before, after;
    for (int k = 0; k < TEST_COUNT(shapes) * 12; k++) {
        const int64_t *s = shapes[k / 12];
        job j = { k & 1 ? GN_F16 : GN_BF16, s[0], s[1], s[2], s[3], k % 12 + (k % 12 >= 9 ? -9 : 0) };
        if ((j.form & 3) == 3) j.form += 13; /* in the first order, and back */
        int64_t n = s[0] * s[1] * s[2] * s[3];
        void *data[4] = { random_bytes(j.d, n, 2), random_bytes(j.d, n, 2), random_bytes(j.d, n, 1),
                          random_bytes(j.d, s[2] * s[2], 1) };
        if (!compiles_only) gn_get_stats(gpu, &before);
        compare("attention with a copy", build_laid, &j, data, eps_of(j.d) * 16);
        if (!compiles_only) gn_get_stats(gpu, &after);
        bool laid = !compiles_only && !(j.form & 28) && tensor_cores() >= 80;
        if (laid && !getenv("GENIE_CUDA_FUSE")) CHECK_INT(after.kernels_run - before.kernels_run, 1);
        for (int i = 0; i < 4; i++) free(data[i]);
    }
}

static void attention_agrees_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 64, 64, 64 },  { 200, 200, 64 }, { 17, 300, 32 }, { 130, 130, 128 },
                                         { 65, 129, 16 }, { 1, 600, 64 },   { 100, 77, 64 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < TEST_COUNT(shapes) * 12; k++) {
        job j = { dtypes[k / 4 % 3], shapes[k / 12][0], shapes[k / 12][1], shapes[k / 12][2], 4, k % 4 };
        compare_attention(&j);
    }
}

/* ---- the same with more said; form bits: 1 a window of a third of the keys, 2 a soft cap, 4 slopes, 8 sinks ---- */

static gn_tensor build_attention_with(gn_ctx *g, const job *j, void **data) {
    gn_attention_desc desc = { .causal = true, .length = gn_scalar(g, GN_I32, (double)(j->b - 5)) };
    if (j->form & 1) desc.window = j->b / 3;
    if (j->form & 2) desc.soft_cap = 1.5;
    if (j->form & 4) desc.slopes = gn_arange(g, GN_F32, j->e, 0.01, 0.05);
    if (j->form & 8) desc.sinks = gn_arange(g, GN_F32, j->e, -1, 1);
    return gn_attention(gn_data(g, j->d, GN_SHAPE(2, j->e, j->a, j->c), data[0]),
                        gn_data(g, j->d, GN_SHAPE(2, j->e / 2, j->b, j->c), data[1]),
                        gn_data(g, j->d, GN_SHAPE(2, j->e / 2, j->b, j->c), data[2]), &desc);
}

static void compare_attention_with(gn_dtype d, const int64_t *shape, int heads, int form) {
    job j = { d, shape[0], shape[1], shape[2], heads, form };
    void *data[3] = { random_bytes(d, 2 * heads * j.a * j.c, 2), random_bytes(d, heads * j.b * j.c, 2),
                      random_bytes(d, heads * j.b * j.c, 1) };
    compare("attention with options", build_attention_with, &j, data, eps_of(d) * (d == GN_F32 ? 64 : 16));
    for (int i = 0; i < 3; i++) free(data[i]);
}

/* One query of each head: a = groups of heads that share keys, b = S, c = D, e = heads; form as above. */
static gn_tensor build_one_query(gn_ctx *g, const job *j, void **data) {
    gn_tensor last = gn_scalar(g, GN_I32, (double)(j->b - j->b / 4));
    gn_attention_desc desc = { .causal = true, .length = gn_add_c(last, 1) };
    if (j->form & 1) desc.window = j->b / 3;
    if (j->form & 2) desc.soft_cap = 1.5;
    if (j->form & 4) desc.slopes = gn_arange(g, GN_F32, j->e, 0.01, 0.05);
    if (j->form & 8) desc.sinks = gn_arange(g, GN_F32, j->e, -1, 1);
    return gn_attention(gn_data(g, j->d, GN_SHAPE(2, j->e, 1, j->c), data[0]),
                        gn_data(g, j->d, GN_SHAPE(2, j->a, j->b, j->c), data[1]),
                        gn_data(g, j->d, GN_SHAPE(2, j->a, j->b, j->c), data[2]), &desc);
}

/* Heads of a block, blocks of a cluster, clusters, and lanes of a key differ. */
static void one_query_of_heads_that_share_keys_agrees_with_the_cpu(void) {
    static const int64_t heads[][2] = { { 4, 4 }, { 6, 2 }, { 8, 1 }, { 5, 1 }, { 12, 6 }, { 1, 1 } },
                         keys[] = { 7, 300, 1100, 6000 }, dims[] = { 64, 128, 80, 16, 256 };
    static const gn_dtype dtypes[] = { GN_BF16, GN_F16, GN_F32 };
    for (int k = 0; k < 24; k++) {
        const int64_t *h = heads[k / 4];
        job j = { dtypes[k % 3], h[1], keys[k % 4], dims[k % 5], h[0], k * 7 % 16 };
        if (j.d == GN_F32 && j.c == 256) j.c = 128;
        void *data[3] = { random_bytes(j.d, 2 * j.e * j.c, 2), random_bytes(j.d, 2 * j.a * j.b * j.c, 2),
                          random_bytes(j.d, 2 * j.a * j.b * j.c, 1) };
        compare("one query", build_one_query, &j, data, eps_of(j.d) * (j.d == GN_F32 ? 64 : 16));
        for (int i = 0; i < 3; i++) free(data[i]);
    }
}

static void windows_caps_slopes_and_sinks_agree_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 300, 1000, 64 }, { 129, 400, 128 }, { 1, 3000, 64 }, { 1, 500, 128 },
                                         { 64, 777, 32 },   { 20, 600, 40 },   { 6, 900, 64 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16 };
    for (int k = 0; k < TEST_COUNT(shapes) * 45; k++)
        compare_attention_with(dtypes[k % 3], shapes[k / 45], 4, 1 + k % 45 / 3);
}

/* Few and small, for fibres. */
static void attention_on_tensor_cores_takes_windows_and_sinks(void) {
    static const int64_t narrow[3] = { 40, 150, 16 }, wide[3] = { 70, 205, 64 };
    compare_attention_with(GN_BF16, narrow, 4, 1);
    compare_attention_with(GN_BF16, narrow, 4, 15);
    compare_attention_with(GN_F16, wide, 4, 9);
}

/* Keys that two groups of warps share where queries are few, and those that both read where there are more: 72 tiles of
   64 queries, and 360. */
static void attention_of_long_prompts_agrees_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 520, 520, 64 }, { 70, 1100, 64 }, { 200, 700, 128 } };
    for (int k = 0; k < TEST_COUNT(shapes) * 4; k++) {
        const int64_t *s = shapes[k / 4];
        job j = { k & 1 ? GN_BF16 : GN_F16, s[0], s[1], s[2], k & 2 ? 20 : 4, k & 1 ? 3 : 2 };
        compare_attention(&j);
        if (s[0] + 5 <= s[1]) compare_attention_with(j.d, s, (int)j.e, k & 1 ? 9 : 15);
    }
}

/* So many heads of few queries that a block computes several of their tiles. */
static void attention_of_many_short_heads_agrees_with_the_cpu(void) {
    static const int64_t shapes[][3] = { { 128, 128, 64 }, { 70, 300, 128 }, { 200, 190, 64 }, { 300, 300, 64 } };
    for (int k = 0; k < TEST_COUNT(shapes) * 2; k++) {
        const int64_t *s = shapes[k / 2];
        job j = { k & 1 ? GN_BF16 : GN_F16, s[0], s[1], s[2], 300, s[0] <= s[1] ? 1 + (k & 2) : 2 };
        compare_attention(&j);
        if (s[0] <= s[1]) j.form = 2, compare_attention(&j);
        if (s[0] + 5 <= s[1]) compare_attention_with(j.d, s, 300, k & 1 ? 9 : 15);
    }
}

/* ---- attention written out: products, a loop and a softmax that run as one kernel, or as they are where they may
   not */

enum { W_B = 2, W_H = 4, W_G = 2 };
typedef enum written_form {
    W_SCALED,
    W_DIVIDED,
    W_SCALED_QUERY,
    W_MASK,
    W_MASK_OF_BATCH,
    W_MASK_OF_HEAD,
    W_MASK_AND_MORE,
    W_WHERE,
    W_FILLED,
    W_GROUPED,
    W_SHARED,
    W_STORED,
    W_CAPPED,
    W_WIDE,
    W_PERMUTED,
    W_ONE_HEAD,
    W_MATRICES,
    W_MANY_AXES,
    W_INFINITE,
    W__MISSES,
    W_SCORES_READ = W__MISSES,
    W_WEIGHTS_READ,
    W_OTHER_AXIS,
    W_SPREAD,
    W__COUNT
} written_form;

/* q (B,H,T,D), k (B,H,S,D), v (B,H,S,E), a mask to add (B,H,T,S) and one of bool (T,S); the CPU computes in f64. */
static gn_tensor written_input(gn_ctx *g, gn_dtype d, gn_shape shape, const void *p) {
    gn_tensor t = gn_data(g, d, shape, p);
    return g == cpu && d != GN_BOOL ? gn_cast(t, GN_F64) : t;
}

static gn_tensor attend(gn_tensor q, gn_tensor keys, gn_tensor v) {
    return gn_matmul(gn_softmax(gn_mul_c(gn_matmul(q, keys), 0.17), -1), v);
}

static gn_tensor last_two_swapped(gn_tensor t, int rank) { return gn_transpose(t, rank - 2, rank - 1); }

/* Forms whose heads lie otherwise, or that are as simple as can be. */
static gn_tensor build_reshaped(gn_ctx *g, const job *j, void **data, gn_tensor q, gn_tensor k, gn_tensor v) {
    int64_t T = j->a, S = j->b, D = j->c, E = j->e;
    gn_tensor kt = last_two_swapped(k, 4);
    switch (j->form) {
    case W_DIVIDED: {
        gn_tensor q3 = gn_reshape(q, GN_SHAPE(W_B * W_H, T, D)), k3 = gn_reshape(k, GN_SHAPE(W_B * W_H, S, D)),
                  v3 = gn_reshape(v, GN_SHAPE(W_B * W_H, S, E));
        gn_tensor s = gn_matmul(q3, gn_permute(k3, GN_AXES(0, 2, 1)));
        return gn_matmul(gn_softmax(gn_div(s, gn_like(s, 5.5)), 2), v3);
    }
    case W_GROUPED: { /* the first W_G heads of keys, each for W_H / W_G of queries */
        gn_tensor q5 = gn_reshape(q, GN_SHAPE(W_B, W_G, W_H / W_G, T, D)),
                  k5 = gn_reshape(gn_slice(k, 1, 0, W_G, 1), GN_SHAPE(W_B, W_G, 1, S, D)),
                  v5 = gn_reshape(gn_slice(v, 1, 0, W_G, 1), GN_SHAPE(W_B, W_G, 1, S, E));
        return gn_reshape(attend(q5, last_two_swapped(k5, 5), v5), GN_SHAPE(W_B, W_H, T, E));
    }
    case W_PERMUTED: {
        gn_tensor q2 = gn_permute(gn_reshape(q, GN_SHAPE(W_B, T, W_H, D)), GN_AXES(0, 2, 1, 3)),
                  k2 = gn_permute(gn_reshape(k, GN_SHAPE(W_B, S, W_H, D)), GN_AXES(0, 2, 3, 1));
        return gn_permute(attend(q2, k2, gn_permute(gn_reshape(v, GN_SHAPE(W_B, S, W_H, E)), GN_AXES(0, 2, 1, 3))),
                          GN_AXES(0, 2, 1, 3));
    }
    case W_ONE_HEAD:
        return attend(q, gn_reshape(gn_slice(kt, 0, 0, 1, 1), GN_SHAPE(W_H, D, S)), gn_slice(v, 0, 1, 2, 1));
    case W_MATRICES:
        return attend(written_input(g, j->d, GN_SHAPE(T, D), data[0]),
                      last_two_swapped(written_input(g, j->d, GN_SHAPE(S, D), data[1]), 2),
                      written_input(g, j->d, GN_SHAPE(S, E), data[2]));
    case W_MANY_AXES:
        return attend(gn_reshape(q, GN_SHAPE(W_B, 2, 1, W_H / 2, T, D)),
                      gn_reshape(kt, GN_SHAPE(W_B, 2, 1, W_H / 2, D, S)),
                      gn_reshape(v, GN_SHAPE(W_B, 2, 1, W_H / 2, S, E)));
    default: return attend(q, kt, v);
    }
}

static gn_tensor build_written(gn_ctx *g, const job *j, void **data) {
    int64_t T = j->a, S = j->b, D = j->c, E = j->e;
    gn_tensor q = written_input(g, j->d, GN_SHAPE(W_B, W_H, T, D), data[0]),
              k = written_input(g, j->d, GN_SHAPE(W_B, W_H, S, D), data[1]),
              v = written_input(g, j->d, GN_SHAPE(W_B, W_H, S, E), data[2]), s, p;
    gn_tensor kt = last_two_swapped(k, 4), seen = gn_data(g, GN_BOOL, GN_SHAPE(T, S), data[4]);
    switch (j->form) {
    case W_SCALED_QUERY: return gn_matmul(gn_softmax(gn_matmul(gn_mul_c(q, 0.125), kt), 3), v);
    case W_MASK: s = gn_add(gn_mul_c(gn_matmul(q, kt), 0.17), written_input(g, j->d, GN_SHAPE(T, S), data[3])); break;
    case W_MASK_OF_BATCH:
        s = gn_add(written_input(g, j->d, GN_SHAPE(W_B, 1, 1, S), data[3]), gn_mul_c(gn_matmul(q, kt), 0.17));
        break;
    case W_MASK_OF_HEAD:
        s = gn_add(gn_mul_c(gn_matmul(q, kt), 0.17), written_input(g, j->d, GN_SHAPE(W_H, T, 1), data[3]));
        break;
    case W_MASK_AND_MORE:
        s = gn_add(gn_mul(gn_matmul(q, kt), written_input(g, j->d, GN_SHAPE(W_H, 1, 1), data[0])),
                   written_input(g, j->d, GN_SHAPE(W_B, W_H, T, S), data[3]));
        break;
    case W_WHERE:
        s = gn_mul_c(gn_matmul(q, kt), 0.17);
        s = gn_where(seen, s, gn_like(s, j->d == GN_F16 ? -60000 : -1e9));
        break;
    case W_FILLED:
        s = gn_masked_fill(gn_mul_c(gn_matmul(q, kt), 0.17), gn_data(g, GN_BOOL, GN_SHAPE(T, S), data[4]), -INFINITY);
        break;
    case W_SHARED: return attend(q, last_two_swapped(gn_slice(k, 1, 1, 2, 1), 4), gn_slice(v, 1, 1, 2, 1));
    case W_STORED: return attend(q, written_input(g, j->d, GN_SHAPE(W_B, W_H, D, S), data[1]), v);
    case W_CAPPED: s = gn_mul_c(gn_tanh(gn_mul_c(gn_matmul(q, kt), 0.05)), 3); break;
    case W_WIDE:
        p = gn_softmax(gn_mul_c(gn_cast(gn_matmul(q, kt), g == cpu         ? GN_F64
                                                          : j->d == GN_F64 ? GN_F64
                                                                           : GN_F32),
                                0.17),
                       -1);
        return gn_matmul(gn_cast(p, g == cpu ? GN_F64 : j->d), v);
    case W_INFINITE:
        s = gn_add(gn_mul_c(gn_matmul(q, kt), 0.17), written_input(g, j->d, GN_SHAPE(W_B, W_H, T, S), data[3]));
        break;
    case W_SCORES_READ:
        s = gn_mul_c(gn_matmul(q, kt), 0.17);
        return gn_add(gn_matmul(gn_softmax(s, -1), v), gn_mean(s, GN_AXES(3), true));
    case W_WEIGHTS_READ:
        p = gn_softmax(gn_mul_c(gn_matmul(q, kt), 0.17), -1);
        return gn_add(gn_matmul(p, v), gn_max(p, GN_AXES(3), true));
    case W_OTHER_AXIS: return gn_matmul(gn_softmax(gn_mul_c(gn_matmul(q, kt), 0.17), -2), v);
    /* one row of scores becomes T */
    case W_SPREAD:
        s = gn_mul_c(gn_matmul(gn_slice(q, 2, 0, 1, 1), kt), 0.17);
        return gn_matmul(gn_softmax(gn_add(s, written_input(g, j->d, GN_SHAPE(T, S), data[3])), -1), v);
    default: return build_reshaped(g, j, data, q, k, v);
    }
    return gn_matmul(gn_softmax(s, -1), v);
}

static void put_element(gn_dtype d, void *p, int64_t i, double x) {
    float f = (float)x;
    uint16_t h = d == GN_F16 ? gn_f32_to_f16(f) : gn_f32_to_bf16(f);
    memcpy((char *)p + (size_t)i * gn_dtype_bytes(d),
           gn_dtype_bytes(d) == 2 ? (void *)&h
           : d == GN_F32          ? (void *)&f
                                  : (void *)&x,
           gn_dtype_bytes(d));
}

/* Numbers that a mask adds: small ones, and such as hide a key; of W_INFINITE one row that hides all, and values that
   are infinite under a weight of 0. */
static void written_masks(const job *j, void **data) {
    uint8_t *seen = data[4];
    for (int64_t i = 0; i < j->a * j->b; i++) seen[i] = (uint8_t)(test_random_int(0, 3) != 0 && i / j->b != 3);
    /* what is filled: the keys behind the query's */
    if (j->form == W_FILLED)
        for (int64_t i = 0; i < j->a * j->b; i++) seen[i] = i % j->b > i / j->b;
    for (int64_t i = 0; i < W_B * W_H * j->a * j->b && j->form != W_MASK_OF_HEAD; i++)
        if (i % j->b && test_random_int(0, 3) == 0)
            put_element(j->d, data[3], i, test_random_int(0, 1) ? -INFINITY : j->d == GN_F16 ? -60000 : -1e9);
    if (j->form != W_INFINITE) return;
    for (int64_t i = 0; i < j->b; i++) put_element(j->d, data[3], j->b + i, -INFINITY);
    put_element(j->d, data[3], 2 * j->b + 1, -INFINITY);
    put_element(j->d, data[2], j->e, INFINITY); /* of key 1, which query 2 does not see and query 3 does */
    put_element(j->d, data[3], 3 * j->b + 1, 1);
    put_element(j->d, data[0], 5 * j->c, NAN);
}

static bool agrees(double got, double want, double tolerance) {
    return isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= tolerance;
}

static void check_written(const job *j, void **data) {
    gn_tensor want = gn_cast(build_written(cpu, j, data), GN_F64), got = build_written(gpu, j, data);
    gn_stats before, after;
    gn_info info;
    if (!CHECK_RESULT(gn_describe(got, &info), GN_OK)) return;
    int64_t n = (int64_t)(info.bytes / gn_dtype_bytes(j->d)), wrong = 0, first = 0;
    void *out = malloc(info.bytes);
    double *exact = malloc((size_t)n * 8), largest = 0;
    memset(out, 0x7b, info.bytes);
    gn_get_stats(gpu, &before);
    gn_result r = gn_read(got, out, info.bytes);
    gn_get_stats(gpu, &after);
    uint64_t kernels = after.kernels_run - before.kernels_run;
    bool ran = r == GN_OK || !(r == GN_NO_VALUE && (compiles_only || getenv("GENIE_CUDA_ONE_OF_EACH")));
    if (ran && r != GN_OK) test_fail(__FILE__, __LINE__, "form %d: %s", j->form, gn_last_error(gpu)->text);
    else if (ran && CHECK_RESULT(gn_read(want, exact, (size_t)n * 8), GN_OK)) {
        for (int64_t i = 0; i < n; i++)
            largest = isfinite(exact[i]) && fabs(exact[i]) > largest ? fabs(exact[i]) : largest;
        for (int64_t i = n - 1; i >= 0; i--)
            if (!agrees(element(j->d, out, i), exact[i],
                        (gn_dtype_bytes(j->d) == 2 ? 16 : 128) * eps_of(j->d) * largest)) {
                wrong++;
                first = i;
            }
        if (wrong)
            test_fail(__FILE__, __LINE__,
                      "%s form %d (T %lld S %lld D %lld E %lld): %lld of %lld are wrong, the first is element %lld, %g "
                      "and not %g; the largest is %g",
                      gn_dtype_name(j->d), j->form, (long long)j->a, (long long)j->b, (long long)j->c, (long long)j->e,
                      (long long)wrong, (long long)n, (long long)first, element(j->d, out, first), exact[first],
                      largest);
        bool small = j->a * j->b <= 1 << 13 && (j->d == GN_F32 || j->a < 65),
             tensor = j->d != GN_F32 && j->d != GN_F64 && j->a >= 16 && j->c == j->e && !(j->c & (j->c - 1)) &&
                      j->form != W_STORED;
        if (!getenv("GENIE_CUDA_FUSE") && (small || (tensor && !getenv("GENIE_CUDA_TENSOR"))))
            CHECK_INT(kernels <= (j->form == W_SCALED_QUERY ? 3 : 2), j->form < W__MISSES);
    }
    gn_step(gpu);
    gn_step(cpu);
    free(out);
    free(exact);
}

/* Of the forms each every-th, others for each shape and dtype. */
static void check_written_forms(const int64_t (*shapes)[4], int n_shapes, const gn_dtype *dtypes, int n_dtypes,
                                int every) {
    for (int k = 0; k < n_shapes * n_dtypes; k++) {
        for (int form = k % every; form < W__COUNT; form += every) {
            const int64_t *shape = shapes[k % n_shapes];
            job j = { dtypes[k / n_shapes], shape[0], shape[1], shape[2], shape[3], form };
            if ((form == W_INFINITE && j.a < 6) || (form == W_FILLED && j.a > j.b) || (form == W_SPREAD && j.a == 1))
                continue;
            int64_t heads = W_B * W_H;
            void *data[5] = { random_bytes(j.d, heads * j.a * j.c, 2), random_bytes(j.d, heads * j.b * j.c, 2),
                              random_bytes(j.d, heads * j.b * j.e, 1), random_bytes(j.d, heads * j.a * j.b, 1),
                              calloc(1, (size_t)(j.a * j.b)) };
            written_masks(&j, data);
            check_written(&j, data);
            for (int i = 0; i < 5; i++) free(data[i]);
        }
    }
}

static void attention_written_out_agrees_with_the_cpu(void) {
    static const int64_t shapes[][4] = { { 7, 9, 5, 6 }, { 1, 300, 64, 64 }, { 70, 90, 10, 6 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16 };
    check_written_forms(shapes, TEST_COUNT(shapes), dtypes, TEST_COUNT(dtypes), 5);
}

/* On tensor cores: by warps, by warpgroups, and what is left to three kernels; tiles of plain f32; and small ones of
   all dtypes. */
static void attention_written_out_of_many_shapes_agrees_with_the_cpu(void) {
    static const int64_t large[][4] = { { 64, 64, 64, 64 },  { 200, 333, 64, 64 }, { 130, 140, 128, 128 },
                                        { 65, 129, 16, 16 }, { 40, 77, 64, 64 },   { 100, 200, 96, 80 } };
    static const int64_t small[][4] = { { 7, 9, 5, 6 }, { 20, 24, 32, 32 }, { 1, 300, 64, 64 }, { 1, 40, 32, 32 } };
    static const gn_dtype dtypes[] = { GN_BF16, GN_F16, GN_F32, GN_F64 };
    check_written_forms(large, TEST_COUNT(large), dtypes, 3, 3);
    check_written_forms(small, TEST_COUNT(small), dtypes, TEST_COUNT(dtypes), 5);
}

/* Values of keys that a query does not see add nothing to it, not even when they are infinite or NaN: of 40 keys past
   the length, and of a key that only later queries see. */
static gn_tensor build_hidden(gn_ctx *g, const job *j, void **data) {
    gn_attention_desc desc = { .causal = true, .length = gn_scalar(g, GN_I32, (double)(j->b - 40)) };
    return gn_attention(gn_data(g, j->d, GN_SHAPE(1, j->e, j->a, j->c), data[0]),
                        gn_data(g, j->d, GN_SHAPE(1, j->e, j->b, j->c), data[1]),
                        gn_data(g, j->d, GN_SHAPE(1, j->e, j->b, j->c), data[2]), &desc);
}

static void values_of_hidden_keys_add_nothing(void) {
    static const int64_t sizes[][2] = { { 32, 2 }, { 64, 2 }, { 128, 2 }, { 64, 60 } };
    for (int k = 0; k < TEST_COUNT(sizes) * 2; k++) {
        job j = { k & 1 ? GN_F16 : GN_BF16, 150, 300, sizes[k / 2][0], sizes[k / 2][1], 0 };
        void *data[3] = { random_bytes(j.d, j.e * j.a * j.c, 1), random_bytes(j.d, j.e * j.b * j.c, 1),
                          random_bytes(j.d, j.e * j.b * j.c, 1) };
        size_t n = (size_t)(j.e * j.a * j.c);
        uint16_t *v = data[2], infinite = k & 1 ? 0x7c00 : 0x7f80, *out = calloc(n, 2);
        for (int64_t i = 0; i < j.e * j.b * j.c; i++) {
            int64_t key = i / j.c % j.b;
            v[i] = (uint16_t)(key >= j.b - 40 ? infinite + i % 2 : key == 200 ? infinite : v[i]);
        }
        CHECK_RESULT(gn_read(build_hidden(gpu, &j, data), out, n * 2), compiles_only ? GN_NO_VALUE : GN_OK);
        gn_step(gpu);
        int64_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            bool finite = (out[i] & infinite) != infinite, hidden = (int64_t)i / j.c % j.a + (j.b - 40 - j.a) < 200;
            wrong += finite != hidden;
        }
        CHECK_INT(compiles_only ? 0 : wrong, 0);
        for (int i = 0; i < 3; i++) free(data[i]);
        free(out);
    }
}

/* ---- rows and reductions ---- */

static gn_tensor build_rows(gn_ctx *g, const job *j, void **data) {
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[0]), w = gn_data(g, j->d, GN_SHAPE(j->b), data[1]);
    switch (j->form) {
    case 0: return gn_softmax(x, 1);
    case 1: return gn_log_softmax(x, 1);
    case 2: return gn_layernorm(x, w, w, 1e-5);
    case 3: return gn_sum(x, GN_AXES(1), false);
    case 4: return gn_sum(x, GN_AXES(0), false);
    case 5: return gn_mean(gn_abs(x), GN_ALL_AXES, false);
    case 6: return gn_max(x, GN_AXES(1), false);
    case 7: return gn_softmax(x, 0);
    case 8: return gn_gelu(gn_add(gn_mul(x, w), w));
    case 9: return gn_mse_loss(x, w);
    case 10: return gn_argmax(x, GN_AXES(1), false);
    default: return gn_mul(gn_silu(gn_slice(x, 1, 0, j->b / 2, 1)), gn_slice(x, 1, j->b / 2, 2 * (j->b / 2), 1));
    }
}

static void rows_and_reductions_agree_with_the_cpu(void) {
    static const int64_t shapes[][2] = { { 64, 1024 }, { 7, 8192 },  { 3, 20000 },  { 1000, 33 },
                                         { 5, 50257 }, { 300, 768 }, { 2, 100001 }, { 4096, 8 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_BF16, GN_F64 };
    for (int k = 0; k < TEST_COUNT(shapes) * 4; k++) {
        job j = { dtypes[k % 4], shapes[k / 4][0], shapes[k / 4][1], 0, 0, 0 };
        void *data[2] = { random_bytes(j.d, j.a * j.b, 2), random_bytes(j.d, j.b, 1) };
        for (j.form = 0; j.form < 12; j.form++) {
            double sums = j.d == GN_F64 ? 4 * sqrt((double)j.b) : 0; /* both sum in f64, in another order */
            compare("rows", build_rows, &j, data, j.form == 10 ? 0 : eps_of(j.d) * (64 + sums));
        }
        free(data[0]);
        free(data[1]);
    }
}

/* ---- known values ---- */

/* A context of its own, so that its counters are those of one case. */
static gn_ctx *open_known(void) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device_name, .strict = true });
    CHECK_RESULT(gn_status(g), GN_OK);
    return g;
}

/* It ran on the GPU, nothing of it on a CPU, and nothing came back but the result. */
static void check_where_it_ran(gn_ctx *g, size_t result_bytes) {
    gn_device_info info;
    gn_stats stats;
    CHECK_RESULT(gn_get_device(g, &info), GN_OK);
    gn_get_stats(g, &stats);
    const char *slash = strrchr(info.name, '/');
    CHECK_STR(slash ? slash + 1 : info.name, "cuda:0");
    CHECK_INT(stats.fallbacks, 0);
    if (!info.remote) {
        CHECK_INT(stats.bytes_to_host, result_bytes);
        CHECK(stats.kernels_run > 0);
    }
    gn_close(g);
}

/* A row whose norm its product takes in: as small numbers, far from 0, with one that is far from all others. */
static void norm_row(gn_dtype d, int64_t k, int kind, uint16_t *row) {
    for (int64_t i = 0; i < k; i++) {
        double u = test_random_real(-1, 1);
        put_element(d, row, i, kind == 1 ? 100 + u : kind == 2 && i == 0 ? 1000 : u);
    }
}

/* A product with a matrix that picks some of the row's elements gives them as they are when the norm has a kernel of
   its own: its sums are added in the same order there. */
static void a_norm_within_its_product_has_equal_bits(void) {
    enum { PICKED = 64, MOST = 2048 };
    static const struct {
        gn_dtype d;
        int64_t k;
    } rows[] = { { GN_F16, 200 }, { GN_F16, 768 }, { GN_F16, MOST }, { GN_BF16, 768 } };
    static uint16_t row[MOST], whole[MOST], gain[MOST], picks[MOST * PICKED], picked[PICKED];
    gn_ctx *g = open_known();
    for (int i = 0; i < TEST_COUNT(rows); i++) {
        const gn_dtype d = rows[i].d;
        const int64_t k = rows[i].k;
        memset(picks, 0, sizeof picks);
        for (int j = 0; j < PICKED; j++) put_element(d, picks, (j * k / PICKED) * PICKED + j, 1);
        for (int64_t j = 0; j < k; j++) put_element(d, gain, j, test_random_real(-2, 2));
        gn_tensor w = gn_weight(g, d, GN_SHAPE(k, PICKED), picks, "picks"),
                  by = gn_weight(g, d, GN_SHAPE(k), gain, "g");
        for (int kind = 0; kind < 3; kind++) {
            gn_stats before, after;
            int different = 0;
            norm_row(d, k, kind, row);
            gn_tensor x = gn_data(g, d, GN_SHAPE(1, k), row);
            CHECK_RESULT(gn_read(gn_layernorm(x, by, GN_NONE, 1e-5), whole, (size_t)k * 2), GN_OK);
            gn_step(g);
            x = gn_data(g, d, GN_SHAPE(1, k), row);
            gn_get_stats(g, &before);
            gn_tensor y = gn_linear(gn_layernorm(x, by, GN_NONE, 1e-5), w, GN_NONE);
            CHECK_RESULT(gn_read(y, picked, sizeof picked), GN_OK);
            gn_get_stats(g, &after);
            gn_step(g);
            /* one, and one that packs the matrix before the first */
            CHECK_INT(after.kernels_run - before.kernels_run - (after.filters_packed - before.filters_packed), 1);
            for (int j = 0; j < PICKED; j++) { /* a sum that begins with 0 has no -0 */
                uint16_t want = whole[j * k / PICKED];
                different += picked[j] != (want == 0x8000 ? 0 : want);
            }
            if (different)
                test_fail(__FILE__, __LINE__, "%s, %d elements, kind %d: %d of %d differ", gn_dtype_name(d), (int)k,
                          kind, different, PICKED);
        }
        gn_release(w);
        gn_release(by);
    }
    gn_close(g);
}

/* Ones (100,100) times itself is 100 everywhere; plus ones 101; relu; mean over rows 101; sum 10100. */
static void ones_times_ones_gives_the_value_by_hand(void) {
    static float ones[10000];
    float out = 0;
    for (int i = 0; i < 10000; i++) ones[i] = 1;
    gn_ctx *g = open_known();
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(100, 100), ones);
    gn_tensor y = gn_sum(gn_mean(gn_relu(gn_add(gn_matmul(x, x), x)), GN_AXES(0), false), GN_ALL_AXES, false);
    CHECK_RESULT(gn_read(y, &out, sizeof out), GN_OK);
    CHECK(out == 10100);
    check_where_it_ran(g, sizeof out);
}

/* sum(relu(x x)) of a random x (1000,1000), beside the same in double. */
static void chain_of_a_random_matrix_agrees_with_double(void) {
    enum { N = 1000 };
    float *x = random_bytes(GN_F32, N * N, 1), out = NAN;
    double *row = calloc(N, sizeof *row), sum = 0;
    REQUIRE(x && row);
    for (int i = 0; i < N; i++) {
        memset(row, 0, N * sizeof *row);
        for (int k = 0; k < N; k++)
            for (int j = 0; j < N; j++) row[j] += (double)x[i * N + k] * (double)x[k * N + j];
        for (int j = 0; j < N; j++) sum += row[j] > 0 ? row[j] : 0;
    }
    gn_ctx *g = open_known();
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(N, N), x);
    CHECK_RESULT(gn_read(gn_sum(gn_relu(gn_matmul(t, t)), GN_ALL_AXES, false), &out, sizeof out), GN_OK);
    CHECK_NEAR((double)out, sum, 2e-6 * sum);
    check_where_it_ran(g, sizeof out);
    free(x);
    free(row);
}

/* ---- states: the same plan replayed, and a step that fails ---- */

/* s = 0.5 s + x over many steps, read each time. */
static void a_replayed_plan_carries_its_state(void) {
    float x[256], out[256], want[256] = { 0 };
    gn_tensor s = gn_state(gpu, GN_F32, GN_SHAPE(256), NULL, "s");
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < 256; i++) {
            x[i] = (float)(step * 256 + i);
            want[i] = want[i] * 0.5f + x[i];
        }
        gn_tensor next = gn_assign(s, gn_add(gn_mul_c(s, 0.5), gn_data(gpu, GN_F32, GN_SHAPE(256), x)));
        CHECK_RESULT(gn_read(gn_softmax(next, 0), out, sizeof out), GN_OK);
        CHECK_RESULT(gn_step(gpu), GN_OK);
    }
    CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
    CHECK(memcmp(out, want, sizeof out) == 0);
    gn_step(gpu);
    gn_release(s);
}

/* What gn_cuda_launch_again answers, and that the device computes on after it. */
static void a_plan_launched_again_gives_what_it_gave(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    const char *device = getenv("GENIE_TEST_DEVICES");
    bool local = !device || strncmp(device, "cuda", 4) == 0;
    float x[300], first[300], second[300];
    double seconds = -1;
    int kernels = -1;
    for (int i = 0; i < 300; i++) x[i] = 0.01f * (float)(i % 97);
    CHECK_RESULT(gn_read(gn_softmax(gn_data(gpu, GN_F32, GN_SHAPE(300), x), 0), first, sizeof first), GN_OK);
    CHECK_RESULT(gn_cuda_launch_again(0, &seconds, &kernels), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_cuda_launch_again(1, NULL, &kernels), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_cuda_launch_again(1, &seconds, NULL), GN_BAD_ARGUMENT);
    CHECK(seconds < 0 && kernels < 0);
    CHECK_RESULT(gn_cuda_launch_again(3, &seconds, &kernels), local ? GN_OK : GN_NO_VALUE);
    CHECK(!local || (seconds > 0 && kernels >= 1));
    gn_step(gpu);
    CHECK_RESULT(gn_read(gn_softmax(gn_data(gpu, GN_F32, GN_SHAPE(300), x), 0), second, sizeof second), GN_OK);
    CHECK(memcmp(first, second, sizeof first) == 0);
    gn_step(gpu);
}

/* Arguments of one element that kernels take by value: in plans of one kernel, with and without arguments in memory,
   beside one whose argument is a result too, and before and after a run that fails; the runs of a state's steps are not
   waited for. */
static void arguments_of_one_element_are_those_of_the_run(void) {
    float x[300] = { 0 }, out[300];
    int32_t n[300], quotients[300];
    gn_tensor w = gn_weight(gpu, GN_F32, GN_SHAPE(300), x, "w"),
              sum = gn_state(gpu, GN_F32, GN_SHAPE(300), NULL, "sum");
    for (int i = 0; i < 300; i++) {
        x[i] = (float)i;
        n[i] = 1000 - i;
    }
    for (int run = 1; run <= 6; run++) {
        gn_tensor a = gn_scalar(gpu, GN_F32, run), b = gn_scalar(gpu, GN_F32, 0.5 * run);
        CHECK_RESULT(gn_read(gn_add(gn_mul(run % 2 ? w : gn_data(gpu, GN_F32, GN_SHAPE(300), x), a), b), out,
                             sizeof out),
                     GN_OK);
        for (int i = 0; i < 300; i++) CHECK(out[i] == (float)(i * run) + 0.5f * (float)run);
        float again = 0;
        CHECK_RESULT(gn_read_many((gn_tensor[]){ gn_mul(w, b), b }, 2, (void *[]){ out, &again },
                                  (size_t[]){ sizeof out, sizeof again }),
                     GN_OK);
        CHECK(out[299] == 149.5f * (float)run && again == 0.5f * (float)run);
        gn_result want = run == 3 ? GN_DIVISION_BY_ZERO : GN_OK;
        CHECK_RESULT(gn_read(gn_floor_divide(gn_data(gpu, GN_I32, GN_SHAPE(300), n), gn_scalar(gpu, GN_I32, run - 3)),
                             quotients, sizeof quotients),
                     want);
        CHECK(want != GN_OK || quotients[0] == (run > 3 ? 1000 / (run - 3) : -1000 / (3 - run)));
        gn_step(gpu);
    }
    for (int step = 1; step <= 40; step++) {
        gn_assign(sum, gn_add(sum, gn_mul(w, gn_scalar(gpu, GN_F32, step))));
        CHECK_RESULT(gn_step(gpu), GN_OK);
    }
    CHECK_RESULT(gn_read(sum, out, sizeof out), GN_OK);
    for (int i = 0; i < 300; i++) CHECK(out[i] == (float)(i * 820));
    gn_step(gpu);
    gn_release(sum);
    gn_release(w);
}

/* An append in place, then an index out of range: neither the cache nor the other state has changed. */
static void a_fault_after_an_append_in_place_changes_nothing(void) {
    float rows[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, out[64], zero[64] = { 0 }, sums[4];
    int32_t id = 9;
    gn_tensor cache = gn_state(gpu, GN_F32, GN_SHAPE(1, 2, 8, 4), NULL, "kv"),
              other = gn_state(gpu, GN_F32, GN_SHAPE(4), NULL, "other");
    for (int fails = 2; fails >= 0; fails--) {
        gn_tensor grown =
            gn_kv_append(cache, gn_data(gpu, GN_F32, GN_SHAPE(1, 2, 1, 4), rows), gn_scalar(gpu, GN_I32, 3));
        id = fails ? 9 : 1;
        gn_tensor picked = gn_embedding(gn_reshape(grown, GN_SHAPE(16, 4)), gn_data(gpu, GN_I32, GN_SHAPE(1), &id));
        id = fails ? 99 : 3;
        gn_tensor v =
            gn_reshape(gn_embedding(gn_reshape(grown, GN_SHAPE(16, 4)), gn_data(gpu, GN_I32, GN_SHAPE(1), &id)),
                       GN_SHAPE(4));
        gn_tensor set = gn_assign(other, gn_add_c(v, 1));
        (void)picked;
        CHECK_RESULT(gn_read(set, sums, sizeof sums), fails ? GN_INDEX_OUT_OF_RANGE : GN_OK);
        gn_step(gpu);
        CHECK_RESULT(gn_read(cache, out, sizeof out), GN_OK);
        CHECK(fails ? memcmp(out, zero, sizeof out) == 0 : out[12] == 1 && out[15] == 4 && out[44] == 5);
        CHECK_RESULT(gn_read(other, sums, sizeof sums), GN_OK);
        CHECK(sums[0] == (fails ? 0 : 2));
        gn_step(gpu);
    }
    gn_release(cache);
    gn_release(other);
}

/* The position of an append in place is computed, and its memory is used again before the run fails. */
static void appends_at_a_computed_place_are_put_back_when_a_run_fails(void) {
    float rows[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, first[64], out[64], table[8] = { 0 };
    for (int i = 0; i < 64; i++) first[i] = (float)(100 + i);
    gn_tensor cache = gn_state(gpu, GN_F32, GN_SHAPE(1, 2, 8, 4), first, "kv"),
              other = gn_state(gpu, GN_F32, GN_SHAPE(1, 4), NULL, "other");
    gn_tensor two = gn_data_copy(gpu, GN_I32, GN_SHAPE(1), &(int32_t){ 2 }),
              place = gn_sum(gn_add_c(two, 1), GN_ALL_AXES, false);
    gn_kv_append(cache, gn_data(gpu, GN_F32, GN_SHAPE(1, 2, 1, 4), rows), place);
    gn_tensor six = gn_sum(gn_mul_c(two, 3), GN_ALL_AXES, true), id = gn_sum(gn_mul_c(six, 1), GN_ALL_AXES, true);
    gn_tensor set = gn_assign(other, gn_embedding(gn_data(gpu, GN_F32, GN_SHAPE(2, 4), table), id));
    CHECK_RESULT(gn_read(set, out, sizeof rows / 2), GN_INDEX_OUT_OF_RANGE);
    gn_step(gpu);
    CHECK_RESULT(gn_read(cache, out, sizeof out), GN_OK);
    CHECK(memcmp(out, first, sizeof out) == 0);
    gn_step(gpu);
    gn_release(cache);
    gn_release(other);
}

/* Two appends of one step at one place: what stood there before both comes back. */
static void appends_at_one_place_are_put_back_in_their_order(void) {
    float rows[16], first[64], out[64], table[8] = { 0 };
    for (int i = 0; i < 64; i++) first[i] = (float)(100 + i);
    for (int i = 0; i < 16; i++) rows[i] = (float)i;
    gn_tensor cache = gn_state(gpu, GN_F32, GN_SHAPE(1, 2, 8, 4), first, "kv"),
              other = gn_state(gpu, GN_F32, GN_SHAPE(1, 4), NULL, "other"), place = gn_scalar(gpu, GN_I32, 4);
    gn_kv_append(gn_kv_append(cache, gn_data(gpu, GN_F32, GN_SHAPE(1, 2, 1, 4), rows), place),
                 gn_data(gpu, GN_F32, GN_SHAPE(1, 2, 1, 4), rows + 8), place);
    gn_tensor set = gn_assign(other, gn_embedding(gn_data(gpu, GN_F32, GN_SHAPE(2, 4), table),
                                                  gn_data_copy(gpu, GN_I32, GN_SHAPE(1), &(int32_t){ 7 })));
    CHECK_RESULT(gn_read(set, out, sizeof rows / 4), GN_INDEX_OUT_OF_RANGE);
    gn_step(gpu);
    CHECK_RESULT(gn_read(cache, out, sizeof out), GN_OK);
    CHECK(memcmp(out, first, sizeof out) == 0);
    gn_step(gpu);
    gn_release(cache);
    gn_release(other);
}

/* Keys and values of several tokens, rows of one wider tensor: one kernel. fails 2: the values' cache has no room
   there; 1: a later step fails. Neither leaves a trace. */
static void several_rows_are_appended_to_all_caches_at_once(void) {
    enum { G = 2, S = 8, S2 = 7, D = 6, T = 4 }; /* 16 bytes of each head's rows do not begin at a row */
    static float rows[T * 2 * G * D], first[2][G * S * D], out[G * S * D], table[8], some[4];
    for (int i = 0; i < T * 2 * G * D; i++) rows[i] = (float)i;
    for (int i = 0; i < G * S * D; i++) first[0][i] = first[1][i] = (float)(1000 + i);
    const int64_t room[2] = { S, S2 };
    gn_tensor cache[2], other = gn_state(gpu, GN_F32, GN_SHAPE(1, 4), NULL, "other");
    for (int c = 0; c < 2; c++) cache[c] = gn_state(gpu, GN_F32, GN_SHAPE(1, G, room[c], D), first[c], "cache");
    for (int fails = 2; fails >= 0; fails--) {
        gn_stats before, after;
        int32_t at = fails == 2 ? 4 : 3, id = fails == 1 ? 7 : 1;
        gn_tensor all = gn_reshape(gn_data(gpu, GN_F32, GN_SHAPE(T, 2 * G * D), rows), GN_SHAPE(1, T, 2 * G, D)),
                  place = gn_data(gpu, GN_I32, GN_SCALAR, &at);
        for (int c = 0; c < 2; c++)
            (void)gn_kv_append(cache[c], gn_transpose(gn_slice(all, 2, c * G, c * G + G, 1), 1, 2), place);
        gn_tensor set = gn_assign(other, gn_embedding(gn_data(gpu, GN_F32, GN_SHAPE(2, 4), table),
                                                      gn_data(gpu, GN_I32, GN_SHAPE(1), &id)));
        gn_get_stats(gpu, &before);
        CHECK_RESULT(gn_read(set, some, sizeof some), fails ? GN_INDEX_OUT_OF_RANGE : GN_OK);
        gn_get_stats(gpu, &after);
        if (!fails && !getenv("GENIE_CUDA_FUSE")) CHECK(after.kernels_run - before.kernels_run <= 4);
        gn_step(gpu);
        for (int c = 0; c < 2; c++) {
            CHECK_RESULT(gn_read(cache[c], out, (size_t)(G * room[c] * D) * sizeof(float)), GN_OK);
            for (int i = 0; i < G * room[c] * D; i++) {
                int64_t t = i / D % room[c] - 3, g = i / D / room[c];
                bool is_new = !fails && t >= 0 && t < T;
                CHECK(out[i] == (is_new ? rows[(t * 2 * G + c * G + g) * D + i % D] : first[c][i]));
            }
        }
        gn_step(gpu);
    }
    for (int c = 0; c < 2; c++) gn_release(cache[c]);
    gn_release(other);
}

/* More appends at one position than a kernel has, behind which nothing can fail: nothing is saved and put back. At a
   position that none of them can take, none is done. */
static void appends_at_the_end_save_nothing(void) {
    enum { CACHES = 11, S = 6, D = 4, ROWS = 2 };
    static float rows[CACHES * ROWS * D], first[S * D], out[S * D];
    gn_tensor cache[CACHES];
    for (int i = 0; i < CACHES * ROWS * D; i++) rows[i] = (float)i;
    for (int i = 0; i < S * D; i++) first[i] = (float)(1000 + i);
    for (int c = 0; c < CACHES; c++) cache[c] = gn_state(gpu, GN_F32, GN_SHAPE(1, 1, S, D), first, "cache");
    for (int at = S - ROWS + 1; at >= S - ROWS; at--) {
        const bool fits = at + ROWS <= S;
        gn_stats before, after;
        gn_tensor place = gn_data_copy(gpu, GN_I32, GN_SCALAR, &(int32_t){ at }), y[CACHES];
        for (int c = 0; c < CACHES; c++)
            y[c] = gn_kv_append(cache[c], gn_data(gpu, GN_F32, GN_SHAPE(1, 1, ROWS, D), rows + c * ROWS * D), place);
        gn_get_stats(gpu, &before);
        CHECK_RESULT(gn_realize(y, CACHES), GN_OK);
        gn_get_stats(gpu, &after);
        if (!getenv("GENIE_CUDA_FUSE")) CHECK(after.kernels_run - before.kernels_run == 2);
        CHECK_RESULT(gn_read(y[CACHES - 1], out, sizeof out), fits ? GN_OK : GN_INDEX_OUT_OF_RANGE);
        gn_step(gpu);
        for (int c = 0; c < CACHES; c++) {
            CHECK_RESULT(gn_read(cache[c], out, sizeof out), GN_OK);
            for (int i = 0; i < S * D; i++)
                CHECK(out[i] == (fits && i >= at * D ? rows[c * ROWS * D + i - at * D] : first[i]));
        }
        gn_step(gpu);
    }
    for (int c = 0; c < CACHES; c++) gn_release(cache[c]);
}

/* Appends of as many caches as one kernel puts back, and of more, before what may fail, and a state that gets what that
   makes: a run that fails leaves all as it was. */
static void a_failed_run_puts_back_appends_and_commits_nothing(void) {
    enum { CACHES = 70, S = 4, D = 4 };
    static float rows[CACHES * D], first[S * D], out[S * D];
    gn_tensor cache[CACHES];
    for (int i = 0; i < CACHES * D; i++) rows[i] = (float)i;
    for (int i = 0; i < S * D; i++) first[i] = (float)(1000 + i);
    for (int k = 0; k < 6; k++) {
        const int n = k < 3 ? 3 : CACHES;
        const bool fails = k % 3 == 1;
        gn_tensor total = gn_state(gpu, GN_F32, GN_SHAPE(1, D), first, "total"),
                  at = gn_data_copy(gpu, GN_I32, GN_SCALAR, &(int32_t){ k % 3 }),
                  pick = gn_data_copy(gpu, GN_I32, GN_SHAPE(1), &(int32_t){ fails ? S : k % 3 }), last = GN_NONE;
        for (int c = 0; c < n; c++) {
            cache[c] = gn_state(gpu, GN_F32, GN_SHAPE(1, 1, S, D), first, "cache");
            last = gn_kv_append(cache[c], gn_data(gpu, GN_F32, GN_SHAPE(1, 1, 1, D), rows + c * D), at);
        }
        gn_assign(total, gn_embedding(gn_reshape(last, GN_SHAPE(S, D)), pick));
        CHECK_RESULT(gn_step(gpu), GN_OK);
        if (fails) CHECK_RESULT(gn_read(total, out, D * sizeof *out), GN_INDEX_OUT_OF_RANGE);
        CHECK_RESULT(gn_read(total, out, D * sizeof *out), GN_OK);
        for (int i = 0; i < D; i++) CHECK(out[i] == (fails ? first[i] : rows[(n - 1) * D + i]));
        for (int c = 0; c < n; c++) {
            CHECK_RESULT(gn_read(cache[c], out, sizeof out), GN_OK);
            for (int i = 0; i < S * D; i++)
                CHECK(out[i] == (!fails && i / D == k % 3 ? rows[c * D + i % D] : first[i]));
            gn_release(cache[c]);
        }
        gn_release(total);
        gn_step(gpu);
    }
}

/* A run that may fail copies new versions into their states at its end; what it tells of the old ones is what they
   were. */
static void an_old_version_is_read_beside_the_new_one(void) {
    float first[12], old[2][12], new[12];
    int32_t ids[12] = { 0 };
    for (int i = 0; i < 12; i++) first[i] = (float)i;
    gn_tensor s = gn_state(gpu, GN_F32, GN_SHAPE(12, 1), first, "s"),
              t = gn_state(gpu, GN_F32, GN_SHAPE(12, 1), NULL, "t");
    gn_tensor flat = gn_reshape(s, GN_SHAPE(3, 4)),
              next = gn_assign(s, gn_embedding(gn_add_c(s, 100), gn_data(gpu, GN_I32, GN_SHAPE(12), ids)));
    gn_assign(t, s);
    CHECK_RESULT(gn_read_many((gn_tensor[]){ flat, next, s }, 3, (void *[]){ old[0], new, old[1] },
                              (size_t[]){ sizeof first, sizeof first, sizeof first }),
                 GN_OK);
    for (int i = 0; i < 12; i++) CHECK(old[0][i] == first[i] && old[1][i] == first[i] && new[i] == 100);
    gn_step(gpu);
    CHECK_RESULT(gn_read_many((gn_tensor[]){ s, t }, 2, (void *[]){ new, old[0] },
                              (size_t[]){ sizeof first, sizeof first }),
                 GN_OK);
    CHECK(new[11] == 100 && old[0][11] == 11);
    gn_step(gpu);
    gn_release(s);
    gn_release(t);
}

/* 60 choices in one loop have 121 inputs; 60 divisions name each divisor's node. */
static void a_loop_takes_more_inputs_than_ever(void) {
    enum { OPS = 60, N = 24 };
    static float x[OPS + 1][N], out[N], want[N];
    static int32_t n[OPS + 1][N], quotient[N], left[N];
    static bool is[OPS][N];
    gn_tensor chosen = gn_data(gpu, GN_F32, GN_SHAPE(N), x[OPS]), divided = gn_data(gpu, GN_I32, GN_SHAPE(N), n[OPS]);
    for (int i = 0; i < N; i++) {
        want[i] = x[OPS][i] = -1;
        left[i] = n[OPS][i] = INT32_MAX - i;
    }
    for (int k = 0; k < OPS; k++) {
        for (int i = 0; i < N; i++) {
            x[k][i] = (float)(k * N + i);
            is[k][i] = test_random_int(0, 4) == 0;
            n[k][i] = (int32_t)test_random_int(1, 2);
            want[i] = is[k][i] ? x[k][i] : want[i];
            left[i] /= n[k][i];
        }
        chosen = gn_where(gn_data(gpu, GN_BOOL, GN_SHAPE(N), is[k]), gn_data(gpu, GN_F32, GN_SHAPE(N), x[k]), chosen);
        divided = gn_div(divided, gn_data(gpu, GN_I32, GN_SHAPE(N), n[k]));
    }
    CHECK_RESULT(gn_read(chosen, out, sizeof out), GN_OK);
    CHECK_RESULT(gn_read(divided, quotient, sizeof quotient), GN_OK);
    CHECK(memcmp(out, want, sizeof out) == 0 && memcmp(quotient, left, sizeof left) == 0);
    gn_step(gpu);
}

static void indices_into_nothing_are_out_of_range(void) {
    static int32_t ids[300];
    float loss = 0;
    char nothing;
    CHECK_RESULT(gn_read(gn_cross_entropy(gn_full(gpu, GN_F32, GN_SHAPE(4, 0), 1),
                                          gn_data(gpu, GN_I32, GN_SHAPE(4), ids)),
                         &loss, sizeof loss),
                 GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_read(gn_embedding(gn_full(gpu, GN_F32, GN_SHAPE(4, 0), 1),
                                      gn_data(gpu, GN_I32, GN_SHAPE(300), ids)),
                         &nothing, 0),
                 GN_OK);
    gn_step(gpu);
    ids[299] = 4;
    CHECK_RESULT(gn_read(gn_embedding(gn_full(gpu, GN_F32, GN_SHAPE(4, 0), 1),
                                      gn_data(gpu, GN_I32, GN_SHAPE(300), ids)),
                         &nothing, 0),
                 GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_read(gn_one_hot(gn_data(gpu, GN_I32, GN_SHAPE(300), ids), 0, GN_F32), &nothing, 0),
                 GN_INDEX_OUT_OF_RANGE);
    gn_step(gpu);
}

/* A value is kept by a run that nothing has waited for; the next run uses it, and changes nothing when the first one
   failed. */
static void a_kept_value_is_used_before_its_run_has_ended(void) {
    float table[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, out[4] = { 0 }, want[4] = { 0 };
    gn_tensor s = gn_state(gpu, GN_F32, GN_SHAPE(1, 4), NULL, "s"),
              w = gn_weight(gpu, GN_F32, GN_SHAPE(3, 4), table, "table");
    for (int32_t i = 0; i < 8; i++) {
        int32_t id = i % 4; /* 3 is no row */
        gn_tensor kept = gn_embedding(w, gn_data_copy(gpu, GN_I32, GN_SHAPE(1), &id));
        gn_result r = gn_realize(&kept, 1);
        if (r == GN_OK)
            gn_assign(s, gn_add(s, gn_embedding(gn_mul_c(kept, 2),
                                                gn_data_copy(gpu, GN_I32, GN_SHAPE(1), &(int32_t){ 0 }))));
        if (r == GN_OK) r = gn_step(gpu);
        if (r == GN_OK) r = gn_sync(gpu);
        CHECK((r != GN_OK) == (id == 3));
        if (id == 3) gn_step(gpu);
        for (int k = 0; k < 4 && id < 3; k++) want[k] += 2 * table[id * 4 + k];
        CHECK_RESULT(gn_read(s, out, sizeof out), GN_OK);
        CHECK(memcmp(out, want, sizeof out) == 0);
        gn_step(gpu);
    }
    gn_release(s);
    gn_release(w);
}

/* ---- copies beside kernels: arguments, results, weights and kept values of runs in flight ---- */

enum { ASIDE_COLUMNS = 256, ASIDE_INS = 2, ASIDE_OUTS = 6, ASIDE_STEPS = 20 };

typedef struct aside {
    gn_ctx *g;
    gn_tensor sum;
    bool pinned;
    int rows, n;
    double *in[ASIDE_INS], *out[ASIDE_OUTS], *weight[3], *want[ASIDE_OUTS], *total;
    gn_tensor w[3];
    uint64_t ticket[ASIDE_OUTS];
} aside;

static void whole_numbers(double *p, int n) {
    for (int i = 0; i < n; i++) p[i] = (int)test_random_real(-50, 50);
}

/* One of five steps that differ in how bytes come and go, later ones with two results; x is rubbish as soon as the step
   is submitted. */
static gn_result aside_step(aside *a, int k, double *want, double *out, uint64_t *ticket) {
    double *x = a->in[k % ASIDE_INS];
    const int rows = a->rows, count = a->n;
    gn_shape shape = GN_SHAPE(rows, ASIDE_COLUMNS);
    size_t bytes[2] = { (size_t)count * sizeof *x, (size_t)count * sizeof *x };
    int form = (int)test_random_real(0, 5), w = k % 3;
    whole_numbers(x, count);
    gn_tensor t = gn_data(a->g, GN_F64, shape, x), y = gn_add(t, a->sum);
    for (int i = 0; i < count; i++) want[i] = x[i] + a->total[i];
    if (form == 1) { /* a result that is gathered */
        y = gn_reshape(gn_transpose(gn_add_c(gn_add(y, t), 1), 0, 1), shape);
        for (int i = 0; i < count; i++)
            want[i] = 2 * x[i % rows * ASIDE_COLUMNS + i / rows] + a->total[i % rows * ASIDE_COLUMNS + i / rows] + 1;
    } else if (form == 2) { /* the state changes */
        y = gn_assign(a->sum, gn_mul_c(y, -0.5));
        for (int i = 0; i < count; i++) want[i] = a->total[i] = -0.5 * want[i];
    } else if (form == 3) { /* a value of an earlier run, used later */
        gn_result r = gn_realize(&y, 1);
        if (r != GN_OK) return r;
        y = gn_sub(gn_mul_c(y, 3), gn_data_copy(a->g, GN_F64, shape, x));
        for (int i = 0; i < count; i++) want[i] = 3 * want[i] - x[i];
    } else if (form == 4) { /* a weight that comes while runs are in flight */
        gn_release(a->w[w]);
        whole_numbers(a->weight[w], count);
        a->w[w] = gn_weight(a->g, GN_F64, shape, a->weight[w], "w");
        y = gn_add(a->sum, a->w[w]);
        for (int i = 0; i < count; i++) want[i] = a->total[i] + a->weight[w][i];
    }
    int n = k < ASIDE_STEPS / 2 ? 1 : 2;
    for (int i = 0; i < count; i++) want[count + i] = n == 2 ? want[i] * 2 : NAN;
    gn_result r = gn_read_later((gn_tensor[2]){ y, gn_mul_c(y, 2) }, n, (void *[2]){ out, out + count }, bytes, ticket);
    memset(x, 0xff, bytes[0]);
    return r == GN_OK ? gn_step(a->g) : r;
}

static void aside_run(aside *a) {
    for (int k = 0; k < ASIDE_STEPS + ASIDE_OUTS; k++) {
        int at = k % ASIDE_OUTS;
        if (k >= ASIDE_OUTS && CHECK_RESULT(gn_wait(a->g, a->ticket[at]), GN_OK) &&
            memcmp(a->out[at], a->want[at],
                   sizeof(double) * (size_t)a->n * (k - ASIDE_OUTS < ASIDE_STEPS / 2 ? 1 : 2)) != 0) {
            int i = 0;
            while (i < 2 * a->n && a->out[at][i] == a->want[at][i]) i++;
            test_fail(__FILE__, __LINE__, "step %d, %s memory: element %d is %g, not %g", k - ASIDE_OUTS,
                      a->pinned ? "pinned" : "plain", i, a->out[at][i], a->want[at][i]);
        }
        memset(a->out[at], 0xff, 2 * (size_t)a->n * sizeof(double));
        if (k < ASIDE_STEPS) CHECK_RESULT(aside_step(a, k, a->want[at], a->out[at], &a->ticket[at]), GN_OK);
    }
}

/* Small ones in pinned and in plain memory, and larger ones in plain memory, which threads copy in pieces. */
static void copies_beside_kernels_change_nothing(void) {
    static const struct {
        bool pinned;
        int rows;
    } kinds[] = { { true, 320 }, { false, 320 }, { false, 2101 } };
    for (int kind = 0; kind < TEST_COUNT(kinds); kind++) {
        bool pinned = kinds[kind].pinned;
        aside a = { .g = gn_open(&(gn_desc){ .devices = device_name }),
                    .pinned = pinned,
                    .rows = kinds[kind].rows,
                    .n = kinds[kind].rows * ASIDE_COLUMNS };
        gn_shape shape = GN_SHAPE(a.rows, ASIDE_COLUMNS);
        size_t bytes = (size_t)a.n * sizeof(double);
        gn_stats stats;
        for (int i = 0; i < ASIDE_INS; i++) a.in[i] = pinned ? gn_host_alloc(a.g, bytes) : malloc(bytes);
        for (int i = 0; i < ASIDE_OUTS; i++) a.out[i] = pinned ? gn_host_alloc(a.g, 2 * bytes) : malloc(2 * bytes);
        for (int i = 0; i < ASIDE_OUTS; i++) a.want[i] = calloc(2, bytes);
        a.total = calloc(1, bytes);
        a.sum = gn_state(a.g, GN_F64, shape, NULL, "sum");
        for (int i = 0; i < 3; i++) whole_numbers(a.weight[i] = calloc(1, bytes), a.n);
        for (int i = 0; i < 3; i++) a.w[i] = gn_weight(a.g, GN_F64, shape, a.weight[i], "w");
        aside_run(&a);
        CHECK_RESULT(gn_sync(a.g), GN_OK);
        gn_get_stats(a.g, &stats);
        if (stats.bytes_to_device)
            CHECK(getenv("GENIE_CUDA_OVERLAP") ? stats.copies_aside == 0 : stats.copies_aside >= 2 * ASIDE_STEPS);
        if (stats.bytes_to_device)
            CHECK((stats.copies_waited > 0) == (a.rows > 320 && getenv("GENIE_CUDA_OVERLAP") != NULL));
        for (int i = 0; i < ASIDE_INS; i++) pinned ? gn_host_free(a.g, a.in[i]) : free(a.in[i]);
        for (int i = 0; i < ASIDE_OUTS; i++) pinned ? gn_host_free(a.g, a.out[i]) : free(a.out[i]);
        for (int i = 0; i < ASIDE_OUTS; i++) free(a.want[i]);
        free(a.total);
        gn_close(a.g);
        for (int i = 0; i < 3; i++) free(a.weight[i]);
    }
}

/* The run in the middle divides by zero: its wait says so, the runs before and after it give their results. */
static void the_wait_of_a_run_between_copies_tells_its_error(void) {
    enum { N = 170000 };
    static int32_t x[3][N], out[3][N];
    uint64_t ticket[3];
    size_t bytes = sizeof out[0];
    gn_tensor s = gn_state(gpu, GN_I32, GN_SHAPE(N), NULL, "s");
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < N; i++) x[k][i] = k == 1 && i == N / 2 ? 0 : i + 1 + k;
        gn_tensor y = gn_assign(s, gn_add(s, gn_div(gn_full(gpu, GN_I32, GN_SHAPE(N), 10 * N),
                                                    gn_data(gpu, GN_I32, GN_SHAPE(N), x[k]))));
        CHECK_RESULT(gn_read_later(&y, 1, (void *[1]){ out[k] }, &bytes, &ticket[k]), GN_OK);
        gn_step(gpu);
    }
    CHECK_RESULT(gn_wait(gpu, ticket[0]), GN_OK);
    CHECK_RESULT(gn_wait(gpu, ticket[1]), GN_DIVISION_BY_ZERO);
    CHECK_RESULT(gn_wait(gpu, ticket[2]), GN_OK);
    CHECK_RESULT(gn_wait(gpu, ticket[2] + 64), GN_BAD_ARGUMENT);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        int32_t first = 10 * N / x[0][i], third = first + 10 * N / x[2][i];
        wrong += out[0][i] != first || out[2][i] != third;
    }
    CHECK_INT(wrong, 0);
    gn_release(s);
}

/* More elements than one block counts: positions of what is not 0 in order, then -1. */
static void nonzero_of_many_elements_agrees_with_the_cpu(void) {
    enum { ROWS = 7, COLUMNS = 5003, BOUND = ROWS * COLUMNS };
    static float x[BOUND];
    static int64_t out[2][BOUND * 2];
    gn_ctx *g[2] = { cpu, gpu };
    for (int i = 0; i < BOUND; i++) x[i] = test_random_real(0, 1) < 0.3 ? 1 : 0;
    for (int k = 0; k < 2; k++) {
        CHECK_RESULT(gn_read(gn_nonzero(gn_data(g[k], GN_F32, GN_SHAPE(ROWS, COLUMNS), x), BOUND), out[k],
                             sizeof out[k]),
                     GN_OK);
        gn_step(g[k]);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0 && out[0][BOUND * 2 - 1] == -1);
    CHECK(gn_read(gn_nonzero(gn_data(gpu, GN_F32, GN_SHAPE(ROWS, COLUMNS), x), 100), out[1], 1600) != GN_OK);
    gn_step(gpu);
}

/* Few rows, each shared by many blocks; form: 0 softmax, 1 log_softmax, 2 cross_entropy, 3 softmax down columns, 4
   layernorm, 5 mean. */
static gn_tensor build_long_rows(gn_ctx *g, const job *j, void **data) {
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[0]);
    if (j->form == 2) return gn_cross_entropy(x, gn_arange(g, GN_I32, j->a, (double)(j->b - j->a), 1));
    if (j->form == 3) return gn_softmax(gn_transpose(x, 0, 1), 0);
    if (j->form >= 4) return j->form == 4 ? gn_layernorm(x, GN_NONE, GN_NONE, 1e-5) : gn_mean(x, GN_AXES(1), false);
    return j->form ? gn_log_softmax(x, 1) : gn_softmax(x, 1);
}

static void long_rows_agree_with_the_cpu(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F16, GN_F64 };
    for (int k = 0; k < 3; k++) {
        job j = { dtypes[k], k % 2 + 1, (1 << 18) + (k == 1 ? 13 : 8), 0, 0, 0 };
        void *data[1] = { random_bytes(j.d, j.a * j.b, 3) };
        for (j.form = k; j.form < 6; j.form += 3)
            compare("long rows", build_long_rows, &j, data, eps_of(j.d) * (j.d == GN_F64 ? 256 : 16));
        free(data[0]);
    }
}

/* Norms over so many long rows that each has a block, with gains that a row repeats: b channels of a pictures, side c;
   form: groups, 0: a batch norm. */
static gn_tensor build_full_norms(gn_ctx *g, const job *j, void **data) {
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->a, j->b, j->c, j->c), data[0]),
              gain = gn_data(g, j->d, GN_SHAPE(j->b), data[1]), shift = gn_data(g, j->d, GN_SHAPE(j->b), data[2]);
    return j->form ? gn_group_norm(x, j->form, gain, shift, 1e-5)
                   : gn_batch_norm_train(x, gain, shift, 1e-5, NULL, NULL);
}

static void norms_of_rows_that_fill_the_device_agree_with_the_cpu(void) {
    static const job jobs[] = { { GN_BF16, 8, 640, 25, 0, 0 },  { GN_F16, 6, 600, 28, 0, 0 },
                                { GN_F32, 7, 560, 27, 0, 0 },   { GN_BF16, 20, 64, 60, 0, 32 },
                                { GN_F16, 20, 64, 70, 0, 32 },  { GN_F32, 20, 64, 52, 0, 32 },
                                { GN_BF16, 20, 512, 20, 0, 32 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        void *data[] = { random_bytes(j->d, j->a * j->b * j->c * j->c, 3), random_bytes(j->d, j->b, 1),
                         random_bytes(j->d, j->b, 1) };
        compare("norms of many long rows", build_full_norms, j, data, eps_of(j->d) * 8);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

/* Few rows that many blocks share: the first of equals, whatever block has it; the first NaN before all else; what is
   nowhere above -inf; alone and behind a loop. */
static void the_best_of_long_rows_agrees_with_the_cpu(void) {
    enum { ROWS = 5, COLUMNS = 30011 };
    static float x[ROWS * COLUMNS];
    static int64_t out[2][3][ROWS];
    static float top[2][ROWS];
    gn_ctx *g[2] = { cpu, gpu };
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)test_random_int(-50, 50);
    for (int k = 3; k > 0; k--) {
        x[k * 7001] = 51;
        x[COLUMNS + 20000 + k * 2000] = NAN;
        x[2 * COLUMNS + k * 9000 + 255] = -51;
    }
    x[2 * COLUMNS - 1] = INFINITY;
    for (int i = 0; i < COLUMNS; i++) x[4 * COLUMNS + i] = -INFINITY;
    for (int k = 0; k < 2; k++) {
        gn_tensor t = gn_data(g[k], GN_F32, GN_SHAPE(ROWS, COLUMNS), x), narrow = gn_cast(t, GN_BF16);
        gn_tensor bests[] = { gn_argmax(narrow, GN_AXES(1), false), gn_argmin(t, GN_AXES(1), false),
                              gn_argmax(gn_neg(narrow), GN_AXES(1), false), gn_max(t, GN_AXES(1), false) };
        CHECK_RESULT(gn_read_many(bests, 4, (void *[]){ out[k][0], out[k][1], out[k][2], top[k] },
                                  (size_t[]){ sizeof out[k][0], sizeof out[k][0], sizeof out[k][0], sizeof top[k] }),
                     GN_OK);
        gn_step(g[k]);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    CHECK_INT(out[1][0][0], 7001);
    CHECK_INT(out[1][0][1], 22000);
    CHECK_INT(out[1][1][2], 9255);
    CHECK_INT(out[1][2][2], 9255);
    CHECK_INT(out[1][0][4], 0);
    CHECK(top[1][0] == 51 && isnan(top[1][1]) && top[1][4] == -INFINITY && top[1][3] == top[0][3]);
}

/* Few rows longer than one block runs along: whole numbers, so that every sum is exact; NaN from its place on. */
static void runs_along_long_rows_agree_with_the_cpu(void) {
    enum { ROWS = 3, COLUMNS = 17011 };
    static double x[ROWS * COLUMNS], out[2][3][ROWS * COLUMNS];
    static int32_t n[ROWS * COLUMNS];
    static int64_t sums[2][ROWS * COLUMNS];
    gn_ctx *g[2] = { cpu, gpu };
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        x[i] = (double)test_random_int(-50, 50);
        n[i] = (int32_t)test_random_int(INT32_MIN, INT32_MAX);
    }
    x[COLUMNS + 14000] = NAN;
    x[2 * COLUMNS + 3] = -INFINITY;
    for (int k = 0; k < 2; k++) {
        gn_tensor t = gn_data(g[k], GN_F64, GN_SHAPE(ROWS, COLUMNS), x),
                  i = gn_data(g[k], GN_I32, GN_SHAPE(ROWS, COLUMNS), n);
        gn_tensor runs[] = { gn_cumsum(t, 1), gn_cummax(gn_transpose(t, 0, 1), 0), gn_cumprod(gn_sign(t), 1),
                             gn_cumsum(i, 1) };
        CHECK_RESULT(gn_read_many(runs, 4, (void *[]){ out[k][0], out[k][1], out[k][2], sums[k] },
                                  (size_t[]){ sizeof x, sizeof x, sizeof x, sizeof sums[k] }),
                     GN_OK);
        gn_step(g[k]);
    }
    int wrong = 0;
    for (int q = 0; q < 3; q++)
        for (int i = 0; i < ROWS * COLUMNS; i++)
            wrong += !(out[0][q][i] == out[1][q][i] || (isnan(out[0][q][i]) && isnan(out[1][q][i])));
    CHECK_INT(wrong, 0);
    CHECK(isnan(out[1][0][COLUMNS + 14000]) && !isnan(out[1][0][COLUMNS + 13999]) &&
          memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
}

/* A product that reads a cache before it grows in place but ends in a later loop; two appends of one step; attention
   over both. */
static void a_cache_is_read_before_and_after_it_grows(void) {
    enum { PLACES = 256, HEAD = 64 };
    static float old[PLACES * HEAD], row[4 * HEAD], weights[PLACES + 2], out[2][2 * HEAD];
    gn_ctx *g[2] = { cpu, gpu };
    for (int i = 0; i < PLACES * HEAD; i++) old[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < 4 * HEAD; i++) row[i] = (float)test_random_real(-4, 4);
    for (int i = 0; i < PLACES + 2; i++) weights[i] = (float)test_random_real(-1, 1);
    for (int k = 0; k < 2; k++) {
        gn_tensor cache[2] = { gn_state(g[k], GN_F32, GN_SHAPE(1, 1, PLACES, HEAD), old, "k"),
                               gn_state(g[k], GN_F32, GN_SHAPE(1, 1, PLACES, HEAD), old, "v") },
                  grown[2];
        for (int step = 0; step < 4; step++) {
            gn_tensor before = gn_matmul(gn_data(g[k], GN_F32, GN_SHAPE(1, PLACES), weights),
                                         gn_reshape(cache[0], GN_SHAPE(PLACES, HEAD)));
            gn_tensor more = gn_matmul(gn_data(g[k], GN_F32, GN_SHAPE(1, PLACES), weights + 2),
                                       gn_reshape(cache[1], GN_SHAPE(PLACES, HEAD)));
            for (int c = 0; c < 2; c++) {
                grown[c] = gn_kv_append(cache[c], gn_data(g[k], GN_F32, GN_SHAPE(1, 1, 1, HEAD), row + c * HEAD),
                                        gn_scalar(g[k], GN_I32, 40 + 2 * step));
                grown[c] = gn_kv_append(grown[c], gn_data(g[k], GN_F32, GN_SHAPE(1, 1, 1, HEAD), row + (2 + c) * HEAD),
                                        gn_scalar(g[k], GN_I32, 41 + 2 * step));
            }
            gn_attention_desc desc = { .causal = true, .length = gn_scalar(g[k], GN_I32, 42 + 2 * step) };
            gn_tensor want[2] = { gn_mul(gn_gelu(before), more),
                                  gn_attention(gn_data(g[k], GN_F32, GN_SHAPE(1, 1, 1, HEAD), row), grown[0], grown[1],
                                               &desc) };
            CHECK_RESULT(gn_read_many(want, 2, (void *[2]){ out[k], out[k] + HEAD }, (size_t[2]){ HEAD * 4, HEAD * 4 }),
                         GN_OK);
            CHECK_RESULT(gn_step(g[k]), GN_OK);
        }
        gn_release(cache[0]);
        gn_release(cache[1]);
    }
    for (int i = 0; i < 2 * HEAD; i++)
        if (!(fabs((double)out[0][i] - (double)out[1][i]) <= 1e-4))
            test_fail(__FILE__, __LINE__, "element %d is %g, not %g", i, out[1][i], out[0][i]);
}

/* Tokens one by one with the attention written out over caches that grow in place: places behind the token's are
   hidden. Two heads of keys, for as many of queries or twice. */
static void a_cache_is_read_by_attention_written_out(void) {
    enum { PLACES = 192, HEAD = 64, HEADS = 4, KEYS = 2, STEPS = 5 };
    static float old[KEYS * PLACES * HEAD], row[STEPS][3][HEADS * HEAD], out[2][HEADS * HEAD];
    gn_ctx *g[2] = { cpu, gpu };
    for (int i = 0; i < KEYS * PLACES * HEAD; i++) old[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < STEPS * 3 * HEADS * HEAD; i++)
        row[i / (3 * HEADS * HEAD)][i / (HEADS * HEAD) % 3][i % (HEADS * HEAD)] = (float)test_random_real(-2, 2);
    for (int shared = 1; shared <= HEADS / KEYS; shared++) {
        gn_tensor cache[2][2];
        for (int k = 0; k < 2; k++)
            for (int c = 0; c < 2; c++)
                cache[k][c] = gn_state(g[k], GN_F32, GN_SHAPE(1, KEYS, PLACES, HEAD), old, c ? "v" : "k");
        for (int step = 0; step < STEPS; step++) {
            for (int k = 0; k < 2; k++) {
                gn_tensor pos = gn_scalar(g[k], GN_I32, 70 + step), grown[2],
                          q = gn_data(g[k], GN_F32, GN_SHAPE(1, KEYS, shared, 1, HEAD), row[step][2]);
                for (int c = 0; c < 2; c++)
                    grown[c] =
                        gn_kv_append(cache[k][c], gn_data(g[k], GN_F32, GN_SHAPE(1, KEYS, 1, HEAD), row[step][c]), pos);
                gn_tensor keys = gn_reshape(grown[0], GN_SHAPE(1, KEYS, 1, PLACES, HEAD)),
                          values = gn_reshape(grown[1], GN_SHAPE(1, KEYS, 1, PLACES, HEAD));
                gn_tensor s = gn_mul_c(gn_matmul(q, gn_transpose(keys, 3, 4)), 0.125);
                s = gn_where(gn_le(gn_arange(g[k], GN_I32, PLACES, 0, 1), pos), s, gn_like(s, -INFINITY));
                CHECK_RESULT(gn_read(gn_matmul(gn_softmax(s, -1), values), out[k], (size_t)(KEYS * shared * HEAD) * 4),
                             GN_OK);
                CHECK_RESULT(gn_step(g[k]), GN_OK);
            }
            for (int i = 0; i < KEYS * shared * HEAD; i++)
                if (!(fabs((double)out[0][i] - (double)out[1][i]) <= 1e-5)) {
                    test_fail(__FILE__, __LINE__, "step %d: element %d is %g, not %g", step, i, out[1][i], out[0][i]);
                    break;
                }
        }
        for (int i = 0; i < 4; i++) gn_release(cache[i / 2][i % 2]);
    }
}

/* form 0: silu(x A) (x B), as in a gated MLP; 1: with two products more; 2: B has a row more, and no vector loads. */
static gn_tensor build_gated(gn_ctx *g, const job *j, void **data) {
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(1, j->a), data[0]), w[4];
    for (int i = 0; i < 4; i++) w[i] = gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[1 + i]);
    gn_tensor longer = gn_data(g, j->d, GN_SHAPE(1, j->a + 1), data[0]),
              other = gn_data(g, j->d, GN_SHAPE(j->a + 1, j->b), data[1]);
    gn_tensor gate = gn_matmul(x, w[0]), up = j->form == 2 ? gn_matmul(longer, other) : gn_matmul(x, w[1]),
              y = gn_mul(gn_silu(gate), up);
    return j->form == 1 ? gn_sub(y, gn_mul(gn_matmul(x, w[2]), gn_tanh(gn_matmul(x, w[3])))) : y;
}

static void products_of_one_row_meet_in_one_loop(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16 };
    for (int k = 0; k < 6; k++) {
        job j = { dtypes[k / 3], 128, 96, 0, 0, k % 3 };
        void *data[5] = { random_bytes(j.d, j.a + 1, 1) };
        for (int i = 0; i < 4; i++) data[1 + i] = random_bytes(j.d, (j.a + 1) * j.b, 0.2);
        compare("gated", build_gated, &j, data, eps_of(j.d) * 64);
        for (int i = 0; i < 5; i++) free(data[i]);
    }
}

/* ---- memory that is too small for the weights ---- */

enum { CROWD = 8, CROWD_SIDE = 128, CROWD_BYTES = CROWD_SIDE * CROWD_SIDE * 4 };

static gn_ctx *open_with(const char *memory, const char *evicts) {
    const char *device = getenv("GENIE_TEST_DEVICES");
    setenv("GENIE_CUDA_MEMORY", memory, 1);
    setenv("GENIE_CUDA_EVICT", evicts, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device ? device : "cuda:0" });
    unsetenv("GENIE_CUDA_MEMORY");
    unsetenv("GENIE_CUDA_EVICT");
    return g;
}

/* x times the weights whose bit is set; the state counts the steps. */
static gn_result crowd_step(gn_ctx *g, gn_tensor *w, gn_tensor steps, unsigned which, const float *x, float *out) {
    gn_tensor y = gn_data(g, GN_F32, GN_SHAPE(4, CROWD_SIDE), x);
    for (int i = 0; i < CROWD; i++)
        if (which >> i & 1) y = gn_matmul(y, w[i]);
    gn_tensor n = gn_assign(steps, gn_add_c(steps, 1));
    gn_tensor want[2] = { y, n };
    void *to[2] = { out, out + 4 * CROWD_SIDE };
    gn_result r = gn_read_many(want, 2, to, (size_t[2]){ 4 * CROWD_SIDE * 4, 4 });
    gn_step(g);
    return r;
}

static void weights_beyond_the_memory_come_and_go(void) {
    static const unsigned plans[] = { 0x01, 0xff, 0x06, 0x06, 0x06, 0x81, 0xff, 0xff, 0x18, 0xff, 0x07, 0x07, 0xe0 };
    char memory[32];
    static float x[4 * CROWD_SIDE], out[2][4 * CROWD_SIDE + 1];
    void *data[CROWD];
    snprintf(memory, sizeof memory, "%d", 4 * CROWD_BYTES + (64 << 10)); /* four of the eight */
    gn_ctx *g[2] = { cpu, open_with(memory, "1") };
    gn_tensor w[2][CROWD], steps[2];
    for (int i = 0; i < 4 * CROWD_SIDE; i++) x[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < CROWD; i++) data[i] = random_bytes(GN_F32, CROWD_SIDE * CROWD_SIDE, 0.2);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < CROWD; i++)
            w[k][i] = gn_weight(g[k], GN_F32, GN_SHAPE(CROWD_SIDE, CROWD_SIDE), data[i], "w");
        steps[k] = gn_state(g[k], GN_F32, GN_SHAPE(1), NULL, "steps");
    }
    for (int p = 0; p < TEST_COUNT(plans); p++) {
        double worst = 0, largest = 0;
        for (int k = 0; k < 2; k++)
            if (!CHECK_RESULT(crowd_step(g[k], w[k], steps[k], plans[p], x, out[k]), GN_OK))
                printf("%s\n", gn_last_error(g[k])->text);
        for (int i = 0; i < 4 * CROWD_SIDE; i++) {
            largest = fabs((double)out[0][i]) > largest ? fabs((double)out[0][i]) : largest;
            worst = fmax(worst, fabs((double)out[0][i] - (double)out[1][i]));
        }
        if (!(worst <= 1e-4 * largest))
            test_fail(__FILE__, __LINE__, "plan %d (%x) is %g off, the largest is %g", p, plans[p], worst, largest);
        CHECK(out[1][4 * CROWD_SIDE] == (float)(p + 1));
    }
    gn_stats stats;
    gn_get_stats(g[1], &stats);
    CHECK(stats.evictions > 0 && stats.weight_moves > 0 && stats.weight_hits > 0);
    CHECK(stats.weight_move_bytes == stats.weight_moves * CROWD_BYTES &&
          stats.evicted_bytes == stats.evictions * CROWD_BYTES);
    CHECK(stats.device_bytes <= (uint64_t)4 * CROWD_BYTES + (64 << 10));
    float back[2] = { 0 }; /* a weight that is not on the device is read */
    for (int i = 0; i < CROWD; i++)
        CHECK_RESULT(gn_read(gn_slice(gn_reshape(w[1][i], GN_SHAPE(CROWD_SIDE * CROWD_SIDE)), 0, 7, 9, 1), back,
                             sizeof back),
                     GN_OK);
    CHECK(memcmp(back, (float *)data[CROWD - 1] + 7, sizeof back) == 0);
    gn_close(g[1]);
    for (int i = 0; i < CROWD; i++) gn_release(w[0][i]);
    gn_release(steps[0]);

    gn_ctx *none = open_with(memory, "0"); /* nothing moves: the fifth weight does not fit */
    for (int i = 0; i < CROWD; i++) w[1][i] = gn_weight(none, GN_F32, GN_SHAPE(CROWD_SIDE, CROWD_SIDE), data[i], "w");
    steps[1] = gn_state(none, GN_F32, GN_SHAPE(1), NULL, "steps");
    CHECK_RESULT(crowd_step(none, w[1], steps[1], 0xff, x, out[1]), GN_OUT_OF_MEMORY);
    gn_close(none);
    gn_ctx *tiny = open_with("40000", "1"); /* one weight alone does not fit */
    gn_tensor one = gn_weight(tiny, GN_F32, GN_SHAPE(CROWD_SIDE, CROWD_SIDE), data[0], "w");
    CHECK_RESULT(gn_read(gn_sum(one, GN_ALL_AXES, false), back, 4), GN_OUT_OF_MEMORY);
    gn_close(tiny);
    for (int i = 0; i < CROWD; i++) free(data[i]);
}

/* ---- one token at a time: norms, loops, appends and the choice run inside other kernels ---- */

enum { TOKEN_HEADS = 4, TOKEN_VOCAB = 300, TOKEN_PLACES = 200, TOKEN_WEIGHTS = 16 };
typedef struct token_model {
    gn_dtype d;
    int64_t head, groups;
    gn_ctx *g;
    gn_tensor w[TOKEN_WEIGHTS], k, v;
} token_model;

/* 0 embedding, 1 places, 2 to 5 gains and biases of two norms, 6 and 7 query-key-value, 8 and 9 out, 10 and 11 up, 12
   and 13 down, 14 gain, 15 head by columns */
static gn_shape token_shape(const token_model *m, int i) {
    int64_t e = m->head * TOKEN_HEADS, wide = e + 2 * m->groups * m->head;
    switch (i) {
    case 0: return GN_SHAPE(TOKEN_VOCAB, e);
    case 1: return GN_SHAPE(TOKEN_PLACES, e);
    case 6: return GN_SHAPE(e, wide);
    case 7: return GN_SHAPE(wide);
    case 8: return GN_SHAPE(e, e);
    case 10: return GN_SHAPE(e, 4 * e);
    case 11: return GN_SHAPE(4 * e);
    case 12: return GN_SHAPE(4 * e, e);
    case 15: return GN_SHAPE(e, TOKEN_VOCAB + 20);
    default: return GN_SHAPE(e);
    }
}

static void token_model_make(token_model *m, gn_ctx *g, void **data) {
    m->g = g;
    for (int i = 0; i < TOKEN_WEIGHTS; i++) m->w[i] = gn_weight(g, m->d, token_shape(m, i), data[i], "w");
    m->k = gn_state(g, m->d, GN_SHAPE(1, m->groups, TOKEN_PLACES, m->head), NULL, "k");
    m->v = gn_state(g, m->d, GN_SHAPE(1, m->groups, TOKEN_PLACES, m->head), NULL, "v");
}

static gn_tensor token_heads(gn_tensor x, int64_t from, int64_t heads, int64_t head) {
    return gn_reshape(gn_slice(x, 1, from * head, (from + heads) * head, 1), GN_SHAPE(1, heads, 1, head));
}

/* The row before the head: (1, E). computed: the position is not an argument but the result of a kernel. */
static gn_tensor token_row(const token_model *m, int32_t token, int64_t place, bool computed) {
    int64_t e = m->head * TOKEN_HEADS;
    gn_tensor pos = gn_scalar(m->g, GN_I32, (double)place), length = gn_scalar(m->g, GN_I32, (double)place + 1);
    if (computed) length = gn_add_c(pos, 1);
    gn_tensor x = gn_add(gn_embedding(m->w[0], gn_data_copy(m->g, GN_I32, GN_SHAPE(1), &token)),
                         gn_embedding(m->w[1], gn_reshape(pos, GN_SHAPE(1))));
    for (int layer = 0; layer < 2; layer++) {
        gn_tensor h = gn_linear(gn_layernorm(x, m->w[2], m->w[3], 1e-5), m->w[6], m->w[7]), k = m->k, v = m->v;
        if (layer == 0) {
            k = gn_kv_append(m->k, token_heads(h, TOKEN_HEADS, m->groups, m->head), pos);
            v = gn_kv_append(m->v, token_heads(h, TOKEN_HEADS + m->groups, m->groups, m->head), pos);
        }
        gn_attention_desc desc = { .causal = true, .length = length };
        gn_tensor a = layer ? token_heads(h, 0, TOKEN_HEADS, m->head)
                            : gn_attention(token_heads(h, 0, TOKEN_HEADS, m->head), k, v, &desc);
        x = gn_add(x, gn_linear(gn_reshape(a, GN_SHAPE(1, e)), m->w[8], m->w[9]));
        h = gn_gelu_tanh(gn_linear(gn_layernorm(x, m->w[4], m->w[5], 1e-5), m->w[10], m->w[11]));
        x = gn_add(gn_linear(h, m->w[12], m->w[13]), x);
    }
    return x;
}

static gn_tensor token_logits(const token_model *m, gn_tensor row, bool by_columns) {
    gn_tensor x = gn_layernorm(row, m->w[14], GN_NONE, 1e-5);
    return by_columns ? gn_matmul(x, m->w[15]) : gn_matmul(x, gn_transpose(m->w[0], 0, 1));
}

/* $GENIE_CUDA_COMPILE_ONLY: the step's kernels are generated. */
static void token_generate(const token_model *m, int form) {
    gn_tensor row = token_row(m, 0, 0, (form & 2) != 0),
              want[2] = { row, gn_argmax(token_logits(m, row, form & 1), GN_AXES(1), false) };
    gn_realize(want, 2);
    gn_step(m->g);
}

/* One step on both devices: the row before the head agrees, and the GPU's choice is as good as the CPU's best. */
static void token_step(token_model m[2], int32_t token, int64_t place, int form) {
    int64_t e = m[0].head * TOKEN_HEADS, vocab = form & 1 ? TOKEN_VOCAB + 20 : TOKEN_VOCAB, choice = -1;
    void *rows[2] = { calloc((size_t)e, 4), calloc((size_t)e, 4) }, *logits = calloc((size_t)vocab, 4);
    size_t bytes = gn_dtype_bytes(m[0].d);
    double worst = 0, largest = 0, best = -1e30;
    for (int i = 0; i < 2; i++) {
        gn_tensor row = token_row(&m[i], token, place, (form & 2) != 0),
                  chosen = gn_argmax(token_logits(&m[i], row, form & 1), GN_AXES(1), false),
                  all = token_logits(&m[i], row, form & 1);
        if (i) CHECK_RESULT(gn_read(chosen, &choice, sizeof choice), GN_OK);
        else CHECK_RESULT(gn_read(all, logits, (size_t)vocab * bytes), GN_OK);
        CHECK_RESULT(gn_read(row, rows[i], (size_t)e * bytes), GN_OK);
        CHECK_RESULT(gn_step(m[i].g), GN_OK);
    }
    for (int64_t i = 0; i < e; i++) {
        double x = element(m[0].d, rows[0], i), error = fabs(x - element(m[0].d, rows[1], i));
        largest = fabs(x) > largest ? fabs(x) : largest;
        worst = error <= worst ? worst : error;
    }
    for (int64_t i = 0; i < vocab; i++) best = element(m[0].d, logits, i) > best ? element(m[0].d, logits, i) : best;
    if (!(worst <= 16 * eps_of(m[0].d) * largest))
        test_fail(__FILE__, __LINE__, "%s place %lld form %d: a row is %g off, the largest is %g",
                  gn_dtype_name(m[0].d), (long long)place, form, worst, largest);
    if (choice < 0 || choice >= vocab ||
        best - element(m[0].d, logits, choice) > 16 * eps_of(m[0].d) * (fabs(best) + 1))
        test_fail(__FILE__, __LINE__, "%s place %lld form %d: token %lld is not the best", gn_dtype_name(m[0].d),
                  (long long)place, form, (long long)choice);
    free(rows[0]);
    free(rows[1]);
    free(logits);
}

static void tokens_one_by_one_agree_with_the_cpu(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16, GN_F16 };
    static const int64_t places[] = { 0, 1, 2, 3, 40, 41, 150, 199 };
    for (int k = 0; k < 6; k++) {
        token_model m[2] = { { .d = dtypes[k % 3], .head = k < 3 ? 64 : 32, .groups = k < 3 ? 4 : 2 } };
        void *data[TOKEN_WEIGHTS];
        m[1] = m[0];
        for (int i = 0; i < TOKEN_WEIGHTS; i++) {
            gn_shape s = token_shape(m, i);
            data[i] = random_bytes(m->d, s.dims[0] * (s.rank > 1 ? s.dims[1] : 1), s.rank > 1 && i > 1 ? 0.1 : 1);
        }
        token_model_make(&m[0], cpu, data);
        token_model_make(&m[1], gpu, data);
        for (int i = 0; i < TEST_COUNT(places); i++)
            if (compiles_only) token_generate(&m[1], k + i);
            else token_step(m, (int32_t)(i * 37), places[i], k + i);
        for (int i = 0; i < 2; i++) {
            for (int w = 0; w < TOKEN_WEIGHTS; w++) gn_release(m[i].w[w]);
            gn_release(m[i].k);
            gn_release(m[i].v);
        }
        for (int i = 0; i < TOKEN_WEIGHTS; i++) free(data[i]);
    }
}

/* ---- tensors of more than 2^31 elements and 2^32 bytes: made on the device; windows and sums come back ---- */

/* 4.4e9 elements; columns are a multiple of 16 */
enum { LARGE_GIB = 100, WINDOW = 48, WINDOWS = 7, LARGE_ROWS = 110011, LARGE_COLUMNS = 40064 };

static bool large_skips(void) {
    if (!takes_the_gpu()) return true;
    char line[300] = "", why[400];
    const char *gib = gn_list_gpus(0, line, sizeof line) > 0 ? strstr(line, " GiB") : NULL;
    while (gib && gib > line && gib[-1] != ' ') gib--;
    double memory = gib ? atof(gib) : 0;
    snprintf(why, sizeof why, "tensors of 2^32 bytes need a GPU with %d GiB here, and it has %.0f", LARGE_GIB, memory);
    if (memory < LARGE_GIB) test_skip(why);
    return memory < LARGE_GIB;
}

typedef double (*large_fn)(int64_t r, int64_t c);

/* Windows of a (rows,columns) at its ends and around flat positions 2^30, 2^31, 2^32 and 2^32 + 2^31 are what `want`
   says. */
static void check_large(const char *what, gn_tensor t, large_fn want, double tolerance) {
    gn_info info;
    if (!CHECK_RESULT(gn_describe(t, &info), GN_OK) || !CHECK_INT(info.shape.rank, 2)) return;
    const int64_t rows = info.shape.dims[0], columns = info.shape.dims[1], n = rows * columns;
    const int64_t at[WINDOWS] = { 0, 1ll << 30, 1ll << 31, 1ll << 32, (1ll << 32) + (1ll << 31), n / 2, n - 1 };
    static double got[WINDOWS][WINDOW];
    gn_tensor windows[WINDOWS];
    void *outs[WINDOWS];
    size_t bytes[WINDOWS];
    int64_t r[WINDOWS], c[WINDOWS], wide = columns < WINDOW ? columns : WINDOW;
    for (int i = 0; i < WINDOWS; i++) {
        int64_t p = at[i] < n ? at[i] : n - 1, before = p % columns - wide / 2;
        r[i] = p / columns;
        c[i] = before < 0 ? 0 : before > columns - wide ? columns - wide : before;
        windows[i] = gn_cast(gn_slice(gn_slice(t, 0, r[i], r[i] + 1, 1), 1, c[i], c[i] + wide, 1), GN_F64);
        outs[i] = got[i];
        bytes[i] = (size_t)wide * 8;
    }
    memset(got, 0xff, sizeof got);
    gn_result e = gn_read_many(windows, WINDOWS, outs, bytes);
    if (e != GN_OK) test_fail(__FILE__, __LINE__, "%s: %s: %s", what, gn_result_name(e), gn_last_error(gpu)->text);
    for (int i = 0; i < WINDOWS && e == GN_OK; i++)
        for (int64_t k = 0; k < wide; k++) {
            double w = want(r[i], c[i] + k);
            if (fabs(got[i][k] - w) <= tolerance * fabs(w)) continue;
            test_fail(__FILE__, __LINE__, "%s: element (%lld,%lld) of (%lld,%lld) is %.9g, not %.9g", what,
                      (long long)r[i], (long long)(c[i] + k), (long long)rows, (long long)columns, got[i][k], w);
            break;
        }
    gn_step(gpu);
}

static double byte_at(int64_t r, int64_t c) { return (double)((31 * r + 7 * c) & 255); }
static gn_tensor bytes_of(int64_t rows, int64_t columns) {
    gn_tensor r = gn_reshape(gn_arange(gpu, GN_I32, rows, 0, 31), GN_SHAPE(rows, 1)),
              c = gn_arange(gpu, GN_I32, columns, 0, 7);
    return gn_cast(gn_and(gn_add(r, c), gn_full(gpu, GN_I32, GN_SCALAR, 255)), GN_U8);
}

static gn_tensor large_state(int64_t rows, int64_t columns) {
    gn_tensor s = gn_state(gpu, GN_U8, GN_SHAPE(rows, columns), NULL, "large");
    gn_assign(s, bytes_of(rows, columns));
    CHECK_RESULT(gn_step(gpu), GN_OK);
    return s;
}

static double twice_at(int64_t r, int64_t c) { return (double)((int)(2 * byte_at(r, c)) & 255); }
static double flipped_at(int64_t r, int64_t c) {
    return byte_at(LARGE_ROWS - 1 - r, LARGE_COLUMNS - 1 - c) + 1000.0 * (double)r;
}
static double turned_at(int64_t r, int64_t c) { return byte_at(c, r) + 1; }
static double other_steps_at(int64_t r, int64_t c) { return byte_at(r, 3 + 2 * c) - 300; }

static void loops_over_large_tensors_reach_all_of_them(void) {
    if (large_skips()) return;
    gn_tensor s = large_state(LARGE_ROWS, LARGE_COLUMNS);
    check_large("state", s, byte_at, 0);
    check_large("sum of two", gn_add(s, s), twice_at, 0);
    gn_tensor rows = gn_reshape(gn_arange(gpu, GN_F32, LARGE_ROWS, 0, 1000), GN_SHAPE(LARGE_ROWS, 1));
    check_large("flipped, f32", gn_add(gn_cast(gn_flip(s, GN_ALL_AXES), GN_F32), rows), flipped_at, 1e-7);
    check_large("transposed", gn_add_c(gn_cast(gn_transpose(s, 0, 1), GN_I16), 1), turned_at, 0);
    check_large("every second column",
                gn_sub(gn_cast(gn_slice(s, 1, 3, GN_END, 2), GN_I16), gn_full(gpu, GN_I16, GN_SCALAR, 300)),
                other_steps_at, 0);
    gn_release(s);
}

static double joined_at(int64_t r, int64_t c) {
    return c < LARGE_COLUMNS ? byte_at(r, c) : byte_at(r, c - LARGE_COLUMNS + 5);
}
static double stacked_at(int64_t r, int64_t c) {
    return c < LARGE_ROWS ? byte_at(c, r) : byte_at(c - LARGE_ROWS + 7, r);
}
static double padded_at(int64_t r, int64_t c) {
    return r < 1 || r > LARGE_ROWS || c < 3 || c >= LARGE_COLUMNS + 3 ? 9 : byte_at(r - 1, c - 3);
}
static double edges_at(int64_t r, int64_t c) {
    (void)c;
    return byte_at(r < 2 ? 0 : r > LARGE_ROWS + 1 ? LARGE_ROWS - 1 : r - 2, c);
}
static double put_at(int64_t r, int64_t c) { return c % 2 && r % 3 == 2 ? 77 : byte_at(r, c); }

static void copies_of_large_tensors_reach_all_of_them(void) {
    if (large_skips()) return;
    gn_tensor s = large_state(LARGE_ROWS, LARGE_COLUMNS), t = gn_transpose(s, 0, 1);
    check_large("concat", gn_concat((gn_tensor[2]){ s, gn_slice(s, 1, 5, 38, 1) }, 2, 1), joined_at, 0);
    t = gn_transpose(s, 0, 1);
    check_large("concat of transposes", gn_concat((gn_tensor[2]){ t, gn_slice(t, 1, 7, 18, 1) }, 2, 1), stacked_at, 0);
    check_large("pad", gn_pad(s, GN_SHAPE(1, 3), GN_SHAPE(2, 5), GN_PAD_CONSTANT, 9), padded_at, 0);
    check_large("pad by gather", gn_pad(s, GN_SHAPE(2, 0), GN_SHAPE(3, 0), GN_PAD_EDGE, 0), edges_at, 0);
    gn_tensor third = gn_slice(s, 0, 2, GN_END, 3), odd = gn_slice(third, 1, 1, GN_END, 2);
    gn_info info;
    gn_describe(odd, &info);
    gn_tensor part = gn_slice_put(third, gn_full(gpu, GN_U8, info.shape, 77), 1, 1, GN_END, 2);
    gn_assign(s, gn_slice_put(s, part, 0, 2, GN_END, 3));
    CHECK_RESULT(gn_step(gpu), GN_OK);
    check_large("slice_put into a state", s, put_at, 0);
    gn_release(s);
}

/* More than 2^32 bytes up and down, beside each other. */
static void large_arguments_and_results_cross_whole(void) {
    const int64_t n = (1ll << 29) + (1 << 17) + 3;
    char why[200];
    double free_gib = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1073741824.0;
    snprintf(why, sizeof why, "16 GiB of free memory are needed here, and there are %.0f", free_gib);
    if (large_skips()) return;
    if (free_gib < 16) {
        test_skip(why);
        return;
    }
    int64_t *x = malloc((size_t)n * 8), *y = malloc((size_t)n * 8), wrong = 0;
    REQUIRE(x && y);
    for (int64_t i = 0; i < n; i++) x[i] = i * 0x3779b97f4;
    CHECK_RESULT(gn_read(gn_add_c(gn_data(gpu, GN_I64, GN_SHAPE(n), x), 1), y, (size_t)n * 8), GN_OK);
    for (int64_t i = 0; i < n; i++) wrong += y[i] != x[i] + 1;
    CHECK_INT(wrong, 0);
    gn_step(gpu);
    free(x);
    free(y);
}

/* How many of n steps of `by` from 0 on end in each residue of 256. */
static void residues(int64_t n, int by, int64_t *out) {
    memset(out, 0, 256 * sizeof *out);
    for (int i = 0; i < 256; i++) out[i * by & 255] += n / 256 + (i < n % 256);
}

static double sum_by_hand(int64_t rows, int64_t columns) {
    int64_t r[256], c[256];
    double sum = 0;
    residues(rows, 31, r);
    residues(columns, 7, c);
    for (int i = 0; i < 256; i++)
        for (int k = 0; k < 256; k++) sum += (double)r[i] * (double)c[k] * (double)((i + k) & 255);
    return sum;
}

static double sum_of_row_at(int64_t r, int64_t c) {
    int64_t count[256];
    double sum = 0;
    (void)c;
    residues(LARGE_COLUMNS, 7, count);
    for (int i = 0; i < 256; i++) sum += (double)count[i] * (double)((i + 31 * r) & 255);
    return sum;
}
static double sum_of_column_at(int64_t r, int64_t c) {
    int64_t count[256];
    double sum = 0;
    (void)r;
    residues(LARGE_ROWS, 31, count);
    for (int i = 0; i < 256; i++) sum += (double)count[i] * (double)((i + 7 * c) & 255);
    return sum;
}
static double mean_of_column_at(int64_t r, int64_t c) { return sum_of_column_at(r, c) / LARGE_ROWS; }

static void reductions_of_large_tensors_agree_with_sums_by_hand(void) {
    if (large_skips()) return;
    const int64_t r = LARGE_ROWS - 2, c = LARGE_COLUMNS - 5, n = (int64_t)LARGE_ROWS * LARGE_COLUMNS;
    int64_t sum = 0, best = 0, least = 0, first = 0, found[2][2] = { { 0 } };
    float mean = 0, top = 0;
    gn_tensor s = large_state(LARGE_ROWS, LARGE_COLUMNS), floats = gn_cast(s, GN_F32);
    gn_tensor all[] = { gn_sum(s, GN_ALL_AXES, false), gn_mean(floats, GN_ALL_AXES, false) };
    CHECK_RESULT(gn_read_many(all, 2, (void *[]){ &sum, &mean }, (size_t[]){ 8, 4 }), GN_OK);
    CHECK((double)sum == sum_by_hand(LARGE_ROWS, LARGE_COLUMNS));
    CHECK_NEAR((double)mean, sum_by_hand(LARGE_ROWS, LARGE_COLUMNS) / (double)n, 1e-4 * mean);
    gn_step(gpu);
    check_large("sums of rows", gn_sum(s, GN_AXES(1), true), sum_of_row_at, 0);
    check_large("sums of columns", gn_sum(s, GN_AXES(0), true), sum_of_column_at, 0);
    check_large("means of columns", gn_mean(gn_cast(s, GN_F32), GN_AXES(0), true), mean_of_column_at, 1e-5);

    gn_tensor ri = gn_reshape(gn_arange(gpu, GN_I32, LARGE_ROWS, 0, 1), GN_SHAPE(LARGE_ROWS, 1)),
              ci = gn_arange(gpu, GN_I32, LARGE_COLUMNS, 0, 1);
    gn_tensor here = gn_and(gn_eq(ri, gn_scalar(gpu, GN_I32, (double)r)), gn_eq(ci, gn_scalar(gpu, GN_I32, (double)c)));
    gn_tensor one = gn_reshape(here, GN_SHAPE(n)),
              other = gn_where(here, gn_full(gpu, GN_F32, GN_SCALAR, -5), gn_cast(here, GN_F32));
    gn_tensor places = gn_nonzero(here, 2);
    gn_tensor bests[] = { gn_argmax(gn_cast(one, GN_U8), GN_ALL_AXES, false), gn_argmin(other, GN_ALL_AXES, false),
                          gn_argmax(gn_reshape(gn_cast(one, GN_U8), GN_SHAPE(n, 1)), GN_AXES(0), false), places,
                          gn_min(other, GN_ALL_AXES, false) };
    CHECK_RESULT(gn_read_many(bests, 5, (void *[]){ &best, &least, &first, found, &top }, (size_t[]){ 8, 8, 8, 32, 4 }),
                 GN_OK);
    CHECK_INT(best, r * LARGE_COLUMNS + c);
    CHECK_INT(least, r * LARGE_COLUMNS + c);
    CHECK_INT(first, r * LARGE_COLUMNS + c);
    CHECK(found[0][0] == r && found[0][1] == c && found[1][0] == -1 && found[1][1] == -1);
    CHECK(top == -5);
    gn_step(gpu);

    int64_t after[2] = { 0 }, whole = (1ll << 31) / LARGE_COLUMNS;
    gn_tensor run = gn_cumsum(gn_reshape(gn_slice(s, 0, 0, 60000, 1), GN_SHAPE(60000ll * LARGE_COLUMNS)), 0),
              ends[2] = { gn_slice(run, 0, (1ll << 31) - 1, 1ll << 31, 1), gn_slice(run, 0, -1, GN_END, 1) };
    CHECK_RESULT(gn_read_many(ends, 2, (void *[]){ &after[0], &after[1] }, (size_t[]){ 8, 8 }), GN_OK);
    double part = sum_by_hand(whole, LARGE_COLUMNS);
    for (int64_t k = 0; k < (1ll << 31) - whole * LARGE_COLUMNS; k++) part += byte_at(whole, k);
    CHECK((double)after[0] == part && (double)after[1] == sum_by_hand(60000, LARGE_COLUMNS));
    gn_step(gpu);
    gn_release(s);
}

enum { PICKED = 110001 };
static double picked_at(int64_t r, int64_t c) { return byte_at((LARGE_ROWS - 1) - r * 7 % LARGE_ROWS, c); }
static double picked_column_at(int64_t r, int64_t c) { return byte_at(r, LARGE_COLUMNS - 1 - c); }
static double scattered_at(int64_t r, int64_t c) {
    return r >= LARGE_ROWS - 4 && c % 2 == 0 ? 100 + (double)(r - (LARGE_ROWS - 4)) : byte_at(r, c);
}
static double hot_at(int64_t r, int64_t c) { return c == r * 5 % 66000; }
static double cache_at(int64_t r, int64_t c) {
    return r >= 33600000 - 3 ? (double)(r - (33600000 - 3)) * 128 + (double)c + 1 : 0;
}

static void indices_of_large_tensors_reach_all_of_them(void) {
    if (large_skips()) return;
    gn_tensor s = large_state(LARGE_ROWS, LARGE_COLUMNS);
    static int64_t ids[PICKED], hot[66000];
    static float rows[3 * 128];
    for (int64_t i = 0; i < PICKED; i++) ids[i] = LARGE_ROWS - 1 - i * 7 % LARGE_ROWS;
    for (int64_t i = 0; i < 66000; i++) hot[i] = i * 5 % 66000;
    for (int i = 0; i < 3 * 128; i++) rows[i] = (float)(i + 1);
    check_large("embedding", gn_embedding(s, gn_data(gpu, GN_I64, GN_SHAPE(PICKED), ids)), picked_at, 0);
    check_large("index_select", gn_index_select(s, 1, gn_arange(gpu, GN_I64, LARGE_COLUMNS, LARGE_COLUMNS - 1, -1)),
                picked_column_at, 0);
    check_large("one_hot", gn_one_hot(gn_data(gpu, GN_I64, GN_SHAPE(66000), hot), 66000, GN_U8), hot_at, 0);
    const int64_t far = (1ll << 31) + 77; /* in a row longer than 2^31 */
    uint8_t seen[2] = { 0 };
    gn_tensor two = gn_reshape(gn_slice(s, 0, 0, 110010, 1), GN_SHAPE(2, 55005ll * LARGE_COLUMNS)),
              row = gn_embedding(two, gn_reshape(gn_scalar(gpu, GN_I64, 1), GN_SHAPE(1)));
    CHECK_RESULT(gn_read(gn_slice(gn_reshape(row, GN_SHAPE(-1)), 0, far, far + 2, 1), seen, 2), GN_OK);
    for (int i = 0; i < 2; i++)
        CHECK((double)seen[i] == byte_at(55005 + (far + i) / LARGE_COLUMNS, (far + i) % LARGE_COLUMNS));
    gn_step(gpu);

    gn_tensor where = gn_broadcast(gn_reshape(gn_arange(gpu, GN_I32, 4, LARGE_ROWS - 4, 1), GN_SHAPE(4, 1)),
                                   GN_SHAPE(4, LARGE_COLUMNS));
    gn_tensor what = gn_broadcast(gn_reshape(gn_arange(gpu, GN_U8, 4, 100, 1), GN_SHAPE(4, 1)),
                                  GN_SHAPE(4, LARGE_COLUMNS)),
              last = gn_slice(s, 0, -4, GN_END, 1);
    gn_tensor even =
        gn_eq_c(gn_remainder(gn_arange(gpu, GN_I32, LARGE_COLUMNS, 0, 1), gn_full(gpu, GN_I32, GN_SCALAR, 2)), 0);
    gn_assign(s, gn_scatter(s, 0, where, gn_where(even, what, last)));
    CHECK_RESULT(gn_step(gpu), GN_OK);
    check_large("scatter into a state", s, scattered_at, 0);
    gn_release(s);

    gn_tensor cache = gn_state(gpu, GN_F16, GN_SHAPE(1, 1, 33600000, 128), NULL, "cache"); /* 4.3e9 elements */
    gn_kv_append(cache, gn_cast(gn_data(gpu, GN_F32, GN_SHAPE(1, 1, 3, 128), rows), GN_F16),
                 gn_scalar(gpu, GN_I64, 33600000 - 3));
    CHECK_RESULT(gn_step(gpu), GN_OK);
    check_large("append in place", gn_reshape(cache, GN_SHAPE(33600000, 128)), cache_at, 0);
    gn_release(cache);
}

/* Rows of 0, 1, 2 and 3 in turn, each with its own number added: exponentials and moments are known. */
enum { LONG_ROW = (1 << 30) + 4096 };
static const int64_t long_columns = (1ll << 31) + 3 * 4096;
static gn_tensor turns(gn_dtype d, int64_t rows, int64_t columns) {
    gn_tensor c = gn_remainder(gn_arange(gpu, GN_I64, columns, 0, 1), gn_full(gpu, GN_I64, GN_SCALAR, 4));
    return gn_add(gn_cast(c, d), gn_reshape(gn_cast(gn_arange(gpu, GN_I32, rows, 0, 1), d), GN_SHAPE(rows, 1)));
}
static double softmax_at(int64_t r, int64_t c) {
    (void)r;
    return exp((double)(c % 4)) / ((double)(long_columns / 4) * (1 + exp(1) + exp(2) + exp(3)));
}
static double log_softmax_at(int64_t r, int64_t c) { return log(softmax_at(r, c)); }
static double even_at(int64_t r, int64_t c) {
    (void)r;
    (void)c;
    return 1.0 / 1024;
}
static double layernorm_at(int64_t r, int64_t c) {
    (void)r;
    return ((double)(c % 4) - 1.5) / sqrt(1.25 + 1e-5);
}

static void rows_of_large_tensors_agree_with_double(void) {
    if (large_skips()) return;
    float loss = 0;
    int64_t target = long_columns - 1;
    check_large("softmax", gn_softmax(turns(GN_F32, 1, long_columns), 1), softmax_at, 1e-5);
    check_large("log_softmax", gn_log_softmax(turns(GN_F32, 1, long_columns), 1), log_softmax_at, 1e-6);
    check_large("softmax of many rows",
                gn_softmax(gn_broadcast(gn_full(gpu, GN_F16, GN_SCALAR, 3), GN_SHAPE((1 << 21) + 5, 1024)), 1), even_at,
                0);
    check_large("layernorm", gn_layernorm(turns(GN_F32, 3, LONG_ROW), GN_NONE, GN_NONE, 1e-5), layernorm_at, 1e-5);
    CHECK_RESULT(gn_read(gn_cross_entropy(turns(GN_F32, 1, long_columns), gn_data(gpu, GN_I64, GN_SHAPE(1), &target)),
                         &loss, 4),
                 GN_OK);
    CHECK_NEAR((double)loss, -log_softmax_at(0, target), 1e-6 * loss);
    gn_step(gpu);
}

/* Counters of 64 bits: what lies 2^32 on is drawn anew. */
static void random_numbers_of_large_tensors_do_not_repeat(void) {
    enum { N = 256 };
    if (large_skips()) return;
    uint16_t got[3][N];
    const int64_t n = (1ll << 32) + (1 << 20);
    gn_tensor x = gn_random_uniform(gpu, GN_F16, GN_SHAPE(n));
    gn_tensor t[3] = { gn_slice(x, 0, 0, N, 1), gn_slice(x, 0, 1ll << 31, (1ll << 31) + N, 1),
                       gn_slice(x, 0, 1ll << 32, (1ll << 32) + N, 1) };
    float mean = 0;
    CHECK_RESULT(gn_read_many(t, 3, (void *[]){ got[0], got[1], got[2] },
                              (size_t[]){ sizeof got[0], sizeof got[0], sizeof got[0] }),
                 GN_OK);
    int same = 0;
    for (int i = 0; i < N; i++) same += (got[0][i] == got[1][i]) + (got[0][i] == got[2][i]) + (got[1][i] == got[2][i]);
    CHECK(same < 20);
    gn_step(gpu);
    CHECK_RESULT(gn_read(gn_mean(gn_cast(gn_random_uniform(gpu, GN_F16, GN_SHAPE(n)), GN_F32), GN_ALL_AXES, false),
                         &mean, 4),
                 GN_OK);
    CHECK_NEAR((double)mean, 0.5 - 1.0 / 4096, 1e-4);
    gn_step(gpu);
}

/* a (m,k) with a[i][l] = (i + l) mod 5 - 2, b (k,n) with b[l][j] = (3 l + j) mod 7 - 3: every 35 products add up to 0,
   all sums are exact. */
static int64_t product_k;
static double product_at(int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t l = 0; l < product_k % 35; l++) sum += (double)((r + l) % 5 - 2) * (double)((3 * l + c) % 7 - 3);
    return sum;
}
static gn_tensor product_side(int64_t rows, int64_t columns, int by_row, int mod, int less) {
    gn_tensor r = gn_reshape(gn_arange(gpu, GN_I32, rows, 0, by_row), GN_SHAPE(rows, 1)),
              m = gn_full(gpu, GN_I32, GN_SCALAR, mod);
    return gn_cast(gn_sub(gn_remainder(gn_add(r, gn_arange(gpu, GN_I32, columns, 0, 1)), m),
                          gn_full(gpu, GN_I32, GN_SCALAR, less)),
                   GN_F32);
}
static void large_product(const char *what, int64_t m, int64_t n, int64_t k) {
    product_k = k;
    check_large(what, gn_matmul(product_side(m, k, 1, 5, 2), product_side(k, n, 3, 7, 3)), product_at, 0);
}

static void long_products_of_large_tensors_reach_all_of_them(void) {
    if (large_skips()) return;
    large_product("one row, columns of 2.2e9", 1, 33600000, 64);
    large_product("k of 3.4e7", 64, 64, 33600000);
}

/* ---- filters that are packed once ---- */

enum { PACK_C = 24, PACK_SIDE = 6, PACK_FILTERS = PACK_C * PACK_C * 9, PACK_IMAGE = PACK_C * PACK_SIDE * PACK_SIDE };

/* Two convs, one after the other, of `images`; their sum, as the CPU and as g compute it, is alike. */
static void packed_step(gn_ctx *g, gn_tensor *w, void *const *data, int images, const void *x) {
    gn_shape shape = GN_SHAPE(images, PACK_C, PACK_SIDE, PACK_SIDE), filters = GN_SHAPE(PACK_C, PACK_C, 3, 3);
    const gn_conv_desc d = { .before = { 1, 1 }, .after = { 1, 1 } };
    static float out[2][3 * PACK_IMAGE];
    double worst = 0;
    for (int k = 0; k < 2; k++) {
        gn_ctx *at = k ? g : cpu;
        gn_tensor y = gn_data(at, GN_BF16, shape, x);
        for (int i = 0; i < 2; i++) y = gn_conv(y, k ? w[i] : gn_data(at, GN_BF16, filters, data[i]), GN_NONE, &d);
        gn_result r = gn_read(gn_cast(y, GN_F32), out[k], (size_t)(images * PACK_IMAGE) * 4);
        if (!CHECK_RESULT(r, GN_OK)) printf("%s\n", gn_last_error(at)->text);
        gn_step(at);
    }
    for (int i = 0; i < images * PACK_IMAGE; i++)
        worst = fmax(worst, fabs((double)out[0][i] - (double)out[1][i]) / (1 + fabs((double)out[0][i])));
    if (!(worst <= 0.02)) test_fail(__FILE__, __LINE__, "%d images: %g off", images, worst);
}

static gn_stats packed_stats(gn_ctx *g) {
    gn_stats s;
    gn_get_stats(g, &s);
    return s;
}

static void filters_of_a_weight_are_packed_once(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    gn_ctx *g = open_with("0", "1");
    gn_shape shape = GN_SHAPE(PACK_C, PACK_C, 3, 3);
    void *x = random_bytes(GN_BF16, 3 * PACK_IMAGE, 1), *data[3];
    gn_tensor w[2];
    uint64_t ran[4], bytes;
    for (int i = 0; i < 3; i++) data[i] = random_bytes(GN_BF16, PACK_FILTERS, 0.1);
    for (int i = 0; i < 2; i++) w[i] = gn_weight(g, GN_BF16, shape, data[i], "filters");
    for (int i = 0; i < 4; i++) {
        packed_step(g, w, data, 2, x);
        ran[i] = packed_stats(g).kernels_run;
    }
    CHECK(ran[0] - (ran[1] - ran[0]) == 2 && ran[2] - ran[1] == ran[1] - ran[0] && ran[3] - ran[2] == ran[1] - ran[0]);
    packed_step(g, w, data, 3, x); /* another plan, the same filters */
    CHECK(packed_stats(g).filters_packed == 2 && packed_stats(g).filters_repacked == 0);
    bytes = packed_stats(g).device_bytes;
    gn_release(w[0]);
    gn_step(g);
    CHECK(bytes - packed_stats(g).device_bytes >= 2 * 2 * PACK_FILTERS); /* the weight and what was packed of it */
    w[0] = gn_weight(g, GN_BF16, shape, data[2], "other filters");
    for (int i = 0; i < 3; i++) packed_step(g, w, (void *[2]){ data[2], data[1] }, 2, x);
    CHECK(packed_stats(g).filters_packed == 3 && packed_stats(g).filters_repacked == 0);
    gn_release(w[0]);
    w[0] = gn_state(g, GN_BF16, shape, data[0], "filters that may change"); /* packed in each run */
    for (int i = 0; i < 3; i++) packed_step(g, w, data, 2, x);
    CHECK(packed_stats(g).filters_packed == 3 && packed_stats(g).filters_repacked == 0);
    gn_release(w[0]);
    gn_release(w[1]);
    gn_close(g);
    for (int i = 0; i < 3; i++) free(data[i]);
    free(x);
}

/* Blocks of two convs with a residual each, c images of a channels, side b: what they hand on lies as rows of
   channels. */
static gn_tensor build_residuals(gn_ctx *g, const job *j, void **data) {
    const gn_shape shape = GN_SHAPE(j->c, j->a, j->b, j->b), near = GN_SHAPE(j->a, j->a, 3, 3),
                   one = GN_SHAPE(j->a, j->a, 1, 1);
    const gn_conv_desc relu = { .clamps = true, .most = INFINITY };
    gn_conv_desc adds = { .before = { 1, 1 }, .after = { 1, 1 } };
    gn_tensor bias = gn_data(g, j->d, GN_SHAPE(j->a), data[4]),
              h = gn_conv(gn_data(g, j->d, shape, data[0]), gn_data(g, j->d, near, data[1]), GN_NONE, &adds);
    for (int i = 0; i < 3; i++) {
        gn_tensor t = gn_conv(h, gn_data(g, j->d, one, data[2]), bias, &relu);
        adds.residual = h;
        h = gn_conv(t, gn_data(g, j->d, near, data[3]), i == 1 ? bias : GN_NONE, &adds);
    }
    return h;
}

/* Of an infinite filter value: places whose windows lie inside are as on the CPU, those at a border may be NaN, and the
   other filters' results do not know of it. */
static void an_infinite_filter_stays_at_its_border(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    enum { C = 64, SIDE = 8, PLACES = SIDE * SIDE };
    static float x[C * PLACES], w[C * C * 9], out[2][C * PLACES];
    const gn_conv_desc d = { .before = { 1, 1 }, .after = { 1, 1 } };
    for (int i = 0; i < C * PLACES; i++) x[i] = (float)(1 + i % 3);
    for (int i = 0; i < C * C * 9; i++) w[i] = (float)(i % 5 - 2) / 64;
    w[5 * C * 9 + 7 * 9] = INFINITY; /* filter 5, channel 7, the first tap */
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_tensor y = gn_conv(gn_cast(gn_data(g, GN_F32, GN_SHAPE(1, C, SIDE, SIDE), x), GN_BF16),
                              gn_cast(gn_data(g, GN_F32, GN_SHAPE(C, C, 3, 3), w), GN_BF16), GN_NONE, &d);
        CHECK_RESULT(gn_read(gn_cast(y, GN_F32), out[k], sizeof out[k]), GN_OK);
        gn_step(g);
    }
    for (int i = 0; i < C * PLACES; i++) {
        bool border = i % PLACES < SIDE || i % SIDE == 0, near = fabsf(out[0][i] - out[1][i]) <= 0.25f;
        if (i / PLACES != 5) CHECK(near);
        else if (border) CHECK(near || isnan(out[1][i]));
        else CHECK(out[0][i] == INFINITY && out[1][i] == INFINITY);
    }
}

static void convs_with_residuals_agree_with_the_cpu(void) {
    static const job jobs[] = {
        { GN_BF16, 64, 7, 3, 0, 0 },   { GN_BF16, 72, 8, 2, 0, 0 }, { GN_F16, 40, 9, 2, 0, 0 },
        { GN_BF16, 128, 14, 2, 0, 0 }, { GN_F16, 192, 5, 1, 0, 0 }, { GN_BF16, 20, 6, 2, 0, 0 }
    };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        const int64_t n[] = { j->c * j->a * j->b * j->b, j->a * j->a * 9, j->a * j->a, j->a * j->a * 9, j->a };
        void *data[5];
        double scale = 1 / sqrt((double)j->a);
        for (int k = 0; k < 5; k++)
            data[k] = random_bytes(j->d, n[k], k == 2 ? 1.5 * scale : k == 1 || k == 3 ? scale / 2 : 1);
        compare("convs with residuals", build_residuals, j, data, 0.02);
        for (int k = 0; k < 5; k++) free(data[k]);
    }
}

/* Two pictures of a channels, side b, to 24 filters of c by c taps, stride e. */
static gn_tensor build_few_channels(gn_ctx *g, const job *j, void **data) {
    const gn_conv_desc d = { .stride = { j->e, j->e }, .before = { j->c / 2, j->c / 2 }, .after = { j->c / 3, 0 } };
    return gn_conv(gn_data(g, j->d, GN_SHAPE(2, j->a, j->b, j->b + 3), data[0]),
                   gn_data(g, j->d, GN_SHAPE(24, j->a, j->c, j->c), data[1]), gn_data(g, j->d, GN_SHAPE(24), data[2]),
                   &d);
}

static void convs_of_few_channels_agree_with_the_cpu(void) {
    static const job jobs[] = { { GN_BF16, 3, 23, 7, 2, 0 }, { GN_F16, 3, 16, 4, 4, 0 },   { GN_BF16, 1, 17, 5, 2, 0 },
                                { GN_BF16, 2, 11, 3, 2, 0 }, { GN_F16, 3, 33, 16, 16, 0 }, { GN_BF16, 5, 9, 9, 8, 0 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        void *data[] = { random_bytes(j->d, 2 * j->a * j->b * (j->b + 3), 1),
                         random_bytes(j->d, 24 * j->a * j->c * j->c, 1 / sqrt((double)(j->a * j->c * j->c))),
                         random_bytes(j->d, 24, 1) };
        compare("convs of few channels", build_few_channels, j, data, 0.02);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

/* c images of a channels, side b: a conv of one tap, a pool, and a block of two convs past which what was pooled goes
   through a conv of its own. */
static gn_tensor build_pooled(gn_ctx *g, const job *j, void **data) {
    const gn_shape near = GN_SHAPE(j->a, j->a, 3, 3), one = GN_SHAPE(j->a, j->a, 1, 1);
    const gn_conv_desc plain = { 0 }, relu = { .clamps = true, .most = INFINITY };
    const gn_pool_desc pool = { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } },
                       mean = { .kernel = { 2, 2 }, .stride = { 1, 1 }, .kind = GN_POOL_AVERAGE };
    gn_conv_desc adds = { .before = { 1, 1 }, .after = { 1, 1 } };
    gn_tensor bias = gn_data(g, j->d, GN_SHAPE(j->a), data[3]), w = gn_data(g, j->d, one, data[1]),
              x = gn_data(g, j->d, GN_SHAPE(j->c, j->a, j->b, j->b), data[0]),
              h = gn_pool(gn_conv(x, w, bias, &relu), &pool);
    adds.residual = gn_conv(h, w, GN_NONE, &plain);
    h = gn_conv(gn_conv(h, w, bias, &relu), gn_data(g, j->d, near, data[2]), bias, &adds);
    return gn_conv(gn_pool(h, &mean), w, GN_NONE, &plain);
}

static void convs_around_pools_agree_with_the_cpu(void) {
    static const job jobs[] = { { GN_BF16, 128, 12, 4, 0, 0 },
                                { GN_F16, 64, 9, 3, 0, 0 },
                                { GN_BF16, 24, 8, 2, 0, 0 },
                                { GN_BF16, 20, 7, 2, 0, 0 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        const int64_t n[] = { j->c * j->a * j->b * j->b, j->a * j->a, j->a * j->a * 9, j->a };
        void *data[4];
        double scale = 1 / sqrt((double)j->a);
        for (int k = 0; k < 4; k++) data[k] = random_bytes(j->d, n[k], k == 1 ? 1.5 * scale : k == 2 ? scale / 2 : 1);
        compare("convs around pools", build_pooled, j, data, 0.02);
        for (int k = 0; k < 4; k++) free(data[k]);
    }
}

/* ---- pools of rows of channels ---- */

static const struct rows_pool {
    gn_pool_kind kind;
    int64_t channels, dims[3], kernel[3], stride[3], dilation[3], pad[3];
    int axes;
    bool up; /* ceil mode */
} rows_pools[] = {
    { GN_POOL_MAX, 64, { 13, 20 }, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, 2, false },
    { GN_POOL_MAX, 24, { 12, 8 }, { 2, 2 }, { 2, 2 }, { 1, 1 }, { 0, 0 }, 2, false },
    { GN_POOL_MAX, 8, { 11, 9 }, { 3, 2 }, { 1, 3 }, { 1, 2 }, { 1, 1 }, 2, true },
    { GN_POOL_MAX, 16, { 17, 6 }, { 4, 1 }, { 3, 1 }, { 2, 1 }, { 2, 0 }, 2, true },
    { GN_POOL_MAX, 40, { 5, 7, 6 }, { 2, 3, 3 }, { 1, 2, 1 }, { 1, 1, 1 }, { 1, 1, 0 }, 3, false },
    { GN_POOL_MAX, 8, { 19 }, { 5 }, { 2 }, { 1 }, { 2 }, 1, false },
    { GN_POOL_AVERAGE, 16, { 9, 10 }, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, 2, true },
};

/* Numbers, few of them different, zeros of both signs, infinities and what is no number. */
static uint16_t odd_bf16(void) {
    static const uint16_t odd[] = { 0, 0x8000, 0x7fc0, 0xff80, 0x7f80 };
    const uint64_t r = test_random();
    return r % 16 ? (uint16_t)(0x3f80 | (r >> 8 & 0x8060)) : odd[(r >> 8) % (r % 32 ? 2 : TEST_COUNT(odd))];
}

static void pool_rows_of(const struct rows_pool *f) {
    enum { IMAGES = 3 };
    gn_pool_desc d = { .kind = f->kind, .ceiling = f->up };
    gn_shape rows = { f->axes + 2, { IMAGES } };
    gn_axes in = { f->axes + 2, { 0, f->axes + 1 } }, out = { f->axes + 2, { 0 } };
    int64_t n = IMAGES * f->channels, places = 1;
    uint16_t *result[2] = { NULL };
    for (int i = 0; i < f->axes; i++) {
        d.kernel[i] = f->kernel[i];
        d.stride[i] = f->stride[i];
        d.dilation[i] = f->dilation[i];
        d.before[i] = d.after[i] = f->pad[i];
        rows.dims[i + 1] = f->dims[i];
        in.axis[i + 2] = i + 1;
        out.axis[i + 1] = i + 2;
        n *= f->dims[i];
    }
    rows.dims[f->axes + 1] = f->channels;
    out.axis[f->axes + 1] = 1;
    uint16_t *x = (uint16_t *)malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++) x[i] = odd_bf16();
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_info info;
        gn_tensor y = gn_permute(gn_pool(gn_permute(gn_data(g, GN_BF16, rows, x), in), &d), out);
        if (!CHECK_RESULT(gn_describe(y, &info), GN_OK)) break;
        places = 1;
        for (int i = 0; i < info.shape.rank; i++) places *= info.shape.dims[i];
        result[k] = (uint16_t *)calloc((size_t)places, 2);
        gn_result s = gn_read(y, result[k], (size_t)places * 2);
        if (!compiles_only) CHECK_RESULT(s, GN_OK);
        gn_step(g);
    }
    for (int64_t i = 0; i < places && result[1] && !compiles_only; i++) {
        bool none[2] = { (result[0][i] & 0x7fff) > 0x7f80, (result[1][i] & 0x7fff) > 0x7f80 };
        if (result[0][i] == result[1][i] || (none[0] && none[1])) continue;
        test_fail(__FILE__, __LINE__, "pool %d: element %lld is %04x, not %04x", (int)(f - rows_pools), (long long)i,
                  result[1][i], result[0][i]);
        break;
    }
    free(x);
    free(result[0]);
    free(result[1]);
}

static void pools_of_rows_have_the_bits_of_the_cpu(void) {
    for (int i = 0; i < TEST_COUNT(rows_pools); i++) pool_rows_of(&rows_pools[i]);
}

/* ---- values and positions of a maximum pool ---- */

static const struct pool_pair_form {
    gn_dtype d;
    gn_shape x;
    gn_pool_desc how;
} pool_pair_forms[] = {
    { GN_F32,
      { 4, { 3, 5, 13, 38 } },
      { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } } },
    { GN_BF16, { 4, { 2, 8, 16, 32 } }, { .kernel = { 2, 2 }, .stride = { 2, 2 } } },
    { GN_F16, { 4, { 1, 3, 7, 70 } }, { .kernel = { 1, 5 }, .before = { 0, 2 }, .after = { 0, 2 } } },
    { GN_F64, { 5, { 1, 2, 4, 5, 6 } }, { .kernel = { 2, 3, 2 }, .stride = { 2, 1, 2 }, .before = { 1, 1, 0 } } },
    { GN_F32,
      { 4, { 1, 2, 9, 9 } },
      { .kernel = { 2, 3 }, .dilation = { 3, 2 }, .before = { 1, 0 }, .stride = { 1, 2 } } },
    { GN_F32, { 4, { 2, 3, 7, 10 } }, { .kernel = { 3, 4 }, .adaptive = true } },
    { GN_BF16, { 3, { 2, 3, 999 } }, { .kernel = { 40 }, .stride = { 7 }, .ceiling = true } },
};

/* turned: x lies as rows of channels, and so do the values, which may take a kernel of their own. */
static void pool_pair_of(const struct pool_pair_form *f, bool turned, bool positions_first) {
    enum { MOST = 1 << 14 };
    static double got[2][2][MOST];
    int64_t all = 1, places = 1;
    uint64_t kernels = 0;
    for (int i = 0; i < f->x.rank; i++) all *= f->x.dims[i];
    void *data = random_bytes(f->d, all, 1);
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_stats before, after;
        gn_info info;
        gn_pool_desc d = f->how;
        gn_shape lies = f->x;
        if (turned) lies = GN_SHAPE(f->x.dims[0], f->x.dims[2], f->x.dims[3], f->x.dims[1]);
        gn_tensor x = gn_data(g, f->d, lies, data), y[2];
        if (turned) x = gn_permute(x, GN_AXES(0, 3, 1, 2));
        for (int i = 0; i < 2; i++) {
            int which = positions_first ? 1 - i : i;
            d.kind = which ? GN_POOL_INDEX : GN_POOL_MAX;
            y[which] = gn_pool(x, &d);
        }
        if (!CHECK_RESULT(gn_describe(y[0], &info), GN_OK)) break;
        places = 1;
        for (int i = 0; i < info.shape.rank; i++) places *= info.shape.dims[i];
        CHECK(places <= MOST);
        gn_get_stats(g, &before);
        gn_result r = gn_realize(y, 2);
        gn_get_stats(g, &after);
        if (!compiles_only) CHECK_RESULT(r, GN_OK);
        kernels = after.kernels_run - before.kernels_run;
        for (int i = 0; i < 2 && !compiles_only; i++)
            CHECK_RESULT(gn_read(gn_cast(y[i], GN_F64), got[k][i], (size_t)places * 8), GN_OK);
        gn_step(g);
    }
    if (!compiles_only && !turned && !getenv("GENIE_CUDA_FUSE")) CHECK(kernels == 1);
    for (int i = 0; i < 2 && !compiles_only; i++)
        if (memcmp(got[0][i], got[1][i], (size_t)places * 8) != 0)
            test_fail(__FILE__, __LINE__, "pool %d: other %s than on the CPU", (int)(f - pool_pair_forms),
                      i ? "positions" : "values");
    free(data);
}

static void values_and_positions_of_a_pool_are_one_kernel(void) {
    for (int i = 0; i < TEST_COUNT(pool_pair_forms); i++)
        for (int k = 0; k < 4; k++)
            if (!(k & 1) || pool_pair_forms[i].x.rank == 4) pool_pair_of(&pool_pair_forms[i], k & 1, k & 2);
}

/* ---- what is read as it lies ---- */

/* A norm in f32 of x, scale and shift in 16 bits: none of them is widened by a kernel of its own. */
static void values_of_16_bits_are_widened_where_they_are_read(void) {
    enum { N = 2, C = 8, SIDE = 12, ALL = N * C * SIDE * SIDE };
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    void *data[3] = { random_bytes(GN_BF16, ALL, 1), random_bytes(GN_BF16, C, 1), random_bytes(GN_BF16, C, 1) };
    static uint16_t out[2][ALL];
    uint64_t kernels = 0;
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_stats before, after;
        gn_tensor in[3];
        for (int i = 0; i < 3; i++) in[i] = gn_data(g, GN_BF16, i ? GN_SHAPE(C) : GN_SHAPE(N, C, SIDE, SIDE), data[i]);
        gn_tensor y = gn_group_norm(in[0], 2, in[1], in[2], 1e-5);
        gn_get_stats(g, &before);
        CHECK_RESULT(gn_read(y, out[k], sizeof out[k]), GN_OK);
        gn_get_stats(g, &after);
        gn_step(g);
        kernels = after.kernels_run - before.kernels_run;
    }
    CHECK(kernels == 1);
    for (int i = 0; i < ALL; i++)
        if (fabs(element(GN_BF16, out[0], i) - element(GN_BF16, out[1], i)) >
            0.02 * (1 + fabs(element(GN_BF16, out[0], i)))) {
            test_fail(__FILE__, __LINE__, "element %d is %g, not %g", i, element(GN_BF16, out[1], i),
                      element(GN_BF16, out[0], i));
            break;
        }
    for (int i = 0; i < 3; i++) free(data[i]);
}

/* Rows of a small table in 16 bits, each by rows of its own: where they lie is counted in bytes of it. */
static gn_tensor build_widened_rows(gn_ctx *g, const job *j, void **data) {
    gn_tensor table = gn_cast(gn_slice(gn_data(g, j->d, GN_SHAPE(j->a, j->b), data[0]), 0, 1, j->a - 1, 1), GN_F32),
              sum = gn_cast(gn_data(g, j->d, GN_SHAPE(j->c, j->b), data[1]), GN_F32);
    for (int64_t i = 0; i < j->a - 2; i++)
        sum = gn_add(gn_mul_c(gn_sum(gn_mul(sum, gn_slice(table, 0, i, i + 1, 1)), GN_AXES(1), true), 0.1), sum);
    return gn_mul(sum, gn_slice(table, 0, 0, 1, 1));
}

static void rows_of_a_widened_table_agree_with_the_cpu(void) {
    static const job jobs[] = { { GN_BF16, 7, 16, 5, 0, 0 }, { GN_F16, 6, 24, 40, 0, 0 }, { GN_F16, 4, 9, 3, 0, 0 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        void *data[] = { random_bytes(j->d, j->a * j->b, 1), random_bytes(j->d, j->c * j->b, 1) };
        compare("rows of a widened table", build_widened_rows, j, data, 1e-5);
        for (int k = 0; k < 2; k++) free(data[k]);
    }
}

/* ---- gradients of convolutions by their filters and by x ---- */

static const struct back_form {
    gn_dtype d;
    int64_t images, channels, filters, groups, height, width;
    gn_conv_desc how;
    int64_t kernel;
    bool by_x;
} back_forms[] = {
    { GN_BF16, 4, 64, 256, 1, 56, 56, { .groups = 1 }, 1, false },
    { GN_BF16, 5, 256, 64, 1, 56, 56, { .groups = 1 }, 1, false },
    { GN_F16, 3, 72, 136, 1, 28, 28, { .groups = 1 }, 1, false },
    { GN_BF16, 8, 128, 512, 1, 28, 28, { .groups = 1 }, 1, false },
    { GN_F16, 7, 40, 24, 1, 30, 36, { .groups = 1 }, 1, false }, /* 1080 places: the last box is not full */
    { GN_BF16, 9, 32, 96, 4, 16, 24, { .groups = 4 }, 1, false },
    { GN_BF16, 64, 96, 64, 1, 14, 14, { .groups = 1 }, 1, false },
    { GN_BF16, 64, 64, 128, 1, 7, 7, { .groups = 1 }, 1, false },
    { GN_BF16, 64, 64, 64, 1, 24, 56, { .groups = 1, .before = { 1, 1 }, .after = { 1, 1 } }, 3, false },
    { GN_F16, 64, 128, 128, 1, 14, 14, { .groups = 1, .before = { 1, 1 }, .after = { 1, 1 } }, 3, false },
    { GN_BF16,
      64,
      64,
      64,
      1,
      28,
      28,
      { .groups = 1, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } },
      3,
      false },
    { GN_BF16, 64, 64, 128, 1, 28, 28, { .groups = 1, .stride = { 2, 2 } }, 1, false },
    { GN_F16, 40, 48, 32, 2, 13, 17, { .groups = 2, .before = { 2, 1 }, .after = { 0, 1 } }, 3, false },
    /* places of all images that no 64 divide */
    { GN_BF16, 5, 64, 72, 1, 9, 11, { .before = { 1, 1 }, .after = { 1, 1 } }, 3, false },
    { GN_F16, 3, 96, 40, 1, 15, 13, { .stride = { 2, 2 } }, 1, false },
    { GN_BF16, 7, 40, 136, 1, 14, 19, { .stride = { 1, 2 }, .dilation = { 2, 1 }, .before = { 3, 0 } }, 3, false },
    { GN_BF16, 3, 168, 64, 1, 12, 9, { .before = { 2, 2 }, .after = { 2, 1 } }, 5, false },
    { GN_BF16, 8, 64, 128, 1, 28, 28, { .groups = 1, .stride = { 2, 2 } }, 1, true },
    { GN_F16, 3, 128, 96, 1, 56, 56, { .groups = 1, .stride = { 2, 2 } }, 1, true },
    { GN_BF16,
      5,
      48,
      64,
      2,
      13,
      18,
      { .groups = 2, .stride = { 3, 2 }, .before = { 1, 2 }, .after = { 2, 1 } },
      1,
      true },
    { GN_BF16, 2, 40, 72, 1, 9, 23, { .groups = 1, .stride = { 1, 4 } }, 1, true },
    { GN_BF16,
      4,
      64,
      64,
      1,
      28,
      28,
      { .groups = 1, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } },
      3,
      true },
};

static gn_tensor build_conv_back(gn_ctx *g, const job *j, void **data) {
    const struct back_form *f = &back_forms[j->form];
    gn_tensor x = gn_data(g, f->d, GN_SHAPE(f->images, f->channels, f->height, f->width), data[0]),
              w = gn_data(g, f->d, GN_SHAPE(f->filters, f->channels / f->groups, f->kernel, f->kernel), data[1]),
              y = gn_conv(x, w, GN_NONE, &f->how), dw;
    gn_info info;
    gn_describe(y, &info);
    gn_tensor loss = gn_sum(gn_mul(y, gn_data(g, f->d, info.shape, data[2])), GN_ALL_AXES, false);
    gn_grad(loss, f->by_x ? &x : &w, 1, &dw);
    return dw;
}

/* Of -1, 0 and 1, whose sums any order gives exactly. */
static void *random_signs(gn_dtype d, int64_t n) {
    void *v = malloc((size_t)n * 8);
    const uint16_t one = d == GN_BF16 ? 0x3f80 : 0x3c00;
    for (int64_t i = 0; i < n; i++) {
        const int r = (int)(test_random() % 3);
        if (d == GN_F64) ((double *)v)[i] = r == 2 ? -1 : r;
        else if (d == GN_F32) ((float *)v)[i] = (float)(r == 2 ? -1 : r);
        else ((uint16_t *)v)[i] = (uint16_t)(r ? one | (unsigned)(r - 1) << 15 : 0);
    }
    return v;
}

static void gradients_of_convs_are_exact(void) {
    for (int i = 0; i < TEST_COUNT(back_forms); i++) {
        const struct back_form *f = &back_forms[i];
        const job j = { .d = f->d, .a = f->channels, .b = f->filters, .c = f->kernel, .e = f->height, .form = i };
        const int64_t most = f->images * (f->height + 2) * (f->width + 2);
        void *data[] = { random_signs(f->d, most * f->channels),
                         random_signs(f->d, f->filters * f->channels * f->kernel * f->kernel),
                         random_signs(f->d, most * f->filters) };
        compare("gradients of convs", build_conv_back, &j, data, 0);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

/* ---- activations after convolutions ---- */

enum { END_RELU, END_LINES, END_GATE, END_CHANNELS, END_SKIP, END_SILU, END_NORM };

/* chain: another convolution of one tap and the same activation follow. last: x and the result are rows of channels. */
static const struct end_form {
    gn_dtype d;
    int64_t images, channels, height, width, filters, kernel;
    gn_conv_desc how;
    int end;
    bool bias, chain, last;
} end_forms[] = {
    { GN_BF16, 2, 64, 14, 14, 128, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_RELU, true, false, false },
    { GN_F16, 2, 64, 14, 14, 72, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_GATE, false, false, true },
    { GN_BF16, 1, 512, 7, 7, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_LINES, true, false, false },
    { GN_BF16, 3, 128, 12, 12, 256, 1, { .clamps = true, .least = -2.1, .most = 60.7 }, END_LINES, true, false, true },
    { GN_BF16,
      2,
      24,
      17,
      16,
      24,
      3,
      { .before = { 1, 1 }, .after = { 1, 1 }, .groups = 24 },
      END_GATE,
      true,
      false,
      false },
    { GN_F16,
      2,
      40,
      9,
      11,
      40,
      5,
      { .before = { 2, 2 }, .after = { 2, 2 }, .groups = 40 },
      END_RELU,
      false,
      false,
      true },
    { GN_F16,
      2,
      3,
      20,
      24,
      32,
      5,
      { .stride = { 2, 2 }, .before = { 2, 2 }, .after = { 2, 2 } },
      END_LINES,
      true,
      false,
      false },
    { GN_BF16, 2, 48, 8, 8, 32, 2, { .stride = { 2, 2 }, .transposed = true }, END_GATE, true, false, false },
    { GN_BF16, 2, 64, 8, 8, 32, 1, { .stride = { 2, 2 }, .transposed = true }, END_LINES, false, false, false },
    { GN_F32, 2, 8, 13, 9, 70, 3, { .before = { 1, 0 }, .after = { 1, 2 } }, END_GATE, true, false, false },
    { GN_F64, 1, 6, 10, 9, 3, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_LINES, true, false, false },
    { GN_BF16, 2, 64, 14, 14, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SILU, true, true, false },
    { GN_F16,
      2,
      64,
      14,
      14,
      64,
      3,
      { .before = { 1, 1 }, .after = { 1, 1 }, .groups = 64 },
      END_SILU,
      true,
      true,
      true },
    { GN_F32, 2, 16, 9, 9, 24, 3, { .stride = { 2, 2 } }, END_SILU, true, true, false },
    { GN_BF16, 2, 64, 14, 14, 128, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_CHANNELS, true, false, false },
    { GN_F16, 2, 64, 14, 14, 72, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_CHANNELS, false, false, true },
    { GN_BF16, 1, 512, 7, 7, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_CHANNELS, true, false, true },
    { GN_BF16, 3, 128, 12, 12, 256, 1, { .groups = 1 }, END_CHANNELS, true, false, true },
    { GN_BF16, 2, 24, 17, 16, 24, 3, { .groups = 24 }, END_CHANNELS, true, false, false },
    { GN_F16, 2, 24, 17, 15, 48, 3, { .groups = 24 }, END_CHANNELS, true, false, false },
    { GN_F16, 2, 40, 9, 11, 40, 3, { .groups = 40 }, END_CHANNELS, false, false, true },
    { GN_F16, 2, 40, 9, 11, 40, 7, { .groups = 40 }, END_CHANNELS, false, false, true },
    { GN_F16, 2, 3, 20, 24, 32, 5, { .stride = { 2, 2 } }, END_CHANNELS, true, false, false },
    { GN_BF16, 2, 48, 8, 8, 32, 2, { .stride = { 2, 2 }, .transposed = true }, END_CHANNELS, true, false, false },
    { GN_F32, 2, 8, 13, 9, 70, 3, { .before = { 1, 0 }, .after = { 1, 2 } }, END_CHANNELS, true, false, false },
    { GN_F64, 1, 6, 10, 9, 3, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_CHANNELS, true, false, false },
    { GN_BF16, 2, 64, 14, 14, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_NORM, false, true, false },
    { GN_F32, 2, 16, 9, 9, 24, 3, { .stride = { 2, 2 } }, END_NORM, true, false, false },
    { GN_BF16, 2, 64, 14, 14, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, true, true, false },
    { GN_F16, 2, 64, 14, 14, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, false, true, true },
    { GN_F16, 2, 64, 14, 14, 72, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, false, false, true },
    { GN_BF16, 2, 64, 14, 14, 128, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, true, false, false },
    { GN_BF16, 1, 512, 7, 7, 64, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, true, false, false },
    { GN_BF16, 3, 128, 12, 12, 256, 1, { .groups = 1 }, END_SKIP, true, false, true },
    { GN_BF16, 2, 24, 17, 16, 24, 3, { .groups = 24 }, END_SKIP, true, false, false },
    { GN_F16, 2, 24, 17, 15, 48, 3, { .groups = 24 }, END_SKIP, true, false, false },
    { GN_F16, 2, 40, 9, 11, 40, 3, { .groups = 40 }, END_SKIP, false, false, true },
    { GN_F16, 2, 40, 9, 11, 40, 7, { .groups = 40 }, END_SKIP, false, false, true },
    { GN_F16, 2, 3, 20, 24, 32, 5, { .stride = { 2, 2 } }, END_SKIP, true, false, false },
    { GN_BF16, 2, 48, 8, 8, 32, 2, { .stride = { 2, 2 }, .transposed = true }, END_SKIP, true, false, false },
    { GN_BF16, 2, 64, 8, 8, 32, 1, { .stride = { 2, 2 }, .transposed = true }, END_SKIP, false, false, false },
    { GN_F32, 2, 8, 13, 9, 70, 3, { .before = { 1, 0 }, .after = { 1, 2 } }, END_SKIP, true, false, false },
    { GN_F64, 1, 6, 10, 9, 3, 3, { .before = { 1, 1 }, .after = { 1, 1 } }, END_SKIP, true, false, false },
};

static gn_dtype end_type(gn_tensor y) {
    gn_info info;
    return gn_describe(y, &info) == GN_OK ? info.dtype : GN_F32;
}

/* CHANNELS: a number for each channel, and one for all; SKIP: what it skips is added */
static gn_tensor end_with(gn_tensor y, gn_tensor skip, int end, int64_t channels, void **data) {
    gn_tensor a[2];
    if (end == END_SKIP) return gn_relu(gn_sub_c(gn_add(y, skip), 1));
    for (int i = 0; i < 2; i++) a[i] = gn_data(y.ctx, end_type(y), GN_SHAPE(channels), data[2 + i]);
    if (end == END_NORM) return gn_relu(gn_batch_norm(y, a[0], gn_square(gn_add_c(a[1], 2)), a[1], a[0], 1e-3));
    if (end == END_CHANNELS) {
        gn_tensor by = gn_reshape(a[0], GN_SHAPE(channels, 1, 1)), more = gn_reshape(a[1], GN_SHAPE(channels, 1, 1));
        gn_tensor one = gn_data(y.ctx, end_type(y), GN_SCALAR, data[1]);
        return gn_relu(gn_add_c(gn_sub(gn_add(gn_mul(y, by), more), one), 2)); /* `by` may be zeros */
    }
    if (end == END_RELU) return gn_relu(y);
    if (end == END_LINES) return gn_clamp(gn_mul_c(gn_add_c(y, 3), 0.5), -1, 6);
    return end == END_GATE ? gn_mul(y, gn_clamp(gn_add_c(y, 3), 0, 6)) : gn_silu(y);
}

/* b: without activations */
static gn_tensor build_ended(gn_ctx *g, const job *j, void **data) {
    const struct end_form *f = &end_forms[j->form];
    const int64_t groups = f->how.groups ? f->how.groups : 1;
    const gn_conv_desc plain = { 0 };
    const gn_shape planes = GN_SHAPE(f->images, f->channels, f->height, f->width),
                   rows = GN_SHAPE(f->images, f->height, f->width, f->channels),
                   of = f->how.transposed ? GN_SHAPE(f->channels, f->filters, f->kernel, f->kernel)
                                          : GN_SHAPE(f->filters, f->channels / groups, f->kernel, f->kernel);
    gn_tensor x = gn_data(g, f->d, f->last ? rows : planes, data[0]),
              bias = f->bias ? gn_data(g, f->d, GN_SHAPE(f->filters), data[2]) : GN_NONE;
    if (f->last) x = gn_permute(x, GN_AXES(0, 3, 1, 2));
    gn_tensor y = gn_conv(x, gn_data(g, f->d, of, data[1]), bias, &f->how), first;
    gn_info made;
    if (gn_describe(y, &made) != GN_OK) return y;
    if (!j->b) y = end_with(y, gn_data(g, f->d, made.shape, data[4]), f->end, f->filters, data);
    first = y;
    if (f->chain) y = gn_conv(y, gn_data(g, f->d, GN_SHAPE(f->filters, f->filters, 1, 1), data[3]), bias, &plain);
    if (f->chain && !j->b) y = end_with(y, first, f->end, f->filters, data);
    return f->last ? gn_permute(y, GN_AXES(0, 2, 3, 1)) : y;
}

/* Kernels of the form's convolutions, with or without activations. */
static int kernels_of_ended(const job *j, void **data, bool without) {
    gn_stats before, after;
    job of = *j;
    of.b = without;
    gn_tensor y = build_ended(gpu, &of, data);
    gn_get_stats(gpu, &before);
    CHECK_RESULT(gn_realize(&y, 1), GN_OK);
    gn_get_stats(gpu, &after);
    gn_step(gpu);
    return (int)(after.kernels_run - before.kernels_run);
}

static void activations_after_convs_are_no_kernels_of_their_own(void) {
    const bool whole = !getenv("GENIE_CUDA_EPILOGUE") && !getenv("GENIE_CUDA_FUSE");
    for (int i = 0; i < TEST_COUNT(end_forms); i++) {
        const struct end_form *f = &end_forms[i];
        const job j = { .d = f->d, .a = f->channels, .c = f->filters, .e = f->kernel, .form = i };
        void *data[] = { random_signs(f->d, f->images * f->channels * f->height * f->width),
                         random_signs(f->d, f->filters * f->channels * f->kernel * f->kernel),
                         random_signs(f->d, f->filters), random_signs(f->d, f->filters * f->filters),
                         random_signs(f->d, f->images * f->filters * 4 * f->height * f->width) };
        compare("activations after convs", build_ended, &j, data, f->chain || f->end == END_NORM ? 2e-2 : 0);
        if (!compiles_only && whole && f->end <= END_SKIP)
            CHECK(kernels_of_ended(&j, data, false) <= kernels_of_ended(&j, data, true));
        for (int k = 0; k < TEST_COUNT(data); k++) free(data[k]);
    }
}

/* Of more tiles than a GPU has processors: a block has several, whose filters it brings once. */
static gn_tensor build_many_tiles(gn_ctx *g, const job *j, void **data) {
    const gn_conv_desc near = { .before = { 1, 1 }, .after = { 1, 1 } };
    const gn_shape planes = GN_SHAPE(j->c, j->a, j->b, j->b), rows = GN_SHAPE(j->c, j->b, j->b, j->a);
    gn_tensor x = gn_data(g, j->d, j->form ? rows : planes, data[0]);
    if (j->form) x = gn_permute(x, GN_AXES(0, 3, 1, 2));
    gn_tensor y = gn_conv(x, gn_data(g, j->d, GN_SHAPE(j->e, j->a, 3, 3), data[1]),
                          gn_data(g, j->d, GN_SHAPE(j->e), data[2]), &near);
    y = gn_relu(gn_sub_c(y, 1));
    return j->form ? gn_permute(y, GN_AXES(0, 2, 3, 1)) : y;
}

static void tiles_of_the_same_filters_are_exact(void) {
    static const job jobs[] = { { GN_BF16, 40, 57, 9, 40, 1 },
                                { GN_F16, 64, 56, 10, 64, 0 },
                                { GN_BF16, 72, 41, 12, 100, 1 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        void *data[] = { random_signs(j->d, j->c * j->a * j->b * j->b), random_signs(j->d, j->e * j->a * 9),
                         random_signs(j->d, j->e) };
        compare("tiles of the same filters", build_many_tiles, j, data, 0);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

/* ---- filters of one channel each over rows of channels ---- */

static const struct depth_form {
    gn_dtype d;
    int64_t images, channels, height, width, kernel[2];
    gn_conv_desc how;
    bool planes; /* the result */
} depth_forms[] = {
    { GN_BF16, 3, 384, 14, 14, { 7, 7 }, { .before = { 3, 3 }, .after = { 3, 3 } }, false },
    { GN_BF16, 2, 136, 7, 9, { 7, 7 }, { .before = { 3, 3 }, .after = { 3, 3 } }, true },
    { GN_F16, 2, 64, 21, 19, { 3, 3 }, { .before = { 1, 1 }, .after = { 1, 1 } }, false },
    { GN_BF16, 5, 24, 17, 30, { 3, 3 }, { .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } }, false },
    { GN_F16, 1, 40, 12, 13, { 5, 5 }, { .stride = { 1, 3 }, .before = { 4, 0 }, .after = { 0, 7 } }, false },
    { GN_BF16, 2, 72, 11, 8, { 2, 4 }, { .dilation = { 3, 2 }, .before = { 3, 6 }, .after = { 9, 6 } }, true },
    { GN_BF16, 2, 16, 3, 5, { 7, 3 }, { .before = { 6, 2 }, .after = { 6, 2 } }, false },
    { GN_BF16, 2, 128, 9, 70, { 3, 3 }, { .stride = { 2, 4 }, .before = { 1, 1 }, .after = { 1, 1 } }, false },
    { GN_F16, 7, 8, 9, 1, { 3, 1 }, { .stride = { 4, 1 }, .before = { 2, 0 }, .after = { 8, 0 } }, false },
    { GN_BF16, 2, 520, 10, 28, { 1, 7 }, { .before = { 0, 3 }, .after = { 0, 3 } }, false },
};

static gn_tensor build_depth_rows(gn_ctx *g, const job *j, void **data) {
    const struct depth_form *f = &depth_forms[j->form];
    gn_conv_desc how = f->how;
    how.groups = f->channels;
    gn_tensor x = gn_permute(gn_data(g, f->d, GN_SHAPE(f->images, f->height, f->width, f->channels), data[0]),
                             GN_AXES(0, 3, 1, 2)),
              w = gn_data(g, f->d, GN_SHAPE(f->channels, 1, f->kernel[0], f->kernel[1]), data[1]),
              y = gn_conv(x, w, GN_NONE, &how);
    return f->planes ? y : gn_permute(y, GN_AXES(0, 2, 3, 1));
}

static void filters_of_one_channel_are_exact(void) {
    for (int i = 0; i < TEST_COUNT(depth_forms); i++) {
        const struct depth_form *f = &depth_forms[i];
        const job j = { .d = f->d, .a = f->channels, .b = f->height, .c = f->kernel[0], .e = f->kernel[1], .form = i };
        void *data[] = { random_signs(f->d, f->images * f->channels * f->height * f->width),
                         random_signs(f->d, f->channels * f->kernel[0] * f->kernel[1]) };
        compare("filters of one channel", build_depth_rows, &j, data, 0);
        for (int k = 0; k < 2; k++) free(data[k]);
    }
}

/* Over planes of x. Rows of whole pieces of 16 bytes are read where they lie, others by way of shared memory, in bands
   where a plane is large. */
static const struct depth_form plane_forms[] = {
    { GN_BF16, 3, 40, 56, 56, { 3, 3 }, { .before = { 1, 1 }, .after = { 1, 1 } }, true },
    { GN_F16, 2, 24, 33, 48, { 3, 3 }, { .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } }, true },
    { GN_BF16, 2, 24, 19, 24, { 5, 7 }, { .before = { 0, 3 }, .after = { 4, 3 } }, true },
    { GN_F32, 2, 12, 10, 40, { 2, 3 }, { .dilation = { 3, 6 }, .before = { 3, 6 }, .after = { 9, 6 } }, true },
    { GN_F16, 1, 16, 3, 64, { 3, 4 }, { .stride = { 1, 4 }, .before = { 2, 0 }, .after = { 2, 0 } }, true },
    { GN_BF16, 2, 8, 7, 16, { 1, 15 }, { .before = { 0, 14 }, .after = { 0, 0 } }, true },
    { GN_BF16, 33, 17, 14, 14, { 3, 3 }, { .before = { 1, 1 }, .after = { 1, 1 } }, true },
    { GN_F16, 5, 40, 28, 28, { 5, 5 }, { .before = { 2, 2 }, .after = { 2, 2 } }, true },
    { GN_BF16, 7, 96, 7, 7, { 7, 7 }, { .before = { 3, 3 }, .after = { 3, 3 } }, true },
    { GN_F32, 2, 5, 190, 195, { 3, 3 }, { .before = { 1, 1 }, .after = { 1, 1 } }, true },
    { GN_F32, 1, 3, 260, 260, { 7, 7 }, { .stride = { 2, 2 }, .before = { 3, 3 }, .after = { 3, 3 } }, true },
    { GN_BF16, 3, 21, 29, 42, { 3, 3 }, { .stride = { 2, 3 }, .dilation = { 2, 1 }, .before = { 4, 0 } }, true },
    { GN_F64, 2, 9, 20, 18, { 3, 5 }, { .before = { 2, 4 }, .after = { 2, 1 } }, true },
    { GN_F16, 2, 11, 1, 13, { 1, 9 }, { .before = { 0, 4 }, .after = { 0, 4 } }, true },
};

static gn_tensor build_depth_planes(gn_ctx *g, const job *j, void **data) {
    const struct depth_form *f = &plane_forms[j->form];
    gn_conv_desc how = f->how;
    how.groups = f->channels;
    return gn_conv(gn_data(g, f->d, GN_SHAPE(f->images, f->channels, f->height, f->width), data[0]),
                   gn_data(g, f->d, GN_SHAPE(2 * f->channels, 1, f->kernel[0], f->kernel[1]), data[1]), GN_NONE, &how);
}

static void filters_of_one_channel_over_planes_are_exact(void) {
    for (int i = 0; i < TEST_COUNT(plane_forms); i++) {
        const struct depth_form *f = &plane_forms[i];
        const job j = { .d = f->d, .a = f->channels, .b = f->height, .c = f->kernel[0], .e = f->kernel[1], .form = i };
        void *data[] = { random_signs(f->d, f->images * f->channels * f->height * f->width),
                         random_signs(f->d, 2 * f->channels * f->kernel[0] * f->kernel[1]) };
        compare("filters of one channel over planes", build_depth_planes, &j, data, 0);
        for (int k = 0; k < 2; k++) free(data[k]);
    }
}

/* c images of a channels, side b: between convs of one tap, filters of one channel each, some past a residual. */
static gn_tensor build_depthwise(gn_ctx *g, const job *j, void **data) {
    const gn_conv_desc plain = { 0 };
    gn_conv_desc near = { .before = { 1, 1 }, .after = { 1, 1 }, .groups = j->a, .clamps = true, .most = 6 },
                 far = { .stride = { 2, 2 }, .before = { 2, 3 }, .after = { 2, 1 }, .groups = j->a };
    gn_tensor x = gn_data(g, j->d, GN_SHAPE(j->c, j->a, j->b, j->b + 1), data[0]),
              w = gn_data(g, j->d, GN_SHAPE(j->a, j->a, 1, 1), data[1]),
              bias = gn_data(g, j->d, GN_SHAPE(j->a), data[4]), h = gn_conv(x, w, GN_NONE, &plain);
    near.residual = h;
    h = gn_conv(h, gn_data(g, j->d, GN_SHAPE(j->a, 1, 3, 3), data[2]), bias, &near);
    return gn_conv(gn_conv(h, gn_data(g, j->d, GN_SHAPE(j->a, 1, 5, 5), data[3]), GN_NONE, &far), w, GN_NONE, &plain);
}

static void depthwise_convs_between_others_agree_with_the_cpu(void) {
    static const job jobs[] = { { GN_BF16, 64, 9, 3, 0, 0 },
                                { GN_F16, 24, 12, 2, 0, 0 },
                                { GN_BF16, 200, 7, 2, 0, 0 } };
    for (int i = 0; i < TEST_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        const int64_t n[] = { j->c * j->a * j->b * (j->b + 1), j->a * j->a, j->a * 9, j->a * 25, j->a };
        const double scale[] = { 1, 1 / sqrt((double)j->a), 0.3, 0.2, 1 };
        void *data[5];
        for (int k = 0; k < 5; k++) data[k] = random_bytes(j->d, n[k], scale[k]);
        compare("depthwise convs", build_depthwise, j, data, 0.02);
        for (int k = 0; k < 5; k++) free(data[k]);
    }
}

/* Pictures are held as rows of channels, seen as planes: two steps of a conv, of which each reads what the last one
   wrote. */
static void states_of_rows_agree_with_the_cpu(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    enum { N = 2, C = 64, SIDE = 10, ALL = N * C * SIDE * SIDE };
    static float out[2][2][ALL];
    const gn_shape rows = GN_SHAPE(N, SIDE, SIDE, C);
    void *x = random_bytes(GN_BF16, ALL, 1), *w = random_bytes(GN_BF16, C * C * 9, 1 / sqrt(C * 9.));
    gn_conv_desc d = { .before = { 1, 1 }, .after = { 1, 1 } };
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_tensor state = gn_state(g, GN_BF16, rows, x, "rows"), other = gn_state(g, GN_BF16, rows, x, "others"),
                  filters = gn_weight(g, GN_BF16, GN_SHAPE(C, C, 3, 3), w, "filters");
        for (int step = 0; step < 2; step++) {
            gn_tensor seen = gn_permute(state, GN_AXES(0, 3, 1, 2));
            d.residual = seen;
            gn_tensor y = gn_conv(seen, filters, GN_NONE, &d);
            d.residual = GN_NONE;
            gn_assign(state, gn_permute(y, GN_AXES(0, 2, 3, 1)));
            gn_assign(other, gn_permute(gn_conv(y, filters, GN_NONE, &d), GN_AXES(0, 2, 3, 1)));
            CHECK_RESULT(gn_step(g), GN_OK);
        }
        CHECK_RESULT(gn_read(gn_cast(state, GN_F32), out[k][0], sizeof out[k][0]), GN_OK);
        CHECK_RESULT(gn_read(gn_cast(other, GN_F32), out[k][1], sizeof out[k][1]), GN_OK);
        gn_step(g);
        gn_release(state);
        gn_release(other);
        gn_release(filters);
        gn_step(g);
    }
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < ALL; i++) CHECK(fabsf(out[0][s][i] - out[1][s][i]) <= 0.05f + 0.02f * fabsf(out[0][s][i]));
    free(x);
    free(w);
}

/* ---- a matrix (k,n) of a weight, which products of one row read as (n,k) ---- */

enum { ACROSS_K = 136, ACROSS_N = 72, ACROSS_BYTES = ACROSS_K * ACROSS_N * 2 };

/* A row by the matrix, by half of its columns, and by a bias and a loop; as bytes. lies: the matrix as it was given, or
   its transpose as another weight. */
static void across_step(gn_ctx *g, gn_tensor w, bool lies, gn_dtype d, const void *x, const void *bias, uint16_t *out) {
    gn_tensor row = gn_data(g, d, GN_SHAPE(1, ACROSS_K), x), m = lies ? w : gn_transpose(w, 0, 1), y[2];
    y[0] = gn_relu(gn_linear(row, m, gn_data(g, d, GN_SHAPE(ACROSS_N), bias)));
    y[1] = gn_matmul(gn_add_c(row, 1), gn_slice(m, 1, ACROSS_N - 40, ACROSS_N, 1));
    gn_result r = gn_read_many(y, 2, (void *[]){ out, out + ACROSS_N }, (size_t[]){ ACROSS_N * 2, 40 * 2 });
    if (!CHECK_RESULT(r, GN_OK)) printf("%s\n", gn_last_error(g)->text);
    gn_step(g);
}

static void a_matrix_that_lies_across_is_packed_once(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    static const gn_dtype dtypes[] = { GN_BF16, GN_F16 };
    char memory[32];
    for (int k = 0; k < 4; k++) { /* the second time there is no room */
        const gn_dtype d = dtypes[k / 2];
        const bool room = k % 2 == 0;
        if (room) snprintf(memory, sizeof memory, "0");
        uint16_t *w = random_bytes(d, ACROSS_K * ACROSS_N, 1), *x = random_bytes(d, ACROSS_K, 1), out[2][ACROSS_N + 40],
                 *turned = malloc(ACROSS_BYTES), *bias = random_bytes(d, ACROSS_N, 1);
        for (int i = 0; turned && i < ACROSS_K * ACROSS_N; i++) turned[i % ACROSS_N * ACROSS_K + i / ACROSS_N] = w[i];
        gn_ctx *g = open_with(memory, "1"), *h = open_with("0", "1");
        gn_tensor lies = gn_weight(g, d, GN_SHAPE(ACROSS_K, ACROSS_N), w, "across"),
                  stands = gn_weight(h, d, GN_SHAPE(ACROSS_N, ACROSS_K), turned, "along");
        across_step(h, stands, false, d, x, bias, out[1]);
        CHECK(packed_stats(h).filters_packed == 0);
        for (int i = 0; i < 3; i++) {
            memset(out[0], 0xee, sizeof out[0]);
            across_step(g, lies, true, d, x, bias, out[0]);
            CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
        }
        if (room) CHECK(packed_stats(g).filters_packed == 2 && packed_stats(g).filters_repacked == 0);
        else CHECK(packed_stats(g).filters_packed < 2 && packed_stats(g).filters_repacked >= 3);
        if (room) snprintf(memory, sizeof memory, "%llu", (unsigned long long)packed_stats(g).device_bytes - 8192);
        else CHECK(packed_stats(g).evictions == 0);
        gn_release(lies);
        gn_release(stands);
        gn_close(g);
        gn_close(h);
        free(w);
        free(x);
        free(turned);
        free(bias);
    }
}

/* Where nothing is left to keep them in, each run packs them, and what needs memory later takes theirs. */
static void filters_without_room_are_packed_in_each_run(void) {
    if (compiles_only) {
        test_skip("kernels are compiled, not run");
        return;
    }
    char memory[32];
    gn_shape shape = GN_SHAPE(PACK_C, PACK_C, 3, 3);
    void *x = random_bytes(GN_BF16, 3 * PACK_IMAGE, 1), *data[2];
    uint64_t needed = 0;
    for (int i = 0; i < 2; i++) data[i] = random_bytes(GN_BF16, PACK_FILTERS, 0.1);
    for (int round = 0; round < 2; round++) {
        snprintf(memory, sizeof memory, "%llu", (unsigned long long)needed);
        gn_ctx *g = open_with(memory, "1");
        gn_tensor w[2], late;
        for (int i = 0; i < 2; i++) w[i] = gn_weight(g, GN_BF16, shape, data[i], "filters");
        for (int i = 0; i < 3; i++) packed_step(g, w, data, 2, x);
        if (round) CHECK(packed_stats(g).filters_packed < 2 && packed_stats(g).filters_repacked >= 3);
        else CHECK(packed_stats(g).filters_packed == 2 && packed_stats(g).filters_repacked == 0);
        if (round) CHECK(packed_stats(g).device_bytes <= needed);
        if (!round) needed = packed_stats(g).device_bytes - PACK_FILTERS * 2; /* room for one of the two */
        late = gn_state(g, GN_BF16, shape, data[0], "late");
        for (int i = 0; i < 3; i++) packed_step(g, w, data, 2, x);
        CHECK(packed_stats(g).evictions == 0 || round);
        gn_release(late);
        for (int i = 0; i < 2; i++) gn_release(w[i]);
        gn_close(g);
    }
    for (int i = 0; i < 2; i++) free(data[i]);
    free(x);
}

/* ---- rows that several convolutions read are laid once ---- */

enum { ROWS_N = 4, ROWS_C = 64, ROWS_SIDE = 14, ROWS_ALL = ROWS_N * ROWS_C * ROWS_SIDE * ROWS_SIDE };
typedef enum rows_read { ROWS_TWICE, ROWS_GRADIENT, ROWS_LATER } rows_read;

/* Of x the first convolution, of `other` the second: at once, as its own gradient would be, or by filters that the
   first one gives. */
static void rows_results(gn_ctx *g, rows_read how, gn_tensor x, gn_tensor other, gn_tensor *out) {
    static uint16_t *w;
    const gn_conv_desc around = { .before = { 1, 1 }, .after = { 1, 1 } };
    const gn_shape one = GN_SHAPE(ROWS_C, ROWS_C, 1, 1);
    if (!w) w = (uint16_t *)random_signs(GN_BF16, ROWS_C * ROWS_C * 9);
    gn_tensor filters = gn_data(g, GN_BF16, GN_SHAPE(ROWS_C, ROWS_C, 3, 3), w),
              small[2] = { gn_data(g, GN_BF16, one, w), gn_data(g, GN_BF16, one, w + ROWS_C * ROWS_C) },
              turned = gn_transpose(other, 0, 1);
    out[0] = how == ROWS_TWICE ? gn_conv(x, small[0], GN_NONE, NULL) : gn_conv(x, filters, GN_NONE, &around);
    if (how == ROWS_LATER) {
        gn_info info;
        gn_describe(out[0], &info);
        gn_tensor all = gn_reshape(out[0], GN_SHAPE(info.shape.dims[0] * ROWS_ALL / ROWS_N));
        small[1] = gn_reshape(gn_sign(gn_slice(all, 0, 0, ROWS_C * ROWS_C, 1)), one);
    }
    out[1] = how == ROWS_GRADIENT ? gn_conv(turned, turned, GN_NONE, &around) : gn_conv(other, small[1], GN_NONE, NULL);
}

/* Kernels of a step; its results to `to`. */
static uint64_t rows_kernels(gn_ctx *g, rows_read how, int64_t images, bool same, const uint16_t *data, uint16_t **to) {
    const gn_shape shape = GN_SHAPE(images, ROWS_C, ROWS_SIDE, ROWS_SIDE);
    gn_tensor x[2], y[2], states[2];
    gn_stats before, after;
    gn_info info[2];
    for (int i = 0; i < 2; i++) x[i] = gn_state(g, GN_BF16, shape, data, "x");
    if (how == ROWS_LATER) rows_results(g, how, gn_neg(x[0]), gn_neg(x[0]), y);
    else rows_results(g, how, x[0], x[same ? 0 : 1], y);
    for (int i = 0; i < 2; i++) {
        gn_describe(y[i], &info[i]);
        states[i] = gn_state(g, GN_BF16, info[i].shape, to[i], "y");
        gn_assign(states[i], y[i]);
    }
    gn_get_stats(g, &before);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_sync(g), GN_OK);
    gn_get_stats(g, &after);
    for (int i = 0; i < 2; i++) {
        size_t bytes = 2;
        for (int k = 0; k < info[i].shape.rank; k++) bytes *= (size_t)info[i].shape.dims[k];
        CHECK_RESULT(gn_read(states[i], to[i], bytes), GN_OK);
    }
    gn_step(g);
    for (int i = 0; i < 2; i++) {
        gn_release(x[i]);
        gn_release(states[i]);
    }
    return after.kernels_run - before.kernels_run;
}

/* The second convolution finds what the first has laid, unless it reads others; later a value's only where a larger
   plan has left room behind this one's memory. */
static void rows_of_a_form(rows_read how, const uint16_t *data, uint16_t *(*got)[2]) {
    gn_ctx *g = open_with("", "1");
    rows_kernels(cpu, how, ROWS_N, true, data, got[0]);
    uint64_t each = rows_kernels(g, how, ROWS_N, false, data, got[1]);
    if (how == ROWS_LATER) rows_kernels(g, how, 4 * ROWS_N, true, data, got[2]);
    uint64_t once = rows_kernels(g, how, ROWS_N, true, data, got[2]);
    if (once + 1 != each)
        test_fail(__FILE__, __LINE__, "form %d: %llu kernels, %llu when rows are laid each time", how,
                  (unsigned long long)once, (unsigned long long)each);
    for (int i = 0; i < 2; i++) {
        CHECK(memcmp(got[0][i], got[1][i], (size_t)ROWS_ALL * 2) == 0);
        CHECK(memcmp(got[0][i], got[2][i], (size_t)ROWS_ALL * 2) == 0);
    }
    gn_close(g);
}

static void rows_that_several_convolutions_read_are_laid_once(void) {
    const bool warpgroups = tensor_cores() == 90 && !getenv("GENIE_CUDA_WGMMA");
    if (compiles_only || tensor_cores() < 80) {
        test_skip("no kernels of rows run here");
        return;
    }
    uint16_t *data = (uint16_t *)random_signs(GN_BF16, 4 * ROWS_ALL), *got[3][2];
    for (int how = ROWS_TWICE; how <= ROWS_LATER; how++) {
        for (int i = 0; i < 6; i++) got[i / 2][i % 2] = (uint16_t *)calloc(4 * ROWS_ALL, 2);
        if (how != ROWS_GRADIENT || warpgroups) rows_of_a_form((rows_read)how, data, got);
        for (int i = 0; i < 6; i++) free(got[i / 2][i % 2]);
    }
    free(data);
}

/* Filters of one tap are read as they lie, and so are planes whose rows begin at multiples of 16 bytes. */
static void a_gradient_by_x_of_one_tap_is_one_kernel(void) {
    enum { IMAGES = 3, FROM = 160, TO = 72, SIDE = 16, ALL = IMAGES * TO * SIDE * SIDE };
    if (compiles_only || tensor_cores() != 90 || getenv("GENIE_CUDA_WGMMA")) {
        test_skip("no kernels of warpgroups run here");
        return;
    }
    static uint16_t out[2][ALL];
    const gn_conv_desc d = { .transposed = true };
    void *x = random_signs(GN_BF16, IMAGES * FROM * SIDE * SIDE), *w = random_signs(GN_BF16, FROM * TO);
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = k ? gpu : cpu;
        gn_stats before, after;
        gn_tensor y = gn_conv(gn_data(g, GN_BF16, GN_SHAPE(IMAGES, FROM, SIDE, SIDE), x),
                              gn_data(g, GN_BF16, GN_SHAPE(FROM, TO, 1, 1), w), GN_NONE, &d);
        gn_get_stats(g, &before);
        CHECK_RESULT(gn_read(y, out[k], sizeof out[k]), GN_OK);
        gn_get_stats(g, &after);
        if (k) CHECK_INT(after.kernels_run - before.kernels_run, 1);
        gn_step(g);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    free(x);
    free(w);
}

static void all_kernels_compile(void) {
    static char why[8000];
    size_t failed = 0,
           n = gn_cuda_compile_collected(getenv("GENIE_CUDA_COMPILE_ONLY"), getenv("GENIE_CUDA_ONE_OF_EACH") != NULL,
                                         &failed, why, sizeof why);
    printf("%zu kernels\n", n);
    if (failed || !n) test_fail(__FILE__, __LINE__, "%zu of %zu kernels do not compile; the first: %s", failed, n, why);
}

/* ---- gradients of maximum pools ---- */

typedef struct pooled {
    gn_shape x;
    gn_pool_desc d;
    bool gathers; /* in one kernel, not by scatter_add */
} pooled;

/* Of few values, so that windows have several largest elements; some are -infinity and NaN. */
static void *pooled_bytes(gn_dtype d, int64_t n) {
    const double special[] = { -INFINITY, -INFINITY, NAN, -0.0 };
    double *x = (double *)calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = test_random_int(0, 60);
        x[i] = k < 4 ? special[k] : n % 2 && k < 30 ? -INFINITY : (double)test_random_int(-2, 2);
    }
    void *bytes = random_bytes(d, n, 0);
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint16_t h = d == GN_F16 ? gn_f32_to_f16(f) : gn_f32_to_bf16(f);
        size_t each = gn_dtype_bytes(d);
        memcpy((char *)bytes + (size_t)i * each, each == 2 ? (void *)&h : each == 4 ? (void *)&f : (void *)&x[i], each);
    }
    free(x);
    return bytes;
}

/* form 0: the pool, its positions and the gradient of it by x; 1: what windows give is added where their positions say,
   x and it lie another way; 2: the positions are read too. */
static int build_pool_back(gn_ctx *g, const pooled *p, const job *j, void **data, gn_tensor *out) {
    gn_pool_desc at = p->d;
    at.kind = GN_POOL_INDEX;
    gn_shape shape = p->x;
    int last = shape.rank - 1;
    int64_t swapped = shape.dims[last];
    if (j->form == 1) {
        shape.dims[last] = shape.dims[1];
        shape.dims[1] = swapped;
    }
    gn_tensor x = gn_data(g, j->d, shape, data[0]), y = GN_NONE;
    if (j->form == 1) x = gn_transpose(x, 1, last);
    gn_info info;
    out[1] = gn_pool(x, &at);
    if (gn_describe(out[1], &info) != GN_OK) return 0;
    if (j->form == 0) {
        y = gn_data(g, j->d, info.shape, data[1]);
        out[2] = gn_pool(x, &p->d);
        return gn_grad(gn_sum(gn_mul(out[2], y), GN_ALL_AXES, false), &x, 1, &out[0]) == GN_OK ? 3 : 0;
    }
    int64_t planes = shape.dims[0] * p->x.dims[1], in = 1, places = 1;
    for (int i = 2; i <= last; i++) {
        in *= p->x.dims[i];
        places *= info.shape.dims[i];
    }
    y = j->form == 1 ? gn_transpose(gn_data(g, j->d, GN_SHAPE(places, planes), data[1]), 0, 1)
                     : gn_data(g, j->d, GN_SHAPE(planes, places), data[1]);
    out[0] =
        gn_scatter_add(gn_full(g, j->d, GN_SHAPE(planes, in), 0), 1, gn_reshape(out[1], GN_SHAPE(planes, places)), y);
    return j->form;
}

/* NaN is NaN, whatever its bits. */
static bool same_elements(gn_dtype d, const void *a, const void *b, int64_t n) {
    bool same = true;
    for (int64_t i = 0; i < n && same; i++) {
        size_t each = gn_dtype_bytes(d);
        same = memcmp((const char *)a + (size_t)i * each, (const char *)b + (size_t)i * each, each) == 0 ||
               (isnan(element(d, a, i)) && isnan(element(d, b, i)));
    }
    return same;
}

static void compare_pool_back(const pooled *p, const job *j) {
    int64_t n = 1;
    for (int i = 0; i < p->x.rank; i++) n *= p->x.dims[i];
    void *data[2] = { pooled_bytes(j->d, n), random_bytes(j->d, 4 * n + 64, 1) };
    gn_tensor t[2][3] = { { { 0 } } };
    gn_stats before, after;
    int results = build_pool_back(cpu, p, j, data, t[0]);
    build_pool_back(gpu, p, j, data, t[1]);
    gn_get_stats(gpu, &before);
    gn_result r = gn_realize(t[1], results);
    gn_get_stats(gpu, &after);
    for (int i = 0; i < results && !compiles_only; i++) {
        gn_info info;
        CHECK_RESULT(r, GN_OK);
        gn_describe(t[0][i], &info);
        int64_t count = 1;
        for (int k = 0; k < info.shape.rank; k++) count *= info.shape.dims[k];
        size_t bytes = (size_t)count * gn_dtype_bytes(info.dtype);
        void *out[2] = { calloc(1, bytes + 8), calloc(1, bytes + 8) };
        CHECK_RESULT(gn_read(t[0][i], out[0], bytes), GN_OK);
        CHECK_RESULT(gn_read(t[1][i], out[1], bytes), GN_OK);
        if (!same_elements(info.dtype, out[0], out[1], count))
            test_fail(__FILE__, __LINE__, "result %d of form %d of a pool of %s of rank %d, last %lld, differs", i,
                      j->form, gn_dtype_name(j->d), p->x.rank, (long long)p->x.dims[p->x.rank - 1]);
        free(out[0]);
        free(out[1]);
    }
    if (!compiles_only && j->form && p->gathers) CHECK_INT((int)(after.kernels_run - before.kernels_run), j->form);
    CHECK(results > 0);
    gn_step(cpu);
    gn_step(gpu);
    free(data[0]);
    free(data[1]);
}

static void gradients_of_maximum_pools_have_the_bits_of_the_cpu(void) {
    static const pooled pools[] = {
        { { 4, { 2, 3, 24, 32 } },
          { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } },
          true },
        { { 4, { 1, 2, 130, 136 } },
          { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } },
          true },
        { { 4, { 2, 3, 10, 24 } }, { .kernel = { 2, 2 }, .stride = { 2, 2 } }, true },
        { { 4, { 1, 3, 13, 16 } },
          { .kernel = { 3, 4 }, .stride = { 2, 4 }, .before = { 1, 1 }, .after = { 1, 3 } },
          true },
        { { 4, { 1, 2, 13, 8 } },
          { .kernel = { 4, 3 }, .stride = { 3, 2 }, .before = { 2, 2 }, .after = { 1, 1 } },
          true },
        { { 3, { 2, 3, 64 } }, { .kernel = { 3 }, .stride = { 2 }, .before = { 1 }, .after = { 1 } }, true },
        { { 4, { 1, 2, 13, 900 } },
          { .kernel = { 4, 5 }, .stride = { 1, 3 }, .before = { 2, 3 }, .after = { 3, 4 }, .ceiling = true },
          true },
        { { 4, { 3, 5, 7, 7 } }, { .kernel = { 3, 3 }, .before = { 1, 1 }, .after = { 1, 1 } }, true },
        { { 4, { 2, 3, 9, 15 } }, { .kernel = { 2, 2 }, .stride = { 3, 4 } }, true },
        { { 4, { 1, 3, 11, 12 } },
          { .kernel = { 2, 3 }, .stride = { 1, 2 }, .dilation = { 3, 2 }, .before = { 2, 1 }, .after = { 0, 4 } },
          true },
        { { 3, { 2, 3, 50 } },
          { .kernel = { 4 }, .stride = { 3 }, .before = { 1 }, .after = { 3 }, .ceiling = true },
          true },
        { { 3, { 1, 2, 20001 } }, { .kernel = { 5 }, .stride = { 2 }, .before = { 4 }, .after = { 1 } }, true },
        { { 5, { 2, 2, 5, 6, 8 } },
          { .kernel = { 2, 3, 2 }, .stride = { 2, 1, 2 }, .before = { 1, 1, 0 }, .after = { 0, 2, 1 } },
          true },
        { { 5, { 1, 2, 17, 18, 20 } },
          { .kernel = { 3, 2, 3 }, .stride = { 1, 2, 2 }, .before = { 1, 0, 2 }, .after = { 1, 1, 2 } },
          true },
        { { 3, { 2, 3, 4 } }, { .kernel = { 2 }, .dilation = { 6 }, .before = { 5 }, .after = { 6 } }, false },
        { { 4, { 1, 2, 9, 10 } }, { .kernel = { 7, 6 }, .stride = { 2, 2 }, .before = { 3, 3 } }, false },
        { { 4, { 1, 2, 8, 6 } }, { .kernel = { 3, 4 }, .adaptive = true }, false },
    };
    /* so many that a thread has more rows */
    static const pooled many = { { 4, { 6, 64, 108, 112 } },
                                 { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 2 } },
                                 true };
    static const gn_dtype dtypes[] = { GN_BF16, GN_F16, GN_F32, GN_F64 };
    for (int i = 0; i < TEST_COUNT(pools); i++)
        for (int k = 0; k < 4; k++)
            compare_pool_back(&pools[i], &(job){ .d = dtypes[k < 3 ? 0 : 1 + i % 3], .form = k < 3 ? k : i % 2 });
    compare_pool_back(&many, &(job){ .d = GN_BF16 });
}

/* ---- matrices solved by panels: a rows, b right sides, c matrices ---- */

enum { ALL_OF_IT, LOWER, UPPER_WITH_ONES, CHOLESKY, DETERMINANT, SOLVED };

static gn_tensor build_solve(gn_ctx *g, const job *j, void **data) {
    gn_tensor m = gn_data(g, j->d, GN_SHAPE(j->c, j->a, j->a), data[0]),
              b = gn_data(g, j->d, GN_SHAPE(j->c, j->a, j->b), data[1]);
    gn_tensor at = gn_arange_i64(g, GN_I64, j->a, 0, 1),
              one = gn_cast(gn_eq(gn_reshape(at, GN_SHAPE(j->a, 1)), at), j->d);
    switch (j->form) {
    case ALL_OF_IT: return gn_solve(m, b);
    case LOWER: return gn_solve_triangular(gn_add(m, gn_mul_c(one, (double)j->a)), b, false, false);
    case UPPER_WITH_ONES:
        return gn_solve_triangular(gn_transpose(gn_mul_c(m, 2.0 / (double)j->a), 1, 2), b, true, true);
    case CHOLESKY: return gn_cholesky(gn_data(g, j->d, GN_SHAPE(j->c, j->a, j->a), data[2]));
    default: return gn_det(gn_add(gn_mul_c(m, 1 / sqrt((double)j->a)), one));
    }
}

/* m m^T + 1 of the matrices in data[0], computed here, so that both devices take the roots of equal ones. */
static void positive_matrices(const job *j, void **data) {
    int64_t n = j->a;
    for (int64_t i = 0; i < j->c * n * n; i++) {
        const double *m = (const double *)data[0] + i / n / n * n * n;
        double sum = i / n % n == i % n;
        for (int64_t k = 0; k < n; k++) sum += m[i / n % n * n + k] * m[i % n * n + k];
        ((double *)data[2])[i] = sum;
    }
}

TEST(matrices_solved_by_panels_have_the_bits_of_the_cpu) {
    static const struct {
        int64_t n, k, count;
        int forms;
    } sizes[] = {
        { 72, 1, 2, SOLVED }, { 49, 64, 1, UPPER_WITH_ONES + 1 }, { 97, 40, 1, LOWER }, { 260, 3, 1, LOWER }
    };
    for (int i = 0; i < TEST_COUNT(sizes); i++) {
        job j = { GN_F64, sizes[i].n, sizes[i].k, sizes[i].count, 0, 0 };
        void *data[3] = { random_bytes(GN_F64, j.c * j.a * j.a, 1), random_bytes(GN_F64, j.c * j.a * j.b, 1),
                          calloc((size_t)(j.c * j.a * j.a), 8) };
        if (sizes[i].forms > CHOLESKY) positive_matrices(&j, data);
        for (j.form = 0; j.form < sizes[i].forms; j.form++) compare("solved", build_solve, &j, data, 0);
        for (int k = 0; k < 3; k++) free(data[k]);
    }
}

TEST(a_singular_matrix_among_others_gives_nan_alone) {
    enum { N = 72 };
    static double m[2 * N * N], got[2 * N];
    for (int i = 0; i < N; i++) {
        m[i * N + i] = i != 40;             /* a column of zeros */
        m[N * N + i * N + (i + 1) % N] = 2; /* rows that change places */
    }
    if (compiles_only) return;
    gn_tensor t = gn_data(gpu, GN_F64, GN_SHAPE(2, N, N), m);
    gn_tensor b = gn_full(gpu, GN_F64, GN_SHAPE(2, N, 1), 1);
    CHECK_RESULT(gn_read(gn_solve(t, b), got, sizeof got), GN_OK);
    for (int i = 0; i < N; i++) CHECK(isnan(got[i]) && got[N + i] == 0.5);
    CHECK_RESULT(gn_read(gn_det(t), got, 16), GN_OK);
    CHECK(got[0] == 0 && got[1] == -0x1p72);
    gn_step(gpu);
}

static const test_entry tests[] = {
    TEST_ENTRY(chain_of_a_random_matrix_agrees_with_double),
    TEST_ENTRY(ones_times_ones_gives_the_value_by_hand),
    TEST_ENTRY(a_replayed_plan_carries_its_state),
    TEST_ENTRY(a_plan_launched_again_gives_what_it_gave),
    TEST_ENTRY(arguments_of_one_element_are_those_of_the_run),
    TEST_ENTRY(a_fault_after_an_append_in_place_changes_nothing),
    TEST_ENTRY(appends_at_a_computed_place_are_put_back_when_a_run_fails),
    TEST_ENTRY(indices_into_nothing_are_out_of_range),
    TEST_ENTRY(appends_at_one_place_are_put_back_in_their_order),
    TEST_ENTRY(several_rows_are_appended_to_all_caches_at_once),
    TEST_ENTRY(appends_at_the_end_save_nothing),
    TEST_ENTRY(a_failed_run_puts_back_appends_and_commits_nothing),
    TEST_ENTRY(an_old_version_is_read_beside_the_new_one),
    TEST_ENTRY(a_loop_after_a_product_is_no_kernel_of_its_own),
    TEST_ENTRY(products_of_more_than_2_to_the_31_elements_are_exact),
    TEST_ENTRY(a_kept_value_is_used_before_its_run_has_ended),
    TEST_ENTRY(copies_beside_kernels_change_nothing),
    TEST_ENTRY(the_wait_of_a_run_between_copies_tells_its_error),
    TEST_ENTRY(weights_beyond_the_memory_come_and_go),
    TEST_ENTRY(nonzero_of_many_elements_agrees_with_the_cpu),
    TEST_ENTRY(runs_along_long_rows_agree_with_the_cpu),
    TEST_ENTRY(long_rows_agree_with_the_cpu),
    TEST_ENTRY(norms_of_rows_that_fill_the_device_agree_with_the_cpu),
    TEST_ENTRY(the_best_of_long_rows_agrees_with_the_cpu),
    TEST_ENTRY(a_loop_takes_more_inputs_than_ever),
    TEST_ENTRY(a_cache_is_read_before_and_after_it_grows),
    TEST_ENTRY(a_cache_is_read_by_attention_written_out),
    TEST_ENTRY(products_of_one_row_meet_in_one_loop),
    TEST_ENTRY(tokens_one_by_one_agree_with_the_cpu),
    TEST_ENTRY(products_of_all_forms_agree_with_the_cpu),
    TEST_ENTRY(batched_products_agree_with_the_cpu),
    TEST_ENTRY(products_of_views_that_lie_backwards_agree_with_the_cpu),
    TEST_ENTRY(large_products_agree_with_the_cpu),
    TEST_ENTRY(plain_products_of_every_tile_agree_with_the_cpu),
    TEST_ENTRY(tf32_products_are_as_exact_as_their_inputs),
    TEST_ENTRY(products_on_tensor_cores_are_exact),
    TEST_ENTRY(attention_agrees_with_the_cpu),
    TEST_ENTRY(attention_is_stored_as_it_is_copied),
    TEST_ENTRY(windows_caps_slopes_and_sinks_agree_with_the_cpu),
    TEST_ENTRY(one_query_of_heads_that_share_keys_agrees_with_the_cpu),
    TEST_ENTRY(attention_of_long_prompts_agrees_with_the_cpu),
    TEST_ENTRY(attention_of_many_short_heads_agrees_with_the_cpu),
    TEST_ENTRY(attention_on_tensor_cores_takes_windows_and_sinks),
    TEST_ENTRY(attention_written_out_agrees_with_the_cpu),
    TEST_ENTRY(attention_written_out_of_many_shapes_agrees_with_the_cpu),
    TEST_ENTRY(values_of_hidden_keys_add_nothing),
    TEST_ENTRY(products_by_blas_are_as_exact_as_our_own),
    TEST_ENTRY(a_measured_product_has_equal_bits_in_all_sessions),
    TEST_ENTRY(products_of_few_rows_agree_with_the_cpu),
    TEST_ENTRY(few_rows_by_wide_matrices_agree_with_the_cpu),
    TEST_ENTRY(few_rows_by_large_matrices_are_exact),
    TEST_ENTRY(products_of_ever_other_rows_are_measured_a_few_times),
    TEST_ENTRY(loops_after_products_agree_with_the_cpu),
    TEST_ENTRY(rows_and_reductions_agree_with_the_cpu),
    TEST_ENTRY(a_norm_within_its_product_has_equal_bits),
    TEST_ENTRY(loops_over_large_tensors_reach_all_of_them),
    TEST_ENTRY(copies_of_large_tensors_reach_all_of_them),
    TEST_ENTRY(reductions_of_large_tensors_agree_with_sums_by_hand),
    TEST_ENTRY(indices_of_large_tensors_reach_all_of_them),
    TEST_ENTRY(rows_of_large_tensors_agree_with_double),
    TEST_ENTRY(random_numbers_of_large_tensors_do_not_repeat),
    TEST_ENTRY(long_products_of_large_tensors_reach_all_of_them),
    TEST_ENTRY(large_arguments_and_results_cross_whole),
    TEST_ENTRY(filters_of_a_weight_are_packed_once),
    TEST_ENTRY(an_infinite_filter_stays_at_its_border),
    TEST_ENTRY(convs_with_residuals_agree_with_the_cpu),
    TEST_ENTRY(convs_of_few_channels_agree_with_the_cpu),
    TEST_ENTRY(convs_around_pools_agree_with_the_cpu),
    TEST_ENTRY(pools_of_rows_have_the_bits_of_the_cpu),
    TEST_ENTRY(values_and_positions_of_a_pool_are_one_kernel),
    TEST_ENTRY(values_of_16_bits_are_widened_where_they_are_read),
    TEST_ENTRY(rows_of_a_widened_table_agree_with_the_cpu),
    TEST_ENTRY(gradients_of_convs_are_exact),
    TEST_ENTRY(activations_after_convs_are_no_kernels_of_their_own),
    TEST_ENTRY(tiles_of_the_same_filters_are_exact),
    TEST_ENTRY(filters_of_one_channel_are_exact),
    TEST_ENTRY(filters_of_one_channel_over_planes_are_exact),
    TEST_ENTRY(gradients_of_maximum_pools_have_the_bits_of_the_cpu),
    TEST_ENTRY(depthwise_convs_between_others_agree_with_the_cpu),
    TEST_ENTRY(states_of_rows_agree_with_the_cpu),
    TEST_ENTRY(a_matrix_that_lies_across_is_packed_once),
    TEST_ENTRY(filters_without_room_are_packed_in_each_run),
    TEST_ENTRY(rows_that_several_convolutions_read_are_laid_once),
    TEST_ENTRY(a_gradient_by_x_of_one_tap_is_one_kernel),
    TEST_ENTRY(matrices_solved_by_panels_have_the_bits_of_the_cpu),
    TEST_ENTRY(a_singular_matrix_among_others_gives_nan_alone),
};

int main(int argc, char **argv) {
    test_begin(argc, argv);
    device_name = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0";
    gpu = gn_open(&(gn_desc){ .devices = device_name });
    cpu = gn_open(&(gn_desc){ .devices = "cpu" });
    if (gn_status(gpu) != GN_OK) {
        printf("SKIP: gpu_test: %s\n0 passed, 0 failed, %d skipped\n", gn_last_error(gpu)->text, TEST_COUNT(tests));
        return 0;
    }
    compiles_only = getenv("GENIE_CUDA_COMPILE_ONLY") != NULL;
    bool begun = !compiles_only; /* tests before this one need values */
    for (int i = 0; i < TEST_COUNT(tests); i++) {
        begun = begun || strcmp(tests[i].name, "a_cache_is_read_by_attention_written_out") == 0;
        if (!begun) continue;
        uint64_t from = gn_now_us();
        test_all(tests + i, 1);
        if (test_wanted(tests[i].name)) printf("%6.1f s %s\n", (double)(gn_now_us() - from) * 1e-6, tests[i].name);
    }
    if (compiles_only && test_open("all_kernels_compile")) {
        all_kernels_compile();
        test_close();
    }
    gn_close(gpu);
    gn_close(cpu);
    return test_end();
}
