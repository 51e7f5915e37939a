/* Bytes to parts that the decoder takes: a program of leaves and ops with sizes from the smallest to the largest
 * possible. What an op refuses is left out, so almost any bytes make a graph; it is then written as it would come from
 * a peer. */
#ifndef GN_GRAPH_PROGRAM_H
#define GN_GRAPH_PROGRAM_H

#include "fuzz.h"

enum {
    GRAPH_DATA,
    GRAPH_VALUE,
    GRAPH_WEIGHT,
    GRAPH_STATE,     /* dtype, rank, dims */
    GRAPH_FULL,      /* dtype, rank, dims */
    GRAPH_BROADCAST, /* input, dims before its own, these dims */
    GRAPH_REPEAT,    /* k: the latest node 2^k - 1 times more */
    GRAPH_OUT,       /* node */
    GRAPH_OUT_ALL,   /* every node so far that is none yet */
    GRAPH_UPDATE,    /* state, node */
    GRAPH_OPS        /* + op: its inputs and attributes */
};
#define GRAPH_OP(NAME) (GRAPH_OPS + GN_OP_##NAME - GN_OP_FAILED - 1)
enum { GRAPH_DIM_MOST = 15, GRAPH_NODES = 1 << 18 };

typedef struct graph_maker {
    fuzz_input *in;
    gn__buf nodes, outs, updates;
    gn__type *types; /* of the nodes so far */
    uint8_t *is_out;
    size_t cap_types, cap_outs;
    uint32_t n, n_ins, n_attrs, n_dims, n_args, n_outs, n_updates;
    size_t last; /* where the latest node begins */
    uint32_t last_ins, last_attrs;
    bool last_is_arg;
} graph_maker;

static inline int64_t graph_dim(uint8_t b) {
    static const int64_t dims[16] = { 0,
                                      1,
                                      2,
                                      3,
                                      4,
                                      5,
                                      8,
                                      17,
                                      64,
                                      1000,
                                      4096,
                                      1 << 20,
                                      (int64_t)1 << 31,
                                      (int64_t)1 << 32,
                                      (int64_t)1 << 40,
                                      ((int64_t)1 << 45) };
    return dims[b & 15];
}

static inline int64_t graph_word(uint8_t b) {
    static const int64_t words[8] = { INT64_MIN,        INT64_MAX,        INT32_MIN, INT32_MAX,
                                      (int64_t)1 << 32, (int64_t)1 << 47, -1,        0x3ff0000000000000 };
    return b & 128 ? words[b & 7] : (b & 63) - 8;
}

static inline gn__type graph_type(graph_maker *m) {
    gn__type t;
    memset(&t, 0, sizeof t);
    t.dtype = (gn_dtype)(1 + fuzz_byte(m->in) % (GN_DTYPE__COUNT - 1));
    t.shape.rank = fuzz_byte(m->in) % (GN_MAX_RANK + 1);
    for (int i = 0; i < t.shape.rank; i++) t.shape.dims[i] = graph_dim(fuzz_byte(m->in));
    return t;
}

/* The node that was written from `at` on is one of the graph. */
static inline void graph_add(graph_maker *m, size_t at, const gn__type *t, uint32_t ins, uint32_t attrs, bool is_arg) {
    void *types = m->types, *outs = m->is_out;
    bool room = m->n < GRAPH_NODES && gn__reserve(&types, &m->cap_types, m->n + 1, sizeof *m->types);
    m->types = types;
    room = room && gn__reserve(&outs, &m->cap_outs, m->n + 1, 1);
    m->is_out = outs;
    if (!room || m->nodes.failed) {
        m->nodes.n = at;
        return;
    }
    m->is_out[m->n] = 0;
    m->types[m->n++] = *t;
    m->n_ins += ins;
    m->n_attrs += attrs;
    m->n_dims += (uint32_t)t->shape.rank;
    m->n_args += is_arg;
    m->last = at;
    m->last_ins = ins;
    m->last_attrs = attrs;
    m->last_is_arg = is_arg;
}

static inline void graph_leaf(graph_maker *m, gn_leaf_kind kind) {
    gn__type t = graph_type(m);
    size_t at = m->nodes.n;
    bool is_arg = kind == GN_LEAF_DATA || kind == GN_LEAF_VALUE;
    if (!gn__type_ok(&t)) return;
    gn__put_u16(&m->nodes, gn__ops[gn__op_leaf(kind)].wire);
    gn__put_u8(&m->nodes, 0);
    gn__put_u8(&m->nodes, (uint8_t)t.dtype);
    gn__put_u8(&m->nodes, (uint8_t)t.shape.rank);
    for (int i = 0; i < t.shape.rank; i++) gn__put_u64(&m->nodes, (uint64_t)t.shape.dims[i]);
    gn__put_u32(&m->nodes, is_arg ? m->n_args : fuzz_byte(m->in) % 8u);
    if (!is_arg) gn__put_u32(&m->nodes, 1);
    graph_add(m, at, &t, 0, 0, is_arg);
}

static inline void graph_op(graph_maker *m, int op, const uint32_t *ins, uint32_t n_ins, const int64_t *attrs,
                            uint16_t n_attrs) {
    gn__type in[8], t;
    size_t at = m->nodes.n;
    for (uint32_t i = 0; i < n_ins; i++) in[i] = m->types[ins[i]];
    memset(&t, 0, sizeof t);
    if (gn__infer(op, in, (int)n_ins, attrs, n_attrs, &t, NULL) != GN_OK) return;
    gn__put_u16(&m->nodes, gn__ops[op].wire);
    gn__put_u8(&m->nodes, 0);
    gn__put_u32(&m->nodes, n_ins);
    gn__put_u16(&m->nodes, n_attrs);
    for (uint32_t i = 0; i < n_ins; i++) gn__put_u32(&m->nodes, ins[i]);
    for (uint32_t i = 0; i < n_attrs; i++) gn__put_u64(&m->nodes, (uint64_t)attrs[i]);
    graph_add(m, at, &t, n_ins, n_attrs, false);
}

/* One of the latest nodes more often than an old one. */
static inline uint32_t graph_input(graph_maker *m) {
    uint32_t back = fuzz_byte(m->in);
    return m->n - 1 - (back < 128 ? back % 8 % m->n : back % m->n);
}

static inline void graph_any_op(graph_maker *m, uint8_t which) {
    int op = GN_OP_FAILED + 1 + which % (GN_OP__COUNT - GN_OP_FAILED - 1);
    const gn__op_row *row = &gn__ops[op];
    uint32_t ins[8], most = GN__MIN(row->most, 7u);
    int64_t attrs[12];
    uint8_t how = fuzz_byte(m->in);
    if (row->kind == GN_CLASS_LEAF || row->least > most) return;
    uint32_t n_ins = row->least + how % (most - row->least + 1u);
    uint16_t n_attrs = (uint16_t)(row->n_attrs < 0 ? how / 8 % 12 : row->n_attrs);
    for (uint32_t i = 0; i < n_ins; i++) ins[i] = graph_input(m);
    for (uint16_t i = 0; i < n_attrs; i++) attrs[i] = graph_word(fuzz_byte(m->in));
    graph_op(m, op, ins, n_ins, attrs, n_attrs);
}

static inline void graph_full(graph_maker *m) {
    gn__type t = graph_type(m);
    int64_t attrs[2 + GN_MAX_RANK] = { t.dtype, 0x3ff0000000000000 };
    for (int i = 0; i < t.shape.rank; i++) attrs[2 + i] = t.shape.dims[i];
    graph_op(m, GN_OP_FULL, NULL, 0, attrs, (uint16_t)(2 + t.shape.rank));
}

static inline void graph_broadcast(graph_maker *m) {
    int64_t dims[GN_MAX_RANK];
    uint32_t from = graph_input(m);
    const gn_shape *s = &m->types[from].shape;
    int more = fuzz_byte(m->in) % 4, n = 0;
    for (int i = 0; i < more && more + s->rank <= GN_MAX_RANK; i++) dims[n++] = graph_dim(fuzz_byte(m->in));
    for (int i = 0; i < s->rank; i++) dims[n++] = s->dims[i] == 1 ? graph_dim(fuzz_byte(m->in)) : s->dims[i];
    graph_op(m, GN_OP_BROADCAST, &from, 1, dims, (uint16_t)n);
}

static inline void graph_repeat(graph_maker *m) {
    uint32_t times = 1u << fuzz_byte(m->in) % 18, ins = m->last_ins, attrs = m->last_attrs;
    size_t from = m->last, bytes = m->nodes.n - m->last;
    gn__type t = m->types[m->n - 1];
    for (uint32_t i = 1; i < times && !m->last_is_arg && bytes < 200; i++) {
        uint8_t copy[200];
        memcpy(copy, m->nodes.p + from, bytes);
        size_t at = m->nodes.n;
        gn__put_bytes(&m->nodes, copy, bytes);
        graph_add(m, at, &t, ins, attrs, false);
    }
}

static inline void graph_out(graph_maker *m, uint32_t node) {
    if (!m->is_out[node]) {
        gn__put_u32(&m->outs, node);
        m->n_outs++;
        m->is_out[node] = 1;
    }
}

static inline void graph_instruction(graph_maker *m, uint8_t what) {
    if (what <= GRAPH_STATE) {
        graph_leaf(m, (gn_leaf_kind)(what - GRAPH_DATA + GN_LEAF_DATA));
    } else if (what == GRAPH_FULL) {
        graph_full(m);
    } else if (!m->n) {
        return;
    } else if (what == GRAPH_BROADCAST) {
        graph_broadcast(m);
    } else if (what == GRAPH_REPEAT) {
        graph_repeat(m);
    } else if (what == GRAPH_OUT) {
        graph_out(m, graph_input(m));
    } else if (what == GRAPH_OUT_ALL) {
        for (uint32_t i = 0; i < m->n; i++) graph_out(m, i);
    } else if (what == GRAPH_UPDATE) {
        gn__put_u32(&m->updates, fuzz_byte(m->in) % 8u);
        gn__put_u32(&m->updates, 1);
        gn__put_u32(&m->updates, graph_input(m));
        m->n_updates++;
    } else {
        graph_any_op(m, (uint8_t)(what - GRAPH_OPS));
    }
}

/* Appends the part that the program makes; nothing when it makes none. */
static inline void graph_program(fuzz_input *in, gn__buf *to) {
    graph_maker m;
    memset(&m, 0, sizeof m);
    m.in = in;
    while (in->n) graph_instruction(&m, fuzz_byte(in));
    const uint32_t head[7] = { m.n, m.n_ins, m.n_attrs, m.n_dims, m.n_args, m.n_outs, m.n_updates };
    bool whole = m.n && !m.nodes.failed && !m.outs.failed && !m.updates.failed;
    for (int i = 0; whole && i < 7; i++) gn__put_u32(to, head[i]);
    gn__put_bytes(to, m.nodes.p, whole ? m.nodes.n : 0);
    gn__put_bytes(to, m.outs.p, whole ? m.outs.n : 0);
    gn__put_bytes(to, m.updates.p, whole ? m.updates.n : 0);
    if (to->failed) to->n = 0;
    gn__buf_deinit(&m.nodes);
    gn__buf_deinit(&m.outs);
    gn__buf_deinit(&m.updates);
    gn_free(m.types);
    gn_free(m.is_out);
}

#endif
