/* What fuzz targets of any unit share; see fuzz.h. */
#ifndef GN_FUZZ_COMMON_H
#define GN_FUZZ_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUZZ_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FUZZ_MAX(a, b) ((a) > (b) ? (a) : (b))
#define FUZZ_CHECK(holds) \
    ((holds) ? (void)0 : (printf("%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds), fflush(stdout), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap);

/* Of the core, for targets of the network unit: whether a text names a device of this program. */
bool fuzz_is_device(const char *text);

/* Under libFuzzer: FUZZ_SEEDS=FOLDER writes the seeds there and ends. */
#ifdef FUZZ_LIBFUZZER
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static uint8_t bytes[1 << 20];
    const char *folder = getenv("FUZZ_SEEDS");
    char path[512];
    (void)argc;
    (void)argv;
    for (size_t i = 0, n; folder && (n = fuzz_seed(i, bytes, sizeof bytes)) > 0; i++) {
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) exit(2);
    }
    if (folder) exit(0);
    return 0;
}
#endif

/* A reader of the input for whoever takes decisions from it; zeros when it is used up. */
typedef struct fuzz_input {
    const uint8_t *p;
    size_t n;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in) {
    if (!in->n) return 0;
    in->n--;
    return *in->p++;
}

#endif
