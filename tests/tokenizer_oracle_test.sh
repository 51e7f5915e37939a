#!/usr/bin/env bash
# examples/formats/tokenizer.h beside the packages `tokenizers` and `sentencepiece` from PyPI: no id differs, over 24 tokenizers of the
# kinds and in the files that models come with, and text of all scripts, some of it no UTF-8; both rates are printed. Skipped where the
# package is missing; tests/oracles.txt names it. GENIE_ORACLE_MB=50 TOKENIZER_TEXT=documents ./build.sh test tokenizer_oracle_test: more.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH} TOKENIZERS_PARALLELISM=false
megabytes=${GENIE_ORACLE_MB:-0.5}

# Reads records of a length and a text; writes their ids, and what these are decoded to, in the same form.
write_reader() {
    cat >"$WORK/read.c" <<'TEXT'
#define TOKENIZER_IMPLEMENTATION
#include "examples/formats/tokenizer.h"
#include <time.h>

static tok__buffer decoded;
static void keep(void *user, const char *p, size_t n) { (void)user; tok__put(&decoded, p, n); }

static void write_record(FILE *f, const void *p, size_t n, size_t size) {
    uint32_t count = (uint32_t)n;
    if (fwrite(&count, 4, 1, f) != 1 || fwrite(p, size, n, f) != n) exit(3);
}

int main(int argc, char **argv) {
    char error[TOKENIZER_ERROR];
    tokenizer *t = argc == 6 ? tokenizer_open(argv[1], error) : NULL;
    mapping m;
    tokenizer_ids ids = { NULL, 0, 0 };
    clock_t spent = 0;
    if (!t || !mapping_open(&m, argv[2], error, sizeof error)) { puts(error); return 1; }
    FILE *f = fopen(argv[3], "wb"), *g = fopen(argv[4], "wb");
    if (!f || !g) return 2;
    for (uint64_t at = 0; at < m.size;) {
        uint32_t n;
        tokenizer_stream s = { { 0 }, 0, false };
        memcpy(&n, m.data + at, 4);
        char *text = malloc(n ? n : 1);          /* of its exact size, so that a sanitizer sees a read past the end */
        memcpy(text, m.data + at + 4, n);
        ids.n = decoded.n = 0;
        clock_t start = clock();
        if (!tokenizer_encode(t, text, n, (unsigned)atoi(argv[5]), &ids)) return 4;
        spent += clock() - start;
        for (size_t i = 0; i < ids.n; i++) tokenizer_decode(t, &s, ids.id[i], keep, NULL);
        tokenizer_decode_end(t, &s, keep, NULL);
        write_record(f, ids.id, ids.n, 4);
        write_record(g, decoded.p ? decoded.p : "", decoded.n, 1);
        free(text);
        at += 4 + (uint64_t)n;
    }
    printf("%.9f\n", (double)spent / CLOCKS_PER_SEC);
    mapping_close(&m);
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
    free(decoded.p);
    return fclose(f) || fclose(g);
}
TEXT
    $CC -std=gnu11 -O2 -g ${SAN:+-fsanitize=$SAN -fno-sanitize-recover=all} -Wall -Wextra -Wconversion -Wshadow -Werror -I. \
        "$WORK/read.c" -o "$WORK/read" -lm -lpthread
}

ids_are_the_packages() { timeout 3000 python3 tests/tokenizer_oracle.py "$WORK/read" "$WORK" "$megabytes"; }

check reader_compiles write_reader
if python3 -c 'import tokenizers' 2>/dev/null; then
    check ids_of_all_tokenizers_are_the_packages ids_are_the_packages
else
    skip ids_of_all_tokenizers_are_the_packages "python3 has no tokenizers (pip install --target build/oracles -r tests/oracles.txt)"
fi
finish
