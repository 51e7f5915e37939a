/* Where a graph would run, and why, before anything runs: a transformer of 12 layers on an invented cluster.
 * Prints the words and writes the picture to explain.svg.
 *   ./examples/explain                        one GPU behind a link of 1 Gbit/s, and a CPU
 *   ./examples/explain --gpus 2 --decode --policy throughput */
#include "common.h"

enum { LAYERS = 12, HEADS = 12, DIM = 768, VOCAB = 50257, ROOM = 1024 };

static const float *zeros;
static const int32_t ids[512];
static gn_tensor weight(gn_ctx *g, int64_t rows, int64_t columns) {
    return gn_weight(g, GN_F32, columns ? GN_SHAPE(rows, columns) : GN_SHAPE(rows), zeros, "w");
}

static gn_tensor heads(gn_tensor qkv, int which, int64_t t) { /* (t, 3 DIM) to (1, HEADS, t, DIM / HEADS) */
    gn_tensor part = gn_slice(qkv, 1, which * DIM, (which + 1) * DIM, 1);
    return gn_transpose(gn_reshape(part, GN_SHAPE(1, t, HEADS, DIM / HEADS)), 1, 2);
}

static gn_tensor layer(gn_ctx *g, gn_tensor x, gn_tensor pos, gn_tensor length, int64_t t) {
    gn_tensor h = gn_layernorm(x, weight(g, DIM, 0), weight(g, DIM, 0), 1e-5);
    gn_tensor qkv = gn_linear(h, weight(g, DIM, 3 * DIM), weight(g, 3 * DIM, 0));
    gn_shape room = GN_SHAPE(1, HEADS, ROOM, DIM / HEADS);
    gn_tensor k = gn_kv_append(gn_state(g, GN_F32, room, NULL, "keys"), heads(qkv, 1, t), pos);
    gn_tensor v = gn_kv_append(gn_state(g, GN_F32, room, NULL, "values"), heads(qkv, 2, t), pos);
    gn_attention_desc desc = { .causal = true, .length = length };
    gn_tensor a = gn_reshape(gn_transpose(gn_attention(heads(qkv, 0, t), k, v, &desc), 1, 2), GN_SHAPE(t, DIM));
    x = gn_add(x, gn_linear(a, weight(g, DIM, DIM), weight(g, DIM, 0)));
    h = gn_layernorm(x, weight(g, DIM, 0), weight(g, DIM, 0), 1e-5);
    h = gn_gelu(gn_linear(h, weight(g, DIM, 4 * DIM), weight(g, 4 * DIM, 0)));
    return gn_add(x, gn_linear(h, weight(g, 4 * DIM, DIM), weight(g, DIM, 0)));
}

static gn_tensor next_token(gn_ctx *g, int64_t t) {
    gn_tensor table = gn_weight(g, GN_F32, GN_SHAPE(VOCAB, DIM), zeros, "table"), pos = gn_scalar(g, GN_I64, 0);
    gn_tensor x = gn_embedding(table, gn_data(g, GN_I32, GN_SHAPE(t), ids)), length = gn_add_c(pos, (double)t);
    for (int i = 0; i < LAYERS; i++) x = layer(g, x, pos, length, t);
    x = gn_layernorm(gn_slice(x, 0, t - 1, t, 1), weight(g, DIM, 0), weight(g, DIM, 0), 1e-5);
    return gn_argmax(gn_matmul(x, gn_transpose(table, 0, 1)), GN_AXES(-1), false);
}

/* cpu:0 here, GPUs behind a link of 1 Gbit/s and 0.2 ms, 25 GB/s between them. Index n is the program. */
static gn_cluster invent(int64_t gpus, gn_cluster_device *devices, gn_cluster_link *links) {
    uint32_t n = 1 + (uint32_t)gpus;
    for (uint32_t d = 0; d < n; d++) {
        gn_cluster_device *x = &devices[d];
        *x = (gn_cluster_device){ .bytes_per_s = d ? 3e12 : 4e10, .launch_s = d ? 3e-6 : 1e-6 };
        x->memory = x->memory_free = d ? 80000000000 : 16000000000;
        for (int r = 0; r < GN_RATE__COUNT; r++) x->flops_per_s[r] = d ? 5e13 : 2e11;
        snprintf(x->name, sizeof x->name, d ? "gpuhost/cuda:%u" : "cpu:%u", d ? d - 1 : 0);
        for (uint32_t e = 0; e <= n; e++) {
            bool near = (d == 0 || e == 0) ? d == 0 && (e == 0 || e == n) : e < n;
            double seconds = near ? (d ? 1e-5 : 0) : 2e-4, rate = near ? (d ? 2.5e10 : 0) : 1.25e8;
            links[d * (n + 1) + e] = (gn_cluster_link){ seconds, rate };
            if (e == n) links[e * (n + 1) + d] = links[d * (n + 1) + e];
        }
    }
    return (gn_cluster){ n, devices, links };
}

int main(int argc, char **argv) {
    static const char *const policies[GN_POLICY__COUNT] = { "latency", "throughput", "bytes" };
    int64_t gpus = 1, chosen = 0;
    bool decode = false;
    const char *policy = policies[0], *file = "explain.svg";
    const ex_option options[] = {
        { "gpus", EX_INT, &gpus, "N", "GPUs of the invented cluster, which also has a CPU", 0, 8 },
        { "policy", EX_TEXT, &policy, "WHICH", "latency, throughput or bytes", 0, 0 },
        { "decode", EX_FLAG, &decode, NULL, "decode one token instead of a prompt of 512", 0, 0 },
        { "svg", EX_TEXT, &file, "FILE", "write the picture there (explain.svg)", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    static gn_cluster_device devices[9];
    static gn_cluster_link links[100];
    ex_parse(argc, argv, "explain shows where a transformer would run on an invented cluster, and why.", options);
    while (chosen < GN_POLICY__COUNT && strcmp(policies[chosen], policy) != 0) chosen++;
    if (chosen == GN_POLICY__COUNT) ex_usage(argv[0], "--policy takes latency, throughput or bytes, not %s", policy);
    zeros = calloc((size_t)VOCAB * DIM, sizeof *zeros);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_cluster cluster = invent(gpus, devices, links);
    gn_explain_desc desc = { .cluster = &cluster, .policy = (gn_policy)chosen };
    gn_tensor y = next_token(g, decode ? 1 : 512);
    FILE *svg = zeros && ex_explain(y, &desc, stdout) ? fopen(file, "w") : (errno = 0, NULL);
    if (!svg && errno) perror(file);
    desc.format = GN_EXPLAIN_SVG;
    bool ok = svg && ex_explain(y, &desc, svg) && fclose(svg) == 0;
    gn_close(g);
    free((void *)(uintptr_t)zeros);
    return ok ? EX_OK : EX_FAILED;
}
