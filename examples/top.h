/* top.h - genie_serve top [WHERE]: what a server does now, in a terminal, by gn_server_query. Include common.h and
 * view.h first. */
#ifndef TOP_H
#define TOP_H

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <termios.h>

enum { TOP_HISTORY = 240, TOP_ROWS = 500, TOP_LINE = 2048 };

typedef struct top_screen {
    int columns, rows;        /* rows 0: no screen, everything is printed */
    bool blocks, colour, raw; /* raw: the terminal is ours */
    bool paused, by_busy;     /* keys */
    int n, first;             /* lines made of this picture; the first session shown */
    struct termios was;
    float busy[GN_VIEW_DEVICES][TOP_HISTORY]; /* shares of the time between two looks, the latest last */
    int n_busy;
    gn_server_view *now, *before;
} top_screen;

static top_screen top;
static volatile sig_atomic_t top_resized, top_ends;
static gn_ctx *volatile top_ctx; /* whose wait a signal ends */

/* ---- one line: escapes take no columns, and what does not fit is left out ---- */

typedef struct top_line {
    char text[TOP_LINE];
    size_t n;
    int at;
} top_line;

static void top_style(top_line *l, const char *sequence) {
    size_t n = strlen(sequence);
    if (!top.colour || l->n + n >= sizeof l->text) return;
    memcpy(l->text + l->n, sequence, n);
    l->n += n;
}

/* Text of one column a character; the bytes of UTF-8 stay together. */
static void top_put(top_line *l, const char *text) {
    while (*text && l->at < top.columns && l->n + 8 < sizeof l->text) {
        do l->text[l->n++] = *text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
        l->at++;
    }
}

__attribute__((format(printf, 2, 3))) static void top_say(top_line *l, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    top_put(l, text);
}

static void top_pad(top_line *l, int to) {
    while (l->at < to && l->at < top.columns) top_put(l, " ");
}

static void top_end(top_line *l) {
    top_style(l, "\033[0m");
    if (!top.rows || top.n < top.rows)
        printf("%.*s%s%s", (int)l->n, l->text, top.rows ? "\033[K" : "", !top.rows || top.n + 1 < top.rows ? "\n" : "");
    top.n++;
    l->n = 0;
    l->at = 0;
}

/* A phrase that is not cut: two spaces and the phrase, or a new line that begins at `indent`. */
__attribute__((format(printf, 4, 5))) static void top_phrase(top_line *l, int indent, const char *style,
                                                             const char *format, ...) {
    char text[512];
    int columns = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (const char *c = text; *c; c++) columns += ((unsigned char)*c & 0xc0) != 0x80;
    if (l->at > indent && l->at + 2 + columns > top.columns) top_end(l);
    if (l->at == 0) top_pad(l, indent);
    else top_put(l, "  ");
    top_style(l, style);
    top_put(l, text);
    top_style(l, style[0] ? "\033[0m" : "");
}

/* ---- numbers in words ---- */

typedef struct top_word {
    char text[32];
} top_word;

static top_word top_scaled(double v, double by, const char *const *units, int n) {
    top_word w;
    int i = 0;
    for (; v >= by && i < n - 1; i++) v /= by;
    snprintf(w.text, sizeof w.text, i && v < 10 ? "%.1f%s" : "%.0f%s", v, units[i]);
    return w;
}

static top_word top_bytes(double v) {
    static const char *const units[] = { "B", "K", "M", "G", "T", "P" };
    return top_scaled(v, 1024, units, 6);
}

static top_word top_count(double v) {
    static const char *const units[] = { "", "k", "M", "G", "T", "P" };
    return top_scaled(v, 1000, units, 6);
}

static top_word top_time(double us) {
    top_word w;
    if (us < 1000) snprintf(w.text, sizeof w.text, "%.0fus", us);
    else if (us < 1e6) snprintf(w.text, sizeof w.text, "%.3gms", us / 1e3);
    else if (us < 6e7) snprintf(w.text, sizeof w.text, "%.3gs", us / 1e6);
    else if (us < 36e8) snprintf(w.text, sizeof w.text, "%.0fm%02.0fs", floor(us / 6e7), floor(fmod(us, 6e7) / 1e6));
    else snprintf(w.text, sizeof w.text, "%.0fh%02.0fm", floor(us / 36e8), floor(fmod(us, 36e8) / 6e7));
    return w;
}

/* ---- bars and sparklines ---- */

static const char *top_level(float share) {
    static const char *const blocks[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    static const char *const ascii[] = { " ", ".", ".", ":", ":", "+", "*", "#", "#" };
    int i = share <= 0 ? 0 : 1 + (int)(share * 7.999f);
    return (top.blocks ? blocks : ascii)[i < 8 ? i : 8];
}

static const char *top_heat(double share) { return share < 0.6 ? "\033[32m" : share < 0.9 ? "\033[33m" : "\033[31m"; }

static void top_bar(top_line *l, double share, int width) {
    int full = (int)(share * width + 0.5);
    top_put(l, "[");
    top_style(l, top_heat(share));
    for (int i = 0; i < width; i++) {
        if (i == full) top_style(l, "\033[2m");
        top_put(l, i < full ? top.blocks ? "█" : "|" : top.blocks ? "·" : " ");
    }
    top_style(l, "\033[0m");
    top_put(l, "]");
}

/* Of the time between the two looks; before a second look of all the time. */
static double top_share(uint64_t now, uint64_t before) {
    const gn_server_view *b = top.before;
    double span = (double)(top.now->uptime_us - (b ? b->uptime_us : 0));
    double spent = (double)(now - (b && now > before ? before : b ? now : 0));
    return span > 0 ? fmin(spent / span, 1) : 0; /* a session that computes twice at once is busy once */
}

static uint64_t top_grown(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

static double top_rate(uint64_t now, uint64_t before) {
    double span = (double)(top.now->uptime_us - (top.before ? top.before->uptime_us : 0)) * 1e-6;
    return span > 0 ? (double)top_grown(now, top.before ? before : 0) / span : 0;
}

static double top_device_busy(uint32_t i) {
    bool there = top.before && i < top.before->n_devices;
    return top_share(top.now->devices[i].busy_us, there ? top.before->devices[i].busy_us : 0);
}

static void top_remember(void) {
    if (top.n_busy == TOP_HISTORY)
        for (uint32_t d = 0; d < GN_VIEW_DEVICES; d++)
            memmove(top.busy[d], top.busy[d] + 1, sizeof top.busy[d] - sizeof top.busy[d][0]);
    else top.n_busy++;
    for (uint32_t d = 0; d < top.now->n_devices; d++) top.busy[d][top.n_busy - 1] = (float)top_device_busy(d);
}

/* ---- the picture ---- */

static void top_header(const char *where) {
    const gn_server_view *v = top.now;
    top_line l = { .n = 0 };
    top_style(&l, "\033[1m");
    top_say(&l, "genie %s", v->version);
    top_style(&l, "\033[0m");
    top_phrase(&l, 0, "", "%s", where);
    top_phrase(&l, 0, "", "up %s", top_time((double)v->uptime_us).text);
    top_phrase(&l, 0, v->draining ? "\033[33m" : "\033[32m", "%s", v->draining ? "draining" : "serving");
    if (v->all)
        top_phrase(&l, 0, "", "%llu of %llu sessions", (unsigned long long)v->sessions_now,
                   (unsigned long long)v->sessions_most);
    else
        top_phrase(&l, 0, "", "%llu session%s of this client", (unsigned long long)v->sessions_now,
                   v->sessions_now == 1 ? "" : "s");
    if (v->all)
        top_phrase(&l, 0, "", "host %s of %s", top_bytes((double)v->host_bytes).text,
                   v->host_limit ? top_bytes((double)v->host_limit).text : "any");
    else top_phrase(&l, 0, "", "host %s", top_bytes((double)v->host_bytes).text);
    top_end(&l);
}

static void top_device(uint32_t i) {
    const gn_device_view *d = &top.now->devices[i];
    char name[VIEW_DEVICE];
    double busy = top_device_busy(i);
    int width = top.columns < 100 ? 10 : top.columns < 140 ? 20 : 30;
    top_line l = { .n = 0 };
    top_style(&l, "\033[1;36m");
    top_put(&l, view_device(top.now, i, name, sizeof name));
    top_style(&l, "\033[0m");
    top_pad(&l, 9);
    top_put(&l, "busy ");
    top_bar(&l, busy, width);
    top_say(&l, " %3.0f%%  mem ", busy * 100);
    if (d->memory_bytes) top_bar(&l, fmin((double)d->held_bytes / (double)d->memory_bytes, 1), width);
    top_say(&l, " %s", top_bytes((double)d->held_bytes).text);
    if (d->memory_bytes) top_say(&l, " of %s", top_bytes((double)d->memory_bytes).text);
    if (d->lost) top_phrase(&l, 9, "\033[31m", "LOST");
    else top_phrase(&l, 9, "", "%llu session%s", (unsigned long long)d->sessions, d->sessions == 1 ? "" : "s");
    if (top.now->all) {
        top_phrase(&l, 9, "", "queue %s", top_time((double)d->queue_us).text);
        top_phrase(&l, 9, "", "step %s", top_time((double)d->step_us).text);
    }
    top_end(&l);
    if (top.rows && top.rows < 16) return; /* a low screen: sessions come first */
    top_pad(&l, 9);
    top_style(&l, "\033[36m");
    int room = top.columns - 9 < TOP_HISTORY ? top.columns - 9 : TOP_HISTORY, n = top.n_busy < room ? top.n_busy : room;
    for (int k = 0; k < n; k++) top_put(&l, top_level(top.busy[i][top.n_busy - n + k]));
    if (n > 1) top_end(&l);
}

static void top_totals(void) {
    const gn_stats *s = &top.now->stats, none = { 0 }, *b = top.before ? &top.before->stats : &none;
    top_line l = { .n = 0 };
    top_say(&l, "steps %s (%s/s)", top_count((double)s->steps_run).text,
            top_count(top_rate(s->steps_run, b->steps_run)).text);
    top_phrase(&l, 0, "", "in %s (%s/s)", top_bytes((double)s->socket_bytes_down).text,
               top_bytes(top_rate(s->socket_bytes_down, b->socket_bytes_down)).text);
    top_phrase(&l, 0, "", "out %s (%s/s)", top_bytes((double)s->socket_bytes_up).text,
               top_bytes(top_rate(s->socket_bytes_up, b->socket_bytes_up)).text);
    top_phrase(&l, 0, "", "weights avoided %s", top_bytes((double)s->weight_bytes_known).text);
    top_phrase(&l, 0, "", "plans made %s", top_count((double)s->plans_made).text);
    top_phrase(&l, 0, s->fallbacks ? "\033[33m" : "", "fallbacks %s", top_count((double)s->fallbacks).text);
    top_phrase(&l, 0, s->faults ? "\033[31m" : "", "faults %s", top_count((double)s->faults).text);
    top_end(&l);
    top_end(&l);
}

static const gn_session_view *top_was(uint64_t session) {
    for (uint32_t i = 0; top.before && i < top.before->n_sessions; i++)
        if (top.before->sessions[i].session == session) return &top.before->sessions[i];
    return NULL;
}

/* A session's columns: those on the right are left out first on a narrow screen, that of a single device always. */
typedef struct top_row {
    const gn_session_view *s;
    double busy, steps; /* share of the time; a second */
} top_row;

static int top_by(const void *a, const void *b) {
    const top_row *x = (const top_row *)a, *y = (const top_row *)b;
    int tenant = top.by_busy ? 0 : strcmp(x->s->tenant, y->s->tenant);
    if (tenant) return tenant;
    if (x->busy > y->busy || x->busy < y->busy) return x->busy > y->busy ? -1 : 1;
    return x->s->session < y->s->session ? -1 : x->s->session > y->s->session;
}

enum { TOP_COLUMNS = 12 };
static const struct {
    const char *name;
    int width; /* negative: on the right of its column */
} top_columns[TOP_COLUMNS] = { { "TENANT", 11 }, { "ID", -6 },     { "DEVICE", 8 },  { "RUNS", 26 },
                               { "BUSY", -5 },   { "STEP/s", -7 }, { "DEVMEM", -7 }, { "IN", -6 },
                               { "OUT", -6 },    { "AVOID", -6 },  { "AGE", -7 },    { "CLIENT", 40 } };

static void top_cell(top_line *l, int k, const char *text) {
    int width = abs(top_columns[k].width), n = (int)strlen(text), from = l->at;
    if (k == 2 && top.now->n_devices == 1) return;
    if (l->at + (k == TOP_COLUMNS - 1 ? 6 : width) > top.columns) return;
    if (top_columns[k].width < 0) top_pad(l, from + width - n);
    top_say(l, "%.*s", width, text);
    top_pad(l, from + width + 1 + (top_columns[k].width < 0));
}

static void top_session(const top_row *r, bool first) {
    const gn_session_view *s = r->s;
    char text[TOP_COLUMNS][200];
    top_line l = { .n = 0 };
    snprintf(text[0], sizeof text[0], "%.10s", !first ? "" : s->tenant[0] ? s->tenant : "-");
    snprintf(text[1], sizeof text[1], "%llu", (unsigned long long)s->session);
    snprintf(text[2], sizeof text[2], "%.8s", s->device);
    snprintf(text[3], sizeof text[3], "%s%s%s", s->steps ? s->phase : "-", s->steps ? ", " : "",
             s->steps ? s->role : "");
    snprintf(text[4], sizeof text[4], "%.0f%%", r->busy * 100);
    snprintf(text[5], sizeof text[5], "%s", top_count(r->steps).text);
    snprintf(text[6], sizeof text[6], "%s", top_bytes((double)s->held_bytes).text);
    snprintf(text[7], sizeof text[7], "%s", top_bytes((double)s->bytes_up).text);
    snprintf(text[8], sizeof text[8], "%s", top_bytes((double)s->bytes_down).text);
    snprintf(text[9], sizeof text[9], "%s", top_bytes((double)s->weights_known).text);
    snprintf(text[10], sizeof text[10], "%s", top_time((double)s->age_us).text);
    snprintf(text[11], sizeof text[11], "%s%s%s", s->label, s->label[0] ? "  " : "", s->peer);
    for (int k = 0; k < TOP_COLUMNS; k++) {
        top_style(&l, k == 0 ? "\033[36m" : k == 4 && r->busy >= 0.005 ? top_heat(r->busy) : k == 3 ? "\033[1m" : "");
        top_cell(&l, k, text[k]);
        top_style(&l, "\033[0m");
    }
    if (s->faults) top_style(&l, "\033[31m");
    if (s->faults) top_say(&l, " %llu faults", (unsigned long long)s->faults);
    top_end(&l);
}

static void top_sessions(void) {
    const gn_server_view *v = top.now;
    top_row *rows = (top_row *)calloc(v->n_sessions + 1u, sizeof *rows);
    top_line l = { .n = 0 };
    int n = rows ? (int)v->n_sessions : 0, room = top.rows ? top.rows - top.n - 2 : n;
    for (int i = 0; i < n; i++) {
        const gn_session_view *s = &v->sessions[i], *was = top_was(s->session);
        rows[i] =
            (top_row){ s, top_share(s->busy_us, was ? was->busy_us : 0), top_rate(s->steps, was ? was->steps : 0) };
    }
    if (n) qsort(rows, (size_t)n, sizeof *rows, top_by);
    if (room < 1) room = 1;
    if (top.first > n - room) top.first = n > room ? n - room : 0;
    top_style(&l, "\033[7m");
    for (int k = 0; k < TOP_COLUMNS; k++) top_cell(&l, k, top_columns[k].name);
    top_pad(&l, top.rows ? top.columns : l.at);
    top_end(&l);
    for (int i = top.first; i < n && i < top.first + room; i++)
        top_session(&rows[i], top.by_busy || i == top.first || strcmp(rows[i].s->tenant, rows[i - 1].s->tenant) != 0);
    int hidden = n - (top.first + room < n ? room : n - top.first);
    if (!n) top_say(&l, "no sessions");
    if (hidden > 0 || v->sessions_untold)
        top_say(&l, "%d more by the keys j and k%s", hidden, v->sessions_untold ? "; older ones are not told" : "");
    if (l.at) top_end(&l);
    free(rows);
}

static void top_draw(const char *where) {
    struct winsize size;
    if (top.rows && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        top.columns = size.ws_col;
        top.rows = size.ws_row;
    }
    top.n = 0;
    if (top.rows) printf("\033[H");
    top_header(where);
    for (uint32_t i = 0; i < top.now->n_devices; i++) top_device(i);
    top_totals();
    top_sessions();
    if (top.rows) {
        printf("\033[J\033[%d;1H", top.rows);
        top_line l = { .n = 0 };
        top_style(&l, "\033[2m");
        top_put(&l, top.paused ? "PAUSED  q quit  p go on" : "q quit  p pause  s sort by tenant or busy  j k scroll");
        top.n = top.rows - 1;
        top_end(&l);
    }
    fflush(stdout);
}

/* ---- the terminal ---- */

static void top_on_signal(int number) {
    if (number == SIGWINCH) top_resized = 1;
    else {
        gn_ctx *g = top_ctx;
        top_ends = 1;
        if (g) gn_cancel(g);
    }
}

static void top_restore(void) {
    if (!top.raw) return;
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &top.was);
    top.raw = false;
}

static void top_take(void) {
    struct sigaction action = { .sa_handler = top_on_signal };
    struct termios own;
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGQUIT, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGTSTP, &action, NULL); /* it would leave the terminal as it is here */
    if (tcgetattr(STDIN_FILENO, &top.was) != 0) return;
    own = top.was;
    own.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    own.c_cc[VMIN] = own.c_cc[VTIME] = 0; /* ^C takes keys away that poll has seen: a read does not wait for others */
    tcsetattr(STDIN_FILENO, TCSANOW, &own);
    top.raw = true;
    printf("\033[?1049h\033[?25l\033[2J");
}

/* A key within that time: true when the picture changes. */
static bool top_key(int ms) {
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char c = 0;
    if (poll(&in, top.raw ? 1 : 0, ms) <= 0 || read(STDIN_FILENO, &c, 1) != 1) {
        if (in.revents & (POLLHUP | POLLERR)) top_ends = 1;
        return top_resized != 0;
    }
    if (c == 'q' || c == 3) top_ends = 1;
    if (c == 'p' || c == ' ') top.paused = !top.paused;
    if (c == 's') top.by_busy = !top.by_busy;
    if (c == 'j') top.first++;
    if (c == 'k' && top.first > 0) top.first--;
    return true;
}

static bool top_look(gn_ctx *g) {
    gn_server_view *v;
    gn_result r = gn_server_query(g, 0, &v);
    if (top_ends && r == GN_CANCELLED) return false;
    if (!ex_check(g, r, "genie_serve top")) return false;
    gn_server_view_free(top.before);
    top.before = top.now;
    top.now = v;
    return true;
}

static void top_begin(bool once) {
    const char *columns = getenv("COLUMNS"), *no = getenv("NO_COLOR");
    setlocale(LC_CTYPE, "");
    top.blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    top.colour = ex_terminal() && !(no && *no);
    top.columns = columns && atoi(columns) > 0 ? atoi(columns) : 132;
    top.rows = !once && ex_terminal() ? 24 : 0;
    if (top.rows) top_take();
}

/* Until a key, a signal, or the server ends it. */
static bool top_run(gn_ctx *g, const char *where, double interval) {
    bool ok = true;
    top_ctx = g;
    for (double next = 0; ok && !top_ends;) {
        double now = ex_now();
        bool due = now >= next && !top.paused;
        if (due) {
            ok = top_look(g);
            next = now + interval;
        }
        if (ok && due) top_remember();
        top_resized = 0;
        if (ok) top_draw(where);
        while (ok && !top_ends && (top.paused || ex_now() < next))
            if (top_key(top.paused ? 200 : (int)fmax((next - ex_now()) * 1000, 1))) break;
    }
    top_ctx = NULL;
    return ok;
}

static int top_main(int argc, char **argv) {
    bool once = false, json = false;
    double interval = 1;
    const char *home = NULL, *env = getenv("GENIE_DEVICES"), *where = env && *env ? env : "127.0.0.1:5556";
    const ex_option options[] = {
        { "once", EX_FLAG, &once, NULL, "print once and exit; the default when standard output is not a terminal", 0,
          0 },
        { "json", EX_FLAG, &json, NULL, "print once, as one JSON object", 0, 0 },
        { "interval", EX_NUMBER, &interval, "SECONDS", "between updates (1)", 0.1, 3600 },
        { "home", EX_TEXT, &home, "DIR", "folder of credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    if (argc > 1 && strncmp(argv[1], "-", 1) != 0) {
        where = argv[1];
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    ex_operand = "top [HOST:PORT|URL|@FILE] ";
    ex_parse(
        argc, argv,
        "genie_serve top shows what a server does now ($GENIE_DEVICES, else 127.0.0.1:5556). Administrators, paired "
        "by the\nURL that genie_serve --admin writes, see all clients; others see their own sessions.",
        options);
    if (!ex_terminal()) once = true;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = where, .home = home, .label = "genie_serve top" });
    gn_device_info info = { 0 };
    bool ok = ex_check(g, gn_status(g), "genie_serve top") && ex_check(g, gn_get_device(g, &info), "genie_serve top");
    info.name[strcspn(info.name, "/")] = 0; /* the server, without the device that was opened there */
    if (ok && (once || json)) ok = top_look(g);
    if (ok && json) view_json(stdout, top.now);
    else if (ok) {
        top_begin(once);
        if (once) top_draw(info.name);
        else ok = top_run(g, info.name, interval);
        top_restore();
    }
    gn_server_view_free(top.now);
    gn_server_view_free(top.before);
    gn_close(g);
    return ok ? EX_OK : EX_FAILED;
}

#endif
