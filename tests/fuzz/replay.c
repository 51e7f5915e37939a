/* Runs fuzz targets as an ordinary test: the files of each corpus, the seeds that the target makes, and alterations of
 * both that are the same on every run. A target that fails, leaks, or takes too long leaves its input in a file.
 *
 *     replay ALTERATIONS FOLDER NAME ...      so many alterations of all inputs; those that fail go to FOLDER */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REPLAY_INPUTS = 16384, REPLAY_BYTES = 1 << 20, REPLAY_SECONDS = 120 };

typedef struct replay_target {
    const char *name;
    int (*run)(const uint8_t *data, size_t size);
    size_t (*seed)(size_t index, uint8_t *out, size_t cap);
} replay_target;

extern const replay_target replay_targets[];
extern const size_t replay_n_targets;
extern size_t replay_held(void);

typedef struct replay_input {
    uint8_t *p;
    size_t n;
    char name[80];
} replay_input;

static replay_input replay_inputs[REPLAY_INPUTS];
static size_t replay_n;
static uint8_t replay_scratch[REPLAY_BYTES];

static void replay_add(const char *name, const uint8_t *p, size_t n) {
    if (replay_n == REPLAY_INPUTS) {
        printf("more than %d inputs\n", REPLAY_INPUTS);
        exit(1);
    }
    replay_input *x = &replay_inputs[replay_n++];
    x->p = malloc(n + 1);
    x->n = n;
    if (!x->p) exit(2);
    memcpy(x->p, p, n);
    snprintf(x->name, sizeof x->name, "%.79s", name);
}

static int replay_compare(const void *a, const void *b) {
    return strcmp(((const replay_input *)a)->name, ((const replay_input *)b)->name);
}

static void replay_collect(const replay_target *t) {
    char path[512];
    snprintf(path, sizeof path, "tests/fuzz/corpus/%s", t->name);
    DIR *d = opendir(path);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%s", t->name, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "rb") : NULL;
        if (f) {
            replay_add(e->d_name, replay_scratch, fread(replay_scratch, 1, sizeof replay_scratch, f));
            fclose(f);
        }
    }
    if (d) closedir(d);
    qsort(replay_inputs, replay_n, sizeof *replay_inputs, replay_compare);
    for (size_t i = 0, n; (n = t->seed(i, replay_scratch, sizeof replay_scratch)) > 0; i++) {
        snprintf(path, sizeof path, "seed %zu", i);
        replay_add(path, replay_scratch, n);
    }
}

/* ---- alterations ---- */

static uint32_t replay_random(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*s >> 33);
}

/* Puts an integer at its edges where it may lie. */
static void replay_edge(uint8_t *p, size_t n, uint64_t *s) {
    static const uint64_t edges[] = { 0,
                                      1,
                                      UINT64_MAX,
                                      UINT64_MAX - 1,
                                      (uint64_t)1 << 63,
                                      ((uint64_t)1 << 63) - 1,
                                      UINT32_MAX,
                                      (uint64_t)1 << 32,
                                      (uint64_t)1 << 31,
                                      INT32_MAX,
                                      256,
                                      255,
                                      128,
                                      127,
                                      (uint64_t)1 << 47,
                                      65536 };
    uint64_t v = edges[replay_random(s) % 16] + (replay_random(s) & 1 ? replay_random(s) % 3 - 1 : 0);
    size_t bytes = (size_t)1 << replay_random(s) % 4, at = replay_random(s) % n;
    for (size_t i = 0; i < bytes && at + i < n; i++) p[at + i] = (uint8_t)(v >> (8 * i));
}

static size_t replay_alter_once(uint8_t *p, size_t n, uint64_t *s) {
    size_t at = n ? replay_random(s) % n : 0, k = 1 + replay_random(s) % 8, from = n ? replay_random(s) % n : 0;
    const replay_input *other = &replay_inputs[replay_random(s) % replay_n];
    if (n == 0) {
        p[0] = (uint8_t)replay_random(s);
        return 1;
    }
    switch (replay_random(s) % 7) {
    case 0: p[at] ^= (uint8_t)(1u << replay_random(s) % 8); return n;
    case 1: p[at] = (uint8_t)replay_random(s); return n;
    case 2: return at;
    case 3:
        k = k < n - at ? k : n - at;
        memmove(p + at, p + at + k, n - at - k);
        return n - k;
    case 4:
        k = k < n - from ? k : n - from;
        if (n + k > REPLAY_BYTES) return n;
        memmove(p + at + k, p + at, n - at);
        memmove(p + at, p + (from < at ? from : from + k < n ? from + k : at), k);
        return n + k;
    case 5:
        if (other->n > at) {
            memcpy(p + at, other->p + at, other->n - at);
            return other->n;
        }
        return n;
    default: replay_edge(p, n, s); return n;
    }
}

/* Alteration `k` of an input, 0 being the input itself, in replay_scratch. */
static size_t replay_make(size_t input, size_t k) {
    uint64_t s = (uint64_t)input * 1000003u + k;
    size_t n = replay_inputs[input].n;
    memcpy(replay_scratch, replay_inputs[input].p, n);
    replay_random(&s);
    for (size_t times = k ? 1 + replay_random(&s) % 4 : 0; times > 0; times--)
        n = replay_alter_once(replay_scratch, n, &s);
    return n;
}

/* ---- running: in a process of its own, which says in shared memory where it is ---- */

typedef struct replay_place {
    size_t input, k, held;
    bool leaked;
} replay_place;

/* Whether the input leaves memory behind each time: what is made once may stay. */
static bool replay_leaks(const replay_target *t, size_t n) {
    for (int again = 0; again < 3; again++) {
        size_t held = replay_held();
        t->run(replay_scratch, n);
        if (replay_held() == held) return false;
    }
    return true;
}

static void replay_run(const replay_target *t, size_t alterations, volatile replay_place *at) {
    for (size_t i = 0; i < replay_n + alterations; i++) {
        at->input = i % replay_n;
        at->k = i / replay_n;
        size_t n = replay_make(at->input, at->k), held = replay_held();
        uint8_t *exact = malloc(n ? n : 1); /* a read past the end is seen by a sanitizer */
        if (!exact) exit(2);
        memcpy(exact, replay_scratch, n);
        alarm(REPLAY_SECONDS);
        t->run(exact, n);
        free(exact);
        at->held = replay_held() - held;
        at->leaked = at->held != 0 && replay_leaks(t, n);
        if (at->leaked) exit(1);
    }
    exit(0);
}

static void replay_tell(const replay_target *t, const volatile replay_place *at, int status, const char *folder) {
    char path[512];
    size_t n = replay_make(at->input, at->k);
    snprintf(path, sizeof path, "%s/fuzz-%s-failed", folder, t->name);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(replay_scratch, 1, n, f) == n;
    ok = f && fclose(f) == 0 && ok;
    printf("FAIL %s: %s, alteration %zu: ", t->name, replay_inputs[at->input].name, at->k);
    if (at->leaked) {
        printf("%zd bytes are not freed", (ssize_t)at->held);
    } else if (WIFSIGNALED(status)) {
        printf(WTERMSIG(status) == SIGALRM ? "takes more than %d s" : "signal %d",
               WTERMSIG(status) == SIGALRM ? REPLAY_SECONDS : WTERMSIG(status));
    } else {
        printf("status %d", WEXITSTATUS(status));
    }
    printf("; its %zu bytes are in %s%s\n", n, path, ok ? "" : " (not written)");
}

static bool replay_one(const replay_target *t, size_t alterations, const char *folder) {
    struct timespec begin, end;
    volatile replay_place *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    while (replay_n > 0) free(replay_inputs[--replay_n].p);
    replay_collect(t);
    if (at == MAP_FAILED || replay_n == 0) {
        printf("FAIL %s: %s\n", t->name, replay_n ? "no memory" : "no input");
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) replay_run(t, alterations, at);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        printf("FAIL %s: no process\n", t->name);
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (status) {
        replay_tell(t, at, status, folder);
        return false;
    }
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    printf("    %s: %zu inputs, %zu alterations, %.2f s\n", t->name, replay_n, alterations, seconds);
    return true;
}

int main(int argc, char **argv) {
    bool ok = argc > 3;
    for (int i = 3; i < argc; i++) {
        const replay_target *t = NULL;
        for (size_t k = 0; k < replay_n_targets; k++)
            t = strcmp(replay_targets[k].name, argv[i]) == 0 ? &replay_targets[k] : t;
        if (!t) printf("FAIL %s: no such target\n", argv[i]);
        ok = t && replay_one(t, (size_t)strtoull(argv[1], NULL, 10), argv[2]) && ok;
    }
    return !ok;
}
