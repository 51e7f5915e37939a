/* How far weights are on their way to a server: gn_desc.progress, and the bar that the examples draw of it.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../examples/common.h"

#include "test.h"

#include <fcntl.h>

#include "../examples/progress.h"
#include "loopback.h"

enum { ELEMENTS = 700000, BYTES = ELEMENTS * 4, MOST = 64 }; /* a weight takes three pieces */

typedef struct told {
    gn_ctx *g;
    gn_progress at[MOST];
    int n, cancel_at; /* cancel_at: the call that cancels, from 1 on; 0: none */
} told;

static void tell(void *user, const gn_progress *p) {
    told *t = user;
    if (t->n < MOST) t->at[t->n] = *p;
    t->n++;
    if (t->n == t->cancel_at) gn_cancel(t->g);
}

static float values[2][ELEMENTS];

static void fill(void) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ELEMENTS; i++) values[k][i] = (float)test_random_int(-1000, 1000) + 0.37f;
}

static gn_ctx *open_told(told *t, bool remote) {
    gn_desc d = { .devices = "cpu", .progress = tell, .progress_user = t };
    memset(t, 0, sizeof *t);
    return t->g = remote ? loopback_open(&d) : gn_open(&d);
}

static gn_tensor weight(gn_ctx *g, int which) {
    return gn_weight(g, GN_F32, GN_SHAPE(ELEMENTS), values[which], which ? "second" : "first");
}

static gn_result sum_of(gn_tensor w) {
    float sum;
    gn_result r = gn_read(gn_sum(w, GN_ALL_AXES, false), &sum, sizeof sum);
    gn_step(w.ctx);
    return r;
}

TEST(progress_rises_to_all_bytes) {
    told t;
    fill();
    gn_ctx *g = open_told(&t, true);
    CHECK_RESULT(sum_of(weight(g, 0)), GN_OK);
    REQUIRE(t.n == 4);
    CHECK(t.at[0].total == BYTES && !t.at[0].sent && !t.at[0].known && !t.at[0].packed);
    for (int i = 1; i < t.n; i++) {
        uint64_t step = t.at[i].sent - t.at[i - 1].sent;
        CHECK(step > 0 && step <= 1 << 20 && t.at[i].packed > t.at[i - 1].packed && !t.at[i].known);
    }
    CHECK(t.at[3].sent == BYTES && t.at[3].total == BYTES && t.at[3].packed <= BYTES + 64);
    CHECK_RESULT(sum_of(weight(g, 1)), GN_OK); /* more in the same context */
    REQUIRE(t.n == 8);
    CHECK(t.at[4].total == 2 * BYTES && t.at[4].sent == BYTES && t.at[7].sent == 2 * BYTES);
    gn_close(g);
    g = open_told(&t, true); /* the server has them now */
    CHECK_RESULT(sum_of(gn_add(weight(g, 0), weight(g, 1))), GN_OK);
    REQUIRE(t.n == 3);
    CHECK(t.at[0].total == 2 * BYTES && !t.at[0].known && t.at[1].known == BYTES);
    CHECK(t.at[2].known == 2 * BYTES && t.at[2].total == 2 * BYTES && !t.at[2].sent && !t.at[2].packed);
    gn_close(g);
}

/* More than the digests that are waited for before the first question: those that are known go on their way. */
TEST(many_bytes_of_weights_arrive_while_others_digests_are_computed) {
    enum { MANY = 5, EACH = 16 << 20 };
    float *host = (float *)malloc((EACH + MANY) * sizeof *host), y[MANY];
    gn_tensor last[MANY];
    gn_stats s;
    told t;
    REQUIRE(host);
    for (int i = 0; i < EACH + MANY; i++) host[i] = (float)(i % 65521);
    gn_ctx *g = open_told(&t, true);
    for (int k = 0; k < MANY; k++)
        last[k] = gn_slice(gn_weight(g, GN_F32, GN_SHAPE(EACH), host + k, "w"), 0, EACH - 1, EACH, 1);
    CHECK_RESULT(gn_read(gn_concat(last, MANY, 0), y, sizeof y), GN_OK);
    for (int k = 0; k < MANY; k++) CHECK(y[k] == host[EACH - 1 + k]);
    gn_get_stats(g, &s);
    CHECK(s.weight_bytes_sent == (uint64_t)MANY * EACH * 4 && s.weight_bytes_known == 0);
    gn_close(g);
    free(host);
}

TEST(a_device_of_this_machine_tells_nothing) {
    told t;
    fill();
    gn_ctx *g = open_told(&t, false);
    CHECK_RESULT(sum_of(weight(g, 0)), GN_OK);
    CHECK_INT(t.n, 0);
    gn_close(g);
}

TEST(progress_may_cancel_and_a_weight_is_begun_again) {
    told t;
    fill();
    gn_ctx *g = open_told(&t, true);
    gn_tensor a = weight(g, 0), b = weight(g, 1);
    t.cancel_at = 3; /* two pieces of the first */
    CHECK_RESULT(sum_of(gn_add(a, b)), GN_CANCELLED);
    CHECK_INT(t.n, 3);
    CHECK(t.at[2].total == 2 * BYTES && t.at[2].sent > BYTES / 2);
    CHECK_RESULT(gn_release(b), GN_OK); /* it was not sent and never will be */
    CHECK_RESULT(sum_of(a), GN_OK);
    REQUIRE(t.n >= 6 && t.n < MOST);
    CHECK(t.at[t.n - 1].total == BYTES && t.at[t.n - 1].sent + t.at[t.n - 1].known == BYTES);
    gn_close(g);
}

/* ---- the bar ---- */

TEST(the_bar_says_share_rate_and_what_was_there) {
    char text[256];
    gn_progress p = { .total = 1000000000, .known = 250000000, .sent = 250000000, .packed = 1 };
    ex_progress_text(text, sizeof text, &p, 0, 2.0, false);
    CHECK_STR(text,
              "weights [############------------]  50 %, 0.50 of 1.00 GB, 125 MB/s, 4 s left, 0.25 GB were there");
    ex_progress_text(text, sizeof text, &p, 2000000000, 2.0, true); /* it is known that more will come */
    CHECK_STR(text, "weights [\033[32m######\033[0m------------------]  25 %, 0.50 of 2.00 GB, 125 MB/s, 12 s left, "
                    "0.25 GB were there");
    p = (gn_progress){ 0 };
    ex_progress_text(text, sizeof text, &p, 0, 0, false);
    CHECK_STR(text, "weights [########################] 100 %, 0.00 of 0.00 GB, 0 MB/s");
}

/* What the bar writes to a terminal while standard error is one. */
static size_t on_terminal(const char *no_color, char *out, size_t size) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), before = dup(STDERR_FILENO);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) return 0;
    int far = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    setenv("NO_COLOR", no_color, 1);
    setenv("TERM", "xterm", 1);
    fflush(stderr);
    dup2(far, STDERR_FILENO);
    ex_progress bar = { .begin = ex_now() - 1000 };
    gn_progress p = { .total = 2000000000, .sent = 1000000000, .packed = 900000000 };
    ex_progress_show(&bar, &p); /* not begun: nothing */
    ex_progress_begin(&bar);
    ex_progress_show(&bar, &p);
    bar.drawn += 1000;          /* however slow this machine is, */
    ex_progress_show(&bar, &p); /* too soon again */
    ex_progress_end(&bar);
    ex_progress_show(&bar, &p); /* ended */
    fflush(stderr);
    ssize_t n = read(terminal, out, size - 1);
    dup2(before, STDERR_FILENO);
    close(before);
    close(far);
    close(terminal);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

TEST(the_bar_is_drawn_on_a_terminal_and_no_color_is_respected) {
    char text[1024];
    CHECK(on_terminal("", text, sizeof text) > 0);
    CHECK(strstr(text, "\rweights [\033[32m############\033[0m------------]  50 %") == text);
    char *last = strstr(text, "\rweights: 1.00 GB in 100");
    CHECK(last && strstr(last, " s, 1.00 GB of it sent as 0.90 GB, 0.00 GB were there") &&
          !strstr(text + 2, "weights [") && !strstr(last + 1, "\rweights"));
    CHECK(on_terminal("1", text, sizeof text) > 0);
    CHECK(!strstr(text, "\033[32m") && strstr(text, "[############------------]  50 %"));
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(progress_rises_to_all_bytes),
        TEST_ENTRY(many_bytes_of_weights_arrive_while_others_digests_are_computed),
        TEST_ENTRY(a_device_of_this_machine_tells_nothing),
        TEST_ENTRY(progress_may_cancel_and_a_weight_is_begun_again),
        TEST_ENTRY(the_bar_says_share_rate_and_what_was_there),
        TEST_ENTRY(the_bar_is_drawn_on_a_terminal_and_no_color_is_respected),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    loopback_close();
    return test_end();
}
