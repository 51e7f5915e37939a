/* ops_ml.h - a part of onnx.h: ops of ai.onnx.ml on numbers: scaling and encoding, linear models, support vectors.
   Their models are attributes; x is rows (N,F), or one row (F). Where the specification leaves open what a score
   becomes, it becomes what onnxruntime makes of it. */
#ifndef ONNX_OPS_ML_H
#define ONNX_OPS_ML_H

/* ---- attributes and rows ---- */

/* Input i as f32 (or as it is, in f64) of rank 1 or 2. */
static gn_tensor ox_ml_input(onnx__call *c, int i, bool wide) {
    gn_tensor x = ox_in(c, i);
    if (!c->failed && (ox_rank(x) < 1 || ox_rank(x) > 2))
        onnx__no(c, "an input of rank %d: 1 and 2 are built", ox_rank(x));
    return c->failed ? GN_NONE : ox_cast(x, wide && onnx__dtype(x) == GN_F64 ? GN_F64 : GN_F32);
}

/* The same as rows (N,F) of f32. */
static gn_tensor ox_ml_rows(onnx__call *c) {
    gn_tensor x = ox_ml_input(c, 0, false);
    return c->failed || ox_rank(x) == 2 ? x : gn_unsqueeze(x, 0);
}

/* Floats of an attribute, exactly `want` of them; refused if there are others. */
static gn_tensor ox_ml_floats(onnx__call *c, const char *name, gn_shape shape) {
    int n;
    const float *v = ox_floats(c, name, &n);
    if ((size_t)n != onnx__elements(shape))
        onnx__no(c, "%d numbers in '%s', %zu are needed", n, name, onnx__elements(shape));
    return c->failed ? GN_NONE : ox_table(c, GN_F32, shape, v);
}

/* A number for each of F features, or one for all of them; GN_NONE where the attribute is left out. */
static gn_tensor ox_ml_by_feature(onnx__call *c, const char *name, int64_t F, gn_dtype d) {
    int n;
    ox_floats(c, name, &n);
    if (!n) return GN_NONE;
    gn_tensor t = ox_ml_floats(c, name, GN_SHAPE(n == 1 ? 1 : F));
    return c->failed ? GN_NONE : ox_cast(t, d);
}

/* Labels of classes that are ints. */
static int64_t *ox_ml_labels(onnx__call *c, const char *name, int *n) {
    int64_t *labels = ox_ints(c, name, n);
    if (!labels || !*n) onnx__no(c, "there are no '%s'", name);
    return c->failed ? NULL : labels;
}

/* Output 0: a label for each number of `at` (N). */
static void ox_out_labels(onnx__call *c, const int64_t *labels, int n, gn_tensor at) {
    if (!c->failed) ox_out(c, 0, gn_index_select(ox_indices(c, labels, n), 0, at));
}

/* ---- scaling and encoding ---- */

static void ox_scaler(onnx__call *c) {
    gn_tensor x = ox_ml_input(c, 0, true);
    if (c->failed) return;
    gn_dtype d = onnx__dtype(x);
    gn_tensor offset = ox_ml_by_feature(c, "offset", ox_dim(x, -1), d),
              scale = ox_ml_by_feature(c, "scale", ox_dim(x, -1), d);
    if (offset.ctx) x = gn_sub(x, offset);
    if (scale.ctx) x = gn_mul(x, scale);
    if (!c->failed) ox_out(c, 0, ox_cast(x, GN_F32));
}

static void ox_normalizer(onnx__call *c) {
    gn_tensor x = ox_ml_input(c, 0, false), by = GN_NONE;
    if (c->failed) return;
    gn_axes last = GN_AXES(ox_rank(x) - 1);
    if (ox_text_is(c, "norm", "MAX", "MAX")) by = gn_max(x, last, true);
    else if (ox_text_is(c, "norm", "L1", "MAX")) by = gn_l1_norm(x, last, true);
    else by = gn_l2_norm(x, last, true);
    ox_out(c, 0, gn_div(x, gn_where(gn_eq_c(by, 0), gn_like(by, 1), by)));
}

static void ox_binarizer(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    ox_out_like(c, 0, ox_cast(gn_gt_c(x, ox_float(c, "threshold", 0)), ox_dtype(c, 0)), 0);
}

/* Elements of one value become another, the same in all columns or one for each. */
static void ox_imputer(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), hit, by;
    int n;
    if (!c->failed && !ox_rank(x)) onnx__no(c, "an input of rank 0");
    if (c->failed) return;
    gn_dtype d = ox_dtype(c, 0);
    int64_t F = ox_dim(x, -1);
    if (ox_is_float(d)) {
        double from = ox_float(c, "replaced_value_float", 0);
        by = ox_ml_by_feature(c, "imputed_value_floats", F, d);
        hit = isnan(from) ? gn_isnan(x) : gn_eq_c(x, from);
    } else {
        const int64_t *to = ox_ints(c, "imputed_value_int64s", &n);
        if (n && n != 1 && n != F)
            onnx__no(c, "%d numbers in 'imputed_value_int64s', 1 or %" PRId64 " are needed", n, F);
        if (c->failed) return;
        by = n ? ox_cast(ox_indices(c, to, n), d) : GN_NONE;
        hit = gn_eq(x, ox_cast(gn_full_i64(c->g, GN_I64, GN_SCALAR, ox_int(c, "replaced_value_int64", 0)), d));
    }
    if (!by.ctx) onnx__no(c, "no value for %s to put in", onnx_type_name(ox_type(c, 0)));
    if (!c->failed) ox_out_like(c, 0, gn_where(hit, by, x), 0);
}

static void ox_array_feature(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), index = ox_in(c, 1);
    if (c->failed) return;
    int rank = ox_rank(x);
    int64_t n = (int64_t)onnx__elements(onnx__shape(index));
    gn_tensor y = gn_index_select(x, rank - 1, gn_reshape(gn_from_end(index, ox_dim(x, -1)), GN_SHAPE(n)));
    ox_out_like(c, 0, rank == 1 ? gn_reshape(y, GN_SHAPE(1, n)) : y, 0);
}

/* Inputs side by side, each cut or filled up with zeros to its width. */
static void ox_feature_vectorizer(onnx__call *c) {
    int n;
    const int64_t *width = ox_ints(c, "inputdimensions", &n);
    gn_tensor *parts = onnx__alloc(c->s, ((size_t)c->n_in + 1) * sizeof *parts);
    if (n != c->n_in || !n) onnx__no(c, "%d numbers in 'inputdimensions', %d are needed", n, c->n_in);
    for (int i = 0; i < n && !c->failed; i++) {
        gn_tensor x = ox_in(c, i);
        if (!ox_has(c, i) || width[i] < 0 || width[i] > ONNX__EXTENT)
            onnx__no(c, "input %d of width %" PRId64, i, width[i]);
        if (c->failed) return;
        gn_shape s = onnx__shape(x), none = GN_SHAPE(0, 0), more = none;
        int64_t N = s.rank > 1 ? s.dims[0] : 1, all = (int64_t)onnx__elements(s), F = N ? all / N : width[i];
        x = ox_cast(gn_reshape(x, GN_SHAPE(N, F)), GN_F32);
        more.dims[1] = width[i] > F ? width[i] - F : 0;
        parts[i] = more.dims[1] ? gn_pad(x, none, more, GN_PAD_CONSTANT, 0) : gn_slice(x, 1, 0, width[i], 1);
    }
    if (!c->failed) ox_out(c, 0, ox_join(c, parts, n, 1));
}

/* ---- numbers for others ---- */

/* A list in an attribute of ints or floats, or, by its other name, in a tensor: as a tensor (n) of its dtype. */
static gn_tensor ox_ml_list(onnx__call *c, const char *ints, const char *floats, const char *tensor, int64_t *n) {
    int count = 0;
    const int64_t *a = ox_ints(c, ints, &count);
    *n = count;
    if (a && count) return ox_indices(c, a, count);
    const float *b = ox_floats(c, floats, &count);
    *n = count;
    if (b && count) return ox_table(c, GN_F32, GN_SHAPE(count), b);
    onnx_span at = ox_attribute(c, tensor);
    onnx__value *v = at.at ? ox_attribute_tensor(c, at) : NULL;
    if (at.at && !v) onnx__no(c, "'%s': %s", tensor, c->s->error);
    if (!at.at) onnx__no(c, "there is none of '%s', '%s' and '%s'", ints, floats, tensor);
    if (c->failed) return GN_NONE;
    *n = (int64_t)onnx__elements(v->shape);
    gn_tensor t = onnx__tensor_in(c->s, v, c->g);
    if (!t.ctx) onnx__no(c, "'%s': %s", tensor, c->s->error);
    return c->failed ? GN_NONE : gn_reshape(t, GN_SHAPE(*n));
}

/* What an element becomes that is no key, (1) of the dtype of values. */
static gn_tensor ox_label_default(onnx__call *c, gn_dtype d) {
    onnx_span at = ox_attribute(c, "default_tensor");
    onnx__value *v = at.at ? ox_attribute_tensor(c, at) : NULL;
    if (v && onnx__elements(v->shape) == 1) {
        gn_tensor t = onnx__tensor_in(c->s, v, c->g);
        return t.ctx ? ox_cast(gn_reshape(t, GN_SHAPE(1)), d) : GN_NONE;
    }
    if (ox_is_float(d)) return gn_full(c->g, d, GN_SHAPE(1), ox_float(c, "default_float", -0.0));
    return ox_cast(gn_full_i64(c->g, GN_I64, GN_SHAPE(1), ox_int(c, "default_int64", -1)), d);
}

/* Which of the keys (n) each element of x is, the first of equal ones; n: none. */
static gn_tensor ox_place_of(onnx__call *c, gn_tensor x, gn_tensor keys, int64_t n, bool nan) {
    gn_tensor wide = gn_unsqueeze(x, ox_rank(x)), is = gn_eq(wide, keys);
    if (nan && ox_is_float(onnx__dtype(x))) is = gn_or(is, gn_and(gn_isnan(wide), gn_isnan(keys)));
    gn_tensor place = gn_arange_i64(c->g, GN_I64, n, 0, 1);
    return gn_min(gn_where(is, place, gn_like(place, (double)n)), GN_AXES(ox_rank(x)), false);
}

static void ox_label_encoder(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int64_t n, m = 0;
    gn_tensor keys = ox_ml_list(c, "keys_int64s", "keys_floats", "keys_tensor", &n), values = GN_NONE;
    if (!c->failed) values = ox_ml_list(c, "values_int64s", "values_floats", "values_tensor", &m);
    if (!c->failed && (n != m || !n)) onnx__no(c, "%" PRId64 " keys and %" PRId64 " values", n, m);
    if (!c->failed && onnx__dtype(keys) != ox_dtype(c, 0))
        onnx__no(c, "keys of another type than %s", onnx_type_name(ox_type(c, 0)));
    if (!c->failed && ox_rank(x) == GN_MAX_RANK) onnx__no(c, "an input of rank %d", GN_MAX_RANK);
    if (c->failed) return;
    gn_tensor parts[2] = { values, ox_label_default(c, onnx__dtype(values)) };
    if (!parts[1].ctx) return onnx__no(c, "'default_tensor' is not held");
    gn_tensor at = ox_place_of(c, x, keys, n, c->version >= 4);
    at = gn_reshape(at, GN_SHAPE((int64_t)onnx__elements(onnx__shape(x))));
    ox_out(c, 0, gn_reshape(gn_index_select(gn_concat(parts, 2, 0), 0, at), onnx__shape(x)));
}

/* (…) to (…,K) of f32, 1 where the element is the category, the last of equal ones. */
static void ox_one_hot_encoder(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int n;
    const int64_t *cats = ox_ml_labels(c, "cats_int64s", &n);
    if (!c->failed && ox_rank(x) > 2) onnx__no(c, "an input of rank %d", ox_rank(x));
    if (c->failed) return;
    uint8_t *last = onnx__alloc(c->s, (size_t)n), all = 1;
    for (int i = 0; i < n; i++) {
        last[i] = 1;
        for (int k = i + 1; k < n; k++) last[i] &= cats[k] != cats[i];
    }
    gn_tensor is = gn_eq(gn_unsqueeze(ox_cast(x, GN_I64), ox_rank(x)), ox_indices(c, cats, n));
    is = gn_and(is, ox_table(c, GN_BOOL, GN_SHAPE(n), last));
    if (!ox_int(c, "zeros", 1)) {
        c->s->counts.early_reads += c->g == c->s->g;
        gn_tensor found = gn_eq_c(gn_count_nonzero(is, GN_AXES(ox_rank(x)), false), 1);
        if (gn_read(gn_all(found, GN_ALL_AXES, false), &all, 1) != GN_OK) onnx__no(c, "%s", gn_last_error(c->g)->text);
        if (!all) onnx__no(c, "an element is none of 'cats_int64s', and 'zeros' is 0");
    }
    if (!c->failed) ox_out(c, 0, gn_cast(is, GN_F32));
}

/* ---- scores ---- */

/* The quantile of the normal distribution, by the approximation that onnxruntime has. */
static gn_tensor ox_probit(gn_tensor p) {
    gn_tensor x = gn_sub_c(gn_mul_c(p, 2), 1), l = gn_log(gn_sub(gn_like(x, 1), gn_square(x)));
    gn_tensor v = gn_add_c(gn_mul_c(l, 0.5), 2 / (3.14159 * 0.147)), w = gn_mul_c(l, 1 / 0.147);
    gn_tensor y = gn_sqrt(gn_sub(gn_sqrt(gn_sub(gn_square(v), w)), v));
    return gn_mul_c(gn_copysign(y, x), 1.41421356);
}

/* Softmax over the last axis of what is not 0. */
static gn_tensor ox_softmax_zero(gn_tensor x) {
    gn_axes last = GN_AXES(ox_rank(x) - 1);
    gn_tensor is = gn_gt_c(gn_abs(x), 1e-7), most = gn_max(x, last, true), e = gn_exp(gn_sub(x, most));
    gn_tensor sum = gn_sum(gn_where(is, e, gn_like(e, 0)), last, true);
    return gn_div(gn_where(is, e, gn_mul(x, gn_exp(gn_neg(most)))), sum);
}

/* Scores (N,K) by post_transform. One score alone is not transformed but by PROBIT. */
static gn_tensor ox_scores(onnx__call *c, gn_tensor x) {
    int64_t K = ox_dim(x, 1);
    if (ox_text_is(c, "post_transform", "PROBIT", "NONE")) return ox_probit(x);
    if (K < 2 || ox_text_is(c, "post_transform", "NONE", "NONE")) return x;
    if (ox_text_is(c, "post_transform", "LOGISTIC", "NONE")) return gn_sigmoid(x);
    return ox_text_is(c, "post_transform", "SOFTMAX", "NONE") ? gn_softmax(x, 1) : ox_softmax_zero(x);
}

/* Scores x (N,1) of the second of two classes as scores of both: 1 - x and x, or, where some are below 0, -x and x. */
static gn_tensor ox_both_scores(onnx__call *c, gn_tensor x, bool mixed) {
    bool logistic = ox_text_is(c, "post_transform", "LOGISTIC", "NONE");
    if (ox_text_is(c, "post_transform", "PROBIT", "NONE")) onnx__no(c, "one score of two classes by PROBIT");
    gn_tensor parts[2] = { mixed || logistic ? gn_neg(x) : gn_sub(gn_like(x, 1), x), x };
    for (int i = 0; logistic && i < 2; i++) parts[i] = gn_sigmoid(parts[i]);
    return gn_concat(parts, 2, 1);
}

/* ---- linear models ---- */

/* x (N,F) by coefficients of K rows, and intercepts. */
static gn_tensor ox_linear_scores(onnx__call *c, int64_t K) {
    gn_tensor x = ox_ml_rows(c);
    if (K < 1 || K > ONNX__EXTENT) onnx__no(c, "%" PRId64 " results", K);
    if (c->failed) return GN_NONE;
    gn_tensor w = ox_ml_floats(c, "coefficients", GN_SHAPE(K, ox_dim(x, 1)));
    int n;
    ox_floats(c, "intercepts", &n);
    gn_tensor b = n ? ox_ml_floats(c, "intercepts", GN_SHAPE(K)) : GN_NONE;
    if (c->failed) return GN_NONE;
    gn_tensor y = gn_matmul(x, gn_transpose(w, 0, 1));
    return b.ctx ? gn_add(y, b) : y;
}

static void ox_linear_regressor(onnx__call *c) {
    gn_tensor y = ox_linear_scores(c, ox_int(c, "targets", 1));
    if (!c->failed) ox_out(c, 0, ox_scores(c, y));
}

/* The first of the greatest of scores (N,K): (N). */
static gn_tensor ox_greatest(gn_tensor scores) { return gn_argmax(scores, GN_AXES(1), false); }

/* Intercepts say how many rows there are: one for each class, or one for the second of two. */
static void ox_linear_classifier(onnx__call *c) {
    int n, K;
    const int64_t *labels = ox_ml_labels(c, "classlabels_ints", &n);
    ox_floats(c, "intercepts", &K);
    if (!K) K = n; /* left out */
    if (!c->failed && n != (K == 1 ? 2 : K)) onnx__no(c, "%d labels of %d intercepts", n, K);
    if (K == 1 && ox_text_is(c, "post_transform", "PROBIT", "NONE"))
        onnx__no(c, "one score is not transformed by PROBIT");
    gn_tensor y = c->failed ? GN_NONE : ox_linear_scores(c, K);
    if (c->failed) return;
    gn_tensor at = K > 1 ? ox_greatest(y) : gn_reshape(ox_cast(gn_gt_c(y, 0), GN_I64), GN_SHAPE(ox_dim(y, 0)));
    ox_out_labels(c, labels, n, at);
    if (!c->failed) ox_out(c, 1, K == 1 ? ox_both_scores(c, y, false) : ox_scores(c, y));
}

/* ---- support vectors ---- */

/* The kernel of rows x (N,F) and vectors (V,F): (N,V). */
static gn_tensor ox_svm_kernel(onnx__call *c, gn_tensor x, gn_tensor vectors) {
    int n;
    const float *p = ox_floats(c, "kernel_params", &n);
    if (n && n != 3) onnx__no(c, "%d kernel parameters: gamma, coef0 and degree are needed", n);
    if (c->failed) return GN_NONE;
    double gamma = n ? (double)p[0] : 0, coef = n ? (double)p[1] : 0, degree = n ? (double)p[2] : 0;
    if (ox_text_is(c, "kernel_type", "RBF", "LINEAR")) {
        gn_tensor away = gn_sub(gn_unsqueeze(x, 1), gn_unsqueeze(vectors, 0));
        return gn_exp(gn_mul_c(gn_sum(gn_square(away), GN_AXES(2), false), -gamma));
    }
    gn_tensor y = gn_matmul(x, gn_transpose(vectors, 0, 1));
    if (ox_text_is(c, "kernel_type", "LINEAR", "LINEAR")) return y;
    y = gn_add_c(gn_mul_c(y, gamma), coef);
    return ox_text_is(c, "kernel_type", "POLY", "LINEAR") ? gn_pow_c(y, degree) : gn_tanh(y);
}

static void ox_svm_regressor(onnx__call *c) {
    gn_tensor x = ox_ml_rows(c), y;
    int64_t V = ox_int(c, "n_supports", 0);
    if (V < 0 || V > ONNX__EXTENT) onnx__no(c, "%" PRId64 " vectors", V);
    if (!ox_text_is(c, "post_transform", "NONE", "NONE")) onnx__no(c, "only the post_transform NONE is built");
    if (c->failed) return;
    int64_t F = ox_dim(x, 1);
    gn_tensor rho = ox_ml_floats(c, "rho", GN_SHAPE(1)), w = ox_ml_floats(c, "coefficients", GN_SHAPE(V ? V : F, 1));
    if (V && !c->failed) x = ox_svm_kernel(c, x, ox_ml_floats(c, "support_vectors", GN_SHAPE(V, F)));
    if (c->failed) return;
    y = gn_add(gn_matmul(x, w), rho);
    if (ox_int(c, "one_class", 0)) y = gn_where(gn_gt_c(y, 0), gn_like(y, 1), gn_like(y, -1));
    ox_out(c, 0, y);
}

typedef struct ox_svm {
    int n;        /* classes */
    int64_t V, F; /* vectors, features */
    const int64_t *labels;
    int64_t *each; /* vectors of each class */
} ox_svm;

/* Scores (N,P) of the pairs of classes, (0,1), (0,2), … (1,2), …. Row j - 1 or j of the coefficients is for the pairs
   with class j. */
static gn_tensor ox_svm_pairs(onnx__call *c, const ox_svm *m, gn_tensor x) {
    int n, P = m->n * (m->n - 1) / 2;
    const float *w = ox_floats(c, "coefficients", &n);
    if (n != (m->n - 1) * m->V) onnx__no(c, "%d coefficients, %" PRId64 " are needed", n, (m->n - 1) * m->V);
    if ((size_t)P > ONNX__FOLD / sizeof *w / (size_t)m->V) onnx__no(c, "%d pairs of classes", P);
    gn_tensor rho = ox_ml_floats(c, "rho", GN_SHAPE(P));
    gn_tensor k = c->failed ? GN_NONE : ox_svm_kernel(c, x, ox_ml_floats(c, "support_vectors", GN_SHAPE(m->V, m->F)));
    if (c->failed) return GN_NONE;
    float *by = onnx__alloc(c->s, (size_t)P * (size_t)m->V * sizeof *by), *to = by;
    for (int64_t i = 0, at_i = 0; i < m->n; at_i += m->each[i++])
        for (int64_t j = i + 1, at_j = at_i + m->each[i]; j < m->n; at_j += m->each[j++], to += m->V) {
            memcpy(to + at_i, w + (j - 1) * m->V + at_i, (size_t)m->each[i] * sizeof *by);
            memcpy(to + at_j, w + i * m->V + at_j, (size_t)m->each[j] * sizeof *by);
        }
    return gn_add(gn_matmul(k, gn_transpose(ox_table(c, GN_F32, GN_SHAPE(P, m->V), by), 0, 1)), rho);
}

/* Which class most of the pairs are for: (N). */
static gn_tensor ox_svm_votes(onnx__call *c, const ox_svm *m, gn_tensor pairs) {
    int64_t P = ox_dim(pairs, 1), p = 0;
    float *yes = onnx__alloc(c->s, 2 * (size_t)P * (size_t)m->n * sizeof *yes), *no = yes + P * m->n;
    for (int i = 0; i < m->n; i++)
        for (int j = i + 1; j < m->n; j++, p++) yes[p * m->n + i] = no[p * m->n + j] = 1;
    gn_tensor won = gn_cast(gn_gt_c(pairs, 0), GN_F32), a = ox_table(c, GN_F32, GN_SHAPE(P, m->n), yes),
              b = ox_table(c, GN_F32, GN_SHAPE(P, m->n), no);
    return ox_greatest(gn_add(gn_matmul(won, a), gn_matmul(gn_sub(gn_like(won, 1), won), b)));
}

/* Probabilities p of n classes from those of pairs, r of n by n (Wu, Lin and Weng 2004, method 2, as libsvm has it). */
static void ox_svm_couple(int n, const float *r, float *q, float *qp, float *p) {
    float least = 0.005f / (float)n;
    for (int i = 0; i < n; i++) {
        p[i] = 1.0f / (float)n;
        for (int j = 0; j < n; j++) {
            if (j != i) q[i * n + j] = -r[j * n + i] * r[i * n + j];
            if (!j) q[i * n + i] = 0;
        }
        for (int j = 0; j < n; j++)
            if (j != i) q[i * n + i] += r[j * n + i] * r[j * n + i];
    }
    for (int loop = 0; loop < 100; loop++) {
        float all = 0, most = 0;
        for (int i = 0; i < n; i++) {
            qp[i] = 0;
            for (int j = 0; j < n; j++) qp[i] += q[i * n + j] * p[j];
            all += p[i] * qp[i];
        }
        for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(qp[i] - all));
        if (most < least) break;
        for (int i = 0; i < n; i++) {
            float d = (-qp[i] + all) / q[i * n + i];
            p[i] += d;
            all = (all + d * (d * q[i * n + i] + 2 * qp[i])) / (1 + d) / (1 + d);
            for (int j = 0; j < n; j++) {
                qp[j] = (qp[j] + d * q[i * n + j]) / (1 + d);
                p[j] /= 1 + d;
            }
        }
    }
}

/* Probabilities (N,classes) from scores of pairs: an iteration that ends row by row, so the builder does it. */
static gn_tensor ox_svm_probabilities(onnx__call *c, const ox_svm *m, gn_tensor pairs) {
    int64_t N = ox_dim(pairs, 0), P = ox_dim(pairs, 1);
    gn_tensor a = ox_ml_floats(c, "prob_a", GN_SHAPE(P)), b = ox_ml_floats(c, "prob_b", GN_SHAPE(P));
    if (c->failed) return GN_NONE;
    size_t n = (size_t)m->n, square = n * n, bytes = (size_t)(N * P) * sizeof(float);
    float *of = onnx__alloc(c->s, bytes + 1), *out = onnx__alloc(c->s, ((size_t)N * n + 1) * sizeof *out);
    float *r = onnx__alloc(c->s, (2 * square + n) * sizeof *r), *q = r + square, *qp = q + square;
    gn_tensor won = gn_clamp(gn_sigmoid(gn_neg(gn_add(gn_mul(pairs, a), b))), (double)1e-7f, (double)(1 - 1e-7f));
    c->s->counts.early_reads += c->g == c->s->g;
    c->s->counts.on_host++;
    if (bytes && gn_read(won, of, bytes) != GN_OK) onnx__no(c, "%s", gn_last_error(c->g)->text);
    for (int64_t row = 0; row < N && !c->failed; row++) {
        const float *at = of + row * P;
        for (size_t i = 0; i < n; i++)
            for (size_t j = i + 1; j < n; j++, at++) {
                r[i * n + j] = *at;
                r[j * n + i] = 1 - *at;
            }
        ox_svm_couple(m->n, r, q, qp, out + (size_t)row * n);
    }
    return c->failed ? GN_NONE : gn_data_copy(c->g, GN_F32, GN_SHAPE(N, m->n), N ? (const void *)out : "");
}

static bool ox_svm_read(onnx__call *c, ox_svm *m, gn_tensor x) {
    int n;
    m->labels = ox_ml_labels(c, "classlabels_ints", &m->n);
    m->each = ox_ints(c, "vectors_per_class", &n);
    for (int i = 0; i < n && !c->failed; i++) {
        if (m->each[i] < 0 || m->each[i] > ONNX__EXTENT) onnx__no(c, "%" PRId64 " vectors of class %d", m->each[i], i);
        m->V += m->each[i];
    }
    if (!c->failed && m->V && n != m->n) onnx__no(c, "%d numbers in 'vectors_per_class', %d are needed", n, m->n);
    if (!c->failed && m->V && (m->n < 2 || m->n > 4096)) onnx__no(c, "%d classes", m->n);
    if (!c->failed) m->F = ox_dim(x, 1);
    return !c->failed;
}

/* One row of coefficients a class. Of two classes the second one is chosen by its own sign. */
static void ox_svm_linear(onnx__call *c, const ox_svm *m, gn_tensor x) {
    int n;
    const float *w = ox_floats(c, "coefficients", &n);
    float least = 0;
    for (int i = 0; i < n; i++) least = fminf(least, w[i]);
    gn_tensor rho = ox_ml_floats(c, "rho", GN_SHAPE(1)), by = ox_ml_floats(c, "coefficients", GN_SHAPE(m->n, m->F));
    if (c->failed) return;
    gn_tensor y = gn_add(gn_matmul(x, gn_transpose(by, 0, 1)), rho), at = ox_greatest(y);
    gn_tensor most = gn_max(y, GN_AXES(1), false);
    if (m->n == 2) at = gn_where(least < 0 ? gn_gt_c(most, 0) : gn_ge_c(most, 0.5), gn_like(at, 1), at);
    ox_out_labels(c, m->labels, m->n, at);
    if (!c->failed) ox_out(c, 1, ox_scores(c, y));
}

static void ox_svm_classifier(onnx__call *c) {
    ox_svm m = { 0 };
    gn_tensor x = ox_ml_rows(c), scores;
    bool certain = !ox_has_attribute(c, "prob_a"), none = ox_text_is(c, "post_transform", "NONE", "NONE");
    int n;
    if (c->failed || !ox_svm_read(c, &m, x)) return;
    if (!certain) certain = (ox_floats(c, "prob_a", &n), n == 0);
    if (!m.V) return ox_svm_linear(c, &m, x);
    gn_tensor pairs = ox_svm_pairs(c, &m, x);
    if (c->failed) return;
    scores = certain ? pairs : ox_svm_probabilities(c, &m, pairs);
    if (c->failed) return;
    ox_out_labels(c, m.labels, m.n, ox_svm_votes(c, &m, pairs));
    if (c->failed) return;
    ox_out(c, 1, certain && m.n == 2 ? ox_both_scores(c, scores, none) : ox_scores(c, scores));
}
#endif
