/* Work that would never end, ended: by gn_cancel, by a server's limit, by a client that goes and by a server that
 * stops; and work that takes longer than a deadline, which is no loss. The programs are endless by broadcast sources: a
 * few bytes read 2^40 times and more.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#define GENIE_IMPLEMENTATION
#include "../genie.h"

#include "test.h"
#include "loopback.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { SOON_MS = 2000 + 4000 * TEST_SANITIZED }; /* in which anything ends that was told to, on a busy machine */

static double now_s(void) { return (double)gn_now_us() * 1e-6; }

static void wait_ms(int ms) { usleep((useconds_t)ms * 1000); }

/* The share of a moment in which this process computes. */
static double busy_share(void) {
    struct rusage a, b;
    double begin = now_s();
    getrusage(RUSAGE_SELF, &a);
    wait_ms(300);
    getrusage(RUSAGE_SELF, &b);
    double spent =
        (double)(b.ru_utime.tv_sec - a.ru_utime.tv_sec) + (double)(b.ru_utime.tv_usec - a.ru_utime.tv_usec) * 1e-6;
    return spent / (now_s() - begin);
}

/* Whether somebody computes: on a machine that others use too it may take a while to see. */
static bool comes_to_work(void) {
    for (double begin = now_s(); now_s() - begin < 10;)
        if (busy_share() > 0.1) return true;
    return false;
}

/* Whether nobody computes any more; what was told to end may take a while on a machine that others use too. */
static bool comes_to_rest(void) {
    for (double begin = now_s(); now_s() - begin < 10;)
        if (busy_share() < 0.08) return true;
    return false;
}

/* ---- endless programs: each kind of kernel ---- */

static float one = 1;
static int64_t zero;
static double wide_one = 1;

static gn_tensor spread(gn_ctx *g, gn_dtype d, gn_shape s) {
    gn_shape ones = s;
    for (int i = 0; i < s.rank; i++) ones.dims[i] = 1;
    const void *value = d == GN_I64 ? (const void *)&zero : d == GN_F64 ? (const void *)&wide_one : (const void *)&one;
    return gn_broadcast(gn_data(g, d, ones, value), s);
}

/* Every row the same n numbers. */
static gn_tensor spread_rows(gn_ctx *g, int64_t rows, int64_t n) {
    return gn_broadcast(gn_reshape(gn_full(g, GN_F32, GN_SHAPE(n), 1), GN_SHAPE(1, n)), GN_SHAPE(rows, n));
}

#define FAR ((int64_t)1 << 42)

static gn_tensor endless_nonzero(gn_ctx *g) { return gn_nonzero(spread(g, GN_I64, GN_SHAPE(FAR)), 4); }
static gn_tensor endless_rows(gn_ctx *g) {
    return gn_sum(spread(g, GN_F32, GN_SHAPE(1 << 20, 1 << 22)), GN_AXES(1), false);
}
static gn_tensor endless_columns(gn_ctx *g) { return gn_max(spread_rows(g, 1 << 24, 1 << 12), GN_AXES(0), false); }
static gn_tensor endless_product(gn_ctx *g) {
    return gn_matmul(spread(g, GN_F32, GN_SHAPE(64, 1 << 17)), spread(g, GN_F32, GN_SHAPE(1 << 17, 1 << 20)));
}
static gn_tensor endless_depth(gn_ctx *g) {
    return gn_matmul(spread(g, GN_F32, GN_SHAPE(1, FAR)), spread(g, GN_F32, GN_SHAPE(FAR, 1)));
}
static gn_tensor endless_wide_product(gn_ctx *g) {
    return gn_matmul(spread(g, GN_F64, GN_SHAPE(1, 1 << 30)), spread(g, GN_F64, GN_SHAPE(1 << 30, 1 << 10)));
}
static gn_tensor endless_scatter_add(gn_ctx *g) {
    return gn_scatter_add(gn_full(g, GN_F32, GN_SHAPE(4), 0), 0, spread(g, GN_I64, GN_SHAPE(FAR)),
                          spread(g, GN_F32, GN_SHAPE(FAR)));
}
static gn_tensor endless_scatter(gn_ctx *g) {
    return gn_scatter(gn_full(g, GN_F32, GN_SHAPE(4), 0), 0, spread(g, GN_I64, GN_SHAPE(FAR)),
                      spread(g, GN_F32, GN_SHAPE(FAR)));
}
static gn_tensor endless_mse(gn_ctx *g) {
    return gn_mse_loss(spread(g, GN_F32, GN_SHAPE(FAR)), spread(g, GN_F32, GN_SHAPE(FAR)));
}
static gn_tensor endless_cross_entropy(gn_ctx *g) {
    return gn_cross_entropy(spread(g, GN_F32, GN_SHAPE(1 << 20, 1 << 22)), spread(g, GN_I64, GN_SHAPE(1 << 20)));
}
static gn_tensor endless_classes(gn_ctx *g) {
    return gn_cross_entropy(spread(g, GN_F32, GN_SHAPE(1, FAR)), spread(g, GN_I64, GN_SHAPE(1)));
}
static gn_tensor endless_embedding(gn_ctx *g) {
    return gn_embedding(gn_full(g, GN_F32, GN_SHAPE(4, 0), 0), spread(g, GN_I64, GN_SHAPE(FAR)));
}
static gn_tensor endless_attention(gn_ctx *g) {
    gn_tensor q = spread(g, GN_F32, GN_SHAPE(1, 1, 1 << 20, 64)), k = spread(g, GN_F32, GN_SHAPE(1, 1, 1 << 21, 64));
    return gn_attention(q, k, k, NULL);
}
static gn_tensor endless_query(gn_ctx *g) {
    gn_tensor q = spread(g, GN_F32, GN_SHAPE(1, 1 << 10, 1, 1 << 13)),
              k = spread(g, GN_F32, GN_SHAPE(1, 1, 1 << 20, 1 << 13));
    return gn_attention(q, k, k, NULL);
}
static gn_tensor endless_interpolate(gn_ctx *g) {
    gn_interpolate_desc wide = { .kind = GN_INTERPOLATE_LINEAR, .stretch = { 1 << 13 } };
    return gn_interpolate(spread(g, GN_F32, GN_SHAPE(1 << 20, 1)), GN_AXES(1), GN_SHAPE(32), &wide);
}
/* Many short kernels: what looks between them. */
static gn_tensor endless_chain(gn_ctx *g) {
    gn_tensor x = gn_full(g, GN_F32, GN_SHAPE(1 << 20), 1);
    for (int i = 0; i < 20000; i++) x = gn_softmax(x, -1);
    return x;
}
/* One loop of many instructions. */
static gn_tensor endless_loop(gn_ctx *g) {
    gn_tensor x = gn_arange(g, GN_F32, 1 << 24, 0, 1), y = x;
    for (int i = 0; i < 3000; i++) y = gn_sin(gn_add(y, x));
    return y;
}

static const struct {
    const char *name;
    gn_tensor (*make)(gn_ctx *);
} endless[] = {
    { "nonzero", endless_nonzero },
    { "rows", endless_rows },
    { "columns", endless_columns },
    { "product", endless_product },
    { "depth", endless_depth },
    { "wide product", endless_wide_product },
    { "scatter_add", endless_scatter_add },
    { "scatter", endless_scatter },
    { "mse", endless_mse },
    { "cross_entropy", endless_cross_entropy },
    { "classes", endless_classes },
    { "embedding", endless_embedding },
    { "attention", endless_attention },
    { "query", endless_query },
    { "interpolate", endless_interpolate },
    { "chain", endless_chain },
    { "loop", endless_loop },
};
enum { ENDLESS = (int)(sizeof endless / sizeof *endless) };

/* ---- a thread that cancels ---- */

typedef struct canceller {
    gn_ctx *g;
    int after_ms;
    pthread_t thread;
    bool until_done;
    atomic_bool done;
} canceller;

static void *cancel_main(void *arg) {
    canceller *c = arg;
    do {
        wait_ms(c->after_ms);
        gn_cancel(c->g);
    } while (c->until_done && !atomic_load(&c->done));
    return NULL;
}

static void cancel_after(canceller *c, gn_ctx *g, int ms) {
    c->g = g;
    c->after_ms = ms;
    atomic_init(&c->done, false);
    if (pthread_create(&c->thread, NULL, cancel_main, c) != 0) exit(2);
}

static gn_result run_endless(gn_ctx *g, int which) {
    gn_tensor t = endless[which].make(g);
    gn_result r = gn_realize(&t, 1);
    if (r == GN_OK) r = gn_sync(g); /* a server computes while we go on */
    gn_step(g);
    return r;
}

/* Runs it, and has it cancelled meanwhile. */
static gn_result run_cancelled(gn_ctx *g, int which) {
    /* where building the step takes long, the first cancel finds no call to end */
    canceller c = { .until_done = true };
    double begin = now_s();
    cancel_after(&c, g, 60);
    gn_result r = run_endless(g, which);
    atomic_store(&c.done, true);
    pthread_join(c.thread, NULL);
    if (r != GN_CANCELLED || now_s() - begin > 0.06 + SOON_MS * 1e-3) {
        test_fail(__FILE__, __LINE__, "%s: %s after %.2f s: %s", endless[which].name, gn_result_name(r),
                  now_s() - begin, gn_last_error(g)->text);
    }
    return r;
}

static void check_works(gn_ctx *g) {
    float a[2] = { 1, 2 }, out[2] = { 0, 0 };
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(2), a);
    CHECK_RESULT(gn_read(gn_add(x, x), out, sizeof out), GN_OK);
    CHECK(out[0] == 2 && out[1] == 4);
    CHECK_RESULT(gn_step(g), GN_OK);
}

static void endless_kernels_of_every_kind_end_when_cancelled(void) {
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = threads });
        for (int i = 0; i < ENDLESS; i++) run_cancelled(g, i);
        check_works(g);
        gn_close(g);
    }
}

/* A cancelled step leaves states as they were, also those that its kernels write where they lie; the next one goes on
   from there. */
static void check_states(gn_ctx *g) {
    float rows[4] = { 1, 2, 3, 4 }, out[4], count = 0;
    gn_tensor cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 1), rows, "cache"),
              counter = gn_state(g, GN_F32, GN_SCALAR, NULL, "counter");
    for (int i = 0; i < 2; i++) {
        canceller c = { .until_done = false };
        float nine[1] = { 9 };
        int64_t at = 1;
        gn_tensor appended =
            gn_kv_append(cache, gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 1), nine), gn_data(g, GN_I64, GN_SCALAR, &at));
        gn_assign(counter, gn_add_c(counter, 1));
        gn_tensor t = gn_add(gn_sum(appended, GN_ALL_AXES, false),
                             gn_cast(gn_sum(endless_nonzero(g), GN_ALL_AXES, false), GN_F32));
        if (i == 0) {
            cancel_after(&c, g, 60);
            gn_result r = gn_realize(&t, 1);
            CHECK_RESULT(r == GN_OK ? gn_sync(g) : r, GN_CANCELLED);
            pthread_join(c.thread, NULL);
            gn_step(g);
            CHECK_RESULT(gn_read(cache, out, sizeof out), GN_OK);
            CHECK(out[0] == 1 && out[1] == 2 && out[2] == 3 && out[3] == 4);
            CHECK_RESULT(gn_read(counter, &count, sizeof count), GN_OK);
            CHECK(count == 0);
            gn_step(g);
            continue;
        }
        gn_tensor sum = gn_sum(appended, GN_ALL_AXES, false);
        CHECK_RESULT(gn_read(sum, &count, sizeof count), GN_OK);
        CHECK(count == 1 + 9 + 3 + 4);
        gn_step(g);
        CHECK_RESULT(gn_read(counter, &count, sizeof count), GN_OK);
        CHECK(count == 1);
        gn_step(g);
    }
    gn_release(cache);
    gn_release(counter);
}

/* What is cut, and what was said of it, is no harm to the next call. */
TEST(a_cut_ends_when_its_call_is_cancelled) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(1), &one), t = x;
    gn_result why;
    uint32_t bad;
    float out = 0;
    char words[4000];
    for (int i = 0; i < 5000; i++) t = gn_add(t, x);
    uint32_t root = gn__resolve(g, t, &why);
    gn_cancel(g);
    CHECK_RESULT(gn__cut_make(g, &root, 1, &bad), GN_CANCELLED);
    CHECK_RESULT(gn__cut_error(g, GN_CANCELLED, bad), GN_CANCELLED);
    CHECK(strstr(gn_last_error(g)->text, "cancelled") != NULL);
    gn_tensor small = gn_add(x, x);
    CHECK_RESULT(gn_explain(&small, 1, NULL, words, sizeof words, NULL), GN_OK);
    CHECK_RESULT(gn_read(t, &out, sizeof out), GN_OK);
    CHECK(out == 5001);
    gn_close(g);
}

static void a_cancelled_step_changes_no_state(void) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    check_states(g);
    gn_close(g);
}

/* ---- servers ---- */

static gn_server *open_server(gn_server_desc desc) {
    gn_server *s = NULL;
    gn_error error;
    desc.listen = "none";
    desc.threads = 2;
    desc.no_costs = true;
    if (!CHECK_RESULT(gn_server_open(&desc, &s, &error), GN_OK)) {
        printf("%s\n", error.text);
        exit(1);
    }
    return s;
}

static void make_pair(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
}

static gn_ctx *open_client(gn_server *s, gn_desc desc) {
    int ends[2];
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
    return gn_open_transport(&desc, loopback_transport(ends[1]), "");
}

/* An old peer: what a client asks for by its HELLO is taken out of it on the way, and so out of the answer. */
static uint64_t withheld;

static gn_result old_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    static const size_t features_at = GN__FRAME_HEAD + 8;
    loopback_link *l = self;
    uint8_t hello[GN__HELLO_MAX];
    if (l->up > 0 || n > sizeof hello) return loopback__send(self, data, n, timeout_ms);
    memcpy(hello, data, n);
    hello[features_at] &= (uint8_t)~withheld;
    return loopback__send(self, hello, n, timeout_ms);
}

static gn_ctx *open_old_client(gn_server *s, gn_desc desc) {
    static gn_transport_i table;
    int ends[2];
    make_pair(ends);
    gn_transport t = loopback_transport(ends[1]);
    table = *t.i;
    table.send = old_send;
    t.i = &table;
    withheld = GN__FEATURE_ALIVE | GN__FEATURE_CANCEL;
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
    return gn_open_transport(&desc, t, "");
}

static void endless_kernels_on_a_server_end_when_cancelled(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    static const int some[] = { 0, 1, 3, 12, 14 };
    for (int i = 0; i < (int)(sizeof some / sizeof *some); i++) run_cancelled(g, some[i]);
    check_works(g);
    CHECK(comes_to_rest());
    check_states(g);
    gn_close(g);
    gn_server_close(s);
}

/* What is queued behind the step that runs ends too; each ticket tells. */
static void queued_steps_end_with_the_one_that_runs(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    uint64_t ticket[4];
    float out[4] = { 0 };
    int64_t places[4];
    canceller c = { .until_done = false };
    for (int i = 0; i < 4; i++) {
        gn_tensor t = i == 1 ? endless_nonzero(g) : gn_add_c(gn_data_copy(g, GN_F32, GN_SHAPE(1), &one), i);
        void *host = i == 1 ? (void *)places : (void *)&out[i];
        size_t bytes = i == 1 ? sizeof places : sizeof *out;
        REQUIRE(gn_read_later(&t, 1, &host, &bytes, &ticket[i]) == GN_OK);
        gn_step(g);
    }
    CHECK_RESULT(gn_wait(g, ticket[0]), GN_OK);
    CHECK(out[0] == 1);
    cancel_after(&c, g, 60);
    CHECK_RESULT(gn_wait(g, ticket[1]), GN_CANCELLED);
    pthread_join(c.thread, NULL);
    CHECK_RESULT(gn_wait(g, ticket[2]), GN_CANCELLED);
    CHECK_RESULT(gn_wait(g, ticket[3]), GN_CANCELLED);
    CHECK_RESULT(gn_wait(g, ticket[0]), GN_OK);
    check_works(g);
    gn_close(g);
    gn_server_close(s);
}

/* Seconds that reading 2^bits elements one by one takes here, about. */
static int long_bits(double seconds) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    int bits = 16;
    for (double took = 0; took < 0.05; bits++) {
        gn_tensor t = gn_nonzero(spread(g, GN_I64, GN_SHAPE((int64_t)1 << bits)), 4);
        double begin = now_s();
        CHECK_RESULT(gn_realize(&t, 1), GN_OK);
        took = now_s() - begin;
        gn_step(g);
        for (; took >= 0.05 && took < seconds; bits++) took *= 2;
    }
    gn_close(g);
    return bits - 1;
}

/* With a deadline that is much shorter. */
static void a_step_longer_than_the_deadline_is_no_loss(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ .deadline_ms = 700 });
    int bits = long_bits(2.0);
    int64_t places[4];
    double begin = now_s();
    gn_tensor t = gn_nonzero(spread(g, GN_I64, GN_SHAPE((int64_t)1 << bits)), 4);
    CHECK_RESULT(gn_read(t, places, sizeof places), GN_OK);
    CHECK(places[0] == -1);
    if (now_s() - begin < 1)
        test_fail(__FILE__, __LINE__, "the step took only %.2f s: shorter than it should be", now_s() - begin);
    gn_step(g);
    check_works(g);
    gn_close(g);
    gn_server_close(s);
}

/* Neither end minds that the other does not know of signs of life and cancelling: the deadline counts then, a cancelled
   wait ends, and the session goes on when the server has come to its end. */
static void peers_that_know_neither_work_as_before(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_old_client(s, (gn_desc){ .deadline_ms = 20000 });
    int bits = long_bits(2.5);
    int64_t places[4] = { 7, 7, 7, 7 };
    canceller c = { .until_done = false };
    check_works(g);
    gn_tensor t = gn_nonzero(spread(g, GN_I64, GN_SHAPE((int64_t)1 << bits)), 4);
    double begin = now_s();
    cancel_after(&c, g, 60);
    CHECK_RESULT(gn_read(t, places, sizeof places), GN_CANCELLED);
    CHECK(now_s() - begin < 1.2 || TEST_SANITIZED);
    pthread_join(c.thread, NULL);
    CHECK_RESULT(gn_step(g), GN_OK);
    check_works(g);
    CHECK(places[0] == 7); /* what came afterwards was thrown away */
    gn_close(g);
    g = open_old_client(s, (gn_desc){ .deadline_ms = 300 });
    CHECK_RESULT(run_endless(g, 0), GN_TIMEOUT);
    CHECK(strstr(gn_last_error(g)->text, "300 ms") != NULL);
    gn_close(g);
    CHECK(comes_to_rest()); /* and the server ends what nobody waits for */
    gn_server_close(s);
}

static void a_step_longer_than_the_server_allows_ends_with_the_limit(void) {
    gn_server *s = open_server((gn_server_desc){ .max_step_seconds = 1 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 }), *other = open_client(s, (gn_desc){ 0 });
    static const int some[] = { 0, 3, 14 };
    for (int i = 0; i < (int)(sizeof some / sizeof *some); i++) {
        double begin = now_s();
        CHECK_RESULT(run_endless(g, some[i]), GN_LIMIT);
        CHECK(strstr(gn_last_error(g)->text, "max-step-seconds") != NULL);
        CHECK(now_s() - begin > 0.9 && now_s() - begin < 1 + SOON_MS * 1e-3);
        check_works(g);
        check_works(other);
    }
    gn_close(g);
    gn_close(other);
    gn_server_close(s);
}

/* Queues n steps, whose length `bits` says, and returns the seconds that they took together. */
static double queued_steps(gn_ctx *g, int n, int bits) {
    double begin = now_s();
    gn_tensor counter = gn_state(g, GN_F32, GN_SCALAR, NULL, "counter");
    for (int i = 0; i < n; i++) {
        gn_tensor t = gn_nonzero(spread(g, GN_I64, GN_SHAPE((int64_t)1 << bits)), 4);
        gn_assign(counter, gn_add(gn_add_c(counter, 2), gn_cast(gn_max(t, GN_ALL_AXES, false), GN_F32)));
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    float count = 0;
    CHECK_RESULT(gn_read(counter, &count, sizeof count), GN_OK);
    CHECK(count == (float)n);
    return now_s() - begin;
}

/* Many short steps in flight are not one long one. What a step takes differs between runs on a shared machine: there
   are as many of them as together take longer than the limit. */
static void queued_steps_have_each_their_own_time(void) {
    gn_server *s = open_server((gn_server_desc){ .max_step_seconds = 1 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    int bits = long_bits(0.2), n = 8;
    double took = queued_steps(g, n, bits);
    while (took < 1.2 && n < 64) took = queued_steps(g, n *= 2, bits);
    if (took < 1.2) test_fail(__FILE__, __LINE__, "%d steps took only %.2f s together", n, took);
    gn_close(g);
    gn_server_close(s);
}

/* By its cost, before anything is computed; with an estimate between once and ten times the limit it is only ended. */
static void a_plan_of_ten_times_the_limit_is_refused_beforehand(void) {
    gn_server *s = NULL;
    gn_error error;
    REQUIRE(gn_server_open(&(gn_server_desc){ .listen = "none", .threads = 1, .max_step_seconds = 1 }, &s, &error) ==
            GN_OK);
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    double begin = now_s();
    gn_tensor t =
        gn_matmul(spread(g, GN_F32, GN_SHAPE(1, (int64_t)1 << 41)), spread(g, GN_F32, GN_SHAPE((int64_t)1 << 41, 8)));
    gn_realize(&t, 1);
    CHECK_RESULT(gn_sync(g), GN_LIMIT);
    CHECK(strstr(gn_last_error(g)->text, "would take about") != NULL);
    CHECK(now_s() - begin < 0.8 || TEST_SANITIZED);
    gn_step(g);
    check_works(g);
    gn_close(g);
    gn_server_close(s);
}

/* With nothing unread, and with more unread than is received ahead. */
static void a_step_whose_client_has_gone_ends(void) {
    for (int unread = 0; unread < 2; unread++) {
        gn_server *s = open_server((gn_server_desc){ 0 });
        int ends[2];
        make_pair(ends);
        int fd = dup(ends[1]);
        CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
        gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = 30000 }, loopback_transport(ends[1]), "");
        int64_t places[4];
        void *host = places;
        size_t bytes = sizeof places;
        uint64_t ticket;
        gn_tensor t = endless_nonzero(g);
        REQUIRE(gn_read_later(&t, 1, &host, &bytes, &ticket) == GN_OK);
        wait_ms(200);
        CHECK(comes_to_work());
        static char rubbish[4096];
        memset(rubbish, 0xff, sizeof rubbish);
        for (int i = 0, full = 0; i < 2000 * unread && full < 10; i++) {
            bool sent = send(fd, rubbish, sizeof rubbish, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
            full = sent ? 0 : full + 1;
            wait_ms(sent ? 0 : 5);
        }
        shutdown(fd, SHUT_RDWR);
        close(fd);
        wait_ms(400 + 400 * TEST_SANITIZED);
        CHECK(comes_to_rest());
        gn_close(g);
        gn_server_close(s);
    }
}

/* ---- plans that take long to make: of many kernels, for a GPU that is not here, which generates and does not compile
   them */

static gn_server *open_planner(gn_server_desc desc) {
    setenv("GENIE_CUDA_COMPILE_ONLY", "sm_90", 1);
    desc.devices = "cuda:0";
    return open_server(desc);
}

static void close_planner(gn_server *s) {
    gn_server_close(s);
    unsetenv("GENIE_CUDA_COMPILE_ONLY");
}

/* A chain of so many kernels, all alike. */
static gn_tensor many_kernels(gn_ctx *g, int n) {
    gn_tensor x = gn_full(g, GN_F32, GN_SHAPE(4), 1);
    for (int i = 0; i < n; i++) x = gn_cumsum(x, 0);
    return x;
}

static gn_result run_many(gn_ctx *g, int n) {
    gn_tensor t = many_kernels(g, n);
    gn_result r = gn_realize(&t, 1);
    r = r == GN_OK ? gn_sync(g) : r;
    gn_step(g);
    return r;
}

/* Of how many kernels a plan takes so many seconds to make, about, and at least. */
static int kernels_of(double seconds) {
    enum { SOME = 30000, MOST = 1900000 };
    static double each;
    if (each == 0) {
        gn_server *s = open_planner((gn_server_desc){ 0 });
        gn_ctx *g = open_client(s, (gn_desc){ 0 });
        for (int i = 0; i < 3; i++) { /* the quickest: others may compute meanwhile */
            double begin = now_s();
            CHECK_RESULT(run_many(g, SOME + i), GN_OK);
            double took = (now_s() - begin) / (SOME + i);
            if (i == 0 || took < each) each = took;
        }
        gn_close(g);
        close_planner(s);
    }
    double n = seconds / each * 1.3;
    return n < SOME ? SOME : n > MOST ? MOST : (int)n;
}

/* Wherever it is; the next step of the same graph has the plan made. */
static void plans_under_way_end_when_cancelled(void) {
    int n = kernels_of(0.8);
    gn_server *s = open_planner((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    for (int i = 0; i < 3; i++) {
        canceller c = { .until_done = true };
        double begin = now_s();
        cancel_after(&c, g, 100 + 250 * i);
        gn_result r = run_many(g, n);
        atomic_store(&c.done, true);
        pthread_join(c.thread, NULL);
        printf("  %s after %.2f s\n", gn_result_name(r), now_s() - begin);
        CHECK(r == GN_CANCELLED || (i == 2 && r == GN_OK));
    }
    double begin = now_s();
    CHECK_RESULT(run_many(g, n), GN_OK);
    printf("  a plan of %d kernels is made in %.2f s\n", n, now_s() - begin);
    CHECK_RESULT(run_many(g, 10), GN_OK);
    gn_close(g);
    close_planner(s);
}

static void a_plan_that_takes_longer_than_a_step_may_is_not_made(void) {
    int n = kernels_of(3);
    gn_server *s = open_planner((gn_server_desc){ .max_step_seconds = 1 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    for (int i = 0; i < 2; i++) { /* the second time it is known */
        double begin = now_s();
        CHECK_RESULT(run_many(g, n), GN_LIMIT);
        CHECK(strstr(gn_last_error(g)->text, "max-step-seconds") != NULL);
        CHECK(now_s() - begin < 1.5 + SOON_MS * 1e-3);
    }
    CHECK_RESULT(run_many(g, 10), GN_OK);
    gn_close(g);
    close_planner(s);
}

static void a_plan_whose_client_has_gone_is_not_made(void) {
    int n = kernels_of(4), ends[2];
    gn_server *s = open_planner((gn_server_desc){ 0 });
    make_pair(ends);
    int fd = dup(ends[1]);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
    gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = 30000 }, loopback_transport(ends[1]), "");
    gn_tensor t = many_kernels(g, n);
    CHECK_RESULT(gn_realize(&t, 1), GN_OK);
    wait_ms(200);
    CHECK(comes_to_work());
    shutdown(fd, SHUT_RDWR);
    close(fd);
    wait_ms(600 + 600 * TEST_SANITIZED);
    CHECK(comes_to_rest());
    gn_close(g);
    close_planner(s);
}

static void a_server_that_closes_ends_the_plans_it_makes(void) {
    int n = kernels_of(2 + SOON_MS * 1e-3);
    gn_server *s = open_planner((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    gn_tensor t = many_kernels(g, n);
    CHECK_RESULT(gn_realize(&t, 1), GN_OK);
    wait_ms(300);
    double begin = now_s();
    close_planner(s);
    printf("  closed after %.2f s\n", now_s() - begin);
    CHECK(now_s() - begin < SOON_MS * 1e-3);
    gn_close(g);
}

static void a_server_that_closes_ends_what_it_computes(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[3];
    int64_t places[3][4];
    uint64_t ticket[3];
    for (int i = 0; i < 3; i++) {
        void *host = places[i];
        size_t bytes = sizeof places[i];
        g[i] = open_client(s, (gn_desc){ 0 });
        gn_tensor t = endless_nonzero(g[i]);
        REQUIRE(gn_read_later(&t, 1, &host, &bytes, &ticket[i]) == GN_OK);
    }
    wait_ms(200);
    double begin = now_s();
    gn_server_close(s);
    CHECK(now_s() - begin < SOON_MS * 1e-3);
    for (int i = 0; i < 3; i++) {
        CHECK(gn_wait(g[i], ticket[i]) != GN_OK);
        CHECK_RESULT(gn_status(g[i]), GN_DEVICE_LOST);
        gn_close(g[i]);
    }
}

/* Nobody has used it since it was lost: status and the first step tell, and say why. */
static void a_loss_is_told_by_status_and_by_the_first_step(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    check_works(g);
    CHECK_RESULT(gn_status(g), GN_OK);
    gn_server_close(s);
    wait_ms(5);
    CHECK_RESULT(gn_step(g), GN_DEVICE_LOST);
    CHECK(strstr(gn_last_error(g)->text, "is lost") != NULL);
    CHECK_RESULT(gn_status(g), GN_DEVICE_LOST);
    CHECK_RESULT(gn_step(g), GN_DEVICE_LOST);
    gn_close(g);
    CHECK_RESULT(gn_status(g), GN_CLOSED_CONTEXT);
}

/* Of several devices: the first step after the loss of one tells, later ones go on with the others. */
static void the_loss_of_one_of_several_is_told_once(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    int ends[2];
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
    gn_transport t = loopback_transport(ends[1]);
    const char *device = "";
    gn_ctx *g = gn_open_transports(&(gn_desc){ .devices = "cpu" }, &t, &device, 1);
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK_RESULT(gn_step(g), GN_OK);
    gn_server_close(s);
    wait_ms(5);
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK_RESULT(gn_step(g), GN_DEVICE_LOST);
    CHECK_RESULT(gn_step(g), GN_OK);
    check_works(g);
    CHECK_RESULT(gn_status(g), GN_OK);
    gn_close(g);
}

/* ---- at any moment ---- */

typedef struct storm {
    gn_ctx *g;
    atomic_bool stop;
    unsigned seed;
} storm;

static void *storm_main(void *arg) {
    storm *s = arg;
    while (!atomic_load(&s->stop)) {
        s->seed = s->seed * 1664525u + 1013904223u;
        usleep(s->seed >> 22); /* up to 1 ms */
        gn_cancel(s->g);
    }
    return NULL;
}

/* Steps that count, cancelled at random: what a call says of itself is what the state shows. */
static void check_storm(gn_ctx *g, int steps, int products) {
    storm s = { .g = g, .seed = (unsigned)test_random() };
    pthread_t thread;
    float seen = 0;
    int ok = 0, cancelled = 0;
    static float x[4096];
    gn_tensor counter = gn_state(g, GN_F32, GN_SCALAR, NULL, "counter");
    REQUIRE(pthread_create(&thread, NULL, storm_main, &s) == 0);
    for (int i = 0; i < steps; i++) {
        float y[4096], before = seen;
        for (int k = 0; k < 4096; k++) x[k] = (float)(i + k);
        gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(64, 64), x);
        gn_assign(counter, gn_add_c(counter, 1));
        for (int k = 0; k < products; k++) t = gn_maximum(t, gn_mul_c(gn_matmul(t, t), 0));
        gn_result r = gn_read(gn_add_c(gn_add(t, t), 1), y, sizeof y);
        ok += r == GN_OK;
        cancelled += r == GN_CANCELLED;
        if (r == GN_OK) CHECK(y[0] == 2 * x[0] + 1 && y[4095] == 2 * x[4095] + 1);
        else CHECK_RESULT(r, GN_CANCELLED);
        gn_result stepped = gn_step(g);
        CHECK(stepped == GN_OK || stepped == GN_CANCELLED);
        gn_result read = GN_CANCELLED;
        for (int k = 0; k < 1000 && read == GN_CANCELLED; k++) {
            read = gn_read(counter, &seen, sizeof seen);
            gn_step(g);
        }
        REQUIRE(CHECK_RESULT(read, GN_OK));
        CHECK(r == GN_OK ? seen == before + 1 : seen == before || seen == before + 1);
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    printf("%d steps ended well, %d were cancelled\n", ok, cancelled);
    CHECK(cancelled > 0);
    check_works(g);
}

static void cancelled_at_random_moments_a_context_stays_right(void) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 3 });
    check_storm(g, test_rounds(200), 20);
    gn_close(g);
}

static void cancelled_at_random_moments_a_session_stays_right(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    check_storm(g, test_rounds(12), 6000);
    gn_close(g);
    gn_server_close(s);
}

/* Before, between and after calls nothing happens. */
static void a_cancel_without_a_call_does_nothing(void) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_cancel(NULL);
    gn_cancel(g);
    check_works(g);
    gn_cancel(g);
    gn_cancel(g);
    check_works(g);
    gn_close(g);
    gn_cancel(g);
    CHECK_RESULT(gn_status(g), GN_CLOSED_CONTEXT);
}

/* ---- what a server remembers ---- */

static void plans_that_did_not_end_are_remembered_by_the_next_server(void) {
    char text[9000], again[9000];
    gn_server *s = open_server((gn_server_desc){ 0 });
    CHECK_INT(gn_server_refused(s, text, sizeof text), 0);
    CHECK_STR(text, "");
    for (unsigned i = 0; i < GN__REFUSED_MAX + 3; i++)
        gn__server_refuse(s, i % 2 ? "tenant: of many\xff bytes" : "", 0x123456789abcdef0u + i);
    size_t n = gn_server_refused(s, text, sizeof text);
    CHECK(n > 1000 && n < sizeof text && strlen(text) == n);
    CHECK_INT(gn_server_refused(s, again, 8), n);
    CHECK(strlen(again) < 8 && strncmp(text, again, strlen(again)) == 0);
    gn_server_close(s);
    s = open_server((gn_server_desc){ .refused = text });
    CHECK_INT(gn_server_refused(s, again, sizeof again), n);
    CHECK_STR(again, text);
    gn_server_close(s);
    for (size_t cut = 1; cut < 60; cut++) {
        gn_error error;
        text[n - cut] = 0;
        bool whole = n == cut || text[n - cut - 1] == ' ';
        gn_result r =
            gn_server_open(&(gn_server_desc){ .listen = "none", .no_costs = true, .refused = text }, &s, &error);
        CHECK_RESULT(r, whole ? GN_OK : GN_BAD_ARGUMENT);
        if (r == GN_OK) gn_server_close(s);
    }
}

static void a_remembered_plan_is_refused_at_once_and_its_client_after_three(void) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, (gn_desc){ 0 });
    float out;
    gn_tensor t = gn_exp(gn_data(g, GN_F32, GN_SCALAR, &one));
    CHECK_RESULT(gn_read(t, &out, sizeof out), GN_OK);
    gn__server_refuse(s, "tenant", g->plans[0].part->hash);
    gn__server_refuse(s, "another", 5);
    gn_close(g);
    g = open_client(s, (gn_desc){ 0 });
    t = gn_exp(gn_data(g, GN_F32, GN_SCALAR, &one));
    CHECK_RESULT(gn_read(t, &out, sizeof out), GN_LIMIT);
    CHECK(strstr(gn_last_error(g)->text, "this plan is refused") != NULL);
    gn_step(g);
    check_works(g);
    gn_close(g);
    gn__server_refuse(s, "tenant", 6);
    gn__server_refuse(s, "tenant", 7);
    g = open_client(s, (gn_desc){ 0 });
    CHECK_RESULT(gn_status(g), GN_LIMIT);
    gn_close(g);
    gn_server_close(s);
}

/* A fake server may give signs for ever, but not as many as it likes. */
static void a_flood_of_signs_is_refused(void) {
    int ends[2];
    make_pair(ends);
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_stats stats = { 0 };
    gn_exec x;
    gn_fault f;
    int between[2];
    make_pair(between);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "tenant"), GN_OK);
    REQUIRE(gn__remote_open(&(gn_desc){ .deadline_ms = 1000 }, loopback_transport(ends[1]), "", false, &stats, &x,
                            &f) == GN_OK);
    gn__remote *r = x.self;
    gn__msg_alive m = { 5 };
    uint8_t bytes[8];
    gn__buf b = { bytes, 0, sizeof bytes, false };
    gn__msg_encode(&b, GN__MSG_ALIVE, &m);
    gn__msg sign = { GN__MSG_ALIVE, 0, bytes, 8, 0 };
    int taken = 0;
    while (taken < 100000 && gn__remote_handle(r, &sign, &f) == GN_OK) taken++;
    CHECK(taken >= 4 && taken < 5000);
    CHECK_RESULT(f.result, GN_BAD_MESSAGE);
    CHECK(r->lost);
    x.i->close(x.self);
    close(between[0]);
    close(between[1]);
    gn_server_close(s);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(endless_kernels_of_every_kind_end_when_cancelled),
        TEST_ENTRY(a_cut_ends_when_its_call_is_cancelled),
        TEST_ENTRY(a_cancelled_step_changes_no_state),
        TEST_ENTRY(endless_kernels_on_a_server_end_when_cancelled),
        TEST_ENTRY(queued_steps_end_with_the_one_that_runs),
        TEST_ENTRY(a_step_longer_than_the_deadline_is_no_loss),
        TEST_ENTRY(peers_that_know_neither_work_as_before),
        TEST_ENTRY(a_step_longer_than_the_server_allows_ends_with_the_limit),
        TEST_ENTRY(queued_steps_have_each_their_own_time),
        TEST_ENTRY(a_plan_of_ten_times_the_limit_is_refused_beforehand),
        TEST_ENTRY(a_step_whose_client_has_gone_ends),
        TEST_ENTRY(plans_under_way_end_when_cancelled),
        TEST_ENTRY(a_plan_that_takes_longer_than_a_step_may_is_not_made),
        TEST_ENTRY(a_plan_whose_client_has_gone_is_not_made),
        TEST_ENTRY(a_server_that_closes_ends_the_plans_it_makes),
        TEST_ENTRY(a_server_that_closes_ends_what_it_computes),
        TEST_ENTRY(a_loss_is_told_by_status_and_by_the_first_step),
        TEST_ENTRY(the_loss_of_one_of_several_is_told_once),
        TEST_ENTRY(cancelled_at_random_moments_a_context_stays_right),
        TEST_ENTRY(cancelled_at_random_moments_a_session_stays_right),
        TEST_ENTRY(a_cancel_without_a_call_does_nothing),
        TEST_ENTRY(plans_that_did_not_end_are_remembered_by_the_next_server),
        TEST_ENTRY(a_remembered_plan_is_refused_at_once_and_its_client_after_three),
        TEST_ENTRY(a_flood_of_signs_is_refused),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
