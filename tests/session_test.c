/* Client and server of protocol 1 over a socketpair: honest work is bit for bit what the local executor gives, and
 * whatever a peer sends or fails to send ends in a typed error of that session alone.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Allocations of the chosen threads fail from the n-th on, or only the n-th. */
enum { FAIL_NOBODY, FAIL_MAIN_THREAD, FAIL_OTHER_THREADS };
static int fail_whom;
static long fail_at, fail_count;
static bool fail_for_ever;
static __thread bool is_main_thread;

static bool must_fail(void) {
    int whom = __atomic_load_n(&fail_whom, __ATOMIC_SEQ_CST);
    if (whom == FAIL_NOBODY || is_main_thread != (whom == FAIL_MAIN_THREAD)) return false;
    long n = __atomic_fetch_add(&fail_count, 1, __ATOMIC_RELAXED), at = __atomic_load_n(&fail_at, __ATOMIC_RELAXED);
    return __atomic_load_n(&fail_for_ever, __ATOMIC_RELAXED) ? n >= at : n == at;
}

#define GN_MALLOC(n) (must_fail() ? NULL : malloc(n))
#define GN_REALLOC(p, n) (must_fail() ? NULL : realloc(p, n))
#define GN_FREE(p) free(p)
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"
#include "loopback.h"
#include "raw_client.h"

#include <stdatomic.h>

static gn_server *open_server(gn_server_desc desc) {
    gn_server *s = NULL;
    gn_error error;
    desc.listen = "none";
    if (desc.threads == 0) desc.threads = 1;
    if (!CHECK_RESULT(gn_server_open(&desc, &s, &error), GN_OK)) {
        printf("%s\n", error.text);
        exit(1);
    }
    return s;
}

static gn_ctx *open_client(gn_server *s, const char *tenant, gn_desc desc) {
    int ends[2];
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), tenant), GN_OK);
    return gn_open_transport(&desc, loopback_transport(ends[1]), "");
}

/* 2 + 3, on a client of its own: the server lives. */
static void check_alive(gn_server *s) {
    gn_ctx *g = open_client(s, "honest", (gn_desc){ .deadline_ms = SOON_MS });
    float two = 2, three = 3, five = 0;
    gn_tensor sum = gn_add(gn_data(g, GN_F32, GN_SCALAR, &two), gn_data(g, GN_F32, GN_SCALAR, &three));
    CHECK_RESULT(gn_read(sum, &five, sizeof five), GN_OK);
    CHECK(five == 5);
    gn_close(g);
}

static gn_stats server_stats(gn_server *s) {
    gn_stats x;
    gn_server_stats(s, &x);
    return x;
}

static gn_stats client_stats(gn_ctx *g) {
    gn_stats x;
    gn_get_stats(g, &x);
    return x;
}

/* ---- honest work ---- */

typedef struct model {
    gn_ctx *g;
    gn_tensor w, table, state, cache;
    float *weights;
} model;

enum { MODEL_D = 48, MODEL_V = 400, MODEL_S = 16 }; /* the table, (400, 48) f32, is larger than what travels inline */

static model make_model(gn_ctx *g) {
    model m = { g, GN_NONE, GN_NONE, GN_NONE, GN_NONE, NULL };
    size_t n = MODEL_D * MODEL_D + MODEL_V * MODEL_D;
    m.weights = (float *)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) m.weights[i] = (float)((i * 7919) % 1000) / 1000 - 0.5f;
    m.w = gn_weight(g, GN_F32, GN_SHAPE(MODEL_D, MODEL_D), m.weights, "w");
    m.table = gn_weight(g, GN_F32, GN_SHAPE(MODEL_V, MODEL_D), m.weights + MODEL_D * MODEL_D, "table");
    m.state = gn_state(g, GN_F32, GN_SHAPE(4, MODEL_D), NULL, "state");
    m.cache = gn_state(g, GN_F32, GN_SHAPE(1, 1, MODEL_S, MODEL_D), NULL, "cache");
    return m;
}

/* One step: embedding, a cache row, a matmul, noise, a state update; reads (4, 48) and one index. */
static gn_result run_model(model *m, int step, float *out, int64_t *best) {
    gn_ctx *g = m->g;
    int32_t ids[4];
    for (int i = 0; i < 4; i++) ids[i] = (step * 31 + i * 97) % MODEL_V;
    gn_tensor x = gn_embedding(m->table, gn_data_copy(g, GN_I32, GN_SHAPE(4), ids));
    gn_tensor row = gn_reshape(gn_slice(x, 0, 0, 1, 1), GN_SHAPE(1, 1, 1, MODEL_D));
    gn_tensor cache = gn_kv_append(m->cache, row, gn_scalar(g, GN_I32, step % MODEL_S));
    gn_tensor h = gn_add(gn_matmul(x, m->w), gn_reshape(gn_sum(cache, GN_AXES(2), false), GN_SHAPE(1, MODEL_D)));
    h = gn_add(h, gn_mul_c(gn_random_normal(g, GN_F32, GN_SHAPE(4, MODEL_D)), 0.1));
    gn_tensor s = gn_assign(m->state, gn_add(gn_mul_c(m->state, 0.5), gn_tanh(h)));
    gn_tensor reads[2] = { s, gn_argmax(gn_softmax(h, -1), GN_ALL_AXES, false) };
    void *outs[2] = { out, best };
    size_t sizes[2] = { 4 * MODEL_D * sizeof(float), sizeof *best };
    gn_result e = gn_read_many(reads, 2, outs, sizes);
    gn_step(g);
    return e;
}

TEST(remote_equals_local_bit_for_bit) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[2] = { gn_open(&(gn_desc){ .devices = "cpu", .seed = 5, .threads = 1 }),
                     open_client(s, "a", (gn_desc){ .seed = 5 }) };
    model m[2] = { make_model(g[0]), make_model(g[1]) };
    for (int step = 0; step < 20; step++) {
        float out[2][4 * MODEL_D];
        int64_t best[2] = { -1, -2 };
        for (int i = 0; i < 2; i++)
            if (!CHECK_RESULT(run_model(&m[i], step, out[i], &best[i]), GN_OK))
                printf("    %s\n", gn_last_error(g[i])->text);
        CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
        CHECK_INT(best[0], best[1]);
    }
    gn_stats c = client_stats(g[1]);
    CHECK_INT(c.steps_run, 20);
    CHECK(c.plans_made <= 2);
    CHECK_INT(c.kv_bytes_moved, 0);
    CHECK_INT(c.weight_bytes_sent, (MODEL_D * MODEL_D + MODEL_V * MODEL_D) * sizeof(float));
    CHECK(c.device_bytes > 0);
    for (int i = 0; i < 2; i++) {
        gn_close(g[i]);
        free(m[i].weights);
    }
    gn_server_close(s);
}

/* Steps are submitted three ahead of their waits, here and on a server. */
TEST(reads_without_waiting_give_what_reads_give) {
    enum { STEPS = 9, AHEAD = 3, N = 1000 };
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[2] = { gn_open(&(gn_desc){ .devices = "cpu" }), open_client(s, "a", (gn_desc){ 0 }) };
    for (int c = 0; c < 2; c++) {
        static int32_t out[AHEAD][2][N];
        uint64_t ticket[AHEAD] = { 0 };
        gn_tensor sum = gn_state(g[c], GN_I32, GN_SHAPE(N), NULL, "sum");
        for (int k = 0; k < STEPS + AHEAD; k++) {
            int32_t x[N], (*o)[N] = out[k % AHEAD];
            gn_result r = gn_wait(g[c], ticket[k % AHEAD]);
            int before = k - AHEAD, wrong = 0;
            if (r != GN_OK) printf("    context %d, step %d: %s\n", c, before, gn_last_error(g[c])->text);
            CHECK(r == GN_OK);
            for (int i = 0; i < N && before >= 0; i++)
                wrong += o[0][i] != i * (before + 1) * (before + 2) / 2 || o[1][i] != -i * (before + 1);
            CHECK_INT(wrong, 0);
            if (k >= STEPS) continue;
            for (int i = 0; i < N; i++) {
                x[i] = i * (k + 1);
                o[0][i] = o[1][i] = -77;
            }
            gn_tensor t = gn_data_copy(g[c], GN_I32, GN_SHAPE(N), x),
                      reads[2] = { gn_assign(sum, gn_add(sum, t)), gn_neg(t) };
            CHECK_RESULT(gn_read_later(reads, 2, (void *[2]){ o[0], o[1] }, (size_t[2]){ sizeof x, sizeof x },
                                       &ticket[k % AHEAD]),
                         GN_OK);
            CHECK_RESULT(gn_step(g[c]), GN_OK);
        }
        gn_close(g[c]);
    }
    gn_server_close(s);
}

/* The error of a run that was not waited for is told by its wait, and once. */
TEST(a_read_without_waiting_tells_its_error_when_it_is_waited_for) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[2] = { gn_open(&(gn_desc){ .devices = "cpu" }), open_client(s, "a", (gn_desc){ 0 }) };
    for (int c = 0; c < 2; c++) {
        float table[4] = { 1, 2, 3, 4 }, out = 0;
        int32_t id = 9;
        size_t bytes = sizeof out;
        uint64_t ticket = 0;
        gn_tensor row = gn_embedding(gn_weight(g[c], GN_F32, GN_SHAPE(4, 1), table, "t"),
                                     gn_data_copy(g[c], GN_I32, GN_SHAPE(1), &id));
        gn_result first = gn_read_later(&row, 1, (void *[1]){ &out }, &bytes, &ticket);
        gn_result second = gn_wait(g[c], ticket);
        CHECK(first == GN_INDEX_OUT_OF_RANGE ? second == GN_OK : first == GN_OK && second == GN_INDEX_OUT_OF_RANGE);
        CHECK_RESULT(gn_sync(g[c]), GN_OK);
        gn_close(g[c]);
    }
    gn_server_close(s);
}

TEST(large_tensors_travel_whole_both_ways) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    const size_t n = 3000000 / 4 + 3; /* about three chunks, in a dozen frames */
    float *x = (float *)malloc(n * 4), *y = (float *)malloc(n * 4);
    for (size_t i = 0; i < n; i++) x[i] = (float)test_random_real(-1, 1);
    gn_tensor st = gn_state(g, GN_F32, GN_SHAPE((int64_t)n), x, "big");
    CHECK_RESULT(gn_read(gn_neg(gn_add(st, gn_data(g, GN_F32, GN_SHAPE((int64_t)n), x))), y, n * 4), GN_OK);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += y[i] != -(x[i] + x[i]);
    CHECK_INT(wrong, 0);
    gn_stats c = client_stats(g);
    CHECK_INT(c.tensor_bytes_down, n * 4);
    CHECK_INT(c.tensor_bytes_up, 2 * n * 4);
    CHECK(c.frames_down > 4);
    gn_close(g);
    free(x);
    free(y);
    gn_server_close(s);
}

/* Steps that nobody reads are sent without waiting; one frame up and one down each, and few bytes. */
TEST(steps_are_pipelined_and_small) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    float zero[4] = { 0 }, got[4];
    gn_tensor st = gn_state(g, GN_F32, GN_SHAPE(4), zero, "st");
    gn_stats before = { 0 }, after;
    for (int i = 0; i < 410; i++) {
        if (i == 10) {
            CHECK_RESULT(gn_sync(g), GN_OK);
            before = client_stats(g);
        }
        gn_assign(st, gn_add(st, gn_scalar(g, GN_F32, 1)));
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    CHECK_RESULT(gn_sync(g), GN_OK);
    after = client_stats(g);
    CHECK_INT(after.steps_run - before.steps_run, 400);
    CHECK_INT(after.frames_up - before.frames_up, 400);
    CHECK_INT(after.frames_down - before.frames_down, 400);
    CHECK_INT(after.plans_made, 1);
    CHECK((after.socket_bytes_up - before.socket_bytes_up) / 400 <= 60);
    CHECK((after.socket_bytes_down - before.socket_bytes_down) / 400 <= 60);
    CHECK(after.round_trips - before.round_trips <= 400 / (GN__IN_FLIGHT / 2) + 2);
    CHECK_RESULT(gn_read(st, got, sizeof got), GN_OK);
    CHECK(got[3] == 410);
    gn_close(g);
    gn_server_close(s);
}

/* Many large outputs and inputs at once: neither side waits for the other to read. */
TEST(large_answers_do_not_block_large_requests) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ .deadline_ms = 5000 });
    const int64_t n = 1 << 18;
    float *x = (float *)calloc((size_t)n, 4), *y = (float *)malloc((size_t)n * 4);
    for (int i = 0; i < 8; i++) {
        x[0] = (float)i;
        gn_tensor kept = gn_add_c(gn_data_copy(g, GN_F32, GN_SHAPE(n), x), 1);
        CHECK_RESULT(gn_realize(&kept, 1), GN_OK);
        CHECK_RESULT(gn_read(gn_mul_c(kept, 2), y, (size_t)n * 4), GN_OK);
        CHECK(y[0] == (float)(2 * (i + 1)) && y[n - 1] == 2);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    gn_close(g);
    free(x);
    free(y);
    gn_server_close(s);
}

typedef struct crowd {
    gn_server *s;
    int id;
    bool ok;
} crowd;

static void crowd_main(void *arg) {
    crowd *c = (crowd *)arg;
    int ends[2];
    make_pair(ends);
    if (gn_server_attach(c->s, loopback_transport(ends[0]), c->id % 2 ? "odd" : "even")) return;
    gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = 20000 }, loopback_transport(ends[1]), "");
    float w[64], x = (float)c->id, got = 0, sum = 0;
    for (int i = 0; i < 64; i++) sum += w[i] = (float)(i % 5);
    gn_tensor weight = gn_weight(g, GN_F32, GN_SHAPE(64), w, "w");
    c->ok = true;
    for (int i = 0; i < 50 && c->ok; i++) {
        gn_tensor y = gn_sum(gn_mul(weight, gn_data(g, GN_F32, GN_SCALAR, &x)), GN_ALL_AXES, false);
        c->ok = gn_read(y, &got, sizeof got) == GN_OK && got == sum * x && gn_step(g) == GN_OK;
    }
    gn_close(g);
}

TEST(many_clients_at_once_are_all_served) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    crowd c[8];
    gn__thread t[8];
    for (int i = 0; i < 8; i++) {
        c[i] = (crowd){ s, i, false };
        REQUIRE(gn__thread_start(&t[i], crowd_main, &c[i]));
    }
    for (int i = 0; i < 8; i++) {
        gn__thread_join(&t[i]);
        CHECK(c[i].ok);
    }
    CHECK_INT(server_stats(s).sessions, 8);
    gn_server_close(s);
}

/* A cache that travels is counted each way; one that lives on the server is not. */
TEST(kv_bytes_that_cross_are_counted) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    float cache[8] = { 0 }, row[2] = { 3, 4 };
    gn_tensor c = gn_data(g, GN_F32, GN_SHAPE(1, 1, 4, 2), cache), r = gn_data(g, GN_F32, GN_SHAPE(1, 1, 1, 2), row);
    CHECK_RESULT(gn_read(gn_kv_append(c, r, gn_scalar(g, GN_I32, 2)), cache, sizeof cache), GN_OK);
    CHECK(cache[4] == 3 && cache[5] == 4);
    CHECK_INT(client_stats(g).kv_bytes_moved, 2 * sizeof cache);
    gn_tensor st = gn_state(g, GN_F32, GN_SHAPE(1, 1, 4, 2), NULL, "cache");
    float sum = 0;
    CHECK_RESULT(gn_read(gn_sum(gn_kv_append(st, r, gn_scalar(g, GN_I32, 1)), GN_ALL_AXES, false), &sum, 4), GN_OK);
    CHECK(sum == 7);
    CHECK_INT(client_stats(g).kv_bytes_moved, 2 * sizeof cache);
    gn_close(g);
    gn_server_close(s);
}

TEST(null_device_answers_no_value) {
    gn_server *s = open_server((gn_server_desc){ .devices = "null" });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    float x = 1, y = 77;
    CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SCALAR, &x)), &y, 4), GN_NO_VALUE);
    CHECK(y == 77);
    gn_close(g);
    gn_server_close(s);
}

TEST(describe_names_server_and_device) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 }), *local = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_device_info i, l;
    CHECK_RESULT(gn_get_device(g, &i), GN_OK);
    CHECK_RESULT(gn_get_device(local, &l), GN_OK);
    CHECK_STR(i.name, "loopback/cpu:0");
    CHECK_STR(i.identity, l.identity);
    CHECK(i.remote && !l.remote);
    gn_close(g);
    gn_close(local);
    gn_server_close(s);
}

/* ---- errors of an honest client ---- */

TEST(a_failed_step_leaves_the_session_alive) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    float table[6] = { 0, 1, 2, 3, 4, 5 }, row[2] = { 9, 9 };
    int32_t bad = 3, good = 2;
    gn_tensor t = gn_weight(g, GN_F32, GN_SHAPE(3, 2), table, "table");
    CHECK_RESULT(gn_read(gn_embedding(t, gn_data(g, GN_I32, GN_SCALAR, &bad)), row, sizeof row), GN_INDEX_OUT_OF_RANGE);
    gn_error error = *gn_last_error(g);
    CHECK_STR(error.op, "embedding");
    CHECK(row[0] == 9);
    CHECK_RESULT(gn_read(gn_embedding(t, gn_data(g, GN_I32, GN_SCALAR, &good)), row, sizeof row), GN_OK);
    CHECK(row[0] == 4 && row[1] == 5);
    CHECK_INT(server_stats(s).faults, 1);
    gn_close(g);
    gn_server_close(s);
}

/* ---- plans recorded for the next start ---- */

static void keep_last_line(void *user, gn_log_level level, const char *text) {
    (void)level;
    if (strstr(text, " plans of ")) snprintf((char *)user, 400, "%s", text);
}

/* A server that makes the file's plans: its line about them. */
static void warm_with(const char *path, char line[400]) {
    line[0] = 0;
    gn_server *s = open_server((gn_server_desc){ .warm_file = path, .log = keep_last_line, .log_user = line });
    char said[400];
    check_alive(s);
    for (int i = 0; i < 2000 && !gn__atomic_load(&s->warmed); i++) usleep(1000);
    memcpy(said, line, sizeof said);
    gn_server_close(s);
    memcpy(line, said, sizeof said);
}

static void overwrite(const char *path, const uint8_t *p, size_t n) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n);
    if (f) fclose(f);
}

TEST(plans_recorded_by_a_server_are_made_by_the_next) {
    char path[] = "/tmp/genie-test-plans-XXXXXX", line[400];
    uint8_t bytes[4096];
    float x[4] = { 1, 2, 3, 4 }, y = 0;
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    gn_server *s = open_server((gn_server_desc){ .record_file = path });
    for (int i = 0; i < 3; i++) { /* the third is another plan */
        gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
        gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(4), x);
        CHECK_RESULT(gn_read(gn_sum(i < 2 ? t : gn_relu(t), GN_ALL_AXES, false), &y, 4), GN_OK);
        gn_close(g);
    }
    gn_server_close(s);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) fclose(f);
    CHECK(n > 8 && n < sizeof bytes && memcmp(bytes, "GNPLANS1", 8) == 0);
    warm_with(path, line);
    CHECK(strstr(line, "2 plans of") && strstr(line, "0 refused") && !strstr(line, "not a record"));
    overwrite(path, bytes, n - 1);
    warm_with(path, line);
    CHECK(strstr(line, "1 plans of") && strstr(line, "not a record"));
    bytes[12] ^= 0x55; /* in the first plan */
    overwrite(path, bytes, n);
    warm_with(path, line);
    CHECK(strstr(line, "1 plans of") && strstr(line, "1 refused"));
    overwrite(path, (const uint8_t *)"something else", 14);
    warm_with(path, line);
    CHECK(strstr(line, "0 plans of") && strstr(line, "not a record"));
    unlink(path);
    gn_error error;
    CHECK_RESULT(gn_server_open(&(gn_server_desc){ .listen = "none", .warm_file = path }, &s, &error), GN_IO_ERROR);
}

/* Whether the file holds these bytes; they are at most a few kilobytes. */
static bool file_holds(const char *path, const void *p, size_t n, size_t *out_bytes) {
    uint8_t bytes[8192];
    FILE *f = fopen(path, "rb");
    size_t got = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    bool holds = false;
    if (f) fclose(f);
    *out_bytes = got;
    for (size_t i = 0; i + n <= got; i++) holds = holds || memcmp(bytes + i, p, n) == 0;
    return holds;
}

/* A plan is recorded once a step of it has ended well: one that fails, or ends its server, is not made again at the
   next start. Keys of random numbers are the client's. */
TEST(plans_are_recorded_after_they_have_run_and_without_keys) {
    char path[] = "/tmp/genie-test-plans-XXXXXX", line[400];
    float table[4] = { 1, 2, 3, 4 }, y[8];
    int32_t far = 9;
    size_t n = 0;
    int64_t key = 0;
    close(mkstemp(path));
    gn_server *s = open_server((gn_server_desc){ .record_file = path });
    gn_ctx *g = open_client(s, "a", (gn_desc){ .seed = 0x5eed5eed5eedu });
    gn_tensor row =
        gn_embedding(gn_weight(g, GN_F32, GN_SHAPE(4, 1), table, "t"), gn_data(g, GN_I32, GN_SHAPE(1), &far));
    CHECK_RESULT(gn_read(row, y, 4), GN_INDEX_OUT_OF_RANGE);
    gn_step(g);
    file_holds(path, "", 1, &n);
    CHECK_INT(n, 0);
    CHECK_RESULT(gn_read(gn_random_normal(g, GN_F32, GN_SHAPE(8)), y, sizeof y), GN_OK);
    for (uint32_t i = 0; i < g->cut.part.n_nodes; i++)
        if (g->cut.part.nodes[i].op == GN_OP_RANDOM_NORMAL) key = g->cut.part.attrs[g->cut.part.nodes[i].attrs + 1];
    CHECK(key != 0);
    CHECK(!file_holds(path, &key, sizeof key, &n));
    CHECK(n > 8);
    gn_close(g);
    gn_server_close(s);
    warm_with(path, line);
    CHECK(strstr(line, "1 plans of") && strstr(line, "0 refused"));
    unlink(path);
}

static gn_exec_i slow_table;

static gn_result slow_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    usleep(300000);
    return gn__cpu_plan_make(self, part, out_plan, f);
}

static gn_result slow_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn_result r = gn__cpu_open(d, out, f);
    out->i = &slow_table;
    return r;
}

/* Clients are served while recorded plans are made, and what that may take is bounded: a plan that needs more is
   refused. */
TEST(plans_are_made_beside_the_first_clients_within_a_budget) {
    static const gn_driver_i slow = { .prefix = "slow", .open = slow_open };
    const gn_driver_i *before = gn__driver;
    char path[] = "/tmp/genie-test-plans-XXXXXX", line[400] = "";
    float x[4] = { 1, 2, 3, 4 }, y = 0;
    close(mkstemp(path));
    gn_server *s = open_server((gn_server_desc){ .record_file = path });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(gn_read(gn_sum(gn_add_c(gn_data(g, GN_F32, GN_SHAPE(4), x), i), GN_ALL_AXES, false), &y, 4),
                     GN_OK);
    gn_close(g);
    gn_server_close(s);
    slow_table = gn__cpu_i;
    slow_table.plan_make = slow_plan_make;
    gn_register_driver(&slow);
    uint64_t begin = gn_now_us();
    s = open_server((gn_server_desc){
        .devices = "cpu,slow:0", .no_costs = true, .warm_file = path, .log = keep_last_line, .log_user = line });
    check_alive(s);
    CHECK(gn_now_us() - begin < 850000); /* all three take 900 ms */
    CHECK_INT(gn__atomic_load(&s->warmed), 0);
    for (int i = 0; i < 4000 && !gn__atomic_load(&s->warmed); i++) usleep(1000);
    CHECK(strstr(line, "3 plans of") && strstr(line, "0 refused"));
    gn_server_close(s);
    gn__driver = before;
    s = open_server((gn_server_desc){
        .warm_file = path, .memory_limit = 1000, .no_costs = true, .log = keep_last_line, .log_user = line });
    for (int i = 0; i < 4000 && !gn__atomic_load(&s->warmed); i++) usleep(1000);
    CHECK(strstr(line, "0 plans of") && strstr(line, "3 refused"));
    gn_server_close(s);
    unlink(path);
}

static const gn_net_i *true_net;

/* Whatever it costs: zeros become small. */
static size_t pack_always(const void *src, size_t n, int elem, double wire_ns, void *dst, size_t cap,
                          uint8_t *out_codec) {
    (void)wire_ns;
    return true_net->pack(src, n, elem, 0, dst, cap, out_codec);
}

TEST(more_than_the_memory_limit_is_a_limit) {
    gn_net_i net = *gn__net;
    true_net = gn__net;
    net.pack = pack_always;
    gn__net = &net;
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 1 << 20 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    float *x = (float *)calloc(1 << 20, 4), y = 9;
    gn_tensor state = gn_state(g, GN_F32, GN_SHAPE(1 << 20), NULL, "too large");
    CHECK_RESULT(gn_read(gn_sum(state, GN_ALL_AXES, false), &y, 4), GN_LIMIT);
    gn_tensor weight = gn_weight(g, GN_F32, GN_SHAPE(1 << 19), x, "too large");
    CHECK_RESULT(gn_read(gn_sum(weight, GN_ALL_AXES, false), &y, 4), GN_LIMIT);
    gn_tensor data = gn_data(g, GN_F32, GN_SHAPE(1 << 20), x);
    CHECK_RESULT(gn_read(gn_sum(data, GN_ALL_AXES, false), &y, 4), GN_LIMIT);
    CHECK(y == 9);
    x[5] = 3;
    if (!CHECK_RESULT(gn_read(gn_sum(gn_data(g, GN_F32, GN_SHAPE(1000), x), GN_ALL_AXES, false), &y, 4), GN_OK))
        printf("%s\n", gn_last_error(g)->text);
    CHECK(y == 3);
    gn_close(g);
    free(x);
    check_alive(s);
    gn_server_close(s);
    gn__net = true_net;
}

static size_t pack_never(const void *src, size_t n, int elem, double wire_ns, void *dst, size_t cap,
                         uint8_t *out_codec) {
    (void)src;
    (void)n;
    (void)elem;
    (void)wire_ns;
    (void)dst;
    (void)cap;
    *out_codec = 0;
    return 0;
}

enum { LARGE_ARGUMENT, LARGE_WEIGHT, LARGE_STATE, LARGE_RESULT, LARGE__COUNT };

/* The last of n ones that travel as an argument, a weight, the first value of a state, or a result. */
static gn_result read_large(gn_ctx *g, int what, const float *ones, float *room, int64_t n, float *out) {
    gn_tensor x = what == LARGE_ARGUMENT ? gn_data(g, GN_F32, GN_SHAPE(n), ones)
                  : what == LARGE_WEIGHT ? gn_weight(g, GN_F32, GN_SHAPE(n), ones, "w")
                  : what == LARGE_STATE  ? gn_state(g, GN_F32, GN_SHAPE(n), ones, "s")
                                         : gn_full(g, GN_F32, GN_SHAPE(n), 1);
    if (what != LARGE_RESULT) return gn_read(gn_slice(x, 0, n - 1, n, 1), out, sizeof *out);
    float one = 1;
    gn_result e = gn_read(gn_mul(x, gn_data_copy(g, GN_F32, GN_SHAPE(1), &one)), room, (size_t)n * sizeof *room);
    if (!e) *out = room[n - 1];
    return e;
}

/* Whatever does not fit is refused by name, however it travels; the session goes on, and its state is what it was. */
TEST(what_does_not_fit_is_refused_and_the_session_goes_on) {
    enum { LIMIT = 4 << 20, BELOW = 1 << 17, ABOVE = 7 << 18 }; /* elements of 4 bytes */
    float *ones = (float *)malloc(ABOVE * 4), *room = (float *)malloc(ABOVE * 4), count = 0, expected = 0;
    true_net = gn__net;
    for (int i = 0; i < ABOVE; i++) ones[i] = 1;
    for (int packs = 0; packs < 2; packs++) {
        gn_net_i net = *true_net;
        net.pack = packs ? pack_always : pack_never;
        gn__net = &net;
        gn_server *s = open_server((gn_server_desc){ .memory_limit = LIMIT });
        gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
        gn_tensor state = gn_state(g, GN_F32, GN_SCALAR, NULL, "count");
        expected = 0;
        for (int i = 0; i < 2 * LARGE__COUNT; i++) {
            bool above = i < LARGE__COUNT;
            float y = 9;
            gn_result e = read_large(g, i % LARGE__COUNT, ones, room, above ? ABOVE : BELOW, &y);
            if (e != (above ? GN_LIMIT : GN_OK) || y != (above ? 9 : 1))
                test_fail(__FILE__, __LINE__, "packs %d, case %d: %s, %g", packs, i, gn_last_error(g)->text, (double)y);
            if (!CHECK_RESULT(gn_read(gn_assign(state, gn_add_c(state, 1)), &count, sizeof count), GN_OK))
                printf("%s\n", gn_last_error(g)->text);
            CHECK(count == ++expected);
            gn_step(g);
        }
        CHECK_RESULT(gn_status(g), GN_OK);
        CHECK_INT(server_stats(s).sessions, 1);
        gn_close(g);
        gn_server_close(s);
        gn__net = true_net;
    }
    free(ones);
    free(room);
}

TEST(unknown_device_is_refused) {
    gn_server *s = open_server((gn_server_desc){ .devices = "cpu" });
    int ends[2];
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "a"), GN_OK);
    gn_ctx *g = gn_open_transport(NULL, loopback_transport(ends[1]), "cuda:7");
    CHECK_RESULT(gn_status(g), GN_NO_DEVICE);
    gn_close(g);
    gn_stats st = server_stats(s);
    for (int i = 0; i < 100 && st.sessions_refused == 0; i++) {
        usleep(10000);
        st = server_stats(s);
    }
    CHECK_INT(st.sessions_refused, 1);
    CHECK_INT(st.sessions, 0);
    gn_server_close(s);
}

TEST(sessions_are_limited_and_places_come_free) {
    gn_server *s = open_server((gn_server_desc){ .max_sessions = 2 });
    gn_ctx *a = open_client(s, "a", (gn_desc){ 0 }), *b = open_client(s, "b", (gn_desc){ 0 }),
           *c = open_client(s, "c", (gn_desc){ 0 });
    CHECK_RESULT(gn_status(a), GN_OK);
    CHECK_RESULT(gn_status(b), GN_OK);
    CHECK_RESULT(gn_status(c), GN_LIMIT);
    gn_close(c);
    gn_close(a);
    gn_result e = GN_LIMIT;
    for (int i = 0; i < 100 && e; i++) {
        c = open_client(s, "c", (gn_desc){ 0 });
        e = gn_status(c);
        gn_close(c);
        if (e) usleep(10000);
    }
    CHECK_RESULT(e, GN_OK);
    gn_close(b);
    gn_server_close(s);
}

/* ---- what a client that vanishes leaves ---- */

TEST(a_client_that_vanishes_frees_its_memory) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_open(s, "raw");
    uint8_t dims[8] = { 0, 0, 16 }; /* 2^20 */
    gn__msg_slot_put m = { 1, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 2, &m);
    raw_step(r, 3, 99, 1, 0, 0, NULL, 0);
    raw_expect(r, 3, GN_NO_PLAN, false, "99");
    CHECK(server_stats(s).device_bytes >= 4 << 20);
    gn__outbox_fields(&r->link.out, GN__MSG_SLOT_PUT, 4, &m); /* and it leaves in the middle of a frame */
    r->link.out.b.n -= 3;
    gn__outbox_flush(&r->link.out);
    raw_close(r);
    uint64_t left = 1;
    for (int i = 0; i < 200 && left; i++) {
        left = server_stats(s).device_bytes;
        if (left) usleep(10000);
    }
    CHECK_INT(left, 0);
    gn_server_close(s);
}

/* ---- weights ---- */

static gn_result sum_weight(gn_ctx *g, float *host, int64_t n, float *out) {
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(n), host, "w");
    return gn_read(gn_sum(w, GN_ALL_AXES, false), out, sizeof *out);
}

TEST(weights_are_uploaded_once_a_tenant) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    enum { N = 700000 }; /* 2.8 MB: three pieces */
    float *host = (float *)malloc(N * 4), y[4];
    for (int i = 0; i < N; i++) host[i] = (float)(i % 3);
    const char *const tenants[4] = { "a", "a", "b", "a" };
    for (int i = 0; i < 4; i++) {
        gn_ctx *g = open_client(s, tenants[i], (gn_desc){ 0 });
        CHECK_RESULT(sum_weight(g, host, N, &y[i]), GN_OK);
        CHECK(y[i] == y[0]);
        gn_stats c = client_stats(g);
        bool first = i == 0 || i == 2; /* another tenant is not told */
        CHECK_INT(c.weight_bytes_sent, first ? N * 4 : 0);
        CHECK_INT(c.weight_bytes_known, first ? 0 : N * 4);
        gn_close(g);
    }
    free(host);
    gn_server_close(s);
}

static void keep_labelled(void *user, gn_log_level level, const char *text) {
    (void)level;
    int *seen = (int *)user;
    seen[strstr(text, "is over") != NULL] += strstr(text, "'kitchen ?display'") != NULL;
}

/* In the server's log, where it cannot forge lines; and what devices count of steps is counted of steps there. */
TEST(a_server_logs_labels_and_tells_what_it_counts) {
    int seen[2] = { 0, 0 };
    gn_server *s = open_server((gn_server_desc){ .log = keep_labelled, .log_user = seen });
    gn_ctx *g[2] = { gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 }),
                     open_client(s, "a", (gn_desc){ .label = "kitchen \ndisplay" }) };
    gn_stats st[2];
    for (int i = 0; i < 2; i++) {
        float x[8] = { 1, 2, 3 }, y[8], z = 0;
        gn_tensor state = gn_state(g[i], GN_F32, GN_SHAPE(8), NULL, "s");
        for (int k = 0; k < 5; k++) {
            gn_tensor t = gn_data(g[i], GN_F32, GN_SHAPE(8), x), u = gn_softmax(gn_neg(gn_mul_c(t, 2)), -1);
            gn_tensor old = gn_add(state, t), next = gn_assign(state, old),
                      reads[2] = { u, gn_sum(gn_add(old, next), GN_ALL_AXES, false) };
            CHECK_RESULT(gn_read_many(reads, 2, (void *[2]){ y, &z }, (size_t[2]){ sizeof y, 4 }), GN_OK);
            gn_step(g[i]);
        }
        st[i] = client_stats(g[i]);
        gn_close(g[i]);
    }
    CHECK(st[0].kernels_run > 5 && st[0].nodes_fused > 0);
    CHECK_INT(st[1].kernels_run, st[0].kernels_run);
    CHECK_INT(st[1].nodes_fused, st[0].nodes_fused);
    CHECK_INT(st[1].state_copies, st[0].state_copies);
    CHECK_INT(st[1].state_copy_bytes, st[0].state_copy_bytes);
    gn_server_close(s);
    CHECK_INT(seen[0], 1);
    CHECK_INT(seen[1], 1);
}

/* Here and on a server, until they are released. */
TEST(weights_count_as_bytes_of_the_device) {
    enum { N = 1 << 18 };
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[2] = { gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 }), open_client(s, "a", (gn_desc){ 0 }) };
    float *host = (float *)calloc(N, 4), y = 1, one = 1;
    for (int i = 0; i < 2; i++) {
        gn_tensor w = gn_weight(g[i], GN_F32, GN_SHAPE(N), host, "w");
        CHECK_RESULT(gn_read(gn_sum(w, GN_ALL_AXES, false), &y, 4), GN_OK);
        CHECK(y == 0);
        uint64_t with = client_stats(g[i]).device_bytes;
        CHECK(with >= N * 4);
        CHECK_RESULT(gn_release(w), GN_OK);
        gn_step(g[i]);
        CHECK_RESULT(gn_read(gn_neg(gn_data(g[i], GN_F32, GN_SCALAR, &one)), &y, 4), GN_OK);
        CHECK(client_stats(g[i]).device_bytes + N * 4 <= with + 4096);
        gn_close(g[i]);
    }
    free(host);
    gn_server_close(s);
}

TEST(equal_weights_travel_once) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    static float host[5000];
    float y = 0;
    for (int i = 0; i < 5000; i++) host[i] = 1;
    gn_tensor a = gn_weight(g, GN_F32, GN_SHAPE(5000), host, "a"), b = gn_weight(g, GN_F32, GN_SHAPE(5000), host, "b");
    CHECK_RESULT(gn_read(gn_sum(gn_add(a, b), GN_ALL_AXES, false), &y, 4), GN_OK);
    CHECK(y == 10000);
    CHECK_INT(client_stats(g).weight_bytes_sent, sizeof host);
    CHECK_RESULT(gn_release(a), GN_OK);
    CHECK_RESULT(gn_read(gn_sum(b, GN_ALL_AXES, false), &y, 4), GN_OK); /* the other still has it */
    CHECK(y == 5000);
    gn_close(g);
    gn_server_close(s);
}

/* One piece as it travels; small ones raw, others behind a chunk's head. */
static void raw_weight_piece(raw *r, uint32_t request, const uint8_t digest[32], uint64_t total, uint64_t offset,
                             const void *p, size_t n) {
    gn__msg_weight_put m = { { 0 }, total, offset, 4, { (const uint8_t *)p, n } };
    memcpy(m.digest, digest, 32);
    raw_send(r, GN__MSG_WEIGHT_PUT, request, &m);
}

/* Bytes under another's digest are refused; the honest owner of that digest gets his own bytes. */
TEST(poisoned_weights_are_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    float honest[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, evil[8] = { 100 }, y = 0;
    uint8_t digest[32], dims[8] = { 8 };
    gn__net->sha256(honest, sizeof honest, digest);
    raw *r = raw_open(s, "a");
    raw_weight_piece(r, 2, digest, sizeof evil, 0, evil, sizeof evil);
    raw_expect(r, 2, GN_BAD_DIGEST, false, "a weight of 32 bytes does not have the SHA-256");
    gn__msg_slot_put m = { 1, 1, GN_LEAF_WEIGHT, GN__FILL_DIGEST, GN_F32, { dims, 1 }, { digest, 32 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 3, &m);
    raw_expect(r, 3, GN_BAD_DIGEST, false, "no weight");
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    CHECK_RESULT(sum_weight(g, honest, 8, &y), GN_OK);
    CHECK(y == 36);
    CHECK_INT(client_stats(g).weight_bytes_sent, sizeof honest);
    gn_close(g);
    raw_close(r);
    gn_server_close(s);
}

/* A digest without the right length, or of another tenant, tells nothing and gives nothing. */
TEST(weights_of_others_are_not_there) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    float host[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, y = 0;
    uint8_t entry[40] = { 0 };
    gn__net->sha256(host, sizeof host, entry);
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    CHECK_RESULT(sum_weight(g, host, 8, &y), GN_OK);
    for (int i = 0; i < 3; i++) {
        entry[32] = (uint8_t)(i == 1 ? 31 : 32);
        raw *r = raw_open(s, i == 2 ? "b" : "a");
        gn__msg_weight_ask ask = { { entry, 1 } };
        gn__msg_weight_have d;
        gn__msg m = { 0, 0, NULL, 0, 0 };
        gn_fault f;
        raw_send(r, GN__MSG_WEIGHT_ASK, 2, &ask);
        CHECK_RESULT(raw_receive(r, &m), GN_OK);
        CHECK_INT(m.id, GN__MSG_WEIGHT_HAVE);
        CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
        CHECK_INT(d.have.n, 1);
        CHECK_INT(d.have.p[0], i == 0);
        raw_close(r);
    }
    gn_close(g);
    gn_server_close(s);
}

/* A client that ran out of memory in the middle begins again. */
TEST(an_upload_may_begin_again) {
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 5 << 20 });
    const size_t total = (2 << 20) + 4, chunk = GN__BLOB_CHUNK;
    uint8_t *wire = (uint8_t *)calloc(1, chunk + 5), digest[32], tail[4] = { 0 }, dims[8] = { 1, 0, 8 }; /* 2^19 + 1 */
    uint8_t *zeros = (uint8_t *)calloc(1, total);
    gn__net->sha256(zeros, total, digest);
    wire[3] = 16; /* { codec 0, 2^20 bytes } */
    raw *r = raw_open(s, "a");
    for (uint32_t i = 0; i < 3; i++) raw_weight_piece(r, 2 + i, digest, total, i % 2 ? chunk : 0, wire, chunk + 5);
    raw_weight_piece(r, 6, digest, total, chunk, wire, chunk + 5);
    raw_weight_piece(r, 7, digest, total, 2 * chunk, tail, 4);
    gn__msg_slot_put m = { 1, 1, GN_LEAF_WEIGHT, GN__FILL_DIGEST, GN_F32, { dims, 1 }, { digest, 32 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 8, &m);
    raw_step(r, 9, 99, 1, 0, 0, NULL, 0);
    raw_expect(r, 9, GN_NO_PLAN, false, "99"); /* the first error: all before it went well */
    raw_close(r);
    free(wire);
    free(zeros);
    gn_server_close(s);
}

/* The pieces [from, to) of a weight of total bytes, raw. */
static void raw_pieces(raw *r, uint32_t request, const uint8_t digest[32], const uint8_t *p, size_t total, size_t from,
                       size_t to) {
    const size_t chunk = GN__BLOB_CHUNK;
    uint8_t *wire = (uint8_t *)malloc(chunk + 5);
    for (size_t i = from; i < to && i * chunk < total; i++) {
        size_t n = GN__MIN(total - i * chunk, chunk);
        const uint8_t head[5] = { 0, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24) };
        size_t h = n == total - i * chunk && n <= GN__BLOB_INLINE ? 0 : sizeof head;
        memcpy(wire, head, h);
        memcpy(wire + h, p + i * chunk, n);
        raw_weight_piece(r, request + (uint32_t)i, digest, total, i * chunk, wire, h + n);
    }
    free(wire);
}

static int hashes_begun;
static void *(*begin_hash)(void);

static void *counted_hash(void) {
    __atomic_fetch_add(&hashes_begun, 1, __ATOMIC_RELAXED);
    return begin_hash();
}

/* Large ones are hashed on a thread of their own while they come; without one, at the end. */
TEST(a_large_weight_is_what_its_digest_says_or_refused) {
    const gn_net_i *net = gn__net;
    gn_net_i counting = *net, whole = *net;
    counting.hash_begin = counted_hash;
    whole.hash_begin = NULL;
    hashes_begun = 0;
    begin_hash = net->hash_begin;
    const size_t total = (9 << 20) + 8, chunks = total / GN__BLOB_CHUNK + 1;
    uint8_t *bytes = (uint8_t *)malloc(total), digest[32], dims[8] = { 2, 0, 0x24 }; /* 9 * 2^18 + 2 floats */
    for (size_t i = 0; i < total; i++) bytes[i] = (uint8_t)(i * 7 + (i >> 10) * 31);
    net->sha256(bytes, total, digest);
    for (int pass = 0; pass < 2; pass++) {
        gn__net = pass == 0 ? &counting : &whole;
        gn_server *s = open_server((gn_server_desc){ 0 });
        raw *r = raw_open(s, "a");
        raw_pieces(r, 2, digest, bytes, total, 0, 6); /* begun, and begun again */
        raw_pieces(r, 20, digest, bytes, total, 0, chunks);
        gn__msg_slot_put m = {
            1, 1, GN_LEAF_WEIGHT, GN__FILL_DIGEST, GN_F32, { dims, 1 }, { digest, 32 }, { NULL, 0 }
        };
        raw_send(r, GN__MSG_SLOT_PUT, 40, &m);
        raw_step(r, 41, 99, 1, 0, 0, NULL, 0);
        raw_expect(r, 41, GN_NO_PLAN, false, "99"); /* the first error: all before it went well */
        const size_t places[] = { 0, total / 2, total - 1 };
        for (size_t i = 0; i < GN__LENGTH(places); i++) {
            bytes[places[i]] ^= 1;
            uint8_t other[32];
            memcpy(other, digest, 32);
            other[5] ^= (uint8_t)(i + 1); /* the store does not have it */
            raw_pieces(r, 50, other, bytes, total, 0, chunks);
            char size[64];
            snprintf(size, sizeof size, "a weight of %zu bytes does not have the SHA-256", (size_t)total);
            raw_expect(r, 50 + (uint32_t)chunks - 1, GN_BAD_DIGEST, false, size);
            bytes[places[i]] ^= 1;
        }
        raw_pieces(r, 80, digest, bytes, total, 0, 5); /* it leaves in the middle */
        raw_close(r);
        check_alive(s);
        gn_server_close(s);
        CHECK_INT(__atomic_load_n(&hashes_begun, __ATOMIC_RELAXED), 6);
    }
    gn__net = net;
    free(bytes);
}

/* Those that have come whole are hashed while the next come: each wrong one is told by the request that ended it, the
   right ones are there, and so they are after a client that left before it heard. */
TEST(weights_that_come_one_after_another_are_each_told_right_or_wrong) {
    enum { W = 5, WRONG = 1, AT = 100 };
    const size_t total = (9 << 20) + 8, chunks = total / GN__BLOB_CHUNK + 1;
    uint8_t *bytes = (uint8_t *)malloc(total), digest[W][32], asked[W * 40];
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_open(s, "a");
    for (int leaves = 0; leaves < 2; leaves++) {
        for (size_t k = 0; k < W; k++) {
            for (size_t i = 0; i < total; i++) bytes[i] = (uint8_t)(i * 7 + (i >> 10) * 31 + k + 50 * (size_t)leaves);
            gn__net->sha256(bytes, total, digest[k]);
            digest[k][5] ^= k == WRONG && !leaves;
            raw_pieces(r, (uint32_t)(AT * (k + 1)), digest[k], bytes, total, 0, chunks);
            memcpy(asked + k * 40, digest[k], 32);
            for (size_t i = 0; i < 8; i++) asked[k * 40 + 32 + i] = (uint8_t)((uint64_t)total >> 8 * i);
        }
        const uint8_t all = leaves ? 0x1f : 0x1f & ~(1 << WRONG);
        if (leaves) {
            raw_close(r);
            r = raw_open(s, "a");
        } else
            raw_expect(r, AT * (WRONG + 1) + (uint32_t)chunks - 1, GN_BAD_DIGEST, false, "does not have the SHA-256");
        gn__msg_weight_ask ask = { { asked, W } };
        gn__msg m = { 0, 0, NULL, 0, 0 };
        gn__msg_weight_have have;
        gn_fault f;
        for (uint32_t tries = 0; tries < 200; tries++) { /* a session that is over may work for a moment still */
            raw_send(r, GN__MSG_WEIGHT_ASK, 900 + tries, &ask);
            CHECK_RESULT(raw_receive(r, &m), GN_OK);
            if (!CHECK_INT(m.id, GN__MSG_WEIGHT_HAVE)) break;
            CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &have, &f), GN_OK);
            if (have.have.p[0] == all) break;
            usleep(10000);
        }
        CHECK_INT(have.have.p[0], all);
    }
    raw_close(r);
    gn_server_close(s);
    free(bytes);
}

TEST(weights_hashed_by_several_threads_have_their_own_digests) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    enum { W = 7, N = 400000 }; /* 1.6 MB each */
    float *host = (float *)malloc((size_t)W * N * 4), y[2 * W];
    for (int i = 0; i < W * N; i++) host[i] = (float)(i / N + i % 5);
    for (int k = 0; k < 2; k++) { /* once by four threads, once by one: the same digests */
        gn_ctx *g = open_client(s, "a", (gn_desc){ .threads = k == 0 ? 4 : 1 });
        gn_tensor sums[W];
        for (int i = 0; i < W; i++)
            sums[i] =
                gn_reshape(gn_sum(gn_weight(g, GN_F32, GN_SHAPE(N), host + (size_t)i * N, "w"), GN_ALL_AXES, false),
                           GN_SHAPE(1));
        CHECK_RESULT(gn_read(gn_concat(sums, W, 0), y + k * W, W * 4), GN_OK);
        CHECK_INT(client_stats(g).weight_bytes_sent, k == 0 ? W * N * 4 : 0);
        gn_close(g);
    }
    for (int i = 0; i < W; i++) CHECK(y[i] == y[W + i] && y[i] == (float)(N * (double)(i + 2)));
    free(host);
    gn_server_close(s);
}

/* Pieces of a large weight are put into place by threads: what is wrong with one ends the session, with what it is. */
TEST(a_wrong_piece_of_a_large_weight_ends_the_session) {
    enum { WRONG = 3, PIECES = 6 };
    const size_t chunk = GN__BLOB_CHUNK, total = PIECES * chunk;
    uint8_t *bytes = (uint8_t *)calloc(1, total), *wire = (uint8_t *)calloc(1, chunk + 16), digest[32] = { 7 };
    const struct {
        uint8_t codec;
        size_t stored, n; /* what the head says; bytes after it */
        const char *why;
    } wrong[] = { { 0, chunk, chunk + 1, "longer than it says" },
                  { 0, chunk, chunk - 1, "truncated" },
                  { 9, chunk, chunk, "unknown codec" } };
    gn_server *s = open_server((gn_server_desc){ 0 });
    for (size_t i = 0; i < GN__LENGTH(wrong); i++) {
        raw *r = raw_open(s, "a");
        raw_pieces(r, 2, digest, bytes, total, 0, WRONG);
        wire[0] = wrong[i].codec;
        for (int k = 0; k < 4; k++) wire[1 + k] = (uint8_t)(wrong[i].stored >> 8 * k);
        raw_weight_piece(r, 20, digest, total, WRONG * chunk, wire, wrong[i].n + 5);
        for (size_t k = WRONG + 1; k < PIECES; k++) raw_pieces(r, 20 + (uint32_t)k, digest, bytes, total, k, k + 1);
        gn__msg m = { 0, 0, NULL, 0, 0 };
        gn__msg_error d;
        gn_fault f;
        char text[400] = "";
        CHECK_RESULT(raw_receive(r, &m), GN_OK);
        if (!CHECK_INT(m.id, GN__MSG_ERROR)) break;
        CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
        gn__span_text(&d.text, text, sizeof text);
        CHECK(d.fatal && d.result == GN_BAD_MESSAGE && m.request >= 20);
        if (!strstr(text, wrong[i].why)) test_fail(__FILE__, __LINE__, "the error is: %s", text);
        raw_close(r);
        check_alive(s);
    }
    gn_server_close(s);
    free(wire);
    free(bytes);
}

static void keep_stages(void *user, gn_log_level level, const char *text) {
    if (level == GN_LOG_INFO && strstr(text, "GB of weights")) snprintf((char *)user, 512, "%s", text);
}

/* Pieces are packed by threads, in whatever order they end, and sent in theirs; also more pieces than fit at once, and
   weights of a last piece that travels as it is. Both ends tell what took how long. */
TEST(weights_packed_by_several_threads_arrive_whole) {
    enum { W = 3, N = (21 << 18) + 500 }; /* 21 MiB and 2,000 bytes */
    char sent[512] = "", received[512] = "";
    gn_server *s = open_server((gn_server_desc){ .log = keep_stages, .log_user = received });
    int32_t *host = (int32_t *)malloc((size_t)W * N * 4);
    for (size_t i = 0; i < (size_t)W * N; i++) host[i] = (int32_t)(i * 2654435761u >> 13) % (i / N ? 1000 : 1 << 19);
    for (uint32_t threads = 1; threads <= 8; threads += 7) {
        gn_ctx *g = open_client(s, threads > 1 ? "a" : "b",
                                (gn_desc){ .threads = threads, .log = keep_stages, .log_user = sent });
        for (size_t w = 0; w < W; w++) {
            int32_t *back = (int32_t *)malloc((size_t)N * 4);
            gn_tensor t = gn_weight(g, GN_I32, GN_SHAPE(N), host + w * N, "w");
            CHECK_RESULT(gn_read(gn_add(t, t), back, (size_t)N * 4), GN_OK);
            int64_t different = 0;
            for (size_t i = 0; i < N; i++) different += back[i] != 2 * host[w * N + i];
            CHECK_INT(different, 0);
            free(back);
        }
        gn_stats x = client_stats(g);
        CHECK_INT(x.weight_bytes_sent, (uint64_t)W * N * 4);
        CHECK(x.packed_bytes_up < x.tensor_bytes_up);
        CHECK(strstr(sent, threads > 1 ? "0.02 GB sent: read and packed" : " by 0 threads; written by one") != NULL);
        const char *encrypted = strstr(sent, "of which encrypted "), *waited = strstr(sent, "; waited for pieces ");
        CHECK(encrypted != NULL && waited != NULL && encrypted < waited); /* the line is whole */
        gn_close(g);
    }
    gn_server_close(s); /* its threads write to `received` until here */
    CHECK(strstr(received, ": 0.02 GB of weights received in ") && strstr(received, "; decrypted ") &&
          strstr(received, "to the device "));
    free(host);
}

/* One that takes as long as all others of a thread is not left to the end, where the other threads wait for it. */
TEST(the_largest_weights_are_hashed_first) {
    gn__remote_weight w[6];
    const size_t mib[6] = { 5, 1, 90, 5, 300, 5 };
    const int order[6] = { 2, 4, 0, 1, 3, 5 };
    gn__hashers h;
    memset(w, 0, sizeof w);
    memset(&h, 0, sizeof h);
    for (int i = 0; i < 6; i++) w[i].slot.bytes = mib[i] << 20;
    h.w = w;
    h.n = 6;
    h.large = 50 << 20;
    for (int i = 0; i < 6; i++) CHECK(gn__hashers_next(&h) == &w[order[i]]);
    CHECK(gn__hashers_next(&h) == NULL);
    const size_t sent[6] = { 5, 1, 5, 5, 90, 300 }; /* and are sent last */
    gn__weights_order(w, 6, h.large);
    for (int i = 0; i < 6; i++) CHECK_INT(w[i].slot.bytes, sent[i] << 20);
}

/* Sends that only fill the system's buffers tell nothing; those behind them do. */
TEST(sends_tell_what_a_byte_costs) {
    gn__link l;
    uint64_t now = 1000000;
    memset(&l, 0, sizeof l);
    l.wire_ns = GN__WIRE_GUESS_NS;
    for (int i = 0; i < 4; i++, now += 1010) gn__link_pace(&l, 1 << 20, now, now + 10);
    CHECK(l.wire_ns == GN__WIRE_GUESS_NS);
    for (int i = 0; i < 40; i++, now += 17000) gn__link_pace(&l, 1 << 20, now, now + 16000); /* 0.5 Gbit/s */
    CHECK_NEAR(l.wire_ns, 16000e3 / (1 << 20), 0.01);
    now += 200000; /* a pause: the buffers are empty */
    for (int i = 0; i < 4; i++, now += 20) gn__link_pace(&l, 1 << 20, now, now + 10);
    CHECK_NEAR(l.wire_ns, 16000e3 / (1 << 20), 0.01);
    /* the link is another one now */
    for (int i = 0; i < 80; i++, now += 320) gn__link_pace(&l, 1 << 20, now, now + 300);
    CHECK_NEAR(l.wire_ns, 300e3 / (1 << 20), 0.01);
}

TEST(weight_pieces_out_of_place_are_refused) {
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 4 << 20 });
    static uint8_t bytes[64];
    uint8_t digest[32] = { 1 };
    const struct {
        uint64_t total, offset;
        size_t n;
    } bad[] = { { 32, 1, 32 }, { 32, UINT64_C(1) << 47, 32 }, { 32, 0, 31 }, { 32, 0, 33 }, { 0, 0, 1 } };
    for (size_t i = 0; i < GN__LENGTH(bad); i++) {
        raw *r = raw_open(s, "a");
        raw_weight_piece(r, 2, digest, bad[i].total, bad[i].offset, bytes, bad[i].n);
        raw_expect(r, 2, GN_BAD_MESSAGE, true, "");
        raw_close(r);
    }
    const uint64_t chunk = GN__BLOB_CHUNK;
    uint8_t *piece = (uint8_t *)calloc(1, chunk + 5), other[32] = { 2 };
    piece[3] = 16;                /* { codec 0, 2^20 bytes } */
    for (int i = 0; i < 3; i++) { /* the second piece is of another place, another total, another weight */
        raw *r = raw_open(s, "a");
        raw_weight_piece(r, 2, digest, 3 * chunk, 0, piece, chunk + 5);
        raw_weight_piece(r, 3, i == 2 ? other : digest, i == 1 ? 4 * chunk : 3 * chunk, i == 0 ? 2 * chunk : chunk,
                         piece, chunk + 5);
        raw_expect(r, 3, GN_BAD_MESSAGE, true, "out of place");
        raw_close(r);
    }
    free(piece);
    raw *r = raw_open(s, "a");
    raw_weight_piece(r, 2, digest, UINT64_C(1) << 47, 0, bytes, 64); /* 128 TiB: refused before a byte is taken */
    raw_expect(r, 2, GN_LIMIT, false, "bytes");
    raw_close(r);
    check_alive(s);
    gn_server_close(s);
}

/* Unreferenced weights stay up to the limit; the oldest go first. */
TEST(weight_store_is_bounded) {
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 1 << 20 });
    float *host = (float *)malloc(400000), y = 0;
    uint64_t sent[6];
    for (int i = 0; i < 6; i++) {
        /* 0 1 2 3, then 3 and 0 again */
        for (int k = 0; k < 100000; k++) host[k] = (float)(i < 4 ? i : i == 4 ? 3 : 0);
        gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
        CHECK_RESULT(sum_weight(g, host, 100000, &y), GN_OK);
        sent[i] = client_stats(g).weight_bytes_sent;
        gn_close(g);
        for (int k = 0; k < 200 && server_stats(s).device_bytes; k++) usleep(5000);
    }
    CHECK_INT(sent[3], 400000);
    CHECK_INT(sent[4], 0);
    CHECK_INT(sent[5], 400000);
    gn__mutex_lock(&s->lock);
    CHECK(s->store.idle <= s->store.limit + 400000);
    gn__mutex_unlock(&s->lock);
    free(host);
    gn_server_close(s);
}

/* Of a weight of 8 bytes most is what keeps it. And the table grows with their number: nobody walks long chains of it
   under the server's lock. */
TEST(small_weights_count_with_what_keeps_them) {
    enum { N = 4000, LIMIT = 1 << 16 };
    gn_server *s = open_server((gn_server_desc){ .idle_memory = LIMIT });
    raw *r = raw_open(s, "raw");
    for (uint64_t i = 0; i < N; i++) {
        gn__msg_weight_put m = { { 0 }, 8, 0, 8, { (const uint8_t *)&i, 8 } };
        gn__net->sha256(&i, 8, m.digest);
        gn__outbox_message(&r->link.out, GN__MSG_WEIGHT_PUT, (uint32_t)(2 + i), &m);
    }
    raw_step(r, N + 2, 9, 1, GN__OUT_WANTED, 0, NULL, 0);
    raw_expect(r, N + 2, GN_NO_PLAN, false, "plan 9");
    raw_close(r);
    size_t kept = N, idle = 0, chains = 0;
    for (int k = 0; k < 400 && (kept * (8 + sizeof(gn__weight)) > LIMIT || !idle); k++, usleep(5000)) {
        gn__mutex_lock(&s->lock);
        kept = s->store.n;
        idle = (size_t)s->store.idle;
        chains = s->store.n_chains;
        gn__mutex_unlock(&s->lock);
    }
    CHECK(kept > 100 && kept * (8 + sizeof(gn__weight)) <= LIMIT);
    CHECK(chains >= N / 2);
    gn_server_close(s);
}

/* Weights that no session has used for long go, however few they are; the next client sends its weight again. */
TEST(idle_weights_go_after_their_time) {
    gn_server *s = open_server((gn_server_desc){ .idle_minutes = 1 });
    float x[1000] = { 0 }, y = 0;
    for (int i = 0; i < 4; i++) {
        gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
        CHECK_RESULT(sum_weight(g, x, 1000, &y), GN_OK);
        CHECK_INT(client_stats(g).weight_bytes_sent, i % 2 ? 0 : sizeof x);
        gn_close(g);
        for (int k = 0; k < 200 && server_stats(s).device_bytes; k++) usleep(5000);
        gn__mutex_lock(&s->lock);
        CHECK_INT(s->store.n, 1);
        CHECK_INT(s->store.age_us, 60000000);
        gn__store_trim(&s->store, GN__TRIM_MOST);
        CHECK_INT(s->store.n, 1); /* it is not old yet */
        s->store.age_us = i % 2 ? 0 : 60000000;
        gn__store_trim(&s->store, GN__TRIM_MOST);
        CHECK_INT(s->store.n, i % 2 ? 0 : 1);
        CHECK(s->store.n == 1 || s->store.idle == 0);
        s->store.age_us = 60000000;
        gn__mutex_unlock(&s->lock);
    }
    gn_server_close(s);
}

/* ---- hostile clients ---- */

TEST(raw_client_can_work) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 4, (float[]){ 11, 22 }, 8);
    raw_step(r, 5, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 5, (float[]){ 12, 24 }, 8);
    raw_close(r);
    gn_server_close(s);
}

TEST(other_versions_are_told_both_ranges) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_connect(s, "a");
    gn__msg_hello h = hello();
    h.version_min = 2;
    h.version_max = 3;
    raw_send(r, GN__MSG_HELLO, 1, &h);
    raw_expect(r, 1, GN_BAD_VERSION, true, "protocol 2 to 3, this server 1 to 1");
    raw_close(r);
    r = raw_connect(s, "a"); /* a newer client that still speaks 1 */
    h.version_min = 1;
    h.features = UINT64_MAX;
    h.codecs = UINT32_MAX;
    raw_send(r, GN__MSG_HELLO, 1, &h);
    gn__msg m = { 0, 0, NULL, 0, 0 };
    CHECK_RESULT(raw_receive(r, &m), GN_OK);
    gn__msg_hello_ok d;
    gn_fault f;
    CHECK_INT(m.id, GN__MSG_HELLO_OK);
    CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
    CHECK_INT(d.version, 1);
    /* those of this version, whatever else was asked for; this transport has no keys */
    CHECK_INT(d.features, GN__FEATURES & ~GN__FEATURE_RENEW);
    raw_close(r);
    gn_server_close(s);
}

/* times that the transport of an end, 0: the server's, was told that the peer takes new keys */
static atomic_int renewed[2];

static void renewing_info(void *self, gn_link_info *out_info) {
    loopback__info(self, out_info);
    out_info->renews = true;
    out_info->key_updates = 2 * (uint64_t)(atomic_load(&renewed[0]) + atomic_load(&renewed[1]));
}

static void renew_server(void *self) {
    (void)self;
    atomic_fetch_add(&renewed[0], 1);
}
static void renew_client(void *self) {
    (void)self;
    atomic_fetch_add(&renewed[1], 1);
}

/* A transport that can change its keys. */
static gn_transport renewing_transport(int fd, int end) {
    static gn_transport_i tables[2];
    gn_transport t = loopback_transport(fd);
    if (!tables[end].renew) {
        tables[end] = *t.i;
        tables[end].info = renewing_info;
        tables[end].renew = end ? renew_client : renew_server;
    }
    t.i = &tables[end];
    return t;
}

TEST(keys_are_changed_only_where_both_ends_can) {
    gn_server *s = open_server((gn_server_desc){ .no_costs = true });
    for (int able = 0; able < 4; able++) { /* bits: 1 the server, 2 the client */
        int ends[2];
        float two = 2, four = 0;
        gn_stats stats;
        make_pair(ends);
        atomic_store(&renewed[0], 0);
        atomic_store(&renewed[1], 0);
        CHECK_RESULT(gn_server_attach(s, able & 1 ? renewing_transport(ends[0], 0) : loopback_transport(ends[0]), "t"),
                     GN_OK);
        gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = SOON_MS },
                                      able & 2 ? renewing_transport(ends[1], 1) : loopback_transport(ends[1]), "");
        gn_tensor x = gn_data(g, GN_F32, GN_SCALAR, &two);
        CHECK_RESULT(gn_read(gn_add(x, x), &four, sizeof four), GN_OK);
        CHECK(four == 4);
        CHECK_INT(atomic_load(&renewed[0]), able == 3);
        CHECK_INT(atomic_load(&renewed[1]), able == 3);
        gn_get_stats(g, &stats);
        CHECK_INT(stats.key_updates, able == 3 ? 4 : 0);
        gn_close(g);
    }
    gn_server_close(s);
}

static void put_raw_frame(gn__buf *b, uint32_t n, uint16_t id, uint16_t flags, uint32_t request) {
    gn__put_u32(b, n);
    gn__put_u16(b, id);
    gn__put_u16(b, flags);
    gn__put_u32(b, request);
}

TEST(nothing_is_read_before_hello) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn__msg_hello h = hello();
    gn__buf said = { NULL, 0, 0, false };
    gn__msg_encode(&said, GN__MSG_HELLO, &h); /* right, but under another name */
    for (uint16_t id = GN__MSG_HELLO_OK; id < GN__MSG__COUNT; id++) {
        gn__buf b = { NULL, 0, 0, false };
        raw *r = raw_connect(s, "a");
        put_raw_frame(&b, (uint32_t)said.n, id, 0, 7);
        gn__put_bytes(&b, said.p, said.n);
        raw_bytes(r, b.p, b.n);
        raw_expect(r, 7, GN_BAD_MESSAGE, true, "HELLO");
        raw_close(r);
        gn__buf_deinit(&b);
    }
    gn__buf b = { NULL, 0, 0, false };
    raw *r = raw_connect(s, "a");
    put_raw_frame(&b, GN__HELLO_MAX + 1, GN__MSG_HELLO, 0, 7);
    raw_bytes(r, b.p, b.n);
    raw_expect(r, 0, GN_BAD_MESSAGE, true, "4097 bytes");
    raw_close(r);
    gn__buf_deinit(&b);
    gn__buf_deinit(&said);
    gn_server_close(s);
}

TEST(a_second_hello_is_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_open(s, "a");
    gn__msg_hello h = hello();
    raw_send(r, GN__MSG_HELLO, 2, &h);
    raw_expect(r, 2, GN_BAD_MESSAGE, true, "HELLO");
    raw_close(r);
    gn_server_close(s);
}

TEST(a_garbled_frame_ends_that_session_alone) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *other = raw_counter(s), *r = raw_open(s, "a");
    uint8_t noise[64];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(200 + i);
    uint64_t start = gn_now_us();
    raw_bytes(r, noise, sizeof noise);
    raw_expect(r, 0, GN_BAD_MESSAGE, true, "");
    CHECK(gn_now_us() - start < 1000000);
    raw_close(r);
    raw_step(other, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(other, 4, (float[]){ 11, 22 }, 8);
    raw_close(other);
    check_alive(s);
    gn_server_close(s);
}

TEST(a_replayed_or_skipped_step_does_not_run) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    const uint64_t wrong[] = { 1, 3, 0, UINT64_MAX };
    for (size_t i = 0; i < GN__LENGTH(wrong); i++) {
        raw *r = raw_counter(s);
        raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
        raw_expect_step(r, 4, (float[]){ 11, 22 }, 8);
        raw_step(r, 5, 1, wrong[i], GN__OUT_WANTED, 0, step_x, 8);
        raw_expect(r, 5, GN_BAD_MESSAGE, true, "when 2 was next");
        raw_close(r);
    }
    gn_server_close(s);
}

TEST(a_plan_id_serves_once) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_plan(r, 5, 1, counter_part(4, 1, 2, GN_LEAF_VALUE), 0); /* while the first may still run */
    raw_expect_step(r, 4, (float[]){ 11, 22 }, 8);
    raw_expect(r, 5, GN_BAD_MESSAGE, true, "plan 1");
    raw_close(r);
    gn_server_close(s);
}

TEST(a_plan_of_another_hash_is_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_open(s, "raw");
    raw_state(r, 2, 4, 1, NULL);
    raw_plan(r, 3, 1, counter_part(4, 1, 2, GN_LEAF_DATA), 1);
    raw_expect(r, 3, GN_BAD_MESSAGE, true, "hash");
    raw_close(r);
    gn_server_close(s);
}

/* Each a handle that is not there, was there, or is of another kind or type. */
TEST(plans_over_wrong_slots_are_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    const struct {
        uint32_t slot, gen;
        uint64_t dim;
        gn_result result;
    } bad[] = {
        { 5, 1, 2, GN_STALE_HANDLE }, { UINT32_MAX, 1, 2, GN_STALE_HANDLE }, { 4, 0, 2, GN_STALE_HANDLE },
        { 4, 2, 2, GN_STALE_HANDLE }, { 4, UINT32_MAX, 2, GN_STALE_HANDLE }, { 4, 1, 3, GN_BAD_MESSAGE },
        { 4, 1, 1, GN_BAD_MESSAGE },
    };
    for (size_t i = 0; i < GN__LENGTH(bad); i++) {
        raw *r = raw_counter(s);
        bool fatal = bad[i].result == GN_BAD_MESSAGE;
        raw_plan(r, 4, 2, counter_part(bad[i].slot, bad[i].gen, bad[i].dim, GN_LEAF_DATA), 0);
        raw_expect(r, 4, bad[i].result, fatal, "slot");
        if (!fatal) { /* its steps fail for the same reason, and the session goes on */
            raw_step(r, 5, 2, 1, GN__OUT_WANTED, 0, step_x, 8);
            raw_expect(r, 5, bad[i].result, false, "slot");
            raw_step(r, 6, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
            raw_expect_step(r, 6, (float[]){ 11, 22 }, 8);
        }
        raw_close(r);
    }
    gn_server_close(s);
}

/* Steps queued behind one that failed saw a state that the program did not mean: they are cancelled until it knows. */
TEST(what_was_queued_behind_a_failed_step_does_not_run) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    raw_step(r, 4, 9, 1, GN__OUT_WANTED, 0, step_x, 8); /* no such plan */
    raw_step(r, 5, 1, 2, GN__OUT_WANTED, 0, step_x, 8); /* sent before the answer */
    r->step = 4;
    raw_expect(r, 4, GN_NO_PLAN, false, "plan 9");
    raw_expect(r, 5, GN_CANCELLED, false, "earlier");
    raw_step(r, 6, 1, 3, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 6, (float[]){ 11, 22 }, 8);
    raw_close(r);
    gn_server_close(s);
}

TEST(a_queued_step_that_fails_is_told_and_changes_nothing) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "queue", (gn_desc){ 0 });
    const float table[2] = { 5, 7 };
    const int32_t ids[3] = { 1, 9, 0 };
    float got = 0;
    gn_result told = GN_OK;
    gn_tensor c = gn_state(g, GN_F32, GN_SHAPE(1), NULL, "count");
    for (int i = 0; i < 3; i++) { /* adds 7, fails, would add 5 */
        gn_tensor row =
            gn_embedding(gn_data(g, GN_F32, GN_SHAPE(2, 1), table), gn_data(g, GN_I32, GN_SHAPE(1), &ids[i]));
        gn_assign(c, gn_add(c, gn_reshape(row, GN_SHAPE(1))));
        gn_result e = gn_step(g);
        if (!told) told = e; /* the last of them may know already */
    }
    gn_result e = gn_sync(g);
    CHECK_RESULT(told ? told : e, GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_read(c, &got, sizeof got), GN_OK);
    CHECK(got == 7);
    gn_assign(c, gn_add_c(c, 1));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(c, &got, sizeof got), GN_OK);
    CHECK(got == 8);
    gn_close(g);
    gn_server_close(s);
}

/* y = -slot 4, or slot 4 with a shape of (1, dim); y becomes the slot's value `updates` times over. */
static gn__buf probe_part(gn_leaf_kind kind, uint64_t dim, bool reshapes, uint32_t updates) {
    gn__buf b = { NULL, 0, 0, false };
    const uint32_t counts[7] = { 2, 1, reshapes ? 2 : 0, reshapes ? 3 : 2, 0, 1, updates };
    for (int i = 0; i < 7; i++) gn__put_u32(&b, counts[i]);
    gn__put_u16(&b, gn__ops[gn__op_leaf(kind)].wire);
    gn__put_u8(&b, 0);
    gn__put_u8(&b, GN_F32);
    gn__put_u8(&b, 1);
    gn__put_u64(&b, dim);
    gn__put_u32(&b, 4);
    gn__put_u32(&b, 1);
    gn__put_u16(&b, gn__ops[reshapes ? GN_OP_RESHAPE : GN_OP_NEG].wire);
    gn__put_u8(&b, 0);
    gn__put_u32(&b, 1);
    gn__put_u16(&b, reshapes ? 2 : 0);
    gn__put_u32(&b, 0);
    for (uint64_t i = 0; reshapes && i < 2; i++) gn__put_u64(&b, i ? dim : 1);
    gn__put_u32(&b, 1);
    for (uint32_t i = 0; i < updates; i++) {
        const uint32_t update[3] = { 4, 1, 1 };
        for (int k = 0; k < 3; k++) gn__put_u32(&b, update[k]);
    }
    return b;
}

TEST(leaves_and_updates_that_are_not_of_their_slot_are_refused) {
    const struct {
        gn_leaf_kind kind;
        uint64_t dim;
        bool reshapes;
        uint32_t updates;
        const char *words;
    } bad[] = {
        { GN_LEAF_WEIGHT, 2, false, 0, "another kind or type" },
        { GN_LEAF_STATE, 3, false, 0, "another kind or type" },
        { GN_LEAF_STATE, 2, true, 1, "does not take" },
        { GN_LEAF_STATE, 2, false, 2, "updated twice" },
    };
    gn_server *s = open_server((gn_server_desc){ 0 });
    for (size_t i = 0; i < GN__LENGTH(bad); i++) {
        raw *r = raw_counter(s);
        raw_plan(r, 4, 2, probe_part(bad[i].kind, bad[i].dim, bad[i].reshapes, bad[i].updates), 0);
        raw_expect(r, 4, GN_BAD_MESSAGE, true, bad[i].words);
        raw_close(r);
    }
    raw *r = raw_counter(s);
    raw_plan(r, 4, 2, probe_part(GN_LEAF_STATE, 2, false, 1), 0);
    raw_step(r, 5, 2, 1, GN__OUT_WANTED, 0, NULL, 0);
    raw_expect_step(r, 5, (float[]){ -10, -20 }, 8);
    raw_close(r);
    gn_server_close(s);
}

TEST(slots_of_another_session_are_not_there) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *a = raw_counter(s), *b = raw_open(s, "raw");
    raw_plan(b, 2, 1, counter_part(4, 1, 2, GN_LEAF_DATA), 0);
    raw_expect(b, 2, GN_STALE_HANDLE, false, "slot 4");
    raw_close(a);
    raw_close(b);
    gn_server_close(s);
}

static void raw_drop(raw *r, uint32_t request, uint32_t slot, uint32_t gen) {
    gn__msg_slot_drop m = { slot, gen };
    raw_send(r, GN__MSG_SLOT_DROP, request, &m);
}

/* Item 10: compute, free what it used, compute again. */
TEST(a_plan_over_a_dropped_slot_does_not_run) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 4, (float[]){ 11, 22 }, 8);
    raw_drop(r, 5, 4, 1);
    raw_step(r, 6, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect(r, 6, GN_STALE_HANDLE, false, "slot 4");
    raw_state(r, 7, 4, 2, NULL); /* the slot lives again, in another generation */
    raw_step(r, 8, 1, 3, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect(r, 8, GN_STALE_HANDLE, false, "slot 4");
    raw_drop(r, 9, 4, 1);
    raw_expect(r, 9, GN_STALE_HANDLE, false, "slot 4");
    raw_drop(r, 10, 4, 2);
    raw_state(r, 11, 4, 2, NULL); /* a generation serves once */
    raw_expect(r, 11, GN_BAD_MESSAGE, true, "slot 4");
    raw_close(r);
    gn_server_close(s);
}

TEST(a_slot_is_not_put_twice) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    raw_state(r, 4, 4, 2, NULL);
    raw_expect(r, 4, GN_BAD_MESSAGE, true, "slot 4");
    raw_close(r);
    gn_server_close(s);
}

TEST(slots_of_no_valid_type_or_fill_are_refused) {
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 1 << 20 });
    uint8_t dims[64] = { 2 }, huge[16] = { 0, 0, 0, 0, 0, 0, 0, 128 },
            wrap[16] = { 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1 }, bytes[16] = { 0 };
    const gn__msg_slot_put bad[] = {
        { 9, 1, GN_LEAF_DATA, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_ZEROS, 0, { dims, 1 }, { NULL, 0 }, { NULL, 0 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { huge, 1 }, { NULL, 0 }, { NULL, 0 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { wrap, 2 }, { NULL, 0 }, { NULL, 0 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { bytes, 8 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_BYTES, GN_F32, { dims, 1 }, { NULL, 0 }, { bytes, 7 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_BYTES, GN_F32, { dims, 1 }, { NULL, 0 }, { bytes, 9 } },
        { 9, 1, GN_LEAF_STATE, GN__FILL_DIGEST, GN_F32, { dims, 1 }, { dims, 32 }, { NULL, 0 } },
        { 9, 1, GN_LEAF_WEIGHT, GN__FILL_BYTES, GN_F32, { dims, 1 }, { NULL, 0 }, { bytes, 8 } },
        { 9, 1, GN_LEAF_WEIGHT, GN__FILL_DIGEST, GN_F32, { dims, 1 }, { dims, 31 }, { NULL, 0 } },
    };
    for (size_t i = 0; i < GN__LENGTH(bad); i++) {
        raw *r = raw_open(s, "raw");
        raw_send(r, GN__MSG_SLOT_PUT, 2, &bad[i]);
        /* before it allocates */
        raw_expect(r, 2, GN_BAD_MESSAGE, true,
                   bad[i].fill == GN__FILL_BYTES && bad[i].blob.n == 7 ? "bytes of a state are truncated" : "");
        raw_close(r);
    }
    raw *r = raw_open(s, "raw");
    uint8_t large[8] = { 0, 0, 0, 0, 0, 16 }; /* 2^44: a valid size, and far over the limit */
    gn__msg_slot_put m = { 9, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { large, 1 }, { NULL, 0 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 2, &m);
    raw_expect(r, 2, GN_LIMIT, false, "bytes");
    raw_close(r);
    gn_server_close(s);
}

TEST(values_are_checked) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    uint8_t id[8] = { 7 };
    raw *r = raw_counter(s);
    raw_plan(r, 4, 2, counter_part(4, 1, 2, GN_LEAF_VALUE), 0);
    raw_step(r, 5, 1, 1, GN__OUT_KEPT, 7, step_x, 8); /* value 7 = {11, 22} */
    raw_expect_step(r, 5, NULL, 0);
    raw_step(r, 6, 2, 2, GN__OUT_WANTED, 0, id, 8);
    raw_expect_step(r, 6, (float[]){ 22, 44 }, 8);
    id[0] = 8;
    raw_step(r, 7, 2, 3, GN__OUT_WANTED, 0, id, 8);
    raw_expect(r, 7, GN_STALE_HANDLE, false, "value 8");
    uint8_t flags = GN__OUT_WANTED;
    id[0] = 7;
    gn__msg_step released = { 2, 4, 8, r->seen, { &flags, 1 }, { NULL, 0 }, { id, 8 } };
    raw_send(r, GN__MSG_STEP, r->step = 8, &released);
    raw_expect(r, 8, GN_STALE_HANDLE, false, "value 7");
    raw_step(r, 9, 1, 5, GN__OUT_KEPT, 7, step_x, 8); /* an id is never used again */
    raw_expect(r, 9, GN_BAD_MESSAGE, true, "rise");
    raw_close(r);
    gn_server_close(s);
}

/* -x and 12 / x of two i32, which fails where x is 0. */
static gn__buf divider_part(void) {
    static const int32_t x[2] = { 1, 1 };
    gn__buf b = { NULL, 0, 0, false };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor t = gn_data(g, GN_I32, GN_SHAPE(2), x), outs[2] = { gn_neg(t), gn_div(gn_like(t, 12), t) };
    uint32_t roots[2], bad;
    gn_result why;
    gn_fault f;
    for (int i = 0; i < 2; i++) roots[i] = gn__resolve(g, outs[i], &why);
    CHECK_RESULT(gn__cut_make(g, roots, 2, &bad), GN_OK);
    CHECK_RESULT(gn__part_encode(&b, &g->cut.part, &f), GN_OK);
    gn_close(g);
    return b;
}

/* The negative of a value of two i32. */
static gn__buf negative_part(void) {
    gn__buf b = { NULL, 0, 0, false };
    const uint32_t counts[7] = { 2, 1, 0, 2, 1, 1, 0 };
    for (int i = 0; i < 7; i++) gn__put_u32(&b, counts[i]);
    gn__put_u16(&b, gn__ops[gn__op_leaf(GN_LEAF_VALUE)].wire);
    gn__put_u8(&b, 0);
    gn__put_u8(&b, GN_I32);
    gn__put_u8(&b, 1);
    gn__put_u64(&b, 2);
    gn__put_u32(&b, 0);
    gn__put_u16(&b, gn__ops[GN_OP_NEG].wire);
    gn__put_u8(&b, 0);
    gn__put_u32(&b, 1);
    gn__put_u16(&b, 0);
    gn__put_u32(&b, 0);
    gn__put_u32(&b, 1);
    return b;
}

/* -x and 12 / x are kept under these ids. */
static void send_divider(raw *r, uint32_t request, uint64_t sequence, const int32_t x[2], const uint64_t ids[2]) {
    uint8_t flags[2] = { GN__OUT_KEPT, GN__OUT_KEPT }, bytes[16];
    gn__buf b = { bytes, 0, sizeof bytes, false };
    for (int i = 0; i < 2; i++) gn__put_u64(&b, ids[i]);
    gn__msg_step m = { 1, sequence, 0, r->seen, { flags, 2 }, { bytes, 2 }, { (const uint8_t *)x, 8 } };
    raw_send(r, GN__MSG_STEP, r->step = request, &m);
}

/* How many values the newest session keeps. */
static size_t values_kept(gn_server *s) {
    gn__mutex_lock(&s->lock);
    size_t n = s->sessions->n_kept;
    gn__mutex_unlock(&s->lock);
    return n;
}

/* Ids 1 and 2 are kept, then a and b in a step that ends well or fails. Which of all ids are there then? */
static void keep_pair(gn_server *s, uint64_t a, uint64_t b, bool fails, const uint64_t *all, int n_all) {
    static const int32_t x[3][2] = { { 2, 3 }, { 3, 4 }, { 3, 0 } },
                         want[2][2][2] = { { { 2, 3 }, { -6, -4 } }, { { 3, 4 }, { -4, -3 } } };
    const uint64_t first[2] = { 1, 2 }, ids[2] = { a, b };
    uint64_t sequence = 3;
    raw *r = raw_open(s, "raw");
    raw_plan(r, 2, 1, divider_part(), 0);
    raw_plan(r, 3, 2, negative_part(), 0);
    send_divider(r, 4, 1, x[0], first);
    raw_expect_step(r, 4, NULL, 0);
    send_divider(r, 5, 2, x[fails ? 2 : 1], ids);
    if (a <= 2 || b <= a || b == UINT64_MAX) raw_expect(r, 5, GN_BAD_MESSAGE, true, "ids of kept values");
    else {
        if (fails) raw_expect(r, 5, GN_DIVISION_BY_ZERO, false, "");
        else raw_expect_step(r, 5, NULL, 0);
        CHECK_INT(values_kept(s), fails ? 2 : 4);
        for (int i = 0; i < n_all; i++, sequence++) {
            uint8_t id[8];
            gn__buf text = { id, 0, sizeof id, false };
            int step = all[i] == 1 || all[i] == 2 ? 0 : !fails && (all[i] == a || all[i] == b) ? 1 : -1;
            gn__put_u64(&text, all[i]);
            raw_step(r, 6 + (uint32_t)i, 2, sequence, GN__OUT_WANTED, 0, id, 8);
            if (step < 0) raw_expect(r, 6 + (uint32_t)i, GN_STALE_HANDLE, false, "value");
            else raw_expect_step(r, 6 + (uint32_t)i, want[step][all[i] == (step ? b : 2)], 8);
        }
    }
    raw_close(r);
}

TEST(kept_ids_at_their_edges_stay_with_good_steps_and_go_with_failed_ones) {
    static const uint64_t ids[] = { 0,         1, 2, 3, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX - 2, UINT64_MAX - 1,
                                    UINT64_MAX };
    gn_server *s = open_server((gn_server_desc){ 0 });
    for (int a = 0; a < TEST_COUNT(ids); a++)
        for (int b = a ? a - 1 : 0; b < TEST_COUNT(ids); b++)
            for (int fails = 0; fails < 2; fails++) keep_pair(s, ids[a], ids[b], fails, ids, TEST_COUNT(ids));
    check_alive(s);
    gn_server_close(s);
}

/* Two f32 where three are read. */
TEST(a_value_of_another_type_is_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    uint8_t id[8] = { 7 }, dims[8] = { 3 };
    gn__msg_slot_put three = { 5, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    raw *r = raw_counter(s);
    raw_step(r, 4, 1, 1, GN__OUT_KEPT, 7, step_x, 8);
    raw_expect_step(r, 4, NULL, 0);
    raw_send(r, GN__MSG_SLOT_PUT, 5, &three);
    raw_plan(r, 6, 2, counter_part(5, 1, 3, GN_LEAF_VALUE), 0);
    raw_step(r, 7, 2, 2, GN__OUT_WANTED, 0, id, 8);
    raw_expect(r, 7, GN_BAD_MESSAGE, true, "value 7 is of another type");
    raw_close(r);
    gn_server_close(s);
}

TEST(steps_that_do_not_fit_their_plan_are_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    uint8_t flags[2] = { GN__OUT_WANTED, GN__OUT_WANTED }, unknown = 4, kept = GN__OUT_KEPT,
            id[16] = { 1, 0, 0, 0, 0, 0, 0, 0, 2 };
    const uint8_t *x = (const uint8_t *)step_x;
    const gn__msg_step bad[] = {
        { 1, 1, 0, 0, { flags, 0 }, { NULL, 0 }, { x, 8 } },
        { 1, 1, 0, 0, { flags, 2 }, { NULL, 0 }, { x, 8 } },
        { 1, 1, 0, 0, { &unknown, 1 }, { NULL, 0 }, { x, 8 } },
        { 1, 1, 0, 0, { flags, 1 }, { id, 1 }, { x, 8 } },
        { 1, 1, 0, 0, { &kept, 1 }, { NULL, 0 }, { x, 8 } },
        { 1, 1, 0, 0, { &kept, 1 }, { id, 2 }, { x, 8 } },
        { 1, 1, 0, 0, { flags, 1 }, { NULL, 0 }, { x, 7 } },
        { 1, 1, 0, 0, { flags, 1 }, { NULL, 0 }, { (const uint8_t *)id, 9 } },
        { 1, 1, 0, 0, { flags, 1 }, { NULL, 0 }, { NULL, 0 } },
    };
    for (size_t i = 0; i < GN__LENGTH(bad); i++) {
        raw *r = raw_counter(s);
        raw_send(r, GN__MSG_STEP, 4, &bad[i]);
        raw_expect(r, 4, GN_BAD_MESSAGE, true, "");
        raw_close(r);
    }
    check_alive(s);
    gn_server_close(s);
}

/* Item 8: a graph message of 20 bytes naming node 0 of 0, and one of all ones. */
TEST(graph_messages_that_are_no_graphs_are_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    uint8_t bytes[28];
    for (int i = 0; i < 2; i++) {
        raw *r = raw_open(s, "raw");
        memset(bytes, i ? 255 : 0, sizeof bytes);
        gn__msg_plan_put m = { 1, 0, 0, { bytes, i ? 28u : 20u } };
        raw_send(r, GN__MSG_PLAN_PUT, 2, &m);
        raw_expect(r, 2, GN_BAD_MESSAGE, true, "");
        raw_close(r);
    }
    gn_server_close(s);
}

/* A step that runs and one that is refused at once: the answers keep the order of the requests. */
TEST(an_error_does_not_pass_an_earlier_answer) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    uint8_t flags = 0;
    gn__msg_step step = { 1, 1, 0, 0, { &flags, 1 }, { NULL, 0 }, { (const uint8_t *)step_x, 8 } };
    gn__msg_step lost = { 9, 2, 0, 0, { &flags, 1 }, { NULL, 0 }, { NULL, 0 } };
    gn__outbox_message(&r->link.out, GN__MSG_STEP, 4, &step); /* both in one write */
    raw_send(r, GN__MSG_STEP, 5, &lost);
    raw_expect_step(r, 4, NULL, 0);
    raw_expect(r, 5, GN_NO_PLAN, false, "plan 9");
    raw_close(r);
    gn_server_close(s);
}

/* The executor's own interface allows many unread answers: before the client sends more, it takes them. */
TEST(a_client_takes_large_answers_before_it_sends_more) {
    enum { N = 1 << 20 };
    gn_server *s = open_server((gn_server_desc){ 0 });
    int ends[2];
    gn_stats stats = { 0 };
    gn_exec x;
    gn_fault f;
    gn__buf b = { NULL, 0, 0, false };
    const uint32_t head[7] = { 2, 1, 0, 2, 1, 1, 0 };
    make_pair(ends);
    REQUIRE(gn_server_attach(s, loopback_transport(ends[0]), "a") == GN_OK);
    REQUIRE(gn__remote_open(&(gn_desc){ .deadline_ms = SOON_MS }, loopback_transport(ends[1]), "", false, &stats, &x,
                            &f) == GN_OK);
    for (int i = 0; i < 7; i++) gn__put_u32(&b, head[i]);
    gn__put_u16(&b, gn__ops[GN_OP_DATA].wire);
    gn__put_u8(&b, 0);
    gn__put_u8(&b, GN_F32);
    gn__put_u8(&b, 1);
    gn__put_u64(&b, N);
    gn__put_u32(&b, 0);
    gn__put_u16(&b, gn__ops[GN_OP_NEG].wire);
    gn__put_u8(&b, 0);
    gn__put_u32(&b, 1);
    gn__put_u16(&b, 0);
    gn__put_u32(&b, 0);
    gn__put_u32(&b, 1);
    gn_part *part = NULL;
    void *plan = NULL;
    float *in = (float *)malloc(N * 4), *out = (float *)malloc(N * 4);
    uint64_t ticket = 0;
    for (int i = 0; i < N; i++) in[i] = (float)test_random_real(-1, 1); /* does not pack */
    REQUIRE(gn__part_decode(b.p, b.n, 100, NULL, &part, &f) == GN_OK);
    CHECK_RESULT(x.i->plan_make(x.self, part, &plan, &f), GN_OK);
    for (int i = 0; i < 6; i++)
        CHECK_RESULT(x.i->submit(x.self, plan, &(gn_arg){ in, N * 4, 0 }, &(gn_out){ out, N * 4, 0 }, &ticket, &f),
                     GN_OK);
    CHECK_RESULT(x.i->wait(x.self, ticket, &f), GN_OK);
    CHECK(out[0] == -in[0] && out[N - 1] == -in[N - 1]);
    x.i->plan_destroy(x.self, plan);
    x.i->close(x.self);
    gn_free(part);
    gn__buf_deinit(&b);
    free(in);
    free(out);
    gn_server_close(s);
}

TEST(a_small_request_passes_a_large_one) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    static const uint8_t zeros[1000];
    gn__buf b = { NULL, 0, 0, false };
    uint8_t dims[8] = { 0xf4, 1 }; /* 500 */
    gn__msg_slot_put m = { 6, 1, GN_LEAF_STATE, GN__FILL_BYTES, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    gn__msg_encode(&b, GN__MSG_SLOT_PUT, &m);
    gn__buf wire = { NULL, 0, 0, false };
    put_raw_frame(&wire, (uint32_t)b.n, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 40);
    gn__put_bytes(&wire, b.p, b.n);
    put_raw_frame(&wire, 1000, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 40);
    gn__put_bytes(&wire, zeros, 1000);
    raw_bytes(r, wire.p, wire.n);
    raw_step(r, 41, 1, 1, GN__OUT_WANTED, 0, step_x, 8); /* answered although request 40 is not whole */
    raw_expect_step(r, 41, (float[]){ 11, 22 }, 8);
    wire.n = 0;
    put_raw_frame(&wire, 1000, GN__MSG_SLOT_PUT, 0, 40);
    gn__put_bytes(&wire, zeros, 1000);
    raw_bytes(r, wire.p, wire.n);
    raw_drop(r, 42, 6, 1); /* it is there: no error comes */
    raw_step(r, 43, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 43, (float[]){ 12, 24 }, 8);
    gn__buf_deinit(&b);
    gn__buf_deinit(&wire);
    raw_close(r);
    gn_server_close(s);
}

TEST(a_message_that_was_cancelled_does_not_run) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    gn__buf wire = { NULL, 0, 0, false };
    put_raw_frame(&wire, 4, GN__MSG_STEP, GN__FRAME_MORE, 40);
    gn__put_u32(&wire, 1);
    raw_bytes(r, wire.p, wire.n);
    gn__msg_cancel c = { 40 };
    raw_send(r, GN__MSG_CANCEL, 41, &c);
    raw_step(r, 40, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 40, (float[]){ 11, 22 }, 8);
    gn__buf_deinit(&wire);
    raw_close(r);
    gn_server_close(s);
}

/* A peer that begins a message and stalls, and one that sends a byte at a time, are cut off by the deadline; a silent
   one is not. */
TEST(slow_messages_end_at_the_deadline) {
    gn_server *s = open_server((gn_server_desc){ .deadline_ms = 300 });
    raw *quiet = raw_counter(s), *stalled = raw_open(s, "raw"), *drip = raw_open(s, "raw"),
        *mute = raw_connect(s, "raw");
    uint8_t head[12] = { 200, 0, 0, 0, GN__MSG_STEP };
    raw_bytes(stalled, head, sizeof head);
    uint64_t start = gn_now_us();
    raw_bytes(drip, head, sizeof head);
    for (int i = 0; i < 12; i++) {
        usleep(50000);
        raw_bytes(drip, head, 1);
    }
    CHECK(gn_now_us() - start > 550000);
    raw_expect(stalled, 0, GN_TIMEOUT, true, "300 ms");
    raw_expect(drip, 0, GN_TIMEOUT, true, "300 ms");
    raw_expect(mute, 0, GN_TIMEOUT, true, "300 ms");
    raw_step(quiet, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(quiet, 4, (float[]){ 11, 22 }, 8);
    raw_close(quiet);
    raw_close(stalled);
    raw_close(drip);
    raw_close(mute);
    gn_server_close(s);
}

/* ---- a device on which a run takes a while: the CPU, whose runs end some time after they were submitted ---- */

enum { LATE_MS = 300 };

static gn_exec_i late_table;
static atomic_uint_fast64_t late_ends[64]; /* µs, of a ticket */
static atomic_int late_asked, late_waited, late_most;
static atomic_uint late_us = LATE_MS * 1000; /* how late, at most */
static atomic_bool late_varies;              /* every run is late by another time */

static gn_result late_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket,
                             gn_fault *f) {
    gn_result e = gn__cpu_submit(self, plan, args, outs, out_ticket, f);
    if (e) return e;
    *out_ticket = (uint64_t)++late_asked;
    late_ends[*out_ticket % 64] = gn_now_us() + (late_varies ? gn__mix(*out_ticket, 0) % late_us : late_us);
    if (late_asked - late_waited > late_most) late_most = late_asked - late_waited;
    return GN_OK;
}

static bool late_ended(void *self, uint64_t ticket) {
    (void)self;
    return gn_now_us() >= late_ends[ticket % 64];
}

static gn_result late_wait(void *self, uint64_t ticket, gn_fault *f) {
    (void)f;
    if (ticket > (uint64_t)late_asked) return GN_OK;
    while (!late_ended(self, ticket)) usleep(late_varies ? 50 : 1000);
    for (int known = late_waited;
         known < (int)ticket && !atomic_compare_exchange_weak(&late_waited, &known, (int)ticket);) { }
    return GN_OK;
}

static gn_result late_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn_result r = gn__cpu_open(d, out, f);
    out->i = &late_table;
    return r;
}

static gn_server *open_late_server(gn_server_desc desc) {
    static const gn_driver_i driver = { .prefix = "late", .open = late_open };
    late_table = gn__cpu_i;
    late_table.submit = late_submit;
    late_table.wait = late_wait;
    late_table.ended = late_ended;
    gn_register_driver(&driver);
    desc.devices = "late:0";
    return open_server(desc);
}

/* Steps that came together run together; each is answered when it has ended, also while half a message is there and
   nothing else comes. */
TEST(a_step_is_taken_while_the_one_before_it_runs) {
    gn_server *s = open_late_server((gn_server_desc){ 0 });
    raw *r = raw_counter(s);
    gn__buf wire = { NULL, 0, 0, false };
    uint8_t nothing[200] = { 0 };
    uint64_t start = gn_now_us();
    late_most = 0;
    for (uint32_t i = 0; i < 3; i++) raw_put_step(r, 4 + i, 1, 1 + i, GN__OUT_WANTED, 0, step_x, 8);
    gn__outbox_flush(&r->link.out);
    for (uint32_t i = 0; i < 3; i++) raw_expect_step(r, 4 + i, (float[]){ 11 + (float)i, 22 + 2 * (float)i }, 8);
    CHECK_INT(late_most, 3);
    CHECK(gn_now_us() - start < 3 * LATE_MS * 1000);
    put_raw_frame(&wire, sizeof nothing, 999, GN__FRAME_OPTIONAL, 8);
    gn__put_bytes(&wire, nothing, sizeof nothing);
    raw_step(r, 7, 1, 4, GN__OUT_WANTED, 0, step_x, 8);
    raw_bytes(r, wire.p, wire.n / 2);
    raw_expect_step(r, 7, (float[]){ 14, 28 }, 8);
    raw_bytes(r, wire.p + wire.n / 2, wire.n - wire.n / 2);
    raw_step(r, 8, 1, 5, 0, 0, step_x, 8); /* nobody waits for it: answered with the next */
    raw_step(r, 9, 1, 6, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 8, NULL, 0);
    raw_expect_step(r, 9, (float[]){ 16, 32 }, 8);
    gn__buf_deinit(&wire);
    raw_close(r);
    gn_server_close(s);
}

/* The client that vanishes, and the server that stops, while steps run. */
TEST(runs_that_nobody_waits_for_any_more_end) {
    gn_server *s = open_late_server((gn_server_desc){ 0 });
    for (int i = 0; i < 2; i++) {
        raw *r = raw_counter(s);
        raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
        raw_step(r, 5, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
        usleep(50000);
        raw_close(r);
    }
    raw *r = raw_counter(s);
    raw_step(r, 4, 1, 1, GN__OUT_WANTED, 0, step_x, 8);
    usleep(50000);
    gn_server_close(s);
    CHECK_INT(late_asked, late_waited);
    raw_close(r);
}

/* The memory that a message needs is held by results of steps that run: they are answered first, then it is taken. */
static void large_step(raw *r, uint32_t request, uint64_t sequence, const float *x, size_t n) {
    uint8_t flags = GN__OUT_WANTED;
    gn__msg_step m = { 1, sequence, 0, 0, { &flags, 1 }, { NULL, 0 }, { NULL, 0 } };
    gn__outbox_fields(&r->link.out, GN__MSG_STEP, request, &m);
    gn__blob_put(&r->link.out, x, n * sizeof *x, 4, 1, 0, &r->link.scratch);
    gn__outbox_end(&r->link.out);
    gn__outbox_flush(&r->link.out);
}

enum { ROOM_N = 1 << 20, ROOM_STEPS = 4 };

typedef struct large_sender {
    raw *r;
    const float *x;
} large_sender;

static void large_main(void *arg) {
    const large_sender *l = (const large_sender *)arg;
    for (uint32_t i = 0; i < ROOM_STEPS; i++) large_step(l->r, 10 + i, 1 + i, l->x, ROOM_N);
}

TEST(a_large_step_waits_for_memory_that_results_hold) {
    gn_server *s = open_late_server((gn_server_desc){ .memory_limit = 32 << 20 });
    raw *r = raw_open(s, "raw");
    float *x = (float *)malloc(ROOM_N * 4), *y = (float *)malloc(ROOM_N * 4);
    uint8_t dims[8];
    gn__buf d = { dims, 0, 8, false };
    gn__thread thread;
    gn_fault f;
    gn__put_u64(&d, ROOM_N);
    for (int i = 0; i < ROOM_N; i++) x[i] = (float)i;
    gn__msg_slot_put put = { 4, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 2, &put);
    raw_plan(r, 3, 1, counter_part(4, 1, ROOM_N, GN_LEAF_DATA), 0);
    large_sender l = { r, x };
    if (!gn__thread_start(&thread, large_main, &l)) exit(2);
    for (uint32_t i = 0; i < ROOM_STEPS; i++) {
        gn__msg m = { 0, 0, NULL, 0, 0 };
        gn__msg_step_ok ok;
        if (!CHECK_RESULT(raw_receive(r, &m), GN_OK) || !CHECK_INT(m.id, GN__MSG_STEP_OK)) break;
        CHECK_INT(m.request, 10 + i);
        CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &ok, &f), GN_OK);
        gn__rd rd = { ok.outs.p, ok.outs.p + ok.outs.n, false };
        CHECK_RESULT(gn__blob_get(&rd, y, ROOM_N * 4, 4, 1, &f), GN_OK);
        CHECK(y[0] == 0 && y[ROOM_N - 1] == (float)(i + 1) * (ROOM_N - 1));
    }
    r->link.t.i->interrupt(r->link.t.self);
    gn__thread_join(&thread);
    raw_close(r);
    gn_server_close(s);
    free(x);
    free(y);
}

/* A step that can not come whole has its number all the same: the next one is the next, and runs. */
TEST(a_step_too_large_to_come_is_refused_alone) {
    enum { N = 1 << 20 };
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 1 << 20 });
    raw *r = raw_counter(s);
    float *x = (float *)calloc(N, 4);
    large_step(r, 4, 1, x, N);
    r->step = 4;
    raw_expect(r, 4, GN_LIMIT, false, "allowed");
    raw_step(r, 5, 1, 2, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 5, (float[]){ 11, 22 }, 8);
    gn__msg_slot_put put = { 6,
                             1,
                             GN_LEAF_STATE,
                             GN__FILL_BYTES,
                             GN_F32,
                             { (uint8_t[8]){ 0, 0, 16 }, 1 },
                             { NULL, 0 },
                             { (const uint8_t *)x, N * 4 } };
    raw_send(r, GN__MSG_SLOT_PUT, 6, &put);
    raw_expect(r, 6, GN_LIMIT, false, "allowed");
    raw_plan(r, 7, 2, counter_part(6, 1, N, GN_LEAF_DATA), 0); /* fails for the reason why its slot is not there */
    raw_expect(r, 7, GN_LIMIT, false, "allowed");
    gn__msg_plan_put plan = { 3, 0, 0, { (const uint8_t *)x, N * 4 } };
    raw_send(r, GN__MSG_PLAN_PUT, 8, &plan);
    raw_expect(r, 8, GN_LIMIT, false, "allowed");
    raw_step(r, 9, 1, 3, GN__OUT_WANTED, 0, step_x, 8);
    raw_expect_step(r, 9, (float[]){ 12, 24 }, 8);
    gn__msg_weight_ask ask = { { (const uint8_t *)x, N * 4 / 40 } }; /* not a message that may be so large */
    raw_send(r, GN__MSG_WEIGHT_ASK, 10, &ask);
    raw_expect(r, 0, GN_LIMIT, true, "unfinished");
    free(x);
    raw_close(r);
    gn_server_close(s);
}

/* ---- soak: clients whose links stall, give bytes in small pieces and break, beside what the same steps give in C */

/* left: bytes until it breaks */
typedef struct rough {
    gn_transport t;
    uint64_t random;
    int64_t left;
    bool cut;
} rough;

static uint64_t rough_next(uint64_t *x) {
    *x = gn__mix(*x, 0x9e3779b97f4a7c15u) | 1;
    return *x >> 8;
}

/* How many of n bytes go at once; 0: the link breaks now. */
static size_t rough_some(rough *r, size_t n) {
    uint64_t x = rough_next(&r->random);
    if (x % 64 == 0) usleep((useconds_t)(x >> 8) % 2000);
    if (x % 4 == 0) n = GN__MIN(n, (size_t)(1 + (x >> 8) % 1500));
    n = GN__MIN(n, (size_t)GN__MAX(r->left, 0));
    r->left -= (int64_t)n;
    if (n == 0) r->t.i->interrupt(r->t.self);
    r->cut = r->cut || n == 0;
    return n;
}

static gn_result rough_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    rough *r = (rough *)self;
    const uint8_t *p = (const uint8_t *)data;
    for (size_t some; n > 0; p += some, n -= some) {
        some = rough_some(r, n);
        if (some == 0) return GN_DISCONNECTED;
        gn_result e = r->t.i->send(r->t.self, p, some, timeout_ms);
        if (e) return e;
    }
    return GN_OK;
}

static gn_result rough_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    rough *r = (rough *)self;
    size_t some = rough_some(r, max);
    if (some == 0) return GN_DISCONNECTED;
    gn_result e = r->t.i->recv(r->t.self, data, some, out_n, timeout_ms);
    r->left += e ? (int64_t)some : (int64_t)(some - *out_n);
    return e;
}

static void rough_interrupt(void *self) { ((rough *)self)->t.i->interrupt(((rough *)self)->t.self); }
static void rough_close(void *self) { ((rough *)self)->t.i->close(((rough *)self)->t.self); }
static void rough_info(void *self, gn_link_info *out_info) {
    ((rough *)self)->t.i->info(((rough *)self)->t.self, out_info);
}

enum { SOAK_LATER = 12, SOAK_MOST = 150000, SOAK_LIMIT = 8 << 20, SOAK_ABOVE = 3 << 20 };

typedef struct soak_read {
    uint64_t ticket;
    float *y;
    double a, b;
    bool open;
} soak_read;

/* One client after another; element i of the state is a + b * (i % 8). */
typedef struct soak {
    gn_server *server;
    gn__thread thread;
    uint64_t random, until_us;
    uint32_t clients, breaks, steps, reads, refused;
    rough link;
    gn_ctx *g;
    gn_tensor state;
    int64_t n;
    double a, b;
    float *x, *large;
    soak_read later[SOAK_LATER];
    uint32_t wrong;
    char said[200]; /* of the first thing that was wrong */
} soak;

static void soak_wrong(soak *k, const char *what, gn_result e) {
    if (k->wrong++ == 0)
        snprintf(k->said, sizeof k->said, "%.40s: %.30s: %.110s", what, gn_result_name(e), gn_last_error(k->g)->text);
}

/* Whether it went well; it may go wrong once the link has broken, and only then. */
static bool soak_ok(soak *k, const char *what, gn_result e) {
    bool broken = e == GN_DISCONNECTED || e == GN_DEVICE_LOST;
    if (e && !(k->link.cut && broken)) soak_wrong(k, what, e);
    return e == GN_OK;
}

static void soak_check(soak *k, const float *y, double a, double b) {
    int64_t at[4] = { 0, k->n - 1, k->n / 2, (int64_t)(rough_next(&k->random) % (uint64_t)k->n) };
    for (int i = 0; i < 4; i++)
        if ((double)y[at[i]] != a + b * (double)(at[i] % 8)) soak_wrong(k, "a value", GN_OK);
    k->reads++;
}

static void soak_wait(soak *k, soak_read *r) {
    if (!r->open) return;
    r->open = false;
    if (soak_ok(k, "wait", gn_wait(k->g, r->ticket))) soak_check(k, r->y, r->a, r->b);
}

static void soak_wait_all(soak *k) {
    for (int i = 0; i < SOAK_LATER; i++) soak_wait(k, &k->later[i]);
}

/* Adds to the state: a number, or as many bytes as it has. */
static gn_tensor soak_add(soak *k) {
    float c = (float)(rough_next(&k->random) % 4);
    k->a += (double)c;
    if (rough_next(&k->random) % 3)
        return gn_assign(k->state, gn_add(k->state, gn_data_copy(k->g, GN_F32, GN_SHAPE(1), &c)));
    k->b += 1;
    for (int64_t i = 0; i < k->n; i++) k->x[i] = c + (float)(i % 8);
    return gn_assign(k->state, gn_add(k->state, gn_data_copy(k->g, GN_F32, GN_SHAPE(k->n), k->x)));
}

static void soak_refused(soak *k) {
    float y = 9;
    soak_wait_all(k);
    gn_result e =
        gn_read(gn_sum(gn_data(k->g, GN_F32, GN_SHAPE(SOAK_ABOVE), k->large), GN_ALL_AXES, false), &y, sizeof y);
    if (e != GN_LIMIT) soak_ok(k, "too large", e ? e : GN_NO_VALUE);
    k->refused += e == GN_LIMIT;
}

static void soak_step(soak *k) {
    uint64_t x = rough_next(&k->random);
    soak_read *r = &k->later[x % SOAK_LATER];
    if (x % 97 == 0) soak_refused(k);
    soak_wait(k, r);
    gn_tensor t = soak_add(k);
    r->a = k->a;
    r->b = k->b;
    if (x % 5 < 2)
        r->open = soak_ok(k, "read later",
                          gn_read_later(&t, 1, (void *[]){ r->y }, (size_t[]){ (size_t)k->n * 4 }, &r->ticket));
    else if (x % 5 == 2 && soak_ok(k, "read", gn_read(t, r->y, (size_t)k->n * 4))) soak_check(k, r->y, k->a, k->b);
    gn_step(k->g);
    k->steps++;
    if (x % 31 == 0) soak_wait_all(k);
}

static void soak_client(soak *k) {
    static const gn_transport_i table = {
        .send = rough_send, .recv = rough_recv, .interrupt = rough_interrupt, .close = rough_close, .info = rough_info
    };
    static const int64_t sizes[4] = { 3, 1000, 20000, SOAK_MOST };
    int ends[2], room = 32 << 10;
    make_pair(ends);
    for (int i = 0; i < 4; i++) setsockopt(ends[i / 2], SOL_SOCKET, i % 2 ? SO_SNDBUF : SO_RCVBUF, &room, sizeof room);
    uint64_t x = rough_next(&k->random);
    k->link = (rough){ loopback_transport(ends[1]), x,
                       x % 3 ? (int64_t)(20000 + rough_next(&k->random) % (32 << 20)) : INT64_MAX, false };
    if (gn_server_attach(k->server, loopback_transport(ends[0]), "soak") != GN_OK) soak_wrong(k, "attach", GN_IO_ERROR);
    k->g = gn_open_transport(&(gn_desc){ .deadline_ms = 10000 }, (gn_transport){ &table, &k->link }, "");
    k->n = sizes[rough_next(&k->random) % 4];
    k->state = gn_state(k->g, GN_F32, GN_SHAPE(k->n), NULL, "s");
    k->a = k->b = 0;
    for (uint32_t i = 0, steps = 20 + (uint32_t)(rough_next(&k->random) % 300);
         i < steps && !k->link.cut && gn_now_us() < k->until_us; i++)
        soak_step(k);
    soak_wait_all(k);
    k->clients++;
    k->breaks += k->link.cut;
    gn_close(k->g);
}

static void soak_main(void *arg) {
    soak *k = (soak *)arg;
    while (gn_now_us() < k->until_us) soak_client(k);
}

static soak *soak_begin(gn_server *s, double seconds) {
    soak *k = (soak *)calloc(1, sizeof *k);
    k->server = s;
    k->random = (uint64_t)test_random_int(1, INT64_MAX / 4);
    k->until_us = gn_now_us() + (uint64_t)(seconds * 1e6);
    k->x = (float *)malloc(SOAK_MOST * 4);
    k->large = (float *)malloc(SOAK_ABOVE * 4);
    for (int i = 0; i < SOAK_ABOVE; i++) k->large[i] = (float)(rough_next(&k->random) % (1 << 24)); /* does not pack */
    for (int i = 0; i < SOAK_LATER; i++) k->later[i].y = (float *)malloc(SOAK_MOST * 4);
    if (!gn__thread_start(&k->thread, soak_main, k)) exit(2);
    return k;
}

static void soak_end(soak *k, soak *sum) {
    gn__thread_join(&k->thread);
    if (k->wrong) test_fail(__FILE__, __LINE__, "%u wrong, the first: %s", k->wrong, k->said);
    sum->clients += k->clients;
    sum->breaks += k->breaks;
    sum->steps += k->steps;
    sum->reads += k->reads;
    sum->refused += k->refused;
    for (int i = 0; i < SOAK_LATER; i++) free(k->later[i].y);
    free(k->x);
    free(k->large);
    free(k);
}

/* Every value read is of so many steps as the client took; with GENIE_SOAK_S for so many seconds. */
TEST(steps_on_rough_links_run_once_and_in_order) {
    const char *text = getenv("GENIE_SOAK_S");
    soak *k[3], sum;
    memset(&sum, 0, sizeof sum);
    late_us = 2000;
    late_varies = true;
    gn_server *s = open_late_server((gn_server_desc){ .memory_limit = SOAK_LIMIT });
    for (int i = 0; i < 3; i++) k[i] = soak_begin(s, text ? atof(text) : 1.5);
    for (int i = 0; i < 3; i++) soak_end(k[i], &sum);
    late_us = LATE_MS * 1000;
    late_varies = false;
    if (text)
        printf("  %u clients, %u of them cut off; %u steps, %u values, %u refused\n", sum.clients, sum.breaks,
               sum.steps, sum.reads, sum.refused);
    CHECK(sum.steps > 20 && sum.reads > 5);
    check_alive(s);
    gn_server_close(s);
}

/* A link that cannot say whether it may be written to, small buffers, and as many answers as may be outstanding: what
   comes after them is large, and neither side waits for ever for the other to read. */
static void short_answers(gn_server *s, uint32_t answers, uint32_t reads, const float *x) {
    static const gn_transport_i table = {
        .send = rough_send, .recv = rough_recv, .interrupt = rough_interrupt, .close = rough_close, .info = rough_info
    };
    enum { SHORT_N = 1000, SHORT_READS = 24 };
    static float y[SHORT_READS][SHORT_N];
    uint64_t ticket[SHORT_READS];
    int ends[2], room = 32 << 10;
    make_pair(ends);
    for (int i = 0; i < 4; i++) setsockopt(ends[i / 2], SOL_SOCKET, i % 2 ? SO_SNDBUF : SO_RCVBUF, &room, sizeof room);
    rough link = { loopback_transport(ends[1]), 1, INT64_MAX, false };
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "short"), GN_OK);
    gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = 2000 }, (gn_transport){ &table, &link }, "");
    gn_tensor state = gn_state(g, GN_F32, GN_SHAPE(SHORT_N), x, "s");
    gn_tensor large = gn_state(g, GN_F32, GN_SHAPE(SOAK_MOST), NULL, "l");
    for (uint32_t i = 0; i < answers; i++) {
        gn_tensor t = gn_assign(state, gn_add_c(state, 1));
        void *to = i < reads ? y[i] : NULL;
        if (to) CHECK_RESULT(gn_read_later(&t, 1, &to, (size_t[]){ sizeof y[i] }, &ticket[i]), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    gn_assign(large, gn_add(large, gn_data(g, GN_F32, GN_SHAPE(SOAK_MOST), x)));
    CHECK_RESULT(gn_step(g), GN_OK);
    for (uint32_t i = 0; i < reads; i++)
        CHECK(CHECK_RESULT(gn_wait(g, ticket[i]), GN_OK) && y[i][SHORT_N - 1] == x[SHORT_N - 1] + (float)(i + 1));
    gn_close(g);
}

TEST(short_answers_do_not_stop_a_large_step) {
    late_us = 0;
    gn_server *s = open_late_server((gn_server_desc){ .memory_limit = SOAK_LIMIT });
    float *x = (float *)malloc(SOAK_MOST * 4);
    uint64_t random = 1;
    for (int i = 0; i < SOAK_MOST; i++) x[i] = (float)(rough_next(&random) % (1 << 23)); /* does not pack */
    for (uint32_t answers = 24; answers < 64; answers += 13)
        for (uint32_t reads = 0; reads <= 24; reads += 6) short_answers(s, answers, reads, x);
    late_us = LATE_MS * 1000;
    free(x);
    gn_server_close(s);
}

/* ---- a listener: its door is a queue of sockets, its key six letters ---- */

static struct {
    gn__mutex lock;
    int fds[400];
    int first, n;
} door;
static char granted_text[16];

static gn_result door_listen(const gn_server_desc *d, void **out, gn_fault *f) {
    (void)d;
    (void)f;
    gn__mutex_init(&door.lock);
    door.first = door.n = 0;
    *out = &door;
    return GN_OK;
}

static gn_result door_accept(void *listener, uint32_t timeout_ms, gn_transport *out, gn_fault *f) {
    (void)listener;
    (void)f;
    for (uint64_t end = gn_now_us() + timeout_ms * 1000u; gn_now_us() < end; usleep(1000)) {
        gn__mutex_lock(&door.lock);
        int fd = door.first < door.n ? door.fds[door.first++] : -1;
        gn__mutex_unlock(&door.lock);
        if (fd < 0) continue;
        *out = loopback_transport(fd);
        return GN_OK;
    }
    return GN_TIMEOUT;
}

static gn_result door_authenticate(void *listener, gn_transport t, const uint8_t *auth, size_t n, char out_tenant[64],
                                   uint8_t out_grant[256], size_t *out_grant_n, gn_fault *f) {
    (void)listener;
    (void)t;
    if (n != 6 || memcmp(auth, "secret", 6) != 0) return gn_fail(f, GN_BAD_CREDENTIAL, "who is this?");
    snprintf(out_tenant, 64, "friend");
    memcpy(out_grant, "welcome", 7);
    *out_grant_n = 7;
    return GN_OK;
}

static void door_unlisten(void *listener) {
    (void)listener;
    gn__mutex_deinit(&door.lock);
}
static const char *door_url(void *listener) {
    (void)listener;
    return "genie://door";
}
static uint16_t door_port(void *listener) {
    (void)listener;
    return 77;
}

static size_t friend_auth(void *self, uint8_t out[256]) {
    (void)self;
    memcpy(out, "secret", 6);
    return 6;
}

static gn_result friend_granted(void *self, const uint8_t *grant, size_t n) {
    (void)self;
    snprintf(granted_text, sizeof granted_text, "%.*s", (int)n, (const char *)grant);
    return GN_OK;
}

/* Our end of a new connection. */
static int knock(void) {
    int ends[2];
    make_pair(ends);
    gn__mutex_lock(&door.lock);
    door.fds[door.n++] = ends[0];
    gn__mutex_unlock(&door.lock);
    return ends[1];
}

static gn_net_i door_net(void) {
    gn_net_i net = { .sha256 = gn__net->sha256, .codecs = 1 };
    net.listen = door_listen;
    net.accept = door_accept;
    net.authenticate = door_authenticate;
    net.unlisten = door_unlisten;
    net.url = door_url;
    net.port = door_port;
    return net;
}

static gn_ctx *open_friend(void) {
    static gn_transport_i table;
    gn_transport t = loopback_transport(knock());
    table = *t.i;
    table.auth = friend_auth;
    table.granted = friend_granted;
    t.i = &table;
    return gn_open_transport(&(gn_desc){ .deadline_ms = SOON_MS }, t, "");
}

TEST(credentials_are_checked_before_anything_else) {
    const gn_net_i *before = gn__net, net = door_net();
    gn_server *s = NULL;
    gn__net = &net;
    REQUIRE(gn_server_open(&(gn_server_desc){ .listen = "door", .threads = 1 }, &s, NULL) == GN_OK);
    CHECK_STR(gn_server_url(s), "genie://door");
    CHECK_INT(gn_server_port(s), 77);
    gn_ctx *g = open_friend();
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK_STR(granted_text, "welcome");
    gn_close(g);
    gn_ctx *stranger = gn_open_transport(&(gn_desc){ .deadline_ms = SOON_MS }, loopback_transport(knock()), "");
    CHECK_RESULT(gn_status(stranger), GN_BAD_CREDENTIAL);
    gn_close(stranger);
    for (int i = 0; i < 200 && server_stats(s).sessions_refused == 0; i++) usleep(5000);
    CHECK_INT(server_stats(s).sessions_refused, 1);
    CHECK_INT(server_stats(s).sessions, 1);
    gn_server_close(s);
    gn__net = before;
}

/* Connections that say nothing do not keep an honest client out: the oldest of them go. */
TEST(strangers_do_not_crowd_out_a_client) {
    enum { N = GN__SERVER_STRANGERS + 40 };
    const gn_net_i *before = gn__net, net = door_net();
    gn_server *s = NULL;
    int fds[N];
    char c;
    gn__net = &net;
    REQUIRE(gn_server_open(&(gn_server_desc){ .listen = "door", .threads = 1, .max_sessions = 4 }, &s, NULL) == GN_OK);
    for (int i = 0; i < N; i++) fds[i] = knock();
    gn_ctx *g = open_friend();
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK(loopback__ready(fds[0], POLLIN, SOON_MS) == GN_OK && recv(fds[0], &c, 1, 0) == 0);
    CHECK_RESULT(loopback__ready(fds[N - 1], POLLIN, 0), GN_TIMEOUT); /* the youngest may still speak */
    gn_close(g);
    for (int i = 0; i < N; i++) close(fds[i]);
    gn_server_close(s);
    gn__net = before;
}

/* ---- the message table as a generator: every integer at its edges, every cut, in a session with a slot and a plan */

static const uint64_t edges[] = {
    0, 1, 2, 4, INT32_MAX, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX
};

typedef union any_message {
#define GN__X(NAME, name, id, direction, help) gn__msg_##name name;
    GN__MESSAGES(GN__X)
#undef GN__X
} any_message;

/* Plausible messages, so that a change of one field gets past the others. */
static gn__buf plausible(uint16_t id, gn__buf *part) {
    static uint8_t dims[8] = { 2 }, flags = GN__OUT_WANTED, digests[80], auth[4];
    gn__buf b = { NULL, 0, 0, false };
    any_message x;
    memset(&x, 0, sizeof x);
    gn_part *p = NULL;
    gn_fault f;
    switch (id) {
    case GN__MSG_HELLO:
        x.hello = hello();
        x.hello.auth = (gn__span){ auth, 4 };
        break;
    case GN__MSG_WEIGHT_ASK: x.weight_ask = (gn__msg_weight_ask){ { digests, 2 } }; break;
    case GN__MSG_WEIGHT_PUT:
        x.weight_put = (gn__msg_weight_put){ { 0 }, 8, 0, 4, { (const uint8_t *)step_x, 8 } };
        break;
    case GN__MSG_SLOT_PUT:
        x.slot_put = (gn__msg_slot_put){ 6,      1,           GN_LEAF_STATE, GN__FILL_BYTES,
                                         GN_F32, { dims, 1 }, { NULL, 0 },   { (const uint8_t *)step_x, 8 } };
        break;
    case GN__MSG_SLOT_DROP: x.slot_drop = (gn__msg_slot_drop){ 4, 1 }; break;
    case GN__MSG_PLAN_PUT:
        if (gn__part_decode(part->p, part->n, 100, NULL, &p, &f)) break;
        x.plan_put = (gn__msg_plan_put){ 2, p->hash, 0, { part->p, part->n } };
        gn_free(p);
        break;
    case GN__MSG_PLAN_DROP: x.plan_drop = (gn__msg_plan_drop){ 1 }; break;
    case GN__MSG_STEP:
        x.step = (gn__msg_step){ 1, 1, 0, 0, { &flags, 1 }, { NULL, 0 }, { (const uint8_t *)step_x, 8 } };
        break;
    default: break;
    }
    gn__msg_encode(&b, id, &x);
    return b;
}

/* Sends n bytes as message `id`, then a step on a fresh request; whatever comes back, it comes soon. */
static long hostile_case(gn_server *s, raw **r, uint16_t id, const uint8_t *p, size_t n) {
    gn__buf wire = { NULL, 0, 0, false };
    gn__msg m = { 0, 0, NULL, 0, 0 };
    if (!*r) *r = raw_counter(s);
    put_raw_frame(&wire, (uint32_t)n, id, 0, 50);
    gn__put_bytes(&wire, p, n);
    gn__msg_slot_drop probe = { 77, 77 }; /* answered by an error, if the session lives */
    raw_bytes(*r, wire.p, wire.n);
    raw_send(*r, GN__MSG_SLOT_DROP, 60, &probe);
    gn__buf_deinit(&wire);
    gn_result e = GN_OK;
    uint64_t start = gn_now_us();
    bool fatal = false;
    while (!e && !fatal && m.request != 60) {
        e = raw_receive(*r, &m);
        fatal = !e && m.id == GN__MSG_ERROR && m.n > 2 && m.p[2] == 1;
    }
    CHECK(e == GN_OK || e == GN_DISCONNECTED);
    CHECK(gn_now_us() - start < 1000000);
    raw_close(*r); /* each case finds a session in the same state */
    *r = NULL;
    return e == GN_OK && !fatal;
}

TEST(any_message_with_any_integer_at_its_edges_is_survived) {
    gn_server *s = open_server((gn_server_desc){ .memory_limit = 1 << 20 });
    gn__buf part = counter_part(4, 1, 2, GN_LEAF_DATA);
    long cases = 0, lived = 0;
    raw *r = NULL;
    for (uint16_t id = 1; id < GN__MSG__COUNT; id++) {
        const gn__msg_info *m = &gn__msgs[id - 1];
        gn__buf b = plausible(id, &part);
        size_t step = b.n > 200 ? 37 : 1;
        for (size_t n = 0; n < b.n; n += step, cases++) lived += hostile_case(s, &r, id, b.p, n);
        size_t at = 0;
        for (uint16_t k = 0; k < m->n_fields && at + 4 <= b.n; k++) {
            const gn__field *d = &m->fields[k];
            gn__rd rd = { b.p + at, b.p + b.n, false };
            size_t width = d->kind <= GN__KIND_u64 ? d->kind : d->kind == GN__KIND_array ? 4 : 0;
            uint64_t count = d->kind == GN__KIND_array ? gn__get_u32(&rd) : 0;
            for (size_t i = 0; width && i < GN__LENGTH(edges) + 3; i++, cases++) {
                uint64_t v = i < GN__LENGTH(edges) ? edges[i] : d->max + i - GN__LENGTH(edges) - 1;
                uint8_t keep[8];
                memcpy(keep, b.p + at, width);
                for (size_t j = 0; j < width; j++) b.p[at + j] = (uint8_t)(v >> (8 * j));
                lived += hostile_case(s, &r, id, b.p, b.n);
                memcpy(b.p + at, keep, width);
            }
            at += width + (d->kind == GN__KIND_digest ? 32 : count * d->unit);
        }
        gn__buf_deinit(&b);
    }
    CHECK(cases > 500);
    CHECK(lived > 20 && lived < cases);
    check_alive(s);
    gn__buf_deinit(&part);
    gn_server_close(s);
}

/* ---- what a server does now ---- */

static gn_server_view *look(gn_server *s) {
    gn_server_view *v = NULL;
    CHECK_RESULT(gn_server_look(s, &v), GN_OK);
    return v;
}

/* x * x for n steps, each read. */
static void square_steps(gn_ctx *g, int n) {
    for (int i = 0; i < n; i++) {
        float x[4] = { 1, 2, 3, (float)i }, y[4];
        gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(4), x);
        CHECK_RESULT(gn_read(gn_mul(t, t), y, sizeof y), GN_OK);
        CHECK(y[3] == (float)(i * i));
        CHECK_RESULT(gn_step(g), GN_OK);
    }
}

static uint64_t view_plans(const gn_server_view *v) {
    uint64_t n = 0;
    for (int i = 0; i < GN_ROLE__COUNT * GN_PHASE__COUNT; i++) n += v->plans[i / GN_PHASE__COUNT][i % GN_PHASE__COUNT];
    return n;
}

static uint64_t view_count(const gn_server_view *v, gn_timing what) {
    uint64_t n = 0;
    for (int p = 0; p < GN_PHASE__COUNT; p++) {
        uint64_t in_buckets = 0;
        for (int i = 0; i < GN_TIME_BUCKETS; i++) in_buckets += v->times[what][p].buckets[i];
        CHECK_INT(in_buckets, v->times[what][p].count);
        n += in_buckets;
    }
    return n;
}

TEST(look_tells_of_all_tenants_what_they_did) {
    gn_server *s = open_server((gn_server_desc){ .max_sessions = 7 });
    gn_ctx *a = open_client(s, "alice", (gn_desc){ .label = "first" }), *b = open_client(s, "bob", (gn_desc){ 0 });
    square_steps(a, 3);
    square_steps(b, 5);
    gn_server_view *v = look(s);
    CHECK(v->all == 1 && v->draining == 0);
    CHECK_STR(v->version, GN_VERSION);
    CHECK_INT(v->sessions_most, 7);
    CHECK_INT(v->sessions_now, 2);
    CHECK_INT(v->sessions_untold, 0);
    if (CHECK_INT(v->n_sessions, 2)) {
        const gn_session_view *x = &v->sessions[0], *y = &v->sessions[1];
        CHECK_STR(x->tenant, "alice");
        CHECK_STR(x->label, "first");
        CHECK_STR(x->device, "cpu:0");
        CHECK_STR(y->tenant, "bob");
        CHECK_INT(x->steps, 3);
        CHECK_INT(y->steps, 5);
        CHECK_INT(x->plans, 1);
        CHECK(x->session < y->session && x->plan_hash == y->plan_hash && x->plan_hash != 0);
        CHECK(x->bytes_up > 0 && x->bytes_down > 0 && x->host_bytes > 0 && x->age_us >= x->busy_us);
    }
    if (CHECK_INT(v->n_devices, 1)) {
        CHECK_STR(v->devices[0].name, "cpu:0");
        CHECK_INT(v->devices[0].sessions, 2);
        CHECK(v->devices[0].busy_us <= v->uptime_us && v->devices[0].identity[0]);
    }
    CHECK_INT(view_plans(v), 2);
    CHECK_INT(v->stats.steps_run, 8);
    CHECK_INT(v->stats.plans_made, 2);
    CHECK_INT(v->stats.tensor_bytes_down, 8 * 4 * sizeof(float));
    CHECK_INT(view_count(v, GN_TIMING_STEP), 8);
    CHECK_INT(view_count(v, GN_TIMING_QUEUE), 8);
    for (uint64_t end = gn_now_us() + SOON_MS * 1000u; view_count(v, GN_TIMING_SEND) < 8 && gn_now_us() < end;) {
        gn_server_view_free(v); /* the latest answer is here before its sending is over */
        v = look(s);
    }
    CHECK_INT(view_count(v, GN_TIMING_SEND), 8);
    CHECK_INT(view_count(v, GN_TIMING_COMPILE), 2);
    CHECK_INT(view_count(v, GN_TIMING_FIRST), 2);
    CHECK_INT(view_count(v, GN_TIMING_NEXT), 6);
    CHECK_INT(view_count(v, GN_TIMING_RECEIVE), 0);
    gn_server_view_free(v);
    gn_close(a);
    gn_close(b);
    gn_server_close(s);
}

TEST(query_tells_a_tenant_of_its_own_sessions_alone) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *a = open_client(s, "alice", (gn_desc){ 0 }), *b = open_client(s, "bob", (gn_desc){ .label = "secret" }),
           *c = open_client(s, "alice", (gn_desc){ 0 });
    gn_server_view *v = NULL;
    square_steps(a, 2);
    square_steps(b, 9);
    CHECK_RESULT(gn_server_query(a, 0, &v), GN_OK);
    if (v) {
        CHECK_INT(v->all, 0);
        CHECK_INT(v->sessions_now, 2);
        if (CHECK_INT(v->n_sessions, 2)) {
            CHECK_STR(v->sessions[0].tenant, "alice");
            CHECK_STR(v->sessions[1].tenant, "alice");
            CHECK_INT(v->sessions[0].steps, 2);
            CHECK_INT(v->sessions[1].steps, 0);
        }
        CHECK_INT(v->stats.steps_run, 2);
        CHECK_INT(view_plans(v), 1);
        CHECK_INT(v->n_devices, 1);
        CHECK_INT(v->devices[0].sessions, 2);
        CHECK(v->devices[0].busy_us == v->sessions[0].busy_us && v->devices[0].queue_us == 0);
        CHECK(v->host_limit == 0 && v->weights == 0 && v->idle_bytes == 0);
        for (int i = 0; i < GN_TIMING__COUNT; i++) CHECK_INT(view_count(v, (gn_timing)i), 0);
    }
    gn_server_view_free(v);
    square_steps(a, 2); /* the session goes on */
    gn_close(a);
    gn_close(b);
    gn_close(c);
    gn_server_close(s);
}

TEST(query_of_what_is_no_server_or_an_old_one_is_an_error) {
    gn_server_view *v = NULL;
    gn_ctx *cpu = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    CHECK_RESULT(gn_server_query(cpu, 0, &v), GN_UNSUPPORTED);
    CHECK_RESULT(gn_server_query(cpu, 1, &v), GN_NO_DEVICE);
    CHECK_RESULT(gn_server_query(cpu, 0, NULL), GN_BAD_ARGUMENT);
    gn_close(cpu);
    CHECK_RESULT(gn_server_look(NULL, &v), GN_BAD_ARGUMENT);
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    gn__remote *r = (gn__remote *)g->exec.self;
    CHECK(r->features & GN__FEATURE_QUERY);
    r->features &= ~(uint64_t)GN__FEATURE_QUERY; /* as an old server answers */
    CHECK_RESULT(gn_server_query(g, 0, &v), GN_UNSUPPORTED);
    CHECK(v == NULL && strstr(gn_last_error(g)->text, "cannot tell what it does"));
    square_steps(g, 1);
    gn_close(g);
    gn_server_close(s);
}

TEST(u64_is_refused_by_name_where_the_server_does_not_know_it) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    gn__remote *r = (gn__remote *)g->exec.self;
    uint64_t x[2] = { UINT64_MAX, (uint64_t)1 << 63 }, got[2] = { 0 };
    gn_tensor one = gn_full(g, GN_U64, GN_SCALAR, 1);
    CHECK_RESULT(gn_read(gn_shift_right(gn_data(g, GN_U64, GN_SHAPE(2), x), one), got, sizeof got), GN_OK);
    CHECK(got[0] == UINT64_MAX / 2 && got[1] == (uint64_t)1 << 62);
    gn_step(g);
    CHECK(r->features & GN__FEATURE_U64);
    r->features &= ~(uint64_t)GN__FEATURE_U64; /* as an old server answers */
    CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_U64, GN_SHAPE(2), x)), got, sizeof got), GN_UNSUPPORTED);
    CHECK(strstr(gn_last_error(g)->text, "does not know u64") != NULL);
    gn_step(g);
    gn_tensor state = gn_state(g, GN_U64, GN_SHAPE(2), x, "state");
    CHECK_RESULT(gn_read(gn_cast(state, GN_F64), got, sizeof got), GN_UNSUPPORTED);
    CHECK(strstr(gn_last_error(g)->text, "does not know u64") != NULL);
    gn_step(g);
    square_steps(g, 1); /* the session goes on */
    gn_close(g);
    gn_server_close(s);
}

TEST(more_sessions_than_are_asked_for_are_counted) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g[3];
    for (int i = 0; i < 3; i++) g[i] = open_client(s, "a", (gn_desc){ 0 });
    raw *r = raw_open(s, "a");
    gn__msg_query ask = { 2 };
    gn__msg_query_ok d;
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn_fault f;
    gn_server_view *v = NULL;
    raw_send(r, GN__MSG_QUERY, 9, &ask);
    CHECK_RESULT(raw_receive(r, &m), GN_OK);
    CHECK(m.id == GN__MSG_QUERY_OK && m.request == 9);
    CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
    if (CHECK_RESULT(gn__view_get(&d.tables, &v, &f), GN_OK)) {
        CHECK_INT(v->n_sessions, 2);
        CHECK_INT(v->sessions_untold, 2);
        CHECK_INT(v->sessions_now, 4);
        CHECK(v->sessions[0].session < v->sessions[1].session);
    }
    gn_server_view_free(v);
    raw_close(r);
    for (int i = 0; i < 3; i++) gn_close(g[i]);
    gn_server_close(s);
}

/* Rows with columns that are not known yet, tables that are not, rows that end early. */
TEST(tables_of_another_version_are_read) {
    gn__buf b = { NULL, 0, 0, false };
    gn_server_view *v = NULL;
    gn_fault f;
    gn__put_u16(&b, 6);
    gn__put_bytes(&b, "dreams", 6);
    gn__put_u32(&b, 3);
    gn__put_bytes(&b, "zzz", 3);
    gn__put_u16(&b, 7);
    gn__put_bytes(&b, "session", 7);
    size_t table = gn__length_begin(&b), row = gn__length_begin(&b);
    gn__put_u64(&b, 77); /* its number, and nothing else */
    gn__length_end(&b, row);
    gn_session_view whole = { .session = 78, .faults = 5, .tenant = "t" };
    row = b.n;
    gn__row_put(&b, &gn__tables[GN__TABLE_SESSIONS], &whole);
    gn__put_u64(&b, 123); /* a column more */
    gn__length_end(&b, row + 4);
    gn__length_end(&b, table);
    gn__span span = { b.p, b.n };
    if (CHECK_RESULT(gn__view_get(&span, &v, &f), GN_OK) && CHECK_INT(v->n_sessions, 2)) {
        CHECK_INT(v->sessions[0].session, 77);
        CHECK_INT(v->sessions[0].faults, 0);
        CHECK_INT(v->sessions[1].session, 78);
        CHECK_INT(v->sessions[1].faults, 5);
        CHECK_STR(v->sessions[1].tenant, "t");
    }
    gn_server_view_free(v);
    span.n--;
    CHECK_RESULT(gn__view_get(&span, &v, &f), GN_BAD_MESSAGE);
    CHECK(v == NULL);
    gn__buf_deinit(&b);
}

TEST(drained_server_takes_no_session_and_ends_with_the_last) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ 0 });
    square_steps(g, 1);
    gn_server_drain(s);
    gn_ctx *late = open_client(s, "b", (gn_desc){ 0 });
    CHECK_RESULT(gn_status(late), GN_LIMIT);
    CHECK(strstr(gn_last_error(late)->text, "takes no new sessions"));
    gn_close(late);
    square_steps(g, 2);
    gn_server_view *v = look(s);
    CHECK(v->draining == 1 && v->sessions_now == 1);
    gn_server_view_free(v);
    gn_close(g);
    CHECK_RESULT(gn_server_run(s), GN_OK);
    gn_server_close(s);
}

/* ---- hostile and dying servers ---- */

typedef enum fake_kind {
    FAKE_SILENT,
    FAKE_DIES_AT_STEP,
    FAKE_OTHER_VERSION,
    FAKE_NO_OPS,
    FAKE_UNKNOWN_REQUEST,
    FAKE_LONG_ANSWER,
    FAKE_SHORT_ANSWER,
    FAKE_NOISE,
    FAKE_HUGE_FRAME,
    FAKE_UNASKED,
    FAKE_UPSTREAM_MESSAGE,
    FAKE_FLOOD,
    FAKE_ERROR_ZERO,
    FAKE_SAYS_WHY,
    FAKE_NO_HELLO,
    FAKE__COUNT,
    FAKE_PIECES /* and those after it: an answer in the frames of a table */
} fake_kind;

/* Answers in several frames, all but those marked with MORE. STEP_OK is 8 bytes, then two f32. */
/* bytes; whether it ends the message; added to the request; 0: STEP_OK */
typedef struct piece {
    uint8_t n, last, later, id;
} piece;
typedef struct pieces_case {
    piece pieces[18];
    int n;
    gn_result want;
    const char *words;
} pieces_case;
static const pieces_case pieces_cases[] = {
    { { { 8, 0, 0, 0 }, { 8, 1, 0, 0 } }, 2, GN_OK, "" },
    { { { 3, 0, 0, 0 }, { 9, 0, 0, 0 }, { 1, 0, 0, 0 }, { 3, 1, 0, 0 } }, 4, GN_OK, "" },
    { { { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 1, 0, 0, 0 },
        { 7, 0, 0, 0 },
        { 0, 1, 0, 0 } },
      11,
      GN_OK,
      "" },
    { { { 15, 0, 0, 0 }, { 2, 1, 0, 0 } }, 2, GN_BAD_MESSAGE, "longer" },
    { { { 16, 0, 0, 0 }, { 1, 0, 0, 0 } }, 2, GN_BAD_MESSAGE, "longer" }, /* at once, whatever follows */
    { { { 100, 0, 0, 0 } }, 1, GN_BAD_MESSAGE, "longer" },
    { { { 15, 0, 0, 0 }, { 0, 1, 0, 0 } }, 2, GN_BAD_MESSAGE, "truncated" },
    { { { 7, 0, 0, 0 }, { 0, 1, 0, 0 } }, 2, GN_BAD_MESSAGE, "truncated" },
    { { { 9, 0, 0, 0 }, { 0, 0, 0, 0 } }, 2, GN_BAD_MESSAGE, "empty frame" },
    { { { 9, 0, 0, 0 }, { 7, 1, 0, GN__MSG_ERROR } }, 2, GN_BAD_MESSAGE, "goes on as" },
    { { { 9, 0, 9, 0 }, { 7, 1, 9, 0 } }, 2, GN_BAD_MESSAGE, "not sent" },
    { { { 9, 0, 0, 0 }, { 9, 0, 9, 0 }, { 7, 1, 9, 0 } }, 3, GN_BAD_MESSAGE, "not sent" },
    /* another begins, which is nobody's and never ends */
    { { { 9, 0, 0, 0 }, { 1, 0, 9, 0 }, { 7, 1, 0, 0 } }, 3, GN_OK, "" },
    { { { 9, 0, 0, 0 } }, 1, GN_TIMEOUT, "300 ms" },
    { { { 9, 0, 0, 0 }, { 255, 0, 0, 0 } }, 2, GN_DISCONNECTED, "closed" }, /* 255: the server dies */
};

typedef struct fake {
    int fd;
    fake_kind kind;
    gn__thread thread;
} fake;

static void fake_hello_ok(raw *r, fake_kind kind) {
    static uint8_t ops[GN__WIRE_OPS];
    gn__msg_hello_ok m;
    memset(&m, 0, sizeof m);
    gn__ops_bitmap(ops);
    m.version = kind == FAKE_OTHER_VERSION ? 7 : 1;
    m.codecs = 1;
    m.memory = 1 << 20;
    m.nodes = 1000;
    /* 3 bytes: leaves, generators, add up to relu's first half */
    m.ops = (gn__span){ ops, kind == FAKE_NO_OPS ? 3u : sizeof ops };
    m.device = gn__span_of_text("fake:0", 63);
    m.identity = gn__span_of_text("a fake", 191);
    raw_send(r, GN__MSG_HELLO_OK, 1, &m);
}

static void fake_pieces(raw *r, const pieces_case *c, uint32_t request) {
    static const uint8_t answer[128] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 64 }; /* 1, 2 */
    gn__buf b = { NULL, 0, 0, false };
    size_t at = 0;
    for (int i = 0; i < c->n; i++) {
        const piece *x = &c->pieces[i];
        if (x->n == 255) shutdown(((loopback_link *)r->link.t.self)->fd, SHUT_RDWR);
        if (x->n == 255) break;
        put_raw_frame(&b, x->n, (uint16_t)(x->id ? x->id : GN__MSG_STEP_OK), (uint16_t)(x->last ? 0 : GN__FRAME_MORE),
                      request + x->later);
        gn__put_bytes(&b, answer + at, x->n);
        if (!x->later) at += x->n;
        raw_bytes(r, b.p, b.n);
        gn__buf_reset(&b);
    }
    gn__buf_deinit(&b);
}

static void fake_answer(raw *r, fake_kind kind, uint32_t request) {
    static const float y[3] = { 1, 2, 3 };
    gn__msg_step_ok ok = { 0,
                           { (const uint8_t *)y, kind == FAKE_LONG_ANSWER    ? 12
                                                 : kind == FAKE_SHORT_ANSWER ? 4
                                                                             : 8 } };
    gn__msg_weight_have have = { { (const uint8_t *)y, 1 } };
    gn__msg_error error = { GN_DEVICE_LOST, 1, GN_NO_NODE, gn__span_of_text("the card fell out", 399) };
    gn__msg_plan_drop drop = { 1 };
    gn__buf b = { NULL, 0, 0, false };
    switch (kind) {
    case FAKE_UNKNOWN_REQUEST: raw_send(r, GN__MSG_STEP_OK, request + 1, &ok); break;
    case FAKE_UNASKED: raw_send(r, GN__MSG_WEIGHT_HAVE, request, &have); break;
    case FAKE_UPSTREAM_MESSAGE: raw_send(r, GN__MSG_PLAN_DROP, request, &drop); break;
    case FAKE_ERROR_ZERO:
        error.result = GN_OK;
        raw_send(r, GN__MSG_ERROR, request, &error);
        break;
    case FAKE_SAYS_WHY: raw_send(r, GN__MSG_ERROR, request, &error); break;
    case FAKE_NOISE: raw_bytes(r, "this is no frame, it is some text of a server of another kind", 60); break;
    case FAKE_HUGE_FRAME:
        put_raw_frame(&b, UINT32_MAX, GN__MSG_STEP_OK, 0, request);
        raw_bytes(r, b.p, b.n);
        break;
    case FAKE_FLOOD:
        error.fatal = 0;
        for (int i = 0; i < 100; i++) raw_send(r, GN__MSG_ERROR, 1, &error);
        break;
    default: raw_send(r, GN__MSG_STEP_OK, request, &ok); break;
    }
    gn__buf_deinit(&b);
}

/* Answers HELLO, then misbehaves at the first step; ends when the client goes. */
static void fake_main(void *arg) {
    fake *x = (fake *)arg;
    raw r;
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn__link_wait_limit w = { 10000, false, NULL, NULL };
    gn_fault f;
    memset(&r, 0, sizeof r);
    gn__link_init(&r.link, loopback_transport(x->fd), SOON_MS, &r.stats);
    r.link.in.frame_max = GN__FRAME_MAX;
    r.link.in.limit = 1 << 20;
    while (gn__link_receive(&r.link, &w, &m, &f) == GN_OK) {
        if (m.id == GN__MSG_HELLO && x->kind != FAKE_NO_HELLO) fake_hello_ok(&r, x->kind);
        if (m.id == GN__MSG_STEP && x->kind == FAKE_DIES_AT_STEP) break;
        if (m.id == GN__MSG_STEP && x->kind >= FAKE_PIECES)
            fake_pieces(&r, &pieces_cases[x->kind - FAKE_PIECES], m.request);
        else if (m.id == GN__MSG_STEP && x->kind != FAKE_SILENT) fake_answer(&r, x->kind, m.request);
    }
    gn__link_deinit(&r.link);
}

static gn_ctx *open_fake(fake *x, fake_kind kind, uint32_t deadline_ms) {
    int ends[2];
    make_pair(ends);
    *x = (fake){ ends[0], kind, { 0 } };
    if (!gn__thread_start(&x->thread, fake_main, x)) exit(2);
    return gn_open_transport(&(gn_desc){ .deadline_ms = deadline_ms }, loopback_transport(ends[1]), "");
}

/* Reads -x (two f32) from a fake server; later reads must tell that the device is lost, and why. */
static void check_fake(fake_kind kind, gn_result want, const char *words, uint64_t least_us, uint64_t most_us) {
    fake x;
    gn_ctx *g = open_fake(&x, kind, 300);
    float room[4] = { 5, 5, 5, 5 }, *y = room + 1;
    CHECK_RESULT(gn_status(g), GN_OK);
    uint64_t start = gn_now_us();
    gn_result e = gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, 2 * sizeof *y);
    uint64_t spent = gn_now_us() - start;
    if (e != want)
        test_fail(__FILE__, __LINE__, "fake %d: %s, not %s: %s", (int)kind, gn_result_name(e), gn_result_name(want),
                  gn_last_error(g)->text);
    if (!strstr(gn_last_error(g)->text, words))
        test_fail(__FILE__, __LINE__, "fake %d: \"%s\" does not say \"%s\"", (int)kind, gn_last_error(g)->text, words);
    CHECK(spent >= least_us && spent <= most_us);
    if (want == GN_OK) CHECK(y[0] == 1 && y[1] == 2);
    else {
        CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, 2 * sizeof *y), GN_DEVICE_LOST);
        if (!strstr(gn_last_error(g)->text, words))
            test_fail(__FILE__, __LINE__, "fake %d, second read: \"%s\" does not say \"%s\"", (int)kind,
                      gn_last_error(g)->text, words);
        CHECK(gn_now_us() - start <= most_us + 100000);
    }
    CHECK(room[0] == 5 && room[3] == 5);
    gn_close(g);
    gn__thread_join(&x.thread);
}

TEST(answers_in_pieces_are_taken_as_they_come_and_checked) {
    for (int i = 0; i < TEST_COUNT(pieces_cases); i++) {
        const pieces_case *c = &pieces_cases[i];
        bool waits = c->want == GN_TIMEOUT;
        check_fake((fake_kind)(FAKE_PIECES + i), c->want, c->words, waits ? 290000 : 0, waits ? 2000000 : 280000);
    }
}

TEST(a_fake_that_behaves_is_believed) { check_fake(FAKE__COUNT, GN_OK, "", 0, 250000); }
TEST(a_silent_server_ends_at_the_deadline) { check_fake(FAKE_SILENT, GN_TIMEOUT, "300 ms", 290000, 2000000); }
TEST(a_server_that_dies_mid_step_is_an_error_at_once) {
    check_fake(FAKE_DIES_AT_STEP, GN_DISCONNECTED, "closed", 0, 280000);
}
TEST(a_server_that_says_why_is_quoted) { check_fake(FAKE_SAYS_WHY, GN_DEVICE_LOST, "the card fell out", 0, 280000); }
TEST(an_answer_to_no_request_is_refused) { check_fake(FAKE_UNKNOWN_REQUEST, GN_BAD_MESSAGE, "not sent", 0, 280000); }
TEST(an_answer_that_is_too_long_is_refused) { check_fake(FAKE_LONG_ANSWER, GN_BAD_MESSAGE, "longer", 0, 280000); }
TEST(an_answer_that_is_too_short_is_refused) { check_fake(FAKE_SHORT_ANSWER, GN_BAD_MESSAGE, "truncated", 0, 280000); }
TEST(noise_from_a_server_is_refused) { check_fake(FAKE_NOISE, GN_BAD_MESSAGE, "", 0, 280000); }
TEST(a_huge_frame_from_a_server_is_refused) { check_fake(FAKE_HUGE_FRAME, GN_BAD_MESSAGE, "", 0, 280000); }
TEST(an_answer_to_no_question_is_refused) { check_fake(FAKE_UNASKED, GN_BAD_MESSAGE, "no question", 0, 280000); }
TEST(a_client_message_from_a_server_is_refused) {
    check_fake(FAKE_UPSTREAM_MESSAGE, GN_BAD_MESSAGE, "PLAN_DROP", 0, 280000);
}
TEST(more_answers_than_requests_are_refused) { check_fake(FAKE_FLOOD, GN_BAD_MESSAGE, "more answers", 0, 280000); }
TEST(an_error_that_is_none_is_refused) { check_fake(FAKE_ERROR_ZERO, GN_BAD_MESSAGE, "none", 0, 280000); }

/* ---- steps ahead of results ---- */

static char order[64]; /* of a session's thread: s: a step was submitted, w: waited for */

static gn_result noted_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket,
                              gn_fault *f) {
    if (!order[0]) usleep(100000); /* by now the other steps have come */
    strcat(order, "s");
    return gn__cpu_i.submit(self, plan, args, outs, out_ticket, f);
}

static gn_result noted_wait(void *self, uint64_t ticket, gn_fault *f) {
    strcat(order, "w");
    return gn__cpu_i.wait(self, ticket, f);
}

static bool never_ended(void *self, uint64_t ticket) {
    (void)self;
    (void)ticket;
    return false;
}

static gn_result noted_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    static gn_exec_i tables[2];
    bool late = strncmp(d->device, "noted:1", 7) == 0;
    gn_result e = gn__cpu_open(d, out, f);
    if (!tables[late].submit) {
        tables[late] = gn__cpu_i;
        if (late) tables[late].ended = never_ended;
        tables[late].wait = noted_wait;
        tables[late].submit = noted_submit;
    }
    out->i = &tables[late];
    return e;
}

/* Five steps that come together, on an executor whose runs have ended when submit returns, or only when they are waited
   for (noted:1): x, 2 x, 3 x, … come back. want NULL: some are answered before the last is submitted. */
typedef struct order_sender {
    raw *r;
    gn__span args;
} order_sender;

static void order_main(void *arg) {
    const order_sender *x = (const order_sender *)arg;
    uint8_t wanted = GN__OUT_WANTED;
    for (uint32_t i = 1; i <= 5; i++) {
        gn__msg_step m = { 1, i, 0, 0, { &wanted, 1 }, { NULL, 0 }, x->args };
        gn__outbox_message(&x->r->link.out, GN__MSG_STEP, 3 + i, &m);
    }
    gn__outbox_flush(&x->r->link.out);
}

static void check_order(const char *device, uint64_t memory, const char *want) {
    enum { N = 1 << 18 };
    static const gn_driver_i noted = { .prefix = "noted", .open = noted_open };
    static float x[N], y[N];
    const gn_driver_i *before = gn__driver;
    uint8_t dims[8] = { 0, 0, N >> 16 };
    gn__buf args = { NULL, 0, 0, false };
    gn__thread sender;
    gn__msg_slot_put state = { 4, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    gn_register_driver(&noted);
    gn_server *s = open_server((gn_server_desc){ .no_costs = true, .devices = device, .memory_limit = memory });
    raw *r = raw_open(s, "raw");
    r->link.in.limit = 2 << 20;
    order[0] = 0;
    for (int i = 0; i < N; i++) x[i] = (float)i;
    gn__put_u8(&args, 0);
    gn__put_u32(&args, sizeof x);
    gn__put_bytes(&args, x, sizeof x);
    raw_send(r, GN__MSG_SLOT_PUT, 2, &state);
    raw_plan(r, 3, 1, counter_part(4, 1, N, GN_LEAF_DATA), 0);
    order_sender sends = { r, { args.p, args.n } };
    if (!gn__thread_start(&sender, order_main, &sends)) exit(2);
    for (uint32_t i = 1; i <= 5; i++) {
        gn__msg m = { 0, 0, NULL, 0, 0 };
        for (int k = 0; k < N; k++) y[k] = (float)i * x[k];
        if (!CHECK_RESULT(raw_receive(r, &m), GN_OK) || !CHECK_INT(m.id, GN__MSG_STEP_OK)) break;
        CHECK_INT(m.request, 3 + i);
        CHECK(m.n == 8 + 5 + sizeof y && memcmp(m.p + 8 + 5, y, sizeof y) == 0);
    }
    gn__thread_join(&sender);
    raw_close(r);
    gn_server_close(s);
    if (want ? strcmp(order, want) != 0 : strncmp(order, "sssss", 5) == 0)
        test_fail(__FILE__, __LINE__, "%s with %llu bytes: %s, not %s", device, (unsigned long long)memory, order,
                  want ? want : "some of them answered first");
    gn__driver = before;
    gn__buf_deinit(&args);
}

TEST(steps_that_are_here_run_before_the_first_is_waited_for) {
    check_order("noted:0", 32 << 20, "swswswswsw");
    check_order("noted:1", 32 << 20, "ssssswwwww");
    check_order("noted:1", 8 << 20, NULL); /* no memory for five results at a time */
}

enum { AHEAD_STEPS = 3, AHEAD_N = 25600 };

/* A server that answers nothing before it has had all steps. */
static void patient_main(void *arg) {
    fake *x = (fake *)arg;
    static const uint8_t zeros[AHEAD_N * 4];
    raw r;
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn__link_wait_limit w = { 10000, false, NULL, NULL };
    gn_fault f;
    uint32_t requests[AHEAD_STEPS], n = 0;
    memset(&r, 0, sizeof r);
    gn__link_init(&r.link, loopback_transport(x->fd), SOON_MS, &r.stats);
    r.link.in.frame_max = GN__FRAME_MAX;
    r.link.in.limit = 1 << 20;
    while (gn__link_receive(&r.link, &w, &m, &f) == GN_OK) {
        gn__msg_step_ok ok = { 0, { NULL, 0 } };
        if (m.id == GN__MSG_HELLO) fake_hello_ok(&r, FAKE__COUNT);
        if (m.id == GN__MSG_STEP && n < AHEAD_STEPS) requests[n++] = m.request;
        for (uint32_t i = 0; i < n && n == AHEAD_STEPS; i++) {
            gn__outbox_fields(&r.link.out, GN__MSG_STEP_OK, requests[i], &ok);
            gn__blob_put(&r.link.out, zeros, sizeof zeros, 4, 1, 0, &r.link.scratch);
            gn__outbox_end(&r.link.out);
        }
        if (n == AHEAD_STEPS) gn__outbox_flush(&r.link.out);
        n = n == AHEAD_STEPS ? 0 : n;
    }
    gn__link_deinit(&r.link);
}

TEST(small_steps_are_sent_before_large_results_have_come) {
    static float y[AHEAD_STEPS][AHEAD_N];
    fake x;
    int ends[2];
    uint64_t tickets[AHEAD_STEPS];
    make_pair(ends);
    x = (fake){ ends[0], FAKE__COUNT, { 0 } };
    if (!gn__thread_start(&x.thread, patient_main, &x)) exit(2);
    gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = 2000 }, loopback_transport(ends[1]), "");
    memset(y, 0xff, sizeof y);
    for (int i = 0; i < AHEAD_STEPS; i++) {
        float one = (float)i;
        gn_tensor t = gn_mul(gn_full(g, GN_F32, GN_SHAPE(AHEAD_N), 1), gn_data_copy(g, GN_F32, GN_SHAPE(1), &one));
        CHECK_RESULT(gn_read_later(&t, 1, (void *[]){ y[i] }, (size_t[]){ sizeof y[i] }, &tickets[i]), GN_OK);
        gn_step(g);
    }
    for (int i = 0; i < AHEAD_STEPS; i++) CHECK_RESULT(gn_wait(g, tickets[i]), GN_OK);
    for (int i = 0; i < AHEAD_STEPS; i++) CHECK(y[i][0] == 0 && y[i][AHEAD_N - 1] == 0);
    gn_close(g);
    gn__thread_join(&x.thread);
}

/* Large ones both ways: neither end waits for the other to read. */
TEST(large_steps_and_large_results_at_once_do_not_block) {
    enum { STEPS = 12, N = 200000 };
    float *x = (float *)malloc(N * sizeof *x), *y = (float *)malloc(STEPS * N * sizeof *y);
    uint64_t ticket = 0;
    gn_server *s = open_server((gn_server_desc){ .no_costs = true });
    gn_ctx *g = open_client(s, "a", (gn_desc){ .deadline_ms = 10000 });
    for (int i = 0; i < N; i++) x[i] = (float)test_random_int(0, 1 << 24);
    for (int i = 0; i < STEPS; i++) {
        float one = (float)i;
        gn_tensor t = i % 3 == 2
                          ? gn_add(gn_data_copy(g, GN_F32, GN_SHAPE(N), x), gn_data_copy(g, GN_F32, GN_SHAPE(1), &one))
                          : gn_mul(gn_full(g, GN_F32, GN_SHAPE(N), 1), gn_data_copy(g, GN_F32, GN_SHAPE(1), &one));
        CHECK_RESULT(gn_read_later(&t, 1, (void *[]){ y + (size_t)i * N }, (size_t[]){ N * sizeof *y }, &ticket),
                     GN_OK);
        gn_step(g);
    }
    CHECK_RESULT(gn_sync(g), GN_OK);
    for (int i = 0; i < STEPS; i++) CHECK(y[(size_t)i * N + N - 1] == (i % 3 == 2 ? x[N - 1] + (float)i : (float)i));
    gn_close(g);
    gn_server_close(s);
    free(x);
    free(y);
}

TEST(a_server_of_another_version_is_refused) {
    fake x;
    gn_ctx *g = open_fake(&x, FAKE_OTHER_VERSION, 1000);
    CHECK_RESULT(gn_status(g), GN_BAD_VERSION);
    CHECK(strstr(gn_last_error(g)->text, "7") != NULL);
    gn_close(g);
    gn__thread_join(&x.thread);
}

TEST(a_server_that_does_not_greet_ends_at_the_deadline) {
    fake x;
    uint64_t start = gn_now_us();
    gn_ctx *g = open_fake(&x, FAKE_NO_HELLO, 200);
    CHECK_RESULT(gn_status(g), GN_TIMEOUT);
    CHECK(gn_now_us() - start < 1500000);
    gn_close(g);
    gn__thread_join(&x.thread);
}

TEST(an_op_that_the_server_lacks_is_named) {
    fake x;
    gn_ctx *g = open_fake(&x, FAKE_NO_OPS, 1000);
    float y[2];
    CHECK_RESULT(gn_read(gn_silu(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, sizeof y), GN_UNSUPPORTED);
    CHECK(strstr(gn_last_error(g)->text, "silu") != NULL);
    CHECK_STR(gn_last_error(g)->op, "silu");
    /* the connection is fine */
    CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, sizeof y), GN_OK);
    gn_close(g);
    gn__thread_join(&x.thread);
}

/* ---- stopping ---- */

static void stop_soon(void *arg) {
    usleep(100000);
    gn_server_stop((gn_server *)arg);
}

TEST(a_server_that_stops_tells_its_clients) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    gn_ctx *g = open_client(s, "a", (gn_desc){ .deadline_ms = SOON_MS });
    raw *r = raw_counter(s);
    gn__thread t;
    REQUIRE(gn__thread_start(&t, stop_soon, s));
    uint64_t start = gn_now_us();
    CHECK_RESULT(gn_server_run(s), GN_OK);
    gn__thread_join(&t);
    raw_expect(r, 0, GN_CANCELLED, true, "shutting down");
    gn_server_close(s);
    CHECK(gn_now_us() - start < 1000000);
    float y[2];
    gn_result e = gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, sizeof y);
    CHECK(e == GN_CANCELLED || e == GN_DISCONNECTED);
    CHECK_RESULT(gn_read(gn_neg(gn_data(g, GN_F32, GN_SHAPE(2), step_x)), y, sizeof y), GN_DEVICE_LOST);
    gn_close(g);
    raw_close(r);
}

/* A client that does not read does not keep a closing server waiting. */
TEST(a_server_closes_though_a_client_does_not_read) {
    gn_server *s = open_server((gn_server_desc){ .deadline_ms = 20000 });
    raw *r = raw_open(s, "raw");
    uint8_t dims[8] = { 0, 0, 16 }; /* 4 MiB, wanted back ten times and never read */
    gn__msg_slot_put m = { 4, 1, GN_LEAF_STATE, GN__FILL_ZEROS, GN_F32, { dims, 1 }, { NULL, 0 }, { NULL, 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, 2, &m);
    raw_plan(r, 3, 1, counter_part(4, 1, 1 << 20, GN_LEAF_VALUE), 0);
    raw_plan(r, 4, 2, counter_part(4, 1, 1 << 20, GN_LEAF_DATA), 0);
    for (uint32_t i = 0; i < 10; i++) {
        static const uint8_t zeros[1 << 20];
        uint8_t flags = GN__OUT_WANTED;
        gn__msg_step d = { 2, i + 1, 0, 0, { &flags, 1 }, { NULL, 0 }, { NULL, 0 } };
        gn__outbox_fields(&r->link.out, GN__MSG_STEP, 5 + i, &d);
        for (int k = 0; k < 4; k++) {
            uint8_t head[5] = { 0, 0, 0, 16, 0 };
            gn__outbox_put(&r->link.out, head, 5);
            gn__outbox_put(&r->link.out, zeros, sizeof zeros);
        }
        r->link.deadline_ms = 200;
        if (gn__outbox_end(&r->link.out) || gn__outbox_flush(&r->link.out)) break;
    }
    uint64_t start = gn_now_us();
    gn_server_close(s);
    CHECK(gn_now_us() - start < 2000000);
    raw_close(r);
}

TEST(attach_after_stop_is_refused) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    int ends[2];
    make_pair(ends);
    gn_server_stop(s);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "a"), GN_CANCELLED);
    char c;
    CHECK_INT(recv(ends[1], &c, 1, 0), 0); /* the transport was closed */
    close(ends[1]);
    gn_server_close(s);
}

TEST(server_descs_that_make_no_sense_are_refused) {
    gn_server *s = NULL;
    gn_error error;
    gn_server_desc d = { .listen = "none", .devices = "cpu,,cpu" };
    CHECK_RESULT(gn_server_open(&d, &s, &error), GN_BAD_ARGUMENT);
    CHECK(s == NULL && error.text[0]);
    d.devices = "abacus:0";
    CHECK(gn_server_open(&d, &s, &error) != GN_OK);
    CHECK(s == NULL && error.text[0]);
    d.devices = " cpu , null ";
    CHECK_RESULT(gn_server_open(&d, &s, &error), GN_OK);
    CHECK_STR(gn_server_url(s), "");
    CHECK_INT(gn_server_port(s), 0);
    gn_server_close(s);
    gn_server_stop(NULL);
    gn_server_close(NULL);
}

/* ---- memory that runs out ---- */

/* A whole session while the n-th allocation of one side fails, once or for ever: a right answer or a typed error, then
   life. */
static bool run_without_memory(gn_server *s, int whom, long n, bool for_ever) {
    gn_result results[3] = { GN_OK, GN_OK, GN_OK };
    float host[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, y[8] = { 0 };
    __atomic_store_n(&fail_count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&fail_at, n, __ATOMIC_RELAXED);
    __atomic_store_n(&fail_for_ever, for_ever, __ATOMIC_RELAXED);
    __atomic_store_n(&fail_whom, whom, __ATOMIC_SEQ_CST);
    int ends[2];
    make_pair(ends);
    results[0] = gn_server_attach(s, loopback_transport(ends[0]), "a");
    gn_ctx *g = gn_open_transport(&(gn_desc){ .deadline_ms = SOON_MS }, loopback_transport(ends[1]), "");
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(8), host, "w"), st = gn_state(g, GN_F32, GN_SHAPE(8), host, "st");
    gn_tensor sum = gn_add(gn_mul(w, st), gn_data(g, GN_F32, GN_SHAPE(8), host));
    results[1] = gn_read(sum, y, sizeof y);
    gn_assign(st, sum);
    results[2] = gn_step(g);
    __atomic_store_n(&fail_whom, FAIL_NOBODY, __ATOMIC_SEQ_CST);
    if (results[1] == GN_OK) CHECK(y[7] == 72);
    if (results[1] == GN_TIMEOUT || results[1] == GN_INTERNAL || results[1] == GN_BAD_MESSAGE)
        test_fail(__FILE__, __LINE__, "thread %d, allocation %ld%s: %s: %s", whom, n, for_ever ? " and on" : "",
                  gn_result_name(results[1]), gn_last_error(g)->text);
    gn_close(g);
    return results[0] || results[1] || results[2] || __atomic_load_n(&fail_count, __ATOMIC_RELAXED) > n;
}

TEST(sessions_survive_memory_that_runs_out) {
    gn_server *s = open_server((gn_server_desc){ 0 });
    const int whom[2] = { FAIL_MAIN_THREAD, FAIL_OTHER_THREADS };
    for (int i = 0; i < 4; i++) {
        long n = 0;
        while (n < 400 && run_without_memory(s, whom[i / 2], n, i % 2 != 0)) n++;
        if (n < 10 || n == 400) test_fail(__FILE__, __LINE__, "case %d: %ld allocations", i, n);
    }
    check_alive(s);
    gn_server_close(s);
}

static const test_entry tests[] = {
    TEST_ENTRY(remote_equals_local_bit_for_bit),
    TEST_ENTRY(reads_without_waiting_give_what_reads_give),
    TEST_ENTRY(a_read_without_waiting_tells_its_error_when_it_is_waited_for),
    TEST_ENTRY(large_tensors_travel_whole_both_ways),
    TEST_ENTRY(steps_are_pipelined_and_small),
    TEST_ENTRY(large_answers_do_not_block_large_requests),
    TEST_ENTRY(many_clients_at_once_are_all_served),
    TEST_ENTRY(kv_bytes_that_cross_are_counted),
    TEST_ENTRY(null_device_answers_no_value),
    TEST_ENTRY(describe_names_server_and_device),
    TEST_ENTRY(small_weights_count_with_what_keeps_them),
    TEST_ENTRY(idle_weights_go_after_their_time),
    TEST_ENTRY(a_failed_step_leaves_the_session_alive),
    TEST_ENTRY(more_than_the_memory_limit_is_a_limit),
    TEST_ENTRY(what_does_not_fit_is_refused_and_the_session_goes_on),
    TEST_ENTRY(plans_recorded_by_a_server_are_made_by_the_next),
    TEST_ENTRY(plans_are_recorded_after_they_have_run_and_without_keys),
    TEST_ENTRY(plans_are_made_beside_the_first_clients_within_a_budget),
    TEST_ENTRY(unknown_device_is_refused),
    TEST_ENTRY(sessions_are_limited_and_places_come_free),
    TEST_ENTRY(a_client_that_vanishes_frees_its_memory),
    TEST_ENTRY(weights_are_uploaded_once_a_tenant),
    TEST_ENTRY(equal_weights_travel_once),
    TEST_ENTRY(a_server_logs_labels_and_tells_what_it_counts),
    TEST_ENTRY(weights_count_as_bytes_of_the_device),
    TEST_ENTRY(poisoned_weights_are_refused),
    TEST_ENTRY(weights_of_others_are_not_there),
    TEST_ENTRY(an_upload_may_begin_again),
    TEST_ENTRY(a_large_weight_is_what_its_digest_says_or_refused),
    TEST_ENTRY(weights_hashed_by_several_threads_have_their_own_digests),
    TEST_ENTRY(weights_that_come_one_after_another_are_each_told_right_or_wrong),
    TEST_ENTRY(a_wrong_piece_of_a_large_weight_ends_the_session),
    TEST_ENTRY(weights_packed_by_several_threads_arrive_whole),
    TEST_ENTRY(the_largest_weights_are_hashed_first),
    TEST_ENTRY(sends_tell_what_a_byte_costs),
    TEST_ENTRY(weight_pieces_out_of_place_are_refused),
    TEST_ENTRY(weight_store_is_bounded),
    TEST_ENTRY(raw_client_can_work),
    TEST_ENTRY(other_versions_are_told_both_ranges),
    TEST_ENTRY(keys_are_changed_only_where_both_ends_can),
    TEST_ENTRY(nothing_is_read_before_hello),
    TEST_ENTRY(a_second_hello_is_refused),
    TEST_ENTRY(a_garbled_frame_ends_that_session_alone),
    TEST_ENTRY(a_replayed_or_skipped_step_does_not_run),
    TEST_ENTRY(a_plan_id_serves_once),
    TEST_ENTRY(a_plan_of_another_hash_is_refused),
    TEST_ENTRY(plans_over_wrong_slots_are_refused),
    TEST_ENTRY(what_was_queued_behind_a_failed_step_does_not_run),
    TEST_ENTRY(a_queued_step_that_fails_is_told_and_changes_nothing),
    TEST_ENTRY(leaves_and_updates_that_are_not_of_their_slot_are_refused),
    TEST_ENTRY(slots_of_another_session_are_not_there),
    TEST_ENTRY(a_plan_over_a_dropped_slot_does_not_run),
    TEST_ENTRY(a_slot_is_not_put_twice),
    TEST_ENTRY(slots_of_no_valid_type_or_fill_are_refused),
    TEST_ENTRY(values_are_checked),
    TEST_ENTRY(kept_ids_at_their_edges_stay_with_good_steps_and_go_with_failed_ones),
    TEST_ENTRY(a_value_of_another_type_is_refused),
    TEST_ENTRY(steps_that_do_not_fit_their_plan_are_refused),
    TEST_ENTRY(graph_messages_that_are_no_graphs_are_refused),
    TEST_ENTRY(a_small_request_passes_a_large_one),
    TEST_ENTRY(an_error_does_not_pass_an_earlier_answer),
    TEST_ENTRY(a_client_takes_large_answers_before_it_sends_more),
    TEST_ENTRY(a_message_that_was_cancelled_does_not_run),
    TEST_ENTRY(a_step_is_taken_while_the_one_before_it_runs),
    TEST_ENTRY(runs_that_nobody_waits_for_any_more_end),
    TEST_ENTRY(a_large_step_waits_for_memory_that_results_hold),
    TEST_ENTRY(a_step_too_large_to_come_is_refused_alone),
    TEST_ENTRY(steps_on_rough_links_run_once_and_in_order),
    TEST_ENTRY(short_answers_do_not_stop_a_large_step),
    TEST_ENTRY(slow_messages_end_at_the_deadline),
    TEST_ENTRY(credentials_are_checked_before_anything_else),
    TEST_ENTRY(strangers_do_not_crowd_out_a_client),
    TEST_ENTRY(any_message_with_any_integer_at_its_edges_is_survived),
    TEST_ENTRY(answers_in_pieces_are_taken_as_they_come_and_checked),
    TEST_ENTRY(steps_that_are_here_run_before_the_first_is_waited_for),
    TEST_ENTRY(small_steps_are_sent_before_large_results_have_come),
    TEST_ENTRY(look_tells_of_all_tenants_what_they_did),
    TEST_ENTRY(query_tells_a_tenant_of_its_own_sessions_alone),
    TEST_ENTRY(query_of_what_is_no_server_or_an_old_one_is_an_error),
    TEST_ENTRY(u64_is_refused_by_name_where_the_server_does_not_know_it),
    TEST_ENTRY(more_sessions_than_are_asked_for_are_counted),
    TEST_ENTRY(tables_of_another_version_are_read),
    TEST_ENTRY(drained_server_takes_no_session_and_ends_with_the_last),
    TEST_ENTRY(large_steps_and_large_results_at_once_do_not_block),
    TEST_ENTRY(a_fake_that_behaves_is_believed),
    TEST_ENTRY(a_silent_server_ends_at_the_deadline),
    TEST_ENTRY(a_server_that_dies_mid_step_is_an_error_at_once),
    TEST_ENTRY(a_server_that_says_why_is_quoted),
    TEST_ENTRY(an_answer_to_no_request_is_refused),
    TEST_ENTRY(an_answer_that_is_too_long_is_refused),
    TEST_ENTRY(an_answer_that_is_too_short_is_refused),
    TEST_ENTRY(noise_from_a_server_is_refused),
    TEST_ENTRY(a_huge_frame_from_a_server_is_refused),
    TEST_ENTRY(an_answer_to_no_question_is_refused),
    TEST_ENTRY(a_client_message_from_a_server_is_refused),
    TEST_ENTRY(more_answers_than_requests_are_refused),
    TEST_ENTRY(an_error_that_is_none_is_refused),
    TEST_ENTRY(a_server_of_another_version_is_refused),
    TEST_ENTRY(a_server_that_does_not_greet_ends_at_the_deadline),
    TEST_ENTRY(an_op_that_the_server_lacks_is_named),
    TEST_ENTRY(a_server_that_stops_tells_its_clients),
    TEST_ENTRY(a_server_closes_though_a_client_does_not_read),
    TEST_ENTRY(attach_after_stop_is_refused),
    TEST_ENTRY(server_descs_that_make_no_sense_are_refused),
    TEST_ENTRY(sessions_survive_memory_that_runs_out),
};

int main(int argc, char **argv) {
    is_main_thread = true;
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
