/* metrics.h - what genie_serve --metrics HOST:PORT answers: / a status page, /status.json what it shows, /metrics for
 * Prometheus (its text format, or OpenMetrics where that is asked for), /livez, /readyz. All figures are of one
 * gn_server_look, but for how long sessions lasted. Threads of its own. Include common.h first. */
#ifndef METRICS_H
#define METRICS_H

#define HTTP_IMPLEMENTATION
#include "formats/http.h"
#include "status_page.h"
#include "view.h"
#include <pthread.h>
#include <stdatomic.h>

enum { METRICS_DEVICES = 32, METRICS_CANARY_S = 10, METRICS_BUCKETS = 8 };

static const double metrics_bounds[METRICS_BUCKETS] = { 0.01, 0.1, 1, 10, 60, 600, 3600, 86400 }; /* seconds */

static struct {
    gn_server *server;
    http_server *http;
    gn_front *front; /* TLS before it; NULL: none */
    pthread_t thread;
    bool running;
    atomic_bool stop;
    pthread_mutex_t lock; /* of what follows: sessions count on their own threads */
    uint64_t ended, faulted, lasted[METRICS_BUCKETS + 1];
    double seconds;
    double looks; /* when the canaries' look that is under way began; 0: none is */
    bool looked, over;
    char wrong[600];
    /* of the canaries' thread alone: a context on each device */
    gn_ctx *canary[METRICS_DEVICES];
    int n_canaries;
} metrics = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline void metrics_session(const gn_session_event *e) {
    int at = 0;
    if (!e->ended) return;
    pthread_mutex_lock(&metrics.lock);
    while (at < METRICS_BUCKETS && e->seconds > metrics_bounds[at]) at++;
    metrics.lasted[at]++;
    metrics.seconds += e->seconds;
    metrics.ended++;
    metrics.faulted += e->result != GN_DISCONNECTED;
    pthread_mutex_unlock(&metrics.lock);
}

/* ---- /metrics ---- */

typedef struct metrics_page {
    FILE *to;
    bool open; /* OpenMetrics: a counter's family has no _total, and the page ends with # EOF */
    const gn_server_view *v;
} metrics_page;

static void metrics_head(const metrics_page *p, const char *name, const char *end, const char *type, const char *help) {
    const char *shown = p->open ? "" : end;
    fprintf(p->to, "# HELP genie_%s%s %s\n# TYPE genie_%s%s %s\n", name, shown, help, name, shown, type);
}

/* The unit stands last: us become seconds, "socket_bytes_up" "socket_up_bytes", "bytes_to_host" "to_host_bytes". Bytes
   now held are a gauge, all else only grows. */
static void metrics_counter(const metrics_page *p, const char *name, const char *unit, const char *help, uint64_t v) {
    char base[96];
    const char *bytes = strstr(name, "_bytes_");
    bool us = strcmp(unit, "us") == 0, gauge = strcmp(name, "device_bytes") == 0;
    if (bytes) snprintf(base, sizeof base, "%.*s_%s_bytes", (int)(bytes - name), name, bytes + 7);
    else if (strncmp(name, "bytes_", 6) == 0) snprintf(base, sizeof base, "%s_bytes", name + 6);
    else if (us) snprintf(base, sizeof base, "%.*s_seconds", (int)strlen(name) - 3, name);
    else snprintf(base, sizeof base, "%s", name);
    metrics_head(p, base, gauge ? "" : "_total", gauge ? "gauge" : "counter", help);
    if (us) fprintf(p->to, "genie_%s_total %.6f\n", base, (double)v * 1e-6);
    else fprintf(p->to, "genie_%s%s %llu\n", base, gauge ? "" : "_total", (unsigned long long)v);
}

static void metrics_gauge(const metrics_page *p, const char *name, const char *help, double v) {
    metrics_head(p, name, "", "gauge", help);
    fprintf(p->to, "genie_%s %.17g\n", name, v);
}

static void metrics_server(const metrics_page *p) {
    metrics_gauge(p, "uptime_seconds", "since the server was opened", (double)p->v->uptime_us * 1e-6);
    metrics_gauge(p, "draining", "1: no more sessions are taken", (double)p->v->draining);
    metrics_gauge(p, "sessions_open", "sessions now", (double)p->v->sessions_now);
    metrics_gauge(p, "sessions_most", "sessions that are taken at once", (double)p->v->sessions_most);
    metrics_gauge(p, "host_memory_bytes", "host memory that sessions and weights hold", (double)p->v->host_bytes);
    metrics_gauge(p, "host_memory_limit_bytes", "host memory that they may hold", (double)p->v->host_limit);
    metrics_gauge(p, "weights", "weights that are held", (double)p->v->weights);
    metrics_gauge(p, "idle_weights_bytes", "weights that no session uses", (double)p->v->idle_bytes);
}

/* Rows by device: at most GN_VIEW_DEVICES, whose names are the server's own. */
static void metrics_devices(const metrics_page *p) {
    static const struct {
        const char *name, *end, *help;
        size_t at;
        double scale;
    } rows[] = {
#define EX_ROW(field, name, end, scale, help) { name, end, help, offsetof(gn_device_view, field), scale }
        EX_ROW(sessions, "device_sessions", "", 1, "sessions that have the device"),
        EX_ROW(running, "device_sessions_running", "", 1, "sessions that run steps on it now"),
        EX_ROW(busy_us, "device_busy_seconds", "_total", 1e-6, "in which at least one session ran steps on it"),
        EX_ROW(queue_us, "device_queue_seconds", "", 1e-6, "until it begins what is sent to it now, about"),
        EX_ROW(held_bytes, "device_held_bytes", "", 1, "that sessions hold on it"),
        EX_ROW(memory_bytes, "device_memory_bytes", "", 1, "that it has; 0: not known"),
        EX_ROW(lost, "device_lost", "", 1, "1: it can only be had anew, by another process"),
#undef EX_ROW
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        metrics_head(p, rows[k].name, rows[k].end, rows[k].end[0] ? "counter" : "gauge", rows[k].help);
        for (uint32_t i = 0; i < p->v->n_devices; i++) {
            uint64_t value;
            char device[VIEW_DEVICE];
            memcpy(&value, (const char *)&p->v->devices[i] + rows[k].at, sizeof value);
            fprintf(p->to, "genie_%s%s{device=\"%s\"} %.17g\n", rows[k].name, rows[k].end,
                    view_device(p->v, i, device, sizeof device), (double)value * rows[k].scale);
        }
    }
}

static void metrics_plans(const metrics_page *p) {
    metrics_head(p, "plans", "", "gauge", "plans that sessions have, by what most of their work is for");
    for (int r = 0; r < GN_ROLE__COUNT; r++)
        for (int k = 0; k < GN_PHASE__COUNT; k++)
            fprintf(p->to, "genie_plans{role=\"%s\",phase=\"%s\"} %llu\n", view_roles[r], view_phases[k],
                    (unsigned long long)p->v->plans[r][k]);
}

/* Whatever was done otherwise than it is done best: no row is an error. */
static void metrics_fallbacks(const metrics_page *p) {
    const gn_stats *s = &p->v->stats;
    const struct {
        const char *kind;
        uint64_t n;
    } rows[] = {
        { "op_without_kernel", s->fallbacks },
        { "view_copied", s->view_copies },
        { "state_copied", s->state_copies },
        { "copy_waited_for", s->copies_waited },
        { "transfer_by_host", s->transfers - s->transfers_direct },
        { "weight_evicted", s->evictions },
        { "filters_repacked", s->filters_repacked },
        { "blas_fault", s->blas_faults },
        { "stored_choice_lost", s->choices_lost + s->choices_rejected },
        { "plan_dropped", s->plans_dropped },
        { "link_without_libcrypto", s->slow_links },
    };
    metrics_head(p, "fallback_events", "_total", "counter",
                 "what was done in a slower way than the usual one, by kind");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fprintf(p->to, "genie_fallback_events_total{kind=\"%s\"} %llu\n", rows[i].kind, (unsigned long long)rows[i].n);
}

/* One row of buckets; label: "" or one, as phase="decode". Bounds are seconds, counts of each bucket alone. */
static void metrics_buckets(const metrics_page *p, const char *name, const char *label, const double *bounds, int n,
                            const uint64_t *counts, double sum) {
    uint64_t all = 0;
    const char *comma = label[0] ? "," : "", *open = label[0] ? "{" : "", *close = label[0] ? "}" : "";
    for (int i = 0; i <= n; i++) {
        char bound[32] = "+Inf";
        if (i < n) snprintf(bound, sizeof bound, p->open && bounds[i] >= 1 ? "%.1f" : "%g", bounds[i]);
        fprintf(p->to, "genie_%s_bucket{%s%sle=\"%s\"} %llu\n", name, label, comma, bound,
                (unsigned long long)(all += counts[i]));
    }
    fprintf(p->to, "genie_%s_sum%s%s%s %.6f\ngenie_%s_count%s%s%s %llu\n", name, open, label, close, sum, name, open,
            label, close, (unsigned long long)all);
}

/* Families of gn_timing. Both directions of a transfer are one. */
static void metrics_times(const metrics_page *p) {
    static const struct {
        gn_timing what;
        const char *name, *label;
    } rows[] = {
        { GN_TIMING_STEP, "step_duration_seconds", "" },
        { GN_TIMING_QUEUE, "queue_duration_seconds", "" },
        { GN_TIMING_COMPILE, "compile_duration_seconds", "" },
        { GN_TIMING_FIRST, "first_result_seconds", "" },
        { GN_TIMING_NEXT, "next_result_seconds", "" },
        { GN_TIMING_RECEIVE, "transfer_duration_seconds", "direction=\"received\"" },
        { GN_TIMING_SEND, "transfer_duration_seconds", "direction=\"sent\"" },
    };
    double bounds[GN_TIME_BUCKETS - 1];
    for (int i = 0; i < GN_TIME_BUCKETS - 1; i++) bounds[i] = (double)view_bounds[i] * 1e-6;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        gn_timing what = rows[k].what;
        bool direction = rows[k].label[0] != 0;
        const char *help = direction ? "receiving a weight, or packing and sending results" : view_timings[what].help;
        if (!k || strcmp(rows[k].name, rows[k - 1].name)) metrics_head(p, rows[k].name, "", "histogram", help);
        for (int phase = 0; phase < (view_timings[what].by_phase ? GN_PHASE__COUNT : 1); phase++) {
            const gn_times *t = &p->v->times[what][phase];
            char label[64];
            snprintf(label, sizeof label, view_timings[what].by_phase ? "phase=\"%s\"" : "%s",
                     view_timings[what].by_phase ? view_phases[phase] : rows[k].label);
            metrics_buckets(p, rows[k].name, label, bounds, GN_TIME_BUCKETS - 1, t->buckets, (double)t->sum_us * 1e-6);
        }
    }
}

static void metrics_sessions(const metrics_page *p) {
    pthread_mutex_lock(&metrics.lock);
    metrics_head(p, "sessions_faulted", "_total", "counter", "sessions that ended other than by the client's goodbye");
    fprintf(p->to, "genie_sessions_faulted_total %llu\n", (unsigned long long)metrics.faulted);
    metrics_head(p, "session_duration_seconds", "", "histogram", "how long sessions lasted");
    metrics_buckets(p, "session_duration_seconds", "", metrics_bounds, METRICS_BUCKETS, metrics.lasted,
                    metrics.seconds);
    pthread_mutex_unlock(&metrics.lock);
}

static void metrics_write(FILE *to, const gn_server_view *v, bool open) {
    metrics_page p = { to, open, v };
#define EX_METRIC(name, unit, help) metrics_counter(&p, #name, unit, help, v->stats.name);
    GN_COUNTERS(EX_METRIC)
#undef EX_METRIC
    metrics_server(&p);
    metrics_devices(&p);
    metrics_plans(&p);
    metrics_fallbacks(&p);
    metrics_times(&p);
    metrics_sessions(&p);
    metrics_head(&p, "build_info", "", "gauge", "always 1");
    fprintf(to, "genie_build_info{version=\"%s\"} 1\n%s", GN_VERSION, open ? "# EOF\n" : "");
}

/* ---- /, /status.json and /metrics: each writes what is known now ---- */

enum { METRICS_PAGE, METRICS_JSON, METRICS_TEXT, METRICS_OPEN };

static void metrics_view(http_exchange *x, int form) {
    static const char *const types[] = { "text/html; charset=utf-8", "application/json",
                                         "text/plain; version=0.0.4; charset=utf-8",
                                         "application/openmetrics-text; version=1.0.0; charset=utf-8" };
    char *text = NULL;
    size_t size = 0;
    gn_server_view *v = NULL;
    FILE *to = open_memstream(&text, &size);
    bool ok = to && gn_server_look(metrics.server, &v) == GN_OK;
    if (ok && form >= METRICS_TEXT) metrics_write(to, v, form == METRICS_OPEN);
    else if (ok && form == METRICS_JSON) view_json(to, v);
    else if (ok) {
        fputs(status_page_head, to);
        view_json(to, v);
        fputs(status_page_tail, to);
    }
    if (to) ok = fclose(to) == 0 && ok;
    gn_server_view_free(v);
    if (ok) http_reply(x, 200, types[form], text, size);
    else http_reply(x, 500, "text/plain", "out of memory\n", 14);
    free(text);
}

static void metrics_all(http_exchange *x) {
    const char *accept = http_header(x, "Accept");
    metrics_view(x, accept && strstr(accept, "application/openmetrics-text") ? METRICS_OPEN : METRICS_TEXT);
}

/* ---- /readyz: each device adds two numbers every ten seconds, on a thread that may have to wait for it ---- */

static void metrics_look(void) {
    const float x[2] = { 1, 2 };
    char wrong[600] = "";
    for (int i = 0; i < metrics.n_canaries; i++) {
        gn_ctx *g = metrics.canary[i];
        float y = 0;
        gn_result r = gn_read(gn_sum(gn_data(g, GN_F32, GN_SHAPE(2), x), GN_ALL_AXES, false), &y, sizeof y);
        if (r == GN_OK) r = gn_step(g);
        if (r != GN_OK) snprintf(wrong, sizeof wrong, "device %d: %s\n", i, gn_last_error(g)->text);
        else if (y != 3) snprintf(wrong, sizeof wrong, "device %d computes wrong values\n", i);
    }
    pthread_mutex_lock(&metrics.lock);
    memcpy(metrics.wrong, wrong, sizeof wrong);
    metrics.looks = 0;
    metrics.looked = true;
    pthread_mutex_unlock(&metrics.lock);
}

static void *metrics_canaries_main(void *arg) {
    char *list = (char *)arg, *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word && metrics.n_canaries < METRICS_DEVICES;
         word = strtok_r(NULL, ",", &rest))
        metrics.canary[metrics.n_canaries++] = gn_open(&(gn_desc){ .devices = word, .threads = 1 });
    free(list);
    for (double next = 0; !metrics.stop; nanosleep(&(struct timespec){ 0, 100000000 }, NULL)) {
        if (ex_now() < next) continue;
        pthread_mutex_lock(&metrics.lock);
        metrics.looks = ex_now();
        pthread_mutex_unlock(&metrics.lock);
        metrics_look();
        next = ex_now() + METRICS_CANARY_S;
    }
    while (metrics.n_canaries > 0) gn_close(metrics.canary[--metrics.n_canaries]);
    pthread_mutex_lock(&metrics.lock);
    metrics.over = true;
    pthread_mutex_unlock(&metrics.lock);
    return NULL;
}

static void metrics_ready(http_exchange *x) {
    char text[600] = "ready\n";
    gn_server_view *v = NULL;
    bool draining = gn_server_look(metrics.server, &v) == GN_OK && v->draining;
    gn_server_view_free(v);
    pthread_mutex_lock(&metrics.lock);
    if (draining) snprintf(text, sizeof text, "draining\n");
    else if (metrics.looks > 0 && ex_now() - metrics.looks > METRICS_CANARY_S)
        snprintf(text, sizeof text, "a device has not answered for %.0f s\n", ex_now() - metrics.looks);
    else if (!metrics.looked) snprintf(text, sizeof text, "the devices are being tried\n");
    else if (metrics.wrong[0]) memcpy(text, metrics.wrong, sizeof text);
    pthread_mutex_unlock(&metrics.lock);
    http_reply(x, strcmp(text, "ready\n") ? 503 : 200, "text/plain", text, strlen(text));
}

static void metrics_answer(void *user, http_exchange *x) {
    const char *path = http_path(x), *method = http_method(x);
    (void)user;
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        http_reply(x, 405, "text/plain", "only GET and HEAD are answered here\n", 36);
    else if (!strcmp(path, "/")) metrics_view(x, METRICS_PAGE);
    else if (!strcmp(path, "/status.json")) metrics_view(x, METRICS_JSON);
    else if (!strcmp(path, "/metrics")) metrics_all(x);
    else if (!strcmp(path, "/livez")) http_reply(x, 200, "text/plain", "alive\n", 6);
    else if (!strcmp(path, "/readyz")) metrics_ready(x);
    else http_reply(x, 404, "text/plain", "not found: there are /, /status.json, /metrics, /livez and /readyz\n", 66);
}

/* ---- begin and end ---- */

static void *metrics_main(void *arg) {
    (void)arg;
    while (!metrics.stop && http_poll(metrics.http, 1000)) { }
    return NULL;
}

/* A canary whose device does not answer is left behind: the process ends. */
static inline void metrics_close(void) {
    bool over = false;
    if (!metrics.running) return;
    gn_front_close(metrics.front);
    metrics.front = NULL;
    metrics.stop = true;
    http_wake(metrics.http);
    pthread_join(metrics.thread, NULL);
    http_close(metrics.http);
    for (int i = 0; i < 40 && !over; i++, nanosleep(&(struct timespec){ 0, 50000000 }, NULL)) {
        pthread_mutex_lock(&metrics.lock);
        over = metrics.over;
        pthread_mutex_unlock(&metrics.lock);
    }
    metrics.running = false;
}

static inline int metrics_port(void) { return metrics.front ? gn_front_port(metrics.front) : http_port(metrics.http); }

/* With a token_file by TLS, with the server's key; without on loopback alone. False: `error` says why. */
static inline bool metrics_open(gn_server *server, const char *where, const char *token_file,
                                const gn_server_desc *desc, char error[HTTP_ERROR]) {
    char token[256] = "";
    gn_error why = { 0 };
    pthread_t canaries;
    if (token_file && !ex_read_token(token_file, token, error, HTTP_ERROR)) return false;
    http_options o = { .listen = token_file ? "127.0.0.1:0" : where,
                       .token = token_file ? token : NULL,
                       .any_host = token_file != NULL,
                       .idle_ms = 10000,
                       .out_bytes = 16 << 20,
                       .answer = metrics_answer };
    metrics.http = http_open(&o, error);
    memset(token, 0, sizeof token);
    if (!metrics.http) return false;
    metrics.server = server;
    gn_server_desc front = *desc;
    front.listen = where;
    front.max_sessions = 64;
    if (token_file && gn_front_open(&front, (uint16_t)http_port(metrics.http), &metrics.front, &why) != GN_OK) {
        http_close(metrics.http);
        snprintf(error, HTTP_ERROR, "%.100s: %.150s", where, why.text);
        return false;
    }
    char *list = strdup(desc->devices ? desc->devices : "cpu");
    metrics.running = list && pthread_create(&metrics.thread, NULL, metrics_main, NULL) == 0;
    if (metrics.running && pthread_create(&canaries, NULL, metrics_canaries_main, list) == 0) {
        pthread_detach(canaries);
        return true;
    }
    free(list);
    metrics.over = true;
    if (metrics.running) metrics_close();
    else http_close(metrics.http);
    snprintf(error, HTTP_ERROR, "%.200s: no thread for it", where);
    return false;
}

#endif
