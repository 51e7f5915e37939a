/* ops_movement.h - a part of onnx.h: shapes, slices, gathers and scatters, padding, constants. */
#ifndef ONNX_OPS_MOVEMENT_H
#define ONNX_OPS_MOVEMENT_H

#define ONNX__EXTENT (INT64_C(1) << 40) /* elements along an axis that a node may ask for */

static void ox_identity(onnx__call *c) {
    if (ox_has(c, 0)) c->out[0] = c->in[0];
    else c->out[0] = onnx__new_value(c->s, ONNX__NOTHING);
}

static void ox_reshape(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n;
    const int64_t *dims = ox_input_or_ints(c, 5, 1, "shape", &n);
    if (!dims || c->failed || n > GN_MAX_RANK) {
        onnx__no(c, "a shape of %d dimensions", n);
        return;
    }
    gn_shape in = onnx__shape(t), s = { n, { 0 } };
    int64_t known = 1;
    int open = -1;
    for (int i = 0; i < n; i++) {
        s.dims[i] = dims[i];
        if (dims[i] == 0 && !ox_int(c, "allowzero", 0)) {
            if (i >= in.rank) onnx__no(c, "dimension %d is taken from an input of rank %d", i, in.rank);
            s.dims[i] = i < in.rank ? in.dims[i] : 0;
        }
        if (s.dims[i] < -1 || (s.dims[i] == -1 && open >= 0)) onnx__no(c, "a shape with %" PRId64, s.dims[i]);
        if (s.dims[i] == -1) open = i;
        else if (s.dims[i] < 0 || (known && s.dims[i] > INT64_MAX / known))
            return onnx__no(c, "the shape is too large");
        else known *= s.dims[i];
    }
    int64_t all = (int64_t)onnx__elements(in);
    if (open >= 0 && (!known || all % known)) onnx__no(c, "%" PRId64 " elements do not fit the shape", all);
    else if (open >= 0) s.dims[open] = all / known;
    if (!c->failed) ox_out_like(c, 0, gn_reshape(t, s), 0);
}

static void ox_transpose(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, rank = ox_rank(t);
    const int64_t *order = ox_ints(c, "perm", &n);
    gn_axes axes = { rank, { 0 } };
    if (order && n != rank) onnx__no(c, "perm has %d axes, the input %d", n, rank);
    if (c->failed) return;
    for (int i = 0; i < rank; i++) axes.axis[i] = order ? (int32_t)order[i] : rank - 1 - i;
    ox_out_like(c, 0, rank ? gn_permute(t, axes) : t, 0);
}

/* (…) as a matrix: the axes in front of `axis`, and the others. */
static gn_tensor ox_as_matrix(gn_tensor t, int axis) {
    gn_shape s = onnx__shape(t);
    int64_t rows = 1, columns = 1;
    for (int i = 0; i < s.rank; i++) *(i < axis ? &rows : &columns) *= s.dims[i];
    return gn_reshape(t, GN_SHAPE(rows, columns));
}

static void ox_flatten(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int rank = ox_rank(t);
    int64_t axis = ox_int(c, "axis", 1);
    if (axis < -rank || axis > rank) onnx__no(c, "axis %" PRId64 " is outside of rank %d", axis, rank);
    if (!c->failed) ox_out_like(c, 0, ox_as_matrix(t, (int)(axis < 0 ? axis + rank : axis)), 0);
}

static void ox_squeeze(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, rank = ox_rank(t);
    const int64_t *axes = ox_input_or_ints(c, 13, 1, "axes", &n);
    gn_shape s = onnx__shape(t), out = { 0, { 0 } };
    bool drop[GN_MAX_RANK] = { false };
    for (int i = 0; !c->failed && i < n; i++) {
        int axis = ox_axis(c, axes[i], rank);
        if (!c->failed && s.dims[axis] != 1) onnx__no(c, "axis %d has size %" PRId64 ", not 1", axis, s.dims[axis]);
        if (!c->failed) drop[axis] = true;
    }
    for (int i = 0; i < rank; i++)
        if (!(axes ? drop[i] : s.dims[i] == 1)) out.dims[out.rank++] = s.dims[i];
    if (!c->failed) ox_out_like(c, 0, gn_reshape(t, out), 0);
}

static void ox_unsqueeze(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, at = 0;
    const int64_t *axes = ox_input_or_ints(c, 13, 1, "axes", &n);
    gn_shape s = onnx__shape(t), out = { s.rank + n, { 0 } };
    if (out.rank > GN_MAX_RANK) onnx__no(c, "rank %d is above 8", out.rank);
    for (int i = 0; !c->failed && i < n; i++) {
        int axis = ox_axis(c, axes[i], out.rank);
        if (!c->failed && out.dims[axis]) onnx__no(c, "axis %d stands twice", axis);
        if (!c->failed) out.dims[axis] = 1;
    }
    for (int i = 0; !c->failed && i < out.rank; i++)
        if (!out.dims[i] && at < s.rank) out.dims[i] = s.dims[at++];
    if (!c->failed) ox_out_like(c, 0, gn_reshape(t, out), 0);
}

/* Any number of parts, by groups of what one op takes. */
static gn_tensor ox_join(onnx__call *c, gn_tensor *parts, int n, int axis) {
    enum { MOST = 128 };
    while (n > MOST) {
        int m = 0;
        for (int i = 0; i < n; i += MOST) parts[m++] = gn_concat(parts + i, n - i < MOST ? n - i : MOST, axis);
        n = m;
    }
    if (!n) onnx__no(c, "nothing to join");
    return n == 1 ? parts[0] : n ? gn_concat(parts, n, axis) : GN_NONE;
}

static void ox_concat(onnx__call *c) {
    gn_tensor *parts = onnx__alloc(c->s, (size_t)(c->n_in + 1) * sizeof *parts);
    for (int i = 0; i < c->n_in; i++) parts[i] = ox_in(c, i);
    if (c->failed) return;
    ox_out_like(c, 0, ox_join(c, parts, c->n_in, ox_axis(c, ox_int(c, "axis", 1), ox_rank(parts[0]))), 0);
}

static void ox_split(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(t));
    const int64_t *sizes = ox_input_or_ints(c, 13, 1, "split", &n);
    int64_t parts = ox_int(c, "num_outputs", c->n_out);
    if (parts < 1 || parts > INT32_MAX) onnx__no(c, "%" PRId64 " parts", parts);
    if (c->failed) return;
    int64_t all = ox_dim(t, axis), each = (all + parts - 1) / parts, at = 0;
    if (sizes && n != c->n_out) onnx__no(c, "%d sizes for %d outputs", n, c->n_out);
    for (int i = 0; !c->failed && i < c->n_out; i++) {
        int64_t size = sizes ? sizes[i] : all - at < each ? all - at : each;
        if (size < 0 || size > all - at) onnx__no(c, "parts are longer than the axis of %" PRId64, all);
        else ox_out_like(c, i, gn_slice(t, axis, at, at + size, 1), 0);
        at += size;
    }
    if (!c->failed && at != all) onnx__no(c, "parts end at %" PRId64 " of %" PRId64, at, all);
}

static void ox_slice(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, m, k, l, rank = ox_rank(t);
    const int64_t *begin = ox_input_or_ints(c, 10, 1, "starts", &n), *end = ox_input_or_ints(c, 10, 2, "ends", &m);
    const int64_t *axes = ox_input_or_ints(c, 10, 3, "axes", &k);
    const int64_t *steps = c->version >= 10 && ox_has(c, 4) ? ox_host_ints(c, 4, &l) : NULL;
    if (!c->failed && (n != m || (axes && k != n) || (steps && l != n)))
        onnx__no(c, "starts, ends, axes and steps differ");
    for (int i = 0; !c->failed && i < n; i++) {
        int axis = ox_axis(c, axes ? axes[i] : i, rank);
        int64_t size = ox_dim(t, axis), step = steps ? steps[i] : 1, from = begin[i], to = end[i];
        if (!step) onnx__no(c, "a step of 0");
        if (c->failed) return;
        if (from < 0) from = from < -size ? (step > 0 ? 0 : -1) : from + size;
        if (to < 0) to = to < -size ? -1 : to + size;
        if (step > 0 && to < 0) to = 0;
        if (step < 0 && from < 0) from = 0, to = 0; /* nothing lies before the first */
        if (step < 0 && from >= size) from = size - 1;
        t = gn_slice(t, axis, from, step < 0 && to < 0 ? -size - 1 : to, step);
    }
    if (!c->failed) ox_out_like(c, 0, t, 0);
}

/* ---- gathers ---- */

static gn_tensor ox_take(gn_tensor a, int axis, gn_tensor index) {
    gn_shape s = onnx__shape(a), at = onnx__shape(index), out = { s.rank - 1 + at.rank, { 0 } };
    int64_t n = (int64_t)onnx__elements(at);
    int k = 0;
    for (int i = 0; i < axis; i++) out.dims[k++] = s.dims[i];
    for (int i = 0; i < at.rank; i++) out.dims[k++] = at.dims[i];
    for (int i = axis + 1; i < s.rank; i++) out.dims[k++] = s.dims[i];
    if (axis == 0 && s.rank == 2) return gn_embedding(a, index);
    return gn_reshape(gn_index_select(a, axis, gn_reshape(index, GN_SHAPE(n))), out);
}

static void ox_gather(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), index = ox_in(c, 1);
    if (c->failed) return;
    int axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(a));
    if (!c->failed && ox_rank(a) - 1 + ox_rank(index) > GN_MAX_RANK) onnx__no(c, "the result's rank is above 8");
    if (!c->failed) ox_out_like(c, 0, ox_take(a, axis, gn_from_end(index, ox_dim(a, axis))), 0);
}

static void ox_gather_elements(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), index = ox_in(c, 1);
    if (c->failed) return;
    int axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(a));
    if (!c->failed) ox_out_like(c, 0, gn_gather(a, axis, gn_from_end(index, ox_dim(a, axis))), 0);
}

/* Row-major position among the first K axes of `s` for each index (…,K); those below 0 count from the end. */
static gn_tensor ox_positions(gn_tensor index, gn_shape s) {
    gn_tensor sum = GN_NONE;
    int last = ox_rank(index) - 1;
    int64_t k = ox_dim(index, last), stride = 1;
    for (int64_t i = k - 1; i >= 0; i--) {
        gn_tensor part = gn_squeeze(gn_slice(index, last, i, i + 1, 1), GN_AXES(last));
        part = gn_mul_c(gn_from_end(part, s.dims[i]), (double)stride);
        sum = sum.ctx ? gn_add(sum, part) : part;
        stride *= s.dims[i];
    }
    return sum;
}

static void ox_gather_nd(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), index = ox_in(c, 1);
    int b = (int)ox_int(c, "batch_dims", 0);
    if (c->failed) return;
    gn_shape s = onnx__shape(a), at = onnx__shape(index), out = { 0, { 0 } };
    int64_t k = at.rank ? at.dims[at.rank - 1] : 0, batch = 1, picked = 1, inner = 1, rows = 1;
    if (b < 0 || b >= at.rank || k < 1 || b + k > s.rank || at.rank - 1 + s.rank - b - k > GN_MAX_RANK) {
        onnx__no(c, "indices of %" PRId64 " axes, %d of batches, in rank %d", k, b, s.rank);
        return;
    }
    for (int i = 0; i < b; i++) batch *= s.dims[i];
    for (int i = b; i < b + k; i++) picked *= s.dims[i];
    for (int i = b + (int)k; i < s.rank; i++) inner *= s.dims[i];
    for (int i = b; i < at.rank - 1; i++) rows *= at.dims[i];
    gn_shape rest = { s.rank - b, { 0 } };
    for (int i = b; i < s.rank; i++) rest.dims[i - b] = s.dims[i];
    gn_tensor where = gn_reshape(gn_cast(ox_positions(index, rest), GN_I64), GN_SHAPE(batch, rows));
    where = gn_add(where, gn_reshape(gn_arange_i64(c->g, GN_I64, batch, 0, picked), GN_SHAPE(batch, 1)));
    for (int i = 0; i < at.rank - 1; i++) out.dims[out.rank++] = at.dims[i];
    for (int i = b + (int)k; i < s.rank; i++) out.dims[out.rank++] = s.dims[i];
    gn_tensor flat = gn_reshape(a, GN_SHAPE(batch * picked, inner));
    ox_out_like(c, 0, gn_reshape(gn_embedding(flat, gn_reshape(where, GN_SHAPE(batch * rows))), out), 0);
}

/* ---- scatters ---- */

/* src set or combined into a at index, by ONNX's names of reductions. */
static gn_tensor ox_scatter_by(onnx__call *c, gn_tensor a, int axis, gn_tensor index, gn_tensor src) {
    if (ox_text_is(c, "reduction", "none", "none")) return gn_scatter(a, axis, index, src);
    if (ox_text_is(c, "reduction", "add", "")) return gn_scatter_add(a, axis, index, src);
    if (ox_text_is(c, "reduction", "max", "")) return gn_scatter_max(a, axis, index, src);
    if (ox_text_is(c, "reduction", "min", "")) return gn_scatter_min(a, axis, index, src);
    if (ox_text_is(c, "reduction", "mul", "")) return gn_scatter_mul(a, axis, index, src);
    onnx__no(c, "this reduction is not known");
    return a;
}

static void ox_scatter_elements(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), index = ox_in(c, 1), src = ox_in(c, 2);
    if (c->failed) return;
    int axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(a));
    if (!c->failed) ox_out_like(c, 0, ox_scatter_by(c, a, axis, gn_from_end(index, ox_dim(a, axis)), src), 0);
}

static void ox_scatter_nd(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), index = ox_in(c, 1), src = ox_in(c, 2);
    if (c->failed) return;
    gn_shape s = onnx__shape(a), at = onnx__shape(index);
    int64_t k = at.rank ? at.dims[at.rank - 1] : 0, picked = 1, inner = 1;
    if (k < 1 || k > s.rank) {
        onnx__no(c, "indices of %" PRId64 " axes in rank %d", k, s.rank);
        return;
    }
    for (int i = 0; i < k; i++) picked *= s.dims[i];
    for (int i = (int)k; i < s.rank; i++) inner *= s.dims[i];
    int64_t rows = (int64_t)onnx__elements(at) / k;
    gn_tensor where = gn_reshape(ox_positions(index, s), GN_SHAPE(rows, 1));
    gn_tensor flat = gn_reshape(a, GN_SHAPE(picked, inner)), by = gn_reshape(src, GN_SHAPE(rows, inner));
    gn_tensor out = ox_scatter_by(c, flat, 0, gn_broadcast(where, GN_SHAPE(rows, inner)), by);
    ox_out_like(c, 0, gn_reshape(out, s), 0);
}

/* Rows of update go into the cache at a position each batch has, going round where that is asked for. */
static void ox_tensor_scatter(onnx__call *c) {
    gn_tensor past = ox_in(c, 0), update = ox_in(c, 1);
    int rank = ox_rank(past), axis = ox_axis(c, ox_int(c, "axis", -2), rank);
    if (c->failed) return;
    gn_shape s = onnx__shape(update), line = { rank, { 0 } }, first = line;
    for (int i = 0; i < rank; i++) line.dims[i] = first.dims[i] = 1;
    line.dims[axis] = s.dims[axis];
    first.dims[0] = s.dims[0];
    gn_tensor at = gn_reshape(gn_arange_i64(c->g, GN_I64, s.dims[axis], 0, 1), line);
    if (ox_has(c, 2)) at = gn_add(at, gn_reshape(ox_cast(ox_in(c, 2), GN_I64), first));
    if (ox_text_is(c, "mode", "circular", "linear")) at = gn_remainder(at, gn_like(at, (double)ox_dim(past, axis)));
    ox_out_like(c, 0, gn_scatter(past, axis, gn_broadcast(at, s), update), 0);
}

/* ---- growing and padding ---- */

static void ox_expand(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n;
    const int64_t *dims = ox_host_ints(c, 1, &n);
    if (!dims || c->failed) return;
    gn_shape s = onnx__shape(t), want = ox_make_shape(c, dims, n), out = { s.rank > n ? s.rank : n, { 0 } };
    for (int i = 1; i <= out.rank && !c->failed; i++) {
        int64_t a = i <= s.rank ? s.dims[s.rank - i] : 1, b = i <= n ? want.dims[n - i] : 1;
        if (a != b && a != 1 && b != 1) onnx__no(c, "sizes %" PRId64 " and %" PRId64 " do not broadcast", a, b);
        out.dims[out.rank - i] = a == 1 ? b : a;
    }
    if (!c->failed) ox_out_like(c, 0, gn_broadcast(t, out), 0);
}

static void ox_tile(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n;
    const int64_t *times = ox_host_ints(c, 1, &n);
    if (times && n != ox_rank(t)) onnx__no(c, "%d repeats of a tensor of rank %d", n, ox_rank(t));
    if (!c->failed) ox_out_like(c, 0, gn_tile(t, ox_make_shape(c, times, n)), 0);
}

/* One axis by a table of the elements to take; -1 is the number `value`. */
static gn_tensor ox_pad_by_table(onnx__call *c, gn_tensor t, int axis, int64_t before, int64_t after, bool wrap) {
    int64_t size = ox_dim(t, axis), n = size + before + after;
    int64_t *index = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *index);
    if (!size) onnx__no(c, "an axis of size 0 has nothing to repeat");
    for (int64_t i = 0; !c->failed && i < n; i++) {
        int64_t at = i - before, period = wrap ? size : 2 * size - 2;
        if (wrap) index[i] = ((at % size) + size) % size;
        else {
            at = period ? ((at % period) + period) % period : 0;
            index[i] = at < size ? at : period - at;
        }
    }
    return c->failed ? t : gn_index_select(t, axis, ox_indices(c, index, n));
}

static gn_tensor ox_pad_axis(onnx__call *c, gn_tensor t, int axis, int64_t before, int64_t after, gn_tensor value) {
    gn_shape none = { ox_rank(t), { 0 } }, front = none, back = none;
    if (before < 0) t = gn_slice(t, axis, -before, GN_END, 1), before = 0;
    if (after < 0) t = gn_slice(t, axis, 0, ox_dim(t, axis) + after, 1), after = 0;
    if (!before && !after) return t;
    front.dims[axis] = before;
    back.dims[axis] = after;
    if (ox_text_is(c, "mode", "edge", "constant")) return gn_pad(t, front, back, GN_PAD_EDGE, 0);
    if (ox_text_is(c, "mode", "wrap", "constant")) return ox_pad_by_table(c, t, axis, before, after, true);
    if (ox_text_is(c, "mode", "reflect", "constant")) return ox_pad_by_table(c, t, axis, before, after, false);
    if (!value.ctx) return gn_pad(t, front, back, GN_PAD_CONSTANT, 0);
    gn_shape s = onnx__shape(t);
    gn_tensor parts[3];
    int n = 0;
    s.dims[axis] = before;
    if (before) parts[n++] = gn_broadcast(value, s);
    parts[n++] = t;
    s.dims[axis] = after;
    if (after) parts[n++] = gn_broadcast(value, s);
    return gn_concat(parts, n, axis);
}

static void ox_pad(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), value = GN_NONE;
    int n, m = 0, rank = ox_rank(t);
    const int64_t *pads = ox_input_or_ints(c, 11, 1, "pads", &n), *axes = NULL;
    if (c->version >= 11 && ox_has(c, 2)) value = gn_reshape(ox_in(c, 2), GN_SCALAR);
    if (c->version < 11 && ox_has_attribute(c, "value")) value = gn_like(t, ox_float(c, "value", 0));
    if (c->version >= 18 && ox_has(c, 3)) axes = ox_host_ints(c, 3, &m);
    if (!axes) m = rank;
    if (!c->failed && n != 2 * m) onnx__no(c, "%d pads for %d axes", n, m);
    for (int i = 0; !c->failed && i < n; i++)
        if (pads[i] > ONNX__EXTENT || pads[i] < -ONNX__EXTENT) onnx__no(c, "a pad of %" PRId64, pads[i]);
    for (int i = 0; !c->failed && i < m; i++)
        t = ox_pad_axis(c, t, ox_axis(c, axes ? axes[i] : i, rank), pads[i], pads[m + i], value);
    if (!c->failed) ox_out_like(c, 0, t, 0);
}

static void ox_center_crop_pad(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n, m, rank = ox_rank(t);
    const int64_t *want = ox_host_ints(c, 1, &n), *axes = ox_ints(c, "axes", &m);
    if (!c->failed && n != (axes ? m : rank)) onnx__no(c, "%d sizes for %d axes", n, axes ? m : rank);
    for (int i = 0; !c->failed && i < n; i++) {
        int axis = ox_axis(c, axes ? axes[i] : i, rank);
        if (want[i] < 0 || want[i] > ONNX__EXTENT) onnx__no(c, "a size of %" PRId64, want[i]);
        if (c->failed) return;
        int64_t size = ox_dim(t, axis), more = want[i] - size;
        if (more < 0) t = gn_slice(t, axis, -more / 2, -more / 2 + want[i], 1);
        else t = ox_pad_axis(c, t, axis, more / 2, more - more / 2, GN_NONE);
    }
    if (!c->failed) ox_out_like(c, 0, t, 0);
}

/* ---- constants ---- */

static void ox_shape_of(onnx__call *c) {
    gn_shape s = ox_in_shape(c, 0);
    if (ox_has(c, 0) && c->in[0]->kind != ONNX__ONE) return onnx__no(c, "input 0 is no tensor");
    int64_t *dims = onnx__alloc(c->s, sizeof s.dims), begin = 0, end = s.rank;
    if (c->version >= 15) {
        begin = ox_int(c, "start", 0);
        end = ox_int(c, "end", s.rank);
        if (begin < 0) begin += s.rank;
        if (end < 0) end += s.rank;
        begin = begin < 0 ? 0 : begin > s.rank ? s.rank : begin;
        end = end < begin ? begin : end > s.rank ? s.rank : end;
    }
    memcpy(dims, s.dims + begin, (size_t)(end - begin) * sizeof *dims);
    ox_out_host(c, 0, ONNX_INT64, GN_SHAPE(end - begin), dims);
}

static void ox_size_of(onnx__call *c) {
    if (ox_has(c, 0) && c->in[0]->kind != ONNX__ONE) return onnx__no(c, "input 0 is no tensor");
    int64_t *n = onnx__alloc(c->s, sizeof *n);
    *n = (int64_t)onnx__elements(ox_in_shape(c, 0));
    ox_out_host(c, 0, ONNX_INT64, GN_SCALAR, n);
}

static onnx__value *ox_attribute_tensor(onnx__call *c, onnx_span attribute) {
    onnx_tensor t;
    char ignored[ONNX_ERROR];
    onnx__walk w = { .model = c->s->model, .begin = c->s->model->map.data, .path = "", .error = ignored };
    onnx_field f = onnx__get(attribute, 5);
    if (!f.at || !onnx__describe_tensor(&w, f.bytes, &t)) return NULL;
    return onnx__load(c->s, &t, true);
}

static void ox_constant(onnx__call *c) {
    static const char *const names[] = { "value_float", "value_int", "value_floats", "value_ints" };
    int n, k = 0;
    onnx_span a = ox_attribute(c, "value");
    if (a.at) {
        c->out[0] = ox_attribute_tensor(c, a);
        if (!c->out[0]) onnx__no(c, "its tensor is not held: %s", c->s->error);
        return;
    }
    while (k < 4 && !ox_has_attribute(c, names[k])) k++;
    if (k == 4) {
        onnx__no(c, "a constant that is a string, sparse, or nothing");
    } else if (k < 2) {
        void *host = onnx__alloc(c->s, 8);
        if (k) *(int64_t *)host = ox_int(c, names[1], 0);
        else *(float *)host = (float)ox_float(c, names[0], 0);
        ox_out_host(c, 0, k ? ONNX_INT64 : ONNX_FLOAT, GN_SCALAR, host);
    } else {
        const void *host = k == 2 ? (const void *)ox_floats(c, names[2], &n) : (const void *)ox_ints(c, names[3], &n);
        ox_out_host(c, 0, k == 2 ? ONNX_FLOAT : ONNX_INT64, GN_SHAPE(n), host);
    }
}

static void ox_constant_of_shape(onnx__call *c) {
    int n;
    const int64_t *dims = ox_host_ints(c, 0, &n);
    onnx_span a = ox_attribute(c, "value");
    onnx__value *v = a.at ? ox_attribute_tensor(c, a) : NULL;
    if (a.at && !v) onnx__no(c, "its tensor is not held: %s", c->s->error);
    if (c->failed || !dims) return;
    gn_shape s = ox_make_shape(c, dims, n);
    if (c->failed) return;
    if (!v) {
        ox_out(c, 0, gn_full(c->g, GN_F32, s, 0));
        return;
    }
    gn_tensor one = gn_reshape(onnx__tensor_in(c->s, v, c->g), GN_SCALAR);
    ox_out_as(c, 0, gn_broadcast(one, s), v->type);
}

static void ox_range(onnx__call *c) {
    gn_dtype d = ox_dtype(c, 0);
    double a = ox_number(c, 0, 0), b = ox_number(c, 1, 0), step = ox_number(c, 2, 1);
    if (!(step < 0 || step > 0)) onnx__no(c, "a step of 0");
    double n = ceil((b - a) / step);
    if (!(n < 1e15)) onnx__no(c, "%g elements", n);
    if (c->failed) return;
    int64_t count = n > 0 ? (int64_t)n : 0;
    gn_dtype wide = d == GN_F16 || d == GN_BF16 ? GN_F32 : d;
    ox_out(c, 0, ox_cast(gn_arange(c->g, wide, count, a, step), d));
}

static void ox_eye_like(onnx__call *c) {
    gn_shape s = ox_in_shape(c, 0);
    int64_t type = ox_int(c, "dtype", (int64_t)ox_type(c, 0)), k = ox_int(c, "k", 0);
    if (s.rank != 2) onnx__no(c, "an input of rank %d, 2 is needed", s.rank);
    if (!onnx__is_plain((int)type)) onnx__no(c, "results of %s", onnx_type_name((int)type));
    if (c->failed) return;
    gn_tensor row = gn_arange_i64(c->g, GN_I64, s.dims[0], k, 1), column = gn_arange_i64(c->g, GN_I64, s.dims[1], 0, 1);
    gn_tensor eye = gn_eq(gn_reshape(row, GN_SHAPE(s.dims[0], 1)), column);
    ox_out(c, 0, ox_cast(eye, onnx_type_dtype((int)type)));
}

static void ox_trilu(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int64_t k = ox_integer(c, 1, 0);
    if (!c->failed) ox_out_like(c, 0, ox_int(c, "upper", 1) ? gn_triu(t, k) : gn_tril(t, k), 0);
}

static void ox_one_hot(onnx__call *c) {
    double number = ox_number(c, 1, 0);
    int64_t depth = number >= 0 && number < 0x1p40 ? (int64_t)number : -1;
    if (depth < 0) onnx__no(c, "a depth of %g", number);
    gn_tensor ids = ox_cast(ox_in(c, 0), GN_I64), values = ox_in(c, 2);
    if (c->failed) return;
    int rank = ox_rank(ids) + 1, axis = ox_axis(c, ox_int(c, "axis", -1), rank);
    gn_shape line = { rank, { 0 } };
    if (rank > GN_MAX_RANK) onnx__no(c, "rank %d is above 8", rank);
    if (c->failed) return;
    for (int i = 0; i < rank; i++) line.dims[i] = i == axis ? depth : 1;
    gn_tensor place = gn_reshape(gn_arange_i64(c->g, GN_I64, depth, 0, 1), line);
    gn_tensor hit = gn_eq(gn_unsqueeze(gn_from_end(ids, depth), axis), place);
    gn_tensor off = gn_reshape(gn_slice(values, 0, 0, 1, 1), GN_SCALAR);
    gn_tensor on = gn_reshape(gn_slice(values, 0, 1, 2, 1), GN_SCALAR);
    ox_out_like(c, 0, gn_where(hit, on, off), 2);
}

/* ---- blocks ---- */

static void ox_depth_to_space(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int64_t b = ox_int(c, "blocksize", 1);
    gn_shape s = onnx__shape(t);
    if (s.rank != 4 || b < 1 || b > 65536 || s.dims[1] % (b * b)) {
        onnx__no(c, "blocks of %" PRId64 " of a tensor of rank %d", b, s.rank);
        return;
    }
    ox_out_like(c, 0, gn_depth_to_space(t, b, !ox_text_is(c, "mode", "DCR", "DCR")), 0);
}

static void ox_space_to_depth(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int64_t b = ox_int(c, "blocksize", 1);
    gn_shape s = onnx__shape(t);
    if (s.rank != 4 || b < 1 || b > 65536 || s.dims[2] % b || s.dims[3] % b) {
        onnx__no(c, "blocks of %" PRId64 " of a tensor of rank %d", b, s.rank);
        return;
    }
    ox_out_like(c, 0, gn_space_to_depth(t, b, ox_text_is(c, "mode", "CRD", "DCR")), 0);
}

/* Each row's first elements backwards. */
static void ox_reverse_sequence(onnx__call *c) {
    gn_tensor t = ox_in(c, 0), length = ox_cast(ox_in(c, 1), GN_I64);
    int rank = ox_rank(t), time = (int)ox_int(c, "time_axis", 0), batch = (int)ox_int(c, "batch_axis", 1);
    if (rank < 2 || time + batch != 1) onnx__no(c, "axes %d and %d", time, batch);
    if (c->failed) return;
    gn_shape s = onnx__shape(t), line = { rank, { 0 } }, rows = line;
    for (int i = 0; i < rank; i++) line.dims[i] = rows.dims[i] = 1;
    line.dims[time] = s.dims[time];
    rows.dims[batch] = s.dims[batch];
    gn_tensor at = gn_reshape(gn_arange_i64(c->g, GN_I64, s.dims[time], 0, 1), line);
    gn_tensor n = gn_reshape(length, rows), back = gn_sub(gn_sub_c(n, 1), at);
    ox_out_like(c, 0, gn_gather(t, time, gn_broadcast(gn_where(gn_lt(at, n), back, at), s)), 0);
}
#endif
