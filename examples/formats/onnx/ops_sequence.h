/* ops_sequence.h - a part of onnx.h: sequences of tensors and values that may be nothing. They exist while a step is
   built; what is in them are tensors like others. */
#ifndef ONNX_OPS_SEQUENCE_H
#define ONNX_OPS_SEQUENCE_H

static onnx__value *ox_sequence(onnx__call *c, int n, onnx_type type) {
    onnx__value *v = onnx__new_value(c->s, ONNX__MANY);
    v->type = type;
    v->constant = true;
    v->n = n;
    v->items = onnx__alloc(c->s, (size_t)(n + 1) * sizeof *v->items);
    return v;
}

static bool ox_is_sequence(onnx__call *c, int i) {
    bool is = ox_has(c, i) && c->in[i]->kind == ONNX__MANY;
    if (!is) onnx__no(c, "input %d is no sequence", i);
    return is;
}

/* A constant sequence has constant items alone. */
static void ox_out_sequence(onnx__call *c, onnx__value *v) {
    for (int i = 0; i < v->n; i++) {
        v->constant = v->constant && v->items[i]->constant;
        v->of_maps = v->of_maps || v->items[i]->kind == ONNX__MAP;
    }
    c->out[0] = v;
}

static void ox_sequence_construct(onnx__call *c) {
    onnx__value *v = ox_sequence(c, c->n_in, ox_type(c, 0));
    for (int i = 0; i < c->n_in; i++) {
        if (!ox_has(c, i)) onnx__no(c, "input %d is left out", i);
        v->items[i] = c->in[i];
    }
    if (!c->failed) ox_out_sequence(c, v);
}

static void ox_sequence_empty(onnx__call *c) {
    ox_out_sequence(c, ox_sequence(c, 0, (onnx_type)ox_int(c, "dtype", ONNX_FLOAT)));
}

/* A position in a sequence, counted from the end when below 0. `most`: the last one that is allowed. */
static int ox_place(onnx__call *c, int i, int n, int most, int otherwise) {
    int64_t at = ox_integer(c, i, otherwise);
    if (at < 0) at += n;
    if (at < 0 || at > most) onnx__no(c, "place %" PRId64 " in a sequence of %d", at, n);
    return c->failed ? 0 : (int)at;
}

static void ox_sequence_insert(onnx__call *c) {
    if (!ox_is_sequence(c, 0) || !ox_has(c, 1)) return;
    onnx__value *from = c->in[0], *v = ox_sequence(c, from->n + 1, from->type);
    int at = ox_place(c, 2, from->n, from->n, from->n);
    v->of_maps = from->of_maps;
    for (int i = 0; !c->failed && i <= from->n; i++) v->items[i] = i == at ? c->in[1] : from->items[i > at ? i - 1 : i];
    if (!c->failed) ox_out_sequence(c, v);
}

static void ox_sequence_erase(onnx__call *c) {
    if (!ox_is_sequence(c, 0)) return;
    onnx__value *from = c->in[0], *v = ox_sequence(c, from->n ? from->n - 1 : 0, from->type);
    int at = ox_place(c, 1, from->n, from->n - 1, from->n - 1);
    v->of_maps = from->of_maps;
    for (int i = 0; !c->failed && i < v->n; i++) v->items[i] = from->items[i >= at ? i + 1 : i];
    if (!c->failed) ox_out_sequence(c, v);
}

static void ox_sequence_at(onnx__call *c) {
    if (!ox_is_sequence(c, 0)) return;
    int at = ox_place(c, 1, c->in[0]->n, c->in[0]->n - 1, 0);
    if (!c->failed) c->out[0] = c->in[0]->items[at];
}

static void ox_sequence_length(onnx__call *c) {
    if (!ox_is_sequence(c, 0)) return;
    int64_t *n = onnx__alloc(c->s, sizeof *n);
    *n = c->in[0]->n;
    ox_out_host(c, 0, ONNX_INT64, GN_SCALAR, n);
}

static void ox_split_to_sequence(onnx__call *c) {
    gn_tensor t = ox_in(c, 0);
    int n = 0, axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(t));
    const int64_t *sizes = ox_has(c, 1) ? ox_host_ints(c, 1, &n) : NULL;
    if (c->failed) return;
    int64_t all = ox_dim(t, axis), each = sizes ? sizes[0] : 1, at = 0;
    bool equal = !sizes || c->in[1]->shape.rank == 0, keep = sizes || ox_int(c, "keepdims", 1);
    if (equal && each < 1) onnx__no(c, "parts of %" PRId64, each);
    int64_t parts = equal && each > 0 ? (all + each - 1) / each : n;
    if (parts > 65536) onnx__no(c, "%" PRId64 " parts", parts);
    if (c->failed) return;
    onnx__value *v = ox_sequence(c, (int)parts, ox_type(c, 0));
    for (int i = 0; i < parts && !c->failed; i++) {
        int64_t size = equal ? (all - at < each ? all - at : each) : sizes[i];
        if (size < 0 || size > all - at) onnx__no(c, "parts are longer than the axis of %" PRId64, all);
        if (c->failed) return;
        gn_tensor part = gn_slice(t, axis, at, at + size, 1);
        if (!keep) part = gn_squeeze(part, GN_AXES(axis));
        v->items[i] = onnx__tensor_value(c->s, part, c->g == c->s->fold, ox_type(c, 0));
        at += size;
    }
    if (at != all) onnx__no(c, "parts end at %" PRId64 " of %" PRId64, at, all);
    if (!c->failed) ox_out_sequence(c, v);
}

static void ox_concat_from_sequence(onnx__call *c) {
    if (!ox_is_sequence(c, 0)) return;
    onnx__value *from = c->in[0];
    bool is_new = ox_int(c, "new_axis", 0) != 0;
    gn_tensor *parts = onnx__alloc(c->s, (size_t)(from->n + 1) * sizeof *parts);
    for (int i = 0; i < from->n; i++) {
        bool is = from->items[i]->kind == ONNX__ONE;
        parts[i] = is ? onnx__tensor_in(c->s, from->items[i], c->g) : GN_NONE;
        if (!parts[i].ctx) onnx__no(c, "element %d %s", i, is ? "has no values" : "is no tensor");
    }
    if (!from->n) onnx__no(c, "the sequence is empty");
    if (c->failed) return;
    int axis = ox_axis(c, ox_int(c, "axis", 0), ox_rank(parts[0]) + is_new);
    for (int i = 0; is_new && i < from->n; i++) parts[i] = gn_unsqueeze(parts[i], axis);
    if (!c->failed) ox_out_as(c, 0, ox_join(c, parts, from->n, axis), from->type);
}

static void ox_optional_has(onnx__call *c) {
    uint8_t *host = onnx__alloc(c->s, 1);
    *host = ox_has(c, 0);
    ox_out_host(c, 0, ONNX_BOOL, GN_SCALAR, host);
}

static void ox_optional_get(onnx__call *c) {
    if (!ox_has(c, 0)) onnx__no(c, "the value is nothing");
    else c->out[0] = c->in[0];
}
#endif
