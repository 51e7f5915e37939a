/* genie_net.c - the network of Genie: TCP, TLS (mbedTLS), pairing, packing (zstd).
 *
 * It knows no graph. It hands byte streams (gn_transport) to the client and server in genie.h, proves each end to the
 * other, and packs tensor bytes. It is written against the sections >>api and >>ext of genie.h alone and registers
 itself * before main runs (gn_register_net), so that linking it is all that a program does:
 *
 *     cc program.c genie_net.c -lmbedtls -lmbedx509 -lmbedcrypto -lzstd -lm -pthread
 *
 * From a static library an object that nothing refers to is left out: link genie_net.o itself, or the whole archive.
 *
 * WHO TRUSTS WHOM
 *   The server has a key (P-256, made at first start) that never changes. Its fingerprint, SHA-256 of the DER
 *   SubjectPublicKeyInfo, is in the URL, together with a single-use code of 128 bits:
 *
 *     genie://HOST:PORT[/DEVICE]?pin=FINGERPRINT&code=CODE      both base64url without padding; a pin may be hex
 *
 *   The client accepts that key and no other, whatever its certificate says. It proves itself inside TLS with the code
 *   and is granted a credential (id, 32-byte secret), which it keeps with the pin; from then on HOST:PORT suffices.
 *   A code that was used, or is older than 24 hours (--code-hours), is replaced, and the URL file is written anew. A
     wrong code
 *   changes nothing; each failure doubles the time that new connections from that address wait, from 50 ms to 2 s.
 *   Connections that have not said who they are: no thread, and memory only for a handshake that has begun; at most
     twice as many as
 *   sessions (256 to 2,048), fewer where descriptors are few. >>strangers says who is closed first and who never is.
 *   The URL file belongs to one server that runs: another that is given the same one says so and does not start.
 *   With an own PKI the server shows its own certificate; with `ca` it also demands a certificate of the client, and
     codes
 *   are not used. There is no server without authentication; the one unauthenticated transport, `plain`, is refused on
 *   any socket that is not local.
 *
 * ENVIRONMENT (client)
 *   GENIE_HOME             folder of keys and credentials, default ~/.config/genie
 *   GENIE_CA               PEM file: servers without a pin are checked against these authorities and their host name
                         (an IP address in a certificate counts only with mbedTLS 3.6)
 *   GENIE_CERT, GENIE_KEY  PEM files: the client's certificate and key, for servers that demand one
 * ENVIRONMENT (both ends)
 *   GENIE_AEAD             libcrypto: an error where it cannot be used; mbedtls: libcrypto is not looked for; auto, the
     default
 *   GENIE_LIBCRYPTO        the path of libcrypto, where it is not found by name
 *
 * FILES in the home folder (its owner's, 0700; the files 0600, replaced atomically, changed under a lock on `lock`)
 *   key.pem, cert.pem      the server's key and its self-signed certificate
 *   clients                "ID SHA256-OF-SECRET" a line, with " admin" behind it for an administrator (with an own PKI
     "FINGERPRINT admin", base64url, by hand): whom the server knows; removing a line, or a '#' before it,
     revokes a client, whose
 *                          sessions end within two seconds.
 *                          It is told so (one whose line is gone only by the server that let it in before); others
                            never are
 *   servers                "HOST:PORT PIN ID SECRET" a line: the servers that this client is paired with
 *
 * TLS: 1.2 with mbedTLS 2.28, 1.2 and 1.3 with 3.6; ECDHE with AEAD suites only; no renegotiation, no tickets.
 * mbedTLS shakes hands and checks the peer. Records are then encrypted by OpenSSL's libcrypto if that is found at run
 time * (nothing is linked), 10 to 30 times as fast as mbedTLS, which does it otherwise; the bytes on the wire are
 equal, so the * two ends need not agree. AES-GCM stands first where it is the faster one, ChaCha20-Poly1305 otherwise
 and wherever mbedTLS * encrypts. Which library encrypts a connection is in gn_device_info.records, in `genie_serve
 --devices list` and in the * counter slow_links. A key of AES-GCM is changed after 275 GB (counter key_updates); with a
 peer that cannot do * that the connection ends there with an error.
 *
 * From 4 MiB at a stretch on, where there are four cores, a thread beside a connection's own sends what that one has
 * encrypted, and another receives what that one decrypts (>>beside): at most eight in a process, each for 250 ms longer
 * than it has work. gn_link_info and the lines about loading (GENIE_LOG=info) tell what each stage takes.
 *
 * What it does not do: Windows, mbedTLS 4, session resumption, metrics over HTTP.
 *
 * SECTIONS (grep the tag)
 *   >>os        clock, sockets, files, locks of the operating system
 *   >>text      hex, base64url, comparison in constant time
 *   >>url       addresses and URLs
 *   >>store     the home folder
 *   >>mbedtls   what differs between mbedTLS versions
 *   >>libcrypto OpenSSL's primitives, found at run time and checked
 *   >>crypto    random bytes, SHA-256, keys and certificates
 *   >>records   TLS records by libcrypto
 *   >>link      one connection: socket I/O with deadlines
 *   >>beside    threads that send and receive beside a link's own, where there is much to send or receive
 *   >>plain     what a link is asked and how it ends; links without TLS
 *   >>tls       records over a link
 *   >>proof     what a client says to be let in, and what it is granted
 *   >>lookup    name resolution with a deadline
 *   >>client    connect
 *   >>listener  listen, pairing, credentials
 *   >>strangers accept: connections that have not said who they are
 *   >>server    opening and closing a listener
 *   >>front     TLS in front of a service that has none
 *   >>codec     pack and unpack
 *   >>register  the vtable
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* accept4 */
#endif
#define GENIE_EXT
#include "genie.h"

#if defined(_WIN32)
#error "genie_net.c does not support Windows"
#endif

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <mbedtls/chachapoly.h>
#include <mbedtls/ctr_drbg.h>
#include <mbedtls/ecp.h>
#include <mbedtls/entropy.h>
#include <mbedtls/error.h>
#include <mbedtls/gcm.h>
#include <mbedtls/md.h>
#include <mbedtls/pk.h>
#include <mbedtls/platform_util.h>
#include <mbedtls/sha256.h>
#include <mbedtls/ssl.h>
#include <mbedtls/version.h>
#include <mbedtls/x509_crt.h>
#include <zstd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define GN__PORT 5556
#define GN__PATH 512                /* bytes of a path, NUL included */
#define GN__HOST 256                /* bytes of a host name, NUL included */
#define GN__ADDRESS (GN__HOST + 16) /* "[host]:port" */
#define GN__URL_MAX 1024
#define GN__PIN 32 /* bytes: SHA-256 of a SubjectPublicKeyInfo */
#define GN__CODE 16
#define GN__ID 16
#define GN__SECRET 32
#define GN__NETWORK 8 /* bytes of an address that count as one peer: an IPv6 network, or all of IPv4 */
#define GN__CODE_HOURS 24u
#define GN__CONNECT_MS 30000
#define GN__LOCK_MS 5000
#define GN__FLUSH_MS 20 /* for an answer of a handshake, which is smaller than any socket's buffer */
#define GN__SPIN_US 50
#define GN__SPIN_MOST_US 1000      /* where waits are that short and there are cores enough */
#define GN__IN_BYTES (256u << 10)  /* one recv takes up to this much */
#define GN__OUT_BATCH (256u << 10) /* ciphertext gathered before a send */
#define GN__OUT_MAX (GN__OUT_BATCH + (64u << 10))
#define GN__LARGE (128u << 10) /* bytes from which on a send is large */
#define GN__GULP (32u << 10)   /* bytes from which on a receive is */
#define GN__MUCH (4u << 20)    /* bytes of large ones, one after another, that are a stream */
#define GN__NAP_US 50          /* between two looks at the socket of a stream, for GN__NAPS_US at most */
#define GN__NAPS_US 100u
#define GN__LINGER_US 200000u
#define GN__FILE_MAX (4u << 20)

typedef struct gn__bytes {
    uint8_t *p;
    size_t n;
} gn__bytes;
typedef struct gn__log {
    gn_log_fn fn;
    void *user;
} gn__log;

/* >>os ==============================================================================================*/

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE instead */
#endif

#if defined(POLLRDHUP)
#define GN__POLLRDHUP POLLRDHUP
#else
#define GN__POLLRDHUP 0 /* macOS tells it by POLLHUP */
#endif

static uint64_t gn__after(uint32_t ms) { return gn_now_us() + (uint64_t)ms * 1000u; }

/* Milliseconds until the deadline, rounded up so that a poll never spins through the last one. */
static int gn__left_ms(uint64_t deadline) {
    uint64_t now = gn_now_us();
    if (now >= deadline) return 0;
    uint64_t ms = (deadline - now + 999u) / 1000u;
    return ms > (uint64_t)INT_MAX ? INT_MAX : (int)ms;
}

/* GN_OK also for an error on fd: the call that follows reports it. */
static gn_result gn__wait(int fd, short events, uint64_t deadline) {
    for (;;) {
        struct pollfd p = { fd, events, 0 };
        int n = poll(&p, 1, gn__left_ms(deadline));
        if (n > 0) return GN_OK;
        if (n < 0 && errno != EINTR) return GN_IO_ERROR;
        if (gn_now_us() >= deadline) return GN_TIMEOUT;
    }
}

/* Condition variables whose waits end by the clock of gn_now_us, where the system has such. */
static bool gn__cond_init(pthread_cond_t *c) {
    pthread_condattr_t a;
    if (pthread_condattr_init(&a) != 0) return false;
#if defined(__APPLE__)
    bool ok = true;
#else
    bool ok = pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0;
#endif
    ok = ok && pthread_cond_init(c, &a) == 0;
    pthread_condattr_destroy(&a);
    return ok;
}

/* May return before: who waits looks again. */
static void gn__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline) {
    struct timespec t;
    uint64_t now = gn_now_us(), left = deadline > now ? deadline - now : 0;
    if (left > 60000000u) left = 60000000u;
#if defined(__APPLE__)
    clock_gettime(CLOCK_REALTIME, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    uint64_t ns = (uint64_t)t.tv_nsec + left % 1000000u * 1000u;
    t.tv_sec += (time_t)(left / 1000000u + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(c, m, &t);
}

/* Those that this process may run on. */
static unsigned gn__cores(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (unsigned)CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

static bool gn__again(int e) {
#if EAGAIN != EWOULDBLOCK
    if (e == EWOULDBLOCK) return true;
#endif
    return e == EAGAIN;
}

/* Non-blocking, not inherited by child processes, no SIGPIPE. */
static bool gn__fd_prepare(int fd) {
    int flags = fcntl(fd, F_GETFL, 0);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return false;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return false;
#if defined(SO_NOSIGPIPE)
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return true;
}

static int gn__socket(int family) {
#if defined(SOCK_CLOEXEC)
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
#endif
    if (fd >= 0 && !gn__fd_prepare(fd)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int gn__accept(int fd, struct sockaddr_storage *sa, socklen_t *n) {
#if defined(__linux__)
    return accept4(fd, (struct sockaddr *)sa, n, SOCK_CLOEXEC | SOCK_NONBLOCK);
#else
    int c = accept(fd, (struct sockaddr *)sa, n);
    if (c >= 0 && !gn__fd_prepare(c)) {
        close(c);
        c = -1;
    }
    return c;
#endif
}

/* Small frames leave at once; a peer whose machine vanished is noticed within about a minute even when nobody sends. */
static void gn__tcp_options(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
    int idle = 30, interval = 10, count = 3; /* seconds, seconds, probes */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
#endif
}

/* Reads all of an open file, at most max bytes, and adds a NUL that is not counted. 0 or an errno. */
static int gn__read_fd(int fd, size_t max, gn__bytes *out) {
    struct stat st;
    if (fstat(fd, &st) != 0) return errno;
    if (!S_ISREG(st.st_mode)) return EINVAL;
    if (st.st_size < 0 || (uint64_t)st.st_size > max) return EFBIG;
    size_t size = (size_t)st.st_size, n = 0;
    uint8_t *p = gn_alloc(size + 1);
    if (p == NULL) return ENOMEM;
    while (n < size) {
        ssize_t k = read(fd, p + n, size - n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            int e = errno;
            gn_free(p);
            return e;
        }
        if (k == 0) break;
        n += (size_t)k;
    }
    p[n] = 0;
    out->p = p;
    out->n = n;
    return 0;
}

/* Of a file that was read: permission bits, whose it is, seconds since it was written. */
typedef struct gn__file_facts {
    unsigned mode;
    bool ours;
    uint64_t age_s;
} gn__file_facts;

/* 0 or an errno. */
static int gn__read_file(const char *path, size_t max, gn__bytes *out, gn__file_facts *out_facts) {
    out->p = NULL;
    out->n = 0;
    memset(out_facts, 0, sizeof *out_facts);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* non-blocking: a fifo must not hang us */
    if (fd < 0) return errno;
    struct stat st;
    int e = fstat(fd, &st) != 0 ? errno : gn__read_fd(fd, max, out);
    close(fd);
    if (e != 0) return e;
    time_t now = time(NULL);
    *out_facts = (gn__file_facts){ (unsigned)st.st_mode & 0777u, st.st_uid == geteuid(),
                                   now > st.st_mtime ? (uint64_t)(now - st.st_mtime) : 0 };
    return 0;
}

static int gn__write_all(int fd, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno;
        p += k;
        n -= (size_t)k;
    }
    return fsync(fd) != 0 ? errno : 0;
}

/* Replaces path by a file of mode 0600 in one step: a reader sees the old or the new bytes. 0 or an errno. *out_locked
   (may be NULL) is the file, locked until it is closed. */
static int gn__write_file(const char *path, const void *data, size_t n, int *out_locked) {
    static atomic_uint serial;
    char temp[GN__PATH + 48];
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 16; tries++) { /* a killed process may have left one */
        unsigned k = atomic_fetch_add(&serial, 1u);
        snprintf(temp, sizeof temp, "%s.%ld.%u.new", path, (long)getpid(), k);
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST) return errno;
    }
    if (fd < 0) return EEXIST;
    int e = gn__write_all(fd, data, n);
    if (e == 0 && out_locked != NULL && flock(fd, LOCK_EX | LOCK_NB) != 0) e = errno;
    if (e == 0 && rename(temp, path) != 0) e = errno;
    if (e == 0 && out_locked != NULL) {
        *out_locked = fd;
        return 0;
    }
    if (close(fd) != 0 && e == 0) e = errno;
    if (e != 0) unlink(temp);
    return e;
}

/* Makes the folder and those above it, mode 0700. 0 or an errno. */
static int gn__make_dirs(const char *path) {
    char part[GN__PATH];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST && errno != EISDIR) {
            int e = errno;
            struct stat st;
            if (stat(part, &st) != 0) return e; /* a folder that is there but may not be made */
        }
    }
    return 0;
}

/* An exclusive lock between threads and processes; -1 and errno on failure. Closing the file releases it. */
static int gn__lock_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    uint64_t deadline = gn__after(GN__LOCK_MS);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int e = errno;
        if ((!gn__again(e) && e != EINTR) || gn_now_us() >= deadline) {
            close(fd);
            errno = e;
            return -1;
        }
        struct timespec pause = { 0, 2000000 };
        nanosleep(&pause, NULL);
    }
    return fd;
}

/* >>text ============================================================================================*/

static void gn__hex(const uint8_t *p, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = 0;
}

static int gn__hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Exactly n bytes from exactly 2n digits. */
static bool gn__unhex(const char *s, size_t len, uint8_t *out, size_t n) {
    if (len != 2 * n) return false;
    for (size_t i = 0; i < n; i++) {
        int hi = gn__hex_digit(s[2 * i]), lo = gn__hex_digit(s[2 * i + 1]);
        if (hi < 0 || lo < 0) return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

static const char gn__b64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* base64url without padding (RFC 4648, section 5); out has room for (8n + 5) / 6 + 1. */
static void gn__b64(const uint8_t *p, size_t n, char *out) {
    uint32_t bits = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        bits = bits << 8 | p[i];
        for (have += 8; have >= 6; have -= 6) *out++ = gn__b64_digits[bits >> (have - 6) & 63];
    }
    if (have > 0) *out++ = gn__b64_digits[bits << (6 - have) & 63];
    *out = 0;
}

/* Exactly n bytes; left-over bits must be zero, so that each value has one spelling. */
static bool gn__unb64(const char *s, size_t len, uint8_t *out, size_t n) {
    if (len != (8 * n + 5) / 6) return false;
    uint32_t bits = 0;
    int have = 0;
    size_t made = 0;
    for (size_t i = 0; i < len; i++) {
        const char *d = s[i] != 0 ? strchr(gn__b64_digits, s[i]) : NULL;
        if (d == NULL) return false;
        bits = bits << 6 | (uint32_t)(d - gn__b64_digits);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        out[made++] = (uint8_t)(bits >> have);
    }
    return (bits & ((1u << have) - 1u)) == 0;
}

/* Takes the same time wherever the first difference is. */
static bool gn__same(const uint8_t *a, const uint8_t *b, size_t n) {
    volatile uint8_t diff = 0;
    for (size_t i = 0; i < n; i++) diff = (uint8_t)(diff | (a[i] ^ b[i]));
    return diff == 0;
}

/* >>url =============================================================================================*/

typedef struct gn__url {
    char host[GN__HOST];       /* lower case, no brackets */
    char address[GN__ADDRESS]; /* "host:port" or "[v6]:port": the name in the store */
    char device[64];
    uint8_t pin[GN__PIN], code[GN__CODE];
    uint16_t port;
    bool has_pin, has_code;
} gn__url;

static bool gn__one_of(char c, const char *set) { return c != 0 && strchr(set, c) != NULL; }
static bool gn__is_digit(char c) { return c >= '0' && c <= '9'; }
static bool gn__is_alnum(char c) { return gn__is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static char gn__lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* "[v6]" or a name or v4 address at *at, which moves on. NULL, or what is wrong. */
static const char *gn__parse_host(const char **at, char host[GN__HOST]) {
    const char *p = *at;
    bool v6 = *p == '[';
    size_t n = 0;
    for (p += v6; v6 ? *p != 0 && *p != ']' : gn__is_alnum(*p) || gn__one_of(*p, "-._"); p++) {
        if (n + 1 >= GN__HOST) return "the host name is too long";
        host[n++] = gn__lower(*p);
    }
    host[n] = 0;
    if (v6) {
        struct in6_addr a;
        if (*p != ']') return "the bracket after '[' is missing";
        if (inet_pton(AF_INET6, host, &a) != 1) return "what stands in brackets is not an IPv6 address";
        p++;
    }
    *at = p;
    return NULL;
}

/* ":port" at *at if there is one, else *port stays. */
static const char *gn__parse_port(const char **at, uint16_t *port, bool zero_allowed) {
    const char *p = *at;
    if (*p != ':') return NULL;
    uint32_t v = 0;
    int digits = 0;
    for (p++; gn__is_digit(*p); p++) {
        v = v * 10u + (uint32_t)(*p - '0');
        if (++digits > 5) return "the port is not a number from 1 to 65535";
    }
    if (digits == 0 || v > 65535u || (v == 0 && !zero_allowed)) return "the port is not a number from 1 to 65535";
    *port = (uint16_t)v;
    *at = p;
    return NULL;
}

static const char *gn__parse_device(const char **at, char device[64]) {
    const char *p = *at;
    if (*p != '/') return NULL;
    size_t n = 0;
    for (p++; gn__is_alnum(*p) || gn__one_of(*p, ":_.-"); p++) {
        if (n + 1 >= 64) return "the device name is too long";
        device[n++] = *p;
    }
    device[n] = 0;
    *at = p;
    return NULL;
}

/* One "name=value" of n characters. */
static const char *gn__parse_param(const char *p, size_t n, gn__url *u) {
    if (n > 4 && memcmp(p, "pin=", 4) == 0) {
        if (u->has_pin) return "it has two pins";
        u->has_pin = gn__unhex(p + 4, n - 4, u->pin, GN__PIN) || gn__unb64(p + 4, n - 4, u->pin, GN__PIN);
        return u->has_pin
                   ? NULL
                   : "the pin is not a fingerprint of 64 hex digits or 43 base64url characters (is it complete?)";
    }
    if (n > 5 && memcmp(p, "code=", 5) == 0) {
        if (u->has_code) return "it has two codes";
        u->has_code = gn__unb64(p + 5, n - 5, u->code, GN__CODE);
        return u->has_code ? NULL : "the code is not 22 base64url characters (is it complete?)";
    }
    return "what follows '?' is not pin=... or code=...";
}

static const char *gn__parse_params(const char *p, gn__url *u) {
    if (*p == 0) return NULL;
    if (*p != '?') return "it holds a character that does not belong there";
    do {
        p++;
        size_t n = strcspn(p, "&");
        const char *wrong = gn__parse_param(p, n, u);
        if (wrong != NULL) return wrong;
        p += n;
    } while (*p == '&');
    return NULL;
}

/* Parses a URL or "host[:port][/device]". NULL, or what is wrong with it; never quotes the text, which may hold a
   code. */
static const char *gn__parse_url(const char *text, gn__url *u) {
    memset(u, 0, sizeof *u);
    u->port = GN__PORT;
    size_t n = strlen(text);
    if (n == 0 || n >= GN__URL_MAX) return "it is empty or too long";
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~') return "it holds a space or a character that is not ASCII";
    const char *p = text;
    if (strncmp(p, "genie://", 8) == 0) p += 8;
    else if (strstr(p, "://") != NULL) return "it does not begin with genie://";
    const char *wrong = gn__parse_host(&p, u->host);
    if (wrong == NULL && u->host[0] == 0) wrong = "it has no host";
    if (wrong == NULL) wrong = gn__parse_port(&p, &u->port, false);
    if (wrong == NULL) wrong = gn__parse_device(&p, u->device);
    if (wrong == NULL) wrong = gn__parse_params(p, u);
    if (wrong != NULL) return wrong;
    bool v6 = strchr(u->host, ':') != NULL;
    snprintf(u->address, sizeof u->address, v6 ? "[%s]:%u" : "%s:%u", u->host, (unsigned)u->port);
    return NULL;
}

/* "host:port", "host", ":port"; NULL text is the default. NULL, or what is wrong. */
static const char *gn__parse_listen(const char *text, char host[GN__HOST], uint16_t *port) {
    const char *p = text != NULL ? text : "";
    *port = GN__PORT;
    const char *wrong = gn__parse_host(&p, host);
    if (wrong == NULL) wrong = gn__parse_port(&p, port, true);
    if (wrong == NULL && *p != 0) wrong = "it holds a character that does not belong there";
    if (host[0] == 0) snprintf(host, GN__HOST, "127.0.0.1");
    return wrong;
}

/* >>store ===========================================================================================*/

static gn_result gn__join(char out[GN__PATH], const char *folder, const char *name, gn_fault *f) {
    int n = snprintf(out, GN__PATH, "%s/%s", folder, name);
    return n > 0 && n < GN__PATH ? GN_OK : gn_fail(f, GN_BAD_ARGUMENT, "the path of the home folder is too long");
}

/* The folder of keys and credentials; it need not exist yet. */
static gn_result gn__home_path(const char *home, char out[GN__PATH], gn_fault *f) {
    if (home == NULL || *home == 0) home = getenv("GENIE_HOME");
    if (home != NULL && *home != 0) {
        int n = snprintf(out, GN__PATH, "%s", home);
        return n < GN__PATH - 64 ? GN_OK : gn_fail(f, GN_BAD_ARGUMENT, "the path of the home folder is too long");
    }
    const char *user = getenv("HOME");
    if (user == NULL || *user == 0)
        return gn_fail(f, GN_IO_ERROR, "there is no home folder: set GENIE_HOME to a folder for keys and credentials");
    int n = snprintf(out, GN__PATH, "%s/.config/genie", user);
    return n < GN__PATH - 64 ? GN_OK : gn_fail(f, GN_BAD_ARGUMENT, "the path of the home folder is too long");
}

/* A folder that others own or may write is refused: they could replace keys, and the pins of servers. A group with the
   owner's number is the owner's private one, which distributions make so that a umask of 002 is safe. A folder that is
   not there is well. */
static gn_result gn__home_check(const char *home, gn_fault *f) {
    struct stat st;
    int e = stat(home, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (e == ENOENT) return GN_OK;
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR,
                       "cannot use the home folder %s: %s. Set GENIE_HOME to a folder that you can write to", home,
                       strerror(e));
    if (st.st_uid != geteuid())
        return gn_fail(f, GN_INSECURE,
                       "the home folder %s belongs to user %ld, and this program runs as user %ld: chown the folder, "
                       "or set GENIE_HOME to one of its own",
                       home, (long)st.st_uid, (long)geteuid());
    if ((st.st_mode & 002) || ((st.st_mode & 020) && st.st_gid != st.st_uid))
        return gn_fail(f, GN_INSECURE,
                       "the home folder %s may be written by others: chmod 700 it, or set GENIE_HOME to another", home);
    return GN_OK;
}

/* Makes the home folder if need be. */
static gn_result gn__home_make(const char *home, gn_fault *f) {
    int e = gn__make_dirs(home);
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR,
                       "cannot use the home folder %s: %s. Set GENIE_HOME to a folder that you can write to", home,
                       strerror(e));
    return gn__home_check(home, f);
}

static void gn__forget(gn__bytes *b) {
    if (b->p != NULL) mbedtls_platform_zeroize(b->p, b->n);
    gn_free(b->p);
    b->p = NULL;
    b->n = 0;
}

/* Reads a file that holds secrets; a missing one gives no bytes. */
static gn_result gn__read_secret(const char *path, gn__bytes *out, gn_fault *f) {
    gn__file_facts facts;
    int e = gn__read_file(path, GN__FILE_MAX, out, &facts);
    if (e == ENOENT) return GN_OK;
    if (e == ENOMEM) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to read %s", path);
    if (e != 0) return gn_fail(f, GN_IO_ERROR, "cannot read %s: %s", path, strerror(e));
    bool text = memchr(out->p, 0, out->n) == NULL;
    if (text && facts.ours && (facts.mode & 077u) == 0) return GN_OK;
    gn__forget(out);
    if (text && !facts.ours)
        return gn_fail(f, GN_INSECURE,
                       "%s holds secrets and belongs to another user: chown it to the user that runs this program",
                       path);
    if (!text) return gn_fail(f, GN_IO_ERROR, "%s is damaged: it is not text", path);
    return gn_fail(f, GN_INSECURE, "%s holds secrets and may be read by others: chmod 600 it", path);
}

/* The line "KEY VALUE" in text: its start and its length with the newline; NULL if there is none. */
static char *gn__store_line(char *text, const char *key, size_t *out_n) {
    size_t k = strlen(key);
    for (char *p = text; *p != 0;) {
        size_t n = strcspn(p, "\n");
        if (n > k && memcmp(p, key, k) == 0 && p[k] == ' ') {
            *out_n = n + (p[n] == '\n');
            return p;
        }
        p += n + (p[n] == '\n');
    }
    return NULL;
}

/* *out_found: value holds what is stored under key in the file `name` of the home folder. */
static gn_result gn__store_get(const char *home, const char *name, const char *key, char *value, size_t cap,
                               bool *out_found, gn_fault *f) {
    char path[GN__PATH];
    gn__bytes file = { NULL, 0 };
    *out_found = false;
    gn_result r = gn__join(path, home, name, f);
    if (r == GN_OK) r = gn__read_secret(path, &file, f);
    if (r != GN_OK || file.p == NULL) return r;
    size_t n = 0, k = strlen(key) + 1;
    char *line = gn__store_line((char *)file.p, key, &n);
    if (line != NULL) {
        size_t len = strcspn(line + k, "\r\n");
        if (len < cap) {
            memcpy(value, line + k, len);
            value[len] = 0;
            *out_found = true;
        }
    }
    gn__forget(&file);
    return GN_OK;
}

/* The file's text with the line of key replaced or added. */
static gn_result gn__store_edit(gn__bytes *file, const char *key, const char *value, gn__bytes *out) {
    size_t room = file->n + strlen(key) + strlen(value) + 4, n = file->n, cut = 0;
    char *p = gn_alloc(room);
    if (p == NULL) return GN_OUT_OF_MEMORY;
    if (n > 0) memcpy(p, file->p, n);
    p[n] = 0;
    char *line = gn__store_line(p, key, &cut);
    if (line != NULL) {
        memmove(line, line + cut, (size_t)(p + n - (line + cut)) + 1);
        n -= cut;
    }
    if (n > 0 && p[n - 1] != '\n') p[n++] = '\n';
    n += (size_t)snprintf(p + n, room - n, "%s %s\n", key, value);
    out->p = (uint8_t *)p;
    out->n = n;
    return GN_OK;
}

static gn_result gn__store_replace(const char *path, const char *key, const char *value, gn_fault *f) {
    gn__bytes file = { NULL, 0 }, next = { NULL, 0 };
    gn_result r = gn__read_secret(path, &file, f);
    if (r == GN_OK && gn__store_edit(&file, key, value, &next) != GN_OK)
        r = gn_fail(f, GN_OUT_OF_MEMORY, "no memory for %s", path);
    if (r == GN_OK && next.n > GN__FILE_MAX)
        r = gn_fail(f, GN_LIMIT, "%s is full: remove lines that are no longer needed", path);
    int e = r == GN_OK ? gn__write_file(path, next.p, next.n, NULL) : 0;
    if (e != 0) r = gn_fail(f, GN_IO_ERROR, "cannot write %s: %s", path, strerror(e));
    gn__forget(&file);
    gn__forget(&next);
    return r;
}

static gn_result gn__home_lock(const char *home, int *out_fd, gn_fault *f) {
    char path[GN__PATH];
    gn_result r = gn__join(path, home, "lock", f);
    if (r != GN_OK) return r;
    *out_fd = gn__lock_file(path);
    return *out_fd >= 0 ? GN_OK : gn_fail(f, GN_IO_ERROR, "cannot lock %s: %s", path, strerror(errno));
}

/* Stores value under key; safe against other threads and processes. */
static gn_result gn__store_put(const char *home, const char *name, const char *key, const char *value, gn_fault *f) {
    char path[GN__PATH];
    int lock = -1;
    gn_result r = gn__home_make(home, f);
    if (r == GN_OK) r = gn__join(path, home, name, f);
    if (r == GN_OK) r = gn__home_lock(home, &lock, f);
    if (r != GN_OK) return r;
    r = gn__store_replace(path, key, value, f);
    close(lock);
    return r;
}

/* >>mbedtls =========================================================================================
 * All that differs between the supported versions. */

#if MBEDTLS_VERSION_NUMBER < 0x021C0000 ||                                           \
    (MBEDTLS_VERSION_NUMBER >= 0x03000000 && MBEDTLS_VERSION_NUMBER < 0x03060000) || \
    MBEDTLS_VERSION_NUMBER >= 0x04000000
#error "genie_net.c needs mbedTLS 2.28 or 3.6"
#endif
#if !defined(MBEDTLS_SSL_SRV_C) || !defined(MBEDTLS_SSL_CLI_C) || !defined(MBEDTLS_PEM_WRITE_C) || \
    !defined(MBEDTLS_X509_CRT_WRITE_C)
#error "genie_net.c needs mbedTLS with TLS client and server, PEM and certificate writing"
#endif
#if !defined(MBEDTLS_GCM_C) || !defined(MBEDTLS_CHACHAPOLY_C)
#error "genie_net.c needs mbedTLS with AES-GCM and ChaCha20-Poly1305"
#endif

#if MBEDTLS_VERSION_NUMBER >= 0x03000000

#include <psa/crypto.h>
/* The PSA key store, which TLS 1.3 uses, is safe in several threads only in builds with threading. */
#if defined(MBEDTLS_SSL_PROTO_TLS1_3) && defined(MBEDTLS_THREADING_C)
#define GN__TLS_MAX MBEDTLS_SSL_VERSION_TLS1_3
#else
#define GN__TLS_MAX MBEDTLS_SSL_VERSION_TLS1_2
#endif
#define GN__SHA256(p, n, out) mbedtls_sha256(p, n, out, 0)
#define GN__SHA256_STEP(name) mbedtls_sha256_##name
#define GN__SSL_FIELD(name) MBEDTLS_PRIVATE(name)

static bool gn__tls_library(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool ready;
    pthread_mutex_lock(&lock);
    if (!ready) ready = psa_crypto_init() == PSA_SUCCESS;
    bool ok = ready;
    pthread_mutex_unlock(&lock);
    return ok;
}

static void gn__tls_limits(mbedtls_ssl_config *conf) {
    static const uint16_t groups[] = { MBEDTLS_SSL_IANA_TLS_GROUP_SECP256R1, MBEDTLS_SSL_IANA_TLS_GROUP_X25519,
                                       MBEDTLS_SSL_IANA_TLS_GROUP_SECP384R1, MBEDTLS_SSL_IANA_TLS_GROUP_SECP521R1,
                                       MBEDTLS_SSL_IANA_TLS_GROUP_NONE };
    mbedtls_ssl_conf_min_tls_version(conf, MBEDTLS_SSL_VERSION_TLS1_2);
    mbedtls_ssl_conf_max_tls_version(conf, GN__TLS_MAX);
    mbedtls_ssl_conf_groups(conf, groups);
}

static int gn__pk_parse(mbedtls_pk_context *pk, const gn__bytes *pem, mbedtls_ctr_drbg_context *rng) {
    return mbedtls_pk_parse_key(pk, pem->p, pem->n + 1, NULL, 0, mbedtls_ctr_drbg_random, rng);
}

static int gn__pk_pair(const mbedtls_pk_context *pub, const mbedtls_pk_context *key, mbedtls_ctr_drbg_context *rng) {
    return mbedtls_pk_check_pair(pub, key, mbedtls_ctr_drbg_random, rng);
}

static int gn__set_serial(mbedtls_x509write_cert *w, uint8_t *serial, size_t n) {
    return mbedtls_x509write_crt_set_serial_raw(w, serial, n);
}

#else

#define GN__SHA256(p, n, out) mbedtls_sha256_ret(p, n, out, 0)
#define GN__SHA256_STEP(name) mbedtls_sha256_##name##_ret
#define GN__SSL_FIELD(name) name

static bool gn__tls_library(void) { return true; }

static void gn__tls_limits(mbedtls_ssl_config *conf) {
    static const mbedtls_ecp_group_id groups[] = { MBEDTLS_ECP_DP_SECP256R1, MBEDTLS_ECP_DP_CURVE25519,
                                                   MBEDTLS_ECP_DP_SECP384R1, MBEDTLS_ECP_DP_SECP521R1,
                                                   MBEDTLS_ECP_DP_NONE };
    mbedtls_ssl_conf_min_version(conf, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
    mbedtls_ssl_conf_max_version(conf, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
    mbedtls_ssl_conf_curves(conf, groups);
}

static int gn__pk_parse(mbedtls_pk_context *pk, const gn__bytes *pem, mbedtls_ctr_drbg_context *rng) {
    (void)rng;
    return mbedtls_pk_parse_key(pk, pem->p, pem->n + 1, NULL, 0);
}

static int gn__pk_pair(const mbedtls_pk_context *pub, const mbedtls_pk_context *key, mbedtls_ctr_drbg_context *rng) {
    (void)rng;
    return mbedtls_pk_check_pair(pub, key);
}

static int gn__set_serial(mbedtls_x509write_cert *w, uint8_t *serial, size_t n) {
    mbedtls_mpi m;
    mbedtls_mpi_init(&m);
    int e = mbedtls_mpi_read_binary(&m, serial, n);
    if (e == 0) e = mbedtls_x509write_crt_set_serial(w, &m);
    mbedtls_mpi_free(&m);
    return e;
}

#endif

/* >>libcrypto =======================================================================================
 * OpenSSL's libcrypto, found at run time: AES-GCM and ChaCha20-Poly1305 for records, SHA-256 for weights. mbedTLS works
 * block by block; libcrypto uses what the processor has and is 10 to 30 times as fast. Nothing is linked, no header of
 * OpenSSL's is read, and without it (or with GENIE_AEAD=mbedtls) mbedTLS does the same work: the bytes on the wire are
 * equal, so each end decides for itself. Before its first use each algorithm has to give known answers, and mbedTLS's
 * answers for a whole record; one wrong answer and libcrypto is not used at all, which is logged as a warning. */

#define GN__CRYPTO_SYMBOLS(X)                                                                                    \
    X(void *, EVP_CIPHER_CTX_new, (void))                                                                        \
    X(void, EVP_CIPHER_CTX_free, (void *ctx))                                                                    \
    X(int, EVP_CIPHER_CTX_ctrl, (void *ctx, int what, int n, void *p))                                           \
    X(const void *, EVP_aes_128_gcm, (void))                                                                     \
    X(const void *, EVP_aes_256_gcm, (void))                                                                     \
    X(const void *, EVP_chacha20_poly1305, (void))                                                               \
    X(int, EVP_CipherInit_ex,                                                                                    \
      (void *ctx, const void *type, void *engine, const uint8_t *key, const uint8_t *iv, int seal))              \
    X(int, EVP_CipherUpdate, (void *ctx, uint8_t *out, int *out_n, const uint8_t *in, int n))                    \
    X(int, EVP_CipherFinal_ex, (void *ctx, uint8_t *out, int *out_n))                                            \
    X(const void *, EVP_sha256, (void))                                                                          \
    X(int, EVP_Digest, (const void *p, size_t n, uint8_t *out, unsigned *out_n, const void *type, void *engine)) \
    X(void *, EVP_MD_CTX_new, (void))                                                                            \
    X(void, EVP_MD_CTX_free, (void *ctx))                                                                        \
    X(int, EVP_DigestInit_ex, (void *ctx, const void *type, void *engine))                                       \
    X(int, EVP_DigestUpdate, (void *ctx, const void *p, size_t n))                                               \
    X(int, EVP_DigestFinal_ex, (void *ctx, uint8_t *out, unsigned *out_n))                                       \
    X(const char *, OpenSSL_version, (int what))

enum { GN__AES_128_GCM, GN__AES_256_GCM, GN__CHACHA20_POLY1305, GN__AEAD__COUNT };
enum { GN__TAG = 16, GN__NONCE = 12, GN__KEY_MAX = 32 }; /* bytes, of all three */
/* of openssl/evp.h, openssl/crypto.h */
enum { GN__CTRL_GET_TAG = 0x10, GN__CTRL_SET_TAG = 0x11, GN__NO_ATEXIT = 0x80000 };
#define GN__STOCK "mbedTLS " MBEDTLS_VERSION_STRING
#define GN__HASH_LARGE (64u << 10) /* bytes from which on a hash is worth loading libcrypto for */
#define GN__RECORD_MAX 16384u      /* bytes of plaintext, RFC 5246 and 8446 */

typedef struct gn__crypto {
#define GN__X(type, name, args) type(*name) args;
    GN__CRYPTO_SYMBOLS(GN__X)
#undef GN__X
    bool good;
    bool lacks;      /* it has not all algorithms */
    bool wrong;      /* it was there and gave a wrong answer */
    bool aes_faster; /* than ChaCha20-Poly1305, on this processor */
    char text[64];   /* "OpenSSL 3.0.17" */
    char why[160];   /* why it is not good */
} gn__crypto;

static gn__crypto gn__crypto_found;
static pthread_once_t gn__crypto_once = PTHREAD_ONCE_INIT;

static const void *gn__aead_type(const gn__crypto *c, int aead) {
    return aead == GN__AES_128_GCM   ? c->EVP_aes_128_gcm()
           : aead == GN__AES_256_GCM ? c->EVP_aes_256_gcm()
                                     : c->EVP_chacha20_poly1305();
}

static size_t gn__aead_key(int aead) { return aead == GN__AES_128_GCM ? 16 : 32; }

/* A context for one direction; NULL: no memory, or the library refuses. */
static void *gn__aead_make(const gn__crypto *c, int aead, const uint8_t *key, bool seal) {
    void *ctx = c->EVP_CIPHER_CTX_new();
    if (ctx == NULL || c->EVP_CipherInit_ex(ctx, gn__aead_type(c, aead), NULL, key, NULL, seal) == 1) return ctx;
    c->EVP_CIPHER_CTX_free(ctx);
    return NULL;
}

/* p and then `last` (NULL: nothing, else one byte) to out, and the tag behind them. out may be p. */
static bool gn__aead_seal(const gn__crypto *c, void *ctx, const uint8_t nonce[GN__NONCE], const uint8_t *aad,
                          size_t aad_n, const uint8_t *p, size_t n, const uint8_t *last, uint8_t *out) {
    int k = 0;
    size_t all = n + (last != NULL);
    bool ok = c->EVP_CipherInit_ex(ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
              c->EVP_CipherUpdate(ctx, NULL, &k, aad, (int)aad_n) == 1;
    if (n > 0) ok = ok && c->EVP_CipherUpdate(ctx, out, &k, p, (int)n) == 1 && k == (int)n;
    if (last != NULL) ok = ok && c->EVP_CipherUpdate(ctx, out + n, &k, last, 1) == 1 && k == 1;
    return ok && c->EVP_CipherFinal_ex(ctx, out + all, &k) == 1 && k == 0 &&
           c->EVP_CIPHER_CTX_ctrl(ctx, GN__CTRL_GET_TAG, GN__TAG, out + all) == 1;
}

/* n bytes and their tag behind them, to out, which may be p. false: altered, and out holds nothing to be looked at. */
static bool gn__aead_open(const gn__crypto *c, void *ctx, const uint8_t nonce[GN__NONCE], const uint8_t *aad,
                          size_t aad_n, const uint8_t *p, size_t n, uint8_t *out) {
    int k = 0;
    uint8_t tag[GN__TAG], none[GN__TAG];
    memcpy(tag, p + n, GN__TAG);
    bool ok = c->EVP_CipherInit_ex(ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
              c->EVP_CipherUpdate(ctx, NULL, &k, aad, (int)aad_n) == 1;
    if (n > 0) ok = ok && c->EVP_CipherUpdate(ctx, out, &k, p, (int)n) == 1 && k == (int)n;
    ok = ok && c->EVP_CIPHER_CTX_ctrl(ctx, GN__CTRL_SET_TAG, GN__TAG, tag) == 1 &&
         c->EVP_CipherFinal_ex(ctx, none, &k) == 1 && k == 0;
    if (!ok && n > 0) mbedtls_platform_zeroize(out, n);
    return ok;
}

/* hex */
typedef struct gn__known {
    const char *name, *key, *nonce, *aad, *plain, *sealed;
    int aead;
} gn__known;
#define GN__GCM_PLAIN                                                                                                  \
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657" \
    "ba637b39"

/* McGrew and Viega, The Galois/Counter Mode of Operation, test cases 4 and 16; RFC 8439, 2.8.2. */
static const gn__known gn__knowns[] = {
    { "AES-128-GCM", "feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
      "feedfacedeadbeeffeedfacedeadbeefabaddad2", GN__GCM_PLAIN,
      "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac97"
      "3d58e0915bc94fbc3221a5db94fae95ae7121a47",
      GN__AES_128_GCM },
    { "AES-256-GCM", "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
      "feedfacedeadbeeffeedfacedeadbeefabaddad2", GN__GCM_PLAIN,
      "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a"
      "bcc9f66276fc6ece0f4e1768cddf8853bb2d551b",
      GN__AES_256_GCM },
    { "ChaCha20-Poly1305", "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
      "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7",
      "4c616469657320616e642047656e746c656d656e206f662074686520636c617373206f66202739393a204966204920636f756c64206f6666"
      "657220796f75206f6e6c79206f6e652074697020666f7220746865206675747572652c"
      "2073756e73637265656e20776f756c642062652069742e",
      "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b29"
      "05d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585"
      "808b4831d7bc3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691",
      GN__CHACHA20_POLY1305 },
};

static size_t gn__known_bytes(const char *hex, uint8_t out[160]) {
    size_t n = strlen(hex) / 2;
    return gn__unhex(hex, 2 * n, out, n) ? n : 0;
}

/* Seals, compares, opens in place; an altered tag must not open. */
static bool gn__known_right(const gn__crypto *c, const gn__known *k) {
    uint8_t key[160], nonce[160], aad[160], plain[160], sealed[160], out[160];
    size_t aad_n = gn__known_bytes(k->aad, aad), n = gn__known_bytes(k->plain, plain);
    gn__known_bytes(k->key, key);
    gn__known_bytes(k->nonce, nonce);
    gn__known_bytes(k->sealed, sealed);
    void *up = gn__aead_make(c, k->aead, key, true), *down = gn__aead_make(c, k->aead, key, false);
    bool ok = up != NULL && down != NULL;
    for (int last = 0; last < 2; last++) /* in one piece, and with the last byte apart */
        ok = ok && gn__aead_seal(c, up, nonce, aad, aad_n, plain, n - (size_t)last, last ? plain + n - 1 : NULL, out) &&
             memcmp(out, sealed, n + GN__TAG) == 0;
    out[n + 3] ^= 4;
    ok = ok && !gn__aead_open(c, down, nonce, aad, aad_n, out, n, plain);
    memcpy(out, sealed, n + GN__TAG);
    gn__known_bytes(k->plain, plain);
    ok = ok && gn__aead_open(c, down, nonce, aad, aad_n, out, n, out) && memcmp(out, plain, n) == 0;
    if (up != NULL) c->EVP_CIPHER_CTX_free(up);
    if (down != NULL) c->EVP_CIPHER_CTX_free(down);
    return ok;
}

/* What mbedTLS makes of n bytes: the other opinion about sizes that no published vector has. */
static bool gn__stock_seal(int aead, const uint8_t *key, const uint8_t nonce[GN__NONCE], const uint8_t *aad,
                           size_t aad_n, const uint8_t *p, size_t n, uint8_t *out) {
    bool ok;
    if (aead == GN__CHACHA20_POLY1305) {
        mbedtls_chachapoly_context k;
        mbedtls_chachapoly_init(&k);
        ok = mbedtls_chachapoly_setkey(&k, key) == 0 &&
             mbedtls_chachapoly_encrypt_and_tag(&k, n, nonce, aad, aad_n, p, out, out + n) == 0;
        mbedtls_chachapoly_free(&k);
    } else {
        mbedtls_gcm_context k;
        mbedtls_gcm_init(&k);
        ok = mbedtls_gcm_setkey(&k, MBEDTLS_CIPHER_ID_AES, key, 8 * (unsigned)gn__aead_key(aead)) == 0 &&
             mbedtls_gcm_crypt_and_tag(&k, MBEDTLS_GCM_ENCRYPT, n, nonce, GN__NONCE, aad, aad_n, p, out, GN__TAG,
                                       out + n) == 0;
        mbedtls_gcm_free(&k);
    }
    return ok;
}

/* A whole record, both ways, beside mbedTLS; *out_ns is the least time of a sealing. `room`: 3 records and their
   tags. */
static bool gn__record_right(const gn__crypto *c, int aead, size_t n, uint8_t *room, double *out_ns) {
    uint8_t key[GN__KEY_MAX], nonce[GN__NONCE], aad[13];
    uint8_t *plain = room, *theirs = plain + GN__RECORD_MAX + GN__TAG, *ours = theirs + GN__RECORD_MAX + GN__TAG;
    for (size_t i = 0; i < n; i++) plain[i] = (uint8_t)(i * 167 + (i >> 8) * 13 + n);
    memcpy(key, plain, sizeof key);
    memcpy(nonce, plain + sizeof key, sizeof nonce);
    memcpy(aad, plain + 64, sizeof aad);
    void *up = gn__aead_make(c, aead, key, true), *down = gn__aead_make(c, aead, key, false);
    bool ok = up != NULL && down != NULL && gn__stock_seal(aead, key, nonce, aad, sizeof aad, plain, n, theirs);
    ok = ok && gn__aead_seal(c, up, nonce, aad, sizeof aad, plain, n, NULL, ours) &&
         memcmp(ours, theirs, n + GN__TAG) == 0;
    ok = ok && gn__aead_open(c, down, nonce, aad, sizeof aad, ours, n, ours) && memcmp(ours, plain, n) == 0;
    *out_ns = INFINITY;
    for (int i = 0; i < 3; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        ok = ok && gn__aead_seal(c, up, nonce, aad, sizeof aad, plain, n, NULL, ours);
        clock_gettime(CLOCK_MONOTONIC, &b);
        *out_ns = fmin(*out_ns, (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec));
        ok = ok && memcmp(ours, theirs, n + GN__TAG) == 0;
    }
    if (up != NULL) c->EVP_CIPHER_CTX_free(up);
    if (down != NULL) c->EVP_CIPHER_CTX_free(down);
    return ok;
}

static bool gn__hash_right(const gn__crypto *c, const uint8_t *p, size_t n) {
    uint8_t ours[32], theirs[32];
    return c->EVP_Digest(p, n, ours, NULL, c->EVP_sha256(), NULL) == 1 && GN__SHA256(p, n, theirs) == 0 &&
           memcmp(ours, theirs, 32) == 0;
}

/* Whether it makes both contexts; a library that keeps to FIPS 140 has no ChaCha20-Poly1305. */
static bool gn__crypto_has(const gn__crypto *c, int aead) {
    static const uint8_t key[GN__KEY_MAX];
    void *up = gn__aead_make(c, aead, key, true), *down = gn__aead_make(c, aead, key, false);
    if (up != NULL) c->EVP_CIPHER_CTX_free(up);
    if (down != NULL) c->EVP_CIPHER_CTX_free(down);
    return up != NULL && down != NULL;
}

/* NULL, or the algorithm that it lacks (c->lacks) or that gave a wrong answer. */
static const char *gn__crypto_check(gn__crypto *c) {
    double ns[GN__AEAD__COUNT] = { 0 };
    const char *wrong = NULL;
    static uint8_t room[3 * (GN__RECORD_MAX + GN__TAG)]; /* once a process: no allocation that could fail */
    c->lacks = false;
    for (int i = 0; i < GN__AEAD__COUNT && wrong == NULL; i++) {
        c->lacks = !gn__crypto_has(c, i);
        bool ok = !c->lacks && gn__known_right(c, &gn__knowns[i]) && gn__record_right(c, i, 1037, room, &ns[i]) &&
                  gn__record_right(c, i, GN__RECORD_MAX, room, &ns[i]);
        if (!ok) wrong = gn__knowns[i].name;
    }
    for (size_t n = 0; n <= 130 && wrong == NULL; n += 13)
        if (!gn__hash_right(c, room, n) || !gn__hash_right(c, room, 3 * GN__RECORD_MAX - n)) wrong = "SHA-256";
    c->aes_faster = ns[GN__AES_128_GCM] <= ns[GN__CHACHA20_POLY1305];
    return wrong;
}

/* The library: $GENIE_LIBCRYPTO, else by the names of its versions. A program linked without a dynamic loader has
   none. */
static void *gn__crypto_open(char *why, size_t cap) {
    static const char *const names[] = {
#if defined(__APPLE__) /* the system's own libcrypto.dylib ends a program that loads it */
        "/opt/homebrew/lib/libcrypto.3.dylib",
        "/usr/local/lib/libcrypto.3.dylib",
#else
        "libcrypto.so.3",
        "libcrypto.so.4",
        "libcrypto.so.1.1",
#endif
    };
    const char *named = getenv("GENIE_LIBCRYPTO");
    void *lib = NULL;
#if defined(__linux__)
    if (getauxval(AT_BASE) == 0) {
        snprintf(why, cap, "this program is linked statically");
        return NULL;
    }
#endif
    if (named != NULL && *named != 0) {
        lib = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (lib == NULL) snprintf(why, cap, "GENIE_LIBCRYPTO=%.80s cannot be loaded", named);
        return lib;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && lib == NULL; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        snprintf(why, cap,
                 "libcrypto is not found: install OpenSSL's library (libssl3 on Debian), or set GENIE_LIBCRYPTO to its "
                 "path");
    return lib;
}

static bool gn__crypto_lacks(gn__crypto *c, const char *name) {
    snprintf(c->why, sizeof c->why, "the libcrypto that was found has no %s", name);
    return false;
}

/* Stays loaded: threads that end later may still use it. */
static bool gn__crypto_bind(gn__crypto *c, void *lib) {
    int (*init)(uint64_t options, const void *settings) = NULL;
    void *p = dlsym(lib, "OPENSSL_init_crypto");
    memcpy(&init, &p, sizeof p);
    if (init != NULL) init(GN__NO_ATEXIT, NULL); /* a session may still run when the program ends */
#define GN__X(type, name, args)     \
    p = dlsym(lib, #name);          \
    memcpy(&c->name, &p, sizeof p); \
    if (p == NULL) return gn__crypto_lacks(c, #name);
    GN__CRYPTO_SYMBOLS(GN__X)
#undef GN__X
    return true;
}

static void gn__crypto_load(void) {
    gn__crypto *c = &gn__crypto_found;
    void *lib = gn__crypto_open(c->why, sizeof c->why);
    if (lib == NULL || !gn__crypto_bind(c, lib)) return;
    const char *version = c->OpenSSL_version(0), *wrong = gn__crypto_check(c); /* "OpenSSL 3.0.17 1 Jul 2025" */
    int words = 0, n = 0;
    while (version[n] != 0 && (version[n] != ' ' || ++words < 2)) n++;
    snprintf(c->text, sizeof c->text, "%.*s", n < 60 ? n : 60, version);
    c->good = wrong == NULL;
    c->wrong = wrong != NULL && !c->lacks;
    if (wrong != NULL)
        snprintf(c->why, sizeof c->why, "%.60s %s %.40s and is not used", c->text,
                 c->lacks ? "has no" : "gives a wrong answer for", wrong);
}

/* What GENIE_AEAD says; NULL: nothing or "auto". */
static const char *gn__crypto_preferred(void) {
    const char *v = getenv("GENIE_AEAD");
    return v == NULL || *v == 0 || strcmp(v, "auto") == 0 ? NULL : v;
}

/* libcrypto if it is to be used, else NULL. */
static const gn__crypto *gn__crypto_use(void) {
    const char *asked = gn__crypto_preferred();
    if (asked != NULL && strcmp(asked, "mbedtls") == 0) return NULL;
    pthread_once(&gn__crypto_once, gn__crypto_load);
    return gn__crypto_found.good ? &gn__crypto_found : NULL;
}

/* Before a connection: an unknown setting and one that cannot be met are errors; what is slow or wrong is said once. */
static gn_result gn__crypto_resolve(gn__log log, gn_fault *f) {
    static atomic_bool said;
    const char *asked = gn__crypto_preferred();
    const gn__crypto *c = gn__crypto_use();
    if (asked != NULL && strcmp(asked, "mbedtls") != 0 && strcmp(asked, "libcrypto") != 0)
        return gn_fail(f, GN_BAD_ARGUMENT, "GENIE_AEAD is '%.40s': use 'auto', 'libcrypto' or 'mbedtls'", asked);
    if (c != NULL || (asked != NULL && strcmp(asked, "mbedtls") == 0)) return GN_OK;
    if (asked != NULL) return gn_fail(f, GN_UNSUPPORTED, "GENIE_AEAD asks for libcrypto: %s", gn__crypto_found.why);
    if (!atomic_exchange(&said, true))
        gn_logf(log.fn, log.user, gn__crypto_found.wrong ? GN_LOG_WARN : GN_LOG_INFO,
                "TLS records by mbedTLS, many times slower: %s", gn__crypto_found.why);
    return GN_OK;
}

/* >>crypto ==========================================================================================*/

static void gn__net_sha256(const void *data, size_t n, uint8_t out[32]) {
    const gn__crypto *c = n >= GN__HASH_LARGE ? gn__crypto_use() : NULL;
    if (c != NULL && c->EVP_Digest(data, n, out, NULL, c->EVP_sha256(), NULL) == 1) return;
    if (GN__SHA256(data, n, out) != 0) memset(out, 0, 32); /* fails only in builds with a hardware engine that broke */
}

/* A hash in pieces. */
typedef struct gn__hash {
    const gn__crypto *crypto; /* NULL: mbedTLS */
    void *ctx;
    mbedtls_sha256_context stock;
    bool failed;
} gn__hash;

static void *gn__net_hash_begin(void) {
    gn__hash *h = gn_alloc(sizeof *h);
    if (h == NULL) return NULL;
    memset(h, 0, sizeof *h);
    mbedtls_sha256_init(&h->stock);
    h->crypto = gn__crypto_use();
    if (h->crypto != NULL) h->ctx = h->crypto->EVP_MD_CTX_new();
    if (h->ctx == NULL) h->crypto = NULL;
    h->failed = h->crypto != NULL ? h->crypto->EVP_DigestInit_ex(h->ctx, h->crypto->EVP_sha256(), NULL) != 1
                                  : GN__SHA256_STEP(starts)(&h->stock, 0) != 0;
    return h;
}

static void gn__net_hash_add(void *hash, const void *data, size_t n) {
    gn__hash *h = hash;
    h->failed |= h->crypto != NULL ? h->crypto->EVP_DigestUpdate(h->ctx, data, n) != 1
                                   : GN__SHA256_STEP(update)(&h->stock, data, n) != 0;
}

/* Zeros when the library failed: no digest that anybody announced. */
static void gn__net_hash_end(void *hash, uint8_t out[32]) {
    gn__hash *h = hash;
    h->failed |= h->crypto != NULL ? h->crypto->EVP_DigestFinal_ex(h->ctx, out, NULL) != 1
                                   : GN__SHA256_STEP(finish)(&h->stock, out) != 0;
    if (h->failed) memset(out, 0, 32);
    if (h->crypto != NULL) h->crypto->EVP_MD_CTX_free(h->ctx);
    mbedtls_sha256_free(&h->stock);
    gn_free(h);
}

/* What one user of mbedTLS needs. Nothing of it is shared between connections: mbedTLS caches curve tables inside keys
   and certificates without a lock. */
typedef struct gn__tls {
    mbedtls_entropy_context entropy;
    mbedtls_ctr_drbg_context rng;
    mbedtls_ssl_config conf;
    mbedtls_ssl_context ssl;
    mbedtls_x509_crt own, ca;
    mbedtls_pk_context key;
} gn__tls;

static void gn__tls_destroy(gn__tls *t) {
    if (t == NULL) return;
    mbedtls_ssl_free(&t->ssl);
    mbedtls_ssl_config_free(&t->conf);
    mbedtls_x509_crt_free(&t->own);
    mbedtls_x509_crt_free(&t->ca);
    mbedtls_pk_free(&t->key);
    mbedtls_ctr_drbg_free(&t->rng);
    mbedtls_entropy_free(&t->entropy);
    gn_free(t);
}

static gn_result gn__tls_make(gn__tls **out, gn_fault *f) {
    gn__tls *t = gn_alloc(sizeof *t);
    *out = NULL;
    if (t == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    mbedtls_entropy_init(&t->entropy);
    mbedtls_ctr_drbg_init(&t->rng);
    mbedtls_ssl_config_init(&t->conf);
    mbedtls_ssl_init(&t->ssl);
    mbedtls_x509_crt_init(&t->own);
    mbedtls_x509_crt_init(&t->ca);
    mbedtls_pk_init(&t->key);
    if (!gn__tls_library() ||
        mbedtls_ctr_drbg_seed(&t->rng, mbedtls_entropy_func, &t->entropy, (const unsigned char *)"genie", 5) != 0) {
        gn__tls_destroy(t);
        return gn_fail(f, GN_TLS_FAILED, "the TLS library cannot start: no random numbers from the system");
    }
    *out = t;
    return GN_OK;
}

static gn_result gn__random(uint8_t *p, size_t n) {
    gn__tls *t;
    gn_result r = gn__tls_make(&t, NULL);
    if (r != GN_OK) return r;
    if (mbedtls_ctr_drbg_random(&t->rng, p, n) != 0) r = GN_TLS_FAILED;
    gn__tls_destroy(t);
    return r;
}

/* "-0x7200: SSL - ..." */
static const char *gn__tls_text(int e, char *buf, size_t cap) {
    char text[160];
    mbedtls_strerror(e, text, sizeof text);
    snprintf(buf, cap, "%s (-0x%04x)", text, (unsigned)-e);
    return buf;
}

/* Loads a PEM key and certificate that belong together into t->key and t->own. */
static gn_result gn__load_pair(gn__tls *t, const gn__bytes *key, const gn__bytes *cert, gn_fault *f) {
    char buf[200];
    int e = gn__pk_parse(&t->key, key, &t->rng);
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR, "the key is not a PEM private key without password: %s",
                       gn__tls_text(e, buf, sizeof buf));
    e = mbedtls_x509_crt_parse(&t->own, cert->p, cert->n + 1);
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR, "the certificate is not PEM: %s",
                       e > 0 ? "some of its parts are not certificates" : gn__tls_text(e, buf, sizeof buf));
    if (gn__pk_pair(&t->own.pk, &t->key, &t->rng) != 0)
        return gn_fail(f, GN_IO_ERROR, "the key does not belong to the certificate");
    return GN_OK;
}

static gn_result gn__load_ca(gn__tls *t, const gn__bytes *ca, gn_fault *f) {
    int e = mbedtls_x509_crt_parse(&t->ca, ca->p, ca->n + 1);
    if (e == 0 && t->ca.raw.len > 0) return GN_OK;
    return gn_fail(f, GN_IO_ERROR,
                   "the file of certificate authorities is not PEM, or some of its parts are not certificates");
}

static void gn__key_pin(const mbedtls_x509_crt *crt, uint8_t pin[GN__PIN]) {
    gn__net_sha256(crt->pk_raw.p, crt->pk_raw.len, pin);
}

/* A new P-256 key as PEM. */
static gn_result gn__make_key(gn__tls *t, gn__bytes *out, gn_fault *f) {
    size_t cap = 1024;
    out->p = gn_alloc(cap);
    if (out->p == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a key");
    mbedtls_pk_context pk;
    mbedtls_pk_init(&pk);
    int e = mbedtls_pk_setup(&pk, mbedtls_pk_info_from_type(MBEDTLS_PK_ECKEY));
    if (e == 0) e = mbedtls_ecp_gen_key(MBEDTLS_ECP_DP_SECP256R1, mbedtls_pk_ec(pk), mbedtls_ctr_drbg_random, &t->rng);
    if (e == 0) e = mbedtls_pk_write_key_pem(&pk, out->p, cap);
    mbedtls_pk_free(&pk);
    char buf[200];
    if (e != 0) return gn_fail(f, GN_TLS_FAILED, "no key can be made: %s", gn__tls_text(e, buf, sizeof buf));
    out->n = strlen((char *)out->p);
    return GN_OK;
}

static int gn__write_cert(gn__tls *t, mbedtls_pk_context *pk, uint8_t *pem, size_t cap) {
    uint8_t serial[16];
    mbedtls_x509write_cert w;
    mbedtls_x509write_crt_init(&w);
    mbedtls_x509write_crt_set_version(&w, MBEDTLS_X509_CRT_VERSION_3);
    mbedtls_x509write_crt_set_md_alg(&w, MBEDTLS_MD_SHA256);
    mbedtls_x509write_crt_set_subject_key(&w, pk);
    mbedtls_x509write_crt_set_issuer_key(&w, pk);
    int e = mbedtls_ctr_drbg_random(&t->rng, serial, sizeof serial);
    serial[0] = (uint8_t)((serial[0] & 0x7f) | 0x40); /* positive, no leading zero */
    if (e == 0) e = gn__set_serial(&w, serial, sizeof serial);
    if (e == 0) e = mbedtls_x509write_crt_set_subject_name(&w, "CN=genie");
    if (e == 0) e = mbedtls_x509write_crt_set_issuer_name(&w, "CN=genie");
    /* The key is pinned; the dates say nothing and must not end it. */
    if (e == 0) e = mbedtls_x509write_crt_set_validity(&w, "20200101000000", "20991231235959");
    if (e == 0) e = mbedtls_x509write_crt_set_basic_constraints(&w, 0, -1);
    if (e == 0) e = mbedtls_x509write_crt_pem(&w, pem, cap, mbedtls_ctr_drbg_random, &t->rng);
    mbedtls_x509write_crt_free(&w);
    return e;
}

/* A self-signed certificate of the key, as PEM. */
static gn_result gn__make_cert(gn__tls *t, const gn__bytes *key, gn__bytes *out, gn_fault *f) {
    char buf[200];
    size_t cap = 4096;
    out->p = gn_alloc(cap);
    if (out->p == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a certificate");
    mbedtls_pk_context pk;
    mbedtls_pk_init(&pk);
    int e = gn__pk_parse(&pk, key, &t->rng);
    if (e == 0) e = gn__write_cert(t, &pk, out->p, cap);
    mbedtls_pk_free(&pk);
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR, "no certificate can be made from the stored key: %s",
                       gn__tls_text(e, buf, sizeof buf));
    out->n = strlen((char *)out->p);
    return GN_OK;
}

/* >>records =========================================================================================
 * TLS records after the handshake, by libcrypto: mbedTLS agrees on the keys and checks the peer, then hands over the
 * keys and the number of the next record of each direction, and is not asked again. 1.2: RFC 5246, 5288 and 7905; 1.3:
 * RFC 8446, section 5. One thread may seal while another opens. There is no renegotiation (declined).
 *
 * One key of AES-GCM encrypts gn__key_records records at most (RFC 8446, 5.5), then the sender takes a new one by a
 * KeyUpdate (4.6.3). 1.2 knows none, so there it is ours: the same message and the same derivation, from a secret of
 * its own that is exported as in RFC 5705. mbedTLS understands neither, so a sender makes new keys only if the peer
 * said, in Genie's greeting, that it takes them (gn_transport_i.renew), or asked for them itself; if not, the
 * connection ends there with an error. */

enum { GN__ALERT = 21, GN__HANDSHAKE = 22, GN__DATA = 23 }; /* types of records */
enum { GN__NEW_TICKET = 4, GN__KEY_UPDATE = 24 };           /* of messages of the handshake */
enum {
    GN__CLOSE_NOTIFY = 0,
    GN__UNEXPECTED = 10,
    GN__BAD_MAC = 20,
    GN__OVERFLOW = 22,
    GN__ILLEGAL = 47,
    GN__INTERNAL_ERROR = 80,
    GN__USER_CANCELED = 90,
    GN__NO_RENEGOTIATION = 100
};
enum {
    GN__HEAD = 5,
    GN__EXPLICIT = 8,
    GN__RECORD_ROOM = GN__RECORD_MAX + 64,
    GN__IDLE_RECORDS = 16,
    GN__MESSAGE_HEAD = 4,
    GN__SECRET_MAX = 48
};
static uint64_t gn__key_records = 1u << 24; /* 275 GB; the bound is 2^24.5. Tests make it small */

/* One direction. number: of the next record; secret: what the next keys are made of. */
typedef struct gn__way {
    void *ctx;
    uint64_t number;
    uint8_t iv[GN__NONCE], secret[GN__SECRET_MAX];
} gn__way;

typedef struct gn__records {
    const gn__crypto *crypto; /* NULL: mbedTLS does it */
    bool v13, explicit_nonce; /* 8 bytes of the nonce stand in each record: GCM of 1.2 */
    bool server;
    int aead;
    size_t secret_n; /* bytes */
    gn__way up, down;
    size_t payload;               /* bytes of plaintext in a record that we send */
    uint64_t key_records;         /* that one key seals */
    bool renews;                  /* the peer takes new keys */
    atomic_bool renew;            /* the peer asks for them */
    atomic_bool decline;          /* the peer wants to renegotiate: the sender says no */
    atomic_uint_fast64_t renewed; /* times that keys were changed, both ways together */
    /* the receiver's */
    gn_result ended;                /* why nothing more comes */
    uint8_t alert;                  /* what to say at the end */
    unsigned idle;                  /* records without data, one after another */
    uint8_t head[GN__MESSAGE_HEAD]; /* of a message of the handshake (1.3) whose end is still to come */
    size_t head_n, skip;            /* bytes of it that are here; bytes of the message that are not */
    uint8_t *plain;                 /* of a record that the caller had no room for: [plain_at, plain_n) */
    size_t plain_at, plain_n;
} gn__records;

/* What the handshake hands over. */
typedef struct gn__keys {
    bool v13;
    int ways;                 /* bits: 1 up, 2 down */
    uint8_t up[64], down[64]; /* traffic secrets of client and server (1.3); up: the master secret (1.2) */
    size_t n;
    uint8_t random[64]; /* of server and client (1.2) */
    mbedtls_tls_prf_types prf;
} gn__keys;

static void gn__put_be64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (56 - 8 * i));
}

static uint64_t gn__get_be64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v = v << 8 | p[i];
    return v;
}

/* Nonce and additional data of the next record of this way. `length`: of the plaintext (1.2) or of what follows the
   head (1.3). */
static size_t gn__record_bind(const gn__records *r, const gn__way *w, const uint8_t *explicit_nonce, uint8_t type,
                              size_t length, uint8_t nonce[GN__NONCE], uint8_t aad[13]) {
    uint8_t number[8];
    gn__put_be64(number, w->number);
    memcpy(nonce, w->iv, GN__NONCE);
    if (r->explicit_nonce) memcpy(nonce + GN__NONCE - GN__EXPLICIT, explicit_nonce, GN__EXPLICIT);
    else
        for (int i = 0; i < 8; i++) nonce[GN__NONCE - 8 + i] ^= number[i];
    uint8_t *at = aad;
    if (!r->v13) {
        memcpy(at, number, 8);
        at += 8;
    }
    const uint8_t head[GN__HEAD] = { type, 3, 3, (uint8_t)(length >> 8), (uint8_t)length };
    memcpy(at, head, sizeof head);
    return (size_t)(at - aad) + sizeof head;
}

/* One record of n <= payload bytes; out has room for n + 64. Bytes written, 0: it failed, and nothing may be sent any
   more. */
static size_t gn__record_seal(gn__records *r, uint8_t type, const uint8_t *p, size_t n, uint8_t *out) {
    uint8_t nonce[GN__NONCE], aad[13], *at = out + GN__HEAD;
    gn__way *w = &r->up;
    size_t body = (r->explicit_nonce ? GN__EXPLICIT : 0) + n + r->v13 + GN__TAG;
    if (w->number == UINT64_MAX) return 0;
    out[0] = r->v13 ? GN__DATA : type;
    out[1] = out[2] = 3;
    out[3] = (uint8_t)(body >> 8);
    out[4] = (uint8_t)body;
    if (r->explicit_nonce) {
        gn__put_be64(at, w->number);
        at += GN__EXPLICIT;
    }
    size_t aad_n = gn__record_bind(r, w, out + GN__HEAD, out[0], r->v13 ? body : n, nonce, aad);
    if (!gn__aead_seal(r->crypto, w->ctx, nonce, aad, aad_n, p, n, r->v13 ? &type : NULL, at)) return 0;
    w->number++;
    return GN__HEAD + body;
}

static size_t gn__record_alert(gn__records *r, uint8_t what, uint8_t *out) {
    bool warning = what == GN__CLOSE_NOTIFY || what == GN__NO_RENEGOTIATION;
    const uint8_t alert[2] = { warning ? 1 : 2, what };
    return gn__record_seal(r, GN__ALERT, alert, sizeof alert, out);
}

static gn_result gn__records_end(gn__records *r, gn_result why, uint8_t alert) {
    r->ended = why;
    r->alert = alert;
    return why;
}

/* HKDF-Expand-Label of RFC 8446, 7.1, of at most one block and without context. n: 48 bytes by SHA-384, 32 by
   SHA-256. */
static bool gn__expand(const uint8_t *secret, size_t n, const char *label, uint8_t *out, size_t out_n) {
    uint8_t info[32], block[64];
    size_t k = strlen(label);
    const mbedtls_md_info_t *md = mbedtls_md_info_from_type(n == 48 ? MBEDTLS_MD_SHA384 : MBEDTLS_MD_SHA256);
    info[0] = 0;
    info[1] = (uint8_t)out_n;
    info[2] = (uint8_t)(6 + k);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, k);
    info[9 + k] = 0;
    info[10 + k] = 1;
    bool ok = md != NULL && out_n <= n && mbedtls_md_hmac(md, secret, n, info, 11 + k, block) == 0;
    if (ok) memcpy(out, block, out_n);
    mbedtls_platform_zeroize(block, sizeof block);
    return ok;
}

static size_t gn__iv_bytes(const gn__records *r) { return r->explicit_nonce ? GN__NONCE - GN__EXPLICIT : GN__NONCE; }

/* A key for one direction in place of the one that is there. */
static bool gn__way_key(const gn__records *r, gn__way *w, const uint8_t *key, const uint8_t *iv) {
    void *ctx = gn__aead_make(r->crypto, r->aead, key, w == &r->up);
    if (ctx == NULL) return false;
    if (w->ctx != NULL) r->crypto->EVP_CIPHER_CTX_free(w->ctx);
    w->ctx = ctx;
    memset(w->iv, 0, sizeof w->iv);
    memcpy(w->iv, iv, gn__iv_bytes(r));
    return true;
}

/* Key and IV of the secret, RFC 8446, 7.3. */
static bool gn__way_keys(const gn__records *r, gn__way *w) {
    uint8_t key[GN__KEY_MAX], iv[GN__NONCE];
    bool ok = gn__expand(w->secret, r->secret_n, "key", key, gn__aead_key(r->aead)) &&
              gn__expand(w->secret, r->secret_n, "iv", iv, gn__iv_bytes(r)) && gn__way_key(r, w, key, iv);
    mbedtls_platform_zeroize(key, sizeof key);
    mbedtls_platform_zeroize(iv, sizeof iv);
    return ok;
}

/* The next secret and its keys, RFC 8446, 7.2. */
static bool gn__way_renew(gn__records *r, gn__way *w) {
    uint8_t next[GN__SECRET_MAX];
    bool ok = gn__expand(w->secret, r->secret_n, "traffic upd", next, r->secret_n);
    if (ok) memcpy(w->secret, next, r->secret_n);
    mbedtls_platform_zeroize(next, sizeof next);
    ok = ok && gn__way_keys(r, w);
    w->number = ok ? 0 : UINT64_MAX; /* which neither seals nor opens */
    atomic_fetch_add_explicit(&r->renewed, ok, memory_order_relaxed);
    return ok;
}

/* New keys for what we send. Bytes of the record that says so, 0: it failed, and nothing may be sent any more. */
static size_t gn__record_renew(gn__records *r, uint8_t *out) {
    static const uint8_t update[] = { GN__KEY_UPDATE, 0, 0, 1, 0 }; /* and none in return */
    size_t n = gn__record_seal(r, GN__HANDSHAKE, update, sizeof update, out);
    return n > 0 && gn__way_renew(r, &r->up) ? n : 0;
}

/* A KeyUpdate, which ends its record. */
static gn_result gn__records_update(gn__records *r, uint8_t wants, bool last) {
    if (wants > 1) return gn__records_end(r, GN_TLS_FAILED, GN__ILLEGAL);
    if (!last) return gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
    if (!gn__way_renew(r, &r->down)) return gn__records_end(r, GN_TLS_FAILED, GN__INTERNAL_ERROR);
    if (wants) atomic_store(&r->renew, true);
    return GN_OK;
}

/* Messages of the handshake of 1.3, in pieces as they come. Tickets, which only a server sends and nobody asked for,
   pass by. */
static gn_result gn__records_handshake(gn__records *r, const uint8_t *p, size_t n) {
    while (n > 0) {
        if (r->head_n < GN__MESSAGE_HEAD) {
            r->head[r->head_n++] = *p++;
            n--;
            if (r->head_n < GN__MESSAGE_HEAD) continue;
            r->skip = (size_t)r->head[1] << 16 | (size_t)r->head[2] << 8 | r->head[3];
            bool good =
                r->head[0] == GN__KEY_UPDATE ? r->skip == 1 : r->head[0] == GN__NEW_TICKET && !r->server && r->skip > 0;
            if (!good) return gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
            continue;
        }
        size_t k = n < r->skip ? n : r->skip;
        r->skip -= k;
        if (r->skip == 0) r->head_n = 0;
        if (r->head[0] == GN__KEY_UPDATE) return gn__records_update(r, *p, n == 1);
        p += k;
        n -= k;
    }
    return GN_OK;
}

/* 1.2: a KeyUpdate of ours, or the peer asks to renegotiate. */
static gn_result gn__records_handshake_12(gn__records *r, const uint8_t *p, size_t n) {
    static const uint8_t update[GN__MESSAGE_HEAD] = { GN__KEY_UPDATE, 0, 0, 1 };
    if (n == sizeof update + 1 && memcmp(p, update, sizeof update) == 0) return gn__records_update(r, p[4], true);
    atomic_store(&r->decline, true);
    return GN_OK;
}

/* A record that is no data. */
static gn_result gn__records_control(gn__records *r, uint8_t type, const uint8_t *p, size_t n) {
    if (++r->idle > GN__IDLE_RECORDS) return gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
    if (type == GN__ALERT) {
        if (n != 2) return gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
        if (p[1] == GN__CLOSE_NOTIFY) return gn__records_end(r, GN_DISCONNECTED, GN__CLOSE_NOTIFY);
        if (r->v13 ? p[1] == GN__USER_CANCELED : p[0] == 1) return GN_OK;
        return gn__records_end(r, GN_TLS_FAILED, GN__CLOSE_NOTIFY);
    }
    if (type == GN__HANDSHAKE && n > 0)
        return r->v13 ? gn__records_handshake(r, p, n) : gn__records_handshake_12(r, p, n);
    return type == GN__DATA && n == 0 ? GN_OK : gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
}

/* Length and type of an opened record of 1.3, whose type stands behind the data, and zeros behind that. */
static size_t gn__record_strip(const uint8_t *p, size_t n, uint8_t *out_type) {
    while (n > 0 && p[n - 1] == 0) n--;
    *out_type = n > 0 ? p[n - 1] : 0;
    return n > 0 ? n - 1 : 0;
}

/* Whether a whole record stands at p, and of how many bytes it is with its head; *out_most is what it may hold. 0: not
   yet, or r->ended. */
static size_t gn__record_whole(gn__records *r, const uint8_t *p, size_t n, size_t *out_most) {
    size_t least = (r->explicit_nonce ? GN__EXPLICIT : 0) + GN__TAG,
           body = n >= GN__HEAD ? (size_t)p[3] << 8 | p[4] : 0;
    if (n < GN__HEAD) return 0;
    bool known = r->v13 ? p[0] == GN__DATA : p[0] == GN__DATA || p[0] == GN__ALERT || p[0] == GN__HANDSHAKE;
    if (!known || p[1] != 3 || p[2] != 3) gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
    else if (body < least + r->v13) gn__records_end(r, GN_TLS_FAILED, GN__BAD_MAC);
    else if (body > least + GN__RECORD_MAX + r->v13) gn__records_end(r, GN_TLS_FAILED, GN__OVERFLOW);
    if (r->ended != GN_OK || n < GN__HEAD + body) return 0;
    *out_most = body - least;
    return GN__HEAD + body;
}

/* Opens the record of `size` bytes at p into out, which has room for `most`. */
static gn_result gn__record_open(gn__records *r, const uint8_t *p, size_t size, size_t most, uint8_t *out,
                                 size_t *out_n) {
    uint8_t nonce[GN__NONCE], aad[13], type = p[0];
    gn__way *w = &r->down;
    const uint8_t *body = p + GN__HEAD;
    size_t aad_n = gn__record_bind(r, w, body, type, r->v13 ? size - GN__HEAD : most, nonce, aad);
    *out_n = 0;
    if (w->number == UINT64_MAX ||
        !gn__aead_open(r->crypto, w->ctx, nonce, aad, aad_n, body + (r->explicit_nonce ? GN__EXPLICIT : 0), most, out))
        return gn__records_end(r, GN_TLS_FAILED, GN__BAD_MAC);
    w->number++;
    size_t n = r->v13 ? gn__record_strip(out, most, &type) : most;
    if (r->head_n > 0 && type != GN__HANDSHAKE) return gn__records_end(r, GN_TLS_FAILED, GN__UNEXPECTED);
    if (type != GN__DATA || n == 0) return gn__records_control(r, type, out, n);
    r->idle = 0;
    *out_n = n;
    return GN_OK;
}

/* Data of the whole records in [*at, n) of `in`: as many as fit. *out_n 0 and GN_OK: more has to come first. */
static gn_result gn__records_open(gn__records *r, const uint8_t *in, size_t *at, size_t n, uint8_t *out, size_t max,
                                  size_t *out_n) {
    *out_n = 0;
    while (*out_n < max) {
        size_t most, got, k = r->plain_n - r->plain_at;
        if (k > 0) { /* what had no room last time */
            if (k > max - *out_n) k = max - *out_n;
            memcpy(out + *out_n, r->plain + r->plain_at, k);
            r->plain_at += k;
            *out_n += k;
            continue;
        }
        size_t size = r->ended == GN_OK ? gn__record_whole(r, in + *at, n - *at, &most) : 0;
        if (size == 0) break;
        bool fits = most <= max - *out_n;
        if (!fits && *out_n > 0) break;
        if (gn__record_open(r, in + *at, size, most, fits ? out + *out_n : r->plain, &got) != GN_OK) break;
        *at += size;
        if (fits) *out_n += got;
        else {
            r->plain_at = 0;
            r->plain_n = got;
        }
    }
    return *out_n > 0 ? GN_OK : r->ended;
}

/* ---- keys ---- */

/* Lets the handshake tell its keys: to the configuration before the setup (2.28), or to the connection after it
   (3.6). */
#if MBEDTLS_VERSION_NUMBER >= 0x03000000
static void gn__keys_import(void *self, mbedtls_ssl_key_export_type type, const unsigned char *secret, size_t n,
                            const unsigned char client[32], const unsigned char server[32], mbedtls_tls_prf_types prf) {
    gn__keys *k = self;
    bool v12 = type == MBEDTLS_SSL_KEY_EXPORT_TLS12_MASTER_SECRET, up = v12, down = false;
#if defined(MBEDTLS_SSL_PROTO_TLS1_3)
    up = up || type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_CLIENT_APPLICATION_TRAFFIC_SECRET;
    down = type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_APPLICATION_TRAFFIC_SECRET;
#endif
    if ((!up && !down) || n > sizeof k->up) return;
    memcpy(up ? k->up : k->down, secret, n);
    memcpy(k->random, server, 32);
    memcpy(k->random + 32, client, 32);
    k->n = n;
    k->prf = prf;
    k->v13 = !v12;
    k->ways |= v12 ? 3 : up ? 1 : 2;
}

static void gn__keys_wanted_of(mbedtls_ssl_config *conf, gn__keys *k) {
    (void)conf;
    (void)k;
}
static void gn__keys_wanted(mbedtls_ssl_context *ssl, gn__keys *k) {
    mbedtls_ssl_set_export_keys_cb(ssl, gn__keys_import, k);
}
#else
#if defined(MBEDTLS_SSL_EXPORT_KEYS)
static int gn__keys_import(void *self, const unsigned char *secret, const unsigned char *block, size_t mac, size_t key,
                           size_t iv, const unsigned char client[32], const unsigned char server[32],
                           mbedtls_tls_prf_types prf) {
    gn__keys *k = self;
    (void)block;
    (void)mac;
    (void)key;
    (void)iv;
    memcpy(k->up, secret, 48);
    memcpy(k->random, server, 32);
    memcpy(k->random + 32, client, 32);
    k->n = 48;
    k->prf = prf;
    k->ways = 3;
    return 0;
}

static void gn__keys_wanted_of(mbedtls_ssl_config *conf, gn__keys *k) {
    mbedtls_ssl_conf_export_keys_ext_cb(conf, gn__keys_import, k);
}
#else
static void gn__keys_wanted_of(mbedtls_ssl_config *conf, gn__keys *k) {
    (void)conf;
    (void)k;
}
#endif
static void gn__keys_wanted(mbedtls_ssl_context *ssl, gn__keys *k) {
    (void)ssl;
    (void)k;
}
#endif

/* 1.2. The secrets that later keys are made of are exported, RFC 5705: the client's, then the server's. */
static bool gn__records_v12(gn__records *r, const gn__keys *k) {
    uint8_t block[2 * (GN__KEY_MAX + GN__NONCE)], random[sizeof k->random], secrets[2 * GN__SECRET_MAX];
    size_t key = gn__aead_key(r->aead), iv = gn__iv_bytes(r);
    const uint8_t *keys = block, *ivs = block + 2 * key; /* the client's, then the server's */
    memcpy(random, k->random + 32, 32);
    memcpy(random + 32, k->random, 32);
    r->secret_n = k->prf == MBEDTLS_SSL_TLS_PRF_SHA384 ? 48 : 32;
    bool ok = mbedtls_ssl_tls_prf(k->prf, k->up, k->n, "key expansion", k->random, sizeof k->random, block,
                                  2 * (key + iv)) == 0 &&
              mbedtls_ssl_tls_prf(k->prf, k->up, k->n, "EXPORTER-genie key update", random, sizeof random, secrets,
                                  2 * r->secret_n) == 0;
    for (int down = 0; ok && down < 2; down++) {
        gn__way *w = down ? &r->down : &r->up;
        bool servers = r->server != (down != 0);
        memcpy(w->secret, secrets + (servers ? r->secret_n : 0), r->secret_n);
        ok = gn__way_key(r, w, keys + (servers ? key : 0), ivs + (servers ? iv : 0));
    }
    mbedtls_platform_zeroize(block, sizeof block);
    mbedtls_platform_zeroize(secrets, sizeof secrets);
    return ok;
}

static bool gn__records_v13(gn__records *r, const gn__keys *k) {
    if (k->n > GN__SECRET_MAX) return false;
    r->secret_n = k->n;
    memcpy(r->up.secret, r->server ? k->down : k->up, k->n);
    memcpy(r->down.secret, r->server ? k->up : k->down, k->n);
    return gn__way_keys(r, &r->up) && gn__way_keys(r, &r->down);
}

static void gn__records_deinit(gn__records *r) {
    if (r->up.ctx != NULL) r->crypto->EVP_CIPHER_CTX_free(r->up.ctx);
    if (r->down.ctx != NULL) r->crypto->EVP_CIPHER_CTX_free(r->down.ctx);
    if (r->plain != NULL) mbedtls_platform_zeroize(r->plain, GN__RECORD_ROOM);
    gn_free(r->plain);
    mbedtls_platform_zeroize(r, sizeof *r);
}

/* The AEAD of a suite, -1: none of ours. */
static int gn__suite_aead(int suite) {
    switch (suite) {
#if defined(GN__TLS_MAX)
    case MBEDTLS_TLS1_3_AES_128_GCM_SHA256:
#endif
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:
    case MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256: return GN__AES_128_GCM;
#if defined(GN__TLS_MAX)
    case MBEDTLS_TLS1_3_AES_256_GCM_SHA384:
#endif
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384:
    case MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384: return GN__AES_256_GCM;
#if defined(GN__TLS_MAX)
    case MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256:
#endif
    case MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
    case MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256: return GN__CHACHA20_POLY1305;
    default: return -1;
    }
}

/* The keys of a handshake. false: no memory, or the library refuses. */
static bool gn__records_init(gn__records *r, const gn__crypto *c, const gn__keys *k, int aead, bool server) {
    memset(r, 0, sizeof *r);
    atomic_init(&r->renew, false);
    atomic_init(&r->decline, false);
    atomic_init(&r->renewed, 0);
    r->crypto = c;
    r->v13 = k->v13;
    r->server = server;
    r->aead = aead;
    r->explicit_nonce = !k->v13 && aead != GN__CHACHA20_POLY1305;
    r->payload = GN__RECORD_MAX;
    r->key_records = aead == GN__CHACHA20_POLY1305 ? UINT64_MAX : gn__key_records;
    r->plain = gn_alloc(GN__RECORD_ROOM);
    if (r->plain != NULL && (k->v13 ? gn__records_v13 : gn__records_v12)(r, k)) return true;
    gn__records_deinit(r);
    return false;
}

/* Takes over from mbedTLS after the handshake. false: mbedTLS goes on. */
static bool gn__records_make(gn__records *r, const gn__crypto *c, const gn__keys *k, mbedtls_ssl_context *ssl,
                             bool server) {
    int aead = gn__suite_aead(mbedtls_ssl_get_ciphersuite_id(mbedtls_ssl_get_ciphersuite(ssl))),
        payload = mbedtls_ssl_get_max_out_record_payload(ssl);
    uint64_t up = gn__get_be64(ssl->GN__SSL_FIELD(cur_out_ctr)), down = gn__get_be64(ssl->GN__SSL_FIELD(in_ctr));
    if (c == NULL || k->ways != 3 || aead < 0 || payload <= 0) return false;
    /* Finished was number 0, and nothing else was sent: no nonce may serve twice */
    if (!k->v13 && (up != 1 || down != 1)) return false;
    if (mbedtls_ssl_check_pending(ssl) != 0) return false; /* it holds bytes that we would lose */
    if (!gn__records_init(r, c, k, aead, server)) return false;
    if ((size_t)payload < r->payload) r->payload = (size_t)payload;
    r->up.number = up;
    r->down.number = down;
    return true;
}

/* >>link ============================================================================================
 * One connection. Threads: one sender, one receiver, one or two threads; interrupt and info from any. The receiver
 * alone uses `in`, the sender alone `fly`; everything of mbedTLS and `out` is used under `lock`, one record at a time,
 * never while waiting for the socket. Where libcrypto does the records, mbedTLS and its keys are gone, `out` is the
 * sender's and there is no lock; the two threads of >>beside then may do socket I/O for them. A send that failed
 * leaves half a record behind, so every later one fails too; so does a receive after one that met a wrong record,
 * however right the next one may be. */

/* What an operation may wait in all: counted, and the clock read, from when it first has to. */
typedef struct gn__time_limit {
    uint32_t ms;
    uint64_t deadline; /* 0: it has not waited */
} gn__time_limit;

/* GN__OUT_MAX bytes */
typedef struct gn__buffer {
    uint8_t *p;
    size_t n;
} gn__buffer;

enum { GN__TURNS = 4 };

/* What goes from one thread of a link to the other. Of what is to be sent: how long all of its call may wait, and
   whether it is the first of that call. */
typedef struct gn__turn {
    gn__buffer b;
    uint32_t ms;
    bool first;
} gn__turn;

/* A thread beside one of the link's own. Turns taken up to, not including, made are full: one thread fills them, the
   other empties them, in order. */
typedef struct gn__helper {
    struct gn__link *link;
    pthread_t thread;
    bool begun, refused;  /* of the thread beside which it is: it is to be joined; it could not be started */
    bool uses;            /* of the receiver: what comes next may be in a turn */
    atomic_bool busy;     /* turns wait to be sent */
    atomic_int result;    /* gn_result: why nothing more can be sent */
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    bool ready, ended, stop,
        poor;            /* ready: there are turns; ended: there are none any more; poor: no memory for them */
    bool lent;           /* a turn is being filled to be sent */
    bool reads;          /* what the socket has is the helper's to take */
    unsigned little;     /* receives of less than GN__GULP, one after another */
    gn__time_limit time; /* of the call whose turns are being sent */
    gn_result came;      /* why it stopped reading; GN_TIMEOUT: there is nothing for now */
    uint64_t made, taken;
    gn__turn turns[GN__TURNS];
} gn__helper;

typedef struct gn__listener gn__listener;

/* What large transfers spend time on: each by the one thread that does it. */
enum {
    GN__SPENT_SEALING,
    GN__SPENT_SENDING,
    GN__SPENT_ON_READER, /* of those, waiting for the peer to read */
    GN__SPENT_OPENING,
    GN__SPENT_RECEIVING,
    GN__SPENT_ON_WRITER, /* beside those, waiting for the peer to write */
    GN__SPENT__COUNT
};

static unsigned gn__helper_cores = 4; /* where there are fewer, threads only take them from each other */

typedef struct gn__link {
    int fd;
    bool server, known; /* known: the peer has proved who it is */
    unsigned cores;     /* when it began */
    uint32_t spin_us, spin_most_us;
    uint64_t last_us; /* that the receiver waited before this */
    atomic_bool stopped;
    atomic_uint_fast64_t up, down; /* bytes at the socket */
    pthread_mutex_t lock;
    gn__tls *tls;                 /* NULL: plain, no handshake yet, or libcrypto took over */
    gn_result broken;             /* of the sender */
    gn_result ended;              /* of the receiver, where mbedTLS does the records */
    uint64_t sealed, most_sealed; /* records by mbedTLS, and how many its key may seal */
    uint8_t *in;                  /* ciphertext received: in[in_at, in_n) */
    size_t in_at, in_n, in_room;  /* in_room: bytes of it that are used */
    gn__buffer out, fly;          /* ciphertext to send; being sent, during the handshake and by mbedTLS */
    uint64_t much_up, much_down;  /* bytes of large sends one after another, and of receives */
    gn__helper sending, receiving;
    atomic_uint_fast64_t spent_us[GN__SPENT__COUNT]; /* on large sends and receives */
    const gn__crypto *crypto;                        /* NULL: all by mbedTLS */
    gn__keys keys;                                   /* during the handshake */
    gn__records records;                             /* after it, where libcrypto does them */
    gn__log log;
    char peer[96], version[32], cipher[64];
    /* the peer's key */
    uint8_t peer_key[GN__PIN], pin[GN__PIN];
    bool peer_key_seen, use_pin, pin_wrong;
    /* client */
    char home[GN__PATH], address[GN__ADDRESS];
    uint8_t proof[256];
    size_t proof_n;
    /* server */
    gn__listener *listener;
    uint8_t network[GN__NETWORK]; /* that the peer belongs to */
    uint8_t stage;                /* gn__stage, while it is a stranger */
    uint64_t held_us, ends_us;    /* not looked at before; not waited for after */
    uint64_t moved_us;            /* when it last advanced */
} gn__link;

static bool gn__helper_init(gn__helper *h, gn__link *l) {
    h->link = l;
    atomic_init(&h->busy, false);
    atomic_init(&h->result, GN_OK);
    if (pthread_mutex_init(&h->lock, NULL) != 0) return false;
    if (gn__cond_init(&h->changed)) return true;
    pthread_mutex_destroy(&h->lock);
    return false;
}

static void gn__helper_deinit(gn__helper *h) {
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
}

static gn_result gn__link_make(int fd, gn__link **out, gn_fault *f) {
    gn__link *l = gn_alloc(sizeof *l);
    *out = NULL;
    if (l == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a connection");
    memset(l, 0, sizeof *l);
    l->fd = fd;
    l->spin_us = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? GN__SPIN_US : 0;
    atomic_init(&l->stopped, false);
    l->cores = gn__cores();
    l->spin_most_us = l->cores >= gn__helper_cores ? GN__SPIN_MOST_US : l->spin_us;
    atomic_init(&l->up, 0);
    atomic_init(&l->down, 0);
    for (int i = 0; i < GN__SPENT__COUNT; i++) atomic_init(&l->spent_us[i], 0);
    bool ok = pthread_mutex_init(&l->lock, NULL) == 0, sends = ok && gn__helper_init(&l->sending, l);
    if (sends && gn__helper_init(&l->receiving, l)) {
        *out = l;
        return GN_OK;
    }
    if (sends) gn__helper_deinit(&l->sending);
    if (ok) pthread_mutex_destroy(&l->lock);
    gn_free(l);
    return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a connection");
}

/* Frees all but does not touch the peer. */
static void gn__link_destroy(gn__link *l) {
    if (l->fd >= 0) close(l->fd);
    gn__records_deinit(&l->records);
    gn__tls_destroy(l->tls);
    gn_free(l->in);
    gn_free(l->out.p);
    gn_free(l->fly.p);
    gn__helper_deinit(&l->sending);
    gn__helper_deinit(&l->receiving);
    pthread_mutex_destroy(&l->lock);
    mbedtls_platform_zeroize(l, sizeof *l);
    gn_free(l);
}

/* "1.2.3.4:5" or "[::1]:5" */
static void gn__peer_text(const struct sockaddr_storage *sa, socklen_t n, char out[96]) {
    char host[72], port[12];
    snprintf(out, 96, "local");
    if (sa->ss_family != AF_INET && sa->ss_family != AF_INET6) return;
    if (getnameinfo((const struct sockaddr *)sa, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(out, 96, sa->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static uint64_t gn__due(gn__time_limit *t) { return t->deadline != 0 ? t->deadline : (t->deadline = gn__after(t->ms)); }

static void gn__link_spent(gn__link *l, int what, uint64_t us) {
    atomic_fetch_add_explicit(&l->spent_us[what], us, memory_order_relaxed);
}

static void gn__link_received(gn__link *l, uint64_t begin, uint64_t came) {
    gn__link_spent(l, GN__SPENT_ON_WRITER, came - begin);
    gn__link_spent(l, GN__SPENT_RECEIVING, gn_now_us() - came);
}

static gn_result gn__sock_send_waits(gn__link *l, const uint8_t *p, size_t n, gn__time_limit *time,
                                     uint64_t *out_waited) {
    *out_waited = 0;
    while (n > 0) {
        if (atomic_load(&l->stopped)) return GN_DISCONNECTED;
        ssize_t k = send(l->fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && !gn__again(errno)) return GN_DISCONNECTED;
        if (k > 0) {
            atomic_fetch_add_explicit(&l->up, (uint64_t)k, memory_order_relaxed);
            p += k;
            n -= (size_t)k;
            if (n > 0 && gn__due(time) <= gn_now_us()) return GN_TIMEOUT; /* a peer that takes a little at a time */
            continue;
        }
        uint64_t begin = gn_now_us();
        gn_result r = gn__wait(l->fd, POLLOUT, gn__due(time));
        *out_waited += gn_now_us() - begin;
        if (r != GN_OK) return r;
    }
    return GN_OK;
}

static gn_result gn__sock_send(gn__link *l, const uint8_t *p, size_t n, gn__time_limit *time) {
    uint64_t waited;
    return gn__sock_send_waits(l, p, n, time, &waited);
}

static gn_result gn__sock_send_large(gn__link *l, const uint8_t *p, size_t n, gn__time_limit *time) {
    uint64_t begin = gn_now_us(), waited;
    gn_result r = gn__sock_send_waits(l, p, n, time, &waited);
    gn__link_spent(l, GN__SPENT_SENDING, gn_now_us() - begin);
    gn__link_spent(l, GN__SPENT_ON_READER, waited);
    return r;
}

/* Receivers of the process that look for longer than others, a fourth as many as there are cores. */
static atomic_uint gn__lookers;

static void gn__look_end(bool *longer) {
    if (*longer) atomic_fetch_sub(&gn__lookers, 1);
    *longer = false;
}

/* For how long to look for what comes next: for twice as long as the wait before took, if that was short. */
static uint64_t gn__look_begin(const gn__link *l, bool *out_longer) {
    const uint64_t us = 2 * l->last_us;
    *out_longer = us > l->spin_us && us <= l->spin_most_us;
    if (*out_longer && atomic_fetch_add(&gn__lookers, 1) >= l->cores / 4) gn__look_end(out_longer);
    return *out_longer ? us : l->spin_us;
}

/* 1 to max bytes. Looks often for a short while before it sleeps: a sleeping core wakes late. In a stream it looks
   seldom: each look holds up who fills the socket, and finds little. */
static gn_result gn__sock_recv(gn__link *l, uint8_t *p, size_t max, size_t *out_n, uint64_t deadline, bool stream) {
    bool longer = false;
    uint64_t begin = gn_now_us(), now = begin, end = now + (stream ? GN__NAPS_US : gn__look_begin(l, &longer));
    gn_result r = GN_OK;
    while (r == GN_OK) {
        ssize_t k = atomic_load(&l->stopped) ? 0 : recv(l->fd, p, max, 0);
        if (k > 0) {
            atomic_fetch_add_explicit(&l->down, (uint64_t)k, memory_order_relaxed);
            *out_n = (size_t)k;
            l->last_us = now - begin;
            if ((size_t)k >= GN__LARGE / 2) gn__link_received(l, begin, now);
            break;
        }
        if (k < 0 && errno == EINTR) continue;
        if (k == 0 || !gn__again(errno)) r = GN_DISCONNECTED;
        else if (now < end && now < deadline) {
            if (stream) nanosleep(&(struct timespec){ 0, GN__NAP_US * 1000 }, NULL);
            else sched_yield();
            now = gn_now_us();
        } else {
            gn__look_end(&longer);
            r = gn__wait(l->fd, POLLIN, deadline);
            now = gn_now_us();
        }
    }
    gn__look_end(&longer);
    return r;
}

/* >>beside ==========================================================================================
 * Where much is sent, a thread beside the link's own sends what that one has sealed; where much comes, one receives
 * what that one opens: system calls cost about as much as encryption. Records stay with the link's own threads, so
 * their numbers, keys, alerts and errors are where they are without. Small messages and single large ones stay there
 * too: a thread that wakes costs more than it gives.
 *
 * The helper that sends has its turns' deadlines and the errors of the socket; the sender meets them at its next call,
 * and the end of a link waits until all is sent. The helper that receives never waits: when the socket is empty it
 * gives it back, so that whoever waits for the peer is the receiver, as without. A helper that has nothing to do for a
 * while ends, and its memory, which is nobody's, is free. */

#define GN__HELPERS 8              /* of the process, at most */
#define GN__HELPER_IDLE_US 250000u /* after which one ends */
#define GN__LITTLE 16              /* small receives after which it is no stream any more */

static atomic_int gn__helpers_now;
static int gn__helpers_wanted = -1; /* of tests, bits: 1 large sends beside, 2 all receives; -1: where it pays */

/* Under the lock. false: it is to end. */
static bool gn__helper_wait(gn__helper *h, bool (*has_work)(const gn__helper *h)) {
    uint64_t end = gn_now_us() + GN__HELPER_IDLE_US;
    while (!h->stop && !has_work(h)) {
        bool idle = !h->lent && !h->reads && h->made == h->taken;
        if (!idle) {
            pthread_cond_wait(&h->changed, &h->lock);
            end = gn_now_us() + GN__HELPER_IDLE_US;
            continue;
        }
        if (gn_now_us() >= end) return false;
        gn__cond_wait_until(&h->changed, &h->lock, end);
    }
    return !h->stop;
}

static void gn__helper_main(gn__helper *h, size_t room, bool (*has_work)(const gn__helper *h),
                            void (*work)(gn__helper *h)) {
    bool good = true;
    for (int i = 0; i < GN__TURNS; i++) good = (h->turns[i].b.p = gn_alloc(room)) != NULL && good;
    pthread_mutex_lock(&h->lock);
    h->ready = good;
    h->poor = !good;
    pthread_cond_broadcast(&h->changed);
    while (good && gn__helper_wait(h, has_work)) {
        work(h);
        pthread_cond_broadcast(&h->changed);
    }
    h->ready = h->reads = false;
    h->ended = true;
    h->came = GN_TIMEOUT;
    for (int i = 0; i < GN__TURNS; i++) gn_free(h->turns[i].b.p);
    memset(h->turns, 0, sizeof h->turns);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    atomic_fetch_sub(&gn__helpers_now, 1);
}

static bool gn__helper_sends(const gn__helper *h) { return h->made != h->taken; }

/* Under the lock, which it leaves meanwhile. After a failure what is left is dropped. */
static void gn__helper_send(gn__helper *h) {
    gn__turn *t = &h->turns[h->taken % GN__TURNS];
    if (atomic_load(&h->result) != GN_OK) { /* this turn was lent when the one before it failed */
        h->taken = h->made;
        atomic_store(&h->busy, false);
        return;
    }
    if (t->first) h->time = (gn__time_limit){ t->ms, 0 };
    pthread_mutex_unlock(&h->lock);
    gn_result r = gn__sock_send_large(h->link, t->b.p, t->b.n, &h->time);
    pthread_mutex_lock(&h->lock);
    h->taken = r == GN_OK ? h->taken + 1 : h->made;
    if (r != GN_OK) atomic_store(&h->result, (int)r);
    if (h->taken == h->made) atomic_store(&h->busy, false);
}

static void *gn__send_main(void *arg) {
    gn__helper_main(arg, GN__OUT_MAX, gn__helper_sends, gn__helper_send);
    return NULL;
}

static bool gn__helper_reads(const gn__helper *h) { return h->reads && h->made - h->taken < GN__TURNS; }

/* Likewise. Before what it receives there is room for the begin of a record. A peer that sends a little at a time is no
   stream: its bytes are the receiver's to wait for, by its deadline. */
static void gn__helper_receive(gn__helper *h) {
    gn__turn *t = &h->turns[h->made % GN__TURNS];
    pthread_mutex_unlock(&h->lock);
    gn_result r = gn__sock_recv(h->link, t->b.p + GN__RECORD_ROOM, GN__IN_BYTES - GN__RECORD_ROOM, &t->b.n,
                                gn_now_us() + GN__NAPS_US, true);
    pthread_mutex_lock(&h->lock);
    h->made += r == GN_OK;
    h->little = r == GN_OK && t->b.n < GN__GULP ? h->little + 1 : 0;
    h->reads = r == GN_OK && h->little < GN__LITTLE;
    h->came = r == GN_OK ? GN_TIMEOUT : r;
}

static void *gn__receive_main(void *arg) {
    gn__helper_main(arg, GN__IN_BYTES, gn__helper_reads, gn__helper_receive);
    return NULL;
}

/* By the thread beside which it is to be. false: that one goes on alone. */
static bool gn__helper_begin(gn__helper *h, void *(*main)(void *)) {
    if (h->refused) return false;
    if (h->begun) {
        pthread_mutex_lock(&h->lock);
        bool ended = h->ended;
        pthread_mutex_unlock(&h->lock);
        if (!ended) return true;
        pthread_join(h->thread, NULL);
        h->begun = false;
        h->refused = h->poor;
        if (h->refused) return false;
    }
    pthread_mutex_lock(&h->lock);
    h->ready = h->ended = h->stop = h->lent = h->reads = false;
    h->made = h->taken = 0;
    pthread_mutex_unlock(&h->lock);
    if (atomic_fetch_add(&gn__helpers_now, 1) < GN__HELPERS) {
        h->begun = pthread_create(&h->thread, NULL, main, h) == 0;
        h->refused = !h->begun;
    }
    if (!h->begun) atomic_fetch_sub(&gn__helpers_now, 1);
    return h->begun;
}

/* Under the lock: until all is sent, or the deadline. */
static bool gn__helper_drain(gn__helper *h, uint64_t deadline) {
    while (h->made != h->taken && gn_now_us() < deadline) gn__cond_wait_until(&h->changed, &h->lock, deadline);
    return h->made == h->taken;
}

static void gn__helper_end(gn__helper *h) {
    if (!h->begun) return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    h->begun = false;
}

/* All that was sent goes out, unless the link is broken or interrupted, or the peer does not read: a server waits for
   two seconds, a client as long as for a send. Then both threads end. */
static void gn__helpers_end(gn__link *l) {
    gn__helper *h = &l->sending;
    if (h->begun && l->broken == GN_OK) {
        pthread_mutex_lock(&h->lock);
        gn__helper_drain(h, l->server ? gn_now_us() + 10 * GN__LINGER_US : gn__after(h->time.ms));
        pthread_mutex_unlock(&h->lock);
    }
    if (l->broken == GN_OK) l->broken = (gn_result)atomic_load(&h->result);
    if (atomic_load(&h->busy)) { /* nothing more is sent: wakes a helper that waits for the peer */
        atomic_store(&l->stopped, true);
        shutdown(l->fd, SHUT_WR);
    }
    gn__helper_end(h);
    gn__helper_end(&l->receiving);
}

/* Not for strangers: they would have all the threads. */
static bool gn__helper_wanted(const gn__link *l, int bit, bool much) {
    if (gn__helpers_wanted >= 0) return (gn__helpers_wanted & bit) != 0;
    return much && l->known && l->cores >= gn__helper_cores;
}

/* Whether n bytes more are sent beside: always behind what waits to be sent there. */
static bool gn__sends_beside(gn__link *l, size_t n) {
    if (l->sending.begun && atomic_load(&l->sending.busy)) return true;
    if (n < GN__LARGE) {
        l->much_up = 0;
        return false;
    }
    l->much_up += n;
    return gn__helper_wanted(l, 1, l->much_up > GN__MUCH) && gn__helper_begin(&l->sending, gn__send_main);
}

/* A turn for what is sealed next; NULL: there is no memory for any, or l->broken. */
static gn__turn *gn__send_turn(gn__link *l, gn__time_limit *time) {
    gn__helper *h = &l->sending;
    pthread_mutex_lock(&h->lock);
    while (!h->ready && !h->ended) pthread_cond_wait(&h->changed, &h->lock);
    while (h->made - h->taken == GN__TURNS && l->broken == GN_OK)
        if (gn_now_us() >= gn__due(time)) l->broken = GN_TIMEOUT;
        else gn__cond_wait_until(&h->changed, &h->lock, gn__due(time));
    if (atomic_load(&h->result) != GN_OK) l->broken = (gn_result)atomic_load(&h->result);
    h->lent = h->ready && l->broken == GN_OK;
    gn__turn *t = h->lent ? &h->turns[h->made % GN__TURNS] : NULL;
    pthread_mutex_unlock(&h->lock);
    return t;
}

/* The turn is the helper's, unless sealing it failed. */
static void gn__send_beside(gn__link *l, gn__turn *t, uint32_t ms, bool first) {
    gn__helper *h = &l->sending;
    t->ms = ms;
    t->first = first;
    pthread_mutex_lock(&h->lock);
    h->lent = false;
    h->made += l->broken == GN_OK;
    if (h->made != h->taken) atomic_store(&h->busy, true);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* From here on the helper reads, until the socket is empty. */
static void gn__receive_beside(gn__link *l) {
    gn__helper *h = &l->receiving;
    if (!gn__helper_begin(h, gn__receive_main)) return;
    pthread_mutex_lock(&h->lock);
    h->reads = l->receiving.uses = !h->ended;
    h->little = 0;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* The next turn that came takes the place of `in`, with what is not taken of that, less than a record, before it.
   GN_TIMEOUT: there is none, and the socket is the receiver's again. */
static gn_result gn__receive_turn(gn__link *l) {
    gn__helper *h = &l->receiving;
    pthread_mutex_lock(&h->lock);
    while (h->made == h->taken && h->reads) pthread_cond_wait(&h->changed, &h->lock);
    gn__turn *t = h->made != h->taken ? &h->turns[h->taken % GN__TURNS] : NULL;
    gn_result came = h->came;
    pthread_mutex_unlock(&h->lock);
    if (t == NULL) {
        h->uses = false;
        return came;
    }
    size_t rest = l->in_n - l->in_at, at = GN__RECORD_ROOM - rest;
    uint8_t *free_now = l->in;
    memcpy(t->b.p + at, l->in + l->in_at, rest);
    l->in = t->b.p;
    l->in_at = at;
    l->in_n = GN__RECORD_ROOM + t->b.n;
    t->b.p = free_now;
    pthread_mutex_lock(&h->lock);
    h->taken++;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return GN_OK;
}

/* >>plain ===========================================================================================
 * What a link is asked and how it ends; links without TLS. */

static void gn__link_interrupt(void *self) {
    gn__link *l = self;
    atomic_store(&l->stopped, true);
    shutdown(l->fd, SHUT_RDWR);
}

static bool gn__link_drains(gn__link *l, uint32_t timeout_ms) {
    pthread_mutex_lock(&l->sending.lock);
    bool all = gn__helper_drain(&l->sending, gn__after(timeout_ms));
    pthread_mutex_unlock(&l->sending.lock);
    return all;
}

static uint32_t gn__link_state(void *self, uint32_t timeout_ms) {
    gn__link *l = self;
    struct pollfd p = { l->fd, POLLIN | POLLOUT, 0 };
    uint32_t state = 0;
#if defined(POLLRDHUP)
    p.events |= POLLRDHUP;
    const short gone = POLLERR | POLLHUP | POLLNVAL | POLLRDHUP;
#else
    const short gone = POLLERR | POLLHUP | POLLNVAL;
#endif
    if (atomic_load(&l->stopped)) return GN_LINK_GONE;
    uint64_t end = gn__after(timeout_ms);
    bool waits = atomic_load(&l->sending.busy) && !gn__link_drains(l, timeout_ms);
    uint64_t now = gn_now_us();
    if (poll(&p, 1, waits || now >= end ? 0 : (int)((end - now) / 1000)) <= 0) return 0;
    if (p.revents & POLLOUT && !waits) state |= GN_LINK_WRITABLE;
    if (p.revents & POLLIN) state |= GN_LINK_READABLE;
    if (p.revents & gone) state |= GN_LINK_GONE;
    return state;
}

/* Asked for in every step, so nothing is formatted. */
static void gn__link_info(void *self, gn_link_info *out) {
    gn__link *l = self;
    _Static_assert(sizeof out->peer == sizeof l->peer && sizeof out->tls == sizeof l->version &&
                       sizeof out->cipher == sizeof l->cipher,
                   "texts are copied whole");
    memset(out, 0, sizeof *out);
    memcpy(out->peer, l->peer, sizeof out->peer);
    memcpy(out->tls, l->version, sizeof out->tls);
    memcpy(out->cipher, l->cipher, sizeof out->cipher);
    if (l->version[0] != 0) {
        const char *text = l->records.crypto != NULL ? l->records.crypto->text : GN__STOCK;
        memcpy(out->records, text, strnlen(text, sizeof out->records - 1));
    }
    out->slow = l->version[0] != 0 && l->records.crypto == NULL && gn__crypto_preferred() == NULL;
    out->renews = l->records.crypto != NULL;
    out->key_updates = out->renews ? atomic_load_explicit(&l->records.renewed, memory_order_relaxed) : 0;
    out->bytes_up = atomic_load_explicit(&l->up, memory_order_relaxed);
    out->bytes_down = atomic_load_explicit(&l->down, memory_order_relaxed);
    uint64_t *const spent[GN__SPENT__COUNT] = {
        [GN__SPENT_SEALING] = &out->seal_us,        [GN__SPENT_SENDING] = &out->send_us,
        [GN__SPENT_ON_READER] = &out->send_wait_us, [GN__SPENT_OPENING] = &out->open_us,
        [GN__SPENT_RECEIVING] = &out->receive_us,   [GN__SPENT_ON_WRITER] = &out->receive_wait_us,
    };
    for (int i = 0; i < GN__SPENT__COUNT; i++) *spent[i] = atomic_load_explicit(&l->spent_us[i], memory_order_relaxed);
}

/* Ends our side and takes what the peer was still sending: closing with bytes unread would reset the connection and
   lose the last thing we said, such as why we close. */
static void gn__linger(gn__link *l) {
    uint64_t deadline = gn_now_us() + GN__LINGER_US;
    uint8_t waste[4096];
    if (shutdown(l->fd, SHUT_WR) != 0) return;
    for (uint64_t now; (now = gn_now_us()) < deadline;) {
        ssize_t k = recv(l->fd, waste, sizeof waste, 0);
        if (k > 0 || (k < 0 && errno == EINTR)) continue;
        if (k == 0 || !gn__again(errno)) return;
        if (gn__wait(l->fd, POLLIN, now + GN__LINGER_US / 10 < deadline ? now + GN__LINGER_US / 10 : deadline) != GN_OK)
            return;
    }
}

static void gn__link_close(void *self) {
    gn__link *l = self;
    bool open = l->fd >= 0 && !atomic_load(&l->stopped);
    gn__helpers_end(l);
    if (open && l->version[0] != 0 && l->broken == GN_OK) {
        /* Says goodbye if that needs no waiting. */
        pthread_mutex_lock(&l->lock);
        if (l->records.crypto != NULL) l->out.n = gn__record_alert(&l->records, l->records.alert, l->out.p);
        else mbedtls_ssl_close_notify(&l->tls->ssl);
        pthread_mutex_unlock(&l->lock);
        gn__sock_send(l, l->out.p, l->out.n, &(gn__time_limit){ 0, 0 });
    }
    if (open && l->server) gn__linger(l);
    gn__link_destroy(l);
}

static gn_result gn__plain_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    gn__link *l = self;
    if (l->broken == GN_OK) l->broken = gn__sock_send(l, data, n, &(gn__time_limit){ timeout_ms, 0 });
    return l->broken;
}

static gn_result gn__plain_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    *out_n = 0;
    return max == 0 ? GN_BAD_ARGUMENT : gn__sock_recv(self, data, max, out_n, gn__after(timeout_ms), false);
}

static gn_result gn__link_wait_any(void *const *selves, size_t n, uint32_t timeout_ms) {
    struct pollfd p[64];
    uint64_t deadline = gn__after(timeout_ms);
    if (n == 0 || n > sizeof p / sizeof *p) return GN_BAD_ARGUMENT;
    for (size_t i = 0; i < n; i++) p[i] = (struct pollfd){ ((const gn__link *)selves[i])->fd, POLLIN, 0 };
    for (;;) {
        int k = poll(p, (nfds_t)n, gn__left_ms(deadline));
        if (k > 0) return GN_OK;
        if (k == 0 || errno != EINTR) return k == 0 ? GN_TIMEOUT : GN_IO_ERROR;
    }
}

static const gn_transport_i gn__plain_i = {
    .send = gn__plain_send,
    .recv = gn__plain_recv,
    .interrupt = gn__link_interrupt,
    .close = gn__link_close,
    .info = gn__link_info,
    .wait_any = gn__link_wait_any,
    .state = gn__link_state,
};

static bool gn__is_loopback(const struct sockaddr_storage *sa) {
    if (sa->ss_family == AF_UNIX) return true;
    if (sa->ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, sa, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (sa->ss_family != AF_INET6) return false;
    struct sockaddr_in6 v6;
    memcpy(&v6, sa, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
}

static gn_result gn__net_plain(int fd, gn_transport *out) {
    struct sockaddr_storage here, there;
    socklen_t hn = sizeof here, tn = sizeof there;
    gn__link *l = NULL;
    gn_result r = GN_OK;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    out->i = NULL;
    out->self = NULL;
    if (getsockname(fd, (struct sockaddr *)&here, &hn) != 0 || getpeername(fd, (struct sockaddr *)&there, &tn) != 0)
        r = GN_BAD_ARGUMENT;
    else if (!gn__is_loopback(&here) || !gn__is_loopback(&there)) r = GN_INSECURE;
    else if (!gn__fd_prepare(fd)) r = GN_IO_ERROR;
    if (r == GN_OK) r = gn__link_make(fd, &l, NULL);
    if (r != GN_OK) {
        close(fd);
        return r;
    }
    gn__tcp_options(fd);
    gn__peer_text(&there, tn, l->peer);
    out->i = &gn__plain_i;
    out->self = l;
    return GN_OK;
}

/* >>tls =============================================================================================
 * mbedTLS reads from `in` and writes to `out`, both memory; the functions here move those from and to the socket. */

static int gn__bio_send(void *self, const unsigned char *p, size_t n) {
    gn__link *l = self;
    if (n > GN__OUT_MAX - l->out.n) return MBEDTLS_ERR_SSL_INTERNAL_ERROR; /* a peer that only makes us answer */
    memcpy(l->out.p + l->out.n, p, n);
    l->out.n += n;
    return (int)n;
}

static int gn__bio_recv(void *self, unsigned char *p, size_t n) {
    gn__link *l = self;
    size_t have = l->in_n - l->in_at;
    if (have == 0) return MBEDTLS_ERR_SSL_WANT_READ;
    if (n > have) n = have;
    memcpy(p, l->in + l->in_at, n);
    l->in_at += n;
    return (int)n;
}

/* Receives more behind what is not taken yet, which is less than a record. */
static gn_result gn__fill(gn__link *l, uint64_t deadline) {
    size_t rest = l->in_n - l->in_at, more = 0;
    if (rest > 0) memmove(l->in, l->in + l->in_at, rest);
    gn_result r = gn__sock_recv(l, l->in + rest, l->in_room - rest, &more, deadline, l->much_down > GN__MUCH);
    l->in_at = 0;
    l->in_n = rest + more;
    return r;
}

static gn_result gn__flush(gn__link *l, uint64_t deadline) {
    pthread_mutex_lock(&l->lock);
    gn__buffer full = l->out;
    l->out = l->fly;
    l->fly = full;
    pthread_mutex_unlock(&l->lock);
    gn_result r = gn__sock_send(l, l->fly.p, l->fly.n, &(gn__time_limit){ 0, deadline });
    l->fly.n = 0;
    return r;
}

/* A key that has encrypted all that it may, and a peer that takes no other. */
static gn_result gn__worn(gn__link *l) {
    gn_logf(l->log.fn, l->log.user, GN_LOG_ERROR,
            "the key of the connection with %s has encrypted %llu records, all that is safe with %s, and the peer "
            "takes no new one: connect again",
            l->peer, (unsigned long long)gn__key_records, l->cipher);
    return GN_TLS_FAILED;
}

/* New keys, if the present ones have done their work or the peer wants others. */
static gn_result gn__renew(gn__link *l, gn__buffer *out) {
    gn__records *r = &l->records;
    bool asked = atomic_load_explicit(&r->renew, memory_order_relaxed) && atomic_exchange(&r->renew, false);
    if (!asked && r->up.number < r->key_records) return GN_OK;
    if (!asked && !r->renews) return gn__worn(l);
    size_t made = gn__record_renew(r, out->p + out->n);
    out->n += made;
    return made > 0 ? GN_OK : GN_TLS_FAILED;
}

/* Fills the batch with records. How many of the n bytes were taken. */
static gn_result gn__seal(gn__link *l, gn__buffer *out, const uint8_t *p, size_t n, size_t *out_taken) {
    gn__records *r = &l->records;
    *out_taken = 0;
    out->n = 0;
    if (atomic_load_explicit(&r->decline, memory_order_relaxed) && atomic_exchange(&r->decline, false))
        out->n = gn__record_alert(r, GN__NO_RENEGOTIATION, out->p);
    /* a record, and a change of keys before it */
    while (*out_taken < n && out->n <= GN__OUT_MAX - 2 * GN__RECORD_ROOM) {
        gn_result e = gn__renew(l, out);
        if (e != GN_OK) return e;
        size_t k = n - *out_taken < r->payload ? n - *out_taken : r->payload,
               made = gn__record_seal(r, GN__DATA, p + *out_taken, k, out->p + out->n);
        if (made == 0) return GN_TLS_FAILED;
        out->n += made;
        *out_taken += k;
    }
    return GN_OK;
}

/* Encrypts until the batch is full; how many of the n bytes were taken, or an mbedTLS error. */
static gn_result gn__encrypt(gn__link *l, const uint8_t *p, size_t n, size_t *out_taken) {
    *out_taken = 0;
    for (bool full = false; *out_taken < n && !full;) {
        if (l->sealed++ >= l->most_sealed) return gn__worn(l);
        pthread_mutex_lock(&l->lock);
        int k = mbedtls_ssl_write(&l->tls->ssl, p + *out_taken, n - *out_taken);
        full = l->out.n >= GN__OUT_BATCH;
        pthread_mutex_unlock(&l->lock);
        if (k <= 0) return GN_TLS_FAILED;
        *out_taken += (size_t)k;
    }
    return GN_OK;
}

/* The next batch of a large send. */
static gn_result gn__seal_large(gn__link *l, gn__buffer *out, const uint8_t *p, size_t n, size_t *out_taken) {
    uint64_t begin = gn_now_us();
    gn_result r = gn__seal(l, out, p, n, out_taken);
    gn__link_spent(l, GN__SPENT_SEALING, gn_now_us() - begin);
    return r;
}

/* The same as gn__records_send for what is large, or comes behind what is. */
static gn_result gn__records_send_large(gn__link *l, const uint8_t *p, size_t n, bool beside, gn__time_limit *time) {
    for (bool first = true; n > 0 && l->broken == GN_OK; first = false) {
        size_t taken = 0;
        gn__turn *turn = beside ? gn__send_turn(l, time) : NULL;
        gn__buffer *out = turn != NULL ? &turn->b : &l->out;
        if (l->broken == GN_OK) l->broken = gn__seal_large(l, out, p, n, &taken);
        if (turn != NULL) gn__send_beside(l, turn, time->ms, first);
        else if (l->broken == GN_OK) l->broken = gn__sock_send_large(l, out->p, out->n, time);
        p += taken;
        n -= taken;
    }
    return l->broken;
}

static gn_result gn__records_send(gn__link *l, const uint8_t *p, size_t n, gn__time_limit *time) {
    bool beside = gn__sends_beside(l, n);
    if (l->broken == GN_OK) l->broken = (gn_result)atomic_load(&l->sending.result);
    if (beside || n >= GN__LARGE) return gn__records_send_large(l, p, n, beside, time);
    while (n > 0 && l->broken == GN_OK) {
        size_t taken;
        l->broken = gn__seal(l, &l->out, p, n, &taken);
        if (l->broken == GN_OK) l->broken = gn__sock_send(l, l->out.p, l->out.n, time);
        p += taken;
        n -= taken;
    }
    return l->broken;
}

static gn_result gn__tls_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    gn__link *l = self;
    const uint8_t *p = data;
    gn__time_limit time = { timeout_ms, 0 };
    if (l->version[0] == 0) return GN_TLS_FAILED; /* no handshake yet: nothing may leave in the clear */
    if (l->records.crypto != NULL) return gn__records_send(l, p, n, &time);
    while (n > 0 && l->broken == GN_OK) {
        size_t taken;
        l->broken = gn__encrypt(l, p, n, &taken);
        if (l->broken == GN_OK) l->broken = gn__flush(l, gn__due(&time));
        p += taken;
        n -= taken;
    }
    return l->broken;
}

/* More ciphertext, by the helper or without it. */
static gn_result gn__records_fill(gn__link *l, uint64_t deadline) {
    if (l->receiving.uses) {
        gn_result r = gn__receive_turn(l);
        if (r != GN_TIMEOUT) return r;
    }
    gn_result r = gn__fill(l, deadline);
    l->much_down = r == GN_OK && l->in_n >= GN__GULP ? l->much_down + l->in_n : 0;
    if (gn__helper_wanted(l, 2, l->much_down > GN__MUCH)) gn__receive_beside(l);
    return r;
}

/* gn__records_open, of which as much as a large send is timed. */
static gn_result gn__records_open_timed(gn__link *l, uint8_t *data, size_t max, size_t *out_n) {
    bool large = l->in_n >= GN__LARGE;
    uint64_t begin = large ? gn_now_us() : 0;
    gn_result r = gn__records_open(&l->records, l->in, &l->in_at, l->in_n, data, max, out_n);
    if (large) gn__link_spent(l, GN__SPENT_OPENING, gn_now_us() - begin);
    return r;
}

static gn_result gn__records_recv(gn__link *l, uint8_t *data, size_t max, size_t *out_n, uint64_t deadline) {
    for (;;) {
        if (atomic_load(&l->stopped)) return GN_DISCONNECTED;
        gn_result r = gn__records_open_timed(l, data, max, out_n);
        if (r == GN_OK && *out_n == 0) r = gn__records_fill(l, deadline);
        /* what was sent beside is lost: nobody may send again, and learn it */
        if (r == GN_TIMEOUT && atomic_load(&l->sending.result) != GN_OK) return GN_DISCONNECTED;
        if (r != GN_OK || *out_n > 0) return r;
    }
}

static gn_result gn__tls_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    gn__link *l = self;
    uint64_t deadline = gn__after(timeout_ms);
    *out_n = 0;
    if (l->version[0] == 0) return GN_TLS_FAILED;
    if (max == 0) return GN_BAD_ARGUMENT;
    if (l->records.crypto != NULL) return gn__records_recv(l, data, max, out_n, deadline);
    while (l->ended == GN_OK) {
        if (atomic_load(&l->stopped)) return GN_DISCONNECTED;
        pthread_mutex_lock(&l->lock);
        int k = mbedtls_ssl_read(&l->tls->ssl, data, max);
        pthread_mutex_unlock(&l->lock);
        if (k > 0) {
            *out_n = (size_t)k;
            return GN_OK;
        }
        if (k == 0 || k == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY) return l->ended = GN_DISCONNECTED;
#if defined(MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET)
        if (k == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) continue;
#endif
        if (k != MBEDTLS_ERR_SSL_WANT_READ) return l->ended = GN_TLS_FAILED;
        gn_result r = gn__fill(l, deadline);
        if (r != GN_OK) return r;
    }
    return l->ended;
}

static void gn__tls_renew(void *self) { ((gn__link *)self)->records.renews = true; }

/* Called by mbedTLS for each certificate of the peer's chain, the peer's own last (depth 0). With a pin the key decides
   and nothing else; otherwise mbedTLS's own verdict stands. */
static int gn__verify(void *self, mbedtls_x509_crt *crt, int depth, uint32_t *flags) {
    gn__link *l = self;
    if (depth == 0) {
        gn__key_pin(crt, l->peer_key);
        l->peer_key_seen = true;
    }
    if (!l->use_pin) return 0;
    *flags = 0;
    if (depth > 0 || gn__same(l->peer_key, l->pin, GN__PIN)) return 0;
    l->pin_wrong = true;
    return MBEDTLS_ERR_X509_FATAL_ERROR;
}

/* ECDHE and an AEAD, and nothing else. Most processors are faster with AES; mbedTLS alone with ChaCha20-Poly1305, whose
   keys do not wear out either, so an end without libcrypto wants that: its client offers nothing else, its server,
   whose order counts in 1.2 but not in 1.3, has AES in 1.2 alone. So two Genie peers agree on AES-GCM only where both
   can change its keys. */
#if defined(GN__TLS_MAX)
#define GN__CHACHA_13 MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256,
#define GN__AES_13 MBEDTLS_TLS1_3_AES_128_GCM_SHA256, MBEDTLS_TLS1_3_AES_256_GCM_SHA384,
#else
#define GN__CHACHA_13
#define GN__AES_13
#endif
#define GN__CHACHA_12 \
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
#define GN__AES_12                                                                                  \
    MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, \
        MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
static const int gn__suites_stock_client[] = { GN__CHACHA_13 GN__CHACHA_12 0 };
static const int gn__suites_stock_server[] = { GN__CHACHA_13 GN__CHACHA_12 GN__AES_12 0 };
static const int gn__suites_chacha[] = { GN__CHACHA_13 GN__AES_13 GN__CHACHA_12 GN__AES_12 0 };
static const int gn__suites_aes[] = { GN__AES_13 GN__CHACHA_13 GN__AES_12 GN__CHACHA_12 0 };

static const int *gn__suites(const gn__crypto *c, bool server) {
    if (c == NULL) return server ? gn__suites_stock_server : gn__suites_stock_client;
    return c->aes_faster ? gn__suites_aes : gn__suites_chacha;
}

static gn_result gn__tls_buffers(gn__link *l, gn_fault *f) {
    l->in = gn_alloc(GN__IN_BYTES);
    l->out.p = gn_alloc(GN__OUT_MAX);
    l->fly.p = gn_alloc(GN__OUT_MAX);
    l->in_room = GN__IN_BYTES;
    return l->in && l->out.p && l->fly.p ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a connection's buffers");
}

/* What client and server have in common; certificates are loaded before, ssl_setup follows. */
static gn_result gn__tls_config(gn__link *l, int endpoint, gn_fault *f) {
    gn__tls *t = l->tls;
    gn_result r = gn__crypto_resolve(l->log, f);
    if (r != GN_OK) return r;
    l->crypto = gn__crypto_use();
    if (mbedtls_ssl_config_defaults(&t->conf, endpoint, MBEDTLS_SSL_TRANSPORT_STREAM, MBEDTLS_SSL_PRESET_DEFAULT) != 0)
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    gn__tls_limits(&t->conf);
    mbedtls_ssl_conf_ciphersuites(&t->conf, gn__suites(l->crypto, endpoint == MBEDTLS_SSL_IS_SERVER));
    mbedtls_ssl_conf_rng(&t->conf, mbedtls_ctr_drbg_random, &t->rng);
#if defined(MBEDTLS_SSL_RENEGOTIATION)
    mbedtls_ssl_conf_renegotiation(&t->conf, MBEDTLS_SSL_RENEGOTIATION_DISABLED);
#endif
#if defined(MBEDTLS_SSL_SESSION_TICKETS)
    if (endpoint == MBEDTLS_SSL_IS_CLIENT)
        mbedtls_ssl_conf_session_tickets(&t->conf, MBEDTLS_SSL_SESSION_TICKETS_DISABLED);
#endif
    mbedtls_ssl_conf_verify(&t->conf, gn__verify, l);
    if (t->ca.raw.len > 0) mbedtls_ssl_conf_ca_chain(&t->conf, &t->ca, NULL);
    if (t->own.raw.len > 0 && mbedtls_ssl_conf_own_cert(&t->conf, &t->own, &t->key) != 0)
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    return GN_OK;
}

static gn_result gn__tls_start(gn__link *l, gn_fault *f) {
    if (l->crypto != NULL) gn__keys_wanted_of(&l->tls->conf, &l->keys);
    if (mbedtls_ssl_setup(&l->tls->ssl, &l->tls->conf) != 0) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    if (l->crypto != NULL) gn__keys_wanted(&l->tls->ssl, &l->keys);
    mbedtls_ssl_set_bio(&l->tls->ssl, l, gn__bio_send, gn__bio_recv, NULL);
    return GN_OK;
}

/* Why a handshake ended with e. */
static gn_result gn__tls_refused(gn__link *l, int e, gn_fault *f) {
    char buf[200], hex[2 * GN__PIN + 1];
    if (l->pin_wrong) {
        gn__hex(l->peer_key, GN__PIN, hex);
        return gn_fail(f, GN_BAD_PIN,
                       "%s has another key than the pinned one (it has %s). If the server was set up again, connect "
                       "with its new URL; otherwise somebody may be intercepting the connection",
                       l->address, hex);
    }
    gn__tls_text(e, buf, sizeof buf);
    if (e == MBEDTLS_ERR_X509_CERT_VERIFY_FAILED && !l->server)
        return gn_fail(f, GN_TLS_FAILED,
                       "the certificate of %s does not verify for that name with the authorities of GENIE_CA: use its "
                       "URL with a pin, or the right authorities",
                       l->address);
    if (e == MBEDTLS_ERR_SSL_ALLOC_FAILED) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    if (l->server) return gn_fail(f, GN_TLS_FAILED, "the TLS handshake with %s failed: %s", l->peer, buf);
    return gn_fail(f, GN_TLS_FAILED,
                   "the TLS handshake with %s failed: %s. Is it a Genie server, and is a client certificate needed "
                   "(GENIE_CERT, GENIE_KEY)?",
                   l->address, buf);
}

/* After the handshake: libcrypto takes over and mbedTLS forgets its keys, or mbedTLS goes on. */
static gn_result gn__tls_over(gn__link *l, gn_fault *f) {
    if (gn__records_make(&l->records, l->crypto, &l->keys, &l->tls->ssl, l->server)) {
        gn__tls_destroy(l->tls);
        gn_free(l->fly.p);
        l->tls = NULL;
        l->fly.p = NULL;
        return GN_OK;
    }
    int aead = gn__suite_aead(mbedtls_ssl_get_ciphersuite_id(l->cipher));
    l->most_sealed = aead == GN__CHACHA20_POLY1305 ? UINT64_MAX : gn__key_records;
    if (l->crypto == NULL) return GN_OK;
    if (gn__crypto_preferred() != NULL)
        return gn_fail(f, GN_UNSUPPORTED,
                       "GENIE_AEAD asks for libcrypto, and mbedTLS does not hand over the keys of %s", l->cipher);
    gn_logf(l->log.fn, l->log.user, GN_LOG_WARN,
            "TLS records by mbedTLS, many times slower: it does not hand over the keys of %s", l->cipher);
    return GN_OK;
}

/* Goes on with what has come. GN_TIMEOUT: it is the peer's turn, and the deadline is over (0: nothing is waited
   for). */
static gn_result gn__tls_handshake(gn__link *l, uint64_t deadline, gn_fault *f) {
    const char *who = l->server ? l->peer : l->address;
    for (;;) {
        int e = mbedtls_ssl_handshake(&l->tls->ssl);
        gn_result r = gn__flush(l, deadline != 0 ? deadline : gn__after(GN__FLUSH_MS)); /* an alert too */
        if (e != 0 && e != MBEDTLS_ERR_SSL_WANT_READ) return gn__tls_refused(l, e, f);
        if (r != GN_OK && l->server)
            return gn_fail(f, GN_TLS_FAILED, "%s does not take the answers of the TLS handshake", who);
        if (e == 0 && r == GN_OK) break;
        if (r == GN_OK) r = gn__fill(l, deadline);
        if (r == GN_TIMEOUT) return gn_fail(f, r, "%s did not complete the TLS handshake in time", who);
        if (r != GN_OK)
            return gn_fail(f, GN_TLS_FAILED, "%s closed the connection during the TLS handshake: is it a Genie peer?",
                           who);
    }
    if (l->use_pin && (!l->peer_key_seen || !gn__same(l->peer_key, l->pin, GN__PIN)))
        return gn_fail(f, GN_BAD_PIN, "%s showed no key", who);
    snprintf(l->version, sizeof l->version, "%s", mbedtls_ssl_get_version(&l->tls->ssl));
    snprintf(l->cipher, sizeof l->cipher, "%s", mbedtls_ssl_get_ciphersuite(&l->tls->ssl));
    gn_result r = gn__tls_over(l, f);
    mbedtls_platform_zeroize(&l->keys, sizeof l->keys);
    return r;
}

/* >>proof ===========================================================================================
 * proof: version 1, flags, [id 16, secret 32] if flags & 1, [code 16] if flags & 2
 * grant: version 1, id 16, secret 32 */

enum { GN__PROOF_CREDENTIAL = 1, GN__PROOF_CODE = 2, GN__GRANT_BYTES = 1 + GN__ID + GN__SECRET };

typedef struct gn__proof {
    uint8_t flags;
    uint8_t id[GN__ID], secret[GN__SECRET], code[GN__CODE];
} gn__proof;

static size_t gn__proof_write(const gn__proof *p, uint8_t out[256]) {
    uint8_t *at = out;
    *at++ = 1;
    *at++ = p->flags;
    if (p->flags & GN__PROOF_CREDENTIAL) {
        memcpy(at, p->id, GN__ID);
        memcpy(at + GN__ID, p->secret, GN__SECRET);
        at += GN__ID + GN__SECRET;
    }
    if (p->flags & GN__PROOF_CODE) {
        memcpy(at, p->code, GN__CODE);
        at += GN__CODE;
    }
    return (size_t)(at - out);
}

static bool gn__proof_read(const uint8_t *p, size_t n, gn__proof *out) {
    memset(out, 0, sizeof *out);
    if (n < 2 || p[0] != 1 || p[1] > (GN__PROOF_CREDENTIAL | GN__PROOF_CODE)) return false;
    out->flags = p[1];
    bool credential = (out->flags & GN__PROOF_CREDENTIAL) != 0, code = (out->flags & GN__PROOF_CODE) != 0;
    size_t c = credential ? GN__ID + GN__SECRET : 0;
    if (n != 2 + c + (code ? GN__CODE : 0)) return false;
    if (credential) {
        memcpy(out->id, p + 2, GN__ID);
        memcpy(out->secret, p + 2 + GN__ID, GN__SECRET);
    }
    if (code) memcpy(out->code, p + 2 + c, GN__CODE);
    return true;
}

static size_t gn__client_auth(void *self, uint8_t out[256]) {
    gn__link *l = self;
    size_t n = l->proof_n;
    memcpy(out, l->proof, n);
    gn_wipe(l->proof, sizeof l->proof); /* it is told once */
    l->proof_n = 0;
    return n;
}

static gn_result gn__client_granted(void *self, const uint8_t *grant, size_t n) {
    gn__link *l = self;
    gn_fault fault;
    char value[2 * (GN__PIN + GN__ID + GN__SECRET) + 3];
    if (n != GN__GRANT_BYTES || grant[0] != 1) return GN_BAD_MESSAGE;
    gn__hex(l->peer_key, GN__PIN, value);
    value[2 * GN__PIN] = ' ';
    gn__hex(grant + 1, GN__ID, value + 2 * GN__PIN + 1);
    value[2 * (GN__PIN + GN__ID) + 1] = ' ';
    gn__hex(grant + 1 + GN__ID, GN__SECRET, value + 2 * (GN__PIN + GN__ID) + 2);
    gn_result r = gn__store_put(l->home, "servers", l->address, value, &fault);
    mbedtls_platform_zeroize(value, sizeof value);
    if (r != GN_OK)
        gn_logf(l->log.fn, l->log.user, GN_LOG_ERROR, "the credential for %s cannot be stored: %s", l->address,
                fault.text);
    return r;
}

static const gn_transport_i gn__client_i = {
    .send = gn__tls_send,
    .recv = gn__tls_recv,
    .interrupt = gn__link_interrupt,
    .close = gn__link_close,
    .info = gn__link_info,
    .auth = gn__client_auth,
    .granted = gn__client_granted,
    .renew = gn__tls_renew,
    .wait_any = gn__link_wait_any,
    .state = gn__link_state,
};

/* A line of the file `servers` behind its address: pin, id and secret. */
static bool gn__credential_parse(const char *v, uint8_t pin[GN__PIN], gn__proof *p) {
    size_t a = 2 * GN__PIN, b = a + 1 + 2 * GN__ID;
    return strlen(v) == b + 1 + 2 * GN__SECRET && v[a] == ' ' && v[b] == ' ' && gn__unhex(v, a, pin, GN__PIN) &&
           gn__unhex(v + a + 1, 2 * GN__ID, p->id, GN__ID) &&
           gn__unhex(v + b + 1, 2 * GN__SECRET, p->secret, GN__SECRET);
}

/* The credential stored for an address. */
static gn_result gn__credential(const char *home, const char *address, uint8_t pin[GN__PIN], gn__proof *p,
                                bool *out_found, gn_fault *f) {
    char v[256];
    *out_found = false;
    gn_result r = gn__home_check(home, f);
    if (r == GN_OK) r = gn__store_get(home, "servers", address, v, sizeof v, out_found, f);
    if (r != GN_OK || !*out_found) return r;
    bool good = gn__credential_parse(v, pin, p);
    gn_wipe(v, sizeof v);
    return good ? GN_OK
                : gn_fail(f, GN_IO_ERROR, "the line of %s in %s/servers is damaged: remove it and pair again", address,
                          home);
}

/* >>lookup ==========================================================================================
 * getaddrinfo knows no deadline, so it runs in a thread of its own that may outlive the wait for it. */

typedef struct gn__lookup {
    atomic_int users; /* the waiter and the thread */
    int ready[2];     /* a pipe: one byte when done */
    int error;
    struct addrinfo *list;
    char host[GN__HOST], port[8];
} gn__lookup;

static void gn__lookup_leave(gn__lookup *k) {
    if (atomic_fetch_sub(&k->users, 1) > 1) return;
    if (k->list != NULL) freeaddrinfo(k->list);
    close(k->ready[0]);
    close(k->ready[1]);
    gn_free(k);
}

static int gn__lookup_now(gn__lookup *k, int flags) {
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    k->error = getaddrinfo(k->host, k->port, &hints, &k->list);
    if (k->error != 0) k->list = NULL;
    return k->error;
}

static void *gn__lookup_thread(void *arg) {
    gn__lookup *k = arg;
    gn__lookup_now(k, 0);
    while (write(k->ready[1], "", 1) < 0 && errno == EINTR) { }
    gn__lookup_leave(k);
    return NULL;
}

static gn_result gn__lookup_make(const char *host, uint16_t port, gn__lookup **out) {
    gn__lookup *k = gn_alloc(sizeof *k);
    *out = NULL;
    if (k == NULL) return GN_OUT_OF_MEMORY;
    memset(k, 0, sizeof *k);
    atomic_init(&k->users, 1);
    if (pipe(k->ready) != 0) {
        gn_free(k);
        return GN_IO_ERROR;
    }
    fcntl(k->ready[0], F_SETFD, FD_CLOEXEC);
    fcntl(k->ready[1], F_SETFD, FD_CLOEXEC);
    snprintf(k->host, sizeof k->host, "%s", host);
    snprintf(k->port, sizeof k->port, "%u", (unsigned)port);
    *out = k;
    return GN_OK;
}

/* Resolves in a thread; GN_TIMEOUT leaves the thread to itself. */
static gn_result gn__lookup_wait(gn__lookup *k, uint64_t deadline) {
    pthread_t thread;
    char byte;
    atomic_fetch_add(&k->users, 1);
    if (pthread_create(&thread, NULL, gn__lookup_thread, k) != 0) {
        atomic_fetch_sub(&k->users, 1);
        return GN_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    gn_result r = gn__wait(k->ready[0], POLLIN, deadline);
    if (r != GN_OK) return r;
    return read(k->ready[0], &byte, 1) == 1 ? GN_OK : GN_IO_ERROR;
}

/* Finds the addresses of a host. On GN_OK *out is left with gn__lookup_leave. */
static gn_result gn__find(const char *host, uint16_t port, uint64_t deadline, gn__lookup **out, gn_fault *f) {
    gn__lookup *k;
    gn_result r = gn__lookup_make(host, port, &k);
    *out = NULL;
    if (r != GN_OK) return gn_fail(f, r, "no memory or file handle to look up %s", host);
    if (gn__lookup_now(k, AI_NUMERICHOST) != 0) r = gn__lookup_wait(k, deadline);
    if (r == GN_OK && k->error == 0) {
        *out = k;
        return GN_OK;
    }
    if (r == GN_OK)
        r = gn_fail(f, GN_UNREACHABLE, "the host %s is not known (%s): check its name", host, gai_strerror(k->error));
    else if (r == GN_TIMEOUT)
        gn_fail(f, r, "looking up the host %s took too long: check the name and the network", host);
    else gn_fail(f, r, "no thread to look up %s", host);
    gn__lookup_leave(k);
    return r;
}

/* >>client ==========================================================================================*/

/* 0 and a connected socket, or an errno. */
static int gn__dial_one(const struct addrinfo *a, uint64_t deadline, int *out_fd) {
    int fd = gn__socket(a->ai_family), e = 0;
    if (fd < 0) return errno;
    gn__tcp_options(fd);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS && errno != EINTR) e = errno;
    if (e == 0) {
        socklen_t n = sizeof e;
        if (gn__wait(fd, POLLOUT, deadline) != GN_OK) e = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n) != 0) e = errno;
    }
    if (e != 0) {
        close(fd);
        return e;
    }
    *out_fd = fd;
    return 0;
}

/* Tries each address; each has its share of the time that is left. */
static gn_result gn__dial(const gn__url *u, uint64_t deadline, int *out_fd, char peer[96], gn_fault *f) {
    gn__lookup *k;
    gn_result r = gn__find(u->host, u->port, deadline, &k, f);
    if (r != GN_OK) return r;
    unsigned left = 0;
    int e = EHOSTUNREACH;
    for (struct addrinfo *a = k->list; a != NULL; a = a->ai_next) left++;
    for (struct addrinfo *a = k->list; a != NULL; a = a->ai_next, left--) {
        uint64_t now = gn_now_us();
        if (now >= deadline) {
            e = ETIMEDOUT;
            break;
        }
        e = gn__dial_one(a, now + (deadline - now) / left, out_fd);
        if (e != 0) continue;
        struct sockaddr_storage sa;
        memcpy(&sa, a->ai_addr, a->ai_addrlen);
        gn__peer_text(&sa, a->ai_addrlen, peer);
        break;
    }
    gn__lookup_leave(k);
    if (e == 0) return GN_OK;
    if (e == ETIMEDOUT)
        return gn_fail(f, GN_TIMEOUT, "%s does not answer: check the address, the network and any firewall",
                       u->address);
    if (e == ECONNREFUSED)
        return gn_fail(f, GN_UNREACHABLE, "nothing listens on %s: start genie_serve there, or check the port",
                       u->address);
    return gn_fail(f, GN_UNREACHABLE, "%s cannot be reached: %s", u->address, strerror(e));
}

/* The first line of a file or of standard input; no NUL, no more than a URL. */
static gn_result gn__first_line(gn__bytes file, char out[GN__URL_MAX], gn_fault *f, const char *what) {
    size_t n = 0;
    while (n < file.n && file.p[n] != '\n') n++;
    if (n > 0 && file.p[n - 1] == '\r') n--;
    if (n >= GN__URL_MAX || memchr(file.p, 0, n) != NULL)
        return gn_fail(f, GN_BAD_ARGUMENT, "the first line of %s is not a URL", what);
    memcpy(out, file.p, n);
    out[n] = 0;
    return GN_OK;
}

static gn_result gn__where_file(const char *path, const gn_net_desc *d, char out[GN__URL_MAX], gn_fault *f) {
    gn__bytes file;
    gn__file_facts facts;
    int e = gn__read_file(path, 64u << 10, &file, &facts);
    if (e != 0) return gn_fail(f, GN_IO_ERROR, "cannot read a URL from %s: %s", path, strerror(e));
    if (facts.mode & 077u)
        gn_logf(d->log, d->log_user, GN_LOG_WARN, "%s may hold a secret and may be read by others: chmod 600 it", path);
    gn_result r = gn__first_line(file, out, f, path);
    gn__forget(&file);
    return r;
}

static gn_result gn__where_stdin(char out[GN__URL_MAX], gn_fault *f) {
    char line[GN__URL_MAX + 2];
    if (fgets(line, sizeof line, stdin) == NULL) return gn_fail(f, GN_BAD_ARGUMENT, "no URL came on standard input");
    gn__bytes text = { (uint8_t *)line, strlen(line) };
    gn_result r = gn__first_line(text, out, f, "standard input");
    mbedtls_platform_zeroize(line, sizeof line);
    return r;
}

/* Turns what a user wrote into an address. */
static gn_result gn__where(const char *where, const gn_net_desc *d, gn__url *u, gn_fault *f) {
    char text[GN__URL_MAX];
    gn_result r = GN_OK;
    if (where == NULL) return gn_fail(f, GN_BAD_ARGUMENT, "no server is named");
    if (where[0] == '@') r = gn__where_file(where + 1, d, text, f);
    else if (strcmp(where, "-") == 0) r = gn__where_stdin(text, f);
    else if (strlen(where) < sizeof text) memcpy(text, where, strlen(where) + 1);
    else r = gn_fail(f, GN_BAD_ARGUMENT, "the address is too long");
    if (r != GN_OK) return r;
    const char *wrong = gn__parse_url(text, u);
    mbedtls_platform_zeroize(text, sizeof text);
    if (wrong == NULL) return GN_OK;
    return gn_fail(
        f, GN_BAD_ARGUMENT,
        "the server's address is not valid: %s. Give genie://HOST:PORT?pin=...&code=..., HOST:PORT, @FILE or -", wrong);
}

static const char *gn__env(const char *name) {
    const char *v = getenv(name);
    return v != NULL && *v != 0 ? v : NULL;
}

static gn_result gn__read_pem(const char *path, gn__bytes *out, gn__file_facts *out_facts, gn_fault *f) {
    int e = gn__read_file(path, GN__FILE_MAX, out, out_facts);
    return e == 0 ? GN_OK : gn_fail(f, GN_IO_ERROR, "cannot read %s: %s", path, strerror(e));
}

/* Our certificate, if the environment names one. */
static gn_result gn__client_cert(gn__tls *t, gn_fault *f) {
    const char *cert = gn__env("GENIE_CERT"), *key = gn__env("GENIE_KEY");
    gn__bytes c = { NULL, 0 }, k = { NULL, 0 };
    gn__file_facts facts;
    if (cert == NULL && key == NULL) return GN_OK;
    if (cert == NULL || key == NULL)
        return gn_fail(f, GN_BAD_ARGUMENT, "GENIE_CERT and GENIE_KEY go together: set both or none");
    gn_result r = gn__read_pem(cert, &c, &facts, f);
    if (r == GN_OK) r = gn__read_pem(key, &k, &facts, f);
    if (r == GN_OK) r = gn__load_pair(t, &k, &c, f);
    gn__forget(&c);
    gn__forget(&k);
    return r;
}

static gn_result gn__client_ca(gn__tls *t, gn_fault *f) {
    const char *ca = gn__env("GENIE_CA");
    gn__bytes b = { NULL, 0 };
    gn__file_facts facts;
    if (ca == NULL) return GN_OK;
    gn_result r = gn__read_pem(ca, &b, &facts, f);
    if (r == GN_OK) r = gn__load_ca(t, &b, f);
    gn__forget(&b);
    return r;
}

/* Decides by what the server is known (l->pin or the authorities) and what we prove ourselves with (l->proof). */
static gn_result gn__client_trust(gn__link *l, const gn__url *u, gn_fault *f) {
    gn__proof p;
    uint8_t pin[GN__PIN];
    bool stored = false;
    memset(&p, 0, sizeof p);
    gn_result r = gn__credential(l->home, u->address, pin, &p, &stored, f);
    if (r != GN_OK) return r;
    if (u->has_pin || stored) {
        l->use_pin = true;
        memcpy(l->pin, u->has_pin ? u->pin : pin, GN__PIN);
    }
    if (!l->use_pin && l->tls->ca.raw.len == 0)
        return gn_fail(f, GN_INSECURE,
                       "%s is not a server known here: connect once with the URL that it printed "
                       "(genie://...?pin=...&code=...), or set GENIE_CA to its authorities",
                       u->address);
    /* A credential goes to no key but the one it was granted by. */
    if (stored && gn__same(l->pin, pin, GN__PIN)) p.flags |= GN__PROOF_CREDENTIAL;
    if (u->has_code) p.flags |= GN__PROOF_CODE;
    memcpy(p.code, u->code, GN__CODE);
    if (p.flags == 0 && l->tls->own.raw.len == 0)
        r = gn_fail(f, GN_BAD_CREDENTIAL,
                    "there is no code in the URL and no stored credential for %s: get a new URL from the server",
                    u->address);
    l->proof_n = gn__proof_write(&p, l->proof);
    mbedtls_platform_zeroize(&p, sizeof p);
    return r;
}

static gn_result gn__client_tls(gn__link *l, const gn__url *u, uint64_t deadline, gn_fault *f) {
    gn_result r = gn__tls_config(l, MBEDTLS_SSL_IS_CLIENT, f);
    if (r == GN_OK) r = gn__tls_buffers(l, f);
    if (r != GN_OK) return r;
    mbedtls_ssl_conf_authmode(&l->tls->conf, l->use_pin ? MBEDTLS_SSL_VERIFY_OPTIONAL : MBEDTLS_SSL_VERIFY_REQUIRED);
    r = gn__tls_start(l, f);
    if (r != GN_OK) return r;
    if (mbedtls_ssl_set_hostname(&l->tls->ssl, l->use_pin ? NULL : u->host) != 0)
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for TLS");
    return gn__tls_handshake(l, deadline, f);
}

static gn_result gn__client_open(gn__link *l, const gn__url *u, const gn_net_desc *d, gn_fault *f) {
    uint64_t deadline = gn__after(d->timeout_ms != 0 ? d->timeout_ms : GN__CONNECT_MS);
    l->log.fn = d->log;
    l->log.user = d->log_user;
    snprintf(l->address, sizeof l->address, "%s", u->address);
    gn_result r = gn__home_path(d->home, l->home, f);
    if (r == GN_OK) r = gn__tls_make(&l->tls, f);
    if (r == GN_OK) r = gn__client_cert(l->tls, f);
    if (r == GN_OK) r = gn__client_ca(l->tls, f);
    if (r == GN_OK) r = gn__client_trust(l, u, f);
    if (r == GN_OK) r = gn__dial(u, deadline, &l->fd, l->peer, f);
    if (r == GN_OK) r = gn__client_tls(l, u, deadline, f);
    return r;
}

static gn_result gn__net_connect(const char *where, const gn_net_desc *d, gn_transport *out, char out_device[64],
                                 gn_fault *f) {
    static const gn_net_desc none;
    gn__url u;
    gn__link *l = NULL;
    if (d == NULL) d = &none;
    out->i = NULL;
    out->self = NULL;
    out_device[0] = 0;
    gn_result r = gn__where(where, d, &u, f);
    if (r == GN_OK) r = gn__link_make(-1, &l, f);
    if (r == GN_OK) r = gn__client_open(l, &u, d, f);
    if (r == GN_OK) {
        memcpy(out_device, u.device, sizeof u.device);
        out->i = &gn__client_i;
        out->self = l;
        l->known = true;
    } else if (l != NULL) {
        gn__link_destroy(l);
    }
    mbedtls_platform_zeroize(&u, sizeof u);
    return r;
}

/* >>listener ========================================================================================
 * Links refer to their listener: close them before unlisten. `lock` guards the code and the URL. */

#define GN__URLS 64 /* a URL that was given out stays readable until that many newer ones exist */

enum gn__spent { GN__CODE_UNKNOWN, GN__CODE_USED, GN__CODE_EXPIRED };

typedef struct gn__old_code {
    uint8_t hash[32];
    uint8_t how;
} gn__old_code;
typedef struct gn__guest {
    uint8_t id[GN__ID], hash[32];
} gn__guest;
typedef struct gn__failures {
    uint8_t network[GN__NETWORK];
    uint32_t n;
    uint64_t last_us;
} gn__failures;

enum { GN__OLD_CODES = 64, GN__GUESTS = 1024, GN__FAILURES = 256 };

struct gn__listener {
    int fd, url_fd; /* url_fd: the URL file, locked; -1: none */
    uint16_t port, url_port;
    gn__log log;
    gn__bytes key, cert, ca; /* PEM; ca.p NULL: clients prove themselves with codes and credentials */
    uint8_t pin[GN__PIN];
    char home[GN__PATH], url_file[GN__PATH], url_host[GN__HOST + 2];
    uint64_t code_life_us;
    pthread_mutex_t lock; /* of what follows, to the next comment */
    uint8_t code[GN__CODE];
    bool code_valid;
    uint64_t code_ends_us;
    unsigned url_at;
    char urls[GN__URLS][GN__URL_MAX];
    uint8_t admin_code[GN__CODE];
    bool admin_valid; /* until it is used, or as old as a code may be */
    uint64_t admin_ends_us;
    char admin_file[GN__PATH];
    gn__old_code old_codes[GN__OLD_CODES]; /* rings: the latest replace the oldest */
    gn__guest guests[GN__GUESTS];
    unsigned old_code_at, guest_at;
    gn__failures failures[GN__FAILURES];
    /* strangers: of the thread that accepts */
    gn__link **strangers;
    struct pollfd *polls;           /* of each stranger, then of fd */
    uint32_t n, limit, at;          /* of 2 * limit places; [at, n) have not had their turn since the latest look */
    uint32_t arrivals;              /* connections that may still be taken from the queue before the next look */
    uint64_t wait_us, closed_until; /* for a stranger; nobody is accepted before */
};

/* ---- who failed to prove who it is ---- */

enum { GN__FAILURE_MS = 50, GN__FAILURES_MOST_MS = 2000 };
#define GN__FAILURE_LIFE_US (600u * UINT64_C(1000000))

/* An IPv6 peer commands a whole network of 64 bits. */
static void gn__network_of(const struct sockaddr_storage *sa, uint8_t out[GN__NETWORK]) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memset(out, 0, GN__NETWORK);
    memcpy(&v4, sa, sizeof v4);
    memcpy(&v6, sa, sizeof v6);
    if (sa->ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        memcpy(out, v6.sin6_addr.s6_addr, GN__NETWORK);
    else if (sa->ss_family == AF_INET6) memcpy(out + 4, v6.sin6_addr.s6_addr + 12, 4);
    else if (sa->ss_family == AF_INET) memcpy(out + 4, &v4.sin_addr, 4);
}

/* Where the failures of a network are counted; for one that has none the place whose last is longest ago. */
static gn__failures *gn__failures_of(gn__listener *l, const uint8_t network[GN__NETWORK]) {
    gn__failures *oldest = l->failures;
    for (gn__failures *x = l->failures; x < l->failures + GN__FAILURES; x++) {
        if (x->n > 0 && memcmp(x->network, network, GN__NETWORK) == 0) return x;
        if (x->last_us < oldest->last_us) oldest = x;
    }
    return oldest;
}

/* A success forgives. */
static void gn__failure_note(gn__listener *l, const uint8_t network[GN__NETWORK], bool failed) {
    pthread_mutex_lock(&l->lock);
    gn__failures *x = gn__failures_of(l, network);
    bool known = x->n > 0 && memcmp(x->network, network, GN__NETWORK) == 0;
    if (failed) {
        x->n = known && gn_now_us() - x->last_us < GN__FAILURE_LIFE_US ? x->n + (x->n < UINT32_MAX) : 1;
        x->last_us = gn_now_us();
        memcpy(x->network, network, GN__NETWORK);
    } else if (known) {
        memset(x, 0, sizeof *x);
    }
    pthread_mutex_unlock(&l->lock);
}

/* How long a new connection waits before it is looked at: twice as long after each failure, at most 2 s. It delays
   others at that address too, and keeps nobody out. */
static uint64_t gn__failures_delay_us(gn__listener *l, const uint8_t network[GN__NETWORK]) {
    pthread_mutex_lock(&l->lock);
    const gn__failures *x = gn__failures_of(l, network);
    bool fresh =
        x->n > 0 && memcmp(x->network, network, GN__NETWORK) == 0 && gn_now_us() - x->last_us < GN__FAILURE_LIFE_US;
    uint32_t n = fresh ? x->n : 0;
    pthread_mutex_unlock(&l->lock);
    uint32_t ms = n == 0 ? 0u : n > 6 ? (uint32_t)GN__FAILURES_MOST_MS : (uint32_t)GN__FAILURE_MS << (n - 1);
    return (uint64_t)ms * 1000u;
}

/* ---- codes and credentials ----
 * What a code or a credential was is told only to a peer that has it: the 128 or 256 bits of a code used up, or of a
 * credential revoked, are compared first. Whoever guesses hears the same of every guess and learns nothing. */

static gn_result gn__not_accepted(gn_fault *f) {
    return gn_fail(f, GN_BAD_CREDENTIAL,
                   "not accepted: neither a credential nor a pairing code that this server knows. Use its current URL; "
                   "a code pairs one client, once");
}

/* The code in the URL file of a server that handed over, whose URL somebody may hold, and how long it is still good. */
static bool gn__keep_code(gn__listener *l, uint64_t *out_left_us) {
    gn__bytes file = { NULL, 0 };
    gn__url *u = gn_alloc(sizeof *u);
    gn__file_facts st;
    bool good = u != NULL && l->url_file[0] != 0 && gn__read_file(l->url_file, GN__URL_MAX, &file, &st) == 0 &&
                file.n > 1 && file.n < GN__URL_MAX;
    if (good) {
        uint64_t age = st.age_s * UINT64_C(1000000);
        file.p[file.n - 1] = 0; /* the line's end */
        good = age < l->code_life_us && gn__parse_url((const char *)file.p, u) == NULL && u->has_code && u->has_pin &&
               memcmp(u->pin, l->pin, GN__PIN) == 0;
        if (good) *out_left_us = l->code_life_us - age;
    }
    if (good) memcpy(l->code, u->code, GN__CODE);
    if (u != NULL) gn_wipe(u, sizeof *u);
    gn_free(u);
    gn__forget(&file);
    return good;
}

/* Whether the URL file belongs to a server that runs: that holds a lock on it. The caller holds the lock of the home
   folder. */
static bool gn__url_file_in_use(const char *path) {
    for (int tries = 0; tries < 16; tries++) {
        struct stat mine, there;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return false;
        bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && gn__again(errno);
        bool same = fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
                    mine.st_dev == there.st_dev;
        close(fd);
        if (taken || same) return taken; /* otherwise it was replaced meanwhile */
    }
    return true;
}

static gn_result gn__write_url(gn__listener *l, gn_fault *f) {
    char line[GN__URL_MAX + 1];
    int fd = -1,
        e = gn__write_file(l->url_file, line, (size_t)snprintf(line, sizeof line, "%s\n", l->urls[l->url_at]), &fd);
    gn_wipe(line, sizeof line);
    if (e != 0) return gn_fail(f, GN_IO_ERROR, "cannot write the URL file %s: %s", l->url_file, strerror(e));
    if (l->url_fd >= 0) close(l->url_fd);
    l->url_fd = fd;
    return GN_OK;
}

/* Makes a new code and URL, in memory and in the URL file. Called under the lock, or before anybody else knows l. */
static gn_result gn__new_code(gn__listener *l, bool keep, gn_fault *f) {
    char pin[44], code[23];
    uint64_t left = l->code_life_us;
    l->code_valid = false;
    if (!(keep && gn__keep_code(l, &left)) && gn__random(l->code, GN__CODE) != GN_OK)
        return gn_fail(f, GN_TLS_FAILED, "no random numbers from the system for a pairing code");
    unsigned next = (l->url_at + 1) % GN__URLS;
    gn__b64(l->pin, GN__PIN, pin);
    gn__b64(l->code, GN__CODE, code);
    const char *form = l->ca.p == NULL ? "genie://%s:%u?pin=%s&code=%s" : "genie://%s:%u?pin=%s";
    snprintf(l->urls[next], GN__URL_MAX, form, l->url_host, (unsigned)l->url_port, pin, code);
    gn_wipe(code, sizeof code);
    l->url_at = next;
    l->code_ends_us = gn_now_us() + left;
    l->code_valid = l->ca.p == NULL;
    return l->url_file[0] == 0 ? GN_OK : gn__write_url(l, f);
}

static bool gn__same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* A URL whose code pairs one administrator, in a file of its own. */
static gn_result gn__admin_code_make(gn__listener *l, gn_fault *f) {
    char pin[44], code[23], line[GN__URL_MAX + 1];
    if (l->admin_file[0] == 0) return GN_OK;
    if (l->ca.p != NULL)
        return gn_fail(f, GN_BAD_ARGUMENT,
                       "with your own PKI there are no pairing codes: name administrators in %s/clients", l->home);
    if (gn__same_file(l->admin_file, l->url_file))
        return gn_fail(f, GN_BAD_ARGUMENT,
                       "the URLs of clients and of an administrator cannot share %s: give --admin a file of its own",
                       l->admin_file);
    if (gn__random(l->admin_code, GN__CODE) != GN_OK)
        return gn_fail(f, GN_TLS_FAILED, "no random numbers from the system for a pairing code");
    gn__b64(l->pin, GN__PIN, pin);
    gn__b64(l->admin_code, GN__CODE, code);
    int n =
        snprintf(line, sizeof line, "genie://%s:%u?pin=%s&code=%s\n", l->url_host, (unsigned)l->url_port, pin, code);
    int e = gn__write_file(l->admin_file, line, (size_t)n, NULL);
    gn_wipe(code, sizeof code);
    gn_wipe(line, sizeof line);
    if (e != 0)
        return gn_fail(f, GN_IO_ERROR, "cannot write the administrator's URL to %s: %s", l->admin_file, strerror(e));
    l->admin_valid = true;
    l->admin_ends_us = gn_now_us() + l->code_life_us;
    return GN_OK;
}

/* Uses up the administrator's code if that is what was given; its file is removed then. */
static bool gn__admin_code_use(gn__listener *l, const gn__proof *p) {
    pthread_mutex_lock(&l->lock);
    bool good = p->flags & GN__PROOF_CODE && l->admin_valid && gn_now_us() < l->admin_ends_us &&
                gn__same(p->code, l->admin_code, GN__CODE);
    if (good) {
        l->admin_valid = false;
        gn_wipe(l->admin_code, GN__CODE);
        unlink(l->admin_file);
    }
    pthread_mutex_unlock(&l->lock);
    return good;
}

/* The first code, and the URL file becomes ours. */
static gn_result gn__first_code(gn__listener *l, bool keep, gn_fault *f) {
    int lock = -1;
    gn_result r = l->url_file[0] != 0 ? gn__home_lock(l->home, &lock, f) : GN_OK;
    if (r == GN_OK && lock >= 0 && gn__url_file_in_use(l->url_file))
        r = gn_fail(
            f, GN_BAD_ARGUMENT,
            "the URL file %s belongs to another server that is running: give this one a file of its own (--url-file)",
            l->url_file);
    if (r == GN_OK) r = gn__new_code(l, keep, f);
    if (lock >= 0) close(lock);
    return r;
}

/* A code that was used or is too old is replaced; failure to do so is only logged: the server goes on without pairing.
   What it was is remembered as a hash, to tell somebody who still has it. */
static void gn__replace_code(gn__listener *l, enum gn__spent how, const char *why) {
    gn_fault f;
    gn__old_code *old = &l->old_codes[l->old_code_at++ % GN__OLD_CODES];
    gn__net_sha256(l->code, GN__CODE, old->hash);
    old->how = (uint8_t)how;
    if (gn__new_code(l, false, &f) != GN_OK)
        gn_logf(l->log.fn, l->log.user, GN_LOG_ERROR, "%s; a new one cannot be given out: %s", why, f.text);
    else if (l->url_file[0] != 0)
        gn_logf(l->log.fn, l->log.user, GN_LOG_INFO, "%s; the next one is in %s", why, l->url_file);
    else gn_logf(l->log.fn, l->log.user, GN_LOG_INFO, "%s; a new one was made", why);
}

static void gn__code_check(gn__listener *l) {
    pthread_mutex_lock(&l->lock);
    if (l->code_valid && gn_now_us() >= l->code_ends_us)
        gn__replace_code(l, GN__CODE_EXPIRED, "the pairing code expired");
    pthread_mutex_unlock(&l->lock);
}

/* Uses up the code if that is what was given. A wrong one changes nothing: nobody guesses 128 bits. */
static gn_result gn__consume_code(gn__listener *l, const uint8_t code[GN__CODE], const char *peer, gn_fault *f) {
    uint8_t hash[32];
    enum gn__spent how = GN__CODE_UNKNOWN;
    gn__net_sha256(code, GN__CODE, hash);
    pthread_mutex_lock(&l->lock);
    bool good = l->code_valid && gn_now_us() < l->code_ends_us && gn__same(code, l->code, GN__CODE);
    if (good) gn__replace_code(l, GN__CODE_USED, "the pairing code was used");
    for (int i = 0; i < GN__OLD_CODES && !good; i++)
        if (l->old_codes[i].how != GN__CODE_UNKNOWN && gn__same(hash, l->old_codes[i].hash, sizeof hash))
            how = (enum gn__spent)l->old_codes[i].how;
    if (!good && l->code_valid && gn__same(code, l->code, GN__CODE)) how = GN__CODE_EXPIRED;
    pthread_mutex_unlock(&l->lock);
    if (good) return GN_OK;
    const char *what = how == GN__CODE_USED ? "a used" : how == GN__CODE_EXPIRED ? "an expired" : "a wrong";
    gn_logf(l->log.fn, l->log.user, GN_LOG_WARN, "%s pairing code from %s", what, peer);
    if (how == GN__CODE_UNKNOWN) return gn__not_accepted(f);
    return gn_fail(f, GN_BAD_CREDENTIAL,
                   how == GN__CODE_USED
                       ? "this pairing code was used: each pairs one client, once. Use the server's current URL"
                       : "this pairing code has expired. Use the server's current URL");
}

/* Whom we let in, to tell such a client later that it was revoked. */
static void gn__guest_note(gn__listener *l, const uint8_t id[GN__ID], const uint8_t hash[32]) {
    pthread_mutex_lock(&l->lock);
    gn__guest *g = l->guests;
    while (g < l->guests + GN__GUESTS && memcmp(g->id, id, GN__ID) != 0) g++;
    if (g == l->guests + GN__GUESTS) g = &l->guests[l->guest_at++ % GN__GUESTS];
    memcpy(g->id, id, GN__ID);
    memcpy(g->hash, hash, sizeof g->hash);
    pthread_mutex_unlock(&l->lock);
}

static bool gn__guest_known(gn__listener *l, const uint8_t id[GN__ID], const uint8_t hash[32]) {
    bool known = false;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < GN__GUESTS && !known; i++)
        known = memcmp(l->guests[i].id, id, GN__ID) == 0 && gn__same(hash, l->guests[i].hash, sizeof l->guests[i].hash);
    pthread_mutex_unlock(&l->lock);
    return known;
}

/* Grants a credential. The server keeps only the hash of its secret. */
static gn_result gn__grant(gn__listener *l, bool admin, const char *peer, char out_tenant[64], uint8_t out_grant[256],
                           size_t *out_n, gn_fault *f) {
    uint8_t hash[32];
    char digest[sizeof " admin" + 64];
    gn_fault fault;
    gn_result r = gn__random(out_grant + 1, GN__ID + GN__SECRET);
    if (r != GN_OK) return gn_fail(f, r, "the server has no random numbers for a credential");
    out_grant[0] = 1;
    gn__hex(out_grant + 1, GN__ID, out_tenant);
    gn__net_sha256(out_grant + 1 + GN__ID, GN__SECRET, hash);
    gn__hex(hash, sizeof hash, digest);
    if (admin) memcpy(digest + 64, " admin", sizeof " admin");
    r = gn__store_put(l->home, "clients", out_tenant, digest, &fault);
    if (r != GN_OK) {
        gn_logf(l->log.fn, l->log.user, GN_LOG_ERROR, "the client at %s cannot be paired: %s", peer, fault.text);
        gn_wipe(out_grant, GN__GRANT_BYTES);
        out_tenant[0] = 0;
        return gn_fail(f, r, "the server cannot store the credential; its log says why");
    }
    gn__guest_note(l, out_grant + 1, hash);
    gn_logf(l->log.fn, l->log.user, GN_LOG_INFO, "paired with the %s at %s, named %s",
            admin ? "administrator" : "client", peer, out_tenant);
    *out_n = GN__GRANT_BYTES;
    return GN_OK;
}

/* The digest of a line of `clients`; what follows it says what the client may. */
static bool gn__client_hash(const char *value, uint8_t out[32]) {
    return gn__unhex(value, strcspn(value, " "), out, 32);
}

/* Whether the line of id in `clients` stands behind a '#'. */
static bool gn__marked_revoked(gn__listener *l, const char *id, const uint8_t hash[32]) {
    uint8_t known[32];
    char key[2 * GN__ID + 2], value[80];
    bool found = false;
    snprintf(key, sizeof key, "#%s", id);
    return gn__store_get(l->home, "clients", key, value, sizeof value, &found, NULL) == GN_OK && found &&
           gn__client_hash(value, known) && gn__same(hash, known, sizeof known);
}

/* GN_OK when the credential is one of ours; the file is read each time, so that a removed line counts at once. */
static gn_result gn__check_credential(gn__listener *l, const gn__proof *p, const char *peer, char out_tenant[64],
                                      gn_fault *f) {
    uint8_t hash[32], known[32];
    char id[2 * GN__ID + 1], value[80];
    bool found = false;
    gn_fault fault;
    gn__hex(p->id, GN__ID, id);
    gn_result r = gn__store_get(l->home, "clients", id, value, sizeof value, &found, &fault);
    if (r != GN_OK) {
        gn_logf(l->log.fn, l->log.user, GN_LOG_ERROR, "no credential can be checked: %s", fault.text);
        return gn_fail(f, r, "the server cannot read its list of clients; its log says why");
    }
    gn__net_sha256(p->secret, GN__SECRET, hash);
    if (found && gn__client_hash(value, known) && gn__same(hash, known, sizeof known)) {
        gn__guest_note(l, p->id, hash);
        memcpy(out_tenant, id, sizeof id);
        return GN_OK;
    }
    bool revoked = gn__guest_known(l, p->id, hash) || gn__marked_revoked(l, id, hash);
    gn_logf(l->log.fn, l->log.user, GN_LOG_WARN, "a credential from %s %s", peer,
            revoked ? "is revoked" : "is not known");
    return revoked ? gn_fail(f, GN_BAD_CREDENTIAL,
                             "this client's credential was revoked: pair again with a URL from the server")
                   : gn__not_accepted(f);
}

static const gn_transport_i gn__server_i = {
    .send = gn__tls_send,
    .recv = gn__tls_recv,
    .interrupt = gn__link_interrupt,
    .close = gn__link_close,
    .info = gn__link_info,
    .renew = gn__tls_renew,
    .state = gn__link_state,
};

/* An administrator's code, else the credential, else the code. A spent code says more than an unknown credential. */
static gn_result gn__check_proof(gn__listener *l, const gn__proof *p, const char *peer, char out_tenant[64],
                                 uint8_t out_grant[256], size_t *out_grant_n, gn_fault *f) {
    gn_result r = gn__not_accepted(f);
    if (gn__admin_code_use(l, p)) return gn__grant(l, true, peer, out_tenant, out_grant, out_grant_n, f);
    if (p->flags & GN__PROOF_CREDENTIAL) r = gn__check_credential(l, p, peer, out_tenant, f);
    if (r != GN_BAD_CREDENTIAL || !(p->flags & GN__PROOF_CODE)) return r;
    r = gn__consume_code(l, p->code, peer, f);
    return r == GN_OK ? gn__grant(l, false, peer, out_tenant, out_grant, out_grant_n, f) : r;
}

/* What tells one state of `clients` from another. */
static uint64_t gn__net_clients(void *listener) {
    gn__listener *l = listener;
    char path[GN__PATH];
    struct stat st;
    if (l->ca.p != NULL || gn__join(path, l->home, "clients", NULL) != GN_OK || stat(path, &st) != 0) return 0;
    uint64_t h = (uint64_t)st.st_ino * 0x9e3779b97f4a7c15u + (uint64_t)st.st_size;
#if defined(__APPLE__)
    h = h * 31 + (uint64_t)st.st_mtimespec.tv_sec * 1000000000u + (uint64_t)st.st_mtimespec.tv_nsec;
#else
    h = h * 31 + (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
#endif
    return h;
}

/* Of clients with certificates there is no list. */
static bool gn__net_stays(void *listener, const char *tenant) {
    gn__listener *l = listener;
    char value[80];
    bool found = false;
    if (l->ca.p != NULL) return true;
    gn_result r = gn__store_get(l->home, "clients", tenant, value, sizeof value, &found, NULL);
    gn_wipe(value, sizeof value);
    return r != GN_OK || found;
}

static bool gn__net_admin(void *listener, const char *tenant) {
    gn__listener *l = listener;
    char value[80];
    bool found = false;
    if (gn__store_get(l->home, "clients", tenant, value, sizeof value, &found, NULL) != GN_OK || !found) return false;
    const char *word = l->ca.p != NULL ? value : value + strcspn(value, " ");
    bool admin = strcmp(word, l->ca.p != NULL ? "admin" : " admin") == 0;
    gn_wipe(value, sizeof value);
    return admin;
}

static gn_result gn__net_authenticate(void *listener, gn_transport t, const uint8_t *auth, size_t n,
                                      char out_tenant[64], uint8_t out_grant[256], size_t *out_grant_n, gn_fault *f) {
    gn__listener *l = listener;
    gn__link *k = t.self;
    gn__proof p;
    out_tenant[0] = 0;
    *out_grant_n = 0;
    if (t.i != &gn__server_i || k->listener != l || k->version[0] == 0)
        return gn_fail(f, GN_INSECURE, "a connection without TLS proves nothing");
    if (l->ca.p != NULL) {
        if (!k->peer_key_seen) return gn_fail(f, GN_BAD_CREDENTIAL, "the client showed no certificate");
        gn__b64(k->peer_key, GN__PIN, out_tenant);
        k->known = true;
        return GN_OK;
    }
    gn_result r = gn__proof_read(auth, n, &p) ? gn__check_proof(l, &p, k->peer, out_tenant, out_grant, out_grant_n, f)
                                              : gn__not_accepted(f);
    gn_wipe(&p, sizeof p);
    gn__failure_note(l, k->network, r == GN_BAD_CREDENTIAL);
    k->known = r == GN_OK;
    return r;
}

/* Our own key and certificate, made at the first start. The caller holds the lock of the home folder. */
static gn_result gn__own_identity(gn__listener *l, gn__tls *t, gn_fault *f) {
    char key[GN__PATH], cert[GN__PATH];
    gn_result r = gn__join(key, l->home, "key.pem", f);
    if (r == GN_OK) r = gn__join(cert, l->home, "cert.pem", f);
    if (r == GN_OK) r = gn__read_secret(key, &l->key, f);
    if (r == GN_OK) r = gn__read_secret(cert, &l->cert, f);
    if (r != GN_OK) return r;
    const char *wrote = l->key.p == NULL ? key : cert;
    int e = 0;
    if (l->key.p == NULL) {
        r = gn__make_key(t, &l->key, f);
        if (r == GN_OK) e = gn__write_file(key, l->key.p, l->key.n, NULL);
        gn__forget(&l->cert); /* of a key that is gone */
    }
    if (r == GN_OK && e == 0 && l->cert.p == NULL) {
        r = gn__make_cert(t, &l->key, &l->cert, f);
        if (r == GN_OK) e = gn__write_file(cert, l->cert.p, l->cert.n, NULL);
    }
    if (e != 0) r = gn_fail(f, GN_IO_ERROR, "cannot write %s: %s", wrote, strerror(e));
    return r;
}

static gn_result gn__given_identity(gn__listener *l, const gn_server_desc *d, gn_fault *f) {
    gn__file_facts facts, ignored;
    gn_result r = gn__read_pem(d->key, &l->key, &facts, f);
    if (r == GN_OK) r = gn__read_pem(d->cert, &l->cert, &ignored, f);
    if (r == GN_OK && facts.mode & 077u)
        gn_logf(l->log.fn, l->log.user, GN_LOG_WARN, "the key %s may be read by others: chmod 600 it", d->key);
    return r;
}

/* Finds or makes who we are, and checks it once: handshakes parse the same bytes again. */
static gn_result gn__identity(gn__listener *l, const gn_server_desc *d, gn_fault *f) {
    gn__file_facts facts;
    int lock = -1;
    gn__tls *t = NULL;
    if ((d->key == NULL) != (d->cert == NULL))
        return gn_fail(f, GN_BAD_ARGUMENT, "key and cert go together: give both or none");
    gn_result r = gn__home_path(d->home, l->home, f);
    if (r == GN_OK) r = gn__home_make(l->home, f);
    if (r == GN_OK) r = gn__tls_make(&t, f);
    if (r == GN_OK && d->key == NULL) r = gn__home_lock(l->home, &lock, f);
    if (r == GN_OK) r = d->key != NULL ? gn__given_identity(l, d, f) : gn__own_identity(l, t, f);
    if (lock >= 0) close(lock);
    if (r == GN_OK) {
        r = gn__load_pair(t, &l->key, &l->cert, f);
        if (r != GN_OK && d->key == NULL)
            gn_fail(f, r,
                    "key.pem and cert.pem in %s are not a key and its certificate: remove cert.pem, or both (then "
                    "every client must pair again)",
                    l->home);
    }
    if (r == GN_OK) gn__key_pin(&t->own, l->pin);
    if (r == GN_OK && d->ca != NULL) r = gn__read_pem(d->ca, &l->ca, &facts, f);
    if (r == GN_OK && d->ca != NULL) r = gn__load_ca(t, &l->ca, f);
    gn__tls_destroy(t);
    return r;
}

static gn_result gn__bind_error(const char *where, int e, gn_fault *f) {
    if (e == EADDRINUSE)
        return gn_fail(f, GN_PORT_IN_USE,
                       "%s is in use: stop the program that listens there, or choose another port (0 picks a free one)",
                       where);
    if (e == EADDRNOTAVAIL) return gn_fail(f, GN_IO_ERROR, "%s is not an address of this machine", where);
    if (e == EACCES) return gn_fail(f, GN_IO_ERROR, "this user may not listen on %s: choose a port above 1023", where);
    return gn_fail(f, GN_IO_ERROR, "cannot listen on %s: %s", where, strerror(e));
}

static int gn__bind(const struct addrinfo *a, int *out_fd) {
    int on = 1, off = 0, fd = gn__socket(a->ai_family);
    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        int e = errno;
        close(fd);
        return e;
    }
    *out_fd = fd;
    return 0;
}

/* What goes into the URL: what the caller says clients know us by; else the address, of a wildcard this machine's
   name. */
static gn_result gn__name_url_host(gn__listener *l, const char *host, const char *advertise, gn_fault *f) {
    char name[GN__HOST] = "";
    const char *p = advertise;
    bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    l->url_port = l->port;
    if (advertise != NULL) {
        const char *wrong = gn__parse_host(&p, name);
        if (wrong == NULL && name[0] == 0) wrong = "it has no host";
        if (wrong == NULL) wrong = gn__parse_port(&p, &l->url_port, false);
        if (wrong == NULL && *p != 0) wrong = "it holds a character that does not belong there";
        if (wrong != NULL)
            return gn_fail(
                f, GN_BAD_ARGUMENT,
                "the address to advertise is not valid: %s. Give HOST or HOST:PORT as clients reach this server",
                wrong);
    } else if (any) {
        if (gethostname(name, sizeof name - 1) != 0 || name[0] == 0) snprintf(name, sizeof name, "localhost");
        gn_logf(l->log.fn, l->log.user, GN_LOG_WARN,
                "the URL names this server %s, as this machine is called; if clients know it by another name or "
                "address, give that (--advertise)",
                name);
    } else {
        snprintf(name, sizeof name, "%s", host);
    }
    snprintf(l->url_host, sizeof l->url_host, strchr(name, ':') != NULL ? "[%s]" : "%s", name);
    return GN_OK;
}

static gn_result gn__open_socket(gn__listener *l, const char *host, const char *text, gn_fault *f) {
    gn__lookup *k;
    gn_result r = gn__find(host, l->port, gn__after(GN__CONNECT_MS), &k, f);
    if (r != GN_OK) return r;
    int e = EADDRNOTAVAIL;
    for (struct addrinfo *a = k->list; a != NULL && l->fd < 0; a = a->ai_next) e = gn__bind(a, &l->fd);
    gn__lookup_leave(k);
    return l->fd < 0 ? gn__bind_error(text, e, f) : GN_OK;
}

/* A socket that another process listened on. */
static gn_result gn__adopt_socket(gn__listener *l, int fd, gn_fault *f) {
    int listens = 0, flags = fcntl(fd, F_GETFL);
    socklen_t n = sizeof listens;
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) != 0 || !listens)
        return gn_fail(f, GN_BAD_ARGUMENT, "descriptor %d is not a listening socket", fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return gn_fail(f, GN_IO_ERROR, "descriptor %d: %s", fd, strerror(errno));
    l->fd = fd;
    return GN_OK;
}

static gn_result gn__listen_socket(gn__listener *l, const gn_server_desc *d, gn_fault *f) {
    char host[GN__HOST], text[GN__ADDRESS];
    int fd = d->listen_fd;
    const char *wrong = gn__parse_listen(d->listen, host, &l->port);
    if (wrong != NULL)
        return gn_fail(f, GN_BAD_ARGUMENT,
                       "the address to listen on is not valid: %s. Give HOST:PORT, such as 127.0.0.1:5556", wrong);
    snprintf(text, sizeof text, "%s:%u", host, (unsigned)l->port);
    gn_result r = fd > 0 ? gn__adopt_socket(l, fd, f) : gn__open_socket(l, host, text, f);
    if (r != GN_OK) return r;
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    if (getsockname(l->fd, (struct sockaddr *)&sa, &n) != 0) return gn__bind_error(text, errno, f);
    struct sockaddr_in v4;
    memcpy(&v4, &sa, sizeof v4); /* the port stands at the same place in v4 and v6 */
    l->port = ntohs(v4.sin_port);
    return gn__name_url_host(l, host, d->advertise, f);
}

/* >>strangers =======================================================================================
 * Connections that have not said who they are. One thread looks after all of them and waits for none; a stranger gets a
 * thread and the server's attention when its handshake is over and its first record has come. Before its first record
 * is here as a whole it costs a descriptor and 3 KiB, from then on about 60 KiB (TLS).
 *
 * From `limit` strangers on one is closed for each that comes: first those that have said nothing, then those whose
 * first record is unfinished, then those that have long left a handshake where it was, of each kind the one that has
 * waited longest. One that advances is never closed, and each kind has its time limit: who is only slow is not
 * cut. At twice the limit nobody is accepted until one may be closed; the system's queue holds the others. */

enum gn__stage { GN__SAID_NOTHING, GN__SAID_PART, GN__SHAKING, GN__SHAKEN, GN__STAGE__COUNT };
static const uint32_t gn__wait_limit_ms[GN__STAGE__COUNT] = { 100, 1000, 3000, 3000 };

/* the limit, without many sessions; with them */
enum { GN__STRANGERS_LEAST = 8, GN__STRANGERS = 256, GN__STRANGERS_MOST = 2048 };
enum { GN__DESCRIPTORS_OTHER = 64 }; /* that are neither sessions nor strangers */
enum { GN__FULL_MS = 20, GN__NO_DESCRIPTOR_MS = 50, GN__POLL_MS = 100 };
enum { GN__ARRIVALS = 64 }; /* connections taken from the queue between two looks at those that are here */

/* As many may come at once as may be served, within the descriptors of this process. */
static uint32_t gn__stranger_limit(const gn_server_desc *d, gn__log log) {
    struct rlimit r;
    uint32_t sessions = d->max_sessions != 0 ? d->max_sessions : 64,
             limit = sessions > GN__STRANGERS ? sessions : GN__STRANGERS;
    if (limit > GN__STRANGERS_MOST) limit = GN__STRANGERS_MOST;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return limit;
    uint64_t all = (uint64_t)r.rlim_cur, other = (uint64_t)sessions + GN__DESCRIPTORS_OTHER;
    uint64_t half = all > other ? (all - other) / 2 : 0;
    if (half < GN__STRANGERS_LEAST)
        gn_logf(log.fn, log.user, GN_LOG_WARN,
                "%u sessions need more than the %llu descriptors that this process may open: raise the limit (ulimit "
                "-n) or lower --max-sessions",
                (unsigned)sessions, (unsigned long long)all);
    if (half < GN__STRANGERS_LEAST) half = GN__STRANGERS_LEAST;
    return half < limit ? (uint32_t)half : limit;
}

static gn_result gn__strangers_make(gn__listener *l, const gn_server_desc *d, gn_fault *f) {
    l->limit = gn__stranger_limit(d, l->log);
    l->wait_us = (uint64_t)(d->deadline_ms != 0 ? d->deadline_ms : GN__CONNECT_MS) * 1000u;
    l->strangers = gn_alloc(2 * l->limit * sizeof *l->strangers);
    l->polls = gn_alloc((2 * l->limit + 1) * sizeof *l->polls);
    return l->strangers && l->polls ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a server");
}

static gn__link *gn__stranger_remove(gn__listener *l, uint32_t at) {
    gn__link *k = l->strangers[at];
    l->n--;
    l->strangers[at] = l->strangers[l->n];
    l->polls[at] = l->polls[l->n];
    return k;
}

/* Who waits for its peer longest, in the least stage; UINT32_MAX: nobody may be closed. */
static uint32_t gn__stranger_last(const gn__listener *l, bool hurry) {
    uint64_t now = gn_now_us();
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < l->n; i++) {
        const gn__link *k = l->strangers[i], *best = found < l->n ? l->strangers[found] : NULL;
        bool at_once = hurry && k->stage <= GN__SAID_PART;
        if (l->polls[i].revents != 0 || (!at_once && now - k->moved_us < gn__wait_limit_ms[k->stage] * 1000u)) continue;
        if (best == NULL || k->stage < best->stage || (k->stage == best->stage && k->moved_us < best->moved_us))
            found = i;
    }
    return found;
}

/* The one to close for another, UINT32_MAX: none. In a hurry, when there are no descriptors, silence counts from the
   first moment. Something may have come since the latest look: who has spoken stays. */
static uint32_t gn__stranger_victim(gn__listener *l, bool hurry) {
    for (;;) {
        uint32_t at = gn__stranger_last(l, hurry);
        if (at >= l->n) return at;
        struct pollfd now = { l->strangers[at]->fd, POLLIN, 0 };
        if (poll(&now, 1, 0) <= 0 || now.revents == 0 || l->strangers[at]->held_us > gn_now_us()) return at;
        l->polls[at].revents = now.revents;
        l->at = 0;
    }
}

/* Closes without waiting. What the peer still sent is taken first: bytes unread would reset the connection, and an
   alert be lost. */
static void gn__stranger_close(gn__link *k) {
    uint8_t waste[4096];
    for (int i = 0; i < 8 && recv(k->fd, waste, sizeof waste, 0) == (ssize_t)sizeof waste; i++) { }
    gn__link_destroy(k);
}

static gn_result gn__stranger_cut(gn__listener *l, uint32_t at, gn_fault *f) {
    static const char *const said[GN__STAGE__COUNT] = { "had said nothing", "had not finished its first record",
                                                        "had left its handshake", "had not said who it is" };
    gn__link *k = gn__stranger_remove(l, at);
    gn_fail(f, GN_LIMIT, "%s %s for %u ms, and others came", k->peer, said[k->stage],
            (unsigned)((gn_now_us() - k->moved_us) / 1000));
    gn__stranger_close(k);
    return GN_LIMIT;
}

static void gn__stranger_add(gn__listener *l, gn__link *k, const struct sockaddr_storage *sa, socklen_t n) {
    gn__tcp_options(k->fd);
    gn__peer_text(sa, n, k->peer);
    gn__network_of(sa, k->network);
    k->server = true;
    k->listener = l;
    k->log = l->log;
    k->moved_us = gn_now_us();
    k->held_us = k->moved_us + gn__failures_delay_us(l, k->network);
    k->ends_us = k->held_us + l->wait_us;
    l->strangers[l->n] = k;
    l->polls[l->n++] = (struct pollfd){ k->fd, 0, 0 };
}

/* Not every failure to accept is ours: a client that gave up meanwhile is no news. */
static bool gn__accept_later(int e) {
    return gn__again(e) || e == EINTR || e == ECONNABORTED || e == EPROTO || e == ENETDOWN || e == EHOSTUNREACH ||
           e == ENETUNREACH;
}

/* One that waits at the door. */
static gn_result gn__stranger_accept(gn__listener *l, gn_fault *f) {
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    gn__link *k;
    memset(&sa, 0, sizeof sa);
    int fd = gn__accept(l->fd, &sa, &n), e = errno;
    if (fd < 0 && gn__accept_later(e)) return GN_TIMEOUT;
    if (fd < 0) {
        uint32_t victim = gn__stranger_victim(l, true);
        if (victim < l->n) return gn__stranger_cut(l, victim, f);
        /* it stays in the queue: without a pause we would be back at once, for ever */
        l->closed_until = gn_now_us() + GN__NO_DESCRIPTOR_MS * 1000u;
        return gn_fail(f, GN_IO_ERROR, "a connection cannot be accepted: %s", strerror(e));
    }
    gn_result r = gn__link_make(fd, &k, f);
    if (r != GN_OK) {
        close(fd);
        return r;
    }
    gn__stranger_add(l, k, &sa, n);
    return GN_OK;
}

static bool gn__is_at_the_door(const gn__listener *l) {
    struct pollfd door = { l->fd, POLLIN, 0 };
    return poll(&door, 1, 0) > 0 && door.revents != 0;
}

/* Lets in who waits at the door, as far as there is room; GN_TIMEOUT: all of them, or nobody may come now. */
static gn_result gn__strangers_come(gn__listener *l, gn_fault *f) {
    gn_result r = GN_OK;
    for (; r == GN_OK && l->n < l->limit && l->arrivals > 0; l->arrivals--) r = gn__stranger_accept(l, f);
    if (r != GN_OK || l->arrivals == 0 || !gn__is_at_the_door(l)) return r != GN_OK ? r : GN_TIMEOUT;
    uint32_t victim = gn__stranger_victim(l, false);
    if (victim < l->n) return gn__stranger_cut(l, victim, f);
    if (l->n < 2 * l->limit) return (r = gn__stranger_accept(l, f)) == GN_OK ? GN_TIMEOUT : r;
    l->closed_until = gn_now_us() + GN__FULL_MS * 1000u;
    return GN_TIMEOUT;
}

/* Looks who has sent something and who waits at the door, once. */
static void gn__strangers_look(gn__listener *l, uint64_t deadline) {
    uint64_t now = gn_now_us(), end = now + GN__POLL_MS * 1000u;
    if (deadline < end) end = deadline;
    for (uint32_t i = 0; i < l->n; i++) {
        const gn__link *k = l->strangers[i];
        bool held = k->held_us > now;
        l->polls[i] = (struct pollfd){ held ? -1 : k->fd, POLLIN | GN__POLLRDHUP, 0 };
        if (held && k->held_us < end) end = k->held_us;
    }
    bool closed = l->closed_until > now;
    if (closed && l->closed_until < end) end = l->closed_until;
    l->polls[l->n] = (struct pollfd){ closed ? -1 : l->fd, POLLIN, 0 };
    bool waits = poll(l->polls, l->n + 1, gn__left_ms(end)) > 0 && l->polls[l->n].revents != 0;
    l->arrivals = waits ? GN__ARRIVALS : 0;
    l->at = 0;
}

static gn_result gn__server_tls(gn__listener *l, gn__link *k, gn_fault *f) {
    gn_result r = gn__tls_make(&k->tls, f);
    if (r == GN_OK) r = gn__load_pair(k->tls, &l->key, &l->cert, f);
    if (r == GN_OK && l->ca.p != NULL) r = gn__load_ca(k->tls, &l->ca, f);
    if (r == GN_OK) r = gn__tls_config(k, MBEDTLS_SSL_IS_SERVER, f);
    if (r == GN_OK) r = gn__tls_buffers(k, f);
    if (r != GN_OK) return r;
    k->in_room = GN__RECORD_ROOM;
    mbedtls_ssl_conf_authmode(&k->tls->conf, l->ca.p != NULL ? MBEDTLS_SSL_VERIFY_REQUIRED : MBEDTLS_SSL_VERIFY_NONE);
    return gn__tls_start(k, f);
}

/* Whether the first record lies whole in the system's buffer. Until then nothing is read and nothing is made for the
   peer. */
static gn_result gn__first_record(gn__link *k, bool ended, gn_fault *f) {
    uint8_t head[GN__HEAD];
    int have = 0;
    ssize_t n = recv(k->fd, head, sizeof head, MSG_PEEK);
    if (n < 0 && (gn__again(errno) || errno == EINTR)) return GN_TIMEOUT;
    if (n <= 0) return gn_fail(f, GN_TLS_FAILED, "%s closed the connection before it said anything", k->peer);
    int want = n < GN__HEAD ? GN__HEAD : GN__HEAD + (head[3] << 8 | head[4]);
    if (head[0] != GN__HANDSHAKE || want > GN__RECORD_ROOM)
        return gn_fail(f, GN_TLS_FAILED, "%s does not speak TLS: is it a Genie peer?", k->peer);
    if (ioctl(k->fd, FIONREAD, &have) != 0) have = 0;
    if (n < GN__HEAD && have >= GN__HEAD) return GN_TIMEOUT; /* more came meanwhile: it is looked at again */
    if (have >= want) want = 1;
    else if (ended) return gn_fail(f, GN_TLS_FAILED, "%s closed the connection within its first record", k->peer);
    if (k->stage == GN__SAID_NOTHING) k->moved_us = gn_now_us();
    k->stage = GN__SAID_PART;
    setsockopt(k->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want); /* poll does not wake us for less */
    if (want == 1) return GN_OK;
    k->held_us = gn_now_us() + GN__FULL_MS * 1000u; /* where that is not so */
    return GN_TIMEOUT;
}

static gn_result gn__stranger_shake(gn__link *k, gn_fault *f) {
    int before = k->tls->ssl.GN__SSL_FIELD(state);
    gn_result r = gn__tls_handshake(k, 0, f);
    if (r == GN_OK) k->stage = GN__SHAKEN;
    if (r == GN_OK || k->tls->ssl.GN__SSL_FIELD(state) != before) k->moved_us = gn_now_us();
    return r;
}

/* Whether the first record after the handshake has come. */
static gn_result gn__stranger_speaks(gn__link *k, gn_fault *f) {
    for (;;) {
        const uint8_t *p = k->in + k->in_at;
        size_t n = k->in_n - k->in_at;
        if (n >= GN__HEAD && (n >= GN__HEAD + ((size_t)p[3] << 8 | p[4]) || n >= GN__RECORD_ROOM)) return GN_OK;
        gn_result r = gn__fill(k, 0);
        if (r == GN_TIMEOUT) return r;
        if (r != GN_OK) return gn_fail(f, GN_DISCONNECTED, "%s left without saying who it is", k->peer);
    }
}

/* What has come is taken. GN_OK: it may be heard; GN_TIMEOUT: it is the peer's turn. */
static gn_result gn__stranger_step(gn__listener *l, gn__link *k, int seen, gn_fault *f) {
    gn_result r = GN_OK;
    if (gn_now_us() > k->ends_us)
        return gn_fail(f, GN_DISCONNECTED, "%s did not say who it is within %u ms", k->peer,
                       (unsigned)(l->wait_us / 1000));
    if (seen == 0) return GN_TIMEOUT;
    if (k->stage <= GN__SAID_PART) {
        r = gn__first_record(k, (seen & (POLLHUP | POLLERR | GN__POLLRDHUP)) != 0, f);
        if (r == GN_OK) r = gn__server_tls(l, k, f);
        if (r == GN_OK) k->stage = GN__SHAKING;
    }
    if (r == GN_OK && k->stage == GN__SHAKING) r = gn__stranger_shake(k, f);
    return r == GN_OK ? gn__stranger_speaks(k, f) : r;
}

/* What a stranger may make us hold ends here. */
static gn_transport gn__stranger_known(gn__link *k) {
    k->in_room = GN__IN_BYTES;
    return (gn_transport){ &gn__server_i, k };
}

static gn_result gn__net_accept(void *listener, uint32_t timeout_ms, gn_transport *out, gn_fault *f) {
    gn__listener *l = listener;
    uint64_t deadline = gn__after(timeout_ms);
    out->i = NULL;
    out->self = NULL;
    for (;;) {
        while (l->at < l->n) { /* what the latest look found */
            int seen = l->polls[l->at].revents;
            l->polls[l->at].revents = 0;
            gn_result r = gn__stranger_step(l, l->strangers[l->at], seen, f);
            if (r == GN_TIMEOUT) {
                l->at++;
                continue;
            }
            gn__link *k = gn__stranger_remove(l, l->at);
            if (r != GN_OK) gn__stranger_close(k);
            else *out = gn__stranger_known(k);
            return r;
        }
        gn_result r = l->arrivals > 0 ? gn__strangers_come(l, f) : GN_TIMEOUT;
        if (r != GN_OK && r != GN_TIMEOUT) return r;
        l->arrivals = 0;
        if (gn_now_us() >= deadline) return GN_TIMEOUT;
        gn__code_check(l);
        gn__strangers_look(l, deadline);
    }
}

/* >>server ==========================================================================================*/

static void gn__net_unlisten(void *listener) {
    gn__listener *l = listener;
    if (l == NULL) return;
    for (uint32_t i = 0; i < l->n; i++) gn__stranger_close(l->strangers[i]);
    gn_free(l->strangers);
    gn_free(l->polls);
    if (l->url_fd >= 0) close(l->url_fd);
    if (l->fd >= 0) close(l->fd);
    gn__forget(&l->key);
    gn__forget(&l->cert);
    gn__forget(&l->ca);
    pthread_mutex_destroy(&l->lock);
    mbedtls_platform_zeroize(l, sizeof *l);
    gn_free(l);
}

static int gn__net_handover(void *listener) { return fcntl(((gn__listener *)listener)->fd, F_DUPFD, 3); }

static gn_result gn__net_listen(const gn_server_desc *d, void **out_listener, gn_fault *f) {
    *out_listener = NULL;
    gn__listener *l = gn_alloc(sizeof *l);
    if (l == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a server");
    memset(l, 0, sizeof *l);
    l->fd = l->url_fd = -1;
    l->log.fn = d->log;
    l->log.user = d->log_user;
    l->code_life_us = (d->code_hours != 0 ? d->code_hours : GN__CODE_HOURS) * UINT64_C(3600000000);
    if (pthread_mutex_init(&l->lock, NULL) != 0) {
        gn_free(l);
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a server");
    }
    gn_result r = GN_OK;
    if (d->url_file != NULL && snprintf(l->url_file, sizeof l->url_file, "%s", d->url_file) >= GN__PATH)
        r = gn_fail(f, GN_BAD_ARGUMENT, "the path of the URL file is too long");
    if (d->admin_file != NULL && snprintf(l->admin_file, sizeof l->admin_file, "%s", d->admin_file) >= GN__PATH)
        r = gn_fail(f, GN_BAD_ARGUMENT, "the path of the administrator's URL file is too long");
    if (r == GN_OK) r = gn__crypto_resolve(l->log, f);
    if (r == GN_OK) r = gn__strangers_make(l, d, f);
    if (r == GN_OK) r = gn__listen_socket(l, d, f);
    if (r == GN_OK) r = gn__identity(l, d, f);
    if (r == GN_OK) r = gn__first_code(l, d->listen_fd > 0, f);
    if (r == GN_OK) r = gn__admin_code_make(l, f);
    if (r != GN_OK) {
        gn__net_unlisten(l);
        return r;
    }
    *out_listener = l;
    return GN_OK;
}

static const char *gn__net_url(void *listener) {
    gn__listener *l = listener;
    pthread_mutex_lock(&l->lock);
    const char *url = l->urls[l->url_at];
    pthread_mutex_unlock(&l->lock);
    return url;
}

static uint16_t gn__net_port(void *listener) { return ((gn__listener *)listener)->port; }

/* >>front ===========================================================================================
 * A listener whose connections, once they have shaken hands, are passed on to a port of this machine: a thread each. */

enum { GN__FRONT_IDLE_MS = 60000, GN__FRONT_SEND_MS = 10000, GN__FRONT_MOST = 16, GN__FRONT_SLICE_MS = 100 };

typedef struct gn__front {
    gn__listener *listener;
    uint16_t to;
    uint32_t most;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint open; /* connections that are passed on */
} gn__front;

typedef struct gn__passed {
    gn__front *front;
    gn_transport t;
} gn__passed;

static int gn__front_connect(uint16_t port) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    struct timeval most = { GN__FRONT_SEND_MS / 1000, 0 };
    int fd = gn__socket(AF_INET);
    if (fd < 0) return -1;
    bool ok = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0 &&
              setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) == 0 &&
              connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    if (!ok) close(fd);
    return ok ? fd : -1;
}

static bool gn__front_send(int fd, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno != EINTR) return false;
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return true;
}

/* What has come from the peer goes to the service. False: the end of one of them. */
static bool gn__front_up(const gn__front *front, gn_transport t, int fd, uint8_t *room, size_t cap) {
    while (!atomic_load(&front->stop)) {
        size_t n = 0;
        gn_result r = gn__tls_recv(t.self, room, cap, &n, 0);
        if (r == GN_TIMEOUT) return true;
        if (r != GN_OK || !gn__front_send(fd, room, n)) return false;
    }
    return false;
}

/* The same the other way: once. */
static bool gn__front_down(gn_transport t, int fd, uint8_t *room, size_t cap) {
    ssize_t n = recv(fd, room, cap, MSG_DONTWAIT);
    if (n < 0) return gn__again(errno) || errno == EINTR;
    return n > 0 && gn__tls_send(t.self, room, (size_t)n, GN__FRONT_SEND_MS) == GN_OK;
}

static void *gn__front_pass(void *arg) {
    gn__passed *p = arg;
    gn__front *front = p->front;
    gn_transport t = p->t;
    uint8_t room[16384];
    int fd = gn__front_connect(front->to);
    uint64_t moved = gn_now_us();
    bool good = fd >= 0 && gn__front_up(front, t, fd, room, sizeof room); /* what came with the handshake */
    while (good && !atomic_load(&front->stop) && gn_now_us() - moved < GN__FRONT_IDLE_MS * 1000u) {
        struct pollfd polls[2] = { { ((gn__link *)t.self)->fd, POLLIN, 0 }, { fd, POLLIN, 0 } };
        int n = poll(polls, 2, GN__FRONT_SLICE_MS);
        if (n > 0) moved = gn_now_us();
        if (polls[0].revents) good = gn__front_up(front, t, fd, room, sizeof room);
        if (good && polls[1].revents) good = gn__front_down(t, fd, room, sizeof room);
    }
    if (fd >= 0) close(fd);
    t.i->close(t.self);
    gn_free(p);
    atomic_fetch_sub(&front->open, 1u);
    return NULL;
}

static bool gn__front_begin(gn__front *front, gn_transport t) {
    pthread_t thread;
    gn__passed *p = atomic_load(&front->open) < front->most ? gn_alloc(sizeof *p) : NULL;
    if (p == NULL) return false;
    *p = (gn__passed){ front, t };
    atomic_fetch_add(&front->open, 1u);
    if (pthread_create(&thread, NULL, gn__front_pass, p) == 0) {
        pthread_detach(thread);
        return true;
    }
    atomic_fetch_sub(&front->open, 1u);
    gn_free(p);
    return false;
}

static void *gn__front_main(void *arg) {
    gn__front *front = arg;
    while (!atomic_load(&front->stop)) {
        gn_transport t;
        gn_fault f;
        if (gn__net_accept(front->listener, GN__FRONT_SLICE_MS, &t, &f) != GN_OK) continue;
        if (!gn__front_begin(front, t)) t.i->close(t.self);
    }
    return NULL;
}

static gn_result gn__net_front(const gn_server_desc *d, uint16_t to, void **out_front, gn_fault *f) {
    gn_server_desc own = { .listen = d->listen,
                           .home = d->home,
                           .key = d->key,
                           .cert = d->cert,
                           .advertise = d->advertise,
                           .log = d->log,
                           .log_user = d->log_user };
    gn__front *front = gn_alloc(sizeof *front);
    void *listener = NULL;
    *out_front = NULL;
    if (front == NULL) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a front");
    memset(front, 0, sizeof *front);
    front->to = to;
    front->most = own.max_sessions = d->max_sessions != 0 ? d->max_sessions : GN__FRONT_MOST;
    gn_result r = gn__net_listen(&own, &listener, f);
    front->listener = listener;
    if (r == GN_OK && pthread_create(&front->thread, NULL, gn__front_main, front) != 0)
        r = gn_fail(f, GN_OUT_OF_MEMORY, "no thread for a front");
    if (r == GN_OK) *out_front = front;
    else {
        gn__net_unlisten(listener);
        gn_free(front);
    }
    return r;
}

static uint16_t gn__net_front_port(const void *front) { return ((const gn__front *)front)->listener->port; }

static void gn__net_unfront(void *arg) {
    gn__front *front = arg;
    atomic_store(&front->stop, true);
    pthread_join(front->thread, NULL);
    while (atomic_load(&front->open) > 0) nanosleep(&(struct timespec){ 0, 5000000 }, NULL); /* each looks soon */
    gn__net_unlisten(front->listener);
    gn_free(front);
}

/* >>codec ===========================================================================================
 * Tensor bytes, packed: codec 1 is one zstd frame; codec 2 is one zstd frame of the byte planes, all first bytes of the
 * elements, then all second bytes and so on, then what is left of a last partial element. Sign and exponent bytes of
 * floats lie together that way and pack well. The frame says its size and holds nothing more. */

enum { GN__RAW = 0, GN__ZSTD = 1, GN__PLANES = 2 };
#define GN__PACK_MIN 512u           /* bytes: below, the effort is not worth it */
#define GN__PACK_TELLS (256u << 10) /* bytes from which on the time tells the cost */
#define GN__PART_MIN 512u           /* bytes: below, a code table of its own costs more than it gives */
#define GN__SAMPLE (16u << 10)      /* bytes */
#define GN__RUN 256u                /* bytes of one piece of the sample */
#define GN__WINDOW_LOG 23           /* 8 MiB, what a receiver may be asked to keep (RFC 8878, 3.1.1.1.2) */
#define GN__IDLE_CODECS 8

/* zstd's contexts and a buffer, kept between calls because making them costs more than packing a small tensor. */
typedef struct gn__packer {
    ZSTD_CCtx *c;
    ZSTD_DCtx *d;
    uint8_t *planes;
    size_t cap;
} gn__packer;

static pthread_mutex_t gn__idle_lock = PTHREAD_MUTEX_INITIALIZER;
static gn__packer *gn__idle[GN__IDLE_CODECS];
static int gn__idle_n;

static void gn__packer_destroy(gn__packer *k) {
    ZSTD_freeCCtx(k->c);
    ZSTD_freeDCtx(k->d);
    gn_free(k->planes);
    gn_free(k);
}

static gn__packer *gn__packer_acquire(void) {
    pthread_mutex_lock(&gn__idle_lock);
    gn__packer *k = gn__idle_n > 0 ? gn__idle[--gn__idle_n] : NULL;
    pthread_mutex_unlock(&gn__idle_lock);
    if (k == NULL && (k = gn_alloc(sizeof *k)) != NULL) memset(k, 0, sizeof *k);
    return k;
}

static void gn__packer_release(gn__packer *k) {
    if (k->cap > 4u << 20) { /* one large tensor must not hold its memory for ever */
        gn_free(k->planes);
        k->planes = NULL;
        k->cap = 0;
    }
    pthread_mutex_lock(&gn__idle_lock);
    bool kept = gn__idle_n < GN__IDLE_CODECS;
    if (kept) gn__idle[gn__idle_n++] = k;
    pthread_mutex_unlock(&gn__idle_lock);
    if (!kept) gn__packer_destroy(k);
}

static bool gn__packer_reserve(gn__packer *k, size_t n) {
    if (k->cap >= n) return true;
    gn_free(k->planes);
    k->planes = gn_alloc(n);
    k->cap = k->planes != NULL ? n : 0;
    return k->planes != NULL;
}

#if defined(__SSE2__)
typedef __m128i gn__v;
static gn__v gn__load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
static void gn__store(uint8_t *p, gn__v v) { _mm_storeu_si128((__m128i *)(void *)p, v); }

/* The even and the odd bytes of a, b. */
static void gn__unzip(gn__v *a, gn__v *b) {
    const gn__v low = _mm_set1_epi16(0xff);
    gn__v even = _mm_packus_epi16(_mm_and_si128(*a, low), _mm_and_si128(*b, low));
    gn__v odd = _mm_packus_epi16(_mm_srli_epi16(*a, 8), _mm_srli_epi16(*b, 8));
    *a = even;
    *b = odd;
}

static void gn__zip(gn__v *a, gn__v *b) {
    gn__v lo = _mm_unpacklo_epi8(*a, *b), hi = _mm_unpackhi_epi8(*a, *b);
    *a = lo;
    *b = hi;
}

/* 16 elements of e bytes are e vectors; each round of unzips sorts by one more bit of the byte's place in its element,
   until vector j holds plane j. How many elements were done. */
static size_t gn__split_fast(const uint8_t *s, size_t count, size_t e, uint8_t *d) {
    size_t i = 0;
    gn__v v[8];
    for (; i + 16 <= count; i += 16) {
        for (size_t j = 0; j < e; j++) v[j] = gn__load(s + i * e + j * 16);
        for (size_t gap = 1; gap < e; gap *= 2)
            for (size_t j = 0; j < e; j++)
                if ((j & gap) == 0) gn__unzip(&v[j], &v[j + gap]);
        for (size_t j = 0; j < e; j++) gn__store(d + j * count + i, v[j]);
    }
    return i;
}

static size_t gn__join_fast(const uint8_t *s, size_t count, size_t e, uint8_t *d) {
    size_t i = 0;
    gn__v v[8];
    for (; i + 16 <= count; i += 16) {
        for (size_t j = 0; j < e; j++) v[j] = gn__load(s + j * count + i);
        for (size_t gap = e / 2; gap > 0; gap /= 2)
            for (size_t j = 0; j < e; j++)
                if ((j & gap) == 0) gn__zip(&v[j], &v[j + gap]);
        for (size_t j = 0; j < e; j++) gn__store(d + i * e + j * 16, v[j]);
    }
    return i;
}
#else
static size_t gn__split_fast(const uint8_t *s, size_t count, size_t e, uint8_t *d) {
    (void)s;
    (void)count;
    (void)e;
    (void)d;
    return 0;
}
static size_t gn__join_fast(const uint8_t *s, size_t count, size_t e, uint8_t *d) {
    (void)s;
    (void)count;
    (void)e;
    (void)d;
    return 0;
}
#endif

/* s (count, e) bytes = d (e, count), then the tail as it is */
static void gn__split(const uint8_t *s, size_t n, size_t e, uint8_t *d) {
    size_t count = n / e;
    for (size_t i = gn__split_fast(s, count, e, d); i < count; i++)
        for (size_t j = 0; j < e; j++) d[j * count + i] = s[i * e + j];
    memcpy(d + count * e, s + count * e, n - count * e);
}

static void gn__merge(const uint8_t *s, size_t n, size_t e, uint8_t *d) {
    size_t count = n / e;
    for (size_t i = gn__join_fast(s, count, e, d); i < count; i++)
        for (size_t j = 0; j < e; j++) d[i * e + j] = s[j * count + i];
    memcpy(d + count * e, s + count * e, n - count * e);
}

/* The entropy of total bytes with these counts, in bits, with the correction of Miller and Madow (1955) for the bytes
   that a small sample missed; without it random bytes would seem to pack. */
static float gn__entropy(const uint32_t count[256], uint32_t total) {
    float n = (float)total, bits = 0;
    int seen = 0;
    if (total == 0) return 0;
    for (int i = 0; i < 256; i++) {
        if (count[i] == 0) continue;
        bits += (float)count[i] * log2f(n / (float)count[i]);
        seen++;
    }
    bits += (float)(seen - 1) * 0.5f * 1.442695f;
    return bits < 8 * n ? bits : 8 * n;
}

/* What share of its size data would keep if each byte plane were entropy coded, judged from pieces all over it. */
static float gn__estimate(const uint8_t *s, size_t n, size_t e) {
    uint32_t count[8][256], total[8] = { 0 };
    size_t pieces = n <= GN__SAMPLE ? 1 : GN__SAMPLE / GN__RUN;
    size_t run = n <= GN__SAMPLE ? n : GN__RUN, step = n / pieces / e * e;
    float bits = 0;
    memset(count, 0, sizeof count);
    for (size_t k = 0; k < pieces; k++)
        for (size_t i = 0; i < run; i++) count[i & (e - 1)][s[k * step + i]]++; /* e is a power of 2 */
    for (size_t j = 0; j < e; j++) {
        total[j] = (uint32_t)(run * pieces / e);
        if (j < run % e) total[j] += (uint32_t)pieces;
        bits += gn__entropy(count[j], total[j]);
    }
    return bits / (8.0f * (float)(run * pieces));
}

static size_t gn__element(int elem) { return elem == 2 || elem == 4 || elem == 8 ? (size_t)elem : 1; }

/* One frame of n bytes in `parts` parts of equal size, the last one with the rest. Each part ends its block, so that it
   gets a code table of its own: planes differ. 0 when it does not fit into cap bytes. */
static size_t gn__compress(ZSTD_CCtx *c, const uint8_t *s, size_t n, size_t parts, void *dst, size_t cap) {
    ZSTD_outBuffer out = { dst, cap, 0 };
    size_t part = n / parts;
    ZSTD_CCtx_reset(c, ZSTD_reset_session_only);
    if (ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, 1)) ||
        ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(c, n)))
        return 0;
    for (size_t i = 0; i < parts; i++) {
        bool last = i + 1 == parts;
        ZSTD_inBuffer in = { s + i * part, last ? n - i * part : part, 0 };
        /* an error, or dst is full */
        if (ZSTD_compressStream2(c, &out, &in, last ? ZSTD_e_end : ZSTD_e_flush) != 0) return 0;
    }
    return out.pos;
}

/* What packing a byte costs, in picoseconds, by the share that stays: running averages of all packing in this process.
   What is not packed for its cost drifts back to the first guess, so that one slow moment does not decide for ever. */
enum { GN__SHARES = 4 };
static const unsigned gn__pack_guess[GN__SHARES] = { 150, 400, 700, 1000 };
static atomic_uint gn__pack_ps[GN__SHARES] = { 150, 400, 700, 1000 };

static unsigned gn__share_class(float share) { return share < 0.1f ? 0 : share < 0.4f ? 1 : share < 0.7f ? 2 : 3; }

/* The average moves by a part of the way; two threads at once may lose one of two moves. */
static void gn__pack_learn(unsigned k, double ps, int part) {
    double old = atomic_load_explicit(&gn__pack_ps[k], memory_order_relaxed);
    atomic_store_explicit(&gn__pack_ps[k], (unsigned)(old + ((ps < 1e6 ? ps : 1e6) - old) / part),
                          memory_order_relaxed);
}

/* Sending a byte raw costs wire_ns; packed it costs the packing and the share that stays. */
static bool gn__pack_pays(float share, double wire_ns) {
    unsigned k = gn__share_class(share);
    if (share > 0.97f) return false;
    if (!(wire_ns > 0) ||
        (1 - (double)share) * wire_ns * 1e3 > atomic_load_explicit(&gn__pack_ps[k], memory_order_relaxed))
        return true;
    gn__pack_learn(k, gn__pack_guess[k], 64);
    return false;
}

static size_t gn__net_pack(const void *src, size_t n, int elem, double wire_ns, void *dst, size_t cap,
                           uint8_t *out_codec) {
    size_t e = gn__element(elem), limit = n - n / 32; /* a gain under 3 % is none */
    *out_codec = GN__RAW;
    if (n < GN__PACK_MIN || cap < limit) return 0;
    float share = gn__estimate(src, n, e);
    if (!gn__pack_pays(share, wire_ns)) return 0;
    uint64_t begin = gn_now_us();
    gn__packer *k = gn__packer_acquire();
    if (k == NULL) return 0;
    const uint8_t *from = src;
    size_t stored = 0;
    if (k->c == NULL) k->c = ZSTD_createCCtx();
    if (k->c != NULL && (e == 1 || gn__packer_reserve(k, n))) {
        if (e > 1) {
            gn__split(src, n, e, k->planes);
            from = k->planes;
        }
        stored = gn__compress(k->c, from, n, n / e < GN__PART_MIN ? 1 : e, dst, limit);
    }
    gn__packer_release(k);
    if (n >= GN__PACK_TELLS) gn__pack_learn(gn__share_class(share), (double)(gn_now_us() - begin) * 1e6 / (double)n, 8);
    if (stored > 0) *out_codec = e > 1 ? GN__PLANES : GN__ZSTD;
    return stored;
}

/* One frame, all of src, of raw_n bytes, whose window is within bounds. The window costs nothing here, where a frame is
   unpacked in one piece; the bound is the protocol's, so that a receiver may also unpack in pieces. */
static bool gn__frame_good(const uint8_t *p, size_t n, size_t raw_n) {
    /* RFC 8878; zstd may know older formats, whose heads differ */
    static const uint8_t magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
    if (n < 6 || raw_n == 0 || memcmp(p, magic, sizeof magic) != 0) return false;
    bool single = (p[4] & 0x20) != 0; /* single segment: the window is the content */
    if (!single && 10 + (p[5] >> 3) + ((p[5] & 7) != 0) > GN__WINDOW_LOG) return false;
    if (ZSTD_getFrameContentSize(p, n) != (unsigned long long)raw_n) return false;
    return ZSTD_findFrameCompressedSize(p, n) == n;
}

static gn_result gn__net_unpack(uint8_t codec, const void *src, size_t n, int elem, void *dst, size_t raw_n) {
    size_t e = gn__element(elem);
    if (codec == GN__RAW) {
        if (n != raw_n) return GN_BAD_MESSAGE;
        if (n > 0) memcpy(dst, src, n);
        return GN_OK;
    }
    if (codec > GN__PLANES || !gn__frame_good(src, n, raw_n)) return GN_BAD_MESSAGE;
    bool planes = codec == GN__PLANES && e > 1;
    gn__packer *k = gn__packer_acquire();
    if (k == NULL) return GN_OUT_OF_MEMORY;
    gn_result r = GN_OUT_OF_MEMORY;
    if (k->d == NULL) k->d = ZSTD_createDCtx();
    if (k->d != NULL && (!planes || gn__packer_reserve(k, raw_n))) {
        size_t made = ZSTD_decompressDCtx(k->d, planes ? k->planes : dst, raw_n, src, n);
        r = !ZSTD_isError(made) && made == raw_n ? GN_OK : GN_BAD_MESSAGE;
        if (r == GN_OK && planes) gn__merge(k->planes, raw_n, e, dst);
    }
    gn__packer_release(k);
    return r;
}

/* >>register ========================================================================================*/

static int gn__net_about(char *out_text, size_t cap) {
    const gn__crypto *c = gn__crypto_use();
    const char *asked = gn__crypto_preferred(), *why = c != NULL ? ""
                                                       : asked != NULL && strcmp(asked, "mbedtls") == 0
                                                           ? "as GENIE_AEAD says"
                                                           : gn__crypto_found.why;
    return snprintf(out_text, cap, "network: TLS by %s, records and SHA-256 by %s%s%s%s; zstd %s", GN__STOCK,
                    c != NULL ? c->text : "mbedTLS too", *why ? " (" : "", why, *why ? ")" : "", ZSTD_versionString());
}

static const gn_net_i gn__net = {
    .connect = gn__net_connect,
    .listen = gn__net_listen,
    .accept = gn__net_accept,
    .authenticate = gn__net_authenticate,
    .clients = gn__net_clients,
    .stays = gn__net_stays,
    .admin = gn__net_admin,
    .url = gn__net_url,
    .port = gn__net_port,
    .unlisten = gn__net_unlisten,
    .handover = gn__net_handover,
    .plain = gn__net_plain,
    .sha256 = gn__net_sha256,
    .hash_begin = gn__net_hash_begin,
    .hash_add = gn__net_hash_add,
    .hash_end = gn__net_hash_end,
    .pack = gn__net_pack,
    .unpack = gn__net_unpack,
    .codecs = 1u << GN__RAW | 1u << GN__ZSTD | 1u << GN__PLANES,
    .about = gn__net_about,
    .front = gn__net_front,
    .front_port = gn__net_front_port,
    .unfront = gn__net_unfront,
};

__attribute__((constructor)) static void gn__net_register(void) { gn_register_net(&gn__net); }

__attribute__((destructor)) static void gn__net_forget_packers(void) {
    pthread_mutex_lock(&gn__idle_lock);
    while (gn__idle_n > 0) gn__packer_destroy(gn__idle[--gn__idle_n]);
    pthread_mutex_unlock(&gn__idle_lock);
}
