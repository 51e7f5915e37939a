/* genie_bench table: results at a glance, a column for each case and a row for whoever ran it: the p50 of a step in
 * microseconds, in brackets the p95, then how many times as long as the base takes. Rows called "genie..." are bases,
 * each of the rows below it. */
#ifndef GN_SUITE_TABLE_H
#define GN_SUITE_TABLE_H

typedef struct grid {
    const result *rows[MAX_RESULTS], *columns[MAX_RESULTS]; /* the first result of each name */
    int n_rows, n_columns;
} grid;

static void table_names(const report *all, grid *t) {
    for (int i = 0; i < all->n; i++) {
        const result *r = &all->results[i];
        bool row = true, column = true;
        for (int k = 0; k < t->n_rows; k++) row = row && strcmp(t->rows[k]->who, r->who) != 0;
        for (int k = 0; k < t->n_columns; k++) column = column && strcmp(case_name(t->columns[k]), case_name(r)) != 0;
        if (row) t->rows[t->n_rows++] = r;
        if (column) t->columns[t->n_columns++] = r;
    }
}

static void table_number(double us) { printf(us < 1000 ? "%.3g" : "%.0f", us); }

static void table_cell(const result *base, const result *r) {
    if (!r || r->status != OK) {
        printf("%s%s |", r ? " " : "", r ? status_names[r->status] : "");
        return;
    }
    putchar(' ');
    table_number(1e3 * r->all.latency.p50);
    fputs(" (", stdout);
    table_number(1e3 * r->all.latency.p95);
    putchar(')');
    if (base && base != r && base->status == OK) printf(" x%.2f", r->all.latency.p50 / base->all.latency.p50);
    fputs(" |", stdout);
}

/* What has no time, and why: once for all cases that say the same. */
static void table_reasons(const report *all) {
    for (int i = 0; i < all->n; i++) {
        const result *r = &all->results[i];
        int k = 0;
        while (k < i && (strcmp(all->results[k].who, r->who) || strcmp(all->results[k].reason, r->reason))) k++;
        if (r->status != OK && k == i) printf("- %s: %s: %s\n", r->who, status_names[r->status], r->reason);
    }
}

static void table_head(const char *path, json_value root, const report *all, const grid *t) {
    char tag[128], device[160], dtype[32], commit[64];
    double iters = 0;
    json_value given = json_get(root, "settings");
    text_or_die(path, root, "tag", tag, sizeof tag);
    text_or_die(path, root, "commit", commit, sizeof commit);
    text_or_die(path, json_get(root, "machine"), "class", device, sizeof device);
    text_or_die(path, given, "dtype", dtype, sizeof dtype);
    json_get_double(json_get(given, "iters"), &iters);
    printf("%s: us of a step, p50 (p95) and times the base; %s, %s; medians of %d runs of %.0f steps; commit %s\n\n",
           tag, device, dtype, all->results[0].n_runs, iters, commit);
    fputs("| |", stdout);
    for (int i = 0; i < t->n_columns; i++) printf(" %s |", case_name(t->columns[i]));
    fputs("\n|---|", stdout);
    for (int i = 0; i < t->n_columns; i++) fputs("---|", stdout);
    putchar('\n');
}

static void table_print(const char *path) {
    report *all = or_die(malloc(sizeof *all));
    grid *t = or_die(calloc(1, sizeof *t));
    json_value root;
    const char *base = "";
    char *text = read_report(path, all, &root);
    if (!all->n) die("%s holds no results", path);
    table_names(all, t);
    table_head(path, root, all, t);
    for (int i = 0; i < t->n_rows; i++) {
        const char *who = t->rows[i]->who;
        if (strncmp(who, "genie", 5) == 0) base = who;
        printf("| %s |", who);
        for (int k = 0; k < t->n_columns; k++)
            table_cell(find_result(all, t->columns[k], base), find_result(all, t->columns[k], who));
        putchar('\n');
    }
    table_reasons(all);
    putchar('\n');
    free(text);
    free(t);
    free(all);
}

#endif
