/* Steps over several devices that are under way at the same time: devices that take a set time (they sleep, so that the
 * measure is the same on a busy machine) overlap; values, states, errors and lost devices are those of one device, in
 * whatever order steps end and tickets are waited for.
 *
 * Tier: quick address thread */
#include <stdbool.h>
#include <stdlib.h>

/* Allocations of the program's thread fail from the n-th on, or only the n-th. */
static __thread bool may_fail;
static long fail_at = -1, fail_count;
static bool fail_for_ever;

static bool must_fail(void) {
    long n = may_fail && fail_at >= 0 ? fail_count++ : -1;
    return n >= 0 && (fail_for_ever ? n >= fail_at : n == fail_at);
}

#define GN_MALLOC(n) (must_fail() ? NULL : malloc(n))
#define GN_REALLOC(p, n) (must_fail() ? NULL : realloc(p, n))
#define GN_FREE(p) free(p)
#define GENIE_EXT
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"
#include "loopback.h"

#include <pthread.h>
#include <sys/resource.h>

/* ---- a device that takes so long for each exp, and some more or less for each run: the CPU's executor that sleeps */

static gn_exec_i slow_tables[3];
static gn__atomic exp_us, spread_us;

typedef struct slow_plan {
    void *inner;
    uint64_t exps;
} slow_plan;

static gn_result slow_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    slow_plan *p = calloc(1, sizeof *p);
    if (!p) exit(2);
    for (uint32_t i = 0; i < part->n_nodes; i++) p->exps += part->nodes[i].op == GN_OP_EXP;
    gn_result r = gn__cpu_plan_make(self, part, &p->inner, f);
    *out_plan = r ? NULL : p;
    if (r) free(p);
    return r;
}

static void slow_plan_destroy(void *self, void *plan) {
    gn__cpu_plan_destroy(self, ((slow_plan *)plan)->inner);
    free(plan);
}

static gn_result slow_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket,
                             gn_fault *f) {
    static gn__atomic turns;
    const slow_plan *p = plan;
    uint64_t spread = gn__atomic_load(&spread_us), turn = gn__atomic_add(&turns, 1);
    uint64_t us = p->exps * gn__atomic_load(&exp_us) + (spread ? gn__mix(turn, 1) % spread : 0);
    if (us) usleep((useconds_t)us);
    return gn__cpu_submit(self, p->inner, args, outs, out_ticket, f);
}

static void slow_describe(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "slow:0");
}

static void slow_describe_second(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "slow:1");
}

static void slow_describe_third(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "slow:2");
}

static gn_result slow_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn_result r = gn__cpu_open(d, out, f);
    out->i = &slow_tables[d->device[strlen(d->device) - 1] == '1'   ? 1
                          : d->device[strlen(d->device) - 1] == '2' ? 2
                                                                    : 0];
    return r;
}

static void use_slow_driver(void) {
    static const gn_driver_i driver = { .prefix = "slow", .open = slow_open };
    for (int i = 0; i < 3; i++) {
        slow_tables[i] = gn__cpu_i;
        slow_tables[i].plan_make = slow_plan_make;
        slow_tables[i].plan_destroy = slow_plan_destroy;
        slow_tables[i].submit = slow_submit;
        slow_tables[i].describe = i == 0 ? slow_describe : i == 1 ? slow_describe_second : slow_describe_third;
    }
    gn_register_driver(&driver);
}

enum { SERVERS = 2 };
static gn_server *servers[SERVERS];
static bool apart; /* transports that cannot be waited for together */

static gn_transport connect_to(int i) {
    static const char *const names[SERVERS] = { "first", "second" };
    static gn_transport_i alone;
    int ends[2];
    gn_error error;
    gn_server_desc desc = { .listen = "none", .devices = "slow:0", .threads = 1 };
    if (!servers[i] && gn_server_open(&desc, &servers[i], &error) != GN_OK) {
        printf("a server does not open: %s\n0 passed, 1 failed, 0 skipped\n", error.text);
        exit(1);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        gn_server_attach(servers[i], loopback_transport(ends[0]), "test") != GN_OK)
        exit(2);
    gn_transport t = loopback_transport_to(ends[1], names[i]);
    alone = *t.i;
    alone.wait_any = NULL;
    return apart ? (gn_transport){ &alone, t.self } : t;
}

static void close_servers(void) {
    for (int i = 0; i < SERVERS; i++) {
        gn_server_close(servers[i]);
        servers[i] = NULL;
    }
}

/* The devices of `local` first, then the servers. */
static gn_ctx *open_traced(const char *local, int n, gn_trace_fn trace, void *user) {
    static const char *const slow[SERVERS] = { "slow:0", "slow:0" };
    gn_transport t[SERVERS];
    for (int i = 0; i < n; i++) t[i] = connect_to(i);
    gn_desc desc = {
        .devices = local, .threads = 1, .deadline_ms = 20000, .keep_placement = true, .trace = trace, .trace_user = user
    };
    gn_ctx *g = gn_open_transports(&desc, t, slow, n);
    CHECK_RESULT(gn_status(g), GN_OK);
    return g;
}

static gn_ctx *open_cluster(const char *local, int n) { return open_traced(local, n, NULL, NULL); }

static void on(gn_ctx *g, int device) {
    char index[16];
    snprintf(index, sizeof index, "%d", device);
    if (gn_device_count(g) > 1) CHECK_RESULT(gn_on(g, index), GN_OK);
}

/* ---- overlap ---- */

typedef enum shape { TOWERS, STAGES, STATEFUL_TOWERS, STATEFUL_STAGES, THERE_AND_BACK, SHAPES } shape;
static const char *const shape_names[SHAPES] = { "two towers", "a two-stage pipeline", "two towers that write states",
                                                 "a two-stage pipeline that writes states", "there and back" };

enum { WIDTH = 8, DEEP = 4 };

typedef struct loop {
    gn_ctx *g;
    gn_tensor states[2];
    int device[2];
    float x[DEEP][WIDTH], out[DEEP][WIDTH];
    uint64_t tickets[DEEP];
} loop;

static void loop_open(loop *l, gn_ctx *g, int first, int second) {
    const float zeros[WIDTH] = { 0 };
    l->g = g;
    l->device[0] = first;
    l->device[1] = second;
    for (int i = 0; i < 2; i++) {
        on(g, l->device[i]);
        l->states[i] = gn_state(g, GN_F32, GN_SHAPE(WIDTH), zeros, i ? "second" : "first");
    }
}

/* Half of the work on each device: exp of a number below 1, that the state is added to where there is one. */
static gn_tensor loop_half(loop *l, int which, bool writes, gn_tensor x) {
    on(l->g, l->device[which]);
    gn_tensor y = gn_exp(gn_neg(gn_abs(x)));
    return writes ? gn_add(y, gn_assign(l->states[which], gn_add_c(l->states[which], 1))) : y;
}

static void loop_step(loop *l, shape kind, int step) {
    int at = step % DEEP;
    bool writes = kind == STATEFUL_TOWERS || kind == STATEFUL_STAGES,
         towers = kind == TOWERS || kind == STATEFUL_TOWERS;
    size_t bytes[1] = { sizeof l->out[at] };
    for (int i = 0; i < WIDTH; i++) l->x[at][i] = (float)(step + i);
    gn_tensor x = gn_data(l->g, GN_F32, GN_SHAPE(WIDTH), l->x[at]), a = loop_half(l, 0, writes, x),
              b = loop_half(l, 1, writes, towers ? gn_add_c(x, 1) : a), y = b;
    if (towers) {
        y = gn_add(a, b);
    } else if (kind == THERE_AND_BACK) {
        on(l->g, l->device[0]);
        y = gn_add(b, a);
    }
    CHECK_RESULT(gn_read_later(&y, 1, (void *[1]){ l->out[at] }, bytes, &l->tickets[at]), GN_OK);
    CHECK_RESULT(gn_step(l->g), GN_OK);
}

static void loop_check(loop *l, shape kind, int step) {
    int at = step % DEEP;
    bool writes = kind == STATEFUL_TOWERS || kind == STATEFUL_STAGES,
         towers = kind == TOWERS || kind == STATEFUL_TOWERS;
    CHECK_RESULT(gn_wait(l->g, l->tickets[at]), GN_OK);
    double x = step + 1, s = writes ? step + 1 : 0, a = exp(-x) + s, b = exp(-(towers ? x + 1 : a)) + s;
    CHECK_NEAR(l->out[at][1], towers ? a + b : kind == THERE_AND_BACK ? a + b : b, 1e-4 * (1 + s));
}

/* Seconds of so many steps, a few of which are always under way. */
static double loop_time(loop *l, shape kind, int steps) {
    loop_step(l, kind, 0);
    loop_check(l, kind, 0);
    uint64_t begin = gn_now_us();
    for (int i = 1; i < steps + DEEP; i++) {
        if (i >= DEEP) loop_check(l, kind, i - DEEP + 1);
        if (i <= steps) loop_step(l, kind, i);
    }
    return (double)(gn_now_us() - begin) * 1e-6;
}

static double thread_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check_overlap(shape kind, const char *local) {
    enum { STEPS = 24 };
    const double least = TEST_SANITIZED ? 1.5 : 1.7;
    double ratio = 0, took[2] = { 0, 0 }, cpu = 0;
    for (int attempt = 0; attempt < 3 && ratio < least; attempt++) { /* the machine may have been away */
        for (int two = 0; two < 2; two++) {
            gn__atomic_store(&exp_us, 0);
            gn_ctx *g = open_cluster(local, local ? 1 : 2);
            loop l;
            gn__atomic_store(&exp_us, 10000);
            loop_open(&l, g, 0, two);
            double begin = thread_cpu();
            took[two] = loop_time(&l, kind, STEPS);
            cpu = thread_cpu() - begin;
            gn__atomic_store(&exp_us, 0);
            gn_close(g);
        }
        ratio = took[0] / took[1];
    }
    printf("  %s%s: %.0f ms on one device, %.0f ms on two: %.2f times, the client computing %.1f ms\n",
           shape_names[kind], local ? " with a device of this machine" : "", took[0] * 1e3, took[1] * 1e3, ratio,
           cpu * 1e3);
    CHECK(ratio >= least);
    CHECK(local || TEST_SANITIZED || cpu < 0.5 * took[1]); /* it waits without spinning */
}

TEST(two_towers_run_at_the_same_time) { check_overlap(TOWERS, NULL); }
TEST(two_stages_run_at_the_same_time) { check_overlap(STAGES, NULL); }
TEST(two_towers_that_write_states_run_at_the_same_time) { check_overlap(STATEFUL_TOWERS, NULL); }
TEST(two_stages_that_write_states_run_at_the_same_time) { check_overlap(STATEFUL_STAGES, NULL); }
TEST(a_device_that_is_gone_back_to_works_on_the_next_step_meanwhile) { check_overlap(THERE_AND_BACK, NULL); }

/* The device of this machine works while submit waits: what others have to do goes first. */
TEST(a_device_of_this_machine_and_a_server_run_at_the_same_time) {
    check_overlap(TOWERS, "slow:0");
    check_overlap(STATEFUL_TOWERS, "slow:0");
    check_overlap(STAGES, "slow:0");
}

TEST(devices_that_cannot_be_waited_for_together_run_at_the_same_time) {
    apart = true;
    check_overlap(TOWERS, NULL);
    check_overlap(STATEFUL_STAGES, NULL);
    apart = false;
}

/* One step of which results are read at once: the two halves overlap in it. */
TEST(two_towers_of_one_read_run_at_the_same_time) {
    double least = 1e9;
    float x[2] = { 1, 2 }, out[2][2];
    gn_ctx *g = open_cluster(NULL, 2);
    gn__atomic_store(&exp_us, 50000);
    for (int i = 0; i < 4; i++) {
        gn_tensor y[2], d = gn_data(g, GN_F32, GN_SHAPE(2), x);
        for (int k = 0; k < 2; k++) {
            on(g, k);
            y[k] = gn_exp(gn_mul_c(d, k + 1));
        }
        uint64_t begin = gn_now_us();
        CHECK_RESULT(gn_read_many(y, 2, (void *[2]){ out[0], out[1] }, (size_t[2]){ 8, 8 }), GN_OK);
        double took = (double)(gn_now_us() - begin) * 1e-6;
        least = took < least ? took : least;
        CHECK_NEAR(out[1][1], exp(4), 1e-3);
    }
    gn__atomic_store(&exp_us, 0);
    printf("  %.1f ms for 2 times 50\n", least * 1e3);
    CHECK(least >= 0.05 && least < 2 * 0.05 / 1.7);
    gn_close(g);
}

typedef struct interval {
    uint64_t begin, end;
    int device;
} interval;
typedef struct intervals {
    interval all[200];
    int n;
} intervals;

static void note_run(void *user, const gn_trace_event *e) {
    intervals *s = user;
    if (strcmp(e->name, "run") == 0 && s->n < 200)
        s->all[s->n++] = (interval){ e->begin_us, e->end_us, e->device[0] == 'f' ? 0 : 1 };
}

/* As the trace shows it: something is under way on both in every step but the ends. */
TEST(the_trace_shows_both_devices_at_work) {
    enum { STEPS = 10 };
    static intervals s;
    s.n = 0;
    gn_ctx *g = open_traced(NULL, 2, note_run, &s);
    loop l;
    loop_open(&l, g, 0, 1);
    gn__atomic_store(&exp_us, 10000);
    loop_time(&l, STATEFUL_STAGES, STEPS);
    gn__atomic_store(&exp_us, 0);
    int met = 0;
    for (int i = 0; i < s.n; i++) {
        bool meets = false;
        for (int k = 0; k < s.n && s.all[i].device == 0; k++)
            meets = meets || (s.all[k].device == 1 && s.all[k].begin < s.all[i].end && s.all[i].begin < s.all[k].end);
        met += meets;
    }
    CHECK_INT(s.n, 2 * (STEPS + 1));
    CHECK(met >= STEPS - 2);
    gn_close(g);
}

/* ---- programs of any shape, with any number of steps under way, beside one device that does one step after the
   other */

enum { STATES = 3, POOL = 12, STEPS = 24, OPEN = 10 };

typedef struct history {
    float states[STATES][WIDTH], out[2][WIDTH];
} history;

typedef struct walk {
    gn_ctx *several, *one;
    gn_tensor s[STATES], t[STATES]; /* of several, of one */
    float x[STEPS][WIDTH];
    int32_t index[STEPS][2][WIDTH]; /* what is picked; the second may be bad */
    float out[STEPS][2][WIDTH];
    uint64_t tickets[STEPS];
    bool waited[STEPS];
    history is[STEPS + 1]; /* [k]: before step k; out: of step k */
    int first, next, bad;  /* steps first … next - 1 are open; the first bad one of them, else STEPS */
} walk;

static void anywhere(gn_ctx *g) {
    int n = gn_device_count(g), device = (int)test_random_int(-1, n - 1);
    if (device < 0) gn_on(g, NULL);
    else on(g, device);
}

static void walk_states(walk *w, int step) {
    for (int i = 0; i < STATES; i++) {
        on(w->several, i % gn_device_count(w->several));
        w->s[i] = gn_state(w->several, GN_F32, GN_SHAPE(WIDTH), w->is[step].states[i], "several");
        w->t[i] = gn_state(w->one, GN_F32, GN_SHAPE(WIDTH), w->is[step].states[i], "one");
    }
}

static gn_tensor walk_op(gn_tensor a, gn_tensor b, int64_t which) {
    gn_tensor low = gn_clamp(a, -2, 2), other = gn_clamp(b, -2, 2); /* so that all numbers stay exact */
    switch (which) {
    case 0: return gn_add(low, other);
    case 1: return gn_mul(low, other);
    case 2: return gn_sub(low, other);
    case 3: return gn_maximum(low, gn_sum(other, GN_AXES(0), true));
    default: return gn_mul_c(low, 2);
    }
}

/* Builds a step; equal draws on both sides. `places`: a stream of draws for where, and for what is computed early. */
static gn_result walk_build(walk *w, gn_ctx *g, const gn_tensor *s, int step, bool bad, gn_tensor reads[2]) {
    uint64_t places = test__.stream * 3 + 1;
    gn_tensor pool[POOL];
    gn_result r = GN_OK;
    int n = 0;
    pool[n++] = gn_data(g, GN_F32, GN_SHAPE(WIDTH), w->x[step]);
    for (int i = 0; i < STATES; i++) pool[n++] = s[i];
    while (n < POOL) {
        int a = (int)test_random_int(0, n - 1), b = (int)test_random_int(0, n - 1), which = (int)test_random_int(0, 4);
        uint64_t program = test__.stream;
        test__.stream = places;
        if (g == w->several) anywhere(g);
        if (g == w->several && n == POOL / 2 && test_random_int(0, 2) == 0)
            r = gn_realize(pool + n - 2, 2); /* kept, then used by the next cut */
        places = test__.stream;
        test__.stream = program;
        if (r) return r;
        pool[n] = n == POOL - 1
                      ? gn_index_select(pool[n - 1], 0, gn_data(g, GN_I32, GN_SHAPE(WIDTH), w->index[step][bad]))
                      : walk_op(pool[a], pool[b], which);
        n++;
    }
    for (int i = 0; i < STATES; i++)
        if (test_random_int(0, 1)) gn_assign(s[i], gn_clamp(pool[test_random_int(4, POOL - 1)], -2, 2));
    reads[0] = pool[POOL - 1];
    reads[1] = pool[test_random_int(0, POOL - 2)];
    return r;
}

/* The step on one device: what has to come out, and the states behind it. */
static void walk_expect(walk *w, int step) {
    gn_tensor reads[2];
    history *h = &w->is[step];
    walk_build(w, w->one, w->t, step, false, reads);
    CHECK_RESULT(gn_read_many(reads, 2, (void *[2]){ h->out[0], h->out[1] },
                              (size_t[2]){ sizeof h->out[0], sizeof h->out[1] }),
                 GN_OK);
    CHECK_RESULT(gn_step(w->one), GN_OK);
    for (int i = 0; i < STATES; i++)
        CHECK_RESULT(gn_read(w->t[i], w->is[step + 1].states[i], sizeof h->states[i]), GN_OK);
    CHECK_RESULT(gn_step(w->one), GN_OK);
}

static gn_result walk_issue(walk *w, int step, bool bad) {
    gn_tensor reads[2];
    void *to[2] = { w->out[step][0], w->out[step][1] };
    size_t bytes[2] = { sizeof w->out[step][0], sizeof w->out[step][1] };
    for (int i = 0; i < WIDTH; i++) {
        w->x[step][i] = (float)test_random_int(-2, 2);
        w->index[step][0][i] = w->index[step][1][i] = (int32_t)test_random_int(0, WIDTH - 1);
    }
    w->index[step][1][2] = WIDTH;
    uint64_t program = test__.stream;
    walk_expect(w, step);
    uint64_t after = test__.stream;
    test__.stream = program;
    w->tickets[step] = 0;
    w->waited[step] = false;
    if (bad && w->bad == STEPS) w->bad = step;
    gn_result r = walk_build(w, w->several, w->s, step, bad, reads);
    r = r ? r : gn_read_later(reads, 2, to, bytes, &w->tickets[step]);
    test__.stream = after;
    gn_result stepped = gn_step(w->several);
    memset(w->x[step], 77, sizeof w->x[step]); /* what was given is consumed */
    memset(w->index[step], 77, sizeof w->index[step]);
    return r ? r : stepped;
}

static bool walk_same(walk *w, int step) {
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < WIDTH; k++) {
            if (w->out[step][i][k] != w->is[step].out[i][k]) {
                test_fail(__FILE__, __LINE__, "step %d: out[%d][%d] is %g on several devices, %g on one", step, i, k,
                          (double)w->out[step][i][k], (double)w->is[step].out[i][k]);
                return false;
            }
        }
    }
    return true;
}

/* Waits for any open step: it and those before it are done, or an error of one of them is told. */
static gn_result walk_wait(walk *w) {
    int step = (int)test_random_int(w->first, w->next - 1);
    gn_result r = gn_wait(w->several, w->tickets[step]);
    if (r != GN_OK) {
        CHECK(step >= w->bad);
        return r;
    }
    CHECK(step < w->bad);
    for (int i = w->first; i <= step; i++) w->waited[i] = walk_same(w, i);
    while (w->first < w->next && w->waited[w->first]) w->first++;
    return GN_OK;
}

/* An error was told: steps before the bad one have ended well, the others not; states are those before it, or
   failed. */
static void walk_recover(walk *w, gn_result told, int *failed_states) {
    float now[WIDTH];
    CHECK_RESULT(told, GN_INDEX_OUT_OF_RANGE);
    REQUIRE(w->bad < STEPS);
    gn_step(w->several);
    for (int i = w->first; i < w->next; i++) {
        gn_result r = w->tickets[i] ? gn_wait(w->several, w->tickets[i]) : GN_CANCELLED;
        /* two bad ones are told one after the other */
        CHECK(i < w->bad ? r == GN_OK : r == GN_CANCELLED || r == GN_INDEX_OUT_OF_RANGE);
        if (i < w->bad) walk_same(w, i);
    }
    for (int i = 0; i < STATES; i++) {
        gn_result r = gn_read(w->s[i], now, sizeof now);
        CHECK(r == GN_OK || r == GN_STATE_FAILED);
        *failed_states += r != GN_OK;
        for (int k = 0; k < WIDTH && r == GN_OK; k++)
            if (!CHECK(now[k] == w->is[w->bad].states[i][k]))
                printf("  state %d[%d] is %g, not %g\n", i, k, (double)now[k], (double)w->is[w->bad].states[i][k]);
    }
    for (int i = 0; i < STATES; i++) {
        CHECK_RESULT(gn_release(w->s[i]), GN_OK);
        CHECK_RESULT(gn_release(w->t[i]), GN_OK);
    }
    memcpy(w->is[w->next].states, w->is[w->bad].states, sizeof w->is[0].states);
    walk_states(w, w->next);
    w->first = w->next;
    w->bad = STEPS;
}

/* `bad_one_in`: how often a step has a bad index; 0: never. */
static void check_walk(const char *local, int n_servers, int bad_one_in, int *failed_states) {
    walk *w = calloc(1, sizeof *w);
    w->several = open_cluster(local, n_servers);
    w->one = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    w->bad = STEPS;
    walk_states(w, 0);
    gn__atomic_store(&spread_us, test_random_int(0, 1) ? 600 : 0);
    for (; w->next < STEPS; w->next++) {
        bool bad = bad_one_in && test_random_int(1, bad_one_in) == 1;
        gn_result r = walk_issue(w, w->next, bad);
        w->next++;
        while (!r && w->first < w->next && (w->next - w->first >= OPEN || test_random_int(0, 3) == 0)) r = walk_wait(w);
        if (r) walk_recover(w, r, failed_states);
        w->next--;
    }
    gn_result r = gn_sync(w->several);
    if (w->bad < STEPS) {
        walk_recover(w, r, failed_states);
    } else {
        CHECK_RESULT(r, GN_OK);
        for (int i = w->first; i < STEPS; i++) walk_same(w, i);
        for (int i = 0; i < STATES; i++) {
            float now[WIDTH];
            CHECK_RESULT(gn_read(w->s[i], now, sizeof now), GN_OK);
            CHECK(memcmp(now, w->is[STEPS].states[i], sizeof now) == 0);
        }
    }
    gn__atomic_store(&spread_us, 0);
    gn_close(w->several);
    gn_close(w->one);
    free(w);
}

static int walks(void) {
    const char *n = getenv("GENIE_TEST_WALKS");
    return n ? atoi(n) : TEST_SANITIZED ? 4 : 12;
}

TEST(steps_under_way_together_equal_steps_one_after_the_other) {
    int none = 0;
    for (int i = 0; i < walks(); i++) {
        check_walk("cpu", 2, 0, &none);
        check_walk(NULL, 2, 0, &none);
        check_walk("slow:0", 1, 0, &none);
    }
    CHECK_INT(none, 0);
}

TEST(steps_that_fail_take_later_ones_with_them_and_no_earlier_ones) {
    int failed = 0;
    for (int i = 0; i < walks(); i++) {
        check_walk("cpu", 2, 6, &failed);
        check_walk(NULL, 2, 6, &failed);
        check_walk("slow:0", 1, 6, &failed);
    }
    printf("  %d states were failed\n", failed);
    CHECK(failed > 0);
    apart = true;
    check_walk("cpu", 2, 6, &failed);
    apart = false;
}

/* ---- tickets ---- */

/* Waiting for one device's step is waiting for what was submitted before it on another one. */
TEST(a_ticket_covers_what_was_submitted_before_it_on_other_devices) {
    gn_ctx *g = open_cluster(NULL, 2);
    float x[2] = { 1, 2 }, out[2][2] = { { 0 } };
    uint64_t tickets[2];
    gn_tensor d = gn_data(g, GN_F32, GN_SHAPE(2), x);
    gn__atomic_store(&exp_us, 100000);
    on(g, 0);
    gn_tensor a = gn_exp(d);
    CHECK_RESULT(gn_read_later(&a, 1, (void *[1]){ out[0] }, (size_t[1]){ 8 }, &tickets[0]), GN_OK);
    gn__atomic_store(&exp_us, 0);
    on(g, 1);
    gn_tensor b = gn_neg(d);
    CHECK_RESULT(gn_read_later(&b, 1, (void *[1]){ out[1] }, (size_t[1]){ 8 }, &tickets[1]), GN_OK);
    CHECK(tickets[0] && tickets[1] > tickets[0]);
    CHECK_RESULT(gn_wait(g, tickets[1]), GN_OK);
    CHECK_NEAR(out[0][1], exp(2), 1e-4);
    CHECK_NEAR(out[1][1], -2, 0);
    CHECK_RESULT(gn_wait(g, tickets[0]), GN_OK);
    CHECK_RESULT(gn_wait(g, tickets[1] + 1), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_wait(g, UINT64_MAX), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_wait(g, 0), GN_OK);
    gn_close(g);
}

/* A queued step that did not run says so, on one server as on several. */
TEST(a_step_behind_one_that_failed_is_no_success) {
    const int32_t bad[1] = { 7 };
    float x[2] = { 1, 2 }, out[3][2];
    for (int n = 1; n <= 2; n++) {
        gn_transport t = connect_to(0);
        gn_ctx *g = n == 1 ? gn_open_transport(NULL, t, "slow:0") : open_cluster(NULL, 2);
        uint64_t tickets[3];
        if (n == 2) t.i->close(t.self);
        for (int i = 0; i < 3; i++) {
            gn_tensor d = gn_data(g, GN_F32, GN_SHAPE(2), x), y = d;
            on(g, 0);
            y = i == 1 ? gn_index_select(d, 0, gn_data(g, GN_I32, GN_SHAPE(1), bad)) : gn_exp(d);
            CHECK_RESULT(gn_read_later(&y, 1, (void *[1]){ out[i] }, (size_t[1]){ i == 1 ? 4 : 8 }, &tickets[i]),
                         GN_OK);
        }
        CHECK_RESULT(gn_wait(g, tickets[0]), GN_OK);
        CHECK_RESULT(gn_wait(g, tickets[1]), GN_INDEX_OUT_OF_RANGE);
        CHECK_RESULT(gn_wait(g, tickets[2]), GN_CANCELLED);
        CHECK_RESULT(gn_wait(g, tickets[2]), GN_CANCELLED);
        CHECK_RESULT(gn_wait(g, tickets[0]), GN_OK);
        CHECK_RESULT(gn_sync(g), GN_OK);
        gn_close(g);
    }
}

/* Far more steps than can be under way at once, with values of every size. */
TEST(as_many_steps_as_one_likes_may_be_submitted) {
    enum { MANY = 300, N = 40000 };
    static float x[N], out[MANY];
    uint64_t last = 0;
    gn_ctx *g = open_cluster("cpu", 2);
    for (int i = 0; i < N; i++) x[i] = 1;
    for (int i = 0; i < MANY; i++) {
        on(g, 1 + i % 2);
        gn_tensor a = gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(N), x), i);
        on(g, 2 - i % 2);
        gn_tensor y = gn_max(gn_add_c(a, 1), GN_ALL_AXES, false);
        CHECK_RESULT(gn_read_later(&y, 1, (void *[1]){ &out[i] }, (size_t[1]){ 4 }, &last), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_RESULT(gn_wait(g, last), GN_OK);
    for (int i = 0; i < MANY; i++) CHECK_INT(out[i], i + 1);
    CHECK_INT(g->multi->run_bytes, 0);
    CHECK(g->multi->spare_bytes <= GN__RUNS_BYTES);
    gn_close(g);
}

/* ---- what goes while something is under way ---- */

TEST(a_weight_or_state_is_released_behind_the_steps_that_read_it) {
    float x[2] = { 1, 2 }, out[4][2];
    gn_ctx *g = open_cluster(NULL, 2);
    for (int i = 0; i < 4; i++) {
        gn_tensor w = i % 2 ? gn_weight(g, GN_F32, GN_SHAPE(2), x, "w") : gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
        gn__atomic_store(&exp_us, 20000);
        on(g, 0);
        gn_tensor a = gn_exp(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), x)));
        on(g, 1);
        gn_tensor y = gn_add(a, w);
        uint64_t ticket;
        CHECK_RESULT(gn_read_later(&y, 1, (void *[1]){ out[i] }, (size_t[1]){ 8 }, &ticket), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
        CHECK_RESULT(gn_release(w), GN_OK);
        CHECK_RESULT(gn_wait(g, ticket), GN_OK);
        CHECK_NEAR(out[i][1], exp(-2) + 2, 1e-5);
    }
    gn__atomic_store(&exp_us, 0);
    gn_close(g);
}

TEST(a_context_closes_while_steps_are_under_way) {
    static loop l; /* its buffers are the context's until it is closed */
    for (int i = 0; i < 4; i++) {
        gn_ctx *g = open_cluster(i == 3 ? "slow:0" : NULL, i == 3 ? 1 : 2);
        gn__atomic_store(&exp_us, 20000);
        loop_open(&l, g, 0, 1);
        for (int step = 0; step < DEEP; step++) loop_step(&l, i % 2 ? STATEFUL_STAGES : STAGES, step);
        uint64_t begin = gn_now_us();
        gn_close(g);
        CHECK(gn_now_us() - begin < 2000000);
        gn__atomic_store(&exp_us, 0);
    }
}

/* The second server goes while steps wait for it: its steps and later ones fail, what came before does not. */
TEST(a_device_that_is_lost_takes_what_waits_for_it) {
    for (int when = 0; when < 3; when++) {
        loop l;
        float out[WIDTH];
        int lost = 0;
        gn_ctx *g = open_cluster(NULL, 2);
        loop_open(&l, g, 0, 1);
        loop_step(&l, STATEFUL_STAGES, 0);
        loop_check(&l, STATEFUL_STAGES, 0);
        gn__atomic_store(&exp_us, 3000);
        for (int step = 1; step < DEEP; step++) {
            loop_step(&l, STATEFUL_STAGES, step);
            if (step == when + 1) {
                gn_server_close(servers[1]);
                servers[1] = NULL;
            }
            if (step == when + 1) break;
        }
        gn_result r = gn_wait(g, l.tickets[when + 1]);
        CHECK(r == GN_OK || r == GN_DEVICE_LOST);
        lost = r == GN_DEVICE_LOST;
        gn__atomic_store(&exp_us, 0);
        on(g, 0);
        r = gn_read(gn_mul_c(l.states[0], 1), out, sizeof out);
        CHECK(r == GN_OK || (lost && r == GN_STATE_FAILED));
        CHECK(r != GN_OK || lost || out[0] == (float)(when + 2));
        CHECK_RESULT(gn_read(gn_mul_c(l.states[1], 1), out, sizeof out), GN_DEVICE_LOST);
        CHECK_RESULT(gn_release(l.states[0]), GN_OK);
        l.states[0] = gn_state(g, GN_F32, GN_SHAPE(WIDTH), NULL, "again");
        CHECK_RESULT(gn_read(gn_exp(l.states[0]), out, sizeof out), GN_OK);
        CHECK_NEAR(out[0], 1, 1e-6);
        gn_close(g);
    }
}

/* One of two devices that are waited for together says nothing more: the wait ends at the deadline, not later. */
TEST(a_device_that_falls_silent_beside_another_is_lost_at_the_deadline) {
    gn_ctx *g = open_cluster(NULL, 2);
    gn__remote *r = (gn__remote *)g->multi->devices[0].exec.self;
    loopback_link *link = r->link.t.self;
    loop l;
    int dead[2];
    loop_open(&l, g, 0, 1);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, dead) == 0 && dup2(dead[0], link->fd) >= 0);
    close(dead[0]);
    r->link.deadline_ms = 300;
    gn__atomic_store(&exp_us, 700000);
    loop_step(&l, TOWERS, 0);
    uint64_t begin = gn_now_us();
    CHECK_RESULT(gn_wait(g, l.tickets[0]), GN_DEVICE_LOST);
    uint64_t took = gn_now_us() - begin;
    CHECK(strstr(gn_last_error(g)->text, "first neither answered nor showed a sign of life within 300 ms") != NULL);
    CHECK(took >= 250000 && took < 5000000);
    gn__atomic_store(&exp_us, 0);
    gn_close(g);
    close(dead[1]);
}

/* ---- memory that runs out with steps under way ---- */

static bool run_without_memory(long n, bool for_ever) {
    static float x[3][64], out[3][64];
    float zeros[64] = { 0 };
    uint64_t tickets[3] = { 0 };
    gn_result r = GN_OK;
    gn_ctx *g = open_cluster(NULL, 2);
    on(g, 0);
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(64), zeros, "s");
    fail_at = n;
    fail_count = 0;
    fail_for_ever = for_ever;
    for (int i = 0; i < 3 && !r; i++) {
        for (int k = 0; k < 64; k++) x[i][k] = (float)(i + 1);
        may_fail = true;
        on(g, 0);
        gn_tensor d = gn_data(g, GN_F32, GN_SHAPE(64), x[i]), a = gn_add(gn_assign(s, gn_add_c(s, 1)), d);
        on(g, 1);
        gn_tensor y = gn_mul(a, d);
        r = gn_read_later(&y, 1, (void *[1]){ out[i] }, (size_t[1]){ sizeof out[i] }, &tickets[i]);
        gn_result stepped = gn_step(g);
        r = r ? r : stepped;
        may_fail = false;
    }
    may_fail = true;
    r = r ? r : gn_wait(g, tickets[2]);
    may_fail = false;
    fail_at = -1;
    CHECK(r == GN_OK || r == GN_OUT_OF_MEMORY || r == GN_STATE_FAILED || r == GN_DEVICE_LOST || r == GN_STALE_HANDLE ||
          r == GN_CANCELLED);
    for (int i = 0; i < 3 && r == GN_OK; i++) CHECK_NEAR(out[i][63], (2 * i + 2) * (i + 1), 0);
    bool all = fail_count <= n;
    gn_close(g);
    return all && r == GN_OK;
}

TEST(steps_under_way_survive_memory_that_runs_out) {
    for (int i = 0; i < 2; i++) {
        long n = 0;
        while (n < 2000 && !run_without_memory(n, i != 0)) n++;
        CHECK(n > 20 && n < 2000);
    }
}

/* ---- devices that are not there ---- */

static char last_log[512];

static void note_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    if (level == GN_LOG_WARN) snprintf(last_log, sizeof last_log, "%s", text);
}

/* Each device that is there works, the others say why not, and what is free goes to one that is there. */
static void check_present(gn_ctx *g, const bool *there, int n, int present) {
    gn_stats stats;
    gn_get_stats(g, &stats);
    CHECK_INT(stats.devices_absent, n - present);
    CHECK_INT(gn_device_count(g), n);
    CHECK((last_log[0] != 0) == (present < n) && (present == n || strstr(last_log, "is absent: ")));
    const float x[2] = { 1, 2 };
    float out[2];
    for (int i = 0; i < n; i++) {
        gn_device_info info;
        CHECK_RESULT(gn_get_device_at(g, i, &info), GN_OK);
        CHECK(info.absent == !there[i] && (strstr(info.name, "slow:0") != NULL) == there[i]);
        on(g, i);
        CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), x)), out, sizeof out),
                     there[i] ? GN_OK : GN_NO_DEVICE);
        CHECK(there[i] || strstr(gn_last_error(g)->text, "which is absent"));
        gn_on(g, NULL);
        gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(2), x, "s");
        gn_tensor y = gn_add(gn_assign(s, gn_exp(s)), gn_weight(g, GN_F32, GN_SHAPE(2), x, "w"));
        CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
        CHECK_NEAR(out[0], exp(1) + 1, 1e-5);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    char words[4000];
    gn_tensor y = gn_exp(gn_data(g, GN_F32, GN_SHAPE(2), x));
    CHECK_RESULT(gn_explain(&y, 1, NULL, words, sizeof words, NULL), GN_OK);
    CHECK((strstr(words, "absent: ") != NULL) == (present < n));
    gn_device_info first;
    CHECK_RESULT(gn_get_device(g, &first), GN_OK);
    CHECK(!first.absent && strstr(first.name, "slow:0"));
}

/* Where transports lead to a server that does not offer what is asked for, in any place among those that do. */
TEST(the_others_open_when_some_devices_are_absent) {
    for (int round = 0; round < 20; round++) {
        const char *names[SERVERS];
        char list[64] = "";
        bool there[4] = { false };
        gn_transport t[SERVERS];
        int n = 0, present = 0;
        if (test_random_int(0, 1)) {
            there[n] = test_random_int(0, 1) != 0;
            strcpy(list, there[n] ? "slow:0" : "cuda:77");
            n++;
        }
        int named = n;
        for (int i = 0; i < SERVERS; i++, n++) {
            there[n] = test_random_int(0, 1) != 0;
            names[i] = there[n] ? "slow:0" : "cuda:5";
            t[i] = connect_to(i);
        }
        for (int i = 0; i < n; i++) present += there[i];
        bool strict = test_random_int(0, 3) == 0;
        last_log[0] = 0;
        gn_desc desc = { .devices = named ? list : NULL, .threads = 1, .strict = strict, .log = note_log };
        gn_ctx *g = gn_open_transports(&desc, t, names, SERVERS);
        if (present == 0 || (strict && present < n)) {
            CHECK_RESULT(gn_status(g), GN_NO_DEVICE);
            CHECK(strstr(gn_last_error(g)->text, "cuda:") != NULL);
            gn_close(g);
            continue;
        }
        CHECK_RESULT(gn_status(g), GN_OK);
        check_present(g, there, n, present);
        gn_close(g);
    }
}

/* A name that is a mistake is no absent device. */
TEST(a_mistake_among_several_devices_is_an_error) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "slow:0,slow:0", .log = note_log });
    CHECK_RESULT(gn_status(g), GN_BAD_ARGUMENT);
    gn_close(g);
    g = gn_open(&(gn_desc){ .devices = "cuda:8,cuda:9", .log = note_log });
    CHECK_RESULT(gn_status(g), GN_NO_DEVICE);
    CHECK(strstr(gn_last_error(g)->text, "cuda:8") != NULL);
    gn_close(g);
}

/* ---- the least loaded device of a server ---- */

enum { LENT = 3, CLIENTS = 40 };

static int device_of(gn_ctx *g) {
    gn_device_info info;
    CHECK_RESULT(gn_get_device(g, &info), GN_OK);
    size_t n = strlen(info.name);
    return n && info.name[n - 1] >= '0' && info.name[n - 1] < '0' + LENT ? info.name[n - 1] - '0' : 0;
}

static gn_ctx *client_of(gn_server *s, const char *device) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        gn_server_attach(s, loopback_transport(ends[0]), "test") != GN_OK)
        exit(2);
    gn_ctx *g = gn_open_transport(NULL, loopback_transport(ends[1]), device);
    CHECK_RESULT(gn_status(g), GN_OK);
    return g;
}

/* Clients come and go, some to a device that they name: each of the others is given one that has the fewest. */
TEST(a_client_that_names_no_device_is_given_the_least_loaded) {
    gn_server *s = NULL;
    gn_server_desc desc = { .listen = "none", .devices = "slow:0,slow:1,slow:2", .threads = 1, .no_costs = true };
    REQUIRE(CHECK_RESULT(gn_server_open(&desc, &s, NULL), GN_OK));
    gn_ctx *clients[CLIENTS] = { NULL };
    int device[CLIENTS], load[LENT] = { 0 };
    for (int round = 0; round < 120; round++) {
        int c = (int)test_random_int(0, CLIENTS - 1);
        if (clients[c]) {
            load[device[c]]--;
            gn_close(clients[c]);
            clients[c] = NULL;
            int sum = load[0] + load[1] + load[2];
            for (int wait = 0; wait < 2000; wait++) { /* until the server has seen it */
                int open = 0;
                gn__mutex_lock(&s->lock);
                for (const gn__session *x = s->sessions; x; x = x->next) open += !x->gone;
                gn__mutex_unlock(&s->lock);
                if (open == sum) break;
                usleep(1000);
            }
            continue;
        }
        bool names = test_random_int(0, 3) == 0;
        char name[16];
        snprintf(name, sizeof name, "slow:%d", (int)test_random_int(0, LENT - 1));
        clients[c] = client_of(s, names ? name : NULL);
        device[c] = device_of(clients[c]);
        int least = load[0];
        for (int d = 1; d < LENT; d++) least = load[d] < least ? load[d] : least;
        CHECK(names ? device[c] == name[5] - '0' : load[device[c]] == least);
        load[device[c]]++;
    }
    for (int c = 0; c < CLIENTS; c++)
        if (clients[c]) gn_close(clients[c]);
    gn_server_close(s);
}

/* As many sessions on each: the one that holds the fewest bytes. */
TEST(of_devices_with_as_many_sessions_the_one_with_the_fewest_bytes_is_given) {
    static float x[3][1000];
    gn_server *s = NULL;
    gn_server_desc desc = { .listen = "none", .devices = "slow:0,slow:1,slow:2", .threads = 1, .no_costs = true };
    REQUIRE(CHECK_RESULT(gn_server_open(&desc, &s, NULL), GN_OK));
    gn_ctx *g[LENT];
    static const int64_t sizes[LENT] = { 1000, 10, 500 };
    for (int d = 0; d < LENT; d++) {
        float out;
        g[d] = client_of(s, NULL);
        CHECK_INT(device_of(g[d]), d);
        gn_tensor state = gn_state(g[d], GN_F32, GN_SHAPE(sizes[d]), x[d], "s");
        CHECK_RESULT(gn_read(gn_sum(state, GN_ALL_AXES, false), &out, sizeof out), GN_OK);
    }
    gn_ctx *next = client_of(s, NULL);
    CHECK_INT(device_of(next), 1);
    gn_close(next);
    for (int d = 0; d < LENT; d++) gn_close(g[d]);
    gn_server_close(s);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(two_towers_run_at_the_same_time),
        TEST_ENTRY(two_stages_run_at_the_same_time),
        TEST_ENTRY(two_towers_that_write_states_run_at_the_same_time),
        TEST_ENTRY(two_stages_that_write_states_run_at_the_same_time),
        TEST_ENTRY(a_device_that_is_gone_back_to_works_on_the_next_step_meanwhile),
        TEST_ENTRY(a_device_of_this_machine_and_a_server_run_at_the_same_time),
        TEST_ENTRY(devices_that_cannot_be_waited_for_together_run_at_the_same_time),
        TEST_ENTRY(two_towers_of_one_read_run_at_the_same_time),
        TEST_ENTRY(the_trace_shows_both_devices_at_work),
        TEST_ENTRY(steps_under_way_together_equal_steps_one_after_the_other),
        TEST_ENTRY(steps_that_fail_take_later_ones_with_them_and_no_earlier_ones),
        TEST_ENTRY(a_ticket_covers_what_was_submitted_before_it_on_other_devices),
        TEST_ENTRY(a_step_behind_one_that_failed_is_no_success),
        TEST_ENTRY(as_many_steps_as_one_likes_may_be_submitted),
        TEST_ENTRY(a_weight_or_state_is_released_behind_the_steps_that_read_it),
        TEST_ENTRY(a_context_closes_while_steps_are_under_way),
        TEST_ENTRY(a_device_that_is_lost_takes_what_waits_for_it),
        TEST_ENTRY(a_device_that_falls_silent_beside_another_is_lost_at_the_deadline),
        TEST_ENTRY(steps_under_way_survive_memory_that_runs_out),
        TEST_ENTRY(the_others_open_when_some_devices_are_absent),
        TEST_ENTRY(a_mistake_among_several_devices_is_an_error),
        TEST_ENTRY(a_client_that_names_no_device_is_given_the_least_loaded),
        TEST_ENTRY(of_devices_with_as_many_sessions_the_one_with_the_fewest_bytes_is_given),
    };
    test_begin(argc, argv);
    setenv("GENIE_MEASURE", "0", 1);
    use_slow_driver();
    test_all(tests, TEST_COUNT(tests));
    close_servers();
    return test_end();
}
