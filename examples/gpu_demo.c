/* The three phases of a value on a GPU of this machine: captured (an expression is noted), deferred (nothing has run),
 * executed (where, by which kernels, how long).
 *
 *   ./examples/gpu_demo
 *   ./examples/gpu_demo --device cuda:1
 */
#include "common.h"
#include <dirent.h>

enum { N = 100 };

static gn_tensor capture(gn_ctx *g, const float *ones) { /* sum(mean(relu(x x + x))): 101 of each column, 100 columns */
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(N, N), ones);
    gn_tensor h = gn_relu(gn_add(gn_matmul(x, x), x));
    return gn_sum(gn_mean(h, GN_AXES(0), false), GN_ALL_AXES, false);
}

static void show_state(gn_ctx *g, const char *phase, gn_tensor y, double seconds) {
    gn_info i;
    gn_stats s;
    gn_describe(y, &i);
    gn_get_stats(g, &s);
    ex_row(phase, "%s %s%s; so far %llu nodes, %llu plans, %llu kernels run, %llu bytes to the GPU, %llu back; %.1f us",
           i.op, i.computed ? "has a value on " : "has no value", i.computed ? i.device : "",
           (unsigned long long)s.nodes_built, (unsigned long long)s.plans_made, (unsigned long long)s.kernels_run,
           (unsigned long long)s.bytes_to_device, (unsigned long long)s.bytes_to_host, 1e6 * seconds);
}

/* The executor writes each kernel's source into $GENIE_DUMP_KERNELS. */
static void show_kernels(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d)) != NULL;) {
        const char *hash = strrchr(f->d_name, '_');
        if (hash && strncmp(f->d_name, "canary", 6) != 0) ex_row("", "kernel %.*s", (int)(hash - f->d_name), f->d_name);
    }
    if (d) closedir(d);
}

static bool execute(gn_ctx *g, gn_tensor y, float *out) {
    return ex_check(g, gn_realize(&y, 1), "realise") && ex_check(g, gn_read(y, out, sizeof *out), "read");
}

static bool run(gn_ctx *g, const char *folder) {
    static float ones[N * N];
    float out = 0;
    gn_device_info device;
    for (int i = 0; i < N * N; i++) ones[i] = 1;
    double start = ex_now();
    gn_tensor y = capture(g, ones);
    show_state(g, "captured", y, ex_now() - start);
    show_state(g, "deferred", y, 0);
    start = ex_now();
    if (!execute(g, y, &out)) return false;
    show_state(g, "executed", y, ex_now() - start);
    show_kernels(folder);
    gn_step(g);
    start = ex_now();
    if (!execute(g, capture(g, ones), &out) || !ex_check(g, gn_step(g), "step")) return false;
    ex_row("again", "%.1f us from the first builder to the value: plan and kernels were known",
           1e6 * (ex_now() - start));
    gn_get_device(g, &device);
    ex_row("device", "%s: %s", device.name, device.identity);
    ex_verdict(out == 10100, "the value is 10100");
    return out == 10100;
}

int main(int argc, char **argv) {
    const char *name = "cuda:0";
    const ex_option options[] = {
        { "device", EX_TEXT, &name, "NAME", "a GPU of this machine (cuda:0)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    char folder[] = "/tmp/genie-demo-XXXXXX";
    ex_parse(argc, argv,
             "gpu_demo shows when a GPU computes: not when an expression is written, but when its value is asked for.",
             options);
    if (!mkdtemp(folder)) {
        perror(folder);
        return EX_FAILED;
    }
    setenv("GENIE_DUMP_KERNELS", folder, 1);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = name });
    bool ok = ex_check(g, gn_status(g), "no GPU") && run(g, folder);
    gn_close(g);
    nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return ok ? EX_OK : EX_FAILED;
}
