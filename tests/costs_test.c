/* What devices cost: measured on a host that is busy with other programs, and told by an explanation of a context over
 * one device; what waking threads costs, and when that is saved; where they run, and what they take over.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#define GENIE_IMPLEMENTATION
#include "../genie.h"

#include "test.h"
#include "loopback.h"

#include <signal.h>
#include <sys/wait.h>

enum { THREADS = 2, SPINNERS = 24 };

static gn_cluster_device measured(void) {
    gn_stats stats = { 0 };
    gn_exec_desc d = { "cpu", THREADS, 30000, false, &stats, NULL, NULL, NULL, NULL, false };
    gn_exec x;
    gn_fault f;
    uint32_t gen = 0;
    gn_cluster_device c = { .memory = 0 };
    if (gn__exec_open(&d, &x, &f) == GN_OK) {
        gn__measure_all(x, 0, &gen, &c);
        x.i->close(x.self);
    }
    return c;
}

/* Other programs that always want to compute. */
static void spin(pid_t *children, bool begin) {
    for (int i = 0; i < SPINNERS; i++) {
        if (begin && (children[i] = fork()) == 0)
            for (volatile uint64_t n = 0;; n++) { }
        if (!begin && children[i] > 0) {
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, 0);
        }
    }
}

static void check_factor(const char *what, double quiet, double busy, double most) {
    if (!(quiet > 0) || !(busy > 0) || busy > most * quiet || quiet > most * busy)
        test_fail(__FILE__, __LINE__, "%s: %.3g alone, %.3g on a busy host", what, quiet, busy);
}

/* Several times, since luck helps a measurement that is not robust. */
TEST(costs_measured_on_a_busy_host_are_near_those_of_a_quiet_one) {
    static const char *const names[GN_RATE__COUNT] = { "f32", "f16", "f64", "integers" };
    pid_t children[SPINNERS] = { 0 };
    double launch = 0, queue = 0;
    gn_cluster_device quiet = measured();
    spin(children, true);
    uint64_t begin = gn_now_us();
    for (int round = 0; round < 3; round++) {
        gn_cluster_device busy = measured();
        for (int i = 0; i < GN_RATE__COUNT; i++) check_factor(names[i], quiet.flops_per_s[i], busy.flops_per_s[i], 15);
        check_factor("bytes a second", quiet.bytes_per_s, busy.bytes_per_s, 15);
        launch = fmax(launch, busy.launch_s);
        queue = fmax(queue, busy.queue_s);
    }
    double each = (double)(gn_now_us() - begin) * 1e-6 / 3;
    spin(children, false);
    printf(
        "    %.2f s a measurement beside %d busy programs; a run %.1f us (quiet %.1f), a kernel %.1f us (quiet %.1f)\n",
        each, SPINNERS, queue * 1e6, quiet.queue_s * 1e6, launch * 1e6, quiet.launch_s * 1e6);
    CHECK(launch < 100e-6 + 12 * quiet.launch_s);
    CHECK(queue < 1e-3 + 12 * quiet.queue_s);
}

static float numbers[64 * 64];

/* An embedding whose table is the head, too. */
static gn_tensor tied(gn_ctx *g, gn_tensor table) {
    static const int32_t ids[8] = { 1, 2, 3 };
    gn_tensor x = gn_embedding(table, gn_data(g, GN_I32, GN_SHAPE(8), ids));
    return gn_softmax(gn_matmul(x, gn_transpose(table, 0, 1)), -1);
}

static void check_told(gn_ctx *g) {
    char text[4096], again[4096];
    float out[8 * 64];
    gn_tensor table = gn_weight(g, GN_F32, GN_SHAPE(64, 64), numbers, "tied"),
              state = gn_state(g, GN_F32, GN_SHAPE(2), numbers, "state");
    gn_tensor y = tied(g, table);
    gn_stats before, after;
    gn_get_stats(g, &before);
    CHECK_RESULT(gn_explain(&y, 1, NULL, text, sizeof text, NULL), GN_OK);
    gn_get_stats(g, &after);
    CHECK_INT(after.kernels_run, before.kernels_run);
    CHECK(strstr(text, "predicted: 0 ns") == NULL && strstr(text, "not measured") == NULL);
    CHECK(strstr(text, "avoided: 16 kB of weights") != NULL); /* 64 x 64 f32, read twice */
    CHECK_RESULT(gn_explain(&y, 1, NULL, again, sizeof again, NULL), GN_OK);
    CHECK_STR(again, text);
    /* everything works as before */
    if (!CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK)) printf("    %s\n", gn_last_error(g)->text);
    gn_assign(state, gn_add_c(state, 1));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(state, out, 8), GN_OK);
    CHECK(out[0] == 1 && out[1] == 1);
    gn_tensor late = gn_state(g, GN_F32, GN_SHAPE(2), numbers, "late"); /* takes a slot that was measured with */
    gn_assign(late, gn_add_c(late, 2));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(late, out, 8), GN_OK);
    CHECK(out[0] == 2);
}

TEST(an_explanation_of_one_device_predicts_its_time) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = THREADS });
    check_told(g);
    gn_close(g);
    g = loopback_open(&(gn_desc){ .threads = THREADS });
    check_told(g);
    gn_close(g);
}

static void ignore_event(void *user, const gn_trace_event *e) {
    (void)user;
    (void)e;
}

TEST(an_explanation_of_one_traced_device_predicts_its_time) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = THREADS, .trace = ignore_event });
    check_told(g);
    gn_close(g);
    g = loopback_open(&(gn_desc){ .threads = THREADS, .trace = ignore_event });
    check_told(g);
    gn_close(g);
}

TEST(a_tied_weight_counts_once_a_device) {
    gn_cluster_device devices[2] = { { .name = "a", .flops_per_s = { 1e12, 1e12, 1e12, 1e12 }, .bytes_per_s = 1e11 },
                                     { .name = "b", .flops_per_s = { 1e9, 1e9, 1e9, 1e9 }, .bytes_per_s = 1e9 } };
    gn_cluster_link links[9];
    for (int i = 0; i < 9; i++) links[i] = (gn_cluster_link){ 1e-4, 1e8 };
    gn_cluster cluster = { 2, devices, links };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    char text[4096];
    gn_tensor table = gn_weight(g, GN_F32, GN_SHAPE(64, 64), numbers, "tied"), y = tied(g, table);
    for (int i = 0; i < 6; i++) y = gn_matmul(y, table); /* read by ever more units */
    CHECK_RESULT(gn_explain(&y, 1, &(gn_explain_desc){ .cluster = &cluster }, text, sizeof text, NULL), GN_OK);
    CHECK(strstr(text, "avoided: 16 kB of weights") != NULL);
    gn_close(g);
}

/* Until the threads of g have gone to sleep; the rounds that were begun. */
static uint64_t rounds_begun(gn_ctx *g) {
    gn__pool *p = &((gn__cpu *)g->exec.self)->pool;
    for (uint32_t asleep = 0; asleep < p->n_threads; usleep(1000)) {
        gn__mutex_lock(&p->lock);
        asleep = p->asleep;
        gn__mutex_unlock(&p->lock);
    }
    return gn__atomic_load(&p->round);
}

/* Reads over n elements, several times, each beginning when all threads sleep; the least rounds that one began. */
static uint64_t rounds_of_read(gn_ctx *g, gn_tensor x, int64_t n, bool heavy) {
    static float out[1 << 18];
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint64_t before = rounds_begun(g);
        gn_tensor y = gn_slice(x, 0, 0, n, 1);
        for (int k = 0; k < 20 && heavy; k++) y = gn_tan(y);
        CHECK_RESULT(gn_read(gn_add_c(y, 1), out, (size_t)n * sizeof *out), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
        uint64_t began = rounds_begun(g) - before;
        if (began < least) least = began;
    }
    return least;
}

TEST(threads_that_sleep_are_woken_only_for_work_that_is_worth_it) {
    static float many[1 << 18];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    gn_tensor x = gn_weight(g, GN_F32, GN_SHAPE(1 << 18), many, "many");
    if (!TEST_SANITIZED) CHECK(rounds_of_read(g, x, 1 << 15, false) == 0); /* some microseconds of work, two ranges */
    CHECK(rounds_of_read(g, x, 1 << 18, true) >= 1);
    gn_close(g);
}

#ifdef __linux__
enum { CORE_WORDS = 128 };
static long cores_of_thread(unsigned long *mask) {
    memset(mask, 0, CORE_WORDS * sizeof *mask);
    return syscall(SYS_sched_getaffinity, 0, CORE_WORDS * sizeof *mask, mask);
}

static void leave_core(void *arg) {
    (void)arg;
    unsigned long before[CORE_WORDS], after[CORE_WORDS], one[CORE_WORDS] = { 0 };
    int64_t cores = 0;
    bool moved = false;
    long bytes = cores_of_thread(before);
    CHECK(bytes > 0);
    for (int i = 0; i < CORE_WORDS; i++) cores += __builtin_popcountl(before[i]);
    for (int tries = 0; tries < 50 && !moved; tries++) { /* it may be moved back before it is asked */
        int core = gn__core_now();
        gn__core_leave(core);
        moved = gn__core_now() != core;
        cores_of_thread(after);
        CHECK(memcmp(before, after, sizeof before) == 0);
    }
    if (cores > 1) CHECK(moved);
    int core = gn__core_now();
    one[core / 64] = 1ul << core % 64;
    CHECK(syscall(SYS_sched_setaffinity, 0, (size_t)bytes, one) == 0);
    gn__core_leave(core); /* there is no other */
    gn__core_leave(8 * (int)sizeof one);
    cores_of_thread(after);
    CHECK(gn__core_now() == core && memcmp(one, after, sizeof one) == 0);
}

TEST(a_thread_leaves_the_core_of_its_caller_and_may_come_back) {
    gn__thread t;
    CHECK(gn__thread_start(&t, leave_core, NULL));
    gn__thread_join(&t);
}
#else
TEST(a_thread_leaves_the_core_of_its_caller_and_may_come_back) { SKIP("cores of threads are Linux's"); }
#endif

/* The product (m,k) @ (k,n) of these dtypes. */
static void product_by(uint32_t threads, gn_dtype d, const int64_t *dims, double *out) {
    int64_t m = dims[0], k = dims[1], n = dims[2];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
    gn_tensor a = gn_add_c(gn_random_uniform(g, GN_F32, GN_SHAPE(m, k)), -0.5),
              b = gn_add_c(gn_random_uniform(g, GN_F32, GN_SHAPE(k, n)), -0.5);
    gn_tensor y = gn_cast(gn_matmul(gn_cast(a, d), gn_cast(b, d)), GN_F64);
    CHECK_RESULT(gn_read(y, out, (size_t)(m * n) * sizeof *out), GN_OK);
    gn_close(g);
}

/* Who has no task left takes rows of the others'. */
TEST(rows_that_other_threads_take_over_have_the_same_bits) {
    static const int64_t dims[][3] = { { 700, 300, 512 }, { 300, 2300, 300 }, { 1500, 1100, 100 }, { 33, 520, 1100 } };
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_BF16 };
    for (size_t c = 0; c < sizeof dims / sizeof *dims; c++) {
        size_t bytes = (size_t)(dims[c][0] * dims[c][2]) * sizeof(double);
        double *want = malloc(bytes), *got = malloc(bytes);
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            product_by(1, dtypes[t], dims[c], want);
            for (uint32_t threads = 2; threads <= 5; threads++) {
                product_by(threads, dtypes[t], dims[c], got);
                CHECK(memcmp(want, got, bytes) == 0);
            }
        }
        free(want);
        free(got);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(costs_measured_on_a_busy_host_are_near_those_of_a_quiet_one),
        TEST_ENTRY(an_explanation_of_one_device_predicts_its_time),
        TEST_ENTRY(an_explanation_of_one_traced_device_predicts_its_time),
        TEST_ENTRY(a_tied_weight_counts_once_a_device),
        TEST_ENTRY(threads_that_sleep_are_woken_only_for_work_that_is_worth_it),
        TEST_ENTRY(a_thread_leaves_the_core_of_its_caller_and_may_come_back),
        TEST_ENTRY(rows_that_other_threads_take_over_have_the_same_bits),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    loopback_close();
    return test_end();
}
