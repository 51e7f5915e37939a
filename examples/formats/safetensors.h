/* safetensors.h - reads and writes model weights in the safetensors format, one file or shards with an index.

   One C file of the program:   #define SAFETENSORS_IMPLEMENTATION
                                #include "safetensors.h"
   Elsewhere:                   #include "safetensors.h"   C99 and C++11; POSIX, little-endian; needs json.h and
   mapping.h beside it.

       char error[SAFETENSORS_ERROR];
       safetensors *s = safetensors_open("model-dir", error);          a file, an index, or a directory that holds one
       const safetensors_tensor *t = safetensors_find(s, "lm_head.weight");
       ... t->dtype, t->rank, t->dims, t->data, t->bytes ...           the data stays in the file until it is read
       if (!safetensors_intact(s, error)) puts(error);                 the file became shorter meanwhile
       safetensors_close(s);

   Files are mapped, not read: opening takes the time of the header, and at most twice its bytes of memory. Checked
   before anything is given out: length of the header (100 MB), JSON and UTF-8, dtype, rank (8), dimensions times bytes
   of the dtype against the offsets, offsets without gap or overlap up to the file's last byte, names that stand twice
   (in one file or in two), an index that names a file outside its folder or a tensor that is not there. An error names
   file, tensor and byte.

   The format: https://github.com/huggingface/safetensors#format. Not read: dtypes of less than 8 bits (they are refused
   by name). */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "json.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SAFETENSORS_ERROR = 512, SAFETENSORS_RANK = 8 };

/* X(NAME, bytes) */
#define SAFETENSORS_DTYPES(X) \
    X(BOOL, 1)                \
    X(U8, 1)                  \
    X(I8, 1)                  \
    X(F8_E4M3, 1)             \
    X(F8_E5M2, 1)             \
    X(F8_E8M0, 1)             \
    X(I16, 2)                 \
    X(U16, 2)                 \
    X(F16, 2)                 \
    X(BF16, 2)                \
    X(I32, 4)                 \
    X(U32, 4)                 \
    X(F32, 4)                 \
    X(I64, 8)                 \
    X(U64, 8)                 \
    X(F64, 8)                 \
    X(C64, 8)

typedef enum safetensors_dtype {
#define SAFETENSORS__X(name, bytes) SAFETENSORS_##name,
    SAFETENSORS_DTYPES(SAFETENSORS__X) SAFETENSORS_DTYPE__COUNT
#undef SAFETENSORS__X
} safetensors_dtype;

typedef struct safetensors_tensor {
    const char *name;    /* ends with a 0 byte */
    const int64_t *dims; /* rank numbers, row-major, the last one contiguous */
    const uint8_t *data; /* in the mapped file, wherever the header put it: often not aligned to its dtype */
    uint64_t bytes;      /* 0 for an empty tensor; then data may be NULL */
    uint32_t file;       /* index of its shard */
    uint8_t dtype, rank; /* a safetensors_dtype; 0 to 8 */
} safetensors_tensor;

typedef struct safetensors safetensors;

/* `path`: a .safetensors file, a .safetensors.index.json, or a directory with model.safetensors or its index. NULL:
   `error` says why. A safetensors may be read by several threads at once. */
safetensors *safetensors_open(const char *path, char error[SAFETENSORS_ERROR]);
void safetensors_close(safetensors *s);
size_t safetensors_count(const safetensors *s);
const safetensors_tensor *safetensors_at(const safetensors *s, size_t i); /* in the order of names (bytes compared) */
const safetensors_tensor *safetensors_find(const safetensors *s, const char *name); /* NULL: there is none */
/* How the parts of a name lead to a tensor: `prefix` + `name`, else `name`, else NULL (some writers leave the prefix
 * out). */
const safetensors_tensor *safetensors_find_prefixed(const safetensors *s, const char *prefix, const char *name);
/* `__metadata__` of a shard (an object of strings), or of the index (file SIZE_MAX); missing where there is none. */
json_value safetensors_metadata(const safetensors *s, size_t file);
size_t safetensors_files(const safetensors *s);
const char *safetensors_path(const safetensors *s, size_t file);
uint64_t safetensors_offset(const safetensors *s, const safetensors_tensor *t); /* of its data, in its file */
const char *safetensors_dtype_name(int dtype);                                  /* "BF16" */
uint32_t safetensors_dtype_bytes(int dtype);
/* False when a file lost bytes that were read since it was opened: `error` names tensor and offset, and what was read
   is not to be used. Ask when the data has been used. */
bool safetensors_intact(const safetensors *s, char error[SAFETENSORS_ERROR]);

/* Writes one file: tensors in the order of their dtypes' sizes, so that all are aligned; `file` is not used.
   `metadata`: name, value, name, value…, NULL; or NULL. The file appears when it is whole (written beside it, then
   renamed). */
bool safetensors_write(const char *path, const safetensors_tensor *tensors, size_t n, const char *const *metadata,
                       char error[SAFETENSORS_ERROR]);

#ifdef __cplusplus
}
#endif
#endif

#if defined(SAFETENSORS_IMPLEMENTATION) && !defined(SAFETENSORS_IMPLEMENTED)
#define SAFETENSORS_IMPLEMENTED
#define JSON_IMPLEMENTATION
#include "json.h"
#define MAPPING_IMPLEMENTATION
#include "mapping.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ST__HEADER = 100000000, /* bytes of a header and of an index, as the reference implementation has it */
    ST__SHARDS = 1000,
    ST__METADATA = 1000, /* names in one __metadata__ */
    ST__PATH = 4096
};

typedef struct st__shard {
    char *path;
    mapping map;
    uint64_t start; /* offset of the data */
    json_value header;
    size_t n; /* tensors */
} st__shard;

struct safetensors {
    safetensors_tensor *tensors; /* by name */
    size_t n, n_shards;
    st__shard *shards;
    int64_t *dims;
    char *names, *error;
    mapping index; /* of the index, where there is one */
    json_value index_root;
    char index_path[ST__PATH];
};

static const struct {
    const char *name;
    uint32_t bytes;
} st__dtypes[] = {
#define SAFETENSORS__X(name, bytes) { #name, bytes },
    SAFETENSORS_DTYPES(SAFETENSORS__X)
#undef SAFETENSORS__X
};

const char *safetensors_dtype_name(int d) { return d >= 0 && d < SAFETENSORS_DTYPE__COUNT ? st__dtypes[d].name : "?"; }
uint32_t safetensors_dtype_bytes(int d) { return d >= 0 && d < SAFETENSORS_DTYPE__COUNT ? st__dtypes[d].bytes : 0; }

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
st__fail(char *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, SAFETENSORS_ERROR, format, args);
    va_end(args);
    return false;
}

/* What is wrong with one member of a header: file, its name as it is written there, the byte. */
static bool st__refuse(safetensors *s, const st__shard *f, json_value name, json_value at, const char *why) {
    int shown = name.size > 120 ? 120 : (int)name.size;
    uint64_t offset = (uint64_t)((at.text ? at.text : name.text) - (const char *)f->map.data);
    return st__fail(s->error, "%.200s: tensor %.*s, byte %" PRIu64 ": %s", f->path, shown, name.text ? name.text : "",
                    offset, why);
}

/* ---- one header ---- */

static uint64_t st__le64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Maps a shard and checks that its header is JSON. */
static bool st__open_header(safetensors *s, st__shard *f) {
    json_limits limits = { .bytes = ST__HEADER, .depth = 4, .repeated_names = true };
    json_error why;
    if (!mapping_open(&f->map, f->path, s->error, SAFETENSORS_ERROR)) {
        size_t n = strlen(s->error);
        if (*s->index_path) snprintf(s->error + n, SAFETENSORS_ERROR - n, ", which %.200s names", s->index_path);
        return false;
    }
    uint64_t size = f->map.size, header = size >= 8 ? st__le64(f->map.data) : 0;
    if (size < 8)
        return st__fail(s->error, "%s: %" PRIu64 " bytes are too few for a length and a header", f->path, size);
    if (header > ST__HEADER || header > size - 8)
        return st__fail(s->error,
                        "%s: byte 0: a header of %" PRIu64 " bytes does not fit (file: %" PRIu64 " bytes, limit: %d); "
                        "the file is truncated or of another format",
                        f->path, header, size, ST__HEADER);
    f->start = 8 + header;
    if (!header || f->map.data[8] != '{') return st__fail(s->error, "%s: byte 8: a header begins with {", f->path);
    if (!json_check((const char *)f->map.data + 8, (size_t)header, &limits, &f->header, &why))
        return st__fail(s->error, "%s: byte %zu: %s", f->path, 8 + why.offset, why.text);
    return true;
}

/* __metadata__ is an object of strings. */
static bool st__check_metadata(safetensors *s, const st__shard *f, json_value key, json_value metadata) {
    json_limits limits = { .depth = 1, .values = 2 * ST__METADATA + 1 };
    json_value root, name, value;
    json_error why;
    if (json_kind_of(metadata) != JSON_OBJECT)
        return st__refuse(s, f, key, metadata, "metadata is an object of strings");
    if (!json_check(metadata.text, metadata.size, &limits, &root, &why))
        return st__refuse(s, f, key, metadata, why.text);
    for (json_iter i = json_begin(metadata); json_next(&i, &name, &value);)
        if (json_kind_of(value) != JSON_STRING) return st__refuse(s, f, key, value, "metadata is an object of strings");
    return true;
}

/* What the tables need for a shard: how many tensors, dimensions, bytes of names. */
static bool st__count(safetensors *s, st__shard *f, size_t *n_dims, size_t *n_names) {
    json_value key, value;
    bool seen = false;
    for (json_iter i = json_begin(f->header); json_next(&i, &key, &value);) {
        if (json_is(key, "__metadata__")) {
            if (seen) return st__refuse(s, f, key, key, "this name stands twice");
            seen = true;
            if (!st__check_metadata(s, f, key, value)) return false;
            continue;
        }
        f->n++;
        *n_dims += json_count(json_get(value, "shape"));
        *n_names += key.size - 1;
    }
    return true;
}

static bool st__read_dtype(safetensors *s, const st__shard *f, json_value key, json_value value,
                           safetensors_tensor *t) {
    for (int d = 0; d < SAFETENSORS_DTYPE__COUNT; d++)
        if (json_is(value, st__dtypes[d].name)) {
            t->dtype = (uint8_t)d;
            return true;
        }
    char text[80];
    snprintf(text, sizeof text, "dtype %.*s is not read", value.size > 40 ? 40 : (int)value.size, value.text);
    return st__refuse(s, f, key, value, text);
}

/* Dimensions, and in `*out_bytes` their product times the dtype's bytes. */
static bool st__read_shape(safetensors *s, const st__shard *f, json_value key, json_value shape, safetensors_tensor *t,
                           int64_t *dims, uint64_t *out_bytes) {
    json_value none, value;
    uint64_t bytes = st__dtypes[t->dtype].bytes;
    bool empty = false;
    t->dims = dims;
    if (json_kind_of(shape) != JSON_ARRAY) return st__refuse(s, f, key, shape, "a shape is an array of numbers");
    for (json_iter i = json_begin(shape); json_next(&i, &none, &value); t->rank++) {
        uint64_t d;
        if (t->rank == SAFETENSORS_RANK) return st__refuse(s, f, key, value, "more than 8 dimensions");
        if (!json_get_u64(value, &d) || d > INT64_MAX)
            return st__refuse(s, f, key, value, "a dimension is not a whole number from 0 to 2^63 - 1");
        dims[t->rank] = (int64_t)d;
        if (d == 0) {
            empty = true;
            continue;
        }
        if (bytes > UINT64_MAX / d)
            return st__refuse(s, f, key, shape, "the dimensions' product is larger than 64 bits");
        bytes *= d;
    }
    *out_bytes = empty ? 0 : bytes;
    return true;
}

static bool st__read_offsets(safetensors *s, const st__shard *f, json_value key, json_value offsets,
                             safetensors_tensor *t, uint64_t bytes) {
    json_value none, first, second, third;
    uint64_t begin, end, room = f->map.size - f->start;
    char text[160];
    json_iter i = json_begin(offsets);
    if (!json_next(&i, &none, &first) || !json_next(&i, &none, &second) || json_next(&i, &none, &third) ||
        json_kind_of(offsets) != JSON_ARRAY || !json_get_u64(first, &begin) || !json_get_u64(second, &end) ||
        begin > end)
        return st__refuse(s, f, key, offsets, "data_offsets are two numbers, the second not below the first");
    if (end > room) {
        snprintf(text, sizeof text, "its data ends at byte %" PRIu64 " of %" PRIu64 "; the file is truncated", end,
                 room);
        return st__refuse(s, f, key, offsets, text);
    }
    if (end - begin != bytes) {
        snprintf(text, sizeof text, "dtype and shape take %" PRIu64 " bytes, data_offsets give %" PRIu64, bytes,
                 end - begin);
        return st__refuse(s, f, key, offsets, text);
    }
    t->data = f->map.data + f->start + begin;
    t->bytes = bytes;
    return true;
}

/* One tensor: exactly dtype, shape and data_offsets. Gives the dimensions it took, -1 when it is refused. */
static int st__read_tensor(safetensors *s, const st__shard *f, json_value key, json_value entry, safetensors_tensor *t,
                           int64_t *dims) {
    static const char *const names[3] = { "dtype", "shape", "data_offsets" };
    json_value name, value, found[3] = { { NULL, 0 }, { NULL, 0 }, { NULL, 0 } };
    uint64_t bytes = 0;
    bool ok = json_kind_of(entry) == JSON_OBJECT || st__refuse(s, f, key, entry, "this is not an object");
    for (json_iter i = json_begin(entry); ok && json_next(&i, &name, &value);) {
        int k = 0;
        while (k < 3 && !json_is(name, names[k])) k++;
        if (k == 3) ok = st__refuse(s, f, key, name, "a tensor has dtype, shape and data_offsets, nothing else");
        else if (found[k].text) ok = st__refuse(s, f, key, name, "this name stands twice");
        else found[k] = value;
    }
    for (int k = 0; ok && k < 3; k++)
        if (!found[k].text) ok = st__refuse(s, f, key, entry, "dtype, shape or data_offsets is missing");
    ok = ok && st__read_dtype(s, f, key, found[0], t) && st__read_shape(s, f, key, found[1], t, dims, &bytes) &&
         st__read_offsets(s, f, key, found[2], t, bytes);
    return ok ? t->rank : -1;
}

static int st__by_offset(const void *a, const void *b) {
    const safetensors_tensor *x = *(const safetensors_tensor *const *)a, *y = *(const safetensors_tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool st__data_is_whole(safetensors *s, const st__shard *f, const safetensors_tensor *t,
                              const safetensors_tensor **order) {
    const uint8_t *data = f->map.data, *expected = data + f->start, *end = data + f->map.size;
    for (size_t i = 0; i < f->n; i++) order[i] = t + i;
    if (f->n) qsort(order, f->n, sizeof *order, st__by_offset);
    for (size_t i = 0; i < f->n; expected += order[i++]->bytes)
        if (order[i]->data != expected)
            return st__fail(s->error, "%.200s: tensor \"%.120s\", byte %" PRIu64 ": its data %s what lies before it",
                            f->path, order[i]->name, (uint64_t)(order[i]->data - data),
                            order[i]->data < expected ? "overlaps" : "leaves a gap to");
    if (expected != end)
        return st__fail(s->error, "%s: byte %" PRIu64 ": the last %" PRIu64 " bytes belong to no tensor", f->path,
                        (uint64_t)(expected - data), (uint64_t)(end - expected));
    return true;
}

/* Fills the entries of one shard; `*names` and `*dims` move on. */
static bool st__read_shard(safetensors *s, size_t k, safetensors_tensor *t, char **names, int64_t **dims,
                           const safetensors_tensor **order) {
    const st__shard *f = &s->shards[k];
    json_value key, value;
    const safetensors_tensor *first = t;
    for (json_iter i = json_begin(f->header); json_next(&i, &key, &value);) {
        size_t size;
        if (json_is(key, "__metadata__")) continue;
        if (!json_get_string(key, *names, key.size - 1, &size))
            return st__refuse(s, f, key, key, "the name is not a string");
        if (strlen(*names) != size) return st__refuse(s, f, key, key, "the name holds a 0 byte");
        t->name = *names;
        t->file = (uint32_t)k;
        *names += size + 1;
        int rank = st__read_tensor(s, f, key, value, t, *dims);
        if (rank < 0) return false;
        *dims += rank;
        t++;
    }
    return st__data_is_whole(s, f, first, order);
}

/* ---- all shards ---- */

static int st__by_name(const void *a, const void *b) {
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

static bool st__names_differ(safetensors *s) {
    if (s->n) qsort(s->tensors, s->n, sizeof *s->tensors, st__by_name);
    for (size_t i = 1; i < s->n; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name)) {
            const char *a = s->shards[s->tensors[i - 1].file].path, *b = s->shards[s->tensors[i].file].path;
            return st__fail(s->error, "%.200s: tensor \"%.80s\" stands twice (also in %.200s)", b, s->tensors[i].name,
                            a);
        }
    return true;
}

static bool st__read_all(safetensors *s) {
    size_t n_dims = 0, n_names = 0, most = 0;
    for (size_t k = 0; k < s->n_shards; k++) {
        st__shard *f = &s->shards[k];
        if (!st__open_header(s, f) || !st__count(s, f, &n_dims, &n_names)) return false;
        s->n += f->n;
        if (f->n > most) most = f->n;
    }
    s->tensors = (safetensors_tensor *)calloc(s->n + 1, sizeof *s->tensors);
    s->dims = (int64_t *)malloc((n_dims + 1) * sizeof *s->dims);
    s->names = (char *)malloc(n_names + 1);
    const safetensors_tensor **order = (const safetensors_tensor **)malloc((most + 1) * sizeof *order);
    bool ok =
        (s->tensors && s->dims && s->names && order) || st__fail(s->error, "%s: out of memory", s->shards[0].path);
    safetensors_tensor *t = s->tensors;
    char *names = s->names;
    int64_t *dims = s->dims;
    for (size_t k = 0; ok && k < s->n_shards; k++) {
        ok = st__read_shard(s, k, t, &names, &dims, order);
        t += s->shards[k].n;
    }
    free(order);
    return ok && st__names_differ(s);
}

/* ---- the index ---- */

/* The path of a file of the index: a plain name, in the index's own folder. */
static bool st__shard_path(safetensors *s, json_value value, char *out) {
    char name[256];
    size_t size;
    const char *slash = strrchr(s->index_path, '/');
    int folder = slash ? (int)(slash - s->index_path) + 1 : 0;
    if (!json_get_string(value, name, sizeof name, &size) || !size || strlen(name) != size || strpbrk(name, "/\\") ||
        !strcmp(name, ".") || !strcmp(name, ".."))
        return st__fail(s->error, "%.200s: byte %" PRIu64 ": %.*s is not the name of a file beside the index",
                        s->index_path, (uint64_t)(value.text - (const char *)s->index.data),
                        value.size > 120 ? 120 : (int)value.size, value.text);
    if (snprintf(out, ST__PATH, "%.*s%s", folder, s->index_path, name) >= ST__PATH)
        return st__fail(s->error, "%.200s: the path is too long", s->index_path);
    return true;
}

static size_t st__shard_of(const safetensors *s, const char *path, size_t guess) {
    if (guess < s->n_shards && !strcmp(s->shards[guess].path, path)) return guess;
    for (size_t k = 0; k < s->n_shards; k++)
        if (!strcmp(s->shards[k].path, path)) return k;
    return s->n_shards;
}

static bool st__add_shard(safetensors *s, const char *path) {
    if (s->n_shards == ST__SHARDS) return st__fail(s->error, "%.200s: more than %d files", path, ST__SHARDS);
    st__shard *more = (st__shard *)realloc(s->shards, (s->n_shards + 1) * sizeof *more);
    if (!more) return st__fail(s->error, "%.200s: out of memory", path);
    s->shards = more;
    memset(&more[s->n_shards], 0, sizeof *more);
    more[s->n_shards].map.slot = -1;
    more[s->n_shards].path = (char *)malloc(strlen(path) + 1);
    if (!more[s->n_shards].path) return st__fail(s->error, "%.200s: out of memory", path);
    strcpy(more[s->n_shards++].path, path);
    return true;
}

static bool st__read_index(safetensors *s) {
    json_limits limits = { .bytes = ST__HEADER, .depth = 8 };
    json_value key, value;
    json_error why;
    char path[ST__PATH];
    size_t k = 0;
    if (!mapping_open(&s->index, s->index_path, s->error, SAFETENSORS_ERROR)) return false;
    if (s->index.size > ST__HEADER)
        return st__fail(s->error, "%s: an index has at most %d bytes", s->index_path, ST__HEADER);
    if (!json_check((const char *)s->index.data, (size_t)s->index.size, &limits, &s->index_root, &why))
        return st__fail(s->error, "%.200s: byte %zu: %s", s->index_path, why.offset, why.text);
    json_value map = json_get(s->index_root, "weight_map");
    if (json_kind_of(map) != JSON_OBJECT || !json_count(map))
        return st__fail(s->error, "%s: weight_map, an object of names and files, is missing or empty", s->index_path);
    for (json_iter i = json_begin(map); json_next(&i, &key, &value);) {
        if (!st__shard_path(s, value, path)) return false;
        k = st__shard_of(s, path, k);
        if (k == s->n_shards && !st__add_shard(s, path)) return false;
    }
    return true;
}

/* Each tensor of the index lies in the file that it names. */
static bool st__index_holds(safetensors *s) {
    json_value key, value;
    char path[ST__PATH];
    for (json_iter i = json_begin(json_get(s->index_root, "weight_map")); json_next(&i, &key, &value);) {
        char *name = (char *)malloc(key.size);
        bool ok = name && json_get_string(key, name, key.size, NULL) && st__shard_path(s, value, path);
        const safetensors_tensor *t = ok ? safetensors_find(s, name) : NULL;
        free(name);
        if (!t || strcmp(s->shards[t->file].path, path))
            return st__fail(s->error, "%.200s: byte %" PRIu64 ": tensor %.*s is not in %.*s", s->index_path,
                            (uint64_t)(key.text - (const char *)s->index.data), key.size > 100 ? 100 : (int)key.size,
                            key.text, value.size > 80 ? 80 : (int)value.size, value.text);
    }
    return true;
}

/* ---- opening ---- */

static bool st__ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Says what lies in a directory without files of this kind, if it is one of those that are known. */
static bool st__others(safetensors *s, const char *path, const char *const names[2]) {
    static const char *const others[] = { "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                                          "flax_model.msgpack", "consolidated.00.pth" };
    char place[ST__PATH];
    struct stat info;
    st__fail(s->error, "%.200s: neither %s nor %s is in this directory", path, names[1], names[0]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = strlen(s->error);
        snprintf(place, sizeof place, "%.4050s/%s", path, others[i]);
        if (stat(place, &info)) continue;
        snprintf(s->error + n, SAFETENSORS_ERROR - n, "; %s is, which is not read: save the model as safetensors",
                 others[i]);
        break;
    }
    return false;
}

/* What to open for `path`: an index or a file. */
static bool st__locate(safetensors *s, const char *path) {
    static const char *const names[2] = { "model.safetensors.index.json", "model.safetensors" };
    struct stat info;
    char place[ST__PATH];
    if (strlen(path) > ST__PATH - 40) return st__fail(s->error, "the path is too long");
    if (stat(path, &info)) return st__fail(s->error, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) {
        if (!st__ends_with(path, ".json")) return st__add_shard(s, path);
        snprintf(s->index_path, ST__PATH, "%s", path);
        return st__read_index(s);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(place, sizeof place, "%.4050s/%s", path, names[i]);
        if (stat(place, &info)) continue;
        return st__locate(s, place);
    }
    return st__others(s, path, names);
}

safetensors *safetensors_open(const char *path, char error[SAFETENSORS_ERROR]) {
    safetensors *s = (safetensors *)calloc(1, sizeof *s);
    error[0] = 0;
    if (!s) {
        st__fail(error, "%s: out of memory", path);
        return NULL;
    }
    s->error = error;
    s->index.slot = -1;
    bool ok = st__locate(s, path) && st__read_all(s) && st__index_holds(s) && safetensors_intact(s, error);
    s->error = NULL; /* it is the caller's, and may be gone */
    if (ok) return s;
    safetensors_close(s);
    return NULL;
}

void safetensors_close(safetensors *s) {
    if (!s) return;
    for (size_t k = 0; k < s->n_shards; k++) {
        mapping_close(&s->shards[k].map);
        free(s->shards[k].path);
    }
    mapping_close(&s->index);
    free(s->shards);
    free(s->tensors);
    free(s->dims);
    free(s->names);
    free(s);
}

size_t safetensors_count(const safetensors *s) { return s->n; }
const safetensors_tensor *safetensors_at(const safetensors *s, size_t i) { return i < s->n ? &s->tensors[i] : NULL; }
size_t safetensors_files(const safetensors *s) { return s->n_shards; }
const char *safetensors_path(const safetensors *s, size_t file) {
    return file < s->n_shards ? s->shards[file].path : s->index_path;
}
uint64_t safetensors_offset(const safetensors *s, const safetensors_tensor *t) {
    return t->bytes ? (uint64_t)(t->data - s->shards[t->file].map.data) : 0;
}

const safetensors_tensor *safetensors_find(const safetensors *s, const char *name) {
    for (size_t low = 0, high = s->n; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, s->tensors[middle].name);
        if (!order) return &s->tensors[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const safetensors_tensor *safetensors_find_prefixed(const safetensors *s, const char *prefix, const char *name) {
    char whole[1024];
    int n = snprintf(whole, sizeof whole, "%s%s", prefix, name);
    const safetensors_tensor *t = n > 0 && n < (int)sizeof whole ? safetensors_find(s, whole) : NULL;
    return t ? t : safetensors_find(s, name);
}

json_value safetensors_metadata(const safetensors *s, size_t file) {
    if (file < s->n_shards) return json_get(s->shards[file].header, "__metadata__");
    return json_get(s->index_root, "metadata");
}

bool safetensors_intact(const safetensors *s, char error[SAFETENSORS_ERROR]) {
    if (mapping_cut(&s->index) != MAPPING_WHOLE)
        return st__fail(error, "%s: the file was cut while it was read", s->index_path);
    for (size_t k = 0; k < s->n_shards; k++) {
        const st__shard *f = &s->shards[k];
        uint64_t cut = mapping_cut(&f->map);
        if (cut == MAPPING_WHOLE) continue;
        const char *name = "(header)";
        for (size_t i = 0; i < s->n && cut >= f->start; i++)
            if (s->tensors[i].file == k && (uint64_t)(s->tensors[i].data - f->map.data) + s->tensors[i].bytes > cut &&
                (uint64_t)(s->tensors[i].data - f->map.data) <= cut)
                name = s->tensors[i].name;
        return st__fail(error, "%.200s: tensor \"%.120s\", byte %" PRIu64 ": the file was cut after it was opened",
                        f->path, name, cut);
    }
    return true;
}

/* ---- writing ---- */

typedef struct st__text {
    char *data;
    size_t size, room;
    bool failed;
} st__text;

static void st__put(st__text *t, const char *data, size_t size) {
    if (t->failed) return;
    if (t->room - t->size < size) {
        size_t room = t->room + size + t->room / 2 + 256;
        char *more = (char *)realloc(t->data, room);
        if (!more) {
            t->failed = true;
            return;
        }
        t->data = more;
        t->room = room;
    }
    memcpy(t->data + t->size, data, size);
    t->size += size;
}

static void st__puts(st__text *t, const char *text) { st__put(t, text, strlen(text)); }

static void st__put_string(st__text *t, const char *text) {
    size_t size = strlen(text), room = json_quote(text, size, NULL, 0);
    char *quoted = (char *)malloc(room);
    if (!quoted) {
        t->failed = true;
        return;
    }
    json_quote(text, size, quoted, room);
    st__put(t, quoted, room);
    free(quoted);
}

static void st__put_entry(st__text *h, const safetensors_tensor *t, uint64_t begin) {
    char text[64];
    st__put_string(h, t->name);
    st__puts(h, ":{\"dtype\":\"");
    st__puts(h, safetensors_dtype_name(t->dtype));
    st__puts(h, "\",\"shape\":[");
    for (int d = 0; d < t->rank; d++) {
        snprintf(text, sizeof text, "%s%" PRId64, d ? "," : "", t->dims[d]);
        st__puts(h, text);
    }
    snprintf(text, sizeof text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + t->bytes);
    st__puts(h, text);
}

static int st__by_size(const void *a, const void *b) {
    const safetensors_tensor *x = *(const safetensors_tensor *const *)a, *y = *(const safetensors_tensor *const *)b;
    uint32_t m = safetensors_dtype_bytes(x->dtype), n = safetensors_dtype_bytes(y->dtype);
    return m != n ? (m < n ? 1 : -1) : strcmp(x->name, y->name);
}

static int st__by_name_of(const void *a, const void *b) {
    return strcmp((*(const safetensors_tensor *const *)a)->name, (*(const safetensors_tensor *const *)b)->name);
}

static bool st__can_write(const safetensors_tensor *t, size_t n, char *error) {
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = safetensors_dtype_bytes(t[i].dtype);
        bool ok = bytes && t[i].name && t[i].rank <= SAFETENSORS_RANK && strcmp(t[i].name, "__metadata__") != 0;
        for (int d = 0; ok && d < t[i].rank; d++) {
            ok = t[i].dims[d] >= 0 && (!t[i].dims[d] || bytes <= UINT64_MAX / (uint64_t)t[i].dims[d]);
            bytes *= (uint64_t)t[i].dims[d];
        }
        if (!ok || bytes != t[i].bytes || (bytes && !t[i].data))
            return st__fail(error, "tensor %zu (\"%.120s\"): name, dtype, shape and bytes do not fit", i,
                            t[i].name ? t[i].name : "");
    }
    return true;
}

static void st__make_header(st__text *h, const safetensors_tensor *const *t, size_t n, const char *const *metadata) {
    uint64_t begin = 0;
    st__puts(h, "{");
    for (size_t i = 0; metadata && metadata[i] && metadata[i + 1]; i += 2) {
        st__puts(h, i ? "," : "\"__metadata__\":{");
        st__put_string(h, metadata[i]);
        st__puts(h, ":");
        st__put_string(h, metadata[i + 1]);
    }
    if (metadata && metadata[0]) st__puts(h, n ? "}," : "}");
    for (size_t i = 0; i < n; begin += t[i++]->bytes) {
        if (i) st__puts(h, ",");
        st__put_entry(h, t[i], begin);
    }
    st__puts(h, "}");
    while (!h->failed && h->size % 8) st__puts(h, " ");
}

static bool st__write_file(const char *path, const st__text *h, const safetensors_tensor *const *t, size_t n) {
    FILE *out = fopen(path, "wbx");
    if (!out) return false;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)h->size >> 8 * i);
    bool ok = fwrite(length, 1, 8, out) == 8 && fwrite(h->data, 1, h->size, out) == h->size;
    for (size_t i = 0; ok && i < n; i++)
        ok = !t[i]->bytes || fwrite(t[i]->data, 1, (size_t)t[i]->bytes, out) == t[i]->bytes;
    ok = ok && fflush(out) == 0 && fsync(fileno(out)) == 0;
    return (fclose(out) == 0) && ok;
}

bool safetensors_write(const char *path, const safetensors_tensor *tensors, size_t n, const char *const *metadata,
                       char error[SAFETENSORS_ERROR]) {
    char beside[ST__PATH];
    st__text h = { NULL, 0, 0, false };
    if (!st__can_write(tensors, n, error)) return false;
    if (snprintf(beside, sizeof beside, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof beside)
        return st__fail(error, "the path is too long");
    const safetensors_tensor **order = (const safetensors_tensor **)malloc((n + 1) * sizeof *order);
    for (size_t i = 0; order && i < n; i++) order[i] = &tensors[i];
    if (order && n) qsort(order, n, sizeof *order, st__by_name_of);
    bool ok = order != NULL;
    for (size_t i = 1; ok && i < n; i++)
        if (!strcmp(order[i - 1]->name, order[i]->name))
            ok = st__fail(error, "tensor \"%.120s\" is given twice", order[i]->name);
    if (ok && n) qsort(order, n, sizeof *order, st__by_size);
    if (ok) st__make_header(&h, order, n, metadata);
    if (!order || h.failed) ok = st__fail(error, "%s: out of memory", path);
    if (ok && (!st__write_file(beside, &h, order, n) || rename(beside, path))) {
        ok = st__fail(error, "%s: %s", path, strerror(errno));
        unlink(beside);
    }
    free(order);
    free(h.data);
    return ok;
}
#endif
