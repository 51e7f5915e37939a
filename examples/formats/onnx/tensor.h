/* tensor.h - a part of onnx.h: tensors of a file: their description, external data, and unpacking. */
#ifndef ONNX_TENSOR_H
#define ONNX_TENSOR_H

static const struct {
    const char *name;
    uint32_t bits;
    gn_dtype dtype;
} onnx__types[ONNX_TYPE__COUNT] = {
#define ONNX__X(type, number, width, held) [number] = { #type, width, held },
    ONNX_TYPES(ONNX__X)
#undef ONNX__X
};

static const uint8_t onnx__dtype_bytes[GN_DTYPE__COUNT] = {
#define ONNX__X(type, number, bytes, text) [number] = bytes,
    GN_DTYPES(ONNX__X)
#undef ONNX__X
};

static bool onnx__is_type(int t) { return t > 0 && t < ONNX_TYPE__COUNT && onnx__types[t].name; }
const char *onnx_type_name(int t) { return onnx__is_type(t) ? onnx__types[t].name : "?"; }
gn_dtype onnx_type_dtype(int t) { return onnx__is_type(t) ? onnx__types[t].dtype : GN_DTYPE_NONE; }
uint64_t onnx_type_bits(int t) { return onnx__is_type(t) ? onnx__types[t].bits : 0; }

/* Types of the file that are the dtype that holds them, bit for bit. */
static bool onnx__is_plain(int t) {
    return onnx__is_type(t) && onnx__types[t].dtype &&
           onnx__types[t].bits == 8u * onnx__dtype_bytes[onnx__types[t].dtype];
}

static bool onnx__is_float8(int t) {
    return t == ONNX_FLOAT8E4M3FN || t == ONNX_FLOAT8E4M3FNUZ || t == ONNX_FLOAT8E5M2 || t == ONNX_FLOAT8E5M2FNUZ ||
           t == ONNX_FLOAT8E8M0;
}

/* Elements of fields that hold a number each or packed ones; the bytes of one are `width`, 0 for varints. */
static uint64_t onnx__count_numbers(onnx_span s, uint32_t number, uint64_t width) {
    onnx_field f;
    uint64_t n = 0, v;
    while (onnx_find(&s, number, &f)) {
        if (f.wire != 2) n++;
        else if (width) n += onnx__size(f.bytes) / width;
        else
            for (onnx_span p = f.bytes; p.at < p.end && onnx__varint(&p, &v);) n++;
    }
    return n;
}

/* Goes through the varints of a field, packed or not. */
typedef struct onnx__numbers {
    onnx_span message, packed;
    uint32_t number;
} onnx__numbers;

static bool onnx__next_number(onnx__numbers *n, uint64_t *out) {
    onnx_field f;
    for (;;) {
        if (n->packed.at < n->packed.end) return onnx__varint(&n->packed, out);
        if (!onnx_find(&n->message, n->number, &f)) return false;
        if (f.wire == 2) n->packed = f.bytes;
        else {
            *out = f.value;
            return true;
        }
    }
}

static bool onnx__read_dims(const onnx__walk *w, onnx_span message, onnx_tensor *t) {
    onnx__numbers dims = { message, { NULL, NULL }, 1 };
    uint64_t d, product = 1;
    bool empty = false;
    while (onnx__next_number(&dims, &d)) {
        if (t->rank == ONNX_RANK) return onnx__refuse(w, message.at, "a tensor has more than 8 dimensions");
        if (d > INT64_MAX / 16) return onnx__refuse(w, message.at, "a dimension is negative or too large");
        t->dims[t->rank++] = (int64_t)d;
        empty |= d == 0;
        if (d && product > (UINT64_MAX >> 8) / d)
            return onnx__refuse(w, message.at, "the dimensions' product is too large");
        if (d) product *= d;
    }
    t->elements = empty ? 0 : product;
    t->bytes = t->elements * onnx__dtype_bytes[onnx__types[t->type].dtype];
    return true;
}

/* The field that holds elements of a type when they are not raw. */
static uint32_t onnx__field_of(onnx_type t) {
    if (t == ONNX_FLOAT) return 4;
    if (t == ONNX_INT64) return 7;
    if (t == ONNX_DOUBLE) return 10;
    if (t == ONNX_UINT32 || t == ONNX_UINT64) return 11;
    return 5;
}

/* Numbers of the field that `t` takes: elements, or those packed in bytes. */
static uint64_t onnx__packed_bytes(const onnx_tensor *t) { return (t->elements * onnx_type_bits(t->type) + 7) / 8; }

static bool onnx__typed_data(const onnx__walk *w, onnx_span message, onnx_tensor *t) {
    uint32_t field = onnx__field_of(t->type);
    uint64_t width = field == 4 ? 4 : field == 10 ? 8 : 0, n = onnx__count_numbers(message, field, width);
    uint64_t want = onnx_type_bits(t->type) < 8 ? onnx__packed_bytes(t) : t->elements;
    char why[160];
    snprintf(why, sizeof why, "a tensor of %" PRIu64 " elements (%s) has data of %" PRIu64, want,
             onnx_type_name(t->type), n);
    if (n != want) return onnx__refuse(w, message.at, why);
    t->field = (int)field;
    t->packed = message;
    onnx_field f = onnx__get(message, field);
    if (width && f.wire == 2 && onnx__size(f.bytes) == t->elements * width) t->data = f.bytes.at; /* as in memory */
    return true;
}

static bool onnx__decimal(onnx_span s, uint64_t *out) {
    uint64_t v = 0;
    if (s.at == s.end || onnx__size(s) > 19) return false;
    for (; s.at < s.end; s.at++) {
        if (*s.at < '0' || *s.at > '9') return false;
        v = v * 10 + (uint64_t)(*s.at - '0');
    }
    *out = v;
    return true;
}

/* A place beside the model, which no link leads away from. */
static bool onnx__external_path(const onnx__walk *w, onnx_span at, onnx_span place, char *out) {
    char joined[PATH_MAX];
    size_t folder = w->model->folder ? strlen(w->model->folder) : 0;
    if (!folder) return onnx__refuse(w, at.at, "external data of a model that lies in no folder");
    if (!onnx__size(place) || onnx__size(place) > 1000 || memchr(place.at, 0, onnx__size(place)) || place.at[0] == '/')
        return onnx__refuse(w, at.at, "external data lies in no file beside the model");
    for (const uint8_t *p = place.at; p + 1 < place.end; p++)
        if (p[0] == '.' && p[1] == '.' && (p == place.at || p[-1] == '/') && (p + 2 == place.end || p[2] == '/'))
            return onnx__refuse(w, at.at, "external data leaves the model's folder");
    int n =
        snprintf(joined, sizeof joined, "%s/%.*s", w->model->folder, (int)onnx__size(place), (const char *)place.at);
    if (n < 0 || n >= (int)sizeof joined || !realpath(joined, out))
        return onnx__refuse(w, at.at, "the file of external data is not there");
    if (folder > 1 && (strncmp(out, w->model->folder, folder) || out[folder] != '/'))
        return onnx__refuse(w, at.at, "external data leaves the model's folder by a link");
    return true;
}

static const mapping *onnx__external_file(const onnx__walk *w, onnx_span at, onnx_span place) {
    char path[PATH_MAX], why[ONNX_ERROR];
    onnx *m = w->model;
    if (!onnx__external_path(w, at, place, path)) return NULL;
    for (int i = 0; i < m->n_external; i++)
        if (!strcmp(m->external[i].path, path)) return &m->external[i].map;
    if (m->n_external == ONNX__EXTERNAL) {
        onnx__refuse(w, at.at, "more than 64 files of external data");
        return NULL;
    }
    char *copy = strdup(path);
    if (!copy || !mapping_open(&m->external[m->n_external].map, path, why, sizeof why)) {
        free(copy);
        onnx__refuse(w, at.at, "the file of external data cannot be opened");
        return NULL;
    }
    m->external[m->n_external].path = copy;
    return &m->external[m->n_external++].map;
}

static bool onnx__external_data(const onnx__walk *w, onnx_span message, onnx_tensor *t) {
    onnx_span p = message, place = { NULL, NULL };
    onnx_field entry;
    uint64_t offset = 0, length = onnx__packed_bytes(t);
    if (!w->model) return onnx__refuse(w, message.at, "external data beside no model");
    while (onnx_find(&p, 13, &entry)) {
        onnx_span key = onnx__get(entry.bytes, 1).bytes, value = onnx__get(entry.bytes, 2).bytes;
        bool ok = true;
        if (onnx__is(key, "location")) place = value;
        if (onnx__is(key, "offset")) ok = onnx__decimal(value, &offset);
        if (onnx__is(key, "length")) ok = onnx__decimal(value, &length);
        if (!ok) return onnx__refuse(w, entry.at, "offset or length of external data is no number");
    }
    const mapping *file = onnx__external_file(w, message, place);
    if (!file) return false;
    if (length != onnx__packed_bytes(t))
        return onnx__refuse(w, message.at, "external data has another length than its tensor");
    if (offset > file->size || length > file->size - offset)
        return onnx__refuse(w, message.at, "external data ends behind its file");
    t->packed = (onnx_span){ file->data + offset, file->data + offset + length };
    return true;
}

/* Elements of a tensor in another field than that of raw data. */
static bool onnx__has_typed_data(onnx_span message) {
    onnx_field f;
    while (onnx_next(&message, &f))
        if ((f.number >= 4 && f.number <= 7) || f.number == 10 || f.number == 11)
            if (f.wire != 2 || f.number == 6 || onnx__size(f.bytes)) return true;
    return false;
}

static bool onnx__describe_tensor(const onnx__walk *w, onnx_span message, onnx_tensor *t) {
    onnx_field raw = onnx__get(message, 9);
    uint64_t type = onnx__get(message, 2).value, place = onnx__get(message, 14).value;
    *t = (onnx_tensor){ .message = message, .name = onnx__get(message, 8).bytes };
    if (type > INT32_MAX || !onnx__is_type((int)type))
        return onnx__refuse(w, message.at, "a tensor has no type, or one that is not known");
    t->type = (onnx_type)type;
    if (!onnx__read_dims(w, message, t)) return false;
    if (place > 1) return onnx__refuse(w, message.at, "a tensor's data lies neither in the file nor outside");
    if (onnx_type_dtype(t->type) == GN_DTYPE_NONE) return true; /* whoever uses it is refused by name */
    if (place == 1) {
        if (!onnx__external_data(w, message, t)) return false;
    } else if (raw.at) {
        if (onnx__size(raw.bytes) != onnx__packed_bytes(t))
            return onnx__refuse(w, raw.at, "raw data has another length than type and dimensions say");
        if (onnx__has_typed_data(message)) return onnx__refuse(w, raw.at, "a tensor has raw data and other data, too");
        t->packed = raw.bytes;
    } else return onnx__typed_data(w, message, t);
    if (onnx__is_plain(t->type)) t->data = t->packed.at;
    return true;
}

static bool onnx__check_tensor(onnx__walk *w, onnx_span message) {
    onnx_tensor t;
    return onnx__describe_tensor(w, message, &t);
}

bool onnx_parse_tensor(onnx_span bytes, onnx_tensor *out, char error[ONNX_ERROR]) {
    onnx__walk w = { .begin = bytes.at, .path = "tensor", .error = error };
    return onnx__walk_message(&w, ONNX__TENSOR, bytes) && onnx__describe_tensor(&w, bytes, out);
}

/* ---- unpacking ---- */

/* A float of 8 bits or fewer by its format: bits of exponent and mantissa, bias, and what its largest codes mean. */
static float onnx__small_float(onnx_type t, uint32_t code) {
    int mantissa = t == ONNX_FLOAT4E2M1 ? 1 : t == ONNX_FLOAT8E4M3FN || t == ONNX_FLOAT8E4M3FNUZ ? 3 : 2;
    int bits = t == ONNX_FLOAT4E2M1 ? 4 : 8, exponent = bits - 1 - mantissa;
    bool fnuz = t == ONNX_FLOAT8E4M3FNUZ || t == ONNX_FLOAT8E5M2FNUZ;
    if (t == ONNX_FLOAT8E8M0) return code == 255 ? NAN : ldexpf(1, (int)code - 127);
    int bias = (1 << (exponent - 1)) - 1 + fnuz;
    uint32_t sign = code >> (bits - 1), rest = code & ((1u << (bits - 1)) - 1);
    int e = (int)(rest >> mantissa), m = (int)(rest & ((1u << mantissa) - 1));
    if (fnuz && sign && !rest) return NAN;
    if (t == ONNX_FLOAT8E4M3FN && rest == 127) return NAN;
    if (t == ONNX_FLOAT8E5M2 && e == 31) return m ? NAN : sign ? -INFINITY : INFINITY;
    float v = e ? ldexpf((float)(m + (1 << mantissa)), e - bias - mantissa) : ldexpf((float)m, 1 - bias - mantissa);
    return sign ? -v : v;
}

/* One element from its code in the file. */
static void onnx__put(const onnx_tensor *t, void *out, uint64_t i, uint64_t code) {
    uint64_t bits = onnx_type_bits(t->type);
    if (onnx__is_float8(t->type) || t->type == ONNX_FLOAT4E2M1) {
        ((float *)out)[i] = onnx__small_float(t->type, (uint32_t)code);
    } else if (bits < 8) {
        uint32_t sign = t->type == ONNX_INT4 || t->type == ONNX_INT2 ? 1u << (bits - 1) : 0;
        ((uint8_t *)out)[i] = (uint8_t)(code & sign ? code | (0xffu << bits) : code);
    } else if (t->type == ONNX_BOOL) ((uint8_t *)out)[i] = code != 0;
    else memcpy((uint8_t *)out + i * (bits / 8), &code, bits / 8);
}

static void onnx__put_packed(const onnx_tensor *t, void *out, uint64_t byte, uint64_t value) {
    uint64_t bits = onnx_type_bits(t->type), each = 8 / bits;
    for (uint64_t k = 0; k < each && byte * each + k < t->elements; k++)
        onnx__put(t, out, byte * each + k, value >> (k * bits) & ((1u << bits) - 1));
}

bool onnx_decode(const onnx_tensor *t, void *out, char error[ONNX_ERROR]) {
    uint64_t bits = onnx_type_bits(t->type), v;
    onnx__numbers numbers = { t->packed, { NULL, NULL }, (uint32_t)t->field };
    onnx_field f;
    if (onnx_type_dtype(t->type) == GN_DTYPE_NONE)
        return onnx__fail(error, "tensors of %s are not read", onnx_type_name(t->type));
    if (t->data && t->type != ONNX_BOOL) {
        if (t->bytes) memcpy(out, t->data, t->bytes);
    } else if (t->field == 4 || t->field == 10) { /* not packed, or in pieces */
        uint8_t *to = out;
        uint64_t width = t->field == 4 ? 4 : 8;
        for (onnx_span s = t->packed; onnx_find(&s, (uint32_t)t->field, &f);) {
            uint64_t n = f.wire == 2 ? onnx__size(f.bytes) : width;
            memcpy(to, f.wire == 2 ? f.bytes.at : (const uint8_t *)&f.value, n);
            to += n;
        }
    } else if (t->field) {
        for (uint64_t i = 0; onnx__next_number(&numbers, &v); i++)
            if (bits < 8) onnx__put_packed(t, out, i, v);
            else onnx__put(t, out, i, v);
    } else if (bits < 8) {
        for (uint64_t i = 0; i < onnx__size(t->packed); i++) onnx__put_packed(t, out, i, t->packed.at[i]);
    } else {
        for (uint64_t i = 0; i < t->elements; i++)
            onnx__put(t, out, i, onnx__fixed(t->packed.at + i * (bits / 8), (int)(bits / 8)));
    }
    return true;
}
#endif
