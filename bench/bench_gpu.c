/* How near the GPU executor comes to what the GPU can do: memory-bound and compute-bound kernels, a small MLP, the
 * decoding of a model as large as GPT-2 124M, here and through a server over TLS on loopback, and the time to the first
 * answer.
 *
 *   ./build.sh bench && ./build/bench/bench_gpu             all rows as a table
 *   ./build/bench/bench_gpu --json                          the same, and one JSON object on the last line
 *   ./build/bench/bench_gpu --only softmax                  the rows whose names hold the word
 *   ./build/bench/bench_gpu --only products_ --verbose      products of many shapes, a line for each
 *
 * Inputs are drawn anew, outputs hold NaN before they are computed, and what is computed is compared with double
 * precision (the decoding: with the CPU executor); the error stands beside the time. Times are medians with the 95th
 * percentile after a warm-up; samples of products and attention, and of their ceiling, begin after a rest: at its limit
 * of power a GPU lowers its clock. Beside each row stands its ceiling, measured in the same run without Genie: a device
 * copy by the driver, a product by cuBLASLt, copies from and to pinned memory, a bare launch. Without a GPU the program
 * says why and ends with status 77.
 */
#ifndef GENIE_EXT
#define GENIE_EXT
#endif
#define _GNU_SOURCE
#include "examples/common.h"
#include "bench.h"

#include <dlfcn.h>
#include <sys/wait.h>

enum { MAX_SAMPLES = 4000, EX_SKIPPED = 77 };

static struct settings {
    const char *only, *device, *child, *url;
    bool json, quick, verbose;
} set = { .device = "cuda:0" };

static const char *program;

/* ---- rows: printed as they come, kept for the JSON line ---- */

typedef struct row {
    char name[40], unit[12], ceiling_is[48], note[128];
    double value, p95, error, bound; /* error: relative to the largest value; bound: of the error */
    double ceiling, target;          /* NAN: none */
    bool less;                       /* less is better */
} row;

static row rows[128];
static int n_rows, failures;

static row *add_row(const char *name, const char *unit, double target, bool less) {
    static row spare;
    row *r = n_rows < (int)(sizeof rows / sizeof *rows) ? &rows[n_rows++] : &spare;
    *r = (row){ .value = NAN, .p95 = NAN, .error = NAN, .bound = NAN, .ceiling = NAN, .target = target, .less = less };
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    return r;
}

static void print_row(const row *r) {
    printf("%-26s %9.4g %-8s p95 %-8.4g", r->name, r->value, r->unit, r->p95);
    if (isfinite(r->target))
        printf(" target %s %-6g %-6s", r->less ? "<=" : ">=", r->target,
               (r->less ? r->value <= r->target : r->value >= r->target) ? "met" : "MISSED");
    if (isfinite(r->ceiling)) printf(" ceiling %.4g (%s)", r->ceiling, r->ceiling_is);
    if (!isnan(r->bound)) printf(" error %.2g of %.2g", r->error, r->bound);
    printf("%s%s\n", r->note[0] ? "  " : "", r->note);
    fflush(stdout);
    if (!isnan(r->bound) && !(r->error <= r->bound)) {
        fprintf(stderr, "bench_gpu: %s computes wrong values\n", r->name);
        failures++;
    }
}

static void set_ceiling(row *r, double value, const char *what) {
    r->ceiling = value;
    snprintf(r->ceiling_is, sizeof r->ceiling_is, "%s", what);
}

static bool wanted(const char *name) { return !set.only || strstr(name, set.only) != NULL; }

static void failed(const char *what) {
    fprintf(stderr, "bench_gpu: %s\n", what);
    failures++;
}

/* ---- numbers ---- */

static double samples[MAX_SAMPLES];

static int repeats(int usual) { return set.quick ? (usual + 3) / 4 : usual; }
static int64_t sized(int64_t usual) { return set.quick ? usual / 8 : usual; }

static void *or_die(void *p) {
    if (!p) {
        fprintf(stderr, "bench_gpu: out of memory\n");
        exit(EX_FAILED);
    }
    return p;
}

static void fill_random(gn_dtype d, void *p, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) {
        float x = scale * draw();
        if (d == GN_F32) ((float *)p)[i] = x;
        else ((uint16_t *)p)[i] = gn_f32_to_bf16(x);
    }
}

static void *make_random(gn_dtype d, size_t n, float scale) {
    void *p = or_die(malloc(n * gn_dtype_bytes(d)));
    fill_random(d, p, n, scale);
    return p;
}

static double element(gn_dtype d, const void *p, size_t i) {
    return d == GN_F32 ? (double)((const float *)p)[i] : (double)gn_bf16_to_f32(((const uint16_t *)p)[i]);
}
static double eps_of(gn_dtype d) { return d == GN_F32 ? 0x1p-23 : 0x1p-8; }
static const char *word(gn_dtype d) { return gn_dtype_name(d); }

static gn_ctx *open_or_die(const char *device, const char *home) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device, .home = home });
    if (!ex_check(g, gn_status(g), device)) exit(EX_FAILED);
    return g;
}

static void ok_or_die(gn_ctx *g, gn_result r, const char *what) {
    if (!ex_check(g, r, what)) exit(EX_FAILED);
}

/* ---- ceilings: the driver and cuBLASLt, without Genie ---- */

typedef unsigned long long device_memory;
typedef void *handle;

#define DRIVER(X)                                                                        \
    X(cuInit, (unsigned))                                                                \
    X(cuDeviceGet, (int *, int))                                                         \
    X(cuDevicePrimaryCtxRetain, (handle *, int))                                         \
    X(cuCtxSetCurrent, (handle))                                                         \
    X(cuMemAlloc_v2, (device_memory *, size_t))                                          \
    X(cuMemFree_v2, (device_memory))                                                     \
    X(cuStreamCreate, (handle *, unsigned))                                              \
    X(cuStreamSynchronize, (handle))                                                     \
    X(cuMemcpyDtoDAsync_v2, (device_memory, device_memory, size_t, handle))              \
    X(cuMemcpyHtoDAsync_v2, (device_memory, const void *, size_t, handle))               \
    X(cuMemcpyDtoHAsync_v2, (void *, device_memory, size_t, handle))                     \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                       \
    X(cuMemFreeHost, (void *))                                                           \
    X(cuMemsetD8Async, (device_memory, unsigned char, size_t, handle))                   \
    X(cuDeviceGetCount, (int *))                                                         \
    X(cuCtxEnablePeerAccess, (handle, unsigned))                                         \
    X(cuMemcpyPeerAsync, (device_memory, handle, device_memory, handle, size_t, handle)) \
    X(cuStreamBeginCapture_v2, (handle, int))                                            \
    X(cuStreamEndCapture, (handle, handle *))                                            \
    X(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long))               \
    X(cuGraphLaunch, (handle, handle))                                                   \
    X(cuGraphExecDestroy, (handle))                                                      \
    X(cuGraphDestroy, (handle))

static struct {
#define GN__X(name, args) int(*name) args;
    DRIVER(GN__X)
#undef GN__X
    handle stream;
    bool ready;
} cu;

static bool find(void *library, const char *name, void *slot) {
    void *p = dlsym(library, name);
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

static bool open_driver(void) {
    const char *place = getenv("GENIE_LIBCUDA"), *colon = strchr(set.device, ':');
    void *library = dlopen(place ? place : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    handle context;
    int d;
    if (!library) return false;
#define GN__X(name, args) \
    if (!find(library, #name, &cu.name)) return false;
    DRIVER(GN__X)
#undef GN__X
    cu.ready = !cu.cuInit(0) && !cu.cuDeviceGet(&d, colon ? atoi(colon + 1) : 0) &&
               !cu.cuDevicePrimaryCtxRetain(&context, d) && !cu.cuCtxSetCurrent(context) &&
               !cu.cuStreamCreate(&cu.stream, 1);
    return cu.ready;
}

/* TB/s read and written by copies of the device's own memory to several places in turn: queued one by one or as a
   graph, for which the driver chooses another way at some sizes; the faster one. */
static double copy_speed(size_t bytes, int copies) {
    enum { PLACES = 8 };
    device_memory from = 0, to[PLACES] = { 0 };
    handle graph = NULL, run = NULL;
    double times[2][9];
    int n = copies < PLACES ? 1 : PLACES, made = 0;
    bool fits = cu.ready && !cu.cuMemAlloc_v2(&from, bytes);
    while (fits && made < n && !cu.cuMemAlloc_v2(&to[made], bytes)) made++;
    fits = made == n && !cu.cuStreamBeginCapture_v2(cu.stream, 0);
    for (int k = 0; k < copies && fits; k++) cu.cuMemcpyDtoDAsync_v2(to[k % n], from, bytes, cu.stream);
    fits = fits && !cu.cuStreamEndCapture(cu.stream, &graph) && !cu.cuGraphInstantiateWithFlags(&run, graph, 0);
    for (int i = -2; i < 18 && fits; i++) { /* the first two for the caches */
        double start = ex_now();
        if (i & 1) cu.cuGraphLaunch(run, cu.stream);
        else
            for (int k = 0; k < copies; k++) cu.cuMemcpyDtoDAsync_v2(to[k % n], from, bytes, cu.stream);
        cu.cuStreamSynchronize(cu.stream);
        times[i & 1][i < 0 ? 0 : i / 2] = (ex_now() - start) / copies;
    }
    if (run) cu.cuGraphExecDestroy(run);
    if (graph) cu.cuGraphDestroy(graph);
    for (int i = 0; i < made; i++) cu.cuMemFree_v2(to[i]);
    if (from) cu.cuMemFree_v2(from);
    return fits ? 2e-12 * (double)bytes / fmin(quantile(times[0], 9, 0.5), quantile(times[1], 9, 0.5)) : NAN;
}

static double copy_ceiling(void) {
    static double known;
    if (!(known > 0)) known = copy_speed((size_t)sized(1 << 30), 6);
    return known;
}

/* The same of copies that read and write `moved` bytes each: short ones, whose kernels take as long to begin and to end
   as others do, are slower. Many in a row, each of the same memory to another place, as the rows are timed. */
static double copy_of(double moved) { return copy_speed((size_t)(moved / 2), set.quick ? 8 : 100); }

/* Of a row whose ceiling is that: what it reaches beside a long copy. */
static void note_long_copy(row *r) {
    size_t n = strlen(r->note);
    snprintf(r->note + n, sizeof r->note - n, "; %.2f of a long copy", r->value / copy_ceiling());
}

/* Microseconds of a copy to the device and one back, both of pinned memory, with one wait. */
static double pinned_copies(size_t bytes) {
    device_memory d = 0;
    void *up = NULL, *down = NULL;
    double times[101];
    if (!cu.ready || cu.cuMemAlloc_v2(&d, bytes) || cu.cuMemHostAlloc(&up, bytes, 1) ||
        cu.cuMemHostAlloc(&down, bytes, 1))
        return NAN;
    memset(up, 1, bytes);
    for (int i = -20; i < 101; i++) {
        double start = ex_now();
        cu.cuMemcpyHtoDAsync_v2(d, up, bytes, cu.stream);
        cu.cuMemcpyDtoHAsync_v2(down, d, bytes, cu.stream);
        cu.cuStreamSynchronize(cu.stream);
        times[i < 0 ? 0 : i] = (ex_now() - start) * 1e6;
    }
    cu.cuMemFree_v2(d);
    cu.cuMemFreeHost(up);
    cu.cuMemFreeHost(down);
    return quantile(times, 101, 0.5);
}

/* cuBLASLt's product of two square matrices, by its own first choice; types f32 0, bf16 14; compute f32 68, TF32 77. */
typedef struct blas_choice {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_choice;

#define BLAS(X)                                                                                                  \
    X(cublasLtCreate, (handle *))                                                                                \
    X(cublasLtMatrixLayoutCreate, (handle *, int, uint64_t, uint64_t, int64_t))                                  \
    X(cublasLtMatmulDescCreate, (handle *, int, int))                                                            \
    X(cublasLtMatmulPreferenceCreate, (handle *))                                                                \
    X(cublasLtMatmulPreferenceSetAttribute, (handle, int, const void *, size_t))                                 \
    X(cublasLtMatmulAlgoGetHeuristic,                                                                            \
      (handle, handle, handle, handle, handle, handle, handle, int, blas_choice *, int *))                       \
    X(cublasLtMatmul, (handle, handle, const void *, device_memory, handle, device_memory, handle, const void *, \
                       device_memory, handle, device_memory, handle, const void *, device_memory, size_t, handle))

static struct {
#define GN__X(name, args) int(*name) args;
    BLAS(GN__X)
#undef GN__X
    handle lt;
    bool tried, ready;
} blas;

static bool open_blas(void) {
    static const char *const places[] = { "libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                          "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.12" };
    const char *place = getenv("GENIE_CUBLASLT");
    void *library = place ? dlopen(place, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (blas.tried) return blas.ready;
    blas.tried = true;
    for (int i = 0; i < 4 && !library; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("cuBLASLt is not found: products have no ceiling (GENIE_CUBLASLT=FILE names it)\n");
        return false;
    }
#define GN__X(name, args) \
    if (!find(library, #name, &blas.name)) return false;
    BLAS(GN__X)
#undef GN__X
    return blas.ready = blas.cublasLtCreate(&blas.lt) == 0;
}

/* Before a sample of what computes for long; one step that is not timed follows. */
static void rest(void) { usleep(60000); }

static double blas_ceiling(int64_t n, gn_dtype d, bool tf32) {
    handle desc, layout, wish;
    blas_choice choice;
    device_memory m[3] = { 0 }, work = 0;
    int found = 0;
    size_t room = 32 << 20, bytes = (size_t)(n * n) * gn_dtype_bytes(d);
    float one = 1, zero = 0;
    double times[9];
    if (!cu.ready || !open_blas()) return NAN;
    void *host = make_random(d, (size_t)(n * n), 1);
    bool ok =
        !blas.cublasLtMatmulDescCreate(&desc, tf32 ? 77 : 68, 0) &&
        !blas.cublasLtMatrixLayoutCreate(&layout, d == GN_F32 ? 0 : 14, (uint64_t)n, (uint64_t)n, n) &&
        !blas.cublasLtMatmulPreferenceCreate(&wish) &&
        !blas.cublasLtMatmulPreferenceSetAttribute(wish, 1, &room, sizeof room) &&
        !blas.cublasLtMatmulAlgoGetHeuristic(blas.lt, desc, layout, layout, layout, layout, wish, 1, &choice, &found) &&
        found > 0 && !cu.cuMemAlloc_v2(&work, room);
    for (int i = 0; i < 3 && ok; i++)
        ok = !cu.cuMemAlloc_v2(&m[i], bytes) && !cu.cuMemcpyHtoDAsync_v2(m[i], host, bytes, cu.stream);
    int each = d == GN_F32 && !tf32 ? 3 : 20;
    for (int i = -1; i < 9 && ok; i++) {
        double start = 0;
        rest();
        for (int k = -1; k < each; k++) {
            if (k == 0) {
                cu.cuStreamSynchronize(cu.stream);
                start = ex_now();
            }
            ok = ok && !blas.cublasLtMatmul(blas.lt, desc, &one, m[0], layout, m[1], layout, &zero, m[2], layout, m[2],
                                            layout, choice.algorithm, work, room, cu.stream);
        }
        cu.cuStreamSynchronize(cu.stream);
        times[i < 0 ? 0 : i] = (ex_now() - start) / each;
    }
    for (int i = 0; i < 3; i++)
        if (m[i]) cu.cuMemFree_v2(m[i]);
    if (work) cu.cuMemFree_v2(work);
    free(host);
    return ok ? 2e-12 * (double)n * (double)n * (double)n / quantile(times, 9, 0.5) : NAN;
}

/* ---- from device memory to device memory: the result becomes a state's value ---- */

typedef struct job job;
typedef gn_tensor (*build_fn)(gn_ctx *g, const job *j);

struct job {
    gn_dtype d;
    int64_t m, n, k; /* rows (m, n); products (m, k) by (k, n) */
    int n_in, each;  /* inputs; steps of one sample */
    bool rests; /* before each sample: a GPU that computes for long comes to its limit of power and lowers its clock */
    gn_shape in_shape[8], out_shape;
    float scale;
    void *host[8];
    gn_tensor in[8];
    void *out;      /* the result, after run_job */
    const void *of; /* the row of its kind */
    double *beside; /* NULL, or another side's readings, one after each of our samples */
};

static size_t count(const gn_shape *s) {
    size_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= (size_t)s->dims[i];
    return n;
}

static void job_open(gn_ctx *g, job *j) {
    for (int i = 0; i < j->n_in; i++) {
        j->host[i] = make_random(j->d, count(&j->in_shape[i]), j->scale);
        j->in[i] = gn_weight(g, j->d, j->in_shape[i], j->host[i], "input");
    }
    j->out = or_die(malloc(count(&j->out_shape) * gn_dtype_bytes(j->d)));
}

static void job_close(job *j) {
    for (int i = 0; i < j->n_in; i++) {
        gn_release(j->in[i]);
        free(j->host[i]);
    }
    free(j->out);
}

#include "torch_side.h"

/* Seconds a step in samples[]: their number. */
static int job_run(gn_ctx *g, job *j, build_fn build, int n) {
    size_t bytes = count(&j->out_shape) * gn_dtype_bytes(j->d);
    memset(j->out, 0xff, bytes);
    gn_tensor result = gn_state(g, j->d, j->out_shape, j->out, "result");
    for (int i = -3; i < n; i++) {
        if (j->rests) rest();
        double start = ex_now();
        for (int k = j->rests ? -1 : 0; k < (i < -1 ? 1 : j->each); k++) {
            if (k == 0 && j->rests) {
                ok_or_die(g, gn_sync(g), "sync");
                start = ex_now();
            }
            gn_assign(result, build(g, j));
            ok_or_die(g, gn_step(g), "step");
        }
        ok_or_die(g, gn_sync(g), "sync");
        samples[i < 0 ? 0 : i] = (ex_now() - start) / j->each;
        if (j->beside) j->beside[i < 0 ? 0 : i] = torch_time(j->each);
    }
    ok_or_die(g, gn_read(result, j->out, bytes), "result");
    gn_step(g);
    gn_release(result);
    return n;
}

/* ---- memory-bound rows ---- */

static gn_tensor build_elementwise(gn_ctx *g, const job *j) { /* gelu(x a + b) sigmoid(c) */
    gn_tensor t = gn_add(gn_mul(j->in[0], gn_scalar(g, j->d, 1.5)), gn_scalar(g, j->d, 0.25));
    return gn_mul(gn_gelu(t), gn_sigmoid(j->in[1]));
}
static gn_tensor build_sum(gn_ctx *g, const job *j) {
    (void)g;
    return gn_sum(j->in[0], GN_AXES(1), false);
}
static gn_tensor build_softmax(gn_ctx *g, const job *j) {
    (void)g;
    return gn_softmax(j->in[0], 1);
}
static gn_tensor build_layernorm(gn_ctx *g, const job *j) {
    (void)g;
    return gn_layernorm(j->in[0], j->in[1], j->in[2], 1e-5);
}

static gn_tensor build_rmsnorm(gn_ctx *g, const job *j) {
    (void)g;
    return gn_rmsnorm(j->in[0], j->in[1], 1e-5);
}
static gn_tensor build_masked_softmax(gn_ctx *g, const job *j) {
    (void)g;
    return gn_softmax(gn_add(gn_mul_c(j->in[0], 0.125), j->in[1]), 1);
}
static gn_tensor build_distance(gn_ctx *g, const job *j) {
    (void)g;
    return gn_sqrt(gn_mean(gn_square(gn_sub(j->in[0], j->in[1])), GN_AXES(1), false));
}

/* One row in double: x and c (n) to out (n, or 1 for sum). */
typedef void (*refer_fn)(const job *j, int64_t r, double *out);

static double at(const job *j, int input, int64_t i) { return element(j->d, j->host[input], (size_t)i); }

static void refer_elementwise(const job *j, int64_t r, double *out) {
    for (int64_t i = 0; i < j->n; i++) {
        double t = at(j, 0, r * j->n + i) * 1.5 + 0.25;
        out[i] = 0.5 * t * erfc(-t * 0.70710678118654752440) / (1 + exp(-at(j, 1, r * j->n + i)));
    }
}
static void refer_sum(const job *j, int64_t r, double *out) {
    out[0] = 0;
    for (int64_t i = 0; i < j->n; i++) out[0] += at(j, 0, r * j->n + i);
}
static void refer_softmax(const job *j, int64_t r, double *out) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < j->n; i++) most = fmax(most, at(j, 0, r * j->n + i));
    for (int64_t i = 0; i < j->n; i++) sum += out[i] = exp(at(j, 0, r * j->n + i) - most);
    for (int64_t i = 0; i < j->n; i++) out[i] /= sum;
}
static void refer_layernorm(const job *j, int64_t r, double *out) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < j->n; i++) mean += at(j, 0, r * j->n + i) / (double)j->n;
    for (int64_t i = 0; i < j->n; i++) square += pow(at(j, 0, r * j->n + i) - mean, 2) / (double)j->n;
    for (int64_t i = 0; i < j->n; i++)
        out[i] = (at(j, 0, r * j->n + i) - mean) / sqrt(square + 1e-5) * at(j, 1, i) + at(j, 2, i);
}

static void refer_rmsnorm(const job *j, int64_t r, double *out) {
    double square = 0;
    for (int64_t i = 0; i < j->n; i++) square += pow(at(j, 0, r * j->n + i), 2) / (double)j->n;
    for (int64_t i = 0; i < j->n; i++) out[i] = at(j, 0, r * j->n + i) / sqrt(square + 1e-5) * at(j, 1, i);
}
static void refer_masked_softmax(const job *j, int64_t r, double *out) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < j->n; i++) most = fmax(most, out[i] = at(j, 0, r * j->n + i) * 0.125 + at(j, 1, i));
    for (int64_t i = 0; i < j->n; i++) sum += out[i] = exp(out[i] - most);
    for (int64_t i = 0; i < j->n; i++) out[i] /= sum;
}
static void refer_distance(const job *j, int64_t r, double *out) {
    out[0] = 0;
    for (int64_t i = 0; i < j->n; i++) out[0] += pow(at(j, 0, r * j->n + i) - at(j, 1, r * j->n + i), 2);
    out[0] = sqrt(out[0] / (double)j->n);
}

static double rows_error(const job *j, refer_fn refer) {
    largest_error e = { 0 };
    double *out = or_die(malloc((size_t)j->n * sizeof *out));
    int64_t width = j->out_shape.rank == 1 ? 1 : j->n;
    for (int s = 0; s < 24; s++) {
        int64_t r = s * 7919 % j->m;
        refer(j, r, out);
        for (int64_t i = 0; i < width; i++) error_add(&e, element(j->d, j->out, (size_t)(r * width + i)), out[i]);
    }
    free(out);
    return error_of(&e);
}

/* apart: without fusion */
typedef struct memory_row {
    const char *name;
    gn_dtype d;
    build_fn build;
    refer_fn refer;
    int full_inputs, row_inputs;
    bool reduces;
    double target;
    bool apart;
} memory_row;

static const memory_row memory_rows[] = {
    { "elementwise", GN_F32, build_elementwise, refer_elementwise, 2, 0, false, 4.40, false },
    { "sum", GN_F32, build_sum, refer_sum, 1, 0, true, 4.3, false },
    { "sum", GN_BF16, build_sum, refer_sum, 1, 0, true, 3.8, false },
    { "softmax", GN_F32, build_softmax, refer_softmax, 1, 0, false, 3.9, false },
    { "softmax", GN_BF16, build_softmax, refer_softmax, 1, 0, false, 3.6, false },
    { "layernorm", GN_F32, build_layernorm, refer_layernorm, 1, 2, false, 4.1, false },
    { "layernorm", GN_BF16, build_layernorm, refer_layernorm, 1, 2, false, 3.7, false },
    { "rmsnorm", GN_F32, build_rmsnorm, refer_rmsnorm, 1, 1, false, 3.9, false },
    { "rmsnorm", GN_BF16, build_rmsnorm, refer_rmsnorm, 1, 1, false, 3.5, false },
    { "rmsnorm_unfused", GN_F32, build_rmsnorm, refer_rmsnorm, 1, 1, false, NAN, true },
    { "masked_softmax", GN_F32, build_masked_softmax, refer_masked_softmax, 1, 1, false, 3.9, false },
    { "masked_softmax", GN_BF16, build_masked_softmax, refer_masked_softmax, 1, 1, false, 3.4, false },
    { "distance", GN_F32, build_distance, refer_distance, 2, 0, true, 4.2, false },
    { "distance", GN_BF16, build_distance, refer_distance, 2, 0, true, 3.7, false },
};

static void bench_memory_row(gn_ctx *g, const memory_row *r) {
    char name[40];
    int64_t n = sized(8192);
    job j = { .d = r->d,
              .m = n,
              .n = n,
              .n_in = r->full_inputs + r->row_inputs,
              .each = 50,
              .scale = 2,
              .out_shape = r->reduces ? GN_SHAPE(n) : GN_SHAPE(n, n) };
    snprintf(name, sizeof name, "%s_%s", r->name, word(r->d));
    if (!wanted(name)) return;
    for (int i = 0; i < j.n_in; i++) j.in_shape[i] = i < r->full_inputs ? GN_SHAPE(n, n) : GN_SHAPE(n);
    if (r->apart) {
        setenv("GENIE_CUDA_FUSE", "0", 1);
        g = open_or_die(set.device, NULL);
    }
    job_open(g, &j);
    int k = job_run(g, &j, r->build, repeats(15));
    double bytes = (double)gn_dtype_bytes(r->d) * (double)(n * n) * (r->full_inputs + (r->reduces ? 0 : 1));
    row *out = add_row(name, "TB/s", r->target, false);
    out->value = 1e-12 * bytes / quantile(samples, k, 0.5);
    out->p95 = 1e-12 * bytes / quantile(samples, k, 0.95);
    out->error = rows_error(&j, r->refer);
    out->bound = eps_of(r->d) * (r->reduces ? 16 : 8);
    set_ceiling(out, copy_ceiling(), "device copy");
    snprintf(out->note, sizeof out->note, "%lld x %lld", (long long)n, (long long)n);
    print_row(out);
    job_close(&j);
    if (r->apart) {
        gn_close(g);
        unsetenv("GENIE_CUDA_FUSE");
    }
}

/* ---- one long row, as of a vocabulary's logits: by how many blocks it is computed decides ---- */

static gn_tensor build_cumsum(gn_ctx *g, const job *j) {
    (void)g;
    return gn_cumsum(j->in[0], 1);
}
static void refer_cumsum(const job *j, int64_t r, double *out) {
    double sum = 0;
    for (int64_t i = 0; i < j->n; i++) out[i] = sum += at(j, 0, r * j->n + i);
}

static void bench_one_row(gn_ctx *g, const char *name, build_fn build, refer_fn refer) {
    job j = { .d = GN_F32,
              .m = 1,
              .n = 50257,
              .n_in = 1,
              .each = 50,
              .scale = 2,
              .out_shape = GN_SHAPE(1, 50257),
              .in_shape = { GN_SHAPE(1, 50257) } };
    if (!wanted(name)) return;
    job_open(g, &j);
    int k = job_run(g, &j, build, repeats(15));
    row *out = add_row(name, "us", NAN, true);
    out->value = 1e6 * quantile(samples, k, 0.5);
    out->p95 = 1e6 * quantile(samples, k, 0.95);
    out->error = rows_error(&j, refer);
    out->bound = eps_of(GN_F32) * 16;
    snprintf(out->note, sizeof out->note, "1 x %lld", (long long)j.n);
    print_row(out);
    job_close(&j);
}

/* ---- compute-bound rows ---- */

static gn_tensor build_product(gn_ctx *g, const job *j) {
    (void)g;
    return gn_matmul(j->in[0], j->in[1]);
}

static double product_error(const job *j) {
    largest_error e = { 0 };
    for (int s = 0; s < 256; s++) {
        int64_t r = s * 7919 % j->m, c = s * 104729 % j->n;
        double sum = 0;
        for (int64_t i = 0; i < j->k; i++) sum += at(j, 0, r * j->k + i) * at(j, 1, i * j->n + c);
        error_add(&e, element(j->d, j->out, (size_t)(r * j->n + c)), sum);
    }
    return error_of(&e);
}

typedef struct product_row {
    const char *name;
    gn_dtype d;
    bool tf32;
    double target;
} product_row;

static const product_row product_rows[] = { { "matmul_bf16", GN_BF16, false, 780 },
                                            { "matmul_f32", GN_F32, false, 48 },
                                            { "matmul_tf32", GN_F32, true, 390 } };

/* In a context of its own: as chosen by measuring, by own kernels as the model says, and by cuBLASLt through Genie. */
static const struct {
    const char *suffix, *tune;
} product_ways[] = { { "", NULL }, { "_own", "0" }, { "_blas", "blas" } };

static const char *computed_by(const gn_stats *s) {
    return s->products_by_blas    ? "by cuBLASLt"
           : s->products_by_other ? "by the own kernel that measured best"
                                  : "by the own kernel that the model chooses";
}

static void bench_product(gn_ctx *g, const char *name, const product_row *p, double target, double *ceiling) {
    int64_t n = sized(4096);
    job j = { .d = p->d,
              .m = n,
              .n = n,
              .k = n,
              .n_in = 2,
              .each = p->d == GN_F32 && !p->tf32 ? 3 : 20,
              .rests = true,
              .scale = 1,
              .in_shape = { GN_SHAPE(n, n), GN_SHAPE(n, n) },
              .out_shape = GN_SHAPE(n, n) };
    gn_stats stats;
    job_open(g, &j);
    int k = job_run(g, &j, build_product, repeats(15));
    gn_get_stats(g, &stats);
    if (isnan(*ceiling)) *ceiling = blas_ceiling(n, p->d, p->tf32);
    double flops = 2e-12 * (double)n * (double)n * (double)n;
    row *out = add_row(name, "TFLOP/s", target, false);
    out->value = flops / quantile(samples, k, 0.5);
    out->p95 = flops / quantile(samples, k, 0.95);
    out->error = product_error(&j);
    out->bound = p->tf32 ? 0x1p-9 : p->d == GN_F32 ? 1e-5 : eps_of(p->d);
    set_ceiling(out, *ceiling, "cuBLASLt");
    snprintf(out->note, sizeof out->note, "%lld cubed, %s, measured in %.0f ms", (long long)n, computed_by(&stats),
             (double)stats.measuring_us * 1e-3);
    if (!stats.choices_lost) print_row(out);
    else {
        printf("%-26s skipped: cuBLASLt is not there\n", name);
        n_rows--;
    }
    job_close(&j);
}

/* TF32 and ways are asked for by the environment, and belong to a context's plans. */
static void bench_products(void) {
    for (size_t i = 0; i < sizeof product_rows / sizeof *product_rows; i++) {
        double ceiling = NAN;
        for (int k = 0; k < 3; k++) {
            char name[40];
            snprintf(name, sizeof name, "%s%s", product_rows[i].name, product_ways[k].suffix);
            if (!wanted(name)) continue;
            const char *said = getenv("GENIE_CUDA_TUNE");
            char before[40] = "";
            if (said) snprintf(before, sizeof before, "%s", said);
            if (product_ways[k].tune) setenv("GENIE_CUDA_TUNE", product_ways[k].tune, 1);
            if (product_rows[i].tf32) setenv("GENIE_TF32", "1", 1);
            gn_ctx *g = open_or_die(set.device, NULL);
            bench_product(g, name, &product_rows[i], k ? NAN : product_rows[i].target, &ceiling);
            gn_close(g);
            if (product_rows[i].tf32) unsetenv("GENIE_TF32");
            if (said) setenv("GENIE_CUDA_TUNE", before, 1);
            else unsetenv("GENIE_CUDA_TUNE");
        }
    }
}

static bool ask_child(const char *child, const char *url, double *numbers, int n); /* below */

/* ---- products of many shapes: the kernel that the model holds for the best beside cuBLASLt, as the executor times
   both to choose */

static const int many_shapes[][3] = {
    { 16, 64, 64 },       { 32, 128, 784 },     { 64, 256, 784 },     { 64, 10, 256 },     { 256, 256, 256 },
    { 512, 512, 512 },    { 16, 4096, 4096 },   { 64, 2048, 2048 },   { 128, 1024, 1024 }, { 512, 768, 768 },
    { 512, 2304, 768 },   { 512, 768, 3072 },   { 512, 3072, 768 },   { 700, 700, 700 },   { 1000, 1001, 1002 },
    { 1024, 1024, 1024 }, { 2048, 2048, 2048 }, { 3072, 3072, 3072 }, { 64, 8192, 8192 },
};
enum { MANY = sizeof many_shapes / sizeof *many_shapes };

typedef struct two_times {
    double own, blas;
} two_times;

/* "cuda:0: product MxNxK own 0: 5.1 us own 1: ... cuBLASLt 0: 6.0 us cuBLASLt 1: ...; ..." */
static void see_product(void *user, gn_log_level level, const char *text) {
    two_times *t = (two_times *)user;
    const char *at = strstr(text, ": product ") ? strstr(text, " own 0: ") : NULL;
    double us;
    (void)level;
    if (!at || sscanf(at, " own 0: %lf us", &t->own) != 1) return;
    while ((at = strstr(at + 1, " cuBLASLt ")))
        if (sscanf(at, " cuBLASLt %*u: %lf us", &us) == 1 && !(us >= t->blas)) t->blas = us;
}

/* One product: in a context that measures, then, for the error, by the model's kernel. */
static double many_one(gn_dtype d, const int shape[3], two_times *t) {
    int64_t m = shape[0], n = shape[1], k = shape[2];
    job j = { .d = d,
              .m = m,
              .n = n,
              .k = k,
              .n_in = 2,
              .each = 1,
              .scale = 1,
              .in_shape = { GN_SHAPE(m, k), GN_SHAPE(k, n) },
              .out_shape = GN_SHAPE(m, n) };
    double error = NAN;
    *t = (two_times){ NAN, NAN };
    for (int own = 0; own < 2; own++) {
        setenv("GENIE_CUDA_TUNE", own ? "0" : "1", 1);
        gn_ctx *g = gn_open(&(gn_desc){ .devices = set.device, .log = own ? NULL : see_product, .log_user = t });
        ok_or_die(g, gn_status(g), "context");
        job_open(g, &j);
        memset(j.out, 0xff, (size_t)(m * n) * gn_dtype_bytes(d));
        ok_or_die(g, gn_read(gn_matmul(j.in[0], j.in[1]), j.out, (size_t)(m * n) * gn_dtype_bytes(d)), "product");
        if (own) error = product_error(&j);
        job_close(&j);
        gn_close(g);
    }
    return error;
}

/* --child many_DTYPE: own and cuBLASLt's microseconds and the error of each shape. What is measured is set for the
   process. */
static int child_many(void) {
    bool tf32 = strcmp(set.child, "many_tf32") == 0;
    if (tf32) setenv("GENIE_TF32", "1", 1);
    setenv("GENIE_CUDA_TUNE", "1", 1);
    for (int i = 0; i < MANY; i++) {
        two_times t;
        double error = many_one(strcmp(set.child, "many_bf16") == 0 ? GN_BF16 : GN_F32, many_shapes[i], &t);
        printf("%.2f %.2f %.3g ", t.own, t.blas, error);
    }
    printf("\n");
    return EX_OK;
}

static void bench_many(const char *child, const char *name, double bound) {
    char folder[] = "/tmp/genie-bench-XXXXXX", before[600];
    const char *said = getenv("GENIE_CACHE");
    double got[3 * MANY], ratios[MANY], error = 0, worst_ratio = 0;
    int n = 0;
    if (!wanted(name)) return;
    if (said) snprintf(before, sizeof before, "%s", said);
    if (!mkdtemp(folder)) {
        failed(folder);
        return;
    }
    setenv("GENIE_CACHE", folder, 1); /* where nothing is chosen yet */
    bool ok = ask_child(child, NULL, got, 3 * MANY);
    if (said) setenv("GENIE_CACHE", before, 1);
    else unsetenv("GENIE_CACHE");
    nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (!ok) {
        failed("products of many shapes are not measured");
        return;
    }
    row *out = add_row(name, "x", 1.15, true);
    for (int i = 0; i < MANY; i++) {
        double own = got[3 * i], blas_us = got[3 * i + 1], ratio = own / blas_us;
        if (!(got[3 * i + 2] <= error)) error = got[3 * i + 2];
        if (set.verbose)
            printf("  %s %dx%dx%d own %.1f us cuBLASLt %.1f us ratio %.2f error %.2g\n", name, many_shapes[i][0],
                   many_shapes[i][1], many_shapes[i][2], own, blas_us, ratio, got[3 * i + 2]);
        if (isnan(ratio)) continue;
        ratios[n++] = ratio;
        if (ratio > worst_ratio)
            snprintf(out->note, sizeof out->note, "worst of %d shapes: %dx%dx%d, own %.1f us, cuBLASLt %.1f us", MANY,
                     many_shapes[i][0], many_shapes[i][1], many_shapes[i][2], own, blas_us);
        if (ratio > worst_ratio) worst_ratio = ratio;
    }
    out->error = error;
    out->bound = bound;
    if (n) out->value = worst_ratio;
    if (n) out->p95 = quantile(ratios, n, 0.95);
    if (n) print_row(out);
    else {
        printf("%-26s skipped: nothing was measured beside cuBLASLt\n", name);
        n_rows--;
    }
}

static gn_tensor build_attention(gn_ctx *g, const job *j) {
    gn_attention_desc d = { .causal = true };
    (void)g;
    return gn_attention(j->in[0], j->in[1], j->in[2], &d);
}

/* The same without gn_attention; a fourth input is added to the scores of all heads. */
static gn_tensor build_attention_written(gn_ctx *g, const job *j) {
    int64_t width = j->out_shape.dims[3];
    gn_tensor s = gn_mul_c(gn_matmul(j->in[0], gn_transpose(j->in[1], 2, 3)), 1 / sqrt((double)width));
    (void)g;
    return gn_matmul(gn_softmax(j->n_in > 3 ? gn_add(s, j->in[3]) : s, -1), j->in[2]);
}

static double attention_error(const job *j, int64_t heads, int64_t t, int64_t width, bool causal) {
    largest_error e = { 0 };
    double *p = or_die(malloc((size_t)t * sizeof *p));
    for (int s = 0; s < 8; s++) {
        int64_t h = s * 17 % heads, q = (s * 811 + 63) % t, from = h * t * width, last = causal ? q : t - 1;
        double most = -INFINITY, sum = 0;
        for (int64_t i = 0; i <= last; i++) {
            p[i] = 0;
            for (int64_t c = 0; c < width; c++) p[i] += at(j, 0, from + q * width + c) * at(j, 1, from + i * width + c);
            p[i] = p[i] / sqrt((double)width) + (j->n_in > 3 ? at(j, 3, q * t + i) : 0);
            most = fmax(most, p[i]);
        }
        for (int64_t i = 0; i <= last; i++) sum += p[i] = exp(p[i] - most);
        for (int64_t c = 0; c < width; c++) {
            double want = 0;
            for (int64_t i = 0; i <= last; i++) want += p[i] / sum * at(j, 2, from + i * width + c);
            error_add(&e, element(j->d, j->out, (size_t)(from + q * width + c)), want);
        }
    }
    free(p);
    return error_of(&e);
}

static void bench_attention(gn_ctx *g, const char *name, double target, gn_tensor (*build)(gn_ctx *, const job *),
                            bool causal, bool masked) {
    int64_t batch = 4, heads = sized(32), t = sized(4096), width = 128;
    job j = { .d = GN_BF16,
              .n_in = 3 + masked,
              .each = 8,
              .rests = true,
              .scale = 1.5f,
              .out_shape = GN_SHAPE(batch, heads, t, width) };
    if (!wanted(name)) return;
    for (int i = 0; i < 3; i++) j.in_shape[i] = j.out_shape;
    j.in_shape[3] = GN_SHAPE(t, t);
    job_open(g, &j);
    int k = job_run(g, &j, build, repeats(15));
    double flops = 1e-12 * 4 * (double)(batch * heads) * (double)t * (double)t * (double)width / (causal ? 2 : 1);
    row *out = add_row(name, "TFLOP/s", target, false);
    out->value = flops / quantile(samples, k, 0.5);
    out->p95 = flops / quantile(samples, k, 0.95);
    out->error = attention_error(&j, batch * heads, t, width, causal);
    out->bound = 2 * eps_of(GN_BF16);
    set_ceiling(out, blas_ceiling(sized(4096), GN_BF16, false), "cuBLASLt product");
    snprintf(out->note, sizeof out->note, "%s%s, b4 h%lld s%lld d128", causal ? "causal" : "every key",
             masked ? " and a mask" : "", (long long)heads, (long long)t);
    print_row(out);
    job_close(&j);
}

/* ---- one query of each of many sequences over pages of bf16, and of 8 bits ---- */

enum { CACHE_ROWS = 32, CACHE_KEYS = 2048, CACHE_PAGE = 64, CACHE_GROUPS = 8, CACHE_HEADS = 32, CACHE_WIDTH = 128 };

/* in: q, keys, values; with `format` keys and values are made bytes once, as states. */
static double cache_time(gn_ctx *g, gn_quant format, const gn_tensor in[3], void *out, size_t bytes) {
    int64_t pages = CACHE_ROWS * CACHE_KEYS / CACHE_PAGE;
    gn_shape pool = GN_SHAPE(pages, CACHE_GROUPS, CACHE_PAGE, CACHE_WIDTH), each = pool;
    gn_quantized kv[2] = { { .format = format }, { .format = format } };
    gn_tensor y = gn_state(g, GN_BF16, GN_SHAPE(CACHE_ROWS, CACHE_HEADS, CACHE_WIDTH), NULL, "result");
    each.dims[3] = 1;
    for (int i = 0; i < 2 && format; i++) {
        gn_quantize_desc d = { .format = format, .group = CACHE_WIDTH, .rows = 1 };
        gn_quantized q = gn_quantize(gn_reshape(in[1 + i], GN_SHAPE(-1, CACHE_WIDTH)), &d);
        kv[i].data = gn_state(g, format == GN_QUANT_INT8 ? GN_I8 : GN_U8, pool, NULL, "bytes");
        kv[i].scales = gn_state(g, GN_F32, each, NULL, "scales");
        gn_assign(kv[i].data, gn_cast(gn_reshape(q.data, pool), format == GN_QUANT_INT8 ? GN_I8 : GN_U8));
        gn_assign(kv[i].scales, gn_reshape(q.scales, each));
        ok_or_die(g, gn_step(g), "quantise");
    }
    int n = repeats(15), steps = 16;
    for (int i = -2; i < n; i++) {
        double start = ex_now();
        for (int k = 0; k < steps; k++) {
            gn_tensor of = gn_arange_i64(g, GN_I32, CACHE_ROWS, 0, 1),
                      at = gn_full_i64(g, GN_I32, GN_SHAPE(CACHE_ROWS), CACHE_KEYS - 1),
                      table = gn_reshape(gn_arange_i64(g, GN_I32, pages, 0, 1),
                                         GN_SHAPE(CACHE_ROWS, CACHE_KEYS / CACHE_PAGE));
            gn_assign(y, format ? gn_page_attention_quantized(in[0], kv[0], kv[1], of, at, table, NULL)
                                : gn_page_attention(in[0], in[1], in[2], of, at, table, NULL));
            ok_or_die(g, gn_step(g), "attention");
        }
        ok_or_die(g, gn_sync(g), "sync");
        samples[i < 0 ? 0 : i] = 1e6 * (ex_now() - start) / steps;
    }
    ok_or_die(g, gn_read(y, out, bytes), "result");
    gn_step(g);
    for (int i = 0; i < 2 && format; i++) gn_release(kv[i].data), gn_release(kv[i].scales);
    gn_release(y);
    return quantile(samples, n, 0.5);
}

static void bench_caches(gn_ctx *g) {
    static const struct {
        const char *name;
        gn_quant format;
        double bytes, bound; /* of an element; of the result's difference from bf16's, to its largest */
    } caches[] = { { "cache_bf16", GN_QUANT_NONE, 2, 0.01 },
                   { "cache_int8", GN_QUANT_INT8, 1 + 4. / CACHE_WIDTH, 0.05 },
                   { "cache_fp8", GN_QUANT_FP8_E4M3, 1 + 4. / CACHE_WIDTH, 0.2 } };
    size_t n = (size_t)CACHE_ROWS * CACHE_HEADS * CACHE_WIDTH, keys = (size_t)CACHE_ROWS * CACHE_KEYS * CACHE_GROUPS;
    if (!wanted("cache_bf16") && !wanted("cache_int8") && !wanted("cache_fp8")) return;
    void *host[3] = { make_random(GN_BF16, n, 1), make_random(GN_BF16, keys * CACHE_WIDTH, 1),
                      make_random(GN_BF16, keys * CACHE_WIDTH, 1) },
         *out[2] = { or_die(malloc(2 * n)), or_die(malloc(2 * n)) };
    gn_tensor in[3];
    for (int i = 0; i < 3; i++)
        in[i] = gn_weight(g, GN_BF16,
                          i ? GN_SHAPE(CACHE_ROWS * CACHE_KEYS / CACHE_PAGE, CACHE_GROUPS, CACHE_PAGE, CACHE_WIDTH)
                            : GN_SHAPE(CACHE_ROWS, CACHE_HEADS, CACHE_WIDTH),
                          host[i], "input");
    for (int k = 0; k < 3; k++) {
        largest_error e = { 0 };
        double us = cache_time(g, caches[k].format, in, out[k > 0], 2 * n);
        for (size_t i = 0; i < n; i++) error_add(&e, element(GN_BF16, out[k > 0], i), element(GN_BF16, out[0], i));
        row *r = add_row(caches[k].name, "us", NAN, true);
        r->value = us;
        r->error = error_of(&e);
        r->bound = caches[k].bound;
        set_ceiling(r, 1e-6 * 2 * (double)keys * CACHE_WIDTH * caches[k].bytes / copy_ceiling(), "read at copy speed");
        snprintf(r->note, sizeof r->note, "32 sequences of 2,048, %d heads over %d of %d; error beside bf16",
                 (int)CACHE_HEADS, (int)CACHE_GROUPS, (int)CACHE_WIDTH);
        print_row(r);
    }
    for (int i = 0; i < 3; i++) gn_release(in[i]), free(host[i]);
    for (int i = 0; i < 2; i++) free(out[i]);
}

/* ---- convolutions ---- */

#include "windows.h"

/* What follows a convolution, which is no kernel of its own: a SiLU, or a tensor like its result is added first. */
typedef enum window_end { ENDS_PLAIN, ENDS_SILU, ENDS_SKIP } window_end;

/* last: x and the result are held as (images, side, side, channels), as PyTorch's side holds them. */
typedef struct window_job {
    const window_row *row;
    bool last;
    window_end ends;
} window_job;

static const window_row window_rows[] = {
    { "conv_56_256", 32, 256, 56, 256, 3, 1, 1, 550 },       { "conv_56_64", 32, 64, 56, 64, 3, 1, 1, NAN },
    { "conv_56_128_half", 32, 128, 56, 128, 3, 2, 1, NAN },  { "conv_28_128", 32, 128, 28, 128, 3, 1, 1, NAN },
    { "conv_14_256", 32, 256, 14, 256, 3, 1, 1, NAN },       { "conv_14_512", 32, 512, 14, 512, 3, 1, 1, NAN },
    { "conv_7_512", 32, 512, 7, 512, 3, 1, 1, NAN },         { "conv_224_3", 32, 3, 224, 64, 7, 2, 1, NAN },
    { "conv_56_1x1", 32, 64, 56, 256, 1, 1, 1, NAN },        { "conv_14_1x1", 32, 1024, 14, 256, 1, 1, 1, NAN },
    { "conv_28_1x1_half", 32, 512, 28, 1024, 1, 2, 1, NAN }, { "conv_7_1x1", 32, 2048, 7, 512, 1, 1, 1, NAN },
    { "conv_56_1x1_down", 32, 256, 56, 64, 1, 1, 1, NAN },   { "conv_28_1x1", 32, 512, 28, 128, 1, 1, 1, NAN },
    { "conv_28_1x1_up", 32, 128, 28, 512, 1, 1, 1, NAN },    { "conv_14_1x1_up", 32, 256, 14, 1024, 1, 1, 1, NAN },
    { "conv_7_1x1_up", 32, 512, 7, 2048, 1, 1, 1, NAN },     { "conv_28_256_half", 32, 256, 28, 256, 3, 2, 1, NAN },
    { "conv_56_96_wide", 32, 96, 56, 384, 1, 1, 1, NAN },    { "conv_14_384_wide", 32, 384, 14, 1536, 1, 1, 1, NAN },
    { "conv_57_24", 32, 24, 57, 24, 3, 1, 1, NAN },          { "conv_57_40", 32, 40, 57, 40, 3, 1, 1, NAN },
    { "conv_depthwise_56", 32, 256, 56, 256, 3, 1, 256, 3 }, { "conv_depthwise_28", 32, 480, 28, 480, 5, 1, 480, 3 },
    { "conv_depthwise_14", 32, 384, 14, 384, 7, 1, 384, 3 }, { "conv_depthwise_7", 32, 768, 7, 768, 7, 1, 768, 3 },
};

static gn_tensor build_window(gn_ctx *g, const job *j) {
    const window_job *of = (const window_job *)j->of;
    const window_row *r = of->row;
    (void)g;
    gn_tensor x = of->last ? gn_permute(j->in[0], GN_AXES(0, 3, 1, 2)) : j->in[0],
              y = window_conv(r, x, j->in[1], GN_NONE, NULL, false);
    if (of->ends == ENDS_SKIP) y = gn_add(y, j->in[2]);
    if (of->ends) y = gn_silu(y);
    return of->last ? gn_permute(y, GN_AXES(0, 2, 3, 1)) : y;
}

/* Where an element of n squares of `side` places, c channels each, lies. */
static int64_t window_at(bool last, int64_t c, int64_t side, int64_t n, int64_t channel, int64_t y, int64_t x) {
    return last ? ((n * side + y) * side + x) * c + channel : ((n * c + channel) * side + y) * side + x;
}

static double window_error(const job *j) {
    const window_job *of = (const window_job *)j->of;
    const window_row *r = of->row;
    const int64_t c = r->channels / r->groups, side = r->side, k = r->kernel, to = window_side(r),
                  images = j->out_shape.dims[0];
    largest_error e = { 0 };
    for (int s = 0; s < 256; s++) {
        int64_t n = (images - s % images) % images, m = s * 7919 % r->filters, a = s * 97 % to, b = s * 193 % to,
                from = m / (r->filters / r->groups) * c;
        double sum = 0;
        for (int64_t i = 0; i < c * k * k; i++) {
            int64_t y = a * r->stride + i / k % k - k / 2, x = b * r->stride + i % k - k / 2;
            if (y < 0 || x < 0 || y >= side || x >= side) continue;
            sum += at(j, 0, window_at(of->last, r->channels, side, n, from + i / k / k, y, x)) *
                   at(j, 1, m * c * k * k + i);
        }
        if (of->ends == ENDS_SKIP) sum += at(j, 2, window_at(of->last, r->filters, to, n, m, a, b));
        error_add(&e, element(j->d, j->out, (size_t)window_at(of->last, r->filters, to, n, m, a, b)),
                  of->ends ? sum / (1 + exp(-sum)) : sum);
    }
    return error_of(&e);
}

static void bench_window(gn_ctx *g, const window_row *r, bool last, window_end ends) {
    static const char *const followed[] = { "", "_silu", "_skip" };
    const window_job of = { r, last, ends };
    int64_t images = sized(r->images), side = window_side(r);
    double theirs[9];
    char line[120], name[48];
    job j = { .d = GN_BF16,
              .n_in = ends == ENDS_SKIP ? 3 : 2,
              .each = 20,
              .rests = true,
              .scale = 1,
              .of = &of,
              .beside = ends ? NULL : theirs,
              .in_shape = { last ? GN_SHAPE(images, r->side, r->side, r->channels)
                                 : GN_SHAPE(images, r->channels, r->side, r->side),
                            GN_SHAPE(r->filters, r->channels / r->groups, r->kernel, r->kernel) },
              .out_shape = last ? GN_SHAPE(images, side, side, r->filters) : GN_SHAPE(images, r->filters, side, side) };
    snprintf(name, sizeof name, "%s%s%s", r->name, followed[ends], last ? "_last" : "");
    j.in_shape[2] = j.out_shape;
    if (!wanted(name)) return;
    job_open(g, &j);
    snprintf(line, sizeof line, "conv %d %d %d %d %d %d %d", (int)images, r->channels, r->side, r->filters, r->kernel,
             r->stride, r->groups);
    if (!ends) torch_ask(line);
    int k = job_run(g, &j, build_window, repeats(9));
    double results = (double)count(&j.out_shape), inputs = (double)count(&j.in_shape[0]);
    bool moves = r->groups == r->channels && r->groups > 1;
    double work =
        1e-12 * (moves ? 2 * (results + inputs) : 2 * results * r->channels / r->groups * r->kernel * r->kernel);
    const double same = moves ? copy_of(1e12 * work) : NAN;
    row *out = add_row(name, moves ? "TB/s" : "TFLOP/s",
                       ends                      ? NAN
                       : moves && r->kernel == 3 ? 0.8 * same
                                                 : r->target,
                       false);
    out->value = work / quantile(samples, k, 0.5);
    out->p95 = work / quantile(samples, k, 0.95);
    out->error = window_error(&j);
    out->bound = (ends ? 2 : 1) * eps_of(GN_BF16);
    if (moves) set_ceiling(out, same, "device copy of as many bytes");
    snprintf(out->note, sizeof out->note, "%.1f us, b%d, %d to %d", 1e6 * quantile(samples, k, 0.5), (int)images,
             r->channels, r->filters);
    if (moves) note_long_copy(out);
    if (!ends) torch_note(out, quantile(samples, k, 0.5), theirs, k);
    print_row(out);
    job_close(&j);
}

/* ---- matrices ---- */

static const struct solve_row {
    const char *name;
    int count, rows, sides;
} solve_rows[] = { { "solve_64", 256, 64, 8 },
                   { "solve_128", 64, 128, 8 },
                   { "solve_512", 1, 512, 8 },
                   { "solve_512_many", 32, 512, 8 },
                   { "solve_511_inverse", 1, 511, 511 } };

static gn_tensor build_solved(gn_ctx *g, const job *j) {
    (void)g;
    return gn_solve(j->in[0], j->in[1]);
}

/* What is left of a x - b. */
static double solved_error(const job *j, const struct solve_row *r) {
    largest_error e = { 0 };
    for (int s = 0; s < 256; s++) {
        size_t n = (size_t)r->rows, k = (size_t)r->sides, m = (size_t)(s % r->count), i = (size_t)s * 97 % n,
               c = (size_t)s % k;
        double sum = 0;
        for (size_t l = 0; l < n; l++)
            sum += at(j, 0, (int64_t)((m * n + i) * n + l)) * element(j->d, j->out, (m * n + l) * k + c);
        error_add(&e, sum, at(j, 1, (int64_t)((m * n + i) * k + c)));
    }
    return error_of(&e);
}

static void bench_solve(gn_ctx *g, const struct solve_row *r) {
    double theirs[9], n = r->rows;
    char line[80];
    job j = { .d = GN_F32,
              .n_in = 2,
              .each = 4,
              .scale = 1,
              .of = r,
              .beside = theirs,
              .in_shape = { GN_SHAPE(r->count, r->rows, r->rows), GN_SHAPE(r->count, r->rows, r->sides) },
              .out_shape = GN_SHAPE(r->count, r->rows, r->sides) };
    if (!wanted(r->name)) return;
    job_open(g, &j);
    snprintf(line, sizeof line, "solve %d %d %d", r->count, r->rows, r->sides);
    torch_ask(line);
    int k = job_run(g, &j, build_solved, repeats(9));
    row *out = add_row(r->name, "GFLOP/s", NAN, false);
    double work = 1e-9 * r->count * n * n * (2 * n / 3 + 2 * r->sides);
    out->value = work / quantile(samples, k, 0.5);
    out->p95 = work / quantile(samples, k, 0.95);
    out->error = solved_error(&j, r);
    out->bound = 1e-2; /* drawn matrices are far from singular, not far from badly conditioned */
    snprintf(out->note, sizeof out->note, "%.1f us, %d of %d rows for %d sides, in f64",
             1e6 * quantile(samples, k, 0.5), r->count, r->rows, r->sides);
    torch_note(out, quantile(samples, k, 0.5), theirs, k);
    print_row(out);
    job_close(&j);
}

/* The root of the mean squared error, relative to that of the values. */
static double network_error(const uint16_t *got, const uint16_t *want, size_t n) {
    double errors = 0, values = 0;
    for (size_t i = 0; i < n; i++) {
        double value = element(GN_BF16, want, i), error = element(GN_BF16, got, i) - value;
        errors += error * error;
        values += value * value;
    }
    return sqrt(errors / values);
}

typedef struct resnet {
    gn_tensor w[RESNET_CONVS], bias[RESNET_CONVS], head, images;
    void *host[RESNET_CONVS + 2], *zeros;
    int n, made, count; /* convs so far, those whose filters are on the device; images */
} resnet;

static gn_tensor resnet_conv(gn_ctx *g, void *of, gn_tensor x, window_row r, const gn_tensor *residual, bool relu) {
    resnet *m = (resnet *)of;
    gn_shape shape = GN_SHAPE(r.filters, r.channels, r.kernel, r.kernel);
    r.groups = 1;
    float scale = sqrtf(6.f / (float)(r.channels * r.kernel * r.kernel)) * (residual ? 0.3f : 1.f);
    if (!m->host[m->n]) m->host[m->n] = make_random(GN_BF16, count(&shape), scale);
    if (m->n == m->made) {
        m->made++;
        m->w[m->n] = gn_weight(g, GN_BF16, shape, m->host[m->n], "filters");
        m->bias[m->n] = gn_weight(g, GN_BF16, GN_SHAPE(r.filters), m->zeros, "bias");
    }
    m->n++;
    return window_conv(&r, x, m->w[m->n - 1], m->bias[m->n - 1], residual, relu);
}

static gn_tensor resnet_logits(gn_ctx *g, resnet *m) {
    m->n = 0;
    return gn_matmul(resnet_means(g, m, m->images, m->count, resnet_conv), m->head);
}

static void resnet_open(gn_ctx *g, resnet *m) {
    m->images = gn_state(g, GN_BF16, GN_SHAPE(m->count, 3, 224, 224), m->host[RESNET_CONVS], "images");
    m->head = gn_weight(g, GN_BF16, GN_SHAPE(2048, 1000), m->host[RESNET_CONVS + 1], "head");
}

static void resnet_close(resnet *m) {
    gn_release(m->images);
    gn_release(m->head);
    for (int i = 0; i < RESNET_CONVS; i++) {
        gn_release(m->w[i]);
        gn_release(m->bias[i]);
    }
}

/* Of the first image's logits, beside those that the CPU executor computes from the same numbers: the root of the mean
   squared error, relative to that of the logits. Both round to bf16 after each of 53 convolutions. */
static double resnet_error(const resnet *m, const uint16_t *logits) {
    enum { LOGITS = 1000 };
    static uint16_t want[LOGITS];
    gn_ctx *g = open_or_die("cpu", NULL);
    resnet one = { .zeros = m->zeros, .count = 1 };
    memcpy(one.host, m->host, sizeof one.host);
    resnet_open(g, &one);
    ok_or_die(g, gn_read(resnet_logits(g, &one), want, sizeof want), "logits on the CPU");
    resnet_close(&one);
    gn_close(g);
    return network_error(logits, want, LOGITS);
}

static void bench_resnet(gn_ctx *g) {
    resnet m = { .count = 32 };
    enum { EACH = 20 };
    static uint16_t out_logits[32 * 1000];
    if (!wanted("resnet50") || set.quick) return;
    m.zeros = or_die(calloc(2048, 2));
    m.host[RESNET_CONVS] = make_random(GN_BF16, (size_t)m.count * 3 * 224 * 224, 1);
    m.host[RESNET_CONVS + 1] = make_random(GN_BF16, 2048 * 1000, 0.05f);
    resnet_open(g, &m);
    gn_tensor logits = gn_state(g, GN_BF16, GN_SHAPE(m.count, 1000), NULL, "logits");
    int n = repeats(9);
    for (int i = -3; i < n; i++) {
        double start = 0;
        rest();
        for (int k = -1; k < (i < -1 ? 1 : EACH); k++) {
            if (k == 0) {
                ok_or_die(g, gn_sync(g), "sync");
                start = ex_now();
            }
            gn_assign(logits, resnet_logits(g, &m));
            ok_or_die(g, gn_step(g), "step");
        }
        ok_or_die(g, gn_sync(g), "sync");
        samples[i < 0 ? 0 : i] = (ex_now() - start) / EACH;
    }
    ok_or_die(g, gn_read(logits, out_logits, sizeof out_logits), "logits");
    gn_step(g);
    row *out = add_row("resnet50", "images/s", 20000, false);
    out->value = m.count / quantile(samples, n, 0.5);
    out->p95 = m.count / quantile(samples, n, 0.95);
    out->error = resnet_error(&m, out_logits);
    out->bound = 0.05;
    snprintf(out->note, sizeof out->note, "bf16, batch %d, %.2f ms", m.count, 1e3 * quantile(samples, n, 0.5));
    print_row(out);
    gn_release(logits);
    resnet_close(&m);
    for (int i = 0; i < RESNET_CONVS + 2; i++) free(m.host[i]);
    free(m.zeros);
}

#include "picture_rows.h"
#include "network_rows.h"

/* ---- the MLP, on the device and from host memory to host memory ---- */

enum { MLP_ROWS = 64, MLP_DIM = 2048, MLP_LAYERS = 3 };

static gn_tensor mlp(const job *j, gn_tensor h) { /* in: x, then weight and bias of each layer */
    for (int i = 0; i < MLP_LAYERS; i++) h = gn_relu(gn_linear(h, j->in[1 + 2 * i], j->in[2 + 2 * i]));
    return h;
}
static gn_tensor build_mlp(gn_ctx *g, const job *j) {
    (void)g;
    return mlp(j, j->in[0]);
}

static double mlp_error(const job *j, const void *x, const void *out) {
    static double h[2][MLP_DIM];
    largest_error e = { 0 };
    for (int s = 0; s < 3; s++) {
        int r = s * 31 % MLP_ROWS;
        for (int i = 0; i < MLP_DIM; i++) h[0][i] = element(j->d, x, (size_t)(r * MLP_DIM + i));
        for (int l = 0; l < MLP_LAYERS; l++) {
            for (int i = 0; i < MLP_DIM; i++) h[1][i] = at(j, 2 + 2 * l, i);
            for (int k = 0; k < MLP_DIM; k++)
                for (int i = 0; i < MLP_DIM; i++) h[1][i] += h[0][k] * at(j, 1 + 2 * l, k * MLP_DIM + i);
            for (int i = 0; i < MLP_DIM; i++) h[0][i] = fmax(h[1][i], 0);
        }
        for (int i = 0; i < MLP_DIM; i++) error_add(&e, element(j->d, out, (size_t)(r * MLP_DIM + i)), h[0][i]);
    }
    return error_of(&e);
}

/* Host in and out: buffers of gn_host_alloc, one read a step, other numbers in each. */
static int mlp_host(gn_ctx *g, const job *j, void *x, void *y, int n) {
    size_t bytes = MLP_ROWS * MLP_DIM * gn_dtype_bytes(j->d);
    for (int i = -20; i < n; i++) {
        fill_random(j->d, x, MLP_ROWS * MLP_DIM, 1);
        memset(y, 0xff, bytes);
        double start = ex_now();
        gn_result r = gn_read(mlp(j, gn_data(g, j->d, GN_SHAPE(MLP_ROWS, MLP_DIM), x)), y, bytes);
        samples[i < 0 ? 0 : i] = (ex_now() - start) * 1e6;
        ok_or_die(g, r, "mlp");
        gn_step(g);
    }
    return n;
}

static void bench_mlp(gn_ctx *g, gn_dtype d, double device_target, double host_target) {
    job j = { .d = d,
              .n_in = 1 + 2 * MLP_LAYERS,
              .each = 50,
              .scale = 0.05f,
              .in_shape = { GN_SHAPE(MLP_ROWS, MLP_DIM) },
              .out_shape = GN_SHAPE(MLP_ROWS, MLP_DIM) };
    char name[2][40];
    size_t bytes = MLP_ROWS * MLP_DIM * gn_dtype_bytes(d);
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "mlp_%s_%s", i ? "host" : "device", word(d));
    if (!wanted(name[0]) && !wanted(name[1])) return;
    for (int i = 1; i < j.n_in; i++) j.in_shape[i] = i % 2 ? GN_SHAPE(MLP_DIM, MLP_DIM) : GN_SHAPE(MLP_DIM);
    job_open(g, &j);
    int k = job_run(g, &j, build_mlp, repeats(25));
    double weights_us = 1e-6 * MLP_LAYERS * MLP_DIM * MLP_DIM * (double)gn_dtype_bytes(d) / copy_ceiling(),
           copies = pinned_copies(bytes);
    row *out = add_row(name[0], "us", device_target, true);
    out->value = 1e6 * quantile(samples, k, 0.5);
    out->p95 = 1e6 * quantile(samples, k, 0.95);
    out->error = mlp_error(&j, j.host[0], j.out);
    out->bound = d == GN_F32 ? 1e-5 : 4 * eps_of(d);
    set_ceiling(out, weights_us, "weights read at copy speed");
    print_row(out);
    double device_us = out->value;
    void *x = or_die(gn_host_alloc(g, bytes)), *y = or_die(gn_host_alloc(g, bytes));
    k = mlp_host(g, &j, x, y, repeats(400));
    out = add_row(name[1], "us", host_target, true);
    out->value = quantile(samples, k, 0.5);
    out->p95 = quantile(samples, k, 0.95);
    out->error = mlp_error(&j, x, y);
    out->bound = d == GN_F32 ? 1e-5 : 4 * eps_of(d);
    set_ceiling(out, copies + device_us, "pinned copies and the row above");
    print_row(out);
    gn_host_free(g, x);
    gn_host_free(g, y);
    job_close(&j);
}

/* ---- uploads, kernels and downloads of steps that follow each other ---- */

enum { FLOW_SIDE = 8192, FLOW_STEPS = 24, FLOW_BUFFERS = 3 };

typedef struct flow {
    int64_t rows;
    size_t bytes;
    bool plain;
    gn_ctx *g;
    gn_tensor w, here;
    uint16_t *in[FLOW_BUFFERS], *out[FLOW_BUFFERS], *weight;
} flow;

static gn_tensor flow_products(const flow *f, gn_tensor x) { return gn_matmul(gn_matmul(x, f->w), f->w); }

/* Seconds of a step: 'u' uploads alone, 'k' kernels alone, 'd' downloads alone, 'a' all three, read while the next step
   runs. */
static double flow_time(flow *f, char what, int steps) {
    uint64_t ticket[FLOW_BUFFERS] = { 0 };
    gn_shape shape = GN_SHAPE(f->rows, FLOW_SIDE);
    double start = 0;
    for (int k = -2; k < steps; k++) {
        int at = (k + 2) % FLOW_BUFFERS;
        gn_tensor y = what == 'k' || what == 'd' ? f->here : gn_data(f->g, GN_BF16, shape, f->in[at]);
        if (k == 0) {
            ok_or_die(f->g, gn_sync(f->g), "overlap");
            start = ex_now();
        }
        if (what == 'k' || what == 'a') y = flow_products(f, y);
        if (what == 'u' || what == 'k') y = gn_slice(y, 0, 0, 1, 1);
        size_t bytes = what == 'u' || what == 'k' ? FLOW_SIDE * 2 : f->bytes;
        ok_or_die(f->g, gn_wait(f->g, ticket[at]), "overlap");
        ok_or_die(f->g, gn_read_later(&y, 1, (void *[1]){ f->out[at] }, &bytes, &ticket[at]), "overlap");
        ok_or_die(f->g, gn_step(f->g), "overlap");
    }
    ok_or_die(f->g, gn_sync(f->g), "overlap");
    return (ex_now() - start) / steps;
}

/* Of the last results, one row each. */
static double flow_error(const flow *f) {
    largest_error e = { 0 };
    double *h = or_die(malloc(2 * FLOW_SIDE * sizeof *h));
    for (int b = 0; b < FLOW_BUFFERS; b++) {
        size_t first = (size_t)(f->rows - 1 - b * 3) * FLOW_SIDE;
        for (int i = 0; i < FLOW_SIDE; i++) h[i] = element(GN_BF16, f->in[b], first + (size_t)i);
        for (int layer = 0; layer < 2; layer++) {
            double *from = h + layer * FLOW_SIDE, *to = h + (1 - layer) * FLOW_SIDE;
            for (int i = 0; i < FLOW_SIDE; i++) to[i] = 0;
            for (size_t k = 0; k < FLOW_SIDE; k++)
                for (size_t i = 0; i < FLOW_SIDE; i++)
                    to[i] += from[k] * element(GN_BF16, f->weight, k * FLOW_SIDE + i);
        }
        for (int i = 0; i < FLOW_SIDE; i++) error_add(&e, element(GN_BF16, f->out[b], first + (size_t)i), h[i]);
    }
    free(h);
    return error_of(&e);
}

static void flow_open(flow *f, uint16_t *weight, bool plain) {
    *f = (flow){ .rows = sized(16384), .plain = plain, .weight = weight, .g = open_or_die(set.device, NULL) };
    f->bytes = (size_t)f->rows * FLOW_SIDE * 2;
    f->w = gn_weight(f->g, GN_BF16, GN_SHAPE(FLOW_SIDE, FLOW_SIDE), weight, "w");
    for (int b = 0; b < FLOW_BUFFERS; b++) {
        f->in[b] = or_die(plain ? malloc(f->bytes) : gn_host_alloc(f->g, f->bytes));
        f->out[b] = or_die(plain ? malloc(f->bytes) : gn_host_alloc(f->g, f->bytes));
        fill_random(GN_BF16, f->in[b], f->bytes / 2, 1);
        memset(f->out[b], 0xff, f->bytes);
    }
    f->here = gn_state(f->g, GN_BF16, GN_SHAPE(f->rows, FLOW_SIDE), f->in[0], "x");
}

static void flow_close(flow *f) {
    for (int b = 0; b < FLOW_BUFFERS; b++) {
        f->plain ? free(f->in[b]) : gn_host_free(f->g, f->in[b]);
        f->plain ? free(f->out[b]) : gn_host_free(f->g, f->out[b]);
    }
    gn_close(f->g);
}

/* Buffers of gn_host_alloc, or of malloc; off: GENIE_CUDA_OVERLAP=0. */
static void bench_flow(uint16_t *weight, bool plain) {
    double part[3], whole[2], error[2], longest = 0;
    gn_stats stats[2];
    for (int off = 0; off < 2; off++) {
        flow f;
        if (off) setenv("GENIE_CUDA_OVERLAP", "0", 1);
        flow_open(&f, weight, plain);
        for (int i = 0; i < 3 && !off; i++) {
            part[i] = flow_time(&f, "ukd"[i], FLOW_STEPS);
            longest = part[i] > longest ? part[i] : longest;
        }
        whole[off] = flow_time(&f, 'a', FLOW_STEPS);
        error[off] = flow_error(&f);
        gn_get_stats(f.g, &stats[off]);
        flow_close(&f);
        if (off) unsetenv("GENIE_CUDA_OVERLAP");
    }
    for (int off = 0; off < 2; off++) {
        char name[40];
        snprintf(name, sizeof name, "overlap%s%s", plain ? "_plain" : "", off ? "_off" : "");
        /* plain: both ways' copies share the host's memory */
        row *out = add_row(name, "x", off ? NAN : plain ? 1.5 : 1.25, true);
        out->value = whole[off] / longest;
        out->error = error[off];
        out->bound = 4 * eps_of(GN_BF16);
        set_ceiling(out, 1, "the longest part");
        snprintf(out->note, sizeof out->note,
                 "%.2f ms a step; up %.2f, kernels %.2f, down %.2f ms; %llu copies waited for", 1e3 * whole[off],
                 1e3 * part[0], 1e3 * part[1], 1e3 * part[2], (unsigned long long)stats[off].copies_waited);
        print_row(out);
    }
}

static void bench_overlap(void) {
    uint16_t *weight = NULL;
    for (int plain = 0; plain < 2; plain++) {
        if (!wanted(plain ? "overlap_plain" : "overlap")) continue;
        if (!weight) weight = make_random(GN_BF16, (size_t)FLOW_SIDE * FLOW_SIDE, (float)sqrt(3.0 / FLOW_SIDE));
        bench_flow(weight, plain);
    }
    free(weight);
}

/* ---- what Genie's whole path costs beside a bare launch of the same kernels ---- */

static void bench_overhead(gn_ctx *g) {
    enum { N = 1024, TIMES = 300 };
    static double bare[TIMES];
    job j = { .d = GN_F32,
              .m = N,
              .n = N,
              .k = N,
              .n_in = 2,
              .each = 1,
              .scale = 1,
              .in_shape = { GN_SHAPE(N, N), GN_SHAPE(N, N) },
              .out_shape = GN_SHAPE(N, N) };
    int kernels = 0;
    if (!wanted("matmul_1024_overhead")) return;
    job_open(g, &j);
    gn_result again = GN_OK;
    for (int i = -20; i < TIMES; i++) { /* in turn */
        double start = ex_now();
        gn_tensor y = gn_matmul(j.in[0], j.in[1]);
        gn_result r = gn_realize(&y, 1);
        if (r == GN_OK) r = gn_sync(g);
        samples[i < 0 ? 0 : i] = (ex_now() - start) * 1e6;
        ok_or_die(g, r, "matmul");
        double seconds = NAN;
        again = gn_cuda_launch_again(10, &seconds, &kernels);
        bare[i < 0 ? 0 : i] = seconds * 1e6;
        gn_step(g);
    }
    memset(j.out, 0xff, (size_t)N * N * 4);
    ok_or_die(g, gn_read(gn_matmul(j.in[0], j.in[1]), j.out, (size_t)N * N * 4), "matmul");
    gn_step(g);
    double path = quantile(samples, TIMES, 0.5), path95 = quantile(samples, TIMES, 0.95),
           launch = again == GN_OK ? quantile(bare, TIMES, 0.5) : NAN;
    row *out = add_row("matmul_1024_overhead", "us", NAN, true);
    out->value = path - launch;
    out->p95 = path95 - launch;
    out->error = product_error(&j);
    out->bound = 1e-5;
    set_ceiling(out, launch, "bare launch and wait");
    snprintf(out->note, sizeof out->note, "whole path %.1f us, %d kernels", path, kernels);
    print_row(out);
    job_close(&j);
}

/* ---- a model as large as GPT-2 124M, bf16, random weights ---- */

enum {
    DIM = 768,
    LAYERS = 12,
    HEADS = 12,
    HEAD = DIM / HEADS,
    VOCAB = 50257,
    CONTEXT = 1024,
    PAST = 512,
    PER_LAYER = 12,
    PARTS = 4
};

typedef struct gpt {
    gn_ctx *g;
    gn_tensor w[LAYERS][PER_LAYER], cache[LAYERS][2], outer[PARTS], token; /* outer: token table, place table, gain,
                                                                              bias */
    uint16_t *host, *kv;
    size_t used, bytes; /* elements of host taken; bytes that a step reads */
} gpt;

/* rows 0: a vector. */
static gn_tensor gpt_weight(gpt *m, int64_t r, int64_t c, bool all) {
    uint16_t *p = m->host + m->used;
    size_t n = (size_t)((r ? r : 1) * c);
    m->used += (n + 15) & ~(size_t)15;
    m->bytes += all ? n * sizeof *p : 0;
    return gn_weight(m->g, GN_BF16, r ? GN_SHAPE(r, c) : GN_SHAPE(c), p, "w");
}

/* times DIM */
static const int gpt_shapes[PER_LAYER][2] = { { 0, 1 }, { 0, 1 }, { 1, 3 }, { 0, 3 }, { 1, 1 }, { 0, 1 },
                                              { 0, 1 }, { 0, 1 }, { 1, 4 }, { 0, 4 }, { 4, 1 }, { 0, 1 } };

/* The same weights and the same past on each context. */
static void gpt_open(gpt *m, gn_ctx *g, uint16_t *host, uint16_t *kv) {
    *m = (gpt){ .g = g, .host = host, .kv = kv };
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < PER_LAYER; i++)
            m->w[l][i] = gpt_weight(m, gpt_shapes[i][0] * DIM, gpt_shapes[i][1] * DIM, true);
        for (int i = 0; i < 2; i++) m->cache[l][i] = gn_state(g, GN_BF16, GN_SHAPE(1, HEADS, CONTEXT, HEAD), kv, "kv");
    }
    m->outer[0] = gpt_weight(m, VOCAB, DIM, true);
    m->outer[1] = gpt_weight(m, CONTEXT, DIM, false);
    m->outer[2] = gpt_weight(m, 0, DIM, true);
    m->outer[3] = gpt_weight(m, 0, DIM, true);
    m->token = gn_state(g, GN_I64, GN_SHAPE(1), NULL, "token");
}

static gn_tensor gpt_heads(gn_tensor qkv, int which) {
    return gn_reshape(gn_slice(qkv, 1, which * DIM, (which + 1) * DIM, 1), GN_SHAPE(1, HEADS, 1, HEAD));
}

/* The logits (1, VOCAB) of the token after the one in m->token. */
static gn_tensor gpt_logits(const gpt *m, gn_tensor pos) {
    gn_tensor x = gn_add(gn_embedding(m->outer[0], m->token), gn_embedding(m->outer[1], gn_reshape(pos, GN_SHAPE(1))));
    for (int l = 0; l < LAYERS; l++) {
        const gn_tensor *w = m->w[l];
        gn_tensor qkv = gn_linear(gn_layernorm(x, w[0], w[1], 1e-5), w[2], w[3]);
        gn_tensor k = gn_kv_append(m->cache[l][0], gpt_heads(qkv, 1), pos),
                  v = gn_kv_append(m->cache[l][1], gpt_heads(qkv, 2), pos);
        gn_attention_desc d = { .causal = true, .length = gn_add_c(pos, 1) };
        gn_tensor a = gn_reshape(gn_attention(gpt_heads(qkv, 0), k, v, &d), GN_SHAPE(1, DIM));
        x = gn_add(x, gn_linear(a, w[4], w[5]));
        gn_tensor h = gn_gelu_tanh(gn_linear(gn_layernorm(x, w[6], w[7], 1e-5), w[8], w[9]));
        x = gn_add(x, gn_linear(h, w[10], w[11]));
    }
    x = gn_layernorm(x, m->outer[2], m->outer[3], 1e-5);
    return gn_matmul(x, gn_transpose(m->outer[0], 0, 1));
}

/* Steps that stay queued, as of a server that has work: what the last of `ahead` steps gives is waited for when as many
   more have been submitted. Microseconds a step go to samples[]. */
enum { QUEUE_RESULTS = 32, QUEUE_WARM = 3 };
typedef struct queue {
    gn_ctx *g;
    int ahead, steps, n, wide;              /* wide: results of a step */
    int64_t most, result[2][QUEUE_RESULTS]; /* each result is below */
    uint64_t ticket;
    double begin, since;
    gn_stats from;
} queue;

static queue queue_of(gn_ctx *g, int ahead, int64_t most) { return (queue){ .g = g, .ahead = ahead, .most = most }; }

/* Waits for what was asked for before `ticket`, which came to result[at]. */
static void queue_wait(queue *q, uint64_t ticket, int at) {
    ok_or_die(q->g, gn_wait(q->g, ticket), "a queued step");
    for (int i = 0; i < q->wide && ticket; i++)
        if (q->result[at][i] < 0 || q->result[at][i] >= q->most) failed("a queued step gives a token that is none");
}

/* Ends a step that gives so many tokens. */
static void queue_step(queue *q, gn_tensor tokens, int n) {
    const int batch = q->steps++ / q->ahead, at = batch & 1;
    const uint64_t before = q->ticket;
    const bool last = q->steps % q->ahead == 0;
    size_t bytes = (size_t)n * sizeof *q->result[0];
    if (last) ok_or_die(q->g, gn_read_later(&tokens, 1, (void *[]){ q->result[at] }, &bytes, &q->ticket), "a read");
    ok_or_die(q->g, gn_step(q->g), "a queued step");
    q->wide = n;
    if (!last) return;
    queue_wait(q, before, !at);
    const double now = ex_now();
    if (batch >= QUEUE_WARM) samples[q->n++] = (now - q->since) * 1e6 / q->ahead;
    else gn_get_stats(q->g, &q->from), q->begin = now;
    q->since = now;
}

/* Returns the mean microseconds of a step: what waits took at once is in no single sample. */
static double queue_end(queue *q, double *out_kernels) {
    gn_stats end;
    queue_wait(q, q->ticket, (q->steps / q->ahead - 1) & 1);
    gn_get_stats(q->g, &end);
    *out_kernels = (double)(end.kernels_run - q->from.kernels_run) / (q->steps - QUEUE_WARM * q->ahead);
    return (q->since - q->begin) * 1e6 / (q->n * q->ahead);
}

/* One step: the next token stays on the device. */
static gn_tensor gpt_next(const gpt *m, int32_t position) {
    gn_tensor next = gn_argmax(gpt_logits(m, gn_scalar(m->g, GN_I32, position)), GN_AXES(1), false);
    gn_assign(m->token, next);
    return next;
}

/* It comes here when out is not NULL. */
static void gpt_step(const gpt *m, int32_t position, int64_t *out) {
    gn_tensor next = gpt_next(m, position);
    if (out) ok_or_die(m->g, gn_read(next, out, sizeof *out), "decode");
    ok_or_die(m->g, gn_step(m->g), "decode");
}

static void gpt_close(gpt *m) {
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++) gn_release(m->cache[l][i]);
    gn_release(m->token);
}

static uint16_t *model_weights, *model_past;

static uint16_t *model_fill(uint16_t *p, size_t n, float middle, float spread) {
    for (size_t i = 0; i < n; i++) p[i] = gn_f32_to_bf16(middle + spread * draw());
    return p + ((n + 15) & ~(size_t)15);
}

/* Spread so that each layer counts: gains about 1, products that keep the size of what goes in, a small token table. */
static void model_make(void) {
    if (model_weights) return;
    uint16_t *p = model_weights = or_die(malloc(((size_t)126 << 20) * sizeof *p));
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < PER_LAYER; i++) {
            int64_t r = gpt_shapes[i][0] * DIM, c = gpt_shapes[i][1] * DIM;
            bool gain = i == 0 || i == 6;
            p = model_fill(p, (size_t)((r ? r : 1) * c), gain ? 1 : 0,
                           gain || !r ? 0.1f : (float)sqrt(3.0 / (double)r));
        }
    p = model_fill(p, (size_t)VOCAB * DIM, 0, 0.05f);
    p = model_fill(p, (size_t)CONTEXT * DIM, 0, 0.5f);
    p = model_fill(p, DIM, 1, 0.1f);
    model_fill(p, DIM, 0, 0.1f);
    model_past = make_random(GN_BF16, HEADS * CONTEXT * HEAD, 1.7f);
}

/* The logits of one step beside those of the CPU executor. */
static double gpt_error(gn_ctx *g) {
    float *logits[2];
    largest_error e = { 0 };
    for (int i = 0; i < 2; i++) {
        gpt m;
        gn_ctx *on = i ? open_or_die("cpu", NULL) : g;
        logits[i] = or_die(malloc(VOCAB * sizeof **logits));
        gpt_open(&m, on, model_weights, model_past);
        ok_or_die(on,
                  gn_read(gn_cast(gpt_logits(&m, gn_scalar(on, GN_I32, PAST)), GN_F32), logits[i],
                          VOCAB * sizeof **logits),
                  "logits");
        ok_or_die(on, gn_step(on), "step");
        for (int l = 0; l < LAYERS && !i; l++) {
            gn_release(m.cache[l][0]);
            gn_release(m.cache[l][1]);
        }
        if (i) gn_close(on);
    }
    for (int i = 0; i < VOCAB; i++) error_add(&e, (double)logits[0][i], (double)logits[1][i]);
    free(logits[0]);
    free(logits[1]);
    return error_of(&e);
}

static int64_t decoded; /* the last token of the decoding before */

/* The median of microseconds a token, of which there are *out_n in samples[]; each is read. */
static double gpt_decode(gn_ctx *g, int tokens, int *out_n, double *out_bytes) {
    gpt m;
    int n = 0;
    int64_t token = 0;
    gpt_open(&m, g, model_weights, model_past);
    *out_bytes = (double)m.bytes;
    for (int i = -2; i < tokens; i++) {
        double start = ex_now();
        gpt_step(&m, PAST + (i < 0 ? 0 : i), &token);
        if (i >= 0) samples[n++] = (ex_now() - start) * 1e6;
        if (token < 0 || token >= VOCAB) failed("decode gives a token that is none");
        decoded = token;
    }
    gpt_close(&m);
    *out_n = n;
    return quantile(samples, n, 0.5);
}

/* The same with steps that stay queued: the mean. */
static double gpt_decode_queued(gn_ctx *g, int tokens, int *out_n, double *out_bytes) {
    double kernels, us;
    gpt m;
    queue q = queue_of(g, 16, VOCAB);
    gpt_open(&m, g, model_weights, model_past);
    *out_bytes = (double)m.bytes;
    for (int i = -QUEUE_WARM * q.ahead; i + q.ahead <= tokens; i += q.ahead)
        for (int k = 0; k < q.ahead; k++) queue_step(&q, gpt_next(&m, PAST + (i < 0 ? k : i + k)), 1);
    us = queue_end(&q, &kernels);
    gpt_close(&m);
    *out_n = q.n;
    return us;
}

/* The same of a step that is built once; each token is read. */
static double gpt_decode_recorded(gn_ctx *g, int tokens, int *out_n, double *out_bytes) {
    gpt m;
    gn_recording s;
    int n = 0;
    int64_t token = 0;
    gpt_open(&m, g, model_weights, model_past);
    *out_bytes = (double)m.bytes;
    gn_tensor position = gn_scalar(g, GN_I32, PAST), next = gn_argmax(gpt_logits(&m, position), GN_AXES(1), false);
    gn_assign(m.token, next);
    ok_or_die(g, gn_step_record(g, &position, 1, &next, 1, &s), "record");
    for (int32_t i = -2; i < tokens; i++) {
        const int32_t at = PAST + (i < 0 ? 0 : i);
        const double start = ex_now();
        ok_or_die(g, gn_step_give(s, 0, &at, sizeof at), "decode");
        ok_or_die(g, gn_step_run(s, (void *[]){ &token }, (size_t[]){ sizeof token }, NULL), "decode");
        if (i >= 0) samples[n++] = (ex_now() - start) * 1e6;
        if (token < 0 || token >= VOCAB) failed("decode gives a token that is none");
        decoded = token;
    }
    gn_recording_close(s);
    gpt_close(&m);
    *out_n = n;
    return quantile(samples, n, 0.5);
}

typedef double decode_way(gn_ctx *g, int tokens, int *out_n, double *out_bytes);

static void decode_row(const char *name, gn_ctx *g, decode_way way, double target, double err, double *out_us) {
    double bytes = 0;
    int n = 0;
    row *out = add_row(name, "us", target, true);
    out->value = *out_us = way(g, repeats(400), &n, &bytes);
    out->p95 = quantile(samples, n, 0.95);
    out->error = err;
    out->bound = isnan(err) ? NAN : 0.04;
    set_ceiling(out, 1e-6 * bytes / copy_ceiling(), "weights read at copy speed");
    snprintf(out->note, sizeof out->note, "past %d, %.0f tokens/s", PAST, 1e6 / *out_us);
    print_row(out);
}

/* A server over this device in this process, and a context that reaches it over TLS on loopback. */
typedef struct remote {
    ex_place place;
    gn_ctx *g;
} remote;

static void remote_open(remote *r) {
    if (!ex_own_server(&r->place, set.device)) exit(EX_FAILED);
    r->g = open_or_die(r->place.devices, r->place.home);
}

static void remote_close(remote *r) {
    gn_close(r->g);
    ex_place_close(&r->place);
}

static void bench_decode(gn_ctx *g) {
    double local = NAN, queued = NAN, recorded = NAN, tls = NAN;
    if (!wanted("decode_local") && !wanted("decode_queued") && !wanted("decode_tls")) return;
    model_make();
    double err = gpt_error(g);
    decode_row("decode_local", g, gpt_decode, 250, err, &local);
    const int64_t built = decoded;
    decode_row("decode_queued", g, gpt_decode_queued, 250, err, &queued);
    decode_row("decode_local_recorded", g, gpt_decode_recorded, queued + 25, err, &recorded);
    if (decoded != built) failed("a recorded step gives another token than the same one built anew");
    remote r = { 0 };
    gn_ctx *steady = gn_open(&(gn_desc){ .devices = set.device, .batch_invariant = true });
    if (!ex_check(steady, gn_status(steady), "batch_invariant")) exit(EX_FAILED);
    double cost = queued;
    decode_row("decode_queued_batch_invariant", steady, gpt_decode_queued, NAN, gpt_error(steady), &queued);
    gn_close(steady);
    row *more = add_row("batch_invariant_costs", "x", NAN, true);
    more->value = queued / cost;
    print_row(more);
    remote_open(&r);
    decode_row("decode_tls", r.g, gpt_decode, local + 100, gpt_error(r.g), &tls);
    row *out = add_row("decode_tls_less_local", "us", 100, true);
    out->value = tls - local;
    print_row(out);
    decode_row("decode_tls_recorded", r.g, gpt_decode_recorded, recorded + 15, NAN, &tls);
    decode_row("decode_tls_queued", r.g, gpt_decode_queued, NAN, err, &queued);
    remote_close(&r);
}

#include "decoder_rows.h"

#include "batch_rows.h"

/* ---- steps of a remote client, whose data takes as long to come as the GPU takes to compute ---- */

/* 8 MiB of bf16 up and 2 KiB down a step */
enum { TRIP_ROWS = 512, TRIP_SIDE = 8192, TRIP_OUT = 1024, TRIP_STEPS = 24, TRIP_BUFFERS = 3 };

typedef struct trip {
    gn_ctx *g;
    gn_tensor w, here;
    uint16_t *in[TRIP_BUFFERS];
    uint16_t out[TRIP_STEPS][TRIP_OUT];
    int products;
} trip;

/* Seconds of a step: 'u' data alone, 'k' kernels alone, 'a' both with results read three steps later, 's' both, each
   read at once. */
static double trip_time(trip *t, char what) {
    uint64_t ticket[TRIP_BUFFERS] = { 0 };
    size_t bytes = sizeof t->out[0];
    double start = 0;
    for (int k = -3; k < TRIP_STEPS; k++) {
        int at = (k + 3) % TRIP_BUFFERS, n = what == 'u' ? 0 : t->products;
        if (k == 0) {
            ok_or_die(t->g, gn_sync(t->g), "overlap_tls");
            start = ex_now();
        }
        gn_tensor y = what == 'k' ? t->here : gn_data(t->g, GN_BF16, GN_SHAPE(TRIP_ROWS, TRIP_SIDE), t->in[at]);
        for (int i = 0; i < n; i++) y = gn_matmul(y, t->w);
        y = gn_slice(gn_slice(y, 0, 0, 1, 1), 1, 0, TRIP_OUT, 1);
        ok_or_die(t->g, gn_wait(t->g, ticket[at]), "overlap_tls");
        ok_or_die(t->g, gn_read_later(&y, 1, (void *[1]){ t->out[k < 0 ? 0 : k] }, &bytes, &ticket[at]), "overlap_tls");
        if (what == 's') ok_or_die(t->g, gn_wait(t->g, ticket[at]), "overlap_tls");
        ok_or_die(t->g, gn_step(t->g), "overlap_tls");
    }
    ok_or_die(t->g, gn_sync(t->g), "overlap_tls");
    return (ex_now() - start) / TRIP_STEPS;
}

static void trip_row(const char *name, double seconds, double target, const double part[2], int differ, int products) {
    row *out = add_row(name, "x", target, true);
    out->value = seconds / fmax(part[0], part[1]);
    out->error = differ;
    out->bound = 0;
    set_ceiling(out, 1, "the longer part");
    snprintf(out->note, sizeof out->note,
             "%.2f ms a step; data through TLS %.2f, %d products %.2f ms; error: rows that differ", 1e3 * seconds,
             1e3 * part[0], products, 1e3 * part[1]);
    print_row(out);
}

static void bench_trip(void) {
    static trip t;
    static uint16_t once[TRIP_STEPS][TRIP_OUT];
    remote r = { 0 };
    if (!wanted("overlap_tls")) return;
    remote_open(&r);
    size_t n = (size_t)TRIP_ROWS * TRIP_SIDE;
    uint16_t *weight = make_random(GN_BF16, (size_t)TRIP_SIDE * TRIP_SIDE, (float)sqrt(3.0 / TRIP_SIDE));
    t.g = r.g;
    t.w = gn_weight(t.g, GN_BF16, GN_SHAPE(TRIP_SIDE, TRIP_SIDE), weight, "w");
    for (int i = 0; i < TRIP_BUFFERS; i++) t.in[i] = make_random(GN_BF16, n, 1);
    t.here = gn_state(t.g, GN_BF16, GN_SHAPE(TRIP_ROWS, TRIP_SIDE), t.in[0], "x");
    double part[2];
    part[0] = trip_time(&t, 'u');
    for (t.products = 4;; t.products *= 2) { /* about as long as the data takes */
        part[1] = trip_time(&t, 'k');
        if (part[1] > 0.7 * part[0] || t.products >= 256) break;
    }
    double one = trip_time(&t, 's');
    memcpy(once, t.out, sizeof once);
    memset(t.out, 0xff, sizeof t.out);
    double all = trip_time(&t, 'a');
    int differ = 0;
    for (int k = 0; k < TRIP_STEPS; k++) differ += memcmp(once[k], t.out[k], sizeof once[k]) != 0;
    trip_row("overlap_tls", all, 1.3, part, differ, t.products);
    trip_row("overlap_tls_waiting", one, NAN, part, 0, t.products);
    remote_close(&r);
    for (int i = 0; i < TRIP_BUFFERS; i++) free(t.in[i]);
    free(weight);
}

/* ---- the first answer: processes of their own, since compiled kernels stay in memory ---- */

static void stop_server(int number) {
    (void)number;
    ex_interrupted = 1;
}

/* --child serve: a server over the device until a signal. */
static int child_serve(void) {
    gn_server *server;
    gn_error error;
    char home[PATH_MAX];
    snprintf(home, sizeof home, "%s.home", set.url);
    gn_server_desc d = { .listen = "127.0.0.1:0", .devices = set.device, .home = home, .url_file = set.url };
    signal(SIGTERM, stop_server);
    if (gn_server_open(&d, &server, &error) != GN_OK) {
        ex_print_error("no server", &error);
        return EX_FAILED;
    }
    while (!ex_interrupted) usleep(20000);
    gn_server_close(server);
    return EX_OK;
}

/* --child first: prints the parts of the way to the first token, in ms: open, upload, first step, second step. */
static int child_first(void) {
    gpt m;
    int64_t token;
    char where[PATH_MAX + 1], home[PATH_MAX];
    gn_tensor one[LAYERS * PER_LAYER + PARTS];
    void *to[LAYERS * PER_LAYER + PARTS];
    size_t bytes[LAYERS * PER_LAYER + PARTS];
    static uint16_t elements[LAYERS * PER_LAYER + PARTS];
    double times[5];
    model_make();
    snprintf(where, sizeof where, "@%s", set.url ? set.url : "");
    snprintf(home, sizeof home, "%s.client", set.url ? set.url : "/tmp/genie-bench");
    times[0] = ex_now();
    gn_ctx *g = open_or_die(set.url ? where : set.device, home);
    times[1] = ex_now();
    gpt_open(&m, g, model_weights, model_past);
    int n = LAYERS * PER_LAYER + PARTS;
    for (int i = 0; i < n; i++) { /* an element of each weight: it has arrived then, and nothing is compiled */
        gn_tensor w = i < PARTS ? m.outer[i] : m.w[(i - PARTS) / PER_LAYER][(i - PARTS) % PER_LAYER];
        gn_info info;
        gn_describe(w, &info);
        for (int a = 0; a < info.shape.rank; a++) w = gn_slice(w, a, 0, 1, 1);
        one[i] = w;
        to[i] = &elements[i];
        bytes[i] = sizeof *elements;
    }
    ok_or_die(g, gn_read_many(one, n, to, bytes), "weights");
    gn_step(g);
    for (int i = 2; i < 5; i++) {
        times[i] = ex_now();
        if (i < 4) gpt_step(&m, PAST + i, &token);
    }
    for (int i = 0; i < 4; i++) printf("%.3f ", (times[i + 1] - times[i]) * 1e3);
    printf("\n");
    gn_close(g);
    return EX_OK;
}

static pid_t start(const char *child, const char *url, int out) {
    char device[96];
    pid_t process = fork();
    if (process) return process;
    snprintf(device, sizeof device, "--device=%s", set.device);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    if (url) execl("/proc/self/exe", program, "--child", child, device, "--url", url, (char *)NULL);
    else execl("/proc/self/exe", program, "--child", child, device, (char *)NULL);
    _exit(127);
}

/* Runs --child CHILD, which prints n numbers; false when it fails. */
static bool ask_child(const char *child, const char *url, double *numbers, int n) {
    int ends[2], status = 1, k = 0;
    char text[2000] = "", *at = text, *next;
    if (pipe(ends)) return false;
    pid_t process = start(child, url, ends[1]);
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; length < sizeof text - 1 && (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(ends[0]);
    waitpid(process, &status, 0);
    for (; k < n && (numbers[k] = strtod(at, &next), next != at); k++) at = next;
    return status == 0 && k == n;
}

static void first_row(const char *name, double value, double target, const char *note) {
    row *out = add_row(name, "ms", target, true);
    out->value = value;
    snprintf(out->note, sizeof out->note, "%s", note);
    print_row(out);
}

static void bench_first(void) {
    char folder[] = "/tmp/genie-bench-XXXXXX", url[64], cache[64], note[96];
    double ms[4];
    if (!wanted("compile_cold") && !wanted("compile_cached") && !wanted("first_token")) return;
    if (!mkdtemp(folder)) {
        failed(folder);
        return;
    }
    snprintf(cache, sizeof cache, "%s/cache", folder);
    setenv("GENIE_CACHE", cache, 1);
    for (int i = 0; i < 2; i++) {
        if (!ask_child("first", NULL, ms, 4)) {
            failed("the first token does not come");
            return;
        }
        snprintf(note, sizeof note,
                 "first step less the second; open %.0f, upload %.0f, first step %.0f, second %.2f ms", ms[0], ms[1],
                 ms[2], ms[3]);
        first_row(i ? "compile_cached" : "compile_cold", ms[2] - ms[3], i ? 100 : 2000, note);
    }
    snprintf(cache, sizeof cache, "%s/empty", folder);
    snprintf(url, sizeof url, "%s/url", folder);
    setenv("GENIE_CACHE", cache, 1);
    pid_t server = start("serve", url, -1);
    for (int i = 0; i < 1000 && access(url, R_OK) != 0; i++) usleep(20000);
    bool ok = ask_child("first", url, ms, 4);
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    if (!ok) {
        failed("the first token does not come from the server");
        return;
    }
    snprintf(note, sizeof note, "connect %.0f, weights %.0f, plan, compile and run %.0f ms; the second token %.2f ms",
             ms[0], ms[1], ms[2], ms[3]);
    first_row("first_token_empty_server", ms[0] + ms[1] + ms[2], NAN, note);
    nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- what a device can do, as it is measured when a server starts or several devices are opened ---- */

static double measured_bytes;

static void see_measured(void *user, gn_log_level level, const char *text) {
    (void)user;
    (void)level;
    const char *bytes = strstr(text, "integer operations a second, ");
    if (strncmp(text, set.device, strlen(set.device)) == 0 && bytes)
        sscanf(bytes, "integer operations a second, %lf bytes a second", &measured_bytes);
}

/* --child measure: prints how long it takes, in ms with the CPU's, and bytes a second. */
static int child_measure(void) {
    char both[128];
    double times[3];
    snprintf(both, sizeof both, "%s,cpu", set.device);
    times[0] = ex_now();
    gn_ctx *alone = open_or_die(set.device, NULL);
    times[1] = ex_now();
    gn_ctx *g = gn_open(&(gn_desc){ .devices = both, .log = see_measured });
    if (!ex_check(g, gn_status(g), both)) return EX_FAILED;
    times[2] = ex_now();
    gn_close(g);
    gn_close(alone);
    printf("%.3f %.6g\n", (times[2] - times[1]) * 1e3, measured_bytes);
    return EX_OK;
}

static void bench_measure(void) {
    char folder[] = "/tmp/genie-bench-XXXXXX", note[96];
    double got[2][2];
    if (!wanted("measure_cold") && !wanted("measured_memory")) return;
    if (!mkdtemp(folder)) {
        failed(folder);
        return;
    }
    setenv("GENIE_CACHE", folder, 1);
    for (int i = 0; i < 2; i++)
        if (!ask_child("measure", NULL, got[i], 2)) {
            failed("the device is not measured");
            return;
        }
    snprintf(note, sizeof note, "with the CPU's; %.0f ms with its kernels in the cache", got[1][0]);
    first_row("measure_cold", got[0][0], 300, note);
    row *out = add_row("measured_memory", "TB/s", 0.85 * copy_ceiling(), false);
    out->value = 1e-12 * got[0][1];
    set_ceiling(out, copy_ceiling(), "device copy");
    print_row(out);
    nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- all of it ---- */

static void print_json(const gn_device_info *d) {
    ex_json j = { 0 };
    ex_json_text(&j, "device", d->identity);
    ex_json_number(&j, "copy_tb_s", copy_ceiling());
    ex_json_name(&j, "rows");
    for (int i = 0; i < n_rows; i++) {
        const row *r = &rows[i];
        ex_json k = { 0 };
        printf(i ? "," : "[");
        ex_json_text(&k, "name", r->name);
        ex_json_number(&k, "value", r->value);
        ex_json_text(&k, "unit", r->unit);
        ex_json_number(&k, "p95", r->p95);
        ex_json_number(&k, "error", r->error);
        ex_json_number(&k, "error_bound", r->bound);
        ex_json_number(&k, "ceiling", r->ceiling);
        ex_json_text(&k, "ceiling_is", r->ceiling_is);
        ex_json_number(&k, "target", r->target);
        ex_json_text(&k, "note", r->note);
        printf("}");
    }
    printf(n_rows ? "]" : "[]");
    ex_json_end(&j);
}

/* ---- values from one GPU to another ---- */

/* Milliseconds of a step that makes n numbers on the first GPU and adds them up there or on the second. Every step's
   numbers are others. */
static double between_step(gn_ctx *g, const char *where, gn_tensor x, int64_t n, int turn, largest_error *e) {
    float out = NAN, scale = (float)(1 + turn % 4);
    double start = ex_now();
    gn_on(g, "0");
    gn_tensor y = gn_mul(x, gn_scalar(g, GN_F32, scale));
    gn_on(g, where);
    ok_or_die(g, gn_read(gn_sum(y, GN_ALL_AXES, false), &out, sizeof out), "sum");
    double ms = (ex_now() - start) * 1e3;
    gn_step(g);
    error_add(e, out, (double)scale * (double)(n / 4) * 6); /* of 0, 1, 2, 3 */
    return ms;
}

/* What a value's way takes, in milliseconds: the step with it less the step without it. */
static double between_way(int64_t n, const float *numbers, double *out_p95, largest_error *e) {
    enum { TIMES = 31 };
    static double with[TIMES], without[TIMES];
    gn_ctx *g = open_or_die("cuda:0,cuda:1", NULL);
    gn_on(g, "0");
    gn_tensor x = gn_state(g, GN_F32, GN_SHAPE(n), numbers, "numbers");
    for (int i = -4; i < TIMES; i++) {
        with[i < 0 ? 0 : i] = between_step(g, "1", x, n, i + 8, e);
        without[i < 0 ? 0 : i] = between_step(g, "0", x, n, i + 8, e);
    }
    double base = quantile(without, TIMES, 0.5);
    *out_p95 = quantile(with, TIMES, 0.95) - base;
    gn_close(g);
    return quantile(with, TIMES, 0.5) - base;
}

/* GB/s of bare copies by the driver. */
static double between_ceiling(size_t bytes) {
    handle contexts[2];
    device_memory memory[2];
    double times[9];
    int device;
    for (int i = 1; i >= 0; i--)
        if (cu.cuDeviceGet(&device, i) || cu.cuDevicePrimaryCtxRetain(&contexts[i], device) ||
            cu.cuCtxSetCurrent(contexts[i]) || cu.cuMemAlloc_v2(&memory[i], bytes))
            return NAN;
    cu.cuCtxEnablePeerAccess(contexts[1], 0); /* Genie may have done so */
    for (int i = -1; i < 9; i++) {
        double start = ex_now();
        cu.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], bytes, cu.stream);
        cu.cuStreamSynchronize(cu.stream);
        times[i < 0 ? 0 : i] = ex_now() - start;
    }
    cu.cuMemFree_v2(memory[0]);
    cu.cuCtxSetCurrent(contexts[1]);
    cu.cuMemFree_v2(memory[1]);
    cu.cuCtxSetCurrent(contexts[0]);
    return 1e-9 * (double)bytes / quantile(times, 9, 0.5);
}

static void bench_between(void) {
    int64_t n = sized(64 << 20);
    int gpus = 0;
    largest_error e = { 0 };
    if (!wanted("between_gpus") || !cu.ready || cu.cuDeviceGetCount(&gpus) || gpus < 2 ||
        strcmp(set.device, "cuda:0") != 0)
        return;
    float *numbers = or_die(malloc((size_t)n * sizeof *numbers));
    for (int64_t i = 0; i < n; i++) numbers[i] = (float)(i % 4);
    double p95, host95, bytes = 4. * (double)n, direct = between_way(n, numbers, &p95, &e);
    setenv("GENIE_CUDA_PEER", "0", 1);
    double host = between_way(n, numbers, &host95, &e);
    unsetenv("GENIE_CUDA_PEER");
    row *out = add_row("between_gpus", "GB/s", NAN, false);
    out->value = bytes * 1e-6 / direct;
    out->p95 = bytes * 1e-6 / p95;
    out->error = error_of(&e);
    out->bound = 1e-5;
    set_ceiling(out, between_ceiling((size_t)bytes), "bare peer copy");
    snprintf(out->note, sizeof out->note, "%.2f ms; by way of the program's memory %.1f GB/s, %.1f ms", direct,
             bytes * 1e-6 / host, host);
    print_row(out);
    free(numbers);
}

static void bench_all(gn_ctx *g) {
    for (size_t i = 0; i < sizeof memory_rows / sizeof *memory_rows; i++) bench_memory_row(g, &memory_rows[i]);
    bench_one_row(g, "softmax_one_row", build_softmax, refer_softmax);
    bench_one_row(g, "cumsum_one_row", build_cumsum, refer_cumsum);
    bench_products();
    bench_many("many_f32", "products_f32", 1e-5);
    bench_many("many_bf16", "products_bf16", eps_of(GN_BF16));
    bench_many("many_tf32", "products_tf32", 0x1p-9);
    bench_attention(g, "attention_bf16", 330, build_attention, true, false);
    bench_attention(g, "attention_written", 330, build_attention_written, false, false);
    bench_attention(g, "attention_written_masked", 230, build_attention_written, false, true);
    bench_caches(g);
    torch_open();
    for (int last = 1; last >= 0; last--) {
        for (size_t i = 0; i < sizeof window_rows / sizeof *window_rows; i++)
            bench_window(g, &window_rows[i], last, ENDS_PLAIN);
        torch_sum(last ? "convolutions of channels last" : "convolutions of planes");
        for (size_t i = 0; i < sizeof window_rows / sizeof *window_rows; i++)
            if (strcmp(window_rows[i].name, "conv_28_128") == 0 ||
                strcmp(window_rows[i].name, "conv_depthwise_56") == 0)
                for (int ends = ENDS_SILU; ends <= (last ? ENDS_SILU : ENDS_SKIP); ends++)
                    bench_window(g, &window_rows[i], last, (window_end)ends);
    }
    for (size_t i = 0; i < sizeof solve_rows / sizeof *solve_rows; i++) bench_solve(g, &solve_rows[i]);
    torch_sum("solving");
    bench_pictures(g);
    torch_sum("norms and pooling");
    bench_networks(g);
    torch_close();
    bench_resnet(g);
    bench_mlp(g, GN_F32, 129, 200);
    bench_mlp(g, GN_BF16, 25, 110);
    bench_overlap();
    bench_trip();
    bench_overhead(g);
    bench_decode(g);
    bench_decoders(g);
    bench_batches(g);
    bench_first();
    bench_measure();
    bench_between();
}

int main(int argc, char **argv) {
    const ex_option options[] = {
        { "only", EX_TEXT, &set.only, "WORD", "only rows whose name contains WORD", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { "verbose", EX_FLAG, &set.verbose, NULL, "a line for each shape of rows that sum up many", 0, 0 },
        { "quick", EX_FLAG, &set.quick, NULL, "fewer repetitions of smaller tensors: shows that it works, not how fast",
          0, 0 },
        { "device", EX_TEXT, &set.device, "NAME", "cuda:0, cuda:1, ... (cuda:0)", 0, 0 },
        { "child", EX_TEXT, &set.child, "WHAT",
          "how the program starts itself again: serve, first, measure, many_f32, many_bf16 or many_tf32", 0, 0 },
        { "url", EX_TEXT, &set.url, "FILE", "of --child: the server's URL", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    gn_device_info device;
    ex_parse(argc, argv, "bench_gpu measures the GPU executor beside what the GPU can do.", options);
    program = argv[0];
    seed ^= (uint64_t)(ex_now() * 1e9);
    if (set.child && !strcmp(set.child, "serve") && set.url) return child_serve();
    if (set.child && !strcmp(set.child, "first")) return child_first();
    if (set.child && !strcmp(set.child, "measure")) return child_measure();
    if (set.child && !strncmp(set.child, "many_", 5)) return child_many();
    if (set.child) ex_usage(argv[0], "--child is serve, with --url, first, measure, many_f32, many_bf16 or many_tf32");
    gn_ctx *g = gn_open(&(gn_desc){ .devices = set.device });
    if (gn_status(g) != GN_OK) {
        printf("SKIP: bench_gpu: %s\n", gn_last_error(g)->text);
        gn_close(g);
        return EX_SKIPPED;
    }
    ok_or_die(g, gn_get_device(g, &device), "device");
    open_driver();
    printf("%s; device copy %.3f TB/s\n", device.identity, copy_ceiling());
    bench_all(g);
    gn_close(g);
    if (n_rows == 0) ex_usage(argv[0], "no row has '%s' in its name", set.only);
    if (set.json) print_json(&device);
    return failures ? EX_FAILED : EX_OK;
}
