/* Reading errors: builders never fail loudly; the read says what went wrong first, where, and with which shapes. The
 * context lives on: after each of these mistakes the next good read works.
 *
 *   ./examples/errors
 *   ./examples/errors --connect @genie.url
 */
#include "common.h"

static int wrong;

/* Prints what the context says about a mistake; it must be the result named. */
static void expect(gn_ctx *g, gn_result want, gn_result got, const char *mistake) {
    const gn_error *e = gn_last_error(g);
    printf("%s\n  %s%s%s: %s\n", mistake, ex_color("\033[1m"), gn_result_name(got), ex_color("\033[0m"),
           got == GN_OK ? "" : e->text);
    if (got != GN_OK && e->line) printf("  op %s, label '%s', %s:%d\n", e->op, e->label, e->file, e->line);
    if (got != want) {
        printf("  FAILED: expected %s\n", gn_result_name(want));
        wrong++;
    }
}

static void good_read(gn_ctx *g) {
    float one = 0;
    if (!ex_check(g, gn_read(gn_full(g, GN_F32, GN_SHAPE(1), 1), &one, sizeof one), "a good read") || one != 1) wrong++;
}

static void mistakes(gn_ctx *g) {
    const float six[6] = { 1, 2, 3, 4, 5, 6 };
    const int32_t zeros[2] = { 0, 0 }, far[2] = { 1, 9 };
    float out[6];
    int32_t ints[2];

    gn_tensor a = gn_label(gn_data(g, GN_F32, GN_SHAPE(2, 3), six), "a");
    gn_tensor product = gn_label(gn_matmul(a, a), "scores"); /* the cause, noticed here… */
    gn_tensor later = gn_relu(gn_mul_c(product, 2));         /* …carried along… */
    expect(g, GN_BAD_SHAPE, gn_read(later, out, sizeof out), "shapes that do not fit, three ops before the read:");
    good_read(g);

    gn_tensor i = gn_data(g, GN_I32, GN_SHAPE(2), zeros);
    expect(g, GN_BAD_DTYPE, gn_read(gn_exp(i), out, 2 * sizeof(float)), "an op that takes floats, given ints:");
    expect(g, GN_BAD_SIZE, gn_read(a, out, 5 * sizeof(float)), "a buffer of the wrong size:");
    good_read(g);

    gn_tensor ones = gn_full(g, GN_I32, GN_SHAPE(2), 1);
    expect(g, GN_DIVISION_BY_ZERO, gn_read(gn_div(ones, i), ints, sizeof ints),
           "integers divided by zero, seen where it is computed:");
    good_read(g);

    gn_tensor rows = gn_embedding(a, gn_data(g, GN_I32, GN_SHAPE(2), far));
    expect(g, GN_INDEX_OUT_OF_RANGE, gn_read(rows, out, sizeof out),
           "row 9 of a table of two rows, seen where it is computed:");
    good_read(g);

    if (!ex_check(g, gn_step(g), "step")) wrong++;
    expect(g, GN_STALE_HANDLE, gn_read(a, out, sizeof out), "a handle of an earlier step:");
    good_read(g);
}

int main(int argc, char **argv) {
    const char *connect = NULL;
    const ex_option options[] = {
        { "connect", EX_MAYBE, &connect, "WHERE",
          "a URL, @FILE, - or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "errors shows how mistakes are reported.", options);
    ex_place place;
    if (!ex_place_open(&place, connect, NULL)) return EX_FAILED;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    bool open = ex_check(g, gn_status(g), "cannot connect");
    if (open) mistakes(g);
    gn_tensor t = gn_full(g, GN_F32, GN_SHAPE(1), 1);
    gn_close(g);
    float one;
    if (open) expect(g, GN_CLOSED_CONTEXT, gn_read(t, &one, sizeof one), "a closed context:");
    ex_place_close(&place);
    if (open) ex_verdict(!wrong, "every mistake was reported, and nothing after it was lost");
    return open && !wrong ? EX_OK : EX_FAILED;
}
