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
        if (t->root[i] < 0 || t->root[i] >= t->n + t->leaves) onnx__no(c, "there is no root %" PRId64, t->root[i]);
        else if (t->root[i] < t->n) at[t->root[i]] = 1;
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

/* The leaves, counted from 0, on which rows x (N,F) end: (N,T). */
static gn_tensor ox_tree_walk(onnx__call *c, const ox_trees *t, gn_tensor x) {
    gn_tensor at = ox_table(c, GN_I64, GN_SHAPE(1, t->roots), t->root);
    at = gn_broadcast(at, GN_SHAPE(ox_dim(x, 0), t->roots));
    for (int level = 0; level < t->levels; level++)
        at = gn_where(ox_tree_ask(c, t, x, at), ox_tree_find_int(c, t, t->yes, at), ox_tree_find_int(c, t, t->no, at));
    return gn_sub_c(at, t->n);
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
    gn_tensor at = ox_tree_walk(c, &t, ox_cast(ox_in(c, 0), t.dtype));
    gn_tensor y = ox_tree_find(c, &t, t.value, t.leaves, t.targets, at); /* (N,T,targets) */
    if (aggregate == 0) y = gn_mean(y, GN_AXES(1), false);
    if (aggregate == 1) y = gn_sum(y, GN_AXES(1), false);
    if (aggregate == 2) y = gn_min(y, GN_AXES(1), false);
    if (aggregate == 3) y = gn_max(y, GN_AXES(1), false);
    if (after) y = after == 1 ? gn_softmax(y, 1) : gn_sigmoid(y);
    ox_out_like(c, 0, ox_cast(y, ox_dtype(c, 0)), 0);
}

/* ---- as versions 1 to 4 have them: nodes named by tree and number, and leaves that are nodes ---- */

typedef struct ox_old_trees {
    int nodes;
    const int64_t *tree, *number;
    int64_t *order, *place; /* nodes sorted by tree and number; where a node is in ox_trees, leaves behind the others */
    double *has;            /* (leaves, targets): 1 where the leaf says something of the target */
    bool positive;          /* no weight is below 0 */
} ox_old_trees;

/* Floats of an attribute, or, by its name with _as_tensor, of a tensor: `want` of them, any count below 0. */
static double *ox_tree_floats(onnx__call *c, const char *name, int want, int *out_n) {
    char other[64];
    int n;
    snprintf(other, sizeof other, "%s_as_tensor", name);
    const float *f = ox_floats(c, name, &n);
    if ((!f || !n) && ox_has_attribute(c, other)) return ox_tree_numbers(c, other, want, out_n);
    double *out = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *out);
    for (int i = 0; i < n; i++) out[i] = (double)f[i];
    *out_n = n;
    if (want >= 0 && n != want) onnx__no(c, "%d numbers in '%s', %d are needed", n, name, want);
    return c->failed ? NULL : out;
}

/* The node of that tree and number, -1: there is none. */
static int64_t ox_old_node(const ox_old_trees *o, int64_t tree, int64_t number) {
    int64_t lo = 0, hi = o->nodes;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2, i = o->order[mid];
        if (o->tree[i] < tree || (o->tree[i] == tree && o->number[i] < number)) lo = mid + 1;
        else hi = mid;
    }
    return lo < o->nodes && o->tree[o->order[lo]] == tree && o->number[o->order[lo]] == number ? o->order[lo] : -1;
}

static void ox_old_order(onnx__call *c, ox_old_trees *o) {
    size_t n = (size_t)o->nodes;
    int64_t *pairs = onnx__alloc(c->s, 2 * n * sizeof *pairs), *room = onnx__alloc(c->s, n * sizeof *room);
    o->order = onnx__alloc(c->s, n * sizeof *o->order);
    for (size_t i = 0; i < n; i++) {
        pairs[2 * i] = o->tree[i];
        pairs[2 * i + 1] = o->number[i];
        o->order[i] = (int64_t)i;
    }
    ox_rows rows = { (const uint8_t *)pairs, GN_I64, n, 2 };
    ox_sort_rows(&rows, o->order, room);
    for (size_t i = 1; i < n && !c->failed; i++)
        if (!ox_compare_rows(&rows, o->order[i - 1], o->order[i]))
            onnx__no(c, "node %" PRId64 " of tree %" PRId64 " is there twice", o->number[o->order[i]],
                     o->tree[o->order[i]]);
}

/* What each node does: a way of comparing, or OX_TREE_MODES for a leaf. Counts nodes and leaves, and gives each its
   place. */
static int64_t *ox_old_modes(onnx__call *c, ox_trees *t, ox_old_trees *o) {
    static const char *const names[] = { "BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE", "BRANCH_GT",
                                         "BRANCH_EQ",  "BRANCH_NEQ", "LEAF" };
    int64_t *mode = onnx__alloc(c->s, (size_t)o->nodes * sizeof *mode);
    onnx_span a = ox_attribute(c, "nodes_modes");
    onnx_field f;
    int n = 0;
    for (; a.at && onnx_find(&a, 9, &f); n++) {
        int k = 0;
        while (k < OX_TREE_MODES && !onnx__is(f.bytes, names[k])) k++;
        if (k == OX_TREE_MODES) onnx__no(c, "node %d has the mode '%.*s'", n, ONNX__SHOW(f.bytes));
        if (n >= o->nodes || c->failed) break;
        mode[n] = k == OX_MEMBER ? OX_TREE_MODES : k; /* LEAF stands in its place */
        *(k == OX_MEMBER ? &t->leaves : &t->n) += 1;
    }
    if (n != o->nodes) onnx__no(c, "%d numbers in 'nodes_modes', %d are needed", n, o->nodes);
    o->place = onnx__alloc(c->s, (size_t)o->nodes * sizeof *o->place);
    for (int64_t i = 0, node = 0, leaf = t->n; i < o->nodes && !c->failed; i++)
        o->place[i] = mode[i] == OX_TREE_MODES ? leaf++ : node++;
    return mode;
}

/* Where a branch of node i leads. */
static int64_t ox_old_branch(onnx__call *c, const ox_old_trees *o, int i, int64_t number) {
    int64_t to = ox_old_node(o, o->tree[i], number);
    if (to < 0) onnx__no(c, "tree %" PRId64 " has no node %" PRId64, o->tree[i], number);
    return to < 0 ? 0 : o->place[to];
}

static void ox_old_read(onnx__call *c, ox_trees *t, ox_old_trees *o, int64_t features) {
    int n;
    o->tree = ox_ints(c, "nodes_treeids", &o->nodes);
    if (o->nodes < 1) return onnx__no(c, "there are no nodes");
    o->number = ox_tree_ints(c, "nodes_nodeids", o->nodes, true);
    const int64_t *yes = ox_tree_ints(c, "nodes_truenodeids", o->nodes, true),
                  *no = ox_tree_ints(c, "nodes_falsenodeids", o->nodes, true),
                  *feature = ox_tree_ints(c, "nodes_featureids", o->nodes, true);
    const double *split = ox_tree_floats(c, "nodes_values", o->nodes, &n);
    const int64_t *missing = ox_ints(c, "nodes_missing_value_tracks_true", &n);
    if (n && n != o->nodes) onnx__no(c, "%d numbers in 'nodes_missing_value_tracks_true', %d are needed", n, o->nodes);
    if (c->failed) return;
    ox_old_order(c, o);
    const int64_t *mode = ox_old_modes(c, t, o);
    if (c->failed) return;
    size_t each = (size_t)o->nodes * sizeof(int64_t);
    int64_t **const lists[] = { &t->mode, &t->feature, &t->missing, &t->yes, &t->no, &t->root };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (n || lists[i] != &t->missing) *lists[i] = onnx__alloc(c->s, each);
    t->split = onnx__alloc(c->s, each);
    for (int i = 0; i < o->nodes && !c->failed; i++) {
        int64_t at = o->place[i];
        bool leaf = at >= t->n;
        if (!i || o->tree[i] != o->tree[i - 1]) t->root[t->roots++] = at;
        if (!leaf && (feature[i] < 0 || feature[i] >= features))
            onnx__no(c, "node %d asks for feature %" PRId64 " of %" PRId64, i, feature[i], features);
        t->yes[at] = leaf ? at : ox_old_branch(c, o, i, yes[i]);
        t->no[at] = leaf ? at : ox_old_branch(c, o, i, no[i]);
        t->mode[at] = leaf ? 0 : mode[i];
        t->feature[at] = leaf ? 0 : feature[i];
        t->split[at] = leaf ? 0 : split[i];
        if (n) t->missing[at] = leaf ? 0 : missing[i];
        if (!leaf) t->used[mode[i]] = true;
    }
    ox_tree_levels(c, t);
}

/* What each leaf says of each target, `none` where it says nothing; attributes `kind`_ids, _treeids and so on. */
static void ox_old_leaves(onnx__call *c, ox_trees *t, ox_old_trees *o, const char *kind, double none) {
    char name[4][32];
    static const char *const parts[] = { "ids", "treeids", "nodeids", "weights" };
    int n, m;
    for (int i = 0; i < 4; i++) snprintf(name[i], sizeof name[i], "%s_%s", kind, parts[i]);
    const int64_t *target = ox_ints(c, name[0], &n), *tree = ox_tree_ints(c, name[1], n, n > 0),
                  *number = ox_tree_ints(c, name[2], n, n > 0);
    const double *weight = ox_tree_floats(c, name[3], n, &m);
    if (t->targets < 1 || t->leaves < 1 || t->targets > ONNX__FOLD / (int64_t)sizeof(double) / t->leaves)
        onnx__no(c, "%" PRId64 " targets of %d leaves", t->targets, t->leaves);
    if (c->failed) return;
    size_t all = (size_t)(t->leaves * t->targets);
    t->value = onnx__alloc(c->s, all * sizeof *t->value);
    o->has = onnx__alloc(c->s, all * sizeof *o->has);
    o->positive = true;
    for (size_t i = 0; i < all; i++) t->value[i] = none;
    for (int i = 0; i < n && !c->failed; i++) {
        int64_t at = ox_old_node(o, tree[i], number[i]);
        o->positive = o->positive && weight[i] >= 0;
        if (at < 0) onnx__no(c, "tree %" PRId64 " has no node %" PRId64, tree[i], number[i]);
        else if (target[i] < 0 || target[i] >= t->targets) onnx__no(c, "there is no target %" PRId64, target[i]);
        if (c->failed || o->place[at] < t->n) continue; /* no row ends there */
        size_t to = (size_t)((o->place[at] - t->n) * t->targets + target[i]);
        if (o->has[to] > 0) onnx__no(c, "a leaf of tree %" PRId64 " has two weights of one target", tree[i]);
        t->value[to] = weight[i];
        o->has[to] = 1;
    }
}

/* Reads the trees, and sends the rows down: the leaves that they end on (N,T). */
static gn_tensor ox_old_walk(onnx__call *c, ox_trees *t, ox_old_trees *o, const char *kind, double none) {
    gn_tensor x = ox_ml_input(c, 0, true);
    if (!c->failed && ox_rank(x) == 1) x = gn_unsqueeze(x, 0);
    if (c->failed) return GN_NONE;
    t->dtype = onnx__dtype(x);
    ox_old_read(c, t, o, ox_dim(x, 1));
    if (!c->failed) ox_old_leaves(c, t, o, kind, none);
    return c->failed ? GN_NONE : ox_tree_walk(c, t, x);
}

/* base_values, one for each of K, or none: added to y (N,K). */
static gn_tensor ox_old_base(onnx__call *c, gn_tensor y, int64_t K) {
    int n;
    const double *base = ox_tree_floats(c, "base_values", -1, &n);
    if (!c->failed && n && n != K) onnx__no(c, "%d numbers in 'base_values', %" PRId64 " are needed", n, K);
    if (c->failed || !n) return y;
    return gn_add(y, gn_cast(ox_table(c, GN_F64, GN_SHAPE(K), base), onnx__dtype(y)));
}

static void ox_tree_regressor(onnx__call *c) {
    ox_trees t = { .targets = ox_int(c, "n_targets", 1) };
    ox_old_trees o = { 0 };
    bool least = ox_text_is(c, "aggregate_function", "MIN", "SUM"),
         most = ox_text_is(c, "aggregate_function", "MAX", "SUM");
    gn_tensor at = ox_old_walk(c, &t, &o, "target", least ? (double)INFINITY : most ? -(double)INFINITY : 0);
    if (c->failed) return;
    gn_tensor y = ox_tree_find(c, &t, t.value, t.leaves, t.targets, at);
    gn_axes trees = GN_AXES(1);
    if (least || most) {
        gn_tensor has = gn_max(ox_tree_find(c, &t, o.has, t.leaves, t.targets, at), trees, false);
        y = least ? gn_min(y, trees, false) : gn_max(y, trees, false);
        y = gn_where(gn_gt_c(has, 0), y, gn_like(y, 0));
    } else
        y = ox_text_is(c, "aggregate_function", "AVERAGE", "SUM") ? gn_mean(y, trees, false) : gn_sum(y, trees, false);
    y = ox_old_base(c, y, t.targets);
    if (!c->failed) ox_out(c, 0, ox_cast(ox_scores(c, y), GN_F32));
}

/* Two classes of which the trees have weights for one: scores (N,2), and which of them it is (N). */
static gn_tensor ox_tree_binary(onnx__call *c, const ox_trees *t, const ox_old_trees *o, gn_tensor y,
                                gn_tensor *out_at) {
    bool of[2] = { false, false }, whole = true;
    int n;
    for (int i = 0; i < t->leaves; i++) {
        for (int k = 0; k < 2; k++) of[k] |= o->has[2 * i + k] > 0;
        whole &= o->has[2 * i + 1] > 0;
    }
    ox_tree_floats(c, "base_values", -1, &n);
    if (of[0] && of[1]) onnx__no(c, "two classes with weights for both: give the weights of the second one alone");
    if (n > 1 || (of[1] && (n || !whole)))
        onnx__no(c, "two classes with %d base values, or with leaves that say nothing of the class", n);
    if (c->failed) return GN_NONE;
    gn_tensor s = ox_old_base(c, gn_slice(y, 1, of[1], of[1] + 1, 1), 1);
    if (c->failed) return GN_NONE;
    *out_at = gn_reshape(gn_cast(gn_gt_c(s, o->positive ? 0.5 : 0), GN_I64), GN_SHAPE(ox_dim(s, 0)));
    if (of[1]) return ox_scores(c, y);
    return ox_both_scores(c, s, !o->positive);
}

static void ox_tree_classifier(onnx__call *c) {
    ox_trees t = { 0 };
    ox_old_trees o = { 0 };
    int n, based;
    const int64_t *labels = ox_ml_labels(c, "classlabels_int64s", &n);
    if (!c->failed && n < 2) onnx__no(c, "one class");
    t.targets = n;
    gn_tensor at = c->failed ? GN_NONE : ox_old_walk(c, &t, &o, "class", 0), first;
    if (c->failed) return;
    gn_tensor y = gn_sum(ox_tree_find(c, &t, t.value, t.leaves, n, at), GN_AXES(1), false);
    if (n == 2) y = ox_tree_binary(c, &t, &o, y, &first);
    else {
        y = ox_old_base(c, y, n);
        ox_tree_floats(c, "base_values", -1, &based);
        gn_tensor has = gn_max(ox_tree_find(c, &t, o.has, t.leaves, n, at), GN_AXES(1), false);
        if (!c->failed) first = ox_greatest(based ? y : gn_where(gn_gt_c(has, 0), y, gn_like(y, -(double)INFINITY)));
        y = c->failed ? y : ox_scores(c, y);
    }
    if (c->failed) return;
    ox_out_labels(c, labels, n, first);
    ox_out(c, 1, ox_cast(y, GN_F32));
}
#endif
