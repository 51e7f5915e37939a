/* One model for onnx_run: its inputs, a table of what it is, its results and time. */
#ifndef ONNX_MODEL_H
#define ONNX_MODEL_H

#include "onnx_files.h"

typedef struct om_job {
    const char *path, *out;    /* the model; folder of results, NULL: none are written */
    const char *const *inputs; /* NAME=FILE */
    int n_inputs;
    bool bench;
    uint64_t seed;
} om_job;

static inline const char *om_name(onnx_span s, char out[256]) {
    snprintf(out, 256, "%.*s", (int)(s.end - s.at > 255 ? 255 : s.end - s.at), s.at ? (const char *)s.at : "");
    return out;
}

static inline void om_shape(const char *name, const char *type, int rank, const int64_t *dims) {
    char text[200] = "";
    for (int i = 0; i < rank; i++) {
        size_t n = strlen(text);
        if (dims[i] < 0) snprintf(text + n, sizeof text - n, "%s?", i ? "," : "");
        else snprintf(text + n, sizeof text - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    }
    ex_row(name, "%s (%s)", type, text);
}

/* A number from 0 up to 1. */
static inline double om_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* An input that was not given: f32 and f64 between 0 and 1, others 0; sizes that are not known are 1. */
static inline bool om_invent(const onnx_slot *slot, uint64_t *seed, onnx_tensor *t, uint8_t **owner) {
    char name[256];
    *t = (onnx_tensor){ .type = slot->type, .rank = slot->rank, .elements = 1 };
    for (int i = 0; i < slot->rank; i++) t->elements *= (uint64_t)(t->dims[i] = slot->dims[i] < 0 ? 1 : slot->dims[i]);
    t->bytes = t->elements * (onnx_type_bits(t->type) + 7) / 8;
    bool known = slot->has_shape && oc_is_own(slot->type) && !slot->is_sequence && t->elements < (UINT64_C(1) << 31);
    *owner = known ? calloc(1, t->bytes + 1) : NULL;
    if (!*owner) {
        fprintf(stderr, "input '%s' is needed: --input %s=FILE\n", om_name(slot->name, name), name);
        return false;
    }
    for (uint64_t i = 0; i < t->elements; i++) {
        if (t->type == ONNX_FLOAT) ((float *)(void *)*owner)[i] = (float)om_random(seed);
        if (t->type == ONNX_DOUBLE) ((double *)(void *)*owner)[i] = om_random(seed);
    }
    t->data = *owner;
    return true;
}

/* Binds one input from its file, or invents it. */
static inline bool om_bind(onnx_session *s, const om_job *job, const onnx_slot *slot, uint64_t *seed, uint8_t **owner) {
    char error[ONNX_ERROR], name[256];
    onnx_tensor t;
    bool found = false;
    om_name(slot->name, name);
    size_t length = strlen(name);
    for (int k = 0; k < job->n_inputs; k++) {
        if (strncmp(job->inputs[k], name, length) || job->inputs[k][length] != '=') continue;
        found = true;
        if (!of_load(job->inputs[k] + length + 1, &t, owner, error)) return fprintf(stderr, "%s\n", error), false;
    }
    if (!found && slot->has_default) return true;
    if (!found && !om_invent(slot, seed, &t, owner)) return false;
    om_shape(name, onnx_type_name(t.type), t.rank, t.dims);
    return onnx_bind(s, name, &t, error) || (fprintf(stderr, "%s\n", error), false);
}

/* Every --input names an input of the model. */
static inline bool om_inputs_known(onnx_session *s, const om_job *job) {
    char name[256];
    for (int k = 0; k < job->n_inputs; k++) {
        bool known = false;
        for (int i = 0; i < onnx_inputs(s) && !known; i++) {
            onnx_slot slot;
            if (!onnx_input(s, i, &slot)) continue;
            om_name(slot.name, name);
            size_t n = strlen(name);
            known = !strncmp(job->inputs[k], name, n) && job->inputs[k][n] == '=';
        }
        if (!known) return fprintf(stderr, "--input %s: the model has no such input\n", job->inputs[k]), false;
    }
    return true;
}

static inline bool om_results(onnx_session *s, const om_job *job) {
    char error[ONNX_ERROR], name[256], path[4096];
    onnx_slot slot;
    onnx_tensor t;
    for (int i = 0; i < onnx_outputs(s); i++) {
        onnx_output(s, i, &slot);
        om_name(slot.name, name);
        for (int k = 0, n = onnx_result_count(s, i); k < n; k++) {
            if (!onnx_result(s, i, k, &t, error)) return fprintf(stderr, "%s\n", error), false;
            om_shape(name, onnx_type_name(t.type), t.rank, t.dims);
            for (char *c = name; *c; c++)
                if (*c == '/') *c = '_'; /* names become files of the folder */
            const char *form = onnx_result_is_map(s, i) ? k ? "%s/%s.values.npy" : "%s/%s.keys.npy"
                               : n > 1                  ? "%s/%s.%d.npy"
                                                        : "%s/%s.npy";
            snprintf(path, sizeof path, form, job->out ? job->out : "", name, k);
            if (job->out && !of_write_npy(path, &t, error)) return fprintf(stderr, "%s\n", error), false;
        }
    }
    return true;
}

/* Roles of ops that genie.h knows; [0] is none. */
#define OM_ROLE(name, number, text) text,
static const char *const om_roles[] = { GN_ROLES(OM_ROLE) };
#undef OM_ROLE
enum { OM_ROLES = sizeof om_roles / sizeof *om_roles };

/* Adds the items of a list as gn_explain has them, "conv, 3 x (conv, 2 x residual), norm again", to counts. What stands
   there again was counted before. */
static inline void om_count_items(const char *p, const char *end, int64_t counts[OM_ROLES]) {
    int64_t times = 1, around = 1;
    while (p < end) {
        char *digits;
        long n = strtol(p, &digits, 10);
        if (digits > p && !strncmp(digits, " x ", 3)) {
            times = n;
            p = digits + 3;
        }
        if (*p == '(') around = times, times = 1, p++;
        size_t length = strcspn(p, ",)"), most = (size_t)(end - p);
        if (length > most) length = most;
        for (int k = 1; k < OM_ROLES; k++)
            if (strlen(om_roles[k]) == length && !strncmp(p, om_roles[k], length)) counts[k] += around * times;
        p += length;
        if (p < end && *p == ')') around = 1, p++;
        times = 1;
        p += strspn(p, ", ");
    }
}

/* Adds "residual 16, positional embedding 1". */
static inline void om_count_within(const char *p, const char *end, int64_t counts[OM_ROLES]) {
    for (; p < end; p += strspn(p, "0123456789, ")) {
        size_t length = strcspn(p, "0123456789\n");
        for (int k = 1; k < OM_ROLES; k++)
            if (strlen(om_roles[k]) + 1 == length && !strncmp(p, om_roles[k], length - 1))
                counts[k] += strtol(p + length, NULL, 10);
        p += length;
        if (*p == '\n') return;
    }
}

/* Adds what the explanation of a step says of its parts: lines "DEVICE, TIME to TIME: items - reasons" and "within
   groups: role N, role N". */
static inline void om_count_roles(const char *text, int64_t counts[OM_ROLES]) {
    for (const char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        const char *colon = strstr(line, ": "), *to = strstr(line, " to "), *why = strstr(line, " - ");
        if (colon && to && to < colon && colon < next)
            om_count_items(colon + 2, why && why > colon && why < next ? why : next, counts);
        if (!strncmp(line, "within groups: ", 15)) om_count_within(line + 15, next, counts);
        next += *next == '\n';
    }
}

/* How often each role stands in the explanation of the step: "conv 53, residual 16". */
static inline void om_recognise(onnx_session *s, char *out, size_t cap) {
    char error[ONNX_ERROR], *text;
    int64_t counts[OM_ROLES] = { 0 };
    snprintf(out, cap, "nothing");
    if (!onnx_explain(s, &text, error)) return;
    om_count_roles(text, counts);
    for (size_t k = 1, at = 0; k < OM_ROLES; k++)
        if (counts[k] && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s %lld", at ? ", " : "", om_roles[k], (long long)counts[k]);
    for (const char *p = text, *begin = "\nencoder of ", *end; (p = strstr(p, begin)) && (end = strchr(p, ':'));
         p = end) {
        size_t used = strlen(out);
        p += strlen(begin);
        snprintf(out + used, cap - used, ", %.*s encoder", (int)(end - p), p);
    }
    free(text);
}

static inline void om_table(onnx_session *s, gn_ctx *g, const char *recognised, double first) {
    onnx_counts c = onnx_get_counts(s);
    gn_device_info device;
    gn_get_device(g, &device);
    ex_row("nodes", "%lld, %lld of them folded", (long long)c.nodes, (long long)c.folded);
    ex_row("parameters", "%.3f million", (double)c.parameters * 1e-6);
    ex_row("recognised", "%s", recognised);
    ex_row("arithmetic", "%.3f GFLOP in convolutions, MatMul and Gemm", c.flops * 1e-9);
    if (c.early_reads || c.on_host)
        ex_row("while built", "%lld values read, %lld nodes computed here", (long long)c.early_reads,
               (long long)c.on_host);
    ex_row("device", "%s", device.name);
    ex_row("first step", "%.1f ms", first * 1e3);
}

/* Steps for two seconds: the shortest and the median time, building included. */
static inline bool om_bench(onnx_session *s) {
    char error[ONNX_ERROR];
    double times[1000], end = ex_now() + 2;
    int n = 0;
    while (n < 1000 && (n < 3 || ex_now() < end)) {
        double begin = ex_now(), t;
        if (!onnx_build(s, error) || !onnx_run(s, error)) return fprintf(stderr, "%s\n", error), false;
        t = ex_now() - begin;
        int at = n++;
        for (; at && times[at - 1] > t; at--) times[at] = times[at - 1];
        times[at] = t;
    }
    ex_row("step", "%.3f ms at best, median %.3f ms, %d steps", times[0] * 1e3, times[n / 2] * 1e3, n);
    return true;
}

static inline bool om_run(gn_ctx *g, const om_job *job) {
    char error[ONNX_ERROR] = "";
    onnx *m = onnx_open(job->path, error);
    onnx_session *s = m ? onnx_session_open(m, g, stderr, error) : NULL;
    int n = s ? onnx_inputs(s) : 0;
    uint8_t **owners = calloc((size_t)n + 1, sizeof *owners);
    uint64_t seed = job->seed;
    bool ok = s && owners && om_inputs_known(s, job);
    if (!m) fprintf(stderr, "%s\n", error);
    for (int i = 0; ok && i < n; i++) {
        onnx_slot slot;
        ok = onnx_input(s, i, &slot) && om_bind(s, job, &slot, &seed, &owners[i]);
    }
    char recognised[256];
    double begin = ex_now();
    if (ok && !onnx_build(s, error)) ok = (fprintf(stderr, "%s\n", error), false);
    if (ok) om_recognise(s, recognised, sizeof recognised);
    if (ok && !onnx_run(s, error)) ok = (fprintf(stderr, "%s\n", error), false);
    if (ok) om_table(s, g, recognised, ex_now() - begin);
    if (ok && onnx_get_counts(s).odd_shapes)
        fprintf(stderr, "warning: %lld values have other shapes than the file declares, the first: %s\n",
                (long long)onnx_get_counts(s).odd_shapes, onnx_odd_shape(s));
    ok = ok && om_results(s, job) && (!job->bench || om_bench(s));
    onnx_session_close(s);
    for (int i = 0; owners && i < n; i++) free(owners[i]);
    free(owners);
    onnx_close(m);
    return ok;
}
#endif
