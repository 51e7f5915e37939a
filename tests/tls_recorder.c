/* Looks at a connection from outside the processes that hold it.
 *
 *   tls_recorder relay PORT FOLDER     relays connections to 127.0.0.1:PORT; the first line it prints is its own port;
 *                                      each connection's bytes go to FOLDER/N.up (from the client) and FOLDER/N.down
 *   tls_recorder check FILE.up FILE.down   0 if both are TLS 1.2 or 1.3 records with an ECDHE AEAD suite and nothing
 *   else tls_recorder find FILE TEXT...     0 if one of the texts stands in the file; @PATH stands for the bytes of
 *   that file
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20, MAX_LINKS = 64 }; /* bytes, connections */

/* ---- relay ---- */

/* record: the bytes that come from fd */
typedef struct link_end {
    int fd;
    FILE *record;
    bool ended;
} link_end;

static struct sockaddr_in loopback(uint16_t port) {
    struct sockaddr_in a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(port);
    return a;
}

static int listen_anywhere(void) {
    struct sockaddr_in a = loopback(0);
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 16) ||
        getsockname(fd, (struct sockaddr *)&a, &n)) {
        perror("tls_recorder: listen");
        exit(2);
    }
    printf("%u\n", (unsigned)ntohs(a.sin_port));
    fflush(stdout);
    return fd;
}

static FILE *open_record(const char *folder, int number, const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.%s", folder, number, suffix);
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        exit(2);
    }
    return f;
}

/* ends[2k] is a client, ends[2k + 1] its connection to the server. */
static int accept_link(int listener, uint16_t port, const char *folder, link_end *ends, int n) {
    struct sockaddr_in a = loopback(port);
    int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0 || server < 0 || n >= 2 * MAX_LINKS || connect(server, (struct sockaddr *)&a, sizeof a)) {
        perror("tls_recorder: connect");
        close(client);
        close(server);
        return n;
    }
    ends[n] = (link_end){ client, open_record(folder, n / 2, "up"), false };
    ends[n + 1] = (link_end){ server, open_record(folder, n / 2, "down"), false };
    return n + 2;
}

static bool send_all(int fd, const uint8_t *data, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

static void move_bytes(link_end *from, link_end *to) {
    uint8_t buffer[65536];
    ssize_t n = recv(from->fd, buffer, sizeof buffer, 0);
    if (n > 0) {
        fwrite(buffer, 1, (size_t)n, from->record);
        fflush(from->record);
    }
    if (n <= 0 || !send_all(to->fd, buffer, (size_t)n)) {
        from->ended = true;
        shutdown(to->fd, SHUT_WR);
    }
}

static int relay(uint16_t port, const char *folder) {
    static link_end ends[2 * MAX_LINKS];
    int n = 0, listener = listen_anywhere();
    for (;;) {
        struct pollfd wait[2 * MAX_LINKS + 1];
        wait[0] = (struct pollfd){ listener, POLLIN, 0 };
        for (int i = 0; i < n; i++) wait[i + 1] = (struct pollfd){ ends[i].ended ? -1 : ends[i].fd, POLLIN, 0 };
        if (poll(wait, (nfds_t)n + 1, -1) < 0 && errno != EINTR) return 2;
        for (int i = 0; i < n; i++)
            if (wait[i + 1].revents) move_bytes(&ends[i], &ends[i ^ 1]);
        if (wait[0].revents) n = accept_link(listener, port, folder, ends, n);
    }
}

/* ---- check ---- */

typedef struct capture {
    uint8_t *bytes;
    size_t n;
    const char *path;
} capture;

static capture read_capture(const char *path) {
    capture c = { malloc(MAX_FILE), 0, path };
    FILE *f = fopen(path, "rb");
    if (!f || !c.bytes) {
        perror(path);
        exit(2);
    }
    c.n = fread(c.bytes, 1, MAX_FILE, f);
    fclose(f);
    return c;
}

static unsigned get16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

/* Bits a byte of what was encrypted; 8 for random bytes. */
static double entropy(const uint64_t count[256], uint64_t total) {
    double bits = 0;
    for (int i = 0; i < 256; i++) {
        double p = (double)count[i] / (double)total;
        bits -= count[i] ? p * log2(p) : 0;
    }
    return bits;
}

static bool refuse(const capture *c, size_t at, const char *why) {
    printf("%s: byte %zu: %s\n", c->path, at, why);
    return false;
}

/* RFC 5246 6.2, RFC 8446 5.1: type, version 3.3 (the first ClientHello may say 3.1), length, that many bytes; data only
   after the cipher was changed (1.2) or keys agreed upon (1.3, which sends a dummy change). The connection may be cut
   in the last one. */
static bool check_records(const capture *c) {
    static uint64_t count[256];
    uint64_t data = 0, records = 0;
    bool changed = false;
    memset(count, 0, sizeof count);
    for (size_t at = 0; at < c->n;) {
        if (c->n - at < 5) return refuse(c, at, "half a record header");
        const uint8_t *p = c->bytes + at;
        unsigned length = get16(p + 3);
        if (p[0] < 0x14 || p[0] > 0x17) return refuse(c, at, "not a record type of TLS");
        if (p[1] != 3 || (p[2] != 3 && !(at == 0 && p[2] == 1)))
            return refuse(c, at, "not the record version of TLS 1.2 or 1.3");
        if (length == 0 || length > 16384 + 2048) return refuse(c, at, "not a length that a record may have");
        if (at == 0 && p[0] != 0x16) return refuse(c, at, "does not begin with a handshake");
        if (p[0] == 0x17 && !changed) return refuse(c, at, "data before the cipher was changed");
        changed = changed || p[0] == 0x14;
        for (size_t i = 13; p[0] == 0x17 && i < 5 + (size_t)length && at + i < c->n; i++, data++) count[p[i]]++;
        at += 5 + (size_t)length;
        records++;
    }
    if (data == 0) return refuse(c, c->n, "no application data");
    if (data >= 8192 && entropy(count, data) < 7.9) return refuse(c, c->n, "the data does not look encrypted");
    printf("%s: %llu records, %llu bytes of data, %.3f bits a byte\n", c->path, (unsigned long long)records,
           (unsigned long long)data, entropy(count, data));
    return true;
}

/* ServerHello: record header 5, type 1, length 3, version 2, random 32, session id 1 + n, suite 2. */
static bool check_suite(const capture *c) {
    static const unsigned allowed[] = { 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02c, 0xc02f,
                                        0xc030, 0xc0ac, 0xc0ad, 0xcca8, 0xcca9 };
    const size_t session = 5 + 4 + 2 + 32;
    if (c->n < session + 1 + 32 + 2 || c->bytes[5] != 2) return refuse(c, 5, "no ServerHello");
    unsigned suite = get16(c->bytes + session + 1 + c->bytes[session]);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        if (suite == allowed[i]) {
            printf("%s: suite 0x%04x\n", c->path, suite);
            return true;
        }
    }
    return refuse(c, session, "the suite is not ECDHE with AEAD");
}

static int check(const char *up_path, const char *down_path) {
    capture up = read_capture(up_path), down = read_capture(down_path);
    bool ok = check_records(&up) && check_records(&down) && check_suite(&down);
    free(up.bytes);
    free(down.bytes);
    return ok ? 0 : 1;
}

static int find(const char *path, char **texts, int n) {
    capture c = read_capture(path);
    int found = 0;
    for (int i = 0; i < n; i++) {
        capture text = { (uint8_t *)texts[i], strlen(texts[i]), texts[i] };
        bool is_file = texts[i][0] == '@';
        if (is_file) text = read_capture(texts[i] + 1);
        if (text.n > 0 && memmem(c.bytes, c.n, text.bytes, text.n)) {
            printf("%s contains \"%s\"\n", path, texts[i]);
            found++;
        }
        if (is_file) free(text.bytes);
    }
    free(c.bytes);
    return found ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "relay") == 0) return relay((uint16_t)strtoul(argv[2], NULL, 10), argv[3]);
    if (argc == 4 && strcmp(argv[1], "check") == 0) return check(argv[2], argv[3]);
    if (argc >= 4 && strcmp(argv[1], "find") == 0) return find(argv[2], argv + 3, argc - 3);
    fprintf(stderr, "usage: tls_recorder relay PORT FOLDER | check UP DOWN | find FILE TEXT...\n");
    return 2;
}
