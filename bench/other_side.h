/* Another library's side of rows, in a process of its own: a script that answers each line with one. */

typedef struct other_side {
    FILE *ask, *answer;
    pid_t child;
    const char *script;
} other_side;

/* By the interpreter that `variable` names; without one there is no other side. */
static void side_open(other_side *s, const char *variable, const char *script, const char *argument) {
    const char *python = getenv(variable);
    int in[2], out[2];
    if (!python || !*python || s->child) return;
    s->script = script;
    if (access(script, R_OK) != 0) {
        fprintf(stderr, "%s is not here: start this in the repository's folder\n", script);
        failed("a script is not here");
        return;
    }
    signal(SIGPIPE, SIG_IGN);
    if (pipe(in) || pipe(out)) return;
    fflush(NULL);
    s->child = fork();
    if (s->child == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int i = 0; i < 2; i++) {
            close(in[i]);
            close(out[i]);
        }
        execlp(python, python, script, argument, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    s->ask = fdopen(in[1], "w");
    s->answer = fdopen(out[0], "r");
    if (!s->ask || !s->answer) exit(EX_FAILED);
    setvbuf(s->ask, NULL, _IOLBF, 4096);
}

/* The number that answers a line; NAN: there is no other side, or it cannot, which is said. */
static double side_ask(other_side *s, const char *line) {
    char answer[300];
    if (!s->ask) return NAN;
    fprintf(s->ask, "%s\n", line);
    if (!fgets(answer, sizeof answer, s->answer)) {
        failed("another library's side has ended");
        fclose(s->ask);
        fclose(s->answer);
        s->ask = s->answer = NULL;
        return NAN;
    }
    if (strncmp(answer, "no ", 3) != 0) return strtod(answer, NULL);
    fprintf(stderr, "%s: %s", s->script, answer);
    return NAN;
}

static void side_close(other_side *s) {
    if (s->ask) fclose(s->ask);
    if (s->answer) fclose(s->answer);
    if (s->child > 0) waitpid(s->child, NULL, 0);
    *s = (other_side){ 0 };
}
