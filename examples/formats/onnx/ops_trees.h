/* ops_trees.h - a part of onnx.h: ensembles of decision trees. All rows go down all trees at once, a level at a time:
   where each stands is a number of a node, by which what the node asks is looked up. */
#ifndef ONNX_OPS_TREES_H
#define ONNX_OPS_TREES_H

enum { OX_TREE_LEVELS = 1024 };
enum ox_tree_mode { OX_LEQ, OX_LT, OX_GTE, OX_GT, OX_EQ, OX_NEQ, OX_MEMBER, OX_TREE_MODES };

typedef struct ox_trees {
    int n, leaves, roots, levels, members; /* members: of the largest set; 0: there are none */
    int64_t *feature, *mode, *yes, *no;    /* of nodes, then of leaves, which lead to themselves */
    int64_t *missing, *root;
    int64_t targets;
    double *split, *set; /* set: rows of `members`, what is left over is NaN */
    double *value;       /* (leaves, targets) */
    bool used[OX_TREE_MODES];
    gn_dtype dtype; /* what is computed with */
} ox_trees;

/* Ints of an attribute, exactly `want` of them; NULL: refused, or left out where that is allowed. */
static int64_t *ox_tree_ints(onnx__call *c, const char *name, int want, bool needed) {
    int n;
    int64_t *out = ox_ints(c, name, &n);
    if (!out && !needed) return NULL;
    if (!out || n != want) onnx__no(c, "%d numbers in '%s', %d are needed", n, name, want);
    return c->failed ? NULL : out;
}

/* Numbers of an attribute that is a tensor; `want` below 0: any count. */
static double *ox_tree_numbers(onnx__call *c, const char *name, int want, int *out_n) {
    onnx_span a = ox_attribute(c, name);
    onnx__value *v = a.at ? ox_attribute_tensor(c, a) : NULL;
    *out_n = 0;
    if (!v) {
        onnx__no(c, "the tensor '%s' is missing or not held", name);
        return NULL;
    }
    size_t n = onnx__elements(v->shape);
    const void *host = n <= ONNX__FOLD / sizeof(double) ? onnx__host(c->s, v) : NULL;
    double *out = onnx__alloc(c->s, (host ? n + 1 : 1) * sizeof *out);
    if (!host || (want >= 0 && n != (size_t)want)) {
        onnx__no(c, "%zu numbers in '%s', %d are needed", n, name, want);
        return NULL;
    }
    gn_dtype d = onnx_type_dtype(v->type);
    gn_tensor wide = gn_cast(gn_data(c->s->fold, d, GN_SHAPE((int64_t)n), n ? host : ""), GN_F64);
    if (n && gn_read(wide, out, n * sizeof *out) != GN_OK) onnx__no(c, "%s", gn_last_error(c->s->fold)->text);
    *out_n = (int)n;
    return c->failed ? NULL : out;
}

/* Where the branches of a node lead, leaves behind the nodes. */
static int64_t *ox_tree_branches(onnx__call *c, const ox_trees *t, const char *ids, const char *leafs) {
    int64_t *id = ox_tree_ints(c, ids, t->n, true), *leaf = ox_tree_ints(c, leafs, t->n, true);
    int64_t *out = onnx__alloc(c->s, (size_t)(t->n + t->leaves + 1) * sizeof *out);
    for (int i = 0; i < t->n && !c->failed; i++) {
        if (id[i] < 0 || id[i] >= (leaf[i] ? t->leaves : t->n)) onnx__no(c, "'%s': there is no %" PRId64, ids, id[i]);
        out[i] = id[i] + (leaf[i] ? t->n : 0);
    }
    for (int i = 0; i < t->leaves; i++) out[t->n + i] = t->n + i;
    return out;
}

/* How often all rows have to go down until each stands on a leaf. */
static void ox_tree_levels(onnx__call *c, ox_trees *t) {
    uint8_t *at = onnx__alloc(c->s, 2 * ((size_t)t->n + 1)), *next = at + t->n + 1;
    for (int i = 0; i < t->roots && !c->failed; i++)
        if (t->root[i] < 0 || t->root[i] >= t->n) onnx__no(c, "there is no root %" PRId64, t->root[i]);
        else at[t->root[i]] = 1;
    for (bool inside = true; inside && !c->failed; t->levels += inside) {
        inside = false;
        memset(next, 0, (size_t)t->n);
        for (int i = 0; i < t->n; i++) {
            if (!at[i]) continue;
            inside = true;
            if (t->yes[i] < t->n) next[t->yes[i]] = 1;
            if (t->no[i] < t->n) next[t->no[i]] = 1;
        }
        uint8_t *was = at;
        at = next;
        next = was;
        if (t->levels >= OX_TREE_LEVELS) onnx__no(c, "trees of more than %d levels, or that lead back", OX_TREE_LEVELS);
    }
}

/* One set for each node that asks for membership, in the order of the nodes, with a NaN behind each. */
static void ox_tree_sets(onnx__call *c, ox_trees *t) {
    int n = 0, at = 0, size = 0;
    double *all = t->used[OX_MEMBER] ? ox_tree_numbers(c, "membership_values", -1, &n) : NULL;
    for (int i = 0; all && i < n; i++) {
        size = isnan(all[i]) ? 0 : size + 1;
        t->members = size > t->members ? size : t->members;
    }
    size_t rows = (size_t)(t->n + t->leaves);
    if (c->failed || !all) return;
    if (t->members < 1) t->members = 1; /* sets that are empty */
    if (rows > ONNX__FOLD / sizeof(double) / (size_t)t->members) {
        onnx__no(c, "%d nodes with sets of up to %d", t->n, t->members);
        return;
    }
    t->set = onnx__alloc(c->s, rows * (size_t)t->members * sizeof *t->set);
    for (size_t i = 0; i < rows * (size_t)t->members; i++) t->set[i] = NAN;
    for (int i = 0; i < t->n && !c->failed; i++) {
        if (t->mode[i] != OX_MEMBER) continue;
        double *row = t->set + (size_t)i * (size_t)t->members;
        while (at < n && !isnan(all[at])) *row++ = all[at++];
        if (at++ >= n) onnx__no(c, "'membership_values' has fewer sets than there are nodes that ask for one");
    }
    if (!c->failed && at != n) onnx__no(c, "'membership_values' has more sets than there are nodes that ask for one");
}

/* What each leaf says of each target; one that it says nothing of has what changes no result. */
static void ox_tree_leaves(onnx__call *c, ox_trees *t, int64_t aggregate) {
    int n;
    double *weight = ox_tree_numbers(c, "leaf_weights", t->leaves, &n), most = DBL_MAX, none = 0;
    int64_t *target = ox_tree_ints(c, "leaf_targetids", t->leaves, true);
    t->targets = ox_int(c, "n_targets", 1);
    if (c->failed) return;
    if (t->targets < 1 || t->leaves < 1 || t->targets > ONNX__FOLD / (int64_t)sizeof(double) / t->leaves) {
        onnx__no(c, "%" PRId64 " targets of %d leaves", t->targets, t->leaves);
        return;
    }
    if (t->dtype == GN_F32) most = ox_type(c, 0) == ONNX_FLOAT ? FLT_MAX : 65504;
    if (aggregate > 1) none = aggregate == 2 ? most : -most;
    size_t all = (size_t)(t->leaves * t->targets);
    t->value = onnx__alloc(c->s, all * sizeof *t->value);
    for (size_t i = 0; i < all; i++) t->value[i] = none;
    for (int i = 0; i < t->leaves && !c->failed; i++)
        if (target[i] < 0 || target[i] >= t->targets) onnx__no(c, "there is no target %" PRId64, target[i]);
        else t->value[(size_t)(i * t->targets + target[i])] = weight[i];
}

static void ox_tree_read(onnx__call *c, ox_trees *t) {
    int n;
    int64_t features = ox_dim(ox_in(c, 0), 1);
    ox_ints(c, "nodes_featureids", &t->n);
    ox_ints(c, "leaf_targetids", &t->leaves);
    t->root = ox_ints(c, "tree_roots", &t->roots);
    size_t rows = (size_t)t->n + (size_t)t->leaves;
    double *mode = ox_tree_numbers(c, "nodes_modes", t->n, &n), *split = ox_tree_numbers(c, "nodes_splits", t->n, &n);
    int64_t *feature = ox_tree_ints(c, "nodes_featureids", t->n, true),
            *missing = ox_tree_ints(c, "nodes_missing_value_tracks_true", t->n, false);
    t->yes = ox_tree_branches(c, t, "nodes_truenodeids", "nodes_trueleafs");
    t->no = ox_tree_branches(c, t, "nodes_falsenodeids", "nodes_falseleafs");
    if (t->n < 1 || t->roots < 1) onnx__no(c, "%d trees of %d nodes", t->roots, t->n);
    if (c->failed) return;
    t->mode = onnx__alloc(c->s, rows * sizeof *t->mode);
    t->feature = onnx__alloc(c->s, rows * sizeof *t->feature);
    t->missing = missing ? onnx__alloc(c->s, rows * sizeof *t->missing) : NULL;
    t->split = onnx__alloc(c->s, rows * sizeof *t->split);
    for (int i = 0; i < t->n && !c->failed; i++) {
        if (feature[i] < 0 || feature[i] >= features)
            onnx__no(c, "node %d asks for feature %" PRId64 " of %" PRId64, i, feature[i], features);
        if (!(mode[i] >= 0 && mode[i] < OX_TREE_MODES)) onnx__no(c, "node %d has the mode %g", i, mode[i]);
        if (c->failed) return;
        t->mode[i] = (int64_t)mode[i];
        t->used[t->mode[i]] = true;
        t->feature[i] = feature[i];
        t->split[i] = split[i];
        if (missing) t->missing[i] = missing[i];
    }
    ox_tree_levels(c, t);
    ox_tree_sets(c, t);
}

/* Rows of a host table of doubles, (rows, width), by numbers of nodes (N,T): (N,T,width) of the computing dtype. */
static gn_tensor ox_tree_find(onnx__call *c, const ox_trees *t, const double *host, int64_t rows, int64_t width,
                              gn_tensor at) {
    gn_tensor table = gn_cast(ox_table(c, GN_F64, GN_SHAPE(rows, width), host), t->dtype);
    return gn_embedding(table, at);
}

static gn_tensor ox_tree_find_int(onnx__call *c, const ox_trees *t, const int64_t *host, gn_tensor at) {
    gn_tensor table = ox_table(c, GN_I64, GN_SHAPE(t->n + t->leaves, 1), host);
    return gn_reshape(gn_embedding(table, at), onnx__shape(at));
}

/* What the nodes at `at` say of the rows x (N,F), bool (N,T). */
static gn_tensor ox_tree_ask(onnx__call *c, const ox_trees *t, gn_tensor x, gn_tensor at) {
    gn_tensor (*const compare[])(const char *, int, gn_tensor, gn_tensor) = { gn_le_at, gn_lt_at, gn_ge_at,
                                                                              gn_gt_at, gn_eq_at, gn_ne_at };
    gn_shape s = onnx__shape(at);
    gn_tensor asked = gn_gather(x, 1, ox_tree_find_int(c, t, t->feature, at)), yes = GN_NONE;
    gn_tensor split = gn_reshape(ox_tree_find(c, t, t->split, t->n + t->leaves, 1, at), s);
    gn_tensor mode = ox_tree_find_int(c, t, t->mode, at);
    for (int m = 0; m < OX_TREE_MODES; m++) {
        if (!t->used[m]) continue;
        gn_tensor is;
        if (m == OX_MEMBER) {
            gn_tensor set = ox_tree_find(c, t, t->set, t->n + t->leaves, t->members, at);
            is = gn_any(gn_eq(gn_unsqueeze(asked, 2), set), GN_AXES(2), false);
        } else is = compare[m](GN_HERE, asked, split);
        yes = yes.ctx ? gn_where(gn_eq_c(mode, m), is, yes) : is;
    }
    if (t->missing) yes = gn_or(yes, gn_and(gn_isnan(asked), gn_ne_c(ox_tree_find_int(c, t, t->missing, at), 0)));
    return yes;
}

static void ox_tree_ensemble(onnx__call *c) {
    ox_trees t = { 0 };
    int64_t aggregate = ox_int(c, "aggregate_function", 1), after = ox_int(c, "post_transform", 0);
    gn_shape s = ox_in_shape(c, 0);
    if (!ox_is_float(ox_dtype(c, 0)) || s.rank != 2) onnx__no(c, "an input of rank %d, or of no floats", s.rank);
    if (aggregate < 0 || aggregate > 3) onnx__no(c, "there is no aggregate function %" PRId64, aggregate);
    if (after < 0 || after > 2)
        onnx__no(c, "results are not transformed by %" PRId64 ", only by softmax and logistic", after);
    if (c->failed) return;
    t.dtype = ox_dtype(c, 0) == GN_F64 ? GN_F64 : GN_F32;
    ox_tree_read(c, &t);
    ox_tree_leaves(c, &t, aggregate);
    if (c->failed) return;
    gn_tensor x = ox_cast(ox_in(c, 0), t.dtype), at = ox_table(c, GN_I64, GN_SHAPE(1, t.roots), t.root);
    at = gn_broadcast(at, GN_SHAPE(s.dims[0], t.roots));
    for (int level = 0; level < t.levels; level++)
        at = gn_where(ox_tree_ask(c, &t, x, at), ox_tree_find_int(c, &t, t.yes, at), ox_tree_find_int(c, &t, t.no, at));
    gn_tensor y = ox_tree_find(c, &t, t.value, t.leaves, t.targets, gn_sub_c(at, t.n)); /* (N,T,targets) */
    if (aggregate == 0) y = gn_mean(y, GN_AXES(1), false);
    if (aggregate == 1) y = gn_sum(y, GN_AXES(1), false);
    if (aggregate == 2) y = gn_min(y, GN_AXES(1), false);
    if (aggregate == 3) y = gn_max(y, GN_AXES(1), false);
    if (after) y = after == 1 ? gn_softmax(y, 1) : gn_sigmoid(y);
    ox_out_like(c, 0, ox_cast(y, ox_dtype(c, 0)), 0);
}
#endif
