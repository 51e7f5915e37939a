/* Traces: what the recorder writes, of a context and of the server behind it, and what it leaves alone.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#define JSON_IMPLEMENTATION
#include "../examples/formats/json.h"
#include "genie.h"
#include "test.h"

#include "loopback.h"

static char folder[64], path[128];

/* ---- reading a trace back ---- */

typedef struct event {
    char name[64], stage[16], lane[64], detail[1000];
    int64_t process, begin, end, bytes, packed, offset, within;
} event;

enum { EVENTS = 30000 };
static event events[EVENTS];
static int n_events;

static char *file_text(size_t *n) {
    static char text[8 << 20];
    FILE *f = fopen(path, "rb");
    *n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[*n] = 0;
    if (f) fclose(f);
    return text;
}

static void text_of(json_value object, const char *name, char *out, size_t cap) {
    size_t n;
    static char all[1 << 16];
    out[0] = 0;
    if (json_get_string(json_get(object, name), all, sizeof all, &n)) snprintf(out, cap, "%.*s", (int)cap - 1, all);
}

/* Every line is an object of the documented fields. */
static bool read_lines(const char *name) {
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *text = file_text(&n);
    n_events = 0;
    for (char *line = text, *end; *line; line = end + 1) {
        json_value o;
        json_error error;
        end = strchr(line, '\n');
        if (!end || n_events == EVENTS || !json_check(line, (size_t)(end - line), NULL, &o, &error)) {
            test_fail(__FILE__, __LINE__, "%s: line %d is no object", path, n_events);
            return false;
        }
        event *e = &events[n_events++];
        *e = (event){ .offset = -1, .within = -1 };
        text_of(o, "name", e->name, sizeof e->name);
        text_of(o, "stage", e->stage, sizeof e->stage);
        text_of(o, "lane", e->lane, sizeof e->lane);
        text_of(o, "detail", e->detail, sizeof e->detail);
        CHECK(json_get_i64(json_get(o, "process"), &e->process));
        CHECK(json_get_i64(json_get(o, "begin_ns"), &e->begin));
        CHECK(json_get_i64(json_get(o, "end_ns"), &e->end));
        CHECK(e->begin <= e->end);
        if (strcmp(e->stage, "clock") == 0) {
            CHECK(json_get_i64(json_get(o, "offset_ns"), &e->offset));
            CHECK(json_get_i64(json_get(o, "uncertainty_ns"), &e->within));
        } else {
            CHECK(json_get_i64(json_get(o, "bytes"), &e->bytes) &&
                  json_get_i64(json_get(o, "packed_bytes"), &e->packed));
        }
    }
    return n_events > 0;
}

/* The k-th event of a process with this stage and name (NULL: any); NULL: there is none. */
static const event *find(int process, const char *stage, const char *name, int k) {
    for (int i = 0; i < n_events; i++) {
        const event *e = &events[i];
        if (e->process == process && strcmp(e->stage, stage) == 0 && (!name || strcmp(e->name, name) == 0) && k-- == 0)
            return e;
    }
    return NULL;
}

static int count(int process, const char *stage, const char *name) {
    int n = 0;
    while (find(process, stage, name, n)) n++;
    return n;
}

static bool inside(const event *inner, const event *outer, int64_t slack) {
    return inner && outer && inner->begin >= outer->begin - slack && inner->end <= outer->end + slack;
}

static char *file_of(const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

/* ---- what is traced ---- */

enum { N = 64, BIG = 1 << 18 };
static float weights[N * N], batch[N * N], result[N * N], big[BIG];

static void run_steps(gn_ctx *g, int steps) {
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(N, N), weights, "layer.7.weight");
    for (int i = 0; i < steps; i++) {
        gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(N, N), batch);
        CHECK_RESULT(gn_read(gn_relu(gn_matmul(x, w)), result, sizeof result), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
}

TEST(a_local_trace_has_every_call_with_its_stages_inside) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1, .trace_file = file_of("local.jsonl") });
    REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
    run_steps(g, 5);
    gn_close(g);
    REQUIRE(read_lines("local.jsonl"));
    CHECK_INT(count(1, "call", "gn_read"), 5);
    CHECK_INT(count(1, "call", "gn_step"), 5);
    CHECK_INT(count(1, "initialise", "gn_open"), 1);
    CHECK_INT(count(1, "upload", "slot_put"), 1);
    CHECK_INT(find(1, "upload", "slot_put", 0)->bytes, (int64_t)sizeof weights);
    CHECK_INT(count(1, "plan", "plan_make"), 1);
    CHECK_INT(count(1, "kernel", NULL), 0); /* nobody asked for them */
    for (int i = 0; i < 5; i++) {
        const event *call = find(1, "call", "gn_read", i);
        CHECK(inside(find(1, "plan", "cut", i), call, 0));
        CHECK(inside(find(1, "launch", "submit", i), call, 0));
        CHECK(inside(find(1, "synchronise", "wait", i), call, 0));
        CHECK_INT(call->bytes, (int64_t)sizeof result);
        CHECK(find(1, "launch", "submit", i)->end <= find(1, "synchronise", "wait", i)->begin);
    }
    const event *c = find(1, "note", "counters", 0);
    CHECK(c && strstr(c->detail, "steps_run=5") && strstr(c->detail, "plans_made=1 plans_found=4"));
    CHECK(c && strstr(c->detail, " devices=cpu:0") && !strstr(strstr(c->detail, " devices=cpu:0") + 14, " "));
}

TEST(kernels_name_the_nodes_that_they_compute_and_the_plan_says_what_for) {
    gn_ctx *g = gn_open(
        &(gn_desc){ .devices = "cpu", .threads = 1, .trace_file = file_of("kernels.jsonl"), .trace_kernels = true });
    run_steps(g, 2);
    gn_close(g);
    REQUIRE(read_lines("kernels.jsonl"));
    const event *product = find(1, "kernel", "matmul", 0), *loop = find(1, "kernel", "relu", 0),
                *plan = find(1, "note", "plan", 0);
    REQUIRE(product && loop && plan);
    CHECK_INT(count(1, "kernel", NULL), 4);
    CHECK(inside(product, find(1, "launch", "submit", 0), 0) && product->end <= loop->begin);
    /* x and w are leaves 0 and 1 in some order, the product is node 2, the loop 3 */
    CHECK(strstr(product->detail, " nodes 2 ops matmul") && strstr(loop->detail, " nodes 3 ops relu"));
    CHECK(strncmp(product->detail, plan->detail, 21) == 0); /* the same plan */
    CHECK(strstr(plan->detail, ";2 matmul ") && strstr(plan->detail, " 7 layer.7.weight"));
}

/* Client and server are one machine here, whose clock is one: what is found must be no offset, as near as it says. */
TEST(a_server_s_events_come_to_the_client_in_its_own_time) {
    gn_ctx *g = loopback_open(&(gn_desc){ .trace_file = file_of("remote.jsonl") });
    REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
    run_steps(g, 20);
    gn_close(g);
    REQUIRE(read_lines("remote.jsonl"));
    int clocks = count(1, "clock", NULL);
    CHECK(clocks >= 1);
    const event *clock = find(1, "clock", NULL, clocks - 1);
    CHECK(clock && clock->within < 50000000 && llabs((long long)clock->offset) <= clock->within);
    CHECK_INT(count(2, "frame", "STEP"), 20); /* received there */
    CHECK_INT(count(2, "launch", "submit"), 20);
    CHECK_INT(count(2, "queue", "STEP"), 20);
    for (int i = 0; i < 20; i++)
        CHECK(inside(find(2, "launch", "submit", i), find(1, "call", "gn_read", i), clock->within));
    const event *sent = find(1, "frame", "STEP", 0), *came = find(2, "frame", "STEP", 0);
    CHECK(sent && came && sent->packed == came->packed && sent->packed > (int64_t)sizeof batch / 8);
    CHECK(strcmp(sent->detail, "sent") == 0 && strcmp(came->detail, "received") == 0);
}

TEST(frames_have_their_bytes_before_and_after_packing) {
    gn_ctx *g = loopback_open(&(gn_desc){ .trace_file = file_of("packed.jsonl") });
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(BIG), big);
    float sum;
    CHECK_RESULT(gn_read(gn_sum(x, GN_AXES(0), false), &sum, sizeof sum), GN_OK);
    gn_stats stats;
    gn_get_stats(g, &stats);
    gn_close(g);
    REQUIRE(read_lines("packed.jsonl"));
    const event *sent = find(1, "frame", "STEP", 0), *came = find(2, "frame", "STEP", 0);
    REQUIRE(sent && came);
    int64_t fields = sent->packed - (int64_t)stats.packed_bytes_up; /* of the message, beside its one blob */
    CHECK(stats.packed_bytes_up < sizeof big / 10 && fields > 20 && fields < 200);
    CHECK_INT(sent->bytes - sent->packed, came->bytes - came->packed);
    CHECK(sent->bytes >= (int64_t)sizeof big && sent->bytes < (int64_t)sizeof big + 300);
}

/* ---- peers of an earlier version ---- */

/* The HELLO of a client that does not know of traces. */
static gn_result old_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    loopback_link *l = self;
    uint8_t hello[4096];
    if (l->up > 0 || n > sizeof hello) return loopback__send(self, data, n, timeout_ms);
    memcpy(hello, data, n);
    hello[12 + 8 + 1] &= 0xfe; /* behind the frame's head, the magic and two versions: bit 8 */
    return loopback__send(self, hello, n, timeout_ms);
}

TEST(a_server_that_knows_no_traces_serves_and_the_trace_says_so) {
    static gn_transport_i table;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    gn_transport t = loopback_transport(ends[1]);
    table = *t.i;
    table.send = old_send;
    t.i = &table;
    CHECK_RESULT(gn_server_attach(loopback_server(), loopback_transport(ends[0]), "test"), GN_OK);
    gn_ctx *g = gn_open_transport(&(gn_desc){ .trace_file = file_of("old.jsonl") }, t, "cpu");
    run_steps(g, 3);
    gn_close(g);
    REQUIRE(read_lines("old.jsonl"));
    CHECK_INT(count(1, "call", "gn_read"), 3);
    CHECK_INT(count(2, "launch", NULL), 0);
    CHECK_INT(count(1, "note", "no trace of the server: it is of an earlier version"), 1);
}

/* ---- a server that lies ---- */

enum { TRACE_EVENTS = 22, FRAME_HEAD = 12, EVENTS_AT = 40 };
static int lie_at, lies; /* byte of the first event that is changed, how often one was */

static gn_result lying_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    gn_result r = loopback__recv(self, data, max, out_n, timeout_ms);
    uint8_t *p = data;
    for (size_t at = 0; !r && at + FRAME_HEAD <= *out_n;) {
        uint32_t n;
        memcpy(&n, p + at, 4);
        if (at + FRAME_HEAD + n <= *out_n && p[at + 4] == TRACE_EVENTS && n > EVENTS_AT + 40) {
            p[at + FRAME_HEAD + EVENTS_AT + (size_t)lie_at] = 0xff;
            lies++;
        }
        at += FRAME_HEAD + n;
    }
    return r;
}

/* An unknown stage, a name and a detail that are too long, an end before the begin: the session ends, nothing else. */
TEST(events_that_are_none_end_the_session) {
    static const int places[] = { 0, 1, 2, 3, 6, 7, 15 };
    static gn_transport_i table;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        gn_transport t = loopback_transport(ends[1]);
        table = *t.i;
        table.recv = lying_recv;
        t.i = &table;
        lie_at = places[i];
        lies = 0;
        CHECK_RESULT(gn_server_attach(loopback_server(), loopback_transport(ends[0]), "test"), GN_OK);
        gn_ctx *g = gn_open_transport(&(gn_desc){ .trace_file = file_of("lies.jsonl") }, t, "cpu");
        run_steps(g, 1);
        nanosleep(&(struct timespec){ 0, 120000000 }, NULL);
        gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(N, N), batch);
        CHECK_RESULT(gn_read(gn_relu(x), result, sizeof result), GN_BAD_MESSAGE);
        CHECK(strstr(gn_last_error(g)->text, "an event that is none") != NULL);
        CHECK_INT(lies, 1);
        gn_close(g);
    }
    CHECK(read_lines("lies.jsonl"));
}

/* ---- files ---- */

/* Chrome's format: one array of objects, whole after each write; each complete event has a lane with a name. */
TEST(chrome_s_format_is_one_array_of_events) {
    json_value all, key, e;
    json_error error;
    size_t n;
    int complete = 0, names = 0;
    for (int i = 0; i < 2; i++) { /* the second context writes behind the first */
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu,null", .threads = 1, .trace_file = file_of("chrome.json") });
        gn_on(g, "cpu");
        run_steps(g, 2);
        gn_close(g);
        snprintf(path, sizeof path, "%s/chrome.json", folder);
        char *text = file_text(&n);
        REQUIRE(json_check(text, n, NULL, &all, &error));
    }
    for (json_iter i = json_begin(all); json_next(&i, &key, &e);) {
        char phase[8];
        double ts, dur;
        text_of(e, "ph", phase, sizeof phase);
        names += phase[0] == 'M';
        complete += phase[0] == 'X';
        if (phase[0] == 'X')
            CHECK(json_get_double(json_get(e, "ts"), &ts) && json_get_double(json_get(e, "dur"), &dur) && dur >= 0);
    }
    CHECK(complete > 20 && names >= 3);
}

TEST(a_trace_that_cannot_be_written_is_an_error) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .trace_file = "/nowhere/at/all.json" });
    CHECK_RESULT(gn_status(g), GN_IO_ERROR);
    CHECK(strstr(gn_last_error(g)->text, "/nowhere/at/all.json cannot be written") != NULL);
    gn_close(g);
}

TEST(a_server_writes_what_its_sessions_do) {
    gn_server *s;
    gn_error error;
    int ends[2];
    gn_server_desc desc = {
        .listen = "none", .devices = "cpu", .threads = 1, .home = folder, .trace_file = file_of("server.jsonl")
    };
    REQUIRE(CHECK_RESULT(gn_server_open(&desc, &s, &error), GN_OK) && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), "test"), GN_OK);
    gn_ctx *g = gn_open_transport(NULL, loopback_transport(ends[1]), "cpu");
    run_steps(g, 3);
    gn_close(g);
    gn_server_close(s);
    REQUIRE(read_lines("server.jsonl"));
    CHECK_INT(count(1, "initialise", "device"), 1);
    CHECK_INT(count(1, "launch", "submit"), 3);
    CHECK(strcmp(find(1, "launch", "submit", 0)->lane, "session 1") == 0);
    CHECK_INT(count(1, "free", "close"), 1);
}

static int told;
static void count_event(void *user, const gn_trace_event *e) {
    (void)user;
    told += strcmp(e->name, "gn_read") == 0;
}

/* The program's own function goes on beside the file; without either the thread is not traced. */
TEST(a_program_s_own_trace_goes_on_beside_the_file) {
    gn_ctx *g = gn_open(
        &(gn_desc){ .devices = "cpu", .threads = 1, .trace = count_event, .trace_file = file_of("both.jsonl") });
    run_steps(g, 3);
    gn_close(g);
    REQUIRE(read_lines("both.jsonl"));
    CHECK_INT(told, 3);
    CHECK_INT(count(1, "call", "gn_read"), 3);
    g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    run_steps(g, 1);
    CHECK(!gn_traces() && !gn_traces_kernels());
    gn_close(g);
}

/* ---- short calls ---- */

enum { TINY = 3000 };

/* A short step many times, then one of a new plan. */
static void run_tiny(gn_ctx *g) {
    static const float four[4] = { 1, 2, 3, 4 };
    float y[4];
    gn_tensor x = gn_state(g, GN_F32, GN_SHAPE(4), four, "x");
    for (int i = 0; i <= TINY; i++) {
        gn_tensor sum = gn_add(x, gn_scalar(g, GN_F32, i));
        CHECK_RESULT(gn_read(i < TINY ? sum : gn_relu(sum), y, sizeof y), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
}

static int64_t left_out(int process, const char *name) {
    int64_t n = 0;
    for (int i = 0; i < n_events; i++)
        if (events[i].process == process && strcmp(events[i].lane, "left out") == 0 &&
            strcmp(events[i].name, name) == 0) {
            CHECK(strcmp(events[i].stage, "note") == 0 && events[i].bytes > 0);
            n += events[i].bytes;
        }
    return n;
}

/* The first are there one by one, most of the others are counted, and none is missing; what is seldom is there. */
TEST(calls_too_short_to_be_recorded_are_counted_and_the_seldom_is_there) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1, .trace_file = file_of("tiny.jsonl") });
    run_tiny(g);
    gn_close(g);
    REQUIRE(read_lines("tiny.jsonl"));
    int reads = count(1, "call", "gn_read"), steps = count(1, "call", "gn_step");
    CHECK(reads > 50 && left_out(1, "gn_read") > 0);
    CHECK_INT(reads + left_out(1, "gn_read"), TINY + 1);
    CHECK_INT(steps + left_out(1, "gn_step"), TINY + 1);
    CHECK_INT(count(1, "plan", "plan_make"), 2);
    CHECK_INT(count(1, "call", "gn_close"), 1);
    const event *made = find(1, "plan", "plan_make", 1);
    CHECK(inside(made, find(1, "call", "gn_read", reads - 1), 0)); /* recorded from there on at least */
    CHECK_INT(count(1, "launch", "submit"), reads);
    CHECK_INT(count(1, "synchronise", "wait"), reads); /* what is left out is left out whole */
}

/* A server that is asked for stages counts short steps as the client does; one asked for all records all. */
TEST(a_server_counts_short_steps_of_a_session) {
    for (int all = 0; all < 2; all++) {
        gn_ctx *g = loopback_open(
            &(gn_desc){ .trace_file = file_of(all ? "far_all.jsonl" : "far.jsonl"), .trace_all = all == 1 });
        REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
        run_steps(g, all ? 300 : 1000);
        gn_close(g);
        REQUIRE(read_lines(all ? "far_all.jsonl" : "far.jsonl"));
        int submits = count(2, "launch", "submit"), received = count(2, "frame", "STEP");
        int64_t n = left_out(2, "STEP");
        CHECK_INT(submits + n, all ? 300 : 1000);
        CHECK_INT(submits, received);
        CHECK(all ? n == 0 : n > 0 || TEST_SANITIZED); /* sanitized steps may be long enough for their events */
        CHECK_INT(count(2, "plan", "plan_make"), 1);
    }
}

TEST(every_call_is_recorded_where_that_is_asked) {
    enum { MOST = 40 << 20 };
    char *text = malloc(MOST);
    REQUIRE(text != NULL);
    for (int k = 0; k < 2; k++) {
        if (k) setenv("GENIE_TRACE_ALL", "1", 1);
        gn_ctx *g = gn_open(&(gn_desc){
            .devices = "cpu", .threads = 1, .trace_file = file_of(k ? "set.jsonl" : "all.jsonl"), .trace_all = !k });
        unsetenv("GENIE_TRACE_ALL");
        run_tiny(g);
        gn_close(g);
        snprintf(path, sizeof path, "%s/%s", folder, k ? "set.jsonl" : "all.jsonl");
        FILE *f = fopen(path, "rb");
        size_t n = f ? fread(text, 1, MOST - 1, f) : 0;
        text[n] = 0;
        if (f) fclose(f);
        remove(path);
        int reads = 0;
        for (const char *at = text; (at = strstr(at, "{\"name\":\"gn_read\"")); at++) reads++;
        CHECK_INT(reads, TINY + 1);
        CHECK(!strstr(text, "left out"));
    }
    free(text);
}

static uint64_t system_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Time by the processor's counter, which takes over while a trace is written, is that of the system. */
static void check_clock(uint64_t for_ns) {
    const uint64_t apart = 20000; /* ns */
    uint64_t start = system_ns(), last = 0, before = start, after = start;
    int back = 0, off = 0;
    for (; after - start < for_ns; before = after) {
        uint64_t now = gn_now_ns();
        after = system_ns();
        back += now < last;
        off += now + apart < before || now > after + apart;
        last = now;
    }
    CHECK_INT(back, 0);
    CHECK_INT(off, 0);
}

TEST(the_clock_of_a_trace_is_the_system_s_and_never_goes_back) {
    for (int i = 0; i < 2; i++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1, .trace_file = file_of("clock.jsonl") });
        REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
        check_clock(400000000);
        gn_close(g);
        check_clock(1000000);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(the_clock_of_a_trace_is_the_system_s_and_never_goes_back),
        TEST_ENTRY(a_local_trace_has_every_call_with_its_stages_inside),
        TEST_ENTRY(kernels_name_the_nodes_that_they_compute_and_the_plan_says_what_for),
        TEST_ENTRY(a_server_s_events_come_to_the_client_in_its_own_time),
        TEST_ENTRY(frames_have_their_bytes_before_and_after_packing),
        TEST_ENTRY(a_server_that_knows_no_traces_serves_and_the_trace_says_so),
        TEST_ENTRY(events_that_are_none_end_the_session),
        TEST_ENTRY(chrome_s_format_is_one_array_of_events),
        TEST_ENTRY(a_trace_that_cannot_be_written_is_an_error),
        TEST_ENTRY(a_server_writes_what_its_sessions_do),
        TEST_ENTRY(a_program_s_own_trace_goes_on_beside_the_file),
        TEST_ENTRY(calls_too_short_to_be_recorded_are_counted_and_the_seldom_is_there),
        TEST_ENTRY(a_server_counts_short_steps_of_a_session),
        TEST_ENTRY(every_call_is_recorded_where_that_is_asked),
    };
    for (int i = 0; i < N * N; i++) batch[i] = (float)(i * 7919 % 1009) / 1009;
    snprintf(folder, sizeof folder, "/tmp/genie-trace-XXXXXX");
    if (!mkdtemp(folder)) return 2;
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    loopback_close();
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) printf("%s stays behind\n", folder);
    return test_end();
}
