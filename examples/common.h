/* What the examples share: options, output, and a server in the process when none is given.
 * Include it first: it asks the C library for POSIX. Not needed to use Genie; hello.c does without. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif

#include "genie.h"
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { EX_OK = 0, EX_FAILED = 1, EX_USAGE = 2, EX_INTERRUPTED = 130 }; /* exit statuses */

/* ---- options ---------------------------------------------------------------------------------------*/
typedef enum ex_kind {
    EX_FLAG,   /* bool */
    EX_INT,    /* int64_t from lo to hi */
    EX_NUMBER, /* double from lo to hi */
    EX_BYTES,  /* uint64_t; K, M, G are powers of 1024 */
    EX_TEXT,   /* const char * */
    EX_MAYBE   /* const char *; the value may be left out: "" */
} ex_kind;

typedef struct ex_option {
    const char *name; /* without the dashes; NULL ends the list */
    ex_kind kind;
    void *out;
    const char *value; /* what --help calls the value */
    const char *help;
    double lo, hi;
} ex_option;

static const char *ex_operand = ""; /* what --help shows between the program's name and its options, with a blank */

static inline void ex_help(const char *program, const char *about, const ex_option *o) {
    printf("%s\n\nusage: %s %s[options]\n", about, program, ex_operand);
    for (; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s%s", o->name,
                 o->kind == EX_FLAG    ? ""
                 : o->kind == EX_MAYBE ? " ["
                                       : " ",
                 o->kind == EX_FLAG ? "" : o->value, o->kind == EX_MAYBE ? "]" : "");
        printf("  %-22s %s\n", left, o->help);
    }
    printf("  %-22s %s\n  %-22s %s\n", "--help", "print this and exit", "--version", "print the version and exit");
}

static inline bool ex_parse_bytes(const char *text, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || errno) return false;
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (*end || v > UINT64_MAX >> shift) return false;
    *out = (uint64_t)v << shift;
    return true;
}

/* Stores a value; false if it is not one. */
static inline bool ex_store(const ex_option *o, const char *text) {
    char *end = NULL;
    errno = 0;
    if (o->kind == EX_TEXT || o->kind == EX_MAYBE) {
        *(const char **)o->out = text;
        return true;
    }
    if (o->kind == EX_BYTES) return ex_parse_bytes(text, (uint64_t *)o->out);
    if (o->kind == EX_INT) {
        long long v = strtoll(text, &end, 10);
        *(int64_t *)o->out = v;
        return end != text && !*end && !errno && (double)v >= o->lo && (double)v <= o->hi;
    }
    double v = strtod(text, &end);
    *(double *)o->out = v;
    return end != text && !*end && !errno && v >= o->lo && v <= o->hi;
}

/* Says what is wrong with the command line and ends the program. */
#define ex_usage(program, ...)                                       \
    (fprintf(stderr, "%s: ", program), fprintf(stderr, __VA_ARGS__), \
     fprintf(stderr, "; '%s --help' lists the options\n", program), exit(EX_USAGE))

/* Reads the options; answers --help and --version; ends the program with status 2 on anything else that it does not
   know. */
static inline void ex_parse(int argc, char **argv, const char *about, const ex_option *options) {
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *eq = strchr(arg, '=');
        size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            ex_help(argv[0], about, options);
            exit(EX_OK);
        }
        if (!strcmp(arg, "--version")) {
            printf("genie %s\n", GN_VERSION);
            exit(EX_OK);
        }
        const ex_option *o = options;
        while (o->name &&
               (len < 3 || strncmp(arg, "--", 2) || strlen(o->name) != len - 2 || strncmp(arg + 2, o->name, len - 2)))
            o++;
        if (!o->name) ex_usage(argv[0], arg[0] == '-' ? "unknown option '%s'" : "'%s' is not expected here", arg);
        if (o->kind == EX_FLAG && eq) ex_usage(argv[0], "--%s takes no value", o->name);
        if (o->kind == EX_FLAG) {
            *(bool *)o->out = true;
            continue;
        }
        bool has_next = i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0;
        if (!eq && !has_next && o->kind != EX_MAYBE) ex_usage(argv[0], "--%s needs a value", o->name);
        const char *value = eq ? eq + 1 : has_next ? argv[++i] : "";
        if (ex_store(o, value)) continue;
        if (o->kind == EX_BYTES) ex_usage(argv[0], "--%s takes a size such as 512M or 8G, not '%s'", o->name, value);
        ex_usage(argv[0], "--%s takes a number from %.16g to %.16g, not '%s'", o->name, o->lo, o->hi, value);
    }
}

/* ---- output ----------------------------------------------------------------------------------------*/
static inline bool ex_terminal(void) { return isatty(STDOUT_FILENO) != 0; }

/* An escape sequence, or "" where colours are not wanted (no terminal, or NO_COLOR set). */
static inline const char *ex_color(const char *sequence) {
    const char *no = getenv("NO_COLOR");
    return ex_terminal() && !(no && *no) ? sequence : "";
}

static inline double ex_now(void) { /* seconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One result, name first. */
#define ex_row(name, ...) \
    (printf("  %s%-12s%s ", ex_color("\033[1m"), name, ex_color("\033[0m")), printf(__VA_ARGS__), printf("\n"))

static inline void ex_verdict(bool ok, const char *text) {
    printf("%s%s%s %s\n", ex_color(ok ? "\033[32m" : "\033[31m"), ok ? "ok" : "FAILED", ex_color("\033[0m"), text);
}

/* One JSON object on one line: begin, fields, end. */
typedef struct ex_json {
    int fields;
    FILE *to; /* NULL: standard output */
} ex_json;

static inline FILE *ex_json_file(const ex_json *j) { return j->to ? j->to : stdout; }
static inline void ex_json_string(const ex_json *j, const char *text) {
    FILE *f = ex_json_file(j);
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\') fprintf(f, "\\%c", *c);
        else if (*c < 0x20) fprintf(f, "\\u%04x", *c);
        else fputc(*c, f);
    fputc('"', f);
}
static inline void ex_json_name(ex_json *j, const char *name) {
    fprintf(ex_json_file(j), "%s\"%s\":", j->fields++ ? "," : "{", name);
}
static inline void ex_json_text(ex_json *j, const char *name, const char *text) {
    ex_json_name(j, name);
    ex_json_string(j, text);
}
static inline void ex_json_number(ex_json *j, const char *name, double v) {
    ex_json_name(j, name);
    if (isfinite(v)) fprintf(ex_json_file(j), "%.9g", v);
    else fprintf(ex_json_file(j), "null");
}
/* An object within another begins with a name in that one and { .to = that one's file }, and ends with this. */
static inline void ex_json_close(const ex_json *j) { fprintf(ex_json_file(j), "%s}", j->fields ? "" : "{"); }
static inline void ex_json_end(ex_json *j) {
    ex_json_close(j);
    fputc('\n', ex_json_file(j));
}

/* Every counter of the table, by name. */
static inline void ex_json_stats(ex_json *j, const char *name, const gn_stats *s) {
    ex_json inner = { .to = j->to };
    ex_json_name(j, name);
#define EX_COUNTER(counter, unit, help) \
    ex_json_name(&inner, #counter);     \
    fprintf(ex_json_file(&inner), "%llu", (unsigned long long)s->counter);
    GN_COUNTERS(EX_COUNTER)
#undef EX_COUNTER
    ex_json_close(&inner);
}

/* ---- errors ----------------------------------------------------------------------------------------*/
static inline const char *ex_advice(gn_result r) {
    switch (r) {
    case GN_BAD_CREDENTIAL: return "a code pairs one client, once; the server's URL file holds a new one";
    case GN_TIMEOUT: return "check that the server is running, and how busy it is";
    case GN_UNSUPPORTED: return "link genie_net.c to reach servers, genie_cuda.c for GPUs";
    case GN_NO_DEVICE: return "./examples/genie_serve --devices list shows what this machine has";
    default: return NULL;
    }
}

/* Prints an error with its place and what to do next, where its text does not say it. */
static inline void ex_print_error(const char *what, const gn_error *e) {
    const char *advice = ex_advice(e->result);
    fflush(stdout);
    fprintf(stderr, "%s: %s (%s)\n", what, e->text, gn_result_name(e->result));
    if (e->line)
        fprintf(stderr, "  at %s:%d, op %s%s%s\n", e->file, e->line, e->op, e->label[0] ? ", label " : "", e->label);
    if (advice) fprintf(stderr, "  %s\n", advice);
}

/* The first line of a file, a secret of 16 characters or more that clients have to show. False: `error` says why. */
static inline bool ex_read_token(const char *path, char out[256], char *error, size_t cap) {
    FILE *f = fopen(path, "r");
    bool ok = f && fgets(out, 256, f);
    int why = ok ? 0 : f && !ferror(f) ? ENODATA : errno;
    if (f) fclose(f);
    if (ok) out[strcspn(out, "\r\n")] = 0;
    if (!ok) snprintf(error, cap, "%.120s: %s", path, why == ENODATA ? "the file is empty" : strerror(why));
    else if (strlen(out) < 16) snprintf(error, cap, "%.120s: a token has 16 characters or more", path);
    else return true;
    return false;
}

/* True if r is GN_OK; otherwise prints the context's last error. */
static inline bool ex_check(gn_ctx *g, gn_result r, const char *what) {
    if (r != GN_OK) ex_print_error(what, gn_last_error(g));
    return r == GN_OK;
}

/* Writes where y would be computed and why: gn_explain's text. False, with a message, if it cannot. */
static inline bool ex_explain(gn_tensor y, const gn_explain_desc *desc, FILE *to) {
    size_t n = 0;
    if (!ex_check(y.ctx, gn_explain(&y, 1, desc, NULL, 0, &n), "explain")) return false;
    char *text = malloc(n + 1);
    if (!text) fprintf(stderr, "out of memory\n");
    bool ok = text && ex_check(y.ctx, gn_explain(&y, 1, desc, text, n + 1, NULL), "explain") && fputs(text, to) >= 0;
    free(text);
    return ok;
}

/* ---- where to run ----------------------------------------------------------------------------------
 * --connect, else $GENIE_DEVICES, else a server in this process: real TCP on loopback, real TLS, a key made for this
 * run in a folder that ex_place_close removes. */
typedef struct ex_place {
    gn_server *server;   /* NULL when the server is another process */
    const char *devices; /* for gn_desc.devices; NULL: $GENIE_DEVICES */
    const char *home;    /* for gn_desc.home */
    char folder[PATH_MAX - 16], server_home[PATH_MAX], client_home[PATH_MAX];
} ex_place;

static volatile sig_atomic_t ex_interrupted;
static inline void ex_on_signal(int number) {
    (void)number;
    ex_interrupted = 1;
}
static inline void ex_catch_signals(void) {
    signal(SIGINT, ex_on_signal);
    signal(SIGTERM, ex_on_signal);
}

static inline int ex_remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline void ex_place_close(ex_place *p) {
    gn_server_close(p->server);
    if (p->folder[0]) nftw(p->folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    memset(p, 0, sizeof *p);
}

/* A server over these devices (NULL: this CPU) in this process; the folder is ex_place_close's to remove, also when it
   fails. */
static inline bool ex_own_server(ex_place *p, const char *devices) {
    const char *tmp = getenv("TMPDIR");
    gn_error error;
    snprintf(p->folder, sizeof p->folder, "%s/genie-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(p->folder)) {
        fprintf(stderr, "%s: %s; set TMPDIR to a folder that you can write to\n", p->folder, strerror(errno));
        p->folder[0] = 0;
        return false;
    }
    snprintf(p->server_home, sizeof p->server_home, "%s/server", p->folder);
    snprintf(p->client_home, sizeof p->client_home, "%s/client", p->folder);
    gn_server_desc d = { .listen = "127.0.0.1:0", .devices = devices, .home = p->server_home };
    if (gn_server_open(&d, &p->server, &error) != GN_OK) {
        ex_print_error("cannot open a server in this process", &error);
        return false;
    }
    p->devices = gn_server_url(p->server);
    p->home = p->client_home;
    return true;
}

/* `connect` is the value of --connect: NULL when it was not given, "" when it came without a value. */
static inline bool ex_place_open(ex_place *p, const char *connect, const char *home) {
    const char *env = getenv("GENIE_DEVICES");
    memset(p, 0, sizeof *p);
    p->home = home;
    if (connect && *connect) {
        p->devices = connect;
        return true;
    }
    if (env && *env) return true;
    if (!connect) {
        if (ex_own_server(p, NULL)) return true;
        ex_place_close(p);
        return false;
    }
    fprintf(stderr, "--connect without a value needs GENIE_DEVICES: set it to a server's URL or to @FILE with one\n");
    return false;
}

/* Adds what happened between two readings of the counters. */
static inline void ex_stats_add(gn_stats *sum, const gn_stats *before, const gn_stats *after) {
#define EX_ADD(name, unit, help) sum->name += after->name - before->name;
    GN_COUNTERS(EX_ADD)
#undef EX_ADD
}

#endif /* COMMON_H */
