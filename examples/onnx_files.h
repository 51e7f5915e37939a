/* Files of tensors for onnx_run: .npy and .pb, and folders of node tests. */
#ifndef ONNX_FILES_H
#define ONNX_FILES_H

#include "formats/onnx.h"
#include <dirent.h>
#include <sys/stat.h>

/* A whole file of at most 2 GiB; the caller frees it. NULL: errno says why, 0: it is too large. */
static inline uint8_t *of_read(const char *path, size_t *size) {
    struct stat info;
    FILE *f = stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? (errno = EISDIR, NULL) : fopen(path, "rb");
    if (!f) return NULL;
    errno = 0;
    long end = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *data = end >= 0 && end < INT32_MAX ? malloc((size_t)end + 1) : NULL;
    bool ok = data && fseek(f, 0, SEEK_SET) == 0 && fread(data, 1, (size_t)end, f) == (size_t)end;
    fclose(f);
    *size = ok ? (size_t)end : 0;
    if (ok) return data;
    free(data);
    return NULL;
}

/* ---- NumPy's format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html ---- */

static const struct {
    const char *descr;
    onnx_type type;
} of_numpy[] = { { "<f4", ONNX_FLOAT },  { "<f8", ONNX_DOUBLE }, { "<f2", ONNX_FLOAT16 }, { "<i8", ONNX_INT64 },
                 { "<i4", ONNX_INT32 },  { "<i2", ONNX_INT16 },  { "|i1", ONNX_INT8 },    { "|u1", ONNX_UINT8 },
                 { "<u2", ONNX_UINT16 }, { "<u4", ONNX_UINT32 }, { "<u8", ONNX_UINT64 },  { "|b1", ONNX_BOOL } };

static inline bool of_fail(char *error, const char *path, const char *why) {
    snprintf(error, ONNX_ERROR, "%.350s: %.400s", path, why);
    return false;
}

/* The dimensions after 'shape': (. */
static inline bool of_shape(const char *text, onnx_tensor *t) {
    const char *p = strstr(text, "'shape'");
    p = p ? strchr(p, '(') : NULL;
    t->elements = 1;
    for (p = p ? p + 1 : NULL; p && *p && *p != ')';) {
        char *end;
        long long d = strtoll(p, &end, 10);
        if (end == p || d < 0 || t->rank == ONNX_RANK || (d && t->elements > (UINT64_MAX >> 8) / (uint64_t)d))
            return false;
        t->dims[t->rank++] = d;
        t->elements *= (uint64_t)d;
        for (p = end; *p == ',' || *p == ' ';) p++;
    }
    return p && *p == ')';
}

/* `data` is the file, and what t->data points into. */
static inline bool of_parse_npy(const char *path, const uint8_t *data, size_t size, onnx_tensor *t, char *error) {
    char text[512];
    bool wide = size > 12 && data[6] >= 2;
    size_t start = wide ? 12 : 10, length = 0;
    if (size < 12 || memcmp(data, "\x93NUMPY", 6)) return of_fail(error, path, "this is not a .npy file");
    for (size_t i = start; i > 8; i--) length = length << 8 | data[i - 1];
    if (length > size - start || length >= sizeof text)
        return of_fail(error, path, "its header is truncated or too long");
    memcpy(text, data + start, length);
    text[length] = 0;
    *t = (onnx_tensor){ .type = ONNX_UNDEFINED };
    for (size_t i = 0; i < sizeof of_numpy / sizeof *of_numpy; i++)
        if (strstr(text, of_numpy[i].descr)) t->type = of_numpy[i].type;
    if (!t->type) return of_fail(error, path, "elements of this type or byte order are not supported");
    if (strstr(text, "'fortran_order': True")) return of_fail(error, path, "Fortran order is not supported");
    if (!of_shape(text, t)) return of_fail(error, path, "its shape is not valid");
    t->bytes = t->elements * onnx_type_bits(t->type) / 8;
    if (t->bytes != size - start - length) return of_fail(error, path, "its length does not match its shape");
    t->data = data + start + length;
    return true;
}

static inline bool of_write_npy(const char *path, const onnx_tensor *t, char *error) {
    char text[256], dims[160] = "";
    const char *descr = NULL;
    for (size_t i = 0; i < sizeof of_numpy / sizeof *of_numpy; i++)
        if (of_numpy[i].type == t->type) descr = of_numpy[i].descr;
    if (!descr && onnx_type_dtype(t->type) == GN_F32) descr = "<f4"; /* small floats, as they are held */
    if (!descr) return of_fail(error, path, "NumPy has no such elements");
    for (int i = 0; i < t->rank; i++) {
        size_t n = strlen(dims);
        snprintf(dims + n, sizeof dims - n, "%lld,", (long long)t->dims[i]);
    }
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims);
    int length = (10 + n + 1 + 63) / 64 * 64 - 10;
    FILE *f = fopen(path, "wb");
    if (!f) return of_fail(error, path, strerror(errno));
    fprintf(f, "\x93NUMPY%c%c%c%c%-*s\n", 1, 0, length & 255, length >> 8, length - 1, text);
    bool ok = !t->bytes || fwrite(t->data, 1, t->bytes, f) == t->bytes;
    return fclose(f) == 0 && ok ? true : of_fail(error, path, strerror(errno));
}

/* A tensor of a .npy or .pb file. *out_owner is freed by the caller when the tensor has been used. */
static inline bool of_load(const char *path, onnx_tensor *t, uint8_t **out_owner, char *error) {
    size_t size, n = strlen(path);
    uint8_t *data = of_read(path, &size);
    *out_owner = data;
    if (!data)
        return of_fail(error, path, errno ? strerror(errno) : "the file is larger than 2 GiB, or cannot be read");
    if (n > 4 && !strcmp(path + n - 4, ".npy")) return of_parse_npy(path, data, size, t, error);
    if (onnx_parse_tensor((onnx_span){ data, data + size }, t, error)) return true;
    char why[ONNX_ERROR];
    memcpy(why, error, sizeof why);
    return of_fail(error, path, why);
}
#endif
