/* Any bytes as a model in the ONNX format: refused with a reason, or each tensor lies in the file or beside it, and
 * what can be built on inputs of ones is built, or refused, without more memory than a build may take. */
#include "formats_fuzz.h"
#define ONNX_IMPLEMENTATION
#include "../../examples/formats/onnx.h"

static char onnx_fuzz_folder[64];

static void onnx_fuzz_remove(void) {
    static const char *const files[] = { "/model.onnx", "/weights.bin", "" };
    char path[96];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", onnx_fuzz_folder, files[i]);
        remove(path);
    }
}

static void onnx_fuzz_write(const char *path, const uint8_t *data, size_t size) {
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

/* The model as a file of a folder of its own, where there are 64 bytes of external data. */
static void onnx_fuzz_file(const uint8_t *data, size_t size, char path[96]) {
    uint8_t weights[64];
    if (!onnx_fuzz_folder[0]) {
        strcpy(onnx_fuzz_folder, "/tmp/onnx-fuzz-XXXXXX");
        FUZZ_CHECK(mkdtemp(onnx_fuzz_folder));
        atexit(onnx_fuzz_remove);
        for (size_t i = 0; i < sizeof weights; i++) weights[i] = (uint8_t)(i * 3);
        snprintf(path, 96, "%s/weights.bin", onnx_fuzz_folder);
        onnx_fuzz_write(path, weights, sizeof weights);
    }
    snprintf(path, 96, "%s/model.onnx", onnx_fuzz_folder);
    onnx_fuzz_write(path, data, size);
}

/* Reads every initialiser of the graph, where it lies beside the model too. */
static void onnx_fuzz_tensors(onnx *m) {
    char error[ONNX_ERROR] = "";
    onnx__walk w = { .model = m, .begin = m->map.data, .path = m->path, .error = error };
    onnx_field f;
    onnx_tensor t;
    for (onnx_span s = m->graph; onnx_find(&s, 5, &f);) {
        FUZZ_CHECK(onnx_parse_tensor(f.bytes, &t, error) || error[0]);
        FUZZ_CHECK(onnx__describe_tensor(&w, f.bytes, &t)); /* it was checked when the model was opened */
        if (t.bytes > 1 << 20 || !onnx_type_dtype(t.type)) continue;
        void *out = malloc(t.bytes + 1);
        FUZZ_CHECK(out && (onnx_decode(&t, out, error) || error[0]));
        free(out);
    }
}

static void onnx_fuzz_build(onnx *m, gn_ctx *g) {
    static const double ones[512] = { 1, 1, 1, 1 };
    char error[ONNX_ERROR] = "", name[64];
    onnx_slot slot;
    onnx_session *s = onnx_session_open(m, g, NULL, error);
    FUZZ_CHECK(s || error[0]);
    for (int i = 0; s && i < onnx_inputs(s) && i < 16; i++) {
        onnx_input(s, i, &slot);
        onnx_tensor t = { .type = slot.type, .rank = slot.rank, .elements = 1, .data = ones };
        for (int k = 0; k < t.rank; k++) t.dims[k] = slot.dims[k] < 0 || slot.dims[k] > 8 ? 2 : slot.dims[k];
        for (int k = 0; k < t.rank; k++) t.elements *= (uint64_t)t.dims[k];
        t.bytes = t.elements * onnx_type_bits(t.type) / 8;
        snprintf(name, sizeof name, "%.*s",
                 (int)(slot.name.end - slot.name.at > 63 ? 63 : slot.name.end - slot.name.at),
                 slot.name.at ? (const char *)slot.name.at : "");
        if (t.elements <= 512) onnx_bind(s, name, &t, error);
    }
    if (s && onnx_build(s, error)) onnx_run(s, error);
    onnx_session_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[ONNX_ERROR], path[96];
    onnx_fuzz_file(data, size, path);
    onnx *m = onnx_open(path, error);
    FUZZ_CHECK(m || error[0]);
    if (m) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "null", .max_nodes = 4096 });
        onnx_fuzz_tensors(m);
        onnx_fuzz_build(m, g);
        gn_close(g);
    }
    onnx_close(m);
    return 0;
}

/* A field of a message: its number, and bytes. */
static size_t onnx_fuzz_put(uint8_t *out, int number, const void *bytes, size_t n) {
    out[0] = (uint8_t)(number << 3 | 2);
    out[1] = (uint8_t)n; /* below 128 */
    memcpy(out + 2, bytes, n);
    return n + 2;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    uint8_t node[64], graph[120], tensor[32], slot[64];
    static const char *const ops[] = { "Add", "Reshape", "Softmax", "Loop" };
    size_t n = 0, g = 0, t = 0, s;
    if (index >= 4 || cap < 200) return 0;
    n += onnx_fuzz_put(node + n, 1, "x", 1);
    n += onnx_fuzz_put(node + n, 1, "w", 1);
    n += onnx_fuzz_put(node + n, 2, "y", 1);
    n += onnx_fuzz_put(node + n, 4, ops[index], strlen(ops[index]));
    memcpy(tensor, "\x08\x02\x10", 3); /* dims 2, INT64 for Reshape, else FLOAT */
    tensor[3] = index == 1 ? 7 : 1;
    t = 4 + onnx_fuzz_put(tensor + 4, 8, "w", 1);
    t += onnx_fuzz_put(tensor + t, 9, "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", index == 1 ? 16 : 8);
    s = onnx_fuzz_put(slot, 1, "x", 1);
    s += onnx_fuzz_put(slot + s, 2, "\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02", 10); /* FLOAT (2) */
    g += onnx_fuzz_put(graph + g, 1, node, n);
    g += onnx_fuzz_put(graph + g, 5, tensor, t);
    g += onnx_fuzz_put(graph + g, 11, slot, s);
    g += onnx_fuzz_put(graph + g, 12, "\x0a\x01y", 3);
    memcpy(out, "\x08\x08", 2); /* IR version 8 */
    size_t all = 2 + onnx_fuzz_put(out + 2, 8, "\x10\x11", 2);
    return all + onnx_fuzz_put(out + all, 7, graph, g);
}
