/* ops_attention.h - a part of onnx.h: attention with its caches and masks or with subgraphs that change its scores,
   rotary embedding, linear attention. */
#ifndef ONNX_OPS_ATTENTION_H
#define ONNX_OPS_ATTENTION_H

typedef struct ox_heads {
    gn_tensor q, k, v; /* (B,H,T,D), (B,G,S,D), (B,G,S,E) */
    gn_tensor offset;  /* position of the first query: 0-d, or (B,1,1,1) */
    gn_tensor valid;   /* keys in use, (B,1,1,1); GN_NONE: all */
    int64_t b, h, g, t, s;
    bool flat; /* the inputs had rank 3 */
} ox_heads;

/* (B,T,H*D) as (B,H,T,D); rank 4 stays. */
static gn_tensor ox_to_heads(onnx__call *c, gn_tensor t, int64_t heads) {
    gn_shape s = onnx__shape(t);
    if (s.rank == 4) return t;
    if (s.rank != 3 || heads < 1 || s.dims[2] % heads) {
        onnx__no(c, "%" PRId64 " heads in an input of rank %d", heads, s.rank);
        return t;
    }
    return gn_transpose(gn_reshape(t, GN_SHAPE(s.dims[0], s.dims[1], heads, s.dims[2] / heads)), 1, 2);
}

static gn_tensor ox_from_heads(gn_tensor t) {
    gn_shape s = onnx__shape(t);
    return gn_reshape(gn_transpose(t, 1, 2), GN_SHAPE(s.dims[0], s.dims[2], s.dims[1] * s.dims[3]));
}

static bool ox_get_heads(onnx__call *c, ox_heads *a) {
    a->flat = ox_has(c, 0) && ox_in_shape(c, 0).rank == 3;
    a->q = ox_to_heads(c, ox_in(c, 0), ox_int(c, "q_num_heads", 0));
    a->k = ox_to_heads(c, ox_in(c, 1), ox_int(c, "kv_num_heads", 0));
    a->v = ox_to_heads(c, ox_in(c, 2), ox_int(c, "kv_num_heads", 0));
    if (c->failed) return false;
    a->offset = gn_full_i64(c->g, GN_I64, GN_SCALAR, 0);
    if (ox_has(c, 4) && ox_has(c, 5)) {
        gn_tensor keys[2] = { ox_in(c, 4), a->k }, values[2] = { ox_in(c, 5), a->v };
        a->offset = gn_full_i64(c->g, GN_I64, GN_SCALAR, ox_dim(keys[0], 2));
        a->k = gn_concat(keys, 2, 2);
        a->v = gn_concat(values, 2, 2);
    }
    gn_shape q = onnx__shape(a->q), k = onnx__shape(a->k);
    a->b = q.dims[0], a->h = q.dims[1], a->t = q.dims[2], a->g = k.dims[1], a->s = k.dims[2];
    if (q.rank != 4 || k.rank != 4 || a->g < 1 || a->h % a->g)
        onnx__no(c, "%" PRId64 " heads over %" PRId64, a->h, a->g);
    a->valid = GN_NONE;
    if (ox_has(c, 6)) {
        a->valid = gn_reshape(ox_cast(ox_in(c, 6), GN_I64), GN_SHAPE(a->b, 1, 1, 1));
        a->offset = gn_sub_c(a->valid, (double)a->t);
    }
    return !c->failed;
}

/* Which keys each query may see apart from the mask, bool; GN_NONE: all. */
static gn_tensor ox_visible(onnx__call *c, const ox_heads *a) {
    gn_tensor key = gn_reshape(gn_arange_i64(c->g, GN_I64, a->s, 0, 1), GN_SHAPE(1, 1, 1, a->s));
    gn_tensor query = gn_add(gn_reshape(gn_arange_i64(c->g, GN_I64, a->t, 0, 1), GN_SHAPE(1, 1, a->t, 1)), a->offset);
    gn_tensor seen[4];
    int64_t left = ox_int(c, "left_window_size", -1), right = ox_int(c, "right_window_size", -1);
    int n = 0;
    if (ox_int(c, "is_causal", 0)) seen[n++] = gn_le(key, query);
    if (a->valid.ctx) seen[n++] = gn_lt(key, a->valid);
    if (left >= 0) seen[n++] = gn_ge(key, gn_sub_c(query, (double)left));
    if (right >= 0) seen[n++] = gn_le(key, gn_add_c(query, (double)right));
    for (int i = 1; i < n; i++) seen[0] = gn_and(seen[0], seen[i]);
    return n ? seen[0] : GN_NONE;
}

/* The mask of input 3, which may be shorter than the keys: those behind it are hidden. */
static gn_tensor ox_mask(onnx__call *c, const ox_heads *a, gn_tensor *seen) {
    gn_tensor mask = ox_in(c, 3);
    gn_shape s = onnx__shape(mask);
    int64_t have = s.dims[s.rank - 1];
    bool is_bool = ox_type(c, 3) == ONNX_BOOL;
    if (have < a->s && have != 1) {
        gn_shape none = { s.rank, { 0 } }, more = none;
        more.dims[s.rank - 1] = a->s - have;
        mask = gn_pad(mask, none, more, GN_PAD_CONSTANT, 0);
        gn_tensor key =
            gn_lt_c(gn_reshape(gn_arange_i64(c->g, GN_I64, a->s, 0, 1), GN_SHAPE(1, 1, 1, a->s)), (double)have);
        *seen = seen->ctx ? gn_and(*seen, key) : key;
    }
    if (!is_bool) return mask;
    *seen = seen->ctx ? gn_and(*seen, mask) : mask;
    return GN_NONE;
}

static gn_tensor ox_minus_infinity(gn_tensor like) { return gn_log(gn_mul_c(gn_like(like, 1), 0)); }

static void ox_attention(onnx__call *c) {
    ox_heads a;
    if (!ox_get_heads(c, &a)) return;
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? d : GN_F32;
    int64_t mode = ox_int(c, "qk_matmul_output_mode", 0);
    double cap = ox_float(c, "softcap", 0), scale = ox_float(c, "scale", 0);
    if (!ox_has_attribute(c, "scale")) scale = 1 / sqrt((double)ox_dim(a.q, 3));
    gn_tensor seen = ox_visible(c, &a), bias = ox_has(c, 3) ? ox_mask(c, &a, &seen) : GN_NONE;
    if (c->failed) return;
    gn_tensor k = ox_cast(a.k, wide), v = ox_cast(a.v, wide), q = gn_mul_c(ox_cast(a.q, wide), scale), stages[4];
    if (a.g != a.h) {
        k = gn_repeat(k, a.h / a.g, 1);
        v = gn_repeat(v, a.h / a.g, 1);
    }
    stages[0] = stages[1] = gn_matmul(q, gn_transpose(k, 2, 3));
    if (cap > 0) stages[1] = gn_mul_c(gn_tanh(gn_div_c(stages[0], cap)), cap);
    stages[2] = bias.ctx ? gn_add(stages[1], ox_cast(bias, wide)) : stages[1];
    if (seen.ctx) stages[2] = gn_where(seen, stages[2], ox_minus_infinity(stages[2]));
    gn_tensor empty = gn_eq(gn_max(stages[2], GN_AXES(3), true), ox_minus_infinity(stages[2]));
    stages[3] = gn_where(empty, gn_like(stages[2], 0), gn_softmax(stages[2], 3));
    gn_tensor y = ox_cast(gn_matmul(stages[3], v), d);
    ox_out_like(c, 0, a.flat ? ox_from_heads(y) : y, 0);
    if (ox_wants(c, 1)) ox_out_like(c, 1, a.k, 1);
    if (ox_wants(c, 2)) ox_out_like(c, 2, a.v, 2);
    if (ox_wants(c, 3)) ox_out_like(c, 3, ox_cast(stages[mode < 0 || mode > 3 ? 0 : mode], d), 0);
}

/* The subgraph `name` of the node, which makes a tensor like `t` of it; t itself where there is none. */
static gn_tensor ox_changed(onnx__call *c, const char *name, gn_tensor t) {
    if (c->failed || !ox_has_attribute(c, name)) return t;
    gn_shape s = onnx__shape(t), made;
    onnx__value *in = onnx__tensor_value(c->s, t, c->g == c->s->fold, onnx__type_of(onnx__dtype(t)));
    onnx_span graph = ox_graph(c, name);
    int n = 0;
    onnx__value **out = c->failed ? NULL : onnx__subgraph(c, graph, &in, 1, &n);
    if (!out) return t;
    made = n == 1 && out[0]->kind == ONNX__ONE ? out[0]->shape : GN_SCALAR;
    bool same = made.rank == s.rank && out[0]->type == in->type;
    for (int i = 0; same && i < s.rank; i++) same = made.dims[i] == s.dims[i];
    if (!same) {
        onnx__no(c, "'%s' has %d results, or one of another type or shape than what it is given", name, n);
        return t;
    }
    gn_tensor y = onnx__tensor_in(c->s, out[0], c->g);
    c->failed |= !y.ctx;
    return y.ctx ? y : t;
}

/* Attention whose scores, and then probabilities, go through subgraphs of the node. */
static void ox_flex_attention(onnx__call *c) {
    gn_tensor q = ox_in(c, 0), k = ox_in(c, 1), v = ox_in(c, 2);
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? GN_F64 : GN_F32;
    if (ox_has_attribute(c, "softmax_precision"))
        wide = onnx_type_dtype((int)ox_int(c, "softmax_precision", ONNX_FLOAT));
    if (!c->failed && (!ox_is_float(d) || !ox_is_float(wide))) onnx__no(c, "scores that are no floats");
    for (int i = 0; i < 3 && !c->failed; i++)
        if (ox_in_shape(c, i).rank != 4) onnx__no(c, "input %d has rank %d, not 4", i, ox_in_shape(c, i).rank);
    if (c->failed) return;
    int64_t heads = ox_dim(q, 1), kv = ox_dim(k, 1);
    if (kv < 1 || heads % kv) {
        onnx__no(c, "%" PRId64 " heads over %" PRId64, heads, kv);
        return;
    }
    double scale = ox_float(c, "scale", 0);
    if (!ox_has_attribute(c, "scale")) scale = 1 / sqrt((double)ox_dim(q, 3));
    double root = (double)sqrtf((float)fabs(scale)); /* each of q and k takes the root of it */
    if (heads != kv) {
        k = gn_repeat(k, heads / kv, 1);
        v = gn_repeat(v, heads / kv, 1);
    }
    gn_tensor scores = gn_matmul(gn_mul_c(q, scale < 0 ? -root : root), gn_transpose(gn_mul_c(k, root), 2, 3));
    scores = ox_changed(c, "score_mod", ox_cast(scores, wide));
    gn_tensor shares = ox_changed(c, "prob_mod", gn_softmax(scores, 3));
    ox_out_like(c, 0, ox_cast(gn_matmul(shares, ox_cast(v, wide)), ox_dtype(c, 2)), 2);
}

/* Pairs of elements turned by cosines and sines that are given, by position or for each token. */
static void ox_rotary(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), cosine = ox_in(c, 1), sine = ox_in(c, 2);
    gn_shape in = ox_in_shape(c, 0);
    bool flat = in.rank == 3, interleaved = ox_int(c, "interleaved", 0) != 0;
    if (c->failed) return;
    gn_tensor h = ox_to_heads(c, x, ox_int(c, "num_heads", 0));
    gn_shape s = onnx__shape(h);
    int64_t size = ox_int(c, "rotary_embedding_dim", 0);
    if (!size && !c->failed) size = s.dims[3];
    if (c->failed || size < 2 || size % 2 || size > s.dims[3]) {
        onnx__no(c, "%" PRId64 " turned elements of %" PRId64, size, s.dims[s.rank - 1]);
        return;
    }
    if (ox_has(c, 3)) {
        cosine = gn_embedding(cosine, ox_in(c, 3));
        sine = gn_embedding(sine, ox_in(c, 3));
    }
    cosine = gn_unsqueeze(cosine, 1); /* (B,1,T,size / 2) */
    sine = gn_unsqueeze(sine, 1);
    gn_tensor a, b, parts[3];
    a = interleaved ? gn_slice(h, 3, 0, size, 2) : gn_slice(h, 3, 0, size / 2, 1);
    b = interleaved ? gn_slice(h, 3, 1, size, 2) : gn_slice(h, 3, size / 2, size, 1);
    parts[0] = gn_sub(gn_mul(a, cosine), gn_mul(b, sine));
    parts[1] = gn_add(gn_mul(a, sine), gn_mul(b, cosine));
    if (interleaved) {
        parts[0] = gn_reshape(gn_stack(parts, 2, 4), GN_SHAPE(s.dims[0], s.dims[1], s.dims[2], size));
        parts[1] = gn_slice(h, 3, size, GN_END, 1);
        h = size < s.dims[3] ? gn_concat(parts, 2, 3) : parts[0];
    } else {
        parts[2] = gn_slice(h, 3, size, GN_END, 1);
        h = gn_concat(parts, size < s.dims[3] ? 3 : 2, 3);
    }
    ox_out_like(c, 0, flat ? ox_from_heads(h) : h, 0);
}

/* Token after token: S = exp(g) S + beta k (v - S^T k)^T, o = scale q^T S; which parts there are the rule says. */
static void ox_linear_attention(onnx__call *c) {
    int64_t heads = ox_int(c, "q_num_heads", 0), kv = ox_int(c, "kv_num_heads", 0);
    bool gated =
        !ox_text_is(c, "update_rule", "linear", "gated_delta") && !ox_text_is(c, "update_rule", "delta", "gated_delta");
    bool delta = ox_text_is(c, "update_rule", "delta", "gated_delta") ||
                 ox_text_is(c, "update_rule", "gated_delta", "gated_delta");
    gn_tensor q = ox_to_heads(c, ox_in(c, 0), heads), k = ox_to_heads(c, ox_in(c, 1), kv),
              v = ox_to_heads(c, ox_in(c, 2), kv);
    if (c->failed || kv < 1 || heads % kv || (gated && !ox_has(c, 4)) || (delta && !ox_has(c, 5))) {
        onnx__no(c, "%" PRId64 " heads over %" PRId64 ", or decay or beta is missing", heads, kv);
        return;
    }
    gn_dtype d = ox_dtype(c, 0), wide = d == GN_F64 ? d : GN_F32;
    gn_shape s = onnx__shape(k);
    int64_t b = s.dims[0], t = s.dims[2], dk = s.dims[3], dv = ox_dim(v, 3), each = heads / kv;
    double scale = ox_float(c, "scale", 0);
    if (scale == 0) scale = 1 / sqrt((double)dk);
    q = gn_mul_c(gn_reshape(ox_cast(q, wide), GN_SHAPE(b, kv, each, t, dk)), scale);
    k = ox_cast(k, wide), v = ox_cast(v, wide);
    gn_tensor decay = gated ? gn_exp(ox_cast(ox_to_heads(c, ox_in(c, 4), kv), wide)) : GN_NONE; /* (B,G,T,1 or dk) */
    gn_tensor beta = delta ? gn_transpose(ox_cast(ox_in(c, 5), wide), 1, 2) : GN_NONE;          /* (B,G or 1,T) */
    gn_tensor state = ox_has(c, 3) ? ox_cast(ox_in(c, 3), wide) : gn_full(c->g, wide, GN_SHAPE(b, kv, dk, dv), 0);
    gn_tensor *out = onnx__alloc(c->s, (size_t)(t + 1) * sizeof *out);
    for (int64_t i = 0; i < t && !c->failed; i++) {
        gn_tensor ki = gn_slice(k, 2, i, i + 1, 1), vi = gn_slice(v, 2, i, i + 1, 1); /* (B,G,1,…) */
        gn_tensor column = gn_transpose(ki, 2, 3);
        if (gated) state = gn_mul(state, gn_transpose(gn_slice(decay, 2, i, i + 1, 1), 2, 3));
        if (delta) vi = gn_mul(gn_sub(vi, gn_matmul(ki, state)), gn_unsqueeze(gn_slice(beta, 2, i, i + 1, 1), 3));
        state = gn_add(state, gn_mul(column, vi));
        gn_tensor qi = gn_squeeze(gn_slice(q, 3, i, i + 1, 1), GN_AXES(3)); /* (B,G,each,dk) */
        out[i] = gn_reshape(gn_matmul(qi, state), GN_SHAPE(b, 1, heads * dv));
    }
    ox_out_like(c, 0, ox_cast(ox_join(c, out, (int)t, 1), d), 0);
    if (ox_wants(c, 1))
        ox_out_as(c, 1, ox_cast(state, ox_has(c, 3) ? ox_dtype(c, 3) : d),
                  ox_has(c, 3) ? ox_type(c, 3) : ox_type(c, 0));
}

/* One filter a channel over what came before, whose end is carried to the next call. */
static void ox_causal_conv(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), kernel = ox_in(c, 1);
    if (c->failed) return;
    gn_shape s = onnx__shape(x), ks = onnx__shape(kernel);
    if (s.rank != 3 || ks.rank != 3 || ks.dims[0] != s.dims[1] || ks.dims[2] < 1) {
        onnx__no(c, "an input of rank %d, a kernel of rank %d", s.rank, ks.rank);
        return;
    }
    int64_t past = ks.dims[2] - 1;
    gn_shape before = { 3, { 0, 0, past } }, none = { 3, { 0 } };
    gn_tensor both[2] = { ox_in(c, 3), x };
    gn_tensor whole = ox_has(c, 3) ? gn_concat(both, 2, 2) : gn_pad(x, before, none, GN_PAD_CONSTANT, 0);
    gn_tensor y = gn_conv(whole, kernel, ox_has(c, 2) ? ox_in(c, 2) : GN_NONE, &(gn_conv_desc){ .groups = s.dims[1] });
    if (!ox_text_is(c, "activation", "none", "none")) y = gn_silu(y);
    ox_out_like(c, 0, y, 0);
    if (ox_wants(c, 1)) ox_out_like(c, 1, gn_slice(whole, 2, s.dims[2], GN_END, 1), 0);
}
#endif
