/* values.h - a part of onnx.h: the values of a build, where they are, and the session that holds them. */
#ifndef ONNX_VALUES_H
#define ONNX_VALUES_H

enum {
    ONNX__MEMORY = 1 << 30, /* bytes of names and tables of a build */
    ONNX__FOLD = 64 << 20,  /* bytes of a result that is folded */
    ONNX__SMALL = 256,      /* bytes of a constant that is data of the step rather than a weight */
    ONNX__CALLS = 1 << 20,  /* nodes of one build, loops unrolled */
    ONNX__LEVELS = 48       /* subgraphs and functions in each other */
};

typedef struct onnx__chunk {
    struct onnx__chunk *next;
    size_t used, size;
} onnx__chunk;

typedef enum onnx__value_kind { ONNX__NOTHING, ONNX__ONE, ONNX__MANY, ONNX__MAP } onnx__value_kind;

struct onnx__value;
/* A convolution, so that what follows it can become a part of it. */
typedef struct onnx__conv {
    gn_tensor x, w, bias;
    struct onnx__value *kernel, *offset; /* w and bias as the model has them; NULL: it does not */
    gn_conv_desc desc;
} onnx__conv;

/* A tensor, a sequence, a map, or an optional value that is not there. A constant has host bytes or a tensor of the
   folding context, and gets one of the program's context when it is used there. */
typedef struct onnx__value {
    onnx__value_kind kind;
    onnx_type type; /* of the tensor or the elements */
    bool constant;
    gn_shape shape;
    gn_tensor local, main; /* in the folding context, in the program's */
    const void *host;
    size_t bytes;
    const onnx_tensor *file; /* of an initialiser that has not been unpacked */
    struct onnx__value **items;
    int n;               /* of items, or of keys */
    bool of_maps;        /* a sequence */
    const int64_t *keys; /* of a map, in order; its values are a row of a table (N,n) */
    struct onnx__value *table;
    int64_t row;
    const onnx__conv *conv; /* what it is the result of; NULL: of another op */
    int uses;               /* of its name in the model's graph; 0: not counted */
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
    size_t held;         /* its bytes */
    jmp_buf give_up;     /* where a build goes on that has no memory; all it made is in the chunks */
    onnx__kept *kept[ONNX__BUCKETS];
    onnx__bound *inputs;
    onnx__value **outputs;
    int n_inputs, n_outputs;
    onnx_counts counts;
    char odd_shape[ONNX_ERROR]; /* the first of counts.odd_shapes */
    char *error;
};

/* Memory of this build, zeroed, 64-byte aligned; NULL when there is none or it would be too much. */
static void *onnx__room(onnx_session *s, size_t bytes, size_t most) {
    onnx__chunk *c = s->chunks;
    if (bytes > most) return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > 65536 ? bytes : 65536;
        if (!(c = calloc(1, sizeof *c + 64 + size))) return NULL;
        *c = (onnx__chunk){ s->chunks, 0, size };
        s->chunks = c;
        s->held += size;
    }
    uint8_t *base = (uint8_t *)(((uintptr_t)(c + 1) + 63) & ~(uintptr_t)63);
    void *p = base + c->used;
    c->used += bytes;
    return p;
}

/* The same for builders: where there is none, the build ends. */
static void *onnx__alloc(onnx_session *s, size_t bytes) {
    void *p = s->held < ONNX__MEMORY ? onnx__room(s, bytes, ONNX__MEMORY) : NULL;
    if (p) return p;
    onnx__fail(s->error, "building takes more than %d MiB, or memory is short", ONNX__MEMORY >> 20);
    longjmp(s->give_up, 1);
}

static void onnx__free_chunks(onnx_session *s) {
    s->held = 0;
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
    case GN_U64: return (double)((const uint64_t *)host)[i];
    case GN_I8: return ((const int8_t *)host)[i];
    case GN_U8:
    case GN_BOOL: return ((const uint8_t *)host)[i];
    case GN_I16: return ((const int16_t *)host)[i];
    case GN_U16: return ((const uint16_t *)host)[i];
    case GN_U32: return ((const uint32_t *)host)[i];
    default: return NAN; /* 16-bit floats: gn_full is not used for them */
    }
}

/* Finds what the session keeps of a tensor of the file (key), or of bytes; `add` is put there if there is none. */
static onnx__kept *onnx__keep(onnx_session *s, const onnx__kept *like, bool add) {
    uint64_t hash =
        like->key ? onnx__hash(&like->key, sizeof like->key, 1) : onnx__hash(like->host, like->bytes, like->dtype);
    onnx__kept **bucket = &s->kept[hash % ONNX__BUCKETS], *k;
    for (k = *bucket; k; k = k->next)
        if (k->hash == hash && k->key == like->key && k->dtype == like->dtype && k->bytes == like->bytes &&
            !memcmp(&k->shape, &like->shape, sizeof k->shape) && (k->key || !memcmp(k->host, like->host, k->bytes)))
            return k;
    if (!add || !(k = malloc(sizeof *k))) return NULL;
    *k = *like;
    k->hash = hash;
    k->next = *bucket;
    return *bucket = k;
}

/* An initialiser's elements, where they lie in the file or unpacked once for the session. */
static onnx__kept *onnx__unpacked(onnx_session *s, const onnx__value *v) {
    const onnx_tensor *t = v->file;
    onnx__kept like = { .key = t->message.at, .dtype = onnx_type_dtype(t->type), .shape = v->shape, .bytes = v->bytes };
    onnx__kept *k = onnx__keep(s, &like, false);
    if (k) return k;
    like.host = t->data;
    if (!t->data || t->type == ONNX_BOOL || (uintptr_t)t->data % onnx__dtype_bytes[like.dtype]) {
        like.host = like.copy = malloc(v->bytes + 1);
        if (!like.copy || !onnx_decode(t, like.copy, s->error)) {
            if (!like.copy)
                onnx__fail(s->error, "there is no memory for %zu bytes of '%.*s'", v->bytes, ONNX__SHOW(t->name));
            free(like.copy);
            return NULL;
        }
    }
    if (!(k = onnx__keep(s, &like, true))) free(like.copy);
    return k;
}

/* The host's bytes of a value; computes it if they are not there. NULL: s->error says why. */
static const void *onnx__host(onnx_session *s, onnx__value *v) {
    if (v->host) return v->host;
    if (v->file) {
        const onnx__kept *k = onnx__unpacked(s, v);
        return v->host = k ? k->host : NULL;
    }
    void *out = onnx__room(s, v->bytes + 1, SIZE_MAX / 4);
    if (!out) {
        onnx__fail(s->error, "there is no memory for %zu bytes of a value", v->bytes);
        return NULL;
    }
    gn_tensor t = v->constant ? v->local : v->main;
    if (!v->constant) s->counts.early_reads++;
    if (v->bytes && gn_read(t, out, v->bytes) != GN_OK) {
        onnx__fail(s->error, "%s", gn_last_error(v->constant ? s->fold : s->g)->text);
        return NULL;
    }
    return v->host = out;
}

/* The weight of bytes that were folded; the session keeps a copy. */
static gn_tensor onnx__weight(onnx_session *s, gn_dtype dtype, gn_shape shape, const void *host, size_t bytes) {
    onnx__kept like = { .dtype = dtype, .shape = shape, .host = host, .bytes = bytes },
               *k = onnx__keep(s, &like, false);
    if (!k && (like.copy = malloc(bytes))) {
        like.host = memcpy(like.copy, host, bytes);
        if (!(k = onnx__keep(s, &like, true))) free(like.copy);
    }
    if (!k) return gn_data(s->g, dtype, shape, host); /* as data of this step, which needs no memory here */
    if (!k->weight.ctx) k->weight = gn_weight(s->g, dtype, shape, k->host, NULL);
    return k->weight;
}

/* A constant where the program computes: equal elements are made there, small ones are data of the step. */
static gn_tensor onnx__constant(onnx_session *s, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host,
                                size_t bytes) {
    size_t each = onnx__dtype_bytes[dtype];
    bool equal = bytes >= each && bytes && !memcmp(host, (const uint8_t *)host + each, bytes - each);
    if (equal && dtype == GN_I64) return gn_full_i64(g, dtype, shape, *(const int64_t *)host);
    double v = equal ? onnx__number(dtype, host, 0) : NAN;
    if (dtype == GN_U64 && v >= 0x1p53) v = NAN; /* perhaps rounded */
    bool negative_zero = v == 0 && signbit(v);
    if (isfinite(v) && !negative_zero) return gn_full(g, dtype, shape, v);
    if (g == s->g && bytes >= ONNX__SMALL) return onnx__weight(s, dtype, shape, host, bytes);
    return gn_data_copy(g, dtype, shape, bytes ? host : "");
}

/* The tensor of a value in one of the two contexts; GN_NONE: s->error says why. */
static gn_tensor onnx__tensor_in(onnx_session *s, onnx__value *v, gn_ctx *g) {
    gn_tensor *slot = g == s->fold ? &v->local : &v->main;
    if (slot->ctx) return *slot;
    if (v->file && g == s->g && v->bytes >= ONNX__SMALL) {
        onnx__kept *k = onnx__unpacked(s, v);
        if (k && !k->weight.ctx) k->weight = gn_weight(g, k->dtype, k->shape, k->host, NULL);
        return k ? (*slot = k->weight) : GN_NONE;
    }
    const void *host = onnx__host(s, v);
    if (!host) return GN_NONE;
    return *slot = onnx__constant(s, g, onnx_type_dtype(v->type), v->shape, host, v->bytes);
}

/* The value of a tensor of the file (`constant`), or of the program's memory. */
static onnx__value *onnx__load(onnx_session *s, const onnx_tensor *t, bool constant) {
    onnx__value *v = onnx__new_value(s, ONNX__ONE);
    v->type = t->type;
    v->shape.rank = t->rank;
    memcpy(v->shape.dims, t->dims, sizeof t->dims);
    v->bytes = t->bytes;
    v->constant = constant;
    if (onnx_type_dtype(t->type) == GN_DTYPE_NONE) {
        onnx__fail(s->error, "tensor '%.*s': %s is not held", ONNX__SHOW(t->name), onnx_type_name(t->type));
        return NULL;
    }
    if (!constant) {
        v->host = t->data;
        return v;
    }
    onnx_tensor *copy = onnx__alloc(s, sizeof *copy);
    *copy = *t;
    v->file = copy;
    return v;
}
#endif
