/* A cuBLASLt for tests, beside cuda_shim.c, whose memory is the host's and whose streams run at once: products of
 * column-major matrices by plain loops, with bias, batches and either side turned. Give the library as GENIE_CUBLASLT.
 *
 * A product takes a microsecond of the device's time. $GENIE_SHIM_BLAS: "slow", it takes a second; "other", proposes
 * other algorithms than before. $GENIE_SHIM_FAULTS names a file that asks for a fault while it is there: "blas start",
 * "blas product". */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long ptr;

enum { F32 = 0, F16 = 2, BF16 = 14, ALGORITHMS = 2 };
enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
    int32_t batches;
    int64_t batch_stride;
} layout;
typedef struct product {
    int compute, scale, turned[2], epilogue;
    ptr bias;
} product;
typedef struct found {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} found;

static int calls;
API int blas_shim_calls(void) { return calls; }

static int asked(const char *what) {
    char line[100] = "";
    const char *path = getenv("GENIE_SHIM_FAULTS");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return 0;
    int is = fgets(line, sizeof line, f) && strncmp(line, what, strlen(what)) == 0;
    fclose(f);
    return is;
}
static int mode_is(const char *what) {
    const char *mode = getenv("GENIE_SHIM_BLAS");
    return mode && strcmp(mode, what) == 0;
}
static void spend(double us) {
    void *driver = dlopen(getenv("GENIE_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
    void (*on_device)(double) = NULL;
    void *p = driver ? dlsym(driver, "shim_spend") : NULL;
    memcpy(&on_device, &p, sizeof p);
    if (on_device) on_device(us);
}
static uint64_t algorithm_word(int i) { return (mode_is("other") ? 7000u : 1000u) + (uint64_t)i; }

API int cublasLtCreate(void **h) {
    *h = &calls;
    return asked("blas start") ? NOT_INITIALIZED : 0;
}

API int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    layout *l = calloc(1, sizeof *l);
    *l = (layout){ type, rows, columns, stride, 1, 0 };
    *out = l;
    return stride < (int64_t)rows ? INVALID_VALUE : 0;
}
API int cublasLtMatrixLayoutSetAttribute(void *handle, int which, const void *value, size_t bytes) {
    layout *l = handle;
    if (which == 5 && bytes == 4) memcpy(&l->batches, value, 4);
    else if (which == 6 && bytes == 8) memcpy(&l->batch_stride, value, 8);
    else return INVALID_VALUE;
    return 0;
}
API int cublasLtMatrixLayoutDestroy(void *l) {
    free(l);
    return 0;
}

API int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    product *p = calloc(1, sizeof *p);
    *p = (product){ .compute = compute, .scale = scale, .epilogue = 1 };
    *out = p;
    return (compute != 68 && compute != 77) || scale != F32 ? INVALID_VALUE : 0;
}
API int cublasLtMatmulDescSetAttribute(void *handle, int which, const void *value, size_t bytes) {
    product *p = handle;
    if ((which == 3 || which == 4) && bytes == 4) memcpy(&p->turned[which - 3], value, 4);
    else if (which == 7 && bytes == 4) memcpy(&p->epilogue, value, 4);
    else if (which == 8 && bytes == 8) memcpy(&p->bias, value, 8);
    else return INVALID_VALUE;
    return 0;
}
API int cublasLtMatmulDescDestroy(void *p) {
    free(p);
    return 0;
}

API int cublasLtMatmulPreferenceCreate(void **out) {
    *out = calloc(1, 16);
    return 0;
}
API int cublasLtMatmulPreferenceSetAttribute(void *w, int which, const void *value, size_t bytes) {
    uint64_t x = 0;
    (void)w;
    memcpy(&x, value, bytes < 8 ? bytes : 8);
    if (which == 1) return x && bytes == 8 ? 0 : INVALID_VALUE;
    /* joined in a fixed order, or the results would differ from run to run */
    if (which == 3) return bytes == 4 && x == 2 ? 0 : INVALID_VALUE;
    return which >= 5 && which <= 8 && bytes == 4 && x && (x & (x - 1)) == 0 ? 0 : INVALID_VALUE;
}
API int cublasLtMatmulPreferenceDestroy(void *w) {
    free(w);
    return 0;
}

API int cublasLtMatmulAlgoGetHeuristic(void *lt, void *p, void *a, void *b, void *c, void *d, void *w, int most,
                                       found *out, int *n) {
    (void)lt;
    (void)p;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)w;
    for (*n = 0; *n < most && *n < ALGORITHMS; ++*n)
        out[*n] = (found){ .algorithm = { algorithm_word(*n), (uint64_t)clock() }, .workspace = 4096 };
    return 0;
}

/* What an algorithm is; its bytes hold more, which differs from time to time. */
API int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t *algorithm, int which, void *value, size_t bytes,
                                             size_t *written) {
    uint32_t x = which == 0 ? (uint32_t)algorithm[0] : 0;
    if (which > 6 || bytes != 4) return INVALID_VALUE;
    memcpy(value, &x, 4);
    *written = 4;
    return 0;
}

static float get(int type, ptr at, int64_t i) {
    uint16_t h;
    uint32_t u;
    float x;
    if (type == F32) return ((const float *)(uintptr_t)at)[i];
    memcpy(&h, (const uint16_t *)(uintptr_t)at + i, 2);
    if (type == F16) {
        int e = h >> 10 & 31;
        x = (float)(h & 1023) * 0x1p-24f;
        if (e)
            x = (float)(1024 + (h & 1023)) * (float)(1 << (e > 15 ? e - 15 : 0)) / (float)(1 << (e > 15 ? 0 : 15 - e)) /
                1024;
        return h & 0x8000 ? -x : x;
    }
    u = (uint32_t)h << 16;
    memcpy(&x, &u, 4);
    return x;
}
/* f16 results do not come here: the tests' have loops or are of the other types. */
static int put(int type, ptr at, int64_t i, float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    u += 0x7fff + (u >> 16 & 1);
    uint16_t h = (uint16_t)(u >> 16);
    if (type == F32) ((float *)(uintptr_t)at)[i] = x;
    else if (type == BF16) memcpy((uint16_t *)(uintptr_t)at + i, &h, 2);
    else return INVALID_VALUE;
    return 0;
}

API int cublasLtMatmul(void *lt, const product *p, const float *alpha, ptr a, const layout *la, ptr b, const layout *lb,
                       const float *beta, ptr c, const layout *lc, ptr d, const layout *ld, const uint64_t *algorithm,
                       ptr work, size_t work_bytes, void *stream) {
    int64_t m = (int64_t)ld->rows, n = (int64_t)ld->columns, k = (int64_t)(p->turned[0] ? la->rows : la->columns);
    int r = 0;
    (void)lt;
    (void)stream;
    calls++;
    if (asked("blas product")) return EXECUTION_FAILED;
    spend(mode_is("slow") ? 1e6 : 1);
    if (*alpha != 1 || *beta != 0 || c != d || lc != ld || work_bytes != 4096 ||
        (algorithm[0] != algorithm_word(0) && algorithm[0] != algorithm_word(1)))
        return INVALID_VALUE;
    if ((int64_t)(p->turned[0] ? la->columns : la->rows) != m ||
        (int64_t)(p->turned[1] ? lb->columns : lb->rows) != k || (int64_t)(p->turned[1] ? lb->rows : lb->columns) != n)
        return INVALID_VALUE;
    memset((void *)(uintptr_t)work, 0xee, work_bytes);
    float *x = malloc((size_t)(m * k) * sizeof *x), *y = malloc((size_t)(k * n) * sizeof *y);
    for (int64_t z = 0; z < ld->batches && r == 0; z++) {
        for (int64_t i = 0; i < m * k; i++)
            x[i] = get(la->type, a,
                       z * la->batch_stride + (p->turned[0] ? i / k * la->stride + i % k : i % k * la->stride + i / k));
        for (int64_t i = 0; i < k * n; i++)
            y[i] = get(lb->type, b,
                       z * lb->batch_stride + (p->turned[1] ? i % k * lb->stride + i / k : i / k * lb->stride + i % k));
        for (int64_t i = 0; i < m * n && r == 0; i++) {
            float sum = 0;
            /* as the model's kernel: one that gives other bits is not chosen */
            for (int64_t l = 0; l < k; l++) sum = __builtin_fmaf(x[i % m * k + l], y[i / m * k + l], sum);
            r = put(ld->type, d, z * ld->batch_stride + i / m * ld->stride + i % m,
                    p->epilogue == 4 ? sum + get(ld->type, p->bias, i % m) : sum);
        }
    }
    free(x);
    free(y);
    return r;
}
