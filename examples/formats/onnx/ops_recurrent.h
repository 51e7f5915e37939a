/* ops_recurrent.h - a part of onnx.h: RNN, GRU and LSTM, one time step after the other. */
#ifndef ONNX_OPS_RECURRENT_H
#define ONNX_OPS_RECURRENT_H

typedef struct ox_cell {
    onnx__call *c;
    gn_tensor w, r, wb, rb, p; /* of one direction: (gates*H, I), (gates*H, H), biases (gates*H), peepholes (3*H) */
    int64_t hidden;
    int direction, gates;
    double clip;
} ox_cell;

/* Activation `which` of this direction: named in a list of all directions, or the usual one. */
static gn_tensor ox_cell_act(const ox_cell *cell, int which, int of, const char *usual, gn_tensor x) {
    onnx__call *c = cell->c;
    onnx_span a = ox_attribute(c, "activations"),
              name = { (const uint8_t *)usual, (const uint8_t *)usual + strlen(usual) };
    onnx_field f;
    int n, m;
    const float *alpha = ox_floats(c, "activation_alpha", &n), *beta = ox_floats(c, "activation_beta", &m);
    int at = cell->direction * of + which;
    for (int i = 0; a.at && onnx_find(&a, 9, &f); i++)
        if (i == at) name = f.bytes;
    double al = alpha && at < n ? (double)alpha[at] : (double)NAN, be = beta && at < m ? (double)beta[at] : (double)NAN;
    if (cell->clip > 0) x = gn_clamp(x, -cell->clip, cell->clip);
    if (onnx__is(name, "Tanh")) return gn_tanh(x);
    if (onnx__is(name, "Sigmoid")) return gn_sigmoid(x);
    if (onnx__is(name, "Relu")) return gn_relu(x);
    if (onnx__is(name, "Softsign")) return gn_softsign(x);
    if (onnx__is(name, "Softplus")) return gn_softplus(x);
    if (onnx__is(name, "LeakyRelu")) return gn_leaky_relu(x, isnan(al) ? 0.01 : al);
    if (onnx__is(name, "Elu")) return gn_elu(x, isnan(al) ? 1 : al);
    if (onnx__is(name, "Affine")) return gn_add_c(gn_mul_c(x, isnan(al) ? 1 : al), isnan(be) ? 0 : be);
    if (onnx__is(name, "ScaledTanh")) return gn_mul_c(gn_tanh(gn_mul_c(x, isnan(be) ? 1 : be)), isnan(al) ? 1 : al);
    if (onnx__is(name, "ThresholdedRelu")) return gn_where(gn_gt_c(x, isnan(al) ? 1 : al), x, gn_like(x, 0));
    if (onnx__is(name, "HardSigmoid"))
        return gn_clamp(gn_add_c(gn_mul_c(x, isnan(al) ? 0.2 : al), isnan(be) ? 0.5 : be), 0, 1);
    onnx__no(c, "the activation '%.*s' is not known", ONNX__SHOW(name));
    return x;
}

/* Gate i of a vector of all gates, along the last axis. */
static gn_tensor ox_gate(const ox_cell *cell, gn_tensor t, int i) {
    return gn_slice(t, -1, i * cell->hidden, (i + 1) * cell->hidden, 1);
}

static gn_tensor ox_peep(const ox_cell *cell, gn_tensor gate, gn_tensor state, int i) {
    return cell->p.ctx ? gn_add(gate, gn_mul(state, ox_gate(cell, cell->p, i))) : gate;
}

/* One step: x is the input's part of the gates with its bias, (B, gates*H). */
static gn_tensor ox_step_rnn(const ox_cell *cell, gn_tensor x, gn_tensor h) {
    gn_tensor sum = gn_add(gn_add(x, gn_matmul(h, gn_transpose(cell->r, 0, 1))), cell->rb);
    return ox_cell_act(cell, 0, 1, "Tanh", sum);
}

static gn_tensor ox_step_gru(const ox_cell *cell, gn_tensor x, gn_tensor h) {
    gn_tensor rt = gn_transpose(cell->r, 0, 1), zr = gn_slice(rt, 1, 0, 2 * cell->hidden, 1), back;
    gn_tensor part = gn_add(gn_matmul(h, zr), gn_slice(cell->rb, 0, 0, 2 * cell->hidden, 1));
    gn_tensor z = ox_cell_act(cell, 0, 2, "Sigmoid", gn_add(ox_gate(cell, x, 0), ox_gate(cell, part, 0)));
    gn_tensor r = ox_cell_act(cell, 0, 2, "Sigmoid", gn_add(ox_gate(cell, x, 1), ox_gate(cell, part, 1)));
    gn_tensor rh = ox_gate(cell, rt, 2), bias = ox_gate(cell, cell->rb, 2);
    if (ox_int(cell->c, "linear_before_reset", 0)) back = gn_mul(r, gn_add(gn_matmul(h, rh), bias));
    else back = gn_add(gn_matmul(gn_mul(r, h), rh), bias);
    gn_tensor now = ox_cell_act(cell, 1, 2, "Tanh", gn_add(ox_gate(cell, x, 2), back));
    return gn_add(gn_mul(gn_sub(gn_like(z, 1), z), now), gn_mul(z, h));
}

static gn_tensor ox_step_lstm(const ox_cell *cell, gn_tensor x, gn_tensor h, gn_tensor *state) {
    gn_tensor all = gn_add(gn_add(x, gn_matmul(h, gn_transpose(cell->r, 0, 1))), cell->rb);
    gn_tensor i = ox_cell_act(cell, 0, 3, "Sigmoid", ox_peep(cell, ox_gate(cell, all, 0), *state, 0));
    gn_tensor f = ox_cell_act(cell, 0, 3, "Sigmoid", ox_peep(cell, ox_gate(cell, all, 2), *state, 2));
    if (ox_int(cell->c, "input_forget", 0)) f = gn_sub(gn_like(i, 1), i);
    gn_tensor now = ox_cell_act(cell, 1, 3, "Tanh", ox_gate(cell, all, 3));
    *state = gn_add(gn_mul(f, *state), gn_mul(i, now));
    gn_tensor o = ox_cell_act(cell, 0, 3, "Sigmoid", ox_peep(cell, ox_gate(cell, all, 1), *state, 1));
    return gn_mul(o, ox_cell_act(cell, 2, 3, "Tanh", *state));
}

/* One direction over x (T,B,I): the states of all steps, and the last ones. */
static gn_tensor ox_one_way(const ox_cell *cell, gn_tensor x, bool back, gn_tensor length, gn_tensor *h,
                            gn_tensor *state) {
    onnx__call *c = cell->c;
    int64_t steps = ox_dim(x, 0);
    gn_tensor *out = onnx__alloc(c->s, (size_t)(steps + 1) * sizeof *out);
    gn_tensor part = gn_add(gn_matmul(x, gn_transpose(cell->w, 0, 1)), cell->wb);
    for (int64_t k = 0; k < steps && !c->failed; k++) {
        int64_t t = back ? steps - 1 - k : k;
        gn_tensor in = gn_squeeze(gn_slice(part, 0, t, t + 1, 1), GN_AXES(0)), next = *state, now;
        if (cell->gates == 4) now = ox_step_lstm(cell, in, *h, &next);
        else now = cell->gates == 3 ? ox_step_gru(cell, in, *h) : ox_step_rnn(cell, in, *h);
        gn_tensor shown = now;
        if (length.ctx) { /* (B,1): rows that have ended keep their state */
            gn_tensor live = gn_gt_c(length, (double)t);
            shown = gn_where(live, now, gn_like(now, 0));
            now = gn_where(live, now, *h);
            if (cell->gates == 4) next = gn_where(live, next, *state);
        }
        *h = now;
        *state = next;
        out[t] = gn_unsqueeze(shown, 0);
    }
    return c->failed ? x : ox_join(c, out, (int)steps, 0);
}

static gn_tensor ox_pick(gn_tensor t, int direction) {
    return gn_squeeze(gn_slice(t, 0, direction, direction + 1, 1), GN_AXES(0));
}

static void ox_recurrent(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), outs[2], hs[2], cs[2], none = GN_NONE;
    int gates = onnx__is(c->op_name, "LSTM") ? 4 : onnx__is(c->op_name, "GRU") ? 3 : 1;
    int ways = ox_text_is(c, "direction", "bidirectional", "forward") ? 2 : 1;
    bool back = ox_text_is(c, "direction", "reverse", "forward"), batch_first = ox_int(c, "layout", 0) != 0;
    if (c->failed || ox_rank(x) != 3 || !ox_has(c, 1) || !ox_has(c, 2)) {
        onnx__no(c, "an input of rank %d, or weights are missing", ox_rank(x));
        return;
    }
    gn_dtype d = ox_dtype(c, 0);
    if (batch_first) x = gn_transpose(x, 0, 1);
    int64_t batch = ox_dim(x, 1), hidden = ox_dim(ox_in(c, 2), 2);
    gn_tensor length = ox_has(c, 4) ? gn_reshape(ox_in(c, 4), GN_SHAPE(batch, 1)) : GN_NONE;
    for (int i = 0; i < ways && !c->failed; i++) {
        ox_cell cell = { .c = c, .hidden = hidden, .direction = i, .gates = gates, .clip = ox_float(c, "clip", 0) };
        cell.w = ox_pick(ox_in(c, 1), i);
        cell.r = ox_pick(ox_in(c, 2), i);
        gn_tensor bias = ox_has(c, 3) ? ox_pick(ox_in(c, 3), i) : gn_full(c->g, d, GN_SHAPE(2 * gates * hidden), 0);
        cell.wb = gn_slice(bias, 0, 0, gates * hidden, 1);
        cell.rb = gn_slice(bias, 0, gates * hidden, GN_END, 1);
        cell.p = gates == 4 && ox_has(c, 7) ? ox_pick(ox_in(c, 7), i) : none;
        gn_tensor zero = gn_full(c->g, d, GN_SHAPE(batch, hidden), 0);
        gn_tensor h0 = ox_has(c, 5) ? ox_in(c, 5) : none, c0 = gates == 4 && ox_has(c, 6) ? ox_in(c, 6) : none;
        if (batch_first && h0.ctx) h0 = gn_transpose(h0, 0, 1);
        if (batch_first && c0.ctx) c0 = gn_transpose(c0, 0, 1);
        hs[i] = h0.ctx ? ox_pick(h0, i) : zero;
        cs[i] = c0.ctx ? ox_pick(c0, i) : zero;
        outs[i] = ox_one_way(&cell, x, back || i == 1, length, &hs[i], &cs[i]);
    }
    if (c->failed) return;
    gn_tensor y = gn_stack(outs, ways, 1), h = gn_stack(hs, ways, 0), state = gn_stack(cs, ways, 0);
    if (ox_wants(c, 0)) ox_out_like(c, 0, batch_first ? gn_permute(y, GN_AXES(2, 0, 1, 3)) : y, 0);
    if (ox_wants(c, 1)) ox_out_like(c, 1, batch_first ? gn_transpose(h, 0, 1) : h, 0);
    if (ox_wants(c, 2)) ox_out_like(c, 2, batch_first ? gn_transpose(state, 0, 1) : state, 0);
}
#endif
