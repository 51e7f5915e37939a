/* ops_selection.h - a part of onnx.h: top-k, random numbers, optimiser steps, and what has a size that depends on
 * values: those are computed here, from values that are read while the step is built. */
#ifndef ONNX_OPS_SELECTION_H
#define ONNX_OPS_SELECTION_H

static void ox_top_k(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), values, places;
    int64_t k = c->version < 10 ? ox_int(c, "k", 0) : ox_integer(c, 1, 0);
    int axis = ox_axis(c, ox_int(c, "axis", -1), ox_rank(x));
    if (c->failed) return;
    gn_topk(x, k, axis, ox_int(c, "largest", 1) != 0, &values, &places);
    ox_out_like(c, 0, values, 0);
    if (ox_wants(c, 1)) ox_out(c, 1, places);
}

static void ox_swiglu(onnx__call *c) {
    gn_tensor a = ox_in(c, 0), b = ox_in(c, 1);
    ox_out_like(c, 0, gn_mul(gn_mul(a, gn_sigmoid(gn_mul_c(a, ox_float(c, "alpha", 1)))), b), 0);
}

/* ---- random numbers: the context's seed counts, not the node's ---- */

static void ox_random(onnx__call *c) {
    onnx_span op = c->op_name;
    bool like = onnx__is(op, "RandomUniformLike") || onnx__is(op, "RandomNormalLike");
    bool uniform = onnx__is(op, "RandomUniformLike") || onnx__is(op, "RandomUniform");
    int64_t type = ox_int(c, "dtype", like ? (int64_t)ox_type(c, 0) : ONNX_FLOAT);
    int n;
    const int64_t *dims = like ? NULL : ox_ints(c, "shape", &n);
    if (!onnx__is_plain((int)type) || !ox_is_float(onnx_type_dtype((int)type)) || (!like && !dims)) {
        onnx__no(c, "random %s", onnx_type_name((int)type));
        return;
    }
    gn_shape s = like ? ox_in_shape(c, 0) : ox_make_shape(c, dims, n);
    gn_dtype d = onnx_type_dtype((int)type);
    if (c->failed) return;
    double low = ox_float(c, "low", 0), high = ox_float(c, "high", 1), mean = ox_float(c, "mean", 0);
    gn_tensor y = uniform ? gn_add_c(gn_mul_c(gn_random_uniform(c->g, d, s), high - low), low)
                          : gn_add_c(gn_mul_c(gn_random_normal(c->g, d, s), ox_float(c, "scale", 1)), mean);
    ox_out(c, 0, y);
}

static void ox_bernoulli(onnx__call *c) {
    gn_tensor p = ox_in(c, 0);
    int64_t type = ox_int(c, "dtype", (int64_t)ox_type(c, 0));
    if (!onnx__is_plain((int)type)) onnx__no(c, "results of %s", onnx_type_name((int)type));
    if (c->failed) return;
    gn_tensor hit = gn_lt(gn_random_uniform(c->g, ox_dtype(c, 0), onnx__shape(p)), p);
    ox_out(c, 0, ox_cast(hit, onnx_type_dtype((int)type)));
}

/* Classes that scores x (B,C), logarithms of shares, draw: (B,samples). */
static void ox_multinomial(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int64_t n = ox_int(c, "sample_size", 1), type = ox_int(c, "dtype", ONNX_INT32);
    if (type != ONNX_INT32 && type != ONNX_INT64) onnx__no(c, "results of %s", onnx_type_name((int)type));
    if (!c->failed && (ox_rank(x) != 2 || ox_dim(x, 1) < 1 || n < 1 || n > ONNX__EXTENT))
        onnx__no(c, "%" PRId64 " samples of an input of rank %d", n, ox_rank(x));
    if (c->failed) return;
    int64_t B = ox_dim(x, 0), C = ox_dim(x, 1);
    gn_tensor until = gn_cumsum(gn_softmax(gn_cast(x, GN_F64), 1), 1), all = gn_slice(until, 1, C - 1, C, 1);
    gn_tensor at = gn_mul(gn_cast(gn_random_uniform(c->g, GN_F32, GN_SHAPE(B, n)), GN_F64), all);
    gn_tensor past = gn_le(gn_unsqueeze(until, 1), gn_unsqueeze(at, 2)); /* below `all`, so never of all classes */
    ox_out(c, 0, ox_cast(gn_count_nonzero(past, GN_AXES(2), false), onnx_type_dtype((int)type)));
}

/* ---- steps of optimisers (ai.onnx.preview.training): inputs R, T, then all X, all G, all states ---- */

static void ox_adagrad(onnx__call *c, gn_tensor r, gn_tensor t, int n, int i) {
    gn_tensor x = ox_in(c, 2 + i), h = ox_in(c, 2 + 2 * n + i);
    gn_tensor rate = gn_div(r, gn_add_c(gn_mul_c(ox_cast(t, onnx__dtype(r)), ox_float(c, "decay_factor", 0)), 1));
    gn_tensor g = gn_add(ox_in(c, 2 + n + i), gn_mul_c(x, ox_float(c, "norm_coefficient", 0)));
    h = gn_add(h, gn_square(g));
    ox_out_like(c, i, gn_sub(x, gn_div(gn_mul(g, rate), gn_add_c(gn_sqrt(h), ox_float(c, "epsilon", 1e-6)))), 2 + i);
    ox_out_like(c, n + i, h, 2 + i);
}

static void ox_adam(onnx__call *c, gn_tensor r, gn_tensor t, int n, int i) {
    gn_tensor x = ox_in(c, 2 + i), v = ox_in(c, 2 + 2 * n + i), h = ox_in(c, 2 + 3 * n + i);
    double a = ox_float(c, "alpha", 0.9), b = ox_float(c, "beta", 0.999);
    gn_tensor g = gn_add(ox_in(c, 2 + n + i), gn_mul_c(x, ox_float(c, "norm_coefficient", 0)));
    gn_tensor step = ox_cast(t, onnx__dtype(x)),
              scale = gn_div(gn_sqrt(gn_sub(gn_like(x, 1), gn_pow(gn_like(x, b), step))),
                             gn_sub(gn_like(x, 1), gn_pow(gn_like(x, a), step)));
    v = gn_add(gn_mul_c(v, a), gn_mul_c(g, 1 - a));
    h = gn_add(gn_mul_c(h, b), gn_mul_c(gn_square(g), 1 - b));
    gn_tensor rate = gn_where(gn_gt_c(t, 0), gn_mul(r, scale), r);
    x = gn_sub(x, gn_div(gn_mul(rate, v), gn_add_c(gn_sqrt(h), ox_float(c, "epsilon", 1e-6))));
    ox_out_like(c, i, gn_mul_c(x, 1 - ox_float(c, "norm_coefficient_post", 0)), 2 + i);
    ox_out_like(c, n + i, v, 2 + i);
    ox_out_like(c, 2 * n + i, h, 2 + i);
}

static void ox_momentum(onnx__call *c, gn_tensor r, gn_tensor t, int n, int i) {
    gn_tensor x = ox_in(c, 2 + i), v = ox_in(c, 2 + 2 * n + i);
    double a = ox_float(c, "alpha", 0), b = ox_float(c, "beta", 0);
    gn_tensor g = gn_add(ox_in(c, 2 + n + i), gn_mul_c(x, ox_float(c, "norm_coefficient", 0)));
    gn_tensor share = gn_where(gn_gt_c(t, 0), gn_like(x, b), gn_like(x, 1));
    v = gn_add(gn_mul_c(v, a), gn_mul(g, share));
    bool nesterov = ox_text_is(c, "mode", "nesterov", "standard");
    ox_out_like(c, i, gn_sub(x, gn_mul(r, nesterov ? gn_add(g, gn_mul_c(v, a)) : v)), 2 + i);
    ox_out_like(c, n + i, v, 2 + i);
}

static void ox_optimise(onnx__call *c) {
    bool adam = onnx__is(c->op_name, "Adam"), adagrad = onnx__is(c->op_name, "Adagrad");
    int each = adam ? 4 : 3, n = (c->n_in - 2) / each;
    gn_tensor r = ox_in(c, 0), t = ox_in(c, 1);
    if (c->n_in < 2 + each || (c->n_in - 2) % each || c->n_out != n * (each - 1)) onnx__no(c, "%d inputs", c->n_in);
    for (int i = 0; i < n && !c->failed; i++)
        if (adam) ox_adam(c, r, t, n, i);
        else if (adagrad) ox_adagrad(c, r, t, n, i);
        else ox_momentum(c, r, t, n, i);
}

/* ---- sizes that depend on values ---- */

static void ox_non_zero(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int64_t n = 0;
    if (c->failed) return;
    c->s->counts.early_reads += c->g == c->s->g;
    if (gn_read(gn_count_nonzero(x, GN_ALL_AXES, false), &n, sizeof n) != GN_OK)
        onnx__no(c, "%s", gn_last_error(c->g)->text);
    if (!c->failed) ox_out(c, 0, gn_transpose(gn_nonzero(x, n), 0, 1));
}

static void ox_compress(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    const uint8_t *keep = ox_host(c, 1);
    bool flat = !ox_has_attribute(c, "axis");
    int axis = flat ? 0 : ox_axis(c, ox_int(c, "axis", 0), ox_rank(x));
    if (c->failed || ox_type(c, 1) != ONNX_BOOL) return onnx__no(c, "the condition is no bool");
    int64_t n = (int64_t)onnx__elements(ox_in_shape(c, 1)), m = 0;
    int64_t *index = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *index);
    for (int64_t i = 0; i < n; i++)
        if (keep[i]) index[m++] = i;
    if (flat) x = gn_reshape(x, GN_SHAPE((int64_t)onnx__elements(onnx__shape(x))));
    ox_out_like(c, 0, gn_index_select(x, axis, ox_step_indices(c, index, m)), 0);
}

typedef struct ox_rows {
    const uint8_t *bytes; /* rows one after the other */
    gn_dtype dtype;
    size_t n, each;
} ox_rows;

static int ox_compare_rows(const ox_rows *r, int64_t a, int64_t b) {
    for (size_t i = 0; i < r->each; i++) {
        size_t x = (size_t)a * r->each + i, y = (size_t)b * r->each + i;
        if (r->dtype == GN_I64 || r->dtype == GN_U64) {
            int64_t u = ((const int64_t *)(const void *)r->bytes)[x], v = ((const int64_t *)(const void *)r->bytes)[y];
            bool less = r->dtype == GN_I64 ? u < v : (uint64_t)u < (uint64_t)v;
            if (u != v) return less ? -1 : 1;
            continue;
        }
        double u = onnx__number(r->dtype, r->bytes, x), v = onnx__number(r->dtype, r->bytes, y);
        if (u < v || (isnan(v) && !isnan(u))) return -1; /* NaN is the greatest */
        if (v < u || (isnan(u) && !isnan(v))) return 1;
    }
    return 0;
}

/* Sorts places of rows, equal ones in the order of their places: merges runs that double. */
static void ox_sort_rows(const ox_rows *r, int64_t *order, int64_t *room) {
    for (size_t width = 1; width < r->n; width *= 2)
        for (size_t lo = 0; lo < r->n; lo += 2 * width) {
            size_t mid = lo + width < r->n ? lo + width : r->n, hi = lo + 2 * width < r->n ? lo + 2 * width : r->n;
            size_t a = lo, b = mid, k = lo;
            while (a < mid || b < hi)
                room[k++] =
                    b == hi || (a < mid && ox_compare_rows(r, order[a], order[b]) <= 0) ? order[a++] : order[b++];
            memcpy(order + lo, room + lo, (hi - lo) * sizeof *order);
        }
}

/* The rows (or elements) that are there, in order of their values or of their first place. */
static void ox_unique(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    bool flat = !ox_has_attribute(c, "axis"), sorted = ox_int(c, "sorted", 1) != 0;
    int axis = flat ? 0 : ox_axis(c, ox_int(c, "axis", 0), ox_rank(x));
    if (c->failed) return;
    gn_dtype held = ox_dtype(c, 0), d = held == GN_F16 || held == GN_BF16 ? GN_F32 : held;
    if (flat) x = gn_reshape(x, GN_SHAPE((int64_t)onnx__elements(onnx__shape(x))));
    gn_shape s = onnx__shape(x);
    size_t all = onnx__elements(s), n = (size_t)s.dims[axis], each = n ? all / n : 0,
           bytes = all * onnx__dtype_bytes[d];
    uint8_t *host = onnx__alloc(c->s, bytes + 1);
    c->s->counts.early_reads += c->g == c->s->g;
    gn_tensor first = gn_transpose(ox_cast(x, d), 0, axis);
    if (bytes && gn_read(first, host, bytes) != GN_OK) return onnx__no(c, "%s", gn_last_error(c->g)->text);
    ox_rows rows = { host, d, n, each };
    int64_t *order = onnx__alloc(c->s, (n + 1) * 8), *room = onnx__alloc(c->s, (n + 1) * 8),
            *count = onnx__alloc(c->s, (n + 1) * 8);
    int64_t *inverse = onnx__alloc(c->s, (n + 1) * 8), *at = onnx__alloc(c->s, (n + 1) * 8),
            *group = onnx__alloc(c->s, (n + 1) * 8), m = 0;
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)i;
    ox_sort_rows(&rows, order, room);
    for (size_t i = 0; i < n; i++) { /* equal rows stand in the order of their places */
        if (i == 0 || ox_compare_rows(&rows, order[i - 1], order[i])) at[m++] = order[i];
        group[order[i]] = m - 1;
    }
    int64_t *rank = room, k = 0;
    for (int64_t i = 0; i < m; i++) rank[i] = sorted ? i : -1;
    for (size_t i = 0; i < n && !sorted; i++)
        if (rank[group[i]] < 0) rank[group[i]] = k++;
    int64_t *from = onnx__alloc(c->s, ((size_t)m + 1) * 8);
    for (int64_t i = 0; i < m; i++) from[rank[i]] = at[i];
    for (size_t i = 0; i < n; i++) count[inverse[i] = rank[group[i]]]++;
    ox_out_like(c, 0, gn_index_select(x, axis, ox_step_indices(c, from, m)), 0);
    ox_out_host(c, 1, ONNX_INT64, GN_SHAPE(m), from);
    ox_out_host(c, 2, ONNX_INT64, GN_SHAPE((int64_t)n), inverse);
    ox_out_host(c, 3, ONNX_INT64, GN_SHAPE(m), count);
}

/* ---- boxes ---- */

/* Boxes (B,N,4), scores (B,C,N): (…,3), image, class and box of those that are left, best first. */
static void ox_suppress(onnx__call *c) {
    gn_tensor boxes = ox_in(c, 0), scores = ox_in(c, 1);
    double least = ox_number(c, 4, (double)-INFINITY), overlap = ox_number(c, 3, 0);
    int64_t most = ox_integer(c, 2, 0), found = 0, N = c->failed ? 0 : ox_dim(boxes, 1);
    if (c->failed) return;
    gn_tensor kept = gn_non_max_suppression(boxes, scores,
                                            most < 0   ? 0
                                            : most < N ? most
                                                       : N,
                                            overlap, least, ox_int(c, "center_point_box", 0) != 0),
              is = gn_ge_c(kept, 0);
    c->s->counts.early_reads += c->g == c->s->g;
    if (gn_read(gn_count_nonzero(is, GN_ALL_AXES, false), &found, sizeof found) != GN_OK)
        onnx__no(c, "%s", gn_last_error(c->g)->text);
    if (c->failed) return;
    gn_tensor at = gn_nonzero(is, found),
              parts[2] = { gn_slice(at, 1, 0, 2, 1), gn_unsqueeze(gn_gather_nd(kept, at), 1) };
    ox_out(c, 0, gn_concat(parts, 2, 1));
}

/* ---- n-grams ---- */

typedef struct ox_grams {
    const int64_t *pool, *first, *place; /* runs of n numbers; by n where its runs begin; by run where it is counted */
    int n_pool, n_first, n_place;
    int64_t least, most, skips, width;
} ox_grams;

static bool ox_read_grams(onnx__call *c, ox_grams *g) {
    *g = (ox_grams){ .least = ox_int(c, "min_gram_length", 0),
                     .most = ox_int(c, "max_gram_length", 0),
                     .skips = ox_int(c, "max_skip_count", 0) };
    int64_t runs = 0;
    g->pool = ox_ints(c, "pool_int64s", &g->n_pool);
    g->first = ox_ints(c, "ngram_counts", &g->n_first);
    g->place = ox_ints(c, "ngram_indexes", &g->n_place);
    bool fits = g->pool && g->first && g->place && g->least >= 1 && g->least <= g->most && g->most <= g->n_first &&
                g->skips >= 0;
    for (int n = 0; fits && n < g->n_first; n++) {
        int64_t end = n + 1 < g->n_first ? g->first[n + 1] : g->n_pool, size = end - g->first[n];
        fits = g->first[n] >= 0 && size >= 0 && end <= g->n_pool && size % (n + 1) == 0;
        runs += fits ? size / (n + 1) : 0;
    }
    for (int i = 0; fits && i < g->n_place; i++) {
        fits = g->place[i] >= 0 && g->place[i] < ONNX__FOLD / 4;
        if (fits && g->place[i] >= g->width) g->width = g->place[i] + 1;
    }
    if (!fits || runs != g->n_place) onnx__no(c, "its n-grams of numbers do not fit their counts and places");
    else if (!ox_text_is(c, "mode", "TF", "")) onnx__no(c, "only the mode TF is built");
    return !c->failed;
}

/* Counts the runs of a row x (n) with `step` between their numbers. */
static void ox_count_grams(const ox_grams *g, const int64_t *x, int64_t n, int64_t step, float *count) {
    int64_t run = 0;
    for (int64_t size = 1; size <= g->n_first; size++) {
        int64_t end = size < g->n_first ? g->first[size] : g->n_pool;
        for (int64_t p = g->first[size - 1]; p < end; p += size, run++)
            for (int64_t i = 0; size >= g->least && size <= g->most && i < n && (size - 1) <= (n - 1 - i) / step; i++) {
                int64_t k = 0;
                while (k < size && x[i + k * step] == g->pool[p + k]) k++;
                if (k == size && (size > 1 || step == 1)) count[g->place[run]] += 1;
            }
    }
}

/* How often each of the n-grams is in a row (…,C), with up to max_skip_count numbers left out between each two. */
static void ox_grams_of(onnx__call *c) {
    ox_grams g;
    int n;
    gn_shape s = ox_in_shape(c, 0);
    const int64_t *x = ox_host_ints(c, 0, &n);
    if (s.rank < 1 || s.rank > 2) onnx__no(c, "an input of rank %d", s.rank);
    if (c->failed || !ox_read_grams(c, &g)) return;
    int64_t C = s.dims[s.rank - 1], rows = s.rank > 1 ? s.dims[0] : 1;
    if (g.width && rows > ONNX__FOLD / 4 / g.width)
        onnx__no(c, "%" PRId64 " rows of %" PRId64 " counts", rows, g.width);
    if (c->failed) return;
    float *count = onnx__alloc(c->s, (size_t)(rows * g.width + 1) * sizeof *count);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t step = 1; step <= g.skips + 1 && step <= (C > 1 ? C : 1); step++)
            ox_count_grams(&g, x + r * C, C, step, count + r * g.width);
    s.dims[s.rank - 1] = g.width;
    ox_out_host(c, 0, ONNX_FLOAT, s, count);
}

/* ---- bits ---- */

/* The same bits as another type of the same width. */
static void ox_bit_cast(onnx__call *c) {
    int64_t to = ox_int(c, "to", 0);
    onnx_type from = ox_type(c, 0);
    bool plain = onnx__is_plain((int)to) && onnx__is_plain(from);
    if (!plain || onnx_type_bits((int)to) != onnx_type_bits(from))
        onnx__no(c, "%s as %s", onnx_type_name(from), onnx_type_name((int)to));
    const void *host = c->failed ? NULL : ox_host(c, 0);
    if (host) ox_out_host(c, 0, (onnx_type)to, ox_in_shape(c, 0), host);
}
#endif
