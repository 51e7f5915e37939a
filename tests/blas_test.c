/* OpenBLAS on request: right products, an identity that names it, a typed error where it is not. Chosen by measurement:
 * a library that is made up, quick or slow, in place of the one that dlopen finds.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#include <dlfcn.h>

static void *made_up_dlopen(const char *name, int how);
static void *made_up_dlsym(void *lib, const char *name);
static int made_up_dlclose(void *lib);
#define dlopen made_up_dlopen
#define dlsym made_up_dlsym
#define dlclose made_up_dlclose

#define GENIE_IMPLEMENTATION
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#undef dlopen
#undef dlsym
#undef dlclose
#include <dirent.h>

enum { MADE_UP_THREADS = 7, SLOW_US = 400000 };

static struct {
    bool on, missing, slow;
    int products;
    char core[32];
} made_up;

/* Large products, which are measured, take no time or long; small ones are right. */
static void made_up_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                          const float *b, int ldb, float beta, float *c, int ldc) {
    (void)order, (void)alpha;
    made_up.products++;
    if (m >= 256) {
        if (made_up.slow) usleep(SLOW_US);
        return;
    }
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = beta == 0 ? 0 : (double)(beta * c[i * ldc + j]);
            for (int l = 0; l < k; l++)
                sum += (double)(ta == 112 ? a[l * lda + i] : a[i * lda + l]) *
                       (double)(tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = (float)sum;
        }
    }
}

static void made_up_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                          const double *b, int ldb, double beta, double *c, int ldc) {
    (void)order, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb,
        (void)beta, (void)c, (void)ldc;
    test_fail(__FILE__, __LINE__, "no product of f64 was asked for");
}

static void made_up_set_threads(int n) { (void)n; }
static int made_up_threads(void) { return MADE_UP_THREADS; }
static char *made_up_config(void) {
    static char text[] = "OpenBLAS 9.8.7 MADE_UP";
    return text;
}
static char *made_up_core(void) { return made_up.core; }

static void *made_up_dlopen(const char *name, int how) {
    if (!made_up.on) return dlopen(name, how);
    return made_up.missing ? NULL : (void *)&made_up;
}

static void *made_up_dlsym(void *lib, const char *name) {
    static const struct {
        const char *name;
        void (*fn)(void);
    } functions[] = {
        { "cblas_sgemm", (void (*)(void))made_up_sgemm },
        { "cblas_dgemm", (void (*)(void))made_up_dgemm },
        { "openblas_set_num_threads", (void (*)(void))made_up_set_threads },
        { "openblas_get_num_threads", (void (*)(void))made_up_threads },
        { "openblas_get_config", (void (*)(void))made_up_config },
        { "openblas_get_corename", (void (*)(void))made_up_core },
    };
    void *found = NULL;
    if (lib != (void *)&made_up) return dlsym(lib, name);
    for (int i = 0; i < TEST_COUNT(functions); i++)
        if (strcmp(functions[i].name, name) == 0) memcpy(&found, &functions[i].fn, sizeof found);
    return found;
}

static int made_up_dlclose(void *lib) { return lib == (void *)&made_up ? 0 : dlclose(lib); }

enum { M = 37, K = 53, N = 41 };

static double a64[M * K], b64[K * N], bias64[N];
static float a32[M * K], b32[K * N], bias32[N];

/* NULL after a skip: the library is not here. */
static gn_ctx *open_with(const char *blas) {
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

static void fill(void) {
    for (int i = 0; i < M * K; i++) a32[i] = (float)(a64[i] = (double)(float)test_random_real(-1, 1));
    for (int i = 0; i < K * N; i++) b32[i] = (float)(b64[i] = (double)(float)test_random_real(-1, 1));
    for (int i = 0; i < N; i++) bias32[i] = (float)(bias64[i] = (double)(float)test_random_real(-1, 1));
}

/* A matrix as it lies, or as a view of its transpose, or as every row of a wider one. */
static gn_tensor side(gn_ctx *g, gn_dtype d, int rows, int cols, const void *p, bool flip) {
    gn_tensor t = gn_data(g, d, GN_SHAPE(rows, cols), p);
    return flip ? gn_transpose(gn_permute(gn_reshape(gn_concat((const gn_tensor[]){ gn_transpose(t, 0, 1) }, 1, 0),
                                                     GN_SHAPE(cols, rows)),
                                          GN_AXES(0, 1)),
                               0, 1)
                : t;
}

static void check_product(gn_ctx *g, gn_dtype d, bool flip_a, bool flip_b) {
    double got[M * N];
    const void *a = d == GN_F32 ? (const void *)a32 : a64, *b = d == GN_F32 ? (const void *)b32 : b64,
               *c = d == GN_F32 ? (const void *)bias32 : bias64;
    gn_tensor y = gn_linear(side(g, d, M, K, a, flip_a), side(g, d, K, N, b, flip_b), gn_data(g, d, GN_SHAPE(N), c));
    if (!CHECK_RESULT(gn_read(gn_cast(y, GN_F64), got, sizeof got), GN_OK)) return;
    for (int i = 0; i < M * N; i++) {
        double want = bias64[i % N];
        for (int k = 0; k < K; k++) want += a64[i / N * K + k] * b64[k * N + i % N];
        CHECK_NEAR(got[i], want, d == GN_F32 ? 2e-5 : 1e-13);
    }
}

TEST(products_by_openblas_are_right) {
    gn_ctx *g = open_with("openblas");
    if (!g) return;
    fill();
    for (int how = 0; how < 8; how++) check_product(g, how & 4 ? GN_F64 : GN_F32, how & 1, (how >> 1) & 1);
    gn_close(g);
}

TEST(openblas_and_its_threads_are_part_of_the_identity) {
    gn_device_info with, without;
    gn_ctx *g = open_with("openblas"), *own = open_with("own");
    CHECK_RESULT(gn_get_device(own, &without), GN_OK);
    CHECK(strstr(without.identity, "blas own") != NULL);
    gn_close(own);
    if (!g) return;
    CHECK_RESULT(gn_get_device(g, &with), GN_OK);
    CHECK(strstr(with.identity, "OpenBLAS") != NULL && strstr(with.identity, "2 threads") != NULL);
    gn_close(g);
}

TEST(another_blas_is_a_typed_error) {
    gn_ctx *g = open_with("fastest");
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    gn_close(g);
}

/* ---- GENIE_BLAS=auto ---- */

static char folder[64];
static int warnings;

static void count_warnings(void *user, gn_log_level level, const char *text) {
    (void)user;
    warnings += level == GN_LOG_WARN && strstr(text, "GENIE_BLAS") != NULL;
}

/* As another process would begin. */
static void forget(void) {
    memset(&gn__blas_loaded, 0, sizeof gn__blas_loaded);
    memset(gn__blas_choices, 0, sizeof gn__blas_choices);
}

/* The identity with a made-up library of this core type; the products of it that were run meanwhile. */
static int open_auto(const char *how, const char *core, bool slow, char identity[512]) {
    gn_device_info d;
    int before = made_up.products;
    made_up.slow = slow;
    snprintf(made_up.core, sizeof made_up.core, "%s", core);
    setenv("GENIE_BLAS", how, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2, .log = count_warnings });
    unsetenv("GENIE_BLAS");
    identity[0] = 0;
    if (CHECK_RESULT(gn_status(g), GN_OK) && CHECK_RESULT(gn_get_device(g, &d), GN_OK))
        snprintf(identity, 512, "%s", d.identity);
    gn_close(g);
    return made_up.products - before;
}

/* The one file of choices, for reading or to be spoilt. */
static FILE *stored(const char *how) {
    char path[400] = "";
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "blas-", 5) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        n++;
    }
    if (d) closedir(d);
    CHECK_INT(n, 1);
    return fopen(path, how);
}

static void begin_auto(void) {
    snprintf(folder, sizeof folder, "/tmp/genie_blas_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    setenv("GENIE_CACHE", folder, 1);
    made_up.on = true;
    made_up.missing = false;
    warnings = 0;
    forget();
}

static void end_auto(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK_INT(system(command), 0);
    unsetenv("GENIE_CACHE");
    made_up.on = false;
    forget();
}

TEST(auto_takes_the_quicker_and_keeps_to_it) {
    char identity[512], asked[512];
    begin_auto();
    CHECK(open_auto("auto", "quick", false, identity) > 1);
    CHECK(strstr(identity, "blas OpenBLAS 9.8.7 quick, 7 threads") != NULL);
    CHECK_INT(open_auto("openblas", "quick", false, asked), 0);
    CHECK_STR(identity, asked);
    forget();
    /* stored: nothing is measured, though it is slow by now */
    CHECK_INT(open_auto("auto", "quick", true, identity), 0);
    CHECK_STR(identity, asked);
    end_auto();
}

TEST(auto_leaves_a_slower_library) {
    char identity[512], own[512];
    begin_auto();
    CHECK(open_auto("auto", "slow", true, identity) > 1);
    CHECK_INT(open_auto("own", "slow", true, own), 0);
    CHECK_STR(identity, own);
    CHECK(strstr(own, "blas own") != NULL);
    forget();
    CHECK_INT(open_auto("auto", "slow", false, identity), 0);
    CHECK_STR(identity, own);
    forget();
    CHECK(open_auto("auto", "other", false, identity) > 1); /* another core type is another choice */
    CHECK(strstr(identity, "blas OpenBLAS 9.8.7 other, 7 threads") != NULL);
    CHECK_INT(warnings, 0);
    end_auto();
}

TEST(a_stored_choice_that_is_damaged_is_measured_again) {
    char identity[512], text[600];
    begin_auto();
    CHECK(open_auto("auto", "quick", false, identity) > 1);
    for (int damage = 0; damage < 3; damage++) {
        FILE *f = stored("rb");
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        if (!CHECK(n > 40) || fclose(f) != 0) break;
        if (damage == 0) n /= 2;
        if (damage == 1) memcpy(strstr(text, "\nopenblas\n"), "\nown\n12345", 10);
        if (damage == 2) n = 0;
        f = stored("wb");
        CHECK(f && fwrite(text, 1, n, f) == n);
        if (f) fclose(f);
        forget();
        CHECK(open_auto("auto", "quick", false, identity) > 1);
        CHECK(strstr(identity, "quick") != NULL);
        forget();
        CHECK_INT(open_auto("auto", "quick", true, identity), 0);
    }
    end_auto();
}

TEST(a_choice_that_cannot_be_stored_is_said_and_holds_for_the_process) {
    char identity[512], again[512];
    begin_auto();
    setenv("GENIE_CACHE", "/dev/null/nowhere", 1);
    CHECK(open_auto("auto", "quick", false, identity) > 1);
    CHECK_INT(warnings, 1);
    CHECK_INT(open_auto("auto", "quick", true, again), 0);
    CHECK_STR(identity, again);
    end_auto();
}

TEST(auto_without_the_library_is_our_own) {
    char identity[512];
    begin_auto();
    made_up.missing = true;
    CHECK_INT(open_auto("auto", "none", false, identity), 0);
    CHECK(strstr(identity, "blas own") != NULL);
    end_auto();
}

int main(int argc, char **argv) {
    static const test_entry tests[] = { TEST_ENTRY(auto_takes_the_quicker_and_keeps_to_it),
                                        TEST_ENTRY(auto_leaves_a_slower_library),
                                        TEST_ENTRY(a_stored_choice_that_is_damaged_is_measured_again),
                                        TEST_ENTRY(auto_without_the_library_is_our_own),
                                        TEST_ENTRY(a_choice_that_cannot_be_stored_is_said_and_holds_for_the_process),
                                        TEST_ENTRY(products_by_openblas_are_right),
                                        TEST_ENTRY(openblas_and_its_threads_are_part_of_the_identity),
                                        TEST_ENTRY(another_blas_is_a_typed_error) };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
