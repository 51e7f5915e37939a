/* examples/formats/http.h: requests whole and in pieces, answers later and in parts, what is refused, limits of time,
 * bytes and connections. That clients which nobody here wrote get along with it is shown by http_clients_test.sh.
 *
 * Tier: quick address thread */
#include "test.h"
#include <pthread.h>

#define HTTP_IMPLEMENTATION
#include "../examples/formats/http.h"

static char error[HTTP_ERROR];
static http_exchange *later;
static int n_gone, n_answers;
static char seen_body[1 << 12];

static void note_gone(void *user, http_exchange *x) {
    (void)user;
    n_gone++;
    if (later == x) later = NULL;
}

/* /echo: the body; /later: not yet; /query: what stands behind '?'; /large: 600 KB; otherwise 404. */
static void answer(void *user, http_exchange *x) {
    size_t n;
    const char *body = http_body(x, &n);
    (void)user;
    n_answers++;
    if (!strcmp(http_path(x), "/echo")) {
        memcpy(seen_body, body, n < sizeof seen_body ? n : sizeof seen_body);
        http_reply(x, 200, "text/plain", body, n);
    } else if (!strcmp(http_path(x), "/query")) {
        http_reply(x, 200, "text/plain", http_query(x), strlen(http_query(x)));
    } else if (!strcmp(http_path(x), "/large")) {
        static char large[600000];
        memset(large, 'x', sizeof large);
        http_reply(x, 200, "text/plain", large, sizeof large);
    } else if (!strcmp(http_path(x), "/later")) {
        later = x;
    } else {
        http_reply(x, 404, "text/plain", "none\n", 5);
    }
}

static http_server *open_server(http_options o) {
    o.answer = answer;
    o.gone = note_gone;
    later = NULL;
    n_gone = n_answers = 0;
    http_server *s = http_open(&o, error);
    if (!s) printf("  %s\n", error);
    return s;
}

static int dial(const http_server *s) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(s)) };
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) return -1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void put(int fd, const char *text) {
    CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text));
}

static char got[1 << 20];
static size_t n_got;

/* Lets the server work until the client has read so much, or `marks` of a text, or the end; whether it came. */
static bool listen_until(http_server *s, int fd, const char *text, int ms) {
    uint64_t begin = http__now();
    n_got = 0;
    got[0] = 0;
    while (http__now() - begin < (uint64_t)ms) {
        http_poll(s, 5);
        ssize_t n = recv(fd, got + n_got, sizeof got - 1 - n_got, 0);
        if (n > 0) n_got += (size_t)n;
        got[n_got] = 0;
        if (text && strstr(got, text)) return true;
        if (n == 0) return text == NULL;
    }
    return false;
}

/* Sends a request on a connection of its own; whether the answer begins so. */
static bool answers(http_server *s, const char *request, const char *status) {
    int fd = dial(s);
    char line[64];
    put(fd, request);
    snprintf(line, sizeof line, "HTTP/1.1 %s ", status);
    bool ok = listen_until(s, fd, "\r\n\r\n", 3000) && !strncmp(got, line, strlen(line));
    if (!ok) printf("  %.60s: %.60s, not %s\n", request, got, status);
    close(fd);
    return ok;
}

#define HOST "Host: localhost\r\n"

TEST(requests_on_one_connection_are_answered_in_turn) {
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    int fd = dial(s);
    put(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhelloGET /query?a=1%20b HTTP/1.1\r\n" HOST
            "\r\nGET /%65cho HTTP/1.1\r\n" HOST "\r\n");
    CHECK(listen_until(s, fd, "Content-Length: 0\r\n", 3000));
    CHECK(strstr(got, "\r\n\r\nhelloHTTP/1.1 200 OK") && strstr(got, "\r\n\r\na=1%20bHTTP/1.1 200 OK"));
    CHECK(n_answers == 3 && http_count(s).requests == 3 && http_count(s).open == 1);
    put(fd, "HEAD /query?abc HTTP/1.1\r\nhost: 127.0.0.1:80\r\nconnection: x, CLOSE\r\n\r\n");
    CHECK(listen_until(s, fd, NULL, 3000));
    CHECK(strstr(got, "Content-Length: 3\r\n") && strstr(got, "Connection: close\r\n\r\n") && n_got > 4);
    CHECK(!memcmp(got + n_got - 4, "\r\n\r\n", 4));
    close(fd);
    http_close(s);
}

TEST(a_request_may_come_byte_by_byte) {
    static const char text[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc";
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    int fd = dial(s);
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        char one[2] = { text[i], 0 };
        put(fd, one);
        http_poll(s, 0);
        http_poll(s, i % 16 ? 0 : 1);
    }
    CHECK(listen_until(s, fd, "\r\n\r\nabc", 3000));
    close(fd);
    http_close(s);
}

TEST(answers_come_later_and_in_parts) {
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    int fd = dial(s);
    put(fd, "GET /later HTTP/1.1\r\n" HOST "\r\nGET /query?next HTTP/1.1\r\n" HOST "\r\n");
    CHECK(!listen_until(s, fd, "HTTP", 60));
    REQUIRE(later != NULL);
    http_begin(later, 200, "text/event-stream");
    CHECK(http_event(later, "{\"a\":1}", 7) && listen_until(s, fd, "f\r\ndata: {\"a\":1}\n\n\r\n", 3000));
    CHECK(strstr(got, "Transfer-Encoding: chunked\r\n") != NULL);
    CHECK(http_send(later, "x", 1));
    http_end(later);
    CHECK(listen_until(s, fd, "\r\n\r\nnext", 3000));
    CHECK(!strncmp(got, "1\r\nx\r\n0\r\n\r\nHTTP/1.1 200 OK", 26) && n_gone == 0);
    put(fd, "GET /later HTTP/1.0\r\n\r\n");
    CHECK(!listen_until(s, fd, "HTTP", 60));
    REQUIRE(later != NULL);
    http_begin(later, 200, "text/plain");
    CHECK(http_send(later, "whole", 5));
    http_end(later);
    CHECK(listen_until(s, fd, NULL, 3000) && n_got > 9 && !memcmp(got + n_got - 9, "\r\n\r\nwhole", 9));
    close(fd);
    http_close(s);
}

TEST(who_answers_is_told_that_the_client_has_gone) {
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    for (int streams = 0; streams < 2; streams++) {
        int fd = dial(s);
        put(fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
        CHECK(!listen_until(s, fd, "HTTP", 60) && later);
        if (streams) http_begin(later, 200, "text/plain");
        close(fd);
        for (int i = 0; i < 100 && later; i++) http_poll(s, 10);
        CHECK(!later && n_gone == streams + 1 && http_count(s).open == 0);
    }
    int fd = dial(s);
    put(fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    CHECK(!listen_until(s, fd, "HTTP", 60) && later);
    http_close(s);
    CHECK(n_gone == 3);
    close(fd);
}

TEST(what_is_no_request_is_refused) {
    static const struct {
        const char *text, *status;
    } cases[] = {
        { "\r\n\r\n", "400" },
        { "GET\r\n\r\n", "400" },
        { "GET /\r\n\r\n", "400" },
        { "GET  / HTTP/1.1\r\n" HOST "\r\n", "505" },
        { "GET / HTTP/2.0\r\n" HOST "\r\n", "505" },
        { "GET / HTTP/1.2\r\n" HOST "\r\n", "505" },
        { "GET / HTTP/1.1x\r\n" HOST "\r\n", "505" },
        { "G\x01T / HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET x HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET http://localhost/ HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET /%0 HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET /%00 HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET /%0a HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET /\xff HTTP/1.1\r\n" HOST "\r\n", "400" },
        { "GET / HTTP/1.1\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST HOST "\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST " folded\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST "nothing\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST ": b\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST "A: b\nc: d\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\n" HOST "A: \x01\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length: 1, 1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999999\r\n\r\n", "413" },
        { "POST / HTTP/1.1\r\n" HOST "Content-Length: 1048577\r\n\r\n", "413" },
        { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", "501" },
        { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\n" HOST "Expect: more\r\n\r\n", "417" },
        { "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403" },
        { "GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", "403" },
        { "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "404" },
        { "GET / HTTP/1.0\r\n\r\n", "404" },
    };
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    for (int i = 0; i < TEST_COUNT(cases); i++) CHECK(answers(s, cases[i].text, cases[i].status));
    CHECK(n_answers == 2 && http_count(s).refused == (uint64_t)TEST_COUNT(cases) - 2);
    http_close(s);
}

TEST(heads_that_are_too_long_are_refused) {
    static char text[40000];
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    memset(text, 'a', 20000);
    memcpy(text, "GET /", 5);
    CHECK(answers(s, text, "414"));
    int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\n" HOST);
    memset(text + n, 'a', 20000);
    CHECK(answers(s, text, "431"));
    for (int i = 0; i < 64; i++) n += snprintf(text + n, sizeof text - (size_t)n, "A: b\r\n");
    snprintf(text + n, sizeof text - (size_t)n, "\r\n");
    CHECK(answers(s, text, "431"));
    http_close(s);
}

TEST(a_token_is_asked_for) {
    http_server *s = open_server((http_options){ .token = "secret" });
    REQUIRE(s != NULL);
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "\r\n", "401") && strstr(got, "WWW-Authenticate: Bearer\r\n"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Bearer secre\r\n\r\n", "401"));
    /* as a browser does: a name, a colon, the token */
    CHECK(strstr(got, "WWW-Authenticate: Basic realm=\"token\"\r\n"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Basic bWU6c2VjcmV0\r\n\r\n", "404"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Basic bWU6c2VjcmV0cw==\r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Basic c2VjcmV0\r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Basic bWU6c2Vj*mV0\r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Basic \r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Bearer secrets\r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Bearer \r\n\r\n", "401"));
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "Authorization: Bearer secret\r\n\r\n", "404"));
    http_close(s);
    CHECK(!http_open(&(http_options){ .listen = "0.0.0.0:0", .answer = answer }, error) &&
          strstr(error, "needs a token"));
    CHECK(!http_open(&(http_options){ .listen = "0.0.0.0:0", .answer = answer, .token = "" }, error));
    CHECK(!http_open(&(http_options){ .listen = "8080", .answer = answer }, error) && strstr(error, "HOST:PORT"));
    CHECK(!http_open(&(http_options){ .listen = "no.such.host.invalid:1", .answer = answer }, error) && error[0]);
}

TEST(who_is_slow_is_cut_off) {
    http_server *s = open_server((http_options){ .head_ms = 100, .idle_ms = 150 });
    REQUIRE(s != NULL);
    CHECK(answers(s, "GET / HT", "408"));
    CHECK(answers(s, "POST / HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nabc", "408"));
    int fd = dial(s);
    CHECK(listen_until(s, fd, NULL, 3000) && n_got == 0); /* sends nothing */
    close(fd);
    fd = dial(s);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 40; i++) put(fd, "GET /large HTTP/1.1\r\n" HOST "\r\n"); /* and reads nothing */
    uint64_t begin = http__now();
    while (http_count(s).open < 1) http_poll(s, 10);
    while (http_count(s).open && http__now() - begin < 5000) http_poll(s, 10);
    CHECK(http_count(s).open == 0 && http_count(s).timeouts >= 3);
    close(fd);
    http_close(s);
}

TEST(connections_beyond_the_limit_are_refused) {
    http_server *s = open_server((http_options){ .connections = 2 });
    REQUIRE(s != NULL);
    int a = dial(s), b = dial(s);
    http_poll(s, 100);
    CHECK(http_count(s).open == 2);
    int c = dial(s);
    CHECK(listen_until(s, c, "503", 3000));
    close(a);
    close(b);
    close(c);
    for (int i = 0; i < 100 && http_count(s).open; i++) http_poll(s, 10);
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "\r\n", "404"));
    http_close(s);
}

TEST(expectations_are_met_and_bodies_are_whole) {
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    int fd = dial(s);
    put(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    CHECK(listen_until(s, fd, "HTTP/1.1 100 Continue\r\n\r\n", 3000));
    put(fd, "body");
    CHECK(listen_until(s, fd, "\r\n\r\nbody", 3000));
    put(fd, "GET /large HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    CHECK(listen_until(s, fd, NULL, 5000) && n_got > 600000 && got[n_got - 1] == 'x');
    close(fd);
    http_close(s);
}

static void *wake(void *server) {
    struct timespec t = { 0, 50000000 };
    nanosleep(&t, NULL);
    http_wake(server);
    return NULL;
}

TEST(a_sleeping_server_is_woken_from_another_thread) {
    pthread_t thread;
    http_server *s = open_server((http_options){ 0 });
    REQUIRE(s != NULL);
    REQUIRE(pthread_create(&thread, NULL, wake, s) == 0);
    CHECK(http_poll(s, -1));
    pthread_join(thread, NULL);
    http_close(s);
}

/* A good request altered in one place, or cut: answered or refused, and the server goes on. */
TEST(altered_requests_do_no_harm) {
    static const char good[] = "POST /echo?x=1 HTTP/1.1\r\n" HOST "Content-Length: 3\r\nAccept: */*\r\n\r\nabc";
    http_server *s = open_server((http_options){ .head_ms = 20, .idle_ms = 20 });
    REQUIRE(s != NULL);
    for (int round = 0; round < (TEST_SANITIZED ? 200 : 600); round++) {
        char text[sizeof good];
        size_t n = (size_t)test_random_int(1, (int64_t)sizeof good - 1);
        memcpy(text, good, sizeof good);
        text[test_random_int(0, (int64_t)sizeof good - 2)] = (char)test_random_int(0, 255);
        int fd = dial(s);
        CHECK(send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n);
        for (int i = 0; i < 3; i++) http_poll(s, 1);
        close(fd);
    }
    CHECK(answers(s, "GET / HTTP/1.1\r\n" HOST "\r\n", "404"));
    http_close(s);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(requests_on_one_connection_are_answered_in_turn),
        TEST_ENTRY(a_request_may_come_byte_by_byte),
        TEST_ENTRY(answers_come_later_and_in_parts),
        TEST_ENTRY(who_answers_is_told_that_the_client_has_gone),
        TEST_ENTRY(what_is_no_request_is_refused),
        TEST_ENTRY(heads_that_are_too_long_are_refused),
        TEST_ENTRY(a_token_is_asked_for),
        TEST_ENTRY(who_is_slow_is_cut_off),
        TEST_ENTRY(connections_beyond_the_limit_are_refused),
        TEST_ENTRY(expectations_are_met_and_bodies_are_whole),
        TEST_ENTRY(a_sleeping_server_is_woken_from_another_thread),
        TEST_ENTRY(altered_requests_do_no_harm),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
