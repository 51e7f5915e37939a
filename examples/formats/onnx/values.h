/* values.h - a part of onnx.h: the values of a build, where they are, and the session that holds them. */
#ifndef ONNX_VALUES_H
#define ONNX_VALUES_H

enum {
    ONNX__FOLD = 64 << 20, /* bytes of a result that is folded */
    ONNX__SMALL = 256,     /* bytes of a constant that is data of the step rather than a weight */
    ONNX__CALLS = 4000000, /* nodes of one build, loops unrolled */
    ONNX__LEVELS = 48      /* subgraphs and functions in each other */
};

typedef struct onnx__chunk {
    struct onnx__chunk *next;
    size_t used, size;
} onnx__chunk;

typedef enum onnx__value_kind { ONNX__NOTHING, ONNX__ONE, ONNX__MANY } onnx__value_kind;

/* A tensor, a sequence, or an optional value that is not there. A constant has host bytes or a tensor of the folding
   context, and gets one of the program's context when it is used there. */
typedef struct onnx__value {
    onnx__value_kind kind;
    onnx_type type; /* of the tensor or the elements */
    bool constant;
    gn_shape shape;
    gn_tensor local, main; /* in the folding context, in the program's */
    const void *host;
    size_t bytes;
    const uint8_t *key; /* of an initialiser: its message */
    struct onnx__value **items;
    int n;
} onnx__value;

/* A weight that the session made: found again by what it is made of. */
typedef struct onnx__kept {
    const uint8_t *key; /* an initialiser's message, NULL for what was folded */
    uint64_t hash;
    gn_dtype dtype;
    gn_shape shape;
    void *copy; /* the session's, or NULL */
    const void *host;
    size_t bytes;
    gn_tensor weight;
    struct onnx__kept *next;
} onnx__kept;

typedef struct onnx__bound {
    onnx_slot slot;
    onnx_tensor *tensors;
    int n; /* -2: not given, -1: nothing */
} onnx__bound;

enum { ONNX__BUCKETS = 4096 };

struct onnx_session {
    onnx *model;
    gn_ctx *g, *fold;
    onnx__chunk *chunks; /* memory of this build */
    onnx__kept *kept[ONNX__BUCKETS];
    onnx__bound *inputs;
    onnx__value **outputs;
    int n_inputs, n_outputs;
    onnx_counts counts;
    char *error;
};

static void *onnx__alloc(onnx_session *s, size_t bytes) {
    bytes = (bytes + 63) & ~(size_t)63;
    onnx__chunk *c = s->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > 65536 ? bytes : 65536;
        c = malloc(sizeof *c + 64 + size);
        if (!c) {
            fprintf(stderr, "onnx: out of memory\n");
            abort();
        }
        *c = (onnx__chunk){ s->chunks, 0, size };
        s->chunks = c;
    }
    uint8_t *base = (uint8_t *)(((uintptr_t)(c + 1) + 63) & ~(uintptr_t)63);
    void *p = base + c->used;
    c->used += bytes;
    return memset(p, 0, bytes);
}

static void onnx__free_chunks(onnx_session *s) {
    while (s->chunks) {
        onnx__chunk *next = s->chunks->next;
        free(s->chunks);
        s->chunks = next;
    }
}

static size_t onnx__elements(gn_shape shape) {
    size_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= (size_t)shape.dims[i];
    return n;
}

static gn_shape onnx__shape(gn_tensor t) {
    gn_info info;
    gn_describe(t, &info);
    return info.shape;
}

static gn_dtype onnx__dtype(gn_tensor t) {
    gn_info info;
    gn_describe(t, &info);
    return info.dtype;
}

static onnx__value *onnx__new_value(onnx_session *s, onnx__value_kind kind) {
    onnx__value *v = onnx__alloc(s, sizeof *v);
    v->kind = kind;
    return v;
}

/* What one describes: dtype and shape of the tensor. */
static onnx__value *onnx__tensor_value(onnx_session *s, gn_tensor t, bool local, onnx_type type) {
    onnx__value *v = onnx__new_value(s, ONNX__ONE);
    v->type = type;
    v->shape = onnx__shape(t);
    v->bytes = onnx__elements(v->shape) * onnx__dtype_bytes[onnx__types[type].dtype];
    v->constant = local;
    *(local ? &v->local : &v->main) = t;
    return v;
}

/* The host's bytes of a value; computes it if they are not there. NULL: s->error says why. */
static const void *onnx__host(onnx_session *s, onnx__value *v) {
    if (v->host) return v->host;
    void *out = onnx__alloc(s, v->bytes + 1);
    gn_tensor t = v->constant ? v->local : v->main;
    if (!v->constant) s->counts.early_reads++;
    if (v->bytes && gn_read(t, out, v->bytes) != GN_OK) {
        onnx__fail(s->error, "%s", gn_last_error(v->constant ? s->fold : s->g)->text);
        return NULL;
    }
    return v->host = out;
}

/* ---- constants of the program's context ---- */

static uint64_t onnx__hash(const void *p, size_t n, uint64_t h) {
    const uint8_t *at = p;
    for (; n >= 8; n -= 8, at += 8) h = (h ^ onnx__fixed(at, 8)) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
    while (n--) h = (h ^ *at++) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static double onnx__number(gn_dtype dtype, const void *host, size_t i) {
    switch (dtype) {
    case GN_F32: return (double)((const float *)host)[i];
    case GN_F64: return ((const double *)host)[i];
    case GN_I32: return ((const int32_t *)host)[i];
    case GN_I64: return (double)((const int64_t *)host)[i];
    case GN_I8: return ((const int8_t *)host)[i];
    case GN_U8:
    case GN_BOOL: return ((const uint8_t *)host)[i];
    case GN_I16: return ((const int16_t *)host)[i];
    case GN_U16: return ((const uint16_t *)host)[i];
    case GN_U32: return ((const uint32_t *)host)[i];
    default: return NAN; /* 16-bit floats: gn_full is not used for them */
    }
}

/* Finds or makes the weight of some bytes. */
static gn_tensor onnx__weight(onnx_session *s, gn_dtype dtype, gn_shape shape, const void *host, size_t bytes,
                              const uint8_t *key) {
    uint64_t hash = key ? onnx__hash(&key, sizeof key, 1) : onnx__hash(host, bytes, (uint64_t)dtype);
    onnx__kept **bucket = &s->kept[hash % ONNX__BUCKETS];
    for (onnx__kept *k = *bucket; k; k = k->next)
        if (k->hash == hash && k->key == key && k->dtype == dtype && k->bytes == bytes &&
            !memcmp(&k->shape, &shape, sizeof shape) && (key || !memcmp(k->host, host, bytes)))
            return k->weight;
    onnx__kept *k = calloc(1, sizeof *k);
    bool whole = key && (uintptr_t)host >= (uintptr_t)s->model->map.data &&
                 (uintptr_t)host < (uintptr_t)s->model->map.data + s->model->map.size;
    void *copy = whole ? NULL : malloc(bytes);
    if (!k || (!whole && !copy)) {
        free(k);
        free(copy);
        return gn_data(s->g, dtype, shape, host); /* as data of this step, which needs no memory here */
    }
    if (copy) memcpy(copy, host, bytes);
    *k = (onnx__kept){ key, hash, dtype, shape, copy, copy ? copy : host, bytes, GN_NONE, *bucket };
    k->weight = gn_weight(s->g, dtype, shape, k->host, NULL);
    *bucket = k;
    return k->weight;
}

/* A constant where the program computes: equal elements are made there, small ones are data of the step. */
static gn_tensor onnx__constant(onnx_session *s, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host,
                                size_t bytes, const uint8_t *key) {
    size_t each = onnx__dtype_bytes[dtype];
    bool equal = bytes >= each && bytes && !memcmp(host, (const uint8_t *)host + each, bytes - each);
    if (equal && dtype == GN_I64) return gn_full_i64(g, dtype, shape, *(const int64_t *)host);
    double v = equal ? onnx__number(dtype, host, 0) : NAN;
    bool negative_zero = v == 0 && signbit(v);
    if (isfinite(v) && !negative_zero) return gn_full(g, dtype, shape, v);
    if (g == s->g && bytes >= ONNX__SMALL) return onnx__weight(s, dtype, shape, host, bytes, key);
    return gn_data_copy(g, dtype, shape, bytes ? host : "");
}

/* The tensor of a value in one of the two contexts; GN_NONE: s->error says why. */
static gn_tensor onnx__tensor_in(onnx_session *s, onnx__value *v, gn_ctx *g) {
    gn_tensor *slot = g == s->fold ? &v->local : &v->main;
    if (slot->ctx) return *slot;
    const void *host = onnx__host(s, v);
    if (!host) return GN_NONE;
    return *slot = onnx__constant(s, g, onnx_type_dtype(v->type), v->shape, host, v->bytes, v->key);
}

/* The value of a tensor of the file, or of the program's memory. */
static onnx__value *onnx__load(onnx_session *s, const onnx_tensor *t, const uint8_t *key) {
    onnx__value *v = onnx__new_value(s, ONNX__ONE);
    v->type = t->type;
    v->shape.rank = t->rank;
    memcpy(v->shape.dims, t->dims, sizeof t->dims);
    v->bytes = t->bytes;
    v->key = key;
    v->constant = true;
    if (onnx_type_dtype(t->type) == GN_DTYPE_NONE) {
        onnx__fail(s->error, "tensor '%.*s': %s is not held", ONNX__SHOW(t->name), onnx_type_name(t->type));
        return NULL;
    }
    uint32_t each = onnx__dtype_bytes[onnx_type_dtype(t->type)];
    if (t->data && t->type != ONNX_BOOL && (uintptr_t)t->data % each == 0) {
        v->host = t->data;
        return v;
    }
    void *out = onnx__alloc(s, v->bytes + 1);
    if (t->message.at) {
        if (!onnx_decode(t, out, s->error)) return NULL;
    } else if (v->bytes) memcpy(out, t->data, v->bytes);
    v->host = out;
    return v;
}
#endif
