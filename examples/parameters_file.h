/* Parameters of an example's network in a safetensors file. Include common.h, parameters.h, formats/safetensors.h and
 * tensors_file.h first. */
#ifndef PARAMETERS_FILE_H
#define PARAMETERS_FILE_H

/* An ex_parameters.load whose load_user is a safetensors: the tensor of that name, if it is f32 and has that shape. */
static inline bool ex_load_parameter(ex_parameters *p, const char *name, const gn_shape *shape, float *out) {
    const safetensors_tensor *t = safetensors_find(p->load_user, name);
    const char *why = !t ? "the file has no such tensor" : t->dtype != SAFETENSORS_F32 ? "it is not F32" : NULL;
    if (!why && (t->rank != shape->rank || memcmp(t->dims, shape->dims, t->rank * sizeof *t->dims) != 0))
        why = "it has another shape than the network's";
    if (why) snprintf(p->error, sizeof p->error, "%s: %s", name, why);
    else memcpy(out, t->data, (size_t)t->bytes);
    return !why;
}

/* After the network has been built once: all tensors of the file were used, and it has not become shorter. */
static inline bool ex_loaded(const ex_parameters *p) {
    char error[SAFETENSORS_ERROR] = "";
    size_t n = safetensors_count(p->load_user);
    if (p->error[0]) snprintf(error, sizeof error, "%s", p->error);
    else if (safetensors_intact(p->load_user, error) && n != (size_t)p->n)
        snprintf(error, sizeof error, "the file has %zu tensors, the network %d", n, p->n);
    if (error[0]) fprintf(stderr, "%s: %s\n", safetensors_path(p->load_user, 0), error);
    return !error[0];
}

/* The parameters, by their names. */
static inline void ex_values_add_parameters(ex_values *v, const ex_parameters *p) {
    for (int i = 0; i < p->n; i++) ex_values_add(v, p->name[i], p->value[i]);
}

static inline bool ex_save(const ex_parameters *p, const char *path) {
    static ex_values values; /* large: names */
    values.n = 0;
    ex_values_add_parameters(&values, p);
    return ex_values_write(&values, p->g, path);
}

#endif
