/* Values of an example in a safetensors file. Include common.h and formats/safetensors.h first. */
#ifndef TENSORS_FILE_H
#define TENSORS_FILE_H

enum { EX_VALUES = 320, EX_VALUE_NAME = 64 };

/* What is to be written, by name. */
typedef struct ex_values {
    int n;
    gn_tensor value[EX_VALUES];
    char name[EX_VALUES][EX_VALUE_NAME];
} ex_values;

static inline void ex_values_add(ex_values *v, const char *name, gn_tensor value) {
    if (v->n == EX_VALUES) return;
    snprintf(v->name[v->n], EX_VALUE_NAME, "%s", name);
    v->value[v->n++] = value;
}

/* F32 and I32; another type has no name here. */
static inline bool ex_value_slot(gn_tensor t, gn_info *info, safetensors_tensor *out) {
    if (!ex_check(t.ctx, gn_describe(t, info), "values for a file")) return false;
    *out = (safetensors_tensor){ .dims = info->shape.dims,
                                 .data = malloc(info->bytes + 1),
                                 .bytes = info->bytes,
                                 .rank = (uint8_t)info->shape.rank,
                                 .dtype = info->dtype == GN_I32 ? SAFETENSORS_I32 : SAFETENSORS_F32 };
    if (out->data && (info->dtype == GN_I32 || info->dtype == GN_F32)) return true;
    fprintf(stderr, out->data ? "a file takes f32 and i32\n" : "out of memory\n");
    return false;
}

/* Reads all of them at once, which computes those that are not known yet, and writes the file. */
static inline bool ex_values_write(const ex_values *v, gn_ctx *g, const char *path) {
    static safetensors_tensor out[EX_VALUES];
    static gn_info info[EX_VALUES];
    void *to[EX_VALUES];
    size_t bytes[EX_VALUES];
    char error[SAFETENSORS_ERROR];
    bool ok = true;
    memset(out, 0, sizeof out);
    for (int i = 0; ok && i < v->n; i++) {
        ok = ex_value_slot(v->value[i], &info[i], &out[i]);
        out[i].name = v->name[i];
        to[i] = (void *)(uintptr_t)out[i].data;
        bytes[i] = info[i].bytes;
    }
    ok = ok && ex_check(g, gn_read_many(v->value, v->n, to, bytes), "values for a file");
    if (ok && !safetensors_write(path, out, (size_t)v->n, NULL, error)) {
        fprintf(stderr, "%s\n", error);
        ok = false;
    }
    for (int i = 0; i < v->n; i++) free((void *)(uintptr_t)out[i].data);
    return ok;
}

/* The elements of the f32 tensor of that name and shape; false, with `error` set unless it was, if there is none. */
static inline bool ex_file_tensor(const safetensors *file, const char *name, const gn_shape *shape, float *out,
                                  char *error, size_t cap) {
    const safetensors_tensor *t = safetensors_find(file, name);
    const char *why = !t ? "the file has no such tensor" : t->dtype != SAFETENSORS_F32 ? "it is not F32" : NULL;
    if (!why && (t->rank != shape->rank || memcmp(t->dims, shape->dims, t->rank * sizeof *t->dims) != 0))
        why = "it has another shape than the network's";
    if (why && !error[0]) snprintf(error, cap, "%s: %s", name, why);
    if (!why) memcpy(out, t->data, (size_t)t->bytes);
    return !why;
}

/* After the network of n tensors has been built once: `error` is empty, all tensors of the file were used, and it has
   not become shorter. Says otherwise what is wrong. */
static inline bool ex_file_fits(const safetensors *file, size_t n, const char *error) {
    char why[SAFETENSORS_ERROR] = "";
    if (error[0]) snprintf(why, sizeof why, "%s", error);
    else if (safetensors_intact(file, why) && safetensors_count(file) != n)
        snprintf(why, sizeof why, "the file has %zu tensors, the network %zu", safetensors_count(file), n);
    if (why[0]) fprintf(stderr, "%s: %s\n", safetensors_path(file, 0), why);
    return !why[0];
}

#endif
