/* ops_recurrent.h - a part of onnx.h: RNN, GRU and LSTM. */
#ifndef ONNX_OPS_RECURRENT_H
#define ONNX_OPS_RECURRENT_H

/* Activation `which` of all directions' in `activations`, or the usual one where it names none. */
static gn_activation ox_cell_activation(onnx__call *c, int which) {
    static const struct {
        const char *name;
        gn_activation_kind kind;
        double alpha, beta; /* if the model does not say */
    } known[] = { { "Tanh", GN_ACTIVATION_TANH, 0, 0 },
                  { "Sigmoid", GN_ACTIVATION_SIGMOID, 0, 0 },
                  { "Relu", GN_ACTIVATION_RELU, 0, 0 },
                  { "Softsign", GN_ACTIVATION_SOFTSIGN, 0, 0 },
                  { "Softplus", GN_ACTIVATION_SOFTPLUS, 0, 0 },
                  { "LeakyRelu", GN_ACTIVATION_LEAKY_RELU, 0.01, 0 },
                  { "Elu", GN_ACTIVATION_ELU, 1, 0 },
                  { "Affine", GN_ACTIVATION_AFFINE, 1, 0 },
                  { "ScaledTanh", GN_ACTIVATION_SCALED_TANH, 1, 1 },
                  { "ThresholdedRelu", GN_ACTIVATION_THRESHOLDED_RELU, 1, 0 },
                  { "HardSigmoid", GN_ACTIVATION_HARD_SIGMOID, 0.2, 0.5 } };
    onnx_span a = ox_attribute(c, "activations"), name = { NULL, NULL };
    onnx_field f;
    int n, m;
    const float *alpha = ox_floats(c, "activation_alpha", &n), *beta = ox_floats(c, "activation_beta", &m);
    for (int i = 0; a.at && onnx_find(&a, 9, &f); i++)
        if (i == which) name = f.bytes;
    if (!name.at) return (gn_activation){ GN_ACTIVATION_USUAL, 0, 0 };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (onnx__is(name, known[i].name))
            return (gn_activation){ known[i].kind, alpha && which < n ? (double)alpha[which] : known[i].alpha,
                                    beta && which < m ? (double)beta[which] : known[i].beta };
    onnx__no(c, "the activation '%.*s' is not known", ONNX__SHOW(name));
    return (gn_activation){ GN_ACTIVATION_USUAL, 0, 0 };
}

/* An initial state (D,B,H), in layout 1 (B,D,H). */
static gn_tensor ox_state(onnx__call *c, int i, bool batch_first) {
    gn_tensor t = ox_has(c, i) ? ox_in(c, i) : GN_NONE;
    return t.ctx && batch_first ? gn_transpose(t, 0, 1) : t;
}

/* What the attributes and further inputs say of a layer of `ways` directions. */
static gn_recurrent_desc ox_recurrent_desc(onnx__call *c, gn_cell cell, int64_t ways, int64_t wide, bool batch_first) {
    gn_recurrent_desc d = { .cell = cell, .onnx_gates = true, .clip = ox_float(c, "clip", 0) };
    int acts = cell == GN_CELL_LSTM ? 3 : cell == GN_CELL_GRU ? 2 : 1;
    d.reverse = ox_text_is(c, "direction", "reverse", "forward");
    d.reset_first = cell == GN_CELL_GRU && !ox_int(c, "linear_before_reset", 0);
    d.coupled = cell == GN_CELL_LSTM && ox_int(c, "input_forget", 0);
    for (int i = 0; i < ways; i++)
        for (int k = 0; k < acts; k++) d.act[i][k] = ox_cell_activation(c, i * acts + k);
    if (ox_has(c, 3)) {
        d.bias = gn_slice(ox_in(c, 3), 1, 0, wide, 1);
        d.recurrent_bias = gn_slice(ox_in(c, 3), 1, wide, 2 * wide, 1);
    }
    if (ox_has(c, 4)) d.lengths = ox_in(c, 4);
    d.h0 = ox_state(c, 5, batch_first);
    if (cell == GN_CELL_LSTM) {
        d.c0 = ox_state(c, 6, batch_first);
        if (ox_has(c, 7)) d.peepholes = ox_in(c, 7);
    }
    return d;
}

/* The last states of kind s of (S,T+1,D,B,H): (D,B,H). */
static gn_tensor ox_last(gn_tensor all, int64_t s) {
    int64_t T = ox_dim(all, 1) - 1;
    return gn_squeeze(gn_slice(gn_slice(all, 0, s, s + 1, 1), 1, T, T + 1, 1), GN_AXES(0, 1));
}

static void ox_recurrent(onnx__call *c) {
    gn_cell cell = onnx__is(c->op_name, "LSTM")  ? GN_CELL_LSTM
                   : onnx__is(c->op_name, "GRU") ? GN_CELL_GRU
                                                 : GN_CELL_RNN;
    int64_t ways = ox_text_is(c, "direction", "bidirectional", "forward") ? 2 : 1;
    bool batch_first = ox_int(c, "layout", 0) != 0;
    gn_tensor x = ox_in(c, 0);
    if (c->failed || ox_rank(x) != 3 || !ox_has(c, 1) || !ox_has(c, 2)) {
        onnx__no(c, "an input of rank %d, or weights are missing", ox_rank(x));
        return;
    }
    gn_tensor w = ox_in(c, 1), r = ox_in(c, 2);
    if (ox_rank(w) != 3 || ox_dim(w, 0) != ways) {
        onnx__no(c, "weights of %d axes for %lld directions", ox_rank(w), (long long)ways);
        return;
    }
    if (batch_first) x = gn_transpose(x, 0, 1);
    gn_recurrent_desc d = ox_recurrent_desc(c, cell, ways, ox_dim(w, 1), batch_first);
    if (c->failed) return;
    gn_tensor all = gn_recurrent(x, w, r, &d);
    gn_info info;
    if (gn_describe(all, &info) != GN_OK) {
        ox_out_like(c, 0, all, 0);
        return;
    }
    gn_tensor y = gn_squeeze(gn_slice(gn_slice(all, 0, 0, 1, 1), 1, 0, ox_dim(all, 1) - 1, 1), GN_AXES(0));
    if (ox_wants(c, 0)) ox_out_like(c, 0, batch_first ? gn_permute(y, GN_AXES(2, 0, 1, 3)) : y, 0);
    for (int i = 1; i <= (cell == GN_CELL_LSTM ? 2 : 1); i++)
        if (ox_wants(c, i))
            ox_out_like(c, i, batch_first ? gn_transpose(ox_last(all, i - 1), 0, 1) : ox_last(all, i - 1), 0);
}
#endif
