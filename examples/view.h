/* view.h - a gn_server_view as JSON and in words: for genie_serve's status page, its metrics and top. Include common.h
 * first. */
#ifndef VIEW_H
#define VIEW_H

/* What follows lies within a page too: no '<' that could end a script, no '&'. Texts are the network's. */
static inline void view_text(ex_json *j, const char *name, const char *text) {
    FILE *f = ex_json_file(j);
    ex_json_name(j, name);
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c >= 0x7f || strchr("\"\\<>&", *c)) fprintf(f, "\\u%04x", *c);
        else fputc(*c, f);
    fputc('"', f);
}

/* Whole numbers up to 2^53; a reader of JSON may round what is more. */
static inline void view_number(ex_json *j, const char *name, uint64_t v) {
    ex_json_name(j, name);
    fprintf(ex_json_file(j), "%llu", (unsigned long long)v);
}

static inline void view_hash(ex_json *j, const char *name, uint64_t v) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    view_text(j, name, text);
}

#define VIEW_N(name, help) view_number(&j, #name, VIEW_OF->name);
#define VIEW_T(name, bytes, help) view_text(&j, #name, VIEW_OF->name);
static inline void view_json_device(FILE *to, const gn_device_view *d) {
    ex_json j = { .to = to };
#define VIEW_OF d
    GN_DEVICE_COLUMNS(VIEW_N, VIEW_T)
#undef VIEW_OF
    ex_json_close(&j);
}

static inline void view_json_session(FILE *to, const gn_session_view *s) {
    ex_json j = { .to = to };
#define VIEW_OF s
    GN_SESSION_COLUMNS(VIEW_N, VIEW_T)
#undef VIEW_OF
    view_hash(&j, "plan", s->plan_hash);
    ex_json_close(&j);
}

static const char *const view_roles[] = {
#define VIEW_X(name, number, text) text,
    GN_ROLES(VIEW_X)
};
static const char *const view_phases[] = { GN_PHASES(VIEW_X) };
#undef VIEW_X
#define VIEW_X(NAME, name, by_phase, help) { #name, help, by_phase },
static const struct {
    const char *name, *help;
    bool by_phase;
} view_timings[] = { GN_TIMINGS(VIEW_X) };
#undef VIEW_X
static const uint64_t view_bounds[GN_TIME_BUCKETS - 1] = { GN_TIME_BOUNDS }; /* us */

static inline void view_json_plans(ex_json *j, const gn_server_view *v) {
    int n = 0;
    ex_json_name(j, "plans");
    fputc('[', j->to);
    for (int r = 0; r < GN_ROLE__COUNT; r++)
        for (int p = 0; p < GN_PHASE__COUNT; p++) {
            if (!v->plans[r][p]) continue;
            ex_json row = { .to = j->to };
            if (n++) fputc(',', j->to);
            view_text(&row, "role", view_roles[r]);
            view_text(&row, "phase", view_phases[p]);
            view_number(&row, "plans", v->plans[r][p]);
            ex_json_close(&row);
        }
    fputc(']', j->to);
}

/* The time within which a share of what was counted ended, in us: the bound of its bucket; 0: nothing was counted, or
   it took longer than every bound. */
static inline uint64_t view_quantile(const gn_times *t, double share) {
    uint64_t sum = 0;
    for (int i = 0; i < GN_TIME_BUCKETS - 1; i++)
        if ((double)(sum += t->buckets[i]) >= share * (double)t->count) return t->count ? view_bounds[i] : 0;
    return 0;
}

static inline void view_json_times(ex_json *j, const gn_server_view *v) {
    int n = 0;
    ex_json_name(j, "times");
    fputc('[', j->to);
    for (int k = 0; k < GN_TIMING__COUNT; k++)
        for (int p = 0; p < GN_PHASE__COUNT; p++) {
            const gn_times *t = &v->times[k][p];
            if (!t->count) continue;
            ex_json row = { .to = j->to };
            if (n++) fputc(',', j->to);
            view_text(&row, "what", view_timings[k].name);
            view_text(&row, "phase", view_timings[k].by_phase ? view_phases[p] : "");
            view_number(&row, "count", t->count);
            view_number(&row, "sum_us", t->sum_us);
            view_number(&row, "p50_us", view_quantile(t, 0.5));
            view_number(&row, "p95_us", view_quantile(t, 0.95));
            ex_json_close(&row);
        }
    fputc(']', j->to);
}

enum { VIEW_DEVICE = 80 };

/* A device as people and metrics tell it from others: "cpu:0", or "cpu:0#1" where an earlier one has that name. */
static inline const char *view_device(const gn_server_view *v, uint32_t i, char *out, size_t size) {
    bool known = false;
    for (uint32_t k = 0; k < i; k++) known = known || strcmp(v->devices[k].name, v->devices[i].name) == 0;
    snprintf(out, size, known ? "%s#%u" : "%s", v->devices[i].name, i);
    return out;
}

/* One object on one line. */
static inline void view_json(FILE *to, const gn_server_view *v) {
    ex_json j = { .to = to };
#define VIEW_OF v
    GN_SERVER_COLUMNS(VIEW_N, VIEW_T)
#undef VIEW_OF
    ex_json_stats(&j, "counters", &v->stats);
    ex_json_name(&j, "devices");
    for (uint32_t i = 0; i < v->n_devices; i++) {
        fputc(i ? ',' : '[', to);
        view_json_device(to, &v->devices[i]);
    }
    fputs(v->n_devices ? "]" : "[]", to);
    ex_json_name(&j, "sessions");
    for (uint32_t i = 0; i < v->n_sessions; i++) {
        fputc(i ? ',' : '[', to);
        view_json_session(to, &v->sessions[i]);
    }
    fputs(v->n_sessions ? "]" : "[]", to);
    view_json_plans(&j, v);
    view_json_times(&j, v);
    ex_json_end(&j);
}
#undef VIEW_N
#undef VIEW_T

#endif
