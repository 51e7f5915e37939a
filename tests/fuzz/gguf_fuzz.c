/* Any bytes as a GGUF file: refused with a reason, or every key and tensor can be read to its last byte. */
#include "formats_fuzz.h"
#define GGUF_IMPLEMENTATION
#include "../../examples/formats/gguf.h"

static void gguf_walk_keys(const gguf *g, size_t size) {
    gguf_string key, text;
    gguf_value v, item;
    uint64_t u;
    double d;
    for (size_t i = 0; gguf_key_at(g, i, &key, &v); i++)
        while (gguf_next(&v, &item)) {
            if (gguf_value_string(&item, &text)) FUZZ_CHECK(text.size <= size);
            if (gguf_value_u64(&item, &u)) FUZZ_CHECK(gguf_value_f64(&item, &d) && d >= 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[GGUF_ERROR], path[64];
    int fd = formats_file(data, size, path);
    gguf *g = gguf_open(path, error);
    gguf_tensor t, same;
    FUZZ_CHECK(g || error[0]);
    if (g) gguf_walk_keys(g, size);
    for (size_t i = 0; g && gguf_at(g, i, &t); i++) {
        float *x = malloc((size_t)gguf_elements(&t) * sizeof *x + 1);
        FUZZ_CHECK(x && t.bytes <= size && gguf_to_f32(t.type, t.data, gguf_elements(&t), x));
        free(x);
        char *name = malloc(t.name.size + 1);
        memcpy(name, t.name.text, t.name.size);
        name[t.name.size] = 0;
        FUZZ_CHECK(gguf_find(g, name, &same) && same.data == t.data);
        free(name);
    }
    FUZZ_CHECK(!g || gguf_intact(g, error));
    gguf_close(g);
    close(fd);
    return 0;
}

static size_t gguf_put(uint8_t *out, size_t at, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) out[at + i] = (uint8_t)(v >> 8 * i);
    return at + bytes;
}

static size_t gguf_put_text(uint8_t *out, size_t at, const char *text) {
    at = gguf_put(out, at, strlen(text), 8);
    memcpy(out + at, text, strlen(text));
    return at + strlen(text);
}

/* Version 3 with keys of three kinds and a tensor of the type that the index names. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const uint32_t types[] = { 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 24, 25, 26, 27, 28, 30 };
    uint32_t elements, bytes;
    if (index >= sizeof types / sizeof *types || cap < 1024 || !gguf_block(types[index], &elements, &bytes)) return 0;
    memset(out, 0, 1024);
    memcpy(out, "GGUF\3", 5);
    size_t n = gguf_put(out, 8, 1, 8);
    n = gguf_put(out, n, 3, 8);
    n = gguf_put(out, gguf_put_text(out, n, "a"), GGUF_KIND_STRING, 4);
    n = gguf_put(out, gguf_put_text(out, gguf_put_text(out, n, "llama"), "b"), GGUF_KIND_ARRAY, 4);
    n = gguf_put(out, gguf_put(out, n, GGUF_KIND_I16, 4), 2, 8);
    n = gguf_put(out, gguf_put_text(out, gguf_put(out, n, 0xfffe0001u, 4), "c"), GGUF_KIND_F64, 4);
    n = gguf_put(out, gguf_put(out, n, 0x3ff0000000000000u, 8), 1, 0);
    n = gguf_put(out, gguf_put_text(out, n, "w"), 2, 4);
    n = gguf_put(out, gguf_put(out, n, elements, 8), 1, 8);
    n = gguf_put(out, gguf_put(out, n, types[index], 4), 0, 8);
    n = (n + 31) / 32 * 32;
    for (uint32_t i = 0; i < bytes; i++) out[n + i] = (uint8_t)(i * 37);
    return n + bytes;
}
