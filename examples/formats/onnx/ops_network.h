/* ops_network.h - a part of onnx.h: products, convolutions, pooling, norms, resizing, losses. */
#ifndef ONNX_OPS_NETWORK_H
#define ONNX_OPS_NETWORK_H

/* ---- products ---- */

static void ox_matmul(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1), y = gn_matmul(a, b);
    if (c->failed) return;
    if (c->g == c->s->g) c->s->counts.flops += 2.0 * (double)onnx__elements(onnx__shape(y)) * (double)ox_dim(a, -1);
    ox_out_like(c, 0, ox_cast(y, ox_dtype(c, 0)), 0);
}

static void ox_gemm(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1);
    double alpha = ox_float(c, "alpha", 1), beta = ox_float(c, "beta", 1);
    bool is_float = ox_is_float(ox_dtype(c, 0));
    if (ox_int(c, "transA", 0)) a = gn_transpose(a, 0, 1);
    if (ox_int(c, "transB", 0)) b = gn_transpose(b, 0, 1);
    gn_tensor y = ox_cast(gn_matmul(a, b), ox_dtype(c, 0));
    if (!is_float && (alpha != 1 || beta != 1)) onnx__no(c, "alpha and beta of ints");
    if (c->failed) return;
    if (alpha != 1) y = gn_mul_c(y, alpha);
    if (ox_has(c, 2)) y = gn_add(y, beta == 1 ? ox_in(c, 2) : gn_mul_c(ox_in(c, 2), beta));
    if (c->g == c->s->g) c->s->counts.flops += 2.0 * (double)onnx__elements(onnx__shape(y)) * (double)ox_dim(a, -1);
    ox_out_like(c, 0, y, 0);
}

static void ox_einsum(onnx__call *c) {
    gn_tensor *in = onnx__alloc(c->s, (size_t)(c->n_in + 1) * sizeof *in);
    onnx_span spec = ox_text(c, "equation");
    char *text = onnx__alloc(c->s, onnx__size(spec) + 1);
    for (int i = 0; i < c->n_in; i++) in[i] = ox_in(c, i);
    if (onnx__size(spec)) memcpy(text, spec.at, onnx__size(spec));
    if (!c->failed) ox_out_like(c, 0, ox_cast(gn_einsum(text, in, c->n_in), ox_dtype(c, 0)), 0);
}

static void ox_det(onnx__call *c) { ox_out_like(c, 0, gn_det(ox_in(c, 0)), 0); }

/* ---- rows ---- */

/* Softmax and its like: along one axis; before version 13 over all axes from `axis` on. */
static void ox_softmax(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), out;
    gn_shape s = onnx__shape(t);
    int axis = ox_axis(c, ox_int(c, "axis", c->version < 13 ? 1 : -1), s.rank);
    if (c->failed) return;
    gn_tensor x = c->version < 13 ? ox_as_matrix(t, axis) : t;
    int along = c->version < 13 ? 1 : axis;
    if (onnx__is(c->op_name, "Softmax")) out = gn_softmax(x, along);
    else if (onnx__is(c->op_name, "LogSoftmax")) out = gn_log_softmax(x, along);
    else {
        gn_shape line = { ox_rank(x), { 0 } };
        for (int i = 0; i < line.rank; i++) line.dims[i] = i == along ? ox_dim(x, along) : 1;
        gn_tensor place = gn_reshape(gn_arange_i64(c->g, GN_I64, ox_dim(x, along), 0, 1), line);
        out = ox_cast(gn_eq(gn_argmax(x, GN_AXES(along), true), place), ox_dtype(c, 0));
    }
    ox_out_like(c, 0, gn_reshape(out, s), 0);
}

/* ---- windows ---- */

typedef struct ox_window {
    int n; /* spatial axes, from axis 2 on */
    int64_t in[6], kernel[6], stride[6], dilation[6], before[6], after[6], out[6];
} ox_window;

static void ox_fill(int64_t *to, const int64_t *from, int given, int n, int64_t otherwise, onnx__call *c,
                    const char *name) {
    if (from && given != n) onnx__no(c, "%s has %d numbers for %d axes", name, given, n);
    for (int i = 0; i < n; i++) to[i] = from && given == n ? from[i] : otherwise;
}

/* Numbers of a window that no product of them overflows. */
static bool ox_window_sane(onnx__call *c, const ox_window *w, int i) {
    enum { MOST = 1 << 20 };
    bool ok = w->kernel[i] > 0 && w->stride[i] > 0 && w->dilation[i] > 0 && w->before[i] >= 0 && w->after[i] >= 0;
    if (!ok || w->kernel[i] > MOST || w->stride[i] > MOST || w->dilation[i] > MOST || w->before[i] > MOST ||
        w->after[i] > MOST)
        onnx__no(c, "kernel, strides and dilations are from 1, pads from 0 to %d", MOST);
    return !c->failed;
}

/* Pads of auto_pad, and the size of the result. Under ceil mode the last window may reach past the pads. */
static void ox_window_axis(onnx__call *c, ox_window *w, int i, bool ceiling) {
    int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1, total;
    bool upper = ox_text_is(c, "auto_pad", "SAME_UPPER", "NOTSET"),
         lower = ox_text_is(c, "auto_pad", "SAME_LOWER", "NOTSET");
    if (upper || lower) {
        w->out[i] = (w->in[i] + w->stride[i] - 1) / w->stride[i];
        total = (w->out[i] - 1) * w->stride[i] + reach - w->in[i];
        if (total < 0) total = 0;
        w->before[i] = lower ? total - total / 2 : total / 2;
        w->after[i] = total - w->before[i];
        return;
    }
    if (ox_text_is(c, "auto_pad", "VALID", "NOTSET")) w->before[i] = w->after[i] = 0;
    int64_t room = w->in[i] + w->before[i] + w->after[i] - reach;
    if (room < 0) {
        onnx__no(c, "a window of %" PRId64 " does not fit an axis of %" PRId64, reach, w->in[i]);
        return;
    }
    w->out[i] = (room + (ceiling ? w->stride[i] - 1 : 0)) / w->stride[i] + 1;
    if (ceiling && (w->out[i] - 1) * w->stride[i] >= w->in[i] + w->before[i])
        w->out[i]--; /* it would begin in the pads */
}

static bool ox_get_window(onnx__call *c, gn_tensor t, const int64_t *kernel, int n_kernel, ox_window *w) {
    gn_shape s = onnx__shape(t);
    int n;
    *w = (ox_window){ .n = s.rank - 2 };
    if (s.rank < 3 || (kernel && n_kernel != w->n))
        onnx__no(c, "an input of rank %d, a kernel of %d axes", s.rank, n_kernel);
    if (c->failed) return false;
    ox_fill(w->kernel, kernel, n_kernel, w->n, 1, c, "kernel_shape");
    const int64_t *strides = ox_ints(c, "strides", &n);
    ox_fill(w->stride, strides, n, w->n, 1, c, "strides");
    const int64_t *dilations = ox_ints(c, "dilations", &n);
    ox_fill(w->dilation, dilations, n, w->n, 1, c, "dilations");
    const int64_t *pads = ox_ints(c, "pads", &n);
    if (pads && n != 2 * w->n) onnx__no(c, "pads have %d numbers for %d axes", n, w->n);
    for (int i = 0; i < w->n && !c->failed; i++) {
        w->in[i] = s.dims[i + 2];
        w->before[i] = pads ? pads[i] : 0;
        w->after[i] = pads ? pads[w->n + i] : 0;
        if (ox_window_sane(c, w, i)) ox_window_axis(c, w, i, ox_int(c, "ceil_mode", 0) != 0);
    }
    return !c->failed;
}

/* Axis `axis` of the padded t as two: places of windows, and elements in one. */
static gn_tensor ox_windows_of(onnx__call *c, gn_tensor t, const ox_window *w, int i, int axis) {
    int64_t n = w->out[i] * w->kernel[i];
    int64_t *index = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *index);
    for (int64_t o = 0; o < w->out[i]; o++)
        for (int64_t k = 0; k < w->kernel[i]; k++) index[o * w->kernel[i] + k] = o * w->stride[i] + k * w->dilation[i];
    gn_shape s = onnx__shape(t), out = { s.rank + 1, { 0 } };
    for (int k = 0; k < out.rank; k++) out.dims[k] = k <= axis ? s.dims[k] : s.dims[k - 1];
    out.dims[axis] = w->out[i];
    out.dims[axis + 1] = w->kernel[i];
    return gn_reshape(gn_index_select(t, axis, ox_indices(c, index, n)), out);
}

/* ---- convolution ---- */

/* How a node convolves x (N,C,…) with a kernel (M,C/group,…) or, transposed, (C,M/group,…), floats. A transposed one's
   result is as large as `w->out` says. False: refused. */
static bool ox_conv_desc(onnx__call *c, gn_tensor x, gn_tensor kernel, const ox_window *w, bool transposed,
                         gn_conv_desc *d) {
    gn_shape s = onnx__shape(x), ks = onnx__shape(kernel);
    int64_t group = ox_int(c, "group", 1), places = 1, taps = 1;
    *d = (gn_conv_desc){ .groups = group, .transposed = transposed };
    bool fits = w->n <= 3 && ks.rank == w->n + 2 && group >= 1 && ks.dims[0] % group == 0 &&
                (transposed ? ks.dims[0] == s.dims[1] : s.dims[1] % group == 0 && ks.dims[1] == s.dims[1] / group);
    if (!fits) {
        onnx__no(c, "%" PRId64 " channels, %" PRId64 " groups, a kernel of %" PRId64 " by %" PRId64 " over %d axes",
                 s.dims[1], group, ks.dims[0], ks.rank > 1 ? ks.dims[1] : 0, w->n);
        return false;
    }
    for (int i = 0; i < w->n; i++) {
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        d->stride[i] = w->stride[i];
        d->dilation[i] = w->dilation[i];
        d->before[i] = w->before[i];
        d->after[i] = transposed ? (w->in[i] - 1) * w->stride[i] + reach - w->before[i] - w->out[i] : w->after[i];
        places *= transposed ? w->in[i] : w->out[i];
        taps *= w->kernel[i];
    }
    if (c->g == c->s->g)
        c->s->counts.flops += 2.0 * (double)(s.dims[0] * ks.dims[0] * places) * (double)(ks.dims[1] * taps);
    return true;
}

/* The convolution that the node is, which nodes after it may join. */
static void ox_out_convolution(onnx__call *c, const ox_window *w, bool transposed) {
    onnx__conv *v = onnx__alloc(c->s, sizeof *v);
    v->x = ox_in(c, 0);
    v->w = ox_in(c, 1);
    v->bias = ox_has(c, 2) ? ox_in(c, 2) : GN_NONE;
    v->kernel = c->in[1];
    v->offset = ox_has(c, 2) ? c->in[2] : NULL;
    if (ox_conv_desc(c, v->x, v->w, w, transposed, &v->desc)) ox_out_conv(c, v);
}

/* b (C) along axis 1 of a tensor of that rank. */
static gn_tensor ox_by_channel(gn_tensor b, int rank) {
    gn_shape s = { rank, { 1, 1, 1, 1, 1, 1, 1, 1 } };
    s.dims[1] = (int64_t)onnx__elements(onnx__shape(b));
    return gn_reshape(b, s);
}

static void ox_conv(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, 1);
    ox_window w;
    int n;
    if (c->failed) return;
    gn_shape ks = onnx__shape(kernel);
    const int64_t *shape = ox_ints(c, "kernel_shape", &n);
    if (ks.rank < 3) onnx__no(c, "a kernel of rank %d", ks.rank);
    for (int i = 0; shape && i < n && !c->failed; i++)
        if (i + 2 >= ks.rank || shape[i] != ks.dims[i + 2]) onnx__no(c, "kernel_shape is not the kernel's");
    if (c->failed || !ox_get_window(c, x, ks.dims + 2, ks.rank - 2, &w)) return;
    ox_out_convolution(c, &w, false);
}

/* Pads of a transposed convolution: given, of output_shape, or of auto_pad. */
static void ox_transposed_pads(onnx__call *c, ox_window *w, const int64_t *extra) {
    int n;
    const int64_t *shape = ox_ints(c, "output_shape", &n);
    bool same = ox_text_is(c, "auto_pad", "SAME_UPPER", "NOTSET") || ox_text_is(c, "auto_pad", "SAME_LOWER", "NOTSET");
    if (shape && n < w->n) onnx__no(c, "output_shape has %d numbers for %d axes", n, w->n);
    for (int i = 0; i < w->n && !c->failed; i++) {
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1,
                full = (w->in[i] - 1) * w->stride[i] + extra[i] + reach;
        int64_t want = shape ? shape[n - w->n + i] : same ? w->in[i] * w->stride[i] : full - w->before[i] - w->after[i];
        if (want < 1 || want > INT32_MAX) onnx__no(c, "a result of size %" PRId64, want);
        w->out[i] = want;
        if (!shape && !same) continue;
        int64_t total = full - want, half = total >= 0 ? total / 2 : -((1 - total) / 2); /* towards the lower */
        bool upper = !ox_text_is(c, "auto_pad", "SAME_LOWER", "NOTSET") && ox_has_attribute(c, "auto_pad") && same;
        w->before[i] = upper ? half : total - half;
        w->after[i] = total - w->before[i];
    }
}

static void ox_deform_conv(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, 1), offset = ox_in(c, 2);
    gn_conv_desc d;
    ox_window w;
    if (c->failed) return;
    gn_shape ks = onnx__shape(kernel), os = onnx__shape(offset);
    int64_t groups = ox_int(c, "offset_group", 1);
    if (ks.rank != 4 || ox_rank(x) != 4 || os.rank != 4)
        onnx__no(c, "a kernel of rank %d: two axes are built", ks.rank);
    else if (os.dims[1] != 2 * groups * ks.dims[2] * ks.dims[3])
        onnx__no(c, "offsets of %" PRId64 " channels for %" PRId64 " groups", os.dims[1], groups);
    if (c->failed || !ox_get_window(c, x, ks.dims + 2, 2, &w)) return;
    if (!ox_conv_desc(c, x, kernel, &w, false, &d)) return;
    ox_out_like(c, 0, gn_deform_conv(x, kernel, offset, ox_in(c, 4), ox_in(c, 3), &d), 0);
}

static void ox_conv_transpose(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, 1);
    int64_t extra[6];
    ox_window w;
    int n, m;
    if (c->failed) return;
    gn_shape ks = onnx__shape(kernel), s = onnx__shape(x);
    if (s.rank < 3 || ks.rank != s.rank) {
        onnx__no(c, "an input of rank %d, a kernel of rank %d", s.rank, ks.rank);
        return;
    }
    w = (ox_window){ .n = s.rank - 2 };
    const int64_t *strides = ox_ints(c, "strides", &n), *pads = ox_ints(c, "pads", &m);
    ox_fill(w.stride, strides, n, w.n, 1, c, "strides");
    const int64_t *dilations = ox_ints(c, "dilations", &n);
    ox_fill(w.dilation, dilations, n, w.n, 1, c, "dilations");
    const int64_t *more = ox_ints(c, "output_padding", &n);
    ox_fill(extra, more, n, w.n, 0, c, "output_padding");
    if (pads && m != 2 * w.n) onnx__no(c, "pads have %d numbers for %d axes", m, w.n);
    for (int i = 0; i < w.n && !c->failed; i++) {
        w.in[i] = s.dims[i + 2];
        w.kernel[i] = ks.dims[i + 2];
        w.before[i] = pads ? pads[i] : 0;
        w.after[i] = pads ? pads[w.n + i] : 0;
        if (extra[i] < 0 || extra[i] > 65536 || llabs(w.before[i]) > 1 << 20 || llabs(w.after[i]) > 1 << 20)
            onnx__no(c, "pads of %" PRId64 " and %" PRId64, w.before[i], w.after[i]);
        if (w.stride[i] < 1 || w.dilation[i] < 1 || w.stride[i] > 65536 || w.dilation[i] > 65536)
            onnx__no(c, "strides and dilations are from 1 to 65536");
    }
    if (!c->failed) ox_transposed_pads(c, &w, extra);
    if (c->failed) return;
    ox_out_convolution(c, &w, true);
}

/* ---- pooling ---- */

/* Windows of t as the node says, of floats. */
static gn_tensor ox_pool_of(onnx__call *c, gn_tensor t, const ox_window *w, gn_pool_kind kind) {
    gn_pool_desc d = { .kind = kind,
                       .ceiling = ox_int(c, "ceil_mode", 0) != 0,
                       .counts_pads = ox_int(c, "count_include_pad", 0) != 0 };
    if (w->n > 3) onnx__no(c, "windows over %d axes", w->n);
    for (int i = 0; i < w->n && i < 3; i++) {
        d.kernel[i] = w->kernel[i];
        d.stride[i] = w->stride[i];
        d.dilation[i] = w->dilation[i];
        d.before[i] = w->before[i];
        d.after[i] = w->after[i];
    }
    return gn_pool(t, &d);
}

/* The input and its windows. */
static bool ox_pool_window(onnx__call *c, ox_window *w) {
    int n;
    const int64_t *kernel = ox_ints(c, "kernel_shape", &n);
    if (!kernel) onnx__no(c, "kernel_shape is missing");
    return !c->failed && ox_get_window(c, ox_in(c, 0), kernel, n, w);
}

static void ox_max_pool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    bool is_float = ox_is_float(ox_dtype(c, 0));
    ox_window w;
    if (!ox_pool_window(c, &w)) return;
    if (!is_float) t = ox_cast(t, GN_F64); /* exact */
    ox_out_like(c, 0, ox_cast(ox_pool_of(c, t, &w, GN_POOL_MAX), ox_dtype(c, 0)), 0);
    if (!ox_wants(c, 1) || c->failed) return;
    gn_shape s = onnx__shape(t);
    gn_tensor at = ox_pool_of(c, t, &w, GN_POOL_INDEX);
    int64_t all = 1;
    for (int i = 0; i < w.n; i++) all *= w.in[i];
    if (ox_int(c, "storage_order", 0)) { /* the last axis slowest */
        gn_tensor rest = at, turned = gn_like_i64(at, 0);
        int64_t stride = all;
        for (int i = w.n - 1; i >= 0; i--) {
            stride /= w.in[i];
            turned = gn_add(turned, gn_mul(gn_remainder(rest, gn_scalar_i64(c->g, GN_I64, w.in[i])),
                                           gn_scalar_i64(c->g, GN_I64, stride)));
            rest = gn_floor_divide(rest, gn_scalar_i64(c->g, GN_I64, w.in[i]));
        }
        at = turned;
    }
    gn_shape planes = { s.rank, { s.dims[0], s.dims[1], 1, 1, 1, 1, 1, 1 } };
    ox_out(c, 1, gn_add(at, gn_reshape(gn_arange_i64(c->g, GN_I64, s.dims[0] * s.dims[1], 0, all), planes)));
}

static void ox_average_pool(onnx__call *c) {
    ox_window w;
    if (ox_pool_window(c, &w)) ox_out_like(c, 0, ox_pool_of(c, ox_in(c, 0), &w, GN_POOL_AVERAGE), 0);
}

static void ox_lp_pool(onnx__call *c) {
    ox_window w;
    double p = (double)ox_int(c, "p", 2);
    if (!ox_pool_window(c, &w)) return;
    ox_out_like(c, 0, gn_pow_c(ox_pool_of(c, gn_pow_c(gn_abs(ox_in(c, 0)), p), &w, GN_POOL_SUM), 1 / p), 0);
}

static void ox_global_pool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    gn_axes axes = { ox_rank(t) - 2, { 2, 3, 4, 5, 6, 7 } };
    double p = (double)ox_int(c, "p", 2);
    if (axes.n < 1) onnx__no(c, "an input of rank %d", ox_rank(t));
    if (c->failed) return;
    if (onnx__is(c->op_name, "GlobalAveragePool")) t = gn_mean(t, axes, true);
    else if (onnx__is(c->op_name, "GlobalMaxPool")) t = gn_max(t, axes, true);
    else t = gn_pow_c(gn_sum(gn_pow_c(gn_abs(t), p), axes, true), 1 / p);
    ox_out_like(c, 0, t, 0);
}

/* Values back to the places that MaxPool gave. */
static void ox_max_unpool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), places = ox_in(c, 1);
    int n, m = 0, k;
    const int64_t *kernel = ox_ints(c, "kernel_shape", &n), *strides = ox_ints(c, "strides", &k),
                  *pads = ox_ints(c, "pads", &m);
    const int64_t *given = ox_has(c, 2) ? ox_host_ints(c, 2, &m) : NULL;
    gn_shape s = onnx__shape(t), out = s;
    if (!c->failed &&
        (!kernel || n != s.rank - 2 || (given && m != s.rank) || (strides && k != n) || (!given && pads && m != 2 * n)))
        onnx__no(c, "kernel_shape, strides, pads or the output's shape do not fit");
    if (c->failed) return;
    int64_t in_plane = 1, out_plane = 1, planes = s.dims[0] * s.dims[1];
    for (int i = 0; i < n; i++) {
        int64_t stride = strides ? strides[i] : 1, more = pads && !given ? pads[i] | pads[n + i] : 0;
        if (kernel[i] < 1 || kernel[i] > 65536 || stride < 1 || stride > 65536 || more < 0 || more > 65536)
            return onnx__no(c, "kernel, strides and pads are at most 65536");
        out.dims[i + 2] =
            (s.dims[i + 2] - 1) * (strides ? strides[i] : 1) + kernel[i] - (pads && !given ? pads[i] + pads[n + i] : 0);
        in_plane *= s.dims[i + 2];
        out_plane *= out.dims[i + 2];
    }
    gn_tensor zero = gn_full(c->g, ox_dtype(c, 0), GN_SHAPE(planes * out_plane), 0);
    gn_tensor flat = gn_scatter(zero, 0, gn_reshape(places, GN_SHAPE(planes * in_plane)),
                                gn_reshape(t, GN_SHAPE(planes * in_plane)));
    gn_tensor y = gn_reshape(flat, out); /* places are of planes of this size, which the given shape may exceed */
    for (int i = 2; given && i < s.rank && !c->failed; i++)
        if (given[i] < out.dims[i] || given[i] > ONNX__EXTENT) onnx__no(c, "a result of size %" PRId64, given[i]);
        else y = ox_pad_axis(c, y, i, 0, given[i] - out.dims[i], GN_NONE);
    if (!c->failed) ox_out_like(c, 0, y, 0);
}

/* Columns of windows added up where they overlap. */
static void ox_col2im(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, m, k;
    const int64_t *image = ox_host_ints(c, 1, &n), *block = ox_host_ints(c, 2, &m);
    int64_t stride[3], dilation[3], pads[6];
    if (c->failed || n != m || n < 1 || n > 3) {
        onnx__no(c, "images of %d axes, blocks of %d", n, m);
        return;
    }
    const int64_t *given = ox_ints(c, "strides", &k);
    ox_fill(stride, given, k, n, 1, c, "strides");
    given = ox_ints(c, "dilations", &k);
    ox_fill(dilation, given, k, n, 1, c, "dilations");
    given = ox_ints(c, "pads", &k);
    ox_fill(pads, given, k, 2 * n, 0, c, "pads");
    double padded = 1; /* a stride may be as large as a small file says */
    for (int i = 0; i < n; i++) padded *= (double)image[i] + (double)pads[i] + (double)pads[n + i];
    if (!(padded <= ONNX__EXTENT)) onnx__no(c, "the image is too large");
    gn_shape size = ox_make_shape(c, image, n), kernel = ox_make_shape(c, block, n),
             pad = ox_make_shape(c, pads, 2 * n);
    if (c->failed) return;
    ox_out_like(c, 0, gn_col2im(t, size, kernel, ox_make_shape(c, stride, n), pad, ox_make_shape(c, dilation, n)), 0);
}

/* ---- norms ---- */

/* A weight that is computed from the model's own once a session. */
static gn_tensor ox_folded(onnx__call *c, const uint8_t *key, gn_tensor local) {
    gn_info info;
    if (gn_describe(local, &info) != GN_OK) return GN_NONE;
    onnx__kept like = { .key = key, .dtype = info.dtype, .shape = info.shape }, *k;
    like.bytes = onnx__elements(info.shape) * onnx__dtype_bytes[info.dtype];
    if (!(k = onnx__keep(c->s, &like, false)) && (like.copy = malloc(like.bytes + 1))) {
        like.host = like.copy;
        bool ok = gn_read(local, like.copy, like.bytes) == GN_OK;
        if (!ok || !(k = onnx__keep(c->s, &like, true))) free(like.copy);
    }
    if (k && !k->weight.ctx) k->weight = gn_weight(c->s->g, k->dtype, k->shape, k->host, NULL);
    return k ? k->weight : GN_NONE;
}

/* A norm of initialisers behind a convolution of initialisers: other weights of that. False: it is none. */
static bool ox_join_norm(onnx__call *c, double eps) {
    const onnx__conv *from = ox_conv_before(c, 0);
    gn_tensor in[5];
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? d : GN_F32;
    if (!from || from->desc.residual.ctx || from->desc.clamps || from->desc.transposed) return false;
    if (!from->kernel || !from->kernel->file || from->kernel->bytes > ONNX__FOLD ||
        (from->offset && !from->offset->file))
        return false;
    for (int i = 1; i < 5; i++) {
        if (!ox_has(c, i) || !c->in[i]->file || ox_dtype(c, i) != d) return false;
        in[i] = ox_cast(onnx__tensor_in(c->s, c->in[i], c->s->fold), wide);
    }
    gn_tensor w = ox_cast(onnx__tensor_in(c->s, from->kernel, c->s->fold), wide);
    gn_tensor bias = from->offset ? ox_cast(onnx__tensor_in(c->s, from->offset, c->s->fold), wide) : gn_like(in[3], 0);
    gn_shape by = { onnx__shape(w).rank, { onnx__shape(w).dims[0], 1, 1, 1, 1, 1, 1, 1 } };
    gn_tensor gain = gn_div(in[1], gn_sqrt(gn_add_c(in[4], eps)));
    onnx__conv *v = onnx__alloc(c->s, sizeof *v);
    *v = *from;
    v->kernel = v->offset = NULL; /* they are the model's no more */
    v->w = ox_folded(c, c->node.at, ox_cast(gn_mul(w, gn_reshape(gain, by)), d));
    v->bias = ox_folded(c, c->node.at + 1, ox_cast(gn_add(gn_mul(gn_sub(bias, in[3]), gain), in[2]), d));
    if (!v->w.ctx || !v->bias.ctx) return false;
    ox_out_conv(c, v);
    c->s->counts.joined++;
    return true;
}

static void ox_batch_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), mean = ox_in(c, 3), var = ox_in(c, 4);
    double eps = ox_float(c, "epsilon", 1e-5), momentum = ox_float(c, "momentum", 0.9);
    int rank = ox_rank(x);
    gn_dtype d = ox_dtype(c, 0);
    if (c->failed || rank < 2) {
        onnx__no(c, "an input of rank %d", rank);
        return;
    }
    if (c->version < 9 && !ox_int(c, "spatial", 1)) onnx__no(c, "spatial 0, a number for each element, is not built");
    for (int i = 1; c->version < 14 && i < c->n_out; i++)
        if (ox_wants(c, i)) onnx__no(c, "output %d is one of training, which is not built before version 14", i);
    if (c->failed) return;
    if (c->version < 14 || !ox_int(c, "training_mode", 0)) {
        if (ox_join_norm(c, eps)) return;
        bool one = ox_dtype(c, 1) == d && ox_dtype(c, 2) == d && ox_dtype(c, 3) == d && ox_dtype(c, 4) == d;
        if (one) {
            ox_out_like(c, 0, gn_batch_norm(x, mean, var, ox_in(c, 1), ox_in(c, 2), eps), 0);
            return;
        }
    } else {
        gn_axes axes = { rank - 1, { 0, 2, 3, 4, 5, 6, 7 } };
        gn_tensor now = gn_mean(x, axes, false), spread = gn_variance(x, axes, 0, false);
        ox_out_as(c, 1, gn_add(gn_mul_c(mean, momentum), gn_mul_c(now, 1 - momentum)), ox_type(c, 3));
        ox_out_as(c, 2, gn_add(gn_mul_c(var, momentum), gn_mul_c(spread, 1 - momentum)), ox_type(c, 4));
        mean = now;
        var = spread;
    }
    gn_tensor gain = gn_div(ox_in(c, 1), gn_sqrt(gn_add_c(var, eps)));
    gn_tensor bias = gn_sub(ox_in(c, 2), gn_mul(mean, gain));
    ox_out_like(c, 0, ox_cast(gn_add(gn_mul(x, ox_by_channel(gain, rank)), ox_by_channel(bias, rank)), d), 0);
}

/* (x - mean) / sqrt(variance + eps) over the last axis of rows, in f32. */
static gn_tensor ox_standardise(gn_tensor rows, double eps) {
    gn_tensor mean = gn_mean(rows, GN_AXES(-1), true);
    return gn_div(gn_sub(rows, mean), gn_sqrt(gn_add_c(gn_variance(rows, GN_AXES(-1), 0, true), eps)));
}

static void ox_instance_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    gn_shape s = onnx__shape(x);
    if (c->failed || s.rank < 3) {
        onnx__no(c, "an input of rank %d", s.rank);
        return;
    }
    ox_out_like(c, 0, gn_instance_norm(x, ox_in(c, 1), ox_in(c, 2), ox_float(c, "epsilon", 1e-5)), 0);
}

static void ox_group_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), gain = ox_in(c, 1), bias = ox_in(c, 2);
    gn_shape s = onnx__shape(x);
    int64_t groups = ox_int(c, "num_groups", 1);
    gn_dtype d = ox_dtype(c, 0);
    if (c->failed || s.rank < 3 || groups < 1 || s.dims[1] % groups) {
        onnx__no(c, "%" PRId64 " groups of an input of rank %d", groups, s.rank);
        return;
    }
    if (c->version < 21) { /* one number a group */
        gain = gn_repeat(gain, s.dims[1] / groups, 0);
        bias = gn_repeat(bias, s.dims[1] / groups, 0);
    }
    gn_tensor rows = gn_reshape(ox_cast(x, d == GN_F64 ? d : GN_F32), GN_SHAPE(s.dims[0], groups, -1));
    gn_tensor y = ox_cast(gn_reshape(ox_standardise(rows, ox_float(c, "epsilon", 1e-5)), s), d);
    ox_out_like(c, 0, gn_add(gn_mul(y, ox_by_channel(gain, s.rank)), ox_by_channel(bias, s.rank)), 0);
}

/* Layer norm and RMS norm over all axes from `axis` on. */
static void ox_layer_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), gain = ox_in(c, 1);
    gn_shape s = onnx__shape(x), front = s;
    bool rms = onnx__is(c->op_name, "RMSNormalization");
    int axis = ox_axis(c, ox_int(c, "axis", -1), s.rank);
    double eps = ox_float(c, "epsilon", 1e-5);
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? d : ox_int(c, "stash_type", 1) == 1 ? GN_F32 : d;
    int64_t inner = 1;
    if (c->failed) return;
    for (int i = axis; i < s.rank; i++) {
        inner *= s.dims[i];
        front.dims[i] = 1;
    }
    gn_tensor rows = gn_reshape(ox_cast(x, wide), GN_SHAPE(-1, inner)), y;
    if ((int64_t)onnx__elements(s) == 0) rows = gn_reshape(ox_cast(x, wide), GN_SHAPE(0, inner));
    bool whole = (int64_t)onnx__elements(onnx__shape(gain)) == inner && d == wide;
    bool direct = whole && (!ox_has(c, 2) || (int64_t)onnx__elements(ox_in_shape(c, 2)) == inner);
    gn_tensor flat = direct ? gn_reshape(gain, GN_SHAPE(inner)) : GN_NONE;
    gn_tensor shift = direct && ox_has(c, 2) ? gn_reshape(ox_in(c, 2), GN_SHAPE(inner)) : GN_NONE;
    y = rms ? gn_rmsnorm(rows, flat, eps) : gn_layernorm(rows, flat, shift, eps);
    y = gn_reshape(ox_cast(y, d), s);
    if (!direct) y = gn_mul(y, gain);
    if (!direct && ox_has(c, 2)) y = gn_add(y, ox_in(c, 2));
    ox_out_like(c, 0, ox_cast(y, d), 0);
    onnx_type stash = wide == GN_F64 ? ONNX_DOUBLE : wide == GN_F32 ? ONNX_FLOAT : ox_type(c, 0);
    if (ox_wants(c, 1)) ox_out_as(c, 1, gn_reshape(gn_mean(rows, GN_AXES(-1), true), front), stash);
    gn_tensor var = gn_variance(rows, GN_AXES(-1), 0, true);
    if (ox_wants(c, 2)) ox_out_as(c, 2, gn_reshape(gn_rsqrt(gn_add_c(var, eps)), front), stash);
}

static void ox_lrn(onnx__call *c) {
    double alpha = ox_float(c, "alpha", 1e-4), beta = ox_float(c, "beta", 0.75), bias = ox_float(c, "bias", 1);
    ox_out_like(c, 0, gn_local_response_norm(ox_in(c, 0), ox_int(c, "size", 1), alpha, beta, bias), 0);
}

static void ox_lp_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int64_t p = ox_int(c, "p", 2);
    int axis = ox_axis(c, ox_int(c, "axis", -1), ox_rank(x));
    if (p != 1 && p != 2) onnx__no(c, "p is %" PRId64 ", 1 or 2 are taken", p);
    if (c->failed) return;
    gn_tensor norm = p == 1 ? gn_l1_norm(x, GN_AXES(axis), true) : gn_l2_norm(x, GN_AXES(axis), true);
    ox_out_like(c, 0, gn_where(gn_eq_c(norm, 0), gn_like(x, 0), gn_div(x, norm)), 0);
}

static void ox_mean_variance(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int n;
    const int64_t *axes = ox_ints(c, "axes", &n);
    static const int64_t usual[] = { 0, 2, 3 };
    if (!axes) axes = usual, n = 3;
    gn_axes over = { n, { 0 } };
    for (int i = 0; i < n && i < GN_MAX_RANK; i++) over.axis[i] = ox_axis(c, axes[i], ox_rank(x));
    if (c->failed) return;
    gn_tensor centred = gn_sub(x, gn_mean(x, over, true));
    ox_out_like(c, 0, gn_div(centred, gn_add_c(gn_std(x, over, 0, true), 1e-9)), 0);
}

static void ox_dropout(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    gn_shape s = onnx__shape(x);
    bool train = c->version >= 12 && ox_has(c, 2) && ox_number(c, 2, 0) != 0;
    double ratio = c->version >= 12 ? ox_number(c, 1, 0.5) : 0;
    if (train && !(ratio >= 0 && ratio < 1)) onnx__no(c, "a ratio of %g", ratio);
    if (c->failed) return;
    gn_tensor mask = gn_full(c->g, GN_BOOL, s, 1);
    if (train && ratio > 0) mask = gn_ge_c(gn_random_uniform(c->g, GN_F32, s), ratio);
    if (train && ratio > 0) x = gn_div_c(gn_mul(x, ox_cast(mask, ox_dtype(c, 0))), 1 - ratio);
    ox_out_like(c, 0, x, 0);
    if (ox_wants(c, 1)) ox_out(c, 1, mask);
}

/* ---- losses ---- */

/* -weight[target] log_p[target] of log_p (N,C,…) and target (N,…). */
static void ox_weigh_loss(onnx__call *c, gn_tensor log_p, gn_tensor target, int weights, int output) {
    gn_shape s = onnx__shape(log_p);
    gn_dtype d = onnx__dtype(log_p);
    bool ignores = ox_has_attribute(c, "ignore_index");
    gn_tensor ids = ox_cast(target, GN_I64), live = GN_NONE, weight = GN_NONE;
    if (ignores) {
        live = gn_ne_c(ids, (double)ox_int(c, "ignore_index", 0));
        ids = gn_where(live, ids, gn_like_i64(ids, 0));
    }
    ids = gn_from_end(ids, s.dims[1]);
    gn_tensor loss = gn_neg(gn_squeeze(gn_gather(log_p, 1, gn_unsqueeze(ids, 1)), GN_AXES(1)));
    if (ox_has(c, weights))
        weight = ox_cast(gn_embedding(gn_reshape(ox_in(c, weights), GN_SHAPE(s.dims[1], 1)), ids), d);
    if (weight.ctx) weight = gn_reshape(weight, onnx__shape(ids));
    if (ignores && weight.ctx) weight = gn_mul(weight, ox_cast(live, d));
    if (ignores && !weight.ctx) weight = ox_cast(live, d);
    if (weight.ctx) loss = ignores ? gn_where(live, gn_mul(loss, weight), gn_like(loss, 0)) : gn_mul(loss, weight);
    if (ox_text_is(c, "reduction", "sum", "mean")) loss = gn_sum(loss, GN_ALL_AXES, false);
    else if (ox_text_is(c, "reduction", "mean", "mean"))
        loss = weight.ctx ? gn_div(gn_sum(loss, GN_ALL_AXES, false), gn_sum(weight, GN_ALL_AXES, false))
                          : gn_mean(loss, GN_ALL_AXES, false);
    ox_out_like(c, output, loss, 0);
}

static void ox_nll_loss(onnx__call *c) {
    gn_tensor log_p = ox_in(c, 0), target = ox_in(c, 1);
    if (!c->failed) ox_weigh_loss(c, log_p, target, 2, 0);
}

static void ox_cross_entropy(onnx__call *c) {
    gn_tensor log_p = gn_log_softmax(ox_in(c, 0), 1), target = ox_in(c, 1);
    if (c->failed) return;
    ox_weigh_loss(c, log_p, target, 2, 0);
    if (ox_wants(c, 1)) ox_out_like(c, 1, log_p, 0);
}
#endif
