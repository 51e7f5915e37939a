/* Runs a case of genie_bench on Genie: checks its values beside double precision, then times its steps. */
#ifndef GN_SUITE_RUN_H
#define GN_SUITE_RUN_H

/* `as`: the dtype whose values the inputs have; `d`: the one they are kept and computed in. */
static void job_open(job *j, const bench_case *c, const settings *s, gn_ctx *g, gn_dtype as, gn_dtype d) {
    *j =
        (job){ .c = c, .g = g, .d = d, .batch = s->batch, .tokens = s->tokens, .layers = s->layers, .vocab = s->vocab };
    bool model = strcmp(c->workload, "gpt2") == 0 || strcmp(c->workload, "llama") == 0;
    j->hidden = s->hidden || model ? s->hidden : 2048;
    if (c->shape) c->shape(j);
    c->open(j);
    for (int i = 0; i < j->n_leaves; i++) {
        leaf *l = &j->leaves[i];
        gn_dtype kind = l->below ? GN_I32 : d;
        leaf_fill(l, i, as, d);
        l->t =
            l->state ? gn_state(g, kind, l->shape, l->host, l->name) : gn_weight(g, kind, l->shape, l->host, l->name);
    }
    if (!model) return;
    /* of the host's memory: the first token of each sequence */
    j->token = gn_state(g, GN_I32, GN_SHAPE(j->batch), j->leaves[0].host, "token");
}

static void job_close(job *j) {
    if (j->kept.ctx) gn_release(j->kept);
    if (j->token.ctx) gn_release(j->token);
    for (int i = 0; i < j->n_leaves; i++) {
        gn_release(j->leaves[i].t);
        free(j->leaves[i].host);
    }
    memset(j, 0, sizeof *j);
}

/* Bytes that the inputs take in double precision. */
static double job_bytes(const job *j) {
    double sum = 0;
    for (int i = 0; i < j->n_leaves; i++) sum += 8. * (double)count_of(&j->leaves[i].shape);
    return sum;
}

/* Elements 7919 i mod n, SAMPLE of them or all: the same that the adapters give. */
static int sample_of(const double *value, size_t n, double *out) {
    int many = n < SAMPLE ? (int)n : SAMPLE;
    for (int i = 0; i < many; i++) out[i] = value[(size_t)i * 7919 % n];
    return many;
}

/* A sample of the tensor, in double; ends the step. */
static int read_sample(job *j, gn_tensor t, double *out) {
    gn_info info;
    ok_or_die(j->g, gn_describe(t, &info), j->c->workload);
    size_t n = count_of(&info.shape);
    double *all = or_die(malloc(n * sizeof *all));
    memset(all, 0xff, n * sizeof *all); /* NaN */
    ok_or_die(j->g, gn_read(gn_cast(t, GN_F64), all, n * sizeof *all), j->c->workload);
    int many = sample_of(all, n, out);
    free(all);
    ok_or_die(j->g, gn_step(j->g), j->c->workload);
    return many;
}

/* What the first steps compute. */
static int job_check(job *j, double *out) {
    int n = 0;
    for (int i = 0; i < j->c->checks; i++) n += read_sample(j, j->c->value(j, i), out + n);
    return n;
}

/* Largest difference, relative to the largest number wanted. */
static double sample_error(const double *got, const double *want, int n) {
    largest_error e = { 0 };
    for (int i = 0; i < n; i++) error_add(&e, got[i], want[i]);
    return error_of(&e);
}

static gn_dtype dtype_of(const char *name) {
    static const gn_dtype all[] = { GN_F32, GN_F16, GN_BF16, GN_F64 };
    for (int i = 0; i < 4; i++)
        if (!strcmp(gn_dtype_name(all[i]), name)) return all[i];
    return GN_DTYPE_NONE;
}

/* Of values beside double precision, relative to the largest: what roundings of a dozen layers come to. */
static double bound_of(gn_dtype d) { return d == GN_F64 ? 1e-10 : d == GN_F32 ? 1e-4 : d == GN_F16 ? 0.02 : 0.08; }

/* The same in double precision on this CPU, of inputs that are rounded in the same way. False: too large for here. */
static bool job_refer(const job *j, const settings *s, gn_dtype as, double *out, int *out_n) {
    job r;
    double free_bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (s->no_reference || 2.5 * job_bytes(j) > free_bytes) return false;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = (uint32_t)s->threads });
    ok_or_die(g, gn_status(g), "cpu");
    job_open(&r, j->c, s, g, as, GN_F64);
    *out_n = job_check(&r, out);
    job_close(&r);
    gn_close(g);
    return true;
}

static void step_once(job *j, int step) {
    gn_tensor value = j->c->value(j, step);
    if (j->c->answer) {
        int64_t out[4096];
        gn_tensor answer = j->c->answer(j, value);
        gn_info info;
        ok_or_die(j->g, gn_describe(answer, &info), j->c->workload);
        size_t bytes = count_of(&info.shape) * gn_dtype_bytes(info.dtype);
        if (bytes > sizeof out) die("--batch is at most %zu", sizeof out / sizeof *out);
        ok_or_die(j->g, gn_read(answer, out, bytes), j->c->workload);
        ok_or_die(j->g, gn_step(j->g), j->c->workload);
        return;
    }
    if (!j->kept.ctx) {
        gn_info info;
        ok_or_die(j->g, gn_describe(value, &info), j->c->workload);
        j->kept = gn_state(j->g, info.dtype, info.shape, NULL, "result");
    }
    gn_assign(j->kept, value);
    ok_or_die(j->g, gn_step(j->g), j->c->workload);
    ok_or_die(j->g, gn_sync(j->g), j->c->workload);
}

/* A round: warm-up, then timed steps. */
static run job_time(job *j, const settings *s) {
    double *ms = or_die(malloc((size_t)s->iters * sizeof *ms)), sum = 0;
    gn_stats stats;
    for (int64_t i = -s->warmup; i < s->iters; i++) {
        double start = ex_now();
        step_once(j, (int)(i + s->warmup) + j->c->checks);
        if (i >= 0) sum += ms[i] = (ex_now() - start) * 1e3;
    }
    gn_get_stats(j->g, &stats); /* of a CPU it is all of the process that counts, as with other stacks */
    double memory = strncmp(s->device, "cpu", 3) == 0 ? host_memory() : (double)stats.device_bytes;
    run out = { summarize(ms, (int)s->iters), j->c->count(j) * (double)s->iters / (sum * 1e-3),
                memory > 0 ? memory : NAN };
    free(ms);
    return out;
}

/* What the timed steps left is what the checked step gave; of those that leave nothing there is nothing to see. */
static bool job_same(job *j, const double *sample) {
    double last[SAMPLE];
    if (!j->kept.ctx) return true;
    int n = read_sample(j, j->kept, last);
    return memcmp(last, sample, (size_t)n * sizeof *last) == 0;
}

#endif
