/* http.h - a small server of HTTP/1.1 (RFC 9110, 9112) for a program's own thread: requests in, answers out, streams of
   server-sent events.

   One C file of the program:   #define HTTP_IMPLEMENTATION
                                #include "http.h"
   Elsewhere:                   #include "http.h"          C99, C++11; POSIX.

       static void answer(void *user, http_exchange *x) {
           if (strcmp(http_path(x), "/hello")) http_reply(x, 404, "text/plain", "no such page\n", 13);
           else http_reply(x, 200, "text/plain", "hello\n", 6);
       }
       char error[HTTP_ERROR];
       http_server *s = http_open(&(http_options){ .listen = "127.0.0.1:8080", .answer = answer }, error);
       while (!stop) http_poll(s, 1000);
       http_close(s);

   An exchange lives from the call of `answer` until it was replied to, ended, or its client has gone: then `gone` is
   called, and the exchange is used no more. It may be answered later, between two calls of http_poll: with http_reply,
   or with http_begin, any number of http_send, http_end. All of it belongs to one thread; http_wake alone may be called
   from any, also from a signal's handler. `answer` must not call http_poll.

   Nothing that a client sends is trusted. Limits of connections, bytes and time have defaults; who exceeds one is
   answered with 408, 413, 414, 431 or 503 and cut off. Grammar is strict: no folded lines, no spaces before a colon, no
   two lengths, no bare line feeds. A server on a loopback address answers only to names of this machine in "Host", so
   that no page of a browser reaches it by a name of its own; one on another address must have a token, which clients
   send as "Authorization: Bearer TOKEN", or as the password of "Basic", as browsers do.

   Does not do: TLS, request bodies in chunks, compression, ranges, HTTP/2. */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HTTP_ERROR = 256 };

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

typedef struct http_options { /* zero: the default */
    const char *listen;       /* "HOST:PORT", "[HOST]:PORT"; port 0: a free one; NULL: "127.0.0.1:0" */
    const char *token;        /* NULL: none is asked for; a listener beyond loopback needs one */
    bool any_host;            /* on loopback too any name will do in "Host": requests are passed on from elsewhere */
    void (*answer)(void *user, http_exchange *x);
    void (*gone)(void *user, http_exchange *x); /* the client of an exchange that is not ended has gone; may be NULL */
    void *user;
    unsigned connections; /* at once: 64 */
    unsigned head_ms,
        idle_ms; /* for a whole request, 10,000; between two, and for a client that reads nothing, 60,000 */
    size_t head_bytes, body_bytes; /* 16 KiB, 1 MiB */
    size_t out_bytes;              /* that wait for a client to read them: 1 MiB */
} http_options;

/* What was counted since the server was opened. */
typedef struct http_counts {
    uint64_t connections, requests, refused, timeouts, bytes_in, bytes_out;
    unsigned open; /* connections now */
} http_counts;

/* NULL: `error` says why. The options' texts are copied. */
http_server *http_open(const http_options *options, char error[HTTP_ERROR]);
void http_close(http_server *s); /* open exchanges are gone */
int http_port(const http_server *s);
http_counts http_count(const http_server *s);
/* Does what there is to do, after waiting for it for at most so many milliseconds (-1: for ever). False: the server's
   own socket has failed. */
bool http_poll(http_server *s, int wait_ms);
void http_wake(http_server *s);

/* Of a request. Texts are valid until the exchange ends; the path is decoded and begins with '/'. */
const char *http_method(const http_exchange *x);
const char *http_path(const http_exchange *x);
const char *http_query(const http_exchange *x);                    /* behind '?', as it came; "" if there is none */
const char *http_header(const http_exchange *x, const char *name); /* NULL: not there; names in any case */
const char *http_body(const http_exchange *x, size_t *out_size);
void http_set_user(http_exchange *x, void *user);
void *http_user(const http_exchange *x);

/* The whole answer; ends the exchange. */
void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t size);
/* An answer in parts. http_send is false when the client reads too slowly (out_bytes) or has gone: end then. */
void http_begin(http_exchange *x, int status, const char *type);
bool http_send(http_exchange *x, const void *data, size_t size);
bool http_event(http_exchange *x, const char *data, size_t size); /* one server-sent event; no line feeds in it */
void http_end(http_exchange *x);

#ifdef __cplusplus
}
#endif
#endif

#if defined(HTTP_IMPLEMENTATION) && !defined(HTTP_IMPLEMENTED)
#define HTTP_IMPLEMENTED
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HTTP__HEADERS = 64,
    HTTP__HEAD_MOST = 1 << 20,
    HTTP__AHEAD = 4096,    /* bytes behind a request that are read before it is answered */
    HTTP__LINGER_MS = 2000 /* for a client to take notice that it was refused */
};

/* A request's head. Texts lie in the buffer and are ended by 0. */
typedef struct http__head {
    char *method, *path, *query;
    char *names[HTTP__HEADERS], *values[HTTP__HEADERS];
    int n, minor; /* headers; HTTP/1.minor */
    size_t length;
    bool keep, expects;
} http__head;

typedef enum http__state { HTTP__READING, HTTP__ANSWERING, HTTP__STREAMING, HTTP__CLOSING } http__state;

struct http_exchange {
    http_server *server;
    int fd;
    http__state state;
    http__head head;
    char *in, *out;
    size_t n_in, in_room, head_size; /* bytes read; of the head, once it is whole */
    size_t n_out, out_room, sent;
    uint64_t since;    /* ms: the request's first byte, or the last progress */
    bool begun, fresh; /* bytes of a request have come; they have not been looked at */
    bool shut, failed; /* nothing more is sent; nothing can be */
    void *user;
};

struct http_server {
    http_options o;
    char *token;
    int fd, wake[2], port;
    bool loopback;
    http_exchange **all;
    struct pollfd *polls;
    unsigned n;
    http_counts counts;
};

/* ---- the grammar of a request's head ---- */

static bool http__is_token(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int http__hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes %XX in place; false at a bad one, at a 0, and at a control character. */
static bool http__decode(char *p) {
    char *to = p;
    for (; *p; p++, to++) {
        char c = *p;
        if (c == '%') {
            int a = http__hex(p[1]), b = a < 0 ? -1 : http__hex(p[2]);
            if (b < 0) return false;
            c = (char)(a * 16 + b);
            p += 2;
        }
        if ((unsigned char)c < 0x20 || c == 0x7f) return false;
        *to = c;
    }
    *to = 0;
    return true;
}

/* "GET /path?query HTTP/1.1" */
static int http__request_line(http__head *h, char *line) {
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL, *query;
    if (!version || strncmp(version + 1, "HTTP/1.", 7) || !version[8] || version[9]) return version ? 505 : 400;
    if (version[8] != '0' && version[8] != '1') return 505;
    *target++ = 0;
    *version = 0;
    for (const char *p = line; *p; p++)
        if (!http__is_token(*p)) return 400;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f) return 400;
    if (!*line || *target != '/') return 400;
    h->minor = version[8] - '0';
    h->method = line;
    h->path = target;
    query = strchr(target, '?');
    if (query) *query++ = 0;
    h->query = query ? query : version; /* there is a 0 */
    return http__decode(h->path) ? 0 : 400;
}

/* "Name: value" */
static int http__header_line(http__head *h, char *line) {
    char *colon = strchr(line, ':'), *value, *end;
    if (!colon || colon == line) return 400;
    for (const char *p = line; p < colon; p++)
        if (!http__is_token(*p)) return 400;
    if (h->n == HTTP__HEADERS) return 431;
    *colon = 0;
    for (value = colon + 1; *value == ' ' || *value == '\t';) value++;
    for (end = value + strlen(value); end > value && (end[-1] == ' ' || end[-1] == '\t');) *--end = 0;
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f) return 400;
    h->names[h->n] = line;
    h->values[h->n++] = value;
    return 0;
}

static const char *http__find(const http__head *h, const char *name) {
    for (int i = 0; i < h->n; i++)
        if (!strcasecmp(h->names[i], name)) return h->values[i];
    return NULL;
}

static int http__times(const http__head *h, const char *name) {
    int n = 0;
    for (int i = 0; i < h->n; i++) n += !strcasecmp(h->names[i], name);
    return n;
}

/* Whether a list of words, divided by commas, holds one. */
static bool http__lists(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; p && *p; p++) {
        while (*p == ' ' || *p == '\t' || *p == ',') p++;
        if (!strncasecmp(p, word, n) && (!p[n] || strchr(" \t,;", p[n]))) return true;
        while (*p && *p != ',') p++;
        if (!*p) break;
    }
    return false;
}

/* What follows from the headers: the body's length, and whether the connection stays. */
static int http__framing(http__head *h) {
    const char *length = http__find(h, "Content-Length"), *connection = http__find(h, "Connection");
    if (http__find(h, "Transfer-Encoding")) return length ? 400 : 501;
    if (http__times(h, "Content-Length") > 1 || http__times(h, "Host") > 1) return 400;
    if (h->minor == 1 && !http__find(h, "Host")) return 400;
    h->length = 0;
    for (const char *p = length; p && *p; p++) {
        if (*p < '0' || *p > '9') return 400;
        if (h->length > (SIZE_MAX - 9) / 10) return 413;
        h->length = h->length * 10 + (size_t)(*p - '0');
    }
    if (length && !*length) return 400;
    h->keep = h->minor == 1 ? !http__lists(connection, "close") : http__lists(connection, "keep-alive");
    const char *expect = http__find(h, "Expect");
    h->expects = expect != NULL;
    return expect && strcasecmp(expect, "100-continue") ? 417 : 0;
}

/* Reads a head of n bytes that ends with an empty line, and alters it: 0, or the status to refuse it with. */
static int http__read_head(http__head *h, char *p, size_t n) {
    int refused = 0;
    memset(h, 0, sizeof *h);
    if (memchr(p, 0, n)) return 400;
    for (char *end = p + n - 2, *line = p, *next; line < end && !refused; line = next) {
        next = (char *)memchr(line, '\r', (size_t)(end + 1 - line));
        if (!next || next[1] != '\n' || memchr(line, '\n', (size_t)(next - line))) return 400;
        *next = 0;
        next += 2;
        refused = line == p ? http__request_line(h, line) : http__header_line(h, line);
    }
    return refused ? refused : h->method ? http__framing(h) : 400;
}

/* Bytes of the head that the buffer begins with, its empty line included; 0: it is not whole. */
static size_t http__head_end(const char *p, size_t n, size_t from) {
    for (size_t i = from < 3 ? 0 : from - 3; i + 4 <= n; i++)
        if (p[i] == '\r' && !memcmp(p + i, "\r\n\r\n", 4)) return i + 4;
    return 0;
}

/* ---- answers ---- */

static const char *http__reason(int status) {
    static const struct {
        int status;
        const char *text;
    } all[] = {
        { 200, "OK" },
        { 204, "No Content" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status) return all[i].text;
    return "Status";
}

static uint64_t http__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool http__put(http_exchange *x, const void *data, size_t n) {
    if (x->failed || n > x->server->o.out_bytes || x->n_out - x->sent > x->server->o.out_bytes - n) {
        x->failed = true;
        return false;
    }
    if (x->sent && x->sent == x->n_out) x->sent = x->n_out = 0;
    if (x->sent && x->out_room - x->n_out < n) {
        memmove(x->out, x->out + x->sent, x->n_out - x->sent);
        x->n_out -= x->sent;
        x->sent = 0;
    }
    if (x->out_room - x->n_out < n) {
        size_t room = x->n_out + n + 4096;
        char *more = (char *)realloc(x->out, room);
        if (!more) {
            x->failed = true;
            return false;
        }
        x->out = more;
        x->out_room = room;
    }
    if (n) memcpy(x->out + x->n_out, data, n);
    x->n_out += n;
    return true;
}

static bool http__put_head(http_exchange *x, int status, const char *type, const char *framing) {
    char head[512];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\nContent-Type: %.100s\r\n%sCache-Control: no-store\r\n"
                     "X-Content-Type-Options: nosniff\r\n%sConnection: %s\r\n\r\n",
                     status, http__reason(status), type, framing,
                     status == 401 ? "WWW-Authenticate: Bearer\r\nWWW-Authenticate: Basic realm=\"token\"\r\n" : "",
                     x->head.keep ? "keep-alive" : "close");
    return n > 0 && (size_t)n < sizeof head && http__put(x, head, (size_t)n);
}

/* Sends what it can without waiting. */
static void http__flush(http_exchange *x) {
    while (x->sent < x->n_out) {
        ssize_t n = send(x->fd, x->out + x->sent, x->n_out - x->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            x->failed = true;
            return;
        }
        x->sent += (size_t)n;
        x->server->counts.bytes_out += (uint64_t)n;
        x->since = http__now();
    }
}

/* The exchange is over: what came behind it begins the next one. */
static void http__over(http_exchange *x) {
    size_t used = x->head_size + x->head.length;
    if (!x->head.keep || x->failed) {
        x->state = HTTP__CLOSING;
        return;
    }
    memmove(x->in, x->in + used, x->n_in - used);
    x->n_in -= used;
    x->head_size = 0;
    x->begun = x->fresh = x->n_in > 0;
    x->user = NULL;
    x->since = http__now();
    x->state = HTTP__READING;
    memset(&x->head, 0, sizeof x->head);
}

void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t size) {
    char framing[64];
    bool without = x->head.method && !strcmp(x->head.method, "HEAD");
    snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", size);
    if (x->state != HTTP__ANSWERING) return;
    if (http__put_head(x, status, type, framing) && !without) http__put(x, body, size);
    http__flush(x);
    http__over(x);
}

void http_begin(http_exchange *x, int status, const char *type) {
    if (x->state != HTTP__ANSWERING) return;
    bool chunks = x->head.minor == 1;
    if (!chunks) x->head.keep = false; /* its end is the end of the answer */
    x->state = HTTP__STREAMING;
    http__put_head(x, status, type, chunks ? "Transfer-Encoding: chunked\r\n" : "");
    http__flush(x);
}

bool http_send(http_exchange *x, const void *data, size_t size) {
    char line[24];
    if (x->state != HTTP__STREAMING || x->failed) return false;
    if (!size) return true;
    if (x->head.minor == 0) {
        http__put(x, data, size);
    } else {
        int n = snprintf(line, sizeof line, "%zx\r\n", size);
        (void)(http__put(x, line, (size_t)n) && http__put(x, data, size) && http__put(x, "\r\n", 2));
    }
    http__flush(x);
    return !x->failed;
}

bool http_event(http_exchange *x, const char *data, size_t size) {
    char *text = size < SIZE_MAX - 8 ? (char *)malloc(size + 8) : NULL;
    if (!text || memchr(data, '\n', size)) {
        free(text);
        x->failed = true;
        return false;
    }
    memcpy(text, "data: ", 6);
    memcpy(text + 6, data, size);
    memcpy(text + 6 + size, "\n\n", 2);
    bool ok = http_send(x, text, size + 8);
    free(text);
    return ok;
}

void http_end(http_exchange *x) {
    if (x->state != HTTP__STREAMING) return;
    if (x->head.minor == 1) http__put(x, "0\r\n\r\n", 5);
    http__flush(x);
    http__over(x);
}

/* Refuses what came, and reads no more. */
static void http__refuse(http_exchange *x, int status) {
    const char *text =
        status == 403 ? "Forbidden: the Host is not localhost, 127.0.0.1 or [::1]" : http__reason(status);
    char body[64];
    int n = snprintf(body, sizeof body, "%s\n", text);
    x->server->counts.refused++;
    x->server->counts.timeouts += status == 408;
    x->head.keep = false;
    x->head.method = NULL;
    x->state = HTTP__ANSWERING;
    http_reply(x, status, "text/plain", body, (size_t)n);
}

/* ---- requests ---- */

const char *http_method(const http_exchange *x) { return x->head.method; }
const char *http_path(const http_exchange *x) { return x->head.path; }
const char *http_query(const http_exchange *x) { return x->head.query; }
const char *http_header(const http_exchange *x, const char *name) { return http__find(&x->head, name); }
const char *http_body(const http_exchange *x, size_t *out_size) {
    *out_size = x->head.length;
    return x->in + x->head_size;
}
void http_set_user(http_exchange *x, void *user) { x->user = user; }
void *http_user(const http_exchange *x) { return x->user; }

/* In a time that does not depend on where they differ. */
static bool http__same(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return !differ;
}

/* A name of this machine, with or without a port. */
static bool http__is_local(const char *host) {
    static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
    for (int i = 0; host && i < 3; i++) {
        size_t n = strlen(names[i]);
        if (!strncasecmp(host, names[i], n) && (!host[n] || host[n] == ':')) return true;
    }
    return false;
}

/* Whether `coded` is base64 (RFC 4648) of a name, a colon and the token. */
static bool http__basic(const char *token, const char *coded) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[512];
    size_t n = 0;
    uint32_t bits = 0;
    int have = 0;
    for (; *coded && *coded != '=' && n + 1 < sizeof text; coded++) {
        const char *digit = strchr(digits, *coded);
        if (!digit) return false;
        bits = bits << 6 | (uint32_t)(digit - digits);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        text[n++] = (char)(bits >> have);
    }
    text[n] = 0;
    const char *colon = strchr(text, ':');
    return colon && strlen(text) == n && (!*coded || *coded == '=') && http__same(token, colon + 1);
}

static int http__allowed(const http_exchange *x) {
    const char *host = http__find(&x->head, "Host"), *proof = http__find(&x->head, "Authorization");
    const char *token = x->server->token;
    if (x->server->loopback && !x->server->o.any_host && host && !http__is_local(host)) return 403;
    if (!token) return 0;
    bool bearer = proof && !strncasecmp(proof, "Bearer ", 7) && http__same(token, proof + 7);
    return bearer || (proof && !strncasecmp(proof, "Basic ", 6) && http__basic(token, proof + 6)) ? 0 : 401;
}

static bool http__grow(http_exchange *x, size_t room) {
    char *more = room > x->in_room ? (char *)realloc(x->in, room) : x->in;
    if (!more) return false;
    x->in = more;
    x->in_room = room > x->in_room ? room : x->in_room;
    return true;
}

/* The head has come: it is read in a copy first, for what it points to must not move when there is room for the body.
 */
static int http__take_head(http_exchange *x) {
    http_server *s = x->server;
    http__head probe;
    char *copy = (char *)malloc(x->head_size);
    if (!copy) return 503;
    memcpy(copy, x->in, x->head_size);
    int refused = http__read_head(&probe, copy, x->head_size);
    free(copy);
    if (!refused && probe.length > s->o.body_bytes) refused = 413;
    if (!refused && !http__grow(x, x->head_size + probe.length + HTTP__AHEAD)) refused = 503;
    if (refused) return refused;
    (void)http__read_head(&x->head, x->in, x->head_size);
    refused = http__allowed(x);
    if (!refused && x->head.expects && x->n_in < x->head_size + x->head.length)
        (void)http__put(x, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return refused;
}

/* Looks at what has come: answers whole requests, one after the other. */
static void http__advance(http_exchange *x, size_t from) {
    http_server *s = x->server;
    while (x->state == HTTP__READING && !x->failed) {
        x->fresh = false;
        if (!x->head_size) {
            x->head_size = http__head_end(x->in, x->n_in, from);
            from = 0;
            if (!x->head_size && x->n_in >= s->o.head_bytes) http__refuse(x, memchr(x->in, '\n', x->n_in) ? 431 : 414);
            if (!x->head_size) return;
            int refused = x->head_size > s->o.head_bytes ? 431 : http__take_head(x);
            if (refused) http__refuse(x, refused);
            http__flush(x);
            if (refused) return;
        }
        if (x->n_in < x->head_size + x->head.length) return;
        s->counts.requests++;
        x->state = HTTP__ANSWERING;
        s->o.answer(s->o.user, x);
    }
}

/* ---- connections ---- */

static void http__free(http_exchange *x) {
    if (x->fd >= 0) close(x->fd);
    free(x->in);
    free(x->out);
    free(x);
}

/* A connection ends; whoever answers is told. */
static void http__drop(http_server *s, unsigned i) {
    http_exchange *x = s->all[i];
    bool told = x->state == HTTP__ANSWERING || x->state == HTTP__STREAMING;
    s->all[i] = s->all[--s->n];
    if (told && s->o.gone) s->o.gone(s->o.user, x);
    http__free(x);
}

static void http__accept(http_server *s) {
    for (;;) {
        int one = 1, fd = accept(s->fd, NULL, NULL);
        if (fd < 0) return;
        s->counts.connections++;
        http_exchange *x = s->n < s->o.connections ? (http_exchange *)calloc(1, sizeof *x) : NULL;
        if (!x) {
            static const char busy[] =
                "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            s->counts.refused++;
            (void)!send(fd, busy, sizeof busy - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(fd);
            continue;
        }
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        x->server = s;
        x->fd = fd;
        x->since = http__now();
        s->all[s->n++] = x;
    }
}

/* Bytes that may be read now: a head grows; once it is whole the buffer stays where it is. */
static size_t http__room(http_exchange *x) {
    if (x->head_size) return x->in_room - x->n_in;
    size_t most = x->server->o.head_bytes > x->n_in ? x->server->o.head_bytes - x->n_in : 0;
    most = most < HTTP__AHEAD ? most : HTTP__AHEAD;
    return http__grow(x, x->n_in + most) ? x->in_room - x->n_in : 0;
}

/* The client sends no more. What it was answered is still sent; whoever answers is told. */
static void http__hear_end(http_exchange *x) {
    bool waits = x->state == HTTP__READING && x->sent < x->n_out;
    if (waits) x->state = HTTP__CLOSING;
    else x->failed = true;
}

static void http__receive(http_exchange *x) {
    char ignored[4096];
    bool closing = x->state == HTTP__CLOSING;
    size_t room = closing ? sizeof ignored : http__room(x);
    if (!room) return;
    ssize_t n = recv(x->fd, closing ? ignored : x->in + x->n_in, room, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n < 0) x->failed = true;
    else if (n == 0) http__hear_end(x);
    if (n <= 0 || closing) return;
    size_t from = x->n_in;
    x->n_in += (size_t)n;
    x->server->counts.bytes_in += (uint64_t)n;
    if (!x->begun) x->since = http__now();
    x->begun = true;
    http__advance(x, from);
}

/* The moment at which the connection is cut off if nothing happens; UINT64_MAX: none. */
static uint64_t http__until(const http_exchange *x) {
    const http_options *o = &x->server->o;
    if (x->sent < x->n_out) return x->since + o->idle_ms;
    if (x->state == HTTP__CLOSING) return x->since + HTTP__LINGER_MS;
    if (x->state != HTTP__READING) return UINT64_MAX;
    return x->since + (x->begun ? o->head_ms : o->idle_ms);
}

/* All is said: what the client still sends is thrown away, for a moment, so that it reads the answer before it hears
   that nobody listens. */
static void http__say_end(http_exchange *x) {
    if (x->state != HTTP__CLOSING || x->sent < x->n_out || x->shut) return;
    x->shut = true;
    x->since = http__now();
    if (shutdown(x->fd, SHUT_WR)) x->failed = true;
}

/* Time is up. */
static void http__expire(http_exchange *x) {
    bool asks = x->state == HTTP__READING && x->begun && x->sent == x->n_out;
    if (asks) {
        http__refuse(x, 408);
        return;
    }
    x->server->counts.timeouts += !x->shut;
    x->failed = true;
}

/* How long the server may sleep; sets up what it listens to. */
static int http__prepare(http_server *s, int wait_ms) {
    uint64_t now = http__now(), until = UINT64_MAX;
    s->polls[0] = (struct pollfd){ s->fd, POLLIN, 0 };
    s->polls[1] = (struct pollfd){ s->wake[0], POLLIN, 0 };
    for (unsigned i = 0; i < s->n; i++) {
        http_exchange *x = s->all[i];
        bool ready = x->failed || x->fresh || (x->state == HTTP__CLOSING && !x->shut && x->sent == x->n_out);
        bool full = x->head_size && x->n_in == x->in_room && x->state != HTTP__CLOSING;
        uint64_t u = ready ? now : http__until(x);
        until = u < until ? u : until;
        s->polls[2 + i] =
            (struct pollfd){ x->fd, (short)((full ? 0 : POLLIN) | (x->sent < x->n_out ? POLLOUT : 0)), 0 };
    }
    if (until == UINT64_MAX) return wait_ms;
    uint64_t left = until > now ? until - now : 0;
    left = left > 1000000 ? 1000000 : left;
    return wait_ms < 0 || left < (uint64_t)wait_ms ? (int)left : wait_ms;
}

bool http_poll(http_server *s, int wait_ms) {
    char drained[64];
    unsigned n = s->n;
    wait_ms = http__prepare(s, wait_ms);
    if (poll(s->polls, 2 + n, wait_ms) < 0) return errno == EINTR;
    while (s->polls[1].revents && read(s->wake[0], drained, sizeof drained) > 0) { }
    for (unsigned i = 0; i < n; i++) {
        http_exchange *x = s->all[i];
        short events = s->polls[2 + i].revents;
        if (events & POLLOUT) http__flush(x);
        if (x->fresh) http__advance(x, 0);
        if (events & POLLIN && !x->failed) http__receive(x);
        else if (events & (POLLERR | POLLHUP | POLLNVAL)) x->failed = true;
        http__say_end(x);
    }
    uint64_t now = http__now();
    for (unsigned i = n; i-- > 0;) {
        if (!s->all[i]->failed && http__until(s->all[i]) <= now) http__expire(s->all[i]);
        if (s->all[i]->failed) http__drop(s, i);
    }
    if (s->polls[0].revents & (POLLERR | POLLNVAL)) return false;
    if (s->polls[0].revents) http__accept(s);
    return true;
}

void http_wake(http_server *s) {
    int saved = errno;
    (void)!write(s->wake[1], "", 1);
    errno = saved;
}

/* ---- opening ---- */

static bool http__fail(char *error, const char *where, const char *why) {
    snprintf(error, HTTP_ERROR, "%.100s: %.120s", where, why);
    return false;
}

static bool http__bind(http_server *s, const char *where, const struct addrinfo *a, char *error) {
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    int one = 1;
    s->fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (s->fd < 0) return http__fail(error, where, strerror(errno));
    setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    fcntl(s->fd, F_SETFD, FD_CLOEXEC);
    fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) | O_NONBLOCK);
    if (bind(s->fd, a->ai_addr, a->ai_addrlen) || listen(s->fd, 64) ||
        getsockname(s->fd, (struct sockaddr *)&bound, &size))
        return http__fail(error, where, strerror(errno));
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&bound;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&bound;
    bool six = bound.ss_family == AF_INET6;
    s->port = ntohs(six ? v6->sin6_port : v4->sin_port);
    s->loopback = six ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) : (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    return s->loopback || (s->token && *s->token) ||
           http__fail(error, where, "a listener beyond loopback needs a token");
}

static bool http__listen(http_server *s, const char *where, char *error) {
    char host[256];
    const char *colon = strrchr(where, ':');
    struct addrinfo hints, *found = NULL;
    size_t n = colon ? (size_t)(colon - where) : 0;
    if (!n || n >= sizeof host || !colon[1]) return http__fail(error, where, "HOST:PORT is missing");
    bool bracketed = where[0] == '[' && where[n - 1] == ']';
    memcpy(host, where + bracketed, n - 2 * (size_t)bracketed);
    host[n - 2 * (size_t)bracketed] = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    int failed = getaddrinfo(host, colon + 1, &hints, &found);
    if (failed) return http__fail(error, where, gai_strerror(failed));
    bool ok = http__bind(s, where, found, error);
    freeaddrinfo(found);
    return ok;
}

static void http__defaults(http_options *o) {
    if (!o->listen) o->listen = "127.0.0.1:0";
    if (!o->connections) o->connections = 64;
    if (!o->head_ms) o->head_ms = 10000;
    if (!o->idle_ms) o->idle_ms = 60000;
    if (!o->head_bytes) o->head_bytes = 16 << 10;
    if (o->head_bytes > HTTP__HEAD_MOST) o->head_bytes = HTTP__HEAD_MOST;
    if (!o->body_bytes) o->body_bytes = 1 << 20;
    if (!o->out_bytes) o->out_bytes = 1 << 20;
}

http_server *http_open(const http_options *options, char error[HTTP_ERROR]) {
    http_server *s = (http_server *)calloc(1, sizeof *s);
    const char *where = options->listen ? options->listen : "127.0.0.1:0";
    error[0] = 0;
    if (!s) {
        http__fail(error, where, "out of memory");
        return NULL;
    }
    s->o = *options;
    http__defaults(&s->o);
    s->fd = s->wake[0] = s->wake[1] = -1;
    s->token = options->token ? strdup(options->token) : NULL;
    s->all = (http_exchange **)calloc(s->o.connections, sizeof *s->all);
    s->polls = (struct pollfd *)calloc((size_t)s->o.connections + 2, sizeof *s->polls);
    bool ok = s->all && s->polls && (s->token || !options->token) ? true : http__fail(error, where, "out of memory");
    if (ok && pipe(s->wake)) ok = http__fail(error, where, strerror(errno));
    for (int i = 0; ok && i < 2; i++) {
        fcntl(s->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(s->wake[i], F_SETFL, O_NONBLOCK);
    }
    if (ok && http__listen(s, where, error)) {
        s->o.listen = s->o.token = NULL;
        return s;
    }
    http_close(s);
    return NULL;
}

void http_close(http_server *s) {
    if (!s) return;
    while (s->n) http__drop(s, s->n - 1);
    int fds[3] = { s->fd, s->wake[0], s->wake[1] };
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(s->token);
    free(s->all);
    free(s->polls);
    free(s);
}

int http_port(const http_server *s) { return s->port; }

http_counts http_count(const http_server *s) {
    http_counts c = s->counts;
    c.open = s->n;
    return c;
}
#endif
