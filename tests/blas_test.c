/* OpenBLAS on request: right products, an identity that names it, a typed error where it is not. */
#define GENIE_IMPLEMENTATION
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

enum { M = 37, K = 53, N = 41 };

static double a64[M * K], b64[K * N], bias64[N];
static float a32[M * K], b32[K * N], bias32[N];

/* NULL after a skip: the library is not here. */
static gn_ctx *open_with(const char *blas)
{
    setenv("GENIE_BLAS", blas, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    unsetenv("GENIE_BLAS");
    if (gn_status(g) == GN_NO_DEVICE && strcmp(blas, "openblas") == 0) {
        test_skip("libopenblas.so.0 is not here");
        gn_close(g);
        return NULL;
    }
    return g;
}

static void fill(void)
{
    for (int i = 0; i < M * K; i++) a32[i] = (float)(a64[i] = (double)(float)test_random_real(-1, 1));
    for (int i = 0; i < K * N; i++) b32[i] = (float)(b64[i] = (double)(float)test_random_real(-1, 1));
    for (int i = 0; i < N; i++) bias32[i] = (float)(bias64[i] = (double)(float)test_random_real(-1, 1));
}

/* A matrix as it lies, or as a view of its transpose, or as every row of a wider one. */
static gn_tensor side(gn_ctx *g, gn_dtype d, int rows, int cols, const void *p, bool flip)
{
    gn_tensor t = gn_data(g, d, GN_SHAPE(rows, cols), p);
    return flip ? gn_transpose(gn_permute(gn_reshape(gn_concat((const gn_tensor[]){ gn_transpose(t, 0, 1) }, 1, 0), GN_SHAPE(cols, rows)), GN_AXES(0, 1)), 0, 1) : t;
}

static void check_product(gn_ctx *g, gn_dtype d, bool flip_a, bool flip_b)
{
    double got[M * N];
    const void *a = d == GN_F32 ? (const void *)a32 : a64, *b = d == GN_F32 ? (const void *)b32 : b64, *c = d == GN_F32 ? (const void *)bias32 : bias64;
    gn_tensor y = gn_linear(side(g, d, M, K, a, flip_a), side(g, d, K, N, b, flip_b), gn_data(g, d, GN_SHAPE(N), c));
    if (!CHECK_RESULT(gn_read(gn_cast(y, GN_F64), got, sizeof got), GN_OK)) {
        return;
    }
    for (int i = 0; i < M * N; i++) {
        double want = bias64[i % N];
        for (int k = 0; k < K; k++) {
            want += a64[i / N * K + k] * b64[k * N + i % N];
        }
        CHECK_NEAR(got[i], want, d == GN_F32 ? 2e-5 : 1e-13);
    }
}

TEST(products_by_openblas_are_right)
{
    gn_ctx *g = open_with("openblas");
    if (!g) {
        return;
    }
    fill();
    for (int how = 0; how < 8; how++) {
        check_product(g, how & 4 ? GN_F64 : GN_F32, how & 1, (how >> 1) & 1);
    }
    gn_close(g);
}

TEST(openblas_and_its_threads_are_part_of_the_identity)
{
    gn_device_info with, without;
    gn_ctx *g = open_with("openblas"), *own = open_with("own");
    CHECK_RESULT(gn_get_device(own, &without), GN_OK);
    CHECK(strstr(without.identity, "blas own") != NULL);
    gn_close(own);
    if (!g) {
        return;
    }
    CHECK_RESULT(gn_get_device(g, &with), GN_OK);
    CHECK(strstr(with.identity, "OpenBLAS") != NULL && strstr(with.identity, "2 threads") != NULL);
    gn_close(g);
}

TEST(another_blas_is_a_typed_error)
{
    gn_ctx *g = open_with("fastest");
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    gn_close(g);
}

int main(int argc, char **argv)
{
    static const test_entry tests[] = { TEST_ENTRY(products_by_openblas_are_right), TEST_ENTRY(openblas_and_its_threads_are_part_of_the_identity), TEST_ENTRY(another_blas_is_a_typed_error) };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
