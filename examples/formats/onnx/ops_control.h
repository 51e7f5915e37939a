/* ops_control.h - a part of onnx.h: If, Loop, Scan and SequenceMap: subgraphs are built where they are chosen, as often
   as they run. */
#ifndef ONNX_OPS_CONTROL_H
#define ONNX_OPS_CONTROL_H

/* Builds a subgraph of the node with `in` for its inputs; the values of its outputs. NULL: refused. */
static onnx__value **onnx__subgraph(onnx__call *c, onnx_span graph, onnx__value **in, int n_in, int *n_out);
/* Input (number 11) or output (12) i of a graph as it is declared. */
static bool onnx__slot_at(onnx_span graph, uint32_t number, int i, onnx_slot *out);

static onnx_span ox_graph(onnx__call *c, const char *name) {
    onnx_span a = ox_attribute(c, name);
    onnx_field f = a.at ? onnx__get(a, 6) : (onnx_field){ 0 };
    if (!f.at) onnx__no(c, "the subgraph '%s' is missing", name);
    return f.bytes;
}

static void ox_if(onnx__call *c) {
    bool yes = ox_number(c, 0, 0) != 0;
    onnx_span graph = ox_graph(c, yes ? "then_branch" : "else_branch");
    int n;
    onnx__value **out = c->failed ? NULL : onnx__subgraph(c, graph, NULL, 0, &n);
    if (!out) return;
    if (n < c->n_out) onnx__no(c, "the branch has %d results, the node %d", n, c->n_out);
    for (int i = 0; i < c->n_out && !c->failed; i++) c->out[i] = out[i];
}

/* Values that the iterations of a loop make, one a scan output and iteration. */
typedef struct ox_scans {
    gn_tensor *parts;
    int64_t n, size;
    onnx_type type;
    gn_shape shape; /* of a part, where there is none */
} ox_scans;

static bool ox_scan_add(onnx__call *c, ox_scans *scan, onnx__value *v, int axis) {
    if (v->kind != ONNX__ONE) {
        onnx__no(c, "a scan output is a sequence");
        return false;
    }
    gn_tensor t = onnx__tensor_in(c->s, v, c->g);
    if (!t.ctx) return (c->failed = true, false);
    if (scan->n == scan->size) {
        int64_t size = scan->size ? 2 * scan->size : 16;
        gn_tensor *parts = onnx__alloc(c->s, (size_t)size * sizeof *parts);
        if (scan->n) memcpy(parts, scan->parts, (size_t)scan->n * sizeof *parts);
        scan->parts = parts;
        scan->size = size;
    }
    int at = ox_axis(c, axis, ox_rank(t) + 1);
    scan->type = v->type;
    scan->parts[scan->n++] = gn_unsqueeze(t, at);
    return !c->failed;
}

/* Type and shape of a scan output as the body declares it, open sizes as 0. False: it leaves any open. */
static bool ox_scan_declared(onnx_span graph, int output, ox_scans *scan) {
    onnx_slot slot;
    if (!onnx__slot_at(graph, 12, output, &slot) || slot.is_sequence || slot.is_optional) return false;
    bool whole = slot.type && slot.has_shape;
    scan->type = slot.type;
    scan->shape.rank = slot.has_shape ? slot.rank : 0;
    for (int i = 0; i < scan->shape.rank; i++) {
        scan->shape.dims[i] = slot.dims[i] < 0 ? 0 : slot.dims[i];
        whole = whole && slot.dims[i] >= 0;
    }
    return whole;
}

/* Type and shape of the scan outputs of a loop of no iterations. Where the body does not declare them it is built once,
   for nobody to compute; if that fails, as it may on values that no iteration would see, what it declares has to do. */
static void ox_scan_none(onnx__call *c, onnx_span graph, onnx__value **in, int n_in, int first, ox_scans *scans,
                         int n) {
    onnx_counts counts = c->s->counts;
    bool whole = true, typed = true;
    int n_out;
    for (int i = 0; i < n; i++) whole = ox_scan_declared(graph, first + i, &scans[i]) && whole;
    if (c->failed || whole) return;
    onnx__value **out = onnx__subgraph(c, graph, in, n_in, &n_out);
    if (out && n_out != first + n) onnx__no(c, "the body has %d results, %d are needed", n_out, first + n);
    for (int i = 0; out && !c->failed && i < n; i++) {
        onnx__value *v = out[first + i];
        if (v->kind != ONNX__ONE) return onnx__no(c, "a scan output is a sequence");
        scans[i].type = v->type;
        scans[i].shape = v->shape;
    }
    for (int i = 0; i < n; i++) typed = typed && scans[i].type;
    if (!out && typed) c->failed = false;
    counts.nodes = c->s->counts.nodes;
    counts.early_reads = c->s->counts.early_reads;
    c->s->counts = counts;
}

/* The result of no parts: as they would be, with an axis of size 0. */
static void ox_scan_empty(onnx__call *c, int i, const ox_scans *scan, int axis) {
    gn_shape s = scan->shape;
    if (s.rank == GN_MAX_RANK || onnx_type_dtype(scan->type) == GN_DTYPE_NONE)
        return onnx__no(c, "scan output %d of no iterations is of %s, rank %d", i, onnx_type_name(scan->type), s.rank);
    int at = ox_axis(c, axis, ++s.rank);
    memmove(s.dims + at + 1, s.dims + at, (size_t)(s.rank - 1 - at) * sizeof *s.dims);
    s.dims[at] = 0;
    if (!c->failed) ox_out_as(c, i, gn_full(c->g, onnx_type_dtype(scan->type), s, 0), scan->type);
}

static void ox_scan_end(onnx__call *c, int i, ox_scans *scan, int axis, bool backwards) {
    if (!ox_wants(c, i)) return;
    if (!scan->n) return ox_scan_empty(c, i, scan, axis);
    for (int64_t a = 0, b = scan->n - 1; backwards && a < b; a++, b--) {
        gn_tensor t = scan->parts[a];
        scan->parts[a] = scan->parts[b];
        scan->parts[b] = t;
    }
    int at = ox_axis(c, axis, ox_rank(scan->parts[0]));
    ox_out_as(c, i, ox_join(c, scan->parts, (int)scan->n, at), scan->type);
}

static onnx__value *ox_host_value(onnx__call *c, onnx_type type, int64_t number) {
    onnx__value *v = onnx__new_value(c->s, ONNX__ONE);
    int64_t *host = onnx__alloc(c->s, sizeof *host);
    *host = number;
    v->type = type;
    v->host = host;
    v->bytes = type == ONNX_BOOL ? 1 : 8;
    v->constant = true;
    return v;
}

static bool ox_condition(onnx__call *c, onnx__value *v) {
    const uint8_t *host = v->kind == ONNX__ONE && v->bytes == 1 ? onnx__host(c->s, v) : NULL;
    if (!host) onnx__no(c, "the condition is no bool that can be known: %s", c->s->error);
    return host && *host;
}

static void ox_loop(onnx__call *c) {
    onnx_span graph = ox_graph(c, "body");
    int64_t trips = ox_has(c, 0) ? ox_integer(c, 0, 0) : INT64_MAX;
    bool go = ox_has(c, 1) ? ox_number(c, 1, 1) != 0 : true;
    int carried = c->n_in > 2 ? c->n_in - 2 : 0, n = 0;
    if (c->n_out < carried) onnx__no(c, "%d results of %d carried values", c->n_out, carried);
    if (c->failed) return;
    onnx__value **in = onnx__alloc(c->s, (size_t)(carried + 2) * sizeof *in);
    ox_scans *scans = onnx__alloc(c->s, (size_t)(c->n_out - carried + 1) * sizeof *scans);
    for (int i = 0; i < carried; i++) in[i + 2] = c->in[i + 2];
    in[0] = ox_host_value(c, ONNX_INT64, 0);
    in[1] = ox_host_value(c, ONNX_BOOL, 1);
    if (trips < 1 || !go) ox_scan_none(c, graph, in, carried + 2, 1 + carried, scans, c->n_out - carried);
    for (int64_t k = 0; k < trips && go; k++) {
        in[0] = ox_host_value(c, ONNX_INT64, k);
        in[1] = ox_host_value(c, ONNX_BOOL, 1);
        onnx__value **out = onnx__subgraph(c, graph, in, carried + 2, &n);
        if (!out) return;
        if (n != 1 + c->n_out) onnx__no(c, "the body has %d results, %d are needed", n, 1 + c->n_out);
        if (c->failed) return;
        for (int i = 0; i < carried; i++) in[i + 2] = out[i + 1];
        for (int i = carried; i < c->n_out; i++)
            if (!ox_scan_add(c, &scans[i - carried], out[i + 1], 0)) return;
        go = ox_condition(c, out[0]);
    }
    for (int i = 0; i < carried && !c->failed; i++)
        if (ox_wants(c, i)) c->out[i] = in[i + 2];
    for (int i = carried; i < c->n_out && !c->failed; i++) ox_scan_end(c, i, &scans[i - carried], 0, false);
}

/* One slice of scan input i, number `at` along the axis; of an input of size 0 zeros stand for it. */
static onnx__value *ox_scan_slice(onnx__call *c, int i, int axis, int64_t at) {
    gn_tensor t = ox_in(c, i);
    gn_shape s = onnx__shape(t);
    if (s.dims[axis]) t = gn_squeeze(gn_slice(t, axis, at, at + 1, 1), GN_AXES(axis));
    else {
        memmove(s.dims + axis, s.dims + axis + 1, (size_t)(--s.rank - axis) * sizeof *s.dims);
        t = gn_full(c->g, onnx_type_dtype(ox_type(c, i)), s, 0);
    }
    return onnx__tensor_value(c->s, t, c->g == c->s->fold, ox_type(c, i));
}

/* Scan over inputs that are cut along an axis. */
static void ox_scan_once(onnx__call *c) {
    onnx_span graph = ox_graph(c, "body");
    int n, states, n_axes, n_way, n_oaxes, n_oway, cuts = (int)ox_int(c, "num_scan_inputs", 1);
    const int64_t *axes = ox_ints(c, "scan_input_axes", &n_axes),
                  *way = ox_ints(c, c->version < 9 ? "directions" : "scan_input_directions", &n_way);
    const int64_t *oaxes = ox_ints(c, "scan_output_axes", &n_oaxes),
                  *oway = ox_ints(c, "scan_output_directions", &n_oway);
    states = c->n_in - cuts;
    if (cuts < 1 || states < 0 || c->n_out < states || n_axes > cuts || n_way > cuts)
        onnx__no(c, "%d scan inputs", cuts);
    if (c->failed) return;
    onnx__value **in = onnx__alloc(c->s, (size_t)(c->n_in + 1) * sizeof *in);
    ox_scans *scans = onnx__alloc(c->s, (size_t)(c->n_out - states + 1) * sizeof *scans);
    int64_t trips = -1;
    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i];
        if (i < states || c->failed) continue;
        gn_tensor t = ox_in(c, i);
        int64_t size =
            c->failed ? 0 : ox_dim(t, ox_axis(c, axes && i - states < n_axes ? axes[i - states] : 0, ox_rank(t)));
        if (trips >= 0 && size != trips) onnx__no(c, "scan inputs of %" PRId64 " and %" PRId64, trips, size);
        trips = size;
    }
    for (int64_t k = 0; k < (trips ? trips : 1) && !c->failed; k++) {
        for (int i = states; i < c->n_in; i++) {
            int axis = ox_axis(c, axes && i - states < n_axes ? axes[i - states] : 0, ox_in_shape(c, i).rank);
            in[i] = ox_scan_slice(c, i, axis, way && i - states < n_way && way[i - states] ? trips - 1 - k : k);
        }
        if (!trips) {
            ox_scan_none(c, graph, in, c->n_in, states, scans, c->n_out - states);
            break;
        }
        onnx__value **out = onnx__subgraph(c, graph, in, c->n_in, &n);
        if (out && n != c->n_out) onnx__no(c, "the body has %d results, %d are needed", n, c->n_out);
        for (int i = 0; out && !c->failed && i < c->n_out; i++)
            if (i < states) in[i] = out[i];
            else ox_scan_add(c, &scans[i - states], out[i], i - states < n_oaxes ? (int)oaxes[i - states] : 0);
    }
    for (int i = 0; i < c->n_out && !c->failed; i++) {
        int k = i - states;
        if (k < 0) c->out[i] = in[i];
        else ox_scan_end(c, i, &scans[k], k < n_oaxes ? (int)oaxes[k] : 0, k < n_oway && oway[k]);
    }
}

/* How many sequences version 8 is given: the first dimension of all inputs but the lengths; 0: refused. */
static int64_t ox_scan_batch(onnx__call *c) {
    int64_t batch = 0;
    if (ox_has(c, 0)) onnx__no(c, "sequences of different lengths are not scanned");
    for (int i = 1; i < c->n_in && !c->failed; i++) {
        gn_tensor t = ox_in(c, i);
        int64_t size = c->failed || !ox_rank(t) ? 0 : ox_dim(t, 0);
        if (!size || (batch && size != batch)) onnx__no(c, "input %d has no dimension of the batch", i);
        batch = size;
    }
    if (!batch) onnx__no(c, "there is no batch");
    return c->failed ? 0 : batch;
}

/* Version 8 has lengths as its first input and a dimension of the batch in front of all others: a scan for each. */
static void ox_scan(onnx__call *c) {
    if (c->version >= 9) {
        ox_scan_once(c);
        return;
    }
    int64_t batch = ox_scan_batch(c);
    ox_scans *rows = onnx__alloc(c->s, (size_t)(c->n_out + 1) * sizeof *rows);
    for (int64_t b = 0; b < batch && !c->failed; b++) {
        onnx__call one = *c;
        one.n_in = c->n_in - 1;
        one.in = onnx__alloc(c->s, (size_t)c->n_in * sizeof *one.in);
        one.out = onnx__alloc(c->s, (size_t)(c->n_out + 1) * sizeof *one.out);
        for (int i = 0; i < one.n_in; i++) {
            gn_tensor t = gn_squeeze(gn_slice(ox_in(c, i + 1), 0, b, b + 1, 1), GN_AXES(0));
            one.in[i] = onnx__tensor_value(c->s, t, c->g == c->s->fold, ox_type(c, i + 1));
        }
        ox_scan_once(&one);
        c->failed |= one.failed;
        for (int i = 0; i < c->n_out && !c->failed; i++)
            if (one.out[i]) ox_scan_add(c, &rows[i], one.out[i], 0);
    }
    for (int i = 0; i < c->n_out && !c->failed; i++)
        if (rows[i].n) ox_scan_end(c, i, &rows[i], 0, false);
}

static void ox_sequence_map(onnx__call *c) {
    onnx_span graph = ox_graph(c, "body");
    if (c->failed || !ox_is_sequence(c, 0)) return;
    int n, count = c->in[0]->n;
    onnx__value **in = onnx__alloc(c->s, (size_t)(c->n_in + 1) * sizeof *in);
    for (int i = 0; i < c->n_out; i++) c->out[i] = ox_sequence(c, count, ONNX_FLOAT);
    for (int k = 0; k < count && !c->failed; k++) {
        for (int i = 0; i < c->n_in; i++) {
            in[i] = c->in[i];
            if (!in[i] || in[i]->kind != ONNX__MANY) continue;
            if (in[i]->n != count) onnx__no(c, "sequences of %d and %d", count, in[i]->n);
            else in[i] = in[i]->items[k];
        }
        onnx__value **out = c->failed ? NULL : onnx__subgraph(c, graph, in, c->n_in, &n);
        if (out && n != c->n_out) onnx__no(c, "the body has %d results, %d are needed", n, c->n_out);
        for (int i = 0; out && !c->failed && i < c->n_out; i++) {
            c->out[i]->items[k] = out[i];
            c->out[i]->type = out[i]->type;
            c->out[i]->constant = c->out[i]->constant && out[i]->constant;
        }
    }
}
#endif
