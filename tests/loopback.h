/* A server in this process, reached over a socketpair without encryption: the whole protocol, no network. Include
 * genie.h with GENIE_EXT and test.h before this file.
 *
 * The transport here is the tests' own: a plain byte stream over a socket, so that what is tested is the state machines
 * of client and server and not the network unit. */
#ifndef GN_LOOPBACK_H
#define GN_LOOPBACK_H

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

typedef struct loopback_link {
    int fd;
    uint64_t up, down;
    const char *peer;
} loopback_link;

static inline gn_result loopback__ready(int fd, short events, uint32_t timeout_ms) {
    struct pollfd p = { fd, events, 0 };
    int n;
    do {
        n = poll(&p, 1, timeout_ms > 600000 ? 600000 : (int)timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0 ? GN_OK : n == 0 ? GN_TIMEOUT : GN_IO_ERROR;
}

static inline gn_result loopback__send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    loopback_link *l = self;
    const char *p = data;
    while (n > 0) {
        ssize_t sent = send(l->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return GN_DISCONNECTED;
        /* poll asks for three quarters of the buffer to be free, send does not: so send is tried first */
        gn_result r = sent < 0 && errno == EAGAIN ? loopback__ready(l->fd, POLLOUT, timeout_ms) : GN_OK;
        if (r != GN_OK) return r;
        p += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
        l->up += sent > 0 ? (uint64_t)sent : 0;
    }
    return GN_OK;
}

static inline gn_result loopback__recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    loopback_link *l = self;
    for (;;) {
        gn_result r = loopback__ready(l->fd, POLLIN, timeout_ms);
        if (r != GN_OK) return r;
        ssize_t got = recv(l->fd, data, max, MSG_DONTWAIT);
        if (got > 0) {
            *out_n = (size_t)got;
            l->down += (uint64_t)got;
            return GN_OK;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) return GN_DISCONNECTED;
    }
}

static inline void loopback__interrupt(void *self) { shutdown(((loopback_link *)self)->fd, SHUT_RDWR); }

static inline void loopback__close(void *self) {
    close(((loopback_link *)self)->fd);
    free(self);
}

static inline void loopback__info(void *self, gn_link_info *out_info) {
    loopback_link *l = self;
    memset(out_info, 0, sizeof *out_info);
    snprintf(out_info->peer, sizeof out_info->peer, "%s", l->peer);
    out_info->bytes_up = l->up;
    out_info->bytes_down = l->down;
}

static inline uint32_t loopback__state(void *self, uint32_t timeout_ms) {
    struct pollfd p = { ((loopback_link *)self)->fd, POLLIN | POLLOUT, 0 };
#if defined(POLLRDHUP)
    p.events |= POLLRDHUP;
    const short gone = POLLERR | POLLHUP | POLLRDHUP;
#else
    const short gone = POLLERR | POLLHUP;
#endif
    if (poll(&p, 1, (int)timeout_ms) <= 0) return 0;
    return (p.revents & POLLOUT ? GN_LINK_WRITABLE : 0u) | (p.revents & POLLIN ? GN_LINK_READABLE : 0u) |
           (p.revents & gone ? GN_LINK_GONE : 0u);
}

static inline size_t loopback__auth(void *self, uint8_t out[256]) {
    (void)self;
    out[0] = 0;
    return 0;
}

static inline gn_result loopback__granted(void *self, const uint8_t *grant, size_t n) {
    (void)self;
    (void)grant;
    (void)n;
    return GN_OK;
}

static inline gn_result loopback__wait_any(void *const *selves, size_t n, uint32_t timeout_ms) {
    struct pollfd p[32];
    for (size_t i = 0; i < n; i++) p[i] = (struct pollfd){ ((const loopback_link *)selves[i])->fd, POLLIN, 0 };
    return poll(p, (nfds_t)n, timeout_ms > 600000 ? 600000 : (int)timeout_ms) > 0 ? GN_OK : GN_TIMEOUT;
}

/* `peer`: what the other end is called; stays valid. */
static inline gn_transport loopback_transport_to(int fd, const char *peer) {
    static const gn_transport_i table = {
        .send = loopback__send,
        .recv = loopback__recv,
        .interrupt = loopback__interrupt,
        .close = loopback__close,
        .info = loopback__info,
        .auth = loopback__auth,
        .granted = loopback__granted,
        .wait_any = loopback__wait_any,
        .state = loopback__state,
    };
    loopback_link *l = calloc(1, sizeof *l);
    if (!l) exit(2);
    l->fd = fd;
    l->peer = peer;
    return (gn_transport){ &table, l };
}

static inline gn_transport loopback_transport(int fd) { return loopback_transport_to(fd, "loopback"); }

/* The one server of a test binary, opened when first asked for; ends the program when it does not open. Its keys lie in
 * a folder of its own that loopback_close removes. */
static gn_server *loopback__server;
static char loopback__home[64];

static inline gn_server *loopback_server(void) {
    gn_error error;
    if (loopback__server) return loopback__server;
    snprintf(loopback__home, sizeof loopback__home, "/tmp/genie-test-XXXXXX");
    if (!mkdtemp(loopback__home)) exit(2);
    gn_server_desc desc = { .listen = "127.0.0.1:0", .devices = "cpu", .threads = 3, .home = loopback__home };
    if (gn_server_open(&desc, &loopback__server, &error) != GN_OK) {
        printf("the loopback server does not open: %s\n0 passed, 1 failed, 0 skipped\n", error.text);
        exit(1);
    }
    return loopback__server;
}

static inline void loopback_close(void) {
    if (loopback__server) {
        gn_server_close(loopback__server);
        loopback__server = NULL;
        char command[sizeof loopback__home + 16];
        snprintf(command, sizeof command, "rm -rf '%s'", loopback__home);
        if (system(command) != 0) printf("%s stays behind\n", loopback__home);
    }
}

/* A context whose device is the loopback server's CPU. */
static inline gn_ctx *loopback_open(const gn_desc *desc) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
    gn_server *server = loopback_server();
    if (gn_server_attach(server, loopback_transport(ends[0]), "test") != GN_OK) {
        printf("the loopback server takes no session\n0 passed, 1 failed, 0 skipped\n");
        exit(1);
    }
    return gn_open_transport(desc, loopback_transport(ends[1]), "cpu");
}

#endif
