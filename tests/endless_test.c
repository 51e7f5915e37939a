/* Clients for watchdog_test.sh, which runs this with $GENIE_TEST_ENDLESS; alone it skips. Of $GENIE_DEVICES:
 *     endless   runs a step without end on a CPU, tells how it ended; 0 if with an error
 *     atanh     the same of a step with a kernel that tests/cuda_shim.c lets hang on demand
 *     honest N  short steps for N seconds: tells the longest; 0 if none failed
 *
 * Tier: quick address */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include <unistd.h>

static double now_s(void) { return (double)gn_now_us() * 1e-6; }

static gn_result run_honest(gn_ctx *g) {
    float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, out = 0;
    gn_result r = gn_read(gn_sum(gn_exp(gn_data(g, GN_F32, GN_SHAPE(8), x)), GN_ALL_AXES, false), &out, sizeof out);
    if (r == GN_OK && !(out > 4700 && out < 4730)) {
        printf("a wrong sum: %g\n", (double)out);
        r = GN_INTERNAL;
    }
    gn_result stepped = gn_step(g);
    return r != GN_OK ? r : stepped;
}

static int honest(gn_ctx *g, double seconds) {
    double end = now_s() + seconds, most = 0;
    int steps = 0;
    for (gn_result r = GN_OK; now_s() < end; steps++) {
        double begin = now_s();
        r = run_honest(g);
        if (r != GN_OK) {
            printf("step %d: %s: %s\n", steps, gn_result_name(r), gn_last_error(g)->text);
            return 1;
        }
        most = now_s() - begin > most ? now_s() - begin : most;
        usleep(20000);
    }
    printf("%d steps, the longest %.3f s\n", steps, most);
    return steps < 3 || most > 3;
}

static int endless(gn_ctx *g, bool hangs) {
    static const int64_t zero = 0;
    static const float half = 0.5f;
    float out = 0;
    int64_t places[4];
    double begin = now_s();
    gn_result r =
        hangs ? gn_read(gn_atanh(gn_data(g, GN_F32, GN_SHAPE(1), &half)), &out, sizeof out)
              : gn_read(gn_nonzero(gn_broadcast(gn_data(g, GN_I64, GN_SHAPE(1), &zero), GN_SHAPE((int64_t)1 << 38)), 4),
                        places, sizeof places);
    printf("%s after %.1f s: %s\n", gn_result_name(r), now_s() - begin, gn_last_error(g)->text);
    return r == GN_OK;
}

int main(int argc, char **argv) {
    const char *what = getenv("GENIE_TEST_ENDLESS");
    if (!what) {
        test_begin(argc, argv);
        printf("SKIP: endless_test: watchdog_test.sh runs this (GENIE_TEST_ENDLESS)\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    gn_ctx *g = gn_open(NULL);
    if (gn_status(g) != GN_OK) {
        printf("not opened: %s: %s\n", gn_result_name(gn_status(g)), gn_last_error(g)->text);
        return 2;
    }
    printf("begun\n");
    fflush(stdout);
    int status = strncmp(what, "honest ", 7) == 0 ? honest(g, atof(what + 7)) : endless(g, strcmp(what, "atanh") == 0);
    fflush(stdout);
    gn_close(g);
    return status;
}
