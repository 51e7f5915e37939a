/* What is left of a secret: after clients have paired and come back over real TLS, and after both ends are gone, all
 * memory of this process that may be written (heap, stacks of threads that ended, static data) is searched for
 * credentials and for codes that were not used.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#define GENIE_EXT
#include "genie.h"
#include "test.h"

#include <fcntl.h>

enum { CODE = 16, SECRET = 32, NEEDLE = 2 * SECRET };

/* Bytes to look for, masked so that they do not find themselves. */
typedef struct needle {
    const char *what;
    uint8_t masked[NEEDLE];
    size_t n;
} needle;

static needle needles[24];
static int n_needles;
static char work[64];

static void needle_add(const char *what, const void *p, size_t n) {
    needle *x = &needles[n_needles++];
    x->what = what;
    x->n = n;
    for (size_t i = 0; i < n; i++) x->masked[i] = ((const uint8_t *)p)[i] ^ 0x5a;
}

static bool needle_at(const needle *x, const uint8_t *p) {
    size_t i = 0;
    while (i < x->n && (p[i] ^ 0x5a) == x->masked[i]) i++;
    return i == x->n;
}

/* Searches [begin, end) of this process; the piece of memory that it reads into is left clean. */
static int search_range(int mem, uint64_t begin, uint64_t end, const char *name, int counts[]) {
    enum { PIECE = 1 << 16 };
    static uint8_t piece[PIECE + NEEDLE];
    int found = 0;
    size_t kept = 0;
    for (uint64_t at = begin; at < end;) {
        uint64_t own = (uint64_t)(uintptr_t)piece;
        if (at < own + sizeof piece && at + PIECE > own) { /* not our own window */
            at = at < own ? own + sizeof piece : at + PIECE;
            kept = 0;
            continue;
        }
        size_t want = end - at < PIECE ? (size_t)(end - at) : PIECE;
        ssize_t n = pread(mem, piece + kept, want, (off_t)at);
        if (n <= 0) break;
        size_t have = kept + (size_t)n;
        for (int k = 0; k < n_needles; k++) {
            const uint8_t *p = piece, *last = piece + have - (needles[k].n <= have ? needles[k].n : have);
            while (p <= last && (p = memchr(p, needles[k].masked[0] ^ 0x5a, (size_t)(last - p) + 1)) != NULL) {
                if (needles[k].n <= have && needle_at(&needles[k], p)) {
                    if (counts[k]++ < 2)
                        printf("  %s: in %s at %" PRIx64 "\n", needles[k].what, name[0] ? name : "memory",
                               at - kept + (uint64_t)(p - piece));
                    found++;
                }
                p++;
            }
        }
        kept = have < NEEDLE - 1 ? have : NEEDLE - 1;
        memmove(piece, piece + have - kept, kept);
        at += (uint64_t)n;
    }
    gn_wipe(piece, sizeof piece);
    return found;
}

static int search(const char *when) {
    char line[512], mode[8], name[256];
    int found = 0, counts[24] = { 0 }, mem = open("/proc/self/mem", O_RDONLY);
    FILE *maps = fopen("/proc/self/maps", "r");
    uint64_t begin, end, bytes = 0;
    if (mem < 0 || !maps) return -1;
    while (fgets(line, sizeof line, maps)) {
        name[0] = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %*s %255[^\n]", &begin, &end, mode, name) < 3) continue;
        /* the shadow of a sanitizer is larger */
        if (mode[0] != 'r' || mode[1] != 'w' || end - begin > (uint64_t)1 << 32) continue;
        bytes += end - begin;
        found += search_range(mem, begin, end, name, counts);
    }
    fclose(maps);
    close(mem);
    printf("  %s: %d places in %" PRIu64 " MiB\n", when, found, bytes >> 20);
    return found;
}

/* The server wipes what it sent a moment after the client has it: looks for two seconds at most. */
static int search_soon(const char *when) {
    int found = search(when);
    for (int i = 0; found > 0 && i < 20; i++) {
        usleep(100000);
        found = search(when);
    }
    return found;
}

/* The value behind "name=" or, with name NULL, the last word of the first line; the buffer is wiped afterwards. */
static void needle_from_file(const char *what, const char *path, const char *name) {
    char text[1024] = "";
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    CHECK(n > 0);
    text[strcspn(text, "\n")] = 0;
    char *at = name ? strstr(text, name) : strrchr(text, ' ');
    if (!CHECK(at != NULL)) return;
    at += name ? strlen(name) : 1;
    needle_add(what, at, strlen(at)); /* as text */
    if (!name) {
        uint8_t raw[SECRET];
        for (int i = 0; i < SECRET; i++) {
            unsigned byte = 0;
            sscanf(at + 2 * i, "%2x", &byte);
            raw[i] = (uint8_t)byte;
        }
        needle_add(what, raw, sizeof raw);
        gn_wipe(raw, sizeof raw);
    }
    gn_wipe(text, sizeof text);
}

/* Connects, computes something, leaves. */
static gn_result visit(const char *where, const char *home) {
    float y[4];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = where, .home = home });
    gn_result r = gn_status(g);
    if (r == GN_OK) r = gn_read(gn_add_c(gn_full(g, GN_F32, GN_SHAPE(4), 1), 1), y, sizeof y);
    gn_close(g);
    return r;
}

static gn_server *open_server(const char *home, char url_file[], size_t cap) {
    gn_server *s = NULL;
    snprintf(url_file, cap, "%s/url", home);
    gn_server_desc d = { .listen = "127.0.0.1:0", .home = home, .url_file = url_file, .threads = 1, .no_costs = true };
    CHECK_RESULT(gn_server_open(&d, &s, NULL), GN_OK);
    return s;
}

/* One that must be found, or the search finds nothing. */
TEST(search_finds_what_is_there) {
    uint8_t *there = malloc(SECRET);
    n_needles = 0;
    for (int i = 0; i < SECRET; i++) there[i] = (uint8_t)test_random();
    needle_add("a block of memory", there, SECRET);
    CHECK_INT(search("a secret that is there"), 1);
    gn_wipe(there, SECRET);
    CHECK_INT(search("the same, wiped"), 0);
    free(there);
}

TEST(credentials_do_not_stay_in_memory) {
    enum { CLIENTS = 3 };
    char home[128], url_file[160], where[440], address[64], client[CLIENTS][128], path[420];
    n_needles = 0;
    snprintf(home, sizeof home, "%s/server", work);
    gn_server *s = open_server(home, url_file, sizeof url_file);
    if (!s) return;
    snprintf(where, sizeof where, "@%s", url_file);
    snprintf(address, sizeof address, "127.0.0.1:%u", gn_server_port(s));
    for (int i = 0; i < CLIENTS; i++) {
        snprintf(client[i], sizeof client[i], "%s/client%d", work, i);
        CHECK_RESULT(visit(where, client[i]), GN_OK);
        CHECK_RESULT(visit(address, client[i]), GN_OK);
        snprintf(path, sizeof path, "%s/servers", client[i]);
        needle_from_file("a credential", path, NULL);
    }
    CHECK_INT(search_soon("after pairing and coming back"), 0);
    gn_ctx *open = gn_open(&(gn_desc){ .devices = address, .home = client[0] });
    CHECK_RESULT(gn_status(open), GN_OK);
    CHECK_INT(search_soon("while a session is open"), 0);
    gn_close(open);
    /* refused: the server does not know the credential any more */
    snprintf(path, sizeof path, "%s/clients", home);
    CHECK(unlink(path) == 0);
    for (int i = 0; i < CLIENTS; i++) CHECK_RESULT(visit(address, client[i]), GN_BAD_CREDENTIAL);
    CHECK_INT(search_soon("after refusals"), 0);
    gn_server_close(s);
    CHECK_INT(search("after the server"), 0);
}

/* A code that is still good, in the memory of the client that held it: its server was another, or was gone. */
TEST(codes_do_not_stay_in_a_client) {
    char home[128], url_file[160], text[400] = "", path[420], where[440], client[128];
    n_needles = 0;
    snprintf(home, sizeof home, "%s/server2", work);
    snprintf(client, sizeof client, "%s/client-of-2", work);
    gn_server *s = open_server(home, url_file, sizeof url_file);
    if (!s) return;
    /* the URL with another pin: the code is never shown */
    snprintf(path, sizeof path, "%s/altered", work);
    /* stdio would keep it in its buffers */
    int in = open(url_file, O_RDONLY), out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t n = read(in, text, sizeof text - 1);
    char *pin = strstr(text, "pin=");
    if (!CHECK(n > 0 && pin != NULL)) return;
    pin[4] = pin[4] == 'A' ? 'B' : 'A';
    CHECK(write(out, text, (size_t)n) == n);
    close(in);
    close(out);
    gn_wipe(text, sizeof text);
    snprintf(where, sizeof where, "@%s", path);
    gn_server_close(s); /* its own URLs are gone with it */
    needle_from_file("a code", path, "code=");
    CHECK_INT(search("before the client"), 0);
    CHECK(visit(where, client) != GN_OK); /* nobody listens */
    CHECK_INT(search("after the client"), 0);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(search_finds_what_is_there),
        TEST_ENTRY(credentials_do_not_stay_in_memory),
        TEST_ENTRY(codes_do_not_stay_in_a_client),
    };
    test_begin(argc, argv);
    if (access("/proc/self/mem", R_OK) != 0) {
        printf("SKIP: secrets: no /proc/self/mem here\n0 passed, 0 failed, 1 skipped\n");
        return 77;
    }
    if (TEST_SANITIZED_THREADS) {
        printf("SKIP: secrets: a thread sanitizer has its own copies of memory, and too many\n0 passed, 0 failed, 1 "
               "skipped\n");
        return 77;
    }
    snprintf(work, sizeof work, "/tmp/genie-secrets-XXXXXX");
    if (!mkdtemp(work)) return 2;
    test_all(tests, TEST_COUNT(tests));
    char command[sizeof work + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    if (system(command) != 0) printf("%s stays behind\n", work);
    return test_end();
}
