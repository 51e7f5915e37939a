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

/* t with `value` around, so that all windows lie within. */
static gn_tensor ox_pad_window(gn_tensor t, const ox_window *w, double value) {
    gn_shape before = { w->n + 2, { 0 } }, after = before;
    bool any = false;
    for (int i = 0; i < w->n; i++) {
        int64_t end = (w->out[i] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1;
        before.dims[i + 2] = w->before[i];
        after.dims[i + 2] = end > w->before[i] + w->in[i] ? end - w->before[i] - w->in[i] : 0;
        any |= before.dims[i + 2] || after.dims[i + 2];
    }
    return any ? gn_pad(t, before, after, GN_PAD_CONSTANT, value) : t;
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

/* Element k of each window along spatial axis i of the padded t. */
static gn_tensor ox_tap(gn_tensor t, const ox_window *w, int i, int64_t k) {
    int64_t begin = k * w->dilation[i];
    return gn_slice(t, i + 2, begin, begin + (w->out[i] - 1) * w->stride[i] + 1, w->stride[i]);
}

/* All windows of the padded t: (N,C,K…,O…) with K and O as one axis each. At most 3 spatial axes. */
static gn_tensor ox_all_windows(onnx__call *c, gn_tensor t, const ox_window *w) {
    gn_shape s = onnx__shape(t);
    int64_t k = 1, o = 1;
    if (w->n > 3) {
        onnx__no(c, "more than 3 spatial axes");
        return t;
    }
    for (int i = w->n - 1; i >= 0; i--) t = ox_windows_of(c, t, w, i, i + 2);
    gn_axes order = { 2 + 2 * w->n, { 0, 1 } };
    for (int i = 0; i < w->n; i++) {
        order.axis[2 + i] = 3 + 2 * i;
        order.axis[2 + w->n + i] = 2 + 2 * i;
        k *= w->kernel[i];
        o *= w->out[i];
    }
    return gn_reshape(gn_permute(t, order), GN_SHAPE(s.dims[0], s.dims[1], k, o));
}

/* ---- convolution ---- */

/* One filter a channel: the taps one after the other, which become one loop. */
static gn_tensor ox_depthwise(gn_tensor t, gn_tensor kernel, const ox_window *w) {
    gn_shape ks = onnx__shape(kernel), one = { w->n + 2, { 1, ks.dims[0], 1, 1, 1, 1, 1, 1 } };
    int64_t all = 1, channels = ox_dim(t, 1);
    gn_tensor y = GN_NONE;
    if (ks.dims[0] != channels) t = gn_repeat(t, ks.dims[0] / channels, 1);
    for (int i = 0; i < w->n; i++) all *= w->kernel[i];
    gn_tensor flat = gn_reshape(kernel, GN_SHAPE(ks.dims[0], all));
    for (int64_t k = 0; k < all; k++) {
        gn_tensor tap = t;
        int64_t rest = k;
        for (int i = w->n - 1; i >= 0; i--) {
            tap = ox_tap(tap, w, i, rest % w->kernel[i]);
            rest /= w->kernel[i];
        }
        gn_tensor part = gn_mul(tap, gn_reshape(gn_slice(flat, 1, k, k + 1, 1), one));
        y = y.ctx ? gn_add(y, part) : part;
    }
    return y;
}

/* Windows as columns, (N, C*K, O). */
static gn_tensor ox_columns(onnx__call *c, gn_tensor t, const ox_window *w) {
    gn_shape s = onnx__shape(t);
    int64_t k = 1, o = 1;
    bool plain = true;
    for (int i = 0; i < w->n; i++) {
        k *= w->kernel[i];
        o *= w->out[i];
        plain &= w->stride[i] == 1;
    }
    if (k == 1 && plain) return gn_reshape(t, GN_SHAPE(s.dims[0], s.dims[1], o));
    if (w->n == 2)
        return gn_im2col(t, GN_SHAPE(w->kernel[0], w->kernel[1]), GN_SHAPE(w->stride[0], w->stride[1]), GN_SHAPE(0, 0),
                         GN_SHAPE(w->dilation[0], w->dilation[1]));
    return gn_reshape(ox_all_windows(c, t, w), GN_SHAPE(s.dims[0], s.dims[1] * k, o));
}

/* x (N,C,…) that is padded, kernel (M,C/group,…): (N,M,…). */
static gn_tensor ox_convolve(onnx__call *c, gn_tensor x, gn_tensor kernel, const ox_window *w, int64_t group) {
    gn_shape s = onnx__shape(x), ks = onnx__shape(kernel), out = { w->n + 2, { s.dims[0], ks.dims[0] } };
    int64_t k = 1, o = 1, m = ks.dims[0], inner = ks.rank > 1 ? ks.dims[1] : 0;
    if (ks.rank != w->n + 2 || group < 1 || inner * group != s.dims[1] || m % group) {
        onnx__no(c, "%" PRId64 " channels, %" PRId64 " groups, a kernel of %" PRId64 " by %" PRId64 " channels",
                 s.dims[1], group, m, inner);
        return x;
    }
    for (int i = 0; i < w->n; i++) {
        out.dims[i + 2] = w->out[i];
        k *= w->kernel[i];
        o *= w->out[i];
    }
    if (c->g == c->s->g) c->s->counts.flops += 2.0 * (double)s.dims[0] * (double)(m * o) * (double)(inner * k);
    if (inner == 1 && k <= 64) return ox_depthwise(x, kernel, w);
    gn_tensor columns = ox_columns(c, x, w);
    if (group == 1) return gn_reshape(gn_matmul(gn_reshape(kernel, GN_SHAPE(m, inner * k)), columns), out);
    columns = gn_reshape(columns, GN_SHAPE(s.dims[0], group, inner * k, o));
    return gn_reshape(gn_matmul(gn_reshape(kernel, GN_SHAPE(group, m / group, inner * k)), columns), out);
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
    gn_tensor y = ox_convolve(c, ox_pad_window(x, &w, 0), kernel, &w, ox_int(c, "group", 1));
    if (ox_has(c, 2) && !c->failed) y = gn_add(y, ox_by_channel(ox_in(c, 2), w.n + 2));
    ox_out_like(c, 0, y, 0);
}

/* Zeros between the elements of an axis, so that a step takes `stride`. */
static gn_tensor ox_spread(gn_tensor t, int axis, int64_t stride) {
    gn_shape s = onnx__shape(t), wide = { s.rank + 1, { 0 } }, none = wide, after = wide;
    if (stride == 1) return t;
    for (int i = 0; i < wide.rank; i++) wide.dims[i] = i <= axis ? s.dims[i] : i == axis + 1 ? 1 : s.dims[i - 1];
    after.dims[axis + 1] = stride - 1;
    t = gn_pad(gn_reshape(t, wide), none, after, GN_PAD_CONSTANT, 0);
    int64_t n = s.dims[axis];
    s.dims[axis] *= stride;
    return gn_slice(gn_reshape(t, s), axis, 0, (n - 1) * stride + 1, 1);
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

static void ox_conv_transpose(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, 1);
    int64_t group = ox_int(c, "group", 1), extra[6];
    ox_window w;
    int n, m;
    if (c->failed) return;
    gn_shape ks = onnx__shape(kernel), s = onnx__shape(x);
    if (s.rank < 3 || ks.rank != s.rank || group < 1 || ks.dims[0] != s.dims[1] || ks.dims[0] % group) {
        onnx__no(c, "an input of rank %d, a kernel of rank %d, %" PRId64 " groups", s.rank, ks.rank, group);
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
    gn_axes flip = { w.n, { 0 } };
    for (int i = 0; i < w.n; i++) {
        int64_t reach = (w.kernel[i] - 1) * w.dilation[i];
        x = ox_pad_axis(c, ox_spread(x, i + 2, w.stride[i]), i + 2, reach - w.before[i], reach - w.after[i] + extra[i],
                        GN_NONE);
        w.stride[i] = 1;
        flip.axis[i] = i + 2;
    }
    gn_shape split = { ks.rank + 1, { group, ks.dims[0] / group, ks.dims[1] } }, joined = ks;
    for (int i = 0; i < w.n; i++) split.dims[i + 3] = ks.dims[i + 2];
    joined.dims[0] = group * ks.dims[1];
    joined.dims[1] = ks.dims[0] / group;
    kernel = gn_reshape(gn_transpose(gn_reshape(gn_flip(kernel, flip), split), 1, 2), joined);
    gn_tensor y = ox_convolve(c, x, kernel, &w, group);
    if (ox_has(c, 2) && !c->failed) y = gn_add(y, ox_by_channel(ox_in(c, 2), w.n + 2));
    ox_out_like(c, 0, y, 0);
}

/* ---- pooling ---- */

static double ox_least(gn_dtype d) {
    if (d == GN_F16) return -65504;
    return d == GN_I8 ? -128 : d == GN_U8 ? 0 : d == GN_I32 ? -2147483648.0 : -3.38e38;
}

/* Where each window's largest element lies in the whole input, row-major (or with its last axis slowest). */
static void ox_pool_places(onnx__call *c, gn_tensor windows, const ox_window *w, gn_shape s, gn_shape out) {
    int64_t all = 1;
    for (int i = 0; i < w->n; i++) all *= w->in[i];
    int64_t *place = onnx__alloc(c->s, (size_t)(all + 1) * sizeof *place);
    for (int64_t p = 0; p < all; p++) {
        int64_t at = 0, rest = p, stride = all, columns[6] = { 0 };
        for (int i = w->n - 1; i >= 0; i--) columns[i] = rest % w->in[i], rest /= w->in[i];
        for (int i = w->n - 1; i >= 0; i--) stride /= w->in[i], at += columns[i] * stride;
        place[p] = ox_int(c, "storage_order", 0) ? at : p;
    }
    gn_shape plane = { w->n + 2, { 1, 1 } };
    for (int i = 0; i < w->n; i++) plane.dims[i + 2] = w->in[i];
    gn_tensor places = ox_all_windows(c, ox_pad_window(ox_table(c, GN_I64, plane, place), w, 0), w);
    if (c->failed) return;
    gn_shape ws = onnx__shape(windows);
    gn_tensor at = gn_argmax(windows, GN_AXES(2), true);
    gn_tensor where = gn_gather(gn_broadcast(places, ws), 2, at);
    gn_tensor image =
        gn_reshape(gn_arange_i64(c->g, GN_I64, s.dims[0] * s.dims[1], 0, all), GN_SHAPE(s.dims[0], s.dims[1], 1, 1));
    ox_out(c, 1, gn_reshape(gn_add(where, image), out));
}

static void ox_max_pool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    ox_window w;
    int n;
    const int64_t *kernel = ox_ints(c, "kernel_shape", &n);
    if (!kernel) onnx__no(c, "kernel_shape is missing");
    if (c->failed || !ox_get_window(c, t, kernel, n, &w)) return;
    gn_shape s = onnx__shape(t), out = s;
    for (int i = 0; i < w.n; i++) out.dims[i + 2] = w.out[i];
    gn_tensor padded = ox_pad_window(t, &w, ox_least(ox_dtype(c, 0)));
    if (ox_wants(c, 1)) {
        gn_tensor windows = ox_all_windows(c, padded, &w);
        if (!c->failed) ox_pool_places(c, windows, &w, s, out);
    }
    for (int i = 0; i < w.n; i++) {
        gn_tensor most = ox_tap(padded, &w, i, 0);
        for (int64_t k = 1; k < w.kernel[i] && k < 64; k++) most = gn_maximum(most, ox_tap(padded, &w, i, k));
        if (w.kernel[i] > 64) most = gn_max(ox_windows_of(c, padded, &w, i, i + 2), GN_AXES(i + 3), false);
        padded = most;
    }
    ox_out_like(c, 0, padded, 0);
}

/* Sums over windows, axis by axis. */
static gn_tensor ox_sum_windows(onnx__call *c, gn_tensor t, const ox_window *w) {
    for (int i = 0; i < w->n; i++) {
        gn_tensor sum = ox_tap(t, w, i, 0);
        for (int64_t k = 1; k < w->kernel[i] && k < 64; k++) sum = gn_add(sum, ox_tap(t, w, i, k));
        if (w->kernel[i] > 64) sum = gn_sum(ox_windows_of(c, t, w, i, i + 2), GN_AXES(i + 3), false);
        t = sum;
    }
    return t;
}

static void ox_average_pool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    ox_window w;
    int n;
    const int64_t *kernel = ox_ints(c, "kernel_shape", &n);
    bool with_pads = ox_int(c, "count_include_pad", 0) != 0;
    if (!kernel) onnx__no(c, "kernel_shape is missing");
    if (c->failed || !ox_get_window(c, t, kernel, n, &w)) return;
    gn_tensor y = ox_sum_windows(c, ox_pad_window(t, &w, 0), &w);
    for (int i = 0; i < w.n; i++) { /* elements of each window that count, axis by axis */
        float *count = onnx__alloc(c->s, (size_t)(w.out[i] + 1) * sizeof *count);
        int64_t from = with_pads ? 0 : w.before[i], to = w.before[i] + w.in[i] + (with_pads ? w.after[i] : 0);
        gn_shape line = { w.n + 2, { 1, 1, 1, 1, 1, 1, 1, 1 } };
        line.dims[i + 2] = w.out[i];
        for (int64_t o = 0; o < w.out[i]; o++)
            for (int64_t k = 0; k < w.kernel[i]; k++) {
                int64_t at = o * w.stride[i] + k * w.dilation[i];
                count[o] += at >= from && at < to ? 1.0f : 0.0f;
            }
        y = gn_div(y, ox_cast(ox_table(c, GN_F32, line, count), ox_dtype(c, 0)));
    }
    ox_out_like(c, 0, y, 0);
}

static void ox_lp_pool(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    ox_window w;
    int n;
    double p = (double)ox_int(c, "p", 2);
    const int64_t *kernel = ox_ints(c, "kernel_shape", &n);
    if (!kernel) onnx__no(c, "kernel_shape is missing");
    if (c->failed || !ox_get_window(c, t, kernel, n, &w)) return;
    gn_tensor y = ox_sum_windows(c, gn_pow_c(gn_abs(ox_pad_window(t, &w, 0)), p), &w);
    ox_out_like(c, 0, gn_pow_c(y, 1 / p), 0);
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
    for (int i = 2; given && i < s.rank && !c->failed; i++) {
        if (given[i] < out.dims[i] || given[i] > ONNX__EXTENT) onnx__no(c, "a result of size %" PRId64, given[i]);
        else y = ox_pad_axis(c, y, i, 0, given[i] - out.dims[i], GN_NONE);
    }
    if (!c->failed) ox_out_like(c, 0, y, 0);
}

/* Columns of windows added up where they overlap. */
static void ox_col2im(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, m, k;
    const int64_t *image = ox_host_ints(c, 1, &n), *block = ox_host_ints(c, 2, &m);
    ox_window w = { .n = n };
    if (c->failed || n != m || n < 1 || n > 3) {
        onnx__no(c, "images of %d axes, blocks of %d", n, m);
        return;
    }
    const int64_t *given = ox_ints(c, "strides", &k);
    ox_fill(w.stride, given, k, n, 1, c, "strides");
    given = ox_ints(c, "dilations", &k);
    ox_fill(w.dilation, given, k, n, 1, c, "dilations");
    given = ox_ints(c, "pads", &k);
    int64_t padded = 1, o = 1, b = 1;
    for (int i = 0; i < n; i++) {
        w.before[i] = given && k == 2 * n ? given[i] : 0;
        w.after[i] = given && k == 2 * n ? given[n + i] : 0;
        w.in[i] = image[i];
        w.kernel[i] = block[i];
        if (image[i] < 1 || image[i] > 1 << 20) onnx__no(c, "an image of size %" PRId64, image[i]);
        if (!ox_window_sane(c, &w, i)) return;
        ox_window_axis(c, &w, i, false);
        padded *= image[i] + w.before[i] + w.after[i];
        o *= w.out[i];
        b *= block[i];
        if (padded > ONNX__EXTENT || o > ONNX__EXTENT || b > ONNX__EXTENT) onnx__no(c, "the image is too large");
        if (c->failed) return;
    }
    gn_shape s = onnx__shape(t);
    if (c->failed || s.rank != 3 || s.dims[2] != o || b < 1 || s.dims[1] % b) {
        onnx__no(c, "columns do not fit the image");
        return;
    }
    int64_t *index = onnx__alloc(c->s, (size_t)(b * o) * sizeof *index), planes = s.dims[0] * s.dims[1] / b;
    for (int64_t e = 0; e < b * o; e++) {
        int64_t q = e / o, p = e % o, stride = 1;
        for (int i = n - 1; i >= 0; i--) {
            index[e] += ((p % w.out[i]) * w.stride[i] + (q % block[i]) * w.dilation[i]) * stride;
            stride *= image[i] + w.before[i] + w.after[i];
            p /= w.out[i];
            q /= block[i];
        }
    }
    gn_tensor zero = gn_full(c->g, ox_dtype(c, 0), GN_SHAPE(planes, padded), 0);
    gn_tensor at = gn_broadcast(gn_reshape(ox_indices(c, index, b * o), GN_SHAPE(1, b * o)), GN_SHAPE(planes, b * o));
    gn_tensor y = gn_scatter_add(zero, 1, at, gn_reshape(t, GN_SHAPE(planes, b * o)));
    gn_shape whole = { n + 2, { s.dims[0], s.dims[1] / b } };
    for (int i = 0; i < n; i++) whole.dims[i + 2] = image[i] + w.before[i] + w.after[i];
    y = gn_reshape(y, whole);
    for (int i = 0; i < n; i++) y = gn_slice(y, i + 2, w.before[i], w.before[i] + image[i], 1);
    ox_out_like(c, 0, y, 0);
}

/* ---- norms ---- */

static void ox_batch_norm(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), mean = ox_in(c, 3), var = ox_in(c, 4);
    double eps = ox_float(c, "epsilon", 1e-5), momentum = ox_float(c, "momentum", 0.9);
    int rank = ox_rank(x);
    gn_dtype d = ox_dtype(c, 0);
    if (c->failed || rank < 2) {
        onnx__no(c, "an input of rank %d", rank);
        return;
    }
    if (ox_int(c, "training_mode", 0)) {
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
    gn_tensor rows = gn_reshape(x, GN_SHAPE(s.dims[0], s.dims[1], -1));
    gn_tensor y = gn_reshape(ox_standardise(rows, ox_float(c, "epsilon", 1e-5)), s);
    y = gn_add(gn_mul(y, ox_by_channel(ox_in(c, 1), s.rank)), ox_by_channel(ox_in(c, 2), s.rank));
    ox_out_like(c, 0, y, 0);
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
    gn_tensor x = ox_in(c, 0), sum = GN_NONE;
    int64_t size = ox_int(c, "size", 1), channels = ox_dim(x, 1);
    gn_shape before = { ox_rank(x), { 0 } }, after = before;
    if (size < 1 || size > 64) onnx__no(c, "size %" PRId64, size);
    if (c->failed) return;
    before.dims[1] = (size - 1) / 2;
    after.dims[1] = size - 1 - before.dims[1];
    gn_tensor squares = gn_pad(gn_square(x), before, after, GN_PAD_CONSTANT, 0);
    for (int64_t i = 0; i < size; i++) {
        gn_tensor part = gn_slice(squares, 1, i, i + channels, 1);
        sum = sum.ctx ? gn_add(sum, part) : part;
    }
    double alpha = ox_float(c, "alpha", 1e-4), beta = ox_float(c, "beta", 0.75), bias = ox_float(c, "bias", 1);
    gn_tensor base = gn_add_c(gn_mul_c(sum, alpha / (double)size), bias);
    ox_out_like(c, 0, gn_div(x, gn_pow_c(base, beta)), 0);
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
    ids = ox_from_end(ids, s.dims[1]);
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
