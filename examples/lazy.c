/* What is deferred, what is computed, and where: builders only note the expression; a read computes what it needs,
 * once.
 *
 *   ./examples/lazy
 *   ./examples/lazy --connect @genie.url
 */
#include "common.h"

static void show(const char *when, const char *name, gn_tensor t) {
    gn_info i;
    gn_describe(t, &i);
    printf("  %-14s %-8s %-9s %s (", when, name, i.op, gn_dtype_name(i.dtype));
    for (int d = 0; d < i.shape.rank; d++) printf(d ? ",%lld" : "%lld", (long long)i.shape.dims[d]);
    printf(") %s%s\n", i.computed ? "has a value on " : "not computed",
           !i.computed   ? ""
           : i.device[0] ? i.device
                         : "the host");
}

static void count(gn_ctx *g, const char *what) {
    gn_stats s;
    gn_get_stats(g, &s);
    printf("%-42s %llu nodes built, %llu runs, %llu plans made, %llu round trips\n", what,
           (unsigned long long)s.nodes_built, (unsigned long long)s.steps_run, (unsigned long long)s.plans_made,
           (unsigned long long)s.round_trips);
}

static bool one_step(gn_ctx *g, const float *data, bool talk) {
    float total = 0;
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(64, 64), data);
    gn_tensor h = gn_relu(gn_matmul(x, x));
    gn_tensor unused = gn_exp(gn_matmul(h, h)); /* nobody reads it: it never runs and is never sent */
    gn_tensor y = gn_sum(h, GN_ALL_AXES, false);
    if (talk) {
        show("before", "h", h);
        show("before", "y", y);
        count(g, "after building, before the read:");
        if (!ex_check(g, gn_realize(&h, 1), "realise")) return false;
    }
    if (!ex_check(g, gn_read(y, &total, sizeof total), "read")) return false;
    if (talk) {
        show("after the read", "h", h);
        show("after the read", "unused", unused);
        printf("  y = %g\n", (double)total);
    }
    return ex_check(g, gn_step(g), "step"); /* the step's nodes are recycled */
}

int main(int argc, char **argv) {
    const char *connect = NULL;
    const ex_option options[] = {
        { "connect", EX_MAYBE, &connect, "WHERE",
          "a URL, @FILE, - or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    static float data[64 * 64];
    for (int i = 0; i < 64 * 64; i++) data[i] = (float)(i % 7) - 3;
    ex_parse(argc, argv, "lazy shows what is deferred, what is computed, and where.", options);
    ex_place place;
    if (!ex_place_open(&place, connect, NULL)) return EX_FAILED;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    bool ok = ex_check(g, gn_status(g), "cannot connect") && one_step(g, data, true);
    count(g, "after one step:");
    for (int i = 0; ok && i < 99; i++) ok = one_step(g, data, false);
    /* The loop without gn_realize is another structure, so it makes a second plan; then every step finds it. */
    count(g, "after 99 more of equal structure:");
    gn_close(g);
    ex_place_close(&place);
    return ok ? EX_OK : EX_FAILED;
}
