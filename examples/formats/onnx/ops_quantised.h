/* ops_quantised.h - a part of onnx.h: numbers in ints of few bits with a scale, and products of them. */
#ifndef ONNX_OPS_QUANTISED_H
#define ONNX_OPS_QUANTISED_H

/* A scale or zero point for a tensor of shape s: one number, one along an axis, or one a block. */
static gn_tensor ox_per_axis(onnx__call *c, gn_tensor t, gn_shape s, int64_t axis_attribute, int64_t block) {
    gn_shape have = onnx__shape(t);
    if (onnx__elements(have) == 1) return gn_reshape(t, GN_SCALAR);
    int axis = ox_axis(c, axis_attribute, s.rank);
    if (c->failed) return t;
    if (have.rank == 1) {
        gn_shape line = { s.rank, { 1, 1, 1, 1, 1, 1, 1, 1 } };
        line.dims[axis] = have.dims[0];
        return gn_reshape(t, line);
    }
    if (!block && have.rank == s.rank && have.dims[axis])
        block = (s.dims[axis] + have.dims[axis] - 1) / have.dims[axis];
    if (block < 1 || have.rank != s.rank) {
        onnx__no(c, "scales of rank %d for an input of rank %d", have.rank, s.rank);
        return t;
    }
    return gn_slice(gn_repeat(t, block, axis), axis, 0, s.dims[axis], 1);
}

/* Least and greatest number of a quantised type. False: it is none. */
static bool ox_range_of(onnx_type t, double *low, double *high) {
    uint64_t bits = onnx_type_bits(t);
    bool is_signed = t == ONNX_INT8 || t == ONNX_INT16 || t == ONNX_INT4 || t == ONNX_INT2 || t == ONNX_INT32;
    bool is_unsigned = t == ONNX_UINT8 || t == ONNX_UINT16 || t == ONNX_UINT4 || t == ONNX_UINT2;
    *low = is_signed ? -ldexp(1, (int)bits - 1) : 0;
    *high = is_signed ? ldexp(1, (int)bits - 1) - 1 : ldexp(1, (int)bits) - 1;
    return is_signed || is_unsigned;
}

/* round(x) + zero, saturated to the type. */
static gn_tensor ox_saturate(gn_tensor x, gn_tensor zero, onnx_type type) {
    double low, high;
    ox_range_of(type, &low, &high);
    x = gn_round(x);
    if (zero.ctx) x = gn_add(x, ox_cast(zero, onnx__dtype(x)));
    return gn_cast(gn_clamp(x, low, high), onnx_type_dtype(type));
}

static void ox_quantize(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), scale = ox_in(c, 1), zero = ox_has(c, 2) ? ox_in(c, 2) : GN_NONE;
    gn_shape s = onnx__shape(x);
    int64_t axis = ox_int(c, "axis", 1), block = ox_int(c, "block_size", 0), given = ox_int(c, "output_dtype", 0);
    onnx_type type = ox_has(c, 2) ? ox_type(c, 2) : given ? (onnx_type)given : ONNX_UINT8;
    int64_t precision = ox_int(c, "precision", 0);
    gn_dtype wide = precision ? onnx_type_dtype((int)precision) : onnx__dtype(scale);
    double low, high;
    if (s.rank == 1) axis = 0;
    bool small = onnx__is_float8(type) || type == ONNX_FLOAT4E2M1;
    if (!small && !ox_range_of(type, &low, &high)) onnx__no(c, "results of %s", onnx_type_name(type));
    if (!ox_is_float(wide)) wide = GN_F32;
    if (c->failed) return;
    scale = ox_per_axis(c, ox_cast(scale, wide), s, axis, block);
    gn_tensor y = gn_div(ox_cast(x, wide), scale);
    if (zero.ctx) zero = ox_per_axis(c, zero, s, axis, block);
    if (c->failed) return;
    if (small && zero.ctx) y = gn_add(y, ox_cast(zero, wide));
    ox_out_as(c, 0,
              small ? ox_convert(c, ox_cast(y, GN_F32), ONNX_FLOAT, type) : ox_saturate(ox_cast(y, GN_F32), zero, type),
              type);
}

static void ox_dequantize(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), scale = ox_in(c, 1);
    gn_shape s = onnx__shape(x);
    int64_t axis = ox_int(c, "axis", 1), block = ox_int(c, "block_size", 0), given = ox_int(c, "output_dtype", 0);
    if (s.rank == 1) axis = 0;
    if (c->failed) return;
    gn_dtype d = onnx__dtype(scale);
    bool ints = !ox_is_float(onnx__dtype(x));
    gn_tensor wide = ox_cast(x, ints ? GN_I32 : GN_F32);
    if (ox_has(c, 2)) wide = gn_sub(wide, ox_cast(ox_per_axis(c, ox_in(c, 2), s, axis, block), ints ? GN_I32 : GN_F32));
    gn_tensor y = gn_mul(ox_cast(wide, d == GN_F64 ? d : GN_F32),
                         ox_cast(ox_per_axis(c, scale, s, axis, block), d == GN_F64 ? d : GN_F32));
    onnx_type type = given ? (onnx_type)given : ox_type(c, 1);
    if (!c->failed) ox_out_as(c, 0, ox_cast(y, onnx_type_dtype(type)), type);
}

static void ox_dynamic_quantize(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    gn_tensor most = gn_maximum_c(gn_max(x, GN_ALL_AXES, false), 0),
              least = gn_minimum_c(gn_min(x, GN_ALL_AXES, false), 0);
    gn_tensor scale = gn_div_c(gn_sub(most, least), 255);
    gn_tensor zero = gn_cast(gn_clamp(gn_round(gn_div(gn_neg(least), scale)), 0, 255), GN_U8);
    ox_out(c, 0, ox_saturate(gn_div(x, scale), zero, ONNX_UINT8));
    ox_out(c, 1, scale);
    ox_out(c, 2, zero);
}

/* Zero points, input z; those of a vector belong to rows of the left side. */
static gn_tensor ox_zeros(onnx__call *c, int z, bool left) {
    if (!ox_has(c, z)) return GN_NONE;
    gn_tensor zero = ox_in(c, z);
    return left && ox_rank(zero) == 1 && ox_dim(zero, 0) > 1 ? gn_unsqueeze(zero, 1) : zero;
}

/* The product of the bytes at 0 and b, zero points at az and bz. */
static gn_tensor ox_matmul_ints(onnx__call *c, int b, int az, int bz) {
    gn_tensor left = ox_zeros(c, az, true), right = ox_zeros(c, bz, false);
    return gn_matmul_ints(ox_in(c, 0), ox_in(c, b), left, right);
}

static void ox_matmul_integer(onnx__call *c) { ox_out(c, 0, ox_matmul_ints(c, 1, 2, 3)); }

static gn_tensor ox_scale_of(onnx__call *c, int i, bool column) {
    gn_tensor s = ox_cast(ox_in(c, i), GN_F32);
    return column && ox_rank(s) == 1 && ox_dim(s, 0) > 1 ? gn_unsqueeze(s, 1) : s;
}

static void ox_qlinear_matmul(onnx__call *c) {
    gn_tensor y = gn_cast(ox_matmul_ints(c, 3, 2, 5), GN_F32),
              scale = gn_mul(ox_scale_of(c, 1, true), ox_scale_of(c, 4, false));
    y = gn_mul(y, gn_div(scale, ox_scale_of(c, 6, true)));
    if (!c->failed) ox_out_as(c, 0, ox_saturate(y, ox_in(c, 7), ox_type(c, 7)), ox_type(c, 7));
}

/* The convolution of bytes, input x and kernel at k, zero points at xz and kz. */
static gn_tensor ox_conv_ints(onnx__call *c, int k, int xz, int kz) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, k);
    gn_conv_desc d;
    ox_window w;
    if (c->failed) return x;
    gn_shape ks = onnx__shape(kernel);
    if (ks.rank < 3) onnx__no(c, "a kernel of rank %d", ks.rank);
    if (c->failed || !ox_get_window(c, x, ks.dims + 2, ks.rank - 2, &w)) return x;
    if (!ox_conv_desc(c, x, kernel, &w, false, &d)) return x;
    return gn_conv_ints(x, kernel, ox_zeros(c, xz, false), ox_zeros(c, kz, false), &d);
}

static void ox_conv_integer(onnx__call *c) { ox_out(c, 0, ox_conv_ints(c, 1, 2, 3)); }

static void ox_qlinear_conv(onnx__call *c) {
    gn_tensor y = ox_conv_ints(c, 3, 2, 5);
    if (c->failed) return;
    int rank = ox_rank(y);
    if (ox_has(c, 8)) y = gn_add(y, ox_by_channel(ox_in(c, 8), rank));
    gn_tensor scale = gn_div(gn_mul(ox_in(c, 1), ox_in(c, 4)), ox_in(c, 6));
    if (onnx__elements(onnx__shape(scale)) > 1) scale = ox_by_channel(scale, rank);
    y = gn_mul(gn_cast(y, GN_F32), scale);
    ox_out_as(c, 0, ox_saturate(y, ox_in(c, 7), ox_type(c, 7)), ox_type(c, 7));
}
#endif
