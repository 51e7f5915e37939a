/* Parameters of a network that an example trains or loads: states, by name, with their moments of AdamW.
 * A parameter is made when it is asked for first, so a network is one function that is called for each step. Include
 * common.h first.
 *
 *     ex_parameters p = { .g = g, .random = random_begin(seed, 0) };
 *     gn_tensor y = ex_linear(&p, "fc", x, 64, 10);
 *     ex_train(&p, gn_mse_loss(y, target), 1e-3);      also tells the next gn_step */
#ifndef PARAMETERS_H
#define PARAMETERS_H

#include "random.h"

enum { EX_PARAMETERS = 256, EX_NAME = 48 };

typedef struct ex_parameters {
    gn_ctx *g;
    uint64_t random; /* first values are drawn from it */
    bool fixed;      /* they are not trained: no moments are made */
    /* Gives a first value instead; false, with `error` set, if there is none. NULL: they are drawn. */
    bool (*load)(struct ex_parameters *p, const char *name, const gn_shape *shape, float *out);
    void *load_user;
    int64_t steps; /* of ex_train */
    int n, at;     /* at: where the next one asked for probably is */
    gn_tensor value[EX_PARAMETERS], m[EX_PARAMETERS], v[EX_PARAMETERS];
    gn_shape shape[EX_PARAMETERS];
    char name[EX_PARAMETERS][EX_NAME];
    char error[256]; /* why a parameter could not be made; "" if all could */
} ex_parameters;

static inline size_t ex_elements(const gn_shape *s) {
    size_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= (size_t)s->dims[i];
    return n;
}

static inline gn_tensor ex_parameter_new(ex_parameters *p, const char *name, gn_shape shape, double mean,
                                         double deviation) {
    size_t n = ex_elements(&shape);
    float *first = p->n < EX_PARAMETERS && strlen(name) < EX_NAME ? malloc(n * sizeof *first + 1) : NULL;
    if (!first) {
        snprintf(p->error, sizeof p->error, "%.60s: too many parameters, a long name or no memory", name);
        return GN_NONE;
    }
    if (p->load && !p->load(p, name, &shape, first)) {
        free(first);
        return GN_NONE;
    }
    for (size_t i = 0; !p->load && i < n; i++)
        first[i] = (float)(mean + (deviation > 0 ? deviation * random_normal(&p->random) : 0));
    int i = p->n++;
    snprintf(p->name[i], EX_NAME, "%s", name);
    p->shape[i] = shape;
    p->value[i] = gn_state(p->g, GN_F32, shape, first, name);
    if (!p->fixed) p->m[i] = gn_state(p->g, GN_F32, shape, NULL, "moment 1");
    if (!p->fixed) p->v[i] = gn_state(p->g, GN_F32, shape, NULL, "moment 2");
    free(first);
    return p->value[i];
}

/* The parameter of that name; a new one is normal with this mean and deviation. */
static inline gn_tensor ex_parameter(ex_parameters *p, const char *name, gn_shape shape, double mean,
                                     double deviation) {
    for (int k = 0; k < p->n; k++) {
        int i = (p->at + k) % p->n;
        if (strcmp(p->name[i], name) != 0) continue;
        p->at = i + 1;
        return p->value[i];
    }
    return ex_parameter_new(p, name, shape, mean, deviation);
}

/* x (…,in) to (…,out); weights have variance 2 / in (He et al. 2015). */
static inline gn_tensor ex_linear(ex_parameters *p, const char *name, gn_tensor x, int64_t in, int64_t out) {
    char weight[2 * EX_NAME], bias[2 * EX_NAME];
    snprintf(weight, sizeof weight, "%.80s.weight", name);
    snprintf(bias, sizeof bias, "%.80s.bias", name);
    gn_tensor w = ex_parameter(p, weight, GN_SHAPE(in, out), 0, sqrt(2.0 / (double)in));
    return gn_linear(x, w, ex_parameter(p, bias, GN_SHAPE(out), 0, 0));
}

/* gn_conv; w is the shape of its weight, whose variance is `gain` squared times 2 / inputs of an output. */
static inline gn_tensor ex_conv(ex_parameters *p, const char *name, gn_tensor x, gn_shape w, double gain,
                                const gn_conv_desc *desc) {
    char weight[2 * EX_NAME], bias[2 * EX_NAME];
    snprintf(weight, sizeof weight, "%.80s.weight", name);
    snprintf(bias, sizeof bias, "%.80s.bias", name);
    double inputs = (double)ex_elements(&w) / (double)w.dims[0];
    gn_tensor filter = ex_parameter(p, weight, w, 0, gain * sqrt(2 / inputs));
    return gn_conv(x, filter, ex_parameter(p, bias, GN_SHAPE(w.dims[0]), 0, 0), desc);
}

/* Gain and bias of a norm of n elements. */
static inline void ex_gain_and_bias(ex_parameters *p, const char *name, int64_t n, gn_tensor *gain, gn_tensor *bias) {
    char text[2 * EX_NAME];
    snprintf(text, sizeof text, "%.80s.weight", name);
    *gain = ex_parameter(p, text, GN_SHAPE(n), 1, 0);
    snprintf(text, sizeof text, "%.80s.bias", name);
    *bias = ex_parameter(p, text, GN_SHAPE(n), 0, 0);
}

/* Gradients of the loss by all parameters, and their AdamW updates, which the next read or gn_step runs. */
static inline bool ex_train(ex_parameters *p, gn_tensor loss, double rate) {
    gn_tensor grads[EX_PARAMETERS];
    gn_adamw_desc adamw = { .lr = gn_scalar(p->g, GN_F32, rate),
                            .step = gn_scalar(p->g, GN_F32, (double)(p->steps + 1)) };
    if (p->error[0]) fprintf(stderr, "%s\n", p->error);
    if (p->error[0] || !ex_check(p->g, gn_grad(loss, p->value, p->n, grads), "gradients")) return false;
    p->steps++;
    return ex_check(p->g, gn_adamw(&adamw, p->value, grads, p->m, p->v, p->n), "AdamW");
}

#endif
