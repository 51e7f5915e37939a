/* genie_bench traces: what GENIE_TRACE costs. The steps of three contexts take turns: one that is not traced, one that
 * records stages and one that records each kernel too; here, and over TLS on a server in this process. Their files are
 * written meanwhile. */
#ifndef GN_SUITE_TRACES_H
#define GN_SUITE_TRACES_H

enum { TRACED = 3 };
static const char *const traced_names[TRACED] = { "genie", "stages", "kernels" };

typedef struct traced {
    gn_ctx *g;
    job j;
    double *ms, sum;
    result *r;
} traced;

static void traced_open(traced *t, int k, const bench_case *c, const settings *s, const ex_place *far,
                        const char *folder) {
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/%s.jsonl", folder, traced_names[k]);
    t->g = gn_open(&(gn_desc){ .devices = far ? far->devices : s->device,
                               .home = far ? far->home : NULL,
                               .threads = (uint32_t)s->threads,
                               .trace_file = k ? file : NULL,
                               .trace_kernels = k == 2 });
    ok_or_die(t->g, gn_status(t->g), s->device);
    job_open(&t->j, c, s, t->g, dtype_of(s->dtype), dtype_of(s->dtype));
    t->ms = or_die(malloc((size_t)s->iters * sizeof *t->ms));
}

/* Who begins changes from step to step. */
static void traced_round(traced *t, const settings *s) {
    for (int k = 0; k < TRACED; k++) t[k].sum = 0;
    for (int64_t i = -s->warmup; i < s->iters; i++)
        for (int n = 0; n < TRACED; n++) {
            traced *one = &t[(n + i + s->warmup) % TRACED];
            double start = ex_now();
            step_once(&one->j, (int)(i + s->warmup));
            if (i >= 0) one->sum += one->ms[i] = (ex_now() - start) * 1e3;
        }
    for (int k = 0; k < TRACED; k++) {
        double speed = t[k].j.c->count(&t[k].j) * (double)s->iters / (t[k].sum * 1e-3);
        t[k].r->runs[t[k].r->n_runs++] = (run){ summarize(t[k].ms, (int)s->iters), speed, NAN };
    }
}

/* Who is traced computes the same bits. */
static void traced_check(traced *t) {
    for (int k = 0; k < TRACED; k++) {
        result *r = t[k].r;
        r->n_sample = job_check(&t[k].j, r->sample);
        r->error = sample_error(r->sample, t[0].r->sample, r->n_sample);
        r->bound = 0;
        snprintf(r->error_of, sizeof r->error_of, "untraced values");
        if (r->error == 0) continue;
        r->status = WRONG;
        snprintf(r->reason, sizeof r->reason, "values are not those that are computed without a trace");
    }
}

/* Of p50, and of the mean, which has the steps that are recorded where most are left out. */
static void traced_line(const traced *t, const char *where) {
    const run *off = &t[0].r->all;
    printf("%-14s %-6s %9.4f ms, ", case_name(t[0].r), where, off->latency.p50);
    for (int k = 1; k < TRACED; k++) {
        const run *on = &t[k].r->all;
        printf("%s%s %+.1f %% (mean %+.1f %%)", k > 1 ? ", " : "", traced_names[k],
               100 * (on->latency.p50 / off->latency.p50 - 1), 100 * (off->throughput / on->throughput - 1));
    }
    putchar('\n');
    fflush(stdout);
}

static void traced_case(const bench_case *c, const settings *s, const ex_place *far, const char *folder, report *all) {
    traced *t = or_die(calloc(TRACED, sizeof *t));
    char who[32];
    for (int k = 0; k < TRACED; k++) {
        traced_open(&t[k], k, c, s, far, folder);
        snprintf(who, sizeof who, "%s%s", traced_names[k], far ? " over TLS" : "");
        t[k].r = add_result(all, who, c->workload, c->name, c->unit);
    }
    traced_check(t);
    for (int64_t round = 0; round < s->rounds; round++) traced_round(t, s);
    for (int k = 0; k < TRACED; k++) result_sum(t[k].r);
    traced_line(t, far ? "TLS" : "here");
    for (int k = 0; k < TRACED; k++) {
        job_close(&t[k].j);
        gn_close(t[k].g);
        free(t[k].ms);
    }
    free(t);
}

static void run_traces(const settings *s, const char *words, report *all) {
    char *list = or_die(strdup(words)), *rest = NULL;
    ex_place far = { 0 };
    if (!ex_own_server(&far, s->device)) exit(EX_FAILED);
    printf("Medians of %lld runs of %lld steps: not traced, and how much longer a step takes with a trace.\n\n",
           (long long)s->rounds, (long long)s->iters);
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int before = all->n;
        for (int i = 0; i < CASES; i++) {
            if (!is_case(word, cases[i].workload, cases[i].name)) continue;
            traced_case(&cases[i], s, NULL, far.folder, all);
            traced_case(&cases[i], s, &far, far.folder, all);
        }
        if (all->n == before) no_workload(word, false);
    }
    ex_place_close(&far);
    free(list);
}

#endif
