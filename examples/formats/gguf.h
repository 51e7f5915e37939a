/* gguf.h - reads model weights and their description in the GGUF format, one file or splits.

   One C file of the program:   #define GGUF_IMPLEMENTATION
                                #include "gguf.h"
   Elsewhere:                   #include "gguf.h"   C99, C++11; POSIX, little-endian; json.h and mapping.h beside it.

       char error[GGUF_ERROR];
       gguf *g = gguf_open("model.gguf", error);                   of splits: the first
       gguf_string arch;  uint64_t layers;  gguf_tensor t;
       gguf_get_string(g, "general.architecture", &arch);
       gguf_get_u64(g, "llama.block_count", &layers);
       if (gguf_find(g, "token_embd.weight", &t)) gguf_to_f32(t.type, t.data, gguf_elements(&t), out);
       if (!gguf_intact(g, error)) puts(error);                    the file became shorter meanwhile
       gguf_close(g);

   Files are mapped, not read; memory is below twice the bytes before the tensors' data. Checked before anything is
   given out: counts, lengths and types against the file's size, UTF-8 of keys and names, names that stand twice,
   dimensions times bytes of a block, rows that are whole blocks, offsets: aligned, without overlap, without a gap but
   the padding. An error names file, tensor or key, and byte.

   The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. Not read: big-endian files,
   arrays of arrays, block types other than those below (they are refused by name). */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GGUF_ERROR = 512, GGUF_RANK = 4 };

/* Types of tensors. X(NAME, number in the file, elements of a block, bytes of a block) */
#define GGUF_TYPES(X)     \
    X(F32, 0, 1, 4)       \
    X(F16, 1, 1, 2)       \
    X(Q4_0, 2, 32, 18)    \
    X(Q4_1, 3, 32, 20)    \
    X(Q5_0, 6, 32, 22)    \
    X(Q5_1, 7, 32, 24)    \
    X(Q8_0, 8, 32, 34)    \
    X(Q4_K, 12, 256, 144) \
    X(Q5_K, 13, 256, 176) \
    X(Q6_K, 14, 256, 210) \
    X(I8, 24, 1, 1)       \
    X(I16, 25, 1, 2)      \
    X(I32, 26, 1, 4)      \
    X(I64, 27, 1, 8)      \
    X(F64, 28, 1, 8)      \
    X(BF16, 30, 1, 2)

typedef enum gguf_type {
#define GGUF__X(name, number, elements, bytes) GGUF_##name = number,
    GGUF_TYPES(GGUF__X) GGUF_TYPE__COUNT
#undef GGUF__X
} gguf_type;

/* Bytes in the file; no 0 behind them. */
typedef struct gguf_string {
    const char *text;
    uint64_t size;
} gguf_string;

typedef struct gguf_tensor {
    gguf_string name;
    uint32_t type;           /* a gguf_type */
    uint32_t rank;           /* 0 to 4 */
    int64_t dims[GGUF_RANK]; /* row-major: the last is contiguous (the file has them the other way round) */
    const uint8_t *data;     /* in the mapped file, aligned to the file's alignment */
    uint64_t bytes;
    uint32_t file; /* index of its split */
} gguf_tensor;

/* Types of values: the numbers of the file. */
typedef enum gguf_kind {
    GGUF_KIND_U8,
    GGUF_KIND_I8,
    GGUF_KIND_U16,
    GGUF_KIND_I16,
    GGUF_KIND_U32,
    GGUF_KIND_I32,
    GGUF_KIND_F32,
    GGUF_KIND_BOOL,
    GGUF_KIND_STRING,
    GGUF_KIND_ARRAY,
    GGUF_KIND_U64,
    GGUF_KIND_I64,
    GGUF_KIND_F64,
    GGUF_KIND__COUNT
} gguf_kind;

typedef struct gguf_value {
    gguf_kind kind, item; /* item: of an array's elements */
    uint64_t count;       /* elements of an array, 1 otherwise */
    const uint8_t *data;  /* the first element, as the file holds it: not aligned */
} gguf_value;

typedef struct gguf gguf;

/* NULL: `error` says why. A gguf may be read by several threads at once. */
gguf *gguf_open(const char *path, char error[GGUF_ERROR]);
void gguf_close(gguf *g);
size_t gguf_count(const gguf *g);                        /* tensors, of all splits */
bool gguf_at(const gguf *g, size_t i, gguf_tensor *out); /* in the order of names (bytes compared) */
bool gguf_find(const gguf *g, const char *name, gguf_tensor *out);
uint64_t gguf_elements(const gguf_tensor *t);
const char *gguf_path(const gguf *g, size_t file);         /* of a split; NULL: there are fewer */
uint64_t gguf_offset(const gguf *g, const gguf_tensor *t); /* of its data, in its file */
size_t gguf_keys(const gguf *g);                           /* values of the first file */
bool gguf_key_at(const gguf *g, size_t i, gguf_string *out_key, gguf_value *out);
bool gguf_get(const gguf *g, const char *key, gguf_value *out);
/* False when the key is missing, or its value is of another kind or outside: any integer for u64, any number for f64.
 */
bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out);
bool gguf_get_f64(const gguf *g, const char *key, double *out);
bool gguf_get_bool(const gguf *g, const char *key, bool *out);
bool gguf_get_string(const gguf *g, const char *key, gguf_string *out);
/* The elements of an array one by one, each as a value of its own; of another value itself. `*at` begins as *array. */
bool gguf_next(gguf_value *at, gguf_value *out_item);
bool gguf_value_u64(const gguf_value *v, uint64_t *out);
bool gguf_value_f64(const gguf_value *v, double *out);
bool gguf_value_string(const gguf_value *v, gguf_string *out);
/* "Q4_K"; also of types that are not read; "?" for a number that is none. */
const char *gguf_type_name(uint32_t type);
/* Elements and bytes of one block; false for a type that is not read. */
bool gguf_block(uint32_t type, uint32_t *out_elements, uint32_t *out_bytes);
/* n elements, a multiple of the block's, as f32; integers and f64 are rounded. False for a type that is not read. */
bool gguf_to_f32(uint32_t type, const void *data, uint64_t n, float *out);
bool gguf_intact(const gguf *g, char error[GGUF_ERROR]);

#ifdef __cplusplus
}
#endif
#endif

#if defined(GGUF_IMPLEMENTATION) && !defined(GGUF_IMPLEMENTED)
#define GGUF_IMPLEMENTED
#define JSON_IMPLEMENTATION
#include "json.h"
#define MAPPING_IMPLEMENTATION
#include "mapping.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF__HEADER = 100000000, /* bytes before the data */
    GGUF__KEYS = 65536,
    GGUF__TENSORS = 1000000,
    GGUF__NAME = 65535, /* bytes of a key or name */
    GGUF__SPLITS = 1000,
    GGUF__ALIGNMENT = 1 << 20
};

typedef struct gguf__file {
    char *path;
    mapping map;
    const uint8_t **keys, **infos; /* places of what is read: keys by name, tensors in the order of the file */
    uint64_t n_keys, n_infos;
    uint64_t start, alignment; /* of the data: offset; bytes */
} gguf__file;

typedef struct gguf__entry {
    const uint8_t *info;
    uint32_t file;
} gguf__entry;

struct gguf {
    gguf__file *files;
    size_t n_files, n;
    gguf__entry *entries; /* by name */
    char *error;
};

/* ---- types ---- */

const char *gguf_type_name(uint32_t type) {
    static const char *const names[] = { "F32",        "F16",        "Q4_0",       "Q4_1",     "Q4_2",    "Q4_3",
                                         "Q5_0",       "Q5_1",       "Q8_0",       "Q8_1",     "Q2_K",    "Q3_K",
                                         "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",     "IQ2_XXS", "IQ2_XS",
                                         "IQ3_XXS",    "IQ1_S",      "IQ4_NL",     "IQ3_S",    "IQ2_S",   "IQ4_XS",
                                         "I8",         "I16",        "I32",        "I64",      "F64",     "IQ1_M",
                                         "BF16",       "Q4_0_4_4",   "Q4_0_4_8",   "Q4_0_8_8", "TQ1_0",   "TQ2_0",
                                         "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4" };
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

bool gguf_block(uint32_t type, uint32_t *out_elements, uint32_t *out_bytes) {
    switch (type) {
#define GGUF__X(name, number, elements, bytes) \
    case number:                               \
        *out_elements = elements;              \
        *out_bytes = bytes;                    \
        return true;
        GGUF_TYPES(GGUF__X)
#undef GGUF__X
    default: return false;
    }
}

static const uint8_t gguf__kind_bytes[GGUF_KIND__COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* ---- reading: little-endian, at any address ---- */

static uint32_t gguf__le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t gguf__le64(const uint8_t *p) { return gguf__le32(p) | (uint64_t)gguf__le32(p + 4) << 32; }
static gguf_string gguf__string_at(const uint8_t *p) { return (gguf_string){ (const char *)p + 8, gguf__le64(p) }; }

static int gguf__order(gguf_string a, gguf_string b) {
    int order = memcmp(a.text, b.text, (size_t)(a.size < b.size ? a.size : b.size));
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
gguf__fail(char *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, GGUF_ERROR, format, args);
    va_end(args);
    return false;
}

typedef struct gguf__reader {
    const gguf__file *file;
    const uint8_t *at, *end;
    char *error;
    gguf_string item; /* the key or name that is being read; for errors */
} gguf__reader;

static bool gguf__refuse(gguf__reader *r, const uint8_t *at, const char *why) {
    int shown = r->item.size > 100 ? 100 : (int)r->item.size;
    return gguf__fail(r->error, "%.200s: %s%.*s%sbyte %" PRIu64 ": %s", r->file->path, shown ? "\"" : "", shown,
                      shown ? r->item.text : "", shown ? "\", " : "", (uint64_t)(at - r->file->map.data), why);
}

static bool gguf__has(gguf__reader *r, uint64_t bytes) {
    return bytes <= (uint64_t)(r->end - r->at) ||
           gguf__refuse(r, r->at, "the file ends here, or its header is too long");
}

static bool gguf__u32(gguf__reader *r, uint32_t *out) {
    if (!gguf__has(r, 4)) return false;
    *out = gguf__le32(r->at);
    r->at += 4;
    return true;
}

static bool gguf__u64(gguf__reader *r, uint64_t *out) {
    if (!gguf__has(r, 8)) return false;
    *out = gguf__le64(r->at);
    r->at += 8;
    return true;
}

/* A length and its bytes. */
static bool gguf__string(gguf__reader *r, gguf_string *out) {
    const uint8_t *place = r->at;
    uint64_t size;
    if (!gguf__u64(r, &size)) return false;
    if (size > (uint64_t)(r->end - r->at))
        return gguf__refuse(r, place, "a string is longer than what is left of the file");
    *out = (gguf_string){ (const char *)r->at, size };
    r->at += size;
    return true;
}

/* A key or a name: UTF-8, not longer than the format allows, without a 0. */
static bool gguf__name(gguf__reader *r) {
    const uint8_t *place = r->at;
    gguf_string s;
    r->item = (gguf_string){ NULL, 0 };
    if (!gguf__string(r, &s)) return false;
    if (!s.size || s.size > GGUF__NAME) return gguf__refuse(r, place, "a key or name has 1 to 65535 bytes");
    for (uint64_t i = 0, n; i < s.size; i += n) {
        n = json_utf8(s.text + i, (size_t)(s.size - i));
        if (!n || !s.text[i]) return gguf__refuse(r, place, "a key or name is not UTF-8 or holds a 0 byte");
    }
    r->item = s;
    return true;
}

static bool gguf__skip_items(gguf__reader *r, uint32_t kind, uint64_t count) {
    gguf_string s;
    if (kind >= GGUF_KIND__COUNT || kind == GGUF_KIND_ARRAY)
        return gguf__refuse(r, r->at, "a value of this type is not read");
    if (kind == GGUF_KIND_STRING) {
        for (; count > 0; count--)
            if (!gguf__string(r, &s)) return false;
        return true;
    }
    if (count > (uint64_t)(r->end - r->at) / gguf__kind_bytes[kind])
        return gguf__refuse(r, r->at, "an array is longer than what is left of the file");
    for (uint64_t i = 0; kind == GGUF_KIND_BOOL && i < count; i++)
        if (r->at[i] > 1) return gguf__refuse(r, r->at + i, "a truth value is 0 or 1");
    r->at += count * gguf__kind_bytes[kind];
    return true;
}

static bool gguf__skip_value(gguf__reader *r) {
    uint32_t kind;
    uint64_t count = 1;
    if (!gguf__u32(r, &kind)) return false;
    if (kind == GGUF_KIND_ARRAY && (!gguf__u32(r, &kind) || !gguf__u64(r, &count))) return false;
    return gguf__skip_items(r, kind, count);
}

/* The value behind a key; its file has been checked. */
static gguf_value gguf__value_at(const uint8_t *key) {
    gguf_string name = gguf__string_at(key);
    const uint8_t *p = (const uint8_t *)name.text + name.size;
    gguf_value v = { (gguf_kind)gguf__le32(p), (gguf_kind)gguf__le32(p), 1, p + 4 };
    if (v.kind == GGUF_KIND_ARRAY) {
        v.item = (gguf_kind)gguf__le32(p + 4);
        v.count = gguf__le64(p + 8);
        v.data = p + 16;
    }
    return v;
}

/* ---- one file ---- */

static int gguf__by_key(const void *a, const void *b) {
    return gguf__order(gguf__string_at(*(const uint8_t *const *)a), gguf__string_at(*(const uint8_t *const *)b));
}

static bool gguf__read_keys(gguf__reader *r, gguf__file *f) {
    for (uint64_t i = 0; i < f->n_keys; i++) {
        f->keys[i] = r->at;
        if (!gguf__name(r) || !gguf__skip_value(r)) return false;
    }
    if (f->n_keys) qsort(f->keys, (size_t)f->n_keys, sizeof *f->keys, gguf__by_key);
    for (uint64_t i = 1; i < f->n_keys; i++) {
        r->item = gguf__string_at(f->keys[i]);
        if (!gguf__by_key(&f->keys[i - 1], &f->keys[i])) return gguf__refuse(r, f->keys[i], "this key stands twice");
    }
    return true;
}

static bool gguf__find_key(const gguf__file *f, const char *key, gguf_value *out) {
    gguf_string wanted = { key, strlen(key) };
    memset(out, 0, sizeof *out); /* nothing comes of a value that is missing */
    for (uint64_t low = 0, high = f->n_keys; low < high;) {
        uint64_t middle = low + (high - low) / 2;
        int order = gguf__order(wanted, gguf__string_at(f->keys[middle]));
        if (!order) {
            *out = gguf__value_at(f->keys[middle]);
            return true;
        }
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return false;
}

/* A tensor's shape and type: whole blocks, bytes in 64 bits. */
static bool gguf__read_info(gguf__reader *r) {
    uint32_t rank, type, elements, block;
    uint64_t d, first = 1, n = 1, offset;
    bool empty = false;
    if (!gguf__name(r) || !gguf__u32(r, &rank)) return false;
    if (rank > GGUF_RANK) return gguf__refuse(r, r->at - 4, "a tensor has at most 4 dimensions");
    for (uint32_t i = 0; i < rank; i++) {
        if (!gguf__u64(r, &d)) return false;
        if (d > INT64_MAX) return gguf__refuse(r, r->at - 8, "a dimension is larger than 2^63 - 1");
        if (i == 0) first = d;
        if (d && n > INT64_MAX / d) return gguf__refuse(r, r->at - 8, "the dimensions' product is too large");
        empty = empty || !d;
        n *= d ? d : 1;
    }
    if (!gguf__u32(r, &type)) return false;
    if (!gguf_block(type, &elements, &block)) {
        char text[64];
        snprintf(text, sizeof text, "type %s (%u) is not read", gguf_type_name(type), type);
        return gguf__refuse(r, r->at - 4, text);
    }
    if (first % elements) return gguf__refuse(r, r->at - 4, "a row is not a whole number of blocks of its type");
    if (!empty && n / elements > UINT64_MAX / 2 / block)
        return gguf__refuse(r, r->at - 4, "the tensor's bytes do not fit 64 bits");
    return gguf__u64(r, &offset);
}

/* What gguf__read_info has checked, as a tensor. */
static void gguf__tensor_at(const gguf *g, const gguf__entry *e, gguf_tensor *t) {
    const gguf__file *f = &g->files[e->file];
    uint32_t elements = 1, block = 1;
    memset(t, 0, sizeof *t);
    t->name = gguf__string_at(e->info);
    const uint8_t *p = (const uint8_t *)t->name.text + t->name.size;
    t->file = e->file;
    t->rank = gguf__le32(p);
    for (uint32_t i = 0; i < t->rank; i++) t->dims[t->rank - 1 - i] = (int64_t)gguf__le64(p + 4 + 8 * (size_t)i);
    p += 4 + 8 * (size_t)t->rank;
    t->type = gguf__le32(p);
    gguf_block(t->type, &elements, &block);
    t->bytes = gguf_elements(t) / elements * block;
    t->data = f->map.data + f->start + gguf__le64(p + 4);
}

static uint64_t gguf__offset(const uint8_t *info) {
    gguf_string name = gguf__string_at(info);
    const uint8_t *p = (const uint8_t *)name.text + name.size;
    return gguf__le64(p + 8 + 8 * (size_t)gguf__le32(p));
}

static int gguf__by_offset(const void *a, const void *b) {
    uint64_t x = gguf__offset(*(const uint8_t *const *)a), y = gguf__offset(*(const uint8_t *const *)b);
    if (x != y) return x < y ? -1 : 1;
    return *(const uint8_t *const *)a < *(const uint8_t *const *)b ? -1 : 1;
}

/* The tensors' data: in order, aligned, nothing between but padding, nothing behind the last. */
static bool gguf__check_data(gguf *g, gguf__reader *r, size_t file) {
    gguf__file *f = &g->files[file];
    uint64_t end = 0, room = f->map.size - f->start;
    gguf_tensor t;
    if (f->n_infos) qsort(f->infos, (size_t)f->n_infos, sizeof *f->infos, gguf__by_offset);
    for (uint64_t i = 0; i < f->n_infos; i++) {
        uint64_t offset = gguf__offset(f->infos[i]), expected = (end + f->alignment - 1) / f->alignment * f->alignment;
        r->item = gguf__string_at(f->infos[i]);
        if (offset % f->alignment) return gguf__refuse(r, f->infos[i], "its offset is not a multiple of the alignment");
        if (offset <= room) gguf__tensor_at(g, &(gguf__entry){ f->infos[i], (uint32_t)file }, &t);
        if (offset > room || t.bytes > room - offset)
            return gguf__refuse(r, f->infos[i], "its data lies beyond the end of the file, which is truncated");
        if (t.bytes && offset < end) return gguf__refuse(r, f->infos[i], "its data overlaps another tensor's");
        if (t.bytes && offset > expected) return gguf__refuse(r, f->infos[i], "a gap lies before its data");
        if (t.bytes) end = offset + t.bytes;
    }
    r->item = (gguf_string){ NULL, 0 };
    if (room > end && room - end >= f->alignment)
        return gguf__refuse(r, f->map.data + f->start + end, "bytes that belong to no tensor");
    return true;
}

/* Magic, version, counts; room for the tables. */
static bool gguf__read_head(gguf__reader *r, gguf__file *f) {
    uint32_t magic, version;
    if (!gguf__u32(r, &magic) || !gguf__u32(r, &version)) return false;
    if (magic != 0x46554747) return gguf__refuse(r, r->at - 8, "this is not a GGUF file");
    if (version == 0x02000000 || version == 0x03000000)
        return gguf__refuse(r, r->at - 4, "big-endian files are not read");
    if (version != 2 && version != 3) return gguf__refuse(r, r->at - 4, "versions 2 and 3 are read, this is another");
    if (!gguf__u64(r, &f->n_infos) || !gguf__u64(r, &f->n_keys)) return false;
    uint64_t left = (uint64_t)(r->end - r->at);
    if (f->n_infos > GGUF__TENSORS || f->n_infos > left / 24)
        return gguf__refuse(r, r->at - 16, "more tensors than the file or the limit of 1000000 has room for");
    if (f->n_keys > GGUF__KEYS || f->n_keys > left / 13)
        return gguf__refuse(r, r->at - 8, "more keys than the file or the limit of 65536 has room for");
    f->keys = (const uint8_t **)malloc(((size_t)f->n_keys + 1) * sizeof *f->keys);
    f->infos = (const uint8_t **)malloc(((size_t)f->n_infos + 1) * sizeof *f->infos);
    return (f->keys && f->infos) || gguf__refuse(r, r->at, "out of memory");
}

static bool gguf__read_file(gguf *g, size_t file) {
    gguf__file *f = &g->files[file];
    gguf__reader r = { .file = f, .error = g->error };
    gguf_value v;
    if (!mapping_open(&f->map, f->path, g->error, GGUF_ERROR)) return false;
    if (f->map.size < 24)
        return gguf__fail(g->error, "%.200s: %u bytes are too few for a GGUF file", f->path, (unsigned)f->map.size);
    r.at = f->map.data;
    r.end = r.at + (f->map.size < GGUF__HEADER ? f->map.size : GGUF__HEADER);
    if (!gguf__read_head(&r, f) || !gguf__read_keys(&r, f)) return false;
    f->alignment = 32;
    r.item = (gguf_string){ "general.alignment", 17 };
    if (gguf__find_key(f, "general.alignment", &v) && !gguf_value_u64(&v, &f->alignment)) f->alignment = 0;
    if (!f->alignment || f->alignment % 8 || f->alignment > GGUF__ALIGNMENT)
        return gguf__refuse(&r, f->map.data, "an alignment is a multiple of 8 up to 2^20");
    for (uint64_t i = 0; i < f->n_infos; i++) {
        f->infos[i] = r.at;
        if (!gguf__read_info(&r)) return false;
    }
    uint64_t head = (uint64_t)(r.at - f->map.data);
    f->start = (head + f->alignment - 1) / f->alignment * f->alignment;
    if (f->start > f->map.size) f->start = head; /* nothing follows: no tensor has data */
    return gguf__check_data(g, &r, file);
}

/* ---- splits ---- */

static bool gguf__add_file(gguf *g, const char *path) {
    gguf__file *more = (gguf__file *)realloc(g->files, (g->n_files + 1) * sizeof *more);
    if (!more) return gguf__fail(g->error, "%.200s: out of memory", path);
    g->files = more;
    memset(&more[g->n_files], 0, sizeof *more);
    more[g->n_files].map.slot = -1;
    more[g->n_files].path = (char *)malloc(strlen(path) + 1);
    if (!more[g->n_files].path) return gguf__fail(g->error, "%.200s: out of memory", path);
    strcpy(more[g->n_files++].path, path);
    return true;
}

static uint64_t gguf__number(const gguf__file *f, const char *key, uint64_t missing) {
    gguf_value v;
    uint64_t n;
    if (!gguf__find_key(f, key, &v)) return missing;
    return gguf_value_u64(&v, &n) ? n : UINT64_MAX;
}

/* The other files of a model in splits: NAME-00001-of-0000N.gguf and on. */
static bool gguf__read_splits(gguf *g) {
    const char *first = g->files[0].path;
    uint64_t n = gguf__number(&g->files[0], "split.count", 1);
    char tail[48], path[4096];
    size_t length = strlen(first);
    if (gguf__number(&g->files[0], "split.no", 0) != 0)
        return gguf__fail(g->error, "%.200s: this is not the first of its splits: open that one", first);
    if (n <= 1) return true;
    if (n > GGUF__SPLITS) return gguf__fail(g->error, "%.200s: split.count is above 1000 or no number", first);
    int size = snprintf(tail, sizeof tail, "-00001-of-%05u.gguf", (unsigned)n);
    if (length < (size_t)size || strcmp(first + length - (size_t)size, tail) || length >= sizeof path)
        return gguf__fail(g->error, "%.200s: the first of %u splits is named NAME%s", first, (unsigned)n, tail);
    for (unsigned k = 1; k < n; k++) {
        snprintf(path, sizeof path, "%.*s-%05u-of-%05u.gguf", (int)length - size, g->files[0].path, k + 1, (unsigned)n);
        if (!gguf__add_file(g, path) || !gguf__read_file(g, k)) return false;
        if (gguf__number(&g->files[k], "split.no", UINT64_MAX) != k ||
            gguf__number(&g->files[k], "split.count", 0) != n)
            return gguf__fail(g->error, "%.200s: split.no or split.count is not what the first file and the name say",
                              path);
    }
    return true;
}

static int gguf__by_name(const void *a, const void *b) {
    return gguf__order(gguf__string_at(((const gguf__entry *)a)->info),
                       gguf__string_at(((const gguf__entry *)b)->info));
}

static bool gguf__index(gguf *g) {
    for (size_t k = 0; k < g->n_files; k++) g->n += (size_t)g->files[k].n_infos;
    uint64_t said = gguf__number(&g->files[0], "split.tensors.count", g->n);
    if (said != g->n)
        return gguf__fail(g->error, "%.200s: split.tensors.count is %" PRIu64 ", the files hold %zu", g->files[0].path,
                          said, g->n);
    g->entries = (gguf__entry *)malloc((g->n + 1) * sizeof *g->entries);
    if (!g->entries) return gguf__fail(g->error, "%.200s: out of memory", g->files[0].path);
    size_t n = 0;
    for (size_t k = 0; k < g->n_files; k++)
        for (uint64_t i = 0; i < g->files[k].n_infos; i++)
            g->entries[n++] = (gguf__entry){ g->files[k].infos[i], (uint32_t)k };
    if (n) qsort(g->entries, n, sizeof *g->entries, gguf__by_name);
    for (size_t i = 1; i < n; i++) {
        gguf_string name = gguf__string_at(g->entries[i].info);
        if (!gguf__by_name(&g->entries[i - 1], &g->entries[i]))
            return gguf__fail(g->error, "%.200s: tensor \"%.*s\" stands twice", g->files[g->entries[i].file].path,
                              name.size > 100 ? 100 : (int)name.size, name.text);
    }
    return true;
}

gguf *gguf_open(const char *path, char error[GGUF_ERROR]) {
    gguf *g = (gguf *)calloc(1, sizeof *g);
    error[0] = 0;
    if (!g) {
        gguf__fail(error, "%.200s: out of memory", path);
        return NULL;
    }
    g->error = error;
    bool ok = gguf__add_file(g, path) && gguf__read_file(g, 0) && gguf__read_splits(g) && gguf__index(g) &&
              gguf_intact(g, error);
    g->error = NULL;
    for (size_t k = 0; k < g->n_files; k++) {
        free(g->files[k].infos);
        g->files[k].infos = NULL;
    }
    if (ok) return g;
    gguf_close(g);
    return NULL;
}

void gguf_close(gguf *g) {
    if (!g) return;
    for (size_t k = 0; k < g->n_files; k++) {
        mapping_close(&g->files[k].map);
        free(g->files[k].keys);
        free(g->files[k].infos);
        free(g->files[k].path);
    }
    free(g->files);
    free(g->entries);
    free(g);
}

/* ---- what it holds ---- */

size_t gguf_count(const gguf *g) { return g->n; }
size_t gguf_keys(const gguf *g) { return (size_t)g->files[0].n_keys; }

uint64_t gguf_elements(const gguf_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= (uint64_t)t->dims[i];
    return n;
}

const char *gguf_path(const gguf *g, size_t file) { return file < g->n_files ? g->files[file].path : NULL; }
uint64_t gguf_offset(const gguf *g, const gguf_tensor *t) {
    return t->bytes ? (uint64_t)(t->data - g->files[t->file].map.data) : 0;
}

bool gguf_at(const gguf *g, size_t i, gguf_tensor *out) {
    if (i >= g->n) return false;
    gguf__tensor_at(g, &g->entries[i], out);
    return true;
}

bool gguf_find(const gguf *g, const char *name, gguf_tensor *out) {
    gguf_string wanted = { name, strlen(name) };
    for (size_t low = 0, high = g->n; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = gguf__order(wanted, gguf__string_at(g->entries[middle].info));
        if (!order) return gguf_at(g, middle, out);
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return false;
}

bool gguf_key_at(const gguf *g, size_t i, gguf_string *out_key, gguf_value *out) {
    if (i >= gguf_keys(g)) return false;
    *out_key = gguf__string_at(g->files[0].keys[i]);
    *out = gguf__value_at(g->files[0].keys[i]);
    return true;
}

bool gguf_get(const gguf *g, const char *key, gguf_value *out) { return gguf__find_key(&g->files[0], key, out); }

bool gguf_next(gguf_value *at, gguf_value *out_item) {
    if (!at->count) return false;
    *out_item = (gguf_value){ at->item, at->item, 1, at->data };
    at->data += at->item == GGUF_KIND_STRING ? 8 + gguf__le64(at->data) : gguf__kind_bytes[at->item];
    at->count--;
    return true;
}

/* Any integer, as 64 bits and whether it is below 0. */
static bool gguf__integer(const gguf_value *v, uint64_t *out, bool *out_negative) {
    const uint8_t *p = v->data;
    switch (v->kind) {
    case GGUF_KIND_U8: *out = p[0]; break;
    case GGUF_KIND_I8: *out = (uint64_t)(int64_t)(int8_t)p[0]; break;
    case GGUF_KIND_U16: *out = (uint64_t)p[0] | (uint64_t)p[1] << 8; break;
    case GGUF_KIND_I16: *out = (uint64_t)(int64_t)(int16_t)(uint16_t)(p[0] | p[1] << 8); break;
    case GGUF_KIND_U32: *out = gguf__le32(p); break;
    case GGUF_KIND_I32: *out = (uint64_t)(int64_t)(int32_t)gguf__le32(p); break;
    case GGUF_KIND_U64:
    case GGUF_KIND_I64: *out = gguf__le64(p); break;
    default: return false;
    }
    bool is_signed =
        v->kind == GGUF_KIND_I8 || v->kind == GGUF_KIND_I16 || v->kind == GGUF_KIND_I32 || v->kind == GGUF_KIND_I64;
    *out_negative = is_signed && *out >> 63;
    return true;
}

bool gguf_value_u64(const gguf_value *v, uint64_t *out) {
    bool negative;
    return gguf__integer(v, out, &negative) && !negative;
}

bool gguf_value_f64(const gguf_value *v, double *out) {
    uint64_t n;
    bool negative;
    if (v->kind == GGUF_KIND_F32) {
        uint32_t bits = gguf__le32(v->data);
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = (double)f;
        return true;
    }
    if (v->kind == GGUF_KIND_F64) {
        n = gguf__le64(v->data);
        memcpy(out, &n, sizeof n);
        return true;
    }
    if (!gguf__integer(v, &n, &negative)) return false;
    *out = negative ? (double)(int64_t)n : (double)n;
    return true;
}

bool gguf_value_string(const gguf_value *v, gguf_string *out) {
    if (v->kind != GGUF_KIND_STRING) return false;
    *out = gguf__string_at(v->data);
    return true;
}

bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out) {
    gguf_value v;
    return gguf_get(g, key, &v) && gguf_value_u64(&v, out);
}

bool gguf_get_f64(const gguf *g, const char *key, double *out) {
    gguf_value v;
    return gguf_get(g, key, &v) && gguf_value_f64(&v, out);
}

bool gguf_get_bool(const gguf *g, const char *key, bool *out) {
    gguf_value v;
    if (!gguf_get(g, key, &v) || v.kind != GGUF_KIND_BOOL) return false;
    *out = v.data[0] != 0;
    return true;
}

bool gguf_get_string(const gguf *g, const char *key, gguf_string *out) {
    gguf_value v;
    return gguf_get(g, key, &v) && gguf_value_string(&v, out);
}

bool gguf_intact(const gguf *g, char error[GGUF_ERROR]) {
    for (size_t k = 0; k < g->n_files; k++) {
        uint64_t cut = mapping_cut(&g->files[k].map);
        if (cut == MAPPING_WHOLE) continue;
        gguf_string name = { "(header)", 8 };
        gguf_tensor t;
        for (size_t i = 0; cut >= g->files[k].start && gguf_at(g, i, &t); i++) {
            uint64_t begin = (uint64_t)(t.data - g->files[k].map.data);
            if (t.file == k && begin <= cut && begin + t.bytes > cut) name = t.name;
        }
        return gguf__fail(error, "%.200s: \"%.*s\", byte %" PRIu64 ": the file was cut after it was opened",
                          g->files[k].path, name.size > 100 ? 100 : (int)name.size, name.text, cut);
    }
    return true;
}

/* ---- blocks to f32; x is what a block stands for ---- */

static float gguf__f16(const uint8_t *p) {
    uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8, sign = (h & 0x8000u) << 16, rest = h & 0x7fffu, bits;
    float value;
    if (rest >= 0x7c00u) {
        bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
    } else if (rest >= 0x400u) {
        bits = sign | ((rest << 13) + 0x38000000u);
    } else {
        value = (float)rest * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* x = d * (q - 8), or d * q + m: 16 bytes of two quants each, low halves first */
static void gguf__q4(const uint8_t *p, float *x, bool has_min) {
    float d = gguf__f16(p), m = has_min ? gguf__f16(p + 2) : 0;
    const uint8_t *q = p + (has_min ? 4 : 2);
    for (int i = 0; i < 16; i++) {
        int low = q[i] & 15, high = q[i] >> 4;
        x[i] = has_min ? (float)low * d + m : (float)(low - 8) * d;
        x[i + 16] = has_min ? (float)high * d + m : (float)(high - 8) * d;
    }
}

/* The same with a fifth bit of each quant in 4 bytes before them. */
static void gguf__q5(const uint8_t *p, float *x, bool has_min) {
    float d = gguf__f16(p), m = has_min ? gguf__f16(p + 2) : 0;
    const uint8_t *q = p + (has_min ? 8 : 6);
    uint32_t fifth = gguf__le32(q - 4);
    for (int i = 0; i < 16; i++) {
        int low = (q[i] & 15) | (int)((fifth >> i & 1) << 4), high = q[i] >> 4 | (int)((fifth >> (i + 16) & 1) << 4);
        x[i] = has_min ? (float)low * d + m : (float)(low - 16) * d;
        x[i + 16] = has_min ? (float)high * d + m : (float)(high - 16) * d;
    }
}

static void gguf__q8(const uint8_t *p, float *x) {
    float d = gguf__f16(p);
    for (int i = 0; i < 32; i++) x[i] = (float)(int8_t)p[2 + i] * d;
}

/* Scale and minimum of the j-th 32 of 256: 6 bits each, in 12 bytes. */
static void gguf__scale(const uint8_t *s, int j, int *scale, int *min) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* x = d * scale * q - dmin * min; of Q5_K `fifth` holds a bit of each quant */
static void gguf__q45_k(const uint8_t *p, float *x, bool five) {
    float d = gguf__f16(p), dmin = gguf__f16(p + 2);
    const uint8_t *fifth = p + 16, *q = five ? p + 48 : p + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        gguf__scale(p + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int v = q[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            if (five) v |= (fifth[i] >> j & 1) << 4;
            x[j * 32 + i] = ds * (float)v - m;
        }
    }
}

/* x = d * scale * (q - 32): 128 bytes of low halves, 64 of two further bits, 16 scales of 8 bits, d last */
static void gguf__q6_k(const uint8_t *p, float *x) {
    float d = gguf__f16(p + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half, *scales = p + 192 + 8 * half;
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) {
                int v = (low[j % 2 * 32 + i] >> (j / 2 * 4) & 15) | (high[i] >> 2 * j & 3) << 4;
                x[half * 128 + j * 32 + i] = d * (float)(int8_t)scales[2 * j + i / 16] * (float)(v - 32);
            }
    }
}

static void gguf__block_to_f32(uint32_t type, const uint8_t *p, float *x) {
    uint32_t bits;
    double wide;
    switch (type) {
    case GGUF_F32:
        bits = gguf__le32(p);
        memcpy(x, &bits, sizeof bits);
        break;
    case GGUF_F16: *x = gguf__f16(p); break;
    case GGUF_BF16:
        bits = ((uint32_t)p[0] | (uint32_t)p[1] << 8) << 16;
        memcpy(x, &bits, sizeof bits);
        break;
    case GGUF_Q4_0: gguf__q4(p, x, false); break;
    case GGUF_Q4_1: gguf__q4(p, x, true); break;
    case GGUF_Q5_0: gguf__q5(p, x, false); break;
    case GGUF_Q5_1: gguf__q5(p, x, true); break;
    case GGUF_Q8_0: gguf__q8(p, x); break;
    case GGUF_Q4_K: gguf__q45_k(p, x, false); break;
    case GGUF_Q5_K: gguf__q45_k(p, x, true); break;
    case GGUF_Q6_K: gguf__q6_k(p, x); break;
    case GGUF_I8: *x = (float)(int8_t)p[0]; break;
    case GGUF_I16: *x = (float)(int16_t)(uint16_t)(p[0] | p[1] << 8); break;
    case GGUF_I32: *x = (float)(int32_t)gguf__le32(p); break;
    case GGUF_I64: *x = (float)(int64_t)gguf__le64(p); break;
    default:
        memcpy(&wide, p, sizeof wide);
        *x = (float)wide;
        break;
    }
}

bool gguf_to_f32(uint32_t type, const void *data, uint64_t n, float *out) {
    const uint8_t *p = (const uint8_t *)data;
    uint32_t elements, bytes;
    if (!gguf_block(type, &elements, &bytes) || n % elements) return false;
    for (; n > 0; n -= elements, p += bytes, out += elements) gguf__block_to_f32(type, p, out);
    return true;
}
#endif
