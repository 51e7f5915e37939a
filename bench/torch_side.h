/* bench_gpu: PyTorch in a process of its own, bench/windows_torch.py by the interpreter $TORCH_BENCH. Its readings lie
   between ours. */

static struct torch_side {
    FILE *ask, *answer;
    pid_t child;
    double ratio[64]; /* of rows that have a counterpart: our time over its own */
    int n;
} torch_side;

static void torch_open(void) {
    static const char script[] = "bench/windows_torch.py";
    const char *python = getenv("TORCH_BENCH");
    int in[2], out[2];
    if (!python || !*python || torch_side.child) return;
    if (access(script, R_OK) != 0) failed("bench/windows_torch.py is not here: start this in the repository's folder");
    signal(SIGPIPE, SIG_IGN);
    if (access(script, R_OK) != 0 || pipe(in) || pipe(out)) return;
    fflush(NULL);
    torch_side.child = fork();
    if (torch_side.child == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int i = 0; i < 2; i++) {
            close(in[i]);
            close(out[i]);
        }
        execlp(python, python, script, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    torch_side.ask = fdopen(in[1], "w");
    torch_side.answer = fdopen(out[0], "r");
    if (!torch_side.ask || !torch_side.answer) exit(EX_FAILED);
    setvbuf(torch_side.ask, NULL, _IOLBF, 4096);
}

/* The number that answers a line; NAN: there is no other side, or it cannot, which is said. */
static double torch_ask(const char *line) {
    char answer[300];
    if (!torch_side.ask) return NAN;
    fprintf(torch_side.ask, "%s\n", line);
    if (!fgets(answer, sizeof answer, torch_side.answer)) {
        failed("PyTorch's side has ended");
        fclose(torch_side.ask);
        fclose(torch_side.answer);
        torch_side.ask = torch_side.answer = NULL;
        return NAN;
    }
    if (strncmp(answer, "no ", 3) != 0) return strtod(answer, NULL);
    fprintf(stderr, "bench_gpu: PyTorch: %s", answer);
    return NAN;
}

/* Seconds of a run of what `line` has prepared, between two of our samples. */
static double torch_time(int each) {
    char line[32];
    snprintf(line, sizeof line, "time %d", each);
    return torch_ask(line);
}

/* After a row's note: its time, and how ours compares. */
static void torch_note(row *r, double ours, double *theirs, int n) {
    size_t at = strlen(r->note);
    if (!torch_side.ask || n < 1 || isnan(theirs[0])) return;
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
    if (torch_side.ask) fclose(torch_side.ask);
    if (torch_side.answer) fclose(torch_side.answer);
    if (torch_side.child > 0) waitpid(torch_side.child, NULL, 0);
    torch_side = (struct torch_side){ 0 };
}
