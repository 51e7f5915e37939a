/* Faults of a GPU, asked of tests/cuda_shim.c by the file $GENIE_SHIM_FAULTS: out of memory, a kernel that does not
 * compile, an error that breaks the context. The device is that of $GENIE_TEST_DEVICES ("cuda:0", or a server of it
 * whose environment names the same file). tests/shim_test.sh runs this; alone it skips.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include <math.h>

#include "test.h"

static const char *device_name = "cuda:0";

/* NULL ends the fault. */
static bool ask_fault(const char *what) {
    const char *path = getenv("GENIE_SHIM_FAULTS");
    if (!what) return remove(path) == 0;
    FILE *f = fopen(path, "w");
    return f && fputs(what, f) >= 0 && fclose(f) == 0;
}

/* Two clients of one device. */
static void open_two(gn_ctx *g[2]) {
    for (int i = 0; i < 2; i++) {
        g[i] = gn_open(&(gn_desc){ .devices = device_name });
        CHECK_RESULT(gn_status(g[i]), GN_OK);
    }
}

static gn_result read_sum(gn_ctx *g, int64_t n) {
    float out = 0;
    gn_tensor x = gn_exp(gn_full(g, GN_F32, GN_SHAPE(n), 0));
    gn_result r = gn_realize(&x, 1); /* so that all n are in memory */
    if (r == GN_OK) r = gn_read(gn_sum(x, GN_ALL_AXES, false), &out, sizeof out);
    CHECK(r != GN_OK || out == (float)n);
    gn_step(g);
    return r;
}

static void out_of_memory_is_that_clients_error_alone(void) {
    gn_ctx *g[2];
    REQUIRE(ask_fault("memory 1000000"));
    open_two(g);
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(read_sum(g[0], 1 << 20), GN_OUT_OF_MEMORY);
        CHECK(strstr(gn_last_error(g[0])->text, "memory") != NULL);
        CHECK_RESULT(read_sum(g[1], 1 << 10), GN_OK);
    }
    CHECK(ask_fault(NULL));
    CHECK_RESULT(read_sum(g[0], 1 << 20), GN_OK);
    gn_close(g[0]);
    gn_close(g[1]);
}

static void a_kernel_that_does_not_compile_is_that_clients_error_alone(void) {
    gn_ctx *g[2];
    float x[4] = { 0.5f, 0.5f, 0.5f, 0.5f }, out[4];
    REQUIRE(ask_fault("compile GN_M_ATANH"));
    open_two(g);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gn_read(gn_atanh(gn_data(g[0], GN_F32, GN_SHAPE(4), x)), out, sizeof out), GN_COMPILE_FAILED);
        CHECK(strstr(gn_last_error(g[0])->text, "asked not to compile") != NULL);
        gn_step(g[0]);
        CHECK_RESULT(gn_read(gn_square(gn_data(g[1], GN_F32, GN_SHAPE(4), x)), out, sizeof out), GN_OK);
        CHECK(out[3] == 0.25f);
        gn_step(g[1]);
    }
    CHECK(ask_fault(NULL));
    gn_close(g[0]);
    gn_close(g[1]);
}

static void check_no_memory_for_code(const char *kind, bool last) {
    gn_ctx *g[2];
    float x[4] = { 0.5f, 0.5f, 0.5f, 0.5f }, out[4];
    open_two(g);
    for (int i = 0; i < 3; i++) { /* the second time no program is loaded */
        if (i == 1) REQUIRE(ask_fault(kind));
        gn_tensor y = gn_data(g[0], GN_F32, GN_SHAPE(4), x), known = gn_data(g[1], GN_F32, GN_SHAPE(4), x);
        CHECK_RESULT(gn_read(!i     ? gn_neg(y)
                             : last ? gn_sinh(y)
                                    : gn_cosh(y),
                             out, sizeof out),
                     i == 1 ? GN_OUT_OF_MEMORY : GN_OK);
        if (i == 1) CHECK(strstr(gn_last_error(g[0])->text, "no memory left for the code of kernel") != NULL);
        CHECK_RESULT(gn_read(gn_neg(known), out, sizeof out), GN_OK);
        if (i == 1) CHECK(ask_fault(NULL));
        gn_step(g[0]);
        gn_step(g[1]);
    }
    gn_close(g[0]);
    gn_close(g[1]);
}

static void no_memory_for_code_is_that_clients_error_alone(void) {
    check_no_memory_for_code("code", false);
    check_no_memory_for_code("lazily", true);
}

/* Weights and a state make room for code, and are back when it runs. */
static void code_takes_the_place_of_what_may_come_back(void) {
    enum { N = 3, K = 64 };
    static float w[N][K * K], x[K], out[K];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device_name });
    gn_tensor weights[N], sum = gn_state(g, GN_F32, GN_SHAPE(1, K), NULL, "sum");
    for (int i = 0; i < N * K * K; i++) w[i / (K * K)][i % (K * K)] = (float)(i % 7 - 3) / 4;
    for (int i = 0; i < K; i++) x[i] = (float)(i % 5) / 2;
    for (int i = 0; i < N; i++) weights[i] = gn_weight(g, GN_F32, GN_SHAPE(K, K), w[i], "w");
    for (int refused = 0; refused < 6; refused++) {
        char fault[20];
        gn_tensor y = gn_add_c(gn_data(g, GN_F32, GN_SHAPE(1, K), x), 0);
        for (int i = 0; i < N; i++) y = gn_relu(gn_matmul(y, weights[(i + refused) % N]));
        y = gn_mul_c(y, 1 + refused); /* a plan and kernels of its own */
        gn_assign(sum, gn_add(sum, gn_mul_c(y, 0)));
        snprintf(fault, sizeof fault, refused % 2 ? "code %d" : "lazily %d", refused);
        if (refused) REQUIRE(ask_fault(fault));
        gn_result r = gn_read(gn_add(y, sum), out, sizeof out);
        if (refused && r == GN_OUT_OF_MEMORY) r = gn_read(gn_add(y, sum), out, sizeof out);
        CHECK_RESULT(r, GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
        float a[K], b[K];
        memcpy(a, x, sizeof a);
        for (int i = 0; i < N; i++) {
            for (int c = 0; c < K; c++) {
                b[c] = 0;
                for (int k = 0; k < K; k++) b[c] += a[k] * w[(i + refused) % N][k * K + c];
            }
            for (int c = 0; c < K; c++) a[c] = b[c] > 0 ? b[c] : 0;
        }
        for (int c = 0; c < K; c++) CHECK(fabsf(out[c] - a[c] * (float)(1 + refused)) <= 1e-4f * (1 + fabsf(out[c])));
        remove(getenv("GENIE_SHIM_FAULTS"));
    }
    gn_close(g);
}

/* The last test: here the device is lost for the process; a server starts again and serves within seconds. */
static void an_error_that_breaks_the_context_loses_the_device_with_its_cause(void) {
    gn_ctx *g[3];
    open_two(g);
    CHECK_RESULT(read_sum(g[0], 100), GN_OK);
    CHECK_RESULT(read_sum(g[1], 100), GN_OK);
    CHECK(ask_fault("sticky"));
    CHECK_RESULT(read_sum(g[0], 100), GN_DEVICE_LOST);
    CHECK(strstr(gn_last_error(g[0])->text, "an error of the shim") != NULL);
    gn_result second = read_sum(g[1], 100);
    CHECK(second == GN_DEVICE_LOST || second == GN_DISCONNECTED);
    bool remote = strncmp(device_name, "cuda", 4) != 0;
    uint64_t end = gn_now_us() + 15000000;
    do {
        g[2] = gn_open(&(gn_desc){ .devices = device_name, .deadline_ms = 5000 });
        if (remote && gn_status(g[2]) == GN_OK) break;
        gn_close(g[2]);
    } while (remote && gn_now_us() < end);
    if (remote && CHECK(gn_now_us() < end)) {
        CHECK_RESULT(read_sum(g[2], 100), GN_OK);
        gn_close(g[2]);
    }
    gn_close(g[0]);
    gn_close(g[1]);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(out_of_memory_is_that_clients_error_alone),
        TEST_ENTRY(a_kernel_that_does_not_compile_is_that_clients_error_alone),
        TEST_ENTRY(no_memory_for_code_is_that_clients_error_alone),
        TEST_ENTRY(code_takes_the_place_of_what_may_come_back),
        TEST_ENTRY(an_error_that_breaks_the_context_loses_the_device_with_its_cause),
    };
    test_begin(argc, argv);
    if (!getenv("GENIE_SHIM_FAULTS")) {
        printf("SKIP: gpu_fault_test: only tests/cuda_shim.c has faults on demand (GENIE_SHIM_FAULTS); shim_test.sh "
               "runs this with it\n0 passed, 0 failed, %d skipped\n",
               TEST_COUNT(tests));
        return 0;
    }
    if (getenv("GENIE_TEST_DEVICES")) device_name = getenv("GENIE_TEST_DEVICES");
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
