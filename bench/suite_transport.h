/* What the way to a server costs, in genie_bench: a round trip, weights up, values down, over TLS. The server is that
 * of --device if it is one, else one in this process over --device. Values are compared bit by bit. */
#ifndef GN_SUITE_TRANSPORT_H
#define GN_SUITE_TRANSPORT_H

typedef struct transport {
    gn_ctx *g;
    int64_t side; /* weights and values are (side, side) of f32 */
    float *host, *back;
    gn_tensor weight;
} transport;

/* Each gives seconds, or a negative number when a value is wrong. */
static double trip_step(transport *t, int64_t i) {
    float x[64], y[64];
    for (int k = 0; k < 64; k++) x[k] = (float)(i + k);
    double start = ex_now();
    ok_or_die(t->g, gn_read(gn_add_c(gn_data(t->g, GN_F32, GN_SHAPE(64), x), 1), y, sizeof y), "round trip");
    double took = ex_now() - start;
    for (int k = 0; k < 64; k++)
        if (y[k] != x[k] + 1) return -1;
    ok_or_die(t->g, gn_step(t->g), "round trip");
    return took;
}

static double upload_step(transport *t, int64_t i) {
    size_t n = (size_t)(t->side * t->side);
    float last = NAN;
    (void)i;
    for (size_t k = 0; k < n; k += 64) t->host[k] = draw(); /* the server has not seen it */
    t->host[n - 1] = draw();
    double start = ex_now();
    gn_tensor w = gn_weight(t->g, GN_F32, GN_SHAPE((int64_t)n), t->host, "w");
    ok_or_die(t->g, gn_read(gn_slice(w, 0, (int64_t)n - 1, (int64_t)n, 1), &last, sizeof last), "upload");
    double took = ex_now() - start;
    ok_or_die(t->g, gn_step(t->g), "upload");
    gn_release(w);
    return last == t->host[n - 1] ? took : -1;
}

static double download_step(transport *t, int64_t i) {
    size_t n = (size_t)(t->side * t->side);
    float factor = (float)(1 + i % 7);
    memset(t->back, 0xff, n * sizeof *t->back);
    gn_tensor y = gn_mul(t->weight, gn_scalar(t->g, GN_F32, (double)factor));
    ok_or_die(t->g, gn_realize(&y, 1), "download");
    ok_or_die(t->g, gn_sync(t->g), "download");
    double start = ex_now();
    ok_or_die(t->g, gn_read(y, t->back, n * sizeof *t->back), "download");
    double took = ex_now() - start;
    ok_or_die(t->g, gn_step(t->g), "download");
    for (size_t k = 0; k < n; k++)
        if (t->back[k] != t->host[k] * factor) return -1;
    return took;
}

static const struct {
    const char *name, *unit;
    double (*step)(transport *t, int64_t i);
    bool bytes; /* throughput is of the tensor's bytes, else of steps */
} ways[] = { { "rtt", "steps", trip_step, false },
             { "upload", "bytes", upload_step, true },
             { "download", "bytes", download_step, true } };

static void transport_runs(transport *t, size_t way, const settings *s, result *r) {
    double *ms = or_die(malloc((size_t)s->iters * sizeof *ms)), bytes = 4. * (double)(t->side * t->side);
    for (r->n_runs = 0; r->n_runs < s->rounds && r->status == OK; r->n_runs++) {
        double sum = 0;
        for (int64_t i = -s->warmup; i < s->iters; i++) {
            double took = ways[way].step(t, i + s->warmup);
            if (took < 0) r->status = WRONG;
            if (i >= 0) sum += ms[i] = took * 1e3;
        }
        r->runs[r->n_runs] =
            (run){ summarize(ms, (int)s->iters), (double)s->iters * (ways[way].bytes ? bytes : 1) / (sum * 1e-3), NAN };
    }
    if (r->status == WRONG) snprintf(r->reason, sizeof r->reason, "a value that came back is another");
    r->error = r->status == OK ? 0 : NAN;
    r->bound = 0;
    snprintf(r->error_of, sizeof r->error_of, "bits sent");
    r->host_memory = host_memory();
    result_sum(r);
    free(ms);
}

static bool is_server(const char *device) {
    return strncmp(device, "cpu", 3) != 0 && strncmp(device, "cuda", 4) != 0 && strncmp(device, "null", 4) != 0;
}

static void run_transport(const settings *s, const char *only, report *out) {
    ex_place place = { 0 };
    transport t = { .side = s->hidden ? s->hidden : 2048 };
    bool server = is_server(s->device);
    if (!server && !ex_own_server(&place, s->device)) exit(EX_FAILED);
    t.g = gn_open(&(gn_desc){ .devices = server ? s->device : place.devices, .home = place.home });
    ok_or_die(t.g, gn_status(t.g), s->device);
    size_t n = (size_t)(t.side * t.side);
    t.host = or_die(malloc(n * sizeof *t.host));
    t.back = or_die(malloc(n * sizeof *t.back));
    for (size_t i = 0; i < n; i++) t.host[i] = 0.02f * (draw() + draw());
    float *kept = or_die(malloc(n * sizeof *kept)); /* uploads change t.host, and a weight borrows its memory */
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        if (only[0] && strcmp(only, ways[way].name) != 0) continue;
        result *r = add_result(out, "genie", "transport", ways[way].name, ways[way].unit);
        if (ways[way].step == download_step) {
            memcpy(kept, t.host, n * sizeof *kept);
            t.weight = gn_weight(t.g, GN_F32, GN_SHAPE((int64_t)n), kept, "w");
        }
        transport_runs(&t, way, s, r);
    }
    gn_close(t.g);
    ex_place_close(&place);
    free(t.host);
    free(t.back);
    free(kept);
}

#endif
