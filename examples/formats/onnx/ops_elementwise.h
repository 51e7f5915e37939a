/* ops_elementwise.h - a part of onnx.h: ops of element by element, casts, reductions and running sums. */
#ifndef ONNX_OPS_ELEMENTWISE_H
#define ONNX_OPS_ELEMENTWISE_H

static void ox_unary(onnx__call *c) { ox_out_like(c, 0, c->op->unary(GN_HERE, ox_in(c, 0)), 0); }
static void ox_test(onnx__call *c) { ox_out(c, 0, c->op->unary(GN_HERE, ox_in(c, 0))); }

static void ox_relu(onnx__call *c) {
    if (!ox_join_clamp(c, 0, (double)INFINITY)) ox_out_like(c, 0, gn_relu(ox_in(c, 0)), 0);
}

static void ox_binary(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1);
    if (ox_type(c, 0) != ox_type(c, 1))
        onnx__no(c, "inputs of %s and %s", onnx_type_name(ox_type(c, 0)), onnx_type_name(ox_type(c, 1)));
    ox_out_like(c, 0, c->op->binary(GN_HERE, a, b), 0);
}

static void ox_add(onnx__call *c) {
    if (!ox_join_sum(c)) ox_binary(c);
}

static void ox_compare(onnx__call *c) { ox_out(c, 0, c->op->binary(GN_HERE, ox_in(c, 0), ox_in(c, 1))); }

/* Sum, Max, Min of any number of inputs; Mean divides. */
static void ox_variadic(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    for (int i = 1; i < c->n_in; i++) t = c->op->binary(GN_HERE, t, ox_in(c, i));
    ox_out_like(c, 0, onnx__is(c->op_name, "Mean") ? gn_div_c(t, c->n_in) : t, 0);
}

static void ox_mod(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1);
    if (ox_int(c, "fmod", 0)) {
        ox_out_like(c, 0, gn_fmod(a, b), 0);
        return;
    }
    gn_tensor r = gn_remainder(a, b);
    if (ox_is_float(ox_dtype(c, 0))) r = gn_where(gn_eq_c(r, 0), gn_copysign(r, b), r); /* as NumPy's mod */
    ox_out_like(c, 0, r, 0);
}

static void ox_pow(onnx__call *c) {
    gn_dtype d = ox_dtype(c, 0), e = ox_dtype(c, 1), wide = GN_F64;
    if (ox_is_float(d) && (e == d || (d == GN_F32 && e == GN_F16))) wide = d;
    ox_out_like(c, 0, ox_cast(gn_pow(ox_cast(ox_in(c, 0), wide), ox_cast(ox_in(c, 1), wide)), d), 0);
}

static void ox_shift(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1);
    bool left = ox_text_is(c, "direction", "LEFT", "");
    if (!left && !ox_text_is(c, "direction", "RIGHT", "")) onnx__no(c, "direction is neither LEFT nor RIGHT");
    ox_out_like(c, 0, left ? gn_shift_left(a, b) : gn_shift_right(a, b), 0);
}

static void ox_clip(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    gn_dtype d = ox_dtype(c, 0);
    if (c->version < 11) {
        ox_out_like(c, 0, gn_clamp(t, ox_float(c, "min", (double)-INFINITY), ox_float(c, "max", (double)INFINITY)), 0);
        return;
    }
    bool known = (!ox_has(c, 1) || c->in[1]->constant) && (!ox_has(c, 2) || c->in[2]->constant);
    if (known && ox_conv_before(c, 0) &&
        ox_join_clamp(c, ox_number(c, 1, (double)-INFINITY), ox_number(c, 2, (double)INFINITY)))
        return;
    if (ox_has(c, 1)) t = gn_maximum(t, ox_cast(ox_in(c, 1), d));
    if (ox_has(c, 2)) t = gn_minimum(t, ox_cast(ox_in(c, 2), d));
    ox_out_like(c, 0, t, 0);
}

static void ox_where(onnx__call *c) { ox_out_like(c, 0, gn_where(ox_in(c, 0), ox_in(c, 1), ox_in(c, 2)), 1); }

static void ox_is_inf(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), hit = gn_isinf(t);
    if (!ox_int(c, "detect_negative", 1)) hit = gn_and(hit, gn_gt_c(t, 0));
    if (!ox_int(c, "detect_positive", 1)) hit = gn_and(hit, gn_lt_c(t, 0));
    ox_out(c, 0, hit);
}

/* ---- activations with numbers ---- */

static void ox_activation(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), out = GN_NONE;
    onnx_span op = c->op_name;
    double a = ox_float(c, "alpha", onnx__is(op, "LeakyRelu") ? 0.01 : onnx__is(op, "HardSigmoid") ? 0.2 : 1);
    if (onnx__is(op, "LeakyRelu")) out = gn_leaky_relu(t, a);
    if (onnx__is(op, "Elu")) out = gn_elu(t, a);
    if (onnx__is(op, "Celu")) out = gn_celu(t, a);
    if (onnx__is(op, "ThresholdedRelu")) out = gn_where(gn_gt_c(t, a), t, gn_like(t, 0));
    if (onnx__is(op, "HardSigmoid")) out = gn_clamp(gn_add_c(gn_mul_c(t, a), ox_float(c, "beta", 0.5)), 0, 1);
    if (onnx__is(op, "Swish")) out = gn_mul(t, gn_sigmoid(gn_mul_c(t, a)));
    if (onnx__is(op, "Gelu")) out = ox_text_is(c, "approximate", "tanh", "none") ? gn_gelu_tanh(t) : gn_gelu(t);
    if (onnx__is(op, "Shrink")) {
        double lambda = ox_float(c, "lambd", 0.5), bias = ox_float(c, "bias", 0);
        gn_tensor low = gn_where(gn_lt_c(t, -lambda), gn_add_c(t, bias), gn_like(t, 0));
        out = gn_where(gn_gt_c(t, lambda), gn_sub_c(t, bias), low);
    }
    if (onnx__is(op, "Selu")) {
        double alpha = ox_float(c, "alpha", 1.67326319217681884765625);
        double gamma = ox_float(c, "gamma", 1.05070102214813232421875);
        gn_tensor low = gn_mul_c(gn_expm1(gn_minimum_c(t, 0)), alpha);
        out = gn_mul_c(gn_where(gn_gt_c(t, 0), t, low), gamma);
    }
    ox_out_like(c, 0, out, 0);
}

/* ---- casts ---- */

/* Rounds f32 to a float of 8 or 4 bits, ties to even. Past its greatest number: that one, or NaN or an infinity. */
static gn_tensor ox_round_small(gn_tensor t, onnx_type type, bool saturate) {
    static const struct {
        int mantissa, least; /* bits, exponent of the smallest normal number */
        float largest;
    } formats[] = { [ONNX_FLOAT8E4M3FN] = { 3, -6, 448 },
                    [ONNX_FLOAT8E4M3FNUZ] = { 3, -7, 240 },
                    [ONNX_FLOAT8E5M2] = { 2, -14, 57344 },
                    [ONNX_FLOAT8E5M2FNUZ] = { 2, -15, 57344 },
                    [ONNX_FLOAT4E2M1] = { 1, 0, 6 } };
    double largest = (double)formats[type].largest;
    bool keeps = saturate || type == ONNX_FLOAT4E2M1, fnuz = type == ONNX_FLOAT8E4M3FNUZ || type == ONNX_FLOAT8E5M2FNUZ;
    gn_tensor size = gn_abs(t), least = gn_like(t, ldexp(1, formats[type].least)), past = gn_like(t, largest);
    gn_tensor within = gn_minimum_c(size, 4 * largest), e = gn_floor(gn_log2(gn_maximum(within, least)));
    e = gn_where(gn_gt(gn_exp2(e), gn_maximum(within, least)), gn_sub_c(e, 1), e);
    gn_tensor step = gn_exp2(gn_sub_c(e, formats[type].mantissa)), r = gn_mul(gn_round(gn_div(within, step)), step);
    if (!keeps) {
        past = gn_reciprocal(gn_mul_c(past, 0)); /* an infinity */
        if (type != ONNX_FLOAT8E5M2) past = gn_sub(past, past);
    }
    r = gn_where(gn_gt_c(r, largest), past, r);
    if (type == ONNX_FLOAT4E2M1) /* NaN becomes -0 */
        return gn_where(gn_isnan(t), gn_neg(gn_mul_c(least, 0)), gn_copysign(r, t));
    gn_tensor out = gn_copysign(gn_where(gn_isnan(t), size, r), t);
    return fnuz ? gn_where(gn_eq_c(r, 0), gn_like(t, 0), out) : out;
}

/* A power of 2 (8 bits of exponent); rounded up, down or to the nearest. */
static gn_tensor ox_round_power(onnx__call *c, gn_tensor t, bool saturate) {
    gn_tensor size = gn_abs(t), e = gn_floor(gn_log2(size));
    e = gn_where(gn_gt(gn_exp2(e), size), gn_sub_c(e, 1), e);
    gn_tensor fraction = gn_div(size, gn_exp2(e));
    gn_tensor up = gn_full(t.ctx, GN_BOOL, GN_SCALAR, 0);
    if (ox_text_is(c, "round_mode", "up", "up")) up = gn_gt_c(fraction, 1);
    if (ox_text_is(c, "round_mode", "nearest", "up")) up = gn_ge_c(fraction, 1.5);
    gn_tensor power = gn_add(e, gn_cast(up, GN_F32));
    (void)saturate;
    power = gn_clamp(power, -127, 127);
    return gn_where(gn_isnan(t), size, gn_exp2(power));
}

/* `t` of the held type `from` as the held type `to`. */
static gn_tensor ox_convert(onnx__call *c, gn_tensor t, onnx_type from, onnx_type to) {
    gn_dtype d = onnx_type_dtype(to);
    bool saturate = ox_int(c, "saturate", 1) != 0, small = onnx__is_float8(to) || to == ONNX_FLOAT4E2M1;
    if (d == GN_DTYPE_NONE) {
        onnx__no(c, "a cast to %s", onnx_type_name(to));
        return t;
    }
    if (from == to) return t;
    if (small) {
        t = ox_cast(t, GN_F32);
        return to == ONNX_FLOAT8E8M0 ? ox_round_power(c, t, saturate) : ox_round_small(t, to, saturate);
    }
    uint64_t bits = onnx_type_bits(to);
    if (bits < 8) { /* towards 0, wrapped to the bits */
        gn_tensor wide = ox_is_float(onnx__dtype(t)) ? gn_cast(t, GN_I32) : ox_cast(t, GN_I32);
        int64_t range = INT64_C(1) << bits;
        wide = gn_remainder(wide, gn_like(wide, (double)range));
        if (d == GN_I8) wide = gn_where(gn_ge_c(wide, (double)range / 2), gn_sub_c(wide, (double)range), wide);
        return gn_cast(wide, d);
    }
    bool wraps = d == GN_I8 || d == GN_U8 || d == GN_I16 || d == GN_U16;
    if (wraps && ox_is_float(onnx__dtype(t))) t = gn_cast(t, GN_I64); /* as C's cast by way of a wide int */
    return ox_cast(t, d);
}

static void ox_cast_to(onnx__call *c) {
    int64_t to = onnx__is(c->op_name, "Cast") ? ox_int(c, "to", 0) : (int64_t)ox_type(c, 1);
    if (to <= 0 || !onnx__is_type((int)to)) onnx__no(c, "a cast to no known type");
    else ox_out_as(c, 0, ox_convert(c, ox_in(c, 0), ox_type(c, 0), (onnx_type)to), (onnx_type)to);
}

/* ---- reductions ---- */

/* Axes from an attribute or an input. False: nothing is to be reduced. */
static bool ox_axes(onnx__call *c, int since, int rank, gn_axes *out) {
    int n;
    const int64_t *axes = ox_input_or_ints(c, since, 1, "axes", &n);
    *out = GN_ALL_AXES;
    if ((!axes || !n) && ox_int(c, "noop_with_empty_axes", 0)) return false;
    if (!axes || !n) return true;
    if (n > rank) onnx__no(c, "%d axes of a tensor of rank %d", n, rank);
    if (c->failed) return true;
    out->n = n;
    for (int i = 0; i < n; i++) out->axis[i] = ox_axis(c, axes[i], rank);
    return true;
}

static gn_tensor ox_reduce_by(onnx__call *c, gn_tensor t, gn_axes axes, bool keep) {
    onnx_span op = c->op_name;
    bool is_float = ox_is_float(onnx__dtype(t));
    if (onnx__is(op, "ReduceSum")) return gn_sum(t, axes, keep);
    if (onnx__is(op, "ReduceMean") && is_float) return gn_mean(t, axes, keep);
    if (onnx__is(op, "ReduceProd")) return gn_prod(t, axes, keep);
    if (onnx__is(op, "ReduceMax")) return gn_max(t, axes, keep);
    if (onnx__is(op, "ReduceMin")) return gn_min(t, axes, keep);
    if (onnx__is(op, "ReduceL1")) return gn_l1_norm(t, axes, keep);
    if (onnx__is(op, "ReduceL2") && is_float) return gn_l2_norm(t, axes, keep);
    if (onnx__is(op, "ReduceLogSum") && is_float) return gn_log(gn_sum(t, axes, keep));
    if (onnx__is(op, "ReduceLogSumExp") && is_float) return gn_logsumexp(t, axes, keep);
    if (onnx__is(op, "ReduceSumSquare")) return gn_sum(gn_square(t), axes, keep);
    onnx__no(c, "ints are not reduced like this");
    return t;
}

/* Over nothing: minus and plus infinity for floats, the least and greatest number for ints. */
static bool ox_reduce_nothing(onnx__call *c, gn_tensor t, gn_axes axes, bool keep) {
    bool is_max = onnx__is(c->op_name, "ReduceMax");
    gn_dtype d = onnx__dtype(t);
    gn_shape s = onnx__shape(gn_sum(t, axes, keep));
    static const double least[GN_DTYPE__COUNT] = { [GN_I8] = -128, [GN_I16] = -32768, [GN_I32] = -2147483648.0 };
    static const double most[GN_DTYPE__COUNT] = {
        [GN_I8] = 127,           [GN_I16] = 32767, [GN_I32] = 2147483647.0, [GN_U8] = 255, [GN_U16] = 65535,
        [GN_U32] = 4294967295.0, [GN_BOOL] = 1
    };
    if (onnx__elements(onnx__shape(t)) || !onnx__elements(s)) return false;
    if (!is_max && !onnx__is(c->op_name, "ReduceMin")) return false;
    if (d == GN_I64) ox_out_like(c, 0, gn_full_i64(c->g, d, s, is_max ? INT64_MIN : INT64_MAX), 0);
    else if (d == GN_U64 && !is_max) ox_out_like(c, 0, gn_not(gn_full(c->g, d, s, 0)), 0);
    else if (!ox_is_float(d)) ox_out_like(c, 0, gn_full(c->g, d, s, is_max ? least[d] : most[d]), 0);
    else ox_out_like(c, 0, gn_log(gn_full(c->g, d, s, 0)), 0);
    if (ox_is_float(d) && !is_max && c->out[0]) ox_out_like(c, 0, gn_neg(gn_log(gn_full(c->g, d, s, 0))), 0);
    return true;
}

static void ox_reduce(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    gn_axes axes;
    bool keep = ox_int(c, "keepdims", 1) != 0;
    if (c->failed) return;
    if (!ox_axes(c, onnx__is(c->op_name, "ReduceSum") ? 13 : 18, ox_rank(t), &axes)) axes = GN_NO_AXES;
    if (c->failed || ox_reduce_nothing(c, t, axes, keep)) return;
    ox_out_like(c, 0, ox_cast(ox_reduce_by(c, t, axes, keep), ox_dtype(c, 0)), 0);
}

static void ox_arg(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    bool is_max = onnx__is(c->op_name, "ArgMax"), keep = ox_int(c, "keepdims", 1) != 0;
    int axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(t));
    bool last = ox_int(c, "select_last_index", 0) != 0;
    if (c->failed) return;
    if (last) t = gn_flip(t, GN_AXES(axis));
    gn_tensor at = is_max ? gn_argmax(t, GN_AXES(axis), keep) : gn_argmin(t, GN_AXES(axis), keep);
    ox_out(c, 0, last ? gn_sub(gn_like(at, (double)ox_dim(t, axis) - 1), at) : at);
}

/* CumSum and CumProd: `exclusive` leaves the element itself out, `reverse` goes from the end. */
static void ox_running(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    bool product = onnx__is(c->op_name, "CumProd");
    int axis = ox_axis(c, ox_integer(c, 1, 0), ox_rank(t));
    if (c->failed) return;
    if (ox_int(c, "reverse", 0)) t = gn_flip(t, GN_AXES(axis));
    if (ox_int(c, "exclusive", 0)) {
        gn_shape none = { ox_rank(t), { 0 } }, one = none;
        one.dims[axis] = 1;
        t = gn_slice(gn_pad(t, one, none, GN_PAD_CONSTANT, product), axis, 0, -1, 1);
    }
    t = product ? gn_cumprod(t, axis) : gn_cumsum(t, axis);
    if (ox_int(c, "reverse", 0)) t = gn_flip(t, GN_AXES(axis));
    ox_out_like(c, 0, ox_cast(t, ox_dtype(c, 0)), 0);
}
#endif
