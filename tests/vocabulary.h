/* A GGUF file that holds a vocabulary and nothing else, byte by byte: for tests that alter it. */
#ifndef VOCABULARY_H
#define VOCABULARY_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct vocabulary {
    uint8_t *out;
    size_t n, keys; /* bytes and keys so far */
} vocabulary;

static inline void vocabulary_number(vocabulary *v, uint64_t x, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) v->out[v->n++] = (uint8_t)(x >> 8 * i);
}

static inline void vocabulary_text(vocabulary *v, const char *text) {
    vocabulary_number(v, strlen(text), 8);
    memcpy(v->out + v->n, text, strlen(text));
    v->n += strlen(text);
}

static inline void vocabulary_key(vocabulary *v, const char *name, uint32_t kind) {
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    vocabulary_text(v, key);
    vocabulary_number(v, kind, 4);
    v->keys++;
}

/* A list of texts that spaces divide; in them '~' stands for a space. */
static inline void vocabulary_texts(vocabulary *v, const char *name, const char *words) {
    char text[64];
    size_t count = *words != 0, k = 0;
    for (const char *p = words; *p; p++) count += *p == ' ';
    vocabulary_key(v, name, 9);
    vocabulary_number(v, 8, 4);
    vocabulary_number(v, count, 8);
    for (const char *p = words; count; p++) {
        if (*p && *p != ' ') {
            text[k++] = *p == '~' ? ' ' : *p;
            continue;
        }
        text[k] = 0;
        k = 0;
        vocabulary_text(v, text);
        count--;
    }
}

/* A list of as many numbers of four bytes as there are characters: their places in the alphabet, or from '0' on. */
static inline void vocabulary_numbers(vocabulary *v, const char *name, const char *digits, int as_float) {
    vocabulary_key(v, name, 9);
    vocabulary_number(v, as_float ? 6 : 5, 4);
    vocabulary_number(v, strlen(digits), 8);
    for (; *digits; digits++) {
        float x = -(float)(*digits - '0');
        uint32_t bits = (uint32_t)(*digits - '0');
        if (as_float) memcpy(&bits, &x, 4);
        vocabulary_number(v, bits, 4);
    }
}

/* model: "llama", "gpt2" or "t5"; the rest as in the file, NULL: left out. Its bytes. */
static inline size_t vocabulary_make(uint8_t *out, const char *model, const char *pre, const char *tokens,
                                     const char *types, const char *scores, const char *merges) {
    vocabulary v = { out, 24, 0 };
    memset(out, 0, 24);
    memcpy(out, "GGUF\3", 5);
    vocabulary_key(&v, "model", 8);
    vocabulary_text(&v, model);
    if (pre) vocabulary_key(&v, "pre", 8), vocabulary_text(&v, pre);
    if (tokens) vocabulary_texts(&v, "tokens", tokens);
    if (types) vocabulary_numbers(&v, "token_type", types, 0);
    if (scores) vocabulary_numbers(&v, "scores", scores, 1);
    if (merges) vocabulary_texts(&v, "merges", merges);
    out[16] = (uint8_t)v.keys;
    while (v.n % 32) out[v.n++] = 0;
    return v.n;
}
#endif
