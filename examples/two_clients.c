/* Two programs share a server: two processes work at the same time, each with its own state under the same name, and
 * neither sees the other's.
 *
 *   ./examples/two_clients
 *   ./examples/two_clients --connect @genie.url
 */
#include "common.h"
#include <sys/wait.h>

enum { N = 256, STEPS = 200 };

/* total += scale * mean(x w), STEPS times, where the mean is N: the total must be scale * N * STEPS. */
static bool work(gn_ctx *g, const char *who, float scale) {
    static float ones[N * N];
    for (int i = 0; i < N * N; i++) ones[i] = 1;
    float total = 0, want = scale * N * STEPS;
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(N, N), ones, "w");
    gn_tensor state = gn_state(g, GN_F32, GN_SCALAR, NULL, "total");
    double begin = ex_now();
    for (int i = 0; i < STEPS; i++) {
        gn_tensor y = gn_matmul(gn_full(g, GN_F32, GN_SHAPE(4, N), 1), w);
        gn_tensor part = gn_mul(gn_mean(y, GN_ALL_AXES, false), gn_scalar(g, GN_F32, (double)scale));
        gn_assign(state, gn_add(state, part));
        if (!ex_check(g, gn_step(g), who)) return false; /* queued: nothing waits for the server */
    }
    if (!ex_check(g, gn_read(state, &total, sizeof total), who)) return false;
    gn_stats s;
    gn_device_info d;
    gn_get_stats(g, &s);
    if (!ex_check(g, gn_get_device(g, &d), who)) return false;
    printf("%-7s total %g (expected %g) on %s: %d steps in %.0f ms, %llu round trips, %llu weight bytes sent\n", who,
           (double)total, (double)want, d.name, STEPS, 1e3 * (ex_now() - begin), (unsigned long long)s.round_trips,
           (unsigned long long)s.weight_bytes_sent);
    fflush(stdout);
    return total == want;
}

/* The second program: waits to be told where the server is, then works there. */
static int second(int from_first) {
    static char message[2 * PATH_MAX];
    size_t n = 0;
    ssize_t got;
    while (n < sizeof message - 1 && (got = read(from_first, message + n, sizeof message - 1 - n)) > 0)
        n += (size_t)got;
    const char *home = memchr(message, '\n', n);
    if (!home) return EX_FAILED; /* the first program could not open a server and has said so */
    message[home - message] = 0;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = message, .home = home[1] ? home + 1 : NULL });
    bool ok = ex_check(g, gn_status(g), "second") && work(g, "second", 2);
    gn_close(g);
    return ok ? EX_OK : EX_FAILED;
}

/* The first program pairs with the server; the second, of the same user, then needs no URL: the device's name
   suffices. */
static bool first(const ex_place *place, int to_second) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place->devices, .home = place->home });
    gn_device_info d;
    bool ok = ex_check(g, gn_status(g), "first") && ex_check(g, gn_get_device(g, &d), "first");
    if (ok) ok = dprintf(to_second, "%s\n%s", d.name, place->home ? place->home : "") > 0;
    close(to_second);
    ok = ok && work(g, "first", 1);
    gn_close(g);
    return ok;
}

int main(int argc, char **argv) {
    const char *connect = NULL;
    const ex_option options[] = {
        { "connect", EX_MAYBE, &connect, "WHERE",
          "a URL, @FILE, - or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    int pipe_ends[2], status = -1;
    ex_parse(argc, argv, "two_clients runs two programs on one server at the same time.", options);
    if (pipe(pipe_ends) != 0) {
        perror("pipe");
        return EX_FAILED;
    }
    pid_t child = fork(); /* before this process has any thread */
    if (child < 0) {
        perror("fork");
        return EX_FAILED;
    }
    if (child == 0) {
        close(pipe_ends[1]);
        exit(second(pipe_ends[0]));
    }
    close(pipe_ends[0]);
    ex_place place;
    bool open = ex_place_open(&place, connect, NULL), ok = open && first(&place, pipe_ends[1]);
    if (!open) close(pipe_ends[1]);
    waitpid(child, &status, 0);
    if (open) ex_place_close(&place);
    ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (open) ex_verdict(ok, "both programs were served at once, each with its own state");
    return ok ? EX_OK : EX_FAILED;
}
