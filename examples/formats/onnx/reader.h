/* reader.h - a part of onnx.h: the wire format of protobuf, and the walk that checks a whole model once. Fields that no
   row of the schema knows are skipped, as protobuf has it; known ones must have their wire type. */
#ifndef ONNX_READER_H
#define ONNX_READER_H

enum { ONNX__DEPTH = 128, ONNX__EXTERNAL = 64, ONNX__MODEL_SIZE = INT32_MAX };

typedef enum onnx__message {
    ONNX__MODEL,
    ONNX__OPSET,
    ONNX__GRAPH,
    ONNX__NODE,
    ONNX__ATTRIBUTE,
    ONNX__TENSOR,
    ONNX__ENTRY,
    ONNX__VALUE_INFO,
    ONNX__TYPE,
    ONNX__TENSOR_TYPE,
    ONNX__ELEMENT_TYPE,
    ONNX__MAP_TYPE,
    ONNX__SHAPE,
    ONNX__DIM,
    ONNX__FUNCTION,
    ONNX__SEQUENCE,
    ONNX__OPTIONAL
} onnx__message;

typedef enum onnx__kind {
    ONNX__VARINT,
    ONNX__FLOAT,
    ONNX__BYTES,
    ONNX__NESTED,  /* a message of the kind `of` */
    ONNX__VARINTS, /* packed, or one field each */
    ONNX__FLOATS,
    ONNX__DOUBLES
} onnx__kind;

/* Fields of messages. `many`: it may stand more than once. */
static const struct onnx__row {
    uint8_t message, field, kind, of;
    bool many;
} onnx__schema[] = {
    { ONNX__MODEL, 1, ONNX__VARINT, 0, false },
    { ONNX__MODEL, 8, ONNX__NESTED, ONNX__OPSET, true },
    { ONNX__MODEL, 7, ONNX__NESTED, ONNX__GRAPH, false },
    { ONNX__MODEL, 20, ONNX__BYTES, 0, true },
    { ONNX__MODEL, 25, ONNX__NESTED, ONNX__FUNCTION, true },
    { ONNX__OPSET, 1, ONNX__BYTES, 0, false },
    { ONNX__OPSET, 2, ONNX__VARINT, 0, false },
    { ONNX__GRAPH, 1, ONNX__NESTED, ONNX__NODE, true },
    { ONNX__GRAPH, 2, ONNX__BYTES, 0, false },
    { ONNX__GRAPH, 5, ONNX__NESTED, ONNX__TENSOR, true },
    { ONNX__GRAPH, 15, ONNX__BYTES, 0, true },
    { ONNX__GRAPH, 11, ONNX__NESTED, ONNX__VALUE_INFO, true },
    { ONNX__GRAPH, 12, ONNX__NESTED, ONNX__VALUE_INFO, true },
    { ONNX__GRAPH, 13, ONNX__NESTED, ONNX__VALUE_INFO, true },
    { ONNX__NODE, 1, ONNX__BYTES, 0, true },
    { ONNX__NODE, 2, ONNX__BYTES, 0, true },
    { ONNX__NODE, 3, ONNX__BYTES, 0, false },
    { ONNX__NODE, 4, ONNX__BYTES, 0, false },
    { ONNX__NODE, 7, ONNX__BYTES, 0, false },
    { ONNX__NODE, 8, ONNX__BYTES, 0, false },
    { ONNX__NODE, 5, ONNX__NESTED, ONNX__ATTRIBUTE, true },
    { ONNX__ATTRIBUTE, 1, ONNX__BYTES, 0, false },
    { ONNX__ATTRIBUTE, 21, ONNX__BYTES, 0, false },
    { ONNX__ATTRIBUTE, 20, ONNX__VARINT, 0, false },
    { ONNX__ATTRIBUTE, 2, ONNX__FLOAT, 0, false },
    { ONNX__ATTRIBUTE, 3, ONNX__VARINT, 0, false },
    { ONNX__ATTRIBUTE, 4, ONNX__BYTES, 0, false },
    { ONNX__ATTRIBUTE, 5, ONNX__NESTED, ONNX__TENSOR, false },
    { ONNX__ATTRIBUTE, 6, ONNX__NESTED, ONNX__GRAPH, false },
    { ONNX__ATTRIBUTE, 14, ONNX__NESTED, ONNX__TYPE, false },
    { ONNX__ATTRIBUTE, 7, ONNX__FLOATS, 0, true },
    { ONNX__ATTRIBUTE, 8, ONNX__VARINTS, 0, true },
    { ONNX__ATTRIBUTE, 9, ONNX__BYTES, 0, true },
    { ONNX__ATTRIBUTE, 10, ONNX__NESTED, ONNX__TENSOR, true },
    { ONNX__ATTRIBUTE, 11, ONNX__NESTED, ONNX__GRAPH, true },
    { ONNX__TENSOR, 1, ONNX__VARINTS, 0, true },
    { ONNX__TENSOR, 2, ONNX__VARINT, 0, false },
    { ONNX__TENSOR, 4, ONNX__FLOATS, 0, true },
    { ONNX__TENSOR, 5, ONNX__VARINTS, 0, true },
    { ONNX__TENSOR, 6, ONNX__BYTES, 0, true },
    { ONNX__TENSOR, 7, ONNX__VARINTS, 0, true },
    { ONNX__TENSOR, 8, ONNX__BYTES, 0, false },
    { ONNX__TENSOR, 9, ONNX__BYTES, 0, false },
    { ONNX__TENSOR, 10, ONNX__DOUBLES, 0, true },
    { ONNX__TENSOR, 11, ONNX__VARINTS, 0, true },
    { ONNX__TENSOR, 13, ONNX__NESTED, ONNX__ENTRY, true },
    { ONNX__TENSOR, 14, ONNX__VARINT, 0, false },
    { ONNX__ENTRY, 1, ONNX__BYTES, 0, false },
    { ONNX__ENTRY, 2, ONNX__BYTES, 0, false },
    { ONNX__VALUE_INFO, 1, ONNX__BYTES, 0, false },
    { ONNX__VALUE_INFO, 2, ONNX__NESTED, ONNX__TYPE, false },
    { ONNX__TYPE, 1, ONNX__NESTED, ONNX__TENSOR_TYPE, false },
    { ONNX__TYPE, 4, ONNX__NESTED, ONNX__ELEMENT_TYPE, false },
    { ONNX__TYPE, 5, ONNX__NESTED, ONNX__MAP_TYPE, false },
    { ONNX__TYPE, 8, ONNX__BYTES, 0, false },
    { ONNX__TYPE, 9, ONNX__NESTED, ONNX__ELEMENT_TYPE, false },
    { ONNX__TENSOR_TYPE, 1, ONNX__VARINT, 0, false },
    { ONNX__TENSOR_TYPE, 2, ONNX__NESTED, ONNX__SHAPE, false },
    { ONNX__ELEMENT_TYPE, 1, ONNX__NESTED, ONNX__TYPE, false },
    { ONNX__MAP_TYPE, 1, ONNX__VARINT, 0, false },
    { ONNX__MAP_TYPE, 2, ONNX__NESTED, ONNX__TYPE, false },
    { ONNX__SHAPE, 1, ONNX__NESTED, ONNX__DIM, true },
    { ONNX__DIM, 1, ONNX__VARINT, 0, false },
    { ONNX__DIM, 2, ONNX__BYTES, 0, false },
    { ONNX__FUNCTION, 1, ONNX__BYTES, 0, false },
    { ONNX__FUNCTION, 4, ONNX__BYTES, 0, true },
    { ONNX__FUNCTION, 5, ONNX__BYTES, 0, true },
    { ONNX__FUNCTION, 6, ONNX__BYTES, 0, true },
    { ONNX__FUNCTION, 11, ONNX__NESTED, ONNX__ATTRIBUTE, true },
    { ONNX__FUNCTION, 7, ONNX__NESTED, ONNX__NODE, true },
    { ONNX__FUNCTION, 9, ONNX__NESTED, ONNX__OPSET, true },
    { ONNX__FUNCTION, 10, ONNX__BYTES, 0, false },
    { ONNX__FUNCTION, 12, ONNX__NESTED, ONNX__VALUE_INFO, true },
    { ONNX__FUNCTION, 13, ONNX__BYTES, 0, false },
    { ONNX__SEQUENCE, 1, ONNX__BYTES, 0, false },
    { ONNX__SEQUENCE, 2, ONNX__VARINT, 0, false },
    { ONNX__SEQUENCE, 3, ONNX__NESTED, ONNX__TENSOR, true },
    { ONNX__SEQUENCE, 5, ONNX__NESTED, ONNX__SEQUENCE, true },
    { ONNX__SEQUENCE, 7, ONNX__NESTED, ONNX__OPTIONAL, true },
    { ONNX__OPTIONAL, 1, ONNX__BYTES, 0, false },
    { ONNX__OPTIONAL, 2, ONNX__VARINT, 0, false },
    { ONNX__OPTIONAL, 3, ONNX__NESTED, ONNX__TENSOR, false },
    { ONNX__OPTIONAL, 5, ONNX__NESTED, ONNX__SEQUENCE, false },
    { ONNX__OPTIONAL, 7, ONNX__NESTED, ONNX__OPTIONAL, false },
};

static const char *const onnx__message_names[] = { "model",      "operator set", "graph", "node", "attribute",
                                                   "tensor",     "entry",        "value", "type", "tensor type",
                                                   "inner type", "map type",     "shape", "dim",  "function",
                                                   "sequence",   "optional" };

struct onnx {
    char *path, *folder; /* the model's file; the folder's path without links, NULL for a file that has none */
    mapping map;
    onnx_span graph;
    int64_t ir;
    struct {
        char *path;
        mapping map;
    } external[ONNX__EXTERNAL]; /* files that were opened when the model was */
    int n_external;
};

/* Where the walk is. */
typedef struct onnx__walk {
    onnx *model; /* NULL for a message alone */
    const uint8_t *begin;
    const char *path;
    onnx_span node; /* the innermost one */
    char *error;
    int depth;
} onnx__walk;

static bool onnx__varint(onnx_span *s, uint64_t *out) {
    uint64_t v = 0;
    const uint8_t *p = s->at;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p == s->end) return false;
        uint8_t b = *p++;
        if (shift == 63 && b > 1) return false; /* more than 64 bits */
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            *out = v;
            s->at = p;
            return true;
        }
    }
    return false;
}

static uint64_t onnx__fixed(const uint8_t *p, int n) {
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

bool onnx_next(onnx_span *s, onnx_field *f) {
    onnx_span p = *s;
    uint64_t key, size = 0;
    if (p.at == p.end || !onnx__varint(&p, &key)) return false;
    f->at = s->at;
    f->wire = (uint32_t)(key & 7);
    f->number = (uint32_t)(key >> 3);
    if (!f->number || key >> 3 > (1u << 29) - 1) return false;
    if (f->wire == 0 && !onnx__varint(&p, &f->value)) return false;
    if (f->wire == 2 && !onnx__varint(&p, &size)) return false;
    if (f->wire == 1) size = 8;
    if (f->wire == 5) size = 4;
    if (f->wire == 3 || f->wire == 4 || f->wire > 5 || size > (uint64_t)(p.end - p.at)) return false;
    if (f->wire == 1 || f->wire == 5) f->value = onnx__fixed(p.at, (int)size);
    f->bytes = (onnx_span){ p.at, p.at + size };
    s->at = p.at + size;
    return true;
}

bool onnx_find(onnx_span *s, uint32_t number, onnx_field *out) {
    while (onnx_next(s, out))
        if (out->number == number) return true;
    return false;
}

/* The first field of that number of a message that was checked; missing: all zero. */
static onnx_field onnx__get(onnx_span s, uint32_t number) {
    onnx_field f;
    return onnx_find(&s, number, &f) ? f : (onnx_field){ 0 };
}

static size_t onnx__size(onnx_span s) { return (size_t)(s.end - s.at); }
static int onnx__shown(onnx_span s) { return onnx__size(s) > 100 ? 100 : (int)onnx__size(s); }
static bool onnx__same(onnx_span a, onnx_span b) {
    return onnx__size(a) == onnx__size(b) && (a.at == a.end || !memcmp(a.at, b.at, onnx__size(a)));
}
static bool onnx__is(onnx_span a, const char *text) {
    return onnx__size(a) == strlen(text) && (a.at == a.end || !memcmp(a.at, text, onnx__size(a)));
}

#define ONNX__SHOW(span) onnx__shown(span), (span).at ? (const char *)(span).at : ""

/* Always false, so that callers return it. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
onnx__fail(char *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, ONNX_ERROR, format, args);
    va_end(args);
    return false;
}

static bool onnx__refuse(const onnx__walk *w, const uint8_t *at, const char *why) {
    onnx_span name = onnx__get(w->node, 3).bytes, op = onnx__get(w->node, 4).bytes;
    return onnx__fail(w->error, "%.200s: byte %" PRIu64 "%s%.*s%s%.*s%s: %s", w->path, (uint64_t)(at - w->begin),
                      w->node.at ? ", node '" : "", ONNX__SHOW(name), w->node.at ? "' (" : "", ONNX__SHOW(op),
                      w->node.at ? ")" : "", why);
}

static const struct onnx__row *onnx__row(onnx__message m, uint32_t number) {
    for (size_t i = 0; i < sizeof onnx__schema / sizeof *onnx__schema; i++)
        if (onnx__schema[i].message == m && onnx__schema[i].field == number) return &onnx__schema[i];
    return NULL;
}

static bool onnx__walk_message(onnx__walk *w, onnx__message m, onnx_span s);
static bool onnx__check_tensor(onnx__walk *w, onnx_span message);

/* A known field: its wire type, and what is inside. */
static bool onnx__walk_field(onnx__walk *w, const struct onnx__row *row, const onnx_field *f) {
    static const uint8_t wires[] = { 0, 5, 2, 2, 0, 5, 1 };
    bool packed = f->wire == 2 && row->kind >= ONNX__VARINTS;
    onnx_span p = f->bytes;
    uint64_t v;
    if (!packed && f->wire != wires[row->kind]) return onnx__refuse(w, f->at, "a field has the wrong wire type");
    if (row->kind == ONNX__NESTED) {
        onnx_span node = w->node;
        if (row->of == ONNX__NODE) w->node = f->bytes;
        bool ok = onnx__walk_message(w, (onnx__message)row->of, f->bytes);
        w->node = node;
        return ok;
    }
    if (!packed) return true;
    if (row->kind == ONNX__FLOATS && onnx__size(p) % 4) return onnx__refuse(w, f->at, "packed floats are cut");
    if (row->kind == ONNX__DOUBLES && onnx__size(p) % 8) return onnx__refuse(w, f->at, "packed doubles are cut");
    while (row->kind == ONNX__VARINTS && p.at < p.end)
        if (!onnx__varint(&p, &v)) return onnx__refuse(w, p.at, "a packed number is cut or has more than 64 bits");
    return true;
}

static bool onnx__walk_message(onnx__walk *w, onnx__message m, onnx_span s) {
    onnx_field f;
    onnx_span p = s;
    uint64_t seen = 0;
    char why[120];
    if (++w->depth > ONNX__DEPTH) return onnx__refuse(w, s.at, "messages lie more than 128 deep in each other");
    while (onnx_next(&p, &f)) {
        const struct onnx__row *row = onnx__row(m, f.number);
        if (!row) continue;
        snprintf(why, sizeof why, "field %u of a %s stands twice", f.number, onnx__message_names[m]);
        if (!row->many && seen >> f.number & 1) return onnx__refuse(w, f.at, why);
        seen |= UINT64_C(1) << f.number;
        if (!onnx__walk_field(w, row, &f)) return false;
    }
    snprintf(why, sizeof why, "a field of a %s is cut, too long, or no field", onnx__message_names[m]);
    if (p.at < p.end) return onnx__refuse(w, p.at, why);
    w->depth--;
    return m != ONNX__TENSOR || onnx__check_tensor(w, s);
}

static char *onnx__folder_of(const char *path) {
    char *whole = realpath(path, NULL), *slash = whole ? strrchr(whole, '/') : NULL;
    if (slash) slash[slash == whole ? 1 : 0] = 0;
    return whole;
}

/* The model's own fields: IR version, graph, operator sets. */
static bool onnx__check_model(onnx__walk *w, onnx_span all) {
    onnx *m = w->model;
    onnx_field graph = onnx__get(all, 7), f;
    m->ir = (int64_t)onnx__get(all, 1).value;
    m->graph = graph.bytes;
    if (!graph.at) return onnx__refuse(w, all.at, "there is no graph: this is no ONNX model");
    if (m->ir < 1 || m->ir > 1000) return onnx__refuse(w, all.at, "no IR version: this is no ONNX model");
    onnx_span p = all;
    if (!onnx_find(&p, 8, &f)) return onnx__refuse(w, all.at, "no operator set is named");
    return true;
}

onnx *onnx_open(const char *path, char error[ONNX_ERROR]) {
    onnx *m = calloc(1, sizeof *m);
    onnx__walk w = { .model = m, .path = path, .error = error };
    error[0] = 0;
    if (!m || !(m->path = strdup(path))) {
        onnx__fail(error, "%s: out of memory", path);
        onnx_close(m);
        return NULL;
    }
    m->folder = onnx__folder_of(path);
    bool ok = mapping_open(&m->map, path, error, ONNX_ERROR);
    onnx_span all = { m->map.data, m->map.data ? m->map.data + m->map.size : NULL };
    w.begin = all.at;
    if (ok && !m->map.size) ok = onnx__fail(error, "%s: an empty file is no model", path);
    if (ok && m->map.size > ONNX__MODEL_SIZE)
        ok = onnx__fail(error, "%s: %" PRIu64 " bytes: protobuf has no messages of 2 GiB and more", path, m->map.size);
    if (ok && onnx__walk_message(&w, ONNX__MODEL, all) && onnx__check_model(&w, all)) return m;
    onnx_close(m);
    return NULL;
}

void onnx_close(onnx *m) {
    if (!m) return;
    for (int i = 0; i < m->n_external; i++) {
        mapping_close(&m->external[i].map);
        free(m->external[i].path);
    }
    if (m->map.data) mapping_close(&m->map);
    free(m->path);
    free(m->folder);
    free(m);
}
#endif
