/* ops_maps.h - a part of onnx.h: maps from ints to floats, of ai.onnx.ml. They exist while a step is built: a map is a
   row of a table of values (N,K), whose columns have the keys. */
#ifndef ONNX_OPS_MAPS_H
#define ONNX_OPS_MAPS_H

/* Keys in their order, equal ones once; at[i]: the column of key i, the last of equal ones. */
static int ox_map_order(onnx__call *c, const int64_t *keys, int n, int64_t *sorted, int64_t *at) {
    int64_t *order = onnx__alloc(c->s, 2 * ((size_t)n + 1) * sizeof *order), *room = order + n + 1;
    ox_rows rows = { (const uint8_t *)keys, GN_I64, (size_t)n, 1 };
    int m = 0;
    for (int i = 0; i < n; i++) order[i] = i;
    ox_sort_rows(&rows, order, room);
    for (int i = 0; i < n; i++) {
        if (!i || keys[order[i]] != keys[order[i - 1]]) m++;
        sorted[m - 1] = keys[order[i]];
        at[m - 1] = order[i];
    }
    return m;
}

/* Rows of scores (N,K), or one row (K), as a sequence of maps. */
static void ox_zip_map(onnx__call *c) {
    gn_tensor x = ox_ml_rows(c);
    int n;
    const int64_t *labels = ox_ml_labels(c, "classlabels_int64s", &n);
    if (!c->failed && ox_type(c, 0) != ONNX_FLOAT) onnx__no(c, "values of %s", onnx_type_name(ox_type(c, 0)));
    if (!c->failed && ox_dim(x, 1) != n) onnx__no(c, "%d keys of %" PRId64 " values", n, ox_dim(x, 1));
    if (c->failed || ox_dim(x, 0) > INT32_MAX) return onnx__no(c, "too many rows");
    int64_t *keys = onnx__alloc(c->s, 2 * (size_t)n * sizeof *keys), *at = keys + n;
    int m = ox_map_order(c, labels, n, keys, at);
    x = gn_index_select(x, 1, ox_indices(c, at, m));
    onnx__value *table = onnx__tensor_value(c->s, x, c->g == c->s->fold, ONNX_FLOAT);
    onnx__value *v = ox_sequence(c, (int)ox_dim(x, 0), ONNX_FLOAT);
    onnx__value *maps = onnx__alloc(c->s, ((size_t)v->n + 1) * sizeof *maps);
    for (int i = 0; i < v->n; i++) {
        maps[i] = (onnx__value){ .kind = ONNX__MAP, .type = ONNX_FLOAT, .constant = table->constant };
        maps[i].keys = keys;
        maps[i].n = m;
        maps[i].table = table;
        maps[i].row = i;
        v->items[i] = &maps[i];
    }
    v->of_maps = true;
    ox_out_sequence(c, v);
}

/* The values of a map that is input 0, (1,K). */
static gn_tensor ox_map_values(onnx__call *c) {
    const onnx__value *v = ox_has(c, 0) ? c->in[0] : NULL;
    if (!v || v->kind != ONNX__MAP)
        onnx__no(c, "input 0 is %s: take one of the maps by SequenceAt",
                 v && v->of_maps ? "a sequence of maps" : "no map");
    gn_tensor table = c->failed ? GN_NONE : onnx__tensor_in(c->s, v->table, c->g);
    if (!table.ctx) c->failed = true;
    return c->failed ? GN_NONE : gn_slice(table, 0, v->row, v->row + 1, 1);
}

/* Values of a map by a list of columns, -1 for 0: (1,n). */
static gn_tensor ox_map_take(onnx__call *c, gn_tensor values, int64_t *at, int64_t n) {
    int64_t K = ox_dim(values, 1);
    gn_tensor parts[2] = { values, gn_full(c->g, GN_F32, GN_SHAPE(1, 1), 0) };
    for (int64_t i = 0; i < n; i++) at[i] = at[i] < 0 ? K : at[i];
    return gn_index_select(gn_concat(parts, 2, 1), 1, ox_indices(c, at, n));
}

static void ox_cast_map(onnx__call *c) {
    gn_tensor y = ox_map_values(c);
    int64_t n = ox_int(c, "max_map", 1);
    bool sparse = ox_text_is(c, "map_form", "SPARSE", "DENSE");
    if (sparse && (n < 1 || n > ONNX__EXTENT)) onnx__no(c, "a map of %" PRId64, n);
    if (!c->failed && sparse) {
        const onnx__value *v = c->in[0];
        int64_t *at = onnx__alloc(c->s, (size_t)n * sizeof *at);
        if (v->n && v->keys[0] < 0) onnx__no(c, "the key %" PRId64 " has no place in a sparse map", v->keys[0]);
        for (int64_t i = 0; i < n; i++) at[i] = -1;
        for (int i = 0; i < v->n && !c->failed; i++)
            if (v->keys[i] < n) at[v->keys[i]] = i;
        if (!c->failed) y = ox_map_take(c, y, at, n);
    }
    if (!c->failed) ox_out(c, 0, ox_text_is(c, "cast_to", "TO_INT64", "TO_FLOAT") ? gn_cast(y, GN_I64) : y);
}

static void ox_dict_vectorizer(onnx__call *c) {
    gn_tensor y = ox_map_values(c);
    int n;
    const int64_t *words = ox_ml_labels(c, "int64_vocabulary", &n);
    if (c->failed) return;
    const onnx__value *v = c->in[0];
    int64_t *at = onnx__alloc(c->s, (size_t)n * sizeof *at);
    for (int i = 0; i < n; i++) {
        int lo = 0, hi = v->n;
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            if (v->keys[mid] < words[i]) lo = mid + 1;
            else hi = mid;
        }
        at[i] = lo < v->n && v->keys[lo] == words[i] ? lo : -1;
    }
    ox_out(c, 0, ox_map_take(c, y, at, n));
}

/* ---- maps as results ---- */

/* A map, or a sequence of maps with the same keys, as two tensors: keys (K) and values (K) or (N,K). NULL: the maps
   have other keys. */
static onnx__value *onnx__map_result(onnx_session *s, onnx__value *v) {
    int n = v->kind == ONNX__MAP ? 1 : v->n;
    onnx__value *const *maps = v->kind == ONNX__MAP ? &v : v->items, *out = onnx__new_value(s, ONNX__MANY);
    onnx__value *table = n ? maps[0]->table : NULL, *keys = onnx__new_value(s, ONNX__ONE);
    int64_t *rows = onnx__alloc(s, ((size_t)n + 1) * sizeof *rows);
    bool whole = table && table->shape.dims[0] == n;
    for (int i = 0; i < n; i++) {
        if (maps[i]->table != table) return NULL;
        rows[i] = maps[i]->row;
        whole = whole && rows[i] == i;
    }
    out->n = 2;
    out->items = onnx__alloc(s, 2 * sizeof *out->items);
    out->of_maps = true;
    int K = n ? maps[0]->n : 0;
    *keys = (onnx__value){ .kind = ONNX__ONE, .type = ONNX_INT64, .constant = true, .shape = GN_SHAPE(K) };
    keys->host = n ? (const void *)maps[0]->keys : rows;
    keys->bytes = (size_t)K * sizeof(int64_t);
    out->items[0] = keys;
    out->items[1] = table;
    if (whole && v->kind == ONNX__MANY) return out;
    gn_tensor t = n ? onnx__tensor_in(s, table, s->g) : gn_full(s->g, GN_F32, GN_SHAPE(0, 0), 0);
    if (!t.ctx) return NULL;
    if (n) t = gn_index_select(t, 0, gn_data_copy(s->g, GN_I64, GN_SHAPE(n), rows));
    if (v->kind == ONNX__MAP) t = gn_reshape(t, GN_SHAPE(K));
    out->items[1] = onnx__tensor_value(s, t, false, ONNX_FLOAT);
    return out;
}
#endif
