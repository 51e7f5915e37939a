/* Any bytes as what a client of examples/formats/http.h sends, whole and in two pieces: answered or refused, and told
 * once when it ends. */
#include "fuzz.h"
#define HTTP_IMPLEMENTATION
#include "../../examples/formats/http.h"

static unsigned http_fuzz_asked, http_fuzz_gone;

static void http_fuzz_answer(void *user, http_exchange *x) {
    size_t n, sum = 0;
    const char *body = http_body(x, &n), *host = http_header(x, "host");
    (void)user;
    for (size_t i = 0; i < n; i++) sum += (unsigned char)body[i];
    FUZZ_CHECK(http_path(x)[0] == '/' && strlen(http_method(x)) > 0 && strlen(http_query(x)) < (16 << 10));
    FUZZ_CHECK(!host || strlen(host) < (16 << 10));
    http_fuzz_asked++;
    if (sum % 3 == 0) {
        http_reply(x, 200, "text/plain", body, n);
    } else if (sum % 3 == 1) {
        http_begin(x, 200, "text/plain");
        http_send(x, body, n);
        http_end(x);
    }
}

static void http_fuzz_told(void *user, http_exchange *x) {
    (void)user;
    (void)x;
    http_fuzz_gone++;
}

/* A connection by a pair of sockets: what accept does. */
static int http_fuzz_connect(http_server *s) {
    int ends[2];
    http_exchange *x = (http_exchange *)calloc(1, sizeof *x);
    FUZZ_CHECK(x && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    x->server = s;
    x->fd = ends[0];
    x->since = http__now();
    s->all[s->n++] = x;
    return ends[1];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[HTTP_ERROR];
    http_server *s = http_open(
        &(http_options){ .answer = http_fuzz_answer, .gone = http_fuzz_told, .head_bytes = 2048, .body_bytes = 5000 },
        error);
    FUZZ_CHECK(s != NULL);
    size_t first = size ? data[0] % (size + 1) : 0;
    if (size > 30000) size = 30000;
    if (first > size) first = size;
    http_fuzz_asked = http_fuzz_gone = 0;
    int fd = http_fuzz_connect(s);
    (void)!send(fd, data, first, MSG_NOSIGNAL);
    http_poll(s, 0);
    (void)!send(fd, data + first, size - first, MSG_NOSIGNAL);
    for (int i = 0; i < 12; i++) http_poll(s, 0);
    close(fd);
    http_poll(s, 0);
    http_close(s);
    FUZZ_CHECK(http_fuzz_gone <= 1 && http_fuzz_gone <= http_fuzz_asked);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const texts[] = {
        "GET /path?query HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\nPOST /%41 HTTP/1.1\r\n"
        "host: 127.0.0.1:8080\r\nContent-Length: 5\r\n\r\nhelloHEAD / HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: [::1]\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    };
    if (index >= sizeof texts / sizeof *texts || strlen(texts[index]) > cap) return 0;
    memcpy(out, texts[index], strlen(texts[index]));
    return strlen(texts[index]);
}
