/* metrics.h - what genie_serve --metrics HOST:PORT answers: /metrics for Prometheus (its text format, or OpenMetrics
 * where that is asked for), /livez, /readyz. On loopback alone, for it has no TLS. Threads of its own. Include common.h
 * first. */
#ifndef METRICS_H
#define METRICS_H

#define HTTP_IMPLEMENTATION
#include "formats/http.h"
#include <pthread.h>
#include <stdatomic.h>

enum { METRICS_DEVICES = 32, METRICS_CANARY_S = 10, METRICS_BUCKETS = 8 };

static const double metrics_bounds[METRICS_BUCKETS] = { 0.01, 0.1, 1, 10, 60, 600, 3600, 86400 }; /* seconds */

static struct {
    gn_server *server;
    http_server *http;
    pthread_t thread;
    bool running;
    atomic_bool stop, draining; /* draining: set by a signal's handler */
    pthread_mutex_t lock;       /* of what follows: sessions count on their own threads */
    uint64_t begun, ended, faulted, lasted[METRICS_BUCKETS + 1];
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
    pthread_mutex_lock(&metrics.lock);
    if (!e->ended) metrics.begun++;
    else {
        while (at < METRICS_BUCKETS && e->seconds > metrics_bounds[at]) at++;
        metrics.lasted[at]++;
        metrics.seconds += e->seconds;
        metrics.ended++;
        metrics.faulted += e->result != GN_DISCONNECTED;
    }
    pthread_mutex_unlock(&metrics.lock);
}

/* ---- /metrics ---- */

typedef struct metrics_page {
    FILE *to;
    bool open; /* OpenMetrics: a counter's family has no _total, and the page ends with # EOF */
} metrics_page;

static void metrics_head(const metrics_page *p, const char *name, const char *end, const char *type, const char *help) {
    const char *shown = p->open ? "" : end;
    fprintf(p->to, "# HELP genie_%s%s %s\n# TYPE genie_%s%s %s\n", name, shown, help, name, shown, type);
}

/* us become seconds; bytes now held are a gauge, all else only grows. */
static void metrics_counter(const metrics_page *p, const char *name, const char *unit, const char *help, uint64_t v) {
    char base[96];
    bool us = strcmp(unit, "us") == 0, gauge = strcmp(name, "device_bytes") == 0;
    snprintf(base, sizeof base, "%.*s%s", us ? (int)strlen(name) - 3 : (int)strlen(name), name, us ? "_seconds" : "");
    metrics_head(p, base, gauge ? "" : "_total", gauge ? "gauge" : "counter", help);
    if (us) fprintf(p->to, "genie_%s_total %.6f\n", base, (double)v * 1e-6);
    else fprintf(p->to, "genie_%s%s %llu\n", base, gauge ? "" : "_total", (unsigned long long)v);
}

static void metrics_sessions(const metrics_page *p) {
    uint64_t sum = 0;
    pthread_mutex_lock(&metrics.lock);
    metrics_head(p, "sessions_open", "", "gauge", "sessions now");
    fprintf(p->to, "genie_sessions_open %llu\n", (unsigned long long)(metrics.begun - metrics.ended));
    metrics_head(p, "sessions_faulted", "_total", "counter", "sessions that ended other than by the client's goodbye");
    fprintf(p->to, "genie_sessions_faulted_total %llu\n", (unsigned long long)metrics.faulted);
    metrics_head(p, "session_duration_seconds", "", "histogram", "how long sessions lasted");
    for (int i = 0; i <= METRICS_BUCKETS; i++) {
        char bound[32] = "+Inf";
        if (i < METRICS_BUCKETS)
            snprintf(bound, sizeof bound, p->open && metrics_bounds[i] >= 1 ? "%.1f" : "%g", metrics_bounds[i]);
        fprintf(p->to, "genie_session_duration_seconds_bucket{le=\"%s\"} %llu\n", bound,
                (unsigned long long)(sum += metrics.lasted[i]));
    }
    fprintf(p->to, "genie_session_duration_seconds_sum %.6f\ngenie_session_duration_seconds_count %llu\n",
            metrics.seconds, (unsigned long long)metrics.ended);
    pthread_mutex_unlock(&metrics.lock);
}

static void metrics_all(http_exchange *x) {
    static const char open_type[] = "application/openmetrics-text";
    const char *accept = http_header(x, "Accept");
    char *text = NULL;
    size_t size = 0;
    gn_stats stats;
    metrics_page p = { open_memstream(&text, &size), accept && strstr(accept, open_type) };
    if (!p.to) {
        http_reply(x, 500, "text/plain", "out of memory\n", 14);
        return;
    }
    gn_server_stats(metrics.server, &stats);
#define EX_METRIC(name, unit, help) metrics_counter(&p, #name, unit, help, stats.name);
    GN_COUNTERS(EX_METRIC)
#undef EX_METRIC
    metrics_sessions(&p);
    metrics_head(&p, "build_info", "", "gauge", "always 1");
    fprintf(p.to, "genie_build_info{version=\"%s\"} 1\n%s", GN_VERSION, p.open ? "# EOF\n" : "");
    if (fclose(p.to) == 0)
        http_reply(x, 200,
                   p.open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                          : "text/plain; version=0.0.4; charset=utf-8",
                   text, size);
    else http_reply(x, 500, "text/plain", "out of memory\n", 14);
    free(text);
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
    pthread_mutex_lock(&metrics.lock);
    if (metrics.draining) snprintf(text, sizeof text, "draining\n");
    else if (metrics.looks > 0 && ex_now() - metrics.looks > METRICS_CANARY_S)
        snprintf(text, sizeof text, "a device has not answered for %.0f s\n", ex_now() - metrics.looks);
    else if (!metrics.looked) snprintf(text, sizeof text, "the devices are being tried\n");
    else if (metrics.wrong[0]) memcpy(text, metrics.wrong, sizeof text);
    pthread_mutex_unlock(&metrics.lock);
    http_reply(x, strcmp(text, "ready\n") ? 503 : 200, "text/plain", text, strlen(text));
}

static void metrics_answer(void *user, http_exchange *x) {
    const char *path = http_path(x);
    (void)user;
    if (strcmp(http_method(x), "GET")) http_reply(x, 405, "text/plain", "GET alone\n", 10);
    else if (!strcmp(path, "/metrics")) metrics_all(x);
    else if (!strcmp(path, "/livez")) http_reply(x, 200, "text/plain", "alive\n", 6);
    else if (!strcmp(path, "/readyz")) metrics_ready(x);
    else http_reply(x, 404, "text/plain", "/metrics, /livez or /readyz\n", 28);
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

/* False: `error` says why. */
static inline bool metrics_open(gn_server *server, const char *where, const char *devices, char error[HTTP_ERROR]) {
    pthread_t canaries;
    metrics.http = http_open(&(http_options){ .listen = where, .answer = metrics_answer }, error);
    if (!metrics.http) return false;
    metrics.server = server;
    char *list = strdup(devices ? devices : "cpu");
    metrics.running = list && pthread_create(&metrics.thread, NULL, metrics_main, NULL) == 0;
    if (metrics.running && pthread_create(&canaries, NULL, metrics_canaries_main, list) == 0) {
        pthread_detach(canaries);
        return true;
    }
    free(list);
    metrics.over = true;
    if (metrics.running) metrics_close();
    else http_close(metrics.http);
    snprintf(error, HTTP_ERROR, "no thread for it");
    return false;
}

#endif
