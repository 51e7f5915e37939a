/* genie_bench compare: results beside each other, as a table and as a chart. A gain counts when it holds in three runs,
 * at p95, in throughput and in memory; a difference within the spread of the runs is none. */
#ifndef GN_SUITE_COMPARE_H
#define GN_SUITE_COMPARE_H

enum { MAX_FILES = 16, NEEDED_RUNS = 3 };

typedef struct verdict {
    double ratio, ratio_p95, ratio_throughput, ratio_memory; /* of the base; below 1 is better, of throughput above */
    double spread;                                           /* relative, of both sides */
    bool beyond;
    char text[120];
} verdict;

/* How far the medians of the runs lie apart, at least 2 %: what a clock and a busy host may do. */
static double spread_of(const result *r) {
    double least = INFINITY, most = 0;
    for (int i = 0; i < r->n_runs; i++) {
        least = fmin(least, r->runs[i].latency.p50);
        most = fmax(most, r->runs[i].latency.p50);
    }
    return fmax(0.02, most / least - 1);
}

/* Runs are looked at in turn: the first of both, the second of both. What keeps a gain from counting; NULL: nothing. */
static const char *not_kept(const result *base, const result *r) {
    if (base->n_runs < NEEDED_RUNS || r->n_runs < NEEDED_RUNS) return "fewer than three runs";
    for (int i = 0; i < base->n_runs && i < r->n_runs; i++) {
        const run *a = &base->runs[i], *b = &r->runs[i];
        if (!(b->latency.p95 < a->latency.p95)) return "not at p95 in each run";
        if (!(b->throughput > a->throughput)) return "not in throughput in each run";
        if (isfinite(a->memory) != isfinite(b->memory)) return "memory is known of one alone";
        if (b->memory > 1.01 * a->memory) return "it takes more memory";
    }
    return NULL;
}

static verdict judge(const result *base, const result *r) {
    verdict v = { .ratio = r->all.latency.p50 / base->all.latency.p50,
                  .ratio_p95 = r->all.latency.p95 / base->all.latency.p95,
                  .ratio_throughput = r->all.throughput / base->all.throughput,
                  .ratio_memory = r->all.memory / base->all.memory,
                  .spread = spread_of(base) + spread_of(r) };
    bool known = base->n_runs > 1 && r->n_runs > 1;
    v.beyond = known && (v.ratio > 1 + v.spread || v.ratio < 1 / (1 + v.spread));
    const char *why = v.beyond && v.ratio < 1 ? not_kept(base, r) : NULL;
    snprintf(v.text, sizeof v.text, "%s%s",
             !known        ? "one run: no spread is known"
             : !v.beyond   ? "within the spread"
             : v.ratio > 1 ? "**slower**"
             : why         ? "gain, not kept: "
                           : "**gain**",
             why ? why : "");
    return v;
}

/* ---- what may be compared ---- */

typedef struct side {
    const char *path;
    char *text, tag[128];
    json_value root;
    report all;
} side;

static char forced[1024];

/* False differences end the program; with --force they are noted in what is written. */
static void differ(const settings *s, const char *what, const side *a, const side *b, json_value x, json_value y) {
    char text[400];
    snprintf(text, sizeof text, "%s differ: %.*s in %s, %.*s in %s", what,
             x.text ? (int)(x.size > 80 ? 80 : x.size) : 7, x.text ? x.text : "nothing", a->tag,
             y.text ? (int)(y.size > 80 ? 80 : y.size) : 7, y.text ? y.text : "nothing", b->tag);
    if (!s->force) die("%s; --force compares all the same and says so", text);
    snprintf(forced + strlen(forced), sizeof forced - strlen(forced), "%s%s", forced[0] ? "; " : "", text);
}

static bool equal_values(json_value a, json_value b) {
    return a.size == b.size && (!a.size || (a.text && b.text && !memcmp(a.text, b.text, a.size)));
}

static void check_sides(const settings *s, const side *a, const side *b) {
    static const char *const sizes[] = { "dtype", "batch", "hidden", "tokens", "layers", "vocab" };
    json_value as = json_get(a->root, "settings"), bs = json_get(b->root, "settings");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!equal_values(json_get(as, sizes[i]), json_get(bs, sizes[i])))
            die("%s and %s have another --%s and cannot be compared", a->path, b->path, sizes[i]);
    json_value ac = json_get(json_get(a->root, "machine"), "class"),
               bc = json_get(json_get(b->root, "machine"), "class");
    if (!equal_values(ac, bc)) differ(s, "classes of devices", a, b, ac, bc);
    ac = json_get(a->root, "versions");
    bc = json_get(b->root, "versions");
    if (!equal_values(ac, bc)) differ(s, "versions of tools", a, b, ac, bc);
}

static const result *find_result(const report *all, const result *like, const char *who) {
    for (int i = 0; i < all->n; i++) {
        const result *r = &all->results[i];
        if (!strcmp(r->who, who) && !strcmp(r->workload, like->workload) && !strcmp(r->name, like->name)) return r;
    }
    return NULL;
}

static void check_result(const settings *s, const side *a, const side *b, const result *x, const result *y) {
    char what[200];
    if (!strcmp(x->versions, y->versions) || x->status != OK || y->status != OK) return;
    snprintf(what, sizeof what, "versions of %s", x->who);
    differ(s, what, a, b, (json_value){ x->versions, strlen(x->versions) },
           (json_value){ y->versions, strlen(y->versions) });
}

/* ---- rows: each result beside its base ---- */

typedef struct line {
    const result *base, *r;
    const char *tag;
} line;

typedef struct lines {
    line all[MAX_RESULTS];
    int n;
} lines;

static void add_line(lines *l, const result *base, const result *r, const char *tag) {
    if (l->n == MAX_RESULTS) die("more than %d lines", MAX_RESULTS);
    l->all[l->n++] = (line){ base, r, tag };
}

/* Of one file: others beside Genie. Of several: each beside the same of the first. */
static void find_lines(const settings *s, const side *sides, int n, lines *out) {
    out->n = 0;
    for (int i = 0; i < sides[0].all.n; i++) {
        const result *r = &sides[0].all.results[i];
        const result *base = n > 1 ? r : find_result(&sides[0].all, r, "genie");
        add_line(out, base ? base : r, r, sides[0].tag);
        for (int k = 1; k < n; k++) {
            const result *other = find_result(&sides[k].all, r, r->who);
            if (!other) continue;
            check_result(s, &sides[0], &sides[k], r, other);
            add_line(out, r, other, sides[k].tag);
        }
    }
    if (!out->n) die("%s holds no results", sides[0].path);
}

static void compare_row(FILE *f, const line *l, bool tags) {
    fprintf(f, "| %s | %s%s%s |", case_name(l->r), l->r->who, tags ? ", " : "", tags ? l->tag : "");
    if (l->r->status != OK) {
        fprintf(f, " %s: %s |\n", status_names[l->r->status], l->r->reason);
        return;
    }
    const run *all = &l->r->all;
    const double numbers[] = { all->latency.p50, all->latency.p95, all->throughput, all->memory / 1048576 };
    for (int i = 0; i < 4; i++) {
        char text[32];
        say_number(text, sizeof text, numbers[i]);
        fprintf(f, " %s |", text);
    }
    if (l->base == l->r || l->base->status != OK) fprintf(f, " | | %s |\n", l->base == l->r ? "base" : "no base");
    else {
        verdict v = judge(l->base, l->r);
        fprintf(f, " %.3f | %.3f | %s", v.ratio, v.ratio_p95, v.text);
        if (l->base->n_runs > 1 && l->r->n_runs > 1) fprintf(f, " (spread %.1f %%)", 100 * v.spread);
        fputs(" |\n", f);
    }
}

static void compare_table(FILE *f, const lines *l, bool tags) {
    if (forced[0]) fprintf(f, "**FORCED, not a fair comparison:** %s\n\n", forced);
    fputs("| case | who | p50 ms | p95 ms | a second | memory MiB | p50 of base | p95 of base | verdict |\n"
          "|---|---|---|---|---|---|---|---|---|\n",
          f);
    for (int i = 0; i < l->n; i++) compare_row(f, &l->all[i], tags);
    fputs("\nA gain counts when it holds in three runs, at p95, in throughput and in memory.\n", f);
}

/* ---- chart: a bar for p50, a line up to p95; each case has a scale of its own ---- */

enum { SVG_WIDTH = 860, SVG_LEFT = 260, SVG_BAR = 18, SVG_STEP = 26, SVG_HEAD = 30, SVG_TOP = 64 };

static void svg_text(FILE *f, double x, double y, const char *kind, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, kind);
    for (; *text; text++)
        if (*text == '&') fputs("&amp;", f);
        else if (*text == '<') fputs("&lt;", f);
        else fputc(*text, f);
    fputs("</text>\n", f);
}

static bool begins_case(const lines *l, int i) {
    return i == 0 || strcmp(case_name(l->all[i].r), case_name(l->all[i - 1].r)) != 0;
}

static double case_most(const lines *l, int i) {
    double most = 0;
    for (int k = i; k < l->n && (k == i || !begins_case(l, k)); k++)
        if (l->all[k].r->status == OK) most = fmax(most, l->all[k].r->all.latency.p95);
    return most;
}

static void svg_bar(FILE *f, const line *l, double most, double y, bool tags) {
    const summary *t = &l->r->all.latency;
    double scale = (SVG_WIDTH - SVG_LEFT - 190) / most;
    char text[200];
    snprintf(text, sizeof text, "%s%s%s", l->r->who, tags ? ", " : "", tags ? l->tag : "");
    svg_text(f, SVG_LEFT - 10, y + 13, "who", text);
    if (l->r->status != OK) {
        snprintf(text, sizeof text, "%s: %.60s", status_names[l->r->status], l->r->reason);
        svg_text(f, SVG_LEFT, y + 13, "small", text);
        return;
    }
    fprintf(f, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"%s\"/>\n", SVG_LEFT, y,
            fmax(1, t->p50 * scale), SVG_BAR, l->base == l->r ? "base" : "bar");
    fprintf(f, "<path d=\"M%.1f %.1fH%.1fm0 -4v8\" class=\"p95\"/>\n", SVG_LEFT + t->p50 * scale, y + SVG_BAR / 2.,
            SVG_LEFT + t->p95 * scale);
    snprintf(text, sizeof text, "%.3g ms", t->p50);
    if (l->base != l->r && l->base->status == OK)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", %.2f of base", t->p50 / l->base->all.latency.p50);
    svg_text(f, SVG_LEFT + t->p95 * scale + 8, y + 13, "small", text);
}

static void compare_chart(FILE *f, const lines *l, bool tags) {
    double y = SVG_TOP, most = 1;
    int heads = 0;
    for (int i = 0; i < l->n; i++) heads += begins_case(l, i);
    double height = SVG_TOP + heads * SVG_HEAD + l->n * SVG_STEP + 16;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\">\n"
            "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold;font-size:16px}.case{font-weight:bold}"
            ".who{text-anchor:end}.small{font-size:12px;fill:#555}.bar{fill:#d9822b}.base{fill:#3b6ea5}"
            ".p95{stroke:#222;fill:none}.forced{fill:#b00020;font-weight:bold;font-size:12px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            SVG_WIDTH, height, SVG_WIDTH, height);
    svg_text(f, 16, 26, "title", "Time of a step: p50 as a bar, p95 as a line");
    svg_text(f, 16, 46, forced[0] ? "forced" : "small",
             forced[0] ? "FORCED, not a fair comparison: classes of devices or versions differ"
                       : "Shorter is better; each case has its own scale.");
    for (int i = 0; i < l->n; i++, y += SVG_STEP) {
        if (begins_case(l, i)) {
            svg_text(f, 16, y + 20, "case", case_name(l->all[i].r));
            most = case_most(l, i);
            y += SVG_HEAD;
        }
        svg_bar(f, &l->all[i], most > 0 ? most : 1, y, tags);
    }
    fputs("</svg>\n", f);
}

static void compare_lines(const settings *s, const lines *l, bool tags) {
    char path[PATH_MAX];
    compare_table(stdout, l, tags);
    make_folder(s->out);
    FILE *f = create(s->out, s->tag, "md", path, sizeof path);
    compare_table(f, l, tags);
    finish_file(f, path);
    f = create(s->out, s->tag, "svg", path, sizeof path);
    compare_chart(f, l, tags);
    finish_file(f, path);
}

static void run_compare(const settings *s, char **paths, int n) {
    side *sides = or_die(calloc((size_t)n, sizeof *sides));
    lines *l = or_die(malloc(sizeof *l));
    for (int i = 0; i < n; i++) {
        sides[i].path = paths[i];
        sides[i].text = read_report(paths[i], &sides[i].all, &sides[i].root);
        text_or_die(paths[i], sides[i].root, "tag", sides[i].tag, sizeof sides[i].tag);
        if (i) check_sides(s, &sides[0], &sides[i]);
    }
    find_lines(s, sides, n, l);
    compare_lines(s, l, n > 1);
    for (int i = 0; i < n; i++) free(sides[i].text);
    free(sides);
    free(l);
}

#endif
