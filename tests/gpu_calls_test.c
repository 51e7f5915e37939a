/* Every call of the driver fails once: the n-th one, for n = 0, 1, … until a run makes fewer. Steps answer what is
 * right or a typed error; a step that fails has changed no state; what was made is destroyed; nothing hangs. Once with
 * an error that passes (out of memory), once with one that breaks the context. tests/cuda_shim.c fails on demand;
 * tests/shim_test.sh runs this with it.
 *
 * Each run is a process of its own, so that the calls before the first step are among them. $GENIE_TEST_EVERY=K: one
 * call of K.
 *
 * Tier: quick kernels address thread */
#define GENIE_EXT
#include "../genie.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test.h"
#include "loopback.h"

enum { PASSES = 2, BREAKS = 700 }; /* errors of the driver: no memory; an illegal address */

static struct {
    void (*fail)(long at, int code);
    long (*calls)(void), (*live)(void);
    const char *(*failed_call)(void);
} shim;

/* What a run tells its parent. */
static struct shared {
    long calls, errors, steps;
    gn_stats stats;
    char failed[64], what[400];
} * told;

static void wrong(const char *format, ...) {
    va_list args;
    if (!*told->what) {
        va_start(args, format);
        vsnprintf(told->what, sizeof told->what, format, args);
        va_end(args);
    }
}

/* ---- a little of everything ---- */

enum { N = 16, LARGE = 600000, WEIGHTS = 6, SIDE = 64, PLACES = 8, HEAD = 4 };

/* What the states are, by what was told. */
typedef struct expected {
    float sum, picked, cache[PLACES];
    bool lost, may_lose;
} expected;

typedef struct work {
    gn_ctx *g;
    gn_tensor sum, picked, cache, large, w[WEIGHTS];
    float data[WEIGHTS][SIDE * SIDE], start[LARGE];
    expected e;
} work;

static uint64_t runs_of(gn_ctx *g) {
    gn_stats s;
    memset(&s, 0, sizeof s);
    gn_get_stats(g, &s);
    return s.steps_run;
}

/* An answer: typed, and with its cause in words. */
static bool answered(work *x, gn_result r, const char *step) {
    told->steps++;
    if (r == GN_OK) return true;
    told->errors++;
    if (r != GN_OUT_OF_MEMORY && r != GN_DEVICE_LOST && r != GN_INTERNAL && r != GN_COMPILE_FAILED &&
        r != GN_STALE_HANDLE && r != GN_STATE_FAILED)
        wrong("%s: %s: %s", step, gn_result_name(r), gn_last_error(x->g)->text);
    if (!*gn_last_error(x->g)->text) wrong("%s: %s without a word", step, gn_result_name(r));
    return false;
}

/* Reads; then ends the step, which tries an update again that did not come to run. Whether the update has happened. */
static bool read_and_step(work *x, const char *step, gn_tensor *want, int n, void **to, size_t *bytes, bool *out_read) {
    uint64_t before = runs_of(x->g);
    gn_result r = gn_read_many(want, n, to, bytes);
    bool ran = runs_of(x->g) > before;
    *out_read = answered(x, r, step);
    r = gn_step(x->g);
    return *out_read || (!ran && runs_of(x->g) > before && answered(x, r, step));
}

static void expect(const char *step, float got, float want) {
    if (got != want) wrong("%s is %g, not %g", step, (double)got, (double)want);
}

/* Two kernels and an exchange of memory: replayed from the third time on. */
static void counts(work *x, int turn) {
    float in[N], out[2] = { -1, -1 };
    bool read;
    for (int i = 0; i < N; i++) in[i] = (float)(turn + i % 3);
    gn_tensor y = gn_sum(gn_data(x->g, GN_F32, GN_SHAPE(N), in), GN_ALL_AXES, false);
    gn_tensor next = gn_assign(x->sum, gn_add(x->sum, y)), want[2] = { gn_mul_c(y, 2), next };
    float add = 0;
    for (int i = 0; i < N; i++) add += in[i];
    bool updated = read_and_step(x, "a sum", want, 2, (void *[2]){ &out[0], &out[1] }, (size_t[2]){ 4, 4 }, &read);
    if (updated) x->e.sum += add;
    if (read) {
        expect("twice the argument's sum", out[0], 2 * add);
        expect("the state of sums", out[1], x->e.sum);
    }
}

/* An index may be wrong, so the state is written when all is known. */
static void picks(work *x, int turn) {
    float in[N], out = -1;
    int32_t index = turn % N;
    bool read;
    for (int i = 0; i < N; i++) in[i] = (float)(3 * i + turn);
    gn_tensor y =
        gn_reshape(gn_gather(gn_data(x->g, GN_F32, GN_SHAPE(N), in), 0, gn_data(x->g, GN_I32, GN_SHAPE(1), &index)),
                   GN_SHAPE(1));
    gn_tensor next = gn_assign(x->picked, gn_add(x->picked, y));
    if (read_and_step(x, "a pick", &next, 1, (void *[1]){ &out }, (size_t[1]){ 4 }, &read)) x->e.picked += in[index];
    if (read) expect("the state of picks", out, x->e.picked);
}

/* A cache that is written in place. */
static void appends(work *x, int turn) {
    float in[HEAD] = { (float)turn, 1, 1, 1 }, out[PLACES] = { 0 };
    int place = turn % PLACES;
    bool read;
    gn_tensor next =
        gn_kv_append(x->cache, gn_data(x->g, GN_F32, GN_SHAPE(1, 1, 1, HEAD), in), gn_scalar(x->g, GN_I32, place));
    gn_tensor y = gn_reshape(gn_sum(next, GN_AXES(3), false), GN_SHAPE(PLACES));
    if (read_and_step(x, "an append", &y, 1, (void *[1]){ out }, (size_t[1]){ sizeof out }, &read))
        x->e.cache[place] = (float)turn + 3;
    for (int i = 0; i < PLACES && read; i++) expect("a row of the cache", out[i], x->e.cache[i]);
}

/* A value of one run is used by the next. */
static void keeps(work *x, int turn) {
    float in[N], out = -1, want = 0;
    for (int i = 0; i < N; i++) {
        in[i] = (float)(i + turn);
        want += 2 * in[i];
    }
    gn_tensor y = gn_mul_c(gn_data(x->g, GN_F32, GN_SHAPE(N), in), 2);
    answered(x, gn_realize(&y, 1), "a kept value");
    if (answered(x, gn_read(gn_sum(y, GN_ALL_AXES, false), &out, sizeof out), "a kept value's sum"))
        expect("a kept value's sum", out, want);
    answered(x, gn_step(x->g), "a step");
}

/* More weights than there is memory for come and go. */
static void crowds(work *x, unsigned which) {
    float out[WEIGHTS];
    gn_tensor y[WEIGHTS];
    void *to[WEIGHTS];
    size_t bytes[WEIGHTS];
    int n = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        if (!(which >> i & 1)) continue;
        y[n] = gn_reshape(gn_slice(gn_reshape(gn_neg(gn_slice(x->w[i], 0, 5, 6, 1)), GN_SHAPE(SIDE)), 0, i, i + 1, 1),
                          GN_SHAPE(1));
        out[n] = -1;
        to[n] = &out[n];
        bytes[n++] = 4;
    }
    if (!answered(x, gn_read_many(y, n, to, bytes), "weights")) n = 0;
    for (int i = 0, at = 0; i < WEIGHTS && n; i++)
        if (which >> i & 1) expect("a weight's element", out[at++], -x->data[i][5 * SIDE + i]);
    answered(x, gn_step(x->g), "a step");
}

/* Large arguments land and large results leave beside the kernels, by way of pinned pieces or from pinned memory. */
static void moves_large(work *x, int turn) {
    static float plain_in[LARGE], plain_out[LARGE];
    size_t bytes = sizeof plain_in;
    float *pinned = turn % 2 ? gn_host_alloc(x->g, 2 * bytes) : NULL, *in = pinned ? pinned : plain_in,
          *out = pinned ? pinned + LARGE : plain_out, few[8];
    for (int i = 0; i < LARGE; i++) in[i] = (float)(i % 251 + turn);
    memset(out, 0xff, bytes);
    memset(few, 0xff, sizeof few);
    gn_tensor part = gn_neg(gn_slice(gn_data(x->g, GN_F32, GN_SHAPE(LARGE), in), 0, LARGE - 8, LARGE, 1)),
              want[2] = { part, x->large };
    if (answered(x, gn_read_many(want, 2, (void *[2]){ few, out }, (size_t[2]){ sizeof few, bytes }), "large values")) {
        for (int i = 0; i < 8; i++) expect("an element that landed", few[i], -in[LARGE - 8 + i]);
        if (memcmp(out, x->start, bytes) != 0) wrong("large values that left are wrong");
    }
    answered(x, gn_step(x->g), "a step");
    if (pinned) gn_host_free(x->g, pinned);
}

static void work_run(work *x, const char *memory) {
    setenv("GENIE_CUDA_MEMORY", memory, 1);
    x->g = gn_open(&(gn_desc){ .devices = "cuda:0" });
    if (gn_status(x->g) != GN_OK) {
        answered(x, gn_status(x->g), "open");
        gn_close(x->g);
        return;
    }
    for (int i = 0; i < LARGE; i++) x->start[i] = (float)(i % 127);
    for (int i = 0; i < WEIGHTS * SIDE * SIDE; i++) x->data[i / (SIDE * SIDE)][i % (SIDE * SIDE)] = (float)(i % 1009);
    x->sum = gn_state(x->g, GN_F32, GN_SCALAR, NULL, "sum");
    x->picked = gn_state(x->g, GN_F32, GN_SHAPE(1), NULL, "picked");
    x->cache = gn_state(x->g, GN_F32, GN_SHAPE(1, 1, PLACES, HEAD), NULL, "cache");
    x->large = gn_state(x->g, GN_F32, GN_SHAPE(LARGE), x->start, "large");
    for (int i = 0; i < WEIGHTS; i++) x->w[i] = gn_weight(x->g, GN_F32, GN_SHAPE(SIDE, SIDE), x->data[i], "w");
    for (int turn = 1; turn <= 4; turn++) {
        counts(x, turn);
        picks(x, turn);
        appends(x, turn);
        keeps(x, turn);
        if (turn < 4) crowds(x, turn == 2 ? 0x3f : 0x15);
        if (turn < 4) moves_large(x, turn);
    }
    gn_release(x->large);
    gn_get_stats(x->g, &told->stats);
    gn_close(x->g);
}

/* ---- runs ---- */

/* In a process of its own; true: it ended well, and told is filled in. */
static bool run(long at, int code, const char *memory) {
    int status = 0;
    memset(told, 0, sizeof *told);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        static work x;
        alarm(TEST_SANITIZED ? 120 : 40);
        shim.fail(at, code);
        work_run(&x, memory);
        told->calls = shim.calls();
        snprintf(told->failed, sizeof told->failed, "%s", shim.failed_call());
        if (code != BREAKS && shim.live() != 0) wrong("%ld things of the driver are left", shim.live());
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return false;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        test_fail(__FILE__, __LINE__, "call %ld (%s) fails with %d: the program ends with %s %d; %s", at, told->failed,
                  code, WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), told->what);
        return false;
    }
    if (*told->what)
        test_fail(__FILE__, __LINE__, "call %ld (%s) fails with %d: %s", at, told->failed, code, told->what);
    return true;
}

static void each_call_fails(int code, const char *memory, bool evicts) {
    const char *every = getenv("GENIE_TEST_EVERY");
    long step = every && atoi(every) > 0 ? atoi(every) : 1, errors = 0, steps = 0, tried = 0;
    REQUIRE(run(-1, 0, memory));
    CHECK_INT(told->errors, 0);
    const gn_stats *all = &told->stats;
    CHECK(all->copies_aside > 0 && (all->evictions > 5 && all->weight_moves > 2) == evicts);
    long calls = told->calls;
    CHECK(calls > 100);
    for (long at = test_random_int(0, step - 1); at < calls; at += step) {
        run(at, code, memory);
        errors += told->errors;
        steps += told->steps;
        tried++;
    }
    printf("%ld calls, %ld of them failed in turn: %ld of %ld answers were errors\n", calls, tried, errors, steps);
    CHECK(errors > 0 && errors < steps);
}

/* At 11 MB all fits, at 4.84 MB weights come and go; a step with the large state and as large an argument fits. */
static void a_call_that_fails_once_is_an_error_of_that_step_alone(void) { each_call_fails(PASSES, "11000000", false); }
static void a_call_that_fails_once_while_memory_is_short_is_an_error_of_that_step_alone(void) {
    each_call_fails(PASSES, "4840000", true);
}
static void a_call_that_breaks_the_context_is_an_error_of_all_steps_after_it(void) {
    each_call_fails(BREAKS, "4840000", true);
}

/* ---- two devices, of which one is lost ---- */

static gn_result one_step(gn_ctx *g, const char *device, float x) {
    float out = -1;
    if (device) gn_on(g, device);
    gn_result r = gn_read(gn_add_c(gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(1), &x), 2), 1), &out, sizeof out);
    gn_step(g);
    if (r == GN_OK) expect("a step", out, 2 * x + 1);
    return r;
}

static void must(gn_ctx *g, const char *what, gn_result got, gn_result want) {
    if (got != want)
        wrong("%s: %s, not %s: %s", what, gn_result_name(got), gn_result_name(want), gn_last_error(g)->text);
}

static _Atomic int server_ended = -1;

static void *server_main(void *server) {
    server_ended = (int)gn_server_run(server);
    return NULL;
}

static gn_ctx *client_of(gn_server *s, const char *device) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        gn_server_attach(s, loopback_transport(ends[0]), "test") != GN_OK)
        _exit(2);
    return gn_open_transport(&(gn_desc){ .deadline_ms = 20000 }, loopback_transport(ends[1]), device);
}

/* Contexts of both devices, of each, and clients of a server that lends both. The next call of the driver that is of
   the second device breaks it. */
static void lose_the_second(void) {
    gn_ctx *first = gn_open(&(gn_desc){ .devices = "cuda:0" }), *second = gn_open(&(gn_desc){ .devices = "cuda:1" }),
           *both = gn_open(&(gn_desc){ .devices = "cuda:0,cuda:1" });
    gn_server *server = NULL;
    gn_error error;
    pthread_t thread;
    if (gn_server_open(&(gn_server_desc){ .listen = "none", .devices = "cuda:0,cuda:1" }, &server, &error) != GN_OK ||
        pthread_create(&thread, NULL, server_main, server) != 0)
        _exit(3);
    gn_ctx *clients[4] = { client_of(server, "cuda:0"), client_of(server, "cuda:1") };
    for (int i = 0; i < 2; i++) must(clients[i], "a client's step", one_step(clients[i], NULL, 5), GN_OK);
    must(first, "the first", one_step(first, NULL, 1), GN_OK);
    must(second, "the second", one_step(second, NULL, 2), GN_OK);
    must(both, "both", one_step(both, "0", 3), GN_OK);
    must(both, "both", one_step(both, "1", 4), GN_OK);
    shim.fail(0, BREAKS);
    must(second, "the second, which is lost", one_step(second, NULL, 2), GN_DEVICE_LOST);
    must(second, "the second, again", one_step(second, NULL, 2), GN_DEVICE_LOST);
    must(first, "the first beside it", one_step(first, NULL, 6), GN_OK);
    must(both, "both, on the one that is left", one_step(both, "0", 3), GN_OK);
    must(both, "both, on the one that is lost", one_step(both, "1", 4), GN_DEVICE_LOST);
    must(both, "both, wherever it wants", one_step(both, NULL, 4), GN_DEVICE_LOST); /* gn_on still says the lost one */
    gn_on(both, NULL);
    must(both, "both, wherever it wants", one_step(both, NULL, 4), GN_OK);
    must(clients[1], "a client of the one that is lost", one_step(clients[1], NULL, 5), GN_DEVICE_LOST);
    must(clients[0], "a client of the one that is left", one_step(clients[0], NULL, 5), GN_OK);
    clients[2] = client_of(server, "");
    must(clients[2], "a new client", one_step(clients[2], NULL, 7), GN_OK);
    clients[3] = client_of(server, "cuda:1");
    must(clients[3], "a new client of the one that is lost", gn_status(clients[3]), GN_DEVICE_LOST);
    for (int i = 3; i >= 0; i--) {
        if (i == 0) must(clients[0], "the last client", one_step(clients[0], NULL, 8), GN_OK);
        if (server_ended >= 0) wrong("the server ends before its clients");
        gn_close(clients[i]);
    }
    pthread_join(thread, NULL); /* now that none is left */
    if (server_ended != GN_DEVICE_LOST) wrong("the server ends with %d", server_ended);
    gn_server_close(server);
    gn_close(both);
    gn_close(second);
    must(first, "the first at the end", one_step(first, NULL, 9), GN_OK);
    gn_close(first);
}

static void the_loss_of_one_device_leaves_the_other_to_its_clients(void) {
    int status = 0;
    memset(told, 0, sizeof *told);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("GENIE_SHIM_DEVICES", "2", 1);
        alarm(60);
        lose_the_second();
        _exit(0);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK_STR(told->what, "");
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(a_call_that_fails_once_is_an_error_of_that_step_alone),
        TEST_ENTRY(a_call_that_fails_once_while_memory_is_short_is_an_error_of_that_step_alone),
        TEST_ENTRY(a_call_that_breaks_the_context_is_an_error_of_all_steps_after_it),
        TEST_ENTRY(the_loss_of_one_device_leaves_the_other_to_its_clients),
    };
    const char *place = getenv("GENIE_LIBCUDA");
    void *library = place ? dlopen(place, RTLD_NOW | RTLD_LOCAL) : NULL;
    test_begin(argc, argv);
    if (library) {
        *(void **)&shim.fail = dlsym(library, "shim_fail");
        *(void **)&shim.calls = dlsym(library, "shim_calls");
        *(void **)&shim.live = dlsym(library, "shim_live");
        *(void **)&shim.failed_call = dlsym(library, "shim_failed_call");
    }
    if (!shim.fail) {
        printf("SKIP: gpu_calls_test: only tests/cuda_shim.c fails on demand (GENIE_LIBCUDA); shim_test.sh runs this "
               "with it\n0 passed, 0 failed, %d skipped\n",
               TEST_COUNT(tests));
        return 0;
    }
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
