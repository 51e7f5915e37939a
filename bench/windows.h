/* Convolutions that rows of the programs share, and ResNet-50 of them. */

/* Of `images` squares of `side` places, a square kernel, padding that keeps the size at stride 1. */
typedef struct window_row {
    const char *name;
    int images, channels, side, filters, kernel, stride, groups;
    double target; /* TFLOP/s, TB/s when each channel has its own filter */
} window_row;

static gn_tensor window_conv(const window_row *r, gn_tensor x, gn_tensor w, gn_tensor bias, const gn_tensor *residual,
                             bool relu) {
    int64_t pad = r->kernel / 2;
    gn_conv_desc d = { .stride = { r->stride, r->stride },
                       .before = { pad, pad },
                       .after = { pad, pad },
                       .groups = r->groups,
                       .clamps = relu,
                       .most = INFINITY };
    if (residual) d.residual = *residual;
    return gn_conv(x, w, bias, &d);
}

static int64_t window_side(const window_row *r) { return (r->side + 2 * (r->kernel / 2) - r->kernel) / r->stride + 1; }

/* ResNet-50 (He et al. 2015) with folded norms and drawn weights. */
enum { RESNET_CONVS = 53 };

/* What its convolutions lead to, means over places (n,2048): `conv` makes each with the next of its parameters. */
typedef gn_tensor (*resnet_conv_fn)(gn_ctx *g, void *of, gn_tensor x, window_row r, const gn_tensor *residual,
                                    bool relu);
static gn_tensor resnet_means(gn_ctx *g, void *of, gn_tensor images, int64_t n, resnet_conv_fn conv) {
    static const int blocks[] = { 3, 4, 6, 3 };
    const gn_pool_desc half = { .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } };
    const window_row first = { .channels = 3, .filters = 64, .kernel = 7, .stride = 2 };
    gn_tensor h = gn_pool(conv(g, of, images, first, NULL, true), &half);
    for (int stage = 0, from = 64; stage < 4; stage++) {
        int thin = 64 << stage, wide = 4 * thin;
        for (int b = 0; b < blocks[stage]; b++, from = wide) {
            int stride = b || !stage ? 1 : 2;
            window_row down = { .channels = from, .filters = thin, .kernel = 1, .stride = 1 },
                       near = { .channels = thin, .filters = thin, .kernel = 3, .stride = stride },
                       up = { .channels = thin, .filters = wide, .kernel = 1, .stride = 1 },
                       past = { .channels = from, .filters = wide, .kernel = 1, .stride = stride };
            gn_tensor x = b ? h : conv(g, of, h, past, NULL, false);
            gn_tensor t = conv(g, of, h, down, NULL, true);
            h = conv(g, of, conv(g, of, t, near, NULL, true), up, &x, true);
        }
    }
    return gn_mean(gn_reshape(h, GN_SHAPE(n, 2048, 49)), GN_AXES(2), false);
}
