/* line_editor.h - a line from the terminal, with a history by the arrow keys; from anything else, a line as it comes.
 * One C file includes it; POSIX. */
#ifndef LINE_EDITOR_H
#define LINE_EDITOR_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { LINE_BYTES = 1 << 16, LINE_HISTORY = 200 };

typedef struct line_editor {
    char *history[LINE_HISTORY];
    int n_history;
    char text[LINE_BYTES];
    size_t n, at; /* bytes; where the cursor stands */
    int from;     /* of the history, n_history: the line itself */
} line_editor;

typedef enum line_result { LINE_READ, LINE_END, LINE_INTERRUPTED } line_result;

/* Bytes of the character before or behind a place: those that begin with 10 belong to the one before. */
static inline size_t line__step(const line_editor *e, size_t at, int by) {
    do at += (size_t)by;
    while (at > 0 && at < e->n && (e->text[at] & 0xc0) == 0x80);
    return at;
}

static inline void line__show(const line_editor *e, const char *prompt) {
    size_t behind = 0;
    for (size_t i = e->at; i < e->n; i++) behind += (e->text[i] & 0xc0) != 0x80;
    printf("\r\033[K%s%.*s", prompt, (int)e->n, e->text);
    if (behind) printf("\033[%zuD", behind);
    fflush(stdout);
}

static inline void line__insert(line_editor *e, char c) {
    if (e->n + 1 >= LINE_BYTES) return;
    memmove(e->text + e->at + 1, e->text + e->at, e->n - e->at);
    e->text[e->at++] = c;
    e->n++;
}

static inline void line__remove(line_editor *e, size_t from, size_t to) {
    memmove(e->text + from, e->text + to, e->n - to);
    e->n -= to - from;
    e->at = from;
}

static inline void line__recall(line_editor *e, int by) {
    if (e->from + by < 0 || e->from + by > e->n_history) return;
    e->from += by;
    e->n = e->from < e->n_history ? strlen(e->history[e->from]) : 0;
    memcpy(e->text, e->from < e->n_history ? e->history[e->from] : "", e->n);
    e->at = e->n;
}

/* What stands behind ESC [: arrows, home, end, delete. */
static inline void line__sequence(line_editor *e) {
    char c[2] = { 0, 0 };
    if (read(STDIN_FILENO, &c[0], 1) != 1 || (c[0] != '[' && c[0] != 'O') || read(STDIN_FILENO, &c[1], 1) != 1) return;
    if (c[1] == 'A') line__recall(e, -1);
    else if (c[1] == 'B') line__recall(e, 1);
    else if (c[1] == 'C' && e->at < e->n) e->at = line__step(e, e->at, 1);
    else if (c[1] == 'D' && e->at > 0) e->at = line__step(e, e->at, -1);
    else if (c[1] == 'H') e->at = 0;
    else if (c[1] == 'F') e->at = e->n;
    else if (c[1] >= '0' && c[1] <= '9') {
        char last = c[1];
        while (read(STDIN_FILENO, &c[0], 1) == 1 && c[0] != '~' && !(c[0] >= 'A' && c[0] <= 'z')) { }
        if (c[0] == '~' && last == '3' && e->at < e->n) line__remove(e, e->at, line__step(e, e->at, 1));
    }
}

/* One key; true while the line goes on. */
static inline bool line__key(line_editor *e, char c, line_result *out) {
    enum { CTRL_A = 1, CTRL_C = 3, CTRL_D = 4, CTRL_E = 5, BELL = 7, BACK = 8, CTRL_K = 11, CTRL_U = 21, ESC = 27 };
    *out = LINE_READ;
    if (c == '\r' || c == '\n') return false;
    if (c == CTRL_C || (c == CTRL_D && !e->n)) {
        *out = c == CTRL_C ? LINE_INTERRUPTED : LINE_END;
        return false;
    }
    if (c == CTRL_A) e->at = 0;
    else if (c == CTRL_E) e->at = e->n;
    else if (c == CTRL_K) e->n = e->at;
    else if (c == CTRL_U) line__remove(e, 0, e->at);
    else if (c == CTRL_D && e->at < e->n) line__remove(e, e->at, line__step(e, e->at, 1));
    else if ((c == BACK || c == 127) && e->at > 0) line__remove(e, line__step(e, e->at, -1), e->at);
    else if (c == ESC) line__sequence(e);
    else if ((unsigned char)c >= ' ' && c != 127) line__insert(e, c);
    return true;
}

static inline void line__remember(line_editor *e) {
    if (!e->n || (e->n_history && !strcmp(e->history[e->n_history - 1], e->text))) return;
    if (e->n_history == LINE_HISTORY) {
        free(e->history[0]);
        memmove(e->history, e->history + 1, (LINE_HISTORY - 1) * sizeof *e->history);
        e->n_history--;
    }
    e->history[e->n_history] = strdup(e->text);
    e->n_history += e->history[e->n_history] != NULL;
}

/* Reads a line into e->text, without its end. */
static inline line_result line_read(line_editor *e, const char *prompt) {
    struct termios before, raw;
    line_result result = LINE_END;
    char c;
    e->n = e->at = 0;
    e->from = e->n_history;
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &before)) {
        if (!fgets(e->text, LINE_BYTES, stdin)) return LINE_END;
        e->n = strcspn(e->text, "\n");
        e->text[e->n] = 0;
        return LINE_READ;
    }
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    for (bool goes_on = true; goes_on;) {
        line__show(e, prompt);
        bool have = read(STDIN_FILENO, &c, 1) == 1; /* else the input has ended, or a signal came */
        if (!have) result = LINE_END;
        goes_on = have && line__key(e, c, &result);
    }
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    printf("\n");
    e->text[e->n] = 0;
    if (result == LINE_READ) line__remember(e);
    return result;
}

static inline void line_editor_free(line_editor *e) {
    for (int i = 0; i < e->n_history; i++) free(e->history[i]);
    e->n_history = 0;
}

#endif
