/* genie.h - tensor programs on a GPU somewhere else, or on this CPU.                                  version 0.1.0

   HOW TO INSTANTIATE
       In one C file of the program:            #define GENIE_IMPLEMENTATION
                                                #include "genie.h"
       Everywhere else:                         #include "genie.h"
       With this file alone a program runs its graphs on its own CPU:      cc -O2 prog.c -lm -lpthread
       With genie_net.c it reaches servers, or is one:                     cc -O2 prog.c genie_net.c -lmbedtls -lmbedx509
                                                                              -lmbedcrypto -lzstd -lm -lpthread
       Declarations are C99 and C++11; the implementation is C11 with GCC, clang or MSVC.

       May be defined before the implementation:
           GN_MALLOC, GN_REALLOC, GN_FREE    allocation (all three or none; NULL is handled everywhere)
           GN_ASSERT(c)                      what a defect inside Genie does; never reached by bad input
           GN_API                            linkage of the declarations

   STEP BY STEP
       1. Open a context. What it runs on is a string: this CPU, nothing at all ("null"), or a server.
              gn_ctx *g = gn_open(&(gn_desc){ .devices = "genie://gpuhost:5556?pin=…&code=…" });
       2. Make leaves. Weights stay where they are needed and are sent at most once; states stay and change; data is of this step.
              gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(784, 10), host_weights, "fc.weight");
              gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(64, 784), batch);
       3. Write the program. Nothing is computed; shapes and dtypes are known at once; a wrong one becomes a failed node.
              gn_tensor y = gn_softmax(gn_matmul(x, w), -1);
       4. Read. Now the part of the graph that y needs is cut out, planned, run, and y comes back. An error names the op, the
          label, the shapes and the line of your source.
              if (gn_read(y, out, sizeof out) != GN_OK) puts(gn_last_error(g)->text);
       5. End the step. Nodes are recycled; weights and states stay. The next step builds the same structure again, which is
          cheap (tens of nanoseconds a node), and its plan is found by hash.
              gn_step(g);
       6. Train: gn_grad builds gradients as part of the graph, gn_sgd and gn_adamw the updates of states.
       7. Close.  gn_close(g);

   TOPICS
       Lazy          gn_describe tells what a tensor is, whether it is computed and where, without computing it. gn_read_many reads
                     several in one go, gn_realize computes without reading.
       States        gn_assign gives a new version; whatever was built on the old one keeps seeing the old value. Updates happen
                     with the next read, realise or step, all of them or none.
       Plans         found by the structure of the graph. Numbers that change from step to step (learning rate, position) are
                     gn_scalar or data; numbers given as C constants are part of the plan.
       Remote        a server is a device like the others: gn_open connects, everything else is equal. Equal identities
                     (gn_get_device) compute equal bits. Every wait has a deadline.
       Errors        no function aborts or prints. gn_result says what, gn_last_error says where and why.
       Threads       one thread at a time in one context; contexts are independent. A server runs on its own threads.
       Settings      desc field, else environment ($GENIE_DEVICES, $GENIE_THREADS, $GENIE_HOME, $GENIE_LOG), else default.

   WHAT IT DOES NOT DO
       No execution on several devices at once: the first device named runs the graph. No recovery: when a server is lost its
       context is lost with it (GN_DEVICE_LOST), and the program opens another. No sparse or quantised dtypes. No Python.
       Matmul and linear take inputs of one dtype. Attention is differentiated by the formula written out, scores in memory.

   SECTIONS (search for the tag)
       >>api      handles, enums, descs, public functions          >>plan      views, fused loops, memory: how a part runs
       >>ext      what the optional units are written against      >>wire      bytes to messages and graphs, and back
       >>config   macros and includes                              >>exec      the null and the CPU executor
       >>structs  shared private structs                           >>session   client and server over a transport
       >>base     errors, allocation, bytes, hash                  >>check     handles, cuts, contexts
       >>platform threads, clock                                   >>public    the bodies of the public functions
       >>types    dtypes, shapes, strided memory                   >>ops       the op table and its kernels
       >>graph    nodes, parts, gradients                          >>meaning   phase and residency

   The licence stands at the end of the file. */

#if defined(GENIE_IMPLEMENTATION) && defined(__linux__) && defined(__STRICT_ANSI__) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L            /* clocks and threads under -std=c11 */
#endif

/* >>api ============================================================================================ */
#ifndef GENIE_H
#define GENIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GN_VERSION_MAJOR 0
#define GN_VERSION_MINOR 1
#define GN_VERSION_PATCH 0
#define GN_VERSION "0.1.0"

#ifndef GN_API
#define GN_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GN_MAX_RANK 8

/* Results. The numbers are pinned: they travel. X(NAME, number, text) */
#define GN_RESULTS(X)                                                                     \
    X(OK,                    0, "ok")                                                     \
    X(NO_VALUE,              1, "the null executor computes no values")                   \
    X(BAD_ARGUMENT,         10, "an argument is outside its documented range")            \
    X(BAD_SHAPE,            11, "shapes do not fit the operation")                        \
    X(BAD_DTYPE,            12, "the operation does not take this dtype")                 \
    X(BAD_RANK,             13, "the rank is outside what the operation takes")           \
    X(BAD_SIZE,             14, "a buffer has the wrong number of bytes")                 \
    X(STALE_HANDLE,         15, "the handle is of an earlier step or was released")       \
    X(CLOSED_CONTEXT,       16, "the context is closed")                                  \
    X(MIXED_CONTEXTS,       17, "tensors of different contexts in one operation")         \
    X(SUPERSEDED,           18, "the node reads a state version that is gone")            \
    X(TOO_MANY_NODES,       19, "the step holds more nodes than the context allows")      \
    X(NO_GRADIENT,          20, "no gradient can be formed")                              \
    X(NOT_A_STATE,          21, "the tensor is not a version of a state")                 \
    X(UNSUPPORTED,          22, "the device or peer does not support this")               \
    X(INDEX_OUT_OF_RANGE,   30, "an index is outside the tensor it selects from")         \
    X(DIVISION_BY_ZERO,     31, "integer division by zero")                               \
    X(STATE_FAILED,         32, "the state was being written when a step failed")         \
    X(OUT_OF_MEMORY,        40, "out of memory")                                          \
    X(NO_DEVICE,            41, "the device is absent")                                   \
    X(DEVICE_LOST,          42, "the device is lost")                                     \
    X(IO_ERROR,             43, "input or output failed")                                 \
    X(PORT_IN_USE,          44, "the address is in use")                                  \
    X(UNREACHABLE,          45, "the server cannot be reached")                           \
    X(TIMEOUT,              46, "the deadline passed")                                    \
    X(DISCONNECTED,         47, "the peer closed the connection")                         \
    X(STRICT,               48, "strict mode forbids what would have been done")          \
    X(COMPILE_FAILED,       49, "a generated kernel did not compile")                     \
    X(BAD_MESSAGE,          60, "the peer sent a message that is not valid")              \
    X(BAD_VERSION,          61, "the peer speaks no common protocol version")             \
    X(BAD_PIN,              62, "the server's key is not the pinned one")                 \
    X(BAD_CREDENTIAL,       63, "the code or credential is not accepted")                 \
    X(TLS_FAILED,           64, "the TLS handshake or record layer failed")               \
    X(LIMIT,                65, "a limit of the server is reached")                       \
    X(NO_PLAN,              66, "the plan is not known to the server")                    \
    X(BAD_DIGEST,           67, "the content does not match its digest")                  \
    X(INSECURE,             68, "refused because it would not be secure")                 \
    X(CANCELLED,            69, "cancelled")                                              \
    X(INTERNAL,             90, "a defect in Genie")

typedef enum gn_result {
#define GN__X(name, number, text) GN_##name = number,
    GN_RESULTS(GN__X)
#undef GN__X
    GN_RESULT__COUNT
} gn_result;

/* Element types. The numbers are pinned: they travel. bool holds 0 or 1 in one byte. X(NAME, number, bytes, text) */
#define GN_DTYPES(X) \
    X(F32, 1, 4, "f32") X(F64, 2, 8, "f64") X(F16, 3, 2, "f16") X(BF16, 4, 2, "bf16") \
    X(I32, 5, 4, "i32") X(I64, 6, 8, "i64") X(U8, 7, 1, "u8") X(BOOL, 8, 1, "bool") \
    X(I8, 9, 1, "i8") X(I16, 10, 2, "i16") X(U16, 11, 2, "u16") X(U32, 12, 4, "u32")

typedef enum gn_dtype {
    GN_DTYPE_NONE = 0,
#define GN__X(name, number, bytes, text) GN_##name = number,
    GN_DTYPES(GN__X)
#undef GN__X
    GN_DTYPE__COUNT
} gn_dtype;

typedef struct gn_ctx gn_ctx;

/* A tensor of a context: a small value, free to copy. A zero handle (GN_NONE) is "no tensor". */
typedef struct gn_tensor {
    gn_ctx *ctx;
    uint32_t id, gen;
} gn_tensor;

typedef struct gn_shape {
    int32_t rank;
    int64_t dims[GN_MAX_RANK];
} gn_shape;

/* Axes of a reduction or permutation; negative ones count from the end. n = 0 means all axes. */
typedef struct gn_axes {
    int32_t n;
    int32_t axis[GN_MAX_RANK];
} gn_axes;

#define GN__NTH(a, b, c, d, e, f, g, h, n, ...) n
#define GN__COUNT(...) GN__NTH(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#ifdef __cplusplus
#define GN__MAKE(type, ...) type __VA_ARGS__
#else
#define GN__MAKE(type, ...) ((type)__VA_ARGS__)
#endif
#define GN_SHAPE(...) GN__MAKE(gn_shape, { GN__COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define GN_SCALAR GN__MAKE(gn_shape, { 0, { 0 } })
#define GN_AXES(...) GN__MAKE(gn_axes, { GN__COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define GN_ALL_AXES GN__MAKE(gn_axes, { 0, { 0 } })
#define GN_NONE GN__MAKE(gn_tensor, { NULL, 0, 0 })
#define GN_HERE __FILE__, __LINE__

/* Why something failed. Strings are NUL-terminated, never NULL. */
typedef struct gn_error {
    gn_result result;
    int line;          /* of the user's source; 0 if unknown */
    char op[24];       /* name of the op, "" if none */
    char label[64];    /* label of the tensor, "" if none */
    char file[128];    /* the user's source, "" if unknown */
    char text[512];    /* one sentence: shapes, sizes, what to do next */
} gn_error;

/* Counters of a context or server since it was opened. X(name, unit, help) */
#define GN_COUNTERS(X)                                                                             \
    X(nodes_built,        "nodes",  "graph nodes built")                                           \
    X(steps_run,          "steps",  "plans submitted to a device")                                 \
    X(plans_made,         "plans",  "plans made because no equal structure was known")             \
    X(plans_found,        "plans",  "plans found by structural hash")                              \
    X(round_trips,        "trips",  "times the program waited for a reply")                        \
    X(frames_up,          "frames", "frames sent")                                                 \
    X(frames_down,        "frames", "frames received")                                             \
    X(socket_bytes_up,    "bytes",  "bytes written to sockets, TLS included")                      \
    X(socket_bytes_down,  "bytes",  "bytes read from sockets, TLS included")                       \
    X(tensor_bytes_up,    "bytes",  "tensor bytes sent, before compression")                       \
    X(tensor_bytes_down,  "bytes",  "tensor bytes received, before compression")                   \
    X(packed_bytes_up,    "bytes",  "tensor bytes sent, after compression")                        \
    X(packed_bytes_down,  "bytes",  "tensor bytes received, after compression")                    \
    X(weight_bytes_sent,  "bytes",  "weight bytes uploaded, before compression")                   \
    X(weight_bytes_known, "bytes",  "weight bytes not uploaded because the server had them")       \
    X(kv_bytes_moved,     "bytes",  "bytes of KV cache that crossed the network")                  \
    X(kernels_run,        "calls",  "kernels or loops executed")                                   \
    X(nodes_fused,        "nodes",  "nodes that ran inside another node's loop")                   \
    X(state_copies,       "copies", "states copied because an old version had a later reader")     \
    X(state_copy_bytes,   "bytes",  "bytes of those copies")                                       \
    X(view_copies,        "copies", "reshapes that could not be a view")                           \
    X(fallbacks,          "ops",    "ops that ran on another device than the one chosen")          \
    X(faults,             "faults", "steps that ended with an error")                              \
    X(sessions,           "sessions", "sessions a server accepted")                                \
    X(sessions_refused,   "sessions", "connections a server refused")                              \
    X(bytes_to_device,    "bytes",  "tensor bytes copied from host memory to a GPU")               \
    X(bytes_to_host,      "bytes",  "tensor bytes copied from a GPU to host memory")               \
    X(device_bytes,       "bytes",  "bytes held now on the device for this context")

typedef struct gn_stats {
#define GN__X(name, unit, help) uint64_t name;
    GN_COUNTERS(GN__X)
#undef GN__X
} gn_stats;

typedef enum gn_log_level { GN_LOG_ERROR = 1, GN_LOG_WARN, GN_LOG_INFO, GN_LOG_DEBUG } gn_log_level;
typedef void (*gn_log_fn)(void *user, gn_log_level level, const char *text);

/* ---- context ---------------------------------------------------------------------------------------
 * One thread at a time in one context; different contexts may be used by different threads at once. */

typedef struct gn_desc {
    const char *devices;    /* comma-separated: "cpu", "null", "cuda:0", a server's URL, "host:port", "@FILE" with a URL.
                               NULL: $GENIE_DEVICES, else "cpu". The first device runs the graph */
    uint32_t deadline_ms;   /* longest wait for a server, 0: 30,000 */
    uint32_t max_nodes;     /* nodes of one step, 0: 2^21 */
    uint32_t threads;       /* of the CPU executor, 0: all cores ($GENIE_THREADS) */
    uint64_t seed;          /* of gn_random_*; equal seeds give equal numbers */
    bool strict;            /* a fallback is an error, not a counted event */
    const char *home;       /* folder of keys and credentials, NULL: $GENIE_HOME, else ~/.config/genie */
    const char *label;      /* named in logs */
    gn_log_fn log;          /* NULL: errors and warnings go to stderr when $GENIE_LOG is set */
    void *log_user;
} gn_desc;

/* Opens a context; desc may be NULL. Never returns NULL: a context that failed answers every call with its cause.
   Connecting to a server happens here, within the deadline. */
GN_API gn_ctx *gn_open(const gn_desc *desc);
/* Ends the context; every handle of it becomes an error (GN_CLOSED_CONTEXT). */
GN_API void gn_close(gn_ctx *g);
/* GN_OK, or why the context could not be opened. */
GN_API gn_result gn_status(gn_ctx *g);
/* The last error of this context; valid until the next call that fails. */
GN_API const gn_error *gn_last_error(gn_ctx *g);
GN_API const char *gn_result_name(gn_result r);   /* "GN_BAD_SHAPE" */
GN_API const char *gn_result_text(gn_result r);   /* one sentence */
GN_API void gn_get_stats(gn_ctx *g, gn_stats *out_stats);

typedef struct gn_device_info {
    char name[96];        /* as in gn_desc.devices, secrets removed: "cpu:0", "127.0.0.1:5556/cpu:0" */
    char identity[192];   /* equal identities compute equal bits */
    char tls[32];         /* "TLSv1.2", "" for a local device */
    char cipher[64];
    bool remote;
} gn_device_info;

GN_API gn_result gn_get_device(gn_ctx *g, gn_device_info *out_info);

/* Ends a step: pending state updates are submitted, the step's nodes and values are recycled, weights and states stay.
   Does not wait for a server. Returns the first error of a pending update. */
GN_API gn_result gn_step(gn_ctx *g);
/* Waits until everything submitted has run; returns its first error. */
GN_API gn_result gn_sync(gn_ctx *g);

/* ---- leaves ----------------------------------------------------------------------------------------
 * Shapes are row-major. A label is copied. Builders return at once; errors show at the read. */

/* A value of this step. Borrows `host` until gn_step. */
GN_API gn_tensor gn_data_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host);
#define gn_data(...) gn_data_at(GN_HERE, __VA_ARGS__)
/* The same, copied now. */
GN_API gn_tensor gn_data_copy_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host);
#define gn_data_copy(...) gn_data_copy_at(GN_HERE, __VA_ARGS__)
/* A running number of this step (learning rate, position): 0-d, its value is not part of the plan. */
GN_API gn_tensor gn_scalar_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, double value);
#define gn_scalar(...) gn_scalar_at(GN_HERE, __VA_ARGS__)
/* A resident constant, content-addressed: uploaded at most once. Borrows `host`, unchanged, until gn_close. */
GN_API gn_tensor gn_weight_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host, const char *label);
#define gn_weight(...) gn_weight_at(GN_HERE, __VA_ARGS__)
/* A resident, mutable value (parameter, KV cache, token). `host` is its first value, copied; NULL means zeros.
   The handle denotes the latest committed version. */
GN_API gn_tensor gn_state_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host, const char *label);
#define gn_state(...) gn_state_at(GN_HERE, __VA_ARGS__)
/* Releases a weight or a state, on the device too; its handle becomes stale. */
GN_API gn_result gn_release(gn_tensor slot);

/* Generators: made where they are used, never sent. */
GN_API gn_tensor gn_full_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, double value);
#define gn_full(...) gn_full_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_arange_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, int64_t n, double start, double step); /* start + i*step, (n) */
#define gn_arange(...) gn_arange_at(GN_HERE, __VA_ARGS__)
/* Philox4x32-10 (Salmon et al., SC'11). Uniform in [0, 1); normal with mean 0 and variance 1. Floats only. Two calls differ. */
GN_API gn_tensor gn_random_uniform_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape);
#define gn_random_uniform(...) gn_random_uniform_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_random_normal_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape);
#define gn_random_normal(...) gn_random_normal_at(GN_HERE, __VA_ARGS__)

/* ---- states ----------------------------------------------------------------------------------------*/

/* A new version of `state` (a state or a version of one) holding `value` (same shape and dtype). Takes part in the next
   read, realise or step, exactly once. Older versions keep their value for nodes built on them. */
GN_API gn_tensor gn_assign_at(const char *file, int line, gn_tensor state, gn_tensor value);
#define gn_assign(...) gn_assign_at(GN_HERE, __VA_ARGS__)
/* cache (B,H,S,D) with rows (B,H,T,D) written at [pos, pos+T) of S; pos is a 0-d i32 or i64. If `cache` is a state or a
   version of one, the result is its new version; otherwise it is a plain tensor. pos+T > S: GN_INDEX_OUT_OF_RANGE. */
GN_API gn_tensor gn_kv_append_at(const char *file, int line, gn_tensor cache, gn_tensor rows, gn_tensor pos);
#define gn_kv_append(...) gn_kv_append_at(GN_HERE, __VA_ARGS__)

/* ---- values ----------------------------------------------------------------------------------------*/

/* Computes `t` and copies it to `out`; `bytes` must be its exact size. Waits. */
GN_API gn_result gn_read(gn_tensor t, void *out, size_t bytes);
/* Several at once: one plan, one round trip. */
GN_API gn_result gn_read_many(const gn_tensor *t, int n, void *const *out, const size_t *bytes);
/* Computes and keeps the values on the device until gn_step; does not wait for a server. */
GN_API gn_result gn_realize(const gn_tensor *t, int n);

typedef struct gn_info {
    gn_result result;      /* GN_OK, or why the node failed */
    const char *op;        /* "matmul", "data", "state"… */
    gn_dtype dtype;
    gn_shape shape;
    size_t bytes;
    double flops;          /* arithmetic of this node alone */
    bool computed;         /* a value exists (leaves: always) */
    char device[96];       /* where the value is, "" when not computed or on the host */
    const char *label;     /* "" if none; valid until gn_close */
    const char *phase;     /* "unknown", "forward", "prefill", "decode", "training" */
    const char *residency; /* "input", "weight", "state", "kv cache", "activation" */
} gn_info;

/* What is known of a tensor without computing anything. Returns the node's own result. */
GN_API gn_result gn_describe(gn_tensor t, gn_info *out_info);
/* Names a tensor; the name shows in errors, explanations and traces. Returns t. */
GN_API gn_tensor gn_label(gn_tensor t, const char *label);

/* ---- scalar ops: broadcasting as in NumPy, promotion as in PyTorch ------------------------------------
 * One line each; what no other source is named for follows C99 <math.h> and IEEE 754. Floats are f32, f64, f16, bf16; ints i8,
 * i16, i32, i64, u8, u16, u32. Integers wrap. Of a signed and an unsigned int the result is the signed one when it is wider, else
 * the next signed one above the unsigned (u16 with i16 is i32). */

#define GN__DECL1(name) GN_API gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a);
#define GN__DECL2(name) GN_API gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_tensor b);

GN__DECL2(add)      /* a + b; bool: or */
#define gn_add(...) gn_add_at(GN_HERE, __VA_ARGS__)
GN__DECL2(sub)      /* a - b */
#define gn_sub(...) gn_sub_at(GN_HERE, __VA_ARGS__)
GN__DECL2(mul)      /* a * b; bool: and */
#define gn_mul(...) gn_mul_at(GN_HERE, __VA_ARGS__)
GN__DECL2(div)      /* a / b; ints: towards zero, INT_MIN / -1 wraps, a zero divisor is GN_DIVISION_BY_ZERO */
#define gn_div(...) gn_div_at(GN_HERE, __VA_ARGS__)
GN__DECL2(pow)      /* a ** b, floats (C99 pow) */
#define gn_pow(...) gn_pow_at(GN_HERE, __VA_ARGS__)
GN__DECL2(minimum)  /* NaN if either is NaN */
#define gn_minimum(...) gn_minimum_at(GN_HERE, __VA_ARGS__)
GN__DECL2(maximum)  /* NaN if either is NaN */
#define gn_maximum(...) gn_maximum_at(GN_HERE, __VA_ARGS__)
GN__DECL1(neg)  /* -a; INT_MIN wraps */
#define gn_neg(...) gn_neg_at(GN_HERE, __VA_ARGS__)
GN__DECL1(abs)      /* INT_MIN wraps */
#define gn_abs(...) gn_abs_at(GN_HERE, __VA_ARGS__)
GN__DECL1(exp)      /* floats, as the following up to silu */
#define gn_exp(...) gn_exp_at(GN_HERE, __VA_ARGS__)
GN__DECL1(log)  /* natural; 0: -infinity, below 0: NaN */
#define gn_log(...) gn_log_at(GN_HERE, __VA_ARGS__)
GN__DECL1(sqrt)  /* below 0: NaN; the gradient at 0 is an infinity */
#define gn_sqrt(...) gn_sqrt_at(GN_HERE, __VA_ARGS__)
GN__DECL1(rsqrt)    /* 1 / sqrt(a) */
#define gn_rsqrt(...) gn_rsqrt_at(GN_HERE, __VA_ARGS__)
GN__DECL1(tanh)  /* -1 and 1 at the infinities */
#define gn_tanh(...) gn_tanh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(sigmoid)  /* 1 / (1 + exp(-a)) */
#define gn_sigmoid(...) gn_sigmoid_at(GN_HERE, __VA_ARGS__)
GN__DECL1(relu)     /* max(a, 0), NaN stays; ints too */
#define gn_relu(...) gn_relu_at(GN_HERE, __VA_ARGS__)
GN__DECL1(gelu)     /* a * Phi(a), exact (Hendrycks & Gimpel 2016) */
#define gn_gelu(...) gn_gelu_at(GN_HERE, __VA_ARGS__)
GN__DECL1(gelu_tanh) /* the tanh form of the same paper */
#define gn_gelu_tanh(...) gn_gelu_tanh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(silu)     /* a * sigmoid(a) */
#define gn_silu(...) gn_silu_at(GN_HERE, __VA_ARGS__)
GN__DECL2(eq)       /* comparisons give bool; any comparison with NaN is false, ne is true */
#define gn_eq(...) gn_eq_at(GN_HERE, __VA_ARGS__)
GN__DECL2(ne)  /* a != b */
#define gn_ne(...) gn_ne_at(GN_HERE, __VA_ARGS__)
GN__DECL2(lt)  /* a < b */
#define gn_lt(...) gn_lt_at(GN_HERE, __VA_ARGS__)
GN__DECL2(le)  /* a <= b */
#define gn_le(...) gn_le_at(GN_HERE, __VA_ARGS__)
GN__DECL2(gt)  /* a > b */
#define gn_gt(...) gn_gt_at(GN_HERE, __VA_ARGS__)
GN__DECL2(ge)  /* a >= b */
#define gn_ge(...) gn_ge_at(GN_HERE, __VA_ARGS__)
GN__DECL2(and)      /* ints: bitwise; bool: logical; as the following */
#define gn_and(...) gn_and_at(GN_HERE, __VA_ARGS__)
GN__DECL2(or)  /* a | b */
#define gn_or(...) gn_or_at(GN_HERE, __VA_ARGS__)
GN__DECL2(xor)  /* a ^ b */
#define gn_xor(...) gn_xor_at(GN_HERE, __VA_ARGS__)
GN__DECL1(not)  /* ~a; bool: !a */
#define gn_not(...) gn_not_at(GN_HERE, __VA_ARGS__)
#define GN__DECL3(name) GN_API gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_tensor b, gn_tensor c);
GN__DECL1(sign)           /* -1, 0 or 1, ints too; NaN stays */
#define gn_sign(...) gn_sign_at(GN_HERE, __VA_ARGS__)
GN__DECL1(floor)          /* floats, as the following up to log_sigmoid except square; -0 and infinities stay */
#define gn_floor(...) gn_floor_at(GN_HERE, __VA_ARGS__)
GN__DECL1(ceil)  /* the least integer not below a */
#define gn_ceil(...) gn_ceil_at(GN_HERE, __VA_ARGS__)
GN__DECL1(round)          /* to the nearest integer, ties to even (IEEE 754) */
#define gn_round(...) gn_round_at(GN_HERE, __VA_ARGS__)
GN__DECL1(trunc)          /* towards 0 */
#define gn_trunc(...) gn_trunc_at(GN_HERE, __VA_ARGS__)
GN__DECL1(exp2)           /* 2 ** a */
#define gn_exp2(...) gn_exp2_at(GN_HERE, __VA_ARGS__)
GN__DECL1(expm1)          /* exp(a) - 1, exact near 0 */
#define gn_expm1(...) gn_expm1_at(GN_HERE, __VA_ARGS__)
GN__DECL1(log2)  /* as log, to base 2 */
#define gn_log2(...) gn_log2_at(GN_HERE, __VA_ARGS__)
GN__DECL1(log10)  /* as log, to base 10 */
#define gn_log10(...) gn_log10_at(GN_HERE, __VA_ARGS__)
GN__DECL1(log1p)          /* log(1 + a), exact near 0 */
#define gn_log1p(...) gn_log1p_at(GN_HERE, __VA_ARGS__)
GN__DECL1(reciprocal)     /* 1 / a */
#define gn_reciprocal(...) gn_reciprocal_at(GN_HERE, __VA_ARGS__)
GN__DECL1(square)         /* a * a; ints too */
#define gn_square(...) gn_square_at(GN_HERE, __VA_ARGS__)
GN__DECL1(sin)            /* radians; an infinity gives NaN */
#define gn_sin(...) gn_sin_at(GN_HERE, __VA_ARGS__)
GN__DECL1(cos)  /* as sin */
#define gn_cos(...) gn_cos_at(GN_HERE, __VA_ARGS__)
GN__DECL1(tan)  /* as sin */
#define gn_tan(...) gn_tan_at(GN_HERE, __VA_ARGS__)
GN__DECL1(asin)           /* outside [-1, 1]: NaN */
#define gn_asin(...) gn_asin_at(GN_HERE, __VA_ARGS__)
GN__DECL1(acos)           /* outside [-1, 1]: NaN */
#define gn_acos(...) gn_acos_at(GN_HERE, __VA_ARGS__)
GN__DECL1(atan)  /* -pi/2 and pi/2 at the infinities */
#define gn_atan(...) gn_atan_at(GN_HERE, __VA_ARGS__)
GN__DECL1(sinh)  /* (exp(a) - exp(-a)) / 2 */
#define gn_sinh(...) gn_sinh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(cosh)  /* (exp(a) + exp(-a)) / 2 */
#define gn_cosh(...) gn_cosh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(asinh)  /* the inverse of sinh */
#define gn_asinh(...) gn_asinh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(acosh)          /* below 1: NaN */
#define gn_acosh(...) gn_acosh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(atanh)          /* outside [-1, 1]: NaN, at its ends an infinity */
#define gn_atanh(...) gn_atanh_at(GN_HERE, __VA_ARGS__)
GN__DECL1(erf)  /* 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to a */
#define gn_erf(...) gn_erf_at(GN_HERE, __VA_ARGS__)
GN__DECL1(erfc)           /* 1 - erf(a), exact where that is small */
#define gn_erfc(...) gn_erfc_at(GN_HERE, __VA_ARGS__)
GN__DECL1(softplus)       /* log(1 + exp(a)), without overflow (Dugas et al. 2001) */
#define gn_softplus(...) gn_softplus_at(GN_HERE, __VA_ARGS__)
GN__DECL1(softsign)       /* a / (1 + |a|); an infinity gives NaN */
#define gn_softsign(...) gn_softsign_at(GN_HERE, __VA_ARGS__)
GN__DECL1(hard_sigmoid)   /* (a + 3) / 6 between 0 and 1 (Howard et al. 2019) */
#define gn_hard_sigmoid(...) gn_hard_sigmoid_at(GN_HERE, __VA_ARGS__)
GN__DECL1(hard_swish)     /* a * hard_sigmoid(a), 0 up to -3 (Howard et al. 2019) */
#define gn_hard_swish(...) gn_hard_swish_at(GN_HERE, __VA_ARGS__)
GN__DECL1(selu)           /* Klambauer et al. 2017 */
#define gn_selu(...) gn_selu_at(GN_HERE, __VA_ARGS__)
GN__DECL1(mish)           /* a * tanh(softplus(a)); -infinity gives NaN (Misra 2019) */
#define gn_mish(...) gn_mish_at(GN_HERE, __VA_ARGS__)
GN__DECL1(log_sigmoid)    /* log(sigmoid(a)), without underflow */
#define gn_log_sigmoid(...) gn_log_sigmoid_at(GN_HERE, __VA_ARGS__)
GN__DECL2(atan2)          /* the angle of the point (b, a); C99 */
#define gn_atan2(...) gn_atan2_at(GN_HERE, __VA_ARGS__)
GN__DECL2(fmod)           /* a - b trunc(a / b), the sign of a, exact; a zero divisor: NaN, ints GN_DIVISION_BY_ZERO, as the following */
#define gn_fmod(...) gn_fmod_at(GN_HERE, __VA_ARGS__)
GN__DECL2(remainder)      /* a - b floor(a / b), the sign of b (Python's %), but a 0 has a's */
#define gn_remainder(...) gn_remainder_at(GN_HERE, __VA_ARGS__)
GN__DECL2(floor_divide)   /* floor(a / b) of the exact quotient (Python's //); floats: a / 0 as in div */
#define gn_floor_divide(...) gn_floor_divide_at(GN_HERE, __VA_ARGS__)
GN__DECL2(hypot)          /* sqrt(a a + b b), without overflow */
#define gn_hypot(...) gn_hypot_at(GN_HERE, __VA_ARGS__)
GN__DECL2(copysign)       /* |a| with the sign of b */
#define gn_copysign(...) gn_copysign_at(GN_HERE, __VA_ARGS__)
GN__DECL2(shift_left)     /* ints: a 2^b wrapped; b negative or past the width gives 0 */
#define gn_shift_left(...) gn_shift_left_at(GN_HERE, __VA_ARGS__)
GN__DECL2(shift_right)    /* ints: floor(a / 2^b); b negative or past the width gives 0, for a negative a -1 */
#define gn_shift_right(...) gn_shift_right_at(GN_HERE, __VA_ARGS__)
GN__DECL3(fma)            /* a * b + c rounded once; ints wrap */
#define gn_fma(...) gn_fma_at(GN_HERE, __VA_ARGS__)
GN__DECL3(lerp)           /* a (1 - c) + b c, floats */
#define gn_lerp(...) gn_lerp_at(GN_HERE, __VA_ARGS__)
/* cond (bool) ? a : b, all broadcast together */
GN_API gn_tensor gn_where_at(const char *file, int line, gn_tensor cond, gn_tensor a, gn_tensor b);
#define gn_where(...) gn_where_at(GN_HERE, __VA_ARGS__)
/* Float to int truncates towards zero and saturates, NaN gives 0; int to int wraps; to bool: a != 0. */
GN_API gn_tensor gn_cast_at(const char *file, int line, gn_tensor a, gn_dtype dtype);
#define gn_cast(...) gn_cast_at(GN_HERE, __VA_ARGS__)
/* min(max(a, lo), hi), NaN stays; lo and hi are baked in, converted to a's dtype like gn_cast */
GN_API gn_tensor gn_clamp_at(const char *file, int line, gn_tensor a, double lo, double hi);
#define gn_clamp(...) gn_clamp_at(GN_HERE, __VA_ARGS__)

/* Said with the ops above. Tests of numbers give bool; a number counts as true when it is not 0 (NaN is not 0). */
GN__DECL1(isnan)    /* ints: false */
#define gn_isnan(...) gn_isnan_at(GN_HERE, __VA_ARGS__)
GN__DECL1(isinf)    /* ints: false */
#define gn_isinf(...) gn_isinf_at(GN_HERE, __VA_ARGS__)
GN__DECL1(isfinite) /* ints: true */
#define gn_isfinite(...) gn_isfinite_at(GN_HERE, __VA_ARGS__)
GN__DECL1(logical_not)  /* a == 0 */
#define gn_logical_not(...) gn_logical_not_at(GN_HERE, __VA_ARGS__)
GN__DECL2(logical_and)  /* both are true */
#define gn_logical_and(...) gn_logical_and_at(GN_HERE, __VA_ARGS__)
GN__DECL2(logical_or)  /* one or both */
#define gn_logical_or(...) gn_logical_or_at(GN_HERE, __VA_ARGS__)
GN__DECL2(logical_xor)  /* one alone */
#define gn_logical_xor(...) gn_logical_xor_at(GN_HERE, __VA_ARGS__)
/* Floats. a where a >= 0, else slope * a (Maas et al. 2013); prelu: slope is a tensor that broadcasts, for channels of
   (N,C,H,W) of shape (C,1,1) (He et al. 2015). */
GN_API gn_tensor gn_leaky_relu_at(const char *file, int line, gn_tensor a, double slope);
#define gn_leaky_relu(...) gn_leaky_relu_at(GN_HERE, __VA_ARGS__)
GN__DECL2(prelu)
#define gn_prelu(...) gn_prelu_at(GN_HERE, __VA_ARGS__)
/* Floats. a where a > 0, else alpha (exp(a) - 1) (Clevert et al. 2016); celu: alpha (exp(a / alpha) - 1), alpha > 0 (Barron 2017). */
GN_API gn_tensor gn_elu_at(const char *file, int line, gn_tensor a, double alpha);
#define gn_elu(...) gn_elu_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_celu_at(const char *file, int line, gn_tensor a, double alpha);
#define gn_celu(...) gn_celu_at(GN_HERE, __VA_ARGS__)

/* The ops above with a C number as b, baked in with a's dtype as by gn_like. */
#define GN__DECLN(name) GN_API gn_tensor gn_##name##_c_at(const char *file, int line, gn_tensor a, double c);
GN__DECLN(add)
#define gn_add_c(...) gn_add_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(sub)
#define gn_sub_c(...) gn_sub_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(mul)
#define gn_mul_c(...) gn_mul_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(div)
#define gn_div_c(...) gn_div_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(pow)
#define gn_pow_c(...) gn_pow_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(minimum)
#define gn_minimum_c(...) gn_minimum_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(maximum)
#define gn_maximum_c(...) gn_maximum_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(eq)
#define gn_eq_c(...) gn_eq_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(ne)
#define gn_ne_c(...) gn_ne_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(lt)
#define gn_lt_c(...) gn_lt_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(le)
#define gn_le_c(...) gn_le_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(gt)
#define gn_gt_c(...) gn_gt_c_at(GN_HERE, __VA_ARGS__)
GN__DECLN(ge)
#define gn_ge_c(...) gn_ge_c_at(GN_HERE, __VA_ARGS__)
/* A 0-d constant of a's dtype, converted like gn_cast. */
GN_API gn_tensor gn_like_at(const char *file, int line, gn_tensor a, double value);
#define gn_like(...) gn_like_at(GN_HERE, __VA_ARGS__)

/* ---- reductions: over the given axes; keep leaves them with size 1 ------------------------------------
 * Sums of ints and bool are i64. max and min: NaN wins; over nothing they are an error. mean over nothing is NaN. */
#define GN__DECLR(name) GN_API gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep);
GN__DECLR(sum)  /* f16 and bf16 sum in f32; over nothing 0 */
#define gn_sum(...) gn_sum_at(GN_HERE, __VA_ARGS__)
GN__DECLR(mean)     /* floats */
#define gn_mean(...) gn_mean_at(GN_HERE, __VA_ARGS__)
GN__DECLR(max)  /* over all axes a 0-d tensor; the gradient is shared evenly among equals */
#define gn_max(...) gn_max_at(GN_HERE, __VA_ARGS__)
GN__DECLR(min)  /* as max */
#define gn_min(...) gn_min_at(GN_HERE, __VA_ARGS__)
GN__DECLR(argmax)   /* i64: row-major position within the reduced axes; the first NaN, else the first of equals */
#define gn_argmax(...) gn_argmax_at(GN_HERE, __VA_ARGS__)
GN__DECLR(argmin)   /* as argmax: the first NaN, else the first of equals; over nothing an error */
#define gn_argmin(...) gn_argmin_at(GN_HERE, __VA_ARGS__)
GN__DECLR(prod)     /* ints and bool: i64, wrapped; over nothing 1 */
#define gn_prod(...) gn_prod_at(GN_HERE, __VA_ARGS__)
GN__DECLR(any)      /* bool: not all are 0; over nothing false */
#define gn_any(...) gn_any_at(GN_HERE, __VA_ARGS__)
GN__DECLR(all)      /* bool: none is 0; over nothing true */
#define gn_all(...) gn_all_at(GN_HERE, __VA_ARGS__)
GN__DECLR(count_nonzero) /* i64; NaN is not 0 */
#define gn_count_nonzero(...) gn_count_nonzero_at(GN_HERE, __VA_ARGS__)
GN__DECLR(l1_norm)  /* sum of |a|; ints and bool: i64 */
#define gn_l1_norm(...) gn_l1_norm_at(GN_HERE, __VA_ARGS__)
GN__DECLR(l2_norm)  /* sqrt of the sum of a^2, floats; squares past the largest number give an infinity; the gradient at 0 is 0 */
#define gn_l2_norm(...) gn_l2_norm_at(GN_HERE, __VA_ARGS__)
GN__DECLR(logsumexp) /* log of the sum of exp(a), floats, without overflow; over nothing -infinity (Blanchard et al. 2021) */
#define gn_logsumexp(...) gn_logsumexp_at(GN_HERE, __VA_ARGS__)
/* Floats, in two passes. Divisor n - correction: 0 for a population, 1 for a sample (Bessel); no more elements than
   correction: division by 0 as in NumPy. std is the square root, its gradient at 0 is 0. */
GN_API gn_tensor gn_variance_at(const char *file, int line, gn_tensor a, gn_axes axes, int correction, bool keep);
#define gn_variance(...) gn_variance_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_std_at(const char *file, int line, gn_tensor a, gn_axes axes, int correction, bool keep);
#define gn_std(...) gn_std_at(GN_HERE, __VA_ARGS__)
/* Running along one axis, same shape. cumsum and cumprod of ints and bool are i64, wrapped; cummax: NaN wins. */
GN_API gn_tensor gn_cumsum_at(const char *file, int line, gn_tensor a, int axis);
#define gn_cumsum(...) gn_cumsum_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_cumprod_at(const char *file, int line, gn_tensor a, int axis);
#define gn_cumprod(...) gn_cumprod_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_cummax_at(const char *file, int line, gn_tensor a, int axis);
#define gn_cummax(...) gn_cummax_at(GN_HERE, __VA_ARGS__)

/* ---- rows ---------------------------------------------------------------------------------------------*/
/* exp(a - max) / sum of exp(a - max) along one axis, floats; a row of -infinity alone, or with +infinity or NaN, is NaN.
   log_softmax is its logarithm, without underflow. (Bridle 1990) */
GN_API gn_tensor gn_softmax_at(const char *file, int line, gn_tensor a, int axis);
#define gn_softmax(...) gn_softmax_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_log_softmax_at(const char *file, int line, gn_tensor a, int axis);
#define gn_log_softmax(...) gn_log_softmax_at(GN_HERE, __VA_ARGS__)
/* Over the last axis (D): (a - mean) / sqrt(var + eps) * gain + bias; gain and bias (D) or GN_NONE. (Ba et al. 2016) */
GN_API gn_tensor gn_layernorm_at(const char *file, int line, gn_tensor a, gn_tensor gain, gn_tensor bias, double eps);
#define gn_layernorm(...) gn_layernorm_at(GN_HERE, __VA_ARGS__)
/* Over the last axis (D): a / sqrt(mean(a^2) + eps) * gain; gain (D) or GN_NONE. (Zhang & Sennrich 2019) */
GN_API gn_tensor gn_rmsnorm_at(const char *file, int line, gn_tensor a, gn_tensor gain, double eps);
#define gn_rmsnorm(...) gn_rmsnorm_at(GN_HERE, __VA_ARGS__)
/* a / max(l2_norm of the axis, eps) */
GN_API gn_tensor gn_normalize_at(const char *file, int line, gn_tensor a, int axis, double eps);
#define gn_normalize(...) gn_normalize_at(GN_HERE, __VA_ARGS__)
/* In order along an axis: stable, NaN last in both directions. argsort gives positions, i64. */
GN_API gn_tensor gn_sort_at(const char *file, int line, gn_tensor a, int axis, bool descending);
#define gn_sort(...) gn_sort_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_argsort_at(const char *file, int line, gn_tensor a, int axis, bool descending);
#define gn_argsort(...) gn_argsort_at(GN_HERE, __VA_ARGS__)
/* The k largest (or smallest) along an axis, in order, NaN last, equal ones in order of position; 0 <= k <= the axis. Positions
   are i64; either output may be NULL. */
GN_API void gn_topk_at(const char *file, int line, gn_tensor a, int64_t k, int axis, bool largest, gn_tensor *out_values, gn_tensor *out_positions);
#define gn_topk(...) gn_topk_at(GN_HERE, __VA_ARGS__)

/* ---- linear algebra -----------------------------------------------------------------------------------*/
/* a (…,M,K) @ b (…,K,N) = (…,M,N); batch axes broadcast. Rank 1 to 8: a vector is a row on the left, a column on the
   right, and its axis is dropped. Floats and ints; f16 and bf16 accumulate in f32. */
GN_API gn_tensor gn_matmul_at(const char *file, int line, gn_tensor a, gn_tensor b);
#define gn_matmul(...) gn_matmul_at(GN_HERE, __VA_ARGS__)
/* x (…,K) @ w (K,N) + b (N); b may be GN_NONE */
GN_API gn_tensor gn_linear_at(const char *file, int line, gn_tensor x, gn_tensor w, gn_tensor b);
#define gn_linear(...) gn_linear_at(GN_HERE, __VA_ARGS__)
/* (N) and (M) = (N,M): each element of a times each of b, dtypes promoted as by mul. */
GN__DECL2(outer)
#define gn_outer(...) gn_outer_at(GN_HERE, __VA_ARGS__)
/* Sum of a * b along one axis, the others broadcast: one product of vectors for each. Ints sum in i64. */
GN_API gn_tensor gn_vecdot_at(const char *file, int line, gn_tensor a, gn_tensor b, int axis);
#define gn_vecdot(...) gn_vecdot_at(GN_HERE, __VA_ARGS__)
/* Einstein's sum: "bij,bjk->bik". A letter an axis, commas between tensors, blanks are skipped; letters that are not after the
   arrow are summed; without an arrow the result has the letters that occur once, in alphabetical order (capitals first). A letter
   twice in one tensor takes its diagonal. Sizes must agree. "..." stands for the axes without a letter, which broadcast; without
   an arrow they come first. n tensors of one dtype, multiplied from left to right. (NumPy's, PyTorch's) */
GN_API gn_tensor gn_einsum_at(const char *file, int line, const char *spec, const gn_tensor *in, int n);
#define gn_einsum(...) gn_einsum_at(GN_HERE, __VA_ARGS__)

/* ---- movement -----------------------------------------------------------------------------------------*/
GN_API gn_tensor gn_reshape_at(const char *file, int line, gn_tensor a, gn_shape shape);   /* one dim may be -1 */
#define gn_reshape(...) gn_reshape_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_transpose_at(const char *file, int line, gn_tensor a, int axis0, int axis1);   /* two axes exchanged */
#define gn_transpose(...) gn_transpose_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_permute_at(const char *file, int line, gn_tensor a, gn_axes order);    /* out dim i is a's dim order[i] */
#define gn_permute(...) gn_permute_at(GN_HERE, __VA_ARGS__)
/* a[begin:end:step] of one axis, as in Python: negative begin and end count from the end, both are cut to the axis;
   step may be negative, not 0. GN_END is "to the end". */
GN_API gn_tensor gn_slice_at(const char *file, int line, gn_tensor a, int axis, int64_t begin, int64_t end, int64_t step);
#define gn_slice(...) gn_slice_at(GN_HERE, __VA_ARGS__)
#define GN_END INT64_MAX
/* a with a[begin:end:step] of one axis replaced by b, which has the slice's shape. */
GN_API gn_tensor gn_slice_put_at(const char *file, int line, gn_tensor a, gn_tensor b, int axis, int64_t begin, int64_t end, int64_t step);
#define gn_slice_put(...) gn_slice_put_at(GN_HERE, __VA_ARGS__)
/* n tensors of one dtype, equal but for one axis, one after the other along it. */
GN_API gn_tensor gn_concat_at(const char *file, int line, const gn_tensor *parts, int n, int axis);
#define gn_concat(...) gn_concat_at(GN_HERE, __VA_ARGS__)
/* Repeated to the shape by NumPy's rule: axes of size 1, and those missing in front, grow. */
GN_API gn_tensor gn_broadcast_at(const char *file, int line, gn_tensor a, gn_shape shape);
#define gn_broadcast(...) gn_broadcast_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_stack_at(const char *file, int line, const gn_tensor *parts, int n, int axis);   /* along a new axis */
#define gn_stack(...) gn_stack_at(GN_HERE, __VA_ARGS__)
/* Cuts one axis into n parts of the given sizes, which must add up to it; sizes NULL: n equal parts. Fills out[n]. */
GN_API void gn_split_at(const char *file, int line, gn_tensor a, int axis, const int64_t *sizes, int n, gn_tensor *out);
#define gn_split(...) gn_split_at(GN_HERE, __VA_ARGS__)
typedef enum gn_pad_mode { GN_PAD_CONSTANT, GN_PAD_REFLECT, GN_PAD_EDGE, GN_PAD__COUNT } gn_pad_mode;
/* More elements before and after each axis: `value` (CONSTANT), mirrored without the edge itself (REFLECT: fewer than the axis has),
   or the edge again (EDGE). None negative. */
GN_API gn_tensor gn_pad_at(const char *file, int line, gn_tensor a, gn_shape before, gn_shape after, gn_pad_mode mode, double value);
#define gn_pad(...) gn_pad_at(GN_HERE, __VA_ARGS__)
/* Backwards along the axes. */
GN_API gn_tensor gn_flip_at(const char *file, int line, gn_tensor a, gn_axes axes);
#define gn_flip(...) gn_flip_at(GN_HERE, __VA_ARGS__)
/* Element i of the axis goes to i + shift, past the end to the beginning. */
GN_API gn_tensor gn_roll_at(const char *file, int line, gn_tensor a, int64_t shift, int axis);
#define gn_roll(...) gn_roll_at(GN_HERE, __VA_ARGS__)
/* The whole tensor again, times.dims[i] times along axis i. */
GN_API gn_tensor gn_tile_at(const char *file, int line, gn_tensor a, gn_shape times);
#define gn_tile(...) gn_tile_at(GN_HERE, __VA_ARGS__)
/* Each element of the axis n times in a row. */
GN_API gn_tensor gn_repeat_at(const char *file, int line, gn_tensor a, int64_t n, int axis);
#define gn_repeat(...) gn_repeat_at(GN_HERE, __VA_ARGS__)
/* broadcast in which -1 keeps the size. */
GN_API gn_tensor gn_expand_at(const char *file, int line, gn_tensor a, gn_shape shape);
#define gn_expand(...) gn_expand_at(GN_HERE, __VA_ARGS__)
/* Drops axes of size 1: those named, or all that have it. */
GN_API gn_tensor gn_squeeze_at(const char *file, int line, gn_tensor a, gn_axes axes);
#define gn_squeeze(...) gn_squeeze_at(GN_HERE, __VA_ARGS__)
/* A new axis of size 1 that becomes axis `axis` of the result. */
GN_API gn_tensor gn_unsqueeze_at(const char *file, int line, gn_tensor a, int axis);
#define gn_unsqueeze(...) gn_unsqueeze_at(GN_HERE, __VA_ARGS__)
/* Of the last two axes: what is on or below (tril) or on or above (triu) the k-th diagonal, else 0; k > 0 lies above the main one. */
GN_API gn_tensor gn_tril_at(const char *file, int line, gn_tensor a, int64_t k);
#define gn_tril(...) gn_tril_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_triu_at(const char *file, int line, gn_tensor a, int64_t k);
#define gn_triu(...) gn_triu_at(GN_HERE, __VA_ARGS__)
/* (…,L): the diagonal of two axes as the last axis; offset > 0 lies above. An offset off the matrix gives L = 0. */
GN_API gn_tensor gn_diagonal_at(const char *file, int line, gn_tensor a, int64_t offset, int axis0, int axis1);
#define gn_diagonal(...) gn_diagonal_at(GN_HERE, __VA_ARGS__)
/* Windows as columns: (N,C,H,W) = (N,C*KH*KW,OH*OW), zeros around the image; kernel, stride, pad and dilation are GN_SHAPE(y, x),
   all 1 or more, pad 0 or more (Chellapilla et al. 2006). */
GN_API gn_tensor gn_im2col_at(const char *file, int line, gn_tensor a, gn_shape kernel, gn_shape stride, gn_shape pad, gn_shape dilation);
#define gn_im2col(...) gn_im2col_at(GN_HERE, __VA_ARGS__)

/* ---- indexing: indices are i32 or i64, none negative; one out of range is GN_INDEX_OUT_OF_RANGE at the read ---------*/
/* out[i][j][k] = a[index[i][j][k]][j][k] for axis 0, and so on; index has a's rank and is nowhere larger off the axis. */
GN_API gn_tensor gn_gather_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index);
#define gn_gather(...) gn_gather_at(GN_HERE, __VA_ARGS__)
/* table (V,D), ids (…) = (…,D) */
GN_API gn_tensor gn_embedding_at(const char *file, int line, gn_tensor table, gn_tensor ids);
#define gn_embedding(...) gn_embedding_at(GN_HERE, __VA_ARGS__)
/* ids (…) = (…,depth), 1 at ids, else 0 */
GN_API gn_tensor gn_one_hot_at(const char *file, int line, gn_tensor ids, int64_t depth, gn_dtype dtype);
#define gn_one_hot(...) gn_one_hot_at(GN_HERE, __VA_ARGS__)
/* a copy of a with src added at index, gather's counterpart; index and src have one shape. Equal indices add up in order. */
GN_API gn_tensor gn_scatter_add_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src);
#define gn_scatter_add(...) gn_scatter_add_at(GN_HERE, __VA_ARGS__)
/* As scatter_add, but sets; of equal indices the last in row-major order counts. */
GN_API gn_tensor gn_scatter_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src);
#define gn_scatter(...) gn_scatter_at(GN_HERE, __VA_ARGS__)
/* As scatter_add, but keeps the larger; NaN wins. The gradient is shared evenly among equals. */
GN_API gn_tensor gn_scatter_max_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src);
#define gn_scatter_max(...) gn_scatter_max_at(GN_HERE, __VA_ARGS__)
/* Slices of one axis by a vector of indices. */
GN_API gn_tensor gn_index_select_at(const char *file, int line, gn_tensor a, int axis, gn_tensor ids);
#define gn_index_select(...) gn_index_select_at(GN_HERE, __VA_ARGS__)
/* index (…,K) of the first K axes: (…) and the remaining axes of a. */
GN_API gn_tensor gn_gather_nd_at(const char *file, int line, gn_tensor a, gn_tensor index);
#define gn_gather_nd(...) gn_gather_nd_at(GN_HERE, __VA_ARGS__)
/* value where mask (bool, broadcasts) is true, else a. */
GN_API gn_tensor gn_masked_fill_at(const char *file, int line, gn_tensor a, gn_tensor mask, double value);
#define gn_masked_fill(...) gn_masked_fill_at(GN_HERE, __VA_ARGS__)
/* i64 (bound,R): places of the elements that are not 0 (NaN is not), in row-major order, then rows of -1; more than `bound`:
   GN_INDEX_OUT_OF_RANGE at the read. */
GN_API gn_tensor gn_nonzero_at(const char *file, int line, gn_tensor a, int64_t bound);
#define gn_nonzero(...) gn_nonzero_at(GN_HERE, __VA_ARGS__)

/* ---- losses -------------------------------------------------------------------------------------------*/
/* logits (…,C) floats, targets (…) i32 or i64 classes: mean over all rows of -log softmax(logits)[target], 0-d */
GN_API gn_tensor gn_cross_entropy_at(const char *file, int line, gn_tensor logits, gn_tensor targets);
#define gn_cross_entropy(...) gn_cross_entropy_at(GN_HERE, __VA_ARGS__)
/* mean of (a - b)^2 over everything, 0-d */
GN_API gn_tensor gn_mse_loss_at(const char *file, int line, gn_tensor a, gn_tensor b);
#define gn_mse_loss(...) gn_mse_loss_at(GN_HERE, __VA_ARGS__)
/* Means over everything, 0-d. p in [0,1] and logits floats, target of the same shape in [0,1]; logarithms are cut
   off at -100, with slope 0 there. */
GN_API gn_tensor gn_bce_loss_at(const char *file, int line, gn_tensor p, gn_tensor target);      /* -(t log p + (1-t) log(1-p)) */
#define gn_bce_loss(...) gn_bce_loss_at(GN_HERE, __VA_ARGS__)
GN_API gn_tensor gn_bce_logits_loss_at(const char *file, int line, gn_tensor logits, gn_tensor target);   /* the same of sigmoid(logits), stable */
#define gn_bce_logits_loss(...) gn_bce_logits_loss_at(GN_HERE, __VA_ARGS__)
/* log_p (…,C), targets (…) as for cross_entropy: mean of -log_p[target]. */
GN_API gn_tensor gn_nll_loss_at(const char *file, int line, gn_tensor log_p, gn_tensor targets);
#define gn_nll_loss(...) gn_nll_loss_at(GN_HERE, __VA_ARGS__)
/* Mean over rows (…,C) of the sum of q (log q - log_p); 0 where q is 0, NaN where it is below (Kullback & Leibler 1951). */
GN_API gn_tensor gn_kl_loss_at(const char *file, int line, gn_tensor log_p, gn_tensor q);
#define gn_kl_loss(...) gn_kl_loss_at(GN_HERE, __VA_ARGS__)
/* Mean of d^2 / (2 beta) where d = |a - b| < beta, else d - beta / 2; beta >= 0 (Girshick 2015). */
GN_API gn_tensor gn_smooth_l1_loss_at(const char *file, int line, gn_tensor a, gn_tensor b, double beta);
#define gn_smooth_l1_loss(...) gn_smooth_l1_loss_at(GN_HERE, __VA_ARGS__)
/* cross_entropy with targets smoothed: (1 - s) of it and s times the mean of -log softmax over all classes (Szegedy et al. 2016). */
GN_API gn_tensor gn_cross_entropy_smooth_at(const char *file, int line, gn_tensor logits, gn_tensor targets, double smoothing);
#define gn_cross_entropy_smooth(...) gn_cross_entropy_smooth_at(GN_HERE, __VA_ARGS__)

/* ---- attention ----------------------------------------------------------------------------------------*/
typedef struct gn_attention_desc {
    bool causal;        /* query t sees keys up to length - T + t */
    double scale;       /* 0: 1 / sqrt(D) */
    gn_tensor mask;     /* bool, broadcast to (B,H,T,S): false hides; or of q's dtype: added to the scores. GN_NONE: none */
    gn_tensor length;   /* 0-d i32 or i64: keys in use, the rest of S is ignored. GN_NONE: S */
} gn_attention_desc;
/* softmax(q kT * scale + mask) v. q (B,H,T,D), k (B,G,S,D), v (B,G,S,E) = (B,H,T,E); H is a multiple of G (grouped heads).
   A query that sees nothing gives zeros. length outside [T if causal else 0, S]: GN_INDEX_OUT_OF_RANGE. desc may be NULL. (Vaswani et al. 2017;
   grouped: Ainslie et al. 2023) */
GN_API gn_tensor gn_attention_at(const char *file, int line, gn_tensor q, gn_tensor k, gn_tensor v, const gn_attention_desc *desc);
#define gn_attention(...) gn_attention_at(GN_HERE, __VA_ARGS__)
/* Rotary embedding of x (…,T,D), D even, by positions (T) or (…,T) that broadcast, i32 or i64: pairs of elements turned by
   position * base^(-2i/D). Pairs are (2i, 2i+1) when interleaved (Su et al. 2021), else (i, i + D/2). */
GN_API gn_tensor gn_rotary_at(const char *file, int line, gn_tensor x, gn_tensor positions, double base, bool interleaved);
#define gn_rotary(...) gn_rotary_at(GN_HERE, __VA_ARGS__)

/* ---- gradients and optimisers ---------------------------------------------------------------------------*/
/* d loss / d params[i] as tensors of this step; loss is one float element. A parameter that the loss does not reach is
   GN_NO_GRADIENT. */
GN_API gn_result gn_grad_at(const char *file, int line, gn_tensor loss, const gn_tensor *params, int n, gn_tensor *out_grads);
#define gn_grad(...) gn_grad_at(GN_HERE, __VA_ARGS__)

typedef struct gn_sgd_desc {
    gn_tensor lr;          /* 0-d, of the parameters' dtype */
    double momentum;       /* v = momentum v + g; p -= lr v. 0: velocity may be NULL (Sutskever et al. 2013) */
    double weight_decay;   /* g += weight_decay p */
} gn_sgd_desc;
/* Registers the new versions of params[i] and velocity[i] (states) as pending. */
GN_API gn_result gn_sgd_at(const char *file, int line, const gn_sgd_desc *desc, const gn_tensor *params, const gn_tensor *grads, const gn_tensor *velocity, int n);
#define gn_sgd(...) gn_sgd_at(GN_HERE, __VA_ARGS__)

typedef struct gn_adamw_desc {
    gn_tensor lr;          /* 0-d, of the parameters' dtype */
    gn_tensor step;        /* 0-d, of the parameters' dtype: 1, 2, 3… */
    double beta1, beta2, eps, weight_decay;   /* 0: 0.9, 0.999, 1e-8; weight_decay 0 is 0 */
} gn_adamw_desc;
/* AdamW (Loshchilov & Hutter 2019). m[i] and v[i] are states of the shape of params[i]. */
GN_API gn_result gn_adamw_at(const char *file, int line, const gn_adamw_desc *desc, const gn_tensor *params, const gn_tensor *grads, const gn_tensor *m, const gn_tensor *v, int n);
#define gn_adamw(...) gn_adamw_at(GN_HERE, __VA_ARGS__)

/* ---- meaning --------------------------------------------------------------------------------------------*/
typedef enum gn_phase_kind { GN_PHASE_UNKNOWN, GN_FORWARD, GN_PREFILL, GN_DECODE, GN_TRAINING, GN_PHASE__COUNT } gn_phase_kind;
/* Says the phase of the nodes built from here on; GN_PHASE_UNKNOWN returns to guessing. What is said wins. */
GN_API void gn_phase(gn_ctx *g, gn_phase_kind phase);

/* ---- dtypes and sizes -----------------------------------------------------------------------------------*/
GN_API size_t gn_dtype_bytes(gn_dtype d);        /* 0 for an unknown dtype */
GN_API const char *gn_dtype_name(gn_dtype d);    /* "bf16" */
GN_API float gn_f16_to_f32(uint16_t bits);
GN_API uint16_t gn_f32_to_f16(float x);          /* to nearest even */
GN_API float gn_bf16_to_f32(uint16_t bits);
GN_API uint16_t gn_f32_to_bf16(float x);         /* to nearest even */
/* Page-aligned host memory that transports and GPUs use without a further copy; NULL when there is none. */
GN_API void *gn_host_alloc(gn_ctx *g, size_t bytes);
GN_API void gn_host_free(gn_ctx *g, void *p);

/* ---- server ---------------------------------------------------------------------------------------------*/
typedef struct gn_server gn_server;

typedef struct gn_server_desc {
    const char *listen;       /* "host:port", NULL: 127.0.0.1:5556; port 0: any free port */
    const char *devices;      /* NULL: "cpu" */
    const char *key, *cert, *ca; /* PEM files of an own PKI; all NULL: a P-256 key of our own, made at first start */
    const char *url_file;     /* the URL is written here, mode 0600 */
    const char *home;         /* keys and credentials, NULL: $GENIE_HOME, else ~/.config/genie */
    uint32_t max_sessions;    /* 0: 64 */
    uint32_t threads;         /* of the CPU executor of each session, 0: all cores */
    uint64_t memory_limit;    /* bytes of tensors one session may hold, 0: 8 GiB */
    uint32_t deadline_ms;     /* longest wait for a peer that has begun a message, 0: 30,000 */
    int listen_fd;            /* a listening socket from gn_server_handover, taken over with the code in url_file; 0: a new one */
    gn_log_fn log;            /* NULL: as for a context */
    void *log_user;
} gn_server_desc;

/* Writes a line about the GPU `index` of this machine (driver, memory, compiler of kernels), or why it cannot be used and what to
   install, and returns the line's length; 0 when there is no such GPU. Index 0 always has a line. */
GN_API int gn_list_gpus(int index, char *out_text, size_t cap);
/* Opens the server and starts its threads. On failure *out_server is NULL and *out_error (may be NULL) says why. */
GN_API gn_result gn_server_open(const gn_server_desc *desc, gn_server **out_server, gn_error *out_error);
/* Waits until gn_server_stop. GN_DEVICE_LOST when a device is lost before: only another process can use that GPU again. */
GN_API gn_result gn_server_run(gn_server *s);
/* Ends every session with the cause, and returns the listening socket as a descriptor that stays open across exec, -1 if there is
   none: connections wait there until a server opens with it as listen_fd. Takes at most 2 seconds; what follows is exec or close. */
GN_API int gn_server_handover(gn_server *s);
/* Makes gn_server_run return. May be called from any thread and from a signal handler. */
GN_API void gn_server_stop(gn_server *s);
/* Stops, ends every session, frees. */
GN_API void gn_server_close(gn_server *s);
/* The URL that pairs one client: host, port, fingerprint, single-use code. A secret; valid until gn_server_close. */
GN_API const char *gn_server_url(gn_server *s);
GN_API uint16_t gn_server_port(gn_server *s);
GN_API void gn_server_stats(gn_server *s, gn_stats *out_stats);

/* ---- the op table, for tools and tests --------------------------------------------------------------------*/
typedef enum gn_op_class { GN_CLASS_LEAF, GN_CLASS_GENERATOR, GN_CLASS_SCALAR, GN_CLASS_REDUCE, GN_CLASS_MOVE, GN_CLASS_STRUCTURED } gn_op_class;

typedef struct gn_op_info {
    const char *name;          /* "gelu_tanh" */
    uint16_t wire;             /* pinned id */
    gn_op_class kind;
    int arity;                 /* inputs; -1: one or more */
    uint32_t dtypes;           /* bit d set: input dtype d is taken */
    bool compares;             /* the result is bool */
    bool has_gradient;
    double tolerance;          /* allowed error in units of the dtype's epsilon, times the magnitude of the sum of absolute terms */
    const char *text;          /* a scalar op's expression over a, b, c; NULL for others */
} gn_op_info;

GN_API int gn_op_count(void);
GN_API gn_result gn_get_op(int index, gn_op_info *out_info);

#ifdef __cplusplus
}
#endif
#endif /* GENIE_H */
/* >>ext ============================================================================================
 * What genie_net.c and genie_cuda.c are written against. A program does not need it. */
#if defined(GENIE_EXT) || defined(GENIE_IMPLEMENTATION)
#ifndef GENIE_EXT_INCLUDED
#define GENIE_EXT_INCLUDED
#ifdef __cplusplus
extern "C" {
#endif

/* ---- fault: an error below the public API, before it has a place in the user's source ---- */
#define GN_NO_NODE UINT32_MAX
typedef struct gn_fault {
    gn_result result;
    uint32_t node;       /* index into the part's nodes, GN_NO_NODE if none */
    char text[400];
} gn_fault;
/* Fills *f (may be NULL) and returns r. */
GN_API gn_result gn_fail(gn_fault *f, gn_result r, const char *format, ...);

/* ---- part: what one device is asked to run, in topological order; an immutable logical graph ---- */
typedef enum gn_leaf_kind {
    GN_LEAF_NONE,        /* an op */
    GN_LEAF_DATA,        /* bytes given with each run */
    GN_LEAF_VALUE,       /* a value kept by an earlier run, named with each run */
    GN_LEAF_WEIGHT,      /* a slot, constant */
    GN_LEAF_STATE,       /* a slot, its version when the run begins */
    GN_LEAF__COUNT
} gn_leaf_kind;

typedef struct gn_part_node {
    uint16_t op;         /* index into the op table: gn_get_op(op - 1, …) */
    uint8_t dtype;       /* gn_dtype of the result */
    uint8_t leaf;        /* gn_leaf_kind */
    uint8_t rank, phase;
    uint16_t n_attrs;
    uint32_t n_ins;
    uint32_t ins;        /* first input: part->ins[ins …], each smaller than this node's own index */
    uint32_t attrs;      /* first word: part->attrs[attrs …] */
    uint32_t dims;       /* first dim: part->dims[dims …] */
    uint32_t slot, gen;  /* of a weight or state */
    uint32_t arg;        /* ordinal of a DATA or VALUE leaf in part->args */
} gn_part_node;

typedef struct gn_part_update { uint32_t slot, gen, node; } gn_part_update;

typedef struct gn_part {
    uint64_t hash;                     /* of everything below, equal on every machine */
    uint32_t n_nodes, n_ins, n_attrs, n_dims, n_args, n_outs, n_updates;
    const gn_part_node *nodes;
    const uint32_t *ins;
    const int64_t *attrs;
    const int64_t *dims;
    const uint32_t *args;              /* node of each argument */
    const uint32_t *outs;              /* node of each output */
    const gn_part_update *updates;     /* states that become the value of a node when the run ends well */
} gn_part;

/* ---- layout: how a part runs on one device, by the same code for every executor: which nodes are views, which run in one
 * loop, where each result lies in one block of memory. A pure function of the part. ---- */
/* Strided memory. */
typedef struct gn_view {
    char *p;
    gn_dtype dtype;
    int32_t rank;
    int64_t dims[GN_MAX_RANK], strides[GN_MAX_RANK];   /* strides in elements */
    int64_t offset;        /* bytes from the base's memory, while p is not known */
} gn_view;

typedef enum gn_place {
    GN_PLACE_NONE,        /* inside a fused loop, or a constant that is filled in there */
    GN_PLACE_ARG, GN_PLACE_SLOT,
    GN_PLACE_BLOCK,       /* in the plan's block, at `offset` */
    GN_PLACE_OWN,         /* memory of its own that becomes the state's */
    GN_PLACE_INPLACE      /* the state's own memory, written in place (kv_append) */
} gn_place;

typedef struct gn_lay {
    gn_view view;          /* of the base's memory */
    uint32_t base;         /* node that owns the memory */
    uint32_t group;        /* node whose loop computes a scalar op */
    uint32_t last;         /* of a base: last kernel that reads it, n_nodes: lives to the end */
    uint32_t own;          /* PLACE_OWN: index of the update; PLACE_INPLACE: the state's leaf */
    size_t offset;         /* PLACE_BLOCK: bytes */
    uint8_t place;
    bool kernel;           /* runs as a kernel of its own, or leads a loop */
} gn_lay;

typedef struct gn_load { gn_view view; uint32_t base; uint16_t reg; uint8_t dtype; bool constant; double value; } gn_load;
typedef struct gn_instr { uint32_t node; uint16_t op, dst, src[3]; uint8_t in_dtype, out_dtype; double p[2]; } gn_instr;

typedef struct gn_kernel_step {
    uint32_t node;         /* whose result it writes */
    uint32_t load, n_loads, instr, n_instrs;   /* a fused loop; n_instrs 0: a structured kernel */
    uint16_t regs, out;    /* registers of the loop; the one that is stored */
} gn_kernel_step;

typedef enum gn_update_how { GN_UPDATE_SWAP, GN_UPDATE_COPY, GN_UPDATE_INPLACE } gn_update_how;

typedef struct gn_layout {
    const gn_part *part;
    gn_lay *lay;
    uint8_t *update_how;
    uint32_t *scratch;     /* per node, several uses in turn */
    gn_kernel_step *steps;    /* in the order they run */
    gn_load *loads;
    gn_instr *instrs;
    size_t n_steps, n_loads, n_instrs, cap_steps, cap_loads, cap_instrs;
    size_t block_bytes;
    uint32_t fused, view_copies, state_copies;
    uint64_t state_copy_bytes;
} gn_layout;

/* Fills *out_layout, which keeps a pointer to the part. GN_OUT_OF_MEMORY. */
GN_API gn_result gn_layout_make(const gn_part *part, gn_layout *out_layout, gn_fault *f);
GN_API void gn_layout_deinit(gn_layout *l);

/* ---- executor: a device. Slots of one executor are called by one thread at a time. ---- */
typedef struct gn_slot_desc {
    uint32_t slot, gen;
    gn_leaf_kind kind;                 /* GN_LEAF_WEIGHT or GN_LEAF_STATE */
    gn_dtype dtype;
    gn_shape shape;
    const void *host;                  /* first value; NULL: zeros (states). Weights: stays valid and unchanged until the slot is dropped */
    size_t bytes;
} gn_slot_desc;

typedef struct gn_arg { const void *host; size_t bytes; uint64_t value; } gn_arg;   /* DATA: host, bytes; VALUE: value */
typedef struct gn_out { void *host; size_t bytes; uint64_t keep; } gn_out;          /* host NULL: not copied; keep 0: not kept */

typedef struct gn_exec_i {
    void (*close)(void *self);
    /* May upload; may block until the deadline. */
    gn_result (*slot_put)(void *self, const gn_slot_desc *d, gn_fault *f);
    gn_result (*slot_drop)(void *self, uint32_t slot, uint32_t gen);
    /* The part is copied or kept as needed: it lives until plan_destroy. */
    gn_result (*plan_make)(void *self, const gn_part *part, void **out_plan, gn_fault *f);
    void (*plan_destroy)(void *self, void *plan);
    /* Starts a run. Argument bytes are consumed before it returns; out hosts are written by the time wait returns. All
       state updates of a run happen, or none. Ids of kept values are chosen by the caller, rising, never reused. */
    gn_result (*submit)(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket, gn_fault *f);
    /* Blocks until that run and all before it have ended; their first error. */
    gn_result (*wait)(void *self, uint64_t ticket, gn_fault *f);
    /* Kept values with id < below are no longer needed. */
    void (*values_release)(void *self, uint64_t below);
    void (*describe)(void *self, gn_device_info *out_info);
    void *(*host_alloc)(void *self, size_t bytes);     /* NULL slot: plain memory */
    void (*host_free)(void *self, void *p);
} gn_exec_i;

typedef struct gn_exec { const gn_exec_i *i; void *self; } gn_exec;

typedef struct gn_exec_desc {
    const char *device;      /* "cpu:0", "cuda:1" */
    uint32_t threads;
    uint64_t memory_limit;   /* bytes, 0: none */
    uint32_t deadline_ms;
    bool strict;
    gn_stats *stats;         /* counters to add to; never NULL */
} gn_exec_desc;

/* ---- transport: an ordered byte stream to one peer ---- */
typedef struct gn_link_info {
    char peer[96];           /* "127.0.0.1:5556" */
    char tls[32];            /* "TLSv1.2"; "" for an unencrypted one */
    char cipher[64];
    uint64_t bytes_up, bytes_down;   /* at the socket */
} gn_link_info;

typedef struct gn_transport_i {
    /* Sends all n bytes or fails (GN_TIMEOUT, GN_DISCONNECTED, GN_TLS_FAILED). Never raises SIGPIPE. One sender at a time. */
    gn_result (*send)(void *self, const void *data, size_t n, uint32_t timeout_ms);
    /* Receives 1 to max bytes. One receiver at a time, which may be another thread than the sender unless the transport says not. */
    gn_result (*recv)(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms);
    /* From any thread: a blocked send or recv returns GN_DISCONNECTED soon. */
    void (*interrupt)(void *self);
    void (*close)(void *self);
    void (*info)(void *self, gn_link_info *out_info);
    /* Client: the bytes that prove who we are (at most 256), put into HELLO. Server: NULL slot. */
    size_t (*auth)(void *self, uint8_t out[256]);
    /* Client: the server's answer to a pairing; stores the credential. */
    gn_result (*granted)(void *self, const uint8_t *grant, size_t n);
} gn_transport_i;

typedef struct gn_transport { const gn_transport_i *i; void *self; } gn_transport;

/* ---- network: what genie_net.c provides ---- */
typedef struct gn_net_desc { const char *home; uint32_t timeout_ms; gn_log_fn log; void *log_user; } gn_net_desc;

typedef struct gn_net_i {
    /* Connects and shakes hands. `where` is a URL, "host:port", "@FILE" or "-"; *out_device is the device asked for on that
       server ("" for its first). GN_UNREACHABLE, GN_TIMEOUT, GN_BAD_PIN, GN_BAD_CREDENTIAL, GN_TLS_FAILED, GN_BAD_ARGUMENT. */
    gn_result (*connect)(const char *where, const gn_net_desc *d, gn_transport *out, char out_device[64], gn_fault *f);
    /* GN_PORT_IN_USE, GN_INSECURE, GN_IO_ERROR, GN_BAD_ARGUMENT */
    gn_result (*listen)(const gn_server_desc *d, void **out_listener, gn_fault *f);
    /* Waits at most timeout_ms for a connection (GN_TIMEOUT: none). TCP only; the handshake is `handshake`. */
    gn_result (*accept)(void *listener, uint32_t timeout_ms, gn_transport *out, gn_fault *f);
    /* In the session's own thread. */
    gn_result (*handshake)(void *listener, gn_transport t, uint32_t timeout_ms, gn_fault *f);
    /* Checks a HELLO's proof; *out_tenant names the client's namespace; a pairing returns the bytes to grant. Thread-safe. */
    gn_result (*authenticate)(void *listener, gn_transport t, const uint8_t *auth, size_t n, char out_tenant[64], uint8_t out_grant[256], size_t *out_grant_n);
    const char *(*url)(void *listener);
    uint16_t (*port)(void *listener);
    void (*unlisten)(void *listener);
    /* The listening socket as a descriptor that stays open across exec, -1 if that fails. */
    int (*handover)(void *listener);
    /* An unencrypted, unauthenticated transport over an open stream socket, which it owns: for tests. */
    gn_result (*plain)(int fd, gn_transport *out);
    void (*sha256)(const void *data, size_t n, uint8_t out[32]);
    /* Packs n raw bytes of elements of elem bytes into dst (capacity cap >= n). Returns bytes stored and the codec; when
       packing does not pay it returns 0 with codec 0 and the caller sends the raw bytes. */
    size_t (*pack)(const void *src, size_t n, int elem, void *dst, size_t cap, uint8_t *out_codec);
    /* Unpacks to exactly raw_n bytes; anything else is GN_BAD_MESSAGE. Allocation is bounded by raw_n. */
    gn_result (*unpack)(uint8_t codec, const void *src, size_t n, int elem, void *dst, size_t raw_n);
    uint32_t codecs;         /* bit c set: codec c is known; codec 0 (raw) is always */
} gn_net_i;

/* ---- the ops that are not scalar rows: each executor that knows them all expands this list. The classes and dtypes of the last
 * columns are named in >>ops. X(NAME, name, wire, class, least inputs, most inputs, words of attributes (-1: by shape rule), dtypes of input 0, tolerance, has gradient) */
#define GN_STRUCTURED_OPS(X)                                                                             \
    X(WHERE,          where,          0x30, SCALAR,     3, 3,  0, GN__ALL,    1,  true)                  \
    X(CAST,           cast,           0x31, SCALAR,     1, 1,  1, GN__ALL,    1,  true)   /* dtype */    \
    X(SUM,            sum,            0x38, REDUCE,     1, 1,  2, GN__ALL,    2,  true)   /* axes as bits, keep */ \
    X(MEAN,           mean,           0x39, REDUCE,     1, 1,  2, GN__FLOATS, 2,  true)                  \
    X(MAX,            max,            0x3a, REDUCE,     1, 1,  2, GN__ALL,    0,  true)                  \
    X(MIN,            min,            0x3b, REDUCE,     1, 1,  2, GN__ALL,    0,  true)                  \
    X(ARGMAX,         argmax,         0x3c, REDUCE,     1, 1,  2, GN__ALL,    0,  false)                 \
    X(SOFTMAX,        softmax,        0x40, STRUCTURED, 1, 1,  1, GN__FLOATS, 16, true)   /* axis */     \
    X(LOG_SOFTMAX,    log_softmax,    0x41, STRUCTURED, 1, 1,  1, GN__FLOATS, 16, true)   /* axis */     \
    X(LAYERNORM,      layernorm,      0x42, STRUCTURED, 1, 3,  2, GN__FLOATS, 8,  true)   /* eps as f64 word, bits: 1 gain, 2 bias */ \
    X(MATMUL,         matmul,         0x48, STRUCTURED, 2, 2,  0, GN__NUMBERS, 4, true)                  \
    X(LINEAR,         linear,         0x49, STRUCTURED, 2, 3,  0, GN__NUMBERS, 4, true)                  \
    X(RESHAPE,        reshape,        0x50, MOVE,       1, 1, -1, GN__ALL,    0,  true)   /* dims */     \
    X(PERMUTE,        permute,        0x51, MOVE,       1, 1, -1, GN__ALL,    0,  true)   /* axes */     \
    X(SLICE,          slice,          0x52, MOVE,       1, 1,  4, GN__ALL,    0,  true)   /* axis, begin, end, step */ \
    X(SLICE_PUT,      slice_put,      0x53, MOVE,       2, 2,  4, GN__ALL,    0,  true)                  \
    X(CONCAT,         concat,         0x54, MOVE,       1, 255, 1, GN__ALL,   0,  true)   /* axis */     \
    X(BROADCAST,      broadcast,      0x55, MOVE,       1, 1, -1, GN__ALL,    0,  true)   /* dims */     \
    X(GATHER,         gather,         0x58, STRUCTURED, 2, 2,  1, GN__ALL,    0,  true)   /* axis */     \
    X(EMBEDDING,      embedding,      0x59, STRUCTURED, 2, 2,  0, GN__ALL,    0,  true)                  \
    X(ONE_HOT,        one_hot,        0x5a, STRUCTURED, 1, 1,  2, GN__INDEX,  0,  false)  /* depth, dtype */ \
    X(SCATTER_ADD,    scatter_add,    0x5b, STRUCTURED, 3, 3,  1, GN__NUMBERS, 4, true)   /* axis */     \
    X(CROSS_ENTROPY,  cross_entropy,  0x60, STRUCTURED, 2, 2,  0, GN__FLOATS, 8,  true)                  \
    X(MSE_LOSS,       mse_loss,       0x61, STRUCTURED, 2, 2,  0, GN__FLOATS, 8,  true)                  \
    X(ATTENTION,      attention,      0x62, STRUCTURED, 3, 5,  2, GN__FLOATS, 16, true)   /* bits: 1 causal, 2 mask, 4 length; scale as f64 word */ \
    X(KV_APPEND,      kv_append,      0x63, STRUCTURED, 3, 3,  0, GN__ALL,    0,  true)                  \
    X(ASSIGN,         assign,         0x64, MOVE,       2, 2,  0, GN__ALL,    0,  false)                 \
    X(PROD,           prod,           0xc0, REDUCE,     1, 1,  2, GN__ALL,    4,  true)   /* axes as bits, keep */ \
    X(ARGMIN,         argmin,         0xc1, REDUCE,     1, 1,  2, GN__ALL,    0,  false)                 \
    X(CUMSUM,         cumsum,         0xc2, STRUCTURED, 1, 1,  1, GN__ALL,    2,  true)   /* axis */     \
    X(CUMPROD,        cumprod,        0xc3, STRUCTURED, 1, 1,  1, GN__ALL,    4,  true)   /* axis */     \
    X(CUMMAX,         cummax,         0xc4, STRUCTURED, 1, 1,  1, GN__ALL,    0,  true)   /* axis */     \
    X(ARGSORT,        argsort,        0xc5, STRUCTURED, 1, 1,  2, GN__ALL,    0,  false)  /* axis, descending */ \
    X(SCATTER,        scatter,        0xc6, STRUCTURED, 3, 3,  1, GN__ALL,    0,  true)   /* axis */     \
    X(SCATTER_MAX,    scatter_max,    0xc7, STRUCTURED, 3, 3,  1, GN__ALL,    0,  true)   /* axis */     \
    X(NONZERO,        nonzero,        0xc8, STRUCTURED, 1, 1,  1, GN__ALL,    0,  false)  /* bound */    \
    X(FULL,           full,           0x08, GENERATOR,  0, 0, -1, 0,          0,  false)  /* dtype, f64 word, dims */ \
    X(ARANGE,         arange,         0x09, GENERATOR,  0, 0,  4, 0,          1,  false)  /* dtype, n, start and step as f64 words */ \
    X(RANDOM_UNIFORM, random_uniform, 0x0a, GENERATOR,  1, 1, -1, GN__BIT(GN_I64), 0, false) /* dtype, key, dims; input: running counter */ \
    X(RANDOM_NORMAL,  random_normal,  0x0b, GENERATOR,  1, 1, -1, GN__BIT(GN_I64), 4, false)

/* ---- driver: what genie_cuda.c provides ---- */
typedef struct gn_driver_i {
    const char *prefix;      /* "cuda": serves devices "cuda:N" */
    gn_result (*open)(const gn_exec_desc *d, gn_exec *out, gn_fault *f);
    int (*list)(int index, char *out_text, size_t cap);   /* writes a line about device `index`; 0 when there is none */
} gn_driver_i;

/* Called once, before any context is opened, by the optional units' own initialisers. */
GN_API void gn_register_net(const gn_net_i *net);
GN_API void gn_register_driver(const gn_driver_i *driver);

/* The generic builder that every public op uses and the server re-infers with: op by wire id. */
GN_API gn_tensor gn_apply_at(const char *file, int line, gn_ctx *g, uint16_t wire, const gn_tensor *in, int n_in, const int64_t *attrs, int n_attrs);
#define gn_apply(...) gn_apply_at(GN_HERE, __VA_ARGS__)

/* Serves one transport on a thread of its own, as the tenant named; takes ownership. For tests. */
GN_API gn_result gn_server_attach(gn_server *s, gn_transport t, const char *tenant);
/* Opens a context over an open transport; takes ownership. */
GN_API gn_ctx *gn_open_transport(const gn_desc *desc, gn_transport t, const char *device);

/* Services of the core for the optional units. */
GN_API void *gn_alloc(size_t bytes);             /* GN_MALLOC; not zeroed; NULL when there is none */
GN_API void *gn_resize(void *p, size_t bytes);
GN_API void gn_free(void *p);
GN_API uint64_t gn_now_us(void);                 /* monotonic */
GN_API void gn_logf(gn_log_fn log, void *user, gn_log_level level, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif /* GENIE_EXT_INCLUDED */
#endif /* GENIE_EXT || GENIE_IMPLEMENTATION */

#ifdef GENIE_IMPLEMENTATION
#ifndef GENIE_IMPLEMENTED
#define GENIE_IMPLEMENTED

/* >>config ========================================================================================= */
#ifdef __cplusplus
#error "the implementation of genie.h is C11: compile the unit that defines GENIE_IMPLEMENTATION as C"
#endif
#ifdef __FAST_MATH__
#error "genie.h does not work under -ffast-math: NaN, infinities and the order of sums are part of its results"
#endif

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#endif

#ifndef GN_MALLOC               /* override all three or none; realloc(NULL, n) and free(NULL) must work */
#define GN_MALLOC(n) malloc(n)
#define GN_REALLOC(p, n) realloc(p, n)
#define GN_FREE(p) free(p)
#endif

/* A broken promise of Genie's own; never used on data from a user, a peer or a file. */
#ifndef GN_ASSERT
#define GN_ASSERT(c) ((c) ? (void)0 : gn__assert_failed(#c, __LINE__))
#endif

#if defined(__GNUC__) || defined(__clang__)
#define GN__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define GN__LIKELY(c) __builtin_expect(!!(c), 1)
#define GN__UNUSED __attribute__((unused))
#define GN__INLINE static inline __attribute__((always_inline, unused))
#define GN__THREAD_LOCAL __thread
#else
#define GN__PRINTF(f, a)
#define GN__LIKELY(c) (c)
#define GN__UNUSED
#define GN__INLINE static inline
#define GN__THREAD_LOCAL _Thread_local
#endif

/* Scalar bodies round after every operation: a contraction into fma would make hosts differ. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

/* Around code that is not on the path of a tile or of a step: compiled fast and small rather than to be fast, since this file
 * has to compile in seconds. */
#if defined(__clang__)
#define GN__COLD_BEGIN _Pragma("clang attribute push(__attribute__((minsize)), apply_to = function)")
#define GN__COLD_END _Pragma("clang attribute pop")
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define GN__COLD_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\")")
#define GN__COLD_END _Pragma("GCC pop_options")
#else
#define GN__COLD_BEGIN
#define GN__COLD_END
#endif

#define GN__MIN(a, b) ((a) < (b) ? (a) : (b))
#define GN__MAX(a, b) ((a) > (b) ? (a) : (b))
#define GN__LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* >>structs ======================================================================================== */

typedef struct gn__buf { uint8_t *p; size_t n, cap; bool failed; } gn__buf;   /* a growing byte writer */
typedef struct gn__rd { const uint8_t *p, *end; bool bad; } gn__rd;           /* a bounded byte reader */

typedef struct gn__type { gn_dtype dtype; gn_shape shape; } gn__type;

/* >>base =========================================================================================== */

static void gn__assert_failed(const char *what, int line) {
    fprintf(stderr, "genie.h:%d: a defect in Genie: %s\n", line, what);
    abort();
}

void *gn_alloc(size_t bytes) { return GN_MALLOC(bytes ? bytes : 1); }
void *gn_resize(void *p, size_t bytes) { return GN_REALLOC(p, bytes ? bytes : 1); }
void gn_free(void *p) { GN_FREE(p); }

static void *gn__alloc_zero(size_t bytes) {
    void *p = gn_alloc(bytes);
    if (p) memset(p, 0, bytes ? bytes : 1);
    return p;
}

static void gn__copy_text(char *dst, size_t cap, const char *src) {
    size_t n = src ? strlen(src) : 0;
    if (n >= cap) n = cap - 1;
    if (n) memcpy(dst, src, n);
    dst[n] = 0;
}

GN__PRINTF(3, 0) static void gn__fail_v(gn_fault *f, gn_result r, const char *format, va_list args) {
    if (!f) return;
    f->result = r;
    f->node = GN_NO_NODE;
    vsnprintf(f->text, sizeof f->text, format, args);
}

GN__PRINTF(3, 4) gn_result gn_fail(gn_fault *f, gn_result r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    gn__fail_v(f, r, format, args);
    va_end(args);
    return r;
}

GN__PRINTF(4, 5) void gn_logf(gn_log_fn log, void *user, gn_log_level level, const char *format, ...) {
    static const char *const names[] = { "", "error", "warning", "info", "debug" };
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (log) log(user, level, text);
    else if (level <= GN_LOG_WARN && getenv("GENIE_LOG")) fprintf(stderr, "genie: %s: %s\n", names[level], text);
}

static const struct { gn_result r; const char *name, *text; } gn__results[] = {
#define GN__X(name, number, text) { GN_##name, "GN_" #name, text },
    GN_RESULTS(GN__X)
#undef GN__X
};

static const char *gn__result_name(gn_result r) {
    for (size_t i = 0; i < GN__LENGTH(gn__results); i++)
        if (gn__results[i].r == r) return gn__results[i].name;
    return "GN_UNKNOWN_RESULT";
}

static const char *gn__result_text(gn_result r) {
    for (size_t i = 0; i < GN__LENGTH(gn__results); i++)
        if (gn__results[i].r == r) return gn__results[i].text;
    return "a result of a newer version";
}

/* Makes room for `want` elements of `size` bytes in *p, doubling; false when there is no memory. */
static bool gn__reserve(void **p, size_t *cap, size_t want, size_t size) {
    if (want <= *cap) return true;
    size_t next = *cap ? *cap : 16;
    while (next < want) {
        if (next > SIZE_MAX / 2) return false;
        next *= 2;
    }
    if (next > SIZE_MAX / size) return false;
    void *q = gn_resize(*p, next * size);
    if (!q) return false;
    *p = q;
    *cap = next;
    return true;
}

/* ---- bytes ---- */

static void gn__put_bytes(gn__buf *b, const void *src, size_t n) {
    void *p = b->p;
    if (b->failed || n > SIZE_MAX - b->n || !gn__reserve(&p, &b->cap, b->n + n, 1)) { b->failed = true; return; }
    b->p = (uint8_t *)p;
    if (n) memcpy(b->p + b->n, src, n);
    b->n += n;
}

static void gn__put_le(gn__buf *b, uint64_t v, int bytes) {
    uint8_t t[8];
    for (int i = 0; i < bytes; i++) t[i] = (uint8_t)(v >> (8 * i));
    gn__put_bytes(b, t, (size_t)bytes);
}

static void gn__put_u8(gn__buf *b, uint8_t v) { gn__put_le(b, v, 1); }
static void gn__put_u16(gn__buf *b, uint16_t v) { gn__put_le(b, v, 2); }
static void gn__put_u32(gn__buf *b, uint32_t v) { gn__put_le(b, v, 4); }
static void gn__put_u64(gn__buf *b, uint64_t v) { gn__put_le(b, v, 8); }
static void gn__buf_reset(gn__buf *b) { b->n = 0; b->failed = false; }
static void gn__buf_deinit(gn__buf *b) { gn_free(b->p); memset(b, 0, sizeof *b); }

static const uint8_t *gn__get_view(gn__rd *r, size_t n) {
    if (r->bad || n > (size_t)(r->end - r->p)) { r->bad = true; return NULL; }
    const uint8_t *p = r->p;
    r->p += n;
    return p;
}

static void gn__get_bytes(gn__rd *r, void *dst, size_t n) {
    const uint8_t *p = gn__get_view(r, n);
    if (p && n) memcpy(dst, p, n);
    else if (n) memset(dst, 0, n);
}

static uint64_t gn__get_le(gn__rd *r, size_t bytes) {
    const uint8_t *p = gn__get_view(r, bytes);
    uint64_t v = 0;
    for (size_t i = 0; p && i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint8_t gn__get_u8(gn__rd *r) { return (uint8_t)gn__get_le(r, 1); }
static uint16_t gn__get_u16(gn__rd *r) { return (uint16_t)gn__get_le(r, 2); }
static uint32_t gn__get_u32(gn__rd *r) { return (uint32_t)gn__get_le(r, 4); }
static uint64_t gn__get_u64(gn__rd *r) { return gn__get_le(r, 8); }

/* ---- hash: not cryptographic; every match is confirmed by comparison. Equal on every host ---- */

GN__INLINE uint64_t gn__mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static uint64_t gn__hash_bytes(const void *data, size_t n, uint64_t seed) {
    gn__rd r = { (const uint8_t *)data, (const uint8_t *)data + n, false };
    uint64_t h = gn__mix(seed, n);
    for (; (size_t)(r.end - r.p) >= 8;) h = gn__mix(h, gn__get_u64(&r));
    return gn__mix(h, gn__get_le(&r, (size_t)(r.end - r.p)));
}

/* >>platform ======================================================================================= */

#ifdef _WIN32
typedef SRWLOCK gn__mutex;
#define GN__MUTEX_INIT SRWLOCK_INIT
typedef CONDITION_VARIABLE gn__cond;
static void gn__mutex_init(gn__mutex *m) { InitializeSRWLock(m); }
static void gn__mutex_deinit(gn__mutex *m) { (void)m; }
static void gn__mutex_lock(gn__mutex *m) { AcquireSRWLockExclusive(m); }
static void gn__mutex_unlock(gn__mutex *m) { ReleaseSRWLockExclusive(m); }
static void gn__cond_init(gn__cond *c) { InitializeConditionVariable(c); }
static void gn__cond_deinit(gn__cond *c) { (void)c; }
static void gn__cond_wait(gn__cond *c, gn__mutex *m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
GN__UNUSED static bool gn__cond_wait_ms(gn__cond *c, gn__mutex *m, uint32_t ms) { return SleepConditionVariableSRW(c, m, ms, 0) != 0; }
GN__UNUSED static void gn__cond_signal(gn__cond *c) { WakeConditionVariable(c); }
static void gn__cond_broadcast(gn__cond *c) { WakeAllConditionVariable(c); }
typedef struct gn__thread { HANDLE h; } gn__thread;
#else
typedef pthread_mutex_t gn__mutex;
#define GN__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
typedef pthread_cond_t gn__cond;
static void gn__mutex_init(gn__mutex *m) { pthread_mutex_init(m, NULL); }
static void gn__mutex_deinit(gn__mutex *m) { pthread_mutex_destroy(m); }
static void gn__mutex_lock(gn__mutex *m) { pthread_mutex_lock(m); }
static void gn__mutex_unlock(gn__mutex *m) { pthread_mutex_unlock(m); }
static void gn__cond_init(gn__cond *c) { pthread_cond_init(c, NULL); }
static void gn__cond_deinit(gn__cond *c) { pthread_cond_destroy(c); }
static void gn__cond_wait(gn__cond *c, gn__mutex *m) { pthread_cond_wait(c, m); }
/* False when ms milliseconds passed without a signal. */
GN__UNUSED static bool gn__cond_wait_ms(gn__cond *c, gn__mutex *m, uint32_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
    return pthread_cond_timedwait(c, m, &t) == 0;
}
GN__UNUSED static void gn__cond_signal(gn__cond *c) { pthread_cond_signal(c); }
static void gn__cond_broadcast(gn__cond *c) { pthread_cond_broadcast(c); }
typedef struct gn__thread { pthread_t h; } gn__thread;
#endif

typedef struct gn__thread_start_args { void (*fn)(void *); void *arg; } gn__thread_start_args;

static void gn__thread_enter(void *p) {
    gn__thread_start_args a = *(gn__thread_start_args *)p;
    gn_free(p);
    a.fn(a.arg);
}

#ifdef _WIN32
static DWORD WINAPI gn__thread_main(void *p) { gn__thread_enter(p); return 0; }
#else
static void *gn__thread_main(void *p) { gn__thread_enter(p); return NULL; }
#endif

static bool gn__thread_start(gn__thread *t, void (*fn)(void *), void *arg) {
    gn__thread_start_args *a = (gn__thread_start_args *)gn_alloc(sizeof *a);
    if (!a) return false;
    a->fn = fn;
    a->arg = arg;
#ifdef _WIN32
    t->h = CreateThread(NULL, 0, gn__thread_main, a, 0, NULL);
    bool ok = t->h != NULL;
#else
    bool ok = pthread_create(&t->h, NULL, gn__thread_main, a) == 0;
#endif
    if (!ok) gn_free(a);
    return ok;
}

static void gn__thread_join(gn__thread *t) {
#ifdef _WIN32
    WaitForSingleObject(t->h, INFINITE);
    CloseHandle(t->h);
#else
    pthread_join(t->h, NULL);
#endif
}

static uint32_t gn__core_count(void) {
#ifdef _WIN32
    SYSTEM_INFO s;
    GetSystemInfo(&s);
    return s.dwNumberOfProcessors ? (uint32_t)s.dwNumberOfProcessors : 1;
#else
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
#endif
}

uint64_t gn_now_us(void) {
#ifdef _WIN32
    LARGE_INTEGER f, c;
    QueryPerformanceFrequency(&f);
    QueryPerformanceCounter(&c);
    return (uint64_t)(c.QuadPart / f.QuadPart) * 1000000u + (uint64_t)(c.QuadPart % f.QuadPart) * 1000000u / (uint64_t)f.QuadPart;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
#endif
}

/* Counters that several threads add to. */
#if defined(__GNUC__) || defined(__clang__)
typedef uint64_t gn__atomic;
GN__UNUSED static uint64_t gn__atomic_load(const gn__atomic *a) { return __atomic_load_n(a, __ATOMIC_ACQUIRE); }
GN__UNUSED static void gn__atomic_store(gn__atomic *a, uint64_t v) { __atomic_store_n(a, v, __ATOMIC_RELEASE); }
GN__UNUSED static uint64_t gn__atomic_add(gn__atomic *a, uint64_t v) { return __atomic_add_fetch(a, v, __ATOMIC_ACQ_REL); }
#elif defined(_WIN32)
typedef volatile LONG64 gn__atomic;
static uint64_t gn__atomic_load(const gn__atomic *a) { return (uint64_t)InterlockedCompareExchange64((LONG64 *)a, 0, 0); }
static void gn__atomic_store(gn__atomic *a, uint64_t v) { InterlockedExchange64((LONG64 *)a, (LONG64)v); }
static uint64_t gn__atomic_add(gn__atomic *a, uint64_t v) { return (uint64_t)InterlockedAdd64((LONG64 *)a, (LONG64)v); }
#else
#error "genie.h needs 64-bit atomics: GCC, clang or MSVC"
#endif

/* Units registered before the first context; read-only afterwards. */
static const gn_net_i *gn__net;
static const gn_driver_i *gn__driver;

/* ---- instruction paths of the CPU executor: kernels are compiled for each, the host's best is picked at run time ---- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define GN__X86 1
#define GN__TARGET_AVX2 __attribute__((target("avx2,fma")))
#if defined(__clang__)
#define GN__TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"), min_vector_width(512)))
#else
#define GN__TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
#endif
#else
#define GN__X86 0
#endif
#define GN__TARGET_BASE

/* Tiles of which faster paths exist, or which are rare, are compiled without vectorisation: this file has to compile in seconds. */
#if GN__X86 && !defined(__clang__)
#define GN__TARGET_SMALL __attribute__((optimize("O1")))
#else
#define GN__TARGET_SMALL
#endif

typedef enum gn__isa { GN__ISA_BASE, GN__ISA_AVX2, GN__ISA_AVX512, GN__ISA__COUNT } gn__isa;
static const char *const gn__isa_names[GN__ISA__COUNT] = { "base", "avx2", "avx512" };

/* $GENIE_ISA=base|avx2 lowers it. */
static gn__isa gn__isa_pick(void) {
#if GN__X86
    const char *want = getenv("GENIE_ISA");
    int most = want && strcmp(want, "base") == 0 ? GN__ISA_BASE : want && strcmp(want, "avx2") == 0 ? GN__ISA_AVX2 : GN__ISA_AVX512;
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (most >= GN__ISA_AVX512 && avx512 && avx2) return GN__ISA_AVX512;
    if (most >= GN__ISA_AVX2 && avx2) return GN__ISA_AVX2;
#endif
    return GN__ISA_BASE;
}

/* ---- thread pool: one caller at a time; work is split by index range, so results never depend on the number of threads ---- */

typedef void (*gn__job_fn)(void *arg, int64_t begin, int64_t end);

/* A core that sleeps wakes late: whoever waits looks for this long before it blocks. */
enum { GN__POOL_SPIN_US = 50 };

typedef struct gn__pool {
    gn__mutex lock;
    gn__cond wake, done;
    gn__thread *threads;
    uint32_t n_threads;           /* without the caller */
    uint32_t asleep;
    gn__isa isa;                  /* what kernels that run here are compiled for */
    gn__atomic round, busy, quit; /* rounds begun; threads inside the current one */
    bool open;                    /* the current round may be joined */
    gn__job_fn fn;
    void *arg;
    gn__atomic next;
    int64_t total, grain;
} gn__pool;

GN__INLINE void gn__pause(void) {
#if GN__X86
    __builtin_ia32_pause();
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
    __asm__ volatile("yield");
#endif
}

/* Looks at *a until it is no longer `old`, at most GN__POOL_SPIN_US. */
static bool gn__spin_while(const gn__atomic *a, uint64_t old) {
    for (uint64_t end = gn_now_us() + GN__POOL_SPIN_US;;) {
        for (int i = 0; i < 32; i++, gn__pause())
            if (gn__atomic_load(a) != old) return true;
        if (gn_now_us() >= end) return false;
    }
}

/* Takes ranges until none is left. */
static void gn__pool_drain(gn__pool *p, gn__job_fn fn, void *arg, int64_t total, int64_t grain) {
    for (;;) {
        int64_t begin = (int64_t)gn__atomic_add(&p->next, (uint64_t)grain) - grain;
        if (begin >= total) return;
        fn(arg, begin, GN__MIN(begin + grain, total));
    }
}

static void gn__pool_main(void *arg) {
    gn__pool *p = (gn__pool *)arg;
    for (uint64_t seen = 0;;) {
        bool ready = gn__spin_while(&p->round, seen);
        gn__mutex_lock(&p->lock);
        p->asleep++;
        while (!ready && gn__atomic_load(&p->round) == seen) gn__cond_wait(&p->wake, &p->lock);
        p->asleep--;
        seen = gn__atomic_load(&p->round);
        bool joins = p->open, quits = gn__atomic_load(&p->quit) != 0;
        gn__job_fn fn = p->fn;
        void *job = p->arg;
        int64_t total = p->total, grain = p->grain;
        if (joins) gn__atomic_add(&p->busy, 1);
        gn__mutex_unlock(&p->lock);
        if (quits) return;
        if (!joins) continue;
        gn__pool_drain(p, fn, job, total, grain);
        gn__mutex_lock(&p->lock);
        if (gn__atomic_add(&p->busy, UINT64_MAX) == 0) gn__cond_broadcast(&p->done);
        gn__mutex_unlock(&p->lock);
    }
}

static void gn__pool_deinit(gn__pool *p) {
    gn__mutex_lock(&p->lock);
    gn__atomic_store(&p->quit, 1);
    gn__atomic_add(&p->round, 1);
    gn__cond_broadcast(&p->wake);
    gn__mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++) gn__thread_join(&p->threads[i]);
    gn_free(p->threads);
    gn__cond_deinit(&p->wake);
    gn__cond_deinit(&p->done);
    gn__mutex_deinit(&p->lock);
}

/* Starts fewer threads than asked for when the system gives fewer: slower, equal results. */
static bool gn__pool_init(gn__pool *p, uint32_t threads) {
    memset(p, 0, sizeof *p);
    gn__mutex_init(&p->lock);
    gn__cond_init(&p->wake);
    gn__cond_init(&p->done);
    p->isa = gn__isa_pick();
    if (threads <= 1) return true;
    p->threads = (gn__thread *)gn_alloc((threads - 1) * sizeof *p->threads);
    if (!p->threads) { gn__pool_deinit(p); return false; }
    while (p->n_threads < threads - 1 && gn__thread_start(&p->threads[p->n_threads], gn__pool_main, p)) p->n_threads++;
    return true;
}

/* fn over [0, total) in ranges of `grain`; returns when all is done. A thread that comes late is not waited for. */
static void gn__pool_for(gn__pool *p, int64_t total, int64_t grain, gn__job_fn fn, void *arg) {
    if (total <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->n_threads == 0 || total <= grain) { fn(arg, 0, total); return; }
    gn__mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->total = total;
    p->grain = grain;
    p->open = true;
    gn__atomic_store(&p->next, 0);
    gn__atomic_add(&p->round, 1);
    if (p->asleep) gn__cond_broadcast(&p->wake);
    gn__mutex_unlock(&p->lock);
    gn__pool_drain(p, fn, arg, total, grain);
    gn__mutex_lock(&p->lock);
    p->open = false;
    gn__mutex_unlock(&p->lock);
    for (uint64_t left; (left = gn__atomic_load(&p->busy)) != 0 && gn__spin_while(&p->busy, left);) { }
    gn__mutex_lock(&p->lock);
    while (gn__atomic_load(&p->busy) != 0) gn__cond_wait(&p->done, &p->lock);
    gn__mutex_unlock(&p->lock);
}

/* >>types ========================================================================================== */

#define GN__MAX_BYTES ((int64_t)1 << 47)   /* of one tensor: sizes and offsets never overflow 64 bits */

typedef enum gn__compute { GN__F32, GN__F64, GN__I32, GN__I64, GN__COMPUTE__COUNT } gn__compute;   /* what scalar bodies are compiled for */

#define GN__BIT(d) (1u << (d))
#define GN__FLOATS (GN__BIT(GN_F32) | GN__BIT(GN_F64) | GN__BIT(GN_F16) | GN__BIT(GN_BF16))
#define GN__INDEX (GN__BIT(GN_I32) | GN__BIT(GN_I64))
#define GN__UNSIGNED (GN__BIT(GN_U8) | GN__BIT(GN_U16) | GN__BIT(GN_U32))
#define GN__INTS (GN__INDEX | GN__BIT(GN_I8) | GN__BIT(GN_I16) | GN__UNSIGNED)
#define GN__NUMBERS (GN__FLOATS | GN__INTS)
#define GN__ALL (GN__NUMBERS | GN__BIT(GN_BOOL))

/* narrow: memory is not in the compute type. */
static const struct { const char *name; uint8_t bytes, compute; bool narrow; } gn__dtypes[GN_DTYPE__COUNT] = {
    [0] = { "none", 0, 0, false },
    [GN_F32] = { "f32", 4, GN__F32, false },   [GN_F64] = { "f64", 8, GN__F64, false }, [GN_F16] = { "f16", 2, GN__F32, true },
    [GN_BF16] = { "bf16", 2, GN__F32, true }, [GN_I32] = { "i32", 4, GN__I32, false }, [GN_I64] = { "i64", 8, GN__I64, false },
    [GN_U8] = { "u8", 1, GN__I32, true },     [GN_BOOL] = { "bool", 1, GN__I32, true }, [GN_I8] = { "i8", 1, GN__I32, true },
    [GN_I16] = { "i16", 2, GN__I32, true },   [GN_U16] = { "u16", 2, GN__I32, true },   [GN_U32] = { "u32", 4, GN__I64, true },
};

static bool gn__dtype_ok(int d) { return d > 0 && d < GN_DTYPE__COUNT; }
static bool gn__is_float(gn_dtype d) { return gn__dtype_ok((int)d) && (GN__BIT(d) & GN__FLOATS) != 0; }
static size_t gn__bytes_of(gn_dtype d) { return gn__dtype_ok((int)d) ? gn__dtypes[d].bytes : 0; }

GN__INLINE uint32_t gn__f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
GN__INLINE float gn__bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static int64_t gn__f64_word(double x) { int64_t w; memcpy(&w, &x, 8); return w; }
static double gn__word_f64(int64_t w) { double x; memcpy(&x, &w, 8); return x; }

/* Without branches, so that loops over them become vector code. 2^112 turns f16's exponent into f32's, subnormals included. */
GN__INLINE float gn__f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t u = gn__f32_bits(gn__bits_f32(mag) * 0x1p112f);
    return gn__bits_f32(sign | (mag >= 0x0f800000u ? 0x7f800000u | mag : u));             /* inf, NaN */
}

GN__INLINE uint16_t gn__f32_f16(float x) {
    uint32_t u = gn__f32_bits(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    uint32_t small = gn__f32_bits(gn__bits_f32(mag) + 0.5f) - 0x3f000000u;                /* below 2^-14: the sum's ulp is 2^-24 */
    uint32_t h = mag < 0x38800000u ? small : (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
    h = mag >= 0x47800000u ? 0x7c00u : h;                                                 /* >= 65536 */
    h = mag > 0x7f800000u ? 0x7e00u | ((mag >> 13) & 0x1ffu) : h;                         /* NaN stays quiet */
    return (uint16_t)(sign | h);
}

GN__INLINE float gn__bf16_f32(uint16_t h) { return gn__bits_f32((uint32_t)h << 16); }

GN__INLINE uint16_t gn__f32_bf16(float x) {
    uint32_t u = gn__f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* f64 to f32 by rounding to odd, so that a second rounding to fewer bits is correct. */
static float gn__f64_f32_odd(double d) {
    float f = (float)d;
    if ((double)f == d || d != d || f - f != 0) return f;
    uint32_t u = gn__f32_bits(f);
    if (fabs((double)f) > fabs(d)) u--;
    return gn__bits_f32(u | 1u);
}

/* The value of a double as dtype d would hold it, saturating like a cast: what a baked-in constant is. */
static int64_t gn__saturate(double v, double lo, double hi, int64_t least, int64_t most) {
    if (v != v) return 0;
    return v <= lo ? least : v >= hi ? most : (int64_t)v;
}

static int64_t gn__f64_int(double v, gn_dtype d) {
    switch (d) {
    case GN_I32: return gn__saturate(v, -2147483648.0, 2147483647.0, INT32_MIN, INT32_MAX);
    case GN_U8: return gn__saturate(v, 0, 255, 0, 255);
    case GN_I8: return gn__saturate(v, -128, 127, INT8_MIN, INT8_MAX);
    case GN_I16: return gn__saturate(v, -32768, 32767, INT16_MIN, INT16_MAX);
    case GN_U16: return gn__saturate(v, 0, 65535, 0, UINT16_MAX);
    case GN_U32: return gn__saturate(v, 0, 4294967295.0, 0, UINT32_MAX);
    case GN_BOOL: return v != 0;
    default: return gn__saturate(v, -9223372036854775808.0, 9223372036854775808.0, INT64_MIN, INT64_MAX);
    }
}

/* Integer wrapped to dtype d. */
static int64_t gn__wrap(int64_t v, gn_dtype d) {
    switch (d) {
    case GN_I32: return (int32_t)(uint32_t)(uint64_t)v;
    case GN_I16: return (int16_t)(uint16_t)(uint64_t)v;
    case GN_I8: return (int8_t)(uint8_t)(uint64_t)v;
    case GN_U32: return (uint32_t)(uint64_t)v;
    case GN_U16: return (uint16_t)(uint64_t)v;
    case GN_U8: return (uint8_t)(uint64_t)v;
    case GN_BOOL: return v != 0;
    default: return v;
    }
}

static bool gn__shape_ok(const gn_shape *s) {
    if (s->rank < 0 || s->rank > GN_MAX_RANK) return false;
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        int64_t d = s->dims[i];
        if (d < 0 || d > GN__MAX_BYTES) return false;
        if (((uint64_t)(n | d) >> 23) && d > 0 && n > GN__MAX_BYTES / d) return false;   /* a zero elsewhere does not excuse an overflow */
        if (d > 0) n *= d;
    }
    return true;
}

static int64_t gn__count(const gn_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

static bool gn__type_ok(const gn__type *t) {
    if (!gn__dtype_ok((int)t->dtype) || !gn__shape_ok(&t->shape)) return false;
    return gn__count(&t->shape) * (int64_t)gn__dtypes[t->dtype].bytes <= GN__MAX_BYTES;   /* the count alone is at most that */
}

static size_t gn__type_bytes(const gn__type *t) { return (size_t)gn__count(&t->shape) * gn__bytes_of(t->dtype); }

GN__INLINE bool gn__shape_equal(const gn_shape *a, const gn_shape *b) {
    bool equal = a->rank == b->rank;
    for (int i = 0; i < a->rank && equal; i++) equal = a->dims[i] == b->dims[i];
    return equal;
}

static bool gn__type_equal(const gn__type *a, const gn__type *b) { return a->dtype == b->dtype && gn__shape_equal(&a->shape, &b->shape); }

/* "f32 (64, 784)" */
static const char *gn__type_text(const gn__type *t, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s (", gn__dtype_ok((int)t->dtype) ? gn__dtypes[t->dtype].name : "?");
    for (int i = 0; i < t->shape.rank && i < GN_MAX_RANK && n > 0 && (size_t)n < cap; i++)
        n += snprintf(out + n, cap - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->shape.dims[i]);
    if (n > 0 && (size_t)n < cap) snprintf(out + n, cap - (size_t)n, ")");
    return out;
}

/* NumPy's rule; false when the shapes do not fit or the result has no valid size. */
static bool gn__broadcast_shapes(const gn_shape *a, const gn_shape *b, gn_shape *out) {
    gn_shape r = { GN__MAX(a->rank, b->rank), { 0 } };
    for (int i = 1; i <= r.rank; i++) {
        int64_t x = i <= a->rank ? a->dims[a->rank - i] : 1, y = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (x != y && x != 1 && y != 1) return false;
        r.dims[r.rank - i] = x == 1 ? y : x;
    }
    *out = r;
    return gn__shape_ok(out);
}

/* The wider of two ints; of a signed and an unsigned one the signed if it is wider, else the next signed one above the other. */
static gn_dtype gn__promote_ints(gn_dtype a, gn_dtype b) {
    static const uint8_t above[9] = { [1] = GN_I16, [2] = GN_I32, [4] = GN_I64 };
    bool ua = (GN__BIT(a) & GN__UNSIGNED) != 0, ub = (GN__BIT(b) & GN__UNSIGNED) != 0;
    if (ua == ub) return gn__bytes_of(a) >= gn__bytes_of(b) ? a : b;
    gn_dtype u = ua ? a : b, i = ua ? b : a;
    return gn__bytes_of(i) > gn__bytes_of(u) ? i : (gn_dtype)above[gn__bytes_of(u)];
}

/* PyTorch's table for two dtypes of one category rank (bool < int < float). */
static gn_dtype gn__promote_pair(gn_dtype a, gn_dtype b) {
    if (a == b) return a;
    bool fa = gn__is_float(a), fb = gn__is_float(b);
    if (fa != fb) return fa ? a : b;
    if (!fa) {
        if (a == GN_BOOL || b == GN_BOOL) return a == GN_BOOL ? b : a;
        return gn__promote_ints(a, b);
    }
    return a == GN_F64 || b == GN_F64 ? GN_F64 : GN_F32;        /* f16 with bf16 is f32 */
}

static int gn__category(gn_dtype d) { return d == GN_BOOL ? 0 : gn__is_float(d) ? 2 : 1; }

/* A 0-d operand changes the dtype only when its category is higher (PyTorch's torch.result_type). */
static gn_dtype gn__promote(const gn__type *t, int n) {
    gn_dtype dims = GN_DTYPE_NONE, zero = GN_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        gn_dtype *d = t[i].shape.rank > 0 ? &dims : &zero;
        *d = *d == GN_DTYPE_NONE ? t[i].dtype : gn__promote_pair(*d, t[i].dtype);
    }
    if (dims == GN_DTYPE_NONE || zero == GN_DTYPE_NONE) return dims == GN_DTYPE_NONE ? zero : dims;
    return gn__category(zero) > gn__category(dims) ? gn__promote_pair(dims, zero) : dims;
}

/* ---- strided memory on the host ---- */


static gn_view gn__view_dense(const gn__type *t, void *p) {
    gn_view v = { (char *)p, t->dtype, t->shape.rank, { 0 }, { 0 }, 0 };
    int64_t stride = 1;
    for (int i = v.rank - 1; i >= 0; i--) {
        v.dims[i] = t->shape.dims[i];
        v.strides[i] = stride;
        stride *= v.dims[i];
    }
    return v;
}

/* The offset taken into the pointer. */
static gn_view gn__view_bound(const gn_view *v) {
    gn_view r = *v;
    r.p += v->offset;
    r.offset = 0;
    return r;
}

static bool gn__view_is_dense(const gn_view *v) {
    int64_t stride = 1;
    for (int i = v->rank - 1; i >= 0; i--) {
        if (v->dims[i] != 1 && v->strides[i] != stride) return false;
        stride *= v->dims[i];
    }
    return true;
}

static int64_t gn__view_count(const gn_view *v) {
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++) n *= v->dims[i];
    return n;
}

/* Element offset of row-major position `at` among the first `rank` dims. */
static int64_t gn__view_offset(const gn_view *v, int rank, int64_t at) {
    int64_t offset = 0;
    for (int i = rank - 1; i >= 0; i--) {
        offset += at % v->dims[i] * v->strides[i];
        at /= v->dims[i];
    }
    return offset;
}

/* v seen with shape s (NumPy broadcasting; s fits). */
static gn_view gn__view_broadcast(const gn_view *v, int rank, const int64_t *dims) {
    gn_view r = *v;
    r.rank = rank;
    for (int i = 1; i <= rank; i++) {
        bool has = i <= v->rank && v->dims[v->rank - i] == dims[rank - i];
        r.dims[rank - i] = dims[rank - i];
        r.strides[rank - i] = has ? v->strides[v->rank - i] : 0;
    }
    return r;
}

/* Axis moved to the end. */
static gn_view gn__view_axis_last(const gn_view *v, int axis) {
    gn_view r = *v;
    for (int i = axis; i + 1 < v->rank; i++) { r.dims[i] = v->dims[i + 1]; r.strides[i] = v->strides[i + 1]; }
    r.dims[v->rank - 1] = v->dims[axis];
    r.strides[v->rank - 1] = v->strides[axis];
    return r;
}

/* n elements, `stride` apart, from memory of dtype d to a compute type and back. Those of the dtypes that are computed in f32
 * are vector code where elements lie in a row; the others are short. */
#define GN__LOAD_LOOP(src_t, step, expr) do { const src_t *s = (const src_t *)p; for (int64_t i = 0; i < n; i++, s += step) dst[i] = expr; } while (0)
#define GN__STORE_LOOP(dst_t, step, expr) do { dst_t *o = (dst_t *)p; for (int64_t i = 0; i < n; i++, o += step) *o = (dst_t)(expr); } while (0)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("tree-loop-vectorize,vect-cost-model=dynamic,fp-contract=off")
#endif
static void gn__load_f32(float *restrict dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {   /* of f32, f16, bf16 only: others would lose bits */
    if (d == GN_F16 && stride == 1) GN__LOAD_LOOP(uint16_t, 1, gn__f16_f32(*s));
    else if (d == GN_F16) GN__LOAD_LOOP(uint16_t, stride, gn__f16_f32(*s));
    else if (d == GN_BF16 && stride == 1) GN__LOAD_LOOP(uint16_t, 1, gn__bf16_f32(*s));
    else if (d == GN_BF16) GN__LOAD_LOOP(uint16_t, stride, gn__bf16_f32(*s));
    else if (stride == 1) memcpy(dst, p, (size_t)n * sizeof *dst);
    else GN__LOAD_LOOP(float, stride, *s);
}

static void gn__store_f32(const float *restrict src, gn_dtype d, void *p, int64_t stride, int64_t n) {
    if (d == GN_F16 && stride == 1) GN__STORE_LOOP(uint16_t, 1, gn__f32_f16(src[i]));
    else if (d == GN_F16) GN__STORE_LOOP(uint16_t, stride, gn__f32_f16(src[i]));
    else if (d == GN_BF16 && stride == 1) GN__STORE_LOOP(uint16_t, 1, gn__f32_bf16(src[i]));
    else if (d == GN_BF16) GN__STORE_LOOP(uint16_t, stride, gn__f32_bf16(src[i]));
    else if (stride == 1) memmove(p, src, (size_t)n * sizeof *src);
    else GN__STORE_LOOP(float, stride, src[i]);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

GN__COLD_BEGIN
static void gn__load_i32(int32_t *dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {   /* not of i64 and u32 */
    switch (d) {
    case GN_I32: GN__LOAD_LOOP(int32_t, stride, *s); break;
    case GN_BOOL: GN__LOAD_LOOP(uint8_t, stride, *s != 0); break;
    case GN_I8: GN__LOAD_LOOP(int8_t, stride, *s); break;
    case GN_I16: GN__LOAD_LOOP(int16_t, stride, *s); break;
    case GN_U16: GN__LOAD_LOOP(uint16_t, stride, *s); break;
    default: GN__LOAD_LOOP(uint8_t, stride, *s); break;
    }
}

enum { GN__WIDEN = 64 };   /* elements of a stack buffer between two conversions */

/* A piece at a time by way of f32 or i32, of whose dtypes every value is exact in T. */
#define GN__LOAD_NARROW(T, narrow_t, load) do {                                                          \
        narrow_t w[GN__WIDEN];                                                                           \
        for (int64_t at = 0, m; at < n; at += m) {                                                       \
            m = GN__MIN(n - at, (int64_t)GN__WIDEN);                                                     \
            load(w, d, (const char *)p + at * stride * (int64_t)gn__bytes_of(d), stride, m);             \
            for (int64_t i = 0; i < m; i++) dst[at + i] = (T)w[i];                                       \
        }                                                                                                \
    } while (0)
static void gn__load_i64(int64_t *dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {   /* of integers only */
    if (d == GN_I64) GN__LOAD_LOOP(int64_t, stride, *s);
    else if (d == GN_U32) GN__LOAD_LOOP(uint32_t, stride, *s);
    else GN__LOAD_NARROW(int64_t, int32_t, gn__load_i32);
}

static void gn__load_f64(double *dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {
    if (d == GN_F64) GN__LOAD_LOOP(double, stride, *s);
    else if (d == GN_F32) GN__LOAD_LOOP(float, stride, (double)*s);
    else if (gn__dtypes[d].compute == GN__F32) GN__LOAD_NARROW(double, float, gn__load_f32);
    else if (d == GN_I64) GN__LOAD_LOOP(int64_t, stride, (double)*s);
    else if (d == GN_U32) GN__LOAD_LOOP(uint32_t, stride, (double)*s);
    else GN__LOAD_NARROW(double, int32_t, gn__load_i32);
}

static void gn__store_f64(const double *src, gn_dtype d, void *p, int64_t stride, int64_t n) {
    switch (d) {
    case GN_F16: GN__STORE_LOOP(uint16_t, stride, gn__f32_f16(gn__f64_f32_odd(src[i]))); break;
    case GN_BF16: GN__STORE_LOOP(uint16_t, stride, gn__f32_bf16(gn__f64_f32_odd(src[i]))); break;
    case GN_F32: GN__STORE_LOOP(float, stride, src[i]); break;
    default: GN__STORE_LOOP(double, stride, src[i]); break;
    }
}

static void gn__store_i64(const int64_t *src, gn_dtype d, void *p, int64_t stride, int64_t n) {
    switch (gn__bytes_of(d) * (d != GN_BOOL)) {
    case 0: GN__STORE_LOOP(uint8_t, stride, src[i] != 0); break;
    case 1: GN__STORE_LOOP(uint8_t, stride, (uint64_t)src[i]); break;
    case 2: GN__STORE_LOOP(uint16_t, stride, (uint64_t)src[i]); break;
    case 4: GN__STORE_LOOP(uint32_t, stride, (uint64_t)src[i]); break;
    default: GN__STORE_LOOP(int64_t, stride, src[i]); break;
    }
}

static void gn__store_i32(const int32_t *src, gn_dtype d, void *p, int64_t stride, int64_t n) {
    switch (gn__bytes_of(d) * (d != GN_BOOL)) {
    case 0: GN__STORE_LOOP(uint8_t, stride, src[i] != 0); break;
    case 1: GN__STORE_LOOP(uint8_t, stride, (uint32_t)src[i]); break;
    case 2: GN__STORE_LOOP(uint16_t, stride, (uint32_t)src[i]); break;
    default: GN__STORE_LOOP(int32_t, stride, src[i]); break;
    }
}
GN__COLD_END

static int64_t gn__read_int(gn_dtype d, const void *p) {
    int64_t v;
    gn__load_i64(&v, d, p, 1, 1);
    return v;
}

/* n elements of `bytes` each, strided copy; a caller's buffer need not be aligned. */
static void gn__copy_strided(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, int64_t n, size_t bytes) {
    if (dst_stride == 1 && src_stride == 1) { memcpy(dst, src, (size_t)n * bytes); return; }
#define GN__COPY(T) do { for (int64_t i = 0; i < n; i++) memcpy(dst + i * dst_stride * (int64_t)sizeof(T), src + i * src_stride * (int64_t)sizeof(T), sizeof(T)); } while (0)
    if (bytes == 4) GN__COPY(uint32_t);
    else if (bytes == 8) GN__COPY(uint64_t);
    else if (bytes == 2) GN__COPY(uint16_t);
    else GN__COPY(uint8_t);
#undef GN__COPY
}

/* dst and src have equal dims and dtype. */
static void gn__copy_view(const gn_view *dst, const gn_view *src) {
    size_t bytes = gn__bytes_of(src->dtype);
    int64_t total = gn__view_count(src);
    if (total == 0) return;
    if (src->rank == 0) { memcpy(dst->p, src->p, bytes); return; }
    if (gn__view_is_dense(dst) && gn__view_is_dense(src)) { memcpy(dst->p, src->p, (size_t)total * bytes); return; }
    int last = src->rank - 1;
    int64_t n = src->dims[last];
    for (int64_t row = 0; row < total / n; row++)
        gn__copy_strided(dst->p + gn__view_offset(dst, last, row) * (int64_t)bytes, dst->strides[last],
                         src->p + gn__view_offset(src, last, row) * (int64_t)bytes, src->strides[last], n, bytes);
}

/* >>ops ============================================================================================
 * One op, one place. A scalar op is one row: its body is compiled here for four compute types and its text, unexpanded, is
 * what a GPU executor compiles. A structured op is one block: shape rule, cost, kernel; its gradient stands in >>graph under
 * the same name. */

/* ---- the mathematics of scalar bodies, bound per compute type by GN__SUFFIX ---- */
#define GN__PASTE_(a, b) a##b
#define GN__PASTE(a, b) GN__PASTE_(a, b)
#define GN_C(x) ((GN__T)(x))                       /* a constant of the compute type */
#define GN_M_ADD(a, b) GN__PASTE(gn__m_add_, GN__SUFFIX)(a, b)
#define GN_M_SUB(a, b) GN__PASTE(gn__m_sub_, GN__SUFFIX)(a, b)
#define GN_M_MUL(a, b) GN__PASTE(gn__m_mul_, GN__SUFFIX)(a, b)
#define GN_M_DIV(a, b) GN__PASTE(gn__m_div_, GN__SUFFIX)(a, b)
#define GN_M_NEG(a) GN__PASTE(gn__m_neg_, GN__SUFFIX)(a)
#define GN_M_ABS(a) GN__PASTE(gn__m_abs_, GN__SUFFIX)(a)
#define GN_M_MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))   /* NaN wins */
#define GN_M_MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define GN_M_POW(a, b) GN__PASTE(gn__m_pow_, GN__SUFFIX)(a, b)
#define GN_M_EXP(a) GN__PASTE(gn__m_exp_, GN__SUFFIX)(a)
#define GN_M_LOG(a) GN__PASTE(gn__m_log_, GN__SUFFIX)(a)
#define GN_M_SQRT(a) GN__PASTE(gn__m_sqrt_, GN__SUFFIX)(a)
#define GN_M_TANH(a) GN__PASTE(gn__m_tanh_, GN__SUFFIX)(a)
#define GN_M_ERFC(a) GN__PASTE(gn__m_erfc_, GN__SUFFIX)(a)
/* Further ones. Floats, as in C99 <math.h>: FLOOR CEIL TRUNC EXP2 EXPM1 LOG2 LOG10 LOG1P SIN COS TAN ASIN ACOS ATAN SINH COSH ASINH
 * ACOSH ATANH ERF ATAN2(y, x) HYPOT COPYSIGN(magnitude, sign); RINT rounds to nearest, ties to even. All compute types:
 *   FMA(a, b, c)     a b + c rounded once; ints: wrapped
 *   FMOD(a, b)       a - b trunc(a / b), exact; ints: the C remainder, 0 for b = 0 and b = -1
 *   REMAINDER(a, b)  m = FMOD(a, b), m + b when m is not 0 and its sign differs from b's
 *   FLOORDIV(a, b)   floats: a / b for b = 0, else the nearest integer to (a - FMOD(a, b)) / b, one less when FMOD(a, b) is not 0
 *                    and its sign differs from b's; a zero has the sign of a / b. Ints: the floor, 0 for b = 0, wrapped for b = -1
 * Ints only: SHL(a, b) a 2^b wrapped, 0 for b outside [0, bits); SHR(a, b) floor(a / 2^b), outside [0, bits) -1 for a < 0, else 0. */
#define GN_M_FLOOR(a) GN__PASTE(gn__m_floor_, GN__SUFFIX)(a)
#define GN_M_CEIL(a) GN__PASTE(gn__m_ceil_, GN__SUFFIX)(a)
#define GN_M_RINT(a) GN__PASTE(gn__m_rint_, GN__SUFFIX)(a)
#define GN_M_TRUNC(a) GN__PASTE(gn__m_trunc_, GN__SUFFIX)(a)
#define GN_M_EXP2(a) GN__PASTE(gn__m_exp2_, GN__SUFFIX)(a)
#define GN_M_EXPM1(a) GN__PASTE(gn__m_expm1_, GN__SUFFIX)(a)
#define GN_M_LOG2(a) GN__PASTE(gn__m_log2_, GN__SUFFIX)(a)
#define GN_M_LOG10(a) GN__PASTE(gn__m_log10_, GN__SUFFIX)(a)
#define GN_M_LOG1P(a) GN__PASTE(gn__m_log1p_, GN__SUFFIX)(a)
#define GN_M_SIN(a) GN__PASTE(gn__m_sin_, GN__SUFFIX)(a)
#define GN_M_COS(a) GN__PASTE(gn__m_cos_, GN__SUFFIX)(a)
#define GN_M_TAN(a) GN__PASTE(gn__m_tan_, GN__SUFFIX)(a)
#define GN_M_ASIN(a) GN__PASTE(gn__m_asin_, GN__SUFFIX)(a)
#define GN_M_ACOS(a) GN__PASTE(gn__m_acos_, GN__SUFFIX)(a)
#define GN_M_ATAN(a) GN__PASTE(gn__m_atan_, GN__SUFFIX)(a)
#define GN_M_SINH(a) GN__PASTE(gn__m_sinh_, GN__SUFFIX)(a)
#define GN_M_COSH(a) GN__PASTE(gn__m_cosh_, GN__SUFFIX)(a)
#define GN_M_ASINH(a) GN__PASTE(gn__m_asinh_, GN__SUFFIX)(a)
#define GN_M_ACOSH(a) GN__PASTE(gn__m_acosh_, GN__SUFFIX)(a)
#define GN_M_ATANH(a) GN__PASTE(gn__m_atanh_, GN__SUFFIX)(a)
#define GN_M_ERF(a) GN__PASTE(gn__m_erf_, GN__SUFFIX)(a)
#define GN_M_ATAN2(a, b) GN__PASTE(gn__m_atan2_, GN__SUFFIX)(a, b)
#define GN_M_HYPOT(a, b) GN__PASTE(gn__m_hypot_, GN__SUFFIX)(a, b)
#define GN_M_COPYSIGN(a, b) GN__PASTE(gn__m_copysign_, GN__SUFFIX)(a, b)
#define GN_M_FMA(a, b, c) GN__PASTE(gn__m_fma_, GN__SUFFIX)(a, b, c)
#define GN_M_FMOD(a, b) GN__PASTE(gn__m_fmod_, GN__SUFFIX)(a, b)
#define GN_M_REMAINDER(a, b) GN__PASTE(gn__m_remainder_, GN__SUFFIX)(a, b)
#define GN_M_FLOORDIV(a, b) GN__PASTE(gn__m_floordiv_, GN__SUFFIX)(a, b)
#define GN_M_SHL(a, b) GN__PASTE(gn__m_shl_, GN__SUFFIX)(a, b)
#define GN_M_SHR(a, b) GN__PASTE(gn__m_shr_, GN__SUFFIX)(a, b)

/* ---- mathematics of f32 without branches or calls, so that loops over it become vector code. Polynomials are minimax fits made
 * for this file; additions and multiplications are never contracted, so every instruction path gives the same bits. Errors are
 * below 3 units in the last place (erfc: 4), over all floats ---- */

/* 2^n r, n in [-252, 254]: in two steps, so that results below the normal range are rounded once. */
GN__INLINE float gn__v_scale(float r, int32_t n) {
    int32_t half = n >> 1;
    return r * gn__bits_f32((uint32_t)(half + 127) << 23) * gn__bits_f32((uint32_t)(n - half + 127) << 23);
}

/* (exp(r) - 1 - r) / r^2 on |r| <= ln 2 / 2, error 2^-28 of exp. */
GN__INLINE float gn__v_exp_tail(float r) {
    return 0.5000000101f + r * (0.1666651289f + r * (0.04166618764f + r * (0.008369598335f + r * 0.001395169736f)));
}

#define GN__V_LN2_HI 0.693145751953125f        /* 15 bits: its product with a small integer is exact */
#define GN__V_LN2_LO 1.428606820309417e-6f
#define GN__V_ROUND 12582912.0f                /* 1.5 2^23: adding it rounds to the nearest integer */

/* exp(hi + lo), hi in [-104.1, 89], |lo| small. */
GN__INLINE float gn__v_exp_parts(float hi, float lo) {
    float t = hi * 1.44269504f + GN__V_ROUND, n = t - GN__V_ROUND;
    float r = ((hi - n * GN__V_LN2_HI) - n * GN__V_LN2_LO) + lo;
    return gn__v_scale(1.0f + (r + r * r * gn__v_exp_tail(r)), (int32_t)(gn__f32_bits(t) - gn__f32_bits(GN__V_ROUND)));
}

GN__INLINE float gn__v_exp(float x) {
    float c = x > 89.0f ? 89.0f : x;
    return gn__v_exp_parts(c < -104.0f ? -104.0f : c, 0.0f);
}

GN__INLINE float gn__v_exp2(float x) {
    float c = x > 129.0f ? 129.0f : x;
    c = c < -151.0f ? -151.0f : c;
    float t = c + GN__V_ROUND, r = (c - (t - GN__V_ROUND)) * 0.693147181f;
    return gn__v_scale(1.0f + (r + r * r * gn__v_exp_tail(r)), (int32_t)(gn__f32_bits(t) - gn__f32_bits(GN__V_ROUND)));
}

GN__INLINE float gn__v_expm1(float x) {
    float c = x > 89.0f ? 89.0f : x;
    c = c < -40.0f ? -40.0f : c;
    float t = c * 1.44269504f + GN__V_ROUND, n = t - GN__V_ROUND;
    float r = (c - n * GN__V_LN2_HI) - n * GN__V_LN2_LO;
    float s = gn__bits_f32((gn__f32_bits(t) - gn__f32_bits(GN__V_ROUND) + 126u) << 23);      /* 2^(n - 1) */
    float y = 2.0f * (s * (r + r * r * gn__v_exp_tail(r)) + (s - 0.5f));
    return fabsf(x) < 0x1p-25f ? x : y;
}

/* |x| and the sign apart; 10 and more give 1. */
GN__INLINE float gn__v_tanh(float x) {
    float a = fabsf(x), t = gn__v_expm1(2.0f * (a > 10.0f ? 10.0f : a));
    return copysignf(t / (t + 2.0f), x);
}

/* x = 2^e (1 + f), 1 + f in [sqrt 1/2, sqrt 2); log(1 + f) in two parts that are to be added. x normal and positive. */
typedef struct gn__v_log_parts { float e, f, rest; } gn__v_log_parts;

GN__INLINE gn__v_log_parts gn__v_log_split(float x) {
    float y = x < 0x1p-126f ? x * 0x1p23f : x;
    uint32_t u = gn__f32_bits(y);
    int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23;
    float f = gn__bits_f32(u - ((uint32_t)e << 23)) - 1.0f, s = f / (2.0f + f), z = s * s;
    float tail = z * (0.6666674308f + z * (0.3998039019f + z * 0.2981538886f));
    return (gn__v_log_parts){ (float)e - (x < 0x1p-126f ? 23.0f : 0.0f), f, s * (f - tail) };
}

/* What a logarithm is outside the positive finite numbers. */
GN__INLINE float gn__v_log_edges(float x, float y) {
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x == INFINITY || x != x ? x : y;
}

GN__INLINE float gn__v_log(float x) {
    gn__v_log_parts p = gn__v_log_split(x);
    return gn__v_log_edges(x, p.e * GN__V_LN2_HI + (p.f - (p.rest - p.e * GN__V_LN2_LO)));
}

GN__INLINE float gn__v_log2(float x) {
    gn__v_log_parts p = gn__v_log_split(x);
    return gn__v_log_edges(x, p.e + (p.f - p.rest) * 1.44269504f);
}

/* log(1 + x): the rounding of 1 + x is made good. */
GN__INLINE float gn__v_log1p(float x) {
    float u = 1.0f + x, lost = (x - (u - 1.0f)) / u, y = gn__v_log(u);
    return x == 0.0f ? x : u > 0.0f && u < INFINITY ? y + lost : y;
}

/* exp(-x^2) erfcx(x), with x^2 in two parts; erfcx(x) (1 + x) is a polynomial in (x - 3) / (x + 3). */
GN__INLINE float gn__v_erfc(float x) {
    float a = fabsf(x), c = a > 10.2f ? 10.2f : a, u = (c - 3.0f) / (c + 3.0f);
    float h = -0.0003720098398f + u * -0.0001050804546f;
    h = 0.02195093979f + u * (-0.009765114925f + u * (0.001640394093f + u * (0.0007045800821f + u * h)));
    h = 0.7160046053f + u * (-0.2309273514f + u * (0.09902068922f + u * (-0.01023469215f + u * (-0.0238023969f + u * h))));
    float top = gn__bits_f32(gn__f32_bits(c) & 0xfffff000u);
    float y = gn__v_exp_parts(-top * top, -(c - top) * (c + top)) * (h / (1.0f + c));
    return x < 0.0f ? 2.0f - y : x != x ? x : y;
}

GN__INLINE float gn__v_erf(float x) {
    float a = fabsf(x), z = x * x;
    float p = 0.1128358516f + z * (-0.02685381259f + z * (0.005188329061f + z * (-0.0008010206851f + z * 7.853908527e-5f)));
    p = x * (1.128379166f + z * (-0.3761262583f + z * p));
    return a < 1.0f ? p : copysignf(1.0f - gn__v_erfc(a), x);
}

#define gn__m_add_f32(a, b) ((a) + (b))
#define gn__m_sub_f32(a, b) ((a) - (b))
#define gn__m_mul_f32(a, b) ((a) * (b))
#define gn__m_div_f32(a, b) ((a) / (b))
#define gn__m_neg_f32(a) (-(a))
#define gn__m_abs_f32(a) fabsf(a)
#define gn__m_pow_f32(a, b) powf(a, b)
#define gn__m_exp_f32(a) gn__v_exp(a)
#define gn__m_log_f32(a) gn__v_log(a)
#define gn__m_sqrt_f32(a) sqrtf(a)
#define gn__m_tanh_f32(a) gn__v_tanh(a)
#define gn__m_erfc_f32(a) gn__v_erfc(a)

#define gn__m_add_f64(a, b) ((a) + (b))
#define gn__m_sub_f64(a, b) ((a) - (b))
#define gn__m_mul_f64(a, b) ((a) * (b))
#define gn__m_div_f64(a, b) ((a) / (b))
#define gn__m_neg_f64(a) (-(a))
#define gn__m_abs_f64(a) fabs(a)
#define gn__m_pow_f64(a, b) pow(a, b)
#define gn__m_exp_f64(a) exp(a)
#define gn__m_log_f64(a) log(a)
#define gn__m_sqrt_f64(a) sqrt(a)
#define gn__m_tanh_f64(a) tanh(a)
#define gn__m_erfc_f64(a) erfc(a)

#define gn__m_floor_f32(a) floorf(a)
#define gn__m_ceil_f32(a) ceilf(a)
#define gn__m_rint_f32(a) rintf(a)
#define gn__m_trunc_f32(a) truncf(a)
#define gn__m_exp2_f32(a) gn__v_exp2(a)
#define gn__m_expm1_f32(a) gn__v_expm1(a)
#define gn__m_log2_f32(a) gn__v_log2(a)
#define gn__m_log10_f32(a) log10f(a)
#define gn__m_log1p_f32(a) gn__v_log1p(a)
#define gn__m_sin_f32(a) sinf(a)
#define gn__m_cos_f32(a) cosf(a)
#define gn__m_tan_f32(a) tanf(a)
#define gn__m_asin_f32(a) asinf(a)
#define gn__m_acos_f32(a) acosf(a)
#define gn__m_atan_f32(a) atanf(a)
#define gn__m_sinh_f32(a) sinhf(a)
#define gn__m_cosh_f32(a) coshf(a)
#define gn__m_asinh_f32(a) asinhf(a)
#define gn__m_acosh_f32(a) acoshf(a)
#define gn__m_atanh_f32(a) atanhf(a)
#define gn__m_erf_f32(a) gn__v_erf(a)
#define gn__m_atan2_f32(a, b) atan2f(a, b)
#define gn__m_hypot_f32(a, b) hypotf(a, b)
#define gn__m_copysign_f32(a, b) copysignf(a, b)
#define gn__m_fma_f32(a, b, c) fmaf(a, b, c)
#define gn__m_fmod_f32(a, b) fmodf(a, b)
#define gn__m_floor_f64(a) floor(a)
#define gn__m_ceil_f64(a) ceil(a)
#define gn__m_rint_f64(a) rint(a)
#define gn__m_trunc_f64(a) trunc(a)
#define gn__m_exp2_f64(a) exp2(a)
#define gn__m_expm1_f64(a) expm1(a)
#define gn__m_log2_f64(a) log2(a)
#define gn__m_log10_f64(a) log10(a)
#define gn__m_log1p_f64(a) log1p(a)
#define gn__m_sin_f64(a) sin(a)
#define gn__m_cos_f64(a) cos(a)
#define gn__m_tan_f64(a) tan(a)
#define gn__m_asin_f64(a) asin(a)
#define gn__m_acos_f64(a) acos(a)
#define gn__m_atan_f64(a) atan(a)
#define gn__m_sinh_f64(a) sinh(a)
#define gn__m_cosh_f64(a) cosh(a)
#define gn__m_asinh_f64(a) asinh(a)
#define gn__m_acosh_f64(a) acosh(a)
#define gn__m_atanh_f64(a) atanh(a)
#define gn__m_erf_f64(a) erf(a)
#define gn__m_atan2_f64(a, b) atan2(a, b)
#define gn__m_hypot_f64(a, b) hypot(a, b)
#define gn__m_copysign_f64(a, b) copysign(a, b)
#define gn__m_fma_f64(a, b, c) fma(a, b, c)
#define gn__m_fmod_f64(a, b) fmod(a, b)
#define GN__DEFINE_FLOAT_MATH(S, T, F)                                                                   \
    GN__INLINE T gn__m_remainder_##S(T a, T b) {                                                         \
        T m = fmod##F(a, b);                                                                             \
        return m != 0 && (m < 0) != (b < 0) ? m + b : m;                                                 \
    }                                                                                                    \
    GN__INLINE T gn__m_floordiv_##S(T a, T b) {                                                          \
        T m = fmod##F(a, b), q = rint##F((a - m) / b) - (T)(m != 0 && (m < 0) != (b < 0));               \
        return b == 0 ? a / b : q == 0 ? copysign##F(0, a / b) : q;                                      \
    }
GN__DEFINE_FLOAT_MATH(f32, float, f)
GN__DEFINE_FLOAT_MATH(f64, double, )

#define GN__DEFINE_INT_MATH(S, T, U)                                                                     \
    GN__INLINE T gn__m_add_##S(T a, T b) { return (T)((U)a + (U)b); }                                    \
    GN__INLINE T gn__m_sub_##S(T a, T b) { return (T)((U)a - (U)b); }                                    \
    GN__INLINE T gn__m_mul_##S(T a, T b) { return (T)((U)a * (U)b); }                                    \
    GN__INLINE T gn__m_neg_##S(T a) { return (T)((U)0 - (U)a); }                                         \
    GN__INLINE T gn__m_abs_##S(T a) { return a < 0 ? (T)((U)0 - (U)a) : a; }                             \
    GN__INLINE T gn__m_div_##S(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)((U)0 - (U)a) : (T)(a / b); } \
    GN__INLINE T gn__m_fma_##S(T a, T b, T c) { return (T)((U)a * (U)b + (U)c); }                        \
    GN__INLINE T gn__m_fmod_##S(T a, T b) { return b == 0 || b == -1 ? 0 : (T)(a % b); }                 \
    GN__INLINE T gn__m_remainder_##S(T a, T b) {                                                         \
        T m = gn__m_fmod_##S(a, b);                                                                      \
        return m != 0 && (m < 0) != (b < 0) ? (T)(m + b) : m;                                            \
    }                                                                                                    \
    GN__INLINE T gn__m_floordiv_##S(T a, T b) {                                                          \
        T m = gn__m_fmod_##S(a, b);                                                                      \
        return (T)(gn__m_div_##S(a, b) - (m != 0 && (m < 0) != (b < 0)));                                \
    }                                                                                                    \
    GN__INLINE T gn__m_shl_##S(T a, T b) { return b < 0 || b >= (T)(8 * sizeof(T)) ? 0 : (T)((U)a << b); } \
    GN__INLINE T gn__m_shr_##S(T a, T b) {                                                               \
        if (b < 0 || b >= (T)(8 * sizeof(T))) return a < 0 ? -1 : 0;                                     \
        return a < 0 ? (T)~(T)(~a >> b) : (T)(a >> b);                                                   \
    }
GN__DEFINE_INT_MATH(i32, int32_t, uint32_t)
GN__DEFINE_INT_MATH(i64, int64_t, uint64_t)

/* ---- the scalar rows ----
 * U (one input), B (two) and T (three) have a gradient, UN and BN none, C compares, P is a U whose parameters are attributes.
 * X(NAME, name, wire, compute class, dtypes, flops, tolerance, body over a, b, c and parameters p0, p1 [, gradients])
 * Compute class: F float, L float by functions of the C library, which no instruction set widens, A any, I integer. Gradients are expressions over the result y, its gradient gy, the inputs x0, x1, x2. */
#define GN__SCALAR_OPS(U, B, UN, BN, C, P, T)                                                                                              \
    B( ADD,       add,       0x10, A, GN__ALL,     1,  1, GN_M_ADD(a, b), gy, gy)                                                    \
    B( SUB,       sub,       0x11, A, GN__NUMBERS, 1,  1, GN_M_SUB(a, b), gy, gn__neg(k, gy))                                        \
    B( MUL,       mul,       0x12, A, GN__ALL,     1,  1, GN_M_MUL(a, b), gn__mul(k, gy, x1), gn__mul(k, gy, x0))                    \
    B( DIV,       div,       0x13, A, GN__NUMBERS, 4,  1, GN_M_DIV(a, b), gn__div(k, gy, x1), gn__neg(k, gn__div(k, gn__mul(k, gy, y), x1))) \
    B( POW,       pow,       0x14, L, GN__FLOATS, 30,  4, GN_M_POW(a, b), gn__pow_grad_base(k), gn__pow_grad_exponent(k))            \
    B( MINIMUM,   minimum,   0x15, A, GN__ALL,     1,  1, GN_M_MIN(a, b), gn__choose(k, gn__le(k, x0, x1), gy), gn__choose(k, gn__gt(k, x0, x1), gy)) \
    B( MAXIMUM,   maximum,   0x16, A, GN__ALL,     1,  1, GN_M_MAX(a, b), gn__choose(k, gn__ge(k, x0, x1), gy), gn__choose(k, gn__lt(k, x0, x1), gy)) \
    U( NEG,       neg,       0x17, A, GN__NUMBERS, 1,  1, GN_M_NEG(a), gn__neg(k, gy))                                               \
    U( ABS,       abs,       0x18, A, GN__NUMBERS, 1,  1, GN_M_ABS(a), gn__where(k, gn__lt(k, x0, gn__num(k, 0)), gn__neg(k, gy), gn__choose(k, gn__ne(k, x0, gn__num(k, 0)), gy))) \
    U( EXP,       exp,       0x19, F, GN__FLOATS,  8,  2, GN_M_EXP(a), gn__mul(k, gy, y))                                            \
    U( LOG,       log,       0x1a, F, GN__FLOATS,  8,  2, GN_M_LOG(a), gn__div(k, gy, x0))                                           \
    U( SQRT,      sqrt,      0x1b, F, GN__FLOATS,  4,  1, GN_M_SQRT(a), gn__div(k, gn__mul(k, gy, gn__num(k, 0.5)), y))              \
    U( RSQRT,     rsqrt,     0x1c, F, GN__FLOATS,  5,  2, GN_C(1) / GN_M_SQRT(a), gn__mul(k, gn__mul(k, gy, gn__num(k, -0.5)), gn__div(k, y, x0))) \
    U( TANH,      tanh,      0x1d, F, GN__FLOATS, 12,  4, GN_M_TANH(a), gn__mul(k, gy, gn__sub(k, gn__num(k, 1), gn__mul(k, y, y)))) \
    U( SIGMOID,   sigmoid,   0x1e, F, GN__FLOATS, 12,  4, GN_C(1) / (GN_C(1) + GN_M_EXP(-a)), gn__mul(k, gy, gn__mul(k, y, gn__sub(k, gn__num(k, 1), y)))) \
    U( RELU,      relu,      0x1f, A, GN__NUMBERS, 1,  1, a < GN_C(0) ? GN_C(0) : a, gn__choose(k, gn__gt(k, x0, gn__num(k, 0)), gy)) \
    U( GELU,      gelu,      0x20, F, GN__FLOATS, 20,  8, GN_C(0.5) * a * GN_M_ERFC(a * GN_C(-0.70710678118654752440)), gn__gelu_grad(k)) \
    U( GELU_TANH, gelu_tanh, 0x21, F, GN__FLOATS, 20,  8, a / (GN_C(1) + GN_M_EXP(a * (GN_C(-1.5957691216057307117) + GN_C(-0.071354816272600009) * a * a))), gn__gelu_tanh_grad(k)) \
    U( SILU,      silu,      0x22, F, GN__FLOATS, 14,  4, a / (GN_C(1) + GN_M_EXP(-a)), gn__silu_grad(k))                            \
    C( EQ,        eq,        0x23, A, GN__ALL,     1,  1, a == b)                                                                    \
    C( NE,        ne,        0x24, A, GN__ALL,     1,  1, a != b)                                                                    \
    C( LT,        lt,        0x25, A, GN__ALL,     1,  1, a < b)                                                                     \
    C( LE,        le,        0x26, A, GN__ALL,     1,  1, a <= b)                                                                    \
    C( GT,        gt,        0x27, A, GN__ALL,     1,  1, a > b)                                                                     \
    C( GE,        ge,        0x28, A, GN__ALL,     1,  1, a >= b)                                                                    \
    BN(AND,       and,       0x29, I, GN__INTS | GN__BIT(GN_BOOL), 1, 1, a & b)                                                      \
    BN(OR,        or,        0x2a, I, GN__INTS | GN__BIT(GN_BOOL), 1, 1, a | b)                                                      \
    BN(XOR,       xor,       0x2b, I, GN__INTS | GN__BIT(GN_BOOL), 1, 1, a ^ b)                                                      \
    UN(NOT,       not,       0x2c, I, GN__INTS | GN__BIT(GN_BOOL), 1, 1, a ^ p0)              /* p0: all ones of the dtype */        \
    P( CLAMP,     clamp,     0x2d, A, GN__NUMBERS, 2,  1, GN_M_MIN(GN_M_MAX(a, p0), p1), gn__clamp_grad(k))  /* attrs: lo, hi as f64 words */ \
    U( SIGN,         sign,         0x80, A, GN__NUMBERS,  1,  1, a > GN_C(0) ? GN_C(1) : a < GN_C(0) ? GN_C(-1) : a, gn__zeros_like(k, x0)) \
    U( FLOOR,        floor,        0x81, F, GN__FLOATS,  1,  1, GN_M_FLOOR(a), gn__zeros_like(k, x0)) \
    U( CEIL,         ceil,         0x82, F, GN__FLOATS,  1,  1, GN_M_CEIL(a), gn__zeros_like(k, x0)) \
    U( ROUND,        round,        0x83, F, GN__FLOATS,  1,  1, GN_M_RINT(a), gn__zeros_like(k, x0)) \
    U( TRUNC,        trunc,        0x84, F, GN__FLOATS,  1,  1, GN_M_TRUNC(a), gn__zeros_like(k, x0)) \
    U( EXP2,         exp2,         0x85, F, GN__FLOATS,  8,  2, GN_M_EXP2(a), gn__mul(k, gy, gn__mul(k, y, gn__num(k, 0.69314718055994530942)))) \
    U( EXPM1,        expm1,        0x86, F, GN__FLOATS, 10,  4, GN_M_EXPM1(a), gn__mul(k, gy, gn__add(k, y, gn__num(k, 1)))) \
    U( LOG2,         log2,         0x87, F, GN__FLOATS,  8,  4, GN_M_LOG2(a), gn__div(k, gy, gn__mul(k, x0, gn__num(k, 0.69314718055994530942)))) \
    U( LOG10,        log10,        0x88, L, GN__FLOATS,  8,  4, GN_M_LOG10(a), gn__div(k, gy, gn__mul(k, x0, gn__num(k, 2.30258509299404568402)))) \
    U( LOG1P,        log1p,        0x89, F, GN__FLOATS, 10,  4, GN_M_LOG1P(a), gn__div(k, gy, gn__add(k, x0, gn__num(k, 1)))) \
    U( RECIPROCAL,   reciprocal,   0x8a, F, GN__FLOATS,  4,  1, GN_C(1) / a, gn__neg(k, gn__mul(k, gy, gn__mul(k, y, y)))) \
    U( SQUARE,       square,       0x8b, A, GN__NUMBERS,  1,  1, GN_M_MUL(a, a), gn__mul(k, gy, gn__mul(k, x0, gn__num(k, 2)))) \
    U( SIN,          sin,          0x8c, L, GN__FLOATS, 12,  4, GN_M_SIN(a), gn__mul(k, gy, gn__cos(k, x0))) \
    U( COS,          cos,          0x8d, L, GN__FLOATS, 12,  4, GN_M_COS(a), gn__neg(k, gn__mul(k, gy, gn__sin(k, x0)))) \
    U( TAN,          tan,          0x8e, L, GN__FLOATS, 16,  4, GN_M_TAN(a), gn__mul(k, gy, gn__add(k, gn__num(k, 1), gn__mul(k, y, y)))) \
    U( ASIN,         asin,         0x8f, L, GN__FLOATS, 12,  4, GN_M_ASIN(a), gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0))))) \
    U( ACOS,         acos,         0x90, L, GN__FLOATS, 12,  4, GN_M_ACOS(a), gn__neg(k, gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0)))))) \
    U( ATAN,         atan,         0x91, L, GN__FLOATS, 12,  4, GN_M_ATAN(a), gn__div(k, gy, gn__add(k, gn__num(k, 1), gn__mul(k, x0, x0)))) \
    U( SINH,         sinh,         0x92, L, GN__FLOATS, 16,  4, GN_M_SINH(a), gn__mul(k, gy, gn__cosh(k, x0))) \
    U( COSH,         cosh,         0x93, L, GN__FLOATS, 16,  4, GN_M_COSH(a), gn__mul(k, gy, gn__sinh(k, x0))) \
    U( ASINH,        asinh,        0x94, L, GN__FLOATS, 16,  4, GN_M_ASINH(a), gn__mul(k, gy, gn__rsqrt(k, gn__add(k, gn__num(k, 1), gn__mul(k, x0, x0))))) \
    U( ACOSH,        acosh,        0x95, L, GN__FLOATS, 16,  4, GN_M_ACOSH(a), gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__mul(k, x0, x0), gn__num(k, 1))))) \
    U( ATANH,        atanh,        0x96, L, GN__FLOATS, 16,  4, GN_M_ATANH(a), gn__div(k, gy, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0)))) \
    U( ERF,          erf,          0x97, F, GN__FLOATS, 16,  4, GN_M_ERF(a), gn__mul(k, gy, gn__mul(k, gn__exp(k, gn__neg(k, gn__mul(k, x0, x0))), gn__num(k, 1.12837916709551257390)))) \
    U( ERFC,         erfc,         0x98, F, GN__FLOATS, 16,  8, GN_M_ERFC(a), gn__mul(k, gy, gn__mul(k, gn__exp(k, gn__neg(k, gn__mul(k, x0, x0))), gn__num(k, -1.12837916709551257390)))) \
    U( SOFTPLUS,     softplus,     0x99, F, GN__FLOATS, 20,  4, GN_M_MAX(a, GN_C(0)) + GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a))), gn__mul(k, gy, gn__sigmoid(k, x0))) \
    U( SOFTSIGN,     softsign,     0x9a, F, GN__FLOATS,  5,  2, a / (GN_C(1) + GN_M_ABS(a)), gn__softsign_grad(k)) \
    U( HARD_SIGMOID, hard_sigmoid, 0x9b, F, GN__FLOATS,  4,  2, a <= GN_C(-3) ? GN_C(0) : a >= GN_C(3) ? GN_C(1) : (a + GN_C(3)) / GN_C(6), gn__hard_grad(k, gn__num(k, 1.0 / 6))) \
    U( HARD_SWISH,   hard_swish,   0x9c, F, GN__FLOATS,  5,  2, a <= GN_C(-3) ? GN_C(0) : a >= GN_C(3) ? a : a * (a + GN_C(3)) / GN_C(6), gn__hard_swish_grad(k)) \
    U( SELU,         selu,         0x9d, F, GN__FLOATS, 10,  4, GN_C(1.0507009873554804934) * (a > GN_C(0) ? a : GN_C(1.6732632423543772848) * GN_M_EXPM1(a)), gn__selu_grad(k)) \
    U( MISH,         mish,         0x9e, F, GN__FLOATS, 32,  8, a * GN_M_TANH(GN_M_MAX(a, GN_C(0)) + GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a)))), gn__mish_grad(k)) \
    U( LOG_SIGMOID,  log_sigmoid,  0x9f, F, GN__FLOATS, 20,  4, GN_M_MIN(a, GN_C(0)) - GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a))), gn__mul(k, gy, gn__sigmoid(k, gn__neg(k, x0)))) \
    B( ATAN2,        atan2,        0xa0, L, GN__FLOATS, 20,  4, GN_M_ATAN2(a, b), gn__div(k, gn__mul(k, gy, x1), gn__add(k, gn__mul(k, x0, x0), gn__mul(k, x1, x1))), gn__neg(k, gn__div(k, gn__mul(k, gy, x0), gn__add(k, gn__mul(k, x0, x0), gn__mul(k, x1, x1))))) \
    B( FMOD,         fmod,         0xa1, A, GN__NUMBERS,  8,  1, GN_M_FMOD(a, b), gy, gn__neg(k, gn__mul(k, gy, gn__trunc(k, gn__div(k, x0, x1))))) \
    B( REMAINDER,    remainder,    0xa2, A, GN__NUMBERS,  8,  2, GN_M_REMAINDER(a, b), gy, gn__neg(k, gn__mul(k, gy, gn__floor_divide(k, x0, x1)))) \
    B( FLOOR_DIVIDE, floor_divide, 0xa3, A, GN__NUMBERS,  8,  4, GN_M_FLOORDIV(a, b), gn__zeros_like(k, x0), gn__zeros_like(k, x1)) \
    B( HYPOT,        hypot,        0xa4, L, GN__FLOATS,  8,  4, GN_M_HYPOT(a, b), gn__div(k, gn__mul(k, gy, x0), y), gn__div(k, gn__mul(k, gy, x1), y)) \
    B( COPYSIGN,     copysign,     0xa5, F, GN__FLOATS,  1,  0, GN_M_COPYSIGN(a, b), gn__where(k, gn__eq(k, y, x0), gy, gn__neg(k, gy)), gn__zeros_like(k, x1)) \
    BN( SHIFT_LEFT,   shift_left,   0xa6, I, GN__INTS,  1,  1, GN_M_SHL(a, b)) \
    BN( SHIFT_RIGHT,  shift_right,  0xa7, I, GN__INTS,  1,  1, GN_M_SHR(a, b)) \
    T( FMA,          fma,          0xb0, A, GN__NUMBERS,  2,  1, GN_M_FMA(a, b, c), gn__mul(k, gy, x1), gn__mul(k, gy, x0), gy) \
    T( LERP,         lerp,         0xb1, F, GN__FLOATS,  4,  2, a * (GN_C(1) - c) + b * c, gn__mul(k, gy, gn__sub(k, gn__num(k, 1), x2)), gn__mul(k, gy, x2), gn__mul(k, gy, gn__sub(k, x1, x0)))

/* Leaves; gn_part_node.leaf says the kind. X(NAME, name, wire) */
#define GN__LEAF_OPS(X) X(DATA, data, 0x01) X(VALUE, value, 0x02) X(WEIGHT, weight, 0x03) X(STATE, state, 0x04)

typedef enum gn__op_index {
    GN__OP_FAILED,       /* a node that could not be built; never leaves the context */
#define GN__X(NAME, name, wire) GN__OP_##NAME,
    GN__LEAF_OPS(GN__X)
#undef GN__X
#define GN__U(NAME, ...) GN__OP_##NAME,
    GN__SCALAR_OPS(GN__U, GN__U, GN__U, GN__U, GN__U, GN__U, GN__U)
#undef GN__U
#define GN__X(NAME, ...) GN__OP_##NAME,
    GN_STRUCTURED_OPS(GN__X)
#undef GN__X
    GN__OP__COUNT
} gn__op_index;

/* What a shape rule sees and fills. */
typedef struct gn__infer_call {
    const gn__type *in;
    int n_in;
    const int64_t *attrs;
    int n_attrs;
    gn__type *out;
    gn_fault *fault;
} gn__infer_call;
typedef gn_result (*gn__infer_fn)(const gn__infer_call *c);
typedef double (*gn__cost_fn)(const gn__infer_call *c);    /* floating point operations */

/* What a structured kernel of the CPU executor sees. The output is dense. */
typedef struct gn__call {
    const gn_view *in;
    int n_in;
    gn_view out;
    const int64_t *attrs;
    int n_attrs;
    gn__pool *pool;
    gn_fault *fault;
} gn__call;
typedef gn_result (*gn__kernel)(const gn__call *c);

/* n elements: y[i] = body(x[0][i], x[1][i], …) in one compute type; p: parameters. Vector code goes in whole steps of GN__TILE_STEP:
 * there are that many elements of memory behind every pointer, and n is a multiple of it. */
enum { GN__TILE_STEP = 32 };
typedef void (*gn__tile_fn)(void *y, const void *const *x, const double *p, int64_t n);

typedef struct gn__grads gn__grads;                         /* see >>graph */
typedef void (*gn__grad_fn)(gn__grads *k);

typedef struct gn__op_row {
    const char *name, *text;
    uint16_t wire;
    uint8_t kind;               /* gn_op_class */
    uint8_t least, most;        /* inputs */
    int8_t n_attrs;             /* -1: the shape rule says */
    bool compares;
    uint32_t dtypes;
    double flops, tolerance;
    gn__infer_fn infer;
    gn__kernel cpu;
    gn__grad_fn grad;
    gn__tile_fn tile[GN__COMPUTE__COUNT];
    gn__tile_fn wide[GN__ISA__COUNT];   /* the f32 tile by instruction path */
} gn__op_row;

/* ---- scalar tiles: compiled for every compute type, those of f32 for every instruction path too. Bodies are never contracted,
 * so that all paths give the same bits ---- */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")
#endif
#define GN__TILE(NAME, R, body)                                                                              \
    GN__TARGET static void GN__PASTE(gn__tile_##NAME##_, GN__PATH)(void *y, const void *const *x, const double *p, int64_t n) { \
        R *restrict out = (R *)y;                                                                            \
        const GN__T *xa = (const GN__T *)x[0], *xb = (const GN__T *)x[1], *xc = (const GN__T *)x[2];         \
        const GN__T p0 = GN__PARAM(p[0]), p1 = GN__PARAM(p[1]);                                              \
        (void)p0; (void)p1;                                                                                  \
        const int64_t whole = n & ~(int64_t)(GN__TILE_STEP - 1);     /* says so to the compiler: no code for a rest */ \
        for (int64_t i = 0; i < whole; i++) { const GN__T a = xa[i], b = xb[i], c = xc[i]; (void)b; (void)c; out[i] = (R)(body); } \
    }
#define GN__TILE_U(NAME, name, wire, cls, mask, flops, tol, body, ...) GN__WHEN_##cls(GN__TILE(NAME, GN__T, body))
#define GN__TILE_C(NAME, name, wire, cls, mask, flops, tol, body) GN__WHEN_##cls(GN__TILE(NAME, int32_t, body))
#define GN__WHEN_A(...) __VA_ARGS__

#define GN__WHEN_L(...) __VA_ARGS__
#define GN__WHEN_F(...) __VA_ARGS__
#define GN__WHEN_I(...)
#define GN__SUFFIX f32
#define GN__PATH f32
#define GN__TARGET GN__TARGET_SMALL
#define GN__T float
#define GN__PARAM(x) ((float)(x))
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__PATH
#undef GN__TARGET
#if GN__X86
#undef GN__WHEN_L
#define GN__WHEN_L(...)
#define GN__PATH f32_avx2
#define GN__TARGET GN__TARGET_AVX2
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__PATH
#undef GN__TARGET
#undef GN__WHEN_F
#define GN__WHEN_F(...)                            /* polynomials gain little beyond AVX2: those tiles serve both */
#define GN__PATH f32_avx512
#define GN__TARGET GN__TARGET_AVX512
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__PATH
#undef GN__TARGET
#undef GN__WHEN_F
#define GN__WHEN_F(...) __VA_ARGS__
#endif
#undef GN__SUFFIX
#undef GN__T
#undef GN__PARAM
#undef GN__WHEN_L
#define GN__WHEN_L(...) __VA_ARGS__
#define GN__SUFFIX f64
#define GN__PATH f64
#define GN__TARGET GN__TARGET_SMALL
#define GN__T double
#define GN__PARAM(x) (x)
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__SUFFIX
#undef GN__PATH
#undef GN__TARGET
#undef GN__T
#undef GN__PARAM
#undef GN__WHEN_F
#undef GN__WHEN_I

#undef GN__WHEN_L
#define GN__WHEN_L(...)
#define GN__WHEN_F(...)
#define GN__WHEN_I(...) __VA_ARGS__
#define GN__SUFFIX i32
#define GN__PATH i32
#define GN__TARGET GN__TARGET_SMALL
#define GN__T int32_t
#define GN__PARAM(x) ((int32_t)gn__f64_int(x, GN_I32))
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__SUFFIX
#undef GN__PATH
#undef GN__TARGET
#undef GN__T
#undef GN__PARAM
#define GN__SUFFIX i64
#define GN__PATH i64
#define GN__TARGET GN__TARGET_SMALL
#define GN__T int64_t
#define GN__PARAM(x) gn__f64_int(x, GN_I64)
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__SUFFIX
#undef GN__PATH
#undef GN__TARGET
#undef GN__T
#undef GN__PARAM
#undef GN__WHEN_F
#undef GN__WHEN_I

/* WHERE: x[0] is a tile of i32 (bool), the others of the compute type. */
#define GN__DEFINE_WHERE(S, T)                                                                       \
    static void gn__tile_WHERE_##S(void *y, const void *const *x, const double *p, int64_t n) {      \
        const int32_t *c = (const int32_t *)x[0];                                                    \
        const T *a = (const T *)x[1], *b = (const T *)x[2];                                          \
        T *restrict out = (T *)y;                                                                    \
        (void)p;                                                                                     \
        for (int64_t i = 0; i < (n & ~(int64_t)(GN__TILE_STEP - 1)); i++) out[i] = c[i] ? a[i] : b[i]; \
    }
GN__DEFINE_WHERE(f32, float)
GN__DEFINE_WHERE(f64, double)
GN__DEFINE_WHERE(i32, int32_t)
GN__DEFINE_WHERE(i64, int64_t)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

/* CAST of a tile between dtypes' compute types. Float to integer saturates at the target's range; narrower floats are rounded. */
static void gn__tile_cast(void *y, gn_dtype to, const void *x, gn_dtype from, int64_t n) {
    uint8_t cy = gn__dtypes[to].compute, cx = gn__dtypes[from].compute;
    for (int64_t i = 0; i < n; i++) {
        if (cx == GN__F32 || cx == GN__F64) {
            double v = cx == GN__F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
            if (cy == GN__F64) ((double *)y)[i] = v;
            else if (cy == GN__F32) ((float *)y)[i] = to == GN_F16 ? gn__f16_f32(gn__f32_f16(gn__f64_f32_odd(v))) : to == GN_BF16 ? gn__bf16_f32(gn__f32_bf16(gn__f64_f32_odd(v))) : (float)v;
            else if (cy == GN__I32) ((int32_t *)y)[i] = (int32_t)gn__f64_int(v, to);
            else ((int64_t *)y)[i] = gn__f64_int(v, to);
        } else {
            int64_t v = cx == GN__I32 ? (int64_t)((const int32_t *)x)[i] : ((const int64_t *)x)[i];
            if (cy == GN__F64) ((double *)y)[i] = (double)v;
            else if (cy == GN__F32) ((float *)y)[i] = to == GN_F16 ? gn__f16_f32(gn__f32_f16((float)v)) : to == GN_BF16 ? gn__bf16_f32(gn__f32_bf16((float)v)) : (float)v;
            else if (cy == GN__I32) ((int32_t *)y)[i] = (int32_t)gn__wrap(v, to);
            else ((int64_t *)y)[i] = gn__wrap(v, to);
        }
    }
}

/* ---- shape rules shared by several ops ---- */

static int gn__axis(int64_t axis, int rank) {   /* -1 when out of range */
    if (axis < 0) axis += rank;
    return axis >= 0 && axis < rank ? (int)axis : -1;
}

static gn_result gn__infer_axis(const gn__infer_call *c, int64_t attr, int *out_axis) {
    *out_axis = gn__axis(attr, c->in[0].shape.rank);
    if (*out_axis >= 0) return GN_OK;
    return gn_fail(c->fault, GN_BAD_RANK, "axis %lld is outside a tensor of rank %d", (long long)attr, c->in[0].shape.rank);
}

static gn_result gn__bad_shapes(const gn__infer_call *c, const char *why) {
    char text[3][96] = { "", "", "" };
    for (int i = 0; i < c->n_in && i < 3; i++) gn__type_text(&c->in[i], text[i], sizeof text[i]);
    return gn_fail(c->fault, GN_BAD_SHAPE, "%s: %s%s%s%s%s", why, text[0], c->n_in > 1 ? " with " : "", text[1], c->n_in > 2 ? " and " : "", text[2]);
}

static gn_result gn__want_dtype(const gn__infer_call *c, int i, uint32_t mask, const char *what) {
    if (GN__BIT(c->in[i].dtype) & mask) return GN_OK;
    return gn_fail(c->fault, GN_BAD_DTYPE, "%s cannot be %s", what, gn__dtypes[c->in[i].dtype].name);
}

static gn_result gn__same_dtype(const gn__infer_call *c, int i) {
    if (c->in[i].dtype == c->in[0].dtype) return GN_OK;
    return gn_fail(c->fault, GN_BAD_DTYPE, "inputs of one dtype are needed, not %s and %s", gn__dtypes[c->in[0].dtype].name, gn__dtypes[c->in[i].dtype].name);
}

static gn_result gn__infer_scalar(const gn__infer_call *c) {
    *c->out = c->in[0];
    for (int i = 1; i < c->n_in; i++) {
        gn_result r = gn__same_dtype(c, i);
        if (r != GN_OK) return r;
        if (!gn__broadcast_shapes(&c->out->shape, &c->in[i].shape, &c->out->shape)) return gn__bad_shapes(c, "these shapes do not broadcast");
    }
    return GN_OK;
}

static gn_result gn__infer_compare(const gn__infer_call *c) {
    gn_result r = gn__infer_scalar(c);
    c->out->dtype = GN_BOOL;
    return r;
}

static gn_result gn__infer_where(const gn__infer_call *c) {
    gn_result r = gn__want_dtype(c, 0, GN__BIT(GN_BOOL), "the condition of where");
    if (r != GN_OK) return r;
    if (c->in[1].dtype != c->in[2].dtype) return gn_fail(c->fault, GN_BAD_DTYPE, "both choices of where need one dtype");
    *c->out = c->in[1];
    if (!gn__broadcast_shapes(&c->in[1].shape, &c->in[2].shape, &c->out->shape) || !gn__broadcast_shapes(&c->out->shape, &c->in[0].shape, &c->out->shape))
        return gn__bad_shapes(c, "these shapes do not broadcast");
    return GN_OK;
}

static gn_result gn__infer_dtype_attr(const gn__infer_call *c, int64_t attr, uint32_t mask, gn_dtype *out) {
    if (attr <= 0 || attr >= GN_DTYPE__COUNT || !(GN__BIT(attr) & mask)) return gn_fail(c->fault, GN_BAD_DTYPE, "dtype %lld cannot be used here", (long long)attr);
    *out = (gn_dtype)attr;
    return GN_OK;
}

static gn_result gn__infer_cast(const gn__infer_call *c) {
    *c->out = c->in[0];
    return gn__infer_dtype_attr(c, c->attrs[0], GN__ALL, &c->out->dtype);
}

/* Dims given as attributes, from word `first` on. */
static gn_result gn__infer_dims(const gn__infer_call *c, int first, gn_shape *out) {
    int rank = c->n_attrs - first;
    if (rank < 0 || rank > GN_MAX_RANK) return gn_fail(c->fault, GN_BAD_RANK, "rank %d is outside 0 to %d", rank, GN_MAX_RANK);
    out->rank = rank;
    for (int i = 0; i < rank; i++) out->dims[i] = c->attrs[first + i];
    return gn__shape_ok(out) ? GN_OK : gn_fail(c->fault, GN_BAD_SHAPE, "a dimension is negative or the tensor too large");
}

GN__COLD_BEGIN
/* ---- generators ---- */

static gn_result gn__infer_full(const gn__infer_call *c) {
    if (c->n_attrs < 2) return gn_fail(c->fault, GN_BAD_ARGUMENT, "dtype and value are needed");
    gn_result r = gn__infer_dtype_attr(c, c->attrs[0], GN__ALL, &c->out->dtype);
    return r != GN_OK ? r : gn__infer_dims(c, 2, &c->out->shape);
}

static gn_result gn__infer_arange(const gn__infer_call *c) {
    gn_result r = gn__infer_dtype_attr(c, c->attrs[0], GN__NUMBERS, &c->out->dtype);
    if (r != GN_OK) return r;
    c->out->shape = GN_SHAPE(c->attrs[1]);
    return gn__shape_ok(&c->out->shape) ? GN_OK : gn_fail(c->fault, GN_BAD_SHAPE, "%lld elements are not possible", (long long)c->attrs[1]);
}

static gn_result gn__infer_random(const gn__infer_call *c) {
    if (c->n_attrs < 2) return gn_fail(c->fault, GN_BAD_ARGUMENT, "dtype and key are needed");
    if (c->in[0].shape.rank != 0) return gn__bad_shapes(c, "the counter must be 0-d");
    gn_result r = gn__infer_dtype_attr(c, c->attrs[0], GN__FLOATS, &c->out->dtype);
    return r != GN_OK ? r : gn__infer_dims(c, 2, &c->out->shape);
}
#define gn__infer_random_uniform gn__infer_random
#define gn__infer_random_normal gn__infer_random

/* One value, given as double, into every element of a dense view. */
static gn_result gn__cpu_full(const gn__call *c) {
    size_t bytes = gn__bytes_of(c->out.dtype);
    int64_t n = gn__view_count(&c->out);
    double v = gn__word_f64(c->attrs[1]);
    char one[8];
    if (n == 0) return GN_OK;
    if (gn__is_float(c->out.dtype)) gn__store_f64(&v, c->out.dtype, one, 1, 1);
    else { int64_t w = gn__f64_int(v, c->out.dtype); gn__store_i64(&w, c->out.dtype, one, 1, 1); }
    for (int64_t i = 0; i < n; i++) memcpy(c->out.p + i * (int64_t)bytes, one, bytes);
    return GN_OK;
}

static gn_result gn__cpu_arange(const gn__call *c) {
    double start = gn__word_f64(c->attrs[2]), step = gn__word_f64(c->attrs[3]);
    size_t bytes = gn__bytes_of(c->out.dtype);
    for (int64_t i = 0; i < c->out.dims[0]; i++) {
        double v = start + (double)i * step;
        int64_t w = gn__f64_int(v, c->out.dtype);
        if (gn__is_float(c->out.dtype)) gn__store_f64(&v, c->out.dtype, c->out.p + i * (int64_t)bytes, 1, 1);
        else gn__store_i64(&w, c->out.dtype, c->out.p + i * (int64_t)bytes, 1, 1);
    }
    return GN_OK;
}

/* Philox4x32-10: counter (4 words) and key (2 words) to 4 random words. */
static void gn__philox(uint32_t ctr[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * ctr[0], b = (uint64_t)0xCD9E8D57u * ctr[2];
        uint32_t n0 = (uint32_t)(b >> 32) ^ ctr[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ ctr[3] ^ k1;
        ctr[1] = (uint32_t)b;
        ctr[3] = (uint32_t)a;
        ctr[0] = n0;
        ctr[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* 64 random bits of element i: counter words {i low, i high, run low, run high}, key from the attribute. */
static void gn__random_bits(const gn__call *c, int64_t run, int64_t i, uint32_t out[4]) {
    uint64_t key = (uint64_t)c->attrs[1];
    out[0] = (uint32_t)(uint64_t)i;
    out[1] = (uint32_t)((uint64_t)i >> 32);
    out[2] = (uint32_t)(uint64_t)run;
    out[3] = (uint32_t)((uint64_t)run >> 32);
    gn__philox(out, (uint32_t)key, (uint32_t)(key >> 32));
}

typedef struct gn__random_job { const gn__call *c; int64_t run; bool normal; } gn__random_job;

static void gn__random_range(void *arg, int64_t begin, int64_t end) {
    const gn__random_job *j = (const gn__random_job *)arg;
    gn_dtype d = j->c->out.dtype;
    size_t bytes = gn__bytes_of(d);
    for (int64_t i = begin; i < end; i++) {
        uint32_t w[4];
        gn__random_bits(j->c, j->run, i, w);
        double wide = (double)((((uint64_t)w[1] << 32) | w[0]) >> 11) * 0x1p-53;        /* [0, 1), 53 bits */
        double v = d == GN_F64 ? wide : (double)(w[0] >> (d == GN_F32 ? 8 : d == GN_F16 ? 21 : 24)) * (d == GN_F32 ? 0x1p-24 : d == GN_F16 ? 0x1p-11 : 0x1p-8);
        if (j->normal)                                                                   /* Box-Muller on (0, 1] and [0, 1) */
            v = sqrt(-2.0 * log(1.0 - wide)) * cos(6.283185307179586477 * ((double)((((uint64_t)w[3] << 32) | w[2]) >> 11) * 0x1p-53));
        gn__store_f64(&v, d, j->c->out.p + i * (int64_t)bytes, 1, 1);
    }
}

static gn_result gn__random(const gn__call *c, bool normal) {
    gn__random_job j = { c, gn__read_int(GN_I64, c->in[0].p), normal };
    gn__pool_for(c->pool, gn__view_count(&c->out), 4096, gn__random_range, &j);
    return GN_OK;
}
static gn_result gn__cpu_random_uniform(const gn__call *c) { return gn__random(c, false); }
static gn_result gn__cpu_random_normal(const gn__call *c) { return gn__random(c, true); }
GN__COLD_END

/* ---- reductions: attrs = axes as bits, keep ---- */

static gn_result gn__infer_reduce(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape;
    if (c->attrs[0] < 0 || c->attrs[0] >> s.rank) return gn_fail(c->fault, GN_BAD_RANK, "an axis is outside a tensor of rank %d", s.rank);
    c->out->dtype = c->in[0].dtype;
    c->out->shape.rank = 0;
    for (int i = 0; i < s.rank; i++) {
        bool reduced = (c->attrs[0] >> i) & 1;
        if (!reduced || c->attrs[1]) c->out->shape.dims[c->out->shape.rank++] = reduced ? 1 : s.dims[i];
    }
    return GN_OK;
}

static gn_result gn__infer_mean(const gn__infer_call *c) { return gn__infer_reduce(c); }

static gn_result gn__infer_sum(const gn__infer_call *c) {
    gn_result r = gn__infer_reduce(c);
    if (!gn__is_float(c->in[0].dtype)) c->out->dtype = GN_I64;
    return r;
}

static gn_result gn__infer_max(const gn__infer_call *c) {
    gn_result r = gn__infer_reduce(c);
    for (int i = 0; r == GN_OK && i < c->in[0].shape.rank; i++)
        if (((c->attrs[0] >> i) & 1) && c->in[0].shape.dims[i] == 0) return gn__bad_shapes(c, "nothing to choose from");
    return r;
}
#define gn__infer_min gn__infer_max

static gn_result gn__infer_argmax(const gn__infer_call *c) {
    gn_result r = gn__infer_max(c);
    c->out->dtype = GN_I64;
    return r;
}
#define gn__infer_argmin gn__infer_argmax
#define gn__infer_prod gn__infer_sum

typedef enum gn__reduce_kind { GN__REDUCE_SUM, GN__REDUCE_MEAN, GN__REDUCE_PROD, GN__REDUCE_MAX, GN__REDUCE_MIN, GN__REDUCE_ARGMAX, GN__REDUCE_ARGMIN } gn__reduce_kind;

typedef struct gn__reduce_job {
    const gn__call *c;
    gn__reduce_kind kind;
    gn_view kept, reduced;    /* the input's dims split in two; both start at the input's first element */
    int64_t n, inner;          /* reduced elements, and of its last dim */
    bool integer;
} gn__reduce_job;

enum { GN__CHUNK = 512 };      /* elements of a stack buffer */

enum { GN__LANES = 32 };       /* running sums of a row */

/* The innermost loops of f32 rows and products, for one instruction path. */
typedef struct gn__kernels {
    int mr, nr;
    /* C tile (mr x nr, row stride ldc) = or += packed A (k x mr) * packed B (k x nr) */
    void (*micro)(const float *a, const float *b, float *c, int64_t ldc, int64_t k, bool add);
    /* y[n] += x[0] b[0][n] + … + x[rows - 1] b[rows - 1][n], in that order; rows are ldb apart */
    void (*axpy)(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t n);
    /* y[rows] += x . b[row]; GN__LANES running sums, combined in a fixed order */
    void (*dot)(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t k);
    float (*top)(const float *x, int64_t n, float sign);             /* largest of sign * x, NaN if there is one */
    void (*affine)(float *y, const float *x, int64_t n, float sub, float mul);   /* (x - sub) * mul */
    void (*gain)(float *y, const float *g, const float *b, int64_t n);           /* y * g + b; one of them may be NULL */
} gn__kernels;

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2,no-tree-vectorize,fp-contract=fast")      /* vectors are written out */
#define GN__UNROLL _Pragma("GCC unroll 16")
#define GN__CONTRACT
#elif defined(__clang__)
#define GN__UNROLL _Pragma("clang loop unroll(full)")
#define GN__CONTRACT _Pragma("STDC FP_CONTRACT ON")
#else
#define GN__UNROLL
#define GN__CONTRACT
#endif

/* Half the lanes onto the other half, until one is left. */
GN__INLINE float gn__lanes_sum(float *s) {
    for (int w = GN__LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++) s[l] += s[l + w];
    return s[0];
}

#if defined(__GNUC__) || defined(__clang__)
#define GN__DEFINE_MICRO(S, attribute, W, MR, NV)                                                            \
    attribute static void gn__micro_##S(const float *a, const float *b, float *c, int64_t ldc, int64_t k, bool add) { \
        GN__CONTRACT                                                                                         \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        vec acc[MR][NV];                                                                                     \
        GN__UNROLL for (int i = 0; i < MR; i++) { GN__UNROLL for (int v = 0; v < NV; v++) acc[i][v] = (vec){ 0 }; } \
        for (int64_t l = 0; l < k; l++, a += MR, b += W * NV) {                                              \
            vec w[NV];                                                                                       \
            GN__UNROLL for (int v = 0; v < NV; v++) w[v] = *(const vec *)(b + v * W);                        \
            GN__UNROLL for (int i = 0; i < MR; i++) { GN__UNROLL for (int v = 0; v < NV; v++) acc[i][v] += a[i] * w[v]; } \
        }                                                                                                    \
        GN__UNROLL for (int i = 0; i < MR; i++) {                                                            \
            GN__UNROLL for (int v = 0; v < NV; v++) {                                                        \
                vec *to = (vec *)(c + i * ldc + v * W);                                                      \
                if (add) acc[i][v] += *to;                                                                   \
                *to = acc[i][v];                                                                             \
            }                                                                                                \
        }                                                                                                    \
    }
#define GN__DEFINE_DOT(S, attribute, W)                                                                      \
    attribute static void gn__dot_##S(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t k) { \
        GN__CONTRACT                                                                                         \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        for (int64_t r = 0; r < rows; r++, b += ldb) {                                                       \
            vec acc[GN__LANES / W];                                                                          \
            float s[GN__LANES];                                                                              \
            int64_t l = 0;                                                                                   \
            GN__UNROLL for (int v = 0; v < GN__LANES / W; v++) acc[v] = (vec){ 0 };                          \
            for (; l + GN__LANES <= k; l += GN__LANES) {                                                     \
                GN__UNROLL for (int v = 0; v < GN__LANES / W; v++) acc[v] += *(const vec *)(x + l + v * W) * *(const vec *)(b + l + v * W); \
            }                                                                                                \
            memcpy(s, acc, sizeof s);                                                                        \
            for (int i = 0; l < k; l++, i++) s[i] += x[l] * b[l];                                            \
            y[r] += gn__lanes_sum(s);                                                                        \
        }                                                                                                    \
    }
#define GN__DEFINE_AXPY(S, attribute, W)                                                                     \
    attribute static void gn__axpy_##S(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t n) { \
        GN__CONTRACT                                                                                         \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        for (; rows >= 4; rows -= 4, x += 4, b += 4 * ldb) {                                                 \
            const float *b1 = b + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb, x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3]; \
            int64_t i = 0;                                                                                   \
            for (; i + W <= n; i += W) {                                                                     \
                vec t = *(const vec *)(y + i);                                                               \
                t += x0 * *(const vec *)(b + i);                                                             \
                t += x1 * *(const vec *)(b1 + i);                                                            \
                t += x2 * *(const vec *)(b2 + i);                                                            \
                t += x3 * *(const vec *)(b3 + i);                                                            \
                *(vec *)(y + i) = t;                                                                         \
            }                                                                                                \
            for (; i < n; i++) { float t = y[i]; t += x0 * b[i]; t += x1 * b1[i]; t += x2 * b2[i]; t += x3 * b3[i]; y[i] = t; } \
        }                                                                                                    \
        for (; rows > 0; rows--, x++, b += ldb) {                                                            \
            int64_t i = 0;                                                                                   \
            for (; i + W <= n; i += W) *(vec *)(y + i) += x[0] * *(const vec *)(b + i);                      \
            for (; i < n; i++) y[i] += x[0] * b[i];                                                          \
        }                                                                                                    \
    }
#define GN__DEFINE_MAPS(S, attribute, W)                                                                     \
    attribute static void gn__affine_##S(float *y, const float *x, int64_t n, float sub, float mul) {        \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        int64_t i = 0;                                                                                       \
        for (; i + W <= n; i += W) *(vec *)(y + i) = (*(const vec *)(x + i) - sub) * mul;                    \
        for (; i < n; i++) y[i] = (x[i] - sub) * mul;                                                        \
    }                                                                                                        \
    attribute static void gn__gain_##S(float *y, const float *g, const float *b, int64_t n) {                \
        GN__CONTRACT                                                                                         \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        int64_t i = 0;                                                                                       \
        for (; i + W <= n; i += W) {                                                                         \
            vec t = *(const vec *)(y + i);                                                                   \
            *(vec *)(y + i) = g && b ? t * *(const vec *)(g + i) + *(const vec *)(b + i) : g ? t * *(const vec *)(g + i) : t + *(const vec *)(b + i); \
        }                                                                                                    \
        for (; i < n; i++) y[i] = g && b ? y[i] * g[i] + b[i] : g ? y[i] * g[i] : y[i] + b[i];               \
    }
#else
#define GN__DEFINE_MICRO(S, attribute, W, MR, NV)                                                            \
    static void gn__micro_##S(const float *a, const float *b, float *c, int64_t ldc, int64_t k, bool add) {  \
        float acc[MR][W * NV] = { { 0 } };                                                                   \
        for (int64_t l = 0; l < k; l++, a += MR, b += W * NV)                                                \
            for (int i = 0; i < MR; i++)                                                                     \
                for (int v = 0; v < W * NV; v++) acc[i][v] += a[i] * b[v];                                   \
        for (int i = 0; i < MR; i++)                                                                         \
            for (int v = 0; v < W * NV; v++) c[i * ldc + v] = add ? c[i * ldc + v] + acc[i][v] : acc[i][v];  \
    }
#define GN__DEFINE_DOT(S, attribute, W)                                                                      \
    static void gn__dot_##S(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t k) { \
        for (int64_t r = 0; r < rows; r++, b += ldb) {                                                       \
            float s[GN__LANES] = { 0 };                                                                      \
            for (int64_t l = 0; l < k; l++) s[l % GN__LANES] += x[l] * b[l];                                 \
            y[r] += gn__lanes_sum(s);                                                                        \
        }                                                                                                    \
    }
#define GN__DEFINE_AXPY(S, attribute, W)                                                                     \
    static void gn__axpy_##S(float *y, const float *x, const float *b, int64_t ldb, int64_t rows, int64_t n) { \
        for (; rows > 0; rows--, x++, b += ldb)                                                              \
            for (int64_t i = 0; i < n; i++) y[i] += x[0] * b[i];                                             \
    }
#define GN__DEFINE_MAPS(S, attribute, W)                                                                     \
    static void gn__affine_##S(float *y, const float *x, int64_t n, float sub, float mul) {                  \
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - sub) * mul;                                           \
    }                                                                                                        \
    static void gn__gain_##S(float *y, const float *g, const float *b, int64_t n) {                          \
        for (int64_t i = 0; i < n; i++) y[i] = g && b ? y[i] * g[i] + b[i] : g ? y[i] * g[i] : y[i] + b[i];  \
    }
#endif
#if defined(__GNUC__) || defined(__clang__)
#define GN__DEFINE_TOP(S, attribute, W)                                                                      \
    attribute static float gn__top_##S(const float *x, int64_t n, float sign) {                              \
        typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));                        \
        typedef int32_t ivec __attribute__((vector_size(W * 4)));                                            \
        vec m[GN__LANES / W];                                                                                \
        float s[GN__LANES], best;                                                                            \
        int64_t i = 0;                                                                                       \
        GN__UNROLL for (int v = 0; v < GN__LANES / W; v++) m[v] = (vec){ 0 } - INFINITY;                     \
        for (; i + GN__LANES <= n; i += GN__LANES) {                                                         \
            GN__UNROLL for (int v = 0; v < GN__LANES / W; v++) {                                             \
                vec t = sign * *(const vec *)(x + i + v * W);                                                \
                ivec take = (t > m[v]) | (t != t);                                                           \
                m[v] = (vec)(((ivec)t & take) | ((ivec)m[v] & ~take));                                       \
            }                                                                                                \
        }                                                                                                    \
        memcpy(s, m, sizeof s);                                                                              \
        best = s[0];                                                                                         \
        for (int l = 1; l < GN__LANES; l++) best = s[l] > best || s[l] != s[l] ? s[l] : best;                \
        for (; i < n; i++) best = sign * x[i] > best || x[i] != x[i] ? sign * x[i] : best;                   \
        return best;                                                                                         \
    }
#else
#define GN__DEFINE_TOP(S, attribute, W)                                                                      \
    static float gn__top_##S(const float *x, int64_t n, float sign) {                                        \
        float best = -INFINITY;                                                                              \
        for (int64_t i = 0; i < n; i++) best = sign * x[i] > best || x[i] != x[i] ? sign * x[i] : best;      \
        return best;                                                                                         \
    }
#endif
#define GN__DEFINE_KERNELS(S, attribute, W, MR, NV) \
    GN__DEFINE_TOP(S, attribute, W)                 \
    GN__DEFINE_MAPS(S, attribute, W)                \
    GN__DEFINE_MICRO(S, attribute, W, MR, NV)       \
    GN__DEFINE_DOT(S, attribute, W)                 \
    GN__DEFINE_AXPY(S, attribute, W)
#define GN__KERNELS(S, W, MR, NV) { MR, W * NV, gn__micro_##S, gn__axpy_##S, gn__dot_##S, gn__top_##S, gn__affine_##S, gn__gain_##S }

#if defined(__aarch64__)
#define GN__BASE_SHAPE 4, 8, 2        /* NEON: 16 of 32 registers hold sums */
#else
#define GN__BASE_SHAPE 4, 4, 2
#endif
#define GN__EXPAND(macro, ...) macro(__VA_ARGS__)
GN__EXPAND(GN__DEFINE_KERNELS, base, , GN__BASE_SHAPE)
#if GN__X86
GN__DEFINE_KERNELS(avx2, GN__TARGET_AVX2, 8, 6, 2)
GN__DEFINE_KERNELS(avx512, GN__TARGET_AVX512, 16, 14, 2)
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static const gn__kernels gn__kernel_sets[GN__ISA__COUNT] = {
    GN__EXPAND(GN__KERNELS, base, GN__BASE_SHAPE),
#if GN__X86
    GN__KERNELS(avx2, 8, 6, 2), GN__KERNELS(avx512, 16, 14, 2),
#endif
};

static const gn__kernels *gn__kernels_of(const gn__pool *p) { return &gn__kernel_sets[p ? p->isa : GN__ISA_BASE]; }

/* y = exp(x), n elements of f32. */
static void gn__exp_f32(const gn__pool *p, float *y, const float *x, int64_t n) {
#if GN__X86
    static const gn__tile_fn tiles[GN__ISA__COUNT] = { gn__tile_EXP_f32, gn__tile_EXP_f32_avx2, gn__tile_EXP_f32_avx2 };
#else
    static const gn__tile_fn tiles[GN__ISA__COUNT] = { gn__tile_EXP_f32 };
#endif
    float rest[GN__TILE_STEP] = { 0 };
    const void *in[3] = { x, x, x }, *last[3] = { rest, rest, rest };
    const double none[2] = { 0, 0 };
    int64_t whole = n & ~(int64_t)(GN__TILE_STEP - 1);
    tiles[p ? p->isa : GN__ISA_BASE](y, in, none, whole);
    memcpy(rest, x + whole, (size_t)(n - whole) * sizeof *rest);
    tiles[p ? p->isa : GN__ISA_BASE](rest, last, none, whole < n ? GN__TILE_STEP : 0);
    memcpy(y + whole, rest, (size_t)(n - whole) * sizeof *rest);
}

/* Sum over a row of f32: lanes within pieces, pieces in f64. */
enum { GN__PIECE = 256 };

static double gn__sum_f32(const gn__kernels *k, const float *x, int64_t n) {
#define GN__ONES8 1, 1, 1, 1, 1, 1, 1, 1
#define GN__ONES64 GN__ONES8, GN__ONES8, GN__ONES8, GN__ONES8, GN__ONES8, GN__ONES8, GN__ONES8, GN__ONES8
    static const float ones[GN__PIECE] = { GN__ONES64, GN__ONES64, GN__ONES64, GN__ONES64 };
    double sum = 0;
    for (int64_t i = 0; i < n; i += GN__PIECE) {
        float s = 0;
        k->dot(&s, ones, x + i, 0, 1, GN__MIN(n - i, (int64_t)GN__PIECE));
        sum += (double)s;
    }
    return sum;
}


/* Eight running sums, combined in a fixed order: independent of threads, and vectorisable. */
static double gn__sum_f64(const double *x, int64_t n) {
    double s[8] = { 0 };
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) s[l] += x[i + l];
    for (; i < n; i++) s[i & 7] += x[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

typedef struct gn__best { double f; int64_t i, at; bool any; } gn__best;

static void gn__best_f64(gn__best *b, gn__reduce_kind kind, const double *x, int64_t n, int64_t at) {
    bool least = kind == GN__REDUCE_MIN || kind == GN__REDUCE_ARGMIN;
    for (int64_t i = 0; i < n; i++) {
        bool nan = x[i] != x[i], had_nan = b->f != b->f;
        bool better = least ? x[i] < b->f : x[i] > b->f;
        if (b->any && !(better && !had_nan) && !(nan && !had_nan)) continue;
        b->f = x[i];
        b->at = at + i;
        b->any = true;
    }
}

static void gn__best_i64(gn__best *b, gn__reduce_kind kind, const int64_t *x, int64_t n, int64_t at) {
    bool least = kind == GN__REDUCE_MIN || kind == GN__REDUCE_ARGMIN;
    for (int64_t i = 0; i < n; i++) {
        if (b->any && !(least ? x[i] < b->i : x[i] > b->i)) continue;
        b->i = x[i];
        b->at = at + i;
        b->any = true;
    }
}

static void gn__reduce_one(const gn__reduce_job *j, int64_t at) {
    const gn_view *in = &j->c->in[0], *out = &j->c->out;
    size_t bytes = gn__bytes_of(in->dtype), out_bytes = gn__bytes_of(out->dtype);
    const char *base = in->p + gn__view_offset(&j->kept, j->kept.rank, at) * (int64_t)bytes;
    int64_t stride = j->reduced.rank ? j->reduced.strides[j->reduced.rank - 1] : 1;
    gn__best best = { 0, 0, 0, false };
    double sum = j->kind == GN__REDUCE_PROD;
    uint64_t isum = j->kind == GN__REDUCE_PROD;
    union { double f[GN__CHUNK]; int64_t i[GN__CHUNK]; } x;
    for (int64_t row = 0; j->n && row < j->n / j->inner; row++) {
        const char *p = base + gn__view_offset(&j->reduced, GN__MAX(j->reduced.rank - 1, 0), row) * (int64_t)bytes;
        for (int64_t i = 0; i < j->inner; i += GN__CHUNK) {
            int64_t m = GN__MIN(j->inner - i, (int64_t)GN__CHUNK);
            const char *q = p + i * stride * (int64_t)bytes;
            if (j->integer) gn__load_i64(x.i, in->dtype, q, stride, m);
            else gn__load_f64(x.f, in->dtype, q, stride, m);
            if (j->kind >= GN__REDUCE_MAX && j->integer) gn__best_i64(&best, j->kind, x.i, m, row * j->inner + i);
            else if (j->kind >= GN__REDUCE_MAX) gn__best_f64(&best, j->kind, x.f, m, row * j->inner + i);
            else if (j->kind == GN__REDUCE_PROD && j->integer) for (int64_t l = 0; l < m; l++) isum *= (uint64_t)x.i[l];
            else if (j->kind == GN__REDUCE_PROD) for (int64_t l = 0; l < m; l++) sum *= x.f[l];
            else if (j->integer) for (int64_t l = 0; l < m; l++) isum += (uint64_t)x.i[l];
            else sum += gn__sum_f64(x.f, m);
        }
    }
    char *o = out->p + at * (int64_t)out_bytes;
    int64_t whole = j->kind >= GN__REDUCE_ARGMAX ? best.at : j->kind >= GN__REDUCE_MAX ? best.i : (int64_t)isum;
    double real = j->kind >= GN__REDUCE_MAX ? best.f : j->kind == GN__REDUCE_MEAN ? sum / (double)j->n : sum;
    if (gn__is_float(out->dtype)) gn__store_f64(&real, out->dtype, o, 1, 1);
    else gn__store_i64(&whole, out->dtype, o, 1, 1);
}

/* Sums and extremes of f32 whose elements lie in a row. */
static bool gn__reduce_row_f32(const gn__reduce_job *j, int64_t at) {
    const gn_view *in = &j->c->in[0];
    bool sums = j->kind == GN__REDUCE_SUM || j->kind == GN__REDUCE_MEAN, tops = j->kind == GN__REDUCE_MAX || j->kind == GN__REDUCE_MIN;
    if (in->dtype != GN_F32 || j->reduced.rank == 0 || j->reduced.strides[j->reduced.rank - 1] != 1 || j->n < 16 || !(sums || tops)) return false;
    const gn__kernels *k = gn__kernels_of(j->c->pool);
    const float *base = (const float *)(const void *)in->p + gn__view_offset(&j->kept, j->kept.rank, at);
    float sign = j->kind == GN__REDUCE_MIN ? -1 : 1, best = -INFINITY;
    double sum = 0;
    for (int64_t row = 0; row < j->n / j->inner; row++) {
        const float *p = base + gn__view_offset(&j->reduced, j->reduced.rank - 1, row);
        float t = tops ? k->top(p, j->inner, sign) : 0;
        if (sums) sum += gn__sum_f32(k, p, j->inner);
        else best = t > best || t != t ? t : best;
    }
    ((float *)(void *)j->c->out.p)[at] = tops ? sign * best : (float)(j->kind == GN__REDUCE_MEAN ? sum / (double)j->n : sum);
    return true;
}

/* Sums down columns: a block of neighbours at a time, in f64. */
static void gn__reduce_columns(void *arg, int64_t begin, int64_t end) {
    const gn__reduce_job *j = (const gn__reduce_job *)arg;
    const gn_view *in = &j->c->in[0];
    int64_t width = j->kept.dims[j->kept.rank - 1], bytes = (int64_t)gn__bytes_of(in->dtype), blocks = (width + GN__CHUNK - 1) / GN__CHUNK;
    double x[GN__CHUNK], sum[GN__CHUNK];
    for (int64_t t = begin; t < end; t++) {
        int64_t outer = t / blocks, col = t % blocks * GN__CHUNK, m = GN__MIN(width - col, (int64_t)GN__CHUNK);
        const char *base = in->p + (gn__view_offset(&j->kept, j->kept.rank - 1, outer) + col) * bytes;
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r < j->n; r++) {
            gn__load_f64(x, in->dtype, base + gn__view_offset(&j->reduced, j->reduced.rank, r) * bytes, 1, m);
            for (int64_t i = 0; i < m; i++) sum[i] += x[i];
        }
        for (int64_t i = 0; i < m && j->kind == GN__REDUCE_MEAN; i++) sum[i] /= (double)j->n;
        gn__store_f64(sum, j->c->out.dtype, j->c->out.p + (outer * width + col) * bytes, 1, m);
    }
}

static void gn__reduce_range(void *arg, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        if (!gn__reduce_row_f32((const gn__reduce_job *)arg, i)) gn__reduce_one((const gn__reduce_job *)arg, i);
}

static gn_result gn__reduce(const gn__call *c, gn__reduce_kind kind) {
    gn__reduce_job j = { c, kind, c->in[0], c->in[0], 1, 1, !gn__is_float(c->in[0].dtype) };
    j.kept.rank = j.reduced.rank = 0;
    for (int i = 0; i < c->in[0].rank; i++) {
        gn_view *v = (c->attrs[0] >> i) & 1 ? &j.reduced : &j.kept;
        v->dims[v->rank] = c->in[0].dims[i];
        v->strides[v->rank++] = c->in[0].strides[i];
    }
    j.n = gn__view_count(&j.reduced);
    if (j.reduced.rank) j.inner = j.reduced.dims[j.reduced.rank - 1];
    int64_t width = j.kept.rank ? j.kept.dims[j.kept.rank - 1] : 0;
    if ((kind == GN__REDUCE_SUM || kind == GN__REDUCE_MEAN) && !j.integer && j.reduced.rank && width >= 8 && j.kept.strides[j.kept.rank - 1] == 1 && j.reduced.strides[j.reduced.rank - 1] != 1) {
        gn__pool_for(c->pool, gn__view_count(&j.kept) / width * ((width + GN__CHUNK - 1) / GN__CHUNK), 1 + 16384 / GN__MAX(j.n * GN__CHUNK, 1), gn__reduce_columns, &j);
        return GN_OK;
    }
    gn__pool_for(c->pool, gn__view_count(&j.kept), 1 + 16384 / GN__MAX(j.n, 1), gn__reduce_range, &j);
    return GN_OK;
}
static gn_result gn__cpu_sum(const gn__call *c) { return gn__reduce(c, GN__REDUCE_SUM); }
static gn_result gn__cpu_mean(const gn__call *c) { return gn__reduce(c, GN__REDUCE_MEAN); }
static gn_result gn__cpu_max(const gn__call *c) { return gn__reduce(c, GN__REDUCE_MAX); }
static gn_result gn__cpu_min(const gn__call *c) { return gn__reduce(c, GN__REDUCE_MIN); }
static gn_result gn__cpu_argmax(const gn__call *c) { return gn__reduce(c, GN__REDUCE_ARGMAX); }
static gn_result gn__cpu_argmin(const gn__call *c) { return gn__reduce(c, GN__REDUCE_ARGMIN); }
static gn_result gn__cpu_prod(const gn__call *c) { return gn__reduce(c, GN__REDUCE_PROD); }

/* ---- rows: softmax, log-softmax, layernorm. Computed in f64, three passes over the row in chunks ---- */

static gn_result gn__infer_softmax(const gn__infer_call *c) {
    int axis;
    *c->out = c->in[0];
    return gn__infer_axis(c, c->attrs[0], &axis);
}
#define gn__infer_log_softmax gn__infer_softmax

static gn_result gn__infer_layernorm(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape;
    int want = 1 + (int)(c->attrs[1] & 1) + (int)((c->attrs[1] >> 1) & 1);
    if (s.rank < 1) return gn_fail(c->fault, GN_BAD_RANK, "layernorm needs rank 1 or more");
    if (c->attrs[1] < 0 || c->attrs[1] > 3 || c->n_in != want) return gn_fail(c->fault, GN_BAD_ARGUMENT, "%d inputs do not match the flags", c->n_in);
    for (int i = 1; i < c->n_in; i++) {
        gn_result r = gn__same_dtype(c, i);
        if (r != GN_OK) return r;
        if (c->in[i].shape.rank != 1 || c->in[i].shape.dims[0] != s.dims[s.rank - 1]) return gn__bad_shapes(c, "gain and bias must have the last axis' size");
    }
    *c->out = c->in[0];
    return GN_OK;
}

typedef struct gn__rows_job {
    const gn__call *c;
    gn_view in, out;          /* the row's axis is last */
    int64_t n;                 /* of a row */
    bool log;
    gn__atomic failed;         /* no memory for a row; set by any thread */
} gn__rows_job;

static gn_result gn__rows_end(const gn__call *c, const gn__rows_job *j) {
    return gn__atomic_load(&j->failed) ? gn_fail(c->fault, GN_OUT_OF_MEMORY, "no memory for a row of %lld", (long long)j->n) : GN_OK;
}


GN__COLD_BEGIN
static void gn__softmax_row(const gn__rows_job *j, const char *p, char *o) {
    double x[GN__CHUNK], top = -INFINITY, sum = 0;
    int64_t is = j->in.strides[j->in.rank - 1], os = j->out.strides[j->out.rank - 1];
    int64_t ib = (int64_t)gn__bytes_of(j->in.dtype), n = j->n;
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        for (int64_t l = 0; l < m; l++) top = GN_M_MAX(top, x[l]);
    }
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        for (int64_t l = 0; l < m; l++) sum += exp(x[l] - top);
    }
    double lsum = log(sum);
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        for (int64_t l = 0; l < m; l++) x[l] = j->log ? (x[l] - top) - lsum : exp(x[l] - top) / sum;
        gn__store_f64(x, j->out.dtype, o + i * os * ib, os, m);
    }
}
GN__COLD_END

/* f32, f16 and bf16 rows: in f32, in `row` (n floats) or where they lie. */
static void gn__softmax_row_f32(const gn__rows_job *j, const char *p, char *o, float *row) {
    const gn__kernels *k = gn__kernels_of(j->c->pool);
    int64_t is = j->in.strides[j->in.rank - 1], os = j->out.strides[j->out.rank - 1], n = j->n;
    bool whole_in = j->in.dtype == GN_F32 && is == 1, whole_out = j->out.dtype == GN_F32 && os == 1;
    const float *x = whole_in ? (const float *)(const void *)p : row;
    float *y = whole_out ? (float *)(void *)o : row;
    if (!whole_in) gn__load_f32(row, j->in.dtype, p, is, n);
    float top = k->top(x, n, 1);
    if (j->log) {
        double sum = 0;
        float e[GN__CHUNK];
        for (int64_t i = 0, m; i < n; i += m) {
            m = GN__MIN(n - i, (int64_t)GN__CHUNK);
            k->affine(e, x + i, m, top, 1);
            gn__exp_f32(j->c->pool, e, e, m);
            sum += gn__sum_f32(k, e, m);
        }
        k->affine(y, x, n, top, 1);
        k->affine(y, y, n, (float)log(sum), 1);
    } else {
        k->affine(y, x, n, top, 1);
        gn__exp_f32(j->c->pool, y, y, n);
        k->affine(y, y, n, 0, (float)(1 / gn__sum_f32(k, y, n)));
    }
    if (!whole_out) gn__store_f32(y, j->out.dtype, o, os, n);
}

static void gn__softmax_range(void *arg, int64_t begin, int64_t end) {
    gn__rows_job *j = (gn__rows_job *)arg;
    int64_t bytes = (int64_t)gn__bytes_of(j->in.dtype);
    bool narrow = gn__dtypes[j->in.dtype].compute == GN__F32;
    float *row = narrow ? (float *)gn_alloc((size_t)j->n * sizeof *row) : NULL;
    if (narrow && !row) { gn__atomic_store(&j->failed, 1); return; }
    for (int64_t i = begin; narrow && i < end; i++)
        gn__softmax_row_f32(j, j->in.p + gn__view_offset(&j->in, j->in.rank - 1, i) * bytes, j->out.p + gn__view_offset(&j->out, j->out.rank - 1, i) * bytes, row);
    gn_free(row);
    if (narrow) return;
    for (int64_t i = begin; i < end; i++)
        gn__softmax_row(j, j->in.p + gn__view_offset(&j->in, j->in.rank - 1, i) * bytes, j->out.p + gn__view_offset(&j->out, j->out.rank - 1, i) * bytes);
}

static gn_result gn__softmax(const gn__call *c, bool log) {
    int axis = gn__axis(c->attrs[0], c->in[0].rank);
    gn__rows_job j = { c, gn__view_axis_last(&c->in[0], axis), gn__view_axis_last(&c->out, axis), c->in[0].dims[axis], log, 0 };
    if (gn__view_count(&c->out)) gn__pool_for(c->pool, gn__view_count(&c->out) / j.n, 1 + 4096 / j.n, gn__softmax_range, &j);
    return gn__rows_end(c, &j);
}
static gn_result gn__cpu_softmax(const gn__call *c) { return gn__softmax(c, false); }
static gn_result gn__cpu_log_softmax(const gn__call *c) { return gn__softmax(c, true); }

GN__COLD_BEGIN
static void gn__layernorm_row(const gn__rows_job *j, const char *p, char *o) {
    const gn__call *c = j->c;
    double x[GN__CHUNK], w[GN__CHUNK], sum = 0, square = 0, eps = gn__word_f64(c->attrs[0]);
    const gn_view *gain = c->attrs[1] & 1 ? &c->in[1] : NULL, *bias = c->attrs[1] & 2 ? &c->in[c->n_in - 1] : NULL;
    int64_t is = j->in.strides[j->in.rank - 1], ib = (int64_t)gn__bytes_of(j->in.dtype), n = j->n;
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        sum += gn__sum_f64(x, m);
    }
    double mean = sum / (double)n;
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        for (int64_t l = 0; l < m; l++) x[l] = (x[l] - mean) * (x[l] - mean);
        square += gn__sum_f64(x, m);
    }
    double scale = 1.0 / sqrt(square / (double)n + eps);
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, j->in.dtype, p + i * is * ib, is, m);
        for (int64_t l = 0; l < m; l++) x[l] = (x[l] - mean) * scale;
        if (gain) gn__load_f64(w, gain->dtype, gain->p + i * gain->strides[0] * ib, gain->strides[0], m);
        for (int64_t l = 0; gain && l < m; l++) x[l] *= w[l];
        if (bias) gn__load_f64(w, bias->dtype, bias->p + i * bias->strides[0] * ib, bias->strides[0], m);
        for (int64_t l = 0; bias && l < m; l++) x[l] += w[l];
        gn__store_f64(x, j->out.dtype, o + i * ib, 1, m);
    }
}
GN__COLD_END

/* f32, f16 and bf16; `row` holds 3 n floats: the row, then gain and bias where they do not lie as f32 in a row. */
static void gn__layernorm_row_f32(const gn__rows_job *j, const char *p, char *o, float *row, const float *gain, const float *bias) {
    const gn__kernels *k = gn__kernels_of(j->c->pool);
    int64_t is = j->in.strides[j->in.rank - 1], n = j->n;
    const float *x = j->in.dtype == GN_F32 && is == 1 ? (const float *)(const void *)p : row;
    float *y = j->out.dtype == GN_F32 ? (float *)(void *)o : row;
    if (x == row) gn__load_f32(row, j->in.dtype, p, is, n);
    float mean = (float)(gn__sum_f32(k, x, n) / (double)n);
    double square = 0;
    k->affine(y, x, n, mean, 1);
    double off = gn__sum_f32(k, y, n) / (double)n;                 /* what rounding the mean to f32 has left */
    for (int64_t i = 0; i < n; i += GN__PIECE) {
        float s = 0;
        k->dot(&s, y + i, y + i, 0, 1, GN__MIN(n - i, (int64_t)GN__PIECE));
        square += (double)s;
    }
    double variance = square / (double)n - off * off;
    k->affine(y, y, n, (float)off, (float)(1.0 / sqrt((variance > 0 ? variance : variance != variance ? variance : 0) + gn__word_f64(j->c->attrs[0]))));
    if (gain || bias) k->gain(y, gain, bias, n);
    if (y == row) gn__store_f32(y, j->out.dtype, o, 1, n);
}

static const float *gn__row_vector(const gn_view *v, float *room) {
    if (v->dtype == GN_F32 && v->strides[0] == 1) return (const float *)(const void *)v->p;
    gn__load_f32(room, v->dtype, v->p, v->strides[0], v->dims[0]);
    return room;
}

static void gn__layernorm_range_f32(gn__rows_job *j, int64_t begin, int64_t end) {
    const gn__call *c = j->c;
    int64_t bytes = (int64_t)gn__bytes_of(j->in.dtype);
    float *row = (float *)gn_alloc((size_t)j->n * 3 * sizeof *row);
    if (!row) { gn__atomic_store(&j->failed, 1); return; }
    const float *gain = c->attrs[1] & 1 ? gn__row_vector(&c->in[1], row + j->n) : NULL;
    const float *bias = c->attrs[1] & 2 ? gn__row_vector(&c->in[c->n_in - 1], row + 2 * j->n) : NULL;
    for (int64_t i = begin; i < end; i++)
        gn__layernorm_row_f32(j, j->in.p + gn__view_offset(&j->in, j->in.rank - 1, i) * bytes, j->out.p + i * j->n * bytes, row, gain, bias);
    gn_free(row);
}

static void gn__layernorm_range(void *arg, int64_t begin, int64_t end) {
    gn__rows_job *j = (gn__rows_job *)arg;
    int64_t bytes = (int64_t)gn__bytes_of(j->in.dtype);
    if (gn__dtypes[j->in.dtype].compute == GN__F32) { gn__layernorm_range_f32(j, begin, end); return; }
    for (int64_t i = begin; i < end; i++)
        gn__layernorm_row(j, j->in.p + gn__view_offset(&j->in, j->in.rank - 1, i) * bytes, j->out.p + i * j->n * bytes);
}

static gn_result gn__cpu_layernorm(const gn__call *c) {
    gn__rows_job j = { c, c->in[0], c->out, c->in[0].dims[c->in[0].rank - 1], false, 0 };
    if (gn__view_count(&c->out)) gn__pool_for(c->pool, gn__view_count(&c->out) / j.n, 1 + 4096 / j.n, gn__layernorm_range, &j);
    return gn__rows_end(c, &j);
}

/* ---- matmul and linear ----
 * f32, f16, bf16: tiles of C with packed panels and a micro-kernel per instruction set, accumulating in f32. The order of
 * the sum over K is fixed by the shape alone. f64 and integers: rows of C by scaled rows of B. */

typedef struct gn__gemm {
    int64_t m, n, k;
    const char *a, *b;          /* first elements */
    char *c;                    /* dense rows of n */
    int64_t am, ak, bk, bn;     /* strides in elements */
    const gn_view *bias;       /* (n), or NULL */
    gn_dtype dtype;
} gn__gemm;

/* Batch axes broadcast; a vector is a row on the left, a column on the right. */
static gn_result gn__infer_matmul(const gn__infer_call *c) {
    gn_shape a = c->in[0].shape, b = c->in[1].shape, batch_a, batch_b;
    gn_result r = gn__same_dtype(c, 1);
    if (r != GN_OK) return r;
    if (a.rank < 1 || b.rank < 1) return gn_fail(c->fault, GN_BAD_RANK, "matmul needs rank 1 or more on both sides");
    int64_t k = b.rank > 1 ? b.dims[b.rank - 2] : b.dims[0];
    if (a.dims[a.rank - 1] != k) return gn__bad_shapes(c, "the inner dimensions differ");
    batch_a = a;
    batch_b = b;
    batch_a.rank = GN__MAX(a.rank - 2, 0);
    batch_b.rank = GN__MAX(b.rank - 2, 0);
    c->out->dtype = c->in[0].dtype;
    if (!gn__broadcast_shapes(&batch_a, &batch_b, &c->out->shape)) return gn__bad_shapes(c, "the batch dimensions do not broadcast");
    gn_shape *o = &c->out->shape;
    if (a.rank > 1) o->dims[o->rank++] = a.dims[a.rank - 2];
    if (b.rank > 1) o->dims[o->rank++] = b.dims[b.rank - 1];
    return gn__shape_ok(o) ? GN_OK : gn__bad_shapes(c, "the product is too large");
}

static gn_result gn__infer_linear(const gn__infer_call *c) {
    if (c->in[1].shape.rank != 2) return gn_fail(c->fault, GN_BAD_RANK, "the weight of linear is (K,N), not rank %d", c->in[1].shape.rank);
    gn_result r = gn__infer_matmul(c);
    if (r != GN_OK || c->n_in == 2) return r;
    if ((r = gn__same_dtype(c, 2)) != GN_OK) return r;
    if (c->in[2].shape.rank != 1 || c->in[2].shape.dims[0] != c->in[1].shape.dims[1]) return gn__bad_shapes(c, "the bias of linear is (N)");
    return GN_OK;
}

static double gn__cost_matmul(const gn__infer_call *c) {
    return 2.0 * (double)gn__count(&c->out->shape) * (double)c->in[0].shape.dims[c->in[0].shape.rank - 1];
}

enum { GN__GEMM_KC = 256, GN__GEMM_MC = 168, GN__GEMM_NC = 256, GN__GEMM_SMALL = 4, GN__GEMM_PANEL = 1 << 22, GN__GEMV_N = 2048 };

typedef struct gn__gemm_job {
    const gn__gemm *g;
    gn__kernels kernels;
    float *a;                  /* packed rows: blocks of KC deep, each of panels of mr rows */
    int64_t row, rows;         /* packed now */
    int64_t tiles_m, tile_m;   /* tasks along M, and rows of each: a multiple of mr */
    int64_t width;             /* columns of a task of a product with few rows */
    gn__atomic failed;         /* no memory for scratch; set by any thread */
} gn__gemm_job;

/* One panel of mr rows of A from `row`, zero-padded, k deep from `at`: k by mr. */
static void gn__pack_a(float *out, const gn__gemm *g, int64_t row, int64_t rows, int64_t at, int64_t k, int mr) {
    int64_t bytes = (int64_t)gn__bytes_of(g->dtype);
    float line[GN__GEMM_KC];
    for (int i = 0; i < mr; i++) {
        const char *p = g->a + ((row + i) * g->am + at * g->ak) * bytes;
        const float *from = (const float *)(const void *)p;
        if (i >= rows) memset(line, 0, (size_t)k * sizeof *line);
        else if (g->dtype != GN_F32 || g->ak != 1) gn__load_f32(line, g->dtype, p, g->ak, k);
        if (i >= rows || g->dtype != GN_F32 || g->ak != 1) from = line;
        for (int64_t l = 0; l < k; l++) out[l * mr + i] = from[l];
    }
}

/* k x cols of B, from (at, col): panels of nr columns, k by nr, zero-padded. Rows of B are read along, columns in pieces. */
static void gn__pack_b(float *out, const gn__gemm *g, int64_t col, int64_t cols, int64_t at, int64_t k, int nr) {
    int64_t bytes = (int64_t)gn__bytes_of(g->dtype), padded = (cols + nr - 1) / nr * nr;
    float line[GN__GEMM_NC + 64];
    if (g->bk == 1 && g->bn != 1) {
        for (int64_t i = 0; i < padded; i++) {
            float *to = out + i / nr * nr * k + i % nr;
            if (i < cols) gn__load_f32(line, g->dtype, g->b + (at + (col + i) * g->bn) * bytes, 1, k);
            else memset(line, 0, (size_t)k * sizeof *line);
            for (int64_t l = 0; l < k; l++) to[l * nr] = line[l];
        }
        return;
    }
    for (int64_t l = 0; l < k; l++) {
        const char *p = g->b + ((at + l) * g->bk + col * g->bn) * bytes;
        const float *from = (const float *)(const void *)p;
        if (g->dtype != GN_F32 || g->bn != 1 || padded != cols) {
            gn__load_f32(line, g->dtype, p, g->bn, cols);
            memset(line + cols, 0, (size_t)(padded - cols) * sizeof *line);
            from = line;
        }
        for (int64_t q = 0; q < padded; q += nr) memcpy(out + q * k + l * nr, from + q, (size_t)nr * sizeof *out);
    }
}

static void gn__gemm_pack_range(void *arg, int64_t begin, int64_t end) {
    const gn__gemm_job *j = (const gn__gemm_job *)arg;
    const gn__gemm *g = j->g;
    int mr = j->kernels.mr;
    int64_t padded = (j->rows + mr - 1) / mr * mr;
    for (int64_t p = begin * mr; p < end * mr; p += mr)
        for (int64_t at = 0; at < g->k; at += GN__GEMM_KC) {
            int64_t k = GN__MIN(g->k - at, (int64_t)GN__GEMM_KC);
            gn__pack_a(j->a + padded * at + p * k, g, j->row + p, j->rows - p, at, k, mr);
        }
}

/* Bias, rounding and storing of f32 sums. */
static void gn__gemm_store(const gn__gemm *g, float *sums, int64_t row, int64_t col, int64_t n) {
    int64_t bytes = (int64_t)gn__bytes_of(g->dtype);
    char *to = g->c + (row * g->n + col) * bytes;
    float w[GN__GEMM_NC];
    for (int64_t i = 0, m; g->bias && i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__GEMM_NC);
        gn__load_f32(w, g->dtype, g->bias->p + (col + i) * g->bias->strides[0] * bytes, g->bias->strides[0], m);
        for (int64_t l = 0; l < m; l++) sums[i + l] += w[l];
    }
    if (to != (char *)sums) gn__store_f32(sums, g->dtype, to, 1, n);
}

/* Micro tiles of the rows [p, p + rows) of the packed ones; those that stick out go through `edge`. */
static void gn__gemm_block(const gn__gemm_job *j, const float *a, const float *b, float *c, int64_t ldc, int64_t rows, int64_t cols, int64_t k, bool add, float *edge) {
    int mr = j->kernels.mr, nr = j->kernels.nr;
    for (int64_t q = 0; q < cols; q += nr)
        for (int64_t p = 0; p < rows; p += mr) {
            if (p + mr <= rows && q + nr <= cols) { j->kernels.micro(a + p * k, b + q * k, c + p * ldc + q, ldc, k, add); continue; }
            j->kernels.micro(a + p * k, b + q * k, edge, nr, k, false);
            for (int64_t i = 0; i < mr && p + i < rows; i++)
                for (int64_t l = 0; l < nr && q + l < cols; l++) {
                    float *to = c + (p + i) * ldc + q + l;
                    *to = add ? *to + edge[i * nr + l] : edge[i * nr + l];
                }
        }
}

/* Columns [col, col + cols) of the packed rows from p on: B is packed KC deep, then used by all of them. */
static void gn__gemm_task(const gn__gemm_job *j, float *scratch, int64_t p, int64_t rows, int64_t col) {
    const gn__gemm *g = j->g;
    int mr = j->kernels.mr, nr = j->kernels.nr;
    int64_t cols = GN__MIN(g->n - col, (int64_t)GN__GEMM_NC), padded = (j->rows + mr - 1) / mr * mr, chunk = GN__GEMM_MC / mr * mr;
    bool direct = g->dtype == GN_F32;
    float *edge = scratch, *b = edge + 32 * 64, *sums = b + (GN__GEMM_NC + 64) * GN__GEMM_KC;
    float *c = direct ? (float *)(void *)g->c + (j->row + p) * g->n + col : sums;
    int64_t ldc = direct ? g->n : GN__GEMM_NC;
    for (int64_t at = 0; at < g->k; at += GN__GEMM_KC) {
        int64_t k = GN__MIN(g->k - at, (int64_t)GN__GEMM_KC);
        gn__pack_b(b, g, col, cols, at, k, nr);
        for (int64_t q = 0; q < rows; q += chunk)
            gn__gemm_block(j, j->a + padded * at + (p + q) * k, b, c + q * ldc, ldc, GN__MIN(rows - q, chunk), cols, k, at > 0, edge);
    }
    for (int64_t i = 0; i < rows && (!direct || g->bias || g->k == 0); i++) {
        if (g->k == 0) memset(c + i * ldc, 0, (size_t)cols * sizeof *c);
        gn__gemm_store(g, c + i * ldc, j->row + p + i, col, cols);
    }
}

static void gn__gemm_range(void *arg, int64_t begin, int64_t end) {
    gn__gemm_job *j = (gn__gemm_job *)arg;
    size_t sums = j->g->dtype == GN_F32 ? 0 : (size_t)j->tile_m * GN__GEMM_NC;
    float *raw = (float *)gn_alloc(sizeof(float) * (32 * 64 + (GN__GEMM_NC + 64) * GN__GEMM_KC + sums) + 64);
    float *scratch = (float *)(void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
    if (!raw) { gn__atomic_store(&j->failed, 1); return; }
    for (int64_t t = begin; t < end; t++) {
        int64_t p = t % j->tiles_m * j->tile_m;
        gn__gemm_task(j, scratch, p, GN__MIN(j->rows - p, j->tile_m), t / j->tiles_m * GN__GEMM_NC);
    }
    gn_free(raw);
}

/* Few rows: no packing; B streams through once for all of them. */
static void gn__gemv_row(const gn__gemm_job *j, int64_t row, int64_t col, int64_t n) {
    const gn__gemm *g = j->g;
    int64_t bytes = (int64_t)gn__bytes_of(g->dtype);
    bool down = g->bk == 1 && g->bn != 1, plain = g->dtype == GN_F32 && (down || g->bn == 1);
    float y[GN__GEMV_N] = { 0 }, x[GN__GEMM_KC], w[GN__GEMV_N];
    for (int64_t at = 0; at < g->k; at += GN__GEMM_KC) {
        int64_t k = GN__MIN(g->k - at, (int64_t)GN__GEMM_KC);
        const char *b = g->b + (at * g->bk + col * g->bn) * bytes;
        gn__load_f32(x, g->dtype, g->a + (row * g->am + at * g->ak) * bytes, g->ak, k);
        if (plain && down) j->kernels.dot(y, x, (const float *)(const void *)b, g->bn, n, k);
        else if (plain) j->kernels.axpy(y, x, (const float *)(const void *)b, g->bk, k, n);
        else if (down) for (int64_t i = 0; i < n; i++) {
            gn__load_f32(w, g->dtype, b + i * g->bn * bytes, 1, k);
            j->kernels.dot(y + i, x, w, 0, 1, k);
        } else for (int64_t l = 0; l < k; l++) {
            gn__load_f32(w, g->dtype, b + l * g->bk * bytes, g->bn, n);
            j->kernels.axpy(y, x + l, w, 0, 1, n);
        }
    }
    gn__gemm_store(g, y, row, col, n);
}

static void gn__gemv_range(void *arg, int64_t begin, int64_t end) {
    const gn__gemm_job *j = (const gn__gemm_job *)arg;
    for (int64_t t = begin; t < end; t++)
        for (int64_t row = 0; row < j->g->m; row++)
            gn__gemv_row(j, row, t * j->width, GN__MIN(j->g->n - t * j->width, j->width));
}

/* Rows of A are packed once, a panel's worth of memory at a time; then every task is a block of C. */
static bool gn__gemm_panels(gn__gemm_job *j, gn__pool *pool) {
    const gn__gemm *g = j->g;
    int64_t mr = j->kernels.mr, tiles_n = (g->n + GN__GEMM_NC - 1) / GN__GEMM_NC, threads = pool ? (int64_t)pool->n_threads + 1 : 1;
    int64_t most = GN__MAX(GN__GEMM_PANEL / GN__MAX(g->k, 1) / mr * mr, mr), panels = (GN__MIN(g->m, most) + mr - 1) / mr;
    float *raw = (float *)gn_alloc((size_t)(panels * mr * GN__MAX(g->k, 1)) * sizeof *raw + 64);
    if (!raw) return false;
    j->a = (float *)(void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
    for (j->row = 0; j->row < g->m; j->row += j->rows) {
        j->rows = GN__MIN(g->m - j->row, most);
        panels = (j->rows + mr - 1) / mr;
        j->tiles_m = GN__MAX(GN__MIN((3 * threads + tiles_n - 1) / tiles_n, panels), 1);
        j->tile_m = (panels + j->tiles_m - 1) / j->tiles_m * mr;
        j->tiles_m = (panels * mr + j->tile_m - 1) / j->tile_m;
        gn__pool_for(pool, panels, 1 + 16384 / GN__MAX(g->k * mr, 1), gn__gemm_pack_range, j);
        gn__pool_for(pool, j->tiles_m * tiles_n, 1, gn__gemm_range, j);
    }
    gn_free(raw);
    return gn__atomic_load(&j->failed) == 0;
}

static bool gn__gemm_f32(const gn__gemm *g, gn__pool *pool) {
    gn__gemm_job j = { .g = g, .kernels = gn__kernel_sets[pool ? pool->isa : GN__ISA_BASE] };
    if (g->m > GN__GEMM_SMALL) return gn__gemm_panels(&j, pool);
    int64_t share = (g->n + 4 * (pool ? (int64_t)pool->n_threads + 1 : 1) - 1) / (4 * (pool ? (int64_t)pool->n_threads + 1 : 1));
    j.width = GN__MIN(GN__MAX((share + 63) / 64 * 64, 64), (int64_t)GN__GEMV_N);
    gn__pool_for(pool, (g->n + j.width - 1) / j.width, 1 + 16384 / GN__MAX(g->k * g->m * j.width, 1), gn__gemv_range, &j);
    return true;
}

GN__COLD_BEGIN
/* f64 and integers. */
static void gn__gemm_wide_range(void *arg, int64_t begin, int64_t end) {
    const gn__gemm *g = (const gn__gemm *)arg;
    bool real = gn__is_float(g->dtype);
    int64_t bytes = (int64_t)gn__bytes_of(g->dtype);
    union { double f[GN__GEMM_NC]; int64_t i[GN__GEMM_NC]; } y, w;
    for (int64_t t = begin; t < end; t++) {
        int64_t blocks = (g->n + GN__GEMM_NC - 1) / GN__GEMM_NC, row = t / blocks, col = t % blocks * GN__GEMM_NC;
        int64_t n = GN__MIN(g->n - col, (int64_t)GN__GEMM_NC);
        memset(&y, 0, sizeof y);
        if (g->bias && real) gn__load_f64(y.f, g->dtype, g->bias->p + col * g->bias->strides[0] * bytes, g->bias->strides[0], n);
        else if (g->bias) gn__load_i64(y.i, g->dtype, g->bias->p + col * g->bias->strides[0] * bytes, g->bias->strides[0], n);
        for (int64_t l = 0; l < g->k; l++) {
            const char *pa = g->a + (row * g->am + l * g->ak) * bytes, *pb = g->b + (l * g->bk + col * g->bn) * bytes;
            if (real) {
                double x;
                gn__load_f64(&x, g->dtype, pa, 1, 1);
                gn__load_f64(w.f, g->dtype, pb, g->bn, n);
                for (int64_t i = 0; i < n; i++) y.f[i] += x * w.f[i];
            } else {
                uint64_t x = (uint64_t)gn__read_int(g->dtype, pa);
                gn__load_i64(w.i, g->dtype, pb, g->bn, n);
                for (int64_t i = 0; i < n; i++) y.i[i] = (int64_t)((uint64_t)y.i[i] + x * (uint64_t)w.i[i]);
            }
        }
        char *o = g->c + (row * g->n + col) * bytes;
        if (real) gn__store_f64(y.f, g->dtype, o, 1, n);
        else gn__store_i64(y.i, g->dtype, o, 1, n);
    }
}
GN__COLD_END

static bool gn__gemm_run(const gn__gemm *g, gn__pool *pool) {
    if (g->m == 0 || g->n == 0) return true;
    if (gn__dtypes[g->dtype].compute == GN__F32) return gn__gemm_f32(g, pool);
    gn__gemm copy = *g;
    gn__pool_for(pool, g->m * ((g->n + GN__GEMM_NC - 1) / GN__GEMM_NC), 1 + 16384 / GN__MAX(g->k * 8, 1), gn__gemm_wide_range, &copy);
    return true;
}

/* Leading dims that can be walked as one row index: fewer, larger products (the weight of linear is shared by all rows). */
static bool gn__rows_of(const gn_view *v, int64_t *out_rows, int64_t *out_stride) {
    *out_rows = 1;
    *out_stride = 0;
    for (int i = v->rank - 2; i >= 0; i--) {
        if (v->dims[i] == 1) continue;
        if (*out_rows == 1) *out_stride = v->strides[i];
        else if (v->strides[i] != *out_stride * *out_rows) return false;
        *out_rows *= v->dims[i];
    }
    return true;
}

static gn_result gn__matmul(const gn__call *c, const gn_view *bias) {
    gn_view a = c->in[0], b = c->in[1];
    int ra = a.rank, rb = b.rank, batch = GN__MAX(GN__MAX(ra - 2, rb - 2), 0);
    int64_t bytes = (int64_t)gn__bytes_of(a.dtype);
    gn__gemm g = { .m = ra > 1 ? a.dims[ra - 2] : 1, .n = rb > 1 ? b.dims[rb - 1] : 1, .k = a.dims[ra - 1],
                   .am = ra > 1 ? a.strides[ra - 2] : 0, .ak = a.strides[ra - 1],
                   .bk = rb > 1 ? b.strides[rb - 2] : b.strides[0], .bn = rb > 1 ? b.strides[rb - 1] : 0, .bias = bias, .dtype = a.dtype };
    int64_t rows, stride, dims[GN_MAX_RANK] = { 0 };
    if (rb <= 2 && ra > 2 && gn__rows_of(&a, &rows, &stride)) { g.m = rows; g.am = stride; batch = 0; }
    for (int i = 0; i < batch; i++) dims[i] = c->out.dims[i];
    if (ra > 2) a.rank = ra - 2; else a.rank = 0;
    if (rb > 2) b.rank = rb - 2; else b.rank = 0;
    if (batch == 0) a.rank = b.rank = 0;
    gn_view ba = gn__view_broadcast(&a, batch, dims), bb = gn__view_broadcast(&b, batch, dims);
    int64_t n_batch = 1;
    for (int i = 0; i < batch; i++) n_batch *= dims[i];
    for (int64_t i = 0; i < n_batch; i++) {
        g.a = a.p + gn__view_offset(&ba, batch, i) * bytes;
        g.b = b.p + gn__view_offset(&bb, batch, i) * bytes;
        g.c = c->out.p + i * g.m * g.n * bytes;
        if (!gn__gemm_run(&g, c->pool)) return gn_fail(c->fault, GN_OUT_OF_MEMORY, "no memory for the scratch of a matmul");
    }
    return GN_OK;
}
static gn_result gn__cpu_matmul(const gn__call *c) { return gn__matmul(c, NULL); }
static gn_result gn__cpu_linear(const gn__call *c) { return gn__matmul(c, c->n_in > 2 ? &c->in[2] : NULL); }

GN__COLD_BEGIN

/* ---- movement. Reshape, permute, slice and broadcast are views where they can be; their kernels are copies ---- */

static gn_result gn__infer_reshape(const gn__infer_call *c) {
    gn_shape s;
    int64_t have = gn__count(&c->in[0].shape), known = 1;
    int open = -1;
    if (c->n_attrs > GN_MAX_RANK) return gn_fail(c->fault, GN_BAD_RANK, "rank %d is above %d", c->n_attrs, GN_MAX_RANK);
    s.rank = c->n_attrs;
    for (int i = 0; i < s.rank; i++) {
        s.dims[i] = c->attrs[i];
        if (s.dims[i] == -1 && open < 0) { open = i; s.dims[i] = 1; }
    }
    if (!gn__shape_ok(&s)) return gn__bad_shapes(c, "a dimension of the new shape is not valid");
    known = gn__count(&s);
    if (open >= 0) {
        if (known == 0 || have % known) return gn__bad_shapes(c, "the open dimension of the new shape cannot be found");
        s.dims[open] = have / known;
        known = have;
    }
    if (known != have) {
        char text[96];
        gn__type t = { c->in[0].dtype, s };
        char from[96];
        return gn_fail(c->fault, GN_BAD_SHAPE, "%s has %lld elements, %s has %lld", gn__type_text(&c->in[0], from, sizeof from), (long long)have, gn__type_text(&t, text, sizeof text), (long long)known);
    }
    c->out->dtype = c->in[0].dtype;
    c->out->shape = s;
    return GN_OK;
}

static gn_result gn__infer_permute(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape;
    uint32_t seen = 0;
    *c->out = c->in[0];
    if (c->n_attrs != s.rank) return gn_fail(c->fault, GN_BAD_RANK, "%d axes given for rank %d", c->n_attrs, s.rank);
    for (int i = 0; i < s.rank; i++) {
        int axis = gn__axis(c->attrs[i], s.rank);
        if (axis < 0 || (seen >> axis) & 1) return gn_fail(c->fault, GN_BAD_RANK, "the axes are not a permutation of 0 to %d", s.rank - 1);
        seen |= 1u << axis;
        c->out->shape.dims[i] = s.dims[axis];
    }
    return GN_OK;
}

typedef struct gn__range { int64_t begin, count, step; } gn__range;

/* Python's slice of an axis of n elements. */
static gn__range gn__slice_range(const int64_t *attrs, int64_t n) {
    int64_t begin = attrs[1], end = attrs[2], step = attrs[3];
    int64_t least = step > 0 ? 0 : -1, most = step > 0 ? n : n - 1;
    if (begin < 0) begin = begin < -n ? least : begin + n;
    if (end < 0) end = end < -n ? least : end + n;
    begin = GN__MIN(GN__MAX(begin, least), most);
    end = attrs[2] == INT64_MAX && step < 0 ? -1 : GN__MIN(GN__MAX(end, least), most);
    int64_t span = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
    return (gn__range){ begin, span > 0 ? (span - 1) / stride + 1 : 0, step };
}

static gn_result gn__infer_slice(const gn__infer_call *c) {
    int axis;
    gn_result r = gn__infer_axis(c, c->attrs[0], &axis);
    if (r != GN_OK) return r;
    if (c->attrs[3] == 0) return gn_fail(c->fault, GN_BAD_ARGUMENT, "the step of a slice cannot be 0");
    *c->out = c->in[0];
    c->out->shape.dims[axis] = gn__slice_range(c->attrs, c->in[0].shape.dims[axis]).count;
    return GN_OK;
}

static gn_result gn__infer_slice_put(const gn__infer_call *c) {
    gn_result r = gn__infer_slice(c);
    if (r == GN_OK) r = gn__same_dtype(c, 1);
    if (r != GN_OK) return r;
    if (!gn__shape_equal(&c->out->shape, &c->in[1].shape)) return gn__bad_shapes(c, "the second tensor does not have the slice's shape");
    *c->out = c->in[0];
    return GN_OK;
}

static gn_result gn__infer_concat(const gn__infer_call *c) {
    int axis;
    gn_result r = gn__infer_axis(c, c->attrs[0], &axis);
    if (r != GN_OK) return r;
    *c->out = c->in[0];
    for (int i = 1; i < c->n_in; i++) {
        gn_shape s = c->in[i].shape;
        if ((r = gn__same_dtype(c, i)) != GN_OK) return r;
        if (s.rank != c->out->shape.rank) return gn__bad_shapes(c, "concat needs equal ranks");
        c->out->shape.dims[axis] += s.dims[axis];
        s.dims[axis] = c->out->shape.dims[axis];
        if (!gn__shape_equal(&s, &c->out->shape) || !gn__shape_ok(&s)) return gn__bad_shapes(c, "concat needs equal sizes off the axis");
    }
    return GN_OK;
}

static gn_result gn__infer_broadcast(const gn__infer_call *c) {
    gn_shape s, both;
    gn_result r = gn__infer_dims(c, 0, &s);
    if (r != GN_OK) return r;
    if (!gn__broadcast_shapes(&c->in[0].shape, &s, &both) || !gn__shape_equal(&both, &s)) return gn__bad_shapes(c, "the tensor does not broadcast to that shape");
    c->out->dtype = c->in[0].dtype;
    c->out->shape = s;
    return GN_OK;
}

static gn_result gn__infer_assign(const gn__infer_call *c) {
    *c->out = c->in[0];
    gn_result r = gn__same_dtype(c, 1);
    return r != GN_OK || gn__type_equal(&c->in[0], &c->in[1]) ? r : gn__bad_shapes(c, "a state keeps its shape");
}

static gn_view gn__view_permute(const gn_view *v, const int64_t *order) {
    gn_view r = *v;
    for (int i = 0; i < v->rank; i++) {
        int axis = gn__axis(order[i], v->rank);
        r.dims[i] = v->dims[axis];
        r.strides[i] = v->strides[axis];
    }
    return r;
}

static gn_view gn__view_slice(const gn_view *v, const int64_t *attrs) {
    gn_view r = *v;
    int axis = gn__axis(attrs[0], v->rank);
    gn__range s = gn__slice_range(attrs, v->dims[axis]);
    r.dims[axis] = s.count;
    if (s.count > 0) r.offset += s.begin * v->strides[axis] * (int64_t)gn__bytes_of(v->dtype);
    r.strides[axis] = s.count > 1 ? v->strides[axis] * s.step : 0;
    return r;
}

/* v with new dims when strides can express it. */
static bool gn__view_reshape(const gn_view *v, int rank, const int64_t *dims, gn_view *out) {
    gn_view r = *v;
    r.rank = rank;
    memcpy(r.dims, dims, (size_t)rank * sizeof *dims);
    memset(r.strides, 0, sizeof r.strides);
    *out = r;
    if (gn__view_count(v) == 0) return true;
    int from = v->rank - 1, to = rank - 1;
    while (to >= 0) {
        if (dims[to] == 1) { to--; continue; }
        while (from >= 0 && v->dims[from] == 1) from--;
        if (from < 0) return false;
        int64_t stride = v->strides[from], have = v->dims[from], used = 1;
        for (from--; to >= 0 && used < have; to--) {          /* one contiguous run of the old dims is dealt out to new dims */
            if (dims[to] != 1 && have % (used * dims[to])) {
                while (from >= 0 && v->dims[from] == 1) from--;
                if (from < 0 || v->strides[from] != stride * have) return false;
                have *= v->dims[from--];
                to++;
                continue;
            }
            out->strides[to] = stride * used;
            used *= dims[to];
        }
        if (used != have) return false;
    }
    return true;
}

static gn_result gn__cpu_reshape(const gn__call *c) {          /* the copy of a view that strides cannot express */
    gn_view flat = c->out;
    flat.rank = c->in[0].rank;
    int64_t stride = 1;
    for (int i = flat.rank - 1; i >= 0; i--) { flat.dims[i] = c->in[0].dims[i]; flat.strides[i] = stride; stride *= flat.dims[i]; }
    gn__copy_view(&flat, &c->in[0]);
    return GN_OK;
}

static gn_result gn__cpu_permute(const gn__call *c) {
    gn_view v = gn__view_permute(&c->in[0], c->attrs);
    gn__copy_view(&c->out, &v);
    return GN_OK;
}

static gn_result gn__cpu_slice(const gn__call *c) {
    gn_view v = gn__view_slice(&c->in[0], c->attrs);
    v = gn__view_bound(&v);
    gn__copy_view(&c->out, &v);
    return GN_OK;
}

static gn_result gn__cpu_broadcast(const gn__call *c) {
    gn_view v = gn__view_broadcast(&c->in[0], c->out.rank, c->out.dims);
    gn__copy_view(&c->out, &v);
    return GN_OK;
}

static gn_result gn__cpu_assign(const gn__call *c) {
    gn__copy_view(&c->out, &c->in[1]);
    return GN_OK;
}

static gn_result gn__cpu_slice_put(const gn__call *c) {
    gn__copy_view(&c->out, &c->in[0]);
    gn_view v = gn__view_slice(&c->out, c->attrs);
    v = gn__view_bound(&v);
    gn__copy_view(&v, &c->in[1]);
    return GN_OK;
}

static gn_result gn__cpu_concat(const gn__call *c) {
    int axis = gn__axis(c->attrs[0], c->out.rank);
    gn_view part = c->out;
    for (int i = 0; i < c->n_in; i++) {
        part.dims[axis] = c->in[i].dims[axis];
        gn__copy_view(&part, &c->in[i]);
        part.p += part.dims[axis] * part.strides[axis] * (int64_t)gn__bytes_of(c->out.dtype);
    }
    return GN_OK;
}

/* ---- indexing: every index is checked where it is used ---- */

static gn_result gn__bad_index(gn_fault *f, int64_t index, int64_t size) {
    return gn_fail(f, GN_INDEX_OUT_OF_RANGE, "index %lld is outside 0 to %lld", (long long)index, (long long)(size - 1));
}

static gn_result gn__infer_gather(const gn__infer_call *c) {
    int axis;
    gn_result r = gn__infer_axis(c, c->attrs[0], &axis);
    if (r == GN_OK) r = gn__want_dtype(c, 1, GN__INDEX, "an index");
    if (r != GN_OK) return r;
    gn_shape a = c->in[0].shape, index = c->in[1].shape;
    if (a.rank != index.rank) return gn__bad_shapes(c, "the index needs the tensor's rank");
    for (int i = 0; i < a.rank; i++)
        if (i != axis && index.dims[i] > a.dims[i]) return gn__bad_shapes(c, "the index is larger than the tensor off the axis");
    c->out->dtype = c->in[0].dtype;
    c->out->shape = index;
    return GN_OK;
}

static gn_result gn__infer_scatter_add(const gn__infer_call *c) {
    gn_result r = gn__infer_gather(c);
    if (r == GN_OK) r = gn__same_dtype(c, 2);
    if (r != GN_OK) return r;
    if (!gn__shape_equal(&c->in[1].shape, &c->in[2].shape)) return gn__bad_shapes(c, "index and source need one shape");
    *c->out = c->in[0];
    return GN_OK;
}

static gn_result gn__infer_embedding(const gn__infer_call *c) {
    gn_result r = gn__want_dtype(c, 1, GN__INDEX, "an id");
    if (r != GN_OK) return r;
    gn_shape s = c->in[1].shape;
    if (c->in[0].shape.rank != 2 || s.rank >= GN_MAX_RANK) return gn_fail(c->fault, GN_BAD_RANK, "embedding takes a table (V,D) and ids of rank 7 or less, not rank %d and %d", c->in[0].shape.rank, s.rank);
    s.dims[s.rank++] = c->in[0].shape.dims[1];
    c->out->dtype = c->in[0].dtype;
    c->out->shape = s;
    return gn__shape_ok(&s) ? GN_OK : gn__bad_shapes(c, "the result is too large");
}

static gn_result gn__infer_one_hot(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape;
    gn_result r = gn__infer_dtype_attr(c, c->attrs[1], GN__ALL, &c->out->dtype);
    if (r != GN_OK) return r;
    if (s.rank >= GN_MAX_RANK) return gn_fail(c->fault, GN_BAD_RANK, "one_hot takes ids of rank 7 or less");
    s.dims[s.rank++] = c->attrs[0];
    c->out->shape = s;
    return gn__shape_ok(&s) ? GN_OK : gn_fail(c->fault, GN_BAD_SHAPE, "depth %lld is not possible", (long long)c->attrs[0]);
}

/* The element of `a` that position `at` of the index selects, NULL when out of range. */
static char *gn__selected(const gn_view *a, const gn_view *index, int axis, int64_t at, int64_t *out_bad) {
    int64_t offset = 0, index_offset = 0;
    for (int i = index->rank - 1; i >= 0; i--) {
        int64_t x = at % index->dims[i];
        at /= index->dims[i];
        index_offset += x * index->strides[i];
        if (i != axis) offset += x * a->strides[i];
    }
    int64_t pick = gn__read_int(index->dtype, index->p + index_offset * (int64_t)gn__bytes_of(index->dtype));
    if (pick < 0 || pick >= a->dims[axis]) { *out_bad = pick; return NULL; }
    return a->p + (offset + pick * a->strides[axis]) * (int64_t)gn__bytes_of(a->dtype);
}

static gn_result gn__cpu_gather(const gn__call *c) {
    int axis = gn__axis(c->attrs[0], c->in[0].rank);
    size_t bytes = gn__bytes_of(c->out.dtype);
    int64_t n = gn__view_count(&c->out), bad = 0;
    for (int64_t i = 0; i < n; i++) {
        const char *p = gn__selected(&c->in[0], &c->in[1], axis, i, &bad);
        if (!p) return gn__bad_index(c->fault, bad, c->in[0].dims[axis]);
        memcpy(c->out.p + i * (int64_t)bytes, p, bytes);
    }
    return GN_OK;
}

static gn_result gn__cpu_embedding(const gn__call *c) {
    const gn_view *table = &c->in[0], *ids = &c->in[1];
    int64_t bytes = (int64_t)gn__bytes_of(table->dtype), d = table->dims[1], n = gn__view_count(ids);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = gn__read_int(ids->dtype, ids->p + gn__view_offset(ids, ids->rank, i) * (int64_t)gn__bytes_of(ids->dtype));
        if (id < 0 || id >= table->dims[0]) return gn__bad_index(c->fault, id, table->dims[0]);
        gn__copy_strided(c->out.p + i * d * bytes, 1, table->p + id * table->strides[0] * bytes, table->strides[1], d, (size_t)bytes);
    }
    return GN_OK;
}

static gn_result gn__cpu_one_hot(const gn__call *c) {
    const gn_view *ids = &c->in[0];
    int64_t bytes = (int64_t)gn__bytes_of(c->out.dtype), depth = c->attrs[0], n = gn__view_count(ids), one_i = 1;
    double one_f = 1;
    memset(c->out.p, 0, (size_t)(gn__view_count(&c->out) * bytes));
    for (int64_t i = 0; i < n; i++) {
        int64_t id = gn__read_int(ids->dtype, ids->p + gn__view_offset(ids, ids->rank, i) * (int64_t)gn__bytes_of(ids->dtype));
        if (id < 0 || id >= depth) return gn__bad_index(c->fault, id, depth);
        char *o = c->out.p + (i * depth + id) * bytes;
        if (gn__is_float(c->out.dtype)) gn__store_f64(&one_f, c->out.dtype, o, 1, 1);
        else gn__store_i64(&one_i, c->out.dtype, o, 1, 1);
    }
    return GN_OK;
}

/* In index order, each sum rounded to the dtype: repeatable. */
static gn_result gn__cpu_scatter_add(const gn__call *c) {
    int axis = gn__axis(c->attrs[0], c->out.rank);
    int64_t n = gn__view_count(&c->in[1]), bad = 0;
    size_t bytes = gn__bytes_of(c->out.dtype);
    bool real = gn__is_float(c->out.dtype);
    gn__copy_view(&c->out, &c->in[0]);
    for (int64_t i = 0; i < n; i++) {
        char *o = gn__selected(&c->out, &c->in[1], axis, i, &bad);
        if (!o) return gn__bad_index(c->fault, bad, c->out.dims[axis]);
        const char *s = c->in[2].p + gn__view_offset(&c->in[2], c->in[2].rank, i) * (int64_t)bytes;
        if (real) {
            double a, b;
            gn__load_f64(&a, c->out.dtype, o, 1, 1);
            gn__load_f64(&b, c->out.dtype, s, 1, 1);
            a += b;
            gn__store_f64(&a, c->out.dtype, o, 1, 1);
        } else {
            int64_t sum = (int64_t)((uint64_t)gn__read_int(c->out.dtype, o) + (uint64_t)gn__read_int(c->out.dtype, s));
            gn__store_i64(&sum, c->out.dtype, o, 1, 1);
        }
    }
    return GN_OK;
}

/* ---- losses ---- */

static gn_result gn__infer_cross_entropy(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape;
    gn_result r = gn__want_dtype(c, 1, GN__INDEX, "a target class");
    if (r != GN_OK) return r;
    if (s.rank < 1) return gn_fail(c->fault, GN_BAD_RANK, "logits need rank 1 or more");
    s.rank--;
    if (!gn__shape_equal(&s, &c->in[1].shape)) return gn__bad_shapes(c, "targets must have the logits' shape without the last axis");
    c->out->dtype = c->in[0].dtype;
    c->out->shape = GN_SCALAR;
    return GN_OK;
}

static gn_result gn__infer_mse_loss(const gn__infer_call *c) {
    gn_result r = gn__infer_scalar(c);
    c->out->shape = GN_SCALAR;
    return r;
}

/* -log softmax(row)[target] */
static double gn__row_loss(const gn_view *logits, int64_t row, int64_t target) {
    int64_t n = logits->dims[logits->rank - 1], stride = logits->strides[logits->rank - 1], bytes = (int64_t)gn__bytes_of(logits->dtype);
    const char *p = logits->p + gn__view_offset(logits, logits->rank - 1, row) * bytes;
    double x[GN__CHUNK], top = -INFINITY, sum = 0, hit;
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, logits->dtype, p + i * stride * bytes, stride, m);
        for (int64_t l = 0; l < m; l++) top = GN_M_MAX(top, x[l]);
    }
    for (int64_t i = 0, m; i < n; i += m) {
        m = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f64(x, logits->dtype, p + i * stride * bytes, stride, m);
        for (int64_t l = 0; l < m; l++) sum += exp(x[l] - top);
    }
    gn__load_f64(&hit, logits->dtype, p + target * stride * bytes, 1, 1);
    return log(sum) - (hit - top);
}

static gn_result gn__cpu_cross_entropy(const gn__call *c) {
    const gn_view *logits = &c->in[0], *targets = &c->in[1];
    int64_t rows = gn__view_count(targets), classes = logits->dims[logits->rank - 1];
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = gn__read_int(targets->dtype, targets->p + gn__view_offset(targets, targets->rank, i) * (int64_t)gn__bytes_of(targets->dtype));
        if (t < 0 || t >= classes) return gn__bad_index(c->fault, t, classes);
        sum += gn__row_loss(logits, i, t);
    }
    sum /= (double)rows;
    gn__store_f64(&sum, c->out.dtype, c->out.p, 1, 1);
    return GN_OK;
}

static gn_result gn__cpu_mse_loss(const gn__call *c) {
    gn__type t = { c->in[0].dtype, { c->in[0].rank, { 0 } } };
    gn_shape a = t.shape, b = { c->in[1].rank, { 0 } };
    memcpy(a.dims, c->in[0].dims, sizeof a.dims);
    memcpy(b.dims, c->in[1].dims, sizeof b.dims);
    gn__broadcast_shapes(&a, &b, &t.shape);
    gn_view va = gn__view_broadcast(&c->in[0], t.shape.rank, t.shape.dims), vb = gn__view_broadcast(&c->in[1], t.shape.rank, t.shape.dims);
    int64_t n = gn__count(&t.shape), bytes = (int64_t)gn__bytes_of(t.dtype), last = t.shape.rank - 1;
    int64_t inner = t.shape.rank ? t.shape.dims[last] : 1;
    double sum = 0, x[GN__CHUNK], y[GN__CHUNK];
    for (int64_t row = 0; n && row < n / inner; row++)
        for (int64_t i = 0, m; i < inner; i += m) {
            m = GN__MIN(inner - i, (int64_t)GN__CHUNK);
            int64_t sa = last >= 0 ? va.strides[last] : 1, sb = last >= 0 ? vb.strides[last] : 1;
            gn__load_f64(x, t.dtype, va.p + (gn__view_offset(&va, GN__MAX((int)last, 0), row) + i * sa) * bytes, sa, m);
            gn__load_f64(y, t.dtype, vb.p + (gn__view_offset(&vb, GN__MAX((int)last, 0), row) + i * sb) * bytes, sb, m);
            for (int64_t l = 0; l < m; l++) x[l] = (x[l] - y[l]) * (x[l] - y[l]);
            sum += gn__sum_f64(x, m);
        }
    sum /= (double)n;
    gn__store_f64(&sum, c->out.dtype, c->out.p, 1, 1);
    return GN_OK;
}

GN__COLD_END

/* ---- attention: attrs = bits (1 causal, 2 mask, 4 length), scale; inputs q, k, v [, mask] [, length] ---- */

static gn_result gn__infer_attention(const gn__infer_call *c) {
    gn_shape q = c->in[0].shape, k = c->in[1].shape, v = c->in[2].shape;
    int64_t bits = c->attrs[0];
    int at = 3;
    gn_result r = GN_OK;
    if (bits < 0 || bits > 7 || c->n_in != 3 + (int)((bits >> 1) & 1) + (int)((bits >> 2) & 1)) return gn_fail(c->fault, GN_BAD_ARGUMENT, "%d inputs do not match the flags", c->n_in);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4) return gn_fail(c->fault, GN_BAD_RANK, "q, k and v need rank 4: (B,H,T,D), (B,G,S,D), (B,G,S,E)");
    if ((r = gn__same_dtype(c, 1)) != GN_OK || (r = gn__same_dtype(c, 2)) != GN_OK) return r;
    bool fit = q.dims[0] == k.dims[0] && q.dims[0] == v.dims[0] && k.dims[1] == v.dims[1] && k.dims[2] == v.dims[2] && q.dims[3] == k.dims[3];
    if (!fit || (k.dims[1] ? q.dims[1] % k.dims[1] : q.dims[1])) return gn__bad_shapes(c, "q (B,H,T,D), k (B,G,S,D), v (B,G,S,E) with H a multiple of G are needed");
    if (bits & 2) {
        gn_shape scores = GN_SHAPE(q.dims[0], q.dims[1], q.dims[2], k.dims[2]), both;
        if (c->in[at].dtype != GN_BOOL && c->in[at].dtype != c->in[0].dtype) return gn_fail(c->fault, GN_BAD_DTYPE, "the mask is bool or of q's dtype");
        if (!gn__broadcast_shapes(&scores, &c->in[at].shape, &both) || !gn__shape_equal(&both, &scores)) return gn__bad_shapes(c, "the mask does not broadcast to (B,H,T,S)");
        at++;
    }
    if (bits & 4) {
        if ((r = gn__want_dtype(c, at, GN__INDEX, "the length")) != GN_OK) return r;
        if (c->in[at].shape.rank != 0) return gn_fail(c->fault, GN_BAD_RANK, "the length is 0-d");
    }
    *c->out = c->in[0];
    c->out->shape.dims[3] = v.dims[3];
    return gn__shape_ok(&c->out->shape) ? GN_OK : gn__bad_shapes(c, "the result is too large");
}

static double gn__cost_attention(const gn__infer_call *c) {
    gn_shape q = c->in[0].shape, v = c->in[2].shape;
    return 2.0 * (double)q.dims[0] * (double)q.dims[1] * (double)q.dims[2] * (double)v.dims[2] * (double)(q.dims[3] + v.dims[3]);
}

typedef struct gn__attention_job {
    const gn__call *c;
    gn_view mask;              /* broadcast to (B,H,T,S); p NULL: none */
    int64_t length;
    double scale;
    gn__atomic failed;          /* no memory for scores; set by any thread */
} gn__attention_job;

GN__COLD_BEGIN
/* One query row: scores (S) in `s`, in f64; then the weighted sum of v. `w` holds one key or value row. */
static void gn__attention_row(const gn__attention_job *j, int64_t at, double *s, double *q, double *w, double *o) {
    const gn_view *Q = &j->c->in[0], *K = &j->c->in[1], *V = &j->c->in[2];
    int64_t T = Q->dims[2], H = Q->dims[1], D = Q->dims[3], E = V->dims[3], bytes = (int64_t)gn__bytes_of(Q->dtype);
    int64_t t = at % T, h = at / T % H, b = at / T / H, g = h / (H / K->dims[1]);
    int64_t seen = j->c->attrs[0] & 1 ? GN__MAX(j->length - T + t + 1, 0) : j->length;
    const char *k = K->p + (b * K->strides[0] + g * K->strides[1]) * bytes, *v = V->p + (b * V->strides[0] + g * V->strides[1]) * bytes;
    double top = -INFINITY, sum = 0;
    gn__load_f64(q, Q->dtype, Q->p + (b * Q->strides[0] + h * Q->strides[1] + t * Q->strides[2]) * bytes, Q->strides[3], D);
    for (int64_t i = 0; i < seen; i++) {
        gn__load_f64(w, K->dtype, k + i * K->strides[2] * bytes, K->strides[3], D);
        for (int64_t l = 0; l < D; l++) w[l] *= q[l];
        s[i] = gn__sum_f64(w, D) * j->scale;
        if (j->mask.p) {
            const char *m = j->mask.p + (b * j->mask.strides[0] + h * j->mask.strides[1] + t * j->mask.strides[2] + i * j->mask.strides[3]) * (int64_t)gn__bytes_of(j->mask.dtype);
            double x = 0;
            if (j->mask.dtype == GN_BOOL) s[i] = *(const uint8_t *)m ? s[i] : -INFINITY;
            else { gn__load_f64(&x, j->mask.dtype, m, 1, 1); s[i] += x; }
        }
        top = GN_M_MAX(top, s[i]);
    }
    memset(o, 0, (size_t)E * sizeof *o);
    for (int64_t i = 0; i < seen && top != -INFINITY; i++) {       /* nothing seen: zeros */
        double e = exp(s[i] - top);
        sum += e;
        if (e == 0) continue;
        gn__load_f64(w, V->dtype, v + i * V->strides[2] * bytes, V->strides[3], E);
        for (int64_t l = 0; l < E; l++) o[l] += e * w[l];
    }
    for (int64_t l = 0; l < E && sum != 0; l++) o[l] /= sum;
    gn__store_f64(o, j->c->out.dtype, j->c->out.p + at * E * bytes, 1, E);
}
GN__COLD_END

/* Adds the mask's row to the scores; false hides. */
static void gn__attention_mask(const gn__attention_job *j, const char *m, float *s, int64_t n) {
    int64_t stride = j->mask.strides[3], bytes = (int64_t)gn__bytes_of(j->mask.dtype);
    for (int64_t i = 0; i < n; i++, m += stride * bytes) {
        float x = 0;
        if (j->mask.dtype == GN_BOOL) { s[i] = *(const uint8_t *)m ? s[i] : -INFINITY; continue; }
        gn__load_f32(&x, j->mask.dtype, m, 1, 1);
        s[i] += x;
    }
}

/* Rows [at, at + n) of keys or values of one head as f32, `*out_stride` apart: where they lie, or in `room`. */
static const float *gn__attention_rows(const gn_view *v, const char *head, int64_t at, int64_t n, float *room, int64_t *out_stride) {
    int64_t bytes = (int64_t)gn__bytes_of(v->dtype), width = v->dims[3];
    const char *p = head + at * v->strides[2] * bytes;
    *out_stride = v->dtype == GN_F32 && v->strides[3] == 1 ? v->strides[2] : width;
    if (v->dtype == GN_F32 && v->strides[3] == 1) return (const float *)(const void *)p;
    for (int64_t i = 0; i < n; i++) gn__load_f32(room + i * width, v->dtype, p + i * v->strides[2] * bytes, v->strides[3], width);
    return room;
}

enum { GN__ATTENTION_ROWS = 64 };      /* keys or values converted at once */

/* One query row in f32, f16 or bf16: f32 sums, one row of scores. Scratch: s (S), q (D), o (E), room (GN__ATTENTION_ROWS * max(D, E)). */
static void gn__attention_row_f32(const gn__attention_job *j, int64_t at, float *s, float *q, float *o, float *room) {
    const gn_view *Q = &j->c->in[0], *K = &j->c->in[1], *V = &j->c->in[2];
    const gn__kernels *kernels = gn__kernels_of(j->c->pool);
    int64_t T = Q->dims[2], H = Q->dims[1], D = Q->dims[3], E = V->dims[3], bytes = (int64_t)gn__bytes_of(Q->dtype), stride;
    int64_t t = at % T, h = at / T % H, b = at / T / H, g = h / (H / K->dims[1]);
    int64_t seen = j->c->attrs[0] & 1 ? GN__MAX(j->length - T + t + 1, 0) : j->length;
    const char *k = K->p + (b * K->strides[0] + g * K->strides[1]) * bytes, *v = V->p + (b * V->strides[0] + g * V->strides[1]) * bytes;
    gn__load_f32(q, Q->dtype, Q->p + (b * Q->strides[0] + h * Q->strides[1] + t * Q->strides[2]) * bytes, Q->strides[3], D);
    memset(s, 0, (size_t)seen * sizeof *s);
    memset(o, 0, (size_t)E * sizeof *o);
    for (int64_t i = 0, n; i < seen; i += n) {
        n = GN__MIN(seen - i, (int64_t)GN__ATTENTION_ROWS);
        const float *rows = gn__attention_rows(K, k, i, n, room, &stride);
        kernels->dot(s + i, q, rows, stride, n, D);
    }
    kernels->affine(s, s, seen, 0, (float)j->scale);
    if (j->mask.p) gn__attention_mask(j, j->mask.p + (b * j->mask.strides[0] + h * j->mask.strides[1] + t * j->mask.strides[2]) * (int64_t)gn__bytes_of(j->mask.dtype), s, seen);
    float top = kernels->top(s, seen, 1);
    if (top != -INFINITY) {                                        /* nothing seen: zeros */
        kernels->affine(s, s, seen, top, 1);
        gn__exp_f32(j->c->pool, s, s, seen);
        for (int64_t i = 0, n; i < seen; i += n) {
            n = GN__MIN(seen - i, (int64_t)GN__ATTENTION_ROWS);
            const float *rows = gn__attention_rows(V, v, i, n, room, &stride);
            if (!j->mask.p) kernels->axpy(o, s + i, rows, stride, n, E);
            for (int64_t l = 0; l < n && j->mask.p; l++)           /* what is hidden is not touched, whatever it holds */
                if (s[i + l] != 0) kernels->axpy(o, s + i + l, rows + l * stride, 0, 1, E);
        }
        kernels->affine(o, o, E, 0, (float)(1 / gn__sum_f32(kernels, s, seen)));
    }
    gn__store_f32(o, j->c->out.dtype, j->c->out.p + at * E * bytes, 1, E);
}

static void gn__attention_range_f32(gn__attention_job *j, int64_t begin, int64_t end) {
    int64_t D = j->c->in[0].dims[3], E = j->c->in[2].dims[3], S = j->length;
    float *s = (float *)gn_alloc((size_t)(S + D + E + GN__ATTENTION_ROWS * GN__MAX(D, E)) * sizeof *s);
    if (!s) { gn__atomic_store(&j->failed, 1); return; }
    for (int64_t i = begin; i < end; i++) gn__attention_row_f32(j, i, s, s + S, s + S + D, s + S + D + E);
    gn_free(s);
}

static void gn__attention_range(void *arg, int64_t begin, int64_t end) {
    if (gn__dtypes[((gn__attention_job *)arg)->c->in[0].dtype].compute == GN__F32) { gn__attention_range_f32((gn__attention_job *)arg, begin, end); return; }
    gn__attention_job *j = (gn__attention_job *)arg;
    int64_t D = j->c->in[0].dims[3], E = j->c->in[2].dims[3], S = j->length;
    double *s = (double *)gn_alloc((size_t)(S + D + GN__MAX(D, E) + E) * sizeof *s);
    if (!s) { gn__atomic_store(&j->failed, 1); return; }
    for (int64_t i = begin; i < end; i++) gn__attention_row(j, i, s, s + S, s + S + D, s + S + D + GN__MAX(D, E));
    gn_free(s);
}

static gn_result gn__cpu_attention(const gn__call *c) {
    int64_t S = c->in[1].dims[2], T = c->in[0].dims[2], bits = c->attrs[0];
    gn__attention_job j = { c, { 0 }, S, gn__word_f64(c->attrs[1]), 0 };
    int64_t dims[4] = { c->in[0].dims[0], c->in[0].dims[1], T, S };
    if (j.scale == 0) j.scale = 1.0 / sqrt((double)GN__MAX(c->in[0].dims[3], 1));
    if (bits & 2) j.mask = gn__view_broadcast(&c->in[3], 4, dims);
    if (bits & 4) j.length = gn__read_int(c->in[c->n_in - 1].dtype, c->in[c->n_in - 1].p);
    int64_t least = bits & 1 && bits & 4 ? T : 0;
    if (j.length < least || j.length > S)
        return gn_fail(c->fault, GN_INDEX_OUT_OF_RANGE, "length %lld is outside %lld to %lld", (long long)j.length, (long long)least, (long long)S);
    if (gn__view_count(&c->out)) gn__pool_for(c->pool, dims[0] * dims[1] * T, 1 + 1024 / GN__MAX(j.length, 1), gn__attention_range, &j);
    return gn__atomic_load(&j.failed) ? gn_fail(c->fault, GN_OUT_OF_MEMORY, "no memory for the scores of attention") : GN_OK;
}

/* ---- kv_append: cache (B,H,S,D), rows (B,H,T,D), pos 0-d ---- */

static gn_result gn__infer_kv_append(const gn__infer_call *c) {
    gn_shape s = c->in[0].shape, t = c->in[1].shape;
    gn_result r = gn__same_dtype(c, 1);
    if (r == GN_OK) r = gn__want_dtype(c, 2, GN__INDEX, "the position");
    if (r != GN_OK) return r;
    if (s.rank != 4 || t.rank != 4 || c->in[2].shape.rank != 0) return gn_fail(c->fault, GN_BAD_RANK, "a cache (B,H,S,D), rows (B,H,T,D) and a 0-d position are needed");
    if (s.dims[0] != t.dims[0] || s.dims[1] != t.dims[1] || s.dims[3] != t.dims[3] || t.dims[2] > s.dims[2]) return gn__bad_shapes(c, "the rows do not fit the cache");
    *c->out = c->in[0];
    return GN_OK;
}

/* When the executor gives the cache's own memory as output, only the rows are written. */
static gn_result gn__cpu_kv_append(const gn__call *c) {
    int64_t pos = gn__read_int(c->in[2].dtype, c->in[2].p), T = c->in[1].dims[2], S = c->out.dims[2];
    if (pos < 0 || pos > S - T)
        return gn_fail(c->fault, GN_INDEX_OUT_OF_RANGE, "%lld rows from %lld on are outside a cache of %lld", (long long)T, (long long)pos, (long long)S);
    if (c->out.p != c->in[0].p) gn__copy_view(&c->out, &c->in[0]);
    gn_view rows = c->out;
    rows.dims[2] = T;
    rows.p += pos * rows.strides[2] * (int64_t)gn__bytes_of(c->out.dtype);
    gn__copy_view(&rows, &c->in[1]);
    return GN_OK;
}

GN__COLD_BEGIN

/* ---- running along an axis: attrs = axis. Row by row, in f64 or i64, in order ---- */

static gn_result gn__infer_cummax(const gn__infer_call *c) {
    int axis;
    *c->out = c->in[0];
    return gn__infer_axis(c, c->attrs[0], &axis);
}

static gn_result gn__infer_cumsum(const gn__infer_call *c) {
    gn_result r = gn__infer_cummax(c);
    if (!gn__is_float(c->in[0].dtype)) c->out->dtype = GN_I64;
    return r;
}
#define gn__infer_cumprod gn__infer_cumsum

typedef enum gn__along { GN__ALONG_SUM, GN__ALONG_PROD, GN__ALONG_MAX } gn__along;

typedef struct gn__along_job {
    gn__along kind;
    gn_view in, out;          /* the axis is last */
} gn__along_job;

static void gn__along_f64(gn__along kind, double *x, int64_t n, double *run, bool first) {
    for (int64_t i = 0; i < n; i++) {
        if (kind == GN__ALONG_SUM) *run += x[i];
        else if (kind == GN__ALONG_PROD) *run *= x[i];
        else if ((first && i == 0) || x[i] > *run || x[i] != x[i]) *run = x[i];
        x[i] = *run;
    }
}

static void gn__along_i64(gn__along kind, int64_t *x, int64_t n, int64_t *run, bool first) {
    for (int64_t i = 0; i < n; i++) {
        if (kind == GN__ALONG_SUM) *run = gn__m_add_i64(*run, x[i]);
        else if (kind == GN__ALONG_PROD) *run = gn__m_mul_i64(*run, x[i]);
        else if ((first && i == 0) || x[i] > *run) *run = x[i];
        x[i] = *run;
    }
}

static void gn__along_range(void *arg, int64_t begin, int64_t end) {
    const gn__along_job *j = (const gn__along_job *)arg;
    const gn_view *in = &j->in, *out = &j->out;
    int last = in->rank - 1;
    int64_t ib = (int64_t)gn__bytes_of(in->dtype), ob = (int64_t)gn__bytes_of(out->dtype), n = in->dims[last], is = in->strides[last], os = out->strides[last];
    bool real = gn__is_float(in->dtype);
    union { double f[GN__CHUNK]; int64_t i[GN__CHUNK]; } x;
    for (int64_t row = begin; row < end; row++) {
        const char *p = in->p + gn__view_offset(in, last, row) * ib;
        char *o = out->p + gn__view_offset(out, last, row) * ob;
        double run = j->kind == GN__ALONG_PROD;
        int64_t whole = j->kind == GN__ALONG_PROD;
        for (int64_t i = 0, m; i < n; i += m) {
            m = GN__MIN(n - i, (int64_t)GN__CHUNK);
            if (real) {
                gn__load_f64(x.f, in->dtype, p + i * is * ib, is, m);
                gn__along_f64(j->kind, x.f, m, &run, i == 0);
                gn__store_f64(x.f, out->dtype, o + i * os * ob, os, m);
            } else {
                gn__load_i64(x.i, in->dtype, p + i * is * ib, is, m);
                gn__along_i64(j->kind, x.i, m, &whole, i == 0);
                gn__store_i64(x.i, out->dtype, o + i * os * ob, os, m);
            }
        }
    }
}

static gn_result gn__cpu_along(const gn__call *c, gn__along kind) {
    int axis = gn__axis(c->attrs[0], c->in[0].rank);
    gn__along_job j = { kind, gn__view_axis_last(&c->in[0], axis), gn__view_axis_last(&c->out, axis) };
    int64_t n = c->in[0].dims[axis];
    if (gn__view_count(&c->out)) gn__pool_for(c->pool, gn__view_count(&c->out) / n, 1 + 16384 / n, gn__along_range, &j);
    return GN_OK;
}
static gn_result gn__cpu_cumsum(const gn__call *c) { return gn__cpu_along(c, GN__ALONG_SUM); }
static gn_result gn__cpu_cumprod(const gn__call *c) { return gn__cpu_along(c, GN__ALONG_PROD); }
static gn_result gn__cpu_cummax(const gn__call *c) { return gn__cpu_along(c, GN__ALONG_MAX); }

/* ---- argsort: attrs = axis, descending. A stable merge sort of positions; NaN goes last both ways ---- */

static gn_result gn__infer_argsort(const gn__infer_call *c) {
    gn_result r = gn__infer_cummax(c);
    if (r == GN_OK && (c->attrs[1] < 0 || c->attrs[1] > 1)) return gn_fail(c->fault, GN_BAD_ARGUMENT, "the direction is 0 or 1, not %lld", (long long)c->attrs[1]);
    c->out->dtype = GN_I64;
    return r;
}

static double gn__cost_argsort(const gn__infer_call *c) {
    double n = (double)gn__count(&c->out->shape);
    return n * log2(n + 1);
}

typedef struct gn__sort_job {
    gn_view in, out;          /* the axis is last */
    bool descending;
    gn__atomic failed;         /* no memory for keys; set by any thread */
} gn__sort_job;

typedef union gn__key { double f; int64_t i; } gn__key;

static bool gn__key_before(const gn__sort_job *j, gn__key a, gn__key b) {
    if (!gn__is_float(j->in.dtype)) return j->descending ? a.i > b.i : a.i < b.i;
    if (b.f != b.f) return a.f == a.f;
    return j->descending ? a.f > b.f : a.f < b.f;
}

/* Positions 0…n-1 in `at` in the keys' order; `spare` holds n more. Returns the one of the two that holds the result. */
static int64_t *gn__sort_positions(const gn__sort_job *j, const gn__key *keys, int64_t *at, int64_t *spare, int64_t n) {
    for (int64_t i = 0; i < n; i++) at[i] = i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * width) {
            int64_t left = begin, mid = GN__MIN(begin + width, n), right = mid, end = GN__MIN(begin + 2 * width, n);
            for (int64_t o = begin; o < end; o++) {
                bool take = left == mid || (right < end && gn__key_before(j, keys[at[right]], keys[at[left]]));
                spare[o] = at[take ? right++ : left++];
            }
        }
        int64_t *t = at;
        at = spare;
        spare = t;
    }
    return at;
}

static void gn__sort_range(void *arg, int64_t begin, int64_t end) {
    gn__sort_job *j = (gn__sort_job *)arg;
    int last = j->in.rank - 1;
    int64_t n = j->in.dims[last], bytes = (int64_t)gn__bytes_of(j->in.dtype);
    gn__key *keys = (gn__key *)gn_alloc((size_t)n * 3 * sizeof *keys);
    if (!keys) { gn__atomic_store(&j->failed, 1); return; }
    int64_t *at = (int64_t *)(void *)(keys + n);
    for (int64_t row = begin; row < end; row++) {
        const char *p = j->in.p + gn__view_offset(&j->in, last, row) * bytes;
        if (gn__is_float(j->in.dtype)) gn__load_f64(&keys->f, j->in.dtype, p, j->in.strides[last], n);
        else gn__load_i64(&keys->i, j->in.dtype, p, j->in.strides[last], n);
        const int64_t *order = gn__sort_positions(j, keys, at, at + n, n);
        gn__store_i64(order, GN_I64, j->out.p + gn__view_offset(&j->out, last, row) * 8, j->out.strides[last], n);
    }
    gn_free(keys);
}

static gn_result gn__cpu_argsort(const gn__call *c) {
    int axis = gn__axis(c->attrs[0], c->in[0].rank);
    gn__sort_job j = { gn__view_axis_last(&c->in[0], axis), gn__view_axis_last(&c->out, axis), c->attrs[1] != 0, 0 };
    int64_t n = c->in[0].dims[axis];
    if (gn__view_count(&c->out)) gn__pool_for(c->pool, gn__view_count(&c->out) / n, 1 + 1024 / n, gn__sort_range, &j);
    return gn__atomic_load(&j.failed) ? gn_fail(c->fault, GN_OUT_OF_MEMORY, "no memory for the keys of a sort") : GN_OK;
}

/* ---- scatter and scatter_max: attrs = axis. In index order: of equal indices the last one counts, or the larger ---- */

#define gn__infer_scatter gn__infer_scatter_add
#define gn__infer_scatter_max gn__infer_scatter_add

/* Whether the element at s replaces the one at o. */
static bool gn__is_larger(gn_dtype d, const char *s, const char *o) {
    if (!gn__is_float(d)) return gn__read_int(d, s) > gn__read_int(d, o);
    double a, b;
    gn__load_f64(&a, d, s, 1, 1);
    gn__load_f64(&b, d, o, 1, 1);
    return a > b || (a != a && b == b);
}

static gn_result gn__scatter_put(const gn__call *c, bool larger) {
    int axis = gn__axis(c->attrs[0], c->out.rank);
    int64_t n = gn__view_count(&c->in[1]), bad = 0;
    size_t bytes = gn__bytes_of(c->out.dtype);
    gn__copy_view(&c->out, &c->in[0]);
    for (int64_t i = 0; i < n; i++) {
        char *o = gn__selected(&c->out, &c->in[1], axis, i, &bad);
        if (!o) return gn__bad_index(c->fault, bad, c->out.dims[axis]);
        const char *s = c->in[2].p + gn__view_offset(&c->in[2], c->in[2].rank, i) * (int64_t)bytes;
        if (!larger || gn__is_larger(c->out.dtype, s, o)) memcpy(o, s, bytes);
    }
    return GN_OK;
}
static gn_result gn__cpu_scatter(const gn__call *c) { return gn__scatter_put(c, false); }
static gn_result gn__cpu_scatter_max(const gn__call *c) { return gn__scatter_put(c, true); }

/* ---- nonzero: attrs = bound. (bound, rank) i64, places in row-major order, then -1 ---- */

static gn_result gn__infer_nonzero(const gn__infer_call *c) {
    c->out->dtype = GN_I64;
    c->out->shape = GN_SHAPE(c->attrs[0], c->in[0].shape.rank);
    return gn__shape_ok(&c->out->shape) ? GN_OK : gn_fail(c->fault, GN_BAD_SHAPE, "a bound of %lld is not possible", (long long)c->attrs[0]);
}

static bool gn__is_nonzero(gn_dtype d, const char *p) {
    double x;
    if (!gn__is_float(d)) return gn__read_int(d, p) != 0;
    gn__load_f64(&x, d, p, 1, 1);
    return x != 0;
}

static gn_result gn__cpu_nonzero(const gn__call *c) {
    const gn_view *in = &c->in[0];
    int64_t n = gn__view_count(in), bound = c->out.dims[0], found = 0, bytes = (int64_t)gn__bytes_of(in->dtype);
    int64_t *out = (int64_t *)(void *)c->out.p;
    for (int64_t i = 0; i < n; i++) {
        if (!gn__is_nonzero(in->dtype, in->p + gn__view_offset(in, in->rank, i) * bytes)) continue;
        if (found == bound) return gn_fail(c->fault, GN_INDEX_OUT_OF_RANGE, "more than %lld elements are not 0", (long long)bound);
        for (int64_t k = in->rank - 1, at = i; k >= 0; at /= in->dims[k--]) out[found * in->rank + k] = at % in->dims[k];
        found++;
    }
    for (int64_t i = found * in->rank; i < bound * in->rank; i++) out[i] = -1;
    return GN_OK;
}

GN__COLD_END

/* ---- the table ---- */

#define GN__U(NAME, name, ...) static void gn__grad_##name(gn__grads *k);
#define GN__N(...)
GN__SCALAR_OPS(GN__U, GN__U, GN__N, GN__N, GN__N, GN__U, GN__U)
#undef GN__U
#undef GN__N
#define GN__DECLARE_GRAD_true(name) static void gn__grad_##name(gn__grads *k);
#define GN__DECLARE_GRAD_false(name)
#define GN__X(NAME, name, w, kind, least, most, attrs, mask, tol, grad) GN__DECLARE_GRAD_##grad(name)
GN_STRUCTURED_OPS(GN__X)
#undef GN__X

#define GN__TILES_F(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f64, NULL, NULL }
#define GN__TILES_L(NAME) GN__TILES_F(NAME)
#define GN__TILES_A(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f64, gn__tile_##NAME##_i32, gn__tile_##NAME##_i64 }
#if GN__X86
#define GN__WIDE_A(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f32_avx2, gn__tile_##NAME##_f32_avx512 }
#define GN__WIDE_F(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f32_avx2, gn__tile_##NAME##_f32_avx2 }
#else
#define GN__WIDE_A(NAME) { gn__tile_##NAME##_f32, NULL, NULL }
#define GN__WIDE_F(NAME) GN__WIDE_A(NAME)
#endif
#define GN__WIDE_L(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f32, gn__tile_##NAME##_f32 }
#define GN__WIDE_I(NAME) { NULL, NULL, NULL }
#define GN__TILES_I(NAME) { NULL, NULL, gn__tile_##NAME##_i32, gn__tile_##NAME##_i64 }
#define GN__ROW(NAME, lower, w, cls, mask, fl, tol, body, n, cmp, rule, g)                                                  \
    [GN__OP_##NAME] = { .name = lower, .text = body, .wire = w, .kind = GN_CLASS_SCALAR, .least = n, .most = n,              \
                        .n_attrs = GN__OP_##NAME == GN__OP_CLAMP ? 2 : 0, .compares = cmp, .dtypes = mask, .flops = fl,      \
                        .tolerance = tol, .infer = rule, .grad = g, .tile = GN__TILES_##cls(NAME), .wide = GN__WIDE_##cls(NAME) },
#define GN__U(NAME, name, w, cls, mask, fl, tol, body, ...) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 1, false, gn__infer_scalar, gn__grad_##name)
#define GN__B(NAME, name, w, cls, mask, fl, tol, body, ...) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 2, false, gn__infer_scalar, gn__grad_##name)
#define GN__T3(NAME, name, w, cls, mask, fl, tol, body, ...) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 3, false, gn__infer_scalar, gn__grad_##name)
#define GN__UN(NAME, name, w, cls, mask, fl, tol, body) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 1, false, gn__infer_scalar, NULL)
#define GN__BN(NAME, name, w, cls, mask, fl, tol, body) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 2, false, gn__infer_scalar, NULL)
#define GN__C(NAME, name, w, cls, mask, fl, tol, body) GN__ROW(NAME, #name, w, cls, mask, fl, tol, #body, 2, true, gn__infer_compare, NULL)
#define GN__GRAD_true(name) gn__grad_##name
#define GN__GRAD_false(name) NULL
#define GN__TEXT_SCALAR(NAME) (GN__OP_##NAME == GN__OP_WHERE ? "a ? b : c" : "a")   /* cast: converted by the compute type */
#define GN__TEXT_REDUCE(NAME) NULL
#define GN__TEXT_MOVE(NAME) NULL
#define GN__TEXT_STRUCTURED(NAME) NULL
#define GN__TEXT_GENERATOR(NAME) NULL
#define GN__CPU_SCALAR(name) NULL               /* runs as a tile of a fused group */
#define GN__CPU_REDUCE(name) gn__cpu_##name
#define GN__CPU_MOVE(name) gn__cpu_##name
#define GN__CPU_STRUCTURED(name) gn__cpu_##name
#define GN__CPU_GENERATOR(name) gn__cpu_##name
#define GN__X(NAME, lower, w, cls, lo, hi, words, mask, tol, g)                                                             \
    [GN__OP_##NAME] = { .name = #lower, .text = GN__TEXT_##cls(NAME), .wire = w, .kind = GN_CLASS_##cls, .least = lo, .most = hi, .n_attrs = words, .dtypes = mask, \
                        .flops = 1, .tolerance = tol, .infer = gn__infer_##lower, .cpu = GN__CPU_##cls(lower), .grad = GN__GRAD_##g(lower) },
#define GN__L(NAME, lower, w) [GN__OP_##NAME] = { .name = #lower, .wire = w, .kind = GN_CLASS_LEAF },

static const gn__op_row gn__ops[GN__OP__COUNT] = {
    [GN__OP_FAILED] = { .name = "failed", .kind = GN_CLASS_LEAF },
    GN__LEAF_OPS(GN__L)
    GN__SCALAR_OPS(GN__U, GN__B, GN__UN, GN__BN, GN__C, GN__U, GN__T3)
    GN_STRUCTURED_OPS(GN__X)
};
#undef GN__U
#undef GN__B
#undef GN__UN
#undef GN__BN
#undef GN__C
#undef GN__T3
#undef GN__X
#undef GN__L

/* Columns that stand beside the table because few rows have them. */
static double gn__cost_reads(const gn__infer_call *c) { return (double)gn__count(&c->in[0].shape); }

static gn__cost_fn gn__op_cost(int op) {
    if (op == GN__OP_MATMUL || op == GN__OP_LINEAR) return gn__cost_matmul;
    if (op == GN__OP_ATTENTION) return gn__cost_attention;
    if (op == GN__OP_ARGSORT) return gn__cost_argsort;
    return gn__ops[op].kind == GN_CLASS_REDUCE || op == GN__OP_NONZERO ? gn__cost_reads : NULL;
}

static int gn__op_by_wire(uint16_t wire) {
    for (int i = 1; i < GN__OP__COUNT; i++)
        if (gn__ops[i].wire == wire) return i;
    return -1;
}

static int gn__op_leaf(gn_leaf_kind kind) {
    static const uint16_t ops[GN_LEAF__COUNT] = { 0, GN__OP_DATA, GN__OP_VALUE, GN__OP_WEIGHT, GN__OP_STATE };
    return kind > GN_LEAF_NONE && kind < GN_LEAF__COUNT ? ops[kind] : -1;
}

static bool gn__is_view_op(int op) {
    return op == GN__OP_RESHAPE || op == GN__OP_PERMUTE || op == GN__OP_SLICE || op == GN__OP_BROADCAST || op == GN__OP_ASSIGN;
}

/* Integer divisors of 0 are a fault. */
static bool gn__op_divides(int op) { return op == GN__OP_DIV || op == GN__OP_FMOD || op == GN__OP_REMAINDER || op == GN__OP_FLOOR_DIVIDE; }

/* The dtype and shape of op(in…; attrs…). Builders and servers both come through here: nothing else decides a shape.
   Checks everything; the inputs' own types are valid. */
static gn_result gn__infer(int op, const gn__type *in, int n_in, const int64_t *attrs, int n_attrs, gn__type *out, gn_fault *f) {
    if (op <= GN__OP_FAILED || op >= GN__OP__COUNT || !gn__ops[op].infer) return gn_fail(f, GN_UNSUPPORTED, "this is not an operation");
    const gn__op_row *row = &gn__ops[op];
    if (n_in < row->least || n_in > row->most) return gn_fail(f, GN_BAD_ARGUMENT, "%s takes %d to %d inputs, not %d", row->name, row->least, row->most, n_in);
    if (n_attrs < 0 || (row->n_attrs >= 0 && n_attrs != row->n_attrs)) return gn_fail(f, GN_BAD_ARGUMENT, "%s takes %d attributes, not %d", row->name, row->n_attrs, n_attrs);
    gn__infer_call c = { in, n_in, attrs, n_attrs, out, f };
    gn__type t = { GN_DTYPE_NONE, GN_SCALAR };
    c.out = &t;
    if (n_in > 0 && !(GN__BIT(in[0].dtype) & row->dtypes)) return gn_fail(f, GN_BAD_DTYPE, "%s does not take %s", row->name, gn__dtypes[in[0].dtype].name);
    gn_result r = row->infer(&c);
    if (r != GN_OK) return r;
    if (!gn__type_ok(&t)) return gn__bad_shapes(&c, "the result is too large");
    *out = t;
    return GN_OK;
}

static double gn__op_flops(int op, const gn__type *in, int n_in, const gn__type *out) {
    gn__type copy = *out;
    gn__infer_call c = { in, n_in, NULL, 0, &copy, NULL };
    gn__cost_fn cost = gn__op_cost(op);
    return cost ? cost(&c) : gn__ops[op].flops * (double)gn__count(&out->shape);
}

/* >>graph ==========================================================================================
 * Nodes live in one array; an input always has a smaller index, so every walk is a loop. Node 0 is the node that could not
 * be built for lack of memory or room; its error is errors[0]. */

typedef struct gn__node {
    uint64_t hash;           /* of the structure below, equal for equal structures */
    const char *file;
    uint32_t line;
    uint32_t shape;          /* index into shapes */
    uint32_t ins, attrs;     /* first entry in the side arrays */
    uint16_t op, n_ins;
    uint16_t n_attrs;
    uint8_t dtype, leaf;
    uint32_t slot;           /* 1 + slot of a weight, a state or a version of one; 0: none */
    uint32_t extra;          /* data: index into data; failed: into errors; state and committed version: the version */
    uint32_t label;          /* index into labels, 0: none */
    uint8_t phase;
    bool committed;          /* a version node that has become its state's value */
    uint64_t value;          /* id of the kept value, 0: none */
} gn__node;

typedef struct gn__data { const void *host; void *owned; size_t bytes; uint8_t small[8]; } gn__data;

typedef struct gn__slot {
    gn__type type;
    const void *host;        /* weights: borrowed; states: owned first value until it is on the device, NULL: zeros */
    gn_leaf_kind kind;       /* GN_LEAF_NONE: free */
    uint32_t gen, version, label;
    uint32_t leaf, leaf_gen, leaf_version;   /* the node that stands for the current version in this step */
    uint32_t pending;        /* node that becomes the next version; 0: none */
    uint32_t cut_node, cut_serial;           /* part node of the current version in the latest cut that met it */
    bool on_device, kv;
} gn__slot;

typedef struct gn__origin { const char *file; uint32_t line, label; uint16_t op; } gn__origin;

typedef struct gn__plan {
    gn_part *part;
    void *exec_plan;
    gn__origin *origins;     /* per node, of the latest step that used the plan */
} gn__plan;

#define GN__ARRAY(T, name) T *name; size_t n_##name, cap_##name
/* Appends room for one; the new element is g->name[g->n_name - 1]. False without memory. */
#define GN__GROW(g, name, more) ((g)->n_##name + (more) <= (g)->cap_##name || gn__grow_raw((void **)(void *)&(g)->name, &(g)->cap_##name, (g)->n_##name + (more), sizeof *(g)->name))

static bool gn__grow_raw(void **p, size_t *cap, size_t want, size_t size) {
    void *q;
    memcpy(&q, p, sizeof q);
    bool ok = gn__reserve(&q, cap, want, size);
    memcpy(p, &q, sizeof q);
    return ok;
}

typedef struct gn__cut {     /* scratch of the latest cut; `part` points into it */
    GN__ARRAY(gn_part_node, nodes);
    GN__ARRAY(uint32_t, ins);
    GN__ARRAY(int64_t, attrs);
    GN__ARRAY(int64_t, dims);
    GN__ARRAY(uint32_t, args);
    GN__ARRAY(uint32_t, outs);
    GN__ARRAY(gn_part_update, updates);
    GN__ARRAY(uint32_t, ids);      /* context node of each part node */
    GN__ARRAY(uint64_t, marks);    /* bit per context node; all zero between cuts */
    GN__ARRAY(uint32_t, where);    /* part node of each context node that is marked */
    uint32_t serial;
    gn_part part;
} gn__cut;

struct gn_ctx {
    gn_ctx *next;            /* control blocks are never freed: the generation of a handle outlives its context */
    bool open;
    gn_result status;
    uint32_t gen;            /* last generation given out, rising for ever */
    uint32_t opened_gen, step_gen;
    uint32_t max_nodes;
    gn_desc desc;
    gn_exec exec;
    gn_stats stats;
    gn_error error;
    GN__ARRAY(gn__node, nodes);
    GN__ARRAY(uint32_t, ins);
    GN__ARRAY(int64_t, attrs);
    GN__ARRAY(gn_shape, shapes);   /* interned, live until close */
    GN__ARRAY(gn__data, data);
    GN__ARRAY(gn_error, errors);
    GN__ARRAY(char *, labels);     /* interned, live until close */
    GN__ARRAY(gn__slot, slots);
    GN__ARRAY(uint32_t, pending);  /* slots with a pending version */
    GN__ARRAY(gn__plan, plans);
    uint32_t *shape_table, *plan_table, *label_table;   /* open addressing, 1 + index */
    size_t shape_room, plan_room, label_room;           /* powers of two */
    gn__cut cut;
    uint64_t next_value;     /* id of the next kept value */
    uint64_t last_ticket;
    uint64_t run_counter;    /* of the random generators, one a step */
    uint32_t n_random;       /* generators built in this step */
    uint32_t random_leaf;    /* node of the running counter in this step, 0: none */
    uint32_t failed_effect;  /* first failed assign of this step, 0: none */
    uint8_t phase;
};

#define GN__SLOT_BIT 0x80000000u    /* of a handle's id: a weight or state, not a node */
#define GN__DEAD(g) ((gn_tensor){ g, 0, 0 })   /* what a builder returns on a context that cannot be used */

typedef struct gn__loc { const char *file; int line; } gn__loc;

/* ---- open-addressing tables of 1 + index, keyed by hash ---- */

typedef bool (*gn__same_fn)(const void *owner, uint32_t index, const void *key);

/* The entry for the key, or the free place for it; NULL when the table cannot grow. */
static uint32_t *gn__table_find(uint32_t *table, size_t room, uint64_t hash, gn__same_fn same, const void *owner, const void *key) {
    for (size_t i = (size_t)hash & (room - 1);; i = (i + 1) & (room - 1))
        if (!table[i] || same(owner, table[i] - 1, key)) return &table[i];
}

/* Keeps the table at most half full; entries' hashes come from `hash_of`. */
static bool gn__table_room(uint32_t **table, size_t *room, size_t used, uint64_t (*hash_of)(const void *owner, uint32_t index), const void *owner) {
    if (*table && used * 2 < *room) return true;
    size_t next = *room ? *room * 2 : 64;
    uint32_t *t = (uint32_t *)gn__alloc_zero(next * sizeof *t);
    if (!t) return false;
    for (size_t i = 0; i < *room; i++) {
        if (!(*table)[i]) continue;
        size_t at = (size_t)hash_of(owner, (*table)[i] - 1) & (next - 1);
        while (t[at]) at = (at + 1) & (next - 1);
        t[at] = (*table)[i];
    }
    gn_free(*table);
    *table = t;
    *room = next;
    return true;
}

static uint64_t gn__shape_hash(const gn_shape *s) {
    uint64_t h = (uint64_t)s->rank;
    for (int i = 0; i < s->rank; i++) h = gn__mix(h, (uint64_t)s->dims[i]);
    return gn__mix(h, 0x51);
}
static uint64_t gn__shape_hash_of(const void *owner, uint32_t i) { return gn__shape_hash(&((const gn_ctx *)owner)->shapes[i]); }
static bool gn__shape_same(const void *owner, uint32_t i, const void *key) { return gn__shape_equal(&((const gn_ctx *)owner)->shapes[i], (const gn_shape *)key); }

static uint32_t gn__shape_intern(gn_ctx *g, const gn_shape *s) {   /* UINT32_MAX without memory */
    if (g->n_shapes * 2 >= g->shape_room && !gn__table_room(&g->shape_table, &g->shape_room, g->n_shapes, gn__shape_hash_of, g)) return UINT32_MAX;
    uint64_t hash = gn__shape_hash(s);
    uint32_t first = g->shape_table[hash & (g->shape_room - 1)];
    if (first && gn__shape_equal(&g->shapes[first - 1], s)) return first - 1;
    uint32_t *at = gn__table_find(g->shape_table, g->shape_room, hash, gn__shape_same, g, s);
    if (*at) return *at - 1;
    if (!GN__GROW(g, shapes, 1)) return UINT32_MAX;
    g->shapes[g->n_shapes++] = *s;
    *at = (uint32_t)g->n_shapes;
    return *at - 1;
}

static uint64_t gn__label_hash_of(const void *owner, uint32_t i) { const char *s = ((const gn_ctx *)owner)->labels[i]; return gn__hash_bytes(s, strlen(s), 1); }
static bool gn__label_same(const void *owner, uint32_t i, const void *key) { return strcmp(((const gn_ctx *)owner)->labels[i], (const char *)key) == 0; }

/* Labels are cut to what gn_error can hold; 0 for none or without memory (a missing label loses no result). */
static uint32_t gn__label_intern(gn_ctx *g, const char *label) {
    char text[sizeof g->error.label];
    if (!label || !label[0]) return 0;
    gn__copy_text(text, sizeof text, label);
    if (!gn__table_room(&g->label_table, &g->label_room, g->n_labels, gn__label_hash_of, g)) return 0;
    uint32_t *at = gn__table_find(g->label_table, g->label_room, gn__hash_bytes(text, strlen(text), 1), gn__label_same, g, text);
    if (*at) return *at;
    char *copy = (char *)gn_alloc(strlen(text) + 1);
    if (!copy) return 0;
    if (!GN__GROW(g, labels, 1)) { gn_free(copy); return 0; }
    memcpy(copy, text, strlen(text) + 1);
    g->labels[g->n_labels++] = copy;
    *at = (uint32_t)g->n_labels;
    return *at;
}

static const char *gn__label_text(const gn_ctx *g, uint32_t label) { return label ? g->labels[label - 1] : ""; }

/* ---- nodes ---- */

GN__INLINE const gn_shape *gn__shape_of(const gn_ctx *g, uint32_t id) { return &g->shapes[g->nodes[id].shape]; }
static gn__type gn__type_of(const gn_ctx *g, uint32_t id) {
    gn__type t = { (gn_dtype)g->nodes[id].dtype, *gn__shape_of(g, id) };
    return t;
}

static double gn__node_flops(const gn_ctx *g, uint32_t id) {
    const gn__node *n = &g->nodes[id];
    gn__type in[3] = { { GN_DTYPE_NONE, { 0, { 0 } } } }, out = gn__type_of(g, id);
    for (uint32_t i = 0; i < n->n_ins && i < 3; i++) in[i] = gn__type_of(g, g->ins[n->ins + i]);
    return n->leaf ? 0 : gn__op_flops(n->op, in, (int)n->n_ins, &out);
}

/* A node with room for its inputs and attributes; 0 without memory or past the limit. `shape`: interned. */
static uint32_t gn__node_shaped(gn_ctx *g, gn__loc at, int op, gn_dtype dtype, uint32_t shape, int n_in, int n_attrs) {
    bool full = g->n_nodes >= g->max_nodes;
    if (full || shape == UINT32_MAX || !GN__GROW(g, nodes, 1) || !GN__GROW(g, ins, (size_t)n_in) || !GN__GROW(g, attrs, (size_t)n_attrs)) {
        g->errors[0].result = full ? GN_TOO_MANY_NODES : GN_OUT_OF_MEMORY;
        return 0;
    }
    gn__node *n = &g->nodes[g->n_nodes];
    memset(n, 0, sizeof *n);
    n->file = at.file;
    n->line = (uint32_t)at.line;
    n->op = (uint16_t)op;
    n->dtype = (uint8_t)dtype;
    n->shape = shape;
    n->ins = (uint32_t)g->n_ins;
    n->n_ins = (uint16_t)n_in;
    n->attrs = (uint32_t)g->n_attrs;
    n->n_attrs = (uint16_t)n_attrs;
    n->phase = g->phase;
    g->stats.nodes_built++;
    return (uint32_t)g->n_nodes++;
}

static uint32_t gn__node_new(gn_ctx *g, gn__loc at, int op, const gn__type *t, int n_in, int n_attrs) {
    return gn__node_shaped(g, at, op, t->dtype, gn__shape_intern(g, &t->shape), n_in, n_attrs);
}

static void gn__node_hash(gn_ctx *g, uint32_t id) {
    gn__node *n = &g->nodes[id];
    uint64_t h = gn__mix(((uint64_t)n->op << 32) | ((uint64_t)n->dtype << 16) | n->leaf, n->shape);
    for (uint32_t i = 0; i < n->n_ins; i++) h = gn__mix(h, g->nodes[g->ins[n->ins + i]].hash);
    for (uint32_t i = 0; i < n->n_attrs; i++) h = gn__mix(h, (uint64_t)g->attrs[n->attrs + i]);
    n->hash = gn__mix(h, n->slot);
}

/* A failed node that carries its first cause; ops on it return it unchanged. */
static uint32_t gn__failed(gn_ctx *g, gn__loc at, int op, const gn_fault *f) {
    gn__type none = { GN_DTYPE_NONE, GN_SCALAR };
    if (!GN__GROW(g, errors, 1)) return 0;
    uint32_t id = gn__node_new(g, at, GN__OP_FAILED, &none, 0, 0);
    if (!id) return 0;
    gn_error *e = &g->errors[g->n_errors];
    memset(e, 0, sizeof *e);
    e->result = f->result;
    e->line = at.line;
    gn__copy_text(e->op, sizeof e->op, op > 0 ? gn__ops[op].name : "");
    gn__copy_text(e->file, sizeof e->file, at.file);
    gn__copy_text(e->text, sizeof e->text, f->text);
    g->nodes[id].extra = (uint32_t)g->n_errors++;
    return id;
}

GN__PRINTF(5, 6) static uint32_t gn__failed_with(gn_ctx *g, gn__loc at, int op, gn_result r, const char *format, ...) {
    gn_fault f;
    va_list args;
    va_start(args, format);
    gn__fail_v(&f, r, format, args);
    va_end(args);
    return gn__failed(g, at, op, &f);
}

/* Which labels the inputs have, appended to an error's text. */
static void gn__failed_labels(gn_ctx *g, uint32_t id, const uint32_t *in, int n_in) {
    if (!id) return;
    gn_error *e = &g->errors[g->nodes[id].extra];
    for (int i = 0; i < n_in; i++) {
        uint32_t label = g->nodes[in[i]].label;
        if (!label) continue;
        if (!e->label[0]) gn__copy_text(e->label, sizeof e->label, gn__label_text(g, label));
        size_t used = strlen(e->text);
        snprintf(e->text + used, sizeof e->text - used, "; input %d is '%s'", i, gn__label_text(g, label));
    }
}

enum { GN__MAX_INPUTS = 255 };

/* The builder. Inputs are node indices of g. */
static uint32_t gn__build(gn_ctx *g, gn__loc at, int op, int n_in, const uint32_t *in, int n_attrs, const int64_t *attrs) {
    gn__type types[GN__MAX_INPUTS], out;
    gn_fault f;
    if (n_in > GN__MAX_INPUTS) return gn__failed_with(g, at, op, GN_BAD_ARGUMENT, "%d inputs are more than %d", n_in, GN__MAX_INPUTS);
    types[0].dtype = GN_DTYPE_NONE;
    for (int i = 0; i < n_in; i++) {
        if (g->nodes[in[i]].op == GN__OP_FAILED) return in[i];
        types[i] = gn__type_of(g, in[i]);
    }
    if (gn__infer(op, types, n_in, attrs, n_attrs, &out, &f) != GN_OK) {
        uint32_t bad = gn__failed(g, at, op, &f);
        gn__failed_labels(g, bad, in, n_in);
        return bad;
    }
    uint32_t same = n_in && gn__shape_equal(&out.shape, gn__shape_of(g, in[0])) ? g->nodes[in[0]].shape : gn__shape_intern(g, &out.shape);
    uint32_t id = gn__node_shaped(g, at, op, out.dtype, same, n_in, n_attrs);
    if (!id) return 0;
    for (int i = 0; i < n_in; i++) {
        GN_ASSERT(in[i] < id);
        g->ins[g->n_ins++] = in[i];
    }
    for (int i = 0; i < n_attrs; i++) g->attrs[g->n_attrs++] = attrs[i];
    gn__node_hash(g, id);
    return id;
}

static uint32_t gn__cast_to(gn_ctx *g, gn__loc at, uint32_t a, gn_dtype d) {
    int64_t attr = d;
    if (g->nodes[a].op == GN__OP_FAILED || g->nodes[a].dtype == d) return a;
    return gn__build(g, at, GN__OP_CAST, 1, &a, 1, &attr);
}

/* Scalar ops on mixed dtypes: inputs from `first` on are cast to the promoted dtype. */
static uint32_t gn__build_promoted(gn_ctx *g, gn__loc at, int op, int n_in, const uint32_t *in, int first, int n_attrs, const int64_t *attrs) {
    uint32_t x[3];
    gn__type t[3];
    for (int i = 0; i < n_in; i++) {
        x[i] = in[i];
        if (g->nodes[x[i]].op == GN__OP_FAILED) return x[i];
        t[i] = gn__type_of(g, x[i]);
    }
    gn_dtype d = gn__promote(t + first, n_in - first);
    for (int i = first; i < n_in; i++) x[i] = gn__cast_to(g, at, x[i], d);
    return gn__build(g, at, op, n_in, x, n_attrs, attrs);
}

/* ---- leaves ---- */

static uint32_t gn__data_leaf(gn_ctx *g, gn__loc at, const gn__type *t, const void *host, const void *small, size_t small_bytes) {
    if (!gn__type_ok(t)) return gn__failed_with(g, at, GN__OP_DATA, GN_BAD_SHAPE, "a dtype, rank or dimension of the data is not valid, or it is too large");
    if (!host && !small && gn__count(&t->shape) > 0) return gn__failed_with(g, at, GN__OP_DATA, GN_BAD_ARGUMENT, "the data is NULL");
    if (!GN__GROW(g, data, 1)) return 0;
    uint32_t id = gn__node_new(g, at, GN__OP_DATA, t, 0, 0);
    if (!id) return 0;
    gn__data *d = &g->data[g->n_data];
    memset(d, 0, sizeof *d);
    d->host = host;
    d->bytes = gn__type_bytes(t);
    if (small) memcpy(d->small, small, small_bytes);
    g->nodes[id].leaf = GN_LEAF_DATA;
    g->nodes[id].extra = (uint32_t)g->n_data++;
    gn__node_hash(g, id);
    return id;
}

static uint32_t gn__scalar_leaf(gn_ctx *g, gn__loc at, gn_dtype d, double value) {
    gn__type t = { d, GN_SCALAR };
    char small[8] = { 0 };
    int64_t w;
    if (!gn__dtype_ok((int)d)) return gn__failed_with(g, at, GN__OP_DATA, GN_BAD_DTYPE, "dtype %d is not known", (int)d);
    if (gn__is_float(d)) gn__store_f64(&value, d, small, 1, 1);
    else { w = gn__f64_int(value, d); gn__store_i64(&w, d, small, 1, 1); }
    return gn__data_leaf(g, at, &t, NULL, small, sizeof small);
}

static uint32_t gn__full(gn_ctx *g, gn__loc at, gn_dtype d, const gn_shape *s, double value) {
    int64_t attrs[2 + GN_MAX_RANK] = { d, gn__f64_word(value) };
    if (s->rank < 0 || s->rank > GN_MAX_RANK) return gn__failed_with(g, at, GN__OP_FULL, GN_BAD_RANK, "rank %d is outside 0 to %d", s->rank, GN_MAX_RANK);
    for (int i = 0; i < s->rank; i++) attrs[2 + i] = s->dims[i];
    return gn__build(g, at, GN__OP_FULL, 0, NULL, 2 + s->rank, attrs);
}

static uint32_t gn__random_node(gn_ctx *g, gn__loc at, int op, gn_dtype d, const gn_shape *s) {
    int64_t attrs[2 + GN_MAX_RANK] = { d, 0 };
    if (s->rank < 0 || s->rank > GN_MAX_RANK) return gn__failed_with(g, at, op, GN_BAD_RANK, "rank %d is outside 0 to %d", s->rank, GN_MAX_RANK);
    for (int i = 0; i < s->rank; i++) attrs[2 + i] = s->dims[i];
    attrs[1] = (int64_t)gn__mix(gn__mix(g->desc.seed, 0x6e), g->n_random++);
    if (!g->random_leaf) {
        gn__type t = { GN_I64, GN_SCALAR };
        g->random_leaf = gn__data_leaf(g, at, &t, NULL, &g->run_counter, 8);
    }
    return gn__build(g, at, op, 1, &g->random_leaf, 2 + s->rank, attrs);
}

/* The node that stands for a slot's committed version in this step. */
static uint32_t gn__slot_leaf(gn_ctx *g, uint32_t slot) {
    gn__slot *s = &g->slots[slot];
    if (s->leaf && s->leaf_gen == g->step_gen && s->leaf_version == s->version) return s->leaf;
    gn__loc nowhere = { "", 0 };
    uint32_t id = gn__node_new(g, nowhere, gn__op_leaf(s->kind), &s->type, 0, 0);
    if (!id) return 0;
    gn__node *n = &g->nodes[id];
    n->leaf = (uint8_t)s->kind;
    n->slot = slot + 1;
    n->extra = s->version;
    n->label = s->label;
    gn__node_hash(g, id);
    s->leaf = id;
    s->leaf_gen = g->step_gen;
    s->leaf_version = s->version;
    return id;
}

/* Registers node `id` as the next version of the state that `target` is the latest version of. */
static uint32_t gn__make_version(gn_ctx *g, gn__loc at, int op, uint32_t target, uint32_t id) {
    if (g->nodes[id].op == GN__OP_FAILED) { if (!g->failed_effect) g->failed_effect = id; return id; }
    uint32_t slot = g->nodes[target].slot - 1;
    gn__slot *s = &g->slots[slot];
    bool current = s->pending ? target == s->pending : g->nodes[target].extra == s->version;
    if (!current || !GN__GROW(g, pending, 1)) {
        id = current ? 0 : gn__failed_with(g, at, op, GN_SUPERSEDED, "state '%s' has a newer version in this step: assign to the version that the earlier call returned", gn__label_text(g, s->label));
        if (!g->failed_effect) g->failed_effect = id;
        return id;
    }
    if (!s->pending) g->pending[g->n_pending++] = slot;
    s->pending = id;
    g->nodes[id].slot = slot + 1;
    g->nodes[id].label = s->label;
    return id;
}

static uint32_t gn__assign_node(gn_ctx *g, gn__loc at, uint32_t target, uint32_t value) {
    uint32_t in[2] = { target, value }, id = 0;
    if (g->nodes[target].op != GN__OP_FAILED && (!g->nodes[target].slot || g->nodes[target].leaf == GN_LEAF_WEIGHT))
        id = gn__failed_with(g, at, GN__OP_ASSIGN, GN_NOT_A_STATE, "only a state or a version of one can be assigned");
    else id = gn__build(g, at, GN__OP_ASSIGN, 2, in, 0, NULL);
    return gn__make_version(g, at, GN__OP_ASSIGN, target, id);
}

static uint32_t gn__kv_append_node(gn_ctx *g, gn__loc at, uint32_t cache, uint32_t rows, uint32_t pos) {
    uint32_t in[3] = { cache, rows, pos };
    uint32_t id = gn__build(g, at, GN__OP_KV_APPEND, 3, in, 0, NULL);
    bool version = g->nodes[cache].op != GN__OP_FAILED && g->nodes[cache].slot && g->nodes[cache].leaf != GN_LEAF_WEIGHT;
    if (!version) return id;
    g->slots[g->nodes[cache].slot - 1].kv = true;
    return gn__make_version(g, at, GN__OP_KV_APPEND, cache, id);
}

/* ---- parts ---- */

typedef struct gn__part_size { uint32_t n_nodes, n_ins, n_attrs, n_dims, n_args, n_outs, n_updates; } gn__part_size;

/* One block: gn_free releases it. Arrays are zeroed. */
static gn_part *gn__part_alloc(const gn__part_size *s) {
    size_t at[8], n = sizeof(gn_part);
    const size_t sizes[7] = { s->n_nodes * sizeof(gn_part_node), s->n_attrs * sizeof(int64_t), s->n_dims * sizeof(int64_t), s->n_ins * sizeof(uint32_t),
                              s->n_args * sizeof(uint32_t), s->n_outs * sizeof(uint32_t), s->n_updates * sizeof(gn_part_update) };
    for (int i = 0; i < 7; i++) {
        at[i] = n = (n + 7) & ~(size_t)7;
        n += sizes[i];
    }
    char *p = (char *)gn__alloc_zero(n);
    if (!p) return NULL;
    gn_part *part = (gn_part *)(void *)p;
    part->n_nodes = s->n_nodes;
    part->n_ins = s->n_ins;
    part->n_attrs = s->n_attrs;
    part->n_dims = s->n_dims;
    part->n_args = s->n_args;
    part->n_outs = s->n_outs;
    part->n_updates = s->n_updates;
    part->nodes = (const gn_part_node *)(void *)(p + at[0]);
    part->attrs = (const int64_t *)(void *)(p + at[1]);
    part->dims = (const int64_t *)(void *)(p + at[2]);
    part->ins = (const uint32_t *)(void *)(p + at[3]);
    part->args = (const uint32_t *)(void *)(p + at[4]);
    part->outs = (const uint32_t *)(void *)(p + at[5]);
    part->updates = (const gn_part_update *)(void *)(p + at[6]);
    return part;
}

/* Over every field, by wire id of the op, so that it is equal on every machine and in every version. */
static uint64_t gn__part_hash(const gn_part *p) {
    uint64_t h = gn__mix(0x67656e6965, ((uint64_t)p->n_nodes << 32) | p->n_args);
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        h = gn__mix(h, ((uint64_t)gn__ops[n->op].wire << 48) | ((uint64_t)n->dtype << 40) | ((uint64_t)n->leaf << 32) | ((uint64_t)n->rank << 24) | ((uint64_t)n->phase << 16) | n->n_attrs);
        h = gn__mix(h, ((uint64_t)n->slot << 32) | n->gen);
        h = gn__mix(h, ((uint64_t)n->n_ins << 32) | n->arg);
        for (uint32_t k = 0; k < n->n_ins; k++) h = gn__mix(h, p->ins[n->ins + k]);
        for (uint32_t k = 0; k < n->n_attrs; k++) h = gn__mix(h, (uint64_t)p->attrs[n->attrs + k]);
        for (uint32_t k = 0; k < n->rank; k++) h = gn__mix(h, (uint64_t)p->dims[n->dims + k]);
    }
    for (uint32_t i = 0; i < p->n_outs; i++) h = gn__mix(h, p->outs[i]);
    for (uint32_t i = 0; i < p->n_updates; i++) h = gn__mix(gn__mix(h, ((uint64_t)p->updates[i].slot << 32) | p->updates[i].gen), p->updates[i].node);
    return gn__mix(h, ((uint64_t)p->n_outs << 32) | p->n_updates);
}

static bool gn__part_equal(const gn_part *a, const gn_part *b) {
#define GN__SAME(n, array) (a->n == b->n && (a->n == 0 || memcmp(a->array, b->array, a->n * sizeof *a->array) == 0))
    return a->hash == b->hash && GN__SAME(n_nodes, nodes) && GN__SAME(n_ins, ins) && GN__SAME(n_attrs, attrs) && GN__SAME(n_dims, dims) &&
           GN__SAME(n_args, args) && GN__SAME(n_outs, outs) && GN__SAME(n_updates, updates);
#undef GN__SAME
}

static gn_part *gn__part_copy(const gn_part *p) {
    gn__part_size s = { p->n_nodes, p->n_ins, p->n_attrs, p->n_dims, p->n_args, p->n_outs, p->n_updates };
    gn_part *c = gn__part_alloc(&s);
    if (!c) return NULL;
#define GN__TAKE(n, array) do { if (p->n) memcpy((void *)(uintptr_t)c->array, p->array, p->n * sizeof *p->array); } while (0)
    GN__TAKE(n_nodes, nodes);
    GN__TAKE(n_ins, ins);
    GN__TAKE(n_attrs, attrs);
    GN__TAKE(n_dims, dims);
    GN__TAKE(n_args, args);
    GN__TAKE(n_outs, outs);
    GN__TAKE(n_updates, updates);
#undef GN__TAKE
    c->hash = p->hash;
    return c;
}

static gn__type gn__part_type(const gn_part *p, uint32_t node) {
    const gn_part_node *n = &p->nodes[node];
    gn__type t = { (gn_dtype)n->dtype, { n->rank, { 0 } } };
    for (int i = 0; i < n->rank; i++) t.shape.dims[i] = p->dims[n->dims + (uint32_t)i];
    return t;
}

/* ---- cut: what the roots and the pending updates need ---- */

/* A node that has a value already, or is a leaf: the cut ends there. */
static gn_leaf_kind gn__cut_leaf(const gn__node *n) {
    return n->value ? GN_LEAF_VALUE : n->committed ? GN_LEAF_STATE : (gn_leaf_kind)n->leaf;
}

static bool gn__cut_reserve(gn_ctx *g) {
    gn__cut *c = &g->cut;
    size_t words = g->n_nodes / 64 + 1, old = c->cap_marks;
    if (!GN__GROW(c, marks, words)) return false;
    if (c->cap_marks > old) memset(c->marks + old, 0, (c->cap_marks - old) * sizeof *c->marks);
    c->serial++;
    c->n_nodes = c->n_ins = c->n_attrs = c->n_dims = c->n_args = c->n_outs = c->n_updates = c->n_ids = c->n_where = 0;
    return GN__GROW(c, where, g->n_nodes);
}

#define GN__MARK(c, id) ((c)->marks[(id) >> 6] |= (uint64_t)1 << ((id) & 63))

static int gn__top_bit(uint64_t w) {
    int b = 0;
    for (int s = 32; s; s >>= 1)
        if (w >> s) { w >>= s; b += s; }
    return b;
}

/* From the highest marked node down, each marks its inputs, which are lower. */
static void gn__cut_mark(gn_ctx *g) {
    gn__cut *c = &g->cut;
    for (size_t w = g->n_nodes / 64 + 1; w-- > 0;) {
        uint64_t done = 0, left;
        while ((left = c->marks[w] & ~done) != 0) {
            int b = gn__top_bit(left);
            const gn__node *n = &g->nodes[w * 64 + (size_t)b];
            done |= (uint64_t)1 << b;
            if (gn__cut_leaf(n) != GN_LEAF_NONE) continue;
            for (uint32_t i = 0; i < n->n_ins; i++) GN__MARK(c, g->ins[n->ins + i]);
        }
    }
}

static bool gn__cut_emit(gn_ctx *g, uint32_t id) {
    gn__cut *c = &g->cut;
    const gn__node *n = &g->nodes[id];
    const gn_shape *s = &g->shapes[n->shape];
    gn_leaf_kind leaf = gn__cut_leaf(n);
    gn__slot *slot = leaf == GN_LEAF_WEIGHT || leaf == GN_LEAF_STATE ? &g->slots[n->slot - 1] : NULL;
    if (slot && slot->cut_serial == c->serial) { c->where[id] = slot->cut_node; return true; }
    if (!GN__GROW(c, nodes, 1) || !GN__GROW(c, ids, 1) || !GN__GROW(c, ins, n->n_ins) || !GN__GROW(c, attrs, n->n_attrs) || !GN__GROW(c, dims, (size_t)s->rank) || !GN__GROW(c, args, 1)) return false;
    gn_part_node *p = &c->nodes[c->n_nodes];
    memset(p, 0, sizeof *p);
    p->op = leaf ? (uint16_t)gn__op_leaf(leaf) : n->op;
    p->dtype = n->dtype;
    p->leaf = (uint8_t)leaf;
    p->rank = (uint8_t)s->rank;
    p->phase = n->phase;
    p->ins = (uint32_t)c->n_ins;
    p->attrs = (uint32_t)c->n_attrs;
    p->dims = (uint32_t)c->n_dims;
    for (int i = 0; i < s->rank; i++) c->dims[c->n_dims++] = s->dims[i];
    if (leaf == GN_LEAF_NONE) {
        p->n_ins = n->n_ins;
        p->n_attrs = n->n_attrs;
        for (uint32_t i = 0; i < n->n_ins; i++) c->ins[c->n_ins++] = c->where[g->ins[n->ins + i]];
        for (uint32_t i = 0; i < n->n_attrs; i++) c->attrs[c->n_attrs++] = g->attrs[n->attrs + i];
    } else if (slot) {
        p->slot = n->slot - 1;
        p->gen = slot->gen;
        slot->cut_serial = c->serial;
        slot->cut_node = (uint32_t)c->n_nodes;
    } else {
        p->arg = (uint32_t)c->n_args;
        c->args[c->n_args++] = (uint32_t)c->n_nodes;
    }
    c->where[id] = (uint32_t)c->n_nodes++;
    c->ids[c->n_ids++] = id;
    return true;
}

/* Takes the marked nodes in order; clears the marks in any case. Fails on a failed node or a superseded version. */
static gn_result gn__cut_collect(gn_ctx *g, uint32_t *out_bad) {
    gn__cut *c = &g->cut;
    gn_result r = GN_OK;
    for (size_t w = 0; w <= g->n_nodes / 64; w++) {
        uint64_t bits = c->marks[w];
        c->marks[w] = 0;
        for (int b = 0; bits && r == GN_OK; b++, bits >>= 1) {
            uint32_t id = (uint32_t)(w * 64 + (size_t)b);
            if (!(bits & 1)) continue;
            const gn__node *n = &g->nodes[id];
            *out_bad = id;
            if (n->op == GN__OP_FAILED) r = GN_BAD_ARGUMENT;
            else if (gn__cut_leaf(n) == GN_LEAF_STATE && n->extra != g->slots[n->slot - 1].version) r = GN_SUPERSEDED;
            else if ((n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE) && g->slots[n->slot - 1].kind == GN_LEAF_NONE) r = GN_STALE_HANDLE;
            else if (!gn__cut_emit(g, id)) r = GN_OUT_OF_MEMORY;
        }
    }
    return r;
}

/* Fills g->cut.part. On failure *out_bad is the node that is the cause. */
static gn_result gn__cut_make(gn_ctx *g, const uint32_t *roots, int n_roots, uint32_t *out_bad) {
    gn__cut *c = &g->cut;
    *out_bad = 0;
    if (!gn__cut_reserve(g) || !GN__GROW(c, outs, (size_t)n_roots) || !GN__GROW(c, updates, g->n_pending)) return GN_OUT_OF_MEMORY;
    for (int i = 0; i < n_roots; i++) GN__MARK(c, roots[i]);
    for (size_t i = 0; i < g->n_pending; i++) GN__MARK(c, g->slots[g->pending[i]].pending);
    gn__cut_mark(g);
    gn_result r = gn__cut_collect(g, out_bad);
    if (r != GN_OK) return r;
    for (int i = 0; i < n_roots; i++) c->outs[c->n_outs++] = c->where[roots[i]];
    for (size_t i = 0; i < g->n_pending; i++) {
        gn__slot *s = &g->slots[g->pending[i]];
        c->updates[c->n_updates++] = (gn_part_update){ g->pending[i], s->gen, c->where[s->pending] };
    }
    c->part = (gn_part){ 0, (uint32_t)c->n_nodes, (uint32_t)c->n_ins, (uint32_t)c->n_attrs, (uint32_t)c->n_dims, (uint32_t)c->n_args, (uint32_t)c->n_outs,
                         (uint32_t)c->n_updates, c->nodes, c->ins, c->attrs, c->dims, c->args, c->outs, c->updates };
    c->part.hash = gn__part_hash(&c->part);
    return GN_OK;
}

static uint64_t gn__plan_hash_of(const void *owner, uint32_t i) { return ((const gn_ctx *)owner)->plans[i].part->hash; }
static bool gn__plan_same(const void *owner, uint32_t i, const void *key) { return gn__part_equal(((const gn_ctx *)owner)->plans[i].part, (const gn_part *)key); }


GN__COLD_BEGIN

/* ---- gradients: the table's column, applied from the loss down ---- */

struct gn__grads {
    gn_ctx *g;
    gn__loc at;
    uint32_t y, gy;                         /* the result and its gradient */
    uint32_t x[GN__MAX_INPUTS], gx[GN__MAX_INPUTS];
    bool need[GN__MAX_INPUTS];
    int n_in, n_attrs;
    int64_t attrs[2 + GN_MAX_RANK];
};

#define GN__B1(NAME, name, ...) GN__UNUSED static uint32_t gn__##name(gn__grads *k, uint32_t a) { return gn__build(k->g, k->at, GN__OP_##NAME, 1, &a, 0, NULL); }
#define GN__B2(NAME, name, ...) GN__UNUSED static uint32_t gn__##name(gn__grads *k, uint32_t a, uint32_t b) { uint32_t in[2] = { a, b }; return gn__build(k->g, k->at, GN__OP_##NAME, 2, in, 0, NULL); }
#define GN__B3(NAME, name, ...) GN__UNUSED static uint32_t gn__##name(gn__grads *k, uint32_t a, uint32_t b, uint32_t c) { uint32_t in[3] = { a, b, c }; return gn__build(k->g, k->at, GN__OP_##NAME, 3, in, 0, NULL); }
GN__SCALAR_OPS(GN__B1, GN__B2, GN__B1, GN__B2, GN__B2, GN__B1, GN__B3)
#undef GN__B3
#undef GN__B1
#undef GN__B2

static uint32_t gn__where(gn__grads *k, uint32_t c, uint32_t a, uint32_t b);

static uint32_t gn__num(gn__grads *k, double v) {          /* 0-d, of the gradient's dtype */
    gn_shape s = GN_SCALAR;
    return gn__full(k->g, k->at, (gn_dtype)k->g->nodes[k->gy].dtype, &s, v);
}

static uint32_t gn__op_in(gn__grads *k, int op, uint32_t a, int n_attrs, const int64_t *attrs) { return gn__build(k->g, k->at, op, 1, &a, n_attrs, attrs); }
static uint32_t gn__where(gn__grads *k, uint32_t c, uint32_t a, uint32_t b) { uint32_t in[3] = { c, a, b }; return gn__build(k->g, k->at, GN__OP_WHERE, 3, in, 0, NULL); }
static uint32_t gn__choose(gn__grads *k, uint32_t c, uint32_t a) { return gn__where(k, c, a, gn__num(k, 0)); }
static uint32_t gn__matmul_of(gn__grads *k, uint32_t a, uint32_t b) { uint32_t in[2] = { a, b }; return gn__build(k->g, k->at, GN__OP_MATMUL, 2, in, 0, NULL); }

static uint32_t gn__reduce_of(gn__grads *k, int op, uint32_t a, int64_t axes, bool keep) {
    int64_t attrs[2] = { axes, keep };
    return gn__op_in(k, op, a, 2, attrs);
}

static uint32_t gn__dims_op(gn__grads *k, int op, uint32_t a, const gn_shape *s) { return gn__op_in(k, op, a, s->rank, s->dims); }
static uint32_t gn__reshape_of(gn__grads *k, uint32_t a, const gn_shape *s) { return gn__shape_equal(gn__shape_of(k->g, a), s) ? a : gn__dims_op(k, GN__OP_RESHAPE, a, s); }
static uint32_t gn__broadcast_of(gn__grads *k, uint32_t a, const gn_shape *s) { return gn__shape_equal(gn__shape_of(k->g, a), s) ? a : gn__dims_op(k, GN__OP_BROADCAST, a, s); }

/* Last two axes exchanged. */
static uint32_t gn__transposed(gn__grads *k, uint32_t a) {
    int rank = gn__shape_of(k->g, a)->rank;
    int64_t order[GN_MAX_RANK];
    for (int i = 0; i < rank; i++) order[i] = i;
    order[rank - 1] = rank - 2;
    order[rank - 2] = rank - 1;
    return gn__op_in(k, GN__OP_PERMUTE, a, rank, order);
}

/* Sums what broadcasting had repeated, so that a has the shape s. */
static uint32_t gn__sum_to(gn__grads *k, uint32_t a, const gn_shape *s) {
    if (k->g->nodes[a].op == GN__OP_FAILED) return a;
    gn_shape from = *gn__shape_of(k->g, a);
    int64_t axes = 0;
    for (int i = 0; i < from.rank; i++) {
        int at = i - (from.rank - s->rank);
        if (at < 0 || (s->dims[at] == 1 && from.dims[i] != 1)) axes |= (int64_t)1 << i;
    }
    if (axes) a = gn__reduce_of(k, GN__OP_SUM, a, axes, true);
    return k->g->nodes[a].op == GN__OP_FAILED ? a : gn__reshape_of(k, a, s);
}

static gn_shape gn__x_shape(const gn__grads *k, int i) { return *gn__shape_of(k->g, k->x[i]); }
static uint32_t gn__zeros_like(gn__grads *k, uint32_t a) { gn_shape s = *gn__shape_of(k->g, a); return gn__full(k->g, k->at, (gn_dtype)k->g->nodes[a].dtype, &s, 0); }

static uint32_t gn__pow_grad_base(gn__grads *k) {          /* b a^(b-1), 0 where b is 0 */
    uint32_t a = k->x[0], b = k->x[1], d = gn__mul(k, b, gn__pow(k, a, gn__sub(k, b, gn__num(k, 1))));
    return gn__mul(k, k->gy, gn__choose(k, gn__ne(k, b, gn__num(k, 0)), d));
}
static uint32_t gn__pow_grad_exponent(gn__grads *k) {      /* y log a, 0 where y or a is 0 */
    uint32_t some = gn__and(k, gn__ne(k, k->y, gn__num(k, 0)), gn__ne(k, k->x[0], gn__num(k, 0)));
    return gn__mul(k, k->gy, gn__choose(k, some, gn__mul(k, k->y, gn__log(k, k->x[0]))));
}
static uint32_t gn__gelu_grad(gn__grads *k) {              /* Phi(x) + x phi(x); Phi = gelu(x) / x, taken as erf through gelu of 1 where x is 0 */
    uint32_t x = k->x[0], zero = gn__eq(k, x, gn__num(k, 0));
    uint32_t phi = gn__mul(k, gn__exp(k, gn__mul(k, gn__mul(k, x, x), gn__num(k, -0.5))), gn__num(k, 0.39894228040143267794));
    uint32_t cdf = gn__where(k, zero, gn__num(k, 0.5), gn__div(k, k->y, x));
    return gn__mul(k, k->gy, gn__add(k, cdf, gn__mul(k, x, phi)));
}
static uint32_t gn__gelu_tanh_grad(gn__grads *k) {         /* y = x s(u), u = c1 x + c3 x^3: s + x s (1-s) (c1 + 3 c3 x^2) */
    uint32_t x = k->x[0], xx = gn__mul(k, x, x);
    uint32_t u = gn__mul(k, x, gn__add(k, gn__num(k, 1.5957691216057307117), gn__mul(k, xx, gn__num(k, 0.071354816272600009))));
    uint32_t s = gn__sigmoid(k, u), du = gn__add(k, gn__num(k, 1.5957691216057307117), gn__mul(k, xx, gn__num(k, 0.214064448817800027)));
    uint32_t tail = gn__mul(k, gn__mul(k, x, du), gn__mul(k, s, gn__sub(k, gn__num(k, 1), s)));
    return gn__mul(k, k->gy, gn__add(k, s, tail));
}
static uint32_t gn__silu_grad(gn__grads *k) {              /* s + x s (1-s) */
    uint32_t s = gn__sigmoid(k, k->x[0]);
    return gn__mul(k, k->gy, gn__add(k, s, gn__mul(k, k->y, gn__sub(k, gn__num(k, 1), s))));
}
static uint32_t gn__clamp_grad(gn__grads *k) {
    uint32_t x = k->x[0], lo = gn__num(k, gn__word_f64(k->attrs[0])), hi = gn__num(k, gn__word_f64(k->attrs[1]));
    return gn__choose(k, gn__and(k, gn__ge(k, x, lo), gn__le(k, x, hi)), k->gy);
}

static uint32_t gn__softsign_grad(gn__grads *k) {          /* 1 / (1 + |x|)^2 */
    uint32_t d = gn__add(k, gn__num(k, 1), gn__abs(k, k->x[0]));
    return gn__div(k, k->gy, gn__mul(k, d, d));
}
static uint32_t gn__hard_grad(gn__grads *k, uint32_t slope) {   /* the slope between -3 and 3 */
    uint32_t inside = gn__lt(k, gn__abs(k, k->x[0]), gn__num(k, 3));
    return gn__mul(k, k->gy, gn__choose(k, inside, slope));
}
static uint32_t gn__hard_swish_grad(gn__grads *k) {        /* (2x + 3) / 6 between -3 and 3, 1 above */
    uint32_t x = k->x[0], above = gn__choose(k, gn__ge(k, x, gn__num(k, 3)), k->gy);
    return gn__add(k, above, gn__hard_grad(k, gn__add(k, gn__mul(k, x, gn__num(k, 1.0 / 3)), gn__num(k, 0.5))));
}
static uint32_t gn__selu_grad(gn__grads *k) {              /* scale, below 0: scale alpha e^x = y + scale alpha */
    uint32_t below = gn__add(k, k->y, gn__num(k, 1.0507009873554804934 * 1.6732632423543772848));
    return gn__mul(k, k->gy, gn__where(k, gn__gt(k, k->x[0], gn__num(k, 0)), gn__num(k, 1.0507009873554804934), below));
}
static uint32_t gn__mish_grad(gn__grads *k) {              /* t + x (1 - t^2) s, t = tanh(softplus(x)), s = sigmoid(x) */
    uint32_t x = k->x[0], t = gn__tanh(k, gn__softplus(k, x));
    uint32_t slope = gn__mul(k, gn__sub(k, gn__num(k, 1), gn__mul(k, t, t)), gn__sigmoid(k, x));
    return gn__mul(k, k->gy, gn__add(k, t, gn__mul(k, x, slope)));
}

#define GN__NAMES_1 uint32_t y = k->y, gy = k->gy, x0 = k->x[0]; (void)y; (void)gy; (void)x0
#define GN__U(NAME, name, w, cls, mask, fl, tol, body, g0) static void gn__grad_##name(gn__grads *k) { GN__NAMES_1; k->gx[0] = g0; }
#define GN__B(NAME, name, w, cls, mask, fl, tol, body, g0, g1)                                              \
    static void gn__grad_##name(gn__grads *k) {                                                             \
        GN__NAMES_1;                                                                                        \
        uint32_t x1 = k->x[1];                                                                              \
        (void)x1;                                                                                           \
        if (k->need[0]) k->gx[0] = g0;                                                                      \
        if (k->need[1]) k->gx[1] = g1;                                                                      \
    }
#define GN__N(...)
#define GN__T3(NAME, name, w, cls, mask, fl, tol, body, g0, g1, g2)                                         \
    static void gn__grad_##name(gn__grads *k) {                                                             \
        GN__NAMES_1;                                                                                        \
        uint32_t x1 = k->x[1], x2 = k->x[2];                                                                \
        (void)x1;                                                                                           \
        (void)x2;                                                                                           \
        if (k->need[0]) k->gx[0] = g0;                                                                      \
        if (k->need[1]) k->gx[1] = g1;                                                                      \
        if (k->need[2]) k->gx[2] = g2;                                                                      \
    }
GN__SCALAR_OPS(GN__U, GN__B, GN__N, GN__N, GN__N, GN__U, GN__T3)
#undef GN__T3
#undef GN__U
#undef GN__B
#undef GN__N

static void gn__grad_where(gn__grads *k) {
    k->gx[1] = gn__choose(k, k->x[0], k->gy);
    k->gx[2] = gn__where(k, k->x[0], gn__num(k, 0), k->gy);
}

static void gn__grad_cast(gn__grads *k) { k->gx[0] = gn__cast_to(k->g, k->at, k->gy, (gn_dtype)k->g->nodes[k->x[0]].dtype); }

/* The result of a reduction (y or its gradient) with its axes put back as 1. */
static uint32_t gn__unreduced(gn__grads *k, uint32_t a) {
    gn_shape s = gn__x_shape(k, 0);
    for (int i = 0; i < s.rank; i++)
        if ((k->attrs[0] >> i) & 1) s.dims[i] = 1;
    return gn__reshape_of(k, a, &s);
}

static void gn__grad_sum(gn__grads *k) { gn_shape s = gn__x_shape(k, 0); k->gx[0] = gn__broadcast_of(k, gn__unreduced(k, k->gy), &s); }

static void gn__grad_mean(gn__grads *k) {
    gn_shape s = gn__x_shape(k, 0);
    double n = (double)gn__count(&s) / (double)GN__MAX(gn__count(gn__shape_of(k->g, k->y)), 1);
    k->gx[0] = gn__broadcast_of(k, gn__div(k, gn__unreduced(k, k->gy), gn__num(k, n)), &s);
}

static void gn__grad_max(gn__grads *k) {                   /* shared evenly among equals */
    uint32_t hit = gn__eq(k, k->x[0], gn__unreduced(k, k->y));
    uint32_t one = gn__cast_to(k->g, k->at, hit, (gn_dtype)k->g->nodes[k->gy].dtype);
    uint32_t count = gn__reduce_of(k, GN__OP_SUM, one, k->attrs[0], true);
    k->gx[0] = gn__mul(k, one, gn__div(k, gn__unreduced(k, k->gy), count));
}
static void gn__grad_min(gn__grads *k) { gn__grad_max(k); }

/* gy times the product of the others: y / x, with one 0 only there, with two nowhere. */
static void gn__grad_prod(gn__grads *k) {
    uint32_t x = k->x[0], zero = gn__eq(k, x, gn__num(k, 0)), none = gn__cast_to(k->g, k->at, zero, (gn_dtype)k->g->nodes[k->gy].dtype);
    uint32_t count = gn__reduce_of(k, GN__OP_SUM, none, k->attrs[0], true), gy = gn__unreduced(k, k->gy);
    uint32_t some = gn__where(k, zero, gn__num(k, 1), x), rest = gn__reduce_of(k, GN__OP_PROD, some, k->attrs[0], true);
    uint32_t others = gn__where(k, zero, gn__eq(k, count, gn__num(k, 1)), gn__eq(k, count, gn__num(k, 0)));
    k->gx[0] = gn__choose(k, others, gn__div(k, gn__mul(k, gy, rest), some));
}

/* The running sum from the end. */
static uint32_t gn__sum_back(gn__grads *k, uint32_t a, int64_t axis) {
    int64_t flip[4] = { axis, INT64_MAX, INT64_MIN, -1 };
    return gn__op_in(k, GN__OP_SLICE, gn__op_in(k, GN__OP_CUMSUM, gn__op_in(k, GN__OP_SLICE, a, 4, flip), 1, &axis), 4, flip);
}

static void gn__grad_cumsum(gn__grads *k) { k->gx[0] = gn__sum_back(k, k->gy, k->attrs[0]); }

/* Before the first 0 of a row: the sum of what comes of gy y, over x. At it: of gy times the products without it. After it: 0. */
static void gn__grad_cumprod(gn__grads *k) {
    uint32_t x = k->x[0], zero = gn__eq(k, x, gn__num(k, 0)), i64 = gn__cast_to(k->g, k->at, zero, GN_I64);
    uint32_t count = gn__cast_to(k->g, k->at, gn__op_in(k, GN__OP_CUMSUM, i64, 1, k->attrs), (gn_dtype)k->g->nodes[k->gy].dtype);
    uint32_t first = gn__and(k, zero, gn__eq(k, count, gn__num(k, 1))), some = gn__where(k, first, gn__num(k, 1), x);
    uint32_t without = gn__sum_back(k, gn__mul(k, k->gy, gn__op_in(k, GN__OP_CUMPROD, some, 1, k->attrs)), k->attrs[0]);
    uint32_t before = gn__div(k, gn__sum_back(k, gn__mul(k, k->gy, k->y), k->attrs[0]), gn__where(k, zero, gn__num(k, 1), x));
    k->gx[0] = gn__where(k, first, without, gn__choose(k, gn__eq(k, count, gn__num(k, 0)), before));
}

static int64_t gn__axis_bit(const gn__grads *k, int64_t axis) { return (int64_t)1 << gn__axis(axis, gn__x_shape(k, 0).rank); }

static void gn__grad_softmax(gn__grads *k) {
    uint32_t dot = gn__reduce_of(k, GN__OP_SUM, gn__mul(k, k->gy, k->y), gn__axis_bit(k, k->attrs[0]), true);
    k->gx[0] = gn__mul(k, k->y, gn__sub(k, k->gy, dot));
}

static void gn__grad_log_softmax(gn__grads *k) {
    uint32_t sum = gn__reduce_of(k, GN__OP_SUM, k->gy, gn__axis_bit(k, k->attrs[0]), true);
    k->gx[0] = gn__sub(k, k->gy, gn__mul(k, gn__exp(k, k->y), sum));
}

static void gn__grad_layernorm(gn__grads *k) {
    int rank = gn__x_shape(k, 0).rank, last = k->n_in - 1;
    int64_t axis = (int64_t)1 << (rank - 1), lead = axis - 1;
    uint32_t x = k->x[0], mid = gn__sub(k, x, gn__reduce_of(k, GN__OP_MEAN, x, axis, true));
    uint32_t var = gn__reduce_of(k, GN__OP_MEAN, gn__mul(k, mid, mid), axis, true);
    uint32_t scale = gn__rsqrt(k, gn__add(k, var, gn__num(k, gn__word_f64(k->attrs[0]))));
    uint32_t hat = gn__mul(k, mid, scale), g = k->attrs[1] & 1 ? gn__mul(k, k->gy, k->x[1]) : k->gy;
    uint32_t m = gn__reduce_of(k, GN__OP_MEAN, g, axis, true), mh = gn__reduce_of(k, GN__OP_MEAN, gn__mul(k, g, hat), axis, true);
    k->gx[0] = gn__mul(k, scale, gn__sub(k, gn__sub(k, g, m), gn__mul(k, hat, mh)));
    if (k->attrs[1] & 1) k->gx[1] = gn__reduce_of(k, GN__OP_SUM, gn__mul(k, k->gy, hat), lead, false);
    if (k->attrs[1] & 2) k->gx[last] = gn__reduce_of(k, GN__OP_SUM, k->gy, lead, false);
}

static void gn__grad_matmul(gn__grads *k) {
    gn_shape a = gn__x_shape(k, 0), b = gn__x_shape(k, 1), o = *gn__shape_of(k->g, k->y), a2 = a, b2 = b;
    if (a.rank == 1) a2 = GN_SHAPE(1, a.dims[0]);
    if (b.rank == 1) b2 = GN_SHAPE(b.dims[0], 1);
    if (a.rank == 1) {                                      /* the dropped axes of vectors come back */
        o.rank++;
        o.dims[o.rank - 1] = o.rank > 1 ? o.dims[o.rank - 2] : 1;
        if (b.rank > 1) o.dims[o.rank - 2] = 1;
    }
    if (b.rank == 1) { if (a.rank == 1) o.dims[o.rank - 1] = 1; o.dims[o.rank++] = 1; }
    uint32_t x0 = gn__reshape_of(k, k->x[0], &a2), x1 = gn__reshape_of(k, k->x[1], &b2), gy = gn__reshape_of(k, k->gy, &o);
    if (k->need[0]) k->gx[0] = gn__reshape_of(k, gn__sum_to(k, gn__matmul_of(k, gy, gn__transposed(k, x1)), &a2), &a);
    if (k->need[1]) k->gx[1] = gn__reshape_of(k, gn__sum_to(k, gn__matmul_of(k, gn__transposed(k, x0), gy), &b2), &b);
}

static void gn__grad_linear(gn__grads *k) {
    gn_shape x = gn__x_shape(k, 0), o = *gn__shape_of(k->g, k->y);
    int64_t last = x.dims[x.rank - 1], n = o.dims[o.rank - 1], rows = 1;
    for (int i = 0; i + 1 < x.rank; i++) rows *= x.dims[i];
    gn_shape flat_x = GN_SHAPE(rows, last), flat_y = GN_SHAPE(rows, n);
    uint32_t gy = gn__reshape_of(k, k->gy, &flat_y);
    if (k->need[0]) k->gx[0] = gn__reshape_of(k, gn__matmul_of(k, gy, gn__transposed(k, k->x[1])), &x);
    if (k->need[1]) k->gx[1] = gn__matmul_of(k, gn__transposed(k, gn__reshape_of(k, k->x[0], &flat_x)), gy);
    if (k->n_in > 2) k->gx[2] = gn__reduce_of(k, GN__OP_SUM, gy, 1, false);
}

static void gn__grad_reshape(gn__grads *k) { gn_shape s = gn__x_shape(k, 0); k->gx[0] = gn__reshape_of(k, k->gy, &s); }
static void gn__grad_broadcast(gn__grads *k) { gn_shape s = gn__x_shape(k, 0); k->gx[0] = gn__sum_to(k, k->gy, &s); }

static void gn__grad_permute(gn__grads *k) {
    int64_t back[GN_MAX_RANK];
    for (int i = 0; i < k->n_attrs; i++) back[gn__axis(k->attrs[i], k->n_attrs)] = i;
    k->gx[0] = gn__op_in(k, GN__OP_PERMUTE, k->gy, k->n_attrs, back);
}

static uint32_t gn__slice_put_of(gn__grads *k, uint32_t a, uint32_t b) { uint32_t in[2] = { a, b }; return gn__build(k->g, k->at, GN__OP_SLICE_PUT, 2, in, 4, k->attrs); }
static void gn__grad_slice(gn__grads *k) { k->gx[0] = gn__slice_put_of(k, gn__zeros_like(k, k->x[0]), k->gy); }
static void gn__grad_slice_put(gn__grads *k) {
    k->gx[0] = gn__slice_put_of(k, k->gy, gn__zeros_like(k, k->x[1]));
    k->gx[1] = gn__op_in(k, GN__OP_SLICE, k->gy, 4, k->attrs);
}

static void gn__grad_concat(gn__grads *k) {
    int axis = gn__axis(k->attrs[0], gn__x_shape(k, 0).rank);
    int64_t attrs[4] = { axis, 0, 0, 1 };
    for (int i = 0; i < k->n_in; i++) {
        attrs[2] = attrs[1] + gn__x_shape(k, i).dims[axis];
        if (k->need[i]) k->gx[i] = gn__op_in(k, GN__OP_SLICE, k->gy, 4, attrs);
        attrs[1] = attrs[2];
    }
}

static uint32_t gn__scatter_of(gn__grads *k, uint32_t a, int64_t axis, uint32_t index, uint32_t src) {
    uint32_t in[3] = { a, index, src };
    return gn__build(k->g, k->at, GN__OP_SCATTER_ADD, 3, in, 1, &axis);
}
static uint32_t gn__gather_of(gn__grads *k, uint32_t a, int64_t axis, uint32_t index) { uint32_t in[2] = { a, index }; return gn__build(k->g, k->at, GN__OP_GATHER, 2, in, 1, &axis); }

static void gn__grad_gather(gn__grads *k) { k->gx[0] = gn__scatter_of(k, gn__zeros_like(k, k->x[0]), k->attrs[0], k->x[1], k->gy); }
static void gn__grad_scatter_add(gn__grads *k) {
    k->gx[0] = k->gy;
    k->gx[2] = gn__gather_of(k, k->gy, k->attrs[0], k->x[1]);
}
/* Which elements of src are still there after a scatter: the place of each is scattered and looked up again. */
static uint32_t gn__scatter_stays(gn__grads *k) {
    gn_shape a = gn__x_shape(k, 0), s = gn__x_shape(k, 2);
    int64_t places[4] = { GN_I64, gn__count(&s), gn__f64_word(0), gn__f64_word(1) };
    uint32_t place = gn__reshape_of(k, gn__build(k->g, k->at, GN__OP_ARANGE, 0, NULL, 4, places), &s);
    uint32_t in[3] = { gn__full(k->g, k->at, GN_I64, &a, -1), k->x[1], place };
    return gn__eq(k, place, gn__gather_of(k, gn__build(k->g, k->at, GN__OP_SCATTER, 3, in, 1, k->attrs), k->attrs[0], k->x[1]));
}
static void gn__grad_scatter(gn__grads *k) {
    uint32_t in[3] = { k->gy, k->x[1], gn__zeros_like(k, k->x[2]) };
    k->gx[0] = gn__build(k->g, k->at, GN__OP_SCATTER, 3, in, 1, k->attrs);
    k->gx[2] = gn__choose(k, gn__scatter_stays(k), gn__gather_of(k, k->gy, k->attrs[0], k->x[1]));
}
static void gn__grad_scatter_max(gn__grads *k) {           /* shared evenly among equals */
    gn_dtype d = (gn_dtype)k->g->nodes[k->gy].dtype;
    uint32_t kept = gn__eq(k, k->x[0], k->y), put = gn__eq(k, k->x[2], gn__gather_of(k, k->y, k->attrs[0], k->x[1]));
    uint32_t count = gn__scatter_of(k, gn__cast_to(k->g, k->at, kept, d), k->attrs[0], k->x[1], gn__cast_to(k->g, k->at, put, d));
    uint32_t share = gn__div(k, k->gy, count);
    k->gx[0] = gn__choose(k, kept, share);
    k->gx[2] = gn__choose(k, put, gn__gather_of(k, share, k->attrs[0], k->x[1]));
}
/* To the latest element that the running maximum has met. */
static void gn__grad_cummax(gn__grads *k) {
    gn_shape s = gn__x_shape(k, 0), row = s;
    int axis = gn__axis(k->attrs[0], s.rank);
    int64_t places[4] = { GN_I64, s.dims[axis], gn__f64_word(0), gn__f64_word(1) };
    for (int i = 0; i < s.rank; i++) row.dims[i] = i == axis ? s.dims[i] : 1;
    uint32_t place = gn__broadcast_of(k, gn__reshape_of(k, gn__build(k->g, k->at, GN__OP_ARANGE, 0, NULL, 4, places), &row), &s);
    uint32_t met = gn__where(k, gn__lt(k, k->x[0], k->y), gn__zeros_like(k, place), place);
    uint32_t from = gn__op_in(k, GN__OP_CUMMAX, met, 1, k->attrs);
    k->gx[0] = gn__scatter_of(k, gn__zeros_like(k, k->x[0]), k->attrs[0], from, k->gy);
}
static void gn__grad_embedding(gn__grads *k) {
    gn_shape table = gn__x_shape(k, 0), ids = gn__x_shape(k, 1);
    gn_shape column = GN_SHAPE(gn__count(&ids), 1), rows = GN_SHAPE(gn__count(&ids), table.dims[1]);
    uint32_t index = gn__broadcast_of(k, gn__reshape_of(k, k->x[1], &column), &rows);
    k->gx[0] = gn__scatter_of(k, gn__zeros_like(k, k->x[0]), 0, index, gn__reshape_of(k, k->gy, &rows));
}

static void gn__grad_cross_entropy(gn__grads *k) {         /* (softmax - one hot) / rows */
    gn_shape s = gn__x_shape(k, 0), rows = gn__x_shape(k, 1);
    int64_t axis = -1, hot[2] = { s.dims[s.rank - 1], k->g->nodes[k->gy].dtype };
    uint32_t diff = gn__sub(k, gn__op_in(k, GN__OP_SOFTMAX, k->x[0], 1, &axis), gn__op_in(k, GN__OP_ONE_HOT, k->x[1], 2, hot));
    k->gx[0] = gn__mul(k, diff, gn__div(k, k->gy, gn__num(k, (double)gn__count(&rows))));
}

static void gn__grad_mse_loss(gn__grads *k) {
    gn_shape a = gn__x_shape(k, 0), b = gn__x_shape(k, 1), both;
    gn__broadcast_shapes(&a, &b, &both);
    uint32_t d = gn__mul(k, gn__sub(k, k->x[0], k->x[1]), gn__mul(k, k->gy, gn__num(k, 2.0 / (double)gn__count(&both))));
    k->gx[0] = d;
    k->gx[1] = gn__neg(k, d);
}

/* bool (T,S) or (1,S): which keys a query sees by causality and length; 0 when it sees all. */
static uint32_t gn__attention_seen(gn__grads *k, int64_t T, int64_t S, uint32_t length) {
    int64_t keys[4] = { GN_I64, S, gn__f64_word(0), gn__f64_word(1) }, rows[4] = { GN_I64, T, gn__f64_word(0), gn__f64_word(1) };
    gn_shape column = GN_SHAPE(T, 1), scalar = GN_SCALAR;
    bool causal = k->attrs[0] & 1;
    if (!causal && !(k->attrs[0] & 4)) return 0;
    uint32_t i = gn__build(k->g, k->at, GN__OP_ARANGE, 0, NULL, 4, keys);
    uint32_t end = k->attrs[0] & 4 ? gn__cast_to(k->g, k->at, length, GN_I64) : gn__full(k->g, k->at, GN_I64, &scalar, (double)S);
    if (causal) {
        uint32_t t = gn__reshape_of(k, gn__build(k->g, k->at, GN__OP_ARANGE, 0, NULL, 4, rows), &column);
        end = gn__add(k, t, gn__add(k, end, gn__full(k->g, k->at, GN_I64, &scalar, (double)(1 - T))));
    }
    return gn__lt(k, i, end);
}

/* The formula written out: p = softmax(q kT scale + mask), 0 where hidden. Grouped heads as an extra axis. */
static void gn__grad_attention(gn__grads *k) {
    gn_shape q = gn__x_shape(k, 0), kk = gn__x_shape(k, 1), v = gn__x_shape(k, 2);
    int64_t B = q.dims[0], G = kk.dims[1], R = G ? q.dims[1] / G : 0, T = q.dims[2], S = kk.dims[2], D = q.dims[3], E = v.dims[3], last = -1;
    gn_shape q5 = GN_SHAPE(B, G, R, T, D), k5 = GN_SHAPE(B, G, 1, S, D), v5 = GN_SHAPE(B, G, 1, S, E), o5 = GN_SHAPE(B, G, R, T, E), p4 = GN_SHAPE(B, q.dims[1], T, S), p5 = GN_SHAPE(B, G, R, T, S);
    double scale = gn__word_f64(k->attrs[1]);
    if (scale == 0) scale = 1.0 / sqrt((double)GN__MAX(D, 1));
    uint32_t xq = gn__reshape_of(k, k->x[0], &q5), xk = gn__reshape_of(k, k->x[1], &k5), xv = gn__reshape_of(k, k->x[2], &v5), gy = gn__reshape_of(k, k->gy, &o5);
    uint32_t s = gn__reshape_of(k, gn__mul(k, gn__matmul_of(k, xq, gn__transposed(k, xk)), gn__num(k, scale)), &p4);
    uint32_t seen = gn__attention_seen(k, T, S, k->x[k->n_in - 1]), mask = k->attrs[0] & 2 ? k->x[3] : 0;
    bool bool_mask = mask && k->g->nodes[mask].dtype == GN_BOOL;
    if (mask && !bool_mask) s = gn__add(k, s, mask);
    if (bool_mask) seen = seen ? gn__and(k, seen, mask) : mask;
    if (seen) s = gn__where(k, seen, s, gn__num(k, -1e30));
    uint32_t p = gn__op_in(k, GN__OP_SOFTMAX, s, 1, &last);
    if (seen) p = gn__choose(k, seen, p);
    p = gn__reshape_of(k, p, &p5);
    uint32_t gp = gn__matmul_of(k, gy, gn__transposed(k, xv));
    uint32_t gs = gn__mul(k, p, gn__sub(k, gp, gn__reduce_of(k, GN__OP_SUM, gn__mul(k, gp, p), 16, true)));
    if (mask && !bool_mask && k->need[3]) k->gx[3] = gn__reshape_of(k, gs, &p4);
    gs = gn__mul(k, gs, gn__num(k, scale));
    if (k->need[0]) k->gx[0] = gn__reshape_of(k, gn__matmul_of(k, gs, xk), &q);
    if (k->need[1]) k->gx[1] = gn__reshape_of(k, gn__sum_to(k, gn__matmul_of(k, gn__transposed(k, gs), xq), &k5), &kk);
    if (k->need[2]) k->gx[2] = gn__reshape_of(k, gn__sum_to(k, gn__matmul_of(k, gn__transposed(k, p), gy), &v5), &v);
}

static void gn__grad_kv_append(gn__grads *k) {
    gn_shape rows = gn__x_shape(k, 1), column = GN_SHAPE(1, 1, rows.dims[2], 1);
    int64_t t[4] = { GN_I64, rows.dims[2], gn__f64_word(0), gn__f64_word(1) };
    uint32_t in[3] = { k->gy, gn__zeros_like(k, k->x[1]), k->x[2] };
    if (k->need[0]) k->gx[0] = gn__build(k->g, k->at, GN__OP_KV_APPEND, 3, in, 0, NULL);
    uint32_t at = gn__add(k, gn__build(k->g, k->at, GN__OP_ARANGE, 0, NULL, 4, t), gn__cast_to(k->g, k->at, k->x[2], GN_I64));
    if (k->need[1]) k->gx[1] = gn__gather_of(k, k->gy, 2, gn__broadcast_of(k, gn__reshape_of(k, at, &column), &rows));
}

/* Which nodes up to the loss a parameter reaches through differentiable ops. */
static void gn__grad_reached(const gn_ctx *g, uint32_t loss, const uint32_t *params, int n, uint8_t *reached) {
    for (int i = 0; i < n; i++)
        if (params[i] <= loss) reached[params[i]] = 1;
    for (uint32_t id = 1; id <= loss; id++) {
        const gn__node *nd = &g->nodes[id];
        if (!gn__ops[nd->op].grad || !gn__is_float((gn_dtype)nd->dtype)) {
            if (nd->op != GN__OP_ASSIGN) continue;
        }
        for (uint32_t i = 0; i < nd->n_ins && !reached[id]; i++) reached[id] = reached[g->ins[nd->ins + i]];
    }
}

/* One node's inputs get their share of its gradient. */
static void gn__grad_node(gn_ctx *g, gn__loc at, uint32_t id, uint32_t *grads, const uint8_t *reached) {
    gn__grads k = { .g = g, .at = at, .y = id, .gy = grads[id], .n_in = g->nodes[id].n_ins, .n_attrs = g->nodes[id].n_attrs };
    int op = g->nodes[id].op;
    for (int i = 0; i < k.n_in; i++) {
        k.x[i] = g->ins[g->nodes[id].ins + (uint32_t)i];
        k.need[i] = reached[k.x[i]] && gn__is_float((gn_dtype)g->nodes[k.x[i]].dtype);
    }
    for (int i = 0; i < k.n_attrs; i++) k.attrs[i] = g->attrs[g->nodes[id].attrs + (uint32_t)i];
    if (op == GN__OP_ASSIGN) k.gx[1] = k.gy;              /* a version's value is what was assigned */
    else gn__ops[op].grad(&k);
    for (int i = 0; i < k.n_in; i++) {
        if (!k.need[i] || (op == GN__OP_ASSIGN && i == 0)) continue;
        gn_shape s = *gn__shape_of(g, k.x[i]);
        uint32_t gx = gn__sum_to(&k, k.gx[i], &s);
        grads[k.x[i]] = grads[k.x[i]] ? gn__add(&k, grads[k.x[i]], gx) : gx;
    }
}

/* Fills out[i] with the node of d loss / d params[i]. */
static gn_result gn__gradients(gn_ctx *g, gn__loc at, uint32_t loss, const uint32_t *params, int n, uint32_t *out, gn_fault *f) {
    gn__type t = gn__type_of(g, loss);
    if (!gn__is_float(t.dtype) || gn__count(&t.shape) != 1) return gn_fail(f, GN_NO_GRADIENT, "the loss must be one float element");
    uint8_t *reached = (uint8_t *)gn__alloc_zero((size_t)loss + 1);
    uint32_t *grads = (uint32_t *)gn__alloc_zero(((size_t)loss + 1) * sizeof *grads);
    gn_result r = reached && grads ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the gradients");
    if (r == GN_OK) {
        gn__grad_reached(g, loss, params, n, reached);
        grads[loss] = gn__full(g, at, t.dtype, &t.shape, 1);
        for (uint32_t id = loss; id > 0; id--) {
            int op = g->nodes[id].op;                       /* a parameter may come from an op without a gradient, and ends the way there */
            if (grads[id] && reached[id] && g->nodes[id].n_ins && (gn__ops[op].grad || op == GN__OP_ASSIGN)) gn__grad_node(g, at, id, grads, reached);
        }
    }
    for (int i = 0; i < n && r == GN_OK; i++) {
        out[i] = params[i] <= loss ? grads[params[i]] : 0;
        if (!out[i]) r = gn_fail(f, GN_NO_GRADIENT, "the loss does not depend on parameter %d ('%s') through differentiable operations", i, gn__label_text(g, g->nodes[params[i]].label));
    }
    gn_free(reached);
    gn_free(grads);
    return r;
}

GN__COLD_END

GN__COLD_BEGIN

/* >>meaning ========================================================================================
 * What is known of a node beyond its arithmetic. A program says the phase (gn_phase); residency follows from the leaf. */

static const char *const gn__phase_names[GN_PHASE__COUNT] = { "unknown", "forward", "prefill", "decode", "training" };

static const char *gn__residency_name(const gn_ctx *g, uint32_t id) {
    const gn__node *n = &g->nodes[id];
    if (n->slot && n->leaf != GN_LEAF_WEIGHT) return g->slots[n->slot - 1].kv ? "kv cache" : "state";
    return n->leaf == GN_LEAF_WEIGHT ? "weight" : n->leaf == GN_LEAF_DATA ? "input" : "activation";
}

/* >>plan ===========================================================================================
 * How a part runs on a host executor: which nodes are views, which run in one loop, where each result lies. A pure function
 * of the part. */

enum { GN__GROUP_MAX = 64 };
#define GN__NO_GROUP UINT32_MAX

static void gn__layout_deinit(gn_layout *l) {
    gn_free(l->lay);
    gn_free(l->update_how);
    gn_free(l->scratch);
    gn_free(l->steps);
    gn_free(l->loads);
    gn_free(l->instrs);
    memset(l, 0, sizeof *l);
}

static bool gn__is_scalar_op(const gn_part_node *n) { return n->leaf == GN_LEAF_NONE && gn__ops[n->op].kind == GN_CLASS_SCALAR; }

static bool gn__same_dims(const gn_part *p, const gn_part_node *a, const gn_part_node *b) {
    return a->rank == b->rank && (a->rank == 0 || memcmp(p->dims + a->dims, p->dims + b->dims, a->rank * sizeof(int64_t)) == 0);
}

/* A scalar node joins its consumer's loop when all its consumers are in that one loop and have its shape: so no path leaves
   the loop and comes back. candidate[i]: 0 none yet, UINT32_MAX several or not fusible, else 1 + the loop's leader. */
static void gn__layout_groups(gn_layout *l) {
    const gn_part *p = l->part;
    uint32_t *candidate = l->scratch;
    memset(candidate, 0, p->n_nodes * sizeof *candidate);
    for (uint32_t i = 0; i < p->n_outs; i++) candidate[p->outs[i]] = UINT32_MAX;
    for (uint32_t i = 0; i < p->n_updates; i++) candidate[p->updates[i].node] = UINT32_MAX;
    for (uint32_t i = p->n_nodes; i-- > 0;) {
        const gn_part_node *n = &p->nodes[i];
        bool scalar = gn__is_scalar_op(n);
        l->lay[i].group = GN__NO_GROUP;
        if (scalar) {
            uint32_t leader = candidate[i] && candidate[i] != UINT32_MAX ? candidate[i] - 1 : i;
            if (leader != i && l->lay[leader].own >= GN__GROUP_MAX) leader = i;
            l->lay[i].group = leader;
            l->lay[leader].own++;                                   /* its size, until memory is laid out */
        }
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = p->ins[n->ins + k], want = l->lay[i].group + 1;
            bool fits = scalar && gn__same_dims(p, &p->nodes[x], n);
            if (p->nodes[x].op == GN__OP_FULL && scalar) continue;  /* constants are filled in wherever they are used */
            candidate[x] = fits && (!candidate[x] || candidate[x] == want) ? want : UINT32_MAX;
        }
    }
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        l->lay[i].own = 0;
        l->lay[i].kernel = p->nodes[i].op == GN__OP_FULL && p->nodes[i].leaf == GN_LEAF_NONE ? candidate[i] == UINT32_MAX : false;
    }
}

static gn_view gn__part_view(const gn_part *p, uint32_t node) {
    gn__type t = gn__part_type(p, node);
    return gn__view_dense(&t, NULL);
}

/* A view of an input's memory, where strides can say it. */
static bool gn__layout_view(gn_layout *l, uint32_t i) {
    const gn_part *p = l->part;
    const gn_part_node *n = &p->nodes[i];
    if (!gn__is_view_op(n->op)) return false;
    const gn_lay *in = &l->lay[p->ins[n->ins + (n->op == GN__OP_ASSIGN ? 1 : 0)]];
    const int64_t *attrs = p->attrs + n->attrs;
    gn_view v = in->view;
    if (n->op == GN__OP_PERMUTE) v = gn__view_permute(&in->view, attrs);
    else if (n->op == GN__OP_SLICE) v = gn__view_slice(&in->view, attrs);
    else if (n->op == GN__OP_BROADCAST) v = gn__view_broadcast(&in->view, n->rank, p->dims + n->dims);
    else if (n->op == GN__OP_RESHAPE && !gn__view_reshape(&in->view, n->rank, p->dims + n->dims, &v)) { l->view_copies++; return false; }
    l->lay[i].view = v;
    l->lay[i].base = in->base;
    return true;
}

static void gn__layout_places(gn_layout *l) {
    const gn_part *p = l->part;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        gn_lay *a = &l->lay[i];
        a->base = i;
        a->view = gn__part_view(p, i);
        if (n->leaf == GN_LEAF_DATA || n->leaf == GN_LEAF_VALUE) a->place = GN_PLACE_ARG;
        else if (n->leaf) a->place = GN_PLACE_SLOT;
        else if (gn__layout_view(l, i)) a->place = GN_PLACE_NONE;
        else if (n->op == GN__OP_FULL) a->place = a->kernel ? GN_PLACE_BLOCK : GN_PLACE_NONE;
        else if (a->group != GN__NO_GROUP && a->group != i) { a->place = GN_PLACE_NONE; l->fused++; }
        else { a->place = GN_PLACE_BLOCK; a->kernel = true; }
    }
}

static void gn__layout_last(gn_layout *l) {
    const gn_part *p = l->part;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        const gn_lay *a = &l->lay[i];
        uint32_t at = a->group != GN__NO_GROUP ? a->group : i;
        bool reads = a->group != GN__NO_GROUP || a->kernel;
        for (uint32_t k = 0; reads && k < n->n_ins; k++) {
            gn_lay *b = &l->lay[l->lay[p->ins[n->ins + k]].base];
            b->last = GN__MAX(b->last, at);
        }
    }
    for (uint32_t i = 0; i < p->n_outs; i++) l->lay[l->lay[p->outs[i]].base].last = p->n_nodes;
    for (uint32_t i = 0; i < p->n_updates; i++) l->lay[l->lay[p->updates[i].node].base].last = p->n_nodes;
}

/* The chain of kv_appends from a state's leaf to its new version; its length, 0 when it is something else. */
static uint32_t gn__append_chain(const gn_part *p, const gn_part_update *u, uint32_t *chain, uint32_t cap) {
    uint32_t n = 0, at = u->node;
    for (; p->nodes[at].leaf == GN_LEAF_NONE && p->nodes[at].op == GN__OP_KV_APPEND && n < cap; at = p->ins[p->nodes[at].ins]) chain[n++] = at;
    return p->nodes[at].leaf == GN_LEAF_STATE && p->nodes[at].slot == u->slot ? n : 0;
}

/* In place when nothing reads an older version after the append that ends it. */
static bool gn__layout_inplace(gn_layout *l, const gn_part_update *u) {
    const gn_part *p = l->part;
    uint32_t *chain = l->scratch, n = gn__append_chain(p, u, chain, p->n_nodes);
    uint32_t leaf = n ? p->ins[p->nodes[chain[n - 1]].ins] : 0;
    for (uint32_t i = 0; i < p->n_nodes && n; i++)                 /* a second leaf of the state could be read later */
        if (i != leaf && p->nodes[i].leaf == GN_LEAF_STATE && p->nodes[i].slot == u->slot) return false;
    for (uint32_t i = n; i-- > 0;) {
        const gn_part_node *node = &p->nodes[chain[i]];
        uint32_t old = p->ins[node->ins], rows = l->lay[p->ins[node->ins + 1]].base;
        if (l->lay[old].last > chain[i] || rows == old || rows == leaf) return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        l->lay[chain[i]].place = GN_PLACE_INPLACE;
        l->lay[chain[i]].own = leaf;
    }
    return n > 0;
}

static void gn__layout_updates(gn_layout *l) {
    const gn_part *p = l->part;
    for (uint32_t u = 0; u < p->n_updates; u++) {
        const gn_part_update *up = &p->updates[u];
        gn_lay *a = &l->lay[up->node], *base = &l->lay[a->base];
        gn_view whole = gn__part_view(p, a->base);
        if (gn__layout_inplace(l, up)) { l->update_how[u] = GN_UPDATE_INPLACE; continue; }
        bool takes = base->place == GN_PLACE_BLOCK && !a->view.offset && gn__view_is_dense(&a->view) && gn__view_count(&a->view) == gn__view_count(&whole);
        l->update_how[u] = takes ? GN_UPDATE_SWAP : GN_UPDATE_COPY;
        if (takes) { base->place = GN_PLACE_OWN; base->own = u; }
        if (p->nodes[up->node].op == GN__OP_KV_APPEND) {
            gn__type t = gn__part_type(p, up->node);
            l->state_copies++;
            l->state_copy_bytes += gn__type_bytes(&t);
        }
    }
}

/* ---- memory: offsets in one block from lifetimes, first fit ---- */

typedef struct gn__hole { size_t offset, bytes; } gn__hole;
typedef struct gn__holes { GN__ARRAY(gn__hole, list); size_t end; } gn__holes;

static size_t gn__holes_take(gn__holes *h, size_t bytes) {
    for (size_t i = 0; i < h->n_list; i++) {
        gn__hole *x = &h->list[i];
        if (x->bytes < bytes) continue;
        size_t at = x->offset;
        x->offset += bytes;
        x->bytes -= bytes;
        if (!x->bytes) memmove(x, x + 1, (--h->n_list - i) * sizeof *x);
        return at;
    }
    size_t at = h->end;
    if (h->n_list && h->list[h->n_list - 1].offset + h->list[h->n_list - 1].bytes == h->end) at = h->list[--h->n_list].offset;
    h->end = at + bytes;
    return at;
}

static bool gn__holes_give(gn__holes *h, size_t offset, size_t bytes) {
    size_t i = 0;
    if (!bytes) return true;
    if (!GN__GROW(h, list, 1)) return false;
    while (i < h->n_list && h->list[i].offset < offset) i++;
    bool left = i > 0 && h->list[i - 1].offset + h->list[i - 1].bytes == offset;
    bool right = i < h->n_list && offset + bytes == h->list[i].offset;
    if (left && right) {
        h->list[i - 1].bytes += bytes + h->list[i].bytes;
        memmove(&h->list[i], &h->list[i + 1], (--h->n_list - i) * sizeof *h->list);
    } else if (left) h->list[i - 1].bytes += bytes;
    else if (right) { h->list[i].offset = offset; h->list[i].bytes += bytes; }
    else {
        memmove(&h->list[i + 1], &h->list[i], (h->n_list++ - i) * sizeof *h->list);
        h->list[i] = (gn__hole){ offset, bytes };
    }
    return true;
}

static size_t gn__lay_bytes(const gn_lay *a) { return ((size_t)gn__view_count(&a->view) * gn__bytes_of(a->view.dtype) + 63) & ~(size_t)63; }

static bool gn__layout_memory(gn_layout *l) {
    const gn_part *p = l->part;
    uint32_t *dying = l->scratch;                       /* list heads by kernel: 1 + base; linked through `own` */
    gn__holes h = { 0 };
    bool ok = true;
    memset(dying, 0, p->n_nodes * sizeof *dying);
    for (uint32_t i = 0; i < p->n_nodes && ok; i++) {
        gn_lay *a = &l->lay[i];
        if (a->kernel && a->place == GN_PLACE_BLOCK) {
            a->offset = gn__holes_take(&h, gn__lay_bytes(a));
            uint32_t end = GN__MAX(a->last, i);
            if (end < p->n_nodes) { a->own = dying[end]; dying[end] = i + 1; }
        }
        for (uint32_t d = dying[i]; d && ok; d = l->lay[d - 1].own) ok = gn__holes_give(&h, l->lay[d - 1].offset, gn__lay_bytes(&l->lay[d - 1]));
    }
    l->block_bytes = h.end;
    gn_free(h.list);
    return ok;
}

/* ---- loops: loads, instructions and registers of a group ---- */

typedef struct gn__regs { uint64_t used[8]; uint16_t top; } gn__regs;     /* 512 registers */

static uint16_t gn__reg_take(gn__regs *r) {
    for (uint16_t i = 0; i < 512; i++) {
        if ((r->used[i >> 6] >> (i & 63)) & 1) continue;
        r->used[i >> 6] |= (uint64_t)1 << (i & 63);
        r->top = GN__MAX(r->top, (uint16_t)(i + 1));
        return i;
    }
    return 0;
}
static void gn__reg_give(gn__regs *r, uint16_t i) { r->used[i >> 6] &= ~((uint64_t)1 << (i & 63)); }

/* Adjacent dims that one stride covers become one: fewer, longer runs. */
static gn_view gn__view_collapse(const gn_view *v) {
    gn_view r = *v;
    r.rank = 0;
    for (int i = 0; i < v->rank; i++) {
        if (v->dims[i] == 1) continue;
        if (r.rank && r.strides[r.rank - 1] == v->strides[i] * v->dims[i]) {
            r.dims[r.rank - 1] *= v->dims[i];
            r.strides[r.rank - 1] = v->strides[i];
            continue;
        }
        r.dims[r.rank] = v->dims[i];
        r.strides[r.rank++] = v->strides[i];
    }
    return r;
}

/* A collapsed view that shows one element everywhere. */
static bool gn__view_is_one(const gn_view *v) { return v->rank == 0 || (v->rank == 1 && v->strides[0] == 0); }

typedef struct gn__group { uint32_t *members; uint32_t n; gn__regs regs; uint32_t reg_node[512]; uint16_t uses[512]; } gn__group;

/* How often the group's members read node x. */
static uint16_t gn__group_uses(const gn_layout *l, const gn__group *gr, uint32_t x) {
    uint16_t n = 0;
    for (uint32_t m = 0; m < gr->n; m++) {
        const gn_part_node *node = &l->part->nodes[gr->members[m]];
        for (uint32_t k = 0; k < node->n_ins; k++) n = (uint16_t)(n + (l->part->ins[node->ins + k] == x));
    }
    return n;
}

static int gn__group_reg(const gn__group *gr, uint32_t node) {
    for (int i = 0; i < gr->regs.top; i++)
        if (gr->uses[i] && gr->reg_node[i] == node) return i;
    return -1;
}

static uint16_t gn__group_hold(const gn_layout *l, gn__group *gr, uint32_t node) {
    uint16_t r = gn__reg_take(&gr->regs);
    gr->reg_node[r] = node;
    gr->uses[r] = GN__MAX(gn__group_uses(l, gr, node), (uint16_t)1);
    return r;
}

/* An input from outside the loop gets a register before the first instruction runs. Constants keep theirs: they are filled
   in once, not for every tile. */
static bool gn__group_load(gn_layout *l, gn__group *gr, uint32_t x, uint32_t leader) {
    const gn_part *p = l->part;
    if (gn__group_reg(gr, x) >= 0) return true;
    if (!GN__GROW(l, loads, 1)) return false;
    gn_load *d = &l->loads[l->n_loads++];
    const gn_part_node *n = &p->nodes[x];
    memset(d, 0, sizeof *d);
    d->dtype = n->dtype;
    d->base = l->lay[x].base;
    d->reg = gn__group_hold(l, gr, x);
    d->constant = n->leaf == GN_LEAF_NONE && n->op == GN__OP_FULL;
    if (d->constant) {
        d->value = gn__word_f64(p->attrs[n->attrs + 1]);
        gr->uses[d->reg]++;
        return true;
    }
    gn_view wide = gn__view_broadcast(&l->lay[x].view, p->nodes[leader].rank, p->dims + p->nodes[leader].dims);
    d->view = gn__view_collapse(&wide);
    if (gn__view_is_one(&d->view)) gr->uses[d->reg]++;             /* one element for all: filled in once too */
    return true;
}

static bool gn__group_loads(gn_layout *l, gn__group *gr, uint32_t node, uint32_t leader) {
    const gn_part_node *n = &l->part->nodes[node];
    for (uint32_t k = 0; k < n->n_ins; k++) {
        uint32_t x = l->part->ins[n->ins + k];
        if (l->lay[x].group == leader && x != leader) continue;
        if (!gn__group_load(l, gr, x, leader)) return false;
    }
    return true;
}

static bool gn__group_instr(gn_layout *l, gn__group *gr, uint32_t node) {
    const gn_part *p = l->part;
    const gn_part_node *n = &p->nodes[node];
    const int64_t *attrs = p->attrs + n->attrs;
    gn_instr in = { .node = node, .op = n->op, .out_dtype = n->dtype, .in_dtype = p->nodes[p->ins[n->ins + (n->op == GN__OP_WHERE ? 1 : 0)]].dtype };
    for (uint32_t k = 0; k < n->n_ins; k++) in.src[k] = (uint16_t)gn__group_reg(gr, p->ins[n->ins + k]);
    for (uint32_t k = n->n_ins; k < 3; k++) in.src[k] = in.src[0];
    if (n->op == GN__OP_CLAMP) { in.p[0] = gn__word_f64(attrs[0]); in.p[1] = gn__word_f64(attrs[1]); }
    for (int k = 0; k < 2 && n->op == GN__OP_CLAMP && !gn__is_float((gn_dtype)n->dtype); k++) in.p[k] = (double)gn__f64_int(in.p[k], (gn_dtype)n->dtype);
    if (n->op == GN__OP_NOT) in.p[0] = n->dtype == GN_BOOL ? 1 : -1;
    in.dst = gn__group_hold(l, gr, node);                          /* before the inputs go: no loop writes what it reads */
    for (uint32_t k = 0; k < n->n_ins; k++)
        if (--gr->uses[in.src[k]] == 0) gn__reg_give(&gr->regs, in.src[k]);
    if (!GN__GROW(l, instrs, 1)) return false;
    l->instrs[l->n_instrs++] = in;
    return true;
}

static bool gn__layout_loop(gn_layout *l, gn_kernel_step *s, gn__group *gr) {
    memset(&gr->regs, 0, sizeof gr->regs);
    memset(gr->uses, 0, sizeof gr->uses);
    s->load = (uint32_t)l->n_loads;
    s->instr = (uint32_t)l->n_instrs;
    for (uint32_t m = gr->n; m-- > 0;)
        if (!gn__group_loads(l, gr, gr->members[m], s->node)) return false;
    for (uint32_t m = gr->n; m-- > 0;)
        if (!gn__group_instr(l, gr, gr->members[m])) return false;
    s->n_loads = (uint32_t)l->n_loads - s->load;
    s->n_instrs = (uint32_t)l->n_instrs - s->instr;
    s->regs = gr->regs.top;
    s->out = l->instrs[l->n_instrs - 1].dst;
    return true;
}

/* Kernels in order. Members of a loop are found through a list from its leader, so the whole walk is linear. */
static bool gn__layout_steps(gn_layout *l) {
    const gn_part *p = l->part;
    uint32_t *next = l->scratch;                        /* member lists: next[i] = 1 + next member of i's loop, towards smaller nodes */
    gn__group gr;
    uint32_t members[GN__GROUP_MAX + 1];
    gr.members = members;
    memset(next, 0, p->n_nodes * sizeof *next);
    uint32_t *tail = (uint32_t *)gn__alloc_zero((p->n_nodes + 1) * sizeof *tail);
    bool ok = tail != NULL;
    for (uint32_t i = p->n_nodes; ok && i-- > 0;) {
        uint32_t leader = l->lay[i].group;
        if (leader == GN__NO_GROUP) continue;
        if (leader != i) next[tail[leader] - 1] = i + 1;
        tail[leader] = i + 1;
    }
    gn_free(tail);
    for (uint32_t i = 0; i < p->n_nodes && ok; i++) {
        if (!l->lay[i].kernel) continue;
        gn_kernel_step s = { .node = i };
        gr.n = 0;
        if (l->lay[i].group == i)
            for (uint32_t m = i + 1; m && gr.n <= GN__GROUP_MAX; m = next[m - 1]) gr.members[gr.n++] = m - 1;
        ok = (!gr.n || gn__layout_loop(l, &s, &gr)) && GN__GROW(l, steps, 1);
        if (ok) l->steps[l->n_steps++] = s;
    }
    return ok;
}

static gn_result gn__layout_make(const gn_part *p, gn_layout *l, gn_fault *f) {
    memset(l, 0, sizeof *l);
    l->part = p;
    l->lay = (gn_lay *)gn__alloc_zero((size_t)(p->n_nodes + 1) * sizeof *l->lay);
    l->update_how = (uint8_t *)gn__alloc_zero((size_t)p->n_updates + 1);
    l->scratch = (uint32_t *)gn__alloc_zero((size_t)(p->n_nodes + 1) * sizeof *l->scratch);
    bool ok = l->lay && l->update_how && l->scratch;
    if (ok) {
        gn__layout_groups(l);
        gn__layout_places(l);
        gn__layout_last(l);
        gn__layout_updates(l);
        ok = gn__layout_memory(l) && gn__layout_steps(l);
    }
    if (!ok) { gn__layout_deinit(l); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to plan %u nodes", p->n_nodes); }
    return GN_OK;
}

GN__COLD_END

GN__COLD_BEGIN

/* >>wire ===========================================================================================
 * Protocol 1. Little-endian; a frame is
 *     u32 payload bytes (at most 256 KiB), u16 message id, u16 flags (1: MORE, 2: OPTIONAL), u32 request, payload
 * A message is the payloads of the frames of one request up to the one without MORE; frames of different requests may
 * interleave. A receiver skips messages it does not know if they are OPTIONAL. Nothing here touches a socket. */

#define GN__WIRE_MIN 1                      /* protocol versions spoken */
#define GN__WIRE_MAX 1
#define GN__WIRE_MAGIC 0x494e4547u          /* "GENI" */
#define GN__FRAME_HEAD 12u
#define GN__FRAME_MAX (256u << 10)          /* bytes of one frame's payload */
#define GN__HELLO_MAX 4096u                 /* bytes of the first frame, before anybody is authenticated */
#define GN__FRAME_MORE 1u
#define GN__FRAME_OPTIONAL 2u
#define GN__OPEN_MESSAGES 16                /* messages that may be unfinished at once */
#define GN__BLOB_INLINE 4096u               /* bytes that travel raw, without a chunk header */
#define GN__BLOB_CHUNK (1u << 20)
#define GN__WIRE_NODES (1u << 21)           /* nodes of a part */
#define GN__WIRE_FAN_IN 65536u              /* inputs of a node */
#define GN__WIRE_OPS 512u                   /* bytes of the bitmap of ops: wire ids below 4096 */
#define GN__WIRE_ASK 4096u                  /* digests in one question */

enum { GN__FILL_ZEROS, GN__FILL_BYTES, GN__FILL_DIGEST, GN__FILL__COUNT };   /* where a slot's first value comes from */
enum { GN__OUT_WANTED = 1, GN__OUT_KEPT = 2 };                               /* what a step does with an output */

/* The messages. F(M, kind, name, max, unit, help), M being the message; kinds:
 *     u8 u16 u32 u64   an integer, at most max
 *     digest           32 bytes, SHA-256
 *     array            u32 count, at most max, then that many elements of unit bytes
 *     tail             the rest of the message */
#define GN__FIELDS_HELLO(F, M)                                                                                  \
    F(M, u32, magic, UINT32_MAX, 0, "0x494e4547, the bytes GENI")                                               \
    F(M, u16, version_min, UINT16_MAX, 0, "oldest protocol version spoken")                                     \
    F(M, u16, version_max, UINT16_MAX, 0, "newest protocol version spoken")                                     \
    F(M, u64, features, UINT64_MAX, 0, "wanted features; unknown bits are ignored")                             \
    F(M, u32, codecs, UINT32_MAX, 0, "bit c: codec c can be unpacked; bit 0 (raw) is always set")               \
    F(M, array, ops, GN__WIRE_OPS, 1, "bit w: the op with wire id w is known")                                  \
    F(M, array, device, 63, 1, "device wanted, empty: the server's first")                                      \
    F(M, array, auth, 256, 1, "proof of who the client is")
#define GN__FIELDS_HELLO_OK(F, M)                                                                               \
    F(M, u16, version, UINT16_MAX, 0, "protocol version spoken from here on")                                   \
    F(M, u64, features, UINT64_MAX, 0, "features that both know")                                               \
    F(M, u32, codecs, UINT32_MAX, 0, "codecs that both know")                                                   \
    F(M, u64, session, UINT64_MAX, 0, "number of the session, for logs")                                        \
    F(M, u64, memory, UINT64_MAX, 0, "bytes the session may hold")                                              \
    F(M, u32, nodes, GN__WIRE_NODES, 0, "nodes a part may have")                                                \
    F(M, array, ops, GN__WIRE_OPS, 1, "bit w: the op with wire id w is known")                                  \
    F(M, array, device, 63, 1, "device opened")                                                                 \
    F(M, array, identity, 191, 1, "equal identities compute equal bits")                                        \
    F(M, array, grant, 256, 1, "answer to a pairing, else empty")
#define GN__FIELDS_ERROR(F, M)                                                                                  \
    F(M, u16, result, UINT16_MAX, 0, "a gn_result, not 0")                                                      \
    F(M, u8, fatal, 1, 0, "1: the session ends")                                                                \
    F(M, u32, node, UINT32_MAX, 0, "node of the part, 2^32-1: none")                                            \
    F(M, array, text, 399, 1, "one sentence")
#define GN__FIELDS_BYE(F, M)                                                                                    \
    F(M, u16, reason, UINT16_MAX, 0, "a gn_result, 0: done")
#define GN__FIELDS_CANCEL(F, M)                                                                                 \
    F(M, u32, request, UINT32_MAX, 0, "request whose last frame will not come; nothing happens for another")
#define GN__FIELDS_WEIGHT_ASK(F, M)                                                                             \
    F(M, array, digests, GN__WIRE_ASK, 40, "SHA-256 and u64 bytes of each weight")
#define GN__FIELDS_WEIGHT_HAVE(F, M)                                                                            \
    F(M, array, have, GN__WIRE_ASK / 8, 1, "bit i: weight i of the question need not be sent")
#define GN__FIELDS_WEIGHT_PUT(F, M)                                                                             \
    F(M, digest, digest, 0, 32, "of the whole weight")                                                          \
    F(M, u64, total, (uint64_t)1 << 47, 0, "bytes of the whole weight")                                         \
    F(M, u64, offset, (uint64_t)1 << 47, 0, "of these bytes, a multiple of 1 MiB; pieces come in order")        \
    F(M, u8, element, 8, 0, "bytes of an element, for the codec")                                               \
    F(M, tail, blob, 0, 1, "the next 1 MiB, or what is left of the weight")
#define GN__FIELDS_SLOT_PUT(F, M)                                                                               \
    F(M, u32, slot, UINT32_MAX, 0, "number chosen by the client")                                               \
    F(M, u32, gen, UINT32_MAX, 0, "generation of the slot")                                                     \
    F(M, u8, kind, GN_LEAF__COUNT - 1, 0, "3: weight, 4: state")                                                \
    F(M, u8, fill, GN__FILL__COUNT - 1, 0, "0: zeros, 1: the blob, 2: the weight named by the digest")          \
    F(M, u8, dtype, GN_DTYPE__COUNT - 1, 0, "a gn_dtype")                                                       \
    F(M, array, dims, GN_MAX_RANK, 8, "u64 each")                                                               \
    F(M, array, digest, 32, 1, "of a weight, else empty")                                                       \
    F(M, tail, blob, 0, 1, "first value")
#define GN__FIELDS_SLOT_DROP(F, M)                                                                              \
    F(M, u32, slot, UINT32_MAX, 0, "of SLOT_PUT")                                                               \
    F(M, u32, gen, UINT32_MAX, 0, "of SLOT_PUT")
#define GN__FIELDS_PLAN_PUT(F, M)                                                                               \
    F(M, u32, plan, UINT32_MAX, 0, "number chosen by the client, never used before")                            \
    F(M, u64, hash, UINT64_MAX, 0, "of the part, which the server computes again")                              \
    F(M, u32, packed, UINT32_MAX, 0, "0: the part as it is; else its bytes, and the part is a blob of bytes")   \
    F(M, tail, part, 0, 1, "the encoded part")
#define GN__FIELDS_PLAN_DROP(F, M)                                                                              \
    F(M, u32, plan, UINT32_MAX, 0, "of PLAN_PUT")
#define GN__FIELDS_STEP(F, M)                                                                                   \
    F(M, u32, plan, UINT32_MAX, 0, "of PLAN_PUT")                                                               \
    F(M, u64, sequence, UINT64_MAX, 0, "1, 2, 3, ...: each step runs once and in order")                        \
    F(M, u64, release, UINT64_MAX, 0, "kept values with smaller ids are dropped first")                         \
    F(M, u32, seen, UINT32_MAX, 0, "failed steps the client knows of; fewer than there were: CANCELLED")        \
    F(M, array, outs, GN__WIRE_NODES, 1, "of each output: 1: wanted back, 2: kept")                             \
    F(M, array, keeps, GN__WIRE_NODES, 8, "u64 id of each kept output, rising, never used before")              \
    F(M, tail, args, 0, 1, "arguments in order: a blob, or the u64 id of a value")
#define GN__FIELDS_STEP_OK(F, M)                                                                                \
    F(M, u64, held, UINT64_MAX, 0, "bytes held on the device for the session")                                  \
    F(M, tail, outs, 0, 1, "blobs of the outputs wanted, in order")

/* X(NAME, name, id, direction, help). Ids are pinned and never reused. UP: client to server. */
#define GN__MESSAGES(X)                                                                                         \
    X(HELLO, hello, 1, UP, "the first message; nothing else is read before it is answered")                     \
    X(HELLO_OK, hello_ok, 2, DOWN, "answers HELLO")                                                             \
    X(ERROR, error, 3, DOWN, "answers any request that failed")                                                 \
    X(BYE, bye, 4, UP, "ends the session")                                                                      \
    X(CANCEL, cancel, 5, UP, "withdraws an unfinished message")                                                 \
    X(WEIGHT_ASK, weight_ask, 6, UP, "which of these weights need not be sent?")                                \
    X(WEIGHT_HAVE, weight_have, 7, DOWN, "answers WEIGHT_ASK")                                                  \
    X(WEIGHT_PUT, weight_put, 8, UP, "a piece of a weight")                                                     \
    X(SLOT_PUT, slot_put, 9, UP, "makes a weight or a state")                                                   \
    X(SLOT_DROP, slot_drop, 10, UP, "drops a weight or a state")                                                \
    X(PLAN_PUT, plan_put, 11, UP, "makes a plan of a part")                                                     \
    X(PLAN_DROP, plan_drop, 12, UP, "drops a plan")                                                             \
    X(STEP, step, 13, UP, "runs a plan")                                                                        \
    X(STEP_OK, step_ok, 14, DOWN, "answers STEP")

typedef struct gn__span { const uint8_t *p; uint64_t n; } gn__span;   /* n elements of the field's unit */

/* A kind's number is its bytes where they are fixed. */
enum { GN__KIND_u8 = 1, GN__KIND_u16 = 2, GN__KIND_u32 = 4, GN__KIND_u64 = 8, GN__KIND_digest = 32, GN__KIND_array = 64, GN__KIND_tail };
enum { GN__DIRECTION_DOWN, GN__DIRECTION_UP };

enum {
#define GN__X(NAME, name, id, direction, help) GN__MSG_##NAME = id,
    GN__MESSAGES(GN__X)
#undef GN__X
    GN__MSG__COUNT
};

#define GN__FIELD_u8(name) uint8_t name;
#define GN__FIELD_u16(name) uint16_t name;
#define GN__FIELD_u32(name) uint32_t name;
#define GN__FIELD_u64(name) uint64_t name;
#define GN__FIELD_digest(name) uint8_t name[32];
#define GN__FIELD_array(name) gn__span name;
#define GN__FIELD_tail(name) gn__span name;
#define GN__F(m, kind, name, max, unit, help) GN__FIELD_##kind(name)
#define GN__X(NAME, name, id, direction, help) typedef struct gn__msg_##name { GN__FIELDS_##NAME(GN__F, name) } gn__msg_##name;
GN__MESSAGES(GN__X)
#undef GN__X
#undef GN__F

typedef struct gn__field {
    const char *name;
    uint16_t kind, offset;   /* offset in the message's struct */
    uint32_t unit;
    uint64_t max;
} gn__field;

typedef struct gn__msg_info { const char *name; uint16_t id, up, n_fields; uint32_t size; const gn__field *fields; } gn__msg_info;


#define GN__F(m, kind, name, max, unit, help) { #name, GN__KIND_##kind, (uint16_t)offsetof(gn__msg_##m, name), unit, max },
#define GN__X(NAME, name, id, direction, help) static const gn__field gn__fields_##name[] = { GN__FIELDS_##NAME(GN__F, name) };
GN__MESSAGES(GN__X)
#undef GN__X
#undef GN__F

static const gn__msg_info gn__msgs[] = {   /* ids are 1, 2, 3, ... */
#define GN__X(NAME, name, id, direction, help) \
    { #NAME, id, GN__DIRECTION_##direction, (uint16_t)GN__LENGTH(gn__fields_##name), (uint32_t)sizeof(gn__msg_##name), gn__fields_##name },
    GN__MESSAGES(GN__X)
#undef GN__X
};

static const gn__msg_info *gn__msg_find(uint16_t id) {
    return id >= 1 && id <= GN__LENGTH(gn__msgs) ? &gn__msgs[id - 1] : NULL;
}

/* ---- messages ---- */

static uint64_t gn__field_int(const gn__field *d, const void *msg) {
    const uint8_t *p = (const uint8_t *)msg + d->offset;
    uint16_t a;
    uint32_t b;
    uint64_t c;
    switch (d->kind) {
    case GN__KIND_u8: return *p;
    case GN__KIND_u16: memcpy(&a, p, 2); return a;
    case GN__KIND_u32: memcpy(&b, p, 4); return b;
    default: memcpy(&c, p, 8); return c;
    }
}

static void gn__field_set_int(const gn__field *d, void *msg, uint64_t v) {
    uint8_t *p = (uint8_t *)msg + d->offset;
    uint16_t a = (uint16_t)v;
    uint32_t b = (uint32_t)v;
    switch (d->kind) {
    case GN__KIND_u8: *p = (uint8_t)v; break;
    case GN__KIND_u16: memcpy(p, &a, 2); break;
    case GN__KIND_u32: memcpy(p, &b, 4); break;
    default: memcpy(p, &v, 8); break;
    }
}

/* `msg` is the struct of message `id`. A tail may be left empty and its bytes be appended afterwards. */
static void gn__msg_encode(gn__buf *b, uint16_t id, const void *msg) {
    const gn__msg_info *m = gn__msg_find(id);
    for (uint16_t i = 0; i < m->n_fields; i++) {
        const gn__field *d = &m->fields[i];
        const uint8_t *p = (const uint8_t *)msg + d->offset;
        gn__span s;
        if (d->kind <= GN__KIND_u64) { gn__put_le(b, gn__field_int(d, msg), d->kind); continue; }
        if (d->kind == GN__KIND_digest) { gn__put_bytes(b, p, 32); continue; }
        memcpy(&s, p, sizeof s);
        if (d->kind == GN__KIND_array) gn__put_u32(b, (uint32_t)s.n);
        gn__put_bytes(b, s.p, (size_t)s.n * d->unit);
    }
}

static bool gn__field_decode(const gn__field *d, gn__rd *r, void *out) {
    gn__span s = { NULL, 0 };
    uint64_t v;
    if (d->kind <= GN__KIND_u64) {
        v = gn__get_le(r, d->kind);
        gn__field_set_int(d, out, v);
        return !r->bad && v <= d->max;
    }
    if (d->kind == GN__KIND_digest) {
        gn__get_bytes(r, (uint8_t *)out + d->offset, 32);
        return !r->bad;
    }
    s.n = d->kind == GN__KIND_array ? gn__get_u32(r) : (uint64_t)(r->end - r->p);
    if (r->bad || (d->kind == GN__KIND_array && s.n > d->max)) return false;
    s.p = gn__get_view(r, (size_t)(s.n * d->unit));
    memcpy((uint8_t *)out + d->offset, &s, sizeof s);
    return !r->bad;
}

/* Spans of *out point into the payload. */
static gn_result gn__msg_decode(uint16_t id, const uint8_t *p, size_t n, void *out, gn_fault *f) {
    const gn__msg_info *m = gn__msg_find(id);
    gn__rd r = { p, p + n, false };
    memset(out, 0, m->size);
    for (uint16_t i = 0; i < m->n_fields; i++)
        if (!gn__field_decode(&m->fields[i], &r, out))
            return gn_fail(f, GN_BAD_MESSAGE, "message %s of %zu bytes: field %s is cut or out of range", m->name, n, m->fields[i].name);
    if (r.p != r.end) return gn_fail(f, GN_BAD_MESSAGE, "message %s of %zu bytes: %zu too many", m->name, n, (size_t)(r.end - r.p));
    return GN_OK;
}

/* The i-th element of an array of u64. */
static uint64_t gn__span_u64(const gn__span *s, uint64_t i) {
    gn__rd r = { s->p + i * 8, s->p + i * 8 + 8, false };
    return gn__get_u64(&r);
}

/* Copies at most cap - 1 bytes; bytes that do not print become '?', since the text ends in logs and terminals. */
static void gn__span_text(const gn__span *s, char *out, size_t cap) {
    size_t n = GN__MIN((size_t)s->n, cap - 1);
    for (size_t i = 0; i < n; i++) out[i] = (char)(s->p[i] >= 32 && s->p[i] < 127 ? s->p[i] : '?');
    out[n] = 0;
}

static gn__span gn__span_of_text(const char *text, size_t max) {
    gn__span s = { (const uint8_t *)text, GN__MIN(strlen(text), max) };
    return s;
}

/* ---- the bitmap of ops ---- */

static void gn__ops_bitmap(uint8_t out[GN__WIRE_OPS]) {
    memset(out, 0, GN__WIRE_OPS);
    for (int i = GN__OP_FAILED + 1; i < GN__OP__COUNT; i++) out[gn__ops[i].wire / 8] |= (uint8_t)(1u << (gn__ops[i].wire % 8));
}

static bool gn__ops_has(const gn__span *bitmap, uint16_t wire) {
    return wire / 8u < bitmap->n && (bitmap->p[wire / 8u] >> (wire % 8u) & 1) != 0;
}

/* ---- frames in ---- */

typedef struct gn__msg { uint16_t id; uint32_t request; const uint8_t *p; size_t n; } gn__msg;   /* id 0: none yet */

typedef struct gn__open_message { bool used; uint16_t id; uint32_t request; gn__buf body; } gn__open_message;

/* Bytes as they arrive, to messages. Memory grows with what has arrived, never with what was announced. */
typedef struct gn__inbox {
    uint8_t *p;
    size_t at, n, cap;         /* [at, n) has arrived and is not read */
    uint32_t frame_max;        /* bytes of one payload */
    uint64_t limit, held;      /* bytes of all unfinished messages */
    uint64_t frames;
    gn__open_message open[GN__OPEN_MESSAGES];
    gn__buf whole;             /* the last message that came in several frames */
} gn__inbox;

static void gn__inbox_deinit(gn__inbox *in) {
    for (int i = 0; i < GN__OPEN_MESSAGES; i++) gn__buf_deinit(&in->open[i].body);
    gn__buf_deinit(&in->whole);
    gn_free(in->p);
    memset(in, 0, sizeof *in);
}

/* Where to put up to *out_n bytes that arrive; NULL when there is no memory. */
static uint8_t *gn__inbox_room(gn__inbox *in, size_t *out_n) {
    size_t most = (size_t)in->frame_max + GN__FRAME_HEAD;
    if (in->at > 0) {
        if (in->n > in->at) memmove(in->p, in->p + in->at, in->n - in->at);
        in->n -= in->at;
        in->at = 0;
    }
    if (in->n == in->cap) {
        size_t cap = GN__MIN(most, GN__MAX((size_t)16 << 10, in->cap * 2));
        uint8_t *p = (uint8_t *)gn_resize(in->p, cap);
        if (!p) return NULL;
        in->p = p;
        in->cap = cap;
    }
    *out_n = in->cap - in->n;
    return in->p + in->n;
}

static bool gn__inbox_unfinished(const gn__inbox *in) {
    bool any = in->n > in->at;
    for (int i = 0; i < GN__OPEN_MESSAGES; i++) any = any || in->open[i].used;
    return any;
}

static gn__open_message *gn__inbox_find(gn__inbox *in, uint32_t request) {
    for (int i = 0; i < GN__OPEN_MESSAGES; i++)
        if (in->open[i].used && in->open[i].request == request) return &in->open[i];
    return NULL;
}

static void gn__inbox_close(gn__inbox *in, gn__open_message *o) {
    in->held -= o->body.n;
    gn__buf_deinit(&o->body);
    o->used = false;
}

/* Forgets the unfinished message of a request. */
static void gn__inbox_cancel(gn__inbox *in, uint32_t request) {
    gn__open_message *o = gn__inbox_find(in, request);
    if (o) gn__inbox_close(in, o);
}

static gn__open_message *gn__inbox_open(gn__inbox *in, uint16_t id, uint32_t request) {
    for (int i = 0; i < GN__OPEN_MESSAGES; i++) {
        gn__open_message *o = &in->open[i];
        if (o->used) continue;
        memset(o, 0, sizeof *o);
        o->used = true;
        o->id = id;
        o->request = request;
        return o;
    }
    return NULL;
}

/* A frame of a message in several frames; the last one completes *out. */
static gn_result gn__inbox_join(gn__inbox *in, const gn__msg *frame, bool more, gn__msg *out, gn_fault *f) {
    gn__open_message *o = gn__inbox_find(in, frame->request);
    if (more && frame->n == 0) return gn_fail(f, GN_BAD_MESSAGE, "an empty frame announces another");
    if (!o) o = gn__inbox_open(in, frame->id, frame->request);
    if (!o) return gn_fail(f, GN_LIMIT, "more than %d unfinished messages", GN__OPEN_MESSAGES);
    if (o->id != frame->id) return gn_fail(f, GN_BAD_MESSAGE, "request %u began as message %u and goes on as %u", frame->request, o->id, frame->id);
    if (frame->n > in->limit || in->held > in->limit - frame->n)
        return gn_fail(f, GN_LIMIT, "unfinished messages hold more than %llu bytes", (unsigned long long)in->limit);
    gn__put_bytes(&o->body, frame->p, frame->n);
    if (o->body.failed) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a message of more than %zu bytes", o->body.n);
    in->held += frame->n;
    if (more) return GN_OK;
    in->held -= o->body.n;
    in->whole = o->body;
    memset(&o->body, 0, sizeof o->body);
    o->used = false;
    *out = (gn__msg){ frame->id, frame->request, in->whole.p, in->whole.n };
    return GN_OK;
}

/* The next whole message, valid until the next call; out->id is 0 when more bytes are needed first. */
static gn_result gn__inbox_next(gn__inbox *in, gn__msg *out, gn_fault *f) {
    memset(out, 0, sizeof *out);
    gn__buf_deinit(&in->whole);
    while (out->id == 0 && in->n - in->at >= GN__FRAME_HEAD) {
        gn__rd r = { in->p + in->at, in->p + in->n, false };
        uint32_t n = gn__get_u32(&r);
        uint16_t id = gn__get_u16(&r), flags = gn__get_u16(&r);
        gn__msg frame = { id, gn__get_u32(&r), NULL, n };
        if (n > in->frame_max) return gn_fail(f, GN_BAD_MESSAGE, "a frame of %u bytes; at most %u are allowed", n, in->frame_max);
        if (flags & ~(GN__FRAME_MORE | GN__FRAME_OPTIONAL)) return gn_fail(f, GN_BAD_MESSAGE, "unknown frame flags 0x%x", flags);
        bool known = gn__msg_find(frame.id) != NULL, more = (flags & GN__FRAME_MORE) != 0;
        if (!known && !(flags & GN__FRAME_OPTIONAL)) return gn_fail(f, GN_BAD_MESSAGE, "unknown message %u", frame.id);
        frame.p = gn__get_view(&r, n);
        if (r.bad) break;
        in->at += GN__FRAME_HEAD + n;
        in->frames++;
        if (!known) continue;
        if (!more && !gn__inbox_find(in, frame.request)) { *out = frame; break; }
        gn_result e = gn__inbox_join(in, &frame, more, out, f);
        if (e) return e;
    }
    return GN_OK;
}

/* ---- frames out ---- */

typedef struct gn__outbox {
    gn__buf b;                 /* frames not handed over yet */
    gn__buf fields;            /* of the message being written; reused */
    size_t head;               /* of the frame being written */
    size_t start;              /* of the message being written, SIZE_MAX once a part of it was handed over */
    uint16_t id;
    uint32_t request;
    uint64_t frames;
    gn_result result;          /* the first failure of the sink */
    gn_result (*sink)(void *user, const uint8_t *p, size_t n);
    void *user;
} gn__outbox;

static void gn__outbox_deinit(gn__outbox *o) {
    gn__buf_deinit(&o->b);
    gn__buf_deinit(&o->fields);
}

static gn_result gn__outbox_flush(gn__outbox *o) {
    if (!o->result && o->b.failed) o->result = GN_OUT_OF_MEMORY;
    if (!o->result && o->b.n > 0) o->result = o->sink(o->user, o->b.p, o->b.n);
    gn__buf_reset(&o->b);
    o->start = SIZE_MAX;
    return o->result;
}

static void gn__outbox_frame(gn__outbox *o) {
    o->head = o->b.n;
    gn__put_u32(&o->b, 0);
    gn__put_u16(&o->b, o->id);
    gn__put_u16(&o->b, 0);
    gn__put_u32(&o->b, o->request);
}

static void gn__outbox_begin(gn__outbox *o, uint16_t id, uint32_t request) {
    o->id = id;
    o->request = request;
    o->start = o->b.n;
    gn__outbox_frame(o);
}

static void gn__outbox_seal(gn__outbox *o, uint16_t flags) {
    gn__buf head = { o->b.p + o->head, 0, GN__FRAME_HEAD, false };
    gn__put_u32(&head, (uint32_t)(o->b.n - o->head - GN__FRAME_HEAD));
    gn__put_u16(&head, o->id);
    gn__put_u16(&head, flags);
    o->frames++;
}

static void gn__outbox_put(gn__outbox *o, const void *src, size_t n) {
    const uint8_t *p = (const uint8_t *)src;
    while (n > 0 && !o->result && !o->b.failed) {
        size_t room = GN__FRAME_MAX - (o->b.n - o->head - GN__FRAME_HEAD), take = GN__MIN(n, room);
        if (take == 0) {
            gn__outbox_seal(o, GN__FRAME_MORE);
            gn__outbox_flush(o);
            gn__outbox_frame(o);
            continue;
        }
        gn__put_bytes(&o->b, p, take);
        p += take;
        n -= take;
    }
}

static gn_result gn__outbox_message(gn__outbox *o, uint16_t id, uint32_t request, const void *msg);

/* Withdraws the message being written. */
static void gn__outbox_abandon(gn__outbox *o) {
    gn__msg_cancel c = { o->request };
    bool sent = o->start == SIZE_MAX;
    o->b.n = sent ? 0 : o->start;
    o->b.failed = false;
    if (sent) gn__outbox_message(o, GN__MSG_CANCEL, 0, &c);
}

/* GN_OUT_OF_MEMORY: the message was withdrawn and the outbox goes on; others are of the sink. */
static gn_result gn__outbox_end(gn__outbox *o) {
    if (o->result) return o->result;
    if (o->b.failed) { gn__outbox_abandon(o); return GN_OUT_OF_MEMORY; }
    gn__outbox_seal(o, 0);
    return o->b.n >= GN__FRAME_MAX ? gn__outbox_flush(o) : GN_OK;
}

/* Begins a message with its fields; a tail can be put after it, then comes gn__outbox_end. */
static void gn__outbox_fields(gn__outbox *o, uint16_t id, uint32_t request, const void *msg) {
    gn__outbox_begin(o, id, request);
    gn__buf_reset(&o->fields);
    gn__msg_encode(&o->fields, id, msg);
    if (o->fields.failed) o->b.failed = true;
    else gn__outbox_put(o, o->fields.p, o->fields.n);
}

static gn_result gn__outbox_message(gn__outbox *o, uint16_t id, uint32_t request, const void *msg) {
    gn__outbox_fields(o, id, request, msg);
    return gn__outbox_end(o);
}

/* ---- blobs: tensor bytes whose number both sides know. Up to 4 KiB raw; more as chunks of 1 MiB (the last may be
 * shorter), each { u8 codec, u32 bytes stored, bytes } ---- */

static uint64_t gn__blob_least(uint64_t n) {   /* bytes that n bytes take on the wire at the very least */
    return n <= GN__BLOB_INLINE ? n : (n + GN__BLOB_CHUNK - 1) / GN__BLOB_CHUNK * 6;
}

static uint64_t gn__blob_most(uint64_t n) {
    return n <= GN__BLOB_INLINE ? n : n + (n + GN__BLOB_CHUNK - 1) / GN__BLOB_CHUNK * 5;
}

/* Appends n bytes of elements of `element` bytes, packed with a codec of the set `codecs` where that pays; returns bytes on the
   wire. `scratch` is reused. */
static uint64_t gn__blob_put(gn__outbox *o, const void *src, size_t n, int element, uint32_t codecs, gn__buf *scratch) {
    const uint8_t *p = (const uint8_t *)src;
    uint64_t stored_bytes = 0;
    if (n <= GN__BLOB_INLINE) { gn__outbox_put(o, src, n); return n; }
    void *room = scratch->p;
    bool packs = codecs > 1 && gn__net && gn__reserve(&room, &scratch->cap, GN__BLOB_CHUNK, 1);
    scratch->p = (uint8_t *)room;
    for (size_t at = 0; at < n; at += GN__BLOB_CHUNK) {
        size_t raw = GN__MIN(n - at, (size_t)GN__BLOB_CHUNK), stored = 0;
        uint8_t codec = 0, head[5];
        if (packs) stored = gn__net->pack(p + at, raw, element, scratch->p, scratch->cap, &codec);
        if (codec == 0 || codec > 31 || !(codecs >> codec & 1) || stored >= raw) stored = 0;
        if (stored == 0) codec = 0;
        gn__buf b = { head, 0, sizeof head, false };
        gn__put_u8(&b, codec);
        gn__put_u32(&b, (uint32_t)(stored ? stored : raw));
        gn__outbox_put(o, head, sizeof head);
        gn__outbox_put(o, stored ? scratch->p : p + at, stored ? stored : raw);
        stored_bytes += sizeof head + (stored ? stored : raw);
    }
    return stored_bytes;
}

static gn_result gn__chunk_get(gn__rd *r, uint8_t *dst, size_t raw, int element, uint32_t codecs, gn_fault *f) {
    uint8_t codec = gn__get_u8(r);
    uint32_t stored = gn__get_u32(r);
    const uint8_t *p = gn__get_view(r, stored);
    if (!p || codec > 31 || !(codecs >> codec & 1)) return gn_fail(f, GN_BAD_MESSAGE, "a chunk is cut or of unknown codec %u", codec);
    if (codec == 0) {
        if (stored != raw) return gn_fail(f, GN_BAD_MESSAGE, "a raw chunk of %u bytes where %zu belong", stored, raw);
        memcpy(dst, p, raw);
        return GN_OK;
    }
    if (stored == 0 || stored >= raw || !gn__net) return gn_fail(f, GN_BAD_MESSAGE, "a packed chunk of %u bytes for %zu", stored, raw);
    gn_result e = gn__net->unpack(codec, p, stored, element, dst, raw);
    return e ? gn_fail(f, e, "a packed chunk of %u bytes does not unpack to %zu", stored, raw) : GN_OK;
}

/* Reads exactly n bytes into dst. */
static gn_result gn__blob_get(gn__rd *r, void *dst, size_t n, int element, uint32_t codecs, gn_fault *f) {
    uint8_t *p = (uint8_t *)dst;
    if (n <= GN__BLOB_INLINE) {
        gn__get_bytes(r, dst, n);
        return r->bad ? gn_fail(f, GN_BAD_MESSAGE, "a blob is cut: %zu bytes belong here", n) : GN_OK;
    }
    for (size_t at = 0; at < n; at += GN__BLOB_CHUNK) {
        gn_result e = gn__chunk_get(r, p + at, GN__MIN(n - at, (size_t)GN__BLOB_CHUNK), element, codecs, f);
        if (e) return e;
    }
    return GN_OK;
}

/* ---- parts ----
 *     u32 nodes, inputs, attributes, dims, arguments, outputs, updates
 *     each node: u16 op, u8 phase; then
 *         a leaf: u8 dtype, u8 rank, u64 dims[rank]; data and value: u32 argument; weight and state: u32 slot, u32 gen
 *         an op:  u32 inputs, u16 attributes, u32 input[], u64 attribute[]
 *     u32 node of each output; { u32 slot, u32 gen, u32 node } of each update
 * Result types do not travel: the reader infers them. */

static void gn__part_put_node(gn__buf *b, const gn_part *part, const gn_part_node *x) {
    gn__put_u16(b, gn__ops[x->op].wire);
    gn__put_u8(b, x->phase);
    if (x->leaf == GN_LEAF_NONE) {
        gn__put_u32(b, x->n_ins);
        gn__put_u16(b, x->n_attrs);
        for (uint32_t i = 0; i < x->n_ins; i++) gn__put_u32(b, part->ins[x->ins + i]);
        for (uint32_t i = 0; i < x->n_attrs; i++) gn__put_u64(b, (uint64_t)part->attrs[x->attrs + i]);
        return;
    }
    gn__put_u8(b, x->dtype);
    gn__put_u8(b, x->rank);
    for (uint32_t i = 0; i < x->rank; i++) gn__put_u64(b, (uint64_t)part->dims[x->dims + i]);
    if (x->leaf == GN_LEAF_DATA || x->leaf == GN_LEAF_VALUE) { gn__put_u32(b, x->arg); return; }
    gn__put_u32(b, x->slot);
    gn__put_u32(b, x->gen);
}

static gn_result gn__part_encode(gn__buf *b, const gn_part *part, gn_fault *f) {
    uint32_t n_ins = 0, n_attrs = 0, n_dims = 0;   /* of this layout: arrays of the part may share or leave gaps */
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn_part_node *x = &part->nodes[i];
        n_ins += x->n_ins;
        n_attrs += x->n_attrs;
        n_dims += x->rank;
    }
    const uint32_t counts[7] = { part->n_nodes, n_ins, n_attrs, n_dims, part->n_args, part->n_outs, part->n_updates };
    for (int i = 0; i < 7; i++) gn__put_u32(b, counts[i]);
    for (uint32_t i = 0; i < part->n_nodes; i++) gn__part_put_node(b, part, &part->nodes[i]);
    for (uint32_t i = 0; i < part->n_outs; i++) gn__put_u32(b, part->outs[i]);
    for (uint32_t i = 0; i < part->n_updates; i++) {
        gn__put_u32(b, part->updates[i].slot);
        gn__put_u32(b, part->updates[i].gen);
        gn__put_u32(b, part->updates[i].node);
    }
    return b->failed ? gn_fail(f, GN_OUT_OF_MEMORY, "no memory to encode %u nodes", part->n_nodes) : GN_OK;
}

/* A part being read from bytes that nobody vouches for. */
typedef struct gn__part_in {
    gn__rd r;
    gn_part *part;
    gn_part_node *nodes;
    uint32_t *ins, *args, *outs;
    int64_t *attrs, *dims;
    gn_part_update *updates;
    uint32_t n_ins, n_attrs, n_dims, n_args;   /* read so far */
    gn__type *types;                           /* of the inputs of one node */
    size_t types_cap;
    gn_fault *f;
} gn__part_in;

/* Appends the result type of a node; the dims were announced in the head. */
static gn_result gn__part_set_type(gn__part_in *in, gn_part_node *x, const gn__type *t) {
    uint32_t rank = (uint32_t)t->shape.rank;
    if (rank > in->part->n_dims - in->n_dims) return gn_fail(in->f, GN_BAD_MESSAGE, "the part has more dims than announced");
    x->dtype = (uint8_t)t->dtype;
    x->rank = (uint8_t)rank;
    x->dims = in->n_dims;
    for (uint32_t i = 0; i < rank; i++) in->dims[in->n_dims++] = t->shape.dims[i];
    return GN_OK;
}

static gn_result gn__part_get_leaf(gn__part_in *in, uint32_t index) {
    gn_part_node *x = &in->nodes[index];
    gn__type t;
    memset(&t, 0, sizeof t);
    t.dtype = (gn_dtype)gn__get_u8(&in->r);
    t.shape.rank = gn__get_u8(&in->r);
    if (in->r.bad || t.shape.rank > GN_MAX_RANK) return gn_fail(in->f, GN_BAD_MESSAGE, "a leaf is cut or has rank %d", t.shape.rank);
    for (int i = 0; i < t.shape.rank; i++) t.shape.dims[i] = (int64_t)gn__get_u64(&in->r);
    if (in->r.bad || !gn__type_ok(&t)) return gn_fail(in->f, GN_BAD_MESSAGE, "a leaf is cut or its dtype or shape is not valid");
    if (x->leaf == GN_LEAF_DATA || x->leaf == GN_LEAF_VALUE) {
        x->arg = gn__get_u32(&in->r);
        if (x->arg >= in->part->n_args || in->args[x->arg] != UINT32_MAX)
            return gn_fail(in->f, GN_BAD_MESSAGE, "argument %u is out of range or named twice", x->arg);
        in->args[x->arg] = index;
        in->n_args++;
    } else {
        x->slot = gn__get_u32(&in->r);
        x->gen = gn__get_u32(&in->r);
    }
    return gn__part_set_type(in, x, &t);
}

/* The inputs of a node, each before the node itself: no cycle, no forward reference. */
static gn_result gn__part_get_inputs(gn__part_in *in, uint32_t index) {
    gn_part_node *x = &in->nodes[index];
    void *types = in->types;
    x->n_ins = gn__get_u32(&in->r);
    x->n_attrs = gn__get_u16(&in->r);
    x->ins = in->n_ins;
    x->attrs = in->n_attrs;
    if (in->r.bad || x->n_ins > GN__WIRE_FAN_IN || x->n_ins > in->part->n_ins - in->n_ins || x->n_attrs > in->part->n_attrs - in->n_attrs)
        return gn_fail(in->f, GN_BAD_MESSAGE, "%u inputs and %u attributes are more than announced or allowed", x->n_ins, x->n_attrs);
    if (!gn__reserve(&types, &in->types_cap, x->n_ins, sizeof(gn__type))) return gn_fail(in->f, GN_OUT_OF_MEMORY, "no memory for a node");
    in->types = (gn__type *)types;
    for (uint32_t i = 0; i < x->n_ins; i++) {
        uint32_t from = gn__get_u32(&in->r);
        if (in->r.bad || from >= index) return gn_fail(in->f, GN_BAD_MESSAGE, "node %u reads node %u", index, from);
        in->ins[in->n_ins++] = from;
        in->types[i] = gn__part_type(in->part, from);
    }
    for (uint32_t i = 0; i < x->n_attrs; i++) in->attrs[in->n_attrs++] = (int64_t)gn__get_u64(&in->r);
    return in->r.bad ? gn_fail(in->f, GN_BAD_MESSAGE, "node %u is cut", index) : GN_OK;
}

static gn_result gn__part_get_op(gn__part_in *in, uint32_t index) {
    gn_part_node *x = &in->nodes[index];
    gn_result e = gn__part_get_inputs(in, index);
    if (e) return e;
    gn__type t;
    memset(&t, 0, sizeof t);
    e = gn__infer(x->op, in->types, (int)x->n_ins, in->attrs + x->attrs, x->n_attrs, &t, in->f);
    return e ? e : gn__part_set_type(in, x, &t);
}

static gn_result gn__part_get_node(gn__part_in *in, uint32_t index) {
    gn_part_node *x = &in->nodes[index];
    uint16_t wire = gn__get_u16(&in->r);
    x->phase = gn__get_u8(&in->r);
    if (in->r.bad || x->phase >= GN_PHASE__COUNT) return gn_fail(in->f, GN_BAD_MESSAGE, "node %u is cut or of phase %u", index, x->phase);
    int op = gn__op_by_wire(wire);
    if (op < 0) return gn_fail(in->f, GN_UNSUPPORTED, "this server does not know the op with wire id %u", wire);
    x->op = (uint16_t)op;
    for (int k = GN_LEAF_NONE + 1; k < GN_LEAF__COUNT; k++)
        if (op == gn__op_leaf((gn_leaf_kind)k)) x->leaf = (uint8_t)k;
    return x->leaf == GN_LEAF_NONE ? gn__part_get_op(in, index) : gn__part_get_leaf(in, index);
}

static gn_result gn__part_get_ends(gn__part_in *in) {
    const gn_part *part = in->part;
    for (uint32_t i = 0; i < part->n_outs; i++) {
        in->outs[i] = gn__get_u32(&in->r);
        if (in->r.bad || in->outs[i] >= part->n_nodes) return gn_fail(in->f, GN_BAD_MESSAGE, "output %u is cut or node %u", i, in->outs[i]);
    }
    for (uint32_t i = 0; i < part->n_updates; i++) {
        in->updates[i].slot = gn__get_u32(&in->r);
        in->updates[i].gen = gn__get_u32(&in->r);
        in->updates[i].node = gn__get_u32(&in->r);
        if (in->r.bad || in->updates[i].node >= part->n_nodes) return gn_fail(in->f, GN_BAD_MESSAGE, "update %u is cut or of node %u", i, in->updates[i].node);
    }
    if (in->r.p != in->r.end || in->n_ins != part->n_ins || in->n_attrs != part->n_attrs || in->n_dims != part->n_dims || in->n_args != part->n_args)
        return gn_fail(in->f, GN_BAD_MESSAGE, "the part holds more or less than its head says");
    return GN_OK;
}

/* Reads the head and allocates; what is allocated is bounded by a small multiple of the bytes that are there. */
static gn_result gn__part_get_head(gn__part_in *in, uint32_t max_nodes) {
    gn__part_size s;
    s.n_nodes = gn__get_u32(&in->r);
    s.n_ins = gn__get_u32(&in->r);
    s.n_attrs = gn__get_u32(&in->r);
    s.n_dims = gn__get_u32(&in->r);
    s.n_args = gn__get_u32(&in->r);
    s.n_outs = gn__get_u32(&in->r);
    s.n_updates = gn__get_u32(&in->r);
    uint64_t left = (uint64_t)(in->r.end - in->r.p);
    uint64_t least = (uint64_t)s.n_nodes * 9 + (uint64_t)s.n_ins * 4 + (uint64_t)s.n_attrs * 8 + (uint64_t)s.n_outs * 4 + (uint64_t)s.n_updates * 12;
    if (in->r.bad || s.n_nodes == 0 || least > left || s.n_args > s.n_nodes || s.n_dims > (uint64_t)s.n_nodes * GN_MAX_RANK)
        return gn_fail(in->f, GN_BAD_MESSAGE, "the head of a part does not fit its %llu bytes", (unsigned long long)left);
    if (s.n_nodes > max_nodes) return gn_fail(in->f, GN_LIMIT, "%u nodes; this server takes %u", s.n_nodes, max_nodes);
    in->part = gn__part_alloc(&s);
    if (!in->part) return gn_fail(in->f, GN_OUT_OF_MEMORY, "no memory for %u nodes", s.n_nodes);
    in->nodes = (gn_part_node *)(uintptr_t)in->part->nodes;
    in->ins = (uint32_t *)(uintptr_t)in->part->ins;
    in->attrs = (int64_t *)(uintptr_t)in->part->attrs;
    in->dims = (int64_t *)(uintptr_t)in->part->dims;
    in->args = (uint32_t *)(uintptr_t)in->part->args;
    in->outs = (uint32_t *)(uintptr_t)in->part->outs;
    in->updates = (gn_part_update *)(uintptr_t)in->part->updates;
    for (uint32_t i = 0; i < s.n_args; i++) in->args[i] = UINT32_MAX;
    return GN_OK;
}

/* Rebuilds a part; every type is inferred by the builders' own function. *out_part is freed by gn_free. */
static gn_result gn__part_decode(const uint8_t *p, size_t n, uint32_t max_nodes, gn_part **out_part, gn_fault *f) {
    gn__part_in in = { { p, p + n, false }, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, f };
    *out_part = NULL;
    gn_result e = gn__part_get_head(&in, max_nodes);
    for (uint32_t i = 0; !e && i < in.part->n_nodes; i++) {
        e = gn__part_get_node(&in, i);
        if (e && f) f->node = i;
    }
    if (!e) e = gn__part_get_ends(&in);
    gn_free(in.types);
    if (e) { gn_free(in.part); return e; }
    in.part->hash = gn__part_hash(in.part);
    *out_part = in.part;
    return GN_OK;
}

GN__COLD_END

/* >>exec ===========================================================================================
 * The null and the CPU executor. Runs are synchronous: a ticket is done when submit returns. */

GN__COLD_BEGIN

/* ---- null: checks and counts, computes nothing ---- */

typedef struct gn__null { gn_stats *stats; } gn__null;

static void gn__null_close(void *self) { gn_free(self); }
static gn_result gn__null_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) { (void)self; (void)d; (void)f; return GN_OK; }
static gn_result gn__null_slot_drop(void *self, uint32_t slot, uint32_t gen) { (void)self; (void)slot; (void)gen; return GN_OK; }
static gn_result gn__null_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    (void)self;
    *out_plan = gn__part_copy(part);
    return *out_plan ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
}
static void gn__null_plan_destroy(void *self, void *plan) { (void)self; gn_free(plan); }
static gn_result gn__null_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket, gn_fault *f) {
    const gn_part *p = (const gn_part *)plan;
    (void)args;
    *out_ticket = 1;
    ((gn__null *)self)->stats->kernels_run += p->n_nodes;
    for (uint32_t i = 0; i < p->n_outs; i++)
        if (outs[i].host) return gn_fail(f, GN_NO_VALUE, "the null executor computes no values");
    return GN_OK;
}
static gn_result gn__null_wait(void *self, uint64_t ticket, gn_fault *f) { (void)self; (void)ticket; (void)f; return GN_OK; }
static void gn__null_values_release(void *self, uint64_t below) { (void)self; (void)below; }
static void gn__null_describe(void *self, gn_device_info *out) {
    (void)self;
    memset(out, 0, sizeof *out);
    gn__copy_text(out->name, sizeof out->name, "null");
    gn__copy_text(out->identity, sizeof out->identity, "null");
}

static const gn_exec_i gn__null_i = { gn__null_close, gn__null_slot_put, gn__null_slot_drop, gn__null_plan_make, gn__null_plan_destroy,
                                      gn__null_submit, gn__null_wait, gn__null_values_release, gn__null_describe, NULL, NULL };

/* ---- cpu ---- */

typedef struct gn__cpu_slot { gn__type type; char *mem; uint32_t gen; uint8_t kind; bool owned; } gn__cpu_slot;
typedef struct gn__cpu_value { uint64_t id; gn__type type; char *mem; } gn__cpu_value;

typedef struct gn__cpu {
    gn__pool pool;
    gn_stats *stats;
    uint64_t limit, held;          /* bytes of slots, values and blocks */
    char *block;                   /* one for all plans: runs do not overlap */
    size_t block_bytes;
    GN__ARRAY(gn__cpu_slot, slots);
    GN__ARRAY(gn__cpu_value, values);   /* ids rising */
} gn__cpu;

typedef struct gn__cpu_plan {
    gn_part *part;
    gn_layout layout;
    char **base;                   /* per node, of this run */
    char **fresh;                  /* per update: memory of the new version; kept from run to run */
} gn__cpu_plan;

static size_t gn__room(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Memory that counts against the limit. */
static char *gn__cpu_take(gn__cpu *c, size_t bytes, bool zero, gn_fault *f) {
    bytes = gn__room(bytes);
    if (c->limit && c->held + bytes > c->limit) {
        gn_fail(f, GN_LIMIT, "%llu bytes more than the %llu that this session may hold", (unsigned long long)(c->held + bytes - c->limit), (unsigned long long)c->limit);
        return NULL;
    }
    char *raw = bytes < SIZE_MAX - 128 ? (char *)gn_alloc(bytes + 64 + sizeof raw) : NULL;   /* lines of caches, the block's start just below */
    char *p = raw ? (char *)(((uintptr_t)raw + sizeof raw + 63) & ~(uintptr_t)63) : NULL;
    if (p) memcpy(p - sizeof raw, &raw, sizeof raw);
    if (p && zero) memset(p, 0, bytes);
    if (!p) { gn_fail(f, GN_OUT_OF_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes); return NULL; }
    c->held += bytes;
    c->stats->device_bytes += bytes;
    return p;
}

static void gn__cpu_give(gn__cpu *c, char *p, size_t bytes) {
    if (!p) return;
    c->held -= gn__room(bytes);
    c->stats->device_bytes -= gn__room(bytes);
    memcpy(&p, p - sizeof p, sizeof p);
    gn_free(p);
}

static void gn__cpu_slot_free(gn__cpu *c, gn__cpu_slot *s) {
    if (s->owned) gn__cpu_give(c, s->mem, gn__type_bytes(&s->type));
    memset(s, 0, sizeof *s);
}

static void gn__cpu_values_release(void *self, uint64_t below) {
    gn__cpu *c = (gn__cpu *)self;
    size_t n = 0;
    while (n < c->n_values && c->values[n].id < below) {
        gn__cpu_give(c, c->values[n].mem, gn__type_bytes(&c->values[n].type));
        n++;
    }
    if (n) memmove(c->values, c->values + n, (c->n_values - n) * sizeof *c->values);
    c->n_values -= n;
}

static void gn__cpu_close(void *self) {
    gn__cpu *c = (gn__cpu *)self;
    gn__cpu_values_release(c, UINT64_MAX);
    for (size_t i = 0; i < c->n_slots; i++) gn__cpu_slot_free(c, &c->slots[i]);
    gn__cpu_give(c, c->block, c->block_bytes);
    gn_free(c->slots);
    gn_free(c->values);
    gn__pool_deinit(&c->pool);
    gn_free(c);
}

enum { GN__SLOTS_MAX = 1 << 20 };

static gn_result gn__cpu_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) {
    gn__cpu *c = (gn__cpu *)self;
    if (d->slot >= GN__SLOTS_MAX) return gn_fail(f, GN_LIMIT, "slot %u is past the %d that are possible", d->slot, GN__SLOTS_MAX);
    size_t old = c->cap_slots;
    if (!GN__GROW(c, slots, GN__MAX(d->slot + 1, c->n_slots) - c->n_slots)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for slot %u", d->slot);
    if (c->cap_slots > old) memset(c->slots + old, 0, (c->cap_slots - old) * sizeof *c->slots);
    c->n_slots = GN__MAX(c->n_slots, (size_t)d->slot + 1);
    gn__cpu_slot *s = &c->slots[d->slot];
    gn__cpu_slot_free(c, s);
    gn__type t = { d->dtype, d->shape };
    char *mem = (char *)(uintptr_t)d->host;
    bool aligned = ((uintptr_t)d->host & (gn__bytes_of(d->dtype) - 1)) == 0;
    if (d->kind == GN_LEAF_STATE || !aligned) {
        mem = gn__cpu_take(c, gn__type_bytes(&t), d->host == NULL, f);
        if (!mem) return f ? f->result : GN_OUT_OF_MEMORY;
        if (d->host) memcpy(mem, d->host, gn__type_bytes(&t));
    }
    *s = (gn__cpu_slot){ t, mem, d->gen, (uint8_t)d->kind, d->kind == GN_LEAF_STATE || !aligned };
    return GN_OK;
}

static gn_result gn__cpu_slot_drop(void *self, uint32_t slot, uint32_t gen) {
    gn__cpu *c = (gn__cpu *)self;
    if (slot >= c->n_slots || !c->slots[slot].kind || c->slots[slot].gen != gen) return GN_STALE_HANDLE;
    gn__cpu_slot_free(c, &c->slots[slot]);
    return GN_OK;
}

static void gn__cpu_plan_destroy(void *self, void *plan) {
    gn__cpu *c = (gn__cpu *)self;
    gn__cpu_plan *p = (gn__cpu_plan *)plan;
    for (uint32_t i = 0; p->fresh && i < p->part->n_updates; i++) {
        gn__type t = gn__part_type(p->part, p->part->updates[i].node);
        gn__cpu_give(c, p->fresh[i], gn__type_bytes(&t));
    }
    gn__layout_deinit(&p->layout);
    gn_free(p->base);
    gn_free(p->fresh);
    gn_free(p->part);
    gn_free(p);
}

static gn_result gn__cpu_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    gn__cpu *c = (gn__cpu *)self;
    gn__cpu_plan *p = (gn__cpu_plan *)gn__alloc_zero(sizeof *p);
    *out_plan = NULL;
    if (!p) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    p->part = gn__part_copy(part);
    if (!p->part) { gn_free(p); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan"); }
    p->base = (char **)gn__alloc_zero((part->n_nodes + 1) * sizeof *p->base);
    p->fresh = (char **)gn__alloc_zero((part->n_updates + 1) * sizeof *p->fresh);
    gn_result r = p->base && p->fresh ? gn__layout_make(p->part, &p->layout, f) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    if (r != GN_OK) { gn__cpu_plan_destroy(c, p); return r; }
    c->stats->view_copies += p->layout.view_copies;
    *out_plan = p;
    return GN_OK;
}

/* ---- a run ---- */

typedef struct gn__undo { gn_view rows; char *saved; } gn__undo;   /* saved: dense */

typedef struct gn__run {
    gn__cpu *cpu;
    gn__cpu_plan *plan;
    const gn_arg *args;
    gn_fault *fault;
    char **copies;                 /* arguments that were not aligned, copied */
    uint32_t n_copies;
    GN__ARRAY(gn__undo, undos);    /* what in-place appends have overwritten */
} gn__run;

static gn__cpu_value *gn__cpu_value_find(gn__cpu *c, uint64_t id) {
    size_t lo = 0, hi = c->n_values;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c->values[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < c->n_values && c->values[lo].id == id ? &c->values[lo] : NULL;
}

static gn_result gn__run_fail(gn__run *r, uint32_t node, gn_result result, const char *text) {
    gn_fail(r->fault, result, "%s", text);
    if (r->fault) r->fault->node = node;
    return result;
}

/* Where an argument's bytes are; memory that is not aligned for its dtype is copied. */
static gn_result gn__run_arg(gn__run *r, uint32_t node) {
    const gn_part_node *n = &r->plan->part->nodes[node];
    const gn_arg *a = &r->args[n->arg];
    gn__type t = gn__part_type(r->plan->part, node);
    if (n->leaf == GN_LEAF_VALUE) {
        gn__cpu_value *v = gn__cpu_value_find(r->cpu, a->value);
        if (!v || !gn__type_equal(&v->type, &t)) return gn__run_fail(r, node, GN_STALE_HANDLE, "a kept value is gone or of another type");
        r->plan->base[node] = v->mem;
        return GN_OK;
    }
    if (a->bytes != gn__type_bytes(&t)) return gn__run_fail(r, node, GN_BAD_SIZE, "an argument has the wrong number of bytes");
    r->plan->base[node] = (char *)(uintptr_t)a->host;
    if (((uintptr_t)a->host & (gn__bytes_of(t.dtype) - 1)) == 0) return GN_OK;
    char *copy = (char *)gn_alloc(a->bytes);
    if (!copy) return gn__run_fail(r, node, GN_OUT_OF_MEMORY, "no memory to align an argument");
    memcpy(copy, a->host, a->bytes);
    r->copies[r->n_copies++] = r->plan->base[node] = copy;
    return GN_OK;
}

static gn_result gn__run_slot(gn__run *r, uint32_t node, uint32_t slot, uint32_t gen, gn_leaf_kind kind, char **out_mem) {
    gn__cpu *c = r->cpu;
    gn__type t = gn__part_type(r->plan->part, node);
    gn__cpu_slot *s = slot < c->n_slots ? &c->slots[slot] : NULL;
    if (!s || s->kind != (uint8_t)kind || s->gen != gen || !gn__type_equal(&s->type, &t))
        return gn__run_fail(r, node, GN_STALE_HANDLE, "a weight or state is gone or of another type");
    if (out_mem) *out_mem = s->mem;
    return GN_OK;
}

/* Resolves every base to memory. */
static gn_result gn__run_bind(gn__run *r) {
    const gn_part *p = r->plan->part;
    gn_layout *l = &r->plan->layout;
    gn__cpu *c = r->cpu;
    if (l->block_bytes > c->block_bytes) {
        char *block = gn__cpu_take(c, l->block_bytes, false, r->fault);
        if (!block) return r->fault ? r->fault->result : GN_OUT_OF_MEMORY;
        gn__cpu_give(c, c->block, c->block_bytes);
        c->block = block;
        c->block_bytes = l->block_bytes;
    }
    for (uint32_t u = 0; u < p->n_updates; u++) {
        gn_result e = gn__run_slot(r, p->updates[u].node, p->updates[u].slot, p->updates[u].gen, GN_LEAF_STATE, NULL);
        if (e != GN_OK) return e;
        gn__type t = gn__part_type(p, p->updates[u].node);
        if (l->update_how[u] == GN_UPDATE_INPLACE || r->plan->fresh[u]) continue;
        r->plan->fresh[u] = gn__cpu_take(c, gn__type_bytes(&t), false, r->fault);
        if (!r->plan->fresh[u]) return r->fault ? r->fault->result : GN_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        gn_lay *a = &l->lay[i];
        gn_result e = GN_OK;
        if (a->place == GN_PLACE_ARG) e = gn__run_arg(r, i);
        else if (a->place == GN_PLACE_SLOT) e = gn__run_slot(r, i, n->slot, n->gen, (gn_leaf_kind)n->leaf, &r->plan->base[i]);
        else if (a->place == GN_PLACE_BLOCK) r->plan->base[i] = c->block + a->offset;
        else if (a->place == GN_PLACE_OWN) r->plan->base[i] = r->plan->fresh[a->own];
        else if (a->place == GN_PLACE_INPLACE) r->plan->base[i] = r->plan->base[a->own];
        if (e != GN_OK) return e;
    }
    return GN_OK;
}

static gn_view gn__run_view(const gn__run *r, uint32_t node) {
    const gn_lay *a = &r->plan->layout.lay[node];
    gn_view v = a->view;
    v.p = r->plan->base[a->base];
    v = gn__view_bound(&v);
    return v;
}

/* Results are computed where they are wanted, unless that is memory that an argument still holds or that is not aligned. */
static void gn__run_place_outs(gn__run *r, const gn_out *outs) {
    const gn_part *p = r->plan->part;
    for (uint32_t i = 0; i < p->n_outs; i++) {
        const gn_lay *a = &r->plan->layout.lay[p->outs[i]];
        gn__type t = gn__part_type(p, p->outs[i]);
        const char *host = (const char *)outs[i].host;
        bool usable = host && a->place == GN_PLACE_BLOCK && outs[i].bytes == gn__type_bytes(&t) && ((uintptr_t)host & (gn__bytes_of(t.dtype) - 1)) == 0;
        for (uint32_t k = 0; k < p->n_args && usable; k++) {
            const gn_arg *arg = &r->args[k];
            if (arg->host) usable = (uintptr_t)host + outs[i].bytes <= (uintptr_t)arg->host || (uintptr_t)arg->host + arg->bytes <= (uintptr_t)host;
        }
        if (usable) r->plan->base[p->outs[i]] = (char *)outs[i].host;
    }
}

GN__COLD_END

/* ---- loops: a tile of each register at a time ---- */

enum { GN__TILE_N = 1024 };

typedef struct gn__loop {
    gn__run *run;
    const gn_kernel_step *step;
    gn_view out;
    bool streams;                  /* the result is larger than caches: it is written past them */
    int64_t failed_at;             /* first tile that failed, INT64_MAX: none; under the pool's lock, as the next two */
    gn_result failed;
    uint32_t node;                 /* of the failure */
} gn__loop;

/* The failure of the smallest tile is the one reported, whatever the number of threads. */
static void gn__loop_fail(gn__loop *j, int64_t tile, gn_result r, uint32_t node) {
    gn__pool *p = &j->run->cpu->pool;
    gn__mutex_lock(&p->lock);
    if (tile < j->failed_at) { j->failed_at = tile; j->failed = r; j->node = node; }
    gn__mutex_unlock(&p->lock);
}

/* Elements [at, at + n) in row-major order of a collapsed view, n <= GN__TILE_N, to a compute type; zeros up to a whole step. */
static void gn__load_flat(const gn_view *v, const char *p, int64_t at, int64_t n, void *dst) {
    uint8_t compute = gn__dtypes[v->dtype].compute;
    int64_t bytes = (int64_t)gn__bytes_of(v->dtype), width = compute == GN__F64 || compute == GN__I64 ? 8 : 4;
    int last = v->rank - 1;
    int64_t inner = v->rank ? v->dims[last] : INT64_MAX, stride = v->rank ? v->strides[last] : 0;
    for (int64_t done = 0; done < n;) {
        int64_t row = (at + done) / inner, col = (at + done) % inner, m = GN__MIN(n - done, inner - col);
        const char *s = p + ((v->rank > 1 ? gn__view_offset(v, last, row) : 0) + col * stride) * bytes;
        char *d = (char *)dst + done * width;
        if (compute == GN__F32) gn__load_f32((float *)(void *)d, v->dtype, s, stride, m);
        else if (compute == GN__F64) gn__load_f64((double *)(void *)d, v->dtype, s, stride, m);
        else if (compute == GN__I32) gn__load_i32((int32_t *)(void *)d, v->dtype, s, stride, m);
        else gn__load_i64((int64_t *)(void *)d, v->dtype, s, stride, m);
        done += m;
    }
    memset((char *)dst + n * width, 0, (size_t)((-n & (GN__TILE_STEP - 1)) * width));
}

static void gn__fill_tile(void *dst, gn_dtype d, double value, int64_t n) {
    int64_t w = gn__f64_int(value, d);
    float rounded = d == GN_F16 ? gn__f16_f32(gn__f32_f16(gn__f64_f32_odd(value))) : d == GN_BF16 ? gn__bf16_f32(gn__f32_bf16(gn__f64_f32_odd(value))) : (float)value;
    for (int64_t i = 0; i < n; i++) switch (gn__dtypes[d].compute) {
        case GN__F32: ((float *)dst)[i] = rounded; break;
        case GN__F64: ((double *)dst)[i] = value; break;
        case GN__I32: ((int32_t *)dst)[i] = (int32_t)w; break;
        default: ((int64_t *)dst)[i] = w; break;
    }
}

static void gn__store_tile(const gn_view *out, int64_t at, int64_t n, const void *src) {
    char *p = out->p + at * (int64_t)gn__bytes_of(out->dtype);
    switch (gn__dtypes[out->dtype].compute) {
    case GN__F32: gn__store_f32((const float *)src, out->dtype, p, 1, n); break;
    case GN__F64: gn__store_f64((const double *)src, out->dtype, p, 1, n); break;
    case GN__I32: gn__store_i32((const int32_t *)src, out->dtype, p, 1, n); break;
    default: gn__store_i64((const int64_t *)src, out->dtype, p, 1, n); break;
    }
}

static bool gn__tile_has_zero(const void *x, uint8_t compute, int64_t n) {
    bool zero = false;
    for (int64_t i = 0; i < n; i++) zero |= compute == GN__I32 ? ((const int32_t *)x)[i] == 0 : ((const int64_t *)x)[i] == 0;
    return zero;
}

/* Ints that are narrower than what they are computed in, brought back into their range. */
static void gn__tile_wrap(void *y, gn_dtype d, int64_t n) {
    int32_t *w = (int32_t *)y;
    int64_t *l = (int64_t *)y;
    switch (d) {
    case GN_U8: for (int64_t i = 0; i < n; i++) w[i] &= 0xff; break;
    case GN_U16: for (int64_t i = 0; i < n; i++) w[i] &= 0xffff; break;
    case GN_I8: for (int64_t i = 0; i < n; i++) w[i] = (int8_t)(uint8_t)(uint32_t)w[i]; break;
    case GN_I16: for (int64_t i = 0; i < n; i++) w[i] = (int16_t)(uint16_t)(uint32_t)w[i]; break;
    case GN_U32: for (int64_t i = 0; i < n; i++) l[i] &= 0xffffffff; break;
    case GN_BOOL: for (int64_t i = 0; i < n; i++) w[i] = w[i] != 0; break;
    default: break;
    }
}

/* One instruction on the n elements of a tile and what is behind them up to a whole step. Narrow integers are wrapped after each
 * op, floats are not rounded before the loop's edge. */
static gn_result gn__loop_instr(const gn_instr *in, gn__isa isa, void *y, const void *const *x, int64_t n) {
    uint8_t compute = gn__dtypes[in->in_dtype].compute;
    gn_dtype d = (gn_dtype)in->out_dtype;
    int64_t whole = (n + GN__TILE_STEP - 1) & ~(int64_t)(GN__TILE_STEP - 1);
    if (in->op == GN__OP_CAST) { gn__tile_cast(y, d, x[0], (gn_dtype)in->in_dtype, whole); return GN_OK; }
    if (gn__op_divides(in->op) && compute >= GN__I32 && gn__tile_has_zero(x[1], compute, n)) return GN_DIVISION_BY_ZERO;
    if (in->op == GN__OP_WHERE) {
        static const gn__tile_fn where[GN__COMPUTE__COUNT] = { gn__tile_WHERE_f32, gn__tile_WHERE_f64, gn__tile_WHERE_i32, gn__tile_WHERE_i64 };
        where[compute](y, x, in->p, whole);
    } else (compute == GN__F32 ? gn__ops[in->op].wide[isa] : gn__ops[in->op].tile[compute])(y, x, in->p, whole);
    gn__tile_wrap(y, d, whole);
    return GN_OK;
}

/* The bytes after a tile's are fetched while it is worked on: the hardware's own prefetch ends with each page. */
static void gn__prefetch(const char *p, int64_t bytes) {
#if defined(__GNUC__) || defined(__clang__)
    for (int64_t i = bytes; i < 2 * bytes; i += 64) __builtin_prefetch(p + i);
#else
    (void)p; (void)bytes;
#endif
}

enum { GN__STREAM_BYTES = 16 << 20 };

/* Copies a tile to memory (64-byte aligned) without reading that memory into the cache first. */
#if GN__X86
#if defined(__clang__)
#define GN__STREAM_ONE(S, to, v) __builtin_nontemporal_store(v, to)
#else
#define GN__STREAM_ONE(S, to, v) __builtin_ia32_movntps##S((float *)(to), v)
#endif
#define GN__DEFINE_STREAM(name, attribute, W, S)                                                             \
    attribute static void name(char *to, const char *from, int64_t bytes) {                                  \
        typedef float vec __attribute__((vector_size(W), may_alias));                                        \
        typedef float loose __attribute__((vector_size(W), may_alias, aligned(4)));                          \
        int64_t i = 0;                                                                                       \
        for (; i + W <= bytes; i += W) GN__STREAM_ONE(S, (vec *)(void *)(to + i), (vec)*(const loose *)(const void *)(from + i)); \
        memcpy(to + i, from + i, (size_t)(bytes - i));                                                       \
    }
GN__DEFINE_STREAM(gn__stream_base, , 16, )
GN__DEFINE_STREAM(gn__stream_avx2, GN__TARGET_AVX2, 32, 256)
GN__DEFINE_STREAM(gn__stream_avx512, GN__TARGET_AVX512, 64, 512)
#endif

static void gn__stream(gn__isa isa, char *to, const char *from, int64_t bytes) {
#if GN__X86
    if (isa == GN__ISA_AVX512) gn__stream_avx512(to, from, bytes);
    else if (isa == GN__ISA_AVX2) gn__stream_avx2(to, from, bytes);
    else gn__stream_base(to, from, bytes);
#else
    (void)isa;
    memcpy(to, from, (size_t)bytes);
#endif
}

/* Memory that can be used in place of a register: n elements of the compute type in a row. NULL: they have to be fetched. */
static char *gn__flat_place(const gn_view *v, char *p, int64_t at, int64_t n) {
    int last = v->rank - 1;
    if (gn__dtypes[v->dtype].narrow || v->rank == 0 || v->strides[last] != 1 || n % GN__TILE_STEP) return NULL;
    int64_t row = at / v->dims[last], col = at % v->dims[last];
    if (col + n > v->dims[last]) return NULL;
    return p + ((v->rank > 1 ? gn__view_offset(v, last, row) : 0) + col) * (int64_t)gn__bytes_of(v->dtype);
}

/* Constants, and inputs of one element, are filled in once for all tiles. */
static void gn__loop_fill(const gn__loop *j, char *const *own) {
    const gn_layout *l = &j->run->plan->layout;
    for (uint32_t i = 0; i < j->step->n_loads; i++) {
        const gn_load *d = &l->loads[j->step->load + i];
        if (d->constant) gn__fill_tile(own[d->reg], (gn_dtype)d->dtype, d->value, GN__TILE_N);
        else if (gn__view_is_one(&d->view)) gn__load_flat(&d->view, j->run->plan->base[d->base] + d->view.offset, 0, GN__MIN(gn__view_count(&j->out), (int64_t)GN__TILE_N), own[d->reg]);
    }
}

/* One tile; `now` holds where each register is during it: in its own memory, or where the tensor lies. */
static gn_result gn__loop_tile(const gn__loop *j, char *const *own, char **now, int64_t at, int64_t n, uint32_t *out_node) {
    const gn_layout *l = &j->run->plan->layout;
    const gn_kernel_step *s = j->step;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *d = &l->loads[s->load + i];
        char *from = d->constant ? NULL : j->run->plan->base[d->base] + d->view.offset;
        char *place = d->constant ? NULL : gn__flat_place(&d->view, from, at, n);
        now[d->reg] = place ? place : own[d->reg];
        if (place) gn__prefetch(place, n * (int64_t)gn__bytes_of((gn_dtype)d->dtype));
        if (!place && !d->constant && !gn__view_is_one(&d->view)) gn__load_flat(&d->view, from, at, n, own[d->reg]);
    }
    for (uint32_t i = 0; i < s->n_instrs; i++) {
        const gn_instr *in = &l->instrs[s->instr + i];
        const void *x[3] = { now[in->src[0]], now[in->src[1]], now[in->src[2]] };
        bool ends = i + 1 == s->n_instrs && !gn__dtypes[j->out.dtype].narrow && !j->streams && n % GN__TILE_STEP == 0;
        now[in->dst] = ends ? j->out.p + at * (int64_t)gn__bytes_of(j->out.dtype) : own[in->dst];
        gn_result r = gn__loop_instr(in, j->run->cpu->pool.isa, now[in->dst], x, n);
        if (r != GN_OK) { *out_node = in->node; return r; }
        if (ends) return GN_OK;
    }
    if (j->streams) gn__stream(j->run->cpu->pool.isa, j->out.p + at * (int64_t)gn__bytes_of(j->out.dtype), now[s->out], n * (int64_t)gn__bytes_of(j->out.dtype));
    else gn__store_tile(&j->out, at, n, now[s->out]);
    return GN_OK;
}

static void gn__loop_tiles(gn__loop *j, char *regs, int64_t begin, int64_t end) {
    char **own = (char **)(void *)(regs + (size_t)j->step->regs * GN__TILE_N * 8), **now = own + j->step->regs;
    int64_t total = gn__view_count(&j->out);
    uint32_t node = GN_NO_NODE;
    for (uint32_t i = 0; i < j->step->regs; i++) own[i] = regs + (size_t)i * GN__TILE_N * 8;
    gn__loop_fill(j, own);
    for (int64_t t = begin; t < end; t++) {
        int64_t at = t * GN__TILE_N, n = GN__MIN(total - at, (int64_t)GN__TILE_N);
        gn_result r = gn__loop_tile(j, own, now, at, n, &node);
        if (r != GN_OK) { gn__loop_fail(j, t, r, node); break; }
    }
#if GN__X86
    if (j->streams) __builtin_ia32_sfence();
#endif
}

static void gn__loop_range(void *arg, int64_t begin, int64_t end) {
    gn__loop *j = (gn__loop *)arg;
    char *regs = (char *)gn_alloc((size_t)j->step->regs * (GN__TILE_N * 8 + 2 * sizeof(char *)));
    if (!regs) { gn__loop_fail(j, begin, GN_OUT_OF_MEMORY, j->step->node); return; }
    gn__loop_tiles(j, regs, begin, end);
    gn_free(regs);
}

static gn_result gn__run_loop(gn__run *r, const gn_kernel_step *s) {
    gn__loop j = { r, s, gn__run_view(r, s->node), false, INT64_MAX, GN_OK, GN_NO_NODE };
    int64_t tiles = (gn__view_count(&j.out) + GN__TILE_N - 1) / GN__TILE_N;
    j.streams = GN__X86 && !gn__dtypes[j.out.dtype].narrow && ((uintptr_t)j.out.p & 63) == 0 && gn__view_count(&j.out) * (int64_t)gn__bytes_of(j.out.dtype) >= GN__STREAM_BYTES;
    gn__pool_for(&r->cpu->pool, tiles, 16, gn__loop_range, &j);
    if (j.failed == GN_DIVISION_BY_ZERO) return gn__run_fail(r, j.node, j.failed, "an integer divisor is 0");
    return j.failed ? gn__run_fail(r, j.node, j.failed, "no memory for the tiles of a loop") : GN_OK;
}

GN__COLD_BEGIN

/* The rows that an append in place will overwrite are kept until the run has ended well. */
static gn_result gn__run_save(gn__run *r, const gn__call *c) {
    int64_t pos = gn__read_int(c->in[2].dtype, c->in[2].p), T = c->in[1].dims[2];
    if (pos < 0 || pos > c->out.dims[2] - T) return GN_OK;      /* the kernel will refuse it */
    gn_view rows = c->out, saved = c->in[1];
    int64_t bytes = (int64_t)gn__bytes_of(rows.dtype);
    rows.dims[2] = T;
    rows.p += pos * rows.strides[2] * bytes;
    gn__type t = { rows.dtype, { 4, { rows.dims[0], rows.dims[1], T, rows.dims[3] } } };
    char *mem = (char *)gn_alloc((size_t)(gn__view_count(&saved) * bytes));
    if (!mem || !GN__GROW(r, undos, 1)) { gn_free(mem); return gn_fail(r->fault, GN_OUT_OF_MEMORY, "no memory for an append"); }
    saved = gn__view_dense(&t, mem);
    gn__copy_view(&saved, &rows);
    r->undos[r->n_undos++] = (gn__undo){ rows, mem };
    return GN_OK;
}

static void gn__run_undo(gn__run *r, bool restore) {
    for (size_t i = r->n_undos; i-- > 0;) {
        gn__undo *u = &r->undos[i];
        gn__type t = { u->rows.dtype, { 4, { u->rows.dims[0], u->rows.dims[1], u->rows.dims[2], u->rows.dims[3] } } };
        gn_view saved = gn__view_dense(&t, u->saved);
        if (restore) gn__copy_view(&u->rows, &saved);
        gn_free(u->saved);
    }
    gn_free(r->undos);
}

static gn_result gn__run_kernel(gn__run *r, const gn_kernel_step *s) {
    const gn_part *p = r->plan->part;
    const gn_part_node *n = &p->nodes[s->node];
    gn_view in[GN__MAX_INPUTS];
    if (s->n_instrs) return gn__run_loop(r, s);
    for (uint32_t i = 0; i < n->n_ins; i++) in[i] = gn__run_view(r, p->ins[n->ins + i]);
    gn__call c = { in, (int)n->n_ins, gn__run_view(r, s->node), p->attrs + n->attrs, n->n_attrs, &r->cpu->pool, r->fault };
    gn_result e = r->plan->layout.lay[s->node].place == GN_PLACE_INPLACE ? gn__run_save(r, &c) : GN_OK;
    if (e == GN_OK) e = gn__ops[n->op].cpu(&c);
    if (e != GN_OK && r->fault) r->fault->node = s->node;
    return e;
}

static gn_result gn__run_outs(gn__run *r, const gn_out *outs) {
    const gn_part *p = r->plan->part;
    gn__cpu *c = r->cpu;
    size_t kept = c->n_values;
    for (uint32_t i = 0; i < p->n_outs; i++) {
        gn__type t = gn__part_type(p, p->outs[i]);
        gn_view from = gn__run_view(r, p->outs[i]), to = gn__view_dense(&t, outs[i].host);
        if (outs[i].host && outs[i].bytes != gn__type_bytes(&t)) return gn__run_fail(r, p->outs[i], GN_BAD_SIZE, "an output has the wrong number of bytes");
        if (outs[i].host && from.p != to.p) gn__copy_view(&to, &from);
        if (!outs[i].keep) continue;
        if ((c->n_values && outs[i].keep <= c->values[c->n_values - 1].id) || !GN__GROW(c, values, 1)) { kept = SIZE_MAX; break; }
        char *mem = gn__cpu_take(c, gn__type_bytes(&t), false, r->fault);
        if (!mem) { while (c->n_values > kept) { c->n_values--; gn__cpu_give(c, c->values[c->n_values].mem, gn__type_bytes(&c->values[c->n_values].type)); } return r->fault ? r->fault->result : GN_OUT_OF_MEMORY; }
        to.p = mem;
        gn__copy_view(&to, &from);
        c->values[c->n_values++] = (gn__cpu_value){ outs[i].keep, t, mem };
    }
    return kept == SIZE_MAX ? gn__run_fail(r, GN_NO_NODE, GN_BAD_ARGUMENT, "ids of kept values must rise") : GN_OK;
}

/* New versions become the states' values: first every copy is made, then all are exchanged, so that none sees another's. */
static void gn__run_commit(gn__run *r) {
    const gn_part *p = r->plan->part;
    const gn_layout *l = &r->plan->layout;
    for (uint32_t u = 0; u < p->n_updates; u++) {
        if (l->update_how[u] != GN_UPDATE_COPY) continue;
        gn__type t = gn__part_type(p, p->updates[u].node);
        gn_view from = gn__run_view(r, p->updates[u].node), to = gn__view_dense(&t, r->plan->fresh[u]);
        gn__copy_view(&to, &from);
    }
    for (uint32_t u = 0; u < p->n_updates; u++) {
        if (l->update_how[u] == GN_UPDATE_INPLACE) continue;
        gn__cpu_slot *s = &r->cpu->slots[p->updates[u].slot];
        char *old = s->mem;
        s->mem = r->plan->fresh[u];
        r->plan->fresh[u] = old;
    }
    r->cpu->stats->state_copies += l->state_copies;
    r->cpu->stats->state_copy_bytes += l->state_copy_bytes;
}

static gn_result gn__cpu_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket, gn_fault *f) {
    gn__cpu *c = (gn__cpu *)self;
    gn__cpu_plan *p = (gn__cpu_plan *)plan;
    gn_fault local;
    gn__run r = { .cpu = c, .plan = p, .args = args, .fault = f ? f : &local };
    *out_ticket = 1;
    r.copies = (char **)gn_alloc((p->part->n_args + 1) * sizeof *r.copies);
    gn_result e = r.copies ? gn__run_bind(&r) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a run");
    if (e == GN_OK) gn__run_place_outs(&r, outs);
    for (size_t i = 0; i < p->layout.n_steps && e == GN_OK; i++) e = gn__run_kernel(&r, &p->layout.steps[i]);
    if (e == GN_OK) e = gn__run_outs(&r, outs);
    if (e == GN_OK) gn__run_commit(&r);
    gn__run_undo(&r, e != GN_OK);
    c->stats->kernels_run += p->layout.n_steps;
    c->stats->nodes_fused += p->layout.fused;
    for (uint32_t i = 0; i < r.n_copies; i++) gn_free(r.copies[i]);
    gn_free(r.copies);
    return e;
}

static gn_result gn__cpu_wait(void *self, uint64_t ticket, gn_fault *f) { (void)self; (void)ticket; (void)f; return GN_OK; }

/* What decides the bits of a result: this build, the instruction path, the C library's mathematics. */
static void gn__cpu_describe(void *self, gn_device_info *out) {
    memset(out, 0, sizeof *out);
    gn__copy_text(out->name, sizeof out->name, "cpu:0");
#if defined(__GLIBC__)
    extern const char *gnu_get_libc_version(void);
    const char *libm = gnu_get_libc_version();
#else
    const char *libm = "system";
#endif
    int n = snprintf(out->identity, sizeof out->identity, "cpu genie " GN_VERSION " isa %s libm %s compiler ", gn__isa_names[((const gn__cpu *)self)->pool.isa], libm);
#if defined(__VERSION__)
    if (n > 0 && (size_t)n < sizeof out->identity) gn__copy_text(out->identity + n, sizeof out->identity - (size_t)n, __VERSION__);
#else
    (void)n;
#endif
}

static const gn_exec_i gn__cpu_i = { gn__cpu_close, gn__cpu_slot_put, gn__cpu_slot_drop, gn__cpu_plan_make, gn__cpu_plan_destroy,
                                     gn__cpu_submit, gn__cpu_wait, gn__cpu_values_release, gn__cpu_describe, NULL, NULL };

static uint32_t gn__thread_count(uint32_t wanted) {
    const char *env = getenv("GENIE_THREADS");
    long n = wanted ? (long)wanted : env ? strtol(env, NULL, 10) : 0;
    return n > 0 && n <= 1024 ? (uint32_t)n : gn__core_count();
}

static gn_result gn__cpu_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn__cpu *c = (gn__cpu *)gn__alloc_zero(sizeof *c);
    if (!c || !gn__pool_init(&c->pool, gn__thread_count(d->threads))) { gn_free(c); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the CPU executor"); }
    c->stats = d->stats;
    c->limit = d->memory_limit;
    *out = (gn_exec){ &gn__cpu_i, c };
    return GN_OK;
}

static gn_result gn__null_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn__null *n = (gn__null *)gn__alloc_zero(sizeof *n);
    if (!n) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the null executor");
    n->stats = d->stats;
    *out = (gn_exec){ &gn__null_i, n };
    return GN_OK;
}

/* A local device by name: "cpu", "cpu:0", "null", or what a registered driver serves. */
static gn_result gn__exec_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    size_t n = gn__driver ? strlen(gn__driver->prefix) : 0;
    if (strcmp(d->device, "cpu") == 0 || strcmp(d->device, "cpu:0") == 0) return gn__cpu_open(d, out, f);
    if (strcmp(d->device, "null") == 0) return gn__null_open(d, out, f);
    if (n && strncmp(d->device, gn__driver->prefix, n) == 0 && (d->device[n] == ':' || !d->device[n])) return gn__driver->open(d, out, f);
    return gn_fail(f, GN_NO_DEVICE, "there is no device '%.60s' in this program: 'cpu', 'null' or the URL of a server is possible", d->device);
}

/* >>session ========================================================================================
 * The two ends of protocol 1 over a transport. The client's end is an executor like any other; the server's end puts the
 * protocol in front of a local executor. */

#define GN__DEADLINE_MS 30000u
#define GN__SLICE_MS 100u                   /* how often a waiting server looks whether it is to stop */
#define GN__LINGER_MS 100u                  /* how long a refused peer may take to read why */
#define GN__IN_FLIGHT 64u                   /* steps that a client leaves unanswered */
#define GN__OWED_MAX (32u << 10)            /* bytes of answers outstanding while a client sends: fits any socket's buffer */

/* ---- link: messages over a transport ---- */

typedef struct gn__link {
    gn_transport t;
    gn__inbox in;
    gn__outbox out;
    uint32_t deadline_ms, codecs;
    gn_stats *stats;
    uint64_t frames_up, frames_down;        /* of the boxes, counted so far */
    gn_link_info info;                      /* its bytes are counted so far */
    gn__buf scratch;                        /* of the packer */
} gn__link;

static gn_result gn__link_send(void *user, const uint8_t *p, size_t n) {
    gn__link *l = (gn__link *)user;
    return l->t.i->send(l->t.self, p, n, l->deadline_ms);
}

static void gn__link_init(gn__link *l, gn_transport t, uint32_t deadline_ms, gn_stats *stats) {
    memset(l, 0, sizeof *l);
    l->t = t;
    l->deadline_ms = deadline_ms;
    l->stats = stats;
    l->codecs = 1;
    l->in.frame_max = GN__HELLO_MAX;
    l->in.limit = GN__HELLO_MAX;
    l->out.sink = gn__link_send;
    l->out.user = l;
}

/* Closes the transport too. */
static void gn__link_deinit(gn__link *l) {
    if (l->t.i) l->t.i->close(l->t.self);
    gn__inbox_deinit(&l->in);
    gn__outbox_deinit(&l->out);
    gn__buf_deinit(&l->scratch);
    memset(l, 0, sizeof *l);
}

/* Brings the counters up to date. */
static void gn__link_count(gn__link *l) {
    gn_link_info now;
    memset(&now, 0, sizeof now);
    l->t.i->info(l->t.self, &now);
    l->stats->frames_up += l->out.frames - l->frames_up;
    l->stats->frames_down += l->in.frames - l->frames_down;
    l->stats->socket_bytes_up += now.bytes_up - l->info.bytes_up;
    l->stats->socket_bytes_down += now.bytes_down - l->info.bytes_down;
    l->frames_up = l->out.frames;
    l->frames_down = l->in.frames;
    l->info = now;
}

static gn_result gn__link_read(gn__link *l, uint32_t timeout_ms) {
    size_t room = 0, n = 0;
    uint8_t *p = gn__inbox_room(&l->in, &room);
    if (!p) return GN_OUT_OF_MEMORY;
    gn_result e = l->t.i->recv(l->t.self, p, room, &n, timeout_ms);
    if (!e) l->in.n += n;
    return e;
}

typedef struct gn__patience {
    uint32_t deadline_ms;   /* for the next whole frame */
    bool idle;              /* waits for ever while no message has begun */
    const gn__atomic *stop; /* NULL: none; non-zero: GN_CANCELLED */
} gn__patience;

/* The next message. *f is filled for what the peer did wrong and left alone for what the transport returned. */
static gn_result gn__link_receive(gn__link *l, const gn__patience *w, gn__msg *out, gn_fault *f) {
    uint64_t start = gn_now_us(), frames = l->in.frames;
    for (;;) {
        gn_result e = gn__inbox_next(&l->in, out, f);
        if (e || out->id) return e;
        uint64_t now = gn_now_us();
        if (l->in.frames != frames || (w->idle && !gn__inbox_unfinished(&l->in))) start = now;
        frames = l->in.frames;
        uint64_t spent = (now - start) / 1000;
        uint32_t left = spent < w->deadline_ms ? w->deadline_ms - (uint32_t)spent : 0;
        if (w->stop && gn__atomic_load(w->stop)) return gn_fail(f, GN_CANCELLED, "the server stops");
        e = gn__link_read(l, w->stop ? GN__MIN(left, GN__SLICE_MS) : left);
        if (e == GN_TIMEOUT && left == 0) return gn_fail(f, e, "no whole frame within %u ms", w->deadline_ms);
        if (e && e != GN_TIMEOUT) return gn_fail(f, e, "%s", gn__result_text(e));
    }
}

/* ---- ports: what crosses at each run of a plan ---- */

typedef struct gn__port { size_t bytes; uint8_t element; bool value, kv; } gn__port;
typedef struct gn__ports { uint32_t n_args, n_outs; gn__port *args, *outs; } gn__ports;   /* args is one block with outs */

static void gn__port_set(gn__port *p, const gn_part *part, uint32_t node) {
    gn__type t = gn__part_type(part, node);
    p->bytes = gn__type_bytes(&t);
    p->element = (uint8_t)gn__bytes_of(t.dtype);
    p->value = part->nodes[node].leaf == GN_LEAF_VALUE;
    p->kv = part->nodes[node].op == GN__OP_KV_APPEND;
}

static bool gn__ports_init(gn__ports *p, const gn_part *part) {
    memset(p, 0, sizeof *p);
    p->args = (gn__port *)gn__alloc_zero(((size_t)part->n_args + part->n_outs) * sizeof *p->args);
    if (!p->args) return false;
    p->n_args = part->n_args;
    p->n_outs = part->n_outs;
    p->outs = p->args + part->n_args;
    for (uint32_t i = 0; i < part->n_args; i++) gn__port_set(&p->args[i], part, part->args[i]);
    for (uint32_t i = 0; i < part->n_outs; i++) gn__port_set(&p->outs[i], part, part->outs[i]);
    for (uint32_t i = 0; i < part->n_nodes; i++) {   /* a cache given with each run */
        const gn_part_node *x = &part->nodes[i];
        if (x->op != GN__OP_KV_APPEND) continue;
        const gn_part_node *cache = &part->nodes[part->ins[x->ins]];
        if (cache->leaf == GN_LEAF_DATA) p->args[cache->arg].kv = true;
    }
    return true;
}

/* ---- client: the executor in front of a server ---- */

typedef struct gn__want { void *host; size_t bytes; uint8_t element; bool kv; } gn__want;

typedef struct gn__flight {   /* a step without an answer yet, or one behind it */
    uint64_t ticket, owed;    /* owed: bytes the answer may take */
    bool done;
    gn__want *wants;
    size_t n_wants, cap;
} gn__flight;

typedef struct gn__remote_weight { gn_slot_desc slot; uint8_t digest[32]; bool known; } gn__remote_weight;

typedef struct gn__remote {
    gn__link link;
    gn_stats *stats;
    uint64_t next;                     /* the next ticket; its low half is the request id */
    uint64_t answers;                  /* received; a request has at most one */
    uint64_t sequence, release, held, owed;
    uint32_t step_errors, seen;             /* steps that failed, and how many of them the program was told of */
    uint32_t next_plan, max_nodes, unread;   /* unread: requests sent since the last look at what has come */
    gn__flight flights[GN__IN_FLIGHT];
    uint32_t first, n_flights;
    gn__remote_weight *weights;        /* put but not sent: they go together, with one question */
    size_t n_weights, cap_weights;
    uint64_t asked;                    /* ticket of the open question, 0: none */
    uint8_t have[GN__WIRE_ASK / 8];
    uint8_t ops[GN__WIRE_OPS];
    size_t n_ops;
    char device[64], identity[192];
    gn__buf outs, keeps, part;         /* reused */
    bool lost, failed;
    gn_fault cause;                    /* lost: why */
    gn_fault error;                    /* failed: the first error not yet returned by wait, and its ticket */
    uint64_t error_ticket;
} gn__remote;

typedef struct gn__remote_plan { uint32_t id; gn__ports ports; } gn__remote_plan;

static gn_result gn__copy_fault(gn_fault *to, const gn_fault *from) {
    if (to) *to = *from;
    return from->result;
}

/* The first cause is kept: it is what every later call tells. */
static gn_result gn__remote_lose(gn__remote *r, const gn_fault *cause, gn_fault *f) {
    if (!r->lost) {
        r->lost = true;
        r->cause = *cause;
        r->link.t.i->interrupt(r->link.t.self);
    }
    return gn__copy_fault(f, cause);
}

static gn_result gn__remote_is_lost(const gn__remote *r, gn_fault *f) {
    return gn_fail(f, GN_DEVICE_LOST, "%s/%s is lost: %s", r->link.info.peer, r->device, r->cause.text);
}

static gn_result gn__remote_bad(gn__remote *r, gn_fault *f, const char *what) {
    gn_fault cause;
    gn_fail(&cause, GN_BAD_MESSAGE, "%s answered with something that is not valid: %s", r->link.info.peer, what);
    return gn__remote_lose(r, &cause, f);
}

static gn__flight *gn__remote_flight(gn__remote *r, uint32_t i) { return &r->flights[(r->first + i) % GN__IN_FLIGHT]; }

static gn__flight *gn__remote_find(gn__remote *r, uint32_t request) {
    for (uint32_t i = 0; i < r->n_flights; i++) {
        gn__flight *x = gn__remote_flight(r, i);
        if (!x->done && (uint32_t)x->ticket == request) return x;
    }
    return NULL;
}

static void gn__remote_land(gn__remote *r, gn__flight *x) {
    x->done = true;
    r->owed -= x->owed;
    while (r->n_flights > 0 && r->flights[r->first].done) {
        r->first = (r->first + 1) % GN__IN_FLIGHT;
        r->n_flights--;
    }
}

/* ERROR: the end of the session, or the end of one request. */
static gn_result gn__remote_take_error(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_error d;
    gn_fault fault;
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    if (d.result == GN_OK) return gn__remote_bad(r, f, "an error that is none");
    char text[sizeof fault.text];
    gn__span_text(&d.text, text, sizeof text);
    gn_fail(&fault, (gn_result)d.result, "%s", text);
    fault.node = d.node;
    if (d.fatal) return gn__remote_lose(r, &fault, f);
    gn__flight *x = gn__remote_find(r, m->request);
    uint64_t ticket = r->next - (uint32_t)((uint32_t)r->next - m->request);
    if (ticket >= r->next || ticket == 0 || ticket > UINT64_MAX / 2) return gn__remote_bad(r, f, "an error of an unknown request");
    if (x && d.result != GN_CANCELLED && d.result != GN_NO_VALUE) r->step_errors++;
    if (!r->failed && d.result != GN_CANCELLED) {
        r->failed = true;
        r->error = fault;
        r->error_ticket = ticket;
    }
    if (r->asked == ticket) r->asked = 0;
    if (x) gn__remote_land(r, x);
    return GN_OK;
}

static gn_result gn__remote_take_step(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_step_ok d;
    gn_fault fault;
    gn__flight *x = gn__remote_find(r, m->request);
    if (!x) return gn__remote_bad(r, f, "the answer to a step that was not sent");
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    gn__rd rd = { d.outs.p, d.outs.p + d.outs.n, false };
    for (size_t i = 0; i < x->n_wants; i++) {
        const gn__want *w = &x->wants[i];
        const uint8_t *before = rd.p;
        if (gn__blob_get(&rd, w->host, w->bytes, w->element, r->link.codecs, &fault)) return gn__remote_bad(r, f, fault.text);
        r->stats->tensor_bytes_down += w->bytes;
        r->stats->packed_bytes_down += (uint64_t)(rd.p - before);
        if (w->kv) r->stats->kv_bytes_moved += w->bytes;
    }
    if (rd.p != rd.end) return gn__remote_bad(r, f, "a step's answer is longer than its outputs");
    r->stats->device_bytes += d.held - r->held;
    r->held = d.held;
    gn__remote_land(r, x);
    return GN_OK;
}

static gn_result gn__remote_take_have(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_weight_have d;
    gn_fault fault;
    if (r->asked == 0 || (uint32_t)r->asked != m->request) return gn__remote_bad(r, f, "an answer to no question");
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    memset(r->have, 0, sizeof r->have);
    if (d.have.n) memcpy(r->have, d.have.p, (size_t)d.have.n);
    r->asked = 0;
    return GN_OK;
}

static gn_result gn__remote_take(gn__remote *r, const gn__msg *m, gn_fault *f) {
    if (++r->answers >= r->next) return gn__remote_bad(r, f, "more answers than there were requests");
    switch (m->id) {
    case GN__MSG_STEP_OK: return gn__remote_take_step(r, m, f);
    case GN__MSG_ERROR: return gn__remote_take_error(r, m, f);
    case GN__MSG_WEIGHT_HAVE: return gn__remote_take_have(r, m, f);
    default: return gn__remote_bad(r, f, gn__msgs[m->id - 1].name);
    }
}

/* A server that closes says why first: looks for that before the executor is given up. */
static gn_result gn__remote_broken(gn__remote *r, gn_result e, gn_fault *f) {
    gn__patience w = { GN__LINGER_MS, false, NULL };
    gn_fault fault;
    gn__msg m;
    for (uint32_t i = 0; e == GN_DISCONNECTED && !r->lost && i < GN__IN_FLIGHT; i++) {
        if (gn__link_receive(&r->link, &w, &m, &fault)) break;
        if (m.id == GN__MSG_ERROR) gn__remote_take_error(r, &m, f);
    }
    if (r->lost) return gn__copy_fault(f, &r->cause);
    gn_fail(&fault, e, "%s: %s", r->link.info.peer, gn__result_text(e));
    return gn__remote_lose(r, &fault, f);
}

static gn_result gn__remote_flush(gn__remote *r, gn_fault *f) {
    gn_result e = gn__outbox_flush(&r->link.out);
    return e ? gn__remote_broken(r, e, f) : GN_OK;
}

/* Receives and takes one message. */
static gn_result gn__remote_receive(gn__remote *r, uint32_t deadline_ms, gn_fault *f) {
    gn__patience w = { deadline_ms, false, NULL };
    gn_fault fault;
    gn__msg m;
    r->link.in.limit = r->owed + GN__HELLO_MAX;   /* no honest answer is larger */
    gn_result e = gn__link_receive(&r->link, &w, &m, &fault);
    if (!e) return gn__remote_take(r, &m, f);
    if (deadline_ms == 0 && e == GN_TIMEOUT) return GN_TIMEOUT;
    if (e == GN_TIMEOUT) gn_fail(&fault, e, "%s gave no answer within %u ms", r->link.info.peer, deadline_ms);
    else gn_fail(&fault, e, "%s: %s", r->link.info.peer, gn__result_text(e));
    return gn__remote_lose(r, &fault, f);
}

/* Waits until no step up to the ticket is without an answer. */
static gn_result gn__remote_await(gn__remote *r, uint64_t ticket, gn_fault *f) {
    uint64_t before = r->link.in.frames;
    gn_result e = r->n_flights > 0 && gn__remote_flight(r, 0)->ticket <= ticket ? gn__remote_flush(r, f) : GN_OK;
    while (!e && r->n_flights > 0 && gn__remote_flight(r, 0)->ticket <= ticket) e = gn__remote_receive(r, r->link.deadline_ms, f);
    if (r->link.in.frames != before) r->stats->round_trips++;
    return e;
}

/* To be called before each request: keeps what the server has to answer so small that it never waits for us to read while
   we wait for it to read. */
static gn_result gn__remote_ready(gn__remote *r, gn_fault *f) {
    gn_result e = GN_OK;
    if (r->lost) return gn__remote_is_lost(r, f);
    if (r->n_flights == GN__IN_FLIGHT) e = gn__remote_await(r, gn__remote_flight(r, GN__IN_FLIGHT / 2)->ticket, f);   /* half: one wait for many */
    while (!e && r->owed > GN__OWED_MAX && r->n_flights > 0) e = gn__remote_await(r, gn__remote_flight(r, 0)->ticket, f);
    if (!e && ++r->unread >= GN__IN_FLIGHT) {
        r->unread = 0;
        e = gn__remote_flush(r, f);
        while (!e) e = gn__remote_receive(r, 0, f);
        if (e == GN_TIMEOUT && !r->lost) e = GN_OK;
    }
    return e;
}

/* Ends the message being written. GN_OUT_OF_MEMORY leaves the executor alive. */
static gn_result gn__remote_end(gn__remote *r, gn_fault *f) {
    gn_result e = gn__outbox_end(&r->link.out);
    if (e == GN_OUT_OF_MEMORY) return gn_fail(f, e, "no memory for a message to %s", r->link.info.peer);
    return e ? gn__remote_broken(r, e, f) : GN_OK;
}

static gn_result gn__remote_message(gn__remote *r, uint16_t id, const void *msg, gn_fault *f) {
    gn_result e = gn__remote_ready(r, f);
    if (e) return e;
    gn__outbox_fields(&r->link.out, id, (uint32_t)r->next++, msg);
    return gn__remote_end(r, f);
}

static void gn__remote_blob(gn__remote *r, const void *p, size_t n, int element) {
    r->stats->packed_bytes_up += gn__blob_put(&r->link.out, p, n, element, r->link.codecs, &r->link.scratch);
    r->stats->tensor_bytes_up += n;
}

/* SLOT_PUT of a state, or of a weight that the server has by now (digest not NULL). */
static gn_result gn__remote_put_slot(gn__remote *r, const gn_slot_desc *d, const uint8_t *digest, gn_fault *f) {
    uint8_t dims[GN_MAX_RANK * 8];
    gn__buf b = { dims, 0, sizeof dims, false };
    gn_result e = gn__remote_ready(r, f);
    if (e) return e;
    for (int i = 0; i < d->shape.rank; i++) gn__put_u64(&b, (uint64_t)d->shape.dims[i]);
    gn__msg_slot_put m;
    memset(&m, 0, sizeof m);
    m.slot = d->slot;
    m.gen = d->gen;
    m.kind = (uint8_t)d->kind;
    m.fill = digest ? GN__FILL_DIGEST : d->host ? GN__FILL_BYTES : GN__FILL_ZEROS;
    m.dtype = (uint8_t)d->dtype;
    m.dims = (gn__span){ dims, (uint64_t)d->shape.rank };
    m.digest = (gn__span){ digest, digest ? 32 : 0 };
    gn__outbox_fields(&r->link.out, GN__MSG_SLOT_PUT, (uint32_t)r->next++, &m);
    if (m.fill == GN__FILL_BYTES) gn__remote_blob(r, d->host, d->bytes, (int)gn__bytes_of(d->dtype));
    return gn__remote_end(r, f);
}

static gn_result gn__remote_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) {
    gn__remote *r = (gn__remote *)self;
    void *weights = r->weights;
    if (r->lost) return gn__remote_is_lost(r, f);
    if (d->kind != GN_LEAF_WEIGHT) return gn__remote_put_slot(r, d, NULL, f);
    if (!gn__net) return gn_fail(f, GN_UNSUPPORTED, "weights on a server need the network unit, for its SHA-256");
    if (!gn__reserve(&weights, &r->cap_weights, r->n_weights + 1, sizeof *r->weights)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a weight");
    r->weights = (gn__remote_weight *)weights;
    gn__remote_weight *w = &r->weights[r->n_weights++];
    w->slot = *d;
    w->known = false;
    gn__net->sha256(d->host, d->bytes, w->digest);
    return GN_OK;
}

static gn_result gn__remote_slot_drop(void *self, uint32_t slot, uint32_t gen) {
    gn__remote *r = (gn__remote *)self;
    gn__msg_slot_drop m = { slot, gen };
    for (size_t i = 0; i < r->n_weights; i++) {
        if (r->weights[i].slot.slot != slot || r->weights[i].slot.gen != gen) continue;
        r->weights[i] = r->weights[--r->n_weights];
        return GN_OK;
    }
    return gn__remote_message(r, GN__MSG_SLOT_DROP, &m, NULL);
}

/* Asks for n weights from `first` on; sets their `known`. */
static gn_result gn__remote_ask(gn__remote *r, size_t first, size_t n, gn_fault *f) {
    gn__buf b = { NULL, 0, 0, false };
    for (size_t i = 0; i < n; i++) {
        gn__put_bytes(&b, r->weights[first + i].digest, 32);
        gn__put_u64(&b, r->weights[first + i].slot.bytes);
    }
    gn__msg_weight_ask m = { { b.p, n } };
    gn_result e = b.failed ? gn_fail(f, GN_OUT_OF_MEMORY, "no memory to ask for %zu weights", n) : GN_OK;
    uint64_t ticket = 0;
    if (!e) e = gn__remote_ready(r, f);
    if (!e) {
        ticket = r->asked = r->next;
        e = gn__remote_message(r, GN__MSG_WEIGHT_ASK, &m, f);
    }
    gn__buf_deinit(&b);
    if (!e) e = gn__remote_flush(r, f);
    while (!e && r->asked) e = gn__remote_receive(r, r->link.deadline_ms, f);
    if (e) return e;
    r->stats->round_trips++;
    if (r->failed && r->error_ticket == ticket) { r->failed = false; return gn__copy_fault(f, &r->error); }
    for (size_t i = 0; i < n; i++) r->weights[first + i].known = (r->have[i / 8] >> (i % 8) & 1) != 0;
    return GN_OK;
}

/* One weight in pieces of 1 MiB, a message each. */
static gn_result gn__remote_upload(gn__remote *r, const gn__remote_weight *w, gn_fault *f) {
    gn_result e = GN_OK;
    size_t at = 0, total = w->slot.bytes;
    int element = (int)gn__bytes_of(w->slot.dtype);
    do {
        size_t n = GN__MIN(total - at, (size_t)GN__BLOB_CHUNK);
        gn__msg_weight_put m;
        memset(&m, 0, sizeof m);
        memcpy(m.digest, w->digest, 32);
        m.total = total;
        m.offset = at;
        m.element = (uint8_t)element;
        e = gn__remote_ready(r, f);
        if (e) return e;
        gn__outbox_fields(&r->link.out, GN__MSG_WEIGHT_PUT, (uint32_t)r->next++, &m);
        gn__remote_blob(r, (const uint8_t *)w->slot.host + at, n, element);
        e = gn__remote_end(r, f);
        at += n;
    } while (!e && at < total);
    r->stats->weight_bytes_sent += total;
    return e;
}

static gn_result gn__remote_send_weight(gn__remote *r, size_t i, gn_fault *f) {
    gn__remote_weight *w = &r->weights[i];
    gn_result e = GN_OK;
    for (size_t k = 0; k < i && !w->known; k++)   /* a twin was uploaded just now */
        w->known = r->weights[k].slot.bytes == w->slot.bytes && memcmp(r->weights[k].digest, w->digest, 32) == 0;
    if (w->known) r->stats->weight_bytes_known += w->slot.bytes;
    else e = gn__remote_upload(r, w, f);
    return e ? e : gn__remote_put_slot(r, &w->slot, w->digest, f);
}

/* Brings the weights put since the last time to the server: one round trip for up to 4096 of them, and no answer after it. */
static gn_result gn__remote_send_weights(gn__remote *r, gn_fault *f) {
    gn_result e = GN_OK;
    size_t sent = 0;
    for (size_t first = 0; !e && first < r->n_weights; first += GN__WIRE_ASK)
        e = gn__remote_ask(r, first, GN__MIN(r->n_weights - first, (size_t)GN__WIRE_ASK), f);
    for (; !e && sent < r->n_weights; sent += !e) e = gn__remote_send_weight(r, sent, f);
    r->n_weights -= sent;
    if (r->n_weights > 0 && sent > 0) memmove(r->weights, r->weights + sent, r->n_weights * sizeof *r->weights);
    return e;
}

static gn_result gn__remote_supports(const gn__remote *r, const gn_part *part, gn_fault *f) {
    gn__span ops = { r->ops, r->n_ops };
    if (part->n_nodes > r->max_nodes) return gn_fail(f, GN_LIMIT, "%u nodes in one step; %s takes %u", part->n_nodes, r->link.info.peer, r->max_nodes);
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn__op_row *op = &gn__ops[part->nodes[i].op];
        if (gn__ops_has(&ops, op->wire)) continue;
        gn_fail(f, GN_UNSUPPORTED, "%s does not know %s", r->link.info.peer, op->name);
        if (f) f->node = i;
        return GN_UNSUPPORTED;
    }
    return GN_OK;
}

static gn_result gn__remote_put_plan(gn__remote *r, const gn_part *part, uint32_t id, gn_fault *f) {
    gn__msg_plan_put m = { id, part->hash, 0, { NULL, 0 } };
    gn__buf_reset(&r->part);
    gn_result e = gn__part_encode(&r->part, part, f);
    if (!e) e = gn__remote_ready(r, f);
    if (e) return e;
    if (r->part.n > GN__BLOB_INLINE && r->part.n <= UINT32_MAX) m.packed = (uint32_t)r->part.n;
    gn__outbox_fields(&r->link.out, GN__MSG_PLAN_PUT, (uint32_t)r->next++, &m);
    if (m.packed) gn__blob_put(&r->link.out, r->part.p, r->part.n, 1, r->link.codecs, &r->link.scratch);
    else gn__outbox_put(&r->link.out, r->part.p, r->part.n);
    return gn__remote_end(r, f);
}

static gn_result gn__remote_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    gn__remote *r = (gn__remote *)self;
    *out_plan = NULL;
    if (r->lost) return gn__remote_is_lost(r, f);
    gn_result e = gn__remote_supports(r, part, f);
    if (!e) e = gn__remote_send_weights(r, f);
    if (e) return e;
    gn__remote_plan *p = (gn__remote_plan *)gn_alloc(sizeof *p);
    if (!p || !gn__ports_init(&p->ports, part)) {
        gn_free(p);
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    }
    p->id = r->next_plan++;
    e = gn__remote_put_plan(r, part, p->id, f);
    if (e) {
        gn_free(p->ports.args);
        gn_free(p);
        return e;
    }
    *out_plan = p;
    return GN_OK;
}

static void gn__remote_plan_destroy(void *self, void *plan) {
    gn__remote *r = (gn__remote *)self;
    gn__remote_plan *p = (gn__remote_plan *)plan;
    gn__msg_plan_drop m = { p->id };
    if (!r->lost) gn__remote_message(r, GN__MSG_PLAN_DROP, &m, NULL);
    gn_free(p->ports.args);
    gn_free(p);
}

/* Notes which outputs come back and where to; fills r->outs and r->keeps for the message. */
static gn_result gn__remote_board(gn__remote *r, gn__flight *x, const gn__ports *ports, const gn_out *outs, gn_fault *f) {
    void *wants = x->wants;
    uint64_t answer = GN__FRAME_HEAD + 8;
    gn__buf_reset(&r->outs);
    gn__buf_reset(&r->keeps);
    if (!gn__reserve(&wants, &x->cap, ports->n_outs, sizeof *x->wants)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a step");
    x->wants = (gn__want *)wants;
    x->n_wants = 0;
    for (uint32_t i = 0; i < ports->n_outs; i++) {
        const gn__port *p = &ports->outs[i];
        if (outs[i].host && outs[i].bytes != p->bytes) return gn_fail(f, GN_BAD_SIZE, "%zu bytes of room for an output of %zu", outs[i].bytes, p->bytes);
        gn__put_u8(&r->outs, (uint8_t)((outs[i].host ? GN__OUT_WANTED : 0) | (outs[i].keep ? GN__OUT_KEPT : 0)));
        if (outs[i].keep) gn__put_u64(&r->keeps, outs[i].keep);
        if (!outs[i].host) continue;
        x->wants[x->n_wants++] = (gn__want){ outs[i].host, p->bytes, p->element, p->kv };
        answer += gn__blob_most(p->bytes);
    }
    x->owed = answer + (answer / GN__FRAME_MAX + 1) * GN__FRAME_HEAD;
    return r->outs.failed || r->keeps.failed ? gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a step") : GN_OK;
}

static void gn__remote_put_args(gn__remote *r, const gn__ports *ports, const gn_arg *args) {
    for (uint32_t i = 0; i < ports->n_args; i++) {
        const gn__port *p = &ports->args[i];
        uint8_t id[8];
        gn__buf b = { id, 0, sizeof id, false };
        gn__put_u64(&b, args[i].value);
        if (p->value) gn__outbox_put(&r->link.out, id, sizeof id);
        else gn__remote_blob(r, args[i].host, p->bytes, p->element);
        if (p->kv) r->stats->kv_bytes_moved += p->bytes;
    }
}

/* The program learns of the first failure; steps from here on run again. */
static gn_result gn__remote_told(gn__remote *r, gn_fault *f) {
    r->failed = false;
    r->seen = r->step_errors;
    return gn__copy_fault(f, &r->error);
}

static gn_result gn__remote_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket, gn_fault *f) {
    gn__remote *r = (gn__remote *)self;
    const gn__remote_plan *p = (const gn__remote_plan *)plan;
    gn_result e = gn__remote_send_weights(r, f);
    if (!e) e = gn__remote_ready(r, f);
    if (!e && r->failed) e = gn__remote_told(r, f);   /* an earlier step failed: what was queued behind it did not run */
    if (e) return e;
    for (uint32_t i = 0; i < p->ports.n_args; i++)
        if (!p->ports.args[i].value && args[i].bytes != p->ports.args[i].bytes)
            return gn_fail(f, GN_BAD_SIZE, "%zu bytes for an argument of %zu", args[i].bytes, p->ports.args[i].bytes);
    gn__flight *x = gn__remote_flight(r, r->n_flights);
    e = gn__remote_board(r, x, &p->ports, outs, f);
    if (e) return e;
    gn__msg_step m = { p->id, r->sequence + 1, r->release, r->seen, { r->outs.p, r->outs.n }, { r->keeps.p, r->keeps.n / 8 }, { NULL, 0 } };
    x->ticket = r->next++;
    gn__outbox_fields(&r->link.out, GN__MSG_STEP, (uint32_t)x->ticket, &m);
    gn__remote_put_args(r, &p->ports, args);
    e = gn__remote_end(r, f);
    if (e) return e;
    r->sequence++;
    x->done = false;
    r->owed += x->owed;
    r->n_flights++;
    *out_ticket = x->ticket;
    e = gn__remote_flush(r, f);
    gn__link_count(&r->link);
    return e;
}

static gn_result gn__remote_wait(void *self, uint64_t ticket, gn_fault *f) {
    gn__remote *r = (gn__remote *)self;
    if (r->lost) return gn__remote_is_lost(r, f);
    gn_result e = gn__remote_await(r, ticket, f);
    gn__link_count(&r->link);
    if (e) return e;
    return r->failed && r->error_ticket <= ticket ? gn__remote_told(r, f) : GN_OK;
}

static void gn__remote_values_release(void *self, uint64_t below) {
    gn__remote *r = (gn__remote *)self;
    r->release = GN__MAX(r->release, below);   /* travels with the next step */
}

static void gn__remote_describe(void *self, gn_device_info *out_info) {
    const gn__remote *r = (const gn__remote *)self;
    memset(out_info, 0, sizeof *out_info);
    snprintf(out_info->name, sizeof out_info->name, "%.60s/%.30s", r->link.info.peer, r->device);
    gn__copy_text(out_info->identity, sizeof out_info->identity, r->identity);
    gn__copy_text(out_info->tls, sizeof out_info->tls, r->link.info.tls);
    gn__copy_text(out_info->cipher, sizeof out_info->cipher, r->link.info.cipher);
    out_info->remote = true;
}

static void gn__remote_close(void *self) {
    gn__remote *r = (gn__remote *)self;
    gn__msg_bye m = { GN_OK };
    if (!r->lost) {
        r->link.deadline_ms = GN__MIN(r->link.deadline_ms, 1000u);
        gn__outbox_message(&r->link.out, GN__MSG_BYE, (uint32_t)r->next++, &m);
        gn__outbox_flush(&r->link.out);
    }
    gn__link_count(&r->link);
    r->stats->device_bytes -= r->held;
    gn__link_deinit(&r->link);
    for (uint32_t i = 0; i < GN__IN_FLIGHT; i++) gn_free(r->flights[i].wants);
    gn_free(r->weights);
    gn__buf_deinit(&r->outs);
    gn__buf_deinit(&r->keeps);
    gn__buf_deinit(&r->part);
    gn_free(r);
}

static const gn_exec_i gn__remote_i = {
    gn__remote_close, gn__remote_slot_put, gn__remote_slot_drop, gn__remote_plan_make, gn__remote_plan_destroy,
    gn__remote_submit, gn__remote_wait, gn__remote_values_release, gn__remote_describe, NULL, NULL,
};

static gn_result gn__remote_send_hello(gn__remote *r, const char *device, gn_fault *f) {
    uint8_t ops[GN__WIRE_OPS], auth[256];
    size_t n_auth = r->link.t.i->auth ? r->link.t.i->auth(r->link.t.self, auth) : 0;
    gn__msg_hello m;
    memset(&m, 0, sizeof m);
    gn__ops_bitmap(ops);
    m.magic = GN__WIRE_MAGIC;
    m.version_min = GN__WIRE_MIN;
    m.version_max = GN__WIRE_MAX;
    m.codecs = gn__net ? gn__net->codecs | 1u : 1u;
    m.ops = (gn__span){ ops, sizeof ops };
    m.device = gn__span_of_text(device ? device : "", 63);
    m.auth = (gn__span){ auth, GN__MIN(n_auth, sizeof auth) };
    gn_result e = gn__remote_message(r, GN__MSG_HELLO, &m, f);
    if (!e) e = gn__remote_flush(r, f);
    memset(auth, 0, sizeof auth);
    if (r->link.out.b.p) memset(r->link.out.b.p, 0, r->link.out.b.cap);   /* the proof does not stay in buffers */
    if (r->link.out.fields.p) memset(r->link.out.fields.p, 0, r->link.out.fields.cap);
    return e;
}

static gn_result gn__remote_take_hello(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_hello_ok d;
    gn_fault fault;
    if (m->id == GN__MSG_ERROR) {
        gn_result e = gn__remote_take_error(r, m, f);
        return e ? e : gn__remote_bad(r, f, "an error that does not end the session before it began");
    }
    if (m->id != GN__MSG_HELLO_OK) return gn__remote_bad(r, f, gn__msgs[m->id - 1].name);
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    if (d.version < GN__WIRE_MIN || d.version > GN__WIRE_MAX) {
        gn_fail(&fault, GN_BAD_VERSION, "%s answers in protocol %u; this client speaks %d to %d", r->link.info.peer, d.version, GN__WIRE_MIN, GN__WIRE_MAX);
        return gn__remote_lose(r, &fault, f);
    }
    r->link.codecs = (d.codecs & (gn__net ? gn__net->codecs : 0)) | 1u;
    r->link.in.frame_max = GN__FRAME_MAX;
    r->max_nodes = d.nodes;
    r->n_ops = (size_t)d.ops.n;
    if (r->n_ops) memcpy(r->ops, d.ops.p, r->n_ops);
    gn__span_text(&d.device, r->device, sizeof r->device);
    gn__span_text(&d.identity, r->identity, sizeof r->identity);
    if (d.grant.n == 0 || !r->link.t.i->granted) return GN_OK;
    gn_result e = r->link.t.i->granted(r->link.t.self, d.grant.p, (size_t)d.grant.n);
    return e ? gn_fail(f, e, "the credential from %s could not be stored", r->link.info.peer) : GN_OK;
}

static gn_result gn__remote_greet(gn__remote *r, const char *device, gn_fault *f) {
    gn__patience w = { r->link.deadline_ms, false, NULL };
    gn_fault fault;
    gn__msg m;
    gn_result e = gn__remote_send_hello(r, device, f);
    if (e) return e;
    e = gn__link_receive(&r->link, &w, &m, &fault);
    r->stats->round_trips++;
    gn__link_count(&r->link);
    if (!e) return gn__remote_take_hello(r, &m, f);
    return gn_fail(f, e, "%s did not answer HELLO: %s", r->link.info.peer, fault.text);
}

/* Opens `device` of the server at the other end ("" or NULL: its first). Takes ownership of the transport, whatever it returns. */
static gn_result gn__remote_open(const gn_desc *desc, gn_transport t, const char *device, gn_stats *stats, gn_exec *out, gn_fault *f) {
    gn__remote *r = (gn__remote *)gn__alloc_zero(sizeof *r);
    memset(out, 0, sizeof *out);
    if (!r) {
        t.i->close(t.self);
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a connection");
    }
    gn__link_init(&r->link, t, desc && desc->deadline_ms ? desc->deadline_ms : GN__DEADLINE_MS, stats);
    r->stats = stats;
    r->next = 1;
    r->next_plan = 1;
    gn__link_count(&r->link);
    gn_result e = gn__remote_greet(r, device, f);
    if (e) {
        r->lost = true;   /* nobody to say goodbye to */
        gn__remote_close(r);
        return e;
    }
    out->i = &gn__remote_i;
    out->self = r;
    return GN_OK;
}

/* ---- server: the weight store. Per tenant, content-addressed; unreferenced weights stay until room is needed ---- */

#define GN__TENANT 64
#define GN__STORE_BUCKETS 256

typedef struct gn__weight {
    struct gn__weight *next;
    char tenant[GN__TENANT];
    uint8_t digest[32];
    uint64_t bytes, used;      /* used: time of the last release */
    uint32_t refs;
    uint8_t *data;
} gn__weight;

typedef struct gn__store {
    gn__weight *buckets[GN__STORE_BUCKETS];   /* by the digest's first byte */
    uint64_t idle, limit;                     /* bytes of unreferenced weights, held and allowed */
} gn__store;

/* A tenant sees its own weights only; the length is part of the name. */
static gn__weight *gn__store_find(gn__store *s, const char *tenant, const uint8_t *digest, uint64_t bytes) {
    for (gn__weight *w = s->buckets[digest[0]]; w; w = w->next)
        if (w->bytes == bytes && memcmp(w->digest, digest, 32) == 0 && strcmp(w->tenant, tenant) == 0) return w;
    return NULL;
}

static void gn__store_remove(gn__store *s, gn__weight *w) {
    gn__weight **p = &s->buckets[w->digest[0]];
    while (*p != w) p = &(*p)->next;
    *p = w->next;
    gn_free(w->data);
    gn_free(w);
}

static void gn__store_trim(gn__store *s) {
    while (s->idle > s->limit) {
        gn__weight *oldest = NULL;
        for (int i = 0; i < GN__STORE_BUCKETS; i++)
            for (gn__weight *w = s->buckets[i]; w; w = w->next)
                if (w->refs == 0 && (!oldest || w->used < oldest->used)) oldest = w;
        s->idle -= oldest->bytes;
        gn__store_remove(s, oldest);
    }
}

static void gn__store_ref(gn__store *s, gn__weight *w) {
    if (w->refs++ == 0) s->idle -= w->bytes;
}

static void gn__store_unref(gn__store *s, gn__weight *w) {
    if (--w->refs > 0) return;
    w->used = gn_now_us();
    s->idle += w->bytes;
    gn__store_trim(s);
}

/* Takes the bytes over; they are referenced once. NULL: no memory. */
static gn__weight *gn__store_add(gn__store *s, const char *tenant, const uint8_t *digest, uint64_t bytes, uint8_t *data) {
    gn__weight *w = (gn__weight *)gn__alloc_zero(sizeof *w);
    if (!w) return NULL;
    gn__copy_text(w->tenant, sizeof w->tenant, tenant);
    memcpy(w->digest, digest, 32);
    w->bytes = bytes;
    w->refs = 1;
    w->data = data;
    w->next = s->buckets[digest[0]];
    s->buckets[digest[0]] = w;
    return w;
}

static void gn__store_deinit(gn__store *s) {
    for (int i = 0; i < GN__STORE_BUCKETS; i++)
        while (s->buckets[i]) gn__store_remove(s, s->buckets[i]);
}

/* ---- server: sessions ---- */

#define GN__SERVER_QUEUE 16       /* steps that run before the first of them is answered */
#define GN__SERVER_STRANGERS 128  /* connections that have not said who they are */
#define GN__DEVICES_MAX 32

/* From numbers that a client chose to what they stand for. Open addressing, a power of two of places. */
typedef struct gn__map { struct gn__map_entry { uint32_t key; void *value; } *p; size_t n, cap; } gn__map;

static size_t gn__map_place(const gn__map *t, uint32_t key) {
    size_t i = (size_t)gn__mix(key, 0) & (t->cap - 1);
    while (t->p[i].value && t->p[i].key != key) i = (i + 1) & (t->cap - 1);
    return i;
}

static void *gn__map_get(const gn__map *t, uint32_t key) { return t->cap ? t->p[gn__map_place(t, key)].value : NULL; }

/* The key is not there yet. */
static bool gn__map_put(gn__map *t, uint32_t key, void *value) {
    if ((t->n + 1) * 2 > t->cap) {
        gn__map old = *t;
        t->cap = old.cap ? old.cap * 2 : 16;
        t->p = (struct gn__map_entry *)gn__alloc_zero(t->cap * sizeof *t->p);
        if (!t->p) { *t = old; return false; }
        for (size_t i = 0; i < old.cap; i++)
            if (old.p[i].value) t->p[gn__map_place(t, old.p[i].key)] = old.p[i];
        gn_free(old.p);
    }
    size_t i = gn__map_place(t, key);
    t->p[i].key = key;
    t->p[i].value = value;
    t->n++;
    return true;
}

static void gn__map_remove(gn__map *t, uint32_t key) {
    size_t hole = gn__map_place(t, key);
    t->p[hole].value = NULL;
    t->n--;
    for (size_t i = (hole + 1) & (t->cap - 1); t->p[i].value; i = (i + 1) & (t->cap - 1)) {
        struct gn__map_entry moved = t->p[i];   /* those behind the hole look for their place again */
        t->p[i].value = NULL;
        t->p[gn__map_place(t, moved.key)] = moved;
    }
}

typedef struct gn__served_slot {
    uint32_t slot, gen;
    bool dropped;               /* only the generation is remembered: it is never used again */
    uint64_t mark;              /* of the last check of updates that met it */
    gn_leaf_kind kind;
    gn__type type;
    uint64_t held;              /* bytes charged to the session */
    gn__weight *weight;
    gn_fault fault;             /* result GN_OK: it is there; otherwise why it could not be made */
} gn__served_slot;

typedef struct gn__served_plan {
    uint32_t id;
    gn_part *part;
    gn__ports ports;
    void *plan;                 /* of the local executor */
    uint64_t held, args_bytes;  /* args_bytes: of its data, each rounded up to 64 */
    uint64_t slots_seen;        /* the session's slot_changes when its slots were last seen to exist */
    gn_fault fault;             /* as of a slot */
} gn__served_plan;

typedef struct gn__kept { uint64_t id, bytes; gn__type type; } gn__kept;
typedef struct gn__held_weight { gn__weight *weight; uint32_t slots; bool pinned; } gn__held_weight;   /* pinned: promised to the client */

typedef struct gn__upload {
    bool refused;               /* the client was told; what still comes is dropped */
    uint8_t digest[32];
    uint64_t total, at;
    uint8_t *data;
    size_t cap;
} gn__upload;

typedef struct gn__running {    /* a step that was submitted and is not answered */
    uint64_t ticket, first_keep, last_keep, held;
    uint32_t request;
    gn__want *wants;
    size_t n_wants, cap;
    uint8_t *bytes;
    size_t bytes_cap;
} gn__running;

typedef struct gn__session {
    struct gn__session *next;
    gn_server *server;
    gn__thread thread;
    bool known, gone, done;     /* under the server's lock. known: authenticated; gone: its transport is being closed */
    bool attached, open;        /* open: the transport's handshake is over */
    uint64_t id;
    gn__link link;
    char peer[96], tenant[GN__TENANT], device[64];
    gn_exec exec;
    gn_stats stats, shown;      /* shown: a copy under the server's lock */
    uint64_t held, limit;       /* bytes */
    gn__map slots, plans;
    uint64_t slot_changes, update_checks, sequence, released, last_keep;
    uint32_t step_failures;
    gn__kept *kept;             /* ids rise */
    size_t n_kept, cap_kept;
    gn__held_weight *weights;
    size_t n_weights, cap_weights;
    bool any_pinned;
    gn__upload upload;
    gn__running running[GN__SERVER_QUEUE];
    uint32_t n_running;
    uint8_t *args_bytes;
    size_t args_cap;
    gn_arg *args;
    gn_out *outs;
    size_t cap_args, cap_outs;
} gn__session;

struct gn_server {
    char *listen, *key, *cert, *ca, *url_file, *home;   /* copies of the desc's */
    gn_server_desc desc;
    char devices[GN__DEVICES_MAX][64];
    int n_devices;
    void *listener;
    gn__thread accept;
    bool accepting;
    gn__atomic stop, lost;
    gn__mutex lock;             /* of all below */
    gn__cond changed;
    gn_fault lost_why;
    gn__session *sessions;
    gn__store store;
    gn_stats ended;             /* of sessions that are over */
    uint64_t next_session;
};

static bool gn__session_charge(gn__session *s, uint64_t bytes) {
    if (bytes > s->limit || s->held > s->limit - bytes) return false;
    s->held += bytes;
    return true;
}

static gn_result gn__session_full(const gn__session *s, uint64_t bytes, gn_fault *f) {
    return gn_fail(f, GN_LIMIT, "%llu bytes more; the session holds %llu of the %llu allowed", (unsigned long long)bytes,
                   (unsigned long long)s->held, (unsigned long long)s->limit);
}

static void gn__session_show(gn__session *s) {
    gn__link_count(&s->link);
    gn__mutex_lock(&s->server->lock);
    s->shown = s->stats;
    gn__mutex_unlock(&s->server->lock);
}

/* ---- weights of a session ---- */

/* Holds a weight for the session, charged once however many slots use it; `weight` has one reference, which is taken over. */
static gn__held_weight *gn__session_hold(gn__session *s, gn__weight *weight) {
    void *p = s->weights;
    gn__held_weight *h = NULL;
    for (size_t i = 0; i < s->n_weights && !h; i++)
        if (s->weights[i].weight == weight) h = &s->weights[i];
    if (!h && gn__reserve(&p, &s->cap_weights, s->n_weights + 1, sizeof *s->weights)) {
        s->weights = (gn__held_weight *)p;
        if (gn__session_charge(s, weight->bytes)) {
            s->weights[s->n_weights] = (gn__held_weight){ weight, 0, false };
            return &s->weights[s->n_weights++];
        }
    }
    gn__mutex_lock(&s->server->lock);
    gn__store_unref(&s->server->store, weight);
    gn__mutex_unlock(&s->server->lock);
    return h;
}

/* Finds a weight of the tenant's and holds it; NULL: it is not there or there is no room for it. */
static gn__held_weight *gn__session_find_weight(gn__session *s, const uint8_t *digest, uint64_t bytes) {
    gn__mutex_lock(&s->server->lock);
    gn__weight *w = gn__store_find(&s->server->store, s->tenant, digest, bytes);
    if (w) gn__store_ref(&s->server->store, w);
    gn__mutex_unlock(&s->server->lock);
    return w ? gn__session_hold(s, w) : NULL;
}

/* Lets go of weights that no slot uses and that are not promised any more. */
static void gn__session_sweep(gn__session *s, bool unpin) {
    size_t kept = 0;
    if (unpin) s->any_pinned = false;
    for (size_t i = 0; i < s->n_weights; i++) {
        gn__held_weight h = s->weights[i];
        h.pinned = h.pinned && !unpin;
        if (h.pinned || h.slots > 0) { s->weights[kept++] = h; continue; }
        s->held -= h.weight->bytes;
        gn__mutex_lock(&s->server->lock);
        gn__store_unref(&s->server->store, h.weight);
        gn__mutex_unlock(&s->server->lock);
    }
    s->n_weights = kept;
}

static gn_result gn__serve_weight_ask(gn__session *s, const gn__msg *m, gn_fault *f) {
    uint8_t have[GN__WIRE_ASK / 8];
    gn__msg_weight_ask d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    memset(have, 0, sizeof have);
    for (uint64_t i = 0; i < d.digests.n; i++) {
        gn__rd r = { d.digests.p + i * 40 + 32, d.digests.p + i * 40 + 40, false };
        gn__held_weight *h = gn__session_find_weight(s, d.digests.p + i * 40, gn__get_u64(&r));
        if (!h) continue;
        h->pinned = s->any_pinned = true;
        have[i / 8] |= (uint8_t)(1u << (i % 8));
    }
    gn__msg_weight_have answer = { { have, (d.digests.n + 7) / 8 } };
    return gn__outbox_message(&s->link.out, GN__MSG_WEIGHT_HAVE, m->request, &answer);
}

static void gn__upload_end(gn__session *s) {
    if (!s->upload.refused) s->held -= s->upload.at;
    gn_free(s->upload.data);
    memset(&s->upload, 0, sizeof s->upload);
}

/* All bytes are there: they must be what the digest says. */
static gn_result gn__upload_finish(gn__session *s, gn_fault *f) {
    gn__upload *u = &s->upload;
    uint8_t digest[32];
    gn__net->sha256(u->data, (size_t)u->total, digest);
    if (memcmp(digest, u->digest, 32) != 0) {
        gn__upload_end(s);
        return gn_fail(f, GN_BAD_DIGEST, "a weight of %llu bytes does not have the SHA-256 it was announced with", (unsigned long long)u->total);
    }
    uint64_t total = u->total;
    gn__mutex_lock(&s->server->lock);
    gn__weight *w = gn__store_find(&s->server->store, s->tenant, digest, total);
    if (w) gn__store_ref(&s->server->store, w);   /* another session of the tenant was faster */
    else if ((w = gn__store_add(&s->server->store, s->tenant, digest, total, u->data)) != NULL) u->data = NULL;
    gn__mutex_unlock(&s->server->lock);
    gn__upload_end(s);
    gn__held_weight *h = w ? gn__session_hold(s, w) : NULL;
    if (!h) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a weight of %llu bytes", (unsigned long long)total);
    h->pinned = s->any_pinned = true;
    return GN_OK;
}

/* Room for n bytes more: memory grows with what has come. */
static gn_result gn__upload_grow(gn__session *s, uint64_t n, gn_fault *f) {
    gn__upload *u = &s->upload;
    void *data = u->data;
    if (u->total > s->limit || !gn__session_charge(s, n)) return gn__session_full(s, u->total, f);
    if (!gn__reserve(&data, &u->cap, (size_t)(u->at + n), 1)) {
        s->held -= n;
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a weight of %llu bytes", (unsigned long long)u->total);
    }
    u->data = (uint8_t *)data;
    return GN_OK;
}

/* The next n bytes of the weight. */
static gn_result gn__upload_piece(gn__session *s, const gn__msg_weight_put *d, uint64_t n, gn_fault *f) {
    gn__upload *u = &s->upload;
    gn__rd r = { d->blob.p, d->blob.p + d->blob.n, false };
    gn_result e = gn__upload_grow(s, n, f);
    if (e) {
        gn_free(u->data);
        u->data = NULL;
        u->cap = 0;
        s->held -= u->at;
        u->refused = true;
        return e;
    }
    e = gn__blob_get(&r, u->data + u->at, (size_t)n, d->element, s->link.codecs, f);
    return !e && r.p != r.end ? gn_fail(f, GN_BAD_MESSAGE, "a piece of a weight is longer than it says") : e;
}

static gn_result gn__serve_weight_put(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__upload *u = &s->upload;
    gn__msg_weight_put d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    if (!gn__net) return gn_fail(f, GN_UNSUPPORTED, "this server has no network unit, so no SHA-256");
    if (d.offset == 0) {   /* a new one, or one that the client begins again */
        gn__upload_end(s);
        u->total = d.total;
        memcpy(u->digest, d.digest, 32);
    }
    bool element_ok = d.element == 1 || d.element == 2 || d.element == 4 || d.element == 8;
    if (!element_ok || d.total != u->total || d.offset != u->at || memcmp(d.digest, u->digest, 32) != 0)
        return gn_fail(f, GN_BAD_MESSAGE, "a piece of a weight is out of place");
    uint64_t n = GN__MIN(u->total - u->at, (uint64_t)GN__BLOB_CHUNK);
    if (!u->refused) e = gn__upload_piece(s, &d, n, f);
    if (e == GN_BAD_MESSAGE) return e;
    u->at += n;
    if (u->at < u->total) return e;
    if (!u->refused) return gn__upload_finish(s, f);
    gn__upload_end(s);
    return e;
}

/* ---- slots of a session ---- */

static gn_result gn__served_slot_fill_weight(gn__session *s, gn__served_slot *x, const gn__msg_slot_put *d, gn_slot_desc *desc, gn_fault *f) {
    if (d->fill != GN__FILL_DIGEST || d->digest.n != 32 || d->blob.n != 0) return gn_fail(f, GN_BAD_MESSAGE, "a weight is named by its digest");
    gn__held_weight *h = gn__session_find_weight(s, d->digest.p, desc->bytes);
    if (!h) return gn_fail(f, GN_BAD_DIGEST, "no weight of this digest and of %zu bytes was uploaded", desc->bytes);
    desc->host = h->weight->data;
    gn_result e = s->exec.i->slot_put(s->exec.self, desc, f);
    if (e) return e;
    h->slots++;
    x->weight = h->weight;
    return GN_OK;
}

static gn_result gn__served_slot_fill_state(gn__session *s, gn__served_slot *x, const gn__msg_slot_put *d, gn_slot_desc *desc, gn_fault *f) {
    gn__rd r = { d->blob.p, d->blob.p + d->blob.n, false };
    uint8_t *host = NULL;
    if (d->fill == GN__FILL_DIGEST || d->digest.n != 0 || (d->fill == GN__FILL_ZEROS && d->blob.n != 0))
        return gn_fail(f, GN_BAD_MESSAGE, "a state begins with zeros or with its bytes");
    if (d->fill == GN__FILL_BYTES && d->blob.n < gn__blob_least(desc->bytes)) return gn_fail(f, GN_BAD_MESSAGE, "the bytes of a state are cut");
    if (!gn__session_charge(s, desc->bytes)) return gn__session_full(s, desc->bytes, f);
    x->held += desc->bytes;
    if (d->fill == GN__FILL_BYTES) {
        host = (uint8_t *)gn_alloc(desc->bytes);
        if (!host) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a state of %zu bytes", desc->bytes);
        gn_result e = gn__blob_get(&r, host, desc->bytes, (int)gn__bytes_of(desc->dtype), s->link.codecs, f);
        if (!e && r.p != r.end) e = gn_fail(f, GN_BAD_MESSAGE, "the bytes of a state are too many");
        if (e) { gn_free(host); return e; }
    }
    desc->host = host;
    gn_result e = s->exec.i->slot_put(s->exec.self, desc, f);
    gn_free(host);
    return e;
}

/* Gives up what a slot holds; the executor has let go of it. */
static void gn__served_slot_clear(gn__session *s, gn__served_slot *x) {
    for (size_t i = 0; x->weight && i < s->n_weights; i++)
        if (s->weights[i].weight == x->weight) s->weights[i].slots--;
    if (x->weight) gn__session_sweep(s, false);
    x->weight = NULL;
    s->held -= x->held;
    x->held = 0;
}

static gn__served_slot *gn__served_slot_new(gn__session *s, uint32_t slot) {
    if (!gn__session_charge(s, sizeof(gn__served_slot))) return NULL;
    gn__served_slot *x = (gn__served_slot *)gn__alloc_zero(sizeof *x);
    if (x && gn__map_put(&s->slots, slot, x)) return x;
    s->held -= sizeof *x;
    gn_free(x);
    return NULL;
}

/* The entry of a slot that is not there now; a generation serves once. */
static gn_result gn__served_slot_enter(gn__session *s, const gn__msg_slot_put *d, const gn__type *type, gn__served_slot **out, gn_fault *f) {
    gn__served_slot *x = (gn__served_slot *)gn__map_get(&s->slots, d->slot);
    if (x && (!x->dropped || d->gen <= x->gen)) return gn_fail(f, GN_BAD_MESSAGE, "slot %u of generation %u is or was there already", d->slot, x->gen);
    if (!x) x = gn__served_slot_new(s, d->slot);
    if (!x) return gn_fail(f, GN_LIMIT, "no memory for a slot");
    x->slot = d->slot;
    x->gen = d->gen;
    x->dropped = false;
    x->kind = (gn_leaf_kind)d->kind;
    x->type = *type;
    memset(&x->fault, 0, sizeof x->fault);
    *out = x;
    return GN_OK;
}

static gn_result gn__served_slot_message(const gn__msg *m, gn__msg_slot_put *d, gn__type *t, gn_fault *f) {
    gn_result e = gn__msg_decode(m->id, m->p, m->n, d, f);
    if (e) return e;
    memset(t, 0, sizeof *t);
    t->dtype = (gn_dtype)d->dtype;
    t->shape.rank = (int32_t)d->dims.n;
    for (int i = 0; i < t->shape.rank; i++) t->shape.dims[i] = (int64_t)gn__span_u64(&d->dims, (uint64_t)i);
    if (!gn__type_ok(t)) return gn_fail(f, GN_BAD_MESSAGE, "a slot of no valid type");
    return d->kind == GN_LEAF_WEIGHT || d->kind == GN_LEAF_STATE ? GN_OK : gn_fail(f, GN_BAD_MESSAGE, "a slot of kind %u", d->kind);
}

static gn_result gn__serve_slot_put(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_slot_put d;
    gn_fault own = { GN_OK, GN_NO_NODE, "" };
    gn__type t;
    gn__served_slot *x = NULL;
    gn_result e = gn__served_slot_message(m, &d, &t, f);
    if (!e) e = gn__served_slot_enter(s, &d, &t, &x, f);
    if (e) return e;
    s->slot_changes++;
    gn_slot_desc desc = { d.slot, d.gen, x->kind, t.dtype, t.shape, NULL, gn__type_bytes(&t) };
    e = x->kind == GN_LEAF_WEIGHT ? gn__served_slot_fill_weight(s, x, &d, &desc, &own) : gn__served_slot_fill_state(s, x, &d, &desc, &own);
    if (!e) return GN_OK;
    own.result = e;
    gn__served_slot_clear(s, x);
    x->fault = own;   /* what is built on the slot fails for this reason */
    return gn__copy_fault(f, &own);
}

static void gn__served_slot_drop(gn__session *s, gn__served_slot *x) {
    if (x->fault.result == GN_OK) s->exec.i->slot_drop(s->exec.self, x->slot, x->gen);
    gn__served_slot_clear(s, x);
    x->dropped = true;
}

static gn_result gn__serve_slot_drop(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_slot_drop d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    gn__served_slot *x = (gn__served_slot *)gn__map_get(&s->slots, d.slot);
    if (!x || x->dropped || x->gen != d.gen) return gn_fail(f, GN_STALE_HANDLE, "slot %u of generation %u is not there", d.slot, d.gen);
    s->slot_changes++;
    gn__served_slot_drop(s, x);
    return GN_OK;
}

/* ---- plans of a session ---- */

static gn_result gn__served_slot_check(gn__session *s, uint32_t slot, uint32_t gen, gn_fault *f, gn__served_slot **out) {
    gn__served_slot *x = (gn__served_slot *)gn__map_get(&s->slots, slot);
    *out = x;
    if (!x || x->dropped || x->gen != gen) return gn_fail(f, GN_STALE_HANDLE, "slot %u of generation %u is not there", slot, gen);
    return x->fault.result ? gn__copy_fault(f, &x->fault) : GN_OK;
}

/* The slots that a part names are there, of the kind and type that it says. */
static gn_result gn__part_check_slots(gn__session *s, const gn_part *part, gn_fault *f) {
    gn__type t;
    gn__served_slot *x;
    for (uint32_t i = 0; i < part->n_nodes; i++) {
        const gn_part_node *n = &part->nodes[i];
        if (n->leaf != GN_LEAF_WEIGHT && n->leaf != GN_LEAF_STATE) continue;
        gn_result e = gn__served_slot_check(s, n->slot, n->gen, f, &x);
        if (e) return e;
        t = gn__part_type(part, i);
        if ((gn_leaf_kind)n->leaf != x->kind || !gn__type_equal(&t, &x->type)) return gn_fail(f, GN_BAD_MESSAGE, "slot %u is of another kind or type", n->slot);
    }
    return GN_OK;
}

/* Updates are of states, of the state's type, and one for each. */
static gn_result gn__part_check_updates(gn__session *s, const gn_part *part, gn_fault *f) {
    gn__type t;
    gn__served_slot *x;
    s->update_checks++;
    for (uint32_t i = 0; i < part->n_updates; i++) {
        const gn_part_update *u = &part->updates[i];
        gn_result e = gn__served_slot_check(s, u->slot, u->gen, f, &x);
        if (e) return e;
        t = gn__part_type(part, u->node);
        if (x->kind != GN_LEAF_STATE || !gn__type_equal(&t, &x->type)) return gn_fail(f, GN_BAD_MESSAGE, "slot %u does not take this value", u->slot);
        if (x->mark == s->update_checks) return gn_fail(f, GN_BAD_MESSAGE, "slot %u is updated twice", u->slot);
        x->mark = s->update_checks;
    }
    return GN_OK;
}

static uint64_t gn__round64(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

/* Charges the plan's memory and checks that its arguments can ever fit. */
static gn_result gn__served_plan_charge(gn__session *s, gn__served_plan *p, gn_fault *f) {
    const gn_part *part = p->part;
    uint64_t bytes = sizeof *part + (uint64_t)part->n_nodes * sizeof *part->nodes + (uint64_t)part->n_updates * sizeof *part->updates +
                     ((uint64_t)part->n_attrs + part->n_dims) * 8 + ((uint64_t)part->n_ins + part->n_args + part->n_outs) * 4 +
                     ((uint64_t)part->n_args + part->n_outs) * sizeof(gn__port);
    if (!gn__session_charge(s, bytes)) return gn__session_full(s, bytes, f);
    p->held += bytes;
    for (uint32_t i = 0; i < part->n_args; i++) {
        p->args_bytes += p->ports.args[i].value ? 0 : gn__round64(p->ports.args[i].bytes);
        if (p->args_bytes > s->limit) return gn__session_full(s, p->args_bytes, f);
    }
    return GN_OK;
}

/* The part's bytes, unpacked into memory that the session's limit allows. */
static gn_result gn__served_plan_part(gn__session *s, gn__served_plan *p, const gn__msg_plan_put *d, gn_fault *f) {
    gn__rd r = { d->part.p, d->part.p + d->part.n, false };
    if (!d->packed) return gn__part_decode(d->part.p, (size_t)d->part.n, GN__WIRE_NODES, &p->part, f);
    if (d->packed > s->limit - GN__MIN(s->held, s->limit)) return gn__session_full(s, d->packed, f);
    uint8_t *bytes = (uint8_t *)gn_alloc(d->packed);
    if (!bytes) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    gn_result e = gn__blob_get(&r, bytes, d->packed, 1, s->link.codecs, f);
    if (!e && r.p != r.end) e = gn_fail(f, GN_BAD_MESSAGE, "a plan has more bytes than announced");
    if (!e) e = gn__part_decode(bytes, d->packed, GN__WIRE_NODES, &p->part, f);
    gn_free(bytes);
    return e;
}

static gn_result gn__served_plan_build(gn__session *s, gn__served_plan *p, const gn__msg_plan_put *d, gn_fault *f) {
    gn_result e = gn__served_plan_part(s, p, d, f);
    if (e) return e;
    if (p->part->hash != d->hash) return gn_fail(f, GN_BAD_MESSAGE, "the part's hash is not the one announced");
    e = gn__part_check_slots(s, p->part, f);
    if (!e) e = gn__part_check_updates(s, p->part, f);
    if (e) return e;
    if (!gn__ports_init(&p->ports, p->part)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    e = gn__served_plan_charge(s, p, f);
    if (!e) e = s->exec.i->plan_make(s->exec.self, p->part, &p->plan, f);
    p->slots_seen = s->slot_changes;
    return e;
}

/* Frees all but the entry itself. */
static void gn__served_plan_clear(gn__session *s, gn__served_plan *p) {
    if (p->plan) s->exec.i->plan_destroy(s->exec.self, p->plan);
    gn_free(p->ports.args);
    gn_free(p->part);
    s->held -= p->held;
    p->plan = NULL;
    p->part = NULL;
    p->held = 0;
    memset(&p->ports, 0, sizeof p->ports);
}

static gn_result gn__serve_plan_put(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_plan_put d;
    gn_fault own = { GN_OK, GN_NO_NODE, "" };
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    if (s->any_pinned) gn__session_sweep(s, true);
    if (d.plan == 0 || gn__map_get(&s->plans, d.plan)) return gn_fail(f, GN_BAD_MESSAGE, "plan %u is there already, or 0", d.plan);
    gn__served_plan *p = (gn__served_plan *)gn__alloc_zero(sizeof *p);
    if (!p) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    p->id = d.plan;
    p->held = sizeof *p;
    if (!gn__session_charge(s, p->held) || !gn__map_put(&s->plans, d.plan, p)) {
        gn_free(p);
        return gn_fail(f, GN_LIMIT, "no memory for a plan");
    }
    e = gn__served_plan_build(s, p, &d, &own);
    if (!e) return GN_OK;
    own.result = e;
    gn__served_plan_clear(s, p);
    p->fault = own;   /* a step of this plan fails for this reason */
    return gn__copy_fault(f, &own);
}

static void gn__served_plan_free(gn__session *s, gn__served_plan *p) {
    gn__map_remove(&s->plans, p->id);
    gn__served_plan_clear(s, p);
    gn_free(p);
}

static gn_result gn__serve_plan_drop(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_plan_drop d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    gn__served_plan *p = (gn__served_plan *)gn__map_get(&s->plans, d.plan);
    if (!p) return gn_fail(f, GN_NO_PLAN, "plan %u is not there", d.plan);
    gn__served_plan_free(s, p);
    return GN_OK;
}

/* ---- steps ---- */

static size_t gn__kept_lower(const gn__session *s, uint64_t id) {   /* the first kept value with an id of at least `id` */
    size_t low = 0, high = s->n_kept;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->kept[mid].id < id) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Forgets the kept values [from, to) of the list. */
static void gn__kept_remove(gn__session *s, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) s->held -= s->kept[i].bytes;
    if (from < to) memmove(s->kept + from, s->kept + to, (s->n_kept - to) * sizeof *s->kept);
    s->n_kept -= to - from;
}

/* One argument from the message; data goes to `at`. */
static gn_result gn__step_arg(gn__session *s, const gn__served_plan *p, uint32_t i, gn__rd *r, uint8_t *at, gn_fault *f) {
    const gn__port *port = &p->ports.args[i];
    gn__type t;
    s->args[i] = (gn_arg){ at, port->bytes, 0 };
    if (!port->value) return gn__blob_get(r, at, port->bytes, port->element, s->link.codecs, f);
    uint64_t id = gn__get_u64(r);
    size_t k = gn__kept_lower(s, id);
    s->args[i] = (gn_arg){ NULL, 0, id };
    if (r->bad) return gn_fail(f, GN_BAD_MESSAGE, "the arguments of a step are cut");
    if (k == s->n_kept || s->kept[k].id != id) return gn_fail(f, GN_STALE_HANDLE, "value %llu is not kept", (unsigned long long)id);
    t = gn__part_type(p->part, p->part->args[i]);
    return gn__type_equal(&t, &s->kept[k].type) ? GN_OK : gn_fail(f, GN_BAD_MESSAGE, "value %llu is of another type", (unsigned long long)id);
}

static gn_result gn__step_args(gn__session *s, const gn__served_plan *p, const gn__msg_step *d, gn_fault *f) {
    gn__rd r = { d->args.p, d->args.p + d->args.n, false };
    void *args = s->args, *bytes = s->args_bytes;
    uint64_t at = 0;
    if (!gn__reserve(&args, &s->cap_args, (size_t)p->ports.n_args, sizeof *s->args)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for arguments");
    s->args = (gn_arg *)args;
    if (!gn__reserve(&bytes, &s->args_cap, (size_t)p->args_bytes, 1)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for arguments");
    s->args_bytes = (uint8_t *)bytes;
    for (uint32_t i = 0; i < p->ports.n_args; i++) {
        gn_result e = gn__step_arg(s, p, i, &r, s->args_bytes + at, f);
        if (e) return e;
        at += p->ports.args[i].value ? 0 : gn__round64(p->ports.args[i].bytes);
    }
    return r.p == r.end ? GN_OK : gn_fail(f, GN_BAD_MESSAGE, "a step has more argument bytes than its plan takes");
}

/* Room for the outputs wanted, in one block of the running step. */
static gn_result gn__step_wants(gn__session *s, const gn__served_plan *p, const gn__msg_step *d, gn__running *x, gn_fault *f) {
    void *wants = x->wants, *bytes = x->bytes;
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < p->ports.n_outs && total <= s->limit; i++)
        if (d->outs.p[i] & GN__OUT_WANTED) total += gn__round64(p->ports.outs[i].bytes);
    if (!gn__session_charge(s, total)) return gn__session_full(s, total, f);
    x->held = total;
    if (!gn__reserve(&wants, &x->cap, p->ports.n_outs, sizeof *x->wants)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for outputs");
    x->wants = (gn__want *)wants;
    if (!gn__reserve(&bytes, &x->bytes_cap, (size_t)total, 1)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for outputs");
    x->bytes = (uint8_t *)bytes;
    for (uint32_t i = 0; i < p->ports.n_outs; i++) {
        const gn__port *port = &p->ports.outs[i];
        s->outs[i] = (gn_out){ NULL, port->bytes, 0 };
        if (!(d->outs.p[i] & GN__OUT_WANTED)) continue;
        s->outs[i].host = x->bytes + at;
        x->wants[x->n_wants++] = (gn__want){ x->bytes + at, port->bytes, port->element, port->kv };
        at += gn__round64(port->bytes);
    }
    return GN_OK;
}

/* Enters the outputs to keep into the list; gn__kept_remove takes them out again when the step fails. */
static gn_result gn__step_keeps(gn__session *s, const gn__served_plan *p, const gn__msg_step *d, gn__running *x, gn_fault *f) {
    void *kept = s->kept;
    uint64_t k = 0;
    if (!gn__reserve(&kept, &s->cap_kept, s->n_kept + (size_t)d->keeps.n, sizeof *s->kept)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for values");
    s->kept = (gn__kept *)kept;
    x->first_keep = s->last_keep + 1;
    for (uint32_t i = 0; i < p->ports.n_outs; i++) {
        if (!(d->outs.p[i] & GN__OUT_KEPT)) continue;
        uint64_t id = k < d->keeps.n ? gn__span_u64(&d->keeps, k) : 0;
        k++;
        if (id <= s->last_keep) return gn_fail(f, GN_BAD_MESSAGE, "ids of kept values are missing or do not rise");
        if (!gn__session_charge(s, p->ports.outs[i].bytes)) return gn__session_full(s, p->ports.outs[i].bytes, f);
        gn__kept *v = &s->kept[s->n_kept++];
        *v = (gn__kept){ id, p->ports.outs[i].bytes, gn__part_type(p->part, p->part->outs[i]) };
        s->outs[i].keep = s->last_keep = x->last_keep = id;
    }
    return k == d->keeps.n ? GN_OK : gn_fail(f, GN_BAD_MESSAGE, "more ids than kept values");
}

/* A step that failed: nothing of it stays. */
static void gn__running_undo(gn__session *s, gn__running *x) {
    gn__kept_remove(s, gn__kept_lower(s, x->first_keep), gn__kept_lower(s, x->last_keep + 1));
    s->held -= x->held;
    x->held = 0;
}

static gn_result gn__step_start(gn__session *s, const gn__served_plan *p, const gn__msg_step *d, gn__running *x, gn_fault *f) {
    void *outs = s->outs;
    x->n_wants = 0;
    x->held = 0;
    x->first_keep = x->last_keep = s->last_keep + 1;
    if (d->outs.n != p->ports.n_outs) return gn_fail(f, GN_BAD_MESSAGE, "%llu outputs of a plan with %u", (unsigned long long)d->outs.n, p->ports.n_outs);
    for (uint32_t i = 0; i < p->ports.n_outs; i++)
        if (d->outs.p[i] & ~(GN__OUT_WANTED | GN__OUT_KEPT)) return gn_fail(f, GN_BAD_MESSAGE, "an output with unknown flags");
    if (!gn__reserve(&outs, &s->cap_outs, p->ports.n_outs, sizeof *s->outs)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for outputs");
    s->outs = (gn_out *)outs;
    gn_result e = gn__step_args(s, p, d, f);
    if (!e) e = gn__step_wants(s, p, d, x, f);
    if (!e) e = gn__step_keeps(s, p, d, x, f);
    if (!e) e = s->exec.i->submit(s->exec.self, p->plan, s->args, s->outs, &x->ticket, f);
    if (e) gn__running_undo(s, x);
    return e;
}

static gn_result gn__serve_step(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_step d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (e) return e;
    if (s->any_pinned) gn__session_sweep(s, true);
    if (d.sequence != s->sequence + 1)
        return gn_fail(f, GN_BAD_MESSAGE, "step %llu came when %llu was next", (unsigned long long)d.sequence, (unsigned long long)s->sequence + 1);
    s->sequence++;
    s->stats.steps_run++;
    if (d.seen != s->step_failures) return gn_fail(f, GN_CANCELLED, "an earlier step failed");
    gn__served_plan *p = (gn__served_plan *)gn__map_get(&s->plans, d.plan);
    if (!p) return gn_fail(f, GN_NO_PLAN, "plan %u is not there", d.plan);
    if (p->fault.result) return gn__copy_fault(f, &p->fault);
    if (d.release > s->released) {
        gn__kept_remove(s, 0, gn__kept_lower(s, d.release));
        s->exec.i->values_release(s->exec.self, d.release);
        s->released = d.release;
    }
    if (p->slots_seen != s->slot_changes) {   /* a slot of the plan may be gone */
        e = gn__part_check_slots(s, p->part, f);
        if (!e) e = gn__part_check_updates(s, p->part, f);
        if (e) return e;
        p->slots_seen = s->slot_changes;
    }
    gn__running *x = &s->running[s->n_running];
    x->request = m->request;
    e = gn__step_start(s, p, &d, x, f);
    s->n_running += !e;
    return e;
}

/* ---- answers ---- */

/* gn_server_run returns: a lost GPU comes back in another process only. */
static void gn__server_lose(gn_server *server, const gn_fault *why) {
    gn__mutex_lock(&server->lock);
    bool first = !gn__atomic_load(&server->lost);
    if (first) server->lost_why = *why;
    gn__atomic_store(&server->lost, 1);
    gn__cond_broadcast(&server->changed);
    gn__mutex_unlock(&server->lock);
    if (first) gn_logf(server->desc.log, server->desc.log_user, GN_LOG_ERROR, "%s", why->text);
}

static gn_result gn__session_refuse(gn__session *s, uint32_t request, const gn_fault *fault, bool fatal) {
    if (fault->result == GN_DEVICE_LOST) gn__server_lose(s->server, fault);
    gn__msg_error m = { (uint16_t)fault->result, fatal, fault->node, gn__span_of_text(fault->text, 399) };
    s->stats.faults++;
    return gn__outbox_message(&s->link.out, GN__MSG_ERROR, request, &m);
}

static gn_result gn__running_answer(gn__session *s, gn__running *x) {
    gn_fault fault = { GN_OK, GN_NO_NODE, "" };
    gn_result e = s->exec.i->wait(s->exec.self, x->ticket, &fault);
    if (e == GN_NO_VALUE) x->last_keep = x->first_keep - 1;   /* what it kept counts as kept */
    if (e) {
        fault.result = e;
        s->step_failures += e != GN_NO_VALUE;
        gn__running_undo(s, x);
        return gn__session_refuse(s, x->request, &fault, false);
    }
    gn__msg_step_ok m = { s->stats.device_bytes, { NULL, 0 } };
    gn__outbox_fields(&s->link.out, GN__MSG_STEP_OK, x->request, &m);
    for (size_t i = 0; i < x->n_wants; i++) {
        const gn__want *w = &x->wants[i];
        s->stats.packed_bytes_up += gn__blob_put(&s->link.out, w->host, w->bytes, w->element, s->link.codecs, &s->link.scratch);
        s->stats.tensor_bytes_up += w->bytes;
    }
    s->held -= x->held;
    x->held = 0;
    return gn__outbox_end(&s->link.out);
}

/* Answers every step that was submitted. */
static gn_result gn__session_settle(gn__session *s) {
    gn_result e = GN_OK;
    for (uint32_t i = 0; i < s->n_running; i++) {
        gn_result r = gn__running_answer(s, &s->running[i]);
        if (r && !e) e = r;
    }
    s->n_running = 0;
    return e;
}

/* Answers all that has run, and sends it. */
static gn_result gn__session_reply(gn__session *s, gn_fault *f) {
    gn_result e = gn__session_settle(s);
    gn__session_show(s);   /* before the client can know */
    if (!e) e = gn__outbox_flush(&s->link.out);
    return e ? gn_fail(f, e, "%s", gn__result_text(e)) : GN_OK;
}

static gn_result gn__serve_cancel(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_cancel d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    if (!e) gn__inbox_cancel(&s->link.in, d.request);
    return e;
}

static gn_result gn__serve_bye(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn__msg_bye d;
    gn_result e = gn__msg_decode(m->id, m->p, m->n, &d, f);
    (void)s;
    return e ? e : gn_fail(f, GN_DISCONNECTED, "the client said goodbye (%s)", gn__result_name((gn_result)d.reason));
}

typedef gn_result (*gn__serve_fn)(gn__session *s, const gn__msg *m, gn_fault *f);
static const gn__serve_fn gn__serve[GN__MSG__COUNT] = {
    [GN__MSG_BYE] = gn__serve_bye, [GN__MSG_CANCEL] = gn__serve_cancel,
    [GN__MSG_WEIGHT_ASK] = gn__serve_weight_ask, [GN__MSG_WEIGHT_PUT] = gn__serve_weight_put,
    [GN__MSG_SLOT_PUT] = gn__serve_slot_put, [GN__MSG_SLOT_DROP] = gn__serve_slot_drop,
    [GN__MSG_PLAN_PUT] = gn__serve_plan_put, [GN__MSG_PLAN_DROP] = gn__serve_plan_drop,
    [GN__MSG_STEP] = gn__serve_step,
};

/* GN_OK: the session goes on, whether the request was served or refused. */
static gn_result gn__session_take(gn__session *s, const gn__msg *m, gn_fault *f) {
    gn_result e = GN_OK;
    if (m->id != GN__MSG_STEP || s->n_running == GN__SERVER_QUEUE) e = gn__session_settle(s);
    if (e) return gn_fail(f, e, "%s", gn__result_text(e));
    if (gn__serve[m->id]) e = gn__serve[m->id](s, m, f);
    else e = gn_fail(f, GN_BAD_MESSAGE, "message %s does not belong here", gn__msgs[m->id - 1].name);
    if (!e && s->n_running > 0 && s->running[s->n_running - 1].n_wants > 0) return gn__session_reply(s, f);   /* somebody waits for this one */
    if (!e || e == GN_BAD_MESSAGE || e == GN_DISCONNECTED || s->link.out.result) return e;
    if (m->id == GN__MSG_STEP && e != GN_CANCELLED && e != GN_NO_VALUE) s->step_failures++;
    gn_result sent = gn__session_settle(s);   /* earlier steps are answered first */
    if (!sent) sent = gn__session_refuse(s, m->request, f, false);
    return sent ? gn_fail(f, sent, "%s", gn__result_text(sent)) : GN_OK;
}

/* Until the client goes, errs or the server stops; the reason is in *f, *out_request is the request to blame. */
static gn_result gn__session_serve(gn__session *s, uint32_t *out_request, gn_fault *f) {
    gn__patience w = { s->link.deadline_ms, true, &s->server->stop };
    gn__msg m;
    for (;;) {
        *out_request = 0;
        s->link.in.limit = s->limit - s->held;
        gn_result e = gn__inbox_next(&s->link.in, &m, f);
        if (!e && m.id == 0) {   /* about to block: first everything is answered */
            e = gn__session_reply(s, f);
            if (!e) e = gn__link_receive(&s->link, &w, &m, f);
        }
        if (e) return e;
        *out_request = m.request;
        e = gn__session_take(s, &m, f);
        if (e) return e;
    }
}

/* ---- the beginning and the end of a session ---- */

/* Magic and versions stand first in the HELLO of every version. */
static gn_result gn__hello_version(const gn__msg *m, gn_fault *f) {
    gn__rd r = { m->p, m->p + m->n, false };
    uint32_t magic = gn__get_u32(&r);
    uint16_t least = gn__get_u16(&r), most = gn__get_u16(&r);
    if (m->id != GN__MSG_HELLO || r.bad || magic != GN__WIRE_MAGIC || least > most) return gn_fail(f, GN_BAD_MESSAGE, "the first message is not a HELLO");
    if (most < GN__WIRE_MIN || least > GN__WIRE_MAX)
        return gn_fail(f, GN_BAD_VERSION, "the client speaks protocol %u to %u, this server %d to %d", least, most, GN__WIRE_MIN, GN__WIRE_MAX);
    return GN_OK;
}

/* "cpu" is "cpu:0". */
static void gn__device_name(char out[64], const char *text, size_t n) {
    bool bare = n > 0 && !memchr(text, ':', n) && !(n == 4 && memcmp(text, "null", 4) == 0);
    snprintf(out, 64, "%.*s%s", (int)GN__MIN(n, (size_t)60), text, bare ? ":0" : "");
}

static gn_result gn__session_device(gn__session *s, const gn__span *wanted, gn_fault *f) {
    const gn_server *server = s->server;
    char text[64], name[64];
    gn__span_text(wanted, text, sizeof text);
    gn__device_name(name, text, strlen(text));
    for (int i = 0; i < server->n_devices && !s->device[0]; i++)
        if (name[0] == 0 || strcmp(name, server->devices[i]) == 0) gn__copy_text(s->device, sizeof s->device, server->devices[i]);
    if (!s->device[0]) return gn_fail(f, GN_NO_DEVICE, "this server does not offer %s", name);
    gn_exec_desc d = { s->device, server->desc.threads, s->limit, s->link.deadline_ms, false, &s->stats };
    return gn__exec_open(&d, &s->exec, f);
}

/* Counts the session in, unless there are too many. */
static gn_result gn__session_admit(gn__session *s, gn_fault *f) {
    gn_server *server = s->server;
    uint32_t n = 0;
    gn__mutex_lock(&server->lock);
    for (const gn__session *x = server->sessions; x; x = x->next) n += x->known && !x->gone;
    s->known = n < server->desc.max_sessions;
    gn__mutex_unlock(&server->lock);
    return s->known ? GN_OK : gn_fail(f, GN_LIMIT, "the server has %u sessions, all it takes", n);
}

static gn_result gn__session_welcome(gn__session *s, const gn__msg_hello *hello, uint32_t request, const gn__span *grant) {
    uint8_t ops[GN__WIRE_OPS];
    gn_device_info info;
    gn__msg_hello_ok m;
    memset(&m, 0, sizeof m);
    gn__ops_bitmap(ops);
    s->exec.i->describe(s->exec.self, &info);
    s->link.codecs = (hello->codecs & (gn__net ? gn__net->codecs : 0)) | 1u;
    m.version = GN__WIRE_MAX;
    m.codecs = s->link.codecs;
    m.session = s->id;
    m.memory = s->limit;
    m.nodes = GN__WIRE_NODES;
    m.ops = (gn__span){ ops, sizeof ops };
    m.device = gn__span_of_text(s->device, 63);
    m.identity = gn__span_of_text(info.identity, 191);
    m.grant = *grant;
    gn_result e = gn__outbox_message(&s->link.out, GN__MSG_HELLO_OK, request, &m);
    if (e) return e;
    s->link.in.frame_max = GN__FRAME_MAX;
    s->stats.sessions++;
    gn__session_show(s);
    return gn__outbox_flush(&s->link.out);
}

static gn_result gn__session_greet(gn__session *s, uint32_t *out_request, gn_fault *f) {
    gn_server *server = s->server;
    gn__patience w = { s->link.deadline_ms, false, &server->stop };
    uint8_t grant[256];
    size_t n_grant = 0;
    gn__msg_hello d;
    gn__msg m;
    gn_result e = s->attached ? GN_OK : gn__net->handshake(server->listener, s->link.t, s->link.deadline_ms, f);
    if (e) return e;
    s->open = true;
    e = gn__link_receive(&s->link, &w, &m, f);
    if (e) return e;
    *out_request = m.request;
    e = gn__hello_version(&m, f);
    if (!e) e = gn__msg_decode(m.id, m.p, m.n, &d, f);
    if (e) return e;
    if (!s->attached) {
        e = gn__net->authenticate(server->listener, s->link.t, d.auth.p, (size_t)d.auth.n, s->tenant, grant, &n_grant);
        if (e) return gn_fail(f, e, "%s", gn__result_text(e));
    }
    e = gn__session_admit(s, f);
    if (!e) e = gn__session_device(s, &d.device, f);
    if (e) return e;
    gn__span g = { grant, GN__MIN(n_grant, sizeof grant) };
    e = gn__session_welcome(s, &d, m.request, &g);
    memset(grant, 0, sizeof grant);
    return e ? gn_fail(f, e, "%s", gn__result_text(e)) : GN_OK;
}

/* Says why and gives the peer a moment to read it: what it still sends is thrown away, for closing on unread bytes would
   take the message with it. */
static void gn__session_part(gn__session *s, uint32_t request, const gn_fault *why) {
    uint64_t end = gn_now_us() + GN__LINGER_MS * 1000u;
    uint8_t waste[4096];
    size_t n;
    if (why->result == GN_DISCONNECTED || s->link.out.result || !s->open) return;
    gn__session_settle(s);
    gn__session_refuse(s, request, why, true);
    if (gn__outbox_flush(&s->link.out)) return;
    for (uint64_t now = gn_now_us(); now < end && !gn__atomic_load(&s->server->stop); now = gn_now_us()) {
        gn_result e = s->link.t.i->recv(s->link.t.self, waste, sizeof waste, &n, GN__MIN((uint32_t)((end - now) / 1000 + 1), GN__SLICE_MS));
        if (e && e != GN_TIMEOUT) return;
    }
}

/* Frees what the client had, the executor last. */
static void gn__session_free_work(gn__session *s) {
    gn_fault ignored;
    for (uint32_t i = 0; i < s->n_running; i++) s->exec.i->wait(s->exec.self, s->running[i].ticket, &ignored);
    for (size_t i = 0; i < s->plans.cap; i++) {
        gn__served_plan *p = (gn__served_plan *)s->plans.p[i].value;
        if (!p) continue;
        gn__served_plan_clear(s, p);
        gn_free(p);
    }
    for (size_t i = 0; i < s->slots.cap; i++) {
        gn__served_slot *x = (gn__served_slot *)s->slots.p[i].value;
        if (x && !x->dropped) gn__served_slot_drop(s, x);
        gn_free(x);
    }
    if (s->exec.i) s->exec.i->close(s->exec.self);
    for (size_t i = 0; i < s->n_weights; i++) s->weights[i].slots = 0;
    gn__session_sweep(s, true);
    for (int i = 0; i < GN__SERVER_QUEUE; i++) {
        gn_free(s->running[i].wants);
        gn_free(s->running[i].bytes);
    }
    gn_free(s->plans.p);
    gn_free(s->slots.p);
    gn_free(s->weights);
    gn_free(s->upload.data);
    gn_free(s->kept);
    gn_free(s->args_bytes);
    gn_free(s->args);
    gn_free(s->outs);
}

static void gn__stats_add(gn_stats *to, const gn_stats *from) {
#define GN__X(name, unit, help) to->name += from->name;
    GN_COUNTERS(GN__X)
#undef GN__X
}

static void gn__session_end(gn__session *s, const gn_fault *why) {
    gn_server *server = s->server;
    if (s->known)
        gn_logf(server->desc.log, server->desc.log_user, why->result == GN_DISCONNECTED ? GN_LOG_INFO : GN_LOG_WARN, "session %llu of %s on %s is over: %s",
                (unsigned long long)s->id, s->peer, s->device, why->text);
    else
        gn_logf(server->desc.log, server->desc.log_user, GN_LOG_WARN, "connection %llu of %s refused: %s", (unsigned long long)s->id, s->peer, why->text);
    gn__session_free_work(s);
    gn__session_show(s);
    gn__mutex_lock(&server->lock);
    s->gone = true;
    if (s->stats.sessions == 0) s->stats.sessions_refused++;
    gn__mutex_unlock(&server->lock);
    gn__link_deinit(&s->link);
    gn__mutex_lock(&server->lock);
    s->done = true;
    s->stats.device_bytes = 0;
    gn__stats_add(&server->ended, &s->stats);
    gn__cond_broadcast(&server->changed);
    gn__mutex_unlock(&server->lock);
}

static void gn__session_main(void *arg) {
    gn__session *s = (gn__session *)arg;
    gn_fault why = { GN_OK, GN_NO_NODE, "" };
    uint32_t request = 0;
    gn_result e = gn__session_greet(s, &request, &why);
    if (!e) {
        gn_logf(s->server->desc.log, s->server->desc.log_user, GN_LOG_INFO, "session %llu of %s on %s", (unsigned long long)s->id, s->peer, s->device);
        e = gn__session_serve(s, &request, &why);
    }
    why.result = e;
    if (e == GN_CANCELLED && gn__atomic_load(&s->server->lost)) why = s->server->lost_why;   /* written once, before `lost` */
    gn__session_part(s, request, &why);
    gn__session_end(s, &why);
}

/* ---- the server ---- */

/* Joins sessions that are over; under the lock, which such a session does not take again. */
static void gn__server_reap(gn_server *server) {
    for (gn__session **p = &server->sessions; *p;) {
        gn__session *s = *p;
        if (!s->done) { p = &s->next; continue; }
        *p = s->next;
        gn__thread_join(&s->thread);
        gn_free(s);
    }
}

/* An honest client finds a place among connections that say nothing: the oldest of too many strangers is cut off. */
static void gn__server_shed(gn_server *server) {
    gn__session *oldest = NULL;
    uint32_t n = 0;
    for (gn__session *s = server->sessions; s; s = s->next) {   /* the newest stands first */
        if (s->known || s->gone || s->attached) continue;
        oldest = s;
        n++;
    }
    if (n >= GN__SERVER_STRANGERS) oldest->link.t.i->interrupt(oldest->link.t.self);
}

/* Starts the session of a connection, which it owns from here on; tenant NULL: the listener says who it is. */
static gn_result gn__server_take(gn_server *server, gn_transport t, const char *tenant) {
    gn__session *s = (gn__session *)gn__alloc_zero(sizeof *s);
    if (!s || gn__atomic_load(&server->stop)) {
        t.i->close(t.self);
        gn_free(s);
        return s ? GN_CANCELLED : GN_OUT_OF_MEMORY;
    }
    gn__link_init(&s->link, t, server->desc.deadline_ms, &s->stats);
    gn__link_count(&s->link);
    gn__copy_text(s->peer, sizeof s->peer, s->link.info.peer);
    s->server = server;
    s->limit = server->desc.memory_limit;
    s->attached = tenant != NULL;
    gn__copy_text(s->tenant, sizeof s->tenant, tenant);
    gn__mutex_lock(&server->lock);
    gn__server_reap(server);
    gn__server_shed(server);
    s->id = server->next_session++;
    s->next = server->sessions;
    bool started = gn__thread_start(&s->thread, gn__session_main, s);
    if (started) server->sessions = s;
    gn__mutex_unlock(&server->lock);
    if (started) return GN_OK;
    gn__link_deinit(&s->link);
    gn_free(s);
    return GN_OUT_OF_MEMORY;
}

static void gn__server_accept(void *arg) {
    gn_server *server = (gn_server *)arg;
    while (!gn__atomic_load(&server->stop)) {
        gn_transport t;
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        gn_result e = gn__net->accept(server->listener, GN__SLICE_MS, &t, &f);
        if (!e) e = gn__server_take(server, t, NULL);
        if (!e) continue;
        gn__mutex_lock(&server->lock);
        gn__server_reap(server);
        if (e != GN_TIMEOUT) {   /* out of descriptors or threads: others may end meanwhile */
            gn_logf(server->desc.log, server->desc.log_user, GN_LOG_WARN, "a connection was not accepted: %s", f.text[0] ? f.text : gn__result_text(e));
            gn__cond_wait_ms(&server->changed, &server->lock, GN__SLICE_MS);
        }
        gn__mutex_unlock(&server->lock);
    }
}

static bool gn__copy_string(char **out, const char **text) {
    if (!*text) return true;
    size_t n = strlen(*text) + 1;
    *out = (char *)gn_alloc(n);
    if (!*out) return false;
    memcpy(*out, *text, n);
    *text = *out;
    return true;
}

static gn_result gn__server_set_desc(gn_server *s, const gn_server_desc *desc, gn_fault *f) {
    if (desc) s->desc = *desc;
    gn_server_desc *d = &s->desc;
    if (!d->devices) d->devices = "cpu";
    if (!d->listen) d->listen = gn__net ? "127.0.0.1:5556" : "none";
    if (d->max_sessions == 0) d->max_sessions = 64;
    if (d->memory_limit == 0) d->memory_limit = (uint64_t)8 << 30;
    if (d->deadline_ms == 0) d->deadline_ms = GN__DEADLINE_MS;
    bool ok = gn__copy_string(&s->listen, &d->listen) && gn__copy_string(&s->key, &d->key) && gn__copy_string(&s->cert, &d->cert) &&
              gn__copy_string(&s->ca, &d->ca) && gn__copy_string(&s->url_file, &d->url_file) && gn__copy_string(&s->home, &d->home);
    s->store.limit = d->memory_limit;
    return ok ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a server");
}

/* Each device is opened once, so that a missing one is an error now and not of the first client. */
static gn_result gn__server_add_device(gn_server *s, const char *text, size_t n, gn_fault *f) {
    gn_stats stats;
    gn_exec exec = { NULL, NULL };
    memset(&stats, 0, sizeof stats);
    if (s->n_devices == GN__DEVICES_MAX || n == 0 || n > 60) return gn_fail(f, GN_BAD_ARGUMENT, "a device list of more than %d names or with a name of %zu characters", GN__DEVICES_MAX, n);
    gn__device_name(s->devices[s->n_devices], text, n);
    gn_exec_desc d = { s->devices[s->n_devices], 1, s->desc.memory_limit, s->desc.deadline_ms, false, &stats };
    gn_result e = gn__exec_open(&d, &exec, f);
    if (e) return e;
    exec.i->close(exec.self);
    s->n_devices++;
    return GN_OK;
}

static gn_result gn__server_add_devices(gn_server *s, gn_fault *f) {
    const char *p = s->desc.devices;
    gn_result e = GN_OK;
    for (bool more = true; more && !e;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, ",");
        size_t name = n;
        while (name > 0 && p[name - 1] == ' ') name--;
        e = gn__server_add_device(s, p, name, f);
        more = p[n] == ',';
        p += n + more;
    }
    s->desc.devices = NULL;   /* the caller's text; the names are copied */
    return e;
}

static gn_result gn__server_listen(gn_server *s, gn_fault *f) {
    if (strcmp(s->desc.listen, "none") == 0) return GN_OK;
    if (!gn__net) return gn_fail(f, GN_UNSUPPORTED, "listening on %s needs the network unit", s->desc.listen);
    gn_result e = gn__net->listen(&s->desc, &s->listener, f);
    if (e) return e;
    s->accepting = gn__thread_start(&s->accept, gn__server_accept, s);
    return s->accepting ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no thread for a server");
}

static void gn__server_close(gn_server *s) {
    gn__atomic_store(&s->stop, 1);
    if (s->accepting) gn__thread_join(&s->accept);
    gn__mutex_lock(&s->lock);
    for (const gn__session *x = s->sessions; x; x = x->next)
        if (!x->gone) x->link.t.i->interrupt(x->link.t.self);
    for (gn__server_reap(s); s->sessions; gn__server_reap(s)) gn__cond_wait(&s->changed, &s->lock);
    gn__mutex_unlock(&s->lock);
    if (s->listener) gn__net->unlisten(s->listener);
    gn__store_deinit(&s->store);
    gn__cond_deinit(&s->changed);
    gn__mutex_deinit(&s->lock);
    char *const copies[] = { s->listen, s->key, s->cert, s->ca, s->url_file, s->home };
    for (size_t i = 0; i < GN__LENGTH(copies); i++) gn_free(copies[i]);
    gn_free(s);
}

static gn_result gn__server_open(const gn_server_desc *desc, gn_server **out_server, gn_fault *f) {
    gn_server *s = (gn_server *)gn__alloc_zero(sizeof *s);
    *out_server = NULL;
    if (!s) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a server");
    gn__mutex_init(&s->lock);
    gn__cond_init(&s->changed);
    s->next_session = 1;
    gn_result e = gn__server_set_desc(s, desc, f);
    if (!e) e = gn__server_add_devices(s, f);
    if (!e) e = gn__server_listen(s, f);
    if (e) gn__server_close(s);
    else *out_server = s;
    return e;
}

static void gn__server_wait(gn_server *s) {
    gn__mutex_lock(&s->lock);
    while (!gn__atomic_load(&s->stop) && !gn__atomic_load(&s->lost)) gn__cond_wait_ms(&s->changed, &s->lock, GN__SLICE_MS);
    gn__mutex_unlock(&s->lock);
}

enum { GN__HANDOVER_MS = 2000 };

static int gn__server_handover(gn_server *s) {
    int fd = s->listener && gn__net->handover ? gn__net->handover(s->listener) : -1;
    uint64_t end = gn_now_us() + GN__HANDOVER_MS * 1000u;
    gn__atomic_store(&s->stop, 1);
    if (s->accepting) gn__thread_join(&s->accept);
    s->accepting = false;
    gn__mutex_lock(&s->lock);
    for (gn__server_reap(s); s->sessions && gn_now_us() < end; gn__server_reap(s)) gn__cond_wait_ms(&s->changed, &s->lock, GN__SLICE_MS);
    gn__mutex_unlock(&s->lock);
    return fd;
}

static void gn__server_get_stats(gn_server *s, gn_stats *out) {
    gn__mutex_lock(&s->lock);
    *out = s->ended;
    for (const gn__session *x = s->sessions; x; x = x->next)
        if (!x->done) gn__stats_add(out, &x->shown);
    gn__mutex_unlock(&s->lock);
}

gn_result gn_server_open(const gn_server_desc *desc, gn_server **out_server, gn_error *out_error) {
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result e = out_server ? gn__server_open(desc, out_server, &f) : gn_fail(&f, GN_BAD_ARGUMENT, "there is no place for the server");
    if (!out_error) return e;
    memset(out_error, 0, sizeof *out_error);
    out_error->result = e;
    gn__copy_text(out_error->text, sizeof out_error->text, f.text);
    return e;
}

gn_result gn_server_run(gn_server *s) {
    if (!s) return GN_BAD_ARGUMENT;
    gn__server_wait(s);
    return gn__atomic_load(&s->lost) ? GN_DEVICE_LOST : GN_OK;
}

int gn_server_handover(gn_server *s) { return s ? gn__server_handover(s) : -1; }

void gn_server_stop(gn_server *s) { if (s) gn__atomic_store(&s->stop, 1); }
void gn_server_close(gn_server *s) { if (s) gn__server_close(s); }
const char *gn_server_url(gn_server *s) { return s && s->listener ? gn__net->url(s->listener) : ""; }
uint16_t gn_server_port(gn_server *s) { return s && s->listener ? gn__net->port(s->listener) : 0; }

void gn_server_stats(gn_server *s, gn_stats *out_stats) {
    if (!out_stats) return;
    memset(out_stats, 0, sizeof *out_stats);
    if (s) gn__server_get_stats(s, out_stats);
}

gn_result gn_server_attach(gn_server *s, gn_transport t, const char *tenant) { return gn__server_take(s, t, tenant ? tenant : ""); }

GN__COLD_END

/* >>check ==========================================================================================
 * Handles to nodes. Misuse becomes a failed node or a result; nothing here computes. */

static gn__mutex gn__contexts_lock = GN__MUTEX_INIT;
static gn_ctx *gn__contexts;               /* every control block ever made */
static gn_ctx gn__no_context = { .status = GN_OUT_OF_MEMORY, .error = { .result = GN_OUT_OF_MEMORY, .text = "no memory for a context" } };

static bool gn__usable(const gn_ctx *g) { return g && g->open && g->status == GN_OK; }

static gn_result gn__error_set(gn_ctx *g, gn_result r, const char *op, const char *text) {
    memset(&g->error, 0, sizeof g->error);
    g->error.result = r;
    gn__copy_text(g->error.op, sizeof g->error.op, op);
    gn__copy_text(g->error.text, sizeof g->error.text, text);
    return r;
}

static gn_result gn__error_node(gn_ctx *g, const gn_fault *f, const char *file, uint32_t line, int op, uint32_t label) {
    gn__error_set(g, f->result, op >= 0 ? gn__ops[op].name : "", f->text);
    g->error.line = (int)line;
    gn__copy_text(g->error.file, sizeof g->error.file, file);
    gn__copy_text(g->error.label, sizeof g->error.label, gn__label_text(g, label));
    return f->result;
}

/* The node a handle names; 0 with *out_why set when it names none. */
static uint32_t gn__resolve(gn_ctx *g, gn_tensor t, gn_result *out_why) {
    *out_why = GN_OK;
    if (t.ctx != g || !t.id) *out_why = t.ctx ? GN_MIXED_CONTEXTS : GN_BAD_ARGUMENT;
    else if (t.gen < g->opened_gen) *out_why = GN_CLOSED_CONTEXT;
    else if (t.id & GN__SLOT_BIT) {
        uint32_t slot = t.id & ~GN__SLOT_BIT;
        if (slot < g->n_slots && g->slots[slot].kind && g->slots[slot].gen == t.gen) return gn__slot_leaf(g, slot);
        *out_why = GN_STALE_HANDLE;
    } else {
        if (t.gen == g->step_gen && t.id - 1 < g->n_nodes) return t.id - 1;
        *out_why = GN_STALE_HANDLE;
    }
    return 0;
}

/* Handles of nodes are 1 + index, so that a zero handle is no tensor. */
static gn_tensor gn__handle(gn_ctx *g, uint32_t id) { return (gn_tensor){ g, id + 1, g->step_gen }; }

static const char *gn__handle_text(gn_result r) {
    switch (r) {
    case GN_CLOSED_CONTEXT: return "the tensor belongs to a context that was closed";
    case GN_MIXED_CONTEXTS: return "the tensors belong to different contexts";
    case GN_STALE_HANDLE: return "the tensor belongs to a step that has ended, or was released: build it again, or keep it in a state";
    default: return "a tensor is missing (GN_NONE)";
    }
}

/* Inputs to nodes; a bad handle becomes a failed node in its place. */
static void gn__inputs(gn_ctx *g, gn__loc at, int op, const gn_tensor *t, int n, uint32_t *out) {
    for (int i = 0; i < n; i++) {
        gn_result why;
        out[i] = gn__resolve(g, t[i], &why);
        if (why != GN_OK) out[i] = gn__failed_with(g, at, op, why, "input %d: %s", i, gn__handle_text(why));
    }
}

GN__COLD_BEGIN

/* ---- one submission: cut, find or make the plan, bring slots to the device, run ---- */

static gn_result gn__cut_error(gn_ctx *g, gn_result r, uint32_t bad) {
    const gn__node *n = &g->nodes[bad];
    if (r == GN_OUT_OF_MEMORY) return gn__error_set(g, r, "", "no memory for the cut of the graph");
    if (n->op == GN__OP_FAILED) {
        uint32_t label = n->label;
        g->error = g->errors[n->extra];
        if (label && !g->error.label[0]) gn__copy_text(g->error.label, sizeof g->error.label, gn__label_text(g, label));
        return g->error.result;
    }
    gn_fault f;
    if (r == GN_SUPERSEDED) gn_fail(&f, r, "state '%s' has been assigned since this tensor was built: read it together with the update (gn_read_many), or build it again", gn__label_text(g, n->label));
    else gn_fail(&f, r, "a weight or state that this tensor needs was released");
    return gn__error_node(g, &f, n->file, n->line, n->op, n->label);
}

static gn_result gn__slots_upload(gn_ctx *g, const gn_part *p) {
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        if (n->leaf != GN_LEAF_WEIGHT && n->leaf != GN_LEAF_STATE) continue;
        gn__slot *s = &g->slots[n->slot];
        if (s->on_device) continue;
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        gn_slot_desc d = { n->slot, s->gen, s->kind, s->type.dtype, s->type.shape, s->host, gn__type_bytes(&s->type) };
        gn_result r = g->exec.i->slot_put(g->exec.self, &d, &f);
        if (r != GN_OK) return gn__error_node(g, &f, "", 0, gn__op_leaf(s->kind), s->label);
        s->on_device = true;
        if (s->kind == GN_LEAF_STATE) { gn_free((void *)(uintptr_t)s->host); s->host = NULL; }
    }
    return GN_OK;
}

static gn__plan *gn__plan_of(gn_ctx *g, gn_result *out_r) {
    const gn_part *p = &g->cut.part;
    gn_fault f = { GN_OUT_OF_MEMORY, GN_NO_NODE, "no memory for a plan" };
    gn__plan made = { 0 };
    *out_r = GN_OUT_OF_MEMORY;
    if (!gn__table_room(&g->plan_table, &g->plan_room, g->n_plans, gn__plan_hash_of, g)) { gn__error_set(g, *out_r, "", f.text); return NULL; }
    uint32_t *at = gn__table_find(g->plan_table, g->plan_room, p->hash, gn__plan_same, g, p);
    *out_r = GN_OK;
    if (*at) { g->stats.plans_found++; return &g->plans[*at - 1]; }
    made.part = gn__part_copy(p);
    made.origins = (gn__origin *)gn__alloc_zero((p->n_nodes + 1) * sizeof *made.origins);
    *out_r = made.part && made.origins && GN__GROW(g, plans, 1) ? g->exec.i->plan_make(g->exec.self, made.part, &made.exec_plan, &f) : GN_OUT_OF_MEMORY;
    if (*out_r != GN_OK) {
        const gn__node *n = f.node < g->cut.n_ids ? &g->nodes[g->cut.ids[f.node]] : NULL;
        gn__error_node(g, &f, n ? n->file : "", n ? n->line : 0, n ? n->op : -1, n ? n->label : 0);
        gn_free(made.part);
        gn_free(made.origins);
        return NULL;
    }
    g->stats.plans_made++;
    g->plans[g->n_plans++] = made;
    *at = (uint32_t)g->n_plans;
    return &g->plans[*at - 1];
}

/* Where each node of the plan came from this time: what an error of a queued step is reported with. */
static void gn__plan_note(gn_ctx *g, gn__plan *plan) {
    for (size_t i = 0; i < g->cut.n_ids; i++) {
        const gn__node *n = &g->nodes[g->cut.ids[i]];
        plan->origins[i] = (gn__origin){ n->file, n->line, n->label, n->op };
    }
}

static gn_result gn__run_error(gn_ctx *g, const gn__plan *plan, const gn_fault *f) {
    g->stats.faults++;
    const gn__origin *o = plan && f->node < plan->part->n_nodes ? &plan->origins[f->node] : NULL;
    return gn__error_node(g, f, o ? o->file : "", o ? o->line : 0, o ? o->op : -1, o ? o->label : 0);
}

static void gn__pending_drop(gn_ctx *g) {
    for (size_t i = 0; i < g->n_pending; i++) g->slots[g->pending[i]].pending = 0;
    g->n_pending = 0;
}

/* Roots have values from here on, pending versions have become their states' values. */
static void gn__commit(gn_ctx *g, const uint32_t *roots, const gn_out *outs, int n) {
    for (size_t i = 0; i < g->n_pending; i++) {
        gn__slot *s = &g->slots[g->pending[i]];
        gn__node *node = &g->nodes[s->pending];
        node->committed = true;
        node->extra = ++s->version;
        s->pending = 0;
    }
    g->n_pending = 0;
    for (int i = 0; i < n; i++)
        if (outs[i].keep && !g->nodes[roots[i]].committed) g->nodes[roots[i]].value = outs[i].keep;
}

/* Fills the arguments in the part's order. */
static void gn__bind_args(const gn_ctx *g, gn_arg *args) {
    const gn_part *p = &g->cut.part;
    for (uint32_t i = 0; i < p->n_args; i++) {
        const gn__node *n = &g->nodes[g->cut.ids[p->args[i]]];
        if (n->value) { args[i] = (gn_arg){ NULL, 0, n->value }; continue; }
        const gn__data *d = &g->data[n->extra];
        args[i] = (gn_arg){ d->owned ? d->owned : d->host ? d->host : d->small, d->bytes, 0 };
    }
}

static gn_result gn__submit(gn_ctx *g, const uint32_t *roots, gn_out *outs, int n) {
    uint32_t bad;
    gn_result r = gn__cut_make(g, roots, n, &bad);
    if (r != GN_OK) return gn__cut_error(g, r, bad);
    const gn_part *p = &g->cut.part;
    if ((r = gn__slots_upload(g, p)) != GN_OK) return r;
    gn__plan *plan = gn__plan_of(g, &r);
    if (!plan) return r;
    gn__plan_note(g, plan);
    gn_arg *args = (gn_arg *)gn_alloc((p->n_args + 1) * sizeof *args);
    if (!args) return gn__error_set(g, GN_OUT_OF_MEMORY, "", "no memory for a step");
    gn__bind_args(g, args);
    for (int i = 0; i < n; i++) {                       /* leaves need no second copy; a node asked for twice is kept once */
        bool leaf = p->nodes[p->outs[i]].leaf != GN_LEAF_NONE, version = g->nodes[roots[i]].slot != 0;
        outs[i].keep = leaf || version || g->nodes[roots[i]].value ? 0 : g->next_value++;
    }
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    r = g->exec.i->submit(g->exec.self, plan->exec_plan, args, outs, &g->last_ticket, &f);
    gn_free(args);
    g->stats.steps_run++;
    bool waits = false;
    for (int i = 0; i < n; i++) waits |= outs[i].host != NULL;
    if (r == GN_OK && waits) r = g->exec.i->wait(g->exec.self, g->last_ticket, &f);
    if (r != GN_OK && r != GN_NO_VALUE) {
        gn__pending_drop(g);                            /* an update is tried once: the states keep their values */
        return gn__run_error(g, plan, &f);
    }
    gn__commit(g, roots, outs, n);
    return r == GN_NO_VALUE ? gn__error_set(g, r, "", f.text) : GN_OK;
}

/* ---- context ---- */

static void gn__step_clear(gn_ctx *g) {
    for (size_t i = 0; i < g->n_data; i++) gn_free(g->data[i].owned);
    gn__pending_drop(g);
    g->n_data = g->n_ins = g->n_attrs = 0;
    g->n_nodes = g->n_errors = 1;
    g->n_random = g->random_leaf = g->failed_effect = 0;
    g->run_counter++;
    g->step_gen = ++g->gen;
}

static bool gn__context_init(gn_ctx *g) {
    gn__type none = { GN_DTYPE_NONE, GN_SCALAR };
    gn__loc nowhere = { "", 0 };
    g->next_value = 1;
    if (!GN__GROW(g, errors, 1)) return false;
    memset(&g->errors[0], 0, sizeof g->errors[0]);
    g->errors[0].result = GN_OUT_OF_MEMORY;
    gn__copy_text(g->errors[0].text, sizeof g->errors[0].text, "a node could not be built: no memory, or more nodes in this step than gn_desc.max_nodes");
    g->n_errors = 1;
    gn__node_new(g, nowhere, GN__OP_FAILED, &none, 0, 0);
    g->stats.nodes_built = 0;
    return g->n_nodes == 1;
}

/* A closed control block is taken again; its generation goes on. */
static gn_ctx *gn__context_take(void) {
    gn__mutex_lock(&gn__contexts_lock);
    gn_ctx *g = gn__contexts;
    while (g && g->open) g = g->next;
    if (!g) {
        g = (gn_ctx *)gn__alloc_zero(sizeof *g);
        if (g) { g->next = gn__contexts; gn__contexts = g; }
    }
    if (g) {
        uint32_t gen = g->gen;
        gn_ctx *next = g->next;
        memset(g, 0, sizeof *g);
        g->next = next;
        g->gen = gen + 1;
        g->opened_gen = g->step_gen = g->gen;
        g->open = true;
    }
    gn__mutex_unlock(&gn__contexts_lock);
    return g;
}

static void gn__exec_desc_of(const gn_ctx *g, gn_exec_desc *out, const char *device, gn_stats *stats) {
    *out = (gn_exec_desc){ device, g->desc.threads, 0, g->desc.deadline_ms, g->desc.strict, stats };
}

/* The first device named runs the graph. */
static gn_result gn__device_open(gn_ctx *g, gn_fault *f) {
    char device[512], on_server[64];
    const char *all = g->desc.devices ? g->desc.devices : getenv("GENIE_DEVICES");
    if (!all || !all[0]) all = "cpu";
    size_t n = strcspn(all, ",");
    if (n >= sizeof device) return gn_fail(f, GN_BAD_ARGUMENT, "the device's name is longer than %d characters", (int)sizeof device - 1);
    memcpy(device, all, n);
    device[n] = 0;
    bool local = strcmp(device, "cpu") == 0 || strcmp(device, "cpu:0") == 0 || strcmp(device, "null") == 0 || strncmp(device, "cuda", 4) == 0;
    if (local) {
        gn_exec_desc d;
        gn__exec_desc_of(g, &d, device, &g->stats);
        return gn__exec_open(&d, &g->exec, f);
    }
    if (!gn__net) return gn_fail(f, GN_NO_DEVICE, "device '%.60s' is on a server, and this program was built without genie_net.c", strchr(device, '?') ? "genie://…" : device);
    gn_net_desc nd = { g->desc.home, g->desc.deadline_ms, g->desc.log, g->desc.log_user };
    gn_transport t = { NULL, NULL };
    gn_result r = gn__net->connect(device, &nd, &t, on_server, f);
    return r != GN_OK ? r : gn__remote_open(&g->desc, t, on_server, &g->stats, &g->exec, f);
}

static gn_ctx *gn__context_open(const gn_desc *desc, const gn_transport *t, const char *device) {
    gn_fault f = { GN_OUT_OF_MEMORY, GN_NO_NODE, "no memory for a context" };
    gn_ctx *g = gn__context_take();
    if (!g) { if (t) t->i->close(t->self); return &gn__no_context; }
    if (desc) g->desc = *desc;
    if (!g->desc.deadline_ms) g->desc.deadline_ms = 30000;
    g->max_nodes = g->desc.max_nodes ? g->desc.max_nodes : 1u << 21;
    g->status = gn__context_init(g) ? GN_OK : GN_OUT_OF_MEMORY;
    if (g->status == GN_OK) g->status = t ? gn__remote_open(&g->desc, *t, device ? device : "", &g->stats, &g->exec, &f) : gn__device_open(g, &f);
    else if (t) t->i->close(t->self);
    g->desc.devices = g->desc.home = g->desc.label = NULL;      /* the caller's strings need not outlive the call */
    if (g->status != GN_OK) {
        gn__error_set(g, g->status, "", f.text);
        gn_logf(g->desc.log, g->desc.log_user, GN_LOG_ERROR, "%s", f.text);
    }
    return g;
}

static void gn__context_free(gn_ctx *g) {
    for (size_t i = 0; i < g->n_plans; i++) {
        g->exec.i->plan_destroy(g->exec.self, g->plans[i].exec_plan);
        gn_free(g->plans[i].part);
        gn_free(g->plans[i].origins);
    }
    if (g->exec.i) g->exec.i->close(g->exec.self);
    for (size_t i = 0; i < g->n_data; i++) gn_free(g->data[i].owned);
    for (size_t i = 0; i < g->n_labels; i++) gn_free(g->labels[i]);
    for (size_t i = 0; i < g->n_slots; i++)
        if (g->slots[i].kind == GN_LEAF_STATE) gn_free((void *)(uintptr_t)g->slots[i].host);
    void *arrays[] = { g->nodes, g->ins, g->attrs, g->shapes, g->data, g->errors, g->labels, g->slots, g->pending, g->plans, g->shape_table, g->plan_table, g->label_table,
                       g->cut.nodes, g->cut.ins, g->cut.attrs, g->cut.dims, g->cut.args, g->cut.outs, g->cut.updates, g->cut.ids, g->cut.marks, g->cut.where };
    for (size_t i = 0; i < GN__LENGTH(arrays); i++) gn_free(arrays[i]);
}

static gn_result gn__step_end(gn_ctx *g) {
    gn_result r = GN_OK;
    if (g->failed_effect) r = gn__cut_error(g, GN_BAD_ARGUMENT, g->failed_effect);
    else if (g->n_pending) r = gn__submit(g, NULL, NULL, 0);
    if (g->exec.i->values_release) g->exec.i->values_release(g->exec.self, g->next_value);
    gn__step_clear(g);
    return r;
}

static gn_tensor gn__slot_make(gn_ctx *g, gn__loc at, gn_leaf_kind kind, const gn__type *t, const void *host, const char *label) {
    void *copy = NULL;
    gn_result why = GN_OK;
    size_t slot = 0;
    if (!gn__type_ok(t)) why = GN_BAD_SHAPE;
    else if (kind == GN_LEAF_WEIGHT && !host && gn__count(&t->shape)) why = GN_BAD_ARGUMENT;
    while (slot < g->n_slots && g->slots[slot].kind) slot++;
    if (why == GN_OK && kind == GN_LEAF_STATE && host) {
        copy = gn_alloc(gn__type_bytes(t));
        if (copy) memcpy(copy, host, gn__type_bytes(t));
        else why = GN_OUT_OF_MEMORY;
    }
    if (why == GN_OK && slot == g->n_slots && !GN__GROW(g, slots, 1)) why = GN_OUT_OF_MEMORY;
    if (why != GN_OK) {
        gn_free(copy);
        uint32_t bad = gn__failed_with(g, at, gn__op_leaf(kind), why, why == GN_BAD_SHAPE ? "a dtype, rank or dimension of '%s' is not valid, or it is too large" : why == GN_BAD_ARGUMENT ? "the host memory of '%s' is NULL" : "no memory for '%s'", label ? label : "");
        return gn__handle(g, bad);
    }
    if (slot == g->n_slots) g->n_slots++;
    memset(&g->slots[slot], 0, sizeof g->slots[slot]);
    gn__slot *s = &g->slots[slot];
    s->type = *t;
    s->host = kind == GN_LEAF_STATE ? copy : host;
    s->kind = kind;
    s->gen = ++g->gen;
    s->label = gn__label_intern(g, label);
    return (gn_tensor){ g, (uint32_t)slot | GN__SLOT_BIT, s->gen };
}

/* >>public ========================================================================================= */

void gn_register_net(const gn_net_i *net) { gn__net = net; }
void gn_register_driver(const gn_driver_i *driver) { gn__driver = driver; }

int gn_list_gpus(int index, char *out_text, size_t cap) {
    if (index < 0 || !out_text || cap == 0) return 0;
    if (gn__driver && gn__driver->list) return gn__driver->list(index, out_text, cap);
    return index == 0 ? snprintf(out_text, cap, "cuda: absent: genie_cuda.c is not linked into this program") : 0;
}

gn_result gn_layout_make(const gn_part *part, gn_layout *out_layout, gn_fault *f) { return gn__layout_make(part, out_layout, f); }
void gn_layout_deinit(gn_layout *l) { gn__layout_deinit(l); }

gn_ctx *gn_open(const gn_desc *desc) { return gn__context_open(desc, NULL, NULL); }
gn_ctx *gn_open_transport(const gn_desc *desc, gn_transport t, const char *device) { return gn__context_open(desc, &t, device); }

void gn_close(gn_ctx *g) {
    if (!g || !g->open) return;
    gn__context_free(g);
    gn__mutex_lock(&gn__contexts_lock);
    gn_ctx *next = g->next;
    uint32_t gen = g->gen;
    memset(g, 0, sizeof *g);
    g->next = next;
    g->gen = gen;
    g->opened_gen = UINT32_MAX;
    g->status = GN_CLOSED_CONTEXT;
    gn__error_set(g, GN_CLOSED_CONTEXT, "", gn__handle_text(GN_CLOSED_CONTEXT));
    gn__mutex_unlock(&gn__contexts_lock);
}

gn_result gn_status(gn_ctx *g) { return !g ? GN_BAD_ARGUMENT : g->open ? g->status : g == &gn__no_context ? GN_OUT_OF_MEMORY : GN_CLOSED_CONTEXT; }
const gn_error *gn_last_error(gn_ctx *g) {
    static const gn_error none = { .result = GN_BAD_ARGUMENT, .text = "no context was given" };
    return g ? &g->error : &none;
}
const char *gn_result_name(gn_result r) { return gn__result_name(r); }
const char *gn_result_text(gn_result r) { return gn__result_text(r); }

void gn_get_stats(gn_ctx *g, gn_stats *out_stats) {
    if (!out_stats) return;
    if (g) *out_stats = g->stats;
    else memset(out_stats, 0, sizeof *out_stats);
}

gn_result gn_get_device(gn_ctx *g, gn_device_info *out_info) {
    if (!out_info) return GN_BAD_ARGUMENT;
    memset(out_info, 0, sizeof *out_info);
    if (!gn__usable(g)) return gn_status(g);
    g->exec.i->describe(g->exec.self, out_info);
    return GN_OK;
}

gn_result gn_step(gn_ctx *g) { return gn__usable(g) ? gn__step_end(g) : gn_status(g); }

gn_result gn_sync(gn_ctx *g) {
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    if (!gn__usable(g)) return gn_status(g);
    gn_result r = g->exec.i->wait(g->exec.self, g->last_ticket, &f);
    return r == GN_OK ? r : gn__run_error(g, NULL, &f);
}

GN__COLD_END

/* ---- leaves ---- */

gn_tensor gn_data_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host) {
    gn__type t = { dtype, shape };
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__handle(g, gn__data_leaf(g, at, &t, host, NULL, 0)) : GN__DEAD(g);
}

gn_tensor gn_data_copy_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host) {
    gn__type t = { dtype, shape };
    gn__loc at = { file, line };
    if (!gn__usable(g)) return GN__DEAD(g);
    uint32_t id = gn__data_leaf(g, at, &t, host, NULL, 0);
    if (g->nodes[id].op == GN__OP_FAILED) return gn__handle(g, id);
    gn__data *d = &g->data[g->nodes[id].extra];
    d->owned = gn_alloc(d->bytes);
    if (!d->owned) return gn__handle(g, 0);
    if (d->bytes) memcpy(d->owned, host, d->bytes);
    return gn__handle(g, id);
}

gn_tensor gn_scalar_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, double value) {
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__handle(g, gn__scalar_leaf(g, at, dtype, value)) : GN__DEAD(g);
}

gn_tensor gn_weight_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host, const char *label) {
    gn__type t = { dtype, shape };
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__slot_make(g, at, GN_LEAF_WEIGHT, &t, host, label) : GN__DEAD(g);
}

gn_tensor gn_state_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, const void *host, const char *label) {
    gn__type t = { dtype, shape };
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__slot_make(g, at, GN_LEAF_STATE, &t, host, label) : GN__DEAD(g);
}

gn_result gn_release(gn_tensor slot) {
    gn_ctx *g = slot.ctx;
    gn_result why;
    if (!gn__usable(g)) return gn_status(g);
    if (!(slot.id & GN__SLOT_BIT)) return gn__error_set(g, GN_NOT_A_STATE, "", "only a weight or a state is released");
    gn__resolve(g, slot, &why);
    if (why != GN_OK) return gn__error_set(g, why, "", gn__handle_text(why));
    gn__slot *s = &g->slots[slot.id & ~GN__SLOT_BIT];
    if (s->pending) return gn__error_set(g, GN_BAD_ARGUMENT, "", "the state has a pending version: end the step first");
    if (s->on_device) g->exec.i->slot_drop(g->exec.self, slot.id & ~GN__SLOT_BIT, s->gen);
    if (s->kind == GN_LEAF_STATE) gn_free((void *)(uintptr_t)s->host);
    memset(s, 0, sizeof *s);
    return GN_OK;
}

gn_tensor gn_full_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape, double value) {
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__handle(g, gn__full(g, at, dtype, &shape, value)) : GN__DEAD(g);
}

gn_tensor gn_arange_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, int64_t n, double start, double step) {
    gn__loc at = { file, line };
    int64_t attrs[4] = { dtype, n, gn__f64_word(start), gn__f64_word(step) };
    return gn__usable(g) ? gn__handle(g, gn__build(g, at, GN__OP_ARANGE, 0, NULL, 4, attrs)) : GN__DEAD(g);
}

gn_tensor gn_random_uniform_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape) {
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__handle(g, gn__random_node(g, at, GN__OP_RANDOM_UNIFORM, dtype, &shape)) : GN__DEAD(g);
}

gn_tensor gn_random_normal_at(const char *file, int line, gn_ctx *g, gn_dtype dtype, gn_shape shape) {
    gn__loc at = { file, line };
    return gn__usable(g) ? gn__handle(g, gn__random_node(g, at, GN__OP_RANDOM_NORMAL, dtype, &shape)) : GN__DEAD(g);
}

/* ---- ops ---- */

/* Builds an op from handles: `first` is the first input that takes part in promotion, -1: none. */
static gn_tensor gn__op(const char *file, int line, int op, const gn_tensor *in, int n_in, int first, const int64_t *attrs, int n_attrs) {
    gn_ctx *g = in[0].ctx;
    gn__loc at = { file, line };
    uint32_t x[GN__MAX_INPUTS];
    for (int i = 1; i < n_in && !g; i++) g = in[i].ctx;       /* the error of a missing input goes where it can be read */
    if (!gn__usable(g)) return GN__DEAD(g);
    if (n_in > GN__MAX_INPUTS) return gn__handle(g, gn__failed_with(g, at, op, GN_BAD_ARGUMENT, "%d inputs are more than %d", n_in, GN__MAX_INPUTS));
    gn__inputs(g, at, op, in, n_in, x);
    return gn__handle(g, first >= 0 ? gn__build_promoted(g, at, op, n_in, x, first, n_attrs, attrs) : gn__build(g, at, op, n_in, x, n_attrs, attrs));
}

#define GN__P1(NAME, name, ...) gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a) { return gn__op(file, line, GN__OP_##NAME, &a, 1, -1, NULL, 0); }
#define GN__P2(NAME, name, ...) gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_tensor b) { gn_tensor in[2] = { a, b }; return gn__op(file, line, GN__OP_##NAME, in, 2, 0, NULL, 0); }
#define GN__NO(...)
#define GN__P3(NAME, name, ...) gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_tensor b, gn_tensor c) { gn_tensor in[3] = { a, b, c }; return gn__op(file, line, GN__OP_##NAME, in, 3, 0, NULL, 0); }
GN__SCALAR_OPS(GN__P1, GN__P2, GN__P1, GN__P2, GN__P2, GN__NO, GN__P3)
#undef GN__P3
#undef GN__P1
#undef GN__P2
#undef GN__NO

gn_tensor gn_where_at(const char *file, int line, gn_tensor cond, gn_tensor a, gn_tensor b) {
    gn_tensor in[3] = { cond, a, b };
    return gn__op(file, line, GN__OP_WHERE, in, 3, 1, NULL, 0);
}

gn_tensor gn_cast_at(const char *file, int line, gn_tensor a, gn_dtype dtype) {
    int64_t attr = dtype;
    return gn__op(file, line, GN__OP_CAST, &a, 1, -1, &attr, 1);
}

gn_tensor gn_clamp_at(const char *file, int line, gn_tensor a, double lo, double hi) {
    int64_t attrs[2] = { gn__f64_word(lo), gn__f64_word(hi) };
    return gn__op(file, line, GN__OP_CLAMP, &a, 1, -1, attrs, 2);
}

gn_tensor gn_like_at(const char *file, int line, gn_tensor a, double value) {
    gn_ctx *g = a.ctx;
    gn__loc at = { file, line };
    gn_shape s = GN_SCALAR;
    uint32_t x;
    if (!gn__usable(g)) return GN__DEAD(g);
    gn__inputs(g, at, GN__OP_FULL, &a, 1, &x);
    return gn__handle(g, g->nodes[x].op == GN__OP_FAILED ? x : gn__full(g, at, (gn_dtype)g->nodes[x].dtype, &s, value));
}

/* Axes to bits; an axis out of range or named twice gives -1, which the shape rule refuses. */
static int64_t gn__axes_bits(gn_tensor a, gn_axes axes) {
    gn_result why;
    if (!gn__usable(a.ctx)) return 0;
    uint32_t id = gn__resolve(a.ctx, a, &why);
    int rank = why == GN_OK && a.ctx->nodes[id].op != GN__OP_FAILED ? gn__shape_of(a.ctx, id)->rank : 0;
    int64_t bits = axes.n == 0 ? ((int64_t)1 << rank) - 1 : 0;
    for (int i = 0; i < axes.n && i < GN_MAX_RANK; i++) {
        int axis = gn__axis(axes.axis[i], rank);
        if (axis < 0 || (bits >> axis) & 1) return -1;
        bits |= (int64_t)1 << axis;
    }
    return axes.n < 0 || axes.n > GN_MAX_RANK ? -1 : bits;
}

#define GN__PR(NAME, name)                                                                                          \
    gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {                    \
        int64_t attrs[2] = { gn__axes_bits(a, axes), keep };                                                        \
        return gn__op(file, line, GN__OP_##NAME, &a, 1, -1, attrs, 2);                                              \
    }
GN__PR(SUM, sum)
GN__PR(MEAN, mean)
GN__PR(MAX, max)
GN__PR(MIN, min)
GN__PR(ARGMAX, argmax)
GN__PR(ARGMIN, argmin)
GN__PR(PROD, prod)
#undef GN__PR

gn_tensor gn_softmax_at(const char *file, int line, gn_tensor a, int axis) {
    int64_t attr = axis;
    return gn__op(file, line, GN__OP_SOFTMAX, &a, 1, -1, &attr, 1);
}

gn_tensor gn_log_softmax_at(const char *file, int line, gn_tensor a, int axis) {
    int64_t attr = axis;
    return gn__op(file, line, GN__OP_LOG_SOFTMAX, &a, 1, -1, &attr, 1);
}

gn_tensor gn_layernorm_at(const char *file, int line, gn_tensor a, gn_tensor gain, gn_tensor bias, double eps) {
    gn_tensor in[3] = { a, gain, bias };
    int64_t attrs[2] = { gn__f64_word(eps), (gain.ctx ? 1 : 0) | (bias.ctx ? 2 : 0) };
    if (!gain.ctx) in[1] = bias;
    return gn__op(file, line, GN__OP_LAYERNORM, in, 1 + (gain.ctx != NULL) + (bias.ctx != NULL), -1, attrs, 2);
}

gn_tensor gn_matmul_at(const char *file, int line, gn_tensor a, gn_tensor b) {
    gn_tensor in[2] = { a, b };
    return gn__op(file, line, GN__OP_MATMUL, in, 2, -1, NULL, 0);
}

gn_tensor gn_linear_at(const char *file, int line, gn_tensor x, gn_tensor w, gn_tensor b) {
    gn_tensor in[3] = { x, w, b };
    return gn__op(file, line, GN__OP_LINEAR, in, b.ctx ? 3 : 2, -1, NULL, 0);
}

/* Dims as attributes; a rank that is not valid becomes one word too many, which the shape rule refuses. */
static gn_tensor gn__dims_of(const char *file, int line, int op, gn_tensor a, const gn_shape *s) {
    int64_t attrs[GN_MAX_RANK + 1] = { 0 };
    int n = s->rank < 0 || s->rank > GN_MAX_RANK ? GN_MAX_RANK + 1 : s->rank;
    for (int i = 0; i < n && i < GN_MAX_RANK; i++) attrs[i] = s->dims[i];
    return gn__op(file, line, op, &a, 1, -1, attrs, n);
}

gn_tensor gn_reshape_at(const char *file, int line, gn_tensor a, gn_shape shape) { return gn__dims_of(file, line, GN__OP_RESHAPE, a, &shape); }
gn_tensor gn_broadcast_at(const char *file, int line, gn_tensor a, gn_shape shape) { return gn__dims_of(file, line, GN__OP_BROADCAST, a, &shape); }

gn_tensor gn_permute_at(const char *file, int line, gn_tensor a, gn_axes order) {
    gn_shape s = { order.n, { 0 } };
    for (int i = 0; i < order.n && i < GN_MAX_RANK; i++) s.dims[i] = order.axis[i];
    return gn__dims_of(file, line, GN__OP_PERMUTE, a, &s);
}

gn_tensor gn_transpose_at(const char *file, int line, gn_tensor a, int axis0, int axis1) {
    gn_result why = GN_OK;
    gn_shape order = GN_SCALAR;
    if (!gn__usable(a.ctx)) return GN__DEAD(a.ctx);
    uint32_t id = gn__resolve(a.ctx, a, &why);
    if (why == GN_OK && a.ctx->nodes[id].op != GN__OP_FAILED) {
        order.rank = gn__shape_of(a.ctx, id)->rank;
        int x = gn__axis(axis0, order.rank), y = gn__axis(axis1, order.rank);
        for (int i = 0; i < order.rank; i++) order.dims[i] = x < 0 || y < 0 ? order.rank : i == x ? y : i == y ? x : i;
        if (x < 0 || y < 0) order.rank = GN_MAX_RANK + 1;
    }
    return gn__dims_of(file, line, GN__OP_PERMUTE, a, &order);
}

gn_tensor gn_slice_at(const char *file, int line, gn_tensor a, int axis, int64_t begin, int64_t end, int64_t step) {
    int64_t attrs[4] = { axis, begin, end, step };
    return gn__op(file, line, GN__OP_SLICE, &a, 1, -1, attrs, 4);
}

gn_tensor gn_slice_put_at(const char *file, int line, gn_tensor a, gn_tensor b, int axis, int64_t begin, int64_t end, int64_t step) {
    gn_tensor in[2] = { a, b };
    int64_t attrs[4] = { axis, begin, end, step };
    return gn__op(file, line, GN__OP_SLICE_PUT, in, 2, -1, attrs, 4);
}

gn_tensor gn_concat_at(const char *file, int line, const gn_tensor *parts, int n, int axis) {
    int64_t attr = axis;
    if (n < 1 || !parts) return GN_NONE;
    if (n <= GN__MAX_INPUTS) return gn__op(file, line, GN__OP_CONCAT, parts, n, -1, &attr, 1);
    gn_tensor two[2] = { gn_concat_at(file, line, parts, GN__MAX_INPUTS, axis), GN_NONE };
    for (int i = GN__MAX_INPUTS; i < n; i += GN__MAX_INPUTS) {   /* more than a node takes: piece by piece */
        two[1] = gn__op(file, line, GN__OP_CONCAT, parts + i, GN__MIN(n - i, (int)GN__MAX_INPUTS), -1, &attr, 1);
        two[0] = gn__op(file, line, GN__OP_CONCAT, two, 2, -1, &attr, 1);
    }
    return two[0];
}

gn_tensor gn_gather_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index) {
    gn_tensor in[2] = { a, index };
    int64_t attr = axis;
    return gn__op(file, line, GN__OP_GATHER, in, 2, -1, &attr, 1);
}

gn_tensor gn_embedding_at(const char *file, int line, gn_tensor table, gn_tensor ids) {
    gn_tensor in[2] = { table, ids };
    return gn__op(file, line, GN__OP_EMBEDDING, in, 2, -1, NULL, 0);
}

gn_tensor gn_one_hot_at(const char *file, int line, gn_tensor ids, int64_t depth, gn_dtype dtype) {
    int64_t attrs[2] = { depth, dtype };
    return gn__op(file, line, GN__OP_ONE_HOT, &ids, 1, -1, attrs, 2);
}

gn_tensor gn_scatter_add_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src) {
    gn_tensor in[3] = { a, index, src };
    int64_t attr = axis;
    return gn__op(file, line, GN__OP_SCATTER_ADD, in, 3, -1, &attr, 1);
}

gn_tensor gn_cross_entropy_at(const char *file, int line, gn_tensor logits, gn_tensor targets) {
    gn_tensor in[2] = { logits, targets };
    return gn__op(file, line, GN__OP_CROSS_ENTROPY, in, 2, -1, NULL, 0);
}

gn_tensor gn_mse_loss_at(const char *file, int line, gn_tensor a, gn_tensor b) {
    gn_tensor in[2] = { a, b };
    return gn__op(file, line, GN__OP_MSE_LOSS, in, 2, 0, NULL, 0);
}

gn_tensor gn_attention_at(const char *file, int line, gn_tensor q, gn_tensor k, gn_tensor v, const gn_attention_desc *desc) {
    gn_attention_desc d = { 0 };
    gn_tensor in[5] = { q, k, v };
    int n = 3;
    if (desc) d = *desc;
    if (d.mask.ctx) in[n++] = d.mask;
    if (d.length.ctx) in[n++] = d.length;
    int64_t attrs[2] = { (d.causal ? 1 : 0) | (d.mask.ctx ? 2 : 0) | (d.length.ctx ? 4 : 0), gn__f64_word(d.scale) };
    return gn__op(file, line, GN__OP_ATTENTION, in, n, -1, attrs, 2);
}

gn_tensor gn_apply_at(const char *file, int line, gn_ctx *g, uint16_t wire, const gn_tensor *in, int n_in, const int64_t *attrs, int n_attrs) {
    gn__loc at = { file, line };
    uint32_t x[GN__MAX_INPUTS];
    int op = gn__op_by_wire(wire);
    if (!gn__usable(g)) return GN__DEAD(g);
    if (op < 0 || n_in < 0 || n_in > GN__MAX_INPUTS) return gn__handle(g, gn__failed_with(g, at, GN__OP_FAILED, GN_BAD_ARGUMENT, "there is no op %u with %d inputs", wire, n_in));
    gn__inputs(g, at, op, in, n_in, x);
    return gn__handle(g, gn__build(g, at, op, n_in, x, n_attrs, attrs));
}

GN__COLD_BEGIN

/* ---- states ---- */

gn_tensor gn_assign_at(const char *file, int line, gn_tensor state, gn_tensor value) {
    gn_ctx *g = state.ctx;
    gn__loc at = { file, line };
    gn_tensor in[2] = { state, value };
    uint32_t x[2];
    if (!gn__usable(g)) return GN__DEAD(g);
    gn__inputs(g, at, GN__OP_ASSIGN, in, 2, x);
    return gn__handle(g, gn__assign_node(g, at, x[0], x[1]));
}

gn_tensor gn_kv_append_at(const char *file, int line, gn_tensor cache, gn_tensor rows, gn_tensor pos) {
    gn_ctx *g = cache.ctx;
    gn__loc at = { file, line };
    gn_tensor in[3] = { cache, rows, pos };
    uint32_t x[3];
    if (!gn__usable(g)) return GN__DEAD(g);
    gn__inputs(g, at, GN__OP_KV_APPEND, in, 3, x);
    return gn__handle(g, gn__kv_append_node(g, at, x[0], x[1], x[2]));
}

/* ---- values ---- */

/* Handles to nodes for a read; an error is complete in gn_last_error. */
static gn_result gn__roots(gn_ctx *g, const gn_tensor *t, int n, uint32_t *out) {
    for (int i = 0; i < n; i++) {
        gn_result why;
        out[i] = gn__resolve(g, t[i], &why);
        if (why != GN_OK) return gn__error_set(g, why, "", gn__handle_text(why));
        if (g->nodes[out[i]].op == GN__OP_FAILED) return gn__cut_error(g, GN_BAD_ARGUMENT, out[i]);
    }
    return g->failed_effect ? gn__cut_error(g, GN_BAD_ARGUMENT, g->failed_effect) : GN_OK;
}

static gn_result gn__values(gn_ctx *g, const gn_tensor *t, int n, void *const *out, const size_t *bytes) {
    if (n <= 0 || (size_t)n > SIZE_MAX / sizeof(gn_out)) return n == 0 ? GN_OK : gn__error_set(g, GN_BAD_ARGUMENT, "", "the number of tensors is negative");
    uint32_t *roots = (uint32_t *)gn_alloc((size_t)n * sizeof *roots);
    gn_out *outs = (gn_out *)gn__alloc_zero((size_t)n * sizeof *outs);
    gn_result r = roots && outs ? gn__roots(g, t, n, roots) : gn__error_set(g, GN_OUT_OF_MEMORY, "", "no memory for a read");
    for (int i = 0; i < n && r == GN_OK && out; i++) {
        gn__type type = gn__type_of(g, roots[i]);
        char text[96];
        gn_fault f;
        if (bytes[i] != gn__type_bytes(&type)) {
            const gn__node *nd = &g->nodes[roots[i]];
            gn_fail(&f, GN_BAD_SIZE, "%s holds %llu bytes, the buffer %llu", gn__type_text(&type, text, sizeof text), (unsigned long long)gn__type_bytes(&type), (unsigned long long)bytes[i]);
            r = gn__error_node(g, &f, nd->file, nd->line, nd->op, nd->label);
        } else if (!out[i] && bytes[i]) r = gn__error_set(g, GN_BAD_ARGUMENT, "", "the buffer is NULL");
        static char nothing;
        outs[i] = (gn_out){ out[i] ? out[i] : &nothing, bytes[i], 0 };
    }
    if (r == GN_OK) r = gn__submit(g, roots, outs, n);
    gn_free(roots);
    gn_free(outs);
    return r;
}

gn_result gn_read_many(const gn_tensor *t, int n, void *const *out, const size_t *bytes) {
    if (n <= 0 || !t || !out || !bytes) return n == 0 ? GN_OK : GN_BAD_ARGUMENT;
    return gn__usable(t[0].ctx) ? gn__values(t[0].ctx, t, n, out, bytes) : gn_status(t[0].ctx);
}
gn_result gn_read(gn_tensor t, void *out, size_t bytes) { return gn__usable(t.ctx) ? gn__values(t.ctx, &t, 1, &out, &bytes) : gn_status(t.ctx); }

gn_result gn_realize(const gn_tensor *t, int n) {
    if (n <= 0 || !t) return n == 0 ? GN_OK : GN_BAD_ARGUMENT;
    return gn__usable(t[0].ctx) ? gn__values(t[0].ctx, t, n, NULL, NULL) : gn_status(t[0].ctx);
}

gn_result gn_describe(gn_tensor t, gn_info *out) {
    gn_ctx *g = t.ctx;
    if (!out) return GN_BAD_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->op = out->label = "";
    out->phase = gn__phase_names[0];
    out->residency = "activation";
    if (!gn__usable(g)) return out->result = gn_status(g);
    uint32_t id = gn__resolve(g, t, &out->result);
    if (out->result != GN_OK) return gn__error_set(g, out->result, "", gn__handle_text(out->result));
    const gn__node *n = &g->nodes[id];
    gn__type type = gn__type_of(g, id);
    out->op = gn__ops[n->op].name;
    out->label = gn__label_text(g, n->label);
    if (n->op == GN__OP_FAILED) return out->result = gn__cut_error(g, GN_BAD_ARGUMENT, id);
    out->dtype = type.dtype;
    out->shape = type.shape;
    out->bytes = gn__type_bytes(&type);
    out->flops = gn__node_flops(g, id);
    out->phase = gn__phase_names[n->phase];
    out->residency = gn__residency_name(g, id);
    out->computed = n->leaf || n->committed || n->value;
    if (!out->computed || n->leaf == GN_LEAF_DATA) return GN_OK;
    gn_device_info d;
    g->exec.i->describe(g->exec.self, &d);
    if (!n->slot || g->slots[n->slot - 1].on_device) gn__copy_text(out->device, sizeof out->device, d.name);
    return GN_OK;
}

gn_tensor gn_label(gn_tensor t, const char *label) {
    gn_ctx *g = t.ctx;
    gn_result why;
    if (!gn__usable(g)) return t;
    uint32_t id = gn__resolve(g, t, &why);
    if (why != GN_OK || !id) return t;
    uint32_t text = gn__label_intern(g, label);
    if (g->nodes[id].op != GN__OP_FAILED || !g->nodes[id].label) g->nodes[id].label = text;
    if (t.id & GN__SLOT_BIT) g->slots[t.id & ~GN__SLOT_BIT].label = text;
    return t;
}

void gn_phase(gn_ctx *g, gn_phase_kind phase) {
    if (gn__usable(g) && (int)phase >= 0 && phase < GN_PHASE__COUNT) g->phase = (uint8_t)phase;
}



/* ---- gradients and optimisers ---- */

static const char gn__bad_parameters[] = "the number of parameters is negative, or an array of tensors is NULL";

gn_result gn_grad_at(const char *file, int line, gn_tensor loss, const gn_tensor *params, int n, gn_tensor *out_grads) {
    gn_ctx *g = loss.ctx;
    gn__loc at = { file, line };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result why;
    for (int i = 0; i < n && out_grads; i++) out_grads[i] = GN_NONE;
    if (!gn__usable(g)) return gn_status(g);
    if (n <= 0 || !params || !out_grads) return n == 0 ? GN_OK : gn__error_set(g, GN_BAD_ARGUMENT, "", gn__bad_parameters);
    uint32_t *x = (uint32_t *)gn_alloc((size_t)n * sizeof *x), *gx = (uint32_t *)gn__alloc_zero((size_t)n * sizeof *gx);
    gn_result r = x && gx ? gn__roots(g, params, n, x) : gn__error_set(g, GN_OUT_OF_MEMORY, "", "no memory for the gradients");
    uint32_t root = gn__resolve(g, loss, &why);
    if (r == GN_OK && why != GN_OK) r = gn__error_set(g, why, "", gn__handle_text(why));
    if (r == GN_OK && g->nodes[root].op == GN__OP_FAILED) r = gn__cut_error(g, GN_BAD_ARGUMENT, root);
    if (r == GN_OK && (r = gn__gradients(g, at, root, x, n, gx, &f)) != GN_OK) gn__error_node(g, &f, file, (uint32_t)line, -1, g->nodes[root].label);
    for (int i = 0; i < n && gx; i++)
        out_grads[i] = gn__handle(g, gx[i] ? gx[i] : gn__failed_with(g, at, GN__OP_FAILED, GN_NO_GRADIENT, "%s", g->error.text));
    gn_free(x);
    gn_free(gx);
    return r;
}

/* Builders for the optimisers: arithmetic on nodes of one dtype, with the gradients' helpers. */
typedef struct gn__optimiser { gn__grads k; gn_result r; } gn__optimiser;

static bool gn__optimiser_begin(gn__optimiser *o, gn_ctx *g, gn__loc at, const gn_tensor *t, int n, uint32_t *out) {
    memset(o, 0, sizeof *o);
    o->k.g = g;
    o->k.at = at;
    o->r = gn__roots(g, t, n, out);
    o->k.gy = out[0];
    return o->r == GN_OK;
}

static gn_result gn__assigned(gn_ctx *g, uint32_t id) { return g->nodes[id].op == GN__OP_FAILED ? gn__cut_error(g, GN_BAD_ARGUMENT, id) : GN_OK; }

gn_result gn_sgd_at(const char *file, int line, const gn_sgd_desc *d, const gn_tensor *params, const gn_tensor *grads, const gn_tensor *velocity, int n) {
    gn__loc at = { file, line };
    gn_ctx *g = d ? d->lr.ctx : NULL;
    if (!gn__usable(g)) return gn_status(g);
    if (n < 0 || (n > 0 && (!params || !grads))) return gn__error_set(g, GN_BAD_ARGUMENT, "", gn__bad_parameters);
    if (d->momentum != 0 && !velocity) return gn__error_set(g, GN_BAD_ARGUMENT, "", "momentum needs velocity states");
    for (int i = 0; i < n; i++) {
        gn__optimiser o;
        gn_tensor in[4] = { params[i], grads[i], d->lr, d->momentum != 0 ? velocity[i] : params[i] };
        uint32_t x[4];
        if (!gn__optimiser_begin(&o, g, at, in, 4, x)) return o.r;
        gn__grads *k = &o.k;
        uint32_t step = x[1];
        if (d->weight_decay != 0) step = gn__add(k, step, gn__mul(k, x[0], gn__num(k, d->weight_decay)));
        if (d->momentum != 0) step = gn__assign_node(g, at, x[3], gn__add(k, gn__mul(k, x[3], gn__num(k, d->momentum)), step));
        if ((o.r = gn__assigned(g, gn__assign_node(g, at, x[0], gn__sub(k, x[0], gn__mul(k, step, x[2]))))) != GN_OK) return o.r;
    }
    return GN_OK;
}

gn_result gn_adamw_at(const char *file, int line, const gn_adamw_desc *d, const gn_tensor *params, const gn_tensor *grads, const gn_tensor *m, const gn_tensor *v, int n) {
    gn__loc at = { file, line };
    gn_ctx *g = d ? d->lr.ctx : NULL;
    if (!gn__usable(g)) return gn_status(g);
    if (n < 0 || (n > 0 && (!params || !grads || !m || !v))) return gn__error_set(g, GN_BAD_ARGUMENT, "", gn__bad_parameters);
    double b1 = d->beta1 != 0 ? d->beta1 : 0.9, b2 = d->beta2 != 0 ? d->beta2 : 0.999, eps = d->eps != 0 ? d->eps : 1e-8;
    for (int i = 0; i < n; i++) {
        gn__optimiser o;
        gn_tensor in[6] = { params[i], grads[i], d->lr, d->step, m[i], v[i] };
        uint32_t x[6];
        if (!gn__optimiser_begin(&o, g, at, in, 6, x)) return o.r;
        gn__grads *k = &o.k;
        uint32_t m2 = gn__assign_node(g, at, x[4], gn__add(k, gn__mul(k, x[4], gn__num(k, b1)), gn__mul(k, x[1], gn__num(k, 1 - b1))));
        uint32_t v2 = gn__assign_node(g, at, x[5], gn__add(k, gn__mul(k, x[5], gn__num(k, b2)), gn__mul(k, gn__mul(k, x[1], x[1]), gn__num(k, 1 - b2))));
        uint32_t c1 = gn__sub(k, gn__num(k, 1), gn__pow(k, gn__num(k, b1), x[3])), c2 = gn__sub(k, gn__num(k, 1), gn__pow(k, gn__num(k, b2), x[3]));
        uint32_t step = gn__div(k, gn__div(k, m2, c1), gn__add(k, gn__sqrt(k, gn__div(k, v2, c2)), gn__num(k, eps)));
        if (d->weight_decay != 0) step = gn__add(k, step, gn__mul(k, x[0], gn__num(k, d->weight_decay)));
        if ((o.r = gn__assigned(g, gn__assign_node(g, at, x[0], gn__sub(k, x[0], gn__mul(k, step, x[2]))))) != GN_OK) return o.r;
    }
    return GN_OK;
}

/* ---- dtypes, memory, table ---- */

size_t gn_dtype_bytes(gn_dtype d) { return gn__bytes_of(d); }
const char *gn_dtype_name(gn_dtype d) { return gn__dtype_ok((int)d) ? gn__dtypes[d].name : "none"; }
float gn_f16_to_f32(uint16_t bits) { return gn__f16_f32(bits); }
uint16_t gn_f32_to_f16(float x) { return gn__f32_f16(x); }
float gn_bf16_to_f32(uint16_t bits) { return gn__bf16_f32(bits); }
uint16_t gn_f32_to_bf16(float x) { return gn__f32_bf16(x); }

void *gn_host_alloc(gn_ctx *g, size_t bytes) {
    if (gn__usable(g) && g->exec.i->host_alloc) return g->exec.i->host_alloc(g->exec.self, bytes);
    char *raw = bytes < SIZE_MAX - 8192 ? (char *)gn_alloc(bytes + 4096 + sizeof raw) : NULL;   /* page-aligned, the block's start just below */
    if (!raw) return NULL;
    uintptr_t p = ((uintptr_t)raw + sizeof raw + 4095) & ~(uintptr_t)4095;
    memcpy((char *)p - sizeof raw, &raw, sizeof raw);
    return (void *)p;
}

void gn_host_free(gn_ctx *g, void *p) {
    char *raw;
    if (!p) return;
    if (gn__usable(g) && g->exec.i->host_alloc) { g->exec.i->host_free(g->exec.self, p); return; }
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    gn_free(raw);
}

int gn_op_count(void) { return GN__OP__COUNT - 1; }

gn_result gn_get_op(int index, gn_op_info *out) {
    if (index < 0 || index >= gn_op_count() || !out) return GN_BAD_ARGUMENT;
    const gn__op_row *o = &gn__ops[index + 1];
    *out = (gn_op_info){ o->name, o->wire, (gn_op_class)o->kind, o->least == o->most ? o->least : -1, o->dtypes, o->compares, o->grad != NULL, o->tolerance, o->text };
    return GN_OK;
}

GN__COLD_END

GN__COLD_BEGIN

/* ---- composites: ops said with the ops above. f16 and bf16 are widened to f32 where sums or differences would lose bits ---- */

#define GN__AT file, line

/* The text's first word is the op, which has no row of its own. */
GN__PRINTF(5, 6) static gn_tensor gn__refuse(const char *file, int line, gn_ctx *g, gn_result r, const char *format, ...) {
    gn__loc at = { file, line };
    gn_fault f;
    va_list args;
    va_start(args, format);
    gn__fail_v(&f, r, format, args);
    va_end(args);
    uint32_t bad = gn__failed(g, at, GN__OP_FAILED, &f);
    char *op = bad ? g->errors[g->nodes[bad].extra].op : NULL;
    if (op) memcpy(op, f.text, GN__MIN(strcspn(f.text, " :"), sizeof g->error.op - 1));       /* the rest of op is 0 */
    return gn__handle(g, bad);
}

/* True with the tensor's type; false with what to return instead in *out_bad. */
static bool gn__known(const char *file, int line, gn_tensor a, gn__type *out, gn_tensor *out_bad) {
    gn__loc at = { file, line };
    uint32_t x;
    if (!gn__usable(a.ctx)) { *out_bad = GN__DEAD(a.ctx); return false; }
    gn__inputs(a.ctx, at, GN__OP_FAILED, &a, 1, &x);
    *out_bad = gn__handle(a.ctx, x);
    if (a.ctx->nodes[x].op == GN__OP_FAILED) return false;
    *out = gn__type_of(a.ctx, x);
    return true;
}

/* The same for floats alone. */
static bool gn__known_float(const char *file, int line, const char *op, gn_tensor a, gn__type *out, gn_tensor *out_bad) {
    if (!gn__known(GN__AT, a, out, out_bad)) return false;
    if (gn__is_float(out->dtype)) return true;
    *out_bad = gn__refuse(GN__AT, a.ctx, GN_BAD_DTYPE, "%s does not take %s", op, gn__dtypes[out->dtype].name);
    return false;
}

/* The same with an axis of the tensor; *axis becomes its place from the front. */
static bool gn__known_axis(const char *file, int line, const char *op, gn_tensor a, int *axis, gn__type *out, gn_tensor *out_bad) {
    if (!gn__known(GN__AT, a, out, out_bad)) return false;
    int at = gn__axis(*axis, out->shape.rank);
    if (at < 0) *out_bad = gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "%s: axis %d is outside a tensor of rank %d", op, *axis, out->shape.rank);
    *axis = at;
    return at >= 0;
}

static gn_tensor gn__to_dtype(const char *file, int line, gn_tensor a, gn_dtype d) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    return t.dtype == d ? a : gn_cast_at(GN__AT, a, d);
}

static gn_dtype gn__wide_dtype(gn_dtype d) { return d == GN_F16 || d == GN_BF16 ? GN_F32 : d; }

static gn_tensor gn__widened(const char *file, int line, gn_tensor a) {
    gn__type t;
    gn_tensor bad;
    return gn__known(GN__AT, a, &t, &bad) ? gn__to_dtype(GN__AT, a, gn__wide_dtype(t.dtype)) : bad;
}

static gn_axes gn__one_axis(int axis) { return (gn_axes){ 1, { axis } }; }

#define GN__PN(name) gn_tensor gn_##name##_c_at(const char *file, int line, gn_tensor a, double c) { return gn_##name##_at(GN__AT, a, gn_like_at(GN__AT, a, c)); }
GN__PN(add) GN__PN(sub) GN__PN(mul) GN__PN(div) GN__PN(pow) GN__PN(minimum) GN__PN(maximum)
GN__PN(eq) GN__PN(ne) GN__PN(lt) GN__PN(le) GN__PN(gt) GN__PN(ge)
#undef GN__PN

static gn_tensor gn__is_set(const char *file, int line, gn_tensor a) { return gn_ne_at(GN__AT, a, gn_like_at(GN__AT, a, 0)); }

/* ---- of one element ---- */

gn_tensor gn_isnan_at(const char *file, int line, gn_tensor a) { return gn_ne_at(GN__AT, a, a); }

gn_tensor gn_isinf_at(const char *file, int line, gn_tensor a) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    return gn__is_float(t.dtype) ? gn_eq_at(GN__AT, gn_abs_at(GN__AT, a), gn_like_at(GN__AT, a, INFINITY)) : gn_ne_at(GN__AT, a, a);
}

gn_tensor gn_isfinite_at(const char *file, int line, gn_tensor a) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    return gn__is_float(t.dtype) ? gn_lt_at(GN__AT, gn_abs_at(GN__AT, a), gn_like_at(GN__AT, a, INFINITY)) : gn_eq_at(GN__AT, a, a);
}

gn_tensor gn_logical_not_at(const char *file, int line, gn_tensor a) { return gn_eq_at(GN__AT, a, gn_like_at(GN__AT, a, 0)); }
gn_tensor gn_logical_and_at(const char *file, int line, gn_tensor a, gn_tensor b) { return gn_and_at(GN__AT, gn__is_set(GN__AT, a), gn__is_set(GN__AT, b)); }
gn_tensor gn_logical_or_at(const char *file, int line, gn_tensor a, gn_tensor b) { return gn_or_at(GN__AT, gn__is_set(GN__AT, a), gn__is_set(GN__AT, b)); }
gn_tensor gn_logical_xor_at(const char *file, int line, gn_tensor a, gn_tensor b) { return gn_xor_at(GN__AT, gn__is_set(GN__AT, a), gn__is_set(GN__AT, b)); }

gn_tensor gn_prelu_at(const char *file, int line, gn_tensor a, gn_tensor slope) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "prelu", a, &t, &bad)) return bad;
    return gn_where_at(GN__AT, gn_lt_at(GN__AT, a, gn_like_at(GN__AT, a, 0)), gn_mul_at(GN__AT, a, slope), a);
}

gn_tensor gn_leaky_relu_at(const char *file, int line, gn_tensor a, double slope) { return gn_prelu_at(GN__AT, a, gn_like_at(GN__AT, a, slope)); }

gn_tensor gn_celu_at(const char *file, int line, gn_tensor a, double alpha) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "celu", a, &t, &bad)) return bad;
    if (!(alpha > 0)) return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "celu: alpha %g is not above 0", alpha);
    gn_tensor zero = gn_like_at(GN__AT, a, 0), below = gn_minimum_at(GN__AT, a, zero);       /* no infinity where a is above */
    gn_tensor curve = gn_mul_c_at(GN__AT, gn_expm1_at(GN__AT, gn_div_at(GN__AT, below, gn_like_at(GN__AT, a, alpha))), alpha);
    return gn_where_at(GN__AT, gn_gt_at(GN__AT, a, zero), a, curve);
}

gn_tensor gn_elu_at(const char *file, int line, gn_tensor a, double alpha) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "elu", a, &t, &bad)) return bad;
    gn_tensor zero = gn_like_at(GN__AT, a, 0), below = gn_minimum_at(GN__AT, a, zero);
    return gn_where_at(GN__AT, gn_gt_at(GN__AT, a, zero), a, gn_mul_c_at(GN__AT, gn_expm1_at(GN__AT, below), alpha));
}

gn_tensor gn_masked_fill_at(const char *file, int line, gn_tensor a, gn_tensor mask, double value) {
    return gn_where_at(GN__AT, mask, gn_like_at(GN__AT, a, value), a);
}

/* ---- reductions ---- */

gn_tensor gn_count_nonzero_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) { return gn_sum_at(GN__AT, gn__is_set(GN__AT, a), axes, keep); }

gn_tensor gn_any_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {
    return gn__is_set(GN__AT, gn_count_nonzero_at(GN__AT, a, axes, keep));
}

gn_tensor gn_all_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {
    return gn_logical_not_at(GN__AT, gn_sum_at(GN__AT, gn_logical_not_at(GN__AT, a), axes, keep));
}

/* Sum of squared distances from the mean (two passes), over n - correction. */
gn_tensor gn_variance_at(const char *file, int line, gn_tensor a, gn_axes axes, int correction, bool keep) {
    gn__type t, m;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "variance", a, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, a), mean = gn_mean_at(GN__AT, x, axes, true);
    if (!gn__known(GN__AT, mean, &m, &bad)) return bad;
    double n = 1;
    for (int i = 0; i < t.shape.rank; i++)
        if (m.shape.dims[i] != t.shape.dims[i]) n *= (double)t.shape.dims[i];
    gn_tensor sum = gn_sum_at(GN__AT, gn_square_at(GN__AT, gn_sub_at(GN__AT, x, mean)), axes, keep);
    return gn__to_dtype(GN__AT, gn_div_at(GN__AT, sum, gn_like_at(GN__AT, sum, GN__MAX(n - correction, 0.0))), t.dtype);
}

/* Square root with slope 0 at 0, where that of sqrt is infinite: of a norm every element is 0 there. */
static gn_tensor gn__root(const char *file, int line, gn_tensor a) {
    gn_tensor zero = gn_eq_at(GN__AT, a, gn_like_at(GN__AT, a, 0));
    return gn_where_at(GN__AT, zero, a, gn_sqrt_at(GN__AT, gn_where_at(GN__AT, zero, gn_like_at(GN__AT, a, 1), a)));
}

gn_tensor gn_std_at(const char *file, int line, gn_tensor a, gn_axes axes, int correction, bool keep) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "std", a, &t, &bad)) return bad;
    return gn__to_dtype(GN__AT, gn__root(GN__AT, gn_variance_at(GN__AT, gn__widened(GN__AT, a), axes, correction, keep)), t.dtype);
}

/* Ints are widened first: the lowest of a narrow one has no negative. */
gn_tensor gn_l1_norm_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    return gn_sum_at(GN__AT, gn_abs_at(GN__AT, gn__is_float(t.dtype) ? a : gn__to_dtype(GN__AT, a, GN_I64)), axes, keep);
}

gn_tensor gn_l2_norm_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "l2_norm", a, &t, &bad)) return bad;
    return gn__to_dtype(GN__AT, gn__root(GN__AT, gn_sum_at(GN__AT, gn_square_at(GN__AT, gn__widened(GN__AT, a)), axes, keep)), t.dtype);
}

/* An infinite largest value is not subtracted: inf - inf would be NaN. An empty tensor has no largest. */
gn_tensor gn_logsumexp_at(const char *file, int line, gn_tensor a, gn_axes axes, bool keep) {
    gn__type t, s;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "logsumexp", a, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, a);
    if (gn__count(&t.shape) == 0) return gn__to_dtype(GN__AT, gn_log_at(GN__AT, gn_sum_at(GN__AT, gn_exp_at(GN__AT, x), axes, keep)), t.dtype);
    gn_tensor top = gn_max_at(GN__AT, x, axes, true);
    top = gn_where_at(GN__AT, gn_isfinite_at(GN__AT, top), top, gn_like_at(GN__AT, top, 0));
    gn_tensor sum = gn_sum_at(GN__AT, gn_exp_at(GN__AT, gn_sub_at(GN__AT, x, top)), axes, keep);
    if (!gn__known(GN__AT, sum, &s, &bad)) return bad;
    return gn__to_dtype(GN__AT, gn_add_at(GN__AT, gn_log_at(GN__AT, sum), gn_reshape_at(GN__AT, top, s.shape)), t.dtype);
}

/* ---- along an axis ---- */

#define GN__PA(NAME, name)                                                                  \
    gn_tensor gn_##name##_at(const char *file, int line, gn_tensor a, int axis) {           \
        int64_t attr = axis;                                                                \
        return gn__op(GN__AT, GN__OP_##NAME, &a, 1, -1, &attr, 1);                          \
    }
GN__PA(CUMSUM, cumsum)
GN__PA(CUMPROD, cumprod)
GN__PA(CUMMAX, cummax)
#undef GN__PA

gn_tensor gn_argsort_at(const char *file, int line, gn_tensor a, int axis, bool descending) {
    int64_t attrs[2] = { axis, descending };
    return gn__op(GN__AT, GN__OP_ARGSORT, &a, 1, -1, attrs, 2);
}

gn_tensor gn_sort_at(const char *file, int line, gn_tensor a, int axis, bool descending) {
    return gn_gather_at(GN__AT, a, axis, gn_argsort_at(GN__AT, a, axis, descending));
}

void gn_topk_at(const char *file, int line, gn_tensor a, int64_t k, int axis, bool largest, gn_tensor *out_values, gn_tensor *out_positions) {
    gn__type t;
    gn_tensor order, bad;
    bool ok = gn__known_axis(GN__AT, "topk", a, &axis, &t, &bad);
    if (ok && (k < 0 || k > t.shape.dims[axis])) {
        ok = false;
        bad = gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "topk: there are no %lld elements in an axis of %lld", (long long)k, (long long)t.shape.dims[axis]);
    }
    order = ok ? gn_slice_at(GN__AT, gn_argsort_at(GN__AT, a, axis, largest), axis, 0, k, 1) : bad;
    if (out_values) *out_values = ok ? gn_gather_at(GN__AT, a, axis, order) : bad;
    if (out_positions) *out_positions = order;
}

/* ---- rows ---- */

gn_tensor gn_rmsnorm_at(const char *file, int line, gn_tensor a, gn_tensor gain, double eps) {
    gn__type t, u;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "rmsnorm", a, &t, &bad) || (gain.ctx && !gn__known_float(GN__AT, "rmsnorm", gain, &u, &bad))) return bad;
    if (gain.ctx && t.shape.rank && (u.shape.rank != 1 || u.shape.dims[0] != t.shape.dims[t.shape.rank - 1]))
        return gn__refuse(GN__AT, a.ctx, GN_BAD_SHAPE, "rmsnorm: the gain must have the shape of the last axis");
    gn_tensor x = gn__widened(GN__AT, a), mean = gn_mean_at(GN__AT, gn_square_at(GN__AT, x), gn__one_axis(-1), true);
    gn_tensor y = gn_mul_at(GN__AT, x, gn_rsqrt_at(GN__AT, gn_add_c_at(GN__AT, mean, eps)));
    if (gain.ctx) y = gn_mul_at(GN__AT, y, gn__widened(GN__AT, gain));
    return gn__to_dtype(GN__AT, y, t.dtype);
}

gn_tensor gn_normalize_at(const char *file, int line, gn_tensor a, int axis, double eps) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "normalize", a, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, a), norm = gn_l2_norm_at(GN__AT, x, gn__one_axis(axis), true);
    return gn__to_dtype(GN__AT, gn_div_at(GN__AT, x, gn_maximum_at(GN__AT, norm, gn_like_at(GN__AT, norm, eps))), t.dtype);
}

/* ---- linear algebra ---- */

gn_tensor gn_outer_at(const char *file, int line, gn_tensor a, gn_tensor b) {
    gn__type t, u;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad) || !gn__known(GN__AT, b, &u, &bad)) return bad;
    if (t.shape.rank != 1 || u.shape.rank != 1) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "outer takes vectors, not rank %d and %d", t.shape.rank, u.shape.rank);
    return gn_mul_at(GN__AT, gn_reshape_at(GN__AT, a, GN_SHAPE(t.shape.dims[0], 1)), b);
}

gn_tensor gn_vecdot_at(const char *file, int line, gn_tensor a, gn_tensor b, int axis) {
    gn__type t[2];
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t[0], &bad) || !gn__known(GN__AT, b, &t[1], &bad)) return bad;
    gn_dtype d = gn__promote(t, 2);
    gn_tensor y = gn_sum_at(GN__AT, gn_mul_at(GN__AT, gn__widened(GN__AT, a), gn__widened(GN__AT, b)), gn__one_axis(axis), false);
    return gn__is_float(d) ? gn__to_dtype(GN__AT, y, d) : y;
}

/* ---- movement ---- */

/* a seen as (before, axis, after) with one more axis, grown to n, then put back with the axis n times as long. */
static gn_tensor gn__repeated(const char *file, int line, const char *op, gn_tensor a, int axis, int64_t n, bool inner) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_axis(GN__AT, op, a, &axis, &t, &bad)) return bad;
    int64_t d = t.shape.dims[axis], before = 1, after = 1;
    if (n < 0 || (n > 0 && d > GN__MAX_BYTES / n)) return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "%s: %lld times an axis of %lld is not possible", op, (long long)n, (long long)d);
    for (int i = 0; i < axis; i++) before *= t.shape.dims[i];
    for (int i = axis + 1; i < t.shape.rank; i++) after *= t.shape.dims[i];
    gn_shape one = inner ? GN_SHAPE(before, d, 1, after) : GN_SHAPE(before, 1, d, after), many = one;
    many.dims[inner ? 2 : 1] = n;
    t.shape.dims[axis] = d * n;
    return gn_reshape_at(GN__AT, gn_broadcast_at(GN__AT, gn_reshape_at(GN__AT, a, one), many), t.shape);
}

gn_tensor gn_repeat_at(const char *file, int line, gn_tensor a, int64_t n, int axis) { return gn__repeated(GN__AT, "repeat", a, axis, n, true); }

gn_tensor gn_tile_at(const char *file, int line, gn_tensor a, gn_shape times) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    if (times.rank != t.shape.rank) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "tile: %d numbers for a tensor of rank %d", times.rank, t.shape.rank);
    for (int i = 0; i < times.rank; i++)
        if (times.dims[i] != 1) a = gn__repeated(GN__AT, "tile", a, i, times.dims[i], false);
    return a;
}

gn_tensor gn_expand_at(const char *file, int line, gn_tensor a, gn_shape shape) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    for (int i = 1; i <= t.shape.rank && i <= shape.rank && shape.rank <= GN_MAX_RANK; i++)
        if (shape.dims[shape.rank - i] == -1) shape.dims[shape.rank - i] = t.shape.dims[t.shape.rank - i];
    return gn_broadcast_at(GN__AT, a, shape);
}

gn_tensor gn_unsqueeze_at(const char *file, int line, gn_tensor a, int axis) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    int at = gn__axis(axis, t.shape.rank + 1);
    if (at < 0 || t.shape.rank == GN_MAX_RANK) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "unsqueeze: no axis %d for a tensor of rank %d", axis, t.shape.rank);
    for (int i = t.shape.rank++; i > at; i--) t.shape.dims[i] = t.shape.dims[i - 1];
    t.shape.dims[at] = 1;
    return gn_reshape_at(GN__AT, a, t.shape);
}

gn_tensor gn_squeeze_at(const char *file, int line, gn_tensor a, gn_axes axes) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    int64_t bits = gn__axes_bits(a, axes);
    gn_shape s = GN_SCALAR;
    if (bits < 0) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "squeeze: an axis is named twice or is outside a tensor of rank %d", t.shape.rank);
    for (int i = 0; i < t.shape.rank; i++) {
        bool named = (bits >> i) & 1, drop = named && t.shape.dims[i] == 1;
        if (named && !drop && axes.n) return gn__refuse(GN__AT, a.ctx, GN_BAD_SHAPE, "squeeze: axis %d has size %lld", i, (long long)t.shape.dims[i]);
        if (!drop) s.dims[s.rank++] = t.shape.dims[i];
    }
    return gn_reshape_at(GN__AT, a, s);
}

gn_tensor gn_stack_at(const char *file, int line, const gn_tensor *parts, int n, int axis) {
    gn__type t;
    gn_tensor bad;
    if (n < 1 || !parts) return GN_NONE;
    if (!gn__known(GN__AT, parts[0], &t, &bad)) return bad;
    gn_tensor *x = (gn_tensor *)gn_alloc((size_t)n * sizeof *x);
    if (!x) return gn__handle(parts[0].ctx, 0);
    for (int i = 0; i < n; i++) x[i] = gn_unsqueeze_at(GN__AT, parts[i], axis);
    gn_tensor y = gn_concat_at(GN__AT, x, n, axis);
    gn_free(x);
    return y;
}

void gn_split_at(const char *file, int line, gn_tensor a, int axis, const int64_t *sizes, int n, gn_tensor *out) {
    gn__type t;
    gn_tensor bad;
    if (!out) return;
    bool ok = gn__known_axis(GN__AT, "split", a, &axis, &t, &bad);
    if (ok && n > 0) {
        int64_t d = t.shape.dims[axis], left = d;
        for (int i = 0; i < n && ok; i++) {
            int64_t size = sizes ? sizes[i] : d / n;
            if (!(ok = size >= 0 && size <= left)) break;
            left -= size;
            out[i] = gn_slice_at(GN__AT, a, axis, d - left - size, d - left, 1);
        }
        ok = ok && left == 0;
        if (!ok) bad = gn__refuse(GN__AT, a.ctx, GN_BAD_SHAPE, "split: an axis of %lld does not fall into the %d parts asked for", (long long)d, n);
    }
    for (int i = 0; i < n && !ok; i++) out[i] = bad;
}

gn_tensor gn_flip_at(const char *file, int line, gn_tensor a, gn_axes axes) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    int64_t bits = gn__axes_bits(a, axes);
    if (bits < 0) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "flip: an axis is named twice or is outside a tensor of rank %d", t.shape.rank);
    for (int i = 0; i < t.shape.rank; i++)
        if ((bits >> i) & 1) a = gn_slice_at(GN__AT, a, i, GN_END, INT64_MIN, -1);
    return a;
}

gn_tensor gn_roll_at(const char *file, int line, gn_tensor a, int64_t shift, int axis) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_axis(GN__AT, "roll", a, &axis, &t, &bad)) return bad;
    int64_t n = t.shape.dims[axis], by = n ? (shift % n + n) % n : 0;
    if (by == 0) return a;
    gn_tensor parts[2] = { gn_slice_at(GN__AT, a, axis, n - by, n, 1), gn_slice_at(GN__AT, a, axis, 0, n - by, 1) };
    return gn_concat_at(GN__AT, parts, 2, axis);
}

/* Column minus row of the last two axes: i64 (R,C). */
static gn_tensor gn__diagonals(const char *file, int line, gn_ctx *g, int64_t rows, int64_t columns) {
    gn_tensor i = gn_reshape_at(GN__AT, gn_arange_at(GN__AT, g, GN_I64, rows, 0, 1), GN_SHAPE(rows, 1));
    return gn_sub_at(GN__AT, gn_arange_at(GN__AT, g, GN_I64, columns, 0, 1), i);
}

static gn_tensor gn__triangle(const char *file, int line, const char *op, gn_tensor a, int64_t k, bool upper) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    if (t.shape.rank < 2) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "%s needs rank 2 or more", op);
    int64_t rows = t.shape.dims[t.shape.rank - 2], columns = t.shape.dims[t.shape.rank - 1];
    gn_tensor d = gn__diagonals(GN__AT, a.ctx, rows, columns), at = gn_like_at(GN__AT, d, (double)GN__MIN(GN__MAX(k, -rows - 1), columns + 1));
    gn_tensor in = upper ? gn_ge_at(GN__AT, d, at) : gn_le_at(GN__AT, d, at);
    return gn_where_at(GN__AT, in, a, gn_like_at(GN__AT, a, 0));
}

gn_tensor gn_tril_at(const char *file, int line, gn_tensor a, int64_t k) { return gn__triangle(GN__AT, "tril", a, k, false); }
gn_tensor gn_triu_at(const char *file, int line, gn_tensor a, int64_t k) { return gn__triangle(GN__AT, "triu", a, k, true); }

/* Of (…,R,C) laid flat, a diagonal is every (C+1)st element. */
gn_tensor gn_diagonal_at(const char *file, int line, gn_tensor a, int64_t offset, int axis0, int axis1) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_axis(GN__AT, "diagonal", a, &axis0, &t, &bad) || !gn__known_axis(GN__AT, "diagonal", a, &axis1, &t, &bad)) return bad;
    if (axis0 == axis1) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "diagonal needs two different axes");
    int64_t rows = t.shape.dims[axis0], columns = t.shape.dims[axis1];
    gn_axes order = { 0, { 0 } };
    gn_shape flat = GN_SCALAR;
    for (int i = 0; i < t.shape.rank; i++) {
        if (i == axis0 || i == axis1) continue;
        order.axis[order.n++] = i;
        flat.dims[flat.rank++] = t.shape.dims[i];
    }
    order.axis[order.n++] = axis0;
    order.axis[order.n++] = axis1;
    flat.dims[flat.rank++] = rows * columns;
    offset = GN__MIN(GN__MAX(offset, -rows), columns);
    int64_t n = offset >= 0 ? GN__MIN(rows, columns - offset) : GN__MIN(rows + offset, columns), begin = offset >= 0 ? offset : -offset * columns;
    if (n <= 0) n = begin = 0;
    gn_tensor x = gn_reshape_at(GN__AT, gn_permute_at(GN__AT, a, order), flat);
    return gn_slice_at(GN__AT, x, flat.rank - 1, begin, n ? begin + (n - 1) * (columns + 1) + 1 : begin, columns + 1);
}

/* ---- indexing ---- */

gn_tensor gn_scatter_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src) {
    gn_tensor in[3] = { a, index, src };
    int64_t attr = axis;
    return gn__op(GN__AT, GN__OP_SCATTER, in, 3, -1, &attr, 1);
}

gn_tensor gn_scatter_max_at(const char *file, int line, gn_tensor a, int axis, gn_tensor index, gn_tensor src) {
    gn_tensor in[3] = { a, index, src };
    int64_t attr = axis;
    return gn__op(GN__AT, GN__OP_SCATTER_MAX, in, 3, -1, &attr, 1);
}

gn_tensor gn_nonzero_at(const char *file, int line, gn_tensor a, int64_t bound) { return gn__op(GN__AT, GN__OP_NONZERO, &a, 1, -1, &bound, 1); }

gn_tensor gn_index_select_at(const char *file, int line, gn_tensor a, int axis, gn_tensor ids) {
    gn__type t, u;
    gn_tensor bad;
    if (!gn__known_axis(GN__AT, "index_select", a, &axis, &t, &bad) || !gn__known(GN__AT, ids, &u, &bad)) return bad;
    if (u.shape.rank != 1) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "index_select takes a vector of indices, not rank %d", u.shape.rank);
    gn_shape row = t.shape;
    for (int i = 0; i < t.shape.rank; i++) row.dims[i] = i == axis ? u.shape.dims[0] : 1;
    t.shape.dims[axis] = u.shape.dims[0];
    return gn_gather_at(GN__AT, a, axis, gn_broadcast_at(GN__AT, gn_reshape_at(GN__AT, ids, row), t.shape));
}

/* Row-major places of the indexed blocks; -1, which no table has, when any of the k parts is out of range. */
static gn_tensor gn__flat_index(const char *file, int line, gn_tensor index, const gn_shape *s, int k) {
    gn_tensor at = GN_NONE, ok = GN_NONE;
    for (int i = 0; i < k; i++) {
        gn_tensor x = gn__to_dtype(GN__AT, gn_slice_at(GN__AT, index, -1, i, i + 1, 1), GN_I64), size = gn_like_at(GN__AT, x, (double)s->dims[i]);
        gn_tensor in = gn_and_at(GN__AT, gn_ge_at(GN__AT, x, gn_like_at(GN__AT, x, 0)), gn_lt_at(GN__AT, x, size));
        at = i ? gn_add_at(GN__AT, gn_mul_at(GN__AT, at, size), x) : x;
        ok = i ? gn_and_at(GN__AT, ok, in) : in;
    }
    return gn_where_at(GN__AT, ok, at, gn_like_at(GN__AT, at, -1));
}

gn_tensor gn_gather_nd_at(const char *file, int line, gn_tensor a, gn_tensor index) {
    gn__type t, u;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad) || !gn__known(GN__AT, index, &u, &bad)) return bad;
    int64_t k = u.shape.rank ? u.shape.dims[u.shape.rank - 1] : 0, rows = 1, block = 1;
    if (k < 1 || k > t.shape.rank || u.shape.rank - 1 + t.shape.rank - (int)k > GN_MAX_RANK)
        return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "gather_nd: indices of %lld parts in a tensor of rank %d", (long long)k, t.shape.rank);
    if (!(GN__BIT(u.dtype) & GN__INDEX)) return gn__refuse(GN__AT, a.ctx, GN_BAD_DTYPE, "gather_nd: an index cannot be %s", gn__dtypes[u.dtype].name);
    gn_shape s = u.shape;
    s.rank--;
    gn_shape ids = s;
    for (int i = 0; i < k; i++) rows *= t.shape.dims[i];
    for (int i = (int)k; i < t.shape.rank; i++) {
        block *= t.shape.dims[i];
        s.dims[s.rank++] = t.shape.dims[i];
    }
    gn_tensor at = gn_reshape_at(GN__AT, gn__flat_index(GN__AT, index, &t.shape, (int)k), GN_SHAPE(gn__count(&ids)));
    return gn_reshape_at(GN__AT, gn_embedding_at(GN__AT, gn_reshape_at(GN__AT, a, GN_SHAPE(rows, block)), at), s);
}

/* One axis of reflect or edge padding: for each place of the result the place it takes its element from. */
static gn_tensor gn__pad_axis(const char *file, int line, gn_tensor a, int axis, int64_t d, int64_t before, int64_t after, bool reflect) {
    gn_tensor i = gn_arange_at(GN__AT, a.ctx, GN_I64, before + d + after, (double)-before, 1), from = gn_clamp_at(GN__AT, i, 0, (double)(d - 1));
    if (reflect) {                                      /* n - 1 - |n - 1 - |i|| */
        gn_tensor last = gn_like_at(GN__AT, i, (double)(d - 1));
        from = gn_sub_at(GN__AT, last, gn_abs_at(GN__AT, gn_sub_at(GN__AT, last, gn_abs_at(GN__AT, i))));
    }
    return gn_index_select_at(GN__AT, a, axis, from);
}

gn_tensor gn_pad_at(const char *file, int line, gn_tensor a, gn_shape before, gn_shape after, gn_pad_mode mode, double value) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    if (before.rank != t.shape.rank || after.rank != t.shape.rank) return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "pad: %d and %d numbers for a tensor of rank %d", before.rank, after.rank, t.shape.rank);
    if ((int)mode < 0 || mode >= GN_PAD__COUNT) return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "pad: there is no mode %d", (int)mode);
    for (int i = 0; i < t.shape.rank; i++) {
        int64_t b = before.dims[i], e = after.dims[i], d = t.shape.dims[i];
        bool ok = b >= 0 && e >= 0 && b <= GN__MAX_BYTES && e <= GN__MAX_BYTES;
        if (ok && mode == GN_PAD_REFLECT) ok = (b < d && e < d) || (!b && !e);
        if (ok && mode == GN_PAD_EDGE) ok = d > 0 || (!b && !e);
        if (!ok) return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "pad: %lld and %lld are not possible for axis %d of %lld", (long long)b, (long long)e, i, (long long)d);
    }
    for (int i = 0; i < t.shape.rank; i++) {
        int64_t b = before.dims[i], e = after.dims[i], d = t.shape.dims[i];
        if (!b && !e) continue;
        t.shape.dims[i] = b + d + e;
        if (mode != GN_PAD_CONSTANT) a = gn__pad_axis(GN__AT, a, i, d, b, e, mode == GN_PAD_REFLECT);
        else a = gn_slice_put_at(GN__AT, gn_full_at(GN__AT, a.ctx, t.dtype, t.shape, value), a, i, b, b + d, 1);
    }
    return a;
}

/* ---- convolution as a matrix ---- */

/* Places in (H,W) laid flat, as (KH*KW*OH*OW). */
static gn_tensor gn__window_index(const char *file, int line, gn_ctx *g, const int64_t *out, const gn_shape *kernel, const gn_shape *stride, const gn_shape *dilation, int64_t width) {
    gn_tensor at[2];
    for (int i = 0; i < 2; i++) {
        gn_shape k = GN_SHAPE(1, 1, 1, 1), o = k;
        k.dims[i] = kernel->dims[i];
        o.dims[2 + i] = out[i];
        gn_tensor inside = gn_reshape_at(GN__AT, gn_arange_at(GN__AT, g, GN_I64, kernel->dims[i], 0, (double)dilation->dims[i]), k);
        at[i] = gn_add_at(GN__AT, inside, gn_reshape_at(GN__AT, gn_arange_at(GN__AT, g, GN_I64, out[i], 0, (double)stride->dims[i]), o));
    }
    return gn_reshape_at(GN__AT, gn_add_at(GN__AT, gn_mul_c_at(GN__AT, at[0], (double)width), at[1]), GN_SHAPE(-1));
}

gn_tensor gn_im2col_at(const char *file, int line, gn_tensor a, gn_shape kernel, gn_shape stride, gn_shape pad, gn_shape dilation) {
    gn__type t;
    gn_tensor bad;
    int64_t out[2], size[2];
    if (!gn__known(GN__AT, a, &t, &bad)) return bad;
    if (t.shape.rank != 4 || kernel.rank != 2 || stride.rank != 2 || pad.rank != 2 || dilation.rank != 2)
        return gn__refuse(GN__AT, a.ctx, GN_BAD_RANK, "im2col takes (N,C,H,W) and two numbers each for kernel, stride, pad and dilation");
    for (int i = 0; i < 2; i++) {
        int64_t k = kernel.dims[i], most = GN__MAX_BYTES;
        if (k < 1 || stride.dims[i] < 1 || stride.dims[i] > most || dilation.dims[i] < 1 || dilation.dims[i] > most || pad.dims[i] < 0 || pad.dims[i] > most)
            return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "im2col: kernel, stride and dilation are 1 or more, pad is 0 or more");
        size[i] = t.shape.dims[2 + i] + 2 * pad.dims[i];
        if (size[i] < 1 || k - 1 > (size[i] - 1) / dilation.dims[i]) return gn__refuse(GN__AT, a.ctx, GN_BAD_SHAPE, "im2col: the kernel is larger than the padded image");
        out[i] = (size[i] - 1 - (k - 1) * dilation.dims[i]) / stride.dims[i] + 1;
    }
    gn_shape edge = GN_SHAPE(0, 0, pad.dims[0], pad.dims[1]), s = GN_SHAPE(t.shape.dims[0], t.shape.dims[1], -1);
    gn_tensor x = gn_pad_at(GN__AT, a, edge, edge, GN_PAD_CONSTANT, 0), index = gn__window_index(GN__AT, a.ctx, out, &kernel, &stride, &dilation, size[1]);
    if (!gn__known(GN__AT, x, &t, &bad)) return bad;
    s.dims[2] = size[0] * size[1];
    gn_tensor y = gn_index_select_at(GN__AT, gn_reshape_at(GN__AT, x, s), 2, index);
    gn__type u;
    if (!gn__known(GN__AT, y, &u, &bad)) return bad;
    return gn_reshape_at(GN__AT, y, GN_SHAPE(t.shape.dims[0], t.shape.dims[1] * kernel.dims[0] * kernel.dims[1], out[0] * out[1]));
}

/* ---- rotary embedding ---- */

/* cos and sin of position * base^(-2i/D), i < D/2, computed in f64: (…,T,D/2) each. */
static void gn__rotary_angles(const char *file, int line, gn_tensor positions, int64_t half, double base, gn_dtype d, gn_tensor *out_cos, gn_tensor *out_sin) {
    gn_tensor rate = gn_exp_at(GN__AT, gn_arange_at(GN__AT, positions.ctx, GN_F64, half, 0, -log(base) / (double)half));
    gn_tensor angle = gn_mul_at(GN__AT, gn_unsqueeze_at(GN__AT, gn__to_dtype(GN__AT, positions, GN_F64), -1), rate);
    *out_cos = gn__to_dtype(GN__AT, gn_cos_at(GN__AT, angle), d);
    *out_sin = gn__to_dtype(GN__AT, gn_sin_at(GN__AT, angle), d);
}

gn_tensor gn_rotary_at(const char *file, int line, gn_tensor x, gn_tensor positions, double base, bool interleaved) {
    gn__type t, p;
    gn_tensor bad, c, s, y;
    if (!gn__known_float(GN__AT, "rotary", x, &t, &bad) || !gn__known(GN__AT, positions, &p, &bad)) return bad;
    int64_t d = t.shape.rank ? t.shape.dims[t.shape.rank - 1] : 1, half = d / 2;
    if (t.shape.rank < 2 || t.shape.rank == GN_MAX_RANK) return gn__refuse(GN__AT, x.ctx, GN_BAD_RANK, "rotary takes (…,T,D) of rank 2 to 7");
    if (!(GN__BIT(p.dtype) & GN__INDEX)) return gn__refuse(GN__AT, x.ctx, GN_BAD_DTYPE, "rotary: a position cannot be %s", gn__dtypes[p.dtype].name);
    if (d % 2) return gn__refuse(GN__AT, x.ctx, GN_BAD_SHAPE, "rotary: the last axis has %lld elements, an odd number", (long long)d);
    if (!(base > 0) || !isfinite(base)) return gn__refuse(GN__AT, x.ctx, GN_BAD_ARGUMENT, "rotary: base %g is not above 0", base);
    gn_tensor w = gn__widened(GN__AT, x);
    gn__rotary_angles(GN__AT, positions, half, base, gn__wide_dtype(t.dtype), &c, &s);
    gn_tensor a = interleaved ? gn_slice_at(GN__AT, w, -1, 0, GN_END, 2) : gn_slice_at(GN__AT, w, -1, 0, half, 1);
    gn_tensor b = interleaved ? gn_slice_at(GN__AT, w, -1, 1, GN_END, 2) : gn_slice_at(GN__AT, w, -1, half, GN_END, 1);
    gn_tensor parts[2] = { gn_sub_at(GN__AT, gn_mul_at(GN__AT, a, c), gn_mul_at(GN__AT, b, s)), gn_add_at(GN__AT, gn_mul_at(GN__AT, b, c), gn_mul_at(GN__AT, a, s)) };
    y = interleaved ? gn_reshape_at(GN__AT, gn_stack_at(GN__AT, parts, 2, -1), t.shape) : gn_concat_at(GN__AT, parts, 2, -1);
    return gn__to_dtype(GN__AT, gn_expand_at(GN__AT, y, t.shape), t.dtype);
}

/* ---- losses: means over everything, 0-d ---- */

static gn_tensor gn__mean_as(const char *file, int line, gn_tensor a, gn_dtype d) { return gn__to_dtype(GN__AT, gn_mean_at(GN__AT, a, GN_ALL_AXES, false), d); }

/* log(a), or log(1 - a), but -100 where it is less; there its slope is 0. */
static gn_tensor gn__log_cut(const char *file, int line, gn_tensor a, bool from_one) {
    gn_tensor least = gn_like_at(GN__AT, a, -100), end = gn_eq_at(GN__AT, a, gn_like_at(GN__AT, a, from_one)), x = gn_where_at(GN__AT, end, gn_like_at(GN__AT, a, !from_one), a);
    gn_tensor y = from_one ? gn_log1p_at(GN__AT, gn_neg_at(GN__AT, x)) : gn_log_at(GN__AT, x);
    return gn_where_at(GN__AT, end, least, gn_maximum_at(GN__AT, y, least));
}

/* A float input and a target of its shape. */
static bool gn__known_pair(const char *file, int line, const char *op, gn_tensor a, gn_tensor target, gn__type *out, gn_tensor *out_bad) {
    gn__type t;
    if (!gn__known_float(GN__AT, op, a, out, out_bad) || !gn__known(GN__AT, target, &t, out_bad)) return false;
    if (gn__shape_equal(&out->shape, &t.shape)) return true;
    *out_bad = gn__refuse(GN__AT, a.ctx, GN_BAD_SHAPE, "%s: the target must have the shape of the input", op);
    return false;
}

gn_tensor gn_bce_loss_at(const char *file, int line, gn_tensor p, gn_tensor target) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_pair(GN__AT, "bce_loss", p, target, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, p), y = gn__widened(GN__AT, target), yes = gn_mul_at(GN__AT, y, gn__log_cut(GN__AT, x, false));
    gn_tensor no = gn_mul_at(GN__AT, gn_sub_at(GN__AT, gn_like_at(GN__AT, y, 1), y), gn__log_cut(GN__AT, x, true));
    return gn__mean_as(GN__AT, gn_neg_at(GN__AT, gn_add_at(GN__AT, yes, no)), t.dtype);
}

gn_tensor gn_bce_logits_loss_at(const char *file, int line, gn_tensor logits, gn_tensor target) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_pair(GN__AT, "bce_logits_loss", logits, target, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, logits);
    return gn__mean_as(GN__AT, gn_sub_at(GN__AT, gn_softplus_at(GN__AT, x), gn_mul_at(GN__AT, x, gn__widened(GN__AT, target))), t.dtype);
}

gn_tensor gn_nll_loss_at(const char *file, int line, gn_tensor log_p, gn_tensor targets) {
    gn__type t, u;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "nll_loss", log_p, &t, &bad) || !gn__known(GN__AT, targets, &u, &bad)) return bad;
    gn_shape rows = t.shape;
    rows.rank--;
    if (rows.rank < 0 || !gn__shape_equal(&rows, &u.shape)) return gn__refuse(GN__AT, log_p.ctx, GN_BAD_SHAPE, "nll_loss: targets must have the shape of log_p without the last axis");
    gn_tensor hit = gn_gather_at(GN__AT, log_p, -1, gn_unsqueeze_at(GN__AT, targets, -1));
    return gn__mean_as(GN__AT, gn_neg_at(GN__AT, gn__widened(GN__AT, hit)), t.dtype);
}

gn_tensor gn_kl_loss_at(const char *file, int line, gn_tensor log_p, gn_tensor q) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "kl_loss", log_p, &t, &bad)) return bad;
    gn_tensor x = gn__widened(GN__AT, log_p), y = gn__widened(GN__AT, q), some = gn__is_set(GN__AT, y);
    gn_tensor log_q = gn_log_at(GN__AT, gn_where_at(GN__AT, some, y, gn_like_at(GN__AT, y, 1)));      /* no log of 0, also in the gradient */
    gn_tensor terms = gn_where_at(GN__AT, some, gn_mul_at(GN__AT, y, gn_sub_at(GN__AT, log_q, x)), gn_like_at(GN__AT, y, 0));
    return gn__mean_as(GN__AT, gn_sum_at(GN__AT, terms, gn__one_axis(-1), false), t.dtype);
}

gn_tensor gn_smooth_l1_loss_at(const char *file, int line, gn_tensor a, gn_tensor b, double beta) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "smooth_l1_loss", a, &t, &bad)) return bad;
    if (!(beta >= 0)) return gn__refuse(GN__AT, a.ctx, GN_BAD_ARGUMENT, "smooth_l1_loss: beta %g is below 0", beta);
    gn_tensor d = gn_abs_at(GN__AT, gn_sub_at(GN__AT, gn__widened(GN__AT, a), gn__widened(GN__AT, b)));
    if (beta == 0) return gn__mean_as(GN__AT, d, t.dtype);
    gn_tensor near = gn_mul_c_at(GN__AT, gn_square_at(GN__AT, d), 0.5 / beta), far = gn_add_c_at(GN__AT, d, -0.5 * beta);
    return gn__mean_as(GN__AT, gn_where_at(GN__AT, gn_lt_at(GN__AT, d, gn_like_at(GN__AT, d, beta)), near, far), t.dtype);
}

gn_tensor gn_cross_entropy_smooth_at(const char *file, int line, gn_tensor logits, gn_tensor targets, double smoothing) {
    gn__type t;
    gn_tensor bad;
    if (!gn__known_float(GN__AT, "cross_entropy_smooth", logits, &t, &bad)) return bad;
    if (!(smoothing >= 0 && smoothing <= 1)) return gn__refuse(GN__AT, logits.ctx, GN_BAD_ARGUMENT, "cross_entropy_smooth: smoothing %g is outside 0 to 1", smoothing);
    gn_tensor x = gn__widened(GN__AT, logits), hit = gn_cross_entropy_at(GN__AT, x, targets);
    if (smoothing == 0) return gn__to_dtype(GN__AT, hit, t.dtype);      /* 0 times the other classes' infinities would be NaN */
    gn_tensor all = gn_neg_at(GN__AT, gn_mean_at(GN__AT, gn_log_softmax_at(GN__AT, x, -1), GN_ALL_AXES, false));
    return gn__to_dtype(GN__AT, gn_add_at(GN__AT, gn_mul_c_at(GN__AT, hit, 1 - smoothing), gn_mul_c_at(GN__AT, all, smoothing)), t.dtype);
}

/* ---- einsum: operands are taken in from left to right; each pair becomes (batch,M,K) @ (batch,K,N) ---- */

typedef struct gn__term { gn_tensor t; char labels[GN_MAX_RANK + 1]; int n; } gn__term;

typedef struct gn__einsum {
    const char *file;
    int line;
    gn_ctx *g;
    gn_tensor bad;             /* what to return when something failed */
    int64_t size[128];         /* of each label, 0 with seen false */
    bool seen[128];
    char out[GN_MAX_RANK + 1];
    int n_out;
} gn__einsum;

static bool gn__einsum_bad(gn__einsum *e, gn_result r, const char *why, char label) {
    char text[2] = { label, 0 };
    e->bad = gn__refuse(e->file, e->line, e->g, r, "einsum: %s%s%s%s", why, label ? " '" : "", text, label ? "'" : "");
    return false;
}

static bool gn__label_ok(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool gn__has_label(const char *labels, int n, char c) { return n > 0 && memchr(labels, c, (size_t)n) != NULL; }

/* The next axis of an operand has this label: a letter, or a digit for one of an ellipsis, counted so that the last is '7'. */
static bool gn__einsum_axis(gn__einsum *e, const gn_shape *s, gn__term *out, char c) {
    if (out->n == s->rank) return gn__einsum_bad(e, GN_BAD_RANK, "more labels than axes at", c);
    int64_t d = s->dims[out->n], *size = &e->size[(int)c];
    if (e->seen[(int)c] && *size != d && (c >= 'A' || (d != 1 && *size != 1))) return gn__einsum_bad(e, GN_BAD_SHAPE, "two sizes for", c < 'A' ? '.' : c);
    if (!e->seen[(int)c] || *size == 1) *size = d;
    e->seen[(int)c] = true;
    out->labels[out->n++] = c;
    return true;
}

/* "..." at *at, in an operand that begins at `begin`: the axes that its letters leave. */
static bool gn__einsum_dots(gn__einsum *e, const char *begin, const char **at, const gn_shape *s, gn__term *out) {
    int left = s->rank;
    for (const char *p = begin; *p && *p != ',' && *p != '-'; p++) left -= gn__label_ok(*p);
    if (strncmp(*at, "...", 3) != 0 || memchr(begin, '.', (size_t)(*at - begin))) return gn__einsum_bad(e, GN_BAD_ARGUMENT, "an ellipsis is three points, once in a tensor", 0);
    *at += 2;
    while (left > 0)
        if (!gn__einsum_axis(e, s, out, (char)('8' - left--))) return false;
    return true;
}

/* The labels of one operand from *at on; a repeated label takes the diagonal. */
static bool gn__einsum_operand(gn__einsum *e, const char **at, gn_tensor t, gn__term *out) {
    gn__type type;
    const char *begin = *at;
    bool grows = false;
    out->t = t;
    out->n = 0;
    if (!gn__known(e->file, e->line, t, &type, &e->bad)) return false;
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        char c = **at;
        if (c == ' ') continue;
        if (c != '.' && !gn__label_ok(c)) return gn__einsum_bad(e, GN_BAD_ARGUMENT, "a label is a letter, not", c);
        if (!(c == '.' ? gn__einsum_dots(e, begin, at, &type.shape, out) : gn__einsum_axis(e, &type.shape, out, c))) return false;
    }
    if (out->n != type.shape.rank) return gn__einsum_bad(e, GN_BAD_RANK, "fewer labels than axes", 0);
    for (int i = 0; i < out->n; i++) {
        grows = grows || type.shape.dims[i] != e->size[(int)out->labels[i]];
        type.shape.dims[i] = e->size[(int)out->labels[i]];
    }
    if (grows) out->t = gn_broadcast_at(e->file, e->line, out->t, type.shape);
    for (int i = 0; i < out->n; i++)
        for (int j = i + 1; j < out->n; j++) {
            if (out->labels[i] != out->labels[j]) continue;
            char c = out->labels[i];
            out->t = gn_diagonal_at(e->file, e->line, out->t, 0, i, j);
            memmove(out->labels + j, out->labels + j + 1, (size_t)(out->n - j - 1));
            memmove(out->labels + i, out->labels + i + 1, (size_t)(out->n - i - 2));
            out->labels[out->n - 2] = c;
            out->n--;
            i = -1;                                     /* the axes have moved */
            break;
        }
    return true;
}

static bool gn__einsum_out(gn__einsum *e, char c) {
    if (e->n_out == GN_MAX_RANK) return gn__einsum_bad(e, GN_BAD_RANK, "the output has more than 8 axes", 0);
    e->out[e->n_out++] = c;
    return true;
}

/* The axes of the ellipsis. */
static bool gn__einsum_out_dots(gn__einsum *e) {
    for (char c = '0'; c < '8'; c++)
        if (e->seen[(int)c] && !gn__einsum_out(e, c)) return false;
    return true;
}

/* Labels after "->"; without it the ellipsis, then those that occur once, in alphabetical order. `text` is all operands' text. */
static bool gn__einsum_output(gn__einsum *e, const char *text, const char *at) {
    if (*at == '-') {
        if (at[1] != '>') return gn__einsum_bad(e, GN_BAD_ARGUMENT, "'-' without '>'", 0);
        const char *begin = at += 2;
        for (; *at; at++) {
            if (*at == ' ') continue;
            if (*at == '.') {
                if (strncmp(at, "...", 3) != 0 || memchr(begin, '.', (size_t)(at - begin))) return gn__einsum_bad(e, GN_BAD_ARGUMENT, "an ellipsis is three points, once in the output", 0);
                at += 2;
                if (!gn__einsum_out_dots(e)) return false;
                continue;
            }
            if (!gn__label_ok(*at) || !e->seen[(int)*at] || gn__has_label(e->out, e->n_out, *at))
                return gn__einsum_bad(e, GN_BAD_ARGUMENT, "not a label of the inputs, or twice in the output:", *at);
            if (!gn__einsum_out(e, *at)) return false;
        }
        return true;
    }
    if (!gn__einsum_out_dots(e)) return false;
    for (char c = 'A'; c <= 'z'; c++) {
        int count = 0;
        for (const char *p = text; *p; p++) count += *p == c;
        if (gn__label_ok(c) && count == 1 && !gn__einsum_out(e, c)) return false;
    }
    return true;
}

/* Operands to come have the label; `rest` is their text. */
static bool gn__einsum_later(const char *rest, char c) {
    for (; *rest && *rest != '-'; rest++)
        if (*rest == c || (*rest == '.' && c < 'A')) return true;
    return false;
}

/* Sums out the labels that neither `a` nor the output needs; `rest`: text of the operands to come. */
static void gn__einsum_drop(const gn__einsum *e, gn__term *x, const char *a, int n_a, const char *rest) {
    gn_axes axes = { 0, { 0 } };
    int n = 0;
    gn__type before, after;
    gn_tensor bad;
    for (int i = 0; i < x->n; i++) {
        char c = x->labels[i];
        if (gn__has_label(a, n_a, c) || gn__has_label(e->out, e->n_out, c) || gn__einsum_later(rest, c)) x->labels[n++] = c;
        else axes.axis[axes.n++] = i;
    }
    x->n = n;
    if (!axes.n || !gn__known(e->file, e->line, x->t, &before, &bad)) return;
    x->t = gn_sum_at(e->file, e->line, x->t, axes, false);
    if (gn__known(e->file, e->line, x->t, &after, &bad)) x->t = gn__to_dtype(e->file, e->line, x->t, before.dtype);   /* ints sum in i64 and wrap */
}

/* x with its axes in the order of `labels`, reshaped to rank 3. */
static gn_tensor gn__einsum_matrix(const gn__einsum *e, const gn__term *x, const char *labels, const gn_shape *s) {
    gn_axes order = { x->n, { 0 } };
    for (int i = 0; i < x->n; i++) order.axis[i] = (int32_t)((const char *)memchr(x->labels, labels[i], (size_t)x->n) - x->labels);
    return gn_reshape_at(e->file, e->line, gn_permute_at(e->file, e->line, x->t, order), *s);
}

/* a := a with b. */
static bool gn__einsum_pair(gn__einsum *e, gn__term *a, gn__term *b, const char *rest) {
    char la[GN_MAX_RANK + 1], lb[GN_MAX_RANK + 1], out[2 * GN_MAX_RANK];
    int64_t batch = 1, m = 1, k = 1, n = 1;
    int na = 0, nb = 0, no = 0;
    gn__einsum_drop(e, a, b->labels, b->n, rest);
    gn__einsum_drop(e, b, a->labels, a->n, rest);
    for (int pass = 0; pass < 3; pass++)                /* labels of both that stay, of a alone, of both that are summed */
        for (int i = 0; i < a->n; i++) {
            char c = a->labels[i];
            bool shared = gn__has_label(b->labels, b->n, c), stays = gn__has_label(e->out, e->n_out, c) || gn__einsum_later(rest, c);
            if ((shared ? stays ? 0 : 2 : 1) != pass) continue;
            la[na++] = c;
            if (pass != 1) lb[nb++] = c;
            if (pass != 2) out[no++] = c;
            *(pass == 0 ? &batch : pass == 1 ? &m : &k) *= e->size[(int)c];
        }
    for (int i = 0; i < b->n; i++) {
        char c = b->labels[i];
        if (gn__has_label(a->labels, a->n, c)) continue;
        lb[nb++] = c;
        out[no++] = c;
        n *= e->size[(int)c];
    }
    if (no > GN_MAX_RANK) return gn__einsum_bad(e, GN_BAD_RANK, "an intermediate has more than 8 axes", 0);
    gn_shape sa = GN_SHAPE(batch, m, k), sb = GN_SHAPE(batch, k, n), so = { no, { 0 } };
    for (int i = 0; i < no; i++) so.dims[i] = e->size[(int)out[i]];
    gn_tensor y = gn_matmul_at(e->file, e->line, gn__einsum_matrix(e, a, la, &sa), gn__einsum_matrix(e, b, lb, &sb));
    a->t = gn_reshape_at(e->file, e->line, y, so);
    a->n = no;
    memcpy(a->labels, out, (size_t)no);
    return true;
}

gn_tensor gn_einsum_at(const char *file, int line, const char *spec, const gn_tensor *in, int n) {
    gn__einsum e = { .file = file, .line = line, .g = n > 0 && in ? in[0].ctx : NULL };
    gn__term all = { GN_NONE, "", 0 }, next;
    const char *at = spec, *scan = spec;
    if (n < 1 || !in) return GN_NONE;
    if (!gn__usable(e.g)) return GN__DEAD(e.g);
    if (!spec) return gn__refuse(GN__AT, e.g, GN_BAD_ARGUMENT, "einsum: the text is NULL");
    for (int i = 0; i < n; i++) {                       /* sizes and output first: what is summed depends on them */
        if (!gn__einsum_operand(&e, &scan, in[i], &next)) return e.bad;
        if (i + 1 < n ? *scan != ',' : *scan == ',') return gn__einsum_bad(&e, GN_BAD_ARGUMENT, "the number of tensors is not that of the text", 0), e.bad;
        if (i + 1 < n) scan++;
    }
    if (!gn__einsum_output(&e, spec, scan)) return e.bad;
    for (int i = 0; i < n; i++) {
        gn__einsum_operand(&e, &at, in[i], &next);
        if (*at == ',') at++;
        if (i == 0) all = next;
        else if (!gn__einsum_pair(&e, &all, &next, at)) return e.bad;
    }
    gn__einsum_drop(&e, &all, "", 0, "");
    gn_shape s = { e.n_out, { 0 } };
    for (int i = 0; i < e.n_out; i++) s.dims[i] = e.size[(int)e.out[i]];
    return gn__einsum_matrix(&e, &all, e.out, &s);
}

GN__COLD_END
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#endif /* GENIE_IMPLEMENTED */
#endif /* GENIE_IMPLEMENTATION */

/*
   MIT License

   Copyright (c) 2026 Genie contributors

   Permission is hereby granted, free of charge, to any person obtaining a copy
   of this software and associated documentation files (the "Software"), to deal
   in the Software without restriction, including without limitation the rights
   to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
   copies of the Software, and to permit persons to whom the Software is
   furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all
   copies or substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
   IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
   FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
   AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
   LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
   SOFTWARE.
*/
