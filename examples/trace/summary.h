/* A trace in tables: stages and calls by name, kernels by role and layer, what the GPU waits for, what crosses. */
#ifndef TRACE_SUMMARY_H
#define TRACE_SUMMARY_H

#include "read.h"

typedef struct trace_row {
    const char *a, *b; /* what is alike */
    size_t n, cap;
    int64_t *spans; /* ns each */
    int64_t total, bytes, packed;
} trace_row;

typedef struct trace_table {
    trace_row *rows;
    size_t n, cap;
} trace_table;

static inline void table_add(trace_table *t, const char *a, const char *b, const trace_event *e, int64_t ns) {
    size_t i = 0;
    while (i < t->n && (t->rows[i].a != a || t->rows[i].b != b)) i++;
    if (i == t->n) {
        t->rows = trace_room(t->rows, t->n, &t->cap, sizeof *t->rows);
        t->rows[t->n++] = (trace_row){ a, b, 0, 0, NULL, 0, 0, 0 };
    }
    trace_row *r = &t->rows[i];
    r->spans = trace_room(r->spans, r->n, &r->cap, sizeof *r->spans);
    r->spans[r->n++] = ns;
    r->total += ns;
    r->bytes += e->bytes;
    r->packed += e->packed;
}

static inline int order_spans(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
static inline int order_rows(const void *a, const void *b) {
    const trace_row *x = a, *y = b;
    return (x->total < y->total) - (x->total > y->total);
}

static inline double row_quantile(trace_row *r, double q) { /* us */
    qsort(r->spans, r->n, sizeof *r->spans, order_spans);
    return (double)r->spans[(size_t)(q * (double)(r->n - 1) + 0.5)] * 1e-3;
}

/* most: rows that are shown; what is left out is said. */
static inline void table_print(trace_table *t, const char *a, const char *b, size_t most) {
    int64_t all = 0;
    int wide = 12;
    if (t->n == 0) return;
    qsort(t->rows, t->n, sizeof *t->rows, order_rows);
    for (size_t i = 0; i < t->n; i++) {
        int n = (int)strlen(t->rows[i].a);
        all += t->rows[i].total;
        if (i < most && n > wide) wide = n;
    }
    printf("%-*s %-36s %8s %12s %6s %11s %11s %14s %14s\n", wide, a, b, "count", "total ms", "share", "p50 us",
           "p95 us", "bytes", "packed");
    for (size_t i = 0; i < t->n && i < most; i++) {
        trace_row *r = &t->rows[i];
        printf("%-*s %-36.36s %8zu %12.3f %5.1f%% %11.2f %11.2f %14lld %14lld\n", wide, r->a, r->b, r->n,
               (double)r->total * 1e-6, all ? 100 * (double)r->total / (double)all : 0, row_quantile(r, 0.5),
               row_quantile(r, 0.95), (long long)r->bytes, (long long)r->packed);
    }
    if (t->n > most) printf("%zu more\n", t->n - most);
    printf("\n");
}

static inline void table_free(trace_table *t) {
    for (size_t i = 0; i < t->n; i++) free(t->rows[i].spans);
    free(t->rows);
    memset(t, 0, sizeof *t);
}

static inline const char *process_name(const trace *t, int process) {
    const char *name = process >= 0 && process < TRACE_PROCESSES ? t->processes[process] : NULL;
    return name ? name : process == 1 ? "program" : "peer";
}

/* ---- what kernels are for: plans say it of their nodes ---- */

/* "NODE op role layer label" of a plan; role "-": none. False: the trace does not say. */
static inline bool node_of(const trace *t, const char *detail, char role[40], int *layer) {
    char key[24], want[24];
    unsigned node;
    if (sscanf(detail, "plan %16s nodes %u", key, &node) != 2) return false;
    int n = snprintf(want, sizeof want, ";%u ", node);
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        if (!trace_is(e, "note") || strcmp(e->name, "plan") != 0 || strncmp(e->detail, "plan ", 5) != 0 ||
            strncmp(e->detail + 5, key, 16) != 0)
            continue;
        const char *at = strstr(e->detail, want);
        if (at && sscanf(at + n, "%*s %39[^0-9-]%d", role, layer) >= 1) {
            size_t k = strlen(role);
            while (k > 0 && role[k - 1] == ' ') role[--k] = 0;
            return true;
        }
        return at && sscanf(at + n, "%*s - %d", layer) == 1 && (strcpy(role, "-"), true);
    }
    return false;
}

static inline void print_roles(trace *t) {
    trace_table roles = { 0 }, layers = { 0 };
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        char role[40] = "-", name[24];
        int layer = -1;
        if (!trace_is(e, "kernel") || !node_of(t, e->detail, role, &layer)) continue;
        snprintf(name, sizeof name, layer < 0 ? "none" : "%d", layer);
        const char *r = trace_text(t, role), *l = trace_text(t, name);
        table_add(&roles, "role", r, e, e->end - e->begin);
        table_add(&layers, l, r, e, e->end - e->begin);
    }
    if (roles.n) printf("Kernels by role, and by layer and role\n");
    table_print(&roles, "", "role", 30);
    table_print(&layers, "layer", "role", 60);
    table_free(&roles);
    table_free(&layers);
}

/* ---- the GPU: when it computes, when it waits, what is copied beside ---- */

typedef struct trace_cover {
    int64_t *at; /* begin, end, begin, end… rising and apart */
    size_t n, cap;
} trace_cover;

/* Events come in the order of their begin. */
static inline void cover_add(trace_cover *c, int64_t begin, int64_t end) {
    if (c->n && begin <= c->at[c->n - 1]) {
        if (end > c->at[c->n - 1]) c->at[c->n - 1] = end;
        return;
    }
    c->at = trace_room(c->at, c->n + 1, &c->cap, sizeof *c->at);
    c->at[c->n++] = begin;
    c->at[c->n++] = end;
}
static inline int64_t cover_length(const trace_cover *c) {
    int64_t sum = 0;
    for (size_t i = 0; i + 1 < c->n; i += 2) sum += c->at[i + 1] - c->at[i];
    return sum;
}
static inline int64_t cover_common(const trace_cover *a, const trace_cover *b) {
    int64_t sum = 0;
    for (size_t i = 0, k = 0; i + 1 < a->n && k + 1 < b->n;) {
        int64_t from = a->at[i] > b->at[k] ? a->at[i] : b->at[k],
                to = a->at[i + 1] < b->at[k + 1] ? a->at[i + 1] : b->at[k + 1];
        if (to > from) sum += to - from;
        if (a->at[i + 1] < b->at[k + 1]) i += 2;
        else k += 2;
    }
    return sum;
}

/* Of kernels that are timed now and then only, gaps between those times say nothing. */
static inline bool gap_counts(const trace *t, int64_t begin, int64_t end) {
    bool sampled = false;
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        if (strcmp(e->name, "profiling replay") != 0) continue;
        sampled = true;
        if (begin >= e->begin && end <= e->end) return true;
    }
    return !sampled;
}

static inline void print_device(const trace *t) {
    trace_cover kernels = { 0 }, copies = { 0 };
    int64_t up = 0, down = 0, gaps = 0, longest = 0, n_gaps = 0;
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        bool in = trace_is(e, "input"), out = trace_is(e, "output");
        if (trace_is(e, "kernel")) cover_add(&kernels, e->begin, e->end);
        if (in || out) cover_add(&copies, e->begin, e->end);
        up += in ? e->bytes : 0;
        down += out ? e->bytes : 0;
    }
    for (size_t i = 1; i + 1 < kernels.n; i += 2) {
        int64_t gap = kernels.at[i + 1] - kernels.at[i];
        if (!gap_counts(t, kernels.at[i], kernels.at[i + 1])) continue;
        gaps += gap;
        n_gaps++;
        if (gap > longest) longest = gap;
    }
    if (kernels.n) {
        printf("Device: %.3f ms in kernels; %lld gaps between them, %.3f ms, the longest %.2f us\n",
               (double)cover_length(&kernels) * 1e-6, (long long)n_gaps, (double)gaps * 1e-6, (double)longest * 1e-3);
    }
    printf("Transfer: %.3f ms of inputs (%lld bytes) and outputs (%lld bytes), %.3f ms of them beside kernels\n\n",
           (double)cover_length(&copies) * 1e-6, (long long)up, (long long)down,
           (double)cover_common(&kernels, &copies) * 1e-6);
    free(kernels.at);
    free(copies.at);
}

/* ---- what did not cross because it was known what it is ---- */

static inline long long counter_of(const char *counters, const char *name) {
    char want[64];
    int n = snprintf(want, sizeof want, " %s=", name);
    const char *at = strncmp(counters, want + 1, (size_t)n - 1) == 0 ? counters - 1 : strstr(counters, want);
    return at ? atoll(at + n) : 0;
}

/* "cpu:0,cuda:0" of the counters that a context ends with; "": they do not say it. */
static inline const char *devices_of(const char *counters) {
    const char *at = strstr(counters, "devices=");
    return at ? at + strlen("devices=") : "";
}

static inline bool has_device(const char *devices, const char *name) {
    size_t n = strlen(name);
    for (const char *at = devices; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
    return false;
}

/* Bytes that the program has put there, or anywhere where it is not known where. */
static inline int64_t resident_on(const trace *t, const char *devices) {
    int64_t bytes = 0;
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        if (strcmp(e->name, "slot_put") || e->process != 1) continue;
        if (!*devices || has_device(devices, e->detail)) bytes += e->bytes;
    }
    return bytes;
}

static inline void print_saved(const trace *t) {
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        if (!trace_is(e, "note") || strcmp(e->name, "counters") != 0) continue;
        long long steps = counter_of(e->detail, "steps_run"), known = counter_of(e->detail, "weight_bytes_known"),
                  raw = counter_of(e->detail, "tensor_bytes_up") + counter_of(e->detail, "tensor_bytes_down"),
                  packed = counter_of(e->detail, "packed_bytes_up") + counter_of(e->detail, "packed_bytes_down");
        const char *devices = devices_of(e->detail);
        int64_t resident = resident_on(t, devices);
        printf("Bytes that meaning saved in %lld steps%s%s\n", steps, *devices ? " on " : "", devices);
        printf("  %14lld of weights that the server had already\n", known);
        printf("  %14lld of weights and states that stay where they are, if each step had sent them (%lld each)\n",
               steps > 1 ? (long long)resident * (steps - 1) : 0, (long long)resident);
        if (raw)
            printf("  %14lld by packing %lld bytes of tensors that crossed%s\n", packed < raw ? raw - packed : 0, raw,
                   packed > raw ? ", which were sent as they are" : "");
        printf("\n");
    }
}

/* A later one of the same peer is nearer. */
static inline bool clock_is_last(const trace *t, size_t i) {
    for (size_t k = i + 1; k < t->n; k++)
        if (trace_is(&t->all[k], "clock") && t->all[k].detail == t->all[i].detail) return false;
    return true;
}

/* Of each name whose calls were too short to be recorded one by one: how many, and in which time. */
static inline void print_left_out(const trace *t) {
    bool any = false;
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *first = &t->all[i];
        long long left = 0, ns = 0;
        bool known = !trace_is(first, "note") || strcmp(first->lane, "left out") != 0;
        for (size_t k = 0; k < t->n && !known; k++) {
            const trace_event *e = &t->all[k];
            bool alike = e->process == first->process && e->name == first->name && e->lane == first->lane;
            if (!alike || !trace_is(e, "note")) continue;
            known = k < i;
            left += e->bytes;
            ns += e->end - e->begin;
        }
        if (known) continue;
        if (!any) printf("Left out, for they are short; GENIE_TRACE_ALL=1 records all. With the time between them:\n");
        any = true;
        printf("%-12s %lld %s in %.3f ms\n", process_name(t, first->process), left, first->name, (double)ns * 1e-6);
    }
    if (any) printf("\n");
}

static inline void print_summary(trace *t, const char *path) {
    trace_table stages = { 0 }, calls = { 0 }, kernels = { 0 };
    printf("%s: %zu events in %.3f ms\n", path, t->n, (double)(t->end - t->begin) * 1e-6);
    for (size_t i = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        bool note = trace_is(e, "note");
        if (trace_is(e, "clock") && clock_is_last(t, i))
            printf("clock of %s: %+lld ns, off by at most %lld\n", e->detail, (long long)e->bytes,
                   (long long)e->packed);
        if (note && strncmp(e->name, "no trace", 8) == 0) printf("%s\n", e->name);
        if (note || trace_is(e, "clock")) continue;
        table_add(&stages, process_name(t, e->process), e->stage, e, e->end - e->begin);
        if (trace_is(e, "kernel")) table_add(&kernels, e->lane, e->name, e, e->end - e->begin);
        else table_add(&calls, e->stage, e->name, e, e->end - e->begin);
    }
    printf("\nStages\n");
    table_print(&stages, "process", "stage", 60);
    printf("Calls, messages and what else has a name (a call holds its stages: shares overlap)\n");
    table_print(&calls, "stage", "name", 40);
    print_left_out(t);
    if (kernels.n) printf("Kernels\n");
    table_print(&kernels, "lane", "kernel", 30);
    print_roles(t);
    print_device(t);
    print_saved(t);
    table_free(&stages);
    table_free(&calls);
    table_free(&kernels);
}

#endif
