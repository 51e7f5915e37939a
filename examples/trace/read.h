/* Reading traces: JSON Lines as the library writes them, or Chrome's format. Texts that repeat are kept once. */
#ifndef TRACE_READ_H
#define TRACE_READ_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../formats/json.h"

typedef struct trace_event {
    const char *name, *stage, *lane, *detail;
    int process;
    bool beside;                       /* may overlap others of its lane */
    int64_t begin, end, bytes, packed; /* ns; of stage "clock": the offset, and how much it may be off */
} trace_event;

enum { TRACE_PROCESSES = 80 };

typedef struct trace {
    trace_event *all;
    size_t n, cap;
    const char **texts; /* a table by hash */
    size_t n_texts, texts_cap;
    const char *processes[TRACE_PROCESSES], *lanes[4096]; /* names by number; lanes: of Chrome's */
    int64_t begin, end;
} trace;

static inline void *trace_room(void *p, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return p;
    *cap = *cap ? *cap * 2 : 1024;
    void *q = realloc(p, *cap * size);
    if (!q) {
        fprintf(stderr, "genie_trace: no memory for the trace\n");
        exit(1);
    }
    return q;
}

static inline uint64_t trace_hash(const char *text) {
    uint64_t h = 1469598103934665603u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

/* Where in the table a text is, or would be. */
static inline size_t trace_slot(const trace *t, const char *text) {
    size_t at = trace_hash(text) & (t->texts_cap - 1);
    while (t->texts[at] && strcmp(t->texts[at], text) != 0) at = (at + 1) & (t->texts_cap - 1);
    return at;
}

/* The one copy of a text. */
static inline const char *trace_text(trace *t, const char *text) {
    if (2 * (t->n_texts + 1) > t->texts_cap) {
        size_t cap = t->texts_cap ? t->texts_cap * 2 : 4096;
        const char **old = t->texts;
        size_t old_cap = t->texts_cap;
        t->texts = calloc(cap, sizeof *t->texts);
        if (!t->texts) exit(1);
        t->texts_cap = cap;
        t->n_texts = 0;
        for (size_t i = 0; i < old_cap; i++) {
            if (!old[i]) continue;
            size_t at = trace_hash(old[i]) & (cap - 1);
            while (t->texts[at]) at = (at + 1) & (cap - 1);
            t->texts[at] = old[i];
            t->n_texts++;
        }
        free((void *)old);
    }
    size_t at = trace_slot(t, text);
    if (t->texts[at]) return t->texts[at];
    t->n_texts++;
    return t->texts[at] = strdup(text);
}

/* What would steer a terminal becomes "?": a trace may hold what a server said. */
static inline void trace_clean(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool second = *c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* U+0080 to U+009F */
        if (second) *c++ = '?';
        if (second || *c < 32 || *c == 127) *c = '?';
    }
}

static inline const char *trace_get_text(trace *t, json_value object, const char *name) {
    static char text[1 << 17];
    size_t n;
    if (!json_get_string(json_get(object, name), text, sizeof text, &n)) return trace_text(t, "");
    trace_clean(text);
    return trace_text(t, text);
}

static inline int64_t trace_get_int(json_value object, const char *name) {
    int64_t v = 0;
    json_get_i64(json_get(object, name), &v);
    return v;
}

static inline trace_event *trace_add(trace *t) {
    t->all = trace_room(t->all, t->n, &t->cap, sizeof *t->all);
    t->all[t->n] = (trace_event){ "", "", "", "", 0, false, 0, 0, 0, 0 };
    return &t->all[t->n++];
}

static inline void trace_amounts(trace_event *e, json_value o) {
    bool clock = strcmp(e->stage, "clock") == 0;
    e->bytes = trace_get_int(o, clock ? "offset_ns" : "bytes");
    e->packed = trace_get_int(o, clock ? "uncertainty_ns" : "packed_bytes");
}

static inline void trace_called(trace *t, int process, const char *name) {
    if (process >= 0 && process < TRACE_PROCESSES) t->processes[process] = name;
}

/* What has no name, stage or times is none of ours. */
static inline void trace_line(trace *t, json_value o) {
    bool beside = false, is = json_kind_of(json_get(o, "name")) == JSON_STRING &&
                              json_kind_of(json_get(o, "stage")) == JSON_STRING &&
                              json_kind_of(json_get(o, "begin_ns")) == JSON_NUMBER;
    if (!is) return;
    trace_event *e = trace_add(t);
    e->name = trace_get_text(t, o, "name");
    e->stage = trace_get_text(t, o, "stage");
    e->lane = trace_get_text(t, o, "lane");
    e->detail = trace_get_text(t, o, "detail");
    e->process = (int)trace_get_int(o, "process");
    e->begin = trace_get_int(o, "begin_ns");
    e->end = trace_get_int(o, "end_ns");
    json_get_bool(json_get(o, "beside"), &beside);
    e->beside = beside;
    trace_amounts(e, o);
    if (strcmp(e->name, "process") == 0 && strcmp(e->stage, "note") == 0) trace_called(t, e->process, e->detail);
}

static inline int64_t trace_ns(json_value o, const char *name) {
    double us = 0;
    json_get_double(json_get(o, name), &us);
    return us > -9e15 && us < 9e15 ? (int64_t)(us * 1e3 + 0.5) : 0;
}

static inline void trace_chrome(trace *t, json_value o) {
    json_value args = json_get(o, "args");
    int lane = (int)trace_get_int(o, "tid") & 4095, process = (int)trace_get_int(o, "pid");
    if (json_is(json_get(o, "ph"), "M")) {
        const char *name = trace_get_text(t, args, "name");
        if (json_is(json_get(o, "name"), "thread_name")) t->lanes[lane] = name;
        else trace_called(t, process, name);
        return;
    }
    bool ends = json_is(json_get(o, "ph"), "e");
    if (ends) { /* of the latest that began so */
        const char *name = trace_get_text(t, o, "name");
        for (size_t i = t->n; i-- > 0;)
            if (t->all[i].name == name && t->all[i].beside && t->all[i].end == t->all[i].begin) {
                t->all[i].end = trace_ns(o, "ts");
                return;
            }
        return;
    }
    if (!json_is(json_get(o, "ph"), "X") && !json_is(json_get(o, "ph"), "b")) return;
    trace_event *e = trace_add(t);
    e->name = trace_get_text(t, o, "name");
    e->stage = trace_get_text(t, o, "cat");
    e->lane = t->lanes[lane] ? t->lanes[lane] : "";
    e->detail = trace_get_text(t, args, "detail");
    e->process = process;
    e->beside = json_is(json_get(o, "ph"), "b");
    e->begin = trace_ns(o, "ts");
    e->end = e->begin + trace_ns(o, "dur");
    trace_amounts(e, args);
}

static inline char *trace_file(const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t n = 0, cap = 0, got = 1;
    if (!f) {
        fprintf(stderr, "genie_trace: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    while (got) {
        text = trace_room(text, n + 65536, &cap, 1);
        got = fread(text + n, 1, cap - n - 1, f);
        n += got;
    }
    text[n] = 0;
    if (ferror(f)) { /* a folder, for one */
        fprintf(stderr, "genie_trace: %s: %s\n", path, strerror(errno));
        free(text);
        text = NULL;
    }
    fclose(f);
    *out_n = n;
    return text;
}

static inline int trace_order(const void *a, const void *b) {
    const trace_event *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (y->end > x->end) - (y->end < x->end); /* what holds others first */
}

/* False: it is no trace; says why. */
static inline bool trace_read(trace *t, const char *path) {
    size_t n = 0;
    char *text = trace_file(path, &n);
    json_value all, key, o;
    json_error error = { 0, "" };
    memset(t, 0, sizeof *t);
    if (!text) return false;
    trace_text(t, "");
    bool ok = true;
    if (text[0] == '[') {
        ok = json_check(text, n, NULL, &all, &error);
        for (json_iter i = json_begin(all); ok && json_next(&i, &key, &o);) trace_chrome(t, o);
    } else
        for (char *line = text; ok && *line;) {
            size_t length = strcspn(line, "\n");
            error.offset = 0;
            ok = json_check(line, length, NULL, &o, &error);
            error.offset += (size_t)(line - text);
            if (ok) trace_line(t, o);
            else if (!line[length] && t->n) { /* the writer was ended, or its disk was full */
                fprintf(stderr, "genie_trace: %s: the last line is cut, and left out\n", path);
                ok = true;
            }
            line += length + (line[length] == '\n');
        }
    if (!ok) fprintf(stderr, "genie_trace: %s: byte %zu: %s\n", path, error.offset, error.text);
    if (ok && !t->n) fprintf(stderr, "genie_trace: %s holds no events\n", path);
    free(text);
    if (!ok || !t->n) return false;
    qsort(t->all, t->n, sizeof *t->all, trace_order);
    t->begin = INT64_MAX;
    for (size_t i = 0; i < t->n; i++) {
        if (strcmp(t->all[i].stage, "note") == 0 || strcmp(t->all[i].stage, "clock") == 0) continue;
        if (t->all[i].begin < t->begin) t->begin = t->all[i].begin;
        if (t->all[i].end > t->end) t->end = t->all[i].end;
    }
    if (t->begin > t->end) t->begin = t->end = t->all[0].begin;
    return true;
}

static inline bool trace_is(const trace_event *e, const char *stage) { return strcmp(e->stage, stage) == 0; }

#endif
