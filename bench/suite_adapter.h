/* Other stacks beside Genie: each a command that reads a request, one line of JSON, from its standard input and answers
 * with one line of JSON, the last that it prints; one that can run further rounds stays, and is told when its turn is.
 * bench/adapters/README.md holds both schemas. Nothing of an answer is believed: form, numbers, and the values beside
 * double precision are checked before a time is looked at. */
#ifndef GN_SUITE_ADAPTER_H
#define GN_SUITE_ADAPTER_H

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

enum { ANSWER_BYTES = 4 << 20 };

typedef struct adapter {
    char who[64];
    const char *command;
} adapter;

typedef struct adapters {
    adapter all[MAX_ADAPTERS];
    int n;
} adapters;

/* Those that people ask for; one whose variable is not set is said to be unavailable. */
static const char *const known_adapters[] = { "TORCH_EAGER", "TORCH_COMPILE", "TORCH_GRAPH", "JAX",
                                              "ONNXRUNTIME", "TENSORRT",      "TVM",         "GLOW",
                                              "XLA",         "LLAMACPP",      "VLLM",        "NUMPY" };
enum { KNOWN = sizeof known_adapters / sizeof *known_adapters };

extern char **environ;

/* The variable of a known one; NULL when it is set. */
static const char *variable_not_set(int i) {
    static char name[64];
    snprintf(name, sizeof name, "%s_BENCH_CMD", known_adapters[i]);
    const char *value = getenv(name);
    return value && *value ? NULL : name;
}

static void add_adapter(adapters *a, const char *name, size_t n, const char *command) {
    if (a->n == MAX_ADAPTERS) die("more than %d variables *_BENCH_CMD", MAX_ADAPTERS);
    adapter *one = &a->all[a->n++];
    if (n >= sizeof one->who) n = sizeof one->who - 1;
    for (size_t i = 0; i < n; i++) one->who[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32 : name[i]);
    one->who[n] = 0;
    one->command = command;
}

/* Of NAME_BENCH_CMD=COMMAND, with a command: the length of the name, else 0. */
static size_t adapter_name(const char *variable) {
    static const char end[] = "_BENCH_CMD";
    const char *equals = strchr(variable, '=');
    size_t n = equals ? (size_t)(equals - variable) : 0;
    bool is = n >= sizeof end && !strncmp(variable + n - (sizeof end - 1), end, sizeof end - 1) && equals[1];
    return is ? n - (sizeof end - 1) : 0;
}

/* Those that are known in their order, so that tables are alike; then the others as they come. */
static void find_adapters(adapters *a) {
    a->n = 0;
    for (int i = 0; i <= KNOWN; i++)
        for (char **e = environ; *e; e++) {
            size_t n = adapter_name(*e);
            int k = 0;
            while (k < KNOWN && (strlen(known_adapters[k]) != n || strncmp(known_adapters[k], *e, n) != 0)) k++;
            if (n && k == i) add_adapter(a, *e, n, strchr(*e, '=') + 1);
        }
}

/* ---- a command with a limit of time ---- */

typedef struct child {
    pid_t process;      /* 0: none */
    int in, out, turns; /* turns: a byte for each further round */
} child;

enum { TURNS = 3 }; /* the command's descriptor, which GENIE_BENCH_TURNS names */

static void child_run(const int pipes[3][2], const char *command, const char *log) {
    int to = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644), turns = fcntl(pipes[2][0], F_DUPFD, TURNS + 1);
    setpgid(0, 0);
    dup2(pipes[0][0], STDIN_FILENO);
    dup2(pipes[1][1], STDOUT_FILENO);
    if (to >= 0) dup2(to, STDERR_FILENO);
    for (int i = 0; i < 6; i++) close(pipes[i / 2][i % 2]);
    if (turns >= 0) dup2(turns, TURNS);
    close(turns);
    setenv("GENIE_BENCH_TURNS", "3", 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

/* Pipes: the request, what it prints, its turns. */
static bool child_start(child *c, const char *command, const char *log) {
    int pipes[3][2], n = 0;
    while (n < 3 && pipe(pipes[n]) == 0) n++;
    fflush(NULL);
    c->process = n == 3 ? fork() : -1;
    if (c->process == 0) child_run(pipes, command, log);
    for (int i = 0; i < n; i++) close(pipes[i][i == 1]); /* the command's ends */
    c->in = pipes[0][1];
    c->out = pipes[1][0];
    c->turns = pipes[2][1];
    if (c->process > 0) {
        setpgid(c->process, c->process);
        for (int i = 0; i < 3; i++) fcntl(pipes[i][i != 1], F_SETFD, FD_CLOEXEC);
        return true;
    }
    for (int i = 0; i < n; i++) close(pipes[i][i != 1]);
    c->process = 0;
    return false;
}

/* Ends the command and all that it started. */
static void child_stop(child *c) {
    int ended;
    if (!c->process) return;
    kill(-c->process, SIGKILL);
    while (waitpid(c->process, &ended, 0) < 0 && errno == EINTR) { }
    close(c->out);
    close(c->turns);
    c->process = 0;
}

/* An answer whose command waits for its next turn. */
static bool stays(const char *text, size_t n) {
    size_t at = n;
    bool is = false;
    json_value root;
    json_error e;
    if (n == 0 || text[n - 1] != '\n') return false;
    while (at > 1 && text[at - 2] != '\n') at--;
    return json_check(text + at - 1, n - at + 1, NULL, &root, &e) && json_get_bool(json_get(root, "stays"), &is) && is;
}

/* What it prints until it ends or waits for its next turn; false, with a reason, when it takes too long, prints too
 * much or fails. */
static bool child_listen(child *c, char *text, size_t size, int64_t limit, char *reason, size_t room) {
    double end = ex_now() + (double)limit;
    size_t n = 0;
    int ended = 0;
    pid_t gone = 0;
    for (ssize_t got = 1; got != 0;) {
        struct pollfd p = { c->out, POLLIN, 0 };
        double left = end - ex_now();
        if (left <= 0 || n == size - 1) break;
        if (poll(&p, 1, left > 1 ? 1000 : (int)(left * 1e3) + 1) <= 0) continue;
        got = read(c->out, text + n, size - 1 - n);
        if (got < 0 && errno != EINTR) break;
        if (got > 0) n += (size_t)got;
        text[n] = 0;
        if (got > 0 && stays(text, n)) return true;
    }
    text[n] = 0;
    while (ex_now() < end && n < size - 1 && (gone = waitpid(c->process, &ended, WNOHANG)) == 0) usleep(2000);
    if (gone == c->process) {
        kill(-c->process, SIGKILL); /* what it left behind */
        close(c->out);
        close(c->turns);
        c->process = 0;
        if (!WIFEXITED(ended)) snprintf(reason, room, "the command was ended by signal %d", WTERMSIG(ended));
        else if (WEXITSTATUS(ended) != 0)
            snprintf(reason, room, "the command ended with status %d", WEXITSTATUS(ended));
        return WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
    }
    child_stop(c);
    if (n == size - 1) snprintf(reason, room, "the command printed more than %zu bytes", size - 1);
    else snprintf(reason, room, "no answer within %lld s (--limit)", (long long)limit);
    return false;
}

static void send_all(int to, const char *text, size_t n) {
    for (size_t at = 0; at < n;) { /* smaller than a pipe's buffer */
        ssize_t sent = write(to, text + at, n - at);
        if (sent < 0 && errno != EINTR) break;
        if (sent > 0) at += (size_t)sent;
    }
}

/* The answer of a round: of a command that stayed, or of one that is started. */
static bool ask(child *c, const char *command, const char *request, const char *log, int64_t limit, char *text,
                size_t size, char *reason, size_t room) {
    if (c->process) {
        send_all(c->turns, "\n", 1);
        return child_listen(c, text, size, limit, reason, room);
    }
    if (!child_start(c, command, log)) {
        snprintf(reason, room, "cannot start: %s", strerror(errno));
        return false;
    }
    send_all(c->in, request, strlen(request));
    close(c->in);
    return child_listen(c, text, size, limit, reason, room);
}

/* ---- the answer ---- */

static bool bad(result *r, const char *what) {
    snprintf(r->reason, sizeof r->reason, "the answer is not of the schema: %s", what);
    r->status = INVALID;
    return false;
}

static bool number_of(json_value object, const char *name, double *out) {
    return json_get_double(json_get(object, name), out) && isfinite(*out);
}

static bool latency_of(json_value root, summary *l) {
    json_value v = json_get(root, "latency_ms");
    return number_of(v, "mean", &l->mean) && number_of(v, "p50", &l->p50) && number_of(v, "p95", &l->p95) &&
           number_of(v, "min", &l->least) && number_of(v, "max", &l->most) && l->least > 0 && l->least <= l->p50 &&
           l->p50 <= l->p95 && l->p95 <= l->most && l->least <= l->mean && l->mean <= l->most;
}

/* Names and versions, all strings, at least one; kept as they are. */
static bool versions_of(json_value v, char *out, size_t size) {
    json_value key, value;
    if (json_kind_of(v) != JSON_OBJECT || json_count(v) == 0 || v.size >= size) return false;
    for (json_iter i = json_begin(v); json_next(&i, &key, &value);)
        if (json_kind_of(value) != JSON_STRING) return false;
    memcpy(out, v.text, v.size);
    out[v.size] = 0;
    return true;
}

static bool sample_is(json_value v, int n, double *out) {
    json_value key, value;
    int k = 0;
    if (json_kind_of(v) != JSON_ARRAY || json_count(v) != (size_t)n) return false;
    for (json_iter i = json_begin(v); json_next(&i, &key, &value); k++)
        if (!json_get_double(value, &out[k]) || !isfinite(out[k])) return false;
    return true;
}

/* The last line that is not empty. */
static const char *last_line(char *text) {
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) text[--n] = 0;
    char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

/* Adds a run, or sets status and reason. `steps`: units of throughput in a step; n_sample numbers are wanted. */
static bool take_answer(result *r, char *text, double steps, int n_sample) {
    const char *line = last_line(text);
    json_value root;
    json_error e;
    run one = { .memory = NAN };
    if (!json_check(line, strlen(line), NULL, &root, &e)) return bad(r, e.text);
    json_value state = json_get(root, "status");
    if (json_is(state, "unavailable") || json_is(state, "failed")) {
        r->status = json_is(state, "failed") ? FAILED : UNAVAILABLE;
        bool given = json_get_string(json_get(root, "reason"), r->reason, sizeof r->reason, NULL);
        for (char *c = r->reason; *c; c++)
            if ((unsigned char)*c < 32 || *c == 127 || *c == '|') *c = ' '; /* a cell of a table */
        if (given && r->reason[0]) return false;
        return bad(r, "no reason is given");
    }
    if (!json_is(state, "ok")) return bad(r, "status is not ok, unavailable or failed");
    if (!latency_of(root, &one.latency))
        return bad(r, "latency_ms needs mean, p50, p95, min and max that fit together");
    if (!number_of(root, "throughput_tokens_per_sec", &one.throughput) ||
        one.throughput < 0.99e3 * steps / one.latency.most || one.throughput > 1.01e3 * steps / one.latency.least)
        return bad(r, "throughput_tokens_per_sec is missing or does not fit latency_ms");
    if (json_kind_of(json_get(root, "peak_memory_bytes")) != JSON_NULL &&
        (!number_of(root, "peak_memory_bytes", &one.memory) || one.memory < 0))
        return bad(r, "peak_memory_bytes is neither a number nor null");
    if (!versions_of(json_get(root, "versions"), r->versions, sizeof r->versions)) return bad(r, "versions");
    if (!sample_is(json_get(root, "result"), n_sample, r->sample))
        return bad(r, "result has not the numbers asked for");
    r->n_sample = n_sample;
    r->runs[r->n_runs++] = one;
    return true;
}

#endif
