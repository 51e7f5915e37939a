/* What a client can make a server hold: the server runs in a process of its own, reached over socketpairs, so that its
 * resident memory is its own. Each attack costs its client a few bytes; under a limit of 64 MiB the server's memory
 * must stay near that limit, the client must be told which limit it was, and a client of another tenant must not
 * notice. The server may open 1,024 descriptors. GENIE_FIGURES=1 prints its memory, threads and descriptors under each
 * attack.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"
#include "loopback.h"
#define SOON_MS 60000
#include "raw_client.h"

/* OVER: room for messages under way, code and the allocator's own */
enum { MIB = 1 << 20, LIMIT = 64 * MIB, OVER = 24 * MIB };
enum { CLIENTS = 12, DESCRIPTORS = 1024 };
/* of one client: its session's, the pool's, one that hashes an upload */
enum { THREADS_A_CLIENT = 4, DESCRIPTORS_A_CLIENT = 4 };

/* A server in a child process; sockets[i] leads to it, a session of tenants[i]. */
typedef struct host {
    pid_t pid;
    int control, sockets[CLIENTS];
    uint64_t before; /* resident bytes once it was open */
} host;

/* threads, descriptors: the most since it was asked last */
typedef struct held {
    uint64_t now, peak, threads, descriptors;
} held;

static uint64_t status_number(const char *key) {
    char line[256];
    unsigned long long number = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), ": %llu", &number);
    fclose(f);
    return number;
}

static uint64_t status_bytes(const char *key) { return status_number(key) * 1024; }

static uint64_t open_descriptors(void) {
    uint64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n > 3 ? n - 3 : 0; /* ., .. and the folder itself */
}

static struct { atomic_uint_least64_t threads, descriptors; } most_seen;

static void see(atomic_uint_least64_t *most, uint64_t now) {
    if (now > atomic_load(most)) atomic_store(most, now);
}

/* A thread of the server's process, which it counts too. */
static void *watch(void *unused) {
    (void)unused;
    for (;; usleep(2000)) {
        see(&most_seen.threads, status_number("Threads"));
        see(&most_seen.descriptors, open_descriptors());
    }
    return NULL;
}

/* Answers each byte with what it holds, until the control socket is closed. */
static void host_main(gn_server *s, int control) {
    char byte;
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch, NULL) != 0) _exit(5);
    while (read(control, &byte, 1) == 1) {
        see(&most_seen.threads, status_number("Threads"));
        see(&most_seen.descriptors, open_descriptors());
        held h = { status_bytes("VmRSS"), status_bytes("VmHWM"), atomic_exchange(&most_seen.threads, 0),
                   atomic_exchange(&most_seen.descriptors, 0) };
        if (write(control, &h, sizeof h) != (ssize_t)sizeof h) break;
    }
    gn_server_close(s);
    _exit(0);
}

static held host_ask(const host *h) {
    held answer = { 0 };
    if (write(h->control, "?", 1) != 1 || read(h->control, &answer, sizeof answer) != (ssize_t)sizeof answer)
        test_fail(__FILE__, __LINE__, "the server is gone");
    return answer;
}

static host host_begin(gn_server_desc desc, const char *const *tenants, int n) {
    host h = { .control = -1 };
    int control[2], ends[CLIENTS];
    make_pair(control);
    for (int i = 0; i < n; i++) {
        int pair[2];
        make_pair(pair);
        h.sockets[i] = pair[0];
        ends[i] = pair[1];
    }
    fflush(stdout);
    h.pid = fork();
    if (h.pid == 0) {
        gn_server *s = NULL;
        gn_error e;
        struct rlimit few = { DESCRIPTORS, DESCRIPTORS };
        if (setrlimit(RLIMIT_NOFILE, &few) != 0) _exit(6);
        desc.listen = "none";
        desc.no_costs = true;
        if (!desc.threads) desc.threads = 2;
        close(control[0]);
        for (int i = 0; i < n; i++) close(h.sockets[i]);
        if (gn_server_open(&desc, &s, &e) != GN_OK) {
            printf("%s\n", e.text);
            _exit(3);
        }
        for (int i = 0; i < n; i++)
            if (gn_server_attach(s, loopback_transport(ends[i]), tenants[i]) != GN_OK) _exit(4);
        host_main(s, control[1]);
    }
    close(control[1]);
    for (int i = 0; i < n; i++) close(ends[i]);
    h.control = control[0];
    h.before = host_ask(&h).now;
    return h;
}

/* The server ends by itself: its sessions are over, and none of them has taken it along. */
static void host_end(host *h) {
    int status = -1;
    close(h->control);
    waitpid(h->pid, &status, 0);
    if (status != 0) test_fail(__FILE__, __LINE__, "the server ended with status 0x%x", status);
}

static const char *const two_tenants[2] = { "guest", "honest" };

static gn_ctx *client_on(int fd) {
    return gn_open_transport(&(gn_desc){ .deadline_ms = SOON_MS }, loopback_transport(fd), "");
}

/* 2 + 3; how long it took, in us. */
static uint64_t honest_step(gn_ctx *g) {
    float two = 2, three = 3, five = 0;
    uint64_t begin = gn_now_us();
    gn_tensor sum = gn_add(gn_data(g, GN_F32, GN_SCALAR, &two), gn_data(g, GN_F32, GN_SCALAR, &three));
    if (!CHECK_RESULT(gn_read(sum, &five, sizeof five), GN_OK)) printf("%s\n", gn_last_error(g)->text);
    CHECK(five == 5);
    gn_step(g);
    return gn_now_us() - begin;
}

/* The part that computes t, as it travels. */
static gn__buf part_of(gn_ctx *g, const gn_tensor *t, int n) {
    gn__buf b = { NULL, 0, 0, false };
    uint32_t *roots = (uint32_t *)malloc((size_t)n * sizeof *roots), bad;
    gn_result why;
    gn_fault f;
    for (int i = 0; i < n; i++) roots[i] = gn__resolve(g, t[i], &why);
    if (gn__cut_make(g, roots, n, &bad) != GN_OK || gn__part_encode(&b, &g->cut.part, &f) != GN_OK) exit(2);
    free(roots);
    return b;
}

static gn_ctx *builder(void) { return gn_open(&(gn_desc){ .devices = "null" }); }

typedef struct attack {
    const char *name;
    gn_result (*run)(int fd); /* what the client is told: the first refusal, GN_OK for none */
    bool refused;             /* it has to be */
} attack;

static char told[512]; /* the words of the latest refusal */

static gn_result told_by(gn_ctx *g, gn_result r) {
    if (r) snprintf(told, sizeof told, "%s", gn_last_error(g)->text);
    return r;
}

/* The first error that waits to be read, without waiting longer than that takes. Ends when request `last` is
   answered. */
static gn_result raw_first_error(raw *r, uint32_t last) {
    gn_result first = GN_OK;
    gn__msg m = { 0, 0, NULL, 0, 0 };
    while (raw_receive(r, &m) == GN_OK) {
        gn__msg_error d;
        gn_fault f;
        if (m.id == GN__MSG_ERROR && gn__msg_decode(m.id, m.p, m.n, &d, &f) == GN_OK && m.request != last && !first) {
            first = (gn_result)d.result;
            gn__span_text(&d.text, told, sizeof told);
        }
        if (m.request == last) return first;
    }
    test_fail(__FILE__, __LINE__, "the session ended: %s", told);
    return first;
}

/* Something that is answered by an error whatever the session holds. */
static void raw_ping(raw *r, uint32_t request) {
    gn__msg_slot_drop m = { 77, 77 };
    raw_send(r, GN__MSG_SLOT_DROP, request, &m);
}

/* ---- the attacks ---- */

/* Scores of one query with 2^28 keys, all of them the same number. */
static gn_result attack_attention(int fd) {
    gn_ctx *g = client_on(fd);
    float one = 1, y = 0;
    gn_tensor x = gn_broadcast(gn_reshape(gn_data(g, GN_F32, GN_SCALAR, &one), GN_SHAPE(1, 1, 1, 1)),
                               GN_SHAPE(1, 1, INT64_C(1) << 28, 1));
    gn_tensor q = gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 1), &one);
    gn_result r = told_by(g, gn_read(gn_attention(q, x, x, NULL), &y, sizeof y));
    gn_step(g);
    honest_step(g);
    gn_close(g);
    return r;
}

/* Keys of 5 million numbers, 24 bytes each, beside a result of 40 MB. */
static gn_result attack_argsort(int fd) {
    gn_ctx *g = client_on(fd);
    float one = 1;
    int64_t y = 0;
    gn_tensor x = gn_broadcast(gn_data(g, GN_F32, GN_SCALAR, &one), GN_SHAPE(5000000));
    gn_result r = told_by(g, gn_read(gn_max(gn_argsort(x, 0, false), GN_ALL_AXES, false), &y, sizeof y));
    gn_step(g);
    honest_step(g);
    gn_close(g);
    return r;
}

/* Steps that keep 2^16 values of no bytes each. */
static gn_result attack_empty_values(int fd) {
    enum { OUTS = 1 << 16, STEPS = 40 };
    gn_ctx *g = builder();
    raw *r = raw_greet(raw_on(fd));
    gn_tensor *t = (gn_tensor *)malloc(OUTS * sizeof *t);
    uint8_t *flags = (uint8_t *)malloc(OUTS), *ids = (uint8_t *)malloc(OUTS * 8);
    for (int i = 0; i < OUTS; i++) t[i] = gn_full(g, GN_F32, GN_SHAPE(0), i);
    memset(flags, GN__OUT_KEPT, OUTS);
    raw_plan(r, 2, 1, part_of(g, t, OUTS), 0);
    for (uint32_t s = 0; s < STEPS; s++) {
        gn__buf b = { ids, 0, OUTS * 8, false };
        for (uint64_t i = 0; i < OUTS; i++) gn__put_u64(&b, 1 + s * (uint64_t)OUTS + i);
        gn__msg_step m = { 1, s + 1, 0, 0, { flags, OUTS }, { ids, OUTS }, { NULL, 0 } };
        raw_send(r, GN__MSG_STEP, 3 + s, &m);
    }
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    free(t);
    free(flags);
    free(ids);
    gn_close(g);
    return first;
}

/* One number in the last place of a table. */
static gn_result attack_last_slot(int fd) {
    raw *r = raw_greet(raw_on(fd));
    raw_state(r, 2, (1 << 20) - 1, 1, NULL);
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    return first;
}

/* A plan of as many nodes as there may be. */
static gn_result attack_nodes(int fd) {
    gn_ctx *g = builder();
    raw *r = raw_greet(raw_on(fd));
    gn_tensor t = gn_scalar(g, GN_F32, 1);
    for (int i = 0; i < (1 << 21) - 8; i++) t = gn_neg(t);
    gn__buf b = part_of(g, &t, 1);
    gn_close(g);
    raw_plan(r, 2, 1, b, 0);
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    return first;
}

/* A plan that fits as it travels, but not with its layout. */
static gn_result attack_layout(int fd) {
    gn_ctx *g = builder();
    raw *r = raw_greet(raw_on(fd));
    gn_tensor t = gn_scalar(g, GN_F32, 1);
    for (int i = 0; i < 300000; i++) t = gn_sum(gn_reshape(t, GN_SHAPE(1)), GN_ALL_AXES, false);
    gn__buf b = part_of(g, &t, 1);
    gn_close(g);
    raw_plan(r, 2, 1, b, 0);
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    return first;
}

/* Messages that never end, as many as there may be, and a weight of which the last byte never comes. */
static gn_result attack_unfinished(int fd) {
    enum { PIECE = MIB, PIECES = 60 };
    raw *r = raw_greet(raw_on(fd));
    uint8_t *p = (uint8_t *)calloc(1, PIECE + 5), digest[32] = { 1 };
    p[3] = 16; /* { codec 0, 2^20 bytes } */
    for (uint64_t i = 0; i < PIECES; i++) {
        gn__msg_weight_put m = { { 0 }, (uint64_t)PIECES * PIECE + 1, i * PIECE, 4, { p, PIECE + 5 } };
        memcpy(m.digest, digest, 32);
        raw_send(r, GN__MSG_WEIGHT_PUT, (uint32_t)(2 + i), &m);
    }
    for (uint32_t k = 0; k < 28; k++)
        for (uint32_t i = 0; i < GN__OPEN_MESSAGES; i++) {
            gn__buf b = { NULL, 0, 0, false };
            gn__put_u32(&b, GN__FRAME_MAX);
            gn__put_u16(&b, GN__MSG_SLOT_PUT);
            gn__put_u16(&b, GN__FRAME_MORE);
            gn__put_u32(&b, 100 + i);
            gn__put_bytes(&b, p, GN__FRAME_MAX);
            raw_bytes(r, b.p, b.n);
            gn__buf_deinit(&b);
        }
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    free(p);
    return first;
}

/* A state of 60 MiB, with its first value. */
static gn_result attack_state(int fd) {
    enum { N = 60 * MIB };
    raw *r = raw_greet(raw_on(fd));
    uint8_t *p = (uint8_t *)calloc(1, N), dims[8] = { 0, 0, 0xc0, 3 };
    gn__msg_slot_put m = { 1, 1, GN_LEAF_STATE, GN__FILL_BYTES, GN_U8, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    gn__outbox_fields(&r->link.out, GN__MSG_SLOT_PUT, 2, &m);
    gn__blob_put(&r->link.out, p, N, 1, 1, 0, &r->link.scratch);
    gn__outbox_end(&r->link.out);
    gn__outbox_flush(&r->link.out);
    raw_ping(r, 1000);
    gn_result first = raw_first_error(r, 1000);
    raw_close(r);
    free(p);
    return first;
}

/* Many weights of 8 bytes, each let go of at once: they stay when the session is over. */
static gn_result attack_small_weights(int fd) {
    enum { N = 200000 };
    raw *r = raw_greet(raw_on(fd));
    gn_result first = GN_OK;
    uint32_t request = 2;
    for (uint64_t i = 0; i < N; i++) {
        gn__msg_weight_put m = { { 0 }, 8, 0, 8, { (const uint8_t *)&i, 8 } };
        gn__net->sha256(&i, 8, m.digest);
        gn__outbox_message(&r->link.out, GN__MSG_WEIGHT_PUT, request++, &m);
        if (i % 1000 < 999) continue;
        gn__msg_step step = { 99, i / 1000 + 1, 0, r->seen++, { NULL, 0 }, { NULL, 0 }, { NULL, 0 } };
        /* refused; but weights that were promised and that no slot uses are let go of */
        raw_send(r, GN__MSG_STEP, request++, &step);
        raw_ping(r, request);
        gn_result e = raw_first_error(r, request++);
        if (!first && e != GN_NO_PLAN) first = e;
    }
    raw_close(r);
    return first;
}

/* Plans that differ in a constant. */
static gn_result attack_constants(int fd) {
    enum { N = 20000 };
    gn_ctx *g = client_on(fd);
    gn_result r = GN_OK;
    for (int i = 0; i < N && !r; i++) {
        float y = 0;
        r = told_by(g, gn_read(gn_add_c(gn_scalar(g, GN_F32, 1), i), &y, sizeof y));
        if (!r && y != (float)(i + 1)) test_fail(__FILE__, __LINE__, "%g is not %d", (double)y, i + 1);
        gn_step(g);
    }
    gn_close(g);
    return r;
}

static const attack attacks[] = {
    { "attention over a broadcast number", attack_attention, true },
    { "argsort of a broadcast number", attack_argsort, true },
    { "kept values of no bytes", attack_empty_values, true },
    { "a slot in the last place", attack_last_slot, false },
    { "a plan of 2^21 nodes", attack_nodes, true },
    { "a plan of 600,000 nodes", attack_layout, true },
    { "messages and a weight that never end", attack_unfinished, false },
    { "a state of 60 MiB", attack_state, false },
    { "200,000 weights of 8 bytes", attack_small_weights, false },
    { "20,000 plans that differ in a constant", attack_constants, false },
};

static void attack_run(const attack *a) {
    host h = host_begin((gn_server_desc){ .memory_limit = LIMIT }, two_tenants, 2);
    gn_ctx *honest = client_on(h.sockets[1]);
    honest_step(honest);
    told[0] = 0;
    held before = host_ask(&h);
    gn_result r = a->run(h.sockets[0]);
    held during = host_ask(&h);
    uint64_t slow = 0;
    for (int i = 0; i < 20; i++) slow = GN__MAX(slow, honest_step(honest));
    gn_close(honest);
    uint64_t grown = during.peak - GN__MIN(h.before, during.peak);
    if (!CHECK(TEST_SANITIZED || grown <= LIMIT + OVER) || getenv("GENIE_FIGURES"))
        printf("  %-40s %6.1f MiB at its peak, %6.1f MiB after; threads %d before, %d at most; descriptors %d, %d; "
               "honest step at most %.1f ms; %s %s\n",
               a->name, (double)grown / MIB, (double)(during.now - GN__MIN(h.before, during.now)) / MIB,
               (int)before.threads, (int)during.threads, (int)before.descriptors, (int)during.descriptors,
               (double)slow / 1e3, gn__result_name(r), told);
    CHECK(during.threads <= before.threads + THREADS_A_CLIENT);
    CHECK(during.descriptors <= before.descriptors + DESCRIPTORS_A_CLIENT);
    if (r || a->refused) {
        CHECK_RESULT(r, GN_LIMIT);
        if (!strstr(told, "--memory"))
            test_fail(__FILE__, __LINE__, "%s: \"%s\" does not name the limit", a->name, told);
    }
    host_end(&h);
}

TEST(memory_that_a_client_causes_stays_within_its_limit) {
    for (size_t i = 0; i < GN__LENGTH(attacks); i++) attack_run(&attacks[i]);
}

/* A state of so many MiB, and what came of it. */
static gn_result fill(gn_ctx *g, int64_t mib) {
    float y = 1;
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(mib * MIB / 4), NULL, "filling");
    gn_result r = told_by(g, gn_read(gn_slice(s, 0, 0, 1, 1), &y, sizeof y));
    if (!r) CHECK(y == 0);
    gn_step(g);
    return r;
}

static void check_told(const char *flag) {
    if (!strstr(told, flag)) test_fail(__FILE__, __LINE__, "\"%s\" does not name %s", told, flag);
}

/* Two sessions of one tenant share its budget; another tenant has its own. */
TEST(sessions_of_a_tenant_share_its_budget) {
    host h = host_begin((gn_server_desc){ .memory_limit = 32 * MIB, .tenant_memory = 48 * MIB },
                        (const char *[]){ "guest", "guest", "honest" }, 3);
    gn_ctx *g[3];
    for (int i = 0; i < 3; i++) g[i] = client_on(h.sockets[i]);
    CHECK_RESULT(fill(g[0], 24), GN_OK);
    CHECK_RESULT(fill(g[1], 26), GN_LIMIT);
    check_told("--tenant-memory");
    honest_step(g[1]);
    CHECK_RESULT(fill(g[2], 26), GN_OK);
    CHECK_RESULT(fill(g[2], 26), GN_LIMIT);
    check_told("--memory");
    gn_close(g[0]);
    gn_result r = GN_LIMIT;
    for (int i = 0; i < 100 && r; i++, usleep(10000)) r = fill(g[1], 26);
    CHECK_RESULT(r, GN_OK); /* the first one's share is free again */
    for (int i = 1; i < 3; i++) gn_close(g[i]);
    host_end(&h);
}

TEST(tenants_share_the_total_budget) {
    host h = host_begin((gn_server_desc){ .memory_limit = 40 * MIB, .total_memory = LIMIT },
                        (const char *[]){ "a", "b", "c" }, 3);
    gn_ctx *g[3];
    for (int i = 0; i < 3; i++) g[i] = client_on(h.sockets[i]);
    CHECK_RESULT(fill(g[0], 24), GN_OK);
    CHECK_RESULT(fill(g[1], 24), GN_OK);
    CHECK_RESULT(fill(g[2], 24), GN_LIMIT);
    check_told("--total-memory");
    CHECK_RESULT(gn_status(g[2]), GN_OK);
    for (int i = 0; i < 3; i++) honest_step(g[i]);
    for (int i = 0; i < 3; i++) gn_close(g[i]);
    CHECK(TEST_SANITIZED || host_ask(&h).peak - h.before < LIMIT + OVER);
    host_end(&h);
}

/* What nobody uses goes when somebody needs the room. */
TEST(idle_weights_make_room) {
    enum { N = 6 * MIB };
    host h = host_begin((gn_server_desc){ .memory_limit = 32 * MIB, .total_memory = LIMIT },
                        (const char *[]){ "a", "a", "b", "c" }, 4);
    float *x = (float *)calloc(N, sizeof *x), y = 0;
    for (int i = 0; i < 2; i++) {
        gn_ctx *g = client_on(h.sockets[i]);
        x[0] = (float)i;
        CHECK_RESULT(gn_read(gn_slice(gn_weight(g, GN_F32, GN_SHAPE(N), x, "w"), 0, 0, 1, 1), &y, sizeof y), GN_OK);
        CHECK(y == (float)i);
        gn_close(g);
    }
    gn_ctx *g[2] = { client_on(h.sockets[2]), client_on(h.sockets[3]) };
    for (int i = 0; i < 2; i++) {
        if (!CHECK_RESULT(fill(g[i], 26), GN_OK)) printf("%s\n", told);
        honest_step(g[i]);
    }
    for (int i = 0; i < 2; i++) gn_close(g[i]);
    free(x);
    host_end(&h);
}

/* Structures that differ in a constant, each of them run again later: what plans take stays near what is allowed, here
   and on the server, and the ones that were let go of are made again. */
TEST(plans_are_kept_within_their_bytes) {
    enum { N = 3000, ROUNDS = 2 };
    host h = host_begin((gn_server_desc){ .memory_limit = 4 * MIB }, two_tenants, 1);
    for (int remote = 0; remote < 2; remote++) {
        gn_desc d = { .plan_memory = MIB, .threads = 1, .devices = "cpu" };
        gn_ctx *g = remote ? gn_open_transport(&d, loopback_transport(h.sockets[0]), "") : gn_open(&d);
        gn_tensor count = gn_state(g, GN_F32, GN_SCALAR, NULL, "count");
        gn_stats stats;
        for (int i = 0; i < N * ROUNDS; i++) {
            float y[2] = { 0, 0 };
            gn_tensor t[2] = { gn_add_c(gn_scalar(g, GN_F32, 1), i % N), gn_assign(count, gn_add_c(count, 1)) };
            if (!CHECK_RESULT(gn_read_many(t, 2, (void *[2]){ &y[0], &y[1] }, (size_t[2]){ 4, 4 }), GN_OK)) {
                printf("%s\n", gn_last_error(g)->text);
                break;
            }
            if (y[0] != (float)(i % N + 1) || y[1] != (float)(i + 1))
                test_fail(__FILE__, __LINE__, "step %d gives %g, %g", i, (double)y[0], (double)y[1]);
            gn_step(g);
            if (!CHECK(gn__account_held(g->plan_account) <= 2 * MIB)) break;
        }
        gn_get_stats(g, &stats);
        CHECK_INT(stats.plans_made, N * ROUNDS);
        CHECK(stats.plans_dropped > N && stats.plans_dropped < N * ROUNDS);
        for (int i = 0; i < 100; i++) { /* those that are used stay */
            float y = 0;
            CHECK_RESULT(gn_read(gn_mul_c(gn_scalar(g, GN_F32, 1), i % 10), &y, sizeof y), GN_OK);
            gn_step(g);
        }
        gn_stats after;
        gn_get_stats(g, &after);
        CHECK_INT(after.plans_made - stats.plans_made, 10);
        gn_close(g);
    }
    host_end(&h);
}

/* A server lets go of the plans of a client that lets go of none, and makes them again when they are run. */
TEST(a_session_keeps_the_plans_used_last) {
    enum { N = 600 };
    int ends[2];
    gn_server *s = NULL;
    gn_stats stats;
    CHECK_RESULT(
        gn_server_open(&(gn_server_desc){ .listen = "none", .no_costs = true, .threads = 1, .memory_limit = 4 * MIB },
                       &s, NULL),
        GN_OK);
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "guest"), GN_OK);
    gn_ctx *g = client_on(ends[1]);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            float y = 0;
            gn_tensor t = gn_scalar(g, GN_F32, 1);
            for (int k = 0; k < 4; k++) t = gn_sum(gn_mul_c(gn_reshape(t, GN_SHAPE(1)), i), GN_ALL_AXES, false);
            CHECK_RESULT(gn_read(t, &y, sizeof y), GN_OK);
            float want = (float)i * (float)i * ((float)i * (float)i);
            if (y != want && !(y / want > 0.999999f && y / want < 1.000001f))
                test_fail(__FILE__, __LINE__, "%g is not %g", (double)y, (double)want);
            gn_step(g);
        }
    gn_get_stats(g, &stats);
    CHECK_INT(stats.plans_made, N);
    CHECK_INT(stats.plans_dropped, 0);
    gn_server_stats(s, &stats);
    CHECK(stats.plans_dropped > N);
    gn_close(g);
    gn_server_close(s);
}

/* ---- plans are charged before their tables are there ---- */

/* A chain of so many ops of each kind: loops, views, kernels, several outputs. */
static const gn_part *long_part(gn_ctx *g, int n) {
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(4, 4), (float[16]){ 0 });
    uint32_t roots[64], n_roots = 0, bad;
    gn_result why;
    for (int i = 0; i < n; i++) {
        t = i % 4 == 0 ? gn_cumsum(t, 0) : i % 4 == 1 ? gn_transpose(t, 0, 1) : gn_add(t, t);
        if (i % (n / 60) == 0) roots[n_roots++] = gn__resolve(g, t, &why);
    }
    if (gn__cut_make(g, roots, (int)n_roots, &bad) != GN_OK) exit(2);
    g->cut.part.hash = gn__part_hash(&g->cut.part);
    return &g->cut.part;
}

/* What this process holds more, at most, while it is refused; in a process of its own, whose peak is its own. */
static uint64_t refused_peak(const gn_exec *x, const gn_part *part) {
    uint64_t grown = UINT64_MAX;
    int pair[2];
    make_pair(pair);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        void *plan = NULL;
        uint64_t before = status_bytes("VmRSS");
        gn_result r = x->i->plan_make(x->self, part, &plan, &f);
        grown = status_bytes("VmHWM") - before;
        if (r != GN_LIMIT || plan || !strstr(f.text, "--memory")) {
            printf("%s: %s\n", gn_result_name(r), f.text);
            fflush(stdout);
            grown = UINT64_MAX;
        }
        if (write(pair[1], &grown, sizeof grown) != (ssize_t)sizeof grown) _exit(2);
        _exit(0);
    }
    close(pair[1]);
    if (read(pair[0], &grown, sizeof grown) != (ssize_t)sizeof grown) grown = UINT64_MAX;
    close(pair[0]);
    waitpid(pid, NULL, 0);
    return grown;
}

/* Under a limit that its tables alone pass. On a GPU the kernels come on top, which are not known before. The null
   executor holds nothing of a plan: its part is the caller's. */
TEST(plans_are_refused_before_their_tables_are_touched) {
    static const char *const devices[] = { "cpu", "cuda:0" };
    gn_ctx *g = builder();
    const gn_part *part = long_part(g, 200000);
    setenv("GENIE_CUDA_COMPILE_ONLY", "sm_90", 1);
    for (int i = 0; i < TEST_COUNT(devices); i++) {
        gn_stats stats;
        memset(&stats, 0, sizeof stats);
        gn_exec_desc d = { .device = devices[i], .threads = 1, .stats = &stats };
        gn_exec x = { NULL, NULL };
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        void *plan = NULL;
        gn_account *budget = gn__account_open(NULL, "the session", "--memory", 0);
        gn__paying.host = budget;
        REQUIRE(gn__exec_open(&d, &x, &f) == GN_OK);
        uint64_t before = gn__account_held(budget);
        CHECK_RESULT(x.i->plan_make(x.self, part, &plan, &f), GN_OK);
        uint64_t whole = gn__account_held(budget) - before, least = gn__cpu_plan_least(part);
        CHECK(gn__paid_ahead == 0 && whole >= least);
        x.i->plan_destroy(x.self, plan);
        uint64_t rest = gn__account_held(budget); /* kernels stay for the next plan */
        gn__atomic_store(&budget->limit, rest + least - 1);
        uint64_t grown = refused_peak(&x, part);
        printf("  %s: a plan of %.1f MiB, at least %.1f, is refused with %.2f MiB touched\n", devices[i],
               (double)whole / MIB, (double)least / MIB, (double)grown / MIB);
        CHECK(grown < 2 * MIB + 14 * MIB * TEST_SANITIZED);
        CHECK_INT(gn__account_held(budget), rest);
        gn__atomic_store(&budget->limit, rest + whole + whole / 4); /* what comes and goes meanwhile */
        CHECK_RESULT(x.i->plan_make(x.self, part, &plan, &f), GN_OK);
        if (plan) x.i->plan_destroy(x.self, plan);
        x.i->close(x.self);
        gn__paying.host = NULL;
        gn__account_close(budget);
    }
    unsetenv("GENIE_CUDA_COMPILE_ONLY");
    gn_close(g);
}

/* A block of results that can never be had is refused when the plan is made, by a host as by a GPU. */
TEST(plans_whose_results_pass_every_limit_are_refused_when_they_are_made) {
    gn_ctx *g = builder();
    gn_stats stats;
    memset(&stats, 0, sizeof stats);
    for (int large = 0; large < 2; large++) {
        gn_exec_desc d = { .device = "cpu", .threads = 1, .stats = &stats };
        gn_exec x = { NULL, NULL };
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        void *plan = NULL;
        uint32_t root, bad;
        gn_result why;
        gn_account *above = gn__account_open(NULL, "the tenant", "--tenant-memory", 4 * MIB),
                   *budget = gn__account_open(above, "the session", "--memory", 64 * MIB);
        gn__paying.host = budget;
        REQUIRE(gn__exec_open(&d, &x, &f) == GN_OK);
        gn__paying.host = NULL;
        root = gn__resolve(g, gn_cumsum(gn_full(g, GN_F32, GN_SHAPE((large ? 5 : 1) * MIB / 4), 1), 0), &why);
        REQUIRE(gn__cut_make(g, &root, 1, &bad) == GN_OK);
        gn__paying.host = budget;
        CHECK_RESULT(x.i->plan_make(x.self, &g->cut.part, &plan, &f), large ? GN_LIMIT : GN_OK);
        CHECK(!large || strstr(f.text, "results"));
        if (plan) x.i->plan_destroy(x.self, plan);
        x.i->close(x.self);
        gn__paying.host = NULL;
        gn__account_close(budget);
        gn__account_close(above);
    }
    gn_close(g);
}

static const test_entry tests[] = {
    TEST_ENTRY(plans_are_refused_before_their_tables_are_touched),
    TEST_ENTRY(plans_whose_results_pass_every_limit_are_refused_when_they_are_made),
    TEST_ENTRY(plans_are_kept_within_their_bytes),
    TEST_ENTRY(a_session_keeps_the_plans_used_last),
    TEST_ENTRY(sessions_of_a_tenant_share_its_budget),
    TEST_ENTRY(tenants_share_the_total_budget),
    TEST_ENTRY(idle_weights_make_room),
    TEST_ENTRY(memory_that_a_client_causes_stays_within_its_limit),
};

int main(int argc, char **argv) {
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
