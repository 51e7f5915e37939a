/* The tables that tell what a server does, which a client reads from a server that nobody vouches for. What is accepted
 * is written again and read again: the same view. Texts are printable, whatever came. */
#include "fuzz.h"

static void view_fill(gn_server_view *v, uint8_t seed) {
    static gn_session_view sessions[2];
    memset(v, 0, sizeof *v);
    memset(sessions, 0, sizeof sessions);
    v->sessions = sessions;
    v->n_sessions = seed % 3;
    v->n_devices = seed % 4;
    v->uptime_us = seed;
    snprintf(v->version, sizeof v->version, "%s", GN_VERSION);
    for (uint32_t i = 0; i < v->n_devices; i++) snprintf(v->devices[i].name, sizeof v->devices[i].name, "cuda:%u", i);
    for (uint32_t i = 0; i < v->n_sessions; i++) {
        sessions[i].session = i + 1;
        snprintf(sessions[i].tenant, sizeof sessions[i].tenant, "tenant %u", i);
    }
    v->stats.steps_run = seed;
    v->plans[GN_ROLE_MLP][GN_DECODE] = seed;
    v->times[GN_TIMING_STEP][GN_DECODE] = (gn_times){ 1, 2, { 1 } };
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    gn_server_view v;
    gn__buf b = { NULL, 0, 0, false };
    if (index >= 12) return 0;
    view_fill(&v, (uint8_t)index);
    gn__view_put(&b, &v);
    size_t n = b.n < cap ? b.n : 0;
    if (n) memcpy(out, b.p, n);
    gn__buf_deinit(&b);
    return n;
}

static void view_printable(const char *text, size_t cap) {
    FUZZ_CHECK(memchr(text, 0, cap) != NULL);
    for (; *text; text++) FUZZ_CHECK(*text >= 32 && *text < 127);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gn_server_view *v, *again;
    gn_fault f;
    gn__span in = { data, size };
    if (gn__view_get(&in, &v, &f) != GN_OK) {
        FUZZ_CHECK(v == NULL);
        return 0;
    }
    FUZZ_CHECK(v->n_devices <= GN_VIEW_DEVICES && v->n_sessions <= GN_VIEW_SESSIONS);
    for (uint32_t i = 0; i < v->n_sessions; i++) {
        view_printable(v->sessions[i].tenant, sizeof v->sessions[i].tenant);
        view_printable(v->sessions[i].label, sizeof v->sessions[i].label);
    }
    gn__buf b = { NULL, 0, 0, false };
    gn__view_put(&b, v);
    FUZZ_CHECK(!b.failed);
    gn__span out = { b.p, b.n };
    if (b.n <= GN__VIEW_MOST) { /* short rows become whole ones */
        FUZZ_CHECK(gn__view_get(&out, &again, &f) == GN_OK);
        gn_session_view *theirs = again->sessions;
        FUZZ_CHECK(again->n_sessions == v->n_sessions &&
                   memcmp(theirs, v->sessions, v->n_sessions * sizeof *theirs) == 0);
        for (int k = 0; k < GN_TIMING__COUNT; k++) /* a row that counts nothing is not written */
            for (int p = 0; p < GN_PHASE__COUNT; p++)
                if (!v->times[k][p].count) memset(&v->times[k][p], 0, sizeof v->times[k][p]);
        again->sessions = v->sessions;
        FUZZ_CHECK(memcmp(again, v, sizeof *v) == 0);
        again->sessions = theirs;
        gn_server_view_free(again);
    }
    gn_server_view_free(v);
    gn__buf_deinit(&b);
    return 0;
}
