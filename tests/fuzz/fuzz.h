/* What every fuzz target includes first. A target is tests/fuzz/NAME_fuzz.c and defines
 *
 *     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)    whatever the bytes are; returns 0
 *     size_t fuzz_seed(size_t index, uint8_t *out, size_t cap)        writes input `index` of those to begin with, returns its bytes, at
 *                                                                     most cap; 0: there are no more
 *
 * It may call everything, private functions too; FUZZ_CHECK ends the program when something does not hold. Further inputs that are worth
 * keeping, among them each that ever broke something, lie in tests/fuzz/corpus/NAME/. `./build.sh fuzz NAME SECONDS` looks for more under clang's
 * libFuzzer; tests/fuzz_test.sh replays them all, and some alterations of each, as an ordinary test. It compiles all targets as one
 * unit, so the names of a target's own functions begin with its name.
 *
 * All memory of the library is counted: there is no more than FUZZ_MEMORY of it, and after each input as much as before it. */
#ifndef GN_FUZZ_H
#define GN_FUZZ_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUZZ_MEMORY ((size_t)64 << 20)   /* bytes; whoever asks for more is told that there is none */

static size_t fuzz_held;                 /* bytes of the library's memory, by all threads */

static inline void fuzz_free(void *p)
{
    if (p) {
        size_t *head = (size_t *)p - 2;
        __atomic_sub_fetch(&fuzz_held, *head, __ATOMIC_RELAXED);
        free(head);
    }
}

static inline void *fuzz_resize(void *p, size_t n)
{
    size_t *old = p ? (size_t *)p - 2 : NULL, before = old ? *old : 0;
    if (n > FUZZ_MEMORY || __atomic_add_fetch(&fuzz_held, n, __ATOMIC_RELAXED) > FUZZ_MEMORY + before) {
        if (n <= FUZZ_MEMORY) {
            __atomic_sub_fetch(&fuzz_held, n, __ATOMIC_RELAXED);
        }
        return NULL;
    }
    size_t *q = realloc(old, n + 2 * sizeof *q);    /* two words keep the alignment */
    __atomic_sub_fetch(&fuzz_held, q ? before : n, __ATOMIC_RELAXED);
    if (!q) {
        return NULL;
    }
    *q = n;
    return q + 2;
}

#define GN_MALLOC(n) fuzz_resize(NULL, n)
#define GN_REALLOC(p, n) fuzz_resize(p, n)
#define GN_FREE(p) fuzz_free(p)
#define GENIE_IMPLEMENTATION
#include "../../genie.h"

#define FUZZ_CHECK(holds) ((holds) ? (void)0 : (printf("%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds), fflush(stdout), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap);

/* Under libFuzzer: FUZZ_SEEDS=FOLDER writes the seeds there and ends. */
#ifdef FUZZ_LIBFUZZER
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static uint8_t bytes[1 << 20];
    const char *folder = getenv("FUZZ_SEEDS");
    char path[512];
    (void)argc;
    (void)argv;
    for (size_t i = 0, n; folder && (n = fuzz_seed(i, bytes, sizeof bytes)) > 0; i++) {
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
            exit(2);
        }
    }
    if (folder) {
        exit(0);
    }
    return 0;
}
#endif

/* A reader of the input for whoever takes decisions from it; zeros when it is used up. */
typedef struct fuzz_input { const uint8_t *p; size_t n; } fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in)
{
    if (!in->n) {
        return 0;
    }
    in->n--;
    return *in->p++;
}

#endif
