/* The server: lends this machine's devices to programs elsewhere, over TLS.
 *
 *   ./examples/genie_serve                       on this machine alone, 127.0.0.1:5556
 *   ./examples/genie_serve --listen 0.0.0.0:5556 --url-file genie.url
 *   ./examples/remote_mlp --connect @genie.url   on the other machine, with that file
 *   ./examples/genie_serve top HOST:PORT         what it does now, in a terminal
 *
 * One server a URL file: a second one with the same home takes --url-file FILE of its own.
 */
#define JSON_IMPLEMENTATION
#include "common.h"
#include "formats/json.h"
#include "metrics.h"
#include "top.h"

static gn_server *server;
static const char *metrics_at, *metrics_file; /* --metrics, --metrics-token; NULL: none */
static volatile sig_atomic_t ending; /* it was told to end, or ends by itself: the server is not to be told again */
static volatile sig_atomic_t draining;
static int64_t drain_seconds; /* that sessions may go on after the first signal */

enum { GRACE_S = 10 }; /* that what is computed may take to end */

static void stop_now(void) {
    ending = 1;
    alarm(GRACE_S);
    gn_server_stop(server);
}

/* The second one ends what the first one let go on. */
static void on_signal(int number) {
    (void)number;
    if (ending) return;
    if (drain_seconds == 0 || draining) {
        stop_now();
        return;
    }
    draining = 1;
    alarm((unsigned)drain_seconds);
    gn_server_drain(server);
}

/* A kernel that does not end holds its thread, and the GPU until this process is gone. */
static void on_alarm(int number) {
    if (!ending) { /* the time to drain is up */
        stop_now();
        return;
    }
    static const char text[] = "genie_serve: work did not end within 10 s: ended by force\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(EX_FAILED);
}

/* One line for each device, or why it is absent, and one for the network. */
static int list_devices(void) {
    char text[800];
    gn_device_info info = { 0 };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu:0" });
    bool ok = ex_check(g, gn_get_device(g, &info), "cpu:0");
    if (ok) printf("cpu:0 %s\n", info.identity);
    for (int i = 0; gn_list_gpus(i, text, sizeof text) > 0; i++) printf("%s\n", text);
    if (gn_describe_network(text, sizeof text) > 0) printf("%s\n", text);
    gn_close(g);
    return ok ? EX_OK : EX_FAILED;
}

/* Where the URL is kept when --url-file does not say: beside the server's key. */
static const char *default_url_file(const char *home, char *path, size_t cap) {
    const char *env = getenv("GENIE_HOME"), *user = getenv("HOME");
    if (!home && env && *env) home = env;
    int n = home ? snprintf(path, cap, "%s/url", home) : snprintf(path, cap, "%s/.config/genie/url", user ? user : ".");
    return n > 0 && (size_t)n < cap ? path : NULL;
}

/* ---- the log: each line is written at once, for sessions write beside each other ---- */

static struct {
    const char *format, *level; /* as given */
    gn_log_level most;
    bool json;
} logs = { .format = "text" };

static const char *const level_names[] = { "", "error", "warn", "info", "debug" };

/* Bytes that are no UTF-8 become U+FFFD. */
static void json_field(ex_json *j, const char *name, const char *text) {
    char quoted[4096];
    size_t n = json_quote(text, strlen(text), quoted, sizeof quoted);
    ex_json_name(j, name);
    fwrite(n <= sizeof quoted ? quoted : "\"…\"", 1, n <= sizeof quoted ? n : 5, j->to);
}

static void json_begin_line(ex_json *j, gn_log_level level, const char *event) {
    struct timespec now;
    struct tm utc;
    char when[40];
    clock_gettime(CLOCK_REALTIME, &now);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    snprintf(when + n, sizeof when - n, ".%03ldZ", now.tv_nsec / 1000000);
    json_field(j, "time", when);
    json_field(j, "level", level_names[level]);
    json_field(j, "event", event);
}

static void log_line(void *user, gn_log_level level, const char *text) {
    char line[8192];
    (void)user;
    if (level > logs.most) return;
    if (!logs.json) {
        fprintf(stderr, "genie_serve: %s\n", text);
        return;
    }
    ex_json j = { .to = fmemopen(line, sizeof line, "w") };
    if (!j.to) return;
    json_begin_line(&j, level, "log");
    json_field(&j, "text", text);
    ex_json_end(&j);
    if (fclose(j.to) == 0) fputs(line, stderr);
}

/* The end of a session without fault is as ordinary as its beginning. */
static gn_log_level session_level(const gn_session_event *e) {
    return !e->ended || e->result == GN_DISCONNECTED ? GN_LOG_INFO : GN_LOG_WARN;
}

static void session_text(const gn_session_event *e) {
    const gn_stats *s = &e->stats;
    char name[128], text[2048];
    snprintf(name, sizeof name, "session %llu%s%s%s of %s, tenant %s, on %s", (unsigned long long)e->session,
             e->label[0] ? " ('" : "", e->label, e->label[0] ? "')" : "", e->peer, e->tenant[0] ? e->tenant : "-",
             e->device);
    if (!e->ended) snprintf(text, sizeof text, "%s begins", name);
    else
        snprintf(text, sizeof text,
                 "%s is over after %.3f s: %s; %llu steps, %llu plans made, %llu found, %llu bytes received, "
                 "%llu sent, %llu of weights sent here, %llu known, %llu fallbacks, %llu faults",
                 name, e->seconds, e->reason, (unsigned long long)s->steps_run, (unsigned long long)s->plans_made,
                 (unsigned long long)s->plans_found, (unsigned long long)s->socket_bytes_down,
                 (unsigned long long)s->socket_bytes_up, (unsigned long long)s->weight_bytes_sent,
                 (unsigned long long)s->weight_bytes_known, (unsigned long long)s->fallbacks,
                 (unsigned long long)s->faults);
    log_line(NULL, session_level(e), text);
}

static void session_json(const gn_session_event *e) {
    char line[16384];
    ex_json j = { .to = fmemopen(line, sizeof line, "w") };
    if (!j.to) return;
    json_begin_line(&j, session_level(e), e->ended ? "session_end" : "session_begin");
    ex_json_name(&j, "session");
    fprintf(j.to, "%llu", (unsigned long long)e->session);
    json_field(&j, "peer", e->peer);
    json_field(&j, "tenant", e->tenant);
    json_field(&j, "label", e->label);
    json_field(&j, "device", e->device);
    if (e->ended) {
        ex_json_number(&j, "seconds", e->seconds);
        json_field(&j, "result", gn_result_name(e->result));
        json_field(&j, "reason", e->reason);
        ex_json_stats(&j, "counters", &e->stats);
    }
    ex_json_end(&j);
    if (fclose(j.to) == 0) fputs(line, stderr);
}

static void log_session(void *user, const gn_session_event *e) {
    (void)user;
    metrics_session(e);
    if (session_level(e) > logs.most) return;
    if (logs.json) session_json(e);
    else session_text(e);
}

/* False: a word is none of those that --help names. */
static bool choose_log(bool verbose) {
    logs.json = strcmp(logs.format, "json") == 0;
    logs.most = verbose ? GN_LOG_INFO : GN_LOG_WARN;
    for (int i = GN_LOG_ERROR; i <= GN_LOG_DEBUG && logs.level; i++)
        if (!strcmp(logs.level, level_names[i])) {
            logs.most = (gn_log_level)i;
            logs.level = NULL;
        }
    return !logs.level && (logs.json || !strcmp(logs.format, "text"));
}

/* ---- serving ---- */

enum { REFUSED = 16384 }; /* bytes of gn_server_refused, and more than there can be */

/* A process whose GPU is lost cannot use it again: this program starts anew in its place, with the socket that clients
   connect to. Returns only when that fails. */
static int start_again(char **argv) {
    char text[16], refused[REFUSED];
    snprintf(text, sizeof text, "%d", gn_server_handover(server));
    setenv("GENIE_LISTEN_FD", text, 1);
    gn_server_refused(server, refused, sizeof refused);
    setenv("GENIE_REFUSED", refused, 1);
    if (ending || draining) return EX_OK;
    fprintf(stderr, "genie_serve: starting again\n");
    execv("/proc/self/exe", argv);
    perror("genie_serve: cannot start again");
    return EX_FAILED;
}

/* After a loss the GPU may need a moment. */
static gn_result open_server(gn_server_desc *desc, gn_error *error) {
    const char *fd = getenv("GENIE_LISTEN_FD");
    char refused[REFUSED];
    snprintf(refused, sizeof refused, "%s", getenv("GENIE_REFUSED") ? getenv("GENIE_REFUSED") : "");
    desc->listen_fd = fd ? atoi(fd) : 0;
    desc->refused = refused;
    unsetenv("GENIE_LISTEN_FD");
    unsetenv("GENIE_REFUSED");
    gn_result r = gn_server_open(desc, &server, error);
    for (int i = 0; fd && i < 60 && (r == GN_DEVICE_LOST || r == GN_NO_DEVICE || r == GN_OUT_OF_MEMORY); i++) {
        nanosleep(&(struct timespec){ 0, 500000000 }, NULL);
        r = gn_server_open(desc, &server, error);
    }
    desc->refused = NULL;
    return r;
}

/* Unlike signal, for more than one time. */
static void on(int number, void (*handler)(int)) {
    struct sigaction action = { .sa_handler = handler };
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

/* Without --metrics there is nothing to begin. */
static bool begin_metrics(const gn_server_desc *desc) {
    char error[HTTP_ERROR];
    if (!metrics_at) return true;
    if (!metrics_open(server, metrics_at, metrics_file, desc, error)) {
        fprintf(stderr, "genie_serve: --metrics %s\n", error);
        gn_server_close(server);
        return false;
    }
    printf("metrics on port %d\n", metrics_port());
    fflush(stdout);
    return true;
}

static int serve(gn_server_desc *desc, char **argv) {
    gn_error error;
    on(SIGALRM, on_alarm);
    on(SIGINT, on_signal);
    on(SIGTERM, on_signal);
    if (open_server(desc, &error) != GN_OK) {
        ex_print_error("genie_serve", &error);
        return EX_FAILED;
    }
    if (draining) gn_server_drain(server); /* told before it was there */
    if (ending) gn_server_stop(server);
    on(SIGPIPE, SIG_IGN); /* who reads our log may end; clients are served all the same */
    if (!begin_metrics(desc)) return EX_FAILED;
    /* The URL holds a code, so it goes to a person's terminal and into the file, not into a log. */
    printf("serving %s on port %u\n", desc->devices ? desc->devices : "cpu", (unsigned)gn_server_port(server));
    if (ex_terminal() && !desc->key) printf("give this to one client, once: --connect '%s'\n", gn_server_url(server));
    if (desc->admin_file)
        printf("an administrator's URL is in %s: genie_serve top @%s\n", desc->admin_file, desc->admin_file);
    if (desc->url_file) printf("the URL is in %s: --connect @%s\n", desc->url_file, desc->url_file);
    fflush(stdout);
    gn_result r = gn_server_run(server);
    if (r == GN_DEVICE_LOST) return start_again(argv);
    ending = 1;
    alarm(GRACE_S);
    metrics_close();
    gn_stats stats;
    gn_server_stats(server, &stats);
    printf("stopped: %llu sessions served, %llu refused, %llu steps run\n", (unsigned long long)stats.sessions,
           (unsigned long long)stats.sessions_refused, (unsigned long long)stats.steps_run);
    gn_server_close(server);
    return r == GN_OK ? EX_OK : EX_FAILED;
}

static struct {
    gn_server_desc desc;
    int64_t sessions, threads, code_hours, idle_minutes, step_seconds;
    bool verbose;
} given = { .step_seconds = 600 };

static const ex_option options[] = {
    { "listen", EX_TEXT, &given.desc.listen, "HOST:PORT", "where to listen (127.0.0.1:5556); port 0 picks a free one",
      0, 0 },
    { "devices", EX_TEXT, &given.desc.devices, "LIST",
      "devices to lend, e.g. cpu or cuda:0,cuda:1 (cpu); 'list' shows what this machine has", 0, 0 },
    { "url-file", EX_TEXT, &given.desc.url_file, "FILE",
      "write the pairing URL there, mode 0600 (HOME/url, see --home); each server needs its own file", 0, 0 },
    { "key", EX_TEXT, &given.desc.key, "FILE", "own PKI: the server's private key, PEM", 0, 0 },
    { "cert", EX_TEXT, &given.desc.cert, "FILE", "own PKI: the server's certificate, PEM", 0, 0 },
    { "ca", EX_TEXT, &given.desc.ca, "FILE", "own PKI: clients must have a certificate from this authority, PEM", 0,
      0 },
    { "advertise", EX_TEXT, &given.desc.advertise, "HOST",
      "the host name for the URL, with :PORT if clients reach this server through another port", 0, 0 },
    { "code-hours", EX_INT, &given.code_hours, "N", "how long a pairing code is valid, in hours (24)", 1, 87600 },
    { "home", EX_TEXT, &given.desc.home, "DIR", "folder of keys and credentials ($GENIE_HOME, else ~/.config/genie)", 0,
      0 },
    { "memory", EX_BYTES, &given.desc.memory_limit, "SIZE",
      "host memory that one session may use; the same again on its device (8G)", 0, 0 },
    { "tenant-memory", EX_BYTES, &given.desc.tenant_memory, "SIZE",
      "the same for all sessions of one client, with the weights it left behind (4 x --memory)", 0, 0 },
    { "total-memory", EX_BYTES, &given.desc.total_memory, "SIZE",
      "the same for all clients (three quarters of this machine's memory)", 0, 0 },
    { "idle-memory", EX_BYTES, &given.desc.idle_memory, "SIZE",
      "weights to keep that no session uses, in bytes (as --memory)", 0, 0 },
    { "idle-minutes", EX_INT, &given.idle_minutes, "N", "how long to keep them, in minutes (60)", 1, 525600 },
    { "max-sessions", EX_INT, &given.sessions, "N", "sessions at once (64)", 1, 65535 },
    { "threads", EX_INT, &given.threads, "N", "threads of a CPU session (all cores)", 1, 4096 },
    { "max-step-seconds", EX_INT, &given.step_seconds, "N", "how long one step may compute (600); 0: no limit", 0,
      100000000 },
    { "record", EX_TEXT, &given.desc.record_file, "FILE",
      "append plans that have run to this file: ops, shapes and constants; no data or weights", 0, 0 },
    { "warm", EX_TEXT, &given.desc.warm_file, "FILE",
      "compile the plans of such a file in advance, while the first clients are served", 0, 0 },
    { "admin", EX_TEXT, &given.desc.admin_file, "FILE",
      "write a URL there that pairs one administrator, who sees all sessions: genie_serve top @FILE", 0, 0 },
    { "metrics", EX_TEXT, &metrics_at, "HOST:PORT",
      "serve a status page, /metrics, /livez and /readyz there over HTTP; loopback addresses only", 0, 0 },
    { "metrics-token", EX_TEXT, &metrics_file, "FILE",
      "serve them over TLS on any address; clients need the token in FILE, as bearer token or password", 0, 0 },
    { "trace", EX_TEXT, &given.desc.trace_file, "FILE",
      "write a trace of all sessions: for Perfetto, or as JSON Lines if FILE ends in .jsonl", 0, 0 },
    { "trace-kernels", EX_FLAG, &given.desc.trace_kernels, NULL, "with --trace: time each kernel, too", 0, 0 },
    { "drain-seconds", EX_INT, &drain_seconds, "N",
      "after SIGTERM, take no new sessions and let the present ones go on for this long (0)", 0, 86400 },
    { "log-level", EX_TEXT, &logs.level, "LEVEL", "what to log to stderr: error, warn, info or debug (warn)", 0, 0 },
    { "log-format", EX_TEXT, &logs.format, "FORMAT", "text, or json: one object per line (text)", 0, 0 },
    { "verbose", EX_FLAG, &given.verbose, NULL, "as --log-level info: log the begin and end of each session", 0, 0 },
    { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
};

int main(int argc, char **argv) {
    gn_server_desc *desc = &given.desc;
    char path[PATH_MAX];
    if (argc > 1 && strcmp(argv[1], "top") == 0) {
        argv[1] = argv[0];
        return top_main(argc - 1, argv + 1);
    }
    ex_parse(argc, argv,
             "genie_serve lends this machine's devices to programs on other machines, over TLS.\n"
             "'genie_serve top HOST:PORT' shows what a server does now.",
             options);
    if (desc->devices && !strcmp(desc->devices, "list")) return list_devices();
    if (!desc->url_file) desc->url_file = default_url_file(desc->home, path, sizeof path);
    if (!choose_log(given.verbose))
        ex_usage(argv[0], "--log-level takes error, warn, info or debug, --log-format text or json");
    desc->log = log_line;
    desc->session = log_session;
    desc->max_sessions = (uint32_t)given.sessions;
    desc->code_hours = (uint32_t)given.code_hours;
    desc->threads = (uint32_t)given.threads;
    desc->max_step_seconds = given.step_seconds > 0 ? (int32_t)given.step_seconds : -1;
    desc->idle_minutes = (uint32_t)given.idle_minutes;
    return serve(desc, argv);
}
