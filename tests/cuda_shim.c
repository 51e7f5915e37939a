/* A driver and an NVRTC for tests, both in one library, on a machine without a GPU: "compiling" makes a shared object of the
 * kernels with the host's C++ compiler, "launching" runs their blocks one after another, each thread as a fibre. Catches wrong
 * indices and wrong arithmetic, not races. Give the library as GENIE_LIBCUDA and GENIE_NVRTC; objects are kept in $GENIE_SHIM_DIR.
 *
 * $GENIE_SHIM_FAULTS names a file that asks for a fault while it is there: "memory N", allocations of N bytes or more fail;
 * "compile WORD", programs that hold the word do not compile; "sticky", the next launch breaks the context: all calls after it
 * fail until the process ends, and the file goes.
 *
 * Kernels with instructions of one architecture cannot run here, so the device says that it is of compute capability 6.0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long ptr;

/* ---- fibres ---- */

typedef struct dim { unsigned x, y, z; } dim;
typedef struct state {
    dim thread, block, grid;
    unsigned words[1024];
    void (*barrier)(void);
} state;

enum { STACK = 128 << 10, THREADS = 1024 };

static state shim;
static ucontext_t scheduler, fibres[THREADS];
static char *stacks;
static int alive[THREADS];
static unsigned current;
static double spent_us;            /* the device's time: what events record, so that what is measured does not depend on this machine */
static void (*kernel_now)(void **);
static void **params_now;

static void barrier(void) { swapcontext(&fibres[current], &scheduler); }

static void fibre_main(void)
{
    kernel_now(params_now);
    alive[current] = 0;
    swapcontext(&fibres[current], &scheduler);
}

/* Every thread runs to its next barrier in turn, until all have ended. */
static void run_block(unsigned threads)
{
    static unsigned left;
    left = threads;
    for (unsigned i = 0; i < threads; i++) {
        getcontext(&fibres[i]);
        fibres[i].uc_stack.ss_sp = stacks + (size_t)i * STACK;
        fibres[i].uc_stack.ss_size = STACK;
        fibres[i].uc_link = &scheduler;
        makecontext(&fibres[i], fibre_main, 0);
        alive[i] = 1;
    }
    while (left) {
        for (unsigned i = 0; i < threads; i++) {
            if (!alive[i]) {
                continue;
            }
            current = i;
            shim.thread.x = i;
            swapcontext(&scheduler, &fibres[i]);
            spent_us += 0.01;
            left -= (unsigned)!alive[i];
        }
    }
}

/* ---- faults ---- */

static volatile int broken;

/* What the file says after `kind`; NULL when it asks for nothing of the kind. */
static const char *asked(const char *kind)
{
    static __thread char line[200];
    const char *path = getenv("GENIE_SHIM_FAULTS");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) {
        return NULL;
    }
    char *got = fgets(line, sizeof line, f);
    fclose(f);
    line[strcspn(line, "\n")] = 0;
    size_t n = strlen(kind);
    return got && strncmp(line, kind, n) == 0 ? line + n + (line[n] == ' ') : NULL;
}

static int alive_or(int r) { return broken ? 700 : r; }

/* ---- driver ---- */

API int cuInit(unsigned flags) { (void)flags; return 0; }
API int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
API int cuGetErrorName(int r, const char **s) { (void)r; *s = "shim"; return 0; }
API int cuGetErrorString(int r, const char **s) { (void)r; *s = "an error of the shim"; return 0; }
API int cuDeviceGetCount(int *n) { *n = 1; return 0; }
API int cuDeviceGet(int *d, int i) { *d = i; return 0; }
API int cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, (size_t)n, "fibres on this CPU"); return 0; }
API int cuDeviceGetAttribute(int *v, int what, int d) { (void)d; *v = what == 75 ? 6 : what == 16 ? 132 : 0; return 0; }   /* processors as of the compile-only device */
API int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)1 << 34; return 0; }
API int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &shim; return 0; }
API int cuCtxSetCurrent(void *c) { (void)c; return 0; }
API int cuStreamCreate(void **s, unsigned f) { (void)f; *s = &shim; return 0; }
API int cuStreamDestroy_v2(void *s) { (void)s; return 0; }
API int cuStreamSynchronize(void *s) { (void)s; return alive_or(0); }
API int cuStreamBeginCapture_v2(void *s, int mode) { (void)s; (void)mode; return 801; }
API int cuStreamEndCapture(void *s, void **g) { (void)s; *g = NULL; return 801; }
/* An event is the time at which it was recorded. Other libraries of tests spend time too. */
API void shim_spend(double us) { spent_us += us; }
API int cuEventCreate(void **e, unsigned f) { (void)f; *e = calloc(1, sizeof spent_us); return *e ? 0 : 2; }
API int cuEventDestroy_v2(void *e) { free(e); return 0; }
API int cuEventRecord(void *e, void *s) { (void)s; memcpy(e, &spent_us, sizeof spent_us); return 0; }
API int cuEventElapsedTime(float *ms, void *from, void *to) { *ms = (float)((*(double *)to - *(double *)from) * 1e-3); return 0; }
API int cuStreamWaitEvent(void *s, void *e, unsigned f) { (void)s; (void)e; (void)f; return 0; }
API int cuEventSynchronize(void *e) { (void)e; return alive_or(0); }
/* Fresh memory holds rubbish, so that what is read before it is written shows. */
API int cuMemAlloc_v2(ptr *p, size_t n)
{
    const char *limit = asked("memory");
    if (broken || (limit && n >= strtoull(limit, NULL, 10))) {
        return broken ? 700 : 2;
    }
    void *m = aligned_alloc(256, (n + 255) & ~(size_t)255);
    if (!m) {
        return 2;
    }
    memset(m, 0xcb, n);
    *p = (ptr)(uintptr_t)m;
    return 0;
}
API int cuMemFree_v2(ptr p) { free((void *)(uintptr_t)p); return 0; }
API int cuMemAllocAsync(ptr *p, size_t n, void *s) { (void)s; return cuMemAlloc_v2(p, n); }
API int cuMemFreeAsync(ptr p, void *s) { (void)s; return cuMemFree_v2(p); }
API int cuDeviceGetDefaultMemPool(void **p, int d) { (void)d; *p = NULL; return 801; }
API int cuMemPoolSetAttribute(void *p, int a, void *v) { (void)p; (void)a; (void)v; return 801; }
API int cuMemHostAlloc(void **p, size_t n, unsigned f) { (void)f; *p = malloc(n); return *p ? 0 : 2; }
API int cuMemFreeHost(void *p) { free(p); return 0; }
API int cuMemcpyHtoDAsync_v2(ptr d, const void *s, size_t n, void *st) { (void)st; memcpy((void *)(uintptr_t)d, s, n); return alive_or(0); }
API int cuMemcpyDtoHAsync_v2(void *d, ptr s, size_t n, void *st) { (void)st; memcpy(d, (void *)(uintptr_t)s, n); return alive_or(0); }
API int cuMemcpyDtoDAsync_v2(ptr d, ptr s, size_t n, void *st) { (void)st; memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n); return alive_or(0); }
API int cuMemsetD8Async(ptr d, unsigned char v, size_t n, void *st) { (void)st; memset((void *)(uintptr_t)d, v, n); return 0; }
API int cuFuncSetAttribute(void *f, int a, int v) { (void)f; (void)a; (void)v; return 0; }
API int cuLaunchKernelEx(const void *config, void *f, void **params, void **extra) { (void)config; (void)f; (void)params; (void)extra; return 801; }
API int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { (void)e; (void)g; (void)f; return 801; }
API int cuGraphLaunch(void *e, void *s) { (void)e; (void)s; return 801; }
API int cuGraphDestroy(void *g) { (void)g; return 0; }
API int cuGraphExecDestroy(void *e) { (void)e; return 0; }

/* The "cubin" is the path of a shared object. */
API int cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *options, void **values)
{
    (void)n; (void)options; (void)values;
    *m = dlopen((const char *)image, RTLD_NOW | RTLD_LOCAL);
    if (!*m) {
        fprintf(stderr, "cuda_shim: %s\n", dlerror());
        return 200;
    }
    void (*init)(state *);
    *(void **)&init = dlsym(*m, "shim_init");
    init(&shim);
    return 0;
}
API int cuModuleGetFunction(void **f, void *m, const char *name)
{
    char call[200];
    snprintf(call, sizeof call, "%s__call", name);
    *f = dlsym(m, call);
    return *f ? 0 : 500;
}
API int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)shared; (void)stream; (void)extra;
    if (!gx || !gy || gz != 1 || !bx || bx > THREADS || by != 1 || bz != 1) {
        return 1;
    }
    if (asked("sticky")) {
        broken = 1;
        unlink(getenv("GENIE_SHIM_FAULTS"));
    }
    if (broken) {
        return 700;
    }
    pthread_mutex_lock(&lock);
    if (!stacks) {
        stacks = malloc((size_t)STACK * THREADS);
    }
    *(void **)&kernel_now = f;
    params_now = params;
    shim.barrier = barrier;
    shim.grid = (dim){ gx, gy, 1 };
    for (unsigned y = 0; y < gy; y++) {
        for (unsigned x = 0; x < gx; x++) {
            shim.block = (dim){ x, y, 0 };
            run_block(bx);
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- NVRTC ---- */

typedef struct program { char *source; char path[600], log[4000]; } program;

API int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 99; return 0; }
API int nvrtcGetNumSupportedArchs(int *n) { *n = 1; return 0; }
API int nvrtcGetSupportedArchs(int *a) { *a = 60; return 0; }
API int nvrtcCreateProgram(void **out, const char *source, const char *name, int n, const char *const *headers, const char *const *names)
{
    (void)name; (void)n; (void)headers; (void)names;
    program *p = calloc(1, sizeof *p);
    p->source = strdup(source);
    *out = p;
    return 0;
}
API int nvrtcDestroyProgram(void **handle)
{
    program *p = *handle;
    free(p->source);
    free(p);
    *handle = NULL;
    return 0;
}

/* After the kernels a function for each that takes its arguments as the driver does. */
static void write_calls(FILE *f, const char *source)
{
    static const char before[] = "__launch_bounds__(256) ";
    for (const char *s = strstr(source, before); s; s = strstr(s, before)) {
        s += sizeof before - 1;
        int n = (int)strcspn(s, "(");
        fprintf(f, "extern \"C\" void %.*s__call(void **p) { shim_call(%.*s, p); }\n", n, s, n, s);
    }
}

API int nvrtcCompileProgram(void *handle, int n, const char *const *options)
{
    program *p = handle;
    char source[620], command[4096], folder[400];
    const char *dir = getenv("GENIE_SHIM_DIR"), *compiler = getenv("CXX");
    uint64_t h = 14695981039346656037u;
    const char *word = asked("compile");
    (void)n; (void)options;
    if (word && strstr(strstr(p->source, "__launch_bounds__"), word)) {
        snprintf(p->log, sizeof p->log, "the shim was asked not to compile %s", word);
        return 6;
    }
    for (const char *s = p->source; *s; s++) {
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    }
    snprintf(folder, sizeof folder, "%s", __FILE__);
    *strrchr(folder, '/') = 0;
    mkdir(dir ? dir : "/tmp", 0700);
    snprintf(p->path, sizeof p->path, "%s/%016llx.so", dir ? dir : "/tmp", (unsigned long long)h);
    snprintf(source, sizeof source, "%s.cpp", p->path);
    FILE *f = fopen(source, "w");
    if (!f) {
        return 6;
    }
    fprintf(f, "#include \"cuda_shim.h\"\n%s", p->source);
    write_calls(f, p->source);
    fclose(f);
    snprintf(command, sizeof command, "%s -std=c++17 -O1 -ffp-contract=off -fno-strict-aliasing -fPIC -shared -w -I%s -o %s %s >%s.log 2>&1", compiler ? compiler : "c++", folder, p->path, source, source);
    int r = system(command);
    snprintf(command, sizeof command, "%s.log", source);
    f = fopen(command, "r");
    if (f) {
        p->log[fread(p->log, 1, sizeof p->log - 1, f)] = 0;
        fclose(f);
    }
    unlink(command);
    if (r == 0) {
        unlink(source);
    }
    return r == 0 ? 0 : 6;
}
API int nvrtcGetCUBINSize(void *handle, size_t *n) { *n = strlen(((program *)handle)->path) + 1; return 0; }
API int nvrtcGetCUBIN(void *handle, char *out) { strcpy(out, ((program *)handle)->path); return 0; }
API int nvrtcGetPTXSize(void *handle, size_t *n) { return nvrtcGetCUBINSize(handle, n); }
API int nvrtcGetPTX(void *handle, char *out) { return nvrtcGetCUBIN(handle, out); }
API int nvrtcGetProgramLogSize(void *handle, size_t *n) { *n = strlen(((program *)handle)->log) + 1; return 0; }
API int nvrtcGetProgramLog(void *handle, char *out) { strcpy(out, ((program *)handle)->log); return 0; }
