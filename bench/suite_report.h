/* Results of genie_bench: TAG.json, which compare reads back, and TAG.md for people. */
#ifndef GN_SUITE_REPORT_H
#define GN_SUITE_REPORT_H

#include <sys/stat.h>

#define REPORT_SCHEMA "genie-bench-1"

static result *add_result(report *all, const char *who, const char *workload, const char *name, const char *unit) {
    if (all->n == MAX_RESULTS) die("more than %d results", MAX_RESULTS);
    result *r = &all->results[all->n++];
    *r = (result){ .status = OK, .error = NAN, .bound = NAN, .host_memory = NAN };
    snprintf(r->who, sizeof r->who, "%s", who);
    snprintf(r->workload, sizeof r->workload, "%s", workload);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    snprintf(r->versions, sizeof r->versions, "{}");
    return r;
}

/* ---- JSON ---- */

static void json_latency(ex_json *j, const summary *l) {
    ex_json k = { .to = j->to };
    ex_json_name(j, "latency_ms");
    ex_json_number(&k, "mean", l->mean);
    ex_json_number(&k, "p50", l->p50);
    ex_json_number(&k, "p95", l->p95);
    ex_json_number(&k, "min", l->least);
    ex_json_number(&k, "max", l->most);
    ex_json_close(&k);
}

static void json_run(ex_json *j, const run *r) {
    json_latency(j, &r->latency);
    ex_json_number(j, "throughput_tokens_per_sec", r->throughput);
    ex_json_name(j, "peak_memory_bytes");
    fprintf(j->to, isfinite(r->memory) ? "%.0f" : "null", r->memory);
}

static void json_result(FILE *f, const result *r) {
    ex_json j = { .to = f };
    ex_json_text(&j, "who", r->who);
    ex_json_text(&j, "workload", r->workload);
    ex_json_text(&j, "case", r->name);
    ex_json_text(&j, "status", status_names[r->status]);
    ex_json_text(&j, "reason", r->reason);
    ex_json_text(&j, "unit", r->unit);
    ex_json_name(&j, "versions");
    fputs(r->versions, f);
    ex_json_number(&j, "error", r->error);
    ex_json_number(&j, "error_bound", r->bound);
    ex_json_text(&j, "error_beside", r->error_of);
    if (r->status == OK) {
        json_run(&j, &r->all);
        ex_json_number(&j, "peak_host_bytes", r->host_memory);
        ex_json_name(&j, "runs");
        for (int i = 0; i < r->n_runs; i++) {
            ex_json k = { .to = f };
            fputc(i ? ',' : '[', f);
            json_run(&k, &r->runs[i]);
            ex_json_close(&k);
        }
        fputc(']', f);
    }
    ex_json_close(&j);
}

static void json_settings(ex_json *j, const settings *s) {
    ex_json k = { .to = j->to };
    ex_json_name(j, "settings");
    ex_json_text(&k, "device", is_server(s->device) ? "a server" : s->device); /* a URL may hold a code */
    ex_json_text(&k, "dtype", s->dtype);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "batch", s->batch },   { "hidden", s->hidden }, { "tokens", s->tokens },
                    { "layers", s->layers }, { "vocab", s->vocab },   { "iters", s->iters },
                    { "warmup", s->warmup }, { "rounds", s->rounds }, { "threads", s->threads } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ex_json_number(&k, numbers[i].name, (double)numbers[i].value);
    ex_json_close(&k);
}

static void json_machine(ex_json *j, const machine *m) {
    ex_json k = { .to = j->to };
    const gpu_state *g = &m->gpu;
    ex_json_name(j, "machine");
    ex_json_text(&k, "class", m->class_name);
    ex_json_text(&k, "cpu", m->cpu);
    ex_json_number(&k, "cores", m->cores);
    ex_json_number(&k, "memory_bytes", m->memory);
    ex_json_text(&k, "system", m->system);
    ex_json_text(&k, "device", m->device);
    ex_json_text(&k, "identity", m->identity);
    ex_json_text(&k, "gpu", g->name);
    ex_json_number(&k, "sm_mhz", g->sm_mhz);
    ex_json_number(&k, "most_sm_mhz", g->most_sm_mhz);
    ex_json_number(&k, "memory_mhz", g->memory_mhz);
    ex_json_number(&k, "watts", g->watts);
    ex_json_number(&k, "limit_watts", g->limit_watts);
    ex_json_number(&k, "celsius", g->celsius);
    ex_json_close(&k);
}

/* Of tools: what compare refuses to mix. */
static void json_versions(ex_json *j, const machine *m) {
    ex_json k = { .to = j->to };
    const char *nvrtc = strstr(m->identity, " nvrtc ");
    char number[32];
    snprintf(number, sizeof number, "%.*s", nvrtc ? (int)strcspn(nvrtc + 7, " ") : 0, nvrtc ? nvrtc + 7 : "");
    ex_json_name(j, "versions");
    ex_json_text(&k, "compiler", m->compiler);
    ex_json_text(&k, "driver", m->gpu.driver);
    ex_json_text(&k, "cuda", m->gpu.cuda);
    ex_json_text(&k, "nvrtc", number);
    ex_json_close(&k);
}

/* A secret does not get into a file: of GENIE_DEVICES, which may hold a URL with a code, it is said that it is set. */
static void json_switches(ex_json *j) {
    ex_json k = { .to = j->to };
    ex_json_name(j, "switches");
    for (char **e = environ; *e; e++) {
        const char *equals = strchr(*e, '=');
        char name[80];
        if (strncmp(*e, "GENIE_", 6) != 0 || !equals || equals - *e >= (ptrdiff_t)sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - *e), *e);
        ex_json_text(&k, name, strcmp(name, "GENIE_DEVICES") == 0 ? "set" : equals + 1);
    }
    ex_json_close(&k);
}

/* Stacks that nobody named a command for. */
static void json_unavailable(ex_json *j, const settings *s) {
    ex_json k = { .to = j->to };
    ex_json_name(j, "unavailable");
    for (int i = 0; i < KNOWN && !s->no_adapters; i++) {
        const char *variable = variable_not_set(i);
        char text[96];
        if (!variable) continue;
        snprintf(text, sizeof text, "%s is not set", variable);
        ex_json_text(&k, known_adapters[i], text);
    }
    ex_json_close(&k);
}

static void json_report(FILE *f, const report *all, const settings *s, const machine *m, const char *rows) {
    ex_json j = { .to = f };
    char when[32];
    time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    ex_json_text(&j, "schema", REPORT_SCHEMA);
    ex_json_text(&j, "tag", s->tag);
    ex_json_text(&j, "date", when);
    ex_json_text(&j, "genie", GN_VERSION);
    ex_json_text(&j, "commit", m->commit);
    ex_json_text(&j, "command", s->command);
    json_settings(&j, s);
    json_machine(&j, m);
    json_versions(&j, m);
    json_switches(&j);
    json_unavailable(&j, s);
    ex_json_name(&j, "results");
    fputc('[', f);
    for (int i = 0; i < all->n; i++) {
        fputs(i ? ",\n" : "\n", f);
        json_result(f, &all->results[i]);
    }
    fputs("\n]", f);
    if (rows) {
        ex_json_name(&j, "rows");
        fputs(rows, f);
    }
    ex_json_end(&j);
}

/* ---- Markdown ---- */

static void say_number(char *out, size_t size, double v) {
    if (!isfinite(v)) snprintf(out, size, "–");
    else snprintf(out, size, v >= 1e4 || (v < 1e-2 && v > 0) ? "%.3g" : v >= 100 ? "%.0f" : "%.3g", v);
}

static const char *case_name(const result *r) {
    static char text[4][104];
    static int at;
    at = (at + 1) % 4;
    snprintf(text[at], sizeof text[at], "%s%s%s", r->workload, r->name[0] ? ":" : "", r->name);
    return text[at];
}

static void md_row(FILE *f, const result *r) {
    const double values[] = { r->all.latency.mean,     r->all.latency.p50,       r->all.latency.p95,
                              r->all.latency.least,    r->all.latency.most,      r->all.throughput,
                              r->all.memory / 1048576, r->host_memory / 1048576, r->error };
    fprintf(f, "| %s | %s |", case_name(r), r->who);
    if (r->status != OK) {
        fprintf(f, " %s: %s |\n", status_names[r->status], r->reason);
        return;
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[32];
        say_number(text, sizeof text, values[i]);
        fprintf(f, " %s%s%s |", text, i == 5 ? " " : "", i == 5 ? r->unit : "");
    }
    fputc('\n', f);
}

static void md_head(FILE *f) {
    fputs("| case | who | mean | p50 | p95 | min | max | a second | device | host | error |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|\n",
          f);
}

static void md_report(FILE *f, const report *all, const settings *s, const machine *m) {
    char clocks[160] = "";
    fprintf(f, "# %s\n\n", s->tag);
    if (all->n) {
        fprintf(f, "Times in ms, memory in MiB; medians of %lld runs of %lld steps after %lld.\n\n",
                (long long)s->rounds, (long long)s->iters, (long long)s->warmup);
        md_head(f);
    }
    for (int i = 0; i < all->n; i++) md_row(f, &all->results[i]);
    if (!s->no_adapters && all->n) {
        fputs("\n- unavailable, for no variable names a command:", f);
        for (int i = 0; i < KNOWN; i++)
            if (variable_not_set(i)) fprintf(f, " %s", variable_not_set(i));
    }
    if (m->gpu.name[0])
        snprintf(clocks, sizeof clocks, "; driver %s, %.0f of %.0f MHz, %.0f W of %.0f W, %.0f degrees Celsius",
                 m->gpu.driver, m->gpu.sm_mhz, m->gpu.most_sm_mhz, m->gpu.watts, m->gpu.limit_watts, m->gpu.celsius);
    fprintf(f, "\n- machine: %s; %s, %d cores; %s%s\n", m->class_name, m->cpu, m->cores, m->system, clocks);
    fprintf(f, "- Genie %s, commit %s, compiled by %s\n- command: `%s`\n", GN_VERSION, m->commit, m->compiler,
            s->command);
}

/* ---- files ---- */

static void make_folder(const char *path) {
    char part[PATH_MAX];
    size_t n = (size_t)snprintf(part, sizeof part, "%s", path);
    for (size_t i = 1; i <= n && n < sizeof part; i++)
        if (part[i] == '/' || i == n) {
            char kept = part[i];
            part[i] = 0;
            if (mkdir(part, 0755) != 0 && errno != EEXIST) die("%s: %s", part, strerror(errno));
            part[i] = kept;
        }
}

static FILE *create(const char *folder, const char *tag, const char *end, char *path, size_t size) {
    snprintf(path, size, "%s/%s.%s", folder, tag, end);
    FILE *f = fopen(path, "w");
    if (!f) die("%s: %s", path, strerror(errno));
    return f;
}

static void finish_file(FILE *f, const char *path) {
    bool bad_write = ferror(f) != 0;
    if (fclose(f) != 0 || bad_write) die("%s: %s", path, strerror(errno));
    printf("wrote %s\n", path);
}

static void write_report(const report *all, const settings *s, const machine *m, const char *rows, bool markdown) {
    char path[PATH_MAX];
    make_folder(s->out);
    FILE *f = create(s->out, s->tag, "json", path, sizeof path);
    json_report(f, all, s, m, rows);
    finish_file(f, path);
    if (!markdown) return;
    f = create(s->out, s->tag, "md", path, sizeof path);
    md_report(f, all, s, m);
    finish_file(f, path);
}

/* All of a file and a 0 behind it; ends the program when there is none. */
static char *file_text(const char *path) {
    FILE *f = fopen(path, "r");
    size_t n = 0, room = 1 << 16;
    char *text = or_die(malloc(room));
    if (!f) die("%s: %s", path, strerror(errno));
    for (size_t got; (got = fread(text + n, 1, room - n - 1, f)) > 0;) {
        n += got;
        if (n + 1 == room) text = or_die(realloc(text, room *= 2));
        if (n > (size_t)64 << 20) die("%s: larger than 64 MiB", path);
    }
    if (ferror(f)) die("%s: %s", path, strerror(errno));
    fclose(f);
    text[n] = 0;
    if (strlen(text) != n) die("%s: not a result, for it holds a 0 byte", path);
    return text;
}

static void text_or_die(const char *path, json_value object, const char *name, char *out, size_t size) {
    if (!json_get_string(json_get(object, name), out, size, NULL))
        die("%s: not a result of this program: no text '%s'", path, name);
}

static run read_run(const char *path, json_value v) {
    run r = { .memory = NAN };
    if (!latency_of(v, &r.latency) || !number_of(v, "throughput_tokens_per_sec", &r.throughput) || r.throughput <= 0)
        die("%s: a result has no times that fit together", path);
    if (!number_of(v, "peak_memory_bytes", &r.memory)) r.memory = NAN;
    return r;
}

static void read_result(const char *path, json_value v, report *all) {
    char text[512];
    json_value key, value;
    result *r = add_result(all, "", "", "", "");
    text_or_die(path, v, "who", r->who, sizeof r->who);
    text_or_die(path, v, "workload", r->workload, sizeof r->workload);
    text_or_die(path, v, "case", r->name, sizeof r->name);
    text_or_die(path, v, "unit", r->unit, sizeof r->unit);
    text_or_die(path, v, "reason", r->reason, sizeof r->reason);
    text_or_die(path, v, "error_beside", r->error_of, sizeof r->error_of);
    text_or_die(path, v, "status", text, sizeof text);
    for (r->status = OK; r->status < STATUS__COUNT && strcmp(text, status_names[r->status]);) r->status++;
    if (r->status == STATUS__COUNT) die("%s: unknown status '%s'", path, text);
    json_value versions = json_get(v, "versions");
    snprintf(r->versions, sizeof r->versions, "%.*s", (int)versions.size, versions.text ? versions.text : "{}");
    if (!number_of(v, "error", &r->error)) r->error = NAN;
    if (!number_of(v, "error_bound", &r->bound)) r->bound = NAN;
    if (!number_of(v, "peak_host_bytes", &r->host_memory)) r->host_memory = NAN;
    if (r->status != OK) return;
    for (json_iter i = json_begin(json_get(v, "runs")); json_next(&i, &key, &value);) {
        if (r->n_runs == MAX_RUNS) die("%s: more than %d runs", path, MAX_RUNS);
        r->runs[r->n_runs++] = read_run(path, value);
    }
    if (!r->n_runs) die("%s: a result without runs", path);
    result_sum(r);
}

/* A result's file: its text stays, for out_root lies in it. */
static char *read_report(const char *path, report *all, json_value *out_root) {
    char *text = file_text(path);
    json_error e;
    json_value key, value;
    if (!json_check(text, strlen(text), NULL, out_root, &e)) die("%s: byte %zu: %s", path, e.offset, e.text);
    if (!json_is(json_get(*out_root, "schema"), REPORT_SCHEMA)) die("%s: not of the schema " REPORT_SCHEMA, path);
    all->n = 0;
    for (json_iter i = json_begin(json_get(*out_root, "results")); json_next(&i, &key, &value);)
        read_result(path, value, all);
    return text;
}

#endif
