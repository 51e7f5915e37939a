/* calls.h - a part of onnx.h: a node that is being built: its inputs, attributes and outputs, for the functions that
   build ops. Those report what they refuse by onnx__no, once, and return. */
#ifndef ONNX_CALLS_H
#define ONNX_CALLS_H

typedef struct onnx__call onnx__call;

enum onnx__flags {
    ONNX__ANY_TYPE = 1, /* elements are only moved, or cast: types that are held otherwise are right too */
    ONNX__RANDOM = 2,   /* not folded */
    ONNX__STATIC = 8,   /* depends on the shape alone */
    ONNX__ON_HOST = 16, /* the builder computes it */
    ONNX__SCOPED = 32   /* its subgraphs see values around it: folds by node */
};

typedef struct onnx__op {
    const char *name;
    int since; /* operator set from which on the builder is right */
    unsigned flags;
    void (*build)(onnx__call *c);
    gn_tensor (*unary)(const char *file, int line, gn_tensor a);
    gn_tensor (*binary)(const char *file, int line, gn_tensor a, gn_tensor b);
} onnx__op;

/* Names of a graph, of an iteration of a loop, or of a function. */
typedef struct onnx__name {
    onnx_span name;
    onnx__value *value;
    struct onnx__name *next;
} onnx__name;

enum { ONNX__NAMES = 64, ONNX__DOMAINS = 8 };

typedef struct onnx__use {
    onnx_span name;
    int n; /* times that nodes and subgraphs name it, and outputs */
    struct onnx__use *next;
} onnx__use;

/* What a graph says of a value: its ValueInfoProto. */
typedef struct onnx__declared {
    onnx_span name, info;
    struct onnx__declared *next;
} onnx__declared;

typedef struct onnx__scope {
    struct onnx__scope *outer; /* NULL for the model and for functions */
    onnx__name **names;
    size_t n_buckets;
    onnx__declared **declared; /* in as many buckets; NULL: nothing is */
    onnx__use **uses;          /* of the model's graph, in as many buckets; NULL: not counted */
    const onnx__call *caller;  /* of a function: where its attributes come from */
    onnx_span function;
    onnx_span opsets; /* the message that lists operator sets */
    uint32_t opset_field;
    int depth;
} onnx__scope;

struct onnx__call {
    onnx_session *s;
    onnx__scope *scope;
    const onnx__op *op;
    onnx_span node, op_name;
    gn_ctx *g;
    onnx__value **in, **out;
    onnx_span *out_names;
    int n_in, n_out, version;
    bool failed;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
onnx__no(onnx__call *c, const char *format, ...) {
    char text[ONNX_ERROR / 2];
    va_list args;
    if (c->failed) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    onnx_span name = onnx__get(c->node, 3).bytes;
    c->failed = true;
    if (onnx__size(name) == 0 && c->n_out) name = c->out_names[0];
    const onnx *m = c->s->model;
    onnx__fail(c->s->error, "%.200s: byte %" PRIu64 ", node '%.*s' (%.*s, version %d): %s", m->path,
               (uint64_t)(c->node.at - m->map.data), ONNX__SHOW(name), ONNX__SHOW(c->op_name), c->version, text);
}

/* ---- inputs ---- */

static bool ox_has(const onnx__call *c, int i) { return i < c->n_in && c->in[i] && c->in[i]->kind != ONNX__NOTHING; }
static onnx_type ox_type(const onnx__call *c, int i) { return ox_has(c, i) ? c->in[i]->type : ONNX_UNDEFINED; }
static gn_shape ox_in_shape(const onnx__call *c, int i) { return ox_has(c, i) ? c->in[i]->shape : GN_SCALAR; }
static bool ox_is_float(gn_dtype d) { return d == GN_F32 || d == GN_F64 || d == GN_F16 || d == GN_BF16; }

/* The tensor of input i; GN_NONE where it is left out. */
static gn_tensor ox_in(onnx__call *c, int i) {
    if (!ox_has(c, i)) return GN_NONE;
    if (c->in[i]->kind != ONNX__ONE) {
        onnx__no(c, "input %d is a %s, not a tensor", i, c->in[i]->kind == ONNX__MAP ? "map" : "sequence");
        return GN_NONE;
    }
    gn_tensor t = onnx__tensor_in(c->s, c->in[i], c->g);
    if (!t.ctx) c->failed = true;
    return t;
}

static gn_dtype ox_dtype(const onnx__call *c, int i) { return onnx_type_dtype(ox_type(c, i)); }

/* Host bytes of input i. */
static const void *ox_host(onnx__call *c, int i) {
    bool is = ox_has(c, i) && c->in[i]->kind == ONNX__ONE;
    if (is && !c->in[i]->host && c->in[i]->bytes > ONNX__FOLD) {
        onnx__no(c, "the values of input %d are needed to build it: %zu bytes, at most %d", i, c->in[i]->bytes,
                 ONNX__FOLD);
        return NULL;
    }
    const void *p = is ? onnx__host(c->s, c->in[i]) : NULL;
    if (!p) onnx__no(c, "input %d has no values: %s", i, ox_has(c, i) ? c->s->error : "it is left out");
    return p;
}

/* All numbers of input i, which must be known; NULL: refused. */
static int64_t *ox_host_ints(onnx__call *c, int i, int *n) {
    const void *host = ox_host(c, i);
    size_t count = host ? onnx__elements(c->in[i]->shape) : 0;
    int64_t *out = onnx__alloc(c->s, (count + 1) * sizeof *out);
    *n = (int)count;
    if (!host) return NULL;
    if (ox_is_float(ox_dtype(c, i))) {
        onnx__no(c, "input %d has floats, ints are needed", i);
        return NULL;
    }
    for (size_t k = 0; k < count; k++)
        out[k] = onnx__dtype_bytes[ox_dtype(c, i)] == 8 ? ((const int64_t *)host)[k]
                                                        : (int64_t)onnx__number(ox_dtype(c, i), host, k);
    return out;
}

static double ox_host_element(onnx__call *c, int i, size_t k) {
    const void *host = ox_host(c, i);
    gn_dtype d = ox_dtype(c, i);
    if (!host) return 0;
    if (d == GN_F16 || d == GN_BF16) {
        float out = 0;
        gn_shape one = { 1, { 1 } };
        gn_tensor t = gn_data(c->s->fold, d, one, (const uint8_t *)host + 2 * k);
        if (gn_read(gn_cast(t, GN_F32), &out, sizeof out) != GN_OK) onnx__no(c, "input %d cannot be read", i);
        return (double)out;
    }
    return onnx__number(d, host, k);
}

/* A single number, which must be known; `otherwise` where the input is left out. */
static double ox_number(onnx__call *c, int i, double otherwise) {
    if (!ox_has(c, i)) return otherwise;
    if (onnx__elements(c->in[i]->shape) != 1) {
        onnx__no(c, "input %d has %zu elements, one is needed", i, onnx__elements(c->in[i]->shape));
        return otherwise;
    }
    return ox_host_element(c, i, 0);
}

/* The same of a whole number. */
static int64_t ox_integer(onnx__call *c, int i, int64_t otherwise) {
    int n;
    if (!ox_has(c, i)) return otherwise;
    const int64_t *p = ox_host_ints(c, i, &n);
    if (p && n != 1) onnx__no(c, "input %d has %d elements, one is needed", i, n);
    return p && n == 1 ? p[0] : otherwise;
}

/* ---- attributes ---- */

/* An attribute by name; of a function's node that refers to one of the function, the caller's or its default. */
static onnx_span ox_attribute(const onnx__call *c, const char *name) {
    onnx_field f, g;
    for (onnx_span s = c->node; onnx_find(&s, 5, &f);) {
        onnx_span refers = onnx__get(f.bytes, 21).bytes;
        if (!onnx__is(onnx__get(f.bytes, 1).bytes, name)) continue;
        if (refers.at == refers.end || !c->scope->function.at) return f.bytes;
        char text[128];
        snprintf(text, sizeof text, "%.*s", ONNX__SHOW(refers));
        const onnx__scope *scope = c->scope;
        onnx_span given = scope->caller ? ox_attribute(scope->caller, text) : (onnx_span){ NULL, NULL };
        if (given.at) return given;
        for (onnx_span d = scope->function; onnx_find(&d, 11, &g);)
            if (onnx__is(onnx__get(g.bytes, 1).bytes, text)) return g.bytes;
        break;
    }
    return (onnx_span){ NULL, NULL };
}

static bool ox_has_attribute(const onnx__call *c, const char *name) { return ox_attribute(c, name).at != NULL; }

static int64_t ox_int(const onnx__call *c, const char *name, int64_t otherwise) {
    onnx_span a = ox_attribute(c, name);
    return a.at ? (int64_t)onnx__get(a, 3).value : otherwise;
}

static float onnx__float_of(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return v;
}

static double ox_float(const onnx__call *c, const char *name, double otherwise) {
    onnx_span a = ox_attribute(c, name);
    return a.at ? (double)onnx__float_of(onnx__get(a, 2).value) : otherwise;
}

static onnx_span ox_text(const onnx__call *c, const char *name) {
    onnx_span a = ox_attribute(c, name);
    return a.at ? onnx__get(a, 4).bytes : a;
}

/* An attribute's text is `value`; `otherwise` where the attribute is left out. */
static bool ox_text_is(const onnx__call *c, const char *name, const char *value, const char *otherwise) {
    return ox_has_attribute(c, name) ? onnx__is(ox_text(c, name), value) : !strcmp(value, otherwise);
}

/* Numbers of an attribute, NULL where it is left out. */
static int64_t *ox_ints(onnx__call *c, const char *name, int *n) {
    onnx_span a = ox_attribute(c, name);
    *n = 0;
    if (!a.at) return NULL;
    onnx__numbers numbers = { a, { NULL, NULL }, 8 };
    uint64_t v, count = onnx__count_numbers(a, 8, 0);
    int64_t *out = onnx__alloc(c->s, (size_t)(count + 1) * sizeof *out);
    while (onnx__next_number(&numbers, &v)) out[(*n)++] = (int64_t)v;
    return out;
}

static float *ox_floats(onnx__call *c, const char *name, int *n) {
    onnx_span a = ox_attribute(c, name);
    onnx_field f;
    *n = 0;
    if (!a.at) return NULL;
    float *out = onnx__alloc(c->s, (size_t)(onnx__count_numbers(a, 7, 4) + 1) * sizeof *out);
    while (onnx_find(&a, 7, &f)) {
        if (f.wire != 2) out[(*n)++] = onnx__float_of(f.value);
        else
            for (const uint8_t *p = f.bytes.at; p < f.bytes.end; p += 4)
                out[(*n)++] = onnx__float_of(onnx__fixed(p, 4));
    }
    return out;
}

/* Numbers that are an input from `since` on and an attribute before. NULL: left out, or refused. */
static int64_t *ox_input_or_ints(onnx__call *c, int since, int i, const char *name, int *n) {
    *n = 0;
    if (c->version < since) return ox_ints(c, name, n);
    return ox_has(c, i) ? ox_host_ints(c, i, n) : NULL;
}

/* ---- outputs ---- */

static bool ox_wants(const onnx__call *c, int i) { return i < c->n_out && onnx__size(c->out_names[i]) > 0; }

static onnx_type onnx__type_of(gn_dtype d) {
    for (int t = 1; t < ONNX_TYPE__COUNT; t++)
        if (onnx__is_plain(t) && onnx__types[t].dtype == d) return (onnx_type)t;
    return ONNX_UNDEFINED;
}

static void ox_out_as(onnx__call *c, int i, gn_tensor t, onnx_type type) {
    gn_info info;
    if (c->failed || i >= c->n_out) return;
    if (!t.ctx || gn_describe(t, &info) != GN_OK) {
        gn_ctx *g = t.ctx ? t.ctx : c->g;
        onnx__no(c, "%s", gn_last_error(g)->text);
        return;
    }
    if (info.dtype != onnx_type_dtype(type)) {
        onnx__no(c, "result %d is held as another dtype than %s", i, onnx_type_name(type));
        return;
    }
    if (ox_wants(c, i)) c->out[i] = onnx__tensor_value(c->s, t, c->g == c->s->fold, type);
}

/* An output whose type is that of its dtype. */
static void ox_out(onnx__call *c, int i, gn_tensor t) {
    gn_info info;
    if (c->failed) return;
    gn_result r = t.ctx ? gn_describe(t, &info) : GN_BAD_ARGUMENT;
    ox_out_as(c, i, t, r == GN_OK ? onnx__type_of(info.dtype) : ONNX_FLOAT);
}

/* An output of the type of input `like`. */
static void ox_out_like(onnx__call *c, int i, gn_tensor t, int like) { ox_out_as(c, i, t, ox_type(c, like)); }

/* An output whose values the builder has computed: it is a constant if all inputs are. */
static void ox_out_host(onnx__call *c, int i, onnx_type type, gn_shape shape, const void *host) {
    if (c->failed || !ox_wants(c, i)) return;
    gn_dtype d = onnx_type_dtype(type);
    onnx__value *v = onnx__new_value(c->s, ONNX__ONE);
    v->type = type;
    v->shape = shape;
    v->bytes = onnx__elements(shape) * onnx__dtype_bytes[d];
    v->host = host;
    v->constant = c->g == c->s->fold;
    if (!v->constant) v->main = gn_data(c->g, d, shape, v->bytes ? host : "");
    c->out[i] = v;
}

/* ---- convolutions that grow ---- */

/* The convolution whose only use is input i of this node; NULL: it is none. Making it anew with this node in it costs
   nothing, since what nobody reads is not computed. */
static const onnx__conv *ox_conv_before(const onnx__call *c, int i) {
    bool is = c->g == c->s->g && c->scope->uses && ox_has(c, i) && c->in[i]->kind == ONNX__ONE && c->in[i]->uses == 1;
    return is ? c->in[i]->conv : NULL;
}

static void ox_out_conv(onnx__call *c, const onnx__conv *v) {
    ox_out_like(c, 0, gn_conv(v->x, v->w, v->bias, &v->desc), 0);
    if (!c->failed && c->n_out && c->out[0]) c->out[0]->conv = v;
}

/* The node as a bound of the convolution before it. False: there is none, or it has one. */
static bool ox_join_clamp(onnx__call *c, double least, double most) {
    const onnx__conv *from = ox_conv_before(c, 0);
    if (!from || from->desc.clamps || !(least <= most)) return false;
    onnx__conv *v = onnx__alloc(c->s, sizeof *v);
    *v = *from;
    v->desc.clamps = true;
    v->desc.least = least;
    v->desc.most = most;
    ox_out_conv(c, v);
    c->s->counts.joined++;
    return true;
}

/* The node, a sum of two, as a convolution with a residual. */
static bool ox_join_sum(onnx__call *c) {
    for (int i = 0; i < 2; i++) {
        const onnx__conv *from = ox_conv_before(c, i);
        gn_shape a = ox_in_shape(c, 0), b = ox_in_shape(c, 1);
        bool same = a.rank == b.rank && ox_type(c, 0) == ox_type(c, 1);
        for (int k = 0; same && k < a.rank; k++) same = a.dims[k] == b.dims[k];
        if (!from || !same || from->desc.clamps || from->desc.residual.ctx) continue;
        onnx__conv *v = onnx__alloc(c->s, sizeof *v);
        *v = *from;
        v->desc.residual = ox_in(c, 1 - i);
        ox_out_conv(c, v);
        c->s->counts.joined++;
        return true;
    }
    return false;
}

/* ---- small things that builders share ---- */

/* A constant table in the node's context; `host` may go afterwards. */
static gn_tensor ox_table(onnx__call *c, gn_dtype dtype, gn_shape shape, const void *host) {
    return onnx__constant(c->s, c->g, dtype, shape, host, onnx__elements(shape) * onnx__dtype_bytes[dtype]);
}

static gn_tensor ox_indices(onnx__call *c, const int64_t *index, int64_t n) {
    return ox_table(c, GN_I64, GN_SHAPE(n), index);
}

/* The same of what inputs make of it: the session does not keep it. */
static gn_tensor ox_step_indices(onnx__call *c, const int64_t *index, int64_t n) {
    return gn_data_copy(c->g, GN_I64, GN_SHAPE(n), n ? (const void *)index : "");
}

static int64_t ox_dim(gn_tensor t, int axis) {
    gn_shape s = onnx__shape(t);
    return s.rank ? s.dims[axis < 0 ? axis + s.rank : axis] : 1;
}

static int ox_rank(gn_tensor t) { return onnx__shape(t).rank; }

/* An axis counted from the front; refused when there is none such. */
static int ox_axis(onnx__call *c, int64_t axis, int rank) {
    if (axis < -rank || axis >= rank) {
        onnx__no(c, "axis %" PRId64 " is outside of rank %d", axis, rank);
        return 0;
    }
    return (int)(axis < 0 ? axis + rank : axis);
}

static gn_shape ox_make_shape(onnx__call *c, const int64_t *dims, int rank) {
    gn_shape s = GN_SCALAR;
    if (rank > GN_MAX_RANK || rank < 0) {
        onnx__no(c, "rank %d is above 8", rank);
        return s;
    }
    s.rank = rank;
    for (int i = 0; i < rank; i++) {
        s.dims[i] = dims[i];
        if (dims[i] < 0) onnx__no(c, "dimension %d is %" PRId64, i, dims[i]);
    }
    return s;
}

static gn_tensor ox_cast(gn_tensor t, gn_dtype d) { return onnx__dtype(t) == d ? t : gn_cast(t, d); }
#endif
