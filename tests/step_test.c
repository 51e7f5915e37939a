/* Recorded steps: equal bits and states with the same step built anew, on this CPU, through a server and over two
 * devices; what a run costs and sends; what ends them; wrong use. Built steps beside the steps before them.
 * gn_desc.batch_invariant through a server.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include <pthread.h>

#include "loopback.h"

enum { DIM = 32, HEADS = 2, HEAD = DIM / HEADS, CONTEXT = 16, VOCABULARY = 50, STEPS = 12 };

/* ---- a small decoder with a cache, a count of its tokens and noise ---- */

typedef struct decoder {
    gn_ctx *g;
    gn_tensor table, w[4], cache[2], count, token, position, next, logits;
} decoder;

static float weights[VOCABULARY * DIM];

/* This CPU and a server's. */
static gn_ctx *open_two(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
    CHECK_RESULT(gn_server_attach(loopback_server(), loopback_transport(ends[0]), "test"), GN_OK);
    gn_transport t = loopback_transport(ends[1]);
    return gn_open_transports(&(gn_desc){ .devices = "cpu", .keep_placement = true }, &t, (const char *[]){ "cpu" }, 1);
}

static gn_ctx *open_on(const char *where) {
    gn_ctx *g = strcmp(where, "two") == 0      ? open_two()
                : strcmp(where, "remote") == 0 ? loopback_open(NULL)
                                               : gn_open(&(gn_desc){ .devices = where });
    CHECK_RESULT(gn_status(g), GN_OK);
    return g;
}

static void decoder_open(decoder *d, const char *where) {
    *d = (decoder){ .g = open_on(where) };
    for (int i = 0; i < VOCABULARY * DIM; i++) weights[i] = (float)((i * 37) % 101 - 50) * 0.01f;
    d->table = gn_weight(d->g, GN_F32, GN_SHAPE(VOCABULARY, DIM), weights, "table");
    for (int i = 0; i < 4; i++) d->w[i] = gn_weight(d->g, GN_F32, GN_SHAPE(DIM, DIM), weights + 7 * i, "w");
    for (int i = 0; i < 2; i++) d->cache[i] = gn_state(d->g, GN_F32, GN_SHAPE(1, HEADS, CONTEXT, HEAD), NULL, "cache");
    d->count = gn_state(d->g, GN_I64, GN_SCALAR, NULL, "count");
}

static gn_tensor heads(gn_tensor x) { return gn_reshape(x, GN_SHAPE(1, HEADS, 1, HEAD)); }

static void decoder_build(decoder *d, const int32_t *token, int32_t position) {
    d->token = gn_data(d->g, GN_I32, GN_SHAPE(1), token);
    d->position = gn_scalar(d->g, GN_I32, position);
    bool two = gn_device_count(d->g) > 1;
    if (two) CHECK_RESULT(gn_on(d->g, "0"), GN_OK);
    gn_tensor x = gn_embedding(d->table, d->token);
    gn_tensor k = gn_kv_append(d->cache[0], heads(gn_matmul(x, d->w[0])), d->position),
              v = gn_kv_append(d->cache[1], heads(gn_matmul(x, d->w[1])), d->position);
    gn_attention_desc a = { .causal = true, .length = gn_add_c(d->position, 1) };
    x = gn_add(x, gn_reshape(gn_attention(heads(gn_matmul(x, d->w[2])), k, v, &a), GN_SHAPE(1, DIM)));
    x = gn_add(x, gn_mul_c(gn_random_normal(d->g, GN_F32, GN_SHAPE(1, DIM)), 0.01));
    if (two) CHECK_RESULT(gn_on(d->g, "1"), GN_OK);
    gn_assign(d->count, gn_add_c(d->count, 1));
    d->logits = gn_matmul(gn_gelu(gn_matmul(x, d->w[3])), gn_transpose(d->table, 0, 1));
    if (two) CHECK_RESULT(gn_on(d->g, "0"), GN_OK);
    d->next = gn_cast(gn_reshape(gn_argmax(d->logits, GN_AXES(1), false), GN_SHAPE(1)), GN_I32);
}

typedef struct seen {
    int32_t token;
    float logits[VOCABULARY];
} seen;

static const size_t seen_bytes[2] = { sizeof(int32_t), sizeof(float) * VOCABULARY };

static void built_once(decoder *d, int32_t token, int32_t position, seen *out) {
    decoder_build(d, &token, position);
    CHECK_RESULT(gn_read_many((gn_tensor[]){ d->next, d->logits }, 2, (void *[]){ &out->token, out->logits },
                              seen_bytes),
                 GN_OK);
}

static void run_built(decoder *d, seen *out, int n) {
    for (int i = 0; i < n; i++) {
        built_once(d, i ? out[i - 1].token : 3, i, &out[i]);
        CHECK_RESULT(gn_step(d->g), GN_OK);
    }
}

static gn_recording decoder_record(decoder *d) {
    int32_t token = 3;
    gn_recording s;
    decoder_build(d, &token, 0);
    CHECK_RESULT(gn_step_record(d->g, (gn_tensor[]){ d->token, d->position }, 2, (gn_tensor[]){ d->next, d->logits }, 2,
                                &s),
                 GN_OK);
    return s;
}

static gn_result run_once(gn_recording s, int32_t token, int32_t position, seen *out) {
    CHECK_RESULT(gn_step_give(s, 0, &token, sizeof token), GN_OK);
    CHECK_RESULT(gn_step_give(s, 1, &position, sizeof position), GN_OK);
    return gn_step_run(s, (void *[]){ &out->token, out->logits }, seen_bytes, NULL);
}

static void run_recorded(gn_recording s, seen *out, int n) {
    for (int i = 0; i < n; i++) CHECK_RESULT(run_once(s, i ? out[i - 1].token : 3, i, &out[i]), GN_OK);
}

static void check_equal_on(const char *where) {
    decoder built, recorded;
    seen a[STEPS] = { { 0 } }, b[STEPS] = { { 0 } };
    float cache[2][HEADS * CONTEXT * HEAD];
    int64_t count[2] = { 0 };
    gn_stats before, after;
    decoder_open(&built, where);
    decoder_open(&recorded, where);
    run_built(&built, a, STEPS);
    gn_recording s = decoder_record(&recorded);
    gn_get_stats(recorded.g, &before);
    run_recorded(s, b, STEPS);
    gn_get_stats(recorded.g, &after);
    for (int i = 0; i < gn_device_count(recorded.g); i++) {
        gn_stats of;
        CHECK(gn_get_device_stats(recorded.g, i, &of) == GN_OK && of.kernels_run + of.frames_up >= STEPS);
    }
    for (int i = 0; i < STEPS; i++) CHECK(a[i].token == b[i].token && !memcmp(a[i].logits, b[i].logits, seen_bytes[1]));
    CHECK(memcmp(a[0].logits, a[1].logits, seen_bytes[1]) != 0);
    CHECK_INT((int64_t)(after.nodes_built - before.nodes_built), 0);
    CHECK_INT((int64_t)(after.plans_made - before.plans_made), 0);
    CHECK_INT((int64_t)(after.steps_run - before.steps_run), STEPS);
    for (int i = 0; i < 2; i++) {
        const decoder *d = i ? &recorded : &built;
        CHECK_RESULT(gn_read(d->cache[1], cache[i], sizeof cache[i]), GN_OK);
        CHECK_RESULT(gn_read(d->count, &count[i], sizeof count[i]), GN_OK);
        CHECK_INT(count[i], STEPS);
    }
    CHECK(memcmp(cache[0], cache[1], sizeof cache[0]) == 0);
    CHECK_RESULT(gn_recording_close(s), GN_OK);
    gn_close(built.g);
    gn_close(recorded.g);
}

TEST(recorded_steps_compute_the_bits_of_built_ones_on_this_cpu) { check_equal_on("cpu"); }
TEST(recorded_steps_compute_the_bits_of_built_ones_through_a_server) { check_equal_on("remote"); }
TEST(recorded_steps_compute_the_bits_of_built_ones_over_two_devices) { check_equal_on("two"); }

/* ---- what a run sends ---- */

TEST(a_run_sends_one_small_frame) {
    decoder d;
    seen out[STEPS];
    gn_stats before, after;
    decoder_open(&d, "remote");
    gn_recording s = decoder_record(&d);
    run_recorded(s, out, 2);
    gn_get_stats(d.g, &before);
    run_recorded(s, out, STEPS);
    gn_get_stats(d.g, &after);
    CHECK_INT((int64_t)(after.frames_up - before.frames_up), STEPS);
    CHECK((after.socket_bytes_up - before.socket_bytes_up) / STEPS <= 128);
    CHECK_INT((int64_t)(after.tensor_bytes_up - before.tensor_bytes_up), STEPS * 16); /* token, position, counter */
    gn_close(d.g);
}

/* ---- beside ordinary steps; results that stay on the device ---- */

TEST(a_result_stays_on_the_device_until_the_next_step) {
    decoder d;
    seen out, plain;
    float twice[VOCABULARY];
    for (int k = 0; k < 2; k++) {
        decoder_open(&d, k ? "remote" : "cpu");
        gn_recording s = decoder_record(&d);
        CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_OK);
        gn_tensor kept = gn_recording_result(s, 1);
        gn_info info;
        CHECK_RESULT(gn_describe(kept, &info), GN_OK);
        CHECK(info.computed && info.bytes == sizeof twice);
        CHECK_RESULT(gn_read_many((gn_tensor[]){ gn_mul_c(kept, 2), kept }, 2, (void *[]){ twice, out.logits },
                                  (size_t[]){ sizeof twice, sizeof out.logits }),
                     GN_OK);
        CHECK(twice[5] == 2 * out.logits[5] && out.logits[5] != 0);
        CHECK_RESULT(gn_step(d.g), GN_OK);
        CHECK_RESULT(gn_read(kept, twice, sizeof twice), GN_STALE_HANDLE);
        CHECK_RESULT(gn_describe(gn_recording_result(s, 1), &info), GN_STALE_HANDLE);
        CHECK_RESULT(run_once(s, 3, 1, &plain), GN_OK);
        CHECK_RESULT(gn_describe(gn_recording_result(s, 1), &info), GN_STALE_HANDLE); /* it was copied */
        gn_close(d.g);
    }
}

TEST(ordinary_steps_go_between_runs) {
    decoder built, recorded;
    seen a[STEPS], b[STEPS];
    decoder_open(&built, "cpu");
    decoder_open(&recorded, "cpu");
    gn_recording s = decoder_record(&recorded);
    for (int i = 0; i < STEPS; i++) {
        int32_t token = i;
        built_once(&built, token, i, &a[i]);
        CHECK_RESULT(gn_step(built.g), GN_OK);
        if (i % 3 == 2) built_once(&recorded, token, i, &b[i]); /* the next run ends this step */
        else CHECK_RESULT(run_once(s, token, i, &b[i]), GN_OK);
        if (i % 3 == 1) CHECK_RESULT(gn_step(recorded.g), GN_OK);
        CHECK(memcmp(a[i].logits, b[i].logits, seen_bytes[1]) == 0);
    }
    gn_close(built.g);
    gn_close(recorded.g);
}

TEST(a_run_ends_the_step_that_is_being_built) {
    gn_ctx *g = open_on("cpu");
    gn_tensor a = gn_state(g, GN_I32, GN_SCALAR, NULL, "a"), version = gn_assign(a, gn_add_c(a, 10));
    gn_recording s;
    int32_t value = 0;
    CHECK_RESULT(gn_step_record(g, NULL, 0, &version, 1, &s), GN_OK);
    CHECK_RESULT(gn_read(a, &value, sizeof value), GN_OK);
    CHECK_INT(value, 0); /* recording runs nothing */
    gn_assign(a, gn_add_c(a, 1));
    CHECK_RESULT(gn_step_run(s, (void *[]){ &value }, (size_t[]){ sizeof value }, NULL), GN_OK);
    CHECK_INT(value, 11);
    CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_OK);
    CHECK_RESULT(gn_read(gn_recording_result(s, 0), &value, sizeof value), GN_OK); /* the state */
    CHECK_INT(value, 21);
    gn_assign(gn_assign(a, gn_like(a, 1)), gn_like(gn_cast(a, GN_F32), 2)); /* refused */
    CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_BAD_DTYPE);
    CHECK_RESULT(gn_read(a, &value, sizeof value), GN_OK);
    CHECK_INT(value, 21);
    gn_close(g);
}

TEST(runs_are_queued_and_waited_for) {
    gn_ctx *g = open_on("remote");
    gn_tensor a = gn_state(g, GN_I32, GN_SCALAR, NULL, "a"), more = gn_scalar(g, GN_I32, 0),
              version = gn_assign(a, gn_add(a, more));
    gn_recording s;
    int32_t out[40] = { 0 }, want = 0;
    uint64_t tickets[40];
    CHECK_RESULT(gn_step_record(g, &more, 1, &version, 1, &s), GN_OK);
    for (int32_t i = 0; i < 40; i++) {
        CHECK_RESULT(gn_step_give(s, 0, &i, sizeof i), GN_OK);
        CHECK_RESULT(gn_step_run(s, (void *[]){ &out[i] }, (size_t[]){ sizeof *out }, &tickets[i]), GN_OK);
    }
    for (int32_t i = 0; i < 40; i++) {
        CHECK_RESULT(gn_wait(g, tickets[i]), GN_OK);
        CHECK_INT(out[i], want += i);
    }
    gn_close(g);
}

/* ---- plans ---- */

TEST(a_recording_keeps_its_plan) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .plan_memory = 1 });
    gn_tensor x = gn_scalar(g, GN_F32, 1), y = gn_mul_c(gn_add_c(x, 1), 3);
    gn_recording s;
    gn_stats stats;
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, &s), GN_OK);
    for (int i = 0; i < 300; i++) {
        float out = 0, value = (float)i;
        CHECK_RESULT(gn_read(gn_add_c(gn_full(g, GN_F32, GN_SCALAR, i), i), &out, sizeof out), GN_OK);
        CHECK(out == 2 * value);
        CHECK_RESULT(gn_step_give(s, 0, &value, sizeof value), GN_OK);
        CHECK_RESULT(gn_step_run(s, (void *[]){ &out }, (size_t[]){ sizeof out }, NULL), GN_OK);
        CHECK(out == 3 * (value + 1));
    }
    gn_get_stats(g, &stats);
    CHECK(stats.plans_dropped > 100);
    CHECK_RESULT(gn_recording_close(s), GN_OK);
    gn_close(g);
}

/* ---- what fails ---- */

TEST(a_failed_run_changes_no_state_and_the_next_goes_on) {
    for (int k = 0; k < 2; k++) {
        decoder d;
        seen out;
        int64_t count = 0;
        decoder_open(&d, k ? "remote" : "cpu");
        gn_recording s = decoder_record(&d);
        CHECK_RESULT(run_once(s, 3, 0, &out), GN_OK);
        CHECK_RESULT(run_once(s, 3, CONTEXT, &out), GN_INDEX_OUT_OF_RANGE);
        CHECK(strcmp(gn_last_error(d.g)->op, "kv_append") == 0 && gn_last_error(d.g)->line > 0);
        CHECK(strstr(gn_last_error(d.g)->file, "step_test.c") != NULL);
        CHECK_RESULT(run_once(s, VOCABULARY, 1, &out), GN_INDEX_OUT_OF_RANGE);
        CHECK_RESULT(gn_read(d.count, &count, sizeof count), GN_OK);
        CHECK_INT(count, 1);
        CHECK_RESULT(run_once(s, 3, 1, &out), GN_OK);
        CHECK_RESULT(gn_read(d.count, &count, sizeof count), GN_OK);
        CHECK_INT(count, 2);
        gn_close(d.g);
    }
}

static void *cancel_soon(void *g) {
    nanosleep(&(struct timespec){ 0, 60000000 }, NULL);
    gn_cancel(g);
    return NULL;
}

TEST(a_run_is_cancelled_and_the_next_goes_on) {
    enum { SIDE = 1024, PRODUCTS = 60 };
    static float x[SIDE * SIDE];
    for (int k = 0; k < 2; k++) {
        gn_ctx *g = open_on(k ? "remote" : "cpu");
        gn_tensor count = gn_state(g, GN_I32, GN_SCALAR, NULL, "count"),
                  w = gn_weight(g, GN_F32, GN_SHAPE(SIDE, SIDE), x, "w"),
                  rows = gn_data(g, GN_F32, GN_SHAPE(SIDE, SIDE), x), y = rows;
        gn_recording s;
        int32_t value = 5;
        pthread_t other;
        for (int i = 0; i < PRODUCTS; i++) y = gn_matmul(y, w);
        y = gn_sum(y, GN_ALL_AXES, false);
        gn_assign(count, gn_add_c(count, 1));
        CHECK_RESULT(gn_step_record(g, NULL, 0, &y, 1, &s), GN_OK);
        float sum = 1;
        pthread_create(&other, NULL, cancel_soon, g);
        CHECK_RESULT(gn_step_run(s, (void *[]){ &sum }, (size_t[]){ sizeof sum }, NULL), GN_CANCELLED);
        pthread_join(other, NULL);
        CHECK_RESULT(gn_read(count, &value, sizeof value), GN_OK);
        CHECK_INT(value, 0);
        gn_close(g);
    }
}

TEST(a_lost_server_is_told_by_the_run) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
    CHECK_RESULT(gn_server_attach(loopback_server(), loopback_transport(ends[0]), "test"), GN_OK);
    gn_ctx *g = gn_open_transport(NULL, loopback_transport(ends[1]), "cpu");
    gn_tensor x = gn_scalar(g, GN_F32, 1), y = gn_add_c(x, 1);
    gn_recording s;
    float out = 0;
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, &s), GN_OK);
    CHECK_RESULT(gn_step_run(s, (void *[]){ &out }, (size_t[]){ sizeof out }, NULL), GN_OK);
    CHECK(out == 2);
    shutdown(ends[1], SHUT_RDWR);
    CHECK_RESULT(gn_step_run(s, (void *[]){ &out }, (size_t[]){ sizeof out }, NULL), GN_DISCONNECTED);
    CHECK_RESULT(gn_step_run(s, (void *[]){ &out }, (size_t[]){ sizeof out }, NULL), GN_DEVICE_LOST);
    CHECK_RESULT(gn_recording_close(s), GN_OK);
    gn_close(g);
}

/* ---- wrong use ---- */

TEST(what_cannot_be_recorded_is_refused_and_the_step_stands) {
    gn_ctx *g = open_on("cpu"), *other = open_on("cpu");
    gn_tensor a = gn_state(g, GN_F32, GN_SCALAR, NULL, "a"), x = gn_scalar(g, GN_F32, 2), y = gn_add(a, x),
              unused = gn_scalar(g, GN_F32, 1), foreign = gn_scalar(other, GN_F32, 1),
              wrong = gn_add(gn_full(g, GN_F32, GN_SHAPE(2), 0), gn_full(g, GN_F32, GN_SHAPE(3), 0));
    gn_recording s = { g, 9, 9 };
    float out = 0;
    CHECK_RESULT(gn_step_record(NULL, &x, 1, &y, 1, &s), GN_BAD_ARGUMENT);
    CHECK(!s.ctx && !s.gen);
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_record(g, NULL, 1, &y, 1, &s), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_record(g, &x, -1, &y, 1, &s), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_record(g, &x, 1, NULL, 0, &s), GN_BAD_ARGUMENT); /* nothing to run */
    CHECK_RESULT(gn_step_record(g, &a, 1, &y, 1, &s), GN_BAD_ARGUMENT);   /* a state is not given */
    CHECK_RESULT(gn_step_record(g, &x, 1, &a, 1, &s), GN_BAD_ARGUMENT);   /* nothing computes it */
    CHECK_RESULT(gn_step_record(g, (gn_tensor[]){ x, x }, 2, &y, 1, &s), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_record(g, &unused, 1, &y, 1, &s), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_record(g, &foreign, 1, &y, 1, &s), GN_MIXED_CONTEXTS);
    CHECK_RESULT(gn_step_record(g, &x, 1, &wrong, 1, &s), GN_BAD_SHAPE);
    CHECK_RESULT(gn_read(y, &out, sizeof out), GN_OK);
    CHECK(out == 2);
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, &s), GN_BAD_ARGUMENT); /* computed already */
    CHECK(strstr(gn_last_error(g)->text, "computed already") != NULL && !s.gen);
    gn_close(g);
    gn_close(other);
}

TEST(runs_answer_misuse) {
    gn_ctx *g = open_on("cpu");
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(2), (float[]){ 1, 2 }, "the weight"), x = gn_scalar(g, GN_F32, 2),
              y = gn_mul(w, x);
    gn_recording s, none = { NULL, 0, 0 };
    gn_info info;
    float out[2];
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, &s), GN_OK);
    CHECK_RESULT(gn_step_give(s, 0, out, 8), GN_BAD_SIZE);
    CHECK_RESULT(gn_step_give(s, 0, NULL, 4), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_give(s, 1, out, 4), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_give(s, -1, out, 4), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_give(none, 0, out, 4), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_run(s, (void *[]){ out }, NULL, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_run(s, (void *[]){ out }, (size_t[]){ 4 }, NULL), GN_BAD_SIZE);
    CHECK_RESULT(gn_step_run(none, NULL, NULL, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_recording_result(s, 0), &info), GN_STALE_HANDLE); /* nothing has run */
    CHECK_RESULT(gn_describe(gn_recording_result(s, 1), &info), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_recording_result(none, 0), &info), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_step_run(s, (void *[]){ out }, (size_t[]){ 8 }, NULL), GN_OK);
    CHECK(out[0] == 2 && out[1] == 4);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_release(w), GN_OK);
    CHECK_RESULT(gn_step_run(s, (void *[]){ out }, (size_t[]){ 8 }, NULL), GN_STALE_HANDLE);
    CHECK(strcmp(gn_last_error(g)->label, "the weight") == 0);
    CHECK_RESULT(gn_recording_close(s), GN_OK);
    CHECK_RESULT(gn_recording_close(s), GN_STALE_HANDLE);
    CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_STALE_HANDLE);
    gn_close(g);
    CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_CLOSED_CONTEXT);
    CHECK_RESULT(gn_recording_close(s), GN_CLOSED_CONTEXT);
    g = open_on("cpu"); /* takes the control block again */
    CHECK_RESULT(gn_step_run(s, NULL, NULL, NULL), GN_CLOSED_CONTEXT);
    gn_close(g);
}

TEST(the_null_executor_runs_recorded_steps_without_values) {
    gn_ctx *g = open_on("null");
    gn_tensor x = gn_scalar(g, GN_F32, 2), y = gn_add_c(x, 1);
    gn_recording s;
    float out;
    CHECK_RESULT(gn_step_record(g, &x, 1, &y, 1, &s), GN_OK);
    CHECK_RESULT(gn_step_run(s, (void *[]){ &out }, (size_t[]){ sizeof out }, NULL), GN_NO_VALUE);
    gn_close(g);
}

/* ---- built steps that begin, or are, as the one before: what is kept of it changes no value ---- */

enum { CODE = 24, WIDE = 3, SLOTS = 2 };
static int pick(int n) { return (int)test_random_int(0, n - 1); }

typedef struct instruction {
    int kind, a, b, number;
} instruction;
typedef struct machine {
    gn_ctx *g;
    gn_tensor state[SLOTS], weight[SLOTS], version[SLOTS]; /* version: to build on in this step */
    int32_t states[SLOTS][WIDE], next[SLOTS][WIDE], weights[SLOTS][WIDE];
    int wide[SLOTS]; /* elements of a weight: 1 or WIDE */
    gn_tensor node[CODE];
    int32_t value[CODE][WIDE], data[CODE][WIDE];
    int first, n;
} machine;

static void machine_weight(machine *m, int i) {
    if (m->weight[i].ctx) CHECK_RESULT(gn_release(m->weight[i]), GN_OK);
    m->wide[i] = pick(2) ? WIDE : 1;
    for (int k = 0; k < WIDE; k++) m->weights[i][k] = k < m->wide[i] ? pick(100) : m->weights[i][0];
    m->weight[i] = gn_weight(m->g, GN_I32, GN_SHAPE(m->wide[i]), m->weights[i], "w");
}

static void machine_put(machine *m, gn_tensor t, const int32_t *value) {
    m->node[m->n] = t;
    memcpy(m->value[m->n++], value, sizeof *m->value);
}

/* A read takes the assigned versions too; what was built before is not built on after it. */
static void machine_read(machine *m, int at) {
    int32_t out[WIDE];
    gn_info info;
    if (m->first == m->n) return;
    gn_tensor t = m->node[m->first + at % (m->n - m->first)];
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    CHECK_RESULT(gn_read(t, out, info.bytes), GN_OK);
    for (size_t k = 0; k < info.bytes / 4; k++)
        if (!CHECK_INT(out[k], m->value[m->first + at % (m->n - m->first)][k])) return;
    memcpy(m->states, m->next, sizeof m->next);
    for (int i = 0; i < SLOTS; i++) m->version[i] = m->state[i];
    m->first = m->n;
    if (pick(6) == 0) machine_weight(m, pick(SLOTS));
}

static void machine_run_one(machine *m, instruction c) {
    int have = m->n - m->first, slot = c.number % SLOTS;
    int32_t y[WIDE];
    if (c.kind < 3 || have == 0) { /* data, a state, a weight */
        for (int k = 0; k < WIDE; k++) m->data[m->n][k] = pick(1000);
        if (c.kind == 1) machine_put(m, m->version[slot], m->next[slot]);
        else if (c.kind == 2) machine_put(m, m->weight[slot], m->weights[slot]);
        else machine_put(m, gn_data(m->g, GN_I32, GN_SHAPE(WIDE), m->data[m->n]), m->data[m->n]);
        return;
    }
    int a = m->first + c.a % have, b = m->first + c.b % have;
    for (int k = 0; k < WIDE; k++) {
        uint32_t p = (uint32_t)m->value[a][k], q = (uint32_t)m->value[b][k], old = (uint32_t)m->next[slot][k];
        y[k] = (int32_t)(c.kind == 3 ? p + q : c.kind == 4 ? p * q : c.kind == 5 ? p - (uint32_t)c.number : p + old);
    }
    if (c.kind == 3) machine_put(m, gn_add(m->node[a], m->node[b]), y);
    else if (c.kind == 4) machine_put(m, gn_mul(m->node[a], m->node[b]), y);
    else if (c.kind == 5) machine_put(m, gn_sub_c(m->node[a], c.number), y);
    else if (c.kind == 6) {
        m->version[slot] = gn_assign(m->version[slot], gn_add(m->node[a], m->version[slot]));
        memcpy(m->next[slot], y, sizeof y);
        machine_put(m, m->version[slot], y);
    } else if (c.kind == 7) machine_read(m, c.a);
    else gn_label(m->node[a], c.number % 2 ? "one" : "other");
}

static void machine_check(const char *where) {
    machine m = { .g = open_on(where) };
    instruction code[CODE] = { { 0 } };
    for (int i = 0; i < SLOTS; i++) {
        machine_weight(&m, i);
        m.version[i] = m.state[i] = gn_state(m.g, GN_I32, GN_SHAPE(WIDE), NULL, "state");
    }
    for (int step = 0, n = test_rounds(1500); step < n; step++) {
        int changes = step == 0 ? CODE : pick(3) ? 0 : pick(4);
        for (int i = 0; i < changes; i++)
            code[step ? pick(CODE) : i] = (instruction){ pick(pick(3) ? 7 : 9), pick(CODE), pick(CODE), pick(5) };
        if (pick(12) == 0) machine_weight(&m, pick(SLOTS));
        m.first = m.n = 0;
        for (int i = 0; i < CODE; i++) machine_run_one(&m, code[i]);
        if (pick(4)) machine_read(&m, step ? code[0].a : 0);
        if (!CHECK_RESULT(gn_step(m.g), GN_OK)) break;
        memcpy(m.states, m.next, sizeof m.next);
        for (int i = 0; i < SLOTS; i++) m.version[i] = m.state[i];
    }
    for (int i = 0; i < SLOTS; i++) {
        int32_t out[WIDE];
        CHECK_RESULT(gn_read(m.state[i], out, sizeof out), GN_OK);
        for (int k = 0; k < WIDE; k++) CHECK_INT(out[k], m.states[i][k]);
    }
    gn_stats s;
    gn_get_stats(m.g, &s);
    CHECK(s.plans_found > s.plans_made);
    gn_close(m.g);
}

TEST(steps_like_those_before_them_compute_their_own_values_on_this_cpu) { machine_check("cpu"); }
TEST(steps_like_those_before_them_compute_their_own_values_through_a_server) { machine_check("remote"); }

TEST(an_error_tells_the_label_of_this_step) {
    gn_ctx *g = open_on("cpu");
    const float rows[4] = { 1, 2, 3, 4 };
    gn_tensor table = gn_weight(g, GN_F32, GN_SHAPE(4, 1), rows, "rows");
    const char *const labels[4] = { "first", NULL, "third", "fourth" };
    for (int32_t i = 0; i < 4; i++) {
        int32_t at = i == 3 ? 9 : i;
        float out;
        gn_tensor y = gn_embedding(table, gn_data(g, GN_I32, GN_SHAPE(1), &at));
        if (labels[i]) gn_label(y, labels[i]);
        CHECK_RESULT(gn_read(y, &out, sizeof out), i < 3 ? GN_OK : GN_INDEX_OUT_OF_RANGE);
        if (i == 3) CHECK_STR(gn_last_error(g)->label, "fourth");
        gn_step(g);
    }
    gn_close(g);
}

TEST(a_server_keeps_rows_apart_from_batches_too) {
    enum { K = 200, M = 70, ROWS = 9 };
    static float w[K * M], x[ROWS * K], all[ROWS * M], one[M];
    gn_device_info info;
    for (int i = 0; i < K * M; i++) w[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < ROWS * K; i++) x[i] = (float)test_random_real(-1, 1);
    gn_ctx *g = loopback_open(&(gn_desc){ .batch_invariant = true });
    CHECK_RESULT(gn_status(g), GN_OK);
    CHECK_RESULT(gn_get_device(g, &info), GN_OK);
    CHECK(strstr(info.identity, "batch invariant") != NULL);
    gn_tensor weight = gn_weight(g, GN_F32, GN_SHAPE(K, M), w, "w");
    CHECK_RESULT(gn_read(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(ROWS, K), x), weight), all, sizeof all), GN_OK);
    for (int i = 0; i < ROWS; i++) {
        gn_tensor row = gn_data(g, GN_F32, GN_SHAPE(1, K), x + i * K);
        CHECK_RESULT(gn_read(gn_matmul(row, weight), one, sizeof one), GN_OK);
        CHECK(memcmp(one, all + i * M, sizeof one) == 0);
        gn_step(g);
    }
    gn_close(g);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
    CHECK_RESULT(gn_server_attach(loopback_server(), loopback_transport(ends[0]), "test"), GN_OK);
    gn_transport t = loopback_transport(ends[1]);
    g = gn_open_transports(&(gn_desc){ .devices = "cpu", .batch_invariant = true }, &t, (const char *[]){ "cpu" }, 1);
    CHECK_RESULT(gn_status(g), GN_UNSUPPORTED);
    CHECK(strstr(gn_last_error(g)->text, "one device") != NULL);
    gn_close(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(recorded_steps_compute_the_bits_of_built_ones_on_this_cpu),
        TEST_ENTRY(recorded_steps_compute_the_bits_of_built_ones_through_a_server),
        TEST_ENTRY(recorded_steps_compute_the_bits_of_built_ones_over_two_devices),
        TEST_ENTRY(a_run_sends_one_small_frame),
        TEST_ENTRY(a_result_stays_on_the_device_until_the_next_step),
        TEST_ENTRY(ordinary_steps_go_between_runs),
        TEST_ENTRY(a_run_ends_the_step_that_is_being_built),
        TEST_ENTRY(runs_are_queued_and_waited_for),
        TEST_ENTRY(a_recording_keeps_its_plan),
        TEST_ENTRY(a_failed_run_changes_no_state_and_the_next_goes_on),
        TEST_ENTRY(a_run_is_cancelled_and_the_next_goes_on),
        TEST_ENTRY(a_lost_server_is_told_by_the_run),
        TEST_ENTRY(what_cannot_be_recorded_is_refused_and_the_step_stands),
        TEST_ENTRY(runs_answer_misuse),
        TEST_ENTRY(the_null_executor_runs_recorded_steps_without_values),
        TEST_ENTRY(steps_like_those_before_them_compute_their_own_values_on_this_cpu),
        TEST_ENTRY(steps_like_those_before_them_compute_their_own_values_through_a_server),
        TEST_ENTRY(an_error_tells_the_label_of_this_step),
        TEST_ENTRY(a_server_keeps_rows_apart_from_batches_too),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    loopback_close();
    return test_end();
}
