/* The network unit alone: URLs, pairing, stored credentials, TLS and its refusals, deadlines, hostile peers, codecs.
 * Everything goes over real sockets on the loopback address. The unit is included, so that its allocations can be made
 * to fail and its reads and writes to be short. It waits for many deadlines.
 *
 * Tier: slow address thread */
#define _GNU_SOURCE
#define GENIE_EXT
#include "genie.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

static void *failing_alloc(size_t bytes);
static ssize_t rough_send(int fd, const void *p, size_t n, int flags);
static ssize_t rough_recv(int fd, void *p, size_t n, int flags);
#include <sys/socket.h>
#define gn_alloc failing_alloc
#define send(fd, p, n, flags) rough_send(fd, p, n, flags)
#define recv(fd, p, n, flags) rough_recv(fd, p, n, flags)
#define geteuid() (real_user() + atomic_load(&another_user))
static inline uid_t real_user(void);
static _Atomic(uid_t) another_user; /* 1: this process seems to run as another user than it does */
#include "../genie_net.c"
#undef gn_alloc
#undef send
#undef recv
#undef geteuid

static inline uid_t real_user(void) { return geteuid(); }

#include "test.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <mbedtls/net_sockets.h>
#include <sys/wait.h>

/* ---- fixture: allocation that fails on demand ---- */

static atomic_long alloc_countdown; /* 0: never fails; n: the n-th allocation and all after it fail */

static void *failing_alloc(size_t bytes) {
    long n = atomic_load(&alloc_countdown);
    if (n > 0 && !atomic_compare_exchange_strong(&alloc_countdown, &n, n > 1 ? n - 1 : 1)) n = 2;
    return n == 1 ? NULL : gn_alloc(bytes);
}

/* ---- fixture: reads and writes that are short or interrupted on demand ---- */

static atomic_bool rough; /* every other call ends with EINTR, the rest move at most 300 bytes */
static atomic_uint rough_calls, send_calls;

static bool rough_interrupts(size_t *n) {
    unsigned k = atomic_fetch_add(&rough_calls, 1u);
    if (*n > 1 + k * 37 % 300) *n = 1 + k * 37 % 300;
    return k & 1;
}

static ssize_t rough_send(int fd, const void *p, size_t n, int flags) {
    atomic_fetch_add(&send_calls, 1u);
    if (atomic_load(&rough) && rough_interrupts(&n)) {
        errno = EINTR;
        return -1;
    }
    return send(fd, p, n, flags);
}

static ssize_t rough_recv(int fd, void *p, size_t n, int flags) {
    if (atomic_load(&rough) && rough_interrupts(&n)) {
        errno = EINTR;
        return -1;
    }
    return recv(fd, p, n, flags);
}

/* ---- fixture: folders, logs ---- */

static char work[128]; /* a folder of this run */

static const char *folder(char out[GN__PATH], const char *name) {
    snprintf(out, GN__PATH, "%s/%s", work, name);
    return out;
}

/* A folder that is not there yet. */
static const char *new_folder(char out[GN__PATH]) {
    static atomic_int n;
    snprintf(out, GN__PATH, "%s/home%d", work, atomic_fetch_add(&n, 1));
    return out;
}

static void write_text(const char *path, const char *text, mode_t mode) {
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0 || chmod(path, mode) != 0)
        test_fail(__FILE__, __LINE__, "cannot write %s", path);
}

static bool read_text(const char *path, char *out, size_t cap) {
    FILE *file = fopen(path, "r");
    size_t n = file != NULL ? fread(out, 1, cap - 1, file) : 0;
    out[n] = 0;
    return file != NULL && fclose(file) == 0;
}

static unsigned mode_of(const char *home, const char *name) {
    char path[GN__PATH + 32];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", home, name);
    return stat(path, &st) == 0 ? (unsigned)st.st_mode & 0777u : 0;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[1 << 16];

static void keep_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    (void)level;
    pthread_mutex_lock(&log_lock);
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", text);
    pthread_mutex_unlock(&log_lock);
}

static bool log_has(const char *text) {
    pthread_mutex_lock(&log_lock);
    bool has = strstr(logged, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return has;
}

static double seconds(uint64_t since) { return (double)(gn_now_us() - since) * 1e-6; }

static void nap(long ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* ---- fixture: a server that checks a proof and then echoes ----
 * client: length byte, proof; server: result, length of the grant, grant, length of the tenant, tenant; then bytes come
 * back. */

typedef struct host {
    void *listener;
    pthread_t thread;
    atomic_bool stop;
    atomic_int active, served; /* connections now, and those that ended */
    bool silent;               /* after the handshake it neither reads nor writes */
    bool renews;               /* it changes keys that wear out */
    atomic_int last_handshake;
    char home[GN__PATH];
} host;

typedef struct guest {
    host *h;
    gn_transport t;
} guest;

/* A connection as soon as its handshake is over; gn__net.accept waits for its first bytes too. */
static gn_result accept_silent(void *listener, uint32_t timeout_ms, gn_transport *t, gn_fault *f) {
    gn__listener *l = listener;
    for (uint64_t end = gn__after(timeout_ms);;) {
        gn_result r = gn__net.accept(l, 1, t, f);
        for (uint32_t i = 0; i < l->n && r == GN_TIMEOUT; i++) {
            if (l->strangers[i]->stage != GN__SHAKEN) continue;
            *t = gn__stranger_known(gn__stranger_remove(l, i));
            l->at = 0;
            return GN_OK;
        }
        if (r != GN_TIMEOUT || gn_now_us() >= end) return r;
    }
}

static gn_result recv_all(gn_transport t, void *out, size_t n, uint32_t timeout_ms) {
    uint8_t *p = out;
    while (n > 0) {
        size_t k = 0;
        gn_result r = t.i->recv(t.self, p, n, &k, timeout_ms);
        if (r != GN_OK) return r;
        if (k == 0 || k > n) return GN_INTERNAL;
        p += k;
        n -= k;
    }
    return GN_OK;
}

static gn_result let_in(guest *g) {
    uint8_t n, proof[256], reply[512], grant[256];
    char tenant[64];
    gn_fault f;
    size_t grant_n = 0, tenant_n;
    gn_result r = recv_all(g->t, &n, 1, 5000);
    if (r == GN_OK) r = recv_all(g->t, proof, n, 5000);
    if (r != GN_OK) return r;
    r = gn__net.authenticate(g->h->listener, g->t, proof, n, tenant, grant, &grant_n, &f);
    if (r != GN_OK) keep_log(NULL, GN_LOG_DEBUG, f.text);
    tenant_n = strlen(tenant);
    reply[0] = (uint8_t)r;
    reply[1] = (uint8_t)grant_n;
    memcpy(reply + 2, grant, grant_n);
    reply[2 + grant_n] = (uint8_t)tenant_n;
    memcpy(reply + 3 + grant_n, tenant, tenant_n);
    gn_result sent = g->t.i->send(g->t.self, reply, 3 + grant_n + tenant_n, 5000);
    return r != GN_OK ? r : sent;
}

/* A connection is over. */
static void host_note(host *h, gn_result handshake) {
    atomic_store(&h->last_handshake, (int)handshake);
    atomic_fetch_add(&h->served, 1);
}

static void *serve_guest(void *arg) {
    guest *g = arg;
    host *h = g->h;
    static _Thread_local uint8_t buffer[1 << 16];
    gn_result r = GN_OK;
    if (h->silent) {
        while (!atomic_load(&h->stop)) nap(5);
        r = GN_DISCONNECTED;
    }
    if (r == GN_OK && h->renews) g->t.i->renew(g->t.self);
    if (r == GN_OK) r = let_in(g);
    for (size_t n = 0; r == GN_OK;) {
        r = g->t.i->recv(g->t.self, buffer, sizeof buffer, &n, 20);
        if (r == GN_TIMEOUT && !atomic_load(&h->stop)) {
            r = GN_OK;
            continue;
        }
        if (r == GN_OK) r = g->t.i->send(g->t.self, buffer, n, 5000);
    }
    g->t.i->close(g->t.self);
    free(g);
    host_note(h, GN_OK);
    atomic_fetch_sub(&h->active, 1);
    return NULL;
}

static void *serve(void *arg) {
    host *h = arg;
    while (!atomic_load(&h->stop)) {
        guest *g = malloc(sizeof *g);
        pthread_t thread;
        gn_fault f;
        g->h = h;
        gn_result r = accept_silent(h->listener, 20, &g->t, &f);
        if (r != GN_OK) {
            free(g);
            if (r == GN_TIMEOUT) continue;
            keep_log(NULL, GN_LOG_DEBUG, f.text);
            host_note(h, r);
            continue;
        }
        atomic_fetch_add(&h->active, 1);
        if (pthread_create(&thread, NULL, serve_guest, g) != 0) abort();
        pthread_detach(thread);
    }
    return NULL;
}

static bool host_open_desc(host *h, gn_server_desc d) {
    gn_fault f;
    memset(h, 0, sizeof *h);
    if (d.home == NULL) d.home = new_folder(h->home);
    else snprintf(h->home, sizeof h->home, "%s", d.home);
    if (d.listen == NULL) d.listen = "127.0.0.1:0";
    if (d.deadline_ms == 0) d.deadline_ms = 1500;
    d.log = keep_log;
    gn_result r = gn__net.listen(&d, &h->listener, &f);
    if (r != GN_OK) {
        test_fail(__FILE__, __LINE__, "the server does not open: %s", f.text);
        return false;
    }
    return pthread_create(&h->thread, NULL, serve, h) == 0;
}

static bool host_open(host *h) { return host_open_desc(h, (gn_server_desc){ .listen = NULL }); }

/* Waits until n connections have ended. */
static void host_served(host *h, int n) {
    while (atomic_load(&h->served) < n) nap(1);
}

static void host_close(host *h) {
    const char *code = strstr(gn__net.url(h->listener), "&code=");
    CHECK(code == NULL || !log_has(code + 6));
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    while (atomic_load(&h->active) > 0) nap(1);
    gn__net.unlisten(h->listener);
}

static gn_result dial_in(const char *where, const char *home, uint32_t timeout_ms, gn_transport *t, gn_fault *f) {
    char device[64];
    gn_net_desc d = { home, timeout_ms, keep_log, NULL };
    f->text[0] = 0;
    return gn__net.connect(where, &d, t, device, f);
}

/* Proves who we are as a client does; the server's answer. */
static gn_result prove(gn_transport t, char tenant[64]) {
    uint8_t message[257], answer[3], grant[256];
    gn_result r;
    size_t n = t.i->auth(t.self, message + 1);
    message[0] = (uint8_t)n;
    if ((r = t.i->send(t.self, message, n + 1, 5000)) != GN_OK || (r = recv_all(t, answer, 2, 5000)) != GN_OK) return r;
    if ((r = recv_all(t, grant, answer[1], 5000)) != GN_OK || (r = recv_all(t, answer + 2, 1, 5000)) != GN_OK) return r;
    if (answer[2] > 63 || (r = recv_all(t, tenant, answer[2], 5000)) != GN_OK) return r;
    tenant[answer[2]] = 0;
    if (answer[0] == GN_OK && answer[1] > 0) r = t.i->granted(t.self, grant, answer[1]);
    return answer[0] != GN_OK ? (gn_result)answer[0] : r;
}

/* Connects and proves; on failure nothing is left open. */
static gn_result enter(const char *where, const char *home, gn_transport *t, char tenant[64]) {
    gn_fault f;
    gn_result r = dial_in(where, home, 5000, t, &f);
    if (r != GN_OK) return r;
    r = prove(*t, tenant);
    if (r != GN_OK) t->i->close(t->self);
    return r;
}

static gn_result enter_and_leave(const char *where, const char *home, char tenant[64]) {
    gn_transport t;
    gn_result r = enter(where, home, &t, tenant);
    if (r == GN_OK) t.i->close(t.self);
    return r;
}

/* Failures so far slow nobody down. */
static void host_forgive(host *h) {
    gn__listener *l = h->listener;
    pthread_mutex_lock(&l->lock);
    memset(l->failures, 0, sizeof l->failures);
    pthread_mutex_unlock(&l->lock);
}

static void host_address(host *h, char out[64]) { snprintf(out, 64, "127.0.0.1:%u", gn__net.port(h->listener)); }

/* ---- fixture: plain sockets ---- */

static int tcp_listen(uint16_t *port) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0) abort();
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) abort();
    *port = ntohs(a.sin_port);
    return fd;
}

static int tcp_connect(uint16_t port) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(port);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) abort();
    return fd;
}

static void fill_random(uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)test_random();
}

/* ---- URLs ---- */

#define PIN64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define PIN43 "ABEiM0RVZneImaq7zN3u_wARIjNEVWZ3iJmqu8zd7v8"
#define CODE22 "ABEiM0RVZneImaq7zN3u_w"

TEST(url_with_all_parts_is_parsed) {
    gn__url u;
    REQUIRE(gn__parse_url("genie://GPU-host.example:77/cuda:1?pin=" PIN64 "&code=" CODE22, &u) == NULL);
    CHECK_STR(u.host, "gpu-host.example");
    CHECK_STR(u.address, "gpu-host.example:77");
    CHECK_STR(u.device, "cuda:1");
    CHECK_INT(u.port, 77);
    CHECK(u.has_pin && u.has_code);
    CHECK_INT(u.pin[1], 0x11);
    CHECK_INT(u.pin[31], 0xff);
    CHECK_INT(u.code[15], 0xff);
    uint8_t hex_pin[GN__PIN];
    memcpy(hex_pin, u.pin, GN__PIN);
    REQUIRE(gn__parse_url("h?code=" CODE22 "&pin=" PIN43, &u) == NULL);
    CHECK(memcmp(hex_pin, u.pin, GN__PIN) == 0);
    CHECK_STR(u.address, "h:5556");
    CHECK_STR(u.device, "");
}

TEST(url_with_ipv6_host_is_parsed) {
    gn__url u;
    REQUIRE(gn__parse_url("[::1]:9/cpu:0", &u) == NULL);
    CHECK_STR(u.host, "::1");
    CHECK_STR(u.address, "[::1]:9");
    CHECK_STR(u.device, "cpu:0");
    REQUIRE(gn__parse_url("genie://[2001:DB8::7]", &u) == NULL);
    CHECK_STR(u.address, "[2001:db8::7]:5556");
    CHECK(!u.has_pin && !u.has_code);
}

static const char *const malformed_urls[] = {
    "",
    " ",
    ":",
    ":1",
    "/",
    "?",
    "genie://",
    "genie://:5",
    "http://h:1",
    "genie:/h",
    "h:",
    "h:0",
    "h:65536",
    "h:99999999999999999999",
    "h:-1",
    "h: 1",
    "h:1x",
    "h::1",
    "::1",
    "[::1",
    "[::1]x",
    "[]",
    "[g::1]:1",
    "[1.2.3.4]:1",
    "[::1%lo]:1",
    "user@h:1",
    "h:1#f",
    "h\t:1",
    "h:1\n",
    "h%41:1",
    "h\x80:1",
    "@x",
    "h,i",
    "h:1/d?",
    "h:1/d/e",
    "h:1/d e",
    "h:1?",
    "h:1?pin",
    "h:1?pin=",
    "h:1?pin=12",
    "h:1?code=",
    "h:1?code=" CODE22 "x",
    "h:1?code=" CODE22 "/cuda:0",
    "h:1?pin=" PIN64 "0",
    "h:1?pin=" PIN43 "=",
    "h:1?pin=" PIN64 "&pin=" PIN64,
    "h:1?code=" CODE22 "&code=" CODE22,
    "h:1?pin=" PIN64 "&",
    "h:1?&pin=" PIN64,
    "h:1?token=x",
    "h:1?PIN=" PIN64,
    "h:1?code=ABEiM0RVZneImaq7zN3u_x",
    "h:1?pin=ABEiM0RVZneImaq7zN3u_wARIjNEVWZ3iJmqu8zd7v9",
    "h:1?code=ABEiM0RVZneImaq7zN3u+w",
};

TEST(url_that_is_malformed_is_refused) {
    gn__url u;
    for (int i = 0; i < TEST_COUNT(malformed_urls); i++)
        if (gn__parse_url(malformed_urls[i], &u) == NULL)
            test_fail(__FILE__, __LINE__, "accepted: %s", malformed_urls[i]);
}

TEST(url_too_long_anywhere_is_refused) {
    static char text[4096];
    gn__url u;
    for (size_t n = 1; n < sizeof text - 1; n++) {
        memset(text, 'a', n);
        text[n] = 0;
        CHECK((gn__parse_url(text, &u) == NULL) == (n < GN__HOST));
        if (n > 2) {
            memcpy(text, "h/", 2);
            CHECK((gn__parse_url(text, &u) == NULL) == (n - 2 < 64));
        }
    }
}

TEST(url_cut_or_changed_anywhere_is_safe) {
    static const char good[] = "genie://[2001:db8::7]:5556/cuda:0?pin=" PIN43 "&code=" CODE22;
    gn__url u;
    for (size_t n = 0; n < sizeof good; n++) {
        char *copy = malloc(n + 1); /* of the exact size, so that a sanitizer sees a read past the end */
        memcpy(copy, good, n);
        copy[n] = 0;
        gn__parse_url(copy, &u);
        for (int i = 0; i < 40 && n > 0; i++) {
            copy[test_random_int(0, (int64_t)n - 1)] = (char)test_random_int(1, 255);
            gn__parse_url(copy, &u);
        }
        free(copy);
    }
}

TEST(listen_address_forms_are_parsed) {
    char name[GN__HOST];
    uint16_t port;
    CHECK(gn__parse_listen(NULL, name, &port) == NULL && port == 5556);
    CHECK_STR(name, "127.0.0.1");
    CHECK(gn__parse_listen(":0", name, &port) == NULL && port == 0);
    CHECK_STR(name, "127.0.0.1");
    CHECK(gn__parse_listen("[::]:7", name, &port) == NULL && port == 7);
    CHECK_STR(name, "::");
    CHECK(gn__parse_listen("host", name, &port) == NULL && port == 5556);
    CHECK(gn__parse_listen("host:1/x", name, &port) != NULL);
    CHECK(gn__parse_listen("host:70000", name, &port) != NULL);
    CHECK(gn__parse_listen("*:1", name, &port) != NULL);
}

TEST(where_from_file_uses_the_first_line) {
    host h;
    char path[GN__PATH], where[GN__PATH + 1], text[2048], home[GN__PATH], tenant[64];
    REQUIRE(host_open(&h));
    folder(path, "url");
    snprintf(where, sizeof where, "@%s", path);
    snprintf(text, sizeof text, "%s\r\nsecond line\n", gn__net.url(h.listener));
    write_text(path, text, 0600);
    CHECK_RESULT(enter_and_leave(where, new_folder(home), tenant), GN_OK);
    CHECK(!log_has("may be read by others"));
    snprintf(text, sizeof text, "%s\n", gn__net.url(h.listener));
    write_text(path, text, 0644);
    CHECK_RESULT(enter_and_leave(where, new_folder(home), tenant), GN_OK);
    CHECK(log_has("may be read by others"));
    host_close(&h);
}

TEST(where_from_a_bad_file_is_refused) {
    char path[GN__PATH], where[GN__PATH + 1], text[3000];
    gn_transport t;
    gn_fault f;
    folder(path, "badurl");
    snprintf(where, sizeof where, "@%s", path);
    unlink(path);
    CHECK_RESULT(dial_in(where, work, 100, &t, &f), GN_IO_ERROR);
    write_text(path, "", 0600);
    CHECK_RESULT(dial_in(where, work, 100, &t, &f), GN_BAD_ARGUMENT);
    write_text(path, "@other\n", 0600);
    CHECK_RESULT(dial_in(where, work, 100, &t, &f), GN_BAD_ARGUMENT);
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    write_text(path, text, 0600);
    CHECK_RESULT(dial_in(where, work, 100, &t, &f), GN_BAD_ARGUMENT);
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0);
    CHECK_RESULT(dial_in(where, work, 100, &t, &f), GN_IO_ERROR);
    CHECK_RESULT(dial_in("@/", work, 100, &t, &f), GN_IO_ERROR);
    CHECK_RESULT(dial_in("@", work, 100, &t, &f), GN_IO_ERROR);
    CHECK_RESULT(dial_in(NULL, work, 100, &t, &f), GN_BAD_ARGUMENT);
    unlink(path);
}

TEST(where_from_standard_input_is_a_line) {
    host h;
    char home[GN__PATH], tenant[64];
    int ends[2], old = dup(0);
    REQUIRE(host_open(&h));
    REQUIRE(pipe(ends) == 0);
    const char *url = gn__net.url(h.listener);
    CHECK(write(ends[1], url, strlen(url)) > 0 && write(ends[1], "\n", 1) == 1);
    close(ends[1]);
    dup2(ends[0], 0);
    close(ends[0]);
    CHECK_RESULT(enter_and_leave("-", new_folder(home), tenant), GN_OK);
    CHECK_RESULT(enter_and_leave("-", home, tenant), GN_BAD_ARGUMENT);
    dup2(old, 0);
    close(old);
    clearerr(stdin);
    host_close(&h);
}

/* ---- connecting ---- */

static void check_socket(int fd) {
    int nodelay = 0, alive = 0;
    socklen_t n = sizeof nodelay;
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &n) == 0 && nodelay != 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &n) == 0 && alive != 0);
}

TEST(handshake_with_url_gives_tls) {
    host h;
    gn_transport t;
    gn_link_info info;
    char home[GN__PATH], tenant[64], address[64];
    REQUIRE(host_open(&h));
    host_address(&h, address);
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    t.i->info(t.self, &info);
#if defined(GN__TLS_MAX)
    CHECK_STR(info.tls, GN__TLS_MAX == MBEDTLS_SSL_VERSION_TLS1_3 ? "TLSv1.3" : "TLSv1.2");
#else
    CHECK_STR(info.tls, "TLSv1.2");
#endif
    CHECK_STR(info.peer, address);
    bool aes = gn__crypto_use() != NULL && gn__crypto_use()->aes_faster;
    CHECK(strstr(info.cipher, aes ? "AES" : "CHACHA20-POLY1305") != NULL);
    CHECK_STR(info.records, gn__crypto_use() != NULL ? gn__crypto_use()->text : GN__STOCK);
    CHECK(info.bytes_up > 200 && info.bytes_down > 500);
    CHECK_INT(strlen(tenant), 2 * GN__ID);
    check_socket(((gn__link *)t.self)->fd);
    CHECK(fcntl(((gn__listener *)h.listener)->fd, F_GETFD) & FD_CLOEXEC);
    t.i->close(t.self);
    host_close(&h);
}

typedef struct pump {
    gn_transport t;
    const uint8_t *data;
    size_t n;
    gn_result result;
} pump;

static void *pump_all(void *arg) {
    pump *p = arg;
    p->result = p->t.i->send(p->t.self, p->data, p->n, 60000);
    return NULL;
}

/* Sends and receives at once, from two threads. */
static void echo(gn_transport t, size_t n) {
    uint8_t *a = malloc(n), *b = malloc(n);
    pthread_t thread;
    pump p = { t, a, n, GN_OK };
    fill_random(a, n);
    memset(b, 0, n);
    if (pthread_create(&thread, NULL, pump_all, &p) != 0) abort();
    CHECK_RESULT(recv_all(t, b, n, 60000), GN_OK);
    pthread_join(thread, NULL);
    CHECK_RESULT(p.result, GN_OK);
    CHECK(memcmp(a, b, n) == 0);
    free(a);
    free(b);
}

TEST(echo_of_all_sizes_is_exact) {
    static const size_t sizes[] = {
        1, 2, 255, 16383, 16384, 16385, 65536, (256u << 10) - 1, (256u << 10) + 1, 4u << 20
    };
    host h;
    gn_transport t;
    char home[GN__PATH], tenant[64];
    REQUIRE(host_open(&h));
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    for (int i = 0; i < TEST_COUNT(sizes); i++) echo(t, sizes[i]);
    for (int i = 0; i < 20; i++) echo(t, (size_t)test_random_int(1, 200000));
    t.i->close(t.self);
    host_close(&h);
}

TEST(short_and_interrupted_reads_and_writes_are_exact) {
    host h;
    gn_transport t;
    char home[GN__PATH], tenant[64];
    REQUIRE(host_open(&h));
    atomic_store(&rough, true);
    gn_result r = enter(gn__net.url(h.listener), new_folder(home), &t, tenant);
    CHECK_RESULT(r, GN_OK);
    if (r == GN_OK) {
        for (size_t n = 1; n < 100000; n = n * 7 + 3) echo(t, n);
        t.i->close(t.self);
    }
    atomic_store(&rough, false);
    host_close(&h);
}

TEST(several_records_leave_in_one_call) {
    static uint8_t data[40000];
    host h;
    gn_transport t;
    gn_fault f;
    char home[GN__PATH];
    REQUIRE(host_open(&h));
    h.silent = true;
    REQUIRE(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f) == GN_OK);
    nap(20);
    unsigned before = atomic_load(&send_calls);
    CHECK_RESULT(t.i->send(t.self, data, sizeof data, 1000), GN_OK);
    CHECK_INT(atomic_load(&send_calls) - before, 1);
    t.i->close(t.self);
    host_close(&h);
}

TEST(answers_without_end_are_refused) {
    static uint8_t data[16384];
    host h;
    gn_transport t;
    gn_fault f;
    char home[GN__PATH];
    REQUIRE(host_open(&h));
    REQUIRE(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f) == GN_OK);
    gn__link *l = t.self;
    int taken = 0;
    /* a peer that makes mbedTLS answer, nobody sends */
    while (taken < 100 && gn__bio_send(l, data, sizeof data) > 0) taken++;
    CHECK_INT(taken, GN__OUT_MAX / sizeof data);
    l->out.n = 0;
    t.i->close(t.self);
    host_close(&h);
}

TEST(device_in_url_is_returned) {
    host h;
    char url[GN__URL_MAX + 16], device[64], home[GN__PATH];
    gn_transport t;
    gn_fault f;
    REQUIRE(host_open(&h));
    gn_net_desc d = { new_folder(home), 5000, keep_log, NULL };
    const char *from = gn__net.url(h.listener), *query = strchr(from, '?');
    snprintf(url, sizeof url, "%.*s/cuda:3%s", (int)(query - from), from, query);
    REQUIRE(gn__net.connect(url, &d, &t, device, &f) == GN_OK);
    CHECK_STR(device, "cuda:3");
    t.i->close(t.self);
    host_close(&h);
}

TEST(code_is_taken_once) {
    host h;
    char url[GN__URL_MAX], home[GN__PATH], tenant[64], other[64];
    REQUIRE(host_open(&h));
    snprintf(url, sizeof url, "%s", gn__net.url(h.listener));
    CHECK_RESULT(enter_and_leave(url, new_folder(home), tenant), GN_OK);
    CHECK_RESULT(enter_and_leave(url, new_folder(home), other), GN_BAD_CREDENTIAL);
    CHECK(strcmp(url, gn__net.url(h.listener)) != 0);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), other), GN_OK);
    CHECK(strcmp(tenant, other) != 0);
    host_close(&h);
}

TEST(stored_credential_reconnects) {
    host h;
    char url[GN__URL_MAX], address[64], home[GN__PATH], tenant[64], again[64];
    REQUIRE(host_open(&h));
    snprintf(url, sizeof url, "%s", gn__net.url(h.listener));
    host_address(&h, address);
    CHECK_RESULT(enter_and_leave(address, new_folder(home), tenant), GN_INSECURE);
    CHECK_RESULT(enter_and_leave(url, home, tenant), GN_OK);
    CHECK_RESULT(enter_and_leave(address, home, again), GN_OK);
    CHECK_STR(again, tenant);
    char scheme[128];
    snprintf(scheme, sizeof scheme, "genie://%s/cpu:0", address);
    CHECK_RESULT(enter_and_leave(scheme, home, again), GN_OK);
    CHECK_RESULT(enter_and_leave(url, home, again), GN_OK); /* the used URL: its code is spent, the credential counts */
    CHECK_STR(again, tenant);
    host_close(&h);
}

TEST(server_restarted_keeps_key_and_clients) {
    host h;
    char home[GN__PATH], server_home[GN__PATH], where[64], tenant[64], again[64], pin[44];
    REQUIRE(host_open(&h));
    uint16_t port = gn__net.port(h.listener);
    snprintf(server_home, sizeof server_home, "%s", h.home);
    snprintf(pin, sizeof pin, "%s", strstr(gn__net.url(h.listener), "pin=") + 4);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    host_close(&h);
    snprintf(where, sizeof where, "127.0.0.1:%u", port);
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .listen = where, .home = server_home }));
    CHECK(strncmp(strstr(gn__net.url(h.listener), "pin=") + 4, pin, 43) == 0);
    CHECK_RESULT(enter_and_leave(where, home, again), GN_OK);
    CHECK_STR(again, tenant);
    host_close(&h);
}

TEST(server_with_another_key_is_refused) {
    host h;
    char home[GN__PATH], where[64], tenant[64];
    gn_transport t;
    gn_fault f;
    REQUIRE(host_open(&h));
    host_address(&h, where);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    host_close(&h);
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .listen = where })); /* a fresh home: a fresh key */
    CHECK_RESULT(dial_in(where, home, 5000, &t, &f), GN_BAD_PIN);
    CHECK(strstr(f.text, "new URL") != NULL);
    /* the new URL pairs anew, without showing the old server's secret to the new one, and the stored line is
       replaced */
    REQUIRE(dial_in(gn__net.url(h.listener), home, 5000, &t, &f) == GN_OK);
    uint8_t proof[256];
    CHECK_INT(t.i->auth(t.self, proof), 2 + GN__CODE);
    t.i->close(t.self);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), home, tenant), GN_OK);
    CHECK_RESULT(enter_and_leave(where, home, tenant), GN_OK);
    host_close(&h);
}

TEST(wrong_pin_is_refused_before_anything_is_sent) {
    host h;
    char url[256], home[GN__PATH];
    gn_transport t;
    gn_fault f;
    REQUIRE(host_open(&h));
    snprintf(url, sizeof url, "genie://127.0.0.1:%u?pin=" PIN64 "&code=" CODE22, gn__net.port(h.listener));
    CHECK_RESULT(dial_in(url, new_folder(home), 5000, &t, &f), GN_BAD_PIN);
    CHECK(t.i == NULL && t.self == NULL);
    host_served(&h, 1);
    CHECK_RESULT((gn_result)atomic_load(&h.last_handshake), GN_TLS_FAILED);
    CHECK(!log_has(CODE22));
    host_close(&h);
}

/* The URL of h with another code. */
static void wrong_code_url(host *h, char out[GN__URL_MAX]) {
    snprintf(out, GN__URL_MAX, "%s", gn__net.url(h->listener));
    char *code = strstr(out, "code=") + 5;
    *code = *code == 'A' ? 'B' : 'A';
}

/* Whatever a stranger tries, the URL that was given out stays good, and the file is not written. */
TEST(wrong_codes_change_nothing) {
    host h;
    char bad[GN__URL_MAX], url[GN__URL_MAX], home[GN__PATH], file[GN__PATH], tenant[64];
    struct stat before, after;
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .url_file = folder(file, "wrong-codes.url") }));
    snprintf(url, sizeof url, "%s", gn__net.url(h.listener));
    CHECK(strlen(strstr(url, "&code=")) == 6 + 22);
    CHECK(stat(file, &before) == 0);
    for (int i = 0; i < 7; i++) {
        wrong_code_url(&h, bad);
        CHECK_RESULT(enter_and_leave(bad, new_folder(home), tenant), GN_BAD_CREDENTIAL);
        CHECK_STR(gn__net.url(h.listener), url);
        CHECK(!log_has(strstr(url, "&code=") + 6) && !log_has(strstr(bad, "&code=") + 6));
    }
    CHECK(stat(file, &after) == 0 && after.st_ino == before.st_ino && after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    CHECK_RESULT(enter_and_leave(url, new_folder(home), tenant), GN_OK);
    CHECK(stat(file, &after) == 0 && after.st_ino != before.st_ino);
    host_close(&h);
}

/* Each failure from an address makes its next connections wait longer, at most 2 s; a success ends that. */
TEST(failures_slow_their_address) {
    host h;
    char bad[GN__URL_MAX], home[GN__PATH], tenant[64];
    REQUIRE(host_open(&h));
    gn__listener *l = h.listener;
    const uint8_t here[GN__NETWORK] = { 0, 0, 0, 0, 127, 0, 0, 1 }, there[GN__NETWORK] = { 0, 0, 0, 0, 127, 0, 0, 2 };
    for (uint64_t i = 0, ms = 0; i < 5; i++, ms = ms ? ms * 2 : 50) {
        CHECK_INT(gn__failures_delay_us(l, here), ms * 1000);
        CHECK_INT(gn__failures_delay_us(l, there), 0);
        wrong_code_url(&h, bad);
        uint64_t start = gn_now_us();
        CHECK_RESULT(enter_and_leave(bad, new_folder(home), tenant), GN_BAD_CREDENTIAL);
        CHECK(seconds(start) * 1e3 >= (double)ms);
    }
    for (int i = 0; i < 100; i++) gn__failure_note(l, here, true);
    CHECK_INT(gn__failures_delay_us(l, here), 2000000);
    CHECK_RESULT(enter_and_leave(gn__net.url(l), new_folder(home), tenant), GN_OK);
    CHECK_INT(gn__failures_delay_us(l, here), 0);
    host_close(&h);
}

/* More addresses than are counted: the latest are, and none is counted for another. */
TEST(failures_of_many_addresses_are_bounded) {
    host h;
    enum { N = GN__FAILURES * 4 };
    REQUIRE(host_open(&h));
    gn__listener *l = h.listener;
    for (uint32_t i = 0; i < N; i++) {
        const uint8_t network[GN__NETWORK] = { 0, 0, 0, 0, 10, 0, (uint8_t)(i >> 8), (uint8_t)i };
        CHECK_INT(gn__failures_delay_us(l, network), 0);
        for (uint32_t k = 0; k <= i % 3; k++) gn__failure_note(l, network, true);
        CHECK_INT(gn__failures_delay_us(l, network), 50000u << i % 3);
    }
    const uint8_t last[GN__NETWORK] = { 0, 0, 0, 0, 10, 0, (N - 1) >> 8, (N - 1) & 255 },
                  first[GN__NETWORK] = { 0, 0, 0, 0, 10 };
    CHECK(gn__failures_delay_us(l, last) > 0);
    CHECK_INT(gn__failures_delay_us(l, first), 0);
    host_close(&h);
}

TEST(networks_of_addresses_are_their_own) {
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        { "1.2.3.4", "1.2.3.4", true },
        { "1.2.3.4", "1.2.3.5", false },
        { "::ffff:1.2.3.4", "1.2.3.4", true },
        { "2001:db8::1", "2001:db8::ffff", true },
        { "2001:db8:0:1::1", "2001:db8::1", false },
        { "2001:db8::1", "1.2.3.4", false },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        uint8_t out[2][GN__NETWORK];
        for (int k = 0; k < 2; k++) {
            struct sockaddr_storage sa = { 0 };
            struct sockaddr_in v4 = { .sin_family = AF_INET };
            struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
            const char *text = k ? cases[i].b : cases[i].a;
            if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) memcpy(&sa, &v4, sizeof v4);
            else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) memcpy(&sa, &v6, sizeof v6);
            gn__network_of(&sa, out[k]);
        }
        if ((memcmp(out[0], out[1], GN__NETWORK) == 0) != cases[i].same)
            test_fail(__FILE__, __LINE__, "%s and %s", cases[i].a, cases[i].b);
    }
}

/* A code ends with its time: the URL and its file change by themselves, and whoever has the old one is told. */
TEST(code_that_is_old_expires) {
    host h;
    char url[GN__URL_MAX], line[GN__URL_MAX], home[GN__PATH], file[GN__PATH], tenant[64];
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .url_file = folder(file, "expires.url"), .code_hours = 5 }));
    gn__listener *l = h.listener;
    uint64_t left = l->code_ends_us - gn_now_us();
    CHECK(left > UINT64_C(17900000000) && left <= UINT64_C(18000000000));
    snprintf(url, sizeof url, "%s", gn__net.url(l));
    pthread_mutex_lock(&l->lock);
    l->code_ends_us = gn_now_us() + 100000;
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < 500 && strcmp(gn__net.url(l), url) == 0; i++) nap(10);
    CHECK(strcmp(gn__net.url(l), url) != 0);
    CHECK(read_text(file, line, sizeof line));
    CHECK(strncmp(line, gn__net.url(l), strlen(gn__net.url(l))) == 0);
    CHECK_RESULT(enter_and_leave(url, new_folder(home), tenant), GN_BAD_CREDENTIAL);
    CHECK(log_has("this pairing code has expired"));
    CHECK_RESULT(enter_and_leave(gn__net.url(l), new_folder(home), tenant), GN_OK);
    host_close(&h);
    REQUIRE(host_open(&h));
    left = ((gn__listener *)h.listener)->code_ends_us - gn_now_us();
    CHECK(left > UINT64_C(86000000000) && left <= UINT64_C(86400000000));
    host_close(&h);
}

/* A server that hands over to itself keeps the code, but not longer than the code lasts. */
TEST(code_kept_over_a_handover_keeps_its_age) {
    char home[GN__PATH], file[GN__PATH], url[GN__URL_MAX];
    for (int hours = 0; hours <= 24; hours += 6) {
        gn_server_desc d = { .listen = ":0", .home = new_folder(home), .url_file = folder(file, "age.url") };
        void *l;
        REQUIRE(gn__net.listen(&d, &l, NULL) == GN_OK);
        snprintf(url, sizeof url, "%s", gn__net.url(l));
        d.listen_fd = gn__net.handover(l);
        gn__net.unlisten(l);
        struct timespec age[2] = { { time(NULL) - hours * 3600, 0 }, { time(NULL) - hours * 3600, 0 } };
        CHECK(utimensat(AT_FDCWD, file, age, 0) == 0);
        REQUIRE(gn__net.listen(&d, &l, NULL) == GN_OK);
        CHECK((strcmp(strstr(gn__net.url(l), "code="), strstr(url, "code=")) == 0) == (hours < 24));
        double left = (double)(((gn__listener *)l)->code_ends_us - gn_now_us()) / 3.6e9;
        CHECK_NEAR(left, hours < 24 ? 24 - hours : 24, 0.1);
        gn__net.unlisten(l);
    }
}

/* Only who has a used code, or a revoked credential, hears what became of it; every other guess gets one and the same
   answer. */
TEST(refusals_tell_only_the_owner) {
    host h;
    char url[GN__URL_MAX], home[GN__PATH], path[GN__PATH + 16], tenant[64];
    gn_transport t;
    REQUIRE(host_open(&h));
    gn__listener *l = h.listener;
    snprintf(url, sizeof url, "%s", gn__net.url(l));
    REQUIRE(enter(url, new_folder(home), &t, tenant) == GN_OK);
    t.i->close(t.self);
    gn__proof had, p;
    gn__url u;
    uint8_t pin[GN__PIN];
    char address[64], what[64];
    bool found;
    gn_fault f;
    host_address(&h, address);
    memset(&had, 0, sizeof had);
    REQUIRE(gn__credential(home, address, pin, &had, &found, &f) == GN_OK && found);
    REQUIRE(gn__parse_url(url, &u) == NULL);
    snprintf(path, sizeof path, "%s/clients", h.home);
    static const char *const said[] = { "not accepted", "was used", "was revoked" };
    for (int i = 0; i < 400; i++) {
        int kind = i % 4; /* a code or a credential; as it was, or with one bit changed */
        bool right = kind & 1, code = kind & 2;
        size_t n_grant;
        uint8_t grant[256];
        p = had;
        p.flags = code ? GN__PROOF_CODE : GN__PROOF_CREDENTIAL;
        memcpy(p.code, u.code, GN__CODE);
        if (i == 4) write_text(path, "# nobody\n", 0600);
        if (i == 200) { /* after another start, which knows nobody: the line is still there, marked */
            char line[200], id[2 * GN__ID + 1], digest[65];
            uint8_t hash[32];
            memset(l->guests, 0, sizeof l->guests);
            gn__hex(had.id, GN__ID, id);
            gn__net_sha256(had.secret, GN__SECRET, hash);
            gn__hex(hash, sizeof hash, digest);
            snprintf(line, sizeof line, "#%s %s\n", id, digest);
            write_text(path, line, 0600);
        }
        uint8_t *at = code ? p.code : i & 8 ? p.id : p.secret;
        size_t size = code ? GN__CODE : i & 8 ? GN__ID : GN__SECRET;
        if (!right) at[test_random() % size] ^= (uint8_t)(1u << test_random() % 8);
        gn_result r = gn__check_proof(l, &p, "somebody", what, grant, &n_grant, &f);
        bool member = right && !code && i < 4;
        CHECK_RESULT(r, member ? GN_OK : GN_BAD_CREDENTIAL);
        const char *want = !right || member ? said[0] : code ? said[1] : said[2];
        if (!member && strstr(f.text, want) == NULL)
            test_fail(__FILE__, __LINE__, "case %d: \"%s\" does not say %s", i, f.text, want);
    }
    host_close(&h);
}

TEST(url_file_of_a_server_that_runs_is_not_written) {
    char home[GN__PATH], other[GN__PATH], file[GN__PATH], before[GN__URL_MAX], after[GN__URL_MAX];
    gn_server_desc d = { .listen = ":0", .home = new_folder(home), .url_file = folder(file, "shared.url") };
    void *first, *second = NULL;
    gn_fault f;
    REQUIRE(gn__net.listen(&d, &first, &f) == GN_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(read_text(file, before, sizeof before));
        if (i == 2) d.home = new_folder(other); /* another home, the same file */
        CHECK_RESULT(gn__net.listen(&d, &second, &f), GN_BAD_ARGUMENT);
        CHECK(strstr(f.text, "--url-file") != NULL && strstr(f.text, file) != NULL);
        CHECK(read_text(file, after, sizeof after));
        CHECK_STR(after, before);
        gn__replace_code(first, GN__CODE_USED, "used"); /* the file is another one now, and as well guarded */
    }
    gn__net.unlisten(first);
    REQUIRE(gn__net.listen(&d, &second, &f) == GN_OK); /* a server that is gone guards nothing */
    gn__net.unlisten(second);
}

/* Many servers that start at once with one home: one of them has the file. */
TEST(servers_that_start_at_once_do_not_share_a_url_file) {
    enum { N = 6 };
    char home[GN__PATH], file[GN__PATH], line[GN__URL_MAX], port[16];
    pid_t pids[N];
    int ends[2], won = 0;
    new_folder(home);
    folder(file, "at-once.url");
    REQUIRE(pipe(ends) == 0);
    for (int i = 0; i < N; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        gn_server_desc d = { .listen = ":0", .home = home, .url_file = file };
        void *l;
        uint16_t told[2] = { 0, 0 };
        gn_result r = gn__net.listen(&d, &l, NULL);
        if (r == GN_OK) told[0] = 1, told[1] = gn__net.port(l);
        if (write(ends[1], told, sizeof told) != sizeof told) _exit(1);
        nap(r == GN_OK ? 3000 : 0);
        _exit(0);
    }
    for (int i = 0; i < N; i++) {
        uint16_t told[2];
        REQUIRE(read(ends[0], told, sizeof told) == sizeof told);
        won += told[0];
        if (told[0]) snprintf(port, sizeof port, ":%u?", told[1]);
    }
    CHECK_INT(won, 1);
    CHECK(read_text(file, line, sizeof line) && strstr(line, port) != NULL);
    for (int i = 0; i < N; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    close(ends[0]);
    close(ends[1]);
}

TEST(url_names_what_is_advertised) {
    static const struct {
        const char *listen, *advertise, *host, *port;
    } cases[] = {
        { "127.0.0.1:0", NULL, "genie://127.0.0.1:", NULL },
        { "127.0.0.1:0", "gpu.example.org", "genie://gpu.example.org:", NULL },
        { "0.0.0.0:0", "10.1.2.3", "genie://10.1.2.3:", NULL },
        { "127.0.0.1:0", "gpu:443", "genie://gpu:", "443" },
        { "127.0.0.1:0", "[2001:db8::1]:99", "genie://[2001:db8::1]:", "99" },
    };
    static const char *const wrong[] = { "", ":5", "a b", "a:0", "a:99999", "a/b", "[::1", "a?b" };
    char home[GN__PATH], port[16];
    void *l;
    gn_fault f;
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        gn_server_desc d = { .listen = cases[i].listen, .home = new_folder(home), .advertise = cases[i].advertise };
        REQUIRE(gn__net.listen(&d, &l, &f) == GN_OK);
        size_t n = strlen(cases[i].host);
        snprintf(port, sizeof port, "%u", gn__net.port(l));
        const char *want = cases[i].port ? cases[i].port : port;
        CHECK(strncmp(gn__net.url(l), cases[i].host, n) == 0 && strncmp(gn__net.url(l) + n, want, strlen(want)) == 0);
        gn__net.unlisten(l);
    }
    for (int i = 0; i < TEST_COUNT(wrong); i++) {
        gn_server_desc d = { .listen = ":0", .home = new_folder(home), .advertise = wrong[i] };
        CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_BAD_ARGUMENT);
        CHECK(strstr(f.text, "advertise") != NULL);
    }
    gn_server_desc any = { .listen = "0.0.0.0:0", .home = new_folder(home), .log = keep_log };
    REQUIRE(gn__net.listen(&any, &l, &f) == GN_OK);
    CHECK(log_has("--advertise"));
    gn__net.unlisten(l);
}

TEST(credential_altered_or_revoked_is_refused) {
    host h;
    char home[GN__PATH], address[64], tenant[64], path[GN__PATH + 16], text[1024];
    gn_transport t;
    gn_fault f;
    REQUIRE(host_open(&h));
    host_address(&h, address);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    snprintf(path, sizeof path, "%s/servers", home);
    CHECK(read_text(path, text, sizeof text));
    size_t last = strlen(text) - 2;
    text[last] = text[last] == '0' ? '1' : '0';
    write_text(path, text, 0600);
    CHECK_RESULT(enter_and_leave(address, home, tenant), GN_BAD_CREDENTIAL);
    text[last] = 'x';
    write_text(path, text, 0600);
    CHECK_RESULT(dial_in(address, home, 5000, &t, &f), GN_IO_ERROR);
    text[last] = 0;
    write_text(path, text, 0600);
    CHECK_RESULT(dial_in(address, home, 5000, &t, &f), GN_IO_ERROR);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    CHECK_RESULT(enter_and_leave(address, home, tenant), GN_OK);
    snprintf(path, sizeof path, "%s/clients", h.home);
    write_text(path, "# nobody\n", 0600);
    CHECK_RESULT(enter_and_leave(address, home, tenant), GN_BAD_CREDENTIAL);
    host_close(&h);
}

TEST(proof_malformed_is_refused) {
    host h;
    char home[GN__PATH], tenant[64];
    gn_transport t;
    gn_fault f;
    uint8_t message[257], answer[3];
    REQUIRE(host_open(&h));
    for (int i = 0; i < 40; i++) {
        size_t n = i == 0 ? 0 : (size_t)test_random_int(1, 255);
        fill_random(message + 1, n);
        if (i & 1) message[1] = 1;
        if (i & 2) message[2] = (uint8_t)test_random_int(0, 4);
        message[0] = (uint8_t)n;
        if (n == 18 || n == 50 || n == 66) continue;
        REQUIRE(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f) == GN_OK);
        CHECK_RESULT(t.i->send(t.self, message, n + 1, 5000), GN_OK);
        CHECK_RESULT(recv_all(t, answer, 3, 5000), GN_OK);
        CHECK_INT(answer[0], GN_BAD_CREDENTIAL);
        CHECK_INT(answer[1], 0);
        t.i->close(t.self);
        host_forgive(&h);
    }
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), home, tenant), GN_OK);
    host_close(&h);
}

TEST(url_without_code_or_pin_says_what_to_do) {
    host h;
    char url[256], home[GN__PATH];
    gn_transport t;
    gn_fault f;
    REQUIRE(host_open(&h));
    snprintf(url, sizeof url, "127.0.0.1:%u?pin=" PIN64, gn__net.port(h.listener));
    CHECK_RESULT(dial_in(url, new_folder(home), 5000, &t, &f), GN_BAD_CREDENTIAL);
    CHECK(strstr(f.text, "get a new URL") != NULL);
    snprintf(url, sizeof url, "127.0.0.1:%u?code=" CODE22, gn__net.port(h.listener));
    CHECK_RESULT(dial_in(url, home, 5000, &t, &f), GN_INSECURE);
    CHECK(strstr(f.text, "connect once with the URL") != NULL);
    CHECK(strstr(f.text, CODE22) == NULL);
    host_close(&h);
}

TEST(port_in_use_is_said) {
    host h;
    char where[64], home[GN__PATH];
    void *second = &h;
    gn_fault f;
    REQUIRE(host_open(&h));
    host_address(&h, where);
    gn_server_desc d = { .listen = where, .home = new_folder(home) };
    CHECK_RESULT(gn__net.listen(&d, &second, &f), GN_PORT_IN_USE);
    CHECK(second == NULL && strstr(f.text, where) != NULL);
    host_close(&h);
}

TEST(listen_on_a_bad_address_is_said) {
    char home[GN__PATH];
    void *l;
    gn_fault f;
    gn_server_desc d = { .listen = "192.0.2.1:0", .home = new_folder(home) }; /* TEST-NET-1: no machine has it */
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_IO_ERROR);
    CHECK(strstr(f.text, "not an address of this machine") != NULL);
    d.listen = "127.0.0.1:99999";
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_BAD_ARGUMENT);
    d.listen = "127.0.0.1:0";
    d.url_file = "/nonexistent/folder/url";
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_IO_ERROR);
    d.url_file = NULL;
    d.key = "/nonexistent";
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_BAD_ARGUMENT);
}

TEST(listen_on_a_public_address_still_demands_a_proof) {
    host h;
    gn_transport t;
    gn_fault f;
    char where[64], tenant[64], home[GN__PATH];
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .listen = "0.0.0.0:0" }));
    const char *code = strstr(gn__net.url(h.listener), "pin=");
    REQUIRE(code != NULL && strstr(code, "&code=") != NULL);
    CHECK(strstr(gn__net.url(h.listener), "0.0.0.0") == NULL);
    host_address(&h, where);
    CHECK_RESULT(dial_in(where, new_folder(home), 5000, &t, &f), GN_INSECURE);
    char url[256];
    snprintf(url, sizeof url, "%s?%s", where, code);
    CHECK_RESULT(enter_and_leave(url, home, tenant), GN_OK);
    host_close(&h);
}

TEST(ipv6_listener_is_reached) {
    host h;
    char home[GN__PATH], tenant[64];
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    bool there = probe >= 0 && bind(probe, (struct sockaddr *)&a, sizeof a) == 0;
    if (probe >= 0) close(probe);
    if (!there) {
        test_skip("this machine has no IPv6");
        return;
    }
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .listen = "[::1]:0" }));
    CHECK(strncmp(gn__net.url(h.listener), "genie://[::1]:", 14) == 0);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    host_close(&h);
}

TEST(nobody_listening_is_unreachable) {
    uint16_t port;
    char url[256];
    gn_transport t;
    gn_fault f;
    close(tcp_listen(&port));
    snprintf(url, sizeof url, "127.0.0.1:%u?pin=" PIN64 "&code=" CODE22, port);
    CHECK_RESULT(dial_in(url, work, 5000, &t, &f), GN_UNREACHABLE);
    CHECK(strstr(f.text, "start genie_serve") != NULL);
    CHECK(strstr(f.text, CODE22) == NULL);
    CHECK_RESULT(dial_in("no-such-host.invalid:1?pin=" PIN64 "&code=" CODE22, work, 20000, &t, &f), GN_UNREACHABLE);
}

/* ---- deadlines ---- */

static void check_timeout(gn_result r, uint64_t start, double limit, const char *what) {
    CHECK_RESULT(r, GN_TIMEOUT);
    double took = seconds(start);
    if (took < limit * 0.9 || took > limit + 3.0)
        test_fail(__FILE__, __LINE__, "%s took %.3f s, the deadline is %.3f s", what, took, limit);
}

TEST(server_that_never_answers_is_a_timeout) {
    uint16_t port;
    int fd = tcp_listen(&port);
    char url[256];
    gn_transport t;
    gn_fault f;
    snprintf(url, sizeof url, "127.0.0.1:%u?pin=" PIN64 "&code=" CODE22, port);
    uint64_t start = gn_now_us();
    check_timeout(dial_in(url, work, 300, &t, &f), start, 0.3, "connect");
    close(fd);
}

TEST(server_that_stops_is_a_timeout) {
    host h;
    char home[GN__PATH];
    gn_transport t;
    gn_fault f;
    uint8_t byte;
    size_t n, big = 32u << 20;
    REQUIRE(host_open(&h));
    h.silent = true;
    REQUIRE(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f) == GN_OK);
    uint64_t start = gn_now_us();
    check_timeout(t.i->recv(t.self, &byte, 1, &n, 200), start, 0.2, "recv");
    uint8_t *data = calloc(1, big);
    start = gn_now_us();
    check_timeout(t.i->send(t.self, data, big, 300), start, 0.3, "send");
    CHECK_RESULT(t.i->send(t.self, data, 1, 300), GN_TIMEOUT); /* half a record is out: the stream is over */
    free(data);
    t.i->close(t.self);
    host_close(&h);
}

typedef struct slow {
    int fd;
    atomic_bool stop;
    bool sends;
} slow;

/* Reads or sends a byte now and then, on one connection. */
static void *slow_peer(void *arg) {
    slow *s = arg;
    struct pollfd p = { s->fd, POLLIN, 0 };
    int small = 1024, c = -1;
    setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (poll(&p, 1, 5000) == 1) c = accept(s->fd, NULL, NULL);
    /* the head of a TLS handshake record of 16 KiB, which the client must wait for */
    static const uint8_t record[] = { 22, 3, 3, 0x40, 0, 2, 0, 0x3f, 0xfc, 3, 3 };
    for (size_t i = 0; !atomic_load(&s->stop) && c >= 0; i++) {
        uint8_t byte = i < sizeof record ? record[i] : 0;
        if (s->sends ? send(c, &byte, 1, MSG_NOSIGNAL) < 1 : recv(c, &byte, 1, MSG_DONTWAIT) == 0) break;
        nap(20);
    }
    if (c >= 0) close(c);
    return NULL;
}

TEST(peer_that_sends_a_byte_at_a_time_is_a_timeout) {
    uint16_t port;
    slow s = { tcp_listen(&port), false, true };
    char url[256];
    gn_transport t;
    gn_fault f;
    pthread_t thread;
    pthread_create(&thread, NULL, slow_peer, &s);
    snprintf(url, sizeof url, "127.0.0.1:%u?pin=" PIN64 "&code=" CODE22, port);
    uint64_t start = gn_now_us();
    check_timeout(dial_in(url, work, 500, &t, &f), start, 0.5, "connect");
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    close(s.fd);
}

TEST(peer_that_takes_a_byte_at_a_time_is_a_timeout) {
    uint16_t port;
    slow s = { tcp_listen(&port), false, false };
    gn_transport t;
    pthread_t thread;
    size_t big = 32u << 20;
    uint8_t *data = calloc(1, big);
    pthread_create(&thread, NULL, slow_peer, &s);
    REQUIRE(gn__net.plain(tcp_connect(port), &t) == GN_OK);
    uint64_t start = gn_now_us();
    check_timeout(t.i->send(t.self, data, big, 400), start, 0.4, "send");
    t.i->close(t.self);
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    close(s.fd);
    free(data);
}

TEST(clients_that_stall_do_not_stop_an_honest_one) {
    host h;
    int fds[100];
    char home[GN__PATH], tenant[64];
    REQUIRE(host_open(&h));
    for (int i = 0; i < 100; i++) {
        fds[i] = tcp_connect(gn__net.port(h.listener));
        CHECK(send(fds[i], "\x16", 1, MSG_NOSIGNAL) == 1);
    }
    uint64_t start = gn_now_us();
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    CHECK(seconds(start) < 3.0);
    host_served(&h, 101); /* each ends by its deadline of 1.5 s */
    CHECK(seconds(start) < 10.0);
    for (int i = 0; i < 100; i++) close(fds[i]);
    host_close(&h);
}

typedef struct waiter {
    gn_transport t;
    gn_result result;
} waiter;

static void *wait_for_byte(void *arg) {
    waiter *w = arg;
    uint8_t byte;
    size_t n;
    w->result = w->t.i->recv(w->t.self, &byte, 1, &n, 20000);
    return NULL;
}

TEST(interrupt_wakes_a_blocked_receiver) {
    host h;
    char home[GN__PATH], tenant[64];
    waiter w;
    pthread_t thread;
    REQUIRE(host_open(&h));
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &w.t, tenant) == GN_OK);
    pthread_create(&thread, NULL, wait_for_byte, &w);
    nap(50);
    uint64_t start = gn_now_us();
    w.t.i->interrupt(w.t.self);
    pthread_join(thread, NULL);
    CHECK(seconds(start) < 2.0);
    CHECK_RESULT(w.result, GN_DISCONNECTED);
    CHECK_RESULT(w.t.i->send(w.t.self, "x", 1, 100), GN_DISCONNECTED);
    w.t.i->close(w.t.self);
    host_close(&h);
}

static void on_signal(int n) { (void)n; }

TEST(signals_do_not_disturb_a_transfer) {
    host h;
    char home[GN__PATH], tenant[64];
    gn_transport t;
    pthread_t thread;
    size_t n = 8u << 20;
    uint8_t *a = malloc(n), *b = calloc(1, n);
    struct sigaction act = { .sa_handler = on_signal }, old; /* no SA_RESTART: calls end with EINTR */
    REQUIRE(host_open(&h));
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    sigaction(SIGUSR1, &act, &old);
    fill_random(a, n);
    pump p = { t, a, n, GN_OK };
    pthread_create(&thread, NULL, pump_all, &p);
    for (size_t got = 0, k; got < n; got += k) {
        pthread_kill(thread, SIGUSR1);
        k = 0;
        REQUIRE(t.i->recv(t.self, b + got, n - got, &k, 20000) == GN_OK);
    }
    pthread_join(thread, NULL);
    CHECK_RESULT(p.result, GN_OK);
    CHECK(memcmp(a, b, n) == 0);
    sigaction(SIGUSR1, &old, NULL);
    free(a);
    free(b);
    t.i->close(t.self);
    host_close(&h);
}

/* ---- peers that break ---- */

static atomic_int broken_pipes;
static void on_broken_pipe(int n) {
    (void)n;
    atomic_fetch_add(&broken_pipes, 1);
}

TEST(peer_gone_is_disconnected_without_a_signal) {
    host h;
    char home[GN__PATH], tenant[64];
    gn_transport t;
    gn_result r = GN_OK;
    uint8_t byte, data[4096] = { 0 };
    size_t n;
    struct sigaction act = { .sa_handler = on_broken_pipe }, old;
    sigaction(SIGPIPE, &act, &old);
    REQUIRE(host_open(&h));
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    host_close(&h);
    CHECK_RESULT(t.i->recv(t.self, &byte, 1, &n, 5000), GN_DISCONNECTED);
    for (int i = 0; i < 100 && r == GN_OK; i++, nap(1)) r = t.i->send(t.self, data, sizeof data, 1000);
    CHECK_RESULT(r, GN_DISCONNECTED);
    for (int i = 0; i < 10; i++) CHECK_RESULT(t.i->send(t.self, data, sizeof data, 1000), GN_DISCONNECTED);
    t.i->close(t.self);
    CHECK_INT(atomic_load(&broken_pipes), 0);
    CHECK(write(-1, "", 0) < 0);
    sigaction(SIGPIPE, &old, NULL);
}

typedef struct closer {
    void *listener;
    gn_result result;
} closer;

/* More than the client's kernel takes while the client does not read: part of it is still here when we close. */
static uint8_t long_answer[200000];

static void *answer_and_close(void *arg) {
    closer *c = arg;
    gn_transport t;
    c->result = accept_silent(c->listener, 5000, &t, NULL);
    if (c->result != GN_OK) return NULL;
    c->result = t.i->send(t.self, long_answer, sizeof long_answer, 2000);
    nap(20); /* meanwhile much of the upload arrives, and nobody reads it */
    t.i->close(t.self);
    return NULL;
}

TEST(last_words_reach_a_client_that_is_still_sending) {
    char home[GN__PATH];
    gn_server_desc d = { .listen = ":0", .home = new_folder(home) };
    gn_transport t;
    gn_fault f;
    gn_result r = GN_OK;
    static uint8_t answer[sizeof long_answer], data[1 << 16];
    closer c;
    pthread_t thread;
    fill_random(long_answer, sizeof long_answer);
    REQUIRE(gn__net.listen(&d, &c.listener, NULL) == GN_OK);
    pthread_create(&thread, NULL, answer_and_close, &c);
    REQUIRE(dial_in(gn__net.url(c.listener), home, 5000, &t, &f) == GN_OK);
    int small = 4096;
    setsockopt(((gn__link *)t.self)->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 20 && r == GN_OK; i++) r = t.i->send(t.self, data, sizeof data, 100);
    CHECK_RESULT(recv_all(t, answer, sizeof answer, 2000), GN_OK);
    CHECK(memcmp(answer, long_answer, sizeof answer) == 0);
    pthread_join(thread, NULL);
    CHECK_RESULT(c.result, GN_OK);
    t.i->close(t.self);
    gn__net.unlisten(c.listener);
}

TEST(garbage_to_the_tls_port_is_refused) {
    static const char *const garbage[] = { "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\xff\xff", "SSH-2.0-x\r\n",
                                           "\x15\x03\x03\x00\x02\x02\x28", "\x80\x2e\x01\x00\x02" };
    host h;
    char home[GN__PATH], tenant[64];
    uint8_t noise[3000];
    REQUIRE(host_open(&h));
    for (int i = 0; i < TEST_COUNT(garbage) + 30; i++) {
        int fd = tcp_connect(gn__net.port(h.listener));
        bool text = i < TEST_COUNT(garbage);
        size_t n = text ? strlen(garbage[i]) : (size_t)test_random_int(1, sizeof noise);
        fill_random(noise, sizeof noise);
        if (i & 1) memcpy(noise, "\x16\x03\x03", 3);
        if (send(fd, text ? (const void *)garbage[i] : noise, n, MSG_NOSIGNAL) < 1)
            test_fail(__FILE__, __LINE__, "send failed");
        shutdown(fd, SHUT_WR);
        host_served(&h, i + 1);
        CHECK_RESULT((gn_result)atomic_load(&h.last_handshake), GN_TLS_FAILED);
        close(fd);
    }
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    host_close(&h);
}

static void *garbage_server(void *arg) {
    slow *s = arg;
    struct pollfd p = { s->fd, POLLIN, 0 };
    if (poll(&p, 1, 5000) != 1) return NULL;
    int c = accept(s->fd, NULL, NULL);
    if (send(c, "220 mail ready\r\n\r\n", 18, MSG_NOSIGNAL) < 0) test_fail(__FILE__, __LINE__, "send failed");
    while (!atomic_load(&s->stop)) nap(2);
    close(c);
    return NULL;
}

TEST(server_that_speaks_no_tls_is_said) {
    uint16_t port;
    slow s = { tcp_listen(&port), false, false };
    char url[256];
    gn_transport t;
    gn_fault f;
    pthread_t thread;
    pthread_create(&thread, NULL, garbage_server, &s);
    snprintf(url, sizeof url, "127.0.0.1:%u?pin=" PIN64 "&code=" CODE22, port);
    CHECK_RESULT(dial_in(url, work, 5000, &t, &f), GN_TLS_FAILED);
    CHECK(strstr(f.text, "Is it a Genie server") != NULL);
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    close(s.fd);
}

/* A proxy for one connection that ends both sides after `cut` bytes from the server, or flips a bit of byte `flip`. */
typedef struct proxy {
    int fd;
    uint16_t port, to;
    long cut, flip, passed;
} proxy;

static void proxy_pass(proxy *x, int from, int to, bool down, bool *open) {
    uint8_t data[4096];
    ssize_t k = recv(from, data, sizeof data, 0);
    long n = (long)k;
    *open = n > 0;
    if (down && n > 0) {
        if (x->cut >= 0 && x->passed + n >= x->cut) {
            n = x->cut - x->passed;
            *open = false;
        }
        if (x->flip >= x->passed && x->flip < x->passed + n) data[x->flip - x->passed] ^= 1;
        x->passed += n;
    }
    for (long done = 0; done < n;) {
        ssize_t w = send(to, data + done, (size_t)(n - done), MSG_NOSIGNAL);
        if (w < 1) {
            *open = false;
            return;
        }
        done += (long)w;
    }
}

static void *proxy_run(void *arg) {
    proxy *x = arg;
    int c = accept(x->fd, NULL, NULL), s = tcp_connect(x->to);
    bool open = true;
    while (open) {
        struct pollfd p[2] = { { c, POLLIN, 0 }, { s, POLLIN, 0 } };
        if (poll(p, 2, 10000) < 1) break;
        if (p[0].revents) proxy_pass(x, c, s, false, &open);
        if (p[1].revents && open) proxy_pass(x, s, c, true, &open);
    }
    close(c);
    close(s);
    return NULL;
}

/* Through the proxy: handshake, proof, an echo of 100 bytes. The first failure. */
static gn_result through_proxy(host *h, const char *home, long cut, long flip, long *out_passed) {
    proxy x = { .to = gn__net.port(h->listener), .cut = cut, .flip = flip };
    char url[GN__URL_MAX], tenant[64];
    uint8_t data[100] = { 0 };
    gn_transport t;
    pthread_t thread;
    x.fd = tcp_listen(&x.port);
    snprintf(url, sizeof url, "127.0.0.1:%u%s", x.port, strchr(gn__net.url(h->listener), '?'));
    pthread_create(&thread, NULL, proxy_run, &x);
    gn_result r = enter(url, home, &t, tenant);
    if (r == GN_OK) {
        r = t.i->send(t.self, data, sizeof data, 5000);
        if (r == GN_OK) r = recv_all(t, data, sizeof data, 5000);
        t.i->close(t.self);
    }
    pthread_join(thread, NULL);
    close(x.fd);
    *out_passed = x.passed;
    return r;
}

TEST(connection_cut_at_any_byte_is_an_error) {
    host h;
    char home[GN__PATH];
    long all = 0, ignored;
    REQUIRE(host_open(&h));
    REQUIRE(through_proxy(&h, new_folder(home), -1, -1, &all) == GN_OK);
    /* what comes last is the echo's record and, with some luck, the alert that says goodbye */
    for (long cut = test_random_int(0, 2); cut < all - 60; cut += cut < all - 280 ? 41 : 3) {
        uint64_t start = gn_now_us();
        gn_result r = through_proxy(&h, new_folder(home), cut, -1, &ignored);
        if (r != GN_DISCONNECTED && r != GN_TLS_FAILED)
            test_fail(__FILE__, __LINE__, "cut at %ld of %ld: %d", cut, all, (int)r);
        if (seconds(start) > 4.0) test_fail(__FILE__, __LINE__, "cut at %ld took %.1f s", cut, seconds(start));
    }
    host_close(&h);
}

TEST(connection_altered_at_any_byte_is_an_error) {
    host h;
    char home[GN__PATH];
    long all = 0, ignored;
    REQUIRE(host_open(&h));
    REQUIRE(through_proxy(&h, new_folder(home), -1, -1, &all) == GN_OK);
    for (long flip = all - 120; flip < all - 60; flip += 7) {
        gn_result r = through_proxy(&h, new_folder(home), -1, flip, &ignored);
        if (r != GN_TLS_FAILED && r != GN_DISCONNECTED && r != GN_TIMEOUT)
            test_fail(__FILE__, __LINE__, "flipped at %ld of %ld: %d", flip, all, (int)r);
    }
    host_close(&h);
}

/* ---- TLS that must be refused ---- */

typedef struct raw {
    gn__tls *tls;
    mbedtls_net_context net;
} raw;

enum { RAW_TLS_1_0 = 1, RAW_TLS_1_1 = 2, RAW_TLS_1_2 = 3, RAW_TLS_1_3 = 4 };

/* An mbedTLS peer without our settings: one version, one suite (0: all). */
static bool raw_make(raw *r, int fd, int endpoint, int version, int suite, bool renegotiate) {
    static _Thread_local int suites[2];
    suites[0] = suite;
    mbedtls_net_init(&r->net);
    r->net.fd = fd;
    if (gn__tls_make(&r->tls, NULL) != GN_OK) return false;
    if (mbedtls_ssl_config_defaults(&r->tls->conf, endpoint, MBEDTLS_SSL_TRANSPORT_STREAM,
                                    MBEDTLS_SSL_PRESET_DEFAULT) != 0)
        return false;
#if MBEDTLS_VERSION_NUMBER >= 0x03000000
    if (version < RAW_TLS_1_2) return false;
    if (version == RAW_TLS_1_2) mbedtls_ssl_conf_max_tls_version(&r->tls->conf, MBEDTLS_SSL_VERSION_TLS1_2);
#else
    if (version > RAW_TLS_1_2) return false;
    mbedtls_ssl_conf_min_version(&r->tls->conf, 3, version);
    mbedtls_ssl_conf_max_version(&r->tls->conf, 3, version);
#endif
    mbedtls_ssl_conf_authmode(&r->tls->conf, MBEDTLS_SSL_VERIFY_NONE);
    mbedtls_ssl_conf_rng(&r->tls->conf, mbedtls_ctr_drbg_random, &r->tls->rng);
    mbedtls_ssl_conf_renegotiation(&r->tls->conf, renegotiate);
    if (suite != 0) mbedtls_ssl_conf_ciphersuites(&r->tls->conf, suites);
    return true;
}

static int raw_shake(raw *r) {
    int e = mbedtls_ssl_setup(&r->tls->ssl, &r->tls->conf);
    if (e == 0) e = mbedtls_ssl_set_hostname(&r->tls->ssl, NULL);
    mbedtls_ssl_set_bio(&r->tls->ssl, &r->net, mbedtls_net_send, mbedtls_net_recv, NULL);
    return e != 0 ? e : mbedtls_ssl_handshake(&r->tls->ssl);
}

static void raw_free(raw *r) {
    mbedtls_net_free(&r->net);
    gn__tls_destroy(r->tls);
}

/* ---- strangers ---- */

enum { STRANGER_SILENT, STRANGER_BYTE, STRANGER_PART, STRANGER_HELLO, STRANGER_SHAKEN, STRANGER_KINDS };

/* A listener with room for few, and a thread that accepts as a server does; who is let in says a byte and hears it
   back. */
typedef struct door {
    void *l;
    pthread_t thread;
    atomic_bool stop;
    atomic_int let_in, turned_away;
    atomic_uint most;
    char home[GN__PATH];
} door;

static void *door_keep(void *arg) {
    door *d = arg;
    gn__listener *l = d->l;
    while (!atomic_load(&d->stop)) {
        gn_transport t;
        gn_fault f;
        uint8_t byte;
        size_t n;
        gn_result r = gn__net.accept(l, 20, &t, &f);
        if (l->n > atomic_load(&d->most)) atomic_store(&d->most, l->n);
        if (r == GN_TIMEOUT) continue;
        if (r != GN_OK) {
            atomic_fetch_add(&d->turned_away, 1);
            continue;
        }
        atomic_fetch_add(&d->let_in, 1);
        if (t.i->recv(t.self, &byte, 1, &n, 0) == GN_OK) t.i->send(t.self, &byte, 1, 1000);
        t.i->close(t.self);
    }
    return NULL;
}

static bool door_open(door *d, uint32_t limit) {
    memset(d, 0, sizeof *d);
    gn_server_desc desc = { .listen = ":0", .home = new_folder(d->home), .deadline_ms = 20000 };
    if (!CHECK(gn__net.listen(&desc, &d->l, NULL) == GN_OK)) return false;
    ((gn__listener *)d->l)->limit = limit;
    return pthread_create(&d->thread, NULL, door_keep, d) == 0;
}

static void door_close(door *d) {
    atomic_store(&d->stop, true);
    pthread_join(d->thread, NULL);
    gn__net.unlisten(d->l);
}

/* How long an honest client takes to be let in and answered, in seconds; 60 if it is not. */
static double door_visit(door *d) {
    char home[GN__PATH];
    gn_transport t;
    gn_fault f;
    uint8_t byte = 7;
    size_t n;
    uint64_t start = gn_now_us();
    if (!CHECK(dial_in(gn__net.url(d->l), new_folder(home), 15000, &t, &f) == GN_OK)) {
        printf("  %s\n", f.text);
        return 60;
    }
    bool ok = CHECK(t.i->send(t.self, &byte, 1, 5000) == GN_OK) &&
              CHECK(t.i->recv(t.self, &byte, 1, &n, 15000) == GN_OK && byte == 7);
    t.i->close(t.self);
    return ok ? seconds(start) : 60;
}

/* The first flight of a client, as bytes. */
static size_t hello_bytes(uint8_t *out, size_t cap) {
    gn__link *k;
    gn_fault f;
    if (gn__link_make(-1, &k, NULL) != GN_OK || gn__tls_make(&k->tls, NULL) != GN_OK) abort();
    if (gn__tls_config(k, MBEDTLS_SSL_IS_CLIENT, &f) != GN_OK || gn__tls_buffers(k, &f) != GN_OK ||
        gn__tls_start(k, &f) != GN_OK)
        abort();
    mbedtls_ssl_conf_authmode(&k->tls->conf, MBEDTLS_SSL_VERIFY_OPTIONAL);
    mbedtls_ssl_set_hostname(&k->tls->ssl, NULL);
    mbedtls_ssl_handshake(&k->tls->ssl);
    size_t n = k->out.n;
    if (n == 0 || n > cap) abort();
    memcpy(out, k->out.p, n);
    gn__link_destroy(k);
    return n;
}

static bool is_closed(int fd) {
    struct pollfd p = { fd, POLLIN | POLLRDHUP, 0 };
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Strangers that stop wherever they can, more than there is room for, keep an honest client out no longer than the
   patience with their kind; each is closed once, and there are never more than twice the limit. */
TEST(strangers_that_stop_anywhere_leave_room) {
    enum { LIMIT = 8, N = 40 };
    static const double patience[STRANGER_KINDS] = { 0.1, 1, 1, 3, 3 };
    uint8_t hello[2048];
    size_t n = hello_bytes(hello, sizeof hello);
    for (int kind = 0; kind < STRANGER_KINDS; kind++) {
        door d;
        int fds[N];
        raw shaken[N];
        int open = kind == STRANGER_SHAKEN ? 2 * LIMIT + 4 : N;
        REQUIRE(door_open(&d, LIMIT));
        for (int i = 0; i < open; i++) {
            fds[i] = tcp_connect(gn__net.port(d.l));
            size_t some = kind == STRANGER_SILENT ? 0 : kind == STRANGER_BYTE ? 1 : kind == STRANGER_PART ? n - 1 : n;
            if (kind == STRANGER_SHAKEN)
                CHECK(raw_make(&shaken[i], fds[i], MBEDTLS_SSL_IS_CLIENT, RAW_TLS_1_2, 0, false) &&
                      raw_shake(&shaken[i]) == 0);
            else if (some > 0) CHECK(send(fds[i], hello, some, MSG_NOSIGNAL) == (ssize_t)some);
        }
        double took = door_visit(&d), rounds = (double)N / (2 * LIMIT) + 1;
        printf("  strangers of kind %d: an honest client waits %.2f s\n", kind, took);
        CHECK(took < rounds * patience[kind] + 2);
        CHECK_INT(atomic_load(&d.let_in), 1);
        CHECK(atomic_load(&d.most) <= 2 * LIMIT);
        CHECK(atomic_load(&d.turned_away) <= open);
        int closed = 0;
        for (int i = 0; i < open; i++) closed += is_closed(fds[i]);
        CHECK_INT(atomic_load(&d.turned_away), closed);
        for (int i = 0; i < open; i++)
            if (kind == STRANGER_SHAKEN) raw_free(&shaken[i]);
            else close(fds[i]);
        door_close(&d);
    }
}

/* Each that comes costs one its place: whoever has said least, of those the one that has waited longest, though others
   have waited for longer still. */
TEST(strangers_that_have_said_least_are_cut_first) {
    enum { SHAKING, PART, SILENT, SILENT_TOO, LIMIT };
    static const int order[LIMIT] = { SILENT, SILENT_TOO, PART, SHAKING }, naps[LIMIT] = { 2200, 1200, 50, 250 };
    uint8_t hello[2048];
    size_t n = hello_bytes(hello, sizeof hello);
    const size_t says[LIMIT] = { n, n - 1, 0, 0 };
    int fds[LIMIT], came[LIMIT];
    door d;
    REQUIRE(door_open(&d, LIMIT));
    for (int i = 0; i < LIMIT; i++, nap(naps[i - 1])) {
        fds[i] = tcp_connect(gn__net.port(d.l));
        if (says[i]) CHECK(send(fds[i], hello, says[i], MSG_NOSIGNAL) == (ssize_t)says[i]);
    }
    CHECK_INT(atomic_load(&d.turned_away), 0);
    for (int k = 0; k < LIMIT; k++) {
        came[k] = tcp_connect(gn__net.port(d.l));
        CHECK(send(came[k], hello, n, MSG_NOSIGNAL) == (ssize_t)n);
        for (int i = 0; i < 1000 && atomic_load(&d.turned_away) <= k; i++) nap(10);
        CHECK_INT(atomic_load(&d.turned_away), k + 1);
        for (int i = 0; i < LIMIT; i++)
            if (is_closed(fds[order[i]]) != (i <= k))
                test_fail(__FILE__, __LINE__, "number %d to go is %s after %d came", i, i <= k ? "here" : "gone",
                          k + 1);
    }
    for (int i = 0; i < LIMIT; i++) {
        close(fds[i]);
        close(came[i]);
    }
    door_close(&d);
}

static int late_sends; /* the first record goes at once: silence has no credit */

static int late_send(void *net, const unsigned char *p, size_t n) {
    if (late_sends++ > 0) nap(400);
    return mbedtls_net_send(net, p, n);
}

typedef struct silent_flood {
    uint16_t port;
    atomic_bool stop;
    atomic_int opened;
} silent_flood;

/* Connections that say nothing, about 2,000 a second, of which 200 are kept. */
static void *flood_run(void *arg) {
    silent_flood *x = arg;
    enum { KEPT = 200 };
    int fds[KEPT], n = 0;
    for (; !atomic_load(&x->stop); n++) {
        if (n >= KEPT) close(fds[n % KEPT]);
        fds[n % KEPT] = tcp_connect(x->port);
        atomic_fetch_add(&x->opened, 1);
        if (n % 20 == 0) nap(10);
    }
    for (int i = 0; i < KEPT && i < n; i++) close(fds[i]);
    return NULL;
}

/* A client far away, each of whose records takes its time, gets through while silent connections come without end. */
TEST(handshake_that_advances_is_never_cut) {
    door d;
    raw r;
    pthread_t thread;
    REQUIRE(door_open(&d, 8));
    silent_flood x = { .port = gn__net.port(d.l) };
    pthread_create(&thread, NULL, flood_run, &x);
    nap(300);
    REQUIRE(raw_make(&r, tcp_connect(gn__net.port(d.l)), MBEDTLS_SSL_IS_CLIENT, RAW_TLS_1_2, 0, false));
    CHECK_INT(mbedtls_ssl_setup(&r.tls->ssl, &r.tls->conf), 0);
    mbedtls_ssl_set_hostname(&r.tls->ssl, NULL);
    late_sends = 0;
    mbedtls_ssl_set_bio(&r.tls->ssl, &r.net, late_send, mbedtls_net_recv, NULL);
    CHECK_INT(mbedtls_ssl_handshake(&r.tls->ssl), 0);
    uint8_t byte = 9;
    CHECK_INT(mbedtls_ssl_write(&r.tls->ssl, &byte, 1), 1);
    CHECK_INT(mbedtls_ssl_read(&r.tls->ssl, &byte, 1), 1);
    CHECK(door_visit(&d) < 3);
    atomic_store(&x.stop, true);
    pthread_join(thread, NULL);
    printf("  %d silent connections meanwhile\n", atomic_load(&x.opened));
    CHECK(atomic_load(&x.opened) > 500);
    CHECK(atomic_load(&d.most) <= 16);
    raw_free(&r);
    door_close(&d);
}

/* The limit follows what may be opened: never more descriptors than there are. */
TEST(limit_of_strangers_follows_descriptors) {
    struct rlimit was, r;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &was) == 0);
    gn__log log = { keep_log, NULL };
    static const struct {
        rlim_t files;
        uint32_t sessions, limit;
    } cases[] = {
        { 1024, 0, 256 }, { 1024, 64, 256 }, { 1024, 900, 30 }, { 1024, 2000, 8 },
        { 300, 64, 86 },  { 64, 0, 8 },      { 0, 0, 8 },       { 4096, 1000, 1000 },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        r = (struct rlimit){ cases[i].files, was.rlim_max };
        if (cases[i].files > was.rlim_max || setrlimit(RLIMIT_NOFILE, &r) != 0) continue;
        gn_server_desc d = { .max_sessions = cases[i].sessions };
        uint32_t limit = gn__stranger_limit(&d, log);
        if (limit != cases[i].limit)
            test_fail(__FILE__, __LINE__, "%u strangers with %lu descriptors and %u sessions", limit,
                      (unsigned long)cases[i].files, cases[i].sessions);
    }
    setrlimit(RLIMIT_NOFILE, &was);
    CHECK(log_has("ulimit -n"));
}

/* Whether our server shakes hands with such a client; -1 when the library cannot be such a client. */
static int server_accepts(host *h, int version, int suite) {
    raw r;
    int ok = -1, before = atomic_load(&h->served);
    if (suite == 0 || mbedtls_ssl_ciphersuite_from_id(suite) != NULL) {
        if (raw_make(&r, tcp_connect(gn__net.port(h->listener)), MBEDTLS_SSL_IS_CLIENT, version, suite, false))
            ok = raw_shake(&r) == 0;
        raw_free(&r);
        host_served(h, before + 1);
    }
    gn_result last = (gn_result)atomic_load(&h->last_handshake);
    if (ok >= 0) CHECK((last == GN_OK || last == GN_DISCONNECTED) == (ok == 1)); /* it leaves without a word */
    return ok;
}

TEST(client_with_a_suite_of_ours_is_accepted) {
    host h;
    REQUIRE(host_open(&h));
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), 1);
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256), 1);
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, 0), 1);
    host_close(&h);
}

TEST(client_with_a_suite_without_aead_is_refused) {
    host h;
    REQUIRE(host_open(&h));
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), 0);
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384), 0);
    CHECK_INT(server_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_RSA_WITH_AES_128_GCM_SHA256), 0);
    host_close(&h);
}

TEST(client_with_tls_1_0_or_1_1_is_refused) {
    host h;
    REQUIRE(host_open(&h));
    int old = server_accepts(&h, RAW_TLS_1_0, 0), newer = server_accepts(&h, RAW_TLS_1_1, 0);
    if (old < 0 || newer < 0) test_skip("this mbedTLS knows no TLS before 1.2");
    CHECK(old < 1 && newer < 1);
    CHECK(old < 0 || log_has("not within min/max boundaries")); /* refused for its version, not for lack of a suite */
    host_close(&h);
}

static void *renegotiate(void *arg) {
    raw *r = arg;
    int *result = malloc(sizeof *result);
    struct timeval limit = { 3, 0 };
    setsockopt(r->net.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    *result = raw_shake(r);
    if (*result == 0) *result = mbedtls_ssl_renegotiate(&r->tls->ssl) == 0 ? 1 : 0;
    return result;
}

TEST(client_that_renegotiates_is_refused) {
    char home[GN__PATH];
    gn_server_desc d = { .listen = ":0", .home = new_folder(home) };
    gn_transport t;
    void *l, *result;
    uint8_t byte;
    size_t n;
    raw r;
    pthread_t thread;
    REQUIRE(gn__net.listen(&d, &l, NULL) == GN_OK);
    REQUIRE(raw_make(&r, tcp_connect(gn__net.port(l)), MBEDTLS_SSL_IS_CLIENT, RAW_TLS_1_2, 0, true));
    pthread_create(&thread, NULL, renegotiate, &r);
    REQUIRE(accept_silent(l, 5000, &t, NULL) == GN_OK);
    check_socket(((gn__link *)t.self)->fd);
    CHECK_RESULT(t.i->recv(t.self, &byte, 1, &n, 300), GN_TIMEOUT); /* the wish arrives and is declined… */
    CHECK_RESULT(t.i->send(t.self, "x", 1, 1000), GN_OK);           /* …and the session is as it was */
    pthread_join(thread, &result);
    CHECK_INT(*(int *)result, 0);
    free(result);
    t.i->close(t.self);
    raw_free(&r);
    gn__net.unlisten(l);
}

typedef struct raw_server {
    int fd, version, suite;
    const char *home;
    int result;
} raw_server;

static void *raw_serve(void *arg) {
    raw_server *s = arg;
    raw r;
    char key[GN__PATH + 16], cert[GN__PATH + 16];
    gn__bytes k = { NULL, 0 }, c = { NULL, 0 };
    gn__file_facts facts;
    snprintf(key, sizeof key, "%s/key.pem", s->home);
    snprintf(cert, sizeof cert, "%s/cert.pem", s->home);
    s->result = -1;
    bool made = raw_make(&r, accept(s->fd, NULL, NULL), MBEDTLS_SSL_IS_SERVER, s->version, s->suite, false);
    if (made && gn__read_file(key, 9999, &k, &facts) == 0 && gn__read_file(cert, 9999, &c, &facts) == 0 &&
        gn__load_pair(r.tls, &k, &c, NULL) == GN_OK &&
        mbedtls_ssl_conf_own_cert(&r.tls->conf, &r.tls->own, &r.tls->key) == 0)
        s->result = raw_shake(&r);
    gn__forget(&k);
    gn__forget(&c);
    raw_free(&r);
    return NULL;
}

/* Our client against a server with the right key but one version and suite. */
static gn_result client_accepts(host *h, int version, int suite) {
    uint16_t port;
    raw_server s = { tcp_listen(&port), version, suite, h->home, 0 };
    char url[256], home[GN__PATH];
    gn_transport t;
    gn_fault f;
    pthread_t thread;
    pthread_create(&thread, NULL, raw_serve, &s);
    snprintf(url, sizeof url, "127.0.0.1:%u%s", port, strchr(gn__net.url(h->listener), '?'));
    gn_result r = dial_in(url, new_folder(home), 5000, &t, &f);
    if (r == GN_OK) t.i->close(t.self);
    pthread_join(thread, NULL);
    close(s.fd);
    CHECK((s.result == 0) == (r == GN_OK));
    return r;
}

TEST(server_with_weak_tls_is_refused) {
    host h;
    REQUIRE(host_open(&h));
    CHECK_RESULT(client_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), GN_OK);
    CHECK_RESULT(client_accepts(&h, RAW_TLS_1_2, MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256), GN_TLS_FAILED);
#if MBEDTLS_VERSION_NUMBER < 0x03000000
    CHECK_RESULT(client_accepts(&h, RAW_TLS_1_1, 0), GN_TLS_FAILED);
    CHECK_RESULT(client_accepts(&h, RAW_TLS_1_0, 0), GN_TLS_FAILED);
#endif
    host_close(&h);
}

/* ---- records by libcrypto ---- */

/* Two ends whose records are by libcrypto, with keys as a handshake would give. */
typedef struct record_pair {
    gn__records client, server;
} record_pair;

static bool pair_make(record_pair *p, int aead, bool v13) {
    gn__keys k;
    memset(p, 0, sizeof *p);
    memset(&k, 0, sizeof k);
    fill_random(k.up, sizeof k.up);
    fill_random(k.down, sizeof k.down);
    fill_random(k.random, sizeof k.random);
    k.v13 = v13;
    k.n = v13 ? (aead == GN__AES_256_GCM ? 48 : 32) : 48;
    k.prf = aead == GN__AES_256_GCM ? MBEDTLS_SSL_TLS_PRF_SHA384 : MBEDTLS_SSL_TLS_PRF_SHA256;
    bool ok = gn__crypto_use() != NULL && gn__records_init(&p->client, gn__crypto_use(), &k, aead, false) &&
              gn__records_init(&p->server, gn__crypto_use(), &k, aead, true);
    for (int server = 0; server < 2; server++) {
        gn__records *r = server ? &p->server : &p->client;
        r->up.number = r->down.number = v13 ? 0 : 1; /* 1.2: Finished was number 0 */
    }
    return ok;
}

static void pair_free(record_pair *p) {
    gn__records_deinit(&p->client);
    gn__records_deinit(&p->server);
}

#define FOR_EACH_PAIR(p)                                                       \
    if (gn__crypto_use() == NULL) {                                            \
        test_skip(gn__crypto_found.why);                                       \
        return;                                                                \
    }                                                                          \
    for (int kind_ = 0; kind_ < 2 * GN__AEAD__COUNT; kind_++, pair_free(&(p))) \
        if (!pair_make(&(p), kind_ / 2, kind_ % 2 != 0)) {                     \
            test_fail(__FILE__, __LINE__, "no records");                       \
            continue;                                                          \
        } else

/* What the server makes of n bytes. */
static gn_result pair_take(record_pair *p, const uint8_t *in, size_t n, uint8_t *out, size_t max, size_t *out_n) {
    size_t at = 0;
    return gn__records_open(&p->server, in, &at, n, out, max, out_n);
}

TEST(libcrypto_agrees_with_mbedtls_at_all_sizes) {
    const gn__crypto *c = gn__crypto_use();
    if (c == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    static uint8_t a[20000 + GN__TAG], b[20000 + GN__TAG], plain[20000];
    uint8_t key[GN__KEY_MAX], nonce[GN__NONCE], aad[40];
    for (int aead = 0; aead < GN__AEAD__COUNT; aead++) {
        fill_random(key, sizeof key);
        void *up = gn__aead_make(c, aead, key, true), *down = gn__aead_make(c, aead, key, false);
        REQUIRE(up != NULL && down != NULL);
        for (size_t n = 0; n < sizeof plain; n += n < 300 ? 1 : 997) {
            size_t aad_n = (size_t)test_random_int(1, sizeof aad);
            fill_random(plain, n);
            fill_random(nonce, sizeof nonce);
            fill_random(aad, sizeof aad);
            REQUIRE(gn__stock_seal(aead, key, nonce, aad, aad_n, plain, n, a));
            CHECK(gn__aead_seal(c, up, nonce, aad, aad_n, plain, n, NULL, b));
            CHECK(memcmp(a, b, n + GN__TAG) == 0);
            if (n > 0) { /* with the last byte apart, and in place */
                memcpy(b, plain, n);
                CHECK(gn__aead_seal(c, up, nonce, aad, aad_n, b, n - 1, plain + n - 1, b));
                CHECK(memcmp(a, b, n + GN__TAG) == 0);
            }
            a[test_random_int(0, (int)n + GN__TAG - 1)] ^= (uint8_t)(1 << test_random_int(0, 7));
            CHECK(!gn__aead_open(c, down, nonce, aad, aad_n, a, n, a));
            for (size_t i = 0; i < n; i++)
                if (!CHECK(a[i] == 0)) break; /* what is altered leaves nothing behind */
            CHECK(gn__aead_open(c, down, nonce, aad, aad_n, b, n, b));
            CHECK(memcmp(b, plain, n) == 0);
        }
        c->EVP_CIPHER_CTX_free(up);
        c->EVP_CIPHER_CTX_free(down);
    }
}

static int (*true_update)(void *ctx, uint8_t *out, int *out_n, const uint8_t *in, int n);
static int (*true_ctrl)(void *ctx, int what, int n, void *p);
static int (*true_digest)(const void *p, size_t n, uint8_t *out, unsigned *out_n, const void *type, void *engine);
static int wrong_from; /* bytes from which on the answer is wrong */

static int wrong_update(void *ctx, uint8_t *out, int *out_n, const uint8_t *in, int n) {
    int e = true_update(ctx, out, out_n, in, n);
    if (out != NULL && n >= wrong_from) out[n - 1] ^= 1;
    return e;
}

static int wrong_ctrl(void *ctx, int what, int n, void *p) {
    int e = true_ctrl(ctx, what, n, p);
    if (what == GN__CTRL_GET_TAG) ((uint8_t *)p)[15] ^= 128;
    return e;
}

static int wrong_final(void *ctx, uint8_t *out, int *out_n) {
    gn__crypto_found.EVP_CipherFinal_ex(ctx, out, out_n);
    *out_n = 0;
    return 1;
}

static int wrong_digest(const void *p, size_t n, uint8_t *out, unsigned *out_n, const void *type, void *engine) {
    int e = true_digest(p, n, out, out_n, type, engine);
    out[31] ^= 2;
    return e;
}

static const void *no_cipher(void) { return NULL; }

TEST(libcrypto_without_an_algorithm_is_not_called_wrong) {
    if (gn__crypto_use() == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    gn__crypto c = gn__crypto_found;
    CHECK(gn__crypto_check(&c) == NULL && !c.lacks);
    c.EVP_chacha20_poly1305 = no_cipher;
    const char *who = gn__crypto_check(&c);
    CHECK(who != NULL && strcmp(who, "ChaCha20-Poly1305") == 0);
    CHECK(c.lacks);
}

TEST(libcrypto_with_a_wrong_answer_is_found_out) {
    if (gn__crypto_use() == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    gn__crypto c = gn__crypto_found;
    true_update = c.EVP_CipherUpdate;
    true_ctrl = c.EVP_CIPHER_CTX_ctrl;
    true_digest = c.EVP_Digest;
    CHECK(gn__crypto_check(&c) == NULL);
    const int from[] = { 1, 100, 1037, 16384 };
    for (int i = 0; i < TEST_COUNT(from); i++) { /* in the vectors, or only in large records */
        wrong_from = from[i];
        c.EVP_CipherUpdate = wrong_update;
        const char *who = gn__crypto_check(&c);
        CHECK(who != NULL && strcmp(who, "AES-128-GCM") == 0 && !c.lacks);
    }
    c.EVP_CipherUpdate = true_update;
    c.EVP_CIPHER_CTX_ctrl = wrong_ctrl;
    CHECK(gn__crypto_check(&c) != NULL);
    c.EVP_CIPHER_CTX_ctrl = true_ctrl;
    c.EVP_CipherFinal_ex = wrong_final; /* it takes any tag */
    CHECK(gn__crypto_check(&c) != NULL);
    c.EVP_CipherFinal_ex = gn__crypto_found.EVP_CipherFinal_ex;
    c.EVP_Digest = wrong_digest;
    const char *who = gn__crypto_check(&c);
    CHECK(who != NULL && strcmp(who, "SHA-256") == 0);
    c.EVP_Digest = true_digest;
    CHECK(gn__crypto_check(&c) == NULL);
}

TEST(records_of_any_size_into_any_room_arrive) {
    record_pair p;
    static uint8_t data[60000], wire[70000], out[60000];
    fill_random(data, sizeof data);
    FOR_EACH_PAIR(p) {
        size_t sent = 0, n = 0, at = 0, got = 0, seen = 0;
        while (sent < sizeof data) {
            size_t k = (size_t)test_random_int(0, 3) == 0 ? GN__RECORD_MAX : (size_t)test_random_int(1, 900);
            if (k > sizeof data - sent) k = sizeof data - sent;
            size_t made = gn__record_seal(&p.client, GN__DATA, data + sent, k, wire + n);
            REQUIRE(made > k);
            sent += k;
            n += made;
        }
        while (got < sizeof data) { /* the bytes come in pieces, and so does the room */
            size_t k, max = (size_t)test_random_int(1, test_random_int(0, 1) ? 40 : 30000);
            if (max > sizeof out - got) max = sizeof out - got;
            REQUIRE(gn__records_open(&p.server, wire, &at, seen, out + got, max, &k) == GN_OK && k <= max);
            got += k;
            if (k == 0) {
                REQUIRE(seen < n);
                seen += (size_t)test_random_int(1, 9000);
            }
            if (seen > n) seen = n;
        }
        CHECK(memcmp(out, data, sizeof data) == 0);
        CHECK_INT(at, n);
    }
}

TEST(record_altered_cut_repeated_or_swapped_ends_the_stream) {
    record_pair p;
    uint8_t one[200], two[200], out[200], bad[400];
    size_t k;
    FOR_EACH_PAIR(p) {
        size_t a = gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"first", 5, one),
               b = gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"second", 6, two);
        uint64_t number = p.server.down.number;
        for (size_t i = 0; i < a; i++) {
            memcpy(bad, one, a);
            bad[i] ^= (uint8_t)(1 << test_random_int(0, 7));
            memcpy(bad + a, two, b); /* a longer length takes in what follows */
            gn_result r = pair_take(&p, bad, a + b, out, sizeof out, &k);
            /* or it waits for what never comes */
            CHECK(k == 0 && (r == GN_TLS_FAILED || (r == GN_OK && i >= 3 && i < GN__HEAD)));
            if (r != GN_OK)
                CHECK(p.server.alert == GN__BAD_MAC || p.server.alert == GN__UNEXPECTED ||
                      p.server.alert == GN__OVERFLOW);
            /* it stays so */
            CHECK_RESULT(pair_take(&p, one, a, out, sizeof out, &k), r == GN_OK ? GN_OK : GN_TLS_FAILED);
            p.server.ended = GN_OK;
            p.server.down.number = number;
        }
        /* cut: more has to come */
        for (size_t i = 0; i < a; i++) CHECK(pair_take(&p, one, i, out, sizeof out, &k) == GN_OK && k == 0);
        CHECK_RESULT(pair_take(&p, two, b, out, sizeof out, &k), GN_TLS_FAILED); /* swapped */
        p.server.ended = GN_OK;
        CHECK(pair_take(&p, one, a, out, sizeof out, &k) == GN_OK && k == 5 && memcmp(out, "first", 5) == 0);
        CHECK_RESULT(pair_take(&p, one, a, out, sizeof out, &k), GN_TLS_FAILED); /* repeated */
        p.server.ended = GN_OK;
        CHECK(pair_take(&p, two, b, out, sizeof out, &k) == GN_OK && k == 6);
    }
}

/* The server forgets that something was wrong. */
static void pair_mend(record_pair *p) {
    p->server.ended = GN_OK;
    p->server.idle = 0;
    p->server.head_n = p->server.skip = 0;
    p->server.down.number = p->client.up.number;
}

TEST(records_that_are_not_data_are_taken_as_the_standard_says) {
    record_pair p;
    static uint8_t wire[40000], big[GN__RECORD_MAX + 1];
    uint8_t out[100];
    size_t k;
    FOR_EACH_PAIR(p) {
        size_t n = gn__record_seal(&p.client, GN__DATA, big, 0, wire); /* empty, then data */
        n += gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"x", 1, wire + n);
        CHECK(pair_take(&p, wire, n, out, sizeof out, &k) == GN_OK && k == 1 && out[0] == 'x');
        n = 0; /* a flood of nothing */
        for (int i = 0; i <= GN__IDLE_RECORDS; i++) n += gn__record_seal(&p.client, GN__DATA, big, 0, wire + n);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        p.server.ended = GN_OK;
        p.server.idle = 0;
        n = gn__record_seal(&p.client, GN__DATA, big, GN__RECORD_MAX + 1, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        CHECK_INT(p.server.alert, GN__OVERFLOW);
        p.server.ended = GN_OK;
        p.server.down.number = p.client.up.number;
        n = gn__record_seal(&p.client, 99, big, 3, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        p.server.ended = GN_OK;
        p.server.down.number = p.client.up.number;
        n = gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"z", 1, wire); /* the last word, and then goodbye */
        n += gn__record_alert(&p.client, GN__CLOSE_NOTIFY, wire + n);
        CHECK(pair_take(&p, wire, n, out, sizeof out, &k) == GN_OK && k == 1 && out[0] == 'z');
        CHECK_RESULT(pair_take(&p, wire, 0, out, sizeof out, &k), GN_DISCONNECTED);
        p.server.ended = GN_OK;
        n = gn__record_alert(&p.client, GN__BAD_MAC, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        p.client.up.number = UINT64_MAX; /* no nonce serves twice */
        CHECK_INT(gn__record_seal(&p.client, GN__DATA, big, 1, wire), 0);
    }
}

TEST(alerts_and_messages_of_the_handshake_are_taken_as_the_standard_says) {
    record_pair p;
    uint8_t wire[1000], big[10] = { 0 }, out[100];
    size_t k;
    FOR_EACH_PAIR(p) {
        bool v13 = p.server.v13;
        size_t n = gn__record_seal(&p.client, GN__HANDSHAKE, big, 0, wire); /* a handshake of nothing */
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        pair_mend(&p);
        /* a warning (1.2), "user canceled" (1.3) */
        n = gn__record_seal(&p.client, GN__ALERT, (const uint8_t *)"\1\132", 2, wire);
        n += gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"v", 1, wire + n);
        CHECK(pair_take(&p, wire, n, out, sizeof out, &k) == GN_OK && k == 1 && out[0] == 'v');
        n = gn__record_seal(&p.client, GN__ALERT, (const uint8_t *)"\1\1\1\1", 4, wire); /* two alerts in a record */
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
        pair_mend(&p);
        /* 1.3: an error, whatever level it claims */
        n = gn__record_seal(&p.client, GN__ALERT, (const uint8_t *)"\1\50", 2, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), v13 ? GN_TLS_FAILED : GN_OK);
        pair_mend(&p);
        const uint8_t ticket[12] = { 4, 0, 0, 8 };
        /* from a client: in 1.2 the wish to renegotiate */
        n = gn__record_seal(&p.client, GN__HANDSHAKE, ticket, 12, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), v13 ? GN_TLS_FAILED : GN_OK);
        CHECK(atomic_exchange(&p.server.decline, false) == !v13);
        pair_mend(&p);
        p.server.server = false;                /* let it be the client of a server */
        for (size_t cut = 1; cut < 12; cut++) { /* in two pieces */
            n = gn__record_seal(&p.client, GN__HANDSHAKE, ticket, cut, wire);
            n += gn__record_seal(&p.client, GN__HANDSHAKE, ticket + cut, 12 - cut, wire + n);
            n += gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"y", 1, wire + n);
            CHECK(pair_take(&p, wire, n, out, sizeof out, &k) == GN_OK && k == 1 && out[0] == 'y');
            n = gn__record_seal(&p.client, GN__HANDSHAKE, ticket, cut, wire); /* data within a ticket */
            n += gn__record_seal(&p.client, GN__DATA, big, 10, wire + n);
            CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), v13 ? GN_TLS_FAILED : GN_OK);
            pair_mend(&p);
        }
    }
}

/* A record of 1.3 with zeros behind its type. */
TEST(padding_of_a_record_is_dropped) {
    record_pair p;
    uint8_t wire[200], out[100], nonce[GN__NONCE], aad[13];
    size_t k;
    if (gn__crypto_use() == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    REQUIRE(pair_make(&p, GN__AES_128_GCM, true));
    for (size_t n = 0; n < 4; n++) {
        const uint8_t inner[] = { 'a', 'b', 'c', GN__DATA, 0, 0, 0, 0, 0 };
        const uint8_t *from = n < 3 ? inner + n : inner + 4; /* three, two or one byte of data; or no type at all */
        size_t m = (size_t)(inner + sizeof inner - from),
               aad_n = gn__record_bind(&p.client, &p.client.up, NULL, GN__DATA, m + GN__TAG, nonce, aad);
        memcpy(wire, aad, GN__HEAD);
        REQUIRE(gn__aead_seal(p.client.crypto, p.client.up.ctx, nonce, aad, aad_n, from, m, NULL, wire + GN__HEAD));
        p.client.up.number++;
        gn_result r = pair_take(&p, wire, GN__HEAD + m + GN__TAG, out, sizeof out, &k);
        CHECK_RESULT(r, n < 3 ? GN_OK : GN_TLS_FAILED);
        CHECK_INT(k, n < 3 ? 3 - n : 0);
        if (n < 3) CHECK(memcmp(out, inner + n, k) == 0);
    }
    pair_free(&p);
}

/* A client that is mbedTLS alone and sends back what comes. */
typedef struct raw_echo {
    raw r;
    int shook;
    size_t back;
} raw_echo;

static void *raw_echo_run(void *arg) {
    raw_echo *x = arg;
    uint8_t bytes[5000];
    x->shook = raw_shake(&x->r);
    for (int k = 1; x->shook == 0 && k > 0;) {
        k = mbedtls_ssl_read(&x->r.tls->ssl, bytes, sizeof bytes);
#if defined(MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET)
        if (k == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) {
            k = 1;
            continue;
        }
#endif
        for (int at = 0, n = k; at < n && k > 0; at += k)
            k = mbedtls_ssl_write(&x->r.tls->ssl, bytes + at, (size_t)(n - at));
        x->back += k > 0 ? (size_t)k : 0;
        if (k == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY) x->back |= (size_t)1 << 40; /* a goodbye that mbedTLS understands */
    }
    return NULL;
}

/* ---- records by libcrypto: whatever is done to a stream, only its true beginning comes out ---- */

enum { STORY_RECORDS = 14, STORY_ROOM = 40000 };

typedef struct story { /* what a server sends: records and the data in them */
    uint8_t wire[2 * STORY_ROOM], plain[STORY_ROOM];
    size_t wire_at[STORY_RECORDS + 1], plain_at[STORY_RECORDS + 1];
    int n;
} story;

static int pick(int low, int high) { return (int)test_random_int(low, high); }

static void story_add(story *x, gn__records *r) {
    static const uint8_t ticket[] = { 4, 0, 0, 6, 9, 9, 9, 9, 9, 9 }, hello[] = { 0, 0, 0, 0 },
                         warning[] = { 1, GN__USER_CANCELED };
    size_t at = x->wire_at[x->n], from = x->plain_at[x->n], k = 0, made;
    int kind = pick(0, 9);
    uint8_t *out = x->wire + at;
    if (kind == 0) made = gn__record_renew(r, out);
    else if (kind == 1)
        made = gn__record_seal(r, GN__HANDSHAKE, r->v13 ? ticket : hello, r->v13 ? sizeof ticket : sizeof hello, out);
    else if (kind == 2) made = gn__record_seal(r, GN__ALERT, warning, sizeof warning, out);
    else if (kind == 3) made = gn__record_seal(r, GN__DATA, NULL, 0, out);
    else {
        k = kind == 4 && from < GN__RECORD_MAX ? GN__RECORD_MAX : (size_t)pick(1, 400);
        fill_random(x->plain + from, k);
        made = gn__record_seal(r, GN__DATA, x->plain + from, k, out);
    }
    if (made == 0) abort();
    x->wire_at[++x->n] = at + made;
    x->plain_at[x->n] = from + k;
}

/* Adds bytes to a wire of *n. */
static void wire_add(uint8_t *out, size_t *n, const story *x, int first, int end) {
    memcpy(out + *n, x->wire + x->wire_at[first], x->wire_at[end] - x->wire_at[first]);
    *n += x->wire_at[end] - x->wire_at[first];
}

/* What somebody on the way makes of the story; bytes. */
static size_t story_spoil(const story *x, const story *other, uint8_t *out) {
    int i = pick(0, x->n - 1), j = pick(0, x->n - 1), how = pick(0, 9);
    size_t n = 0, at;
    if (how == 1 || how == 2) { /* dropped; repeated at another place */
        wire_add(out, &n, x, 0, i);
        if (how == 2) wire_add(out, &n, x, j, j + 1);
        wire_add(out, &n, x, i + (how == 1), x->n);
        return n;
    }
    if (how == 3 && i < j) { /* swapped */
        wire_add(out, &n, x, 0, i);
        wire_add(out, &n, x, j, j + 1);
        wire_add(out, &n, x, i + 1, j);
        wire_add(out, &n, x, i, i + 1);
        wire_add(out, &n, x, j + 1, x->n);
        return n;
    }
    if (how == 4) { /* a record of another connection */
        wire_add(out, &n, x, 0, i);
        wire_add(out, &n, other, 0, 1);
        wire_add(out, &n, x, i, x->n);
        return n;
    }
    wire_add(out, &n, x, 0, x->n);
    at = how == 5 ? x->wire_at[i] + (size_t)pick(0, GN__HEAD - 1) : (size_t)pick(0, (int)n - 1); /* 5: in a head */
    if (how == 6) return at;                                                                     /* cut */
    if (how == 5 || how == 7) out[at] ^= (uint8_t)(1 << pick(0, 7));
    if (how == 8) out[x->wire_at[i]] = (uint8_t)pick(0, 255); /* a type */
    if (how == 9) fill_random(out + at, n - at < 40 ? n - at : 40);
    return n;
}

/* Reads a wire in pieces into pieces of room. */
static gn_result story_read(gn__records *r, const uint8_t *wire, size_t n, uint8_t *out, size_t *out_n) {
    size_t at = 0, seen = 0, k = 0;
    for (*out_n = 0;;) {
        size_t max = (size_t)pick(1, pick(0, 1) ? 60 : STORY_ROOM);
        gn_result e = gn__records_open(r, wire, &at, seen, out + *out_n,
                                       max < STORY_ROOM - *out_n ? max : STORY_ROOM - *out_n, &k);
        *out_n += k;
        if (e != GN_OK || (k == 0 && seen == n)) return e;
        if (k == 0) seen += (size_t)pick(1, 20000);
        if (seen > n) seen = n;
    }
}

TEST(records_spoiled_in_any_way_give_the_true_beginning_alone) {
    static story x, other;
    static uint8_t wire[4 * STORY_ROOM], out[STORY_ROOM];
    record_pair p, q;
    if (gn__crypto_use() == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    for (int round = 0, rounds = test_rounds(3000); round < rounds; round++) {
        int kind = pick(0, 2 * GN__AEAD__COUNT - 1), n = pick(1, STORY_RECORDS);
        REQUIRE(pair_make(&p, kind / 2, kind % 2 != 0) && pair_make(&q, kind / 2, kind % 2 != 0));
        x.n = other.n = 0;
        while (x.n < n) story_add(&x, &p.server);
        story_add(&other, &q.server);
        size_t spoiled = story_spoil(&x, &other, wire), same = 0, got, whole = 0;
        while (same < spoiled && same < x.wire_at[n] && wire[same] == x.wire[same]) same++;
        while (whole < (size_t)n && x.wire_at[whole + 1] <= same) whole++;
        gn_result r = story_read(&p.client, wire, spoiled, out, &got);
        /* cut, or a longer length */
        bool waits = same == spoiled || (spoiled - x.wire_at[whole] >= 3 && same - x.wire_at[whole] >= 3 &&
                                         same - x.wire_at[whole] < GN__HEAD);
        if (got != x.plain_at[whole] || memcmp(out, x.plain, got) != 0 ||
            !(r == GN_TLS_FAILED || (r == GN_OK && waits)))
            test_fail(__FILE__, __LINE__, "round %d, kind %d: %zu bytes for %zu of %zu records, result %d", round, kind,
                      got, whole, (size_t)n, (int)r);
        if (r != GN_OK) { /* the true rest comes too late */
            size_t at = x.wire_at[whole];
            CHECK(gn__records_open(&p.client, x.wire, &at, x.wire_at[n], out, sizeof out, &got) == r && got == 0 &&
                  at == x.wire_at[whole]);
        }
        pair_free(&p);
        pair_free(&q);
    }
}

/* ---- records by libcrypto: new keys ---- */

TEST(key_update_gives_keys_that_follow_from_the_old_ones) {
    record_pair p;
    uint8_t wire[400], out[100], before[GN__SECRET_MAX];
    size_t k;
    FOR_EACH_PAIR(p) {
        for (int round = 1; round <= 3; round++) {
            memcpy(before, p.server.down.secret, sizeof before);
            size_t n = gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"old", 3, wire),
                   updated = gn__record_renew(&p.client, wire + n);
            CHECK(updated > 0);
            CHECK_INT(p.client.up.number, 0);
            n += updated;
            n += gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"new", 3, wire + n);
            CHECK(pair_take(&p, wire, n, out, sizeof out, &k) == GN_OK && k == 6 && memcmp(out, "oldnew", 6) == 0);
            CHECK_INT(p.server.down.number, 1);
            CHECK(memcmp(before, p.server.down.secret, p.server.secret_n) != 0);
            CHECK(memcmp(p.client.up.secret, p.server.down.secret, p.server.secret_n) == 0);
            /* each direction has its own */
            CHECK(memcmp(p.client.up.secret, p.client.down.secret, p.server.secret_n) != 0);
            CHECK_INT(atomic_load(&p.server.renewed), round);
        }
        CHECK(!atomic_load(&p.server.renew));
        /* whose keys are the first ones */
        size_t n = gn__record_seal(&p.server, GN__DATA, (const uint8_t *)"back", 4, wire), at = 0;
        CHECK(gn__records_open(&p.client, wire, &at, n, out, sizeof out, &k) == GN_OK && k == 4);
        gn__record_renew(&p.client, wire); /* lost on the way: what follows does not open */
        n = gn__record_seal(&p.client, GN__DATA, (const uint8_t *)"x", 1, wire);
        CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_TLS_FAILED);
    }
}

TEST(key_update_that_is_malformed_ends_the_stream) {
    static const struct {
        uint8_t n, bytes[8], alert_13, alert_12;
    } bad[] = {
        /* alert 0: it is taken */
        { 5, { 24, 0, 0, 1, 0 }, 0, 0 },
        { 5, { 24, 0, 0, 1, 2 }, GN__ILLEGAL, GN__ILLEGAL },
        { 6, { 24, 0, 0, 1, 0, 0 }, GN__UNEXPECTED, 0 }, /* 1.2: the wish to renegotiate */
        { 5, { 24, 0, 1, 0, 0 }, GN__UNEXPECTED, 0 },
        { 6, { 24, 0, 0, 2, 0, 0 }, GN__UNEXPECTED, 0 },
        { 4, { 24, 0, 0, 0 }, GN__UNEXPECTED, 0 },
        { 4, { 4, 0, 0, 0 }, GN__UNEXPECTED, 0 },
        { 5, { 1, 0, 0, 1, 0 }, GN__UNEXPECTED, 0 },
        { 5, { 20, 0, 0, 1, 0 }, GN__UNEXPECTED, 0 },
    };
    record_pair p;
    uint8_t wire[300], out[100];
    size_t k;
    FOR_EACH_PAIR(p) {
        for (int i = 0; i < TEST_COUNT(bad); i++) {
            uint8_t alert = p.server.v13 ? bad[i].alert_13 : bad[i].alert_12;
            size_t n = gn__record_seal(&p.client, GN__HANDSHAKE, bad[i].bytes, bad[i].n, wire);
            gn_result r = pair_take(&p, wire, n, out, sizeof out, &k);
            if (r != (alert ? GN_TLS_FAILED : GN_OK) || p.server.alert != alert)
                test_fail(__FILE__, __LINE__, "case %d: %d, alert %u", i, (int)r, p.server.alert);
            if (i == 0) CHECK(gn__way_renew(&p.client, &p.client.up)); /* as it said */
            p.server.alert = 0;
            pair_mend(&p);
        }
        for (uint8_t cut = 1; cut < 5; cut++) { /* 1.3: in two records, and with data between them */
            const uint8_t update[] = { GN__KEY_UPDATE, 0, 0, 1, 1 };
            size_t n = gn__record_seal(&p.client, GN__HANDSHAKE, update, cut, wire);
            n += gn__record_seal(&p.client, GN__HANDSHAKE, update + cut, 5u - cut, wire + n);
            CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), GN_OK);
            CHECK(atomic_exchange(&p.server.renew, false) == p.server.v13);
            if (p.server.v13) CHECK(gn__way_renew(&p.client, &p.client.up));
            pair_mend(&p);
            n = gn__record_seal(&p.client, GN__HANDSHAKE, update, cut, wire);
            n += gn__record_seal(&p.client, GN__DATA, update, 1, wire + n);
            CHECK_RESULT(pair_take(&p, wire, n, out, sizeof out, &k), p.server.v13 ? GN_TLS_FAILED : GN_OK);
            pair_mend(&p);
        }
        size_t n = 0; /* one after another without end */
        uint8_t flood[64 * (GN__IDLE_RECORDS + 1)];
        for (int i = 0; i <= GN__IDLE_RECORDS; i++) n += gn__record_renew(&p.client, flood + n);
        CHECK_RESULT(pair_take(&p, flood, n, out, sizeof out, &k), GN_TLS_FAILED);
    }
}

/* Our client and our echo, whose keys wear out after a few records. */
static void echo_with_worn_keys(bool agreed, uint64_t records) {
    host h;
    gn_transport t;
    gn_link_info info;
    static uint8_t data[300000];
    char home[GN__PATH], tenant[64];
    gn__key_records = records;
    REQUIRE(host_open(&h));
    h.renews = agreed;
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    t.i->info(t.self, &info);
    CHECK(info.renews && info.key_updates == 0);
    if (agreed) {
        t.i->renew(t.self);
        for (size_t n = 1; n < 300000; n = n * 5 + 7) echo(t, n);
        for (int i = 0; i < 50; i++) echo(t, 3);
        t.i->info(t.self, &info);
        CHECK(info.key_updates >= 2 * 50 / records);
    } else {
        gn_result r = t.i->send(t.self, data, 16384 * (size_t)records, 5000);
        CHECK_RESULT(r, GN_TLS_FAILED);
        CHECK_RESULT(t.i->send(t.self, data, 1, 5000), GN_TLS_FAILED); /* and for ever */
        CHECK_INT(((gn__link *)t.self)->records.up.number, records);
    }
    t.i->close(t.self);
    host_close(&h);
}

TEST(keys_that_wear_out_are_changed_both_ways) {
    if (gn__crypto_use() == NULL || !gn__crypto_use()->aes_faster) {
        test_skip("connections do not use AES-GCM of libcrypto here");
        return;
    }
    uint64_t was = gn__key_records;
    echo_with_worn_keys(true, 2);
    echo_with_worn_keys(true, 7);
    gn__key_records = was;
}

TEST(keys_that_wear_out_for_a_peer_that_takes_no_others_end_the_connection) {
    if (gn__crypto_use() == NULL || !gn__crypto_use()->aes_faster) {
        test_skip("connections do not use AES-GCM of libcrypto here");
        return;
    }
    uint64_t was = gn__key_records;
    echo_with_worn_keys(false, 10);
    gn__key_records = was;
    CHECK(log_has("encrypted 10 records, all that is safe"));
}

/* The same for a program: its steps go on, and it can see what happened. */
TEST(session_whose_keys_wear_out_goes_on) {
    static float x[50000], y[50000];
    char home[GN__PATH], client[GN__PATH];
    gn_server *s = NULL;
    gn_error error;
    gn_stats up, down;
    if (gn__crypto_use() == NULL || !gn__crypto_use()->aes_faster) {
        test_skip("connections do not use AES-GCM of libcrypto here");
        return;
    }
    uint64_t was = gn__key_records;
    gn_register_net(&gn__net); /* this unit's, not the library's */
    gn__key_records = 3;
    REQUIRE(gn_server_open(
                &(gn_server_desc){ .listen = "127.0.0.1:0", .devices = "cpu", .threads = 1, .home = new_folder(home) },
                &s, &error) == GN_OK);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = gn_server_url(s), .home = new_folder(client), .strict = true });
    CHECK_RESULT(gn_status(g), GN_OK);
    for (int step = 1; step <= 10; step++) {
        for (int i = 0; i < TEST_COUNT(x); i++) x[i] = (float)test_random_int(step, 1 << 24);
        gn_tensor t = gn_mul_c(gn_data(g, GN_F32, GN_SHAPE(TEST_COUNT(x)), x), 2);
        CHECK_RESULT(gn_read(t, y, sizeof y), GN_OK);
        for (int i = 0; i < TEST_COUNT(x); i++)
            if (!CHECK(y[i] == 2 * x[i])) break;
        gn_step(g);
    }
    gn_get_stats(g, &up);
    gn_server_stats(s, &down);
    CHECK(up.key_updates >= 10 && down.key_updates >= 10);
    gn_close(g);
    gn_server_close(s);
    gn__key_records = was;
}

static gn_result one_step(gn_ctx *g) {
    float one = 1, two = 0;
    gn_result r = gn_read(gn_add_c(gn_data(g, GN_F32, GN_SCALAR, &one), 1), &two, sizeof two);
    gn_step(g);
    return r == GN_OK && two != 2 ? GN_INTERNAL : r;
}

/* A client whose line goes from the list, or gets a '#', is told so within seconds, whether it works or waits; others
   go on, also while the list is written anew. */
TEST(sessions_of_a_revoked_client_end) {
    enum { WORKS, WAITS, STAYS, N };
    char home[GN__PATH], folder[GN__PATH], path[GN__PATH + 16], all[2000], line[N][400], text[2000] = "";
    gn_server *s = NULL;
    gn_error error;
    gn_ctx *g[N];
    size_t had = 0;
    gn_register_net(&gn__net); /* this unit's, not the library's */
    REQUIRE(gn_server_open(
                &(gn_server_desc){ .listen = "127.0.0.1:0", .devices = "cpu", .threads = 1, .home = new_folder(home) },
                &s, &error) == GN_OK);
    snprintf(path, sizeof path, "%s/clients", home);
    for (int i = 0; i < N; i++) {
        g[i] = gn_open(&(gn_desc){ .devices = gn_server_url(s), .home = new_folder(folder) });
        CHECK_RESULT(one_step(g[i]), GN_OK);
        REQUIRE(read_text(path, all, sizeof all));
        snprintf(line[i], sizeof line[i], "%s", all + had);
        had = strlen(all);
    }
    for (int k = 0; k < 3; k++) { /* the same list again: nobody notices */
        usleep(300000);
        write_text(path, all, 0600);
        CHECK_RESULT(one_step(g[WORKS]), GN_OK);
    }
    snprintf(text, sizeof text, "#%s%s", line[WAITS], line[STAYS]);
    write_text(path, text, 0600);
    gn_result r = GN_OK;
    for (int i = 0; i < 250 && r == GN_OK; i++, usleep(20000)) r = one_step(g[WORKS]);
    usleep(500000);
    for (int i = WORKS; i <= WAITS; i++) {
        CHECK_RESULT(i == WORKS ? r : one_step(g[i]), GN_BAD_CREDENTIAL);
        if (!strstr(gn_last_error(g[i])->text, "revoked"))
            test_fail(__FILE__, __LINE__, "client %d is told \"%s\"", i, gn_last_error(g[i])->text);
    }
    CHECK_RESULT(one_step(g[STAYS]), GN_OK);
    for (int i = 0; i < N; i++) gn_close(g[i]);
    gn_server_close(s);
}

/* mbedTLS takes no new keys: with AES-GCM it ends where they wear out, with ChaCha20-Poly1305 they never do. */
TEST(keys_of_mbedtls_that_wear_out_end_the_connection) {
    uint64_t was = gn__key_records;
    for (int aes = 0; aes < 2; aes++) {
        int suite = aes ? MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                        : MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
        static uint8_t data[16384 * 20];
        char home[GN__PATH];
        gn_server_desc d = { .listen = ":0", .home = new_folder(home), .log = keep_log };
        gn_transport t;
        void *l;
        raw_echo x;
        pthread_t thread;
        memset(&x, 0, sizeof x);
        gn__key_records = 10;
        setenv("GENIE_AEAD", "mbedtls", 1);
        REQUIRE(gn__net.listen(&d, &l, NULL) == GN_OK);
        REQUIRE(raw_make(&x.r, tcp_connect(gn__net.port(l)), MBEDTLS_SSL_IS_CLIENT, RAW_TLS_1_2, suite, false));
        pthread_create(&thread, NULL, raw_echo_run, &x);
        REQUIRE(accept_silent(l, 5000, &t, NULL) == GN_OK);
        CHECK_RESULT(t.i->send(t.self, data, 1, 5000), GN_OK);
        CHECK_RESULT(t.i->send(t.self, data, sizeof data, 5000), aes ? GN_TLS_FAILED : GN_OK);
        CHECK_RESULT(t.i->send(t.self, data, 1, 5000), aes ? GN_TLS_FAILED : GN_OK);
        t.i->close(t.self);
        pthread_join(thread, NULL);
        raw_free(&x.r);
        gn__net.unlisten(l);
        unsetenv("GENIE_AEAD");
    }
    gn__key_records = was;
}

#if defined(GN__TLS_MAX)
/* OpenSSL's own server, which sends each line back reversed; -1: there is none. */
static pid_t openssl_server(const char *home, uint16_t port) {
    char at[32], key[GN__PATH + 16], cert[GN__PATH + 16];
    snprintf(at, sizeof at, "127.0.0.1:%u", port);
    snprintf(key, sizeof key, "%s/key.pem", home);
    snprintf(cert, sizeof cert, "%s/cert.pem", home);
    if (system("openssl version >/dev/null 2>&1") != 0) return -1;
    pid_t child = fork();
    if (child != 0) return child;
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    execlp("openssl", "openssl", "s_server", "-accept", at, "-key", key, "-cert", cert, "-tls1_3", "-rev", "-naccept",
           "1", (char *)NULL);
    _exit(127);
}

static void check_reversed(gn_transport t, const char *line, const char *back) {
    char got[16] = "";
    CHECK_RESULT(t.i->send(t.self, line, strlen(line), 2000), GN_OK);
    CHECK_RESULT(recv_all(t, got, strlen(line), 2000), GN_OK);
    CHECK_STR(got, back);
}

/* Both of us change keys, each because the other asks. */
static void talk_to_openssl(gn_transport t) {
    static const uint8_t update[] = { GN__KEY_UPDATE, 0, 0, 1, 1 };
    gn__link *l = t.self;
    check_reversed(t, "abc\n", "cba\n");
    for (uint64_t round = 1; round <= 2; round++) {
        size_t n = gn__record_seal(&l->records, GN__HANDSHAKE, update, sizeof update, l->out.p);
        REQUIRE(n > 0 && gn__way_renew(&l->records, &l->records.up) &&
                gn__sock_send(l, l->out.p, n, &(gn__time_limit){ 1000, 0 }) == GN_OK);
        check_reversed(t, "de fg\n", "gf ed\n");
        CHECK_INT(atomic_load(&l->records.renewed), 3 * round - 1);
        atomic_store(&l->records.renew, true); /* as if it had asked */
        check_reversed(t, "hij\n", "jih\n");
        CHECK_INT(atomic_load(&l->records.renewed), 3 * round);
    }
}

TEST(key_updates_are_understood_by_openssl) {
    host h;
    uint16_t port;
    char url[GN__URL_MAX], home[GN__PATH];
    gn_transport t;
    gn_fault f;
    if (gn__crypto_use() == NULL || GN__TLS_MAX != MBEDTLS_SSL_VERSION_TLS1_3) {
        test_skip("needs libcrypto and TLS 1.3");
        return;
    }
    REQUIRE(host_open(&h));
    close(tcp_listen(&port));
    pid_t server = openssl_server(h.home, port);
    snprintf(url, sizeof url, "127.0.0.1:%u%s", port, strchr(gn__net.url(h.listener), '?'));
    gn_result r = GN_UNREACHABLE;
    for (int i = 0; server > 0 && i < 200 && r == GN_UNREACHABLE; i++, nap(10))
        r = dial_in(url, new_folder(home), 5000, &t, &f);
    if (server < 0) test_skip("there is no openssl program");
    else if (CHECK_RESULT(r, GN_OK)) {
        talk_to_openssl(t);
        t.i->close(t.self);
    }
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    host_close(&h);
}
#endif

/* What libcrypto takes over must be a connection on which nothing was said yet: no nonce serves twice, no byte is
   lost. */
TEST(connection_in_use_is_not_taken_over) {
    const gn__crypto *c = gn__crypto_use();
    host h;
    raw r;
    gn__keys k;
    gn__records made;
    if (c == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    memset(&k, 0, sizeof k);
    REQUIRE(host_open(&h));
    REQUIRE(raw_make(&r, tcp_connect(gn__net.port(h.listener)), MBEDTLS_SSL_IS_CLIENT, RAW_TLS_1_2, 0, false));
    gn__keys_wanted_of(&r.tls->conf, &k);
    REQUIRE(mbedtls_ssl_setup(&r.tls->ssl, &r.tls->conf) == 0 && mbedtls_ssl_set_hostname(&r.tls->ssl, NULL) == 0);
    gn__keys_wanted(&r.tls->ssl, &k);
    mbedtls_ssl_set_bio(&r.tls->ssl, &r.net, mbedtls_net_send, mbedtls_net_recv, NULL);
    REQUIRE(mbedtls_ssl_handshake(&r.tls->ssl) == 0);
    memset(&made, 0, sizeof made);
    REQUIRE(gn__records_make(&made, c, &k, &r.tls->ssl, false));
    CHECK(made.up.number == 1 && made.down.number == 1);
    gn__records_deinit(&made);
    const uint8_t none = 0;
    for (size_t i = 0; i < sizeof made; i++)
        if (!CHECK(((const uint8_t *)&made)[i] == none)) break; /* no key stays */
    CHECK_INT(mbedtls_ssl_write(&r.tls->ssl, &none, 1), 1);
    CHECK(!gn__records_make(&made, c, &k, &r.tls->ssl, false));
    raw_free(&r);
    host_close(&h);
}

TEST(wrong_record_is_the_last_that_is_read) {
    for (int stock = 0; stock < 2; stock++) {
        host h;
        gn_transport t;
        uint8_t byte, wrong[5 + 40] = { 23, 3, 3, 0, 40 };
        size_t n;
        char home[GN__PATH], tenant[64];
        if (stock) setenv("GENIE_AEAD", "mbedtls", 1);
        REQUIRE(host_open(&h));
        REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
        gn__link *l = t.self;
        CHECK((l->tls == NULL) == (l->records.crypto != NULL)); /* mbedTLS's keys are gone where it is not needed */
        CHECK(l->in_at == l->in_n);
        memcpy(l->in, wrong, sizeof wrong); /* as if it had come */
        l->in_at = 0;
        l->in_n = sizeof wrong;
        CHECK_RESULT(t.i->recv(t.self, &byte, 1, &n, 1000), GN_TLS_FAILED);
        CHECK_RESULT(t.i->send(t.self, "x", 1, 1000), GN_OK);
        nap(20); /* the right one that follows is of no use */
        CHECK_RESULT(t.i->recv(t.self, &byte, 1, &n, 1000), GN_TLS_FAILED);
        t.i->close(t.self);
        host_close(&h);
        unsetenv("GENIE_AEAD");
    }
}

/* ---- threads beside a link's own ---- */

/* Two links over a TCP connection, with keys as a handshake would give. */
typedef struct stream_pair {
    gn__link *a, *b;
    gn_transport from, to;
} stream_pair;

static gn__link *stream_end(int fd, const gn__records *r) {
    gn__link *l = NULL;
    gn_fault f;
    if (!gn__fd_prepare(fd) || gn__link_make(fd, &l, &f) != GN_OK || gn__tls_buffers(l, &f) != GN_OK) abort();
    gn__tcp_options(fd);
    l->records = *r;
    snprintf(l->version, sizeof l->version, "TLSv1.3");
    return l;
}

/* Of 1.3 with AES-128-GCM, which changes its keys when they wear out; `wanted` as gn__helpers_wanted. */
static void stream_make(stream_pair *p, int wanted) {
    record_pair r;
    uint16_t port;
    int listener = tcp_listen(&port), fd = tcp_connect(port);
    gn__helpers_wanted = wanted;
    if (!pair_make(&r, GN__AES_128_GCM, true)) abort();
    p->a = stream_end(fd, &r.client);
    p->b = stream_end(accept(listener, NULL, NULL), &r.server);
    p->from = (gn_transport){ &gn__client_i, p->a };
    p->to = (gn_transport){ &gn__client_i, p->b };
    p->from.i->renew(p->a);
    close(listener);
}

/* Closes the ends that are left. */
static void stream_free(stream_pair *p) {
    if (p->a != NULL) p->from.i->close(p->a);
    if (p->b != NULL) p->to.i->close(p->b);
    gn__helpers_wanted = -1;
}

#define FOR_EACH_STREAM(p)               \
    if (gn__crypto_use() == NULL) {      \
        test_skip(gn__crypto_found.why); \
        return;                          \
    }                                    \
    for (int wanted_ = 0; wanted_ < 4 && (stream_make(&(p), wanted_), true); stream_free(&(p)), wanted_++)

static bool helper_runs(gn__helper *h) {
    pthread_mutex_lock(&h->lock);
    bool runs = h->begun && !h->ended;
    pthread_mutex_unlock(&h->lock);
    return runs;
}

typedef struct stream_writer {
    gn_transport t;
    const uint8_t *data;
    const size_t *sizes;
    int n;
    gn_result result;
} stream_writer;

static void *stream_write(void *arg) {
    stream_writer *w = arg;
    const uint8_t *p = w->data;
    for (int i = 0; i < w->n && w->result == GN_OK; p += w->sizes[i++])
        w->result = w->t.i->send(w->t.self, p, w->sizes[i], 20000);
    return NULL;
}

/* Messages of these sizes, one send each, to a reader whose room differs; what comes must be what was sent. */
static void stream_carry(stream_pair *p, const uint8_t *data, const size_t *sizes, int n) {
    stream_writer w = { p->from, data, sizes, n, GN_OK };
    pthread_t thread;
    size_t all = 0, got = 0;
    for (int i = 0; i < n; i++) all += sizes[i];
    uint8_t *back = calloc(1, all);
    if (pthread_create(&thread, NULL, stream_write, &w) != 0) abort();
    while (got < all) {
        size_t k = 0, room = (size_t)test_random_int(1, test_random_int(0, 3) ? 400000 : 20000);
        if (room > all - got) room = all - got;
        gn_result r = p->to.i->recv(p->b, back + got, room, &k, 20000);
        if (!CHECK_RESULT(r, GN_OK)) break;
        got += k;
    }
    if (got < all) p->from.i->interrupt(p->a);
    pthread_join(thread, NULL);
    CHECK_RESULT(w.result, GN_OK);
    CHECK(memcmp(back, data, all) == 0);
    free(back);
}

enum { STREAM = 12 << 20 };

TEST(streams_of_small_and_large_messages_arrive_by_any_number_of_threads) {
    static const size_t sizes[] = { 1,   5u << 20, 40, 128u << 10, 3, 300000, 1u << 20, (128u << 10) - 1,
                                    999, 1u << 20, 2,  1u << 20,   7, 262156, 262156,   262156 };
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    fill_random(data, STREAM);
    FOR_EACH_STREAM(p) {
        stream_carry(&p, data, sizes, TEST_COUNT(sizes));
        CHECK_INT(p.a->sending.begun, wanted_ & 1);
        CHECK_INT(p.b->receiving.begun, wanted_ >> 1);
        CHECK_INT(p.b->records.up.number + p.a->records.down.number, 0); /* nothing went the other way */
        CHECK(atomic_load(&gn__helpers_now) == (wanted_ & 1) + (wanted_ >> 1));
        if (wanted_ != 3) continue;
        nap(2 * GN__HELPER_IDLE_US / 1000); /* they have nothing to do, end, and begin anew */
        CHECK(!helper_runs(&p.a->sending) && !helper_runs(&p.b->receiving));
        CHECK_INT(atomic_load(&gn__helpers_now), 0);
        stream_carry(&p, data, sizes, TEST_COUNT(sizes));
        CHECK(helper_runs(&p.a->sending));
    }
    CHECK_INT(atomic_load(&gn__helpers_now), 0);
    free(data);
}

TEST(streams_are_sent_beside_from_four_mebibytes_on_and_small_messages_never) {
    static const size_t few[] = { 1u << 20, 1u << 20, 1u << 20, 1u << 20, 100000, 1u << 20, 100 },
                        many[] = { 1u << 20, 1u << 20, 1u << 20, 1u << 20, 1u << 20, 1u << 20 };
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    unsigned was = gn__helper_cores;
    fill_random(data, STREAM);
    if (gn__crypto_use() == NULL) test_skip(gn__crypto_found.why);
    for (int how = 0; how < 3 && gn__crypto_use() != NULL; how++) {
        gn__helper_cores = how == 1 ? 1u << 20 : 1;
        stream_make(&p, -1);
        p.a->known = p.b->known = how < 2; /* a stranger has no threads beside */
        for (int i = 0; i < 2000; i++) {
            uint8_t back[100];
            CHECK_RESULT(p.from.i->send(p.a, data + i, sizeof back, 1000), GN_OK);
            if (!CHECK_RESULT(recv_all(p.to, back, sizeof back, 1000), GN_OK)) break;
        }
        CHECK(!p.a->sending.begun && !p.b->receiving.begun);
        stream_carry(&p, data, few, TEST_COUNT(few));
        CHECK(!p.a->sending.begun);
        stream_carry(&p, data, many, TEST_COUNT(many));
        CHECK_INT(p.a->sending.begun, how == 0);
        stream_free(&p);
    }
    gn__helper_cores = was;
    free(data);
}

/* Twice as long as the wait before, if that was short, and a fourth as many links at once as there are cores. */
TEST(few_receivers_look_long_for_what_comes) {
    stream_pair p[2];
    bool longer[3];
    for (int i = 0; i < 2; i++) stream_make(&p[i], -1);
    gn__link *links[] = { p[0].a, p[0].b, p[1].a };
    for (int i = 0; i < 3; i++) {
        links[i]->cores = 8;
        links[i]->spin_us = 50;
        links[i]->spin_most_us = 1000;
        links[i]->last_us = 200;
    }
    for (int i = 0; i < 3; i++) CHECK_INT(gn__look_begin(links[i], &longer[i]), i < 2 ? 400 : 50);
    for (int i = 0; i < 3; i++) CHECK(longer[i] == (i < 2));
    gn__look_end(&longer[0]);
    CHECK_INT(gn__look_begin(links[2], &longer[2]), 400);
    for (int i = 0; i < 3; i++) gn__look_end(&longer[i]);
    CHECK_INT(atomic_load(&gn__lookers), 0);
    links[0]->last_us = 501; /* too long a wait */
    links[1]->last_us = 20;  /* as short as all look */
    for (int i = 0; i < 2; i++) CHECK_INT(gn__look_begin(links[i], &longer[i]), 50);
    CHECK(!longer[0] && !longer[1]);
    for (int i = 0; i < 2; i++) stream_free(&p[i]);
}

TEST(keys_change_within_a_stream) {
    static const size_t sizes[] = { 3u << 20, 10, 1u << 20, 5u << 20 };
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    uint64_t was = gn__key_records;
    fill_random(data, STREAM);
    gn__key_records = 5;
    FOR_EACH_STREAM(p) {
        stream_carry(&p, data, sizes, TEST_COUNT(sizes));
        CHECK(atomic_load(&p.a->records.renewed) >= (9u << 20) / GN__RECORD_MAX / 5);
        CHECK_INT(atomic_load(&p.a->records.renewed), atomic_load(&p.b->records.renewed));
    }
    gn__key_records = was;
    free(data);
}

typedef struct wire_writer {
    int fd;
    const uint8_t *p;
    size_t n;
} wire_writer;

/* Bytes as they are, until all are out or the reader has gone. */
static void *wire_write(void *arg) {
    wire_writer *w = arg;
    for (size_t at = 0; at < w->n;) {
        struct pollfd p = { w->fd, POLLOUT, 0 };
        ssize_t k = poll(&p, 1, 5000) == 1 ? send(w->fd, w->p + at, w->n - at, MSG_NOSIGNAL) : -1;
        if (k < 0 && (gn__again(errno) || errno == EINTR)) continue;
        if (k < 0) break;
        at += (size_t)k;
    }
    return NULL;
}

/* Reads until it ends; how many bytes came, all of them as in `data`. */
static size_t stream_read(stream_pair *p, const uint8_t *data, gn_result *out_end) {
    static uint8_t out[300000];
    size_t got = 0, k;
    while ((*out_end = p->to.i->recv(p->b, out, sizeof out, &k, 10000)) == GN_OK) {
        if (!CHECK(memcmp(out, data + got, k) == 0)) break;
        got += k;
    }
    return got;
}

TEST(record_altered_within_a_stream_is_the_end_of_it) {
    enum { RECORDS = 400, SIZE = GN__RECORD_MAX, SEALED = SIZE + GN__HEAD + 1 + GN__TAG };
    stream_pair p;
    uint8_t *data = malloc((size_t)RECORDS * SIZE), *wire = malloc((size_t)RECORDS * SEALED);
    fill_random(data, (size_t)RECORDS * SIZE);
    FOR_EACH_STREAM(p) {
        size_t bad = (size_t)test_random_int(1, RECORDS - 1), k;
        pthread_t thread;
        gn_result end;
        for (size_t i = 0; i < RECORDS; i++)
            REQUIRE(gn__record_seal(&p.a->records, GN__DATA, data + i * SIZE, SIZE, wire + i * SEALED) == SEALED);
        wire[bad * SEALED + (size_t)test_random_int(GN__HEAD, SEALED - 1)] ^= 64;
        wire_writer w = { p.a->fd, wire, (size_t)RECORDS * SEALED };
        pthread_create(&thread, NULL, wire_write, &w);
        CHECK_INT(stream_read(&p, data, &end), bad * SIZE);
        CHECK_RESULT(end, GN_TLS_FAILED);
        CHECK_RESULT(p.to.i->recv(p.b, data, 1, &k, 1000), GN_TLS_FAILED); /* and for ever */
        CHECK_INT(p.b->receiving.begun, wanted_ >> 1);
        p.to.i->interrupt(p.b);
        pthread_join(thread, NULL);
    }
    free(data);
    free(wire);
}

static void *close_end(void *arg) {
    gn_transport *t = arg;
    t->i->close(t->self);
    return NULL;
}

/* Sends beside until the peer, which does not read, lets no more through: how many bytes were taken. */
static size_t stream_fill(stream_pair *p, const uint8_t *data, uint32_t timeout_ms) {
    size_t sent = 0, piece = 256u << 10;
    while (sent + piece <= STREAM && (p->from.i->state(p->a, 100) || !atomic_load(&p->a->sending.busy))) {
        if (!CHECK_RESULT(p->from.i->send(p->a, data + sent, piece, timeout_ms), GN_OK)) break;
        sent += piece;
    }
    return sent;
}

TEST(link_closed_at_once_has_sent_all_of_its_stream) {
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    fill_random(data, STREAM);
    FOR_EACH_STREAM(p) {
        gn_result end;
        pthread_t thread;
        bool beside = wanted_ & 1;
        size_t size = 256u << 10; /* which the buffers of the socket hold */
        if (beside) {
            size = stream_fill(&p, data, 5000);
            CHECK(size < STREAM && atomic_load(&p.a->sending.busy));
        } else CHECK_RESULT(p.from.i->send(p.a, data, size, 5000), GN_OK);
        pthread_create(&thread, NULL, close_end, &p.from);
        nap(20);
        CHECK_INT(stream_read(&p, data, &end), size);
        CHECK_RESULT(end, GN_DISCONNECTED);
        CHECK(beside || p.b->records.ended == GN_DISCONNECTED); /* it said goodbye: there was room for that */
        pthread_join(thread, NULL);
        p.a = NULL;
    }
    free(data);
}

TEST(peer_that_goes_within_a_stream_ends_it) {
    static const size_t sizes[] = { 4u << 20, 4u << 20, 4u << 20 };
    stream_pair p;
    uint8_t *data = malloc(STREAM), *out = malloc(1u << 20);
    FOR_EACH_STREAM(p) {
        stream_writer w = { p.from, data, sizes, TEST_COUNT(sizes), GN_OK };
        pthread_t thread;
        pthread_create(&thread, NULL, stream_write, &w);
        REQUIRE(recv_all(p.to, out, 1u << 20, 5000) == GN_OK);
        uint64_t start = gn_now_us();
        if (wanted_ % 2) gn__link_interrupt(p.a);
        else p.to.i->close(p.b);
        if (wanted_ % 2 == 0) p.b = NULL;
        pthread_join(thread, NULL);
        if (w.result == GN_OK) w.result = p.from.i->send(p.a, data, 1, 1000); /* all of it was on its way */
        CHECK_RESULT(w.result, GN_DISCONNECTED);
        CHECK(seconds(start) < 3);
    }
    free(data);
    free(out);
}

TEST(peer_that_reads_nothing_is_a_timeout_for_a_stream_too) {
    stream_pair p;
    size_t n = 64u << 20;
    uint8_t *data = calloc(1, n), byte;
    FOR_EACH_STREAM(p) {
        size_t k;
        CHECK(p.from.i->state(p.a, 0) == GN_LINK_WRITABLE);
        CHECK_RESULT(p.to.i->send(p.b, "x", 1, 1000), GN_OK);
        uint64_t start = gn_now_us();
        check_timeout(p.from.i->send(p.a, data, n, 500), start, 0.5, "send");
        CHECK_INT(p.from.i->state(p.a, 10), GN_LINK_READABLE); /* not writable, and what has come is seen */
        CHECK_RESULT(p.from.i->recv(p.a, &byte, 1, &k, 1000), GN_OK);
        CHECK_RESULT(p.from.i->send(p.a, data, 1, 500), GN_TIMEOUT);
        start = gn_now_us();
        p.from.i->interrupt(p.b);
        CHECK(seconds(start) < 1);
    }
    free(data);
}

TEST(link_whose_helper_has_more_to_send_is_not_writable) {
    stream_pair p;
    if (gn__crypto_use() == NULL) {
        test_skip(gn__crypto_found.why);
        return;
    }
    stream_make(&p, 0);
    CHECK_INT(p.from.i->state(p.a, 0), GN_LINK_WRITABLE);
    p.a->sending.made = 1; /* as if there were one */
    atomic_store(&p.a->sending.busy, true);
    uint64_t start = gn_now_us();
    CHECK_INT(p.from.i->state(p.a, 20), 0);
    CHECK(gn_now_us() - start >= 20000);
    p.a->sending.made = 0;
    atomic_store(&p.a->sending.busy, false);
    CHECK_INT(p.from.i->state(p.a, 0), GN_LINK_WRITABLE);
    stream_free(&p);
}

/* What is sent beside has the deadline of its call; when that is over, half a record may be out: nothing may follow it,
   even if the peer reads again. */
TEST(deadline_of_what_is_sent_beside_is_told_by_the_next_send) {
    stream_pair p;
    uint8_t *data = calloc(1, STREAM), back[4096];
    size_t k;
    if (gn__crypto_use() == NULL) test_skip(gn__crypto_found.why);
    else {
        stream_make(&p, 1);
        uint64_t start = gn_now_us();
        CHECK(stream_fill(&p, data, 400) < STREAM);
        for (int i = 0; i < 300 && atomic_load(&p.a->sending.busy); i++) nap(10);
        CHECK(!atomic_load(&p.a->sending.busy));
        CHECK(seconds(start) < 3);
        for (int i = 0; i < 500; i++) REQUIRE(p.to.i->recv(p.b, back, sizeof back, &k, 1000) == GN_OK);
        CHECK_RESULT(p.from.i->send(p.a, data, 1, 1000), GN_TIMEOUT);
        stream_free(&p);
    }
    free(data);
}

/* A call that may wait less than what is being sent does so, and then nothing is waited for any more. */
TEST(link_that_is_broken_closes_at_once) {
    stream_pair p;
    uint8_t *data = calloc(1, STREAM);
    if (gn__crypto_use() == NULL) test_skip(gn__crypto_found.why);
    else {
        stream_make(&p, 1);
        CHECK(stream_fill(&p, data, 20000) < STREAM);
        uint64_t start = gn_now_us();
        check_timeout(p.from.i->send(p.a, data, 4u << 20, 300), start, 0.3, "send");
        start = gn_now_us();
        p.from.i->close(p.a);
        CHECK(seconds(start) < 2);
        p.a = NULL;
        stream_free(&p);
    }
    free(data);
}

/* Whether or not a thread is there to say so: nothing follows half a record. */
TEST(streams_that_failed_beside_send_nothing_more) {
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    fill_random(data, STREAM);
    FOR_EACH_STREAM(p) {
        atomic_store(&p.a->sending.result, GN_TIMEOUT);
        if (wanted_ == 3) atomic_store(&gn__helpers_now, GN__HELPERS);
        CHECK_RESULT(p.from.i->send(p.a, data, 1u << 20, 1000), GN_TIMEOUT);
        CHECK_RESULT(p.from.i->send(p.a, data, 10, 1000), GN_TIMEOUT);
        CHECK_INT(atomic_load(&p.a->up), 0);
        size_t k;
        uint8_t byte;
        CHECK_RESULT(p.from.i->recv(p.a, &byte, 1, &k, 0), GN_DISCONNECTED); /* who only receives learns it too */
        p.from.i->close(p.a);
        p.a = NULL;
        CHECK_RESULT(p.to.i->recv(p.b, &byte, 1, &k, 1000), GN_DISCONNECTED); /* no last words either */
        CHECK_INT(atomic_load(&p.b->down), 0);
        if (wanted_ == 3) atomic_store(&gn__helpers_now, 0);
    }
    free(data);
}

static atomic_bool trickles;

/* Bytes of one long record, one at a time and faster than a helper gives up. */
static void *trickle(void *arg) {
    stream_pair *p = arg;
    uint8_t *data = calloc(1, GN__RECORD_MAX), *record = malloc(GN__RECORD_ROOM);
    size_t n = gn__record_seal(&p->a->records, GN__DATA, data, GN__RECORD_MAX, record);
    for (size_t i = 0; i + 1 < n && atomic_load(&trickles); i++) {
        gn__sock_send(p->a, record + i, 1, &(gn__time_limit){ 1000, 0 });
        for (uint64_t end = gn_now_us() + 20; gn_now_us() < end;) continue;
    }
    free(data);
    free(record);
    return NULL;
}

TEST(streams_that_become_a_trickle_keep_to_deadlines) {
    static const size_t sizes[] = { 6u << 20 };
    stream_pair p;
    uint8_t *data = malloc(STREAM), byte;
    fill_random(data, STREAM);
    FOR_EACH_STREAM(p) {
        stream_carry(&p, data, sizes, 1);
        pthread_t thread;
        atomic_store(&trickles, true);
        if (pthread_create(&thread, NULL, trickle, &p) != 0) abort();
        for (int i = 0; i < 3; i++) {
            uint64_t start = gn_now_us();
            size_t k = 0;
            CHECK_RESULT(p.to.i->recv(p.b, &byte, 1, &k, 10), GN_TIMEOUT);
            CHECK(seconds(start) < 0.1);
        }
        atomic_store(&trickles, false);
        pthread_join(thread, NULL);
    }
    free(data);
}

TEST(streams_without_room_for_helpers_go_on_alone) {
    static const size_t sizes[] = { 5u << 20, 10, 2u << 20 };
    stream_pair p;
    uint8_t *data = malloc(STREAM);
    fill_random(data, STREAM);
    FOR_EACH_STREAM(p) {
        if (wanted_ % 2) atomic_store(&alloc_countdown, 1); /* no memory for turns */
        else atomic_store(&gn__helpers_now, GN__HELPERS);   /* others have all the threads */
        stream_carry(&p, data, sizes, TEST_COUNT(sizes));
        CHECK(!helper_runs(&p.a->sending) && !helper_runs(&p.b->receiving));
        CHECK_INT(p.a->sending.refused, wanted_ % 2); /* it is not tried again and again */
        CHECK_INT(p.b->receiving.refused, wanted_ == 3);
        atomic_store(&alloc_countdown, 0);
        if (wanted_ % 2 == 0) atomic_store(&gn__helpers_now, 0);
    }
    CHECK_INT(atomic_load(&gn__helpers_now), 0);
    free(data);
}

/* Our server with each wish against a client that is mbedTLS alone: bytes of many sizes go there and back. */
static void talk_to_stock(int version, int suite, const char *wish) {
    char home[GN__PATH];
    gn_server_desc d = { .listen = ":0", .home = new_folder(home) };
    gn_transport t;
    gn_link_info info;
    void *l;
    raw_echo x;
    pthread_t thread;
    memset(&x, 0, sizeof x);
    REQUIRE(gn__net.listen(&d, &l, NULL) == GN_OK);
    if (!raw_make(&x.r, tcp_connect(gn__net.port(l)), MBEDTLS_SSL_IS_CLIENT, version, suite, false)) {
        raw_free(&x.r);
        gn__net.unlisten(l);
        return;
    }
    setenv("GENIE_AEAD", wish, 1);
    pthread_create(&thread, NULL, raw_echo_run, &x);
    REQUIRE(accept_silent(l, 5000, &t, NULL) == GN_OK);
    t.i->info(t.self, &info);
    CHECK_STR(info.records,
              strcmp(wish, "mbedtls") == 0 || gn__crypto_use() == NULL ? GN__STOCK : gn__crypto_use()->text);
    CHECK_STR(info.tls, version == RAW_TLS_1_3 ? "TLSv1.3" : "TLSv1.2");
    echo(t, 1);
    echo(t, 4999);
    echo(t, 300000);
    t.i->close(t.self);
    pthread_join(thread, NULL);
    CHECK_INT(x.shook, 0);
    CHECK_INT(x.back, 305000 + ((size_t)1 << 40));
    raw_free(&x.r);
    gn__net.unlisten(l);
    unsetenv("GENIE_AEAD");
}

TEST(sides_with_and_without_libcrypto_understand_each_other) {
    const int suites[] = { MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                           MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                           MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 };
    for (int i = 0; i < TEST_COUNT(suites); i++) {
        talk_to_stock(RAW_TLS_1_2, suites[i], "auto");
        talk_to_stock(RAW_TLS_1_2, suites[i], "mbedtls");
    }
#if defined(GN__TLS_MAX)
    if (GN__TLS_MAX != MBEDTLS_SSL_VERSION_TLS1_3) {
        test_skip("this mbedTLS has no TLS 1.3 that is safe in threads");
        return;
    }
    const int newer[] = { MBEDTLS_TLS1_3_AES_128_GCM_SHA256, MBEDTLS_TLS1_3_AES_256_GCM_SHA384,
                          MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256 };
    for (int i = 0; i < TEST_COUNT(newer); i++) talk_to_stock(RAW_TLS_1_3, newer[i], "auto");
    talk_to_stock(RAW_TLS_1_3, MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256, "mbedtls");
#endif
}

/* What a client that offers these suites, as ours does with and without libcrypto, agrees on with our server. */
static const char *agreed_suite(host *h, int version, const int *suites, char out[64]) {
    raw r;
    int before = atomic_load(&h->served);
    snprintf(out, 64, "nothing");
    if (raw_make(&r, tcp_connect(gn__net.port(h->listener)), MBEDTLS_SSL_IS_CLIENT, version, 0, false)) {
        mbedtls_ssl_conf_ciphersuites(&r.tls->conf, suites);
        if (raw_shake(&r) == 0) snprintf(out, 64, "%s", mbedtls_ssl_get_ciphersuite(&r.tls->ssl));
    }
    raw_free(&r);
    host_served(h, before + 1);
    return out;
}

TEST(sides_agree_on_aes_only_where_both_have_libcrypto) {
    host h;
    char suite[64];
    if (gn__crypto_use() == NULL || !gn__crypto_use()->aes_faster) {
        test_skip("libcrypto's AES-GCM is not used here");
        return;
    }
    for (int version = RAW_TLS_1_2; version <= RAW_TLS_1_3; version++) {
#if defined(GN__TLS_MAX)
        if (version == RAW_TLS_1_3 && GN__TLS_MAX != MBEDTLS_SSL_VERSION_TLS1_3) break;
#else
        if (version == RAW_TLS_1_3) break;
#endif
        REQUIRE(host_open(&h));
        CHECK(strstr(agreed_suite(&h, version, gn__suites_aes, suite), "AES") != NULL);
        CHECK(strstr(agreed_suite(&h, version, gn__suites_stock_client, suite), "CHACHA20") != NULL);
        setenv("GENIE_AEAD", "mbedtls", 1);
        CHECK(strstr(agreed_suite(&h, version, gn__suites_aes, suite), "CHACHA20") != NULL);
        CHECK(strstr(agreed_suite(&h, version, gn__suites_stock_client, suite), "CHACHA20") != NULL);
        unsetenv("GENIE_AEAD");
        host_close(&h);
    }
}

/* Where libcrypto is missing or wrong mbedTLS encrypts, which is told; where it is demanded nothing opens. */
TEST(connection_without_libcrypto_is_slow_and_says_so) {
    host h;
    gn_transport t;
    gn_link_info info;
    char home[GN__PATH], tenant[64];
    gn_fault f;
    void *l;
    bool was = gn__crypto_use() != NULL;
    gn__crypto_found.good = false;
    snprintf(gn__crypto_found.why, sizeof gn__crypto_found.why, "it is a test");
    REQUIRE(host_open(&h));
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    t.i->info(t.self, &info);
    CHECK_STR(info.records, GN__STOCK);
    CHECK(info.slow);
    echo(t, 70000);
    t.i->close(t.self);
    host_served(&h, 1);
    setenv("GENIE_AEAD", "mbedtls", 1); /* as it was asked for: not a fault */
    REQUIRE(enter(gn__net.url(h.listener), new_folder(home), &t, tenant) == GN_OK);
    t.i->info(t.self, &info);
    CHECK_STR(info.records, GN__STOCK);
    CHECK(!info.slow);
    t.i->close(t.self);
    host_served(&h, 2);
    setenv("GENIE_AEAD", "libcrypto", 1);
    CHECK_RESULT(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f), GN_UNSUPPORTED);
    CHECK(strstr(f.text, "it is a test") != NULL);
    gn_server_desc d = { .listen = ":0", .home = new_folder(home) };
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_UNSUPPORTED);
    host_close(&h); /* whose threads look at both */
    unsetenv("GENIE_AEAD");
    gn__crypto_found.good = was;
}

TEST(wish_for_an_unknown_library_is_an_error) {
    host h;
    gn_transport t;
    gn_fault f;
    char home[GN__PATH];
    REQUIRE(host_open(&h));
    setenv("GENIE_AEAD", "rot13", 1);
    CHECK_RESULT(dial_in(gn__net.url(h.listener), new_folder(home), 5000, &t, &f), GN_BAD_ARGUMENT);
    CHECK(strstr(f.text, "rot13") != NULL);
    unsetenv("GENIE_AEAD");
    host_served(&h, 1);
    host_close(&h);
}

/* ---- plain ---- */

TEST(plain_over_a_socketpair_carries_bytes) {
    int fds[2];
    gn_transport a, b;
    gn_link_info info;
    uint8_t data[5], out[5];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    REQUIRE(gn__net.plain(fds[0], &a) == GN_OK && gn__net.plain(fds[1], &b) == GN_OK);
    fill_random(data, 5);
    CHECK_RESULT(a.i->send(a.self, data, 5, 1000), GN_OK);
    CHECK_RESULT(recv_all(b, out, 5, 1000), GN_OK);
    CHECK(memcmp(data, out, 5) == 0);
    b.i->info(b.self, &info);
    CHECK_STR(info.tls, "");
    CHECK_INT(info.bytes_down, 5);
    CHECK(a.i->auth == NULL && a.i->granted == NULL);
    a.i->close(a.self);
    size_t n;
    CHECK_RESULT(b.i->recv(b.self, out, 5, &n, 1000), GN_DISCONNECTED);
    CHECK_RESULT(b.i->send(b.self, out, 5, 1000), GN_DISCONNECTED);
    b.i->close(b.self);
    CHECK_RESULT(gn__net.plain(-1, &a), GN_BAD_ARGUMENT);
}

TEST(plain_is_no_proof_to_a_server) {
    host h;
    int fds[2];
    gn_transport a, b;
    uint8_t grant[256];
    char tenant[64];
    size_t n;
    REQUIRE(host_open(&h));
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    REQUIRE(gn__net.plain(fds[0], &a) == GN_OK && gn__net.plain(fds[1], &b) == GN_OK);
    CHECK_RESULT(gn__net.authenticate(h.listener, a, (const uint8_t *)"\1\0", 2, tenant, grant, &n, NULL), GN_INSECURE);
    a.i->close(a.self);
    b.i->close(b.self);
    host_close(&h);
}

TEST(plain_off_the_loopback_is_refused) {
    struct ifaddrs *list = NULL, *i;
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    gn_transport t;
    REQUIRE(getifaddrs(&list) == 0);
    for (i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) continue;
        memcpy(&a, i->ifa_addr, sizeof a);
        if (ntohl(a.sin_addr.s_addr) >> 24 != 127) break;
    }
    freeifaddrs(list);
    if (i == NULL) {
        test_skip("this machine has no address but the loopback one");
        return;
    }
    int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_port = 0;
    REQUIRE(bind(l, (struct sockaddr *)&a, sizeof a) == 0 && listen(l, 1) == 0 &&
            getsockname(l, (struct sockaddr *)&a, &n) == 0);
    REQUIRE(connect(c, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK_RESULT(gn__net.plain(c, &t), GN_INSECURE);
    CHECK(t.i == NULL);
    close(l);
}

/* ---- files ---- */

TEST(files_of_the_home_are_private) {
    host h;
    char home[GN__PATH], tenant[64], path[GN__PATH], text[GN__URL_MAX];
    mode_t old = umask(0);
    folder(path, "urlfile");
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .url_file = path }));
    char deep[GN__PATH + 16];
    snprintf(deep, sizeof deep, "%s/a/b", new_folder(home));
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), deep, tenant), GN_OK);
    umask(old);
    CHECK_INT(mode_of(h.home, ""), 0700);
    CHECK_INT(mode_of(h.home, "key.pem"), 0600);
    CHECK_INT(mode_of(h.home, "cert.pem"), 0600);
    CHECK_INT(mode_of(h.home, "clients"), 0600);
    CHECK_INT(mode_of(deep, "servers"), 0600);
    CHECK_INT(mode_of(deep, ""), 0700);
    CHECK_INT(mode_of(home, ""), 0700);
    CHECK_INT(mode_of(work, "urlfile"), 0600);
    CHECK(read_text(path, text, sizeof text)); /* after the pairing: the next URL */
    CHECK(strncmp(text, gn__net.url(h.listener), strlen(text) - 1) == 0 && text[strlen(text) - 1] == '\n');
    host_close(&h);
}

TEST(server_stores_no_secret) {
    host h;
    char home[GN__PATH], tenant[64], path[GN__PATH + 16], stored[1024], mine[1024];
    REQUIRE(host_open(&h));
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    snprintf(path, sizeof path, "%s/clients", h.home);
    CHECK(read_text(path, stored, sizeof stored));
    snprintf(path, sizeof path, "%s/servers", home);
    CHECK(read_text(path, mine, sizeof mine));
    char *secret = strrchr(mine, ' ') + 1;
    secret[64] = 0;
    CHECK(strstr(stored, tenant) != NULL);
    CHECK(strstr(stored, secret) == NULL);
    CHECK(!log_has(secret));
    host_close(&h);
}

TEST(files_that_others_may_read_or_write_are_refused) {
    host h;
    char home[GN__PATH], tenant[64], path[GN__PATH + 16], address[64];
    gn_transport t;
    gn_fault f;
    void *l;
    REQUIRE(host_open(&h));
    host_address(&h, address);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    snprintf(path, sizeof path, "%s/servers", home);
    chmod(path, 0640);
    CHECK_RESULT(dial_in(address, home, 5000, &t, &f), GN_INSECURE);
    CHECK(strstr(f.text, "chmod 600") != NULL);
    snprintf(path, sizeof path, "%s/key.pem", h.home);
    gn_server_desc d = { .listen = ":0", .home = h.home };
    chmod(path, 0644);
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_INSECURE);
    chmod(path, 0600);
    chmod(h.home, 0777);
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_INSECURE);
    chmod(h.home, 0770);
    bool private_group = getuid() == getgid();
    CHECK_RESULT(gn__net.listen(&d, &l, &f), private_group ? GN_OK : GN_INSECURE);
    gn__net.unlisten(l);
    if (geteuid() == 0) {
        CHECK(chown(h.home, 0, 12345) == 0);
        CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_INSECURE);
    }
    chmod(h.home, 0700);
    write_text(path, "-----BEGIN NOTHING-----\n", 0600);
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_IO_ERROR);
    CHECK(strstr(f.text, "remove cert.pem") != NULL);
    host_close(&h);
}

/* A folder that another user owns: whoever owns it may replace keys and pins, whatever its mode says. Also a file in
   our own. */
TEST(files_of_another_user_are_refused) {
    host h;
    char home[GN__PATH], empty[GN__PATH], tenant[64], address[64];
    gn_transport t;
    gn_fault f;
    void *l;
    REQUIRE(host_open(&h));
    host_address(&h, address);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), new_folder(home), tenant), GN_OK);
    CHECK(mkdir(new_folder(empty), 0700) == 0);
    const gn_server_desc servers[] = { { .listen = ":0", .home = h.home }, { .listen = ":0", .home = empty } };
    const char *const clients[] = { home, empty };
    for (int i = 0; i < 2; i++) {
        atomic_store(&another_user, 1);
        CHECK_RESULT(gn__net.listen(&servers[i], &l, &f), GN_INSECURE);
        CHECK(strstr(f.text, "belongs to user") != NULL && strstr(f.text, "chown") != NULL &&
              strstr(f.text, "GENIE_HOME") != NULL);
        CHECK_RESULT(dial_in(i ? gn__net.url(h.listener) : address, clients[i], 5000, &t, &f), GN_INSECURE);
        CHECK(strstr(f.text, "belongs to user") != NULL);
        atomic_store(&another_user, 0);
    }
    static const char *const names[] = { "servers", "clients", "key.pem", "cert.pem" };
    for (int i = 0; i < TEST_COUNT(names) && real_user() == 0; i++) {
        char path[GN__PATH + 16];
        snprintf(path, sizeof path, "%s/%s", i == 0 ? home : h.home, names[i]);
        CHECK(chown(path, 12345, 0) == 0);
        if (i == 0) CHECK_RESULT(dial_in(address, home, 5000, &t, &f), GN_INSECURE);
        else if (i == 1) CHECK(enter_and_leave(address, home, tenant) != GN_OK);
        else CHECK_RESULT(gn__net.listen(&servers[0], &l, &f), GN_INSECURE);
        CHECK(chown(path, 0, 0) == 0);
    }
    CHECK_RESULT(enter_and_leave(address, home, tenant), GN_OK);
    host_close(&h);
}

static int count_files(const char *path, const char *part) {
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) n += strstr(e->d_name, part) != NULL;
    if (dir != NULL) closedir(dir);
    return n;
}

typedef struct pairing {
    const char *url, *home;
    gn_result result;
    char tenant[64];
} pairing;

static void *pair_thread(void *arg) {
    pairing *p = arg;
    p->result = enter_and_leave(p->url, p->home, p->tenant);
    return NULL;
}

TEST(pairings_at_once_with_one_code_give_one_credential) {
    host h;
    char homes[8][GN__PATH], url[GN__URL_MAX];
    pairing p[8];
    pthread_t threads[8];
    int won = 0, lost = 0;
    REQUIRE(host_open(&h));
    snprintf(url, sizeof url, "%s", gn__net.url(h.listener));
    for (int i = 0; i < 8; i++) {
        p[i] = (pairing){ url, new_folder(homes[i]), GN_INTERNAL, "" };
        pthread_create(&threads[i], NULL, pair_thread, &p[i]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        won += p[i].result == GN_OK;
        lost += p[i].result == GN_BAD_CREDENTIAL;
    }
    CHECK_INT(won, 1);
    CHECK_INT(lost, 7);
    host_close(&h);
}

TEST(pairings_at_once_with_one_home_are_all_kept) {
    host h[6];
    char home[GN__PATH], server_home[GN__PATH], address[64];
    pairing p[6];
    pthread_t threads[6];
    new_folder(home);
    new_folder(server_home);
    /* they share key and clients */
    for (int i = 0; i < 6; i++) REQUIRE(host_open_desc(&h[i], (gn_server_desc){ .home = server_home }));
    for (int i = 0; i < 6; i++) {
        p[i] = (pairing){ gn__net.url(h[i].listener), home, GN_INTERNAL, "" };
        pthread_create(&threads[i], NULL, pair_thread, &p[i]);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        CHECK_RESULT(p[i].result, GN_OK);
    }
    for (int i = 0; i < 6; i++) {
        char tenant[64];
        host_address(&h[i], address);
        CHECK_RESULT(enter_and_leave(address, home, tenant), GN_OK);
        CHECK_STR(tenant, p[i].tenant);
    }
    for (int i = 0; i < 6; i++) host_close(&h[i]);
    CHECK_INT(count_files(home, ".new"), 0);
    CHECK_INT(count_files(server_home, ".new"), 0);
}

TEST(pairings_of_many_processes_are_all_kept) {
    char home[GN__PATH], path[GN__PATH + 16], text[8192], key[32], value[256];
    bool found;
    pid_t pids[8];
    new_folder(home);
    for (int i = 0; i < 8; i++) {
        if ((pids[i] = fork()) == 0) {
            int bad = 0;
            for (int j = 0; j < 8; j++) {
                snprintf(key, sizeof key, "key%d.%d", i, j);
                bad |= gn__store_put(home, "servers", key, "value", NULL) != GN_OK;
            }
            _exit(bad);
        }
    }
    for (int i = 0; i < 8; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        CHECK_INT(status, 0);
    }
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof key, "key%d.%d", i / 8, i % 8);
        CHECK(gn__store_get(home, "servers", key, value, sizeof value, &found, NULL) == GN_OK && found);
    }
    snprintf(path, sizeof path, "%s/servers", home);
    CHECK(read_text(path, text, sizeof text));
    CHECK_INT(strlen(text), 64 * strlen("key0.0 value\n"));
}

TEST(store_keeps_other_lines_and_replaces_its_own) {
    char home[GN__PATH], path[GN__PATH + 16], text[512], value[64];
    bool found;
    new_folder(home);
    CHECK(gn__store_put(home, "servers", "a:1", "one", NULL) == GN_OK);
    snprintf(path, sizeof path, "%s/servers", home);
    write_text(path, "# a note\na:1 one\na:11 eleven", 0600);
    CHECK(gn__store_put(home, "servers", "a:1", "two", NULL) == GN_OK);
    CHECK(read_text(path, text, sizeof text));
    CHECK_STR(text, "# a note\na:11 eleven\na:1 two\n");
    CHECK(gn__store_get(home, "servers", "a:1", value, sizeof value, &found, NULL) == GN_OK && found);
    CHECK_STR(value, "two");
    CHECK(gn__store_get(home, "servers", "a", value, sizeof value, &found, NULL) == GN_OK && !found);
    CHECK(gn__store_get(home, "servers", "a:11", value, 6, &found, NULL) == GN_OK && !found);
}

/* ---- an own PKI ---- */

static bool run(const char *format, ...) {
    char command[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command) == 0;
}

/* DIR/ca.pem; DIR/NAME.pem and NAME.key for server (localhost) and client; DIR/other.pem, an authority that signed
   nothing. */
static bool make_pki(const char *dir) {
    return run(
        "command -v openssl >/dev/null 2>&1 && mkdir -p %s && cd %s && exec >/dev/null 2>&1 && umask 077 &&"
        "for n in ca other; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $n.key "
        "-out $n.pem -days 9 -subj /CN=$n || exit 1; done;"
        "for n in server client; do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $n.key -out "
        "$n.csr -subj /CN=localhost &&"
        "openssl x509 -req -in $n.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $n.pem -days 9 || exit 1; done",
        dir, dir);
}

static void use_pki(const char *dir, const char *ca, const char *name) {
    char path[GN__PATH + 32];
    unsetenv("GENIE_CA");
    unsetenv("GENIE_CERT");
    unsetenv("GENIE_KEY");
    if (ca != NULL) {
        snprintf(path, sizeof path, "%s/%s.pem", dir, ca);
        setenv("GENIE_CA", path, 1);
    }
    if (name == NULL) return;
    snprintf(path, sizeof path, "%s/%s.pem", dir, name);
    setenv("GENIE_CERT", path, 1);
    snprintf(path, sizeof path, "%s/%s.key", dir, name);
    setenv("GENIE_KEY", path, 1);
}

TEST(own_pki_with_client_certificates_authenticates) {
    host h;
    char dir[GN__PATH], key[GN__PATH + 32], cert[GN__PATH + 32], ca[GN__PATH + 32], home[GN__PATH], where[64],
        tenant[64], again[64];
    gn_transport t;
    gn_fault f;
    if (!make_pki(new_folder(dir))) {
        test_skip("there is no openssl to make certificates");
        return;
    }
    snprintf(key, sizeof key, "%s/server.key", dir);
    snprintf(cert, sizeof cert, "%s/server.pem", dir);
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .key = key, .cert = cert, .ca = ca }));
    CHECK(strstr(gn__net.url(h.listener), "code=") == NULL);
    snprintf(where, sizeof where, "localhost:%u", gn__net.port(h.listener));
    use_pki(dir, "ca", "client");
    CHECK_RESULT(enter_and_leave(where, new_folder(home), tenant), GN_OK);
    CHECK_INT(strlen(tenant), 43);
    CHECK_RESULT(enter_and_leave(gn__net.url(h.listener), home, again), GN_OK); /* by pin: same client, same tenant */
    CHECK_STR(again, tenant);
    use_pki(dir, "other", "client");
    CHECK_RESULT(dial_in(where, home, 5000, &t, &f), GN_TLS_FAILED);
    use_pki(dir, "ca", "client");
    snprintf(where, sizeof where, "127.0.0.1:%u", gn__net.port(h.listener));
    CHECK_RESULT(dial_in(where, home, 5000, &t, &f), GN_TLS_FAILED); /* not the name in the certificate */
    use_pki(dir, "ca", "other");
    snprintf(where, sizeof where, "localhost:%u?code=" CODE22, gn__net.port(h.listener));
    CHECK(enter_and_leave(where, home, tenant) != GN_OK); /* signed by nobody the server knows */
    use_pki(dir, "ca", NULL);
    CHECK(enter_and_leave(where, home, tenant) != GN_OK); /* no certificate at all */
    setenv("GENIE_CERT", cert, 1);
    CHECK_RESULT(dial_in(where, home, 5000, &t, &f), GN_BAD_ARGUMENT);
    use_pki(dir, NULL, NULL);
    host_close(&h);
}

TEST(own_pki_without_client_certificates_pairs_by_code) {
    host h;
    char dir[GN__PATH], key[GN__PATH + 32], cert[GN__PATH + 32], home[GN__PATH], where[128], tenant[64];
    gn_fault f;
    void *l;
    if (!make_pki(new_folder(dir))) {
        test_skip("there is no openssl to make certificates");
        return;
    }
    snprintf(key, sizeof key, "%s/server.key", dir);
    snprintf(cert, sizeof cert, "%s/server.pem", dir);
    REQUIRE(host_open_desc(&h, (gn_server_desc){ .key = key, .cert = cert }));
    use_pki(dir, "ca", NULL);
    snprintf(where, sizeof where, "localhost:%u", gn__net.port(h.listener));
    CHECK_RESULT(enter_and_leave(where, new_folder(home), tenant), GN_BAD_CREDENTIAL);
    snprintf(where, sizeof where, "localhost:%u?%s", gn__net.port(h.listener),
             strstr(gn__net.url(h.listener), "code="));
    CHECK_RESULT(enter_and_leave(where, home, tenant), GN_OK);
    use_pki(dir, NULL, NULL);
    snprintf(where, sizeof where, "localhost:%u", gn__net.port(h.listener));
    CHECK_RESULT(enter_and_leave(where, home, tenant), GN_OK);
    host_close(&h);
    gn_server_desc d = { .listen = ":0", .home = home, .key = cert, .cert = cert };
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_IO_ERROR);
    d.key = key;
    d.ca = key; /* holds no certificate: must not become "no authority needed" */
    CHECK_RESULT(gn__net.listen(&d, &l, &f), GN_IO_ERROR);
}

/* ---- codec ---- */

typedef struct packed {
    uint8_t *p;
    size_t n;
    uint8_t codec;
} packed;

/* Packs, unpacks, compares; leaves the packed bytes for the caller to free. */
static packed round_trip(const void *data, size_t n, int elem) {
    packed k = { malloc(n + 1), 0, 99 };
    uint8_t *back = malloc(n + 1);
    k.n = gn__net.pack(data, n, elem, 0, k.p, n, &k.codec);
    CHECK((k.n == 0) == (k.codec == 0));
    CHECK(k.n <= n);
    if (k.n > 0) {
        CHECK(gn__net.codecs >> k.codec & 1u);
        CHECK_RESULT(gn__net.unpack(k.codec, k.p, k.n, elem, back, n), GN_OK);
        CHECK(memcmp(data, back, n) == 0);
    }
    free(back);
    return k;
}

/* The packed share of n bytes, 1 when stored. */
static double share(const void *data, size_t n, int elem) {
    packed k = round_trip(data, n, elem);
    free(k.p);
    return k.n == 0 ? 1.0 : (double)k.n / (double)n;
}

static double normal(void) {
    return sqrt(-2.0 * log(1.0 - test_random_real(0, 1))) * cos(6.283185307179586 * test_random_real(0, 1));
}

TEST(codec_random_bytes_are_stored) {
    static uint8_t data[1 << 20];
    fill_random(data, sizeof data);
    static const int elems[] = { 1, 2, 4, 8 };
    for (int i = 0; i < 4; i++) {
        CHECK(share(data, sizeof data, elems[i]) >= 1.0);
        CHECK(share(data, 4096, elems[i]) >= 1.0);
        CHECK(share(data, 513, elems[i]) >= 1.0);
        CHECK(gn__estimate(data, 4096, (size_t)elems[i]) > 0.97f); /* known at a look, without packing in vain */
    }
}

TEST(codec_zeros_and_one_hot_shrink_massively) {
    size_t n = 1 << 20;
    uint8_t *data = calloc(1, n);
    float one = 1.0f;
    CHECK(share(data, n, 4) < 1.0 / 1000);
    CHECK(share(data, n, 1) < 1.0 / 1000);
    for (size_t row = 0; row < n / 4 / 1000; row++)
        memcpy(data + 4 * (row * 1000 + (size_t)test_random_int(0, 999)), &one, 4);
    CHECK(share(data, n, 4) < 1.0 / 100);
    CHECK(share(data, 2048, 4) < 1.0 / 20);
    free(data);
}

TEST(codec_weights_shrink_by_their_exponents) {
    size_t n = 1 << 18;
    float *w = malloc(4 * n);
    uint16_t *b = malloc(2 * n);
    int64_t *ids = malloc(8 * n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        w[i] = (float)(normal() * 0.02);
        memcpy(&bits, &w[i], 4);
        b[i] = (uint16_t)(bits >> 16);
        ids[i] = test_random_int(0, 50000);
    }
    double f32 = share(w, 4 * n, 4), bf16 = share(b, 2 * n, 2), i64 = share(ids, 8 * n, 8);
    CHECK(f32 > 0.7 && f32 < 0.9);
    CHECK(share(w, 4096, 4) < 0.9); /* each plane has a code table of its own */
    CHECK(bf16 > 0.5 && bf16 < 0.75);
    CHECK(i64 > 0.2 && i64 < 0.3);
    free(w);
    free(b);
    free(ids);
}

TEST(codec_small_inputs_are_stored) {
    uint8_t data[512] = { 0 };
    for (size_t n = 0; n < 512; n++) CHECK(share(data, n, 4) >= 1.0);
    CHECK(share(data, 512, 4) < 1.0);
}

TEST(codec_odd_sizes_come_back_exactly) {
    static const int elems[] = { 1, 2, 4, 8, 3, 0, -1 };
    static uint8_t data[70000];
    int packed_ones = 0;
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)test_random_int(512, i < 200 ? 3000 : (int64_t)sizeof data);
        int kinds = (int)test_random_int(1, 40);
        for (size_t j = 0; j < n; j++) data[j] = (uint8_t)(test_random_int(0, kinds) * (int)(j % 5));
        packed_ones += share(data, n, elems[test_random_int(0, TEST_COUNT(elems) - 1)]) < 1.0;
    }
    CHECK(packed_ones > 250);
}

TEST(codec_planes_are_the_pinned_layout) {
    static const int elems[] = { 2, 4, 8 };
    uint8_t data[8 * 37 + 5], planes[sizeof data], back[sizeof data];
    fill_random(data, sizeof data);
    for (int k = 0; k < 3; k++) {
        size_t e = (size_t)elems[k], count = sizeof data / e;
        gn__split(data, sizeof data, e, planes);
        bool same = true;
        for (size_t i = 0; i < count * e; i++) same = same && planes[i % e * count + i / e] == data[i];
        for (size_t i = count * e; i < sizeof data; i++) same = same && planes[i] == data[i];
        CHECK(same);
        gn__merge(planes, sizeof data, e, back);
        CHECK(memcmp(data, back, sizeof data) == 0);
    }
}

/* unpack from a buffer of the exact size into one of the exact size, so that a sanitizer sees any byte too many. */
static gn_result unpack_exact(uint8_t codec, const void *src, size_t n, int elem, size_t raw_n) {
    uint8_t *s = malloc(n > 0 ? n : 1), *d = malloc(raw_n > 0 ? raw_n : 1);
    memcpy(s, src, n);
    gn_result r = gn__net.unpack(codec, s, n, elem, d, raw_n);
    free(s);
    free(d);
    return r;
}

TEST(codec_hostile_frames_are_refused) {
    static uint8_t data[20000], two[60000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i / 100);
    for (int elem = 1; elem <= 4; elem += 3) {
        packed k = round_trip(data, sizeof data, elem);
        REQUIRE(k.n > 0);
        CHECK_RESULT(unpack_exact(k.codec, k.p, k.n, elem, sizeof data), GN_OK);
        CHECK_RESULT(unpack_exact(k.codec, k.p, k.n, elem, sizeof data - 1), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(k.codec, k.p, k.n, elem, sizeof data + 1), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(k.codec, k.p, k.n, elem, 0), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(3, k.p, k.n, elem, sizeof data), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(255, k.p, k.n, elem, sizeof data), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(0, k.p, k.n, elem, sizeof data), GN_BAD_MESSAGE);
        for (size_t n = 0; n < k.n; n++) CHECK_RESULT(unpack_exact(k.codec, k.p, n, elem, sizeof data), GN_BAD_MESSAGE);
        memcpy(two, k.p, k.n);
        two[k.n] = 0;
        CHECK_RESULT(unpack_exact(k.codec, two, k.n + 1, elem, sizeof data), GN_BAD_MESSAGE);
        memcpy(two + k.n, k.p, k.n);
        CHECK_RESULT(unpack_exact(k.codec, two, 2 * k.n, elem, sizeof data), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(k.codec, two, 2 * k.n, elem, 2 * sizeof data), GN_BAD_MESSAGE);
        static const uint8_t skippable[] = { 0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0 };
        memcpy(two, skippable, 8);
        memcpy(two + 8, k.p, k.n);
        CHECK_RESULT(unpack_exact(k.codec, two, k.n + 8, elem, sizeof data), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(k.codec, skippable, 8, elem, 0), GN_BAD_MESSAGE);
        memcpy(two, k.p, k.n);
        memcpy(two + k.n, skippable, 8);
        CHECK_RESULT(unpack_exact(k.codec, two, k.n + 8, elem, sizeof data), GN_BAD_MESSAGE);
        size_t empty = ZSTD_compress(two + k.n, 100, "", 0, 1);
        CHECK_RESULT(unpack_exact(k.codec, two, k.n + empty, elem, sizeof data), GN_BAD_MESSAGE);
        free(k.p);
    }
}

/* Frames of zstd 0.1 to 0.7, which libraries may still decode: whole ones of 0.7, and every magic number before that of
   RFC 8878. */
TEST(codec_frames_of_old_formats_are_refused) {
    uint8_t frame[600], out[300], data[20000] = { 0 };
    for (size_t size = 256; size <= 300; size += 44) {
        /* one block, stored */
        const uint8_t head[] = {
            0x27, 0xb5, 0x2f, 0xfd, 0x60, (uint8_t)(size - 256), 0, 0x40, (uint8_t)(size >> 8), (uint8_t)size
        };
        memcpy(frame, head, sizeof head);
        fill_random(frame + sizeof head, size);
        memcpy(frame + sizeof head + size, "\xc0\0\0", 3);
        size_t n = sizeof head + size + 3, made = ZSTD_decompress(out, sizeof out, frame, n);
        if (ZSTD_isError(made)) printf("  this zstd does not decode 0.7\n");
        else CHECK(made == size && memcmp(out, frame + sizeof head, size) == 0);
        CHECK_RESULT(unpack_exact(GN__ZSTD, frame, n, 1, size), GN_BAD_MESSAGE);
        CHECK_RESULT(unpack_exact(GN__PLANES, frame, n, 4, size), GN_BAD_MESSAGE);
    }
    packed k = round_trip(data, sizeof data, 1);
    REQUIRE(k.n > 4 && unpack_exact(k.codec, k.p, k.n, 1, sizeof data) == GN_OK);
    for (int bit = 0; bit < 32; bit++) {
        k.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_RESULT(unpack_exact(k.codec, k.p, k.n, 1, sizeof data), GN_BAD_MESSAGE);
        k.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(k.p);
}

TEST(codec_altered_frames_are_safe) {
    static uint8_t data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(test_random() % 7);
    packed k = round_trip(data, sizeof data, 2);
    REQUIRE(k.n > 0);
    for (int i = 0; i < 3000; i++) {
        size_t at = (size_t)test_random_int(0, (int64_t)k.n - 1);
        uint8_t old = k.p[at];
        k.p[at] = (uint8_t)test_random();
        gn_result r = unpack_exact(k.codec, k.p, k.n, 2, sizeof data);
        CHECK(r == GN_OK || r == GN_BAD_MESSAGE);
        k.p[at] = old;
    }
    free(k.p);
}

TEST(codec_bombs_and_wide_windows_are_refused) {
    size_t n = 64u << 20;
    uint8_t *zeros = calloc(1, n), *frame = malloc(1 << 16);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t k = ZSTD_compressCCtx(c, frame, 1 << 16, zeros, n, 1);
    CHECK_RESULT(unpack_exact(1, frame, k, 1, 1000), GN_BAD_MESSAGE); /* says 64 MiB */
    /* a frame that says 1000 bytes and holds 64 MiB: patch the 4-byte size of a frame that has one */
    REQUIRE(k > 16 && frame[4] >> 6 == 2);
    size_t at = frame[4] & 0x20 ? 5 : 6;
    uint32_t small = 100000;
    for (int i = 0; i < 4; i++) frame[at + (size_t)i] = (uint8_t)(small >> 8 * i);
    CHECK_RESULT(unpack_exact(1, frame, k, 1, small), GN_BAD_MESSAGE);
    /* a frame without a size */
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    k = ZSTD_compress2(c, frame, 1 << 16, zeros, 5000);
    CHECK_RESULT(unpack_exact(1, frame, k, 1, 5000), GN_BAD_MESSAGE);
    ZSTD_freeCCtx(c);
    /* one raw block of 1000 zeros with each window the header can say; the content size is in 2 bytes, minus 256 */
    for (unsigned w = 0; w < 256; w++) {
        uint8_t f[1011] = {
            0x28,      0xb5, 0x2f, 0xfd, 0x40, (uint8_t)w, (1000 - 256) & 255, (1000 - 256) >> 8, (1000 << 3 | 1) & 255,
            1000 >> 5, 0
        };
        bool wide = w > (GN__WINDOW_LOG - 10) << 3;
        CHECK_RESULT(unpack_exact(1, f, sizeof f, 1, 1000), wide ? GN_BAD_MESSAGE : GN_OK);
    }
    free(zeros);
    free(frame);
}

TEST(codec_packs_only_where_the_wire_costs_more) {
    enum { N = 1 << 20 };
    float *dense = malloc(N), *ones = malloc(N);
    uint8_t *room = malloc(N), codec;
    for (int i = 0; i < N / 4; i++) {
        dense[i] = (float)normal();
        ones[i] = 1;
    }
    for (int i = 0; i < GN__SHARES; i++) atomic_store(&gn__pack_ps[i], gn__pack_guess[i]);
    CHECK(gn__net.pack(dense, N, 4, 0, room, N, &codec) > 0 && codec == GN__PLANES); /* nothing is known of the wire */
    for (int i = 0; i < GN__SHARES; i++) atomic_store(&gn__pack_ps[i], gn__pack_guess[i]);
    CHECK(gn__net.pack(dense, N, 4, 0.4, room, N, &codec) == 0 && codec == GN__RAW); /* 20 Gbit/s: sending is quicker */
    CHECK(gn__net.pack(ones, N, 4, 0.4, room, N, &codec) > 0);                       /* but where little stays */
    CHECK(gn__net.pack(dense, N, 4, 80, room, N, &codec) > 0 && codec == GN__PLANES); /* 100 Mbit/s: packing is */
    atomic_store(&gn__pack_ps[3], 900000); /* one slow moment stops packing, and does not stop it for ever */
    int tries = 0;
    while (tries < 2000 && gn__net.pack(dense, N, 4, 80, room, N, &codec) == 0) tries++;
    CHECK(tries > 3 && tries < 2000);
    free(dense);
    free(ones);
    free(room);
}

static void *pack_thread(void *arg) {
    uint8_t *data = arg, *out = malloc(50000), *back = malloc(50000), codec;
    bool good = true;
    for (size_t i = 0; i < 200; i++) {
        size_t n = 1000 + i * 200, k = gn__net.pack(data, n, 4, 0, out, n, &codec);
        good = good && k > 0 && gn__net.unpack(codec, out, k, 4, back, n) == GN_OK && memcmp(data, back, n) == 0;
    }
    free(out);
    free(back);
    return good ? arg : NULL;
}

TEST(codec_works_in_many_threads) {
    static uint8_t data[50000];
    pthread_t threads[12];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i % 4 >= 2 ? test_random() % 3 : test_random());
    for (int i = 0; i < 12; i++) pthread_create(&threads[i], NULL, pack_thread, data);
    for (int i = 0; i < 12; i++) {
        void *result;
        pthread_join(threads[i], &result);
        CHECK(result == data);
    }
}

/* ---- digests, memory ---- */

TEST(sha256_of_known_texts_is_right) {
    uint8_t out[32];
    char text[65];
    gn__net.sha256("abc", 3, out); /* FIPS 180-4 */
    gn__hex(out, 32, text);
    CHECK_STR(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    gn__net.sha256("", 0, out);
    gn__hex(out, 32, text);
    CHECK_STR(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(memory_that_runs_out_is_a_result) {
    host h;
    char home[GN__PATH], server_home[GN__PATH];
    gn_transport t;
    gn_fault f;
    void *l;
    int refused = 0;
    REQUIRE(host_open(&h));
    new_folder(home);
    for (long n = 1, ended = 0; !ended; n++) {
        atomic_store(&alloc_countdown, n);
        gn_server_desc d = { .listen = ":0", .home = new_folder(server_home) };
        gn_result r = gn__net.listen(&d, &l, &f);
        ended = atomic_load(&alloc_countdown) > 1;
        atomic_store(&alloc_countdown, 0);
        refused += r != GN_OK;
        CHECK((r == GN_OK) == (l != NULL));
        gn__net.unlisten(l);
    }
    CHECK(refused > 5);
    refused = 0;
    for (long n = 1, ended = 0; !ended && n < 100; n++) {
        atomic_store(&alloc_countdown, n);
        gn_result r = dial_in(gn__net.url(h.listener), home, 3000, &t, &f); /* fails the server's side too */
        ended = atomic_load(&alloc_countdown) > 1;
        atomic_store(&alloc_countdown, 0);
        refused += r != GN_OK;
        CHECK((r == GN_OK) == (t.self != NULL));
        if (r == GN_OK) t.i->close(t.self);
        while (atomic_load(&h.active) > 0) nap(1);
    }
    CHECK(refused > 5);
    host_close(&h);
}

static void remove_work(void) {
    if (strncmp(work, "/", 1) == 0) run("rm -rf '%s'", work);
}

static const test_entry tests[] = {
    TEST_ENTRY(url_with_all_parts_is_parsed),
    TEST_ENTRY(url_with_ipv6_host_is_parsed),
    TEST_ENTRY(url_that_is_malformed_is_refused),
    TEST_ENTRY(url_too_long_anywhere_is_refused),
    TEST_ENTRY(url_cut_or_changed_anywhere_is_safe),
    TEST_ENTRY(listen_address_forms_are_parsed),
    TEST_ENTRY(where_from_file_uses_the_first_line),
    TEST_ENTRY(where_from_a_bad_file_is_refused),
    TEST_ENTRY(where_from_standard_input_is_a_line),
    TEST_ENTRY(handshake_with_url_gives_tls),
    TEST_ENTRY(echo_of_all_sizes_is_exact),
    TEST_ENTRY(short_and_interrupted_reads_and_writes_are_exact),
    TEST_ENTRY(several_records_leave_in_one_call),
    TEST_ENTRY(answers_without_end_are_refused),
    TEST_ENTRY(device_in_url_is_returned),
    TEST_ENTRY(code_is_taken_once),
    TEST_ENTRY(stored_credential_reconnects),
    TEST_ENTRY(server_restarted_keeps_key_and_clients),
    TEST_ENTRY(server_with_another_key_is_refused),
    TEST_ENTRY(wrong_pin_is_refused_before_anything_is_sent),
    TEST_ENTRY(wrong_codes_change_nothing),
    TEST_ENTRY(failures_slow_their_address),
    TEST_ENTRY(failures_of_many_addresses_are_bounded),
    TEST_ENTRY(networks_of_addresses_are_their_own),
    TEST_ENTRY(code_that_is_old_expires),
    TEST_ENTRY(code_kept_over_a_handover_keeps_its_age),
    TEST_ENTRY(refusals_tell_only_the_owner),
    TEST_ENTRY(url_file_of_a_server_that_runs_is_not_written),
    TEST_ENTRY(servers_that_start_at_once_do_not_share_a_url_file),
    TEST_ENTRY(url_names_what_is_advertised),
    TEST_ENTRY(credential_altered_or_revoked_is_refused),
    TEST_ENTRY(proof_malformed_is_refused),
    TEST_ENTRY(sessions_of_a_revoked_client_end),
    TEST_ENTRY(url_without_code_or_pin_says_what_to_do),
    TEST_ENTRY(port_in_use_is_said),
    TEST_ENTRY(listen_on_a_bad_address_is_said),
    TEST_ENTRY(listen_on_a_public_address_still_demands_a_proof),
    TEST_ENTRY(ipv6_listener_is_reached),
    TEST_ENTRY(nobody_listening_is_unreachable),
    TEST_ENTRY(server_that_never_answers_is_a_timeout),
    TEST_ENTRY(server_that_stops_is_a_timeout),
    TEST_ENTRY(peer_that_sends_a_byte_at_a_time_is_a_timeout),
    TEST_ENTRY(peer_that_takes_a_byte_at_a_time_is_a_timeout),
    TEST_ENTRY(clients_that_stall_do_not_stop_an_honest_one),
    TEST_ENTRY(interrupt_wakes_a_blocked_receiver),
    TEST_ENTRY(signals_do_not_disturb_a_transfer),
    TEST_ENTRY(peer_gone_is_disconnected_without_a_signal),
    TEST_ENTRY(last_words_reach_a_client_that_is_still_sending),
    TEST_ENTRY(garbage_to_the_tls_port_is_refused),
    TEST_ENTRY(server_that_speaks_no_tls_is_said),
    TEST_ENTRY(connection_cut_at_any_byte_is_an_error),
    TEST_ENTRY(connection_altered_at_any_byte_is_an_error),
    TEST_ENTRY(strangers_that_stop_anywhere_leave_room),
    TEST_ENTRY(strangers_that_have_said_least_are_cut_first),
    TEST_ENTRY(handshake_that_advances_is_never_cut),
    TEST_ENTRY(limit_of_strangers_follows_descriptors),
    TEST_ENTRY(client_with_a_suite_of_ours_is_accepted),
    TEST_ENTRY(client_with_a_suite_without_aead_is_refused),
    TEST_ENTRY(client_with_tls_1_0_or_1_1_is_refused),
    TEST_ENTRY(client_that_renegotiates_is_refused),
    TEST_ENTRY(server_with_weak_tls_is_refused),
    TEST_ENTRY(libcrypto_agrees_with_mbedtls_at_all_sizes),
    TEST_ENTRY(libcrypto_without_an_algorithm_is_not_called_wrong),
    TEST_ENTRY(libcrypto_with_a_wrong_answer_is_found_out),
    TEST_ENTRY(records_of_any_size_into_any_room_arrive),
    TEST_ENTRY(record_altered_cut_repeated_or_swapped_ends_the_stream),
    TEST_ENTRY(records_that_are_not_data_are_taken_as_the_standard_says),
    TEST_ENTRY(padding_of_a_record_is_dropped),
    TEST_ENTRY(alerts_and_messages_of_the_handshake_are_taken_as_the_standard_says),
    TEST_ENTRY(records_spoiled_in_any_way_give_the_true_beginning_alone),
    TEST_ENTRY(key_update_gives_keys_that_follow_from_the_old_ones),
    TEST_ENTRY(key_update_that_is_malformed_ends_the_stream),
    TEST_ENTRY(keys_that_wear_out_are_changed_both_ways),
    TEST_ENTRY(session_whose_keys_wear_out_goes_on),
    TEST_ENTRY(keys_that_wear_out_for_a_peer_that_takes_no_others_end_the_connection),
    TEST_ENTRY(keys_of_mbedtls_that_wear_out_end_the_connection),
    TEST_ENTRY(connection_in_use_is_not_taken_over),
    TEST_ENTRY(sides_agree_on_aes_only_where_both_have_libcrypto),
    TEST_ENTRY(wrong_record_is_the_last_that_is_read),
    TEST_ENTRY(streams_of_small_and_large_messages_arrive_by_any_number_of_threads),
    TEST_ENTRY(streams_are_sent_beside_from_four_mebibytes_on_and_small_messages_never),
    TEST_ENTRY(keys_change_within_a_stream),
    TEST_ENTRY(record_altered_within_a_stream_is_the_end_of_it),
    TEST_ENTRY(link_closed_at_once_has_sent_all_of_its_stream),
    TEST_ENTRY(peer_that_goes_within_a_stream_ends_it),
    TEST_ENTRY(peer_that_reads_nothing_is_a_timeout_for_a_stream_too),
    TEST_ENTRY(link_whose_helper_has_more_to_send_is_not_writable),
    TEST_ENTRY(deadline_of_what_is_sent_beside_is_told_by_the_next_send),
    TEST_ENTRY(link_that_is_broken_closes_at_once),
    TEST_ENTRY(streams_that_failed_beside_send_nothing_more),
    TEST_ENTRY(streams_that_become_a_trickle_keep_to_deadlines),
    TEST_ENTRY(streams_without_room_for_helpers_go_on_alone),
    TEST_ENTRY(few_receivers_look_long_for_what_comes),
#if defined(GN__TLS_MAX)
    TEST_ENTRY(key_updates_are_understood_by_openssl),
#endif
    TEST_ENTRY(sides_with_and_without_libcrypto_understand_each_other),
    TEST_ENTRY(connection_without_libcrypto_is_slow_and_says_so),
    TEST_ENTRY(wish_for_an_unknown_library_is_an_error),
    TEST_ENTRY(plain_over_a_socketpair_carries_bytes),
    TEST_ENTRY(plain_is_no_proof_to_a_server),
    TEST_ENTRY(plain_off_the_loopback_is_refused),
    TEST_ENTRY(files_of_the_home_are_private),
    TEST_ENTRY(server_stores_no_secret),
    TEST_ENTRY(files_that_others_may_read_or_write_are_refused),
    TEST_ENTRY(files_of_another_user_are_refused),
    TEST_ENTRY(pairings_at_once_with_one_code_give_one_credential),
    TEST_ENTRY(pairings_at_once_with_one_home_are_all_kept),
    TEST_ENTRY(pairings_of_many_processes_are_all_kept),
    TEST_ENTRY(store_keeps_other_lines_and_replaces_its_own),
    TEST_ENTRY(own_pki_with_client_certificates_authenticates),
    TEST_ENTRY(own_pki_without_client_certificates_pairs_by_code),
    TEST_ENTRY(codec_random_bytes_are_stored),
    TEST_ENTRY(codec_zeros_and_one_hot_shrink_massively),
    TEST_ENTRY(codec_weights_shrink_by_their_exponents),
    TEST_ENTRY(codec_small_inputs_are_stored),
    TEST_ENTRY(codec_odd_sizes_come_back_exactly),
    TEST_ENTRY(codec_planes_are_the_pinned_layout),
    TEST_ENTRY(codec_hostile_frames_are_refused),
    TEST_ENTRY(codec_frames_of_old_formats_are_refused),
    TEST_ENTRY(codec_altered_frames_are_safe),
    TEST_ENTRY(codec_bombs_and_wide_windows_are_refused),
    TEST_ENTRY(codec_packs_only_where_the_wire_costs_more),
    TEST_ENTRY(codec_works_in_many_threads),
    TEST_ENTRY(sha256_of_known_texts_is_right),
    TEST_ENTRY(memory_that_runs_out_is_a_result),
};

int main(int argc, char **argv) {
    snprintf(work, sizeof work, "/tmp/genie-net-XXXXXX");
    if (mkdtemp(work) == NULL) return 1;
    atexit(remove_work);
    use_pki(NULL, NULL, NULL);
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
