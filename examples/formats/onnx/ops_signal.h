/* ops_signal.h - a part of onnx.h: resizing, sampling at points of a grid, Fourier transforms and windows. */
#ifndef ONNX_OPS_SIGNAL_H
#define ONNX_OPS_SIGNAL_H

/* ---- resize ---- */

typedef struct ox_resize {
    onnx__call *c;
    int64_t in, out;
    double scale, begin, end; /* begin and end: of the region of interest */
} ox_resize;

/* Where elements of the result lie in the input. */
static gn_interpolate_map ox_resize_map(const ox_resize *r) {
    onnx__call *c = r->c;
    const char *name = "coordinate_transformation_mode", *usual = "half_pixel";
    double in = (double)r->in, out = (double)r->out, exact = r->scale * in, shift = 0;
    gn_interpolate_map none = { 0, 0, 1, 0 };
    if (c->version < 11 || ox_text_is(c, name, "asymmetric", usual)) return (gn_interpolate_map){ 0, 1, r->scale, 0 };
    if (ox_text_is(c, name, "align_corners", usual))
        return exact == 1 ? none : (gn_interpolate_map){ 0, in - 1, exact - 1, 0 };
    if (ox_text_is(c, name, "tf_crop_and_resize", usual)) {
        none.after = (r->begin + r->end) * (in - 1) / 2;
        return out > 1 ? (gn_interpolate_map){ 0, (r->end - r->begin) * (in - 1), out - 1, r->begin * (in - 1) } : none;
    }
    if (c->version < 13 && ox_text_is(c, name, "tf_half_pixel_for_nn", usual))
        return (gn_interpolate_map){ 0.5, 1, r->scale, 0 };
    none.after = -0.5;
    if (ox_text_is(c, name, "pytorch_half_pixel", usual) && exact <= 1) return none;
    if (ox_text_is(c, name, "half_pixel_symmetric", usual)) shift = in / 2 * (1 - out / exact);
    else if (!ox_text_is(c, name, "half_pixel", usual) && !ox_text_is(c, name, "pytorch_half_pixel", usual))
        onnx__no(c, "this coordinate_transformation_mode is not known");
    return (gn_interpolate_map){ 0.5, 1, r->scale, shift - 0.5 };
}

static gn_interpolate_rounding ox_nearest_mode(onnx__call *c) {
    const char *name = "nearest_mode", *usual = "round_prefer_floor";
    if (c->version < 11 || ox_text_is(c, name, "floor", usual)) return GN_INTERPOLATE_FLOOR;
    if (ox_text_is(c, name, "ceil", usual)) return GN_INTERPOLATE_CEIL;
    return ox_text_is(c, name, "round_prefer_ceil", usual) ? GN_INTERPOLATE_HALF_UP : GN_INTERPOLATE_HALF_DOWN;
}

/* `outside` at places that no element of x is around. */
static gn_tensor ox_resize_outside(const ox_resize *r, gn_tensor y, int axis, double outside) {
    onnx__call *c = r->c;
    gn_interpolate_map m = ox_resize_map(r);
    gn_shape line = { ox_rank(y), { 1, 1, 1, 1, 1, 1, 1, 1 } };
    uint8_t *out = onnx__alloc(c->s, (size_t)(r->out + 1));
    line.dims[axis] = r->out;
    for (int64_t i = 0; i < r->out; i++) {
        double at = ((double)i + m.before) * m.times / m.over + m.after;
        out[i] = at < 0 || at > (double)(r->in - 1);
    }
    return gn_where(ox_table(c, GN_BOOL, line, out), gn_like(y, outside), y);
}

/* Scales and sizes of all axes that are resized. */
static bool ox_resize_sizes(onnx__call *c, gn_shape s, const int64_t *axes, int n, ox_resize *r) {
    int m = 0, scales_at = c->version < 11 ? 1 : 2;
    const int64_t *sizes = ox_has(c, 3) ? ox_host_ints(c, 3, &m) : NULL;
    double least = (double)INFINITY, most = 0;
    if (!sizes && !ox_has(c, scales_at) && !ox_has_attribute(c, "scales")) onnx__no(c, "neither scales nor sizes");
    int k;
    const float *old = ox_floats(c, "scales", &k);
    int64_t given = sizes ? m : ox_has(c, scales_at) ? (int64_t)onnx__elements(c->in[scales_at]->shape) : k;
    if (!c->failed && given != n) onnx__no(c, "%" PRId64 " scales or sizes for %d axes", given, n);
    for (int i = 0; i < n && !c->failed; i++) {
        r[i].in = s.dims[ox_axis(c, axes[i], s.rank)];
        if (sizes) r[i].scale = (double)sizes[i] / (double)r[i].in;
        else r[i].scale = ox_has(c, scales_at) ? ox_host_element(c, scales_at, (size_t)i) : (double)old[i];
        if (!(r[i].scale > 0) || r[i].scale * (double)r[i].in > 1e9) onnx__no(c, "a scale of %g", r[i].scale);
        r[i].out = sizes ? sizes[i] : (int64_t)floor(r[i].scale * (double)r[i].in);
        least = fmin(least, r[i].scale);
        most = fmax(most, r[i].scale);
    }
    bool small = ox_text_is(c, "keep_aspect_ratio_policy", "not_larger", "stretch");
    if (!sizes || ox_text_is(c, "keep_aspect_ratio_policy", "stretch", "stretch")) return !c->failed;
    for (int i = 0; i < n && !c->failed; i++) {
        r[i].scale = small ? least : most;
        r[i].out = (int64_t)floor(r[i].scale * (double)r[i].in + 0.5);
    }
    return !c->failed;
}

static void ox_resize_op(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    gn_shape s = onnx__shape(x);
    int n;
    int64_t all[GN_MAX_RANK] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const int64_t *axes = ox_ints(c, "axes", &n);
    ox_resize r[GN_MAX_RANK];
    if (!axes) axes = all, n = s.rank;
    if (n > s.rank) onnx__no(c, "%d axes of a tensor of rank %d", n, s.rank);
    if (c->failed || !ox_resize_sizes(c, s, axes, n, r)) return;
    gn_dtype d = ox_dtype(c, 0);
    gn_interpolate_desc desc = { .places = GN_INTERPOLATE_MAPPED,
                                 .rounding = ox_nearest_mode(c),
                                 .inside = ox_int(c, "exclude_outside", 0) != 0,
                                 .sets_cubic = true,
                                 .cubic = ox_float(c, "cubic_coeff_a", -0.75) };
    desc.kind = ox_text_is(c, "mode", "nearest", "nearest") ? GN_INTERPOLATE_NEAREST
                : ox_text_is(c, "mode", "cubic", "nearest") ? GN_INTERPOLATE_CUBIC
                                                            : GN_INTERPOLATE_LINEAR;
    bool crops = ox_text_is(c, "coordinate_transformation_mode", "tf_crop_and_resize", "half_pixel");
    int which[GN_MAX_RANK + 1] = { 0 }, some = 0;
    for (int axis = 0; axis < s.rank; axis++) /* they ascend */
        for (int i = 0; i < n && !c->failed; i++) {
            if (ox_axis(c, axes[i], s.rank) != axis) continue;
            r[i].c = c;
            r[i].begin = crops ? ox_host_element(c, 1, (size_t)i) : 0;
            r[i].end = crops ? ox_host_element(c, 1, (size_t)(n + i)) : 1;
            if (r[i].out != r[i].in || r[i].scale != 1 || crops) which[some++] = i;
        }
    if (desc.kind != GN_INTERPOLATE_NEAREST) x = ox_cast(x, d == GN_F64 ? d : GN_F32);
    for (int from = 0; from < some && !c->failed; from += 3) {
        gn_axes at = { some - from > 3 ? 3 : some - from, { 0 } };
        gn_shape sizes = { at.n, { 0 } };
        for (int k = 0; k < at.n; k++) {
            const ox_resize *one = &r[which[from + k]];
            at.axis[k] = ox_axis(c, axes[which[from + k]], s.rank);
            sizes.dims[k] = one->out;
            desc.map[k] = ox_resize_map(one);
            desc.stretch[k] = ox_int(c, "antialias", 0) && one->scale < 1 ? 1 / one->scale : 1;
        }
        x = gn_interpolate(x, at, sizes, &desc);
    }
    for (int i = 0; i < some && crops && !c->failed; i++)
        x = ox_resize_outside(&r[which[i]], x, ox_axis(c, axes[which[i]], s.rank),
                              ox_float(c, "extrapolation_value", 0));
    if (!c->failed) ox_out_like(c, 0, ox_is_float(d) ? ox_cast(x, d) : ox_convert(c, x, ONNX_FLOAT, ox_type(c, 0)), 0);
}

/* ---- grids ---- */

static void ox_grid_sample(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), grid = ox_in(c, 1);
    if (c->failed) return;
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? d : GN_F32;
    gn_grid_sample_desc desc = { .nearest = ox_text_is(c, "mode", "nearest", "linear"),
                                 .cubic = ox_text_is(c, "mode", "cubic", "linear") ||
                                          ox_text_is(c, "mode", "bicubic", "linear"),
                                 .padding = ox_text_is(c, "padding_mode", "border", "zeros")       ? GN_GRID_EDGE
                                            : ox_text_is(c, "padding_mode", "reflection", "zeros") ? GN_GRID_REFLECT
                                                                                                   : GN_GRID_ZEROS,
                                 .corners = ox_int(c, "align_corners", 0) != 0 };
    ox_out_like(c, 0, ox_cast(gn_grid_sample(ox_cast(x, wide), ox_cast(grid, wide), &desc), d), 0);
}

static void ox_affine_grid(onnx__call *c) {
    gn_tensor theta = ox_in(c, 0);
    int n;
    const int64_t *size = ox_host_ints(c, 1, &n);
    if (c->failed || n < 4 || n > 5) {
        onnx__no(c, "a size of %d dimensions", n);
        return;
    }
    gn_shape sizes = { n - 2, { 0 } };
    for (int i = 0; i < sizes.rank; i++) sizes.dims[i] = size[i + 2];
    ox_out_like(c, 0, gn_affine_grid(theta, sizes, ox_int(c, "align_corners", 0) != 0), 0);
}

/* ---- Fourier transforms ---- */

/* x (…,L,1 or 2) along its last but one axis: (…,K,2), K = n or n / 2 + 1; or, half and back, (…,n,1). */
static gn_tensor ox_fourier(onnx__call *c, gn_tensor x, int64_t n, bool back, bool half) {
    gn_dtype d = onnx__dtype(x);
    int last = ox_rank(x) - 1;
    bool complex = ox_dim(x, last) == 2;
    if (ox_dim(x, last) > 2 || ox_dim(x, last) < 1 || n < 1) {
        onnx__no(c, "a transform of %" PRId64 " elements of %" PRId64 " parts", n, ox_dim(x, last));
        return x;
    }
    x = ox_cast(x, d == GN_F64 ? d : GN_F32);
    if (half && !back && !complex) return ox_cast(gn_rfft(gn_squeeze(x, GN_AXES(last)), last - 1, n), d);
    if (!complex) {
        gn_shape none = { last + 1, { 0 } }, one = none;
        one.dims[last] = 1;
        x = gn_pad(x, none, one, GN_PAD_CONSTANT, 0);
    }
    if (half && back) return ox_cast(gn_unsqueeze(gn_irfft(x, last - 1, n), last), d);
    gn_tensor y = gn_fft(x, last - 1, n, back);
    return ox_cast(half ? gn_slice(y, last - 1, 0, n / 2 + 1, 1) : y, d);
}

static void ox_dft(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int rank = ox_rank(x);
    bool back = ox_int(c, "inverse", 0) != 0, half = ox_int(c, "onesided", 0) != 0;
    int64_t given = c->version < 20 ? ox_int(c, "axis", 1) : ox_integer(c, 2, -2);
    int axis = ox_axis(c, given, rank);
    if (c->failed || rank < 2 || axis == rank - 1) {
        onnx__no(c, "axis %d of an input of rank %d", axis, rank);
        return;
    }
    int64_t size = ox_dim(x, axis), n = ox_integer(c, 1, half && back ? 2 * (size - 1) : size);
    x = gn_transpose(x, axis, rank - 2);
    gn_tensor y = ox_fourier(c, x, n, back, half);
    if (!c->failed) ox_out_like(c, 0, gn_transpose(y, axis, rank - 2), 0);
}

static void ox_stft(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int64_t step = ox_integer(c, 1, 0), size = ox_has(c, 2) ? (int64_t)onnx__elements(ox_in_shape(c, 2)) : 0;
    int64_t frame = ox_integer(c, 3, size);
    gn_shape s = onnx__shape(x);
    if (c->failed || s.rank < 2 || step < 1 || frame < 1 || frame > s.dims[1]) {
        onnx__no(c, "frames of %" PRId64 " every %" PRId64 " elements", frame, step);
        return;
    }
    if (s.rank == 2) x = gn_unsqueeze(x, 2);
    ox_window w = { .n = 1,
                    .in = { s.dims[1] },
                    .kernel = { frame },
                    .stride = { step },
                    .dilation = { 1 },
                    .out = { (s.dims[1] - frame) / step + 1 } };
    gn_tensor frames = ox_windows_of(c, x, &w, 0, 1); /* (B, frames, frame, 1 or 2) */
    if (ox_has(c, 2)) frames = gn_mul(frames, gn_reshape(ox_in(c, 2), GN_SHAPE(frame, 1)));
    gn_tensor y = ox_fourier(c, frames, frame, false, ox_int(c, "onesided", 1) != 0);
    if (!c->failed) ox_out_like(c, 0, y, 0);
}

static void ox_window_function(onnx__call *c) {
    int64_t n = ox_integer(c, 0, 0), type = ox_int(c, "output_datatype", 1);
    bool hann = onnx__is(c->op_name, "HannWindow"), hamming = onnx__is(c->op_name, "HammingWindow");
    if (n < 0 || n > 1 << 24 || !onnx__is_plain((int)type))
        onnx__no(c, "%" PRId64 " elements of %s", n, onnx_type_name((int)type));
    if (c->failed) return;
    double *w = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *w);
    double period = (double)(ox_int(c, "periodic", 1) ? n : n - 1), a = hann ? 0.5 : hamming ? 25.0 / 46 : 0.42;
    for (int64_t i = 0; i < n; i++) {
        double turn = period > 0 ? 6.283185307179586477 * (double)i / period : 0;
        w[i] = hann || hamming ? a - (1 - a) * cos(turn) : a - 0.5 * cos(turn) + 0.08 * cos(2 * turn);
    }
    ox_out(c, 0, ox_cast(ox_table(c, GN_F64, GN_SHAPE(n), w), onnx_type_dtype((int)type)));
}

static void ox_mel_matrix(onnx__call *c) {
    int64_t bins = ox_integer(c, 0, 0), dft = ox_integer(c, 1, 0), rate = ox_integer(c, 2, 0),
            type = ox_int(c, "output_datatype", 1);
    double low = ox_number(c, 3, 0), high = ox_number(c, 4, 0);
    int64_t spectrum = dft / 2 + 1;
    if (bins < 1 || bins > 65536 || dft < 1 || dft > 1 << 20 || rate < 1 || !(low >= 0 && high > low) ||
        !onnx__is_plain((int)type))
        onnx__no(c, "%" PRId64 " bins of %" PRId64 " elements", bins, dft);
    if (c->failed) return;
    double *w = onnx__alloc(c->s, (size_t)(bins * spectrum + 1) * sizeof *w);
    int64_t *edge = onnx__alloc(c->s, (size_t)(bins + 2) * sizeof *edge);
    double from = 2595 * log10(1 + low / 700), step = (2595 * log10(1 + high / 700) - from) / (double)(bins + 2);
    for (int64_t i = 0; i < bins + 2; i++) {
        double place = (double)(dft + 1) * (700 * (pow(10, ((double)i * step + from) / 2595) - 1)) / (double)rate;
        edge[i] = place > 0 && place < 1e9 ? (int64_t)floor(place) : 0;
    }
    for (int64_t i = 0; i < bins; i++) {
        int64_t a = edge[i], b = edge[i + 1], e = edge[i + 2];
        if (b == a && b < spectrum) w[b * bins + i] = 1;
        for (int64_t j = a; j <= b && b > a && j < spectrum; j++) w[j * bins + i] = (double)(j - a) / (double)(b - a);
        for (int64_t j = b; j < e && j < spectrum; j++) w[j * bins + i] = (double)(e - j) / (double)(e - b);
    }
    ox_out(c, 0, ox_cast(ox_table(c, GN_F64, GN_SHAPE(spectrum, bins), w), onnx_type_dtype((int)type)));
}
#endif
