/* How fast bytes go through TLS on this machine: one sender, one receiver, loopback, beside one stream of plain TCP.
 *
 *   ./build.sh bench && ./build/bench/bench_net              all rows as a table
 *   ./build/bench/bench_net --gb 16 --json                   more bytes a row; one JSON object on the last line
 *
 * The bytes come from memory that no cache holds, and are copied once before they are sent, as messages are. Each row
 * is measured with the threads that genie_net.c may put beside the two ends' own: none, one that sends, one that
 * receives, both. For each stage it says what the thread that does it spends of its processor a GB: the largest of them
 * is what bounds where there is a core for each. A row's time is the least of several.
 */
#ifndef GENIE_EXT
#define GENIE_EXT
#endif
#define _GNU_SOURCE
#include "examples/common.h"
#include "bench.h"

#include "genie_net.c"

enum { PIECE = (256 << 10) + 12, SOURCE = 256 << 20, TRIP_BYTES = 128, TRIPS = 2000 };

static struct settings {
    bool json, quick, once;
    double gb;
} set = { .gb = 2 };

/* What was said, for the JSON line. */
static struct figure {
    char name[64];
    double value;
} figures[64];
static int n_figures;

/* A stream in one direction, and what its two threads spent of their processors on it, in seconds. */
typedef struct stream {
    gn_transport from, to;
    int ends[2]; /* of plain TCP, where there are no transports */
    size_t bytes;
    double write_s, read_s;
} stream;

static void note(const char *row, const char *what, double value, const char *unit) {
    struct figure *x = &figures[n_figures++];
    snprintf(x->name, sizeof x->name, "%s%s", row, what);
    x->value = value;
    printf("  %-28s %8.3f %s\n", x->name, value, unit);
    fflush(stdout);
}

static void print_json(void) {
    ex_json j = { 0 };
    ex_json_number(&j, "cores", gn__cores());
    for (int i = 0; i < n_figures; i++) ex_json_number(&j, figures[i].name, figures[i].value);
    ex_json_end(&j);
}

static double clock_now(clockid_t id) {
    struct timespec t;
    return clock_gettime(id, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

static void die(const char *what) {
    fprintf(stderr, "bench_net: %s\n", what);
    exit(EX_FAILED);
}

static void *read_main(void *arg) {
    stream *s = arg;
    uint8_t *room = malloc(PIECE);
    size_t k = 0;
    if (!room) die("no memory");
    memset(room, 1, PIECE);
    double cpu = clock_now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t got = 0; got < s->bytes; got += k) {
        if (s->to.i) {
            if (s->to.i->recv(s->to.self, room, PIECE, &k, 20000) != GN_OK) die("the receiver met an error");
        } else {
            ssize_t n = recv(s->ends[1], room, PIECE, 0);
            if (n <= 0) die("the receiver met an error");
            k = (size_t)n;
        }
    }
    s->read_s = clock_now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    free(room);
    return NULL;
}

static void write_piece(const stream *s, const uint8_t *piece) {
    if (s->from.i) {
        if (s->from.i->send(s->from.self, piece, PIECE, 20000) != GN_OK) die("the sender met an error");
        return;
    }
    for (size_t at = 0; at < PIECE;) {
        ssize_t n = send(s->ends[0], piece + at, PIECE - at, MSG_NOSIGNAL);
        if (n <= 0) die("the sender met an error");
        at += (size_t)n;
    }
}

/* Seconds until all has come. */
static double stream_run(stream *s, const uint8_t *source) {
    static uint8_t piece[PIECE];
    pthread_t reader;
    double start = ex_now(), cpu = clock_now(CLOCK_THREAD_CPUTIME_ID);
    if (pthread_create(&reader, NULL, read_main, s) != 0) die("no thread");
    for (size_t at = 0; at < s->bytes; at += PIECE) {
        memcpy(piece, source + at % (SOURCE - PIECE), PIECE);
        write_piece(s, piece);
    }
    s->write_s = clock_now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    pthread_join(reader, NULL);
    return ex_now() - start;
}

/* Processor time of a helper so far. */
static double helper_now(gn__helper *h) {
    clockid_t id;
    pthread_mutex_lock(&h->lock);
    double now = h->begun && !h->ended && pthread_getcpuclockid(h->thread, &id) == 0 ? clock_now(id) : 0;
    pthread_mutex_unlock(&h->lock);
    return now;
}

typedef struct accepted {
    void *listener;
    gn_transport t;
} accepted;

static void *accept_main(void *arg) {
    accepted *a = arg;
    gn_fault f;
    gn_result r = GN_TIMEOUT;
    for (int i = 0; i < 100 && r == GN_TIMEOUT; i++) r = gn__net.accept(a->listener, 100, &a->t, &f);
    if (r != GN_OK) die("no connection came");
    return NULL;
}

static void tls_open(accepted *a, const char *where, gn_transport *out, const char *homes[2]) {
    char device[64];
    uint8_t byte;
    size_t n;
    gn_fault f;
    pthread_t thread;
    gn_server_desc d = { .listen = where, .home = homes[0], .deadline_ms = 30000 };
    gn_net_desc client = { homes[1], 5000, NULL, NULL };
    if (gn__net.listen(&d, &a->listener, &f) != GN_OK) die(f.text);
    if (pthread_create(&thread, NULL, accept_main, a) != 0) die("no thread");
    if (gn__net.connect(gn__net.url(a->listener), &client, out, device, &f) != GN_OK) die(f.text);
    if (out->i->send(out->self, "x", 1, 1000) != GN_OK) die("the sender met an error");
    pthread_join(thread, NULL);
    if (a->t.i->recv(a->t.self, &byte, 1, &n, 1000) != GN_OK) die("the receiver met an error");
}

/* Which threads are beside: as gn__helpers_wanted. */
static void bench_stream(stream *s, int beside, const uint8_t *source, const char *row) {
    gn__link *from = s->from.self, *to = s->to.self;
    double gb = 1e-9 * (double)s->bytes, best[8] = { INFINITY };
    gn__helpers_wanted = beside;
    for (int i = set.once ? 0 : -1; i < (set.once ? 1 : set.quick ? 2 : 5); i++) {
        gn_link_info a, b, c, d;
        s->from.i->info(from, &a);
        s->to.i->info(to, &b);
        double up = helper_now(&from->sending), down = helper_now(&to->receiving), took = stream_run(s, source);
        s->from.i->info(from, &c);
        s->to.i->info(to, &d);
        double now[8] = { took / gb,
                          s->write_s / gb,
                          (helper_now(&from->sending) - up) / gb,
                          (helper_now(&to->receiving) - down) / gb,
                          s->read_s / gb,
                          1e-6 * (double)(c.seal_us - a.seal_us) / gb,
                          1e-6 * (double)(c.send_us - a.send_us - (c.send_wait_us - a.send_wait_us)) / gb,
                          1e-6 * (double)(d.open_us - b.open_us) / gb };
        if ((i >= 0 || set.once) && now[0] < best[0]) memcpy(best, now, sizeof best);
    }
    note(row, "_gb_s", 1 / best[0], "GB/s");
    note(row, "_write_cpu", best[1], "s a GB: the sender's own thread: copies, encrypts");
    if (beside & 1) note(row, "_send_cpu", best[2], "s a GB: the thread that sends");
    if (beside & 2) note(row, "_receive_cpu", best[3], "s a GB: the thread that receives");
    note(row, "_read_cpu", best[4], "s a GB: the receiver's own thread: decrypts, copies");
    note(row, "_encrypt", best[5], "s a GB");
    note(row, "_send", best[6], "s a GB in calls of send, without waiting");
    note(row, "_decrypt", best[7], "s a GB");
}

static void bench_raw(const uint8_t *source) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t n = sizeof a;
    stream s = { .bytes = (size_t)(1e9 * set.gb) / PIECE * PIECE };
    int l = socket(AF_INET, SOCK_STREAM, 0);
    double best = INFINITY, write_s = 0, read_s = 0, gb = 1e-9 * (double)s.bytes;
    s.ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&a, n) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &n) ||
        connect(s.ends[0], (struct sockaddr *)&a, n) || (s.ends[1] = accept(l, NULL, NULL)) < 0)
        die("no plain TCP");
    for (int i = 0; i < (set.once ? 1 : set.quick ? 2 : 5); i++) {
        double took = stream_run(&s, source);
        if (took >= best) continue;
        best = took;
        write_s = s.write_s;
        read_s = s.read_s;
    }
    note("plain_tcp", "_gb_s", gb / best, "GB/s, the same copies, not encrypted");
    note("plain_tcp", "_write_cpu", write_s / gb, "s a GB: the sender");
    note("plain_tcp", "_read_cpu", read_s / gb, "s a GB: the receiver");
    for (int i = 0; i < 2; i++) close(s.ends[i]);
    close(l);
}

static void *answer_main(void *arg) {
    const gn_transport *t = arg;
    uint8_t room[TRIP_BYTES];
    for (int i = 0; i < TRIPS; i++)
        for (size_t got = 0, k; got < TRIP_BYTES; got += k)
            if (t->i->recv(t->self, room, TRIP_BYTES - got, &k, 20000) != GN_OK ||
                (got + k == TRIP_BYTES && t->i->send(t->self, room, TRIP_BYTES, 20000) != GN_OK))
                die("an answer is missing");
    return NULL;
}

/* Small messages there and back: what a step of a decoder sends. */
static void bench_trip(const gn_transport *from, gn_transport *to) {
    static double us[TRIPS];
    uint8_t room[TRIP_BYTES] = { 0 };
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer_main, to) != 0) die("no thread");
    for (int i = 0; i < TRIPS; i++) {
        double start = ex_now();
        if (from->i->send(from->self, room, TRIP_BYTES, 20000) != GN_OK) die("the sender met an error");
        for (size_t got = 0, k; got < TRIP_BYTES; got += k)
            if (from->i->recv(from->self, room, TRIP_BYTES - got, &k, 20000) != GN_OK) die("an answer is missing");
        us[i] = 1e6 * (ex_now() - start);
    }
    pthread_join(thread, NULL);
    note("trip", "_us", quantile(us, TRIPS, 0.5), "us for 128 bytes there and back");
    note("trip", "_p95_us", quantile(us, TRIPS, 0.95), "us");
}

int main(int argc, char **argv) {
    static const char *const rows[] = { "alone", "send_beside", "receive_beside", "both_beside" };
    char a[] = "/tmp/genie-bench-XXXXXX", b[] = "/tmp/genie-bench-XXXXXX", about[200];
    const ex_option options[] = {
        { "gb", EX_NUMBER, &set.gb, "N", "GB a run (2)", 0.01, 1000 },
        { "quick", EX_FLAG, &set.quick, NULL, "fewer repetitions", 0, 0 },
        { "once", EX_FLAG, &set.once, NULL, "each row once: shows that it works, not how fast", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "the last line is one JSON object", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "Measures streams of bytes through TLS.", options);
    if (set.once) set.gb = 0.05;
    const char *homes[2] = { mkdtemp(a), mkdtemp(b) };
    uint8_t *source = malloc(SOURCE);
    if (!homes[0] || !homes[1] || !source) die("no memory or folder");
    for (size_t i = 0; i < SOURCE; i += sizeof(float)) memcpy(source + i, &(float){ draw() }, sizeof(float));
    if (gn__net.about(about, sizeof about) > 0) printf("%s; %u cores\n", about, gn__cores());
    bench_raw(source);
    accepted server = { NULL, { NULL, NULL } };
    stream s = { .bytes = (size_t)(1e9 * set.gb) / PIECE * PIECE };
    tls_open(&server, "127.0.0.1:0", &s.from, homes);
    s.to = server.t;
    gn__helpers_wanted = -1;
    bench_trip(&s.from, &s.to);
    for (int i = 0; i < 4; i++) bench_stream(&s, i, source, rows[i]);
    s.from.i->close(s.from.self);
    s.to.i->close(s.to.self);
    gn__net.unlisten(server.listener);
    for (int i = 0; i < 2; i++) nftw(homes[i], ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(source);
    if (set.json) print_json();
    return EX_OK;
}
