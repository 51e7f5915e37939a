/* genie_cuda.c: the GPU executor. Kernels are generated from the graph as CUDA C++, compiled by NVRTC and run through
 * the driver; both are found at run time. No NVIDIA header or library is needed to build this file.
 *
 * Devices: "cuda:0", "cuda:1", … Environment:
 *   GENIE_LIBCUDA, GENIE_NVRTC        other places of libcuda.so.1 and libnvrtc.so
 *   GENIE_CUBLASLT                    another place of libcublasLt.so, which computes products where it measured
 *                                     faster; 0: not used
 *   GENIE_CACHE                       folder of compiled kernels and of measured choices (else ~/.cache/genie); not
 *                                     used if it is a link, another user's, or others may write to it
 *   GENIE_CUDA_TUNE=0                 no measuring: kernels of products are chosen by a model, and cuBLASLt computes
 *                                     none of them; N,M: products of N operations and more are measured, those of M and
 *                                     more (else N) with cuBLASLt (as it is 4e9,50e9; in plain f32 0.4e9,10e9);
 *                                     blas: cuBLASLt computes all products that it can, by its own first proposal
 *   GENIE_DUMP_KERNELS=dir            writes the source of every generated kernel
 *   GENIE_CUDA_COMPILE_ONLY=sm_90     "cuda:0" generates and compiles for that arch and runs nothing: reads answer
 *                                     GN_NO_VALUE
 *   GENIE_CUDA_GRAPH=0                no replay of captured graphs
 *   GENIE_CUDA_POOL=0                 no stream-ordered memory pool
 *   GENIE_CUDA_TENSOR=0               no tensor cores
 *   GENIE_CUDA_KERNELS=N              so many kernels that no plan holds any more are kept for the next (as it is 8192)
 *   GENIE_CUDA_COMPILE_SECONDS=N      of the compiler that the programs of one client of a server have in an hour (600;
 *                                     0: no bound)
 *   GENIE_CUDA_SCRUB=1                memory is cleared whenever it is taken, not only from when two clients use one
 *                                     device (some microseconds for each value that a step keeps)
 *   GENIE_CUDA_MEMORY=bytes           at most so much device memory for one executor
 *   GENIE_CUDA_EVICT=0                weights do not move to the host when memory is short
 *   GENIE_CUDA_FUSE=0                 no fusion: each op of the graph is a kernel of its own
 *   GENIE_CUDA_CLUSTER=0              no clusters of blocks
 *   GENIE_CUDA_PEER=0                 values go from one GPU to another by way of the program's memory
 *   GENIE_CUDA_OVERLAP=0              no kernel starts before the one before it has ended, and no copy runs beside
 *                                     kernels
 *   GENIE_CUDA_WGMMA=0                no kernels for sm_90a alone (tensor cores and memory accelerator)
 *   GENIE_TF32=1                      f32 matmuls may round their inputs to TF32 (sm_80 and later; 10 bits of
 *                                     mantissa), several times as fast
 *   GENIE_CUDA_EPILOGUE=0             no loops in the kernels of matmuls
 *
 * Compiled with -DGENIE_TEST, as tests/ link it, the file has switches more. They are for tests alone: one of them
 * makes plans fail.
 *   GENIE_CUDA_RANK=n                 products on tensor cores by what the model holds for the best but n; none is
 *                                     measured
 *   GENIE_CUDA_ONE_OF_EACH=1          plans without a kind of kernel that is new answer GN_NO_VALUE: for slow checks
 *   GENIE_CUDA_SAMPLE=n               of all kernels that are compiled to see that they do, one of each kind and every
 *                                     nth; for another architecture than its own every third kind; others each time
 *   GENIE_CUDA_EVERY_LANE=1           in fed products each thread arrives where one does for its warp: for racecheck,
 *                                     which does not see that the others have met with it
 *   GENIE_CUDA_WIDE=1                 kernels count in 64 bits, as they do of tensors of 2^30 elements and more
 *   GENIE_CUDA_HASH=0                 all kernels have the same hash: for tests of what finds them
 *
 * Fusion. A graph becomes few kernels: chains of elementwise ops; reductions, softmaxes and norms with what is computed
 * before, between and behind them, called or written out (tests/rows_test.c counts them); attention, called or written
 * out with any loop on its scores, in 16-bit floats, for one query, or where it is small (tests/gpu_test.c); products
 * with bias, activation and residual; the norms of a decode step of up to eight rows, its appends and arg max.
 *
 * Few rows. Products of two to eight rows of 16 bits run on tensor cores whose left side is the weight: each weight is
 * read once, straight into registers, and products of the same rows, gated halves, residuals and norms share a kernel
 * as those of one row do. k is summed by a number of warps that it alone says (few_warps), so a row's sums depend
 * neither on the other rows, nor on how many there are from two to eight, nor on strides or on what shares the kernel.
 *
 * One row by int8, int4 or fp8 with groups of a multiple of 64 (int4: 128) of k runs on tensor cores too: 32 lanes read
 * what follows on one another of a row of the weight, and of the instruction's products what stands on its diagonal
 * counts. The weight becomes 16-bit numbers without a conversion, and x is used as it is.
 *
 * Products. Those that take ten microseconds and more are timed once, when a plan first holds one: the best of these
 * kernels and, for large products, cuBLASLt where it is installed (`genie_serve --devices list` says so). The choice is
 * stored beside the compiled kernels and is part of the executor's identity, so that the next process computes the same
 * bits. These kernels take plain f32 products of any shape, alignment and transposition;
 * `bench_gpu --only products_f32 --verbose` sets them beside cuBLASLt.
 *
 * Sections, each using those above it: >>driver (functions found by dlopen) >>text >>gpu (what a device keeps for all
 * sessions) >>kernels (device code that several rooms use) >>emit (what kernels are written with); a room for each kind
 * of kernel, its device code beside its emitters: >>loops >>rows >>products >>indexing >>windows >>attention >>one
 * (steps of one row) >>fuse (what runs in another step's kernel) >>ops (the table); >>compile >>memory >>run
 * >>devices */
#define _GNU_SOURCE
#define GENIE_EXT
#include "genie.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* >>driver ===========================================================================================
 * Functions of the driver, of NVRTC and of cuBLASLt, found by dlopen; the file needs no header and no library of
 * NVIDIA's. */

/* Raised whenever the meaning of a generated kernel changes: part of the cache's key and of the executor's identity. */
#define GN__CU_GENERATOR 36

typedef unsigned long long gn__cu_ptr; /* device memory */
typedef void *gn__cu_handle;

/* CUlaunchAttribute and CUlaunchConfig. */
enum { LAUNCH_CLUSTER = 4, LAUNCH_PROGRAMMATIC = 6 };
typedef struct launch_attribute {
    int id, pad;
    unsigned value[16];
} launch_attribute;
typedef struct launch_config {
    unsigned grid[3], block[3], shared;
    gn__cu_handle stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

/* CUmemAccessDesc: a device, which may read and write. */
enum { LOCATION_DEVICE = 1, ACCESS_READ_WRITE = 3 };
typedef struct pool_access {
    int location, device, flags;
} pool_access;

/* The driver's functions at their 12.0 signatures. X(name, name in the library, arguments) */
#define GN__CU_DRIVER(X)                                                                                            \
    X(cuInit, "cuInit", (unsigned))                                                                                 \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                                            \
    X(cuGetErrorName, "cuGetErrorName", (int, const char **))                                                       \
    X(cuGetErrorString, "cuGetErrorString", (int, const char **))                                                   \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                                \
    X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                                     \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int))                                                       \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                                              \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, int))                                                     \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (gn__cu_handle *, int))                                 \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (gn__cu_handle))                                                          \
    X(cuStreamCreate, "cuStreamCreate", (gn__cu_handle *, unsigned))                                                \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (gn__cu_handle))                                                       \
    X(cuStreamSynchronize, "cuStreamSynchronize", (gn__cu_handle))                                                  \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (gn__cu_handle, int))                                        \
    X(cuStreamEndCapture, "cuStreamEndCapture", (gn__cu_handle, gn__cu_handle *))                                   \
    X(cuEventCreate, "cuEventCreate", (gn__cu_handle *, unsigned))                                                  \
    X(cuEventDestroy, "cuEventDestroy_v2", (gn__cu_handle))                                                         \
    X(cuEventRecord, "cuEventRecord", (gn__cu_handle, gn__cu_handle))                                               \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (gn__cu_handle, gn__cu_handle, unsigned))                             \
    X(cuEventQuery, "cuEventQuery", (gn__cu_handle))                                                                \
    X(cuEventSynchronize, "cuEventSynchronize", (gn__cu_handle))                                                    \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, gn__cu_handle, gn__cu_handle))                            \
    X(cuMemAlloc, "cuMemAlloc_v2", (gn__cu_ptr *, size_t))                                                          \
    X(cuMemFree, "cuMemFree_v2", (gn__cu_ptr))                                                                      \
    X(cuMemAllocAsync, "cuMemAllocAsync", (gn__cu_ptr *, size_t, gn__cu_handle))                                    \
    X(cuMemFreeAsync, "cuMemFreeAsync", (gn__cu_ptr, gn__cu_handle))                                                \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (gn__cu_handle *, int))                               \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (gn__cu_handle, int, void *))                                 \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                                \
    X(cuMemFreeHost, "cuMemFreeHost", (void *))                                                                     \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (gn__cu_ptr, const void *, size_t, gn__cu_handle))                 \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, gn__cu_ptr, size_t, gn__cu_handle))                       \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (gn__cu_ptr, gn__cu_ptr, size_t, gn__cu_handle))                   \
    X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync",                                                                       \
      (gn__cu_ptr, gn__cu_handle, gn__cu_ptr, gn__cu_handle, size_t, gn__cu_handle))                                \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *, int, int))                                            \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (gn__cu_handle, unsigned))                                    \
    X(cuMemPoolSetAccess, "cuMemPoolSetAccess", (gn__cu_handle, const pool_access *, size_t))                       \
    X(cuMemsetD8Async, "cuMemsetD8Async", (gn__cu_ptr, unsigned char, size_t, gn__cu_handle))                       \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", (gn__cu_handle *, const void *, unsigned, int *, void **))          \
    X(cuModuleGetFunction, "cuModuleGetFunction", (gn__cu_handle *, gn__cu_handle, const char *))                   \
    X(cuModuleUnload, "cuModuleUnload", (gn__cu_handle))                                                            \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (gn__cu_handle, int, int))                                          \
    X(cuLaunchKernel, "cuLaunchKernel",                                                                             \
      (gn__cu_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, gn__cu_handle, void **, \
       void **))                                                                                                    \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", (const launch_config *, gn__cu_handle, void **, void **))               \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                                   \
      (gn__cu_handle *, gn__cu_handle, unsigned long long))                                                         \
    X(cuGraphLaunch, "cuGraphLaunch", (gn__cu_handle, gn__cu_handle))                                               \
    X(cuGraphDestroy, "cuGraphDestroy", (gn__cu_handle))                                                            \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (gn__cu_handle))

/* X(name, arguments) */
#define GN__CU_NVRTC(X)                                                                             \
    X(nvrtcVersion, (int *, int *))                                                                 \
    X(nvrtcCreateProgram,                                                                           \
      (gn__cu_handle *, const char *, const char *, int, const char *const *, const char *const *)) \
    X(nvrtcDestroyProgram, (gn__cu_handle *))                                                       \
    X(nvrtcCompileProgram, (gn__cu_handle, int, const char *const *))                               \
    X(nvrtcGetCUBINSize, (gn__cu_handle, size_t *))                                                 \
    X(nvrtcGetCUBIN, (gn__cu_handle, char *))                                                       \
    X(nvrtcGetPTXSize, (gn__cu_handle, size_t *))                                                   \
    X(nvrtcGetPTX, (gn__cu_handle, char *))                                                         \
    X(nvrtcGetProgramLogSize, (gn__cu_handle, size_t *))                                            \
    X(nvrtcGetProgramLog, (gn__cu_handle, char *))                                                  \
    X(nvrtcGetNumSupportedArchs, (int *))                                                           \
    X(nvrtcGetSupportedArchs, (int *))

static struct {
    pthread_mutex_t lock;
    bool tried;
    char why[300]; /* "" when both libraries are there */
    char nvrtc_why[300];
    void *driver, *nvrtc;
    int driver_version, nvrtc_version; /* 12040 */
    /* from 12.0 on, else NULL */
    int (*tensor_map)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *,
                      const unsigned *, int, int, int, int);
    int (*window_map)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const int *, const int *,
                      unsigned, unsigned, const unsigned *, int, int, int, int);
#define GN__X(name, symbol, args) int(*name) args;
    GN__CU_DRIVER(GN__X)
    struct {
        GN__CU_DRIVER(GN__X)
    } real; /* as the driver gives them: those above tell a trace too */
#undef GN__X
#define GN__X(name, args) int(*name) args;
    GN__CU_NVRTC(GN__X)
#undef GN__X
} cu = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- calls of the driver in a trace: each goes through a function that looks whether its thread is traced ---- */

typedef struct call_word {
    enum { WORD_HIDDEN, WORD_NUMBER, WORD_BYTES } kind; /* of an argument: handles and addresses are not told */
    uint64_t value;
} call_word;

static char *put_number(char *at, uint64_t v) {
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    while (n > 0) *at++ = digits[--n];
    return at;
}

/* "(…, 4096 B, …)", and what the call gave when that was an error. */
static void call_told(const char *name, uint64_t begin_ns, const call_word *words, size_t n, int r) {
    char text[400], *at = text;
    gn_span s = { .stage = GN_STAGE_DRIVER, .name = name, .begin_ns = begin_ns, .end_ns = gn_now_ns(), .detail = text };
    for (size_t i = 0; i < n; i++) {
        memcpy(at, i ? ", " : "(", 2);
        at += i ? 2 : 1;
        if (words[i].kind != WORD_HIDDEN) at = put_number(at, words[i].value);
        else *at++ = '_';
        if (words[i].kind == WORD_BYTES) {
            memcpy(at, " B", 2);
            at += 2;
            s.bytes += words[i].value;
        }
    }
    *at++ = ')';
    *at = 0;
    if (r != 0) snprintf(at, 40, " = error %d", r);
    gn_trace_span(&s);
}

#define CALL_WORD(a)                          \
    {                                         \
        _Generic((a), unsigned                \
                 : WORD_NUMBER, int           \
                 : WORD_NUMBER, unsigned long \
                 : WORD_BYTES, default        \
                 : WORD_HIDDEN),              \
            (uint64_t)(uintptr_t)(a)          \
    }
/* Lists of n arguments: their types and names, their names, what is told of them. clang-format off: columns */
/* clang-format off */
#define CALL_1(F, a) F(a, x1)
#define CALL_2(F, a, ...) F(a, x2), CALL_1(F, __VA_ARGS__)
#define CALL_3(F, a, ...) F(a, x3), CALL_2(F, __VA_ARGS__)
#define CALL_4(F, a, ...) F(a, x4), CALL_3(F, __VA_ARGS__)
#define CALL_5(F, a, ...) F(a, x5), CALL_4(F, __VA_ARGS__)
#define CALL_6(F, a, ...) F(a, x6), CALL_5(F, __VA_ARGS__)
#define CALL_7(F, a, ...) F(a, x7), CALL_6(F, __VA_ARGS__)
#define CALL_8(F, a, ...) F(a, x8), CALL_7(F, __VA_ARGS__)
#define CALL_9(F, a, ...) F(a, x9), CALL_8(F, __VA_ARGS__)
#define CALL_10(F, a, ...) F(a, x10), CALL_9(F, __VA_ARGS__)
#define CALL_11(F, a, ...) F(a, x11), CALL_10(F, __VA_ARGS__)
#define CALL_NTH(a, b, c, d, e, f, g, h, i, j, k, n, ...) CALL_##n
#define CALL_OF(...) CALL_NTH(__VA_ARGS__, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define CALL_EACH_(list, F, ...) list(F, __VA_ARGS__)
#define CALL_EACH(list, F, ...) CALL_EACH_(list, F, __VA_ARGS__)
#define CALL_DECLARED(type, name) type name
#define CALL_NAMED(type, name) name
#define CALL_TOLD(type, name) CALL_WORD(name)
#define CALL_DECLARE(...) CALL_EACH(CALL_OF(__VA_ARGS__), CALL_DECLARED, __VA_ARGS__)
#define CALL_NAMES(...) CALL_EACH(CALL_OF(__VA_ARGS__), CALL_NAMED, __VA_ARGS__)
#define CALL_WORDS(...) CALL_EACH(CALL_OF(__VA_ARGS__), CALL_TOLD, __VA_ARGS__)

#define GN__X(name, symbol, args)                                                    \
    static int told_##name(CALL_DECLARE args) {                                      \
        if (!gn_traces()) return cu.real.name(CALL_NAMES args);                      \
        uint64_t begin_ns = gn_now_ns();                                             \
        int r = cu.real.name(CALL_NAMES args);                                       \
        const call_word words[] = { CALL_WORDS args };                               \
        call_told(symbol, begin_ns, words, sizeof words / sizeof *words, r);         \
        return r;                                                                    \
    }
GN__CU_DRIVER(GN__X)
#undef GN__X
/* clang-format on */

static bool env_is(const char *name, const char *value) {
    const char *s = getenv(name);
    return s && strcmp(s, value) == 0;
}

/* A switch that only tests use: the object that is shipped does not even hold its name. */
#ifdef GENIE_TEST
#define TEST_SWITCH(name, value) env_is(name, value)
#else
#define TEST_SWITCH(name, value) false
#endif

/* POSIX lets a symbol's address be read as a function pointer this way. */
static bool symbol(void *library, const char *name, void *slot) {
    void *p = dlsym(library, name);
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

/* Signatures of 12.0: some names mean other functions from 13.0 on, which plain dlsym would still give as the old
   ones. */
static bool driver_symbol(const char *name, const char *in_library, void *slot) {
    int (*find)(const char *, void **, int, unsigned long long, int *) = NULL;
    void *p = NULL;
    int status = 1;
    if (symbol(cu.driver, "cuGetProcAddress_v2", &find) && find(name, &p, 12000, 0, &status) == 0 && p) {
        memcpy(slot, &p, sizeof p);
        return true;
    }
    return symbol(cu.driver, in_library, slot);
}

static bool load_driver(void) {
    const char *place = getenv("GENIE_LIBCUDA");
    cu.driver = dlopen(place ? place : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cu.driver) {
        snprintf(cu.why, sizeof cu.why,
                 "there is no NVIDIA driver here (libcuda.so.1 is not found): install one, 470 or newer");
        return false;
    }
#define GN__X(name, in_library, args)                                                                         \
    cu.name = told_##name;                                                                                    \
    if (!driver_symbol(#name, in_library, &cu.real.name) &&                                                   \
        strcmp(#name, "cuLaunchKernelEx") != 0) { /* 11.8 and newer have it */                                \
        snprintf(cu.why, sizeof cu.why, "the NVIDIA driver is too old (no %s): install 470 or newer", #name); \
        return false;                                                                                         \
    }
    GN__CU_DRIVER(GN__X)
#undef GN__X
    if (!cu.real.cuLaunchKernelEx) cu.cuLaunchKernelEx = NULL;
    if (!driver_symbol("cuTensorMapEncodeTiled", "cuTensorMapEncodeTiled", &cu.tensor_map)) cu.tensor_map = NULL;
    if (!driver_symbol("cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2col", &cu.window_map)) cu.window_map = NULL;
    int r = cu.cuInit(0);
    if (r != 0) {
        const char *text = NULL;
        cu.cuGetErrorString(r, &text);
        snprintf(cu.why, sizeof cu.why, "the NVIDIA driver does not start: %s", text ? text : "unknown error");
        return false;
    }
    cu.cuDriverGetVersion(&cu.driver_version);
    return true;
}

/* Opens libnvrtc from a folder ("": the loader's path). Its builtins first and by full path: it looks them up by bare
   name. */
static bool open_nvrtc(const char *folder, int major) {
    char path[1200];
    const char *slash = *folder ? "/" : "";
    if (*folder) {
        DIR *d = opendir(folder);
        for (struct dirent *f; d && (f = readdir(d)) != NULL;) {
            if (strncmp(f->d_name, "libnvrtc-builtins.so.", 21) != 0 || atoi(f->d_name + 21) != major) continue;
            snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
            dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        }
        if (d) closedir(d);
    }
    if (major == 11) snprintf(path, sizeof path, "%s%slibnvrtc.so.11.2", folder, slash);
    else snprintf(path, sizeof path, "%s%slibnvrtc.so.%d", folder, slash, major);
    cu.nvrtc = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return cu.nvrtc != NULL;
}

typedef bool (*try_folder)(const char *folder, int major);

/* Folders under `root` whose name begins with `prefix`, with `rest` appended. */
static bool try_under(const char *root, const char *prefix, const char *rest, int major, try_folder accepts) {
    DIR *d = opendir(root);
    bool found = false;
    for (struct dirent *f; d && !found && (f = readdir(d)) != NULL;) {
        char path[900];
        if (strncmp(f->d_name, prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "%s/%s%s", root, f->d_name, rest);
        found = access(path, R_OK) == 0 && accepts(path, major);
    }
    if (d) closedir(d);
    return found;
}

/* Wheels install libraries under nvidia/PACKAGE/lib or nvidia/cu13/lib of a Python's site-packages. */
static bool try_wheels(const char *package, int major, try_folder accepts) {
    static const char *const roots[] = { "/usr/local/lib", "/usr/lib", "/opt/conda/lib", "%s/.local/lib", "%s/lib" };
    const char *home = getenv("HOME"), *venv = getenv("VIRTUAL_ENV");
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        char root[500], rest[100];
        const char *base = i == 3 ? home : i == 4 ? venv : "";
        if (!base) continue;
        if (i < 3) snprintf(root, sizeof root, "%s", roots[i]);
        else snprintf(root, sizeof root, i == 3 ? "%s/.local/lib" : "%s/lib", base);
        for (int k = 0; k < 4; k++) {
            snprintf(rest, sizeof rest, "/%s-packages/nvidia/%s/lib", k & 1 ? "dist" : "site",
                     k & 2 ? (major == 13 ? "cu13" : "cu12") : package);
            if (try_under(root, "python3", rest, major, accepts)) return true;
        }
    }
    return false;
}

static bool find_nvrtc(void) {
    const char *place = getenv("GENIE_NVRTC");
    if (place && *place) {
        cu.nvrtc = dlopen(place, RTLD_NOW | RTLD_LOCAL);
        for (int major = 13; major >= 11 && !cu.nvrtc; major--)
            if (open_nvrtc(place, major)) break;
        return cu.nvrtc != NULL;
    }
    int newest = cu.driver_version ? cu.driver_version / 1000 : 13; /* none newer than the driver's major */
    if (newest > 13) newest = 13;
    for (int major = newest; major >= 11; major--) {
        char cuda[64];
        snprintf(cuda, sizeof cuda, "cuda-%d", major);
        if (try_under("/usr/local", cuda, "/lib64", major, open_nvrtc) || open_nvrtc("/usr/local/cuda/lib64", major) ||
            open_nvrtc("", major) || try_wheels("cuda_nvrtc", major, open_nvrtc))
            return true;
    }
    return false;
}

static bool load_nvrtc(void) {
    int major = 0, minor = 0;
    if (!find_nvrtc()) {
        snprintf(
            cu.nvrtc_why, sizeof cu.nvrtc_why,
            "NVRTC, the compiler of kernels, is not found: install libnvrtc 11.2 to 13 of the driver's CUDA version "
            "(the CUDA toolkit, or pip install nvidia-cuda-nvrtc), or set GENIE_NVRTC to its folder");
        return false;
    }
#define GN__X(name, args)                                                                                          \
    if (!symbol(cu.nvrtc, #name, &cu.name)) {                                                                      \
        snprintf(cu.nvrtc_why, sizeof cu.nvrtc_why, "the NVRTC found is too old (no %s): 11.2 or newer is needed", \
                 #name);                                                                                           \
        return false;                                                                                              \
    }
    GN__CU_NVRTC(GN__X)
#undef GN__X
    cu.nvrtcVersion(&major, &minor);
    cu.nvrtc_version = major * 1000 + minor * 10;
    return true;
}

/* Loads both libraries once. NVRTC alone is enough to compile. */
static void load_libraries(void) {
    pthread_mutex_lock(&cu.lock);
    if (!cu.tried) {
        load_driver();
        load_nvrtc();
        cu.tried = true;
    }
    pthread_mutex_unlock(&cu.lock);
}

/* ---- cuBLASLt: found by name, opened when a product first asks for it, since that takes 0.4 s and half a gigabyte */

/* cublasLtMatmulHeuristicResult_t */
typedef struct blas_found {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_found;

/* X(name, arguments) */
#define GN__CU_BLAS(X)                                                                                                 \
    X(cublasLtCreate, (gn__cu_handle *))                                                                               \
    X(cublasLtMatrixLayoutCreate, (gn__cu_handle *, int, uint64_t, uint64_t, int64_t))                                 \
    X(cublasLtMatrixLayoutSetAttribute, (gn__cu_handle, int, const void *, size_t))                                    \
    X(cublasLtMatrixLayoutDestroy, (gn__cu_handle))                                                                    \
    X(cublasLtMatmulDescCreate, (gn__cu_handle *, int, int))                                                           \
    X(cublasLtMatmulDescSetAttribute, (gn__cu_handle, int, const void *, size_t))                                      \
    X(cublasLtMatmulDescDestroy, (gn__cu_handle))                                                                      \
    X(cublasLtMatmulPreferenceCreate, (gn__cu_handle *))                                                               \
    X(cublasLtMatmulPreferenceSetAttribute, (gn__cu_handle, int, const void *, size_t))                                \
    X(cublasLtMatmulPreferenceDestroy, (gn__cu_handle))                                                                \
    X(cublasLtMatmulAlgoGetHeuristic, (gn__cu_handle, gn__cu_handle, gn__cu_handle, gn__cu_handle, gn__cu_handle,      \
                                       gn__cu_handle, gn__cu_handle, int, blas_found *, int *))                        \
    X(cublasLtMatmulAlgoConfigGetAttribute, (const uint64_t *, int, void *, size_t, size_t *))                         \
    X(cublasLtMatmul,                                                                                                  \
      (gn__cu_handle, gn__cu_handle, const void *, gn__cu_ptr, gn__cu_handle, gn__cu_ptr, gn__cu_handle, const void *, \
       gn__cu_ptr, gn__cu_handle, gn__cu_ptr, gn__cu_handle, const uint64_t *, gn__cu_ptr, size_t, gn__cu_handle))

static struct {
    pthread_mutex_t lock;
    bool searched, tried;
    char path[1024], why[1200]; /* path "": absent, and why says how to get it; opened: why says what went wrong, or
                                   "" */
    int major;
    uint64_t bytes; /* of the file: with its name what tells one release from another */
#define GN__X(name, args) int(*name) args;
    GN__CU_BLAS(GN__X)
#undef GN__X
} blas = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool blas_is(const char *path, int major) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || strlen(path) >= sizeof blas.path) return false;
    snprintf(blas.path, sizeof blas.path, "%s", path);
    blas.bytes = (uint64_t)st.st_size;
    blas.major = major;
    return true;
}

static bool blas_in(const char *folder, int major) {
    char path[1000];
    snprintf(path, sizeof path, "%.900s/libcublasLt.so.%d", folder, major);
    return blas_is(path, major);
}

/* The loader's path without opening anything: LD_LIBRARY_PATH, then the loader's own list, which holds full paths as
   strings. */
static bool blas_of_loader(int major) {
    enum { LIST_BYTES = 8 << 20 };
    const char *folders = getenv("LD_LIBRARY_PATH");
    char folder[900], name[40];
    while (folders && *folders) {
        size_t n = strcspn(folders, ":");
        snprintf(folder, sizeof folder, "%.*s", n < sizeof folder ? (int)n : 0, folders);
        if (*folder && blas_in(folder, major)) return true;
        folders += n + (folders[n] == ':');
    }
    FILE *f = fopen("/etc/ld.so.cache", "rb");
    char *list = f ? (char *)gn_alloc(LIST_BYTES) : NULL, *at = list;
    size_t n = list ? fread(list, 1, LIST_BYTES - 1, f) : 0,
           length = (size_t)snprintf(name, sizeof name, "/libcublasLt.so.%d", major) + 1;
    bool found = false;
    if (f) fclose(f);
    while (at && !found && (at = (char *)memmem(at, n - (size_t)(at - list), name, length)) != NULL) {
        const char *path = at;
        while (path > list && path[-1]) path--;
        found = blas_is(path, major);
        at++;
    }
    gn_free(list);
    return found;
}

/* 0 in $GENIE_CUBLASLT is an answer too. None newer than the driver's major. */
static bool find_blas(void) {
    const char *place = getenv("GENIE_CUBLASLT");
    int newest = cu.driver_version ? cu.driver_version / 1000 : 13;
    if (newest > 13) newest = 13;
    if (place && strcmp(place, "0") == 0) {
        snprintf(blas.why, sizeof blas.why, "switched off (GENIE_CUBLASLT=0)");
        return false;
    }
    if (place && *place && blas_is(place, newest)) return true;
    for (int major = newest; major >= 11; major--) {
        char cuda[64];
        snprintf(cuda, sizeof cuda, "cuda-%d", major);
        if (place && *place) {
            if (blas_in(place, major)) return true;
            continue;
        }
        if (try_under("/usr/local", cuda, "/lib64", major, blas_in) ||
            try_under("/usr/local", cuda, "/targets/x86_64-linux/lib", major, blas_in) ||
            blas_in("/usr/local/cuda/lib64", major) || blas_of_loader(major) || try_wheels("cublas", major, blas_in))
            return true;
    }
    if (place && *place)
        snprintf(blas.why, sizeof blas.why, "GENIE_CUBLASLT=%.900s is neither the library nor its folder", place);
    else
        snprintf(blas.why, sizeof blas.why,
                 "not found, own kernels compute all products: install libcublasLt of the driver's CUDA version (the "
                 "CUDA toolkit, or pip install nvidia-cublas), or set GENIE_CUBLASLT to its folder");
    return false;
}

/* Whether the library is there; blas.path and blas.why then stay as they are until it is opened. */
static bool blas_is_there(void) {
    pthread_mutex_lock(&blas.lock);
    if (!blas.searched) find_blas();
    blas.searched = true;
    pthread_mutex_unlock(&blas.lock);
    return *blas.path;
}

/* Opens it, once. False: blas.why says why not. */
static bool load_blas(void) {
    if (!blas_is_there()) return false;
    pthread_mutex_lock(&blas.lock);
    if (!blas.tried) {
        blas.tried = true;
        void *library = dlopen(blas.path, RTLD_NOW | RTLD_LOCAL);
        if (!library) snprintf(blas.why, sizeof blas.why, "cuBLASLt does not open: %.1100s", dlerror());
#define GN__X(name, args)                                  \
    if (!*blas.why && !symbol(library, #name, &blas.name)) \
        snprintf(blas.why, sizeof blas.why, "%.1000s has no %s", blas.path, #name);
        GN__CU_BLAS(GN__X)
#undef GN__X
    }
    pthread_mutex_unlock(&blas.lock);
    return !*blas.why;
}

/* >>text =============================================================================================
 * Growing text, growing arrays, hashes, sizes. */

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)

typedef struct text {
    char *s;
    size_t n, cap;
    bool failed;
} text;

static bool text_reserve(text *t, size_t more) {
    if (t->failed) return false;
    if (t->n + more + 1 <= t->cap) return true;
    size_t cap = t->cap ? t->cap * 2 : 1024;
    while (cap < t->n + more + 1) cap *= 2;
    char *s = (char *)gn_resize(t->s, cap);
    if (!s) {
        t->failed = true;
        return false;
    }
    t->s = s;
    t->cap = cap;
    return true;
}

static void text_add(text *t, const char *s, size_t n) {
    if (!text_reserve(t, n)) return;
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(text *t, const char *format, ...) {
    char small[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n < 0) {
        t->failed = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        text_add(t, small, (size_t)n);
        return;
    }
    if (!text_reserve(t, (size_t)n)) return;
    va_start(args, format);
    vsnprintf(t->s + t->n, (size_t)n + 1, format, args);
    va_end(args);
    t->n += (size_t)n;
}

static void text_free(text *t) {
    gn_free(t->s);
    memset(t, 0, sizeof *t);
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    h ^= 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    h ^= h >> 32;
    return h * 0xd6e8feb86659fd93u;
}

static void *alloc_zero(size_t n) {
    void *p = gn_alloc(n ? n : 1);
    if (p) memset(p, 0, n);
    return p;
}

/* Room for one more element of an array; false when there is no memory. */
static bool grow(void *array_slot, size_t n, size_t *cap, size_t size) {
    void *p;
    memcpy(&p, array_slot, sizeof p);
    if (n < *cap) return true;
    size_t more = *cap ? *cap * 2 : 16;
    p = gn_resize(p, more * size);
    if (!p) return false;
    memcpy(array_slot, &p, sizeof p);
    *cap = more;
    return true;
}

static size_t align_up(size_t bytes) { return gn_size_align(bytes, 256); }

/* >>gpu ==============================================================================================
 * A GPU and what it keeps for all sessions. Kernels by their text: hashes find them, their whole text decides, so no
 * one can have a text that gives another's kernel. Plans hold what they launch; of kernels that no plan holds the
 * device keeps the latest used, and unloads a program with the last of its kernels. Choices of products that were
 * measured. */

enum { DEVICES_MAX = 16, KERNELS_KEPT = 8192 };

typedef struct kernel kernel;

/* How a product is computed: as the model says, by the own kernel that the model holds for the index-th best, or by the
   index-th algorithm that cuBLASLt proposes. mark: of that form or algorithm, so that another one is not taken for
   it. */
typedef enum choice_kind { CHOICE_MODEL, CHOICE_OWN, CHOICE_BLAS, CHOICE__COUNT } choice_kind;
typedef struct choice {
    uint32_t kind, index;
    uint64_t mark;
} choice;

/* What a choice belongs to; rest: a hash of dtypes, strides, alignments, epilogue and switches. */
typedef struct product_key {
    int64_t m, n, k, batches;
    uint64_t rest;
} product_key;

/* The measured choices of products of one GPU. Equal identities compute equal bits, and sessions outlive the moment at
 * which a choice is made, so:
 * - a table has an id, drawn when its file is made, which is the part of the executor's identity;
 * - a shape's choice is made once under an id, is in the file before it is first followed, and then stays: a process
 *   reads the file again, under a lock, before it decides, and takes what another one has decided meanwhile;
 * - what cannot be stored is not chosen: the model's kernel computes it. Only who removes the file while programs run
 *   breaks this. */
enum { CHOICES_MAX = 4096 };
typedef struct stored_choice {
    product_key key;
    choice choice;
} stored_choice;
typedef struct choices {
    pthread_mutex_t measuring;      /* held while a plan's products are measured */
    bool opened, closed;            /* closed: the file is no longer ours, or full; nothing more is chosen */
    char name[48];                  /* of the file: what it depends on, hashed */
    uint64_t id;                    /* 0: none, nothing is measured */
    double least[2], least_blas[2]; /* operations of a product that is measured, and of one that cuBLASLt may compute;
                                       [1]: f32 without tensor cores */
    stored_choice *all;
    size_t n, cap;
} choices;

/* A program that the driver has loaded. texts: what its kernels are made of, see texts_hold. */
/* users: kernels */
typedef struct module {
    struct module *next;
    char key[40], *texts;
    size_t n_texts;
    gn__cu_handle handle;
    uint32_t users;
} module;

struct kernel {
    char name[96];
    char *source;           /* with its name in place */
    uint64_t key[2];        /* hashes of source, prelude, arch, versions */
    gn__cu_handle function; /* NULL: not loaded */
    module *from;           /* it is one of this program's */
    bool compiled;          /* without a device: the compiler took it */
    bool busy;              /* a thread compiles it */
#ifdef GENIE_TEST
    bool chosen; /* of a plan that $GENIE_CUDA_ONE_OF_EACH lets run */
#endif
    char *why;             /* it did not compile */
    uint32_t holders;      /* launches of plans */
    kernel *next;          /* in its bucket */
    kernel *older, *newer; /* of those that nothing holds, by when that ended; of the compile-only device all, in order
                              of making */
};

struct device {
    pthread_mutex_t lock;
    bool open;
    int ordinal, arch;  /* 90 */
    char arch_name[24]; /* "sm_90a", or "compute_90" when NVRTC does not know the device */
    uint64_t code_hash; /* of the device code before its kernels */
    char name[96];
    size_t memory;
    int processors, cache_bytes;
    bool compile_only, has_pools;
    char tenant[64]; /* whose sessions have taken memory, while they are all of one */
    bool has_tenant;
    atomic_bool shared; /* of several */
    atomic_bool proved; /* a first kernel gave what it should */
    atomic_bool lost;   /* an error that the context does not survive; then why stands in lost_why */
    char lost_why[200];
    gn__cu_handle context, pool;       /* pool: of memory in order of streams; NULL: none */
    int handle;                        /* the driver's name of it */
    gn_cluster_link from[DEVICES_MAX]; /* what values cost that come from that device, by its ordinal; bytes_per_s 0:
                                          not yet known */
    pthread_cond_t compiled;           /* a thread has ended compiling */
    kernel *buckets[4096];
    kernel *newest, *oldest;
    size_t n_kernels, n_unheld;
    module *modules;
#ifdef GENIE_TEST
    uint64_t kinds[4096]; /* hashes of the kinds of kernels that have run, for $GENIE_CUDA_ONE_OF_EACH */
#endif
    gn__cu_handle blas; /* of cuBLASLt, made when it is first wanted */
    bool blas_tried, blas_told;
    atomic_bool blas_failed; /* one of its products did: own kernels compute all from then on */
    choices choices;
};

static struct device devices[DEVICES_MAX + 1]; /* the last one: compile only */
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

static void dump_kernel(const kernel *k) {
    const char *dir = getenv("GENIE_DUMP_KERNELS");
    char path[600];
    if (!dir || !*dir) return;
    mkdir(dir, 0755);
    snprintf(path, sizeof path, "%s/%s.cu", dir, k->name);
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(
        f, "// %s: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.\n%s",
        k->name, k->source);
    fclose(f);
}

/* '@' becomes the kernel's name. */
static void put_named(text *t, const char *s, size_t n, const char *name) {
    for (size_t i = 0, from = 0; i <= n; i++) {
        if (i < n && s[i] != '@') continue;
        text_add(t, s + from, i - from);
        if (i < n) put(t, "%s", name);
        from = i + 1;
    }
}

/* In the order of kernels that nothing holds, or out of it. */
static void kernel_link(struct device *d, kernel *k) {
    k->newer = NULL;
    k->older = d->newest;
    if (d->newest) d->newest->newer = k;
    else d->oldest = k;
    d->newest = k;
    d->n_unheld++;
}

static void kernel_unlink(struct device *d, kernel *k) {
    if (k->older) k->older->newer = k->newer;
    else d->oldest = k->newer;
    if (k->newer) k->newer->older = k->older;
    else d->newest = k->older;
    k->older = k->newer = NULL;
    d->n_unheld--;
}

/* With the last of its kernels a program goes. Nothing runs it: plans wait for their runs before they give their
   kernels. */
static void module_release(struct device *d, module *m) {
    module **at = &d->modules;
    if (!m || --m->users) return;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (!atomic_load(&d->lost)) cu.cuModuleUnload(m->handle);
    gn_free(m->texts);
    gn_free(m);
}

static void kernel_forget(struct device *d, kernel *k) {
    kernel **at = &d->buckets[k->key[0] & 4095];
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    kernel_unlink(d, k);
    module_release(d, k->from);
    d->n_kernels--;
    gn_free(k->source);
    gn_free(k->why);
    gn_free(k);
}

/* How many kernels that nothing holds are kept; fewer for tests. */
static size_t kernels_kept(void) {
    const char *s = getenv("GENIE_CUDA_KERNELS");
    return s && *s ? (size_t)strtoull(s, NULL, 10) : KERNELS_KEPT;
}

static void kernel_release(struct device *d, kernel *k) {
    if (!k || d->compile_only) return; /* there they wait to be compiled together */
    pthread_mutex_lock(&d->lock);
    if (!--k->holders) kernel_link(d, k);
    for (size_t kept = kernels_kept(); d->n_unheld > kept;) kernel_forget(d, d->oldest);
    pthread_mutex_unlock(&d->lock);
}

static kernel *kernel_make(struct device *d, const char *name, const uint64_t key[2], text *source) {
    kernel *k = (kernel *)alloc_zero(sizeof *k);
    if (!k) return NULL;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->key[0] = key[0];
    k->key[1] = key[1];
    k->source = source->s;
    *source = (text){ 0 };
    k->next = d->buckets[key[0] & 4095];
    d->buckets[key[0] & 4095] = k;
    if (d->compile_only) kernel_link(d, k);
    d->n_kernels++;
    dump_kernel(k);
    return k;
}

/* The kernel of this text, which the caller holds from here on; *made counts those that are new. NULL: there is no
   memory. */
static kernel *kernel_of(struct device *d, const char *label, const char *bounds, const text *types_text,
                         const text *signature, const text *body, uint32_t *made) {
    uint64_t key[2];
    char name[96];
    text t = { 0 };
    for (int i = 0; i < 2; i++) {
        uint64_t h = hash_bytes(d->code_hash + (uint64_t)i * 77 + (uint64_t)cu.nvrtc_version, d->arch_name,
                                strlen(d->arch_name));
        h = hash_bytes(h, label, strlen(label));
        h = hash_bytes(h, bounds, strlen(bounds));
        h = hash_bytes(h, types_text->s ? types_text->s : "", types_text->n);
        h = hash_bytes(h, signature->s ? signature->s : "", signature->n);
        key[i] = hash_bytes(h, body->s ? body->s : "", body->n);
    }
    if (TEST_SWITCH("GENIE_CUDA_HASH", "0")) key[0] = key[1] = 0; /* all alike */
    snprintf(name, sizeof name, "%.60s_%012llx", label, (unsigned long long)(key[0] & 0xffffffffffffu));
    if (types_text->n) put_named(&t, types_text->s, types_text->n, name);
    put(&t, "extern \"C\" __global__ void %s %s(%s) {\n", bounds, name, signature->s ? signature->s : "");
    if (body->n) put_named(&t, body->s, body->n, name);
    put(&t, "}\n");
    if (t.failed) {
        text_free(&t);
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    kernel *k = d->buckets[key[0] & 4095];
    while (k && (k->key[0] != key[0] || k->key[1] != key[1] || strcmp(k->source, t.s) != 0)) k = k->next;
    if (!k && (k = kernel_make(d, name, key, &t)) != NULL) ++*made;
    else if (k && !k->holders && !d->compile_only) kernel_unlink(d, k);
    if (k) k->holders++;
    pthread_mutex_unlock(&d->lock);
    text_free(&t);
    return k;
}

static stored_choice *choices_find(const choices *table, const product_key *key) {
    for (size_t i = 0; i < table->n; i++)
        if (memcmp(&table->all[i].key, key, sizeof *key) == 0) return &table->all[i];
    return NULL;
}

/* >>kernels ==========================================================================================
 * Device code that kernels of several kinds use: types, conversions, scalar mathematics, sums; what sm_90a adds.
 * Each room below holds the code of its own kind beside the functions that emit it; >>compile puts all of it before
 * the kernels of a program. */

/* clang-format off */
#define GELU_NUMBERS                                    \
    "#define GELU_1 " TEXT_OF(GN_GELU_1) "\n"           \
    "#define GELU_1_REST " TEXT_OF(GN_GELU_1_REST) "\n" \
    "#define GELU_3 " TEXT_OF(GN_GELU_3) "\n"           \
    "#define GELU_3_REST " TEXT_OF(GN_GELU_3_REST) "\n"
/* clang-format on */

static const char shared_text[] =
    "// Genie: types, conversions, scalar mathematics and the bodies that generated kernels are made of.\n"
    "typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64; typedef unsigned short u16; "
    "typedef unsigned char u8; typedef signed char i8; typedef short i16;\n"
    "struct f16 { u16 b; }; struct bf16 { u16 b; }; struct b8 { u8 b; };\n"
    "#ifndef GN_HOST\n"
    "#define D static __device__ __forceinline__\n"
    "#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]\n"
    "#endif\n"
    "#define M __device__ __forceinline__\n"
    "#define UNROLL _Pragma(\"unroll\")\n"
    "D u32 gn_u32(float x) { return __float_as_uint(x); }\n"
    "D float gn_f32(u32 x) { return __uint_as_float(x); }\n"
    "D double gn_f64(u64 x) { return __longlong_as_double((i64)x); }\n"
    "D float half_float(u32 h) {\n"
    "#ifdef GN_HOST\n"
    "  u32 sign = (h & 0x8000u) << 16, mag = h & 0x7fffu;\n"
    "  if (mag >= 0x7c00u) return gn_f32(sign | 0x7f800000u | (mag << 13));\n"
    "  if (mag >= 0x0400u) return gn_f32(sign | ((mag << 13) + 0x38000000u));\n"
    "  float x = (float)mag * 5.9604644775390625e-8f;\n"
    "  return sign ? -x : x;\n"
    "#else\n"
    "  float r; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(r) : \"h\"((u16)h)); return r;\n"
    "#endif\n"
    "}\n"
    "D u16 float_half(float x) {\n"
    "#ifdef GN_HOST\n"
    "  u32 u = gn_u32(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;\n"
    "  if (mag > 0x7f800000u) return (u16)(sign | 0x7e00u | ((mag >> 13) & 0x1ffu));\n"
    "  if (mag >= 0x47800000u) return (u16)(sign | 0x7c00u);\n"
    "  if (mag < 0x38800000u) return (u16)(sign | (gn_u32(gn_f32(mag) + 0.5f) - 0x3f000000u));\n"
    "  return (u16)(sign | ((mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13));\n"
    "#else\n"
    "  u16 r; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x)); return r;\n"
    "#endif\n"
    "}\n"
    "D u16 float_bfloat(float x) {\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 900\n"
    "  u16 r; asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x)); return r;\n"
    "#endif\n"
    "  u32 u = gn_u32(x);\n"
    "  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)((u >> 16) | 0x40u);\n"
    "  return (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);\n"
    "}\n"
    "D float odd(double d) {                             // f64 to f32 by rounding to odd: a second rounding to fewer "
    "bits is correct\n"
    "  float f = (float)d;\n"
    "  if ((double)f == d || d != d || f - f != 0) return f;\n"
    "  u32 u = gn_u32(f);\n"
    "  if (fabs((double)f) > fabs(d)) u--;\n"
    "  return gn_f32(u | 1u);\n"
    "}\n"
    "D float get(float x) { return x; }\n"
    "D double get(double x) { return x; }\n"
    "D float get(f16 x) { return half_float(x.b); }\n"
    "D float get(bf16 x) { return gn_f32((u32)x.b << 16); }\n"
    "D int get(int x) { return x; }\n"
    "D i64 get(i64 x) { return x; }\n"
    "D int get(u8 x) { return x; }\n"
    "D int get(b8 x) { return x.b != 0; }\n"
    "D int get(i8 x) { return x; }\n"
    "D int get(i16 x) { return x; }\n"
    "D int get(u16 x) { return x; }\n"
    "D i64 get(u32 x) { return x; }\n"
    "D u64 get(u64 x) { return x; }\n"
    "D void put(float &o, float v) { o = v; }\n"
    "D void put(float &o, double v) { o = (float)v; }\n"
    "D void put(double &o, double v) { o = v; }\n"
    "D void put(double &o, float v) { o = v; }\n"
    "D void put(f16 &o, float v) { o.b = float_half(v); }\n"
    "D void put(f16 &o, double v) { o.b = float_half(odd(v)); }\n"
    "D void put(bf16 &o, float v) { o.b = float_bfloat(v); }\n"
    "D void put(bf16 &o, double v) { o.b = float_bfloat(odd(v)); }\n"
    "// integers wrap\n"
    "template <class S> M void put(int &o, S v) { o = (int)(u32)(u64)v; }\n"
    "template <class S> M void put(i64 &o, S v) { o = (i64)v; }\n"
    "template <class S> M void put(u64 &o, S v) { o = (u64)v; }\n"
    "template <class S> M void put(u8 &o, S v) { o = (u8)(u64)v; }\n"
    "template <class S> M void put(i8 &o, S v) { o = (i8)v; }\n"
    "template <class S> M void put(i16 &o, S v) { o = (i16)v; }\n"
    "template <class S> M void put(u16 &o, S v) { o = (u16)v; }\n"
    "template <class S> M void put(u32 &o, S v) { o = (u32)(u64)v; }\n"
    "template <class S> M void put(b8 &o, S v) { o.b = v != 0; }\n"
    "template <class T> struct compute { typedef T t; };\n"
    "template <> struct compute<f16> { typedef float t; };\n"
    "template <> struct compute<bf16> { typedef float t; };\n"
    "template <> struct compute<u8> { typedef int t; };\n"
    "template <> struct compute<b8> { typedef int t; };\n"
    "template <> struct compute<i8> { typedef int t; };\n"
    "template <> struct compute<i16> { typedef int t; };\n"
    "template <> struct compute<u16> { typedef int t; };\n"
    "template <> struct compute<u32> { typedef i64 t; };\n"
    "// 16-byte accesses\n"
    "template <int B> struct raw { typedef uint4 t; };\n"
    "template <> struct raw<8> { typedef uint2 t; };\n"
    "template <> struct raw<4> { typedef u32 t; };\n"
    "template <> struct raw<2> { typedef u16 t; };\n"
    "template <> struct raw<1> { typedef u8 t; };\n"
    "template <int V, class T> M void vload(T *d, const T *p) {\n"
    "  typedef typename raw<(sizeof(T) * V > 16 ? 16 : sizeof(T) * V)>::t W;\n"
    "  union { W w[sizeof(T) * V / sizeof(W)]; T e[V]; } u;\n"
    "  UNROLL for (int i = 0; i < (int)(sizeof(T) * V / sizeof(W)); i++) u.w[i] = ((const W *)p)[i];\n"
    "  UNROLL for (int i = 0; i < V; i++) d[i] = u.e[i];\n"
    "}\n"
    "template <int V, class T> M void vstore(T *p, const T *d) {\n"
    "  typedef typename raw<(sizeof(T) * V > 16 ? 16 : sizeof(T) * V)>::t W;\n"
    "  union { W w[sizeof(T) * V / sizeof(W)]; T e[V]; } u;\n"
    "  UNROLL for (int i = 0; i < V; i++) u.e[i] = d[i];\n"
    "  UNROLL for (int i = 0; i < (int)(sizeof(T) * V / sizeof(W)); i++) ((W *)p)[i] = u.w[i];\n"
    "}\n"
    "// The same of memory that no kernel of this launch writes: may be read before earlier stores are done.\n"
    "#ifdef GN_HOST\n"
    "#define CONSTANT(p) (*(p))\n"
    "#else\n"
    "#define CONSTANT(p) __ldg(p)\n"
    "#endif\n"
    "template <int V, class T> M void vconst(T *d, const T *p) {\n"
    "  typedef typename raw<(sizeof(T) * V > 16 ? 16 : sizeof(T) * V)>::t W;\n"
    "  union { W w[sizeof(T) * V / sizeof(W)]; T e[V]; } u;\n"
    "  UNROLL for (int i = 0; i < (int)(sizeof(T) * V / sizeof(W)); i++) u.w[i] = CONSTANT((const W *)p + i);\n"
    "  UNROLL for (int i = 0; i < V; i++) d[i] = u.e[i];\n"
    "}\n"
    "// the mathematics of scalar bodies\n"
    "D float gn_add(float a, float b) { return a + b; }\n"
    "D double gn_add(double a, double b) { return a + b; }\n"
    "D int gn_add(int a, int b) { return (int)((u32)a + (u32)b); }\n"
    "D i64 gn_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }\n"
    "D u64 gn_add(u64 a, u64 b) { return a + b; }\n"
    "D float gn_sub(float a, float b) { return a - b; }\n"
    "D double gn_sub(double a, double b) { return a - b; }\n"
    "D int gn_sub(int a, int b) { return (int)((u32)a - (u32)b); }\n"
    "D i64 gn_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }\n"
    "D u64 gn_sub(u64 a, u64 b) { return a - b; }\n"
    "D float gn_mul(float a, float b) { return a * b; }\n"
    "D double gn_mul(double a, double b) { return a * b; }\n"
    "D int gn_mul(int a, int b) { return (int)((u32)a * (u32)b); }\n"
    "D i64 gn_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }\n"
    "D u64 gn_mul(u64 a, u64 b) { return a * b; }\n"
    "D float gn_div(float a, float b) { return a / b; }\n"
    "D double gn_div(double a, double b) { return a / b; }\n"
    "D int gn_div(int a, int b) { return b == 0 ? 0 : b == -1 ? (int)(0u - (u32)a) : a / b; }\n"
    "D i64 gn_div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0ull - (u64)a) : a / b; }\n"
    "D u64 gn_div(u64 a, u64 b) { return b == 0 ? 0 : a / b; }\n"
    "D float gn_neg(float a) { return -a; }\n"
    "D double gn_neg(double a) { return -a; }\n"
    "D int gn_neg(int a) { return (int)(0u - (u32)a); }\n"
    "D i64 gn_neg(i64 a) { return (i64)(0ull - (u64)a); }\n"
    "D u64 gn_neg(u64 a) { return 0ull - a; }\n"
    "D float gn_abs(float a) { return fabsf(a); }\n"
    "D double gn_abs(double a) { return fabs(a); }\n"
    "D int gn_abs(int a) { return a < 0 ? (int)(0u - (u32)a) : a; }\n"
    "D i64 gn_abs(i64 a) { return a < 0 ? (i64)(0ull - (u64)a) : a; }\n"
    "D u64 gn_abs(u64 a) { return a; }\n"
    "D float gn_pow(float a, float b) { return powf(a, b); }\n"
    "D double gn_pow(double a, double b) { return pow(a, b); }\n"
    "D float gn_exp(float a) { return expf(a); }\n"
    "D double gn_exp(double a) { return exp(a); }\n"
    "D float gn_log(float a) { return logf(a); }\n"
    "D double gn_log(double a) { return log(a); }\n"
    "D float gn_sqrt(float a) { return sqrtf(a); }\n"
    "D double gn_sqrt(double a) { return sqrt(a); }\n"
    "D float gn_tanh(float a) { return tanhf(a); }\n"
    "D double gn_tanh(double a) { return tanh(a); }\n"
    "// 1 / x and 2^x within 1 and 2 ulp; under the smallest normal number 0\n"
    "#ifdef GN_HOST\n"
    "D float rcp_near(float x) { return 1.f / x; }\n"
    "D float exp2_near(float x) { return exp2f(x); }\n"
    "#else\n"
    "D float rcp_near(float x) { float r; asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"
    "D float exp2_near(float x) { float r; asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"
    "#endif\n"
    "// exp(-c c) t p(t) for c = |x|, t = 1 / (1 + 3/8 c), p of degree 8 with a relative error of 1.3e-8 (least "
    "squares reweighted to\n"
    "// the least maximum); the square is taken in two parts. The power is 2^24 times too large and p as much too "
    "small, so that a\n"
    "// result that is not normal is rounded once. NaN stays.\n"
    "D float erfc_head(float t) {\n"
    "  float p = 3.66134567e-09f;\n"
    "  p = fmaf(p, t, -1.70948997e-08f); p = fmaf(p, t, 2.57101824e-08f); p = fmaf(p, t, -1.36043186e-08f); "
    "p = fmaf(p, t, 1.62683449e-08f);\n"
    "  p = fmaf(p, t, 7.26175742e-09f); p = fmaf(p, t, 1.22327553e-08f); p = fmaf(p, t, 1.25563702e-08f); "
    "return fmaf(p, t, 1.2613107e-08f);\n"
    "}\n"
    "D float gn_erfc(float x) {\n"
    "  const float c = fabsf(x) > 10.2f ? 10.2f : fabsf(x), t = rcp_near(fmaf(c, 0.375f, 1.f));\n"
    "  const float high = -c * c, low = fmaf(-c, c, -high), j = fmaf(high, 1.44269504f, 12583063.f), n = j - "
    "12583063.f;\n"
    "  const float e = exp2_near(fmaf(low, 1.44269504f, fmaf(high, 1.92596299e-8f, fmaf(high, 1.44269502f, -n)))) * "
    "gn_f32(gn_u32(j) << 23);\n"
    "  const float y = e * (t * erfc_head(t));\n"
    "  return x < 0.f ? 2.f - y : y;\n"
    "}\n"
    "D double gn_erfc(double a) { return erfc(a); }\n"
    "// m erfc(-x / sqrt 2) / 2 for m = x or NaN where x is: half the square of x in two parts. 2^23 m and the 2^24 of "
    "the power are taken back last, so that neither a small m nor a small power is rounded twice. The double's "
    "argument is corrected for its rounding.\n"
    "D float gn_normal(float m, float x) {\n"
    "  const float a = fabsf(x), b = fminf(a, 14.4f), t = rcp_near(fmaf(b, 0.26516504f, 1.f)), below = x > 14.4f ? 0.f "
    ": m;\n"
    "  const float half = -0.5f * b, high = half * b, low = fmaf(half, b, -high), j = fmaf(high, 1.44269504f, "
    "12583063.f), n = j - 12583063.f;\n"
    "  const float e = exp2_near(fmaf(low, 1.44269504f, fmaf(high, 1.92596299e-8f, fmaf(high, 1.44269502f, -n)))) * "
    "gn_f32(gn_u32(j) << 23);\n"
    "  const float more = a > 14.4f ? 0.f : 8388608.f, y = e * (t * erfc_head(t) * (more * below)) * 5.96046448e-08f;\n"
    "  return x <= 0.f ? y : m - y;\n"
    "}\n"
    "D double gn_normal(double m, double x) {\n"
    "  const double z = x * -0.70710678118654752440, lost = fma(x, -0.70710678118654752440, -z) + x * "
    "4.8336466567264567e-17;\n"
    "  const double y = 0.5 * m * erfc(z);\n"
    "  return z > 1. && z < 28. ? fma(y, -2. * z * lost, y) : y;\n"
    "}\n"
    "D float gn_floor(float a) { return floorf(a); }\n"
    "D double gn_floor(double a) { return floor(a); }\n"
    "D float gn_ceil(float a) { return ceilf(a); }\n"
    "D double gn_ceil(double a) { return ceil(a); }\n"
    "D float gn_rint(float a) { return rintf(a); }\n"
    "D double gn_rint(double a) { return rint(a); }\n"
    "D float gn_trunc(float a) { return truncf(a); }\n"
    "D double gn_trunc(double a) { return trunc(a); }\n"
    "D float gn_exp2(float a) { return exp2f(a); }\n"
    "D double gn_exp2(double a) { return exp2(a); }\n"
    "D float gn_expm1(float a) { return expm1f(a); }\n"
    "D double gn_expm1(double a) { return expm1(a); }\n"
    "D float gn_log2(float a) { return log2f(a); }\n"
    "D double gn_log2(double a) { return log2(a); }\n"
    "D float gn_log10(float a) { return log10f(a); }\n"
    "D double gn_log10(double a) { return log10(a); }\n"
    "D float gn_log1p(float a) { return log1pf(a); }\n"
    "D double gn_log1p(double a) { return log1p(a); }\n"
    "D float gn_sin(float a) { return sinf(a); }\n"
    "D double gn_sin(double a) { return sin(a); }\n"
    "D float gn_cos(float a) { return cosf(a); }\n"
    "D double gn_cos(double a) { return cos(a); }\n"
    "D float gn_tan(float a) { return tanf(a); }\n"
    "D double gn_tan(double a) { return tan(a); }\n"
    "D float gn_asin(float a) { return asinf(a); }\n"
    "D double gn_asin(double a) { return asin(a); }\n"
    "D float gn_acos(float a) { return acosf(a); }\n"
    "D double gn_acos(double a) { return acos(a); }\n"
    "D float gn_atan(float a) { return atanf(a); }\n"
    "D double gn_atan(double a) { return atan(a); }\n"
    "D float gn_sinh(float a) { return sinhf(a); }\n"
    "D double gn_sinh(double a) { return sinh(a); }\n"
    "D float gn_cosh(float a) { return coshf(a); }\n"
    "D double gn_cosh(double a) { return cosh(a); }\n"
    "D float gn_asinh(float a) { return asinhf(a); }\n"
    "D double gn_asinh(double a) { return asinh(a); }\n"
    "D float gn_acosh(float a) { return acoshf(a); }\n"
    "D double gn_acosh(double a) { return acosh(a); }\n"
    "D float gn_atanh(float a) { return atanhf(a); }\n"
    "D double gn_atanh(double a) { return atanh(a); }\n"
    "D float gn_erf(float a) { return erff(a); }\n"
    "D double gn_erf(double a) { return erf(a); }\n"
    "D float gn_atan2(float a, float b) { return atan2f(a, b); }\n"
    "D double gn_atan2(double a, double b) { return atan2(a, b); }\n"
    "D float gn_hypot(float a, float b) { return hypotf(a, b); }\n"
    "D double gn_hypot(double a, double b) { return hypot(a, b); }\n"
    "D float gn_copysign(float a, float b) { return copysignf(a, b); }\n"
    "D double gn_copysign(double a, double b) { return copysign(a, b); }\n"
    "D float gn_fmod(float a, float b) { return fmodf(a, b); }\n"
    "D double gn_fmod(double a, double b) { return fmod(a, b); }\n"
    "D int gn_fmod(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }\n"
    "D i64 gn_fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }\n"
    "D u64 gn_fmod(u64 a, u64 b) { return b == 0 ? 0 : a % b; }\n"
    "template <class T> M T gn_remainder(T a, T b) { T m = gn_fmod(a, b); "
    "return m != 0 && (m < 0) != (b < 0) ? m + b : m; }\n"
    "template <> M u64 gn_remainder<u64>(u64 a, u64 b) { return gn_fmod(a, b); }\n"
    "D float gn_floordiv(float a, float b) {\n"
    "  float m = fmodf(a, b), q = rintf((a - m) / b) - (float)(m != 0 && (m < 0) != (b < 0));\n"
    "  return b == 0 ? a / b : q == 0 ? copysignf(0.f, a / b) : q;\n"
    "}\n"
    "D double gn_floordiv(double a, double b) {\n"
    "  double m = fmod(a, b), q = rint((a - m) / b) - (double)(m != 0 && (m < 0) != (b < 0));\n"
    "  return b == 0 ? a / b : q == 0 ? copysign(0., a / b) : q;\n"
    "}\n"
    "D int gn_floordiv(int a, int b) { int m = gn_fmod(a, b); return gn_div(a, b) - (m != 0 && (m < 0) != (b < 0)); }\n"
    "D i64 gn_floordiv(i64 a, i64 b) { i64 m = gn_fmod(a, b); return gn_div(a, b) - (m != 0 && (m < 0) != (b < 0)); }\n"
    "D u64 gn_floordiv(u64 a, u64 b) { return gn_div(a, b); }\n"
    "D int gn_shl(int a, int b) { return b < 0 || b >= 32 ? 0 : (int)((u32)a << b); }\n"
    "D i64 gn_shl(i64 a, i64 b) { return b < 0 || b >= 64 ? 0 : (i64)((u64)a << b); }\n"
    "D u64 gn_shl(u64 a, u64 b) { return b >= 64 ? 0 : a << b; }\n"
    "template <class T> M T gn_shr(T a, T b) {\n"
    "  if (b < 0 || b >= (T)(8 * sizeof(T))) return a < 0 ? -1 : 0;\n"
    "  return a < 0 ? (T)~(T)(~a >> b) : (T)(a >> b);\n"
    "}\n"
    "template <> M u64 gn_shr<u64>(u64 a, u64 b) { return b >= 64 ? 0 : a >> b; }\n"
    "template <class T> M T gn_fma(T a, T b, T c) { return a * b + c; }\n"
    "template <> M float gn_fma<float>(float a, float b, float c) { return fmaf(a, b, c); }\n"
    "template <> M double gn_fma<double>(double a, double b, double c) { return fma(a, b, c); }\n"
    "template <> M int gn_fma<int>(int a, int b, int c) { return (int)((u32)a * (u32)b + (u32)c); }\n"
    "template <> M i64 gn_fma<i64>(i64 a, i64 b, i64 c) { return (i64)((u64)a * (u64)b + (u64)c); }\n"
    /* the numbers of GELU as genie.h has them */
    GELU_NUMBERS "// m / (one + v) by\n"
    "template <class C> struct power { C one, v, by; };\n"
    "D float over(float m, power<float> p) { return 0.25f * rcp_near(fmaf(p.v, 0.25f, 0.25f)) * m * p.by; }\n"
    "D double over(double m, power<double> p) { return m / (p.one + p.v) * p.by; }\n"
    "// v = e^-a, as far as a quarter of the reciprocal of 1 + v is normal; what is beyond is taken off afterwards, so "
    "that a result that is not normal is rounded once\n"
    "D power<float> power_of(float a) {\n"
    "  const float x = a < -87.f ? 87.f : -a;\n"
    "  power<float> p; p.one = 1.f; p.v = expf(x); p.by = exp2_near(fminf(a + 87.f, 0.f) * 1.44269504f);\n"
    "  return p;\n"
    "}\n"
    "D power<double> power_of(double a) {\n"
    "  const bool low = a < -700.;\n"
    "  power<double> p; p.one = low ? 0. : 1.; p.v = exp(low ? -a - 60. : -a); p.by = low ? 8.75651076269652e-27 : "
    "1.;\n"
    "  return p;\n"
    "}\n"
    "D double gn_logistic(double m, double a) { return over(m, power_of(a)); }\n"
    "// m / (1 + e^-a), m: 1 or a. e: 2^40 e^-|a|, so that what is not normal is rounded once, last.\n"
    "D float gn_logistic(float m, float a) {\n"
    "  const float c = fabsf(a), j = fmaxf(fmaf(c, -1.44269504f, 12583079.f), 12582913.f), n = j - 12583079.f;\n"
    "  const float e = exp2_near(fmaf(c, -1.92596299e-8f, fmaf(c, -1.44269502f, -n))) * gn_f32(gn_u32(j) << 23);\n"
    "  const float r = rcp_near(fmaf(e, 9.09494702e-13f, 1.f));\n"
    "  return (a < 0.f ? r * e : r) * m * (a < 0.f ? 9.09494702e-13f : 1.f);\n"
    "}\n"
    "template <class C> M C gn_mish(C a) {\n"
    "  power<C> p = power_of(a);\n"
    "  p.v = (C)2 * p.v / (p.one / p.v + (C)2);\n"
    "  return over(a, p);\n"
    "}\n"
    "// c1 a + c3 a^3 in two parts\n"
    "template <class C> M C gn_gelu_tanh(C a) {\n"
    "  const C most = (C)40, x = a > most ? most : a < -most ? -most : a, s = x * x, u = s * (C)GELU_3;\n"
    "  const C c1 = (C)GELU_1, c1_rest = (C)(GELU_1 - (double)c1 + GELU_1_REST), c3_rest = (C)(GELU_3 - "
    "(double)(C)GELU_3 + GELU_3_REST);\n"
    "  const C w = c1 + u, back = w - c1;\n"
    "  C lo = (c1 - (w - back)) + (u - back);\n"
    "  lo += gn_fma(s, (C)GELU_3, -u) + (gn_fma(x, x, -s) * (C)GELU_3 + s * c3_rest) + c1_rest;\n"
    "  const C p = x * w;\n"
    "  power<C> e = power_of(p);\n"
    "  lo = gn_fma(x, w, -p) + x * lo;\n"
    "  e.v = lo == (C)0 || e.v > (C)1e308 ? e.v : gn_fma(-e.v, lo, e.v);\n"
    "  return over(a, e);\n"
    "}\n"
    "#define GN_C(x) ((GN_T)(x))\n"
    "#define GN_M_ADD(a, b) gn_add(a, b)\n"
    "#define GN_M_SUB(a, b) gn_sub(a, b)\n"
    "#define GN_M_MUL(a, b) gn_mul(a, b)\n"
    "#define GN_M_DIV(a, b) gn_div(a, b)\n"
    "#define GN_M_NEG(a) gn_neg(a)\n"
    "#define GN_M_ABS(a) gn_abs(a)\n"
    "#define GN_M_MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))\n"
    "#define GN_M_MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))\n"
    "#define GN_M_POW(a, b) gn_pow(a, b)\n"
    "#define GN_M_EXP(a) gn_exp(a)\n"
    "#define GN_M_LOG(a) gn_log(a)\n"
    "#define GN_M_SQRT(a) gn_sqrt(a)\n"
    "#define GN_M_TANH(a) gn_tanh(a)\n"
    "#define GN_M_ERFC(a) gn_erfc(a)\n"
    "#define GN_M_LOGISTIC(m, a) gn_logistic(m, a)\n"
    "#define GN_M_NORMAL(m, a) gn_normal(m, a)\n"
    "#define GN_M_GELU_TANH(a) gn_gelu_tanh(a)\n"
    "#define GN_M_MISH(a) gn_mish(a)\n"
    "#define GN_M_FLOOR(a) gn_floor(a)\n"
    "#define GN_M_CEIL(a) gn_ceil(a)\n"
    "#define GN_M_RINT(a) gn_rint(a)\n"
    "#define GN_M_TRUNC(a) gn_trunc(a)\n"
    "#define GN_M_EXP2(a) gn_exp2(a)\n"
    "#define GN_M_EXPM1(a) gn_expm1(a)\n"
    "#define GN_M_LOG2(a) gn_log2(a)\n"
    "#define GN_M_LOG10(a) gn_log10(a)\n"
    "#define GN_M_LOG1P(a) gn_log1p(a)\n"
    "#define GN_M_SIN(a) gn_sin(a)\n"
    "#define GN_M_COS(a) gn_cos(a)\n"
    "#define GN_M_TAN(a) gn_tan(a)\n"
    "#define GN_M_ASIN(a) gn_asin(a)\n"
    "#define GN_M_ACOS(a) gn_acos(a)\n"
    "#define GN_M_ATAN(a) gn_atan(a)\n"
    "#define GN_M_SINH(a) gn_sinh(a)\n"
    "#define GN_M_COSH(a) gn_cosh(a)\n"
    "#define GN_M_ASINH(a) gn_asinh(a)\n"
    "#define GN_M_ACOSH(a) gn_acosh(a)\n"
    "#define GN_M_ATANH(a) gn_atanh(a)\n"
    "#define GN_M_ERF(a) gn_erf(a)\n"
    "#define GN_M_ATAN2(a, b) gn_atan2(a, b)\n"
    "#define GN_M_HYPOT(a, b) gn_hypot(a, b)\n"
    "#define GN_M_COPYSIGN(a, b) gn_copysign(a, b)\n"
    "#define GN_M_FMOD(a, b) gn_fmod(a, b)\n"
    "#define GN_M_REMAINDER(a, b) gn_remainder(a, b)\n"
    "#define GN_M_FLOORDIV(a, b) gn_floordiv(a, b)\n"
    "#define GN_M_SHL(a, b) gn_shl(a, b)\n"
    "#define GN_M_SHR(a, b) gn_shr(a, b)\n"
    "#define GN_M_FMA(a, b, c) gn_fma(a, b, c)\n"
    "// casts between compute types as a dtype holds them: floats to integers truncate and saturate, NaN gives 0; "
    "integers wrap\n"
    "template <class T> struct cast_to { template <class S> static M typename compute<T>::t of(S v) { T h; put(h, v); "
    "return get(h); } };\n"
    "template <> struct cast_to<float> { template <class S> static M float of(S v) { return (float)v; } };\n"
    "template <> struct cast_to<double> { template <class S> static M double of(S v) { return (double)v; } };\n"
    "template <class T> struct cast_half { static M float of(float v) { T h; put(h, v); return get(h); } "
    "static M float of(double v) { T h; put(h, v); return get(h); }\n"
    "  template <class S> static M float of(S v) { return of((float)v); } };\n"
    "template <> struct cast_to<f16> : cast_half<f16> {};\n"
    "template <> struct cast_to<bf16> : cast_half<bf16> {\n"
    "  using cast_half<bf16>::of;\n"
    "  static M float of(float v) {                       // the upper half of a pair is the f32 that it stands for\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 900\n"
    "    u32 r; asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(v), \"f\"(0.f)); return gn_f32(r);\n"
    "#else\n"
    "    return gn_f32((u32)float_bfloat(v) << 16);\n"
    "#endif\n"
    "  }\n"
    "};\n"
    "template <> struct cast_to<int> { template <class S> static M int of(S v) { return (int)(u32)(u64)v; }\n"
    "  static M int of(float v) { return v != v ? 0 : v <= -2147483648.f ? (-2147483647 - 1) : v >= 2147483648.f ? "
    "2147483647 : (int)v; }\n"
    "  static M int of(double v) { return v != v ? 0 : v <= -2147483648. ? (-2147483647 - 1) : v >= 2147483647. ? "
    "2147483647 : (int)v; } };\n"
    "template <> struct cast_to<i64> { template <class S> static M i64 of(S v) { return (i64)v; } "
    "static M i64 of(float v) { return of((double)v); }\n"
    "  static M i64 of(double v) { return v != v ? 0 : v <= -9223372036854775808. ? (-9223372036854775807ll - 1) : "
    "v >= 9223372036854775808. ? 9223372036854775807ll : (i64)v; } };\n"
    "template <> struct cast_to<u64> { template <class S> static M u64 of(S v) { return (u64)v; } "
    "static M u64 of(float v) { return of((double)v); }\n"
    "  static M u64 of(double v) { return v != v || v <= 0 ? 0 : v >= 18446744073709551616. ? ~0ull : (u64)v; } };\n"
    "template <> struct cast_to<u8> { template <class S> static M int of(S v) { return (int)((u64)v & 255); }\n"
    "  static M int of(float v) { return v != v ? 0 : v <= 0 ? 0 : v >= 255 ? 255 : (int)v; } "
    "static M int of(double v) { return v != v ? 0 : v <= 0 ? 0 : v >= 255 ? 255 : (int)v; } };\n"
    "template <class T, class C, i64 LEAST, i64 MOST> struct cast_narrow { template <class S> static M C of(S v) { "
    "return (T)(u64)v; } static M C of(float v) { return of((double)v); }\n"
    "  static M C of(double v) { return v != v ? 0 : v <= (double)LEAST ? (C)LEAST : v >= (double)MOST ? (C)MOST : "
    "(C)v; } };\n"
    "template <> struct cast_to<i8> : cast_narrow<i8, int, -128, 127> {};\n"
    "template <> struct cast_to<i16> : cast_narrow<i16, int, -32768, 32767> {};\n"
    "template <> struct cast_to<u16> : cast_narrow<u16, int, 0, 65535> {};\n"
    "template <> struct cast_to<u32> : cast_narrow<u32, i64, 0, 4294967295ll> {};\n"
    "template <> struct cast_to<b8> { template <class S> static M int of(S v) { return v != 0; } };\n"
    "// The first fault of a run stays: err = {result, node, value low, value high, limit low, limit high}.\n"
    "D void fault(u32 *err, u32 result, u32 node, i64 value, i64 limit) {\n"
    "  if (atomicCAS(err, 0u, result) != 0u) return;\n"
    "  err[1] = node; err[2] = (u32)(u64)value; err[3] = (u32)((u64)value >> 32); err[4] = (u32)(u64)limit; "
    "err[5] = (u32)((u64)limit >> 32);\n"
    "}\n"
    "#define OUT_OF_RANGE 30u\n"
    "// as a limit: what the value is instead of too large\n"
    "#define TOO_MANY -1\n"
    "#define TWICE -2\n"
    "#define FOREIGN -3\n"
    "#define DIVIDED_BY_ZERO 31u\n"
    "// sums and choices; at: position, the earlier of equals is chosen and NaN before all\n"
    "template <class C> M C max_nan(C a, C b) { return a > b || a != a ? a : b; }\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 800\n"
    "template <> M float max_nan(float a, float b) { float r; asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), "
    "\"f\"(b)); return r; }\n"
    "#endif\n"
    "template <class C> struct sum_of { C v;\n"
    "  M void init() { v = 0; }\n"
    "  M void take(C x, i64) { v = gn_add(v, x); }\n"
    "  M void square(C x) { v = gn_fma(x, x, v); }\n"
    "  M void merge(const sum_of &o) { v = gn_add(v, o.v); }\n"
    "  M C total() const { return v; } };\n"
    "// With what additions lose beside it: off by a rounding or two of any length.\n"
    "template <class C> struct near_sum { C v, rest;\n"
    "  M void init() { v = rest = 0; }\n"
    "  M void add(C x, C more) { const C t = v + x, z = t - v; rest = more + ((v - (t - z)) + (x - z)); v = t; }\n"
    "  M void take(C x, i64) { add(x, rest); }\n"
    "  M void square(C x) { add(x * x, rest); }\n"
    "  M void merge(const near_sum &o) { add(o.v, rest + o.rest); }\n"
    "  M C total() const { const C y = v + rest; return y == y ? y : v; } };\n"
    "// V neighbours: joined by halves first where sums are exact, else one after another.\n"
    "template <int V, class A, class C> M void take_all(A &a, const C *x, i64 at) { UNROLL for (int v = 0; v < V; "
    "v++) a.take(x[v], at + v); }\n"
    "template <int V, class C> M void take_all(near_sum<C> &a, const C *x, i64) {\n"
    "  C t[V];\n"
    "  UNROLL for (int v = 0; v < V; v++) t[v] = x[v];\n"
    "  UNROLL for (int h = V / 2; h > 0; h /= 2) UNROLL for (int v = 0; v < h; v++) t[v] += t[v + h];\n"
    "  a.take(t[0], 0);\n"
    "}\n"
    "template <class C> struct max_of { C v;\n"
    "  M void init() { v = gn_f32(0xff800000u); }\n"
    "  M void take(C x, i64) { v = max_nan(v, x); }\n"
    "  M void merge(const max_of &o) { v = max_nan(v, o.v); } };\n"
    "template <class C, bool LEAST> struct best_of { C v; i64 at;\n"
    "  M void init() { v = 0; at = -1; }\n"
    "  M void take(C x, i64 i) { best_of o; o.v = x; o.at = i; merge(o); }\n"
    "  M void merge(const best_of &o) {\n"
    "    if (o.at < 0) return;\n"
    "    bool nan = v != v, other = o.v != o.v, better;\n"
    "    if (at < 0) better = true;\n"
    "    else if (nan || other) better = other && (!nan || o.at < at);\n"
    "    else if (v == o.v) better = o.at < at;\n"
    "    else better = LEAST ? o.v < v : o.v > v;\n"
    "    if (better) { v = o.v; at = o.at; }\n"
    "  } };\n"
    "// A running maximum and the sum of exp(x - maximum), with what its additions lose.\n"
    "template <class C> struct soft { C top, sum, rest;\n"
    "  M void init() { top = gn_f32(0xff800000u); sum = rest = 0; }\n"
    "  M void merge(const soft &o) {\n"
    "    const C t = max_nan(top, o.top), less = gn_exp((top == t ? o.top : top) - t), f = top == t ? (C)1 : less, g = "
    "o.top == t ? (C)1 : less, x = sum * f, y = o.sum * g, all = x + y, z = all - x;\n"
    "    rest = (rest * f + o.rest * g) + ((x - (all - z)) + (y - z));\n"
    "    sum = t != t ? t : all;\n"
    "    top = t;\n"
    "  }\n"
    "  M C total() const { const C y = sum + rest; return y == y ? y : sum; } };\n"
    "template <class C, int V, class T> M soft<C> soft_of(const T *x) {\n"
    "  soft<C> o;\n"
    "  o.init();\n"
    "  UNROLL for (int v = 0; v < V; v++) o.top = max_nan(o.top, (C)get(x[v]));\n"
    "  UNROLL for (int v = 0; v < V; v++) o.sum += o.top == (C)gn_f32(0xff800000u) ? (C)0 : "
    "gn_exp(get(x[v]) - o.top);\n"
    "  return o;\n"
    "}\n"
    "template <class A> M A exchange(A a, int lanes) {\n"
    "  union { A a; u32 w[sizeof(A) / 4]; } x;\n"
    "  x.a = a;\n"
    "  UNROLL for (int i = 0; i < (int)(sizeof(A) / 4); i++) x.w[i] = __shfl_xor_sync(0xffffffffu, x.w[i], lanes);\n"
    "  return x.a;\n"
    "}\n"
    "// The sum of N = 2^k numbers, halves of them first. By types: a long loop whose bound another loop sets stays a "
    "loop, and x is memory then.\n"
    "template <int N> struct halves { static M float sum(float *x) { UNROLL for (int i = 0; i < N / 2; i++) x[i] += "
    "x[i + N / 2]; return halves<N / 2>::sum(x); } };\n"
    "template <> struct halves<1> { static M float sum(float *x) { return x[0]; } };\n"
    "// The merge of TY neighbouring threads' values, in every one of them: halves of them first. All 256 threads of "
    "the block come here.\n"
    "// Of several warps each merges its share of the columns of 32, since a thread that read all of one would need "
    "registers for it. Two barriers are enough for one call behind another: each array is read before the barrier that "
    "the next write to it is behind.\n"
    "template <int TY, class A> M A together(A a) {\n"
    "  if (TY > 32) {\n"
    "    enum { W = TY > 32 ? TY / 32 : 1, EACH = 32 / W };\n"
    "    __shared__ A part[256], column[(TY > 32 ? 256 / TY : 1) * 32];\n"
    "    const int row = threadIdx.x / TY, l = threadIdx.x & 31, at = threadIdx.x % TY / 32 * EACH + l % EACH;\n"
    "    part[threadIdx.x] = a;\n"
    "    __syncthreads();\n"
    "    a = part[row * TY + l / EACH * 32 + at];\n"
    "    UNROLL for (int k = 16; k >= EACH; k /= 2) a.merge(exchange(a, k));\n"
    "    if (l < EACH) column[row * 32 + at] = a;\n"
    "    __syncthreads();\n"
    "    a = column[row * 32 + l];\n"
    "  }\n"
    "  UNROLL for (int k = (TY < 32 ? TY : 32) / 2; k > 0; k /= 2) a.merge(exchange(a, k));\n"
    "  return a;\n"
    "}\n"
    "// The largest is the same in any order: by warps first, which takes less time.\n"
    "template <int TY, class C> M max_of<C> together(max_of<C> a) {\n"
    "  UNROLL for (int k = (TY < 32 ? TY : 32) / 2; k > 0; k /= 2) a.merge(exchange(a, k));\n"
    "  if (TY > 32) {\n"
    "    __shared__ max_of<C> warps[8];\n"
    "    __syncthreads();\n"
    "    if ((threadIdx.x & 31) == 0) warps[threadIdx.x / 32] = a;\n"
    "    __syncthreads();\n"
    "    enum { W = TY > 32 ? TY / 32 : 1 };\n"
    "    a = warps[threadIdx.x / TY * W + threadIdx.x % W];\n"
    "    UNROLL for (int k = W / 2; k > 0; k /= 2) a.merge(exchange(a, k));\n"
    "  }\n"
    "  return a;\n"
    "}\n"
    "// The merge of threads t, t + TX, t + 2 TX …, in every one of them, in the same order.\n"
    "template <int TX, class A> M A across(A a) {\n"
    "  __shared__ A part[256];\n"
    "  __syncthreads();\n"
    "  part[threadIdx.x] = a;\n"
    "  for (int k = 128; k >= TX; k /= 2) {\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x < k) { a.merge(part[threadIdx.x + k]); part[threadIdx.x] = a; }\n"
    "  }\n"
    "  __syncthreads();\n"
    "  return part[threadIdx.x % TX];\n"
    "}\n"
    "// A row is summed by LANES x TY lanes, of which thread ty has ty, ty + TY, ty + 2 TY …: halves of all lanes "
    "first, however many threads have them.\n"
    "template <int TY, int LANES, bool COLUMNS, class A> M A joined(A *q) {\n"
    "  UNROLL for (int k = LANES / 2; k > 0; k /= 2) UNROLL for (int j = 0; j < k; j++) q[j].merge(q[j + k]);\n"
    "  if (COLUMNS) return across<256 / TY>(q[0]);\n"
    "  return together<TY>(q[0]);\n"
    "}\n"
    "// exp(x) for results of 8 or 11 bits\n"
    "D float exp_short(float x) { return exp2_near(x * 1.4426950408889634f); }\n"
    "D u32 word_of(const uint4 &w, int i) { return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w; }\n"
    "// element i of 16 bytes\n"
    "D float part_of(const uint4 &w, int i, float) { return gn_f32(word_of(w, i)); }\n"
    "D float part_of(const uint4 &w, int i, bf16) { return gn_f32(i & 1 ? word_of(w, "
    "i >> 1) & 0xffff0000u : word_of(w, i >> 1) << 16); }\n"
    "D float part_of(const uint4 &w, int i, f16) { return half_float(word_of(w, i >> 1) >> (i & 1) * 16 & 0xffffu); }\n"
    "// all of them: compiles faster than one by one\n"
    "D void parts_of(const uint4 &w, float *x, float) { x[0] = gn_f32(w.x); x[1] = gn_f32(w.y); x[2] = gn_f32(w.z); "
    "x[3] = gn_f32(w.w); }\n"
    "D void pair_of(u32 w, float *x, bf16) { x[0] = gn_f32(w << 16); x[1] = gn_f32(w & 0xffff0000u); }\n"
    "D void pair_of(u32 w, float *x, f16) { x[0] = half_float(w & 0xffffu); x[1] = half_float(w >> 16); }\n"
    "template <class T> M void parts_of(const uint4 &w, float *x, T t) { pair_of(w.x, x, t); pair_of(w.y, x + 2, t); "
    "pair_of(w.z, x + 4, t); pair_of(w.w, x + 6, t); }\n"
    "D uint4 four_words(const u32 *w) { uint4 r; r.x = w[0]; r.y = w[1]; r.z = w[2]; r.w = w[3]; return r; }\n"
    "D uint4 zeros() { uint4 w; w.x = w.y = w.z = w.w = 0; return w; }\n"
    "// A kernel may start before the one before it has ended, once that lets it or ends, and waits before it reads.\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 900\n"
    "D void let_next_start() { asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\"); }\n"
    "D void await_previous() { asm volatile(\"griddepcontrol.wait;\" ::: \"memory\"); }\n"
    "template <class T> M T *now(T *p) { asm volatile(\"\" : \"+l\"(p) :: \"memory\"); return p; "
    "}   // no read by it is moved above this\n"
    "#else\n"
    "D void let_next_start() {}\n"
    "D void await_previous() {}\n"
    "template <class T> M T *now(T *p) { return p; }\n"
    "#endif\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "#ifndef GN_HOST\n"
    "D u32 shared_address(const void *p) { u32 r; asm(\"{.reg .u64 t; cvta.to.shared.u64 t, %1; "
    "cvt.u32.u64 %0, t;}\" : \"=r\"(r) : \"l\"(p)); return r; }\n"
    "// 16, 8 or 4 bytes to shared memory, all but the first n of them zeros\n"
    "template <int B> M void copy_shared(u32 to, const void *from, int n) {\n"
    "  if (B == 16) asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\" :: \"r\"(to), \"l\"(from), \"r\"(n) "
    ": \"memory\");\n"
    "  else asm volatile(\"cp.async.ca.shared.global [%0], [%1], %3, %2;\" :: \"r\"(to), \"l\"(from), \"r\"(n), "
    "\"n\"(B) : \"memory\");\n"
    "}\n"
    "D void copy16(u32 to, const void *from, int n) { copy_shared<16>(to, from, n); }\n"
    "D void copy_commit() { asm volatile(\"cp.async.commit_group;\" ::: \"memory\"); }\n"
    "template <int N> M void copy_wait() { asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(N) : \"memory\"); }\n"
    "D void matrix4(u32 *r, u32 a) { asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, "
    "[%4];\" : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), \"=r\"(r[3]) : \"r\"(a) : \"memory\"); }\n"
    "D void matrix4_transposed(u32 *r, u32 a) { asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
    "{%0,%1,%2,%3}, [%4];\" : \"=r\"(r[0]), \"=r\"(r[1]), \"=r\"(r[2]), \"=r\"(r[3]) : \"r\"(a) : \"memory\"); }\n"
    "D void mma(float *c, const u32 *a, u32 b0, u32 b1, bf16) {\n"
    "  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
    "{%0,%1,%2,%3};\"\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), "
    "\"r\"(a[3]), \"r\"(b0), \"r\"(b1));\n"
    "}\n"
    "D void mma(float *c, const u32 *a, u32 b0, u32 b1, f16) {\n"
    "  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
    "{%0,%1,%2,%3};\"\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), "
    "\"r\"(a[3]), \"r\"(b0), \"r\"(b1));\n"
    "}\n"
    "D void mma(float *c, const u32 *a, u32 b0, u32 b1, float) "
    "{                                                           // TF32: the upper 19 bits\n"
    "  asm volatile(\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
    "{%0,%1,%2,%3};\"\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), "
    "\"r\"(a[3]), \"r\"(b0), \"r\"(b1));\n"
    "}\n"
    "D u32 pair(float lo, float hi, bf16) { u32 r; asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(hi), "
    "\"f\"(lo)); return r; }\n"
    "D u32 pair(float lo, float hi, f16) { u32 r; asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(hi), "
    "\"f\"(lo)); return r; }\n"
    "#endif\n"
    "#endif\n";

/* For sm_90a only. */
static const char warpgroup_text[] =
    "// ---- sm_90a: warpgroups of tensor cores, fed by the tensor memory accelerator (TMA) through stages in shared "
    "memory ----\n"
    "struct __align__(64) tmap { u64 v[16]; };\n"
    "D void bar_init(u32 b, u32 n) { asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" :: \"r\"(b), "
    "\"r\"(n) : \"memory\"); }\n"
    "D void bar_expect(u32 b, u32 bytes) { asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], "
    "%1;\" :: \"r\"(b), \"r\"(bytes) : \"memory\"); }\n"
    "D void bar_arrive(u32 b) { asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" :: \"r\"(b) : \"memory\"); "
    "}\n"
    "D void bar_wait(u32 b, u32 parity) { asm volatile(\"{.reg .pred p; "
    "W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra E; bra W; "
    "E: }\" :: \"r\"(b), \"r\"(parity) : \"memory\"); }\n"
    "D void cluster_sync() { asm volatile(\"barrier.cluster.arrive.release.aligned; "
    "barrier.cluster.wait.acquire.aligned;\" ::: \"memory\"); }\n"
    "D u32 cluster_rank() { u32 r; asm(\"mov.u32 %0, %%cluster_ctarank;\" : \"=r\"(r)); return r; }\n"
    "D float4 cluster_load4(u32 a, u32 cta) {\n"
    "  float4 v;\n"
    "  asm volatile(\"{.reg .u32 r; mapa.shared::cluster.u32 r, %4, %5; "
    "ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [r];}\" : \"=f\"(v.x), \"=f\"(v.y), \"=f\"(v.z), \"=f\"(v.w) : \"r\"(a), "
    "\"r\"(cta) : \"memory\");\n"
    "  return v;\n"
    "}\n"
    "// A box of the map at (x, y, z, w) to shared memory\n"
    "D void box_load(u32 to, const tmap *m, int x, int y, int z, int w, u32 bar) {\n"
    "  asm volatile(\"cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
    "%3, %4, %5}], [%6];\"\n"
    "    :: \"r\"(to), \"l\"(m), \"r\"(x), \"r\"(y), \"r\"(z), \"r\"(w), \"r\"(bar) : \"memory\");\n"
    "}\n"
    "// Places of (n, h, w), from which `right` and `down` lead to a tap: 64 channels of each from c on\n"
    "D void window_load(u32 to, const tmap *m, int c, int w, int h, int n, int right, int down, u32 bar) {\n"
    "  asm volatile(\"cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
    "{%2, %3, %4, %5}], [%6], {%7, %8};\"\n"
    "    :: \"r\"(to), \"l\"(m), \"r\"(c), \"r\"(w), \"r\"(h), \"r\"(n), \"r\"(bar), \"h\"((u16)right), "
    "\"h\"((u16)down) : \"memory\");\n"
    "}\n"
    "// Describes a panel of rows of 128 bytes, swizzled as TMA leaves them: 8 rows every 1024 bytes, the next 64 "
    "columns (when they run along memory) `next` bytes on.\n"
    "D u64 panel(u32 a, u32 next) { return (u64)((a & 0x3ffffu) >> 4) | ((u64)(next >> 4) << 16) | (64ull << 32) | "
    "(1ull << 62); }\n"
    "D void wgmma_fence() { asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\"); }\n"
    "D void wgmma_commit() { asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\"); }\n"
    "template <int N> M void wgmma_wait() { asm volatile(\"wgmma.wait_group.sync.aligned %0;\" :: \"n\"(N) : "
    "\"memory\"); }\n"
    "template <int N> M void wgmma_keep(float *d) { UNROLL for (int i = 0; i < N; "
    "i++) asm volatile(\"\" : \"+f\"(d[i]) :: \"memory\"); }   // no read of the sums is moved above by the compiler; "
    "the assembler does so still, see wgmma_sums\n"
    "D void group_turn(int id) { asm volatile(\"bar.sync %0, 256;\" :: \"r\"(id) : \"memory\"); "
    "}     // until the other of two groups passes the turn\n"
    "D void group_pass(int id) { asm volatile(\"bar.arrive %0, 256;\" :: \"r\"(id) : \"memory\"); }\n"
    "template <int N> M void group_sync(int id) { asm volatile(\"bar.sync %0, %1;\" :: \"r\"(id), "
    "\"n\"(N) : \"memory\"); }\n"
    "D void matrix4_put(u32 a, const u32 *r) { asm volatile(\"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], "
    "{%1,%2,%3,%4};\" :: \"r\"(a), \"r\"(r[0]), \"r\"(r[1]), \"r\"(r[2]), \"r\"(r[3]) : \"memory\"); }\n"
    "D void box_store(const tmap *m, int x, int y, int z, u32 from) {\n"
    "  asm volatile(\"cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5]; "
    "cp.async.bulk.commit_group;\" :: \"l\"(m), \"r\"(x), \"r\"(y), \"r\"(z), \"r\"(0), \"r\"(from) : \"memory\");\n"
    "}\n";

/* >>emit =============================================================================================
 * What all rooms write kernels with: element types, a kernel's parameters and launch, one plan's kernels while they
 * are generated, what the device can do, views and offsets, a node's inputs and attributes. */

/* Element types as the device code names them, in memory and in arithmetic; a dtype of the table without a row does not
   compile. */
#define GN__CU_TYPE_F32 "float", "float", true
#define GN__CU_TYPE_F64 "double", "double", true
#define GN__CU_TYPE_F16 "f16", "float", true
#define GN__CU_TYPE_BF16 "bf16", "float", true
#define GN__CU_TYPE_I32 "int", "int", false
#define GN__CU_TYPE_I64 "i64", "i64", false
#define GN__CU_TYPE_U8 "u8", "int", false
#define GN__CU_TYPE_BOOL "b8", "int", false
#define GN__CU_TYPE_I8 "i8", "int", false
#define GN__CU_TYPE_I16 "i16", "int", false
#define GN__CU_TYPE_U16 "u16", "int", false
#define GN__CU_TYPE_U32 "u32", "i64", false
#define GN__CU_TYPE_U64 "u64", "u64", false

static const struct {
    uint8_t bytes;
    const char *name, *compute;
    bool real;
} types[GN_DTYPE__COUNT] = {
#define GN__X(name, number, bytes, text) [GN_##name] = { bytes, GN__CU_TYPE_##name },
    GN_DTYPES(GN__X)
#undef GN__X
        [0] = { 0, "", "", false },
};
/* by bytes: for copies */
static const char *const raw_types[9] = { "u8", "u8", "u16", "u8", "u32", "u8", "u8", "u8", "u64" };

typedef enum param_kind { PARAM_NODE, PARAM_PLAN, PARAM_WORD, PARAM_LONG, PARAM_MAP, PARAM_ARG } param_kind;
/* A pointer into a node's memory (its base's, plus `offset` bytes), one into a region of the plan (`node`), a number,
   or a tensor map (`node`: its index), or the value of an argument of one element in this run (`node`: the
   argument). */
typedef struct param {
    uint8_t kind;
    uint32_t node;
    int64_t offset;
} param;

/* What TMA is told of a matrix in a node's memory, in scratch memory, or in its dense copy (moved): sizes and strides
   (bytes) from the innermost, and the box that one copy takes; plain: as it lies, otherwise swizzled by 128 bytes and
   f32 rounded to TF32. windows: box[1] places of (N, H, W, C) at a time, steps apart, from `lower` on, to `upper` from
   the last; each w and h. */
typedef struct tensor_map {
    bool scratch, moved, plain, windows;
    uint32_t node;
    int64_t offset;
    gn_dtype dtype;
    uint64_t dims[4], strides[3];
    uint32_t box[4], steps[2];
    int lower[2], upper[2];
} tensor_map;

typedef struct blas_product blas_product;

/* Of a product by cuBLASLt: what follows it, and own kernels that run in place of both when it fails. */
typedef enum launch_when { LAUNCH_ALWAYS, LAUNCH_AFTER_BLAS, LAUNCH_INSTEAD } launch_when;

/* shared: bytes beyond the kernel's own; cluster: blocks side by side that exchange shared memory; early: starts before
   the kernel before it has ended, and waits for it itself; waits: it does so before it reads what kernels write;
   blas: a product by cuBLASLt and no kernel; pack: 1 + the filters that it packs, 0: none. */
typedef struct launch {
    kernel *kernel;
    uint32_t grid_x, grid_y, block, shared, param, n_params;
    uint8_t cluster, when;
    bool early, waits;
    blas_product *blas;
    uint32_t step; /* 1 + that of the layout whose kernel it is, 0: of none */
    uint32_t pack;
} launch;

/* How a weight's filters are packed: what their packed bytes depend on beside it. Compared as bytes. */
typedef struct packed_form {
    int64_t dtype, offset, strides[5], groups, filters, channels, padded, kernel[3], transposed, turned;
} packed_form;

/* Filters of a weight as a plan's kernels read them, and where in scratch memory they are packed in each run when there
   is no room to keep them. */
typedef struct packed_part {
    packed_form form;
    uint32_t node; /* of the weight */
    size_t bytes, scratch_at;
} packed_part;

/* Memory of a plan beside the layout's block, by what it is for. */
/* Arguments and error words go up in one copy, error words and small results come down in one. */
typedef enum region {
    REGION_SCRATCH,
    REGION_ROWS,
    REGION_SAVED,
    REGION_OUTS,
    REGION_OWN,
    REGION_ARGS,
    REGION_ERRORS,
    REGION_NEAR,
    REGION__COUNT
} region;

enum { BLAS_WORKSPACE = 32 << 20 }; /* bytes of scratch memory that an algorithm of cuBLASLt may use */

enum { ERROR_WORDS = 8 }; /* result, node, value, limit; then a flag for each append in place */

enum { KERNELS_A_PLAN = 4096 }; /* new ones: each takes some 30 ms of the compiler */

/* of one kernel: a loop of 64 ops has 129 inputs at most, one that is looked up takes three parameters */
enum { PARAMS_MAX = 400 };

/* What one kernel does beside its own node: steps (1 + index, 0: none) that it takes in. */
/* inside: another step's kernel does this one; written: the attention that ends with this product; rows: 1 + the group
   that this step ends. */
/* pages: 1 + the step of another append to pages that runs here (it may have another in turn). */
/* vectors: 1 + the products of one row that run here. Of q and of the row that is appended to keys: turn, the rotary
   embedding; made, 1 + the group of rows before it, and given, which of its steps. length: 1 + the loop that makes the
   number of keys of what is there before the plan runs; the attention computes it by itself. */
typedef struct fusion {
    uint32_t product, loop, best, append[2], pages, rows, vectors, turn[2], made[2], given[2], length;
    struct attention_form *written;
    bool inside;
} fusion;

/* Products of one row of numbers, with what follows each: one kernel. product: one, or two of equal shape whose columns
   meet in the loop. All but `n` and `given` are 1 + a step or a group, 0: none. norm: the layernorm of the row; rows,
   given: the group that gives the row, and which of its steps. */
enum { VECTOR_PARTS = 8 };
typedef struct vector_part {
    uint32_t product[2], loop, best;
} vector_part;
typedef struct vector_group {
    uint32_t n, norm, rows, given;
    vector_part parts[VECTOR_PARTS];
} vector_group;

typedef struct row_group row_group;

/* Why an op of a step of few rows has kernels that it could be without. */
#define GN__CU_REFUSALS(X)                                                                                             \
    X(INVARIANT, "with gn_desc.batch_invariant products of few rows take nothing in")                                  \
    X(DTYPE, "several rows of it are no work for this GPU's tensor cores, and other kernels of few rows take no norm " \
             "and no product beside them in")                                                                          \
    X(LIES, "its rows or its matrix cannot be read 16 bytes at a time")                                                \
    X(APART, "products of the same rows cannot share its kernel: they add in another order, lie another way, or "      \
             "are read before it")                                                                                     \
    X(BLOCKS, "each block would compute its rows again, and there are more blocks than run side by side")              \
    X(PAGES, "what is appended to pages is not attended in the same kernel")                                           \
    X(ROWS, "what gives its rows does not fit the kernel: too long for shared memory, read by others before, or not "  \
            "along memory")
typedef enum refusal_why {
#define GN__X(NAME, text) REFUSED_##NAME,
    GN__CU_REFUSALS(GN__X)
#undef GN__X
        REFUSED__COUNT
} refusal_why;

typedef struct refusal {
    uint32_t node;
    refusal_why why;
} refusal;

/* One plan's kernels while they are generated. */
typedef struct emit {
    struct device *device;
    const gn_flag *cancel; /* of who waits for the plan; NULL: nobody ends it early */
    bool invariant;        /* no choice depends on how many rows there are: gn_desc.batch_invariant */
    const gn_part *part;
    gn_layout *layout;
    fusion *fusions;   /* per step */
    row_group *groups; /* steps that run as one kernel over rows */
    size_t n_groups, cap_groups;
    vector_group *vectors;
    size_t n_vectors, cap_vectors;
    uint32_t *runs;    /* per step, while they are fused: the step in whose kernel it runs */
    bool *inlined;     /* per node: an embedding that the loop which reads it looks up by itself */
    uint32_t fused;    /* steps without a kernel of their own */
    refusal *refusals; /* what a rule could have taken in, and did not */
    size_t n_refusals, cap_refusals;
    launch *launches;
    param *params;
    tensor_map *maps;
    packed_part *packs; /* each is a place behind those of nodes and updates: see packed_node */
    const char *bounds; /* of the kernel that is written, when not 256 threads */
    size_t n_launches, cap_launches, n_params, cap_params, n_maps, cap_maps, n_packs, cap_packs;
    size_t first_param;           /* of the kernel that is being written */
    text types, signature, body;  /* before the kernel, its parameters, its statements; '@' stands for its name */
    size_t scratch, rows;         /* bytes that the kernels of one op use at most; rows: what is known of rows, for the
                                     kernels after them */
    uint32_t *appends, n_appends; /* in-place appends so far, in their order */
    uint32_t *append_flags;
    uint32_t *checked, n_checked; /* appends to pages whose slots have been checked */
    uint32_t n_flags; /* words behind the error words, 0 before the run: that an append has been done, blocks that have
                          ended */
    uint32_t counters, n_counters; /* of those words, what kernels leave at 0 */
    bool rereads;                  /* what this kernel's pointers show may change while it waits: no restrict */
    bool early, waits;             /* this kernel waits for those before it by itself; at its begin */
    uint8_t cluster;
    size_t save;                /* bytes that in-place appends save */
    const gn_kernel_step *tail; /* the loop that runs in the kernel of the matmul that is generated now, NULL: none */
    uint32_t n_tails;
    uint32_t step;       /* 1 + that of the layout which is generated now, 0: none */
    bool alone;          /* the plan has this kernel only: it takes arguments of one element by value */
    bool by_value;       /* some are: a graph would keep the values of the run in which it was captured */
    const choice *given; /* of the product that is generated to be measured; NULL: the stored one, or the model's */
    uint64_t mark;       /* of the latest choice that was followed */
    uint32_t moved;      /* 1 + the node that a dense copy in REGION_ROWS stands for now */
    uint8_t when;        /* of the launches that are added now */
    uint32_t n_made;     /* kernels that nothing had needed before */
    uint32_t n_instead, n_lost; /* launches that run only when others fail; choices that cannot be followed */
    uint32_t n_blas, n_other;   /* products by cuBLASLt, and by another own kernel than the model's */
    bool faults;                /* some kernel may report a fault */
    bool failed;
    gn_fault *fault;
} emit;

/* ---- what the device can do ---- */

static int64_t emit_processors(const emit *e) { return e->device->processors; }
static bool emit_overlaps(const emit *e) { return e->device->arch >= 90; }
static bool emit_has_clusters(const emit *e) {
    return e->device->arch >= 90 && (cu.cuLaunchKernelEx || e->device->compile_only) &&
           !env_is("GENIE_CUDA_CLUSTER", "0");
}
static bool emit_has_warpgroups(const emit *e) {
    return strcmp(e->device->arch_name, "sm_90a") == 0 && (cu.tensor_map || e->device->compile_only) &&
           !env_is("GENIE_CUDA_TENSOR", "0") && !env_is("GENIE_CUDA_WGMMA", "0");
}
static bool emit_has_async_copies(const emit *e) { return e->device->arch >= 80; }
static bool emit_has_tensor_cores(const emit *e) { return e->device->arch >= 80 && !env_is("GENIE_CUDA_TENSOR", "0"); }

/* ---- a kernel: its parameters, its launch ---- */

static void emit_param(emit *e, param p) {
    if (!grow(&e->params, e->n_params, &e->cap_params, sizeof p)) {
        e->failed = true;
        return;
    }
    e->params[e->n_params++] = p;
}

static void emit_pointer(emit *e, const char *type, bool constant, const char *name, param p) {
    put(&e->signature, "%s%s%s *%s%s", e->signature.n ? ", " : "", constant ? "const " : "", type,
        e->rereads ? "" : "__restrict__ ", name);
    emit_param(e, p);
}

static param at_node(const emit *e, uint32_t node, int64_t more);

/* A node's memory, from its view's first element. */
static void emit_node(emit *e, uint32_t node, const char *type, bool constant, const char *name) {
    emit_pointer(e, type, constant, name, at_node(e, node, 0));
}

static void emit_number(emit *e, const char *type, const char *name, param_kind kind, int64_t value) {
    put(&e->signature, "%s%s %s", e->signature.n ? ", " : "", type, name);
    emit_param(e, (param){ (uint8_t)kind, 0, value });
}

/* Before the kernel's parameters, and before its statements: it is launched while the kernel before it ends, and waits
   for that. */
static void emit_early(emit *e) { e->rereads = e->early = e->waits = emit_overlaps(e); }
static void emit_await(emit *e) {
    if (e->waits) put(&e->body, "  await_previous();\n");
}

/* The run's error words. Later kernels that must not run after a fault look at them too. */
static void emit_errors(emit *e) { emit_pointer(e, "u32", false, "err", (param){ PARAM_PLAN, REGION_ERRORS, 0 }); }
static void emit_faults(emit *e, uint32_t node) {
    emit_errors(e);
    emit_number(e, "u32", "node", PARAM_WORD, node);
    e->faults = true;
}

/* Ends the kernel: finds an equal one or adds it, and launches it. */
static void emit_launch_shared(emit *e, const char *label, uint64_t grid_x, uint64_t grid_y, uint32_t block,
                               uint32_t shared) {
    kernel *k = NULL;
    size_t n_params = e->n_params - e->first_param;
    bool grid_ok = grid_x < 0x7fffffffu && grid_y < 65536, params_ok = n_params <= PARAMS_MAX;
    if (!e->failed && !e->types.failed && !e->signature.failed && !e->body.failed && grid_ok && params_ok)
        k = kernel_of(e->device, label, e->bounds ? e->bounds : "__launch_bounds__(256)", &e->types, &e->signature,
                      &e->body, &e->n_made);
    bool few = e->n_made <= KERNELS_A_PLAN;
    if (!k || !few || !grow(&e->launches, e->n_launches, &e->cap_launches, sizeof *e->launches)) {
        e->failed = true;
        kernel_release(e->device, k);
    } else
        e->launches[e->n_launches++] = (launch){ k,
                                                 (uint32_t)grid_x,
                                                 (uint32_t)grid_y,
                                                 block,
                                                 shared,
                                                 (uint32_t)e->first_param,
                                                 (uint32_t)n_params,
                                                 e->cluster,
                                                 e->when,
                                                 e->early,
                                                 e->waits,
                                                 NULL,
                                                 e->step,
                                                 0 };
    e->n_instead += e->when == LAUNCH_INSTEAD;
    if (!grid_ok)
        gn_fail(e->fault, GN_UNSUPPORTED, "kernel %s needs a grid of %llu by %llu blocks", label,
                (unsigned long long)grid_x, (unsigned long long)grid_y);
    if (!few)
        gn_fail(e->fault, GN_LIMIT,
                "this plan needs more than the %d new kernels that one plan may have: realize parts of it one after "
                "another",
                KERNELS_A_PLAN);
    if (!params_ok)
        gn_fail(e->fault, GN_UNSUPPORTED, "kernel %s needs %llu parameters, %d are possible", label,
                (unsigned long long)n_params, PARAMS_MAX);
    e->types.n = e->signature.n = e->body.n = 0;
    e->bounds = NULL;
    e->first_param = e->n_params;
    e->rereads = e->early = e->waits = false;
    e->cluster = 0;
}

static void emit_launch(emit *e, const char *label, uint64_t grid_x, uint64_t grid_y, uint32_t block) {
    emit_launch_shared(e, label, grid_x, grid_y, block, 0);
}

/* There is nothing to compute. */
static void emit_nothing(emit *e) {
    e->types.n = e->signature.n = e->body.n = 0;
    e->n_params = e->first_param;
    e->rereads = e->early = e->waits = false;
}

/* ---- views ---- */

/* The dims whose bit is (not) set. */
static gn_view dims_of(const gn_view *v, int64_t bits, bool set) {
    gn_view r = *v;
    r.rank = 0;
    for (int i = 0; i < v->rank; i++) {
        if ((((bits >> i) & 1) != 0) != set) continue;
        r.dims[r.rank] = v->dims[i];
        r.strides[r.rank++] = v->strides[i];
    }
    return r;
}

static bool always_wide(void) { return TEST_SWITCH("GENIE_CUDA_WIDE", "1"); }

/* Positions fit in 31 bits, and sums of two of them. */
static bool is_few(int64_t n) { return n < 0x3fffffff && !always_wide(); }

/* Offsets and positions fit in 31 bits. */
static bool is_small(const gn_view *v) {
    uint64_t span = 1, n = 1;
    if (always_wide()) return false;
    for (int i = 0; i < v->rank; i++) {
        uint64_t stride = (uint64_t)(v->strides[i] < 0 ? -v->strides[i] : v->strides[i]);
        n *= (uint64_t)(v->dims[i] > 0 ? v->dims[i] : 1);
        span += (uint64_t)(v->dims[i] > 0 ? v->dims[i] - 1 : 0) * stride;
        if (n > 0x3fffffffu || span > 0x3fffffffu) return false;
    }
    return true;
}

/* The element offset of row-major position x of a collapsed view. */
static void put_offset(text *t, const gn_view *v, const char *x, bool small) {
    const char *u = small ? "u32" : "u64", *s = small ? "int" : "i64", *suffix = small ? "" : "ll";
    int64_t below = gn_view_count(v);
    bool any = false;
    put(t, "(");
    for (int i = 0; i < v->rank; i++) {
        below = v->dims[i] ? below / v->dims[i] : 0;
        if (!v->strides[i] || !below) continue;
        put(t, "%s(%s)((%s)(%s)", any ? " + " : "", s, u, x);
        if (below > 1) put(t, " / %lld%su", (long long)below, suffix);
        if (i > 0) put(t, " %% %lld%su", (long long)v->dims[i], suffix);
        put(t, ")");
        if (v->strides[i] != 1) put(t, " * %lld%s", (long long)v->strides[i], suffix);
        any = true;
    }
    put(t, any ? ")" : "0)");
}

/* V elements from each multiple of V on are contiguous and aligned. */
static bool vectorises(const gn_view *v, int64_t offset, int64_t vector, int bytes) {
    if (vector == 1) return v->rank > 0 && v->strides[v->rank - 1] == 1;
    int64_t access = vector * bytes > 16 ? 16 : vector * bytes;
    if (!v->rank || v->strides[v->rank - 1] != 1 || v->dims[v->rank - 1] % vector || offset % access) return false;
    for (int i = 0; i + 1 < v->rank; i++)
        if (v->strides[i] % vector) return false;
    return true;
}

/* Offsets of collapsed kept dims are multiples of V. */
static bool strides_fit(const gn_view *v, int64_t vector) {
    for (int i = 0; i < v->rank; i++)
        if (v->strides[i] % vector) return false;
    return true;
}

static int64_t base_offset(const emit *e, uint32_t node) {
    return e->moved == node + 1 ? 0 : e->layout->lay[node].view.offset;
}

static int64_t blocks_for(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* ---- nodes ---- */

static param at_node(const emit *e, uint32_t node, int64_t more) {
    const gn_lay *a = &e->layout->lay[node];
    return e->moved == node + 1 ? (param){ PARAM_PLAN, REGION_ROWS, more }
                                : (param){ PARAM_NODE, a->base, a->view.offset + more };
}

static uint32_t input(const emit *e, uint32_t node, uint32_t i) { return e->part->ins[e->part->nodes[node].ins + i]; }
static const gn_view *view_of(const emit *e, uint32_t node) { return &e->layout->lay[node].view; }
static const int64_t *attrs_of(const emit *e, uint32_t node) { return e->part->attrs + e->part->nodes[node].attrs; }
static double word_f64(int64_t w) {
    double d;
    memcpy(&d, &w, 8);
    return d;
}
static long long f64_word(double d) {
    long long w;
    memcpy(&w, &d, 8);
    return w;
}

static bool node_is(const emit *e, uint32_t node, gn_op_id op) {
    return e->part->nodes[node].leaf == GN_LEAF_NONE && e->part->nodes[node].op == op;
}

/* Of a product; GN_NO_NODE: it has none. */
static uint32_t bias_of(const emit *e, uint32_t node) {
    uint32_t n = e->part->nodes[node].n_ins;
    bool has = node_is(e, node, GN_OP_LINEAR_QUANTIZED) ? (attrs_of(e, node)[1] & 4) != 0 : n > 2;
    return has ? input(e, node, n - 1) : GN_NO_NODE;
}

static int axis_of(int64_t axis, int rank) { return (int)(axis < 0 ? axis + rank : axis); }

/* >>loops ============================================================================================
 * Element by element: copies, fused loops, what is made where it is used. */

/* ---- copies ---- */

/* dst and src have equal dims; pointers at their first elements are given as parameters. */
static void emit_copy_views(emit *e, const char *label, gn_view dst, param dst_at, gn_view src, param src_at) {
    int bytes = types[src.dtype].bytes;
    const char *type = raw_types[bytes];
    gn_view to = gn_view_collapse(&dst), s = gn_view_collapse(&src);
    int64_t n = gn_view_count(&dst), vector = 16 / bytes;
    bool small = is_small(&to) && is_small(&s);
    if (n == 0) return;
    while (vector > 1 && (n % vector || !vectorises(&to, dst_at.offset, vector, bytes))) vector /= 2;
    bool wide = vectorises(&s, src_at.offset, vector, bytes),
         one = s.rank == 0 || (s.strides[s.rank - 1] == 0 && s.dims[s.rank - 1] % vector == 0);
    emit_pointer(e, type, true, "a", src_at);
    emit_pointer(e, type, false, "o", dst_at);
    emit_await(e);
    put(&e->body,
        "  typedef %s I;\n  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < %lld; g += (I)gridDim.x * 256) {\n    "
        "const I i = g * %lld;\n    %s x[%lld];\n",
        small ? "u32" : "u64", (long long)(n / vector), (long long)vector, type, (long long)vector);
    put(&e->body, wide ? "    vload<%lld>(x, a + " : "    UNROLL for (int v = 0; v < %lld; v++) x[v] = a[",
        (long long)vector);
    put_offset(&e->body, &s, wide || one ? "i" : "i + v", small);
    put(&e->body, wide ? ");\n    vstore<%lld>(o + " : "];\n    vstore<%lld>(o + ", (long long)vector);
    put_offset(&e->body, &to, "i", small);
    put(&e->body, ", x);\n  }\n");
    int64_t blocks = blocks_for(n / vector, 256);
    emit_launch(e, label, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

static void emit_copy(emit *e, uint32_t node, uint32_t from) {
    const gn_view *src = &e->layout->lay[from].view;
    gn_view dst = gn_view_dense(src->dtype, src->rank, src->dims);
    emit_copy_views(e, "copy", dst, at_node(e, node, 0), *src, at_node(e, from, 0));
}

/* A copy of the first input: reshapes that strides cannot express; views of the others. */
static void emit_move(emit *e, uint32_t node) { emit_copy(e, node, input(e, node, 0)); }
static void emit_assign(emit *e, uint32_t node) { emit_copy(e, node, input(e, node, 1)); }

/* What an op that is always a view would need if it were not. */
static void emit_view(emit *e, uint32_t node) {
    gn_fail(e->fault, GN_INTERNAL, "node %u should have been a view", node);
    e->failed = true;
}

static void emit_slice_put(emit *e, uint32_t node) {
    gn_view whole = gn_view_dense(view_of(e, node)->dtype, view_of(e, node)->rank, view_of(e, node)->dims);
    gn_view part = gn_view_slice(&whole, attrs_of(e, node));
    emit_copy(e, node, input(e, node, 0));
    emit_copy_views(e, "slice_put", part, at_node(e, node, part.offset), *view_of(e, input(e, node, 1)),
                    at_node(e, input(e, node, 1), 0));
}

static void emit_concat(emit *e, uint32_t node) {
    gn_view whole = gn_view_dense(view_of(e, node)->dtype, view_of(e, node)->rank, view_of(e, node)->dims);
    int axis = axis_of(attrs_of(e, node)[0], whole.rank);
    int64_t offset = 0;
    for (uint32_t i = 0; i < e->part->nodes[node].n_ins; i++) {
        uint32_t x = input(e, node, i);
        gn_view part = whole;
        part.dims[axis] = view_of(e, x)->dims[axis];
        emit_copy_views(e, "concat", part, at_node(e, node, offset), *view_of(e, x), at_node(e, x, 0));
        offset += part.dims[axis] * whole.strides[axis] * types[whole.dtype].bytes;
    }
}

/* ---- fused loops ---- */

/* number: of its first instruction, where several loops stand in one kernel. */
/* stored: the last value goes to memory alone, where it is rounded. scores: of attention, which are not. */
typedef struct loop {
    const gn_kernel_step *step;
    int64_t n, vector;
    uint32_t number;
    bool small, stored, scores;
    char names[512][64];
    char label[64];
} loop;

static const gn_load *load_of(const emit *e, const loop *l, uint32_t i) { return &e->layout->loads[l->step->load + i]; }

static void loop_sizes(const emit *e, loop *l) {
    const gn_view *out = view_of(e, l->step->node);
    int64_t largest = types[out->dtype].bytes;
    l->n = gn_view_count(out);
    l->small = is_few(l->n);
    for (uint32_t i = 0; i < l->step->n_loads; i++) {
        const gn_load *d = load_of(e, l, i);
        if (d->constant) continue;
        l->small = l->small && is_small(e->inlined[d->base] ? view_of(e, input(e, d->base, 1)) : &d->view);
        if (types[d->dtype].bytes > largest) largest = types[d->dtype].bytes;
    }
    l->vector = 16 / largest;
    while (l->vector > 1 && l->n % l->vector) l->vector /= 2;
}

/* A row of an embedding's table instead of its result. */
static void loop_lookup(emit *e, loop *l, uint32_t i) {
    uint32_t node = load_of(e, l, i)->base, table = input(e, node, 0), ids_node = input(e, node, 1);
    const gn_view *a = view_of(e, table);
    gn_view ids = gn_view_collapse(view_of(e, ids_node));
    char name[32], at[48];
    snprintf(name, sizeof name, "a%u", i);
    emit_node(e, table, types[a->dtype].name, true, name);
    snprintf(name, sizeof name, "ids%u", i);
    emit_node(e, ids_node, types[ids.dtype].name, true, name);
    snprintf(name, sizeof name, "lookup%u", i);
    emit_number(e, "u32", name, PARAM_WORD, node);
    e->faults = true;
    snprintf(at, sizeof at, "i / %lldu", (long long)a->dims[1]);
    put(&e->body, "    const i64 id%u = ids%u[", i, i);
    put_offset(&e->body, &ids, at, l->small);
    put(&e->body,
        "];\n    if (id%u < 0 || id%u >= %lldll) { if (i %% %lldu == 0) fault(err, OUT_OF_RANGE, lookup%u, id%u, "
        "%lldll); continue; }\n",
        i, i, (long long)a->dims[0], (long long)a->dims[1], i, i, (long long)a->dims[0]);
    put(&e->body, "    %s x%u[%lld];\n    vload<%lld>(x%u, a%u + id%u * %lldll + (i64)(i %% %lldu));\n",
        types[a->dtype].name, i, (long long)l->vector, (long long)l->vector, i, i, i, (long long)a->strides[0],
        (long long)a->dims[1]);
    snprintf(l->names[load_of(e, l, i)->reg], sizeof l->names[0], "get(x%u[v])", i);
}

static bool is_by_value(const emit *e, const gn_load *d) {
    return e->alone && e->part->nodes[d->base].leaf == GN_LEAF_DATA &&
           gn_view_count(&e->layout->lay[d->base].view) == 1;
}

/* Before the loop over v: what is loaded, in registers or as one element for all. */
static void loop_load(emit *e, loop *l, uint32_t i) {
    const gn_load *d = load_of(e, l, i);
    const char *type = types[d->dtype].name;
    char name[32];
    if (d->constant) {
        put(&e->body, "    const %s c%u = cast_to<%s>::of(gn_f64(0x%llxull));\n", types[d->dtype].compute, i, type,
            (unsigned long long)f64_word(d->value));
        snprintf(l->names[d->reg], sizeof l->names[0], "c%u", i);
        return;
    }
    snprintf(name, sizeof name, "a%u", i);
    if (e->inlined[d->base]) {
        loop_lookup(e, l, i);
        return;
    }
    bool wide = l->vector > 1 && vectorises(&d->view, d->view.offset, l->vector, types[d->dtype].bytes);
    bool one = d->view.rank == 0 ||
               (d->view.strides[d->view.rank - 1] == 0 && d->view.dims[d->view.rank - 1] % l->vector == 0);
    if (one && is_by_value(e, d)) {
        put(&e->signature, ", const %s s%u", type, i);
        emit_param(e, (param){ PARAM_ARG, e->part->nodes[d->base].arg, 0 });
        e->by_value = true;
        put(&e->body, "    const %s x%u = get(s%u);\n", types[d->dtype].compute, i, i);
        snprintf(l->names[d->reg], sizeof l->names[0], "x%u", i);
        return;
    }
    emit_pointer(e, type, true, name, (param){ PARAM_NODE, d->base, d->view.offset });
    if (one) {
        put(&e->body, "    const %s x%u = get(a%u[", types[d->dtype].compute, i, i);
        put_offset(&e->body, &d->view, "i", l->small);
        put(&e->body, "]);\n");
        snprintf(l->names[d->reg], sizeof l->names[0], "x%u", i);
        return;
    }
    put(&e->body,
        wide ? "    %s x%u[%lld];\n    vload<%lld>(x%u, a%u + "
             : "    %s x%u[%lld];\n    UNROLL for (int v = 0; v < %lld; v++) x%u[v] = a%u[",
        type, i, (long long)l->vector, (long long)l->vector, i, i);
    put_offset(&e->body, &d->view, wide ? "i" : "i + v", l->small);
    put(&e->body, wide ? ");\n" : "];\n");
    snprintf(l->names[d->reg], sizeof l->names[0], "get(x%u[v])", i);
}

/* What it is computed in holds more bits than it does: they are dropped before anything looks at them. */
static bool drops_bits(gn_dtype d) {
    return types[d].real ? d == GN_F16 || d == GN_BF16 : d != GN_I32 && types[d].bytes < 8;
}

/* Behind instruction i its value has bits to drop: not where it is one of its inputs, or a truth value. */
static bool loop_drops(const loop *l, uint32_t i, const gn_instr *in) {
    if (!drops_bits(in->out_dtype) || in->op == GN_OP_MINIMUM || in->op == GN_OP_MAXIMUM) return false;
    if (types[in->out_dtype].real && l->scores) return false;
    return !l->stored || i + 1 < l->step->n_instrs;
}

static void loop_instr(emit *e, loop *l, uint32_t i) {
    const gn_instr *in = &e->layout->instrs[l->step->instr + i];
    const char *from = types[in->in_dtype].compute, *to = types[in->out_dtype].compute;
    const uint32_t t = l->number + i;
    text *b = &e->body;
    gn_op_info row;
    gn_get_op(in->op - 1, &row);
    const char *const x[3] = { l->names[in->src[0]], l->names[in->src[1]], l->names[in->src[2]] };
    if (in->op == GN_OP_CAST)
        put(b, "      const %s t%u = cast_to<%s>::of(%s);\n", to, t, types[in->out_dtype].name, x[0]);
    else if (in->op == GN_OP_WHERE) put(b, "      const %s t%u = %s ? %s : %s;\n", to, t, x[0], x[1], x[2]);
    else {
        put(b,
            "      %s t%u;\n      { typedef %s GN_T; const GN_T a = %s, b = %s, c = %s, p0 = "
            "cast_to<GN_T>::of(gn_f64(0x%llxull)), p1 = cast_to<GN_T>::of(gn_f64(0x%llxull));\n",
            to, t, from, x[0], x[1], x[2], (unsigned long long)f64_word(in->p[0]),
            (unsigned long long)f64_word(in->p[1]));
        if (row.divides && !types[in->in_dtype].real) {
            char name[32];
            snprintf(name, sizeof name, "node%u", t);
            put(b, "        if (b == 0) fault(err, DIVIDED_BY_ZERO, %s, 0, 0);\n", name);
            emit_number(e, "u32", name, PARAM_WORD, in->node);
            e->faults = true;
        }
        put(b, "        t%u = (%s)(%s); (void)b; (void)c; (void)p0; (void)p1; }\n", t, to, row.text);
        if (loop_drops(l, i, in)) put(b, "      t%u = cast_to<%s>::of(t%u);\n", t, types[in->out_dtype].name, t);
    }
    snprintf(l->names[in->dst], sizeof l->names[0], "t%u", t);
    size_t n = strlen(l->label);
    if (n + strlen(row.name) + 2 < 48) snprintf(l->label + n, sizeof l->label - n, "_%s", row.name);
}

/* No kernel writes it, so it is read while those that run have not ended. */
static bool is_weight(const emit *e, uint32_t node) {
    return e->part->nodes[e->layout->lay[node].base].leaf == GN_LEAF_WEIGHT;
}
static bool loads_weight(const emit *e, const gn_load *d) {
    return !d->constant && !e->inlined[d->base] && is_weight(e, d->base);
}

static void loop_loads(emit *e, loop *l, bool weights) {
    for (uint32_t i = 0; i < l->step->n_loads; i++)
        if (loads_weight(e, load_of(e, l, i)) == weights) loop_load(e, l, i);
}

/* The wait for the kernel before stands behind the loads of weights; where a thread comes to a second group it has
   nothing left to wait for. */
static void emit_loop(emit *e, const gn_kernel_step *s) {
    loop *l = (loop *)alloc_zero(sizeof *l);
    const gn_view *out = view_of(e, s->node);
    if (!l) {
        e->failed = true;
        return;
    }
    l->step = s;
    l->stored = true;
    snprintf(l->label, sizeof l->label, "loop_%s", gn_dtype_name(out->dtype));
    loop_sizes(e, l);
    if (l->n) {
        int64_t groups = l->n / l->vector;
        /* blocks of 384 read and write most bytes a second; few groups need many blocks */
        uint32_t block = groups >> 20 ? 384 : 256;
        emit_early(e);
        emit_node(e, s->node, types[out->dtype].name, false, "o");
        emit_errors(e);
        put(&e->body,
            "%s  typedef %s I;\n  for (I g = (I)blockIdx.x * %u + threadIdx.x; g < %lld; g += (I)gridDim.x * %u) {\n   "
            " const I i = g * %lld;\n",
            e->waits ? "  let_next_start();\n" : "", l->small ? "u32" : "u64", block, (long long)groups, block,
            (long long)l->vector);
        loop_loads(e, l, true);
        if (e->waits) put(&e->body, "    await_previous();\n");
        loop_loads(e, l, false);
        put(&e->body, "    %s y[%lld];\n    UNROLL for (int v = 0; v < %lld; v++) {\n", types[out->dtype].name,
            (long long)l->vector, (long long)l->vector);
        for (uint32_t i = 0; i < s->n_instrs; i++) loop_instr(e, l, i);
        put(&e->body, "      put(y[v], %s);\n    }\n    vstore<%lld>(o + i, y);\n  }\n", l->names[s->out],
            (long long)l->vector);
        int64_t blocks = blocks_for(groups, block);
        if (block == 384) e->bounds = "__launch_bounds__(384)";
        emit_launch(e, l->label, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, block);
    }
    gn_free(l);
}

/* ---- generators ---- */

/* One statement that puts element i of the result into `y`. */
static void emit_each(emit *e, uint32_t node, const char *label, const char *statement) {
    const gn_view *out = view_of(e, node);
    int64_t n = gn_view_count(out);
    if (!n) {
        emit_nothing(e);
        return;
    }
    emit_node(e, node, types[out->dtype].name, false, "o");
    put(&e->body,
        "  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < %lldull; i += (u64)gridDim.x * 256) {\n    %s y;\n%s  "
        "  o[i] = y;\n  }\n",
        (long long)n, types[out->dtype].name, statement);
    int64_t blocks = blocks_for(n, 256);
    emit_launch(e, label, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

static void emit_full(emit *e, uint32_t node) {
    char line[200];
    snprintf(line, sizeof line, "    put(y, cast_to<%s>::of(gn_f64(0x%llxull)));\n",
             types[view_of(e, node)->dtype].name, (unsigned long long)attrs_of(e, node)[1]);
    emit_each(e, node, "full", line);
}

static void emit_arange(emit *e, uint32_t node) {
    const int64_t *a = attrs_of(e, node);
    gn_dtype dtype = view_of(e, node)->dtype;
    char line[300];
    char cast[40] = "";
    if (!types[dtype].real) snprintf(cast, sizeof cast, "cast_to<%s>::of", types[dtype].name);
    snprintf(line, sizeof line, "    put(y, %s(gn_f64(0x%llxull) + (double)i * gn_f64(0x%llxull)));\n", cast,
             (unsigned long long)a[2], (unsigned long long)a[3]);
    emit_each(e, node, "arange", line);
}

static const char random_text[] =
    "// Philox4x32-10 (Salmon et al. 2011): counter words {i low, i high, run low, run high}\n"
    "D void philox(u32 *c, u64 key, u64 i, u64 run) {\n"
    "  u32 k0 = (u32)key, k1 = (u32)(key >> 32);\n"
    "  c[0] = (u32)i; c[1] = (u32)(i >> 32); c[2] = (u32)run; c[3] = (u32)(run >> 32);\n"
    "  for (int round = 0; round < 10; round++) {\n"
    "    u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];\n"
    "    u32 n0 = (u32)(b >> 32) ^ c[1] ^ k0, n2 = (u32)(a >> 32) ^ c[3] ^ k1;\n"
    "    c[1] = (u32)b; c[3] = (u32)a; c[0] = n0; c[2] = n2;\n"
    "    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n"
    "  }\n"
    "}\n"
    "D double fraction(u32 low, u32 high) { return (double)((((u64)high << 32) | low) >> 11) * "
    "gn_f64(0x3ca0000000000000ull); }\n"
    "template <int BITS, bool WIDE> M double uniform(const u32 *w) { "
    "return WIDE ? fraction(w[0], w[1]) : (double)(w[0] >> (32 - BITS)) / (double)(1u << BITS); }\n"
    "D double normal(const u32 *w) { return sqrt(-2.0 * log(1.0 - fraction(w[0], "
    "w[1]))) * cos(6.283185307179586477 * fraction(w[2], w[3])); }\n";

static void emit_random(emit *e, uint32_t node, const char *label, bool is_normal) {
    gn_dtype dtype = view_of(e, node)->dtype;
    char line[300], value[60];
    if (is_normal) snprintf(value, sizeof value, "normal(w)");
    else
        snprintf(value, sizeof value, "uniform<%d, %s>(w)",
                 dtype == GN_BF16  ? 8
                 : dtype == GN_F16 ? 11
                                   : 24,
                 dtype == GN_F64 ? "true" : "false");
    snprintf(line, sizeof line, "    u32 w[4];\n    philox(w, 0x%llxull, i, (u64)*run);\n    put(y, %s);\n",
             (unsigned long long)attrs_of(e, node)[1], value);
    emit_node(e, input(e, node, 0), "i64", true, "run");
    emit_each(e, node, label, line);
}
static void emit_random_uniform(emit *e, uint32_t node) { emit_random(e, node, "random_uniform", false); }
static void emit_random_normal(emit *e, uint32_t node) { emit_random(e, node, "random_normal", true); }

/* >>rows =============================================================================================
 * Reductions, alone or with the loops around them in one kernel; softmax, norms and losses of rows. */

/* ---- reductions ---- */

enum { ROW_WIDEST = 8192 }; /* elements of a row that one block takes well; of a longer one, parts */

/* The order in which rows of n elements are summed, by their shape alone: parts of `span` elements one after another; a
   part by `lanes` of them, `vector` neighbours to each in turn, of which halves are joined first. How many threads have
   the lanes, and how elements come from memory, changes nothing. */
/* narrow: of floats of 16 bits */
typedef struct row_order {
    int64_t vector, parts, span;
    int lanes;
    bool narrow;
} row_order;

/* along: the reduced elements are neighbours in a dense tensor of that shape. */
static row_order order_of(int64_t rows, int64_t n, int64_t vector, bool along) {
    row_order w = { .vector = along ? vector : 1, .parts = 1, .lanes = along ? 1 : n >= 64 ? 8 : 1 };
    while (w.vector > 1 && n % w.vector) w.vector /= 2;
    int64_t steps = n / w.vector;
    if (along && steps > 32) w.lanes = 256;
    for (; along && w.lanes < 32 && w.lanes < steps;) w.lanes *= 2;
    int64_t blocks = along ? rows : blocks_for(rows, 256 / w.lanes), longest = w.lanes * w.vector * 8;
    if (blocks < 264 && n > 2 * longest && (!along || n > ROW_WIDEST)) w.parts = blocks_for(n, longest);
    if (w.parts > 1 && w.parts * blocks > 1056) w.parts = blocks < 1056 ? 1056 / blocks : 1;
    w.span = (blocks_for(n, w.parts) + w.vector - 1) / w.vector * w.vector;
    if (w.span < 1) w.span = 1;
    w.parts = n ? blocks_for(n, w.span) : 1;
    return w;
}

typedef struct reduction {
    gn_view kept, reduced;
    int64_t n, r, vector, parts, span;
    int tx, ty, lanes;
    bool columns, small, wide;
} reduction;

/* How many threads share an output, and how they lie in memory. */
static void reduce_plan(reduction *r, row_order w, int64_t offset, int bytes) {
    r->n = gn_view_count(&r->kept);
    r->r = gn_view_count(&r->reduced);
    r->small = is_small(&r->kept) && is_small(&r->reduced);
    bool along = r->reduced.rank && r->reduced.strides[r->reduced.rank - 1] == 1,
         beside = r->kept.rank && r->kept.strides[r->kept.rank - 1] == 1;
    r->columns = !along && beside && r->r > 1;
    r->vector = w.vector;
    r->wide = w.vector > 1 && vectorises(&r->reduced, offset, w.vector, bytes) && strides_fit(&r->kept, w.vector);
    r->parts = w.parts;
    r->span = w.span;
    /* many rows: one to a warp, no barriers */
    r->ty = w.lanes < 256 ? w.lanes : !r->columns && r->r / w.vector >= 512 && r->n < 4096 ? 256 : 32;
    r->lanes = w.lanes / r->ty;
    r->tx = 256 / r->ty;
}

/* The device code's side of a reduction. acc: its accumulator; members, given: what `take` needs, as members of a
   struct and as their values; take: takes position r of output o, V elements of it, into `acc`; end: stores what `a` of
   output i gives.
   What `end` needs is `o`, the result of `node` or the accumulators' place `to`, or what `rows` says. */
enum { ACCUMULATOR = 24 }; /* bytes of the largest: soft<double> */
struct row_kernel;
typedef struct reducing {
    const char *acc, *members, *given, *take, *end;
    uint32_t node;
    struct row_kernel *rows;
    const param *to;
} reducing;

static const char *wide_type(gn_dtype dtype) {
    return types[dtype].real || dtype == GN_U64 ? types[dtype].compute : "i64";
}

typedef enum reduce_kind {
    REDUCE_NONE,
    REDUCE_SUM,
    REDUCE_MEAN,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_ARGMAX,
    REDUCE_ARGMIN,
    REDUCE_PROD
} reduce_kind;

static reduce_kind reduce_kind_of(const emit *e, uint32_t node) {
    static const gn_op_id all[] = {
        [REDUCE_SUM] = GN_OP_SUM,  [REDUCE_MEAN] = GN_OP_MEAN,     [REDUCE_MAX] = GN_OP_MAX,
        [REDUCE_MIN] = GN_OP_MIN,  [REDUCE_ARGMAX] = GN_OP_ARGMAX, [REDUCE_ARGMIN] = GN_OP_ARGMIN,
        [REDUCE_PROD] = GN_OP_PROD
    };
    for (int i = REDUCE_SUM; i <= REDUCE_PROD; i++)
        if (node_is(e, node, all[i])) return (reduce_kind)i;
    return REDUCE_NONE;
}

/* Sums of 16-bit floats are plain where few follow one another: their roundings are far below those of what is
   summed. */
static bool is_near(gn_dtype dtype, const row_order *w) {
    return types[dtype].real && (!w->narrow || w->span / w->lanes > 512);
}

/* What an accumulator takes. */
static const char *accumulated_type(reduce_kind kind, gn_dtype dtype) {
    return kind == REDUCE_PROD && types[dtype].real ? "double" : wide_type(dtype);
}

/* The accumulator of elements of this dtype. Products in f64: those of narrower floats may overflow on the way where
   the whole does not. */
static void put_accumulator(char *out, size_t size, reduce_kind kind, gn_dtype dtype, const row_order *w) {
    if (kind == REDUCE_SUM || kind == REDUCE_MEAN)
        snprintf(out, size, is_near(dtype, w) ? "near_sum<%s>" : "sum_of<%s>", wide_type(dtype));
    else if (kind == REDUCE_PROD)
        snprintf(out, size, dtype == GN_F64 ? "near_prod" : "prod_of<%s>", accumulated_type(kind, dtype));
    else
        snprintf(out, size, "best_of<%s, %s>", wide_type(dtype),
                 kind == REDUCE_MIN || kind == REDUCE_ARGMIN ? "true" : "false");
}

/* What accumulator `a` of n elements gives. */
static void put_reduced(char *out, size_t size, reduce_kind kind, gn_dtype dtype, const char *a, int64_t n) {
    if (kind == REDUCE_MEAN) snprintf(out, size, "%s.total() / (%s)%lldll", a, wide_type(dtype), (long long)n);
    else
        snprintf(out, size,
                 kind == REDUCE_ARGMAX || kind == REDUCE_ARGMIN ? "%s.at"
                 : kind == REDUCE_SUM || kind == REDUCE_PROD    ? "%s.total()"
                                                                : "%s.v",
                 a);
}

/* ---- rows: reductions with the loops before, between and behind them in one kernel ---- */

enum { ROW_STEPS = 24, ROW_LOADS = 24, ROW_REGISTERS = 64, ROW_UNROLLED = 4096, ROW_LONGEST = 1 << 20 };

/* A step of a group. full: it gives a value for each element, else one for each row; level: how many reductions that
   value waits for; stored: what is outside the group reads it. */
typedef struct row_step {
    const gn_kernel_step *step;
    bool full, stored;
    uint8_t level;
} row_step;

/* Steps over the elements of `shape`, a dense view, whose rows run along `axes`, in the order they run. */
struct row_group {
    gn_view shape;
    int64_t axes, rows, n;
    uint32_t n_steps;
    row_step steps[ROW_STEPS];
};

/* What the kernel reads. by_row: for a loop over rows, else for one over elements; along: it differs within a row. */
typedef struct row_load {
    uint32_t base;
    int64_t offset;
    gn_dtype dtype;
    gn_view kept, reduced;
    bool by_row, along;
} row_load;

typedef struct row_kernel {
    emit *e;
    const row_group *g;
    loop *l; /* names of registers while a loop is written */
    row_load loads[ROW_LOADS];
    uint32_t n_loads;
    char values[ROW_STEPS][64];
    int64_t vector, groups; /* elements at once; how many times a thread takes so many */
    row_order order;
    int tx, ty, lanes;
    bool small, keeps;    /* keeps: what is read stays in registers */
    bool held[ROW_STEPS]; /* the value stands in registers of an input */
    uint32_t given;       /* 1 + the step whose rows another kernel takes from its shared memory, 0: none */
    int64_t often;        /* rows that one block computes at a time then */
} row_kernel;

static bool row_norm(const emit *e, uint32_t node) { return node_is(e, node, GN_OP_LAYERNORM); }
static bool row_softmax(const emit *e, uint32_t node) {
    return node_is(e, node, GN_OP_SOFTMAX) || node_is(e, node, GN_OP_LOG_SOFTMAX);
}

/* For results of 8 or 11 bits a shorter one. */
static const char *row_exp(const emit *e, uint32_t node) {
    return types[view_of(e, node)->dtype].bytes == 2 ? "exp_short" : "gn_exp";
}

/* A value of each row, seen by all elements. */
static gn_view view_of_rows(const row_group *g) {
    gn_view v = g->shape;
    int64_t stride = 1;
    for (int i = v.rank - 1; i >= 0; i--) {
        bool reduced = (g->axes >> i) & 1;
        v.strides[i] = reduced ? 0 : stride;
        if (!reduced) stride *= v.dims[i];
    }
    return gn_view_collapse(&v);
}

static bool same_view(const gn_view *one, const gn_view *other) {
    bool same = one->rank == other->rank;
    for (int i = 0; i < one->rank && same; i++)
        same = one->dims[i] == other->dims[i] && one->strides[i] == other->strides[i];
    return same;
}

/* A collapsed view over `shape`'s elements with shape's dims again. */
static gn_view expanded(const gn_view *v, const gn_view *shape) {
    gn_view out = *shape;
    int64_t left = 1, stride = 0;
    int at = v->rank;
    for (int i = shape->rank - 1; i >= 0; i--) {
        out.strides[i] = 0;
        if (shape->dims[i] <= 1) continue; /* of no elements nothing is loaded */
        if (left == 1 && at > 0) {
            left = v->dims[--at];
            stride = v->strides[at];
        }
        out.strides[i] = stride;
        stride *= shape->dims[i];
        left /= shape->dims[i];
    }
    return out;
}

static uint32_t row_inputs(const emit *e, const gn_kernel_step *step) {
    return step->n_instrs ? step->n_loads : e->part->nodes[step->node].n_ins;
}

/* Input i of a step, of an op over all elements too, as a loop would load it. */
static gn_load row_input(const emit *e, const row_group *g, const gn_kernel_step *step, uint32_t i) {
    if (step->n_instrs) return e->layout->loads[step->load + i];
    uint32_t x = input(e, step->node, i);
    gn_view wide = gn_view_broadcast(view_of(e, x), g->shape.rank, g->shape.dims);
    gn_load d = { .base = e->layout->lay[x].base, .dtype = (uint8_t)view_of(e, x)->dtype };
    d.view = gn_view_collapse(&wide);
    return d;
}

/* The step of the group that gives node's value, or -1. */
static int row_member(const row_group *g, uint32_t node) {
    for (uint32_t i = 0; i < g->n_steps; i++)
        if (g->steps[i].step->node == node) return (int)i;
    return -1;
}

static bool row_load_equal(const row_load *one, const row_load *other) {
    return one->base == other->base && one->offset == other->offset && one->by_row == other->by_row &&
           same_view(&one->kept, &other->kept) && same_view(&one->reduced, &other->reduced);
}

/* The load of an input from outside the group, made when it is not there; ROW_LOADS: there is no room. */
static uint32_t row_load_of(row_kernel *k, const gn_load *d, bool full) {
    row_load load = {
        .base = d->base, .offset = d->view.offset, .dtype = (gn_dtype)d->dtype, .by_row = !full, .kept = d->view
    };
    if (full) {
        gn_view wide = expanded(&d->view, &k->g->shape), kept = dims_of(&wide, k->g->axes, false),
                reduced = dims_of(&wide, k->g->axes, true);
        load.kept = gn_view_collapse(&kept);
        load.reduced = gn_view_collapse(&reduced);
        for (int i = 0; i < load.reduced.rank; i++) load.along = load.along || load.reduced.strides[i];
    }
    for (uint32_t i = 0; i < k->n_loads; i++)
        if (row_load_equal(&k->loads[i], &load)) return i;
    if (k->n_loads == ROW_LOADS) return ROW_LOADS;
    k->loads[k->n_loads] = load;
    return k->n_loads++;
}

/* False when the group reads more than there is room for. */
static bool row_loads(row_kernel *k) {
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        const row_step *s = &k->g->steps[m];
        for (uint32_t i = 0; i < row_inputs(k->e, s->step); i++) {
            gn_load d = row_input(k->e, k->g, s->step, i);
            bool full = s->full || !s->step->n_instrs;
            if (!d.constant && row_member(k->g, d.base) < 0 && row_load_of(k, &d, full) == ROW_LOADS) return false;
        }
    }
    return true;
}

/* Whether V elements of it from a multiple of V on lie side by side. */
static bool is_wide(const row_kernel *k, const row_load *load) {
    return k->vector > 1 && vectorises(&load->reduced, load->offset, k->vector, types[load->dtype].bytes) &&
           strides_fit(&load->kept, k->vector);
}

/* Loads of a loop over elements at position r of row o, those that `needed` marks, into registers `w` with `suffix`
   behind their names. */
static void put_row_loads(row_kernel *k, const bool *needed, const char *suffix) {
    text *b = &k->e->body;
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const row_load *load = &k->loads[i];
        if (!needed[i] || !load->along) continue;
        bool wide = is_wide(k, load);
        put(b, wide ? "      vload<%lld>(w%u%s, p%u + " : "      UNROLL for (int v = 0; v < %lld; v++) w%u%s[v] = p%u[",
            (long long)k->vector, i, suffix, i);
        put_offset(b, &load->reduced, wide || k->vector == 1 ? "r" : "r + v", k->small);
        put(b, wide ? ");\n" : "];\n");
    }
}

/* The name of a step's input: a register, a constant or another step's value. */
static void row_name(row_kernel *k, const row_step *s, uint32_t i, char *out, size_t size) {
    gn_load d = row_input(k->e, k->g, s->step, i);
    int m = row_member(k->g, d.base);
    if (d.constant) {
        snprintf(out, size, "cast_to<%s>::of(gn_f64(0x%llxull))", types[d.dtype].name,
                 (unsigned long long)f64_word(d.value));
        return;
    }
    if (m >= 0) {
        snprintf(out, size, "%.63s", k->values[m]);
        return;
    }
    uint32_t at = row_load_of(k, &d, s->full || !s->step->n_instrs);
    snprintf(out, size, !k->loads[at].along ? "x%u" : k->keeps ? "get(w%u[k][v])" : "get(w%u[v])", at);
}

/* The statements of a loop, and the name of its value. */
static void put_row_loop(row_kernel *k, uint32_t m) {
    const row_step *s = &k->g->steps[m];
    loop *l = k->l;
    l->step = s->step;
    l->number = m * 100;
    for (uint32_t i = 0; i < s->step->n_loads; i++)
        row_name(k, s, i, l->names[load_of(k->e, l, i)->reg], sizeof l->names[0]);
    for (uint32_t i = 0; i < s->step->n_instrs; i++) loop_instr(k->e, l, i);
    snprintf(k->values[m], sizeof k->values[m], "%.63s", l->names[s->step->out]);
}

/* Rounds the value of a step that other steps of the kernel read. */
static void put_row_rounded(row_kernel *k, uint32_t m) {
    const row_group *g = k->g;
    gn_dtype d = view_of(k->e, g->steps[m].step->node)->dtype;
    bool read = false;
    for (uint32_t i = m + 1; i < g->n_steps; i++)
        for (uint32_t j = 0; j < row_inputs(k->e, g->steps[i].step); j++) {
            gn_load in = row_input(k->e, g, g->steps[i].step, j);
            read = read || (!in.constant && row_member(g, in.base) == (int)m);
        }
    if (!read || !types[d].real || !drops_bits(d)) return;
    put(&k->e->body, "      const %s h%u = cast_to<%s>::of(%s);\n", types[d].compute, m, types[d].name, k->values[m]);
    snprintf(k->values[m], sizeof k->values[m], "h%u", m);
}

/* The value of an element that a softmax or a norm gives, from what its row's reductions gave. */
static void put_row_op(row_kernel *k, uint32_t m) {
    const row_step *s = &k->g->steps[m];
    uint32_t node = s->step->node;
    const char *c = types[view_of(k->e, node)->dtype].compute;
    char x[64], gain[80] = "", bias[80] = "";
    row_name(k, s, 0, x, sizeof x);
    if (row_norm(k->e, node)) {
        int64_t bits = attrs_of(k->e, node)[1];
        char name[64];
        if (bits & 1) {
            row_name(k, s, 1, name, sizeof name);
            snprintf(gain, sizeof gain, " * %s", name);
        }
        if (bits & 2) {
            row_name(k, s, k->e->part->nodes[node].n_ins - 1, name, sizeof name);
            snprintf(bias, sizeof bias, " + %s", name);
        }
        put(&k->e->body, "      const %s v%u = (%s - mean%u) * scale%u%s%s;\n", c, m, x, m, m, gain, bias);
    } else if (node_is(k->e, node, GN_OP_SOFTMAX))
        put(&k->e->body, "      const %s v%u = %s(%s - top%u) * other%u;\n", c, m, row_exp(k->e, node), x, m, m);
    else put(&k->e->body, "      const %s v%u = (%s - top%u) - other%u;\n", c, m, x, m, m);
    snprintf(k->values[m], sizeof k->values[m], "v%u", m);
    put_row_rounded(k, m);
}

static void put_row_step(row_kernel *k, uint32_t m) {
    if (k->g->steps[m].step->n_instrs) put_row_loop(k, m);
    else put_row_op(k, m);
}

/* Marks a value over elements, and those it is computed from; loads: what they read. */
static void row_need(row_kernel *k, uint32_t m, bool *steps, bool *loads) {
    const row_step *s = &k->g->steps[m];
    if (steps[m] || k->held[m]) return;
    steps[m] = s->full;
    for (uint32_t i = 0; i < row_inputs(k->e, s->step); i++) {
        gn_load d = row_input(k->e, k->g, s->step, i);
        int x = row_member(k->g, d.base);
        if (d.constant || (x >= 0 && !k->g->steps[x].full)) continue;
        if (x >= 0) row_need(k, (uint32_t)x, steps, loads);
        else if (s->full || !s->step->n_instrs) loads[row_load_of(k, &d, true)] = true;
    }
}

static void row_need_input(row_kernel *k, uint32_t m, bool *steps, bool *loads) {
    gn_load d = row_input(k->e, k->g, k->g->steps[m].step, 0);
    int x = row_member(k->g, d.base);
    if (x >= 0) row_need(k, (uint32_t)x, steps, loads);
    else loads[row_load_of(k, &d, true)] = true;
}

/* What a reduction takes, in the dtype of its input. */
static gn_dtype row_input_dtype(const emit *e, uint32_t m, const row_group *g) {
    return view_of(e, input(e, g->steps[m].step->node, 0))->dtype;
}

/* Loads by row, and the loops over rows of one level, 0: all. */
static void put_row_values(row_kernel *k, uint32_t level) {
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        const row_step *s = &k->g->steps[m];
        if (!s->full && s->step->n_instrs && (!level || s->level == level)) put_row_step(k, m);
    }
}

/* The value of a row that a reduction gave, in `a`: in the arithmetic of its dtype. */
static void put_row_reduced(row_kernel *k, uint32_t m, const char *a) {
    const emit *e = k->e;
    uint32_t node = k->g->steps[m].step->node;
    gn_dtype dtype = view_of(e, node)->dtype;
    reduce_kind kind = reduce_kind_of(e, node);
    char value[96];
    put_reduced(value, sizeof value, kind, row_input_dtype(e, m, k->g), a, k->g->n);
    if (types[dtype].real)
        put(&k->e->body, "    const %s s%u = %s;\n", kind == REDUCE_PROD ? "double" : types[dtype].compute, m, value);
    else
        put(&k->e->body, "    const %s s%u = cast_to<%s>::of((i64)(%s));\n", types[dtype].compute, m, types[dtype].name,
            value);
    snprintf(k->values[m], sizeof k->values[m], "s%u", m);
    put_row_rounded(k, m);
}

static void put_row_store(row_kernel *k, uint32_t m, const char *at) {
    put(&k->e->body, "    put(o%u[%s], %s);\n", m, at, k->values[m]);
}

/* `k->e->body` as a text of its own. */
static text row_body(row_kernel *k) {
    text t = k->e->body;
    k->e->body = (text){ 0 };
    if (t.failed || !t.s) k->e->failed = true;
    return t;
}

static void put_row_endings(row_kernel *k, text *members, text *given) {
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const row_load *load = &k->loads[i];
        char name[16];
        if (!load->by_row) continue;
        snprintf(name, sizeof name, "a%u", i);
        emit_pointer(k->e, types[load->dtype].name, true, name, (param){ PARAM_NODE, load->base, load->offset });
        put(members, "const %s *%s; ", types[load->dtype].name, name);
        put(given, given->n ? ", %s" : "%s", name);
    }
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        if (!k->g->steps[m].stored) continue;
        uint32_t node = k->g->steps[m].step->node;
        const char *type = types[view_of(k->e, node)->dtype].name;
        char name[16];
        snprintf(name, sizeof name, "o%u", m);
        emit_node(k->e, node, type, false, name);
        put(members, "%s *%s; ", type, name);
        put(given, given->n ? ", %s" : "%s", name);
    }
}

static const char reduction_text[] =
    "// P: A, N outputs, R reduced, PARTS and SPAN (of R), TX x TY = 256, V, LANES of a thread, COLUMNS, I: index; "
    "f.take(o, r, A&) takes V elements, g.end(o, A) stores\n"
    "template <class P, class F, class G> M void reduce(const F &f, const G &g, typename P::A *parts) {\n"
    "  typedef typename P::I I;\n"
    "  enum { L = P::LANES };\n"
    "  const int tx = P::COLUMNS ? threadIdx.x % P::TX : threadIdx.x / P::TY, ty = P::COLUMNS ? threadIdx.x / P::TX : "
    "threadIdx.x % P::TY;\n"
    "  const I o = (I)blockIdx.x * P::TX + tx, begin = (I)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::R ? begin + "
    "P::SPAN : P::R;\n"
    "  typename P::A a[L];\n"
    "  UNROLL for (int j = 0; j < L; j++) a[j].init();\n"
    "  const I step = P::TY * P::V;\n"
    "  I r = begin + ty * P::V;\n"
    "  if (o < P::N && L == 1) _Pragma(\"unroll 8\") for (; r < end; r += step) f.take(o, r, a[0]);\n"
    "  const bool full = P::R % (L * P::TY * P::V) == 0 && P::PARTS == 1;\n"
    "  if (o < P::N && L > 1) _Pragma(\"unroll 1\") for (; r < end; r += L * step) UNROLL for (int j = 0; j < L; "
    "j++) if (full || r + j * step < end) f.take(o, r + j * step, a[j]);\n"
    "  const typename P::A all = joined<P::TY, L, P::COLUMNS>(a);\n"
    "  if (ty || o >= P::N) return;\n"
    "  if (P::PARTS > 1) parts[(u64)o * P::PARTS + blockIdx.y] = all; else g.end(o, all);\n"
    "}\n"
    "template <class P, class G> M void combine(const G &g, const typename P::A *parts) {\n"
    "  typename P::A a;\n"
    "  a.init();\n"
    "  for (int s = threadIdx.x; s < P::PARTS; s += 256) a.merge(parts[(u64)blockIdx.x * P::PARTS + s]);\n"
    "  a = together<256>(a);\n"
    "  if (threadIdx.x == 0) g.end((typename P::I)blockIdx.x, a);\n"
    "}\n"
    "// ---- running along an axis, sorting, compaction ----\n"
    "template <class C> struct prod_of { C v;\n"
    "  M void init() { v = 1; }\n"
    "  M void take(C x, i64) { v = gn_mul(v, x); }\n"
    "  M void merge(const prod_of &o) { v = gn_mul(v, o.v); }\n"
    "  M C total() const { return v; } };\n"
    "// With what multiplications lose beside it.\n"
    "struct near_prod { double v, rest;\n"
    "  M void init() { v = 1; rest = 0; }\n"
    "  M void take(double x, i64) { const double t = v * x; rest = gn_fma(v, x, -t) + rest * x; v = t; }\n"
    "  M void merge(const near_prod &o) { const double t = v * o.v; rest = gn_fma(v, o.v, "
    "-t) + (rest * o.v + v * o.rest); v = t; }\n"
    "  M double total() const { const double y = v + rest; return y == y ? y : v; } };\n";

/* The kernel's parameters that `end` needs, the struct of them, and one in the body. */
static void put_ending_of_reduction(emit *e, const reducing *how) {
    text members = { 0 }, given = { 0 };
    if (how->rows) put_row_endings(how->rows, &members, &given);
    else {
        const char *type = how->to ? how->acc : types[view_of(e, how->node)->dtype].name;
        emit_pointer(e, type, false, "o", how->to ? *how->to : at_node(e, how->node, 0));
        put(&members, "%s *o;", type);
        put(&given, "o");
    }
    put(&e->types, "struct @_g { %s\n  M void end(@_p::I i, const @_p::A &a) const {\n%s  }\n};\n",
        members.s ? members.s : "", how->end);
    put(&e->body, "  const @_g g = { %s };\n", given.s ? given.s : "");
    e->failed = e->failed || members.failed || given.failed;
    text_free(&members);
    text_free(&given);
}

static void put_reduction_type(emit *e, const reduction *r, const char *acc) {
    put(&e->types,
        "struct @_p { typedef %s A; typedef %s I; static const i64 N = %lldll, R = %lldll, PARTS = %lldll, SPAN = "
        "%lldll; enum { TX = %d, TY = %d, V = %lld, LANES = %d, COLUMNS = %d }; };\n",
        acc, r->small ? "int" : "i64", (long long)r->n, (long long)r->r, (long long)r->parts, (long long)r->span, r->tx,
        r->ty, (long long)r->vector, r->lanes, r->columns);
}

/* The parameters that `take` needs are there already. */
static void emit_reduction(emit *e, const reduction *r, const char *label, const reducing *how) {
    size_t bytes = gn_size_mul(gn_size_mul((size_t)r->n, (size_t)r->parts), ACCUMULATOR);
    if (!r->n) {
        emit_nothing(e);
        return;
    }
    if (r->parts > 1 && bytes > e->scratch) e->scratch = bytes;
    put_reduction_type(e, r, how->acc);
    put(&e->types, "struct @_f { %s\n  M void take(@_p::I o, @_p::I r, @_p::A &acc) const {\n%s  }\n};\n", how->members,
        how->take);
    put(&e->body, "  const @_f f = { %s };\n", how->given);
    put_ending_of_reduction(e, how);
    if (r->parts > 1) emit_pointer(e, "void", false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_await(e);
    put(&e->body, "  reduce<@_p>(f, g, %s);\n", r->parts > 1 ? "(@_p::A *)parts" : "0");
    emit_launch(e, label, (uint64_t)blocks_for(r->n, r->tx), (uint64_t)r->parts, 256);
    if (r->parts > 1) {
        char combined[80];
        put_reduction_type(e, r, how->acc);
        put_ending_of_reduction(e, how);
        emit_pointer(e, "void", true, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        put(&e->body, "  combine<@_p>(g, (const @_p::A *)parts);\n");
        snprintf(combined, sizeof combined, "%s_combine", label);
        emit_launch(e, combined, (uint64_t)r->n, 1, 256);
    }
}

/* What is the same for all elements of a row. */
static void put_loads_of_row(row_kernel *k, bool by_row, const char *at) {
    text *b = &k->e->body;
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const row_load *load = &k->loads[i];
        if (load->along || load->by_row != by_row) continue;
        put(b, "    const %s x%u = get(a%u[", types[load->dtype].compute, i, i);
        put_offset(b, &load->kept, at, k->small);
        put(b, "]);\n");
    }
}

/* The load that runs along memory, for those that a plan looks at. */
static const row_load *row_widest(const row_kernel *k) {
    const row_load *best = NULL;
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const row_load *load = &k->loads[i];
        if (!load->along) continue;
        bool runs = load->reduced.strides[load->reduced.rank - 1] == 1,
             ran = best && best->reduced.strides[best->reduced.rank - 1] == 1;
        if (!best || (runs && !ran) || (runs == ran && types[load->dtype].bytes > types[best->dtype].bytes))
            best = load;
    }
    return best;
}

static int row_largest(const row_kernel *k) {
    int bytes = 1;
    for (uint32_t i = 0; i < k->n_loads; i++)
        if (k->loads[i].along && types[k->loads[i].dtype].bytes > bytes) bytes = types[k->loads[i].dtype].bytes;
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        int own = types[view_of(k->e, k->g->steps[m].step->node)->dtype].bytes;
        if (k->g->steps[m].full && k->g->steps[m].stored && own > bytes) bytes = own;
    }
    return bytes;
}

static bool rows_run_along(const row_group *g) {
    for (int i = g->shape.rank - 1; i >= 0; i--)
        if (g->shape.dims[i] != 1) return (g->axes >> i) & 1;
    return true;
}

/* Bytes of what the step sums, 0 when the order of its elements changes nothing. */
static int row_summed(const emit *e, const row_group *g, uint32_t m) {
    const row_step *s = &g->steps[m];
    reduce_kind kind = s->step->n_instrs ? REDUCE_NONE : reduce_kind_of(e, s->step->node);
    gn_dtype dtype = s->step->n_instrs ? GN_F32 : row_input_dtype(e, m, g);
    bool sums =
        kind == REDUCE_NONE ? !s->step->n_instrs : kind == REDUCE_SUM || kind == REDUCE_MEAN || kind == REDUCE_PROD;
    return sums && types[dtype].real ? types[dtype].bytes : 0;
}

/* All that a group reads and stores of elements has 16 bits, whatever it is cast to between. */
static bool row_is_narrow(const row_kernel *k) {
    bool any = false;
    for (uint32_t i = 0; i < k->n_loads; i++) {
        if (!k->loads[i].by_row && types[k->loads[i].dtype].bytes != 2) return false;
        any = any || !k->loads[i].by_row;
    }
    for (uint32_t m = 0; m < k->g->n_steps; m++)
        if (k->g->steps[m].full && k->g->steps[m].stored &&
            types[view_of(k->e, k->g->steps[m].step->node)->dtype].bytes != 2)
            return false;
    return any;
}

/* By the first step that sums; those of a group agree. */
static row_order row_order_of(const row_kernel *k) {
    int bytes = 0;
    for (uint32_t m = 0; m < k->g->n_steps && !bytes; m++) bytes = row_summed(k->e, k->g, m);
    bool narrow = bytes == 4 && row_is_narrow(k);
    row_order w = order_of(k->e->invariant ? 1 : k->g->rows, k->g->n,
                           16 / (narrow  ? 2
                                 : bytes ? bytes
                                         : row_largest(k)),
                           rows_run_along(k->g));
    w.narrow = narrow || bytes == 2;
    return w;
}

/* What a reduction's accumulator reads: members of its struct, and what they are given. */
static void put_row_members(row_kernel *k, text *members, text *given) {
    char name[24];
    for (uint32_t i = 0; i < k->n_loads; i++) {
        if (k->loads[i].by_row) continue;
        const char *type = types[k->loads[i].dtype].name;
        snprintf(name, sizeof name, "a%u", i);
        emit_pointer(k->e, type, true, name, (param){ PARAM_NODE, k->loads[i].base, k->loads[i].offset });
        put(members, "const %s *%s; ", type, name);
        put(given, given->n ? ", %s" : "%s", name);
    }
    if (given->n) return;
    put(members, "int none;");
    put(given, "0");
}

/* The one reduction of a group that is nothing else over elements, by as many threads and blocks as it is worth. */
static void emit_row_reduction(row_kernel *k, const char *label) {
    emit *e = k->e;
    const row_group *g = k->g;
    const row_load *main = row_widest(k);
    gn_view kept = dims_of(&g->shape, g->axes, false), reduced = dims_of(&g->shape, g->axes, true);
    reduction r = { .kept = main ? main->kept : gn_view_collapse(&kept),
                    .reduced = main ? main->reduced : gn_view_collapse(&reduced) };
    bool steps[ROW_STEPS] = { false }, loads[ROW_LOADS] = { false };
    uint32_t m = 0;
    char acc[40], name[64];
    text members = { 0 }, given = { 0 };
    while (g->steps[m].full || g->steps[m].step->n_instrs) m++;
    gn_dtype dtype = row_input_dtype(e, m, g);
    k->order = row_order_of(k);
    reduce_plan(&r, k->order, 0, row_largest(k));
    if (!row_summed(e, g, m)) r.lanes = 1;
    k->vector = r.vector;
    for (uint32_t i = 0; i < k->n_loads; i++)
        r.small = r.small && is_small(&k->loads[i].kept) && is_small(&k->loads[i].reduced);
    k->small = r.small;
    row_need_input(k, m, steps, loads);
    put_accumulator(acc, sizeof acc, reduce_kind_of(e, g->steps[m].step->node), dtype, &k->order);
    put_loads_of_row(k, false, "o");
    for (uint32_t i = 0; i < k->n_loads; i++) {
        if (!loads[i] || !k->loads[i].along) continue;
        const char *type = types[k->loads[i].dtype].name;
        put(&e->body, "    %s w%u[%lld]; const %s *p%u = a%u + ", type, i, (long long)k->vector, type, i, i);
        put_offset(&e->body, &k->loads[i].kept, "o", k->small);
        put(&e->body, ";\n");
    }
    put_row_loads(k, loads, "");
    put(&e->body, "    %s taken[%lld];\n    UNROLL for (int v = 0; v < %lld; v++) {\n",
        accumulated_type(reduce_kind_of(e, g->steps[m].step->node), dtype), (long long)k->vector, (long long)k->vector);
    for (uint32_t i = 0; i < g->n_steps; i++)
        if (steps[i]) put_row_step(k, i);
    row_name(k, &g->steps[m], 0, name, sizeof name);
    put(&e->body, "      taken[v] = %s;\n    }\n    take_all<%lld>(acc, taken, r);\n", name, (long long)k->vector);
    text taking = row_body(k);
    put_loads_of_row(k, true, "i");
    put_row_reduced(k, m, "a");
    put_row_values(k, 0);
    for (uint32_t i = 0; i < g->n_steps; i++)
        if (g->steps[i].stored) put_row_store(k, i, "i");
    text end = row_body(k);
    emit_early(e);
    put_row_members(k, &members, &given);
    e->failed = e->failed || members.failed || given.failed;
    if (!e->failed) emit_reduction(e, &r, label, &(reducing){ acc, members.s, given.s, taking.s, end.s, 0, k, NULL });
    text_free(&taking);
    text_free(&end);
    text_free(&members);
    text_free(&given);
}

/* ---- rows of several reductions, or with values of elements behind them: a row to some threads of one block ---- */

static uint32_t row_levels(const row_group *g) {
    uint32_t levels = 0;
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (g->steps[m].level > levels) levels = g->steps[m].level;
    return levels;
}

/* How many threads share a row, and whether what they read stays in their registers. */
static void row_threads(row_kernel *k) {
    const row_group *g = k->g;
    int64_t n = g->n, along = 0, words = 0, instrs = 1, most;
    k->order = row_order_of(k);
    k->vector = k->order.vector;
    int64_t steps = n / k->vector;
    bool at_once = k->given && k->often > 1; /* one block has several rows, side by side */
    k->ty = !rows_run_along(g) ? 1 : steps > 256 && !at_once ? 256 : k->order.lanes < 32 ? k->order.lanes : 32;
    /* few rows: more threads for each */
    while (rows_run_along(g) && k->ty < k->order.lanes && k->ty < steps &&
           (k->given ? 2 * k->ty * k->often <= 256 : g->rows * k->ty < 256 * emit_processors(k->e)))
        k->ty *= 2;
    k->lanes = k->order.lanes / k->ty;
    k->tx = 256 / k->ty;
    k->groups = blocks_for(steps, k->ty);
    for (uint32_t i = 0; i < k->n_loads; i++) {
        along += k->loads[i].along;
        if (k->loads[i].along) words += types[k->loads[i].dtype].bytes > 4 ? 2 : 1;
    }
    for (uint32_t m = 0; m < g->n_steps; m++) instrs += g->steps[m].step->n_instrs ? g->steps[m].step->n_instrs : 4;
    most = k->groups * k->vector;
    k->keeps =
        along && most <= 64 && most * words <= ROW_REGISTERS && most * instrs * (row_levels(g) + 1) <= ROW_UNROLLED;
    k->small = is_small(&g->shape);
    for (uint32_t i = 0; i < k->n_loads; i++)
        k->small = k->small && is_small(&k->loads[i].kept) && is_small(&k->loads[i].reduced);
}

/* From here to the `}` that row_loop_ends puts, r is the first of V elements of this thread. */
static void row_loop_begins(row_kernel *k, const bool *loads) {
    text *b = &k->e->body;
    bool exact = k->groups * k->ty * k->vector == k->g->n;
    if (k->keeps)
        put(b,
            exact ? "  UNROLL for (int k = 0; k < %lld; k++) {\n      const I r = (k * %d + ty) * %lld;\n"
                  : "  UNROLL for (int k = 0; k < %lld; k++) {\n      const I r = (k * %d + ty) * %lld;\n      if (r "
                    ">= %lld) continue;\n",
            (long long)k->groups, k->ty, (long long)k->vector, (long long)k->g->n);
    else if (k->lanes == 1)
        put(b, "  for (I r = ty * %lld; r < %lld; r += %lld) {\n", (long long)k->vector, (long long)k->g->n,
            (long long)k->vector * k->ty);
    else
        put(b,
            "  for (I from = 0; from < %lld; from += %lld) UNROLL for (int k = 0; k < %d; k++) {\n      const I r = "
            "from + (k * %d + ty) * %lld;\n      if (r >= %lld) continue;\n",
            (long long)k->g->n, (long long)k->vector * k->order.lanes, k->lanes, k->ty, (long long)k->vector,
            (long long)k->g->n);
    for (uint32_t i = 0; i < k->n_loads && !k->keeps; i++)
        if (loads[i] && k->loads[i].along)
            put(b, "      %s w%u[%lld];\n", types[k->loads[i].dtype].name, i, (long long)k->vector);
    if (!k->keeps) put_row_loads(k, loads, "");
}

/* The reductions that pass `level` computes: of a softmax and of a norm two, one after the other. phase: 0 or 1; -1:
   none here. */
static int row_phase(const row_kernel *k, uint32_t m, uint32_t level) {
    const row_step *s = &k->g->steps[m];
    if (s->step->n_instrs) return -1;
    uint32_t first = s->level - (s->full ? 2u : 1u);
    return level == first ? 0 : s->full && level == first + 1 ? 1 : -1;
}

static void put_row_accumulator(row_kernel *k, uint32_t m, int phase, char *out, size_t size) {
    uint32_t node = k->g->steps[m].step->node;
    gn_dtype dtype = row_input_dtype(k->e, m, k->g);
    if (reduce_kind_of(k->e, node) == REDUCE_MAX && types[dtype].real)
        snprintf(out, size, "max_of<%s>", types[dtype].compute);
    else if (reduce_kind_of(k->e, node)) put_accumulator(out, size, reduce_kind_of(k->e, node), dtype, &k->order);
    else
        snprintf(out, size,
                 phase == 0 && row_softmax(k->e, node)                     ? "max_of<%s>"
                 : dtype == GN_F64 || k->order.span / k->order.lanes > 512 ? "near_sum<%s>"
                                                                           : "sum_of<%s>",
                 types[dtype].compute);
}

static void put_row_accumulate(row_kernel *k, uint32_t m, int phase) {
    uint32_t node = k->g->steps[m].step->node;
    char x[64], lane[16] = "0";
    row_name(k, &k->g->steps[m], 0, x, sizeof x);
    if (k->lanes > 1) snprintf(lane, sizeof lane, "k %% %d", k->lanes);
    if (phase == 0) put(&k->e->body, "      taken%u[v] = %s;\n", m, x);
    else if (row_norm(k->e, node)) put(&k->e->body, "      z%u[%s].square(%s - mean%u);\n", m, lane, x, m);
    else put(&k->e->body, "      taken%u[v] = %s(%s - top%u);\n", m, row_exp(k->e, node), x, m);
}

/* V elements at once: all but a norm's squares. */
static bool row_reads_vectors(const row_kernel *k, uint32_t m, int phase) {
    return phase == 0 || (phase == 1 && !row_norm(k->e, k->g->steps[m].step->node));
}

/* What all threads of the row have taken, together. */
static void put_row_together(row_kernel *k, uint32_t m, int phase) {
    uint32_t node = k->g->steps[m].step->node;
    const char *c = types[view_of(k->e, node)->dtype].compute;
    text *b = &k->e->body;
    char name[16];
    snprintf(name, sizeof name, phase ? "zs%u" : "qs%u", m);
    put(b, "    const auto %s = joined<%d, %d, false>(%c%u);\n", name, k->ty, k->lanes, phase ? 'z' : 'q', m);
    if (!k->g->steps[m].full) put_row_reduced(k, m, name);
    else if (row_softmax(k->e, node) && phase == 0) put(b, "    const %s top%u = qs%u.v;\n", c, m, m);
    else if (row_softmax(k->e, node))
        put(b,
            node_is(k->e, node, GN_OP_SOFTMAX) ? "    const %s other%u = (%s)1 / zs%u.total();\n"
                                               : "    const %s other%u = gn_log((%s)zs%u.total());\n",
            c, m, c, m);
    else if (phase == 0) put(b, "    const %s mean%u = qs%u.total() / (%s)%lldll;\n", c, m, m, c, (long long)k->g->n);
    else
        put(b, "    const %s scale%u = (%s)1 / gn_sqrt(zs%u.total() / (%s)%lldll + (%s)gn_f64(0x%llxull));\n", c, m, c,
            m, c, (long long)k->g->n, c, (unsigned long long)attrs_of(k->e, node)[0]);
}

static bool row_stores_at(const row_kernel *k, uint32_t m, uint32_t level) {
    const row_step *s = &k->g->steps[m];
    return s->full && (s->stored || k->given == m + 1) && s->level == level;
}

static void put_row_stores(row_kernel *k, uint32_t level) {
    text *b = &k->e->body;
    gn_view reduced = dims_of(&k->g->shape, k->g->axes, true);
    gn_view along = gn_view_collapse(&reduced);
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        if (!row_stores_at(k, m, level)) continue;
        bool wide = k->vector > 1 && along.rank == 1 && along.strides[0] == 1;
        if (k->given == m + 1)
            put(b, "      if (live) UNROLL for (int v = 0; v < %lld; v++) to[(row - first) * %lld + r + v] = y%u[v];\n",
                (long long)k->vector, (long long)k->g->n, m);
        if (k->given == m + 1 && !k->g->steps[m].stored) continue;
        put(b, wide ? "      if (%s) vstore<%lld>(u%u + " : "      if (%s) UNROLL for (int v = 0; v < %lld; v++) u%u[",
            k->given ? "stores" : "live", (long long)k->vector, m);
        put_offset(b, &along, wide || k->vector == 1 ? "r" : "r + v", k->small);
        put(b, wide ? ", y%u);\n" : "] = y%u[v];\n", m);
    }
}

/* Steps that read a load over elements; *out_m: the last of them. */
static int row_readers(row_kernel *k, uint32_t load, uint32_t *out_m) {
    int n = 0;
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        const row_step *s = &k->g->steps[m];
        bool reads = false;
        for (uint32_t i = 0; i < row_inputs(k->e, s->step); i++) {
            gn_load d = row_input(k->e, k->g, s->step, i);
            if (d.constant || row_member(k->g, d.base) >= 0) continue;
            reads = reads || row_load_of(k, &d, s->full || !s->step->n_instrs) == load;
        }
        if (!reads) continue;
        n++;
        *out_m = m;
    }
    return n;
}

/* What a loop has computed takes the registers of an input of its dtype that nothing else reads: later walks over the
   row find it there, and do not compute it again. */
static void put_row_held(row_kernel *k, uint32_t m, uint32_t level) {
    const row_step *s = &k->g->steps[m];
    uint32_t reader = ROW_STEPS;
    if (!k->keeps || !s->full || !s->step->n_instrs || level == row_levels(k->g)) return;
    for (uint32_t i = 0; i < k->n_loads; i++) {
        if (!k->loads[i].along || k->loads[i].dtype != view_of(k->e, s->step->node)->dtype) continue;
        if (row_readers(k, i, &reader) != 1 || reader != m) continue;
        put(&k->e->body, "      put(w%u[k][v], %s);\n", i, k->values[m]);
        snprintf(k->values[m], sizeof k->values[m], "get(w%u[k][v])", i);
        k->held[m] = true;
        return;
    }
}

/* One walk over the row: what waits for `level` reductions. */
static void put_row_pass(row_kernel *k, uint32_t level) {
    const row_group *g = k->g;
    bool steps[ROW_STEPS] = { false }, loads[ROW_LOADS] = { false };
    text *b = &k->e->body;
    char acc[48];
    for (uint32_t m = 0; m < g->n_steps; m++) {
        int phase = row_phase(k, m, level);
        if (phase >= 0) {
            put_row_accumulator(k, m, phase, acc, sizeof acc);
            put(b, "    %s %c%u[%d];\n    UNROLL for (int i = 0; i < %d; i++) %c%u[i].init();\n", acc,
                phase ? 'z' : 'q', m, k->lanes, k->lanes, phase ? 'z' : 'q', m);
            row_need_input(k, m, steps, loads);
        }
        if (row_stores_at(k, m, level)) row_need(k, m, steps, loads);
    }
    row_loop_begins(k, loads);
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (row_stores_at(k, m, level))
            put(b, "      %s y%u[%lld];\n", types[view_of(k->e, g->steps[m].step->node)->dtype].name, m,
                (long long)k->vector);
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (row_reads_vectors(k, m, row_phase(k, m, level)))
            put(b, "      %s taken%u[%lld];\n",
                accumulated_type(reduce_kind_of(k->e, g->steps[m].step->node), row_input_dtype(k->e, m, g)), m,
                (long long)k->vector);
    put(b, "      UNROLL for (int v = 0; v < %lld; v++) {\n", (long long)k->vector);
    for (uint32_t m = 0; m < g->n_steps; m++) {
        if (!steps[m]) continue;
        put_row_step(k, m);
        put_row_held(k, m, level);
    }
    for (uint32_t m = 0; m < g->n_steps; m++) {
        if (row_phase(k, m, level) >= 0) put_row_accumulate(k, m, row_phase(k, m, level));
        if (row_stores_at(k, m, level)) put(b, "      put(y%u[v], %s);\n", m, k->values[m]);
    }
    put(b, "      }\n");
    for (uint32_t m = 0; m < g->n_steps; m++) {
        int phase = row_phase(k, m, level);
        char lane[16] = "0";
        if (k->lanes > 1) snprintf(lane, sizeof lane, "k %% %d", k->lanes);
        if (row_reads_vectors(k, m, phase))
            put(b, "      take_all<%lld>(%c%u[%s], taken%u, r);\n", (long long)k->vector, phase ? 'z' : 'q', m, lane,
                m);
    }
    put_row_stores(k, level);
    put(b, "  }\n");
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (row_phase(k, m, level) >= 0) put_row_together(k, m, row_phase(k, m, level));
    put_row_values(k, level + 1);
}

static void put_row_pointers(row_kernel *k) {
    text *b = &k->e->body;
    gn_view kept = dims_of(&k->g->shape, k->g->axes, false);
    gn_view across = gn_view_collapse(&kept);
    bool all[ROW_LOADS];
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const row_load *load = &k->loads[i];
        const char *type = types[load->dtype].name;
        all[i] = true;
        if (!load->along) continue;
        put(b, "  const %s *p%u = a%u + ", type, i, i);
        put_offset(b, &load->kept, "o", k->small);
        put(b, ";\n");
        if (k->keeps) put(b, "  %s w%u[%lld][%lld];\n", type, i, (long long)k->groups, (long long)k->vector);
    }
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        if (!k->g->steps[m].full || !k->g->steps[m].stored) continue;
        put(b, "  %s *u%u = o%u + ", types[view_of(k->e, k->g->steps[m].step->node)->dtype].name, m, m);
        put_offset(b, &across, "o", k->small);
        put(b, ";\n");
    }
    put_loads_of_row(k, false, "o");
    put_loads_of_row(k, true, "o");
    if (!k->keeps) return;
    row_loop_begins(k, all);
    put_row_loads(k, all, "[k]");
    put(b, "  }\n");
}

/* All walks over row `row`, and what they store. */
static void put_row_walks(row_kernel *k) {
    const row_group *g = k->g;
    put_row_pointers(k);
    for (uint32_t level = 0; level <= row_levels(g); level++) put_row_pass(k, level);
    bool any = false;
    for (uint32_t m = 0; m < g->n_steps; m++) any = any || (g->steps[m].stored && !g->steps[m].full);
    if (any) put(&k->e->body, k->given ? "  if (stores && ty == 0) {\n" : "  if (live && ty == 0) {\n");
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (g->steps[m].stored && !g->steps[m].full) put_row_store(k, m, "o");
    if (any) put(&k->e->body, "  }\n");
}

/* What the group reads and stores, as pointers of the kernel with `prefix` before their names; members: of a struct;
   given: their values. */
static void put_row_params(row_kernel *k, const char *prefix, text *members, text *given) {
    emit *e = k->e;
    char name[32];
    for (uint32_t i = 0; i < k->n_loads; i++) {
        const char *type = types[k->loads[i].dtype].name;
        snprintf(name, sizeof name, "%sa%u", prefix, i);
        emit_pointer(e, type, true, name, (param){ PARAM_NODE, k->loads[i].base, k->loads[i].offset });
        put(members, "  const %s *a%u;\n", type, i);
        put(given, "%s, ", name);
    }
    for (uint32_t m = 0; m < k->g->n_steps; m++) {
        if (!k->g->steps[m].stored) continue;
        uint32_t node = k->g->steps[m].step->node;
        const char *type = types[view_of(e, node)->dtype].name;
        snprintf(name, sizeof name, "%so%u", prefix, m);
        emit_node(e, node, type, false, name);
        put(members, "  %s *o%u;\n", type, m);
        put(given, "%s, ", name);
    }
}

/* The struct `@_<prefix>`, whose run(to, first, count, own) computes so many rows of the group by all threads of a
   block: those of step `given` go to `to`, in shared memory; own: this block stores what else is asked for. Its
   members' values stand behind those in `values`. often: how many rows it is mostly asked for. */
static void put_rows_within(emit *e, const row_group *g, uint32_t given, int64_t often, const char *prefix,
                            text *values) {
    row_kernel *k = (row_kernel *)alloc_zero(sizeof *k);
    text members = { 0 }, before = e->body;
    if (k) {
        *k = (row_kernel){ .e = e, .g = g, .given = given + 1, .often = often, .l = (loop *)alloc_zero(sizeof *k->l) };
        if (k->l && row_loads(k)) {
            row_threads(k);
            put_row_params(k, prefix, &members, values);
            e->body = (text){ 0 };
            put(&e->body,
                "  typedef %s I;\n  const int ty = threadIdx.x %% %d;\n  for (int from_row = 0; from_row < count; "
                "from_row += %d) {\n  const int of_row = from_row + threadIdx.x / %d;\n  const bool live = of_row < "
                "count, stores = live && own;\n  const i64 row = first + (live ? of_row : 0);\n  const I o = "
                "(I)row;\n  (void)stores;\n",
                k->small ? "int" : "i64", k->ty, k->tx, k->ty);
            put_row_walks(k);
            put(&e->types,
                "struct @_%s {\n%s  M void run(%s *to, i64 first, int count, bool own) const {\n%s  }\n  }\n};\n",
                prefix, members.s ? members.s : "", types[view_of(e, g->steps[given].step->node)->dtype].name,
                e->body.s ? e->body.s : "");
            if (e->body.failed) e->failed = true;
            text_free(&e->body);
            e->body = before;
        } else e->failed = true;
        gn_free(k->l);
    } else e->failed = true;
    gn_free(k);
    e->failed = e->failed || members.failed;
    text_free(&members);
}

static void emit_row_passes(row_kernel *k, const char *label) {
    emit *e = k->e;
    const row_group *g = k->g;
    char name[16];
    row_threads(k);
    emit_early(e);
    for (uint32_t i = 0; i < k->n_loads; i++) {
        snprintf(name, sizeof name, "a%u", i);
        emit_pointer(e, types[k->loads[i].dtype].name, true, name,
                     (param){ PARAM_NODE, k->loads[i].base, k->loads[i].offset });
    }
    for (uint32_t m = 0; m < g->n_steps; m++) {
        if (!g->steps[m].stored) continue;
        snprintf(name, sizeof name, "o%u", m);
        emit_node(e, g->steps[m].step->node, types[view_of(e, g->steps[m].step->node)->dtype].name, false, name);
    }
    emit_await(e);
    put(&e->body,
        "  typedef %s I;\n  const int ty = threadIdx.x %% %d;\n  const i64 row = (i64)blockIdx.x * %d + threadIdx.x / "
        "%d;\n  const bool live = row < %lldll;\n  const I o = live ? (I)row : 0;\n",
        k->small ? "int" : "i64", k->ty, k->tx, k->ty, (long long)g->rows);
    put_row_walks(k);
    /* of 16 bits much work stands behind each byte: three blocks hide each other's waits */
    if (k->keeps && row_largest(k) == 2) e->bounds = "__launch_bounds__(256, 3)";
    emit_launch(e, label, (uint64_t)blocks_for(g->rows, k->tx), 1, 256);
}

/* Nothing but one reduction, with loops over elements before it alone. */
static bool is_row_reduction(const emit *e, const row_group *g) {
    uint32_t reductions = 0;
    for (uint32_t m = 0; m < g->n_steps; m++) {
        const row_step *s = &g->steps[m];
        if (s->full && (s->stored || s->level || !s->step->n_instrs)) return false;
        reductions += !s->full && reduce_kind_of(e, s->step->node) != REDUCE_NONE;
    }
    return reductions == 1;
}

static void row_label(const emit *e, const row_group *g, char *out, size_t size) {
    bool several = !is_row_reduction(e, g);
    size_t n = (size_t)snprintf(out, size, several ? "rows_%s" : "%s", several ? gn_dtype_name(g->shape.dtype) : "");
    for (uint32_t m = 0; m < g->n_steps; m++) {
        const gn_kernel_step *step = g->steps[m].step;
        for (uint32_t i = 0; i < (step->n_instrs ? step->n_instrs : 1); i++) {
            gn_op_info row;
            gn_get_op((step->n_instrs ? e->layout->instrs[step->instr + i].op : e->part->nodes[step->node].op) - 1,
                      &row);
            if (n + strlen(row.name) + 2 < 52 && n + strlen(row.name) + 2 < size)
                n += (size_t)snprintf(out + n, size - n, n ? "_%s" : "%s", row.name);
        }
    }
    if (!several) snprintf(out + n, size - n, "_%s", gn_dtype_name(g->shape.dtype));
}

static void emit_rows(emit *e, const row_group *g) {
    row_kernel *k = (row_kernel *)alloc_zero(sizeof *k);
    char label[64];
    if (k) {
        k->e = e;
        k->g = g;
        k->l = (loop *)alloc_zero(sizeof *k->l);
    }
    if (!k || !k->l || !row_loads(k)) e->failed = true;
    else {
        row_label(e, g, label, sizeof label);
        if (is_row_reduction(e, g)) emit_row_reduction(k, label);
        else emit_row_passes(k, label);
    }
    if (k) gn_free(k->l);
    gn_free(k);
}

/* A reduction alone; full: a softmax or a norm. */
static void emit_row_alone(emit *e, uint32_t node, int64_t axes, bool full) {
    const gn_view *in = view_of(e, input(e, node, 0));
    gn_kernel_step step = { .node = node };
    row_group g = { .shape = gn_view_dense(in->dtype, in->rank, in->dims),
                    .axes = axes,
                    .n = 1,
                    .rows = 1,
                    .n_steps = 1,
                    .steps = { { .step = &step, .full = full, .stored = true, .level = full ? 2 : 1 } } };
    for (int i = 0; i < in->rank; i++) *((g.axes >> i) & 1 ? &g.n : &g.rows) *= in->dims[i];
    emit_rows(e, &g);
}
static void emit_reduce(emit *e, uint32_t node) { emit_row_alone(e, node, attrs_of(e, node)[0], false); }
static void emit_sum(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_mean(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_max(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_min(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_argmax(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_argmin(emit *e, uint32_t node) { emit_reduce(e, node); }
static void emit_prod(emit *e, uint32_t node) { emit_reduce(e, node); }

static void emit_mse_loss(emit *e, uint32_t node) {
    uint32_t xa = input(e, node, 0), xb = input(e, node, 1);
    const gn_view *one = view_of(e, xa), *b = view_of(e, xb);
    const char *type = types[one->dtype].name, *c = types[one->dtype].compute;
    int rank = one->rank > b->rank ? one->rank : b->rank;
    int64_t dims[GN_MAX_RANK];
    for (int i = 1; i <= rank; i++) {
        int64_t x = i <= one->rank ? one->dims[one->rank - i] : 1, y = i <= b->rank ? b->dims[b->rank - i] : 1;
        dims[rank - i] = x == 1 ? y : x;
    }
    gn_view wide_a = gn_view_broadcast(one, rank, dims), wide_b = gn_view_broadcast(b, rank, dims);
    gn_view ca = gn_view_collapse(&wide_a), cb = gn_view_collapse(&wide_b);
    reduction r = { .kept = { .dtype = one->dtype }, .reduced = ca };
    reduce_plan(&r, order_of(1, gn_view_count(&ca), 1, true), 0, types[one->dtype].bytes);
    r.small = r.small && is_small(&cb);
    text value = { 0 };
    char acc[40], end[80], members[120];
    put(&value, "    const %s d = get(a[", c);
    put_offset(&value, &ca, "r", r.small);
    put(&value, "]) - get(b[");
    put_offset(&value, &cb, "r", r.small);
    put(&value, "]);\n    acc.take(d * d, r);\n");
    snprintf(members, sizeof members, "const %s *a, *b;", type);
    snprintf(acc, sizeof acc, "near_sum<%s>", c);
    snprintf(end, sizeof end, "    put(o[i], a.total() / (%s)@_p::R);\n", c);
    emit_node(e, xa, type, true, "a");
    emit_node(e, xb, type, true, "b");
    if (value.failed) e->failed = true;
    else emit_reduction(e, &r, "mse_loss", &(reducing){ acc, members, "a, b", value.s, end, node, NULL, NULL });
    text_free(&value);
}

/* ---- softmax and norms of rows ---- */

static const char rows_text[] =
    "// Rows of n elements by TY threads each, in registers (K groups of V per thread) when they fit. P: T, C, N rows, "
    "n, K, V, TX, TY,\n"
    "// J: position in a row, IN and OUT strides within a row, in(row), out(row), WIDE: V at once, LANES of a thread, "
    "LOG\n"
    "template <class P> M void row_load(const typename P::T *p, typename P::J j, typename P::T *d) {\n"
    "  if (P::WIDE) vload<P::V>(d, p + j); else UNROLL for (int v = 0; v < P::V; v++) d[v] = p[(i64)(j + v) * P::IN];\n"
    "}\n"
    "template <class P> M void row_store(typename P::T *p, typename P::J j, const typename P::T *d) {\n"
    "  if (P::WIDE) vstore<P::V>(p + j, d); else UNROLL for (int v = 0; v < P::V; "
    "v++) p[(i64)(j + v) * P::OUT] = d[v];\n"
    "}\n"
    "template <class P> M void softmax_put(typename P::T *p, typename P::J j, const typename P::C *x, soft<typename "
    "P::C> s, typename P::C other) {\n"
    "  typename P::T o[P::V];\n"
    "  UNROLL for (int v = 0; v < P::V; v++) put(o[v], P::LOG ? (x[v] - s.top) - other : "
    "gn_exp(x[v] - s.top) * other);\n"
    "  row_store<P>(p, j, o);\n"
    "}\n"
    "// The maximum and the sum of exp(x - maximum) of this thread's row, in one pass.\n"
    "template <class P> M soft<typename P::C> soft_row(const typename P::T *a) {\n"
    "  typedef typename P::C C;\n"
    "  const int ty = threadIdx.x % P::TY;\n"
    "  const i64 row = (i64)blockIdx.x * P::TX + threadIdx.x / P::TY;\n"
    "  const typename P::T *p = a + (row < P::N ? P::in(row) : 0);\n"
    "  typename P::T raw_[P::V];\n"
    "  soft<C> s;\n"
    "  s.init();\n"
    "  const typename P::J step = P::TY * P::V;\n"
    "  for (typename P::J from = ty * P::V; row < P::N && from < P::n; from += 64 * step) {\n"
    "    soft<C> some;\n"
    "    some.init();\n"
    "    for (typename P::J j = from; j < P::n && j < from + 64 * step; j += step) {\n"
    "      row_load<P>(p, j, raw_);\n"
    "      const soft<C> o = soft_of<C, P::V>(raw_);\n"
    "      if (j == from) some = o; else some.merge(o);\n"
    "    }\n"
    "    if (from == ty * P::V) s = some; else s.merge(some);\n"
    "  }\n"
    "  return together<P::TY>(s);\n"
    "}\n"
    "// Rows of 16-bit elements stay packed in registers (K times 16 bytes): more of them are on their way at once.\n"
    "template <class P> M void softmax_packed(const typename P::T *a, typename P::T *out) {\n"
    "  typedef typename P::T T;\n"
    "  const int tx = threadIdx.x / P::TY, ty = threadIdx.x % P::TY;\n"
    "  const i64 row = (i64)blockIdx.x * P::TX + tx;\n"
    "  const bool live = row < P::N;\n"
    "  const T tag = T(), *p = a + (live ? P::in(row) : 0);\n"
    "  uint4 x[P::K];\n"
    "  max_of<float> top;\n"
    "  sum_of<float> some[P::LANES];\n"
    "  top.init();\n"
    "  UNROLL for (int i = 0; i < P::LANES; i++) some[i].init();\n"
    "  UNROLL for (int k = 0; k < P::K; k++) { const int j = (k * P::TY + ty) * 8; x[k] = zeros(); "
    "if (live && j < P::n) x[k] = *(const uint4 *)(p + j); }\n"
    "  UNROLL for (int k = 0; k < P::K; k++)\n"
    "    if (live && (k * P::TY + ty) * 8 < P::n) UNROLL for (int v = 0; v < 8; "
    "v++) top.v = max_nan(top.v, part_of(x[k], v, tag));\n"
    "  top = together<P::TY>(top);\n"
    "  UNROLL for (int k = 0; k < P::K; k++)\n"
    "    if (live && (k * P::TY + ty) * 8 < P::n) UNROLL for (int v = 0; v < 8; "
    "v++) some[k % P::LANES].v += exp_short(part_of(x[k], v, tag) - top.v);\n"
    "  const float sum = joined<P::TY, P::LANES, false>(some).v, other = P::LOG ? gn_log(sum) : 1.f / sum;\n"
    "  UNROLL for (int k = 0; k < P::K; k++) {\n"
    "    const int j = (k * P::TY + ty) * 8;\n"
    "    T o[8];\n"
    "    if (!live || j >= P::n) continue;\n"
    "    UNROLL for (int v = 0; v < 8; v++) put(o[v], P::LOG ? (part_of(x[k], v, "
    "tag) - top.v) - other : exp_short(part_of(x[k], v, tag) - top.v) * other);\n"
    "    vstore<8>(out + P::out(row) + j, o);\n"
    "  }\n"
    "}\n"
    "// Rows too long for registers: their maxima and sums first, then their values.\n"
    "template <class P> M void softmax(const typename P::T *a, typename P::T *out) {\n"
    "  typedef typename P::C C;\n"
    "  const int tx = threadIdx.x / P::TY, ty = threadIdx.x % P::TY;\n"
    "  const i64 row = (i64)blockIdx.x * P::TX + tx;\n"
    "  const bool live = row < P::N;\n"
    "  const typename P::T *p = a + (live ? P::in(row) : 0);\n"
    "  typename P::T raw_[P::V];\n"
    "  const soft<C> s = soft_row<P>(a);\n"
    "  const C other = P::LOG ? gn_log(s.total()) : (C)1 / s.total();\n"
    "  for (typename P::J j = ty * P::V; live && j < P::n; j += P::TY * P::V) {\n"
    "    C x[P::V];\n"
    "    row_load<P>(p, j, raw_);\n"
    "    UNROLL for (int v = 0; v < P::V; v++) x[v] = get(raw_[v]);\n"
    "    softmax_put<P>(out + P::out(row), j, x, s, other);\n"
    "  }\n"
    "}\n"
    "// Few long rows by all blocks; soft: each row's maximum and sum.\n"
    "template <class P> M void softmax_long(const typename P::T *a, typename P::T *out, const soft<typename P::C> "
    "*softs) {\n"
    "  const i64 groups = P::n / P::V;\n"
    "  for (i64 g = (i64)blockIdx.x * 256 + threadIdx.x; g < P::N * groups; g += (i64)gridDim.x * 256) {\n"
    "    const i64 row = g / groups;\n"
    "    const typename P::J j = (g - row * groups) * P::V;\n"
    "    const soft<typename P::C> s = softs[row];\n"
    "    typename P::T raw_[P::V];\n"
    "    typename P::C x[P::V];\n"
    "    row_load<P>(a + P::in(row), j, raw_);\n"
    "    UNROLL for (int v = 0; v < P::V; v++) x[v] = get(raw_[v]);\n"
    "    softmax_put<P>(out + P::out(row), j, x, s, P::LOG ? gn_log(s.total()) : (typename P::C)1 / s.total());\n"
    "  }\n"
    "}\n"
    "// GAIN, BIAS: their strides, 0 with HAS_GAIN, HAS_BIAS 0\n"
    "template <class P> M void layernorm_put(typename P::T *p, typename P::J j, const typename P::C *x, typename P::C "
    "mean, typename P::C scale, const typename P::T *gain, const typename P::T *bias) {\n"
    "  typename P::T o[P::V];\n"
    "  UNROLL for (int v = 0; v < P::V; v++) {\n"
    "    typename P::C y = (x[v] - mean) * scale;\n"
    "    if (P::HAS_GAIN) y = y * get(gain[(i64)(j + v) * P::GAIN]);\n"
    "    if (P::HAS_BIAS) y = y + get(bias[(i64)(j + v) * P::BIAS]);\n"
    "    put(o[v], y);\n"
    "  }\n"
    "  row_store<P>(p, j, o);\n"
    "}\n"
    "// Of f32, gain and bias are fetched with the row when registers suffice: they come last otherwise, with nothing "
    "to do meanwhile.\n"
    "template <class P> M void layernorm_packed(const typename P::T *a, const typename P::T *gain, const typename P::T "
    "*bias, typename P::T *out) {\n"
    "  typedef typename P::T T;\n"
    "  enum { V = P::V, AHEAD = sizeof(T) == 4 && P::K * (1 + P::HAS_GAIN + P::HAS_BIAS) <= 24 ? P::K : 0 };\n"
    "  const int tx = threadIdx.x / P::TY, ty = threadIdx.x % P::TY;\n"
    "  const i64 row = (i64)blockIdx.x * P::TX + tx;\n"
    "  const bool live = row < P::N;\n"
    "  const T tag = T(), *p = a + (live ? P::in(row) : 0);\n"
    "  uint4 x[P::K], g[P::K], h[P::K];\n"
    "  sum_of<float> some[P::LANES], squares[P::LANES];\n"
    "  UNROLL for (int i = 0; i < P::LANES; i++) { some[i].init(); squares[i].init(); }\n"
    "  UNROLL for (int k = 0; k < P::K; k++) { const int j = (k * P::TY + ty) * V; x[k] = zeros(); "
    "if (live && j < P::n) x[k] = *(const uint4 *)(p + j); }\n"
    "  UNROLL for (int k = 0; k < AHEAD; k++) {\n"
    "    const int j = (k * P::TY + ty) * V;\n"
    "    if (P::HAS_GAIN && j < P::n) g[k] = CONSTANT((const uint4 *)(gain + j));\n"
    "    if (P::HAS_BIAS && j < P::n) h[k] = CONSTANT((const uint4 *)(bias + j));\n"
    "  }\n"
    "  UNROLL for (int k = 0; k < P::K; k++)\n"
    "    UNROLL for (int v = 0; v < V; v++) some[k % P::LANES].v += part_of(x[k], v, tag);\n"
    "  const float mean = joined<P::TY, P::LANES, false>(some).v / (float)P::n;\n"
    "  UNROLL for (int k = 0; k < P::K; k++)\n"
    "    if ((k * P::TY + ty) * V < P::n) UNROLL for (int v = 0; v < V; "
    "v++) squares[k % P::LANES].square(part_of(x[k], v, tag) - mean);\n"
    "  const float scale = 1.f / sqrtf(joined<P::TY, P::LANES, false>(squares).v / (float)P::n + (float)P::eps());\n"
    "  UNROLL for (int k = 0; k < P::K; k++) {\n"
    "    const int j = (k * P::TY + ty) * V;\n"
    "    T o[V];\n"
    "    if (!live || j >= P::n) continue;\n"
    "    if (P::HAS_GAIN && !AHEAD) g[k] = CONSTANT((const uint4 *)(gain + j));\n"
    "    if (P::HAS_BIAS && !AHEAD) h[k] = CONSTANT((const uint4 *)(bias + j));\n"
    "    UNROLL for (int v = 0; v < V; v++) {\n"
    "      float y = (part_of(x[k], v, tag) - mean) * scale;\n"
    "      if (P::HAS_GAIN) y = y * part_of(g[k], v, tag);\n"
    "      if (P::HAS_BIAS) y = y + part_of(h[k], v, tag);\n"
    "      put(o[v], y);\n"
    "    }\n"
    "    vstore<V>(out + P::out(row) + j, o);\n"
    "  }\n"
    "}\n"
    "// This thread's elements of a row, or the squares of their distances from `mean`, into `sum`.\n"
    "template <class P> M void row_each(const typename P::T *p, int ty, near_sum<typename P::C> &sum, typename P::C "
    "mean, bool squares) {\n"
    "  typedef typename P::C C;\n"
    "  for (typename P::J j = ty * P::V; j < P::n; j += P::TY * P::V) {\n"
    "    typename P::T raw_[P::V];\n"
    "    row_load<P>(p, j, raw_);\n"
    "    UNROLL for (int v = 0; v < P::V; v++) { const C e = get(raw_[v]) - mean; sum.take(squares ? e * e : e, 0); }\n"
    "  }\n"
    "}\n"
    "// Rows too long for registers.\n"
    "template <class P> M void layernorm(const typename P::T *a, const typename P::T *gain, const typename P::T *bias, "
    "typename P::T *out) {\n"
    "  typedef typename P::C C;\n"
    "  const int tx = threadIdx.x / P::TY, ty = threadIdx.x % P::TY;\n"
    "  const i64 row = (i64)blockIdx.x * P::TX + tx;\n"
    "  const bool live = row < P::N;\n"
    "  const typename P::T *p = a + (live ? P::in(row) : 0);\n"
    "  typename P::T raw_[P::V];\n"
    "  C x[P::V];\n"
    "  near_sum<C> sum, square;\n"
    "  sum.init();\n"
    "  square.init();\n"
    "  if (live) row_each<P>(p, ty, sum, (C)0, false);\n"
    "  const C mean = together<P::TY>(sum).total() / (C)P::n;\n"
    "  if (live) row_each<P>(p, ty, square, mean, true);\n"
    "  const C scale = (C)1 / gn_sqrt(together<P::TY>(square).total() / (C)P::n + (C)P::eps());\n"
    "  for (typename P::J j = ty * P::V; live && j < P::n; j += P::TY * P::V) {\n"
    "    row_load<P>(p, j, raw_);\n"
    "    UNROLL for (int v = 0; v < P::V; v++) x[v] = get(raw_[v]);\n"
    "    layernorm_put<P>(out + P::out(row), j, x, mean, scale, gain, bias);\n"
    "  }\n"
    "}\n";

/* along: neighbours of a row are neighbours in a dense tensor; wide: here, too, so that `vector` of them move at
   once. */
typedef struct rows {
    gn_view in, out;
    int64_t n, count, in_stride, out_stride, vector, groups;
    int tx, ty, lanes;
    bool along, wide;
} rows;

static bool rows_plan(const emit *e, rows *laid, const gn_view *in, const gn_view *out, int axis, int64_t in_offset) {
    int64_t bit = (int64_t)1 << axis;
    int bytes = types[in->dtype].bytes;
    gn_view kept_in = dims_of(in, bit, false), kept_out = dims_of(out, bit, false);
    laid->in = gn_view_collapse(&kept_in);
    laid->out = gn_view_collapse(&kept_out);
    laid->n = in->dims[axis];
    laid->in_stride = in->strides[axis];
    laid->out_stride = out->strides[axis];
    laid->count = gn_view_count(&kept_in);
    if (!laid->count || !laid->n) return false;
    laid->along = true;
    for (int i = axis + 1; i < in->rank; i++) laid->along = laid->along && in->dims[i] == 1;
    row_order w = order_of(e->invariant ? 1 : laid->count, laid->n, 16 / bytes, laid->along);
    laid->vector = w.vector;
    laid->wide = laid->vector > 1 && laid->in_stride == 1 && laid->out_stride == 1 &&
                 in_offset % (laid->vector * bytes) == 0 && strides_fit(&laid->in, laid->vector) &&
                 strides_fit(&laid->out, laid->vector);
    int64_t steps = laid->n / laid->vector;
    laid->ty = !laid->along ? 1 : steps > 256 ? 256 : w.lanes < 32 ? w.lanes : 32;
    laid->lanes = w.lanes / laid->ty;
    laid->tx = 256 / laid->ty;
    laid->groups = blocks_for(steps, laid->ty);
    return true;
}

static void put_rows_type(emit *e, const rows *w, gn_dtype dtype, const char *more) {
    text *t = &e->types;
    put(t,
        "struct @_p { typedef %s T; typedef %s C; typedef %s J; static const i64 N = %lldll, IN = %lldll, OUT = "
        "%lldll; enum { n = %lld, K = %lld, V = %lld, TX = %d, TY = %d, LANES = %d, WIDE = %d };\n"
        "  static M i64 in(i64 row) { return ",
        types[dtype].name, types[dtype].compute, is_few(w->n) ? "int" : "i64", (long long)w->count,
        (long long)w->in_stride, (long long)w->out_stride, (long long)w->n, (long long)w->groups, (long long)w->vector,
        w->tx, w->ty, w->lanes, w->wide);
    put_offset(t, &w->in, "row", is_small(&w->in));
    put(t, "; }\n  static M i64 out(i64 row) { return ");
    put_offset(t, &w->out, "row", is_small(&w->out));
    put(t, "; }\n%s};\n", more);
}

/* Few rows so long that one block each would take its time: all blocks share them. */
static bool is_long(const rows *w) { return w->n >= 1 << 15 && (w->count < 512 || !is_few(w->n)); }

/* The maximum of each row of x and the sum of exp(x - maximum), `at` bytes into what rows leave for the kernels after
   them. */
static void emit_softs(emit *e, uint32_t x, const rows *rows_of_x, int64_t at) {
    const gn_view *in = view_of(e, x);
    const char *type = types[in->dtype].name, *c = types[in->dtype].compute;
    gn_view row = { .dtype = in->dtype, .rank = 1, .dims = { rows_of_x->n }, .strides = { rows_of_x->in_stride } };
    reduction r = { .kept = rows_of_x->in, .reduced = row };
    text value = { 0 };
    char members[60], acc[40];
    reduce_plan(&r,
                order_of(e->invariant ? 1 : rows_of_x->count, rows_of_x->n, 16 / types[in->dtype].bytes,
                         rows_of_x->along),
                base_offset(e, x), types[in->dtype].bytes);
    put(&value,
        r.wide ? "    %s x[%lld];\n    vload<%lld>(x, a + ("
               : "    %s x[%lld];\n    UNROLL for (int v = 0; v < %lld; v++) x[v] = a[(",
        type, (long long)r.vector, (long long)r.vector);
    put_offset(&value, &r.kept, "o", r.small);
    put(&value, " + ");
    put_offset(&value, &r.reduced, r.wide ? "r" : "r + v", r.small);
    put(&value, "%s;\n    acc.merge(soft_of<%s, %lld>(x));\n", r.wide ? "))" : ")]", c, (long long)r.vector);
    snprintf(members, sizeof members, "const %s *a;", type);
    snprintf(acc, sizeof acc, "soft<%s>", c);
    emit_node(e, x, type, true, "a");
    if (value.failed) e->failed = true;
    else
        emit_reduction(e, &r, "softmax_sums",
                       &(reducing){ acc, members, "a", value.s, "    o[i] = a;\n",
                                    .to = &(param){ PARAM_PLAN, REGION_ROWS, at } });
    text_free(&value);
    size_t bytes = gn_size_add((size_t)at, gn_size_mul((size_t)rows_of_x->count, ACCUMULATOR));
    if (bytes > e->rows) e->rows = bytes;
}

static void emit_softmax_as(emit *e, uint32_t node, bool is_log) {
    uint32_t x = input(e, node, 0);
    const gn_view *in = view_of(e, x), *out = view_of(e, node);
    const char *type = types[in->dtype].name;
    char name[64];
    rows w;
    int axis = axis_of(attrs_of(e, node)[0], in->rank);
    if (!rows_plan(e, &w, in, out, axis, base_offset(e, x))) return;
    bool is_shared = is_long(&w),
         is_packed = w.n <= ROW_WIDEST && types[in->dtype].bytes == 2 && w.vector == 8 && w.wide;
    if (w.n <= ROW_WIDEST && !is_packed) {
        emit_row_alone(e, node, (int64_t)1 << axis, true);
        return;
    }
    int64_t blocks = is_shared ? blocks_for(w.count * (w.n / w.vector), 256) : blocks_for(w.count, w.tx);
    if (is_shared) emit_softs(e, x, &w, 0);
    put_rows_type(e, &w, in->dtype, is_log ? "  enum { LOG = 1 };\n" : "  enum { LOG = 0 };\n");
    if (is_packed) emit_early(e);
    emit_node(e, x, type, true, "a");
    emit_node(e, node, type, false, "o");
    if (is_shared) emit_pointer(e, "void", true, "softs", (param){ PARAM_PLAN, REGION_ROWS, 0 });
    emit_await(e);
    if (is_shared) put(&e->body, "  softmax_long<@_p>(a, o, (const soft<@_p::C> *)softs);\n");
    else put(&e->body, "  softmax%s<@_p>(a, o);\n", is_packed ? "_packed" : "");
    snprintf(name, sizeof name, "%s_%s%s", is_log ? "log_softmax" : "softmax", gn_dtype_name(in->dtype),
             is_shared ? "_long" : "");
    emit_launch(e, name, (uint64_t)(is_shared && blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}
static void emit_softmax(emit *e, uint32_t node) { emit_softmax_as(e, node, false); }
static void emit_log_softmax(emit *e, uint32_t node) { emit_softmax_as(e, node, true); }

static void emit_layernorm(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0), last = e->part->nodes[node].n_ins - 1;
    const gn_view *in = view_of(e, x), *out = view_of(e, node);
    const int64_t *attrs = attrs_of(e, node);
    bool gain = (attrs[1] & 1) != 0, bias = (attrs[1] & 2) != 0;
    const char *type = types[in->dtype].name;
    char more[300], name[64];
    rows w;
    if (!rows_plan(e, &w, in, out, in->rank - 1, base_offset(e, x))) return;
    snprintf(more, sizeof more,
             "  static const i64 GAIN = %lldll, BIAS = %lldll; enum { HAS_GAIN = %d, HAS_BIAS = %d };\n  static M "
             "double eps() { return gn_f64(0x%llxull); }\n",
             gain ? (long long)view_of(e, input(e, node, 1))->strides[0] : 0,
             bias ? (long long)view_of(e, input(e, node, last))->strides[0] : 0, gain, bias,
             (unsigned long long)attrs[0]);
    put_rows_type(e, &w, in->dtype, more);
    bool packed = in->dtype != GN_F64 && w.vector * types[in->dtype].bytes == 16 && w.wide && w.n <= ROW_WIDEST;
    for (uint32_t i = 1; i <= last; i++)
        packed =
            packed && gn_view_is_dense(view_of(e, input(e, node, i))) && base_offset(e, input(e, node, i)) % 16 == 0;
    if (w.n <= ROW_WIDEST && !packed) {
        emit_row_alone(e, node, (int64_t)1 << (in->rank - 1), true);
        return;
    }
    if (packed) emit_early(e);
    emit_node(e, x, type, true, "a");
    if (gain) emit_node(e, input(e, node, 1), type, true, "gain");
    if (bias) emit_node(e, input(e, node, last), type, true, "bias");
    emit_node(e, node, type, false, "o");
    emit_await(e);
    put(&e->body, "  layernorm%s<@_p>(a, %s, %s, o);\n", packed ? "_packed" : "",
        gain ? e->waits ? "now(gain)" : "gain" : "0", bias ? e->waits ? "now(bias)" : "bias" : "0");
    snprintf(name, sizeof name, "layernorm_%s", gn_dtype_name(in->dtype));
    emit_launch(e, name, (uint64_t)blocks_for(w.count, w.tx), 1, 256);
}

/* Indices into nothing, which are looked at all the same. */
static void emit_index_check(emit *e, uint32_t node, uint32_t ids_node, int64_t limit) {
    gn_view ids = gn_view_collapse(view_of(e, ids_node));
    int64_t n = gn_view_count(&ids), blocks = blocks_for(n, 256);
    if (!n) return;
    emit_node(e, ids_node, types[ids.dtype].name, true, "ids");
    emit_faults(e, node);
    put(&e->body,
        "  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < %lldull; i += (u64)gridDim.x * 256) {\n    const i64 "
        "id = ids[",
        (long long)n);
    put_offset(&e->body, &ids, "i", is_small(&ids));
    put(&e->body, "];\n    if (id < 0 || id >= %lldll) fault(err, OUT_OF_RANGE, node, id, %lldll);\n  }\n",
        (long long)limit, (long long)limit);
    emit_launch(e, "index_check", (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* Each row's loss into scratch, then their mean. */
static void emit_cross_entropy(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0), y = input(e, node, 1);
    const gn_view *in = view_of(e, x), *targets = view_of(e, y);
    const char *type = types[in->dtype].name, *c = types[in->dtype].compute;
    gn_view target = gn_view_collapse(targets);
    char more[200], acc[40], end[80], members[60];
    rows w;
    int64_t one[1] = { gn_view_count(targets) }, softs_at = (one[0] * 8 + 255) & ~(int64_t)255;
    size_t bytes = (size_t)one[0] * 8;
    if (bytes > e->rows) e->rows = bytes;
    if (rows_plan(e, &w, in, in, in->rank - 1, base_offset(e, x))) {
        bool is_shared = is_long(&w);
        if (is_shared) {
            emit_softs(e, x, &w, softs_at);
            w.ty = 1;
            w.tx = 256;
        }
        snprintf(more, sizeof more, "  enum { LOG = 1 };\n");
        put_rows_type(e, &w, in->dtype, more);
        emit_node(e, x, type, true, "a");
        emit_node(e, y, types[targets->dtype].name, true, "target");
        emit_pointer(e, c, false, "loss", (param){ PARAM_PLAN, REGION_ROWS, 0 });
        if (is_shared) emit_pointer(e, "void", true, "softs", (param){ PARAM_PLAN, REGION_ROWS, softs_at });
        emit_faults(e, node);
        put(&e->body, "  const i64 row = (i64)blockIdx.x * @_p::TX + threadIdx.x / @_p::TY;\n  const i64 want = row < "
                      "@_p::N ? target[");
        put_offset(&e->body, &target, "row", is_small(&target));
        put(&e->body,
            "] : 0;\n  const bool bad = want < 0 || want >= @_p::n;\n  const soft<@_p::C> s = %s;\n  if (row >= @_p::N "
            "|| threadIdx.x %% @_p::TY) return;\n"
            "  if (bad) fault(err, OUT_OF_RANGE, node, want, @_p::n);\n  loss[row] = bad ? (@_p::C)0 : "
            "gn_log(s.total()) - (get(a[@_p::in(row) + want * @_p::IN]) - s.top);\n",
            is_shared ? "((const soft<@_p::C> *)softs)[row < @_p::N ? row : 0]" : "soft_row<@_p>(a)");
        emit_launch(e, "cross_entropy_rows", (uint64_t)blocks_for(w.count, w.tx), 1, 256);
    } else emit_index_check(e, node, y, in->dims[in->rank - 1]);
    gn_view losses = gn_view_dense(in->dtype, 1, one);
    reduction total = { .kept = { .dtype = in->dtype }, .reduced = gn_view_collapse(&losses) };
    reduce_plan(&total, order_of(1, one[0], 1, true), 0, 8);
    snprintf(members, sizeof members, "const %s *a;", c);
    snprintf(acc, sizeof acc, "near_sum<%s>", c);
    snprintf(end, sizeof end, "    put(o[i], a.total() / (%s)@_p::R);\n", c);
    emit_pointer(e, c, true, "a", (param){ PARAM_PLAN, REGION_ROWS, 0 });
    emit_reduction(e, &total, "cross_entropy",
                   &(reducing){ acc, members, "a", "    acc.take(a[r], r);\n", end, node, NULL, NULL });
}

/* >>products =========================================================================================
 * Matrix products: what could compute one and which of it is taken, by a model or by measuring; own kernels,
 * cuBLASLt. */

/* ---- without tensor cores ---- */

static const char product_text[] =
    "// A sum of products in C; in f64 with what additions lose.\n"
    "template <class C> struct dot_of { typedef C t; };\n"
    "template <> struct dot_of<double> { typedef near_sum<double> t; };\n"
    "template <class A> M void dot_clear(A &a) { a = 0; }\n"
    "template <class A> M void dot_take(A &a, A x, A y) { a = gn_fma(x, y, a); }\n"
    "template <class A> M void dot_join(A &a, const A &b) { a = gn_add(a, b); }\n"
    "template <class A> M A dot_total(const A &a) { return a; }\n"
    "M void dot_clear(near_sum<double> &a) { a.init(); }\n"
    "M void dot_take(near_sum<double> &a, double x, double y) { a.take(x * y, 0); }\n"
    "M void dot_join(near_sum<double> &a, const near_sum<double> &b) { a.merge(b); }\n"
    "M double dot_total(const near_sum<double> &a) { return a.total(); }\n"
    "template <class A> M A from_part(const A &, A x) { return x; }\n"
    "M near_sum<double> from_part(const near_sum<double> &, double x) { near_sum<double> y; y.v = x; y.rest = 0; "
    "return y; }\n"
    "// k of lane `at` of LANES, of which halves are joined first: V neighbours of k are V parts of the lanes, so that "
    "a thread that reads 16 bytes joins its own before others'.\n"
    "template <int LANES, int V> M int lane_k(int at) {\n"
    "  enum { TX = LANES / V < 32 ? LANES / V : 32, H = LANES / (V * TX) };\n"
    "  return at / TX % H * (TX * V) + at % TX * V + at / (TX * H);\n"
    "}\n"
    "// Of a thread's sums of H times V neighbours of k: of all k of TX threads side by side, in every one of them.\n"
    "template <int TX, int H, int V, class A> M A joined_k(A (*acc)[V]) {\n"
    "  UNROLL for (int half = V / 2; half > 0; half /= 2) UNROLL for (int v = 0; v < half; v++) UNROLL for (int h = 0; "
    "h < H; h++) dot_join(acc[h][v], acc[h][v + half]);\n"
    "  UNROLL for (int half = H / 2; half > 0; half /= 2) UNROLL for (int h = 0; h < half; "
    "h++) dot_join(acc[h][0], acc[h + half][0]);\n"
    "  UNROLL for (int bit = TX / 2; bit > 0; bit /= 2) dot_join(acc[0][0], exchange(acc[0][0], bit));\n"
    "  return acc[0][0];\n"
    "}\n"
    "// Few rows times a matrix. k is summed by LANES lanes, k modulo LANES to each (lane_k). Here TX threads side by "
    "side have V columns each.\n"
    "template <class P> M void rows_times(const typename P::T *a, const typename P::T *b, const typename P::E &e) {\n"
    "  typedef typename P::C C;\n"
    "  enum { ROWS = 256 / P::TX, G = P::LANES / ROWS };\n"
    "  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tx = threadIdx.x % P::TX, ty = lane / P::TX * 8 + "
    "warp;\n"
    "  const u32 z = blockIdx.x / P::TILES;\n"
    "  const i64 first = (i64)(blockIdx.x % P::TILES) * P::TX * P::V, col = first + tx * P::V;\n"
    "  a += P::a(z);\n"
    "  b += P::b(z);\n"
    "  typedef typename dot_of<C>::t A;\n"
    "  A acc[P::m][G][P::V];\n"
    "  UNROLL for (int i = 0; i < P::m; i++) UNROLL for (int g = 0; g < G; g++) UNROLL for (int v = 0; v < P::V; "
    "v++) dot_clear(acc[i][g][v]);\n"
    "  if (col < P::n) {\n"
    "    _Pragma(\"unroll 4\") for (i64 from = 0; from < P::k; from += P::LANES) UNROLL for (int g = 0; g < G; g++) {\n"
    "      const i64 l = from + lane_k<P::LANES, 16 / (int)sizeof(typename P::T)>(g * ROWS + ty);\n"
    "      typename P::T w[P::V];\n"
    "      if (l >= P::k) continue;\n"
    "      if (P::WIDE) vload<P::V>(w, b + l * P::BK + col);\n"
    "      else UNROLL for (int v = 0; v < P::V; v++) w[v] = b[l * P::BK + (col + v < P::n ? col + v : "
    "P::n - 1) * P::BN];\n"
    "      UNROLL for (int i = 0; i < P::m; i++) {\n"
    "        const C x = get(a[i * P::AM + l * P::AK]);\n"
    "        UNROLL for (int v = 0; v < P::V; v++) dot_take(acc[i][g][v], x, (C)get(w[v]));\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  __shared__ A part[8][P::TX * P::V];\n"
    "  UNROLL for (int i = 0; i < P::m; i++) {\n"
    "    A (*sums)[P::V] = acc[i];\n"
    "    UNROLL for (int h = G / 2; h > 0; h /= 2) UNROLL for (int g = 0; g < h; g++) UNROLL for (int v = 0; v < P::V; "
    "v++) dot_join(sums[g][v], sums[g + h][v]);\n"
    "    UNROLL for (int k = 16; k >= P::TX; k /= 2) UNROLL for (int v = 0; v < P::V; "
    "v++) dot_join(sums[0][v], exchange(sums[0][v], k));\n"
    "    if (lane < P::TX) UNROLL for (int v = 0; v < P::V; v++) part[warp][lane * P::V + v] = sums[0][v];\n"
    "    __syncthreads();\n"
    "    for (int x = threadIdx.x; x < P::TX * P::V; x += 256) {\n"
    "      const i64 c = first + x;\n"
    "      if (c >= P::n) continue;\n"
    "      A v[8];\n"
    "      UNROLL for (int w = 0; w < 8; w++) v[w] = part[w][x];\n"
    "      UNROLL for (int h = 4; h > 0; h /= 2) UNROLL for (int w = 0; w < h; w++) dot_join(v[w], v[w + h]);\n"
    "      const C all = dot_total(v[0]);\n"
    "      e.template store<1>(((i64)z * P::m + i) * P::n + c, c, &all);\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n"
    "// The same for B whose columns are contiguous (BK 1): TX threads for each column, V neighbours of k to each.\n"
    "template <class P> M void rows_dot(const typename P::T *a, const typename P::T *b, const typename P::E &e) {\n"
    "  typedef typename P::C C;\n"
    "  enum { TX = P::TX, G = P::LANES / (TX * P::V) };\n"
    "  const int sub = threadIdx.x % TX;\n"
    "  const u32 z = blockIdx.x / P::TILES;\n"
    "  const i64 col = (i64)(blockIdx.x % P::TILES) * (256 / TX) + threadIdx.x / TX;\n"
    "  a += P::a(z);\n"
    "  b += P::b(z);\n"
    "  typedef typename dot_of<C>::t A;\n"
    "  A acc[P::m][G][P::V];\n"
    "  UNROLL for (int i = 0; i < P::m; i++) UNROLL for (int g = 0; g < G; g++) UNROLL for (int v = 0; v < P::V; "
    "v++) dot_clear(acc[i][g][v]);\n"
    "  if (col < P::n) {\n"
    "    _Pragma(\"unroll 4\") for (i64 from = sub * P::V; from < P::k; from += P::LANES) UNROLL for (int g = 0; "
    "g < G; g++) {\n"
    "      const i64 l = from + g * TX * P::V;\n"
    "      typename P::T w[P::V], x[P::V];\n"
    "      if (l >= P::k) continue;\n"
    "      if (P::WIDE) vload<P::V>(w, b + col * P::BN + l);\n"
    "      else UNROLL for (int v = 0; v < P::V; v++) w[v] = b[col * P::BN + (l + v < P::k ? l + v : "
    "P::k - 1) * P::BK];\n"
    "      UNROLL for (int i = 0; i < P::m; i++) {\n"
    "        if (P::WIDE) vload<P::V>(x, a + i * P::AM + l);\n"
    "        else UNROLL for (int v = 0; v < P::V; v++) x[v] = a[i * P::AM + (l + v < P::k ? l + v : "
    "P::k - 1) * P::AK];\n"
    "        UNROLL for (int v = 0; v < P::V; v++) if (P::WIDE || l + v < P::k) dot_take(acc[i][g][v], (C)get(x[v]), "
    "(C)get(w[v]));\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < P::m; i++) {\n"
    "    const C all = dot_total(joined_k<TX, G, P::V>(acc[i]));\n"
    "    if (sub || col >= P::n) continue;\n"
    "    e.template store<1>(((i64)z * P::m + i) * P::n + col, col, &all);\n"
    "  }\n"
    "}\n"
    "// Where V neighbouring sums go: to the epilogue, or to their part's own sums when k is cut into SPLIT parts.\n"
    "template <class P, int V> M void product_put(const typename P::E &e, typename P::C *parts, u32 z, i64 r, i64 c, "
    "const typename P::C *v) {\n"
    "  enum { W = P::W < V ? P::W : V };\n"
    "  UNROLL for (int j = 0; j < V; j += W) {\n"
    "    if (r >= P::m || c + j >= P::n) continue;\n"
    "    const i64 i = ((i64)z * P::m + r) * P::n + c + j;\n"
    "    if (P::SPLIT > 1) vstore<W>(parts + (i64)blockIdx.y * P::m * P::n + i, v + j); "
    "else e.template store<W>(i, c + j, v + j);\n"
    "  }\n"
    "}\n"
    "template <class P> M void product_sum(const typename P::C *parts, const typename P::E &e) {\n"
    "  enum { W = P::W < 4 ? P::W : 4 };\n"
    "  for (i64 i = ((i64)blockIdx.x * 256 + threadIdx.x) * W; i < (i64)P::m * P::n; i += (i64)gridDim.x * 256 * W) {\n"
    "    typename P::C v[W], more[W];\n"
    "    typename dot_of<typename P::C>::t sum[W];\n"
    "    UNROLL for (int j = 0; j < W; j++) dot_clear(sum[j]);\n"
    "    UNROLL for (int s = 0; s < P::SPLIT; s++) { vload<W>(more, parts + s * ((i64)P::m * P::n) + i); "
    "UNROLL for (int j = 0; j < W; j++) dot_join(sum[j], from_part(sum[j], more[j])); }\n"
    "    UNROLL for (int j = 0; j < W; j++) v[j] = dot_total(sum[j]);\n"
    "    e.template store<W>(i, i % P::n, v);\n"
    "  }\n"
    "}\n"
    "// Where a tile lies: groups of 16 rows of tiles go down the columns, so that tiles that run together share "
    "panels in the cache.\n"
    "template <class P, class I> M void product_tile(u32 tile, u32 *z, I *row, I *col) {\n"
    "  const u32 in = tile % (P::ROWS * P::COLS), group = in / (16 * P::COLS), top = group * 16, rows = P::ROWS - top "
    "< 16 ? P::ROWS - top : 16, at = in - group * 16 * P::COLS;\n"
    "  *z = tile / (P::ROWS * P::COLS);\n"
    "  *row = (I)(top + at % rows) * P::BM;\n"
    "  *col = (I)(at / rows) * P::BW;\n"
    "}\n"
    "// C (m,n) = A (m,k) B (k,n) for any strides; 64 x 64 tiles, 4 x 4 a thread. P: T, C, E, W, m, n, k, AM, AK, BK, "
    "BN, a(batch), b(batch), BM, BW, ROWS, COLS, SPLIT parts of SPAN k.\n"
    "// E is what is done to sums before they are stored: e.store<V>(i, c, "
    "v) takes V <= W neighbours of row-major position i, column c; it is e.fetch, then e.value.\n"
    "template <class P> M void matmul(const typename P::T *a, const typename P::T *b, const typename P::E &e, typename "
    "P::C *parts) {\n"
    "  typedef typename P::C C;\n"
    "  __shared__ C as[16][68], bs[16][68];\n"
    "  const int t = threadIdx.x, tr = t / 16 * 4, tc = t % 16 * 4;\n"
    "  u32 z;\n"
    "  i64 row, col;\n"
    "  product_tile<P>(blockIdx.x, &z, &row, &col);\n"
    "  a += P::a(z);\n"
    "  b += P::b(z);\n"
    "  const i64 begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::k ? begin + P::SPAN : P::k;\n"
    "  typename dot_of<C>::t acc[4][4];\n"
    "  C av[4], bv[4];\n"
    "  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) dot_clear(acc[i][j]);\n"
    "  for (i64 k = begin; k < end + 16; k += 16) {                       // the next 16 k are on their way while "
    "these are multiplied\n"
    "    if (k > begin) {\n"
    "      UNROLL for (int q = 0; q < 4; q++) {\n"
    "        const int x = t + q * 256, r = P::AK == 1 ? x / 16 : x % 64, l = P::AK == 1 ? x % 16 : x / 64, c = P::BK "
    "== 1 ? x / 16 : x % 64, h = P::BK == 1 ? x % 16 : x / 64;\n"
    "        as[l][r] = av[q];\n"
    "        bs[h][c] = bv[q];\n"
    "      }\n"
    "      __syncthreads();\n"
    "    }\n"
    "    UNROLL for (int q = 0; q < 4; q++) {\n"
    "      const int x = t + q * 256, r = P::AK == 1 ? x / 16 : x % 64, l = P::AK == 1 ? x % 16 : x / 64, c = P::BK == "
    "1 ? x / 16 : x % 64, h = P::BK == 1 ? x % 16 : x / 64;\n"
    "      av[q] = row + r < P::m && k + l < end ? get(a[(row + r) * P::AM + (k + l) * P::AK]) : (C)0;\n"
    "      bv[q] = col + c < P::n && k + h < end ? get(b[(k + h) * P::BK + (col + c) * P::BN]) : (C)0;\n"
    "    }\n"
    "    if (k == begin) continue;\n"
    "    UNROLL for (int l = 0; l < 16; l++) {\n"
    "      C x[4], y[4];\n"
    "      UNROLL for (int i = 0; i < 4; i++) { x[i] = as[l][tr + i]; y[i] = bs[l][tc + i]; }\n"
    "      UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) dot_take(acc[i][j], x[i], y[j]);\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) { const C all = dot_total(acc[i][j]); "
    "product_put<P, 1>(e, parts, z, row + tr + i, col + tc + j, &all); }\n"
    "}\n"
    "// Rows of K elements that lie STRIDE apart, to rows of PITCH. P: OUTER rows, K, STRIDE, PITCH, TILES, at(batch)\n"
    "template <class P> M void transposed(const float *a, float *out) {\n"
    "  __shared__ float tile[32][33];\n"
    "  const int x = threadIdx.x & 31, y = threadIdx.x >> 5;\n"
    "  const u32 z = blockIdx.x / P::TILES;\n"
    "  const i64 o = (i64)(blockIdx.x % P::TILES) * 32;\n"
    "  a += P::at(z);\n"
    "  out += (i64)z * P::OUTER * P::PITCH;\n"
    "  for (i64 k = (i64)blockIdx.y * 32; k < P::K; k += (i64)gridDim.y * 32) {\n"
    "    UNROLL for (int i = y; i < 32; i += 8) if (o + x < P::OUTER && k + i < P::K) tile[i][x] = "
    "a[(k + i) * P::STRIDE + o + x];\n"
    "    __syncthreads();\n"
    "    UNROLL for (int i = y; i < 32; i += 8) if (o + i < P::OUTER && "
    "k + x < P::K) out[(o + i) * P::PITCH + k + x] = tile[x][i];\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n"
    "// f32: 128 x 128 tiles, 8 x 8 a thread, two stages. One stride of each side is 1 and the others are multiples of "
    "4.\n"
    "template <class P> M void sgemm(const float *a, const float *b, const typename P::E &e, float *parts) {\n"
    "  __shared__ float as[2][8][132], bs[2][8][132];\n"
    "  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, tr = (warp >> 1) * 32 + (lane >> 3) * 4, tc = (warp & "
    "1) * 64 + (lane & 7) * 4;\n"
    "  u32 z;\n"
    "  i64 row, col;\n"
    "  product_tile<P>(blockIdx.x, &z, &row, &col);\n"
    "  a += P::a(z);\n"
    "  b += P::b(z);\n"
    "  const i64 begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::k ? begin + P::SPAN : P::k;\n"
    "  const int ar = P::AK == 1 ? t >> 1 : (t & 31) * 4, ac = P::AK == 1 ? (t & 1) * 4 : t >> 5, bc = P::BK == 1 ? t "
    ">> 1 : (t & 31) * 4, br = P::BK == 1 ? (t & 1) * 4 : t >> 5;\n"
    "  float acc[8][8], av[4], bv[4];\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++) acc[i][j] = 0.f;\n"
    "  int s = 0;\n"
    "  for (i64 k0 = begin; k0 < end + 8; k0 += 8) {\n"
    "    const bool more = k0 < end;\n"
    "    if (more) {\n"
    "      UNROLL for (int i = 0; i < 4; i++) av[i] = bv[i] = 0.f;\n"
    "      if (row + ar < P::m && k0 + ac < end) vload<4>(av, a + (row + ar) * P::AM + (k0 + ac) * P::AK);\n"
    "      if (col + bc < P::n && k0 + br < end) vload<4>(bv, b + (k0 + br) * P::BK + (col + bc) * P::BN);\n"
    "    }\n"
    "    if (k0 > begin) {\n"
    "      UNROLL for (int k = 0; k < 8; k++) {\n"
    "        float x[8], y[8];\n"
    "        vload<4>(x, &as[s][k][tr]); vload<4>(x + 4, &as[s][k][tr + 16]);\n"
    "        vload<4>(y, &bs[s][k][tc]); vload<4>(y + 4, &bs[s][k][tc + 32]);\n"
    "        UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; "
    "j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);\n"
    "      }\n"
    "      s ^= 1;\n"
    "    }\n"
    "    if (more) {\n"
    "      if (P::AK == 1) { UNROLL for (int i = 0; i < 4; i++) as[s][ac + i][ar] = av[i]; } "
    "else vstore<4>(&as[s][ac][ar], av);\n"
    "      if (P::BK == 1) { UNROLL for (int i = 0; i < 4; i++) bs[s][br + i][bc] = bv[i]; } "
    "else vstore<4>(&bs[s][br][bc], bv);\n"
    "      __syncthreads();\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j += 4)\n"
    "    product_put<P, 4>(e, parts, z, row + tr + (i & 3) + (i >> 2) * 16, col + tc + (j >> 2) * 32, &acc[i][j]);\n"
    "}\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "// f32 from sm_80 on: 128 x BW tiles (128 or 256), 8 x BW / 16 a thread, four stages of 16 k. m and n run along "
    "memory on both sides, their strides are multiples of 4.\n"
    "template <int N> M void single_stage(u32 to, const float *p, i64 first, i64 end, i64 k, i64 k_end, i64 stride) {\n"
    "  UNROLL for (int q = 0; q < N / 64; q++) {\n"
    "    const int c = threadIdx.x + q * 256, r = c / (N / 4), h = c % (N / 4) * 4;\n"
    "    const bool in = k + r < k_end && first + h < end;\n"
    "    copy16(to + c * 16, in ? p + (k + r) * stride + (first + h) : p, in ? 16 : 0);\n"
    "  }\n"
    "}\n"
    "template <class P> M void sgemm_async(const float *a, const float *b, const typename P::E &e, float *parts) {\n"
    "  enum { NJ = P::BW / 16, A = 8192, STAGE = A + P::BW * 64 };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  const u32 base = shared_address(memory);\n"
    "  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, tr = (warp >> 1) * 32 + (lane >> 3) * 4, tc = (warp & "
    "1) * (P::BW / 2) + (lane & 7) * 4;\n"
    "  u32 z;\n"
    "  i64 row, col;\n"
    "  product_tile<P>(blockIdx.x, &z, &row, &col);\n"
    "  a += P::a(z);\n"
    "  b += P::b(z);\n"
    "  const i64 begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::k ? begin + P::SPAN : P::k;\n"
    "  const int steps = (int)((end - begin + 15) / 16);\n"
    "  float acc[8][NJ];\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < NJ; j++) acc[i][j] = 0.f;\n"
    "  UNROLL for (int s = 0; s < 3; s++) {\n"
    "    if (s < steps) { single_stage<128>(base + s * STAGE, a, row, P::m, begin + s * 16, end, P::AK); "
    "single_stage<P::BW>(base + s * STAGE + A, b, col, P::n, begin + s * 16, end, P::BK); }\n"
    "    copy_commit();\n"
    "  }\n"
    "  for (int step = 0; step < steps; step++) {\n"
    "    copy_wait<2>();\n"
    "    __syncthreads();\n"
    "    const float *sa = (const float *)(memory + (step & 3) * STAGE) + tr, *sb = (const float *)(memory + (step & "
    "3) * STAGE + A) + tc;\n"
    "    if (step + 3 < steps) {\n"
    "      const u32 to = base + (step + 3 & 3) * STAGE;\n"
    "      single_stage<128>(to, a, row, P::m, begin + (i64)(step + 3) * 16, end, P::AK);\n"
    "      single_stage<P::BW>(to + A, b, col, P::n, begin + (i64)(step + 3) * 16, end, P::BK);\n"
    "    }\n"
    "    copy_commit();\n"
    "    UNROLL for (int k = 0; k < 16; k++) {\n"
    "      float x[8], y[NJ];\n"
    "      UNROLL for (int i = 0; i < 8; i += 4) vload<4>(x + i, sa + k * 128 + i * 4);\n"
    "      UNROLL for (int j = 0; j < NJ; j += 4) vload<4>(y + j, sb + k * P::BW + j * 8);\n"
    "      UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < NJ; "
    "j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < NJ; j += 4)\n"
    "    product_put<P, 4>(e, parts, z, row + tr + (i & 3) + (i >> 2) * 16, col + tc + j * 8, &acc[i][j]);\n"
    "}\n"
    "#endif\n";

typedef struct product {
    gn_view a, b;
    int64_t m, n, k, am, ak, bk, bn, batches;
} product;

static product product_of(gn_view a, gn_view b, const gn_view *out) {
    int ra = a.rank, rb = b.rank, batch = ra > rb ? ra - 2 : rb - 2;
    product p = { .m = ra > 1 ? a.dims[ra - 2] : 1,
                  .n = rb > 1 ? b.dims[rb - 1] : 1,
                  .k = a.dims[ra - 1],
                  .am = ra > 1 ? a.strides[ra - 2] : 0,
                  .ak = a.strides[ra - 1],
                  .bk = rb > 1 ? b.strides[rb - 2] : b.strides[0],
                  .bn = rb > 1 ? b.strides[rb - 1] : 0,
                  .batches = 1 };
    int64_t count, stride;
    if (batch < 0) batch = 0;
    if (rb <= 2 && ra > 2 && gn_view_rows(&a, &count, &stride)) {
        p.m = count;
        p.am = stride;
        batch = 0;
    }
    a.rank = batch && ra > 2 ? ra - 2 : 0;
    b.rank = batch && rb > 2 ? rb - 2 : 0;
    gn_view wide_a = gn_view_broadcast(&a, batch, out->dims), wide_b = gn_view_broadcast(&b, batch, out->dims);
    p.batches = gn_view_count(&wide_a);
    p.a = gn_view_collapse(&wide_a);
    p.b = gn_view_collapse(&wide_b);
    return p;
}

/* How a product is cut: tiles of rows and columns, vector accesses (wide: of each side), sides that are copied first,
   parts of k, warps that share a tile's rows and its columns, k of a stage. */
typedef struct product_form {
    const char *body;
    int64_t vector, tiles, rows, columns, splits, span;
    int tx, lanes, height, width, parts, stages, wide[2], warps[2], step, form, rest, feed_a, feed_b;
    bool at, bt, turn, copied[2];
    uint32_t shared;
} product_form;

static void put_product_type(emit *e, const product *p, const product_form *form, gn_dtype d, int64_t vector) {
    text *types_text = &e->types;
    put(types_text,
        "struct @_p { typedef %s T; typedef %s C; static const i64 m = %lldll, k = %lldll, n = %lldll, AM = %lldll, AK "
        "= %lldll, BK = %lldll, BN = %lldll;\n",
        types[d].name, types[d].compute, (long long)p->m, (long long)p->k, (long long)p->n, (long long)p->am,
        (long long)p->ak, (long long)p->bk, (long long)p->bn);
    put(types_text,
        "  typedef @_e E; enum { TILES = %lld, ROWS = %lld, COLS = %lld, V = %lld, TX = %d, W = %lld, BM = %d, BW = "
        "%d, SPLIT = %lld };\n  static const i64 SPAN = %lldll;\n  static M i64 a(u32 z) { return ",
        (long long)form->tiles, (long long)form->rows, (long long)form->columns, (long long)form->vector, form->tx,
        (long long)vector, form->height, form->width, (long long)form->splits, (long long)form->span);
    put_offset(types_text, &p->a, "z", is_small(&p->a));
    put(types_text, "; }\n  static M i64 b(u32 z) { return ");
    put_offset(types_text, &p->b, "z", is_small(&p->b));
    put(types_text, "; }\n");
    if (form->lanes) put(types_text, "  enum { LANES = %d, WIDE = %d };\n", form->lanes, form->wide[0]);
    if (form->step) {
        bool is_full = p->m % form->height == 0 && p->n % form->width == 0 && p->k % form->step == 0 &&
                       form->span % form->step == 0;
        put(types_text, "  enum { FULL = %d, STEP = %d, WM = %d, WN = %d, VA = %d, VB = %d, KA = %d, KB = %d };\n",
            is_full, form->step, form->warps[0], form->warps[1], form->wide[0], form->wide[1], !form->at, !form->bt);
    }
    put(types_text, "};\n");
}

/* A matrix whose rows or columns are contiguous and begin at multiples of V. */
static bool is_panel(int64_t stride, int64_t along, int64_t length, int64_t vector, const gn_view *batch,
                     int64_t offset, int bytes) {
    bool contiguous = along == 1 && (stride % vector == 0);
    return contiguous && length > 0 && offset % (vector * bytes) == 0 && strides_fit(batch, vector);
}

static bool is_tiled(const product *p, int64_t vector, int bytes, int64_t oa, int64_t ob) {
    bool a = is_panel(p->am, p->ak, p->k, vector, &p->a, oa, bytes) ||
             is_panel(p->ak, p->am, p->m, vector, &p->a, oa, bytes);
    bool b = is_panel(p->bn, p->bk, p->k, vector, &p->b, ob, bytes) ||
             is_panel(p->bk, p->bn, p->n, vector, &p->b, ob, bytes);
    return a && b;
}

/* Of few rows: the lanes that sum k, k modulo `lanes` to each (lane_k in the device's code); by the shape alone. side:
   threads side by side that read 16 bytes of a row of B each; splits: blocks of a cluster that share one row's k. */
typedef struct row_lanes {
    int side, splits, lanes;
} row_lanes;
enum { FEW_ROWS = 8, NARROW_K = 1024 };

static row_lanes row_lanes_of(const emit *e, const product *p, int bytes) {
    int vector = 16 / bytes;
    int64_t blocks = emit_processors(e), tiles = blocks_for(p->n, 32);
    row_lanes w = { 32 / vector, 1, 8 * vector };
    if (p->m > 1 || p->batches > 1) {
        if (tiles * p->batches < blocks) w.lanes = 32 * vector;
        return w;
    }
    /* few columns: 16 bytes of each row to a block */
    bool narrow = blocks_for(p->n, vector) <= blocks && p->k <= NARROW_K;
    if (narrow) w.side = 1;
    for (; !narrow && emit_has_clusters(e) && w.splits < 4 && tiles * w.splits * 2 <= blocks &&
           p->k / (w.splits * 2) >= 256 / (int64_t)w.side;)
        w.splits *= 2;
    w.lanes = 256 / w.side * w.splits;
    if (w.lanes < 32 * vector) w.lanes = 32 * vector;
    return w;
}

/* Few rows: matrix-vector kernels, which read 16 bytes at a time where they can. */
static bool form_rows(const emit *e, const product *p, int bytes, int64_t oa, int64_t ob, product_form *f) {
    if (p->m > FEW_ROWS) return false;
    int vector = 16 / bytes;
    f->lanes = row_lanes_of(e, p, bytes).lanes;
    f->vector = vector;
    if (p->bk == 1 && p->bn != 1) {
        f->body = "rows_dot";
        f->tx = f->lanes / vector > 32 ? 32 : f->lanes / vector;
        f->tiles = blocks_for(p->n, 256 / f->tx);
        f->wide[0] = (p->ak == 1 || p->k == 1) && p->k % vector == 0 && p->bn % vector == 0 &&
                     (p->am % vector == 0 || p->m == 1) && oa % 16 == 0 && ob % 16 == 0 && strides_fit(&p->a, vector) &&
                     strides_fit(&p->b, vector);
        return true;
    }
    f->body = "rows_times";
    f->tx = f->lanes >= 256 ? 1 : 256 / f->lanes;
    f->tiles = blocks_for(p->n, f->tx * vector);
    f->wide[0] = p->bn == 1 && p->n % vector == 0 && p->bk % vector == 0 && ob % 16 == 0 && strides_fit(&p->b, vector);
    return true;
}

/* Large tiles, and k cut into parts when there are too few of them for the GPU. */
static void form_tiles(const emit *e, const product *p, product_form *f, int height, int width, int64_t least_span,
                       bool cuts) {
    int64_t want = emit_processors(e);
    f->height = height;
    f->width = width;
    f->rows = blocks_for(p->m, height);
    f->columns = blocks_for(p->n, width);
    f->tiles = f->rows * f->columns;
    f->splits = cuts && p->batches == 1 && f->tiles < want ? (2 * want) / f->tiles : 1;
    if (f->splits > p->k / least_span) f->splits = p->k / least_span;
    if (f->splits > 16) f->splits = 16;
    if (f->splits < 1) f->splits = 1;
    f->span = (blocks_for(p->k, f->splits) + 31) / 32 * 32;
    f->splits = p->k ? blocks_for(p->k, f->span) : 1;
}

static bool fits_maps(const emit *e, const product *p) {
    return emit_has_warpgroups(e) && p->a.rank <= 2 && p->b.rank <= 2 && p->m <= 0x7fffff00 && p->n <= 0x7fffff00 &&
           p->k <= 0x7fffff00;
}

/* The transpose of the result: B's and A's transposes multiplied. */
static product product_turned(const product *p) {
    return (product){ .a = p->b,
                      .b = p->a,
                      .m = p->n,
                      .n = p->m,
                      .k = p->k,
                      .am = p->bn,
                      .ak = p->bk,
                      .bk = p->ak,
                      .bn = p->am,
                      .batches = p->batches };
}

/* ---- on tensor cores: what could compute a product, and how long that takes by a model of the H200 ---- */

static const char tensor_text[] =
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "// One side of a tile: ROWS rows (or columns) of STEP k in lines that run along k (KS) or along the rows, in "
    "16-byte pieces that are swizzled so that neither copies nor\n"
    "// reads meet in a bank. V elements are read at once: 16, 8 or 4 bytes by asynchronous copies, 2 through "
    "registers. With V 1 any strides do.\n"
    "template <class T, int ROWS, int STEP, int V, bool KS> struct tensor_side {\n"
    "  enum { ALONG = KS, B = sizeof(T), LINE = (KS ? STEP : ROWS) * B, EACH = LINE / (V * B), ALL = "
    "(KS ? ROWS : STEP) * EACH, N = (ALL + 255) / 256, HELD = V * B < 4, BYTES = ROWS * STEP * B };\n"
    "  T held[HELD ? N : 1];\n"
    "  static M u32 at(int line, int byte) {\n"
    "    const int turn = B == 4 && !KS ? (LINE >= 128 ? (line & 3) * 2 : line & 2) : LINE >= 128 ? line & 7 : LINE == "
    "64 ? line >> 1 & 3 : line >> 2 & 1;\n"
    "    return line * LINE + (((byte >> 4) ^ turn) << 4) + (byte & 15);\n"
    "  }\n"
    "  // p: the tile's first element, from which `rows` and `ks` are left; FULL: no less than the tile\n"
    "  template <bool FULL, i64 ROW, i64 K> M void fetch(u32 to, const T *p, int rows, int ks) {\n"
    "    enum { NEAR = ROW > -(1 << 22) && ROW < 1 << 22 && K > -(1 << 22) && "
    "K < 1 << 22 };           // offsets in a tile have 32 bits\n"
    "    UNROLL for (int q = 0; q < N; q++) {\n"
    "      const int c = threadIdx.x + q * 256, line = c / EACH, x = c % EACH * V, r = KS ? line : x, k = KS ? x : "
    "line;\n"
    "      if (ALL % 256 && c >= ALL) continue;\n"
    "      const int left = r < rows && k < ks ? (KS ? ks - k : rows - r) : 0, n = FULL || left >= V ? V : left;\n"
    "      const T *from = n ? p + (NEAR ? (i64)(r * (int)ROW + k * (int)K) : r * ROW + k * K) : p;\n"
    "      if (HELD) { T none = {}; held[q] = n ? *from : none; } else copy_shared<V * B>(to + at(line, x * B), from, "
    "n * B);\n"
    "    }\n"
    "  }\n"
    "  M void keep(unsigned char *to) const {\n"
    "    UNROLL for (int q = 0; q < N; q++) {\n"
    "      const int c = threadIdx.x + q * 256;\n"
    "      if (HELD && c < ALL) *(T *)(to + at(c / EACH, c % EACH * B)) = held[q];\n"
    "    }\n"
    "  }\n"
    "};\n"
    "// A warp's products of one stage: 32 bytes of k at a time, every GROUPS-th of them.\n"
    "template <class S, class T> M void tensor_rows(u32 *x, const unsigned char *stage, int first, int unit, "
    "T) {          // 16 rows of A\n"
    "  const int l = threadIdx.x & 31;\n"
    "  if (S::ALONG) matrix4(x, shared_address(stage) + S::at(first + (l & 15), unit * 32 + (l >> 4) * 16));\n"
    "  else if (sizeof(T) == 2) matrix4_transposed(x, shared_address(stage) + S::at(unit * 16 + (l & 7) + (l >> 4) * "
    "8, (first + (l >> 3 & 1) * 8) * 2));\n"
    "  else UNROLL for (int q = 0; q < 4; q++) x[q] = *(const u32 *)(stage + S::at(unit * 8 + (l & 3) + (q >> 1) * 4, "
    "(first + (l >> 2) + (q & 1) * 8) * 4));\n"
    "}\n"
    "template <class S, class T> M void tensor_columns(u32 *y, const unsigned char *stage, int first, int unit, "
    "T) {       // 16 columns of B\n"
    "  const int l = threadIdx.x & 31;\n"
    "  if (S::ALONG) matrix4(y, shared_address(stage) + S::at(first + (l & 7) + (l >> 4) * 8, unit * 32 + (l >> 3 & 1) "
    "* 16));\n"
    "  else if (sizeof(T) == 2) matrix4_transposed(y, shared_address(stage) + S::at(unit * 16 + (l & 15), (first + (l "
    ">> 4) * 8) * 2));\n"
    "  else UNROLL for (int q = 0; q < 4; q++) y[q] = *(const u32 *)(stage + S::at(unit * 8 + (l & 3) + (q & 1) * 4, "
    "(first + (l >> 2) + (q >> 1) * 8) * 4));\n"
    "}\n"
    "template <class P, class SA, class SB> M void tensor_step(float *acc, const unsigned char *stage, int group, int "
    "wm, int wn) {\n"
    "  enum { UNITS = P::STEP * sizeof(typename P::T) / 32, GROUPS = 8 / (P::WM * P::WN), MI = P::BM / P::WM / 16, "
    "NJ = P::BW / P::WN / 16 };\n"
    "  const typename P::T tag = {};\n"
    "  UNROLL for (int k = 0; k < UNITS / GROUPS; k++) {\n"
    "    const int unit = k * GROUPS + group;\n"
    "    u32 x[MI][4], y[NJ][4];\n"
    "    UNROLL for (int i = 0; i < MI; i++) tensor_rows<SA>(x[i], stage, wm + i * 16, unit, tag);\n"
    "    UNROLL for (int j = 0; j < NJ; j++) tensor_columns<SB>(y[j], stage + SA::BYTES, wn + j * 16, unit, tag);\n"
    "    UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NJ * 2; "
    "j++) mma(acc + (i * NJ * 2 + j) * 4, x[i], y[j >> 1][(j & 1) * 2], y[j >> 1][(j & 1) * 2 + 1], tag);\n"
    "  }\n"
    "}\n"
    "// f16, bf16 and TF32 on tensor cores, any shape: BM x BW tiles; "
    "of 8 warps WM share the rows, WN the columns, and groups of WM x WN the k of a stage, of which there are four.\n"
    "// P as above; STEP k of a stage, VA, VB, KA, KB: V and KS of the sides\n"
    "template <class P> M void tensor_matmul(const typename P::T *a, const typename P::T *b, const typename P::E &e, "
    "float *parts) {\n"
    "  typedef tensor_side<typename P::T, P::BM, P::STEP, P::VA, P::KA> side_a;\n"
    "  typedef tensor_side<typename P::T, P::BW, P::STEP, P::VB, P::KB> side_b;\n"
    "  enum { SHARE = P::WM * P::WN * 32, GROUPS = 256 / SHARE, MI = P::BM / P::WM / 16, NJ = P::BW / P::WN / 16, "
    "CELLS = MI * NJ * 8 };\n"
    "  enum { A = side_a::BYTES, STAGE = A + side_b::BYTES, STAGES = 4 };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  const u32 base = shared_address(memory);\n"
    "  const int warp = threadIdx.x >> 5, l = threadIdx.x & 31, group = warp / (P::WM * P::WN), wm = warp / P::WN % "
    "P::WM * (P::BM / P::WM), wn = warp % P::WN * (P::BW / P::WN);\n"
    "  u32 z;\n"
    "  i64 row, col;\n"
    "  product_tile<P>(blockIdx.x, &z, &row, &col);\n"
    "  const i64 begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::k ? begin + P::SPAN : P::k;\n"
    "  const int steps = (int)((end - begin + P::STEP - 1) / P::STEP), rows = P::m - row < P::BM ? (int)(P::m - row) : "
    "P::BM, columns = P::n - col < P::BW ? (int)(P::n - col) : P::BW;\n"
    "  a += P::a(z) + row * P::AM + begin * P::AK;\n"
    "  b += P::b(z) + col * P::BN + begin * P::BK;\n"
    "  side_a sa;\n"
    "  side_b sb;\n"
    "  float acc[CELLS];\n"
    "  UNROLL for (int i = 0; i < CELLS; i++) acc[i] = 0.f;\n"
    "  for (int step = 1 - STAGES; step < steps; step++) {\n"
    "    const int next = step + STAGES - 1, to = next % STAGES * STAGE;\n"
    "    const i64 k = (i64)next * P::STEP;\n"
    "    const int ks = end - begin - k < P::STEP ? (int)(end - begin - k) : P::STEP;\n"
    "    if (step >= 0) { copy_wait<STAGES - 2>(); __syncthreads(); }\n"
    "    if (next < steps) {\n"
    "      sa.template fetch<P::FULL, P::AM, P::AK>(base + to, a + k * P::AK, rows, ks);\n"
    "      sb.template fetch<P::FULL, P::BN, P::BK>(base + to + A, b + k * P::BK, columns, ks);\n"
    "    }\n"
    "    copy_commit();\n"
    "    if (step >= 0) tensor_step<P, side_a, side_b>(acc, memory + step % STAGES * STAGE, group, wm, wn);\n"
    "    if (next < steps) { sa.keep(memory + to); sb.keep(memory + to + A); }\n"
    "  }\n"
    "  let_next_start();\n"
    "  if (GROUPS > 1) {                                                 // the groups' sums one after another\n"
    "    float *sums = (float *)memory + threadIdx.x % SHARE;\n"
    "    __syncthreads();\n"
    "    UNROLL for (int i = 0; i < CELLS; i++) if (group) sums[((group - 1) * CELLS + i) * SHARE] = acc[i];\n"
    "    __syncthreads();\n"
    "    if (group) return;\n"
    "    UNROLL for (int g = 0; g < GROUPS - 1; g++) UNROLL for (int i = 0; i < CELLS; "
    "i++) acc[i] += sums[(g * CELLS + i) * SHARE];\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NJ * 2; j++) UNROLL for (int q = 0; q < 4; "
    "q += 2) {\n"
    "    product_put<P, 2>(e, parts, z, row + wm + i * 16 + (l >> 2) + (q >> 1) * 8, col + wn + j * 8 + (l & 3) * 2, "
    "&acc[(i * NJ * 2 + j) * 4 + q]);\n"
    "  }\n"
    "}\n"
    "#endif\n";

/* A side as it lies: the elements that can be read at once, and whether k or (across) the rows run along memory. At 1
   any strides do. copied: to scratch memory first, where rows begin at multiples of 16 bytes. */
typedef struct side {
    int wide;
    bool across, copied;
} side;

static int panel_vector(int64_t stride, int64_t along, int64_t length, const gn_view *batch, int64_t offset,
                        int bytes) {
    int wide = 16 / bytes;
    while (wide > 1 && !is_panel(stride, along, length, wide, batch, offset, bytes)) wide /= 2;
    return wide;
}

static side side_of(int64_t outer_stride, int64_t k_stride, int64_t outer, int64_t k, const gn_view *batch,
                    int64_t offset, int bytes) {
    int down = panel_vector(outer_stride, k_stride, k, batch, offset, bytes),
        across = panel_vector(k_stride, outer_stride, outer, batch, offset, bytes);
    return (side){ down > across ? down : across,
                   across > down || (across == down && k_stride != 1 && outer_stride == 1), false };
}

/* Warpgroup kernels by tile: rows, columns, stages, parts of k (blocks of a cluster), and what a tile costs beside its
   steps (µs, measured on an H200). */
static const struct warpgroup_form {
    int height, width, stages, parts;
    double edge;
} warpgroup_forms[] = {
    { 128, 256, 4, 1, 0.8 }, { 128, 192, 5, 1, 0.7 }, { 192, 192, 4, 1, 1.4 }, { 128, 128, 6, 1, 0.2 },
    { 128, 128, 6, 2, 2.2 }, { 128, 128, 6, 4, 3.2 }, { 64, 128, 4, 1, 0.2 },  { 64, 128, 4, 2, 1.5 },
    { 64, 128, 4, 4, 2.8 },  { 64, 64, 6, 1, 0.4 },   { 64, 64, 6, 2, 1.4 },   { 64, 64, 6, 4, 1.9 },
};
/* Kernels of single warps: tile, warps that share its rows and its columns, bytes of k in a stage, and what a tile
   costs beside its steps. */
static const struct tensor_form {
    int height, width, warps[2], line;
    double edge;
} tensor_forms[] = {
    { 128, 128, { 2, 4 }, 64, 0 },   { 64, 64, { 2, 4 }, 64, 0.2 },   { 64, 64, { 2, 2 }, 128, 1 },
    { 32, 32, { 2, 2 }, 128, 0.35 }, { 64, 16, { 4, 1 }, 128, 0.32 }, { 16, 64, { 1, 4 }, 128, 0.45 },
    { 32, 64, { 1, 4 }, 128, 0.7 },
};
enum {
    WARPGROUP_FORMS = sizeof warpgroup_forms / sizeof *warpgroup_forms,
    TENSOR_FORMS = sizeof tensor_forms / sizeof *tensor_forms,
    TENSOR_PARTS = 5,
    TENSOR_WAYS = WARPGROUP_FORMS + TENSOR_FORMS * TENSOR_PARTS
};

/* TMA takes lines and matrices that lie forward in memory; a batch's dim that repeats (stride 0) is left out of its
   map. */
static bool lies_forward(int64_t line_stride, int64_t lines, const gn_view *batch) {
    for (int i = 0; i < batch->rank; i++)
        if (batch->strides[i] < 0) return false;
    return line_stride > 0 || lines == 1;
}

/* Rows that TMA reads begin at multiples of 16 bytes and lie one after another; a side whose do not is copied (TF32: so
   that k runs along memory). What copies take; those of more than a gigabyte are not made. */
static double align_sides(const product *p, int bytes, side sides[2]) {
    double us = 0, copied = 0;
    for (int i = 0; i < 2; i++) {
        const gn_view *batch = i ? &p->b : &p->a;
        bool across = sides[i].across;
        int64_t stride = across ? (i ? p->bk : p->ak) : i ? p->bn : p->am, lines = across ? p->k : i ? p->n : p->m;
        if (sides[i].wide * bytes == 16 && lies_forward(stride, lines, batch)) continue;
        double size = (double)(i ? p->n : p->m) * (double)p->k * (double)((batch->rank ? p->batches : 1) * bytes);
        us += 1.3 + size * 1.1e-6;
        copied += size;
        sides[i] = (side){ 16 / bytes, across && bytes == 2, true };
    }
    return copied > 0x1p30 ? 1e300 : us;
}

/* A step of 128 bytes of k takes as long as its panels at 67 GB/s a processor, or its products at 6.7 TFLOP/s a
   processor (half of that for TF32). */
static double warpgroup_us(const emit *e, const product *p, int bytes, const struct warpgroup_form *w) {
    if (w->parts > 1 && !emit_has_clusters(e)) return 1e300;
    int64_t blocks = blocks_for(p->m, w->height) * blocks_for(p->n, w->width) * p->batches * w->parts,
            steps = blocks_for(blocks_for(p->k, 128 / bytes), w->parts);
    if (blocks >= 0x7fffffff) return 1e300; /* tiles are counted in 32 bits */
    double moves = 0.0019 * (w->height + w->width), multiplies = w->height * w->width * 1.9e-5,
           step = moves > multiplies ? moves : multiplies;
    return 1.5 + (double)blocks_for(blocks, emit_processors(e)) * ((double)steps * step + w->edge);
}

/* A step takes as long as its copies, of which narrower ones move fewer bytes, its products, or the wait for either:
   two blocks to a processor wait at once. Sums of parts are joined by another kernel. */
static double tensor_us(const emit *e, const product *p, int bytes, const struct tensor_form *w, int64_t parts,
                        const side sides[2]) {
    if (parts > 1 && (p->batches > 1 || p->k < parts * (256 / bytes))) return 1e300;
    int64_t blocks = blocks_for(p->m, w->height) * blocks_for(p->n, w->width) * p->batches * parts,
            steps = blocks_for(blocks_for(p->k, parts), w->line / bytes);
    double waves = (double)blocks_for(blocks, emit_processors(e)),
           waits = (w->line == 64 ? 0.39 : 0.25) * (double)blocks_for(blocks, 2 * emit_processors(e));
    double moves = w->line * 1.2e-5 *
                   (w->height * (16. / (sides[0].wide * bytes)) + w->width * (16. / (sides[1].wide * bytes))),
           multiplies = w->height * w->width * w->line * 0.57e-6;
    double step = waves * (moves > multiplies ? moves : multiplies);
    return 1.5 + (double)steps * (step > waits ? step : waits) + waves * w->edge +
           (parts > 1 ? 1.9 + (double)p->m * (double)(p->n * parts) * 1.2e-6 : 0.);
}

static void form_warpgroups(const product *p, product_form *f, const struct warpgroup_form *w, const side sides[2],
                            bool turn) {
    f->body = "wgmma_matmul";
    for (int i = 0; i < 2; i++) f->copied[i] = sides[i].copied;
    f->at = sides[0].across;
    f->bt = sides[1].across;
    f->turn = turn;
    f->height = w->height;
    f->width = w->width;
    f->stages = w->stages;
    f->parts = w->parts;
    f->rows = blocks_for(p->m, f->height);
    f->columns = blocks_for(p->n, f->width);
    f->tiles = f->rows * f->columns;
    f->shared = (uint32_t)((f->height + f->width) * 128 * f->stages + 1024);
}

static void form_tensor(const product *p, product_form *f, int bytes, const struct tensor_form *w, int64_t parts,
                        const side sides[2]) {
    f->body = "tensor_matmul";
    f->height = w->height;
    f->width = w->width;
    f->rows = blocks_for(p->m, w->height);
    f->columns = blocks_for(p->n, w->width);
    f->tiles = f->rows * f->columns;
    f->step = w->line / bytes;
    f->span = blocks_for(blocks_for(p->k, parts), f->step) * f->step;
    f->splits = blocks_for(p->k, f->span);
    for (int i = 0; i < 2; i++) {
        f->warps[i] = w->warps[i];
        f->wide[i] = sides[i].wide;
    }
    f->at = sides[0].across;
    f->bt = sides[1].across;
    f->shared = (uint32_t)((w->height + w->width) * w->line * 4);
}

/* The way that ends first, or with `rank` 1, 2, ... those after it. */
static void form_on_tensor_cores(const emit *e, const product *p, product_form *f, gn_dtype d, int rank) {
    int bytes = types[d].bytes, best = 0;
    double us[TENSOR_WAYS];
    side sides[2] = { side_of(p->am, p->ak, p->m, p->k, &p->a, 0, bytes),
                      side_of(p->bn, p->bk, p->n, p->k, &p->b, 0, bytes) };
    side aligned[2] = { sides[0], sides[1] };
    double copies = align_sides(p, bytes, aligned);
    bool groups = fits_maps(e, p), turn = d == GN_F32 && aligned[1].across && (!aligned[0].across || p->m <= p->n);
    product turned = product_turned(p);
    for (int i = 0; i < TENSOR_WAYS; i++) {
        int t = i - WARPGROUP_FORMS;
        us[i] = t >= 0   ? tensor_us(e, p, bytes, &tensor_forms[t / TENSOR_PARTS], 1 << t % TENSOR_PARTS, sides)
                : groups ? copies + warpgroup_us(e, turn ? &turned : p, bytes, &warpgroup_forms[i])
                         : 1e300;
        if (i && us[i] < us[best]) best = i;
    }
    for (int r = 0; r < rank; r++) {
        int next = -1;
        for (int i = 0; i < TENSOR_WAYS; i++)
            if (us[i] < 1e299 && (us[i] > us[best] || (us[i] == us[best] && i > best)) &&
                (next < 0 || us[i] < us[next]))
                next = i;
        if (next >= 0) best = next;
    }
    f->form = best;
    if (best < WARPGROUP_FORMS) form_warpgroups(turn ? &turned : p, f, &warpgroup_forms[best], aligned, turn);
    else
        form_tensor(p, f, bytes, &tensor_forms[(best - WARPGROUP_FORMS) / TENSOR_PARTS],
                    1 << (best - WARPGROUP_FORMS) % TENSOR_PARTS, sides);
}

/* The way that was chosen, for sides as they lie. TMA knows two dims of batches: a side with more is copied. */
static void tensor_bind(const product *p, product_form *f, gn_dtype d, int64_t oa, int64_t ob) {
    int bytes = types[d].bytes, t = f->form - WARPGROUP_FORMS;
    side sides[2] = { side_of(p->am, p->ak, p->m, p->k, &p->a, oa, bytes),
                      side_of(p->bn, p->bk, p->n, p->k, &p->b, ob, bytes) };
    product turned = product_turned(p);
    if (t >= 0) {
        form_tensor(p, f, bytes, &tensor_forms[t / TENSOR_PARTS], 1 << t % TENSOR_PARTS, sides);
        return;
    }
    align_sides(p, bytes, sides);
    for (int i = 0; i < 2; i++)
        if ((i ? &p->b : &p->a)->rank > 2) sides[i] = (side){ 16 / bytes, sides[i].across && bytes == 2, true };
    bool turn = d == GN_F32 && sides[1].across && (!sides[0].across || p->m <= p->n);
    form_warpgroups(turn ? &turned : p, f, &warpgroup_forms[f->form], sides, turn);
}

/* Fed kernels of plain f32 by tile: rows, columns; of a thread, beside its 8 rows, columns, and threads side by side; k
   of a stage, stages. Eight warps; those that a tile does not need share k. */
static const struct sgemm_form {
    int height, width, each, lanes, step, stages;
} sgemm_forms[] = {
    { 64, 256, 16, 8, 32, 4 }, { 128, 128, 16, 8, 32, 5 }, { 64, 128, 16, 8, 32, 6 }, { 32, 128, 16, 8, 64, 4 },
    { 16, 128, 8, 16, 64, 5 }, { 32, 64, 8, 8, 64, 6 },    { 64, 64, 8, 8, 32, 6 },   { 32, 128, 8, 8, 32, 6 },
    { 64, 128, 8, 8, 32, 6 },  { 128, 128, 8, 8, 16, 6 },
};
/* of a product so large, a side is transposed first if that lets TMA feed it */
enum { SGEMM_FORMS = sizeof sgemm_forms / sizeof *sgemm_forms, SGEMM_PARTS = 8, SGEMM_TURNS = 3072 };

static int sgemm_groups(const struct sgemm_form *f) { return 8 * 256 * f->each / (f->height * f->width); }

/* Blocks that run at once when `parts` of them make a cluster, which lies within a group of processors: of an H200's
   132 in groups of 18, 16 and fewer. */
static int64_t sgemm_slots(const emit *e, int parts) {
    static const int clusters[SGEMM_PARTS] = { 132, 66, 39, 30, 22, 17, 14, 14 };
    return emit_processors(e) * clusters[parts - 1] / 132 * parts;
}

/* Microseconds of one block, by a model of the H200: products at 54 TFLOP/s in all, panels that come element by element
   beside them, or no faster than the L2 gives them; then sums are joined. */
static double sgemm_time(const struct sgemm_form *w, const product_form *f, int64_t k, int parts) {
    double multiplies = w->height * w->width * (w->each == 16 ? 4.88e-6 : 5.45e-6) * (w->lanes == 8 ? 1 : 1.14),
           copies = 4.6e-5 * ((f->feed_a ? w->height : 0) + (f->feed_b ? w->width : 0));
    double moves = (w->height + w->width) * 9e-5, each = multiplies + copies > moves ? multiplies + copies : moves;
    return (double)(blocks_for(blocks_for(k, w->step), parts) * w->step) * each + 1.9 + (w->each == 16 ? 1.6 : 0) +
           (parts > 1 ? 1 + w->height * w->width * 1.2e-4 : 0);
}

/* Of `tiles`, those that fill all processors several times, and the rest in more parts of k: the best number for
   these. */
static double sgemm_rest(const emit *e, const struct sgemm_form *w, const product_form *f, int64_t k, int64_t tiles,
                         int *out_parts) {
    int64_t slots = emit_processors(e), rest = tiles % slots;
    double best = (double)blocks_for(tiles, slots) * sgemm_time(w, f, k, 1),
           whole = (double)(tiles / slots) * sgemm_time(w, f, k, 1);
    *out_parts = 0;
    for (int q = 2; q <= SGEMM_PARTS && tiles > slots && rest * q <= sgemm_slots(e, q); q++) {
        double time = whole + sgemm_time(w, f, k, q) + 1;
        if (time < best) {
            best = time;
            *out_parts = q;
        }
    }
    return best;
}

/* The form that ends first, or with `rank` 1, 2, ... those after it. */
static void sgemm_best(const emit *e, const product *p, product_form *f, int rank) {
    double times[SGEMM_FORMS][SGEMM_PARTS];
    int rest[SGEMM_FORMS], best = 0;
    for (int i = 0; i < SGEMM_FORMS * SGEMM_PARTS; i++) {
        const struct sgemm_form *w = &sgemm_forms[i / SGEMM_PARTS];
        int parts = i % SGEMM_PARTS + 1;
        int64_t tiles = blocks_for(p->m, w->height) * blocks_for(p->n, w->width) * p->batches;
        double *time = &times[i / SGEMM_PARTS][parts - 1];
        if (parts == 1) *time = sgemm_rest(e, w, f, p->k, tiles, &rest[i / SGEMM_PARTS]);
        else if (!emit_has_clusters(e) || blocks_for(p->k, w->step) < parts || !sgemm_slots(e, parts)) *time = 1e300;
        else *time = (double)blocks_for(tiles * parts, sgemm_slots(e, parts)) * sgemm_time(w, f, p->k, parts);
    }
    for (int r = 0; r <= rank; r++) {
        if (r) times[best / SGEMM_PARTS][best % SGEMM_PARTS] = 1e301;
        for (int i = 0; i < SGEMM_FORMS * SGEMM_PARTS; i++)
            if (times[i / SGEMM_PARTS][i % SGEMM_PARTS] < times[best / SGEMM_PARTS][best % SGEMM_PARTS]) best = i;
    }
    f->form = best / SGEMM_PARTS;
    f->parts = best % SGEMM_PARTS + 1;
    f->rest = f->parts == 1 && emit_has_clusters(e) ? rest[f->form] : 0;
}

/* How a side comes to shared memory: by TMA (0), or element by element, m or n (1) or k (2) along memory. */
static int sgemm_feeds(int64_t outer_stride, int64_t k_stride, int64_t outer, int64_t k, const gn_view *batch,
                       int64_t offset) {
    if (batch->rank <= 2 && lies_forward(k_stride, k, batch) &&
        is_panel(k_stride, outer_stride, outer, 4, batch, offset, 4))
        return 0;
    return llabs(k_stride) < llabs(outer_stride) ? 2 : 1;
}

static void sgemm_bind(const product *p, product_form *f, int64_t oa, int64_t ob) {
    f->feed_a = sgemm_feeds(p->am, p->ak, p->m, p->k, &p->a, oa);
    f->feed_b = sgemm_feeds(p->bn, p->bk, p->n, p->k, &p->b, ob);
    f->at = f->feed_a == 2 && p->ak == 1 && p->n >= SGEMM_TURNS && p->m >= SGEMM_TURNS / 2;
    f->bt = f->feed_b == 2 && p->bk == 1 && p->m >= SGEMM_TURNS && p->n >= SGEMM_TURNS / 2;
    if (f->at) f->feed_a = 0;
    if (f->bt) f->feed_b = 0;
}

/* Every product but the smallest, which end in the time that a launch takes. */
static bool form_sgemm(const emit *e, const product *p, product_form *f, int rank) {
    if (!emit_has_warpgroups(e) || p->m > 0x7fffff00 || p->n > 0x7fffff00 || p->k > 0x7fffff00) return false;
    if (p->k <= 16 || (double)p->m * (double)p->n * (double)p->k * (double)p->batches <= 1 << 15) return false;
    f->body = "sgemm_fed";
    sgemm_bind(p, f, 0, 0);
    sgemm_best(e, p, f, rank);
    const struct sgemm_form *w = &sgemm_forms[f->form];
    f->height = w->height;
    f->width = w->width;
    f->rows = blocks_for(p->m, f->height);
    f->columns = blocks_for(p->n, f->width);
    f->tiles = f->rows * f->columns;
    return f->tiles * p->batches * f->parts < 0x7fffffff;
}

/* The kernels that run along k in a thread, for sides as they lie: the parts of k are chosen. */
static void tiles_bind(const emit *e, const product *p, product_form *f, int64_t oa, int64_t ob) {
    bool tiled = is_tiled(p, 4, 4, oa, ob);
    f->at = !is_panel(p->ak, p->am, p->m, 4, &p->a, oa, 4);
    f->bt = !is_panel(p->bk, p->bn, p->n, 4, &p->b, ob, 4);
    /* a side that lies the other way is transposed first, where that is little beside the product */
    bool async = tiled && emit_has_async_copies(e) && (!f->at || p->n >= 1024) && (!f->bt || p->m >= 1024);
    f->body = !tiled ? "matmul" : async ? "sgemm_async" : "sgemm";
    f->at = f->at && async;
    f->bt = f->bt && async;
    f->height = tiled ? 128 : 64;
    f->width = !tiled ? 64 : async ? f->width : 128;
    f->rows = blocks_for(p->m, f->height);
    f->columns = blocks_for(p->n, f->width);
    f->tiles = f->rows * f->columns;
    f->shared = async ? (uint32_t)(128 + f->width) * 256 : 0;
}

/* By the depth and the width of a product alone, as if it had few rows: each row's sums are those it has in any
   product. */
enum { INVARIANT_ROWS = 16 };
static product_form product_invariant(const emit *e, const product *p, gn_dtype d) {
    product_form f = { .body = "matmul", .vector = 1, .tx = 1 };
    product few = *p;
    int bytes = types[d].bytes, best = 0;
    few.m = INVARIANT_ROWS;
    if ((d == GN_F16 || d == GN_BF16 || (d == GN_F32 && env_is("GENIE_TF32", "1"))) && emit_has_tensor_cores(e) &&
        p->k) {
        side sides[2] = { side_of(p->am, p->ak, p->m, p->k, &p->a, 0, bytes),
                          side_of(p->bn, p->bk, p->n, p->k, &p->b, 0, bytes) };
        double least = 1e300;
        for (int i = 0; i < TENSOR_WAYS - WARPGROUP_FORMS; i++) {
            double us = tensor_us(e, &few, bytes, &tensor_forms[i / TENSOR_PARTS], 1 << i % TENSOR_PARTS, sides);
            if (us < least) least = us, best = i;
        }
        f.form = best + WARPGROUP_FORMS;
        form_tensor(p, &f, bytes, &tensor_forms[best / TENSOR_PARTS], 1 << best % TENSOR_PARTS, sides);
        return f;
    }
    form_tiles(e, &few, &f, 64, 64, 128, true);
    f.rows = blocks_for(p->m, f.height);
    f.tiles = f.rows * f.columns;
    return f;
}

/* By the shape of a product of dense matrices: the family of kernels, and the order in which k is summed. rank 0: the
   form that the model holds for the best; 1, 2, ...: others, or the same again where there are no more. */
static product_form product_choose(const emit *e, const product *p, gn_dtype d, int rank) {
    product_form f = { .body = "matmul", .vector = 1, .tx = 1, .height = 64, .width = 64, .splits = 1, .span = p->k },
                 plain;
    int bytes = types[d].bytes;
    if (e->invariant) return product_invariant(e, p, d);
    form_tiles(e, p, &f, 64, 64, 128, true);
    plain = f;
    f.splits = 1;
    f.span = p->k;
    if (p->k == 0 || form_rows(e, p, bytes, 0, 0, &f)) return f;
    if ((d == GN_F16 || d == GN_BF16 || (d == GN_F32 && env_is("GENIE_TF32", "1"))) && emit_has_tensor_cores(e)) {
        form_on_tensor_cores(e, p, &f, d, rank);
        return f;
    }
    if (d == GN_F32 && form_sgemm(e, p, &f, rank)) return f;
    f = plain;
    if (d == GN_F32 && p->m >= 32 && p->n >= 32 && p->m % 4 == 0 && p->n % 4 == 0 && p->k % 4 == 0) {
        bool async = emit_has_async_copies(e) && p->n >= 1024; /* A is to be transposed */
        bool wide =
            async && p->n > 128 && blocks_for(p->m, 128) * blocks_for(p->n, 256) * p->batches >= 2 * emit_processors(e);
        if (rank == 1 && async && p->n > 128) wide = !wide;
        f.body = "sgemm";
        form_tiles(e, p, &f, 128, wide ? 256 : 128, 64, true);
    }
    return f;
}

/* The same for sides as they lie; neither may change the order of a sum. */
static void product_bind(const emit *e, const product *p, product_form *f, gn_dtype d, int64_t oa, int64_t ob) {
    if (p->k == 0) return;
    if (f->lanes) form_rows(e, p, types[d].bytes, oa, ob, f);
    else if (f->stages || f->step) tensor_bind(p, f, d, oa, ob);
    else if (strcmp(f->body, "sgemm_fed") == 0) sgemm_bind(p, f, oa, ob);
    else if (f->body[0] == 's') tiles_bind(e, p, f, oa, ob);
}

/* ---- what is done to a product's sums before they are stored ---- */

/* The bias and the loop that alone reads the product, if there are. */
typedef struct epilogue {
    uint32_t node, result;
    const gn_kernel_step *loop;
    int64_t vector;
    bool has_bias;
} epilogue;

/* A product with what is done to it. shape: of dense matrices; moves: A's leading dims make one only in a dense
   copy. */
typedef struct matmul {
    product p, shape;
    epilogue t;
    gn_dtype d;
    uint32_t xa, xb;
    bool moves;
} matmul;

/* A loop that may run in a matmul's kernel: nothing in it can fail, and its inputs fit beside the kernel's own. */
static bool is_epilogue(const emit *e, const gn_kernel_step *s) {
    for (uint32_t i = 0; i < s->n_instrs; i++) {
        const gn_instr *in = &e->layout->instrs[s->instr + i];
        gn_op_info row;
        gn_get_op(in->op - 1, &row);
        if (row.divides && !types[in->in_dtype].real) return false;
    }
    return s->n_loads <= 60;
}

/* V neighbours can be read, computed and stored at once for V up to this. */
static int64_t epilogue_vector(const emit *e, const epilogue *t, int64_t n) {
    const gn_view *out = view_of(e, t->result);
    int64_t largest = types[out->dtype].bytes, vector;
    for (uint32_t i = 0; t->loop && i < t->loop->n_loads; i++) {
        const gn_load *operand = &e->layout->loads[t->loop->load + i];
        if (!operand->constant && types[operand->dtype].bytes > largest) largest = types[operand->dtype].bytes;
    }
    for (vector = 16 / largest; vector > 1 && n % vector;) vector /= 2;
    return vector;
}

static void epilogue_load(emit *e, loop *l, const epilogue *t, uint32_t i, text *members, text *constants) {
    const gn_load *operand = load_of(e, l, i);
    const char *type = types[operand->dtype].name, *compute = types[operand->dtype].compute;
    text *body = &e->types;
    if (!operand->constant && operand->base == t->node) {
        snprintf(l->names[operand->reg], sizeof l->names[0], "sum");
        return;
    }
    snprintf(l->names[operand->reg], sizeof l->names[0], "x%u", i);
    if (operand->constant) {
        put(constants, "    const %s x%u = cast_to<%s>::of(gn_f64(0x%llxull));\n", compute, i, type,
            (unsigned long long)f64_word(operand->value));
        return;
    }
    char name[32];
    snprintf(name, sizeof name, "a%u", i);
    emit_pointer(e, type, true, name, (param){ PARAM_NODE, operand->base, operand->view.offset });
    put(members, e->waits ? ", now(a%u)" : ", a%u", i);
    bool one = operand->view.rank == 0 || (operand->view.strides[operand->view.rank - 1] == 0 &&
                                           operand->view.dims[operand->view.rank - 1] % t->vector == 0);
    bool wide = vectorises(&operand->view, operand->view.offset, t->vector, types[operand->dtype].bytes);
    const char *load = e->waits ? "vload" : "vconst"; /* what is read as constant may be read before the wait */
    put(body,
        one    ? "    %s<1>(r.w%u, a%u + "
        : wide ? "    %s<V>(r.w%u, a%u + "
               : "    UNROLL for (int v = 0; v < V; v++) %s<1>(r.w%u + v, a%u + ",
        load, i, i);
    put_offset(body, &operand->view, one || wide ? "i" : "i + v", l->small);
    put(body, ");\n");
    snprintf(l->names[operand->reg], sizeof l->names[0], one ? "get(r.w%u[0])" : "get(r.w%u[v])", i);
}

/* The type @_e with its parameters, and `e` of it in the body. The kernel's own parameters are named a, b and parts. */
static void put_epilogue(emit *e, const epilogue *t, gn_dtype d) {
    loop *l = (loop *)alloc_zero(sizeof *l);
    const gn_view *out = view_of(e, t->result);
    const char *type = types[d].name, *to = types[out->dtype].name;
    text members = { 0 }, constants = { 0 };
    if (!l) {
        e->failed = true;
        return;
    }
    l->step = t->loop;
    l->stored = true;
    l->label[0] = 0;
    l->small = is_few(gn_view_count(out));
    for (uint32_t i = 0; t->loop && i < t->loop->n_loads; i++) l->small = l->small && is_small(&load_of(e, l, i)->view);
    put(&e->types, "struct @_e { typedef %s O; O *o;", to);
    if (t->has_bias) put(&e->types, " const %s *bias;", type);
    for (uint32_t i = 0; t->loop && i < t->loop->n_loads; i++)
        if (!load_of(e, l, i)->constant && load_of(e, l, i)->base != t->node)
            put(&e->types, " const %s *a%u;", types[load_of(e, l, i)->dtype].name, i);
    put(&e->types, "\n  template <int V> struct in { int none;");
    if (t->has_bias) put(&e->types, " %s bias[V];", type);
    for (uint32_t i = 0; t->loop && i < t->loop->n_loads; i++)
        if (!load_of(e, l, i)->constant && load_of(e, l, i)->base != t->node)
            put(&e->types, " %s w%u[V];", types[load_of(e, l, i)->dtype].name, i);
    put(&e->types, " };\n  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {\n");
    emit_node(e, t->result, to, false, "o");
    if (t->has_bias) {
        uint32_t bias = bias_of(e, t->node);
        int64_t stride = view_of(e, bias)->strides[0];
        bool wide = stride == 1 && base_offset(e, bias) % (t->vector * types[d].bytes) == 0;
        put(&e->types,
            wide ? "    %s<V>(r.bias, bias + c);\n"
                 : "    UNROLL for (int v = 0; v < V; v++) %s<1>(r.bias + v, bias + (c + v) * %lldll);\n",
            e->waits ? "vload" : "vconst", (long long)stride);
        emit_node(e, bias, type, true, "bias");
        put(&members, e->waits ? ", now(bias)" : ", bias");
    }
    for (uint32_t i = 0; t->loop && i < t->loop->n_loads; i++) epilogue_load(e, l, t, i, &members, &constants);
    const char *sum = t->has_bias ? "gn_add(from[v], get(r.bias[v]))" : "from[v]";
    put(&e->types,
        "  }\n  template <int V> M void value(const in<V> &r, const %s *from, O *y) const {\n%s    UNROLL for (int v = "
        "0; v < V; v++) {\n",
        types[d].compute, constants.s ? constants.s : "");
    if (drops_bits(d) && t->loop)
        put(&e->types, "      const %s sum = cast_to<%s>::of(%s);\n", types[d].compute, type, sum);
    else put(&e->types, "      const %s sum = %s;\n", types[d].compute, sum);
    text body = e->body; /* instructions are written into the body */
    e->body = (text){ 0 };
    for (uint32_t i = 0; t->loop && i < t->loop->n_instrs; i++) loop_instr(e, l, i);
    put(&e->types,
        "%s      put(y[v], %s);\n    }\n  }\n  template <int V> M void store(i64 i, i64 c, const %s *from) const { "
        "in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };\n",
        e->body.s ? e->body.s : "", t->loop ? l->names[t->loop->out] : "sum", types[d].compute);
    text_free(&e->body);
    e->body = body;
    put(&e->body, "  const @_e e = { o%s };\n", members.s ? members.s : "");
    e->failed = e->failed || members.failed || constants.failed;
    text_free(&members);
    text_free(&constants);
    gn_free(l);
}

/* ---- by warpgroups ---- */

/* For sm_90a only. */
static const char wgmma_text[] =
    "// f16, bf16 and TF32: BM / 64 groups of warps, each 64 rows and BW columns of a tile, "
    "and a warp that feeds them. P as above; STAGES of STEP k (128 bytes), AT, BT: rows (columns) contiguous\n"
    "// instead of k, TOTAL tiles, KC blocks of a cluster that share k, BULK: results leave by TMA, mma(d, a, b), az, "
    "aw, bz, bw: the maps' outer coordinates of a batch;\n"
    "// REGS (TF32 with AT, which wgmma does not take from shared memory): A passes through registers; "
    "TURN: what is computed is the transpose of the result\n"
    "// A stage has been read: by a group's products, which end together, or (REGS) by each of its warps\n"
    "template <class P> M void wgmma_release(u32 empty, u32 it) { if ((threadIdx.x & (P::REGS ? 31 : "
    "127)) == 0) bar_arrive(empty + 8 * (it % P::STAGES)); }\n"
    "// One thread: A's and B's panels of every step of every tile of this block, as stages become empty.\n"
    "template <class P> M void wgmma_feed(const tmap *ta, const tmap *tb, u32 base, u32 full, u32 empty, int first, "
    "int steps) {\n"
    "  enum { A = P::BM * 128, STAGE = A + P::BW * 128 };\n"
    "  u32 it = 0, z;\n"
    "  int row, col;\n"
    "  for (u32 tile = blockIdx.x / P::KC; tile < P::TOTAL; tile += gridDim.x / P::KC) {\n"
    "    product_tile<P>(tile, &z, &row, &col);\n"
    "    const int az = P::az(z), aw = P::aw(z), bz = P::bz(z), bw = P::bw(z);\n"
    "    for (int k = 0; k < steps; k++, it++) {\n"
    "      const u32 s = it % P::STAGES, sa = base + s * STAGE, sb = sa + A, bar = full + 8 * s;\n"
    "      const int k0 = (first + k) * P::STEP;\n"
    "      bar_wait(empty + 8 * s, (it / P::STAGES & 1) ^ 1);\n"
    "      bar_expect(bar, STAGE);\n"
    "      if (!P::AT) box_load(sa, ta, k0, row, az, aw, bar);\n"
    "      else UNROLL for (int i = 0; i < P::BM / P::STEP; i++) box_load(sa + i * (P::STEP * 128), ta, "
    "row + i * P::STEP, k0, az, aw, bar);\n"
    "      if (!P::BT) box_load(sb, tb, k0, col, bz, bw, bar);\n"
    "      else UNROLL for (int i = 0; i < P::BW / 64; i++) box_load(sb + i * 8192, tb, col + i * 64, k0, bz, bw, "
    "bar);\n"
    "    }\n"
    "  }\n"
    "}\n"
    "// A group's 64 x BW results of 16 bits by way of shared memory, 64 columns at a time, in BUFFERS of 8192 bytes.\n"
    "template <class P> M void wgmma_store(const tmap *tc, const typename P::E &e, u32 buffers, int z, int row, int "
    "col, float *d) {\n"
    "  const int t = threadIdx.x & 127, l = t & 31, r = (t >> 5) * 16 + (l >> 2), sr = (t >> 5) * 16 + (l & 15);\n"
    "  _Pragma(\"unroll 1\") for (int x = 0; x < P::BW / 64; x++) {       // one copy of the epilogue's text: the sums "
    "move down instead\n"
    "    const u32 to = buffers + x % P::BUFFERS * 8192;\n"
    "    union { typename P::E::O e[2]; u32 w; } y[16];\n"
    "    typename P::E::template in<2> in[16];\n"
    "    UNROLL for (int i = 0; i < 16; i++) {\n"
    "      const i64 gr = row + r + (i & 1) * 8, c = col + x * 64 + (i >> 1) * 8 + (l & 3) * 2;\n"
    "      const bool is = gr < P::m && c < P::n;\n"
    "      e.template fetch<2>(is ? ((i64)z * P::m + gr) * P::n + c : 0, is ? c : 0, in[i]);\n"
    "    }\n"
    "    UNROLL for (int i = 0; i < 16; i++) e.template value<2>(in[i], d + i * 2, y[i].e);\n"
    "    if (t == 0) asm volatile(\"cp.async.bulk.wait_group.read %0;\" :: \"n\"(P::BUFFERS - 1) : \"memory\");\n"
    "    group_sync<128>(1 + (threadIdx.x >> 7));\n"
    "    UNROLL for (int n = 0; n < 8; n += 2) {\n"
    "      const u32 w[4] = { y[n * 2].w, y[n * 2 + 1].w, y[n * 2 + 2].w, y[n * 2 + 3].w };\n"
    "      matrix4_put(to + sr * 128 + (((n + (l >> 4)) ^ (sr & 7)) << 4), w);\n"
    "    }\n"
    "    asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");\n"
    "    group_sync<128>(1 + (threadIdx.x >> 7));\n"
    "    if (t == 0) box_store(tc, col + x * 64, row, z, to);\n"
    "    UNROLL for (int i = 0; i < P::BW / 2 - 32; i++) d[i] = d[i + 32];\n"
    "  }\n"
    "}\n"
    "// The sums of one tile, in two ways. The last step has a wait of its own: the assembler takes the first wait "
    "after products for theirs,\n"
    "// so that reads of the sums were moved before a second one (tests/sass_test.sh looks for that in machine code).\n"
    "template <class P, bool REGS> struct wgmma_sums {\n"
    "  static M void step(float *d, u32 base, u32 full, u32 it) {           // the products of one stage, "
    "on their way\n"
    "    enum { A = P::BM * 128, STAGE = A + P::BW * 128 };\n"
    "    const u32 s = it % P::STAGES;\n"
    "    bar_wait(full + 8 * s, it / P::STAGES & 1);\n"
    "    wgmma_fence();\n"
    "    const u64 da = panel(base + s * STAGE + (threadIdx.x >> 7) * 8192, 8192), db = panel(base + s * STAGE + A, "
    "8192);\n"
    "    UNROLL for (int q = 0; q < 4; q++) P::mma(d, da + q * (P::AT ? 128 : 2), db + q * (P::BT ? 128 : 2));\n"
    "    wgmma_commit();\n"
    "  }\n"
    "  static M void add(float *d, u32 base, u32 full, u32 empty, u32 it, int steps) {\n"
    "    for (int k = 1; k < steps; k++, it++) {\n"
    "      step(d, base, full, it);\n"
    "      wgmma_wait<1>();\n"
    "      if (k > 1) wgmma_release<P>(empty, it - 1);\n"
    "    }\n"
    "    if (steps > 0) step(d, base, full, it);\n"
    "    wgmma_wait<0>();\n"
    "    wgmma_keep<P::BW / 2>(d);\n"
    "    if (steps > 1) wgmma_release<P>(empty, it - 1);\n"
    "    if (steps > 0) wgmma_release<P>(empty, it);\n"
    "  }\n"
    "};\n"
    "D u32 shared_word(u32 a) { u32 r; asm volatile(\"ld.shared.u32 %0, [%1];\" : \"=r\"(r) : \"r\"(a)); return r; }\n"
    "template <class P> struct wgmma_sums<P, true> {\n"
    "  // A warp's 16 rows of A, 32 k, from panels of 32 rows whose k lie 128 bytes apart. Odd lanes of four read k "
    "and k + 4 the other way\n"
    "  // round, so that no two lanes meet in a bank.\n"
    "  static M void load(u32 *x, u32 base, u32 full, u32 it) {\n"
    "    enum { STAGE = (P::BM + P::BW) * 128 };\n"
    "    const u32 t = threadIdx.x, r = t >> 2 & 7, odd = t & 1, k = (t & 3) + odd * 4;\n"
    "    const u32 a = base + it % P::STAGES * STAGE + (t >> 6) * 4096 + k * 128 + ((((t >> 5 & 1) * 4 + (r >> 2)) ^ "
    "k) << 4) + (r & 3) * 4;\n"
    "    bar_wait(full + 8 * (it % P::STAGES), it / P::STAGES & 1);\n"
    "    UNROLL for (int q = 0; q < 4; q++) UNROLL for (int h = 0; h < 2; h++) {\n"
    "      const u32 v = shared_word((a ^ (h * 32)) + q * 1024), w = "
    "shared_word((a ^ (h * 32 + 576)) + q * 1024);   // rows 8 h on; k + 4\n"
    "      x[q * 4 + h] = odd ? w : v;\n"
    "      x[q * 4 + h + 2] = odd ? v : w;\n"
    "    }\n"
    "  }\n"
    "  static M void step(float *d, const u32 *x, u32 base, u32 it) {\n"
    "    enum { A = P::BM * 128, STAGE = A + P::BW * 128 };\n"
    "    const u64 db = panel(base + it % P::STAGES * STAGE + A, 8192);\n"
    "    wgmma_fence();\n"
    "    UNROLL for (int q = 0; q < 4; q++) P::mma(d, x + q * 4, db + q * 2);\n"
    "    wgmma_commit();\n"
    "  }\n"
    "  // While the products of one stage run, the rows of the next are read: two stages at a time, since registers "
    "have no index.\n"
    "  static M void add(float *d, u32 base, u32 full, u32 empty, u32 it, int steps) {\n"
    "    u32 x[2][16];\n"
    "    int k = 0;\n"
    "    if (steps < 1) return;\n"
    "    load(x[0], base, full, it);\n"
    "    for (; k + 2 < steps; k += 2, it += 2) {\n"
    "      step(d, x[0], base, it);\n"
    "      wgmma_wait<1>();\n"
    "      if (k) wgmma_release<P>(empty, it - 1);\n"
    "      load(x[1], base, full, it + 1);\n"
    "      step(d, x[1], base, it + 1);\n"
    "      wgmma_wait<1>();\n"
    "      wgmma_release<P>(empty, it);\n"
    "      load(x[0], base, full, it + 2);\n"
    "    }\n"
    "    const bool two = k + 1 < steps;\n"
    "    if (two) {\n"
    "      step(d, x[0], base, it);\n"
    "      wgmma_wait<1>();\n"
    "      if (k) wgmma_release<P>(empty, it - 1);\n"
    "      load(x[1], base, full, it + 1);\n"
    "      step(d, x[1], base, it + 1);\n"
    "      wgmma_wait<0>();\n"
    "      wgmma_keep<P::BW / 2>(d);\n"
    "    } else {\n"
    "      step(d, x[0], base, it);\n"
    "      wgmma_wait<0>();\n"
    "      wgmma_keep<P::BW / 2>(d);\n"
    "      if (k) wgmma_release<P>(empty, it - 1);\n"
    "    }\n"
    "    wgmma_release<P>(empty, it);\n"
    "    if (two) wgmma_release<P>(empty, it + 1);\n"
    "  }\n"
    "};\n"
    "// A group's sums to the epilogue, 64 columns at a time: one copy of its text. Columns of a transpose: "
    "neighbouring rows change places first.\n"
    "template <class P> M void wgmma_put(const typename P::E &e, u32 z, int row, int col, float *d) {\n"
    "  const int t = threadIdx.x, l = t & 31, r = row + (t >> 7) * 64 + (t >> 5 & 3) * 16 + (l >> 2), c = col + (l & "
    "3) * 2;\n"
    "  const bool odd = l & 4;\n"
    "  _Pragma(\"unroll 1\") for (int x = 0; x < P::BW; x += 64) {\n"
    "    UNROLL for (int i = 0; i < 16; i++) {\n"
    "      if (P::TURN) {\n"
    "        const float in = __shfl_xor_sync(0xffffffffu, odd ? d[i * 2] : d[i * 2 + 1], 4), v[2] = { "
    "odd ? in : d[i * 2], odd ? d[i * 2 + 1] : in };\n"
    "        product_put<P, 2>(e, (float *)0, z, c + x + (i >> 1) * 8 + (odd ? 1 : 0), r - (odd ? 1 : 0) + (i & 1) * "
    "8, v);\n"
    "      } else product_put<P, 2>(e, (float *)0, z, r + (i & 1) * 8, c + x + (i >> 1) * 8, d + i * 2);\n"
    "    }\n"
    "    UNROLL for (int i = 0; i < P::BW / 2 - 32; i++) d[i] = d[i + 32];\n"
    "  }\n"
    "}\n"
    "// A group's sums to `mine`, for wgmma_join: rows of the result, 8 longer than they have to be.\n"
    "template <class P> M void wgmma_leave(float *mine, const float *d) {\n"
    "  const int t = threadIdx.x, l = t & 31, r = (t >> 7) * 64 + (t >> 5 & 3) * 16 + (l >> 2), c = (l & 3) * 2;\n"
    "  UNROLL for (int i = 0; i < P::BW / 4; i++) {\n"
    "    const int y = r + (i & 1) * 8, x = c + (i >> 1) * 8;\n"
    "    if (P::TURN) { mine[x * (P::BM + 8) + y] = d[i * 2]; mine[(x + 1) * (P::BM + 8) + y] = d[i * 2 + 1]; }\n"
    "    else *(float2 *)(mine + y * (P::BW + 8) + x) = make_float2(d[i * 2], d[i * 2 + 1]);\n"
    "  }\n"
    "}\n"
    "// A group's sums of all tiles of this block: stored, or left in `mine` for the cluster's other blocks.\n"
    "template <class P> M void wgmma_compute(const tmap *tc, const typename P::E &e, u32 base, u32 full, u32 empty, "
    "int steps, float *mine) {\n"
    "  enum { STAGE = (P::BM + P::BW) * 128, CELLS = P::BW / 2 };\n"
    "  const int t = threadIdx.x, wg = t >> 7;\n"
    "  u32 it = 0, z;\n"
    "  int row, col;\n"
    "  float d[CELLS];\n"
    "  for (u32 tile = blockIdx.x / P::KC; tile < P::TOTAL; tile += gridDim.x / P::KC) {\n"
    "    product_tile<P>(tile, &z, &row, &col);\n"
    "    UNROLL for (int i = 0; i < CELLS; i++) d[i] = 0.f;\n"
    "    wgmma_sums<P, P::REGS>::add(d, base, full, empty, it, steps);\n"
    "    it += steps > 0 ? steps : 0;\n"
    "    if (P::KC > 1) { group_sync<P::BM * 2>(1); wgmma_leave<P>(mine, d); }   // no group still reads the stages\n"
    "    else if (P::BULK) wgmma_store<P>(tc, e, base + P::STAGES * STAGE + wg * (P::BUFFERS * 8192), (int)z, row + wg "
    "* 64, col, d);\n"
    "    else wgmma_put<P>(e, z, row, col, d);\n"
    "  }\n"
    "  if (P::BULK && (t & 127) == 0) asm volatile(\"cp.async.bulk.wait_group 0;\" ::: \"memory\");\n"
    "}\n"
    "// The sums of the cluster's blocks added, each block some rows.\n"
    "template <class P> M void wgmma_join(const typename P::E &e, u32 base, u32 rank) {\n"
    "  u32 z;\n"
    "  int row, col;\n"
    "  enum { HEIGHT = P::TURN ? P::BW : P::BM, WIDTH = P::TURN ? P::BM : P::BW };\n"
    "  if (P::TURN) product_tile<P>(blockIdx.x / P::KC, &z, &col, &row); "
    "else product_tile<P>(blockIdx.x / P::KC, &z, &row, &col);\n"
    "  for (int i = threadIdx.x; i < HEIGHT / P::KC * (WIDTH / 4); i += blockDim.x) {\n"
    "    const int r = (int)rank * (HEIGHT / P::KC) + i / (WIDTH / 4), c = i % (WIDTH / 4) * 4;\n"
    "    const bool is = row + r < P::m && col + c < P::n;\n"
    "    const i64 at = is ? ((i64)z * P::m + row + r) * P::n + col + c : 0;\n"
    "    typename P::E::template in<4> in;\n"
    "    if (P::W >= 4) e.template fetch<4>(at, is ? col + c : 0, in);\n"
    "    float v[4] = { 0.f, 0.f, 0.f, 0.f };\n"
    "    UNROLL for (int p = 0; p < P::KC; p++) { const float4 o = cluster_load4(base + (r * (WIDTH + 8) + c) * 4, p); "
    "v[0] += o.x; v[1] += o.y; v[2] += o.z; v[3] += o.w; }\n"
    "    if (P::W < 4) product_put<P, 4>(e, (float *)0, z, row + r, col + c, v);\n"
    "    else if (is) { typename P::E::O y[4]; e.template value<4>(in, v, y); vstore<4>(e.o + at, y); }\n"
    "  }\n"
    "}\n"
    "template <class P> M void wgmma_matmul(const tmap *ta, const tmap *tb, const tmap *tc, const typename P::E &e) {\n"
    "  extern __shared__ __align__(1024) unsigned char panels[];\n"
    "  __shared__ __align__(8) u64 bars[2 * P::STAGES];\n"
    "  const u32 at = shared_address(panels), base = (at + 1023u) & ~1023u, full = shared_address(bars), empty = full "
    "+ 8 * P::STAGES, rank = P::KC > 1 ? cluster_rank() : 0;\n"
    "  const int all = (int)((P::k + P::STEP - 1) / P::STEP), span = (all + P::KC - 1) / P::KC, first = P::KC > 1 ? "
    "(int)rank * span : 0, steps = all - first < span ? all - first : span;\n"
    "  if (threadIdx.x == 0) {\n"
    "    for (int i = 0; i < P::STAGES; i++) { bar_init(full + 8 * i, 1); "
    "bar_init(empty + 8 * i, P::BM / (P::REGS ? 16 : 64)); }\n"
    "    asm volatile(\"fence.mbarrier_init.release.cluster; fence.proxy.async;\" ::: \"memory\");\n"
    "  }\n"
    "  if (P::KC > 1) cluster_sync(); else __syncthreads();\n"
    "  if (threadIdx.x >= P::BM * 2) {\n"
    "    if (P::BM > 64) asm volatile(\"setmaxnreg.dec.sync.aligned.u32 %0;\" :: \"n\"(P::BM > 128 ? 32 : 40));\n"
    "    if (threadIdx.x == P::BM * 2) wgmma_feed<P>(ta, tb, base, full, empty, first, "
    "steps);   // the next kernel starts as blocks end: told earlier, it costs this one 1%\n"
    "    __syncwarp();\n"
    "  } else {\n"
    "    if (P::BM > 64) asm volatile(\"setmaxnreg.inc.sync.aligned.u32 %0;\" :: \"n\"(P::BM > 128 ? 160 : 232));\n"
    "    wgmma_compute<P>(tc, e, base, full, empty, steps, (float *)(panels + (base - at)));\n"
    "  }\n"
    "  if (P::KC > 1) { cluster_sync(); wgmma_join<P>(e, base, rank); cluster_sync(); "
    "}   // no block leaves while another reads its memory\n"
    "}\n";

/* A matrix as TMA sees it: `inner` runs along memory, the batch's dims follow. */
typedef struct panels {
    bool scratch, moved, plain;
    uint32_t node;
    int64_t offset, inner, outer, stride;
    gn_view batch;
    int box_inner, box_outer;
} panels;

/* Sizes to 2^32, strides that are multiples of 16 bytes below 2^40: what the driver would refuse when the plan runs. */
static bool map_is_possible(const tensor_map *m) {
    bool is = m->offset % 16 == 0;
    for (int i = 0; i < 4; i++) is = is && m->dims[i] && m->dims[i] <= 1ull << 32 && m->box[i] && m->box[i] <= 256;
    for (int i = 0; i < 3; i++) is = is && m->strides[i] && m->strides[i] % 16 == 0 && m->strides[i] < 1ull << 40;
    return is;
}

static void emit_map(emit *e, const char *name, gn_dtype d, const panels *panel) {
    uint64_t bytes = types[d].bytes;
    tensor_map m = { .scratch = panel->scratch,
                     .moved = panel->moved,
                     .plain = panel->plain,
                     .node = panel->node,
                     .offset = panel->offset,
                     .dtype = d,
                     .dims = { (uint64_t)panel->inner, (uint64_t)panel->outer, 1, 1 },
                     .strides = { panel->outer > 1 ? (uint64_t)panel->stride * bytes : 16, 16, 16 },
                     .box = { (uint32_t)panel->box_inner, (uint32_t)panel->box_outer, 1, 1 } };
    for (int i = 0; i < panel->batch.rank; i++) {
        int at = panel->batch.rank - 1 - i;
        if (!panel->batch.strides[at]) continue;
        m.dims[2 + i] = (uint64_t)panel->batch.dims[at];
        m.strides[1 + i] = (uint64_t)panel->batch.strides[at] * bytes;
    }
    if (!map_is_possible(&m)) gn_fail(e->fault, GN_INTERNAL, "TMA cannot read a side as it lies");
    if (!map_is_possible(&m) || !grow(&e->maps, e->n_maps, &e->cap_maps, sizeof m)) {
        e->failed = true;
        return;
    }
    e->maps[e->n_maps] = m;
    put(&e->signature, "%sconst __grid_constant__ tmap %s", e->signature.n ? ", " : "", name);
    emit_param(e, (param){ PARAM_MAP, (uint32_t)e->n_maps++, 0 });
}

/* One side of a product: `tile` rows of it at a time, k along memory or (across) the rows. */
static panels panels_of(const emit *e, uint32_t node, bool across, int64_t outer, int64_t k, int64_t outer_stride,
                        int64_t k_stride, const gn_view *batch, int tile) {
    int step = 128 / types[view_of(e, node)->dtype].bytes;
    panels panel = { .moved = e->moved == node + 1,
                     .node = e->moved == node + 1 ? UINT32_MAX : e->layout->lay[node].base,
                     .offset = base_offset(e, node),
                     .inner = across ? outer : k,
                     .outer = across ? k : outer,
                     .stride = across ? k_stride : outer_stride,
                     .batch = *batch,
                     .box_inner = step,
                     .box_outer = across ? step : tile };
    return panel;
}

/* Where the other direction has to run along memory: a transposed copy in scratch memory, from *at on. */
static void emit_transposed(emit *e, uint32_t node, panels *panel, int64_t batches, int tile, size_t *at) {
    enum { GRID_Y = 65535 }; /* the most blocks in y; they take further k in turn */
    int64_t outer = panel->inner, k = panel->outer, pitch = (k + 3) / 4 * 4, tiles = blocks_for(outer, 32),
            n = panel->batch.rank ? batches : 1, down = blocks_for(k, 32);
    put(&e->types,
        "struct @_p { static const i64 OUTER = %lldll, K = %lldll, STRIDE = %lldll, PITCH = %lldll; static const u32 "
        "TILES = %lldu;\n  static M i64 at(u32 z) { return ",
        (long long)outer, (long long)k, (long long)panel->stride, (long long)pitch, (long long)tiles);
    put_offset(&e->types, &panel->batch, "z", is_small(&panel->batch));
    put(&e->types, "; }\n};\n");
    emit_early(e);
    emit_node(e, node, "float", true, "a");
    emit_pointer(e, "float", false, "o", (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)*at });
    emit_await(e);
    put(&e->body, "  transposed<@_p>(a, o);\n");
    emit_launch(e, "transposed_f32", (uint64_t)(tiles * n), (uint64_t)(down < GRID_Y ? down : GRID_Y), 256);
    *panel = (panels){ .scratch = true,
                       .node = UINT32_MAX,
                       .offset = (int64_t)*at,
                       .inner = k,
                       .outer = outer,
                       .stride = pitch,
                       .batch = { .rank = panel->batch.rank > 0, .dims = { n }, .strides = { outer * pitch } },
                       .box_inner = 32,
                       .box_outer = tile };
    *at = gn_size_add(*at,
                      gn_size_align(gn_size_mul(gn_size_mul((size_t)n, (size_t)outer), gn_size_mul((size_t)pitch, 4)),
                                    256));
    if (*at > e->scratch) e->scratch = *at;
}

/* A copy in scratch memory, from *at on, whose rows begin at multiples of 16 bytes. */
static void emit_aligned(emit *e, uint32_t node, panels *panel, int64_t inner_stride, size_t *at) {
    gn_dtype d = view_of(e, node)->dtype;
    int64_t bytes = types[d].bytes, pitch = blocks_for(panel->inner * bytes, 16) * 16 / bytes,
            step = panel->outer * pitch;
    gn_view from = panel->batch, to;
    int r = from.rank;
    from.dtype = d;
    from.rank = r + 2;
    from.dims[r] = panel->outer;
    from.dims[r + 1] = panel->inner;
    from.strides[r] = panel->stride;
    from.strides[r + 1] = inner_stride;
    to = from;
    to.strides[r] = pitch;
    to.strides[r + 1] = 1;
    for (int i = r - 1; i >= 0; i--) {
        if (!from.strides[i] && r <= 2) {
            from.dims[i] = to.dims[i] = 1;
            continue;
        } /* the same for all of this dim */
        to.strides[i] = panel->batch.strides[i] = step;
        step *= from.dims[i];
    }
    if (r > 2) panel->batch = gn_view_collapse(&panel->batch); /* as many dims as a map has */
    emit_early(e);
    emit_copy_views(e, "aligned", to, (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)*at }, from, at_node(e, node, 0));
    panel->scratch = true;
    panel->moved = false;
    panel->node = UINT32_MAX;
    panel->offset = (int64_t)*at;
    panel->stride = pitch;
    *at = gn_size_add(*at, gn_size_align(gn_size_mul((size_t)step, (size_t)bytes), 256));
    if (*at > e->scratch) e->scratch = *at;
}

/* The map's coordinates of batch z. */
static void put_batch(text *types_text, const char *name, const gn_view *batch) {
    for (int i = 0; i < 2; i++) {
        int at = batch->rank - 1 - i;
        put(types_text, "  static M int %s%c(u32 z) { return ", name, i ? 'w' : 'z');
        if (at < 0 || !batch->strides[at]) put(types_text, "0; }\n");
        else if (at == 0 && i == 0) put(types_text, "(int)z; }\n");
        else
            put(types_text, i ? "(int)(z / %lldu); }\n" : "(int)(z %% %lldu); }\n",
                (long long)batch->dims[batch->rank - 1]);
    }
}

/* d += A B for 64 rows and `width` columns; A lies in shared memory, or in 4 registers. */
static void put_wgmma(text *types_text, const char *name, int width, gn_dtype d, bool registers, bool at, bool bt) {
    const char *type = gn_dtype_name(d);
    int n = width / 2;
    if (d == GN_F32) type = "tf32";
    put(types_text,
        "D void %s(float *d, %s, u64 b) {\n  asm volatile(\"wgmma.mma_async.sync.aligned.m64n%dk%d.f32.%s.%s {", name,
        registers ? "const u32 *a" : "u64 a", width, d == GN_F32 ? 8 : 16, type, type);
    for (int i = 0; i < n; i++) put(types_text, "%s%%%d", i ? "," : "", i);
    if (registers)
        put(types_text, "}, {%%%d,%%%d,%%%d,%%%d}, %%%d, 1, 1, 1%s;\"\n    :", n, n + 1, n + 2, n + 3, n + 4,
            d == GN_F32 ? ""
            : bt        ? ", 1"
                        : ", 0");
    else if (d == GN_F32) put(types_text, "}, %%%d, %%%d, 1, 1, 1;\"\n    :", n, n + 1);
    else put(types_text, "}, %%%d, %%%d, 1, 1, 1, %d, %d;\"\n    :", n, n + 1, at, bt);
    for (int i = 0; i < n; i++) put(types_text, "%s\"+f\"(d[%d])", i ? "," : " ", i);
    put(types_text, registers ? " : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n}\n"
                              : " : \"l\"(a), \"l\"(b));\n}\n");
}

/* The same in memory that TMA can read: a copied side is written there first. */
static panels emit_panels(emit *e, uint32_t node, bool across, bool copied, const product *p, int64_t outer,
                          int64_t outer_stride, int64_t k_stride, const gn_view *batch, int tile, size_t *scratch) {
    bool turns = copied && view_of(e, node)->dtype == GN_F32 && outer_stride == 1 && k_stride != 1;
    panels panel = panels_of(e, node, across || turns, outer, p->k, outer_stride, k_stride, batch, tile);
    if (turns) emit_transposed(e, node, &panel, p->batches, tile, scratch);
    else if (copied) emit_aligned(e, node, &panel, across ? outer_stride : k_stride, scratch);
    return panel;
}

/* The map of a result that is stored in boxes. */
static void emit_result_map(emit *e, const epilogue *t, const product *p) {
    emit_map(e, "c", (gn_dtype)view_of(e, t->result)->dtype,
             &(panels){ .node = e->layout->lay[t->result].base,
                        .inner = p->n,
                        .outer = p->m,
                        .stride = p->n,
                        .batch = { .rank = 1, .dims = { p->batches }, .strides = { p->m * p->n } },
                        .box_inner = 64,
                        .box_outer = 64 });
}

static void emit_warpgroups(emit *e, uint32_t node, const product *given, const product_form *f, const epilogue *t) {
    static const char *const bounds[3][3] = {
        { "__launch_bounds__(160, 2)", "__cluster_dims__(2, 1, 1) __launch_bounds__(160, 2)",
          "__cluster_dims__(4, 1, 1) __launch_bounds__(160, 2)" },
        { "__launch_bounds__(384, 1)", "__cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)",
          "__cluster_dims__(4, 1, 1) __launch_bounds__(384, 1)" },
        { "__launch_bounds__(512, 1)", "__cluster_dims__(2, 1, 1) __launch_bounds__(512, 1)",
          "__cluster_dims__(4, 1, 1) __launch_bounds__(512, 1)" }
    };
    product turned = product_turned(given);
    const product *p = f->turn ? &turned : given;
    uint32_t xa = input(e, node, f->turn), xb = input(e, node, !f->turn);
    gn_dtype d = view_of(e, xa)->dtype;
    text *y = &e->types;
    bool bulk = types[view_of(e, t->result)->dtype].bytes == 2 && types[view_of(e, t->result)->dtype].real &&
                given->n % 8 == 0 && f->parts == 1 && !f->turn;
    int h = f->height, w = f->width, buffers = w == 192 ? 1 : 2;
    bool at = f->turn ? f->bt : f->at, bt = f->turn ? f->at : f->bt, registers = d == GN_F32 && at;
    size_t scratch = 0;
    panels side_a = emit_panels(e, xa, at, f->copied[f->turn], p, p->m, p->am, p->ak, &p->a, h, &scratch),
           b = emit_panels(e, xb, bt, f->copied[!f->turn], p, p->n, p->bn, p->bk, &p->b, w, &scratch);
    int64_t total = f->tiles * p->batches, most = emit_processors(e) * (h > 64 ? 1 : 2);
    char name[64];
    if (d == GN_F32 && bt) {
        emit_transposed(e, xb, &b, p->batches, w, &scratch);
        bt = false;
    }
    emit_early(e);
    emit_await(e);
    put_epilogue(e, t, d);
    put_wgmma(y, "@_mma", f->width, d, registers, at, bt);
    put(y,
        "struct @_p { typedef @_e E; typedef float C; static const i64 m = %lldll, n = %lldll, k = %lldll; static "
        "const u32 TOTAL = %lldu, ROWS = %lldu, COLS = %lldu;\n",
        (long long)given->m, (long long)given->n, (long long)p->k, (long long)total, (long long)f->rows,
        (long long)f->columns);
    put(y,
        "  enum { W = %lld, SPLIT = 1, BM = %d, BW = %d, STAGES = %d, KC = %d, AT = %d, BT = %d, REGS = %d, TURN = %d, "
        "BULK = %d, BUFFERS = %d, STEP = %d };\n  static M void mma(float *d, %s a, u64 b) { @_mma(d, a, b); }\n",
        (long long)t->vector, f->height, f->width, f->stages, f->parts, at, bt, registers, f->turn, bulk, buffers,
        128 / types[d].bytes, registers ? "const u32 *" : "u64");
    put_batch(y, "a", &side_a.batch);
    put_batch(y, "b", &b.batch);
    put(y, "};\n");
    emit_map(e, "a", d, &side_a);
    emit_map(e, "b", d, &b);
    if (bulk) emit_result_map(e, t, p);
    put(&e->body, "  wgmma_matmul<@_p>(&a, &b, %s, e);\n", bulk ? "&c" : "0");
    e->bounds = bounds[(h - 1) / 64][f->parts >> 1];
    snprintf(name, sizeof name, "wgmma_%s_%dx%d", d == GN_F32 ? "tf32" : gn_dtype_name(d), f->height, f->width);
    if (f->parts > 1) snprintf(name + strlen(name), 16, "_k%d", f->parts);
    snprintf(name + strlen(name), 16, "_%s%s%s", f->at ? "t" : "n", f->bt ? "n" : "t", e->tail ? "_epilogue" : "");
    emit_launch_shared(e, name, (uint64_t)((f->parts > 1 || total < most ? total : most) * f->parts), 1,
                       h > 64 ? (uint32_t)h * 2 + 128 : 160, f->shared + (bulk ? (uint32_t)(h * 128 * buffers) : 0));
}

/* For sm_90a only. */
static const char sgemm_text[] =
    "// f32 without tensor cores: tiles of BM x BW by 8 warps that do nothing but multiply, 8 x EACH a thread, LANES "
    "threads side by side. They are fed by four warps through STAGES of STEP k\n"
    "// in shared memory, where m and n run along memory: by TMA (FEED_A, FEED_B 0), or element by element from where "
    "m or n (1) or k (2) runs along memory, or none. The 8 warps are GROUPS\n"
    "// that share the k of a stage, KC blocks of a cluster share all k; "
    "sums are joined in this order. FIRST: the launch's first tile; a(batch), b(batch): offsets; "
    "az, aw, bz, bw: the maps' coordinates.\n"
    "D void copy4(u32 to, const float *from) { asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4;\" :: \"r\"(to), "
    "\"l\"(from) : \"memory\"); }\n"
    "D void copy4(u32 to, const float *from, bool in) { asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4, "
    "%2;\" :: \"r\"(to), \"l\"(from), \"r\"(in ? 4 : 0) : \"memory\"); }\n"
    "// N rows and STEP k of one side, `rows` and `ks` of them there, the rest zeros: from p to rows of PITCH elements "
    "for each k. 128 threads.\n"
    "template <int N, int PITCH, int STEP, int FEED, i64 ROW, i64 K> M void sgemm_copy(u32 to, const float *p, i64 "
    "rows, i64 ks) {\n"
    "  enum { R = FEED == 2 ? 16 : N < 128 ? N : 128, Q = 128 / R };\n"
    "  const int t = threadIdx.x & 127, r = FEED == 2 ? t / Q : t % R, k = FEED == 2 ? t % Q : t / R, rows_left = "
    "(rows < N ? (int)rows : N) - r, left = (ks < STEP ? (int)ks : STEP) - k;\n"
    "  p += r * ROW + k * K;\n"
    "  to += (k * PITCH + r) * 4;\n"
    "  if (rows >= N && ks >= STEP) {                                     // few instructions: the warps that multiply "
    "leave few to issue\n"
    "    UNROLL for (int j = 0; j < N; j += R) UNROLL for (int q = 0; q < STEP; "
    "q += Q) copy4(to + (q * PITCH + j) * 4, p + (j * ROW + q * K));\n"
    "  } else if (ks >= STEP) {\n"
    "    _Pragma(\"unroll 1\") for (int j = 0; j < N; j += R) UNROLL for (int q = 0; q < STEP; "
    "q += Q) copy4(to + (q * PITCH + j) * 4, p + (j * ROW + q * K), j < rows_left);\n"
    "  } else {\n"
    "    _Pragma(\"unroll 1\") for (int j = 0; j < N; j += R) UNROLL for (int q = 0; q < STEP; "
    "q += Q) copy4(to + (q * PITCH + j) * 4, p + (j * ROW + q * K), j < rows_left && q < left);\n"
    "  }\n"
    "}\n"
    "D void bar_more(u32 b, u32 bytes) { asm volatile(\"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], "
    "%1;\" :: \"r\"(b), \"r\"(bytes) : \"memory\"); }\n"
    "// One side of a stage; its bytes are added to what the stage waits for.\n"
    "template <class P> M void sgemm_feed_a(const tmap *ta, const float *a, u32 to, u32 bar, u32 z, int row, int k) {\n"
    "  if (P::FEED_A) sgemm_copy<P::BM, P::PA, P::STEP, P::FEED_A, P::AM, P::AK>(to, a + (P::a(z) + row * P::AM + k * "
    "P::AK), P::m - row, P::k - k);\n"
    "  else if (threadIdx.x == 256) { bar_more(bar, P::BM * P::STEP * 4); "
    "box_load(to, ta, row, k, P::az(z), P::aw(z), bar); }\n"
    "}\n"
    "template <class P> M void sgemm_feed_b(const tmap *tb, const float *b, u32 to, u32 bar, u32 z, int col, int k) {\n"
    "  if (P::FEED_B) sgemm_copy<P::BW, P::PB, P::STEP, P::FEED_B, P::BN, P::BK>(to, b + (P::b(z) + col * P::BN + k * "
    "P::BK), P::n - col, P::k - k);\n"
    "  else if (threadIdx.x == 256) { bar_more(bar, P::BW * P::STEP * 4); "
    "box_load(to, tb, col, k, P::bz(z), P::bw(z), bar); }\n"
    "}\n"
    "// A stage is said to be full when its copies have come, LAG steps after they were begun: a greater LAG keeps the "
    "first stage waiting for the issue of more of them.\n"
    "template <class P> M void sgemm_feed(const tmap *ta, const tmap *tb, const float *a, const float *b, u32 base, "
    "u32 full, u32 empty, u32 z, int row, int col, int first, int steps) {\n"
    "  enum { A = P::PA * P::STEP * 4, STAGE = A + P::PB * P::STEP * 4, LAG = P::FEED_A || P::FEED_B ? 2 : 0 };\n"
    "  if (P::EARLY) await_previous();\n"
    "  for (int it = 0; it < steps + LAG; it++) {\n"
    "    const u32 s = (u32)it % P::STAGES, bar = full + 8 * s, to = base + s * STAGE;\n"
    "    const int k = (first + it) * P::STEP;\n"
    "    if (it < steps) {\n"
    "      bar_wait(empty + 8 * s, ((u32)it / P::STAGES & 1) ^ 1);\n"
    "      sgemm_feed_a<P>(ta, a, to, bar, z, row, k);\n"
    "      sgemm_feed_b<P>(tb, b, to + A, bar, z, col, k);\n"
    "    }\n"
    "    if (LAG) copy_commit();\n"
    "    if (it < LAG) continue;\n"
    "    copy_wait<LAG>();\n"
    "    bar_arrive(full + 8 * ((u32)(it - LAG) % P::STAGES));\n"
    "  }\n"
    "}\n"
    "// Four neighbours of the tile, summed over the groups of warps.\n"
    "template <class P> M void sgemm_groups(const float *sums, float *v) {\n"
    "  vload<4>(v, sums);\n"
    "  UNROLL for (int g = 1; g < P::GROUPS; g++) { float more[4]; vload<4>(more, sums + g * (P::BM * P::BW)); "
    "UNROLL for (int j = 0; j < 4; j++) v[j] += more[j]; }\n"
    "}\n"
    "// The sums of the block's groups, then of the cluster's blocks, each of which stores some. What the epilogue "
    "reads is under way before any of it is stored.\n"
    "template <class P> M void sgemm_join(const typename P::E &e, float *sums, u32 base, u32 rank, u32 z, int row, int "
    "col) {\n"
    "  enum { ITEMS = P::BM * P::BW / 4, STEP = 256 * P::KC, AT_ONCE = ITEMS / STEP, U = "
    "AT_ONCE > 4 ? 4 : AT_ONCE ? AT_ONCE : 1, W = P::W < 4 ? P::W : 4 };\n"
    "  if (P::KC > 1 && P::GROUPS > 1) _Pragma(\"unroll 4\") for (int i = threadIdx.x; i < ITEMS; i += 256) { "
    "float v[4]; sgemm_groups<P>(sums + i * 4, v); vstore<4>(sums + i * 4, v); }\n"
    "  if (P::KC > 1) cluster_sync();\n"
    "  for (int first = (int)(rank * 256 + threadIdx.x); first < ITEMS; first += STEP * U) {\n"
    "    typename P::E::template in<W> in[U][4 / W];\n"
    "    float v[U][4];\n"
    "    i64 at[U][4 / W];\n"
    "    UNROLL for (int u = 0; u < U; u++) UNROLL for (int j = 0; j < 4 / W; j++) {\n"
    "      const int i = first + u * STEP, r = row + i / (P::BW / 4), c = col + i % (P::BW / 4) * 4 + j * W;\n"
    "      const bool is = i < ITEMS && r < P::m && c < P::n;\n"
    "      at[u][j] = is ? ((i64)z * P::m + r) * P::n + c : -1;\n"
    "      e.template fetch<W>(is ? at[u][j] : 0, is ? c : 0, in[u][j]);\n"
    "    }\n"
    "    UNROLL for (int u = 0; u < U; u++) {\n"
    "      const int i = first + u * STEP < ITEMS ? first + u * STEP : 0;\n"
    "      if (P::KC == 1) { sgemm_groups<P>(sums + i * 4, v[u]); continue; }\n"
    "      UNROLL for (int p = 0; p < P::KC; p++) { const float4 o = cluster_load4(base + i * 16, p); "
    "v[u][0] = p ? v[u][0] + o.x : o.x; v[u][1] = p ? v[u][1] + o.y : o.y; v[u][2] = p ? v[u][2] + o.z : o.z; "
    "v[u][3] = p ? v[u][3] + o.w : o.w; }\n"
    "    }\n"
    "    UNROLL for (int u = 0; u < U; u++) UNROLL for (int j = 0; j < 4 / W; j++) {\n"
    "      typename P::E::O y[W];\n"
    "      e.template value<W>(in[u][j], v[u] + j * W, y);\n"
    "      if (at[u][j] >= 0) vstore<W>(e.o + at[u][j], y);\n"
    "    }\n"
    "  }\n"
    "  if (P::KC > 1) cluster_sync();                                    // no block leaves while another reads its "
    "memory\n"
    "}\n"
    "template <class P> M void sgemm_fed(const tmap *ta, const tmap *tb, const float *a, const float *b, const "
    "typename P::E &e) {\n"
    "  enum { A = P::PA * P::STEP * 4, STAGE = A + P::PB * P::STEP * 4, DOWN = 256 / P::LANES, ACROSS = "
    "P::LANES * P::EACH, WIDE = P::BW / ACROSS, WARPS = P::BM / DOWN * WIDE, SPAN = P::STEP / P::GROUPS };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  __shared__ __align__(8) u64 bars[2 * P::STAGES];\n"
    "  const u32 base = shared_address(memory), full = shared_address(bars), empty = full + 8 * P::STAGES, rank = "
    "P::KC > 1 ? cluster_rank() : 0;\n"
    "  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, tr = warp % WARPS / WIDE * DOWN + lane / P::LANES * 4, "
    "tc = warp % WIDE * ACROSS + lane % P::LANES * 4;\n"
    "  const int all = (int)((P::k + P::STEP - 1) / P::STEP), span = (all + P::KC - 1) / P::KC, first = (int)rank * "
    "span, steps = all - first < span ? all - first : span;\n"
    "  u32 z;\n"
    "  int row, col;\n"
    "  product_tile<P>(P::FIRST + blockIdx.x / P::KC, &z, &row, &col);\n"
    "  if (P::EARLY) let_next_start();\n"
    "  if (threadIdx.x == 0) {\n"
    "    for (int i = 0; i < P::STAGES; i++) { bar_init(full + 8 * i, P::FEED_A || P::FEED_B ? 128 : 1); "
    "bar_init(empty + 8 * i, P::EVERY ? 256 : 8); }\n"
    "    asm volatile(\"fence.mbarrier_init.release.cluster; fence.proxy.async;\" ::: \"memory\");\n"
    "  }\n"
    "  __syncthreads();\n"
    "  if (t >= 256) {\n"
    "    asm volatile(\"setmaxnreg.dec.sync.aligned.u32 56;\");\n"
    "    if (threadIdx.x == 256 || P::FEED_A || P::FEED_B) sgemm_feed<P>(ta, tb, a, b, base, full, empty, z, row, col, "
    "first, steps);\n"
    "    return;\n"
    "  }\n"
    "  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 224;\");\n"
    "  if (P::EARLY) await_previous();\n"
    "  float acc[8][P::EACH];\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < P::EACH; j++) acc[i][j] = 0.f;\n"
    "  for (int step = 0; step < steps; step++) {\n"
    "    const u32 s = (u32)step % P::STAGES;\n"
    "    const float *sa = (const float *)(memory + s * STAGE) + (warp / WARPS * (SPAN * P::PA) + tr), *sb = (const "
    "float *)(memory + s * STAGE + A) + (warp / WARPS * (SPAN * P::PB) + tc);\n"
    "    bar_wait(full + 8 * s, (u32)step / P::STAGES & 1);\n"
    "    UNROLL for (int k = 0; k < SPAN; k++) {\n"
    "      float x[8], y[P::EACH];\n"
    "      UNROLL for (int i = 0; i < 8; i += 4) vload<4>(x + i, sa + k * P::PA + i * (DOWN / 8));\n"
    "      UNROLL for (int j = 0; j < P::EACH; j += 4) vload<4>(y + j, sb + k * P::PB + j * P::LANES);\n"
    "      UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < P::EACH; "
    "j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);\n"
    "    }\n"
    "    __syncwarp();\n"
    "    if (P::EVERY || lane == 0) bar_arrive(empty + 8 * s);\n"
    "  }\n"
    "  float *sums = (float *)memory, *mine = sums + (warp / WARPS * (P::BM * P::BW) + tr * P::BW + tc);\n"
    "  group_sync<256>(1);                                               // all have read the last stage\n"
    "  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < P::EACH; "
    "j += 4) vstore<4>(mine + ((i & 3) + (i >> 2) * (DOWN / 2)) * P::BW + j * P::LANES, &acc[i][j]);\n"
    "  group_sync<256>(1);\n"
    "  sgemm_join<P>(e, sums, base, rank, z, row, col);\n"
    "}\n";

/* One side of a product as a fed kernel reads it: for TMA, or for copies of elements. */
static panels sgemm_side(emit *e, uint32_t node, bool turned, const product *p, int64_t outer, int64_t outer_stride,
                         int64_t k_stride, const gn_view *batch, const struct sgemm_form *w, int tile,
                         size_t *scratch) {
    panels panel = panels_of(e, node, true, outer, p->k, outer_stride, k_stride, batch, tile);
    if (turned) {
        panel = (panels){ .inner = p->k, .outer = outer, .stride = outer_stride, .batch = *batch };
        emit_transposed(e, node, &panel, p->batches, tile, scratch);
    }
    panel.plain = true;
    panel.box_inner = tile;
    panel.box_outer = w->step;
    return panel;
}

/* `tiles` tiles from the first-th on, in parts of k. */
static void emit_sgemm_part(emit *e, const matmul *x, const product_form *f, const panels *side_a, const panels *side_b,
                            int64_t first, int64_t tiles, int parts) {
    const product *p = &x->p;
    const struct sgemm_form *w = &sgemm_forms[f->form];
    text *y = &e->types;
    int groups = sgemm_groups(w), pa = w->height + (f->feed_a ? 4 : 0), pb = w->width + (f->feed_b ? 4 : 0);
    uint32_t fed = (uint32_t)(w->stages * w->step * (pa + pb) * 4),
             joined = (uint32_t)(groups * w->height * w->width * 4);
    char name[64], bounds[64];
    emit_early(e); /* sgemm_fed waits by itself, behind its preparations */
    put_epilogue(e, &x->t, GN_F32);
    put(y,
        "struct @_p { typedef @_e E; typedef float C; static const i64 m = %lldll, n = %lldll, k = %lldll, AM = "
        "%lldll, AK = %lldll, BK = %lldll, BN = %lldll; static const u32 FIRST = %lldu, ROWS = %lldu, COLS = %lldu;\n",
        (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->am, (long long)p->ak, (long long)p->bk,
        (long long)p->bn, (long long)first, (long long)f->rows, (long long)f->columns);
    put(y,
        "  enum { W = %lld, SPLIT = 1, BM = %d, BW = %d, EACH = %d, LANES = %d, GROUPS = %d, KC = %d, STEP = %d, "
        "STAGES = %d, FEED_A = %d, FEED_B = %d, PA = %d, PB = %d, EARLY = %d, EVERY = %d };\n",
        (long long)x->t.vector, w->height, w->width, w->each, w->lanes, groups, parts, w->step, w->stages, f->feed_a,
        f->feed_b, pa, pb, e->waits, TEST_SWITCH("GENIE_CUDA_EVERY_LANE", "1"));
    put_batch(y, "a", &side_a->batch);
    put_batch(y, "b", &side_b->batch);
    put(y, "  static M i64 a(u32 z) { return ");
    put_offset(y, &p->a, "z", is_small(&p->a));
    put(y, "; }\n  static M i64 b(u32 z) { return ");
    put_offset(y, &p->b, "z", is_small(&p->b));
    put(y, "; }\n};\n");
    if (f->feed_a) emit_node(e, x->xa, "float", true, "a");
    else emit_map(e, "a", GN_F32, side_a);
    if (f->feed_b) emit_node(e, x->xb, "float", true, "b");
    else emit_map(e, "b", GN_F32, side_b);
    put(&e->body, "  sgemm_fed<@_p>(%s, %s, %s, %s, e);\n", f->feed_a ? "0" : "&a", f->feed_b ? "0" : "&b",
        f->feed_a ? "a" : "0", f->feed_b ? "b" : "0");
    snprintf(bounds, sizeof bounds, "__cluster_dims__(%d, 1, 1) __launch_bounds__(384, 1)", parts);
    e->bounds = parts > 1 ? bounds : "__launch_bounds__(384, 1)";
    snprintf(name, sizeof name, "sgemm_fed_%dx%d_k%dx%d_%d%d%s", w->height, w->width, groups, parts, f->feed_a,
             f->feed_b, x->t.loop ? "_epilogue" : "");
    emit_launch_shared(e, name, (uint64_t)(tiles * parts), 1, 384, fed > joined ? fed : joined);
}

static void emit_sgemm(emit *e, const matmul *x, const product_form *f) {
    const product *p = &x->p;
    const struct sgemm_form *w = &sgemm_forms[f->form];
    int64_t tiles = f->tiles * p->batches, whole = f->rest ? tiles - tiles % emit_processors(e) : tiles;
    size_t scratch = 0;
    panels side_a = sgemm_side(e, x->xa, f->at, p, p->m, p->am, p->ak, &p->a, w, w->height, &scratch),
           b = sgemm_side(e, x->xb, f->bt, p, p->n, p->bn, p->bk, &p->b, w, w->width, &scratch);
    emit_sgemm_part(e, x, f, &side_a, &b, 0, whole, f->parts);
    if (f->rest) emit_sgemm_part(e, x, f, &side_a, &b, whole, tiles - whole, f->rest);
}

/* Where one side of a product lies; turned: a copy that runs along its rows, in scratch memory. */
static param product_side(emit *e, uint32_t node, bool turned, const product *p, int64_t outer, int64_t *outer_stride,
                          int64_t *k_stride, gn_view *batch, size_t *scratch) {
    panels panel = { .inner = p->k, .outer = outer, .stride = *outer_stride, .batch = *batch };
    if (!turned) return at_node(e, node, 0);
    emit_transposed(e, node, &panel, p->batches, 0, scratch);
    *outer_stride = 1;
    *k_stride = panel.stride;
    *batch = panel.batch;
    return (param){ PARAM_PLAN, REGION_SCRATCH, panel.offset };
}

/* The sums of the parts of k, in scratch memory from `at` on. */
static void emit_product_sum(emit *e, const product *p, const product_form *f, const epilogue *t, gn_dtype d,
                             size_t at) {
    /* of what is computed in */
    size_t bytes = gn_size_add(at, gn_size_mul(gn_size_mul((size_t)f->splits, (size_t)(p->m * p->n)),
                                               types[d].bytes == 8 || d == GN_U32 ? 8 : 4));
    if (bytes > e->scratch) e->scratch = bytes;
    emit_early(e);
    emit_await(e);
    put_epilogue(e, t, d);
    put_product_type(e, p, f, d, t->vector);
    emit_pointer(e, types[d].compute, true, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)at });
    put(&e->body, "  product_sum<@_p>(parts, e);\n");
    emit_launch(e, t->loop ? "product_sum_epilogue" : "product_sum",
                (uint64_t)blocks_for(p->m * p->n, 256 * (t->vector < 4 ? t->vector : 4)), 1, 256);
}

static void emit_own_product(emit *e, const matmul *x, product_form f) {
    uint32_t node = x->t.node, xa = x->xa, xb = x->xb;
    gn_dtype d = x->d;
    product p = x->p;
    epilogue t = x->t;
    const char *type = types[d].name;
    bool few = f.body[0] == 'r', cut = f.splits > 1;
    char name[64];
    size_t scratch = 0;
    if (f.stages) {
        emit_warpgroups(e, node, &p, &f, &t);
        return;
    }
    if (strcmp(f.body, "sgemm_fed") == 0) {
        emit_sgemm(e, x, &f);
        return;
    }
    bool copied = f.body[0] == 's'; /* sides that lie the other way are transposed first */
    param at = product_side(e, xa, copied && f.at, &p, p.m, &p.am, &p.ak, &p.a, &scratch),
          b = product_side(e, xb, copied && f.bt, &p, p.n, &p.bn, &p.bk, &p.b, &scratch);
    if (f.step) emit_early(e);
    emit_await(e);
    if (!cut) put_epilogue(e, &t, d);
    /* sums of parts are stored as they are */
    else
        put(&e->types, "struct @_e { template <int V> M void store(i64, i64, const %s *) const {} };\n",
            types[d].compute);
    if (cut) put(&e->body, "  const @_e e = {};\n");
    put_product_type(e, &p, &f, d, t.vector);
    emit_pointer(e, type, true, "a", at);
    emit_pointer(e, type, true, "b", b);
    if (cut) emit_pointer(e, types[d].compute, false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)scratch });
    put(&e->body, few ? "  %s<@_p>(a, b, e);\n" : "  %s<@_p>(a, b, e, %s);\n", f.body, cut ? "parts" : "0");
    int n = snprintf(name, sizeof name, "%s_%s", f.body, d == GN_F32 && f.step ? "tf32" : gn_dtype_name(d));
    if (f.step) n += snprintf(name + n, sizeof name - (size_t)n, "_%dx%d", f.height, f.width);
    snprintf(name + n, sizeof name - (size_t)n, "%s", e->tail && !cut ? "_epilogue" : "");
    /* two blocks a processor hide each other's waits */
    if (f.step || (f.body[0] == 's' && f.shared && f.width == 128)) e->bounds = "__launch_bounds__(256, 2)";
    emit_launch_shared(e, name, (uint64_t)(f.tiles * p.batches), (uint64_t)f.splits, 256, f.shared);
    if (cut) emit_product_sum(e, &p, &f, &t, d, scratch);
}

/* ---- two to eight rows, on tensor cores ---- */

static const char few_text[] =
    "// ---- two to eight rows by a matrix: each weight is read once, as a row of the left side of the tensor cores' "
    "instruction; the rows are the right side's columns ----\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "template <int WORDS> M void stream_words(u32 *to, const void *p) {\n"
    "#if defined(GN_HOST)\n"
    "  UNROLL for (int i = 0; i < WORDS; i++) to[i] = ((const u32 *)p)[i];\n"
    "#else\n"
    "  if (WORDS == 1) asm volatile(\"ld.global.L1::no_allocate.u32 %0, [%1];\" : \"=r\"(to[0]) : \"l\"(p));\n"
    "  else if (WORDS == 2) asm volatile(\"ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];\" : \"=r\"(to[0]), "
    "\"=r\"(to[1]) : \"l\"(p));\n"
    "  else { const uint4 w = stream(p); UNROLL for (int i = 0; i < 4; i++) to[i] = word_of(w, i); }\n"
    "#endif\n"
    "}\n"
    "// The halves of two words, lower or upper, as neighbours.\n"
    "D u32 paired(u32 x, u32 y, int upper) { return upper ? x >> 16 | (y & 0xffff0000u) : (x & 0xffffu) | y << 16; }\n"
    "// Which of a tile's columns element q of the sums of instruction j is; g: lane / 4\n"
    "template <class P> M int few_column(int g, int j, int q) { return P::DOT ? j * 16 + (q >> 1) * 8 + g : g * 2 * "
    "P::TILES + j + (q >> 1) * P::TILES; }\n"
    "// A lane's weights of 32 k from k0: where columns are contiguous 8 k of two columns to each instruction, else "
    "2 TILES columns of 8 k.\n"
    "template <class P> M void few_load(u32 *w, const typename P::T *b, i64 stride, int n, int first, int k0) {\n"
    "  enum { TILES = P::TILES };\n"
    "  const int g = (threadIdx.x & 31) / 4, k = k0 + (threadIdx.x & 3) * 8;\n"
    "  UNROLL for (int i = 0; i < TILES * 8; i++) w[i] = 0;\n"
    "  if (!P::WIDE) {                                                     // any strides\n"
    "    UNROLL for (int i = 0; i < TILES * 16; i++) {\n"
    "      const int col = first + i / 8 * 8 + g, l = k + i % 8;\n"
    "      if (l < P::k && col < n) w[i / 2] |= (u32)((const u16 *)b)[l * P::BK + col * P::BN] << i % 2 * 16;\n"
    "    }\n"
    "  } else if (P::DOT) {\n"
    "    UNROLL for (int i = 0; i < TILES * 2; i++)\n"
    "      if (k < P::k && first + i * 8 + g < n) stream_words<4>(w + i * 4, b + (i64)(first + i * 8 + g) * stride + "
    "k);\n"
    "  } else if (first + g * 2 * TILES < n) {\n"
    "    UNROLL for (int i = 0; i < 8; i++)\n"
    "      if (k + i < P::k) stream_words<TILES>(w + i * TILES, b + (i64)(k + i) * stride + first + g * 2 * TILES);\n"
    "  }\n"
    "}\n"
    "// 8 k of the lane's row, of which there may be none.\n"
    "template <class P> M uint4 few_row(const typename P::T *a, int k0) {\n"
    "  const int row = (threadIdx.x & 31) / 4, k = k0 + (threadIdx.x & 3) * 8;\n"
    "  uint4 x = zeros();\n"
    "  if (row >= P::m || k >= P::k) return x;\n"
    "  const typename P::T *from = a + row * P::AM + k * P::AK;\n"
    "  if (P::WITHIN) return *(const uint4 *)from;\n"
    "  if (P::WIDE_X) return cached(from);\n"
    "  u32 w[4];\n"
    "  UNROLL for (int i = 0; i < 4; i++) w[i] = 0;\n"
    "  UNROLL for (int i = 0; i < 8; i++) if (k + i < P::k) w[i / 2] |= (u32)*(const u16 *)(from + i * P::AK) << i % "
    "2 * 16;\n"
    "  return four_words(w);\n"
    "}\n"
    "// 32 k of TILES times 16 columns.\n"
    "template <class P> M void few_take(float (*acc)[4], const u32 *w, const uint4 &x) {\n"
    "  enum { TILES = P::TILES };\n"
    "  UNROLL for (int h = 0; h < 2; h++) UNROLL for (int j = 0; j < TILES; j++) {\n"
    "    u32 r[4];\n"
    "    UNROLL for (int q = 0; q < 4; q++) {                              // columns by q % 2, pairs of k by q / 2\n"
    "      const int c = j + q % 2 * TILES, at = (4 * h + q / 2 * 2) * TILES + c / 2;\n"
    "      r[q] = P::DOT ? w[j * 8 + q % 2 * 4 + 2 * h + q / 2] : paired(w[at], w[at + TILES], c & 1);\n"
    "    }\n"
    "    mma(acc[j], r, word_of(x, 2 * h), word_of(x, 2 * h + 1), typename P::T());\n"
    "  }\n"
    "}\n"
    "// A product's epilogue as an ending.\n"
    "template <class E> struct few_end {\n"
    "  E e;\n"
    "  int col;\n"
    "  M void early(int c) { col = c; }\n"
    "  M void load(int) {}\n"
    "  M void end(int i, float y, float) const { e.template store<1>(i, col, &y); }\n"
    "};\n"
    "// m rows (2 to 8) by B (k,n): 16 TILES columns to a block, or to the S blocks of a cluster that share k between "
    "them. k is summed in steps of 32 by 8 * S * G warps, of which G are in one: their sums are joined as halves.\n"
    "// P: T, m, k, TILES, S, G, MATS, DOT (columns contiguous), WIDE, WIDE_X (16 bytes at once), WITHIN (N computes "
    "the rows), EARLY, NEXT, ROW_BYTES, strides AM AK BK BN\n"
    "// E: as for one row; element i of column c: early(c), load(i), end(i, v, v of the second matrix)\n"
    "template <class P, class N, class E> M void few_times(const typename P::T *a, const N &norm, const "
    "vector_of<typename P::T> &m, const E &e) {\n"
    "  enum { TILES = P::TILES, MATS = P::MATS, S = P::S, G = P::G, SHARE = TILES * 16 / S, ALL = SHARE * P::m, OUT = "
    "(ALL + 255) / 256, W = 8 * S * G, STEPS = (P::k + 31) / 32, ITEMS = (STEPS + W - 1) / W * G, MOST = 8 / (TILES * "
    "MATS), DEPTH = ITEMS < MOST ? G : MOST > 1 ? MOST : 1, TURN = DEPTH > G ? DEPTH : G };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  float *part = (float *)(memory + P::ROW_BYTES);                      // MATS, 8 S warps, m, SHARE\n"
    "  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = m.block % S, first = m.block / S * (TILES * "
    "16), u = (warp * S + rank) * 32;\n"
    "  float acc[MATS][G][TILES][4];\n"
    "  u32 w[DEPTH][MATS][TILES * 8];\n"
    "  uint4 x[DEPTH];\n"
    "  E own[OUT];\n"
    "#define FEW_K(item) (((item) / G * W + (item) % G * 8 * S) * 32 + u)\n"
    "  if (P::NEXT == 0) let_next_start();\n"
    "  if (S > 1) cluster_arrive();\n"
    "  if (!P::EARLY) await_previous();\n"
    "  UNROLL for (int d = 0; d < DEPTH; d++) UNROLL for (int q = 0; q < MATS; q++) few_load<P>(w[d][q], m.b[q], "
    "m.stride, m.n, first, FEW_K(d));\n"
    "  UNROLL for (int o = 0; o < OUT; o++) {\n"
    "    const int at = (int)threadIdx.x + o * 256, col = first + rank * SHARE + at % SHARE;\n"
    "    own[o] = e;\n"
    "    if (at < ALL && col < m.n) own[o].early(col);\n"
    "  }\n"
    "  if (S > 1) cluster_wait();                                          // the cluster's blocks have begun\n"
    "  if (P::NEXT == 1) let_next_start();\n"
    "  await_previous();\n"
    "  if (P::NEXT >= 2) let_next_start();\n"
    "  if (P::WITHIN) { norm.run((typename P::T *)memory, 0, P::m, blockIdx.x == 0); __syncthreads(); a = (const "
    "typename P::T *)memory; }\n"
    "  UNROLL for (int d = 0; d < DEPTH; d++) x[d] = few_row<P>(a, FEW_K(d));\n"
    "  UNROLL for (int o = 0; o < OUT; o++) {\n"
    "    const int at = (int)threadIdx.x + o * 256, col = first + rank * SHARE + at % SHARE;\n"
    "    if (at < ALL && col < m.n) own[o].load(at / SHARE * m.n + col);\n"
    "  }\n"
    "  UNROLL for (int q = 0; q < MATS; q++) UNROLL for (int g = 0; g < G; g++) UNROLL for (int j = 0; j < TILES; "
    "j++) UNROLL for (int i = 0; i < 4; i++) acc[q][g][j][i] = 0.f;\n"
    "  for (int from = 0; from < ITEMS; from += TURN) UNROLL for (int d = 0; d < TURN; d++) {\n"
    "    enum { D_ = DEPTH };\n"
    "    const int next = from + d + D_;\n"
    "    UNROLL for (int q = 0; q < MATS; q++) few_take<P>(acc[q][d % G], w[d % D_][q], x[d % D_]);\n"
    "    if (next >= ITEMS) continue;\n"
    "    UNROLL for (int q = 0; q < MATS; q++) few_load<P>(w[d % D_][q], m.b[q], m.stride, m.n, first, FEW_K(next));\n"
    "    x[d % D_] = few_row<P>(a, FEW_K(next));\n"
    "  }\n"
    "#undef FEW_K\n"
    "  if (P::NEXT == 3) let_next_start();\n"
    "  UNROLL for (int q = 0; q < MATS; q++) UNROLL for (int j = 0; j < TILES; j++) UNROLL for (int i = 0; i < 4; i++) "
    "{\n"
    "    const int row = lane % 4 * 2 + i % 2, c = few_column<P>(lane / 4, j, i);\n"
    "    UNROLL for (int h = G / 2; h > 0; h /= 2) UNROLL for (int g = 0; g < h; g++) acc[q][g][j][i] += acc[q][g + "
    "h][j][i];\n"
    "    if (row >= P::m) continue;\n"
    "    float *to = part + ((q * 8 * S + rank * 8 + warp) * P::m + row) * SHARE + c % SHARE;\n"
    "    if (S > 1) put_block(to, acc[q][0][j][i], c / SHARE); else *to = acc[q][0][j][i];\n"
    "  }\n"
    "  if (S > 1) {\n"
    "    cluster_arrive();\n"
    "    cluster_wait();\n"
    "  } else __syncthreads();\n"
    "  UNROLL for (int o = 0; o < OUT; o++) {\n"
    "    const int at = (int)threadIdx.x + o * 256, col = first + rank * SHARE + at % SHARE;\n"
    "    float y[2] = { 0.f, 0.f };\n"
    "    if (at >= ALL || col >= m.n) continue;\n"
    "    UNROLL for (int q = 0; q < MATS; q++) {\n"
    "      float sum[8 * S];\n"
    "      UNROLL for (int p = 0; p < 8 * S; p++) sum[p] = part[(q * 8 * S + p % S * 8 + p / S) * ALL + at];\n"
    "      y[q] = halves<8 * S>::sum(sum);\n"
    "    }\n"
    "    own[o].end(at / SHARE * m.n + col, y[0], y[1]);\n"
    "  }\n"
    "}\n"
    "#endif\n";

/* When the next kernel may start: 0 at once, 1 when this one's weights are on their way, 2 when what it waits for has
   ended, 3 when it has read all. */
enum { NEXT_STARTS = 2 };

/* How few rows are multiplied: instructions side by side, blocks that share k, sums that a warp keeps apart. dot: the
   columns of B are contiguous; wide: B, wide_x: the rows are read 16 bytes at a time. */
typedef struct few_form {
    int64_t tiles;
    uint32_t splits, groups;
    bool dot, wide, wide_x;
} few_form;

/* By the shape of a product of dense matrices alone. */
static bool is_of_few_rows(const emit *e, const product *p, gn_dtype d) {
    return (d == GN_F16 || d == GN_BF16) && emit_has_tensor_cores(e) && !e->invariant && p->batches == 1 && p->m > 1 &&
           p->m <= FEW_ROWS && p->n > 0 && p->n <= 1 << 27 && p->k > 0 && p->k <= 1 << 27;
}

/* Warps that sum k between them: the order of a sum is by this alone. */
static uint32_t few_warps(int64_t k) { return k >= 512 ? 32 : k >= 256 ? 16 : 8; }

/* all: columns of all products of the kernel; mats: how many of them meet in an ending. */
static void few_choose(const emit *e, const product *p, int64_t all, int mats, int64_t oa, int64_t ob, few_form *f) {
    uint32_t most = few_warps(p->k) / 8;
    int64_t blocks = emit_processors(e);
    bool across = p->bk == 1 && p->bn != 1;
    f->wide_x = p->ak == 1 && p->am % 8 == 0 && p->k % 8 == 0 && oa % 16 == 0;
    f->wide =
        ob % 16 == 0 && (across ? p->bn % 8 == 0 && p->k % 8 == 0 : p->bn == 1 && p->bk % 8 == 0 && p->n % 8 == 0);
    f->dot = across || !f->wide;
    f->tiles = 2;
    if ((f->dot || !emit_has_clusters(e)) && blocks_for(all / mats, 32) < blocks) f->tiles = 1;
    int64_t grid = blocks_for(all / mats, 16 * f->tiles);
    for (f->splits = 1; emit_has_clusters(e) && f->splits < most && grid * f->splits * 2 <= 2 * blocks;) f->splits *= 2;
    f->groups = most / f->splits;
}

/* The sums of all warps, beside the rows' bytes in a block's shared memory. */
static uint32_t few_shared(const few_form *f, const product *p, int mats, uint32_t row) {
    return row + (uint32_t)(mats * 8 * f->tiles * 16 * p->m * 4);
}

static void put_few_type(emit *e, const product *p, const few_form *f, gn_dtype d, int mats, bool early, uint32_t row) {
    put(&e->types,
        "struct @_p { typedef %s T; enum { m = %lld, k = %lld, TILES = %lld, S = %u, G = %u, MATS = %d, DOT = %d, WIDE "
        "= %d, WIDE_X = %d, WITHIN = %d, EARLY = %d, NEXT = %d, ROW_BYTES = %u };\n"
        "  static const i64 AM = %lldll, AK = %lldll, BK = %lldll, BN = %lldll;\n};\n",
        types[d].name, (long long)p->m, (long long)p->k, (long long)f->tiles, f->splits, f->groups, mats, f->dot,
        f->wide, f->wide_x, row != 0, early, NEXT_STARTS, row, (long long)(row ? p->k : p->am),
        (long long)(row ? 1 : p->ak), (long long)p->bk, (long long)p->bn);
}

/* One that is fused with nothing but its epilogue, of whatever strides. */
static void emit_few(emit *e, const matmul *x) {
    const product *p = &x->p;
    char name[64];
    few_form f;
    few_choose(e, p, p->n, 1, base_offset(e, x->xa), base_offset(e, x->xb), &f);
    emit_early(e);
    emit_await(e);
    put_epilogue(e, &x->t, x->d);
    put_few_type(e, p, &f, x->d, 1, true, 0);
    emit_pointer(e, types[x->d].name, true, "a", at_node(e, x->xa, 0));
    emit_pointer(e, types[x->d].name, true, "b", at_node(e, x->xb, 0));
    put(&e->body,
        "  const few_end<@_e> end = { e, 0 };\n  const vector_of<@_p::T> m = { { b, 0 }, %lld, %lldll, "
        "(int)blockIdx.x, (int)gridDim.x };\n  few_times<@_p>(a, vector_as_it_lies(), m, end);\n",
        (long long)p->n, (long long)(f.dot ? p->bn : p->bk));
    e->cluster = (uint8_t)f.splits;
    snprintf(name, sizeof name, "few_%s_%s%s", f.dot ? "dot" : "times", gn_dtype_name(x->d),
             e->tail ? "_epilogue" : "");
    emit_launch_shared(e, name, (uint64_t)(blocks_for(p->n, 16 * f.tiles) * f.splits), 1, 256, few_shared(&f, p, 1, 0));
}

/* ---- products by cuBLASLt ---- */

/* Descriptions of a product for cuBLASLt and what it proposes; of one plan. */
struct blas_product {
    gn__cu_handle product, a, b, out;
    uint64_t algorithm[8], mark;
    size_t workspace;
    bool has_bias;
};

/* The device's handle of cuBLASLt; NULL: there is none. Its context is current. */
static gn__cu_handle emit_blas_handle(const emit *e) {
    struct device *gpu = e->device;
    if (atomic_load(&gpu->blas_failed)) return NULL;
    pthread_mutex_lock(&gpu->lock);
    if (!gpu->blas_tried) {
        gpu->blas_tried = true;
        if (!load_blas() || blas.cublasLtCreate(&gpu->blas) != 0) gpu->blas = NULL;
    }
    pthread_mutex_unlock(&gpu->lock);
    return gpu->blas;
}

static void blas_free(blas_product *q) {
    if (!q) return;
    if (q->product) blas.cublasLtMatmulDescDestroy(q->product);
    gn__cu_handle layouts[3] = { q->a, q->b, q->out };
    for (int i = 0; i < 3; i++)
        if (layouts[i]) blas.cublasLtMatrixLayoutDestroy(layouts[i]);
    gn_free(q);
}

/* Of height by width, columns one after another, the next of them `stride` elements on. */
static bool blas_layout(gn__cu_handle *out, gn_dtype d, int64_t height, int64_t width, int64_t stride, int64_t batches,
                        int64_t batch_stride) {
    int32_t count = (int32_t)batches;
    if (stride < (height > 1 ? height : 1) || batches > INT32_MAX) return false;
    return blas.cublasLtMatrixLayoutCreate(out,
                                           d == GN_F32   ? 0
                                           : d == GN_F16 ? 2
                                                         : 14,
                                           (uint64_t)height, (uint64_t)width, stride) == 0 &&
           (batches == 1 || (blas.cublasLtMatrixLayoutSetAttribute(*out, 5, &count, sizeof count) == 0 &&
                             blas.cublasLtMatrixLayoutSetAttribute(*out, 6, &batch_stride, sizeof batch_stride) == 0));
}

/* One side of a product: `outer` rows (of A) or columns (of B), k apart by k_stride. *out_turned: k runs along
   memory. */
static bool blas_side(gn__cu_handle *out, gn_dtype d, int64_t outer, int64_t k, int64_t outer_stride, int64_t k_stride,
                      const product *p, const gn_view *batch, int32_t *out_turned) {
    int64_t step = batch->rank ? batch->strides[0] : 0;
    *out_turned = k_stride == 1 && outer_stride != 1;
    if (batch->rank > 1 || step < 0 || (!*out_turned && outer_stride != 1)) return false;
    return *out_turned ? blas_layout(out, d, k, outer, outer_stride, p->batches, step)
                       : blas_layout(out, d, outer, k, k_stride, p->batches, step);
}

/* The largest power of two, to 64, that an offset is a multiple of; values begin at multiples of 64. */
static uint32_t alignment_of(int64_t offset) { return offset & 63 ? (uint32_t)(offset & -offset & 63) : 64; }

/* What an algorithm is: its id, tile, parts of k, how they are joined, order of tiles, an option, stages, inner shape,
   cluster. Its bytes are no mark: equal ones differ in some. */
static uint64_t algorithm_mark(const uint64_t *algorithm) {
    uint32_t words[9] = { 0 };
    size_t written;
    for (int i = 0; i < 9; i++) /* older releases do not know the last ones */
        if (blas.cublasLtMatmulAlgoConfigGetAttribute(algorithm, i, &words[i], i < 7 ? 4 : 2, &written) != 0)
            words[i] = 0xffffffffu;
    return hash_bytes(5, words, sizeof words);
}

/* The algorithm with the mark among those that cuBLASLt proposes, with mark 0 the index-th. Sums of parts of k are
   joined in the workspace alone, in a fixed order: equal runs give equal bits. */
static bool blas_propose(const emit *e, blas_product *q, int64_t offset_a, int64_t offset_b, const choice *c) {
    enum { MOST = 4, FIXED_ORDER = 2 };
    gn__cu_handle preference = NULL;
    blas_found found[MOST];
    uint64_t most = BLAS_WORKSPACE;
    uint32_t order = FIXED_ORDER, aligned[4] = { alignment_of(offset_b), alignment_of(offset_a), 64, 64 };
    int n = 0;
    memset(found, 0, sizeof found);
    if (blas.cublasLtMatmulPreferenceCreate(&preference) != 0) return false;
    bool ok = blas.cublasLtMatmulPreferenceSetAttribute(preference, 1, &most, sizeof most) == 0 &&
              blas.cublasLtMatmulPreferenceSetAttribute(preference, 3, &order, sizeof order) == 0;
    for (int i = 0; i < 4 && ok; i++)
        ok = blas.cublasLtMatmulPreferenceSetAttribute(preference, 5 + i, &aligned[i], sizeof aligned[i]) == 0;
    ok = ok && blas.cublasLtMatmulAlgoGetHeuristic(emit_blas_handle(e), q->product, q->b, q->a, q->out, q->out,
                                                   preference, MOST, found, &n) == 0;
    blas.cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < n && i < MOST && ok; i++) {
        q->mark = algorithm_mark(found[i].algorithm);
        if (found[i].state != 0 || found[i].workspace > BLAS_WORKSPACE ||
            (c->mark ? q->mark != c->mark : (uint32_t)i != c->index))
            continue;
        memcpy(q->algorithm, found[i].algorithm, sizeof q->algorithm);
        q->workspace = found[i].workspace;
        return true;
    }
    return false;
}

/* C = A B row by row is, column by column, the transpose: B's transpose times A's. NULL when it cannot be said, or
   cuBLASLt knows no way. */
static blas_product *blas_describe(const emit *e, const product *p, gn_dtype d, gn_dtype to, uint32_t xa, uint32_t xb,
                                   bool has_bias, const choice *c) {
    int32_t turned_a = 0, turned_b = 0, bias = 4;
    blas_product *q = emit_blas_handle(e) ? (blas_product *)alloc_zero(sizeof *q) : NULL;
    if (!q) return NULL;
    q->has_bias = has_bias;
    bool ok = blas_side(&q->a, d, p->m, p->k, p->am, p->ak, p, &p->a, &turned_a) &&
              blas_side(&q->b, d, p->n, p->k, p->bn, p->bk, p, &p->b, &turned_b) &&
              blas_layout(&q->out, to, p->n, p->m, p->n, p->batches, p->m * p->n);
    turned_a = !turned_a; /* rows of A are columns there: turned when k does not run along memory */
    ok = ok && blas.cublasLtMatmulDescCreate(&q->product, d == GN_F32 && env_is("GENIE_TF32", "1") ? 77 : 68, 0) == 0;
    ok = ok && blas.cublasLtMatmulDescSetAttribute(q->product, 3, &turned_b, sizeof turned_b) == 0 &&
         blas.cublasLtMatmulDescSetAttribute(q->product, 4, &turned_a, sizeof turned_a) == 0;
    ok = ok && (!has_bias || blas.cublasLtMatmulDescSetAttribute(q->product, 7, &bias, sizeof bias) == 0);
    if (ok && blas_propose(e, q, base_offset(e, xa), base_offset(e, xb), c)) return q;
    blas_free(q);
    return NULL;
}

/* A product by cuBLASLt. Its bias is as ours; activations are not (what becomes of NaN, how near tanh is), so that
   loops read its f32 sums from scratch memory in a kernel of ours. False: it cannot compute this, or not by the
   algorithm that was chosen. */
static bool emit_blas(emit *e, const matmul *x, const choice *c) {
    const product *p = &x->p;
    uint32_t bias = bias_of(e, x->t.node);
    bool takes_bias = x->t.has_bias && !x->t.loop && view_of(e, bias)->strides[0] == 1 &&
                      alignment_of(base_offset(e, bias)) >= 16,
         whole = !x->t.loop && (takes_bias || !x->t.has_bias);
    blas_product *q = blas_describe(e, p, x->d, whole ? x->d : GN_F32, x->xa, x->xb, takes_bias, c);
    if (!q) return false;
    size_t sums = (q->workspace + 255) & ~(size_t)255;
    e->mark = q->mark;
    if (sums > e->scratch) e->scratch = sums;
    emit_param(e, at_node(e, x->xa, 0));
    emit_param(e, at_node(e, x->xb, 0));
    emit_param(e, whole ? at_node(e, x->t.node, 0) : (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)sums });
    emit_param(e, (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    if (takes_bias) emit_param(e, at_node(e, bias, 0));
    if (!grow(&e->launches, e->n_launches, &e->cap_launches, sizeof *e->launches)) {
        blas_free(q);
        e->failed = true;
        return true;
    }
    e->launches[e->n_launches++] =
        (launch){ .param = (uint32_t)e->first_param, .n_params = (uint32_t)(e->n_params - e->first_param), .blas = q };
    e->first_param = e->n_params;
    if (whole) return true;
    product all = *p;
    all.m *= all.batches;
    e->when = LAUNCH_AFTER_BLAS;
    emit_product_sum(e, &all,
                     &(product_form){ .vector = 1, .tx = 1, .height = 64, .width = 64, .splits = 1, .span = p->k },
                     &x->t, x->d, sums);
    e->when = LAUNCH_ALWAYS;
    return true;
}

/* ---- the choice among own kernels and cuBLASLt ---- */

static matmul matmul_of(const emit *e, uint32_t node) {
    matmul x = { .xa = input(e, node, 0), .xb = input(e, node, 1) };
    x.d = view_of(e, x.xa)->dtype;
    const gn_view *a = view_of(e, x.xa), *b = view_of(e, x.xb), whole = gn_view_dense(a->dtype, a->rank, a->dims);
    x.p = product_of(*a, *b, view_of(e, node));
    x.shape = product_of(whole, gn_view_dense(b->dtype, b->rank, b->dims), view_of(e, node));
    x.moves = x.p.m != x.shape.m;
    if (x.moves) x.p = product_of(whole, *b, view_of(e, node));
    x.t = (epilogue){ .node = node,
                      .result = e->tail ? e->tail->node : node,
                      .loop = e->tail,
                      .has_bias = bias_of(e, node) != GN_NO_NODE };
    x.t.vector = epilogue_vector(e, &x.t, x.p.n);
    return x;
}

/* What $GENIE_CUDA_RANK says, 0 to 99; of the object that is shipped always 0. */
static int asked_rank(void) {
#ifdef GENIE_TEST
    const char *s = getenv("GENIE_CUDA_RANK");
    int n = s ? atoi(s) : 0;
    return n < 0 || n > 99 ? 0 : n;
#else
    return 0;
#endif
}
static bool all_by_blas(void) { return env_is("GENIE_CUDA_TUNE", "blas"); }

static bool is_plain(gn_dtype d) { return d == GN_F32 && !env_is("GENIE_TF32", "1"); }

static bool emit_measures(const emit *e, gn_dtype d, double operations) {
    const choices *table = &e->device->choices;
    if (e->invariant) return false;
    if (all_by_blas()) return !e->device->compile_only;
    if (asked_rank()) return false;
    return table->id && !env_is("GENIE_CUDA_TUNE", "0") && operations >= table->least[is_plain(d)];
}

static bool emit_choice(const emit *e, const product_key *key, choice *out) {
    struct device *gpu = e->device;
    pthread_mutex_lock(&gpu->lock);
    const stored_choice *stored = choices_find(&gpu->choices, key);
    if (stored) *out = stored->choice;
    pthread_mutex_unlock(&gpu->lock);
    if (stored && out->kind == CHOICE_BLAS && atomic_load(&gpu->blas_failed)) *out = (choice){ CHOICE_MODEL, 0, 0 };
    return stored != NULL;
}

/* Worth measuring, and expressible: both sides have rows or columns along memory. */
static bool matmul_is_measured(const emit *e, const matmul *x) {
    const product *p = &x->p;
    if (x->d != GN_F32 && x->d != GN_F16 && x->d != GN_BF16) return false;
    if (x->moves || p->m <= 8 || p->n <= 8 || p->k <= 8 || p->batches < 1 || (p->am != 1 && p->ak != 1) ||
        (p->bn != 1 && p->bk != 1))
        return false;
    return emit_measures(e, x->d, 2. * (double)p->m * (double)p->n * (double)p->k * (double)p->batches);
}

static uint64_t hash_view(uint64_t h, const gn_view *v) {
    h = hash_bytes(h, v->dims, (size_t)v->rank * sizeof *v->dims);
    return hash_bytes(h, v->strides, (size_t)v->rank * sizeof *v->strides);
}

static product_key key_of(const emit *e, const matmul *x) {
    const product *p = &x->p;
    bool tf32 = env_is("GENIE_TF32", "1");
    uint32_t words[12] = { x->d,
                           view_of(e, x->t.result)->dtype,
                           alignment_of(base_offset(e, x->xa)),
                           alignment_of(base_offset(e, x->xb)),
                           x->t.has_bias,
                           x->t.loop ? x->t.loop->n_instrs : 0,
                           x->t.loop ? x->t.loop->n_loads : 0,
                           emit_has_tensor_cores(e),
                           emit_has_warpgroups(e),
                           emit_has_clusters(e),
                           tf32,
                           (uint32_t)x->t.vector };
    int64_t strides[4] = { p->am, p->ak, p->bk, p->bn };
    uint64_t h = hash_bytes(hash_bytes(7, words, sizeof words), strides, sizeof strides);
    h = hash_view(hash_view(h, &p->a), &p->b);
    for (uint32_t i = 0; x->t.loop && i < x->t.loop->n_instrs; i++)
        h = hash_bytes(h, &e->layout->instrs[x->t.loop->instr + i].op, sizeof(uint16_t));
    return (product_key){ p->m, p->n, p->k, p->batches, h };
}

static uint64_t form_mark(const product_form *f) {
    int64_t words[11] = { f->vector, f->splits, f->span,   f->tx,   f->height, f->width,
                          f->parts,  f->stages, f->shared, f->form, f->rest };
    return hash_bytes(hash_bytes(9, f->body, strlen(f->body)), words, sizeof words);
}

/* What is to compute this product: what is measured now, else what is stored for it. */
static choice choice_of(const emit *e, const matmul *x) {
    choice c = { CHOICE_MODEL, 0, 0 };
    product_key key;
    if (e->given) return *e->given;
    if (!matmul_is_measured(e, x)) return c;
    if (all_by_blas()) return (choice){ CHOICE_BLAS, 0, 0 };
    key = key_of(e, x);
    emit_choice(e, &key, &c);
    return c;
}

/* A dense copy that stands for the node until `moved` is 0 again. */
static void emit_moved(emit *e, uint32_t node) {
    const gn_view *from = view_of(e, node);
    size_t bytes = gn_size_mul((size_t)gn_view_count(from), types[from->dtype].bytes);
    emit_copy_views(e, "moved", gn_view_dense(from->dtype, from->rank, from->dims),
                    (param){ PARAM_PLAN, REGION_ROWS, 0 }, *from, at_node(e, node, 0));
    if (bytes > e->rows) e->rows = bytes;
    e->layout->view_copies++;
    e->moved = node + 1;
}

static void emit_product(emit *e, uint32_t node) {
    matmul x = matmul_of(e, node);
    if (!x.p.m || !x.p.n || !x.p.batches) return;
    if (is_of_few_rows(e, &x.shape, x.d)) {
        if (x.moves) emit_moved(e, x.xa);
        emit_few(e, &x);
        e->moved = 0;
        return;
    }
    choice c = choice_of(e, &x);
    bool lost = false;
    if (c.kind == CHOICE_BLAS) {
        lost = !emit_blas(e, &x, &c);
        e->failed = e->failed || (e->given && lost);
        if (e->given) return;
        if (!lost) e->when = LAUNCH_INSTEAD;
        e->n_blas += !lost;
    }
    product_form f = product_choose(e, &x.shape, x.d, c.kind == CHOICE_OWN ? (int)c.index : asked_rank());
    if (c.kind == CHOICE_OWN) {
        e->mark = form_mark(&f);
        lost = !e->given && e->mark != c.mark;
        if (lost) f = product_choose(e, &x.shape, x.d, 0);
        e->n_other += !lost;
    }
    e->n_lost += lost;
    if (x.moves) emit_moved(e, x.xa);
    product_bind(e, &x.p, &f, x.d, base_offset(e, x.xa), base_offset(e, x.xb));
    emit_own_product(e, &x, f);
    e->moved = 0;
    e->when = LAUNCH_ALWAYS;
}

/* >>indexing =========================================================================================
 * Reads and writes by index; running along an axis, sorting, the positions of what is not 0. */

/* ---- by index ---- */

static void emit_gather(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0), y = input(e, node, 1);
    const gn_view *a = view_of(e, x), *index = view_of(e, y);
    int axis = axis_of(attrs_of(e, node)[0], a->rank);
    gn_view at = *index, from = *index; /* over the result's positions */
    for (int i = 0; i < a->rank; i++) from.strides[i] = i == axis ? 0 : a->strides[i];
    gn_view ci = gn_view_collapse(&at), cf = gn_view_collapse(&from);
    text line = { 0 };
    put(&line, "    const i64 pick = index[");
    put_offset(&line, &ci, "i", is_small(&ci));
    put(&line,
        "];\n    if (pick < 0 || pick >= %lldll) { fault(err, OUT_OF_RANGE, node, pick, %lldll); continue; }\n    y = "
        "a[",
        (long long)a->dims[axis], (long long)a->dims[axis]);
    put_offset(&line, &cf, "i", is_small(&cf));
    put(&line, " + pick * %lldll];\n", (long long)a->strides[axis]);
    emit_node(e, x, types[a->dtype].name, true, "a");
    emit_node(e, y, types[index->dtype].name, true, "index");
    emit_faults(e, node);
    if (line.failed) e->failed = true;
    else emit_each(e, node, "gather", line.s);
    text_free(&line);
}

static void emit_embedding(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0), y = input(e, node, 1);
    const gn_view *a = view_of(e, x), *ids = view_of(e, y);
    int bytes = types[a->dtype].bytes;
    int64_t d = a->dims[1], n = gn_view_count(ids) * d, vector = a->strides[1] == 1 || d == 1 ? 16 / bytes : 1;
    gn_view c = gn_view_collapse(ids);
    const char *type = raw_types[bytes];
    if (!d) emit_index_check(e, node, y, a->dims[0]);
    if (!n) return;
    while (vector > 1 && (d % vector || a->strides[0] % vector || base_offset(e, x) % (vector * bytes))) vector /= 2;
    emit_node(e, x, type, true, "a");
    emit_node(e, y, types[ids->dtype].name, true, "ids");
    emit_node(e, node, type, false, "o");
    emit_faults(e, node);
    put(&e->body,
        "  typedef %s I;\n  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < %lld; g += (I)gridDim.x * 256) {\n    "
        "const I row = g / %lldu, col = g %% %lldu * %lldu;\n    const i64 id = ids[",
        is_few(n) ? "u32" : "u64", (long long)(n / vector), (long long)(d / vector), (long long)(d / vector),
        (long long)vector);
    put_offset(&e->body, &c, "row", is_small(&c));
    put(&e->body,
        "];\n    if (id < 0 || id >= %lldll) { if (col == 0) fault(err, OUT_OF_RANGE, node, id, %lldll); continue; }\n "
        "   %s v[%lld];\n",
        (long long)a->dims[0], (long long)a->dims[0], type, (long long)vector);
    put(&e->body,
        "    vload<%lld>(v, a + (id * %lldll + (i64)col * %lldll));\n    vstore<%lld>(o + (row * %lldu + col), v);\n  "
        "}\n",
        (long long)vector, (long long)a->strides[0], (long long)a->strides[1], (long long)vector, (long long)d);
    int64_t blocks = blocks_for(n / vector, 256);
    emit_launch(e, "embedding", (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

static void emit_one_hot(emit *e, uint32_t node) {
    uint32_t y = input(e, node, 0);
    const gn_view *ids = view_of(e, y), *out = view_of(e, node);
    int64_t depth = out->dims[out->rank - 1];
    gn_view c = gn_view_collapse(ids);
    text line = { 0 };
    if (depth == 0) {
        emit_index_check(e, node, y, 0);
        return;
    }
    put(&line, "    const i64 id = ids[");
    gn_view small = c;
    put(&line, "0 + ");
    put_offset(&line, &small, "i / DEPTH", is_small(&c) && is_few(gn_view_count(out)));
    put(&line,
        "];\n    const i64 at = (i64)(i %% DEPTH);\n    if (at == 0 && (id < 0 || id >= DEPTH)) fault(err, "
        "OUT_OF_RANGE, node, id, DEPTH);\n    put(y, cast_to<%s>::of(id == at ? 1 : 0));\n",
        types[out->dtype].name);
    put(&e->body, "  const i64 DEPTH = %lldll;\n", (long long)depth);
    emit_node(e, y, types[ids->dtype].name, true, "ids");
    emit_faults(e, node);
    if (line.failed) e->failed = true;
    else emit_each(e, node, "one_hot", line.s);
    text_free(&line);
}

/* ---- sampling ---- */

enum { SAMPLE_THREADS = 256 };
static const char sample_text[] =
    "// A token of a row of n logits by one block of 256 threads, as the CPU draws it: probabilities are whole "
    "numbers, "
    "2^40 for the largest,\n"
    "// so that sums are the same in any order\n"
    "D u32 sample_key(float x) { const u32 b = gn_u32(x); return b >> 31 ? ~b : b | 0x80000000u; }\n"
    "D u64 sample_weight(float x, float top, float t) {\n"
    "  const float none = gn_f32(0xff800000u), all = gn_f32(0x7f800000u);\n"
    "  const float d = x == top ? 0.f : top == all || x == none ? none : (x - top) / t;\n"
    "  return d == none ? 0 : (u64)(gn_exp(d) * 1099511627776.f);\n"
    "}\n"
    "// Over the block; MOST: the largest, else the sum\n"
    "template <bool MOST> M u64 sample_join(u64 v, u64 *shared) {\n"
    "  const int th = threadIdx.x;\n"
    "  shared[th] = v;\n"
    "  __syncthreads();\n"
    "  for (int s = 128; s; s >>= 1) {\n"
    "    if (th < s) shared[th] = !MOST ? shared[th] + shared[th + s] : shared[th] > shared[th + s] ? shared[th] : "
    "shared[th + s];\n"
    "    __syncthreads();\n"
    "  }\n"
    "  const u64 y = shared[0];\n"
    "  __syncthreads();\n"
    "  return y;\n"
    "}\n"
    "template <class T> M float sample_load(const T *x, i64 at) { return (float)get(x[at]) + 0.f; }\n"
    "template <class T> M u64 sample_sum(const T *x, i64 n, i64 stride, u32 from, u64 least, bool mass, float top, "
    "float "
    "t, u64 *shared) {\n"
    "  u64 sum = 0;\n"
    "  for (i64 i = threadIdx.x; i < n; i += 256) {\n"
    "    const float v = sample_load(x, i * stride);\n"
    "    if (sample_key(v) < from) continue;\n"
    "    const u64 w = mass ? sample_weight(v, top, t) : 1;\n"
    "    sum += w >= least ? w : 0;\n"
    "  }\n"
    "  return sample_join<false>(sum, shared);\n"
    "}\n"
    "// The largest key so that the tokens of it and above, among those from `from` on, number `need` or weigh so "
    "much: "
    "bit by bit,\n"
    "// by sums of those that agree with it so far; 1024 and fewer of them are kept in shared memory\n"
    "template <class T> M u32 sample_boundary(const T *x, i64 n, i64 stride, u32 from, u64 need, bool mass, float top, "
    "float t, u64 *shared) {\n"
    "  __shared__ u64 weights[1024];\n"
    "  __shared__ u32 keys[1024], found;\n"
    "  u64 above = 0, left = (u64)n;\n"
    "  u32 key = 0;\n"
    "  bool kept = false;\n"
    "  for (int bit = 31; bit >= 0; bit--) {\n"
    "    const u32 mid = key | 1u << bit;\n"
    "    u64 sum = 0, count = 0;\n"
    "    for (i64 i = threadIdx.x; i < (kept ? (i64)found : n); i += 256) {\n"
    "      const float v = kept ? 0.f : sample_load(x, i * stride);\n"
    "      const u32 k = kept ? keys[i] : sample_key(v);\n"
    "      if (k < from || k >> bit != mid >> bit) continue;\n"
    "      sum += kept ? weights[i] : mass ? sample_weight(v, top, t) : 1;\n"
    "      count++;\n"
    "    }\n"
    "    sum = sample_join<false>(sum, shared);\n"
    "    count = sample_join<false>(count, shared);\n"
    "    const bool up = above + sum >= need;\n"
    "    above += up ? 0 : sum;\n"
    "    left = up ? count : left - count;\n"
    "    key = up ? mid : key;\n"
    "    if (kept || left > 1024) continue;\n"
    "    if (threadIdx.x == 0) found = 0;\n"
    "    __syncthreads();\n"
    "    for (i64 i = threadIdx.x; i < n; i += 256) {\n"
    "      const float v = sample_load(x, i * stride);\n"
    "      const u32 k = sample_key(v);\n"
    "      if (k < from || k >> bit != key >> bit) continue;\n"
    "      const u32 at = atomicAdd(&found, 1u);\n"
    "      keys[at] = k;\n"
    "      weights[at] = mass ? sample_weight(v, top, t) : 1;\n"
    "    }\n"
    "    __syncthreads();\n"
    "    kept = true;\n"
    "  }\n"
    "  return key;\n"
    "}\n"
    "template <class T> M void sample_row(const T *x, i64 n, i64 stride, u32 draw, float t, i64 k, float p, float "
    "least, "
    "i64 *out) {\n"
    "  __shared__ u64 shared[256];\n"
    "  const int th = threadIdx.x;\n"
    "  const float none = gn_f32(0xff800000u), all = gn_f32(0x7f800000u);\n"
    "  u64 best = 0, bad = 0;\n"
    "  for (i64 i = th; i < n; i += 256) {\n"
    "    const float v = sample_load(x, i * stride);\n"
    "    bad |= v != v;\n"
    "    const u64 c = (u64)sample_key(v) << 32 | (0xffffffffu - (u32)i);\n"
    "    best = c > best ? c : best;\n"
    "  }\n"
    "  best = sample_join<true>(best, shared);\n"
    "  bad = sample_join<true>(bad, shared);\n"
    "  const i64 first = (i64)(0xffffffffu - (u32)best);\n"
    "  const float top = sample_load(x, first * stride);\n"
    "  const bool known = t >= 0.f && t < all && k >= 0 && p >= 0.f && least >= 0.f && least <= 1.f;\n"
    "  if (!known || bad || top == none || t == 0.f) {\n"
    "    if (th == 0) *out = !known || bad || top == none ? -1 : first;\n"
    "    return;\n"
    "  }\n"
    "  u32 from = 0;\n"
    "  if (k > 0 && k < n) from = sample_boundary(x, n, stride, 0, (u64)k, false, top, t, shared);\n"
    "  if (p < 1.f) {\n"
    "    const u64 need = (u64)((double)sample_sum(x, n, stride, from, 0, true, top, t, shared) * (double)p);\n"
    "    from = sample_boundary(x, n, stride, from, need ? need : 1, true, top, t, shared);\n"
    "  }\n"
    "  u64 low = (u64)((double)least * 1099511627776.0);\n"
    "  low = low ? low : 1;\n"
    "  const i64 each = (n + 255) / 256, begin = th * each, end = begin + each < n ? begin + each : n;\n"
    "  u64 sum = 0;\n"
    "  for (i64 i = begin; i < end; i++) {\n"
    "    const float v = sample_load(x, i * stride);\n"
    "    const u64 w = sample_key(v) >= from ? sample_weight(v, top, t) : 0;\n"
    "    sum += w >= low ? w : 0;\n"
    "  }\n"
    "  shared[th] = sum;\n"
    "  __syncthreads();\n"
    "  for (int s = 1; s < 256; s <<= 1) {\n"
    "    const u64 before = th >= s ? shared[th - s] : 0;\n"
    "    __syncthreads();\n"
    "    shared[th] += before;\n"
    "    __syncthreads();\n"
    "  }\n"
    "  const u64 total = shared[255], target = (total >> 32) * draw + ((total & 0xffffffffu) * draw >> 32);\n"
    "  u64 upto = shared[th] - sum;\n"
    "  if (upto > target || shared[th] <= target) return;\n"
    "  for (i64 i = begin; i < end; i++) {\n"
    "    const float v = sample_load(x, i * stride);\n"
    "    const u64 w = sample_key(v) >= from ? sample_weight(v, top, t) : 0;\n"
    "    upto += w >= low ? w : 0;\n"
    "    if (upto > target) { *out = i; return; }\n"
    "  }\n"
    "}\n";

/* The value of input i for the row of this block, by this name; else `otherwise`. */
static void put_sample_number(emit *e, uint32_t node, int i, const char *type, const char *name,
                              const char *otherwise) {
    const gn_view *out = view_of(e, node);
    if (i < 0) {
        put(&e->body, "  const %s %s = %s;\n", type, name, otherwise);
        return;
    }
    uint32_t x = input(e, node, (uint32_t)i);
    gn_view v = gn_view_broadcast(view_of(e, x), out->rank, out->dims), c = gn_view_collapse(&v);
    char of[24];
    snprintf(of, sizeof of, "%s_of", name);
    emit_node(e, x, types[v.dtype].name, true, of);
    put(&e->body, "  const %s %s = (%s)%s[", type, name, type, of);
    put_offset(&e->body, &c, "blockIdx.x", false);
    put(&e->body, "];\n");
}

static void emit_sample(emit *e, uint32_t node) {
    static const char *const labels[4] = { "sample", "sample_of_k", "sample_of_p", "sample_of_k_and_p" };
    static const char *const names[4][3] = {
        { "float", "t", "1.f" }, { "i64", "k", "0" }, { "float", "p", "1.f" }, { "float", "least", "0.f" }
    };
    const gn_view *x = view_of(e, input(e, node, 0)), *out = view_of(e, node);
    int64_t bits = attrs_of(e, node)[0], n = gn_view_count(out);
    gn_view lines = *x;
    int last = --lines.rank, at = 3;
    if (!n) return;
    gn_view c = gn_view_collapse(&lines);
    emit_node(e, input(e, node, 0), types[x->dtype].name, true, "a");
    emit_node(e, node, "i64", false, "o");
    put_sample_number(e, node, 1, "u64", "seed", NULL);
    put_sample_number(e, node, 2, "u64", "counter", NULL);
    for (int i = 0; i < 4; i++)
        put_sample_number(e, node, bits >> i & 1 ? at++ : -1, names[i][0], names[i][1], names[i][2]);
    put(&e->body, "  u32 w[4];\n  philox(w, seed, counter, 0);\n  sample_row<%s>(a + ", types[x->dtype].name);
    put_offset(&e->body, &c, "blockIdx.x", false);
    put(&e->body, ", %lldll, %lldll, w[0], t, k, p, least, o + blockIdx.x);\n", (long long)x->dims[last],
        (long long)x->strides[last]);
    emit_launch(e, labels[bits >> 1 & 3], (uint64_t)n, 1, SAMPLE_THREADS);
}

/* ---- rotary embedding ---- */

static void emit_rotary_table(emit *e, uint32_t node) {
    const gn_view *p = view_of(e, input(e, node, 0));
    const int64_t *a = attrs_of(e, node);
    const gn_view c = gn_view_collapse(p);
    text line = { 0 };
    if (!a[1]) return;
    put(&line, "    const u64 row = i / %lldull;\n    const i64 at = (i64)(i %% %lldull);\n", (long long)(2 * a[1]),
        (long long)(2 * a[1]));
    put(&line,
        "    const double pair = (double)(at %% %lldll), e = -pair / %lld.0, lost = fma(-e, %lld.0, -pair) / %lld.0;\n "
        "   "
        "const double r = pow(gn_f64(0x%llxull), e) * (1.0 + lost * log(gn_f64(0x%llxull)));\n",
        (long long)a[1], (long long)a[1], (long long)a[1], (long long)a[1], (unsigned long long)a[2],
        (unsigned long long)a[2]);
    put(&line,
        "    double share = gn_f64(0x%llxull) + gn_f64(0x%llxull) * pair + gn_f64(0x%llxull) * r;\n    share = share < "
        "0 "
        "? 0 : share > 1 ? 1 : share;\n",
        (unsigned long long)a[4], (unsigned long long)a[5], (unsigned long long)a[6]);
    put(&line, "    const double angle = (double)p[");
    put_offset(&line, &c, "row", false);
    put(&line,
        "] * (r * (1.0 - share + share / gn_f64(0x%llxull)));\n    put(y, cast_to<%s>::of((at < %lldll ? cos(angle) : "
        "sin(angle)) * gn_f64(0x%llxull)));\n",
        (unsigned long long)a[3], types[view_of(e, node)->dtype].name, (long long)a[1], (unsigned long long)a[7]);
    emit_node(e, input(e, node, 0), types[p->dtype].name, true, "p");
    if (line.failed) e->failed = true;
    else emit_each(e, node, "rotary_table", line.s);
    text_free(&line);
}

/* One thread turns `vector` elements of a row, which lie on one side of the pairs or hold whole pairs. */
static void put_rotary(emit *e, uint32_t node, int64_t n, int64_t vector, bool wide, bool apart, int64_t stride) {
    const gn_view *x = view_of(e, input(e, node, 0)), *table = view_of(e, input(e, node, 1));
    const char *type = types[x->dtype].name, *compute = types[x->dtype].compute;
    bool back = (attrs_of(e, node)[0] & 2) != 0, inside = !apart && vector > 1;
    int64_t step = table->strides[table->rank - 1];
    put(&e->body, "    const I first = col < %lldu;\n    %s q[%lld];\n", (long long)n, type, (long long)vector);
    if (!inside) {
        put(&e->body,
            apart ? "    const I other = first ? col + %lld : col - %lld;\n" : "    const I other = col ^ 1;\n",
            (long long)n, (long long)n);
        put(&e->body,
            wide ? "    vload<%lld>(q, a + from + other);\n"
                 : "    UNROLL for (int v = 0; v < %lld; v++) q[v] = a[from + (i64)(other + v) * %lldll];\n",
            (long long)vector, (long long)stride);
    }
    put(&e->body, "    UNROLL for (int v = 0; v < %lld; v++) {\n      const i64 pair = ", (long long)vector);
    if (apart) put(&e->body, "(i64)(first ? col + v : col - %lld + v);\n", (long long)n);
    else put(&e->body, "(i64)((col + v) / 2);\n");
    put(&e->body, "      const bool minus = %s%s;\n", back ? "!" : "", apart ? "(first != 0)" : "((col + v) % 2 == 0)");
    put(&e->body,
        "      const %s c = t[pair * %lldll], s = t[(%lldll + pair) * %lldll], mine = get(w[v]) * c, theirs = get(%s) "
        "* "
        "s;\n      put(y[v], minus ? mine - theirs : mine + theirs);\n    }\n",
        compute, (long long)step, (long long)n, (long long)step, inside ? "w[v ^ 1]" : "q[v]");
}

static void emit_rotary(emit *e, uint32_t node) {
    uint32_t from = input(e, node, 0), by = input(e, node, 1);
    const gn_view *x = view_of(e, from), *out = view_of(e, node);
    gn_view lines = *x, angles = *view_of(e, by);
    bool apart = !(attrs_of(e, node)[0] & 1);
    int bytes = types[x->dtype].bytes, last = x->rank - 1;
    int64_t D = x->dims[last], n = angles.dims[angles.rank - 1] / 2, count = gn_view_count(out), vector = 16 / bytes,
            dims[GN_MAX_RANK];
    if (!count) return;
    memcpy(dims, x->dims, sizeof dims);
    dims[last] = 2 * n;
    angles = gn_view_broadcast(&angles, x->rank, dims);
    lines.rank = angles.rank = last;
    gn_view cr = gn_view_collapse(&lines), ct = gn_view_collapse(&angles);
    while (vector > 1 && (D % vector || (apart ? n : 2 * n) % vector)) vector /= 2;
    bool wide = vectorises(x, base_offset(e, from), vector, bytes), small = is_few(count);
    emit_early(e);
    emit_node(e, from, types[x->dtype].name, true, "a");
    emit_node(e, by, types[angles.dtype].name, true, "table");
    emit_node(e, node, types[x->dtype].name, false, "o");
    put(&e->body, e->waits ? "  let_next_start();\n" : "");
    emit_await(e);
    put(&e->body,
        "  typedef %s I;\n  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < %lld; g += (I)gridDim.x * 256) {\n    "
        "const I row = g / %lldu, col = g %% %lldu * %lldu;\n    const i64 from = ",
        small ? "u32" : "u64", (long long)(count / vector), (long long)(D / vector), (long long)(D / vector),
        (long long)vector);
    put_offset(&e->body, &cr, "row", small && is_small(&cr));
    put(&e->body,
        wide
            ? ";\n    %s w[%lld], y[%lld];\n    vload<%lld>(w, a + from + col);\n"
            : ";\n    %s w[%lld], y[%lld];\n    UNROLL for (int v = 0; v < %lld; v++) w[v] = a[from + (i64)(col + v) * "
              "%lldll];\n",
        types[x->dtype].name, (long long)vector, (long long)vector, (long long)vector, (long long)x->strides[last]);
    if (2 * n < D)
        put(&e->body, "    if (col >= %lldu) { vstore<%lld>(o + (row * %lldu + col), w); continue; }\n",
            (long long)(2 * n), (long long)vector, (long long)D);
    put(&e->body, "    const %s *t = table + ", types[angles.dtype].name);
    put_offset(&e->body, &ct, "row", small && is_small(&ct));
    put(&e->body, ";\n");
    put_rotary(e, node, n, vector, wide, apart, x->strides[last]);
    put(&e->body, "    vstore<%lld>(o + (row * %lldu + col), y);\n  }\n", (long long)vector, (long long)D);
    int64_t blocks = blocks_for(count / vector, 256);
    emit_launch(e, apart ? "rotary" : "rotary_of_neighbours", (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* A copy, then one thread for each column along the axis: equal indices meet in order. `statement`
   joins `s` into `t`. */
static void emit_scatter_as(emit *e, uint32_t node, const char *label, const char *statement) {
    uint32_t y = input(e, node, 1), z = input(e, node, 2);
    const gn_view *index = view_of(e, y), *src = view_of(e, z);
    gn_view out = gn_view_dense(view_of(e, node)->dtype, view_of(e, node)->rank, view_of(e, node)->dims);
    int axis = axis_of(attrs_of(e, node)[0], out.rank);
    int64_t bit = (int64_t)1 << axis;
    const char *type = types[out.dtype].name;
    gn_view columns = *index;
    emit_copy(e, node, input(e, node, 0));
    for (int i = 0; i < out.rank; i++) columns.strides[i] = out.strides[i];
    gn_view ki = dims_of(index, bit, false), ks = dims_of(src, bit, false), ko = dims_of(&columns, bit, false);
    int64_t n = gn_view_count(&ki), length = index->dims[axis];
    ki = gn_view_collapse(&ki);
    ks = gn_view_collapse(&ks);
    ko = gn_view_collapse(&ko);
    if (!n || !length) return;
    emit_node(e, y, types[index->dtype].name, true, "index");
    emit_node(e, z, type, true, "src");
    emit_node(e, node, type, false, "o");
    emit_faults(e, node);
    put(&e->body,
        "  const u64 c = (u64)blockIdx.x * 256 + threadIdx.x;\n  if (c >= %lldull) return;\n  index += ", (long long)n);
    put_offset(&e->body, &ki, "c", false);
    put(&e->body, ";\n  src += ");
    put_offset(&e->body, &ks, "c", false);
    put(&e->body, ";\n  o += ");
    put_offset(&e->body, &ko, "c", false);
    put(&e->body,
        ";\n  for (i64 l = 0; l < %lldll; l++) {\n    const i64 pick = index[l * %lldll];\n    if (pick < 0 || pick >= "
        "%lldll) { fault(err, OUT_OF_RANGE, node, pick, %lldll); return; }\n"
        "    %s &t = o[pick * %lldll];\n    const %s s = src[l * %lldll];\n    %s\n  }\n",
        (long long)length, (long long)index->strides[axis], (long long)out.dims[axis], (long long)out.dims[axis], type,
        (long long)out.strides[axis], type, (long long)src->strides[axis], statement);
    emit_launch(e, label, (uint64_t)blocks_for(n, 256), 1, 256);
}

static void emit_scatter_add(emit *e, uint32_t node) {
    emit_scatter_as(e, node, "scatter_add", "put(t, gn_add(get(t), get(s)));");
}
static void emit_scatter(emit *e, uint32_t node) { emit_scatter_as(e, node, "scatter", "t = s;"); }
static void emit_scatter_max(emit *e, uint32_t node) {
    emit_scatter_as(e, node, "scatter_max", "if (get(s) > get(t) || (get(s) != get(s) && get(t) == get(t))) t = s;");
}

/* ---- along an axis ---- */

static const char along_text[] =
    "// What runs along an axis: a number, or of f64 one with what additions or multiplications lose\n"
    "struct twice { double v, rest; };\n"
    "template <class C> struct running { static M C of(C x) { return x; } static M C value(C x) { return x; } };\n"
    "template <> struct running<twice> {\n"
    "  static M twice of(double x) { twice y; y.v = x; y.rest = 0; return y; }\n"
    "  static M double value(const twice &x) { const double y = x.v + x.rest; return y == y ? y : x.v; } };\n"
    "// join(a, b): a stands before b\n"
    "template <class C> struct run_sum { static M C none() { return 0; } static M C join(C a, C b) { "
    "return gn_add(a, b); } };\n"
    "template <class C> struct run_prod { static M C none() { return 1; } static M C join(C a, C b) { "
    "return gn_mul(a, b); } };\n"
    "template <> struct run_sum<twice> { static M twice none() { return running<twice>::of(0); }\n"
    "  static M twice join(const twice &a, const twice &b) { twice y; y.v = a.v + b.v; const double z = y.v - a.v; "
    "y.rest = (a.rest + b.rest) + ((a.v - (y.v - z)) + (b.v - z)); return y; } };\n"
    "template <> struct run_prod<twice> { static M twice none() { return running<twice>::of(1); }\n"
    "  static M twice join(const twice &a, const twice &b) { twice y; y.v = a.v * b.v; "
    "y.rest = gn_fma(a.v, b.v, -y.v) + (a.rest * b.v + a.v * b.rest); return y; } };\n"
    "template <class C> struct run_max { static M C none() { return (C)(-9223372036854775807ll - 1); } "
    "static M C join(C a, C b) { return b > a || b != b ? b : a; } };\n"
    "template <> M double run_max<double>::none() { return gn_f32(0xff800000u); }\n"
    "template <> M u64 run_max<u64>::none() { return 0; }\n"
    "// What stands before and in each thread's element among the block's 256.\n"
    "template <class R, class C> M C scan(C v) {\n"
    "  __shared__ C part[256];\n"
    "  const int t = threadIdx.x;\n"
    "  for (int k = 1; k < 256; k *= 2) {\n"
    "    __syncthreads();\n"
    "    part[t] = v;\n"
    "    __syncthreads();\n"
    "    if (t >= k) v = R::join(part[t - k], v);\n"
    "  }\n"
    "  return v;\n"
    "}\n"
    "template <class P> struct run_of { typename P::C v;\n"
    "  M void init() { v = P::R::none(); }\n"
    "  M void take(typename P::C x) { v = P::R::join(v, x); }\n"
    "  M void merge(const run_of &o) { take(o.v); } };\n"
    "// P: T, O, C, R (run_…), N rows, n, IN, OUT, in(row), out(row); "
    "a thread for a row, or PARTS blocks for SPAN elements each, whose totals come first\n"
    "template <class P> M void along_totals(const typename P::T *a, typename P::C *totals) {\n"
    "  const i64 row = blockIdx.x, begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::n ? begin + P::SPAN : "
    "P::n;\n"
    "  run_of<P> all;\n"
    "  all.init();\n"
    "  a += P::in(row);\n"
    "  for (i64 i = begin + threadIdx.x; i < end; i += 256) all.take(running<typename P::C>::of(get(a[i * P::IN])));\n"
    "  all = together<256>(all);\n"
    "  if (threadIdx.x == 0) totals[row * P::PARTS + blockIdx.y] = all.v;\n"
    "}\n"
    "template <class P> M void along_block(const typename P::T *a, typename P::O *out, const typename P::C *totals) {\n"
    "  typedef typename P::C C;\n"
    "  __shared__ C last;\n"
    "  const i64 row = blockIdx.x, begin = (i64)blockIdx.y * P::SPAN, end = begin + P::SPAN < P::n ? begin + P::SPAN : "
    "P::n;\n"
    "  run_of<P> before;\n"
    "  before.init();\n"
    "  if (P::PARTS > 1) {\n"
    "    for (int p = threadIdx.x; p < (int)blockIdx.y; p += 256) before.take(totals[row * P::PARTS + p]);\n"
    "    before = together<256>(before);\n"
    "  }\n"
    "  a += P::in(row);\n"
    "  out += P::out(row);\n"
    "  for (i64 base = begin; base < end; base += 256) {\n"
    "    const i64 i = base + threadIdx.x;\n"
    "    C v = P::R::join(before.v, scan<typename P::R, C>(i < end ? running<C>::of(get(a[i * P::IN])) : "
    "P::R::none()));\n"
    "    if (i < end) put(out[i * P::OUT], running<C>::value(v));\n"
    "    if (threadIdx.x == 255) last = v;\n"
    "    __syncthreads();\n"
    "    before.v = last;\n"
    "  }\n"
    "}\n"
    "template <class P> M void along_thread(const typename P::T *a, typename P::O *out) {\n"
    "  const i64 row = (i64)blockIdx.x * 256 + threadIdx.x;\n"
    "  if (row >= P::N) return;\n"
    "  a += P::in(row);\n"
    "  out += P::out(row);\n"
    "  typename P::C v = P::R::none();\n"
    "  for (i64 i = 0; i < P::n; i++) { v = P::R::join(v, running<typename P::C>::of(get(a[i * P::IN]))); "
    "put(out[i * P::OUT], running<typename P::C>::value(v)); }\n"
    "}\n"
    "// Keys in their order, NaN last both ways. P as above, DOWN, F: position in a row\n"
    "template <class P, class C> M bool key_before(C a, C b) { if (b != b) return a == a; "
    "return P::DOWN ? a > b : a < b; }\n"
    "template <class P> M typename P::C key_at(const typename P::T *a, i64 i) { "
    "return (typename P::C)get(a[i * P::IN]); }\n"
    "// Positions of groups of 256 in order: each element counts those before it.\n"
    "template <class P> M i64 sort_group(const typename P::T *a, i64 i) {\n"
    "  const i64 first = i / 256 * 256, end = first + 256 < P::n ? first + 256 : P::n;\n"
    "  const typename P::C key = key_at<P>(a, i);\n"
    "  i64 rank = first;\n"
    "  for (i64 j = first; j < end; j++) { const typename P::C other = key_at<P>(a, j); "
    "rank += key_before<P>(other, key) || (j < i && !key_before<P>(key, other)); }\n"
    "  return rank;\n"
    "}\n"
    "// The place of from[i] after neighbouring ordered groups of `width` are merged.\n"
    "template <class P> M i64 sort_merge(const typename P::T *a, const typename P::F *from, i64 i, i64 width) {\n"
    "  const i64 first = i / (2 * width) * (2 * width), mid = first + width < P::n ? first + width : P::n, end = mid + "
    "width < P::n ? mid + width : P::n;\n"
    "  const typename P::C key = key_at<P>(a, from[i]);\n"
    "  i64 lo = i < mid ? mid : first, hi = i < mid ? end : mid;\n"
    "  while (lo < hi) {\n"
    "    const i64 at = (lo + hi) / 2;\n"
    "    const typename P::C other = key_at<P>(a, from[at]);\n"
    "    if (i < mid ? key_before<P>(other, key) : !key_before<P>(key, other)) lo = at + 1; else hi = at;\n"
    "  }\n"
    "  return i + lo - mid;\n"
    "}\n";

static void put_along_type(emit *e, const rows *r, gn_dtype in, gn_dtype out, const char *more) {
    text *t = &e->types;
    put(t,
        "struct @_p { typedef %s T; typedef %s O; static const i64 N = %lldll, n = %lldll, IN = %lldll, OUT = "
        "%lldll;\n  static M i64 in(i64 row) { return ",
        types[in].name, types[out].name, (long long)r->count, (long long)r->n, (long long)r->in_stride,
        (long long)r->out_stride);
    put_offset(t, &r->in, "row", is_small(&r->in));
    put(t, "; }\n  static M i64 out(i64 row) { return ");
    put_offset(t, &r->out, "row", is_small(&r->out));
    put(t, "; }\n%s};\n", more);
}

/* Few long rows: the parts that blocks run along at the same time. */
static int64_t along_parts(const rows *r) {
    int64_t most = 1056 / r->count, parts = blocks_for(r->n, 4096);
    return r->count >= 264 || r->n < 16384 ? 1 : parts < most ? parts : most;
}

static void emit_along(emit *e, uint32_t node, const char *label, const char *join) {
    uint32_t x = input(e, node, 0);
    const gn_view *in = view_of(e, x), *out = view_of(e, node);
    const char *c = in->dtype == GN_F64 && strcmp(join, "run_max") != 0 ? "twice"
                    : types[in->dtype].real                             ? "double"
                                                                        : wide_type(in->dtype),
               *type = types[in->dtype].name;
    char more[200], name[40];
    rows r;
    if (!rows_plan(e, &r, in, out, axis_of(attrs_of(e, node)[0], in->rank), base_offset(e, x))) return;
    bool threads = r.n <= 32 || (!r.along && r.count >= 1024);
    int64_t span = (blocks_for(r.n, threads ? 1 : along_parts(&r)) + 255) / 256 * 256, parts = blocks_for(r.n, span);
    snprintf(more, sizeof more, "  typedef %s C; typedef %s<%s> R;\n  static const i64 SPAN = %lldll, PARTS = %lld;\n",
             c, join, c, (long long)span, (long long)parts);
    if (parts > 1) {
        size_t bytes = gn_size_mul((size_t)(r.count * parts), 16);
        if (bytes > e->scratch) e->scratch = bytes;
        put_along_type(e, &r, in->dtype, out->dtype, more);
        emit_node(e, x, type, true, "a");
        emit_pointer(e, c, false, "totals", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        put(&e->body, "  along_totals<@_p>(a, totals);\n");
        snprintf(name, sizeof name, "%s_totals", label);
        emit_launch(e, name, (uint64_t)r.count, (uint64_t)parts, 256);
    }
    put_along_type(e, &r, in->dtype, out->dtype, more);
    emit_node(e, x, type, true, "a");
    if (parts > 1) emit_pointer(e, c, true, "totals", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_node(e, node, types[out->dtype].name, false, "o");
    put(&e->body, threads     ? "  along_thread<@_p>(a, o);\n"
                  : parts > 1 ? "  along_block<@_p>(a, o, totals);\n"
                              : "  along_block<@_p>(a, o, 0);\n");
    emit_launch(e, label, (uint64_t)(threads ? blocks_for(r.count, 256) : r.count), (uint64_t)(threads ? 1 : parts),
                256);
}
static void emit_cumsum(emit *e, uint32_t node) { emit_along(e, node, "cumsum", "run_sum"); }
static void emit_cumprod(emit *e, uint32_t node) { emit_along(e, node, "cumprod", "run_prod"); }
static void emit_cummax(emit *e, uint32_t node) { emit_along(e, node, "cummax", "run_max"); }

/* One pass of the sort; `place` is the new place of position i. Passes but the last write positions to scratch. */
static void emit_sort_pass(emit *e, uint32_t node, const rows *r, const char *label, const char *place, param from,
                           param to, bool first, bool last, int64_t width) {
    uint32_t x = input(e, node, 0);
    gn_dtype d = view_of(e, x)->dtype;
    const char *position = is_few(r->n) ? "int" : "i64";
    char more[80];
    snprintf(more, sizeof more, "  typedef %s C; typedef %s F; enum { DOWN = %d };\n",
             types[d].real ? "double" : wide_type(d), position, attrs_of(e, node)[1] != 0);
    put_along_type(e, r, d, GN_I64, more);
    emit_node(e, x, types[d].name, true, "a");
    if (!first) emit_pointer(e, position, true, "from", from);
    if (last) emit_node(e, node, "i64", false, "o");
    else emit_pointer(e, position, false, "to", to);
    if (!first) emit_number(e, "u64", "width", PARAM_LONG, width);
    put(&e->body,
        "  for (u64 g = (u64)blockIdx.x * 256 + threadIdx.x; g < (u64)(@_p::N * @_p::n); g += (u64)gridDim.x * 256) "
        "{\n    const i64 row = (i64)(g / @_p::n), i = (i64)(g %% @_p::n);\n"
        "    const i64 place = %s, at = %s;\n    %s = at;\n  }\n",
        place, first ? "i" : "from[row * @_p::n + i]",
        last ? "o[@_p::out(row) + place * @_p::OUT]" : "to[row * @_p::n + place]");
    int64_t blocks = blocks_for(r->count * r->n, 256);
    emit_launch(e, label, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* Groups of 256 by counting, then merged in pairs, twice as long each time: stable. */
static void emit_argsort(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0);
    const gn_view *in = view_of(e, x);
    rows r;
    if (!rows_plan(e, &r, in, view_of(e, node), axis_of(attrs_of(e, node)[0], in->rank), base_offset(e, x))) return;
    size_t bytes = gn_size_align(gn_size_mul((size_t)(r.count * r.n), is_few(r.n) ? 4 : 8), 256),
           both = gn_size_mul(bytes, 2);
    if (r.n > 256 && both > e->scratch) e->scratch = both;
    param half[2] = { { PARAM_PLAN, REGION_SCRATCH, 0 }, { PARAM_PLAN, REGION_SCRATCH, (int64_t)bytes } };
    emit_sort_pass(e, node, &r, "argsort_groups", "sort_group<@_p>(a + @_p::in(row), i)", half[0], half[0], true,
                   r.n <= 256, 0);
    int at = 0;
    for (int64_t width = 256; width < r.n; width *= 2, at ^= 1)
        emit_sort_pass(e, node, &r, "argsort_merge",
                       "sort_merge<@_p>(a + @_p::in(row), from + row * @_p::n, i, (i64)width)", half[at], half[at ^ 1],
                       false, width * 2 >= r.n, width);
}

/* Blocks count what is not 0 in their spans, in 64 bits: a span of a number that is broadcast can be 2^34 long. Then
   each writes its own behind those of the blocks before it, the last one fills up. */
static void emit_nonzero(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0);
    const gn_view *in = view_of(e, x);
    gn_view c = gn_view_collapse(in);
    int64_t n = gn_view_count(in), bound = view_of(e, node)->dims[0], below = n,
            blocks = blocks_for(n, 4096) > 1024 ? 1024
                     : blocks_for(n, 4096) < 1  ? 1
                                                : blocks_for(n, 4096);
    int64_t span = (blocks_for(n, blocks) + 255) / 256 * 256;
    text *b = &e->body;
    if ((size_t)blocks * 8 > e->scratch) e->scratch = (size_t)blocks * 8;
    if (blocks > 1) {
        emit_node(e, x, types[in->dtype].name, true, "a");
        emit_pointer(e, "i64", false, "counts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        put(b,
            "  sum_of<i64> s;\n  s.init();\n  const i64 first = (i64)blockIdx.x * %lldll, end = first + %lldll < "
            "%lldll ? first + %lldll : %lldll;\n  for (i64 i = first + threadIdx.x; i < end; i += 256) s.v += get(a[",
            (long long)span, (long long)span, (long long)n, (long long)span, (long long)n);
        put_offset(b, &c, "i", is_small(&c));
        put(b, "]) != 0;\n  s = together<256>(s);\n  if (threadIdx.x == 0) counts[blockIdx.x] = s.v;\n");
        emit_launch(e, "nonzero_count", (uint64_t)blocks, 1, 256);
    }
    emit_node(e, x, types[in->dtype].name, true, "a");
    emit_node(e, node, "i64", false, "o");
    if (blocks > 1) emit_pointer(e, "i64", true, "counts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_faults(e, node);
    put(b,
        "  __shared__ int last;\n  sum_of<i64> before;\n  before.init();\n%s  before = together<256>(before);\n  i64 "
        "found = before.v;\n",
        blocks > 1 ? "  for (int i = threadIdx.x; i < (int)blockIdx.x; i += 256) before.v += counts[i];\n" : "");
    put(b,
        "  const i64 first = (i64)blockIdx.x * %lldll, end = first + %lldll < %lldll ? first + %lldll : %lldll;\n  for "
        "(i64 base = first; base < end; base += 256) {\n    const i64 i = base + threadIdx.x;\n    const int is = i < "
        "end && get(a[",
        (long long)span, (long long)span, (long long)n, (long long)span, (long long)n);
    put_offset(b, &c, "i", is_small(&c));
    put(b,
        "]) != 0, upto = scan<run_sum<int>, int>(is);\n    const i64 at = found + upto - 1;\n    if (is && at == "
        "%lldll) fault(err, OUT_OF_RANGE, node, %lldll, TOO_MANY);\n    if (is && at < %lldll) {\n",
        (long long)bound, (long long)bound, (long long)bound);
    for (int k = 0; k < in->rank; k++) {
        below = in->dims[k] ? below / in->dims[k] : 0;
        put(b, "      o[at * %d + %d] = i / %lldll %% %lldll;\n", in->rank, k, (long long)(below ? below : 1),
            (long long)(in->dims[k] ? in->dims[k] : 1));
    }
    put(b,
        "    }\n    if (threadIdx.x == 255) last = upto;\n    __syncthreads();\n    found += last;\n  }\n  if "
        "(blockIdx.x == %lldu) for (i64 i = found * %d + threadIdx.x; i < %lldll; i += 256) o[i] = -1;\n",
        (long long)(blocks - 1), in->rank, (long long)(bound * in->rank));
    emit_launch(e, "nonzero", (uint64_t)blocks, 1, 256);
}

/* ---- small matrices, grids, boxes ---- */

static const char solve_text[] =
    "// Of a block: m (N,W) holds a matrix and beside it what it is solved for. Statements as of the CPU's, so that "
    "both "
    "round alike. False: singular or, a Cholesky (root), not positive definite.\n"
    "D bool solve_eliminate(double *m, int N, int W, bool root, double &det) {\n"
    "  const int t = threadIdx.x, x = t & 31, y = t >> 5;\n"
    "  det = 1;\n"
    "  for (int p = 0; p < N; p++) {\n"
    "    if (!root) {\n"
    "      best_of<double, false> b;\n"
    "      b.init();\n"
    "      for (int i = p + t; i < N; i += 256) b.take(gn_abs(m[i * W + p]), i);\n"
    "      b = together<256>(b);\n"
    "      const int q = (int)b.at;\n"
    "      if (q != p) {\n"
    "        det = -det;\n"
    "        for (int k = p + t; k < W; k += 256) { const double v = m[p * W + k]; m[p * W + k] = m[q * W + k]; "
    "m[q * W + k] = v; }\n"
    "        __syncthreads();\n"
    "      }\n"
    "    }\n"
    "    double d = m[p * W + p];\n"
    "    det = det * d;\n"
    "    if (root ? !(d > 0) : d == 0) return false;\n"
    "    if (root) d = gn_sqrt(d);\n"
    "    __syncthreads();\n"
    "    if (root && t == 0) m[p * W + p] = d;\n"
    "    for (int i = p + 1 + t; i < N; i += 256) {\n"
    "      const double v = m[i * W + p] / d;\n"
    "      m[i * W + p] = v;\n"
    "      if (root) m[p * W + i] = v;\n"
    "    }\n"
    "    __syncthreads();\n"
    "    for (int i = p + 1 + y; i < N; i += 8) {\n"
    "      const double f = m[i * W + p];\n"
    "      for (int k = p + 1 + x; k < (root ? i + 1 : W); k += 32) m[i * W + k] -= f * m[p * W + k];\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "  return true;\n"
    "}\n"
    "D void solve_substitute(double *m, int N, int W, bool upper, bool ones) {\n"
    "  const int K = W - N;\n"
    "  for (int s = 0; s < N; s++) {\n"
    "    const int p = upper ? N - 1 - s : s, first = upper ? 0 : p + 1, all = (upper ? p : N - first) * K;\n"
    "    for (int k = N + threadIdx.x; k < W && !ones; k += 256) m[p * W + k] /= m[p * W + p];\n"
    "    __syncthreads();\n"
    "    for (int j = threadIdx.x; j < all; j += 256) {\n"
    "      const int i = first + j / K, k = N + j % K;\n"
    "      m[i * W + k] -= m[i * W + p] * m[p * W + k];\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n"
    "// The same of a large matrix, a panel of 16 columns at a time and with the same bits: each element takes off the "
    "same\n"
    "// products in the same order. P: N, W, R (rows of the matrix for each thread), ROOT, UPPER, ONES. state: "
    "determinant,\n"
    "// whether it goes on; swaps: the row that each pivot came from.\n"
    "enum { SOLVE_PANEL = 16, SOLVE_WIDE = 32, SOLVE_HIGH = 64 };\n"
    "// Columns from `first` on, in registers.\n"
    "template <class P> M void solve_panel(double *m, double *state, int *swaps, int first) {\n"
    "  __shared__ double top[SOLVE_PANEL], other[SOLVE_PANEL], across[SOLVE_PANEL];\n"
    "  const int t = threadIdx.x, count = P::N - first < SOLVE_PANEL ? P::N - first : SOLVE_PANEL;\n"
    "  double x[P::R][SOLVE_PANEL], det = first ? state[0] : 1;\n"
    "  if (first && state[1] == 0) return;\n"
    "  UNROLL for (int r = 0; r < P::R; r++) UNROLL for (int k = 0; k < SOLVE_PANEL; k++) {\n"
    "    const int i = first + t + r * 256;\n"
    "    x[r][k] = i < P::N && k < count ? m[(i64)i * P::W + first + k] : 0;\n"
    "  }\n"
    "  UNROLL for (int j = 0; j < SOLVE_PANEL; j++) if (j < count) {\n"
    "    const int p = first + j;\n"
    "    int q = p;\n"
    "    if (!P::ROOT) {\n"
    "      best_of<double, false> b;\n"
    "      b.init();\n"
    "      UNROLL for (int r = 0; r < P::R; r++) {\n"
    "        const int i = first + t + r * 256;\n"
    "        if (i >= p && i < P::N) b.take(gn_abs(x[r][j]), i);\n"
    "      }\n"
    "      b = together<256>(b);\n"
    "      q = (int)b.at;\n"
    "      if (q != p) det = -det;\n"
    "      if (t == 0) swaps[p] = q;\n"
    "    }\n"
    "    UNROLL for (int r = 0; r < P::R; r++) UNROLL for (int k = 0; k < SOLVE_PANEL; k++) {\n"
    "      const int i = first + t + r * 256;\n"
    "      if (i == p) top[k] = x[r][k];\n"
    "      if (i == q) other[k] = x[r][k];\n"
    "    }\n"
    "    __syncthreads();\n"
    "    double d = other[j];\n"
    "    det = det * d;\n"
    "    if (P::ROOT ? !(d > 0) : d == 0) {\n"
    "      if (t == 0) { state[0] = det; state[1] = 0; }\n"
    "      return;\n"
    "    }\n"
    "    if (P::ROOT) d = gn_sqrt(d);\n"
    "    UNROLL for (int r = 0; r < P::R; r++) {\n"
    "      const int i = first + t + r * 256;\n"
    "      UNROLL for (int k = 0; k < SOLVE_PANEL; k++) x[r][k] = q == p ? x[r][k] : i == p ? other[k] : i == q ? "
    "top[k] : x[r][k];\n"
    "      if (P::ROOT && i == p) x[r][j] = d;\n"
    "      if (i > p) x[r][j] = x[r][j] / d;\n"
    "      if (P::ROOT && i > p && i < first + SOLVE_PANEL) across[i - first] = x[r][j];\n"
    "    }\n"
    "    if (P::ROOT) __syncthreads();\n"
    "    UNROLL for (int r = 0; r < P::R; r++) UNROLL for (int k = j + 1; k < SOLVE_PANEL; k++)\n"
    "      if (first + t + r * 256 > p && k < count) x[r][k] -= x[r][j] * (P::ROOT ? across[k] : other[k]);\n"
    "    __syncthreads();\n"
    "  }\n"
    "  UNROLL for (int r = 0; r < P::R; r++) UNROLL for (int k = 0; k < SOLVE_PANEL; k++) {\n"
    "    const int i = first + t + r * 256;\n"
    "    if (i >= P::N || k >= count) continue;\n"
    "    m[(i64)i * P::W + first + k] = x[r][k];\n"
    "    if (P::ROOT && i >= first + count) m[(i64)(first + k) * P::W + i] = x[r][k];\n"
    "  }\n"
    "  if (t == 0) { state[0] = det; state[1] = 1; }\n"
    "}\n"
    "// 64 rows from `row` on, below `end`, and 32 columns from `col` on: less the panel's columns times its rows u.\n"
    "template <class P> M void solve_less(double *m, double (*u)[SOLVE_WIDE], int from, int count, int row, int "
    "end, int col) {\n"
    "  __shared__ double l[SOLVE_HIGH][SOLVE_PANEL + 1];\n"
    "  const int t = threadIdx.x, x = t & 15, y = t >> 4;\n"
    "  __syncthreads();\n"
    "  for (int i = t; i < SOLVE_HIGH * SOLVE_PANEL; i += 256) {\n"
    "    const int r = row + i / SOLVE_PANEL, k = i % SOLVE_PANEL;\n"
    "    l[i / SOLVE_PANEL][k] = r < end && k < count ? m[(i64)r * P::W + from + k] : 0;\n"
    "  }\n"
    "  double a[4][2];\n"
    "  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 2; c++) {\n"
    "    const int r = row + y + i * 16, k = col + x + c * 16;\n"
    "    a[i][c] = r < end && k < P::W ? m[(i64)r * P::W + k] : 0;\n"
    "  }\n"
    "  __syncthreads();\n"
    "  UNROLL for (int s = 0; s < SOLVE_PANEL; s++) {\n"
    "    const int j = P::UPPER ? SOLVE_PANEL - 1 - s : s;\n"
    "    if (j < count) UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 2; c++)\n"
    "      a[i][c] -= l[y + i * 16][j] * u[j][x + c * 16];\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 2; c++) {\n"
    "    const int r = row + y + i * 16, k = col + x + c * 16;\n"
    "    if (r < end && k < P::W) m[(i64)r * P::W + k] = a[i][c];\n"
    "  }\n"
    "}\n"
    "// The panel's part of 32 columns: u, from the panel's rows and columns.\n"
    "template <class P> M void solve_rows(double *m, double (*u)[SOLVE_WIDE], int first, int count, int col, bool "
    "divides) {\n"
    "  __shared__ double l[SOLVE_PANEL][SOLVE_PANEL];\n"
    "  const int t = threadIdx.x;\n"
    "  for (int i = t; i < SOLVE_PANEL * SOLVE_PANEL; i += 256) {\n"
    "    const int r = i / SOLVE_PANEL, k = i % SOLVE_PANEL;\n"
    "    l[r][k] = r < count && k < count ? m[(i64)(first + r) * P::W + first + k] : 0;\n"
    "  }\n"
    "  for (int i = t; i < SOLVE_PANEL * SOLVE_WIDE; i += 256) {\n"
    "    const int r = i / SOLVE_WIDE, k = col + i % SOLVE_WIDE;\n"
    "    u[r][i % SOLVE_WIDE] = r < count && k < P::W ? m[(i64)(first + r) * P::W + k] : 0;\n"
    "  }\n"
    "  __syncthreads();\n"
    "  for (int s = 0; s < count && !P::ROOT; s++) {\n"
    "    const int j = P::UPPER ? count - 1 - s : s;\n"
    "    if (divides) {\n"
    "      if (t < SOLVE_WIDE) u[j][t] = u[j][t] / l[j][j];\n"
    "      __syncthreads();\n"
    "    }\n"
    "    for (int i = t; i < SOLVE_PANEL * SOLVE_WIDE; i += 256) {\n"
    "      const int r = i / SOLVE_WIDE, k = i % SOLVE_WIDE;\n"
    "      if (r < count && (P::UPPER ? r < j : r > j)) u[r][k] -= l[r][j] * u[j][k];\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "  for (int i = t; i < SOLVE_PANEL * SOLVE_WIDE && !P::ROOT; i += 256) {\n"
    "    const int r = i / SOLVE_WIDE, k = col + i % SOLVE_WIDE;\n"
    "    if (r < count && k < P::W) m[(i64)(first + r) * P::W + k] = u[r][i % SOLVE_WIDE];\n"
    "  }\n"
    "}\n"
    "// Where row i of 32 columns comes from when the panel's rows are swapped one after another.\n"
    "D int solve_source(const int *swaps, int first, int count, int i) {\n"
    "  for (int j = count - 1; j >= 0; j--) i = i == first + j ? swaps[j] : i == swaps[j] ? first + j : i;\n"
    "  return i;\n"
    "}\n"
    "// Columns behind a panel.\n"
    "template <class P> M void solve_behind(double *m, const double *state, const int *swaps, int first) {\n"
    "  enum { MOVED = 2 * SOLVE_PANEL * SOLVE_WIDE / 256 };\n"
    "  __shared__ double u[SOLVE_PANEL][SOLVE_WIDE];\n"
    "  __shared__ int from[SOLVE_PANEL];\n"
    "  const int t = threadIdx.x, count = P::N - first < SOLVE_PANEL ? P::N - first : SOLVE_PANEL;\n"
    "  const int col = first + count + blockIdx.x * SOLVE_WIDE, k = col + t % SOLVE_WIDE;\n"
    "  if (state[1] == 0) return;\n"
    "  if (!P::ROOT) {\n"
    "    double moved[MOVED];\n"
    "    if (t < count) from[t] = swaps[first + t];\n"
    "    __syncthreads();\n"
    "    for (int pass = 0; pass < 2; pass++) {\n"
    "      UNROLL for (int v = 0; v < MOVED; v++) {\n"
    "        const int j = t / SOLVE_WIDE + v * (256 / SOLVE_WIDE), to = j < count ? first + j : j < 2 * count ? "
    "from[j - count] : -1;\n"
    "        if (to < 0 || k >= P::W) continue;\n"
    "        if (pass) m[(i64)to * P::W + k] = moved[v];\n"
    "        else moved[v] = m[(i64)solve_source(from, first, count, to) * P::W + k];\n"
    "      }\n"
    "      __syncthreads();\n"
    "    }\n"
    "  }\n"
    "  solve_rows<P>(m, u, first, count, col, false);\n"
    "  for (int row = first + count; row < P::N; row += SOLVE_HIGH)\n"
    "    if (!P::ROOT || row + SOLVE_HIGH > col) solve_less<P>(m, u, first, count, row, P::N, col);\n"
    "}\n"
    "// Right sides of a triangle, 32 columns of them.\n"
    "template <class P> M void solve_sides(double *m) {\n"
    "  __shared__ double u[SOLVE_PANEL][SOLVE_WIDE];\n"
    "  const int col = P::N + blockIdx.x * SOLVE_WIDE, panels = (P::N + SOLVE_PANEL - 1) / SOLVE_PANEL;\n"
    "  for (int s = 0; s < panels; s++) {\n"
    "    const int first = (P::UPPER ? panels - 1 - s : s) * SOLVE_PANEL, count = P::N - first < SOLVE_PANEL ? P::N - "
    "first : SOLVE_PANEL;\n"
    "    __syncthreads();\n"
    "    solve_rows<P>(m, u, first, count, col, !P::ONES);\n"
    "    for (int row = P::UPPER ? 0 : first + count; row < (P::UPPER ? first : P::N); row += SOLVE_HIGH)\n"
    "      solve_less<P>(m, u, first, count, row, P::UPPER ? first : P::N, col);\n"
    "  }\n"
    "}\n"
    "// Element i of a grid (…,G1,G2), joined with those of its equal neighbours before it: the larger of two roots "
    "comes below the smaller. P: T, G1, G2, CORNERS, place(element)\n"
    "D u32 component_of(volatile u32 *root, u32 i) { while (root[i] != i) i = root[i]; return i; }\n"
    "template <class P> M void components_join(const typename P::T *a, u64 first, u32 *root, int i) {\n"
    "  const int z = i / (P::G1 * P::G2), y = i / P::G2 % P::G1, x = i % P::G2;\n"
    "  for (int k = 0; k < 13; k++) {\n"
    "    const int c = k / 9 - 1, b = k / 3 % 3 - 1, d = k % 3 - 1;\n"
    "    if (!P::CORNERS && c * c + b * b + d * d != 1) continue;\n"
    "    if (z + c < 0 || y + b < 0 || y + b >= P::G1 || x + d < 0 || x + d >= P::G2) continue;\n"
    "    const int to = i + (c * P::G1 + b) * P::G2 + d;\n"
    "    if (get(a[P::place(first + i)]) != get(a[P::place(first + to)])) continue;\n"
    "    u32 high = i, low = to;\n"
    "    for (;;) {\n"
    "      high = component_of(root, high);\n"
    "      low = component_of(root, low);\n"
    "      if (high == low) break;\n"
    "      if (high < low) { const u32 v = high; high = low; low = v; }\n"
    "      if (atomicCAS(root + high, high, low) == high) break;\n"
    "    }\n"
    "  }\n"
    "}\n"
    "// Ends along both axes and the area of a box, and whether two share more than `most`.\n"
    "struct box { double e[5]; };\n"
    "template <class T> M box box_of(const T *p, i64 stride, bool centred) {\n"
    "  box r;\n"
    "  for (int a = 0; a < 2; a++) {\n"
    "    const double x = get(p[a * stride]), y = get(p[(a + 2) * stride]);\n"
    "    const double u = centred ? x - y / 2 : x, v = centred ? x + y / 2 : y;\n"
    "    r.e[2 * a] = u < v ? u : v;\n"
    "    r.e[2 * a + 1] = u < v ? v : u;\n"
    "  }\n"
    "  r.e[4] = (r.e[1] - r.e[0]) * (r.e[3] - r.e[2]);\n"
    "  return r;\n"
    "}\n"
    "D bool box_hits(const box &a, const box &b, double most) {\n"
    "  const double h = (a.e[1] < b.e[1] ? a.e[1] : b.e[1]) - (a.e[0] > b.e[0] ? a.e[0] : b.e[0]), w = (a.e[3] < "
    "b.e[3] ? a.e[3] : b.e[3]) - (a.e[2] > b.e[2] ? a.e[2] : b.e[2]);\n"
    "  const double both = h > 0 && w > 0 ? h * w : 0, all = a.e[4] + b.e[4] - both;\n"
    "  return all > 0 && both / all > most;\n"
    "}\n";

/* Loads the matrices of `v` to columns `at` and on of m. */
static void put_solve_load(emit *e, const gn_view *v, const char *name, int64_t at, int64_t pitch) {
    gn_view lead = *v;
    lead.rank -= 2;
    gn_view c = gn_view_collapse(&lead);
    int64_t n = v->dims[lead.rank] * v->dims[lead.rank + 1], columns = v->dims[lead.rank + 1];
    if (!n) return;
    put(&e->body, "    for (int i = threadIdx.x; i < %lld; i += 256) m[i / %lld * %lld + %lld + i %% %lld] = get(%s[",
        (long long)n, (long long)columns, (long long)pitch, (long long)at, (long long)columns, name);
    put_offset(&e->body, &c, "at", false);
    put(&e->body, " + i / %lld * %lldll + i %% %lld * %lldll]);\n", (long long)columns,
        (long long)v->strides[lead.rank], (long long)columns, (long long)v->strides[lead.rank + 1]);
}

/* Matrices that one block does not hold: in rounds of so many as the scratch memory takes. */
typedef struct solve_form {
    int64_t kind, N, K, W, batch, count; /* count: matrices of a round */
    bool root, upper, ones;
    size_t state, swaps; /* bytes in front of them in scratch */
} solve_form;

/* False: a block a matrix does better. */
static bool solve_blocked(emit *e, solve_form *f) {
    enum { SCRATCH = 256 << 20, ROUNDS = 4 };
    size_t each = gn_size_mul((size_t)(f->N * f->W), 8), all = each + 16 + (size_t)f->N * 4;
    f->count = (int64_t)(SCRATCH / all);
    if (f->count > f->batch) f->count = f->batch;
    if (f->count > 65535) f->count = 65535;
    if (f->count < 1 || blocks_for(f->batch, f->count) > ROUNDS) return false;
    f->state = (size_t)f->count * each;
    f->swaps = f->state + (size_t)f->count * 16;
    if ((size_t)f->count * all > e->scratch) e->scratch = (size_t)f->count * all;
    return true;
}

static void put_solve_form(emit *e, const solve_form *f, bool back) {
    put(&e->types, "struct @_p { enum { N = %lld, W = %lld, R = %lld, ROOT = %d, UPPER = %d, ONES = %d }; };\n",
        (long long)f->N, (long long)f->W, (long long)blocks_for(f->N, 256), f->root, back && f->upper, f->ones);
    emit_pointer(e, "double", false, "all", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    put(&e->body, "  double *m = all + (i64)blockIdx.y * %lldll;\n", (long long)(f->N * f->W));
}
static void put_solve_state(emit *e, const solve_form *f) {
    emit_pointer(e, "double", false, "state", (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)f->state });
    emit_pointer(e, "int", false, "swaps", (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)f->swaps });
    put(&e->body, "  state += blockIdx.y * 2;\n  swaps += (i64)blockIdx.y * %lldll;\n", (long long)f->N);
}

/* An element of m for each thread; `from`: the round's first matrix, of `count`. */
static void put_solve_each(emit *e, const solve_form *f, int64_t from, int64_t columns) {
    emit_number(e, "i64", "from", PARAM_LONG, from);
    put(&e->body,
        "  const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, at = from + blockIdx.y;\n  if (i >= %lldll) return;\n"
        "  const int r = (int)(i / %lld), k = (int)(i %% %lld);\n",
        (long long)(f->N * columns), (long long)columns, (long long)columns);
}
static void put_solve_element(emit *e, const gn_view *v, const char *name, const char *column) {
    gn_view lead = *v;
    lead.rank -= 2;
    gn_view c = gn_view_collapse(&lead);
    put(&e->body, "get(%s[", name);
    put_offset(&e->body, &c, "at", false);
    put(&e->body, " + r * %lldll + (%s) * %lldll])", (long long)v->strides[lead.rank], column,
        (long long)v->strides[lead.rank + 1]);
}

static void emit_solve_load(emit *e, uint32_t node, const solve_form *f, int64_t from, int64_t count) {
    const gn_view *a = view_of(e, input(e, node, 0));
    put_solve_form(e, f, false);
    emit_node(e, input(e, node, 0), types[a->dtype].name, true, "a");
    if (f->K) emit_node(e, input(e, node, 1), types[a->dtype].name, true, "b");
    put_solve_each(e, f, from, f->W);
    put(&e->body, "  m[i] = ");
    if (f->K) put(&e->body, "k < %lld ? ", (long long)f->N);
    put_solve_element(e, a, "a", "k");
    char column[40];
    snprintf(column, sizeof column, "k - %lld", (long long)f->N);
    if (f->K) put(&e->body, " : ");
    if (f->K) put_solve_element(e, view_of(e, input(e, node, 1)), "b", column);
    put(&e->body, ";\n");
    emit_launch(e, "solve_load", (uint64_t)blocks_for(f->N * f->W, 256), (uint64_t)count, 256);
}

static void emit_solve_store(emit *e, uint32_t node, const solve_form *f, int64_t from, int64_t count) {
    const char *type = types[view_of(e, node)->dtype].name;
    int64_t columns = f->K ? f->K : f->N;
    bool det = f->kind == GN__SOLVE_DET;
    put_solve_form(e, f, false);
    put_solve_state(e, f);
    emit_node(e, node, type, false, "o");
    put_solve_each(e, f, from, columns);
    if (det) put(&e->body, "  if (i == 0) put(o[at], cast_to<%s>::of(state[0]));\n", type);
    else
        put(&e->body,
            "  const double x = %s%sm[(i64)r * %lld + %lld + k];\n  put(o[at * %lldll + i], cast_to<%s>::of(x));\n",
            f->kind == GN__SOLVE_TRIANGULAR ? "" : "state[1] == 0 ? gn_f64(0x7ff8000000000000ull) : ",
            f->root ? "k > r ? 0.0 : " : "", (long long)f->W, (long long)(f->K ? f->N : 0), (long long)(f->N * columns),
            type);
    emit_launch(e, "solve_store", (uint64_t)(det ? 1 : blocks_for(f->N * columns, 256)), (uint64_t)count, 256);
}

static void emit_solve_round(emit *e, uint32_t node, const solve_form *f, int64_t from, int64_t count) {
    enum { PANEL = 16, WIDE = 32 }; /* as in the device text */
    emit_solve_load(e, node, f, from, count);
    for (int64_t first = 0; first < f->N && f->kind != GN__SOLVE_TRIANGULAR; first += PANEL) {
        int64_t behind = f->W - first - PANEL < f->W - f->N ? f->W - f->N : f->W - first - PANEL;
        put_solve_form(e, f, false);
        put_solve_state(e, f);
        emit_number(e, "int", "first", PARAM_WORD, first);
        put(&e->body, "  solve_panel<@_p>(m, state, swaps, first);\n");
        emit_launch(e, f->root ? "cholesky_panel" : "solve_panel", 1, (uint64_t)count, 256);
        if (behind == 0) continue;
        put_solve_form(e, f, false);
        put_solve_state(e, f);
        emit_number(e, "int", "first", PARAM_WORD, first);
        put(&e->body, "  solve_behind<@_p>(m, state, swaps, first);\n");
        emit_launch(e, "solve_behind", (uint64_t)blocks_for(behind, WIDE), (uint64_t)count, 256);
    }
    if (f->K) {
        put_solve_form(e, f, true);
        put(&e->body, "  solve_sides<@_p>(m);\n");
        emit_launch(e, "solve_sides", (uint64_t)blocks_for(f->K, WIDE), (uint64_t)count, 256);
    }
    emit_solve_store(e, node, f, from, count);
}

/* A block a matrix at a time, in its shared memory where it fits; large ones by panels. */
static void emit_solve(emit *e, uint32_t node) {
    enum { SHARED = 40 << 10, SCRATCH = 256 << 20, BLOCKS = 528 };
    const gn_view *a = view_of(e, input(e, node, 0)), *out = view_of(e, node);
    int64_t kind = attrs_of(e, node)[0], bits = attrs_of(e, node)[1], N = a->dims[a->rank - 1], K = 0;
    bool two = kind == GN__SOLVE_GENERAL || kind == GN__SOLVE_TRIANGULAR, root = kind == GN__SOLVE_CHOLESKY;
    gn_view lead = *a;
    lead.rank -= 2;
    if (!gn_view_count(out)) {
        emit_nothing(e);
        return;
    }
    if (two) {
        const gn_view *b = view_of(e, input(e, node, 1));
        K = b->dims[b->rank - 1];
    }
    int64_t W = N + K, batch = gn_view_count(&lead), bytes = N * W * 8, blocks = batch;
    bool shared = bytes <= SHARED;
    const char *type = types[out->dtype].name;
    bool upper = kind == GN__SOLVE_GENERAL || (bits & 1), ones = (bits & 2) != 0;
    solve_form f = { kind, N, K, W, batch, 0, root, upper, ones, 0, 0 };
    if (!shared && solve_blocked(e, &f)) {
        for (int64_t at = 0; at < batch; at += f.count)
            emit_solve_round(e, node, &f, at, batch - at < f.count ? batch - at : f.count);
        return;
    }
    if (shared && blocks > 1 << 20) blocks = 1 << 20;
    if (!shared && blocks > BLOCKS) blocks = BLOCKS;
    if (!shared && blocks * bytes > SCRATCH) blocks = SCRATCH / bytes > 1 ? SCRATCH / bytes : 1;
    if (!shared && (size_t)(blocks * bytes) > e->scratch) e->scratch = (size_t)(blocks * bytes);
    emit_node(e, input(e, node, 0), types[a->dtype].name, true, "a");
    if (two) emit_node(e, input(e, node, 1), type, true, "b");
    emit_node(e, node, type, false, "o");
    if (shared) put(&e->body, "  __shared__ double m[%lld];\n", (long long)(bytes / 8 + 1));
    else {
        emit_pointer(e, "double", false, "all", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        put(&e->body, "  double *m = all + (i64)blockIdx.x * %lldll;\n", (long long)(N * W));
    }
    put(&e->body, "  for (i64 at = blockIdx.x; at < %lldll; at += gridDim.x) {\n    __syncthreads();\n",
        (long long)batch);
    put_solve_load(e, a, "a", 0, W);
    if (two) put_solve_load(e, view_of(e, input(e, node, 1)), "b", N, W);
    put(&e->body, "    __syncthreads();\n    double det = 1;\n    bool ok = true;\n");
    if (kind != GN__SOLVE_TRIANGULAR)
        put(&e->body, "    ok = solve_eliminate(m, %lld, %lld, %d, det);\n", (long long)N, (long long)W, root);
    if (two)
        put(&e->body, "    if (ok) solve_substitute(m, %lld, %lld, %d, %d);\n", (long long)N, (long long)W, upper,
            ones);
    if (kind == GN__SOLVE_DET)
        put(&e->body, "    if (threadIdx.x == 0) { %s v; put(v, cast_to<%s>::of(det)); o[at] = v; }\n  }\n", type,
            type);
    else
        put(&e->body,
            "    for (int i = threadIdx.x; i < %lld; i += 256) {\n      const int r = i / %lld, k = i %% %lld;\n      "
            "const double x = !ok ? gn_f64(0x7ff8000000000000ull) : %sm[r * %lld + %lld + k];\n      %s v;\n      "
            "put(v, cast_to<%s>::of(x));\n      o[at * %lldll + i] = v;\n    }\n  }\n",
            (long long)(N * (two ? K : N)), (long long)(two ? K : N), (long long)(two ? K : N),
            root ? "k > r ? 0.0 : " : "", (long long)W, (long long)(two ? N : 0), type, type,
            (long long)(N * (two ? K : N)));
    emit_launch(e, root ? "cholesky" : kind == GN__SOLVE_DET ? "det" : "solve", (uint64_t)blocks, 1, 256);
}

/* Every element its own component, all joined with their neighbours, then each looks up its root. */
static void emit_components(emit *e, uint32_t node) {
    static const char *const labels[3] = { "components_begin", "components_join", "components" };
    uint32_t x = input(e, node, 0);
    const gn_view *in = view_of(e, x);
    gn_view c = gn_view_collapse(in);
    int64_t axes = attrs_of(e, node)[0], all = gn_view_count(in), size[3] = { 1, 1, 1 }, n = 1;
    if (!all) {
        emit_nothing(e);
        return;
    }
    for (int i = 0; i < axes; i++) n *= size[2 - i] = in->dims[in->rank - 1 - i];
    int64_t blocks = blocks_for(all, 256) > 1 << 20 ? 1 << 20 : blocks_for(all, 256);
    if (gn_size_mul((size_t)all, 4) > e->scratch) e->scratch = (size_t)all * 4;
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 1) {
            put(&e->types,
                "struct @_p { typedef %s T; enum { G1 = %lld, G2 = %lld, CORNERS = %lld };\n  static M i64 place(u64 "
                "g) { "
                "return ",
                types[in->dtype].name, (long long)size[1], (long long)size[2], (long long)attrs_of(e, node)[1]);
            put_offset(&e->types, &c, "g", false);
            put(&e->types, "; }\n};\n");
        }
        e->rereads = true;
        if (pass < 2) emit_node(e, x, types[in->dtype].name, true, "a");
        if (pass == 2) emit_node(e, node, "i64", false, "o");
        emit_pointer(e, "u32", false, "all", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        put(&e->body,
            "  for (u64 g = (u64)blockIdx.x * 256 + threadIdx.x; g < %lldull; g += (u64)gridDim.x * 256) {\n    const "
            "u64 "
            "grid = g / %lldull;\n    const u32 i = (u32)(g %% %lldull);\n    u32 *root = all + grid * %lldull;\n",
            (long long)all, (long long)n, (long long)n, (long long)n);
        if (pass == 0) {
            put(&e->body, "    root[i] = get(a[");
            put_offset(&e->body, &c, "g", is_small(&c));
            put(&e->body, "]) != 0 ? i : 0xffffffffu;\n  }\n");
        } else if (pass == 1)
            put(&e->body,
                "    if (root[i] != 0xffffffffu) components_join<@_p>(a, grid * %lldull, root, (int)i);\n  }\n",
                (long long)n);
        else put(&e->body, "    o[g] = root[i] == 0xffffffffu ? -1 : (i64)component_of(root, i);\n  }\n");
        emit_launch(e, labels[pass], (uint64_t)blocks, 1, 256);
    }
}

/* A block a class: one box after the other in their order, against all that are kept by now at once. */
static void emit_suppress(emit *e, uint32_t node) {
    uint32_t boxes = input(e, node, 0), orders = input(e, node, 1);
    const gn_view *b = view_of(e, boxes), *r = view_of(e, orders), *out = view_of(e, node);
    const int64_t *attrs = attrs_of(e, node);
    if (!gn_view_count(out)) {
        emit_nothing(e);
        return;
    }
    e->rereads = true;
    emit_node(e, boxes, types[b->dtype].name, true, "b");
    emit_node(e, orders, types[r->dtype].name, true, "r");
    emit_node(e, node, "i64", false, "o");
    emit_faults(e, node);
    put(&e->body,
        "  const i64 image = blockIdx.x / %lld, kind = blockIdx.x %% %lld;\n  b += image * %lldll;\n  r += image * "
        "%lldll + kind * %lldll;\n  o += (i64)blockIdx.x * %lldll;\n  i64 n = 0;\n  for (i64 i = 0; i < %lldll && n < "
        "%lldll; i++) {\n    const i64 at = r[i * %lldll];\n",
        (long long)out->dims[1], (long long)out->dims[1], (long long)b->strides[0], (long long)r->strides[0],
        (long long)r->strides[1], (long long)attrs[0], (long long)r->dims[2], (long long)attrs[0],
        (long long)r->strides[2]);
    put(&e->body,
        "    if (at < -1 || at >= %lldll) { if (threadIdx.x == 0) fault(err, OUT_OF_RANGE, node, at, %lldll); "
        "continue; "
        "}\n    if (at < 0) continue;\n    const box x = box_of(b + at * %lldll, %lldll, %d);\n    int hit = 0;\n    "
        "for "
        "(i64 k = threadIdx.x; k < n && !hit; k += 256) hit = box_hits(box_of(b + o[k] * %lldll, %lldll, %d), x, "
        "gn_f64(0x%llxull));\n    if (__syncthreads_or(hit)) continue;\n    if (threadIdx.x == 0) o[n] = at;\n    "
        "n++;\n  "
        "  __syncthreads();\n  }\n  for (i64 k = n + threadIdx.x; k < %lldll; k += 256) o[k] = -1;\n",
        (long long)b->dims[1], (long long)b->dims[1], (long long)b->strides[1], (long long)b->strides[2], attrs[2] != 0,
        (long long)b->strides[1], (long long)b->strides[2], attrs[2] != 0, (unsigned long long)attrs[1],
        (long long)attrs[0]);
    emit_launch(e, "suppress", (uint64_t)(out->dims[0] * out->dims[1]), 1, 256);
}

/* ---- rows by the weights of their experts ---- */

enum { EXPERT_ROWS = 16, EXPERT_COLUMNS = 64 }; /* of a block */

static const char expert_text[] =
    "// Rows grouped by id, group E of no expert, in one block: what stands before each group and of its tiles of 16 "
    "rows "
    "(E + 2 each), where the next row goes (E + 1), the rows\n"
    "// (N). P: I (id), E, N, id_at(row)\n"
    "template <class P> M void expert_groups(const typename P::I *ids, int *groups, u32 *err, u32 node) {\n"
    "  int *first = groups, *tiles = first + P::E + 2, *next = tiles + P::E + 2, *rows = next + P::E + 1;\n"
    "  __shared__ int last[2];\n"
    "  const int t = threadIdx.x;\n"
    "  for (int e = t; e <= P::E; e += 256) first[e] = 0;\n"
    "  __syncthreads();\n"
    "  for (int i = t; i < P::N; i += 256) {\n"
    "    const i64 id = ids[P::id_at(i)];\n"
    "    if (id < -1 || id >= P::E) fault(err, OUT_OF_RANGE, node, id, P::E);\n"
    "    atomicAdd((u32 *)first + (id < 0 || id >= P::E ? P::E : (int)id), 1u);\n"
    "  }\n"
    "  int before = 0, tiles_before = 0;\n"
    "  for (int base = 0; base <= P::E; base += 256) {\n"
    "    __syncthreads();\n"
    "    const int e = base + t, n = e <= P::E ? first[e] : 0, many = (n + 15) / 16;\n"
    "    const int upto = scan<run_sum<int>, int>(n), tiles_upto = scan<run_sum<int>, int>(many);\n"
    "    if (e <= P::E) { first[e] = next[e] = before + upto - n; tiles[e] = tiles_before + tiles_upto - many; }\n"
    "    if (t == 255) { last[0] = upto; last[1] = tiles_upto; }\n"
    "    __syncthreads();\n"
    "    before += last[0];\n"
    "    tiles_before += last[1];\n"
    "  }\n"
    "  if (t == 0) { first[P::E + 1] = before; tiles[P::E + 1] = tiles_before; }\n"
    "  for (int i = t; i < P::N; i += 256) {\n"
    "    const i64 id = ids[P::id_at(i)];\n"
    "    rows[atomicAdd((u32 *)next + (id < 0 || id >= P::E ? P::E : (int)id), 1u)] = i;\n"
    "  }\n"
    "}\n"
    "// Up to 16 rows of one group by 64 columns of its weight to a block of 256 threads, a thread 4 rows of a column. "
    "Which rows are together does not matter to their sums.\n"
    "// P: T, C, E, K, COLUMNS, SIDE blocks side by side, BIAS, strides XK, WE WK WM, BE BM, x_at(row)\n"
    "template <class P> M void expert_rows(const typename P::T *x, const typename P::T *w, const typename P::T *bias, "
    "const int *groups, typename P::T *o) {\n"
    "  typedef typename P::C C;\n"
    "  __shared__ C xs[32][17], ws[32][65];\n"
    "  __shared__ i64 row[16], from[16];\n"
    "  const int *first = groups, *tiles = first + P::E + 2, *rows = tiles + P::E + 2 + P::E + 1;\n"
    "  const int t = threadIdx.x, tile = (int)(blockIdx.x / P::SIDE), left = (int)(blockIdx.x % P::SIDE) * 64, col = "
    "left + (t & 63), mine = t / 64 * 4;\n"
    "  if (tile >= tiles[P::E + 1]) return;\n"
    "  int e = 0;\n"
    "  for (int end = P::E + 1; end - e > 1;) { const int mid = e + (end - e) / 2; if (tiles[mid] <= tile) e = mid; "
    "else "
    "end = mid; }\n"
    "  const int begin = first[e] + (tile - tiles[e]) * 16, n = first[e + 1] - begin < 16 ? first[e + 1] - begin : "
    "16;\n"
    "  if (t < n) { row[t] = rows[begin + t]; from[t] = P::x_at(row[t]); }\n"
    "  C sum[4] = { 0, 0, 0, 0 };\n"
    "  for (int base = 0; base < (e < P::E ? P::K : 0); base += 32) {\n"
    "    __syncthreads();\n"
    "    UNROLL for (int q = 0; q < 2; q++) { const int r = t / 32 + q * 8, k = t & 31; xs[k][r] = r < n && base + k < "
    "P::K ? get(x[from[r] + (base + k) * P::XK]) : (C)0; }\n"
    "    UNROLL for (int q = 0; q < 8; q++) {\n"
    "      const int i = t + q * 256, k = P::WK == 1 && P::WM != 1 ? i % 32 : i / 64, c = P::WK == 1 && P::WM != 1 ? i "
    "/ "
    "32 : i % 64;\n"
    "      ws[k][c] = base + k < P::K && left + c < P::COLUMNS ? get(w[e * P::WE + (base + k) * P::WK + (left + c) * "
    "P::WM]) "
    ": "
    "(C)0;\n"
    "    }\n"
    "    __syncthreads();\n"
    "    UNROLL for (int k = 0; k < 32; k++) UNROLL for (int r = 0; r < 4; r++) sum[r] = gn_fma(xs[k][mine + r], "
    "ws[k][t & "
    "63], sum[r]);\n"
    "  }\n"
    "  __syncthreads();\n"
    "  if (col >= P::COLUMNS) return;\n"
    "  const C add = P::BIAS && e < P::E ? get(bias[e * P::BE + col * P::BM]) : (C)0;\n"
    "  UNROLL for (int r = 0; r < 4; r++) if (mine + r < n) put(o[row[mine + r] * P::COLUMNS + col], sum[r] + add);\n"
    "}\n";

/* The ids of `node` grouped in scratch; rows and experts fit ints. */
static void emit_expert_groups(emit *e, uint32_t node, int64_t n, int64_t experts) {
    const gn_view *ids = view_of(e, input(e, node, 2));
    const char *type = types[ids->dtype].name;
    gn_view c = gn_view_collapse(ids);
    size_t bytes = (size_t)(3 * experts + 5 + n) * sizeof(int32_t);
    if (bytes > e->scratch) e->scratch = bytes;
    put(&e->types, "struct @_p { typedef %s I; enum { E = %lld, N = %lld }; static M i64 id_at(i64 row) { return ",
        type, (long long)experts, (long long)n);
    put_offset(&e->types, &c, "row", false);
    put(&e->types, "; } };\n");
    emit_node(e, input(e, node, 2), type, true, "ids");
    emit_pointer(e, "int", false, "groups", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_faults(e, node);
    put(&e->body, "  expert_groups<@_p>(ids, groups, err, node);\n");
    emit_launch(e, "expert_groups", 1, 1, 256);
}

static void emit_expert_linear(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *w = view_of(e, input(e, node, 1)),
                  *ids = view_of(e, input(e, node, 2));
    const gn_view *bias = e->part->nodes[node].n_ins > 3 ? view_of(e, input(e, node, 3)) : NULL;
    int64_t n = gn_view_count(ids), experts = w->dims[0], m = w->dims[2], across = blocks_for(m, EXPERT_COLUMNS);
    const char *type = types[x->dtype].name;
    char name[64];
    if (!n) return;
    if (n > 1 << 30 || experts > 1 << 28 || w->dims[1] > 1 << 30 || m > 1 << 30) {
        gn_fail(e->fault, GN_UNSUPPORTED, "%lld rows of %lld experts, (%lld,%lld): no kernel counts so many",
                (long long)n, (long long)experts, (long long)w->dims[1], (long long)m);
        e->failed = true;
        return;
    }
    emit_expert_groups(e, node, n, experts);
    if (!m) return;
    gn_view lead = *x; /* rows of x as those of ids */
    lead.rank = ids->rank;
    memcpy(lead.dims, ids->dims, sizeof lead.dims);
    if (x->rank == ids->rank) lead.strides[lead.rank - 1] = 0;
    lead.offset = 0;
    gn_view c = gn_view_collapse(&lead);
    put(&e->types,
        "struct @_p { typedef %s T; typedef %s C; enum { E = %lld, K = %lld, COLUMNS = %lld, SIDE = %lld, BIAS = %d "
        "};\n"
        "  static const i64 XK = %lldll, WE = %lldll, WK = %lldll, WM = %lldll, BE = %lldll, BM = %lldll;\n  static M "
        "i64 "
        "x_at(i64 row) { return ",
        type, types[x->dtype].compute, (long long)experts, (long long)w->dims[1], (long long)m, (long long)across,
        bias != NULL, (long long)x->strides[x->rank - 1], (long long)w->strides[0], (long long)w->strides[1],
        (long long)w->strides[2], (long long)(bias ? bias->strides[0] : 0), (long long)(bias ? bias->strides[1] : 0));
    put_offset(&e->types, &c, "row", false);
    put(&e->types, "; } };\n");
    emit_node(e, input(e, node, 0), type, true, "x");
    emit_node(e, input(e, node, 1), type, true, "w");
    if (bias) emit_node(e, input(e, node, 3), type, true, "bias");
    emit_pointer(e, "int", true, "groups", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_node(e, node, type, false, "o");
    put(&e->body, "  expert_rows<@_p>(x, w, %s, groups, o);\n", bias ? "bias" : "0");
    snprintf(name, sizeof name, "expert_rows_%s%s%s", gn_dtype_name(x->dtype), bias ? "_bias" : "",
             w->strides[1] == 1 && w->strides[2] != 1 ? "_across" : "");
    /* every group may end with a tile that is not full */
    int64_t groups = experts + 1 < n ? experts + 1 : n, tiles = (n - groups) / EXPERT_ROWS + groups;
    emit_launch(e, name, (uint64_t)(tiles * across), 1, 256);
}

/* ---- quantised weights ---- */

static const char quant_text[] =
    "D float fp8_float(u32 b) {                                          // e4m3\n"
    "  const u32 low = b & 0x7fu, bits = gn_u32(gn_f32(low << 20) * gn_f32(0x7b800000u)) | (b & 0x80u) << 24;\n"
    "  return gn_f32(low == 0x7fu ? 0x7fc00000u : bits);\n"
    "}\n"
    "// Quantised weights. P: F (format), U (elements that are read at once), K, N, GROUP, HAS_Z, WIDE (16 bytes "
    "at once), EVEN (2), S, Z (types of scales and zero points), WS0 WS1, ROWS, SS0 SS1, ZS0 ZS1\n"
    "template <class P> struct quant {\n"
    "  typedef typename P::SCALE S; typedef typename P::Z Z;\n"
    "  enum { F = P::F, U = P::U, BYTES = F == 65 ? U / 2 : U };\n"
    "  static M u32 byte(const u8 *p, int i) { return p[i * P::WS1]; }\n"
    "  static M u32 pair(const u8 *p, int i) { return P::EVEN ? (u32)*(const u16 *)(p + i) : byte(p, i) | "
    "byte(p, i + 1) << 8; }\n"
    "  static M u32 word(const u8 *p, int i) { return pair(p, i) | pair(p, i + 2) << 16; }\n"
    "  static M float half(const u8 *p, int i) { return half_float(pair(p, i)); }\n"
    "  static M float whole(u32 q, float z) { return gn_f32(0x4b000000u | q) - (8388608.f + z); }   // q - z "
    "without a conversion\n"
    "  static M float zero(const Z *z, i64 n, int k) { return P::HAS_Z ? (float)get(z[n / P::ROWS * P::ZS0 + k / "
    "P::GROUP * P::ZS1]) : F == 65 ? 8.f : 0.f; }\n"
    "  static M float group(const S *s, i64 n, int k) { return get(s[n / P::ROWS * P::SS0 + k / P::GROUP * "
    "P::SS1]); }\n"
    "  static M void scaled(const u8 *row, float z, int k, float *v) {\n"
    "    union { uint4 all[BYTES / 16 ? BYTES / 16 : 1]; u32 w[BYTES / 4 ? BYTES / 4 : 1]; } q;\n"
    "    const int at = F == 65 ? k / 2 : k;\n"
    "    if (BYTES < 4) q.w[0] = byte(row, at);\n"
    "    else if (P::WIDE) UNROLL for (int i = 0; i < BYTES / 16; i++) q.all[i] = *(const uint4 *)(row + at + 16 "
    "* i);\n"
    "    else UNROLL for (int i = 0; i < BYTES / 4; i++) q.w[i] = word(row, at + 4 * i);\n"
    "    widened<U>(q.w, z, v);\n"
    "  }\n"
    "  // 8388608 + byte i\n"
    "  static M float byte_float(u32 w, int i) {\n"
    "#ifdef GN_HOST\n"
    "    return gn_f32(0x4b000000u | (w >> 8 * i & 255u));\n"
    "#else\n"
    "    u32 y;\n"
    "    asm(\"prmt.b32 %0, %1, 0x4b000000, %2;\" : \"=r\"(y) : \"r\"(w), \"r\"(0x7440 + i));\n"
    "    return gn_f32(y);\n"
    "#endif\n"
    "  }\n"
    "  // The same as the next, eight at a time and in fewer steps\n"
    "  static M void eight(const u32 *w, float z, float *v) {\n"
    "    if (F == 65) {\n"
    "      const u32 even = w[0] & 0x0f0f0f0fu, odd = w[0] >> 4 & 0x0f0f0f0fu;\n"
    "      UNROLL for (int i = 0; i < 8; i++) v[i] = byte_float(i & 1 ? odd : even, i / 2) - (8388608.f + z);\n"
    "    } else if (F == 64) {\n"
    "      const u32 w0 = w[0] ^ 0x80808080u, w1 = w[1] ^ 0x80808080u;\n"
    "      UNROLL for (int i = 0; i < 8; i++) v[i] = byte_float(i < 4 ? w0 : w1, i % 4) - (8388608.f + (128.f + z));\n"
    "    } else {\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 890\n"
    "      UNROLL for (int i = 0; i < 4; i++) {\n"
    "        u32 two;\n"
    "        asm(\"{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a;}\" : \"=r\"(two) : \"r\"(w[i / 2] "
    ">> i % 2 * 16));\n"
    "        v[2 * i] = half_float(two & 0xffffu);\n"
    "        v[2 * i + 1] = half_float(two >> 16);\n"
    "      }\n"
    "#else\n"
    "      widened<8>(w, z, v);\n"
    "#endif\n"
    "    }\n"
    "  }\n"
    "  // N elements that follow one another in words\n"
    "  template <int N> static M void widened(const u32 *w, float z, float *v) {\n"
    "    UNROLL for (int i = 0; i < N; i++) {\n"
    "      if (F == 65) v[i] = whole(w[i / 8] >> i % 8 * 4 & 15u, z);\n"
    "      else {\n"
    "        const u32 b = w[i / 4] >> i % 4 * 8 & 255u;\n"
    "        v[i] = F == 66 ? fp8_float(b) : whole(b ^ 128u, 128.f + z);\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  // 32 elements: halves of 16 bytes from `at` on, a fifth bit of each in the word at `high`\n"
    "  static M void halves(const u8 *p, int at, int high, int less, float *v) {\n"
    "    const u32 fifth = high ? word(p, high) : 0u;\n"
    "    UNROLL for (int i = 0; i < 4; i++) {\n"
    "      const u32 w = word(p, at + 4 * i);\n"
    "      UNROLL for (int j = 0; j < 4; j++) {\n"
    "        const int e = 4 * i + j;\n"
    "        v[e] = whole((w >> 8 * j & 15u) | (fifth >> e & 1u) << 4, (float)less);\n"
    "        v[e + 16] = whole((w >> (8 * j + 4) & 15u) | (fifth >> (e + 16) & 1u) << 4, (float)less);\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  static M void times(float *v, float d, float m) { UNROLL for (int i = 0; i < 32; i++) v[i] = gn_fma(v[i], "
    "d, m); }\n"
    "  static M void four_k(const u8 *p, int j, float *v) {\n"
    "    const u8 *s = p + 4 * P::WS1;\n"
    "    const u32 up = j < 4 ? byte(s, j) & 63u : (byte(s, j + 4) & 15u) | byte(s, j - 4) >> 6 << 4, low = j < "
    "4 ? byte(s, j + 4) & 63u : byte(s, j + 4) >> 4 | byte(s, j) >> 6 << 4;\n"
    "    UNROLL for (int i = 0; i < 8; i++) {\n"
    "      const u32 w = word(p, (F == 13 ? 48 : 16) + j / 2 * 32 + 4 * i) >> j % 2 * 4 & 0x0f0f0f0fu, h = F == "
    "13 ? word(p, 16 + 4 * i) >> j & 0x01010101u : 0u;\n"
    "      UNROLL for (int b = 0; b < 4; b++) v[4 * i + b] = whole((w | h << 4) >> 8 * b & 31u, 0.f);\n"
    "    }\n"
    "    times(v, half(p, 0) * (float)(int)up, -(half(p, 2) * (float)(int)low));\n"
    "  }\n"
    "  static M void six_k(const u8 *p, int j, float *v) {                  // the 32 at j: two scales of 16\n"
    "    const int h = j / 4, in = j % 4;\n"
    "    const float d = half(p, 208), a = d * (float)(int)(i8)byte(p, 192 + 2 * j), b = d * "
    "(float)(int)(i8)byte(p, 193 + 2 * j);\n"
    "    UNROLL for (int i = 0; i < 8; i++) {\n"
    "      const u32 w = (word(p, 64 * h + in % 2 * 32 + 4 * i) >> in / 2 * 4 & 0x0f0f0f0fu) | (word(p, 128 + 32 "
    "* h + 4 * i) >> in * 2 & 0x03030303u) << 4;\n"
    "      UNROLL for (int c = 0; c < 4; c++) v[4 * i + c] = whole(w >> 8 * c & 63u, 32.f) * (i < 4 ? a : b);\n"
    "    }\n"
    "  }\n"
    "  // U elements of row n from k on: v[i] * *scale\n"
    "  static M void load(const u8 *w, const S *s, const Z *z, i64 n, int k, float *v, float *scale) {\n"
    "    const u8 *row = w + n * P::WS0;\n"
    "    *scale = 1.f;\n"
    "    if (F >= 64) { *scale = group(s, n, k); scaled(row, zero(z, n, k), k, v); return; }\n"
    "    const u8 *p = row + (i64)(k / P::BLOCK) * P::BLOCK_BYTES * P::WS1;\n"
    "    if (F == 12 || F == 13) { four_k(p, k % 256 / 32, v); return; }\n"
    "    if (F == 14) { six_k(p, k % 256 / 32, v); return; }\n"
    "    const float d = half(p, 0);\n"
    "    if (F == 8) {\n"
    "      UNROLL for (int i = 0; i < 8; i++) {\n"
    "        const u32 q = word(p, 2 + 4 * i);\n"
    "        UNROLL for (int b = 0; b < 4; b++) v[4 * i + b] = whole((q >> 8 * b & 255u) ^ 128u, 128.f);\n"
    "      }\n"
    "    } else halves(p, F == 2 ? 2 : F == 3 ? 4 : F == 6 ? 6 : 8, F == 6 ? 2 : F == 7 ? 4 : 0, F == 2 ? 8 : F "
    "== 6 ? 16 : 0, v);\n"
    "    if (F == 3 || F == 7) times(v, d, half(p, 2));\n"
    "    else *scale = d;\n"
    "  }\n"
    "};\n"
    "// ---- quantised weights on tensor cores: two elements to a word, as they are multiplied ----\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "D u32 bytes_of(u32 a, u32 b, int how) {                             // byte i of the result: nibble i of `how` "
    "names one of a's or b's\n"
    "  u32 r;\n"
    "#ifdef GN_HOST\n"
    "  r = 0;\n"
    "  for (int i = 0; i < 4; i++) r |= ((how >> 4 * i & 4 ? b : a) >> (how >> 4 * i & 3) * 8 & 255u) << 8 * i;\n"
    "#else\n"
    "  asm(\"prmt.b32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(how));\n"
    "#endif\n"
    "  return r;\n"
    "}\n"
    "// The bits of w that `mask` has, and those of `more`, in one instruction\n"
    "D u32 masked(u32 w, u32 mask, u32 more) {\n"
    "#ifdef GN_HOST\n"
    "  return (w & mask) | more;\n"
    "#else\n"
    "  u32 r;\n"
    "  asm(\"lop3.b32 %0, %1, %2, %3, 0xea;\" : \"=r\"(r) : \"r\"(w), \"r\"(mask), \"r\"(more));\n"
    "  return r;\n"
    "#endif\n"
    "}\n"
    "// Differences of whole numbers that the type can hold\n"
    "D u32 pairs_less(u32 a, u32 b, bf16) {\n"
    "  u32 r;\n"
    "#ifdef GN_HOST\n"
    "  r = gn_u32(gn_f32(a << 16) - gn_f32(b << 16)) >> 16 | (gn_u32(gn_f32(a & 0xffff0000u) - gn_f32(b & "
    "0xffff0000u)) & 0xffff0000u);\n"
    "#else\n"
    "  asm(\"fma.rn.bf16x2 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(b), \"r\"(0xbf80bf80u), \"r\"(a));\n"
    "#endif\n"
    "  return r;\n"
    "}\n"
    "D u32 pairs_less(u32 a, u32 b, f16) {\n"
    "  u32 r;\n"
    "#ifdef GN_HOST\n"
    "  r = float_half(half_float(a & 0xffffu) - half_float(b & 0xffffu)) | (u32)float_half(half_float(a >> 16) - "
    "half_float(b >> 16)) << 16;\n"
    "#else\n"
    "  asm(\"sub.f16x2 %0, %1, %2;\" : \"=r\"(r) : \"r\"(a), \"r\"(b));\n"
    "#endif\n"
    "  return r;\n"
    "}\n"
    "D u32 pair_to(float a, float b, f16) { return float_half(a) | (u32)float_half(b) << 16; }\n"
    "D u32 pair_to(float a, float b, bf16) {\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 900\n"
    "  u32 r;\n"
    "  asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(b), \"f\"(a));\n"
    "  return r;\n"
    "#else\n"
    "  return float_bfloat(a) | (u32)float_bfloat(b) << 16;\n"
    "#endif\n"
    "}\n"
    "// Bytes i and i + 2 of a word: 128 and the lower seven bits, less 128 or, where the eighth is set, 256: in bf16 "
    "that bit is\n"
    "// the exponent's last\n"
    "D u32 int8_pair(u32 w, int i, bf16 t) {\n"
    "  const u32 p = w >> 8 * i;\n"
    "  return pairs_less(masked(p, 0x007f007fu, 0x43004300u), masked(p, 0x00800080u, 0x43004300u), t);\n"
    "}\n"
    "D u32 int8_pair(u32 w, int i, f16 t) { return pairs_less(masked((w ^ 0x80808080u) >> 8 * i, 0x00ff00ffu, "
    "0x64006400u), 0x64806480u, t); }\n"
    "// Nibbles i and i + 4, less 8 unless zero points say what\n"
    "D u32 int4_pair(u32 w, int i, bool zeros, bf16 t) { return pairs_less(masked(w >> 4 * i, 0x000f000fu, "
    "0x43004300u), zeros ? 0x43004300u : 0x43084308u, t); }\n"
    "D u32 int4_pair(u32 w, int i, bool zeros, f16 t) { return pairs_less(masked(w >> 4 * i, 0x000f000fu, "
    "0x64006400u), zeros ? 0x64006400u : 0x64086408u, t); }\n"
    "D u32 fp8_half(u32 w, int half) {                                   // two of a word, in f16\n"
    "  u32 r;\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ < 890\n"
    "  r = 0;\n"
    "  for (int i = 0; i < 2; i++) r |= (u32)float_half(fp8_float(w >> (half * 16 + i * 8) & 255u)) << 16 * i;\n"
    "#else\n"
    "  if (half) asm(\"{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, b;}\" : \"=r\"(r) : \"r\"(w));\n"
    "  else asm(\"{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a;}\" : \"=r\"(r) : \"r\"(w));\n"
    "#endif\n"
    "  return r;\n"
    "}\n"
    "D u32 fp8_pair(u32 w, int half, f16) { return fp8_half(w, half); }\n"
    "D u32 fp8_pair(u32 w, int half, bf16 t) { const u32 two = fp8_half(w, half); return pair_to(half_float(two & "
    "0xffffu), half_float(two >> 16), t); }\n"
    "// PAIRS words of a word of the weight. z: the zero point, twice\n"
    "template <class P> struct quant_pairs {\n"
    "  typedef typename P::T T;\n"
    "  enum { PAIRS = P::F == 65 ? 4 : 2 };\n"
    "  static M void of(u32 w, u32 z, u32 *out) {\n"
    "    const T tag = T();\n"
    "    UNROLL for (int i = 0; i < PAIRS; i++) {\n"
    "      out[i] = P::F == 65 ? int4_pair(w, i, P::HAS_Z, tag) : P::F == 66 ? fp8_pair(w, i, tag) : int8_pair(w, i, "
    "tag);\n"
    "      if (P::HAS_Z) out[i] = pairs_less(out[i], z, tag);\n"
    "    }\n"
    "  }\n"
    "  // 8 of x as the pairs stand: two apart of each four for int8, four apart for int4\n"
    "  static M uint4 of_row(const uint4 &x) {\n"
    "    const int low = 0x5410, high = 0x7632;\n"
    "    uint4 r = x;\n"
    "    if (P::F == 64) r.x = bytes_of(x.x, x.y, low), r.y = bytes_of(x.x, x.y, high), r.z = bytes_of(x.z, x.w, low), "
    "r.w = bytes_of(x.z, x.w, high);\n"
    "    if (P::F == 65) r.x = bytes_of(x.x, x.z, low), r.y = bytes_of(x.x, x.z, high), r.z = bytes_of(x.y, x.w, low), "
    "r.w = bytes_of(x.y, x.w, high);\n"
    "    return r;\n"
    "  }\n"
    "};\n"
    "#endif\n"
    "// The sum of U products: of each eight, one after another, of which halves are joined.\n"
    "template <int U> M float quant_dot(const float *v, const float *x) {\n"
    "  enum { N = U / 8 ? U / 8 : 1, E = U / N };\n"
    "  float p[N];\n"
    "  UNROLL for (int j = 0; j < N; j++) {\n"
    "    p[j] = 0.f;\n"
    "    UNROLL for (int i = 0; i < E; i++) p[j] = gn_fma(v[j * E + i], x[j * E + i], p[j]);\n"
    "  }\n"
    "  UNROLL for (int h = N / 2; h > 0; h /= 2) UNROLL for (int j = 0; j < h; j++) p[j] += p[j + h];\n"
    "  return p[0];\n"
    "}\n"
    "// R rows of the weight to a warp, by up to MB rows of x. P too: T, M, MB, R, XV (x is read 16 bytes at "
    "once), BIAS, BS, x_at(row), XK\n"
    "template <class P> M void quant_rows(const typename P::T *x, const u8 *w, const typename P::SCALE *s, const "
    "typename P::Z *z, const typename P::T *bias, typename P::T *o) {\n"
    "  enum { U = P::U, R = P::R, MB = P::MB };\n"
    "  const int lane = threadIdx.x & 31, first = ((int)blockIdx.x * 8 + (int)(threadIdx.x >> 5)) * R, top = "
    "(int)blockIdx.y * MB;\n"
    "  float sum[R][MB];\n"
    "  UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < MB; m++) sum[r][m] = 0.f;\n"
    "  if (first >= P::N) return;\n"
    "  for (int k = lane * U; k < P::K; k += 32 * U) {\n"
    "    float v[R][U], scale[R];\n"
    "    UNROLL for (int r = 0; r < R; r++) quant<P>::load(w, s, z, first + r < P::N ? first + r : P::N - 1, k, "
    "v[r], &scale[r]);\n"
    "    UNROLL for (int m = 0; m < MB; m++) {\n"
    "      if (top + m >= P::ROWS_X) break;\n"
    "      const typename P::T *a = x + P::x_at(top + m) + (i64)k * P::XK;\n"
    "      typename P::T e[U];\n"
    "      float wide[U];\n"
    "      if (P::XV) vload<P::XV ? U : 1>(e, a); else UNROLL for (int i = 0; i < U; i++) e[i] = a[i * P::XK];\n"
    "      UNROLL for (int i = 0; i < U; i++) wide[i] = get(e[i]);\n"
    "      UNROLL for (int r = 0; r < R; r++) sum[r][m] = gn_fma(quant_dot<U>(v[r], wide), scale[r], sum[r][m]);\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < MB; m++) {\n"
    "    float y = sum[r][m];\n"
    "    UNROLL for (int bit = 16; bit > 0; bit /= 2) y += exchange(y, bit);\n"
    "    if (lane != 0 || first + r >= P::N || top + m >= P::ROWS_X) continue;\n"
    "    if (P::BIAS) y += get(bias[(first + r) * P::BS]);\n"
    "    put(o[(i64)(top + m) * P::N + first + r], y);\n"
    "  }\n"
    "}\n"
    "// Row n as it is without its format, U elements from k on. P too: PACKED: they begin at a multiple of 16 bytes\n"
    "template <class P> M void quant_widen(const u8 *w, const typename P::SCALE *s, const typename P::Z *z, i64 n, "
    "int k, typename P::T *o) {\n"
    "  float v[P::U], scale;\n"
    "  typename P::T out[P::U];\n"
    "  quant<P>::load(w, s, z, n, k, v, &scale);\n"
    "  UNROLL for (int i = 0; i < P::U; i++) put(out[i], v[i] * scale);\n"
    "  if (P::PACKED) vstore<P::PACKED ? P::U : 1>(o, out);\n"
    "  else UNROLL for (int i = 0; i < P::U; i++) o[i] = out[i];\n"
    "}\n"
    "D int quant_clamp(float v, int low, int high) { return v >= (float)high ? high : v > (float)low ? (int)v : "
    "low; }\n"
    "D u32 quant_to_fp8(float v) {\n"
    "  const float a = fabsf(v);\n"
    "  const u32 sign = gn_u32(v) >> 24 & 0x80u;\n"
    "  if (a != a) return sign | 0x7fu;\n"
    "  if (a >= 448.f) return sign | 0x7eu;\n"
    "  if (a < 0.015625f) return sign | (u32)rintf(a * 512.f);\n"
    "  const int e = (int)(gn_u32(a) >> 23) - 127;\n"
    "  return sign | (u32)((e + 7) * 8 + (int)rintf(a * gn_f32((u32)(127 + 3 - e) << 23)) - 8);\n"
    "}\n"
    "// What is stored of v / s with the zero point z\n"
    "template <class P> M u32 quant_step(float x, float s, float z) {\n"
    "  const float v = s != 0.f ? x / s : 0.f;\n"
    "  if (P::F == 66) return quant_to_fp8(v);\n"
    "  return (u32)quant_clamp(rintf(v) + z, P::F == 65 ? 0 : -128, P::F == 65 ? 15 : 127) & 255u;\n"
    "}\n"
    "// A block of 32 of GGUF's, as its own package makes it. P: F, x(i)\n"
    "template <class P, class X> M void quant_make_32(const X &x, u8 *p) {\n"
    "  const bool five = P::F == 6 || P::F == 7, least = P::F == 3 || P::F == 7;\n"
    "  float low = x(0), high = low, at = low, wild = 0.f;\n"
    "  for (int i = 0; i < 32; i++) {\n"
    "    const float v = x(i);\n"
    "    wild += v * 0.f;\n"
    "    if (v < low) low = v;\n"
    "    if (v > high) high = v;\n"
    "    if (fabsf(v) > fabsf(at)) at = v;\n"
    "  }\n"
    "  const float d = least ? (high - low) / (five ? 31.f : 15.f) : P::F == 8 ? fabsf(at) / 127.f : at / (five "
    "? -16.f : -8.f), id = d != 0.f ? 1.f / d : 0.f;\n"
    "  const u32 half = float_half(wild != 0.f ? gn_f32(0x7fc00000u) : d), lowest = float_half(low);\n"
    "  *p++ = (u8)half; *p++ = (u8)(half >> 8);\n"
    "  if (P::F == 8) {\n"
    "    for (int i = 0; i < 32; i++) {\n"
    "      const float v = x(i), a = fabsf(v * id);\n"
    "      float f = floorf(a);\n"
    "      f += floorf(2.f * (a - f));\n"
    "      p[i] = (u8)quant_clamp(v < 0.f ? -f : f, -128, 127);\n"
    "    }\n"
    "    return;\n"
    "  }\n"
    "  if (least) { *p++ = (u8)lowest; *p++ = (u8)(lowest >> 8); }\n"
    "  u8 *q = p + (five ? 4 : 0);\n"
    "  u32 fifth = 0u;\n"
    "  for (int i = 0; i < 16; i++) {\n"
    "    u32 two[2];\n"
    "    for (int h = 0; h < 2; h++) {\n"
    "      const float v = x(i + 16 * h), t = least ? (v - low) * id + 0.5f : (float)((double)v * (double)id + "
    "(five ? 16.5 : 8.5));\n"
    "      two[h] = (u32)quant_clamp(t, 0, five ? 31 : 15);\n"
    "      fifth |= two[h] >> 4 << (i + 16 * h);\n"
    "    }\n"
    "    q[i] = (u8)((two[0] & 15u) | (two[1] & 15u) << 4);\n"
    "  }\n"
    "  if (five) for (int i = 0; i < 4; i++) p[i] = (u8)(fifth >> 8 * i);\n"
    "}\n";

/* A quantised weight as kernels see it: data, then scales and zero points. */
typedef struct quant_form {
    uint32_t data, scales, zeros, bias; /* nodes; GN_NO_NODE: none */
    int64_t format, n, k, group, rows, unit;
    int elements, bytes;
    bool wide, even;
} quant_form;

/* `data`: its place among the node's inputs; `first`: that of the scales. */
static quant_form quant_of(const emit *e, uint32_t node, uint32_t data, uint32_t first) {
    const int64_t *attrs = attrs_of(e, node);
    quant_form q = { .format = attrs[0], .rows = attrs[2], .data = input(e, node, data) };
    q.scales = attrs[1] & 1 ? input(e, node, first++) : GN_NO_NODE;
    q.zeros = attrs[1] & 2 ? input(e, node, first++) : GN_NO_NODE;
    q.bias = attrs[1] & 4 ? input(e, node, first) : GN_NO_NODE;
    gn_quant_block((gn_quant)q.format, &q.elements, &q.bytes);
    return q;
}

static void quant_fit(const emit *e, quant_form *q, int64_t n, int64_t k) {
    q->n = n, q->k = k, q->group = k;
    q->unit = q->format == GN_QUANT_INT8 || q->format == GN_QUANT_FP8_E4M3 ? 16 : 32;
    if (q->scales != GN_NO_NODE) {
        const gn_view *s = view_of(e, q->scales);
        q->group = k / s->dims[1];
        if (!q->rows) q->rows = s->dims[0] ? n / s->dims[0] : 1;
        if (q->group % q->unit) q->unit = q->elements;
    }
    if (q->rows < 1) q->rows = 1;
}

/* Alignment of the data for loads of more than a byte. */
static void quant_lies(const emit *e, quant_form *q) {
    const gn_view *w = view_of(e, q->data);
    int64_t at = base_offset(e, q->data);
    q->even = w->strides[1] == 1 && w->strides[0] % 2 == 0 && at % 2 == 0;
    q->wide = w->strides[1] == 1 && w->strides[0] % 16 == 0 && at % 16 == 0;
}

/* Whether one kernel's text serves both: all but pointers and the number of rows is the same. */
static bool quant_alike(const emit *e, const quant_form *a, const quant_form *b) {
    const uint32_t nodes[2][3] = { { a->data, a->scales, a->zeros }, { b->data, b->scales, b->zeros } };
    for (int i = 0; i < 3; i++) {
        if ((nodes[0][i] == GN_NO_NODE) != (nodes[1][i] == GN_NO_NODE)) return false;
        if (nodes[0][i] == GN_NO_NODE) continue;
        const gn_view *x = view_of(e, nodes[0][i]), *y = view_of(e, nodes[1][i]);
        if (x->dtype != y->dtype || x->strides[0] != y->strides[0] || x->strides[1] != y->strides[1]) return false;
    }
    return a->format == b->format && a->k == b->k && a->group == b->group && a->rows == b->rows && a->unit == b->unit &&
           a->wide == b->wide && a->even == b->even;
}

/* Members of @_p. */
static void put_quant_type(emit *e, const quant_form *q, gn_dtype type, const char *more) {
    const gn_view *w = view_of(e, q->data), *s = q->scales != GN_NO_NODE ? view_of(e, q->scales) : NULL,
                  *z = q->zeros != GN_NO_NODE ? view_of(e, q->zeros) : NULL;
    put(&e->types,
        "struct @_p { typedef %s T; typedef %s SCALE; typedef %s Z; enum { F = %d, U = %d, K = %lld, N = %lld, GROUP = "
        "%lld, HAS_Z = %d, WIDE = %d, EVEN = %d, BLOCK = %d, BLOCK_BYTES = %d };\n  static const i64 WS0 = %lldll, WS1 "
        "= %lldll, ROWS = %lldll, SS0 = %lldll, SS1 = %lldll, ZS0 = %lldll, ZS1 = %lldll;\n%s};\n",
        types[type].name, s ? types[s->dtype].name : "float", z ? types[z->dtype].name : "u8", (int)q->format,
        (int)q->unit, (long long)q->k, (long long)q->n, (long long)q->group, z != NULL, q->wide, q->even, q->elements,
        q->bytes, (long long)w->strides[0], (long long)w->strides[1], (long long)q->rows,
        (long long)(s ? s->strides[0] : 0), (long long)(s ? s->strides[1] : 0), (long long)(z ? z->strides[0] : 0),
        (long long)(z ? z->strides[1] : 0), more);
}

/* Parameters "w", "s" and "z". */
static void emit_quant_inputs(emit *e, const quant_form *q) {
    emit_node(e, q->data, "u8", true, "w");
    if (q->scales != GN_NO_NODE) emit_node(e, q->scales, types[view_of(e, q->scales)->dtype].name, true, "s");
    if (q->zeros != GN_NO_NODE) emit_node(e, q->zeros, types[view_of(e, q->zeros)->dtype].name, true, "z");
}
static const char *quant_args(const quant_form *q) {
    return q->zeros != GN_NO_NODE ? "w, s, z" : q->scales != GN_NO_NODE ? "w, s, 0" : "w, 0, 0";
}

static const char *quant_label(const quant_form *q) {
    switch (q->format) {
#define GN__X(NAME, number, elements, bytes, text) \
    case number: return text;
        GN_QUANTS(GN__X)
#undef GN__X
    }
    return "";
}

static bool quant_counts(emit *e, const quant_form *q, int64_t n_rows) {
    if (q->k <= 1 << 30 && q->n <= 1 << 30 && n_rows <= 1 << 19) return true;
    gn_fail(e->fault, GN_UNSUPPORTED, "(%lld,%lld) of %s in groups of %lld, %lld rows: no GPU kernel counts so many",
            (long long)q->n, (long long)q->k, quant_label(q), (long long)q->group, (long long)n_rows);
    e->failed = true;
    return false;
}

/* Rows as they are without their format: all, or those that ids name. `to`: GN_DTYPE_NONE: the node's memory, else a
   dense matrix of that type in REGION_ROWS. */
static void emit_quant_widen(emit *e, uint32_t node, quant_form *q, uint32_t ids_node, gn_dtype to) {
    const gn_view *ids = ids_node != GN_NO_NODE ? view_of(e, ids_node) : NULL;
    gn_dtype d = to ? to : view_of(e, node)->dtype;
    int64_t n_rows = ids ? gn_view_count(ids) : q->n, units = q->k / q->unit, n = n_rows * units;
    char name[64];
    if (!quant_counts(e, q, 0) || !n) return;
    bool packed = q->unit * types[d].bytes % 16 == 0 && (to || base_offset(e, node) % 16 == 0);
    put_quant_type(e, q, d, packed ? "  enum { PACKED = 1 };\n" : "  enum { PACKED = 0 };\n");
    emit_quant_inputs(e, q);
    if (ids) emit_node(e, ids_node, types[ids->dtype].name, true, "ids");
    if (to) emit_pointer(e, types[d].name, false, "o", (param){ PARAM_PLAN, REGION_ROWS, 0 });
    else emit_node(e, node, types[d].name, false, "o");
    if (ids) emit_faults(e, node);
    put(&e->body,
        "  for (u64 g = (u64)blockIdx.x * 256 + threadIdx.x; g < %lldull; g += (u64)gridDim.x * 256) {\n    const i64 "
        "row = (i64)(g / %lldu);\n    const int k = (int)(g %% %lldu) * %d;\n    i64 n = row;\n",
        (long long)n, (long long)units, (long long)units, (int)q->unit);
    if (ids) {
        gn_view c = gn_view_collapse(ids);
        put(&e->body, "    n = ids[");
        put_offset(&e->body, &c, "row", false);
        put(&e->body,
            "];\n    if (n < 0 || n >= %lldll) { if (k == 0) fault(err, OUT_OF_RANGE, node, n, %lldll); continue; }\n",
            (long long)q->n, (long long)q->n);
    }
    put(&e->body, "    quant_widen<@_p>(%s, n, k, o + (row * %lldll + k));\n  }\n", quant_args(q), (long long)q->k);
    int64_t blocks = blocks_for(n, 256);
    snprintf(name, sizeof name, "%s_%s", ids ? "embedding" : "dequantize", quant_label(q));
    emit_launch(e, name, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

static void emit_dequantize(emit *e, uint32_t node) {
    const gn_view *out = view_of(e, node);
    quant_form q = quant_of(e, node, 0, 1);
    quant_fit(e, &q, out->dims[0], out->dims[1]);
    quant_lies(e, &q);
    emit_quant_widen(e, node, &q, GN_NO_NODE, GN_DTYPE_NONE);
}

static void emit_embedding_quantized(emit *e, uint32_t node) {
    const gn_view *out = view_of(e, node);
    quant_form q = quant_of(e, node, 0, 2);
    quant_fit(e, &q, view_of(e, q.data)->dims[0], out->dims[out->rank - 1]);
    quant_lies(e, &q);
    emit_quant_widen(e, node, &q, input(e, node, 1), GN_DTYPE_NONE);
}

/* Some rows of x: each row of the weight is read once for up to 8 of them. */
static void emit_quant_rows(emit *e, uint32_t node, const quant_form *q, int64_t n_rows) {
    uint32_t xn = input(e, node, 0);
    const gn_view *x = view_of(e, xn), *bias = q->bias != GN_NO_NODE ? view_of(e, q->bias) : NULL;
    const char *type = types[x->dtype].name;
    int bytes = types[x->dtype].bytes,
        most = e->invariant  ? 8
               : n_rows == 1 ? 1
               : n_rows == 2 ? 2
               : n_rows <= 4 ? 4
                             : 8,
        across = most < 4 ? 2 : 1;
    gn_view lead = *x;
    text more = { 0 };
    char name[64];
    lead.rank--, lead.offset = 0;
    gn_view c = gn_view_collapse(&lead);
    bool wide = x->strides[x->rank - 1] == 1 && base_offset(e, xn) % 16 == 0 && q->unit * bytes % 16 == 0;
    for (int i = 0; i < c.rank; i++) wide = wide && c.strides[i] * bytes % 16 == 0;
    put(&more,
        "  enum { ROWS_X = %lld, MB = %d, R = %d, XV = %d, BIAS = %d };\n  static const i64 XK = %lldll, BS = "
        "%lldll;\n  static M i64 x_at(i64 row) { return ",
        (long long)n_rows, most, across, wide, bias != NULL, (long long)x->strides[x->rank - 1],
        (long long)(bias ? bias->strides[0] : 0));
    put_offset(&more, &c, "row", false);
    put(&more, "; }\n");
    put_quant_type(e, q, x->dtype, more.s ? more.s : "");
    e->failed = e->failed || more.failed;
    text_free(&more);
    emit_node(e, xn, type, true, "x");
    emit_quant_inputs(e, q);
    if (bias) emit_node(e, q->bias, type, true, "bias");
    emit_node(e, node, type, false, "o");
    put(&e->body, "  quant_rows<@_p>(x, %s, %s, o);\n", quant_args(q), bias ? "bias" : "0");
    snprintf(name, sizeof name, "linear_%s_%s", quant_label(q), type);
    emit_launch(e, name, (uint64_t)blocks_for(q->n, 8 * across), (uint64_t)blocks_for(n_rows, most), 256);
}

enum { QUANT_FEW = 8 }; /* rows of x that read the weight as it lies */

/* More rows: the weight is widened to their dtype once, and is an operand like others then. */
static void emit_quant_product(emit *e, uint32_t node, quant_form *q, gn_dtype d) {
    gn_lay *lay = &e->layout->lay[q->data], kept = *lay;
    size_t bytes = gn_size_mul(gn_size_mul((size_t)q->n, (size_t)q->k), types[d].bytes);
    if (bytes > e->rows) e->rows = bytes;
    emit_quant_widen(e, node, q, GN_NO_NODE, d);
    lay->view = (gn_view){ .dtype = d, .rank = 2, .dims = { q->k, q->n }, .strides = { 1, q->k } };
    e->moved = q->data + 1;
    matmul x = matmul_of(e, node);
    product_form f = product_choose(e, &x.shape, d, asked_rank());
    product_bind(e, &x.p, &f, d, base_offset(e, x.xa), 0);
    emit_own_product(e, &x, f);
    e->moved = 0;
    *lay = kept;
}

static void emit_quant_linear(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *out = view_of(e, node);
    int64_t n = out->dims[out->rank - 1], k = x->dims[x->rank - 1], n_rows = n ? gn_view_count(out) / n : 0;
    quant_form q = quant_of(e, node, 1, 2);
    if (!n_rows) return;
    quant_fit(e, &q, n, k);
    quant_lies(e, &q);
    gn_view dense = gn_view_dense(x->dtype, x->rank, x->dims), w = gn_view_dense(x->dtype, 2, (int64_t[2]){ k, n });
    bool one = product_of(*x, w, out).m == product_of(dense, w, out).m; /* rows of x lie as those of a matrix */
    if (n_rows > QUANT_FEW && one && !e->invariant) emit_quant_product(e, node, &q, x->dtype);
    else if (quant_counts(e, &q, n_rows)) emit_quant_rows(e, node, &q, n_rows);
}

/* As it is made: by bytes, or by blocks of 32. */
static void emit_quantize(emit *e, uint32_t node) {
    uint32_t xn = input(e, node, 0);
    const gn_view *x = view_of(e, xn);
    quant_form q = quant_of(e, node, 0, 1);
    quant_fit(e, &q, x->dims[0], x->dims[1]);
    int each = q.elements == 32 ? 32 : q.elements;
    int64_t n = q.n * (q.k / each), blocks = blocks_for(n, 256);
    char name[64];
    q.unit = 1, q.data = node; /* its strides are those of dense rows */
    if (!n || !quant_counts(e, &q, 0)) return;
    put_quant_type(e, &q, x->dtype, "");
    emit_node(e, xn, types[x->dtype].name, true, "a");
    if (q.scales != GN_NO_NODE) emit_node(e, q.scales, types[view_of(e, q.scales)->dtype].name, true, "s");
    if (q.zeros != GN_NO_NODE) emit_node(e, q.zeros, types[view_of(e, q.zeros)->dtype].name, true, "z");
    emit_node(e, node, "u8", false, "o");
    put(&e->types, "struct @_x { const %s *a; M float operator()(int i) const { return get(a[i * %lldll]); } };\n",
        types[x->dtype].name, (long long)x->strides[1]);
    put(&e->body,
        "  for (u64 g = (u64)blockIdx.x * 256 + threadIdx.x; g < %lldull; g += (u64)gridDim.x * 256) {\n    const i64 "
        "n = (i64)(g / %lldu);\n    const int k = (int)(g %% %lldu) * %d;\n    const @_x x = { a + n * %lldll + (i64)k "
        "* %lldll };\n",
        (long long)n, (long long)(q.k / each), (long long)(q.k / each), each, (long long)x->strides[0],
        (long long)x->strides[1]);
    const char *zero = q.zeros != GN_NO_NODE ? "z" : "0";
    if (q.elements == 32) put(&e->body, "    quant_make_32<@_p>(x, o + g * %d);\n  }\n", q.bytes);
    else {
        put(&e->body, "    u32 b = quant_step<@_p>(x(0), quant<@_p>::group(s, n, k), quant<@_p>::zero(%s, n, k));\n",
            zero);
        if (q.elements == 2)
            put(&e->body,
                "    b |= quant_step<@_p>(x(1), quant<@_p>::group(s, n, k + 1), quant<@_p>::zero(%s, n, k + 1)) << "
                "4;\n",
                zero);
        put(&e->body, "    o[g] = (u8)b;\n  }\n");
    }
    snprintf(name, sizeof name, "quantize_%s", quant_label(&q));
    emit_launch(e, name, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* >>windows ==========================================================================================
 * Convolutions and pools. */

enum {
    CONV_TILE = 64,
    CONV_FEW = 4
}; /* filters and places of a block; filters of a group that get a thread a result */

static const char conv_text[] =
    "// P: T, C, TR (transposed), by axis I (sizes of x), O (of the result), K, S, DL, B (before), strides XN XC X0 X1 "
    "X2, WM WC W0 W1 W2, RN RM R0 R1 R2, BS; CG MG (channels, filters of a group), GROUPS, IMAGES, BIAS, RES, CLAMP, "
    "least(), most()\n"
    "// Where tap k meets x along an axis of place o: -1 where that is outside.\n"
    "template <bool TR> M i64 conv_at(i64 o, i64 k, i64 s, i64 d, i64 before, i64 in) {\n"
    "  if (!TR) { const i64 i = o * s + k * d - before; return i < in ? i : -1; }\n"
    "  const i64 q = o + before - k * d;\n"
    "  return q >= 0 && q % s == 0 && q / s < in ? q / s : -1;\n"
    "}\n"
    "template <class P> struct conv_place {\n"
    "  i64 n, a, b, c;\n"
    "  M conv_place(i64 p) { c = p % P::O2; b = p / P::O2 % P::O1; a = p / (P::O2 * P::O1) % P::O0; n = p / (P::O2 * "
    "P::O1 * P::O0); }\n"
    "  M typename P::C at(const typename P::T *x, i64 channel, i64 tap) const {\n"
    "    const i64 i = conv_at<P::TR>(a, tap / (P::K2 * P::K1), P::S0, P::DL0, P::B0, P::I0), j = conv_at<P::TR>(b, "
    "tap "
    "/ P::K2 % P::K1, P::S1, P::DL1, P::B1, P::I1), k = conv_at<P::TR>(c, tap % P::K2, P::S2, P::DL2, P::B2, P::I2);\n"
    "    return i < 0 || j < 0 || k < 0 ? (typename P::C)0 : get(x[n * P::XN + channel * P::XC + i * P::X0 + j * P::X1 "
    "+ k * P::X2]);\n"
    "  }\n"
    "  M void store(typename P::T *o, const typename P::T *bias, const typename P::T *residual, i64 m, typename P::C "
    "y) "
    "const {\n"
    "    if (P::BIAS) y += get(bias[m * P::BS]);\n"
    "    if (P::RES) y += get(residual[n * P::RN + m * P::RM + a * P::R0 + b * P::R1 + c * P::R2]);\n"
    "    if (P::CLAMP) y = y < P::least() ? P::least() : y > P::most() ? P::most() : y;\n"
    "    put(o[(((n * (P::MG * P::GROUPS) + m) * P::O0 + a) * P::O1 + b) * P::O2 + c], y);\n"
    "  }\n"
    "};\n"
    "template <class P> M typename P::T conv_filter(const typename P::T *w, i64 group, i64 m, i64 c, i64 tap) {\n"
    "  return w[(P::TR ? m : group * P::MG + m) * P::WM + (P::TR ? group * P::CG + c : c) * P::WC + tap / (P::K2 * "
    "P::K1) * P::W0 + tap / P::K2 % P::K1 * P::W1 + tap % P::K2 * P::W2];\n"
    "}\n"
    "template <class P> M typename P::C conv_weight(const typename P::T *w, i64 group, i64 m, i64 c, i64 tap) {\n"
    "  return get(conv_filter<P>(w, group, m, c, tap));\n"
    "}\n"
    "// A product of 64 filters with 64 places by a block of 256 threads; windows are gathered where they lie.\n"
    "template <class P> M void conv_tile(const typename P::T *x, const typename P::T *w, const typename P::T *bias, "
    "const typename P::T *residual, typename P::T *o) {\n"
    "  typedef typename P::C C;\n"
    "  __shared__ C xs[16][64], ws[16][65];\n"
    "  const i64 TAPS = P::K0 * P::K1 * P::K2, DEEP = TAPS * P::CG, PLACES = P::IMAGES * P::O0 * P::O1 * P::O2;\n"
    "  const i64 ACROSS = (PLACES + 63) / 64, DOWN = (P::MG + 63) / 64, tile = blockIdx.x % ACROSS * 64, group = "
    "blockIdx.x / ACROSS / DOWN, left = blockIdx.x / ACROSS % DOWN * 64;\n"
    "  const int t = threadIdx.x, tx = t & 15, ty = t >> 4;\n"
    "  const conv_place<P> mine(tile + (t & 63));\n"
    "  C sum[4][4] = {};\n"
    "  for (i64 base = 0; base < DEEP; base += 16) {\n"
    "    __syncthreads();\n"
    "    UNROLL for (int q = 0; q < 4; q++) {\n"
    "      const i64 k = base + t / 64 + q * 4;\n"
    "      xs[t / 64 + q * 4][t & 63] = k < DEEP && tile + (t & 63) < PLACES ? mine.at(x, group * P::CG + k / TAPS, k "
    "% "
    "TAPS) : (C)0;\n"
    "    }\n"
    "    UNROLL for (int q = 0; q < 4; q++) {\n"
    "      const i64 k = base + (t & 15), m = left + t / 16 + q * 16;\n"
    "      ws[t & 15][t / 16 + q * 16] = k < DEEP && m < P::MG ? conv_weight<P>(w, group, m, k / TAPS, k % TAPS) : "
    "(C)0;\n"
    "    }\n"
    "    __syncthreads();\n"
    "    UNROLL for (int k = 0; k < 16; k++) UNROLL for (int a = 0; a < 4; a++) UNROLL for (int b = 0; b < 4; b++) "
    "sum[a][b] = gn_fma(ws[k][ty * 4 + a], xs[k][tx + 16 * b], sum[a][b]);\n"
    "  }\n"
    "  UNROLL for (int b = 0; b < 4; b++) {\n"
    "    const conv_place<P> p(tile + tx + 16 * b);\n"
    "    UNROLL for (int a = 0; a < 4; a++) if (tile + tx + 16 * b < PLACES && left + ty * 4 + a < P::MG) p.store(o, "
    "bias, residual, group * P::MG + left + ty * 4 + a, sum[a][b]);\n"
    "  }\n"
    "}\n"
    "// A thread a result, where a group has few filters.\n"
    "template <class P> M void conv_each(const typename P::T *x, const typename P::T *w, const typename P::T *bias, "
    "const typename P::T *residual, typename P::T *o) {\n"
    "  const i64 TAPS = P::K0 * P::K1 * P::K2, OUT = P::O0 * P::O1 * P::O2, ALL = P::IMAGES * P::GROUPS * P::MG * "
    "OUT;\n"
    "  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < ALL; i += (i64)gridDim.x * 256) {\n"
    "    const i64 m = i / OUT % (P::MG * P::GROUPS), group = m / P::MG;\n"
    "    const conv_place<P> p(i / OUT / (P::MG * P::GROUPS) * OUT + i % OUT);\n"
    "    typename P::C sum = 0;\n"
    "    for (i64 c = 0; c < P::CG; c++) for (i64 k = 0; k < TAPS; k++) sum = gn_fma(conv_weight<P>(w, group, m % "
    "P::MG, c, k), p.at(x, group * P::CG + c, k), sum);\n"
    "    p.store(o, bias, residual, m, sum);\n"
    "  }\n"
    "}\n";

static void put_axes(text *t, const char *name, const int64_t *of, int n, int64_t otherwise) {
    for (int i = 0; i < 3; i++)
        put(t, ", %s%d = %lldll", name, i, (long long)(i < 3 - n ? otherwise : of[i - (3 - n)]));
}

/* What conv_text calls P. */
static void put_conv(emit *e, uint32_t node, const gn_view *bias, const gn_view *residual) {
    const gn_view *x = view_of(e, input(e, node, 0)), *w = view_of(e, input(e, node, 1)), *out = view_of(e, node);
    const int64_t *a = attrs_of(e, node);
    int64_t s[4][3] = { { 0 } }, groups = a[1], none[GN_MAX_RANK] = { 0 };
    int n = x->rank - 2, transposed = a[0] & 1;
    text *t = &e->types;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) s[k][i] = a[4 + 4 * i + k];
    put(t, "struct @_p { typedef %s T; typedef %s C; enum { TR = %d, BIAS = %d, RES = %d, CLAMP = %d };\n",
        types[x->dtype].name, types[x->dtype].compute, transposed, bias != NULL, residual != NULL,
        word_f64(a[2]) > -INFINITY || word_f64(a[3]) < INFINITY);
    put(t, "  static const i64 GROUPS = %lldll, CG = %lldll, MG = %lldll, IMAGES = %lldll", (long long)groups,
        (long long)(x->dims[1] / groups), (long long)(out->dims[1] / groups), (long long)x->dims[0]);
    put(t, ", XN = %lldll, XC = %lldll, WM = %lldll, WC = %lldll, BS = %lldll, RN = %lldll, RM = %lldll",
        (long long)x->strides[0], (long long)x->strides[1], (long long)w->strides[transposed],
        (long long)w->strides[1 - transposed], (long long)(bias ? bias->strides[0] : 0),
        (long long)(residual ? residual->strides[0] : 0), (long long)(residual ? residual->strides[1] : 0));
    put_axes(t, "I", x->dims + 2, n, 1);
    put_axes(t, "O", out->dims + 2, n, 1);
    put_axes(t, "K", w->dims + 2, n, 1);
    put_axes(t, "S", s[0], n, 1);
    put_axes(t, "DL", s[1], n, 1);
    put_axes(t, "B", s[2], n, 0);
    put_axes(t, "X", x->strides + 2, n, 0);
    put_axes(t, "W", w->strides + 2, n, 0);
    put_axes(t, "R", residual ? residual->strides + 2 : none, n, 0);
    put(t,
        ";\n  static M C least() { return (C)gn_f64(0x%llxull); }\n  static M C most() { return (C)gn_f64(0x%llxull); "
        "}\n};\n",
        (unsigned long long)a[2], (unsigned long long)a[3]);
}

/* ---- on tensor cores: a product of the filters with rows of channels that the places' windows pick ---- */

static const char conv_rows_text[] =
    "// x as rows of channels: (images, places, groups, CP), zeros from channel CG of a group on; tiles of 64 by 64. "
    "P: XN XC X0 X1 X2 (strides), I1 I2, IN (places), CG CP GROUPS, V places that are read at once, ACROSS, DOWN "
    "(tiles)\n"
    "// FEW: eight channels in all, a thread a place.\n"
    "template <class P> M void conv_lay_few(const u16 *x, u16 *o, int block) {\n"
    "  const int at = block % P::ACROSS * 256 + threadIdx.x;\n"
    "  const i64 n = block / P::ACROSS, from = n * P::XN + at / (P::I1 * P::I2) * P::X0 + at / P::I2 % P::I1 * P::X1 + "
    "at % P::I2 * P::X2;\n"
    "  u16 v[8];\n"
    "  if (at >= P::IN) return;\n"
    "  UNROLL for (int c = 0; c < 8; c++) v[c] = c < P::CG ? x[from + c * P::XC] : (u16)0;\n"
    "  vstore<8>(o + (n * P::IN + at) * 8, v);\n"
    "}\n"
    "template <class P> M void conv_lay(const u16 *x, u16 *o, int block) {\n"
    "  if (P::FEW) { conv_lay_few<P>(x, o, block); return; }\n"
    "  __shared__ u16 tile[64][66];\n"
    "  enum { EACH = 64 / P::V, LINES = 256 / EACH, WIDTH = P::GROUPS * P::CP };\n"
    "  const int t = threadIdx.x, place = block % P::ACROSS * 64, left = block / P::ACROSS % P::DOWN * 64;\n"
    "  const i64 n = block / (P::ACROSS * P::DOWN);\n"
    "  UNROLL for (int q = 0; q < 64 / LINES; q++) {\n"
    "    const int c = t / EACH + q * LINES, p = t % EACH * P::V, at = place + p, g = (left + c) / P::CP, k = (left + "
    "c) % P::CP;\n"
    "    u16 v[P::V] = {};\n"
    "    if (left + c < WIDTH && k < P::CG && at < P::IN) vload<P::V>(v, x + n * P::XN + (g * P::CG + k) * P::XC + at "
    "/ (P::I1 * P::I2) * P::X0 + at / P::I2 % P::I1 * P::X1 + at % P::I2 * P::X2);\n"
    "    UNROLL for (int j = 0; j < P::V; j++) tile[c][p + j] = v[j];\n"
    "  }\n"
    "  __syncthreads();\n"
    "  UNROLL for (int q = 0; q < 2; q++) {\n"
    "    const int i = t + q * 256, p = i / 8, c = i % 8 * 8;\n"
    "    u16 v[8];\n"
    "    UNROLL for (int j = 0; j < 8; j++) v[j] = tile[c + j][p];\n"
    "    if (place + p < P::IN && left + c < WIDTH) vstore<8>(o + (n * P::IN + place + p) * WIDTH + left + c, v);\n"
    "  }\n"
    "}\n"
    "// The filters as rows of (taps, CP) elements, zeros from channel CG on: a thread writes two channels of all "
    "taps. P as for conv_tile; TURNED: the last tap first\n"
    "template <class P, int CP, bool TURNED> M void conv_filters(const typename P::T *w, typename P::T *o, int block) "
    "{\n"
    "  enum { TAPS = P::K0 * P::K1 * P::K2, HALF = CP / 2 };\n"
    "  const i64 i = (i64)block * 256 + threadIdx.x, c = i % HALF * 2, m = i / HALF;\n"
    "  const typename P::T none = {};\n"
    "  if (m >= P::GROUPS * P::MG) return;\n"
    "  _Pragma(\"unroll 4\") for (int tap = 0; tap < TAPS; tap++) {\n"
    "    typename P::T v[2];\n"
    "    UNROLL for (int j = 0; j < 2; j++) v[j] = c + j < P::CG ? conv_filter<P>(w, m / P::MG, m % P::MG, c + j, "
    "TURNED ? TAPS - 1 - tap : tap) : none;\n"
    "    vstore<2>(o + (m * TAPS + tap) * CP + c, v);\n"
    "  }\n"
    "}\n"
    "// Of a warp's 8 rows of 32 columns, of which each of four lanes has two of every eight: eight neighbours of a "
    "row to each lane, or (DOWN) of a column; from column conv_lane on.\n"
    "template <bool DOWN> M int conv_lane() { const int l = threadIdx.x & 31; return DOWN ? l / 8 * 8 + l % 4 * 2 + l "
    "/ 4 % 2 : l % 4 * 8; }\n"
    "template <bool DOWN> M void conv_turn(float *v) {\n"
    "  const int l = threadIdx.x & 31;\n"
    "  enum { STEP = DOWN ? 1 : 2, LANES = DOWN ? 4 : 1 };\n"
    "  UNROLL for (int bit = 1; bit < 8 / STEP; bit *= 2) {\n"
    "    const bool up = l / LANES & bit;\n"
    "    UNROLL for (int i = 0; i < 8; i++) {\n"
    "      if (i / STEP & bit) continue;\n"
    "      const float in = __shfl_xor_sync(0xffffffffu, up ? v[i] : v[i + bit * STEP], bit * LANES);\n"
    "      v[i] = up ? in : v[i];\n"
    "      v[i + bit * STEP] = up ? v[i + bit * STEP] : in;\n"
    "    }\n"
    "  }\n"
    "}\n"
    "// The residual of 8 sums: of filter m at the places from column p on, or (KEEP) of the filters from m on at "
    "place p. P: T, m (filters of a group), PITCH (columns of an image), FILTERS, PLACES (all columns), OUT (places of "
    "an image), V (places that are stored at once), BIAS, RES, CLAMP, BS; KEEP: the result is rows of channels; DENSE: "
    "the residual lies as the result, else RN RM R0 R1 R2, O1 O2\n"
    "template <class P> M i64 conv_apart(int n, int f, int at) { return (i64)n * P::RN + f * P::RM + at / (P::O1 * "
    "P::O2) * P::R0 + at / P::O2 % P::O1 * P::R1 + at % P::O2 * P::R2; }\n"
    "template <class P> M void conv_residual(typename P::T *r, const typename P::T *residual, int group, int m, int p) "
    "{\n"
    "  enum { V = P::KEEP ? 1 : P::V };\n"
    "  if (!P::RES || m >= P::m) return;\n"
    "  const int f = group * P::m + m;\n"
    "  UNROLL for (int i = 0; i < (P::KEEP ? 1 : 8); i += V) {\n"
    "    const int n = (p + i) / P::PITCH, at = (p + i) % P::PITCH;\n"
    "    if (p + i >= P::PLACES || at >= P::OUT) continue;\n"
    "    if (P::DENSE && P::KEEP) vload<8>(r, residual + ((i64)n * P::OUT + at) * P::FILTERS + f);\n"
    "    else if (P::DENSE) vload<V>(r + i, residual + ((i64)n * P::FILTERS + f) * P::OUT + at);\n"
    "    else UNROLL for (int j = 0; j < (P::KEEP ? 8 : (int)V); j++) r[i + j] = P::KEEP ? residual[conv_apart<P>(n, f "
    "+ j, at)] : residual[conv_apart<P>(n, f, at + j)];\n"
    "  }\n"
    "}\n"
    "// Sums of filter m at 8 places from column p on, with what follows them; r: their residual.\n"
    "template <class P> M void conv_put(const typename P::T *bias, const typename P::T *r, typename P::T *o, int "
    "group, int m, int p, const float *v) {\n"
    "  if (m >= P::m) return;\n"
    "  const int f = group * P::m + m;\n"
    "  const float more = P::BIAS ? get(bias[f * P::BS]) : 0.f;\n"
    "  UNROLL for (int i = 0; i < 8; i += P::V) {\n"
    "    const int n = (p + i) / P::PITCH, at = (p + i) % P::PITCH;\n"
    "    if (p + i >= P::PLACES || at >= P::OUT) continue;\n"
    "    typename P::T y[P::V];\n"
    "    UNROLL for (int j = 0; j < P::V; j++) {\n"
    "      float s = v[i + j];\n"
    "      if (P::BIAS) s += more;\n"
    "      if (P::RES) s += get(r[i + j]);\n"
    "      if (P::CLAMP) s = s < P::least() ? P::least() : s > P::most() ? P::most() : s;\n"
    "      put(y[j], s);\n"
    "    }\n"
    "    vstore<P::V>(o + ((i64)n * P::FILTERS + f) * P::OUT + at, y);\n"
    "  }\n"
    "}\n"
    "// The same of 8 filters from m on at one place, which become a part of a row of channels.\n"
    "template <class P> M void conv_keep(const typename P::T *bias, const typename P::T *r, typename P::T *o, int "
    "group, int m, int p, const float *v) {\n"
    "  const int n = p / P::PITCH, at = p % P::PITCH, f = group * P::m + m;\n"
    "  if (m >= P::m || p >= P::PLACES || at >= P::OUT) return;\n"
    "  typename P::T y[8];\n"
    "  UNROLL for (int j = 0; j < 8; j++) {\n"
    "    float s = v[j];\n"
    "    if (P::BIAS) s += get(bias[(f + j) * P::BS]);\n"
    "    if (P::RES) s += get(r[j]);\n"
    "    if (P::CLAMP) s = s < P::least() ? P::least() : s > P::most() ? P::most() : s;\n"
    "    put(y[j], s);\n"
    "  }\n"
    "  vstore<8>(o + ((i64)n * P::OUT + at) * P::FILTERS + f, y);\n"
    "}\n"
    "// Of a warp's sums of 8 rows from m on at 32 columns from `col` on: their residual, and what is stored.\n"
    "template <class P> M void conv_before(typename P::T *r, const typename P::T *residual, int group, int m, int col) "
    "{\n"
    "  if (P::RES) conv_residual<P>(r, residual, group, P::KEEP ? m : m + (threadIdx.x >> 2 & 7), col + "
    "conv_lane<P::KEEP>());\n"
    "}\n"
    "template <class P> M void conv_store(const typename P::T *bias, const typename P::T *r, typename P::T *o, int "
    "group, int m, int col, float *v) {\n"
    "  conv_turn<P::KEEP>(v);\n"
    "  const int p = col + conv_lane<P::KEEP>();\n"
    "  if (P::KEEP) conv_keep<P>(bias, r, o, group, m, p, v); else conv_put<P>(bias, r, o, group, m + (threadIdx.x >> "
    "2 & 7), p, v);\n"
    "}\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "D int conv_meet(int start, int tap, int step, int dilation, int in, bool transposed) {\n"
    "  if (!transposed) { const int i = start + tap * dilation; return (u32)i < (u32)in ? i : -1; }\n"
    "  const int q = start - tap * dilation;\n"
    "  return q >= 0 && q % step == 0 && q / step < in ? q / step : -1;\n"
    "}\n"
    "// BM filters by BW places, which 8 warps share as WM by WN; four stages of STEP k. P as for conv_put; TR, by "
    "axis "
    "I, O, K, S, DL, B, strides YN Y0 Y1 Y2 of the rows, CG (from group to group), CP (of a tap), DEEP (all k), ROWS, "
    "COLS\n"
    "template <class P> M void conv_tensor(const typename P::T *x, const typename P::T *w, const typename P::T *bias, "
    "const typename P::T *residual, typename P::T *o) {\n"
    "  typedef tensor_side<typename P::T, P::BM, P::STEP, 8, true> side_a;\n"
    "  typedef tensor_side<typename P::T, P::BW, P::STEP, 8, true> side_b;\n"
    "  enum { EACH = P::STEP / 8, N = P::BW * EACH / 256, MI = P::BM / P::WM / 16, NJ = P::BW / P::WN / 8, CELLS = MI "
    "* NJ * 4, A = side_a::BYTES, STAGE = A + side_b::BYTES, STAGES = 4, STEPS = (P::DEEP + P::STEP - 1) / P::STEP };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  const u32 base = shared_address(memory);\n"
    "  const int t = threadIdx.x, warp = t >> 5, l = t & 31, wm = warp / P::WN * (P::BM / P::WM), wn = warp % P::WN * "
    "(P::BW / P::WN), piece = t % EACH * 8;\n"
    "  u32 z;\n"
    "  int row, col;\n"
    "  product_tile<P>(blockIdx.x, &z, &row, &col);\n"
    "  const int rows = P::m - row < P::BM ? P::m - row : P::BM;\n"
    "  w += ((i64)z * P::m + row) * P::DEEP;\n"
    "  x += (i64)z * P::CG;\n"
    "  const typename P::T *from[N];\n"
    "  int at0[N], at1[N], at2[N];\n"
    "  UNROLL for (int q = 0; q < N; q++) {\n"
    "    const int p = col + t / EACH + q * (256 / EACH), n = p / P::OUT, a = p % P::OUT / (P::O1 * P::O2), b = p / "
    "P::O2 % P::O1, c = p % P::O2;\n"
    "    from[q] = x + (p < P::PLACES ? n * P::YN : 0);\n"
    "    at0[q] = p >= P::PLACES ? -(1 << 30) : P::TR ? a + P::B0 : a * P::S0 - P::B0;\n"
    "    at1[q] = P::TR ? b + P::B1 : b * P::S1 - P::B1;\n"
    "    at2[q] = P::TR ? c + P::B2 : c * P::S2 - P::B2;\n"
    "  }\n"
    "  side_a sa;\n"
    "  float acc[CELLS];\n"
    "  UNROLL for (int i = 0; i < CELLS; i++) acc[i] = 0.f;\n"
    "  for (int step = 1 - STAGES; step < STEPS; step++) {\n"
    "    const int next = step + STAGES - 1, to = next % STAGES * STAGE, k = next * P::STEP;\n"
    "    if (step >= 0) { copy_wait<STAGES - 2>(); __syncthreads(); }\n"
    "    if (next < STEPS) {\n"
    "      const int mine = k + piece, tap = mine / P::CP, c = mine % P::CP, t0 = tap / (P::K1 * P::K2), t1 = tap / "
    "P::K2 % P::K1, t2 = tap % P::K2;\n"
    "      sa.template fetch<false, P::DEEP, 1>(base + to, w + k, rows, P::DEEP - k < P::STEP ? P::DEEP - k : "
    "P::STEP);\n"
    "      UNROLL for (int q = 0; q < N; q++) {\n"
    "        const int i0 = conv_meet(at0[q], t0, P::S0, P::DL0, P::I0, P::TR), i1 = conv_meet(at1[q], t1, P::S1, "
    "P::DL1, P::I1, P::TR), i2 = conv_meet(at2[q], t2, P::S2, P::DL2, P::I2, P::TR);\n"
    "        const bool is = mine < P::DEEP && i0 >= 0 && i1 >= 0 && i2 >= 0;\n"
    "        copy16(base + to + A + side_b::at(t / EACH + q * (256 / EACH), piece * 2), is ? from[q] + (i0 * P::Y0 + "
    "i1 * P::Y1 + i2 * P::Y2 + c) : x, is ? 16 : 0);\n"
    "      }\n"
    "    }\n"
    "    copy_commit();\n"
    "    if (step >= 0) tensor_step<P, side_a, side_b>(acc, memory + step % STAGES * STAGE, 0, wm, wn);\n"
    "  }\n"
    "  let_next_start();\n"
    "  UNROLL for (int i = 0; i < MI * 2; i++) UNROLL for (int j = 0; j < NJ; j += 4) {\n"
    "    float v[8];\n"
    "    UNROLL for (int b = 0; b < 8; b++) v[b] = acc[(i / 2 * NJ + j + b / 2) * 4 + i % 2 * 2 + b % 2];\n"
    "    typename P::T r[8];\n"
    "    conv_before<P>(r, residual, (int)z, row + wm + i / 2 * 16 + i % 2 * 8, col + wn + j * 8);\n"
    "    conv_store<P>(bias, r, o, (int)z, row + wm + i / 2 * 16 + i % 2 * 8, col + wn + j * 8, v);\n"
    "  }\n"
    "}\n"
    "#endif\n";

/* For sm_90a only. */
static const char warpgroup_conv_text[] =
    "// BM filters by BW places: two groups of warps, one below the other (BM 128) or side by side (BM 64), WIDE "
    "places "
    "each, and a warp that feeds them through STAGES of 64 k: the filters by boxes, windows by TMA's im2col mode.\n"
    "// FLAT: one tap, and places side by side in memory, which boxes of 64 take as they lie. P as for conv_tensor; "
    "PIECES of 64 channels of a tap, TOTAL tiles, mma(d, a, b)\n"
    "template <class P> M void conv_feed(const tmap *filters, const tmap *rows, u32 base, u32 full, u32 empty, "
    "int first, int steps) {\n"
    "  enum { A = P::BM * 128, STAGE = A + P::BW * 128 };\n"
    "  u32 it = 0, z;\n"
    "  int row, col;\n"
    "  for (u32 tile = blockIdx.x / P::KC; tile < P::TOTAL; tile += gridDim.x / P::KC) {\n"
    "    product_tile<P>(tile, &z, &row, &col);\n"
    "    const int n = col / P::OUT, h = col % P::OUT / P::O2 * P::S1 - P::B1, w = col % P::O2 * P::S2 - P::B2, "
    "channel "
    "= (int)z * P::CG;\n"
    "    for (int k = first; k < first + steps; k++, it++) {\n"
    "      const u32 s = it % P::STAGES, to = base + s * STAGE, bar = full + 8 * s;\n"
    "      const int tap = k / P::PIECES, c = k % P::PIECES * 64;\n"
    "      bar_wait(empty + 8 * s, (it / P::STAGES & 1) ^ 1);\n"
    "      bar_expect(bar, STAGE);\n"
    "      box_load(to, filters, k * 64, (int)z * P::m + row, 0, 0, bar);\n"
    "      if (!P::FLAT) window_load(to + A, rows, channel + c, w, h, n, tap % P::K2 * P::DL2, tap / P::K2 * P::DL1, "
    "bar);\n"
    "      else UNROLL for (int i = 0; i < P::BW; i += 64) box_load(to + A + i * 128, rows, (col + i) % P::PITCH, "
    "channel + c, (col + i) / P::PITCH, 0, bar);\n"
    "    }\n"
    "  }\n"
    "}\n"
    "template <class P> M void conv_products(float *d, u32 base, u32 full, u32 it) {   // of one stage, on their way\n"
    "  enum { A = P::BM * 128, STAGE = A + P::BW * 128 };\n"
    "  const u32 s = it % P::STAGES, at = base + s * STAGE, wg = threadIdx.x >> 7;\n"
    "  bar_wait(full + 8 * s, it / P::STAGES & 1);\n"
    "  wgmma_fence();\n"
    "  const u64 a = panel(at + (P::BM > 64 ? wg * 8192 : 0), 8192), b = panel(at + A + (P::BM > 64 ? 0 : wg * "
    "(P::WIDE * 128)), 8192);\n"
    "  UNROLL for (int q = 0; q < 4; q++) P::mma(d, a + q * 2, b + q * (P::FLAT ? 128 : 2));\n"
    "  wgmma_commit();\n"
    "}\n"
    "template <class P> M void conv_release(u32 empty, u32 it) { if ((threadIdx.x & 127) == 0) bar_arrive(empty + 8 * "
    "(it % P::STAGES)); }\n"
    "// The sums of a tile: a group's share of this block's steps. The last has a wait of its own: see wgmma_sums.\n"
    "template <class P> M void conv_sums(float *d, u32 base, u32 full, u32 empty, u32 &it, int steps) {\n"
    "  UNROLL for (int i = 0; i < P::WIDE / 2; i++) d[i] = 0.f;\n"
    "  for (int k = 1; k < steps; k++, it++) {\n"
    "    conv_products<P>(d, base, full, it);\n"
    "    wgmma_wait<1>();\n"
    "    if (k > 1) conv_release<P>(empty, it - 1);\n"
    "  }\n"
    "  conv_products<P>(d, base, full, it);\n"
    "  wgmma_wait<0>();\n"
    "  wgmma_keep<P::WIDE / 2>(d);\n"
    "  if (steps > 1) conv_release<P>(empty, it - 1);\n"
    "  conv_release<P>(empty, it++);\n"
    "}\n"
    "// KC blocks of a cluster share the steps of a tile: each adds some rows of their sums, which lie from base on.\n"
    "template <class P> M void conv_join(const typename P::T *bias, const typename P::T *residual, typename P::T *o, "
    "u32 "
    "base, u32 rank) {\n"
    "  enum { ALONG = P::KEEP ? P::BM : P::BW, LINES = (P::KEEP ? P::BW : P::BM) / P::KC };\n"
    "  u32 z;\n"
    "  int row, col;\n"
    "  product_tile<P>(blockIdx.x / P::KC, &z, &row, &col);\n"
    "  for (int i = threadIdx.x; i < LINES * (ALONG / 8); i += 256) {\n"
    "    const int r = (int)rank * LINES + i / (ALONG / 8), c = i % (ALONG / 8) * 8;\n"
    "    float v[8] = {};\n"
    "    UNROLL for (int p = 0; p < P::KC; p++) UNROLL for (int h = 0; h < 8; h += 4) {\n"
    "      const float4 q = cluster_load4(base + (r * (ALONG + 8) + c + h) * 4, p);\n"
    "      v[h] += q.x; v[h + 1] += q.y; v[h + 2] += q.z; v[h + 3] += q.w;\n"
    "    }\n"
    "    typename P::T more[8];\n"
    "    conv_residual<P>(more, residual, (int)z, row + (P::KEEP ? c : r), col + (P::KEEP ? r : c));\n"
    "    if (P::KEEP) conv_keep<P>(bias, more, o, (int)z, row + c, col + r, v); else conv_put<P>(bias, more, o, "
    "(int)z, row + r, col + c, v);\n"
    "  }\n"
    "}\n"
    "template <class P> M void conv_fed(const tmap *filters, const tmap *rows, const typename P::T *bias, const "
    "typename P::T *residual, typename P::T *o) {\n"
    "  enum { STEPS = P::K1 * P::K2 * P::PIECES, CELLS = P::WIDE / 2, SPAN = (STEPS + P::KC - 1) / P::KC };\n"
    "  extern __shared__ __align__(1024) unsigned char panels[];\n"
    "  __shared__ __align__(8) u64 bars[2 * P::STAGES];\n"
    "  const u32 at = shared_address(panels), base = (at + 1023u) & ~1023u, full = shared_address(bars), empty = full "
    "+ 8 * P::STAGES, rank = P::KC > 1 ? cluster_rank() : 0;\n"
    "  const int first = (int)rank * SPAN, steps = STEPS - first < SPAN ? STEPS - first : (int)SPAN;\n"
    "  if (threadIdx.x == 0) {\n"
    "    for (int i = 0; i < P::STAGES; i++) { bar_init(full + 8 * i, 1); bar_init(empty + 8 * i, 2); }\n"
    "    asm volatile(\"fence.mbarrier_init.release.cluster; fence.proxy.async;\" ::: \"memory\");\n"
    "  }\n"
    "  if (P::KC > 1) cluster_sync(); else __syncthreads();\n"
    "  if (threadIdx.x >= 256) {\n"
    "    asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\");\n"
    "    if (threadIdx.x == 256) conv_feed<P>(filters, rows, base, full, empty, first, steps);\n"
    "    __syncwarp();\n"
    "    if (P::KC > 1) { cluster_sync(); cluster_sync(); }\n"
    "  } else {\n"
    "    asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");\n"
    "    const int t = threadIdx.x, wg = t >> 7, l = t & 31, down = (P::BM > 64 ? wg * 64 : 0) + (t >> 5 & 3) * 16, "
    "right = P::BM > 64 ? 0 : wg * P::WIDE;\n"
    "    float d[CELLS];\n"
    "    u32 it = 0, z;\n"
    "    int row, col;\n"
    "    for (u32 tile = blockIdx.x / P::KC; tile < P::TOTAL; tile += gridDim.x / P::KC) {\n"
    "      product_tile<P>(tile, &z, &row, &col);\n"
    "      conv_sums<P>(d, base, full, empty, it, steps);\n"
    "      if (P::KC > 1) {\n"
    "        enum { DOWN = P::KEEP ? 1 : P::BW + 8, RIGHT = P::KEEP ? P::BM + 8 : 1 };\n"
    "        float *mine = (float *)(panels + (base - at)) + (down + (l >> 2)) * DOWN + (right + (l & 3) * 2) * "
    "RIGHT;\n"
    "        group_sync<256>(1);               // no group still reads the stages\n"
    "        UNROLL for (int i = 0; i < CELLS; i++) mine[(i >> 1 & 1) * 8 * DOWN + ((i >> 2) * 8 + (i & 1)) * RIGHT] = "
    "d[i];\n"
    "      } else _Pragma(\"unroll 1\") for (int j = 0; j < P::WIDE; j += 64) {\n"
    "        UNROLL for (int i = 0; i < 4; i++) {\n"
    "          typename P::T r[8];\n"
    "          float v[8];\n"
    "          conv_before<P>(r, residual, (int)z, row + down + i % 2 * 8, col + right + j + i / 2 * 32);\n"
    "          UNROLL for (int b = 0; b < 8; b++) v[b] = d[i / 2 * 16 + b / 2 * 4 + i % 2 * 2 + b % 2];\n"
    "          conv_store<P>(bias, r, o, (int)z, row + down + i % 2 * 8, col + right + j + i / 2 * 32, v);\n"
    "        }\n"
    "        UNROLL for (int i = 0; i < CELLS - 32; i++) d[i] = d[i + 32];\n"
    "      }\n"
    "    }\n"
    "    if (P::KC > 1) { cluster_sync(); conv_join<P>(bias, residual, o, base, rank); cluster_sync(); }   // no block "
    "leaves while another reads its memory\n"
    "  }\n"
    "}\n";

/* A convolution whose x is rows of channels; transposed ones of stride 1 are plain ones with their taps in reverse. */
typedef struct conv_rows {
    uint32_t node, x, w, bias, residual; /* nodes, GN_NO_NODE: none */
    int axes;
    int64_t groups, channels, filters, images; /* channels and filters of a group */
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], before[3];
    int64_t inside, places, taps, padded; /* places of an image of x, of the result; channels of a tap */
    int64_t from[3], pitch;               /* strides of x; columns of the product for an image */
    bool transposed, turned, fed, flat;
    int height, width, stages, parts, step, warps[2];
    bool x_lies, w_lies; /* as the kernel reads it */
    uint32_t w_packed;   /* 1 + the place of filters that are packed once, 0: they are packed in each run */
    size_t w_at;         /* in scratch memory, behind the rows */
    int64_t strides[4];  /* of the rows, elements: images, axes */
} conv_rows;

static bool conv_rows_of(const emit *e, uint32_t node, const gn_view *bias, const gn_view *residual, conv_rows *c) {
    const gn_view *x = view_of(e, input(e, node, 0)), *w = view_of(e, input(e, node, 1)), *out = view_of(e, node);
    const int64_t *a = attrs_of(e, node);
    *c = (conv_rows){ .node = node,
                      .x = input(e, node, 0),
                      .w = input(e, node, 1),
                      .bias = bias ? input(e, node, 2) : GN_NO_NODE,
                      .residual = residual ? input(e, node, bias ? 3 : 2) : GN_NO_NODE,
                      .axes = x->rank - 2,
                      .groups = a[1],
                      .channels = x->dims[1] / a[1],
                      .filters = out->dims[1] / a[1],
                      .images = x->dims[0],
                      .transposed = a[0] & 1,
                      .inside = 1,
                      .places = 1,
                      .taps = 1 };
    c->turned = c->transposed;
    for (int i = 0; i < 3; i++) {
        int axis = i - (3 - c->axes);
        bool is = axis >= 0;
        c->in[i] = is ? x->dims[2 + axis] : 1;
        c->out[i] = is ? out->dims[2 + axis] : 1;
        c->kernel[i] = is ? w->dims[2 + axis] : 1;
        c->stride[i] = is ? a[4 + 4 * axis] : 1;
        c->dilation[i] = is ? a[5 + 4 * axis] : 1;
        c->before[i] = is ? a[6 + 4 * axis] : 0;
        c->from[i] = is ? x->strides[2 + axis] : 0;
        if (!c->transposed && c->kernel[i] == 1 && !c->before[i] && c->out[i] &&
            (c->out[i] - 1) * c->stride[i] < c->in[i]) { /* what is between is not looked at */
            c->in[i] = c->out[i];
            c->from[i] *= c->stride[i];
            c->stride[i] = 1;
        }
        c->inside *= c->in[i];
        c->places *= c->out[i];
        c->taps *= c->kernel[i];
        c->turned = c->turned && c->stride[i] == 1;
    }
    c->transposed = c->transposed && !c->turned;
    for (int i = 0; i < 3 && c->turned; i++) c->before[i] = (c->kernel[i] - 1) * c->dilation[i] - c->before[i];
    return types[x->dtype].bytes == 2 && types[x->dtype].real && c->filters > CONV_FEW && c->channels > 0 &&
           c->inside > 0;
}

/* Offsets and positions are counted in 32 bits. */
static bool conv_rows_fit(const conv_rows *c) {
    double lines = (double)c->images * (double)c->inside * (double)(c->groups * (c->channels + 7)),
           results = (double)c->images * (double)c->places * (double)(c->groups * c->filters),
           deep = (double)c->taps * (double)(c->channels + 63), most = 0x1p30;
    for (int i = 0; i < 3; i++)
        if ((double)c->out[i] * (double)c->stride[i] + (double)c->kernel[i] * (double)c->dilation[i] +
                fabs((double)c->before[i]) >
            most)
            return false;
    return lines < most && results < most && deep < most && deep * (double)c->groups * (double)c->filters < most &&
           !always_wide();
}

/* What TMA's windows can say: two axes, distances of 8 and 16 bits; 64 channels that belong to the group, or zeros. */
static bool conv_is_fed(const emit *e, const conv_rows *c) {
    bool is = emit_has_warpgroups(e) && (cu.window_map || e->device->compile_only) && !c->transposed && c->in[0] == 1 &&
              c->kernel[0] == 1 && c->out[0] == 1 && c->stride[0] == 1 && !c->before[0] &&
              (c->channels % 64 == 0 || (c->groups == 1 && c->channels % 64 > 31));
    for (int i = 1; i < 3 && is; i++) {
        int64_t reach = (c->kernel[i] - 1) * c->dilation[i],
                upper = (c->out[i] - 1) * c->stride[i] - c->before[i] - (c->in[i] - 1);
        is = c->stride[i] <= 8 && reach <= 255 && c->before[i] <= 128 && c->before[i] >= -127 && upper >= -128 &&
             upper <= 127;
    }
    return is;
}

/* One tap, and places side by side in memory as TMA takes them. */
static bool conv_is_flat(const emit *e, const conv_rows *c) {
    const gn_view *x = view_of(e, c->x);
    bool is = c->taps == 1 && c->in[2] == c->out[2] && c->in[1] == c->out[1] && !c->before[1] && !c->before[2] &&
              base_offset(e, c->x) % 16 == 0 && x->strides[1] > 0 && x->strides[1] % 8 == 0 && x->strides[0] % 8 == 0 &&
              (x->strides[0] > 0 || c->images == 1) && is_small(x);
    return is && (c->in[2] == 1 || c->from[2] == 1) && (c->in[1] == 1 || c->from[1] == c->in[2] * c->from[2]);
}

static void conv_rows_choose(const emit *e, conv_rows *c) {
    static const struct warpgroup_form fed[] = { { 128, 256, 4, 1, 0.8 }, { 128, 128, 6, 1, 0.4 },
                                                 { 64, 256, 5, 1, 0.6 },  { 64, 128, 8, 1, 0.4 },
                                                 { 128, 128, 6, 2, 2.2 }, { 128, 128, 6, 4, 3.2 },
                                                 { 64, 128, 8, 2, 1.5 },  { 64, 128, 8, 4, 2.8 } };
    c->fed = conv_is_fed(e, c);
    c->flat = c->fed && conv_is_flat(e, c);
    c->pitch = c->flat ? blocks_for(c->places, 64) * 64 : c->places;
    c->padded = c->fed ? blocks_for(c->channels, 64) * 64 : blocks_for(c->channels, 8) * 8;
    product p = { .m = c->filters, .n = c->images * c->places, .k = c->taps * c->padded, .batches = c->groups };
    if (c->fed) {
        enum { FED_STEPS = 4 }; /* of each block of a cluster, or more */
        int best = 0;
        for (int i = 1; i < (int)(sizeof fed / sizeof *fed); i++)
            if (p.k >= fed[i].parts * FED_STEPS * 64 &&
                warpgroup_us(e, &p, 2, &fed[i]) < warpgroup_us(e, &p, 2, &fed[best]))
                best = i;

        c->height = fed[best].height;
        c->width = fed[best].width;
        c->stages = fed[best].stages;
        c->parts = fed[best].parts;
        return;
    }
    int64_t wide = blocks_for(p.m, 128) * blocks_for(p.n, 128) * p.batches;
    c->height = p.m > 64 && wide >= emit_processors(e) ? 128 : 64;
    c->width = blocks_for(p.m, 64) * blocks_for(p.n, 128) * p.batches >= emit_processors(e) ? 128 : 64;
    c->step = c->height == 128 ? 32 : 64;
    c->warps[1] = c->width / 32;
    c->warps[0] = 8 / c->warps[1];
}

/* Rows that begin at multiples of 16 bytes, channels side by side; filters as rows of their taps. */
static void conv_rows_lie(const emit *e, conv_rows *c) {
    const gn_view *x = view_of(e, c->x), *w = view_of(e, c->w);
    int first = 3 - c->axes;
    int64_t width = c->groups * blocks_for(c->channels, 8) * 8, along = width, down = w->strides[0];
    bool lies = x->strides[1] == 1 && c->channels % 8 == 0 && base_offset(e, c->x) % 16 == 0 && x->strides[0] >= 0 &&
                x->strides[0] % 8 == 0 && is_small(x);
    for (int i = 0; i < c->axes; i++) lies = lies && c->from[first + i] > 0 && c->from[first + i] % 8 == 0;
    c->x_lies = c->flat || (lies && (x->strides[0] > 0 || c->images == 1));
    c->w_lies = !c->transposed && !c->turned && c->taps == 1 && w->strides[1] == 1 && c->channels % 8 == 0 &&
                down > 0 && down == c->channels && base_offset(e, c->w) % 16 == 0 && c->channels == c->padded;
    for (int i = 3; i >= 0; i--) {
        c->strides[i] = c->x_lies ? (i == 0 ? x->strides[0] : i <= first ? 8 : c->from[i - 1]) : along;
        if (i) along *= c->in[i - 1];
    }
    if (c->x_lies && !c->strides[0]) c->strides[0] = 8;
    size_t lines = c->x_lies ? 0 : (size_t)(c->images * c->inside * width) * 2;
    c->w_at = gn_size_align(lines, 256);
}

/* What becomes rows of channels: (images, groups and channels, places) with any strides. */
typedef struct conv_planes {
    int64_t images, groups, channels, in[3], strides[5], offset, padded;
} conv_planes;

/* What conv_lay calls P. Returns its blocks. */
static int64_t put_conv_lay(emit *e, const char *name, const conv_planes *c) {
    const bool few = c->groups * c->padded == 8;
    const int64_t *n = c->strides, inside = c->in[0] * c->in[1] * c->in[2], across = blocks_for(inside, few ? 256 : 64),
                  down = blocks_for(c->groups * c->padded, 64);
    bool dense = true;
    int wide = 1;
    for (int64_t i = 2, along = 1; i >= 0 && dense; along *= c->in[i], i--) dense = c->in[i] == 1 || n[2 + i] == along;
    for (int v = 8; v > 1 && dense && wide == 1; v /= 2)
        if (inside % v == 0 && n[0] % v == 0 && n[1] % v == 0 && c->offset % (2 * v) == 0) wide = v;
    put(&e->types,
        "struct %s { static const i64 XN = %lldll, XC = %lldll, X0 = %lldll, X1 = %lldll, X2 = %lldll; enum { I1 = "
        "%lld, I2 = %lld, IN = %lld, CG = %lld, CP = %lld, GROUPS = %lld, V = %d, ACROSS = %lld, DOWN = %lld, FEW = %d "
        "}; };\n",
        name, (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], (long long)n[4], (long long)c->in[1],
        (long long)c->in[2], (long long)inside, (long long)c->channels, (long long)c->padded, (long long)c->groups,
        wide, (long long)across, (long long)down, few);
    return across * down * c->images;
}

/* What conv_filters calls P. */
static void put_filters(emit *e, const conv_rows *c, const packed_form *form) {
    const int64_t *n = form->strides;
    put(&e->types,
        "struct @_p { typedef %s T; enum { TR = %d }; static const i64 GROUPS = %lldll, CG = %lldll, MG = %lldll, K0 = "
        "%lldll, K1 = %lldll, K2 = %lldll, WM = %lldll, WC = %lldll, W0 = %lldll, W1 = %lldll, W2 = %lldll; };\n",
        types[view_of(e, c->w)->dtype].name, (int)form->transposed, (long long)c->groups, (long long)c->channels,
        (long long)c->filters, (long long)c->kernel[0], (long long)c->kernel[1], (long long)c->kernel[2],
        (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], (long long)n[4]);
}

/* strides: of filters, of channels, by axis. */
static packed_form packed_form_of(const emit *e, const conv_rows *c) {
    const gn_view *w = view_of(e, c->w);
    bool across = c->transposed || c->turned;
    packed_form form = { .dtype = w->dtype,
                         .offset = base_offset(e, c->w),
                         .strides = { w->strides[across], w->strides[!across] },
                         .groups = c->groups,
                         .filters = c->filters,
                         .channels = c->channels,
                         .padded = c->padded,
                         .kernel = { c->kernel[0], c->kernel[1], c->kernel[2] },
                         .transposed = across,
                         .turned = c->turned };
    for (int i = 0; i < c->axes; i++) form.strides[5 - c->axes + i] = w->strides[2 + i];
    return form;
}

/* Filters of many taps are laid as x is: a filter is an image. Returns the blocks. */
static int64_t put_conv_filters(emit *e, const conv_rows *c, bool *out_laid) {
    enum { MANY = 32 };
    const packed_form form = packed_form_of(e, c);
    *out_laid = c->taps >= MANY && !form.transposed;
    if (!*out_laid) {
        put_filters(e, c, &form);
        return blocks_for(c->groups * c->filters * (c->padded / 2), 256);
    }
    conv_planes p = { .images = c->groups * c->filters,
                      .groups = 1,
                      .channels = c->channels,
                      .in = { c->kernel[0], c->kernel[1], c->kernel[2] },
                      .offset = form.offset,
                      .padded = c->padded };
    memcpy(p.strides, form.strides, sizeof p.strides);
    return put_conv_lay(e, "@_p", &p);
}

/* The filters to `to`, by some blocks of the kernel, which others follow (more). Returns how many. */
static int64_t emit_filters(emit *e, const conv_rows *c, param to, bool more, bool *out_laid) {
    int64_t blocks = put_conv_filters(e, c, out_laid);
    const char *type = *out_laid ? "u16" : types[view_of(e, c->w)->dtype].name;
    emit_node(e, c->w, type, true, "w");
    emit_pointer(e, type, false, "o", to);
    emit_await(e);
    if (more) put(&e->body, "  if (blockIdx.x < %lldu) ", (long long)blocks);
    if (*out_laid) put(&e->body, "conv_lay<@_p>(w, o, blockIdx.x);\n");
    else put(&e->body, "conv_filters<@_p, %lld, %d>(w, o, blockIdx.x);\n", (long long)c->padded, c->turned);
    return blocks;
}

/* Among the places of a run. */
static uint32_t packed_node(const emit *e, size_t pack) {
    return e->part->n_nodes + e->part->n_updates + (uint32_t)pack;
}

/* Plans have room for so many packs. */
static size_t packs_most(const gn_part *p) {
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) n += p->nodes[i].leaf == GN_LEAF_NONE && p->nodes[i].op == GN_OP_CONV;
    return n;
}

/* A weight's filters, which no run changes: a kernel of their own packs them once, see run_packs. */
static void emit_pack(emit *e, conv_rows *c) {
    uint32_t base = e->layout->lay[c->w].base;
    packed_part k = { .form = packed_form_of(e, c),
                      .node = base,
                      .bytes = (size_t)(c->groups * c->filters * c->taps * c->padded) * 2,
                      .scratch_at = c->w_at };
    size_t at = 0;
    if (c->w_lies || e->given || e->part->nodes[base].leaf != GN_LEAF_WEIGHT) return;
    while (at < e->n_packs && (e->packs[at].node != base || e->packs[at].scratch_at != k.scratch_at ||
                               memcmp(&e->packs[at].form, &k.form, sizeof k.form) != 0))
        at++;
    if (at == e->n_packs && !grow(&e->packs, e->n_packs, &e->cap_packs, sizeof k)) {
        e->failed = true;
        return;
    }
    if (at == e->n_packs) e->packs[e->n_packs++] = k;
    bool laid;
    int64_t blocks = emit_filters(e, c, (param){ PARAM_NODE, packed_node(e, at), 0 }, false, &laid);
    emit_launch(e, laid ? "conv_pack_laid" : "conv_pack", (uint64_t)blocks, 1, 256);
    if (!e->failed) e->launches[e->n_launches - 1].pack = (uint32_t)at + 1;
    c->w_packed = (uint32_t)at + 1;
}

/* x and the filters to scratch memory, where they do not lie so: some blocks of one kernel each. */
static void emit_conv_ready(emit *e, const conv_rows *c) {
    const gn_view *x = view_of(e, c->x);
    conv_planes planes = { c->images,
                           c->groups,
                           c->channels,
                           { c->in[0], c->in[1], c->in[2] },
                           { x->strides[0], x->strides[1], c->from[0], c->from[1], c->from[2] },
                           base_offset(e, c->x),
                           blocks_for(c->channels, 8) * 8 };
    bool laid = false;
    int64_t filters = 0, lay = c->x_lies ? 0 : put_conv_lay(e, "@_l", &planes);
    if (!lay && (c->w_lies || c->w_packed)) return;
    emit_early(e);
    if (lay) emit_node(e, c->x, "u16", true, "x");
    if (lay) emit_pointer(e, "u16", false, "rows", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    if (c->w_lies || c->w_packed) emit_await(e);
    else filters = emit_filters(e, c, (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)c->w_at }, lay > 0, &laid);
    if (lay)
        put(&e->body, "  %sconv_lay<@_l>(x, rows, (int)blockIdx.x - %lld);\n", filters ? "else " : "",
            (long long)filters);
    emit_launch(e, laid ? "conv_ready_laid" : "conv_ready", (uint64_t)(lay + filters), 1, 256);
}

/* Its result becomes rows of channels, see conv_keep_rows. */
static bool conv_keeps(const emit *e, const conv_rows *c) {
    const gn_view *out = view_of(e, c->node);
    return out->strides[1] == 1 && c->places > 1 && out->dims[1] > 1;
}

/* What conv_put, conv_tensor and conv_fed call P. */
static void put_conv_rows(emit *e, const conv_rows *c) {
    const gn_view *out = view_of(e, c->node), *bias = c->bias == GN_NO_NODE ? NULL : view_of(e, c->bias),
                  *residual = c->residual == GN_NO_NODE ? NULL : view_of(e, c->residual);
    const int64_t *a = attrs_of(e, c->node);
    int64_t r[5] = { 0 }, down = blocks_for(c->filters, c->height),
            columns = blocks_for(c->images * c->pitch, c->width);
    gn_view dense = gn_view_dense(out->dtype, out->rank, out->dims);
    const gn_view *like = conv_keeps(e, c) ? out : &dense;
    bool lies = residual != NULL;
    int wide = 8;
    text *t = &e->types;
    while (wide > 1 && (c->places % wide || base_offset(e, c->node) % (2 * wide))) wide /= 2;
    for (int i = 0; residual && i < out->rank; i++) {
        r[i < 2 ? i : i + 3 - c->axes] = residual->strides[i];
        lies = lies && (residual->dims[i] == 1 || residual->strides[i] == like->strides[i]);
    }
    lies = lies && base_offset(e, c->residual) % (conv_keeps(e, c) ? 16 : 2 * wide) == 0;
    put(t,
        "struct @_p { typedef %s T; typedef float C; enum { TR = %d, BIAS = %d, RES = %d, CLAMP = %d, KEEP = %d, DENSE "
        "= %d, V = "
        "%d, FLAT = %d, PITCH = %lld, m = %lld, FILTERS = %lld, PLACES = %lld, OUT = %lld, CG = %lld, CP = %lld, DEEP "
        "= %lld,\n",
        types[out->dtype].name, c->transposed, bias != NULL, residual != NULL,
        word_f64(a[2]) > -INFINITY || word_f64(a[3]) < INFINITY, conv_keeps(e, c), lies, wide, c->flat,
        (long long)c->pitch, (long long)c->filters, (long long)(c->groups * c->filters),
        (long long)(c->images * c->places), (long long)c->places,
        (long long)(c->x_lies ? c->channels : blocks_for(c->channels, 8) * 8), (long long)c->padded,
        (long long)(c->taps * c->padded));
    put(t, "  BM = %d, BW = %d, STEP = %d, WM = %d, WN = %d, ROWS = %lld, COLS = %lld", c->height, c->width, c->step,
        c->warps[0], c->warps[1], (long long)down, (long long)columns);
    const struct {
        const char *name;
        const int64_t *of;
    } axes[] = { { "I", c->in },        { "O", c->out },    { "K", c->kernel },     { "S", c->stride },
                 { "DL", c->dilation }, { "B", c->before }, { "Y", c->strides + 1 } };
    for (size_t k = 0; k < sizeof axes / sizeof *axes; k++)
        for (int i = 0; i < 3; i++) put(t, ", %s%d = %lld", axes[k].name, i, (long long)axes[k].of[i]);
    put(t,
        " };\n  static const i64 YN = %lldll, BS = %lldll, RN = %lldll, RM = %lldll, R0 = %lldll, R1 = %lldll, R2 = "
        "%lldll;\n",
        (long long)c->strides[0], (long long)(bias ? bias->strides[0] : 0), (long long)r[0], (long long)r[1],
        (long long)r[2], (long long)r[3], (long long)r[4]);
    put(t,
        "  static M C least() { return (C)gn_f64(0x%llxull); }\n  static M C most() { return (C)gn_f64(0x%llxull); }\n",
        (unsigned long long)a[2], (unsigned long long)a[3]);
    if (c->fed)
        put(t,
            "  enum { STAGES = %d, KC = %d, PIECES = %lld, WIDE = %d }; static const u32 TOTAL = %lldu;\n  static M "
            "void "
            "mma(float *d, u64 a, u64 b) { @_mma(d, a, b); }\n",
            c->stages, c->parts, (long long)(c->padded / 64), c->height > 64 ? c->width : c->width / 2,
            (long long)(down * columns * c->groups));
    put(t, "};\n");
}

/* The filters, and the windows of the rows, as TMA reads them. */
static void emit_conv_maps(emit *e, const conv_rows *c) {
    const gn_view *x = view_of(e, c->x);
    panels filters = { .scratch = !c->w_lies && !c->w_packed,
                       .node = c->w_lies     ? e->layout->lay[c->w].base
                               : c->w_packed ? packed_node(e, c->w_packed - 1)
                                             : UINT32_MAX,
                       .offset = c->w_lies     ? base_offset(e, c->w)
                                 : c->w_packed ? 0
                                               : (int64_t)c->w_at,
                       .inner = c->taps * c->padded,
                       .outer = c->groups * c->filters,
                       .stride = c->taps * c->padded,
                       .box_inner = 64,
                       .box_outer = c->height };
    tensor_map m = { .windows = true,
                     .scratch = !c->x_lies,
                     .node = c->x_lies ? e->layout->lay[c->x].base : UINT32_MAX,
                     .offset = c->x_lies ? base_offset(e, c->x) : 0,
                     .dtype = x->dtype,
                     .dims = { (uint64_t)(c->groups * (c->x_lies ? c->channels : blocks_for(c->channels, 8) * 8)),
                               (uint64_t)c->in[2], (uint64_t)c->in[1], (uint64_t)c->images },
                     .strides = { (uint64_t)c->strides[3] * 2, (uint64_t)c->strides[2] * 2,
                                  (uint64_t)c->strides[0] * 2 },
                     .box = { 64, (uint32_t)c->width, 1, 1 },
                     .steps = { (uint32_t)c->stride[2], (uint32_t)c->stride[1] } };
    if (c->flat) {
        m.windows = false;
        m.dims[0] = (uint64_t)c->inside;
        m.dims[1] = (uint64_t)(c->groups * c->channels);
        m.dims[2] = (uint64_t)c->images;
        m.dims[3] = 1;
        m.strides[0] = (uint64_t)x->strides[1] * 2;
        m.strides[1] = c->images > 1 ? (uint64_t)x->strides[0] * 2 : 16;
        m.strides[2] = 16;
        m.box[1] = 64;
    }
    for (int i = 0; i < 2; i++) {
        int axis = 2 - i;
        m.lower[i] = (int)-c->before[axis];
        m.upper[i] = (int)((c->out[axis] - 1) * c->stride[axis] - c->before[axis] - (c->in[axis] - 1));
    }
    emit_map(e, "filters", (gn_dtype)x->dtype, &filters);
    if (!map_is_possible(&m)) gn_fail(e->fault, GN_INTERNAL, "TMA cannot read the windows of a conv as they lie");
    if (!map_is_possible(&m) || !grow(&e->maps, e->n_maps, &e->cap_maps, sizeof m)) {
        e->failed = true;
        return;
    }
    e->maps[e->n_maps] = m;
    put(&e->signature, ", const __grid_constant__ tmap rows");
    emit_param(e, (param){ PARAM_MAP, (uint32_t)e->n_maps++, 0 });
}

/* A bias and a residual may be none. */
static void emit_conv_rest(emit *e, const conv_rows *c, const char *type) {
    if (c->bias != GN_NO_NODE) emit_node(e, c->bias, type, true, "bias");
    if (c->residual != GN_NO_NODE) emit_node(e, c->residual, type, true, "residual");
    emit_node(e, c->node, type, false, "o");
    emit_await(e);
}

/* The conv that node i is, if it runs as a product of rows. */
static bool conv_rows_at(const emit *e, uint32_t i, conv_rows *c) {
    if (!node_is(e, i, GN_OP_CONV) || !gn_view_count(view_of(e, i))) return false;
    int64_t bits = attrs_of(e, i)[0];
    uint32_t at = 2;
    const gn_view *bias = bits & 2 ? view_of(e, input(e, i, at++)) : NULL,
                  *residual = bits & 4 ? view_of(e, input(e, i, at)) : NULL;
    if (!conv_rows_of(e, i, bias, residual, c) || !conv_rows_fit(c)) return false;
    conv_rows_choose(e, c);
    return true;
}

/* flat: it reads planes as they lie as well */
enum { KEEP_WANTED = 1, KEEP_BARRED = 2, KEEP_FLAT = 4 };

/* What a node is for a conv that reads it: rows of channels would save it a copy of x; a residual lies in any way. */
static int conv_keep_hint(const emit *e, uint32_t reader, uint32_t input_index) {
    conv_rows c;
    bool residual = input_index && (attrs_of(e, reader)[0] & 4) && input_index + 1 == e->part->nodes[reader].n_ins;
    if ((input_index && !residual) || !conv_rows_at(e, reader, &c)) return KEEP_BARRED;
    return residual ? 0 : c.channels % 8 ? KEEP_BARRED : c.flat ? KEEP_FLAT : KEEP_WANTED;
}

/* The result of node i becomes rows of channels, if it is a conv's that can store them: with a residual planes are
   stored faster, so it takes readers of rows only. */
static void conv_keep(emit *e, uint32_t i, uint8_t hints) {
    gn_lay *lay = &e->layout->lay[i];
    conv_rows c;
    if (!(hints & KEEP_WANTED) || (hints & KEEP_BARRED) || lay->base != i || lay->place != GN_PLACE_BLOCK ||
        !conv_rows_at(e, i, &c) || c.filters % 8 || (c.residual != GN_NO_NODE && (hints & KEEP_FLAT)))
        return;
    gn_view *v = &lay->view;
    v->strides[1] = 1;
    for (int64_t k = v->rank - 1, along = v->dims[1]; k != 1; k = k == 2 ? 0 : k - 1) {
        v->strides[k] = along;
        along *= v->dims[k];
        if (k == 0) break;
    }
}

/* Results that only convolutions read become rows of channels where they are computed: readers are decided before what
   they read. False: no memory. */
static bool conv_keep_rows(emit *e) {
    const gn_part *p = e->part;
    uint8_t *hints = emit_has_tensor_cores(e) ? (uint8_t *)alloc_zero((size_t)p->n_nodes + 1) : NULL;
    if (!hints) return !emit_has_tensor_cores(e);
    for (uint32_t i = 0; i < p->n_outs; i++) hints[p->outs[i]] |= KEEP_BARRED;
    for (uint32_t i = 0; i < p->n_updates; i++) hints[p->updates[i].node] |= KEEP_BARRED;
    for (uint32_t i = p->n_nodes; i-- > 0;) {
        if (p->nodes[i].leaf != GN_LEAF_NONE) continue;
        conv_keep(e, i, hints[i]);
        for (uint32_t k = 0; k < p->nodes[i].n_ins; k++)
            hints[input(e, i, k)] |= (uint8_t)(node_is(e, i, GN_OP_CONV) ? conv_keep_hint(e, i, k) : KEEP_BARRED);
    }
    gn_free(hints);
    return true;
}

static bool emit_conv_rows(emit *e, uint32_t node, const gn_view *bias, const gn_view *residual) {
    static const char *const bounds[] = { "__launch_bounds__(384, 1)",
                                          "__cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)",
                                          "__cluster_dims__(4, 1, 1) __launch_bounds__(384, 1)" };
    conv_rows c;
    const gn_dtype d = (gn_dtype)view_of(e, node)->dtype;
    const char *type = types[d].name;
    char name[64];
    if (!emit_has_tensor_cores(e) || !conv_rows_of(e, node, bias, residual, &c) || !conv_rows_fit(&c)) return false;
    conv_rows_choose(e, &c);
    conv_rows_lie(e, &c);
    size_t all = gn_size_add(c.w_at, c.w_lies ? 0 : (size_t)(c.groups * c.filters * c.taps * c.padded) * 2);
    if (all > e->scratch) e->scratch = all;
    emit_pack(e, &c);
    emit_conv_ready(e, &c);
    int64_t tiles = blocks_for(c.filters, c.height) * blocks_for(c.images * c.pitch, c.width) * c.groups;
    emit_early(e);
    if (c.fed) {
        put_wgmma(&e->types, "@_mma", c.height > 64 ? c.width : c.width / 2, d, false, false, c.flat);
        put_conv_rows(e, &c);
        emit_conv_maps(e, &c);
        emit_conv_rest(e, &c, type);
        put(&e->body, "  conv_fed<@_p>(&filters, &rows, %s, %s, o);\n", bias ? "bias" : "0",
            residual ? "residual" : "0");
        e->bounds = bounds[c.parts >> 1];
        snprintf(name, sizeof name, "wgmma_conv_%s_%dx%d_k%d%s", gn_dtype_name(d), c.height, c.width, c.parts,
                 conv_keeps(e, &c) ? "_rows" : "");
        if (c.parts == 1 && tiles > emit_processors(e)) tiles = emit_processors(e);
        emit_launch_shared(e, name, (uint64_t)(tiles * c.parts), 1, 384,
                           (uint32_t)((c.height + c.width) * 128 * c.stages + 1024));
        return true;
    }
    put_conv_rows(e, &c);
    if (c.x_lies) emit_node(e, c.x, type, true, "x");
    else emit_pointer(e, type, true, "x", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    if (c.w_lies) emit_node(e, c.w, type, true, "w");
    else
        emit_pointer(e, type, true, "w",
                     c.w_packed ? (param){ PARAM_NODE, packed_node(e, c.w_packed - 1), 0 }
                                : (param){ PARAM_PLAN, REGION_SCRATCH, (int64_t)c.w_at });
    emit_conv_rest(e, &c, type);
    put(&e->body, "  conv_tensor<@_p>(x, w, %s, %s, o);\n", bias ? "bias" : "0", residual ? "residual" : "0");
    snprintf(name, sizeof name, "tensor_conv_%s_%dx%d%s", gn_dtype_name(d), c.height, c.width,
             conv_keeps(e, &c) ? "_rows" : "");
    emit_launch_shared(e, name, (uint64_t)tiles, 1, 256, (uint32_t)((c.height + c.width) * c.step * 2 * 4));
    return true;
}

/* ---- filters of one channel each ---- */

static const char conv_depth_text[] =
    "// A channel has filters of its own: PLANES planes of the result, or BAND rows of one, to a block, which copies "
    "their x to shared memory, VEC elements at once; R rows of two columns to a thread. P as for conv_tile, over two "
    "axes\n"
    "template <class P, int PLANES, int BAND, int R, int VEC> M void conv_depth(const typename P::T *x, const typename "
    "P::T *w, const typename P::T *bias, const typename P::T *residual, typename P::T *o) {\n"
    "  typedef typename P::C C;\n"
    "  typedef typename P::T T;\n"
    "  enum { I1 = P::I1, I2 = P::I2, O1 = P::O1, O2 = P::O2, K1 = P::K1, K2 = P::K2, S1 = P::S1, S2 = P::S2, DL1 = "
    "P::DL1, DL2 = P::DL2, B1 = P::B1, B2 = P::B2, FILTERS = P::GROUPS * P::MG, ALL = P::IMAGES * FILTERS };\n"
    "  enum { BANDS = (O1 + BAND - 1) / BAND, REACH = (K1 - 1) * DL1 + 1, ROWS = BANDS > 1 ? (BAND - 1) * S1 + REACH : "
    "(int)I1, EACH = ROWS * I2 / VEC, COLS = (O2 + 1) / 2, STRIPS = (BAND + R - 1) / R, WINDOW = S2 + (K2 - 1) * DL2 + "
    "1 };\n"
    "  __shared__ uint4 memory[(PLANES * ROWS * I2 * sizeof(T) + 15) / 16];\n"
    "  T *planes = (T *)memory;\n"
    "  const int t = threadIdx.x, top = blockIdx.x % BANDS * BAND, first = BANDS > 1 ? top * S1 - B1 : 0, q0 = "
    "blockIdx.x / BANDS * PLANES;\n"
    "  _Pragma(\"unroll 4\") for (int i = t; i < PLANES * EACH; i += 256) {\n"
    "    const int q = q0 + i / EACH, at = i % EACH * VEC, row = first + at / I2;\n"
    "    T v[VEC];\n"
    "    if (q >= ALL || row < 0 || row >= I1) continue;\n"
    "    vload<VEC>(v, x + q / FILTERS * P::XN + q % FILTERS / P::MG * P::XC + (first * I2 + at));\n"
    "    vstore<VEC>(planes + i * VEC, v);\n"
    "  }\n"
    "  __syncthreads();\n"
    "  for (int i = t; i < PLANES * COLS * STRIPS; i += 256) {\n"
    "    const int b = i % COLS * 2, a = top + i / COLS % STRIPS * R, q = q0 + i / (COLS * STRIPS), n = q / FILTERS, m "
    "= q % FILTERS, y0 = a * S1 - B1, x0 = b * S2 - B2;\n"
    "    const T *plane = planes + i / (COLS * STRIPS) * (ROWS * I2);\n"
    "    if (q >= ALL) break;\n"
    "    C taps[K1 * K2], sum[R][2] = {};\n"
    "    UNROLL for (int k = 0; k < K1 * K2; k++) taps[k] = conv_weight<P>(w, m / P::MG, m % P::MG, 0, k);\n"
    "    UNROLL for (int r = 0; r < (R - 1) * S1 + REACH; r++) {\n"
    "      C v[WINDOW];\n"
    "      UNROLL for (int c = 0; c < WINDOW; c++) v[c] = y0 + r >= 0 && y0 + r < I1 && x0 + c >= 0 && x0 + c < I2 ? "
    "get(plane[(y0 + r - first) * I2 + x0 + c]) : (C)0;\n"
    "      UNROLL for (int j = 0; j < R; j++) UNROLL for (int k = 0; k < K1; k++) {\n"
    "        if (j * S1 + k * DL1 != r) continue;\n"
    "        UNROLL for (int l = 0; l < K2; l++) UNROLL for (int h = 0; h < 2; h++) sum[j][h] = gn_fma(taps[k * K2 + "
    "l], v[h * S2 + l * DL2], sum[j][h]);\n"
    "      }\n"
    "    }\n"
    "    const C more = P::BIAS ? get(bias[m * P::BS]) : (C)0;\n"
    "    UNROLL for (int j = 0; j < R; j++) {\n"
    "      if (a + j >= O1) continue;\n"
    "      const bool both = b + 1 < O2;\n"
    "      const i64 to = ((i64)q * O1 + a + j) * O2 + b;\n"
    "      T y[2];\n"
    "      UNROLL for (int h = 0; h < 2; h++) {\n"
    "        C s = sum[j][h];\n"
    "        if (P::BIAS) s += more;\n"
    "        if (P::RES && (h == 0 || both)) s += get(residual[n * P::RN + m * P::RM + (a + j) * P::R1 + (b + h) * "
    "P::R2]);\n"
    "        if (P::CLAMP) s = s < P::least() ? P::least() : s > P::most() ? P::most() : s;\n"
    "        put(y[h], s);\n"
    "      }\n"
    "      if (O2 % 2 == 0) vstore<2>(o + to, y);\n"
    "      else { o[to] = y[0]; if (both) o[to + 1] = y[1]; }\n"
    "    }\n"
    "  }\n"
    "}\n";

/* Planes or rows of x that fit in shared memory, and little idle time of threads at the end. */
static bool emit_conv_depth(emit *e, uint32_t node, const gn_view *bias, const gn_view *residual) {
    enum { MEMORY = 32 << 10, TAPS = 49, EXTENT = 16, PLANES = 32 };
    const gn_view *x = view_of(e, input(e, node, 0)), *w = view_of(e, input(e, node, 1)), *out = view_of(e, node);
    const int64_t *a = attrs_of(e, node);
    const char *type = types[x->dtype].name;
    int n = x->rank - 2, size = types[x->dtype].bytes, tall = n > 1;
    if (n > 2 || x->dims[1] != a[1] || out->dims[1] > a[1] * CONV_FEW || (a[0] & 1) || always_wide()) return false;
    const int64_t *across = a + 4 * n, *down = a + 4; /* stride, dilation, before, after of an axis */
    int64_t k2 = w->dims[n + 1], k1 = tall ? w->dims[2] : 1, o2 = out->dims[n + 1], o1 = tall ? out->dims[2] : 1,
            i2 = x->dims[n + 1], i1 = tall ? x->dims[2] : 1, s1 = tall ? down[0] : 1, r = k1 * k2 > 9 || s1 > 1 ? 4 : 8,
            reach = (k1 - 1) * (tall ? down[1] : 1) + 1, all = x->dims[0] * out->dims[1];
    if (r > o1) r = o1;
    if (k1 * k2 > TAPS || reach > EXTENT || (k2 - 1) * across[1] + 1 > EXTENT || across[0] > 4 || s1 > 4) return false;
    if (gn_view_count(out) >= 0x3fffffff || gn_view_count(x) >= 0x3fffffff || !i1 || !i2) return false;
    int64_t plane = i1 * i2 * size, planes = 1, band = blocks_for(o1, r) * r, vector = 16 / size;
    if (plane <= MEMORY) {
        int64_t items = (o2 + 1) / 2 * blocks_for(o1, r);
        double least = 1e300;
        for (int64_t p = 1; p <= PLANES && p * plane <= MEMORY && p <= blocks_for(all, emit_processors(e)); p++) {
            double waste = (double)(blocks_for(p * items, 256) * 256) / (double)(p * items);
            if (waste < least * 0.97) least = waste, planes = p;
        }
    } else {
        while (band > r && ((band - 1) * s1 + reach) * i2 * size > MEMORY) band -= r;
        if (((band - 1) * s1 + reach) * i2 * size > MEMORY) return false;
    }
    bool banded = band < o1, dense = x->strides[n + 1] == 1 && (!tall || i1 == 1 || x->strides[2] == i2);
    while (vector > 1 && ((banded ? i2 : i1 * i2) % vector || x->strides[0] % vector || x->strides[1] % vector ||
                          base_offset(e, input(e, node, 0)) % (vector * size)))
        vector /= 2;
    if (!dense) return false;
    put_conv(e, node, bias, residual);
    emit_node(e, input(e, node, 0), type, true, "x");
    emit_node(e, input(e, node, 1), type, true, "w");
    if (bias) emit_node(e, input(e, node, 2), type, true, "bias");
    if (residual) emit_node(e, input(e, node, bias ? 3 : 2), type, true, "residual");
    emit_node(e, node, type, false, "o");
    put(&e->body, "  conv_depth<@_p, %lld, %lld, %lld, %lld>(x, w, %s, %s, o);\n", (long long)planes, (long long)band,
        (long long)r, (long long)vector, bias ? "bias" : "0", residual ? "residual" : "0");
    char name[64];
    snprintf(name, sizeof name, "conv_depth_%s", gn_dtype_name(x->dtype));
    emit_launch(e, name, (uint64_t)(blocks_for(all, planes) * blocks_for(o1, band)), 1, 256);
    return true;
}

static void emit_conv(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *out = view_of(e, node), *bias = NULL, *residual = NULL;
    const int64_t *a = attrs_of(e, node);
    int at = 2, at_bias = a[0] & 2 ? at++ : 0, at_residual = a[0] & 4 ? at : 0;
    const char *type = types[x->dtype].name;
    char name[64];
    int64_t count = gn_view_count(out), filters = out->dims[1] / a[1];
    if (!count) {
        emit_nothing(e);
        return;
    }
    if (at_bias) bias = view_of(e, input(e, node, (uint32_t)at_bias));
    if (at_residual) residual = view_of(e, input(e, node, (uint32_t)at_residual));
    if (emit_conv_depth(e, node, bias, residual) || emit_conv_rows(e, node, bias, residual)) return;
    bool few = filters <= CONV_FEW;
    int64_t blocks = few ? blocks_for(count, 256)
                         : blocks_for(count / out->dims[1], CONV_TILE) * blocks_for(filters, CONV_TILE) * a[1];
    if (!few && blocks > INT32_MAX) few = true, blocks = blocks_for(count, 256);
    put_conv(e, node, bias, residual);
    emit_node(e, input(e, node, 0), type, true, "x");
    emit_node(e, input(e, node, 1), type, true, "w");
    if (bias) emit_node(e, input(e, node, (uint32_t)at_bias), type, true, "bias");
    if (residual) emit_node(e, input(e, node, (uint32_t)at_residual), type, true, "residual");
    emit_node(e, node, type, false, "o");
    put(&e->body, "  conv_%s<@_p>(x, w, %s, %s, o);\n", few ? "each" : "tile", bias ? "bias" : "0",
        residual ? "residual" : "0");
    snprintf(name, sizeof name, "conv_%s_%s", few ? "each" : "tile", gn_dtype_name(x->dtype));
    emit_launch(e, name, (uint64_t)(few && blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* ---- pooling ---- */

static const char pool_text[] =
    "// A thread a window. P: T, C, U (of the result), KIND (of gn_pool_kind), ADAPTIVE, PADS (counted), PLANES, XN "
    "XC, "
    "CHANNELS, by axis I, O, K, S, DL, B (before), A (after), X (stride)\n"
    "struct pool_span { i64 begin, n, step; };\n"
    "template <class U, class C> M void pool_put(U &y, C v, i64) { put(y, v); }\n"
    "template <class C> M void pool_put(i64 &y, C, i64 at) { y = at; }\n"
    "template <class P> M pool_span pool_of(i64 o, i64 in, i64 k, i64 s, i64 d, i64 before) {\n"
    "  pool_span r = { o * s - before, k, d };\n"
    "  if (P::ADAPTIVE) { r.begin = o * in / k; r.n = ((o + 1) * in + k - 1) / k - r.begin; r.step = 1; }\n"
    "  return r;\n"
    "}\n"
    "// Those from `least` to below `most`.\n"
    "D pool_span pool_clip(pool_span r, i64 least, i64 most) {\n"
    "  const i64 skip = r.begin < least ? (least - r.begin + r.step - 1) / r.step : 0;\n"
    "  r.begin += skip * r.step;\n"
    "  const i64 left = r.n - skip, within = (most - r.begin - 1) / r.step + 1;\n"
    "  r.n = r.begin >= most ? 0 : left < within ? left : within;\n"
    "  return r;\n"
    "}\n"
    "template <class P> M i64 pool_count(const pool_span &r, i64 in, i64 before, i64 after) {\n"
    "  const i64 n = pool_clip(r, P::PADS ? -before : 0, P::PADS ? in + after : in).n;\n"
    "  return P::ADAPTIVE ? r.n : n > 0 ? n : 1;\n"
    "}\n"
    "// Windows that all have as many taps; offsets fit in 32 bits.\n"
    "template <class P> M void pool_plain(const typename P::T *x, typename P::U *y) {\n"
    "  typedef typename P::C C;\n"
    "  enum { O0 = P::O0, O1 = P::O1, O2 = P::O2, I0 = P::I0, I1 = P::I1, I2 = P::I2, K0 = P::K0, K1 = P::K1, K2 = "
    "P::K2, OUT = O0 * O1 * O2, CHANNELS = P::CHANNELS, ALL = P::PLANES * OUT };\n"
    "  for (int i = blockIdx.x * 256 + threadIdx.x; i < ALL; i += gridDim.x * 256) {\n"
    "    const int plane = i / OUT, a0 = i % OUT / (O1 * O2) * (int)P::S0 - (int)P::B0, b0 = i % (O1 * O2) / O2 * "
    "(int)P::S1 - (int)P::B1, c0 = i % O2 * (int)P::S2 - (int)P::B2;\n"
    "    const typename P::T *from = x + plane / CHANNELS * (int)P::XN + plane % CHANNELS * (int)P::XC;\n"
    "    C sum = 0, best = (C)gn_f64(0xfff0000000000000ull);\n"
    "    UNROLL for (int k = 0; k < K0 * K1 * K2; k++) {\n"
    "      const int a = a0 + k / (K1 * K2) * (int)P::DL0, b = b0 + k / K2 % K1 * (int)P::DL1, c = c0 + k % K2 * "
    "(int)P::DL2;\n"
    "      const bool is = a >= 0 && a < I0 && b >= 0 && b < I1 && c >= 0 && c < I2;\n"
    "      const C v = is ? get(from[a * (int)P::X0 + b * (int)P::X1 + c * (int)P::X2]) : (C)0;\n"
    "      sum += v;\n"
    "      if (is && (v > best || v != v) && best == best) best = v;\n"
    "    }\n"
    "    if (P::KIND == 2) {\n"
    "      const pool_span p = { a0, K0, P::DL0 }, q = { b0, K1, P::DL1 }, r = { c0, K2, P::DL2 };\n"
    "      sum /= (C)pool_count<P>(p, I0, P::B0, P::A0) * (C)pool_count<P>(q, I1, P::B1, P::A1) * (C)pool_count<P>(r, "
    "I2, P::B2, P::A2);\n"
    "    }\n"
    "    pool_put(y[i], P::KIND == 0 ? best : sum, 0);\n"
    "  }\n"
    "}\n"
    "template <class P> M void pool_each(const typename P::T *x, typename P::U *y) {\n"
    "  typedef typename P::C C;\n"
    "  const i64 OUT = P::O0 * P::O1 * P::O2, ALL = P::PLANES * OUT;\n"
    "  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < ALL; i += (i64)gridDim.x * 256) {\n"
    "    const i64 plane = i / OUT, from = plane / P::CHANNELS * P::XN + plane % P::CHANNELS * P::XC;\n"
    "    const pool_span p = pool_of<P>(i / (P::O1 * P::O2) % P::O0, P::I0, P::K0, P::S0, P::DL0, P::B0), q = "
    "pool_of<P>(i / P::O2 % P::O1, P::I1, P::K1, P::S1, P::DL1, P::B1), r = pool_of<P>(i % P::O2, P::I2, P::K2, P::S2, "
    "P::DL2, P::B2);\n"
    "    C sum = 0, best = (C)gn_f64(0xfff0000000000000ull);\n"
    "    i64 at = 0;\n"
    "    bool any = false;\n"
    "    const pool_span u = pool_clip(p, 0, P::I0), w = pool_clip(q, 0, P::I1), z = pool_clip(r, 0, P::I2);\n"
    "    for (i64 ta = 0, a = u.begin; ta < u.n; ta++, a += u.step) for (i64 tb = 0, b = w.begin; tb < w.n; tb++, b += "
    "w.step) for (i64 tc = 0, c = z.begin; tc < z.n; tc++, c += z.step) {\n"
    "      const C v = get(x[from + a * P::X0 + b * P::X1 + c * P::X2]);\n"
    "      sum += v;\n"
    "      if (any && !(v > best) && (best != best || v == v)) continue;\n"
    "      any = true;\n"
    "      best = v;\n"
    "      at = (a * P::I1 + b) * P::I2 + c;\n"
    "    }\n"
    "    if (P::KIND == 2) sum /= (C)pool_count<P>(p, P::I0, P::B0, P::A0) * (C)pool_count<P>(q, P::I1, P::B1, P::A1) "
    "* "
    "(C)pool_count<P>(r, P::I2, P::B2, P::A2);\n"
    "    pool_put(y[i], P::KIND == 0 ? best : sum, at);\n"
    "  }\n"
    "}\n";

/* Windows of few taps, all alike, and no offset or position beyond 2^30. */
static bool pool_is_plain(const gn_view *x, const gn_view *out, const int64_t *a) {
    enum { TAPS = 32 };
    const double most = 0x1p30;
    double taps = 1;
    bool is = a[0] != GN_POOL_INDEX && !(a[1] & 4) && is_small(x) && (double)gn_view_count(x) < most &&
              (double)gn_view_count(out) < most && !always_wide();
    for (int i = 0; i < x->rank - 2 && is; i++) {
        const int64_t *w = a + 2 + 5 * i; /* kernel, stride, dilation, before, after */
        taps *= (double)w[0];
        is = (double)out->dims[2 + i] * (double)w[1] + (double)w[0] * (double)w[2] + (double)w[3] < most;
    }
    return is && taps <= TAPS;
}

static void emit_pool(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *out = view_of(e, node);
    const int64_t *a = attrs_of(e, node);
    int64_t s[5][3] = { { 0 } }, count = gn_view_count(out), blocks = blocks_for(count, 256);
    int n = x->rank - 2;
    text *t = &e->types;
    char name[64];
    if (!count) {
        emit_nothing(e);
        return;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 5; k++) s[k][i] = a[2 + 5 * i + k];
    put(t, "struct @_p { typedef %s T; typedef %s C; typedef %s U; enum { KIND = %d, PADS = %d, ADAPTIVE = %d };\n",
        types[x->dtype].name, types[x->dtype].compute, types[out->dtype].name, (int)a[0], (a[1] & 2) != 0,
        (a[1] & 4) != 0);
    put(t, "  static const i64 PLANES = %lldll, CHANNELS = %lldll, XN = %lldll, XC = %lldll",
        (long long)(x->dims[0] * x->dims[1]), (long long)x->dims[1], (long long)x->strides[0],
        (long long)x->strides[1]);
    put_axes(t, "I", x->dims + 2, n, 1);
    put_axes(t, "O", out->dims + 2, n, 1);
    put_axes(t, "K", s[0], n, 1);
    put_axes(t, "S", s[1], n, 1);
    put_axes(t, "DL", s[2], n, 1);
    put_axes(t, "B", s[3], n, 0);
    put_axes(t, "A", s[4], n, 0);
    put_axes(t, "X", x->strides + 2, n, 0);
    put(t, ";\n};\n");
    emit_node(e, input(e, node, 0), types[x->dtype].name, true, "x");
    emit_node(e, node, types[out->dtype].name, false, "o");
    put(&e->body, "  pool_%s<@_p>(x, o);\n", pool_is_plain(x, out, a) ? "plain" : "each");
    snprintf(name, sizeof name, "pool_%s", gn_dtype_name(x->dtype));
    emit_launch(e, name, (uint64_t)(blocks > 1 << 20 ? 1 << 20 : blocks), 1, 256);
}

/* ---- resizing ---- */

static const char interpolate_text[] =
    "// Of an axis, P: KIND (of gn_interpolate_kind), ROUND, INSIDE, IN, TAPS, place(o), cubic(), stretch()\n"
    "template <class P> M i64 interpolate_clip(i64 i) { return i < 0 ? 0 : i < P::IN ? i : P::IN - 1; }\n"
    "template <class P> M i64 interpolate_near(i64 o) {\n"
    "  const double x = P::place(o);\n"
    "  return interpolate_clip<P>((i64)(P::ROUND == 2 ? floor(x) : P::ROUND == 3 ? ceil(x) : P::ROUND == 1 ? floor(x + "
    "0.5) "
    ": ceil(x - 0.5)));\n"
    "}\n"
    "template <class P, class C> struct interpolate_taps {\n"
    "  i64 first;\n"
    "  C part, total;\n"
    "  M interpolate_taps(i64 o) {\n"
    "    const double x = P::place(o), base = floor(x);\n"
    "    first = (i64)base - (P::TAPS / 2 - 1);\n"
    "    part = (C)(x - base);\n"
    "    total = 0;\n"
    "    for (i64 k = 0; k < P::TAPS; k++) total += of(k);\n"
    "  }\n"
    "  M C of(i64 k) const {\n"
    "    if (P::INSIDE && (first + k < 0 || first + k >= P::IN)) return 0;\n"
    "    C d = (part + (C)(P::TAPS / 2 - 1 - k)) / (C)P::stretch();\n"
    "    const C a = (C)P::cubic();\n"
    "    d = d < 0 ? -d : d;\n"
    "    if (P::KIND == 1) return d < 1 ? 1 - d : (C)0;\n"
    "    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;\n"
    "    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : (C)0;\n"
    "  }\n"
    "  M C weight(i64 k) const { return total != 0 ? of(k) / total : (C)0; }\n"
    "  M i64 at(i64 k) const { return interpolate_clip<P>(first + k); }\n"
    "};\n";

/* What interpolate_text calls P, of one axis. */
static void put_interpolate_axis(emit *e, uint32_t node, int i) {
    const int64_t *a = attrs_of(e, node), *of = a + 3 + 7 * i;
    double stretch = word_f64(of[6]);
    int64_t taps = a[0] ? 2 * (int64_t)ceil((double)a[0] * stretch) : 1;
    put(&e->types,
        "struct @_p%d { enum { KIND = %d, ROUND = %d, INSIDE = %d }; static const i64 IN = %lldll, TAPS = ", i,
        (int)a[0], (int)a[1] & 3, (a[1] & 4) != 0, (long long)view_of(e, input(e, node, 0))->dims[of[0]]);
    put(&e->types,
        "%lldll;\n  static M double place(i64 o) { return ((double)o + gn_f64(0x%llxull)) * gn_f64(0x%llxull)",
        (long long)taps, (unsigned long long)of[2], (unsigned long long)of[3]);
    put(&e->types,
        " / gn_f64(0x%llxull) + gn_f64(0x%llxull); }\n  static M double cubic() { return gn_f64(0x%llxull); }\n",
        (unsigned long long)of[4], (unsigned long long)of[5], (unsigned long long)a[2]);
    put(&e->types, "  static M double stretch() { return gn_f64(0x%llxull); }\n};\n", (unsigned long long)of[6]);
}

/* The place of result i along an axis. */
static void put_interpolate_place(text *t, const gn_view *out, int64_t axis) {
    int64_t below = 1;
    for (int k = (int)axis + 1; k < out->rank; k++) below *= out->dims[k];
    put(t, "(i64)(i / %lldull %% %lldull)", (long long)below, (long long)out->dims[axis]);
}

static void emit_interpolate(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *out = view_of(e, node);
    const int64_t *a = attrs_of(e, node);
    int n = (e->part->nodes[node].n_attrs - 3) / 7;
    bool near = a[0] == 0;
    const char *compute = types[x->dtype].compute;
    gn_view rest = *out; /* over the result's positions, without the axes */
    text line = { 0 };
    memcpy(rest.strides, x->strides, sizeof rest.strides);
    for (int i = 0; i < n; i++) {
        rest.strides[a[3 + 7 * i]] = 0;
        put_interpolate_axis(e, node, i);
        if (near) put(&line, "    const i64 at%d = interpolate_near<@_p%d>(", i, i);
        else put(&line, "    const interpolate_taps<@_p%d, %s> by%d(", i, compute, i);
        put_interpolate_place(&line, out, a[3 + 7 * i]);
        put(&line, ");\n");
    }
    gn_view c = gn_view_collapse(&rest);
    if (!near) put(&line, "    %s sum = 0;\n", compute);
    for (int i = 0; i < n && !near; i++)
        put(&line,
            "    for (i64 t%d = 0; t%d < @_p%d::TAPS; t%d++) {\n    const i64 at%d = by%d.at(t%d);\n    const %s w%d = "
            "by%d.weight(t%d)%s;\n",
            i, i, i, i, i, i, i, compute, i, i, i,
            i == 0   ? ""
            : i == 1 ? " * w0"
                     : " * w1");
    if (near) put(&line, "    y = a[");
    else put(&line, "    sum += w%d * get(a[", n - 1);
    put_offset(&line, &c, "i", is_small(&c));
    for (int i = 0; i < n; i++) put(&line, " + at%d * %lldll", i, (long long)x->strides[a[3 + 7 * i]]);
    if (near) put(&line, "];\n");
    else put(&line, "]);\n    %.*s\n    put(y, sum);\n", n, "}}}");
    emit_node(e, input(e, node, 0), types[x->dtype].name, true, "a");
    if (line.failed) e->failed = true;
    else emit_each(e, node, near ? "interpolate_nearest" : "interpolate", line.s);
    text_free(&line);
}

/* ---- recurrent networks ---- */

enum { RECURRENT_ROWS = 4 }; /* of a block, at most */

static const char recurrent_text[] =
    "// A block runs all steps of up to four rows in one direction. P: T, C, I (of lengths), CELL (of gn_cell), G, "
    "WAYS, "
    "STEPS, B, H, ROWS of a block, REVERSE FIRST COUPLED BIAS LEN H0 C0 PEEP, place(gate), strides X0 to X3 …, "
    "act(direction, which, x, slope)\n"
    "template <int K, class C> M C cell_bend(C x, C most, C alpha, C beta, C *slope) {\n"
    "  const C v = x > most ? most : x < -most ? -most : x, far = v < 0 ? -v : v, line = alpha * v + beta;\n"
    "  C y = v, s = 1;\n"
    "  if (K == 1) { y = gn_tanh(v); s = 1 - y * y; }\n"
    "  if (K == 2) { y = 1 / (1 + gn_exp(-v)); s = y * (1 - y); }\n"
    "  if (K == 3) { y = v < 0 ? (C)0 : v; s = v > 0; }\n"
    "  if (K == 4) { y = v / (1 + far); s = 1 / ((1 + far) * (1 + far)); }\n"
    "  if (K == 5) { y = (v > 0 ? v : (C)0) + gn_log1p(gn_exp(-far)); s = 1 / (1 + gn_exp(-v)); }\n"
    "  if (K == 6) { y = v > 0 ? v : alpha * v; s = v > 0 ? (C)1 : alpha; }\n"
    "  if (K == 7) { y = v > 0 ? v : alpha * gn_expm1(v); s = v > 0 ? (C)1 : alpha * gn_exp(v); }\n"
    "  if (K == 8) { y = line; s = alpha; }\n"
    "  if (K == 9) { const C t = gn_tanh(beta * v); y = alpha * t; s = alpha * beta * (1 - t * t); }\n"
    "  if (K == 10) { y = v > alpha ? v : (C)0; s = v > alpha; }\n"
    "  if (K == 11) { y = line < 0 ? (C)0 : line > 1 ? (C)1 : line; s = line > 0 && line < 1 ? alpha : (C)0; }\n"
    "  *slope = x > most || x < -most ? (C)0 : s;\n"
    "  return y;\n"
    "}\n"
    "template <class P> M i64 cell_length(const typename P::I *len, i64 b, u32 *err, u32 node) {\n"
    "  if (!P::LEN) return P::STEPS;\n"
    "  const i64 n = len[b * P::L0];\n"
    "  if (n >= 0 && n <= P::STEPS) return n;\n"
    "  fault(err, OUT_OF_RANGE, node, n, P::STEPS + 1);\n"
    "  return 0;\n"
    "}\n"
    "// Element k of a direction's peepholes: of i, o, f.\n"
    "template <class P> M typename P::C cell_peep(const typename P::T *peep, i64 d, i64 k, i64 u) {\n"
    "  return P::PEEP ? get(peep[d * P::E0 + (k * P::H + u) * P::E1]) : (typename P::C)0;\n"
    "}\n"
    "// What a state is after a step, of one unit; x and q of its gates.\n"
    "template <class P, class C> M C cell_step(i64 d, i64 u, const C *x, const C *q, C h, C *state, const typename "
    "P::T "
    "*peep) {\n"
    "  C s;\n"
    "  if (P::CELL == 0) return P::act(d, 0, x[0] + q[0], &s);\n"
    "  if (P::CELL == 1) {\n"
    "    const C r = P::act(d, 0, x[0] + q[0], &s), z = P::act(d, 0, x[1] + q[1], &s);\n"
    "    return (1 - z) * P::act(d, 1, x[2] + (P::FIRST ? q[2] : r * q[2]), &s) + z * h;\n"
    "  }\n"
    "  typename P::T kept;\n"
    "  const C old = *state, i = P::act(d, 0, x[0] + q[0] + cell_peep<P>(peep, d, 0, u) * old, &s);\n"
    "  const C f = P::COUPLED ? 1 - i : P::act(d, 0, x[1] + q[1] + cell_peep<P>(peep, d, 2, u) * old, &s);\n"
    "  put(kept, f * old + i * P::act(d, 1, x[2] + q[2], &s));\n"
    "  *state = get(kept);\n"
    "  const C o = P::act(d, 0, x[3] + q[3] + cell_peep<P>(peep, d, 1, u) * *state, &s);\n"
    "  return o * P::act(d, 2, *state, &s);\n"
    "}\n"
    "// The running state lies where the last one goes. A warp has a unit, its lanes share the products with h; `rh` "
    "holds r h where that comes first.\n"
    "template <class P> M void recurrent_run(const typename P::T *p, const typename P::T *r, const typename P::T "
    "*bias, "
    "const typename P::I *len, const typename P::T *h0, const typename P::T *c0, const typename P::T *peep, typename "
    "P::T *o, typename P::C *rh, u32 *err, u32 node) {\n"
    "  typedef typename P::C C; typedef typename P::T T;\n"
    "  enum { R = P::ROWS, G = P::G };\n"
    "  const i64 STEP = P::WAYS * P::B * P::H, PLANE = (P::STEPS + 1) * STEP, groups = (P::B + R - 1) / R;\n"
    "  const i64 d = blockIdx.x / groups, first = blockIdx.x % groups * R, base = (d * P::B + first) * P::H;\n"
    "  const int n = (int)(P::B - first < R ? P::B - first : R), lane = threadIdx.x & 31;\n"
    "  const bool back = P::REVERSE || d == 1;\n"
    "  T *hs = o + P::STEPS * STEP + base, *cs = hs + PLANE;\n"
    "  __shared__ i64 length[R];\n"
    "  if (threadIdx.x < n) length[threadIdx.x] = cell_length<P>(len, first + threadIdx.x, err, node);\n"
    "  for (i64 i = threadIdx.x; i < n * P::H; i += 256) {\n"
    "    const i64 b = first + i / P::H, u = i % P::H;\n"
    "    put(hs[i], P::H0 ? get(h0[d * P::H0_0 + b * P::H0_1 + u * P::H0_2]) : (C)0);\n"
    "    if (P::CELL == 2) put(cs[i], P::C0 ? get(c0[d * P::C0_0 + b * P::C0_1 + u * P::C0_2]) : (C)0);\n"
    "  }\n"
    "  __syncthreads();\n"
    "  for (i64 k = 0; k < P::STEPS; k++) {\n"
    "    const i64 t = back ? P::STEPS - 1 - k : k;\n"
    "    T *ht = o + t * STEP + base, *ct = ht + PLANE;\n"
    "    for (int pass = P::FIRST ? 0 : 1; pass < 2; pass++) {\n"
    "      for (i64 u = threadIdx.x / 32; u < P::H; u += 8) {\n"
    "        C sum[G][R];\n"
    "        UNROLL for (int g = 0; g < G; g++) UNROLL for (int row = 0; row < R; row++) sum[g][row] = 0;\n"
    "        for (i64 l = lane; l < P::H; l += 32) UNROLL for (int g = 0; g < G; g++) {\n"
    "          const C w = get(r[d * P::R0 + (P::place(g) * P::H + u) * P::R1 + l * P::R2]);\n"
    "          UNROLL for (int row = 0; row < R; row++) if (row < n) sum[g][row] = gn_fma(w, P::FIRST && g == 2 ? "
    "(pass "
    "? rh[base + row * P::H + l] : (C)0) : get(hs[row * P::H + l]), sum[g][row]);\n"
    "        }\n"
    "        UNROLL for (int g = 0; g < G; g++) UNROLL for (int row = 0; row < R; row++) UNROLL for (int m = 16; m > "
    "0; "
    "m /= 2) sum[g][row] += exchange(sum[g][row], m);\n"
    "        UNROLL for (int row = 0; row < R; row++) if (lane == row && row < n) {\n"
    "          const i64 at = row * P::H + u;\n"
    "          C x[G], q[G], h = get(hs[at]), state = 0, s;\n"
    "          UNROLL for (int g = 0; g < G; g++) {\n"
    "            const i64 column = P::place(g) * P::H + u;\n"
    "            x[g] = get(p[d * P::X0 + t * P::X1 + (first + row) * P::X2 + column * P::X3]);\n"
    "            q[g] = sum[g][row] + (P::BIAS ? get(bias[d * P::A0 + column * P::A1]) : (C)0);\n"
    "          }\n"
    "          if (P::FIRST && pass == 0) { rh[base + at] = P::act(d, 0, x[0] + q[0], &s) * h; continue; }\n"
    "          if (P::CELL == 2) state = get(cs[at]);\n"
    "          const bool lives = t < length[row];\n"
    "          h = lives ? cell_step<P, C>(d, u, x, q, h, &state, peep) : (C)0;\n"
    "          put(ht[at], h);\n"
    "          if (P::CELL == 2) put(ct[at], lives ? state : (C)0);\n"
    "        }\n"
    "      }\n"
    "      __syncthreads();\n"
    "    }\n"
    "    for (i64 i = threadIdx.x; i < n * P::H; i += 256) if (t < length[i / P::H]) { hs[i] = ht[i]; if (P::CELL == "
    "2) "
    "cs[i] = ct[i]; }\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n";

static const char recurrent_back_text[] =
    "// The gradients of a unit's gates by those of its states; *dh and *dc become what of them goes to the states "
    "before. y: of the gates in the order of the cell, of a GRU then that of q of n.\n"
    "template <class P, class C> M void cell_back(i64 d, i64 u, const C *x, const C *q, C h, C old, C *dh, C *dc, "
    "const "
    "typename P::T *peep, C *y) {\n"
    "  C s0, s1, s2, s3, s4;\n"
    "  if (P::CELL == 0) { P::act(d, 0, x[0] + q[0], &s0); y[0] = *dh * s0; *dh = 0; return; }\n"
    "  if (P::CELL == 1) {\n"
    "    const C r = P::act(d, 0, x[0] + q[0], &s0), z = P::act(d, 0, x[1] + q[1], &s1), n = P::act(d, 1, x[2] + r * "
    "q[2], &s2);\n"
    "    y[1] = *dh * (h - n) * s1;\n"
    "    y[2] = *dh * (1 - z) * s2;\n"
    "    y[0] = y[2] * q[2] * s0;\n"
    "    y[3] = y[2] * r;\n"
    "    *dh *= z;\n"
    "    return;\n"
    "  }\n"
    "  const C pi = cell_peep<P>(peep, d, 0, u), po = cell_peep<P>(peep, d, 1, u), pf = cell_peep<P>(peep, d, 2, u);\n"
    "  const C i = P::act(d, 0, x[0] + q[0] + pi * old, &s0);\n"
    "  C f = P::act(d, 0, x[1] + q[1] + pf * old, &s1);\n"
    "  if (P::COUPLED) { f = 1 - i; s1 = 0; }\n"
    "  const C g = P::act(d, 1, x[2] + q[2], &s2), now = f * old + i * g;\n"
    "  const C o = P::act(d, 0, x[3] + q[3] + po * now, &s3), bent = P::act(d, 2, now, &s4);\n"
    "  y[3] = *dh * bent * s3;\n"
    "  const C c = *dc + *dh * o * s4 + y[3] * po;\n"
    "  y[0] = c * (P::COUPLED ? g - old : g) * s0;\n"
    "  y[1] = c * old * s1;\n"
    "  y[2] = c * i * s2;\n"
    "  *dc = c * f + y[0] * pi + y[1] * pf;\n"
    "  *dh = 0;\n"
    "}\n"
    "// A step back of a GRU that takes r h times R: r h, which `rs` keeps and the result has behind the gates; then n "
    "and z; then r, from the gradient by r h; then h.\n"
    "template <class P, class T, class C> M void first_back(i64 d, i64 t, i64 first, i64 n, const i64 *length, const T "
    "*p, const T *q, const T *r, const T *before, const T *gy, T *o, C *dh, C *rs, C *dg) {\n"
    "  for (int pass = 0; pass < 4; pass++) {\n"
    "    for (i64 i = threadIdx.x; i < n * P::H; i += 256) {\n"
    "      const i64 row = i / P::H, u = i % P::H, b = first + row, at = d * P::X0 + t * P::X1 + b * P::X2;\n"
    "      const i64 of_q = d * P::Q0 + t * P::Q1 + b * P::Q2, jr = P::place(0) * P::H + u, jz = P::place(1) * P::H + "
    "u, jn = 2 * P::H + u;\n"
    "      const bool live = t < length[row];\n"
    "      T *to = o + ((d * (P::STEPS + 1) + t) * P::B + b) * 4 * P::H;\n"
    "      C *g = dg + row * 3 * P::H, s, sum = 0;\n"
    "      const C old = get(before[t * P::S1 + d * P::S2 + b * P::S3 + u * P::S4]);\n"
    "      const C reset = P::act(d, 0, get(p[at + jr * P::X3]) + get(q[of_q + jr * P::Q3]), &s);\n"
    "      if (pass == 0) {\n"
    "        rs[i] = live ? reset * old : (C)0;\n"
    "        put(to[jn + P::H], rs[i]);\n"
    "      }\n"
    "      if (pass == 1) {\n"
    "        C by_z, by_n;\n"
    "        for (i64 l = 0; l < P::H; l++) sum = gn_fma(rs[row * P::H + l], get(r[d * P::R0 + jn * P::R1 + l * "
    "P::R2]), sum);\n"
    "        const C z = P::act(d, 0, get(p[at + jz * P::X3]) + get(q[of_q + jz * P::Q3]), &by_z);\n"
    "        const C now = P::act(d, 1, get(p[at + jn * P::X3]) + sum, &by_n);\n"
    "        const C by = dh[i] + get(gy[t * P::Y1 + d * P::Y2 + b * P::Y3 + u * P::Y4]);\n"
    "        g[jz] = live ? by * (old - now) * by_z : (C)0;\n"
    "        g[jn] = live ? by * (1 - z) * by_n : (C)0;\n"
    "        put(to[jz], g[jz]);\n"
    "        put(to[jn], g[jn]);\n"
    "        if (live) dh[i] = by * z;\n"
    "      }\n"
    "      if (pass == 2) {\n"
    "        for (i64 l = 2 * P::H; l < 3 * P::H; l++) sum = gn_fma(g[l], get(r[d * P::R0 + l * P::R1 + u * P::R2]), "
    "sum);\n"
    "        g[jr] = live ? sum * old * s : (C)0;\n"
    "        put(to[jr], g[jr]);\n"
    "        if (live) dh[i] += sum * reset;\n"
    "      }\n"
    "      if (pass == 3) {\n"
    "        for (i64 l = 0; l < 2 * P::H; l++) sum = gn_fma(g[l], get(r[d * P::R0 + l * P::R1 + u * P::R2]), sum);\n"
    "        dh[i] += sum;\n"
    "      }\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n"
    "// P as of recurrent_run, W elements of a result's row. A thread has a unit of a row; `room` holds the gradients "
    "by "
    "h and by c (D,B,H), then those of all q (D,B,G*H).\n"
    "template <class P> M void recurrent_back(const typename P::T *p, const typename P::T *q, const typename P::T *r, "
    "const typename P::T *before, const typename P::T *gy, const typename P::I *len, const typename P::T *peep, "
    "typename P::T *o, typename P::C *room, u32 *err, u32 node) {\n"
    "  typedef typename P::C C; typedef typename P::T T;\n"
    "  enum { R = P::ROWS, G = P::G, PUTS = G == 1 ? 1 : 4 };\n"
    "  const i64 STEP = P::WAYS * P::B * P::H, groups = (P::B + R - 1) / R, W = PUTS * P::H;\n"
    "  const i64 d = blockIdx.x / groups, first = blockIdx.x % groups * R, base = (d * P::B + first) * P::H;\n"
    "  const i64 n = P::B - first < R ? P::B - first : R;\n"
    "  const bool back = P::REVERSE || d == 1;\n"
    "  C *dh = room + base, *dc = dh + STEP, *dg = room + 2 * STEP + base * G;\n"
    "  __shared__ i64 length[R];\n"
    "  if (threadIdx.x < n) length[threadIdx.x] = cell_length<P>(len, first + threadIdx.x, err, node);\n"
    "  __syncthreads();\n"
    "  for (i64 k = 0; k <= P::STEPS; k++) {\n"
    "    const i64 t = k == 0 || !back ? P::STEPS - k : k - 1;\n"
    "    if (P::FIRST && k > 0) { first_back<P, T, C>(d, t, first, n, length, p, q, r, before, gy, o, dh, dc, dg); "
    "continue; }\n"
    "    for (i64 i = threadIdx.x; i < n * P::H; i += 256) {\n"
    "      const i64 row = i / P::H, u = i % P::H, b = first + row;\n"
    "      const T *from = gy + t * P::Y1 + d * P::Y2 + b * P::Y3 + u * P::Y4;\n"
    "      const C by_h = get(from[0]), by_c = P::CELL == 2 ? get(from[P::Y0]) : (C)0;\n"
    "      if (k == 0) { dh[i] = by_h; dc[i] = by_c; continue; }\n"
    "      T *to = o + ((d * (P::STEPS + 1) + t) * P::B + b) * W + u;\n"
    "      C y[4] = { 0, 0, 0, 0 };\n"
    "      if (t < length[row]) {\n"
    "        const T *old = before + t * P::S1 + d * P::S2 + b * P::S3 + u * P::S4;\n"
    "        C x[G], by[G], h = dh[i] + by_h, c = dc[i] + by_c;\n"
    "        UNROLL for (int g = 0; g < G; g++) {\n"
    "          const i64 column = P::place(g) * P::H + u;\n"
    "          x[g] = get(p[d * P::X0 + t * P::X1 + b * P::X2 + column * P::X3]);\n"
    "          by[g] = get(q[d * P::Q0 + t * P::Q1 + b * P::Q2 + column * P::Q3]);\n"
    "        }\n"
    "        cell_back<P, C>(d, u, x, by, get(old[0]), P::CELL == 2 ? get(old[P::S0]) : (C)0, &h, &c, peep, y);\n"
    "        dh[i] = h;\n"
    "        dc[i] = c;\n"
    "      }\n"
    "      UNROLL for (int g = 0; g < PUTS; g++) put(to[(g < G ? P::place(g) : g) * P::H], y[g]);\n"
    "      UNROLL for (int g = 0; g < G; g++) dg[row * G * P::H + P::place(g) * P::H + u] = y[G == 3 && g == 2 ? 3 : "
    "g];\n"
    "    }\n"
    "    __syncthreads();\n"
    "    for (i64 i = threadIdx.x; k > 0 && i < n * P::H; i += 256) {\n"
    "      const i64 row = i / P::H, u = i % P::H;\n"
    "      C sum = 0;\n"
    "      for (i64 l = 0; l < G * P::H; l++) sum = gn_fma(dg[row * G * P::H + l], get(r[d * P::R0 + l * P::R1 + u * "
    "P::R2]), sum);\n"
    "      dh[i] += sum;\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "  for (i64 i = threadIdx.x; i < n * P::H; i += 256) {\n"
    "    T *to = o + ((d * (P::STEPS + 1) + P::STEPS) * P::B + first + i / P::H) * W + i % P::H;\n"
    "    UNROLL for (int g = 0; g < PUTS; g++) put(to[g * P::H], g == 0 ? dh[i] : g == 1 && P::CELL == 2 ? dc[i] : "
    "(C)0);\n"
    "  }\n"
    "}\n";

/* Which inputs there are; 0: it is not there. */
typedef struct recurrent_inputs {
    int r, bias, lengths, h0, c0, peepholes;
} recurrent_inputs;

static recurrent_inputs recurrent_inputs_of(int64_t bits, bool back) {
    int n = back ? 5 : 2;
    recurrent_inputs at = { .r = back ? 2 : 1 };
    if (bits & 16) at.bias = n++;
    if (bits & 32) at.lengths = n++;
    if (bits & 64) at.h0 = n++;
    if (bits & 128) at.c0 = n++;
    if (bits & 256) at.peepholes = n;
    return at;
}

static void put_strides(text *t, emit *e, uint32_t node, int at, bool there, const char *name) {
    const gn_view *v = there ? view_of(e, input(e, node, (uint32_t)at)) : NULL;
    for (int i = 0; i < GN_MAX_RANK; i++)
        put(t, ", %s%d = %lldll", name, i, (long long)(v && i < v->rank ? v->strides[i] : 0));
}

static void put_recurrent_acts(text *t, const int64_t *a, int ways, const char *c) {
    put(t, "  static M %s act(i64 d, int which, %s x, %s *slope) {\n", c, c, c);
    for (int k = 0; k < 3 * ways; k++)
        put(t,
            "    if (d == %d && which == %d) return cell_bend<%d, %s>(x, (%s)gn_f64(0x%llxull), (%s)gn_f64(0x%llxull), "
            "(%s)gn_f64(0x%llxull), slope);\n",
            k / 3, k % 3, (int)a[3 + 3 * k], c, c,
            (unsigned long long)(word_f64(a[2]) > 0 ? a[2] : 0x7ff0000000000000ll), c, (unsigned long long)a[4 + 3 * k],
            c, (unsigned long long)a[5 + 3 * k]);
    put(t, "    return x;\n  }\n");
}

/* What the device text calls P. */
static void put_recurrent(emit *e, uint32_t node, bool back) {
    static const char *const places[3][2] = { { "0", "0" },
                                              { "g", "g == 2 ? 2 : 1 - g" },
                                              { "g", "g ? g % 3 + 1 : 0" } };
    const gn_view *x = view_of(e, input(e, node, 0));
    const int64_t *a = attrs_of(e, node);
    recurrent_inputs at = recurrent_inputs_of(a[1], back);
    text *t = &e->types;
    int gates = a[0] == 2 ? 4 : a[0] == 1 ? 3 : 1;
    const char *c = types[x->dtype].compute,
               *of = at.lengths ? types[view_of(e, input(e, node, (uint32_t)at.lengths))->dtype].name : "int";
    put(t,
        "struct @_p { typedef %s T; typedef %s C; typedef %s I;\n  enum { CELL = %d, G = %d, ROWS = %d, REVERSE = %d, ",
        types[x->dtype].name, c, of, (int)a[0], gates, (int)(x->dims[2] < RECURRENT_ROWS ? x->dims[2] : RECURRENT_ROWS),
        (a[1] & 1) != 0);
    put(t, "FIRST = %d, COUPLED = %d, BIAS = %d, LEN = %d, H0 = %d, C0 = %d, PEEP = %d };\n", (a[1] & 4) != 0,
        (a[1] & 8) != 0, at.bias != 0, at.lengths != 0, at.h0 != 0, at.c0 != 0, at.peepholes != 0);
    put(t, "  static const i64 WAYS = %lldll, STEPS = %lldll, B = %lldll, H = %lldll", (long long)x->dims[0],
        (long long)x->dims[1], (long long)x->dims[2], (long long)(x->dims[3] / gates));
    put_strides(t, e, node, 0, true, "X");
    put_strides(t, e, node, at.r, true, "R");
    put_strides(t, e, node, at.bias, at.bias != 0, "A");
    put_strides(t, e, node, at.lengths, at.lengths != 0, "L");
    put_strides(t, e, node, at.h0, at.h0 != 0, "H0_");
    put_strides(t, e, node, at.c0, at.c0 != 0, "C0_");
    put_strides(t, e, node, at.peepholes, at.peepholes != 0, "E");
    put_strides(t, e, node, 1, back, "Q");
    put_strides(t, e, node, 3, back, "S");
    put_strides(t, e, node, 4, back, "Y");
    put(t, ";\n  static M i64 place(int g) { return %s; }\n", places[a[0]][(a[1] & 2) != 0]);
    put_recurrent_acts(t, a, (int)x->dims[0], c);
    put(t, "};\n");
}

static const char *emit_if(emit *e, uint32_t node, int at, const char *type, const char *name) {
    if (at) emit_node(e, input(e, node, (uint32_t)at), type, true, name);
    return at ? name : "0";
}

static void emit_recurrent_as(emit *e, uint32_t node, bool back) {
    const gn_view *x = view_of(e, input(e, node, 0));
    const int64_t *a = attrs_of(e, node);
    const char *type = types[x->dtype].name;
    recurrent_inputs at = recurrent_inputs_of(a[1], back);
    int64_t of_block = x->dims[2] < RECURRENT_ROWS ? x->dims[2] : RECURRENT_ROWS;
    size_t state = (size_t)(x->dims[0] * x->dims[2] *
                            (x->dims[3] / (a[0] == 2   ? 4
                                           : a[0] == 1 ? 3
                                                       : 1))),
           elements = back ? gn_size_add(gn_size_mul(state, 2), (size_t)(x->dims[0] * x->dims[2] * x->dims[3])) : state,
           bytes = gn_size_mul(elements, x->dtype == GN_F64 ? 8 : 4);
    bool room = back || a[1] & 4;
    char name[64];
    put_recurrent(e, node, back);
    emit_node(e, input(e, node, 0), type, true, "x");
    if (back) emit_node(e, input(e, node, 1), type, true, "q");
    emit_node(e, input(e, node, (uint32_t)at.r), type, true, "r");
    if (back) emit_node(e, input(e, node, 3), type, true, "before");
    if (back) emit_node(e, input(e, node, 4), type, true, "gy");
    const char *lengths = at.lengths ? types[view_of(e, input(e, node, (uint32_t)at.lengths))->dtype].name : "int",
               *bias = emit_if(e, node, at.bias, type, "bias"), *len = emit_if(e, node, at.lengths, lengths, "len"),
               *h0 = emit_if(e, node, at.h0, type, "h0"), *c0 = emit_if(e, node, at.c0, type, "c0"),
               *peep = emit_if(e, node, at.peepholes, type, "peep");
    emit_node(e, node, type, false, "o");
    if (room && bytes > e->scratch) e->scratch = bytes;
    if (room) emit_pointer(e, types[x->dtype].compute, false, "room", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_faults(e, node);
    if (back) put(&e->body, "  recurrent_back<@_p>(x, q, r, before, gy, %s, %s, o, room, err, node);\n", len, peep);
    else
        put(&e->body, "  recurrent_run<@_p>(x, r, %s, %s, %s, %s, %s, o, %s, err, node);\n", bias, len, h0, c0, peep,
            room ? "room" : "0");
    snprintf(name, sizeof name, "recurrent_%s%d_%s", back ? "back_" : "", (int)a[0], gn_dtype_name(x->dtype));
    emit_launch(e, name, (uint64_t)(x->dims[0] * ((x->dims[2] + of_block - 1) / of_block)), 1, 256);
}
static void emit_recurrent(emit *e, uint32_t node) { emit_recurrent_as(e, node, false); }
static void emit_recurrent_back(emit *e, uint32_t node) { emit_recurrent_as(e, node, true); }

/* >>attention ========================================================================================
 * Attention over many queries, and its cache: appends, what undoes and what commits them. */

static const char attention_text[] =
    "// What a loop makes of the score of query t and key j before the softmax; "
    "begin(z): of the z-th (b, h). Here there is no loop.\n"
    "struct no_loop { enum { LOOP = 0 }; M void begin(i64) {} template <class C> M C value(C s, i64, i64) const { "
    "return s; } };\n"
    "// What the type of a loop on scores says of keys: how many of them a query sees, from its own back (0: all "
    "before "
    "it), and the score of none of them\n"
    "template <class X> struct seen_by { static const i64 WINDOW = 0; enum { SINKS = 0 }; static M float sink(const X "
    "&) { return gn_f32(0xff800000u); } };\n"
    "// One block of 128 threads for a query (b, h, t): scores in groups of 128 keys, a running softmax, each thread "
    "holding some of E.\n"
    "// P: T, C, MT (mask), B, H, G, TQ, S, DK, E, strides QB QH QT QD …, MASK (0 none, 1 bool, 2 added), LENGTH, "
    "CAUSAL, scale(), L (type of length), X (loop),\n"
    "// WRITTEN: as a softmax and a product compute it, also where a weight of 0 meets infinity and where a query has "
    "no score above -infinity\n"
    "template <class P> M void attention(const typename P::T *q, const typename P::T *k, const typename P::T *v, const "
    "typename P::MT *mask, const typename P::L *length, typename P::X x, typename P::T *out, typename P::C *parts, u32 "
    "*err, u32 node) {\n"
    "  typedef typename P::C C;\n"
    "  __shared__ __align__(16) C shared[4], sums[4];                    // read as one word each, "
    "with no neighbour in it\n"
    "  enum { KEPT = P::DK <= 2048 };                                    // longer queries stay where they are\n"
    "  __shared__ C qs[P::DK > 0 && KEPT ? P::DK : 1], ps[128];\n"
    "  const int th = threadIdx.x;\n"
    "  const i64 at = blockIdx.x, t = at % P::TQ, h = at / P::TQ % P::H, b = at / P::TQ / P::H, g = h / (P::H / "
    "P::G);\n"
    "  i64 n = P::S;\n"
    "  if (P::LENGTH) {\n"
    "    n = get(*length);\n"
    "    if (n < (P::CAUSAL ? P::TQ : 0) || n > P::S) { if (th == 0) fault(err, OUT_OF_RANGE, node, n, P::S); n = 0; "
    "}\n"
    "  }\n"
    "  i64 seen = n;\n"
    "  if (P::CAUSAL) { seen = n - P::TQ + t + 1; if (seen < 0) seen = 0; }\n"
    "  if (seen > n) seen = n;\n"
    "  typedef seen_by<typename P::X> by;\n"
    "  i64 first = by::WINDOW > 0 && seen > by::WINDOW ? seen - by::WINDOW : 0;\n"
    "  if (P::PARTS > 1) { first += (i64)blockIdx.y * P::SPAN; if (seen > first + P::SPAN) seen = first + P::SPAN; }\n"
    "  x.begin(at / P::TQ);\n"
    "  const C least = gn_f32(0xff800000u), sink = blockIdx.y == 0 ? (C)by::sink(x) : least;\n"
    "  q += b * P::QB + h * P::QH + t * P::QT;\n"
    "  for (int d = th; d < P::DK && KEPT; d += 128) qs[d] = get(q[d * P::QD]);\n"
    "  C acc[(P::E + 127) / 128 > 0 ? (P::E + 127) / 128 : 1], top = sink, sum = by::SINKS && sink != least ? 1 : "
    "0;\n"
    "  UNROLL for (int e = 0; e < (P::E + 127) / 128; e++) acc[e] = 0;\n"
    "  k += b * P::KB + g * P::KH;\n"
    "  v += b * P::VB + g * P::VH;\n"
    "  for (i64 base = first; base < seen; base += 128) {\n"
    "    __syncthreads();\n"
    "    const i64 j = base + th;\n"
    "    C s = gn_f32(0xff800000u);\n"
    "    if (j < seen) {\n"
    "      C d4[4] = { 0, 0, 0, 0 };\n"
    "      if (P::VK > 1) {\n"
    "        _Pragma(\"unroll 4\") for (int d = 0; d < P::DK; d += P::VK) {\n"
    "          typename P::T key[P::VK];\n"
    "          vload<P::VK>(key, k + j * P::KS + d);\n"
    "          UNROLL for (int y = 0; y < P::VK; y++) d4[(d + y) & 3] = "
    "gn_fma(KEPT ? qs[d + y] : (C)get(q[(d + y) * P::QD]), (C)get(key[y]), d4[(d + y) & 3]);\n"
    "        }\n"
    "      } else for (int d = 0; d < P::DK; d++) d4[d & 3] = gn_fma(KEPT ? qs[d] : (C)get(q[d * P::QD]), "
    "(C)get(k[j * P::KS + d * P::KD]), d4[d & 3]);\n"
    "      s = ((d4[0] + d4[1]) + (d4[2] + d4[3])) * P::scale();\n"
    "      s = x.value(s, t, j);\n"
    "      if (P::MASK) {\n"
    "        const typename P::MT m = mask[b * P::MB + h * P::MH + t * P::MQ + j * P::MS];\n"
    "        if (P::MASK == 1) s = get(m) != 0 ? s : (C)gn_f32(0xff800000u); else s = s + (C)get(m);\n"
    "      }\n"
    "    }\n"
    "    max_of<C> m;\n"
    "    m.v = s;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) m.merge(exchange(m, l));\n"
    "    if ((th & 31) == 0) shared[th >> 5] = m.v;\n"
    "    __syncthreads();\n"
    "    C now = max_nan(max_nan(shared[0], shared[1]), max_nan(shared[2], shared[3]));\n"
    "    now = max_nan(top, now);\n"
    "    const bool none = now == (C)gn_f32(0xff800000u);\n"
    "    const C p = j < seen && !none ? gn_exp(s - now) : (C)0, keep = none || top == now ? (C)1 : gn_exp(top - "
    "now);\n"
    "    ps[th] = p;\n"
    "    sum_of<C> group;\n"
    "    group.v = p;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) group.merge(exchange(group, l));\n"
    "    if ((th & 31) == 0) sums[th >> 5] = group.v;\n"
    "    __syncthreads();\n"
    "    sum = sum * keep + ((sums[0] + sums[1]) + (sums[2] + sums[3]));\n"
    "    top = now;\n"
    "    const int count = seen - base < 128 ? (int)(seen - base) : 128;\n"
    "    UNROLL for (int e = 0; e < (P::E + 127) / 128; e++) {\n"
    "      const int c = e * 128 + th;\n"
    "      C o = acc[e] * keep;\n"
    "      if (c < P::E) _Pragma(\"unroll 8\") for (int l = 0; l < count; "
    "l++) if (P::WRITTEN || ps[l] != 0) o = gn_fma(ps[l], (C)get(v[(base + l) * P::VS + (i64)c * P::VE]), o);\n"
    "      acc[e] = o;\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int e = 0; e < (P::E + 127) / 128; e++) {\n"
    "    const int c = e * 128 + th;\n"
    "    if (c >= P::E) continue;\n"
    "    if (P::PARTS > 1) parts[(at * P::PARTS + blockIdx.y) * (P::E + 2) + 2 + c] = acc[e];\n"
    "    else put(out[at * P::E + c], P::WRITTEN || sum != 0 ? acc[e] / sum : (C)0);\n"
    "  }\n"
    "  if (P::PARTS > 1 && th == 0) { parts[(at * P::PARTS + blockIdx.y) * (P::E + 2)] = top; "
    "parts[(at * P::PARTS + blockIdx.y) * (P::E + 2) + 1] = sum; }\n"
    "}\n"
    "// 64 rows of N elements in shared memory, S apart, with zeros where there is nothing; "
    "the threads' order follows memory.\n"
    "template <int N, int S, class T, class C> M void attention_rows(C *to, const T *p, i64 first, i64 rows, int "
    "columns, i64 down, i64 along) {\n"
    "  _Pragma(\"unroll 8\") for (int i = threadIdx.x; i < 64 * N; i += 256) {\n"
    "    const int r = down == 1 ? i % 64 : i / N, c = down == 1 ? i / 64 : i % N;\n"
    "    to[r * S + c] = first + r < rows && c < columns ? get(p[(first + r) * down + c * along]) : (C)0;\n"
    "  }\n"
    "}\n"
    "// As attention (WRITTEN, no mask or length, in f32) for 64 queries of one (b, h) to a block of 256 threads, 64 "
    "keys at a time. A thread has scores of 4 queries and\n"
    "// every 16th key, and the results of these queries in 4 of each 64 columns; 16 neighbours share queries.\n"
    "template <class P> M void tiled_attention(const typename P::T *q, const typename P::T *k, const typename P::T *v, "
    "typename P::X x, typename P::T *out) {\n"
    "  enum { DP = (P::DK + 3) / 4 * 4, DS = DP + 4, EG = (P::E + 63) / 64, ES = EG * 64, PS = 68 };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  float *sq = (float *)memory, *sk = sq + 64 * DS, *sv = sk + 64 * DS, *sp = sv + 64 * ES;\n"
    "  const int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;\n"
    "  const i64 first = (i64)blockIdx.x * 64, h = blockIdx.y % P::H, b = blockIdx.y / P::H, g = h / (P::H / P::G);\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  float o[4][EG * 4], top[4], sum[4];\n"
    "  UNROLL for (int i = 0; i < 4; i++) { top[i] = least; sum[i] = 0.f; UNROLL for (int e = 0; e < EG * 4; "
    "e++) o[i][e] = 0.f; }\n"
    "  x.begin(blockIdx.y);\n"
    "  attention_rows<DP, DS>(sq, q + b * P::QB + h * P::QH, first, P::TQ, P::DK, P::QT, P::QD);\n"
    "  for (i64 base = 0; base < P::S; base += 64) {\n"
    "    __syncthreads();\n"
    "    attention_rows<DP, DS>(sk, k + b * P::KB + g * P::KH, base, P::S, P::DK, P::KS, P::KD);\n"
    "    attention_rows<ES, ES>(sv, v + b * P::VB + g * P::VH, base, P::S, P::E, P::VS, P::VE);\n"
    "    __syncthreads();\n"
    "    float s[4][4];\n"
    "    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0.f;\n"
    "    _Pragma(\"unroll 4\") for (int d = 0; d < DP; d += 4) {\n"
    "      float a[4][4], y[4][4];\n"
    "      UNROLL for (int i = 0; i < 4; i++) { vload<4>(a[i], sq + (ty * 4 + i) * DS + d); "
    "vload<4>(y[i], sk + (tx + i * 16) * DS + d); }\n"
    "      UNROLL for (int l = 0; l < 4; l++) UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 4; "
    "c++) s[i][c] = gn_fma(a[i][l], y[c][l], s[i][c]);\n"
    "    }\n"
    "    UNROLL for (int i = 0; i < 4; i++) {\n"
    "      const i64 row = first + ty * 4 + i < P::TQ ? first + ty * 4 + i : P::TQ - 1;\n"
    "      float now = top[i];\n"
    "      UNROLL for (int c = 0; c < 4; c++) {\n"
    "        const i64 key = base + tx + c * 16;\n"
    "        if (key < P::S) s[i][c] = x.value(s[i][c] * P::scale(), row, key); else s[i][c] = least;\n"
    "        now = max_nan(now, s[i][c]);\n"
    "      }\n"
    "      UNROLL for (int l = 8; l > 0; l /= 2) now = max_nan(now, exchange(now, l));\n"
    "      const bool none = now == least;\n"
    "      const float keep = none || top[i] == now ? 1.f : gn_exp(top[i] - now);\n"
    "      top[i] = now;\n"
    "      sum[i] *= keep;\n"
    "      UNROLL for (int c = 0; c < 4; c++) {\n"
    "        const float p = none ? 0.f : gn_exp(s[i][c] - now);\n"
    "        sum[i] += p;\n"
    "        sp[(ty * 4 + i) * PS + tx + c * 16] = p;\n"
    "      }\n"
    "      UNROLL for (int e = 0; e < EG * 4; e++) o[i][e] *= keep;\n"
    "    }\n"
    "    __syncthreads();\n"
    "    _Pragma(\"unroll 4\") for (int j = 0; j < 64; j += 4) {\n"
    "      float p[4][4];\n"
    "      UNROLL for (int i = 0; i < 4; i++) vload<4>(p[i], sp + (ty * 4 + i) * PS + j);\n"
    "      UNROLL for (int l = 0; l < 4; l++) UNROLL for (int n = 0; n < EG; n++) {\n"
    "        float y[4];\n"
    "        vload<4>(y, sv + (j + l) * ES + n * 64 + tx * 4);\n"
    "        UNROLL for (int i = 0; i < 4; i++) UNROLL for (int e = 0; e < 4; "
    "e++) o[i][n * 4 + e] = gn_fma(p[i][l], y[e], o[i][n * 4 + e]);\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 4; i++) {\n"
    "    UNROLL for (int l = 8; l > 0; l /= 2) sum[i] += exchange(sum[i], l);\n"
    "    if (first + ty * 4 + i >= P::TQ) continue;\n"
    "    UNROLL for (int e = 0; e < EG * 4; e++) {\n"
    "      const int c = e / 4 * 64 + tx * 4 + e % 4;\n"
    "      if (c < P::E) put(out[((i64)blockIdx.y * P::TQ + first + ty * 4 + i) * P::E + c], o[i][e] / sum[i]);\n"
    "    }\n"
    "  }\n"
    "}\n"
    "// The parts of one query joined.\n"
    "template <class P> M void attention_join(const typename P::C *parts, typename P::T *out) {\n"
    "  typedef typename P::C C;\n"
    "  const i64 at = blockIdx.x;\n"
    "  C top = gn_f32(0xff800000u), sum = 0;\n"
    "  parts += at * P::PARTS * (P::E + 2);\n"
    "  for (int p = 0; p < P::PARTS; p++) top = max_nan(top, parts[p * (P::E + 2)]);\n"
    "  for (int p = 0; p < P::PARTS; p++) { const C s = parts[p * (P::E + 2) + 1]; "
    "if (P::WRITTEN || s != 0) sum += s * gn_exp(parts[p * (P::E + 2)] - top); }\n"
    "  for (int c = threadIdx.x; c < P::E; c += 128) {\n"
    "    C o = 0;\n"
    "    for (int p = 0; p < P::PARTS; p++) if (P::WRITTEN || parts[p * (P::E + 2) + 1] != 0) o = "
    "gn_fma(parts[p * (P::E + 2) + 2 + c], gn_exp(parts[p * (P::E + 2)] - top), o);\n"
    "    put(out[at * P::E + c], P::WRITTEN || sum != 0 ? o / sum : (C)0);\n"
    "  }\n"
    "}\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "// Causal or plain attention on tensor cores: 64 queries of one (b, h) to a block of 4 warps, 64 keys at a time, "
    "head 16 to 128 (a multiple of 16).\n"
    "template <class P> M void flash_rows(u32 to, const typename P::T *p, i64 first, i64 rows, i64 stride) {\n"
    "  UNROLL for (int q = 0; q < 64 * (P::DK / 8) / 128; q++) {\n"
    "    const int c = threadIdx.x + q * 128, r = c / (P::DK / 8), h = c % (P::DK / 8);\n"
    "    const bool in = first + r < rows;\n"
    "    copy16(to + r * (P::DK * 2) + ((h ^ (P::DK >= 64 ? r & 7 : P::DK == 32 ? (r >> 1) & 3 : (r >> 2) & 1)) << 4), "
    "in ? p + (first + r) * stride + h * 8 : p, in ? 16 : 0);\n"
    "  }\n"
    "}\n"
    "template <class P> M u32 flash_at(u32 base, int r, int h) { return base + r * (P::DK * 2) + ((h ^ (P::DK >= 64 ? "
    "r & 7 : P::DK == 32 ? (r >> 1) & 3 : (r >> 2) & 1)) << 4); }\n"
    "// Bits 15 and 31: the halves that are infinite or NaN\n"
    "D u32 not_finite(u32 w, bf16) { return ((w & 0x7f807f80u) + 0x00800080u) & 0x80008000u; }\n"
    "D u32 not_finite(u32 w, f16) { return ((w & 0x7c007c00u) + 0x04000400u) & 0x80008000u; }\n"
    "// 0 times infinity is NaN, but the keys that are hidden from a query must add nothing: values that are not "
    "finite are added by themselves to the sums of the queries that\n"
    "// see them (bound: the last key that rows r and r + 8 see, and W - 1 before it if W is not 0), and are 0 in "
    "shared "
    "memory when the tile is multiplied.\n"
    "template <i64 W, class T> M void add_not_finite(u32 w, int key, const int *bound, float *o, T x) {\n"
    "  const u32 is = not_finite(w, x);\n"
    "  if (is) UNROLL for (int h = 0; h < 4; h++) { x.b = (u16)(w >> (h & 1) * 16); "
    "if (is >> ((h & 1) * 16 + 15) & 1 && key <= bound[h >> 1] && (W == 0 || key > bound[h >> 1] - W)) o[h] += "
    "get(x); }\n"
    "}\n"
    "template <class T> M void clear_not_finite(u32 *w, T tag) {\n"
    "  const u32 is = not_finite(*w, tag);\n"
    "  if (is) *w &= ~((is & 0x8000u ? 0xffffu : 0u) | (is >> 31 ? 0xffff0000u : 0u));\n"
    "}\n"
    "template <class P> M void flash_finite(unsigned char *v, int key, const int *bound, float (*o)[4]) {\n"
    "  const typename P::T tag = {};\n"
    "  u32 *words = (u32 *)v, bad = 0;\n"
    "  for (int i = threadIdx.x; i < P::DK * 32; i += 128) bad |= not_finite(words[i], tag);\n"
    "  if (!__syncthreads_or(bad)) return;\n"
    "  for (int k = 0; k < 64; k++) UNROLL for (int n = 0; n < P::DK / 8; "
    "n++) add_not_finite<seen_by<typename P::X>::WINDOW>(words[flash_at<P>(0, k, n) / 4 + (threadIdx.x & 3)], key + k, "
    "bound, o[n], tag);\n"
    "  __syncthreads();\n"
    "  for (int i = threadIdx.x; i < P::DK * 32; i += 128) clear_not_finite(words + i, tag);\n"
    "  __syncthreads();\n"
    "}\n"
    "template <class P> M void flash_attention(const typename P::T *q, const typename P::T *k, const typename P::T *v, "
    "const typename P::L *length, typename P::X x_, typename P::T *out, u32 *err, u32 node) {\n"
    "  enum { BYTES = 64 * P::DK * 2, KD = P::DK / 16 };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  const u32 base = shared_address(memory);\n"
    "  const int warp = threadIdx.x >> 5, l = threadIdx.x & 31;\n"
    "  const i64 blocks = (P::TQ + 63) / 64, first = (blocks - 1 - blockIdx.x) * 64, h = blockIdx.y % P::H, b = "
    "blockIdx.y / P::H, g = h / (P::H / P::G);\n"
    "  const typename P::T tag = {};\n"
    "  const float least = gn_f32(0xff800000u), scale = (float)P::scale() * 1.4426950408889634f;\n"
    "  i64 n = P::S;\n"
    "  if (P::LENGTH) {\n"
    "    n = get(*length);\n"
    "    if (n < (P::CAUSAL ? P::TQ : 0) || n > P::S) { if (threadIdx.x == 0) fault(err, OUT_OF_RANGE, node, n, P::S); "
    "return; }\n"
    "  }\n"
    "  i64 seen = n;\n"
    "  if (P::CAUSAL) { seen = n - P::TQ + (first + 63 < P::TQ - 1 ? first + 63 : P::TQ - 1) + 1; "
    "if (seen < 0) seen = 0; if (seen > n) seen = n; }\n"
    "  q += b * P::QB + h * P::QH;\n"
    "  k += b * P::KB + g * P::KH;\n"
    "  v += b * P::VB + g * P::VH;\n"
    "  x_.begin(blockIdx.y);\n"
    "  typedef seen_by<typename P::X> by;\n"
    "  // the key before the first that query 0 of the block sees, if there is a window\n"
    "  const i64 past = n - P::TQ + first - by::WINDOW;\n"
    "  const int steps = (int)((seen + 63) / 64), begin = by::WINDOW > 0 && past >= 0 ? (int)((past + 1) / 64) : 0;\n"
    "  flash_rows<P>(base, q, first, P::TQ, P::QT);\n"
    "  if (steps) { const u32 to = base + BYTES + (begin & 1) * (2 * BYTES); flash_rows<P>(to, k, (i64)begin * 64, "
    "seen, P::KS); flash_rows<P>(to + BYTES, v, (i64)begin * 64, seen, P::VS); }\n"
    "  copy_commit();\n"
    "  u32 x[KD][4];\n"
    "  float o[KD * 2][4], sink = by::sink(x_) * 1.4426950408889634f, top[2] = { sink, sink },\n"
    "    one = by::SINKS && (l & 3) == 0 && sink != least ? 1.f : 0.f, sum[2] = { one, one };\n"
    "  UNROLL for (int i = 0; i < KD * 2; i++) UNROLL for (int e = 0; e < 4; e++) o[i][e] = 0.f;\n"
    "  const i64 at = first + warp * 16 + (l >> 2);\n"
    "  for (int step = begin; step < steps; step++) {\n"
    "    copy_wait<0>();\n"
    "    __syncthreads();\n"
    "    if (step == begin) UNROLL for (int d = 0; d < KD; d++) matrix4(x[d], flash_at<P>(base, warp * 16 + (l & 15), "
    "d * 2 + (l >> 4)));\n"
    "    const u32 sk = base + BYTES + (step & 1) * (2 * BYTES), sv = sk + BYTES, next = base + BYTES + ((step + 1) & "
    "1) * (2 * BYTES);\n"
    "    if (step + 1 < steps) { flash_rows<P>(next, k, (i64)(step + 1) * 64, seen, P::KS); "
    "flash_rows<P>(next + BYTES, v, (i64)(step + 1) * 64, seen, P::VS); }\n"
    "    copy_commit();\n"
    "    float s[8][4];\n"
    "    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int e = 0; e < 4; e++) s[i][e] = 0.f;\n"
    "    UNROLL for (int d = 0; d < KD; d++) UNROLL for (int j = 0; j < 4; j++) {\n"
    "      u32 y[4];\n"
    "      matrix4(y, flash_at<P>(sk, j * 16 + (l & 7) + ((l >> 4) << 3), d * 2 + ((l >> 3) & 1)));\n"
    "      mma(s[j * 2], x[d], y[0], y[1], tag);\n"
    "      mma(s[j * 2 + 1], x[d], y[2], y[3], tag);\n"
    "    }\n"
    "    const bool edge = (i64)step * 64 + 64 > seen || (P::CAUSAL && (i64)step * 64 + 63 > n - P::TQ + first) || "
    "(by::WINDOW > 0 && (i64)step * 64 <= past + 63);\n"
    "    float now[2] = { top[0], top[1] };\n"
    "    UNROLL for (int j = 0; j < 8; j++) UNROLL for (int e = 0; e < 4; e++) {\n"
    "      const i64 key = (i64)step * 64 + j * 8 + (l & 3) * 2 + (e & 1), row = at + (e >> 1) * 8 < P::TQ ? at + (e "
    ">> 1) * 8 : P::TQ - 1;\n"
    "      if (P::X::LOOP) s[j][e] = x_.value(s[j][e] * (float)P::scale(), row, edge && "
    "key >= seen ? seen - 1 : key) * 1.4426950408889634f; else s[j][e] *= scale;\n"
    "      if (edge) {\n"
    "        if (key >= seen || (P::CAUSAL && key > n - P::TQ + at + (e >> 1) * 8) || (by::WINDOW > 0 && "
    "key <= n - P::TQ + at + (e >> 1) * 8 - by::WINDOW)) s[j][e] = least;\n"
    "      }\n"
    "      now[e >> 1] = max_nan(now[e >> 1], s[j][e]);\n"
    "    }\n"
    "    UNROLL for (int e = 0; e < 2; e++) {\n"
    "      now[e] = max_nan(now[e], __shfl_xor_sync(0xffffffffu, now[e], 1));\n"
    "      now[e] = max_nan(now[e], __shfl_xor_sync(0xffffffffu, now[e], 2));\n"
    "      const float keep = now[e] == least || now[e] == top[e] ? 1.f : exp2f(top[e] - now[e]);\n"
    "      top[e] = now[e];\n"
    "      sum[e] *= keep;\n"
    "      UNROLL for (int i = 0; i < KD * 2; i++) { o[i][e * 2] *= keep; o[i][e * 2 + 1] *= keep; }\n"
    "      if (now[e] == least) now[e] = 0.f;\n"
    "    }\n"
    "    UNROLL for (int j = 0; j < 8; j++) UNROLL for (int e = 0; e < 4; e++) { "
    "s[j][e] = exp2f(s[j][e] - now[e >> 1]); sum[e >> 1] += s[j][e]; }\n"
    "    if (edge && !P::WRITTEN) {\n"
    "      const int bound[2] = { (int)(P::CAUSAL && n - P::TQ + at < n - 1 ? n - P::TQ + at : n - 1), "
    "(int)(P::CAUSAL && n - P::TQ + at + 8 < n - 1 ? n - P::TQ + at + 8 : n - 1) };\n"
    "      flash_finite<P>(memory + (sv - base), step * 64, bound, o);\n"
    "    }\n"
    "    UNROLL for (int j = 0; j < 4; j++) {\n"
    "      u32 p[4] = { pair(s[2 * j][0], s[2 * j][1], tag), pair(s[2 * j][2], s[2 * j][3], tag), "
    "pair(s[2 * j + 1][0], s[2 * j + 1][1], tag), pair(s[2 * j + 1][2], s[2 * j + 1][3], tag) };\n"
    "      UNROLL for (int d = 0; d < KD; d++) {\n"
    "        u32 y[4];\n"
    "        matrix4_transposed(y, flash_at<P>(sv, j * 16 + (l & 15), d * 2 + (l >> 4)));\n"
    "        mma(o[d * 2], p, y[0], y[1], tag);\n"
    "        mma(o[d * 2 + 1], p, y[2], y[3], tag);\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int e = 0; e < 2; e++) {\n"
    "    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);\n"
    "    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);\n"
    "    const float other = sum[e] == 0.f ? gn_f32(P::WRITTEN ? 0x7fc00000u : 0u) : 1.f / sum[e];\n"
    "    if (at + e * 8 >= P::TQ) continue;\n"
    "    typename P::T *row = out + (((i64)blockIdx.y * P::TQ) + at + e * 8) * P::DK;\n"
    "    UNROLL for (int d = 0; d < KD * 2; d++) *(u32 *)(row + d * 8 + (l & 3) * 2) = pair(o[d][e * 2] * other, "
    "o[d][e * 2 + 1] * other, tag);\n"
    "  }\n"
    "}\n"
    "#endif\n";

/* Scores in plain f32 from which tiles are faster than a block for each query; up to which they are faster than
   products, which run at 1.1 to 1.7 times their speed (H200) but store all scores; and from which that takes too much
   memory: 4 GiB twice. */
enum { TILED_LEAST = 1 << 13, TILED_MOST = 1 << 17, TILED_ALWAYS = 1 << 30 };

/* What the generator decides about one attention: of the op, or written out (fuse_attentions). */
typedef struct attention_form {
    gn_view q, k, v; /* (B,H,T,D), (B,G,S,D), (B,G,S,E) */
    uint32_t in[3];  /* whose memory they show */
    gn_view mask;    /* broadcast to (B,H,T,S) */
    uint32_t mask_node, length_node, slopes_node, sinks_node;
    gn_dtype mask_type, length_type;
    bool causal, masked, length, empty, flash, groups, tiled; /* flash: on tensor cores; groups: by warpgroups; tiled:
                                                                 in plain f32, 64 queries to a block */
    bool moved[3];         /* q, k, v: read from a dense copy, for the kernel cannot read them as they lie */
    bool written;          /* out: as a softmax and a product compute it, where the op differs */
    uint32_t loop, scores; /* 1 + the step of the loop between the product and the softmax, 0: none; the product's
                              node */
    bool slopes, sinks;    /* of the op: a number a head each */
    double scale, cap;
    int64_t dims[4], queries, parts, span, vector; /* dims: B, H, T, S */
    int64_t window;                                /* keys that a query sees at most; 0: all of S */
} attention_form;

/* Keys that a query sees at most. */
static int64_t keys_of(const attention_form *f) { return f->window && f->window < f->dims[3] ? f->window : f->dims[3]; }

/* Tensor cores take 16-bit heads of 16, 32, 64 or 128 without a mask, from rows that begin at multiples of 16 bytes. */
static bool emit_is_flash(const emit *e, const attention_form *f) {
    int64_t d = f->q.dims[3];
    if ((f->q.dtype != GN_F16 && f->q.dtype != GN_BF16) || !emit_has_tensor_cores(e) || f->masked || f->dims[2] < 16 ||
        f->dims[0] * f->dims[1] > 65535)
        return false;
    if (d != 16 && d != 32 && d != 64 && d != 128) return false;
    return f->k.dims[2] < 0x7fffff00 && f->dims[2] < 0x7fffff00 && f->k.dims[3] == d && f->v.dims[3] == d;
}

/* Heads whose rows are contiguous and begin at multiples of 16 bytes. */
static bool fits_one(const gn_view *v, int64_t d, int64_t vector, size_t offset) {
    return v->dims[3] == d && v->strides[3] == 1 && v->strides[0] % vector == 0 && v->strides[1] % vector == 0 &&
           v->strides[2] % vector == 0 && offset % 16 == 0;
}

/* Dense copies of those that do not fit (TMA: or lie backwards). Of an attention that is written out they are left
   alone: it is three kernels then. */
static void attention_moves(attention_form *f, bool forward) {
    const gn_view *views[3] = { &f->q, &f->k, &f->v };
    for (int i = 0; i < 3; i++) {
        const int64_t *strides = views[i]->strides;
        f->moved[i] = !fits_one(views[i], views[i]->dims[3], 16 / types[f->q.dtype].bytes, (size_t)views[i]->offset) ||
                      (forward && (strides[0] < 0 || strides[1] < 0 || strides[2] < 1));
    }
}

/* Bytes of shared memory of tiled_attention: 64 rows of queries, keys, values and weights. */
static uint32_t tiled_bytes(const attention_form *f) {
    int64_t d = (f->q.dims[3] + 3) / 4 * 4, width = (f->v.dims[3] + 63) / 64 * 64;
    return (uint32_t)(64 * 4 * (2 * (d + 4) + width + 68));
}

/* Where blocks have enough to do and products are not faster; those of TF32 are. */
static bool emit_is_tiled(const emit *e, const attention_form *f) {
    int64_t blocks = blocks_for(f->dims[2], 64) * f->dims[0] * f->dims[1], bytes = emit_overlaps(e) ? 227 << 10
                                                                                   : emit_has_async_copies(e)
                                                                                       ? 96 << 10
                                                                                       : 48 << 10;
    if (!f->written || f->q.dtype != GN_F32 || env_is("GENIE_TF32", "1") || f->dims[2] < 16 || f->q.dims[3] > 128 ||
        f->v.dims[3] > 128 || f->dims[0] * f->dims[1] > 65535)
        return false;
    int64_t scores = f->queries * f->dims[3];
    return (blocks * 2 >= emit_processors(e) || f->dims[3] <= 128) && scores > TILED_LEAST &&
           (scores <= TILED_MOST || scores >= TILED_ALWAYS) && tiled_bytes(f) <= bytes;
}

/* From what is computed to how. */
static void attention_decide(const emit *e, attention_form *f) {
    const int64_t dims[4] = { f->q.dims[0], f->q.dims[1], f->q.dims[2], f->k.dims[2] };
    memcpy(f->dims, dims, sizeof dims);
    f->queries = dims[0] * dims[1] * dims[2];
    f->span = dims[3];
    f->parts = 1;
    f->empty = f->queries * f->v.dims[3] == 0;
    f->flash = !f->empty && !e->invariant && emit_is_flash(e, f);
    f->groups = f->flash && f->q.dims[3] >= 64 && dims[2] >= 64 && f->scale > 0 && emit_has_warpgroups(e);
    if (f->flash) attention_moves(f, f->groups);
    if (f->written && (f->moved[0] || f->moved[1] || f->moved[2])) {
        f->groups = false;
        attention_moves(f, false);
        f->flash = !f->moved[0] && !f->moved[1] && !f->moved[2];
        memset(f->moved, 0, sizeof f->moved);
    }
    f->tiled = !f->flash && !f->empty && !e->invariant && emit_is_tiled(e, f);
    f->vector = 16 / types[f->q.dtype].bytes;
    if (f->k.strides[3] != 1 || f->q.dims[3] % f->vector ||
        !strides_fit(&(gn_view){ .rank = 3, .strides = { f->k.strides[0], f->k.strides[1], f->k.strides[2] } },
                     f->vector) ||
        f->k.offset % 16)
        f->vector = 1;
    int64_t keys = keys_of(f);
    bool enough = f->queries >= emit_processors(e) && !e->invariant;
    if (f->flash || f->tiled || f->empty || enough || keys < 256) return;
    /* too few blocks: the keys are cut into parts, joined by a second kernel */
    f->parts = blocks_for(keys, 128) > 32 ? 32 : blocks_for(keys, 128);
    f->span = (blocks_for(keys, f->parts) + 127) / 128 * 128;
    f->parts = blocks_for(keys, f->span);
}

static bool is_attention(const emit *e, uint32_t node) {
    return node_is(e, node, GN_OP_ATTENTION) || node_is(e, node, GN_OP_ATTENTION_WITH);
}

static attention_form attention_choose(const emit *e, uint32_t node) {
    const int64_t *attrs = attrs_of(e, node);
    uint32_t at = 3;
    attention_form f = { .q = *view_of(e, input(e, node, 0)),
                         .k = *view_of(e, input(e, node, 1)),
                         .v = *view_of(e, input(e, node, 2)),
                         .in = { input(e, node, 0), input(e, node, 1), input(e, node, 2) },
                         .causal = (attrs[0] & 1) != 0,
                         .masked = (attrs[0] & 2) != 0,
                         .length = (attrs[0] & 4) != 0,
                         .length_type = GN_I32,
                         .scale = word_f64(attrs[1]) };
    f.mask_type = f.q.dtype;
    if (f.masked) {
        f.mask_node = input(e, node, at++);
        f.mask = gn_view_broadcast(view_of(e, f.mask_node), 4,
                                   (const int64_t[4]){ f.q.dims[0], f.q.dims[1], f.q.dims[2], f.k.dims[2] });
        f.mask_type = f.mask.dtype;
    }
    if (f.length) {
        f.length_node = input(e, node, at++);
        f.length_type = view_of(e, f.length_node)->dtype;
    }
    if (node_is(e, node, GN_OP_ATTENTION_WITH)) {
        f.cap = word_f64(attrs[2]);
        f.window = attrs[3];
        f.slopes = (attrs[0] & 8) != 0;
        f.sinks = (attrs[0] & 16) != 0;
        if (f.slopes) f.slopes_node = input(e, node, at++);
        if (f.sinks) f.sinks_node = input(e, node, at++);
    }
    if (f.scale == 0) f.scale = 1.0 / __builtin_sqrt((double)(f.q.dims[3] > 1 ? f.q.dims[3] : 1));
    attention_decide(e, &f);
    return f;
}

static const gn_kernel_step *attention_loop(const emit *e, const attention_form *f) {
    return f->loop ? &e->layout->steps[f->loop - 1] : NULL;
}

/* The strides of a collapsed view of (…,T,S) along its last two axes; what is left of it is the view of (…). */
static void split_scores(gn_view *v, const int64_t *sizes, int64_t *strides) {
    for (int k = 1; k >= 0; k--) {
        int last = v->rank - 1;
        strides[k] = 0;
        if (sizes[k] == 1 || last < 0) continue;
        strides[k] = v->strides[last];
        v->dims[last] /= sizes[k];
        v->strides[last] *= sizes[k];
        if (v->dims[last] == 1) v->rank--;
    }
}

/* One input of the loop on scores: a member, where it begins for one (b, h), and its element of query t and key j. */
static void scores_load(emit *e, loop *l, const attention_form *f, uint32_t i, text *begin, text *value,
                        text *members) {
    const gn_load *load = load_of(e, l, i);
    const char *type = types[load->dtype].name, *compute = types[load->dtype].compute;
    char name[16];
    int64_t strides[2];
    snprintf(l->names[load->reg], sizeof l->names[0], "x%u", i);
    if (load->constant) {
        put(value, "    const %s x%u = cast_to<%s>::of(gn_f64(0x%llxull));\n", compute, i, type,
            (unsigned long long)f64_word(load->value));
        return;
    }
    if (load->base == f->scores) {
        snprintf(l->names[load->reg], sizeof l->names[0], "s");
        return;
    }
    snprintf(name, sizeof name, "a%u", i);
    emit_pointer(e, type, true, name, (param){ PARAM_NODE, load->base, load->view.offset });
    put(&e->types, " const %s *a%u;", type, i);
    put(members, "%sa%u", members->n ? ", " : "", i);
    gn_view batch = load->view;
    split_scores(&batch, &f->dims[2], strides);
    put(begin, " a%u += ", i);
    put_offset(begin, &batch, "z", false);
    put(begin, ";");
    put(value, "    const %s x%u = get(a%u[t * %lldll + j * %lldll]);\n", compute, i, i, (long long)strides[0],
        (long long)strides[1]);
}

/* The type @_x of what is done to scores, and `x` of it in the body. An f16 that is too large to be stored is infinite
   here too. */
static void put_scores(emit *e, const attention_form *f, text *label) {
    loop *l = (loop *)alloc_zero(sizeof *l);
    text begin = { 0 }, value = { 0 }, members = { 0 }, body = e->body;
    if (!l) {
        e->failed = true;
        return;
    }
    l->step = attention_loop(e, f);
    l->scores = true;
    l->label[0] = 0;
    put(&e->types, "struct @_x { enum { LOOP = 1 };");
    for (uint32_t i = 0; i < l->step->n_loads; i++) scores_load(e, l, f, i, &begin, &value, &members);
    e->body = (text){ 0 }; /* instructions are written into the body */
    for (uint32_t i = 0; i < l->step->n_instrs; i++) loop_instr(e, l, i);
    const char *c = types[f->q.dtype].compute, *out = l->names[l->step->out];
    put(&e->types, "\n  M void begin(i64 z) {%s }\n  M %s value(%s s, i64 t, i64 j) const {\n%s%s",
        begin.s ? begin.s : "", c, c, value.s ? value.s : "", e->body.s ? e->body.s : "");
    if (view_of(e, l->step->node)->dtype == GN_F16)
        put(&e->types,
            "    return %s >= 65520.f ? gn_f32(0x7f800000u) : %s <= -65520.f ? gn_f32(0xff800000u) : %s; } };\n", out,
            out, out);
    else put(&e->types, "    return %s; } };\n", out);
    text_free(&e->body);
    e->body = body;
    put(&e->body, "  const @_x x = { %s };\n", members.s ? members.s : "");
    put(label, "%s", l->label);
    e->failed = e->failed || begin.failed || value.failed || members.failed;
    text_free(&begin);
    text_free(&value);
    text_free(&members);
    gn_free(l);
}

/* A head's number: a member of @_x, and where it is read. */
static void head_number(emit *e, uint32_t node, const char *name, const attention_form *f, text *members, text *begin) {
    const gn_view *v = view_of(e, node);
    char many[16];
    snprintf(many, sizeof many, "%ss", name);
    emit_node(e, node, types[v->dtype].name, true, many);
    put(&e->types, " const %s *%s; %s %s;", types[v->dtype].name, many, types[f->q.dtype].compute, name);
    put(members, "%s%s, 0", members->n ? ", " : "", many);
    put(begin, " %s = get(%s[z %% %lldll * %lldll]);", name, many, (long long)f->dims[1], (long long)v->strides[0]);
}

/* The type @_x of what the op does to scores beside a mask, what seen_by says of it, and `x` of it in the body. In 16
   bits tanh is off by an eps of 1, as what it is of is. */
static void put_score_options(emit *e, const attention_form *f, text *label) {
    const char *c = types[f->q.dtype].compute;
    bool small = f->dims[2] + f->dims[3] < 1 << 30;
    text members = { 0 }, begin = { 0 }, value = { 0 };
    put(&e->types, "struct @_x { enum { LOOP = %d };", f->cap != 0 || f->slopes);
    if (f->cap != 0) {
        put(&value, "    const %s cap = (%s)gn_f64(0x%llxull), part = s * (%s)gn_f64(0x%llxull);\n", c, c,
            (unsigned long long)f64_word(f->cap), c, (unsigned long long)f64_word(1 / f->cap));
        put(&value, types[f->q.dtype].bytes == 2 ? "    s = cap - (cap + cap) / (exp_short(part + part) + 1.f);\n"
                                                 : "    s = cap * gn_tanh(part);\n");
    }
    if (f->slopes) {
        head_number(e, f->slopes_node, "slope", f, &members, &begin);
        put(&e->types, " i64 last;");
        put(&members, ", 0");
        if (f->length) {
            put(&e->types, " const %s *used;", types[f->length_type].name);
            put(&members, ", length");
        }
        if (f->length) put(&begin, " last = get(*used) - %lldll;", (long long)f->dims[2]);
        else put(&begin, " last = %lldll;", (long long)(f->dims[3] - f->dims[2]));
        put(&value,
            small ? "    s = gn_fma(slope, (%s)((int)j - (int)t - (int)last), s);\n"
                  : "    s = gn_fma(slope, (%s)(j - t - last), s);\n",
            c);
    }
    if (f->sinks) head_number(e, f->sinks_node, "sink", f, &members, &begin);
    put(&e->types, "\n  M void begin(i64 z) {%s }\n  M %s value(%s s, i64 t, i64 j) const {\n%s    return s; } };\n",
        begin.s ? begin.s : "", c, c, value.s ? value.s : "");
    put(&e->types,
        "template <> struct seen_by<@_x> { static const i64 WINDOW = %lldll; enum { SINKS = %d }; static M %s "
        "sink(const "
        "@_x &%s) { return %s; } };\n",
        (long long)f->window, f->sinks, c, f->sinks ? "x" : "", f->sinks ? "x.sink" : "gn_f32(0xff800000u)");
    put(&e->body, "  const @_x x = { %s };\n", members.s ? members.s : "");
    put(label, "%s%s%s%s", f->window ? "_window" : "", f->cap != 0 ? "_cap" : "", f->slopes ? "_slopes" : "",
        f->sinks ? "_sinks" : "");
    e->failed = e->failed || members.failed || begin.failed || value.failed;
    text_free(&members);
    text_free(&begin);
    text_free(&value);
}

/* Of a kernel that computes scores: what is done to them, @_x, `x` and the words for its name. */
static void put_loop_of_scores(emit *e, const attention_form *f, text *label) {
    if (f->written) put(label, "_written");
    if (f->loop) put_scores(e, f, label);
    else if (f->cap != 0 || f->window || f->slopes || f->sinks) put_score_options(e, f, label);
    else {
        put(&e->types, "typedef no_loop @_x;\n");
        put(&e->body, "  const @_x x = no_loop();\n");
    }
}

static void put_attention_type(text *t, const attention_form *f, const char *loop_type) {
    gn_dtype d = f->q.dtype;
    static const char *const names[4][4] = {
        { "QB", "QH", "QT", "QD" }, { "KB", "KH", "KS", "KD" }, { "VB", "VH", "VS", "VE" }, { "MB", "MH", "MQ", "MS" }
    };
    const gn_view *views[4] = { &f->q, &f->k, &f->v, &f->mask };
    put(t,
        "struct @_p { typedef %s T; typedef %s C; typedef %s MT; typedef %s L; typedef %s X; static const i64 H = "
        "%lldll, G = %lldll, TQ = %lldll, S = %lldll, SPAN = %lldll;\n",
        types[d].name, types[d].compute, types[f->mask_type].name, types[f->length_type].name, loop_type,
        (long long)f->dims[1], (long long)f->k.dims[1], (long long)f->dims[2], (long long)f->dims[3],
        (long long)f->span);
    put(t,
        "  enum { DK = %lld, E = %lld, MASK = %d, LENGTH = %d, CAUSAL = %d, WRITTEN = %d, PARTS = %lld, VK = %lld };\n",
        (long long)f->q.dims[3], (long long)f->v.dims[3],
        !f->masked                ? 0
        : f->mask_type == GN_BOOL ? 1
                                  : 2,
        f->length, f->causal, f->written, (long long)f->parts, (long long)f->vector);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 4; l++)
            put(t, "%s%s = %lldll%s", l ? ", " : "  static const i64 ", names[i][l], (long long)views[i]->strides[l],
                l == 3 ? ";\n" : "");
    put(t, "  static M C scale() { return (C)gn_f64(0x%llxull); }\n};\n", (unsigned long long)f64_word(f->scale));
}

static void emit_attention_join(emit *e, uint32_t node, const attention_form *f) {
    gn_dtype d = f->q.dtype;
    size_t bytes = gn_size_mul(gn_size_mul((size_t)(f->queries * f->parts), (size_t)(f->v.dims[3] + 2)), 8);
    if (bytes > e->scratch) e->scratch = bytes;
    put_attention_type(&e->types, f, "no_loop");
    emit_pointer(e, types[d].compute, true, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_node(e, node, types[d].name, false, "o");
    put(&e->body, "  attention_join<@_p>(parts, o);\n");
    emit_launch(e, "attention_join", (uint64_t)f->queries, 1, 128);
}

/* A view of a node's memory, which need not be the node's own view, or of its dense copy. */
static void emit_view_of(emit *e, uint32_t node, const gn_view *v, bool moved, bool constant, const char *name) {
    emit_pointer(e, types[v->dtype].name, constant, name,
                 moved ? (param){ PARAM_PLAN, REGION_ROWS, v->offset }
                       : (param){ PARAM_NODE, e->layout->lay[node].base, v->offset });
}

/* Makes the copies that the form says, and shows them instead. */
static void attention_move(emit *e, attention_form *f) {
    gn_view *const views[3] = { &f->q, &f->k, &f->v };
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        if (!f->moved[i]) continue;
        gn_view to = gn_view_dense(f->q.dtype, 4, views[i]->dims);
        emit_copy_views(e, "moved", to, (param){ PARAM_PLAN, REGION_ROWS, (int64_t)at }, *views[i],
                        (param){ PARAM_NODE, e->layout->lay[f->in[i]].base, views[i]->offset });
        to.offset = (int64_t)at;
        *views[i] = to;
        at = gn_size_align(gn_size_add(at, gn_size_mul((size_t)gn_view_count(&to), types[to.dtype].bytes)), 256);
        e->layout->view_copies++;
    }
    if (at > e->rows) e->rows = at;
}

/* For sm_90a only. */
static const char warpgroup_attention_text[] =
    "// Attention: 128 queries of one (b, h) to a block, 128 keys at a time, head 64 or 128, scale above 0. P as for "
    "flash_attention, score(s, q, k), value(o, p, v)\n"
    "D u32 any_of_both(u32 x) { u32 r; asm volatile(\"{.reg .pred p, q; setp.ne.u32 p, %1, 0; "
    "bar.red.or.pred q, 1, 256, p; selp.u32 %0, 1, 0, q;}\" : \"=r\"(r) : \"r\"(x) : \"memory\"); return r; }\n"
    "// As flash_finite, for 128 keys and both groups, which come here together.\n"
    "template <class P> M void flash_clean(unsigned char *v, int key, const int *bound, float *o) {\n"
    "  const typename P::T tag = {};\n"
    "  u32 *words = (u32 *)v;\n"
    "  u32 bad = 0;\n"
    "  UNROLL for (int i = 0; i < P::DK / 4; i += 4) {\n"
    "    u32 w[4];\n"
    "    vload<4>(w, words + (threadIdx.x * 4 + i * 256));\n"
    "    UNROLL for (int j = 0; j < 4; j++) bad |= not_finite(w[j], tag);\n"
    "  }\n"
    "  if (!any_of_both(bad)) return;\n"
    "  for (int k = 0; k < 128; k++) UNROLL for (int n = 0; n < P::DK / 8; n++)\n"
    "    add_not_finite<seen_by<typename P::X>::WINDOW>(words[((n >> 3) * 16384 + k * 128 + (((n & 7) ^ (k & 7)) << "
    "4)) / 4 + (threadIdx.x & 3)], key "
    "+ k, bound, o + n * 4, tag);\n"
    "  group_sync<256>(1);\n"
    "  for (int i = threadIdx.x; i < P::DK * 64; i += 256) clear_not_finite(words + i, tag);\n"
    "  asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");\n"
    "  group_sync<256>(1);\n"
    "}\n"
    "template <class P> M void flash_scores(float *s, u32 q, u32 k) {\n"
    "  UNROLL for (int i = 0; i < 64; i++) s[i] = 0.f;\n"
    "  wgmma_fence();\n"
    "  UNROLL for (int d = 0; d < P::DK / 16; d++) P::score(s, panel(q + (d >> 2) * 16384, 16384) + (d & 3) * 2, "
    "panel(k + (d >> 2) * 16384, 16384) + (d & 3) * 2);\n"
    "  wgmma_commit();\n"
    "}\n"
    "template <class P> M void flash_values(float *o, const u32 *p, u32 v) {\n"
    "  wgmma_fence();\n"
    "  UNROLL for (int j = 0; j < 8; j++) P::value(o, p + j * 4, panel(v, 16384) + j * 128);\n"
    "  wgmma_commit();\n"
    "}\n"
    "// Scores to weights; keep: what earlier sums are worth now; at: the first of the two queries\n"
    "template <class P> M void flash_softmax(float *s, float *top, float *sum, float *keep, float scale, bool edge, "
    "int key, const int *bound, const typename P::X &x, int at) {\n"
    "  const i64 W = seen_by<typename P::X>::WINDOW;\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  float now[2] = { least, least };\n"
    "  if (P::X::LOOP) {\n"
    "    const int row[2] = { at < P::TQ ? at : (int)P::TQ - 1, at + 8 < P::TQ ? at + 8 : (int)P::TQ - 1 }, j = "
    "key + (int)(threadIdx.x & 3) * 2;\n"
    "    if (edge) { UNROLL for (int i = 0; i < 64; i++) { const int k = j + (i >> 2) * 8 + (i & 1); "
    "s[i] = x.value(s[i] * (float)P::scale(), row[i >> 1 & 1], k < P::S ? k : (int)P::S - 1); } }\n"
    "    else UNROLL for (int i = 0; i < 64; i++) s[i] = x.value(s[i] * (float)P::scale(), row[i >> 1 & 1], "
    "j + (i >> 2) * 8 + (i & 1));\n"
    "  }\n"
    "  if (edge) UNROLL for (int i = 0; i < 64; i++) if (key + (i >> 2) * 8 + (int)(threadIdx.x & 3) * 2 + (i & 1) > "
    "bound[i >> 1 & 1]) s[i] = least;\n"
    "  if (edge && W > 0) UNROLL for (int i = 0; i < 64; i++) if (key + (i >> 2) * 8 + (int)(threadIdx.x & 3) * 2 + (i "
    "& 1) <= bound[i >> 1 & 1] - W) s[i] = least;\n"
    "  UNROLL for (int i = 0; i < 64; i++) now[i >> 1 & 1] = fmaxf(now[i >> 1 & 1], s[i]);\n"
    "  UNROLL for (int h = 0; h < 2; h++) {\n"
    "    now[h] = fmaxf(now[h], __shfl_xor_sync(0xffffffffu, now[h], 1));\n"
    "    now[h] = fmaxf(now[h], __shfl_xor_sync(0xffffffffu, now[h], 2)) * scale;\n"
    "    now[h] = fmaxf(now[h], top[h]);\n"
    "    keep[h] = now[h] == least ? 1.f : exp2_near(top[h] - now[h]);\n"
    "    top[h] = now[h];\n"
    "    if (now[h] == least) now[h] = 0.f;\n"
    "    sum[h] *= keep[h];\n"
    "  }\n"
    "  UNROLL for (int i = 0; i < 64; i++) { s[i] = exp2_near(fmaf(s[i], scale, -now[i >> 1 & 1])); "
    "sum[i >> 1 & 1] += s[i]; }\n"
    "}\n"
    "template <class P> M void flash_pack(u32 *p, const float *s) {\n"
    "  const typename P::T tag = {};\n"
    "  UNROLL for (int i = 0; i < 32; i++) p[i] = pair(s[i * 2], s[i * 2 + 1], tag);\n"
    "}\n"
    "// The tile of a block's round: 128 queries of head y from `first` on, and the keys that they see. A block with "
    "several tiles takes long and short ones by turns.\n"
    "struct flash_tile { int first, y, begin, steps; i64 seen; };\n"
    "template <class P> M bool flash_next(flash_tile &f, int round, i64 n) {\n"
    "  enum { TILES = (P::TQ + 127) / 128 };\n"
    "  const i64 i = (i64)round * gridDim.x + blockIdx.x;\n"
    "  if (P::SEVERAL ? i >= TILES * P::HEADS : round > 0) return false;\n"
    "  f.y = P::SEVERAL ? (int)(i / TILES) : (int)blockIdx.y;\n"
    "  f.first = (TILES - 1 - (P::SEVERAL ? (int)((i + (i64)f.y * TILES / gridDim.x * P::TURN) % TILES) : "
    "(int)blockIdx.x)) * 128;\n"
    "  f.seen = n;\n"
    "  if (P::CAUSAL) { f.seen = n - P::TQ + (f.first + 127 < P::TQ - 1 ? f.first + 127 : P::TQ - 1) + 1; "
    "if (f.seen < 0) f.seen = 0; if (f.seen > n) f.seen = n; }\n"
    "  const i64 past = n - P::TQ + f.first + 1 - seen_by<typename P::X>::WINDOW;\n"
    "  f.begin = seen_by<typename P::X>::WINDOW > 0 && past > 0 ? (int)(past / 128) : 0;\n"
    "  f.steps = (int)((f.seen + 127) / 128) - f.begin;\n"
    "  return true;\n"
    "}\n"
    "// done: steps of the tiles before\n"
    "template <class P> M void flash_feed(const tmap *q, const tmap *k, const tmap *v, u32 base, u32 bars, "
    "const flash_tile &f, int round, u32 done) {\n"
    "  enum { TILE = P::DK * 256 };\n"
    "  const int first = f.first, begin = f.begin, h = f.y % (int)P::H, b = f.y / (int)P::H, "
    "g = h / (int)(P::H / P::G);\n"
    "  bar_wait(bars + 72, (round & 1) ^ 1);\n"
    "  bar_expect(bars, TILE);\n"
    "  UNROLL for (int d = 0; d < P::DK / 64; d++) box_load(base + d * 16384, q, d * 64, first, P::QH ? h : 0, "
    "P::QB ? b : 0, bars);\n"
    "  for (int step = 0; step < f.steps; step++) {\n"
    "    const u32 at = done + step, s = at & 1, to = base + TILE + s * (2 * TILE), kf = bars + 8 + s * 8, vf = kf + "
    "16, ke = kf + 32, "
    "ve = kf + 48, parity = (at >> 1 & 1) ^ 1;\n"
    "    bar_wait(ke, parity);\n"
    "    bar_expect(kf, TILE);\n"
    "    UNROLL for (int d = 0; d < P::DK / 64; d++) box_load(to + d * 16384, k, d * 64, (begin + step) * 128, P::KH ? "
    "g : 0, "
    "P::KB ? b : 0, kf);\n"
    "    bar_wait(ve, parity);\n"
    "    bar_expect(vf, TILE);\n"
    "    UNROLL for (int d = 0; d < P::DK / 64; d++) box_load(to + TILE + d * 16384, v, d * 64, (begin + step) * 128, "
    "P::VH ? g : 0, P::VB ? b : 0, vf);\n"
    "  }\n"
    "}\n"
    "template <class P> M void flash_compute(const typename P::X &x, typename P::T *out, unsigned char *memory, u32 "
    "base, u32 bars, i64 n, const flash_tile &f, int round, u32 done, bool &begun) {\n"
    "  enum { TILE = P::DK * 256 };\n"
    "  const i64 seen = f.seen;\n"
    "  const int first = f.first, begin = f.begin, steps = f.steps, t = threadIdx.x, wg = t >> 7, l = t & 31, at = "
    "first + wg * 64 + (t >> 5 & 3) * 16 + (l >> 2);\n"
    "  const float scale = P::X::LOOP ? 1.4426950408889634f : (float)P::scale() * 1.4426950408889634f, least = "
    "gn_f32(0xff800000u);\n"
    "  const typename P::T tag = {};\n"
    "  const u32 q = base + wg * 8192;\n"
    "  // the last key that rows at and at + 8 see; tiles from `whole` on have keys that some query does not see\n"
    "  const int last = (int)(n - P::TQ), bound[2] = { P::CAUSAL && last + at < n - 1 ? last + at : (int)n - 1, "
    "P::CAUSAL && last + at + 8 < n - 1 ? last + at + 8 : (int)n - 1 };\n"
    "  const int whole = (P::CAUSAL && last + first + 1 < seen ? (last + first + 1) / 128 : (int)(seen / 128)) - "
    "begin;\n"
    "  // with a window: and those before `clear`\n"
    "  typedef seen_by<typename P::X> by;\n"
    "  const i64 past = last + first + 128 - by::WINDOW;\n"
    "  const int clear = by::WINDOW > 0 && past > 0 ? (int)((past + 127) / 128) - begin : 0;\n"
    "  float s[64], o[P::DK / 2], sink = by::sink(x) * 1.4426950408889634f, top[2] = { sink, sink }, keep[2],\n"
    "    one = by::SINKS && (t & 3) == 0 && sink != least ? 1.f : 0.f, sum[2] = { one, one };\n"
    "  u32 p[32];\n"
    "  UNROLL for (int i = 0; i < P::DK / 2; i++) o[i] = 0.f;\n"
    "  bar_wait(bars, round & 1);\n"
    "  if (steps > 0) {\n"
    "    const u32 now = done & 1;\n"
    "    bar_wait(bars + 8 + now * 8, done >> 1 & 1);\n"
    "    flash_scores<P>(s, q, base + TILE + now * (2 * TILE));\n"
    "    wgmma_wait<0>();\n"
    "    wgmma_keep<64>(s);\n"
    "    if (l == 0) bar_arrive(bars + 40 + now * 8);\n"
    "    if (l == 0 && steps == 1) bar_arrive(bars + 72);\n"
    "    flash_softmax<P>(s, top, sum, keep, scale, 0 >= whole || 0 < clear, begin * 128, bound, x, at);\n"
    "    flash_pack<P>(p, s);\n"
    "  }\n"
    "  else if (l == 0) bar_arrive(bars + 72);\n"
    "  if (wg == 1 && steps > 1 && !begun) group_pass(2);                     // the first group begins\n"
    "  begun = begun || steps > 1;\n"
    "  for (int step = 0; step + 1 < steps; step++) {                         // the next scores and these values are "
    "computed while weights are made of the scores\n"
    "    const u32 past = done + step, now = past & 1, next = now ^ 1, sv = base + TILE + now * (2 * TILE) + TILE;\n"
    "    bar_wait(bars + 24 + now * 8, past >> 1 & 1);\n"
    "    if (!P::WRITTEN && (step >= whole || step < clear)) flash_clean<P>(memory + (sv - base), (begin + step) * "
    "128, "
    "bound, o);\n"
    "    bar_wait(bars + 8 + next * 8, past + 1 >> 1 & 1);\n"
    "    group_turn(2 + wg);                                                  // one group's products run while the "
    "other makes weights\n"
    "    flash_scores<P>(s, q, base + TILE + next * (2 * TILE));\n"
    "    flash_values<P>(o, p, sv);\n"
    "    group_pass(3 - wg);\n"
    "    wgmma_wait<1>();\n"
    "    wgmma_keep<64>(s);\n"
    "    if (l == 0) bar_arrive(bars + 40 + next * 8);\n"
    "    if (l == 0 && step + 2 == steps) bar_arrive(bars + 72);\n"
    "    flash_softmax<P>(s, top, sum, keep, scale, step + 1 >= whole || step + 1 < clear, (begin + step + 1) * 128, "
    "bound, x, at);\n"
    "    wgmma_wait<0>();\n"
    "    wgmma_keep<P::DK / 2>(o);\n"
    "    if (l == 0) bar_arrive(bars + 56 + now * 8);\n"
    "    if (P::DK < 128 || __any_sync(0xffffffffu, keep[0] != 1.f || keep[1] != 1.f)) UNROLL for (int i = 0; "
    "i < P::DK / 2; i++) o[i] *= keep[i >> 1 & 1];\n"
    "    flash_pack<P>(p, s);\n"
    "  }\n"
    "  if (steps > 0) {\n"
    "    const int step = steps - 1;\n"
    "    const u32 past = done + step, now = past & 1, sv = base + TILE + now * (2 * TILE) + TILE;\n"
    "    bar_wait(bars + 24 + now * 8, past >> 1 & 1);\n"
    "    if (!P::WRITTEN && (step >= whole || step < clear)) flash_clean<P>(memory + (sv - base), (begin + step) * "
    "128, "
    "bound, o);\n"
    "    flash_values<P>(o, p, sv);\n"
    "    wgmma_wait<0>();\n"
    "    wgmma_keep<P::DK / 2>(o);\n"
    "    if (l == 0) bar_arrive(bars + 56 + now * 8);\n"
    "  }\n"
    "  UNROLL for (int e = 0; e < 2; e++) {\n"
    "    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);\n"
    "    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);\n"
    "    const float other = sum[e] == 0.f ? gn_f32(P::WRITTEN ? 0x7fc00000u : 0u) : 1.f / sum[e];\n"
    "    if (at + e * 8 >= P::TQ) continue;\n"
    "    typename P::T *row = out + ((i64)f.y * P::TQ + at + e * 8) * P::DK + (l & 3) * 2;\n"
    "    UNROLL for (int d = 0; d < P::DK / 8; d++) *(u32 *)(row + d * 8) = pair(o[d * 4 + e * 2] * other, "
    "o[d * 4 + e * 2 + 1] * other, tag);\n"
    "  }\n"
    "}\n"
    "template <class P> M void wgmma_attention(const tmap *q, const tmap *k, const tmap *v, const typename P::L "
    "*length, typename P::X x, typename P::T *out, u32 *err, u32 node) {\n"
    "  extern __shared__ __align__(1024) unsigned char panels[];\n"
    "  __shared__ __align__(8) u64 barriers[10];                              // Q; K, V filled, each of two stages; "
    "K, V empty; Q empty\n"
    "  const u32 start = shared_address(panels), base = (start + 1023u) & ~1023u, bars = shared_address(barriers);\n"
    "  i64 n = P::S;\n"
    "  if (P::LENGTH) {\n"
    "    n = get(*length);\n"
    "    if (n < (P::CAUSAL ? P::TQ : 0) || n > P::S) { if (threadIdx.x == 0) fault(err, OUT_OF_RANGE, node, n, P::S); "
    "return; }\n"
    "  }\n"
    "  if (threadIdx.x == 0) {\n"
    "    for (int i = 0; i < 10; i++) bar_init(bars + 8 * i, i < 5 ? 1 : 8);\n"
    "    asm volatile(\"fence.mbarrier_init.release.cluster; fence.proxy.async;\" ::: \"memory\");\n"
    "  }\n"
    "  __syncthreads();\n"
    "  flash_tile f;\n"
    "  u32 done = 0;\n"
    "  if (threadIdx.x >= 256) {\n"
    "    asm volatile(\"setmaxnreg.dec.sync.aligned.u32 24;\");\n"
    "    if (threadIdx.x == 256) for (int round = 0; flash_next<P>(f, round, n); round++, done += f.steps) "
    "flash_feed<P>(q, k, v, base, bars, f, round, done);\n"
    "  } else {\n"
    "    asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");\n"
    "    bool begun = false;\n"
    "    for (int round = 0; flash_next<P>(f, round, n); round++, done += f.steps) {\n"
    "      typename P::X y = x;\n"
    "      y.begin(f.y);\n"
    "      flash_compute<P>(y, out, panels + (base - start), base, bars, n, f, round, done, begun);\n"
    "    }\n"
    "  }\n"
    "}\n";

/* A block a processor takes the tiles by turns, so that the next one's operands arrive while this one is computed:
   where there are some for each, and, if they are of different lengths, each block meets all lengths twice. A head's
   tiles are turned by what makes a block's place among them go on by one each round. On an H200 128 tokens of 2048
   heads of 64 take 55 us so and 89 us with a block a tile, 512 tokens of 512 heads 95 and 119. */
static bool loops_over_tiles(const emit *e, const attention_form *f, int64_t tiles) {
    int64_t heads = f->dims[0] * f->dims[1];
    return heads * (f->causal ? 1 : tiles) >= 2 * emit_processors(e);
}

static void emit_attention_groups(emit *e, uint32_t node, const attention_form *f) {
    static const char *const names[3] = { "q", "k", "v" };
    const gn_view *views[3] = { &f->q, &f->k, &f->v };
    const int64_t tiles = blocks_for(f->dims[2], 128), heads = f->dims[0] * f->dims[1], processors = emit_processors(e);
    const bool several = loops_over_tiles(e, f, tiles);
    int d = (int)f->q.dims[3];
    char name[96];
    text label = { 0 };
    put_wgmma(&e->types, "@_score", 128, f->q.dtype, false, false, false);
    put_wgmma(&e->types, "@_value", d, f->q.dtype, true, false, true);
    put_loop_of_scores(e, f, &label);
    put_attention_type(&e->types, f, "@_x");
    put(&e->types,
        "struct @_q : @_p { enum { SEVERAL = %d, TURN = %d }; static const i64 HEADS = %lldll; static M void "
        "score(float *s, u64 a, u64 b) { @_score(s, a, b); } static M void value(float *o, const u32 *a, u64 b) { "
        "@_value(o, a, b); } };\n",
        several, several ? (int)((tiles + 1 - processors % tiles) % tiles) : 0, (long long)heads);
    for (int i = 0; i < 3; i++) {
        emit_map(e, names[i], f->q.dtype,
                 &(panels){ .moved = f->moved[i],
                            .node = f->moved[i] ? UINT32_MAX : e->layout->lay[f->in[i]].base,
                            .offset = views[i]->offset,
                            .inner = d,
                            .outer = views[i]->dims[2],
                            .stride = views[i]->strides[2],
                            .box_inner = 64,
                            .box_outer = 128,
                            .batch = { .rank = 2,
                                       .dims = { views[i]->dims[0], views[i]->dims[1] },
                                       .strides = { views[i]->strides[0], views[i]->strides[1] } } });
    }
    if (f->length) emit_node(e, f->length_node, types[f->length_type].name, true, "length");
    emit_node(e, node, types[f->q.dtype].name, false, "o");
    emit_errors(e);
    emit_number(e, "u32", "node", PARAM_WORD, node);
    e->faults = e->faults || f->length;
    e->bounds = "__launch_bounds__(384, 1)";
    put(&e->body, "  wgmma_attention<@_q>(&q, &k, &v, %s, x, o, err, node);\n",
        f->length ? "length" : "(const @_p::L *)0");
    snprintf(name, sizeof name, "wgmma_attention_%s_%d%s", gn_dtype_name(f->q.dtype), d, label.s ? label.s : "");
    e->failed = e->failed || label.failed;
    text_free(&label);
    emit_launch_shared(e, name, (uint64_t)(several ? processors : tiles), (uint64_t)(several ? 1 : heads), 384,
                       (uint32_t)(5 * 256 * d + 1024));
}

/* `node`: whose memory takes the result. */
static void emit_attention_form(emit *e, uint32_t node, attention_form *f) {
    const char *type = types[f->q.dtype].name, *length = f->length ? "length" : "(const @_p::L *)0";
    char name[96];
    text label = { 0 };
    if (f->empty && !f->length) return;
    attention_move(e, f);
    if (f->groups) {
        emit_attention_groups(e, node, f);
        return;
    }
    if (!f->empty) put_loop_of_scores(e, f, &label);
    put_attention_type(&e->types, f, f->empty ? "no_loop" : "@_x");
    emit_view_of(e, f->in[0], &f->q, f->moved[0], true, "q");
    emit_view_of(e, f->in[1], &f->k, f->moved[1], true, "k");
    emit_view_of(e, f->in[2], &f->v, f->moved[2], true, "v");
    if (f->masked) emit_node(e, f->mask_node, types[f->mask_type].name, true, "mask");
    if (f->length) emit_node(e, f->length_node, types[f->length_type].name, true, "length");
    if (f->parts > 1)
        emit_pointer(e, types[f->q.dtype].compute, false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_node(e, node, type, false, "o");
    emit_errors(e);
    emit_number(e, "u32", "node", PARAM_WORD, node);
    e->faults = e->faults || f->length;
    if (f->empty)
        put(&e->body, "  const i64 n = *length;\n  if (threadIdx.x == 0 && (n < (@_p::CAUSAL ? @_p::TQ : 0) || n > "
                      "@_p::S)) fault(err, OUT_OF_RANGE, node, n, @_p::S);\n");
    else if (f->tiled) put(&e->body, "  tiled_attention<@_p>(q, k, v, x, o);\n");
    else if (f->flash) put(&e->body, "  flash_attention<@_p>(q, k, v, %s, x, o, err, node);\n", length);
    else
        put(&e->body, "  attention<@_p>(q, k, v, %s, %s, x, o, %s, err, node);\n",
            f->masked ? "mask" : "(const @_p::MT *)0", length, f->parts > 1 ? "parts" : "0");
    snprintf(name, sizeof name, "%sattention_%s%s%s",
             f->flash   ? "flash_"
             : f->tiled ? "tiled_"
                        : "",
             gn_dtype_name(f->q.dtype), f->empty ? "_of_none" : "", label.s ? label.s : "");
    e->failed = e->failed || label.failed;
    text_free(&label);
    if (f->flash)
        emit_launch_shared(e, name, (uint64_t)blocks_for(f->dims[2], 64), (uint64_t)(f->dims[0] * f->dims[1]), 128,
                           (uint32_t)(5 * 64 * f->q.dims[3] * 2));
    else if (f->tiled)
        emit_launch_shared(e, name, (uint64_t)blocks_for(f->dims[2], 64), (uint64_t)(f->dims[0] * f->dims[1]), 256,
                           tiled_bytes(f));
    else emit_launch(e, name, (uint64_t)(f->empty ? 1 : f->queries), (uint64_t)f->parts, 128);
    if (f->parts > 1) emit_attention_join(e, node, f);
}

static void emit_attention(emit *e, uint32_t node) {
    attention_form f = attention_choose(e, node);
    emit_attention_form(e, node, &f);
}
#define emit_attention_with emit_attention

/* ---- the cache ---- */

/* Where an append in place saves what it overwrites, and its flag. */
static void emit_saved(emit *e, uint32_t node, const char *type, const char *name, const char *flag) {
    const gn_view *v = view_of(e, input(e, node, 1));
    emit_pointer(e, type, false, name, (param){ PARAM_PLAN, REGION_SAVED, (int64_t)e->save });
    emit_number(e, "u32", flag, PARAM_WORD, ERROR_WORDS + e->n_flags);
    e->append_flags[e->n_appends] = e->n_flags++;
    e->appends[e->n_appends++] = node;
    e->save = gn_size_add(e->save, gn_size_align(gn_size_mul((size_t)gn_view_count(v), types[v->dtype].bytes), 256));
}

/* In the cache's own memory, unless an older version is still read: then rows that are overwritten are saved first. */
static void emit_kv_append(emit *e, uint32_t node) {
    uint32_t x = input(e, node, 0), y = input(e, node, 1), z = input(e, node, 2);
    const gn_view *cache = view_of(e, x), *rows_view = view_of(e, y);
    bool in_place = e->layout->lay[node].place == GN_PLACE_INPLACE;
    gn_view out = gn_view_dense(cache->dtype, 4, view_of(e, node)->dims), part = out;
    int bytes = types[cache->dtype].bytes;
    const char *type = raw_types[bytes], *pos = types[view_of(e, z)->dtype].name;
    int64_t T = rows_view->dims[2], S = out.dims[2], n;
    part.dims[2] = T;
    gn_view cr = gn_view_collapse(rows_view), co = gn_view_collapse(&part);
    n = gn_view_count(&part);
    if (!in_place) emit_copy(e, node, x);
    emit_node(e, y, type, true, "rows");
    emit_node(e, z, pos, true, "pos");
    emit_node(e, node, type, false, "o");
    if (in_place) emit_saved(e, node, type, "saved", "flag");
    emit_faults(e, node);
    put(&e->body,
        "  const i64 at = *pos;\n  if (at < 0 || at > %lldll) { if (blockIdx.x == 0 && threadIdx.x == 0) fault(err, "
        "OUT_OF_RANGE, node, at, %lldll); return; }\n",
        (long long)(S - T), (long long)(S - T + 1));
    if (in_place) put(&e->body, "  if (*err) return;\n  if (blockIdx.x == 0 && threadIdx.x == 0) err[flag] = 1;\n");
    put(&e->body,
        "  o += at * %lldll;\n  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < %lldull; i += (u64)gridDim.x * "
        "256) {\n    const i64 to = ",
        (long long)out.strides[2], (long long)n);
    put_offset(&e->body, &co, "i", false);
    put(&e->body, ";\n    %so[to] = rows[", in_place ? "saved[i] = o[to];\n    " : "");
    put_offset(&e->body, &cr, "i", false);
    put(&e->body, "];\n  }\n");
    int64_t blocks = blocks_for(n, 256);
    emit_launch(e, in_place ? "kv_append_in_place" : "kv_append",
                (uint64_t)(blocks > 1 << 16 ? 1 << 16
                           : blocks < 1     ? 1
                                            : blocks),
                1, 256);
}

/* ---- caches in pages ---- */

static const char page_text[] =
    "// Slots of an append: in range, no two alike, each in the table of its row's sequence. P: I (slot), Q "
    "(sequence), "
    "TI (page), N, SLOTS, S, B, MANY pages of a sequence, CHECKED\n"
    "template <class P> M void page_slots(const typename P::I *slots, const typename P::Q *sequences, const typename "
    "P::TI *table, u32 *err, u32 node) {\n"
    "  const int i = blockIdx.x * 256 + threadIdx.x;\n"
    "  if (i >= P::N) return;\n"
    "  const i64 at = slots[i * P::IS];\n"
    "  if (at < -1 || at >= P::SLOTS) fault(err, OUT_OF_RANGE, node, at, P::SLOTS);\n"
    "  if (at < 0 || at >= P::SLOTS) return;\n"
    "  for (int j = 0; j < i; j++) if (slots[j * P::IS] == at) { fault(err, OUT_OF_RANGE, node, at, TWICE); break; }\n"
    "  if (!P::CHECKED) return;\n"
    "  const i64 b = sequences[i * P::QS], page = at / P::S;\n"
    "  bool mine = false;\n"
    "  if (b >= 0 && b < P::B) for (i64 m = 0; m < P::MANY && !mine; m++) mine = table[b * P::TB + m * P::TM] == "
    "page;\n"
    "  if (!mine) fault(err, OUT_OF_RANGE, node, at, FOREIGN);\n"
    "}\n"
    "// The keys of row n that this block works on. P: SI PI TI, SS PS TB TM, B, MANY, S, PAGES, WINDOW, PARTS, SPAN\n"
    "template <class P> struct page_row {\n"
    "  i64 p, begin, end;\n"
    "  const typename P::TI *pages;\n"
    "  M void init(i64 n, const typename P::SI *sequences, const typename P::PI *positions, const typename P::TI "
    "*table, u32 *err, u32 node) {\n"
    "    const i64 b = sequences[n * P::SS];\n"
    "    const bool none = b < 0 || b >= P::B;\n"
    "    p = none ? 0 : (i64)positions[n * P::PS];\n"
    "    const bool out = p < 0 || p >= P::MANY * P::S;\n"
    "    if ((b < -1 || b >= P::B) && threadIdx.x == 0) fault(err, OUT_OF_RANGE, node, b, P::B);\n"
    "    if (!none && out && threadIdx.x == 0) fault(err, OUT_OF_RANGE, node, p, P::MANY * P::S);\n"
    "    pages = table + (none ? 0 : b * P::TB);\n"
    "    begin = P::WINDOW > 0 && p + 1 > P::WINDOW ? p + 1 - P::WINDOW : 0;\n"
    "    end = none || out ? 0 : p + 1;\n"
    "    if (P::PARTS > 1) { begin += (i64)blockIdx.y * P::SPAN; if (end > begin + P::SPAN) end = begin + P::SPAN; }\n"
    "  }\n"
    "  // The page of key j; -1 when it is none of the pool.\n"
    "  M i64 page(i64 j, u32 *err, u32 node) const {\n"
    "    const i64 at = pages[j / P::S * P::TM];\n"
    "    if (at >= 0 && at < P::PAGES) return at;\n"
    "    fault(err, OUT_OF_RANGE, node, at, P::PAGES);\n"
    "    return -1;\n"
    "  }\n"
    "};\n"
    "// A block of 128 threads for one head of one row: 128 keys at a time. P: as page_row, T, C, X, H, G, DK, E, "
    "strides QN QH QD, KP KH KS KD, VP VH VS VD, scale()\n"
    "template <class P> M void page_attention(const typename P::T *q, const typename P::T *k, const typename P::T *v, "
    "const typename P::SI *sequences, const typename P::PI *positions, const typename P::TI *table, const typename "
    "P::X x, typename P::T *out, typename P::C *parts, u32 *, u32 *err, u32 node) {\n"
    "  typedef typename P::C C;\n"
    "  enum { EACH = (P::E + 127) / 128 };\n"
    "  __shared__ __align__(16) C shared[4], sums[4];\n"
    "  __shared__ C ps[128];\n"
    "  __shared__ i64 from[128];\n"
    "  const int th = threadIdx.x;\n"
    "  const i64 at = blockIdx.x, h = at % P::H, n = at / P::H, g = h / (P::H / P::G);\n"
    "  const C least = gn_f32(0xff800000u);\n"
    "  page_row<P> row;\n"
    "  row.init(n, sequences, positions, table, err, node);\n"
    "  q += n * P::QN + h * P::QH;\n"
    "  C acc[EACH], top = blockIdx.y == 0 ? x.sink(h) : least, sum = top != least ? 1 : 0;\n"
    "  UNROLL for (int e = 0; e < EACH; e++) acc[e] = 0;\n"
    "  for (i64 base = row.begin; base < row.end; base += 128) {\n"
    "    __syncthreads();\n"
    "    const i64 j = base + th, page = j < row.end ? row.page(j, err, node) : -1;\n"
    "    C s = least;\n"
    "    if (page >= 0) {\n"
    "      const typename P::T *key = k + page * P::KP + g * P::KH + j % P::S * P::KS;\n"
    "      C d4[4] = { 0, 0, 0, 0 };\n"
    "      _Pragma(\"unroll 4\") for (int d = 0; d < P::DK; d++) d4[d & 3] = gn_fma((C)get(q[d * P::QD]), "
    "(C)get(key[d * P::KD]), d4[d & 3]);\n"
    "      s = x.value(((d4[0] + d4[1]) + (d4[2] + d4[3])) * P::scale(), h, j - row.p);\n"
    "    }\n"
    "    from[th] = page * P::VP + g * P::VH + j % P::S * P::VS;\n"
    "    max_of<C> m;\n"
    "    m.v = s;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) m.merge(exchange(m, l));\n"
    "    if ((th & 31) == 0) shared[th >> 5] = m.v;\n"
    "    __syncthreads();\n"
    "    C now = max_nan(max_nan(shared[0], shared[1]), max_nan(shared[2], shared[3]));\n"
    "    now = max_nan(top, now);\n"
    "    const bool none = now == least;\n"
    "    const C p = page >= 0 && !none ? gn_exp(s - now) : (C)0, keep = none || top == now ? (C)1 : gn_exp(top - "
    "now);\n"
    "    ps[th] = p;\n"
    "    sum_of<C> group;\n"
    "    group.v = p;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) group.merge(exchange(group, l));\n"
    "    if ((th & 31) == 0) sums[th >> 5] = group.v;\n"
    "    __syncthreads();\n"
    "    sum = sum * keep + ((sums[0] + sums[1]) + (sums[2] + sums[3]));\n"
    "    top = now;\n"
    "    const int count = row.end - base < 128 ? (int)(row.end - base) : 128;\n"
    "    UNROLL for (int e = 0; e < EACH; e++) {\n"
    "      const int c = e * 128 + th;\n"
    "      C o = acc[e] * keep;\n"
    "      if (c < P::E) _Pragma(\"unroll 8\") for (int l = 0; l < count; l++) if (ps[l] != 0) o = gn_fma(ps[l], "
    "(C)get(v[from[l] + (i64)c * P::VD]), o);\n"
    "      acc[e] = o;\n"
    "    }\n"
    "  }\n"
    "  if (P::PARTS > 1) parts += (at * P::PARTS + blockIdx.y) * (P::E + 2);\n"
    "  UNROLL for (int e = 0; e < EACH; e++) {\n"
    "    const int c = e * 128 + th;\n"
    "    if (c >= P::E) continue;\n"
    "    if (P::PARTS > 1) parts[2 + c] = acc[e];\n"
    "    else put(out[at * P::E + c], sum != 0 ? acc[e] / sum : (C)0);\n"
    "  }\n"
    "  if (P::PARTS > 1 && th == 0) { parts[0] = top; parts[1] = sum; }\n"
    "}\n"
    "// The results of 4 warps that had a quarter of the keys each.\n"
    "template <class P> M void page_warps(const float (&part)[4][P::R][P::E + 2], i64 at, int th, typename P::T *out, "
    "float *parts) {\n"
    "  enum { R = P::R };\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  for (int i = th; i < R * P::E; i += 128) {\n"
    "    const int r = i / P::E, c = i % P::E;\n"
    "    float all = least, num = 0.f, den = 0.f;\n"
    "    UNROLL for (int w = 0; w < 4; w++) all = max_nan(all, part[w][r][P::E]);\n"
    "    UNROLL for (int w = 0; w < 4; w++) if (part[w][r][P::E + 1] != 0.f) { const float f = "
    "gn_exp(part[w][r][P::E] - all); num = gn_fma(f, part[w][r][c], num); den = gn_fma(f, part[w][r][P::E + 1], den); "
    "}\n"
    "    if (P::PARTS == 1) { put(out[(at + r) * P::E + c], den != 0.f ? num / den : 0.f); continue; }\n"
    "    float *to = parts + ((at + r) * P::PARTS + blockIdx.y) * (P::E + 2);\n"
    "    to[2 + c] = num;\n"
    "    if (c == 0) { to[0] = all; to[1] = den; }\n"
    "  }\n"
    "}\n"
    "// The pages of U keys from j on, STEP apart; -1 beyond the last\n"
    "template <class P, int U, int STEP> M void page_numbers(i64 *pages, const page_row<P> &row, i64 j, u32 *err, u32 "
    "node) {\n"
    "  UNROLL for (int u = 0; u < U; u++) pages[u] = j + u * STEP < row.end ? row.page(j + u * STEP, err, node) : "
    "-1;\n"
    "}\n"
    "template <class P, int U, int STEP> M void page_loads(uint4 *k, uint4 *v, const typename P::T *kp, const typename "
    "P::T *vp, const i64 *pages, i64 j) {\n"
    "  UNROLL for (int u = 0; u < U; u++) {\n"
    "    const i64 at = (j + u * STEP) % P::S;\n"
    "    k[u] = v[u] = zeros();\n"
    "    if (pages[u] >= 0) { k[u] = *(const uint4 *)(kp + pages[u] * P::KP + at * P::KS); v[u] = *(const uint4 *)(vp "
    "+ "
    "pages[u] * P::VP + at * P::VS); }\n"
    "  }\n"
    "}\n"
    "// The parts of R queries joined as by attention_join, by the last of their blocks; done: 0 before the kernel.\n"
    "template <class P> M void page_joined(const float *parts, i64 at, int th, typename P::T *out, u32 *done) {\n"
    "  __shared__ u32 before;\n"
    "  __threadfence();\n"
    "  __syncthreads();\n"
    "  if (th == 0) before = atomicAdd(done + blockIdx.x, 1u);\n"
    "  __syncthreads();\n"
    "  if (before + 1 < P::PARTS) return;\n"
    "  __threadfence();\n"
    "  if (th == 0) done[blockIdx.x] = 0;\n"
    "  for (int i = th; i < P::R * P::E; i += 128) {\n"
    "    const int c = i % P::E;\n"
    "    const volatile float *p = parts + (at + i / P::E) * P::PARTS * (P::E + 2);  // past the L1\n"
    "    float top = gn_f32(0xff800000u), sum = 0.f, o = 0.f, tops[P::PARTS], sums[P::PARTS], own[P::PARTS];\n"
    "    UNROLL for (int k = 0; k < P::PARTS; k++) { tops[k] = p[k * (P::E + 2)]; sums[k] = p[k * (P::E + 2) + 1]; "
    "own[k] = p[k * (P::E + 2) + 2 + c]; }\n"
    "    UNROLL for (int k = 0; k < P::PARTS; k++) top = max_nan(top, tops[k]);\n"
    "    UNROLL for (int k = 0; k < P::PARTS; k++) if (sums[k] != 0.f) { sum += sums[k] * gn_exp(tops[k] - top); o = "
    "gn_fma(own[k], gn_exp(tops[k] - top), o); }\n"
    "    put(out[(at + i / P::E) * P::E + c], sum != 0.f ? o / sum : 0.f);\n"
    "  }\n"
    "}\n"
    "// The same for R heads that share keys, of D = E elements, 16 bytes to a lane: a warp has 32 / LANES keys at a "
    "time, V elements each; the next ones are on their way, and the numbers of the pages after them. C is float.\n"
    "template <class P> M void page_attention_wide(const typename P::T *q, const typename P::T *k, const typename P::T "
    "*v, const typename P::SI *sequences, const typename P::PI *positions, const typename P::TI *table, const typename "
    "P::X x, typename P::T *out, float *parts, u32 *done, u32 *err, u32 node) {\n"
    "  typedef typename P::T T;\n"
    "  enum { V = 16 / (int)sizeof(T), R = P::R, LANES = P::E / V, KEYS = 32 / LANES, STEP = 4 * KEYS, U = R > 4 ? 2 : "
    "4 };\n"
    "  __shared__ float part[4][R][P::E + 2];\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  const int th = threadIdx.x, warp = th >> 5, lane = th & 31, sub = lane % LANES, key = warp * KEYS + lane / "
    "LANES;\n"
    "  const i64 at = (i64)blockIdx.x * R, h = at % P::H, n = at / P::H, g = h / (P::H / P::G);\n"
    "  const T tag = T();\n"
    "  page_row<P> row;\n"
    "  row.init(n, sequences, positions, table, err, node);\n"
    "  float y[R][V], o[R][V], top[R], sum[R];\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    const uint4 w = *(const uint4 *)(q + n * P::QN + (h + r) * P::QH + sub * V);\n"
    "    UNROLL for (int i = 0; i < V; i++) { y[r][i] = part_of(w, i, tag) * (float)P::scale(); o[r][i] = 0.f; }\n"
    "    top[r] = warp == 0 && blockIdx.y == 0 ? x.sink(h + r) : least;\n"
    "    sum[r] = top[r] != least && lane < LANES ? 1.f : 0.f;\n"
    "  }\n"
    "  const T *kp = k + g * P::KH + sub * V, *vp = v + g * P::VH + sub * V;\n"
    "  uint4 kn[U], vn[U];\n"
    "  i64 pages[U];\n"
    "  page_numbers<P, U, STEP>(pages, row, row.begin + key, err, node);\n"
    "  page_loads<P, U, STEP>(kn, vn, kp, vp, pages, row.begin + key);\n"
    "  page_numbers<P, U, STEP>(pages, row, row.begin + key + U * STEP, err, node);\n"
    "  for (i64 base = row.begin; base < row.end; base += U * STEP) {\n"
    "    uint4 kr[U], vr[U];\n"
    "    UNROLL for (int u = 0; u < U; u++) { kr[u] = kn[u]; vr[u] = vn[u]; }\n"
    "    page_loads<P, U, STEP>(kn, vn, kp, vp, pages, base + key + U * STEP);\n"
    "    page_numbers<P, U, STEP>(pages, row, base + key + 2 * U * STEP, err, node);\n"
    "    UNROLL for (int r = 0; r < R; r++) {\n"
    "      float s[U], now = top[r];\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        const i64 j = base + key + u * STEP;\n"
    "        s[u] = 0.f;\n"
    "        UNROLL for (int i = 0; i < V; i++) s[u] = gn_fma(y[r][i], part_of(kr[u], i, tag), s[u]);\n"
    "        UNROLL for (int l = LANES / 2; l > 0; l /= 2) s[u] += exchange(s[u], l);\n"
    "        if (j >= row.end) s[u] = least; else s[u] = x.value(s[u], h + r, j - row.p);\n"
    "        now = max_nan(now, s[u]);\n"
    "      }\n"
    "      UNROLL for (int l = LANES; l < 32; l *= 2) now = max_nan(now, exchange(now, l));\n"
    "      const bool none = now == least;\n"
    "      const float keep = none || top[r] == now ? 1.f : gn_exp(top[r] - now);\n"
    "      sum[r] *= keep;\n"
    "      UNROLL for (int i = 0; i < V; i++) o[r][i] *= keep;\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        const float p = none || base + key + u * STEP >= row.end ? 0.f : gn_exp(s[u] - now);\n"
    "        if (sub == 0) sum[r] += p;\n"
    "        if (p != 0.f) UNROLL for (int i = 0; i < V; i++) o[r][i] = gn_fma(p, part_of(vr[u], i, tag), o[r][i]);\n"
    "      }\n"
    "      top[r] = now;\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    if (sub != 0) sum[r] = 0.f;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) sum[r] += exchange(sum[r], l);\n"
    "    UNROLL for (int l = LANES; l < 32; l *= 2) UNROLL for (int i = 0; i < V; i++) o[r][i] += exchange(o[r][i], "
    "l);\n"
    "    if (lane < LANES) UNROLL for (int i = 0; i < V; i++) part[warp][r][sub * V + i] = o[r][i];\n"
    "    if (lane == 0) { part[warp][r][P::E] = top[r]; part[warp][r][P::E + 1] = sum[r]; }\n"
    "  }\n"
    "  __syncthreads();\n"
    "  page_warps<P>(part, at, th, out, parts);\n"
    "  if (P::JOINS) page_joined<P>(parts, at, th, out, done);\n"
    "}\n"
    "// The same of keys and values of 8 bits, 16 to a lane, for R heads that share them: what a key's sum and a "
    "value's weight are multiplied by are the scales of its token. Elements beyond D and E are 0.\n"
    "// P too: FP8, WIDE (16 bytes can be read at once), LANES (a power of two), KST, VST, strides QD KD VD, SKP SKH "
    "SKS, SVP SVH SVS of scales\n"
    "D float of_byte(u32 b, bool fp8) {\n"
    "  if (fp8) return fp8_float(b);\n"
    "  return gn_f32(0x4b000000u | (b ^ 128u)) - 8388736.f;\n"
    "}\n"
    "template <class P> M uint4 page_bytes(const u8 *p, int have, i64 stride) {\n"
    "  if (have <= 0) return zeros();\n"
    "  if (P::WIDE) return *(const uint4 *)p;\n"
    "  union { uint4 all; u32 w[4]; } r;\n"
    "  r.all = zeros();\n"
    "  UNROLL for (int i = 0; i < 16; i++) if (i < have) r.w[i / 4] |= (u32)p[i * stride] << i % 4 * 8;\n"
    "  return r.all;\n"
    "}\n"
    "template <class P> M void page_attention_bytes(const typename P::T *q, const u8 *k, const u8 *v, const typename "
    "P::SI *sequences, const typename P::PI *positions, const typename P::TI *table, const typename P::KST *ks, const "
    "typename P::VST *vs, const typename P::X x, typename P::T *out, float *parts, u32 *done, u32 *err, u32 node) {\n"
    "  enum { V = 16, R = P::R, LANES = P::LANES, KEYS = 32 / LANES, STEP = 4 * KEYS, U = 2 };\n"
    "  __shared__ float part[4][R][P::E + 2];\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  const int th = threadIdx.x, warp = th >> 5, lane = th & 31, sub = lane % LANES, key = warp * KEYS + lane / "
    "LANES, d = P::DK - sub * V, e = P::E - sub * V;\n"
    "  const i64 at = (i64)blockIdx.x * R, h = at % P::H, n = at / P::H, g = h / (P::H / P::G);\n"
    "  page_row<P> row;\n"
    "  row.init(n, sequences, positions, table, err, node);\n"
    "  float y[R][V], o[R][V], top[R], sum[R];\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    UNROLL for (int i = 0; i < V; i++) { y[r][i] = i < d ? get(q[n * P::QN + (h + r) * P::QH + (sub * V + i) * "
    "P::QD]) * (float)P::scale() : 0.f; o[r][i] = 0.f; }\n"
    "    top[r] = warp == 0 && blockIdx.y == 0 ? x.sink(h + r) : least;\n"
    "    sum[r] = top[r] != least && lane < LANES ? 1.f : 0.f;\n"
    "  }\n"
    "  for (i64 base = row.begin; base < row.end; base += U * STEP) {\n"
    "    union { uint4 all; u32 w[4]; } kr[U], vr[U];\n"
    "    float kf[U], vf[U];\n"
    "    UNROLL for (int u = 0; u < U; u++) {\n"
    "      const i64 j = base + key + u * STEP, page = j < row.end ? row.page(j, err, node) : -1, s = j % P::S;\n"
    "      kr[u].all = vr[u].all = zeros();\n"
    "      kf[u] = vf[u] = 0.f;\n"
    "      if (page < 0) continue;\n"
    "      kr[u].all = page_bytes<P>(k + page * P::KP + g * P::KH + s * P::KS + sub * V * P::KD, d, P::KD);\n"
    "      vr[u].all = page_bytes<P>(v + page * P::VP + g * P::VH + s * P::VS + sub * V * P::VD, e, P::VD);\n"
    "      kf[u] = get(ks[page * P::SKP + g * P::SKH + s * P::SKS]);\n"
    "      vf[u] = get(vs[page * P::SVP + g * P::SVH + s * P::SVS]);\n"
    "    }\n"
    "    UNROLL for (int r = 0; r < R; r++) {\n"
    "      float s[U], now = top[r];\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        const i64 j = base + key + u * STEP;\n"
    "        s[u] = 0.f;\n"
    "        UNROLL for (int i = 0; i < V; i++) s[u] = gn_fma(y[r][i], of_byte(kr[u].w[i / 4] >> i % 4 * 8 & 255u, "
    "P::FP8), s[u]);\n"
    "        UNROLL for (int l = LANES / 2; l > 0; l /= 2) s[u] += exchange(s[u], l);\n"
    "        if (j >= row.end) s[u] = least; else s[u] = x.value(s[u] * kf[u], h + r, j - row.p);\n"
    "        now = max_nan(now, s[u]);\n"
    "      }\n"
    "      UNROLL for (int l = LANES; l < 32; l *= 2) now = max_nan(now, exchange(now, l));\n"
    "      const bool none = now == least;\n"
    "      const float keep = none || top[r] == now ? 1.f : gn_exp(top[r] - now);\n"
    "      sum[r] *= keep;\n"
    "      UNROLL for (int i = 0; i < V; i++) o[r][i] *= keep;\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        const float p = none || base + key + u * STEP >= row.end ? 0.f : gn_exp(s[u] - now);\n"
    "        if (sub == 0) sum[r] += p;\n"
    "        if (p != 0.f) UNROLL for (int i = 0; i < V; i++) o[r][i] = gn_fma(p * vf[u], of_byte(vr[u].w[i / 4] >> i "
    "% 4 * 8 & 255u, P::FP8), o[r][i]);\n"
    "      }\n"
    "      top[r] = now;\n"
    "    }\n"
    "  }\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    if (sub != 0) sum[r] = 0.f;\n"
    "    UNROLL for (int l = 16; l > 0; l /= 2) sum[r] += exchange(sum[r], l);\n"
    "    UNROLL for (int l = LANES; l < 32; l *= 2) UNROLL for (int i = 0; i < V; i++) o[r][i] += exchange(o[r][i], "
    "l);\n"
    "    if (lane < LANES) UNROLL for (int i = 0; i < V; i++) if (i < e) part[warp][r][sub * V + i] = o[r][i];\n"
    "    if (lane == 0) { part[warp][r][P::E] = top[r]; part[warp][r][P::E + 1] = sum[r]; }\n"
    "  }\n"
    "  __syncthreads();\n"
    "  page_warps<P>(part, at, th, out, parts);\n"
    "  if (P::JOINS) page_joined<P>(parts, at, th, out, done);\n"
    "}\n";

/* The slots of two appends are the same numbers, checked alike. */
static bool slots_are_checked(const emit *e, uint32_t node) {
    uint32_t n = e->part->nodes[node].n_ins;
    for (uint32_t i = 0; i < e->n_checked; i++) {
        uint32_t other = e->checked[i];
        const gn_view *a = view_of(e, input(e, node, 0)), *b = view_of(e, input(e, other, 0));
        bool same = e->part->nodes[other].n_ins == n && a->dims[0] == b->dims[0] && a->dims[2] == b->dims[2];
        for (uint32_t k = 2; k < n && same; k++) same = input(e, node, k) == input(e, other, k);
        if (same) return true;
    }
    return false;
}

/* What is wrong with slots stops every kernel that writes behind this one. Appends of many layers have the same. */
static void emit_page_slots(emit *e, uint32_t node) {
    const gn_view *pool = view_of(e, input(e, node, 0)), *slots = view_of(e, input(e, node, 2));
    bool checked = e->part->nodes[node].n_ins == 5;
    const gn_view *of = view_of(e, input(e, node, checked ? 3 : 2)),
                  *table = view_of(e, input(e, node, checked ? 4 : 2));
    if (slots_are_checked(e, node)) return;
    e->checked[e->n_checked++] = node;
    put(&e->types,
        "struct @_p { typedef %s I; typedef %s Q; typedef %s TI; enum { N = %lld, MANY = %lld, CHECKED = %d };\n"
        "  static const i64 SLOTS = %lldll, S = %lldll, B = %lldll, IS = %lldll, QS = %lldll, TB = %lldll, TM = "
        "%lldll; "
        "};\n",
        types[slots->dtype].name, types[of->dtype].name, types[table->dtype].name, (long long)slots->dims[0],
        (long long)(!checked            ? 0
                    : table->strides[1] ? table->dims[1]
                                        : 1),
        checked, (long long)(pool->dims[0] * pool->dims[2]), (long long)(pool->dims[2] > 1 ? pool->dims[2] : 1),
        (long long)table->dims[0], (long long)slots->strides[0], (long long)of->strides[0],
        (long long)table->strides[0], (long long)(checked ? table->strides[1] : 0));
    emit_node(e, input(e, node, 2), types[slots->dtype].name, true, "slots");
    if (checked) {
        emit_node(e, input(e, node, 3), types[of->dtype].name, true, "sequences");
        emit_node(e, input(e, node, 4), types[table->dtype].name, true, "table");
    }
    emit_faults(e, node);
    put(&e->body, "  page_slots<@_p>(slots, %s, err, node);\n",
        checked ? "sequences, table" : "(const @_p::Q *)0, (const @_p::TI *)0");
    emit_launch(e, "page_slots", (uint64_t)blocks_for(slots->dims[0], 256), 1, 256);
}

/* Bytes of a word that rows of D elements are made of: as many as alignment lets be. */
static int page_word(const gn_view *pool, const gn_view *from) {
    int bytes = types[pool->dtype].bytes;
    const gn_view *both[2] = { pool, from };
    for (int word = 16; word > bytes; word /= 2) {
        int64_t many = word / bytes;
        bool fits = from->dims[2] % many == 0;
        for (int k = 0; k < 2 && fits; k++) {
            const gn_view *v = both[k];
            fits = v->strides[v->rank - 1] == 1 && v->offset % word == 0;
            for (int i = 0; i + 1 < v->rank; i++) fits = fits && v->strides[i] % many == 0;
        }
        if (fits) return word;
    }
    return bytes;
}

/* The loop of `body` over words (N,G,D) of rows, `to` in the pool; for what has no slot it is left out. */
static void put_page_loop(text *t, const gn_view *pool, const gn_view *slots, const gn_view *from, int word,
                          const char *names, const char *body) {
    int64_t many = word / types[pool->dtype].bytes, D = from->dims[2] / many, G = from->dims[1];
    int64_t S = pool->dims[2], of[3] = { G * S * D, S * D, D };
    put(t,
        "for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < %lldull; i += (u64)gridDim.x * 256) {\n"
        "    const i64 d = (i64)(i %% %lldull), g = (i64)(i / %lldull %% %lldull), n = (i64)(i / %lldull), slot = "
        "slots%s[n * %lldll];\n    if (slot < 0) continue;\n    const i64 to = slot / %lldll * %lldll + g * %lldll + "
        "slot %% %lldll * %lldll + d;\n%s  }\n",
        (long long)(from->dims[0] * G * D), (long long)D, (long long)D, (long long)G, (long long)(G * D), names,
        (long long)slots->strides[0], (long long)S, (long long)of[0], (long long)of[1], (long long)S, (long long)of[2],
        body);
}

/* One append of a kernel of several; `tag` is behind its names. Returns its words. */
static int64_t put_page_append(emit *e, uint32_t node, const char *tag) {
    uint32_t y = input(e, node, 1), z = input(e, node, 2);
    const gn_view *from = view_of(e, y), *slots = view_of(e, z);
    bool in_place = e->layout->lay[node].place == GN_PLACE_INPLACE;
    gn_view out = gn_view_dense(from->dtype, 4, view_of(e, node)->dims);
    int word = page_word(&out, from), many = word / types[from->dtype].bytes;
    const char *type = word == 16 ? "uint4" : raw_types[word];
    char name[5][24], body[200], saves[64] = "";
    static const char *const names[5] = { "rows", "slots", "o", "saved", "flag" };
    for (int i = 0; i < 5; i++) snprintf(name[i], sizeof name[i], "%s%s", names[i], tag);
    emit_node(e, y, type, true, name[0]);
    emit_node(e, z, types[slots->dtype].name, true, name[1]);
    emit_node(e, node, type, false, name[2]);
    if (in_place) emit_saved(e, node, type, name[3], name[4]);
    if (in_place) put(&e->body, "  if (blockIdx.x == 0 && threadIdx.x == 0) err[%s] = 1;\n", name[4]);
    if (in_place) snprintf(saves, sizeof saves, "    %s[i] = %s[to];\n", name[3], name[2]);
    snprintf(body, sizeof body, "%s    %s[to] = %s[n * %lldll + g * %lldll + d * %lldll];\n", saves, name[2], name[0],
             (long long)(from->strides[0] / many), (long long)(from->strides[1] / many),
             (long long)(many > 1 ? 1 : from->strides[2]));
    put(&e->body, "  ");
    put_page_loop(&e->body, &out, slots, from, word, tag, body);
    return gn_view_count(from) / many;
}

/* In the pools' own memory, unless an older version is still read. Several are by the same slots, and in place. */
static void emit_page_appends(emit *e, const uint32_t *nodes, uint32_t n) {
    bool in_place = e->layout->lay[nodes[0]].place == GN_PLACE_INPLACE;
    const gn_view *from = view_of(e, input(e, nodes[0], 1));
    int64_t most = 0;
    char tag[12] = "", label[48];
    if (!in_place) emit_copy(e, nodes[0], input(e, nodes[0], 0));
    if (!from->dims[0]) return;
    if (from->dims[0] > 1 << 16) {
        gn_fail(e->fault, GN_UNSUPPORTED,
                "an append of %lld rows, at most 65536 at once on a GPU: append them in parts",
                (long long)from->dims[0]);
        e->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) emit_page_slots(e, nodes[i]);
    if (!gn_view_count(from)) return;
    emit_early(e);
    emit_await(e);
    emit_errors(e);
    put(&e->body, "  if (*err) return;\n");
    for (uint32_t i = 0; i < n; i++) {
        if (n > 1) snprintf(tag, sizeof tag, "%u", i);
        int64_t words = put_page_append(e, nodes[i], tag);
        if (words > most) most = words;
    }
    int64_t blocks = blocks_for(most, 256);
    snprintf(label, sizeof label,
             n > 1      ? "page_append_%u_in_place"
             : in_place ? "page_append_in_place"
                        : "page_append",
             n);
    emit_launch(e, label, (uint64_t)(blocks > 1 << 16 ? 1 << 16 : blocks), 1, 256);
}

static void emit_page_append(emit *e, uint32_t node) { emit_page_appends(e, &node, 1); }

/* How attention over pages is computed: f64 and odd heads a head to a block; else `heads` that share keys. */
enum { PAGE_SPAN = 512, PAGE_HEADS = 8, PAGE_BYTES_HEADS = 4, PAGE_BYTES = 512, PAGE_JOINED = 16 };

typedef struct page_form {
    gn_view q, k, v, of, at, table;
    gn_view scales[2];                    /* of keys and values of bytes */
    int64_t heads, parts, window, format; /* format: a gn_quant, 0: none */
    uint32_t slopes, sinks;               /* inputs, 0: none */
    double scale, cap;
} page_form;

static bool page_is_wide(const page_form *f) {
    int64_t bytes = types[f->q.dtype].bytes, many = 16 / bytes, d = f->q.dims[2], lanes = d / many;
    bool fits = f->q.dtype != GN_F64 && d == f->v.dims[3] && d % many == 0 && lanes >= 1 && lanes <= 32 &&
                (lanes & (lanes - 1)) == 0;
    const gn_view *all[3] = { &f->q, &f->k, &f->v };
    for (int i = 0; i < 3 && fits; i++) {
        fits = all[i]->strides[all[i]->rank - 1] == 1 && all[i]->offset % 16 == 0;
        for (int k = 0; k + 1 < all[i]->rank; k++) fits = fits && all[i]->strides[k] % many == 0;
    }
    return fits;
}

static page_form page_choose(const emit *e, uint32_t node) {
    const int64_t *attrs = attrs_of(e, node);
    page_form f = { .q = *view_of(e, input(e, node, 0)),
                    .k = *view_of(e, input(e, node, 1)),
                    .v = *view_of(e, input(e, node, 2)),
                    .of = *view_of(e, input(e, node, 3)),
                    .at = *view_of(e, input(e, node, 4)),
                    .table = *view_of(e, input(e, node, 5)),
                    .parts = 1,
                    .scale = word_f64(attrs[1]),
                    .cap = word_f64(attrs[2]),
                    .window = attrs[3] };
    uint32_t next = 6;
    if (node_is(e, node, GN_OP_PAGE_ATTENTION_QUANTIZED)) {
        f.format = attrs[4];
        for (int i = 0; i < 2; i++) f.scales[i] = *view_of(e, input(e, node, next++));
    }
    if (attrs[0] & 8) f.slopes = next++;
    if (attrs[0] & 16) f.sinks = next++;
    if (f.scale == 0) f.scale = 1.0 / __builtin_sqrt((double)(f.q.dims[2] > 1 ? f.q.dims[2] : 1));
    int64_t shared = f.k.dims[1] ? f.q.dims[1] / f.k.dims[1] : 1, keys = f.table.dims[1] * f.k.dims[2];
    for (int64_t r = 1; r <= (f.format ? PAGE_BYTES_HEADS : PAGE_HEADS); r++)
        if (shared % r == 0 && (f.format || page_is_wide(&f))) f.heads = r;
    /* few rows: keys are cut into parts of a fixed size, joined by a second kernel */
    int64_t blocks = f.q.dims[0] * f.q.dims[1] / (f.heads ? f.heads : 1);
    if (f.window && f.window < keys) keys = f.window;
    if ((e->invariant || blocks < 2 * emit_processors(e)) && keys > PAGE_SPAN) f.parts = blocks_for(keys, PAGE_SPAN);
    return f;
}

/* The last block of a few queries joins their parts, where these are few: no kernel does. */
static bool page_joins(const emit *e, const page_form *f) {
    int64_t blocks = f->heads ? f->q.dims[0] * f->q.dims[1] / f->heads : 0;
    return f->parts > 1 && f->parts <= PAGE_JOINED && blocks && blocks <= 2 * emit_processors(e);
}

/* `done`: a counter of each of so many blocks of queries, which they leave at 0: all such kernels of a plan have the
   same ones. */
static void emit_counters(emit *e, uint32_t blocks) {
    if (e->n_counters < blocks) {
        e->counters = e->n_flags;
        e->n_counters = blocks;
        e->n_flags += blocks;
    }
    emit_pointer(e, "u32", false, "done", (param){ PARAM_PLAN, REGION_ERRORS, (ERROR_WORDS + e->counters) * 4 });
}

/* The type @_x of what is done to scores, and `x` of it in the body. */
static void put_page_scores(emit *e, uint32_t node, const page_form *f) {
    const char *c = types[f->q.dtype].compute;
    const uint32_t in[2] = { f->slopes, f->sinks };
    const char *const names[2] = { "slopes", "sinks" };
    text members = { 0 };
    put(&e->types, "struct @_x {");
    for (int i = 0; i < 2; i++) {
        if (!in[i]) continue;
        const char *type = types[view_of(e, input(e, node, in[i]))->dtype].name;
        emit_node(e, input(e, node, in[i]), type, true, names[i]);
        put(&e->types, " const %s *%s;", type, names[i]);
        put(&members, "%s%s", members.n ? ", " : "", names[i]);
    }
    put(&e->types, "\n  M %s value(%s s, i64 h, i64 away) const {\n", c, c);
    if (f->cap != 0)
        put(&e->types, "    s = (%s)gn_f64(0x%llxull) * gn_tanh(s * (%s)gn_f64(0x%llxull));\n", c,
            (unsigned long long)f64_word(f->cap), c, (unsigned long long)f64_word(1 / f->cap));
    if (f->slopes)
        put(&e->types, "    s = gn_fma((%s)get(slopes[h * %lldll]), (%s)away, s);\n", c,
            (long long)view_of(e, input(e, node, f->slopes))->strides[0], c);
    put(&e->types, "    return s;\n  }\n  M %s sink(i64 h) const { return ", c);
    if (f->sinks) put(&e->types, "get(sinks[h * %lldll])", (long long)view_of(e, input(e, node, f->sinks))->strides[0]);
    else put(&e->types, "gn_f32(0xff800000u)");
    put(&e->types, "; }\n};\n");
    put(&e->body, "  const @_x x = { %s };\n", members.s ? members.s : "");
    e->failed = e->failed || members.failed;
    text_free(&members);
}

/* Bytes of one lane lie at a multiple of 16, all of them. */
static bool page_bytes_are_wide(const gn_view *v) {
    bool wide = v->dims[3] % 16 == 0 && v->strides[3] == 1 && v->offset % 16 == 0;
    for (int i = 0; i < 3; i++) wide = wide && v->strides[i] % 16 == 0;
    return wide;
}

static void put_page_bytes(text *t, const page_form *f) {
    int64_t wide = f->k.dims[3] > f->v.dims[3] ? f->k.dims[3] : f->v.dims[3], lanes = 1;
    while (lanes * 16 < wide) lanes *= 2;
    put(t, "  enum { FP8 = %d, WIDE = %d, LANES = %lld };\n", f->format == GN_QUANT_FP8_E4M3,
        page_bytes_are_wide(&f->k) && page_bytes_are_wide(&f->v), (long long)lanes);
    for (int i = 0; i < 2; i++) {
        const int64_t *strides = f->scales[i].strides;
        char which = i ? 'V' : 'K';
        put(t, "  typedef %s %cST; static const i64 S%cP = %lldll, S%cH = %lldll, S%cS = %lldll;\n",
            types[f->scales[i].dtype].name, which, which, (long long)strides[0], which, (long long)strides[1], which,
            (long long)strides[2]);
    }
}

static void put_page_type(emit *e, const page_form *f) {
    const gn_view *q = &f->q, *k = &f->k, *v = &f->v;
    text more = { 0 };
    if (f->format) put_page_bytes(&more, f);
    put(&e->types,
        "struct @_p { typedef %s T; typedef %s C; typedef %s SI; typedef %s PI; typedef %s TI; typedef @_x X; enum { R "
        "= "
        "%lld, DK = %lld, E = %lld, PARTS = %lld, WRITTEN = 0, JOINS = %d };\n",
        types[q->dtype].name, types[q->dtype].compute, types[f->of.dtype].name, types[f->at.dtype].name,
        types[f->table.dtype].name, (long long)(f->heads ? f->heads : 1), (long long)q->dims[2], (long long)v->dims[3],
        (long long)f->parts, page_joins(e, f));
    put(&e->types,
        "  static const i64 H = %lldll, G = %lldll, B = %lldll, MANY = %lldll, S = %lldll, PAGES = %lldll, WINDOW = "
        "%lldll, SPAN = %dll, SS = %lldll, PS = %lldll, TB = %lldll, TM = %lldll,\n",
        (long long)q->dims[1], (long long)k->dims[1], (long long)f->table.dims[0], (long long)f->table.dims[1],
        (long long)(k->dims[2] > 1 ? k->dims[2] : 1), (long long)(k->dims[2] ? k->dims[0] : 0), (long long)f->window,
        (int)PAGE_SPAN, (long long)f->of.strides[0], (long long)f->at.strides[0], (long long)f->table.strides[0],
        (long long)f->table.strides[1]);
    put(&e->types,
        "  QN = %lldll, QH = %lldll, QD = %lldll, KP = %lldll, KH = %lldll, KS = %lldll, KD = %lldll, VP = %lldll, VH "
        "= "
        "%lldll, VS = %lldll, VD = %lldll;\n%s  static M C scale() { return (C)gn_f64(0x%llxull); }\n};\n",
        (long long)q->strides[0], (long long)q->strides[1], (long long)q->strides[2], (long long)k->strides[0],
        (long long)k->strides[1], (long long)k->strides[2], (long long)k->strides[3], (long long)v->strides[0],
        (long long)v->strides[1], (long long)v->strides[2], (long long)v->strides[3], more.s ? more.s : "",
        (unsigned long long)f64_word(f->scale));
    e->failed = e->failed || more.failed;
    text_free(&more);
}

static void emit_page_join(emit *e, uint32_t node, const page_form *f) {
    const char *type = types[f->q.dtype].name, *compute = types[f->q.dtype].compute;
    int64_t queries = f->q.dims[0] * f->q.dims[1];
    size_t bytes = gn_size_mul(gn_size_mul((size_t)queries, (size_t)f->parts), (size_t)(f->v.dims[3] + 2));
    bytes = gn_size_mul(bytes, f->q.dtype == GN_F64 ? 8 : 4);
    if (bytes > e->scratch) e->scratch = bytes;
    if (page_joins(e, f)) return;
    put(&e->types, "struct @_p { typedef %s T; typedef %s C; enum { E = %lld, PARTS = %lld, WRITTEN = 0 }; };\n", type,
        compute, (long long)f->v.dims[3], (long long)f->parts);
    emit_pointer(e, compute, true, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_node(e, node, type, false, "o");
    put(&e->body, "  attention_join<@_p>(parts, o);\n");
    emit_launch(e, "attention_join", (uint64_t)queries, 1, 128);
}

static void emit_page_attention(emit *e, uint32_t node) {
    static const char *const names[8] = { "q", "k", "v", "sequences", "positions", "table", "ks", "vs" };
    page_form f = page_choose(e, node);
    const gn_view *views[8] = { &f.q, &f.k, &f.v, &f.of, &f.at, &f.table, &f.scales[0], &f.scales[1] };
    const char *type = types[f.q.dtype].name, *compute = types[f.q.dtype].compute;
    int64_t queries = f.q.dims[0] * f.q.dims[1];
    char label[96];
    if (!queries || !f.v.dims[3]) return;
    if (f.format && (f.k.dims[3] > PAGE_BYTES || f.v.dims[3] > PAGE_BYTES)) {
        gn_fail(e->fault, GN_UNSUPPORTED, "heads of %lld and %lld elements of 8 bits: the GPU's kernel takes up to %d",
                (long long)f.k.dims[3], (long long)f.v.dims[3], (int)PAGE_BYTES);
        e->failed = true;
        return;
    }
    emit_early(e);
    emit_await(e);
    put_page_scores(e, node, &f);
    put_page_type(e, &f);
    for (uint32_t i = 0; i < (f.format ? 8 : 6); i++)
        emit_node(e, input(e, node, i), f.format && (i == 1 || i == 2) ? "u8" : types[views[i]->dtype].name, true,
                  names[i]);
    if (f.parts > 1) emit_pointer(e, compute, false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    if (page_joins(e, &f)) emit_counters(e, (uint32_t)(f.q.dims[0] * f.q.dims[1] / f.heads));
    emit_node(e, node, type, false, "o");
    emit_faults(e, node);
    put(&e->body, "  page_attention%s<@_p>(q, k, v, sequences, positions, table, %sx, o, %s, %s, err, node);\n",
        f.format  ? "_bytes"
        : f.heads ? "_wide"
                  : "",
        f.format ? "ks, vs, " : "", f.parts > 1 ? "parts" : "0", page_joins(e, &f) ? "done" : "0");
    snprintf(label, sizeof label, "page_attention_%s%s%s%s%s%s", gn_dtype_name(f.q.dtype),
             f.format == GN_QUANT_FP8_E4M3 ? "_fp8"
             : f.format                    ? "_int8"
                                           : "",
             f.window ? "_window" : "", f.cap != 0 ? "_cap" : "", f.slopes ? "_slopes" : "", f.sinks ? "_sinks" : "");
    emit_launch(e, label, (uint64_t)(queries / (f.heads ? f.heads : 1)), (uint64_t)f.parts, 128);
    if (f.parts > 1) emit_page_join(e, node, &f);
}
#define emit_page_attention_quantized emit_page_attention

static void put_page_undo(emit *e, uint32_t at, uint32_t i, size_t save) {
    uint32_t node = e->appends[at], y = input(e, node, 1), z = input(e, node, 2);
    const gn_view *from = view_of(e, y), *slots = view_of(e, z);
    gn_view out = gn_view_dense(from->dtype, 4, view_of(e, node)->dims);
    int word = page_word(&out, from);
    const char *type = word == 16 ? "uint4" : raw_types[word];
    char name[4][32];
    snprintf(name[0], sizeof name[0], "slots%u", i);
    snprintf(name[1], sizeof name[1], "o%u", i);
    snprintf(name[2], sizeof name[2], "saved%u", i);
    snprintf(name[3], sizeof name[3], "    o%u[to] = saved%u[i];\n", i, i);
    emit_node(e, z, types[slots->dtype].name, true, name[0]);
    emit_node(e, node, type, false, name[1]);
    emit_pointer(e, type, true, name[2], (param){ PARAM_PLAN, REGION_SAVED, (int64_t)save });
    put(&e->body, "  if (err[%u]) ", ERROR_WORDS + e->append_flags[at]);
    put_page_loop(&e->body, &out, slots, from, word, name[0] + 5, name[3]);
}

/* One of the appends in place that a failed run puts back; the ith of this kernel. */
static void put_undo(emit *e, uint32_t at, uint32_t i, size_t save) {
    uint32_t node = e->appends[at], y = input(e, node, 1), z = input(e, node, 2);
    if (node_is(e, node, GN_OP_PAGE_APPEND)) {
        put_page_undo(e, at, i, save);
        return;
    }
    gn_view out = gn_view_dense(view_of(e, node)->dtype, 4, view_of(e, node)->dims), part = out;
    part.dims[2] = view_of(e, y)->dims[2];
    gn_view co = gn_view_collapse(&part);
    const char *type = raw_types[types[out.dtype].bytes];
    char name[3][24];
    snprintf(name[0], sizeof name[0], "pos%u", i);
    snprintf(name[1], sizeof name[1], "o%u", i);
    snprintf(name[2], sizeof name[2], "saved%u", i);
    emit_node(e, z, types[view_of(e, z)->dtype].name, true, name[0]);
    emit_node(e, node, type, false, name[1]);
    emit_pointer(e, type, true, name[2], (param){ PARAM_PLAN, REGION_SAVED, (int64_t)save });
    put(&e->body,
        "  if (err[%u]) for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < %lldull; i += (u64)gridDim.x * 256) "
        "o%u[(i64)*pos%u * %lldll + ",
        ERROR_WORDS + e->append_flags[at], (long long)gn_view_count(&part), i, i, (long long)out.strides[2]);
    put_offset(&e->body, &co, "i", false);
    put(&e->body, "] = saved%u[i];\n", i);
}

/* Whether one of the next n appends back from `at` is to the same memory. */
static bool undoes_twice(const emit *e, uint32_t at, uint32_t n) {
    uint32_t own = e->layout->lay[e->appends[at]].own;
    for (uint32_t i = 1; i <= n; i++)
        if (e->layout->lay[e->appends[at + i]].own == own) return true;
    return false;
}

/* Puts back what appends in place have overwritten, when the run has failed after them: the latest first, one after
   another where they may meet. */
enum { UNDOS_A_KERNEL = 26 };

static void emit_undo(emit *e) {
    size_t save = e->save;
    for (uint32_t left = e->n_appends; left && !gn_flag_get(e->cancel);) {
        e->rereads = e->early = true;
        emit_errors(e);
        put(&e->body, "  let_next_start();\n  await_previous();\n  if (!*err) return;\n");
        for (uint32_t i = 0; left && i < UNDOS_A_KERNEL && !undoes_twice(e, left - 1, i); i++) {
            const gn_view *v = view_of(e, input(e, e->appends[--left], 1));
            save -= ((size_t)gn_view_count(v) * types[v->dtype].bytes + 255) & ~(size_t)255;
            put_undo(e, left, i, save);
        }
        emit_launch(e, "kv_append_undo", 32, 1, 256);
    }
}

/* A state's new version becomes its value, unless the run has failed. */
static void emit_commit(emit *e, param to, param from, size_t bytes) {
    if (!bytes) return;
    emit_pointer(e, "uint4", false, "to", to);
    emit_pointer(e, "uint4", true, "from", from);
    emit_number(e, "u64", "n", PARAM_LONG, (int64_t)((bytes + 15) / 16));
    emit_errors(e);
    put(&e->body, "  if (*err) return;\n  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < n; i += (u64)gridDim.x "
                  "* 256) to[i] = from[i];\n");
    int64_t blocks = blocks_for((int64_t)(bytes + 15) / 16, 256);
    emit_launch(e, "commit", (uint64_t)(blocks > 1 << 16 ? 1 << 16 : blocks), 1, 256);
}

/* >>one ==============================================================================================
 * Steps of one row (batch 1): a product with the norm before it and the loop or the choice after it; one query with
 * its appends. */

static const char one_text[] =
    "// ---- one row (batch 1): the weights of a kernel are on their way before the kernels before it have ended ----\n"
    "#if !defined(GN_HOST) && __CUDA_ARCH__ >= 900\n"
    "D void cluster_arrive() { asm volatile(\"barrier.cluster.arrive.release;\" ::: \"memory\"); }\n"
    "D void cluster_wait() { asm volatile(\"barrier.cluster.wait.acquire;\" ::: \"memory\"); }\n"
    "// into the same place of the shared memory of the cluster's first block\n"
    "D void put_first(float *p, float v) { asm volatile(\"{.reg .u32 r; mapa.shared::cluster.u32 r, %0, 0; "
    "st.shared::cluster.f32 [r], %1;}\" :: \"r\"(shared_address(p)), \"f\"(v) : \"memory\"); }\n"
    "D void put_block(float *p, float v, int rank) { asm volatile(\"{.reg .u32 r; mapa.shared::cluster.u32 r, %0, %2; "
    "st.shared::cluster.f32 [r], %1;}\" :: \"r\"(shared_address(p)), \"f\"(v), \"r\"(rank) : \"memory\"); }\n"
    "#else\n"
    "D void cluster_arrive() {}\n"
    "D void cluster_wait() {}\n"
    "D void put_first(float *p, float v) { *p = v; }\n"
    "D void put_block(float *p, float v, int) { *p = v; }\n"
    "#endif\n"
    "// 16 bytes that nothing writes while this runs. The loads stay above the wait that they stand above: of .nc they "
    "would not.\n"
    "D uint4 stream(const void *p) {\n"
    "  uint4 w;\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ < 800\n"
    "  w = *(const uint4 *)p;\n"
    "#else\n"
    "  asm volatile(\"ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\" : \"=r\"(w.x), \"=r\"(w.y), "
    "\"=r\"(w.z), \"=r\"(w.w) : \"l\"(p));\n"
    "#endif\n"
    "  return w;\n"
    "}\n"
    "// The same of what is there only behind a wait, and is in the cache for the block's other warps\n"
    "D uint4 cached(const void *p) {\n"
    "  uint4 w;\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ < 800\n"
    "  w = *(const uint4 *)p;\n"
    "#else\n"
    "  asm volatile(\"ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\" : \"=r\"(w.x), \"=r\"(w.y), \"=r\"(w.z), \"=r\"(w.w) : "
    "\"l\"(p));\n"
    "#endif\n"
    "  return w;\n"
    "}\n"
    "// Mean and 1 / deviation of k elements, by each warp for itself, without a barrier. x: this lane's elements.\n"
    "template <class P> M void vector_norm(const typename P::T *a, float (*x)[P::V], float *mean, float *scale) {\n"
    "  enum { V = P::V, CH = (P::k + 32 * V - 1) / (32 * V) };\n"
    "  const int lane = threadIdx.x & 31;\n"
    "  enum { G = P::k / V > 32 ? 8 : 1 };                               // the lanes of such a row, "
    "as wherever else it is normed\n"
    "  sum_of<float> some[G], squares[G];\n"
    "  UNROLL for (int g = 0; g < G; g++) { some[g].init(); squares[g].init(); }\n"
    "  UNROLL for (int c = 0; c < CH; c++) {\n"
    "    typename P::T raw_[V];\n"
    "    UNROLL for (int v = 0; v < V; v++) x[c][v] = 0.f;\n"
    "    if ((c * 32 + lane) * V < P::k) { vload<V>(raw_, a + (c * 32 + lane) * V); UNROLL for (int v = 0; v < V; "
    "v++) { x[c][v] = get(raw_[v]); some[c % G].take(x[c][v], 0); } }\n"
    "  }\n"
    "  if (!P::NORM) return;\n"
    "  *mean = joined<32, G, false>(some).v / (float)P::k;\n"
    "  UNROLL for (int c = 0; c < CH; c++)\n"
    "    if ((c * 32 + lane) * V < P::k) UNROLL for (int v = 0; v < V; v++) squares[c % G].square(x[c][v] - *mean);\n"
    "  *scale = 1.f / sqrtf(joined<32, G, false>(squares).v / (float)P::k + (float)P::eps());\n"
    "}\n"
    "template <class P> M float vector_normed(float x, float mean, float scale, float gain, float shift) {\n"
    "  float y = (x - mean) * scale;\n"
    "  if (P::HAS_GAIN) y = y * gain;\n"
    "  if (P::HAS_SHIFT) y = y + shift;\n"
    "  return cast_to<typename P::T>::of(y);\n"
    "}\n"
    "D best_of<float, false> fresh(const best_of<float, false> *p) {     // past the L1, "
    "which may hold what stood there before\n"
    "  best_of<float, false> b;\n"
    "  b.v = *(const volatile float *)&p->v;\n"
    "  b.at = *(const volatile i64 *)&p->at;\n"
    "  return b;\n"
    "}\n"
    "// The best of the block's values, then of all blocks'. All threads come here; done: 0 before the kernel.\n"
    "template <class P> M void vector_best(best_of<float, false> b, best_of<float, false> *parts, u32 *done, i64 *out) "
    "{\n"
    "  __shared__ u32 before;\n"
    "  const u32 n = gridDim.x / P::S;\n"
    "#pragma unroll 1\n"
    "  for (bool last = false;; last = true) {                           // the last block of all joins the blocks' "
    "bests\n"
    "    b = together<256>(b);\n"
    "    if (threadIdx.x == 0 && last) { *out = b.at; *done = 0; }\n"
    "    if (last) return;\n"
    "    if (threadIdx.x == 0) {\n"
    "      parts[blockIdx.x / P::S] = b;\n"
    "      __threadfence();\n"
    "      before = atomicAdd(done, 1u);\n"
    "    }\n"
    "    __syncthreads();\n"
    "    if (before + 1 < n) return;\n"
    "    __threadfence();\n"
    "    b.init();\n"
    "    for (u32 i = threadIdx.x; i < n; i += 256) b.merge(fresh(parts + i));\n"
    "  }\n"
    "}\n"
    "// The k of step i, of ROWS threads that have G of the LANES each: first + a constant, unless a turn skips parts "
    "of the lanes.\n"
    "template <class P, int G, int ROWS> struct vector_turn {\n"
    "  enum { V = P::V, H = P::LANES / (32 * V), APART = H ? 32 * H : 1, EACH = V / G, REGULAR = EACH * G == V && EACH "
    "* APART == ROWS };\n"
    "  static M int k(int i, int place, int first) { return i / G * P::LANES + (REGULAR ? first + i % G * EACH : "
    "lane_k<P::LANES, V>(i % G * ROWS + place)); }\n"
    "};\n"
    "// Which matrix a block multiplies by: of P::MATS of one shape the first two, their columns and the stride of "
    "their "
    "rows or columns; block: of `blocks` that do so\n"
    "template <class T> struct vector_of { const T *b[2]; int n; i64 stride; int block, blocks; };\n"
    "struct vector_as_it_lies { template <class T> M void run(T *, i64, int, bool) const {} };\n"
    "// What a thread multiplies of a row x in U steps from s on.\n"
    "template <class P, class R, int G, int U, bool WIDE> struct vector_own {\n"
    "  typename P::T own[U];\n"
    "  M void load(const typename P::T *x, int s, int place, int first) {\n"
    "    UNROLL for (int i = 0; i < U; i++) { const int l = R::k(s + i, place, first); own[i] = l < P::k ? x[l] : "
    "typename P::T(); }\n"
    "  }\n"
    "  M float at(int i, int) const { return get(own[i]); }\n"
    "};\n"
    "// The G elements of a turn are among V neighbours of k: they come with one load, and are taken apart when they "
    "are used.\n"
    "template <class P, class R, int G, int U> struct vector_own<P, R, G, U, true> {\n"
    "  uint4 own[U / G];\n"
    "  M void load(const typename P::T *x, int s, int place, int first) {\n"
    "    UNROLL for (int j = 0; j < U / G; j++) {\n"
    "      const int l = (s / G + j) * P::LANES + first - place / R::APART;\n"
    "      own[j] = zeros();\n"
    "      if (l < P::k) own[j] = P::ROWS_WITHIN ? *(const uint4 *)(x + l) : cached(x + l);\n"
    "    }\n"
    "  }\n"
    "  M float at(int i, int place) const {\n"
    "    float x = part_of(own[i / G], i % G * R::EACH, typename P::T());\n"
    "    UNROLL for (int v = 1; v < R::EACH; v++) x = place / R::APART >= v ? part_of(own[i / G], i % G * R::EACH + v, "
    "typename P::T()) : x;\n"
    "    return x;\n"
    "  }\n"
    "};\n"
    "// Joins the sums of a block's threads, or of a cluster's: as halves of all lanes.\n"
    "template <class P, int G, class E> M void vector_times_end(float (*acc_)[G][P::V], bool mine, int tx, int rank, "
    "int first, E &e, best_of<float, false> &best) {\n"
    "  enum { V = P::V, TX = P::TX, MATS = P::MATS };\n"
    "  __shared__ float part[MATS][P::S * 8][32];\n"
    "  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;\n"
    "  UNROLL for (int q = 0; q < MATS; q++) {\n"
    "    float *acc = acc_[q][0];\n"
    "    UNROLL for (int h = G / 2; h > 0; h /= 2) UNROLL for (int g = 0; g < h; g++) UNROLL for (int v = 0; v < V; "
    "v++) acc_[q][g][v] += acc_[q][g + h][v];\n"
    "    UNROLL for (int half = V / 2, bit = 16; half > 0; half /= 2, bit /= 2)          // each of the V lanes of a "
    "column group keeps one column\n"
    "      UNROLL for (int v = 0; v < half; v++) {\n"
    "        const float out = lane & bit ? acc[v] : acc[v + half], in = lane & bit ? acc[v + half] : acc[v];\n"
    "        acc[v] = in + exchange(out, bit);\n"
    "      }\n"
    "    UNROLL for (int bit = 16 / V; bit >= TX; bit /= 2) acc[0] += exchange(acc[0], bit);\n"
    "    if (P::S > 1) put_first(&part[q][rank * 8 + warp][tx * V + lane * V / 32], acc[0]);\n"
    "    else part[q][warp][tx * V + lane * V / 32] = acc[0];\n"
    "  }\n"
    "  if (P::S > 1) {\n"
    "    cluster_arrive();\n"
    "    cluster_wait();\n"
    "  } else __syncthreads();\n"
    "  if (rank) return;\n"
    "  float y[2] = { 0.f, 0.f };\n"
    "  if (mine) UNROLL for (int q = 0; q < MATS; q++) {\n"
    "    float sum[P::S * 8];\n"
    "    UNROLL for (int p = 0; p < P::S * 8; p++) sum[p] = part[q][p % P::S * 8 + p / P::S][lane];\n"
    "    y[q] = halves<P::S * 8>::sum(sum);\n"
    "  }\n"
    "  if (!mine) return;\n"
    "  if (P::BEST) best.take(e.value(y[0]), first + lane); else e.end(first + lane, y[0], y[1]);\n"
    "}\n"
    "// A row (k) by B (k,n) whose rows are contiguous: TX times V columns to a block, or to the S blocks of a cluster "
    "that share k between them.\n"
    "// LANES sum k as for few rows. P: T, k, BK, V, TX, S, EARLY (B is constant), NORM, HAS_GAIN, HAS_SHIFT, eps(), "
    "BEST, FULL (no part of a tile is beyond k or n), MATS (matrices whose columns meet in E), ROWS_WITHIN (N computes "
    "the row first)\n"
    "// E: what becomes of element i: early(i), load(i), end(i, v, v of the second matrix)\n"
    "template <class P, class N, class E> M void vector_times(const typename P::T *a, const N &norm, const "
    "vector_of<typename P::T> &m, const typename P::T *gain, const typename P::T *shift, E &e, best_of<float, false> "
    "*parts, u32 *done, i64 *out) {\n"
    "  enum { V = P::V, TX = P::TX, MATS = P::MATS, COLUMNS = TX * V, ROWS = 256 / TX * P::S, G = P::LANES / ROWS, "
    "STEPS = (P::k + P::LANES - 1) / P::LANES * G, U = STEPS < P::LOADS / MATS ? STEPS : P::LOADS / MATS / G * G };\n"
    "  typedef typename P::T T;\n"
    "  __shared__ uint4 row_[P::ROWS_WITHIN ? (P::k + V - 1) / V : 1];\n"
    "  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tx = threadIdx.x % TX, rank = m.block % P::S, place "
    "= (lane / TX * 8 + warp) * P::S + rank, first_k = lane_k<P::LANES, V>(place), end = P::k;\n"
    "  const int first = m.block / P::S * COLUMNS, col = first + tx * V;\n"
    "  const bool mine = rank == 0 && warp == 0 && lane < COLUMNS && first + lane < m.n;\n"
    "  uint4 w[MATS][U];\n"
    "  typedef vector_turn<P, G, ROWS> turn;\n"
    "  vector_own<P, turn, G, U, G != 1 && turn::REGULAR> x, g, h;\n"
    "  const T tag = T();\n"
    "  float acc_[MATS][G][V], mean = 0.f, scale = 1.f;\n"
    "  let_next_start();\n"
    "  if (P::S > 1) cluster_arrive();\n"
    "  if (!P::EARLY) await_previous();\n"
    "  UNROLL for (int q = 0; q < MATS; q++) UNROLL for (int g = 0; g < G; g++) UNROLL for (int v = 0; v < V; v++) "
    "acc_[q][g][v] = 0.f;\n"
    "  if (mine) e.early(first + lane);\n"
    "  for (int s = 0; s < STEPS; s += U) {\n"
    "    UNROLL for (int i = 0; i < U; i++) {\n"
    "      const int l = turn::k(s + i, place, first_k);\n"
    "      const bool full = P::FULL && STEPS % U == 0;\n"
    "      UNROLL for (int q = 0; q < MATS; q++) {\n"
    "        w[q][i] = zeros();\n"
    "        if (full || (l < end && col < m.n)) w[q][i] = stream(m.b[q] + (i64)l * m.stride + col);\n"
    "      }\n"
    "    }\n"
    "    if (P::HAS_GAIN) g.load(gain, s, place, first_k);\n"
    "    if (P::HAS_SHIFT) h.load(shift, s, place, first_k);\n"
    "    if (s == 0) {\n"
    "      if (P::S > 1) cluster_wait();                                 // the cluster's first block has begun\n"
    "      await_previous();\n"
    "      if (P::ROWS_WITHIN) { norm.run((T *)row_, 0, 1, blockIdx.x == 0); __syncthreads(); a = (const T *)row_; }\n"
    "    }\n"
    "    x.load(a, s, place, first_k);\n"
    "    if (s == 0 && mine) e.load(first + lane);\n"
    "    if (s == 0 && P::NORM) { float all[(P::k + 32 * V - 1) / (32 * V)][V]; vector_norm<P>(a, all, &mean, &scale); "
    "}\n"
    "    UNROLL for (int i = 0; i < U; i++) {\n"
    "      const float y = P::NORM ? vector_normed<P>(x.at(i, place), mean, scale, P::HAS_GAIN ? g.at(i, place) : 0.f, "
    "P::HAS_SHIFT ? h.at(i, place) : 0.f) : x.at(i, place);\n"
    "      UNROLL for (int q = 0; q < MATS; q++) {\n"
    "        float all[V];\n"
    "        parts_of(w[q][i], all, tag);\n"
    "        UNROLL for (int v = 0; v < V; v++) acc_[q][i % G][v] = gn_fma(y, all[v], acc_[q][i % G][v]);\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "  best_of<float, false> best;\n"
    "  best.init();\n"
    "  vector_times_end<P, G>(acc_, mine, tx, rank, first, e, best);\n"
    "  if (P::BEST && !rank) vector_best<P>(best, parts, done, out);\n"
    "}\n"
    "// B's columns contiguous: chunk c of R columns of each matrix, 16 bytes to a lane; of columns beyond the last "
    "nothing is read.\n"
    "template <class P> M void vector_columns(uint4 *w, const vector_of<typename P::T> &m, int col, int c) {\n"
    "  const int l = (c * 32 + (int)(threadIdx.x & 31)) * P::V;\n"
    "  UNROLL for (int r = 0; r < P::R * P::MATS; r++) {\n"
    "    const int at = col + r % P::R;\n"
    "    w[r] = zeros();\n"
    "    if (at < m.n && (P::k % (32 * P::V) == 0 || l < P::k)) w[r] = stream(m.b[r / P::R] + (i64)at * m.stride + "
    "l);\n"
    "  }\n"
    "}\n"
    "template <class P> struct vector_sums { enum { H = P::LANES / (32 * P::V), N = P::R * P::MATS }; float "
    "v[N][H][P::V]; };\n"
    "template <class P> M void vector_columns_begin(vector_sums<P> &acc) {\n"
    "  UNROLL for (int r = 0; r < vector_sums<P>::N; r++) UNROLL for (int h = 0; h < vector_sums<P>::H; h++) UNROLL "
    "for (int v = 0; v < P::V; v++) acc.v[r][h][v] = 0.f;\n"
    "}\n"
    "// The sums of R columns, each to its lane.\n"
    "template <class P, class E> M void vector_columns_end(vector_sums<P> &acc, int col, int n, E &e, best_of<float, "
    "false> &best) {\n"
    "  enum { H = vector_sums<P>::H };\n"
    "  const int lane = threadIdx.x & 31;\n"
    "  float y[2] = { 0.f, 0.f };\n"
    "  UNROLL for (int r = 0; r < vector_sums<P>::N; r++) {\n"
    "    const float all = joined_k<32, H, P::V>(acc.v[r]);\n"
    "    if (lane == r % P::R) y[r / P::R] = all;\n"
    "  }\n"
    "  vector_columns_begin<P>(acc);\n"
    "  if (lane >= P::R || col + lane >= n) return;\n"
    "  if (P::BEST) best.take(e.value(y[0]), col + lane); else e.end(col + lane, y[0], y[1]);\n"
    "}\n"
    "// Whether the row that is multiplied fits shared memory\n"
    "template <class P> struct vector_within { enum { YES = P::k * (int)sizeof(typename P::T) <= 32768 }; };\n"
    "// Waits for what is before, and leaves the row in `to` as it is multiplied.\n"
    "template <class P, class N> M void vector_row(const typename P::T *a, const N &norm, const typename P::T *gain, "
    "const typename P::T *shift, typename P::T *to) {\n"
    "  enum { V = P::V, CH = (P::k + 32 * V - 1) / (32 * V), OWN = P::NORM ? (CH + 7) / 8 : 1 };\n"
    "  typedef typename P::T T;\n"
    "  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;\n"
    "  uint4 g[OWN], h[OWN];\n"
    "  UNROLL for (int c = 0; c < OWN; c++) {\n"
    "    const int l = ((c * 8 + warp) * 32 + lane) * V;\n"
    "    g[c] = h[c] = zeros();\n"
    "    if (P::HAS_GAIN && l < P::k) g[c] = stream(gain + l);\n"
    "    if (P::HAS_SHIFT && l < P::k) h[c] = stream(shift + l);\n"
    "  }\n"
    "  await_previous();\n"
    "  if (P::ROWS_WITHIN) norm.run(to, 0, 1, blockIdx.x == 0);\n"
    "  else if (P::NORM) {\n"
    "    float x[CH][V], mean = 0.f, scale = 1.f;\n"
    "    const T tag = T();\n"
    "    vector_norm<P>(a, x, &mean, &scale);\n"
    "    UNROLL for (int c = 0; c < CH; c++) {\n"
    "      T raw_[V];\n"
    "      if (c % 8 != warp || (c * 32 + lane) * V >= P::k) continue;\n"
    "      UNROLL for (int v = 0; v < V; v++) put(raw_[v], vector_normed<P>(x[c][v], mean, scale, part_of(g[c / 8], "
    "v, tag), part_of(h[c / 8], v, tag)));\n"
    "      vstore<V>(to + (c * 32 + lane) * V, raw_);\n"
    "    }\n"
    "  } else for (int i = threadIdx.x * V; i < P::k; i += 256 * V) *(uint4 *)(to + i) = cached(a + i);\n"
    "  __syncthreads();\n"
    "}\n"
    "// A row that is multiplied from shared memory, where it fits, by columns that lie along memory: W columns at a "
    "time to each warp (R of each matrix), of which a thread has G * W loads of 16 bytes on their way; the next turn's "
    "follow as soon as a register is free.\n"
    "template <class P, class N, class E> M void vector_dot(const typename P::T *a, const N &norm, const "
    "vector_of<typename P::T> &m, const typename P::T *gain, const typename P::T *shift, E &e, best_of<float, false> "
    "*parts, u32 *done, i64 *out) {\n"
    "  typedef typename P::T T;\n"
    "  enum { V = P::V, R = P::R, W = R * P::MATS, H = vector_sums<P>::H, CH = (P::k + 32 * V - 1) / (32 * V), MOST = "
    "P::LOADS / W, TURNS = (CH + MOST - 1) / MOST, G = ((CH + TURNS - 1) / TURNS + H - 1) / H * H, WITHIN = "
    "vector_within<P>::YES };\n"
    "  __shared__ uint4 row_[WITHIN ? (P::k + V - 1) / V : 1];\n"
    "  T *const row = (T *)row_;\n"
    "  const int lane = threadIdx.x & 31, step = m.blocks * 8 * R;\n"
    "  const T tag = T();\n"
    "  vector_sums<P> acc;\n"
    "  uint4 w[G][W];\n"
    "  int col = (m.block * 8 + (int)(threadIdx.x >> 5)) * R;\n"
    "  best_of<float, false> best;\n"
    "  best.init();\n"
    "  let_next_start();\n"
    "  if (!P::EARLY) await_previous();\n"
    "  vector_columns_begin<P>(acc);\n"
    "  UNROLL for (int c = 0; c < G; c++) vector_columns<P>(w[c], m, col, c);\n"
    "  if (lane < R && col + lane < m.n) e.early(col + lane);\n"
    "  if (WITHIN) vector_row<P>(a, norm, gain, shift, row);\n"
    "  else await_previous();\n"
    "  if (lane < R && col + lane < m.n) e.load(col + lane);\n"
    "  while (col < m.n) {\n"
    "    const int at = col;\n"
    "    for (int turn = 0; turn < TURNS; turn++) {\n"
    "      const int next = turn + 1 < TURNS ? (turn + 1) * G : 0;\n"
    "      if (!next) col += step;\n"
    "      UNROLL for (int c = 0; c < G; c++) {\n"
    "        const int l = ((turn * G + c) * 32 + lane) * V;\n"
    "        uint4 x = zeros();\n"
    "        if (P::k % (32 * V * G) == 0 || l < P::k) x = WITHIN ? *(const uint4 *)(row + l) : cached(a + l);\n"
    "        float of_row[V], of_column[V];\n"
    "        parts_of(x, of_row, tag);\n"
    "        UNROLL for (int r = 0; r < W; r++) {\n"
    "          float *to = acc.v[r][c % H];\n"
    "          parts_of(w[c][r], of_column, tag);\n"
    "          UNROLL for (int v = 0; v < V; v++) to[v] = gn_fma(of_row[v], of_column[v], to[v]);\n"
    "        }\n"
    "        vector_columns<P>(w[c], m, col, next + c);\n"
    "      }\n"
    "    }\n"
    "    vector_columns_end<P>(acc, at, m.n, e, best);\n"
    "    if (lane < R && col + lane < m.n) { e.early(col + lane); e.load(col + lane); }\n"
    "  }\n"
    "  if (P::BEST) vector_best<P>(best, parts, done, out);\n"
    "}\n"
    "// Which quantised matrix a block multiplies by, as vector_of\n"
    "template <class P> struct vector_quant_of { const u8 *w[2]; const typename P::SCALE *s[2]; const typename "
    "P::Z *z[2]; int n, block, blocks; };\n"
    "// Where a warp's rows from `row` on are read\n"
    "template <class P, int FORM> struct quant_from {\n"
    "  const vector_quant_of<P> *m;\n"
    "  int row;\n"
    "  M void set(const vector_quant_of<P> &m_, int row_) { m = &m_; row = row_; }\n"
    "};\n"
    "template <class P> struct quant_from<P, 2> {\n"
    "  enum { R = P::R, W = R * P::MATS, U = P::U, EVEN = 32 * U % P::GROUP == 0 };\n"
    "  const u8 *q[W];\n"
    "  const typename P::SCALE *s[W];\n"
    "  const typename P::Z *z[W];\n"
    "  M void set(const vector_quant_of<P> &m, int row) {\n"
    "    const int lane = threadIdx.x & 31, own = EVEN ? lane * U / P::GROUP : 0;\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      const int at = row + r % R < m.n ? row + r % R : m.n - 1;     // nobody takes the sums of what is beyond\n"
    "      q[r] = m.w[r / R] + (i64)at * P::WS0 + lane * 16 * P::WS1;\n"
    "      s[r] = m.s[r / R] + at / P::ROWS * P::SS0 + own * P::SS1;\n"
    "      if (P::HAS_Z) z[r] = m.z[r / R] + at / P::ROWS * P::ZS0 + own * P::ZS1;\n"
    "    }\n"
    "  }\n"
    "  // of what stands at k, from `s` and `z` on\n"
    "  M int group(int k) const { return EVEN ? (k - ((int)threadIdx.x & 31) * U) / P::GROUP : k / P::GROUP; }\n"
    "};\n"
    "// 8 elements of x from k on\n"
    "template <class P> M uint4 eight_of(const typename P::T *x, int k) {\n"
    "  u32 w[4];\n"
    "  if (P::XV) return cached(x + k);\n"
    "  UNROLL for (int e = 0; e < 4; e++) w[e] = x[(k + 2 * e) * P::XK].b | (u32)x[(k + 2 * e + 1) * P::XK].b << 16;\n"
    "  return four_words(w);\n"
    "}\n"
    "// The U elements of a lane from k on, of each of a warp's rows: what stands in memory, and what becomes of it\n"
    "template <class P, int FORM> struct quant_chunk {\n"
    "  enum { R = P::R, W = R * P::MATS, U = P::U };\n"
    "  float v[W][U], scale[W];\n"
    "  M void load(const quant_from<P, FORM> &from, int k) {\n"
    "    const vector_quant_of<P> &m = *from.m;\n"
    "    const int row = from.row;\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      const int at = row + r % R < m.n ? row + r % R : m.n - 1;\n"
    "      quant<P>::load(m.w[r / R], m.s[r / R], m.z[r / R], at, k, v[r], &scale[r]);\n"
    "    }\n"
    "  }\n"
    "  M void take(const typename P::T *x, int k, float *sum) const {\n"
    "    typename P::T own[U];\n"
    "    float wide[U];\n"
    "    vload<U>(own, x + k);\n"
    "    UNROLL for (int i = 0; i < U; i++) wide[i] = get(own[i]);\n"
    "    UNROLL for (int r = 0; r < W; r++) sum[r] = gn_fma(quant_dot<U>(v[r], wide), scale[r], sum[r]);\n"
    "  }\n"
    "};\n"
    "// 16 bytes of each row: they are taken apart when they are used. Lanes begin with different eights, so that "
    "they read\n"
    "// other banks of the row's shared memory; halves of the sums of eights are the same from wherever one begins.\n"
    "template <class P> struct quant_chunk<P, 1> {\n"
    "  enum { R = P::R, W = R * P::MATS, U = P::U, N = sizeof(typename P::T) == 2 ? U / 8 : 1, E = U / N };\n"
    "  uint4 q[W];\n"
    "  typename P::SCALE s[W];\n"
    "  typename P::Z z[W];\n"
    "  M void load(const quant_from<P, 1> &from, int k) {\n"
    "    const vector_quant_of<P> &m = *from.m;\n"
    "    const int row = from.row;\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      const int at = row + r % R;\n"
    "      q[r] = zeros();\n"
    "      if (at >= m.n) continue;\n"
    "      q[r] = stream(m.w[r / R] + (i64)at * P::WS0 + (P::F == 65 ? k / 2 : k));\n"
    "      s[r] = m.s[r / R][at / P::ROWS * P::SS0 + k / P::GROUP * P::SS1];\n"
    "      if (P::HAS_Z) z[r] = m.z[r / R][at / P::ROWS * P::ZS0 + k / P::GROUP * P::ZS1];\n"
    "    }\n"
    "  }\n"
    "  M void take(const typename P::T *x, int k, float *sum) const {\n"
    "    const int turn = N > 1 ? (int)(threadIdx.x & 31) / (8 / N) % N : 0;\n"
    "    float p[W][N];\n"
    "    u32 w[W][4];\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      w[r][0] = q[r].x, w[r][1] = q[r].y, w[r][2] = q[r].z, w[r][3] = q[r].w;\n"
    "      UNROLL for (int by = N / 2; by > 0; by /= 2) {\n"
    "        u32 from[4];\n"
    "        UNROLL for (int i = 0; i < 4; i++) from[i] = w[r][i];\n"
    "        UNROLL for (int i = 0; i < 4; i++) w[r][i] = turn & by ? from[(i + by * 4 / N) % 4] : from[i];\n"
    "      }\n"
    "    }\n"
    "    UNROLL for (int j = 0; j < N; j++) {\n"
    "      float wide[E], v[E];\n"
    "      UNROLL for (int e = 0; e < E; e += P::V) parts_of(*(const uint4 *)(x + k + (j + turn) % N * E + e), wide + "
    "e, "
    "typename P::T());\n"
    "      UNROLL for (int r = 0; r < W; r++) {\n"
    "        UNROLL for (int e = 0; e < E; e += 8) quant<P>::eight(w[r] + j * 4 / N + e * 4 / U, P::HAS_Z ? "
    "(float)get(z[r]) : P::F == 65 ? 8.f : 0.f, v + e);\n"
    "        p[r][j] = quant_dot<E>(v, wide);\n"
    "      }\n"
    "    }\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      UNROLL for (int h = N / 2; h > 0; h /= 2) UNROLL for (int j = 0; j < h; j++) p[r][j] += p[r][j + h];\n"
    "      sum[r] = gn_fma(p[r][0], get(s[r]), sum[r]);\n"
    "    }\n"
    "  }\n"
    "};\n"
    "template <class P, int FORM> struct quant_row { static M void stand(uint4 *, const typename P::T *) {} };\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "// The block's row, as the pairs of the weights stand: it is there, or comes from `a`. Of 32 lanes' parts first "
    "all the first\n"
    "// eights, then the second ones: so lanes read different banks.\n"
    "template <class P> struct quant_row<P, 2> {\n"
    "  enum { MADE = P::NORM || P::ROWS_WITHIN, ALL = P::k / 8, EIGHTS = P::U / 8, OWN = (ALL + 255) / 256 };\n"
    "  // of a lane's eight e, from eight `first` on\n"
    "  static M int place(int first, int e, int lane) { return first + e * 32 + lane; }\n"
    "  static M void stand(uint4 *row, const typename P::T *a) {\n"
    "    uint4 own[OWN];\n"
    "    UNROLL for (int c = 0; c < OWN; c++) {\n"
    "      const int i = c * 256 + threadIdx.x;\n"
    "      if (ALL % 256 == 0 || i < ALL) own[c] = quant_pairs<P>::of_row(MADE ? row[i] : eight_of<P>(a, i * 8));\n"
    "    }\n"
    "    if (MADE) __syncthreads();\n"
    "    UNROLL for (int c = 0; c < OWN; c++) {\n"
    "      const int i = c * 256 + threadIdx.x, in = i % (32 * EIGHTS);\n"
    "      if (ALL % 256 == 0 || i < ALL) row[place(i - in, in % EIGHTS, in / EIGHTS)] = own[c];\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "};\n"
    "// The same on tensor cores. Four lanes are a row of the left side, so a row of the weight is eight of them, each "
    "with its own\n"
    "// part of k; x stands as columns, a part of k in each: of the products what stands on the diagonal counts, one "
    "for each eighth.\n"
    "// Two rows of the weight go at once.\n"
    "template <class P> struct quant_chunk<P, 2> {\n"
    "  enum { R = P::R, W = R * P::MATS, U = P::U, PAIRS = quant_pairs<P>::PAIRS, WITHIN = vector_within<P>::YES };\n"
    "  typedef typename P::T T;\n"
    "  uint4 q[W];\n"
    "  typename P::SCALE s[W];\n"
    "  typename P::Z z[W];\n"
    "  M void load(const quant_from<P, 2> &from, int k) {\n"
    "    const int lane = threadIdx.x & 31, at = (k - lane * U) / (P::F == 65 ? 2 : 1), group = from.group(k);\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      q[r] = bytes(from.q[r], at);\n"
    "      s[r] = from.s[r][group * P::SS1];\n"
    "      if (P::HAS_Z) z[r] = from.z[r][group * P::ZS1];\n"
    "    }\n"
    "  }\n"
    "  static M uint4 bytes(const u8 *row, int at) {\n"
    "    if (P::WIDE) return stream(row + at);\n"
    "    u32 w[4];\n"
    "    UNROLL for (int i = 0; i < 4; i++) {\n"
    "      w[i] = 0;\n"
    "      UNROLL for (int b = 0; b < 4; b++) w[i] |= (u32)row[(at + 4 * i + b) * P::WS1] << 8 * b;\n"
    "    }\n"
    "    return four_words(w);\n"
    "  }\n"
    "  // Eight e of the lane's elements of x, which begin at k, as pairs\n"
    "  static M uint4 row(const T *x, int k, int e) {\n"
    "    const int lane = threadIdx.x & 31;\n"
    "    return WITHIN ? ((const uint4 *)x)[quant_row<P, 2>::place((k - lane * U) / 8, e, lane)] : "
    "quant_pairs<P>::of_row(eight_of<P>(x, k + e * 8));\n"
    "  }\n"
    "  M void take(const T *x, int k, float *sum) const {\n"
    "    const int lane = threadIdx.x & 31, eighth = lane / 4;\n"
    "    const bool some = P::K % (32 * U) == 0 || k < P::K, mine = lane % 4 == eighth / 2;\n"
    "    const T tag = T();\n"
    "    enum { CHAINS = PAIRS / 2 };                                    // of int4 two sums, so that none waits for "
    "long\n"
    "    float c[W / 2][CHAINS][4];\n"
    "    u32 less[W];\n"
    "    UNROLL for (int w = 0; w < W; w++) {\n"
    "      const float y = P::HAS_Z && some ? (float)get(z[w]) : 0.f;\n"
    "      less[w] = P::HAS_Z ? pair_to(y, y, tag) : 0u;\n"
    "      if (w % 2 < CHAINS) UNROLL for (int i = 0; i < 4; i++) c[w / 2][w % 2 % CHAINS][i] = 0.f;\n"
    "    }\n"
    "    UNROLL for (int e = 0; e < U; e += 8) {\n"
    "      const uint4 b = some ? row(x, k, e / 8) : zeros();\n"
    "      UNROLL for (int w = 0; w < W; w += 2) UNROLL for (int p = 0; p < 4; p += PAIRS) {\n"
    "        const int j = (e / 2 + p) / PAIRS;\n"
    "        u32 one[PAIRS], two[PAIRS];\n"
    "        quant_pairs<P>::of(some ? word_of(q[w], j) : 0u, less[w], one);\n"
    "        quant_pairs<P>::of(some ? word_of(q[w + 1], j) : 0u, less[w + 1], two);\n"
    "        UNROLL for (int h = 0; h < PAIRS; h += 2) {\n"
    "          const u32 a[4] = { one[h], two[h], one[h + 1], two[h + 1] };\n"
    "          mma(c[w / 2][(e / 2 + p + h) / 2 % CHAINS], a, word_of(b, p + h), word_of(b, p + h + 1), tag);\n"
    "        }\n"
    "      }\n"
    "    }\n"
    "    UNROLL for (int w = 0; w < W; w++) {\n"
    "      const int at = w % 2 * 2;\n"
    "      float y = eighth & 1 ? c[w / 2][0][at + 1] : c[w / 2][0][at];\n"
    "      if (CHAINS > 1) y += eighth & 1 ? c[w / 2][CHAINS - 1][at + 1] : c[w / 2][CHAINS - 1][at];\n"
    "      if (mine && some) sum[w] = gn_fma(y, get(s[w]), sum[w]);\n"
    "    }\n"
    "  }\n"
    "};\n"
    "#endif\n"
    "// A row (k) by a quantised weight whose rows lie as files have them: R of them at a time to each warp, of "
    "each matrix.\n"
    "// P: of quant, and TENSOR, XV (x is read 16 bytes at once), XK, k, V, S (1), R, MATS, EARLY, NORM, HAS_GAIN, "
    "HAS_SHIFT, ROWS_WITHIN, eps(), BEST, "
    "LOADS\n"
    "template <class P, class N, class E> M void vector_quant(const typename P::T *a, const N &norm, const "
    "vector_quant_of<P> &m, const typename P::T *gain, const typename P::T *shift, E &e, best_of<float, false> "
    "*parts, u32 *done, i64 *out) {\n"
    "  typedef typename P::T T;\n"
    "  enum { U = P::U, V = P::V, R = P::R, W = R * P::MATS, FORM = P::TENSOR ? 2 : P::F >= 64 && P::WIDE, CH = (P::K "
    "+ 32 * U - "
    "1) / (32 * U), MOST = FORM ? P::LOADS / W : 1, TURNS = (CH + MOST - 1) / MOST, G = (CH + TURNS - 1) / TURNS, "
    "WITHIN = vector_within<P>::YES };\n"
    "  __shared__ uint4 row_[WITHIN ? CH * 32 * U / V : 1];\n"
    "  T *const in = (T *)row_;\n"
    "  const int lane = threadIdx.x & 31, step = m.blocks * 8 * R;\n"
    "  int row = (m.block * 8 + (int)(threadIdx.x >> 5)) * R;\n"
    "  quant_chunk<P, FORM> chunk[G];\n"
    "  best_of<float, false> best;\n"
    "  best.init();\n"
    "  let_next_start();\n"
    "  if (!P::EARLY) await_previous();\n"
    "  quant_from<P, FORM> from;\n"
    "  from.set(m, row);\n"
    "  UNROLL for (int c = 0; c < G; c++) if (row < m.n && (c * 32 + lane) * U < P::K) chunk[c].load(from, (c * 32 + "
    "lane) * U);\n"
    "  if (lane < R && row + lane < m.n) e.early(row + lane);\n"
    "  if (WITHIN && (FORM != 2 || P::NORM || P::ROWS_WITHIN)) vector_row<P>(a, norm, gain, shift, in);\n"
    "  else await_previous();\n"
    "  if (WITHIN) quant_row<P, FORM>::stand(row_, a);\n"
    "  if (lane < R && row + lane < m.n) e.load(row + lane);\n"
    "  while (row < m.n) {\n"
    "    const int at = row;\n"
    "    float sum[W], y[2] = { 0.f, 0.f };\n"
    "    UNROLL for (int r = 0; r < W; r++) sum[r] = 0.f;\n"
    "    for (int turn = 0; turn < TURNS; turn++) {\n"
    "      const int next = turn + 1 < TURNS ? (turn + 1) * G : 0;\n"
    "      if (!next) {\n"
    "        row += step;\n"
    "        if (row < m.n) from.set(m, row);\n"
    "      }\n"
    "      UNROLL for (int c = 0; c < G; c++) {\n"
    "        const int k = ((turn * G + c) * 32 + lane) * U, then = ((next + c) * 32 + lane) * U;\n"
    "        if (P::K % (32 * U * G) == 0 || (P::TENSOR ? (turn * G + c) * 32 * U < P::K : k < P::K)) "
    "chunk[c].take(WITHIN ? (const T *)in : a, k, sum);\n"
    "        if (row < m.n && (P::K % (32 * U * G) == 0 || then < P::K)) chunk[c].load(from, then);\n"
    "      }\n"
    "    }\n"
    "    UNROLL for (int r = 0; r < W; r++) {\n"
    "      UNROLL for (int bit = 16; bit > 0; bit /= 2) sum[r] += exchange(sum[r], bit);\n"
    "      if (lane == r % R) y[r / R] = sum[r];\n"
    "    }\n"
    "    if (lane < R && at + lane < m.n) { if (P::BEST) best.take(e.value(y[0]), at + lane); else e.end(at + "
    "lane, y[0], y[1]); }\n"
    "    if (lane < R && row + lane < m.n) { e.early(row + lane); e.load(row + lane); }\n"
    "  }\n"
    "  if (P::BEST) vector_best<P>(best, parts, done, out);\n"
    "}\n"
    "template <class T> M float exp_for(float x) { return sizeof(T) == 2 ? exp_short(x) : expf(x); }\n"
    "// What a part's sums are worth beside the maximum of all parts\n"
    "template <class P> M float share_of(float top, float sum, float all) { "
    "return P::WRITTEN ? top == all ? 1.f : exp_for<typename P::T>(top - all) : sum == 0.f ? 0.f : "
    "exp_for<typename P::T>(top - all); }\n"
    "// One query of each head against a cache. A block has R heads that share their keys, PARTS blocks share "
    "these: the blocks of a cluster join their sums in its first block, and JOINS clusters in the last of them to "
    "end, by way of `parts` and `done` (0 before and after).\n"
    "// The row that this step appends comes from rows_k and rows_v, whoever reads it; one block writes it into "
    "the cache, what stood there into saved_k and saved_v.\n"
    "// Keys are on their way to shared memory, U * STAGES of them to a thread, before the kernels before this one "
    "have ended. A thread reads what it has copied by itself, and has its own maximum: lanes that share a key join "
    "their sums of it, others theirs at the end.\n"
    "// P: T, L (position), N (value(): length), X (loop), WRITTEN as for attention, H, G, S, DK, V elements of 16 "
    "bytes, LANES to a key, R, U, STAGES, PARTS, CLUSTER, JOINS, strides QB QH, KB KH KS, VB VH VS, RKB RKH, RVB "
    "RVH, LENGTH, CAUSAL, APPEND, EARLY, scale(); MADE_Q, MADE_K: the query, the appended row of keys is what "
    "`tq`, `tk` make of it (1: a warp, 2: all threads), its first row Q0, K0\n"
    "struct one_as_it_lies { template <class T> M void run(T *, T *, i64, int, int) const {} };\n"
    "// 16 bytes that each of 256 threads copies for itself, in slots\n"
    "struct one_ring {\n"
    "#if defined(GN_HOST) || __CUDA_ARCH__ >= 800\n"
    "  u32 to;\n"
    "  const uint4 *from;\n"
    "  M void init(unsigned char *memory) { to = shared_address(memory) + threadIdx.x * 16; from = (const uint4 "
    "*)memory + threadIdx.x; }\n"
    "  M void copy(int slot, const void *p, bool in) const { copy16(to + slot * 4096, p, in ? 16 : 0); }\n"
    "  M void commit() const { copy_commit(); }\n"
    "  template <int N> M void wait() const { copy_wait<N>(); }\n"
    "#else\n"
    "  uint4 *from;\n"
    "  M void init(unsigned char *memory) { from = (uint4 *)memory + threadIdx.x; }\n"
    "  M void copy(int slot, const void *p, bool in) const { from[slot * 256] = in ? *(const uint4 *)p : zeros(); "
    "}\n"
    "  M void commit() const {}\n"
    "  template <int N> M void wait() const {}\n"
    "#endif\n"
    "  M uint4 at(int slot) const { return from[slot * 256]; }\n"
    "};\n"
    "// What one thread has of R heads: queries, sums, and the largest score so far with the weights' sum\n"
    "template <class P> struct one_sums {\n"
    "  enum { V = P::V, R = P::R, LANES = P::LANES };\n"
    "  float x[R][V], o[R][V], top[R], sum[R];\n"
    "  typename P::X by[R];\n"
    "  // U keys from j on, `step` apart, of which those below `end` count\n"
    "  template <int U> M void take(const uint4 *k, const uint4 *v, int j, int step, int end) {\n"
    "    const typename P::T tag = typename P::T();\n"
    "    UNROLL for (int r = 0; r < R; r++) {\n"
    "      float s[U], now = top[r];\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        s[u] = 0.f;\n"
    "        UNROLL for (int i = 0; i < V; i++) s[u] = gn_fma(x[r][i], part_of(k[u], i, tag), s[u]);\n"
    "        UNROLL for (int l = LANES / 2; l > 0; l /= 2) s[u] += exchange(s[u], l);\n"
    "        if (j + u * step >= end) s[u] = gn_f32(0xff800000u); else s[u] = by[r].value(s[u], 0, j + u * step);\n"
    "        now = max_nan(now, s[u]);\n"
    "      }\n"
    "      const bool none = now == gn_f32(0xff800000u);\n"
    "      const float keep = none || top[r] == now ? 1.f : exp_for<typename P::T>(top[r] - now);\n"
    "      sum[r] *= keep;\n"
    "      UNROLL for (int i = 0; i < V; i++) o[r][i] *= keep;\n"
    "      UNROLL for (int u = 0; u < U; u++) {\n"
    "        const float p = none || j + u * step >= end ? 0.f : exp_for<typename P::T>(s[u] - now);\n"
    "        sum[r] += p;\n"
    "        UNROLL for (int i = 0; i < V; i++) o[r][i] = gn_fma(p, part_of(v[u], i, tag), o[r][i]);\n"
    "      }\n"
    "      top[r] = now;\n"
    "    }\n"
    "  }\n"
    "  // The lanes of a warp that had other keys\n"
    "  M void join() {\n"
    "    UNROLL for (int l = LANES; l < 32; l *= 2) UNROLL for (int r = 0; r < R; r++) {\n"
    "      const float all = max_nan(top[r], exchange(top[r], l)), f = share_of<P>(top[r], sum[r], all);\n"
    "      sum[r] = sum[r] * f;\n"
    "      sum[r] += exchange(sum[r], l);\n"
    "      UNROLL for (int i = 0; i < V; i++) { o[r][i] *= f; o[r][i] += exchange(o[r][i], l); }\n"
    "      top[r] = all;\n"
    "    }\n"
    "  }\n"
    "};\n"
    "// N parts of element c of head r\n"
    "template <class P, int N> struct one_join {\n"
    "  float all, num, den;\n"
    "  M void init(const float (*part)[P::R][P::DK + 2], int r, int c) {\n"
    "    all = gn_f32(0xff800000u);\n"
    "    num = den = 0.f;\n"
    "    UNROLL for (int w = 0; w < N; w++) all = max_nan(all, part[w][r][P::DK]);\n"
    "    UNROLL for (int w = 0; w < N; w++) { const float f = share_of<P>(part[w][r][P::DK], part[w][r][P::DK + "
    "1], all); num = gn_fma(f, part[w][r][c], num); den = gn_fma(f, part[w][r][P::DK + 1], den); }\n"
    "  }\n"
    "  // Those of other blocks: past the L1, which may hold what stood there before\n"
    "  M void init(const volatile float *part, int c) {\n"
    "    float top[N], sum[N], o[N];\n"
    "    UNROLL for (int w = 0; w < N; w++) { top[w] = part[w * (P::DK + 2)]; sum[w] = part[w * (P::DK + 2) + 1]; "
    "o[w] = part[w * (P::DK + 2) + 2 + c]; }\n"
    "    all = gn_f32(0xff800000u);\n"
    "    num = den = 0.f;\n"
    "    UNROLL for (int w = 0; w < N; w++) all = max_nan(all, top[w]);\n"
    "    UNROLL for (int w = 0; w < N; w++) { const float f = share_of<P>(top[w], sum[w], all); num = gn_fma(f, "
    "o[w], num); den = gn_fma(f, sum[w], den); }\n"
    "  }\n"
    "  M void store(typename P::T *out) const { put(*out, P::WRITTEN || den != 0.f ? num / den : 0.f); }\n"
    "  M void leave(float *part, int c) const {\n"
    "    part[2 + c] = num;\n"
    "    if (c == 0) { part[0] = all; part[1] = den; }\n"
    "  }\n"
    "};\n"
    "template <class P, class FQ, class FK> M void attention_one(const FQ &tq, const FK &tk, const typename P::T "
    "*q, typename P::T *k, typename P::T *v, const typename P::T *rows_k, const typename P::T *rows_v, const "
    "typename P::L *pos, const typename P::N &length, typename P::X x_, typename P::T *saved_k, typename P::T "
    "*saved_v, typename P::T *out, float *parts, u32 *done, u32 *err, u32 node, u32 append, u32 flag_k, u32 "
    "flag_v) {\n"
    "  typedef typename P::T T;\n"
    "  enum { V = P::V, D_ = P::DK, R = P::R, WIDE = (D_ + V - 1) / V, LANES = P::LANES, KEYS = 32 / LANES, STEP = "
    "8 * KEYS, U = P::U, STAGES = P::STAGES };\n"
    "  DYNAMIC_SHARED(memory);\n"
    "  __shared__ uint4 made_q[P::MADE_Q ? 2 * R : 1][P::MADE_Q ? WIDE : 1], made_k[P::MADE_K ? 2 : 1][P::MADE_K ? "
    "WIDE : 1];\n"
    "  __shared__ float part[8][R][D_ + 2], joined[P::CLUSTER][R][D_ + 2];\n"
    "  const float least = gn_f32(0xff800000u);\n"
    "  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, sub = lane % LANES, key = warp * KEYS + lane / "
    "LANES, mine = (int)(blockIdx.x % P::PARTS), rank = mine % P::CLUSTER;\n"
    "  const i64 at = blockIdx.x / P::PARTS * R, h = at % P::H, b = at / P::H, g = h / (P::H / P::G);\n"
    "  const bool within = LANES == WIDE || sub < WIDE;                   // of a head of other sizes lanes stay "
    "idle\n"
    "  if (P::NEXT == 0) let_next_start();\n"
    "  if (P::CLUSTER > 1) cluster_arrive();\n"
    "  if (!P::EARLY) await_previous();\n"
    "  i64 said = P::S, at_said = -1;\n"
    "  if (P::LENGTH) said = length.value();\n"
    "  const bool bad = said < P::CAUSAL || said > P::S;\n"
    "  if (P::APPEND) at_said = get(*pos);\n"
    "  const bool outside = P::APPEND && (at_said < 0 || at_said >= P::S);\n"
    "  const int n = bad ? 0 : (int)said, place = outside ? -1 : (int)at_said;\n"
    "  typedef seen_by<typename P::X> by;\n"
    "  const int past = by::WINDOW > 0 && n > by::WINDOW ? (int)(n - by::WINDOW) : 0, span = (n - past + P::PARTS "
    "- 1) / P::PARTS, begin = past + mine * span, end = begin + span < n ? begin + span : n;\n"
    "  T *kp = k + b * P::KB + g * P::KH + sub * V, *vp = v + b * P::VB + g * P::VH + sub * V;\n"
    "  one_ring ring;\n"
    "  ring.init(memory);\n"
    "#define ONE_LOAD(i)\\\n"
    "  do {\\\n"
    "    const int i_ = (i);\\\n"
    "    if (begin + i_ * (U * STEP) < end) UNROLL for (int u = 0; u < U; u++) {\\\n"
    "      const int j = begin + (i_ * U + u) * STEP + key, slot = (i_ % STAGES * U + u) * 2;\\\n"
    "      const bool in_ = within && j < end && !(P::APPEND && j == place);\\\n"
    "      ring.copy(slot, in_ ? kp + (P::SMALL ? (i64)(j * (int)P::KS) : j * P::KS) : k, in_);\\\n"
    "      ring.copy(slot + 1, in_ ? vp + (P::SMALL ? (i64)(j * (int)P::VS) : j * P::VS) : v, in_);\\\n"
    "    }\\\n"
    "    ring.commit();\\\n"
    "  } while (0)\n"
    "  UNROLL for (int i = 0; i < STAGES - 1; i++) ONE_LOAD(i);\n"
    "  uint4 nk = zeros(), nv = zeros(), old_k = zeros(), old_v = zeros(), raw[R];\n"
    "  const bool writes = P::APPEND && !outside && mine == 0 && h % (P::H / P::G) == 0 && warp == 7 && lane < "
    "LANES && within;\n"
    "  if (writes) { old_k = *(const uint4 *)(kp + (i64)place * P::KS); old_v = *(const uint4 *)(vp + (i64)place * "
    "P::VS); }\n"
    "  const T tag = T();\n"
    "  one_sums<P> mine_;\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    mine_.by[r] = x_;\n"
    "    mine_.by[r].begin(at + r);\n"
    "    mine_.top[r] = mine == 0 && t < LANES ? by::sink(mine_.by[r]) : least;\n"
    "    mine_.sum[r] = by::SINKS && mine_.top[r] != least ? 1.f : 0.f;\n"
    "    raw[r] = zeros();\n"
    "  }\n"
    "  if (P::CLUSTER > 1) cluster_wait();\n"
    "  if (P::NEXT == 1) let_next_start();\n"
    "  await_previous();\n"
    "  if (P::NEXT == 2) let_next_start();\n"
    "  if (within) {\n"
    "    if (P::APPEND) nv = *(const uint4 *)(rows_v + b * P::RVB + g * P::RVH + sub * V);\n"
    "    if (P::APPEND && !P::MADE_K) nk = *(const uint4 *)(rows_k + b * P::RKB + g * P::RKH + sub * V);\n"
    "    UNROLL for (int r = 0; r < R; r++) if (!P::MADE_Q) raw[r] = *(const uint4 *)(q + b * P::QB + (h + r) * "
    "P::QH + sub * V);\n"
    "  }\n"
    "  if (P::MADE_Q == 2) for (int r = 0; r < R; r++) { if (r) __syncthreads(); tq.run((T *)made_q[r], (T "
    "*)made_q[R + r], (b * P::QB + (h + r) * P::QH) / D_ + P::Q0, t, 256); }\n"
    "  if (P::MADE_K == 2) tk.run((T *)made_k[0], (T *)made_k[1], (b * P::RKB + g * P::RKH) / D_ + P::K0, t, "
    "256);\n"
    "  if (P::MADE_Q == 1 || P::MADE_K == 1) for (int r = warp; r <= R; r += 8) {\n"
    "    if (P::MADE_Q == 1 && r < R) tq.run((T *)made_q[r], (T *)made_q[R + r], (b * P::QB + (h + r) * P::QH) / "
    "D_ + P::Q0, lane, 32);\n"
    "    if (P::MADE_K == 1 && r == R) tk.run((T *)made_k[0], (T *)made_k[1], (b * P::RKB + g * P::RKH) / D_ + "
    "P::K0, lane, 32);\n"
    "  }\n"
    "  if (P::MADE_Q || P::MADE_K) __syncthreads();\n"
    "  if (within && P::APPEND && P::MADE_K) nk = made_k[P::MADE_K ? 1 : 0][sub];\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    if (within && P::MADE_Q) raw[r] = made_q[P::MADE_Q ? R + r : 0][sub];\n"
    "    UNROLL for (int i = 0; i < V; i++) { mine_.x[r][i] = part_of(raw[r], i, tag) * (float)P::scale(); "
    "mine_.o[r][i] = 0.f; }\n"
    "  }\n"
    "  for (int i = 0; begin + i * (U * STEP) < end; i++) {\n"
    "    uint4 kr[U], vr[U];\n"
    "    const int j = begin + i * (U * STEP) + key;\n"
    "    ring.template wait<STAGES - 2>();\n"
    "    ONE_LOAD(i + STAGES - 1);                                         // where the thread read one step ago\n"
    "    UNROLL for (int u = 0; u < U; u++) {\n"
    "      const int slot = (i % STAGES * U + u) * 2;\n"
    "      kr[u] = ring.at(slot);\n"
    "      vr[u] = ring.at(slot + 1);\n"
    "      if (P::APPEND && j + u * STEP == place && place < end) { kr[u] = nk; vr[u] = nv; }\n"
    "    }\n"
    "    mine_.template take<U>(kr, vr, j, STEP, end);\n"
    "  }\n"
    "#undef ONE_LOAD\n"
    "  mine_.join();\n"
    "  UNROLL for (int r = 0; r < R; r++) {\n"
    "    if (lane < LANES && within) UNROLL for (int i = 0; i < V; i++) part[warp][r][sub * V + i] = "
    "mine_.o[r][i];\n"
    "    if (lane == 0) { part[warp][r][D_] = mine_.top[r]; part[warp][r][D_ + 1] = mine_.sum[r]; }\n"
    "  }\n"
    "  if (writes) {\n"
    "    const i64 to = (b * P::G + g) * D_ + sub * V;\n"
    "    *(uint4 *)(saved_k + to) = old_k;\n"
    "    *(uint4 *)(saved_v + to) = old_v;\n"
    "    *(uint4 *)(kp + place * P::KS) = nk;\n"
    "    *(uint4 *)(vp + place * P::VS) = nv;\n"
    "  }\n"
    "  if (blockIdx.x == 0 && t == 0) {\n"
    "    if (P::APPEND && outside) fault(err, OUT_OF_RANGE, append, at_said, P::S);\n"
    "    if (bad) fault(err, OUT_OF_RANGE, node, said, P::S);\n"
    "    if (P::APPEND && !outside) { err[flag_k] = 1; err[flag_v] = 1; }\n"
    "  }\n"
    "  __syncthreads();\n"
    "  if (P::NEXT == 3) let_next_start();\n"
    "  for (int i = t; i < R * D_; i += 256) {\n"
    "    const int r = i / D_, c = i % D_;\n"
    "    one_join<P, 8> all;\n"
    "    all.init(part, r, c);\n"
    "    if (P::PARTS == 1) { all.store(out + (at + r) * D_ + c); continue; }\n"
    "    if (P::CLUSTER == 1) { all.leave(parts + ((at + r) * P::JOINS + mine) * (D_ + 2), c); continue; }\n"
    "    put_first(&joined[rank][r][c], all.num);\n"
    "    if (c == 0) { put_first(&joined[rank][r][D_], all.all); put_first(&joined[rank][r][D_ + 1], all.den); }\n"
    "  }\n"
    "  if (P::PARTS == 1) return;\n"
    "  if (P::CLUSTER > 1) {\n"
    "    cluster_arrive();\n"
    "    cluster_wait();\n"
    "    if (rank) return;\n"
    "    for (int i = t; i < R * D_; i += 256) {\n"
    "      one_join<P, P::CLUSTER> all;\n"
    "      all.init(joined, i / D_, i % D_);\n"
    "      if (P::JOINS == 1) all.store(out + at * D_ + i);\n"
    "      else all.leave(parts + ((at + i / D_) * P::JOINS + mine / P::CLUSTER) * (D_ + 2), i % D_);\n"
    "    }\n"
    "    if (P::JOINS == 1) return;\n"
    "  }\n"
    "  __shared__ u32 before;\n"
    "  __threadfence();\n"
    "  __syncthreads();\n"
    "  if (t == 0) before = atomicAdd(done + blockIdx.x / P::PARTS, 1u);\n"
    "  __syncthreads();\n"
    "  if (before + 1 < P::JOINS) return;\n"
    "  __threadfence();\n"
    "  if (t == 0) done[blockIdx.x / P::PARTS] = 0;\n"
    "  for (int i = t; i < R * D_; i += 256) {\n"
    "    one_join<P, P::JOINS> all;\n"
    "    all.init(parts + (at + i / D_) * P::JOINS * (D_ + 2), i % D_);\n"
    "    all.store(out + at * D_ + i);\n"
    "  }\n"
    "}\n";

/* Nothing in the plan writes it. */
static bool is_constant(const emit *e, uint32_t node) {
    const gn_part_node *n = &e->part->nodes[e->layout->lay[node].base];
    return n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_DATA;
}

static bool is_dense_row(const emit *e, uint32_t node, int64_t n, int64_t align) {
    const gn_view *v = view_of(e, node);
    return gn_view_count(v) == n && gn_view_is_dense(v) && v->offset % align == 0;
}

/* How one row is multiplied. dot: the columns of B are contiguous. */
/* side: threads side by side, of 16 bytes each; loads: 16 bytes that a thread has on their way, of a column where dot
   is; row: bytes of several rows that each block computes for itself */
typedef struct vector_form {
    product p;
    int64_t vector, stride;
    uint32_t splits, columns, side, grid, lanes, loads, row;
    bool dot, quantised;
    bool tensor, wide; /* a quantised weight on tensor cores; x is read 16 bytes at a time */
    quant_form q;
    few_form few; /* of p.m rows, where that is more than one */
} vector_form;

/* Loads of 16 bytes that a thread has on their way where columns lie along memory: 64 of the 128 registers that two
   blocks a processor leave it. On an H200 8 to 24 gave steps of the same time, one block a processor slower ones. */
enum { VECTOR_LOADS = 16 };

/* Where a weight's rows lie says how they are read, not in which order they are summed: all of one shape take this way.
   Zero points from 0 to 255 of bytes from -128 on would leave more than the 8 bits of bf16. */
static bool quant_on_tensor_cores(const emit *e, const quant_form *q, gn_dtype x) {
    return emit_has_tensor_cores(e) && !e->invariant && (x == GN_F16 || x == GN_BF16) && q->format >= GN_QUANT_INT8 &&
           q->scales != GN_NO_NODE && q->unit >= 16 && q->k % q->unit == 0 && q->group % (4 * q->unit) == 0 &&
           q->k <= 65536 && q->n <= 1 << 28 &&
           (q->format != GN_QUANT_INT8 || q->zeros == GN_NO_NODE || view_of(e, q->zeros)->dtype == GN_I8);
}

/* A quantised weight whose groups are read 16 bytes at a time. */
static bool vector_quantised(const emit *e, uint32_t node, int64_t all, vector_form *form) {
    uint32_t xa = input(e, node, 0), bias = bias_of(e, node);
    const gn_view *x = view_of(e, xa), *out = view_of(e, node);
    int64_t n = out->dims[out->rank - 1], k = x->dims[x->rank - 1], blocks = emit_processors(e);
    form->q = quant_of(e, node, 1, 2);
    quant_fit(e, &form->q, n, k);
    quant_lies(e, &form->q);
    form->quantised = true;
    form->vector = 16 / types[x->dtype].bytes;
    form->p = (product){ .m = 1, .n = n, .k = k, .batches = 1 };
    form->splits = 1;
    form->loads = VECTOR_LOADS * 3 / 4; /* a scale and a zero point come with each */
    form->wide = is_dense_row(e, xa, k, 16);
    form->tensor = n > 0 && gn_view_count(out) == n && quant_on_tensor_cores(e, &form->q, x->dtype);
    if (form->tensor) {
        form->columns = 2;
        form->loads = VECTOR_LOADS;
        return true;
    }
    if (n < 1 || gn_view_count(out) != n || n > 1 << 28 || k > 65536 || form->q.unit < 16 || k % form->vector ||
        !form->wide || (bias != GN_NO_NODE && n > 1 && view_of(e, bias)->strides[0] != 1))
        return false;
    int64_t chunks = blocks_for(k, 32 * form->q.unit), most = form->q.wide && form->q.format >= 64 ? 4 : 2;
    form->columns = (uint32_t)(chunks * most > form->loads ? form->loads / chunks : most);
    if (form->columns < 2) form->columns = 2;
    while (form->columns > 1 && 16 * (int64_t)form->columns * blocks > (all ? all : n)) form->columns--;
    return true;
}

/* Of two to eight rows: dense ones, by a matrix that is read 16 bytes at a time. */
static bool vector_few(const emit *e, uint32_t node, vector_form *form) {
    uint32_t xa = input(e, node, 0), xb = input(e, node, 1), bias = bias_of(e, node);
    const matmul x = matmul_of(e, node);
    if (x.moves || !is_of_few_rows(e, &x.shape, x.d) || !is_dense_row(e, xa, x.p.m * x.p.k, 16) ||
        (bias != GN_NO_NODE && x.p.n > 1 && view_of(e, bias)->strides[0] != 1))
        return false;
    form->p = x.p;
    few_choose(e, &form->p, form->p.n, 1, base_offset(e, xa), base_offset(e, xb), &form->few);
    form->dot = form->few.dot;
    form->stride = form->dot ? form->p.bn : form->p.bk;
    return form->few.wide && form->few.wide_x;
}

/* all: columns of all products of the kernel, 0: of this one. They say how many blocks share k; the lanes that sum it,
   and so the bits, are those of the product alone. */
static bool vector_choose(const emit *e, uint32_t node, int64_t all, vector_form *form) {
    uint32_t xa = input(e, node, 0), xb = input(e, node, 1);
    gn_dtype d = view_of(e, xa)->dtype;
    int bytes = types[d].bytes;
    memset(form, 0, sizeof *form);
    if (e->invariant) return false;
    if (node_is(e, node, GN_OP_LINEAR_QUANTIZED)) return vector_quantised(e, node, all, form);
    form->p = product_of(*view_of(e, xa), *view_of(e, xb), view_of(e, node));
    form->vector = 16 / bytes;
    form->dot = form->p.bk == 1 && form->p.bn != 1;
    form->stride = form->dot ? form->p.bn : form->p.bk;
    if (form->p.m > 1) return vector_few(e, node, form);
    if (form->p.m != 1 || form->p.batches != 1 || form->p.n < 1 || form->p.n > 1 << 28 || form->p.k < form->vector ||
        form->p.k > 65536 || (d != GN_F32 && d != GN_F16 && d != GN_BF16))
        return false;
    if (form->p.k % form->vector || form->stride % form->vector || base_offset(e, xb) % 16 ||
        !is_dense_row(e, xa, form->p.k, 16) || (!form->dot && (form->p.bn != 1 || form->p.n % form->vector)))
        return false;
    if (e->part->nodes[node].n_ins > 2 && view_of(e, input(e, node, 2))->strides[0] != 1 && form->p.n > 1) return false;
    int64_t blocks = emit_processors(e);
    product whole = form->p;
    if (all) whole.n = all;
    row_lanes w = row_lanes_of(e, &whole, bytes);
    form->side = (uint32_t)w.side;
    form->splits = form->dot ? 1 : (uint32_t)w.splits;
    form->lanes = (uint32_t)row_lanes_of(e, &form->p, bytes).lanes; /* its own: the order of a sum is by its shape */
    form->loads = form->dot ? VECTOR_LOADS : 2 * VECTOR_LOADS;
    int64_t tiles = blocks_for(form->p.n, form->side * form->vector);
    form->columns = !form->dot ? 32 : blocks_for(whole.n, 8) > 2 * blocks ? 2 : 1;
    int64_t grid = form->dot ? blocks_for(form->p.n, 8 * form->columns) : tiles * form->splits;
    if (form->dot && grid > 2 * blocks) grid = 2 * blocks;
    form->grid = (uint32_t)grid;
    return grid < 0x7fffffff;
}

/* How one query of each head is answered. */
/* heads: of a block, which share their keys; parts: blocks that share these, `cluster` of them as a cluster; each,
   stages: keys that a thread works on at a time, and how often as many it has room for. */
typedef struct one_form {
    attention_form a;
    int64_t heads, parts, cluster;
    int each, stages;
} one_form;

/* A cache of ONE_MANY keys and more is read once for as many heads of a block as share it, up to ONE_HEADS whose sums
   fit its registers and shared memory; of a shorter one, which the L2 cache holds, each head has blocks of its own.
   Blocks of a cluster, which a cache of ONE_MANY keys has none of, since more blocks are resident without: while
   each of a block's lanes has ONE_KEYS keys of a full cache. What shares keys beyond a cluster: each block has
   ONE_LONG, which outweighs that they join their sums through memory (on GPUs without clusters ONE_KEYS a lane, twice
   as many with several heads). */
enum { ONE_HEADS = 4, ONE_WIDTH = 512, ONE_MANY = 4096, ONE_CLUSTER = 8, ONE_PARTS = 64, ONE_KEYS = 4, ONE_LONG = 512 };

/* Lanes that share a key, of 16 bytes each. */
static int one_lanes(const attention_form *a) {
    int lanes = 1, bytes = (int)a->q.dims[3] * types[a->q.dtype].bytes;
    while (lanes * 16 < bytes) lanes *= 2;
    return lanes;
}

/* By shapes alone, so that the order of addition is. No more blocks are made than run at once. */
static void one_divide(const emit *e, one_form *f, int64_t heads) {
    const attention_form *a = &f->a;
    bool clusters = emit_has_clusters(e);
    int64_t keys = keys_of(a), shared = a->dims[1] / a->k.dims[1], blocks = emit_processors(e);
    bool many = keys >= ONE_MANY;
    f->heads = 1;
    for (int64_t r = 2; r <= ONE_HEADS && many; r++)
        if (shared % r == 0 && r * a->q.dims[3] <= ONE_WIDTH) f->heads = r;
    heads /= f->heads;
    int64_t least = 256 / one_lanes(a) * (f->heads > 1 ? 2 * ONE_KEYS : ONE_KEYS);
    for (f->cluster = 1; clusters && !many && f->cluster < ONE_CLUSTER && keys >= f->cluster * 2 * least;
         f->cluster *= 2)
        if (heads * f->cluster * 2 > sgemm_slots(e, (int)f->cluster * 2)) break;
    if (clusters) blocks = sgemm_slots(e, (int)f->cluster), least = ONE_LONG;
    f->parts = f->cluster;
    while (f->parts < ONE_PARTS && heads * f->parts * 2 <= blocks && keys >= f->parts * 2 * least) f->parts *= 2;
    f->each = f->heads == 1 ? 4 : 2;
    bool wide = e->device->arch < 120; /* those from 12.0 on have 99 KiB of shared memory a block, not 227 */
    f->stages = f->each == 2 || (clusters && wide && heads * f->parts <= blocks) ? 4 : 2;
    if (!emit_has_async_copies(e)) f->stages = 1;
}

static bool one_choose(const emit *e, const attention_form *a, one_form *f) {
    gn_dtype d = a->q.dtype;
    int64_t dim = a->q.dims[3], heads = a->dims[0] * a->dims[1];
    f->a = *a;
    if (e->invariant || a->dims[2] != 1 || a->masked || a->empty || (d != GN_F32 && d != GN_F16 && d != GN_BF16) ||
        dim < 16 || dim > 256 || dim * types[d].bytes > 512 || dim * types[d].bytes % 16)
        return false;
    if (a->dims[3] > 1 << 24 || heads > 1 << 20) return false;
    if (a->k.dims[3] != dim || a->v.dims[3] != dim) return false;
    attention_moves(&f->a, false);
    if (a->written && (f->a.moved[0] || f->a.moved[1] || f->a.moved[2])) return false;
    one_divide(e, f, heads);
    return true;
}

/* What the loop behind a product reads beside it: members of the struct, and the text that loads them. */
static void put_ending_loads(emit *e, loop *l, const vector_part *part, const char *prefix, text *t, text *members,
                             text *loads) {
    const gn_kernel_step *s = &e->layout->steps[part->loop - 1];
    l->step = s;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *load = &e->layout->loads[s->load + i];
        char name[40];
        snprintf(l->names[load->reg], sizeof l->names[0], load->constant ? "c%u" : "x%u", i);
        if (load->constant) continue;
        for (int q = 0; q < 2; q++)
            if (part->product[q] && load->base == e->layout->steps[part->product[q] - 1].node)
                snprintf(l->names[load->reg], sizeof l->names[0], q ? "z" : "y");
        if (l->names[load->reg][0] != 'x') continue;
        snprintf(name, sizeof name, "%sa%u", prefix, i);
        emit_pointer(e, types[load->dtype].name, true, name, (param){ PARAM_NODE, load->base, load->view.offset });
        put(t, "  const %s *a%u;\n", types[load->dtype].name, i);
        put(members, "%s, ", name);
        put(loads, " x%u = get(a%u[", i, i);
        put_offset(loads, &load->view, "i", is_small(&load->view));
        put(loads, "]);");
    }
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *load = &e->layout->loads[s->load + i];
        if (!load->constant && l->names[load->reg][0] == 'x') put(t, "  %s x%u;\n", types[load->dtype].compute, i);
    }
}

/* The statements of the loop, from the product's `y` and the second one's `z` on. */
static void put_ending_loop(emit *e, loop *l, text *t) {
    const gn_kernel_step *s = l->step;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *load = &e->layout->loads[s->load + i];
        if (load->constant)
            put(t, "    const %s c%u = cast_to<%s>::of(gn_f64(0x%llxull));\n", types[load->dtype].compute, i,
                types[load->dtype].name, (unsigned long long)f64_word(load->value));
    }
    l->label[0] = 0;
    l->stored = true;
    for (uint32_t i = 0; i < s->n_instrs; i++) loop_instr(e, l, i);
    if (e->body.n) text_add(t, e->body.s, e->body.n);
    e->body.n = 0;
}

/* What becomes of one element: the struct `@_<prefix>`, from the products' biases and the loop that takes them in;
   members: what it is made of. */
static void put_ending(emit *e, const vector_part *part, const char *prefix, text *t, text *members) {
    static const char *const biases[] = { "bias", "other_bias" };
    uint32_t node = e->layout->steps[part->product[0] - 1].node;
    const gn_kernel_step *s = part->loop ? &e->layout->steps[part->loop - 1] : NULL;
    const gn_view *out = view_of(e, s ? s->node : node);
    const char *type = types[view_of(e, node)->dtype].name;
    loop *l = (loop *)alloc_zero(sizeof *l);
    text loads = { 0 }, early = { 0 };
    char name[40];
    if (!l) {
        e->failed = true;
        return;
    }
    put(t, "struct @_%s {\n", prefix);
    for (int q = 0; q < 2; q++) {
        uint32_t bias = part->product[q] ? bias_of(e, e->layout->steps[part->product[q] - 1].node) : GN_NO_NODE;
        if (bias == GN_NO_NODE) put(&early, " b%d = 0.f;", q);
        else if (view_of(e, bias)->strides[0] == 1) put(&early, " b%d = get(%s[i]);", q, biases[q]);
        else put(&early, " b%d = get(%s[i * %lldll]);", q, biases[q], (long long)view_of(e, bias)->strides[0]);
        if (bias == GN_NO_NODE) continue;
        snprintf(name, sizeof name, "%s%s", prefix, biases[q]);
        emit_node(e, bias, type, true, name);
        put(t, "  const %s *%s;\n", type, biases[q]);
        put(members, "%s, ", name);
    }
    if (!part->best) {
        snprintf(name, sizeof name, "%so", prefix);
        emit_node(e, s ? s->node : node, types[out->dtype].name, false, name);
        put(t, "  %s *o;\n", types[out->dtype].name);
        put(members, "%s, ", name);
    }
    if (s) put_ending_loads(e, l, part, prefix, t, members, &loads);
    put(t, "  float b0, b1;\n  M void early(int i) {%s }\n  M void load(int i) {%s }\n", early.s ? early.s : "",
        loads.s ? loads.s : "");
    put(t, "  M float value(float y) const { return cast_to<%s>::of(y + b0); }\n", type);
    if (!part->best) {
        put(t,
            s ? "  M void end(int i, float y, float z) const {\n    y = value(y);\n    z = cast_to<%s>::of(z + b1);\n"
              : "  M void end(int i, float y, float) const {\n    y = y + b0;\n",
            type);
        if (s) put_ending_loop(e, l, t);
        put(t, "    put(o[i], %s);\n  }\n", s ? l->names[s->out] : "y");
    }
    put(t, part->best ? "  M void end(int, float, float) const {}\n};\n" : "};\n");
    if (loads.failed || early.failed) e->failed = true;
    text_free(&loads);
    text_free(&early);
    gn_free(l);
}

/* The endings of all parts in one: a block has one of them. */
static void put_endings(emit *e, const vector_group *g, text *values) {
    text *t = &e->types;
    char prefix[16];
    put(values, "{ ");
    for (uint32_t i = 0; i < g->n; i++) {
        text members = { 0 };
        snprintf(prefix, sizeof prefix, "e%u", i);
        put_ending(e, &g->parts[i], prefix, t, &members);
        put(values, g->n > 1 ? "{ %s0, 0 }, " : "%s0, 0 }", members.s ? members.s : "");
        e->failed = e->failed || members.failed;
        text_free(&members);
    }
    if (g->n > 1) put(values, "0 }");
    if (g->n == 1) {
        put(t, "typedef @_e0 @_e;\n");
        return;
    }
    put(t, "struct @_e {\n");
    for (uint32_t i = 0; i < g->n; i++) put(t, "  @_e%u p%u;\n", i, i);
    put(t, "  int part;\n");
    static const char *const calls[][2] = { { "early(int i)", "early(i)" },
                                            { "load(int i)", "load(i)" },
                                            { "end(int i, float y, float z)", "end(i, y, z)" } };
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        put(t, "  M void %s {", calls[c][0]);
        for (uint32_t i = 0; i < g->n; i++)
            put(t, i + 1 < g->n ? " if (part == %u) p%u.%s; else" : " if (part == %u) p%u.%s;", i, i, calls[c][1]);
        put(t, " }\n");
    }
    put(t, "  M float value(float y) const { return p0.value(y); }\n};\n");
}

/* Of rows that each block computes for itself. */
static uint32_t few_bytes(const product *p, int bytes) {
    return ((uint32_t)(p->m * p->k) * (uint32_t)bytes + 127) & ~127u;
}

static uint32_t vector_product(const emit *e, const vector_group *g, uint32_t part, int which) {
    return e->layout->steps[g->parts[part].product[which] - 1].node;
}

static void put_vector_type(emit *e, const vector_group *g, const vector_form *form, bool early) {
    int64_t attrs[2] = { 0, 0 };
    uint32_t node = vector_product(e, g, 0, 0);
    if (g->norm) memcpy(attrs, attrs_of(e, e->layout->steps[g->norm - 1].node), sizeof attrs);
    const bool gain = (attrs[1] & 1) != 0, shift = (attrs[1] & 2) != 0, best = g->parts[0].best != 0;
    if (form->p.m > 1) {
        put_few_type(e, &form->p, &form->few, view_of(e, input(e, node, 0))->dtype, g->parts[0].product[1] ? 2 : 1,
                     early, form->row);
        return;
    }
    if (form->quantised) {
        text more = { 0 };
        put(&more,
            "  enum { k = %lld, V = %lld, S = 1, R = %u, MATS = %d, EARLY = %d, NORM = %d, HAS_GAIN = %d, HAS_SHIFT = "
            "%d, ROWS_WITHIN = %d, BEST = %d, LOADS = %u };\n  static M double eps() { return "
            "gn_f64(0x%llxull); }\n",
            (long long)form->p.k, (long long)form->vector, form->columns, g->parts[0].product[1] ? 2 : 1, early,
            g->norm != 0, gain, shift, g->rows != 0, best, form->loads, (unsigned long long)attrs[0]);
        const gn_view *x = view_of(e, input(e, node, 0));
        put(&more, "  enum { TENSOR = %d, XV = %d };\n  static const i64 XK = %lldll;\n", form->tensor, form->wide,
            (long long)x->strides[x->rank - 1]);
        put_quant_type(e, &form->q, view_of(e, input(e, node, 0))->dtype, more.s ? more.s : "");
        e->failed = e->failed || more.failed;
        text_free(&more);
        return;
    }
    bool full = form->p.k % form->lanes == 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const gn_view *out = view_of(e, vector_product(e, g, i, 0));
        full = full && out->dims[out->rank - 1] % (form->side * form->vector) == 0;
    }
    put(&e->types,
        "struct @_p { typedef %s T; enum { k = %lld, V = %lld, S = %u, TX = %u, R = %u, EARLY = %d, NORM = %d, "
        "HAS_GAIN = %d, HAS_SHIFT = %d, BEST = %d, LANES = %u, FULL = %d, MATS = %d, ROWS_WITHIN = %d, "
        "LOADS = %u };\n"
        "  static M double eps() { return gn_f64(0x%llxull); }\n};\n",
        types[view_of(e, input(e, node, 0))->dtype].name, (long long)form->p.k, (long long)form->vector, form->splits,
        form->side, form->columns, early, g->norm != 0, gain, shift, best, form->lanes, full,
        g->parts[0].product[1] ? 2 : 1, g->rows != 0, form->loads, (unsigned long long)attrs[0]);
}

/* Blocks of a part, and how many share k by the columns of all parts: the fewer there are, the more. False: the parts
   have no common form, or sum k by other lanes. */
static bool vectors_choose(const emit *e, const vector_group *g, vector_form *form, uint32_t *blocks) {
    int64_t n = 0, stride = 0;
    uint32_t grid = 0;
    vector_form first, own;
    if (!vector_choose(e, vector_product(e, g, 0, 0), 0, &first)) return false;
    for (uint32_t i = 0; i < g->n; i++)
        for (int q = 0; q < 2 && g->parts[i].product[q]; q++) {
            if (!vector_choose(e, vector_product(e, g, i, q), 0, &own) || own.dot != first.dot ||
                own.p.m != first.p.m || own.quantised != first.quantised || own.tensor != first.tensor ||
                (own.quantised && !quant_alike(e, &own.q, &first.q)) || own.lanes != first.lanes ||
                (q && own.stride != stride))
                return false;
            stride = own.stride;
            n += own.p.n;
        }
    if (first.p.m > 1) {
        *form = first;
        few_choose(e, &first.p, n, g->parts[0].product[1] ? 2 : 1, 0, 0, &form->few);
        form->splits = form->few.splits;
        for (uint32_t i = 0; i < g->n; i++) {
            int64_t columns =
                view_of(e, vector_product(e, g, i, 0))->dims[view_of(e, vector_product(e, g, i, 0))->rank - 1];
            blocks[i] = (uint32_t)(blocks_for(columns, 16 * form->few.tiles) * form->few.splits);
        }
        return true;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        vector_choose(e, vector_product(e, g, i, 0), n, &own);
        bool by_row = own.dot || own.quantised;
        if (by_row && g->parts[i].product[1]) own.columns = own.columns > 3 ? 2 : 1;
        if (!i) *form = own;
        uint32_t turns = own.lanes * own.side / (256 * own.splits),
                 loads = own.loads / (g->parts[i].product[1] ? 2 : 1);
        if (!by_row && turns > loads) return false; /* a thread has more of the lanes than it loads at once */
        blocks[i] = by_row ? (uint32_t)blocks_for(own.p.n, 8 * form->columns) : own.grid;
        grid += blocks[i];
    }
    /* fewer blocks that take several columns each, one after the other */
    uint32_t most = 2 * (uint32_t)emit_processors(e);
    for (uint32_t i = 0; i < g->n && (form->dot || form->quantised) && grid > most; i++) {
        uint64_t share = (uint64_t)blocks[i] * most / grid;
        blocks[i] = share ? (uint32_t)share : 1;
    }
    return true;
}

/* Which quantised matrix a block has. */
static void put_quant_parts(emit *e, const vector_group *g, const uint32_t *blocks) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        bool two = g->parts[i].product[1] != 0;
        char name[3][2][32];
        const gn_view *out = view_of(e, vector_product(e, g, i, 0));
        for (int q = 0; q < 2; q++) {
            for (int k = 0; k < 3; k++) snprintf(name[k][q], sizeof name[k][q], "0");
            if (q > two) continue;
            quant_form own = quant_of(e, vector_product(e, g, i, q), 1, 2);
            const uint32_t nodes[3] = { own.data, own.scales, own.zeros };
            for (int k = 0; k < 3; k++) {
                if (nodes[k] == GN_NO_NODE) continue;
                snprintf(name[k][q], sizeof name[k][q], "%c%u_%d", "wsz"[k], i, q);
                emit_node(e, nodes[k], k ? types[view_of(e, nodes[k])->dtype].name : "u8", true, name[k][q]);
            }
        }
        if (i == 0) put(&e->body, "  vector_quant_of<@_p> m = ");
        else put(&e->body, "  if (blockIdx.x >= %u) { e.part = %u; m = vector_quant_of<@_p>", first, i);
        put(&e->body, "{ { %s, %s }, { %s, %s }, { %s, %s }, %lld, (int)blockIdx.x - %u, %u };%s\n", name[0][0],
            name[0][1], name[1][0], name[1][1], name[2][0], name[2][1], (long long)out->dims[out->rank - 1], first,
            blocks[i], i ? " }" : "");
        first += blocks[i];
    }
}

/* Which matrix a block has. */
static void put_vector_parts(emit *e, const vector_group *g, const uint32_t *blocks) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        vector_form own;
        vector_choose(e, vector_product(e, g, i, 0), 0, &own);
        bool two = g->parts[i].product[1] != 0;
        char name[2][32];
        for (int q = 0; q < 1 + two; q++) {
            snprintf(name[q], sizeof name[q], "b%u_%d", i, q);
            emit_node(e, input(e, vector_product(e, g, i, q), 1),
                      types[view_of(e, vector_product(e, g, i, 0))->dtype].name, true, name[q]);
        }
        if (i == 0) put(&e->body, "  vector_of<@_p::T> m = ");
        else put(&e->body, "  if (blockIdx.x >= %u) { e.part = %u; m = vector_of<@_p::T>", first, i);
        put(&e->body, "{ { %s, %s }, %lld, %lldll, (int)blockIdx.x - %u, %u };%s\n", name[0], two ? name[1] : "0",
            (long long)own.p.n, (long long)own.stride, first, blocks[i], i ? " }" : "");
        first += blocks[i];
    }
}

static void vector_label(const emit *e, const vector_group *g, const vector_form *form, char *out, size_t size) {
    const vector_part *p = &g->parts[0];
    bool ends = false;
    for (uint32_t i = 0; i < g->n; i++) ends = ends || g->parts[i].loop;
    snprintf(out, size, "%s%s%s_%s%s%s",
             g->norm   ? "norm_"
             : g->rows ? "rows_"
                       : "",
             g->n > 1        ? "vectors_"
             : p->product[1] ? "vector_pair_"
                             : "vector_",
             form->tensor                 ? "tensor"
             : form->quantised            ? "quant"
             : form->p.m > 1 && form->dot ? "few_dot"
             : form->p.m > 1              ? "few_times"
             : form->dot                  ? "dot"
                                          : "times",
             form->quantised ? quant_label(&form->q) : "",
             types[view_of(e, input(e, vector_product(e, g, 0, 0), 0))->dtype].name,
             ends      ? "_loop"
             : p->best ? "_argmax"
                       : "");
}

/* Nothing that the kernel reads before it waits is written by another. */
static bool vectors_early(const emit *e, const vector_group *g) {
    bool early = true;
    for (uint32_t i = 0; i < g->n; i++)
        for (int q = 0; q < 2 && g->parts[i].product[q]; q++) {
            uint32_t node = vector_product(e, g, i, q);
            for (uint32_t k = 1; k < e->part->nodes[node].n_ins; k++)
                early = early && is_constant(e, input(e, node, k));
        }
    uint32_t norm = g->norm ? e->layout->steps[g->norm - 1].node : 0;
    for (uint32_t k = 1; g->norm && k < e->part->nodes[norm].n_ins; k++)
        early = early && is_constant(e, input(e, norm, k));
    return early;
}

static void emit_vector(emit *e, const vector_group *g) {
    uint32_t node = vector_product(e, g, 0, 0), norm = g->norm ? e->layout->steps[g->norm - 1].node : node;
    uint32_t n_ins = g->norm ? e->part->nodes[norm].n_ins : 1, blocks[VECTOR_PARTS], grid = 0;
    const int64_t flags = g->norm ? attrs_of(e, norm)[1] : 0;
    const vector_part *part = &g->parts[0];
    const char *type = types[view_of(e, input(e, node, 0))->dtype].name;
    text endings = { 0 }, within = { 0 };
    vector_form form;
    char name[64];
    vectors_choose(e, g, &form, blocks);
    if (form.p.m > 1 && g->rows) form.row = few_bytes(&form.p, types[view_of(e, input(e, node, 0))->dtype].bytes);
    for (uint32_t i = 0; i < g->n; i++) grid += blocks[i];
    put_vector_type(e, g, &form, vectors_early(e, g));
    e->rereads = e->early = true;
    e->cluster = (uint8_t)form.splits;
    put_endings(e, g, &endings);
    if (g->rows) put_rows_within(e, &e->groups[g->rows - 1], g->given, form.p.m, "n", &within);
    else emit_node(e, input(e, norm, 0), type, true, "a");
    put(&e->body, "  @_e e = %s;\n", endings.s ? endings.s : "{}");
    if (g->rows) put(&e->body, "  const @_n norm = { %.*s };\n", (int)within.n - 2, within.s ? within.s : "  ");
    else put(&e->body, "  const vector_as_it_lies norm = {};\n");
    if (form.quantised) put_quant_parts(e, g, blocks);
    else put_vector_parts(e, g, blocks);
    if (flags & 1) emit_node(e, input(e, norm, 1), type, true, "gain");
    if (flags & 2) emit_node(e, input(e, norm, n_ins - 1), type, true, "shift");
    if (part->best) {
        emit_pointer(e, "void", false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
        emit_pointer(e, "u32", false, "done", (param){ PARAM_PLAN, REGION_ERRORS, (ERROR_WORDS + e->n_flags++) * 4 });
        emit_node(e, e->layout->steps[part->best - 1].node, "i64", false, "best");
    }
    if (form.p.m > 1) put(&e->body, "  few_times<@_p>(%s, norm, m, e);\n", g->rows ? "0" : "a");
    else
        put(&e->body, "  vector_%s<@_p>(%s, norm, m, %s, %s, e, %s);\n",
            form.quantised ? "quant"
            : form.dot     ? "dot"
                           : "times",
            g->rows ? "0" : "a", flags & 1 ? "gain" : "0", flags & 2 ? "shift" : "0",
            part->best ? "(best_of<float, false> *)parts, done, best" : "0, 0, 0");
    vector_label(e, g, &form, name, sizeof name);
    e->failed = e->failed || endings.failed || within.failed;
    text_free(&endings);
    text_free(&within);
    size_t bytes = (size_t)grid * 16;
    if (part->best && bytes > e->scratch) e->scratch = bytes;
    if ((form.dot || form.quantised) && form.p.m == 1) e->bounds = "__launch_bounds__(256, 2)";
    emit_launch_shared(e, name, grid, 1, 256,
                       form.p.m > 1 ? few_shared(&form.few, &form.p, part->product[1] ? 2 : 1, form.row) : 0);
}

/* What makes the query (which 0) or the appended row of keys: 0 nothing, 1 a warp, 2 all threads of a block. */
static int one_makes(const fusion *u, int which) { return u->made[which] ? 2 : u->turn[which] ? 1 : 0; }

/* The first row of a dense result of rows of n that a view shows. */
static int64_t first_row(const gn_view *v, int64_t n) { return v->offset / types[v->dtype].bytes / n; }

/* All n columns of one row by `many` threads of which t_ is one: the first 2 half are turned in pairs; step: between
   numbers of the table. */
static void put_turning(text *t, int64_t n, int64_t half, int64_t step, int64_t stride, int64_t bits) {
    long long y = bits & 1 ? 2 : 1, other = bits & 1 ? 1 : half;
    put(t, ";\n    UNROLL for (int i = 0; i < %lld; i += many) {\n      const int pair = i + t_;\n", (long long)half);
    put(t, "      if (pair >= %lld) break;\n", (long long)half);
    put(t,
        "      const auto c = t[pair * %lldll], s = t[(%lldll + pair) * %lldll], a = get(x[pair * %lld * %lldll]), b = "
        "get(x[(pair * %lld + %lld) * %lldll]);\n",
        (long long)step, (long long)half, (long long)step, y, (long long)stride, y, other, (long long)stride);
    put(t, "      put(to[pair * %lld], a * c %c b * s);\n      put(to[pair * %lld + %lld], b * c %c a * s);\n    }\n",
        y, bits & 2 ? '+' : '-', y, other, bits & 2 ? '-' : '+');
    if (n > 2 * half)
        put(t, "    for (int col = %lld + t_; col < %lld; col += many) to[col] = x[col * %lldll];\n",
            (long long)(2 * half), (long long)n, (long long)stride);
    put(t, "  }\n};\n");
}

/* What makes the query (which 0) or the row that is appended to keys, the struct `@_<prefix>`: run(raw, to, row) by
   all threads of a block, `row` of a dense result. values: its members'. */
static void put_made(emit *e, const fusion *u, int which, const char *prefix, int64_t n, text *values) {
    char own[24], name[32];
    text *t = &e->types;
    snprintf(own, sizeof own, "%srows", prefix);
    put(values, "{ ");
    if (u->made[which]) {
        put(values, "{ ");
        put_rows_within(e, &e->groups[u->made[which] - 1], u->given[which], 1, own, values);
        put(values, "}, ");
    }
    put(t, "struct @_%s {\n", prefix);
    if (u->made[which]) put(t, "  @_%s rows;\n", own);
    if (!u->turn[which]) {
        put(t, "  template <class T> M void run(T *, T *to, i64 row, int, int) const { rows.run(to, row, 1, false); "
               "}\n};\n");
        put(values, "}");
        return;
    }
    uint32_t node = e->layout->steps[u->turn[which] - 1].node, from = input(e, node, 0), by = input(e, node, 1);
    const gn_view *x = view_of(e, from);
    gn_view lines = *x, angles = *view_of(e, by);
    int last = x->rank - 1;
    int64_t half = angles.dims[angles.rank - 1] / 2, step = angles.strides[angles.rank - 1], dims[GN_MAX_RANK];
    const char *type = types[x->dtype].name, *compute = types[angles.dtype].name;
    memcpy(dims, x->dims, sizeof dims);
    dims[last] = 2 * half;
    angles = gn_view_broadcast(&angles, x->rank, dims);
    lines.rank = angles.rank = last;
    gn_view cr = gn_view_collapse(&lines), ct = gn_view_collapse(&angles);
    if (!u->made[which]) {
        snprintf(name, sizeof name, "%sx", prefix);
        emit_node(e, from, type, true, name);
        put(t, "  const %s *a;\n", type);
        put(values, "%s, ", name);
    }
    snprintf(name, sizeof name, "%stable", prefix);
    emit_node(e, by, compute, true, name);
    put(t, "  const %s *table;\n", compute);
    put(values, "%s }", name);
    put(t, "  M void run(%s *raw, %s *to, i64 row, int t_, int many) const {\n    const i64 from = ", type, type);
    put_offset(t, &cr, "row", false);
    if (u->made[which])
        put(t, " + %lldll;\n    rows.run(raw, from / %lld, 1, false);\n    __syncthreads();\n    const %s *x = raw;\n",
            (long long)(x->offset / types[x->dtype].bytes), (long long)n, type);
    else put(t, ";\n    const %s *x = a + from;\n", type);
    put(t, "    const %s *t = table + ", compute);
    put_offset(t, &ct, "row", false);
    put_turning(t, n, half, step, x->strides[last], attrs_of(e, node)[0]);
}

/* `tq` and `tk` of the kernel: what makes the query and the appended row of keys. */
static void put_makers(emit *e, const fusion *u, int64_t n) {
    text made[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        if (one_makes(u, i)) put_made(e, u, i, i ? "tk" : "tq", n, &made[i]);
        put(&e->body, "  const %s%s t%s = %s;\n", one_makes(u, i) ? "@_" : "",
            one_makes(u, i) ? i ? "tk" : "tq" : "one_as_it_lies", i ? "k" : "q", made[i].s ? made[i].s : "{}");
        e->failed = e->failed || made[i].failed;
        text_free(&made[i]);
    }
}

static void put_one_type(emit *e, const one_form *f, const fusion *u, gn_dtype pos, const gn_view *rows_k,
                         const gn_view *rows_v, bool early) {
    const attention_form *a = &f->a;
    text *t = &e->types;
    int vector = 16 / types[a->q.dtype].bytes;
    put(t,
        "struct @_p { typedef %s T; typedef float C; typedef %s L; typedef @_n N; typedef @_x X; static const i64 H = "
        "%lldll, G = %lldll, S = %lldll;\n",
        types[a->q.dtype].name, types[pos].name, (long long)a->dims[1], (long long)a->k.dims[1], (long long)a->dims[3]);
    put(t,
        "  enum { DK = %lld, E = %lld, V = %d, LANES = %d, R = %lld, U = %d, STAGES = %d, PARTS = %lld, CLUSTER = "
        "%lld, "
        "JOINS = %lld, LENGTH = %d, CAUSAL = %d, WRITTEN = %d, APPEND = %d, EARLY = %d, SMALL = %d, NEXT = %d, MADE_Q "
        "= %d, "
        "MADE_K = %d };\n",
        (long long)a->q.dims[3], (long long)a->q.dims[3], vector, one_lanes(a), (long long)f->heads, f->each, f->stages,
        (long long)f->parts, (long long)f->cluster, (long long)(f->parts / f->cluster), a->length, a->causal,
        a->written, u->append[0] != 0, early, is_small(&a->k) && is_small(&a->v), NEXT_STARTS, one_makes(u, 0),
        one_makes(u, 1));
    put(t, "  static const i64 Q0 = %lldll, K0 = %lldll;\n", (long long)first_row(&a->q, a->q.dims[3]),
        (long long)first_row(rows_k, a->q.dims[3]));
    put(t,
        "  static const i64 QB = %lldll, QH = %lldll, KB = %lldll, KH = %lldll, KS = %lldll, VB = %lldll, VH = %lldll, "
        "VS = %lldll, RKB = %lldll, RKH = %lldll, RVB = %lldll, RVH = %lldll;\n",
        (long long)a->q.strides[0], (long long)a->q.strides[1], (long long)a->k.strides[0], (long long)a->k.strides[1],
        (long long)a->k.strides[2], (long long)a->v.strides[0], (long long)a->v.strides[1], (long long)a->v.strides[2],
        (long long)rows_k->strides[0], (long long)rows_k->strides[1], (long long)rows_v->strides[0],
        (long long)rows_v->strides[1]);
    put(t, "  static M double scale() { return gn_f64(0x%llxull); }\n};\n", (unsigned long long)f64_word(a->scale));
}

/* What it appends to is as the run found it. */
static bool is_first_append(const emit *e, uint32_t node) {
    return e->part->nodes[input(e, node, 0)].leaf == GN_LEAF_STATE;
}

/* One input of the loop that makes the length: a member, and its only element. */
static void length_load(emit *e, loop *l, uint32_t i, text *values, text *members) {
    const gn_load *load = load_of(e, l, i);
    const char *type = types[load->dtype].name, *compute = types[load->dtype].compute;
    char name[16];
    snprintf(l->names[load->reg], sizeof l->names[0], "x%u", i);
    if (load->constant) {
        put(values, "    const %s x%u = cast_to<%s>::of(gn_f64(0x%llxull));\n", compute, i, type,
            (unsigned long long)f64_word(load->value));
        return;
    }
    snprintf(name, sizeof name, "n%u", i);
    emit_pointer(e, type, true, name, (param){ PARAM_NODE, load->base, load->view.offset });
    put(&e->types, " const %s *n%u;", type, i);
    put(members, "%sn%u", members->n ? ", " : "", i);
    put(values, "    const %s x%u = get(*n%u);\n", compute, i, i);
}

/* The type @_n of how many keys there are, and `used` of it in the body: a number in memory, or what a loop makes of
   numbers that are there before the plan runs, which is known before the kernels before this one have ended. */
static void put_length(emit *e, const fusion *u, const attention_form *a) {
    const char *type = types[a->length_type].name;
    if (!u->length) {
        put(&e->types, "struct @_n { const %s *at; M i64 value() const { return get(*at); } };\n", type);
        if (a->length) emit_node(e, a->length_node, type, true, "length");
        put(&e->body, "  const @_n used = { %s };\n", a->length ? "length" : "0");
        return;
    }
    loop *l = (loop *)alloc_zero(sizeof *l);
    text values = { 0 }, members = { 0 }, body = e->body;
    if (!l) {
        e->failed = true;
        return;
    }
    l->step = &e->layout->steps[u->length - 1];
    put(&e->types, "struct @_n {");
    for (uint32_t i = 0; i < l->step->n_loads; i++) length_load(e, l, i, &values, &members);
    e->body = (text){ 0 }; /* instructions are written into the body */
    for (uint32_t i = 0; i < l->step->n_instrs; i++) loop_instr(e, l, i);
    put(&e->types, "\n  M i64 value() const {\n%s%s    %s y;\n    put(y, %s);\n    return get(y);\n  }\n};\n",
        values.s ? values.s : "", e->body.s ? e->body.s : "", type, l->names[l->step->out]);
    text_free(&e->body);
    e->body = body;
    put(&e->body, "  const @_n used = { %s };\n", members.s ? members.s : "");
    e->failed = e->failed || values.failed || members.failed;
    text_free(&values);
    text_free(&members);
    gn_free(l);
}

/* Where clusters leave their sums for the last of them. */
static void emit_joined(emit *e, const one_form *f) {
    const attention_form *a = &f->a;
    size_t heads = (size_t)(a->dims[0] * a->dims[1]),
           bytes = heads * (size_t)(f->parts / f->cluster) * (size_t)(a->q.dims[3] + 2) * 4;
    if (bytes > e->scratch) e->scratch = bytes;
    emit_pointer(e, "float", false, "parts", (param){ PARAM_PLAN, REGION_SCRATCH, 0 });
    emit_counters(e, (uint32_t)(heads / (size_t)f->heads));
}

static void emit_one(emit *e, const fusion *u, one_form *f) {
    attention_form *a = &f->a;
    uint32_t node = e->layout->steps[u->product - 1].node, xk = e->layout->lay[a->in[1]].base,
             xv = e->layout->lay[a->in[2]].base;
    bool append = u->append[0] != 0;
    const char *type = types[a->q.dtype].name;
    char name[96];
    text label = { 0 };
    uint32_t pos = append ? input(e, xk, 2) : node;
    bool early = (!append || is_constant(e, pos)) && (!a->length || u->length || is_constant(e, a->length_node)) &&
                 (!a->slopes || is_constant(e, a->slopes_node)) && (!a->sinks || is_constant(e, a->sinks_node)) &&
                 (append ? is_first_append(e, xk) && is_first_append(e, xv)
                         : is_constant(e, xk) && is_constant(e, xv) && !a->moved[1] && !a->moved[2]);
    attention_move(e, a);
    e->rereads = e->early = true;
    put_loop_of_scores(e, a, &label);
    put_length(e, u, a);
    put_one_type(e, f, u, append ? view_of(e, pos)->dtype : GN_I32, append ? view_of(e, input(e, xk, 1)) : &a->k,
                 append ? view_of(e, input(e, xv, 1)) : &a->v, early);
    e->cluster = (uint8_t)f->cluster;
    put_makers(e, u, a->q.dims[3]);
    if (!one_makes(u, 0)) emit_view_of(e, a->in[0], &a->q, a->moved[0], true, "q");
    emit_view_of(e, xk, &a->k, a->moved[1], false, "k");
    emit_view_of(e, xv, &a->v, a->moved[2], false, "v");
    if (append) {
        if (!one_makes(u, 1)) emit_node(e, input(e, xk, 1), type, true, "rows_k");
        emit_node(e, input(e, xv, 1), type, true, "rows_v");
        emit_node(e, pos, types[view_of(e, pos)->dtype].name, true, "pos");
    }
    if (append) {
        emit_saved(e, xk, type, "saved_k", "flag_k");
        emit_saved(e, xv, type, "saved_v", "flag_v");
        emit_number(e, "u32", "append", PARAM_WORD, xk);
    }
    emit_node(e, node, type, false, "o");
    bool joined = f->parts > f->cluster;
    if (joined) emit_joined(e, f);
    emit_errors(e);
    emit_number(e, "u32", "node", PARAM_WORD, node);
    e->faults = e->faults || a->length || append;
    put(&e->body, "  attention_one<@_p>(tq, tk, %s, k, v, %s, %s, x, %s, o, %s, err, node, %s);\n",
        one_makes(u, 0) ? "0" : "q",
        !append           ? "0, 0, 0"
        : one_makes(u, 1) ? "0, rows_v, pos"
                          : "rows_k, rows_v, pos",
        "used", append ? "saved_k, saved_v" : "0, 0", joined ? "parts, done" : "0, 0",
        append ? "append, flag_k, flag_v" : "0, 0, 0");
    snprintf(name, sizeof name, "%s%s%sattention_one_%s%s", u->made[0] || u->made[1] ? "rows_" : "",
             u->turn[0] || u->turn[1] ? "rotary_" : "", append ? "append_" : "", type, label.s ? label.s : "");
    e->failed = e->failed || label.failed;
    text_free(&label);
    emit_launch_shared(e, name, (uint64_t)(a->dims[0] * a->dims[1] / f->heads * f->parts), 1, 256,
                       (uint32_t)(f->each * f->stages) * 2 * 4096);
}

/* An attention in a form of its own: written out, or one query of each head. */
static void emit_attended(emit *e, const fusion *u) {
    uint32_t node = e->layout->steps[u->product - 1].node;
    attention_form a = u->written ? *u->written : attention_choose(e, node);
    one_form f;
    if (one_choose(e, &a, &f)) emit_one(e, u, &f);
    else emit_attention_form(e, node, &a);
}

/* >>fuse =============================================================================================
 * Which steps run in the kernel of another one: those of one row, attention that is written out, lookups, reductions
 * with loops. */

static bool fuses_steps(void) { return !env_is("GENIE_CUDA_FUSE", "0"); }

/* ---- who reads what ---- */

/* How often steps read a base's memory, and whether something outlives the run in it. */
/* step: 1 + that of a node; taken: of the reads, those of attentions that compute it by themselves */
typedef struct readers {
    uint32_t *reads, *taken;
    bool *held;
    uint32_t *step;
} readers;

static void readers_deinit(readers *r) {
    gn_free(r->reads);
    gn_free(r->taken);
    gn_free(r->held);
    gn_free(r->step);
}

static bool readers_init(readers *r, const emit *e) {
    const gn_part *p = e->part;
    const gn_layout *l = e->layout;
    r->reads = (uint32_t *)alloc_zero((p->n_nodes + 1) * sizeof *r->reads);
    r->taken = (uint32_t *)alloc_zero((p->n_nodes + 1) * sizeof *r->taken);
    r->held = (bool *)alloc_zero((p->n_nodes + 1) * sizeof *r->held);
    r->step = (uint32_t *)alloc_zero((p->n_nodes + 1) * sizeof *r->step);
    if (!r->reads || !r->taken || !r->held || !r->step) return false;
    for (size_t i = 0; i < l->n_steps; i++) {
        const gn_kernel_step *s = &l->steps[i];
        r->step[s->node] = (uint32_t)i + 1;
        for (uint32_t k = 0; s->n_instrs && k < s->n_loads; k++)
            if (!l->loads[s->load + k].constant) r->reads[l->loads[s->load + k].base]++;
        for (uint32_t k = 0; !s->n_instrs && k < p->nodes[s->node].n_ins; k++)
            r->reads[l->lay[input(e, s->node, k)].base]++;
    }
    for (uint32_t i = 0; i < p->n_outs; i++) r->held[l->lay[p->outs[i]].base] = true;
    for (uint32_t i = 0; i < p->n_updates; i++) r->held[l->lay[p->updates[i].node].base] = true;
    return true;
}

/* A view of all of its base, in its order. */
static bool is_whole(const emit *e, const gn_view *v, uint32_t base) {
    return gn_view_is_dense(v) && !v->offset && gn_view_count(v) == gn_view_count(&e->layout->lay[base].view);
}

/* A kernel that runs where the step of node `at` stands reads it. */
static void keep_until(emit *e, uint32_t node, uint32_t at) {
    gn_lay *lay = &e->layout->lay[e->layout->lay[node].base];
    if (lay->last < at) lay->last = at;
}

/* No append in place writes it: a kernel may read it later than its step. */
static bool is_never_appended(const emit *e, uint32_t node) {
    uint32_t base = e->layout->lay[node].base;
    const gn_part_node *n = &e->part->nodes[base];
    if (e->layout->lay[base].place == GN_PLACE_INPLACE) return false;
    for (uint32_t u = 0; n->leaf == GN_LEAF_STATE && u < e->part->n_updates; u++)
        if (e->part->updates[u].slot == n->slot && e->layout->update_how[u] == GN_UPDATE_INPLACE) return false;
    return true;
}

static bool are_never_appended(const emit *e, uint32_t node, uint32_t from) {
    bool all = true;
    for (uint32_t i = from; i < e->part->nodes[node].n_ins; i++) all = all && is_never_appended(e, input(e, node, i));
    return all;
}

/* ---- steps of one row ---- */

/* The step that alone reads the product: a loop over the same elements, or 0. */
static uint32_t fusable_loop(const emit *e, const readers *r, uint32_t node) {
    const gn_layout *l = e->layout;
    if (r->reads[node] != 1 || r->held[node]) return 0;
    for (uint32_t i = r->step[node]; i < l->n_steps; i++) {
        const gn_kernel_step *s = &l->steps[i];
        for (uint32_t k = 0; s->n_instrs && k < s->n_loads; k++) {
            const gn_load *d = &l->loads[s->load + k];
            if (d->constant || d->base != node) continue;
            for (uint32_t q = 0; q < s->n_instrs; q++)
                if (!types[l->instrs[s->instr + q].in_dtype].real) return 0;
            bool fits = is_whole(e, &d->view, node) && s->n_loads < 24 &&
                        gn_view_count(view_of(e, s->node)) == gn_view_count(view_of(e, node)) &&
                        !e->fusions[i].inside && !e->fusions[i].product;
            return fits ? i + 1 : 0;
        }
    }
    return 0;
}

static uint32_t fusable_best(const emit *e, const readers *r, uint32_t node) {
    const gn_layout *l = e->layout;
    if (r->reads[node] != 1 || r->held[node]) return 0;
    for (uint32_t i = r->step[node]; i < l->n_steps; i++) {
        uint32_t at = l->steps[i].node;
        if (l->steps[i].n_instrs || !node_is(e, at, GN_OP_ARGMAX) || l->lay[input(e, at, 0)].base != node) continue;
        return is_whole(e, view_of(e, input(e, at, 0)), node) && gn_view_count(view_of(e, at)) == 1 ? i + 1 : 0;
    }
    return 0;
}

static void fuse_in(emit *e, uint32_t step, uint32_t at) {
    e->fusions[step].inside = true;
    e->runs[step] = at;
    e->fused++;
}

static void keep_inputs(emit *e, uint32_t node, uint32_t from, uint32_t at) {
    for (uint32_t k = from; k < e->part->nodes[node].n_ins; k++)
        keep_until(e, input(e, node, k), e->layout->steps[at].node);
}

/* Without memory for it the note is lost. */
static void refused(emit *e, uint32_t node, refusal_why why) {
    if (!grow(&e->refusals, e->n_refusals, &e->cap_refusals, sizeof *e->refusals)) return;
    e->refusals[e->n_refusals++] = (refusal){ node, why };
}

/* Said of products of a matrix and few rows only: those of many rows or of batches are no work for these rules. */
static void refuse_vector(emit *e, uint32_t node) {
    const gn_view *x = view_of(e, input(e, node, 0)), *b = view_of(e, input(e, node, 1));
    int64_t k = x->rank ? x->dims[x->rank - 1] : 0;
    if (node_is(e, node, GN_OP_LINEAR_QUANTIZED) || b->rank != 2 || k < 1 || gn_view_count(x) / k > FEW_ROWS ||
        !gn_view_count(view_of(e, node)))
        return;
    bool several = gn_view_count(x) > k;
    refused(e, node,
            e->invariant                                                                            ? REFUSED_INVARIANT
            : several && ((x->dtype != GN_F16 && x->dtype != GN_BF16) || !emit_has_tensor_cores(e)) ? REFUSED_DTYPE
                                                                                                    : REFUSED_LIES);
}

static void fuse_vector(emit *e, const readers *r, uint32_t i) {
    uint32_t node = e->layout->steps[i].node, at = i;
    vector_form form;
    if (!vector_choose(e, node, 0, &form)) {
        refuse_vector(e, node);
        return;
    }
    fusion u = { .product = i + 1, .loop = fusable_loop(e, r, node) };
    if (!u.loop) u.best = fusable_best(e, r, node);
    if (!are_never_appended(e, node, 0)) u.loop = u.best = 0;
    if (u.loop) at = u.loop - 1;
    if (u.best) at = u.best - 1;
    /* B is no leaf: it would have to be kept for longer */
    if (at != i && e->part->nodes[e->layout->lay[input(e, node, 1)].base].leaf == GN_LEAF_NONE) return;
    if (at != i) {
        fuse_in(e, i, at);
        keep_inputs(e, node, 0, at);
    }
    e->fusions[at] = u;
}

/* The node at whose place in the order a step runs: of a product that a loop follows at once, the loop's. */
static uint32_t runs_at(const emit *e, uint32_t i) {
    uint32_t node = e->layout->steps[i].node, tail = e->layout->lay[node].tail;
    return tail != GN_NO_NODE && tail > node ? tail : node;
}

/* An append of one row in place that this attention alone reads, all of it as (B,G,S,D); its step, or 0. */
static uint32_t fusable_append(const emit *e, const readers *r, uint32_t x, const gn_view *shown) {
    const gn_view *whole = view_of(e, x);
    if (!node_is(e, x, GN_OP_KV_APPEND) || e->layout->lay[x].base != x || e->layout->lay[x].place != GN_PLACE_INPLACE ||
        r->reads[x] != 1 || !r->step[x] || shown->offset != whole->offset)
        return 0;
    for (int i = 0; i < 4; i++)
        if (shown->dims[i] != whole->dims[i] || (whole->dims[i] > 1 && shown->strides[i] != whole->strides[i]))
            return 0;
    const gn_view *row = view_of(e, input(e, x, 1));
    return row->dims[2] == 1 && are_never_appended(e, x, 1) &&
                   fits_one(row, shown->dims[3], 16 / types[row->dtype].bytes, (size_t)row->offset) &&
                   row->dtype == whole->dtype
               ? r->step[x]
               : 0;
}

enum { LENGTH_LOADS = 8, LENGTH_INSTRS = 8 };

/* The loop that makes the number of keys of what is there before the plan runs and cannot report a fault, or 0. */
static uint32_t fusable_length(const emit *e, const readers *r, const attention_form *f) {
    if (!f->length || f->slopes) return 0;
    uint32_t base = e->layout->lay[f->length_node].base, step = r->step[base];
    if (!step || gn_view_count(view_of(e, base)) != 1) return 0;
    const gn_kernel_step *s = &e->layout->steps[step - 1];
    if (!s->n_instrs || s->n_loads > LENGTH_LOADS || s->n_instrs > LENGTH_INSTRS) return 0;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *d = &e->layout->loads[s->load + i];
        if (!d->constant && !is_constant(e, d->base)) return 0;
    }
    for (uint32_t i = 0; i < s->n_instrs; i++) {
        gn_op_info op;
        gn_get_op(e->layout->instrs[s->instr + i].op - 1, &op);
        if (op.divides) return 0;
    }
    return step;
}

static void fuse_attention(emit *e, const readers *r, uint32_t i) {
    attention_form shown =
        e->fusions[i].written ? *e->fusions[i].written : attention_choose(e, e->layout->steps[i].node);
    fusion u = e->fusions[i];
    one_form form;
    if (!one_choose(e, &shown, &form)) return;
    u.product = i + 1;
    uint32_t k = e->layout->lay[shown.in[1]].base, v = e->layout->lay[shown.in[2]].base;
    u.append[0] = fusable_append(e, r, k, &shown.k);
    u.append[1] = fusable_append(e, r, v, &shown.v);
    if (u.append[0] && u.append[1] && !form.a.moved[1] && !form.a.moved[2] && input(e, k, 2) == input(e, v, 2)) {
        for (int q = 0; q < 2; q++) {
            fuse_in(e, u.append[q] - 1, i);
            for (uint32_t n = 1; n < 3; n++) keep_until(e, input(e, q ? v : k, n), runs_at(e, i));
        }
    } else u.append[0] = u.append[1] = 0;
    u.length = fusable_length(e, r, &shown);
    if (u.length) {
        uint32_t base = e->layout->steps[u.length - 1].node;
        if (++r->taken[base] == r->reads[base] && !r->held[base]) fuse_in(e, u.length - 1, i);
    }
    e->fusions[i] = u;
}

/* ---- attention that is written out: a product, a loop on its scores, a softmax, a product ----
 * It runs in the kernels of the op, which compute the loop on each score: whatever it does (scale, masks that add or
 * replace, a cap, a bias of positions), it does the same. Scores and weights stay in registers, so nothing else may
 * read them, and an f16 score has no limit before the loop's end. Where the op and the formula differ the formula is
 * computed: a query whose scores are all -infinity gives NaN, and so does a weight of 0 on a value that is infinite;
 * hence a mask that happens to be causal hides keys, and saves no work. */

/* Attentions in plain arithmetic up to which one kernel takes less time than three: scores, and elements of keys and
   values that one block reads; the most inputs of a loop on scores. */
enum { PLAIN_SCORES = 1 << 17, PLAIN_BLOCK = 1 << 16, PLAIN_WIDTH = 1024, SCORES_LOADS = 8 };

/* The only use of a node's result is one step's read of it. */
static bool is_between(const emit *e, const readers *r, uint32_t node) {
    return e->layout->lay[node].base == node && e->layout->lay[node].place == GN_PLACE_BLOCK && r->reads[node] == 1 &&
           !r->held[node] && r->step[node];
}

static bool is_one_of(const gn_written_attention *a, uint32_t node) {
    for (uint32_t i = 0; i < a->n_scores; i++)
        if (a->scores[i] == node) return true;
    return false;
}

/* A product of two matrices or batches of them that is read whole, rows of n, by one step alone. */
static bool is_scores(const emit *e, const readers *r, uint32_t node, const gn_view *read, int64_t n) {
    if (!is_between(e, r, node) || e->part->nodes[node].n_ins != 2 || !is_whole(e, read, node)) return false;
    const gn_view *q = view_of(e, input(e, node, 0)), *k = view_of(e, input(e, node, 1)), *out = view_of(e, node);
    return q->rank >= 2 && k->rank >= 2 && out->dims[out->rank - 1] == n;
}

/* Which product the softmax reads, and the loop between them. */
static bool find_scores(const emit *e, const readers *r, const gn_written_attention *a, attention_form *f) {
    uint32_t x = e->layout->lay[input(e, a->softmax, 0)].base;
    const gn_view *read = view_of(e, input(e, a->softmax, 0));
    int64_t n = read->dims[read->rank - 1];
    f->scores = x;
    if (is_one_of(a, x)) return is_scores(e, r, x, read, n);
    if (!is_between(e, r, x) || !e->layout->steps[r->step[x] - 1].n_instrs || !is_whole(e, read, x)) return false;
    const gn_kernel_step *s = &e->layout->steps[r->step[x] - 1];
    const gn_view *out = view_of(e, x);
    f->loop = r->step[x];
    if (!is_epilogue(e, s) || s->n_loads > SCORES_LOADS || out->dims[out->rank - 1] != n) return false;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *d = &e->layout->loads[s->load + i];
        f->scores = d->base;
        if (!d->constant && is_one_of(a, d->base) && is_scores(e, r, d->base, &d->view, n) &&
            gn_view_count(view_of(e, d->base)) == gn_view_count(out))
            return true;
    }
    return false;
}

/* The product with the values alone reads the softmax, perhaps through a cast; its step, or 0. cast: 1 + the step of
   that. */
static uint32_t find_values(const emit *e, const readers *r, const gn_written_attention *a, uint32_t *cast) {
    const gn_layout *l = e->layout;
    uint32_t p = input(e, a->values, 0), v = input(e, a->values, 1), x = l->lay[p].base, step = r->step[a->values];
    *cast = 0;
    if (!step || l->steps[step - 1].n_instrs || e->part->nodes[a->values].n_ins != 2) return 0;
    if (x != a->softmax) {
        if (!is_between(e, r, x)) return 0;
        const gn_kernel_step *s = &l->steps[r->step[x] - 1];
        const gn_load *d = s->n_loads ? &l->loads[s->load] : NULL;
        if (s->n_instrs != 1 || s->n_loads != 1 || d->constant || d->base != a->softmax ||
            l->instrs[s->instr].op != GN_OP_CAST || !is_whole(e, &d->view, a->softmax))
            return 0;
        *cast = r->step[x];
    }
    const gn_view *shown = view_of(e, p);
    return is_whole(e, shown, x) && shown->rank >= 2 && view_of(e, v)->rank >= 2 && l->lay[v].base != x ? step : 0;
}

/* Leading dims of two products that are equal but for those of size 1, with the strides of the operands of both along
   them. */
/* q, k, v */
typedef struct heads_of {
    int n;
    int64_t dims[GN_MAX_RANK], strides[3][GN_MAX_RANK];
} heads_of;

static bool heads_find(const gn_view *scores, const gn_view *out, const gn_view *const *views, heads_of *h) {
    int k = 0;
    h->n = 0;
    for (int i = 0; i + 2 < scores->rank; i++) {
        if (scores->dims[i] == 1) continue;
        while (k + 2 < out->rank && out->dims[k] == 1) k++;
        if (k + 2 >= out->rank || out->dims[k] != scores->dims[i]) return false;
        h->dims[h->n] = scores->dims[i];
        for (int q = 0; q < 3; q++) h->strides[q][h->n] = views[q]->strides[q == 2 ? k : i];
        h->n++;
        k++;
    }
    for (; k + 2 < out->rank; k++)
        if (out->dims[k] != 1) return false;
    return true;
}

/* Dims at and at + 1 become one, which all strides allow that the others (bits) may not ignore. */
static bool heads_join(heads_of *h, int at, unsigned others) {
    for (int q = 0; q < 3; q++)
        if (!(others >> q & 1) && h->strides[q][at] != h->strides[q][at + 1] * h->dims[at + 1]) return false;
    h->dims[at] *= h->dims[at + 1];
    for (int q = 0; q < 3; q++)
        if (!(others >> q & 1)) h->strides[q][at] = h->strides[q][at + 1];
    h->n--;
    for (int i = at + 1; i < h->n; i++) {
        h->dims[i] = h->dims[i + 1];
        for (int q = 0; q < 3; q++) h->strides[q][i] = h->strides[q][i + 1];
    }
    return true;
}

/* Leading dims as (B,H), and the G that keys and values have of H. */
static bool heads_as_two(heads_of *h, int64_t *groups) {
    int last = h->n - 1;
    *groups = 0;
    /* the last dim is of queries that share keys and values */
    if (last >= 1 && !h->strides[1][last] && !h->strides[2][last]) {
        *groups = h->n == 2 ? 1 : h->dims[last - 1];
        if (h->n > 2 && !heads_join(h, last - 1, 6)) return false; /* (…,G,R) */
    }
    while (h->n > 2 && heads_join(h, 0, 0)) { }
    if (h->n > 2) return false;
    if (!*groups) *groups = h->n ? h->dims[h->n - 1] : 1;
    return true;
}

static gn_view heads_view(const heads_of *h, int which, int64_t heads, const gn_view *v, int down, int along) {
    gn_view out = { NULL,
                    v->dtype,
                    4,
                    { 1, heads, v->dims[down], v->dims[along] },
                    { 0, 0, v->strides[down], v->strides[along] },
                    v->offset };
    if (h->n == 2) {
        out.dims[0] = h->dims[0];
        out.strides[0] = h->strides[which][0];
    }
    if (h->n && heads > 1) out.strides[1] = h->strides[which][h->n - 1];
    return out;
}

/* q (B,H,T,D), k (B,G,S,D) and v (B,G,S,E) of the two products. */
static bool written_views(const emit *e, uint32_t node, attention_form *f) {
    const gn_view *scores = view_of(e, f->scores), *out = view_of(e, node), *p = view_of(e, input(e, node, 0));
    int rs = scores->rank, ro = out->rank;
    for (int i = 0; i < 3; i++) f->in[i] = i == 2 ? input(e, node, 1) : input(e, f->scores, (uint32_t)i);
    const gn_view *q0 = view_of(e, f->in[0]), *k0 = view_of(e, f->in[1]), *v0 = view_of(e, f->in[2]);
    int64_t dims[3][GN_MAX_RANK], T = scores->dims[rs - 2], S = scores->dims[rs - 1], D = q0->dims[q0->rank - 1],
                                  E = out->dims[ro - 1], groups;
    if (p->dims[p->rank - 1] != S || p->dims[p->rank - 2] != T || out->dims[ro - 2] != T ||
        q0->dims[q0->rank - 2] != T || !T || !S || !D || !E || !gn_view_count(out))
        return false;
    for (int i = 0; i < 3; i++) {
        memcpy(dims[i], i == 2 ? out->dims : scores->dims, sizeof dims[i]);
        int rank = i == 2 ? ro : rs;
        dims[i][rank - 2] = i == 0 ? T : i == 1 ? D : S;
        dims[i][rank - 1] = i == 0 ? D : i == 1 ? S : E;
    }
    gn_view q = gn_view_broadcast(q0, rs, dims[0]), k = gn_view_broadcast(k0, rs, dims[1]),
            v = gn_view_broadcast(v0, ro, dims[2]);
    const gn_view *const views[3] = { &q, &k, &v };
    heads_of h;
    if (q.dtype != k.dtype || q.dtype != v.dtype || q.dtype != out->dtype || !heads_find(scores, out, views, &h) ||
        !heads_as_two(&h, &groups))
        return false;
    f->q = heads_view(&h, 0, h.n ? h.dims[h.n - 1] : 1, &q, rs - 2, rs - 1);
    f->k = heads_view(&h, 1, groups, &k, rs - 1, rs - 2);
    f->v = heads_view(&h, 2, groups, &v, ro - 2, ro - 1);
    return f->q.dims[0] * f->q.dims[1] < 0x7fffffff / T;
}

/* x with so many bits of mantissa, to nearest even. */
static double rounded(double x, int bits) {
    uint64_t w, drop = (uint64_t)(53 - bits);
    memcpy(&w, &x, 8);
    if (bits < 53) w = (w + ((1ull << (drop - 1)) - 1) + (w >> drop & 1)) >> drop << drop;
    memcpy(&x, &w, 8);
    return x;
}

/* A loop that does no more than cast and multiply or divide by one constant is the scale of the kernel. */
static void fuse_scale(const emit *e, attention_form *f) {
    static const int bits[GN_DTYPE__COUNT] = { [GN_F32] = 24, [GN_F64] = 53, [GN_F16] = 11, [GN_BF16] = 8 };
    const gn_kernel_step *s = attention_loop(e, f);
    double constants[512] = { 0 }, scale = 1;
    uint16_t at = 0;
    bool seen = false;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *d = &e->layout->loads[s->load + i];
        if (d->constant) constants[d->reg] = d->value;
        else if (d->base == f->scores) at = d->reg;
        else return;
    }
    for (uint32_t i = 0; i < s->n_instrs; i++) {
        const gn_instr *in = &e->layout->instrs[s->instr + i];
        bool cast = in->op == GN_OP_CAST, times = in->op == GN_OP_MUL, over = in->op == GN_OP_DIV,
             first = in->src[0] == at;
        if (!bits[in->in_dtype] || !bits[in->out_dtype] || !(cast || times || over) ||
            !(first || (times && in->src[1] == at)))
            return;
        double c = cast ? 1 : rounded(constants[in->src[first]], bits[in->in_dtype]);
        if ((seen && !cast) || !(c >= 1e-4 && c <= 1e4)) return;
        if (!cast) {
            scale = times ? c : 1 / c;
            seen = true;
        }
        at = in->dst;
    }
    f->scale = scale;
    f->loop = 0;
}

/* Nothing writes over what a node shows between two steps. */
static bool stays(const emit *e, uint32_t node, uint32_t from, uint32_t to) {
    uint32_t base = e->layout->lay[node].base,
             leaf = e->layout->lay[base].place == GN_PLACE_INPLACE ? e->layout->lay[base].own : base;
    for (uint32_t i = from; i < to; i++) {
        const gn_lay *lay = &e->layout->lay[e->layout->steps[i].node];
        if (lay->place == GN_PLACE_INPLACE && lay->own == leaf) return false;
    }
    return true;
}

/* Steps that the attention takes in: the product, the loop, the softmax, the cast. */
typedef struct written_steps {
    uint32_t n, at[4];
} written_steps;

static bool written_stays(const emit *e, const attention_form *f, const written_steps *steps, uint32_t values) {
    const gn_kernel_step *s = attention_loop(e, f);
    bool all = stays(e, f->in[0], steps->at[0], values) && stays(e, f->in[1], steps->at[0], values);
    for (uint32_t i = 0; s && i < s->n_loads; i++) {
        const gn_load *d = &e->layout->loads[s->load + i];
        all = all && (d->constant || stays(e, d->base, steps->at[0], values));
    }
    return all;
}

/* One kernel takes less time than the steps by themselves. */
static bool written_pays(const emit *e, const attention_form *f) {
    one_form one;
    int64_t width = f->q.dims[3] + f->v.dims[3];
    return f->flash || f->tiled || one_choose(e, f, &one) ||
           (f->queries * f->dims[3] <= PLAIN_SCORES && width <= PLAIN_WIDTH && f->span * width <= PLAIN_BLOCK);
}

/* An attention of the part in one kernel, where the layout lets it be one and that is faster. */
static bool find_written(const emit *e, const readers *r, const gn_written_attention *a, attention_form *f,
                         written_steps *steps, uint32_t *values) {
    uint32_t soft = a->softmax, cast = 0;
    const gn_view *out = view_of(e, soft);
    *f = (attention_form){ .written = true, .length_type = GN_I32, .scale = 1 };
    if (axis_of(attrs_of(e, soft)[0], out->rank) != out->rank - 1 || !is_between(e, r, soft) ||
        !find_scores(e, r, a, f))
        return false;
    *values = find_values(e, r, a, &cast);
    if (!*values || !written_views(e, e->layout->steps[*values - 1].node, f) ||
        strcmp(types[out->dtype].compute, types[f->q.dtype].compute) != 0)
        return false;
    *steps = (written_steps){ 1, { r->step[f->scores] - 1 } };
    if (f->loop) steps->at[steps->n++] = f->loop - 1;
    steps->at[steps->n++] = r->step[soft] - 1;
    if (cast) steps->at[steps->n++] = cast - 1;
    for (uint32_t k = 0; k < steps->n; k++)
        if (e->fusions[steps->at[k]].inside || e->fusions[steps->at[k]].product) return false;
    if (!written_stays(e, f, steps, *values - 1)) return false;
    f->mask_type = f->q.dtype;
    if (f->loop) fuse_scale(e, f);
    attention_decide(e, f);
    return written_pays(e, f);
}

/* Its steps become one; scores and weights then have no memory. False when there is no memory. */
static bool fuse_written(emit *e, const attention_form *f, const written_steps *steps, uint32_t values) {
    const gn_layout *l = e->layout;
    const gn_kernel_step *s = attention_loop(e, f);
    attention_form *kept = (attention_form *)gn_alloc(sizeof *kept);
    if (!kept) return false;
    *kept = *f;
    e->fusions[values - 1] = (fusion){ .product = values, .written = kept };
    for (uint32_t k = 0; k < steps->n; k++) {
        gn_lay *lay = &l->lay[l->steps[steps->at[k]].node];
        e->fusions[steps->at[k]].inside = true;
        lay->place = GN_PLACE_NONE;
        lay->kernel = false;
        e->fused++;
    }
    for (uint32_t k = 0; k < 2; k++) keep_until(e, f->in[k], runs_at(e, values - 1));
    for (uint32_t k = 0; s && k < s->n_loads; k++)
        if (!l->loads[s->load + k].constant) keep_until(e, l->loads[s->load + k].base, runs_at(e, values - 1));
    return true;
}

/* Decides which products and softmaxes run as one attention. False when there is no memory; told to end early it leaves
   the rest as it is. */
static bool fuse_attentions(emit *e, const readers *r) {
    gn_written_attention *found;
    uint32_t n;
    bool ok = gn_written_attentions(e->part, e->cancel, &found, &n, NULL) != GN_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n && ok; i++) {
        attention_form f;
        written_steps steps;
        uint32_t values;
        if (find_written(e, r, &found[i], &f, &steps, &values)) ok = fuse_written(e, &f, &steps, values);
    }
    gn_free(found);
    return ok;
}

/* Embeddings that one loop alone reads, element by element, from a constant table. */
static void fuse_lookups(emit *e, const readers *r, uint32_t i) {
    const gn_kernel_step *s = &e->layout->steps[i];
    if (e->fusions[i].inside || e->fusions[i].product || (i && e->layout->steps[i - 1].tail)) return;
    for (uint32_t k = 0; k < s->n_loads; k++) {
        const gn_load *d = &e->layout->loads[s->load + k];
        uint32_t node = d->base;
        if (d->constant || !node_is(e, node, GN_OP_EMBEDDING) || r->reads[node] != 1 || r->held[node] ||
            !r->step[node] || !is_whole(e, &d->view, node))
            continue;
        const gn_view *a = view_of(e, input(e, node, 0));
        int64_t vector = 16 / types[a->dtype].bytes;
        if (!is_constant(e, input(e, node, 0)) || !is_never_appended(e, input(e, node, 1)) || a->strides[1] != 1 ||
            a->dims[1] % vector || a->strides[0] % vector || base_offset(e, input(e, node, 0)) % 16)
            continue;
        if (gn_view_count(&d->view) != gn_view_count(view_of(e, s->node))) continue;
        e->inlined[node] = true;
        e->fusions[r->step[node] - 1].inside = true;
        e->fused++;
        keep_until(e, input(e, node, 1), s->node);
    }
}

/* ---- which reductions run with the loops around them ---- */

/* of: per step, 1 + its group */
typedef struct row_finder {
    emit *e;
    const readers *r;
    uint32_t *of;
    row_kernel *room;
} row_finder;

enum { ROW_REACH = 512 }; /* steps between a group's first and its last at most */

static uint32_t row_at(const emit *e, const row_group *g, uint32_t m) {
    return (uint32_t)(g->steps[m].step - e->layout->steps);
}

/* The loop that runs in the kernel of step i, a matmul; NULL: none. */
static const gn_kernel_step *tail_of(const emit *e, size_t i) {
    const gn_kernel_step *s = &e->layout->steps[i];
    bool fuses = s->tail && !e->fusions[i].inside && !e->fusions[i].product && !e->fusions[i + 1].inside &&
                 !e->fusions[i + 1].product && is_epilogue(e, s + 1) && !env_is("GENIE_CUDA_EPILOGUE", "0");
    return fuses ? s + 1 : NULL;
}

/* Nothing else computes the step, and it is one that groups are made of. */
static bool row_may(const emit *e, uint32_t i) {
    const gn_kernel_step *s = &e->layout->steps[i];
    if (e->fusions[i].inside || e->fusions[i].product || (i && tail_of(e, i - 1))) return false;
    if (!s->n_instrs)
        return reduce_kind_of(e, s->node) != REDUCE_NONE || row_softmax(e, s->node) || row_norm(e, s->node);
    for (uint32_t k = 0; k < s->n_loads; k++)
        if (e->inlined[e->layout->loads[s->load + k].base]) return false;
    return is_epilogue(e, s);
}

static bool same_dims(const gn_view *a, const gn_view *b) {
    return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

/* The axes that an op reduces or goes along; 0: it is none of rows. */
static int64_t row_axes(const emit *e, uint32_t node) {
    const gn_view *in = view_of(e, input(e, node, 0));
    if (reduce_kind_of(e, node)) return attrs_of(e, node)[0];
    if (row_norm(e, node)) return (int64_t)1 << (in->rank - 1);
    return row_softmax(e, node) ? (int64_t)1 << axis_of(attrs_of(e, node)[0], in->rank) : 0;
}

/* Whether a value of the group is read as it is computed: an element's by that element, a row's by that row. */
static bool row_reads_value(const row_group *g, const gn_load *d, bool value_full, bool full) {
    gn_view every = view_of_rows(g);
    if (d->view.offset) return false;
    if (full && !value_full) return same_view(&d->view, &every);
    return full == value_full && gn_view_is_dense(&d->view) &&
           gn_view_count(&d->view) == (full ? g->rows * g->n : g->rows);
}

/* Adds step i behind those that are there, when it computes over the same rows. */
static bool row_add(const emit *e, row_group *g, uint32_t i) {
    const gn_kernel_step *s = &e->layout->steps[i];
    const gn_view *v = view_of(e, s->n_instrs ? s->node : input(e, s->node, 0));
    row_step step = { .step = s, .full = same_dims(v, &g->shape) };
    bool one = s->n_instrs && !step.full;
    if (g->n_steps == ROW_STEPS || (one && gn_view_count(v) != g->rows) ||
        (!s->n_instrs && (!step.full || row_axes(e, s->node) != g->axes)))
        return false;
    for (uint32_t k = 0; k < row_inputs(e, s); k++) {
        gn_load d = row_input(e, g, s, k);
        int m = d.constant ? -1 : row_member(g, d.base);
        if (m < 0 && !d.constant && !is_never_appended(e, d.base)) return false;
        if (m < 0) continue;
        if ((!s->n_instrs && k) || !row_reads_value(g, &d, g->steps[m].full, !one)) return false;
        if (!s->n_instrs && !g->steps[m].full) return false;
        if (g->steps[m].level > step.level) step.level = g->steps[m].level;
    }
    if (one && !step.level) return false; /* a loop over rows that waits for no reduction of the group */
    if (!s->n_instrs) {
        step.full = reduce_kind_of(e, s->node) == REDUCE_NONE;
        step.level = (uint8_t)(step.level + (step.full ? 2 : 1));
    }
    g->steps[g->n_steps++] = step;
    return true;
}

static bool row_reads(const emit *e, const row_group *g, const gn_kernel_step *s) {
    for (uint32_t k = 0; k < row_inputs(e, s); k++) {
        if (s->n_instrs ? e->layout->loads[s->load + k].constant : false) continue;
        if (row_member(g, s->n_instrs ? e->layout->loads[s->load + k].base
                                      : e->layout->lay[input(e, s->node, k)].base) >= 0)
            return true;
    }
    return false;
}

/* What the group must store: what a step outside reads, or what is asked for. */
static void row_mark_stored(const row_finder *w, row_group *g) {
    for (uint32_t m = 0; m < g->n_steps; m++) {
        uint32_t node = g->steps[m].step->node, own = 0;
        for (uint32_t q = m + 1; q < g->n_steps; q++) {
            const gn_kernel_step *s = g->steps[q].step;
            for (uint32_t k = 0; k < row_inputs(w->e, s); k++) {
                gn_load d = row_input(w->e, g, s, k);
                own += !d.constant && d.base == node;
            }
        }
        g->steps[m].stored = w->r->held[node] || w->r->reads[node] > own;
    }
}

/* Sums that alone would run in one order do so together. */
static bool row_sums_agree(const emit *e, const row_group *g) {
    int bytes = 0;
    for (uint32_t m = 0; m < g->n_steps; m++) {
        int own = row_summed(e, g, m);
        if (bytes && own && own != bytes) return false;
        if (own) bytes = own;
    }
    return true;
}

/* A softmax or a norm of longer rows has kernels of its own. Rows in one block each pay when a row fits it, or there
   are enough of them for the device; a single reduction is cut as it needs. */
static bool row_pays(const row_finder *w, const row_group *g) {
    w->room->e = w->e;
    w->room->g = g;
    w->room->n_loads = 0;
    if (!row_loads(w->room) || !row_sums_agree(w->e, g)) return false;
    if (is_row_reduction(w->e, g)) return true;
    for (uint32_t m = 0; m < g->n_steps; m++)
        if (g->n > ROW_WIDEST && !g->steps[m].step->n_instrs &&
            reduce_kind_of(w->e, g->steps[m].step->node) == REDUCE_NONE)
            return false;
    if (row_order_of(w->room).parts > 1) return false;
    if (!rows_run_along(g)) return g->rows >= 256 * emit_processors(w->e);
    return g->n <= ROW_WIDEST || (g->n <= ROW_LONGEST && g->rows * 2 >= emit_processors(w->e));
}

/* The group with step i in it. False when it cannot run where its last step stands, for others between read what it
   gives, or when it does not pay. */
static bool row_with(const row_finder *w, const row_group *g, uint32_t group, uint32_t i, row_group *out) {
    const emit *e = w->e;
    *out = *g;
    out->n_steps = 0;
    for (uint32_t m = 0, added = 0; m < g->n_steps || !added;) {
        bool own = !added && (m == g->n_steps || i < row_at(e, g, m));
        if (!row_add(e, out, own ? i : row_at(e, g, m))) return false;
        if (own) added = 1;
        else m++;
    }
    uint32_t first = row_at(e, out, 0), last = row_at(e, out, out->n_steps - 1);
    if (last - first > ROW_REACH) return false;
    for (uint32_t t = first + 1; t < last; t++)
        if (t != i && w->of[t] != group && row_reads(e, out, &e->layout->steps[t])) return false;
    row_mark_stored(w, out);
    return row_pays(w, out);
}

/* Takes step i into a group, then the loops over elements before it that no group has. */
static bool row_group_add_step(row_finder *w, uint32_t group, uint32_t i) {
    emit *e = w->e;
    const gn_kernel_step *s = &e->layout->steps[i];
    row_group with;
    if (w->of[i] || !row_may(e, i) || !row_with(w, &e->groups[group - 1], group, i, &with)) return false;
    e->groups[group - 1] = with;
    w->of[i] = group;
    for (uint32_t k = 0; k < row_inputs(e, s); k++) {
        gn_load d = row_input(e, &with, s, k);
        uint32_t before = d.constant ? 0 : w->r->step[d.base];
        if (before && e->layout->steps[before - 1].n_instrs) row_group_add_step(w, group, before - 1);
    }
    return true;
}

/* A group of its own for a reduction, a softmax or a norm. */
static bool row_begin(row_finder *w, uint32_t i) {
    emit *e = w->e;
    uint32_t node = e->layout->steps[i].node;
    if (!grow(&e->groups, e->n_groups, &e->cap_groups, sizeof *e->groups)) return false;
    const gn_view *in = view_of(e, input(e, node, 0));
    row_group *g = &e->groups[e->n_groups];
    *g = (row_group){ .shape = gn_view_dense(in->dtype, in->rank, in->dims), .axes = row_axes(e, node), .n = 1 };
    for (int k = 0; k < in->rank; k++)
        if ((g->axes >> k) & 1) g->n *= in->dims[k];
    if (g->n < 2 || !gn_view_count(in)) return true;
    g->rows = gn_view_count(in) / g->n;
    e->n_groups++;
    if (!row_group_add_step(w, (uint32_t)e->n_groups, i)) e->n_groups--;
    return true;
}

static bool row_join(row_finder *w, uint32_t i) {
    const emit *e = w->e;
    const gn_kernel_step *s = &e->layout->steps[i];
    for (uint32_t k = 0; k < row_inputs(e, s); k++) {
        if (s->n_instrs && e->layout->loads[s->load + k].constant) continue;
        uint32_t before =
            w->r->step[s->n_instrs ? e->layout->loads[s->load + k].base : e->layout->lay[input(e, s->node, k)].base];
        if (before && w->of[before - 1] && row_group_add_step(w, w->of[before - 1], i)) return true;
    }
    return false;
}

/* The steps of a group run where its last stands: what they read lives until then, and what nobody else reads needs no
   memory. */
static void row_group_resolve(emit *e, uint32_t group) {
    const row_group *g = &e->groups[group];
    if (g->n_steps < 2) return;
    uint32_t last = row_at(e, g, g->n_steps - 1), at = e->layout->steps[last].node;
    for (uint32_t m = 0; m < g->n_steps; m++) {
        const gn_kernel_step *s = g->steps[m].step;
        for (uint32_t k = 0; k < row_inputs(e, s); k++) {
            gn_load d = row_input(e, g, s, k);
            if (!d.constant) keep_until(e, d.base, at);
        }
        if (!g->steps[m].stored) {
            e->layout->lay[s->node].kernel = false;
            e->layout->lay[s->node].place = GN_PLACE_NONE;
        }
        if (m + 1 < g->n_steps) fuse_in(e, row_at(e, g, m), last);
    }
    e->fusions[last].rows = group + 1;
}

/* of: per step, 1 + the group that has it. */
static bool fuse_reductions(emit *e, const readers *r, uint32_t *of) {
    const gn_layout *l = e->layout;
    row_finder w = { .e = e, .r = r, .of = of, .room = (row_kernel *)alloc_zero(sizeof *w.room) };
    bool ok = w.room != NULL;
    for (uint32_t i = 0; ok && i < l->n_steps; i++)
        if (!w.of[i] && row_may(e, i) && !row_join(&w, i) && !l->steps[i].n_instrs) ok = row_begin(&w, i);
    for (uint32_t i = 0; ok && i < e->n_groups; i++) row_group_resolve(e, i);
    gn_free(w.room);
    return ok;
}

/* ---- several products of one row, and what gives the row ---- */

enum { WITHIN_BYTES = 32 << 10 }; /* of a row that each block of a product computes for itself, in its shared memory */

/* What finds them. of: per step, 1 + its group of rows; open: per node, 1 + the products that read it as their row and
   may take more in. */
typedef struct vector_finder {
    emit *e;
    const readers *r;
    uint32_t *of, *open;
} vector_finder;

/* Whether step t reads the memory of `node`. */
static bool step_reads(const emit *e, uint32_t t, uint32_t node) {
    const gn_kernel_step *s = &e->layout->steps[t];
    if (!s->n_instrs) {
        for (uint32_t k = 0; k < e->part->nodes[s->node].n_ins; k++)
            if (e->layout->lay[input(e, s->node, k)].base == node) return true;
        return false;
    }
    for (uint32_t k = 0; k < s->n_loads; k++)
        if (!e->layout->loads[s->load + k].constant && e->layout->loads[s->load + k].base == node) return true;
    return false;
}

static uint32_t part_step(const vector_part *p) { return (p->loop ? p->loop : p->best ? p->best : p->product[0]) - 1; }
static uint32_t part_out(const emit *e, const vector_part *p) { return e->layout->steps[part_step(p)].node; }

/* A step that runs by step `to` reads what the group gives since `from`. */
static bool vectors_are_read(const emit *e, const vector_group *g, uint32_t from, uint32_t to) {
    for (uint32_t t = from + 1; t <= to; t++)
        for (uint32_t i = 0; i < g->n && e->runs[t] <= to; i++)
            if (step_reads(e, t, part_out(e, &g->parts[i]))) return true;
    return false;
}

/* The part whose product's columns meet those of `p` in its loop, or n. */
static uint32_t vector_partner(const vector_finder *w, const vector_group *g, const vector_part *p) {
    const emit *e = w->e;
    for (uint32_t i = 0; i < g->n && p->loop; i++) {
        uint32_t node = part_out(e, &g->parts[i]), own = e->layout->steps[p->product[0] - 1].node;
        const gn_kernel_step *s = &e->layout->steps[p->loop - 1];
        if (g->parts[i].loop || g->parts[i].best || g->parts[i].product[1] || w->r->reads[node] != 1 ||
            w->r->held[node] || gn_view_count(view_of(e, node)) != gn_view_count(view_of(e, own)))
            continue;
        for (uint32_t k = 0; k < s->n_loads; k++) {
            const gn_load *d = &e->layout->loads[s->load + k];
            if (!d->constant && d->base == node && is_whole(e, &d->view, node)) return i;
        }
    }
    return g->n;
}

/* The products of *g and this one as one kernel that runs where this one would. */
static bool vectors_with(const vector_finder *w, const vector_group *g, uint32_t at, vector_part p, vector_group *out) {
    const emit *e = w->e;
    vector_form form;
    uint32_t blocks[VECTOR_PARTS], partner = vector_partner(w, g, &p), from = part_step(&g->parts[g->n - 1]);
    *out = *g;
    if (p.best || g->parts[0].best || at <= from || at - from > ROW_REACH) return false;
    if (partner < g->n) {
        p.product[1] = g->parts[partner].product[0];
        memmove(&out->parts[partner], &out->parts[partner + 1], (g->n - partner - 1) * sizeof *out->parts);
        out->n--;
    }
    if (out->n == VECTOR_PARTS || (out->n && !out->parts[0].product[1] != !p.product[1]) ||
        vectors_are_read(e, out, from, at))
        return false;
    out->parts[out->n++] = p;
    for (uint32_t i = 0; i < g->n; i++)
        for (int q = 0; q < 2 && g->parts[i].product[q]; q++) {
            uint32_t node = e->layout->steps[g->parts[i].product[q] - 1].node;
            if (!are_never_appended(e, node, 0) ||
                e->part->nodes[e->layout->lay[input(e, node, 1)].base].leaf == GN_LEAF_NONE)
                return false;
        }
    for (uint32_t i = 0; i < g->n; i++) {
        const gn_kernel_step *s = g->parts[i].loop ? &e->layout->steps[g->parts[i].loop - 1] : NULL;
        for (uint32_t k = 0; s && k < s->n_loads; k++)
            if (!e->layout->loads[s->load + k].constant && !is_never_appended(e, e->layout->loads[s->load + k].base))
                return false;
    }
    return vectors_choose(e, out, &form, blocks);
}

/* All of the group runs at step `at`: what it reads lives until then. */
static void vectors_move(emit *e, const vector_group *g, uint32_t at) {
    for (uint32_t i = 0; i < g->n; i++) {
        const vector_part *p = &g->parts[i];
        const gn_kernel_step *s = p->loop ? &e->layout->steps[p->loop - 1] : NULL;
        for (int q = 0; q < 2 && p->product[q]; q++) {
            if (p->product[q] - 1 != at && !e->fusions[p->product[q] - 1].inside) fuse_in(e, p->product[q] - 1, at);
            e->runs[p->product[q] - 1] = at;
            keep_inputs(e, e->layout->steps[p->product[q] - 1].node, 0, at);
        }
        for (uint32_t k = 0; s && k < s->n_loads; k++)
            if (!e->layout->loads[s->load + k].constant)
                keep_until(e, e->layout->loads[s->load + k].base, e->layout->steps[at].node);
        if (part_step(p) != at && !e->fusions[part_step(p)].inside) fuse_in(e, part_step(p), at);
        e->runs[part_step(p)] = at;
    }
}

/* A product of one row joins those that read the same row before it, or begins anew. */
static bool vector_place(vector_finder *w, uint32_t i) {
    emit *e = w->e;
    const fusion *u = &e->fusions[i];
    vector_part p = { { u->product, 0 }, u->loop, u->best };
    uint32_t x = input(e, e->layout->steps[u->product - 1].node, 0), base = e->layout->lay[x].base;
    vector_group with;
    uint32_t *open = is_whole(e, view_of(e, x), base) ? &w->open[base] : NULL;
    if (open && *open && vectors_with(w, &e->vectors[*open - 1], i, p, &with)) {
        e->fusions[part_step(&e->vectors[*open - 1].parts[e->vectors[*open - 1].n - 1])].vectors = 0;
        e->vectors[*open - 1] = with;
        e->fusions[i].vectors = *open;
        vectors_move(e, &with, i);
        return true;
    }
    if (open && *open) refused(e, e->layout->steps[u->product - 1].node, REFUSED_APART);
    if (!grow(&e->vectors, e->n_vectors, &e->cap_vectors, sizeof *e->vectors)) return false;
    e->vectors[e->n_vectors++] = (vector_group){ .n = 1, .parts = { p } };
    e->fusions[i].vectors = (uint32_t)e->n_vectors;
    if (open) *open = (uint32_t)e->n_vectors;
    return true;
}

/* How many products of the group read the row. */
static uint32_t vectors_count(const vector_group *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) n += g->parts[i].product[1] ? 2 : 1;
    return n;
}

/* The layernorm of the row that these products alone read, by each warp for itself. */
static bool fuses_norm(const emit *e, const readers *r, uint32_t base, const vector_group *g) {
    vector_form form;
    uint32_t node = e->layout->steps[g->parts[0].product[0] - 1].node;
    vector_choose(e, node, 0, &form);
    if (!node_is(e, base, GN_OP_LAYERNORM) || r->reads[base] != vectors_count(g) || r->held[base] || !r->step[base] ||
        form.p.k > (form.dot || form.quantised ? 4 : 8) * 32 * form.vector || !are_never_appended(e, base, 0))
        return false;
    const gn_view *x = view_of(e, input(e, base, 0));
    if (x->dtype != view_of(e, base)->dtype || x->dims[x->rank - 1] != form.p.k ||
        !is_dense_row(e, input(e, base, 0), form.p.k, 16))
        return false;
    for (uint32_t i = 1; i < e->part->nodes[base].n_ins; i++)
        if (!is_dense_row(e, input(e, base, i), form.p.k, 16)) return false;
    return true;
}

/* Whether the rows of a group can be computed where step `at` runs, which alone reads `given` before others do. */
static bool rows_may_wait(const emit *e, const row_group *g, uint32_t given, uint32_t at) {
    uint32_t last = row_at(e, g, g->n_steps - 1);
    if (at <= last || at - last > ROW_REACH) return false;
    for (uint32_t m = 0; m < g->n_steps; m++)
        for (uint32_t k = 0; k < row_inputs(e, g->steps[m].step); k++) {
            gn_load d = row_input(e, g, g->steps[m].step, k);
            if (!d.constant && row_member(g, d.base) < 0 && !is_never_appended(e, d.base)) return false;
        }
    for (uint32_t t = last + 1; t <= at; t++)
        for (uint32_t m = 0; m < g->n_steps && e->runs[t] <= at; m++)
            if ((m != given || e->runs[t] != at) && step_reads(e, t, g->steps[m].step->node)) return false;
    return true;
}

/* The group of rows that gives `base`, so many of them, to a kernel that runs at step `at`: 1 + it, and which of its
   steps; 0: none that the kernel could compute for itself. */
static uint32_t fusable_rows(const vector_finder *w, uint32_t base, int64_t count, uint32_t at, uint32_t *given) {
    const emit *e = w->e;
    uint32_t group = w->r->step[base] ? w->of[w->r->step[base] - 1] : 0;
    if (!group) return 0;
    const row_group *g = &e->groups[group - 1];
    int m = row_member(g, base);
    if (m < 0 || !g->steps[m].full || !rows_run_along(g) ||
        g->n * count * types[view_of(e, base)->dtype].bytes > (count > 1 ? 2 * WITHIN_BYTES : WITHIN_BYTES) ||
        is_row_reduction(e, g) || !rows_may_wait(e, g, (uint32_t)m, at))
        return 0;
    *given = (uint32_t)m;
    return group;
}

/* What only the kernel at step `at` reads of the group needs no memory; all of the group runs there. */
static void rows_move(const vector_finder *w, uint32_t group, uint32_t given, uint32_t reads, uint32_t at) {
    emit *e = w->e;
    row_group *g = &e->groups[group - 1];
    uint32_t last = row_at(e, g, g->n_steps - 1), own = 0, node = g->steps[given].step->node;
    for (uint32_t m = 0; m < g->n_steps; m++) {
        const gn_kernel_step *s = g->steps[m].step;
        for (uint32_t k = 0; k < row_inputs(e, s); k++) {
            gn_load d = row_input(e, g, s, k);
            if (!d.constant) keep_until(e, d.base, e->layout->steps[at].node);
            own += !d.constant && d.base == node;
        }
        e->runs[row_at(e, g, m)] = at;
    }
    if (!w->r->held[node] && w->r->reads[node] == own + reads) {
        g->steps[given].stored = false;
        e->layout->lay[node].kernel = false;
        e->layout->lay[node].place = GN_PLACE_NONE;
    }
    e->fusions[last].rows = 0;
    if (!e->fusions[last].inside) fuse_in(e, last, at);
}

static int64_t vectors_rows(const emit *e, const vector_group *g) {
    vector_form form;
    vector_choose(e, vector_product(e, g, 0, 0), 0, &form);
    return form.p.m;
}

/* Of several rows each block computes all: that pays while the blocks run side by side. */
static bool vectors_reside(const emit *e, const vector_group *g) {
    uint32_t blocks[VECTOR_PARTS];
    int64_t grid = 0;
    vector_form form;
    if (!vectors_choose(e, g, &form, blocks)) return false;
    for (uint32_t i = 0; i < g->n; i++) grid += blocks[i];
    return form.p.m == 1 || grid <= 4 * emit_processors(e);
}

/* What gives the row runs in the products' kernel. */
static void vectors_fuse_row(vector_finder *w, uint32_t i) {
    emit *e = w->e;
    vector_group *g = &e->vectors[e->fusions[i].vectors - 1];
    uint32_t node = e->layout->steps[g->parts[0].product[0] - 1].node, x = input(e, node, 0),
             base = e->layout->lay[x].base, given;
    if (!is_whole(e, view_of(e, x), base)) return;
    uint32_t of = w->r->step[base] ? w->of[w->r->step[base] - 1] : 0;
    const int64_t count = vectors_rows(e, g);
    if (count == 1 && (!of || e->groups[of - 1].n_steps == 1) && fuses_norm(e, w->r, base, g)) {
        g->norm = w->r->step[base];
        fuse_in(e, g->norm - 1, i);
        e->fusions[g->norm - 1].rows = 0;
        keep_inputs(e, base, 0, i);
        return;
    }
    bool reside = vectors_reside(e, g);
    uint32_t group = reside ? fusable_rows(w, base, count, i, &given) : 0;
    if (!group || e->groups[group - 1].rows != count) {
        if (of && e->groups[of - 1].rows == count) refused(e, node, reside ? REFUSED_ROWS : REFUSED_BLOCKS);
        return;
    }
    g->rows = group;
    g->given = given;
    rows_move(w, group, given, vectors_count(g), i);
}

/* ---- what makes a query, or the row that is appended to keys ---- */

/* Rows of n, each of which begins at a multiple of n from the base's begin on. */
static bool shows_rows(const gn_view *v, int64_t n) {
    int64_t first = v->offset / types[v->dtype].bytes;
    if (v->rank < 1 || v->dims[v->rank - 1] != n || v->strides[v->rank - 1] != 1 || first % n) return false;
    for (int i = 0; i + 1 < v->rank; i++)
        if (v->dims[i] > 1 && (v->strides[i] % n || v->strides[i] < 0)) return false;
    return true;
}

/* A rotary embedding whose dense result this view alone shows; its step, or 0. */
static uint32_t fusable_rotary(const emit *e, const readers *r, uint32_t base) {
    if (!node_is(e, base, GN_OP_ROTARY) || r->reads[base] != 1 || r->held[base] || !r->step[base] ||
        !are_never_appended(e, base, 0) || e->fusions[r->step[base] - 1].inside)
        return 0;
    return r->step[base];
}

static void fuse_turn(vector_finder *w, uint32_t i, fusion *u, int which, uint32_t x, const gn_view *shown) {
    emit *e = w->e;
    int64_t n = shown->dims[3];
    uint32_t base = e->layout->lay[x].base;
    if (!shows_rows(shown, n)) return;
    u->turn[which] = fusable_rotary(e, w->r, base);
    if (u->turn[which]) {
        fuse_in(e, u->turn[which] - 1, i);
        keep_inputs(e, base, 0, i);
        x = input(e, base, 0);
        shown = view_of(e, x);
        base = e->layout->lay[x].base;
        if (!shows_rows(shown, n)) return;
    }
    if (w->r->reads[base] != 1 || w->r->held[base]) return;
    uint32_t given, group = fusable_rows(w, base, 1, i, &given);
    const row_group *g = group ? &e->groups[group - 1] : NULL;
    bool alone = g && g->n == n && e->layout->lay[base].view.dtype == shown->dtype;
    for (uint32_t m = 0; alone && m < g->n_steps; m++) alone = m == given || !g->steps[m].stored;
    if (!alone) return;
    u->made[which] = group;
    u->given[which] = given;
    rows_move(w, group, given, 1, i);
}

static void fuse_turns(vector_finder *w) {
    emit *e = w->e;
    for (uint32_t i = 0; i < e->layout->n_steps; i++) {
        fusion *u = &e->fusions[i];
        if (u->inside || u->product != i + 1 || u->vectors ||
            !(u->written || is_attention(e, e->layout->steps[i].node)))
            continue;
        attention_form shown = u->written ? *u->written : attention_choose(e, e->layout->steps[i].node);
        one_form form;
        if (!one_choose(e, &shown, &form) || form.a.moved[0]) continue;
        fuse_turn(w, i, u, 0, shown.in[0], &shown.q);
        if (!u->append[0]) continue;
        uint32_t row = input(e, e->layout->lay[shown.in[1]].base, 1);
        fuse_turn(w, i, u, 1, row, view_of(e, row));
    }
}

static void fuse_vectors(vector_finder *w, bool *ok) {
    emit *e = w->e;
    for (uint32_t i = 0; *ok && i < e->layout->n_steps; i++) {
        const fusion *u = &e->fusions[i];
        if (u->inside || !u->product || u->written || is_attention(e, e->layout->steps[u->product - 1].node)) continue;
        *ok = vector_place(w, i);
    }
    for (uint32_t i = 0; *ok && i < e->layout->n_steps; i++)
        if (e->fusions[i].vectors) vectors_fuse_row(w, i);
}

/* Whether a step reads the memory of a node, or writes to it. */
static bool step_meets(const emit *e, uint32_t i, uint32_t base) {
    const gn_layout *l = e->layout;
    const gn_kernel_step *s = &l->steps[i];
    const gn_lay *to = &l->lay[s->node];
    bool meets = to->base == base || (to->place == GN_PLACE_INPLACE && to->own == l->lay[base].own);
    for (uint32_t k = 0; s->n_instrs && k < s->n_loads; k++)
        meets = meets || (!l->loads[s->load + k].constant && l->loads[s->load + k].base == base);
    for (uint32_t k = 0; !s->n_instrs && k < e->part->nodes[s->node].n_ins; k++)
        meets = meets || l->lay[input(e, s->node, k)].base == base;
    return meets;
}

/* The next append to pages, in place, as this one and by the same slots, before which nothing needs the pool of one of
   those that have come together so far; 1 + its step, or 0. It is looked for near by: a client chooses how many appends
   and steps there are. */
enum { PAGE_REACH = 64 };

static uint32_t page_partner(const emit *e, uint32_t i) {
    uint32_t node = e->layout->steps[i].node, n = e->part->nodes[node].n_ins;
    for (uint32_t j = i + 1; j < e->layout->n_steps && j <= i + PAGE_REACH; j++) {
        uint32_t other = e->layout->steps[j].node;
        bool same = node_is(e, other, GN_OP_PAGE_APPEND) && e->part->nodes[other].n_ins == n &&
                    e->layout->lay[other].place == GN_PLACE_INPLACE;
        for (uint32_t k = 2; k < n && same; k++) same = input(e, node, k) == input(e, other, k);
        for (uint32_t m = i + 1; m; m = e->fusions[m - 1].pages)
            if (step_meets(e, j, e->layout->lay[e->layout->steps[m - 1].node].base)) return 0;
        const gn_view *a = view_of(e, node), *b = view_of(e, other);
        same = same && a->dims[0] == b->dims[0] && a->dims[2] == b->dims[2] && gn_view_count(b) > 0;
        if (same) return j + 1;
    }
    return 0;
}

/* Appends by the same slots, of keys and of values, run as one kernel where the last of them stands. */
enum { PAGE_APPENDS = 8 };

static void fuse_pages(emit *e, uint32_t i) {
    uint32_t node = e->layout->steps[i].node, many = 1, j;
    if (e->layout->lay[node].place != GN_PLACE_INPLACE || !gn_view_count(view_of(e, input(e, node, 1)))) return;
    for (uint32_t m = i + 1; m; m = e->fusions[m - 1].pages) {
        if (!are_never_appended(e, e->layout->steps[m - 1].node, 1)) return;
        many++;
    }
    j = many > PAGE_APPENDS ? 0 : page_partner(e, i);
    if (!j) refused(e, node, REFUSED_PAGES);
    if (!j) return;
    for (uint32_t m = i + 1; m; m = e->fusions[m - 1].pages) {
        keep_inputs(e, e->layout->steps[m - 1].node, 1, j - 1);
        if (m == i + 1) fuse_in(e, i, j - 1);
        else e->runs[m - 1] = j - 1;
    }
    e->fusions[j - 1].pages = i + 1;
}

/* First the steps that one reads: loops behind products, appends, rows; then what they are together. */
static bool fuse_by_step(emit *e, const readers *r) {
    for (uint32_t i = 0; i < e->layout->n_steps && !gn_flag_get(e->cancel); i++) {
        uint32_t node = e->layout->steps[i].node;
        if (e->fusions[i].written) fuse_attention(e, r, i);
        if (e->fusions[i].inside || e->fusions[i].product) continue;
        if (e->layout->steps[i].n_instrs) fuse_lookups(e, r, i);
        else if (node_is(e, node, GN_OP_MATMUL) || node_is(e, node, GN_OP_LINEAR) ||
                 node_is(e, node, GN_OP_LINEAR_QUANTIZED))
            fuse_vector(e, r, i);
        else if (is_attention(e, node)) fuse_attention(e, r, i);
        else if (node_is(e, node, GN_OP_PAGE_APPEND)) fuse_pages(e, i);
        /* a failed run puts back what lies there */
        if (e->layout->lay[node].place == GN_PLACE_INPLACE) keep_until(e, input(e, node, 2), e->part->n_nodes);
    }
    return !gn_flag_get(e->cancel);
}

/* Decides which steps run inside another's kernel, and lays memory out for it. False when there is no memory. */
static bool fuse_steps(emit *e) {
    readers r = { 0 };
    size_t n = e->layout->n_steps + 1;
    vector_finder w = { .e = e,
                        .r = &r,
                        .of = (uint32_t *)alloc_zero(n * sizeof *w.of),
                        .open = (uint32_t *)alloc_zero((e->part->n_nodes + 1) * sizeof *w.open) };
    e->runs = (uint32_t *)alloc_zero(n * sizeof *e->runs);
    bool ok = e->runs && w.of && w.open && readers_init(&r, e);
    for (uint32_t i = 0; ok && i < n; i++) e->runs[i] = i;
    ok = ok && fuse_attentions(e, &r);
    if (ok && fuse_by_step(e, &r)) {
        ok = fuse_reductions(e, &r, w.of);
        if (ok) fuse_turns(&w);
        if (ok) fuse_vectors(&w, &ok);
    }
    readers_deinit(&r);
    gn_free(w.of);
    gn_free(w.open);
    gn_free(e->runs);
    e->runs = NULL;
    return ok && gn_layout_pack(e->layout, e->fault) == GN_OK;
}

/* >>ops ==============================================================================================
 * The table of ops, and a step's way to its kernel. */

/* True when step i is done by a fused kernel: here, or elsewhere. */
static bool emit_fused(emit *e, size_t i) {
    const fusion *u = &e->fusions[i];
    uint32_t appends[PAGE_APPENDS], n = 0;
    if (!u->inside && !u->product && !u->rows && !u->pages) return false;
    if (u->inside) return true;
    if (u->pages) {
        for (uint32_t m = (uint32_t)i + 1; m && n < PAGE_APPENDS; m = e->fusions[m - 1].pages)
            appends[n++] = e->layout->steps[m - 1].node;
        emit_page_appends(e, appends, n);
        return true;
    }
    if (u->rows) {
        emit_rows(e, &e->groups[u->rows - 1]);
        return true;
    }
    if (u->vectors) emit_vector(e, &e->vectors[u->vectors - 1]);
    else emit_attended(e, u);
    return true;
}

/* Each op of the table that is no scalar row has its emit_NAME: a row without one does not compile. Scalar rows are
   fused loops made of the table's own text. */
static void emit_matmul(emit *e, uint32_t node) { emit_product(e, node); }
static void emit_linear(emit *e, uint32_t node) { emit_product(e, node); }
/* One row on tensor cores is the same kernel where nothing is fused. */
static void emit_linear_quantized(emit *e, uint32_t node) {
    vector_group g = { .n = 1 };
    vector_form form;
    if (!vector_choose(e, node, 0, &form) || !form.tensor) {
        emit_quant_linear(e, node);
        return;
    }
    g.parts[0].product[0] = e->step;
    emit_vector(e, &g);
}
static void emit_reshape(emit *e, uint32_t node) { emit_move(e, node); }
static void emit_permute(emit *e, uint32_t node) { emit_view(e, node); }
static void emit_slice(emit *e, uint32_t node) { emit_view(e, node); }
static void emit_broadcast(emit *e, uint32_t node) { emit_view(e, node); }

#define GN__CU_EMIT_SCALAR(name) NULL
#define GN__CU_EMIT_REDUCE(name) emit_##name
#define GN__CU_EMIT_MOVE(name) emit_##name
#define GN__CU_EMIT_STRUCTURED(name) emit_##name
#define GN__CU_EMIT_GENERATOR(name) emit_##name

static void (*const ops[GN_OP__COUNT])(emit *e, uint32_t node) = {
#define GN__X(NAME, name, wire, cls, ...) [GN_OP_##NAME] = GN__CU_EMIT_##cls(name),
    GN_STRUCTURED_OPS(GN__X)
#undef GN__X
};

static void emit_step(emit *e, size_t i) {
    const gn_kernel_step *s = &e->layout->steps[i];
    const uint16_t op = e->part->nodes[s->node].op;
    gn_op_info row = { .name = "of no row" };
    if (emit_fused(e, i)) return;
    if (s->n_instrs) {
        emit_loop(e, s);
        return;
    }
    if (op < GN_OP__COUNT && ops[op]) {
        ops[op](e, s->node);
        return;
    }
    gn_get_op(op - 1, &row);
    gn_fail(e->fault, GN_UNSUPPORTED, "the GPU executor does not know the op %s", row.name);
    e->failed = true;
}

/* >>compile ==========================================================================================
 * Kernels that are not yet in memory: from the cache's folder, then from NVRTC, up to twenty to a program and the
 * programs side by side. NVRTC runs without the device's lock; who needs a kernel that another thread compiles waits
 * for that kernel alone. */

enum { KERNELS_A_PROGRAM = 20, CACHE_BYTES = 512 << 20, CHOICES_WAIT_MS = 2000 };

/* The device text before the kernels of a program, and what follows it for kernels of sm_90a. */
static const char *const prelude[] = { shared_text,
                                       random_text,
                                       reduction_text,
                                       rows_text,
                                       product_text,
                                       tensor_text,
                                       sample_text,
                                       along_text,
                                       expert_text,
                                       quant_text,
                                       conv_text,
                                       conv_rows_text,
                                       conv_depth_text,
                                       pool_text,
                                       interpolate_text,
                                       recurrent_text,
                                       recurrent_back_text,
                                       attention_text,
                                       page_text,
                                       one_text,
                                       few_text,
                                       solve_text,
                                       NULL };
static const char *const hopper[] = { warpgroup_text,           wgmma_text,          sgemm_text,
                                      warpgroup_attention_text, warpgroup_conv_text, NULL };

static uint64_t hash_of_code(void) {
    uint64_t h = GN__CU_GENERATOR;
    for (const char *const *s = prelude; *s; s++) h = hash_bytes(h, *s, strlen(*s));
    for (const char *const *s = hopper; *s; s++) h = hash_bytes(h, *s, strlen(*s));
    return h;
}

/* ---- what of these texts a program needs: they are cut into declarations, and a program gets those whose names its
   kernels or another that it gets have in them. Of an empty kernel behind all texts the compiler takes 36 ms of a core,
   behind those of one row 27, alone 19. ---- */

enum { CODE_PIECES = 1024, CODE_NAMES = 1 << 11, CODE_DEFINED = 2048 };

/* One declaration, definition or #define; what stands between #if and #endif outside of braces is one piece. */
typedef struct code_piece {
    const char *s;
    size_t n;
    bool hopper, named;
} code_piece;

/* For each name that stands outside of braces its hash and the pieces that define it, as a list: `first` and `next` are
   places in defined[] plus one. */
static struct {
    pthread_once_t once;
    code_piece pieces[CODE_PIECES];
    uint64_t names[CODE_NAMES];
    uint16_t first[CODE_NAMES];
    struct {
        uint16_t piece, next;
    } defined[CODE_DEFINED];
    size_t n_pieces, n_names, n_defined;
} code_index = { .once = PTHREAD_ONCE_INIT };

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Where a name stands, or would. */
static size_t code_slot(const char *name, size_t n, uint64_t *out_hash) {
    uint64_t h = hash_bytes(15, name, n);
    h += h == 0;
    size_t i = (size_t)h % CODE_NAMES;
    while (code_index.names[i] && code_index.names[i] != h) i = (i + 1) % CODE_NAMES;
    *out_hash = h;
    return i;
}

/* The piece joins those that define the name. The texts are this file's own: they fill half of each table. */
static void code_add(const char *name, size_t n, size_t piece) {
    uint64_t h;
    size_t i = code_slot(name, n, &h);
    if (code_index.n_names > CODE_NAMES / 2 || code_index.n_defined == CODE_DEFINED)
        return; /* no kernel compiles then */
    code_index.n_names += !code_index.names[i];
    code_index.names[i] = h;
    code_index.defined[code_index.n_defined].piece = (uint16_t)piece;
    code_index.defined[code_index.n_defined].next = code_index.first[i];
    code_index.first[i] = (uint16_t)++code_index.n_defined;
    code_index.pieces[piece].named = true;
}

/* The end of a line, or of several that a backslash joins. */
static const char *line_end(const char *s) {
    while (*s && (*s != '\n' || s[-1] == '\\')) s++;
    return s;
}

/* Past a comment or a line for the preprocessor; s itself where there is none. */
static const char *code_skip(const char *s) { return *s == '#' || (s[0] == '/' && s[1] == '/') ? line_end(s) : s; }

/* A name is defined where it stands outside of braces and parentheses before one of ( [ = ; { or behind struct or
   #define, and in the braces of an enum. */
static void code_define(size_t piece) {
    const char *s = code_index.pieces[piece].s, *end = s + code_index.pieces[piece].n;
    int depth = 0, inside = 0;
    bool enumerates = false, named = false;
    while (s < end) {
        const char *from = s;
        if (strncmp(s, "#define ", 8) == 0) {
            for (s += 8, from = s; is_word(*s);) s++;
            code_add(from, (size_t)(s - from), piece);
            s = line_end(s);
        } else if (code_skip(s) != s) s = code_skip(s);
        else if (is_word(*s)) {
            while (is_word(*s)) s++;
            size_t n = (size_t)(s - from);
            const char *next = s + strspn(s, " ");
            bool ends = *next && strchr("([=;{", *next);
            if ((depth == 0 && inside == 0 && (named || ends)) || (depth == 1 && enumerates)) code_add(from, n, piece);
            named = n == 6 && memcmp(from, "struct", 6) == 0;
            enumerates = enumerates || (depth == 0 && n == 4 && memcmp(from, "enum", 4) == 0);
        } else {
            depth += (*s == '{') - (*s == '}');
            inside += (*s == '(') - (*s == ')');
            if (*s == '}' && depth == 0) enumerates = false;
            s++;
        }
    }
}

/* The end of the piece that begins at s: behind ; or the last } outside of braces, parentheses and conditions, or the
   line of a #define or #endif there. */
static const char *code_piece_end(const char *s) {
    int depth = 0, inside = 0, conditions = 0;
    while (*s) {
        const char *from = s;
        if (code_skip(s) != s) {
            s = code_skip(s);
            conditions += (strncmp(from, "#if", 3) == 0) - (strncmp(from, "#endif", 6) == 0);
            if (*from != '#') continue;
        } else {
            depth += (*s == '{') - (*s == '}');
            inside += (*s == '(') - (*s == ')');
            s++;
            if (*from == '}' && s[strspn(s, " \n")] == ';') continue;
            if (*from != ';' && *from != '}') continue;
        }
        if (depth == 0 && inside == 0 && conditions == 0) break;
    }
    return s;
}

static void code_cut(const char *code, bool for_hopper) {
    for (const char *s = code + strspn(code, " \n"), *end; *s; s = end + strspn(end, " \n")) {
        end = code_piece_end(s);
        if (code_index.n_pieces == CODE_PIECES) return; /* no kernel compiles then */
        code_index.pieces[code_index.n_pieces++] = (code_piece){ .s = s, .n = (size_t)(end - s), .hopper = for_hopper };
        code_define(code_index.n_pieces - 1);
    }
}

static void code_make_index(void) {
    for (const char *const *s = prelude; *s; s++) code_cut(*s, false);
    for (const char *const *s = hopper; *s; s++) code_cut(*s, true);
}

/* What a program gets, by the number of the piece; those that are not looked through yet wait in todo. */
typedef struct code_needed {
    bool hopper, taken[CODE_PIECES];
    uint16_t todo[CODE_PIECES];
    size_t n;
} code_needed;

static void code_need(code_needed *c, size_t piece) {
    if (c->taken[piece] || (code_index.pieces[piece].hopper && !c->hopper)) return;
    c->taken[piece] = true;
    c->todo[c->n++] = (uint16_t)piece;
}

/* The pieces that define what stands in this code. */
static void code_need_names(code_needed *c, const char *s, size_t n) {
    for (const char *end = s + n; s < end;) {
        const char *from = s;
        uint64_t h;
        while (s < end && is_word(*s)) s++;
        if (s == from) {
            if (s[0] == '/' && s[1] == '/') s = line_end(s);
            else s++;
            continue;
        }
        for (size_t at = code_index.first[code_slot(from, (size_t)(s - from), &h)]; at;
             at = code_index.defined[at - 1].next)
            code_need(c, code_index.defined[at - 1].piece);
    }
}

/* ---- the cache on disk: KEY.cubin holds a program, KEY.in names the program of a kernel ---- */

/* The folder's descriptor, below which all is opened; -1: there is none. Who may write there decides what runs in every
   session, so it is this user's, no one else may write to it, and it is no link; *out_why says when it is not so, else
   it is "". */
static int cache_folder(char *out_why, size_t cap) {
    const char *place = getenv("GENIE_CACHE"), *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME");
    char path[400];
    struct stat st;
    if (cap) *out_why = 0;
    if (place && *place) snprintf(path, sizeof path, "%s", place);
    else if (xdg && *xdg) snprintf(path, sizeof path, "%s/genie", xdg);
    else if (home && *home) snprintf(path, sizeof path, "%s/.cache/genie", home);
    else return -1;
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    mkdir(path, 0700);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *why = fd < 0 ? errno == ELOOP || (errno == ENOTDIR && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
                                   ? "is a link: give the folder itself"
                                   : NULL
                      : fstat(fd, &st) != 0    ? "cannot be looked at"
                      : st.st_uid != geteuid() ? "belongs to another user"
                      : st.st_mode & 022       ? "can be written by others: chmod go-w"
                                               : NULL;
    if (why) snprintf(out_why, cap, "%.300s %s", path, why);
    if (fd >= 0 && (why || faccessat(fd, ".", W_OK, AT_EACCESS) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A name that no one foretells. */
static bool cache_draw_name(char out[40]) {
    uint64_t words[2];
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool ok = random >= 0 && read(random, words, sizeof words) == (ssize_t)sizeof words;
    if (random >= 0) close(random);
    if (ok) snprintf(out, 40, "%016llx%016llx.tmp", (unsigned long long)words[0], (unsigned long long)words[1]);
    return ok;
}

/* Written beside and renamed: a reader sees the whole file or none. */
static bool cache_write(const char *name, const void *head, size_t head_n, const void *data, size_t n) {
    char aside[40];
    int folder = cache_folder(NULL, 0),
        fd = folder >= 0 && cache_draw_name(aside)
                 ? openat(folder, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
                 : -1;
    bool ok = fd >= 0 && write(fd, head, head_n) == (ssize_t)head_n && write(fd, data, n) == (ssize_t)n;
    if (fd >= 0) {
        ok = close(fd) == 0 && ok;
        ok = ok && renameat(folder, aside, folder, name) == 0;
        if (!ok) unlinkat(folder, aside, 0);
    }
    if (folder >= 0) close(folder);
    return ok;
}

/* A file of the folder that is this user's alone to write; NULL: there is no such file. */
static char *cache_read(const char *name, size_t *out_n) {
    struct stat st;
    int folder = cache_folder(NULL, 0),
        fd = folder >= 0 ? openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    if (folder >= 0) close(folder);
    if (fd < 0) return NULL;
    bool ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) &&
                st.st_size > 0 && st.st_size < CACHE_BYTES;
    char *data = ours ? (char *)gn_alloc((size_t)st.st_size) : NULL;
    bool ok = data && read(fd, data, (size_t)st.st_size) == (ssize_t)st.st_size;
    close(fd);
    if (!ok) {
        gn_free(data);
        return NULL;
    }
    *out_n = (size_t)st.st_size;
    return data;
}

/* A program's file: head, texts, code. */
typedef struct cache_head {
    char magic[8];
    uint64_t texts, code, hash;
} cache_head;

/* What a program is made for and of: each text with its length before it, in 8 bytes. */
static void texts_add(text *t, const char *s) {
    uint64_t n = strlen(s);
    text_add(t, (const char *)&n, sizeof n);
    text_add(t, s, n);
}

static bool texts_hold(const char *texts, size_t n, const char *s) {
    const uint64_t want = strlen(s);
    for (size_t at = 0; n - at >= sizeof want;) {
        uint64_t have;
        memcpy(&have, texts + at, sizeof have);
        at += sizeof have;
        if (have > n - at) return false;
        if (have == want && memcmp(texts + at, s, have) == 0) return true;
        at += have;
    }
    return false;
}

/* What decides, beside the kernels' texts, what code they become; names of texts begin otherwise. */
static void program_versions(const struct device *d, char *out, size_t cap) {
    snprintf(out, cap, "%s nvrtc %d generator %d prelude %016llx", d->arch_name, cu.nvrtc_version, GN__CU_GENERATOR,
             (unsigned long long)d->code_hash);
}

static void cache_put_program(const char *key, const text *texts, const void *code, size_t n) {
    cache_head h = { "GNCUBI2", texts->n, n, hash_bytes(hash_bytes(1, texts->s, texts->n), code, n) };
    char name[64], *all = (char *)gn_alloc(texts->n + n);
    if (!all) return; /* compiled again the next time */
    memcpy(all, texts->s, texts->n);
    memcpy(all + texts->n, code, n);
    snprintf(name, sizeof name, "%s.cubin", key);
    cache_write(name, &h, sizeof h, all, texts->n + n);
    gn_free(all);
}

/* A program that holds the kernel: its texts, and behind them its code. NULL when it is absent or damaged, or is
   another one. */
static char *cache_get_program(const struct device *d, const char *key, const kernel *k, size_t *out_texts) {
    cache_head h;
    char name[64], versions[120];
    size_t n = 0;
    snprintf(name, sizeof name, "%s.cubin", key);
    program_versions(d, versions, sizeof versions);
    char *data = cache_read(name, &n);
    if (data && n > sizeof h) {
        memcpy(&h, data, sizeof h);
        n -= sizeof h;
        memmove(data, data + sizeof h, n);
        bool whole = memcmp(h.magic, "GNCUBI2", 8) == 0 && h.texts < n && h.code == n - h.texts &&
                     h.hash == hash_bytes(hash_bytes(1, data, h.texts), data + h.texts, h.code);
        *out_texts = (size_t)h.texts;
        if (whole && texts_hold(data, *out_texts, versions) && texts_hold(data, *out_texts, k->source)) return data;
    }
    gn_free(data);
    return NULL;
}

static bool cache_made(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && strlen(name) < 80 &&
           (strcmp(dot, ".cubin") == 0 || strcmp(dot, ".in") == 0 || strcmp(dot, ".tmp") == 0);
}

/* Removes the oldest of the compiler's files until they are at most half of their bound. */
static void cache_bound(void) {
    struct {
        char name[80];
        time_t at;
        off_t bytes;
    } *files = NULL;
    size_t n = 0, cap = 0;
    off_t total = 0;
    struct stat st;
    int folder = cache_folder(NULL, 0), copy = folder >= 0 ? dup(folder) : -1;
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (copy >= 0 && !d) close(copy);
    for (struct dirent *f; d && (f = readdir(d)) != NULL;) {
        if (!cache_made(f->d_name) || fstatat(folder, f->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (!grow(&files, n, &cap, sizeof *files)) break;
        memcpy(files[n].name, f->d_name, strlen(f->d_name) + 1);
        files[n].at = st.st_mtime;
        files[n++].bytes = st.st_size;
        total += st.st_size;
    }
    if (d) closedir(d);
    for (bool full = total > CACHE_BYTES; full && n && total > CACHE_BYTES / 2;) {
        size_t oldest = 0;
        for (size_t i = 1; i < n; i++)
            if (files[i].at < files[oldest].at) oldest = i;
        unlinkat(folder, files[oldest].name, 0);
        total -= files[oldest].bytes;
        files[oldest] = files[--n];
    }
    if (folder >= 0) close(folder);
    gn_free(files);
}

/* ---- choices-KEY on disk: the table of choices of one GPU under one set of versions ---- */

typedef struct choices_head {
    char magic[8];
    uint64_t id, n, hash;
} choices_head;

static uint64_t choices_hash(uint64_t id, const stored_choice *all, size_t n) {
    return hash_bytes(hash_bytes(4, &id, sizeof id), all, n * sizeof *all);
}

/* Reads the file: *out_n choices, which the caller frees, and its id. False: it is absent, or (*out_bad) not what was
   written. */
static bool choices_read(const choices *table, stored_choice **out, size_t *out_n, uint64_t *out_id, bool *out_bad) {
    choices_head h = { "", 0, 0, 0 };
    size_t bytes = 0;
    char *data = cache_read(table->name, &bytes);
    *out_bad = false;
    if (!data) return false;
    if (bytes >= sizeof h) memcpy(&h, data, sizeof h);
    bool ok =
        memcmp(h.magic, "GNCHOIC", 8) == 0 && h.id && h.n <= CHOICES_MAX && bytes == sizeof h + h.n * sizeof **out;
    if (ok) memmove(data, data + sizeof h, bytes - sizeof h);
    *out = (stored_choice *)(void *)data;
    ok = ok && h.hash == choices_hash(h.id, *out, h.n);
    for (size_t i = 0; i < h.n && ok; i++) ok = (*out)[i].choice.kind < CHOICE__COUNT && (*out)[i].choice.index < 16;
    if (!ok) gn_free(data);
    *out_bad = !ok;
    *out_n = h.n;
    *out_id = h.id;
    return ok;
}

static bool choices_write(const choices *table) {
    choices_head h = { "GNCHOIC", table->id, table->n, choices_hash(table->id, table->all, table->n) };
    return cache_write(table->name, &h, sizeof h, table->all, table->n * sizeof *table->all);
}

/* One process at a time reads and writes the file; -1: not possible here, or another one keeps it for itself. */
static int choices_lock(const choices *table) {
    char name[64];
    int folder = cache_folder(NULL, 0);
    snprintf(name, sizeof name, "%s.lock", table->name);
    int fd = folder >= 0 ? openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (folder >= 0) close(folder);
    const uint64_t until = gn_now_us() + CHOICES_WAIT_MS * 1000;
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        bool waits = (errno == EWOULDBLOCK || errno == EINTR) && gn_now_us() < until;
        if (!waits) {
            int e = errno;
            close(fd);
            errno = e;
            return -1;
        }
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return fd;
}

/* How many of them differ from this one in the rows alone. */
static int choices_alike(const choices *table, product_key key) {
    int n = 0;
    for (size_t i = 0; i < table->n; i++) {
        key.m = table->all[i].key.m;
        n += memcmp(&table->all[i].key, &key, sizeof key) == 0;
    }
    return n;
}

static bool choices_add(choices *table, const stored_choice *c) {
    if (choices_find(table, &c->key)) return true;
    if (table->n >= CHOICES_MAX || !grow(&table->all, table->n, &table->cap, sizeof *table->all)) return false;
    table->all[table->n++] = *c;
    return true;
}

/* Takes what other processes have decided. False: the file is another one now. */
static bool choices_join(choices *table) {
    stored_choice *all;
    size_t n;
    uint64_t id;
    bool bad;
    if (!choices_read(table, &all, &n, &id, &bad)) return !bad; /* removed: it is written again */
    bool ok = id == table->id;
    for (size_t i = 0; i < n && ok; i++) choices_add(table, &all[i]);
    gn_free(all);
    return ok;
}

/* Decides for the shapes of `fresh`, but for those that have been decided meanwhile, and stores. Under the device's
   lock. */
static bool choices_decide(choices *table, const stored_choice *fresh, size_t n) {
    int fd = choices_lock(table);
    size_t before = 0;
    bool ok = fd >= 0 && choices_join(table);
    before = table->n;
    for (size_t i = 0; i < n && ok; i++) ok = choices_add(table, &fresh[i]);
    ok = ok && (table->n == before || choices_write(table));
    if (!ok && table->n > before) table->n = before;
    table->closed = !ok;
    if (fd >= 0) close(fd);
    return ok;
}

static uint64_t choices_draw_id(void) {
    uint64_t words[4] = { gn_now_us(), (uint64_t)time(NULL), (uint64_t)getpid(), 0 };
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (random >= 0 && read(random, &words[3], sizeof words[3]) < 0) words[3] = 1; /* time and process are left */
    if (random >= 0) close(random);
    return hash_bytes(6, words, sizeof words) | 1;
}

/* The table of this device, from its file or made anew. *out_rejected: a damaged file was; *out_locked: another process
   has kept it. */
static void choices_open(struct device *d, bool *out_rejected, bool *out_locked) {
    choices *table = &d->choices;
    const char *least = getenv("GENIE_CUDA_TUNE");
    char what[400], *end = NULL;
    *out_rejected = *out_locked = false;
    if (table->opened || d->compile_only || (least && *least && !(strtod(least, NULL) > 0))) return;
    table->opened = true;
    for (int plain = 0; plain < 2; plain++) {
        table->least[plain] = least && *least ? strtod(least, &end) : plain ? 0.4e9 : 4e9;
        table->least_blas[plain] = end && *end == ',' ? strtod(end + 1, NULL)
                                   : end              ? table->least[plain]
                                   : plain            ? 10e9
                                                      : 50e9;
    }
    bool has_blas = blas_is_there();
    snprintf(what, sizeof what, "%s %s %d %d %d %016llx %g %g %g %g %d %llu", d->name, d->arch_name, d->processors,
             cu.driver_version, cu.nvrtc_version, (unsigned long long)d->code_hash, table->least[0], table->least[1],
             table->least_blas[0], table->least_blas[1], has_blas ? blas.major : 0,
             (unsigned long long)(has_blas ? blas.bytes : 0));
    snprintf(table->name, sizeof table->name, "choices-%016llx", (unsigned long long)hash_bytes(8, what, strlen(what)));
    int fd = choices_lock(table);
    *out_locked = fd < 0 && errno == EWOULDBLOCK;
    if (fd < 0) return;
    if (choices_read(table, &table->all, &table->n, &table->id, out_rejected)) table->cap = table->n;
    else {
        table->all = NULL;
        table->n = table->cap = 0;
        table->id = choices_draw_id();
        if (!choices_write(table)) table->id = 0;
    }
    close(fd);
}

/* ---- programs ---- */

typedef struct program {
    struct device *device;
    kernel *kernels[KERNELS_A_PROGRAM];
    int n;
    char key[40];
    char *code; /* cubin, or PTX for a device that NVRTC does not know */
    size_t bytes;
    char *log;
    uint64_t us; /* that the compiler took */
    bool failed;
} program;

static bool program_code(program *p, gn__cu_handle h) {
    bool ptx = strncmp(p->device->arch_name, "compute", 7) == 0;
    if ((ptx ? cu.nvrtcGetPTXSize(h, &p->bytes) : cu.nvrtcGetCUBINSize(h, &p->bytes)) != 0) return false;
    p->code = (char *)gn_alloc(p->bytes ? p->bytes : 1);
    return p->code && (ptx ? cu.nvrtcGetPTX(h, p->code) : cu.nvrtcGetCUBIN(h, p->code)) == 0;
}

static void program_log(program *p, gn__cu_handle h) {
    size_t n = 0;
    gn_free(p->log);
    p->log = NULL;
    if (cu.nvrtcGetProgramLogSize(h, &n) != 0 || !n) return;
    p->log = (char *)gn_alloc(n + 1);
    if (p->log) {
        cu.nvrtcGetProgramLog(h, p->log);
        p->log[n] = 0;
    }
}

static bool needs_hopper(const kernel *k) {
    return strncmp(k->name, "wgmma_", 6) == 0 || strncmp(k->name, "sgemm_fed", 9) == 0;
}

/* What its kernels need of the device text, in its order, and these. Pieces without a name belong to all; so do the
   conversions, which stand-ins for instructions of tensor cores use where there are none. */
static void put_program(const program *p, text *t) {
    static const char always[] = "get put";
    code_needed c = { 0 };
    pthread_once(&code_index.once, code_make_index);
    for (int i = 0; i < p->n; i++) c.hopper = c.hopper || needs_hopper(p->kernels[i]);
    for (size_t i = 0; i < code_index.n_pieces; i++)
        if (!code_index.pieces[i].named) code_need(&c, i);
    code_need_names(&c, always, strlen(always));
    for (int i = 0; i < p->n; i++) code_need_names(&c, p->kernels[i]->source, strlen(p->kernels[i]->source));
    while (c.n) {
        const code_piece *piece = &code_index.pieces[c.todo[--c.n]];
        code_need_names(&c, piece->s, piece->n);
    }
    for (size_t i = 0; i < code_index.n_pieces; i++) {
        if (!c.taken[i]) continue;
        text_add(t, code_index.pieces[i].s, code_index.pieces[i].n);
        text_add(t, "\n", 1);
    }
    for (int i = 0; i < p->n; i++) put(t, "%s", p->kernels[i]->source);
}

/* Options that older versions do not know come last and are left out at a second try. */
static void program_compile(program *p) {
    char arch[48];
    const char *options[] = {
        arch, "-fmad=false", "--std=c++14", "-w", "--minimal", "--no-cache", "--modify-stack-limit=false"
    };
    text t = { 0 };
    gn__cu_handle h = NULL;
    const uint64_t from = gn_now_us();
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", p->device->arch_name);
    put_program(p, &t);
    p->failed = t.failed;
    for (int n = 7, r = 5; n >= 3 && r == 5 && !t.failed; n -= 4) { /* 5: an invalid option */
        if (cu.nvrtcCreateProgram(&h, t.s, "genie.cu", 0, NULL, NULL) != 0) {
            p->failed = true;
            break;
        }
        r = cu.nvrtcCompileProgram(h, n, options);
        program_log(p, h);
        p->failed = r != 0 || !program_code(p, h);
        cu.nvrtcDestroyProgram(&h);
    }
    text_free(&t);
    p->us += gn_now_us() - from;
}

typedef struct compile_queue {
    program *programs;
    size_t n, next;
    const gn_flag *cancel;
    pthread_mutex_t lock;
} compile_queue;

static void *compile_worker(void *arg) {
    compile_queue *q = (compile_queue *)arg;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        size_t i = q->next < q->n && !gn_flag_get(q->cancel) ? q->next++ : q->n;
        pthread_mutex_unlock(&q->lock);
        if (i == q->n) return NULL;
        program_compile(&q->programs[i]);
    }
}

/* Those not begun when `cancel` is set are left without code. */
static void compile_programs(program *programs, size_t n, const gn_flag *cancel) {
    compile_queue q = { programs, n, 0, cancel, PTHREAD_MUTEX_INITIALIZER };
    pthread_t threads[16];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t more = 0, want = (size_t)(cores > 16 ? 16 : cores > 2 ? cores : 2);
    if (want > n) want = n;
    for (; more + 1 < want; more++)
        if (pthread_create(&threads[more], NULL, compile_worker, &q) != 0) break;
    compile_worker(&q);
    for (size_t i = 0; i < more; i++) pthread_join(threads[i], NULL);
}

/* Loads code, with the texts that it is made of; its kernels leave it one by one. NULL when the driver does not take
   it. */
static module *module_load(struct device *d, const char *key, const char *texts, size_t n_texts, const char *code) {
    module *m = (module *)alloc_zero(sizeof *m);
    if (m) m->texts = (char *)gn_alloc(n_texts);
    if (!m || !m->texts || cu.cuModuleLoadDataEx(&m->handle, code, 0, NULL, NULL) != 0) {
        if (m) gn_free(m->texts);
        gn_free(m);
        return NULL;
    }
    memcpy(m->texts, texts, n_texts);
    m->n_texts = n_texts;
    snprintf(m->key, sizeof m->key, "%s", key);
    m->next = d->modules;
    d->modules = m;
    return m;
}

/* The loaded program of this key that holds the kernel. */
static module *module_find(const struct device *d, const char *key, const kernel *k) {
    module *m = d->modules;
    while (m && (strcmp(m->key, key) != 0 || !texts_hold(m->texts, m->n_texts, k->source))) m = m->next;
    return m;
}

static bool kernel_enter(kernel *k, module *m) {
    if (k->function || cu.cuModuleGetFunction(&k->function, m->handle, k->name) != 0) return k->function != NULL;
    k->from = m;
    m->users++;
    return true;
}

/* One that no kernel entered goes again. */
static void module_drop_unused(struct device *d, module *m) {
    m->users++;
    module_release(d, m);
}

static void program_key(program *p) {
    uint64_t h[2] = { 11, 22 };
    for (int i = 0; i < p->n; i++)
        for (int l = 0; l < 2; l++) h[l] = hash_bytes(h[l], p->kernels[i]->key, sizeof p->kernels[i]->key);
    snprintf(p->key, sizeof p->key, "%016llx%016llx", (unsigned long long)h[0], (unsigned long long)h[1]);
}

static text program_texts(const program *p) {
    char versions[120];
    text t = { 0 };
    program_versions(p->device, versions, sizeof versions);
    texts_add(&t, versions);
    for (int i = 0; i < p->n; i++) texts_add(&t, p->kernels[i]->source);
    return t;
}

/* Functions of a program's kernels. False when the driver does not take the code. */
static bool program_load(program *p, const text *texts) {
    if (p->device->compile_only) {
        for (int i = 0; i < p->n; i++) p->kernels[i]->compiled = true;
        return true;
    }
    module *m = module_load(p->device, p->key, texts->s, texts->n, p->code);
    bool ok = m != NULL;
    for (int i = 0; i < p->n && ok; i++) ok = kernel_enter(p->kernels[i], m);
    if (m) module_drop_unused(p->device, m);
    return ok;
}

static void kernel_key(const kernel *k, char out[40]) {
    snprintf(out, 40, "%016llx%016llx", (unsigned long long)k->key[0], (unsigned long long)k->key[1]);
}

static void program_store(program *p, const text *texts) {
    char key[40], name[64];
    /* a check of all kernels would fill the user's cache */
    if (p->device->compile_only && !getenv("GENIE_CACHE")) return;
    cache_put_program(p->key, texts, p->code, p->bytes);
    for (int i = 0; i < p->n; i++) {
        kernel_key(p->kernels[i], key);
        snprintf(name, sizeof name, "%s.in", key);
        cache_write(name, p->key, 32, "", 0);
    }
}

/* Loads what was compiled, and stores it. Under the device's lock. */
static bool program_install(program *p) {
    program_key(p);
    text texts = program_texts(p);
    bool ok = !texts.failed && program_load(p, &texts);
    if (ok) program_store(p, &texts);
    text_free(&texts);
    return ok;
}

/* One kernel of a program that failed, by itself, so that the blame is right. *us: what the compiler took. */
static void compile_alone(kernel *k, struct device *d, uint64_t *us) {
    program p = { .device = d, .kernels = { k }, .n = 1 };
    program_compile(&p);
    pthread_mutex_lock(&d->lock);
    if (p.failed) {
        k->why = p.log;
        p.log = NULL;
    } else program_install(&p); /* what compiles but does not load is tried again by the next plan */
    pthread_mutex_unlock(&d->lock);
    *us += p.us;
    gn_free(p.code);
    gn_free(p.log);
}

/* From the cache: loads the program that holds k, and with it all of its kernels that are wanted. */
static bool kernel_cached(struct device *d, kernel *k, kernel **all, size_t n) {
    char key[40], name[64], place[40] = "";
    size_t bytes = 0, texts = 0;
    kernel_key(k, key);
    snprintf(name, sizeof name, "%s.in", key);
    char *data = cache_read(name, &bytes);
    if (!data) return false;
    if (bytes == 32) memcpy(place, data, 32);
    place[32] = 0;
    gn_free(data);
    if (strspn(place, "0123456789abcdef") != 32) return false;
    module *m = d->compile_only ? NULL : module_find(d, place, k);
    if (!m) {
        if (!(data = cache_get_program(d, place, k, &texts))) return false;
        m = d->compile_only ? NULL : module_load(d, place, data, texts, data + texts);
        gn_free(data);
        if (d->compile_only) return k->compiled = true;
    }
    bool ok = m && kernel_enter(k, m);
    for (size_t i = 0; i < n && ok; i++)
        if (!all[i]->function && !all[i]->busy && texts_hold(m->texts, m->n_texts, all[i]->source))
            kernel_enter(all[i], m);
    if (m) module_drop_unused(d, m);
    return ok;
}

static bool kernel_ready(const kernel *k) { return k->function || k->compiled || k->why; }

/* ---- what each tenant's programs have cost the compiler ---- */

enum { COMPILE_SECONDS = 600, COMPILE_TENANTS = 64 };

/* spent: microseconds that are not yet forgotten; all of a full budget is within an hour. */
typedef struct compile_account {
    char tenant[64];
    uint64_t spent, at;
} compile_account;
static struct {
    pthread_mutex_t lock;
    compile_account all[COMPILE_TENANTS];
} compile_accounts = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Of one tenant, in microseconds of the compiler in an hour; 0: no bound. */
static uint64_t compile_budget(void) {
    const char *s = getenv("GENIE_CUDA_COMPILE_SECONDS");
    return (s && *s ? strtoull(s, NULL, 10) : COMPILE_SECONDS) * 1000000;
}

/* The tenant's account, brought up to date; of a tenant that is new that of the one which has the least on it. */
static compile_account *compile_account_of(const char *tenant, uint64_t budget) {
    compile_account *found = NULL, *least = &compile_accounts.all[0];
    const uint64_t now = gn_now_us();
    for (int i = 0; i < COMPILE_TENANTS; i++) {
        compile_account *a = &compile_accounts.all[i];
        uint64_t forgotten = (uint64_t)((double)(now - a->at) / 3600e6 * (double)budget);
        a->spent = a->spent > forgotten ? a->spent - forgotten : 0;
        a->at = now;
        if (strcmp(a->tenant, tenant) == 0) found = a;
        if (a->spent < least->spent) least = a;
    }
    if (found) return found;
    snprintf(least->tenant, sizeof least->tenant, "%s", tenant);
    least->spent = 0;
    return least;
}

/* Puts what was spent on the tenant's account; false: it is full. A program's own kernels (no tenant) have no bound. */
static bool compile_charge(const char *tenant, uint64_t us) {
    const uint64_t budget = compile_budget();
    if (!tenant || !*tenant || !budget) return true;
    pthread_mutex_lock(&compile_accounts.lock);
    compile_account *a = compile_account_of(tenant, budget);
    a->spent += us;
    bool ok = a->spent < budget;
    pthread_mutex_unlock(&compile_accounts.lock);
    return ok;
}

/* ---- compiling ---- */

/* Compiles n kernels that this thread has marked busy. The device's lock is free meanwhile; it is held before and
   after. Once `cancel` is set no further program is begun: what is compiled by then stays. */
static gn_result compile_busy(struct device *d, kernel **all, size_t n, const char *tenant, const gn_flag *cancel,
                              gn_fault *f) {
    if (!cu.nvrtc || *cu.nvrtc_why) return gn_fail(f, GN_NO_DEVICE, "%s", cu.nvrtc_why);
    if (!compile_charge(tenant, 0))
        return gn_fail(f, GN_LIMIT,
                       "this client has used up the %llu seconds per hour that the GPU's compiler may take for it: use "
                       "fewer shapes, or wait",
                       (unsigned long long)(compile_budget() / 1000000));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    /* few kernels: one to a program, so that all cores compile */
    size_t each = n / (size_t)(cores > 0 ? cores : 1);
    each = each < 1 ? 1 : each > KERNELS_A_PROGRAM ? KERNELS_A_PROGRAM : each;
    size_t n_programs = (n + each - 1) / each;
    program *programs = (program *)alloc_zero(n_programs * sizeof *programs);
    if (!programs) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to compile %llu kernels", (unsigned long long)n);
    for (size_t i = 0; i < n; i++) {
        program *p = &programs[i % n_programs]; /* dealt out, so that programs are of equal size */
        p->device = d;
        p->kernels[p->n++] = all[i];
    }
    uint64_t us = 0;
    pthread_mutex_unlock(&d->lock);
    compile_programs(programs, n_programs, cancel);
    for (size_t i = 0; i < n_programs; i++) {
        program *p = &programs[i];
        pthread_mutex_lock(&d->lock);
        bool ok = !p->failed && p->code && program_install(p);
        pthread_mutex_unlock(&d->lock);
        us += p->us;
        for (int l = 0; l < p->n && !ok && !gn_flag_get(cancel); l++) compile_alone(p->kernels[l], d, &us);
        gn_free(p->code);
        gn_free(p->log);
    }
    gn_free(programs);
    compile_charge(tenant, us);
    cache_bound();
    pthread_mutex_lock(&d->lock);
    const gn_result why = gn_flag_get(cancel);
    return why == GN_OK ? GN_OK : gn_fail(f, why, "the compiling of kernels ended: %s", gn_result_text(why));
}

/* Of those that are neither ready nor another thread's, what the cache does not have; marked busy. Under the device's
   lock. */
static size_t compile_claim(struct device *d, kernel **all, size_t n, kernel **out) {
    size_t claimed = 0;
    for (size_t i = 0; i < n; i++) {
        kernel *k = all[i];
        if (k->busy || kernel_ready(k) || kernel_cached(d, k, all, n)) continue;
        k->busy = true;
        out[claimed++] = k;
    }
    return claimed;
}

static bool any_busy(kernel **all, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (all[i]->busy) return true;
    return false;
}

/* Waits, under the device's lock, until another thread has compiled something, or for a moment after which `cancel` is
   looked at. */
static void compile_await(struct device *d, const gn_flag *cancel) {
    enum { LOOK_NS = 20000000 };
    struct timespec at;
    if (!cancel) {
        pthread_cond_wait(&d->compiled, &d->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += LOOK_NS;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&d->compiled, &d->lock, &at);
}

/* Makes all n kernels runnable, which the caller holds; `why` of those that do not compile. tenant: who pays, NULL: no
   one. What `cancel` (NULL: nothing) is set to ends it early. */
static gn_result compile_kernels(struct device *d, kernel **all, size_t n, const char *tenant, const gn_flag *cancel,
                                 gn_fault *f) {
    kernel **mine = (kernel **)gn_alloc((n + 1) * sizeof *mine);
    gn_result r = GN_OK;
    bool again = true;
    if (!mine) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to compile %llu kernels", (unsigned long long)n);
    pthread_mutex_lock(&d->lock);
    while (again && r == GN_OK) {
        size_t claimed = compile_claim(d, all, n, mine);
        if (claimed) r = compile_busy(d, mine, claimed, tenant, cancel, f);
        for (size_t i = 0; i < claimed; i++) mine[i]->busy = false;
        if (claimed) pthread_cond_broadcast(&d->compiled);
        again = any_busy(all, n); /* another thread may fail for reasons of its own: what it leaves is compiled here */
        while (r == GN_OK && any_busy(all, n) && !gn_flag_get(cancel)) compile_await(d, cancel);
        if (r == GN_OK && again && gn_flag_get(cancel))
            r = gn_fail(f, gn_flag_get(cancel), "the wait for kernels that another client has compiled ended: %s",
                        gn_result_text(gn_flag_get(cancel)));
    }
    pthread_mutex_unlock(&d->lock);
    gn_free(mine);
    return r;
}

#ifdef GENIE_TEST
/* A kernel's kind: its label, without the hash of its text. */
static size_t kind_length(const kernel *k) { return strlen(k->name) - 13; }

static bool kind_is_in(const kernel *k, kernel **all, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (kind_length(all[i]) == kind_length(k) && strncmp(all[i]->name, k->name, kind_length(k)) == 0) return true;
    return false;
}

/* For tests that cannot run every shape ($GENIE_CUDA_ONE_OF_EACH): a plan is wanted when a kind of kernel is new in
   it. */
static bool plan_has_a_new_kind(struct device *d, const launch *launches, size_t n) {
    bool is_new = false;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++) {
        const kernel *k = launches[i].kernel;
        if (!k) continue;
        uint64_t h = hash_bytes(3, k->name, kind_length(k)) | 1;
        size_t at = (size_t)h & 4095;
        while (d->kinds[at] && d->kinds[at] != h) at = (at + 1) & 4095;
        is_new = is_new || !d->kinds[at];
        d->kinds[at] = h;
    }
    for (size_t i = 0; i < n && is_new; i++)
        if (launches[i].kernel) launches[i].kernel->chosen = true;
    pthread_mutex_unlock(&d->lock);
    return is_new;
}

static bool needs_tensor_cores(const kernel *k) {
    return needs_hopper(k) || strncmp(k->name, "tensor_", 7) == 0 || strncmp(k->name, "flash_", 6) == 0 ||
           strncmp(k->name, "sgemm_async", 11) == 0 || strstr(k->name, "few_times_") || strstr(k->name, "few_dot_") ||
           strstr(k->name, "_tensor_");
}

/* Every third, beginning at one of the first three. */
static size_t third_of(kernel **all, size_t n, size_t at) {
    size_t kept = 0;
    for (size_t i = at % 3; i < n; i += 3) all[kept++] = all[i];
    return kept;
}

/* Compiles what was generated for the compile-only device, or one kernel of each kind, for an arch; for the test of
   kernels. Returns their number; *out_failed of them do not compile, and `text` says why of the first. */
GN_API size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text,
                                        size_t cap);
size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text, size_t cap) {
    struct device *d = &devices[DEVICES_MAX];
    kernel **all = (kernel **)gn_alloc((d->n_kernels + 1) * sizeof *all);
    const char *sample = getenv("GENIE_CUDA_SAMPLE");
    size_t n = 0, every = sample && atoi(sample) > 1 ? (size_t)atoi(sample) : 1, at = (size_t)getpid() % every;
    gn_fault f = { 0 };
    *out_failed = 0;
    if (cap) *out_text = 0;
    if (!all) return 0;
    bool same = strcmp(d->arch_name, arch) == 0;
    snprintf(d->arch_name, sizeof d->arch_name, "%s", arch);
    for (kernel *k = d->newest; k; k = k->older) {
        if (one_of_each && (env_is("GENIE_CUDA_ONE_OF_EACH", "1") ? !k->chosen : kind_is_in(k, all, n))) continue;
        if (!one_of_each && ++at % every != 0 && kind_is_in(k, all, n)) continue;
        /* such a GPU is never given this kernel */
        if (needs_tensor_cores(k) && strtol(arch + 3, NULL, 10) < 80) continue;
        if (needs_hopper(k) && strcmp(arch, "sm_90a") != 0) continue;
        k->compiled = false;
        gn_free(k->why);
        k->why = NULL;
        if (!same) k->key[1] = hash_bytes(k->key[1], arch, strlen(arch)); /* another program in the cache */
        all[n++] = k;
    }
    if (one_of_each && !same && every > 1) n = third_of(all, n, at + (size_t)strtol(arch + 3, NULL, 10));
    gn_result r = compile_kernels(d, all, n, NULL, NULL, &f);
    if (r != GN_OK) {
        *out_failed = n;
        snprintf(out_text, cap, "%s", f.text);
    }
    for (size_t i = 0; i < n && r == GN_OK; i++) {
        if (all[i]->compiled) continue;
        if (!(*out_failed)++) snprintf(out_text, cap, "%s: %s", all[i]->name, all[i]->why ? all[i]->why : "");
    }
    gn_free(all);
    return n;
}
#endif

/* >>memory ===========================================================================================
 * An executor and its memory: areas, weights and states in slots, values, copies, pinned blocks. */

/* Filters of a weight as a conv's kernel reads them, while there is room for them. */
typedef struct packed {
    struct packed *next;
    packed_form form;
    gn__cu_ptr mem;
    size_t bytes;
} packed;

/* away: its bytes in pinned memory (of a weight that moved once, they stay there); out: only there, or with the caller
   (`host`); saving: the copy to `away` is still in the stream; cache: appended to in place; failed: a state that a run
   had begun to write when it failed; used: clock of the launch or run that used it last. */
typedef struct slot {
    uint8_t kind;
    bool out, saving, cache, failed;
    gn_dtype dtype;
    gn_shape shape;
    uint32_t gen;
    gn__cu_ptr mem;
    size_t bytes;
    char *away;
    const void *host;
    const gn_file *file; /* of a weight: where it lies from byte `at` on; NULL: it does not */
    uint64_t at, used;
    gn__cu_handle here; /* event: it is back; NULL: the main stream knows */
    packed *packs;
} slot;
/* checked: its run can fail, and leaves its error words behind the value. */
typedef struct value {
    uint64_t id, run;
    gn_dtype dtype;
    gn_shape shape;
    gn__cu_ptr mem;
    size_t bytes;
    bool in_place, checked;
} value;
/* pinned memory handed out */
typedef struct host_block {
    char *p;
    size_t bytes;
    const void *owner;
} host_block;

/* That of all executors: every device copies from it and to it directly. */
static struct {
    pthread_mutex_t lock;
    host_block *all;
    size_t cap;
    _Atomic size_t n;
} pinned_blocks = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* at: in the run's staging memory */
typedef struct pending_out {
    void *host;
    size_t at, bytes;
} pending_out;

/* A run that was submitted and not yet looked at. */
typedef struct run {
    uint64_t ticket;
    gn__cu_handle done; /* event */
    char *stage;        /* pinned: error words, then outputs */
    size_t stage_bytes;
    pending_out *outs;
    uint32_t n_outs;
    bool keeps;
    uint64_t copied;   /* number of the copiers' last job for it, 0: none */
    uint64_t inherits; /* ticket of a run in flight whose kept value it uses: its failure is this one's too; 0: none */
    bool poisoned;     /* that run has failed */
} run;

/* A run takes at most half of the ring: what goes up (arguments of STAGE_LARGEST bytes, error words), and what comes
   down. ERRORS_LARGEST: of error words and the flags behind them. */
enum {
    RUNS_MAX = 64,
    STAGE_BYTES = 16 << 20,
    STAGE_LARGEST = 2 << 20,
    STAGE_DOWN = STAGE_BYTES / 4,
    ERRORS_LARGEST = 1 << 20
};

/* Large arguments land in, and large results leave from, memory apart from the block, so that streams of their own copy
   them while kernels of other runs work. Of each kind there are two in turn. full: event, all is written; empty: event,
   all is read, but for what copiers read, of which the last job has the number `copied`. */
typedef struct area {
    gn__cu_ptr mem;
    size_t bytes;
    gn__cu_handle full, empty;
    uint64_t copied;
    bool in_use;
} area;

enum { AREAS = 2, ASIDE_LEAST = 640 << 10 }; /* bytes that are worth the events between streams */

/* Large copies between plain memory and the GPU go in pieces by way of pinned memory: threads copy the pieces there or
   from there, each by way of two of its own, so that no step waits for a result that large, and several cores copy. */
enum { COPIERS = 4, PIECE_BYTES = 2 << 20, PIECES = 2 * COPIERS, PLAIN_LEAST = 64 << 10 };

/* after: event before which a result is not there. handed_out, done: bytes that a thread has begun and ended with. */
typedef struct copy_job {
    struct copy_job *next;
    gn__cu_ptr device;
    char *host; /* NULL: of the file, from byte `at` on */
    const gn_file *file;
    uint64_t at;
    gn_fault *fault; /* of whoever waits: where the file cannot be read */
    size_t bytes, handed_out, done;
    gn__cu_handle after;
    bool awaited, ready;
} copy_job;

/* The threads of one direction. They take the jobs' pieces in order. */
typedef struct copiers {
    /* turn: of its two pieces */
    struct copier {
        pthread_t thread;
        struct copiers *all;
        int at, turn;
    } threads[COPIERS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    copy_job *first, *last;                      /* until they are done */
    uint64_t asked, done;                        /* jobs; of those done all that were asked for before are done too */
    int error;                                   /* of the driver; 0: none. Nothing is copied after it */
    int n;                                       /* threads; 0: not started */
    bool up, failed, stops;                      /* failed: they cannot be had */
    gn__cu_handle context, stream, used[PIECES]; /* used: events, the device has read or written the piece */
    char *pieces;                                /* pinned */
} copiers;

typedef struct executor {
    struct device *device;
    gn_stats *stats;
    gn_log_fn log;
    void *log_user;
    bool strict, invariant; /* as of a context: desc.batch_invariant */
    char tenant[64];        /* whose session this is; "": the program's own */
    bool known, scrubs;     /* known: its device knows that this tenant takes memory; scrubs: $GENIE_CUDA_SCRUB */
    const gn_flag *cancel;  /* NULL: nobody ends a run early */
    uint64_t held;
    gn_account *account, *host; /* the session's, of device memory and of pinned memory */
    uint64_t device_limit;      /* $GENIE_CUDA_MEMORY, 0: none */
    struct timing *timing;      /* of the kernels that are launched now; NULL: nobody times them */
    uint64_t clock;             /* what slots are used at; those used at this very time do not move */
    bool evicts;
    gn__cu_handle copies, main_at;    /* stream of weights on their way back; event in the main stream */
    gn__cu_handle uploads, downloads; /* streams of what lands and leaves; with GENIE_CUDA_OVERLAP=0 the main one */
    area upload_areas[AREAS], download_areas[AREAS];
    uint32_t next_upload_area, next_download_area;
    gn__cu_handle uploaded;                          /* event: arguments have left the caller's pinned memory */
    gn__cu_handle visits, made, allocated, departed; /* stream of values on their way to other GPUs, made when first
                                                                            needed; events: the main stream has
                                                        made them; there is room for those that come; those that left
                                                        have left */
    bool departs;                                    /* the main stream has not yet waited for that */
    copiers up, down;                                /* of data and results in plain memory */
    bool lost, graphs, pools, overlaps; /* overlaps: kernels that wait by themselves start before those before them have
                                           ended */
    bool aside;                         /* large copies have streams of their own */
    char lost_why[200];
    gn__cu_handle stream;
    gn__cu_ptr block; /* one for all plans: runs follow each other in the stream */
    size_t block_bytes;
    uint64_t block_age; /* raised when the block moves */
    slot *slots;
    value *values; /* ids rising */
    size_t n_slots, cap_slots, n_values, cap_values;
    run runs[RUNS_MAX]; /* a ring, oldest first */
    uint32_t first_run, n_runs;
    uint64_t next_ticket;
    char *stage; /* pinned ring for arguments and results */
    size_t stage_head;
    gn_fault failed;        /* of the first run that failed and was not yet asked for */
    uint64_t failed_ticket; /* 0: none */
    gn__cu_handle events[RUNS_MAX];
} executor;

enum { CAPTURES = 4 }; /* exchanged memory comes back every other run, areas too, and not always in step */

typedef struct plan {
    const gn_part *part;
    gn_layout layout;
    emit emit; /* its launches and parameters */
    size_t region[REGION__COUNT], total, args_bytes, errors_bytes, near_bytes;
    uint64_t *words;         /* per argument: its first 8 bytes in this run, where kernels take some by value */
    size_t *arg_at, *out_at; /* per argument: offset in REGION_ARGS; per output: in REGION_OUTS, SIZE_MAX: dense
                                already */
    size_t *near_at;         /* per output: offset in REGION_NEAR, SIZE_MAX: elsewhere */
    size_t *own_at;          /* per update: offset in REGION_OWN */
    gn__cu_ptr *fresh; /* per update: memory of the new version when the run cannot fail, exchanged with the state's */
    bool exchanges;
    bool uploads_aside;                /* its arguments are large: they lie in one of the areas, not in the block */
    area *upload_area, *download_area; /* in this run; download_area: NULL when no result is large */
    size_t *download_at;               /* per output of this run: offset in `download_area`, SIZE_MAX: elsewhere */
    gn__cu_ptr *base;                  /* per node, update and pack, of this run */
    struct {
        gn__cu_handle graph;
        gn__cu_ptr *bound;
        uint64_t age;
    } captured[CAPTURES];
    uint32_t runs, next_capture;
    uint32_t packs_kept, packs_made; /* launches that this run leaves out; filters that it packed before its kernels */
    bool moved, streams;             /* in this run: slots came back; weights come and go with the kernels */
    bool began;                      /* and one of its kernels has been launched */
} plan;

/* For every session of the device: the first cause counts. */
static void device_lose(struct device *d, const char *why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&d->lost)) snprintf(d->lost_why, sizeof d->lost_why, "%s", why);
    atomic_store(&d->lost, true);
    pthread_mutex_unlock(&lock);
}

/* 1: an invalid value; 2: no memory; 701: too much for a launch; 801: not supported; 900 to 910: of a capture. All
   others that reach this file's checks leave the context unusable. */
static bool breaks_context(int r) { return r != 1 && r != 2 && r != 701 && r != 801 && (r < 900 || r > 910); }

/* This executor is of no use any more, because it is not known what has run; with an error that breaks the context its
   device neither. */
static gn_result executor_lose(executor *x, gn_fault *f, int r, const char *what) {
    const char *name = NULL, *detail = NULL;
    cu.cuGetErrorName(r, &name);
    cu.cuGetErrorString(r, &detail);
    if (!x->lost)
        snprintf(x->lost_why, sizeof x->lost_why, "%.60s: %.100s (%.30s)", name ? name : "CUDA error",
                 detail ? detail : "unknown", what);
    x->lost = true;
    if (breaks_context(r)) device_lose(x->device, x->lost_why);
    return gn_fail(f, GN_DEVICE_LOST, "the GPU is lost: %s", x->lost_why);
}

static gn_result driver_fail(executor *x, gn_fault *f, int r, const char *what) {
    const char *name = NULL, *detail = NULL;
    if (r == 2) return gn_fail(f, GN_OUT_OF_MEMORY, "the GPU has no memory left (%s)", what);
    if (breaks_context(r)) return executor_lose(x, f, r, what);
    cu.cuGetErrorName(r, &name);
    cu.cuGetErrorString(r, &detail);
    return gn_fail(f, GN_INTERNAL, "%s: %s (%s)", name ? name : "CUDA error", detail ? detail : "unknown", what);
}

/* Returns from the function with the fault when a driver call fails. */
#define DRIVER(x, f, call)                                                      \
    do {                                                                        \
        int driver_result = cu.call;                                            \
        if (driver_result != 0) return driver_fail(x, f, driver_result, #call); \
    } while (0)

/* The device's context is current in this thread from here on, also of a lost one: what is left of it is destroyed
   there. */
static gn_result enter(executor *x, gn_fault *f) {
    int e = x->device->compile_only ? 0 : cu.cuCtxSetCurrent(x->device->context);
    if (!x->lost && atomic_load(&x->device->lost)) {
        x->lost = true;
        memcpy(x->lost_why, x->device->lost_why, sizeof x->lost_why);
    }
    if (x->lost) return gn_fail(f, GN_DEVICE_LOST, "the GPU is lost: %s", x->lost_why);
    return e == 0 ? GN_OK : executor_lose(x, f, e, "cuCtxSetCurrent");
}

/* Its device is gone, and all that lay there. An executor can be lost alone: then what is there is waited for and given
   back. */
static bool is_dead(const executor *x) { return atomic_load(&x->device->lost); }

static bool evict_one(executor *x);
static bool area_drop_one(executor *x);
static bool packs_drop(executor *x);

/* Memory that sessions give back stays in this process, so that the next one finds in it what lay there. From when a
   second tenant takes memory of a device, all that anyone takes there is cleared first; while there is one alone,
   nothing is ($GENIE_CUDA_SCRUB=1: it is). */
static bool device_is_cleared(executor *x) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct device *d = x->device;
    if (x->scrubs || atomic_load_explicit(&d->shared, memory_order_relaxed)) return true;
    if (x->known) return false;
    pthread_mutex_lock(&lock);
    if (!d->has_tenant) snprintf(d->tenant, sizeof d->tenant, "%s", x->tenant);
    d->has_tenant = x->known = true;
    if (strcmp(d->tenant, x->tenant) != 0) atomic_store(&d->shared, true);
    pthread_mutex_unlock(&lock);
    return atomic_load(&d->shared);
}

/* One try; GN_OUT_OF_MEMORY or GN_LIMIT when something would have to go first. */
static gn_result device_alloc_now(executor *x, size_t bytes, gn__cu_handle stream, gn__cu_ptr *out, gn_fault *f) {
    const uint64_t held = gn_size_add(x->held, bytes);
    if (x->device_limit && held > x->device_limit)
        return gn_fail(f, GN_OUT_OF_MEMORY, "%llu bytes more than the %llu of GENIE_CUDA_MEMORY",
                       (unsigned long long)(held - x->device_limit), (unsigned long long)x->device_limit);
    gn_result r = gn_account_charge(x->account, bytes, f);
    if (r != GN_OK || x->device->compile_only) return r;
    int e = x->pools ? cu.cuMemAllocAsync(out, bytes, stream) : cu.cuMemAlloc(out, bytes);
    if (e == 0 && device_is_cleared(x) && (e = cu.cuMemsetD8Async(*out, 0, bytes, stream)) != 0) {
        if (x->pools) cu.cuMemFreeAsync(*out, stream);
        else cu.cuMemFree(*out);
        *out = 0;
    }
    if (e == 0) return GN_OK;
    gn_account_release(x->account, bytes);
    return driver_fail(x, f, e, "cuMemAlloc");
}

/* Device memory that counts against the limit; *out is 0 for no bytes. Slots that are not in use make room for it. */
static gn_result device_alloc_on(executor *x, size_t bytes, gn__cu_handle stream, gn__cu_ptr *out, gn_fault *f) {
    *out = 0;
    bytes = align_up(bytes ? bytes : 1);
    gn_result r = device_alloc_now(x, bytes, stream, out, f);
    while ((r == GN_OUT_OF_MEMORY || r == GN_LIMIT) && (packs_drop(x) || area_drop_one(x) || evict_one(x)))
        r = device_alloc_now(x, bytes, stream, out, f);
    if (r != GN_OK) return r;
    x->held += bytes;
    x->stats->device_bytes += bytes;
    return GN_OK;
}

static gn_result device_alloc(executor *x, size_t bytes, gn__cu_ptr *out, gn_fault *f) {
    return device_alloc_on(x, bytes, x->stream, out, f);
}

static void device_free(executor *x, gn__cu_ptr p, size_t bytes) {
    x->held -= align_up(bytes ? bytes : 1);
    gn_account_release(x->account, align_up(bytes ? bytes : 1));
    x->stats->device_bytes -= align_up(bytes ? bytes : 1);
    if (!p || is_dead(x)) return;
    if (x->pools) cu.cuMemFreeAsync(p, x->stream);
    else cu.cuMemFree(p);
}

/* ---- large copies from and to plain memory ---- */

/* One piece, n bytes from `at` on: 0, or the driver's error; *f: the file's. Those that come down wait for the device
   at once. */
static int copy_piece(struct copier *t, const copy_job *j, size_t at, size_t n, gn_fault *f) {
    const copiers *c = t->all;
    int i = 2 * t->at + (t->turn ^= 1);
    char *piece = c->pieces + (size_t)i * PIECE_BYTES;
    int e = c->up ? cu.cuEventSynchronize(c->used[i]) : cu.cuMemcpyDtoHAsync(piece, j->device + at, n, c->stream);
    if (!e && c->up) {
        if (!j->file) memcpy(piece, j->host + at, n);
        else if (gn_file_read(j->file, j->at + at, piece, n, f) != GN_OK) return 0;
        e = cu.cuMemcpyHtoDAsync(j->device + at, piece, n, c->stream);
    }
    if (!e) e = cu.cuEventRecord(c->used[i], c->stream);
    if (!e && !c->up) e = cu.cuEventSynchronize(c->used[i]);
    if (!e && !c->up) memcpy(j->host + at, piece, n);
    return e;
}

/* The oldest job with pieces left; NULL: none that this thread could do something for. Under the lock. */
static copy_job *copiers_next(const copiers *c) {
    copy_job *j = c->first;
    while (j && j->handed_out == j->bytes) j = j->next;
    return j && !j->ready && j->awaited ? NULL : j;
}

/* Takes the jobs that are done off the list. Under the lock. */
static void copiers_tidy(copiers *c) {
    for (copy_job *j; (j = c->first) != NULL && j->done == j->bytes; c->done++) {
        if (!(c->first = j->next)) c->last = NULL;
        gn_free(j);
    }
}

/* One thread waits for a result to be there, then all take its pieces. */
static void *copier_main(void *self) {
    struct copier *t = (struct copier *)self;
    copiers *c = t->all;
    int e = cu.cuCtxSetCurrent(c->context);
    pthread_mutex_lock(&c->lock);
    for (copy_job *j; (j = copiers_next(c)) != NULL || !c->stops;) {
        if (!j) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        bool waits = !j->ready;
        gn_fault fault = { .result = GN_OK };
        size_t at = j->handed_out, n = waits ? 0 : j->bytes - at < PIECE_BYTES ? j->bytes - at : PIECE_BYTES;
        if (waits) j->awaited = true;
        if (!e) e = c->error;
        j->handed_out += n;
        pthread_mutex_unlock(&c->lock);
        if (!e) e = waits ? cu.cuEventSynchronize(j->after) : copy_piece(t, j, at, n, &fault);
        pthread_mutex_lock(&c->lock);
        if (e && !c->error) c->error = e;
        if (fault.result && !j->fault->result) *j->fault = fault;
        if (waits) j->ready = true;
        j->done += n;
        bool all = j->done == j->bytes;
        if (all) copiers_tidy(c);
        if (waits || all) pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Memory, events and as many threads as a quarter of the cores. */
static bool copiers_begin(executor *x, copiers *c) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = cores < 8 ? 1 : cores / 4 < COPIERS ? (int)cores / 4 : COPIERS;
    void *p = NULL;
    if (cu.cuMemHostAlloc(&p, (size_t)n * 2 * PIECE_BYTES, 1) != 0) return false;
    c->pieces = (char *)p;
    /* 2: no times, 1: who waits sleeps */
    for (int i = 0; i < 2 * n; i++)
        if (cu.cuEventCreate(&c->used[i], c->up ? 3 : 2) != 0) return false;
    if (c->up) c->stream = x->uploads;
    else if (cu.cuStreamCreate(&c->stream, 1) != 0) return false;
    c->context = x->device->context;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    for (int i = 0; i < n; i++) {
        c->threads[i].all = c;
        c->threads[i].at = i;
        if (pthread_create(&c->threads[i].thread, NULL, copier_main, &c->threads[i]) != 0) break;
        c->n++;
    }
    return c->n > 0;
}

/* False: they cannot be had, which is said once, and the driver copies while the step waits. */
static bool copiers_ready(executor *x, copiers *c) {
    if (c->n || c->failed) return c->n > 0;
    c->up = c == &x->up;
    c->failed = !copiers_begin(x, c);
    if (c->failed)
        gn_logf(
            x->log, x->log_user, GN_LOG_WARN,
            "cuda:%d: no pinned memory or no threads for large copies: steps wait for those from and to plain memory",
            x->device->ordinal);
    return !c->failed;
}

/* The job's number; 0: no memory for it. */
static uint64_t copiers_add(copiers *c, const copy_job *job) {
    copy_job *j = (copy_job *)alloc_zero(sizeof *j);
    if (!j) return 0;
    *j = *job;
    pthread_mutex_lock(&c->lock);
    if (c->last) c->last->next = j;
    else c->first = j;
    c->last = j;
    uint64_t number = ++c->asked;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return number;
}

/* host: read by `up`, else written. */
static uint64_t copiers_ask(copiers *c, gn__cu_ptr device, const void *host, size_t bytes, gn__cu_handle after) {
    copy_job j = { .device = device, .host = (char *)host, .bytes = bytes, .after = after, .ready = !after };
    return copiers_add(c, &j);
}

/* Until the job of that number is done, or has failed. The driver's error, or 0. */
static int copiers_wait(copiers *c, uint64_t number) {
    if (!number) return 0;
    pthread_mutex_lock(&c->lock);
    while (c->done < number) pthread_cond_wait(&c->changed, &c->lock);
    int e = c->error;
    /* of the one run that waits for all jobs; those that come down are of several */
    if (c->up && !breaks_context(e)) c->error = 0;
    pthread_mutex_unlock(&c->lock);
    return e;
}

static bool copiers_have(copiers *c, uint64_t number) {
    if (!number) return true;
    pthread_mutex_lock(&c->lock);
    bool done = c->done >= number;
    pthread_mutex_unlock(&c->lock);
    return done;
}

static void copiers_end(copiers *c) {
    if (c->n) {
        pthread_mutex_lock(&c->lock);
        c->stops = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        for (int i = 0; i < c->n; i++) pthread_join(c->threads[i].thread, NULL);
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
    }
    for (int i = 0; i < PIECES; i++)
        if (c->used[i]) cu.cuEventDestroy(c->used[i]);
    if (c->stream && !c->up) cu.cuStreamDestroy(c->stream);
    if (c->pieces) cu.cuMemFreeHost(c->pieces);
}

/* ---- areas ---- */

/* The main stream knows all uploads, since it waits for each before it goes on; downloads it has to wait for. */
static void area_drop(executor *x, area *a) {
    if (!a->bytes) return;
    copiers_wait(&x->down, a->copied);
    if (!is_dead(x)) cu.cuStreamWaitEvent(x->stream, a->empty, 0);
    device_free(x, a->mem, a->bytes);
    a->mem = 0;
    a->bytes = 0;
}

/* False when all areas are in use by the run that is being started, or empty. */
static bool area_drop_one(executor *x) {
    for (int i = 0; i < 2 * AREAS; i++) {
        area *a = i < AREAS ? &x->download_areas[i] : &x->upload_areas[i - AREAS];
        if (!a->bytes || a->in_use) continue;
        area_drop(x, a);
        return true;
    }
    return false;
}

/* Nothing else makes room for it. */
static bool area_grow(executor *x, area *a, size_t bytes, gn__cu_handle first) {
    if (a->bytes >= bytes) return true;
    area_drop(x, a);
    if (device_alloc_now(x, align_up(bytes), first, &a->mem, NULL) != GN_OK) return false;
    a->bytes = bytes;
    x->held += align_up(bytes);
    x->stats->device_bytes += align_up(bytes);
    return true;
}

/* The next area with so many bytes; where there is memory for one only it is the same again, and copies wait. first:
   the stream that writes it. NULL: there is no memory even for one. */
static area *area_acquire(executor *x, area *areas, uint32_t *next, size_t bytes, gn__cu_handle first) {
    for (uint32_t i = 0; i < AREAS; i++) {
        area *a = &areas[(*next + i) % AREAS];
        if (!area_grow(x, a, bytes, first)) continue;
        *next = (*next + i + 1) % AREAS;
        a->in_use = true;
        return a;
    }
    return NULL;
}

static void areas_release(executor *x) {
    for (int i = 0; i < AREAS; i++) x->upload_areas[i].in_use = x->download_areas[i].in_use = false;
}

static size_t shape_bytes(gn_dtype dtype, const gn_shape *shape) {
    size_t n = types[dtype].bytes;
    for (int i = 0; i < shape->rank; i++) n = gn_size_mul(n, (size_t)shape->dims[i]);
    return n;
}

static gn_shape node_shape(const gn_part *p, uint32_t node) {
    gn_shape shape = { p->nodes[node].rank, { 0 } };
    for (int i = 0; i < shape.rank; i++) shape.dims[i] = p->dims[p->nodes[node].dims + (uint32_t)i];
    return shape;
}

static size_t node_bytes(const gn_part *p, uint32_t node) {
    gn_shape shape = node_shape(p, node);
    return shape_bytes((gn_dtype)p->nodes[node].dtype, &shape);
}

static bool same_type(gn_dtype one, const gn_shape *sa, const gn_part *p, uint32_t node) {
    gn_shape shape = node_shape(p, node);
    if (one != (gn_dtype)p->nodes[node].dtype || sa->rank != shape.rank) return false;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i] != sa->dims[i]) return false;
    return true;
}

/* ---- pinned host memory ---- */

static bool pinned_add(void *p, size_t bytes, const void *owner) {
    pthread_mutex_lock(&pinned_blocks.lock);
    bool ok = grow(&pinned_blocks.all, pinned_blocks.n, &pinned_blocks.cap, sizeof *pinned_blocks.all);
    if (ok) pinned_blocks.all[pinned_blocks.n++] = (host_block){ (char *)p, bytes, owner };
    pthread_mutex_unlock(&pinned_blocks.lock);
    return ok;
}

/* The block at p, or, for p NULL, one of the owner's; NULL: there is none. It is known no longer. */
static void *pinned_remove(const void *p, const void *owner) {
    void *found = NULL;
    pthread_mutex_lock(&pinned_blocks.lock);
    for (size_t i = pinned_blocks.n; i-- > 0 && !found;) {
        if (p ? pinned_blocks.all[i].p != (const char *)p : pinned_blocks.all[i].owner != owner) continue;
        found = pinned_blocks.all[i].p;
        pinned_blocks.all[i] = pinned_blocks.all[--pinned_blocks.n];
    }
    pthread_mutex_unlock(&pinned_blocks.lock);
    return found;
}

static bool is_pinned(const void *p) {
    bool is = false;
    if (!pinned_blocks.n) return false;
    pthread_mutex_lock(&pinned_blocks.lock);
    for (size_t i = 0; i < pinned_blocks.n && !is; i++)
        is = (const char *)p >= pinned_blocks.all[i].p &&
             (const char *)p < pinned_blocks.all[i].p + pinned_blocks.all[i].bytes;
    pthread_mutex_unlock(&pinned_blocks.lock);
    return is;
}

/* ---- slots ---- */

/* Weights go first, then states, then the caches that a decode appends to; of each the one that was used longest
   ago. */
static int slot_class(const slot *s) { return s->kind == GN_LEAF_WEIGHT ? 0 : s->cache ? 2 : 1; }

/* What was packed of a slot, which runs pack again when they need it. False: nothing. */
static bool slot_unpack(executor *x, slot *s) {
    bool any = s->packs != NULL;
    for (packed *k; (k = s->packs) != NULL; gn_free(k)) {
        s->packs = k->next;
        device_free(x, k->mem, k->bytes);
    }
    return any;
}

/* They make room for all else: no run counts on them before it has its memory, see run_packs. */
static bool packs_drop(executor *x) {
    bool any = false;
    for (size_t i = 0; i < x->n_slots; i++) any = slot_unpack(x, &x->slots[i]) || any;
    return any;
}

/* The main stream waits until the slot is back. */
static gn_result slot_await(executor *x, slot *s, gn_fault *f) {
    if (!s->here) return GN_OK;
    DRIVER(x, f, cuStreamWaitEvent(x->stream, s->here, 0));
    cu.cuEventDestroy(s->here);
    s->here = NULL;
    return GN_OK;
}

/* Pinned memory for a slot; NULL: none, or none allowed. */
static void *host_copy_alloc(executor *x, size_t bytes) {
    void *p = NULL;
    if (gn_account_charge(x->host, bytes, NULL) != GN_OK) return NULL;
    if (cu.cuMemHostAlloc(&p, bytes, 1) == 0) return p;
    gn_account_release(x->host, bytes);
    return NULL;
}

static void host_copy_free(executor *x, void *p, size_t bytes) {
    cu.cuMemFreeHost(p);
    gn_account_release(x->host, bytes);
}

/* Moves one slot to pinned memory. False when none may go. */
static bool evict_one(executor *x) {
    slot *victim = NULL;
    for (size_t i = 0; i < x->n_slots && x->evicts; i++) {
        slot *s = &x->slots[i];
        if (!s->kind || s->out || s->used == x->clock || !s->bytes) continue;
        if (!victim || slot_class(s) < slot_class(victim) ||
            (slot_class(s) == slot_class(victim) && s->used < victim->used))
            victim = s;
    }
    if (!victim) return false;
    bool copied = victim->away && victim->kind == GN_LEAF_WEIGHT;
    void *p = victim->away;
    if (!x->device->compile_only && !p) p = host_copy_alloc(x, victim->bytes);
    /* no pinned memory, and the caller does not keep it */
    if (!p && !victim->host && !victim->file && !x->device->compile_only) return false;
    bool saves = p && !copied, ok = slot_await(x, victim, NULL) == GN_OK;
    if (ok && saves) ok = cu.cuMemcpyDtoHAsync(p, victim->mem, victim->bytes, x->stream) == 0;
    if (!ok) {
        if (p && !victim->away) host_copy_free(x, p, victim->bytes);
        return false;
    }
    victim->away = (char *)p;
    victim->saving = saves;
    device_free(x, victim->mem, victim->bytes);
    victim->mem = 0;
    victim->out = true;
    x->stats->evictions++;
    x->stats->evicted_bytes += victim->bytes;
    return true;
}

static gn_result piece_copy(executor *x, gn__cu_ptr mem, const void *piece, size_t n, gn__cu_handle stream,
                            gn_fault *f) {
    DRIVER(x, f, cuMemcpyHtoDAsync(mem, piece, n, stream));
    DRIVER(x, f, cuStreamSynchronize(stream));
    return GN_OK;
}

enum { READ_PIECE = 8 << 20 };

/* From a file, through pieces of memory; the stream is idle afterwards. */
static gn_result slot_read(executor *x, gn__cu_ptr mem, const gn_file *file, uint64_t at, size_t bytes,
                           gn__cu_handle stream, gn_fault *f) {
    size_t most = bytes < READ_PIECE ? bytes : READ_PIECE;
    void *piece = gn_alloc(most);
    gn_result r = piece ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a piece of a weight");
    for (size_t done = 0, n; r == GN_OK && done < bytes; done += n) {
        n = bytes - done < most ? bytes - done : most;
        r = gn_file_read(file, at + done, piece, n, f);
        if (r == GN_OK) r = piece_copy(x, mem + done, piece, n, stream, f);
    }
    gn_free(piece);
    return r;
}

static gn_result slot_copy_back(executor *x, slot *s, gn_fault *f) {
    DRIVER(x, f, cuEventCreate(&s->here, 2));
    if (s->saving) {
        DRIVER(x, f, cuEventRecord(x->main_at, x->stream));
        DRIVER(x, f, cuStreamWaitEvent(x->copies, x->main_at, 0));
    }
    const void *from = s->away ? s->away : s->host;
    if (from) DRIVER(x, f, cuMemcpyHtoDAsync(s->mem, from, s->bytes, x->copies));
    gn_result r = from ? GN_OK : slot_read(x, s->mem, s->file, s->at, s->bytes, x->copies, f);
    if (r != GN_OK) return r;
    DRIVER(x, f, cuEventRecord(s->here, x->copies));
    return GN_OK;
}

/* Brings a slot back on the second stream; the main one waits for `here` before the kernel that needs it. A slot that
   cannot come back stays where it is. */
static gn_result slot_return(executor *x, slot *s, gn_fault *f) {
    gn_result r = device_alloc_on(x, s->bytes, x->copies, &s->mem, f);
    if (r == GN_OK && !x->device->compile_only) {
        r = slot_copy_back(x, s, f);
        if (r != GN_OK) {
            if (!is_dead(x)) cu.cuStreamSynchronize(x->copies);
            if (s->here) cu.cuEventDestroy(s->here);
            s->here = NULL;
            device_free(x, s->mem, s->bytes);
            s->mem = 0;
        }
    }
    if (r != GN_OK) return r;
    s->out = s->saving = false;
    x->stats->weight_moves++;
    x->stats->weight_move_bytes += s->bytes;
    return GN_OK;
}

static void slot_free(executor *x, slot *s) {
    if (!s->kind) return;
    slot_unpack(x, s);
    if (s->here && slot_await(x, s, NULL) != GN_OK) {
        if (!is_dead(x)) cu.cuStreamSynchronize(x->copies);
        cu.cuEventDestroy(s->here);
    }
    if (!s->out) device_free(x, s->mem, s->bytes);
    if (s->away && is_dead(x)) gn_account_release(x->host, s->bytes);
    if (s->away && !is_dead(x)) {
        cu.cuStreamSynchronize(x->stream); /* nothing reads or writes it any more */
        cu.cuStreamSynchronize(x->copies);
        host_copy_free(x, s->away, s->bytes);
    }
    memset(s, 0, sizeof *s);
}

enum { SLOTS_MAX = 1 << 20 };

/* A large one, by several threads. */
static gn_result slot_copy(executor *x, gn__cu_ptr mem, const gn_slot_desc *d, size_t bytes, gn_fault *f) {
    gn_fault fault = { .result = GN_OK };
    copy_job j = { .device = mem,
                   .host = (char *)(uintptr_t)d->host,
                   .file = d->file,
                   .at = d->at,
                   .fault = &fault,
                   .bytes = bytes,
                   .ready = true };
    uint64_t number = copiers_add(&x->up, &j);
    if (!number) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a copy to the GPU");
    int e = copiers_wait(&x->up, number);
    if (e) return driver_fail(x, f, e, "a copy to the GPU");
    DRIVER(x, f, cuStreamSynchronize(x->uploads));
    if (fault.result && f) *f = fault;
    return fault.result;
}

static gn_result slot_fill(executor *x, gn__cu_ptr mem, const gn_slot_desc *d, size_t bytes, gn__cu_handle stream,
                           gn_fault *f) {
    if (!d->host && !d->file) {
        DRIVER(x, f, cuMemsetD8Async(mem, 0, bytes, x->stream));
        return GN_OK;
    }
    x->stats->bytes_to_device += bytes;
    /* beside runs in flight: none of them knows this memory */
    bool large = x->aside && bytes > PIECE_BYTES && (d->file || !is_pinned(d->host));
    if (large && copiers_ready(x, &x->up)) return slot_copy(x, mem, d, bytes, f);
    return d->file ? slot_read(x, mem, d->file, d->at, bytes, stream, f)
                   : piece_copy(x, mem, d->host, bytes, stream, f);
}

static gn_result exec_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) {
    executor *x = (executor *)self;
    gn_result r = enter(x, f);
    if (r != GN_OK) return r;
    if (d->slot >= SLOTS_MAX)
        return gn_fail(f, GN_LIMIT, "slot %u is beyond the %d that are possible", d->slot, SLOTS_MAX);
    while (x->n_slots <= d->slot) {
        if (!grow(&x->slots, x->n_slots, &x->cap_slots, sizeof *x->slots))
            return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for slot %u", d->slot);
        memset(&x->slots[x->n_slots++], 0, sizeof *x->slots);
    }
    slot *s = &x->slots[d->slot];
    slot_free(x, s);
    size_t bytes = shape_bytes(d->dtype, &d->shape);
    gn__cu_ptr mem;
    x->clock++;
    gn__cu_handle stream = d->host || d->file ? x->uploads : x->stream;
    if ((r = device_alloc_on(x, bytes, stream, &mem, f)) != GN_OK) return r;
    *s = (slot){ .kind = (uint8_t)d->kind,
                 .dtype = d->dtype,
                 .shape = d->shape,
                 .gen = d->gen,
                 .mem = mem,
                 .bytes = bytes,
                 .used = x->clock,
                 .host = d->kind == GN_LEAF_WEIGHT ? d->host : NULL,
                 .file = d->file,
                 .at = d->at };
    if (x->device->compile_only || !bytes) return GN_OK;
    r = slot_fill(x, mem, d, bytes, stream, f);
    if (r == GN_OK) return GN_OK;
    if (!is_dead(x)) cu.cuStreamSynchronize(stream);
    slot_free(x, s);
    return r;
}

static gn_result exec_slot_drop(void *self, uint32_t at, uint32_t gen) {
    executor *x = (executor *)self;
    if (at >= x->n_slots || !x->slots[at].kind || x->slots[at].gen != gen) return GN_STALE_HANDLE;
    enter(x, NULL);
    slot_free(x, &x->slots[at]);
    return GN_OK;
}

static size_t value_size(const value *v) { return align_up(v->bytes) + (v->checked ? 256 : 0); }

static value *value_find(executor *x, uint64_t id) {
    size_t lo = 0, hi = x->n_values;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (x->values[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < x->n_values && x->values[lo].id == id ? &x->values[lo] : NULL;
}

/* Before memory of values is given back: what of them is on its way to another GPU has left. */
static void values_stay(executor *x) {
    if (x->departs && !is_dead(x) && (!x->pools || cu.cuStreamWaitEvent(x->stream, x->departed, 0) != 0))
        cu.cuStreamSynchronize(x->visits);
    x->departs = false;
}

static void exec_values_release(void *self, uint64_t below) {
    executor *x = (executor *)self;
    size_t n = 0;
    enter(x, NULL);
    if (x->n_values && x->values[0].id < below) values_stay(x);
    for (; n < x->n_values && x->values[n].id < below; n++) device_free(x, x->values[n].mem, value_size(&x->values[n]));
    if (n) memmove(x->values, x->values + n, (x->n_values - n) * sizeof *x->values);
    x->n_values -= n;
}

/* Values that a failed run was to keep are no values. */
static void values_drop(executor *x, uint64_t ticket) {
    size_t kept = 0;
    values_stay(x);
    for (size_t i = 0; i < x->n_values; i++)
        if (x->values[i].run == ticket) device_free(x, x->values[i].mem, value_size(&x->values[i]));
        else x->values[kept++] = x->values[i];
    x->n_values = kept;
}

/* ---- pinned memory for the caller ---- */

static void *exec_host_alloc(void *self, size_t bytes) {
    executor *x = (executor *)self;
    void *p = NULL;
    if (x->device->compile_only || enter(x, NULL) != GN_OK) return NULL;
    if (cu.cuMemHostAlloc(&p, bytes ? bytes : 1, 1) != 0) return NULL; /* 1: for all contexts */
    if (pinned_add(p, bytes, x)) return p;
    cu.cuMemFreeHost(p);
    return NULL;
}

static void exec_host_free(void *self, void *p) {
    executor *x = (executor *)self;
    if (!p || !pinned_remove(p, x)) return;
    enter(x, NULL);
    cu.cuMemFreeHost(p);
}

/* >>run ==============================================================================================
 * Plans and their runs; measuring; values of other GPUs. */

/* the plan that this thread submitted last, for gn_cuda_launch_again */
static _Thread_local struct {
    executor *x;
    plan *p;
} latest;

/* What was generated, but not what is known of the plan's steps. */
static void emit_free(emit *e) {
    for (size_t i = 0; i < e->n_launches; i++) {
        blas_free(e->launches[i].blas);
        kernel_release(e->device, e->launches[i].kernel);
    }
    gn_free(e->launches);
    gn_free(e->params);
    gn_free(e->maps);
    gn_free(e->packs);
    text_free(&e->types);
    text_free(&e->signature);
    text_free(&e->body);
}

static void exec_plan_destroy(void *self, void *handle) {
    executor *x = (executor *)self;
    plan *p = (plan *)handle;
    enter(x, NULL);
    if (latest.p == p) latest.p = NULL;
    /* its kernels are given back: none may be on its way */
    if (x->n_runs && !is_dead(x)) cu.cuStreamSynchronize(x->stream);
    for (int i = 0; i < CAPTURES; i++) {
        if (p->captured[i].graph && !is_dead(x)) cu.cuGraphExecDestroy(p->captured[i].graph);
        gn_free(p->captured[i].bound);
    }
    for (uint32_t u = 0; p->fresh && p->part && u < p->part->n_updates; u++)
        if (p->fresh[u]) device_free(x, p->fresh[u], node_bytes(p->part, p->part->updates[u].node));
    gn_free(p->fresh);
    for (size_t i = 0; p->emit.fusions && i < p->layout.n_steps; i++) gn_free(p->emit.fusions[i].written);
    gn_layout_deinit(&p->layout);
    emit_free(&p->emit);
    gn_free(p->emit.fusions);
    gn_free(p->emit.groups);
    gn_free(p->emit.vectors);
    gn_free(p->emit.refusals);
    gn_free(p->emit.inlined);
    gn_free(p->emit.appends);
    gn_free(p->emit.append_flags);
    gn_free(p->emit.checked);
    gn_free(p->words);
    gn_free(p->arg_at);
    gn_free(p->out_at);
    gn_free(p->near_at);
    gn_free(p->own_at);
    gn_free(p->download_at);
    gn_free(p->base);
    gn_free(p);
}

/* Slots of the states whose memory a new version is copied into before results leave, rising. */
typedef struct slots_written {
    uint32_t *all;
    size_t n;
} slots_written;

static int compare_slots(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* False: no memory. */
static bool slots_written_init(slots_written *s, const plan *p) {
    *s = (slots_written){ p->exchanges ? NULL : (uint32_t *)gn_alloc((p->part->n_updates + 1) * sizeof *s->all), 0 };
    for (uint32_t u = 0; s->all && u < p->part->n_updates; u++)
        if (p->layout.update_how[u] != GN_UPDATE_INPLACE) s->all[s->n++] = p->part->updates[u].slot;
    if (s->n > 1) qsort(s->all, s->n, sizeof *s->all, compare_slots);
    return s->all || p->exchanges;
}

static bool is_overwritten(const slots_written *s, const gn_part_node *base) {
    return base->leaf == GN_LEAF_STATE && s->n && bsearch(&base->slot, s->all, s->n, sizeof *s->all, compare_slots);
}

/* Results that are not dense or would be overwritten are gathered. Their bytes. */
static size_t plan_gathers(plan *p, emit *e, const slots_written *written) {
    const gn_part *part = p->part;
    size_t bytes = 0;
    for (uint32_t i = 0; i < part->n_outs && !gn_flag_get(e->cancel); i++) {
        const gn_view *view = view_of(e, part->outs[i]);
        p->out_at[i] = SIZE_MAX;
        if ((gn_view_is_dense(view) && !is_overwritten(written, &part->nodes[p->layout.lay[part->outs[i]].base])) ||
            !gn_view_count(view))
            continue;
        p->out_at[i] = bytes;
        bytes = gn_size_add(bytes, align_up(node_bytes(part, part->outs[i])));
        emit_copy_views(e, "gather_view", gn_view_dense(view->dtype, view->rank, view->dims),
                        (param){ PARAM_PLAN, REGION_OUTS, (int64_t)p->out_at[i] }, *view, at_node(e, part->outs[i], 0));
    }
    return bytes;
}

/* After the ops: results are gathered, failed appends are put back, new versions are committed. */
static void plan_epilogue(plan *p, emit *e, size_t *out_bytes, size_t *own_bytes) {
    const gn_part *part = p->part;
    slots_written written;
    p->exchanges = !e->faults;
    if (!slots_written_init(&written, p)) {
        e->failed = true;
        return;
    }
    *out_bytes = plan_gathers(p, e, &written);
    gn_free(written.all);
    for (uint32_t u = 0; u < part->n_updates && !gn_flag_get(e->cancel); u++) {
        p->own_at[u] = *own_bytes;
        if (p->layout.update_how[u] == GN_UPDATE_INPLACE) continue;
        param to = { PARAM_PLAN, REGION_OWN, (int64_t)p->own_at[u] };
        if (p->exchanges) to = (param){ PARAM_NODE, part->n_nodes + u, 0 };
        else *own_bytes = gn_size_add(*own_bytes, align_up(node_bytes(part, part->updates[u].node)));
        if (p->layout.update_how[u] != GN_UPDATE_COPY) continue;
        const gn_view *view = view_of(e, part->updates[u].node);
        emit_copy_views(e, "new_version", gn_view_dense(view->dtype, view->rank, view->dims), to, *view,
                        at_node(e, part->updates[u].node, 0));
    }
    emit_undo(e);
    for (uint32_t u = 0; u < part->n_updates && !p->exchanges && !gn_flag_get(e->cancel); u++)
        if (p->layout.update_how[u] != GN_UPDATE_INPLACE)
            emit_commit(e, (param){ PARAM_NODE, part->n_nodes + u, 0 },
                        (param){ PARAM_PLAN, REGION_OWN, (int64_t)p->own_at[u] },
                        node_bytes(part, part->updates[u].node));
}

static bool is_argument(const plan *p, uint32_t node) {
    return node < p->part->n_nodes && p->layout.lay[p->layout.lay[node].base].place == GN_PLACE_ARG;
}

/* Nothing looks for arguments in device memory. */
static bool all_by_value(const plan *p) {
    bool is = p->emit.by_value;
    for (size_t i = 0; i < p->emit.n_params && is; i++)
        is = p->emit.params[i].kind != PARAM_NODE || !is_argument(p, p->emit.params[i].node);
    for (uint32_t i = 0; i < p->part->n_outs && is; i++) is = !is_argument(p, p->part->outs[i]);
    for (uint32_t i = 0; i < p->part->n_updates && is; i++) is = !is_argument(p, p->part->updates[i].node);
    return is;
}

enum { NEAR_LARGEST = 4096, NEAR_BYTES = 16384, NEAR_MOST = NEAR_BYTES / 256 };

/* Small results lie behind the error words. */
static size_t plan_near(plan *p) {
    struct {
        uint32_t base;
        size_t at;
    } placed[NEAR_MOST];
    size_t near = 0;
    for (uint32_t i = 0, n = 0; i < p->part->n_outs; i++) {
        uint32_t base = p->layout.lay[p->part->outs[i]].base;
        const gn_lay *lay = &p->layout.lay[base];
        size_t bytes = align_up((size_t)gn_view_count(&lay->view) * types[lay->view.dtype].bytes);
        p->near_at[i] = SIZE_MAX;
        if (p->out_at[i] != SIZE_MAX || lay->place != GN_PLACE_BLOCK || !bytes || bytes > NEAR_LARGEST) continue;
        for (uint32_t k = 0; k < n; k++)
            if (placed[k].base == base) p->near_at[i] = placed[k].at;
        if (p->near_at[i] != SIZE_MAX || near + bytes > NEAR_BYTES) continue;
        placed[n].base = base;
        p->near_at[i] = placed[n++].at = near;
        near += bytes;
    }
    return near;
}

static void plan_measure(executor *x, plan *p); /* below: it runs kernels */

/* Of what was stored or planned to be computed in one way, and is not: counted, said, and in strict mode an error. */
static gn_result other_way(executor *x, gn_fault *f, uint64_t *counter, uint64_t times, const char *what) {
    *counter += times;
    gn_logf(x->log, x->log_user, GN_LOG_WARN, "cuda:%d: %s", x->device->ordinal, what);
    return x->strict ? gn_fail(f, GN_STRICT, "%s; strict mode forbids computing it in another way", what) : GN_OK;
}

/* What the plan will hold is refused before anything is compiled for it. */
static gn_result plan_fits(executor *x, const plan *p, gn_fault *f) {
    const uint64_t bytes = gn_size_add(p->total, p->uploads_aside ? p->args_bytes : 0);
    if (!gn_size_fits(gn_size_add(bytes, bytes / 4)))
        return gn_fail(f, GN_LIMIT,
                       "this plan needs more memory than can be addressed: realize parts of it one after another");
    gn_result r;
    do r = bytes > x->block_bytes ? gn_account_charge(x->account, bytes - x->block_bytes, f) : GN_OK;
    while (r != GN_OK && packs_drop(x));
    /* taken when it runs */
    if (r == GN_OK && bytes > x->block_bytes) gn_account_release(x->account, bytes - x->block_bytes);
    return r;
}

/* Nobody waits for the plan any more. */
static gn_result plan_ended(const gn_flag *cancel, gn_fault *f) {
    const gn_result why = gn_flag_get(cancel);
    return gn_fail(f, why, "the making of a plan ended: %s", gn_result_text(why));
}

/* What has no memory is NULL. */
static void emit_begin(emit *e, executor *x, plan *p, gn_fault *f) {
    memset(e, 0, sizeof *e);
    e->device = x->device;
    e->cancel = x->cancel;
    e->invariant = x->invariant;
    e->part = p->part;
    e->layout = &p->layout;
    e->fault = f;
    e->alone = p->layout.n_steps == 1;
    if (f) f->result = GN_OK;
    e->fusions = (fusion *)alloc_zero((p->layout.n_steps + 1) * sizeof *e->fusions);
    e->inlined = (bool *)alloc_zero((size_t)p->part->n_nodes + 1);
    e->appends = (uint32_t *)alloc_zero((p->layout.n_steps + 1) * sizeof *e->appends);
    e->append_flags = (uint32_t *)alloc_zero((p->layout.n_steps + 1) * sizeof *e->append_flags);
    e->checked = (uint32_t *)alloc_zero((p->layout.n_steps + 1) * sizeof *e->checked);
}

static gn_result plan_generate(executor *x, plan *p, gn_fault *f) {
    emit *e = &p->emit;
    size_t outs = 0, own = 0, args = 0, data = 0;
    emit_begin(e, x, p, f);
    if (!e->fusions || !e->inlined || !e->appends || !e->append_flags || !e->checked ||
        (fuses_steps() && (!fuse_steps(e) || !conv_keep_rows(e))))
        return gn_flag_get(x->cancel) ? plan_ended(x->cancel, f)
                                      : gn_fail(f, GN_OUT_OF_MEMORY, "no memory to generate kernels");
    if (!gn_flag_get(x->cancel)) plan_measure(x, p);
    for (size_t i = 0; i < p->layout.n_steps && !e->failed && !gn_flag_get(x->cancel); i++) {
        e->tail = tail_of(e, i);
        e->n_tails += e->tail != NULL;
        e->step = (uint32_t)i + 1;
        emit_step(e, i);
        i += e->tail != NULL;
    }
    e->step = 0;
    x->stats->products_by_blas += e->n_blas;
    x->stats->products_by_other += e->n_other;
    if (e->n_lost &&
        other_way(x, f, &x->stats->choices_lost, e->n_lost,
                  "what was chosen for a product by measuring cannot be had; the model's kernel computes it") != GN_OK)
        return GN_STRICT;
    if (!e->failed) plan_epilogue(p, e, &outs, &own);
    if (gn_flag_get(x->cancel)) return plan_ended(x->cancel, f);
    if (e->failed)
        return f && f->result != GN_OK ? f->result : gn_fail(f, GN_OUT_OF_MEMORY, "no memory to generate kernels");
    bool none = all_by_value(p);
    for (uint32_t i = 0; i < p->part->n_args && !none; i++) {
        p->arg_at[i] = args;
        args = gn_size_add(args, align_up(node_bytes(p->part, p->part->args[i])));
        if (p->part->nodes[p->part->args[i]].leaf != GN_LEAF_VALUE)
            data = gn_size_add(data, node_bytes(p->part, p->part->args[i]));
    }
    p->args_bytes = args;
    p->uploads_aside = x->aside && data >= ASIDE_LEAST;
    p->errors_bytes = align_up((ERROR_WORDS + (size_t)e->n_flags) * 4);
    if (p->errors_bytes > ERRORS_LARGEST)
        return gn_fail(f, GN_LIMIT,
                       "%u appends and sums of this plan are more than the %d that one may have: realize parts of it "
                       "one after another",
                       e->n_flags, ERRORS_LARGEST / 4);
    p->near_bytes = plan_near(p);
    const size_t bytes[REGION__COUNT] = { align_up(e->scratch),        align_up(e->rows), align_up(e->save), outs, own,
                                          p->uploads_aside ? 0 : args, p->errors_bytes,   p->near_bytes };
    p->total = align_up(p->layout.block_bytes);
    for (int i = 0; i < REGION__COUNT; i++) {
        p->region[i] = p->total;
        p->total = gn_size_add(p->total, bytes[i]);
    }
    gn_result r = plan_fits(x, p, f);
    if (r != GN_OK) return r;
    for (uint32_t i = 0; i < p->part->n_outs; i++)
        if (p->near_at[i] != SIZE_MAX)
            p->layout.lay[p->layout.lay[p->part->outs[i]].base].offset = p->region[REGION_NEAR] + p->near_at[i];
    return GN_OK;
}

/* Bytes of dynamic shared memory that any kernel's own leave in the 48 KiB which every launch has. */
enum { SHARED_PLAIN = 16 << 10 };

/* Compiles what is missing; `why` of kernels that do not compile. */
static gn_result launches_compile(executor *x, const launch *launches, size_t n, const gn_flag *cancel, gn_fault *f) {
    kernel **all = (kernel **)gn_alloc((n + 1) * sizeof *all);
    size_t kernels = 0;
    if (!all) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to compile");
    for (size_t i = 0; i < n; i++)
        if (launches[i].kernel) all[kernels++] = launches[i].kernel;
    char detail[40];
    snprintf(detail, sizeof detail, "%llu kernels", (unsigned long long)kernels);
    uint64_t begin = gn_traces() ? gn_now_ns() : 0;
    gn_result r = compile_kernels(x->device, all, kernels, x->tenant, cancel, f);
    gn_trace_end(GN_STAGE_COMPILE, "compile_kernels", begin, 0, detail);
    for (size_t i = 0; i < n && r == GN_OK; i++) /* 8: more shared memory than 48 KiB, with the kernel's own */
        if (launches[i].kernel && launches[i].kernel->function && launches[i].shared > SHARED_PLAIN)
            cu.cuFuncSetAttribute(launches[i].kernel->function, 8, (int)launches[i].shared);
    gn_free(all);
    return r;
}

/* In the compile-only device the kernels wait to be compiled together. */
static gn_result plan_compile(executor *x, plan *p, gn_fault *f) {
    if (x->device->compile_only || !p->emit.n_launches) return GN_OK;
    gn_result r = launches_compile(x, p->emit.launches, p->emit.n_launches, x->cancel, f);
    for (size_t i = 0; i < p->emit.n_launches && r == GN_OK; i++) {
        const kernel *k = p->emit.launches[i].kernel;
        if (k && !k->function)
            r = gn_fail(f, GN_COMPILE_FAILED, "kernel %s: %.300s", k->name,
                        k->why ? k->why : "the driver does not load it");
    }
    return r;
}

/* Bytes of host memory that the plan of a part holds, at least, before kernels are generated. */
static uint64_t plan_least(const gn_part *part) {
    const uint64_t nodes = (uint64_t)part->n_nodes + part->n_updates + packs_most(part) + 1;
    const uint64_t words = 2 * ((uint64_t)part->n_args + 1) + 3 * ((uint64_t)part->n_outs + 1) +
                           (uint64_t)part->n_updates + 1 + (2 + CAPTURES) * nodes;
    return gn_layout_least(part) + words * 8 + sizeof(plan);
}

/* The arrays of a plan. False: no memory. */
static bool plan_arrays(plan *p, const gn_part *part) {
    size_t nodes = (size_t)part->n_nodes + part->n_updates + packs_most(part) + 1;
    bool bound = true;
    p->part = part;
    p->words = (uint64_t *)alloc_zero((part->n_args + 1) * sizeof *p->words);
    p->arg_at = (size_t *)alloc_zero((part->n_args + 1) * sizeof *p->arg_at);
    p->out_at = (size_t *)alloc_zero((part->n_outs + 1) * sizeof *p->out_at);
    p->near_at = (size_t *)alloc_zero((part->n_outs + 1) * sizeof *p->near_at);
    p->own_at = (size_t *)alloc_zero((part->n_updates + 1) * sizeof *p->own_at);
    p->base = (gn__cu_ptr *)alloc_zero(nodes * sizeof *p->base);
    p->fresh = (gn__cu_ptr *)alloc_zero(nodes * sizeof *p->fresh);
    p->download_at = (size_t *)alloc_zero((part->n_outs + 1) * sizeof *p->download_at);
    for (int i = 0; i < CAPTURES; i++)
        bound = (p->captured[i].bound = (gn__cu_ptr *)alloc_zero(nodes * sizeof *p->base)) != NULL && bound;
    return p->words && p->arg_at && p->out_at && p->near_at && p->own_at && p->base && p->fresh && p->download_at &&
           bound;
}

static gn_result plan_fill(executor *x, plan *p, const gn_part *part, gn_fault *f) {
    if (!plan_arrays(p, part)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    gn_result r = gn_layout_make(p->part, fuses_steps(), x->cancel, &p->layout, f);
    if (r == GN_OK) r = plan_generate(x, p, f);
#ifdef GENIE_TEST
    if (r == GN_OK && env_is("GENIE_CUDA_ONE_OF_EACH", "1") &&
        !plan_has_a_new_kind(x->device, p->emit.launches, p->emit.n_launches))
        r = gn_fail(f, GN_NO_VALUE, "each kind of kernel of this plan has run (GENIE_CUDA_ONE_OF_EACH)");
#endif
    return r == GN_OK ? plan_compile(x, p, f) : r;
}

static gn_result exec_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    executor *x = (executor *)self;
    gn_fault local = { 0 };
    *out_plan = NULL;
    if (!f) f = &local;
    gn_result r = enter(x, f);
    if (r == GN_OK) r = gn_charge_ahead(plan_least(part), f);
    if (r != GN_OK) return r;
    plan *p = (plan *)alloc_zero(sizeof *p);
    r = p ? plan_fill(x, p, part, f) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    gn_release_ahead();
    if (r != GN_OK) {
        if (p) exec_plan_destroy(x, p);
        return r;
    }
    for (uint32_t u = 0; u < part->n_updates; u++)
        if (p->layout.update_how[u] == GN_UPDATE_INPLACE && part->updates[u].slot < x->n_slots)
            x->slots[part->updates[u].slot].cache = true;
    x->stats->view_copies += p->layout.view_copies;
    *out_plan = p;
    return GN_OK;
}

/* As a plan is made, as far as the rules go that say what runs in whose kernel. */
static gn_result exec_notes(void *self, const gn_part *part, gn_exec_note *out, uint32_t most, uint32_t *out_n,
                            gn_fault *f) {
    static const char *const texts[] = {
#define GN__X(NAME, text) text,
        GN__CU_REFUSALS(GN__X)
#undef GN__X
    };
    executor *x = (executor *)self;
    gn_fault local = { 0 };
    *out_n = 0;
    if (!f) f = &local;
    gn_result r = enter(x, f);
    if (r != GN_OK || !fuses_steps()) return r;
    plan *p = (plan *)alloc_zero(sizeof *p);
    if (!p || !plan_arrays(p, part)) r = gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    if (r == GN_OK) r = gn_layout_make(part, true, x->cancel, &p->layout, f);
    if (r == GN_OK) {
        emit_begin(&p->emit, x, p, f);
        bool ok = p->emit.fusions && p->emit.inlined && p->emit.checked && fuse_steps(&p->emit);
        if (!ok) r = gn_fail(f, GN_OUT_OF_MEMORY, "no memory to explain a plan");
        *out_n = (uint32_t)p->emit.n_refusals;
        for (uint32_t i = 0; i < *out_n && i < most; i++)
            out[i] = (gn_exec_note){ p->emit.refusals[i].node, 1, texts[p->emit.refusals[i].why] };
    }
    if (p) exec_plan_destroy(x, p);
    return r;
}

/* ---- ending runs ---- */

static void run_error(executor *x, const run *r, const uint32_t *words) {
    int64_t at, limit;
    memcpy(&at, &words[2], 8);
    memcpy(&limit, &words[4], 8);
    if (x->failed_ticket) return;
    x->failed_ticket = r->ticket;
    if (r->poisoned) {
        gn_fail(&x->failed, GN_STALE_HANDLE, "a kept value is gone: the run that makes it has failed");
        x->failed.node = GN_NO_NODE;
        return;
    }
    if (words[0] == GN_DIVISION_BY_ZERO) gn_fail(&x->failed, GN_DIVISION_BY_ZERO, "an integer divisor is 0");
    else if (limit == -1) gn_fail(&x->failed, (gn_result)words[0], "more than %lld elements are not 0", (long long)at);
    else if (limit == -2)
        gn_fail(&x->failed, (gn_result)words[0], "slot %lld is also that of another row", (long long)at);
    else if (limit == -3)
        gn_fail(&x->failed, (gn_result)words[0], "slot %lld lies in no page of its row's sequence", (long long)at);
    else
        gn_fail(&x->failed, (gn_result)words[0], "index %lld is outside 0 to %lld", (long long)at,
                (long long)(limit - 1));
    x->failed.node = words[1];
}

/* Waits for the oldest run and hands out its results. */
static void run_finish(executor *x) {
    run *r = &x->runs[x->first_run];
    int e = is_dead(x) ? 1 : cu.cuEventSynchronize(r->done), copied = copiers_wait(&x->down, r->copied);
    const uint32_t *words = (const uint32_t *)(const void *)r->stage;
    if (e == 0) e = copied != 0 ? copied : x->lost;
    if (e != 0) {
        executor_lose(x, NULL, e, "the end of a run");
        if (!x->failed_ticket) {
            x->failed_ticket = r->ticket;
            gn_fail(&x->failed, GN_DEVICE_LOST, "the GPU is lost: %s", x->lost_why);
            x->failed.node = GN_NO_NODE;
        }
    } else if (words[0]) {
        run_error(x, r, words);
        if (r->keeps) values_drop(x, r->ticket);
        for (uint32_t i = 1; i < x->n_runs; i++) {
            run *later = &x->runs[(x->first_run + i) % RUNS_MAX];
            later->poisoned = later->poisoned || later->inherits == r->ticket;
        }
    } else
        for (uint32_t i = 0; i < r->n_outs; i++) memcpy(r->outs[i].host, r->stage + r->outs[i].at, r->outs[i].bytes);
    gn_free(r->outs);
    r->outs = NULL;
    x->first_run = (x->first_run + 1) % RUNS_MAX;
    x->n_runs--;
}

static gn_result exec_wait(void *self, uint64_t ticket, gn_fault *f) {
    executor *x = (executor *)self;
    enter(x, NULL);
    while (x->n_runs && x->runs[x->first_run].ticket <= ticket) run_finish(x);
    if (!x->failed_ticket || x->failed_ticket > ticket) return GN_OK;
    gn_result r = x->failed.result;
    x->failed_ticket = 0;
    if (f) *f = x->failed;
    return r;
}

static bool exec_ended(void *self, uint64_t ticket) {
    enum { NOT_READY = 600 };
    executor *x = (executor *)self;
    const run *r = NULL;
    for (uint32_t i = 0; i < x->n_runs && x->runs[(x->first_run + i) % RUNS_MAX].ticket <= ticket; i++)
        r = &x->runs[(x->first_run + i) % RUNS_MAX];
    return !r || enter(x, NULL) != GN_OK ||
           (cu.cuEventQuery(r->done) != NOT_READY && copiers_have(&x->down, r->copied));
}

/* ---- starting a run ---- */

/* A piece of the pinned ring that no run still uses. NULL when there is no memory. */
static char *stage_alloc(executor *x, size_t bytes) {
    bytes = (bytes + 255) & ~(size_t)255;
    if (x->stage_head + bytes > STAGE_BYTES) x->stage_head = 0;
    for (;;) {
        bool clash = false;
        for (uint32_t i = 0; i < x->n_runs && !clash; i++) {
            const run *r = &x->runs[(x->first_run + i) % RUNS_MAX];
            size_t at = (size_t)(r->stage - x->stage);
            clash = at < x->stage_head + bytes && x->stage_head < at + r->stage_bytes;
        }
        if (!clash) break;
        run_finish(x);
    }
    char *p = x->stage + x->stage_head;
    x->stage_head += bytes;
    return p;
}

static gn_result fail_at(gn_fault *f, uint32_t node, gn_result r, const char *why) {
    gn_fail(f, r, "%s", why);
    if (f) f->node = node;
    return r;
}

/* The run in flight that may still fail and whose kept values this one uses; 0: none. With several, the host waits for
   all but the newest; with a plan that exchanges memory of states before it is known whether they are good, for all. */
static uint64_t value_run(executor *x, const plan *p, const gn_arg *args) {
    for (;;) {
        uint64_t oldest = UINT64_MAX, newest = 0;
        for (uint32_t i = 0; x->n_runs && i < p->part->n_args; i++) {
            const value *v =
                p->part->nodes[p->part->args[i]].leaf == GN_LEAF_VALUE ? value_find(x, args[i].value) : NULL;
            if (!v || !v->checked || v->run < x->runs[x->first_run].ticket) continue;
            oldest = v->run < oldest ? v->run : oldest;
            newest = v->run > newest ? v->run : newest;
        }
        if (!newest || (oldest == newest && !(p->exchanges && p->part->n_updates))) return newest;
        run_finish(x);
    }
}

static const char state_failed[] = "a step that failed had begun to write this state: release it and make it again";

/* Checks arguments and slots, before anything is changed. */
static gn_result run_check(executor *x, const plan *p, const gn_arg *args, const gn_out *outs, uint64_t *out_inherits,
                           gn_fault *f) {
    const gn_part *part = p->part;
    *out_inherits = value_run(x, p, args);
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn_part_node *n = &part->nodes[i];
        if (n->leaf == GN_LEAF_DATA && args[n->arg].bytes != node_bytes(part, i))
            return fail_at(f, i, GN_BAD_SIZE, "an argument has the wrong number of bytes");
        if (n->leaf == GN_LEAF_VALUE) {
            value *v = value_find(x, args[n->arg].value);
            if (!v || !same_type(v->dtype, &v->shape, part, i))
                return fail_at(f, i, GN_STALE_HANDLE, "a kept value is gone or of another type");
        }
        if (n->leaf != GN_LEAF_WEIGHT && n->leaf != GN_LEAF_STATE) continue;
        const slot *s = n->slot < x->n_slots ? &x->slots[n->slot] : NULL;
        if (!s || s->kind != n->leaf || s->gen != n->gen || !same_type(s->dtype, &s->shape, part, i))
            return fail_at(f, i, GN_STALE_HANDLE, "a weight or state is gone or of another type");
        if (s->failed) return fail_at(f, i, GN_STATE_FAILED, state_failed);
    }
    for (uint32_t i = 0; i < part->n_updates; i++) {
        const gn_part_update *u = &part->updates[i];
        const slot *s = u->slot < x->n_slots ? &x->slots[u->slot] : NULL;
        if (!s || s->kind != GN_LEAF_STATE || s->gen != u->gen || !same_type(s->dtype, &s->shape, part, u->node))
            return fail_at(f, u->node, GN_STALE_HANDLE, "a state is gone or of another type");
        if (s->failed) return fail_at(f, u->node, GN_STATE_FAILED, state_failed);
    }
    uint64_t last = x->n_values ? x->values[x->n_values - 1].id : 0;
    for (uint32_t i = 0; i < part->n_outs; i++) {
        if (outs[i].host && outs[i].bytes != node_bytes(part, part->outs[i]))
            return fail_at(f, part->outs[i], GN_BAD_SIZE, "an output has the wrong number of bytes");
        if (!outs[i].keep) continue;
        if (outs[i].keep <= last || outs[i].keep == UINT64_MAX)
            return fail_at(f, GN_NO_NODE, GN_BAD_ARGUMENT, "ids of kept values must rise, and end at 2^64 - 2");
        last = outs[i].keep;
    }
    return GN_OK;
}

/* Marks the slots of nodes of a leaf kind as used now: they do not move. */
static void run_pin(executor *x, const plan *p, gn_leaf_kind kind) {
    for (uint32_t i = 0; i < p->part->n_nodes; i++)
        if (p->part->nodes[i].leaf == kind) x->slots[p->part->nodes[i].slot].used = x->clock;
    for (uint32_t u = 0; kind == GN_LEAF_STATE && u < p->part->n_updates; u++)
        x->slots[p->part->updates[u].slot].used = x->clock;
}

static gn_result run_return(executor *x, plan *p, gn_leaf_kind kind, gn_fault *f) {
    for (uint32_t i = 0; i < p->part->n_nodes; i++) {
        slot *s = p->part->nodes[i].leaf == kind ? &x->slots[p->part->nodes[i].slot] : NULL;
        if (!s) continue;
        if (!s->out) {
            x->stats->weight_hits += kind == GN_LEAF_WEIGHT;
            p->moved = p->moved || s->here;
            continue;
        }
        p->moved = true;
        gn_result r = slot_return(x, s, f);
        if (r != GN_OK) return r;
    }
    for (uint32_t u = 0; kind == GN_LEAF_STATE && u < p->part->n_updates; u++) {
        slot *s = &x->slots[p->part->updates[u].slot];
        gn_result r = s->out ? slot_return(x, s, f) : GN_OK;
        if (r != GN_OK) return r;
        p->moved = p->moved || s->here;
    }
    return GN_OK;
}

/* All slots of the plan on the device; when its weights do not fit together, they come and go with the kernels that use
   them. */
static gn_result run_slots(executor *x, plan *p, gn_fault *f) {
    p->moved = p->streams = false;
    x->clock++;
    run_pin(x, p, GN_LEAF_STATE);
    run_pin(x, p, GN_LEAF_WEIGHT);
    gn_result r = run_return(x, p, GN_LEAF_STATE, f);
    if (r == GN_OK) r = run_return(x, p, GN_LEAF_WEIGHT, f);
    if (r != GN_OUT_OF_MEMORY && r != GN_LIMIT) return r;
    if (!x->evicts) return r;
    p->streams = true;
    x->clock++;
    run_pin(x, p, GN_LEAF_STATE);
    return run_return(x, p, GN_LEAF_STATE, f);
}

/* Where large arguments land: what is not in use makes room for the first area, not for the second. */
static gn_result run_upload_area(executor *x, plan *p, gn_fault *f) {
    p->upload_area =
        p->uploads_aside ? area_acquire(x, x->upload_areas, &x->next_upload_area, p->args_bytes, x->uploads) : NULL;
    if (p->upload_area || !p->uploads_aside) return GN_OK;
    area *to = p->upload_area = &x->upload_areas[0];
    gn_result r = device_alloc_on(x, p->args_bytes, x->uploads, &to->mem, f);
    if (r == GN_OK) to->bytes = p->args_bytes;
    to->in_use = r == GN_OK;
    return r;
}

/* Where arguments lie in this run. */
static gn__cu_ptr args_place(const executor *x, const plan *p) {
    return p->uploads_aside ? p->upload_area->mem : x->block + p->region[REGION_ARGS];
}

/* Every base's place in device memory. */
static gn_result run_bind(executor *x, plan *p, gn_fault *f) {
    const gn_part *part = p->part;
    gn_result found = run_upload_area(x, p, f);
    if (found != GN_OK) return found;
    if (p->total > x->block_bytes) {
        gn__cu_ptr block;
        size_t bytes = p->total + p->total / 4;
        gn_result r = device_alloc(x, bytes, &block, f);
        if (r != GN_OK) r = device_alloc(x, bytes = p->total, &block, f);
        if (r != GN_OK && !p->streams && x->evicts) {
            p->streams = true;
            x->clock++;
            run_pin(x, p, GN_LEAF_STATE);
            r = device_alloc(x, bytes, &block, f);
        }
        if (r != GN_OK) return r;
        if (x->block_bytes) device_free(x, x->block, x->block_bytes);
        x->block = block;
        x->block_bytes = bytes;
        x->block_age++;
    }
    for (uint32_t u = 0; u < part->n_updates && p->exchanges; u++) {
        if (p->fresh[u] || p->layout.update_how[u] == GN_UPDATE_INPLACE) continue;
        gn_result r = device_alloc(x, node_bytes(part, part->updates[u].node), &p->fresh[u], f);
        if (r != GN_OK) return r;
    }
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn_part_node *n = &part->nodes[i];
        const gn_lay *lay = &p->layout.lay[i];
        if (lay->place == GN_PLACE_ARG) p->base[i] = args_place(x, p) + p->arg_at[n->arg];
        else if (lay->place == GN_PLACE_SLOT) p->base[i] = x->slots[n->slot].mem;
        else if (lay->place == GN_PLACE_BLOCK) p->base[i] = x->block + lay->offset;
        else if (lay->place == GN_PLACE_OWN)
            p->base[i] = p->exchanges ? p->fresh[lay->own] : x->block + p->region[REGION_OWN] + p->own_at[lay->own];
        else if (lay->place == GN_PLACE_INPLACE) p->base[i] = p->base[lay->own];
    }
    for (uint32_t i = 0; i < part->n_nodes && p->moved; i++) { /* states are read from the first kernel on */
        gn_result r = part->nodes[i].leaf == GN_LEAF_STATE ? slot_await(x, &x->slots[part->nodes[i].slot], f) : GN_OK;
        if (r != GN_OK) return r;
    }
    for (uint32_t u = 0; u < part->n_updates; u++)
        p->base[part->n_nodes + u] = p->exchanges ? p->fresh[u] : x->slots[part->updates[u].slot].mem;
    return GN_OK;
}

static gn_result encode_map(executor *x, const tensor_map *m, gn__cu_ptr at, void *out, gn_fault *f) {
    const unsigned steps[4] = { 1, m->windows ? m->steps[0] : 1, m->windows ? m->steps[1] : 1, 1 };
    void *p;
    memcpy(&p, &at, sizeof p);
    /* 7: f32, 11: f32 rounded to TF32 */
    int type = m->dtype == GN_F16 ? 6 : m->dtype == GN_BF16 ? 9 : m->plain ? 7 : 11;
    /* 128 bytes at a time from the L2, zeros outside */
    if (m->windows) {
        DRIVER(x, f,
               window_map(out, type, 4, p, m->dims, m->strides, m->lower, m->upper, m->box[0], m->box[1], steps, 0, 3,
                          2, 0));
        return GN_OK;
    }
    DRIVER(x, f, tensor_map(out, type, 4, p, m->dims, m->strides, m->box, steps, 0, m->plain ? 0 : 3, 2, 0));
    return GN_OK;
}

typedef union param_value {
    gn__cu_ptr p;
    uint32_t w;
    uint64_t l;
} param_value;

/* values: A, B, where to, workspace, bias. */
static gn_result run_blas(executor *x, const blas_product *q, const param_value *values, gn_fault *f) {
    static const float one = 1, zero = 0;
    int r = q->has_bias ? blas.cublasLtMatmulDescSetAttribute(q->product, 8, &values[4].p, sizeof values[4].p) : 0;
    if (r == 0)
        r = blas.cublasLtMatmul(x->device->blas, q->product, &one, values[1].p, q->b, values[0].p, q->a, &zero,
                                values[2].p, q->out, values[2].p, q->out, q->algorithm, values[3].p, q->workspace,
                                x->stream);
    return r == 0 ? GN_OK : gn_fail(f, GN_INTERNAL, "cublasLtMatmul gives error %d", r);
}

/* Where filters are packed in each run. */
static gn__cu_ptr pack_scratch(const executor *x, const plan *p, size_t pack) {
    return x->block + p->region[REGION_SCRATCH] + p->emit.packs[pack].scratch_at;
}

/* It packs filters that lie packed. */
static bool launch_is_done(const executor *x, const plan *p, const launch *l) {
    return l->pack && p->base[packed_node(&p->emit, l->pack - 1)] != pack_scratch(x, p, l->pack - 1);
}

/* The one that this run launches before it, or NULL. */
static const launch *launch_before(const executor *x, const plan *p, const launch *l) {
    while (l > p->emit.launches && launch_is_done(x, p, l - 1)) l--;
    return l > p->emit.launches ? l - 1 : NULL;
}

static gn_result run_launch(executor *x, const plan *p, const launch *l, gn_fault *f) {
    param_value values[PARAMS_MAX];
    struct {
        _Alignas(64) unsigned char bytes[128];
    } maps[4];
    void *list[PARAMS_MAX];
    int n_maps = 0;
    for (uint32_t i = 0; i < l->n_params; i++) {
        const param *arg = &p->emit.params[l->param + i];
        if (arg->kind == PARAM_ARG) values[i].l = p->words[arg->node];
        else if (arg->kind == PARAM_NODE) values[i].p = p->base[arg->node] + (gn__cu_ptr)arg->offset;
        else if (arg->kind == PARAM_PLAN) values[i].p = x->block + p->region[arg->node] + (gn__cu_ptr)arg->offset;
        else if (arg->kind == PARAM_WORD) values[i].w = (uint32_t)arg->offset;
        else values[i].l = (uint64_t)arg->offset;
        list[i] = &values[i];
        if (arg->kind != PARAM_MAP) continue;
        const tensor_map *m = &p->emit.maps[arg->node];
        gn_result r = encode_map(x, m,
                                 (m->scratch || m->moved ? x->block + p->region[m->moved ? REGION_ROWS : REGION_SCRATCH]
                                                         : p->base[m->node]) +
                                     (gn__cu_ptr)m->offset,
                                 maps[n_maps].bytes, f);
        if (r != GN_OK) return r;
        list[i] = maps[n_maps++].bytes;
    }
    if (l->blas) return run_blas(x, l->blas, values, f);
    launch_attribute attributes[2] = { { 0 } };
    launch_config c = { { l->grid_x, l->grid_y, 1 }, { l->block, 1, 1 }, l->shared, x->stream, attributes, 0 };
    if (l->cluster > 1) attributes[c.n_attributes++] = (launch_attribute){ LAUNCH_CLUSTER, 0, { l->cluster, 1, 1 } };
    const launch *before = launch_before(x, p, l);
    bool follows = before ? !before->blas && before->when != LAUNCH_INSTEAD : l->waits && p->emit.n_launches == 1;
    if (l->early && x->overlaps && !p->moved && !p->streams && follows)
        attributes[c.n_attributes++] = (launch_attribute){ LAUNCH_PROGRAMMATIC, 0, { 1 } };
    if (c.n_attributes) DRIVER(x, f, cuLaunchKernelEx(&c, l->kernel->function, list, NULL));
    else
        DRIVER(x, f,
               cuLaunchKernel(l->kernel->function, l->grid_x, l->grid_y, 1, l->block, 1, 1, l->shared, x->stream, list,
                              NULL));
    return GN_OK;
}

/* The weight that a parameter shows, or NULL. */
static slot *param_weight(executor *x, const plan *p, const param *arg, uint32_t *out_node) {
    if (arg->kind != PARAM_NODE && arg->kind != PARAM_MAP) return NULL;
    *out_node = arg->kind == PARAM_MAP ? p->emit.maps[arg->node].node : arg->node;
    return *out_node < p->part->n_nodes && p->part->nodes[*out_node].leaf == GN_LEAF_WEIGHT
               ? &x->slots[p->part->nodes[*out_node].slot]
               : NULL;
}

/* Before launch i of a plan whose weights moved: its own are there, those of the next two are on their way. */
static gn_result run_weights(executor *x, plan *p, size_t i, gn_fault *f) {
    enum { AHEAD = 2 };
    gn_result r = GN_OK;
    uint32_t node = 0;
    size_t end = p->streams && i + 1 + AHEAD < p->emit.n_launches ? i + 1 + AHEAD
                 : p->streams                                     ? p->emit.n_launches
                                                                  : i + 1;
    if (p->streams) {
        x->clock++;
        run_pin(x, p, GN_LEAF_STATE);
    }
    for (int bring = 0; bring < 2; bring++) { /* first all of them are marked as in use */
        for (size_t l = i; l < end; l++) {
            for (uint32_t k = 0; k < p->emit.launches[l].n_params; k++) {
                slot *s = param_weight(x, p, &p->emit.params[p->emit.launches[l].param + k], &node);
                if (!s) continue;
                s->used = x->clock;
                if (bring && s->out) r = slot_return(x, s, f);
                if (bring && l == i && r != GN_OK) return r;
                if (bring && l == i) {
                    p->base[node] = s->mem;
                    r = slot_await(x, s, f);
                    if (r != GN_OK) return r;
                }
                if (r != GN_OK) return GN_OK; /* ahead: later then */
            }
        }
    }
    return GN_OK;
}

/* A product by cuBLASLt; *out_ok: it is on its way, otherwise own kernels follow, here and, so that bits stay as they
   are then, for all of this device. */
static gn_result run_blas_launch(executor *x, plan *p, const launch *l, bool *out_ok, gn_fault *f) {
    gn_fault why = { 0 };
    *out_ok = !atomic_load(&x->device->blas_failed) && run_launch(x, p, l, &why) == GN_OK;
    if (*out_ok) return GN_OK;
    atomic_store(&x->device->blas_failed, true);
    return other_way(x, f, &x->stats->blas_faults, 1,
                     why.result != GN_OK ? why.text : "cuBLASLt failed before: own kernels compute its products");
}

/* Whether a run may end between two of its kernels: before the first, and when none writes a state where it lies. */
static bool run_may_end(const plan *p) {
    bool may = p->exchanges || p->part->n_updates == 0;
    for (uint32_t u = 0; u < p->part->n_updates && may; u++) may = p->layout.update_how[u] != GN_UPDATE_INPLACE;
    return may || !p->began;
}

/* ---- filters that are packed once, before the kernels of the first run that needs them ---- */

/* NULL: they are not packed, or there is no room; *out_new: room has been found for them just now. */
static packed *pack_place(executor *x, slot *s, const packed_part *k, bool *out_new) {
    packed *to = s->packs;
    while (to && (to->bytes != k->bytes || memcmp(&to->form, &k->form, sizeof k->form) != 0)) to = to->next;
    *out_new = false;
    if (to) return to;
    size_t bytes = align_up(k->bytes);
    to = (packed *)alloc_zero(sizeof *to);
    if (!to || device_alloc_now(x, bytes, x->stream, &to->mem, NULL) != GN_OK) {
        gn_free(to);
        return NULL;
    }
    x->held += bytes;
    x->stats->device_bytes += bytes;
    to->form = k->form;
    to->bytes = k->bytes;
    to->next = s->packs;
    s->packs = to;
    *out_new = true;
    return to;
}

/* By the launch that does it. */
static gn_result pack_fill(executor *x, plan *p, size_t pack, gn_fault *f) {
    size_t i = 0;
    while (p->emit.launches[i].pack != pack + 1) i++;
    gn_result r = p->moved ? run_weights(x, p, i, f) : GN_OK;
    return r == GN_OK ? run_launch(x, p, &p->emit.launches[i], f) : r;
}

/* All else of the run has its memory. What finds none is packed in scratch memory, in each run. */
static gn_result run_packs(executor *x, plan *p, gn_fault *f) {
    p->packs_kept = p->packs_made = 0;
    for (size_t i = 0; i < p->emit.n_packs; i++) {
        const packed_part *k = &p->emit.packs[i];
        gn__cu_ptr *at = &p->base[packed_node(&p->emit, i)];
        slot *s = &x->slots[p->part->nodes[k->node].slot];
        bool is_new = false;
        const packed *to = p->streams ? NULL : pack_place(x, s, k, &is_new);
        *at = to ? to->mem : pack_scratch(x, p, i);
        gn_result r = is_new ? pack_fill(x, p, i, f) : GN_OK;
        if (r != GN_OK) slot_unpack(x, s);
        if (r != GN_OK) return r;
        p->packs_made += is_new;
    }
    for (size_t i = 0; i < p->emit.n_launches; i++) {
        const launch *l = &p->emit.launches[i];
        p->packs_kept += launch_is_done(x, p, l);
        x->stats->filters_repacked += l->pack && !launch_is_done(x, p, l);
    }
    x->stats->filters_packed += p->packs_made;
    return GN_OK;
}

/* Kernels that a run has launched. */
static uint64_t run_launched(const plan *p) {
    return p->emit.n_launches - p->emit.n_instead - p->packs_kept + p->packs_made;
}

/* ---- kernels one by one, for a trace: an event before the first and after each ---- */

typedef struct timing {
    gn__cu_handle *events;
    const launch **launches; /* of events[1…] */
    size_t n, cap;           /* events recorded; there are */
} timing;

static void timing_free(timing *t) {
    for (size_t i = 0; i < t->cap; i++) cu.real.cuEventDestroy(t->events[i]);
    gn_free(t->events);
    gn_free(t->launches);
}

/* False: there is no room for events. */
static bool timing_init(timing *t, size_t launches) {
    *t = (timing){ (gn__cu_handle *)alloc_zero((launches + 1) * sizeof *t->events),
                   (const launch **)alloc_zero((launches + 1) * sizeof *t->launches), 0, 0 };
    while (t->events && t->launches && t->cap <= launches && cu.real.cuEventCreate(&t->events[t->cap], 0) == 0)
        t->cap++;
    if (t->cap == launches + 1) return true;
    timing_free(t);
    return false;
}

static void timing_mark(executor *x, const launch *l) {
    timing *t = x->timing;
    if (t->n < t->cap && cu.real.cuEventRecord(t->events[t->n], x->stream) == 0) t->launches[t->n++] = l;
}

static bool rows_have(const emit *e, const row_group *g, uint32_t k) {
    for (uint32_t j = 0; j < g->n_steps; j++)
        if (row_at(e, g, j) == k) return true;
    return false;
}

static bool vectors_have(const emit *e, const vector_group *g, uint32_t k) {
    for (uint32_t j = 0; j < g->n; j++) {
        const vector_part *p = &g->parts[j];
        if (p->product[0] == k + 1 || p->product[1] == k + 1 || p->loop == k + 1 || p->best == k + 1) return true;
    }
    return g->norm == k + 1 || (g->rows && rows_have(e, &e->groups[g->rows - 1], k));
}

/* The step in whose kernel step k runs. */
static uint32_t step_owner(const plan *p, uint32_t k) {
    const emit *e = &p->emit;
    if (k > 0 && tail_of(e, k - 1) == &p->layout.steps[k]) return k - 1;
    if (!e->fusions[k].inside) return k;
    for (uint32_t i = 0; i < p->layout.n_steps; i++) {
        const fusion *u = &e->fusions[i];
        const uint32_t taken[] = { u->product, u->loop, u->best, u->append[0], u->append[1], u->turn[0], u->turn[1] };
        for (size_t j = 0; j < sizeof taken / sizeof *taken; j++)
            if (taken[j] == k + 1 && !u->inside) return i;
        if (u->vectors && vectors_have(e, &e->vectors[u->vectors - 1], k)) return i;
        for (int j = 0; j < 2; j++)
            if (u->made[j] && rows_have(e, &e->groups[u->made[j] - 1], k)) return i;
        if (u->rows && rows_have(e, &e->groups[u->rows - 1], k)) return i;
    }
    while (k + 1 < p->layout.n_steps && e->fusions[k].inside) k++; /* with what reads it */
    return k;
}

static void kernel_told(const plan *p, const launch *l, const char *lane, uint64_t begin, uint64_t end) {
    enum { STEPS = 64 };
    uint32_t steps[STEPS];
    size_t n = 0;
    char detail[GN__KERNEL_TEXT];
    for (uint32_t k = 0; l->step && k < p->layout.n_steps && n < STEPS; k++)
        if (step_owner(p, k) == l->step - 1) steps[n++] = k;
    gn_kernel_text(p->part, &p->layout, steps, n, detail, sizeof detail);
    gn_span s = { .stage = GN_STAGE_KERNEL,
                  .name = l->blas ? "cublasLtMatmul" : l->kernel->name,
                  .lane = lane,
                  .begin_ns = begin,
                  .end_ns = end,
                  .detail = detail };
    gn_trace_span(&s);
}

/* Told when all have ended: from then back, since that moment both clocks know. */
static void timing_told(executor *x, const plan *p, const timing *t, uint64_t begin) {
    char lane[32], detail[160];
    float ms = 0;
    int r = t->n > 1 ? cu.real.cuEventSynchronize(t->events[t->n - 1]) : 1;
    uint64_t end = gn_now_ns();
    if (r != 0 || cu.real.cuEventElapsedTime(&ms, t->events[0], t->events[t->n - 1]) != 0) return;
    uint64_t spent = (uint64_t)((double)ms * 1e6), first = end - spent, at = 0;
    snprintf(lane, sizeof lane, "cuda:%d", x->device->ordinal);
    for (size_t i = 1; i < t->n; i++) {
        float upto = 0;
        if (cu.real.cuEventElapsedTime(&upto, t->events[0], t->events[i]) != 0) return;
        uint64_t to = (uint64_t)((double)upto * 1e6);
        kernel_told(p, t->launches[i], lane, first + at, first + to);
        at = to;
    }
    snprintf(detail, sizeof detail,
             "%llu kernels one by one, which took the GPU %llu ns; this step waited for them, others do not",
             (unsigned long long)t->n - 1, (unsigned long long)spent);
    gn_trace_end(GN_STAGE_LAUNCH, "profiling replay", begin, 0, detail);
}

static gn_result run_launches(executor *x, plan *p, gn_fault *f) {
    gn_result r = GN_OK;
    bool by_blas = true;
    for (size_t i = 0; i < p->emit.n_launches && r == GN_OK; i++) {
        const launch *l = &p->emit.launches[i];
        gn_result why = gn_flag_get(x->cancel);
        if (why && run_may_end(p))
            return gn_fail(f, why, "the run ended before its kernel %zu of %zu: %s", i + 1, p->emit.n_launches,
                           gn_result_text(why));
        if (l->when != LAUNCH_ALWAYS && (l->when == LAUNCH_AFTER_BLAS) != by_blas) continue;
        if (launch_is_done(x, p, l)) continue;
        if (p->moved || p->streams) r = run_weights(x, p, i, f);
        if (r == GN_OK) r = l->blas ? run_blas_launch(x, p, l, &by_blas, f) : run_launch(x, p, l, f);
        if (x->timing && r == GN_OK) timing_mark(x, l);
        p->began = p->began || r == GN_OK;
    }
    return r;
}

/* Captures the plan's launches; false when that is not possible here. */
static bool run_capture(executor *x, plan *p, int at, size_t nodes) {
    gn__cu_handle graph = NULL, *exec = &p->captured[at].graph;
    if (*exec) cu.cuGraphExecDestroy(*exec);
    *exec = NULL;
    if (cu.cuStreamBeginCapture(x->stream, 2) != 0) return false; /* 2: relaxed */
    gn_result r = run_launches(x, p, NULL);
    p->began = false;
    if (cu.cuStreamEndCapture(x->stream, &graph) != 0 || !graph) return false;
    if (r != GN_OK || cu.cuGraphInstantiateWithFlags(exec, graph, 0) != 0) *exec = NULL;
    cu.cuGraphDestroy(graph);
    memcpy(p->captured[at].bound, p->base, nodes * sizeof *p->base);
    p->captured[at].age = x->block_age;
    return *exec != NULL;
}

/* The same, kernel by kernel with a time each; what it costs is the span of its own. */
static gn_result run_timed(executor *x, plan *p, gn_fault *f) {
    timing t;
    if (!timing_init(&t, p->emit.n_launches)) return run_launches(x, p, f);
    cu.real.cuStreamSynchronize(x->stream);
    uint64_t begin = gn_now_ns();
    x->timing = &t;
    timing_mark(x, NULL);
    gn_result r = run_launches(x, p, f);
    x->timing = NULL;
    if (r == GN_OK) timing_told(x, p, &t, begin);
    timing_free(&t);
    return r;
}

enum { TIMED_FIRST = 2, TIMED_EVERY = 64 }; /* runs of a plan whose kernels are timed, when they are traced */

/* From the second run on as one graph, captured again when memory has moved. `moves`: results lie elsewhere in each
   run. */
static gn_result run_kernels(executor *x, plan *p, bool moves, gn_fault *f) {
    size_t nodes = (size_t)p->part->n_nodes + p->part->n_updates + p->emit.n_packs;
    int at = -1;
    p->runs++;
    p->began = false;
    if (gn_traces_kernels() && p->emit.n_launches && (p->runs == TIMED_FIRST || p->runs % TIMED_EVERY == 0))
        return run_timed(x, p, f);
    if (!x->graphs || p->emit.by_value || moves || p->moved || p->streams || p->runs < 2 || p->emit.n_launches < 2)
        return run_launches(x, p, f);
    for (int i = 0; i < CAPTURES; i++)
        if (p->captured[i].graph && p->captured[i].age == x->block_age &&
            memcmp(p->captured[i].bound, p->base, nodes * sizeof *p->base) == 0)
            at = i;
    if (at < 0) {
        at = (int)(p->next_capture++ % CAPTURES);
        if (!run_capture(x, p, at, nodes)) return run_launches(x, p, f);
    }
    DRIVER(x, f, cuGraphLaunch(p->captured[at].graph, x->stream));
    p->began = true;
    return GN_OK;
}

/* No kernel of the plan writes error words, and no earlier run hands any down. */
static bool run_is_quiet(const plan *p, uint64_t inherits) { return !p->emit.faults && !p->emit.n_flags && !inherits; }

/* Pinned memory of the caller's is read by the copy engine itself, without a copy in between. */
enum { DIRECT_LEAST = 32768 };

static bool is_direct(const plan *p, const gn_arg *a, size_t bytes) {
    return (bytes >= DIRECT_LEAST || p->args_bytes > STAGE_LARGEST) && is_pinned(a->host);
}

static bool has_direct(const plan *p, const gn_arg *args) {
    bool any = false;
    for (uint32_t i = 0; i < p->part->n_args && pinned_blocks.n && !any; i++)
        any = p->part->nodes[p->part->args[i]].leaf != GN_LEAF_VALUE &&
              is_direct(p, &args[i], node_bytes(p->part, p->part->args[i]));
    return any;
}

/* Bytes given with this run. Staged in one piece when they are few and none is read directly; many go beside the
   kernels of earlier runs, from when the last run that read this area has ended. */
static gn_result run_data(executor *x, plan *p, const gn_arg *args, char *stage, bool direct, bool quiet, gn_fault *f) {
    gn__cu_ptr to = args_place(x, p);
    gn__cu_handle stream = p->uploads_aside ? x->uploads : x->stream;
    bool staged = p->args_bytes <= STAGE_LARGEST, together = staged && !direct && !p->uploads_aside;
    if (p->uploads_aside) DRIVER(x, f, cuStreamWaitEvent(stream, p->upload_area->empty, 0));
    for (uint32_t i = 0; i < p->part->n_args; i++) {
        size_t bytes = node_bytes(p->part, p->part->args[i]);
        if (!bytes || p->part->nodes[p->part->args[i]].leaf == GN_LEAF_VALUE) continue;
        const char *from = (const char *)args[i].host;
        if (p->emit.by_value) memcpy(&p->words[i], from, bytes < 8 ? bytes : 8);
        x->stats->bytes_to_device += bytes;
        if (!p->args_bytes) continue;
        bool pinned = is_direct(p, &args[i], bytes), large = !staged && !pinned && bytes >= PLAIN_LEAST;
        uint64_t job = large && p->uploads_aside && copiers_ready(x, &x->up)
                           ? copiers_ask(&x->up, to + p->arg_at[i], args[i].host, bytes, NULL)
                           : 0;
        if (staged && !pinned) {
            memcpy(stage + p->arg_at[i], from, bytes);
            from = stage + p->arg_at[i];
        }
        if (!together && !job) DRIVER(x, f, cuMemcpyHtoDAsync(to + p->arg_at[i], from, bytes, stream));
        x->stats->copies_aside += p->uploads_aside;
        x->stats->copies_waited += large && !job;
    }
    int copied = copiers_wait(&x->up, x->up.asked);
    if (copied != 0) return driver_fail(x, f, copied, "a copy to the GPU");
    if (p->uploads_aside) {
        DRIVER(x, f, cuEventRecord(p->upload_area->full, stream));
        DRIVER(x, f, cuStreamWaitEvent(x->stream, p->upload_area->full, 0));
    }
    if (together) {
        memset(stage + p->args_bytes, 0, p->errors_bytes);
        size_t bytes = p->args_bytes + (quiet ? 0 : p->errors_bytes);
        if (bytes) DRIVER(x, f, cuMemcpyHtoDAsync(to, stage, bytes, x->stream));
    } else if (!quiet)
        DRIVER(x, f, cuMemsetD8Async(x->block + p->region[REGION_ERRORS], 0, p->errors_bytes, x->stream));
    if (direct) DRIVER(x, f, cuEventRecord(x->uploaded, stream));
    return GN_OK;
}

/* Argument bytes have left the caller's memory when this returns, or, `direct`, when `uploaded` has come. */
static gn_result run_arguments(executor *x, plan *p, const gn_arg *args, char *stage, bool direct, uint64_t inherits,
                               gn_fault *f) {
    const gn_part *part = p->part;
    gn__cu_ptr to = args_place(x, p);
    gn_result r = run_data(x, p, args, stage, direct, run_is_quiet(p, inherits), f);
    for (uint32_t i = 0; i < part->n_args && r == GN_OK; i++) {
        uint32_t node = part->args[i];
        const value *v = part->nodes[node].leaf == GN_LEAF_VALUE ? value_find(x, args[i].value) : NULL;
        if (part->nodes[node].leaf == GN_LEAF_VALUE && !v)
            return fail_at(f, node, GN_STALE_HANDLE, "a kept value is gone: the run that makes it has failed");
        if (v && v->bytes) DRIVER(x, f, cuMemcpyDtoDAsync(to + p->arg_at[i], v->mem, v->bytes, x->stream));
        if (v && inherits && v->run == inherits)
            DRIVER(x, f,
                   cuMemcpyDtoDAsync(x->block + p->region[REGION_ERRORS], v->mem + align_up(v->bytes), ERROR_WORDS * 4,
                                     x->stream));
    }
    return r;
}

static gn__cu_ptr out_place(const executor *x, const plan *p, uint32_t i) {
    const gn_lay *lay = &p->layout.lay[p->part->outs[i]];
    if (p->out_at[i] != SIZE_MAX) return x->block + p->region[REGION_OUTS] + p->out_at[i];
    return p->base[lay->base] + (gn__cu_ptr)lay->view.offset;
}

/* Large results that fill their memory are computed where they are kept. */
enum { KEPT_IN_PLACE = 1 << 20 };

static bool fills_its_memory(const plan *p, uint32_t i) {
    const gn_lay *lay = &p->layout.lay[p->part->outs[i]];
    const gn_lay *base = &p->layout.lay[lay->base];
    return p->out_at[i] == SIZE_MAX && base->place == GN_PLACE_BLOCK && !lay->view.offset &&
           gn_view_count(&lay->view) == gn_view_count(&base->view) && p->near_at[i] == SIZE_MAX;
}

/* Smaller ones too in a plan of one kernel, which is not replayed as a graph. */
static bool keeps_in_place(const plan *p, uint32_t i) {
    return fills_its_memory(p, i) &&
           (p->emit.n_launches == 1 || node_bytes(p->part, p->part->outs[i]) >= KEPT_IN_PLACE);
}

/* Large results leave from an area, where they are computed when they fill their memory. Without memory for one they
   leave from where they are, and the next run waits. */
static gn_result run_download_area(executor *x, plan *p, const gn_out *outs, gn_fault *f) {
    size_t bytes = 0;
    p->download_area = NULL;
    for (uint32_t i = 0; i < p->part->n_outs; i++) {
        p->download_at[i] = SIZE_MAX;
        if (!x->aside || !outs[i].host || outs[i].bytes < ASIDE_LEAST) continue;
        p->download_at[i] = bytes;
        bytes = gn_size_add(bytes, align_up(outs[i].bytes));
    }
    if (!bytes || !(p->download_area = area_acquire(x, x->download_areas, &x->next_download_area, bytes, x->stream)))
        return GN_OK;
    DRIVER(x, f, cuStreamWaitEvent(x->stream, p->download_area->empty, 0));
    for (uint32_t i = 0; i < p->part->n_outs; i++) {
        uint32_t base = p->layout.lay[p->part->outs[i]].base;
        if (p->download_at[i] != SIZE_MAX && fills_its_memory(p, i) &&
            p->base[base] == x->block + p->layout.lay[base].offset)
            p->base[base] = p->download_area->mem + p->download_at[i];
    }
    return GN_OK;
}

/* Memory of the values that this run keeps; *out_moves: some are computed there. */
static gn_result run_keep(executor *x, plan *p, const gn_out *outs, const run *now, bool *out_moves, gn_fault *f) {
    for (uint32_t i = 0; i < p->part->n_outs; i++) {
        uint32_t node = p->part->outs[i], base = p->layout.lay[node].base;
        if (!outs[i].keep) continue;
        value v = { outs[i].keep,
                    now->ticket,
                    (gn_dtype)p->part->nodes[node].dtype,
                    node_shape(p->part, node),
                    0,
                    node_bytes(p->part, node),
                    false,
                    p->emit.faults || now->inherits };
        if (!grow(&x->values, x->n_values, &x->cap_values, sizeof v))
            return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to keep a value");
        gn_result r = device_alloc(x, value_size(&v), &v.mem, f);
        if (r != GN_OK) return r;
        v.in_place = keeps_in_place(p, i) && p->base[base] == x->block + p->layout.lay[base].offset;
        if (v.in_place) {
            p->base[base] = v.mem;
            *out_moves = true;
        }
        x->values[x->n_values++] = v;
    }
    return GN_OK;
}

/* True: copiers bring a result from its area to plain memory. */
static bool run_copies(executor *x, const plan *p, const gn_out *o, gn__cu_ptr from, run *r) {
    uint64_t job =
        copiers_ready(x, &x->down) ? copiers_ask(&x->down, from, o->host, o->bytes, p->download_area->full) : 0;
    if (job) r->copied = p->download_area->copied = job;
    return job != 0;
}

/* One result's way to the host: small ones through the run's pinned memory, pinned ones directly, large others by
   copiers or, without an area or copiers, by the driver's own staging, for which this waits. *at: what is taken of the
   run's staging memory. */
static gn_result run_download(executor *x, const plan *p, const gn_out *o, uint32_t i, run *r, size_t *at,
                              gn_fault *f) {
    bool aside = p->download_area && p->download_at[i] != SIZE_MAX;
    gn__cu_ptr from = aside ? p->download_area->mem + p->download_at[i] : out_place(x, p, i);
    gn__cu_handle stream = aside ? x->downloads : x->stream;
    x->stats->bytes_to_host += o->bytes;
    x->stats->copies_aside += aside;
    if (p->near_at[i] != SIZE_MAX) {
        r->outs[r->n_outs++] = (pending_out){
            o->host, p->errors_bytes + p->near_at[i] + (size_t)p->layout.lay[p->part->outs[i]].view.offset, o->bytes
        };
        return GN_OK;
    }
    *at = (*at + 63) & ~(size_t)63;
    bool direct = o->bytes > 65536 && is_pinned(o->host);
    if (direct || *at + o->bytes > r->stage_bytes) {
        if (!direct && aside && run_copies(x, p, o, from, r)) return GN_OK;
        DRIVER(x, f, cuMemcpyDtoHAsync(o->host, from, o->bytes, stream));
        x->stats->copies_waited += !direct;
        return GN_OK;
    }
    DRIVER(x, f, cuMemcpyDtoHAsync(r->stage + *at, from, o->bytes, stream));
    r->outs[r->n_outs++] = (pending_out){ o->host, *at, o->bytes };
    *at += o->bytes;
    return GN_OK;
}

/* Copies to the host. What leaves from an area does so beside the kernels of later runs. */
static gn_result run_downloads(executor *x, const plan *p, const gn_out *outs, run *r, gn_fault *f) {
    size_t at = p->errors_bytes + p->near_bytes;
    bool quiet = run_is_quiet(p, r->inherits), near = false;
    for (uint32_t i = 0; i < p->part->n_outs; i++) near = near || (outs[i].host && p->near_at[i] != SIZE_MAX);
    size_t from = quiet ? p->errors_bytes : 0, to = near ? at : quiet ? from : ERROR_WORDS * 4;
    memset(r->stage, 0, ERROR_WORDS * 4);
    if (from < to)
        DRIVER(x, f,
               cuMemcpyDtoHAsync(r->stage + from, x->block + p->region[REGION_ERRORS] + from, to - from, x->stream));
    if (p->download_area) {
        DRIVER(x, f, cuEventRecord(p->download_area->full, x->stream));
        DRIVER(x, f, cuStreamWaitEvent(x->downloads, p->download_area->full, 0));
    }
    for (uint32_t i = 0; i < p->part->n_outs; i++) {
        gn_result e = outs[i].host && outs[i].bytes ? run_download(x, p, &outs[i], i, r, &at, f) : GN_OK;
        if (e != GN_OK) return e;
    }
    if (p->download_area) DRIVER(x, f, cuEventRecord(p->download_area->empty, x->downloads));
    return GN_OK;
}

/* On the device: copies of results for those that are kept, and for those that leave and were not computed there. */
static gn_result run_results(executor *x, const plan *p, const gn_out *outs, run *r, gn_fault *f) {
    for (uint32_t i = 0; i < p->part->n_outs; i++) {
        const value *v = outs[i].keep ? value_find(x, outs[i].keep) : NULL;
        r->keeps = r->keeps || v;
        if (v && v->checked)
            DRIVER(x, f,
                   cuMemcpyDtoDAsync(v->mem + align_up(v->bytes), x->block + p->region[REGION_ERRORS], ERROR_WORDS * 4,
                                     x->stream));
        if (v && v->bytes && !v->in_place)
            DRIVER(x, f, cuMemcpyDtoDAsync(v->mem, out_place(x, p, i), v->bytes, x->stream));
        gn__cu_ptr place =
            p->download_area && p->download_at[i] != SIZE_MAX ? p->download_area->mem + p->download_at[i] : 0;
        if (place && place != out_place(x, p, i))
            DRIVER(x, f, cuMemcpyDtoDAsync(place, out_place(x, p, i), outs[i].bytes, x->stream));
    }
    if (p->uploads_aside) DRIVER(x, f, cuEventRecord(p->upload_area->empty, x->stream));
    return run_downloads(x, p, outs, r, f);
}

/* Results that are weights themselves are on the device. */
static gn_result run_weight_outs(executor *x, plan *p, gn_fault *f) {
    gn_result r = GN_OK;
    for (uint32_t i = 0; i < p->part->n_outs && r == GN_OK; i++) {
        uint32_t base = p->layout.lay[p->part->outs[i]].base;
        slot *s = p->part->nodes[base].leaf == GN_LEAF_WEIGHT ? &x->slots[p->part->nodes[base].slot] : NULL;
        if (!s) continue;
        s->used = x->clock;
        if (s->out) r = slot_return(x, s, f);
        if (r == GN_OK) r = slot_await(x, s, f);
        p->base[base] = s->mem;
    }
    return r;
}

static size_t staged_bytes(const plan *p, const gn_out *outs) {
    size_t n = p->errors_bytes + p->near_bytes;
    for (uint32_t i = 0; i < p->part->n_outs; i++)
        if (outs[i].host && outs[i].bytes <= STAGE_LARGEST && p->near_at[i] == SIZE_MAX) n += outs[i].bytes + 64;
    /* error words and what lies near them are fewer; other results go by themselves then */
    return n > STAGE_DOWN ? STAGE_DOWN : n;
}

static gn_result run_start(executor *x, plan *p, const gn_arg *args, const gn_out *outs, run *r, gn_fault *f) {
    size_t up = p->args_bytes <= STAGE_LARGEST ? align_up(p->args_bytes + p->errors_bytes) : 0;
    r->stage_bytes = staged_bytes(p, outs);
    char *stage = stage_alloc(x, r->stage_bytes + up);
    r->stage = stage;
    r->outs = (pending_out *)gn_alloc((p->part->n_outs + 1) * sizeof *r->outs);
    if (!r->outs) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a run");
    gn_result e = run_slots(x, p, f);
    bool moves = false, direct = has_direct(p, args);
    if (e == GN_OK) e = run_bind(x, p, f);
    if (e == GN_OK) e = run_keep(x, p, outs, r, &moves, f);
    if (e == GN_OK) e = run_download_area(x, p, outs, f);
    uint64_t begin = gn_traces() ? gn_now_ns() : 0;
    if (e == GN_OK) e = run_arguments(x, p, args, stage + (align_up(r->stage_bytes + up) - up), direct, r->inherits, f);
    gn_trace_end(GN_STAGE_INPUT, "arguments", begin, p->args_bytes, NULL);
    /* what lay in this area before */
    int copied = p->download_area ? copiers_wait(&x->down, p->download_area->copied) : 0;
    if (e == GN_OK && copied != 0) e = driver_fail(x, f, copied, "a copy from the GPU");
    if (e == GN_OK) e = run_packs(x, p, f);
    if (e == GN_OK) e = run_kernels(x, p, moves, f);
    if (e == GN_OK && (p->moved || p->streams)) e = run_weight_outs(x, p, f);
    begin = gn_traces() ? gn_now_ns() : 0;
    if (e == GN_OK) e = run_results(x, p, outs, r, f);
    uint64_t bytes = 0;
    for (uint32_t i = 0; begin && i < p->part->n_outs; i++) bytes += outs[i].host ? outs[i].bytes : 0;
    gn_trace_end(GN_STAGE_OUTPUT, "results", begin, bytes, NULL);
    r->stage_bytes = align_up(r->stage_bytes + up);
    if (e == GN_OK) DRIVER(x, f, cuEventRecord(r->done, p->download_area ? x->downloads : x->stream));
    if (e == GN_OK && direct) DRIVER(x, f, cuEventSynchronize(x->uploaded));
    return e;
}

/* All that was asked for has ended. */
static void streams_end(executor *x) {
    gn__cu_handle all[3] = { x->uploads, x->stream, x->downloads };
    copiers_wait(&x->up, x->up.asked);
    copiers_wait(&x->down, x->down.asked);
    for (int i = 0; i < 3; i++)
        if (all[i] && !is_dead(x)) cu.cuStreamSynchronize(all[i]);
}

/* A run failed on the host's side. States that its kernels write where they lie may have been written; those that are
   exchanged were not. */
static void states_fail(executor *x, const plan *p) {
    for (uint32_t u = 0; u < p->part->n_updates && p->began; u++) {
        slot *s = &x->slots[p->part->updates[u].slot];
        s->failed = s->failed || !p->exchanges || p->layout.update_how[u] == GN_UPDATE_INPLACE;
    }
}

static gn_result exec_submit(void *self, void *handle, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket,
                             gn_fault *f) {
    executor *x = (executor *)self;
    plan *p = (plan *)handle;
    gn_result e = enter(x, f);
    *out_ticket = ++x->next_ticket;
    if (e != GN_OK) return e;
    if (x->device->compile_only) {
        for (uint32_t i = 0; i < p->part->n_outs; i++)
            if (outs[i].host) return gn_fail(f, GN_NO_VALUE, "kernels are compiled, not run (GENIE_CUDA_COMPILE_ONLY)");
        return GN_OK;
    }
    run r = { .ticket = *out_ticket };
    while (x->n_runs >= RUNS_MAX - 1) run_finish(x);
    if ((e = run_check(x, p, args, outs, &r.inherits, f)) != GN_OK) return e;
    r.done = x->events[(x->first_run + x->n_runs) % RUNS_MAX];
    p->began = false;
    e = run_start(x, p, args, outs, &r, f);
    areas_release(x);
    if (e != GN_OK) {
        values_drop(x, r.ticket);
        gn_free(r.outs);
        streams_end(x);
        states_fail(x, p);
        return e;
    }
    x->runs[(x->first_run + x->n_runs++) % RUNS_MAX] = r;
    for (uint32_t u = 0; u < p->part->n_updates && p->exchanges; u++) {
        if (p->layout.update_how[u] == GN_UPDATE_INPLACE) continue;
        slot *s = &x->slots[p->part->updates[u].slot];
        gn__cu_ptr old = s->mem;
        s->mem = p->fresh[u];
        p->fresh[u] = old;
    }
    latest.x = x;
    latest.p = p;
    x->stats->kernels_run += run_launched(p);
    x->stats->nodes_fused += p->layout.fused + p->emit.n_tails + p->emit.fused;
    x->stats->state_copies += p->layout.state_copies;
    x->stats->state_copy_bytes += p->layout.state_copy_bytes;
    return GN_OK;
}

gn_result gn_cuda_launch_again(int times, double *out_seconds, int *out_kernels) {
    executor *x = latest.x;
    plan *p = latest.p;
    gn_fault f = { 0 };
    if (times < 1 || !out_seconds || !out_kernels) return GN_BAD_ARGUMENT;
    if (!p || x->device->compile_only) return GN_NO_VALUE;
    gn_result entered = enter(x, &f);
    if (entered != GN_OK) return entered;
    DRIVER(x, &f, cuStreamSynchronize(x->stream));
    uint64_t from = gn_now_us();
    for (int i = 0; i < times; i++) {
        gn_result r = run_launches(x, p, &f);
        if (r != GN_OK) return r;
        DRIVER(x, &f, cuStreamSynchronize(x->stream));
    }
    *out_seconds = (double)(gn_now_us() - from) * 1e-6 / times;
    *out_kernels = (int)(p->emit.n_launches - p->emit.n_instead - p->packs_kept);
    return GN_OK;
}

/* ---- measuring: what computes a product is chosen by running what could, on random numbers of the product's own
   size */

enum {
    TRIALS = 5,
    OWN_TRIALS = 3,
    ROUNDS = 7,
    SHAPES_A_PLAN = 8,
    SHAPES_ALIKE = 8,
    SHAPE_US = 60000,
    ROUND_US = 1200,
    LONGEST_US = 40000,
    FILL_BLOCKS = 1056
};
/* SHAPES_ALIKE: so many that differ in rows alone (prompts of any length) are measured, of others only those that
   cuBLASLt may compute. ROUND_US: about as long a trial runs in a round; SHAPE_US: rounds end then; LONGEST_US: of one
   run, longer products are left to the model. */
/* of the time of the model's kernel: what is to replace it must be faster by this */
static const double clearly_less = 0.985;
/* what a product reads and writes: larger ones are left to the model too */
static const size_t measured_bytes = (size_t)4 << 30;

typedef struct trial {
    emit e;
    choice choice;
    double us[ROUNDS];
    int n, repeats;
    bool out, other_bits;
} trial;
/* One product of a plan */
typedef struct candidate {
    product_key key;
    uint32_t node;
    const gn_kernel_step *tail;
    trial trials[TRIALS];
    int n;
    bool by_blas, by_model;
    choice best;
} candidate;

/* Generates the product of a candidate as `choice` says; dropped when it is not possible, or as another trial is. */
static void trial_add(const plan *p, candidate *tried, choice c) {
    if (tried->n == TRIALS) return;
    trial *t = &tried->trials[tried->n];
    memset(t, 0, sizeof *t);
    t->choice = c;
    t->e = (emit){ .device = p->emit.device,
                   .part = p->emit.part,
                   .layout = p->emit.layout,
                   .fusions = p->emit.fusions,
                   .groups = p->emit.groups,
                   .n_groups = p->emit.n_groups,
                   .inlined = p->emit.inlined,
                   .tail = tried->tail,
                   .given = &t->choice };
    emit_product(&t->e, tried->node);
    t->choice.mark = t->e.mark;
    t->e.given = NULL;
    bool again = t->e.failed || t->e.faults;
    for (int i = 0; i < tried->n; i++)
        again = again || (tried->trials[i].choice.kind == c.kind && tried->trials[i].choice.mark == t->choice.mark);
    if (again) emit_free(&t->e);
    else tried->n++;
}

/* Whether it is not decided, nor among the candidates that are found. */
static bool candidate_is_new(const emit *e, const product_key *key, const candidate *all, int n) {
    choice c;
    bool known = emit_choice(e, key, &c);
    for (int k = 0; k < n; k++) known = known || memcmp(&all[k].key, key, sizeof *key) == 0;
    return !known;
}

/* Products of the plan that are worth it and not decided: their number. */
static int candidates_find(const plan *p, candidate *all) {
    const emit *e = &p->emit;
    int n = 0;
    for (size_t i = 0; i < p->layout.n_steps && n < SHAPES_A_PLAN; i++) {
        const gn_kernel_step *step = &p->layout.steps[i];
        if (step->n_instrs || e->fusions[i].vectors || e->fusions[i].inside || e->fusions[i].product ||
            !(node_is(e, step->node, GN_OP_MATMUL) || node_is(e, step->node, GN_OP_LINEAR)))
            continue;
        emit at = *e;
        at.tail = tail_of(e, i);
        matmul mm = matmul_of(&at, step->node);
        if (!matmul_is_measured(&at, &mm)) continue;
        product_key key = key_of(&at, &mm);
        if (!candidate_is_new(&at, &key, all, n)) continue;
        all[n].key = key;
        all[n].node = step->node;
        all[n].by_blas = 2. * (double)key.m * (double)key.n * (double)key.k * (double)key.batches >=
                         e->device->choices.least_blas[is_plain(mm.d)];
        all[n].by_model = !all[n].by_blas && choices_alike(&e->device->choices, key) >= SHAPES_ALIKE;
        all[n++].tail = at.tail;
    }
    return n;
}

static size_t base_bytes(const plan *p, uint32_t node) {
    const gn_view *view = &p->layout.lay[node].view;
    return align_up((size_t)gn_view_count(view) * types[view->dtype].bytes);
}

/* A place for all that the trials read and write: base[node] = 1 + offset. Bytes in all; scratch memory lies last, and
   behind it what counts blocks. */
static size_t candidate_place(const plan *p, candidate *tried, gn__cu_ptr *base, size_t *out_scratch,
                              size_t *out_counts) {
    size_t total = 0, scratch = 0;
    for (int i = 0; i < tried->n; i++) {
        const emit *e = &tried->trials[i].e;
        if (e->scratch > scratch) scratch = e->scratch;
        for (size_t k = 0; k < e->n_params + e->n_maps; k++) {
            uint32_t node = k >= e->n_params                  ? e->maps[k - e->n_params].node
                            : e->params[k].kind == PARAM_NODE ? e->params[k].node
                                                              : UINT32_MAX;
            if (node >= p->part->n_nodes || base[node]) continue;
            base[node] = 1 + total;
            total += base_bytes(p, node);
        }
    }
    *out_scratch = total;
    *out_counts = *out_scratch + align_up(scratch);
    return *out_counts + align_up((ERROR_WORDS + 1) * 4);
}

/* Numbers of ±0.5 to ±1, drawn anew for each word; of other dtypes zeros. */
static gn_result candidate_fill(executor *x, const plan *p, const gn__cu_ptr *base, const kernel *fill) {
    for (uint32_t i = 0; i < p->part->n_nodes; i++) {
        gn_dtype dtype = p->layout.lay[i].view.dtype;
        uint32_t kept = dtype == GN_F32    ? 0x807fffffu
                        : dtype == GN_BF16 ? 0x807f807fu
                                           : 0x83ff83ffu,
                 set = dtype == GN_F32    ? 0x3f000000u
                       : dtype == GN_BF16 ? 0x3f003f00u
                                          : 0x38003800u;
        gn__cu_ptr at = base[i];
        uint64_t words = base_bytes(p, i) / 4;
        void *params[4] = { &at, &words, &kept, &set };
        if (!base[i]) continue;
        unsigned blocks = words / 1024 < FILL_BLOCKS ? (unsigned)(words / 1024) + 1 : FILL_BLOCKS;
        if (dtype == GN_F32 || dtype == GN_BF16 || dtype == GN_F16)
            DRIVER(x, NULL, cuLaunchKernel(fill->function, blocks, 1, 1, 256, 1, 1, 0, x->stream, params, NULL));
        else DRIVER(x, NULL, cuMemsetD8Async(at, 0, words * 4, x->stream));
    }
    return GN_OK;
}

static gn_result trial_run(executor *x, plan *probe, const trial *t, gn_fault *f) {
    gn_result r = GN_OK;
    probe->emit = t->e;
    for (size_t l = 0; l < t->e.n_launches && r == GN_OK; l++) r = run_launch(x, probe, &t->e.launches[l], f);
    return r;
}

/* Microseconds of one run of a trial, the mean of its repeats; below 0: it does not run. */
static double trial_time(executor *x, plan *probe, const trial *t, const gn__cu_handle events[2]) {
    float ms = 0;
    gn_fault f = { 0 };
    gn_result r = GN_OK;
    /* a run before the first event, so that the GPU does not wait for the host */
    for (int i = t->repeats > 1 ? -1 : 0; i < t->repeats && r == GN_OK; i++) {
        if (!i && cu.cuEventRecord(events[0], x->stream) != 0) r = GN_INTERNAL;
        if (r == GN_OK) r = trial_run(x, probe, t, &f);
    }
    int waited = cu.cuEventRecord(events[1], x->stream) ? 1 : cu.cuEventSynchronize(events[1]);
    if (waited != 0) driver_fail(x, NULL, waited, "cuEventSynchronize");
    if (r == GN_OK && waited == 0 && cu.cuEventElapsedTime(&ms, events[0], events[1]) == 0)
        return (double)ms * 1e3 / t->repeats;
    if (t->choice.kind == CHOICE_BLAS && !x->lost)
        other_way(x, NULL, &x->stats->blas_faults, 1,
                  f.result != GN_OK ? f.text : "a product by cuBLASLt does not run");
    return -1;
}

enum { COMPARED_BYTES = 4 << 20 }; /* of a result's begin and of its end: tiles alike lie between */

/* The bytes of the result that a trial has left, begin and end. False: they cannot be had. */
static bool trial_result(executor *x, const plan *probe, const candidate *tried, char *out, size_t *out_bytes) {
    uint32_t node = tried->tail ? tried->tail->node : tried->node;
    const gn_view *view = &probe->layout.lay[node].view;
    size_t bytes = (size_t)gn_view_count(view) * types[view->dtype].bytes,
           half = bytes < 2 * COMPARED_BYTES ? bytes : COMPARED_BYTES;
    gn__cu_ptr at = probe->base[probe->layout.lay[node].base];
    *out_bytes = half == bytes ? bytes : 2 * half;
    if (!at || cu.cuMemcpyDtoHAsync(out, at + (gn__cu_ptr)view->offset, half, x->stream) != 0) return false;
    if (half < bytes &&
        cu.cuMemcpyDtoHAsync(out + half, at + (gn__cu_ptr)view->offset + bytes - half, half, x->stream) != 0)
        return false;
    return cu.cuStreamSynchronize(x->stream) == 0;
}

/* A choice may make a product faster, and no other bits: trials that give others than the model's kernel are out. Large
   numbers of sums of drawn numbers tell any two orders apart. */
static void trial_compare(executor *x, const plan *probe, candidate *tried, trial *t, char *model, char *own) {
    size_t bytes = 0;
    if (t->out || x->lost) return;
    if (t == tried->trials) {
        t->out = !trial_result(x, probe, tried, model, &bytes);
        return;
    }
    if (all_by_blas()) return;
    t->other_bits = !trial_result(x, probe, tried, own, &bytes) || memcmp(model, own, bytes) != 0;
    t->out = t->other_bits;
}

/* Times all trials in turn, round by round, so that what else the GPU does meets all alike. The first round warms up,
   the second is always run. */
static void candidate_time(executor *x, plan *probe, candidate *tried, const gn__cu_handle events[2], char *results) {
    double spent = 0;
    for (int r = 0; r <= ROUNDS && (r < 2 || spent < SHAPE_US) && !x->lost; r++) {
        for (int i = 0; i < tried->n && !x->lost && !tried->trials[0].out; i++) {
            trial *t = &tried->trials[i];
            for (size_t l = 0; l < t->e.n_launches; l++)
                t->out = t->out || (!t->e.launches[l].blas && !t->e.launches[l].kernel->function);
            if (t->out) continue;
            if (!r) t->repeats = 1;
            double us = trial_time(x, probe, t, events);
            t->out = us < 0;
            if (!r) trial_compare(x, probe, tried, t, results, results + 2 * COMPARED_BYTES);
            spent += us * t->repeats;
            if (r) t->us[t->n++] = us;
            else t->repeats = us > ROUND_US ? 1 : 1 + ROUND_US / (16 + (int)us);
            if (!r && !i && us > LONGEST_US) return;
        }
    }
}

static double trial_median(const trial *t) {
    double us[ROUNDS];
    for (int i = 0; i < t->n; i++) {
        int at = i;
        for (; at > 0 && us[at - 1] > t->us[i]; at--) us[at] = us[at - 1];
        us[at] = t->us[i];
    }
    return t->out || !t->n ? 1e300 : us[t->n / 2];
}

static void candidate_choose(executor *x, candidate *tried) {
    static const char *const names[] = { "model", "own", "cuBLASLt" };
    const trial *best = &tried->trials[0];
    char line[400];
    int n = snprintf(line, sizeof line, "product %lldx%lldx%lld", (long long)tried->key.m, (long long)tried->key.n,
                     (long long)tried->key.k);
    for (int i = 0; i < tried->n; i++) {
        double us = trial_median(&tried->trials[i]);
        if (us < clearly_less * trial_median(&tried->trials[0]) && us < trial_median(best)) best = &tried->trials[i];
        n += snprintf(line + n, sizeof line - (size_t)n,
                      us < 1e299                    ? " %s %u: %.1f us"
                      : tried->trials[i].other_bits ? " %s %u: other bits"
                                                    : " %s %u: fails",
                      names[tried->trials[i].choice.kind], tried->trials[i].choice.index, us);
    }
    tried->best = best == &tried->trials[0] ? (choice){ CHOICE_MODEL, 0, 0 } : best->choice;
    gn_logf(x->log, x->log_user, GN_LOG_INFO, "cuda:%d: %s; %s %u", x->device->ordinal, line, names[tried->best.kind],
            tried->best.index);
}

/* Runs the trials of one candidate in memory of their own. What does not run, or has no room, is computed as the model
   says. */
static void candidate_measure(executor *x, const plan *p, candidate *tried, const kernel *fill,
                              const gn__cu_handle events[2]) {
    size_t nodes = (size_t)p->part->n_nodes + p->part->n_updates + 1, scratch = 0, counts = 0;
    gn__cu_ptr memory = 0, block = x->block, *base = (gn__cu_ptr *)alloc_zero(nodes * sizeof *base);
    char *results = (char *)gn_alloc((size_t)4 * COMPARED_BYTES);
    size_t bytes = base && results ? candidate_place(p, tried, base, &scratch, &counts) : 0;
    bool ok = bytes && bytes < measured_bytes && fill->function &&
              (x->pools ? cu.cuMemAllocAsync(&memory, bytes, x->stream) : cu.cuMemAlloc(&memory, bytes)) == 0;
    if (ok) {
        plan probe = *p;
        for (size_t i = 0; i < nodes; i++) base[i] = base[i] ? memory + base[i] - 1 : 0;
        for (int i = 0; i < REGION__COUNT; i++) probe.region[i] = i == REGION_ERRORS ? counts : scratch;
        probe.base = base;
        probe.moved = probe.streams = false;
        x->block = memory;
        gn_result r = cu.cuMemsetD8Async(memory + counts, 0, bytes - counts, x->stream) ? GN_INTERNAL : GN_OK;
        if (r == GN_OK) r = candidate_fill(x, p, base, fill);
        if (r == GN_OK) candidate_time(x, &probe, tried, events, results);
        x->block = block;
        if (!is_dead(x)) cu.cuStreamSynchronize(x->stream);
        if (x->pools) cu.cuMemFreeAsync(memory, x->stream);
        else cu.cuMemFree(memory);
    }
    gn_free(base);
    gn_free(results);
    candidate_choose(x, tried);
}

static kernel *fill_kernel(struct device *d, emit *e) {
    *e = (emit){ .device = d };
    emit_pointer(e, "u32", false, "o", (param){ PARAM_PLAN, REGION_OUTS, 0 });
    put(&e->signature, ", u64 words, u32 kept, u32 set");
    put(&e->body,
        "  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < words; i += (u64)gridDim.x * 256) {\n    u32 x = "
        "(u32)i * 2654435761u;\n    x = (x ^ x >> 15) * 2246822519u;\n    x = (x ^ x >> 13) * 3266489917u;\n"
        "    o[i] = ((x ^ x >> 16) & kept) | set;\n  }\n");
    emit_launch(e, "random_words", FILL_BLOCKS, 1, 256);
    return e->n_launches ? e->launches[0].kernel : NULL;
}

/* Generates what of a kind could compute each candidate, and compiles it together with `more`, so that all cores
   compile. */
static void candidates_compile(executor *x, const plan *p, candidate *all, int n, choice_kind kind, const emit *more) {
    launch *launches = NULL;
    size_t n_launches = 0, cap = 0;
    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; !all[i].by_model && (kind == CHOICE_OWN || all[i].by_blas) &&
                             k < (kind == CHOICE_OWN ? OWN_TRIALS : TRIALS - OWN_TRIALS);
             k++)
            trial_add(p, &all[i], (choice){ kind, k, 0 });
    for (int i = 0; i <= n * TRIALS; i++) {
        const candidate *tried = i < n * TRIALS ? &all[i / TRIALS] : NULL;
        const emit *e = tried ? &tried->trials[i % TRIALS].e : more;
        for (size_t l = 0; (!tried || i % TRIALS < tried->n) && l < e->n_launches; l++)
            if (grow(&launches, n_launches, &cap, sizeof *launches)) launches[n_launches++] = e->launches[l];
    }
    launches_compile(x, launches, n_launches, NULL, NULL); /* what does not compile is no candidate */
    gn_free(launches);
}

static void *blas_loader(void *unused) {
    load_blas();
    return unused;
}

/* One after another. How many were. */
static int candidates_measure(executor *x, const plan *p, candidate *all, int n) {
    struct device *d = x->device;
    gn__cu_handle events[2] = { NULL, NULL };
    emit e;
    const kernel *fill = fill_kernel(d, &e);
    pthread_t loader;
    bool wanted = false;
    for (int i = 0; i < n; i++) wanted = wanted || all[i].by_blas;
    wanted = wanted && blas_is_there();
    bool loads = wanted && pthread_create(&loader, NULL, blas_loader, NULL) == 0; /* while the compiler works */
    candidates_compile(x, p, all, n, CHOICE_OWN, &e);
    if (loads) pthread_join(loader, NULL);
    candidates_compile(x, p, all, n, CHOICE_BLAS, &e);
    if (wanted && !d->blas && !d->blas_told) {
        d->blas_told = true;
        other_way(x, NULL, &x->stats->blas_faults, 1, *blas.why ? blas.why : "cuBLASLt does not start");
    }
    bool ok = fill && cu.cuEventCreate(&events[0], 0) == 0 && cu.cuEventCreate(&events[1], 0) == 0;
    int measured = 0;
    for (int i = 0; i < n; i++) {
        if (ok && all[i].n > 1) candidate_measure(x, p, &all[i], fill, events);
        measured += !all[i].by_model;
        for (int k = 0; k < all[i].n; k++) emit_free(&all[i].trials[k].e);
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) cu.cuEventDestroy(events[i]);
    emit_free(&e);
    return measured;
}

/* All choices of a plan are stored together. False: they could not be. */
static bool candidates_store(executor *x, const candidate *all, int n) {
    struct device *d = x->device;
    stored_choice fresh[SHAPES_A_PLAN];
    for (int i = 0; i < n; i++) fresh[i] = (stored_choice){ all[i].key, all[i].best };
    pthread_mutex_lock(&d->lock);
    bool ok = !x->lost && !d->choices.closed && choices_decide(&d->choices, fresh, (size_t)n);
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* Decides, before a plan's kernels are generated, what computes those of its products that are worth it: the first few
   by measuring, any others as the model says. */
static void plan_measure(executor *x, plan *p) {
    choices *table = &x->device->choices;
    candidate *all;
    uint64_t from = gn_now_us();
    if (!table->id || all_by_blas() || !(all = (candidate *)alloc_zero(SHAPES_A_PLAN * sizeof *all))) return;
    if (candidates_find(p, all)) {
        pthread_mutex_lock(&table->measuring);
        bool open = candidates_store(x, all, 0); /* what others have decided until now */
        for (int n, before = 0; open && (n = candidates_find(p, all)) > 0; before += n) {
            int measured = before ? 0 : candidates_measure(x, p, all, n);
            open = candidates_store(x, all, n);
            if (open) x->stats->products_measured += (uint64_t)measured;
            memset(all, 0, SHAPES_A_PLAN * sizeof *all);
        }
        pthread_mutex_unlock(&table->measuring);
        x->stats->measuring_us += gn_now_us() - from;
    }
    gn_free(all);
}

/* ---- values of other GPUs ---- */

static bool visits_begin(executor *x, gn_fault *f) {
    if (x->visits) return true;
    if (enter(x, f) != GN_OK) return false;
    gn__cu_handle *const events[] = { &x->made, &x->allocated, &x->departed };
    for (int i = 0; i < 3; i++)
        if (!*events[i] && cu.cuEventCreate(events[i], 2) != 0) {
            *events[i] = NULL;
            return false;
        }
    if (cu.cuStreamCreate(&x->visits, 1) != 0) x->visits = NULL;
    return x->visits != NULL;
}

/* The value's bytes to memory of x, from y's stream of its own: after what makes them, before what is run in x from now
   on. */
static gn_result value_visit(executor *x, executor *y, const value *v, gn__cu_ptr to, gn_fault *f) {
    gn_result r = enter(y, f);
    if (r != GN_OK) return r;
    DRIVER(y, f, cuEventRecord(y->made, y->stream));
    DRIVER(y, f, cuStreamWaitEvent(y->visits, y->made, 0));
    DRIVER(y, f, cuStreamWaitEvent(y->visits, x->allocated, 0));
    if (v->bytes)
        DRIVER(y, f, cuMemcpyPeerAsync(to, x->device->context, v->mem, y->device->context, v->bytes, y->visits));
    y->departs = true;
    DRIVER(y, f, cuEventRecord(y->departed, y->visits));
    if ((r = enter(x, f)) != GN_OK) return r;
    DRIVER(x, f, cuStreamWaitEvent(x->stream, y->departed, 0));
    return GN_OK;
}

/* Memory for it, taken in x's own stream of visits, so that it is there before what runs in x has ended. */
static gn_result value_alloc(executor *x, const value *v, gn__cu_ptr *out, gn_fault *f) {
    if (!grow(&x->values, x->n_values, &x->cap_values, sizeof *x->values))
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to keep a value");
    gn_result r = device_alloc_on(x, value_size(v), x->visits, out, f);
    if (r != GN_OK) return r;
    int e = cu.cuEventRecord(x->allocated, x->visits);
    if (e == 0) return GN_OK;
    if (!is_dead(x)) cu.cuStreamSynchronize(x->visits);
    device_free(x, *out, value_size(v));
    return driver_fail(x, f, e, "cuEventRecord");
}

static gn_result exec_value_import(void *self, uint64_t id, void *from, uint64_t theirs, gn_fault *f) {
    executor *x = (executor *)self, *y = (executor *)from;
    value *v = value_find(y, theirs);
    gn_result r = enter(y, f);
    /* it can still turn out to be none */
    while (r == GN_OK && v && v->checked && y->n_runs && y->runs[y->first_run].ticket <= v->run) {
        run_finish(y);
        v = value_find(y, theirs);
    }
    if (r == GN_OK && !v) r = gn_fail(f, GN_STALE_HANDLE, "a kept value is gone: the run that makes it has failed");
    if (r == GN_OK && !(visits_begin(y, f) && visits_begin(x, f)))
        r = f && f->result != GN_OK ? f->result : gn_fail(f, GN_OUT_OF_MEMORY, "no stream for values from another GPU");
    if (r == GN_OK) r = enter(x, f);
    if (r != GN_OK) return r;
    value mine = { id, 0, v->dtype, v->shape, 0, v->bytes, false, false };
    x->clock++;
    if ((r = value_alloc(x, &mine, &mine.mem, f)) != GN_OK) return r;
    r = value_visit(x, y, v, mine.mem, f);
    if (r == GN_OK) {
        x->values[x->n_values++] = mine;
        return GN_OK;
    }
    enter(y, NULL);
    if (!is_dead(y)) cu.cuStreamSynchronize(y->visits); /* nothing writes to it any more */
    enter(x, NULL);
    if (!is_dead(x)) cu.cuStreamSynchronize(x->visits);
    device_free(x, mine.mem, value_size(&mine));
    return r;
}

/* Lets the two read each other's memory where their bus has a way; without one the driver goes through the host by
   itself. */
static void devices_meet(struct device *a, struct device *b) {
    struct device *const both[2] = { a, b };
    for (int i = 0; i < 2; i++) {
        struct device *d = both[i], *other = both[!i];
        int can = 0;
        if (cu.cuDeviceCanAccessPeer(&can, d->handle, other->handle) != 0 || !can ||
            cu.cuCtxSetCurrent(d->context) != 0)
            continue;
        cu.cuCtxEnablePeerAccess(other->context, 0); /* it may be so already */
        if (other->pool)
            cu.cuMemPoolSetAccess(other->pool, &(pool_access){ LOCATION_DEVICE, d->handle, ACCESS_READ_WRITE }, 1);
    }
}

enum { VISIT_SMALL = 4096, VISIT_LARGE = 16 << 20 };

/* Seconds of one copy, the least of four; 0: it fails. a's context is current, and the stream is there. */
static double visit_time(const struct device *a, gn__cu_ptr from, const struct device *b, gn__cu_ptr to, size_t bytes,
                         gn__cu_handle stream) {
    double least = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t begin = gn_now_us();
        for (int k = 0; k < 8; k++)
            if (cu.cuMemcpyPeerAsync(to, b->context, from, a->context, bytes, stream) != 0) return 0;
        if (cu.cuStreamSynchronize(stream) != 0) return 0;
        double spent = (double)(gn_now_us() - begin + 1) * 1e-6 / 8;
        if (i == 0 || spent < least) least = spent;
    }
    return least;
}

/* What values cost from a to b, measured once; $GENIE_MEASURE=0: as of a bus. */
static gn_cluster_link visit_cost(struct device *a, struct device *b) {
    gn_cluster_link cost = { 1e-5, 2e10 };
    gn__cu_ptr from = 0, to = 0;
    gn__cu_handle stream = NULL;
    if (env_is("GENIE_MEASURE", "0") || cu.cuCtxSetCurrent(b->context) != 0 || cu.cuMemAlloc(&to, VISIT_LARGE) != 0)
        return cost;
    if (cu.cuCtxSetCurrent(a->context) == 0 && cu.cuMemAlloc(&from, VISIT_LARGE) == 0 &&
        cu.cuStreamCreate(&stream, 1) == 0) {
        double small = visit_time(a, from, b, to, VISIT_SMALL, stream),
               large = visit_time(a, from, b, to, VISIT_LARGE, stream);
        if (small > 0 && large > small) cost = (gn_cluster_link){ small, VISIT_LARGE / (large - small) };
        cu.cuStreamDestroy(stream);
    }
    if (from) cu.cuMemFree(from);
    cu.cuCtxSetCurrent(b->context);
    cu.cuMemFree(to);
    return cost;
}

static bool exec_reaches(void *self, void *from, gn_cluster_link *out_link) {
    struct device *b = ((executor *)self)->device, *a = ((executor *)from)->device;
    if (a == b || a->compile_only || b->compile_only || atomic_load(&a->lost) || atomic_load(&b->lost) ||
        env_is("GENIE_CUDA_PEER", "0"))
        return false;
    pthread_mutex_lock(&devices_lock);
    gn_cluster_link *known = &b->from[a->ordinal];
    if (!(known->bytes_per_s > 0)) {
        devices_meet(a, b);
        *known = visit_cost(a, b);
    }
    *out_link = *known;
    pthread_mutex_unlock(&devices_lock);
    return true;
}

/* >>devices ==========================================================================================
 * Finding and opening devices; what a device does in a second; the executor's table. */

static uint32_t exec_lost(void *self, gn_fault *f) {
    const executor *x = (const executor *)self;
    bool dead = is_dead(x);
    if (dead || x->lost) gn_fail(f, GN_DEVICE_LOST, "the GPU is lost: %s", dead ? x->device->lost_why : x->lost_why);
    return dead || x->lost;
}

static void exec_describe(void *self, gn_device_info *out) {
    const executor *x = (const executor *)self;
    const struct device *d = x->device;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "cuda:%d", d->ordinal);
    static const struct {
        const char *name, *value, *word;
    } switches[] = { { "GENIE_CUDA_TENSOR", "0", "tensor" },     { "GENIE_CUDA_WGMMA", "0", "wgmma" },
                     { "GENIE_CUDA_EPILOGUE", "0", "epilogue" }, { "GENIE_CUDA_FUSE", "0", "fuse" },
                     { "GENIE_CUDA_CLUSTER", "0", "cluster" },   { "GENIE_TF32", "1", "tf32" },
                     { "GENIE_CUDA_TUNE", "blas", "tune" } };
    int n = snprintf(out->identity, sizeof out->identity,
                     "cuda genie " GN_VERSION " generator %d %.60s %s driver %d nvrtc %d%s", GN__CU_GENERATOR, d->name,
                     d->arch_name, cu.driver_version, cu.nvrtc_version, d->compile_only ? " compile only" : "");
    if (d->choices.id && !env_is("GENIE_CUDA_TUNE", "0") && !all_by_blas() && n > 0 && (size_t)n < sizeof out->identity)
        n += snprintf(out->identity + n, sizeof out->identity - (size_t)n, " choices %016llx",
                      (unsigned long long)d->choices.id);
    if (asked_rank() && n > 0 && (size_t)n < sizeof out->identity)
        n += snprintf(out->identity + n, sizeof out->identity - (size_t)n, " rank %d", asked_rank());
    if (x->invariant && n > 0 && (size_t)n < sizeof out->identity)
        n += snprintf(out->identity + n, sizeof out->identity - (size_t)n, " batch invariant");
    /* those that change the order or the width of sums */
    for (size_t i = 0; i < sizeof switches / sizeof *switches && n > 0 && (size_t)n < sizeof out->identity; i++)
        if (env_is(switches[i].name, switches[i].value))
            n += snprintf(out->identity + n, sizeof out->identity - (size_t)n, " %s %s", switches[i].word,
                          switches[i].value);
}

static void exec_close(void *self) {
    executor *x = (executor *)self;
    enter(x, NULL);
    while (x->n_runs) run_finish(x);
    exec_values_release(x, UINT64_MAX); /* above all ids */
    for (size_t i = 0; i < x->n_slots; i++) slot_free(x, &x->slots[i]);
    if (x->block_bytes) device_free(x, x->block, x->block_bytes);
    for (int i = 0; i < 2 * AREAS; i++) area_drop(x, i < AREAS ? &x->upload_areas[i] : &x->download_areas[i - AREAS]);
    if (!x->device->compile_only) {
        streams_end(x);
        copiers_end(&x->up);
        copiers_end(&x->down);
        for (int i = 0; i < 2 * AREAS; i++) {
            const area *a = i < AREAS ? &x->upload_areas[i] : &x->download_areas[i - AREAS];
            if (a->full) cu.cuEventDestroy(a->full);
            if (a->empty) cu.cuEventDestroy(a->empty);
        }
        if (x->uploads && x->uploads != x->stream) cu.cuStreamDestroy(x->uploads);
        if (x->downloads && x->downloads != x->stream) cu.cuStreamDestroy(x->downloads);
        for (void *p; (p = pinned_remove(NULL, x)) != NULL;) cu.cuMemFreeHost(p);
        for (int i = 0; i < RUNS_MAX; i++)
            if (x->events[i]) cu.cuEventDestroy(x->events[i]);
        if (x->stage) cu.cuMemFreeHost(x->stage);
        gn__cu_handle events[] = { x->main_at, x->uploaded, x->made, x->allocated, x->departed };
        for (size_t i = 0; i < sizeof events / sizeof *events; i++)
            if (events[i]) cu.cuEventDestroy(events[i]);
        if (x->visits) {
            cu.cuStreamSynchronize(x->visits);
            cu.cuStreamDestroy(x->visits);
        }
        if (x->copies) {
            cu.cuStreamSynchronize(x->copies);
            cu.cuStreamDestroy(x->copies);
        }
        if (x->stream) {
            cu.cuStreamSynchronize(x->stream);
            cu.cuStreamDestroy(x->stream);
        }
    }
    gn_account_release(x->account, x->held); /* of plans that the caller has left, 0 by rule */
    gn_free(x->slots);
    gn_free(x->values);
    gn_free(x);
}

/* A kernel of no plan, over u32 *o. */
static kernel *bare_kernel(struct device *d, const char *label, uint32_t block, const text *body) {
    emit e = { .device = d };
    emit_pointer(&e, "u32", false, "o", (param){ PARAM_PLAN, REGION_OUTS, 0 });
    put(&e.body, "%s", body->s ? body->s : "");
    e.failed = body->failed;
    emit_launch(&e, label, 1, 1, block);
    kernel *k = e.n_launches ? e.launches[0].kernel : NULL;
    gn_free(e.launches);
    gn_free(e.params);
    text_free(&e.types);
    text_free(&e.signature);
    text_free(&e.body);
    return k;
}

/* ---- what a device does in a second: few small kernels, since those of real products take seconds to compile ---- */

enum { RATE_STEPS = 1024, RATE_SUMS = 16, RATE_TILES = 8, RATE_LAUNCHES = 4 };

/* Per gn_rate: a type, and how much of what is measured the products of this file reach (2048 cubed on an H200, where
   those of warpgroups do more than instructions of single warps can). */
static const struct {
    gn_dtype dtype;
    double reached, by_warpgroups;
} rates[GN_RATE__COUNT] = {
    { GN_F32, 0.72, 0.72 }, { GN_F16, 0.58, 1.18 }, { GN_F64, 0.31, 0.31 }, { GN_I32, 0.77, 0.77 }
};

/* Sums that only registers take part in; *out_work: operations of a thread. The condition at the end keeps them. */
static kernel *rate_kernel(struct device *d, int which, double *out_work) {
    const char *type = types[rates[which].dtype].compute;
    char label[32];
    text t = { 0 };
    if (rates[which].dtype == GN_F16) {
        *out_work = 2.0 * RATE_STEPS * RATE_TILES * 16 * 8 * 16 / 32;
        put(&t,
            "  const u32 x[4] = { o[0], o[1], o[2], o[3] };\n  float v[%d][4] = {}, t = 0;\n  for (int k = 0; k < %d; "
            "k++) UNROLL for (int i = 0; i < %d; i++) mma(v[i], x, x[0], x[1], f16());\n"
            "  UNROLL for (int i = 0; i < %d; i++) t += v[i][0];\n",
            RATE_TILES, RATE_STEPS, RATE_TILES, RATE_TILES);
    } else {
        *out_work = 2.0 * RATE_STEPS * RATE_SUMS;
        put(&t,
            "  const %s s = (%s)o[0];\n  %s v[%d], t = 0;\n  UNROLL for (int i = 0; i < %d; i++) v[i] = s + (%s)i;\n  "
            "for (int k = 0; k < %d; k++) UNROLL for (int i = 0; i < %d; i++) v[i] = gn_fma(v[i], s, s);\n"
            "  UNROLL for (int i = 0; i < %d; i++) t += v[i];\n",
            type, type, type, RATE_SUMS, RATE_SUMS, type, RATE_STEPS, RATE_SUMS, RATE_SUMS);
    }
    put(&t, "  if (t == 3) o[threadIdx.x] = 1u;\n");
    snprintf(label, sizeof label, "rate_%s", gn_dtype_name(rates[which].dtype));
    kernel *k = bare_kernel(d, label, 256, &t);
    text_free(&t);
    return k;
}

/* Seconds of one launch of many, or, without a kernel, of a copy of half of the memory to the other half: the least of
   three times after a warm-up. 0: it fails. */
static double rate_time(executor *x, const kernel *k, uint32_t blocks, gn__cu_ptr memory, size_t bytes) {
    void *params[1] = { &memory };
    double least = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t from = gn_now_us();
        int e = 0;
        for (int l = 0; l < RATE_LAUNCHES && !e; l++)
            e = k ? cu.cuLaunchKernel(k->function, blocks, 1, 1, 256, 1, 1, 0, x->stream, params, NULL)
                  : cu.cuMemcpyDtoDAsync(memory + bytes / 2, memory, bytes / 2, x->stream);
        if (e != 0 || cu.cuStreamSynchronize(x->stream) != 0) return 0;
        double spent = (double)(gn_now_us() - from) * 1e-6 / RATE_LAUNCHES;
        if (i == 1 || (i > 1 && spent < least)) least = spent;
    }
    return least;
}

static gn_result exec_rates(void *self, double out_flops[GN_RATE__COUNT], double *out_bytes) {
    executor *x = (executor *)self;
    struct device *d = x->device;
    kernel *kernels[GN_RATE__COUNT];
    uint32_t blocks = (uint32_t)d->processors * 4, n = 0;
    double work[GN_RATE__COUNT] = { 0 };
    gn__cu_ptr memory = 0;
    size_t bytes = (size_t)512 << 20; /* several times the largest cache */
    if (d->compile_only) return GN_UNSUPPORTED;
    gn_result r = enter(x, NULL);
    for (int i = 0; i < GN_RATE__COUNT && r == GN_OK; i++) {
        if (rates[i].dtype == GN_F16 && d->arch < 80) continue; /* multiplied as f32 */
        if (!(kernels[n++] = rate_kernel(d, i, &work[i]))) r = GN_OUT_OF_MEMORY;
    }
    if (r != GN_OK) return r;
    r = compile_kernels(d, kernels, n, NULL, NULL, NULL);
    while (r == GN_OK && cu.cuMemAlloc(&memory, bytes) != 0 && (bytes /= 2) >= (size_t)1 << 20) memory = 0;
    if (r != GN_OK || !memory) return r != GN_OK ? r : GN_OUT_OF_MEMORY;
    cu.cuMemsetD8Async(memory, 0, bytes, x->stream);
    double spent = rate_time(x, NULL, 0, memory, bytes);
    *out_bytes = spent > 0 ? (double)bytes / spent : 0;
    for (int i = 0, at = 0; i < GN_RATE__COUNT; i++) {
        spent = work[i] > 0 && kernels[at]->function ? rate_time(x, kernels[at], blocks, memory, bytes) : 0;
        at += work[i] > 0;
        double reached = emit_has_warpgroups(&(emit){ .device = d }) ? rates[i].by_warpgroups : rates[i].reached;
        out_flops[i] = spent > 0 ? reached * work[i] * 256 * blocks / spent : work[i] > 0 ? 0 : out_flops[GN_RATE_F32];
    }
    cu.cuMemFree(memory);
    return GN_OK;
}

static const gn_exec_i exec_table = {
    .close = exec_close,
    .slot_put = exec_slot_put,
    .slot_drop = exec_slot_drop,
    .plan_make = exec_plan_make,
    .notes = exec_notes,
    .plan_destroy = exec_plan_destroy,
    .submit = exec_submit,
    .wait = exec_wait,
    .values_release = exec_values_release,
    .describe = exec_describe,
    .host_alloc = exec_host_alloc,
    .host_free = exec_host_free,
    .rates = exec_rates,
    .ended = exec_ended,
    .reaches = exec_reaches,
    .value_import = exec_value_import,
    .lost = exec_lost,
};

/* The newest arch that NVRTC can compile for and that runs on the device: its own, else PTX of the nearest older
   one. */
static void choose_arch(struct device *d) {
    int archs[64], n = 0, best = 0;
    if (cu.nvrtcGetNumSupportedArchs(&n) != 0 || n <= 0 || n > 64 || cu.nvrtcGetSupportedArchs(archs) != 0) n = 0;
    for (int i = 0; i < n; i++)
        if (archs[i] <= d->arch && archs[i] > best) best = archs[i];
    bool own = best == d->arch || n == 0;
    d->code_hash = hash_of_code();
    snprintf(d->arch_name, sizeof d->arch_name, "%s_%d%s", own ? "sm" : "compute", own ? d->arch : best,
             own && d->arch == 90 ? "a" : "");
}

static gn_result device_open(struct device *d, int ordinal, gn_fault *f) {
    int handle, major = 0, minor = 0, pools = 0, count = 0;
    if (*cu.why) return gn_fail(f, GN_NO_DEVICE, "%s", cu.why);
    if (*cu.nvrtc_why) return gn_fail(f, GN_NO_DEVICE, "%s", cu.nvrtc_why);
    cu.cuDeviceGetCount(&count);
    if (ordinal >= count || cu.cuDeviceGet(&handle, ordinal) != 0)
        return gn_fail(f, GN_NO_DEVICE, "there is no GPU %d, the driver sees %d", ordinal, count);
    cu.cuDeviceGetName(d->name, (int)sizeof d->name, handle);
    cu.cuDeviceTotalMem(&d->memory, handle);
    cu.cuDeviceGetAttribute(&major, 75, handle);
    cu.cuDeviceGetAttribute(&minor, 76, handle);
    cu.cuDeviceGetAttribute(&d->processors, 16, handle);
    cu.cuDeviceGetAttribute(&d->cache_bytes, 38, handle);
    cu.cuDeviceGetAttribute(&pools, 115, handle);
    d->arch = major * 10 + minor;
    d->has_pools = pools != 0;
    d->ordinal = ordinal;
    if (d->arch < 60)
        return gn_fail(f, GN_NO_DEVICE, "%s is of compute capability %d.%d; 6.0 or newer is needed", d->name, major,
                       minor);
    choose_arch(d);
    int r = cu.cuDevicePrimaryCtxRetain(&d->context, handle);
    if (r != 0) return gn_fail(f, GN_NO_DEVICE, "%s gives no context (error %d)", d->name, r);
    uint64_t keep = UINT64_MAX;
    if (!d->has_pools || cu.cuDeviceGetDefaultMemPool(&d->pool, handle) != 0) d->pool = NULL;
    if (d->pool) cu.cuMemPoolSetAttribute(d->pool, 4, &keep); /* 4: bytes kept when freed */
    d->handle = handle;
    d->open = true;
    return GN_OK;
}

/* The compile-only device of $GENIE_CUDA_COMPILE_ONLY; without NVRTC it generates. */
static gn_result device_open_compile_only(struct device *d, const char *arch, gn_fault *f) {
    d->code_hash = hash_of_code();
    snprintf(d->arch_name, sizeof d->arch_name, "%s", arch);
    snprintf(d->name, sizeof d->name, "compile only");
    d->arch = strncmp(arch, "sm_", 3) == 0 ? atoi(arch + 3) : 0;
    if (d->arch < 60)
        return gn_fail(f, GN_BAD_ARGUMENT, "GENIE_CUDA_COMPILE_ONLY is '%.40s', not an arch such as sm_90", arch);
    d->compile_only = d->open = true;
    d->processors = 132;
    return GN_OK;
}

static gn_result device_find(int ordinal, struct device **out, gn_fault *f) {
    const char *only = getenv("GENIE_CUDA_COMPILE_ONLY");
    bool compile_only = only && *only;
    gn_result r = GN_OK;
    load_libraries();
    if (ordinal < 0 || ordinal >= DEVICES_MAX)
        return gn_fail(f, GN_NO_DEVICE, "GPU %d is beyond the %d that are possible", ordinal, DEVICES_MAX);
    struct device *d = &devices[compile_only ? DEVICES_MAX : ordinal];
    pthread_mutex_lock(&devices_lock);
    if (!d->open) {
        pthread_mutex_init(&d->lock, NULL);
        pthread_cond_init(&d->compiled, NULL);
        pthread_mutex_init(&d->choices.measuring, NULL);
        r = compile_only ? device_open_compile_only(d, only, f) : device_open(d, ordinal, f);
    }
    pthread_mutex_unlock(&devices_lock);
    *out = d;
    return r;
}

static gn_result executor_init(executor *x, gn_fault *f) {
    gn_result r = enter(x, f);
    if (r != GN_OK || x->device->compile_only) return r;
    DRIVER(x, f, cuStreamCreate(&x->stream, 1)); /* 1: does not wait for the default stream */
    DRIVER(x, f, cuStreamCreate(&x->copies, 1));
    x->uploads = x->downloads = x->stream;
    if (x->aside) DRIVER(x, f, cuStreamCreate(&x->uploads, 1));
    if (x->aside) DRIVER(x, f, cuStreamCreate(&x->downloads, 1));
    for (int i = 0; i < 2 * AREAS; i++) {
        area *a = i < AREAS ? &x->upload_areas[i] : &x->download_areas[i - AREAS];
        DRIVER(x, f, cuEventCreate(&a->full, 3)); /* copiers sleep until it comes */
        DRIVER(x, f, cuEventCreate(&a->empty, 2));
    }
    DRIVER(x, f, cuEventCreate(&x->main_at, 2));
    DRIVER(x, f, cuEventCreate(&x->uploaded, 2));
    void *p = NULL;
    DRIVER(x, f, cuMemHostAlloc(&p, STAGE_BYTES, 1));
    x->stage = (char *)p;
    for (int i = 0; i < RUNS_MAX; i++) DRIVER(x, f, cuEventCreate(&x->events[i], 2)); /* 2: no times */
    return GN_OK;
}

enum { CANARY = 64 };

/* The first kernel on a device: what reports itself ready has computed something. */
static gn_result canary(executor *x, gn_fault *f) {
    uint32_t words[CANARY] = { 0 };
    gn__cu_ptr memory = 0;
    void *params[1] = { &memory };
    text body = { 0 };
    put(&body, "  o[threadIdx.x] = threadIdx.x * 3u + 7u;\n"); /* what can be foretold */
    kernel *k = bare_kernel(x->device, "canary", CANARY, &body);
    text_free(&body);
    if (!k) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a kernel");
    gn_result r = compile_kernels(x->device, &k, 1, NULL, NULL, f);
    if (r != GN_OK) return r;
    if (!k->function)
        return gn_fail(f, GN_COMPILE_FAILED, "the first kernel on %s: %.300s", x->device->name,
                       k->why ? k->why : "the driver does not load it");
    DRIVER(x, f, cuMemAlloc(&memory, sizeof words));
    int e = cu.cuLaunchKernel(k->function, 1, 1, 1, CANARY, 1, 1, 0, x->stream, params, NULL);
    if (e == 0) e = cu.cuMemcpyDtoHAsync(words, memory, sizeof words, x->stream);
    int ended = cu.cuStreamSynchronize(x->stream);
    cu.cuMemFree(memory);
    if (e != 0 || ended != 0) return driver_fail(x, f, e != 0 ? e : ended, "the first kernel");
    for (uint32_t i = 0; i < CANARY; i++)
        if (words[i] != i * 3 + 7)
            return gn_fail(f, GN_DEVICE_LOST, "the first kernel on %s gives a wrong result", x->device->name);
    atomic_store(&x->device->proved, true);
    return GN_OK;
}

static gn_result driver_open(const gn_exec_desc *desc, gn_exec *out, gn_fault *f) {
    const char *colon = strchr(desc->device, ':');
    struct device *d;
    char *end = NULL;
    bool rejected, locked;
    char why[400];
    long ordinal = colon ? strtol(colon + 1, &end, 10) : 0;
    if (colon && (end == colon + 1 || *end))
        return gn_fail(f, GN_NO_DEVICE, "'%.60s' is not a device; cuda:0 is", desc->device);
    gn_result r = device_find(ordinal < 0 || ordinal > 1000 ? -1 : (int)ordinal, &d, f);
    if (r != GN_OK) return r;
    executor *x = (executor *)alloc_zero(sizeof *x);
    if (!x) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the GPU executor");
    x->device = d;
    x->stats = desc->stats;
    x->log = desc->log;
    x->log_user = desc->log_user;
    x->strict = desc->strict;
    x->invariant = desc->batch_invariant;
    snprintf(x->tenant, sizeof x->tenant, "%s", desc->tenant ? desc->tenant : "");
    x->cancel = desc->cancel;
    x->account = gn_session_account(true);
    x->host = gn_session_account(false);
    x->graphs = !env_is("GENIE_CUDA_GRAPH", "0");
    x->scrubs = env_is("GENIE_CUDA_SCRUB", "1");
    x->evicts = !env_is("GENIE_CUDA_EVICT", "0");
    x->device_limit = getenv("GENIE_CUDA_MEMORY") ? strtoull(getenv("GENIE_CUDA_MEMORY"), NULL, 10) : 0;
    x->pools = d->has_pools && !env_is("GENIE_CUDA_POOL", "0");
    x->aside = !env_is("GENIE_CUDA_OVERLAP", "0");
    x->overlaps =
        d->arch >= 90 && cu.driver_version >= 12030 && cu.cuLaunchKernelEx && !env_is("GENIE_CUDA_OVERLAP", "0");
    pthread_mutex_lock(&devices_lock);
    choices_open(d, &rejected, &locked);
    pthread_mutex_unlock(&devices_lock);
    if (rejected) { /* no other way of computing: strict mode does not mind */
        x->stats->choices_rejected++;
        gn_logf(x->log, x->log_user, GN_LOG_WARN,
                "cuda:%d: the file of stored choices of products is damaged: all are measured anew", d->ordinal);
    }
    if (locked)
        gn_logf(x->log, x->log_user, GN_LOG_WARN,
                "cuda:%d: another process keeps the lock of the stored choices of products: none is measured here",
                d->ordinal);
    int folder = cache_folder(why, sizeof why);
    if (folder >= 0) close(folder);
    if (*why) gn_logf(x->log, x->log_user, GN_LOG_WARN, "cuda:%d: compiled kernels are not kept: %s", d->ordinal, why);
    r = executor_init(x, f);
    if (r == GN_OK && !d->compile_only && !atomic_load(&d->proved)) r = canary(x, f);
    if (r != GN_OK) {
        exec_close(x);
        return r;
    }
    *out = (gn_exec){ &exec_table, x };
    return GN_OK;
}

/* The driver's own version, as "580.95.05", where the system tells it. */
static void driver_release(char *out, size_t cap) {
    char line[300] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    *out = 0;
    if (!f) return;
    if (!fgets(line, sizeof line, f)) line[0] = 0;
    fclose(f);
    for (char *save = NULL, *word = strtok_r(line, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save))
        if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
            snprintf(out, cap, "%s ", word);
            return;
        }
}

/* "cuda:0 NVIDIA H200, 139.8 GiB, compute capability 9.0, driver 580.95.05 (CUDA 13.0), NVRTC 13.0, cuBLASLt 13", with
   what is missing; for 0 also why there is no GPU at all. */
static int driver_list(int index, char *out, size_t cap) {
    int count = 0, handle, major = 0, minor = 0;
    char release[40], compiler[40], products[1300], name[96] = "?";
    size_t memory = 0;
    gn_fault f = { 0 };
    struct device *d;
    load_libraries();
    driver_release(release, sizeof release);
    snprintf(compiler, sizeof compiler, "NVRTC %d.%d", cu.nvrtc_version / 1000, cu.nvrtc_version % 1000 / 10);
    if (*cu.nvrtc_why) snprintf(compiler, sizeof compiler, "no NVRTC");
    if (blas_is_there()) snprintf(products, sizeof products, "cuBLASLt %d", blas.major);
    else snprintf(products, sizeof products, "no cuBLASLt (%s)", blas.why);
    if (*cu.why)
        return index ? 0 : snprintf(out, cap, "cuda: absent: %s; %s", cu.why, *cu.nvrtc_why ? cu.nvrtc_why : compiler);
    cu.cuDeviceGetCount(&count);
    if (index >= count)
        return index ? 0
                     : snprintf(out, cap, "cuda: absent: driver %s(CUDA %d.%d) sees no GPU", release,
                                cu.driver_version / 1000, cu.driver_version % 1000 / 10);
    if (cu.cuDeviceGet(&handle, index) != 0)
        return snprintf(out, cap, "cuda:%d absent: the driver does not give it", index);
    cu.cuDeviceGetName(name, (int)sizeof name, handle);
    cu.cuDeviceTotalMem(&memory, handle);
    cu.cuDeviceGetAttribute(&major, 75, handle);
    cu.cuDeviceGetAttribute(&minor, 76, handle);
    bool ok = device_find(index, &d, &f) == GN_OK;
    return snprintf(out, cap, "cuda:%d %s, %.1f GiB, compute capability %d.%d, driver %s(CUDA %d.%d), %s, %s%s%s",
                    index, name, (double)memory / 1073741824.0, major, minor, release, cu.driver_version / 1000,
                    cu.driver_version % 1000 / 10, compiler, products, ok ? "" : "; absent: ", ok ? "" : f.text);
}

static const gn_driver_i driver_table = {
    .prefix = "cuda",
    .open = driver_open,
    .list = driver_list,
};

#if defined(__GNUC__)
__attribute__((constructor))
#endif
static void
register_cuda(void) {
    gn_register_driver(&driver_table);
}
