/* bench_gpu: PyTorch in a process of its own, bench/windows_torch.py by the interpreter $TORCH_BENCH. Its readings lie
   between ours. */

#include "other_side.h"

static struct torch_side {
    other_side side;
    double ratio[64]; /* of rows that have a counterpart: our time over its own */
    int n;
} torch_side;

static void torch_open(void) { side_open(&torch_side.side, "TORCH_BENCH", "bench/windows_torch.py", NULL); }

static double torch_ask(const char *line) { return side_ask(&torch_side.side, line); }

/* Seconds of a run of what `line` has prepared, between two of our samples. */
static double torch_time(int each) {
    char line[32];
    snprintf(line, sizeof line, "time %d", each);
    return torch_ask(line);
}

/* After a row's note: its time, and how ours compares. */
static void torch_note(row *r, double ours, double *theirs, int n) {
    size_t at = strlen(r->note);
    if (!torch_side.side.ask || n < 1 || isnan(theirs[0])) return;
    double time = quantile(theirs, n, 0.5), ratio = ours / time;
    snprintf(r->note + at, sizeof r->note - at, "; PyTorch %.1f us, x %.2f", 1e6 * time, ratio);
    if (torch_side.n < (int)(sizeof torch_side.ratio / sizeof *torch_side.ratio))
        torch_side.ratio[torch_side.n++] = ratio;
}

/* Of all rows so far that have a counterpart. */
static void torch_sum(const char *what) {
    if (torch_side.n)
        printf("%s beside PyTorch: %d rows, our time over its own: median %.2f, worst %.2f\n", what, torch_side.n,
               quantile(torch_side.ratio, torch_side.n, 0.5), quantile(torch_side.ratio, torch_side.n, 1));
    torch_side.n = 0;
}

static void torch_close(void) {
    side_close(&torch_side.side);
    torch_side = (struct torch_side){ 0 };
}
