/* A bar of what has been sent of a model's weights, on a terminal: a gn_desc.progress. Include common.h first.
 *
 *     ex_progress bar = { .total = bytes };
 *     gn_open(&(gn_desc){ .progress = ex_progress_show, .progress_user = ex_progress_begin(&bar) });
 *     ... ex_progress_end(&bar); */
#ifndef PROGRESS_H
#define PROGRESS_H

typedef struct ex_progress {
    uint64_t total;      /* bytes that will be needed; 0: what the library knows of */
    double begin, drawn; /* when the first were sent, when the bar was drawn last */
    bool on, colour;
    gn_progress latest;
    gn_ctx *interrupts; /* whose call a signal ends; NULL: none */
} ex_progress;

enum { EX_PROGRESS_CELLS = 24 };

/* One line without its end: a bar, bytes, rate, time left, bytes that were there. */
static inline void ex_progress_text(char *out, size_t size, const gn_progress *p, uint64_t total, double seconds,
                                    bool colour) {
    double all = (double)(total > p->total ? total : p->total), there = (double)(p->known + p->sent),
           rate = seconds > 0 ? (double)p->sent / seconds : 0, share = all > 0 ? there / all : 1;
    int full = (int)(share * EX_PROGRESS_CELLS);
    char left[32] = "", known[48] = "";
    if (rate > 0) snprintf(left, sizeof left, ", %.0f s left", (all - there) / rate);
    if (p->known) snprintf(known, sizeof known, ", %.2f GB were there", 1e-9 * (double)p->known);
    snprintf(out, size, "weights [%s%.*s%s%.*s] %3.0f %%, %.2f of %.2f GB, %.0f MB/s%s%s", colour ? "\033[32m" : "",
             full, "########################", colour ? "\033[0m" : "", EX_PROGRESS_CELLS - full,
             "------------------------", 100 * share, 1e-9 * there, 1e-9 * all, 1e-6 * rate, left, known);
}

/* Returns `p`. Nothing is drawn when standard error is no terminal. */
static inline ex_progress *ex_progress_begin(ex_progress *p) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    p->on = isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
    p->colour = p->on && !(no && *no);
    return p;
}

static inline void ex_progress_show(void *user, const gn_progress *progress) {
    ex_progress *p = user;
    char line[256];
    double now = ex_now();
    p->latest = *progress;
    if (p->interrupts && ex_interrupted) gn_cancel(p->interrupts);
    if (p->begin <= 0) p->begin = now;
    if (!p->on || now - p->begin < 0.3 || now - p->drawn < 0.1) return; /* what is quick needs no bar */
    ex_progress_text(line, sizeof line, progress, p->total, now - p->begin, p->colour);
    fprintf(stderr, "\r%s\033[K", line);
    p->drawn = now;
}

/* Ends the bar with what it came to. */
static inline void ex_progress_end(ex_progress *p) {
    const gn_progress *l = &p->latest;
    if (p->on && l->total)
        fprintf(stderr, "\rweights: %.2f GB in %.1f s, %.2f GB of it sent as %.2f GB, %.2f GB were there\033[K\n",
                1e-9 * (double)(l->known + l->sent), ex_now() - p->begin, 1e-9 * (double)l->sent,
                1e-9 * (double)l->packed, 1e-9 * (double)l->known);
    p->on = false;
}

#endif
