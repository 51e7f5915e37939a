/* Runs folders of ONNX's node tests for onnx_run: NAME/model.onnx, NAME/test_data_set_N/input_I.pb and output_I.pb, and
 * compares as ONNX's own runner does: type and shape equal, |got - wanted| <= 1e-7 + 1e-3 |wanted| (bf16: 2^-6). */
#ifndef ONNX_CHECK_H
#define ONNX_CHECK_H

#include "onnx_files.h"

typedef struct oc_value {
    onnx_tensor *tensors;
    int n; /* -1: nothing */
    bool is_sequence;
} oc_value;

/* Fractions of the tests that pass: of those whose types exist here, of all; those of expanded functions apart. */
typedef struct oc_tally {
    int passed[2], tests[2], typed_passed[2], typed[2];
} oc_tally;

typedef struct oc_test {
    const char *folder;
    gn_ctx *g;
    onnx *model;
    onnx_session *session;
    uint8_t *files[64];
    void *made[256];
    int n_files, n_made;
    bool foreign; /* it has a type that genie.h has not */
    char error[ONNX_ERROR];
} oc_test;

static inline bool oc_is_own(onnx_type t) { return onnx_type_dtype(t) && t <= ONNX_BFLOAT16; }

static inline void *oc_keep(oc_test *t, void *p) {
    if (p && t->n_made < 256) t->made[t->n_made++] = p;
    return p;
}

/* ---- values of .pb files: a TensorProto, a SequenceProto or an OptionalProto ---- */

static inline bool oc_tensor(oc_test *t, onnx_span bytes, onnx_tensor *out) {
    if (!onnx_parse_tensor(bytes, out, t->error)) return false;
    t->foreign |= !oc_is_own(out->type);
    if (!onnx_type_dtype(out->type)) {
        snprintf(t->error, sizeof t->error, "a value of %s", onnx_type_name(out->type));
        return false;
    }
    void *held = oc_keep(t, malloc(out->bytes + 1));
    if (!held || !onnx_decode(out, held, t->error)) return false;
    out->data = held;
    out->message = (onnx_span){ NULL, NULL };
    return true;
}

static inline bool oc_sequence(oc_test *t, onnx_span bytes, oc_value *out) {
    onnx_field f;
    int n = 0;
    onnx_span p = bytes;
    while (onnx_find(&p, 3, &f)) n++;
    out->tensors = oc_keep(t, calloc((size_t)n + 1, sizeof *out->tensors));
    out->is_sequence = true;
    for (out->n = 0; out->tensors && onnx_find(&bytes, 3, &f); out->n++)
        if (!oc_tensor(t, f.bytes, &out->tensors[out->n])) return false;
    return out->tensors != NULL;
}

static inline bool oc_one(oc_test *t, onnx_span bytes, oc_value *out) {
    out->tensors = oc_keep(t, calloc(1, sizeof *out->tensors));
    out->n = 1;
    return out->tensors && oc_tensor(t, bytes, out->tensors);
}

static inline bool oc_load(oc_test *t, const char *path, const onnx_slot *slot, oc_value *out) {
    size_t size;
    uint8_t *data = of_read(path, &size);
    *out = (oc_value){ NULL, -1, slot->is_sequence };
    if (!data || t->n_files == 64) {
        free(data);
        return of_fail(t->error, path, "it cannot be read");
    }
    t->files[t->n_files++] = data;
    onnx_span bytes = { data, data + size }, p = bytes;
    onnx_field f;
    if (!slot->is_optional) return slot->is_sequence ? oc_sequence(t, bytes, out) : oc_one(t, bytes, out);
    if (onnx_find(&p, 3, &f)) return oc_one(t, f.bytes, out);
    p = bytes;
    return onnx_find(&p, 5, &f) ? oc_sequence(t, f.bytes, out) : true;
}

/* ---- comparing ---- */

static inline double oc_half(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static inline double oc_element(const onnx_tensor *t, uint64_t i) {
    gn_dtype d = onnx_type_dtype(t->type);
    if (d == GN_F16) return oc_half(((const uint16_t *)t->data)[i]);
    if (d == GN_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
        float v;
        memcpy(&v, &bits, sizeof v);
        return (double)v;
    }
    return onnx__number(d, t->data, i);
}

static inline bool oc_equal(oc_test *t, int output, const onnx_tensor *got, const onnx_tensor *want) {
    double relative = want->type == ONNX_BFLOAT16 ? 0x1p-6 : 1e-3;
    bool same = got->rank == want->rank && !memcmp(got->dims, want->dims, (size_t)want->rank * sizeof *want->dims);
    if (got->type != want->type || !same) {
        snprintf(t->error, sizeof t->error, "output %d is %s of rank %d, expected %s of rank %d%s", output,
                 onnx_type_name(got->type), got->rank, onnx_type_name(want->type), want->rank,
                 same ? "" : ", another shape");
        return false;
    }
    for (uint64_t i = 0; i < want->elements; i++) {
        double a = oc_element(got, i), b = oc_element(want, i);
        if (a == b || (isnan(a) && isnan(b))) continue;
        if (isfinite(a) && isfinite(b) && fabs(a - b) <= 1e-7 + relative * fabs(b)) continue;
        snprintf(t->error, sizeof t->error, "output %d, element %llu: %.9g, expected %.9g", output,
                 (unsigned long long)i, a, b);
        return false;
    }
    return true;
}

static inline bool oc_compare(oc_test *t, int output, const oc_value *want) {
    int n = onnx_result_count(t->session, output);
    if (n != want->n) {
        snprintf(t->error, sizeof t->error, "output %d has %d elements, expected %d", output, n, want->n);
        return false;
    }
    for (int k = 0; k < n; k++) {
        onnx_tensor got;
        if (!onnx_result(t->session, output, k, &got, t->error) || !oc_equal(t, output, &got, &want->tensors[k]))
            return false;
    }
    return true;
}

/* ---- one test ---- */

static inline bool oc_data_set(oc_test *t, int set) {
    char path[4096], name[512];
    onnx_slot slot;
    oc_value value, want[64];
    int n = 0;
    for (int i = 0; onnx__slot_at(t->model->graph, 12, i, &slot) && i < 64; i++, n++) {
        t->foreign |= !oc_is_own(slot.type);
        snprintf(path, sizeof path, "%s/test_data_set_%d/output_%d.pb", t->folder, set, i);
        if (!oc_load(t, path, &slot, &want[i])) return false;
    }
    for (int i = 0; onnx__slot_at(t->model->graph, 11, i, &slot); i++) {
        t->foreign |= !oc_is_own(slot.type);
        snprintf(path, sizeof path, "%s/test_data_set_%d/input_%d.pb", t->folder, set, i);
        if (access(path, R_OK) != 0) continue; /* it has a default */
        if (!oc_load(t, path, &slot, &value)) return false;
        snprintf(name, sizeof name, "%.*s", (int)(slot.name.end - slot.name.at), (const char *)slot.name.at);
        if (t->session && !onnx_bind_sequence(t->session, name, value.tensors, value.n, t->error)) return false;
    }
    if (!t->session || !onnx_build(t->session, t->error) || !onnx_run(t->session, t->error)) return false;
    for (int i = 0; i < n; i++)
        if (!oc_compare(t, i, &want[i])) return false;
    return true;
}

static inline void oc_free(oc_test *t) {
    onnx_session_close(t->session);
    onnx_close(t->model);
    for (int i = 0; i < t->n_files; i++) free(t->files[i]);
    for (int i = 0; i < t->n_made; i++) free(t->made[i]);
    t->n_files = t->n_made = 0;
}

/* Runs a test and prints its line. */
static inline bool oc_run(gn_ctx *g, const char *folder, const char *name, oc_tally *tally) {
    char path[4096], refused[ONNX_ERROR] = "";
    struct stat st;
    oc_test t = { .folder = folder, .g = g };
    int sets = 0;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    t.model = onnx_open(path, t.error);
    if (t.model && !(t.session = onnx_session_open(t.model, g, NULL, t.error)))
        snprintf(refused, sizeof refused, "%s", t.error);
    bool ok = t.model != NULL;
    for (int set = 0; ok; set++, sets++) {
        snprintf(path, sizeof path, "%s/test_data_set_%d", folder, set);
        if (stat(path, &st) != 0) break;
        ok = oc_data_set(&t, set);
    }
    if (ok && !sets) ok = of_fail(t.error, folder, "nothing to compare: there is no test_data_set_0");
    int expanded = strstr(name, "_expanded") != NULL;
    tally->tests[expanded]++;
    tally->passed[expanded] += ok;
    tally->typed[expanded] += !t.foreign;
    tally->typed_passed[expanded] += ok && !t.foreign;
    if (ok) printf("ok %s\n", name);
    else printf("FAIL %s: %.400s\n", name, refused[0] ? refused : t.error);
    oc_free(&t);
    return ok;
}

static inline int oc_by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static inline void oc_say(const char *what, int passed, int tests) {
    printf("%s: %d of %d (%.1f %%)\n", what, passed, tests, tests ? 100.0 * passed / tests : 0);
}

/* A folder of one test, or of folders of tests. True when there are some and all passed. */
static inline bool oc_check(gn_ctx *g, const char *folder) {
    char path[4096];
    struct stat st;
    struct dirent **entries;
    oc_tally t = { { 0 }, { 0 }, { 0 }, { 0 } };
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    int n = stat(path, &st) == 0 ? 0 : scandir(folder, &entries, NULL, oc_by_name);
    if (n < 0) return fprintf(stderr, "%s: no such folder\n", folder), false;
    if (!n) return oc_run(g, folder, folder, &t);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/model.onnx", folder, entries[i]->d_name);
        bool is_test = stat(path, &st) == 0;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (is_test) oc_run(g, path, entries[i]->d_name, &t);
        free(entries[i]);
    }
    free(entries);
    if (!t.tests[0] && !t.tests[1]) return fprintf(stderr, "%s: no folder in it has a model.onnx\n", folder), false;
    oc_say("node tests whose types exist here", t.typed_passed[0], t.typed[0]);
    oc_say("all node tests", t.passed[0], t.tests[0]);
    oc_say("expanded functions whose types exist here", t.typed_passed[1], t.typed[1]);
    oc_say("all expanded functions", t.passed[1], t.tests[1]);
    return t.passed[0] == t.tests[0] && t.passed[1] == t.tests[1];
}
#endif
