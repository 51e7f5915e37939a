/* What the parts of genie_bench share: settings, workloads, results. Parts of genie_bench.c, which includes them. */
#ifndef GN_SUITE_H
#define GN_SUITE_H

enum { MAX_LEAVES = 512, MAX_RESULTS = 256, MAX_RUNS = 16, SAMPLE = 256, CHECKS = 3, MAX_ADAPTERS = 32 };

typedef struct settings {
    const char *device, *dtype, *tag, *out, *only, *command; /* command: the one that was given, in one line */
    int64_t batch, hidden, tokens, layers, vocab, iters, warmup, rounds, limit, threads;
    bool no_adapters, no_reference, force, quick;
} settings;

/* An input: its numbers follow from the seed, its place in the list and the place in it, alike in every adapter. */
typedef struct leaf {
    const char *name;
    gn_shape shape;
    float middle, spread; /* floats from middle - spread to middle + spread */
    int64_t below;        /* above 0: integers from 0 to below - 1, as i32 */
    bool state;
    void *host;
    gn_tensor t;
} leaf;

/* A case of a workload on one context. */
typedef struct job {
    const struct bench_case *c;
    gn_ctx *g;
    gn_dtype d;
    int64_t batch, hidden, tokens, layers, vocab;           /* what the case makes of the settings */
    int64_t heads, kv_heads, head, feed_forward, room, new; /* models: room of a cache, tokens a step and sequence */
    leaf leaves[MAX_LEAVES];
    int n_leaves, n_taken;
    gn_tensor token, kept;
} job;

typedef struct bench_case {
    const char *workload, *name, *unit;
    void (*shape)(job *j);                        /* sets what is not as in the settings; may be NULL */
    void (*open)(job *j);                         /* takes the leaves, in the order of the adapters */
    gn_tensor (*value)(job *j, int step);         /* what is compared */
    gn_tensor (*answer)(job *j, gn_tensor value); /* what a step reads; NULL: the value stays on the device */
    double (*count)(const job *j);                /* units of throughput in a step */
    int checks;                                   /* steps whose values are compared */
} bench_case;

typedef enum outcome { OK, UNAVAILABLE, FAILED, INVALID, WRONG, STATUS__COUNT } outcome;
static const char *const status_names[STATUS__COUNT] = { "ok", "unavailable", "failed", "invalid", "wrong" };

/* One round of one contestant. */
typedef struct run {
    summary latency;   /* ms */
    double throughput; /* units a second */
    double memory;     /* bytes of the device at their highest; NAN: not known */
} run;

typedef struct result {
    char who[64], reason[256], versions[512], error_of[48]; /* versions: a JSON object */
    const bench_case *c;
    char workload[32], name[64], unit[16];
    outcome status;
    run runs[MAX_RUNS], all;
    int n_runs;
    double host_memory, error, bound;
    double sample[SAMPLE * CHECKS];
    int n_sample;
} result;

typedef struct report {
    result results[MAX_RESULTS];
    int n;
} report;

/* Ends the program with a sentence. */
#define die(...)                                                                                          \
    (fflush(stdout), fprintf(stderr, "genie_bench: "), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), \
     exit(EX_FAILED))

static void *or_die(void *p) {
    if (!p) die("out of memory");
    return p;
}

static void ok_or_die(gn_ctx *g, gn_result r, const char *what) {
    if (!ex_check(g, r, what)) exit(EX_FAILED);
}

static size_t count_of(const gn_shape *s) {
    size_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= (size_t)s->dims[i];
    return n;
}

/* The runs of a result as one: means of means, medians of quantiles, the extremes; the highest memory. */
static void result_sum(result *r) {
    double p50[MAX_RUNS], p95[MAX_RUNS], mean[MAX_RUNS], speed[MAX_RUNS];
    r->all = (run){ .latency = { .least = INFINITY, .most = 0 }, .memory = NAN };
    for (int i = 0; i < r->n_runs; i++) {
        const run *one = &r->runs[i];
        p50[i] = one->latency.p50;
        p95[i] = one->latency.p95;
        mean[i] = one->latency.mean;
        speed[i] = one->throughput;
        r->all.latency.least = fmin(r->all.latency.least, one->latency.least);
        r->all.latency.most = fmax(r->all.latency.most, one->latency.most);
        r->all.memory = fmax(r->all.memory, one->memory);
    }
    r->all.latency.mean = summarize(mean, r->n_runs).mean;
    r->all.latency.p50 = quantile(p50, r->n_runs, 0.5);
    r->all.latency.p95 = quantile(p95, r->n_runs, 0.5);
    r->all.throughput = quantile(speed, r->n_runs, 0.5);
}

#endif
