/* genie_bench ablate: the workload with each documented switch off, alone, in processes of their own, which take turns
 * with one in which nothing is off. What a switch is worth is how much longer a step takes without it. Switches that
 * matter to several devices alone (GENIE_CUDA_PEER, GENIE_MEASURE, GENIE_RESCHEDULE) are not here: this runs on one. */
#ifndef GN_SUITE_ABLATE_H
#define GN_SUITE_ABLATE_H

typedef struct ablation {
    const char *device, *set, *what; /* device: what its name begins with */
} ablation;

static const ablation ablations[] = {
    { "cuda", "GENIE_CUDA_POOL=0", "stream-ordered memory pool" },
    { "cuda", "GENIE_CUDA_GRAPH=0", "replay of captured graphs" },
    { "cuda", "GENIE_CUDA_FUSE=0", "fusion" },
    { "cuda", "GENIE_CUDA_EPILOGUE=0", "loops in the kernels of products" },
    { "cuda", "GENIE_CUDA_TENSOR=0", "tensor cores" },
    { "cuda", "GENIE_CUDA_WGMMA=0", "kernels for sm_90a alone" },
    { "cuda", "GENIE_CUDA_CLUSTER=0", "clusters of blocks" },
    { "cuda", "GENIE_CUBLASLT=0", "cuBLASLt" },
    { "cuda", "GENIE_CUDA_TUNE=0", "products chosen by measuring" },
    { "cuda", "GENIE_CUDA_OVERLAP=0", "overlap" },
    { "cuda", "GENIE_CUDA_EVICT=0", "eviction" },
    { "cpu", "GENIE_THREADS=1", "threads" },
    { "cpu", "GENIE_ISA=avx2", "instructions above AVX2" },
    { "cpu", "GENIE_ISA=base", "instructions above the base" },
};
enum { ABLATIONS = sizeof ablations / sizeof *ablations };

/* A run of this program with one variable more; its result is read from the folder. */
static void ablate_child(const settings *s, const char *workload, const char *set, int round, const char *folder) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "--batch", s->batch },   { "--hidden", s->hidden },   { "--tokens", s->tokens },
                    { "--layers", s->layers }, { "--vocab", s->vocab },     { "--iters", s->iters },
                    { "--warmup", s->warmup }, { "--threads", s->threads }, { "--rounds", 1 } };
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    char number[NUMBERS][24], setting[80];
    const char *args[16 + 2 * NUMBERS] = { "genie_bench", workload, "--device", s->device, "--dtype",      s->dtype,
                                           "--tag",       "part",   "--out",    folder,    "--no-adapters" };
    int n = 11, ended = 0;
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(number[i], sizeof number[i], "%lld", (long long)numbers[i].value);
        args[n++] = numbers[i].name;
        args[n++] = number[i];
    }
    if (round || s->no_reference) args[n++] = "--no-reference";
    snprintf(setting, sizeof setting, "%s", set ? set : "");
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        if (set) putenv(setting);
        if (!freopen("/dev/null", "w", stdout)) _exit(127);
        execv("/proc/self/exe", (char **)(uintptr_t)args);
        _exit(127);
    }
    if (process < 0) die("fork: %s", strerror(errno));
    while (waitpid(process, &ended, 0) < 0 && errno == EINTR) { }
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != EX_OK) die("the run with %s failed", set ? set : "nothing off");
}

/* Adds the run of each case to the results of this setting. */
static void ablate_take(report *all, const char *who, int round, const char *folder) {
    char path[PATH_MAX];
    json_value root;
    report *part = or_die(malloc(sizeof *part));
    snprintf(path, sizeof path, "%s/part.json", folder);
    char *text = read_report(path, part, &root);
    for (int i = 0; i < part->n; i++) {
        const result *from = &part->results[i];
        const result *known = find_result(all, from, who);
        result *to = known ? (result *)(uintptr_t)known : add_result(all, who, from->workload, from->name, from->unit);
        if (from->status != OK) die("%s of %s: %s", case_name(from), who, from->reason);
        if (!round) {
            to->error = from->error;
            to->bound = from->bound;
            snprintf(to->error_of, sizeof to->error_of, "%s", from->error_of);
        }
        to->host_memory = from->host_memory;
        to->runs[to->n_runs++] = from->runs[0];
        result_sum(to);
    }
    free(text);
    free(part);
}

/* Cases together, each with its base first. */
static void ablate_lines(const report *all, lines *l) {
    l->n = 0;
    for (int i = 0; i < all->n; i++) {
        const result *base = &all->results[i];
        if (strcmp(base->who, "genie") != 0) continue;
        for (int k = 0; k < all->n; k++)
            if (find_result(all, base, all->results[k].who) == &all->results[k])
                add_line(l, base, &all->results[k], "");
    }
}

static void ablate_worth(const lines *l) {
    for (int i = 0; i < l->n; i++) {
        if (l->all[i].base == l->all[i].r) continue;
        verdict v = judge(l->all[i].base, l->all[i].r);
        const char *what = "";
        for (int k = 0; k < ABLATIONS; k++)
            if (!strcmp(ablations[k].set, l->all[i].r->who)) what = ablations[k].what;
        printf("%-18s without %-34s %6.3f times as long%s\n", case_name(l->all[i].r), what, v.ratio,
               v.beyond ? "" : ", within the spread");
    }
}

static bool is_ablated(const settings *s, const ablation *a) {
    return strncmp(s->device, a->device, strlen(a->device)) == 0 && (!s->only || strstr(a->set, s->only));
}

static void run_ablate(const settings *s, const char *workload, report *all) {
    char folder[] = "/tmp/genie-bench-XXXXXX";
    lines *l = or_die(malloc(sizeof *l));
    if (!mkdtemp(folder)) die("%s: %s", folder, strerror(errno));
    int switches = 0;
    for (int i = 0; i < ABLATIONS; i++) switches += is_ablated(s, &ablations[i]);
    if (!switches) die("no switch of %s has '%s' in its name", s->device, s->only ? s->only : "");
    for (int round = 0; round < s->rounds; round++)
        for (int i = -1; i < ABLATIONS; i++) {
            const char *set = i < 0 ? NULL : ablations[i].set;
            if (set && !is_ablated(s, &ablations[i])) continue;
            ablate_child(s, workload, set, round, folder);
            ablate_take(all, set ? set : "genie", round, folder);
        }
    nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ablate_lines(all, l);
    ablate_worth(l);
    compare_lines(s, l, false);
    free(l);
}

#endif
