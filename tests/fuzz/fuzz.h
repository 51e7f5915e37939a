/* What fuzz targets include first. A target is tests/fuzz/NAME_fuzz.c and defines
 *
 *     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)    whatever the bytes are; returns 0
 *     size_t fuzz_seed(size_t index, uint8_t *out, size_t cap)        writes input `index` of those to begin with,
 *     returns its bytes, at
 *                                                                     most cap; 0: there are no more
 *
 * It may call everything, private functions too; FUZZ_CHECK ends the program when something does not hold. Further
 * inputs that are worth keeping, among them each that ever broke something, lie in tests/fuzz/corpus/NAME/; those of
 * models and pictures were written by tests/fuzz/make_corpus.py. `./build.sh
 * fuzz NAME SECONDS` looks for more under clang's libFuzzer; tests/fuzz_test.sh replays them all, and some alterations
 * of each, as an ordinary test. It compiles the targets together, so that the names of a target's own functions begin
 * with its name.
 *
 * A target includes this file to see the private parts of genie.h, with the network unit linked beside, or fuzz_net.h
 * to see those of genie_net.c, with the core linked beside.
 *
 * All memory of the library is counted: there is no more than FUZZ_MEMORY of it, and after each input as much as before
 * it. */
#ifndef GN_FUZZ_H
#define GN_FUZZ_H

#include "fuzz_common.h"

#define FUZZ_MEMORY ((size_t)64 << 20) /* bytes; whoever asks for more is told that there is none */

static size_t fuzz_held; /* bytes of the library's memory, by all threads */

static inline void fuzz_free(void *p) {
    if (p) {
        size_t *head = (size_t *)p - 2;
        __atomic_sub_fetch(&fuzz_held, *head, __ATOMIC_RELAXED);
        free(head);
    }
}

static inline void *fuzz_resize(void *p, size_t n) {
    size_t *old = p ? (size_t *)p - 2 : NULL, before = old ? *old : 0;
    if (n > FUZZ_MEMORY || __atomic_add_fetch(&fuzz_held, n, __ATOMIC_RELAXED) > FUZZ_MEMORY + before) {
        if (n <= FUZZ_MEMORY) __atomic_sub_fetch(&fuzz_held, n, __ATOMIC_RELAXED);
        return NULL;
    }
    size_t *q = realloc(old, n + 2 * sizeof *q); /* two words keep the alignment */
    __atomic_sub_fetch(&fuzz_held, q ? before : n, __ATOMIC_RELAXED);
    if (!q) return NULL;
    *q = n;
    return q + 2;
}

#define GN_MALLOC(n) fuzz_resize(NULL, n)
#define GN_REALLOC(p, n) fuzz_resize(p, n)
#define GN_FREE(p) fuzz_free(p)
#define GENIE_IMPLEMENTATION
#include "../../genie.h"

bool fuzz_is_device(const char *text) { return gn__device_is_word(text); }

#endif
