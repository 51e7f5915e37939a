/* One program for what people compare: workloads on any device of Genie's, beside other stacks, before and after a
 * change, with and without each switch.
 *
 *   ./build.sh bench && ./build/bench/genie_bench mlp               writes build/results/mlp.json and mlp.md
 *   ./build/bench/genie_bench mlp,rows,gpt2:decode --device cuda:0 --dtype bf16 --tag before
 *   NUMPY_BENCH_CMD='python3 bench/adapters/numpy_cpu.py' ./build/bench/genie_bench mlp
 *   ./build/bench/genie_bench compare build/results/before.json build/results/after.json
 *   ./build/bench/genie_bench table build/results/mlp.json          cases beside each other, a row for each stack
 *   ./build/bench/genie_bench ablate gpt2:decode --device cuda:0
 *   ./build/bench/genie_bench traces mlp,gpt2:decode --device cuda:0    what GENIE_TRACE costs
 *   ./build/bench/genie_bench core --only matmul                    rows of bench_core, and gpu of bench_gpu
 *   ./build/bench/genie_bench example chat DIR --max-tokens 64      runs of a program of examples/, timed as a whole
 *
 * Each variable NAME_BENCH_CMD names a command that runs the same on another stack (bench/adapters/README.md); Genie
 * and the commands take turns, --rounds times. Values are compared with double precision before a time counts. --quick
 * shows that it works, not how fast. Where there is no git, $GENIE_BENCH_COMMIT names the commit.
 */
#ifndef GENIE_EXT
#define GENIE_EXT
#endif
#define _GNU_SOURCE
#define JSON_IMPLEMENTATION
#include "examples/common.h"
#include "examples/formats/json.h"
#include "bench.h"
#include "suite.h"
#include "suite_work.h"
#include "suite_models.h"
#include "suite_machine.h"
#include "suite_run.h"
#include "suite_adapter.h"
static bool is_server(const char *device);
static bool is_case(const char *word, const char *workload, const char *name);
static void no_workload(const char *word, bool with_transport);
#include "suite_report.h"
#include "suite_transport.h"
#include "suite_compare.h"
#include "suite_table.h"
#include "suite_ablate.h"
#include "suite_traces.h"

/* ---- a case: Genie and the adapters in turn ---- */

/* What an adapter reads: one line of JSON. */
static void request_of(const job *j, const settings *s, char *out, size_t size) {
    FILE *f = fmemopen(out, size, "w");
    ex_json r = { .to = f };
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "batch", j->batch },
                    { "hidden", j->hidden },
                    { "tokens", j->tokens },
                    { "new", j->new },
                    { "layers", j->layers },
                    { "vocab", j->vocab },
                    { "heads", j->heads },
                    { "kv_heads", j->kv_heads },
                    { "head", j->head },
                    { "feed_forward", j->feed_forward },
                    { "room", j->room },
                    { "positions", POSITIONS },
                    { "rows", j->batch * ROWS_EACH },
                    { "iters", s->iters },
                    { "warmup", s->warmup },
                    { "rounds", s->rounds },
                    { "seed", SEED },
                    { "sample", SAMPLE },
                    { "checks", j->c->checks },
                    { "threads", s->threads } };
    if (!f) die("out of memory");
    ex_json_text(&r, "schema", "genie-bench-request-1");
    ex_json_text(&r, "workload", j->c->workload);
    ex_json_text(&r, "case", j->c->name);
    ex_json_text(&r, "device", s->device);
    ex_json_text(&r, "dtype", s->dtype);
    ex_json_number(&r, "units_a_step", j->c->count(j));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ex_json_number(&r, numbers[i].name, (double)numbers[i].value);
    ex_json_end(&r);
    if (fclose(f) != 0) die("a request of more than %zu bytes", size);
}

/* Values before times: what is off gets a status, and no numbers. */
static void check_result_values(result *r, const double *want, int n, gn_dtype d, const char *beside) {
    r->bound = bound_of(d);
    snprintf(r->error_of, sizeof r->error_of, "%s", beside);
    if (r->n_sample != n) die("%s gave %d values, not %d", r->who, r->n_sample, n);
    r->error = sample_error(r->sample, want, n);
    if (r->error <= r->bound) return;
    r->status = WRONG;
    snprintf(r->reason, sizeof r->reason, "values are off by %.2g of the largest; %.2g is allowed", r->error, r->bound);
}

static void adapter_run(const adapter *a, child *c, const char *request, const job *j, const settings *s, int n_sample,
                        result *r) {
    char *text = or_die(malloc(ANSWER_BYTES)), log[PATH_MAX];
    snprintf(log, sizeof log, "%s/%s.%s.log", s->out, s->tag, a->who);
    if (!ask(c, a->command, request, log, s->limit, text, ANSWER_BYTES, r->reason, sizeof r->reason))
        r->status = FAILED;
    else take_answer(r, text, j->c->count(j), n_sample);
    free(text);
}

typedef struct contest {
    job j;
    gn_dtype d;
    double mine[SAMPLE * CHECKS], want[SAMPLE * CHECKS];
    int n_sample;
    result *genie, *others[MAX_ADAPTERS];
    adapters found;
    child children[MAX_ADAPTERS];
} contest;

static void contest_rounds(contest *c, const settings *s) {
    char request[4096];
    request_of(&c->j, s, request, sizeof request);
    for (int round = 0; round < s->rounds; round++) {
        c->genie->runs[c->genie->n_runs++] = job_time(&c->j, s);
        gpu_seen = gpu_now(s->device);
        for (int i = 0; i < c->found.n; i++)
            if (c->others[i]->status == OK)
                adapter_run(&c->found.all[i], &c->children[i], request, &c->j, s, c->n_sample, c->others[i]);
    }
    for (int i = 0; i < c->found.n; i++) child_stop(&c->children[i]);
    c->genie->host_memory = host_memory();
    if (!job_same(&c->j, c->mine)) {
        c->genie->status = WRONG;
        snprintf(c->genie->reason, sizeof c->genie->reason, "a timed step computed other values than the first");
    }
}

static void contest_verdict(contest *c, const settings *s) {
    const char *beside = "double precision";
    int n = c->n_sample;
    memcpy(c->genie->sample, c->mine, sizeof c->mine);
    c->genie->n_sample = n;
    if (!job_refer(&c->j, s, c->d, c->want, &n)) {
        memcpy(c->want, c->mine, sizeof c->want);
        beside = "Genie's own values";
    } else if (c->genie->status == OK) check_result_values(c->genie, c->want, n, c->d, beside);
    for (int i = 0; i < c->found.n; i++)
        if (c->others[i]->status == OK) check_result_values(c->others[i], c->want, n, c->d, beside);
    result_sum(c->genie);
    for (int i = 0; i < c->found.n; i++) result_sum(c->others[i]);
}

static void run_case(const bench_case *k, const settings *s, gn_ctx *g, report *all) {
    contest *c = or_die(calloc(1, sizeof *c));
    printf("%s%s%s\n", k->workload, k->name[0] ? ":" : "", k->name);
    fflush(stdout);
    if (!s->no_adapters) find_adapters(&c->found);
    int first = all->n;
    c->genie = add_result(all, "genie", k->workload, k->name, k->unit);
    for (int i = 0; i < c->found.n; i++)
        c->others[i] = add_result(all, c->found.all[i].who, k->workload, k->name, k->unit);
    c->d = dtype_of(s->dtype);
    host_memory_reset();
    job_open(&c->j, k, s, g, c->d, c->d);
    c->n_sample = job_check(&c->j, c->mine);
    contest_rounds(c, s);
    contest_verdict(c, s);
    job_close(&c->j);
    free(c);
    for (int i = first; i < all->n; i++) md_row(stdout, &all->results[i]);
}

/* ---- rows of the other benchmarks: they run, and the object that they end with becomes a part of the result ---- */

/* The command of such a program. */
static void rows_command(const char *program, char **args, int n, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "'%s' --json", program);
    for (int i = 0; i < n && at < size; i++) {
        if (strchr(args[i], '\'')) die("%s: no argument for %s", args[i], program);
        at += (size_t)snprintf(out + at, size - at, " '%s'", args[i]);
    }
    if (at >= size) die("too many arguments");
}

static char *run_rows(const char *program, char **args, int n) {
    char command[PATH_MAX + 2048], *text = or_die(malloc(ANSWER_BYTES));
    size_t used = 0;
    json_value root;
    json_error e;
    rows_command(program, args, n, command, sizeof command);
    fflush(NULL);
    FILE *f = popen(command, "r");
    if (!f) die("%s: %s", program, strerror(errno));
    while (used < ANSWER_BYTES - 1 && fgets(text + used, (int)(ANSWER_BYTES - used), f)) {
        if (text[used] != '{') printf("%s", text + used);
        used += strlen(text + used);
    }
    int ended = pclose(f);
    if (ended != 0) exit(WIFEXITED(ended) && WEXITSTATUS(ended) ? WEXITSTATUS(ended) : EX_FAILED);
    const char *last = last_line(text);
    if (!json_check(last, strlen(last), NULL, &root, &e)) die("%s ends without JSON: %s", program, e.text);
    memmove(text, last, strlen(last) + 1);
    return text;
}

/* ---- the command line ---- */

static char command_line[4096];

static void keep_command(int argc, char **argv) {
    size_t at = 0;
    for (int i = 0; i < argc && at < sizeof command_line; i++) {
        bool secret = strstr(argv[i], "code=") != NULL;
        at += (size_t)snprintf(command_line + at, sizeof command_line - at, "%s%s", i ? " " : "",
                               secret ? "(a URL)" : argv[i]);
    }
}

static void parse(int argc, char **argv, settings *s) {
    const ex_option options[] = {
        { "device", EX_TEXT, &s->device, "NAME", "cpu, cuda:0, a server's URL, @FILE (cpu)", 0, 0 },
        { "batch", EX_INT, &s->batch, "N", "samples or sequences per step (64)", 1, 65536 },
        { "hidden", EX_INT, &s->hidden, "N", "width (2048; models have their own)", 0, 65536 },
        { "tokens", EX_INT, &s->tokens, "N", "length of attention and prefill, context of decode (128)", 1, 65536 },
        { "layers", EX_INT, &s->layers, "N", "layers of a model (its own)", 0, 34 },
        { "vocab", EX_INT, &s->vocab, "N", "vocabulary of a model (its own)", 0, 1 << 20 },
        { "iters", EX_INT, &s->iters, "N", "timed steps per round (80)", 1, 1000000 },
        { "warmup", EX_INT, &s->warmup, "N", "untimed steps before them (20)", 0, 1000000 },
        { "rounds", EX_INT, &s->rounds, "N", "rounds; in each, all contestants take turns (3)", 1, MAX_RUNS },
        { "threads", EX_INT, &s->threads, "N", "threads of the CPU (all cores)", 0, 1024 },
        { "dtype", EX_TEXT, &s->dtype, "NAME", "f32, f16, bf16 or f64 (f32)", 0, 0 },
        { "tag", EX_TEXT, &s->tag, "NAME", "name of the result files (the workload)", 0, 0 },
        { "out", EX_TEXT, &s->out, "DIR", "folder of the result files (build/results)", 0, 0 },
        { "limit", EX_INT, &s->limit, "SECONDS", "time limit of one adapter command (600)", 1, 86400 },
        { "only", EX_TEXT, &s->only, "WORD", "ablate: only switches whose name contains WORD", 0, 0 },
        { "no-adapters", EX_FLAG, &s->no_adapters, NULL, "ignore the variables *_BENCH_CMD", 0, 0 },
        { "no-reference", EX_FLAG, &s->no_reference, NULL, "compare others with Genie instead of with double precision",
          0, 0 },
        { "force", EX_FLAG, &s->force, NULL, "compare: accept other devices and versions, and mark them", 0, 0 },
        { "quick", EX_FLAG, &s->quick, NULL, "small sizes and few steps: shows that it works, not how fast", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(
        argc, argv,
        "genie_bench WORKLOAD,… | compare A.json B.json … | table A.json … | ablate WORKLOAD | traces WORKLOAD\n"
        "            | core … | gpu … | example NAME …\n"
        "workloads: mlp matmul elementwise rows attention gpt2 llama training transport, all; one case: gpt2:decode",
        options);
}

/* Small sizes, unless others are asked for: values that are given stand behind these. */
static void settle(settings *s, int argc, char **argv) {
    const char *out = s->out, *tag = s->tag;
    *s = (settings){ .device = "cpu",
                     .dtype = "f32",
                     .batch = 64,
                     .tokens = 128,
                     .iters = 80,
                     .warmup = 20,
                     .rounds = 3,
                     .limit = 600,
                     .out = out,
                     .tag = tag,
                     .command = command_line };
    parse(argc, argv, s);
    if (s->quick) {
        settings q = *s;
        *s = (settings){ .device = q.device,
                         .dtype = q.dtype,
                         .batch = 2,
                         .hidden = 64,
                         .tokens = 8,
                         .layers = 1,
                         .vocab = 97,
                         .iters = 4,
                         .warmup = 1,
                         .rounds = 1,
                         .limit = 60,
                         .out = out,
                         .tag = tag,
                         .command = command_line };
        parse(argc, argv, s);
    }
    if (dtype_of(s->dtype) == GN_DTYPE_NONE) ex_usage(argv[0], "--dtype is f32, f16, bf16 or f64, not '%s'", s->dtype);
    for (const char *c = s->tag; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *c))
            ex_usage(argv[0], "--tag takes letters, digits and -_., not '%s'", s->tag);
}

/* "mlp", "gpt2" or "gpt2:decode" beside a case; out_only: what stands behind the colon. */
static bool is_case(const char *word, const char *workload, const char *name) {
    const char *colon = strchr(word, ':');
    size_t n = colon ? (size_t)(colon - word) : strlen(word);
    if (!strcmp(word, "all")) return true;
    return strlen(workload) == n && !strncmp(workload, word, n) && (!colon || !name || !strcmp(colon + 1, name));
}

/* Of a workload that is there, its cases. */
static void no_workload(const char *word, bool with_transport) {
    char known[200] = "";
    size_t n = 0, to_colon = strcspn(word, ":");
    for (int i = 0; i < CASES; i++)
        if (strlen(cases[i].workload) == to_colon && !strncmp(cases[i].workload, word, to_colon))
            n += (size_t)snprintf(known + n, sizeof known - n, " %s%s%s", cases[i].workload,
                                  cases[i].name[0] ? ":" : "", cases[i].name);
    if (n) ex_usage("genie_bench", "no case '%s': there are%s", word, known);
    ex_usage("genie_bench", "no workload '%s': there are mlp, matmul, elementwise, rows, attention, gpt2, llama%s, all",
             word, with_transport ? ", training and transport" : " and training");
}

static void run_word(const char *word, const settings *s, gn_ctx *g, report *all) {
    int before = all->n;
    for (int i = 0; i < CASES; i++)
        if (is_case(word, cases[i].workload, cases[i].name)) run_case(&cases[i], s, g, all);
    if (is_case(word, "transport", NULL)) {
        const char *colon = strchr(word, ':');
        int first = all->n;
        run_transport(s, colon ? colon + 1 : "", all);
        for (int i = first; i < all->n; i++) md_row(stdout, &all->results[i]);
    }
    if (all->n == before) no_workload(word, true);
}

/* Before anything runs or is printed. */
static void check_words(const char *words, bool with_transport) {
    char *list = or_die(strdup(words)), *rest = NULL, *word = strtok_r(list, ",", &rest);
    if (!word) ex_usage("genie_bench", "name a workload");
    for (; word; word = strtok_r(NULL, ",", &rest)) {
        bool known = with_transport && is_case(word, "transport", NULL);
        for (int i = 0; i < CASES; i++) known = known || is_case(word, cases[i].workload, cases[i].name);
        if (!known) no_workload(word, with_transport);
    }
    free(list);
}

static void run_words(const char *words, const settings *s, gn_ctx *g, report *all) {
    char *list = or_die(strdup(words)), *rest = NULL;
    printf("Times in ms, memory in MiB; medians of %lld runs of %lld steps after %lld.\n\n", (long long)s->rounds,
           (long long)s->iters, (long long)s->warmup);
    md_head(stdout);
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) run_word(word, s, g, all);
    free(list);
}

/* --tag, --out and, where there are any, --rounds are this program's; the rest is for the other one. */
static int take_own(settings *s, char **args, int n, char **rounds) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        bool tag = !strcmp(args[i], "--tag"), out = !strcmp(args[i], "--out");
        if ((tag || out) && i + 1 < n) *(tag ? &s->tag : &s->out) = args[++i];
        else if (rounds && !strcmp(args[i], "--rounds") && i + 1 < n) *rounds = args[++i];
        else args[kept++] = args[i];
    }
    return kept;
}

static int main_rows(settings *s, int argc, char **argv) {
    static report none;
    bool gpu = !strcmp(argv[1], "gpu");
    char folder[PATH_MAX], program[PATH_MAX];
    int n = take_own(s, argv + 2, argc - 2, NULL);
    settle(s, 1, argv);
    own_folder(folder, sizeof folder);
    snprintf(program, sizeof program, "%.2000s/%s", folder, gpu ? "bench_gpu" : "bench_core");
    char *rows = run_rows(program, argv + 2, n);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = gpu ? "cuda:0" : "cpu" });
    machine m = machine_now(g, gpu ? "cuda:0" : "cpu");
    write_report(&none, s, &m, rows, true);
    gn_close(g);
    free(rows);
    return EX_OK;
}

/* Where examples are built, or beside this program. */
static void example_place(const char *name, char *out, size_t size) {
    char folder[PATH_MAX];
    own_folder(folder, sizeof folder);
    if (strchr(name, '/') || strchr(name, '\'')) ex_usage("genie_bench", "'%s' is no name of an example", name);
    snprintf(out, size, "%.2000s/../examples/%.200s", folder, name);
    if (access(out, X_OK) != 0) snprintf(out, size, "%.2000s/%.200s", folder, name);
    if (access(out, X_OK) != 0) ex_usage("genie_bench", "no example '%s' is built: ./build.sh", name);
}

/* A program of examples/ in processes of its own, one a round. It checks its values itself; what it ends with stands
 * in "rows". A run is a step of this workload. */
static int main_example(settings *s, int argc, char **argv) {
    static report all;
    const char *devices = getenv("GENIE_DEVICES");
    char program[PATH_MAX], *rows = NULL;
    if (argc < 3 || argv[2][0] == '-') ex_usage("genie_bench", "example needs the name of one, as vision");
    example_place(argv[2], program, sizeof program);
    char **args = argv + 3, *own[] = { argv[0], "--rounds", NULL };
    int n = take_own(s, args, argc - 3, &own[2]);
    settle(s, own[2] ? 3 : 1, own);
    s->device = devices && *devices ? devices : "cpu";
    result *r = add_result(&all, "genie", "example", argv[2], "runs");
    for (int64_t round = 0; round < s->rounds; round++) {
        struct rusage children;
        free(rows);
        double start = ex_now();
        rows = run_rows(program, args, n);
        double ms = (ex_now() - start) * 1e3;
        getrusage(RUSAGE_CHILDREN, &children);
        r->host_memory = 1024. * (double)children.ru_maxrss;
        r->runs[r->n_runs++] = (run){ { ms, ms, ms, ms, ms }, 1e3 / ms, r->host_memory };
    }
    r->error = r->bound = 0;
    snprintf(r->error_of, sizeof r->error_of, "the example's own check");
    result_sum(r);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = s->device });
    machine m = machine_now(g, s->device);
    make_folder(s->out);
    md_head(stdout);
    md_row(stdout, r);
    write_report(&all, s, &m, rows, true);
    gn_close(g);
    free(rows);
    return EX_OK;
}

typedef enum mode { PLAIN, ABLATE, TRACES } mode;

static int main_workloads(settings *s, const char *words, mode m) {
    static report all;
    int failures = 0;
    check_words(words, m != TRACES);
    if (m == ABLATE && is_server(s->device))
        die("switches are of the process that computes: run this where the server is");
    if (m == TRACES && is_server(s->device))
        die("traces takes a device of this machine, and opens a server over it by itself");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = s->device, .threads = (uint32_t)s->threads });
    if (gn_status(g) != GN_OK) {
        printf("SKIP: genie_bench: %s\n", gn_last_error(g)->text);
        gn_close(g);
        return 77;
    }
    make_folder(s->out);
    if (m == ABLATE) run_ablate(s, words, &all);
    else if (m == TRACES) run_traces(s, words, &all);
    else run_words(words, s, g, &all);
    machine here = machine_now(g, s->device);
    write_report(&all, s, &here, NULL, m == PLAIN);
    gn_close(g);
    for (int i = 0; i < all.n; i++)
        failures += all.results[i].status != OK && (m == TRACES || !strcmp(all.results[i].who, "genie"));
    return failures ? EX_FAILED : EX_OK;
}

/* Options begin at argv[first]; what stands before them is the command. */
int main(int argc, char **argv) {
    static settings s;
    char tag[128];
    int first = 1;
    while (first < argc && argv[first][0] != '-') first++;
    const char *what = first > 1 ? argv[1] : "";
    bool compare = !strcmp(what, "compare"), at_a_glance = !strcmp(what, "table");
    mode m = !strcmp(what, "ablate") ? ABLATE : !strcmp(what, "traces") ? TRACES : PLAIN;
    signal(SIGPIPE, SIG_IGN);
    keep_command(argc, argv);
    snprintf(tag, sizeof tag, "%s%s%s", m ? what : "", m ? "-" : "", m && first > 2 ? argv[2] : what);
    for (char *c = tag; *c; c++)
        if (*c == ':' || *c == ',') *c = '-';
    s.out = "build/results";
    s.tag = tag;
    if (!strcmp(what, "core") || !strcmp(what, "gpu")) return main_rows(&s, argc, argv);
    bool example = !strcmp(what, "example");
    if (example) snprintf(tag, sizeof tag, "example-%.100s", first > 2 ? argv[2] : "");
    if (example) return main_example(&s, argc, argv);
    const char *words = first > 1 ? argv[first - 1] : "";
    if (first == 2 || (m && first == 3)) argv[first - 1] = argv[0]; /* options begin behind it */
    settle(&s, argc - first + 1, argv + first - 1);
    if ((compare || at_a_glance) && first < 3)
        ex_usage("genie_bench", "%s needs results, as build/results/mlp.json", what);
    if (at_a_glance) {
        for (int i = 2; i < first; i++) table_print(argv[i]);
        return EX_OK;
    }
    if (compare) {
        run_compare(&s, argv + 2, first - 2);
        return EX_OK;
    }
    if (first > (m ? 3 : 2)) ex_usage("genie_bench", "several workloads are joined by commas, as mlp,rows");
    if (m && first != 3) ex_usage("genie_bench", "%s needs a workload", what);
    if (!m && first != 2) ex_usage("genie_bench", "name a workload");
    return main_workloads(&s, words, m);
}
