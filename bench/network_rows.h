/* bench_gpu: whole networks over pictures, beside PyTorch's of the same sizes: ViT-B/16, and the training of
   ResNet-50. Weights are drawn; the numbers are checked against the CPU executor's. */

/* n numbers of each reading, by `step`, beside PyTorch's in theirs[9]: their number, in samples[]. */
static int network_run(gn_ctx *g, void (*step)(gn_ctx *, void *), void *of, int each, double *theirs) {
    int n = repeats(9);
    for (int i = -3; i < n; i++) {
        double start = 0;
        rest();
        for (int k = -1; k < (i < -1 ? 1 : each); k++) {
            if (k == 0) {
                ok_or_die(g, gn_sync(g), "sync");
                start = ex_now();
            }
            step(g, of);
        }
        ok_or_die(g, gn_sync(g), "sync");
        samples[i < 0 ? 0 : i] = (ex_now() - start) / each;
        theirs[i < 0 ? 0 : i] = torch_time(each);
    }
    return n;
}

static void network_row(const char *name, int count, int n, double *theirs, double error, double bound) {
    row *out = add_row(name, "images/s", NAN, false);
    out->value = count / quantile(samples, n, 0.5);
    out->p95 = count / quantile(samples, n, 0.95);
    out->error = error;
    out->bound = bound;
    snprintf(out->note, sizeof out->note, "bf16, batch %d, %.2f ms", count, 1e3 * quantile(samples, n, 0.5));
    torch_note(out, quantile(samples, n, 0.5), theirs, n);
    print_row(out);
}

/* ---- ViT-B/16 (Dosovitskiy et al. 2021), pictures of 224 x 224 ---- */

enum { VIT_LAYERS = 12, VIT_DIM = 768, VIT_HEADS = 12, VIT_INNER = 3072, VIT_PLACES = 197, VIT_SIDE = 14 };
enum { VIT_LAYER = 12, VIT_OUTER = 8, VIT_WEIGHTS = VIT_LAYERS * VIT_LAYER + VIT_OUTER };
typedef struct vit {
    gn_tensor w[VIT_WEIGHTS], images, logits;
    void *host[VIT_WEIGHTS + 1];
    int count;
} vit;

/* In this order: gain, bias, matrix, bias of the attention, matrix, bias behind it; the same of the perceptron. Last
   patches and their bias, the class, places, gain, bias, head and its bias. */
static gn_shape vit_shape(int i) {
    static const int layer[VIT_LAYER][2] = {
        { VIT_DIM, 0 },         { VIT_DIM, 0 },   { VIT_DIM, 3 * VIT_DIM }, { 3 * VIT_DIM, 0 },
        { VIT_DIM, VIT_DIM },   { VIT_DIM, 0 },   { VIT_DIM, 0 },           { VIT_DIM, 0 },
        { VIT_DIM, VIT_INNER }, { VIT_INNER, 0 }, { VIT_INNER, VIT_DIM },   { VIT_DIM, 0 },
    };
    static const int outer[VIT_OUTER][2] = { { VIT_DIM, VIT_DIM },    { VIT_DIM, 0 }, { VIT_DIM, 0 },
                                             { VIT_PLACES, VIT_DIM }, { VIT_DIM, 0 }, { VIT_DIM, 0 },
                                             { VIT_DIM, 1000 },       { 1000, 0 } };
    const int *d = i < VIT_LAYERS * VIT_LAYER ? layer[i % VIT_LAYER] : outer[i - VIT_LAYERS * VIT_LAYER];
    return d[1] ? GN_SHAPE(d[0], d[1]) : GN_SHAPE(d[0]);
}

static void vit_open(gn_ctx *g, vit *m) {
    for (int i = 0; i < VIT_WEIGHTS; i++) {
        gn_shape shape = vit_shape(i);
        if (!m->host[i])
            m->host[i] = make_random(GN_BF16, count(&shape), shape.rank == 2 ? sqrtf(3.f / (float)shape.dims[0]) : 1);
        m->w[i] = gn_weight(g, GN_BF16, shape, m->host[i], "weights");
    }
    m->images = gn_state(g, GN_BF16, GN_SHAPE(m->count, 3, 224, 224), m->host[VIT_WEIGHTS], "images");
    m->logits = gn_state(g, GN_BF16, GN_SHAPE(m->count, 1000), NULL, "logits");
}

static void vit_close(vit *m) {
    for (int i = 0; i < VIT_WEIGHTS; i++) gn_release(m->w[i]);
    gn_release(m->images);
    gn_release(m->logits);
}

static gn_tensor vit_logits(const vit *m) {
    const gn_tensor *w = m->w, *o = m->w + VIT_LAYERS * VIT_LAYER;
    const int64_t n = m->count, all = n * VIT_PLACES, head = VIT_DIM / VIT_HEADS;
    gn_tensor x = gn_reshape(m->images, GN_SHAPE(n, 3, VIT_SIDE, 16, VIT_SIDE, 16));
    x = gn_reshape(gn_permute(x, GN_AXES(0, 2, 4, 1, 3, 5)), GN_SHAPE(n, VIT_SIDE * VIT_SIDE, VIT_DIM));
    gn_tensor both[] = { gn_broadcast(o[2], GN_SHAPE(n, 1, VIT_DIM)), gn_linear(x, o[0], o[1]) };
    x = gn_reshape(gn_add(gn_concat(both, 2, 1), o[3]), GN_SHAPE(all, VIT_DIM));
    for (int l = 0; l < VIT_LAYERS; l++, w += VIT_LAYER) {
        gn_tensor qkv = gn_linear(gn_layernorm(x, w[0], w[1], 1e-6), w[2], w[3]), part[3];
        for (int i = 0; i < 3; i++) {
            part[i] = gn_slice(qkv, 1, i * VIT_DIM, (i + 1) * VIT_DIM, 1);
            part[i] = gn_transpose(gn_reshape(part[i], GN_SHAPE(n, VIT_PLACES, VIT_HEADS, head)), 1, 2);
        }
        gn_tensor a = gn_transpose(gn_attention(part[0], part[1], part[2], NULL), 1, 2);
        x = gn_add(x, gn_linear(gn_reshape(a, GN_SHAPE(all, VIT_DIM)), w[4], w[5]));
        a = gn_gelu(gn_linear(gn_layernorm(x, w[6], w[7], 1e-6), w[8], w[9]));
        x = gn_add(x, gn_linear(a, w[10], w[11]));
    }
    x = gn_slice(gn_reshape(x, GN_SHAPE(n, VIT_PLACES, VIT_DIM)), 1, 0, 1, 1);
    return gn_linear(gn_layernorm(gn_reshape(x, GN_SHAPE(n, VIT_DIM)), o[4], o[5], 1e-6), o[6], o[7]);
}

static void vit_step(gn_ctx *g, void *of) {
    const vit *m = (const vit *)of;
    gn_assign(m->logits, vit_logits(m));
    ok_or_die(g, gn_step(g), "step");
}

static void bench_vit(gn_ctx *g) {
    static uint16_t logits[32 * 1000], want[1000];
    double theirs[9];
    char line[32];
    vit m = { .count = 32 };
    if (!wanted("vit_b16") || set.quick) return;
    m.host[VIT_WEIGHTS] = make_random(GN_BF16, (size_t)m.count * 3 * 224 * 224, 1);
    vit_open(g, &m);
    snprintf(line, sizeof line, "vit %d", m.count);
    torch_ask(line);
    int n = network_run(g, vit_step, &m, 10, theirs);
    ok_or_die(g, gn_read(m.logits, logits, sizeof logits), "logits");
    gn_step(g);
    vit_close(&m);
    gn_ctx *cpu = open_or_die("cpu", NULL);
    vit one = m;
    one.count = 1;
    vit_open(cpu, &one);
    ok_or_die(cpu, gn_read(vit_logits(&one), want, sizeof want), "logits on the CPU");
    vit_close(&one);
    gn_close(cpu);
    network_row("vit_b16", m.count, n, theirs, network_error(logits, want, 1000), 0.05);
    for (int i = 0; i < VIT_WEIGHTS + 1; i++) free(m.host[i]);
}

/* ---- a step of training of ResNet-50 (He et al. 2015): forward, cross entropy, gradients, SGD ---- */

enum { TRAIN_CONVS = RESNET_CONVS, TRAIN_PARAMS = 3 * TRAIN_CONVS + 1 };
typedef struct trained {
    gn_tensor param[TRAIN_PARAMS], images, targets; /* of a conv filters, gain and bias; last the head */
    void *host[TRAIN_PARAMS], *pictures;
    int64_t *classes;
    int n, made, count;
} trained;

/* Parameter i, whose numbers are drawn when it is first asked for. ones: about as large. */
static gn_tensor trained_param(gn_ctx *g, trained *m, int i, gn_shape shape, float scale, float ones) {
    if (!m->host[i]) {
        uint16_t *x = (uint16_t *)(m->host[i] = make_random(GN_BF16, count(&shape), scale));
        for (size_t k = 0; k < count(&shape); k++) x[k] = gn_f32_to_bf16(gn_bf16_to_f32(x[k]) + ones);
    }
    if (i == m->made) {
        m->made++;
        m->param[i] = gn_state(g, GN_BF16, shape, m->host[i], "parameter");
    }
    return m->param[i];
}

static gn_tensor trained_conv(gn_ctx *g, void *of, gn_tensor x, window_row r, const gn_tensor *residual, bool relu) {
    trained *m = (trained *)of;
    gn_shape shape = GN_SHAPE(r.filters, r.channels, r.kernel, r.kernel), each = GN_SHAPE(r.filters);
    float scale = sqrtf(6.f / (float)(r.channels * r.kernel * r.kernel));
    gn_tensor w = trained_param(g, m, m->n, shape, scale, 0), gain = trained_param(g, m, m->n + 1, each, 0.1f, 1),
              bias = trained_param(g, m, m->n + 2, each, 0.1f, 0);
    r.groups = 1;
    m->n += 3;
    gn_tensor y = gn_batch_norm_train(window_conv(&r, x, w, GN_NONE, NULL, false), gain, bias, 1e-5, NULL, NULL);
    if (residual) y = gn_add(y, *residual);
    return relu ? gn_relu(y) : y;
}

static gn_tensor trained_loss(gn_ctx *g, trained *m) {
    m->n = 0;
    gn_tensor h = resnet_means(g, m, m->images, m->count, trained_conv);
    gn_tensor logits = gn_matmul(h, trained_param(g, m, m->n, GN_SHAPE(2048, 1000), 0.04f, 0));
    return gn_cross_entropy(logits, m->targets);
}

static void trained_open(gn_ctx *g, trained *m) {
    m->made = 0;
    m->images = gn_state(g, GN_BF16, GN_SHAPE(m->count, 3, 224, 224), m->pictures, "images");
    m->targets = gn_state(g, GN_I64, GN_SHAPE(m->count), m->classes, "classes");
}

static void trained_close(trained *m) {
    for (int i = 0; i < m->made; i++) gn_release(m->param[i]);
    gn_release(m->images);
    gn_release(m->targets);
}

static void trained_step(gn_ctx *g, void *of) {
    trained *m = (trained *)of;
    gn_tensor grads[TRAIN_PARAMS], loss = trained_loss(g, m);
    ok_or_die(g, gn_grad(loss, m->param, TRAIN_PARAMS, grads), "gradients");
    gn_sgd_desc sgd = { .lr = gn_scalar(g, GN_BF16, 0x1p-10) };
    ok_or_die(g, gn_sgd(&sgd, m->param, grads, NULL, TRAIN_PARAMS), "the update");
    ok_or_die(g, gn_step(g), "step");
}

/* Of two images on `device`: the gradient of the head (2048, 1000) to out. */
static void trained_gradient(const char *device, const trained *m, uint16_t *out) {
    gn_ctx *g = open_or_die(device, NULL);
    trained two = *m;
    gn_tensor grad;
    two.count = 2;
    trained_open(g, &two);
    gn_tensor loss = trained_loss(g, &two);
    ok_or_die(g, gn_grad(loss, &two.param[TRAIN_PARAMS - 1], 1, &grad), "gradients");
    ok_or_die(g, gn_read(grad, out, (size_t)2 * 2048 * 1000), "a gradient");
    gn_step(g);
    trained_close(&two);
    gn_close(g);
}

static void bench_training(gn_ctx *g) {
    double theirs[9];
    char line[32];
    trained m = { .count = 64 };
    if (!wanted("resnet50_training") || set.quick) return;
    m.pictures = make_random(GN_BF16, (size_t)m.count * 3 * 224 * 224, 1);
    m.classes = (int64_t *)or_die(malloc((size_t)m.count * sizeof *m.classes));
    for (int i = 0; i < m.count; i++) m.classes[i] = i * 7919 % 1000;
    trained_open(g, &m);
    snprintf(line, sizeof line, "resnet_training %d", m.count);
    torch_ask(line);
    int n = network_run(g, trained_step, &m, 5, theirs);
    trained_close(&m);
    uint16_t *got = (uint16_t *)or_die(malloc((size_t)4 * 2048 * 1000)), *want = got + 2048 * 1000;
    trained_gradient(set.device ? set.device : "cuda:0", &m, got);
    trained_gradient("cpu", &m, want);
    network_row("resnet50_training", m.count, n, theirs, network_error(got, want, 2048 * 1000), 0.1);
    free(got);
    for (int i = 0; i < TRAIN_PARAMS; i++) free(m.host[i]);
    free(m.pictures);
    free(m.classes);
}

static void bench_networks(gn_ctx *g) {
    bench_vit(g);
    bench_training(g);
    torch_sum("networks");
}
