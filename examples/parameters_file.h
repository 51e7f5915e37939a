/* Parameters of an example's network in a safetensors file. Include common.h, parameters.h, formats/safetensors.h and
 * tensors_file.h first. */
#ifndef PARAMETERS_FILE_H
#define PARAMETERS_FILE_H

/* An ex_parameters.load whose load_user is a safetensors: the tensor of that name, if it is f32 and has that shape. */
static inline bool ex_load_parameter(ex_parameters *p, const char *name, const gn_shape *shape, float *out) {
    return ex_file_tensor(p->load_user, name, shape, out, p->error, sizeof p->error);
}

/* After the network has been built once: the file is this network's. */
static inline bool ex_loaded(const ex_parameters *p) { return ex_file_fits(p->load_user, (size_t)p->n, p->error); }

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
