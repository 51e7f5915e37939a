/* Every kernel that the conformance suite needs on a GPU, generated and compiled without one. not in the quick run
 *
 * The suite runs on a "cuda:0" that generates and executes nothing (GENIE_CUDA_COMPILE_ONLY); then what was generated is compiled
 * by NVRTC, deduplicated and twenty kernels to a program: every shape for one arch, one kernel of each kind for the others. Skips
 * with the reason where NVRTC is not found. KERNELS_ARCH names the one arch (sm_90a); what compiles is left in $GENIE_CACHE.
 * Under a sanitizer one kernel of each kind is compiled for that arch: NVRTC has no instrumented code, the generator has. */
#define main conformance_main
#include "conformance_test.c"
#undef main

GN_API size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text, size_t cap);

/* NVRTC's own threads and locks are not instrumented. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "called_from_lib:libnvrtc.so\nrace:libnvrtc.so\n"; }

static bool compile_for(const char *arch, bool one_of_each)
{
    static char why[8000];
    char name[96];
    size_t failed = 0;
    snprintf(name, sizeof name, "%s_kernels_compile_for_%s", one_of_each ? "one_of_each_kind_of" : "all", arch);
    if (!test_open(name)) {
        return false;
    }
    alarm(0);
    double from = (double)clock() / CLOCKS_PER_SEC;
    size_t n = gn_cuda_compile_collected(arch, one_of_each, &failed, why, sizeof why);
    printf("%s: %zu kernels, %.1f s of CPU\n", arch, n, (double)clock() / CLOCKS_PER_SEC - from);
    if (failed || n == 0) {
        test_fail(__FILE__, __LINE__, "%zu of %zu kernels do not compile; the first: %s", failed, n, why);
    }
    test_close();
    return true;
}

int main(int argc, char **argv)
{
    static const char *const others[] = { "sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120" };
    const char *arch = getenv("KERNELS_ARCH") ? getenv("KERNELS_ARCH") : "sm_90a";
    test_begin(argc, argv);
    setenv("GENIE_CUDA_COMPILE_ONLY", arch, 1);
    setenv("GENIE_TEST_DEVICES", "cuda:0", 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cuda:0" });
    if (gn_status(g) != GN_OK) {
        printf("SKIP: kernels: %s\n0 passed, 0 failed, 1 skipped\n", gn_last_error(g)->text);
        gn_close(g);
        return 0;
    }
    gn_close(g);
    open_devices();
    for (int i = 0; i < gn_op_count(); i++) {
        gn_op_info row;
        if (gn_get_op(i, &row) == GN_OK) {
            test_row(&row, ON_NAMED);
        }
    }
    for (int k = 0; k < TEST_COUNT(composites); k++) {
        gn_op_info row = { .name = composites[k].name, .kind = GN_CLASS_STRUCTURED, .dtypes = composites[k].dtypes, .tolerance = composites[k].tolerance };
        test_row(&row, ON_NAMED);
    }
    compile_for(arch, TEST_SANITIZED);
    for (int i = 0; i < TEST_COUNT(others) && !getenv("KERNELS_ARCH") && !TEST_SANITIZED; i++) {
        compile_for(others[i], true);
    }
    for (int on = 0; on < DEVICES; on++) {
        gn_close(contexts[on]);
    }
    loopback_close();
    return test_end();
}
