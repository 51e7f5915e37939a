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
                     several in one go, gn_realize computes without reading, gn_read_later reads without waiting: gn_wait does.
       States        gn_assign gives a new version; whatever was built on the old one keeps seeing the old value. Updates happen
                     with the next read, realise or step, all of them or none. Over several devices a step may fail on one when another has
                     written: those states are failed then (GN_STATE_FAILED) until they are released and made again.
       Plans         found by the structure of the graph. Numbers that change from step to step (learning rate, position) are
                     gn_scalar or data; numbers given as C constants are part of the plan.
       Memory        a GPU with less memory than the weights need moves those that were used longest ago to pinned host memory,
                     and back before the kernel that reads them; gn_stats counts evictions, weight_moves and their bytes.
       Overlap       a GPU copies data and results of 640 KiB and more in streams of their own while it computes other steps: keep
                     two buffers for data and three for results, and read with gn_read_later a few steps ahead of gn_wait. Buffers of
                     gn_host_alloc it copies by itself; those of plain memory pass through pinned pieces (16 MiB a direction), copied
                     by up to four threads. gn_stats counts copies_aside, and copies_waited where that is not possible. For each
                     direction the device holds two areas as large as the largest.
       Meaning       the structure of a graph tells what its nodes are for: embedding, linear, MLP, attention, KV append, norm, residual,
                     loss, optimiser step, head; prefill, decode, training; text, vision. Such blocks run and are placed as units. A
                     program may say it (gn_role, gn_phase, gn_residency, gn_modality), and what is said wins; where it
                     contradicts the structure, that is counted (meaning_disagreements) and logged once a plan.
       Devices       with several named (gn_desc.devices) a cost model places each part of the graph by gn_desc.policy: least latency,
                     most throughput or least bytes. Weights and states stay where they are; a split that the model says loses
                     is refused; gn_on says where a part runs. gn_explain tells in words or draws (SVG) what runs where, why, what
                     crosses and what that costs, also for a cluster that is only described. What devices and links cost is measured: by a
                     server at its start, by a context over several when it opens, of links with every step; servers and CPUs that are not
                     in use are asked now and then, within a hundredth of the time. When that differs from what a plan was
                     placed by, more than half as much again and several times in a row, the plan is placed anew if the
                     model says that it then takes a sixth less; a state moves only if that pays within as many steps as the
                     plan has run. Counted (reschedules), traced and logged; gn_desc.keep_placement forbids it. An op that a device has
                     no kernel for runs on another, or on the CPU beside it: logged and counted (fallbacks); with gn_desc.strict
                     it is an error (GN_STRICT).
       Trace         gn_desc.trace is called for each call, each thing a device is asked to do, and each node that is built.
       Remote        a server is a device like the others: gn_open connects, everything else is equal. Equal identities
                     (gn_get_device) compute equal bits. Every wait has a deadline.
       Errors        no function aborts or prints. gn_result says what, gn_last_error says where and why.
       Threads       one thread at a time in one context; contexts are independent. A server runs on its own threads.
       Settings      desc field, else environment ($GENIE_DEVICES, $GENIE_THREADS, $GENIE_HOME, $GENIE_LOG,
                     $GENIE_MEASURE=0: no device is measured, $GENIE_RESCHEDULE=0: no plan is placed anew, $GENIE_BLAS=openblas: its
                     matrix products instead of our own, auto: those of the two that were measured to be faster, once, kept in
                     $GENIE_CACHE, else ~/.cache/genie; those of the network in genie_net.c), else default.

   WHAT IT DOES NOT DO
       No tensor and no group of ops (an attention, an MLP) is cut over several devices; what crosses between two devices passes
       through the program. A state moves to another device only when it is said to live there or its own cannot run its writers.
       No recovery: what lived on a lost server is lost with it (GN_DEVICE_LOST); other devices of the context go on, a context over
       that server alone is at its end, and the program opens another. Floats of 16 bits are computed in 32 within a loop: where
       such a loop is cut over two devices they are rounded once more. No sparse or quantised dtypes. No Python.
       Denoising and audio are not recognised: a program says them (gn_phase, gn_modality).
       Matmul and linear take inputs of one dtype. Attention is differentiated by the formula written out, scores in memory.

   SECTIONS (search for the tag)
       >>api      handles, enums, descs, public functions          >>plan      where a part runs, and how: loops, memory
       >>ext      what the optional units are written against      >>wire      bytes to messages and graphs, and back
       >>config   macros and includes                              >>exec      the null and the CPU executor
       >>structs  shared private structs                           >>session   client and server over a transport
       >>base     errors, allocation, bytes, hash                  >>check     handles, cuts, contexts
       >>platform threads, clock                                   >>public    the bodies of the public functions
       >>types    dtypes, shapes, strided memory                   >>ops       the op table and its kernels
       >>graph    nodes, parts, gradients                          >>meaning   roles, phases, groups, costs

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
    X(nodes_shared,       "nodes",  "nodes left out of a step because an equal one was in it")     \
    X(state_copies,       "copies", "states copied because an old version had a later reader")     \
    X(state_copy_bytes,   "bytes",  "bytes of those copies")                                       \
    X(view_copies,        "copies", "reshapes that could not be a view")                           \
    X(weight_hits,        "weights", "weights of a run that were in the device's memory")          \
    X(weight_moves,       "moves",  "weights and states that came back to the device")             \
    X(weight_move_bytes,  "bytes",  "bytes of those moves")                                        \
    X(evictions,          "moves",  "weights and states that moved to the host to make room")      \
    X(evicted_bytes,      "bytes",  "bytes of those moves")                                        \
    X(products_measured,  "shapes", "shapes of matrix products whose kernel was chosen by measuring on the device") \
    X(products_by_blas,   "products", "products of plans that cuBLASLt computes")                  \
    X(products_by_other,  "products", "products of plans that another own kernel than the model's computes, for it measured faster") \
    X(measuring_us,       "us",     "time spent measuring them, with the compiling of what was not chosen") \
    X(blas_faults,        "faults", "errors of cuBLASLt; own kernels computed instead")            \
    X(choices_rejected,   "files",  "damaged files of stored choices: measured anew")              \
    X(choices_lost,       "products", "products whose stored choice could not be followed")        \
    X(fallbacks,          "ops",    "ops of plans that were placed elsewhere because a device has no kernel for them") \
    X(transfers,          "values", "values brought from one device to another, through the program") \
    X(transfer_bytes,     "bytes",  "bytes of those values")                                       \
    X(reschedules,        "plans",  "plans over several devices that were placed anew because what devices and links cost had changed") \
    X(reschedule_bytes,   "bytes",  "bytes of states that moved because of it")                    \
    X(meaning_disagreements, "nodes", "nodes of which the program said other than was recognised")  \
    X(faults,             "faults", "steps that ended with an error")                              \
    X(slow_links,         "links",  "connections that mbedTLS encrypts, many times slower, because libcrypto is missing or wrong") \
    X(key_updates,        "updates", "changes of a connection's keys, both ways together: AES-GCM has one each 275 GB") \
    X(sessions,           "sessions", "sessions a server accepted")                                \
    X(sessions_refused,   "sessions", "connections a server refused")                              \
    X(bytes_to_device,    "bytes",  "tensor bytes copied from host memory to a GPU")               \
    X(bytes_to_host,      "bytes",  "tensor bytes copied from a GPU to host memory")               \
    X(copies_aside,       "copies", "large arguments and results that a GPU copied in streams of their own") \
    X(copies_waited,      "copies", "large arguments and results in plain memory that a step waited for: overlap is off, or memory was short") \
    X(device_bytes,       "bytes",  "bytes held now on the device for this context")

typedef struct gn_stats {
#define GN__X(name, unit, help) uint64_t name;
    GN_COUNTERS(GN__X)
#undef GN__X
} gn_stats;

typedef enum gn_log_level { GN_LOG_ERROR = 1, GN_LOG_WARN, GN_LOG_INFO, GN_LOG_DEBUG } gn_log_level;
typedef void (*gn_log_fn)(void *user, gn_log_level level, const char *text);

/* What a placement over several devices is chosen by. */
typedef enum gn_policy {
    GN_LEAST_LATENCY,      /* the time of one step, from the program's inputs to its outputs */
    GN_MOST_THROUGHPUT,    /* the time between two steps that follow each other without waiting: that of the busiest device or link */
    GN_LEAST_BYTES,        /* the bytes that cross links in one step */
    GN_POLICY__COUNT
} gn_policy;

/* A call that computes, waits or closes, what a device was asked to do, a node that was built. Valid during the callback. */
typedef struct gn_trace_event {
    const char *name;              /* "gn_read"; "submit", "wait", "plan_make"… of a device; "matmul" for a node */
    const char *device;            /* "" for the program's own */
    uint64_t begin_us, end_us;     /* monotonic; of a node both are the same */
    uint64_t bytes;                /* of the tensors that are read, sent or kept; 0 where it has none */
} gn_trace_event;
typedef void (*gn_trace_fn)(void *user, const gn_trace_event *event);

/* ---- context ---------------------------------------------------------------------------------------
 * One thread at a time in one context; different contexts may be used by different threads at once. */

typedef struct gn_desc {
    const char *devices;    /* comma-separated, at most 32: "cpu", "null", "cuda:0", a server's URL, "host:port", "@FILE" with a URL.
                               NULL: $GENIE_DEVICES, else "cpu". With several each part of a graph runs where the policy wants it */
    gn_policy policy;       /* of several devices */
    uint32_t deadline_ms;   /* longest wait for a server, 0: 30,000 */
    uint32_t max_nodes;     /* nodes of one step, 0: 2^21 */
    uint32_t threads;       /* of the CPU executor, 0: all cores ($GENIE_THREADS) */
    uint64_t seed;          /* of gn_random_*; equal seeds give equal numbers */
    bool strict;            /* a fallback is an error, not a counted event */
    bool keep_placement;    /* plans over several devices stay where they were placed first, whatever devices and links cost later
                               ($GENIE_RESCHEDULE=0) */
    const char *home;       /* folder of keys and credentials, NULL: $GENIE_HOME, else ~/.config/genie */
    const char *label;      /* named in logs */
    gn_log_fn log;          /* NULL: errors and warnings go to stderr when $GENIE_LOG is set */
    void *log_user;
    gn_trace_fn trace;      /* called as each event ends, on the thread of the context; NULL: nothing is traced, which costs nothing */
    void *trace_user;
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
    char records[64];     /* the library that encrypts: "OpenSSL 3.0.17", or "mbedTLS 2.28.3", which takes ten times as long */
    bool remote;
} gn_device_info;

GN_API gn_result gn_get_device(gn_ctx *g, gn_device_info *out_info);   /* the first */
/* Devices in the order of gn_desc.devices; 0 for a context that is not open. */
GN_API int gn_device_count(gn_ctx *g);
GN_API gn_result gn_get_device_at(gn_ctx *g, int index, gn_device_info *out_info);
/* What one device of several has done: its share of gn_get_stats. Of a single one: all of it. */
GN_API gn_result gn_get_device_stats(gn_ctx *g, int index, gn_stats *out_stats);

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

/* Computes `t` and copies it to `out`; `bytes` must be its exact size. Waits. After an error `out` may hold a part of it. */
GN_API gn_result gn_read(gn_tensor t, void *out, size_t bytes);
/* Several at once: one plan, one round trip. */
GN_API gn_result gn_read_many(const gn_tensor *t, int n, void *const *out, const size_t *bytes);
/* The same without waiting: the bytes are in `out` when gn_wait of *out_ticket, or gn_sync, has returned; until then the buffers
   belong to the context, also after gn_step. A GPU copies large ones while it computes later steps (Overlap, above). What fails in the
   run is told by the wait. */
GN_API gn_result gn_read_later(const gn_tensor *t, int n, void *const *out, const size_t *bytes, uint64_t *out_ticket);
/* Waits for the reads of that ticket and what was submitted before them; 0: for nothing. Returns the first error of those runs. */
GN_API gn_result gn_wait(gn_ctx *g, uint64_t ticket);
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
    const char *phase;     /* "unknown", "forward", "prefill"… as said */
    const char *role;      /* "none", "attention"… as said, else of the op by itself; what surrounds it is recognised when a plan is made */
    const char *residency; /* "input", "weight", "state", "kv cache", "activation"… as said, else by the kind of tensor */
    const char *modality;  /* "unknown", "text"… as said */
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
/* What a node is for. Genie recognises it from the structure of the graph; a program may say it, and what is said wins. The
 * numbers of phases are pinned: they travel. X(NAME, number, text) */
#define GN_PHASES(X)                                                                                            \
    X(PHASE_UNKNOWN, 0, "unknown") X(FORWARD, 1, "forward") X(PREFILL, 2, "prefill") X(DECODE, 3, "decode")      \
    X(TRAINING, 4, "training") X(ENCODE, 5, "encode") X(DENOISE, 6, "denoise")
#define GN_ROLES(X)                                                                                             \
    X(NONE, 0, "none") X(EMBEDDING, 1, "embedding") X(LINEAR, 2, "linear") X(MLP, 3, "mlp")                      \
    X(ATTENTION, 4, "attention") X(CROSS_ATTENTION, 5, "cross attention") X(GROUPED_ATTENTION, 6, "grouped attention") \
    X(KV_APPEND, 7, "kv append") X(NORM, 8, "norm") X(RESIDUAL, 9, "residual") X(LOSS, 10, "loss")               \
    X(OPTIMIZER, 11, "optimizer") X(HEAD, 12, "head") X(SAMPLING, 13, "sampling") X(CONV, 14, "conv")
#define GN_RESIDENCIES(X)                                                                                       \
    X(UNKNOWN, 0, "unknown") X(ACTIVATION, 1, "activation") X(WEIGHT, 2, "weight") X(STATE, 3, "state")          \
    X(KV_CACHE, 4, "kv cache") X(GRADIENT, 5, "gradient") X(INPUT, 6, "input")
#define GN_MODALITIES(X)                                                                                        \
    X(UNKNOWN, 0, "unknown") X(TEXT, 1, "text") X(VISION, 2, "vision") X(AUDIO, 3, "audio") X(TABULAR, 4, "tabular") X(MIXED, 5, "mixed")

#define GN__X(name, number, text) GN_##name = number,
typedef enum gn_phase_kind { GN_PHASES(GN__X) GN_PHASE__COUNT } gn_phase_kind;
#undef GN__X
#define GN__X(name, number, text) GN_ROLE_##name = number,
typedef enum gn_role_kind { GN_ROLES(GN__X) GN_ROLE__COUNT } gn_role_kind;
#undef GN__X
#define GN__X(name, number, text) GN_RESIDENCY_##name = number,
typedef enum gn_residency_kind { GN_RESIDENCIES(GN__X) GN_RESIDENCY__COUNT } gn_residency_kind;
#undef GN__X
#define GN__X(name, number, text) GN_MODALITY_##name = number,
typedef enum gn_modality_kind { GN_MODALITIES(GN__X) GN_MODALITY__COUNT } gn_modality_kind;
#undef GN__X

/* Scopes: each holds for the nodes, weights and states made from here on until the next call; 0 returns to recognising. A kind
   out of range is GN_BAD_ARGUMENT and changes nothing. */
GN_API gn_result gn_phase(gn_ctx *g, gn_phase_kind phase);
GN_API gn_result gn_role(gn_ctx *g, gn_role_kind role);
GN_API gn_result gn_residency(gn_ctx *g, gn_residency_kind residency);
GN_API gn_result gn_modality(gn_ctx *g, gn_modality_kind modality);
/* Where the nodes made from here on run: a name as in gn_desc.devices (what follows a '?' does not count) or its index, "0" for the
   first; NULL lets the scheduler decide. A device that the context does not have is GN_NO_DEVICE and changes nothing. */
GN_API gn_result gn_on(gn_ctx *g, const char *device);

/* ---- cluster and explanation ----------------------------------------------------------------------------*/
/* What is known of the devices and the links between them. Every number that is 0 means "no limit, no cost". */
typedef enum gn_rate { GN_RATE_F32, GN_RATE_HALF /* f16, bf16 */, GN_RATE_F64, GN_RATE_INT, GN_RATE__COUNT } gn_rate;

typedef struct gn_cluster_device {
    char name[96];                        /* as in gn_desc.devices, secrets removed */
    double flops_per_s[GN_RATE__COUNT];   /* arithmetic of matrix products, by element type */
    double bytes_per_s;                   /* of its memory */
    double launch_s;                      /* of each kernel */
    double queue_s;                       /* until it begins what is sent to it now */
    uint64_t memory;                      /* bytes it has */
    uint64_t memory_free;                 /* bytes of it that can be filled besides what it holds for this program already; read when memory is not 0 */
    const uint8_t *ops;                   /* bit w set: it has the op of wire id w; NULL: all */
    size_t n_ops;                         /* bytes of ops; what lies beyond is not there */
} gn_cluster_device;

typedef struct gn_cluster_link { double latency_s, bytes_per_s; } gn_cluster_link;

typedef struct gn_cluster {
    uint32_t n_devices;
    const gn_cluster_device *devices;
    const gn_cluster_link *links;         /* links[from * (n_devices + 1) + to]; index n_devices is the program itself. What lies on
                                             the diagonal is not read */
} gn_cluster;

typedef enum gn_explain_format { GN_EXPLAIN_TEXT, GN_EXPLAIN_SVG, GN_EXPLAIN__COUNT } gn_explain_format;

typedef struct gn_explain_desc {
    gn_explain_format format;
    const gn_cluster *cluster;            /* an invented one; NULL: the devices of the context */
    gn_policy policy;                     /* for an invented cluster; else the context's own counts */
} gn_explain_desc;

/* Tells how t[0 … n) would be placed now, without computing it: where each part runs and why, what crosses links and what
   does not have to, in how many seconds the cost model expects it. A plan that is known keeps the placement it was made with until
   costs have changed enough (see Devices above).
   Words, or a picture (SVG 1.1): boxes are groups of nodes, colours their roles, frames what repeats, lanes devices, arrows
   transfers, order goes from left to right. Writes at most cap bytes, a NUL
   included, to out; *out_bytes (may be NULL) is the length of the whole text without the NUL, so that a call with cap 0 asks
   for the room. desc may be NULL: words on the context's devices. GN_BAD_SIZE when it does not fit; what gn_read says of the
   tensors; GN_OUT_OF_MEMORY also when the graph fits on no device. */
GN_API gn_result gn_explain(const gn_tensor *t, int n, const gn_explain_desc *desc, char *out, size_t cap, size_t *out_bytes);

/* ---- dtypes and sizes -----------------------------------------------------------------------------------*/
GN_API size_t gn_dtype_bytes(gn_dtype d);        /* 0 for an unknown dtype */
GN_API const char *gn_dtype_name(gn_dtype d);    /* "bf16" */
GN_API float gn_f16_to_f32(uint16_t bits);
GN_API uint16_t gn_f32_to_f16(float x);          /* to nearest even */
GN_API float gn_bf16_to_f32(uint16_t bits);
GN_API uint16_t gn_f32_to_bf16(float x);         /* to nearest even */
/* Page-aligned host memory that transports and GPUs use without a further copy; NULL when there is none. It is freed with the same
   context, before that is closed. */
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
    bool no_costs;            /* the devices are not measured at the start, and clients learn nothing of their speed */
    int listen_fd;            /* a listening socket from gn_server_handover, taken over with the code in url_file; 0: a new one */
    gn_log_fn log;            /* NULL: as for a context */
    void *log_user;
    const char *record_file;  /* every new plan is added to it, NULL: none. It holds graphs: ops and shapes, no values */
    const char *warm_file;    /* plans that an earlier server recorded are made before the first client comes, NULL: none */
} gn_server_desc;

/* Writes a line about the GPU `index` of this machine (driver, memory, compiler of kernels), or why it cannot be used and what to
   install, and returns the line's length; 0 when there is no such GPU. Index 0 always has a line. */
GN_API int gn_list_gpus(int index, char *out_text, size_t cap);
/* Writes a line about the network: the libraries that shake hands, encrypt, hash and pack, and why a fast one is not used.
   Returns the line's length; a program without the network unit has a line too. Any thread. */
GN_API int gn_describe_network(char *out_text, size_t cap);
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

/* What the program said of a node; 0: nothing. */
typedef struct gn_part_hint {
    uint8_t phase, role, residency, modality;
    uint32_t on;         /* 1 + index of a device in gn_desc.devices */
} gn_part_hint;

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
    const gn_part_hint *hints;         /* per node; NULL: nothing was said. They do not travel and are no part of the hash */
} gn_part;

/* ---- meaning: what the nodes of a part are for, what they cost, and which run as a unit. A pure function of the part. ---- */
enum { GN_SAID_PHASE = 1, GN_SAID_ROLE = 2, GN_SAID_RESIDENCY = 4, GN_SAID_MODALITY = 8 };

typedef struct gn_node_meaning {
    uint8_t phase, role, residency, modality;   /* gn_phase_kind, gn_role_kind, gn_residency_kind, gn_modality_kind */
    uint8_t said;              /* GN_SAID_*: these come from the program */
    bool critical;             /* on the longest path through the part */
    uint32_t group;
    double flops;              /* of this node alone */
    uint64_t bytes_read, bytes_written;   /* by a kernel of its own: rows that are gathered or appended count, not their tables; views: 0 */
} gn_node_meaning;

typedef struct gn_edge_meaning {
    uint64_t bytes;            /* of the producer's result that the consumer reads */
    double change;             /* bytes of the consumer's result over bytes of the producer's */
    bool critical;
} gn_edge_meaning;

/* Nodes that run, and are placed, together. The graph of groups has no cycle, and groups stand in topological order. */
typedef struct gn_group {
    uint8_t role, phase, modality;
    uint32_t on;               /* 1 + the device the program said; 0: free */
    uint32_t first, n_nodes;   /* gn_meaning.members[first …], rising */
    uint32_t kernels;          /* launches, about: fused loops count once, views and leaves not */
    double flops;
    uint64_t bytes;            /* read and written by its kernels */
} gn_group;

typedef struct gn_disagreement { uint32_t node; uint8_t which /* a GN_SAID_ bit */, said, recognised; } gn_disagreement;

typedef struct gn_meaning {
    uint32_t n_nodes, n_edges, n_groups, n_disagreements;
    gn_node_meaning *nodes;            /* per node of the part */
    gn_edge_meaning *edges;            /* per entry of part->ins */
    gn_group *groups;
    uint32_t *members;                 /* every node once, group by group */
    gn_disagreement *disagreements;    /* in the order of the nodes; those of modality come last */
} gn_meaning;

/* Bits of recognisers_off: what is not to be recognised. */
#define GN_OFF_ROLE(role) (1u << (role))
#define GN_OFF_PHASE(phase) (1u << (16 + (phase)))
/* GN_OUT_OF_MEMORY, with *out_meaning empty. gn_meaning_deinit frees what it holds. */
GN_API gn_result gn_meaning_make(const gn_part *part, uint32_t recognisers_off, gn_meaning *out_meaning, gn_fault *f);
GN_API void gn_meaning_deinit(gn_meaning *m);

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
    uint32_t tail;         /* of a matmul: the loop that alone reads it, before which it runs; of that loop: the matmul; else UINT32_MAX */
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
    bool tail;             /* a matmul whose result only the next step, a loop, reads, element by element: they may run as one */
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

/* Fills *out_layout, which keeps a pointer to the part. fuse: scalar ops join the loop of their reader; false: each is a loop of its
   own. GN_OUT_OF_MEMORY. */
GN_API gn_result gn_layout_make(const gn_part *part, bool fuse, gn_layout *out_layout, gn_fault *f);
/* Lays the block out again for an executor that computes several steps in one kernel: it has raised `last` of what a kernel reads
   later than its own step does, and cleared `kernel` of what is never stored. Everything else stays. GN_OUT_OF_MEMORY. */
GN_API gn_result gn_layout_pack(gn_layout *l, gn_fault *f);
GN_API void gn_layout_deinit(gn_layout *l);
/* Adjacent dims that one stride covers become one, dims of size 1 go: fewer, longer runs over the same elements in the same order. */
GN_API gn_view gn_view_collapse(const gn_view *v);

/* ---- schedule: which device runs which nodes, and what crosses links. A pure function of part, meaning, cluster and policy:
 * equal inputs give equal schedules on every machine of equal arithmetic. ---- */
#define GN_UNPLACED UINT32_MAX

/* Why a group of nodes runs where it runs. X(NAME, text) */
#define GN_PLACE_REASONS(X) \
    X(ONLY,      "the only device") \
    X(BEST,      "the best single device") \
    X(SAID,      "the program said so (gn_on)") \
    X(HOME,      "its state lives there") \
    X(OPS,       "the other devices lack an operation of it") \
    X(MEMORY,    "what one device holds is not enough") \
    X(PARALLEL,  "runs at the same time as another part") \
    X(STAGE,     "a stage of its own, so that steps follow each other sooner") \
    X(BYTES,     "fewer bytes cross links")
typedef enum gn_place_reason {
#define GN__X(name, text) GN_PLACED_##name,
    GN_PLACE_REASONS(GN__X)
#undef GN__X
    GN_PLACED__COUNT
} gn_place_reason;

/* Why a value crosses a link. X(NAME, text) */
#define GN_TRANSFER_REASONS(X) \
    X(INPUT,      "data of this step") \
    X(VALUE,      "kept by an earlier step on another device") \
    X(RESULT,     "computed on one device, used on another") \
    X(STATE_READ, "a state read where it does not live") \
    X(STATE_MOVE, "a state that moves to another device and stays there") \
    X(OUTPUT,     "read by the program")
typedef enum gn_transfer_reason {
#define GN__X(name, text) GN_TRANSFER_##name,
    GN_TRANSFER_REASONS(GN__X)
#undef GN__X
    GN_TRANSFER__COUNT
} gn_transfer_reason;

/* Bytes that cross no link. X(NAME, text) */
#define GN_AVOIDED(X) \
    X(WEIGHTS,   "weights that stay on their device") \
    X(STATES,    "states and KV caches that stay on their device") \
    X(ONCE,      "values with several readers on a device, sent there once") \
    X(RECOMPUTE, "values computed again where they are used, instead of being sent")
typedef enum gn_avoided {
#define GN__X(name, text) GN_AVOIDED_##name,
    GN_AVOIDED(GN__X)
#undef GN__X
    GN_AVOIDED__COUNT
} gn_avoided;

/* Runs on one device without waiting for another in between: what it needs is there when it begins, what others need of it
   leaves when it ends. */
typedef struct gn_segment {
    uint32_t device;
    uint32_t first, n;             /* gn_schedule.nodes[first … first + n): ops, in topological order; leaves stand in no segment */
    double start_s, end_s;         /* by the cost model, from the begin of the step */
} gn_segment;

/* One value on its way to one device, or to the program (index n_devices). There is one for each value and destination. A leaf
   leaves its device before the first segment begins there: later ones may write over a state. */
typedef struct gn_transfer {
    uint32_t node;                 /* an op's result or a leaf (data, kept value, state) */
    uint32_t from, to;             /* devices; n_devices is the program */
    uint32_t producer, consumer;   /* segments: that computes it (UINT32_MAX: a leaf), that first needs it (UINT32_MAX: the program) */
    uint64_t bytes;
    double start_s, end_s;
    uint8_t why;                   /* gn_transfer_reason */
} gn_transfer;

typedef struct gn_schedule {
    uint32_t n_nodes, n_devices, n_segments, n_transfers, n_groups;
    uint32_t *device;              /* per node: where it runs first; a leaf: a state's home from now on, else its first reader's device */
    uint32_t *nodes;               /* of the segments. A node that is computed again on another device stands there too */
    gn_segment *segments;          /* in an order in which they may run one after the other */
    gn_transfer *transfers;        /* by consumer, then node; those to the program last */
    uint8_t *why;                  /* per group of the meaning: gn_place_reason */
    double seconds;                /* of one step */
    double step_seconds;           /* between steps that do not wait for each other */
    double best_single_seconds, best_single_step_seconds;   /* the same on the best device alone, by the policy; 0 when none can */
    uint32_t best_single;          /* that device; GN_UNPLACED: none has the memory and the operations */
    double refused_seconds;        /* of the best split, when it was refused because it loses; else 0 */
    bool refused;
    uint64_t bytes;                /* that cross links in each step; moves of states are not of each step */
    uint64_t move_bytes;           /* of states that move */
    uint64_t upload_bytes;         /* weights and first values of states that their device does not hold yet: sent once */
    uint64_t avoided[GN_AVOIDED__COUNT];
    uint32_t overruled;            /* nodes that were said to run where the state they write does not live */
    uint32_t recomputed;           /* nodes that stand in more than one segment, counted once for each further one */
    uint64_t *memory;              /* per device: bytes of weights, states and live activations at their most */
} gn_schedule;

/* `homes`: per node of the part, of a weight, state or value leaf: bit d set when device d holds it (of the first 32 devices); NULL:
   nothing is anywhere. GN_OUT_OF_MEMORY also when no placement within the memory of the devices is found, GN_UNSUPPORTED when
   no device has an op, GN_BAD_ARGUMENT for a cluster without devices or a hint outside it. */
GN_API gn_result gn_schedule_make(const gn_part *part, const gn_meaning *meaning, const gn_cluster *cluster, gn_policy policy, const uint32_t *homes,
                                  gn_schedule *out_schedule, gn_fault *f);
GN_API void gn_schedule_deinit(gn_schedule *s);

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
    /* What the device and the links from and to the program are known to cost now; 0 where it is not known. NULL slot: nothing is. */
    void (*costs)(void *self, gn_cluster_device *out_device, gn_cluster_link *out_up, gn_cluster_link *out_down);
    /* Measures, while nothing runs, what gn_cluster_device calls flops_per_s and bytes_per_s; 0 where that fails. NULL slot or an
       error: plans are timed instead. */
    gn_result (*rates)(void *self, double out_flops_per_s[GN_RATE__COUNT], double *out_bytes_per_s);
    /* Whether that run and all before it have ended, so that wait does not block. NULL slot: they have when submit returns. */
    bool (*ended)(void *self, uint64_t ticket);
} gn_exec_i;

typedef struct gn_exec { const gn_exec_i *i; void *self; } gn_exec;

typedef struct gn_exec_desc {
    const char *device;      /* "cpu:0", "cuda:1" */
    uint32_t threads;
    uint64_t memory_limit;   /* bytes, 0: none */
    uint32_t deadline_ms;
    bool strict;
    gn_stats *stats;         /* counters to add to; never NULL */
    gn_log_fn log;           /* as of a context */
    void *log_user;
} gn_exec_desc;

/* ---- transport: an ordered byte stream to one peer ---- */
typedef struct gn_link_info {
    char peer[96];           /* "127.0.0.1:5556" */
    char tls[32];            /* "TLSv1.2"; "" for an unencrypted one */
    char cipher[64];
    char records[64];        /* the library that encrypts: "OpenSSL 3.0.17", "mbedTLS 2.28.3"; "" for an unencrypted one */
    bool slow;               /* it is mbedTLS because libcrypto is missing or wrong */
    bool renews;             /* it takes new keys in the middle of the stream, once the connection is open */
    uint64_t bytes_up, bytes_down;   /* at the socket */
    uint64_t key_updates;    /* times that keys were changed, both ways together */
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
    /* From the sender's thread: the peer said that its link renews, so keys may be changed before they wear out. NULL slot: never. */
    void (*renew)(void *self);
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
    /* The same in pieces: begin (NULL: no memory), add, end, which frees it. One hash is used by one thread at a time. */
    void *(*hash_begin)(void);
    void (*hash_add)(void *hash, const void *data, size_t n);
    void (*hash_end)(void *hash, uint8_t out[32]);
    /* Packs n raw bytes of elements of elem bytes into dst (capacity cap >= n). Returns bytes stored and the codec; when
       packing does not pay it returns 0 with codec 0 and the caller sends the raw bytes. wire_ns: what a byte costs on the
       link now, in nanoseconds; 0: not known, then whatever gets smaller pays. */
    size_t (*pack)(const void *src, size_t n, int elem, double wire_ns, void *dst, size_t cap, uint8_t *out_codec);
    /* Unpacks to exactly raw_n bytes; anything else is GN_BAD_MESSAGE. Allocation is bounded by raw_n. */
    gn_result (*unpack)(uint8_t codec, const void *src, size_t n, int elem, void *dst, size_t raw_n);
    uint32_t codecs;         /* bit c set: codec c is known; codec 0 (raw) is always */
    /* Writes a line about the libraries that encrypt, hash and pack; returns its length. */
    int (*about)(char *out_text, size_t cap);
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
/* Opens a context over the devices that desc names (NULL: none) and after them one for each of n open transports; takes ownership. */
GN_API gn_ctx *gn_open_transports(const gn_desc *desc, const gn_transport *t, const char *const *devices, int n);

/* From here on the scheduler of a context over several devices takes these costs for those of its devices; their ops are not read.
   NULL: the measured ones again. Plans that are there are placed anew at their next run if these costs make it worth while; while
   costs are given nothing is measured. GN_BAD_ARGUMENT when the number of devices is another one. */
GN_API gn_result gn_set_cluster(gn_ctx *g, const gn_cluster *cluster);

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
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
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
/* Passes that take time and gain little; matrix kernels, below, ask for them. */
#pragma GCC optimize("no-schedule-insns2,no-tree-vrp,no-shrink-wrap,no-split-paths,no-tree-pta,no-cprop-registers,no-web,no-dse,no-tree-dse,no-crossjumping,no-rerun-cse-after-loop")
#endif

/* Around code that is not on the path of a tile or of a step: compiled fast and small rather than to be fast, since this file
 * has to compile in seconds. */
#if defined(__clang__)
#define GN__COLD_BEGIN _Pragma("clang attribute push(__attribute__((minsize)), apply_to = function)")
#define GN__COLD_END _Pragma("clang attribute pop")
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define GN__COLD_BEGIN _Pragma("GCC push_options") \
    _Pragma("GCC optimize(\"O1,no-guess-branch-probability,no-reorder-blocks,no-if-conversion,no-if-conversion2,no-ivopts,no-tree-dominator-opts,no-tree-sink\")") \
    _Pragma("GCC optimize(\"no-tree-pta,no-dse,no-tree-dse,no-combine-stack-adjustments,no-cprop-registers,no-shrink-wrap\")")
#define GN__COLD_END _Pragma("GCC pop_options")
#else
#define GN__COLD_BEGIN
#define GN__COLD_END
#endif
/* Around builders that only call builders: there is nothing to optimise in them. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define GN__CALLS_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O0\")")
#else
#define GN__CALLS_BEGIN GN__COLD_BEGIN
#endif
#define GN__CALLS_END GN__COLD_END

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

/* Around tiles of which faster paths exist, or which are rare: compiled without vectorisation, since this file has to compile in
 * seconds. */
#if GN__X86 && !defined(__clang__)
#define GN__SMALL_BEGIN _Pragma("GCC push_options") \
    _Pragma("GCC optimize(\"O1,no-dse,no-tree-dse,no-tree-pta,no-tree-sink,no-shrink-wrap,no-forward-propagate,no-cprop-registers\")") \
    _Pragma("GCC optimize(\"no-reorder-blocks,no-guess-branch-probability,ira-region=one\")")
#define GN__SMALL_END _Pragma("GCC pop_options")
#else
#define GN__SMALL_BEGIN
#define GN__SMALL_END
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
    const struct gn__blas *blas;  /* NULL: our own matmul */
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

/* ---- OpenBLAS for matrix products, only when $GENIE_BLAS asks for it or lets it be measured: found at run time, never linked ---- */

typedef struct gn__blas {     /* order 101: rows; transposed 112, else 111 */
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda, const double *b, int ldb, double beta, double *c, int ldc);
    void (*set_threads)(int n);
    int (*threads)(void);
    char *(*config)(void), *(*core)(void);
} gn__blas;

GN__COLD_BEGIN
#ifdef _WIN32
static bool gn__blas_load(gn__blas *b) { (void)b; return false; }
#else
static bool gn__blas_load(gn__blas *b) {
    static const char *const names[] = { "cblas_sgemm", "cblas_dgemm", "openblas_set_num_threads", "openblas_get_num_threads", "openblas_get_config", "openblas_get_corename" };
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!lib) lib = dlopen("libopenblas.dylib", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < GN__LENGTH(names); i++) {
        void *p = lib ? dlsym(lib, names[i]) : NULL;
        if (!p) { if (lib) dlclose(lib); return false; }
        memcpy((char *)b + i * sizeof p, &p, sizeof p);
    }
    return true;
}
#endif

static gn__mutex gn__blas_lock = GN__MUTEX_INIT;
static gn__blas gn__blas_loaded;           /* of this process */

/* What $GENIE_BLAS asks for. The library has one number of threads in a process: that of the first executor that uses it.
   *out_auto: it is to be used if it is measured to be better. */
static gn_result gn__blas_open(uint32_t threads, const gn__blas **out, bool *out_auto, gn_fault *f) {
    const char *want = getenv("GENIE_BLAS");
    *out = NULL;
    *out_auto = want && strcmp(want, "auto") == 0;
    if (!want || !*want || strcmp(want, "own") == 0) return GN_OK;
    if (!*out_auto && strcmp(want, "openblas") != 0) return gn_fail(f, GN_BAD_ARGUMENT, "GENIE_BLAS is '%.60s': 'own', 'openblas' or 'auto' is possible", want);
    gn__mutex_lock(&gn__blas_lock);
    gn__blas *b = &gn__blas_loaded;
    bool there = b->sgemm || gn__blas_load(b);
    if (there && b->set_threads) { b->set_threads((int)threads); b->set_threads = NULL; }
    gn__mutex_unlock(&gn__blas_lock);
    if (!there && *out_auto) return GN_OK;
    if (!there) return gn_fail(f, GN_NO_DEVICE, "GENIE_BLAS asks for OpenBLAS, and libopenblas.so.0 cannot be loaded");
    *out = b;
    return GN_OK;
}

/* Its part of an executor's identity: "OpenBLAS 0.3.21 SkylakeX, 2 threads". */
static void gn__blas_identity(const gn__blas *b, char *text, size_t cap) {
    const char *config = b->config();
    int words = 0;
    size_t n = 0;
    while (config[n] && (config[n] != ' ' || ++words < 2)) n++;
    snprintf(text, cap, "%.*s %s, %d threads", (int)GN__MIN(n, (size_t)40), config, b->core(), b->threads());
}
GN__COLD_END

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
GN__INLINE uint64_t gn__f64_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
GN__INLINE double gn__bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
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

/* A loop for elements in a row, which is vector code, and one for others. */
#define GN__LOAD_BOTH(src_t, expr) do { if (stride == 1) GN__LOAD_LOOP(src_t, 1, expr); else GN__LOAD_LOOP(src_t, stride, expr); } while (0)
static void gn__load_i32(int32_t *restrict dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {   /* not of i64 and u32 */
    switch (d) {
    case GN_I32: GN__LOAD_BOTH(int32_t, *s); break;
    case GN_BOOL: GN__LOAD_BOTH(uint8_t, *s != 0); break;
    case GN_I8: GN__LOAD_BOTH(int8_t, *s); break;
    case GN_I16: GN__LOAD_BOTH(int16_t, *s); break;
    case GN_U16: GN__LOAD_BOTH(uint16_t, *s); break;
    default: GN__LOAD_BOTH(uint8_t, *s); break;
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
static void gn__load_i64(int64_t *restrict dst, gn_dtype d, const void *p, int64_t stride, int64_t n) {   /* of integers only */
    if (d == GN_I64) GN__LOAD_BOTH(int64_t, *s);
    else if (d == GN_U32) GN__LOAD_BOTH(uint32_t, *s);
    else GN__LOAD_NARROW(int64_t, int32_t, gn__load_i32);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

GN__COLD_BEGIN
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

/* ---- the mathematics of scalar bodies, bound per compute type by GN__SUFFIX, where a function is long by GN__LONG ---- */
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
#define GN_M_POW(a, b) GN__PASTE(gn__m_pow_, GN__LONG)(a, b)
#define GN_M_EXP(a) GN__PASTE(gn__m_exp_, GN__LONG)(a)
#define GN_M_LOG(a) GN__PASTE(gn__m_log_, GN__LONG)(a)
#define GN_M_SQRT(a) GN__PASTE(gn__m_sqrt_, GN__SUFFIX)(a)
#define GN_M_TANH(a) GN__PASTE(gn__m_tanh_, GN__LONG)(a)
#define GN_M_ERFC(a) GN__PASTE(gn__m_erfc_, GN__LONG)(a)
#define GN_M_OVER1P(a, b) ((a) / (GN_C(1) + (b)))   /* b >= 0; a GPU's may be 2 ulp off */
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
#define GN_M_EXP2(a) GN__PASTE(gn__m_exp2_, GN__LONG)(a)
#define GN_M_EXPM1(a) GN__PASTE(gn__m_expm1_, GN__LONG)(a)
#define GN_M_LOG2(a) GN__PASTE(gn__m_log2_, GN__LONG)(a)
#define GN_M_LOG10(a) GN__PASTE(gn__m_log10_, GN__LONG)(a)
#define GN_M_LOG1P(a) GN__PASTE(gn__m_log1p_, GN__LONG)(a)
#define GN_M_SIN(a) GN__PASTE(gn__m_sin_, GN__LONG)(a)
#define GN_M_COS(a) GN__PASTE(gn__m_cos_, GN__LONG)(a)
#define GN_M_TAN(a) GN__PASTE(gn__m_tan_, GN__LONG)(a)
#define GN_M_ASIN(a) GN__PASTE(gn__m_asin_, GN__LONG)(a)
#define GN_M_ACOS(a) GN__PASTE(gn__m_acos_, GN__LONG)(a)
#define GN_M_ATAN(a) GN__PASTE(gn__m_atan_, GN__LONG)(a)
#define GN_M_SINH(a) GN__PASTE(gn__m_sinh_, GN__LONG)(a)
#define GN_M_COSH(a) GN__PASTE(gn__m_cosh_, GN__LONG)(a)
#define GN_M_ASINH(a) GN__PASTE(gn__m_asinh_, GN__LONG)(a)
#define GN_M_ACOSH(a) GN__PASTE(gn__m_acosh_, GN__LONG)(a)
#define GN_M_ATANH(a) GN__PASTE(gn__m_atanh_, GN__LONG)(a)
#define GN_M_ERF(a) GN__PASTE(gn__m_erf_, GN__LONG)(a)
#define GN_M_ATAN2(a, b) GN__PASTE(gn__m_atan2_, GN__LONG)(a, b)
#define GN_M_HYPOT(a, b) GN__PASTE(gn__m_hypot_, GN__LONG)(a, b)
#define GN_M_COPYSIGN(a, b) GN__PASTE(gn__m_copysign_, GN__SUFFIX)(a, b)
#define GN_M_FMA(a, b, c) GN__PASTE(gn__m_fma_, GN__SUFFIX)(a, b, c)
#define GN_M_FMOD(a, b) GN__PASTE(gn__m_fmod_, GN__SUFFIX)(a, b)
#define GN_M_REMAINDER(a, b) GN__PASTE(gn__m_remainder_, GN__SUFFIX)(a, b)
#define GN_M_FLOORDIV(a, b) GN__PASTE(gn__m_floordiv_, GN__SUFFIX)(a, b)
#define GN_M_SHL(a, b) GN__PASTE(gn__m_shl_, GN__SUFFIX)(a, b)
#define GN_M_SHR(a, b) GN__PASTE(gn__m_shr_, GN__SUFFIX)(a, b)

#if defined(__GNUC__) || defined(__clang__)
double sqrt(double) __attribute__((const));        /* a root that might set errno could not be vector code */
float sqrtf(float) __attribute__((const));
#endif

/* ---- mathematics of f32 without branches or calls, so that loops over it become vector code. Polynomials are minimax fits made
 * for this file; additions and multiplications are never contracted, so every instruction path gives the same bits. Errors are
 * below 3 units in the last place (erfc: 4), over all floats; tests/math_test.c prints and bounds them ---- */

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

#define GN__V_FAR 65536.0f     /* beyond it the C library takes sin, cos and tan: gn__tile_far_f32 */

/* sin(x + quarters pi / 2), |x| <= GN__V_FAR. The turn is taken off in f64, pi / 2 in two parts: the first has 33 bits, so its
 * product with n is exact. */
GN__INLINE float gn__v_sin_turned(float x, int32_t quarters) {
    double d = (double)(fabsf(x) <= GN__V_FAR ? x : 0.0f), n = (d * 0.63661977236758134308 + 0x1.8p52) - 0x1.8p52;
    float r = (float)((d - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11), z = r * r;
    float s = r * (1.0f + z * (-0.166666667f + z * (0.00833333333f + z * (-0.000198412698f + z * 2.75573192e-6f))));
    float c = 1.0f + z * (-0.5f + z * (0.0416666667f + z * (-0.00138888889f + z * (2.48015873e-5f + z * -2.75573192e-7f))));
    int32_t q = (int32_t)n + quarters;
    float v = q & 1 ? c : s;
    return q & 2 ? -v : v;
}

GN__INLINE float gn__v_log10(float x) {
    gn__v_log_parts p = gn__v_log_split(x);
    return gn__v_log_edges(x, p.e * 0.301025390625f + ((p.f - p.rest) * 0.434294482f + p.e * 4.60503907e-6f));
}

/* e^x / 2 and, for |x| <= 22, e^x - 1; 0 <= x. */
typedef struct gn__v_exp_pair { float half, minus_1; } gn__v_exp_pair;

GN__INLINE gn__v_exp_pair gn__v_exp_both(float x) {
    float c = x > 90.0f ? 90.0f : x, t = c * 1.44269504f + GN__V_ROUND, n = t - GN__V_ROUND;
    float r = (c - n * GN__V_LN2_HI) - n * GN__V_LN2_LO, q = r + r * r * gn__v_exp_tail(r);
    int32_t k = (int32_t)(gn__f32_bits(t) - gn__f32_bits(GN__V_ROUND));
    float s = gn__bits_f32((uint32_t)(k + 126) << 23);
    return (gn__v_exp_pair){ gn__v_scale(1.0f + q, k - 1), 2.0f * (s * q + (s - 0.5f)) };
}

GN__INLINE float gn__v_sinh(float x) {
    float a = fabsf(x);
    gn__v_exp_pair e = gn__v_exp_both(a);
    float y = a > 20.0f ? e.half : 0.5f * (e.minus_1 + e.minus_1 / (e.minus_1 + 1.0f));
    return a < 0x1p-13f ? x : copysignf(y, x);
}

GN__INLINE float gn__v_cosh(float x) {
    float half = gn__v_exp_both(fabsf(x)).half;
    return half + 0.25f / half;
}

/* log(1 + t), or log(x) + ln 2 for an x so large that it is the same. */
GN__INLINE float gn__v_log_above(float t, float x, bool large) {
    float u = large ? x : 1.0f + t, lost = (t - (u - 1.0f)) / u;
    return gn__v_log(u) + (large ? 0.693147181f : lost);
}

GN__INLINE float gn__v_asinh(float x) {
    float a = fabsf(x), z = a * a;
    return copysignf(gn__v_log_above(a + z / (1.0f + sqrtf(1.0f + z)), a, a > 0x1p14f), x);
}

GN__INLINE float gn__v_acosh(float x) {
    float d = x - 1.0f;
    return x < 1.0f ? NAN : gn__v_log_above(d + sqrtf(d * (d + 2.0f)), x, x > 0x1p14f);
}

GN__INLINE float gn__v_atanh(float x) {
    float a = fabsf(x);
    return copysignf(0.5f * gn__v_log1p(2.0f * a / (1.0f - a)), x);
}

/* asin(s) = s + rest for s = |x| or, above 1/2, s = sqrt((1 - |x|) / 2), whose arc is half of what |x| lacks to a right angle. */
typedef struct gn__v_arc { float s, rest; } gn__v_arc;

GN__INLINE gn__v_arc gn__v_arc_of(float a) {
    float z = a > 0.5f ? (1.0f - a) * 0.5f : a * a, s = a > 0.5f ? sqrtf(z) : a;
    float p = 0.1666665985f + z * (0.07500512148f + z * (0.04451546832f + z * (0.03181984034f + z * (0.01439373061f + z * 0.0375782566f))));
    return (gn__v_arc){ s, s * (z * p) };
}

GN__INLINE float gn__v_asin(float x) {
    float a = fabsf(x);
    gn__v_arc p = gn__v_arc_of(a);
    float y = p.s + p.rest;
    return copysignf(a > 0.5f ? 1.57079637f - (2.0f * y + 4.37113883e-8f) : y, x);
}

GN__INLINE float gn__v_acos(float x) {
    float a = fabsf(x);
    gn__v_arc p = gn__v_arc_of(a);
    float wide = 2.0f * (p.s + p.rest), small = copysignf(p.s + p.rest, x);
    return a > 0.5f ? (x < 0.0f ? 3.14159274f - (wide + 8.74227766e-8f) : wide) : 1.57079637f - (small + 4.37113883e-8f);
}

/* The angle of (x, y), both >= 0 and x or y > 0, as k right half angles and an arc below pi / 8; left: of (-x, y). */
GN__INLINE float gn__v_angle(float y, float x, bool left) {
    bool low = y < x * 0.414213562f, high = y > x * 2.41421356f;
    float t = (low ? y : high ? -x : y - x) / (low ? x : high ? y : y + x), z = t * t, k = low ? 0.0f : high ? 2.0f : 1.0f;
    float p = -0.3333331549f + z * (0.1999848836f + z * (-0.1424382681f + z * (0.1059582904f + z * -0.06082992363f)));
    k = left ? 4.0f - k : k;
    t = left ? -t : t;
    return k * 0.785397529602050781f + (t + (k * 6.33795366e-7f + t * (z * p)));
}

GN__INLINE float gn__v_atan(float x) { return copysignf(gn__v_angle(fabsf(x), 1.0f, false), x); }

GN__INLINE float gn__v_atan2(float y, float x) {
    float b = fabsf(y), a = fabsf(x), most = b > a ? b : a, scale = most > 0x1p100f ? 0.25f : most < 0x1p-100f ? 0x1p60f : 1.0f;
    bool same = b == a;                            /* zeros and infinities too */
    float r = gn__v_angle(same ? (a == 0.0f ? 0.0f : 1.0f) : b * scale, same ? 1.0f : a * scale, gn__f32_bits(x) >> 31);
    return x != x || y != y ? x + y : copysignf(r, y);
}

/* In f64 nothing can overflow, and the sum is exact enough. */
GN__INLINE float gn__v_hypot(float a, float b) {
    float y = (float)sqrt((double)a * (double)a + (double)b * (double)b);
    return fabsf(a) == INFINITY || fabsf(b) == INFINITY ? INFINITY : y;
}

/* In f64, as the sine: the quotient is rounded once. */
GN__INLINE float gn__v_tan(float x) {
    double d = (double)(fabsf(x) <= GN__V_FAR ? x : 0.0f), n = (d * 0.63661977236758134308 + 0x1.8p52) - 0x1.8p52;
    double r = (d - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11, z = r * r;
    double s = r * (1.0 + z * (-0.16666666641607233 + z * (0.008333329383604662 + z * (-0.00019839334088387497 + z * 2.718304265747228e-06))));
    double c = 1.0 + z * (-0.5 + z * (0.04166666662279364 + z * (-0.0013888883750372565 + z * (2.4799519192100988e-05 + z * -2.7210169237299276e-07))));
    bool odd = (int32_t)n & 1;
    return (float)((odd ? -c : s) / (odd ? s : c));
}

/* ---- the same of f64, errors below 3 units in the last place (erfc: 5). gn__w_NAME is gn__v_NAME with longer polynomials, and what is
 * said there holds here ---- */

#define GN__W_LN2_HI 0x1.62e42fefa2p-1         /* 40 bits */
#define GN__W_LN2_LO 0x1.9ef35793c7673p-41
#define GN__W_ROUND 0x1.8p52

/* 2^n r, n in [-1080, 1030] in two's complement. */
GN__INLINE double gn__w_scale(double r, uint64_t n) {
    uint64_t half = ((n + 4096) >> 1) - 2048;
    return r * gn__bits_f64((half + 1023) << 52) * gn__bits_f64((n - half + 1023) << 52);
}

/* (exp(r) - 1 - r) / r^2 on |r| <= ln 2 / 2, error 2^-57 of exp. */
GN__INLINE double gn__w_exp_tail(double r) {
    double p = 1.9841269505760475e-4 + r * (2.480149295080446e-5 + r * (2.755758681881435e-6 + r * (2.7630305859655486e-7 + r * 2.50000138317822e-8)));
    return 0.5000000000000011 + r * (0.1666666666666641 + r * (0.04166666666652973 + r * (0.00833333333349498 + r * (0.001388888894375879 + r * p))));
}

/* exp(hi + lo), hi in [-746, 711], |lo| small. */
GN__INLINE double gn__w_exp_parts(double hi, double lo) {
    double t = hi * 1.44269504088896340736 + GN__W_ROUND, n = t - GN__W_ROUND;
    double r = ((hi - n * GN__W_LN2_HI) - n * GN__W_LN2_LO) + lo;
    return gn__w_scale(1.0 + (r + r * r * gn__w_exp_tail(r)), gn__f64_bits(t) - gn__f64_bits(GN__W_ROUND));
}

GN__INLINE double gn__w_exp(double x) {
    double c = x > 710.0 ? 710.0 : x;
    return gn__w_exp_parts(c < -746.0 ? -746.0 : c, 0.0);
}

/* 2^(hi + lo) */
GN__INLINE double gn__w_exp2_parts(double hi, double lo) {
    double c = hi > 1025.0 ? 1025.0 : hi;
    c = c < -1077.0 ? -1077.0 : c;
    double t = c + GN__W_ROUND, r = ((c - (t - GN__W_ROUND)) + lo) * 0.69314718055994530942;
    return gn__w_scale(1.0 + (r + r * r * gn__w_exp_tail(r)), gn__f64_bits(t) - gn__f64_bits(GN__W_ROUND));
}

typedef struct gn__w_exp_pair { double half, minus_1; } gn__w_exp_pair;

/* e^x / 2 for x in [0, 711], e^x - 1 for x in [-40, 709]. */
GN__INLINE gn__w_exp_pair gn__w_exp_both(double x) {
    double t = x * 1.44269504088896340736 + GN__W_ROUND, n = t - GN__W_ROUND;
    double r = (x - n * GN__W_LN2_HI) - n * GN__W_LN2_LO, q = r + r * r * gn__w_exp_tail(r);
    uint64_t k = gn__f64_bits(t) - gn__f64_bits(GN__W_ROUND);
    double s = gn__bits_f64((k + 1022) << 52);
    return (gn__w_exp_pair){ gn__w_scale(1.0 + q, k - 1), 2.0 * (s * q + (s - 0.5)) };
}

GN__INLINE double gn__w_expm1(double x) {
    double c = x > 710.0 ? 710.0 : x;
    double y = gn__w_exp_both(c < -40.0 ? -40.0 : c).minus_1;
    return fabs(x) < 0x1p-54 ? x : y;
}

GN__INLINE double gn__w_tanh(double x) {
    double a = fabs(x), t = gn__w_expm1(2.0 * (a > 20.0 ? 20.0 : a));
    return copysign(t / (t + 2.0), x);
}

GN__INLINE double gn__w_sinh(double x) {
    double a = fabs(x);
    gn__w_exp_pair e = gn__w_exp_both(a > 711.0 ? 711.0 : a);
    double y = a > 40.0 ? e.half : 0.5 * (e.minus_1 + e.minus_1 / (e.minus_1 + 1.0));
    return a < 0x1p-27 ? x : copysign(y, x);
}

GN__INLINE double gn__w_cosh(double x) {
    double a = fabs(x), half = gn__w_exp_both(a > 711.0 ? 711.0 : a).half;
    return half + 0.25 / half;
}

typedef struct gn__w_log_parts { double e, f, rest; } gn__w_log_parts;

GN__INLINE gn__w_log_parts gn__w_log_split(double x) {
    double y = x < 0x1p-1022 ? x * 0x1p54 : x;
    uint64_t u = gn__f64_bits(y), e = (u - 0x3fe6a09e667f3bcdu + ((uint64_t)1 << 63)) >> 52;     /* 2048 more than the exponent */
    double f = gn__bits_f64(u - (e << 52) + ((uint64_t)1 << 63)) - 1.0, s = f / (2.0 + f), z = s * s;
    double tail = 0.2222219856364367 + z * (0.181835648617608 + z * (0.15314035898408324 + z * 0.14796105287459915));
    tail = z * (0.6666666666666734 + z * (0.3999999999941434 + z * (0.28571428742472477 + z * tail)));
    double n = gn__bits_f64(0x4330000000000000u | e) - (0x1p52 + 2048.0);
    return (gn__w_log_parts){ n - (x < 0x1p-1022 ? 54.0 : 0.0), f, s * (f - tail) };
}

GN__INLINE double gn__w_log_edges(double x, double y) {
    y = x == 0.0 ? (double)-INFINITY : y;
    y = x < 0.0 ? (double)NAN : y;
    return x == (double)INFINITY || x != x ? x : y;
}

GN__INLINE double gn__w_log(double x) {
    gn__w_log_parts p = gn__w_log_split(x);
    return gn__w_log_edges(x, p.e * GN__W_LN2_HI + (p.f - (p.rest - p.e * GN__W_LN2_LO)));
}

GN__INLINE double gn__w_log2(double x) {
    gn__w_log_parts p = gn__w_log_split(x);
    return gn__w_log_edges(x, p.e + (p.f - p.rest) * 1.44269504088896340736);
}

GN__INLINE double gn__w_log10(double x) {
    gn__w_log_parts p = gn__w_log_split(x);
    return gn__w_log_edges(x, p.e * 0x1.34413509f6p-2 + ((p.f - p.rest) * 0.43429448190325182765 + p.e * 0x1.9fef311f12b36p-42));
}

GN__INLINE double gn__w_log1p(double x) {
    double u = 1.0 + x, lost = (x - (u - 1.0)) / u, y = gn__w_log(u);
    return x == 0.0 ? x : u > 0.0 && u < (double)INFINITY ? y + lost : y;
}

GN__INLINE double gn__w_log_above(double t, double x, bool large) {
    double u = large ? x : 1.0 + t, lost = (t - (u - 1.0)) / u;
    return gn__w_log(u) + (large ? 0.69314718055994530942 : lost);
}

GN__INLINE double gn__w_asinh(double x) {
    double a = fabs(x), z = a * a;
    return copysign(gn__w_log_above(a + z / (1.0 + sqrt(1.0 + z)), a, a > 0x1p28), x);
}

GN__INLINE double gn__w_acosh(double x) {
    double d = x - 1.0;
    return x < 1.0 ? (double)NAN : gn__w_log_above(d + sqrt(d * (d + 2.0)), x, x > 0x1p28);
}

GN__INLINE double gn__w_atanh(double x) {
    double a = fabs(x);
    return copysign(0.5 * gn__w_log1p(2.0 * a / (1.0 - a)), x);
}

#define GN__W_FAR 131072.0

/* x without quarters turns: r + lo in [-pi / 4, pi / 4]. pi / 2 is in three parts, two of 36 bits: their products with n are exact. */
typedef struct gn__w_turn { double sine, cosine; uint64_t quarters; } gn__w_turn;

GN__INLINE gn__w_turn gn__w_turned(double x) {
    double d = fabs(x) <= GN__W_FAR ? x : 0.0, t = d * 0.63661977236758134308 + GN__W_ROUND, n = t - GN__W_ROUND;
    double a = d - n * 0x1.921fb54440000p+0, b = n * 0x1.68c234c4c0000p-39, m = a - b, v = a - m;
    double lost = ((a - (m + v)) + (v - b)) - n * 0x1.98a2e03707345p-77;
    double r = m + lost, lo = (m - r) + lost, z = r * r, half = 0.5 * z, w = 1.0 - half;
    double s = -1.9841269829807737e-4 + z * (2.755731369190013e-6 + z * (-2.5050758113115238e-8 + z * 1.5896795552810856e-10));
    s = z * (-0.16666666666666632 + z * (0.008333333333322413 + z * s));
    double c = 2.4801587289482242e-5 + z * (-2.755731435234916e-7 + z * (2.0875723275319916e-9 + z * -1.1359647902961221e-11));
    c = z * z * (0.0416666666666666 + z * (-0.0013888888888874125 + z * c));
    return (gn__w_turn){ r + (r * s + lo * w), w + (((1.0 - w) - half) + (c - r * lo)), gn__f64_bits(t) };
}

GN__INLINE double gn__w_sin_turned(double x, uint64_t quarters) {
    gn__w_turn t = gn__w_turned(x);
    uint64_t q = t.quarters + quarters;
    double v = gn__bits_f64(gn__f64_bits(q & 1 ? t.cosine : t.sine) ^ (q & 2) << 62);
    return quarters == 0 && x == 0.0 ? x : v;
}

GN__INLINE double gn__w_tan(double x) {
    gn__w_turn t = gn__w_turned(x);
    bool odd = t.quarters & 1;
    double v = (odd ? -t.cosine : t.sine) / (odd ? t.sine : t.cosine);
    return x == 0.0 ? x : v;
}

typedef struct gn__w_arc { double s, rest; } gn__w_arc;

GN__INLINE gn__w_arc gn__w_arc_of(double a) {
    double z = a > 0.5 ? (1.0 - a) * 0.5 : a * a, s = a > 0.5 ? sqrt(z) : a;
    double p = 0.0107893559601125 + z * (0.003672071164305601 + z * (0.021790886740079236 + z * (-0.021117011324636396 + z * 0.03270231846492144)));
    p = 0.02237221591204488 + z * (0.017351595403793555 + z * (0.013981019541573927 + z * (0.011397285892430362 + z * p)));
    p = 0.16666666666666763 + z * (0.0749999999997009 + z * (0.04464285717529214 + z * (0.030381942675029354 + z * p)));
    return (gn__w_arc){ s, s * (z * p) };
}

GN__INLINE double gn__w_asin(double x) {
    double a = fabs(x);
    gn__w_arc p = gn__w_arc_of(a);
    double y = p.s + p.rest;
    return copysign(a > 0.5 ? 1.57079632679489661923 - (2.0 * y - 6.123233995736766e-17) : y, x);
}

GN__INLINE double gn__w_acos(double x) {
    double a = fabs(x);
    gn__w_arc p = gn__w_arc_of(a);
    double wide = 2.0 * (p.s + p.rest), small = copysign(p.s + p.rest, x);
    return a > 0.5 ? (x < 0.0 ? 3.14159265358979323846 - (wide - 1.2246467991473532e-16) : wide) : 1.57079632679489661923 - (small - 6.123233995736766e-17);
}

GN__INLINE double gn__w_angle(double y, double x, bool left) {
    bool low = y < x * 0.41421356237309504880, high = y > x * 2.41421356237309504880;
    double t = (low ? y : high ? -x : y - x) / (low ? x : high ? y : y + x), z = t * t, k = low ? 0.0 : high ? 2.0 : 1.0;
    double p = -0.06663117438093577 + z * (0.0584798687304847 + z * (-0.05039743646210743 + z * (0.038075672557658 + z * -0.017919316943153324)));
    p = -0.14285714280239864 + z * (0.1111111078568351 + z * (-0.09090897822827977 + z * (0.07692061385983008 + z * p)));
    p = -0.333333333333332 + z * (0.19999999999954002 + z * p);
    k = left ? 4.0 - k : k;
    t = left ? -t : t;
    return k * 0x1.921fb54442p-1 + (t + (k * 0x1.a308d313198a3p-42 + t * (z * p)));
}

GN__INLINE double gn__w_atan(double x) { return copysign(gn__w_angle(fabs(x), 1.0, false), x); }

GN__INLINE double gn__w_atan2(double y, double x) {
    double b = fabs(y), a = fabs(x), most = b > a ? b : a, scale = most > 0x1p1000 ? 0.25 : most < 0x1p-900 ? 0x1p200 : 1.0;
    bool same = b == a;
    double r = gn__w_angle(same ? (a == 0.0 ? 0.0 : 1.0) : b * scale, same ? 1.0 : a * scale, gn__f64_bits(x) >> 63);
    return x != x || y != y ? x + y : copysign(r, y);
}

GN__INLINE double gn__w_hypot(double a, double b) {
    double x = fabs(a), y = fabs(b), most = x > y ? x : y;
    double scale = most > 0x1p500 ? 0x1p-600 : most < 0x1p-400 ? 0x1p600 : 1.0, back = most > 0x1p500 ? 0x1p600 : most < 0x1p-400 ? 0x1p-600 : 1.0;
    x *= scale;
    y *= scale;
    return fabs(a) == (double)INFINITY || fabs(b) == (double)INFINITY ? (double)INFINITY : sqrt(x * x + y * y) * back;
}

/* As in f32; the polynomial is in (x - 4) / (x + 4). */
GN__INLINE double gn__w_erfc(double x) {
    double a = fabs(x), c = a > 27.3 ? 27.3 : a, u = (c - 4.0) / (c + 4.0);
    double h = 4.458203241552779e-8 + u * (4.940418988502122e-8 + u * (-5.607768386876324e-9 + u * (-5.790551365747248e-9 + u * -5.813800315170287e-10)));
    h = -4.1401736538582805e-6 + u * (2.6538181852235067e-6 + u * (8.440191216448979e-9 + u * (-3.685051141686623e-7 + u * h)));
    h = -3.8976755898301397e-4 + u * (-6.013626583522273e-5 + u * (6.403317497199975e-5 + u * (-1.3152838122831966e-5 + u * h)));
    h = -0.017515654647021574 + u * (0.012161784763372712 + u * (-0.00606873521203106 + u * (0.0021164214902772475 + u * h)));
    h = 0.11704966551044219 + u * (-0.04808038122129025 + u * (0.003962055681308038 + u * (0.015312509678670877 + u * h)));
    h = 0.6849972881253069 + u * (-0.19934458280036724 + u * h);
    double top = gn__bits_f64(gn__f64_bits(c) & 0xfffffffff8000000u);
    double y = gn__w_exp_parts(-top * top, -(c - top) * (c + top)) * (h / (1.0 + c));
    return x < 0.0 ? 2.0 - y : x != x ? x : y;
}

GN__INLINE double gn__w_erf(double x) {
    double a = fabs(x), z = x * x;
    double p = 1.2055296955864952e-4 + z * (-1.4924772858398491e-5 + z * (1.6447834268713639e-6 + z * (-1.6211406260323757e-7 + z * (1.3731927256153419e-8 + z * -7.816800428801385e-10))));
    p = 0.1128379167094708 + z * (-0.02686617064349976 + z * (0.005223977608933453 + z * (-8.548326051777871e-4 + z * p)));
    p = x * (1.12837916709551257390 + z * (-0.37612638903183615 + z * p));
    return a < 1.0 ? p : copysign(1.0 - gn__w_erfc(a), x);
}

/* A sum of two doubles, the second below the rounding of the first. */
typedef struct gn__w_pair { double hi, lo; } gn__w_pair;

GN__INLINE gn__w_pair gn__w_sum(double a, double b) {      /* |a| >= |b| */
    double s = a + b;
    return (gn__w_pair){ s, b - (s - a) };
}

GN__INLINE gn__w_pair gn__w_product(double a, double b) {
    double a1 = gn__bits_f64(gn__f64_bits(a) & 0xfffffffff8000000u), a2 = a - a1;
    double b1 = gn__bits_f64(gn__f64_bits(b) & 0xfffffffff8000000u), b2 = b - b1, p = a * b;
    return (gn__w_pair){ p, ((a1 * b1 - p) + (a1 * b2 + a2 * b1)) + a2 * b2 };
}

/* log2 of x > 0 and finite, to 2^-63 of it: 2 / ln 2 (s + s^3 (1/3 + z (1/5 + ...))), s = (m - 1) / (m + 1), z = s^2. */
GN__INLINE gn__w_pair gn__w_log2_pair(double x) {
    double y = x < 0x1p-1022 ? x * 0x1p54 : x;
    uint64_t u = gn__f64_bits(y), e = (u - 0x3fe6a09e667f3bcdu + ((uint64_t)1 << 63)) >> 52;
    double n = gn__bits_f64(0x4330000000000000u | e) - (0x1p52 + 2048.0) - (x < 0x1p-1022 ? 54.0 : 0.0);
    double m = gn__bits_f64(u - (e << 52) + ((uint64_t)1 << 63)), f = m - 1.0, d = m + 1.0, s = f / d;
    gn__w_pair sd = gn__w_product(s, d), z = gn__w_product(s, s);
    double s_lo = (((f - sd.hi) - sd.lo) - s * (m - (d - 1.0))) / d;
    z.lo += 2.0 * s * s_lo;
    double tail = 0.0769337876050884 + z.hi * (0.0662840673230983 + z.hi * 0.06598183722974933);
    tail = 0.20000000000001128 + z.hi * (0.14285714285049633 + z.hi * (0.11111111259987143 + z.hi * (0.09090892181419334 + z.hi * tail)));
    gn__w_pair c = gn__w_sum(0.33333333333333331483, z.hi * tail);
    gn__w_pair w = gn__w_product(z.hi, c.hi);
    w.lo += z.hi * (c.lo + 1.850371707708594e-17) + z.lo * c.hi;
    gn__w_pair v = gn__w_product(s, w.hi), l = gn__w_sum(s, v.hi);
    l.lo += s_lo + (v.lo + (s * w.lo + s_lo * w.hi));
    gn__w_pair p = gn__w_product(l.hi, 2.8853900817779268147), r = gn__w_sum(n, p.hi);
    p.lo += l.lo * 2.8853900817779268147 + l.hi * 4.0710547481862066e-17;
    return (gn__w_pair){ n == 0.0 ? p.hi : r.hi, n == 0.0 ? p.lo : r.lo + p.lo };
}

/* What |x|^y = r is with the sign of x, and at the edges of C's pow: each a choice by one comparison, for GCC leaves loops with && and || scalar. */
#define GN__DEFINE_POWER_EDGES(name, T, F)                                                                   \
    GN__INLINE T name(T x, T y, T r) {                                                                       \
        T a = fabs##F(x), half = trunc##F(y * (T)0.5), whole = trunc##F(y) == y ? (T)1 : (T)0, even = half + half == y ? (T)1 : (T)0; \
        T of_infinity = y < 0 ? (T)0 : (T)INFINITY, of_zero = y < 0 ? (T)INFINITY : (T)0;                    \
        r = a == (T)INFINITY ? of_infinity : r;                                                              \
        r = a == 0 ? of_zero : r;                                                                            \
        r = whole > even ? copysign##F(r, x) : r;                                                            \
        T below = whole > 0 ? r : (T)NAN, finite = x < 0 ? below : r;                                        \
        r = a == (T)INFINITY ? r : finite;                                                                   \
        r = x != x ? x + y : r;                                                                              \
        r = y != y ? x + y : r;                                                                              \
        r = x == 1 ? (T)1 : r;                                                                               \
        return y == 0 ? (T)1 : r;                                                                            \
    }
GN__DEFINE_POWER_EDGES(gn__v_pow_edges, float, f)
GN__DEFINE_POWER_EDGES(gn__w_pow_edges, double, )

GN__INLINE double gn__w_pow(double x, double y) {
    gn__w_pair l = gn__w_log2_pair(fabs(x));
    double most = fabs(y) > 0x1p70 ? copysign(0x1p70, y) : y;
    gn__w_pair p = gn__w_product(most, l.hi);
    return gn__w_pow_edges(x, y, gn__w_exp2_parts(p.hi, fabs(p.hi) < 1080.0 ? p.lo + most * l.lo : 0.0));
}

/* In f64: 2^(y log2 x), whose exponent is right to 2^-30. */
GN__INLINE float gn__v_pow(float x, float y) {
    uint64_t u = gn__f64_bits((double)fabsf(x)), e = (u - 0x3fe6a09e667f3bcdu + ((uint64_t)1 << 63)) >> 52;
    double n = gn__bits_f64(0x4330000000000000u | e) - (0x1p52 + 2048.0), f = gn__bits_f64(u - (e << 52) + ((uint64_t)1 << 63)) - 1.0, s = f / (2.0 + f), z = s * s;
    double tail = 0.6666666667580433 + z * (0.3999999562080088 + z * (0.28572109257416367 + z * (0.22176184924847755 + z * 0.195842014169394)));
    double l = (double)(fabsf(y) > 0x1p60f ? copysignf(0x1p60f, y) : y) * (n + s * (2.0 + z * tail) * 1.44269504088896340736);
    l = l > 160.0 ? 160.0 : l;
    l = l < -160.0 ? -160.0 : l;
    double t = l + GN__W_ROUND, r = l - (t - GN__W_ROUND);
    double q = 0.05550327215498386 + r * (0.009617994531983809 + r * (0.0013400431862620847 + r * 0.0001547801837711194));
    q = 0.9999999999190358 + r * (0.6931472067092896 + r * (0.24022651504866055 + r * q));
    return gn__v_pow_edges(x, y, (float)(q * gn__bits_f64((gn__f64_bits(t) - gn__f64_bits(GN__W_ROUND) + 1023) << 52)));
}

/* a - b trunc(a / b) where |a / b| is below a limit, else what gn__tile_far_f32 and _f64 put right. The nearest whole quotient has few bits: its
 * products are exact. */
#define GN__V_QUOTIENT 0x1p27f
#define GN__W_QUOTIENT 0x1p24

GN__INLINE float gn__v_fmod(float a, float b) {
    double x = fabs((double)a), y = fabs((double)b), q = (x / y + GN__W_ROUND) - GN__W_ROUND, r = x - q * y;
    return copysignf((float)(r < 0.0 ? r + y : r), a);
}

GN__INLINE double gn__w_fmod(double a, double b) {
    double x = fabs(a), y = fabs(b), q = (x / y + GN__W_ROUND) - GN__W_ROUND;
    double y1 = gn__bits_f64(gn__f64_bits(y) & 0xfffffffff8000000u), r = (x - q * y1) - q * (y - y1);
    return copysign(r < 0.0 ? r + y : r, a);
}

#define gn__m_add_f32(a, b) ((a) + (b))
#define gn__m_sub_f32(a, b) ((a) - (b))
#define gn__m_mul_f32(a, b) ((a) * (b))
#define gn__m_div_f32(a, b) ((a) / (b))
#define gn__m_neg_f32(a) (-(a))
#define gn__m_abs_f32(a) fabsf(a)
#define gn__m_pow_f32(a, b) gn__v_pow(a, b)
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
#define gn__m_pow_f64(a, b) gn__w_pow(a, b)
#define gn__m_exp_f64(a) gn__w_exp(a)
#define gn__m_log_f64(a) gn__w_log(a)
#define gn__m_sqrt_f64(a) sqrt(a)
#define gn__m_tanh_f64(a) gn__w_tanh(a)
#define gn__m_erfc_f64(a) gn__w_erfc(a)

#define gn__m_floor_f32(a) floorf(a)
#define gn__m_ceil_f32(a) ceilf(a)
#define gn__m_rint_f32(a) rintf(a)
#define gn__m_trunc_f32(a) truncf(a)
#define gn__m_exp2_f32(a) gn__v_exp2(a)
#define gn__m_expm1_f32(a) gn__v_expm1(a)
#define gn__m_log2_f32(a) gn__v_log2(a)
#define gn__m_log10_f32(a) gn__v_log10(a)
#define gn__m_log1p_f32(a) gn__v_log1p(a)
#define gn__m_sin_f32(a) gn__v_sin_turned(a, 0)
#define gn__m_cos_f32(a) gn__v_sin_turned(a, 1)
#define gn__m_tan_f32(a) gn__v_tan(a)
#define gn__m_asin_f32(a) gn__v_asin(a)
#define gn__m_acos_f32(a) gn__v_acos(a)
#define gn__m_atan_f32(a) gn__v_atan(a)
#define gn__m_sinh_f32(a) gn__v_sinh(a)
#define gn__m_cosh_f32(a) gn__v_cosh(a)
#define gn__m_asinh_f32(a) gn__v_asinh(a)
#define gn__m_acosh_f32(a) gn__v_acosh(a)
#define gn__m_atanh_f32(a) gn__v_atanh(a)
#define gn__m_erf_f32(a) gn__v_erf(a)
#define gn__m_atan2_f32(a, b) gn__v_atan2(a, b)
#define gn__m_hypot_f32(a, b) gn__v_hypot(a, b)
#define gn__m_copysign_f32(a, b) copysignf(a, b)
#define gn__m_fma_f32(a, b, c) fmaf(a, b, c)
#define gn__m_fmod_f32(a, b) gn__v_fmod(a, b)
#define gn__m_floor_f64(a) floor(a)
#define gn__m_ceil_f64(a) ceil(a)
#define gn__m_rint_f64(a) rint(a)
#define gn__m_trunc_f64(a) trunc(a)
#define gn__m_exp2_f64(a) gn__w_exp2_parts(a, 0.0)
#define gn__m_expm1_f64(a) gn__w_expm1(a)
#define gn__m_log2_f64(a) gn__w_log2(a)
#define gn__m_log10_f64(a) gn__w_log10(a)
#define gn__m_log1p_f64(a) gn__w_log1p(a)
#define gn__m_sin_f64(a) gn__w_sin_turned(a, 0)
#define gn__m_cos_f64(a) gn__w_sin_turned(a, 1)
#define gn__m_tan_f64(a) gn__w_tan(a)
#define gn__m_asin_f64(a) gn__w_asin(a)
#define gn__m_acos_f64(a) gn__w_acos(a)
#define gn__m_atan_f64(a) gn__w_atan(a)
#define gn__m_sinh_f64(a) gn__w_sinh(a)
#define gn__m_cosh_f64(a) gn__w_cosh(a)
#define gn__m_asinh_f64(a) gn__w_asinh(a)
#define gn__m_acosh_f64(a) gn__w_acosh(a)
#define gn__m_atanh_f64(a) gn__w_atanh(a)
#define gn__m_erf_f64(a) gn__w_erf(a)
#define gn__m_atan2_f64(a, b) gn__w_atan2(a, b)
#define gn__m_hypot_f64(a, b) gn__w_hypot(a, b)
#define gn__m_copysign_f64(a, b) copysign(a, b)
#define gn__m_fma_f64(a, b, c) fma(a, b, c)
#define gn__m_fmod_f64(a, b) gn__w_fmod(a, b)
/* remainder and floordiv from m = fmod(a, b). */
#define GN__DEFINE_FLOAT_MATH(S, T, F)                                                                       \
    GN__INLINE T gn__m_remainder_of_##S(T m, T b) { return m != 0 && (m < 0) != (b < 0) ? m + b : m; }       \
    GN__INLINE T gn__m_floordiv_of_##S(T a, T b, T m) {                                                      \
        T q = rint##F((a - m) / b) - (T)(m != 0 && (m < 0) != (b < 0));                                      \
        return b == 0 ? a / b : q == 0 ? copysign##F(0, a / b) : q;                                          \
    }                                                                                                        \
    GN__INLINE T gn__m_remainder_##S(T a, T b) { return gn__m_remainder_of_##S(gn__m_fmod_##S(a, b), b); }   \
    GN__INLINE T gn__m_floordiv_##S(T a, T b) { return gn__m_floordiv_of_##S(a, b, gn__m_fmod_##S(a, b)); }
GN__DEFINE_FLOAT_MATH(f32, float, f)
GN__DEFINE_FLOAT_MATH(f64, double, )

/* Where tiles are not vectorised, the long functions are called rather than made part of every loop. */
#if GN__X86
#define GN__LONG_MATH(X, Y) \
    X(exp) X(log) X(tanh) X(erfc) X(exp2) X(expm1) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) \
    X(asinh) X(acosh) X(atanh) X(erf) Y(pow) Y(atan2) Y(hypot)
#define GN__X(name)                                                                                          \
    static float gn__m_##name##_f32_small(float a) { return gn__m_##name##_f32(a); }        \
    static double gn__m_##name##_f64_small(double a) { return gn__m_##name##_f64(a); }
#define GN__Y(name)                                                                                          \
    static float gn__m_##name##_f32_small(float a, float b) { return gn__m_##name##_f32(a, b); } \
    static double gn__m_##name##_f64_small(double a, double b) { return gn__m_##name##_f64(a, b); }
GN__SMALL_BEGIN
GN__LONG_MATH(GN__X, GN__Y)
GN__SMALL_END
#undef GN__X
#undef GN__Y
#define GN__LONG_F32 f32_small
#define GN__LONG_F64 f64_small
#else
#define GN__LONG_F32 f32
#define GN__LONG_F64 f64
#endif

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
 * Compute class: F float, S float and short, A any, M any but of more work than A, I integer. Gradients are expressions over the result y, its gradient gy, the inputs x0, x1, x2. */
#define GN__SCALAR_OPS(U, B, UN, BN, C, P, T)                                                                                              \
    B( ADD,       add,       0x10, A, GN__ALL,     1,  1, GN_M_ADD(a, b), gy, gy)                                                    \
    B( SUB,       sub,       0x11, A, GN__NUMBERS, 1,  1, GN_M_SUB(a, b), gy, gn__neg(k, gy))                                        \
    B( MUL,       mul,       0x12, A, GN__ALL,     1,  1, GN_M_MUL(a, b), gn__mul(k, gy, x1), gn__mul(k, gy, x0))                    \
    B( DIV,       div,       0x13, A, GN__NUMBERS, 4,  1, GN_M_DIV(a, b), gn__div(k, gy, x1), gn__neg(k, gn__div(k, gn__mul(k, gy, y), x1))) \
    B( POW,       pow,       0x14, F, GN__FLOATS, 30,  4, GN_M_POW(a, b), gn__pow_grad_base(k), gn__pow_grad_exponent(k))            \
    B( MINIMUM,   minimum,   0x15, A, GN__ALL,     1,  1, GN_M_MIN(a, b), gn__choose(k, gn__le(k, x0, x1), gy), gn__choose(k, gn__gt(k, x0, x1), gy)) \
    B( MAXIMUM,   maximum,   0x16, A, GN__ALL,     1,  1, GN_M_MAX(a, b), gn__choose(k, gn__ge(k, x0, x1), gy), gn__choose(k, gn__lt(k, x0, x1), gy)) \
    U( NEG,       neg,       0x17, A, GN__NUMBERS, 1,  1, GN_M_NEG(a), gn__neg(k, gy))                                               \
    U( ABS,       abs,       0x18, A, GN__NUMBERS, 1,  1, GN_M_ABS(a), gn__where(k, gn__lt(k, x0, gn__num(k, 0)), gn__neg(k, gy), gn__choose(k, gn__ne(k, x0, gn__num(k, 0)), gy))) \
    U( EXP,       exp,       0x19, F, GN__FLOATS,  8,  2, GN_M_EXP(a), gn__mul(k, gy, y))                                            \
    U( LOG,       log,       0x1a, F, GN__FLOATS,  8,  2, GN_M_LOG(a), gn__div(k, gy, x0))                                           \
    U( SQRT,      sqrt,      0x1b, S, GN__FLOATS,  4,  1, GN_M_SQRT(a), gn__div(k, gn__mul(k, gy, gn__num(k, 0.5)), y))              \
    U( RSQRT,     rsqrt,     0x1c, S, GN__FLOATS,  5,  2, GN_C(1) / GN_M_SQRT(a), gn__mul(k, gn__mul(k, gy, gn__num(k, -0.5)), gn__div(k, y, x0))) \
    U( TANH,      tanh,      0x1d, F, GN__FLOATS, 12,  4, GN_M_TANH(a), gn__mul(k, gy, gn__sub(k, gn__num(k, 1), gn__mul(k, y, y)))) \
    U( SIGMOID,   sigmoid,   0x1e, F, GN__FLOATS, 12,  4, GN_M_OVER1P(GN_C(1), GN_M_EXP(-a)), gn__mul(k, gy, gn__mul(k, y, gn__sub(k, gn__num(k, 1), y)))) \
    U( RELU,      relu,      0x1f, A, GN__NUMBERS, 1,  1, a < GN_C(0) ? GN_C(0) : a, gn__choose(k, gn__gt(k, x0, gn__num(k, 0)), gy)) \
    U( GELU,      gelu,      0x20, F, GN__FLOATS, 20,  8, GN_C(0.5) * a * GN_M_ERFC(a * GN_C(-0.70710678118654752440)), gn__gelu_grad(k)) \
    U( GELU_TANH, gelu_tanh, 0x21, F, GN__FLOATS, 20,  8, GN_M_OVER1P(a, GN_M_EXP(a * (GN_C(-1.5957691216057307117) + GN_C(-0.071354816272600009) * a * a))), gn__gelu_tanh_grad(k)) \
    U( SILU,      silu,      0x22, F, GN__FLOATS, 14,  4, GN_M_OVER1P(a, GN_M_EXP(-a)), gn__silu_grad(k))                            \
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
    U( LOG10,        log10,        0x88, F, GN__FLOATS,  8,  4, GN_M_LOG10(a), gn__div(k, gy, gn__mul(k, x0, gn__num(k, 2.30258509299404568402)))) \
    U( LOG1P,        log1p,        0x89, F, GN__FLOATS, 10,  4, GN_M_LOG1P(a), gn__div(k, gy, gn__add(k, x0, gn__num(k, 1)))) \
    U( RECIPROCAL,   reciprocal,   0x8a, S, GN__FLOATS,  4,  1, GN_C(1) / a, gn__neg(k, gn__mul(k, gy, gn__mul(k, y, y)))) \
    U( SQUARE,       square,       0x8b, A, GN__NUMBERS,  1,  1, GN_M_MUL(a, a), gn__mul(k, gy, gn__mul(k, x0, gn__num(k, 2)))) \
    U( SIN,          sin,          0x8c, F, GN__FLOATS, 12,  4, GN_M_SIN(a), gn__mul(k, gy, gn__cos(k, x0))) \
    U( COS,          cos,          0x8d, F, GN__FLOATS, 12,  4, GN_M_COS(a), gn__neg(k, gn__mul(k, gy, gn__sin(k, x0)))) \
    U( TAN,          tan,          0x8e, F, GN__FLOATS, 16,  4, GN_M_TAN(a), gn__mul(k, gy, gn__add(k, gn__num(k, 1), gn__mul(k, y, y)))) \
    U( ASIN,         asin,         0x8f, F, GN__FLOATS, 12,  4, GN_M_ASIN(a), gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0))))) \
    U( ACOS,         acos,         0x90, F, GN__FLOATS, 12,  4, GN_M_ACOS(a), gn__neg(k, gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0)))))) \
    U( ATAN,         atan,         0x91, F, GN__FLOATS, 12,  4, GN_M_ATAN(a), gn__div(k, gy, gn__add(k, gn__num(k, 1), gn__mul(k, x0, x0)))) \
    U( SINH,         sinh,         0x92, F, GN__FLOATS, 16,  4, GN_M_SINH(a), gn__mul(k, gy, gn__cosh(k, x0))) \
    U( COSH,         cosh,         0x93, F, GN__FLOATS, 16,  4, GN_M_COSH(a), gn__mul(k, gy, gn__sinh(k, x0))) \
    U( ASINH,        asinh,        0x94, F, GN__FLOATS, 16,  4, GN_M_ASINH(a), gn__mul(k, gy, gn__rsqrt(k, gn__add(k, gn__num(k, 1), gn__mul(k, x0, x0))))) \
    U( ACOSH,        acosh,        0x95, F, GN__FLOATS, 16,  4, GN_M_ACOSH(a), gn__mul(k, gy, gn__rsqrt(k, gn__sub(k, gn__mul(k, x0, x0), gn__num(k, 1))))) \
    U( ATANH,        atanh,        0x96, F, GN__FLOATS, 16,  4, GN_M_ATANH(a), gn__div(k, gy, gn__sub(k, gn__num(k, 1), gn__mul(k, x0, x0)))) \
    U( ERF,          erf,          0x97, F, GN__FLOATS, 16,  4, GN_M_ERF(a), gn__mul(k, gy, gn__mul(k, gn__exp(k, gn__neg(k, gn__mul(k, x0, x0))), gn__num(k, 1.12837916709551257390)))) \
    U( ERFC,         erfc,         0x98, F, GN__FLOATS, 16,  8, GN_M_ERFC(a), gn__mul(k, gy, gn__mul(k, gn__exp(k, gn__neg(k, gn__mul(k, x0, x0))), gn__num(k, -1.12837916709551257390)))) \
    U( SOFTPLUS,     softplus,     0x99, F, GN__FLOATS, 20,  4, GN_M_MAX(a, GN_C(0)) + GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a))), gn__mul(k, gy, gn__sigmoid(k, x0))) \
    U( SOFTSIGN,     softsign,     0x9a, S, GN__FLOATS,  5,  2, a / (GN_C(1) + GN_M_ABS(a)), gn__softsign_grad(k)) \
    U( HARD_SIGMOID, hard_sigmoid, 0x9b, S, GN__FLOATS,  4,  2, a <= GN_C(-3) ? GN_C(0) : a >= GN_C(3) ? GN_C(1) : (a + GN_C(3)) / GN_C(6), gn__hard_grad(k, gn__num(k, 1.0 / 6))) \
    U( HARD_SWISH,   hard_swish,   0x9c, S, GN__FLOATS,  5,  2, a <= GN_C(-3) ? GN_C(0) : a >= GN_C(3) ? a : a * (a + GN_C(3)) / GN_C(6), gn__hard_swish_grad(k)) \
    U( SELU,         selu,         0x9d, F, GN__FLOATS, 10,  4, GN_C(1.0507009873554804934) * (a > GN_C(0) ? a : GN_C(1.6732632423543772848) * GN_M_EXPM1(a)), gn__selu_grad(k)) \
    U( MISH,         mish,         0x9e, F, GN__FLOATS, 32,  8, a * GN_M_TANH(GN_M_MAX(a, GN_C(0)) + GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a)))), gn__mish_grad(k)) \
    U( LOG_SIGMOID,  log_sigmoid,  0x9f, F, GN__FLOATS, 20,  4, GN_M_MIN(a, GN_C(0)) - GN_M_LOG1P(GN_M_EXP(-GN_M_ABS(a))), gn__mul(k, gy, gn__sigmoid(k, gn__neg(k, x0)))) \
    B( ATAN2,        atan2,        0xa0, F, GN__FLOATS, 20,  4, GN_M_ATAN2(a, b), gn__div(k, gn__mul(k, gy, x1), gn__add(k, gn__mul(k, x0, x0), gn__mul(k, x1, x1))), gn__neg(k, gn__div(k, gn__mul(k, gy, x0), gn__add(k, gn__mul(k, x0, x0), gn__mul(k, x1, x1))))) \
    B( FMOD,         fmod,         0xa1, M, GN__NUMBERS,  8,  1, GN_M_FMOD(a, b), gy, gn__neg(k, gn__mul(k, gy, gn__trunc(k, gn__div(k, x0, x1))))) \
    B( REMAINDER,    remainder,    0xa2, M, GN__NUMBERS,  8,  2, GN_M_REMAINDER(a, b), gy, gn__neg(k, gn__mul(k, gy, gn__floor_divide(k, x0, x1)))) \
    B( FLOOR_DIVIDE, floor_divide, 0xa3, M, GN__NUMBERS,  8,  4, GN_M_FLOORDIV(a, b), gn__zeros_like(k, x0), gn__zeros_like(k, x1)) \
    B( HYPOT,        hypot,        0xa4, F, GN__FLOATS,  8,  4, GN_M_HYPOT(a, b), gn__div(k, gn__mul(k, gy, x0), y), gn__div(k, gn__mul(k, gy, x1), y)) \
    B( COPYSIGN,     copysign,     0xa5, S, GN__FLOATS,  1,  0, GN_M_COPYSIGN(a, b), gn__where(k, gn__eq(k, y, x0), gy, gn__neg(k, gy)), gn__zeros_like(k, x1)) \
    BN( SHIFT_LEFT,   shift_left,   0xa6, I, GN__INTS,  1,  1, GN_M_SHL(a, b)) \
    BN( SHIFT_RIGHT,  shift_right,  0xa7, I, GN__INTS,  1,  1, GN_M_SHR(a, b)) \
    T( FMA,          fma,          0xb0, M, GN__NUMBERS,  2,  1, GN_M_FMA(a, b, c), gn__mul(k, gy, x1), gn__mul(k, gy, x0), gy) \
    T( LERP,         lerp,         0xb1, S, GN__FLOATS,  4,  2, a * (GN_C(1) - c) + b * c, gn__mul(k, gy, gn__sub(k, gn__num(k, 1), x2)), gn__mul(k, gy, x2), gn__mul(k, gy, gn__sub(k, x1, x0)))

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
    gn__tile_fn wide[GN__ISA__COUNT], wide64[GN__ISA__COUNT];   /* the tiles of f32 and of f64 by instruction path */
} gn__op_row;

/* ---- scalar tiles: compiled for every compute type, those of f32 and the long ones of f64 for instruction paths too. Bodies are never contracted,
 * so that all paths give the same bits ---- */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")
/* Passes that cost time and change nothing in loops without branches; of partial redundancies it would make branches, and the loops scalar. */
#pragma GCC optimize("no-schedule-insns2,no-tree-vrp,ira-region=one,no-dse,no-shrink-wrap,no-tree-pta,no-split-paths,no-tree-dse")
#pragma GCC optimize("no-forward-propagate,no-web,no-cprop-registers,no-reorder-blocks,no-rerun-cse-after-loop,no-tree-pre")
#endif
#if defined(__clang__)
#define GN__ONE_BY_ONE _Pragma("clang loop interleave(disable) unroll(disable)")     /* copies of long bodies gain nothing */
#else
#define GN__ONE_BY_ONE
#endif
#define GN__TILE(NAME, R, body)                                                                              \
    GN__TARGET static void GN__PASTE(gn__tile_##NAME##_, GN__PATH)(void *y, const void *const *x, const double *p, int64_t n) { \
        R *restrict out = (R *)y;                                                                            \
        const GN__T *xa = (const GN__T *)x[0], *xb = (const GN__T *)x[1], *xc = (const GN__T *)x[2];         \
        const GN__T p0 = GN__PARAM(p[0]), p1 = GN__PARAM(p[1]);                                              \
        (void)p0; (void)p1;                                                                                  \
        const int64_t whole = n & ~(int64_t)(GN__TILE_STEP - 1);     /* says so to the compiler: no code for a rest */ \
        GN__ONE_BY_ONE for (int64_t i = 0; i < whole; i++) { const GN__T a = xa[i], b = xb[i], c = xc[i]; (void)b; (void)c; out[i] = (R)(body); } \
    }
#define GN__TILE_U(NAME, name, wire, cls, mask, flops, tol, body, ...) GN__WHEN_##cls(GN__TILE(NAME, GN__T, body))
#define GN__TILE_C(NAME, name, wire, cls, mask, flops, tol, body) GN__WHEN_##cls(GN__TILE(NAME, int32_t, body))
#define GN__WHEN_A(...) __VA_ARGS__
#define GN__WHEN_M(...) __VA_ARGS__
#define GN__WHEN_F(...) __VA_ARGS__
#define GN__WHEN_S(...) GN__WHEN_F(__VA_ARGS__)
#define GN__WHEN_I(...)
#define GN__SUFFIX f32
#define GN__LONG GN__LONG_F32
#define GN__PATH f32
#define GN__TARGET GN__TARGET_BASE
#define GN__T float
#define GN__PARAM(x) ((float)(x))
GN__SMALL_BEGIN
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
GN__SMALL_END
#undef GN__LONG
#undef GN__PATH
#undef GN__TARGET
#if GN__X86
#define GN__LONG f32
#define GN__PATH f32_avx2
#define GN__TARGET GN__TARGET_AVX2
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__LONG
#undef GN__PATH
#undef GN__TARGET
#undef GN__WHEN_F
#undef GN__WHEN_M
#define GN__WHEN_F(...)                            /* polynomials gain little beyond AVX2: those tiles serve both */
#define GN__WHEN_M(...)
#define GN__PATH f32_avx512
#define GN__TARGET GN__TARGET_AVX512
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__PATH
#undef GN__TARGET
#undef GN__WHEN_F
#undef GN__WHEN_M
#define GN__WHEN_F(...) __VA_ARGS__
#define GN__WHEN_M(...) __VA_ARGS__
#endif
#undef GN__SUFFIX
#undef GN__T
#undef GN__PARAM
#define GN__SUFFIX f64
#define GN__LONG GN__LONG_F64
#define GN__PATH f64
#define GN__TARGET GN__TARGET_BASE
#define GN__T double
#define GN__PARAM(x) (x)
GN__SMALL_BEGIN
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
GN__SMALL_END
#undef GN__LONG
#undef GN__PATH
#undef GN__TARGET
#if GN__X86
#undef GN__WHEN_A
#undef GN__WHEN_S
#define GN__WHEN_A(...)                            /* what is short gains little in f64 */
#define GN__WHEN_S(...)
#define GN__LONG f64
#define GN__PATH f64_avx2
#define GN__TARGET GN__TARGET_AVX2
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
#undef GN__LONG
#undef GN__PATH
#undef GN__TARGET
#undef GN__WHEN_A
#undef GN__WHEN_S
#define GN__WHEN_A(...) __VA_ARGS__
#define GN__WHEN_S(...) GN__WHEN_F(__VA_ARGS__)
#endif
#undef GN__SUFFIX
#undef GN__T
#undef GN__PARAM
#undef GN__WHEN_F
#undef GN__WHEN_I

#define GN__WHEN_F(...)
#define GN__WHEN_I(...) __VA_ARGS__
#define GN__SUFFIX i32
#define GN__PATH i32
#define GN__TARGET GN__TARGET_BASE
#define GN__T int32_t
#define GN__PARAM(x) ((int32_t)gn__f64_int(x, GN_I32))
GN__SMALL_BEGIN
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
GN__SMALL_END
#undef GN__SUFFIX
#undef GN__PATH
#undef GN__TARGET
#undef GN__T
#undef GN__PARAM
#define GN__SUFFIX i64
#define GN__PATH i64
#define GN__TARGET GN__TARGET_BASE
#define GN__T int64_t
#define GN__PARAM(x) gn__f64_int(x, GN_I64)
GN__SMALL_BEGIN
GN__SCALAR_OPS(GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_U, GN__TILE_C, GN__TILE_U, GN__TILE_U)
GN__SMALL_END
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
    gn_view kept, reduced;    /* the input's dims split in two, those reduced collapsed; both start at the input's first element */
    int64_t n, inner;          /* reduced elements, and of its last dim */
    int64_t blocks;            /* of GN__REDUCE_BLOCK elements (rows, for sums down columns): by the shape alone, whatever the number of threads */
    bool integer, columns;
    bool runs;                 /* by gn__runners: integers, and the extremes that no f32 kernel finds */
    gn__compute compute;       /* what those run in */
    struct gn__partial *partials;   /* results by blocks, when these are several */
    double *sums;              /* the same down columns: blocks by results */
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
#pragma GCC optimize("schedule-insns2,tree-vrp,shrink-wrap,split-paths,tree-pta,cprop-registers,web,dse,tree-dse,crossjumping,rerun-cse-after-loop")
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

/* ---- running results side by side: n of them, each over `rows` elements that are ldx apart. The order of elements is kept ---- */

typedef struct gn__runners {
    /* best[i] and at[i] (of the element's size): the first of the largest (least) so far and its row, counted from `first`; a NaN stays */
    void (*best)(void *best, void *at, const void *x, int64_t ldx, int64_t rows, int64_t n, int64_t first, bool least);
    void (*sum)(void *y, const void *x, int64_t ldx, int64_t rows, int64_t n);       /* integers wrap */
    void (*prod)(void *y, const void *x, int64_t ldx, int64_t rows, int64_t n);
} gn__runners;

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2,no-tree-vectorize")
#pragma GCC optimize("schedule-insns2,tree-vrp,shrink-wrap,split-paths,tree-pta,cprop-registers,web,dse,tree-dse,crossjumping,rerun-cse-after-loop")
#endif
#if defined(__GNUC__) || defined(__clang__)
#define GN__BEST_WIDE(W, T, I, BETTER)                                                                       \
    typedef T vec __attribute__((vector_size(W), aligned(sizeof(T)), may_alias));                            \
    typedef I mask __attribute__((vector_size(W), aligned(sizeof(I)), may_alias));                           \
    for (; i + W / (int64_t)sizeof(T) <= n; i += W / (int64_t)sizeof(T)) {                                   \
        vec y = *(vec *)(best + i);                                                                          \
        mask a = *(mask *)(at + i), row = (mask){ 0 } + (I)first;                                            \
        for (int64_t r = 0; r < rows; r++, row += 1) {                                                       \
            vec v = *(const vec *)(x + r * ldx + i);                                                         \
            mask m = (mask)(least ? v < y : v > y) BETTER(| ((mask)(v != v) & (mask)(y == y)));              \
            y = (vec)((m & (mask)v) | (~m & (mask)y));                                                       \
            a = (m & row) | (~m & a);                                                                        \
        }                                                                                                    \
        *(vec *)(best + i) = y;                                                                              \
        *(mask *)(at + i) = a;                                                                               \
    }
#define GN__RUN_WIDE(W, T, OP)                                                                               \
    typedef T vec __attribute__((vector_size(W), aligned(sizeof(T)), may_alias));                            \
    for (; i + W / (int64_t)sizeof(T) <= n; i += W / (int64_t)sizeof(T)) {                                   \
        vec a = *(vec *)(y + i);                                                                             \
        for (int64_t r = 0; r < rows; r++) a = a OP *(const vec *)(x + r * ldx + i);                         \
        *(vec *)(y + i) = a;                                                                                 \
    }
#else
#define GN__BEST_WIDE(W, T, I, BETTER)
#define GN__RUN_WIDE(W, T, OP)
#endif
#define GN__DEFINE_BEST(S, attribute, W, T, I, BETTER)                                                       \
    attribute static void gn__run_best_##S(void *pbest, void *pat, const void *px, int64_t ldx, int64_t rows, int64_t n, int64_t first, bool least) { \
        T *best = (T *)pbest;                                                                                \
        I *at = (I *)pat;                                                                                    \
        const T *x = (const T *)px;                                                                          \
        int64_t i = 0;                                                                                       \
        GN__BEST_WIDE(W, T, I, BETTER)                                                                       \
        for (; i < n; i++)                                                                                   \
            for (int64_t r = 0; r < rows; r++) {                                                             \
                T v = x[r * ldx + i], y = best[i];                                                           \
                bool better = (least ? v < y : v > y) BETTER(|| (v != v && y == y));                         \
                if (better) { best[i] = v; at[i] = (I)(first + r); }                                         \
            }                                                                                                \
    }
#define GN__DEFINE_RUN(S, attribute, W, T, name, OP)                                                         \
    attribute static void gn__run_##name##_##S(void *py, const void *px, int64_t ldx, int64_t rows, int64_t n) { \
        T *y = (T *)py;                                                                                      \
        const T *x = (const T *)px;                                                                          \
        int64_t i = 0;                                                                                       \
        GN__RUN_WIDE(W, T, OP)                                                                               \
        for (; i < n; i++)                                                                                   \
            for (int64_t r = 0; r < rows; r++) y[i] = y[i] OP x[r * ldx + i];                                \
    }
#define GN__IF_FLOAT(...) __VA_ARGS__
#define GN__IF_INT(...)
#define GN__DEFINE_RUNNERS(S, attribute, W)                                                                  \
    GN__DEFINE_BEST(f32_##S, attribute, W, float, int32_t, GN__IF_FLOAT)                                     \
    GN__DEFINE_BEST(f64_##S, attribute, W, double, int64_t, GN__IF_FLOAT)                                    \
    GN__DEFINE_BEST(i32_##S, attribute, W, int32_t, int32_t, GN__IF_INT)                                     \
    GN__DEFINE_BEST(i64_##S, attribute, W, int64_t, int64_t, GN__IF_INT)                                     \
    GN__DEFINE_RUN(i32_##S, attribute, W, uint32_t, sum, +)                                                  \
    GN__DEFINE_RUN(i64_##S, attribute, W, uint64_t, sum, +)                                                  \
    GN__DEFINE_RUN(i64_##S, attribute, W, uint64_t, prod, *)
#define GN__RUNNERS(S) { [GN__F32] = { gn__run_best_f32_##S, NULL, NULL }, [GN__F64] = { gn__run_best_f64_##S, NULL, NULL }, \
                         [GN__I32] = { gn__run_best_i32_##S, gn__run_sum_i32_##S, NULL }, [GN__I64] = { gn__run_best_i64_##S, gn__run_sum_i64_##S, gn__run_prod_i64_##S } }
GN__DEFINE_RUNNERS(base, , 16)
#if GN__X86
GN__DEFINE_RUNNERS(avx2, GN__TARGET_AVX2, 32)
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static const gn__runners *gn__runners_of(const gn__pool *p, gn__compute t) {
    static const gn__runners sets[2][GN__COMPUTE__COUNT] = {
        GN__RUNNERS(base),
#if GN__X86
        GN__RUNNERS(avx2),
#endif
    };
    return &sets[GN__X86 && p && p->isa >= GN__ISA_AVX2][t];
}

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

/* What is known after some elements of one result. */
typedef struct gn__partial { double sum; uint64_t isum; gn__best best; } gn__partial;

enum { GN__REDUCE_BLOCK = 1 << 16, GN__REDUCE_ROWS = 1024, GN__REDUCE_DEEP = 8 };

/* Whether one of 64 elements is v. */
static bool gn__among(const float *x, float v) {
    int found = 0;
    for (int i = 0; i < 64; i++) found |= x[i] == v;
    return found != 0;
}

/* Extremes of f32: a vector search for the value, then one for its place where it is a new one. */
static void gn__best_f32(const gn__reduce_job *j, gn__best *b, const float *x, int64_t n, int64_t at) {
    bool least = j->kind == GN__REDUCE_MIN || j->kind == GN__REDUCE_ARGMIN;
    float sign = least ? -1 : 1, top = sign * gn__kernels_of(j->c->pool)->top(x, n, sign);
    bool nan = top != top, better = least ? (double)top < b->f : (double)top > b->f;
    if (b->any && (b->f != b->f || !(better || nan))) return;
    int64_t i = 0;
    while (!nan && i + 64 < n && !gn__among(x + i, top)) i += 64;
    while (i + 1 < n && (nan ? x[i] == x[i] : x[i] != top)) i++;
    *b = (gn__best){ (double)x[i], 0, at + i, true };
}

typedef union gn__chunk { float s[GN__CHUNK]; double f[GN__CHUNK]; int32_t i[GN__CHUNK]; int64_t l[GN__CHUNK]; } gn__chunk;
typedef struct gn__runs { gn__chunk y, at, x; } gn__runs;          /* running results and their places; elements that had to be converted */

/* `rows` rows of n elements, ldx apart, where they lie or converted; the first is row `row` for the results. */
static void gn__runs_add(const gn__reduce_job *j, gn__runs *a, const void *x, int64_t ldx, int64_t rows, int64_t n, int64_t row) {
    const gn__runners *k = gn__runners_of(j->c->pool, j->compute);
    if (j->kind == GN__REDUCE_SUM) k->sum(&a->y, x, ldx, rows, n);
    else if (j->kind == GN__REDUCE_PROD) k->prod(&a->y, x, ldx, rows, n);
    else k->best(&a->y, &a->at, x, ldx, rows, n, row, j->kind == GN__REDUCE_MIN || j->kind == GN__REDUCE_ARGMIN);
}

/* n results begin: sums with 0, products with 1, extremes with their first element. */
static void gn__runs_begin(const gn__reduce_job *j, gn__runs *a, const void *x, int64_t n) {
    size_t width = j->compute == GN__F64 || j->compute == GN__I64 ? 8 : 4;
    memset(&a->at, 0, (size_t)n * width);
    if (j->kind >= GN__REDUCE_MAX) memcpy(&a->y, x, (size_t)n * width);
    else if (j->kind == GN__REDUCE_SUM) memset(&a->y, 0, (size_t)n * width);
    else for (int64_t i = 0; i < n; i++) a->y.l[i] = 1;
}

/* n elements as the compute type: where they lie, or in a->x. */
static const void *gn__runs_load(const gn__reduce_job *j, gn__runs *a, const char *p, int64_t stride, int64_t n) {
    gn_dtype d = j->c->in[0].dtype;
    if (stride == 1 && (d == GN_F32 || d == GN_F64 || (d == GN_I32 && j->compute == GN__I32) || d == GN_I64)) return p;
    if (j->compute == GN__F32) gn__load_f32(a->x.s, d, p, stride, n);
    else if (j->compute == GN__F64) gn__load_f64(a->x.f, d, p, stride, n);
    else if (j->compute == GN__I32) gn__load_i32(a->x.i, d, p, stride, n);
    else gn__load_i64(a->x.l, d, p, stride, n);
    return &a->x;
}

/* Result i of those that ran; its element's number is at * step + first. */
static gn__partial gn__runs_result(const gn__reduce_job *j, const gn__runs *a, int64_t i, int64_t step, int64_t first) {
    gn__compute t = j->compute;
    int64_t whole = t == GN__I32 ? (int64_t)a->y.i[i] : t == GN__I64 ? a->y.l[i] : 0, at = t == GN__F64 || t == GN__I64 ? a->at.l[i] : (int64_t)a->at.i[i];
    double real = t == GN__F32 ? (double)a->y.s[i] : t == GN__F64 ? a->y.f[i] : 0;
    return (gn__partial){ real, (uint64_t)whole, { real, whole, at * step + first, true } };
}

static void gn__reduce_join(const gn__reduce_job *j, gn__partial *a, const gn__partial *b);

/* m elements of one result: several running results abreast, element i in number i mod lanes, then put together. */
static void gn__reduce_abreast(const gn__reduce_job *j, gn__partial *out, const char *p, int64_t stride, int64_t m, int64_t at) {
    gn__runs a;
    int64_t bytes = (int64_t)gn__bytes_of(j->c->in[0].dtype), lanes = GN__MIN(m, m < 1024 ? 8 : (int64_t)GN__LANES);
    for (int64_t i = 0, n; i < m; i += n, p += n * stride * bytes) {
        n = GN__MIN(m - i, (int64_t)GN__CHUNK);
        const char *x = (const char *)gn__runs_load(j, &a, p, stride, n);
        int64_t rows = n / lanes, width = j->compute == GN__F64 || j->compute == GN__I64 ? 8 : 4;
        if (i == 0) gn__runs_begin(j, &a, x, lanes);
        gn__runs_add(j, &a, x, lanes, rows, lanes, i / lanes);
        gn__runs_add(j, &a, x + rows * lanes * width, lanes, 1, n - rows * lanes, i / lanes + rows);
    }
    for (int64_t l = 0; l < lanes; l++) {
        gn__partial one = gn__runs_result(j, &a, l, lanes, at + l);
        gn__reduce_join(j, out, &one);
    }
}

/* m elements, `stride` apart, the first of them element `at` of the reduced ones. */
static void gn__reduce_run(const gn__reduce_job *j, gn__partial *a, const char *p, int64_t stride, int64_t m, int64_t at) {
    gn_dtype d = j->c->in[0].dtype;
    int64_t bytes = (int64_t)gn__bytes_of(d);
    bool f32 = gn__dtypes[d].compute == GN__F32 && j->kind != GN__REDUCE_PROD, direct = stride == 1 && (d == GN_F32 || d == GN_F64);
    union { float s[GN__CHUNK]; double f[GN__CHUNK]; } x;
    if (j->runs) { gn__reduce_abreast(j, a, p, stride, m, at); return; }
    for (int64_t i = 0, n; i < m; i += n, p += n * stride * bytes) {
        n = f32 && direct ? m : GN__MIN(m - i, (int64_t)GN__CHUNK);
        const float *s = f32 && direct ? (const float *)(const void *)p : x.s;
        const double *f = direct && d == GN_F64 ? (const double *)(const void *)p : x.f;
        if (f32 && !direct) gn__load_f32(x.s, d, p, stride, n);
        else if (!f32 && f == x.f) gn__load_f64(x.f, d, p, stride, n);
        if (f32 && j->kind >= GN__REDUCE_MAX) gn__best_f32(j, &a->best, s, n, at + i);
        else if (f32) a->sum += gn__sum_f32(gn__kernels_of(j->c->pool), s, n);
        else if (j->kind == GN__REDUCE_PROD) for (int64_t l = 0; l < n; l++) a->sum *= f[l];
        else a->sum += gn__sum_f64(f, n);
    }
}

/* Elements [begin, end) of the reduced ones of result `at`. */
static gn__partial gn__reduce_part(const gn__reduce_job *j, int64_t at, int64_t begin, int64_t end) {
    gn__partial a = { j->kind == GN__REDUCE_PROD, j->kind == GN__REDUCE_PROD, { 0, 0, 0, false } };
    int last = GN__MAX(j->reduced.rank - 1, 0);
    int64_t bytes = (int64_t)gn__bytes_of(j->c->in[0].dtype), stride = j->reduced.rank ? j->reduced.strides[last] : 1;
    const char *base = j->c->in[0].p + gn__view_offset(&j->kept, j->kept.rank, at) * bytes;
    for (int64_t i = begin, m; i < end; i += m) {
        int64_t col = i % j->inner;
        m = GN__MIN(end - i, j->inner - col);
        gn__reduce_run(j, &a, base + (gn__view_offset(&j->reduced, last, i / j->inner) + col * stride) * bytes, stride, m, i);
    }
    return a;
}

/* Whether b is to be taken rather than a: NaN before all others, of equals the one that comes first. */
static bool gn__best_is(const gn__reduce_job *j, const gn__best *b, const gn__best *a) {
    bool least = j->kind == GN__REDUCE_MIN || j->kind == GN__REDUCE_ARGMIN, earlier = b->at < a->at;
    bool nan_a = !j->integer && a->f != a->f, nan_b = !j->integer && b->f != b->f;
    if (!b->any || !a->any) return b->any;
    if (nan_a || nan_b) return nan_b && (!nan_a || earlier);
    if (j->integer) return b->i == a->i ? earlier : least ? b->i < a->i : b->i > a->i;
    return b->f == a->f ? earlier : least ? b->f < a->f : b->f > a->f;
}

static void gn__reduce_join(const gn__reduce_job *j, gn__partial *a, const gn__partial *b) {
    if (j->kind == GN__REDUCE_PROD) { a->sum *= b->sum; a->isum *= b->isum; }
    else { a->sum += b->sum; a->isum += b->isum; }
    if (j->kind >= GN__REDUCE_MAX && gn__best_is(j, &b->best, &a->best)) a->best = b->best;
}

static void gn__reduce_store(const gn__reduce_job *j, int64_t at, const gn__partial *a) {
    const gn_view *out = &j->c->out;
    char *o = out->p + at * (int64_t)gn__bytes_of(out->dtype);
    int64_t whole = j->kind >= GN__REDUCE_ARGMAX ? a->best.at : j->kind >= GN__REDUCE_MAX ? a->best.i : (int64_t)a->isum;
    double real = j->kind >= GN__REDUCE_MAX ? a->best.f : j->kind == GN__REDUCE_MEAN ? a->sum / (double)j->n : a->sum;
    if (gn__is_float(out->dtype)) gn__store_f64(&real, out->dtype, o, 1, 1);
    else gn__store_i64(&whole, out->dtype, o, 1, 1);
}

/* A task is a block of a result. */
static void gn__reduce_range(void *arg, int64_t begin, int64_t end) {
    const gn__reduce_job *j = (const gn__reduce_job *)arg;
    for (int64_t t = begin; t < end; t++) {
        int64_t from = t % j->blocks * GN__REDUCE_BLOCK;
        gn__partial a = gn__reduce_part(j, t / j->blocks, from, j->blocks == 1 ? j->n : GN__MIN(from + GN__REDUCE_BLOCK, j->n));
        if (j->blocks == 1) gn__reduce_store(j, t, &a);
        else j->partials[t] = a;
    }
}

/* Rows [begin, end) of m neighbouring columns, added to f64 sums: a few rows in f32, then those sums. */
static void gn__columns_add(const gn__reduce_job *j, const char *base, int64_t begin, int64_t end, int64_t m, double *sum) {
    static const float ones[GN__REDUCE_DEEP] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const gn__kernels *k = gn__kernels_of(j->c->pool);
    gn_dtype d = j->c->in[0].dtype;
    int64_t bytes = (int64_t)gn__bytes_of(d);
    bool f32 = gn__dtypes[d].compute == GN__F32, direct = d == GN_F32 && j->reduced.rank == 1;
    union { float s[2][GN__CHUNK]; double f[GN__CHUNK]; } x;
    for (int64_t r = begin, n; r < end; r += n) {
        n = f32 ? GN__MIN(end - r, (int64_t)GN__REDUCE_DEEP) : 1;
        if (f32) memset(x.s[0], 0, sizeof x.s[0]);
        if (direct) k->axpy(x.s[0], ones, (const float *)(const void *)(base + r * j->reduced.strides[0] * bytes), j->reduced.strides[0], n, m);
        for (int64_t l = 0; l < n && !direct; l++) {
            const char *p = base + gn__view_offset(&j->reduced, j->reduced.rank, r + l) * bytes;
            if (f32) gn__load_f32(x.s[1], d, p, 1, m);
            else gn__load_f64(x.f, d, p, 1, m);
            if (f32) k->axpy(x.s[0], ones, x.s[1], 0, 1, m);
        }
        for (int64_t i = 0; i < m; i++) sum[i] += f32 ? (double)x.s[0][i] : x.f[i];
    }
}

/* The same for what runs in gn__runners: GN__REDUCE_DEEP rows at a time where they lie in a row, else one. */
static void gn__columns_run(const gn__reduce_job *j, gn__runs *a, const char *base, int64_t begin, int64_t end, int64_t m) {
    int64_t bytes = (int64_t)gn__bytes_of(j->c->in[0].dtype), ldx = j->reduced.rank == 1 ? j->reduced.strides[0] : 0;
    if (j->kind < GN__REDUCE_MAX) gn__runs_begin(j, a, NULL, m);
    for (int64_t r = begin, n; r < end; r += n) {
        const char *p = base + gn__view_offset(&j->reduced, j->reduced.rank, r) * bytes;
        const void *x = gn__runs_load(j, a, p, 1, m);
        n = x == (const void *)p && ldx ? GN__MIN(end - r, (int64_t)GN__REDUCE_DEEP) : 1;
        if (r == begin && j->kind >= GN__REDUCE_MAX) gn__runs_begin(j, a, x, m);
        gn__runs_add(j, a, x, ldx, n, m, r - begin);
    }
}

static void gn__reduce_columns_run(void *arg, int64_t begin, int64_t end) {
    const gn__reduce_job *j = (const gn__reduce_job *)arg;
    int64_t width = j->kept.dims[j->kept.rank - 1], bytes = (int64_t)gn__bytes_of(j->c->in[0].dtype), wide = (width + GN__CHUNK - 1) / GN__CHUNK;
    gn__runs a;
    for (int64_t t = begin; t < end; t++) {
        int64_t outer = t / j->blocks / wide, col = t / j->blocks % wide * GN__CHUNK, m = GN__MIN(width - col, (int64_t)GN__CHUNK), from = t % j->blocks * GN__REDUCE_ROWS;
        gn__columns_run(j, &a, j->c->in[0].p + (gn__view_offset(&j->kept, j->kept.rank - 1, outer) + col) * bytes, from, GN__MIN(from + GN__REDUCE_ROWS, j->n), m);
        for (int64_t i = 0, at = outer * width + col; i < m; i++, at++) {
            gn__partial one = gn__runs_result(j, &a, i, 1, from);
            if (j->blocks == 1) gn__reduce_store(j, at, &one);
            else j->partials[at * j->blocks + t % j->blocks] = one;
        }
    }
}

/* Sums down columns. A task is a block of neighbours in a block of rows. */
static void gn__reduce_columns(void *arg, int64_t begin, int64_t end) {
    const gn__reduce_job *j = (const gn__reduce_job *)arg;
    const gn_view *in = &j->c->in[0], *out = &j->c->out;
    int64_t width = j->kept.dims[j->kept.rank - 1], bytes = (int64_t)gn__bytes_of(in->dtype), wide = (width + GN__CHUNK - 1) / GN__CHUNK;
    double sum[GN__CHUNK];
    for (int64_t t = begin; t < end; t++) {
        int64_t outer = t / j->blocks / wide, col = t / j->blocks % wide * GN__CHUNK, m = GN__MIN(width - col, (int64_t)GN__CHUNK), from = t % j->blocks * GN__REDUCE_ROWS;
        memset(sum, 0, sizeof sum);
        gn__columns_add(j, in->p + (gn__view_offset(&j->kept, j->kept.rank - 1, outer) + col) * bytes, from, GN__MIN(from + GN__REDUCE_ROWS, j->n), m, sum);
        if (j->blocks > 1) { memcpy(j->sums + (t % j->blocks * gn__view_count(out) + outer * width + col), sum, (size_t)m * sizeof *sum); continue; }
        for (int64_t i = 0; i < m && j->kind == GN__REDUCE_MEAN; i++) sum[i] /= (double)j->n;
        gn__store_f64(sum, out->dtype, out->p + (outer * width + col) * bytes, 1, m);
    }
}

/* Blocks of a result put together, in order. */
static void gn__reduce_finish(const gn__reduce_job *j) {
    int64_t total = gn__view_count(&j->c->out), bytes = (int64_t)gn__bytes_of(j->c->out.dtype);
    for (int64_t i = 0; i < total && (!j->columns || j->runs); i++) {
        gn__partial a = j->partials[i * j->blocks];
        for (int64_t b = 1; b < j->blocks; b++) gn__reduce_join(j, &a, &j->partials[i * j->blocks + b]);
        gn__reduce_store(j, i, &a);
    }
    for (int64_t i = 0; i < total && j->columns && !j->runs; i++) {
        double sum = 0;
        for (int64_t b = 0; b < j->blocks; b++) sum += j->sums[b * total + i];
        if (j->kind == GN__REDUCE_MEAN) sum /= (double)j->n;
        gn__store_f64(&sum, j->c->out.dtype, j->c->out.p + i * bytes, 1, 1);
    }
}

/* Which way is taken: down columns when neighbours of one row are neighbours in memory, and which kernels. */
static void gn__reduce_how(gn__reduce_job *j, int64_t width) {
    gn_dtype d = j->c->in[0].dtype;
    bool best = j->kind >= GN__REDUCE_MAX, sums = j->kind == GN__REDUCE_SUM || j->kind == GN__REDUCE_MEAN;
    j->compute = (gn__compute)gn__dtypes[d].compute;
    if (j->integer && !best && (j->kind == GN__REDUCE_PROD || gn__bytes_of(d) > 2)) j->compute = GN__I64;     /* else a block's sum fits i32 */
    j->columns = (best || sums || j->integer) && j->reduced.rank && width >= 8 && j->kept.strides[j->kept.rank - 1] == 1 && j->reduced.strides[j->reduced.rank - 1] != 1;
    j->runs = j->integer || (best && (j->columns || j->compute == GN__F64));
}

static gn_result gn__reduce(const gn__call *c, gn__reduce_kind kind) {
    gn__reduce_job j = { .c = c, .kind = kind, .kept = c->in[0], .reduced = c->in[0], .inner = 1, .integer = !gn__is_float(c->in[0].dtype) };
    j.kept.rank = j.reduced.rank = 0;
    for (int i = 0; i < c->in[0].rank; i++) {
        gn_view *v = (c->attrs[0] >> i) & 1 ? &j.reduced : &j.kept;
        v->dims[v->rank] = c->in[0].dims[i];
        v->strides[v->rank++] = c->in[0].strides[i];
    }
    j.reduced = gn__view_collapse(&j.reduced);
    j.n = gn__view_count(&j.reduced);
    if (j.reduced.rank) j.inner = j.reduced.dims[j.reduced.rank - 1];
    int64_t width = j.kept.rank ? j.kept.dims[j.kept.rank - 1] : 0, total = gn__view_count(&c->out);
    gn__reduce_how(&j, width);
    int64_t block = j.columns ? GN__REDUCE_ROWS : GN__REDUCE_BLOCK, tasks = j.columns ? total / GN__MAX(width, 1) * ((width + GN__CHUNK - 1) / GN__CHUNK) : total;
    j.blocks = GN__MAX((j.n + block - 1) / block, 1);
    void *room = j.blocks > 1 ? gn_alloc((size_t)(total * j.blocks) * (j.columns && !j.runs ? sizeof *j.sums : sizeof *j.partials)) : NULL;
    if (j.blocks > 1 && !room) return gn_fail(c->fault, GN_OUT_OF_MEMORY, "no memory for a reduction of %lld elements", (long long)j.n);
    j.partials = (gn__partial *)room;
    j.sums = (double *)room;
    gn__pool_for(c->pool, tasks * j.blocks, 1 + 16384 / GN__MAX(j.columns ? GN__MIN(j.n, block) * GN__CHUNK : GN__MIN(j.n, block), 1), j.columns ? j.runs ? gn__reduce_columns_run : gn__reduce_columns : gn__reduce_range, &j);
    if (j.blocks > 1) gn__reduce_finish(&j);
    gn_free(room);
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

GN__COLD_BEGIN
/* One side of a product as BLAS sees it: rows of a matrix, or those of its transpose. False when strides say neither. */
static bool gn__blas_side(int64_t rows, int64_t cols, int64_t row, int64_t col, int *out_flip, int *out_ld) {
    bool flip = col != 1 && row == 1;
    int64_t ld = flip ? col : row, least = flip ? rows : cols;
    if ((!flip && col != 1 && cols > 1) || ld > INT_MAX) return false;
    if ((flip ? cols : rows) == 1) ld = GN__MAX(ld, least);
    *out_flip = flip ? 112 : 111;
    *out_ld = (int)ld;
    return ld >= GN__MAX(least, 1);
}

/* f32 and f64 products of more than a few rows. False when they are not for BLAS. */
static bool gn__gemm_blas(const gn__gemm *g, const gn__blas *b) {
    int ta, tb, lda, ldb;
    if ((g->dtype != GN_F32 && g->dtype != GN_F64) || g->m <= GN__GEMM_SMALL || g->k == 0 || g->m > INT_MAX || g->n > INT_MAX || g->k > INT_MAX) return false;
    if (!gn__blas_side(g->m, g->k, g->am, g->ak, &ta, &lda) || !gn__blas_side(g->k, g->n, g->bk, g->bn, &tb, &ldb)) return false;
    for (int64_t i = 0; i < g->m && g->bias; i++) {
        if (g->dtype == GN_F32) gn__load_f32((float *)(void *)g->c + i * g->n, GN_F32, g->bias->p, g->bias->strides[0], g->n);
        else gn__load_f64((double *)(void *)g->c + i * g->n, GN_F64, g->bias->p, g->bias->strides[0], g->n);
    }
    int m = (int)g->m, n = (int)g->n, k = (int)g->k, add = g->bias != NULL;
    if (g->dtype == GN_F32) b->sgemm(101, ta, tb, m, n, k, 1, (const float *)(const void *)g->a, lda, (const float *)(const void *)g->b, ldb, (float)add, (float *)(void *)g->c, n);
    else b->dgemm(101, ta, tb, m, n, k, 1, (const double *)(const void *)g->a, lda, (const double *)(const void *)g->b, ldb, add, (double *)(void *)g->c, n);
    return true;
}
GN__COLD_END

static bool gn__gemm_run(const gn__gemm *g, gn__pool *pool) {
    if (g->m == 0 || g->n == 0) return true;
    if (pool && pool->blas && gn__gemm_blas(g, pool->blas)) return true;
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

/* How many keys query t sees. */
static int64_t gn__keys_seen(const gn__attention_job *j, int64_t t) {
    return j->c->attrs[0] & 1 ? GN__MAX(j->length - j->c->in[0].dims[2] + t + 1, 0) : j->length;
}

GN__COLD_BEGIN
/* One query row: scores (S) in `s`, in f64; then the weighted sum of v. `w` holds one key or value row. */
static void gn__attention_row(const gn__attention_job *j, int64_t at, double *s, double *q, double *w, double *o) {
    const gn_view *Q = &j->c->in[0], *K = &j->c->in[1], *V = &j->c->in[2];
    int64_t T = Q->dims[2], H = Q->dims[1], D = Q->dims[3], E = V->dims[3], bytes = (int64_t)gn__bytes_of(Q->dtype);
    int64_t t = at % T, h = at / T % H, b = at / T / H, g = h / (H / K->dims[1]);
    int64_t seen = gn__keys_seen(j, t);
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

/* Adds n elements of the mask, `stride` apart, to scores; false hides. */
static void gn__attention_mask(const gn__attention_job *j, const char *m, int64_t stride, float *s, int64_t n) {
    int64_t bytes = (int64_t)gn__bytes_of(j->mask.dtype);
    float x[GN__CHUNK];
    for (int64_t i = 0; i < n && j->mask.dtype == GN_BOOL; i++) s[i] = m[i * stride] ? s[i] : -INFINITY;
    for (int64_t i = 0, some; i < n && j->mask.dtype != GN_BOOL; i += some) {
        some = GN__MIN(n - i, (int64_t)GN__CHUNK);
        gn__load_f32(x, j->mask.dtype, m + i * stride * bytes, stride, some);
        for (int64_t l = 0; l < some; l++) s[i + l] += x[l];
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
    int64_t seen = gn__keys_seen(j, t);
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
    if (j->mask.p) gn__attention_mask(j, j->mask.p + (b * j->mask.strides[0] + h * j->mask.strides[1] + t * j->mask.strides[2]) * (int64_t)gn__bytes_of(j->mask.dtype), j->mask.strides[3], s, seen);
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

/* ---- attention by tiles: a block of keys and values is packed once for many queries, and no more scores exist at a time than
 * those of one panel with one block (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022). Scores are kept keys by
 * queries: a panel's scores are then a packed operand of the second product, and its maxima and sums are vectors. ---- */

enum { GN__TILE_QUERIES = 160, GN__TILE_KEYS = 126, GN__TILE_FEW = 16, GN__TILE_WIDE = GN__GEMM_KC };     /* queries fill whole panels of 8, 16, 32 */

typedef struct gn__attention_tile {
    const gn__attention_job *j;
    const gn__kernels *k;
    gn__gemm q, kv, v;         /* how they lie: queries and values as right sides, keys as a left side */
    int64_t b, h, t, n;        /* the head; first query and how many */
    int64_t D, E, rows;        /* rows: E up to a whole panel */
    float *query, *sums;       /* panels of nr queries: (D, nr) scaled, (rows, nr) */
    float *keys, *values, *scores, *top;
    double *weight;            /* sums of the weights; top: the largest score so far, by query */
} gn__attention_tile;

static size_t gn__tile_floats(const gn__kernels *k, int64_t D, int64_t E) {
    return (size_t)(GN__TILE_QUERIES * (D + E + k->mr + 3) + (GN__TILE_KEYS + k->mr) * (D + k->nr) + GN__TILE_KEYS * (E + k->mr)) + 16 * 8;
}

static float *gn__tile_take(float **room, int64_t n) {
    float *p = *room;
    *room += (n + 15) / 16 * 16;
    return p;
}

static void gn__tile_begin(gn__attention_tile *a, int64_t task, float *room) {
    const gn_view *Q = &a->j->c->in[0], *K = &a->j->c->in[1], *V = &a->j->c->in[2];
    int64_t T = Q->dims[2], H = Q->dims[1], tiles = (T + GN__TILE_QUERIES - 1) / GN__TILE_QUERIES, bytes = (int64_t)gn__bytes_of(Q->dtype), mr = a->k->mr, nr = a->k->nr;
    a->b = task / tiles / H, a->h = task / tiles % H, a->t = task % tiles * GN__TILE_QUERIES, a->n = GN__MIN(T - a->t, (int64_t)GN__TILE_QUERIES);
    int64_t g = a->h / (H / K->dims[1]);
    a->D = Q->dims[3], a->E = V->dims[3], a->rows = (a->E + mr - 1) / mr * mr;
    a->q = (gn__gemm){ .b = Q->p + (a->b * Q->strides[0] + a->h * Q->strides[1]) * bytes, .bk = Q->strides[3], .bn = Q->strides[2], .dtype = Q->dtype };
    a->kv = (gn__gemm){ .a = K->p + (a->b * K->strides[0] + g * K->strides[1]) * bytes, .am = K->strides[2], .ak = K->strides[3], .dtype = K->dtype };
    a->v = (gn__gemm){ .b = V->p + (a->b * V->strides[0] + g * V->strides[1]) * bytes, .bk = V->strides[2], .bn = V->strides[3], .dtype = V->dtype };
    a->query = gn__tile_take(&room, GN__TILE_QUERIES * a->D);
    a->sums = gn__tile_take(&room, GN__TILE_QUERIES * a->rows);
    a->keys = gn__tile_take(&room, (GN__TILE_KEYS + mr) * a->D);
    a->values = gn__tile_take(&room, GN__TILE_KEYS * a->rows);
    a->scores = gn__tile_take(&room, (GN__TILE_KEYS + mr) * nr);
    a->top = gn__tile_take(&room, GN__TILE_QUERIES);
    a->weight = (double *)(void *)gn__tile_take(&room, 2 * GN__TILE_QUERIES);
    gn__pack_b(a->query, &a->q, a->t, a->n, 0, a->D, (int)nr);
    a->k->affine(a->query, a->query, (a->n + nr - 1) / nr * nr * a->D, 0, (float)a->j->scale);
    memset(a->sums, 0, (size_t)(GN__TILE_QUERIES * a->rows) * sizeof *a->sums);
    for (int64_t i = 0; i < GN__TILE_QUERIES; i++) { a->top[i] = -INFINITY; a->weight[i] = 0; }
}

/* Hides scores of the panel from query t on with n keys from `key` on. */
static void gn__tile_hide(const gn__attention_tile *a, int64_t t, int64_t lanes, int64_t key, int64_t n) {
    const gn__attention_job *j = a->j;
    const gn_view *m = &j->mask;
    int64_t nr = a->k->nr, hidden = j->c->attrs[0] & 1 ? key + j->c->in[0].dims[2] - j->length - t : INT64_MIN / 2;     /* queries that do not see the key */
    for (int64_t i = 0; i < n; i++, hidden++) {
        float *s = a->scores + i * nr;
        for (int64_t l = 0; l < GN__MIN(hidden, lanes); l++) s[l] = -INFINITY;
        if (m->p) gn__attention_mask(j, m->p + (a->b * m->strides[0] + a->h * m->strides[1] + t * m->strides[2] + (key + i) * m->strides[3]) * (int64_t)gn__bytes_of(m->dtype), m->strides[2], s, lanes);
    }
}

/* Scores become weights against the largest score so far; what was summed against a smaller one shrinks. */
static void gn__tile_softmax(const gn__attention_tile *a, int64_t first, int64_t n) {
    const gn__pool *pool = a->j->c->pool;
    int64_t nr = a->k->nr;
    float best[64], less[64], shrink[64], part[64] = { 0 }, ones[GN__TILE_KEYS];
    int32_t at[64] = { 0 };
    bool shrinks = false;
    memcpy(best, a->scores, (size_t)nr * sizeof *best);
    gn__runners_of(pool, GN__F32)->best(best, at, a->scores, nr, n, nr, 0, false);
    for (int64_t l = 0; l < nr; l++) {
        float old = a->top[first + l], now = old != old || best[l] <= old ? old : best[l];
        less[l] = now == -INFINITY ? 0 : -now;
        shrink[l] = old + less[l];
        a->top[first + l] = now;
        shrinks |= old != now;
    }
    gn__exp_f32(pool, shrink, shrink, nr);
    for (int64_t i = 0; i < n; i++) { ones[i] = 1; a->k->gain(a->scores + i * nr, NULL, less, nr); }
    gn__exp_f32(pool, a->scores, a->scores, n * nr);
    a->k->axpy(part, ones, a->scores, nr, n, nr);
    for (int64_t l = 0; l < nr; l++) a->weight[first + l] = a->weight[first + l] * (double)shrink[l] + (double)part[l];
    for (int64_t e = 0; e < a->E && shrinks; e++) a->k->gain(a->sums + first * a->rows + e * nr, shrink, NULL, nr);
}

/* A weight of 0 must not meet infinity or NaN where a query does not see the value. */
static bool gn__tile_is_finite(const gn__attention_tile *a, int64_t n) {
    float high = a->k->top(a->values, n * a->rows, 1), low = a->k->top(a->values, n * a->rows, -1);
    return high < INFINITY && low < INFINITY;
}

/* False: what is hidden is not finite; the rows are to be done one by one. */
static bool gn__tile_run(gn__attention_tile *a) {
    int64_t mr = a->k->mr, nr = a->k->nr, least = gn__keys_seen(a->j, a->t), most = gn__keys_seen(a->j, a->t + a->n - 1);
    for (int64_t key = 0, n; key < most; key += n) {
        n = GN__MIN(most - key, (int64_t)GN__TILE_KEYS);
        bool hides = a->j->mask.p || key + n > least;
        for (int64_t p = 0; p < n; p += mr) gn__pack_a(a->keys + p * a->D, &a->kv, key + p, n - p, 0, a->D, (int)mr);
        gn__pack_b(a->values, &a->v, 0, a->E, key, n, (int)mr);
        if (hides && !gn__tile_is_finite(a, n)) return false;
        for (int64_t i = 0; i < a->n; i += nr) {
            if (gn__keys_seen(a->j, a->t + GN__MIN(i + nr, a->n) - 1) <= key) continue;
            for (int64_t p = 0; p < n; p += mr) a->k->micro(a->keys + p * a->D, a->query + i * a->D, a->scores + p * nr, nr, a->D, false);
            if (hides) gn__tile_hide(a, a->t + i, GN__MIN(nr, a->n - i), key, n);
            gn__tile_softmax(a, i, n);
            for (int64_t e = 0; e < a->rows; e += mr) a->k->micro(a->values + e * n, a->scores, a->sums + i * a->rows + e * nr, nr, n, true);
        }
    }
    return true;
}

static void gn__tile_store(const gn__attention_tile *a) {
    const gn_view *out = &a->j->c->out;
    float row[GN__TILE_WIDE];
    for (int64_t i = 0; i < a->n; i++) {
        const float *sums = a->sums + i / a->k->nr * a->k->nr * a->rows + i % a->k->nr;
        float scale = a->top[i] == -INFINITY ? 0 : (float)(1 / a->weight[i]);                  /* nothing seen: zeros */
        for (int64_t e = 0; e < a->E; e++) row[e] = sums[e * a->k->nr] * scale;
        gn__store_f32(row, out->dtype, out->p + (((a->b * out->dims[1] + a->h) * out->dims[2] + a->t + i) * a->E) * (int64_t)gn__bytes_of(out->dtype), 1, a->E);
    }
}

static void gn__attention_tiles(void *arg, int64_t begin, int64_t end) {
    gn__attention_job *j = (gn__attention_job *)arg;
    gn__attention_tile a = { .j = j, .k = gn__kernels_of(j->c->pool) };
    float *raw = (float *)gn_alloc(gn__tile_floats(a.k, j->c->in[0].dims[3], j->c->in[2].dims[3]) * sizeof *raw + 64);
    if (!raw) { gn__atomic_store(&j->failed, 1); return; }
    for (int64_t task = begin; task < end; task++) {
        gn__tile_begin(&a, task, (float *)(void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63));
        int64_t row = (a.b * j->c->in[0].dims[1] + a.h) * j->c->in[0].dims[2] + a.t;
        if (gn__tile_run(&a)) gn__tile_store(&a);
        else gn__attention_range_f32(j, row, row + a.n);
    }
    gn_free(raw);
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
    bool tiles = gn__dtypes[c->out.dtype].compute == GN__F32 && T >= GN__TILE_FEW && c->in[0].dims[3] <= GN__TILE_WIDE && c->in[2].dims[3] <= GN__TILE_WIDE;
    if (gn__view_count(&c->out) && tiles) gn__pool_for(c->pool, dims[0] * dims[1] * ((T + GN__TILE_QUERIES - 1) / GN__TILE_QUERIES), 1, gn__attention_tiles, &j);
    else if (gn__view_count(&c->out)) gn__pool_for(c->pool, dims[0] * dims[1] * T, 1 + 1024 / GN__MAX(j.length, 1), gn__attention_range, &j);
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
#define GN__TILES_A(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f64, gn__tile_##NAME##_i32, gn__tile_##NAME##_i64 }
#if GN__X86
#define GN__WIDE_A(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f32_avx2, gn__tile_##NAME##_f32_avx512 }
#define GN__WIDE_F(NAME) { gn__tile_##NAME##_f32, gn__tile_##NAME##_f32_avx2, gn__tile_##NAME##_f32_avx2 }
#define GN__WIDE64_A(NAME) { gn__tile_##NAME##_f64, gn__tile_##NAME##_f64, gn__tile_##NAME##_f64 }
#define GN__WIDE64_F(NAME) { gn__tile_##NAME##_f64, gn__tile_##NAME##_f64_avx2, gn__tile_##NAME##_f64_avx2 }
#else
#define GN__WIDE_A(NAME) { gn__tile_##NAME##_f32, NULL, NULL }
#define GN__WIDE_F(NAME) GN__WIDE_A(NAME)
#define GN__WIDE64_A(NAME) { gn__tile_##NAME##_f64, NULL, NULL }
#define GN__WIDE64_F(NAME) GN__WIDE64_A(NAME)
#endif
#define GN__TILES_S(NAME) GN__TILES_F(NAME)
#define GN__WIDE_S(NAME) GN__WIDE_F(NAME)
#define GN__WIDE64_S(NAME) GN__WIDE64_A(NAME)
#define GN__TILES_M(NAME) GN__TILES_A(NAME)
#define GN__WIDE_M(NAME) GN__WIDE_F(NAME)
#define GN__WIDE64_M(NAME) GN__WIDE64_F(NAME)
#define GN__WIDE_I(NAME) { NULL, NULL, NULL }
#define GN__WIDE64_I(NAME) GN__WIDE_I(NAME)
#define GN__TILES_I(NAME) { NULL, NULL, gn__tile_##NAME##_i32, gn__tile_##NAME##_i64 }
#define GN__ROW(NAME, lower, w, cls, mask, fl, tol, body, n, cmp, rule, g)                                                  \
    [GN__OP_##NAME] = { .name = lower, .text = body, .wire = w, .kind = GN_CLASS_SCALAR, .least = n, .most = n,              \
                        .n_attrs = GN__OP_##NAME == GN__OP_CLAMP ? 2 : 0, .compares = cmp, .dtypes = mask, .flops = fl,      \
                        .tolerance = tol, .infer = rule, .grad = g, .tile = GN__TILES_##cls(NAME), .wide = GN__WIDE_##cls(NAME), .wide64 = GN__WIDE64_##cls(NAME) },
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

typedef struct gn__hint { uint8_t phase, role, residency, modality, on; } gn__hint;   /* as gn_part_hint */

typedef struct gn__node {    /* 64 bytes: a line of the cache */
    uint64_t hash;           /* of the structure below, equal for equal structures */
    const char *file;
    uint64_t value;          /* id of the kept value, 0: none */
    uint32_t line;
    uint32_t shape;          /* index into shapes */
    uint32_t ins, attrs;     /* first entry in the side arrays */
    uint32_t slot;           /* 1 + slot of a weight, a state or a version of one; 0: none */
    uint32_t extra;          /* data: index into data; failed: into errors; state and committed version: the version */
    uint32_t label;          /* index into labels, 0: none */
    uint16_t op;
    uint8_t n_ins, n_attrs;
    uint8_t dtype, leaf;
    bool committed;          /* a version node that has become its state's value */
    gn__hint hint;           /* what the program said */
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
    gn__hint hint;                           /* said where it was made */
} gn__slot;

typedef struct gn__origin { const char *file; uint32_t line, label; uint16_t op; } gn__origin;

typedef struct gn__plan {
    gn_part *part;
    uint64_t key;            /* the part's hash and what was said of its nodes */
    void *exec_plan;
    gn__origin *origins;     /* per node, of the latest step that used the plan */
    uint32_t next;           /* 1 + index of the plan that came after it the last time, 0: none did */
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
    GN__ARRAY(gn_part_hint, hints);
    GN__ARRAY(uint32_t, ids);      /* context node of each part node */
    GN__ARRAY(uint64_t, marks);    /* bit per context node; all zero between cuts */
    GN__ARRAY(uint32_t, where);    /* part node of each context node that is marked */
    GN__ARRAY(uint64_t, seen);     /* open addressing over the part's nodes: serial of the cut, 1 + node; its room is n_seen */
    uint32_t serial;
    bool said;                     /* of any node */
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
    struct gn__multi *multi; /* what exec is when several devices were named, else NULL */
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
    uint32_t latest_plan;    /* 1 + index of the plan of the latest step, 0: none */
    uint64_t run_counter;    /* of the random generators, one a step */
    uint32_t n_random;       /* generators built in this step */
    uint32_t random_leaf;    /* node of the running counter in this step, 0: none */
    uint32_t failed_effect;  /* first failed assign of this step, 0: none */
    gn__hint hint;           /* what the scopes in force say */
    char *device_names;      /* as given, comma-separated, without what follows a '?' */
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

/* ---- trace: off, one branch that is predicted ---- */

static void gn__trace(gn_trace_fn fn, void *user, const char *name, const char *device, uint64_t begin_us, uint64_t bytes) {
    gn_trace_event e = { name, device, begin_us, gn_now_us(), bytes };
    fn(user, &e);
}

GN__INLINE uint64_t gn__trace_begin(const gn_ctx *g) { return g->desc.trace ? gn_now_us() : 0; }
GN__INLINE void gn__trace_end(const gn_ctx *g, const char *name, uint64_t begin_us, uint64_t bytes) {
    if (g->desc.trace) gn__trace(g->desc.trace, g->desc.trace_user, name, "", begin_us, bytes);
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
    n->n_ins = (uint8_t)n_in;
    n->attrs = (uint32_t)g->n_attrs;
    n->n_attrs = (uint8_t)n_attrs;
    n->hint = g->hint;
    if (g->desc.trace) gn__trace(g->desc.trace, g->desc.trace_user, gn__ops[op].name, "", gn_now_us(), 0);
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
    n->hint = s->hint;
    n->hint.phase = g->hint.phase;
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

typedef struct gn__part_size { uint32_t n_nodes, n_ins, n_attrs, n_dims, n_args, n_outs, n_updates, n_hints; } gn__part_size;

/* One block: gn_free releases it. Arrays are zeroed. */
static gn_part *gn__part_alloc(const gn__part_size *s) {
    size_t at[8], n = sizeof(gn_part);
    const size_t sizes[8] = { s->n_nodes * sizeof(gn_part_node), s->n_attrs * sizeof(int64_t), s->n_dims * sizeof(int64_t), s->n_ins * sizeof(uint32_t),
                              s->n_args * sizeof(uint32_t), s->n_outs * sizeof(uint32_t), s->n_updates * sizeof(gn_part_update), s->n_hints * sizeof(gn_part_hint) };
    for (int i = 0; i < 8; i++) {
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
    part->hints = s->n_hints ? (const gn_part_hint *)(void *)(p + at[7]) : NULL;
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
    return GN__SAME(n_nodes, nodes) && GN__SAME(n_ins, ins) && GN__SAME(n_attrs, attrs) && GN__SAME(n_dims, dims) &&
           GN__SAME(n_args, args) && GN__SAME(n_outs, outs) && GN__SAME(n_updates, updates) && !a->hints == !b->hints &&
           (!a->hints || memcmp(a->hints, b->hints, a->n_nodes * sizeof *a->hints) == 0);
#undef GN__SAME
}

static gn_part *gn__part_copy(const gn_part *p) {
    gn__part_size s = { p->n_nodes, p->n_ins, p->n_attrs, p->n_dims, p->n_args, p->n_outs, p->n_updates, p->hints ? p->n_nodes : 0 };
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
    if (c->hints) GN__TAKE(n_nodes, hints);
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
    if (c->n_seen < 2 * g->n_nodes) {
        while (c->n_seen < 2 * g->n_nodes) c->n_seen = GN__MAX(2 * c->n_seen, (size_t)64);
        gn_free(c->seen);
        c->seen = (uint64_t *)gn__alloc_zero(c->n_seen * sizeof *c->seen);
        if (!c->seen) { c->n_seen = 0; return false; }
    }
    c->serial++;
    c->said = false;
    c->n_nodes = c->n_ins = c->n_attrs = c->n_dims = c->n_args = c->n_outs = c->n_updates = c->n_ids = c->n_where = c->n_hints = 0;
    return GN__GROW(c, where, g->n_nodes);
}

#define GN__MARK(c, id) ((c)->marks[(id) >> 6] |= (uint64_t)1 << ((id) & 63))

static int gn__top_bit(uint64_t w) {
#if defined(__GNUC__)
    if (w) return 63 - __builtin_clzll(w);
#endif
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
    if (!GN__GROW(c, nodes, 1) || !GN__GROW(c, ids, 1) || !GN__GROW(c, ins, n->n_ins) || !GN__GROW(c, attrs, n->n_attrs) || !GN__GROW(c, dims, (size_t)s->rank) || !GN__GROW(c, args, 1) || !GN__GROW(c, hints, 1)) return false;
    gn_part_node *p = &c->nodes[c->n_nodes];
    memset(p, 0, sizeof *p);
    p->op = leaf ? (uint16_t)gn__op_leaf(leaf) : n->op;
    p->dtype = n->dtype;
    p->leaf = (uint8_t)leaf;
    p->rank = (uint8_t)s->rank;
    p->phase = n->hint.phase;
    const gn__hint h = n->hint;
    c->said |= (h.phase | h.role | h.residency | h.modality | h.on) != 0;
    c->hints[c->n_hints++] = (gn_part_hint){ h.phase, h.role, h.residency, h.modality, h.on };
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

/* Ops of which each use counts: a generator draws anew, a version of a state is an effect. */
static bool gn__is_single(int op) { return op == GN__OP_RANDOM_UNIFORM || op == GN__OP_RANDOM_NORMAL || op == GN__OP_ASSIGN || op == GN__OP_KV_APPEND; }

/* What the program said of a node counts, so that a node is never scheduled by another's word. */
static bool gn__cut_same(const gn__cut *c, uint32_t at, const gn_part_node *b) {
    const gn_part_node *a = &c->nodes[at];
    return memcmp(&c->hints[at], &c->hints[c->n_hints - 1], sizeof *c->hints) == 0 && a->op == b->op && a->dtype == b->dtype && a->phase == b->phase && a->n_ins == b->n_ins && a->n_attrs == b->n_attrs && a->leaf == GN_LEAF_NONE &&
           (a->n_ins == 0 || memcmp(c->ins + a->ins, c->ins + b->ins, a->n_ins * sizeof *c->ins) == 0) && (a->n_attrs == 0 || memcmp(c->attrs + a->attrs, c->attrs + b->attrs, a->n_attrs * sizeof *c->attrs) == 0);
}

/* The node just taken, `id`, is given back when an equal one was taken before: same op on the same inputs with the same attributes. */
static void gn__cut_share(gn_ctx *g, uint32_t id) {
    gn__cut *c = &g->cut;
    const gn_part_node *n = &c->nodes[c->n_nodes - 1];
    if (c->where[id] != c->n_nodes - 1 || n->leaf != GN_LEAF_NONE || gn__is_single(n->op)) return;
    uint64_t h = gn__mix(((uint64_t)n->op << 32) | ((uint64_t)n->phase << 16) | n->dtype, n->n_ins);
    for (uint32_t i = 0; i < n->n_ins; i++) h = gn__mix(h, c->ins[n->ins + i]);
    for (uint32_t i = 0; i < n->n_attrs; i++) h = gn__mix(h, (uint64_t)c->attrs[n->attrs + i]);
    size_t at = (size_t)h & (c->n_seen - 1);
    for (; c->seen[at] >> 32 == c->serial; at = (at + 1) & (c->n_seen - 1)) {
        uint32_t other = (uint32_t)c->seen[at] - 1;
        if (!gn__cut_same(c, other, n)) continue;
        c->where[id] = other;
        c->n_ins = n->ins;
        c->n_attrs = n->attrs;
        c->n_dims = n->dims;
        c->n_nodes--;
        c->n_ids--;
        c->n_hints--;
        g->stats.nodes_shared++;
        return;
    }
    c->seen[at] = ((uint64_t)c->serial << 32) | c->n_nodes;
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
            else gn__cut_share(g, id);
        }
    }
    return r;
}

/* Fills g->cut.part but for its hash, which a plan that is expected does not need. On failure *out_bad is the node that is the cause. */
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
                         (uint32_t)c->n_updates, c->nodes, c->ins, c->attrs, c->dims, c->args, c->outs, c->updates, c->said ? c->hints : NULL };
    return GN_OK;
}

/* Parts that differ in hints alone have one hash, for hints do not travel, and plans of their own. */
static uint64_t gn__plan_key(const gn_part *p) {
    uint64_t h = p->hash;
    for (uint32_t i = 0; p->hints && i < p->n_nodes; i++) {
        const gn_part_hint *x = &p->hints[i];
        h = gn__mix(h, ((uint64_t)x->on << 32) | ((uint64_t)x->phase << 24) | ((uint64_t)x->role << 16) | ((uint64_t)x->residency << 8) | x->modality);
    }
    return h;
}

static uint64_t gn__plan_hash_of(const void *owner, uint32_t i) { return ((const gn_ctx *)owner)->plans[i].key; }
static bool gn__plan_same(const void *owner, uint32_t i, const void *key) {
    const gn_part *a = ((const gn_ctx *)owner)->plans[i].part, *b = (const gn_part *)key;
    return a->hash == b->hash && gn__part_equal(a, b);
}


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
 * What is known of a node beyond its arithmetic: roles and phases recognised from structure, what the program said of them, costs,
 * and the groups of nodes that run together. A pure function of the part; time and memory grow with its size alone. */

#define GN__X(name, number, text) text,
static const char *const gn__phase_names[GN_PHASE__COUNT] = { GN_PHASES(GN__X) };
static const char *const gn__role_names[GN_ROLE__COUNT] = { GN_ROLES(GN__X) };
static const char *const gn__residency_names[GN_RESIDENCY__COUNT] = { GN_RESIDENCIES(GN__X) };
static const char *const gn__modality_names[GN_MODALITY__COUNT] = { GN_MODALITIES(GN__X) };
#undef GN__X

static const char *gn__residency_name(const gn_ctx *g, uint32_t id) {
    const gn__node *n = &g->nodes[id];
    if (n->hint.residency) return gn__residency_names[n->hint.residency];
    if (n->slot && n->leaf != GN_LEAF_WEIGHT) return g->slots[n->slot - 1].kv ? "kv cache" : "state";
    return n->leaf == GN_LEAF_WEIGHT ? "weight" : n->leaf == GN_LEAF_DATA ? "input" : "activation";
}

/* ---- recognising: one pass over the nodes for each recogniser, each with bounded work at a node. What is matched is the
 * graph without views and casts: `base` leads through them ---- */

enum {
    GN__FREE = 1,        /* a leaf, a constant, or a view of one: it can be wherever it is used */
    GN__PARAM = 2,       /* depends on a weight or a state */
    GN__RESULT = 4,      /* an output or an update shows it */
    GN__GRADIENT = 8,
    GN__DROPPED = 16     /* it was read from outside its unit before the unit's end */
};
enum { GN__SCALARS = 1, GN__REDUCTIONS = 2, GN__SOFTMAXES = 4, GN__CHOICES = 8 };     /* what a walk passes */
enum { GN__WALK_MOST = 48, GN__TRACE_MOST = 64 };
#define GN__SEVERAL UINT32_MAX

typedef struct gn__recognition {
    const gn_part *p;
    gn_meaning *m;
    uint32_t n, off;
    uint32_t *base;      /* the node whose elements this one shows */
    uint32_t *reader;    /* first node that reads it, n: none */
    uint32_t *reads;     /* how often it is read */
    uint32_t *unit;      /* parents of a union-find; after gn__units_number 1 + the unit's last node, 0: of none */
    uint32_t *last;      /* of a root: the unit's last node */
    uint32_t *keys;      /* 1 + the first attention that reads it as keys or values */
    size_t disagreements_room;
    uint8_t *facts, *role, *kind, *phase;   /* role: recognised; kind: of the node a unit formed around, the unit's role; phase: recognised here */
} gn__recognition;

typedef struct gn__walk { uint32_t inside[GN__WALK_MOST], edge[GN__WALK_MOST], n_inside, n_edge; } gn__walk;

static int gn__op_at(const gn__recognition *w, uint32_t i) { return w->p->nodes[i].leaf ? GN__OP_FAILED : w->p->nodes[i].op; }
static uint32_t gn__in(const gn__recognition *w, uint32_t i, uint32_t k) { return w->p->ins[w->p->nodes[i].ins + k]; }
static uint32_t gn__in_base(const gn__recognition *w, uint32_t i, uint32_t k) { return w->base[gn__in(w, i, k)]; }
static bool gn__is_free(const gn__recognition *w, uint32_t i) { return (w->facts[i] & GN__FREE) != 0; }
static int64_t gn__dim(const gn__recognition *w, uint32_t i, int axis) { return w->p->dims[w->p->nodes[i].dims + (uint32_t)axis]; }

static int64_t gn__elements(const gn__recognition *w, uint32_t i) {
    int64_t n = 1;
    for (int k = 0; k < w->p->nodes[i].rank; k++) n *= gn__dim(w, i, k);
    return n;
}

/* Shows elements of its input as they are, or as another dtype. */
static bool gn__is_glue(const gn_part_node *n) { return n->leaf == GN_LEAF_NONE && (gn__is_view_op(n->op) || n->op == GN__OP_CAST); }

/* A weight, or a state that is used as one. */
static bool gn__is_param(const gn__recognition *w, uint32_t i) {
    uint8_t leaf = w->p->nodes[w->base[i]].leaf;
    return leaf == GN_LEAF_WEIGHT || leaf == GN_LEAF_STATE;
}
static bool gn__is_table(const gn__recognition *w, uint32_t i) {
    const gn_part_node *b = &w->p->nodes[w->base[i]];
    return b->leaf == GN_LEAF_WEIGHT || (b->leaf == GN_LEAF_STATE && b->rank <= 2);
}

static unsigned gn__op_sort(int op) {
    switch (op) {
    case GN__OP_FAILED: return 0;
    case GN__OP_SUM: case GN__OP_MEAN: case GN__OP_MAX: return GN__REDUCTIONS;
    case GN__OP_SOFTMAX: case GN__OP_LOG_SOFTMAX: return GN__SOFTMAXES;
    case GN__OP_ARGMAX: case GN__OP_ARGSORT: case GN__OP_GATHER: case GN__OP_CUMSUM: return GN__CHOICES;
    default: return gn__ops[op].kind == GN_CLASS_SCALAR ? GN__SCALARS : 0;
    }
}

static bool gn__walk_add(uint32_t *list, uint32_t *n, uint32_t node) {
    for (uint32_t k = 0; k < *n; k++)
        if (list[k] == node) return true;
    if (*n == GN__WALK_MOST) return false;
    list[(*n)++] = node;
    return true;
}

/* From `from` towards the leaves through ops of these sorts, not past `stop`; `edge` is what it ends at, leaves and constants
   left out. False: the region is too large to be one of those that are looked for. */
static bool gn__walk_up(const gn__recognition *w, uint32_t from, unsigned sorts, uint32_t stop, gn__walk *out) {
    out->n_inside = out->n_edge = 0;
    gn__walk_add(out->inside, &out->n_inside, from);
    for (uint32_t k = 0; k < out->n_inside; k++) {
        const gn_part_node *n = &w->p->nodes[out->inside[k]];
        for (uint32_t j = 0; j < n->n_ins; j++) {
            uint32_t x = w->base[w->p->ins[n->ins + j]];
            if (gn__is_free(w, x)) continue;
            bool in = x != stop && (gn__op_sort(gn__op_at(w, x)) & sorts) && !(w->facts[x] & GN__GRADIENT);
            if (!(in ? gn__walk_add(out->inside, &out->n_inside, x) : gn__walk_add(out->edge, &out->n_edge, x))) return false;
        }
    }
    return true;
}

static bool gn__walk_has(const gn__recognition *w, const gn__walk *walk, int op) {
    for (uint32_t k = 0; k < walk->n_inside; k++)
        if (gn__op_at(w, walk->inside[k]) == op) return true;
    return false;
}

/* None of its nodes belongs to another recogniser. */
static bool gn__walk_is_new(const gn__recognition *w, const gn__walk *walk) {
    for (uint32_t k = 0; k < walk->n_inside; k++)
        if (w->role[walk->inside[k]]) return false;
    return true;
}

/* Data of the run, more than a number, is read inside: a target, an input. */
static bool gn__walk_reads_data(const gn__recognition *w, const gn__walk *walk) {
    for (uint32_t k = 0; k < walk->n_inside; k++)
        for (uint32_t j = 0; j < w->p->nodes[walk->inside[k]].n_ins; j++) {
            uint32_t x = gn__in_base(w, walk->inside[k], j);
            uint8_t leaf = w->p->nodes[x].leaf;
            if ((leaf == GN_LEAF_DATA || leaf == GN_LEAF_VALUE) && gn__elements(w, x) > 1) return true;
        }
    return false;
}

/* ---- units: what recognisers put together ---- */

static uint32_t gn__unit_root(gn__recognition *w, uint32_t i) {
    while (w->unit[i] != i) i = w->unit[i] = w->unit[w->unit[i]];
    return i;
}

static uint32_t gn__said_on(const gn__recognition *w, uint32_t i) { return w->p->hints ? w->p->hints[i].on : 0; }
static uint8_t gn__said_role(const gn__recognition *w, uint32_t i) { return w->p->hints ? w->p->hints[i].role : 0; }

/* Node i runs with node `with`, unless the program put them on different devices or in scopes of different roles. */
static void gn__unite(gn__recognition *w, uint32_t i, uint32_t with) {
    uint32_t a = gn__unit_root(w, i), b = gn__unit_root(w, with);
    if (a != b && gn__said_on(w, i) == gn__said_on(w, with) && gn__said_role(w, i) == gn__said_role(w, with)) w->unit[a] = b;
}

/* Node i has this role and runs with node `with`, unless another recogniser has taken it. */
static void gn__claim(gn__recognition *w, uint32_t i, uint8_t role, uint32_t with) {
    if (!w->kind[with]) w->kind[with] = role;
    if (w->role[i]) return;
    w->role[i] = role;
    gn__unite(w, i, with);
}

static void gn__claim_walk(gn__recognition *w, const gn__walk *walk, uint8_t role, uint32_t with) {
    for (uint32_t k = 0; k < walk->n_inside; k++) gn__claim(w, walk->inside[k], role, with);
}

static void gn__seed_phase(gn__recognition *w, uint32_t i, uint8_t phase) {
    if (!(w->off & GN_OFF_PHASE(phase)) && !w->phase[i]) w->phase[i] = phase;
}

/* The first reader, past views; n: none. */
static uint32_t gn__reader_of(const gn__recognition *w, uint32_t i) {
    uint32_t r = w->reader[i];
    for (int k = 0; k < GN__TRACE_MOST && r < w->n && gn__is_glue(&w->p->nodes[r]); k++) r = w->reader[r];
    return r;
}

/* ---- what several recognisers ask ---- */

/* The other input of a product with parameters, which `i` is; GN_NO_NODE: it is none. */
static uint32_t gn__linear_input(const gn__recognition *w, uint32_t i) {
    int op = gn__op_at(w, i);
    if (op == GN__OP_LINEAR) return gn__in(w, i, 0);
    if (op != GN__OP_MATMUL || gn__is_param(w, gn__in(w, i, 0)) == gn__is_param(w, gn__in(w, i, 1))) return GN_NO_NODE;
    return gn__in(w, i, gn__is_param(w, gn__in(w, i, 0)) ? 1 : 0);
}

/* Input k of a scalar op when the other one is a leaf or constant, else GN_NO_NODE. */
static uint32_t gn__scaled_input(const gn__recognition *w, uint32_t i) {
    uint32_t found = GN_NO_NODE;
    for (uint32_t k = 0; k < w->p->nodes[i].n_ins; k++) {
        uint32_t x = gn__in_base(w, i, k);
        if (gn__is_free(w, x)) continue;
        if (found != GN_NO_NODE) return GN_NO_NODE;
        found = x;
    }
    return found;
}

/* A bias and an activation directly behind `i` run with it. */
static void gn__claim_tail(gn__recognition *w, uint32_t i, uint8_t role) {
    uint32_t at = i;
    for (int k = 0; k < 3; k++) {
        uint32_t r = gn__reader_of(w, at);
        if (r >= w->n || w->role[r] || gn__op_sort(gn__op_at(w, r)) != GN__SCALARS || gn__scaled_input(w, r) != at) return;
        if (w->p->nodes[r].n_ins > 1 && gn__op_at(w, r) != GN__OP_ADD && gn__op_at(w, r) != GN__OP_MAXIMUM) return;
        gn__claim(w, r, role, i);
        at = r;
    }
}

/* The way a value came: through the first input that parameters take part in. */
static uint32_t gn__main_input(const gn__recognition *w, uint32_t i) {
    const gn_part_node *n = &w->p->nodes[i];
    uint32_t other = GN_NO_NODE;
    for (uint32_t k = 0; k < n->n_ins && k < 4; k++) {
        uint32_t x = gn__in_base(w, i, k);
        if (gn__is_free(w, x)) continue;
        if (w->facts[x] & GN__PARAM) return x;
        if (other == GN_NO_NODE) other = x;
    }
    return other != GN_NO_NODE ? other : n->n_ins ? gn__in_base(w, i, 0) : i;
}

/* ---- norm ---- */

/* What a is when it is written x - mean(x): x; else a itself. */
static uint32_t gn__uncentred(const gn__recognition *w, uint32_t a) {
    if (gn__op_at(w, a) != GN__OP_SUB) return a;
    uint32_t x = gn__in_base(w, a, 0), m = gn__in_base(w, a, 1);
    if (gn__op_at(w, m) == GN__OP_DIV || gn__op_at(w, m) == GN__OP_MUL) m = gn__scaled_input(w, m);   /* a sum over the number */
    bool mean = m != GN_NO_NODE && (gn__op_at(w, m) == GN__OP_MEAN || gn__op_at(w, m) == GN__OP_SUM);
    return mean && gn__in_base(w, m, 0) == x ? x : a;
}

static bool gn__squares(const gn__recognition *w, const gn__walk *walk) {
    bool square = false, reduced = false;
    for (uint32_t k = 0; k < walk->n_inside; k++) {
        uint32_t i = walk->inside[k];
        int op = gn__op_at(w, i);
        reduced |= op == GN__OP_SUM || op == GN__OP_MEAN;
        square |= op == GN__OP_SQUARE || op == GN__OP_POW || (op == GN__OP_MUL && gn__in_base(w, i, 0) == gn__in_base(w, i, 1));
    }
    return square && reduced;
}

/* x when `i` is x, or x less its mean, over the root of a mean of squares of it; GN_NO_NODE otherwise. */
static uint32_t gn__normed(const gn__recognition *w, uint32_t i, gn__walk *out) {
    int op = gn__op_at(w, i);
    out->n_inside = 0;
    if (op == GN__OP_LAYERNORM) return gn__in_base(w, i, 0);
    if (op != GN__OP_MUL && op != GN__OP_DIV) return GN_NO_NODE;
    for (uint32_t side = op == GN__OP_DIV ? 1 : 0; side < 2; side++) {
        uint32_t root = gn__in_base(w, i, side), x = gn__uncentred(w, gn__in_base(w, i, 1 - side));
        if (gn__op_sort(gn__op_at(w, root)) != GN__SCALARS || root == x) continue;
        if (!gn__walk_up(w, root, GN__SCALARS | GN__REDUCTIONS, x, out) || out->n_edge != (gn__is_free(w, x) ? 0u : 1u) || (out->n_edge && out->edge[0] != x)) continue;
        bool rooted = gn__walk_has(w, out, GN__OP_SQRT) || gn__walk_has(w, out, GN__OP_RSQRT) || gn__walk_has(w, out, GN__OP_POW);
        if (rooted && gn__squares(w, out)) return x;
    }
    return GN_NO_NODE;
}

/* A norm with its gain and bias; layernorm and rmsnorm alike. */
static void gn__see_norm(gn__recognition *w, uint32_t i) {
    gn__walk walk;
    uint32_t x = gn__normed(w, i, &walk), at = i;
    if (x == GN_NO_NODE || w->role[i]) return;
    gn__claim(w, i, GN_ROLE_NORM, i);
    gn__claim_walk(w, &walk, GN_ROLE_NORM, i);
    for (uint32_t k = 0; k < w->p->nodes[i].n_ins && gn__op_at(w, i) != GN__OP_LAYERNORM; k++) {
        uint32_t a = gn__in_base(w, i, k);
        if (a == x || gn__uncentred(w, a) != x) continue;
        gn__claim(w, a, GN_ROLE_NORM, i);
        if (gn__walk_up(w, a, GN__SCALARS | GN__REDUCTIONS, x, &walk)) gn__claim_walk(w, &walk, GN_ROLE_NORM, i);
    }
    for (int k = 0; k < 2; k++, at = gn__reader_of(w, at)) {
        uint32_t r = gn__reader_of(w, at);
        int op = r < w->n ? gn__op_at(w, r) : GN__OP_FAILED;
        bool affine = (op == GN__OP_MUL || op == GN__OP_ADD || op == GN__OP_FMA) && gn__scaled_input(w, r) == at && gn__elements(w, r) == gn__elements(w, at);
        if (!affine) return;
        gn__claim(w, r, GN_ROLE_NORM, i);
    }
}

/* What goes into the norm that `i` is the result of, else i itself. */
static uint32_t gn__before_norm(const gn__recognition *w, uint32_t i) {
    gn__walk walk;
    for (int k = 0; k < 3; k++) {
        uint32_t x = gn__normed(w, i, &walk);
        if (x != GN_NO_NODE) return x;
        x = gn__op_at(w, i) == GN__OP_MUL || gn__op_at(w, i) == GN__OP_ADD || gn__op_at(w, i) == GN__OP_FMA ? gn__scaled_input(w, i) : GN_NO_NODE;
        if (x == GN_NO_NODE) return i;
        i = x;
    }
    return i;
}

/* ---- attention ---- */

typedef struct gn__attention_parts {
    uint32_t q, k, v, scores;    /* scores: GN_NO_NODE for the op */
    bool masked, swapped;        /* swapped: written for columns, v^T p^T */
    gn__walk walk;
} gn__attention_parts;

/* softmax(q k^T …) v written out; the products stand in either order. */
static bool gn__attention_written(const gn__recognition *w, uint32_t i, gn__attention_parts *s) {
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t p = gn__in_base(w, i, side);
        s->scores = GN_NO_NODE;
        s->v = gn__in(w, i, 1 - side);
        if (!(gn__op_sort(gn__op_at(w, p)) & (GN__SCALARS | GN__SOFTMAXES)) || gn__is_table(w, s->v)) continue;
        if (!gn__walk_up(w, p, GN__SCALARS | GN__REDUCTIONS | GN__SOFTMAXES, GN_NO_NODE, &s->walk)) continue;
        bool softmax = gn__walk_has(w, &s->walk, GN__OP_SOFTMAX) || (gn__walk_has(w, &s->walk, GN__OP_EXP) && gn__walk_has(w, &s->walk, GN__OP_SUM)), other = false;
        for (uint32_t k = 0; k < s->walk.n_edge; k++) {
            bool product = gn__op_at(w, s->walk.edge[k]) == GN__OP_MATMUL;
            other |= product ? s->scores != GN_NO_NODE : (w->facts[s->walk.edge[k]] & GN__PARAM) != 0;
            if (product) s->scores = s->walk.edge[k];
        }
        if (!softmax || other || s->scores == GN_NO_NODE) continue;
        s->swapped = side == 1;
        s->q = gn__in(w, s->scores, s->swapped ? 1 : 0);
        s->k = gn__in(w, s->scores, s->swapped ? 0 : 1);
        s->masked = gn__walk_has(w, &s->walk, GN__OP_ADD) || gn__walk_has(w, &s->walk, GN__OP_WHERE) || gn__walk_has(w, &s->walk, GN__OP_FMA);
        if (!gn__is_table(w, s->k) && !gn__is_table(w, s->q)) return true;
    }
    return false;
}

static bool gn__attention_at(const gn__recognition *w, uint32_t i, gn__attention_parts *s) {
    memset(s, 0, sizeof *s);
    if (gn__op_at(w, i) == GN__OP_MATMUL) return gn__attention_written(w, i, s);
    if (gn__op_at(w, i) != GN__OP_ATTENTION) return false;
    s->q = gn__in(w, i, 0);
    s->k = gn__in(w, i, 1);
    s->v = gn__in(w, i, 2);
    s->scores = GN_NO_NODE;
    s->masked = (w->p->attrs[w->p->nodes[i].attrs] & 3) != 0;
    return true;
}

/* Where queries or keys come from: the tensor that is projected to them, before its norm; *out_projected: there was a projection. */
static uint32_t gn__source(const gn__recognition *w, uint32_t x, bool *out_projected) {
    uint32_t at = w->base[x];
    *out_projected = false;
    for (int k = 0; k < GN__TRACE_MOST && !gn__is_free(w, at); k++) {
        uint32_t in = gn__linear_input(w, at);
        *out_projected = in != GN_NO_NODE;
        if (*out_projected) return gn__before_norm(w, w->base[in]);
        int op = gn__op_at(w, at);
        if (op == GN__OP_KV_APPEND || op == GN__OP_SLICE_PUT) at = gn__in_base(w, at, 1);
        else if (gn__op_sort(op) == GN__SCALARS || op == GN__OP_CONCAT || op == GN__OP_LAYERNORM) at = gn__main_input(w, at);
        else return at;
    }
    return at;
}

/* Keys that several heads of queries share: fewer heads, repeated by a broadcast or by the product. */
static bool gn__keys_shared(const gn__recognition *w, const gn__attention_parts *s) {
    const gn_part_node *q = &w->p->nodes[s->q], *n = &w->p->nodes[s->k];
    if (s->scores == GN_NO_NODE) return gn__dim(w, s->q, 1) != gn__dim(w, s->k, 1);
    for (int axis = 1; axis + 2 < n->rank && n->rank == q->rank; axis++)
        if (gn__dim(w, s->k, axis) == 1 && gn__dim(w, s->q, axis) > 1) return true;
    uint32_t at = s->k;
    for (int k = 0; k < GN__TRACE_MOST && gn__is_glue(&w->p->nodes[at]); k++) {
        uint32_t before = gn__in(w, at, gn__op_at(w, at) == GN__OP_ASSIGN ? 1 : 0);
        if (gn__op_at(w, at) == GN__OP_BROADCAST && gn__elements(w, at) > gn__elements(w, before)) return true;
        at = before;
    }
    return false;
}

/* The rows that keys or values are made of: past a scale or a rotation. */
static uint32_t gn__kept_rows(const gn__recognition *w, uint32_t x) {
    uint32_t at = w->base[x];
    for (int k = 0; k < 8 && !gn__is_free(w, at); k++) {
        bool halves = gn__op_at(w, at) == GN__OP_CONCAT && !w->p->nodes[gn__in_base(w, at, 0)].leaf;    /* of a rotation */
        if (gn__op_sort(gn__op_at(w, at)) != GN__SCALARS && !halves) return at;
        at = gn__main_input(w, at);
    }
    return at;
}

static bool gn__is_cache(const gn__recognition *w, uint32_t i) {
    const gn_part_node *b = &w->p->nodes[w->base[i]];
    return (b->leaf == GN_LEAF_STATE || b->leaf == GN_LEAF_VALUE) && b->rank >= 3;
}

static bool gn__is_append(const gn__recognition *w, uint32_t i) {
    int op = gn__op_at(w, i);
    if (op == GN__OP_KV_APPEND) return true;
    return w->keys[i] && (op == GN__OP_SLICE_PUT || op == GN__OP_SCATTER || (op == GN__OP_CONCAT && w->p->nodes[i].n_ins == 2)) && w->p->nodes[gn__in_base(w, i, 0)].leaf;
}

static uint8_t gn__attention_kind(const gn__recognition *w, const gn__attention_parts *s) {
    bool q, k;
    if (gn__keys_shared(w, s)) return GN_ROLE_GROUPED_ATTENTION;
    uint32_t keys = gn__kept_rows(w, s->k);
    if (gn__is_append(w, keys)) return GN_ROLE_ATTENTION;
    uint32_t from = gn__source(w, s->q, &q), to = gn__source(w, s->k, &k);
    return q && (k || gn__is_cache(w, keys)) && from != to ? GN_ROLE_CROSS_ATTENTION : GN_ROLE_ATTENTION;
}

/* Self, cross and grouped attention, as the op or written out. */
static void gn__see_attention(gn__recognition *w, uint32_t i) {
    gn__attention_parts s;
    if (w->role[i] || !gn__attention_at(w, i, &s)) return;
    uint32_t keys = gn__kept_rows(w, s.k), values = gn__kept_rows(w, s.v);
    uint8_t was[2] = { (uint8_t)(w->keys[keys] != 0), (uint8_t)(w->keys[values] != 0) };
    if (!was[0]) w->keys[keys] = i + 1;
    if (!was[1]) w->keys[values] = i + 1;
    uint8_t role = gn__attention_kind(w, &s);
    if (w->off & GN_OFF_ROLE(role)) {
        if (!was[0]) w->keys[keys] = 0;
        if (!was[1]) w->keys[values] = 0;
        return;
    }
    gn__claim(w, i, role, i);
    if (s.scores != GN_NO_NODE) {
        gn__claim_walk(w, &s.walk, role, i);
        gn__claim(w, s.scores, role, i);
    }
    int rank = w->p->nodes[s.q].rank;
    bool one = rank >= 2 && gn__dim(w, s.q, rank - (s.swapped ? 1 : 2)) == 1;
    if (gn__is_cache(w, keys) && one) gn__seed_phase(w, i, GN_DECODE);
    else if (role != GN_ROLE_CROSS_ATTENTION && !s.masked && !gn__is_append(w, keys) && !gn__is_cache(w, keys)) gn__seed_phase(w, i, GN_ENCODE);
}

/* Rows written into a cache: the op, or a slice, scatter or concatenation that an attention reads as keys or values. One row
   is a step of decoding, several are a prefill. */
static void gn__see_kv_append(gn__recognition *w, uint32_t i) {
    if (w->role[i] || !gn__is_append(w, i)) return;
    const gn_part_node *n = &w->p->nodes[i], *rows = &w->p->nodes[gn__in(w, i, 1)];
    int64_t axis = gn__op_at(w, i) == GN__OP_KV_APPEND ? 2 : w->p->attrs[n->attrs];
    if (axis < 0) axis += n->rank;
    if (axis < 0 || axis >= rows->rank) return;
    uint8_t phase = gn__dim(w, gn__in(w, i, 1), (int)axis) == 1 ? GN_DECODE : GN_PREFILL;
    gn__claim(w, i, GN_ROLE_KV_APPEND, i);
    gn__seed_phase(w, i, phase);
    if (!w->keys[i]) return;
    gn__seed_phase(w, w->keys[i] - 1, phase);
    w->kind[i] = GN_ROLE_NONE;                             /* the unit is the attention's */
    gn__unite(w, i, w->keys[i] - 1);
}

/* ---- embedding, linear, convolution, MLP, head ---- */

static bool gn__is_lookup(const gn__recognition *w, uint32_t i) {
    int op = gn__op_at(w, i);
    if (op == GN__OP_EMBEDDING) return gn__is_param(w, gn__in(w, i, 0));
    if (op == GN__OP_GATHER) return gn__is_param(w, gn__in(w, i, 0)) && w->p->attrs[w->p->nodes[i].attrs] == 0 && w->p->nodes[i].rank == 2;
    for (uint32_t k = 0; k < 2 && op == GN__OP_MATMUL; k++)                      /* one_hot(ids) @ table */
        if (gn__op_at(w, gn__in_base(w, i, k)) == GN__OP_ONE_HOT && gn__is_param(w, gn__in(w, i, 1 - k))) return true;
    return false;
}

/* Rows of a table of parameters, with the sum of several (tokens, positions) and a factor. */
static void gn__see_embedding(gn__recognition *w, uint32_t i) {
    if (w->role[i] || !gn__is_lookup(w, i)) return;
    gn__claim(w, i, GN_ROLE_EMBEDDING, i);
    if (gn__op_at(w, i) == GN__OP_MATMUL)
        for (uint32_t k = 0; k < 2; k++)
            if (gn__op_at(w, gn__in_base(w, i, k)) == GN__OP_ONE_HOT) gn__claim(w, gn__in_base(w, i, k), GN_ROLE_EMBEDDING, i);
    uint32_t at = i;
    for (int step = 0; step < 4; step++) {
        uint32_t r = gn__reader_of(w, at);
        int op = r < w->n ? gn__op_at(w, r) : GN__OP_FAILED;
        if ((op != GN__OP_ADD && op != GN__OP_MUL) || w->role[r]) return;
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t x = gn__in_base(w, r, k);
            if (!gn__is_free(w, x) && w->role[x] != GN_ROLE_EMBEDDING) return;
            if (!gn__is_free(w, x)) gn__unite(w, x, i);
        }
        gn__claim(w, r, GN_ROLE_EMBEDDING, i);
        at = r;
    }
}

static void gn__see_linear(gn__recognition *w, uint32_t i) {
    if (w->role[i] || gn__linear_input(w, i) == GN_NO_NODE) return;
    gn__claim(w, i, GN_ROLE_LINEAR, i);
    gn__claim_tail(w, i, GN_ROLE_LINEAR);
}

/* A product of filters with windows of an image that fixed indices pick (im2col). */
static void gn__see_conv(gn__recognition *w, uint32_t i) {
    uint32_t x = gn__linear_input(w, i);
    if (w->role[i] || x == GN_NO_NODE) return;
    uint32_t windows = w->base[x];
    int op = gn__op_at(w, windows);
    if ((op != GN__OP_GATHER && op != GN__OP_EMBEDDING) || gn__is_param(w, gn__in(w, windows, 0)) || (w->facts[gn__in_base(w, windows, 1)] & GN__PARAM)) return;
    gn__claim(w, i, GN_ROLE_CONV, i);
    gn__claim(w, windows, GN_ROLE_CONV, i);
    gn__claim_tail(w, i, GN_ROLE_CONV);
}

static bool gn__bends(int op) {
    return gn__op_sort(op) == GN__SCALARS && op != GN__OP_ADD && op != GN__OP_SUB && op != GN__OP_MUL && op != GN__OP_DIV && op != GN__OP_NEG && op != GN__OP_FMA;
}

/* Two products with an activation between them, which may be gated: down(act(gate(x)) * up(x)). */
static void gn__see_mlp(gn__recognition *w, uint32_t i) {
    gn__walk walk;
    uint32_t x = gn__linear_input(w, i);
    bool bends = false;
    if (w->role[i] || x == GN_NO_NODE || gn__op_sort(gn__op_at(w, w->base[x])) != GN__SCALARS) return;
    if (!gn__walk_up(w, w->base[x], GN__SCALARS, GN_NO_NODE, &walk) || walk.n_edge < 1 || walk.n_edge > 2 || !gn__walk_is_new(w, &walk)) return;
    for (uint32_t k = 0; k < walk.n_edge; k++)
        if (w->role[walk.edge[k]] || gn__linear_input(w, walk.edge[k]) == GN_NO_NODE) return;
    for (uint32_t k = 0; k < walk.n_inside; k++) bends |= gn__bends(gn__op_at(w, walk.inside[k]));
    if (!bends || gn__walk_reads_data(w, &walk)) return;   /* data takes part: more than an activation */
    gn__claim(w, i, GN_ROLE_MLP, i);
    gn__claim_walk(w, &walk, GN_ROLE_MLP, i);
    for (uint32_t k = 0; k < walk.n_edge; k++) gn__claim(w, walk.edge[k], GN_ROLE_MLP, i);
    gn__claim_tail(w, i, GN_ROLE_MLP);
}

/* What the part ends with: logits from a product with parameters, then a choice among them or their softmax. */
static void gn__see_head(gn__recognition *w, uint32_t i) {
    gn__walk walk;
    if (!(w->facts[i] & GN__RESULT) || !(gn__op_sort(gn__op_at(w, i)) & (GN__SOFTMAXES | GN__CHOICES | GN__SCALARS))) return;
    if (!gn__walk_up(w, i, GN__SCALARS | GN__REDUCTIONS | GN__SOFTMAXES | GN__CHOICES, GN_NO_NODE, &walk) || walk.n_edge != 1) return;
    uint32_t logits = walk.edge[0];
    bool chooses = gn__walk_has(w, &walk, GN__OP_ARGMAX) || gn__walk_has(w, &walk, GN__OP_ARGSORT) || gn__walk_has(w, &walk, GN__OP_SOFTMAX) || gn__walk_has(w, &walk, GN__OP_LOG_SOFTMAX);
    bool taken = w->role[logits] && w->role[logits] != GN_ROLE_HEAD;
    if (!chooses || taken || gn__linear_input(w, logits) == GN_NO_NODE) return;
    gn__claim(w, logits, GN_ROLE_HEAD, logits);
    for (uint32_t k = 0; k < walk.n_inside; k++) {
        uint32_t x = walk.inside[k];
        bool bias = gn__op_at(w, x) == GN__OP_ADD && gn__scaled_input(w, x) == logits;
        if (bias) gn__claim(w, x, GN_ROLE_HEAD, logits);
        else if (!w->role[x] && !(w->off & GN_OFF_ROLE(GN_ROLE_SAMPLING))) gn__claim(w, x, GN_ROLE_SAMPLING, logits);
    }
}

/* ---- residual, loss, optimiser ---- */

/* x + f(x): the way back from one summand meets the other. It runs with what made f(x), if it is the first to read that. */
static void gn__see_residual(gn__recognition *w, uint32_t i) {
    if (w->role[i] || gn__op_at(w, i) != GN__OP_ADD) return;
    uint32_t a = gn__in_base(w, i, 0), b = gn__in_base(w, i, 1), skip = GN__MIN(a, b), made = GN__MAX(a, b), at = made;
    if (a == b || gn__is_free(w, made) || gn__elements(w, a) != gn__elements(w, b)) return;
    for (int k = 0; k < GN__TRACE_MOST && at > skip; k++) {
        uint32_t next = gn__main_input(w, at);
        if (next == at) return;
        at = next;
    }
    if (at != skip) return;
    w->role[i] = GN_ROLE_RESIDUAL;
    if (w->role[made] && gn__reader_of(w, made) == i) gn__unite(w, i, made);
}

static bool gn__is_loss(const gn__recognition *w, uint32_t i, gn__walk *walk) {
    int op = gn__op_at(w, i);
    walk->n_inside = 0;
    if (op == GN__OP_CROSS_ENTROPY || op == GN__OP_MSE_LOSS) return true;
    if ((op != GN__OP_MEAN && op != GN__OP_SUM) || gn__elements(w, i) != 1 || gn__elements(w, gn__in(w, i, 0)) == 1) return false;
    if (!gn__walk_up(w, i, GN__SCALARS | GN__REDUCTIONS | GN__SOFTMAXES | GN__CHOICES, GN_NO_NODE, walk)) return false;
    bool predicted = false, target = gn__walk_reads_data(w, walk), likelihood = false, distance = gn__walk_has(w, walk, GN__OP_SUB);
    for (uint32_t k = 0; k < walk->n_edge; k++) {
        bool depends = (w->facts[walk->edge[k]] & GN__PARAM) != 0;
        predicted |= depends;
        target |= !depends;
    }
    static const int logs[] = { GN__OP_LOG, GN__OP_LOG_SOFTMAX, GN__OP_LOG1P, GN__OP_SOFTPLUS, GN__OP_LOG_SIGMOID };
    for (size_t k = 0; k < GN__LENGTH(logs); k++) likelihood |= gn__walk_has(w, walk, logs[k]);
    distance = distance && (gn__walk_has(w, walk, GN__OP_SQUARE) || gn__walk_has(w, walk, GN__OP_MUL) || gn__walk_has(w, walk, GN__OP_ABS) || gn__walk_has(w, walk, GN__OP_POW));
    return predicted && target && (likelihood || distance);
}

/* One number from predictions and targets: the ops, or a mean of likelihoods or distances written out, with its sign and scale. */
static void gn__see_loss(gn__recognition *w, uint32_t i) {
    gn__walk walk;
    if (w->role[i] || !gn__is_loss(w, i, &walk)) return;
    gn__claim(w, i, GN_ROLE_LOSS, i);
    gn__claim_walk(w, &walk, GN_ROLE_LOSS, i);
    uint32_t at = i;
    for (int k = 0; k < 3; k++) {
        uint32_t r = gn__reader_of(w, at);
        if (r >= w->n || gn__op_sort(gn__op_at(w, r)) != GN__SCALARS || gn__scaled_input(w, r) != at || gn__elements(w, r) != 1) return;
        gn__claim(w, r, GN_ROLE_LOSS, i);
        at = r;
    }
}

/* value is p, plain or scaled by a number, plus or minus something; *out_minus: the last is subtracted. */
static bool gn__is_step_of(const gn__recognition *w, uint32_t value, uint32_t p, bool *out_minus) {
    uint32_t at = value;
    for (int k = 0; k < 8; k++) {
        int op = gn__op_at(w, at);
        if (op != GN__OP_SUB && op != GN__OP_ADD) return false;
        *out_minus = op == GN__OP_SUB;
        uint32_t a = gn__in_base(w, at, 0), b = gn__in_base(w, at, 1);
        for (uint32_t side = 0; side < (op == GN__OP_ADD ? 2u : 1u); side++) {
            uint32_t x = side ? b : a;
            bool scaled = gn__op_at(w, x) == GN__OP_MUL && gn__elements(w, gn__in_base(w, x, gn__in_base(w, x, 0) == p)) == 1;
            if (x == p || (scaled && (gn__in_base(w, x, 0) == p || gn__in_base(w, x, 1) == p))) return true;
        }
        at = a;
    }
    return false;
}

static uint32_t gn__reads_inside(const gn__recognition *w, const gn__walk *walk, uint32_t x) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < walk->n_inside; k++)
        for (uint32_t j = 0; j < w->p->nodes[walk->inside[k]].n_ins; j++) n += gn__in(w, walk->inside[k], j) == x;
    return n;
}

/* Something of the parameter's size that is not the parameter itself goes into the step. */
static bool gn__has_gradient(const gn__recognition *w, const gn__walk *walk, uint32_t p) {
    for (uint32_t k = 0; k < walk->n_edge; k++)
        if (gn__elements(w, walk->edge[k]) == gn__elements(w, p)) return true;
    for (uint32_t k = 0; k < walk->n_inside; k++)
        for (uint32_t j = 0; j < w->p->nodes[walk->inside[k]].n_ins; j++) {
            uint32_t x = gn__in_base(w, walk->inside[k], j);
            uint8_t leaf = w->p->nodes[x].leaf;
            if ((leaf == GN_LEAF_DATA || leaf == GN_LEAF_VALUE) && gn__elements(w, x) == gn__elements(w, p)) return true;
        }
    return false;
}

/* A state that becomes itself less a scaled gradient, with the moments that go into it. That it is a parameter shows in the
   rest of the part reading it, or in the scaled difference. */
static void gn__see_optimizer(gn__recognition *w, uint32_t i) {
    gn__walk walk;
    bool minus = false;
    if (w->role[i] || gn__op_at(w, i) != GN__OP_ASSIGN || !(w->facts[i] & GN__RESULT)) return;
    uint32_t p = gn__in_base(w, i, 0), value = gn__in_base(w, i, 1);
    if (w->p->nodes[p].leaf != GN_LEAF_STATE || gn__is_free(w, value) || !gn__is_step_of(w, value, p, &minus)) return;
    if (!gn__walk_up(w, value, GN__SCALARS, GN_NO_NODE, &walk) || !gn__has_gradient(w, &walk, p)) return;
    bool elsewhere = w->reads[p] > gn__reads_inside(w, &walk, p) + 1;
    if (!elsewhere && !(minus && gn__walk_has(w, &walk, GN__OP_MUL))) return;
    gn__claim(w, value, GN_ROLE_OPTIMIZER, value);
    gn__claim_walk(w, &walk, GN_ROLE_OPTIMIZER, value);
    gn__claim(w, i, GN_ROLE_OPTIMIZER, value);
    for (uint32_t k = 0; k < walk.n_edge; k++)
        if (gn__elements(w, walk.edge[k]) == gn__elements(w, p)) w->facts[walk.edge[k]] |= GN__GRADIENT;
    gn__seed_phase(w, i, GN_TRAINING);
}

/* In this order: what an earlier one takes, a later one leaves. */
static const struct { uint8_t role; void (*see)(gn__recognition *w, uint32_t i); } gn__recognisers[] = {
    { GN_ROLE_NORM, gn__see_norm },       { GN_ROLE_NONE, gn__see_attention },      { GN_ROLE_KV_APPEND, gn__see_kv_append },
    { GN_ROLE_EMBEDDING, gn__see_embedding }, { GN_ROLE_LOSS, gn__see_loss },       { GN_ROLE_OPTIMIZER, gn__see_optimizer },
    { GN_ROLE_CONV, gn__see_conv },       { GN_ROLE_HEAD, gn__see_head },           { GN_ROLE_MLP, gn__see_mlp },
    { GN_ROLE_LINEAR, gn__see_linear },   { GN_ROLE_RESIDUAL, gn__see_residual },
};

/* ---- preparing ---- */

static void gn__recognition_deinit(gn__recognition *w) { gn_free(w->base); gn_free(w->facts); }

static bool gn__recognition_init(gn__recognition *w, const gn_part *p, uint32_t off, gn_meaning *m) {
    size_t n = (size_t)p->n_nodes + 1;
    memset(w, 0, sizeof *w);
    w->p = p;
    w->m = m;
    w->n = p->n_nodes;
    w->off = off;
    w->base = (uint32_t *)gn__alloc_zero(6 * n * sizeof *w->base);
    w->facts = (uint8_t *)gn__alloc_zero(4 * n);
    if (!w->base || !w->facts) return false;
    w->reader = w->base + n;
    w->reads = w->base + 2 * n;
    w->unit = w->base + 3 * n;
    w->last = w->base + 4 * n;
    w->keys = w->base + 5 * n;
    w->role = w->facts + n;
    w->kind = w->facts + 2 * n;
    w->phase = w->facts + 3 * n;
    return true;
}

static void gn__facts_of(gn__recognition *w, uint32_t i) {
    const gn_part *p = w->p;
    const gn_part_node *n = &p->nodes[i];
    bool glue = gn__is_glue(n), free = n->leaf || gn__ops[n->op].kind == GN_CLASS_GENERATOR || glue;
    w->base[i] = glue ? w->base[p->ins[n->ins + (n->op == GN__OP_ASSIGN ? 1 : 0)]] : i;
    w->reader[i] = w->n;
    w->unit[i] = i;
    if (n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE) w->facts[i] |= GN__PARAM;
    for (uint32_t k = 0; k < n->n_ins; k++) {
        uint32_t x = p->ins[n->ins + k];
        free &= (w->facts[x] & GN__FREE) != 0;
        w->facts[i] |= w->facts[x] & GN__PARAM;
        w->reads[x]++;
        if (w->reader[x] == w->n) w->reader[x] = i;
    }
    if (free) w->facts[i] |= GN__FREE;
    if (p->hints && p->hints[i].residency == GN_RESIDENCY_GRADIENT) w->facts[i] |= GN__GRADIENT;
}

static void gn__recognise(gn__recognition *w) {
    const gn_part *p = w->p;
    for (uint32_t i = 0; i < w->n; i++) gn__facts_of(w, i);
    for (uint32_t i = 0; i < p->n_outs; i++) w->facts[w->base[p->outs[i]]] |= GN__RESULT;
    for (uint32_t i = 0; i < p->n_updates; i++) {
        w->facts[p->updates[i].node] |= GN__RESULT;
        w->facts[w->base[p->updates[i].node]] |= GN__RESULT;
    }
    for (uint32_t i = 0; i < w->n && p->hints; i++)        /* scopes: neighbours of which the same role was said run together */
        for (uint32_t k = 0; k < p->nodes[i].n_ins && p->hints[i].role; k++)
            if (!gn__is_free(w, gn__in(w, i, k))) gn__unite(w, gn__in(w, i, k), i);
    for (size_t r = 0; r < GN__LENGTH(gn__recognisers); r++)
        for (uint32_t i = 0; i < w->n && !(w->off & GN_OFF_ROLE(gn__recognisers[r].role) & ~1u); i++)
            if (!gn__is_free(w, i)) gn__recognisers[r].see(w, i);
}

/* ---- groups. A unit stays one as far as every node that reads a member from outside comes after the unit's last node: then
 * no path leaves it and comes back, whatever the other units are, and the order of the last nodes is topological ---- */

/* Names units by 1 + their last node. */
static void gn__units_number(gn__recognition *w) {
    for (uint32_t i = 0; i < w->n; i++)
        if (!gn__is_free(w, i)) w->last[gn__unit_root(w, i)] = i;
    for (uint32_t i = 0; i < w->n; i++) w->reads[i] = w->last[gn__unit_root(w, i)] + 1;    /* roots keep their links until all are named */
    for (uint32_t i = 0; i < w->n; i++) {
        bool alone = w->reads[i] == i + 1 && !w->role[i] && !gn__said_role(w, i);
        w->unit[i] = gn__is_free(w, i) || alone ? 0 : w->reads[i];
    }
}

/* Elementwise work or a reduction of a gradient that no recogniser took. */
static bool gn__is_gradient_work(const gn__recognition *w, uint32_t i) {
    bool work = (gn__op_sort(gn__op_at(w, i)) & (GN__SCALARS | GN__REDUCTIONS | GN__SOFTMAXES)) != 0;
    return work && (w->facts[i] & GN__GRADIENT) && !w->role[i] && !gn__said_role(w, i);
}

/* A node of no unit that runs with its readers, when they are of one unit: a view, or a part of the gradient of an op. */
static bool gn__joins_readers(const gn__recognition *w, uint32_t i, uint32_t unit) {
    if (!unit || unit == GN__SEVERAL || gn__said_on(w, i) || w->unit[i]) return false;
    return gn__is_glue(&w->p->nodes[i]) || (gn__is_gradient_work(w, i) && gn__is_gradient_work(w, unit - 1));
}

/* From the last node down, when all that read a node have been settled: who is read too early leaves its unit, who belongs to its
   readers joins them. `want`: the unit of all readers so far. */
static void gn__units_settle(gn__recognition *w, uint32_t *want) {
    const gn_part *p = w->p;
    memset(want, 0, w->n * sizeof *want);
    for (uint32_t i = w->n; i-- > 0;) {
        const gn_part_node *n = &p->nodes[i];
        if (gn__is_free(w, i)) continue;
        if (w->facts[i] & GN__DROPPED) w->unit[i] = i + 1;
        if (gn__joins_readers(w, i, want[i])) w->unit[i] = want[i];
        if (!w->unit[i]) w->unit[i] = gn__is_glue(n) ? GN__SEVERAL : i + 1;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = p->ins[n->ins + k];
            want[x] = !want[x] || want[x] == w->unit[i] ? w->unit[i] : GN__SEVERAL;
            if (w->unit[x] && w->unit[x] != w->unit[i] && i < w->unit[x]) w->facts[x] |= GN__DROPPED;
        }
    }
}

/* A view that several units read, or nobody, goes with what it shows: that has left its unit if the view came before the end. */
static void gn__units_follow(gn__recognition *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->unit[i] != GN__SEVERAL) continue;
        const gn_part_node *n = &w->p->nodes[i];
        uint32_t x = gn__in(w, i, n->op == GN__OP_ASSIGN ? 1 : 0);
        bool alone = gn__said_on(w, i) != 0 || gn__is_free(w, x) || (n->op == GN__OP_ASSIGN && !gn__is_free(w, gn__in(w, i, 0)));
        w->unit[i] = alone ? i + 1 : w->unit[x];
    }
}

/* Leaves and constants go with the first unit that reads them. */
static void gn__units_leaves(gn__recognition *w, uint32_t *want) {
    memset(want, 0, w->n * sizeof *want);
    for (uint32_t i = w->n; i-- > 0;) {
        const gn_part_node *n = &w->p->nodes[i];
        if (gn__is_free(w, i)) w->unit[i] = want[i] && !gn__said_on(w, i) ? want[i] : i + 1;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = w->p->ins[n->ins + k];
            if (!want[x] || w->unit[i] < want[x]) want[x] = w->unit[i];
        }
    }
}

/* Units become groups in the order of their last nodes. `at`: n + 1 words. */
static bool gn__groups_make(gn__recognition *w, uint32_t *at) {
    gn_meaning *m = w->m;
    memset(at, 0, (w->n + 1) * sizeof *at);
    for (uint32_t i = 0; i < w->n; i++) at[w->unit[i] - 1] = 1;
    for (uint32_t i = 0; i < w->n; i++) m->n_groups += at[i];
    m->groups = (gn_group *)gn__alloc_zero((m->n_groups + 1) * sizeof *m->groups);
    m->members = (uint32_t *)gn__alloc_zero((w->n + 1) * sizeof *m->members);
    if (!m->groups || !m->members) return false;
    for (uint32_t i = 0, group = 0; i < w->n; i++)
        if (at[i]) at[i] = group++;
    for (uint32_t i = 0; i < w->n; i++) {
        m->nodes[i].group = at[w->unit[i] - 1];
        m->groups[m->nodes[i].group].n_nodes++;
    }
    for (uint32_t k = 0, first = 0; k < m->n_groups; k++) {
        m->groups[k].first = first;
        first += m->groups[k].n_nodes;
        m->groups[k].n_nodes = 0;
    }
    for (uint32_t i = 0; i < w->n; i++) {
        gn_group *g = &m->groups[m->nodes[i].group];
        m->members[g->first + g->n_nodes++] = i;
        if (!g->on) g->on = gn__said_on(w, i);
        if (gn__is_free(w, i)) continue;
        if (gn__said_role(w, i)) g->role = gn__said_role(w, i);
        else if (!g->role) g->role = w->kind[i];
        if (!g->role && w->unit[i] == i + 1) g->role = w->role[i];
    }
    return true;
}

/* ---- what each node means: roles, residency, phase, modality; what was said wins ---- */

/* A scope around a block covers the parts of the block. */
static bool gn__role_covers(uint8_t said, uint8_t recognised) {
    bool part = recognised == GN_ROLE_LINEAR || recognised == GN_ROLE_NORM || recognised == GN_ROLE_RESIDUAL || recognised == GN_ROLE_KV_APPEND || recognised == GN_ROLE_SAMPLING;
    bool attention = said == GN_ROLE_ATTENTION || said == GN_ROLE_CROSS_ATTENTION || said == GN_ROLE_GROUPED_ATTENTION;
    bool block = attention || said == GN_ROLE_MLP || said == GN_ROLE_HEAD || said == GN_ROLE_CONV;
    bool kind = said == GN_ROLE_ATTENTION && (recognised == GN_ROLE_GROUPED_ATTENTION || recognised == GN_ROLE_CROSS_ATTENTION);
    return said == recognised || (part && block) || kind;
}

static bool gn__residency_covers(uint8_t said, uint8_t recognised) {
    if (said == recognised) return true;
    if (recognised == GN_RESIDENCY_STATE) return said == GN_RESIDENCY_KV_CACHE || said == GN_RESIDENCY_WEIGHT || said == GN_RESIDENCY_GRADIENT;
    if (recognised == GN_RESIDENCY_KV_CACHE) return said == GN_RESIDENCY_STATE;
    return recognised == GN_RESIDENCY_ACTIVATION && said == GN_RESIDENCY_GRADIENT;
}

static uint8_t gn__residency_of(const gn__recognition *w, uint32_t i) {
    static const uint8_t leaves[GN_LEAF__COUNT] = { [GN_LEAF_NONE] = GN_RESIDENCY_ACTIVATION, [GN_LEAF_DATA] = GN_RESIDENCY_INPUT, [GN_LEAF_VALUE] = GN_RESIDENCY_ACTIVATION,
                                                    [GN_LEAF_WEIGHT] = GN_RESIDENCY_WEIGHT, [GN_LEAF_STATE] = GN_RESIDENCY_STATE };
    if (w->role[i] == GN_ROLE_KV_APPEND || (w->facts[i] & GN__GRADIENT)) return w->role[i] == GN_ROLE_KV_APPEND ? GN_RESIDENCY_KV_CACHE : GN_RESIDENCY_GRADIENT;
    if (gn__op_at(w, i) == GN__OP_ASSIGN) return GN_RESIDENCY_STATE;
    const gn_part_node *b = &w->p->nodes[w->base[i]];
    uint32_t r = w->reader[w->base[i]];
    if (b->leaf == GN_LEAF_STATE && ((r < w->n && w->role[r] == GN_ROLE_KV_APPEND) || w->keys[w->base[i]])) return GN_RESIDENCY_KV_CACHE;
    return leaves[b->leaf];
}

static bool gn__disagree(gn__recognition *w, uint32_t i, uint8_t which, uint8_t said, uint8_t recognised) {
    gn_meaning *m = w->m;
    size_t cap = w->disagreements_room;
    void *p = m->disagreements;
    bool ok = gn__reserve(&p, &cap, m->n_disagreements + 1u, sizeof *m->disagreements);
    m->disagreements = (gn_disagreement *)p;
    w->disagreements_room = cap;
    if (ok) m->disagreements[m->n_disagreements++] = (gn_disagreement){ i, which, said, recognised };
    return ok;
}

static const gn_part_hint gn__no_hint = { 0, 0, 0, 0, 0 };
static const gn_part_hint *gn__hint_of(const gn__recognition *w, uint32_t i) { return w->p->hints ? &w->p->hints[i] : &gn__no_hint; }

/* Residency and role; a view without a role has its group's. */
static bool gn__roles_tell(gn__recognition *w) {
    bool ok = true;
    for (uint32_t i = 0; i < w->n && ok; i++) {
        gn_node_meaning *t = &w->m->nodes[i];
        const gn_part_hint *h = gn__hint_of(w, i);
        uint8_t residency = gn__residency_of(w, i);
        bool follows = gn__is_free(w, i) || gn__is_glue(&w->p->nodes[i]);
        t->role = h->role ? h->role : w->role[i] ? w->role[i] : follows && w->role[w->base[i]] ? w->role[w->base[i]] : follows ? w->m->groups[t->group].role : (uint8_t)GN_ROLE_NONE;
        t->residency = h->residency ? h->residency : residency;
        t->said = (uint8_t)((w->p->nodes[i].phase ? GN_SAID_PHASE : 0) | (h->role ? GN_SAID_ROLE : 0) | (h->residency ? GN_SAID_RESIDENCY : 0) | (h->modality ? GN_SAID_MODALITY : 0));
        if (h->role && w->role[i] && !gn__role_covers(h->role, w->role[i])) ok = gn__disagree(w, i, GN_SAID_ROLE, h->role, w->role[i]);
        if (ok && h->residency && !gn__residency_covers(h->residency, residency)) ok = gn__disagree(w, i, GN_SAID_RESIDENCY, h->residency, residency);
        uint8_t said = w->p->nodes[i].phase, seen = w->phase[i];
        bool same = said == seen || (said == GN_FORWARD && seen != GN_TRAINING) || (said == GN_TRAINING && seen == GN_ENCODE) || (said == GN_DENOISE && seen == GN_ENCODE);
        if (ok && said && seen && !same) ok = gn__disagree(w, i, GN_SAID_PHASE, said, seen);
    }
    return ok;
}

/* Of two phases that meet, the one that says more of when the node runs. */
static uint8_t gn__phase_of_both(uint8_t a, uint8_t b) {
    static const uint8_t rank[GN_PHASE__COUNT] = { [GN_FORWARD] = 1, [GN_ENCODE] = 2, [GN_PREFILL] = 3, [GN_DECODE] = 4, [GN_DENOISE] = 5, [GN_TRAINING] = 6 };
    return rank[a] >= rank[b] ? a : b;
}

/* Recognised phases spread to what follows, then to what leads there; a part with an optimiser step or gradients is training. */
static void gn__phases_tell(gn__recognition *w) {
    gn_node_meaning *t = w->m->nodes;
    bool training = false, roles = false;
    for (uint32_t i = 0; i < w->n; i++) {
        training |= w->phase[i] == GN_TRAINING || (w->facts[i] & GN__GRADIENT);
        roles |= w->role[i] && w->role[i] != GN_ROLE_RESIDUAL;
    }
    uint8_t rest = training ? GN_TRAINING : roles ? GN_FORWARD : GN_PHASE_UNKNOWN;
    for (uint32_t i = 0; i < w->n; i++) {
        const gn_part_node *n = &w->p->nodes[i];
        t[i].phase = n->phase ? n->phase : training ? (uint8_t)GN_TRAINING : w->phase[i];
        for (uint32_t k = 0; k < n->n_ins && !n->phase && !w->phase[i]; k++) t[i].phase = gn__phase_of_both(t[i].phase, t[gn__in(w, i, k)].phase);
    }
    for (uint32_t i = w->n; i-- > 0;) {
        const gn_part_node *n = &w->p->nodes[i];
        if (!t[i].phase) t[i].phase = rest;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = gn__in(w, i, k);
            if (!t[x].phase) t[x].phase = t[i].phase == rest ? (uint8_t)GN_PHASE_UNKNOWN : t[i].phase;
        }
    }
}

/* ids into an embedding are text, four axes of an image vision, two of floats into a product with parameters a table. */
static uint8_t gn__modality_seen(const gn__recognition *w, uint32_t i) {
    uint32_t x = gn__linear_input(w, i);
    if (w->role[i] == GN_ROLE_EMBEDDING && gn__op_at(w, i) != GN__OP_ADD && gn__op_at(w, i) != GN__OP_MUL) return GN_MODALITY_TEXT;
    if (w->role[i] == GN_ROLE_CONV) return GN_MODALITY_VISION;
    if (x == GN_NO_NODE || w->p->nodes[w->base[x]].leaf != GN_LEAF_DATA) return GN_MODALITY_UNKNOWN;
    const gn_part_node *b = &w->p->nodes[w->base[x]];
    return gn__is_float((gn_dtype)b->dtype) ? b->rank == 4 ? GN_MODALITY_VISION : b->rank == 2 ? GN_MODALITY_TABULAR : GN_MODALITY_UNKNOWN : GN_MODALITY_UNKNOWN;
}

static bool gn__modalities_tell(gn__recognition *w) {
    gn_node_meaning *t = w->m->nodes;
    bool ok = true;
    for (uint32_t i = 0; i < w->n && ok; i++) {
        const gn_part_node *n = &w->p->nodes[i];
        uint8_t said = gn__hint_of(w, i)->modality, seen = gn__modality_seen(w, i), mix = seen;
        for (uint32_t k = 0; k < n->n_ins && !seen; k++) {
            uint8_t from = t[gn__in(w, i, k)].modality;
            if (from) mix = !mix || mix == from ? from : (uint8_t)GN_MODALITY_MIXED;
        }
        t[i].modality = said ? said : mix;
        if (said && seen && said != seen) ok = gn__disagree(w, i, GN_SAID_MODALITY, said, seen);
    }
    for (uint32_t i = w->n; i-- > 0;)                      /* what leads there is what it is read as */
        for (uint32_t k = 0; k < w->p->nodes[i].n_ins; k++)
            if (!t[gn__in(w, i, k)].modality) t[gn__in(w, i, k)].modality = t[i].modality;
    return ok;
}

/* ---- cost ---- */

/* Bytes that a kernel of its own reads of input k: rows of a table, rows that are appended, one copy of what is broadcast. */
static uint64_t gn__bytes_in(const gn__recognition *w, uint32_t i, uint32_t k) {
    gn__type x = gn__part_type(w->p, gn__in(w, i, k)), b = gn__part_type(w->p, gn__in_base(w, i, k)), out = gn__part_type(w->p, i);
    uint64_t all = GN__MIN(gn__type_bytes(&x), (uint64_t)gn__count(&b.shape) * gn__bytes_of(x.dtype));
    int op = gn__op_at(w, i);
    if (k == 0 && (op == GN__OP_EMBEDDING || op == GN__OP_GATHER)) return GN__MIN(all, gn__type_bytes(&out));
    if (k == 0 && op == GN__OP_KV_APPEND) return 0;
    return all;
}

/* An attention with a length works on the keys in use, whose number is not known when a plan is made: taken as the rows appended
   in a prefill, as half of the cache in a decode. */
static void gn__cost_of_keys(const gn__recognition *w, uint32_t i, gn_node_meaning *t, uint64_t caches) {
    const gn_part_node *n = &w->p->nodes[i];
    if (gn__op_at(w, i) != GN__OP_ATTENTION || !(w->p->attrs[n->attrs] & 4) || (t->phase != GN_PREFILL && t->phase != GN_DECODE)) return;
    double keys = (double)gn__dim(w, gn__in(w, i, 1), 2), queries = (double)gn__dim(w, gn__in(w, i, 0), 2);
    double share = t->phase == GN_DECODE ? 0.5 : keys > queries ? queries / keys : 1;
    t->flops *= share;
    t->bytes_read -= (uint64_t)((double)caches * (1 - share));
}

static void gn__cost_tell(gn__recognition *w, uint32_t i) {
    const gn_part_node *n = &w->p->nodes[i];
    gn_node_meaning *t = &w->m->nodes[i];
    gn__type in[3], out = gn__part_type(w->p, i);
    memset(in, 0, sizeof in);
    for (uint32_t k = 0; k < n->n_ins; k++) {
        gn_edge_meaning *e = &w->m->edges[n->ins + k];
        gn__type x = gn__part_type(w->p, gn__in(w, i, k));
        if (k < 3) in[k] = x;
        e->bytes = gn__type_bytes(&x);
        e->change = e->bytes ? (double)gn__type_bytes(&out) / (double)e->bytes : 0;
        if (!gn__is_view_op(n->op)) t->bytes_read += gn__bytes_in(w, i, k);
    }
    if (n->leaf) return;
    t->flops = gn__op_flops(n->op, in, (int)n->n_ins, &out);
    if (gn__is_view_op(n->op) || n->op == GN__OP_FULL) return;
    t->bytes_written = gn__op_at(w, i) == GN__OP_KV_APPEND ? gn__type_bytes(&in[1]) : gn__type_bytes(&out);
    gn__cost_of_keys(w, i, t, gn__type_bytes(&in[1]) + gn__type_bytes(&in[2]));
}

/* Sums of the groups. A scalar op whose readers are all scalar ops of its group runs in their loop: it is no kernel, and what
   passes between them does not touch memory. `outside`: some reader is not so. */
static void gn__groups_cost(gn__recognition *w, uint8_t *outside) {
    gn_meaning *m = w->m;
    memset(outside, 0, w->n);
    for (uint32_t i = 0; i < w->p->n_outs; i++) outside[w->p->outs[i]] = 1;
    for (uint32_t i = w->n; i-- > 0;) {
        const gn_part_node *n = &w->p->nodes[i];
        gn_group *g = &m->groups[m->nodes[i].group];
        bool scalar = gn__op_sort(gn__op_at(w, i)) == GN__SCALARS, works = !n->leaf && !gn__is_view_op(n->op) && n->op != GN__OP_FULL;
        bool loops = scalar && w->reader[i] < w->n && !outside[i];
        uint64_t read = 0;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = gn__in(w, i, k);
            bool together = scalar && gn__op_sort(gn__op_at(w, x)) == GN__SCALARS && m->nodes[x].group == m->nodes[i].group && gn__elements(w, x) == gn__elements(w, i);
            if (!together) outside[x] = 1;
            read += works && (!together || outside[x]) ? gn__bytes_in(w, i, k) : 0;
        }
        g->bytes += works && read > m->nodes[i].bytes_read ? m->nodes[i].bytes_read : read;
        g->flops += m->nodes[i].flops;
        g->kernels += works && !loops;
        if (works && !loops) g->bytes += m->nodes[i].bytes_written;
        g->phase = gn__phase_of_both(g->phase, m->nodes[i].phase);
        uint8_t modality = m->nodes[i].modality;
        if (modality && !gn__is_free(w, i)) g->modality = !g->modality || g->modality == modality ? modality : (uint8_t)GN_MODALITY_MIXED;
    }
}

/* The longest way through the part, on a machine of 10^13 operations and 10^12 bytes a second and 2 us a kernel; of equal ways
   the one through the first inputs. */
static void gn__critical_tell(gn__recognition *w, double *way, uint32_t *before) {
    gn_meaning *m = w->m;
    uint32_t end = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const gn_part_node *n = &w->p->nodes[i];
        const gn_node_meaning *t = &m->nodes[i];
        double longest = 0, own = gn__is_free(w, i) || gn__is_view_op(n->op) ? 0 : 2e-6 + GN__MAX(t->flops / 1e13, (double)(t->bytes_read + t->bytes_written) / 1e12);
        before[i] = GN_NO_NODE;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            uint32_t x = gn__in(w, i, k);
            if (before[i] != GN_NO_NODE && way[x] <= longest) continue;
            longest = way[x];
            before[i] = n->ins + k;
        }
        way[i] = longest + own;
        if (way[i] > way[end]) end = i;
    }
    for (uint32_t i = end; m->nodes[i].critical = true, before[i] != GN_NO_NODE; i = w->p->ins[before[i]]) m->edges[before[i]].critical = true;
}

/* The role that an op has by itself, before its surroundings are looked at. */
static uint8_t gn__role_of_op(int op) {
    static const struct { uint16_t op; uint8_t role; } roles[] = {
        { GN__OP_LINEAR, GN_ROLE_LINEAR }, { GN__OP_ATTENTION, GN_ROLE_ATTENTION }, { GN__OP_KV_APPEND, GN_ROLE_KV_APPEND },
        { GN__OP_LAYERNORM, GN_ROLE_NORM }, { GN__OP_CROSS_ENTROPY, GN_ROLE_LOSS }, { GN__OP_MSE_LOSS, GN_ROLE_LOSS },
    };
    for (size_t i = 0; i < GN__LENGTH(roles); i++)
        if (roles[i].op == op) return roles[i].role;
    return GN_ROLE_NONE;
}

static void gn__meaning_deinit(gn_meaning *m) {
    gn_free(m->nodes);
    gn_free(m->edges);
    gn_free(m->groups);
    gn_free(m->members);
    gn_free(m->disagreements);
    memset(m, 0, sizeof *m);
}

static bool gn__meaning_fill(gn__recognition *w, double *way) {
    gn_meaning *m = w->m;
    uint32_t *want = w->last;                              /* free once the units are numbered */
    gn__recognise(w);
    gn__units_number(w);
    gn__units_settle(w, want);
    gn__units_follow(w);
    gn__units_leaves(w, want);
    if (!gn__groups_make(w, want) || !gn__roles_tell(w)) return false;
    gn__phases_tell(w);
    if (!gn__modalities_tell(w)) return false;
    for (uint32_t i = 0; i < w->n; i++) gn__cost_tell(w, i);
    gn__groups_cost(w, w->kind);
    if (m->n_nodes) gn__critical_tell(w, way, want);
    return true;
}

static gn_result gn__meaning_make(const gn_part *p, uint32_t off, gn_meaning *m, gn_fault *f) {
    gn__recognition w;
    memset(m, 0, sizeof *m);
    double *way = (double *)gn_alloc(((size_t)p->n_nodes + 1) * sizeof *way);
    bool ok = gn__recognition_init(&w, p, off, m) && way;
    m->n_nodes = p->n_nodes;
    m->n_edges = p->n_ins;
    m->nodes = (gn_node_meaning *)gn__alloc_zero(((size_t)p->n_nodes + 1) * sizeof *m->nodes);
    m->edges = (gn_edge_meaning *)gn__alloc_zero(((size_t)p->n_ins + 1) * sizeof *m->edges);
    ok = ok && m->nodes && m->edges && gn__meaning_fill(&w, way);
    gn__recognition_deinit(&w);
    gn_free(way);
    if (ok) return GN_OK;
    gn__meaning_deinit(m);
    return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the meaning of %u nodes", p->n_nodes);
}

/* >>plan ===========================================================================================
 * How a part runs on a host executor: which nodes are views, which run in one loop, where each result lies. A pure function
 * of the part. Then where it runs: which device runs which groups (schedule), told in words and drawn (explanation). */

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

static bool gn__is_product(const gn_part_node *n) { return n->leaf == GN_LEAF_NONE && (n->op == GN__OP_MATMUL || n->op == GN__OP_LINEAR); }

static bool gn__same_dims(const gn_part *p, const gn_part_node *a, const gn_part_node *b) {
    return a->rank == b->rank && (a->rank == 0 || memcmp(p->dims + a->dims, p->dims + b->dims, a->rank * sizeof(int64_t)) == 0);
}

/* A scalar node joins its consumer's loop when all its consumers are in that one loop and have its shape: so no path leaves
   the loop and comes back. candidate[i]: 0 none yet, UINT32_MAX several or not fusible, else 1 + the loop's leader. */
static void gn__layout_groups(gn_layout *l, bool fuse) {
    const gn_part *p = l->part;
    uint32_t *candidate = l->scratch;
    memset(candidate, 0, p->n_nodes * sizeof *candidate);
    for (uint32_t i = 0; i < p->n_outs; i++) candidate[p->outs[i]] = UINT32_MAX;
    for (uint32_t i = 0; i < p->n_updates; i++) candidate[p->updates[i].node] = UINT32_MAX;
    for (uint32_t i = p->n_nodes; i-- > 0;) {
        const gn_part_node *n = &p->nodes[i];
        bool scalar = gn__is_scalar_op(n);
        l->lay[i].group = GN__NO_GROUP;
        l->lay[i].tail = GN__NO_GROUP;
        if (fuse && gn__is_product(n) && candidate[i] && candidate[i] != UINT32_MAX && l->lay[candidate[i] - 1].tail == GN__NO_GROUP) {
            l->lay[i].tail = candidate[i] - 1;                      /* of several, the last that is computed */
            l->lay[candidate[i] - 1].tail = i;
        }
        if (scalar) {
            uint32_t leader = fuse && candidate[i] && candidate[i] != UINT32_MAX ? candidate[i] - 1 : i;
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
        uint32_t at = a->group != GN__NO_GROUP ? a->group : a->tail != GN__NO_GROUP ? a->tail : i;
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
        bool leads = l->lay[i].group == i, paired = l->lay[i].tail != GN__NO_GROUP;
        if (!l->lay[i].kernel || (paired && !leads)) continue;
        gn_kernel_step s = { .node = i };
        gr.n = 0;
        for (uint32_t m = leads ? i + 1 : 0; m && gr.n <= GN__GROUP_MAX; m = next[m - 1]) gr.members[gr.n++] = m - 1;
        ok = (!gr.n || gn__layout_loop(l, &s, &gr)) && GN__GROW(l, steps, 2);
        if (ok && paired) l->steps[l->n_steps++] = (gn_kernel_step){ .node = l->lay[i].tail, .tail = true };
        if (ok) l->steps[l->n_steps++] = s;
    }
    return ok;
}

static gn_result gn__layout_make(const gn_part *p, bool fuse, gn_layout *l, gn_fault *f) {
    memset(l, 0, sizeof *l);
    l->part = p;
    l->lay = (gn_lay *)gn__alloc_zero((size_t)(p->n_nodes + 1) * sizeof *l->lay);
    l->update_how = (uint8_t *)gn__alloc_zero((size_t)p->n_updates + 1);
    l->scratch = (uint32_t *)gn__alloc_zero((size_t)(p->n_nodes + 1) * sizeof *l->scratch);
    bool ok = l->lay && l->update_how && l->scratch;
    if (ok) {
        gn__layout_groups(l, fuse);
        gn__layout_places(l);
        gn__layout_last(l);
        gn__layout_updates(l);
        ok = gn__layout_memory(l) && gn__layout_steps(l);
    }
    if (!ok) { gn__layout_deinit(l); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to plan %u nodes", p->n_nodes); }
    return GN_OK;
}

/* ---- schedule ----
 * Groups of nodes are units; a group whose nodes the program sends to different devices is taken apart. Several placements of the
 * units are formed (each device alone; a list schedule by earliest end; one run of units after another over the devices, cut where
 * it costs least; then whole paths moved from device to device) and judged by one simulation of the step, in which segments run and
 * values cross links. Where a state lives decides where its writers run. */

#define GN__GAIN 0.95              /* a split counts when it takes less than this share of the best device's time */
#define GN__SEGMENT_S 10e-6        /* a further run on a device in the same step: its arguments, its message, its end */
#define GN__UPLOAD_STEPS 64.0      /* sending a weight again that another device holds is spread over so many steps */
#define GN__NONE UINT32_MAX
/* GN__WORK: units times devices that a stage of the search looks at; larger problems look at the likeliest devices alone. */
enum { GN__WORK = 1 << 21, GN__MAX_PATHS = 32, GN__MOVE_DEVICES = 8, GN__RECOMPUTE_MAX = 16, GN__RESIDENT = GN_TRANSFER__COUNT, GN__RECOMPUTED };

typedef struct gn__unit {
    uint32_t group, first, n;      /* its ops: unit_nodes[first …] */
    uint32_t in, n_in;             /* values of other units, of the step and kept ones: ins[in …] */
    uint32_t slot, n_slots;        /* weights and states it reads: slots[slot …] */
    uint32_t said, pin;            /* devices: by the program; where it has to run */
    uint32_t set;                  /* state whose writer it is, the first of those that go together */
    uint32_t kernels;
    double flops[GN_RATE__COUNT], bytes;
} gn__unit;

typedef struct gn__hop {           /* a value on a device other than its own: sent, computed again there, or a weight */
    uint32_t node, from, to, consumer;
    uint32_t same, next;           /* 1 + the next hop of the node; of the consumer */
    uint32_t last;                 /* last place in the sequence of nodes that reads it */
    uint64_t bytes;
    double start, end;
    uint8_t why;                   /* gn_transfer_reason, GN__RESIDENT, GN__RECOMPUTED */
} gn__hop;

typedef struct gn__seg { uint32_t device, units, first, head, tail, now; double work, start, end; } gn__seg;   /* now: 1 + the segment that goes on with it */
typedef struct gn__rated { double rank; uint32_t at; } gn__rated;
typedef struct gn__verdict { double seconds, step, again_s; uint64_t bytes, again; uint32_t devices; } gn__verdict;   /* again: of weights that are elsewhere already */

typedef struct gn__sched {
    const gn_part *p;
    const gn_meaning *m;
    const gn_cluster *c;
    const uint32_t *homes;
    gn_policy policy;
    gn_fault *f;
    uint32_t n, D, U, n_ins, n_slots, overruled;
    gn__unit *units;
    uint64_t *size;                /* per node: bytes of its value */
    uint32_t *unit_of, *unit_nodes, *ins, *slots, *stamp, *set, *set_pin, *set_dev, *head, *base, *last, *seq, *die;   /* per node, or larger */
    uint8_t *cheap, *keep, *lacks, *exported, *view;
    uint32_t *order, *rank_order, *dev, *best, *seg_of, *list, *open, *path;   /* per unit or device */
    double *out_free, *in_free, *dev_free, *work, *finish;
    uint64_t *mem, *live, *limit, *resident, *unit_live, *unit_act;
    uint32_t *die_next;
    size_t cap_die;
    gn__rated *rated;
    GN__ARRAY(gn__seg, segs);
    GN__ARRAY(gn__hop, hops);
    uint64_t upload, once, spared;
    gn__verdict now, top, single, split;
    bool have, have_single, have_split, limited, best_ranked, bad;
    uint32_t single_dev;
    void *blocks[48];
    int n_blocks;
} gn__sched;

static void gn__schedule_deinit(gn_schedule *s) {
    gn_free(s->device);
    gn_free(s->nodes);
    gn_free(s->segments);
    gn_free(s->transfers);
    gn_free(s->why);
    gn_free(s->memory);
    memset(s, 0, sizeof *s);
}

static void *gn__sched_take(gn__sched *s, size_t n, size_t size) {
    void *p = gn__alloc_zero((n + 1) * size);
    if (!p) s->bad = true;
    s->blocks[s->n_blocks++] = p;
    return p;
}

static void gn__sched_deinit(gn__sched *s) {
    for (int i = 0; i < s->n_blocks; i++) gn_free(s->blocks[i]);
    gn_free(s->segs);
    gn_free(s->hops);
    gn_free(s->die_next);
}

static bool gn__sched_alloc(gn__sched *s) {
    uint32_t **nodes[] = { &s->unit_of, &s->unit_nodes, &s->stamp, &s->set, &s->set_pin, &s->set_dev, &s->head, &s->base, &s->last, &s->seq, &s->die };
    uint32_t **units[] = { &s->order, &s->rank_order, &s->dev, &s->best, &s->seg_of, &s->path };
    for (size_t i = 0; i < GN__LENGTH(nodes); i++) *nodes[i] = (uint32_t *)gn__sched_take(s, s->n, sizeof(uint32_t));
    for (size_t i = 0; i < GN__LENGTH(units); i++) *units[i] = (uint32_t *)gn__sched_take(s, s->n, sizeof(uint32_t));
    double **ends[] = { &s->out_free, &s->in_free, &s->dev_free, &s->work };
    for (size_t i = 0; i < GN__LENGTH(ends); i++) *ends[i] = (double *)gn__sched_take(s, s->D + 1u, sizeof(double));
    uint64_t **memory[] = { &s->mem, &s->live, &s->limit, &s->resident };
    for (size_t i = 0; i < GN__LENGTH(memory); i++) *memory[i] = (uint64_t *)gn__sched_take(s, s->D + 1u, sizeof(uint64_t));
    s->ins = (uint32_t *)gn__sched_take(s, s->p->n_ins, sizeof(uint32_t));
    s->slots = (uint32_t *)gn__sched_take(s, s->p->n_ins, sizeof(uint32_t));
    s->list = (uint32_t *)gn__sched_take(s, s->D, sizeof(uint32_t));
    s->open = (uint32_t *)gn__sched_take(s, s->D, sizeof(uint32_t));
    s->size = (uint64_t *)gn__sched_take(s, s->n, sizeof(uint64_t));
    s->unit_live = (uint64_t *)gn__sched_take(s, s->n, sizeof(uint64_t));
    s->unit_act = (uint64_t *)gn__sched_take(s, s->n, sizeof(uint64_t));
    s->finish = (double *)gn__sched_take(s, s->n, sizeof(double));
    s->rated = (gn__rated *)gn__sched_take(s, GN__MAX(s->n, s->D), sizeof(gn__rated));
    s->units = (gn__unit *)gn__sched_take(s, s->n, sizeof(gn__unit));
    s->cheap = (uint8_t *)gn__sched_take(s, s->n, 1);
    s->keep = (uint8_t *)gn__sched_take(s, s->n, 1);
    s->exported = (uint8_t *)gn__sched_take(s, s->n, 1);
    s->view = (uint8_t *)gn__sched_take(s, s->n, 1);
    s->lacks = (uint8_t *)gn__sched_take(s, s->D, 1);
    return !s->bad;
}

static bool gn__sched_is_op(const gn__sched *s, uint32_t node) { return s->p->nodes[node].leaf == GN_LEAF_NONE; }
static uint32_t gn__sched_homes(const gn__sched *s, uint32_t node) { return s->homes ? s->homes[node] & (s->D < 32 ? (1u << s->D) - 1 : UINT32_MAX) : 0; }
/* An op whose result comes from somewhere: what generators make, constants above all, is made wherever it is used. */
static bool gn__sched_made(const gn__sched *s, uint32_t node) { return s->p->nodes[node].leaf == GN_LEAF_NONE && s->p->nodes[node].n_ins > 0; }
static bool gn__sched_home(const gn__sched *s, uint32_t node, uint32_t d) { return d < 32 && ((gn__sched_homes(s, node) >> d) & 1) != 0; }
static uint32_t gn__first_bit(uint32_t w) { return (uint32_t)gn__top_bit(w & (~w + 1)); }
static const gn_cluster_link *gn__sched_link(const gn__sched *s, uint32_t from, uint32_t to) { return &s->c->links[(size_t)from * (s->D + 1) + to]; }
static double gn__sched_share(double amount, double rate) { return rate > 0 ? amount / rate : 0; }
static double gn__sched_wire(const gn__sched *s, uint32_t from, uint32_t to, uint64_t bytes) { return gn__sched_share((double)bytes, gn__sched_link(s, from, to)->bytes_per_s); }

static uint32_t gn__sched_said(const gn__sched *s, uint32_t node) { return s->p->hints && s->p->hints[node].on ? s->p->hints[node].on - 1 : GN_UNPLACED; }

static gn_rate gn__sched_rate(uint8_t dtype) {
    return dtype == GN_F32 ? GN_RATE_F32 : dtype == GN_F64 ? GN_RATE_F64 : dtype == GN_F16 || dtype == GN_BF16 ? GN_RATE_HALF : GN_RATE_INT;
}

/* ---- units ---- */

static void gn__unit_add(gn__sched *s, gn__unit *u, uint32_t node) {
    u->n++;
    u->flops[gn__sched_rate(s->p->nodes[node].dtype)] += s->m->nodes[node].flops;
    s->unit_of[node] = s->U;
}

static void gn__unit_open(gn__sched *s, uint32_t group, uint32_t first) {
    gn__unit *u = &s->units[s->U];
    u->group = group;
    u->first = first;
    u->said = u->pin = GN_UNPLACED;
    u->set = GN__NONE;
}

/* One unit for a group, or one for each of its ops when the program named several devices. */
static void gn__sched_group(gn__sched *s, uint32_t group, uint32_t *at) {
    const gn_group *g = &s->m->groups[group];
    const uint32_t *members = s->m->members + g->first;
    uint32_t said = GN_UNPLACED, ops = 0;
    bool apart = false;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t d = gn__sched_said(s, members[i]);
        if (!gn__sched_is_op(s, members[i])) continue;
        ops++;
        apart |= d != GN_UNPLACED && said != GN_UNPLACED && d != said;
        if (d != GN_UNPLACED) said = d;
    }
    for (uint32_t i = 0, k = 0; i < g->n_nodes; i++) {
        if (!gn__sched_is_op(s, members[i])) continue;
        const gn_node_meaning *x = &s->m->nodes[members[i]];
        if (apart || k == 0) gn__unit_open(s, group, *at);
        gn__unit *u = &s->units[s->U];
        s->unit_nodes[(*at)++] = members[i];
        gn__unit_add(s, u, members[i]);
        if (!apart && ++k < ops) continue;
        u->said = apart ? gn__sched_said(s, members[i]) : said;
        u->bytes = apart ? (double)x->bytes_read + (double)x->bytes_written : (double)g->bytes;
        u->kernels = apart ? x->bytes_written != 0 : g->kernels;
        s->U++;
    }
}

static void gn__sched_slot_in(gn__sched *s, gn__unit *u, uint32_t x) { s->slots[s->n_slots++] = x; u->n_slots++; }

/* What each unit reads from outside, once each. False when the groups do not stand in topological order. */
static bool gn__sched_inputs(gn__sched *s) {
    for (uint32_t i = 0; i < s->U; i++) {
        gn__unit *u = &s->units[i];
        u->in = s->n_ins;
        u->slot = s->n_slots;
        for (uint32_t k = 0; k < u->n; k++) {
            const gn_part_node *n = &s->p->nodes[s->unit_nodes[u->first + k]];
            for (uint32_t j = 0; j < n->n_ins; j++) {
                uint32_t x = s->p->ins[n->ins + j];
                uint8_t leaf = s->p->nodes[x].leaf;
                if (leaf == GN_LEAF_NONE && s->unit_of[x] == i) continue;
                if (leaf == GN_LEAF_NONE && s->unit_of[x] > i) return false;
                if (s->stamp[x] == i + 1) continue;
                s->stamp[x] = i + 1;
                if (leaf == GN_LEAF_WEIGHT || leaf == GN_LEAF_STATE) { gn__sched_slot_in(s, u, x); continue; }
                s->ins[s->n_ins++] = x;
                u->n_in++;
            }
        }
    }
    return true;
}

static uint32_t gn__set_find(const gn__sched *s, uint32_t x) {
    while (s->set[x] != x) x = s->set[x] = s->set[s->set[x]];
    return x;
}

/* The state that a writer writes: through older versions down to the leaf, which stands in stamp[]. */
static void gn__sched_sets(gn__sched *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const gn_part_node *n = &s->p->nodes[i];
        bool writes = n->leaf == GN_LEAF_NONE && (n->op == GN__OP_KV_APPEND || n->op == GN__OP_ASSIGN);
        s->set[i] = i;
        s->set_pin[i] = GN_UNPLACED;
        s->stamp[i] = n->leaf == GN_LEAF_STATE ? i : writes ? s->stamp[s->p->ins[n->ins]] : GN__NONE;
        if (!writes || s->stamp[i] == GN__NONE) continue;
        gn__unit *u = &s->units[s->unit_of[i]];
        uint32_t a = gn__set_find(s, s->stamp[i]), b = u->set == GN__NONE ? a : gn__set_find(s, u->set);
        s->set[GN__MAX(a, b)] = s->set[i] = u->set = GN__MIN(a, b);
    }
}

static bool gn__sched_device_has(const gn_cluster_device *d, uint16_t op) {
    size_t wire = gn__ops[op].wire;
    return !d->ops || (wire / 8 < d->n_ops && ((d->ops[wire / 8] >> (wire % 8)) & 1) != 0);
}

/* The first op of the unit that the device lacks; NULL: none. */
static const char *gn__sched_lacks(const gn__sched *s, uint32_t unit, uint32_t d) {
    const gn__unit *u = &s->units[unit];
    for (uint32_t i = 0; s->lacks[d] && i < u->n; i++) {
        uint16_t op = s->p->nodes[s->unit_nodes[u->first + i]].op;
        if (!gn__sched_device_has(&s->c->devices[d], op)) return gn__ops[op].name;
    }
    return NULL;
}

static bool gn__sched_can(const gn__sched *s, uint32_t unit, uint32_t d) {
    return (s->units[unit].pin == GN_UNPLACED || s->units[unit].pin == d) && !gn__sched_lacks(s, unit, d);
}

/* Where states live: where the program says, else where a writer is said to run, else where they are, if their writers can run there. */
static void gn__sched_pins(gn__sched *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t d = gn__sched_said(s, i), set = s->p->nodes[i].leaf == GN_LEAF_STATE ? gn__set_find(s, i) : 0;
        if (s->p->nodes[i].leaf == GN_LEAF_STATE && s->set_pin[set] == GN_UNPLACED) s->set_pin[set] = d;
    }
    for (uint32_t i = 0; i < s->U; i++) {
        gn__unit *u = &s->units[i];
        if (u->set == GN__NONE) continue;
        u->set = gn__set_find(s, u->set);
        if (s->set_pin[u->set] == GN_UNPLACED) s->set_pin[u->set] = u->said;
    }
    for (uint32_t i = 0; i < s->n; i++) s->stamp[i] = 0;
    for (uint32_t i = 0; i < s->n && s->homes; i++) {            /* stamp: devices that hold a state of the set */
        if (s->p->nodes[i].leaf == GN_LEAF_STATE) s->stamp[gn__set_find(s, i)] |= gn__sched_homes(s, i);
    }
    for (uint32_t i = 0; i < s->U && s->homes; i++)
        for (uint32_t d = 0; d < s->D && d < 32 && s->units[i].set != GN__NONE; d++)
            if (gn__sched_lacks(s, i, d)) s->stamp[s->units[i].set] &= ~(1u << d);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->set[i] == i && s->stamp[i] && s->set_pin[i] == GN_UNPLACED) s->set_pin[i] = gn__first_bit(s->stamp[i]);
    for (uint32_t i = 0; i < s->U; i++) {
        gn__unit *u = &s->units[i];
        u->pin = u->set == GN__NONE ? u->said : s->set_pin[u->set];
        s->overruled += u->said != GN_UNPLACED && u->said != u->pin;
    }
}

/* Whether a value depends on data of the step and made numbers alone, through few nodes: how many; 0: it does not. */
static void gn__sched_cheap(gn__sched *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const gn_part_node *n = &s->p->nodes[i];
        uint32_t count = 1;
        if (n->leaf || n->op == GN__OP_KV_APPEND || n->op == GN__OP_ASSIGN || gn__sched_said(s, i) != GN_UNPLACED) continue;
        for (uint32_t k = 0; k < n->n_ins && count; k++) {
            uint32_t x = s->p->ins[n->ins + k];
            if (s->p->nodes[x].leaf == GN_LEAF_DATA) continue;
            count = s->cheap[x] ? count + s->cheap[x] : 0;
            if (count > GN__RECOMPUTE_MAX) count = 0;
        }
        s->cheap[i] = (uint8_t)count;
    }
}

enum { GN__OWN, GN__VIEW, GN__STRIDED };     /* a value has memory of its own; is a view; is one that a reshape has to copy */

static uint32_t gn__viewed(const gn_part *p, uint32_t i) { return p->ins[p->nodes[i].ins + (p->nodes[i].op == GN__OP_ASSIGN ? 1 : 0)]; }

static void gn__sched_views(gn__sched *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const gn_part_node *n = &s->p->nodes[i];
        if (n->leaf || !gn__is_view_op(n->op)) continue;
        uint8_t of = s->view[gn__viewed(s->p, i)];
        s->view[i] = n->op == GN__OP_ASSIGN ? of == GN__STRIDED ? GN__STRIDED : GN__VIEW : n->op != GN__OP_RESHAPE ? GN__STRIDED : of == GN__STRIDED ? GN__OWN : GN__VIEW;
    }
}

static gn_result gn__sched_check(gn__sched *s) {
    bool any = false;
    for (uint32_t d = 0; d < s->D; d++) {
        const gn_cluster_device *x = &s->c->devices[d];
        for (uint32_t i = 0; x->ops && i < s->n; i++)
            if (gn__sched_is_op(s, i) && !gn__sched_device_has(x, s->p->nodes[i].op)) { s->lacks[d] = 1; break; }
        s->limit[d] = x->memory ? x->memory_free : UINT64_MAX;
        s->limited |= x->memory != 0;
        any |= !s->lacks[d];
    }
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t d = gn__sched_said(s, i);
        if (d != GN_UNPLACED && d >= s->D) return gn_fail(s->f, GN_BAD_ARGUMENT, "a node is to run on device %u of a cluster of %u", d, s->D);
    }
    gn__sched_sets(s);
    gn__sched_pins(s);
    for (uint32_t i = 0; i < s->U; i++) {
        uint32_t pin = s->units[i].pin, d = 0;
        const char *op = pin != GN_UNPLACED ? gn__sched_lacks(s, i, pin) : NULL;
        if (op) return gn_fail(s->f, GN_UNSUPPORTED, "device '%s', where the program wants it, has no %s", s->c->devices[pin].name, op);
        while (!any && d < s->D && gn__sched_lacks(s, i, d)) d++;
        if (!any && d == s->D) return gn_fail(s->f, GN_UNSUPPORTED, "no device has all of what runs together with %s", gn__sched_lacks(s, i, 0));
    }
    return GN_OK;
}

static gn_result gn__sched_prepare(gn__sched *s) {
    uint32_t at = 0;
    if (!gn__sched_alloc(s)) return gn_fail(s->f, GN_OUT_OF_MEMORY, "no memory to schedule %u nodes", s->n);
    for (uint32_t i = 0; i < s->n; i++) {
        gn__type t = gn__part_type(s->p, i);
        s->size[i] = gn__type_bytes(&t);
        s->unit_of[i] = GN__NONE;
    }
    for (uint32_t i = 0; i < s->m->n_groups; i++) gn__sched_group(s, i, &at);
    gn__sched_views(s);
    if (!gn__sched_inputs(s)) return gn_fail(s->f, GN_BAD_ARGUMENT, "the groups do not stand in topological order");
    gn__sched_cheap(s);
    for (uint32_t i = 0; i < s->U; i++) s->order[i] = i;
    return gn__sched_check(s);
}

/* ---- cost model ---- */

/* Seconds of some work on a device: the slower of arithmetic and memory, and its launches. */
static double gn__sched_cost(const gn_cluster_device *d, const double *flops, double bytes, double kernels) {
    double t = 0, b = gn__sched_share(bytes, d->bytes_per_s);
    for (int i = 0; i < GN_RATE__COUNT; i++)
        if (flops[i] > 0) t += gn__sched_share(flops[i], d->flops_per_s[i]);
    return GN__MAX(t, b) + kernels * d->launch_s;
}

static double gn__sched_work(const gn__sched *s, uint32_t unit, uint32_t d) {
    const gn__unit *u = &s->units[unit];
    return gn__sched_cost(&s->c->devices[d], u->flops, u->bytes, u->kernels);
}

static gn__hop *gn__hop_find(const gn__sched *s, uint32_t node, uint32_t to) {
    for (uint32_t h = s->head[node]; h; h = s->hops[h - 1].same)
        if (s->hops[h - 1].to == to) return &s->hops[h - 1];
    return NULL;
}

static gn__hop *gn__hop_add(gn__sched *s, uint32_t node, uint32_t from, uint32_t to, uint8_t why, uint32_t consumer) {
    if (!GN__GROW(s, hops, 1)) { s->bad = true; return NULL; }
    gn__hop *h = &s->hops[s->n_hops++];
    *h = (gn__hop){ .node = node, .from = from, .to = to, .consumer = consumer, .same = s->head[node], .last = GN__NONE, .bytes = s->size[node], .why = why };
    s->head[node] = (uint32_t)s->n_hops;
    if (consumer == GN__NONE || why == GN__RESIDENT) return h;
    gn__seg *g = &s->segs[consumer];
    if (g->tail) s->hops[g->tail - 1].next = (uint32_t)s->n_hops;
    else g->head = (uint32_t)s->n_hops;
    g->tail = (uint32_t)s->n_hops;
    return h;
}

/* The nodes that device d lacks to compute a cheap value, itself first; returns how many. Leaves are those of the step. */
static uint32_t gn__sched_closure(const gn__sched *s, uint32_t v, uint32_t d, uint32_t *out, uint32_t *leaves, uint32_t *n_leaves) {
    uint32_t n = 1;
    out[0] = v;
    *n_leaves = 0;
    for (uint32_t i = 0; i < n; i++) {
        const gn_part_node *x = &s->p->nodes[out[i]];
        for (uint32_t k = 0; k < x->n_ins; k++) {
            uint32_t y = s->p->ins[x->ins + k], *list = s->p->nodes[y].leaf ? leaves : out, *count = s->p->nodes[y].leaf ? n_leaves : &n, j = 0;
            if (gn__sched_is_op(s, y) && s->dev[s->unit_of[y]] == d) continue;
            while (j < *count && list[j] != y) j++;
            if (j == *count && j < 2 * GN__RECOMPUTE_MAX) list[(*count)++] = y;
        }
    }
    return n;
}

/* Seconds to compute v again on device d instead of fetching it; negative when fetching is better or the only way. */
static double gn__sched_recompute(const gn__sched *s, uint32_t v, uint32_t from, uint32_t d, uint64_t *out_more) {
    uint32_t nodes[2 * GN__RECOMPUTE_MAX], leaves[2 * GN__RECOMPUTE_MAX], n_leaves;
    double flops[GN_RATE__COUNT] = { 0 }, bytes = 0, kernels = 0;
    *out_more = 0;
    if (!s->cheap[v] || s->lacks[d]) return -1;
    uint32_t n = gn__sched_closure(s, v, d, nodes, leaves, &n_leaves);
    for (uint32_t i = 0; i < n; i++) {
        const gn_node_meaning *x = &s->m->nodes[nodes[i]];
        flops[gn__sched_rate(s->p->nodes[nodes[i]].dtype)] += x->flops;
        bytes += (double)x->bytes_read + (double)x->bytes_written;
        kernels += x->bytes_written != 0;
    }
    for (uint32_t i = 0; i < n_leaves; i++)
        if (!gn__hop_find(s, leaves[i], d)) *out_more += s->size[leaves[i]];
    double again = gn__sched_cost(&s->c->devices[d], flops, bytes, kernels), fetch = gn__sched_wire(s, from, d, s->size[v]) + gn__sched_link(s, from, d)->latency_s;
    bool wins = s->policy == GN_LEAST_BYTES ? *out_more < s->size[v] : again + gn__sched_wire(s, s->D, d, *out_more) < fetch;
    return wins ? again : -1;
}

/* Writers go where their state lives, which is where it has to, else where the first unit that touches it runs. */
static void gn__sched_settle(gn__sched *s, const uint32_t *order) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->p->nodes[i].leaf == GN_LEAF_STATE) s->set_dev[i] = s->set_pin[i];
    for (uint32_t k = 0; k < s->U; k++) {
        uint32_t i = order[k];
        const gn__unit *u = &s->units[i];
        if (u->set != GN__NONE) {
            if (s->set_dev[u->set] == GN_UNPLACED) s->set_dev[u->set] = s->dev[i];
            s->dev[i] = s->set_dev[u->set];
        }
        for (uint32_t j = 0; j < u->n_slots; j++) {
            uint32_t x = s->slots[u->slot + j];
            if (s->p->nodes[x].leaf == GN_LEAF_STATE && s->set_dev[gn__set_find(s, x)] == GN_UNPLACED) s->set_dev[gn__set_find(s, x)] = s->dev[i];
        }
    }
    for (uint32_t i = 0; i < s->n; i++)                          /* read by the program alone */
        if (s->p->nodes[i].leaf == GN_LEAF_STATE && s->set[i] == i && s->set_dev[i] == GN_UNPLACED) s->set_dev[i] = 0;
}

/* Where a value is: a device, or the program. */
static uint32_t gn__sched_where(const gn__sched *s, uint32_t v) {
    uint8_t leaf = s->p->nodes[v].leaf;
    if (leaf == GN_LEAF_NONE) return s->dev[s->unit_of[v]];
    if (leaf == GN_LEAF_STATE) return s->set_dev[gn__set_find(s, v)];
    return leaf == GN_LEAF_VALUE && gn__sched_homes(s, v) ? gn__first_bit(gn__sched_homes(s, v)) : s->D;
}

/* What has to be fetched from another segment before this unit can run. */
static bool gn__sched_waits(const gn__sched *s, uint32_t unit, uint32_t d) {
    const gn__unit *u = &s->units[unit];
    uint64_t more;
    for (uint32_t k = 0; k < u->n_in; k++) {
        uint32_t v = s->ins[u->in + k], from = gn__sched_where(s, v);
        if (gn__sched_is_op(s, v) && from != d && !gn__hop_find(s, v, d) && gn__sched_recompute(s, v, from, d, &more) < 0) return true;
    }
    return false;
}

static void gn__sched_bring_again(gn__sched *s, uint32_t v, uint32_t d, uint32_t seg, double seconds) {
    uint32_t nodes[2 * GN__RECOMPUTE_MAX], leaves[2 * GN__RECOMPUTE_MAX], n_leaves;
    uint32_t n = gn__sched_closure(s, v, d, nodes, leaves, &n_leaves);
    for (uint32_t i = 0; i < n_leaves; i++)
        if (!gn__hop_find(s, leaves[i], d)) gn__hop_add(s, leaves[i], s->D, d, GN_TRANSFER_INPUT, seg);
    gn__hop *h = gn__hop_add(s, v, s->dev[s->unit_of[v]], d, GN__RECOMPUTED, seg);
    for (uint32_t i = 1; i < n && h; i++) h->bytes += s->size[nodes[i]];
    s->segs[seg].work += seconds;
}

/* Hops of what the unit reads and its device does not have. */
static void gn__sched_bring(gn__sched *s, uint32_t unit, uint32_t d, uint32_t seg) {
    const gn__unit *u = &s->units[unit];
    for (uint32_t k = 0; k < u->n_in && !s->bad; k++) {
        uint32_t v = s->ins[u->in + k], from = gn__sched_where(s, v);
        uint8_t leaf = s->p->nodes[v].leaf;
        uint64_t more;
        if (from == d || (leaf == GN_LEAF_VALUE && gn__sched_home(s, v, d))) continue;
        if (gn__hop_find(s, v, d)) { s->once += s->size[v]; continue; }
        double again = leaf ? -1 : gn__sched_recompute(s, v, from, d, &more);
        if (again >= 0) { gn__sched_bring_again(s, v, d, seg, again); s->spared += s->size[v] - GN__MIN(s->size[v], more); }
        else gn__hop_add(s, v, from, d, leaf == GN_LEAF_DATA ? GN_TRANSFER_INPUT : leaf ? GN_TRANSFER_VALUE : GN_TRANSFER_RESULT, seg);
    }
    for (uint32_t k = 0; k < u->n_slots && !s->bad; k++) {
        uint32_t v = s->slots[u->slot + k];
        bool state = s->p->nodes[v].leaf == GN_LEAF_STATE, elsewhere = gn__sched_homes(s, v) != 0;
        uint32_t home = state ? gn__sched_where(s, v) : d;
        if (gn__hop_find(s, v, d)) continue;
        if (home == d && (!state || !elsewhere)) {
            if (gn__sched_home(s, v, d)) continue;
            gn__hop_add(s, v, s->D, d, GN__RESIDENT, GN__NONE);
            s->now.again += elsewhere ? s->size[v] : 0;
            s->now.again_s += elsewhere ? gn__sched_wire(s, s->D, d, s->size[v]) : 0;
        } else if (home != d) gn__hop_add(s, v, home, d, GN_TRANSFER_STATE_READ, seg);
        else if (gn__sched_homes(s, v) && !gn__sched_home(s, v, d)) gn__hop_add(s, v, gn__first_bit(gn__sched_homes(s, v)), d, GN_TRANSFER_STATE_MOVE, seg);
    }
}

/* What little a segment has done is not worth a segment: it waits too. Nothing has read its results yet. */
static void gn__sched_go_on(gn__sched *s, uint32_t seg, uint32_t later) {
    gn__seg *a = &s->segs[seg], *b = &s->segs[later];
    b->units = a->units;
    b->head = a->head;
    b->tail = a->tail;
    b->work = a->work;                                           /* and is no further run */
    a->now = later + 1;
    a->units = a->head = a->tail = 0;
}

/* Numbers the segments that are left. */
static void gn__sched_number(gn__sched *s) {
    uint32_t n = 0;
    for (size_t i = s->n_segs; i-- > 0;)
        if (s->segs[i].now) s->segs[i].first = s->segs[s->segs[i].now - 1].now ? s->segs[s->segs[i].now - 1].first : s->segs[i].now - 1;
        else s->segs[i].first = (uint32_t)i;
    for (uint32_t i = 0; i < s->U; i++) s->seg_of[i] = s->segs[s->seg_of[i]].first;
    for (size_t i = 0; i < s->n_segs; i++) s->segs[i].tail = s->segs[i].now ? 0 : n++;
    for (uint32_t i = 0; i < s->U; i++) s->seg_of[i] = s->segs[s->seg_of[i]].tail;
    for (size_t i = 0; i < s->n_segs; i++) {
        if (s->segs[i].now) continue;
        for (uint32_t h = s->segs[i].head; h; h = s->hops[h - 1].next) s->hops[h - 1].consumer = s->segs[i].tail;
        s->segs[s->segs[i].tail] = s->segs[i];
    }
    s->n_segs = n;
}

/* Segments in an order in which they can run: one ends where others need its results, or where the next unit has to wait. */
static void gn__sched_segments(gn__sched *s, const uint32_t *order) {
    memset(s->exported, 0, s->U);
    for (uint32_t d = 0; d < s->D; d++) {
        s->open[d] = GN__NONE;
        s->work[d] = 0;                                          /* of the next segment, before it does anything */
    }
    for (uint32_t i = 0; i < s->U; i++)
        for (uint32_t k = 0; k < s->units[i].n_in; k++) {
            uint32_t v = s->ins[s->units[i].in + k];
            uint64_t more;
            if (gn__sched_is_op(s, v) && s->dev[s->unit_of[v]] != s->dev[i] && gn__sched_recompute(s, v, s->dev[s->unit_of[v]], s->dev[i], &more) < 0) s->exported[s->unit_of[v]] = 1;
        }
    for (uint32_t k = 0; k < s->U && !s->bad; k++) {
        uint32_t i = order[k], d = s->dev[i], *open = &s->open[d];
        uint32_t waits = *open != GN__NONE && gn__sched_waits(s, i, d) ? *open : GN__NONE;
        if (*open == GN__NONE || waits != GN__NONE) {
            if (!GN__GROW(s, segs, 1)) { s->bad = true; return; }
            *open = (uint32_t)s->n_segs;
            s->segs[s->n_segs++] = (gn__seg){ .device = d, .work = s->work[d] };
            s->work[d] = GN__SEGMENT_S;
            if (waits != GN__NONE && s->segs[waits].work < gn__sched_link(s, s->D, d)->latency_s) gn__sched_go_on(s, waits, *open);
        }
        s->seg_of[i] = *open;
        s->segs[*open].units++;
        s->segs[*open].work += gn__sched_work(s, i, d);
        gn__sched_bring(s, i, d, *open);
        if (s->exported[i]) *open = GN__NONE;
    }
    gn__sched_number(s);
}

/* One value crosses: each end sends and receives one thing at a time. */
static void gn__sched_cross(gn__sched *s, gn__hop *h, double ready) {
    double wire = gn__sched_wire(s, h->from, h->to, h->bytes);
    h->start = GN__MAX(ready, GN__MAX(s->out_free[h->from], s->in_free[h->to]));
    s->out_free[h->from] = s->in_free[h->to] = h->start + wire;
    h->end = h->start + wire + gn__sched_link(s, h->from, h->to)->latency_s;
    s->now.bytes += h->bytes;
}

static double gn__sched_ready(const gn__sched *s, uint32_t v) { return gn__sched_is_op(s, v) ? s->segs[s->seg_of[s->unit_of[v]]].end : 0; }

/* What the program reads, after all that runs; then the time between steps: that of the busiest device or end of a link. */
static void gn__sched_outputs(gn__sched *s) {
    for (uint32_t i = 0; i < s->p->n_outs && !s->bad; i++) {
        uint32_t v = s->p->outs[i], from = gn__sched_where(s, v);
        if (from == s->D || s->p->nodes[v].leaf == GN_LEAF_WEIGHT || gn__hop_find(s, v, s->D)) continue;
        gn__hop *h = gn__hop_add(s, v, from, s->D, GN_TRANSFER_OUTPUT, GN__NONE);
        if (!h) return;
        gn__sched_cross(s, h, gn__sched_ready(s, v));
        s->now.seconds = GN__MAX(s->now.seconds, h->end);
    }
    memset(s->out_free, 0, (s->D + 1) * sizeof *s->out_free);
    memset(s->in_free, 0, (s->D + 1) * sizeof *s->in_free);
    for (size_t i = 0; i < s->n_hops; i++) {
        const gn__hop *h = &s->hops[i];
        double wire = h->why < GN_TRANSFER__COUNT && h->why != GN_TRANSFER_STATE_MOVE ? gn__sched_wire(s, h->from, h->to, h->bytes) : 0;
        s->out_free[h->from] += wire;
        s->in_free[h->to] += wire;
    }
    for (uint32_t d = 0; d <= s->D; d++) {
        s->now.step = GN__MAX(s->now.step, GN__MAX(s->work[d], GN__MAX(s->out_free[d], s->in_free[d])));
        s->now.devices += d < s->D && s->open[d] == GN__NONE - 1;
    }
}

/* Judges the placement in dev[]: fills now, segs, hops. */
static void gn__sched_simulate(gn__sched *s, const uint32_t *order) {
    double *zero[] = { s->out_free, s->in_free, s->dev_free, s->work };
    for (size_t i = 0; i < GN__LENGTH(zero); i++) memset(zero[i], 0, (s->D + 1) * sizeof(double));
    memset(s->head, 0, s->n * sizeof *s->head);
    s->n_hops = s->n_segs = 0;
    s->once = s->spared = 0;
    memset(&s->now, 0, sizeof s->now);
    gn__sched_settle(s, order);
    gn__sched_segments(s, order);
    memset(s->work, 0, (s->D + 1) * sizeof *s->work);
    for (size_t i = 0; i < s->n_segs && !s->bad; i++) {
        gn__seg *g = &s->segs[i];
        const gn_cluster_device *d = &s->c->devices[g->device];
        double begin = GN__MAX(GN__MAX(d->queue_s, gn__sched_link(s, s->D, g->device)->latency_s), s->dev_free[g->device]);
        for (uint32_t h = g->head; h; h = s->hops[h - 1].next) {
            gn__hop *x = &s->hops[h - 1];
            if (x->why >= GN_TRANSFER__COUNT || x->why == GN_TRANSFER_STATE_MOVE) continue;
            gn__sched_cross(s, x, gn__sched_ready(s, x->node));
            begin = GN__MAX(begin, x->end);
        }
        g->start = begin;
        g->end = s->dev_free[g->device] = begin + g->work;
        s->work[g->device] += g->work;
        s->now.seconds = GN__MAX(s->now.seconds, g->end);
        s->open[g->device] = GN__NONE - 1;                        /* it is used */
    }
    gn__sched_outputs(s);
}

/* ---- memory of a placement ---- */

static bool gn__sched_on(const gn__sched *s, uint32_t v, uint32_t d) { return gn__sched_is_op(s, v) && s->dev[s->unit_of[v]] == d; }

/* base: the node whose memory a node's value lies in on its own device. keep: it is read after the last op has run, or elsewhere. */
static void gn__sched_bases(gn__sched *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t x = s->view[i] ? gn__viewed(s->p, i) : i;
        s->base[i] = s->view[i] && gn__sched_on(s, x, s->dev[s->unit_of[i]]) ? s->base[x] : i;
        s->keep[i] = 0;
        s->last[i] = GN__NONE;
    }
    for (uint32_t i = 0; i < s->p->n_outs; i++) s->keep[s->base[s->p->outs[i]]] = 1;
    for (uint32_t i = 0; i < s->p->n_updates; i++) s->keep[s->base[s->p->updates[i].node]] = 1;
    for (size_t i = 0; i < s->n_hops; i++)
        if (s->hops[i].why == GN_TRANSFER_RESULT) s->keep[s->base[s->hops[i].node]] = 1;
}

/* An append to a state is in the state's memory; constants are filled in where they are used. */
static uint64_t gn__sched_own_bytes(const gn__sched *s, uint32_t i) {
    const gn_part_node *n = &s->p->nodes[i];
    return s->view[i] || n->op == GN__OP_FULL || (n->op == GN__OP_KV_APPEND && s->set[i] != i) ? 0 : s->size[i];
}

/* Place `at` of the sequence, on device d, reads the value. */
static void gn__sched_touch(gn__sched *s, uint32_t v, uint32_t d, uint32_t at) {
    if (gn__sched_on(s, v, d)) {
        s->last[s->base[v]] = at;
        if (!s->view[s->base[v]]) return;
        v = gn__viewed(s->p, s->base[v]);                        /* a view of what came from elsewhere */
    }
    gn__hop *h = gn__hop_find(s, v, d);
    if (h) h->last = at;
}

/* seq: ops by segment, then by node. */
static void gn__sched_sequence(gn__sched *s) {
    uint32_t at = 0;
    for (size_t i = 0; i < s->n_segs; i++) s->segs[i].units = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (gn__sched_is_op(s, i)) s->segs[s->seg_of[s->unit_of[i]]].units++;
    for (size_t i = 0; i < s->n_segs; i++) {
        s->segs[i].first = at;
        at += s->segs[i].units;
        s->segs[i].units = 0;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        if (!gn__sched_is_op(s, i)) continue;
        gn__seg *g = &s->segs[s->seg_of[s->unit_of[i]]];
        s->seq[g->first + g->units++] = i;
    }
}

/* Weights and states that a device has to take in; what it holds already is no part of its free memory. */
static void gn__sched_residents(gn__sched *s) {
    memset(s->mem, 0, (s->D + 1) * sizeof *s->mem);
    s->upload = 0;
    for (size_t i = 0; i < s->n_hops; i++) {                      /* a state that moves counts with what arrives */
        if (s->hops[i].why != GN__RESIDENT) continue;
        s->mem[s->hops[i].to] += s->hops[i].bytes;
        s->upload += s->hops[i].bytes;
    }
}

static void gn__sched_grow(gn__sched *s, uint32_t d, uint64_t bytes) {
    s->live[d] += bytes;
    s->mem[d] = GN__MAX(s->mem[d], s->live[d]);
}

/* die: per place, 1 + the first value (then hop, from n on) that is read there for the last time. */
static void gn__sched_die(gn__sched *s, uint32_t at, uint32_t what) {
    s->die_next[what] = s->die[at];
    s->die[at] = what + 1;
}

/* Bytes on each device at their most, in mem[]; false when one has less. */
static bool gn__sched_fits(gn__sched *s) {
    uint32_t ops = 0;
    if (s->bad) return false;
    gn__sched_sequence(s);
    gn__sched_bases(s);
    gn__sched_residents(s);
    if (s->bad || !gn__grow_raw((void **)(void *)&s->die_next, &s->cap_die, s->n + s->n_hops + 1, sizeof *s->die_next)) { s->bad = true; return false; }
    memcpy(s->live, s->mem, (s->D + 1) * sizeof *s->live);
    memcpy(s->resident, s->mem, (s->D + 1) * sizeof *s->resident);
    memset(s->die, 0, s->n * sizeof *s->die);
    memset(s->unit_live, 0, s->U * sizeof *s->unit_live);
    for (size_t i = 0; i < s->n_segs; i++)
        for (uint32_t k = 0; k < s->segs[i].units; k++, ops++) {
            const gn_part_node *n = &s->p->nodes[s->seq[ops]];
            for (uint32_t j = 0; j < n->n_ins; j++) gn__sched_touch(s, s->p->ins[n->ins + j], s->segs[i].device, ops);
        }
    for (size_t i = 0; i < s->n_hops; i++)
        if (s->hops[i].last != GN__NONE && (s->hops[i].why == GN_TRANSFER_RESULT || s->hops[i].why == GN_TRANSFER_VALUE || s->hops[i].why == GN_TRANSFER_STATE_READ)) gn__sched_die(s, s->hops[i].last, s->n + (uint32_t)i);
    for (uint32_t at = 0; at < ops; at++) {
        uint32_t v = s->seq[at];
        if (!s->keep[v] && s->base[v] == v) gn__sched_die(s, s->last[v] == GN__NONE ? at : s->last[v], v);
    }
    for (size_t i = 0; i < s->n_segs; i++) {
        const gn__seg *g = &s->segs[i];
        for (uint32_t h = g->head; h; h = s->hops[h - 1].next) gn__sched_grow(s, g->device, s->hops[h - 1].bytes);
        for (uint32_t at = g->first; at < g->first + g->units; at++) {
            gn__sched_grow(s, g->device, gn__sched_own_bytes(s, s->seq[at]));
            uint64_t *most = &s->unit_live[s->unit_of[s->seq[at]]];
            *most = GN__MAX(*most, s->live[g->device]);
            for (uint32_t x = s->die[at]; x; x = s->die_next[x - 1]) s->live[g->device] -= x > s->n ? s->hops[x - 1 - s->n].bytes : gn__sched_own_bytes(s, x - 1);
        }
    }
    for (uint32_t d = 0; d < s->D; d++)
        if (s->mem[d] > s->limit[d]) return false;
    return true;
}

/* ---- candidates ---- */

static double gn__sched_objective(const gn__sched *s, const gn__verdict *v, int which) {
    double bytes = (double)v->bytes + (double)v->again / GN__UPLOAD_STEPS, time = (s->policy == GN_MOST_THROUGHPUT ? v->step : v->seconds) + v->again_s / GN__UPLOAD_STEPS;
    return s->policy == GN_LEAST_BYTES ? which ? v->seconds : bytes : which ? s->policy == GN_MOST_THROUGHPUT ? v->seconds : bytes : time;
}

static bool gn__sched_better(const gn__sched *s, const gn__verdict *a, const gn__verdict *b) {
    double x = gn__sched_objective(s, a, 0), y = gn__sched_objective(s, b, 0);
    return x < y || (x == y && gn__sched_objective(s, a, 1) < gn__sched_objective(s, b, 1));
}

static void gn__sched_keep(gn__sched *s, bool ranked) {
    s->have = true;
    s->top = s->now;
    s->best_ranked = ranked;
    memcpy(s->best, s->dev, s->U * sizeof *s->best);
}

/* Judges dev[] and keeps it when it is the best so far that fits. */
static bool gn__sched_consider(gn__sched *s, bool ranked) {
    gn__sched_simulate(s, ranked ? s->rank_order : s->order);
    bool split = s->now.devices > 1, better = !s->have || gn__sched_better(s, &s->now, &s->top);
    bool better_split = split && (!s->have_split || gn__sched_better(s, &s->now, &s->split));
    if (s->bad || (!better && !better_split) || (s->limited && !gn__sched_fits(s))) return false;
    if (better_split) { s->split = s->now; s->have_split = true; }
    if (better) gn__sched_keep(s, ranked);
    return better;
}

static int gn__rated_compare(const void *a, const void *b) {
    const gn__rated *x = (const gn__rated *)a, *y = (const gn__rated *)b;
    return x->rank < y->rank ? -1 : x->rank > y->rank ? 1 : x->at < y->at ? -1 : x->at > y->at;
}

/* list: devices by a first estimate, those that something is bound to before the others. */
static void gn__sched_list(gn__sched *s) {
    gn__unit all;
    memset(&all, 0, sizeof all);
    for (uint32_t d = 0; d < s->D; d++) s->open[d] = 0;
    for (uint32_t i = 0; i < s->U; i++) {
        const gn__unit *u = &s->units[i];
        for (int k = 0; k < GN_RATE__COUNT; k++) all.flops[k] += u->flops[k];
        all.bytes += u->bytes;
        all.kernels += u->kernels;
        if (u->pin != GN_UNPLACED) s->open[u->pin] = 1;
    }
    for (uint32_t d = 0; d < s->D; d++) {
        const gn_cluster_device *x = &s->c->devices[d];
        double t = gn__sched_cost(x, all.flops, all.bytes, all.kernels) + x->queue_s + 2 * gn__sched_link(s, s->D, d)->latency_s;
        s->rated[d] = (gn__rated){ s->open[d] ? t - 1e30 : t, d };
    }
    qsort(s->rated, s->D, sizeof *s->rated, gn__rated_compare);
    for (uint32_t d = 0; d < s->D; d++) s->list[d] = s->rated[d].at;
}

/* Each device alone: the best one that fits. */
static void gn__sched_singles(gn__sched *s) {
    uint32_t most = GN__MAX(8u, 2u * GN__WORK / (s->U + 1));
    for (uint32_t k = 0; k < GN__MIN(s->D, most) && !s->bad; k++) {
        uint32_t d = s->list[k], i = 0;
        while (i < s->U && gn__sched_can(s, i, d)) i++;
        if (i < s->U) continue;
        for (i = 0; i < s->U; i++) s->dev[i] = d;
        if (!gn__sched_consider(s, false)) continue;
        s->single = s->top;
        s->single_dev = d;
        s->have_single = true;
    }
}

/* A list schedule: units by the longest way from them to the end, each to the device on which it ends first. */
static void gn__sched_ranks(gn__sched *s) {
    uint32_t a = s->list[0], b = s->list[s->D > 1 ? 1 : 0];
    double *rank = s->finish;
    memset(rank, 0, s->U * sizeof *rank);
    for (uint32_t i = s->U; i-- > 0;) {
        const gn__unit *u = &s->units[i];
        rank[i] += gn__sched_work(s, i, a);
        s->rated[i] = (gn__rated){ -rank[i], i };
        for (uint32_t k = 0; k < u->n_in; k++) {
            uint32_t v = s->ins[u->in + k];
            if (!gn__sched_is_op(s, v)) continue;
            double over = a == b || !gn__sched_made(s, v) ? 0 : gn__sched_wire(s, a, b, s->size[v]) + gn__sched_link(s, a, b)->latency_s;
            rank[s->unit_of[v]] = GN__MAX(rank[s->unit_of[v]], rank[i] + over);
        }
    }
    qsort(s->rated, s->U, sizeof *s->rated, gn__rated_compare);
    for (uint32_t i = 0; i < s->U; i++) s->rank_order[i] = s->rated[i].at;
}

typedef struct gn__offer { uint32_t device; double end; uint64_t bytes; bool over; } gn__offer;

/* When the unit would end on d, and the bytes that cross for it. */
static gn__offer gn__sched_offer(const gn__sched *s, uint32_t unit, uint32_t d, uint64_t reserve) {
    const gn__unit *u = &s->units[unit];
    double begin = GN__MAX(s->dev_free[d], GN__MAX(s->c->devices[d].queue_s, gn__sched_link(s, s->D, d)->latency_s));
    uint64_t bytes = 0, more = 0;
    for (uint32_t k = 0; k < u->n_in + u->n_slots; k++) {
        uint32_t v = k < u->n_in ? s->ins[u->in + k] : s->slots[u->slot + k - u->n_in], from = gn__sched_where(s, v);
        const gn__hop *h = gn__hop_find(s, v, d);
        if (k >= u->n_in && !h && !gn__sched_home(s, v, d)) more += s->size[v];
        if (k >= u->n_in && (s->p->nodes[v].leaf == GN_LEAF_WEIGHT || from == GN_UNPLACED)) continue;
        if (from == d || (s->p->nodes[v].leaf == GN_LEAF_VALUE && gn__sched_home(s, v, d))) continue;
        double at = gn__sched_is_op(s, v) ? s->finish[s->unit_of[v]] : 0;
        if (!h) bytes += s->size[v];
        begin = GN__MAX(begin, h ? h->end : at + gn__sched_wire(s, from, d, s->size[v]) + gn__sched_link(s, from, d)->latency_s);
    }
    uint64_t full = s->mem[d] + more;
    bool over = s->limit[d] != UINT64_MAX && more > 0 && (full > s->limit[d] || s->limit[d] - full < reserve);
    return (gn__offer){ d, begin + gn__sched_work(s, unit, d), bytes, over };
}

static bool gn__sched_offer_better(const gn__sched *s, const gn__offer *a, const gn__offer *b) {
    if (a->over != b->over) return b->over;
    if (s->policy == GN_LEAST_BYTES && a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->end < b->end;
}

static void gn__sched_take_offer(gn__sched *s, uint32_t unit, const gn__offer *o) {
    const gn__unit *u = &s->units[unit];
    s->dev[unit] = o->device;
    s->finish[unit] = s->dev_free[o->device] = o->end;
    if (u->set != GN__NONE && s->set_dev[u->set] == GN_UNPLACED) s->set_dev[u->set] = o->device;
    for (uint32_t k = 0; k < u->n_in + u->n_slots && !s->bad; k++) {
        bool slot = k >= u->n_in;
        uint32_t v = slot ? s->slots[u->slot + k - u->n_in] : s->ins[u->in + k], set = gn__set_find(s, v);
        if (s->p->nodes[v].leaf == GN_LEAF_STATE && s->set_dev[set] == GN_UNPLACED) s->set_dev[set] = o->device;
        if (gn__hop_find(s, v, o->device) || gn__sched_home(s, v, o->device) || (!slot && gn__sched_where(s, v) == o->device)) continue;
        gn__hop *h = gn__hop_add(s, v, s->D, o->device, GN__RESIDENT, GN__NONE);
        if (h) h->end = o->end;
        if (slot) s->mem[o->device] += s->size[v];
    }
}

static void gn__sched_greedy(gn__sched *s, uint64_t reserve) {
    uint32_t width = GN__MIN(s->D, GN__MAX(4u, GN__WORK / (s->U + s->n_ins + 1)));
    memset(s->dev_free, 0, (s->D + 1) * sizeof *s->dev_free);
    memset(s->mem, 0, (s->D + 1) * sizeof *s->mem);
    memset(s->head, 0, s->n * sizeof *s->head);
    s->n_hops = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->p->nodes[i].leaf == GN_LEAF_STATE) s->set_dev[i] = s->set_pin[i];
    for (uint32_t k = 0; k < s->U && !s->bad; k++) {
        uint32_t i = s->rank_order[k], pin = s->units[i].set != GN__NONE ? s->set_dev[s->units[i].set] : s->units[i].pin;
        gn__offer best = { GN_UNPLACED, 0, 0, false };
        if (pin != GN_UNPLACED) best = gn__sched_offer(s, i, pin, reserve);
        for (uint32_t w = 0; w < s->D && pin == GN_UNPLACED && (w < width || best.device == GN_UNPLACED); w++) {
            if (!gn__sched_can(s, i, s->list[w])) continue;
            gn__offer o = gn__sched_offer(s, i, s->list[w], reserve);
            if (best.device == GN_UNPLACED || gn__sched_offer_better(s, &o, &best)) best = o;
        }
        gn__sched_take_offer(s, i, &best);
    }
}

/* ---- one run of units after another over the devices ---- */

typedef struct gn__cuts {
    gn__sched *s;
    uint32_t K;                    /* devices, in the order of list[] */
    double *cut;                   /* per unit: bytes that cross when a run begins with it */
    double *cost;                  /* least cost of the first i units on the devices so far: two rows */
    uint32_t *from;                /* K rows: 1 + first unit of the run that ends before i; 0: the device is not used */
    uint32_t *queue, *peak;        /* monotone queues over units */
    double *key;
    uint32_t *uses;                /* per slot node, in the window */
    double bound;                  /* longest run in seconds, 0: none */
} gn__cuts;

/* The units [low, high) that device d could run in one go, as high rises. */
typedef struct gn__window { uint32_t d, low, peak_head, peak_tail; uint64_t resident; double work; } gn__window;

static void gn__window_drop(gn__cuts *k, gn__window *w, uint32_t high) {
    gn__sched *s = k->s;
    const gn__unit *u = &s->units[w->low];
    for (uint32_t i = 0; i < u->n_slots && w->low < high; i++) {
        uint32_t v = s->slots[u->slot + i];
        if (--k->uses[v] == 0 && !gn__sched_home(s, v, w->d)) w->resident -= s->size[v];
    }
    if (w->low < high) w->work -= gn__sched_work(s, w->low, w->d);
    w->low++;
    while (w->peak_head < w->peak_tail && k->peak[w->peak_head] < w->low) w->peak_head++;
}

static void gn__window_add(gn__cuts *k, gn__window *w, uint32_t i) {
    gn__sched *s = k->s;
    const gn__unit *u = &s->units[i];
    for (uint32_t j = 0; j < u->n_slots; j++) {
        uint32_t v = s->slots[u->slot + j];
        if (k->uses[v]++ == 0 && !gn__sched_home(s, v, w->d)) w->resident += s->size[v];
    }
    w->work += gn__sched_work(s, i, w->d);
    while (w->peak_head < w->peak_tail && s->unit_act[k->peak[w->peak_tail - 1]] <= s->unit_act[i]) w->peak_tail--;
    k->peak[w->peak_tail++] = i;
    bool can = gn__sched_can(s, i, w->d);
    uint64_t limit = s->limit[w->d];
    while (w->low <= i && (!can || (k->bound > 0 && w->work > k->bound) || w->resident > limit || s->unit_act[k->peak[w->peak_head]] > limit - w->resident)) gn__window_drop(k, w, i + 1);
}

static double gn__cuts_cross(const gn__cuts *k, uint32_t j, uint32_t i) {
    const gn__sched *s = k->s;
    if (i == 0 || j == 0) return i ? 1e30 : 0;
    const gn_cluster_link *l = gn__sched_link(s, s->list[j - 1], s->list[j]);
    double t = l->latency_s + gn__sched_share(k->cut[i], l->bytes_per_s);
    if (k->bound > 0 && t > k->bound) return 1e30;
    return s->policy == GN_LEAST_BYTES ? k->cut[i] : t;
}

/* Device j after the devices before it: for each number of units the cheapest run that ends there. */
static void gn__cuts_device(gn__cuts *k, uint32_t j, const double *before, double *after) {
    gn__sched *s = k->s;
    uint32_t *from = k->from + (size_t)j * (s->U + 1), head = 0, tail = 0;
    gn__window w = { .d = s->list[j] };
    double weight = s->policy == GN_LEAST_LATENCY ? 1 : s->policy == GN_LEAST_BYTES ? 0 : 1e-3, total = 0;
    memset(k->uses, 0, s->n * sizeof *k->uses);
    for (uint32_t i = 0; i <= s->U; i++) {
        after[i] = before[i];
        from[i] = 0;
        if (i > 0) {
            gn__window_add(k, &w, i - 1);
            total += weight * gn__sched_work(s, i - 1, w.d);
            while (head < tail && k->queue[head] < w.low) head++;
            if (head < tail && k->key[k->queue[head]] + total < after[i]) { after[i] = k->key[k->queue[head]] + total; from[i] = 1 + k->queue[head]; }
        }
        k->key[i] = before[i] + gn__cuts_cross(k, j, i) - total;
        while (head < tail && k->key[k->queue[tail - 1]] >= k->key[i]) tail--;
        k->queue[tail++] = i;
    }
}

/* Places the units; false when the devices cannot take them in this order. */
static bool gn__cuts_place(gn__cuts *k, double bound) {
    gn__sched *s = k->s;
    double *a = k->cost, *b = k->cost + s->U + 1;
    k->bound = bound;
    for (uint32_t i = 0; i <= s->U; i++) a[i] = i ? 1e30 : 0;
    for (uint32_t j = 0; j < k->K; j++) {
        double *t = a;
        gn__cuts_device(k, j, a, b);
        a = b;
        b = t;
    }
    if (a[s->U] >= 1e29) return false;
    for (uint32_t j = k->K, end = s->U; j-- > 0;) {
        uint32_t from = k->from[(size_t)j * (s->U + 1) + end];
        for (uint32_t i = from; from && i <= end; i++) s->dev[i - 1] = s->list[j];
        if (from) end = from - 1;
    }
    return true;
}

/* Bytes that would cross if all units from i on were elsewhere than those before. */
static void gn__cuts_bytes(gn__cuts *k) {
    gn__sched *s = k->s;
    for (uint32_t i = 0; i < s->U; i++)
        for (uint32_t j = 0; j < s->units[i].n_in; j++) s->stamp[s->ins[s->units[i].in + j]] = i;       /* its last reader */
    for (uint32_t v = 0; v < s->n; v++) {
        if (!gn__sched_made(s, v) || s->stamp[v] <= s->unit_of[v]) continue;
        k->cut[s->unit_of[v] + 1] += (double)s->size[v];
        k->cut[s->stamp[v] + 1] -= (double)s->size[v];
    }
    for (uint32_t i = 1; i <= s->U; i++) k->cut[i] += k->cut[i - 1];
}

static void gn__sched_pipeline(gn__sched *s) {
    gn__cuts k = { .s = s, .K = GN__MIN(s->D, GN__MAX(2u, 2u * GN__WORK / (s->U + 1))) };
    size_t n = s->U + 2u;
    k.cut = (double *)gn__sched_take(s, n, sizeof(double));
    k.key = (double *)gn__sched_take(s, n, sizeof(double));
    k.cost = (double *)gn__sched_take(s, 2 * n, sizeof(double));
    k.queue = (uint32_t *)gn__sched_take(s, n, sizeof(uint32_t));
    k.peak = (uint32_t *)gn__sched_take(s, n, sizeof(uint32_t));
    k.uses = (uint32_t *)gn__sched_take(s, s->n, sizeof(uint32_t));
    k.from = (uint32_t *)gn__sched_take(s, k.K * n, sizeof(uint32_t));
    if (s->bad) return;
    memset(s->stamp, 0, s->n * sizeof *s->stamp);
    gn__cuts_bytes(&k);
    double low = 0, high = 0;
    for (uint32_t i = 0; i < s->U; i++) high += gn__sched_work(s, i, s->list[0]);
    bool ok = gn__cuts_place(&k, 0);
    if (ok) gn__sched_consider(s, false);
    if (s->policy != GN_MOST_THROUGHPUT || !ok) return;
    for (int i = 0; i < 24 && low < high * 0.99 && (i < 6 || (size_t)i * k.K * n < 16u * GN__WORK); i++) {
        double mid = (low + high) / 2;
        if (!gn__cuts_place(&k, mid)) { low = mid; continue; }
        high = mid;
        gn__sched_consider(s, false);
    }
    if (!s->have || !gn__cuts_place(&k, 1.04 * high)) return;   /* nearly as soon, and less that crosses */
    gn__sched_simulate(s, s->order);
    if (s->now.step > 1.05 * s->top.step || s->now.bytes >= s->top.bytes || (s->limited && !gn__sched_fits(s))) return;
    gn__sched_keep(s, false);
}

/* ---- whole paths move ---- */

/* path[]: units in chains, the longest chain first, each the longest way through what is left; the rest goes with what it reads or feeds. */
static uint32_t gn__sched_paths(gn__sched *s) {
    uint32_t n_paths = 0, *before = s->seg_of;
    double total = 0, *end = s->finish;
    for (uint32_t i = 0; i < s->U; i++) { s->path[i] = GN__NONE; total += gn__sched_work(s, i, s->list[0]); }
    for (uint32_t most = GN__MIN((uint32_t)GN__MAX_PATHS, GN__MAX(4u, GN__WORK / (s->U + s->n_ins + 1))); n_paths < most; n_paths++) {
        uint32_t at = GN__NONE;
        for (uint32_t i = 0; i < s->U; i++) {
            const gn__unit *u = &s->units[i];
            double longest = 0;
            before[i] = GN__NONE;
            for (uint32_t k = 0; k < u->n_in && s->path[i] == GN__NONE; k++) {
                uint32_t v = s->ins[u->in + k], w = gn__sched_made(s, v) ? s->unit_of[v] : GN__NONE;
                if (w == GN__NONE || s->path[w] != GN__NONE || (before[i] != GN__NONE && end[w] <= longest)) continue;
                longest = end[w];
                before[i] = w;
            }
            end[i] = longest + gn__sched_work(s, i, s->list[0]);
            if (s->path[i] == GN__NONE && (at == GN__NONE || end[i] > end[at])) at = i;
        }
        if (at == GN__NONE || end[at] < total * 0.005) break;
        for (; at != GN__NONE; at = before[at]) s->path[at] = n_paths;
    }
    for (uint32_t i = s->U; i-- > 0;)                             /* what feeds a path goes with it */
        for (uint32_t k = 0; k < s->units[i].n_in; k++) {
            uint32_t v = s->ins[s->units[i].in + k];
            if (gn__sched_made(s, v) && s->path[s->unit_of[v]] == GN__NONE) s->path[s->unit_of[v]] = s->path[i];
        }
    return n_paths;
}

/* owner[p]: the path that p begins and ends in, like a branch inside a layer; else p itself. */
static void gn__sched_owners(gn__sched *s, uint32_t n_paths, uint32_t *owner) {
    uint32_t into[GN__MAX_PATHS + 1], from[GN__MAX_PATHS + 1];     /* the one neighbour before and behind; GN__NONE: none, n_paths: several */
    for (uint32_t p = 0; p <= n_paths; p++) into[p] = from[p] = GN__NONE;
    for (uint32_t i = 0; i < s->U; i++)
        for (uint32_t k = 0; k < s->units[i].n_in; k++) {
            uint32_t v = s->ins[s->units[i].in + k], a = gn__sched_made(s, v) ? s->path[s->unit_of[v]] : GN__NONE, b = s->path[i];
            if (a == b || a >= n_paths || b >= n_paths) continue;
            into[b] = into[b] == GN__NONE || into[b] == a ? a : n_paths;
            from[a] = from[a] == GN__NONE || from[a] == b ? b : n_paths;
        }
    for (uint32_t p = 0; p < n_paths; p++) {
        owner[p] = into[p] == from[p] && into[p] < p ? owner[into[p]] : p;
    }
}

/* dev: the best placement with path p on device d; with_owned: and the paths that it owns. False when nothing moves. */
static bool gn__sched_move(gn__sched *s, uint32_t p, uint32_t d, bool with_owned, const uint32_t *owner, uint32_t n_paths) {
    uint32_t moved = 0, owned = 0;
    memcpy(s->dev, s->best, s->U * sizeof *s->dev);
    for (uint32_t i = 0; i < s->U; i++) {
        uint32_t q = s->path[i];
        bool own = q < n_paths && q != p && owner[q] == p;
        if (!(q == p || (with_owned && own)) || s->dev[i] == d || !gn__sched_can(s, i, d)) continue;
        s->dev[i] = d;
        moved++;
        owned += own;
    }
    return moved > 0 && (!with_owned || owned > 0);
}

/* From the best placement so far: each path, with what it owns and alone, to each of a few devices, kept when it is better. */
static void gn__sched_moves(gn__sched *s) {
    uint32_t owner[GN__MAX_PATHS + 1], n_paths = gn__sched_paths(s), tries = GN__MIN(256u, GN__MAX(8u, GN__WORK / 8 / (s->U + s->n_ins + 1)));
    gn__sched_owners(s, n_paths, owner);
    for (uint32_t p = 0; p < n_paths; p++)
        for (uint32_t w = 0; w < 2 * GN__MIN(s->D, (uint32_t)GN__MOVE_DEVICES) && tries > 0 && !s->bad; w++) {
            if (!gn__sched_move(s, p, s->list[w / 2], w % 2 == 0, owner, n_paths)) continue;
            tries--;
            gn__sched_consider(s, s->best_ranked);
        }
}

/* ---- the choice ---- */

static gn_result gn__sched_nowhere(const gn__sched *s, uint64_t slots, uint64_t act) {
    uint64_t all = 0;
    uint32_t most = 0;
    for (uint32_t d = 0; d < s->D; d++) {
        if (s->limit[d] > s->limit[most]) most = d;
        all = s->limit[d] > UINT64_MAX - all ? UINT64_MAX : all + s->limit[d];
    }
    return gn_fail(s->f, GN_OUT_OF_MEMORY, "no placement fits: the graph needs %.1f MB of weights and states and about %.1f MB of values at once; '%s' has %.1f MB free, all %u devices together %.1f MB",
                   (double)slots / 1e6, (double)act / 1e6, s->c->devices[most].name, (double)s->limit[most] / 1e6, s->D, (double)all / 1e6);
}

/* unit_act: bytes of values that live while a unit runs, when all run in order on one device. Returns the most. */
static uint64_t gn__sched_measure(gn__sched *s, uint64_t *out_slots) {
    uint64_t act = 0;
    for (uint32_t i = 0; i < s->U; i++) s->dev[i] = s->list[0];
    gn__sched_simulate(s, s->order);
    gn__sched_fits(s);
    for (uint32_t i = 0; i < s->U; i++) {
        s->unit_act[i] = s->unit_live[i] - GN__MIN(s->unit_live[i], s->resident[s->dev[i]]);
        act = GN__MAX(act, s->unit_act[i]);
    }
    *out_slots = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->p->nodes[i].leaf == GN_LEAF_WEIGHT || s->p->nodes[i].leaf == GN_LEAF_STATE) *out_slots += s->size[i];
    return act;
}

/* A split has to be better than the best device alone by more than the model's error. */
static bool gn__sched_loses(const gn__sched *s) {
    if (!s->have_single || s->top.devices < 2) return false;
    int time = s->policy == GN_LEAST_BYTES;
    if (time && gn__sched_objective(s, &s->top, 0) != gn__sched_objective(s, &s->single, 0)) return gn__sched_objective(s, &s->top, 0) > gn__sched_objective(s, &s->single, 0);
    return !(gn__sched_objective(s, &s->top, time) < GN__GAIN * gn__sched_objective(s, &s->single, time));
}

static gn_result gn__sched_choose(gn__sched *s) {
    uint64_t slots = 0, act = 0;
    gn__sched_list(s);
    gn__sched_singles(s);
    if (s->D > 1 && s->U && !s->bad) {
        act = gn__sched_measure(s, &slots);
        gn__sched_ranks(s);
        if (s->have) gn__sched_moves(s);
        for (int i = 0; i < 2 && !s->bad; i++) {                  /* with and without room for values that live */
            gn__sched_greedy(s, i ? 0 : act);
            memcpy(s->path, s->dev, s->U * sizeof *s->path);
            gn__sched_consider(s, true);
            memcpy(s->dev, s->path, s->U * sizeof *s->path);
            gn__sched_consider(s, false);
            if (!s->limited) break;
        }
        gn__sched_pipeline(s);
        if (s->have) gn__sched_moves(s);
    } else if (!s->have && !s->bad) act = gn__sched_measure(s, &slots);
    if (s->bad) return gn_fail(s->f, GN_OUT_OF_MEMORY, "no memory to schedule %u nodes", s->n);
    if (!s->have) return gn__sched_nowhere(s, slots, act);
    if (gn__sched_loses(s))
        for (uint32_t i = 0; i < s->U; i++) s->best[i] = s->single_dev;
    s->best_ranked &= s->top.devices > 1 && !gn__sched_loses(s);
    memcpy(s->dev, s->best, s->U * sizeof *s->dev);
    gn__sched_simulate(s, s->best_ranked ? s->rank_order : s->order);
    gn__sched_fits(s);
    return s->bad ? gn_fail(s->f, GN_OUT_OF_MEMORY, "no memory to schedule %u nodes", s->n) : GN_OK;
}

/* ---- the result ---- */

static uint8_t gn__sched_why(const gn__sched *s, uint32_t unit) {
    const gn__unit *u = &s->units[unit];
    uint32_t d = s->dev[unit], could = 0;
    if (s->D == 1) return GN_PLACED_ONLY;
    if (u->said == d) return GN_PLACED_SAID;
    if (u->pin == d) return GN_PLACED_HOME;
    for (uint32_t i = 0; i < s->D && could < 2; i++) could += !gn__sched_lacks(s, unit, i);
    if (could == 1) return GN_PLACED_OPS;
    if (s->now.devices < 2) return GN_PLACED_BEST;
    if (!s->have_single && s->limited) return GN_PLACED_MEMORY;
    if (s->have_single && d == s->single_dev) return GN_PLACED_BEST;
    return s->policy == GN_LEAST_BYTES ? GN_PLACED_BYTES : s->policy == GN_MOST_THROUGHPUT ? GN_PLACED_STAGE : GN_PLACED_PARALLEL;
}

static int gn__transfer_compare(const void *a, const void *b) {
    const gn_transfer *x = (const gn_transfer *)a, *y = (const gn_transfer *)b;
    if (x->consumer != y->consumer) return x->consumer < y->consumer ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static void gn__sched_transfers(const gn__sched *s, gn_schedule *o) {
    for (size_t i = 0; i < s->n_hops; i++) {
        const gn__hop *h = &s->hops[i];
        if (h->why >= GN_TRANSFER__COUNT) continue;
        uint32_t producer = gn__sched_is_op(s, h->node) ? s->seg_of[s->unit_of[h->node]] : GN__NONE;
        o->transfers[o->n_transfers++] = (gn_transfer){ h->node, h->from, h->to, producer, h->consumer, h->bytes, h->start, h->end, h->why };
        if (h->why == GN_TRANSFER_STATE_MOVE) o->move_bytes += h->bytes;
    }
    qsort(o->transfers, o->n_transfers, sizeof *o->transfers, gn__transfer_compare);
}

static int gn__node_compare(const void *a, const void *b) { return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : *(const uint32_t *)a > *(const uint32_t *)b; }

/* A segment's ops, and those that it computes again, into out (NULL: counted alone). Returns how many. */
static uint32_t gn__sched_segment_nodes(gn__sched *s, uint32_t seg, uint32_t *out) {
    const gn__seg *g = &s->segs[seg];
    uint32_t n = g->units, nodes[2 * GN__RECOMPUTE_MAX], leaves[2 * GN__RECOMPUTE_MAX], n_leaves;
    for (uint32_t i = 0; i < n && out; i++) out[i] = s->seq[g->first + i];
    for (uint32_t h = g->head; h; h = s->hops[h - 1].next) {
        const gn__hop *x = &s->hops[h - 1];
        uint32_t more = x->why == GN__RECOMPUTED ? gn__sched_closure(s, x->node, g->device, nodes, leaves, &n_leaves) : 0;
        for (uint32_t i = 0; i < more; i++) {
            if (s->stamp[nodes[i]] == seg + 1) continue;
            if (out) out[n] = nodes[i];
            s->stamp[nodes[i]] = seg + 1;
            n++;
        }
    }
    if (out && n > g->units) qsort(out, n, sizeof *out, gn__node_compare);
    return n;
}

static void gn__sched_devices(const gn__sched *s, gn_schedule *o) {
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t at = gn__sched_where(s, i);
        o->device[i] = at < s->D ? at : GN_UNPLACED;
    }
    for (uint32_t i = 0; i < s->U; i++) {
        const gn__unit *u = &s->units[i];
        for (uint32_t k = 0; k < u->n_in + u->n_slots; k++) {
            uint32_t v = k < u->n_in ? s->ins[u->in + k] : s->slots[u->slot + k - u->n_in];
            if (o->device[v] == GN_UNPLACED) o->device[v] = s->dev[i];
            if (k < u->n_in || s->p->nodes[v].leaf == GN_LEAF_NONE) continue;
            gn__hop *h = gn__hop_find(s, v, s->dev[i]);
            o->avoided[s->p->nodes[v].leaf == GN_LEAF_WEIGHT ? GN_AVOIDED_WEIGHTS : GN_AVOIDED_STATES] += h && h->why != GN__RESIDENT ? 0 : s->size[v];
        }
        o->why[u->group] = gn__sched_why(s, i);
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (o->device[i] == GN_UNPLACED) o->device[i] = 0;
}

static void gn__sched_numbers(const gn__sched *s, gn_schedule *o) {
    o->seconds = s->now.seconds;
    o->step_seconds = s->now.step;
    o->best_single = s->have_single ? s->single_dev : GN_UNPLACED;
    o->best_single_seconds = s->have_single ? s->single.seconds : 0;
    o->best_single_step_seconds = s->have_single ? s->single.step : 0;
    o->refused = s->now.devices < 2 && s->have_single && s->have_split;
    o->refused_seconds = o->refused ? s->split.seconds : 0;
    o->bytes = s->now.bytes;
    o->upload_bytes = s->upload;
    o->overruled = s->overruled;
    o->avoided[GN_AVOIDED_ONCE] = s->once;
    o->avoided[GN_AVOIDED_RECOMPUTE] = s->spared;
    for (uint32_t d = 0; d < s->D; d++) o->memory[d] = s->mem[d];
}

static gn_result gn__sched_fill(gn__sched *s, gn_schedule *o) {
    uint32_t n = 0, ops = 0;
    memset(s->stamp, 0, s->n * sizeof *s->stamp);
    for (uint32_t i = 0; i < s->n_segs; i++) n += gn__sched_segment_nodes(s, i, NULL);
    o->n_nodes = s->n;
    o->n_devices = s->D;
    o->n_groups = s->m->n_groups;
    o->device = (uint32_t *)gn__alloc_zero((s->n + 1) * sizeof *o->device);
    o->nodes = (uint32_t *)gn__alloc_zero((n + 1u) * sizeof *o->nodes);
    o->segments = (gn_segment *)gn__alloc_zero((s->n_segs + 1) * sizeof *o->segments);
    o->transfers = (gn_transfer *)gn__alloc_zero((s->n_hops + 1) * sizeof *o->transfers);
    o->why = (uint8_t *)gn__alloc_zero(s->m->n_groups + 1u);
    o->memory = (uint64_t *)gn__alloc_zero((s->D + 1) * sizeof *o->memory);
    if (!o->device || !o->nodes || !o->segments || !o->transfers || !o->why || !o->memory) return gn_fail(s->f, GN_OUT_OF_MEMORY, "no memory for a schedule of %u nodes", s->n);
    memset(s->stamp, 0, s->n * sizeof *s->stamp);
    for (uint32_t i = 0, at = 0; i < s->n_segs; i++) {
        uint32_t more = gn__sched_segment_nodes(s, i, o->nodes + at);
        o->segments[o->n_segments++] = (gn_segment){ s->segs[i].device, at, more, s->segs[i].start, s->segs[i].end };
        at += more;
        ops += s->segs[i].units;
    }
    o->recomputed = n - ops;
    gn__sched_transfers(s, o);
    gn__sched_devices(s, o);
    gn__sched_numbers(s, o);
    return GN_OK;
}

/* Ends with gn__sched_deinit, whatever it returns. */
static gn_result gn__sched_begin(gn__sched *s, const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy, const uint32_t *homes, gn_fault *f) {
    memset(s, 0, sizeof *s);
    s->p = p;
    s->m = m;
    s->c = c;
    s->homes = homes;
    s->policy = policy;
    s->f = f;
    s->n = p->n_nodes;
    s->D = c->n_devices;
    return gn__sched_prepare(s);
}

static gn_result gn__schedule_make(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy, const uint32_t *homes, gn_schedule *out, gn_fault *f) {
    gn__sched s;
    memset(out, 0, sizeof *out);
    if (!c || !c->n_devices || !c->devices || !c->links) return gn_fail(f, GN_BAD_ARGUMENT, "a cluster without devices or links");
    if ((int)policy < 0 || policy >= GN_POLICY__COUNT) return gn_fail(f, GN_BAD_ARGUMENT, "there is no policy %d", (int)policy);
    gn_result r = gn__sched_begin(&s, p, m, c, policy, homes, f);
    if (r == GN_OK) r = gn__sched_choose(&s);
    if (r == GN_OK) r = gn__sched_fill(&s, out);
    if (r != GN_OK) gn__schedule_deinit(out);
    gn__sched_deinit(&s);
    return r;
}

/* What the model says of a placement that was made for other costs, or other homes of states. device: per node. */
typedef struct gn__forecast { double seconds, step_seconds; uint64_t bytes; } gn__forecast;

static gn_result gn__schedule_judge(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy, const uint32_t *homes, const uint32_t *device, gn__forecast *out, gn_fault *f) {
    gn__sched s;
    gn_result r = gn__sched_begin(&s, p, m, c, policy, homes, f);
    if (r == GN_OK) {
        gn__sched_list(&s);
        gn__sched_ranks(&s);
        for (int ranked = 0; ranked < 2 && !s.bad; ranked++) {
            for (uint32_t i = 0; i < s.U; i++) s.dev[i] = device[s.unit_nodes[s.units[i].first]];
            gn__sched_simulate(&s, ranked ? s.rank_order : s.order);
            if (!ranked || gn__sched_better(&s, &s.now, &s.top)) s.top = s.now;
        }
        *out = (gn__forecast){ s.top.seconds, s.top.step, s.top.bytes };
        if (s.bad) r = gn_fail(f, GN_OUT_OF_MEMORY, "no memory to judge a placement of %u nodes", s.n);
    }
    gn__sched_deinit(&s);
    return r;
}

/* ---- explanation: a schedule in words and as a picture ---- */

typedef struct gn__item {          /* ops of one group in one segment */
    uint32_t group, seg, n, last;  /* last: its last op */
    bool again;                    /* computed again here */
    double flops[GN_RATE__COUNT], bytes, seconds;
    uint32_t kernels;
    uint64_t same;                 /* equal for items that look alike */
} gn__item;

typedef struct gn__run_of { uint32_t item, period, times; } gn__run_of;   /* items that repeat: [item, item + period), times over */
typedef struct gn__box { uint32_t run, n_runs; double x, y, w, h; } gn__box;   /* of a segment */

typedef struct gn__story {
    const gn_part *p;
    const gn_meaning *m;
    const gn_schedule *s;
    const gn_cluster *c;
    gn_policy policy;
    const char *(*label)(const void *owner, uint32_t node);
    const void *owner;
    uint64_t fallbacks, reschedules;   /* of the context, so far */
    gn__buf out;
    GN__ARRAY(gn__item, items);
    GN__ARRAY(gn__run_of, runs);
    gn__box *boxes;                /* per segment */
    double *lane, *lane_end, *lane_h;   /* per device: y, x so far, height (0: nothing runs there) */
    uint32_t *stamp, *at;          /* per group */
    double width, height;
} gn__story;

GN__PRINTF(2, 3) static void gn__say(gn__story *k, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    gn__put_bytes(&k->out, text, n < 0 ? 0 : GN__MIN((size_t)n, sizeof text - 1));
}

/* As character data of XML; what XML does not know becomes a question mark. */
static void gn__say_xml(gn__story *k, const char *text) {
    for (; *text; text++) {
        const char *as = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : *text == '"' ? "&quot;" : NULL;
        if (as) gn__say(k, "%s", as);
        else gn__put_u8(&k->out, (uint8_t)*text < 32 || (uint8_t)*text > 126 ? '?' : (uint8_t)*text);
    }
}

typedef struct gn__amount { char text[24]; } gn__amount;

static gn__amount gn__scaled(double v, const char *const *units, double step, int n) {
    gn__amount a;
    int i = 0;
    for (; i + 1 < n && v >= 999.5; i++) v /= step;
    snprintf(a.text, sizeof a.text, v < 10 && i > 0 ? "%.1f %s" : "%.0f %s", v, units[i]);
    return a;
}

static gn__amount gn__bytes_text(double bytes) {
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
    return gn__scaled(bytes, units, 1000, 5);
}

static gn__amount gn__seconds_text(double s) {
    static const char *const units[] = { "ns", "us", "ms" };
    gn__amount a;
    if (s < 1) return gn__scaled(s * 1e9, units, 1000, 3);
    snprintf(a.text, sizeof a.text, "%.2f s", s);
    return a;
}

static const char *gn__item_name(const gn__story *k, const gn__item *x) {
    uint8_t role = k->m->groups[x->group].role;
    return role ? gn__role_names[role] : gn__ops[k->p->nodes[x->last].op].name;
}

static const char *gn__place_name(const gn__story *k, uint32_t d) { return d < k->c->n_devices ? k->c->devices[d].name : "the program"; }

/* ---- what to tell: groups of each segment, runs of equal ones ---- */

static void gn__item_add(gn__story *k, gn__item *x, uint32_t node) {
    const gn_node_meaning *m = &k->m->nodes[node];
    x->flops[gn__sched_rate(k->p->nodes[node].dtype)] += m->flops;
    x->bytes += (double)m->bytes_read + (double)m->bytes_written;
    x->kernels += m->bytes_written != 0;
    x->last = node;
    x->again |= k->s->device[node] != k->s->segments[x->seg].device;
    x->n++;
}

static void gn__item_close(gn__story *k, gn__item *x) {
    const gn_group *g = &k->m->groups[x->group];
    uint32_t ops = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) ops += k->p->nodes[k->m->members[g->first + i]].leaf == GN_LEAF_NONE;
    if (ops == x->n) { x->bytes = (double)g->bytes; x->kernels = g->kernels; }
    x->seconds = gn__sched_cost(&k->c->devices[k->s->segments[x->seg].device], x->flops, x->bytes, x->kernels);
    x->same = gn__mix(((uint64_t)g->role << 40) | ((uint64_t)g->phase << 32) | x->kernels, ((uint64_t)x->again << 32) | (g->role ? 0 : k->p->nodes[x->last].op));
    for (int i = 0; i < GN_RATE__COUNT; i++) {                      /* nearly: a shared constant is made by its first reader */
        int power = 0;
        double part = frexp(x->flops[i], &power);
        x->same = gn__mix(x->same, ((uint64_t)(power + 4096) << 8) | (uint64_t)(part * 32 + 0.5));
    }
}

static int gn__item_compare(const void *a, const void *b) {
    const gn__item *x = (const gn__item *)a, *y = (const gn__item *)b;
    return x->group < y->group ? -1 : x->group > y->group;
}

/* The groups of a segment in order; those of views alone are left out. */
static bool gn__story_items(gn__story *k, uint32_t seg) {
    const gn_segment *g = &k->s->segments[seg];
    size_t first = k->n_items, n = first;
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t node = k->s->nodes[g->first + i], group = k->m->nodes[node].group;
        if (k->stamp[group] != seg + 1) {
            if (!GN__GROW(k, items, 1)) return false;
            memset(&k->items[k->n_items], 0, sizeof *k->items);
            k->items[k->n_items].group = group;
            k->items[k->n_items].seg = seg;
            k->stamp[group] = seg + 1;
            k->at[group] = (uint32_t)k->n_items++;
        }
        gn__item_add(k, &k->items[k->at[group]], node);
    }
    for (size_t i = first; i < k->n_items; i++) {
        gn__item_close(k, &k->items[i]);
        if (k->items[i].kernels || k->items[i].bytes > 0) k->items[n++] = k->items[i];
    }
    k->n_items = n;
    qsort(k->items + first, n - first, sizeof *k->items, gn__item_compare);
    return true;
}

/* From an item on, the stretch that covers most by repeating itself. */
static gn__run_of gn__story_run(const gn__story *k, uint32_t i, uint32_t end) {
    gn__run_of best = { i, 1, 1 };
    for (uint32_t p = 1; p <= 48 && i + 2 * p <= end; p++) {
        uint32_t like = 0;
        while (i + p + like < end && k->items[i + like].same == k->items[i + p + like].same) like++;
        if (like >= p && p * (1 + like / p) > best.period * best.times) best = (gn__run_of){ i, p, 1 + like / p };
    }
    return best;
}

static bool gn__story_make(gn__story *k) {
    uint32_t D = k->c->n_devices;
    k->stamp = (uint32_t *)gn__alloc_zero((k->m->n_groups + 1u) * sizeof *k->stamp);
    k->at = (uint32_t *)gn__alloc_zero((k->m->n_groups + 1u) * sizeof *k->at);
    k->boxes = (gn__box *)gn__alloc_zero((k->s->n_segments + 1u) * sizeof *k->boxes);
    k->lane = (double *)gn__alloc_zero((3u * D + 3) * sizeof *k->lane);
    if (!k->stamp || !k->at || !k->boxes || !k->lane) return false;
    k->lane_end = k->lane + D + 1;
    k->lane_h = k->lane_end + D + 1;
    for (uint32_t s = 0; s < k->s->n_segments; s++) {
        uint32_t i = (uint32_t)k->n_items;
        if (!gn__story_items(k, s)) return false;
        k->boxes[s].run = (uint32_t)k->n_runs;
        while (i < k->n_items) {
            gn__run_of r = gn__story_run(k, i, (uint32_t)k->n_items);
            if (!GN__GROW(k, runs, 1)) return false;
            k->runs[k->n_runs++] = r;
            i += r.period * r.times;
        }
        k->boxes[s].n_runs = (uint32_t)k->n_runs - k->boxes[s].run;
    }
    return true;
}

static void gn__story_deinit(gn__story *k) {
    void *const arrays[] = { k->items, k->runs, k->boxes, k->lane, k->stamp, k->at };
    for (size_t i = 0; i < GN__LENGTH(arrays); i++) gn_free(arrays[i]);
    gn__buf_deinit(&k->out);
}

/* ---- words ---- */

static const char *const gn__policy_names[GN_POLICY__COUNT] = { "least latency", "most throughput", "least bytes" };
#define GN__X(name, text) text,
static const char *const gn__place_reasons[] = { GN_PLACE_REASONS(GN__X) };
static const char *const gn__transfer_reasons[] = { GN_TRANSFER_REASONS(GN__X) };
static const char *const gn__avoided_texts[] = { GN_AVOIDED(GN__X) };
#undef GN__X

static void gn__tell_run(gn__story *k, const gn__run_of *r) {
    if (r->times > 1) gn__say(k, "%u x ", r->times);
    if (r->times > 1 && r->period > 1) gn__say(k, "(");
    for (uint32_t i = 0; i < r->period; i++) gn__say(k, "%s%s%s", i ? ", " : "", gn__item_name(k, &k->items[r->item + i]), k->items[r->item + i].again ? " again" : "");
    if (r->times > 1 && r->period > 1) gn__say(k, ")");
}

/* Why: the reasons of a device's groups, the most frequent first. */
static void gn__tell_why(gn__story *k, uint32_t seg) {
    uint32_t count[GN_PLACED__COUNT] = { 0 };
    bool first = true;
    for (size_t i = 0; i < k->n_items; i++)
        if (k->items[i].seg == seg && !k->items[i].again) count[k->s->why[k->items[i].group]]++;
    for (;;) {
        int best = 0;
        for (int i = 1; i < GN_PLACED__COUNT; i++)
            if (count[i] > count[best]) best = i;
        if (!count[best]) break;
        gn__say(k, "%s%s", first ? " - " : "; ", gn__place_reasons[best]);
        count[best] = 0;
        first = false;
    }
}

static void gn__tell_head(gn__story *k) {
    const gn_schedule *s = k->s;
    uint32_t used = 0, ops = 0;
    for (uint32_t i = 0; i < k->p->n_nodes; i++) ops += k->p->nodes[i].leaf == GN_LEAF_NONE;
    for (uint32_t d = 0; d < s->n_devices; d++)
        for (uint32_t i = 0; i < s->n_segments; i++)
            if (s->segments[i].device == d) { used++; break; }
    gn__say(k, "%u ops in %u groups, %s: %u of %u device%s used\n", ops, k->m->n_groups, gn__policy_names[k->policy], used, s->n_devices, s->n_devices == 1 ? "" : "s");
    gn__say(k, "predicted: %s a step, %s between steps that do not wait for each other, %s across links\n", gn__seconds_text(s->seconds).text,
            gn__seconds_text(s->step_seconds).text, gn__bytes_text((double)s->bytes).text);
    if (s->n_devices == 1) return;
    if (s->best_single == GN_UNPLACED) gn__say(k, "no single device could run it: memory, operations, or what was said forbid it\n");
    else if (used > 1) gn__say(k, "best single device: %s with %s a step, %s between steps\n", gn__place_name(k, s->best_single), gn__seconds_text(s->best_single_seconds).text, gn__seconds_text(s->best_single_step_seconds).text);
    if (s->refused) gn__say(k, "refused: a split, predicted at %s a step, because it does not win\n", gn__seconds_text(s->refused_seconds).text);
}

static void gn__tell_segments(gn__story *k) {
    for (uint32_t i = 0; i < k->s->n_segments; i++) {
        const gn_segment *g = &k->s->segments[i];
        gn__say(k, "%s, %s to %s: ", gn__place_name(k, g->device), gn__seconds_text(g->start_s).text, gn__seconds_text(g->end_s).text);
        for (uint32_t r = 0; r < k->boxes[i].n_runs; r++) {
            if (r) gn__say(k, ", ");
            gn__tell_run(k, &k->runs[k->boxes[i].run + r]);
        }
        if (!k->boxes[i].n_runs) gn__say(k, "views");
        gn__tell_why(k, i);
        gn__say(k, "\n");
    }
    for (uint32_t d = 0; d < k->s->n_devices; d++) {
        const gn_cluster_device *x = &k->c->devices[d];
        if (!k->s->memory[d]) continue;
        gn__say(k, "memory: at most %s on %s", gn__bytes_text((double)k->s->memory[d]).text, x->name);
        if (x->memory) gn__say(k, ", which has %s free", gn__bytes_text((double)x->memory_free).text);
        gn__say(k, "\n");
    }
}

enum { GN__TOLD = 12 };                    /* lines of a kind before "and more" */

static void gn__tell_transfers(gn__story *k) {
    const gn_schedule *s = k->s;
    for (uint32_t i = 0, told = 0; i < s->n_transfers; i++, told++) {
        const gn_transfer *t = &s->transfers[i];
        const char *label = k->label(k->owner, t->node);
        if (told == GN__TOLD) { gn__say(k, "crosses: %u more values\n", s->n_transfers - i); break; }
        gn__say(k, "crosses: %s of %s%s%s%s from %s to %s, %s\n", gn__bytes_text((double)t->bytes).text, gn__ops[k->p->nodes[t->node].op].name, label[0] ? " '" : "", label, label[0] ? "'" : "",
                gn__place_name(k, t->from), gn__place_name(k, t->to), gn__transfer_reasons[t->why]);
    }
    for (int i = 0; i < GN_AVOIDED__COUNT; i++)
        if (s->avoided[i]) gn__say(k, "avoided: %s of %s\n", gn__bytes_text((double)s->avoided[i]).text, gn__avoided_texts[i]);
    if (s->upload_bytes) gn__say(k, "once: %s of weights and states are sent to where they are not yet\n", gn__bytes_text((double)s->upload_bytes).text);
    if (s->move_bytes) gn__say(k, "once: %s of states move\n", gn__bytes_text((double)s->move_bytes).text);
}

static const char *gn__meaning_text(uint8_t which, uint8_t value) {
    return which == GN_SAID_PHASE ? gn__phase_names[value] : which == GN_SAID_ROLE ? gn__role_names[value] : which == GN_SAID_RESIDENCY ? gn__residency_names[value] : gn__modality_names[value];
}

/* What did not go as it was said, and what could not be. */
static void gn__tell_notes(gn__story *k) {
    uint32_t lacking = 0, unmeasured = 0;
    for (uint32_t i = 0; i < k->m->n_disagreements; i++) {
        const gn_disagreement *d = &k->m->disagreements[i];
        const char *label = k->label(k->owner, d->node);
        if (i == GN__TOLD) { gn__say(k, "disagreement: %u more nodes\n", k->m->n_disagreements - i); break; }
        gn__say(k, "disagreement: %s%s%s%s is said to be %s and looks like %s\n", gn__ops[k->p->nodes[d->node].op].name, label[0] ? " '" : "", label, label[0] ? "'" : "",
                gn__meaning_text(d->which, d->said), gn__meaning_text(d->which, d->recognised));
    }
    if (k->s->overruled) gn__say(k, "overruled: %u ops write states that live on another device than they were said to run on\n", k->s->overruled);
    for (size_t i = 0; i < k->n_items; i++) lacking += k->s->why[k->items[i].group] == GN_PLACED_OPS ? k->items[i].n : 0;
    if (lacking) gn__say(k, "fallback: %u ops run where they do because the other devices lack them\n", lacking);
    if (k->fallbacks) gn__say(k, "fallback: %llu ops of the plans so far run elsewhere than chosen, because a device has no kernel for them\n", (unsigned long long)k->fallbacks);
    if (k->reschedules) gn__say(k, "placed anew: %llu times so far a plan of this program, because costs had changed\n", (unsigned long long)k->reschedules);
    for (uint32_t d = 0; d < k->c->n_devices; d++) unmeasured += !(k->c->devices[d].bytes_per_s > 0) && !(k->c->devices[d].flops_per_s[GN_RATE_F32] > 0);
    if (unmeasured) gn__say(k, "not measured: the speed of %u device%s; work there counts as taking no time\n", unmeasured, unmeasured == 1 ? "" : "s");
}

static void gn__tell(gn__story *k) {
    gn__tell_head(k);
    gn__tell_segments(k);
    gn__tell_transfers(k);
    gn__tell_notes(k);
}

/* ---- picture: lanes are devices, boxes groups, frames what repeats; order goes from left to right ---- */

enum { GN__BOX_W = 112, GN__BOX_H = 42, GN__BOX_GAP = 8, GN__FRAME = 12, GN__FRAME_TOP = 24, GN__SEG_TOP = 24, GN__SEG_PAD = 10, GN__ACROSS = 6, GN__LEFT = 170, GN__GAP_X = 96, GN__GAP_Y = 46, GN__TOP = 76 };

/* Tints of colours that stay apart under colour blindness (Okabe & Ito 2008); text on them is black. */
static const char *const gn__role_colors[GN_ROLE__COUNT] = { "#ffffff", "#8fd6bd", "#f6d78f", "#eda93b", "#7cc4ee", "#8fa8e6", "#4fa3d8", "#c4e3f6", "#d4d4d4", "#ececec", "#f3ea5a", "#df9cc0", "#b79ade", "#ddcdf0", "#e8916c" };

/* Boxes in a row: rows of a frame are about equal. */
static uint32_t gn__run_across(const gn__story *k, const gn__run_of *r) {
    uint32_t most = k->s->n_segments > 2 ? GN__ACROSS / 2 : GN__ACROSS, rows = (r->period + most - 1) / most;
    return (r->period + rows - 1) / rows;
}

static void gn__run_size(const gn__story *k, const gn__run_of *r, double *w, double *h) {
    uint32_t across = gn__run_across(k, r), rows = (r->period + across - 1) / across;
    *w = across * (GN__BOX_W + GN__BOX_GAP) - GN__BOX_GAP;
    *h = rows * (GN__BOX_H + GN__BOX_GAP) - GN__BOX_GAP;
    if (r->times > 1) { *w += 2 * GN__FRAME; *h += GN__FRAME + GN__FRAME_TOP; }
}

/* Walks a segment's runs in rows; draw NULL: measures. */
static void gn__segment_flow(gn__story *k, uint32_t seg, void (*draw)(gn__story *, const gn__run_of *, double, double)) {
    gn__box *b = &k->boxes[seg];
    double most = k->s->n_segments > 4 ? 520 : k->s->n_segments > 1 ? 780 : 1340, x = GN__SEG_PAD, y = GN__SEG_TOP, row = 0, w, h, width = 120;
    for (uint32_t i = 0; i < b->n_runs; i++) {
        gn__run_size(k, &k->runs[b->run + i], &w, &h);
        if (x > GN__SEG_PAD && x + w > most) { x = GN__SEG_PAD; y += row + GN__BOX_GAP; row = 0; }
        if (draw) draw(k, &k->runs[b->run + i], b->x + x, b->y + y);
        width = GN__MAX(width, x + w);
        row = GN__MAX(row, h);
        x += w + GN__BOX_GAP;
    }
    b->w = width + GN__SEG_PAD;
    b->h = y + row + GN__SEG_PAD;
}

/* A segment begins right of what it waits for. */
static void gn__story_layout(gn__story *k) {
    const gn_schedule *s = k->s;
    double y = GN__TOP + 40 + GN__GAP_Y;
    for (uint32_t i = 0; i < s->n_segments; i++) gn__segment_flow(k, i, NULL);
    for (uint32_t d = 0; d < s->n_devices; d++) k->lane_end[d] = GN__LEFT + GN__GAP_X;
    for (uint32_t i = 0, t = 0; i < s->n_segments; i++) {
        gn__box *b = &k->boxes[i];
        uint32_t d = s->segments[i].device;
        b->x = k->lane_end[d];
        for (; t < s->n_transfers && s->transfers[t].consumer <= i; t++)
            if (s->transfers[t].producer != UINT32_MAX) b->x = GN__MAX(b->x, k->boxes[s->transfers[t].producer].x + k->boxes[s->transfers[t].producer].w + GN__GAP_X);
        k->lane_end[d] = b->x + b->w + GN__GAP_X;
        k->lane_h[d] = GN__MAX(k->lane_h[d], b->h);
        k->width = GN__MAX(k->width, k->lane_end[d]);
    }
    for (uint32_t d = 0; d < s->n_devices; d++) {
        if (k->lane_h[d] <= 0) continue;
        k->lane[d] = y;
        y += k->lane_h[d] + GN__GAP_Y;
    }
    for (uint32_t i = 0; i < s->n_segments; i++) k->boxes[i].y = k->lane[s->segments[i].device];
    k->width = GN__MAX(k->width, 900);
    k->height = y + 60;
}

static void gn__draw_text(gn__story *k, double x, double y, int size, const char *style, const char *text) {
    gn__say(k, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\"%s%s>", x, y, size, style[0] ? " " : "", style);
    gn__say_xml(k, text);
    gn__say(k, "</text>\n");
}

static void gn__draw_item(gn__story *k, const gn__item *x, double left, double top) {
    char text[64];
    uint8_t role = k->m->groups[x->group].role;
    double flops = 0;
    for (int i = 0; i < GN_RATE__COUNT; i++) flops += x->flops[i];
    gn__say(k, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" stroke=\"#333\"%s/>\n", left, top, GN__BOX_W, GN__BOX_H, gn__role_colors[role], x->again ? " stroke-dasharray=\"4 2\"" : "");
    snprintf(text, sizeof text, "%.17s%s", gn__item_name(k, x), x->again ? " again" : "");
    gn__draw_text(k, left + GN__BOX_W / 2.0, top + 18, 12, "text-anchor=\"middle\"", text);
    if (x->seconds > 0) snprintf(text, sizeof text, "%s", gn__seconds_text(x->seconds).text);
    else if (flops >= 1) snprintf(text, sizeof text, "%.3g flop", flops);
    else snprintf(text, sizeof text, "%s", gn__bytes_text(x->bytes).text);
    gn__draw_text(k, left + GN__BOX_W / 2.0, top + 34, 11, "text-anchor=\"middle\" fill=\"#333\"", text);
}

static void gn__draw_run(gn__story *k, const gn__run_of *r, double left, double top) {
    double w, h, x = left, y = top;
    uint32_t across = gn__run_across(k, r);
    char text[64];
    gn__run_size(k, r, &w, &h);
    if (r->times > 1) {
        gn__say(k, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"6\" fill=\"#fff\" stroke=\"#555\" stroke-dasharray=\"6 3\"/>\n", left, top, w, h);
        snprintf(text, sizeof text, "%u times", r->times);
        gn__draw_text(k, left + GN__FRAME, top + 16, 12, "font-weight=\"bold\"", text);
        x += GN__FRAME;
        y += GN__FRAME_TOP;
    }
    for (uint32_t i = 0; i < r->period; i++)
        gn__draw_item(k, &k->items[r->item + i], x + i % across * (GN__BOX_W + GN__BOX_GAP), y + i / across * (GN__BOX_H + GN__BOX_GAP));
}

static void gn__draw_segment(gn__story *k, uint32_t i) {
    const gn_segment *g = &k->s->segments[i];
    const gn__box *b = &k->boxes[i];
    char text[96];
    gn__say(k, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"8\" fill=\"#f7f7f4\" stroke=\"#888\"/>\n", b->x, b->y, b->w, b->h);
    snprintf(text, sizeof text, "%s to %s", gn__seconds_text(g->start_s).text, gn__seconds_text(g->end_s).text);
    gn__draw_text(k, b->x + GN__SEG_PAD, b->y + 16, 11, "fill=\"#333\"", text);
    gn__segment_flow(k, i, gn__draw_run);
}

/* Several values that go the same way are one arrow. */
typedef struct gn__arrow { uint32_t producer, consumer, from, to, values; uint64_t bytes; } gn__arrow;

static int gn__arrow_compare(const void *a, const void *b) {
    const gn__arrow *x = (const gn__arrow *)a, *y = (const gn__arrow *)b;
    if (x->consumer != y->consumer) return x->consumer < y->consumer ? -1 : 1;
    if (x->producer != y->producer) return x->producer < y->producer ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* From the right of the sender down or up to a channel between lanes, along it, and to the left of the receiver. */
static void gn__draw_arrow(gn__story *k, const gn__arrow *a, uint32_t nth) {
    uint32_t D = k->s->n_devices;
    const gn__box *p = a->producer != UINT32_MAX ? &k->boxes[a->producer] : NULL, *c = a->consumer != UINT32_MAX ? &k->boxes[a->consumer] : NULL;
    double program = GN__TOP + 40, shift = 7.0 * (nth % 4), apart = 10 + 12.0 * (nth % 3), x1 = p ? p->x + p->w : c ? c->x - 20 - shift : GN__LEFT, x2 = c ? c->x : x1 + 30 + shift;
    double y1 = p ? p->y + p->h / 2 + shift : a->from < D ? k->lane[a->from] + 12 : program, y2 = c ? c->y + 14 + shift : program;
    double out = p ? x1 + 14 + shift : x1, in = c ? x2 - 20 - shift : x2, channel = y1;
    char text[64];
    if (p && c) channel = y2 > y1 ? p->y + k->lane_h[a->from] + apart : p->y - apart;
    gn__say(k, "<path d=\"M%.1f %.1f H%.1f V%.1f H%.1f V%.1f H%.1f\" fill=\"none\" stroke=\"#222\" stroke-width=\"1.4\" marker-end=\"url(#tip)\"/>\n", x1, y1, out, channel, in, y2 + (c ? 0 : 9), c ? x2 - 1 : in);
    if (a->values > 1) snprintf(text, sizeof text, "%s, %u values", gn__bytes_text((double)a->bytes).text, a->values);
    else snprintf(text, sizeof text, "%s", gn__bytes_text((double)a->bytes).text);
    double wide = 6.4 * (double)strlen(text), x = p && c ? out + 4 : p ? x2 + 5 : x1 - 5 - wide, y = p && c ? channel - 3 : (!p && a->from < D ? y1 : program) + 16 + 13.0 * (nth % 2);
    gn__say(k, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"13\" fill=\"#fff\" fill-opacity=\"0.85\"/>\n", x - 1, y - 10, wide + 2);
    gn__draw_text(k, x, y, 11, "", text);
}

static bool gn__draw_arrows(gn__story *k) {
    const gn_schedule *s = k->s;
    gn__arrow *list = (gn__arrow *)gn__alloc_zero((s->n_transfers + 1u) * sizeof *list);
    uint32_t n = 0;
    for (uint32_t i = 0; list && i < s->n_transfers; i++) list[i] = (gn__arrow){ s->transfers[i].producer, s->transfers[i].consumer, s->transfers[i].from, s->transfers[i].to, 1, s->transfers[i].bytes };
    if (list) qsort(list, s->n_transfers, sizeof *list, gn__arrow_compare);
    for (uint32_t i = 0; list && i < s->n_transfers; i++) {
        if (n && gn__arrow_compare(&list[n - 1], &list[i]) == 0) { list[n - 1].values++; list[n - 1].bytes += list[i].bytes; continue; }
        list[n++] = list[i];
    }
    for (uint32_t i = 0; list && i < n; i++) gn__draw_arrow(k, &list[i], i);
    gn_free(list);
    return list != NULL;
}

static void gn__draw_lanes(gn__story *k) {
    char text[128];
    double program = GN__TOP + 18;
    gn__say(k, "<rect x=\"10\" y=\"%.1f\" width=\"%.1f\" height=\"22\" rx=\"4\" fill=\"#222\"/>\n", program, k->width - 20);
    gn__draw_text(k, 20, program + 15, 12, "fill=\"#fff\" font-weight=\"bold\"", "program");
    for (uint32_t d = 0; d < k->s->n_devices; d++) {
        double busy = 0;
        if (k->lane_h[d] <= 0) continue;
        for (uint32_t i = 0; i < k->s->n_segments; i++) busy += k->s->segments[i].device == d ? k->s->segments[i].end_s - k->s->segments[i].start_s : 0;
        gn__say(k, "<rect x=\"10\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#eef2f5\"/>\n", k->lane[d] - 6, k->width - 20, k->lane_h[d] + 12);
        snprintf(text, sizeof text, "%.22s", k->c->devices[d].name);
        gn__draw_text(k, 20, k->lane[d] + 16, 13, "font-weight=\"bold\"", text);
        snprintf(text, sizeof text, "works %s", gn__seconds_text(busy).text);
        gn__draw_text(k, 20, k->lane[d] + 34, 11, "", text);
        snprintf(text, sizeof text, "memory %s", gn__bytes_text((double)k->s->memory[d]).text);
        gn__draw_text(k, 20, k->lane[d] + 49, 11, "", text);
    }
}

static void gn__draw_legend(gn__story *k) {
    double x = 20, y = k->height - 44;
    uint32_t seen = 0;
    for (size_t i = 0; i < k->n_items; i++) seen |= 1u << k->m->groups[k->items[i].group].role;
    for (uint32_t r = 0; r < GN_ROLE__COUNT; r++) {
        if (!((seen >> r) & 1)) continue;
        gn__say(k, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" rx=\"3\" fill=\"%s\" stroke=\"#333\"/>\n", x, y, gn__role_colors[r]);
        gn__draw_text(k, x + 22, y + 12, 12, "", r ? gn__role_names[r] : "other");
        x += 46 + 7.2 * (double)strlen(r ? gn__role_names[r] : "other");
    }
    gn__draw_text(k, 20, k->height - 12, 11, "fill=\"#333\"", "Order goes from left to right, not to scale. Dashed frames: what repeats. Arrows: what crosses a link in each step.");
}

static void gn__draw_head(gn__story *k) {
    const gn_schedule *s = k->s;
    char text[256];
    gn__say(k, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n", k->width, k->height, k->width, k->height);
    gn__say(k, "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#222\"/></marker></defs>\n");
    gn__say(k, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    snprintf(text, sizeof text, "%s a step, %s between steps, %s across links", gn__seconds_text(s->seconds).text, gn__seconds_text(s->step_seconds).text, gn__bytes_text((double)s->bytes).text);
    gn__draw_text(k, 20, 28, 17, "font-weight=\"bold\"", text);
    snprintf(text, sizeof text, "chosen for %s", gn__policy_names[k->policy]);
    if (s->refused) snprintf(text + strlen(text), sizeof text - strlen(text), "; a split, predicted at %s, was refused", gn__seconds_text(s->refused_seconds).text);
    else if (s->best_single == GN_UNPLACED) snprintf(text + strlen(text), sizeof text - strlen(text), "; no single device could run it");
    else if (s->n_devices > 1) snprintf(text + strlen(text), sizeof text - strlen(text), "; the best single device, %.60s, would take %s", gn__place_name(k, s->best_single), gn__seconds_text(s->best_single_seconds).text);
    gn__draw_text(k, 20, 50, 12, "", text);
    snprintf(text, sizeof text, "stays where it is: %s of weights, %s of states", gn__bytes_text((double)s->avoided[GN_AVOIDED_WEIGHTS]).text, gn__bytes_text((double)s->avoided[GN_AVOIDED_STATES]).text);
    gn__draw_text(k, 20, 68, 12, "", text);
}

static bool gn__draw(gn__story *k) {
    gn__story_layout(k);
    gn__draw_head(k);
    gn__draw_lanes(k);
    bool ok = gn__draw_arrows(k);
    for (uint32_t i = 0; i < k->s->n_segments; i++) gn__draw_segment(k, i);
    gn__draw_legend(k);
    gn__say(k, "</svg>\n");
    return ok;
}

/* Fills k->out. What k holds besides the arrays made here is the caller's. */
static gn_result gn__story_tell(gn__story *k, gn_explain_format format, gn_fault *f) {
    bool ok = gn__story_make(k);
    if (ok && format == GN_EXPLAIN_TEXT) gn__tell(k);
    else if (ok) ok = gn__draw(k);
    return ok && !k->out.failed ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for an explanation");
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
#define GN__SPARE (2u << 20)                /* bytes of memory kept for the next message in several frames: holds a chunk */
#define GN__WIRE_NODES (1u << 21)           /* nodes of a part */
#define GN__WIRE_FAN_IN 65536u              /* inputs of a node */
#define GN__WIRE_OPS 512u                   /* bytes of the bitmap of ops: wire ids below 4096 */
#define GN__WIRE_ASK 4096u                  /* digests in one question */

#define GN__RATE_MOST 1000000000000000000u  /* a second, of anything */
#define GN__WAIT_MOST 1000000000000000u     /* ns: eleven days */

/* Bits of HELLO's and HELLO_OK's features. */
enum { GN__FEATURE_COSTS = 1, GN__FEATURE_STRICT = 2 /* a fallback is an error */, GN__FEATURE_FALLBACK = 4, GN__FEATURE_RENEW = 8 /* takes new keys */,
       GN__FEATURES = 15 };

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

#define GN__FIELDS_FALLBACK(F, M)                                                                               \
    F(M, u32, plan, UINT32_MAX, 0, "of PLAN_PUT")                                                               \
    F(M, u32, ops, GN__WIRE_NODES, 0, "how many ops of it run elsewhere")                                       \
    F(M, array, text, 399, 1, "one sentence: which, and why")
#define GN__FIELDS_COSTS(F, M)                                                                                  \
    F(M, u64, f32, GN__RATE_MOST, 0, "f32 arithmetic of matrix products a second; 0, here and below: not known") \
    F(M, u64, half, GN__RATE_MOST, 0, "f16 and bf16")                                                           \
    F(M, u64, f64, GN__RATE_MOST, 0, "f64")                                                                     \
    F(M, u64, integer, GN__RATE_MOST, 0, "integers")                                                            \
    F(M, u64, bytes, GN__RATE_MOST, 0, "bytes a second of the device's memory")                                 \
    F(M, u64, launch, GN__WAIT_MOST, 0, "ns of a kernel that does nothing")                                     \
    F(M, u64, queue, GN__WAIT_MOST, 0, "ns until the device begins what is sent to it now")                     \
    F(M, u64, memory, (uint64_t)1 << 52, 0, "bytes the session may hold")                                       \
    F(M, u64, memory_free, (uint64_t)1 << 52, 0, "bytes of them that it does not hold")                         \
    F(M, u64, busy, GN__WAIT_MOST, 0, "ns that the server spent on the step answered next")

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
    X(STEP_OK, step_ok, 14, DOWN, "answers STEP")                                                               \
    X(FALLBACK, fallback, 15, DOWN, "feature bit 2: a plan's ops that the device has no kernel for; answers nothing") \
    X(COSTS, costs, 16, DOWN, "feature bit 0: what the device costs; follows HELLO_OK, then precedes STEP_OK; answers nothing")

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

typedef struct gn__open_message { bool used, taken; uint16_t id; uint32_t request; uint64_t n; gn__buf body; } gn__open_message;

/* Who takes the bytes of a message in several frames as they come, so that they are not gathered first. */
typedef struct gn__intake {
    bool (*begins)(void *user, uint16_t id, uint32_t request);     /* whether it takes this one */
    gn_result (*takes)(void *user, uint32_t request, const uint8_t *p, size_t n, gn_fault *f);
    void *user;
} gn__intake;

/* Bytes as they arrive, to messages. Memory grows with what has arrived, never with what was announced. */
typedef struct gn__inbox {
    uint8_t *p;
    size_t at, n, cap;         /* [at, n) has arrived and is not read */
    uint32_t frame_max;        /* bytes of one payload */
    uint64_t limit, held;      /* bytes of all unfinished messages */
    uint64_t frames;
    gn__open_message open[GN__OPEN_MESSAGES];
    gn__buf whole;             /* the last message that came in several frames */
    gn__buf spare;             /* memory for the next one: fresh pages cost more than the bytes they take */
    gn__intake intake;         /* begins NULL: none */
} gn__inbox;

static void gn__inbox_deinit(gn__inbox *in) {
    for (int i = 0; i < GN__OPEN_MESSAGES; i++) gn__buf_deinit(&in->open[i].body);
    gn__buf_deinit(&in->whole);
    gn__buf_deinit(&in->spare);
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
        o->taken = in->intake.begins && in->intake.begins(in->intake.user, id, request);
        if (o->taken) return o;
        o->body = in->spare;
        memset(&in->spare, 0, sizeof in->spare);
        return o;
    }
    return NULL;
}

/* A message whose bytes were taken as they came: p is NULL and n is not 0. */
static bool gn__msg_taken(const gn__msg *m) { return !m->p && m->n > 0; }

/* A frame of a message in several frames; the last one completes *out. */
static gn_result gn__inbox_join(gn__inbox *in, const gn__msg *frame, bool more, gn__msg *out, gn_fault *f) {
    gn__open_message *o = gn__inbox_find(in, frame->request);
    if (more && frame->n == 0) return gn_fail(f, GN_BAD_MESSAGE, "an empty frame announces another");
    if (!o) o = gn__inbox_open(in, frame->id, frame->request);
    if (!o) return gn_fail(f, GN_LIMIT, "more than %d unfinished messages", GN__OPEN_MESSAGES);
    if (o->id != frame->id) return gn_fail(f, GN_BAD_MESSAGE, "request %u began as message %u and goes on as %u", frame->request, o->id, frame->id);
    if (o->taken) {
        gn_result e = in->intake.takes(in->intake.user, frame->request, frame->p, frame->n, f);
        o->n += frame->n;
        if (e || more) return e;
        *out = (gn__msg){ frame->id, frame->request, NULL, (size_t)o->n };
        gn__inbox_close(in, o);
        return GN_OK;
    }
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

/* The last message is over; its memory serves again unless it is large. */
static void gn__inbox_recycle(gn__inbox *in) {
    if (in->whole.cap > GN__SPARE || in->whole.cap <= in->spare.cap) gn__buf_deinit(&in->whole);
    if (!in->whole.p) return;
    gn__buf_deinit(&in->spare);
    in->spare = in->whole;
    memset(&in->whole, 0, sizeof in->whole);
    gn__buf_reset(&in->spare);
}

/* The next whole message, valid until the next call; out->id is 0 when more bytes are needed first. */
static gn_result gn__inbox_next(gn__inbox *in, gn__msg *out, gn_fault *f) {
    memset(out, 0, sizeof *out);
    gn__inbox_recycle(in);
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

/* Appends n bytes of elements of `element` bytes, packed with a codec of the set `codecs` where that pays on a link where a byte
   costs wire_ns; returns bytes on the wire. `scratch` is reused. */
static uint64_t gn__blob_put(gn__outbox *o, const void *src, size_t n, int element, uint32_t codecs, double wire_ns, gn__buf *scratch) {
    const uint8_t *p = (const uint8_t *)src;
    uint64_t stored_bytes = 0;
    if (n <= GN__BLOB_INLINE) { gn__outbox_put(o, src, n); return n; }
    void *room = scratch->p;
    bool packs = codecs > 1 && gn__net && gn__reserve(&room, &scratch->cap, GN__BLOB_CHUNK, 1);
    scratch->p = (uint8_t *)room;
    for (size_t at = 0; at < n; at += GN__BLOB_CHUNK) {
        size_t raw = GN__MIN(n - at, (size_t)GN__BLOB_CHUNK), stored = 0;
        uint8_t codec = 0, head[5];
        if (packs) stored = gn__net->pack(p + at, raw, element, wire_ns, scratch->p, scratch->cap, &codec);
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

/* A blob being read, in as many pieces as it comes in. */
typedef struct gn__blob_in {
    uint8_t *to;
    size_t n, at;              /* bytes of it, and those that are here, whole chunks and the raw part of the present one */
    uint32_t codecs;
    int element;
    uint8_t head[5], head_n;   /* of the present chunk, what is here of it */
    size_t raw;                /* bytes of the present chunk, 0: its head comes next */
    uint32_t stored;           /* bytes of it that are still to come */
    gn__buf packed;            /* what is here of a packed chunk; reused */
} gn__blob_in;

static void gn__blob_begin(gn__blob_in *b, void *to, size_t n, int element, uint32_t codecs) {
    gn__buf packed = b->packed;
    memset(b, 0, sizeof *b);
    b->packed = packed;
    b->to = (uint8_t *)to;
    b->n = n;
    b->element = element;
    b->codecs = codecs;
}

static gn_result gn__chunk_begin(gn__blob_in *b, gn__rd *r, gn_fault *f) {
    while (b->head_n < sizeof b->head && r->p < r->end) b->head[b->head_n++] = *r->p++;
    if (b->head_n < sizeof b->head) return GN_OK;
    gn__rd head = { b->head, b->head + sizeof b->head, false };
    size_t raw = GN__MIN(b->n - b->at, (size_t)GN__BLOB_CHUNK);
    uint8_t codec = gn__get_u8(&head);
    uint32_t stored = gn__get_u32(&head);
    if (codec > 31 || !(b->codecs >> codec & 1)) return gn_fail(f, GN_BAD_MESSAGE, "a chunk of unknown codec %u", codec);
    if (codec == 0 && stored != raw) return gn_fail(f, GN_BAD_MESSAGE, "a raw chunk of %u bytes where %zu belong", stored, raw);
    if (codec != 0 && (stored == 0 || stored >= raw || !gn__net)) return gn_fail(f, GN_BAD_MESSAGE, "a packed chunk of %u bytes for %zu", stored, raw);
    b->raw = raw;
    b->stored = stored;
    gn__buf_reset(&b->packed);
    return GN_OK;
}

static gn_result gn__chunk_unpack(gn__blob_in *b, const uint8_t *p, size_t n, gn_fault *f) {
    gn_result e = gn__net->unpack(b->head[0], p, n, b->element, b->to + b->at, b->raw);
    b->at += b->raw;
    return e ? gn_fail(f, e, "a packed chunk of %zu bytes does not unpack to %zu", n, b->raw) : GN_OK;
}

/* The bytes of a chunk that are there: raw ones go where they belong, packed ones wait for the last. */
static gn_result gn__chunk_take(gn__blob_in *b, gn__rd *r, gn_fault *f) {
    size_t k = GN__MIN((size_t)(r->end - r->p), (size_t)b->stored);
    const uint8_t *p = gn__get_view(r, k);
    b->stored -= (uint32_t)k;
    if (b->head[0] == 0) {
        memcpy(b->to + b->at, p, k);
        b->at += k;
    } else if (b->stored == 0 && b->packed.n == 0) {
        gn_result e = gn__chunk_unpack(b, p, k, f);
        if (e) return e;
    } else {
        gn__put_bytes(&b->packed, p, k);
        if (b->packed.failed) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a chunk");
        gn_result e = b->stored == 0 ? gn__chunk_unpack(b, b->packed.p, b->packed.n, f) : GN_OK;
        if (e) return e;
    }
    if (b->stored == 0) b->raw = b->head_n = 0;
    return GN_OK;
}

/* Takes what is there of the blob, and no more than that; b->at == b->n: it is whole. */
static gn_result gn__blob_take(gn__blob_in *b, gn__rd *r, gn_fault *f) {
    if (b->n <= GN__BLOB_INLINE) {
        size_t k = GN__MIN((size_t)(r->end - r->p), b->n - b->at);
        gn__get_bytes(r, b->to + b->at, k);
        b->at += k;
        return GN_OK;
    }
    while (b->at < b->n && r->p < r->end) {
        gn_result e = b->raw ? gn__chunk_take(b, r, f) : gn__chunk_begin(b, r, f);
        if (e) return e;
    }
    return GN_OK;
}

/* Reads exactly n bytes into dst. */
static gn_result gn__blob_get(gn__rd *r, void *dst, size_t n, int element, uint32_t codecs, gn_fault *f) {
    gn__blob_in b;
    memset(&b, 0, sizeof b);
    gn__blob_begin(&b, dst, n, element, codecs);
    gn_result e = r->bad ? GN_OK : gn__blob_take(&b, r, f);
    gn__buf_deinit(&b.packed);
    if (!e && b.at < n) r->bad = true;
    return e || !r->bad ? e : gn_fail(f, GN_BAD_MESSAGE, "a blob is cut: %zu bytes belong here", n);
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
    gn__part_size s = { 0 };
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
                                      gn__null_submit, gn__null_wait, gn__null_values_release, gn__null_describe, NULL, NULL, NULL, NULL, NULL };

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
    gn_result r = p->base && p->fresh ? gn__layout_make(p->part, true, &p->layout, f) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
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

/* Memory of an argument; once sorted by `begin`, `end` is the highest of this and those before. */
typedef struct gn__held { uintptr_t begin, end; } gn__held;

static int gn__held_compare(const void *a, const void *b) {
    const gn__held *x = (const gn__held *)a, *y = (const gn__held *)b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static uint32_t gn__run_held(const gn__run *r, gn__held *memory) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->plan->part->n_args; k++) {
        uintptr_t begin = (uintptr_t)r->args[k].host;
        if (begin && r->args[k].bytes) memory[n++] = (gn__held){ begin, begin + r->args[k].bytes };
    }
    if (n > 1) qsort(memory, n, sizeof *memory, gn__held_compare);
    for (uint32_t i = 1; i < n; i++) memory[i].end = GN__MAX(memory[i].end, memory[i - 1].end);
    return n;
}

static bool gn__held_touches(const gn__held *memory, uint32_t n, const char *host, size_t bytes) {
    uint32_t lo = 0, hi = n;                   /* memory[lo - 1] is the last that begins before the end of these bytes */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (memory[mid].begin < (uintptr_t)host + bytes) lo = mid + 1;
        else hi = mid;
    }
    return lo > 0 && memory[lo - 1].end > (uintptr_t)host;
}

/* Results are computed where they are wanted, unless that is memory that an argument still holds or that is not aligned. */
static void gn__run_place_outs(gn__run *r, const gn_out *outs, gn__held *memory) {
    const gn_part *p = r->plan->part;
    uint32_t n = gn__run_held(r, memory);
    for (uint32_t i = 0; i < p->n_outs; i++) {
        const gn_lay *a = &r->plan->layout.lay[p->outs[i]];
        gn__type t = gn__part_type(p, p->outs[i]);
        const char *host = (const char *)outs[i].host;
        bool usable = host && a->place == GN_PLACE_BLOCK && outs[i].bytes == gn__type_bytes(&t) && ((uintptr_t)host & (gn__bytes_of(t.dtype) - 1)) == 0;
        if (usable && !gn__held_touches(memory, n, host, outs[i].bytes)) r->plan->base[p->outs[i]] = (char *)outs[i].host;
    }
}

GN__COLD_END

/* ---- loops: a tile of each register at a time ---- */

/* As long as the registers of a usual loop stay in a first-level cache together with the next tile's inputs. */
enum { GN__TILE_N = 1024 };

typedef struct gn__loop {
    gn__run *run;
    const gn_kernel_step *step;
    gn_view out;
    size_t reg_bytes;              /* of one register: they lie side by side, so that they spread over all sets of a cache */
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

static size_t gn__compute_bytes(gn_dtype d) { return gn__dtypes[d].compute == GN__F64 || gn__dtypes[d].compute == GN__I64 ? 8 : 4; }

/* Elements [at, at + n) in row-major order of a collapsed view, n <= GN__TILE_N, to a compute type; zeros up to a whole step. */
static void gn__load_flat(const gn_view *v, const char *p, int64_t at, int64_t n, void *dst) {
    uint8_t compute = gn__dtypes[v->dtype].compute;
    int64_t bytes = (int64_t)gn__bytes_of(v->dtype), width = (int64_t)gn__compute_bytes(v->dtype);
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

/* Where the vector code does not reach, elements are made again: turns of large angles, remainders of long quotients, and those of
 * what is not finite. */
#define GN__DEFINE_FAR(S, T, F, FAR, QUOTIENT)                                                                \
    static void gn__tile_far_##S(int op, T *y, const T *a, const T *b, int64_t n) {                          \
        bool turns = op == GN__OP_SIN || op == GN__OP_COS || op == GN__OP_TAN;                               \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            if (turns ? fabs##F(a[i]) <= FAR : fabs##F(a[i]) <= QUOTIENT * fabs##F(b[i]) && fabs##F(b[i]) < (T)INFINITY) continue; \
            if (turns) { y[i] = op == GN__OP_SIN ? sin##F(a[i]) : op == GN__OP_COS ? cos##F(a[i]) : tan##F(a[i]); continue; } \
            T m = fmod##F(a[i], b[i]);                                                                       \
            y[i] = op == GN__OP_FMOD ? m : op == GN__OP_REMAINDER ? gn__m_remainder_of_##S(m, b[i]) : gn__m_floordiv_of_##S(a[i], b[i], m); \
        }                                                                                                    \
    }
GN__DEFINE_FAR(f32, float, f, GN__V_FAR, GN__V_QUOTIENT)
GN__DEFINE_FAR(f64, double, , GN__W_FAR, GN__W_QUOTIENT)

static bool gn__op_has_far(int op) {
    return op == GN__OP_SIN || op == GN__OP_COS || op == GN__OP_TAN || op == GN__OP_FMOD || op == GN__OP_REMAINDER || op == GN__OP_FLOOR_DIVIDE;
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
    } else (compute == GN__F32 ? gn__ops[in->op].wide[isa] : compute == GN__F64 ? gn__ops[in->op].wide64[isa] : gn__ops[in->op].tile[compute])(y, x, in->p, whole);
    if (compute == GN__F32 && gn__op_has_far(in->op)) gn__tile_far_f32(in->op, (float *)y, (const float *)x[0], (const float *)x[1], n);
    if (compute == GN__F64 && gn__op_has_far(in->op)) gn__tile_far_f64(in->op, (double *)y, (const double *)x[0], (const double *)x[1], n);
    gn__tile_wrap(y, d, whole);
    return GN_OK;
}

/* Inputs that a tile reads where they lie. Those of the next tile are fetched while this one is worked on, a share at
 * each instruction: the hardware's own prefetch ends with each page, and fetching all at once, or just before, would wait. */
enum { GN__AHEAD_MOST = 8 };
typedef struct gn__ahead { const char *p[GN__AHEAD_MOST]; int64_t bytes[GN__AHEAD_MOST]; uint32_t n; } gn__ahead;

static void gn__ahead_add(gn__ahead *a, const char *p, int64_t bytes) {
    if (a->n == GN__AHEAD_MOST) return;
    a->p[a->n] = p + bytes;
    a->bytes[a->n++] = bytes;
}

static void gn__ahead_fetch(const gn__ahead *a, uint32_t share, uint32_t shares) {
#if defined(__GNUC__) || defined(__clang__)
    __asm__ volatile("");                      /* GCC drops calls of a function that does nothing but prefetch */
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t lines = (a->bytes[i] + 63) / 64;
        for (int64_t l = lines * share / shares; l < lines * (share + 1) / shares; l++) __builtin_prefetch(a->p[i] + 64 * l);
    }
#else
    (void)a; (void)share; (void)shares;
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

/* Constants, and inputs of one element, are filled in once for all tiles of a range. */
static void gn__loop_fill(const gn__loop *j, char *const *own) {
    const gn_layout *l = &j->run->plan->layout;
    for (uint32_t i = 0; i < j->step->n_loads; i++) {
        const gn_load *d = &l->loads[j->step->load + i];
        size_t width = gn__compute_bytes((gn_dtype)d->dtype);
        if (d->constant) gn__fill_tile(own[d->reg], (gn_dtype)d->dtype, d->value, 1);
        else if (gn__view_is_one(&d->view)) gn__load_flat(&d->view, j->run->plan->base[d->base] + d->view.offset, 0, 1, own[d->reg]);
        else continue;
        for (size_t have = width; have < GN__TILE_N * width; have *= 2) memcpy(own[d->reg] + have, own[d->reg], have);
    }
}

/* One tile; `now` holds where each register is during it: in its own memory, or where the tensor lies. */
static gn_result gn__loop_tile(const gn__loop *j, char *const *own, char **now, int64_t at, int64_t n, uint32_t *out_node) {
    const gn_layout *l = &j->run->plan->layout;
    const gn_kernel_step *s = j->step;
    gn__ahead ahead;
    ahead.n = 0;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        const gn_load *d = &l->loads[s->load + i];
        char *from = d->constant ? NULL : j->run->plan->base[d->base] + d->view.offset;
        char *place = d->constant ? NULL : gn__flat_place(&d->view, from, at, n);
        now[d->reg] = place ? place : own[d->reg];
        if (place) gn__ahead_add(&ahead, place, n * (int64_t)gn__bytes_of((gn_dtype)d->dtype));
        if (!place && !d->constant && !gn__view_is_one(&d->view)) gn__load_flat(&d->view, from, at, n, own[d->reg]);
    }
    for (uint32_t i = 0; i < s->n_instrs; i++) {
        const gn_instr *in = &l->instrs[s->instr + i];
        const void *x[3] = { now[in->src[0]], now[in->src[1]], now[in->src[2]] };
        bool ends = i + 1 == s->n_instrs && !gn__dtypes[j->out.dtype].narrow && !j->streams && n % GN__TILE_STEP == 0;
        now[in->dst] = ends ? j->out.p + at * (int64_t)gn__bytes_of(j->out.dtype) : own[in->dst];
        gn__ahead_fetch(&ahead, i, s->n_instrs);
        gn_result r = gn__loop_instr(in, j->run->cpu->pool.isa, now[in->dst], x, n);
        if (r != GN_OK) { *out_node = in->node; return r; }
        if (ends) return GN_OK;
    }
    if (j->streams) gn__stream(j->run->cpu->pool.isa, j->out.p + at * (int64_t)gn__bytes_of(j->out.dtype), now[s->out], n * (int64_t)gn__bytes_of(j->out.dtype));
    else gn__store_tile(&j->out, at, n, now[s->out]);
    return GN_OK;
}

static void gn__loop_tiles(gn__loop *j, char *regs, int64_t begin, int64_t end) {
    char **own = (char **)(void *)(regs + (size_t)j->step->regs * j->reg_bytes), **now = own + j->step->regs;
    int64_t total = gn__view_count(&j->out);
    uint32_t node = GN_NO_NODE;
    for (uint32_t i = 0; i < j->step->regs; i++) own[i] = regs + (size_t)i * j->reg_bytes;
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
    char *raw = (char *)gn_alloc((size_t)j->step->regs * (j->reg_bytes + 2 * sizeof(char *)) + 64);
    if (!raw) { gn__loop_fail(j, begin, GN_OUT_OF_MEMORY, j->step->node); return; }
    gn__loop_tiles(j, (char *)(((uintptr_t)raw + 63) & ~(uintptr_t)63), begin, end);
    gn_free(raw);
}

static size_t gn__loop_reg_bytes(const gn_layout *l, const gn_kernel_step *s) {
    size_t width = 4;
    for (uint32_t i = 0; i < s->n_loads; i++) width = GN__MAX(width, gn__compute_bytes((gn_dtype)l->loads[s->load + i].dtype));
    for (uint32_t i = 0; i < s->n_instrs; i++) width = GN__MAX(width, gn__compute_bytes((gn_dtype)l->instrs[s->instr + i].out_dtype));
    return width * GN__TILE_N;
}

static gn_result gn__run_loop(gn__run *r, const gn_kernel_step *s) {
    gn__loop j = { r, s, gn__run_view(r, s->node), gn__loop_reg_bytes(&r->plan->layout, s), false, INT64_MAX, GN_OK, GN_NO_NODE };
    int64_t tiles = (gn__view_count(&j.out) + GN__TILE_N - 1) / GN__TILE_N;
    j.streams = GN__X86 && !gn__dtypes[j.out.dtype].narrow && ((uintptr_t)j.out.p & 63) == 0 && gn__view_count(&j.out) * (int64_t)gn__bytes_of(j.out.dtype) >= GN__STREAM_BYTES;
    int64_t share = tiles / (16 * ((int64_t)r->cpu->pool.n_threads + 1));        /* registers are allocated and filled for each range */
    gn__pool_for(&r->cpu->pool, tiles, GN__MAX(share, 16), gn__loop_range, &j);
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
    gn__held *memory = (gn__held *)gn_alloc((p->part->n_args + 1) * (sizeof *memory + sizeof *r.copies));
    r.copies = memory ? (char **)(void *)(memory + p->part->n_args + 1) : NULL;
    gn_result e = memory ? gn__run_bind(&r) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a run");
    if (e == GN_OK) gn__run_place_outs(&r, outs, memory);
    for (size_t i = 0; i < p->layout.n_steps && e == GN_OK; i++) e = gn__run_kernel(&r, &p->layout.steps[i]);
    if (e == GN_OK) e = gn__run_outs(&r, outs);
    if (e == GN_OK) gn__run_commit(&r);
    gn__run_undo(&r, e != GN_OK);
    c->stats->kernels_run += p->layout.n_steps;
    c->stats->nodes_fused += p->layout.fused;
    for (uint32_t i = 0; i < r.n_copies; i++) gn_free(r.copies[i]);
    gn_free(memory);
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
    const gn__pool *p = &((const gn__cpu *)self)->pool;
    char blas[96] = "own";
    if (p->blas) gn__blas_identity(p->blas, blas, sizeof blas);
    int n = snprintf(out->identity, sizeof out->identity, "cpu genie " GN_VERSION " isa %s blas %s libm %s compiler ", gn__isa_names[p->isa], blas, libm);
#if defined(__VERSION__)
    if (n > 0 && (size_t)n < sizeof out->identity) gn__copy_text(out->identity + n, sizeof out->identity - (size_t)n, __VERSION__);
#else
    (void)n;
#endif
}

static const gn_exec_i gn__cpu_i = { gn__cpu_close, gn__cpu_slot_put, gn__cpu_slot_drop, gn__cpu_plan_make, gn__cpu_plan_destroy,
                                     gn__cpu_submit, gn__cpu_wait, gn__cpu_values_release, gn__cpu_describe, NULL, NULL, NULL, NULL, NULL };

static uint32_t gn__thread_count(uint32_t wanted) {
    const char *env = getenv("GENIE_THREADS");
    long n = wanted ? (long)wanted : env ? strtol(env, NULL, 10) : 0;
    return n > 0 && n <= 1024 ? (uint32_t)n : gn__core_count();
}

/* ---- GENIE_BLAS=auto: OpenBLAS or our own products, whichever was measured to be faster. Measured once, kept for this process
 * and in a file of $GENIE_CACHE (else ~/.cache/genie) named after all that the choice depends on: results stay repeatable ---- */

typedef struct gn__blas_choice { char key[320]; bool better; } gn__blas_choice;
static gn__blas_choice gn__blas_choices[8];            /* under gn__blas_lock */

#ifdef _WIN32
static bool gn__choice_read(gn__blas_choice *c) { (void)c; return false; }
static bool gn__choice_write(gn__blas_choice *c, double own, double other) { (void)c; (void)own; (void)other; return false; }
#else
static bool gn__choice_path(const char *key, char *out, size_t cap) {
    const char *place = getenv("GENIE_CACHE"), *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME"), *tail = "";
    if (!place || !*place) { place = xdg && *xdg ? xdg : home; tail = place == xdg ? "/genie" : "/.cache/genie"; }
    if (!place || !*place) return false;
    int n = snprintf(out, cap, "%s%s/blas-%016llx", place, tail, (unsigned long long)gn__hash_bytes(key, strlen(key), 0));
    if (n <= 0 || (size_t)n >= cap) return false;
    for (char *p = out + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(out, 0700);
        *p = '/';
    }
    return true;
}

/* The file: what it is, the key, the choice, what was measured, then the hash of all that. 0: it does not fit. */
static size_t gn__choice_text(const gn__blas_choice *c, const char *figures, char *out, size_t cap) {
    int n = snprintf(out, cap, "genie blas 1\n%s\n%s\n%s\n", c->key, c->better ? "openblas" : "own", figures);
    if (n <= 0 || (size_t)n + 18 > cap) return 0;
    return (size_t)n + (size_t)snprintf(out + n, cap - (size_t)n, "%016llx\n", (unsigned long long)gn__hash_bytes(out, (size_t)n, 0));
}

/* False unless the file is whole and of this key. */
static bool gn__choice_read(gn__blas_choice *c) {
    char path[600], got[600] = { 0 }, want[600], figures[64] = { 0 };
    FILE *file = gn__choice_path(c->key, path, sizeof path) ? fopen(path, "rb") : NULL;
    size_t n = file ? fread(got, 1, sizeof got - 1, file) : 0, skip = 13 + strlen(c->key) + 1;
    if (file) fclose(file);
    if (n < skip + 18) return false;
    c->better = strncmp(got + skip, "openblas\n", 9) == 0;
    const char *line = got + skip + (c->better ? 9 : 4), *end = strchr(line, '\n');
    if (!end || (size_t)(end - line) >= sizeof figures) return false;
    memcpy(figures, line, (size_t)(end - line));
    return gn__choice_text(c, figures, want, sizeof want) == n && memcmp(want, got, n) == 0;
}

/* Written beside and put in place whole. When another process was quicker its choice counts, and is read. */
static bool gn__choice_write(gn__blas_choice *c, double own, double other) {
    char path[600], aside[640], text[600], figures[64];
    snprintf(figures, sizeof figures, "%.1f %.1f GFLOP/s", own, other);
    size_t n = gn__choice_text(c, figures, text, sizeof text);
    if (!n || !gn__choice_path(c->key, path, sizeof path)) return false;
    snprintf(aside, sizeof aside, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(aside, "wb");
    bool ok = file && fwrite(text, 1, n, file) == n;
    if (file) ok = fclose(file) == 0 && ok;
    gn__blas_choice there = *c;
    bool placed = ok && link(aside, path) == 0;
    if (ok && !placed && errno == EEXIST && gn__choice_read(&there)) { *c = there; placed = true; }
    if (ok && !placed) placed = rename(aside, path) == 0;
    unlink(aside);
    return placed;
}
#endif

/* Seconds of the quickest of some products each of our own and of BLAS, in turn. */
static bool gn__blas_measure(gn__pool *pool, const gn__blas *b, int64_t side, double *out_own, double *out_other) {
    size_t n = (size_t)(side * side);
    float *x = (float *)gn_alloc(3 * n * sizeof *x);
    if (!x) return false;
    for (size_t i = 0; i < 3 * n; i++) x[i] = (float)(i % 251) * 0x1p-8f;
    gn__gemm g = { .m = side, .n = side, .k = side, .a = (char *)x, .b = (char *)(x + n), .c = (char *)(x + 2 * n), .am = side, .ak = 1, .bk = side, .bn = 1, .dtype = GN_F32 };
    bool ok = true;
    uint64_t begin = gn_now_us();
    *out_own = *out_other = INFINITY;
    for (int i = 0; i < 12 && ok; i++) {                   /* the first of each warms up */
        uint64_t from = gn_now_us();
        pool->blas = i & 1 ? b : NULL;
        ok = gn__gemm_run(&g, pool);
        double spent = (double)GN__MAX(gn_now_us() - from, 1u) * 1e-6, *least = i & 1 ? out_other : out_own;
        if (i > 1) *least = GN__MIN(*least, spent);
        if (i >= 3 && i & 1 && gn_now_us() - begin > 50000) break;
    }
    pool->blas = NULL;
    gn_free(x);
    return ok;
}

static bool gn__blas_choose_new(gn__cpu *c, const gn__blas *b, gn__blas_choice *choice, const gn_exec_desc *d) {
    const int64_t side = 512;
    double own, other, flops = 2e-9 * (double)(side * side * side);
    if (gn__choice_read(choice)) return true;
    if (!gn__blas_measure(&c->pool, b, side, &own, &other)) return false;
    choice->better = other * 1.05 < own;                   /* by more than noise */
    bool kept = gn__choice_write(choice, flops / own, flops / other);
    gn_logf(d->log, d->log_user, kept ? GN_LOG_INFO : GN_LOG_WARN, "GENIE_BLAS=auto: products of our own %.1f GFLOP/s, of OpenBLAS %.1f: %s%s", flops / own, flops / other,
            choice->better ? "OpenBLAS" : "our own", kept ? "" : "; the choice cannot be stored, another process may choose otherwise");
    return true;
}

static gn_result gn__blas_choose(gn__cpu *c, const gn__blas *b, const gn_exec_desc *d, gn_fault *f) {
    gn__blas_choice now;
    char library[128];
    size_t at = 0;
    bool ok = true;
    gn__blas_identity(b, library, sizeof library);
    snprintf(now.key, sizeof now.key, "genie " GN_VERSION " isa %s %u threads, %s", gn__isa_names[c->pool.isa], c->pool.n_threads + 1, library);
    gn__mutex_lock(&gn__blas_lock);
    while (at < GN__LENGTH(gn__blas_choices) - 1 && gn__blas_choices[at].key[0] && strcmp(gn__blas_choices[at].key, now.key) != 0) at++;
    if (strcmp(gn__blas_choices[at].key, now.key) == 0) now = gn__blas_choices[at];
    else if ((ok = gn__blas_choose_new(c, b, &now, d))) gn__blas_choices[at] = now;
    gn__mutex_unlock(&gn__blas_lock);
    if (!ok) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to measure matrix products");
    c->pool.blas = now.better ? b : NULL;
    return GN_OK;
}

static gn_result gn__cpu_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn__cpu *c = (gn__cpu *)gn__alloc_zero(sizeof *c);
    if (!c || !gn__pool_init(&c->pool, gn__thread_count(d->threads))) { gn_free(c); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for the CPU executor"); }
    c->stats = d->stats;
    c->limit = d->memory_limit;
    bool measure;
    gn_result r = gn__blas_open(c->pool.n_threads + 1, &c->pool.blas, &measure, f);
    if (r == GN_OK && measure && c->pool.blas) r = gn__blas_choose(c, c->pool.blas, d, f);
    if (r != GN_OK) { gn__cpu_close(c); return r; }
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

/* ---- several devices as one executor ----
 * A part is cut into pieces, each of one device, by a schedule. What one device computes and another reads goes through the
 * program's memory: an output of one piece, an argument of the next. The same code puts the CPU beside a device that lacks
 * kernels; then the schedule is "all on the device but what it refuses". */

enum { GN__UNITS_MAX = 32, GN__SPLITS_MAX = 8, GN__MEASURE_US = 1000 };
enum { GN__WATCH_US = 100000, GN__WATCH_SHARE = 100 };        /* least time between two measurements; and as many times what one took */
enum { GN__DRIFT_ROUNDS = 3, GN__PATIENCE_MOST = 16 };        /* in a row; times that, for a plan that was looked at in vain */
#define GN__DRIFT 1.5                                         /* a cost that differs by less is the same cost */
#define GN__DRIFT_SHARE 0.05                                  /* and so is a delay that differs by less than this share of a step */
#define GN__WORTH 1.2                                         /* a new placement is so much better by the model */
#define GN__NOTHING UINT32_MAX

typedef struct gn__refusal { uint16_t op; uint8_t dtype; } gn__refusal;   /* dtype: of the first input, else of the result */

/* Measures a device and its link again, in little time. Seconds that fixed work took on the device, 0: not known. */
typedef double (*gn__probe_fn)(void *self);

/* A fixed piece of work: data of n elements comes back, or its product with itself does. */
enum { GN__PROBE_SMALL = 64, GN__PROBE_SIDE = 128 };
typedef struct gn__probe { void *plan; float *x, *y; size_t bytes; } gn__probe;

/* A quantity measured again and again: the median of the last three, averaged. One odd value changes nothing. */
typedef struct gn__steady { double last[3]; uint32_t n; } gn__steady;

typedef struct gn__device {          /* one of the devices */
    gn_exec exec;
    char name[96];
    gn_stats stats, *counts;       /* its own counters, when several devices were named; those that count */
    uint64_t last;                 /* ticket of its latest run */
    struct { uint64_t ticket; const struct gn__piece *piece; } recent[16];   /* whose nodes an error names */
    uint32_t n_recent;
    bool busy;                     /* that run has not been waited for */
    bool sync;                     /* submit returns when the run has ended */
    bool lost;
    char cause[160];               /* lost: why */
    uint64_t next_value;           /* id of the next value kept there */
    GN__ARRAY(gn__refusal, refusals);
    uint8_t ops[GN__WIRE_OPS];     /* for the scheduler: those it can run */
    gn_cluster_device costs;
    gn_cluster_link up, down;      /* from the program to it and back */
    gn__probe_fn probe;            /* NULL: it is not measured again */
    void *probe_self;
    gn__probe again;               /* of a CPU of this machine */
    gn__steady work;               /* seconds of the fixed work */
    double work_now, work_first;   /* averaged; when it was first measured, 0: not yet */
} gn__device;

typedef struct gn__multi_slot {
    gn_slot_desc d;                /* kind GN_LEAF_NONE: free. host: of a state its copy until it is on a device */
    uint32_t own;                  /* generation on the devices: a new one each time it is put */
    uint32_t on;                   /* bit d: device d has it */
    uint32_t home;                 /* of a state; GN_UNPLACED: none yet */
    bool failed;                   /* written by a step that failed elsewhere */
} gn__multi_slot;

typedef struct gn__multi_value { uint64_t id, own; uint32_t device; } gn__multi_value;

typedef struct gn__multi {
    gn__device *units;
    uint32_t n_units, next_own, n_failed;   /* n_failed: states */
    bool beside;                   /* unit 0 is the device, unit 1 (opened when needed) the CPU beside it */
    gn_exec_desc desc;             /* beside: of the CPU. strict, log and counters of both kinds */
    gn_policy policy;
    gn_cluster_device *given;      /* instead of the devices' own costs, NULL: those */
    gn_cluster_link *given_links;
    bool watch;                    /* plans are placed anew when costs have changed */
    uint32_t turn, round;          /* the device that is measured next; times that all were */
    uint64_t measure_us;           /* when */
    gn_trace_fn trace;
    void *trace_user;
    GN__ARRAY(gn__multi_slot, slots);
    GN__ARRAY(gn__multi_value, values);   /* ids rise */
} gn__multi;

enum { GN__IN_SLOT, GN__IN_ARG, GN__IN_TEMP, GN__IN_CROSS };   /* what a leaf of a piece is */
typedef struct gn__piece_in { uint32_t node, from; uint8_t how; } gn__piece_in;   /* from: argument of the part, temp or crossing */
typedef struct gn__piece_out { uint32_t node, temp, cross, whole; } gn__piece_out;   /* whole: output of the part. GN__NOTHING: not that */
enum { GN__PIECE_WAITS, GN__PIECE_SENT, GN__PIECE_DONE };

typedef struct gn__piece {
    uint32_t device, n_scheduled;
    const uint32_t *scheduled;     /* nodes of the part, in topological order */
    GN__ARRAY(uint32_t, ops);      /* these, and views that are made again, before their readers */
    GN__ARRAY(gn__piece_in, ins);
    GN__ARRAY(gn__piece_out, outs);
    GN__ARRAY(gn_part_update, updates);   /* node: of the part */
    GN__ARRAY(uint32_t, needs);    /* pieces whose crossings it reads */
    gn_part *part;                 /* NULL: nothing to run */
    void *plan;
    uint64_t in_bytes;             /* of needs */
    uint32_t *origin;              /* node of the whole part, per node */
    gn_arg *args;
    gn_out *run_outs;
    uint64_t ticket;
    uint8_t at;
} gn__piece;

typedef struct gn__cross { size_t offset, bytes; uint32_t node, piece; } gn__cross;

typedef struct gn__split {         /* one way to run a part */
    gn__piece *pieces;             /* those that fetch leaves, one a device; the segments; those that write states, one a device */
    uint32_t n_pieces, n_run, only;       /* n_run: that do something; only: the one, if it is one */
    uint32_t devices;              /* bits */
    uint32_t n_temps, n_updates;
    uint64_t *temps;               /* ids of this run */
    char *memory;                  /* of the crossings */
    gn_schedule schedule;
    uint32_t *stamps;              /* per node: device of a value, generation of a slot's leaf: the split is for these */
    uint32_t *update_stamps;
    gn_cluster_device *devices_then;      /* the costs that it was placed by, or found to be right for; NULL: the device beside the CPU */
    gn_cluster_link *links_then;
    uint32_t round, streak, patience;     /* of costs: the latest looked at, how many in a row differed, how many it takes */
    uint64_t runs, pays_at;               /* from how many runs on states should move, 0: they should not */
    gn__forecast was;                     /* of the split that this one replaced, and bytes of states that moved for it */
    uint64_t moved_bytes;
    GN__ARRAY(gn__cross, crosses);
} gn__split;

typedef struct gn__multi_plan {
    gn_part *part;
    gn__split *splits[GN__SPLITS_MAX];
    uint32_t n_splits;
} gn__multi_plan;

/* ---- tables while a split is made ---- */

typedef struct gn__splitter {
    gn__multi *m;
    const gn_part *part;
    gn__split *s;
    uint32_t *computed, *received;   /* [device * n_nodes + node]: 1 + piece that computes it there first, that got it there first */
    uint32_t *first;                 /* 1 + piece that computes it first of all */
    uint32_t *here;                  /* 1 + piece in which it was met last */
    uint32_t *home;                  /* of state and value leaves: device */
    uint32_t *writer;                /* per update: piece */
    uint32_t *index;                 /* node in the piece's part */
    bool *fetched;                   /* a leaf that the first piece of its device has */
    gn__split *old;                  /* the split that is to be replaced if that wins, else NULL */
    bool stays;                      /* it does not */
} gn__splitter;

static void gn__piece_free(gn__multi *m, gn__piece *x) {
    gn__device *u = &m->units[x->device];
    for (size_t i = 0; i < GN__LENGTH(u->recent); i++)
        if (u->recent[i].piece == x) u->recent[i].piece = NULL;
    if (x->plan) u->exec.i->plan_destroy(u->exec.self, x->plan);
    void *const arrays[] = { x->ops, x->ins, x->outs, x->updates, x->needs, x->part, x->origin, x->args, x->run_outs };
    for (size_t i = 0; i < GN__LENGTH(arrays); i++) gn_free(arrays[i]);
}

static void gn__split_free(gn__multi *m, gn__split *s) {
    if (!s) return;
    for (uint32_t i = 0; s->pieces && i < s->n_pieces; i++) gn__piece_free(m, &s->pieces[i]);
    void *const arrays[] = { s->pieces, s->temps, s->memory, s->stamps, s->update_stamps, s->devices_then, s->links_then, s->crosses };
    for (size_t i = 0; i < GN__LENGTH(arrays); i++) gn_free(arrays[i]);
    gn__schedule_deinit(&s->schedule);
    gn_free(s);
}

static const gn__multi_value *gn__multi_value_find(const gn__multi *m, uint64_t id) {
    size_t lo = 0, hi = m->n_values;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (m->values[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < m->n_values && m->values[lo].id == id ? &m->values[lo] : NULL;
}

static gn__multi_slot *gn__multi_slot_find(gn__multi *m, uint32_t slot, uint32_t gen) {
    return slot < m->n_slots && m->slots[slot].d.kind != GN_LEAF_NONE && m->slots[slot].d.gen == gen ? &m->slots[slot] : NULL;
}

/* ---- what a device cannot do, and what it is ---- */

static gn__refusal gn__refusal_of(const gn_part *p, uint32_t node) {
    const gn_part_node *n = &p->nodes[node];
    return (gn__refusal){ n->op, n->n_ins ? p->nodes[p->ins[n->ins]].dtype : n->dtype };
}

static bool gn__device_refuses(const gn__device *u, const gn_part *p, uint32_t node) {
    gn__refusal r = gn__refusal_of(p, node);
    for (size_t i = 0; i < u->n_refusals; i++)
        if (u->refusals[i].op == r.op && u->refusals[i].dtype == r.dtype) return true;
    return false;
}

/* An error of a device: whether it is the end of the device, which is then named. */
static gn_result gn__device_error(gn__device *u, gn_result r, gn_fault *f) {
    gn_fault why = f ? *f : (gn_fault){ r, GN_NO_NODE, "" };
    if (r == GN_OK || r == GN_NO_VALUE) return r;
    if (!u->lost && (r == GN_DEVICE_LOST || u->exec.i->wait(u->exec.self, 0, NULL) == GN_DEVICE_LOST)) {
        u->lost = true;
        gn__copy_text(u->cause, sizeof u->cause, why.text);
    }
    if (!u->lost) return r;
    gn_fail(f, GN_DEVICE_LOST, "%s is lost: %s", u->name, u->cause);
    if (f) f->node = why.node;
    return GN_DEVICE_LOST;
}

static gn_result gn__device_is_lost(const gn__device *u, uint32_t node, const char *what, gn_fault *f) {
    gn_fail(f, GN_DEVICE_LOST, "%s %s, which is lost: %s", what, u->name, u->cause);
    if (f) f->node = node;
    return GN_DEVICE_LOST;
}

/* Waits for what the device was given before. */
static gn_result gn__device_settle(gn__device *u, gn_fault *f) {
    if (!u->busy) return GN_OK;
    u->busy = false;
    gn_result r = gn__device_error(u, u->exec.i->wait(u->exec.self, u->last, f), f);
    if (f) f->node = GN_NO_NODE;          /* of another plan */
    return r;
}

/* ---- slots ---- */

static gn_result gn__multi_put(gn__multi *m, uint32_t slot, uint32_t device, gn_fault *f) {
    gn__multi_slot *s = &m->slots[slot];
    gn__device *u = &m->units[device];
    gn_slot_desc d = s->d;
    if (s->on >> device & 1) return GN_OK;
    d.gen = s->own;
    gn_result r = gn__device_error(u, u->exec.i->slot_put(u->exec.self, &d, f), f);
    if (r) return r;
    s->on |= 1u << device;
    if (d.kind != GN_LEAF_STATE) return GN_OK;
    s->home = device;
    if (!m->beside) gn_free((void *)(uintptr_t)s->d.host);
    s->d.host = NULL;
    return GN_OK;
}

static gn_result gn__multi_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) {
    gn__multi *m = (gn__multi *)self;
    size_t old = m->cap_slots;
    void *copy = NULL;
    if (d->slot >= GN__SLOTS_MAX) return gn_fail(f, GN_LIMIT, "slot %u is past the %d that are possible", d->slot, GN__SLOTS_MAX);
    if (!GN__GROW(m, slots, GN__MAX(d->slot + 1, m->n_slots) - m->n_slots)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for slot %u", d->slot);
    if (m->cap_slots > old) memset(m->slots + old, 0, (m->cap_slots - old) * sizeof *m->slots);
    m->n_slots = GN__MAX(m->n_slots, (size_t)d->slot + 1);
    if (d->kind == GN_LEAF_STATE && d->host && !m->beside) {   /* its home is known when it is first used */
        copy = gn_alloc(d->bytes);
        if (!copy) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a state of %zu bytes", d->bytes);
        memcpy(copy, d->host, d->bytes);
    }
    gn__multi_slot *s = &m->slots[d->slot];
    *s = (gn__multi_slot){ *d, ++m->next_own, 0, GN_UNPLACED, false };
    if (copy) s->d.host = copy;
    if (!m->beside) return GN_OK;
    gn_result r = gn__multi_put(m, d->slot, 0, f);
    if (r) memset(s, 0, sizeof *s);
    return r;
}

static gn_result gn__multi_slot_drop(void *self, uint32_t slot, uint32_t gen) {
    gn__multi *m = (gn__multi *)self;
    gn__multi_slot *s = gn__multi_slot_find(m, slot, gen);
    if (!s) return GN_STALE_HANDLE;
    for (uint32_t d = 0; d < m->n_units; d++)
        if ((s->on >> d & 1) && !m->units[d].lost) m->units[d].exec.i->slot_drop(m->units[d].exec.self, slot, s->own);
    if (s->d.kind == GN_LEAF_STATE && !m->beside) gn_free((void *)(uintptr_t)s->d.host);
    m->n_failed -= s->failed;
    memset(s, 0, sizeof *s);
    return GN_OK;
}

/* Takes a state from its home to another device, where it stays. */
static gn_result gn__multi_move(gn__multi *m, uint32_t slot, uint32_t to, gn_fault *f) {
    gn__multi_slot *s = &m->slots[slot];
    gn__device *u = &m->units[s->home];
    gn_part_node leaf = { .op = (uint16_t)gn__op_leaf(GN_LEAF_STATE), .dtype = (uint8_t)s->d.dtype, .leaf = GN_LEAF_STATE, .rank = (uint8_t)s->d.shape.rank, .slot = slot, .gen = s->own };
    uint32_t node = 0;
    gn_part part = { .n_nodes = 1, .n_dims = leaf.rank, .n_outs = 1, .nodes = &leaf, .dims = s->d.shape.dims, .outs = &node };
    void *plan = NULL, *host = gn__alloc_zero(s->d.bytes);
    if (!host) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to move a state of %zu bytes", s->d.bytes);
    gn_out out = { host, s->d.bytes, 0 };
    part.hash = gn__part_hash(&part);
    gn_result r = gn__device_error(u, u->exec.i->plan_make(u->exec.self, &part, &plan, f), f);
    if (!r) r = gn__device_error(u, u->exec.i->submit(u->exec.self, plan, NULL, &out, &u->last, f), f);
    if (!r) r = gn__device_error(u, u->exec.i->wait(u->exec.self, u->last, f), f);
    if (plan) u->exec.i->plan_destroy(u->exec.self, plan);
    if (r && r != GN_NO_VALUE) { gn_free(host); return r; }
    u->exec.i->slot_drop(u->exec.self, slot, s->own);
    s->d.host = host;
    s->on = 0;
    s->own = ++m->next_own;
    s->home = GN_UNPLACED;
    m->units[to].counts->transfers++;
    m->units[to].counts->transfer_bytes += s->d.bytes;
    return gn__multi_put(m, slot, to, f);
}

/* ---- a split, first pass: which piece needs what of which ---- */

/* The entry of a node among a piece's outputs; GN__NOTHING without memory. */
static uint32_t gn__piece_out_at(gn__piece *x, uint32_t node) {
    for (size_t i = x->n_outs; i-- > 0;)
        if (x->outs[i].node == node) return (uint32_t)i;
    if (!GN__GROW(x, outs, 1)) return GN__NOTHING;
    x->outs[x->n_outs] = (gn__piece_out){ node, GN__NOTHING, GN__NOTHING, GN__NOTHING };
    return (uint32_t)x->n_outs++;
}

static bool gn__piece_take(gn__splitter *k, uint32_t piece, uint32_t node, uint8_t how, uint32_t from) {
    gn__piece *x = &k->s->pieces[piece];
    if (!GN__GROW(x, ins, 1)) return false;
    x->ins[x->n_ins++] = (gn__piece_in){ node, from, how };
    k->here[node] = piece + 1;
    return true;
}

/* `piece` reads what an earlier piece of its device has or had. */
static bool gn__piece_keep(gn__splitter *k, uint32_t piece, uint32_t node, uint32_t source) {
    uint32_t o = gn__piece_out_at(&k->s->pieces[source], node);
    if (o == GN__NOTHING) return false;
    gn__piece_out *out = &k->s->pieces[source].outs[o];
    if (out->temp == GN__NOTHING) out->temp = k->s->n_temps++;
    return gn__piece_take(k, piece, node, GN__IN_TEMP, out->temp);
}

/* `piece` reads what a piece of another device computes or fetches. */
static bool gn__piece_cross(gn__splitter *k, uint32_t piece, uint32_t node, uint32_t source) {
    gn__split *s = k->s;
    gn__piece *x = &s->pieces[piece];
    gn__type t = gn__part_type(k->part, node);
    GN_ASSERT(source < piece);
    uint32_t o = gn__piece_out_at(&s->pieces[source], node);
    if (o == GN__NOTHING || !GN__GROW(s, crosses, 1) || !GN__GROW(x, needs, 1)) return false;
    gn__piece_out *out = &s->pieces[source].outs[o];
    if (out->cross == GN__NOTHING) {
        const gn__cross *last = s->n_crosses ? &s->crosses[s->n_crosses - 1] : NULL;
        out->cross = (uint32_t)s->n_crosses;
        s->crosses[s->n_crosses++] = (gn__cross){ last ? last->offset + gn__room(last->bytes) : 0, gn__type_bytes(&t), node, source };
    }
    x->needs[x->n_needs++] = source;
    x->in_bytes += gn__type_bytes(&t);
    k->received[x->device * (size_t)k->part->n_nodes + node] = piece + 1;
    return gn__piece_take(k, piece, node, GN__IN_CROSS, out->cross);
}

/* The piece that has written a state's new version when `piece` begins; GN__NOTHING: none. */
static uint32_t gn__split_written(const gn__splitter *k, uint32_t leaf, uint32_t piece) {
    const gn_part_node *n = &k->part->nodes[leaf];
    for (uint32_t u = 0; u < k->part->n_updates; u++)
        if (k->part->updates[u].slot == n->slot && k->writer[u] < piece) return k->writer[u];
    return GN__NOTHING;
}

/* A leaf in the piece that runs before all others on its device. */
static bool gn__piece_fetch(gn__splitter *k, uint32_t device, uint32_t node) {
    const gn_part_node *n = &k->part->nodes[node];
    gn__piece *x = &k->s->pieces[device];
    bool slot = n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE;
    if (k->fetched[node]) return true;
    k->fetched[node] = true;
    if (!GN__GROW(x, ins, 1)) return false;
    x->ins[x->n_ins++] = (gn__piece_in){ node, n->arg, slot ? GN__IN_SLOT : GN__IN_ARG };
    return true;
}

/* A state's old value, kept by the piece that replaces it. */
static bool gn__piece_keep_old(gn__splitter *k, uint32_t piece, uint32_t node, uint32_t written) {
    const gn__piece *x = &k->s->pieces[written];
    bool there = false;
    for (size_t i = 0; i < x->n_ins && !there; i++) there = x->ins[i].node == node;
    return (there || gn__piece_take(k, written, node, GN__IN_SLOT, 0)) && gn__piece_keep(k, piece, node, written);
}

static bool gn__piece_import_leaf(gn__splitter *k, uint32_t piece, uint32_t node) {
    const gn_part_node *n = &k->part->nodes[node];
    uint32_t device = k->s->pieces[piece].device, home = k->home[node], *received = &k->received[device * (size_t)k->part->n_nodes + node];
    if (n->leaf == GN_LEAF_WEIGHT) return gn__piece_take(k, piece, node, GN__IN_SLOT, 0);
    if (*received) return gn__piece_keep(k, piece, node, *received - 1);
    if (n->leaf == GN_LEAF_DATA) {
        *received = piece + 1;
        return gn__piece_take(k, piece, node, GN__IN_ARG, n->arg);
    }
    if (home != device) return gn__piece_fetch(k, home, node) && gn__piece_cross(k, piece, node, home);
    if (n->leaf == GN_LEAF_VALUE) return gn__piece_take(k, piece, node, GN__IN_ARG, n->arg);
    uint32_t written = gn__split_written(k, node, piece);
    return written == GN__NOTHING ? gn__piece_take(k, piece, node, GN__IN_SLOT, 0) : gn__piece_keep_old(k, piece, node, written);
}

/* A view is made again from what it shows instead of being sent or kept: it costs nothing, it is not larger, and kernels see the
   strides that they see on one device, which decide the order of some sums. */
static bool gn__view_is_remade(const gn_part *p, uint32_t node) {
    const gn_part_node *n = &p->nodes[node];
    if (n->leaf || (n->op != GN__OP_PERMUTE && n->op != GN__OP_RESHAPE && n->op != GN__OP_BROADCAST)) return false;
    gn__type from = gn__part_type(p, p->ins[n->ins]), to = gn__part_type(p, node);
    return gn__type_bytes(&from) <= gn__type_bytes(&to);
}

static bool gn__piece_run(gn__splitter *k, uint32_t piece, uint32_t node) {
    gn__piece *x = &k->s->pieces[piece];
    if (!GN__GROW(x, ops, 1)) return false;
    x->ops[x->n_ops++] = node;
    k->here[node] = piece + 1;
    return true;
}

static bool gn__piece_import_value(gn__splitter *k, uint32_t piece, uint32_t node);

/* Makes a node's value known in the piece, unless it is. */
static bool gn__piece_import(gn__splitter *k, uint32_t piece, uint32_t node) {
    uint32_t *views = k->index, n = 0;     /* not used before the pieces' parts are made */
    while (k->here[node] != piece + 1 && gn__view_is_remade(k->part, node)) {
        views[n++] = node;
        node = k->part->ins[k->part->nodes[node].ins];
    }
    bool ok = gn__piece_import_value(k, piece, node);
    while (n > 0 && ok) ok = gn__piece_run(k, piece, views[--n]);
    return ok;
}

static bool gn__piece_import_value(gn__splitter *k, uint32_t piece, uint32_t node) {
    size_t at = k->s->pieces[piece].device * (size_t)k->part->n_nodes + node;
    if (k->here[node] == piece + 1) return true;
    if (k->part->nodes[node].leaf) return gn__piece_import_leaf(k, piece, node);
    if (k->computed[at] && k->computed[at] - 1 < piece) return gn__piece_keep(k, piece, node, k->computed[at] - 1);
    if (k->received[at]) return gn__piece_keep(k, piece, node, k->received[at] - 1);
    return gn__piece_cross(k, piece, node, k->first[node] - 1);
}

/* Pieces and what each computes, from the schedule. */
static bool gn__split_pieces(gn__splitter *k) {
    gn__split *s = k->s;
    const gn_schedule *plan = &s->schedule;
    uint32_t n = k->m->n_units;
    s->n_pieces = 2 * n + plan->n_segments;
    s->pieces = (gn__piece *)gn__alloc_zero(s->n_pieces * sizeof *s->pieces);
    if (!s->pieces) return false;
    for (uint32_t d = 0; d < n; d++) s->pieces[d].device = s->pieces[n + plan->n_segments + d].device = d;
    for (uint32_t i = 0; i < plan->n_segments; i++) {
        gn__piece *x = &s->pieces[n + i];
        x->device = plan->segments[i].device;
        x->scheduled = plan->nodes + plan->segments[i].first;
        x->n_scheduled = plan->segments[i].n;
        for (uint32_t o = 0; o < x->n_scheduled; o++) {
            uint32_t *c = &k->computed[x->device * (size_t)k->part->n_nodes + x->scheduled[o]];
            if (!*c) *c = n + i + 1;
            if (!k->first[x->scheduled[o]]) k->first[x->scheduled[o]] = n + i + 1;
        }
    }
    return true;
}

/* Each update is made by the piece that computes its value where the state lives, else by the last one there. */
static bool gn__split_updates(gn__splitter *k) {
    gn__split *s = k->s;
    for (uint32_t u = 0; u < k->part->n_updates; u++) {
        const gn_part_update *up = &k->part->updates[u];
        uint32_t home = k->m->slots[up->slot].home, c = k->computed[home * (size_t)k->part->n_nodes + up->node];
        k->writer[u] = c ? c - 1 : k->m->n_units + s->schedule.n_segments + home;
        gn__piece *x = &s->pieces[k->writer[u]];
        if (!GN__GROW(x, updates, 1)) return false;
        x->updates[x->n_updates++] = (gn_part_update){ up->slot, k->m->slots[up->slot].own, up->node };
    }
    s->n_updates = k->part->n_updates;
    return true;
}

static bool gn__split_inputs(gn__splitter *k) {
    gn__split *s = k->s;
    bool ok = true;
    for (uint32_t i = 0; i < s->n_pieces && ok; i++) {
        gn__piece *x = &s->pieces[i];
        for (uint32_t o = 0; o < x->n_scheduled && ok; o++) {
            const gn_part_node *n = &k->part->nodes[x->scheduled[o]];
            for (uint32_t e = 0; e < n->n_ins && ok; e++) ok = gn__piece_import(k, i, k->part->ins[n->ins + e]);
            ok = ok && gn__piece_run(k, i, x->scheduled[o]);
        }
        for (size_t u = 0; u < x->n_updates && ok && !x->n_scheduled; u++) ok = gn__piece_import(k, i, x->updates[u].node);
    }
    return ok;
}

/* The part's outputs: of the piece that computes them first, or of the one that fetches leaves. */
static bool gn__split_outputs(gn__splitter *k) {
    gn__split *s = k->s;
    for (uint32_t i = 0; i < k->part->n_outs; i++) {
        uint32_t node = k->part->outs[i], leaf = k->part->nodes[node].leaf;
        uint32_t piece = leaf == GN_LEAF_STATE || leaf == GN_LEAF_VALUE ? k->home[node] : leaf ? s->schedule.device[node] : k->first[node] - 1;
        if (leaf && !gn__piece_fetch(k, piece, node)) return false;
        gn__piece *x = &s->pieces[piece];
        uint32_t o = gn__piece_out_at(x, node);
        if (o == GN__NOTHING || !GN__GROW(x, outs, 1)) return false;
        if (x->outs[o].whole == GN__NOTHING) x->outs[o].whole = i;
        else x->outs[x->n_outs++] = (gn__piece_out){ node, GN__NOTHING, GN__NOTHING, i };   /* asked for twice */
    }
    return true;
}

/* ---- second pass: the pieces' own parts and plans ---- */

static gn__part_size gn__piece_size(const gn_part *p, const gn__piece *x) {
    gn__part_size n = { .n_nodes = (uint32_t)(x->n_ins + x->n_ops), .n_outs = (uint32_t)x->n_outs, .n_updates = (uint32_t)x->n_updates };
    for (size_t i = 0; i < x->n_ins; i++) {
        n.n_dims += p->nodes[x->ins[i].node].rank;
        n.n_args += x->ins[i].how != GN__IN_SLOT;
    }
    for (size_t i = 0; i < x->n_ops; i++) {
        const gn_part_node *o = &p->nodes[x->ops[i]];
        n.n_dims += o->rank;
        n.n_ins += o->n_ins;
        n.n_attrs += o->n_attrs;
    }
    return n;
}

typedef struct gn__piece_maker {
    gn__splitter *k;
    gn__piece *x;
    gn_part_node *nodes;
    uint32_t *ins, *args;
    int64_t *attrs, *dims;
    uint32_t n, n_ins, n_attrs, n_dims, n_args;
} gn__piece_maker;

static gn_part_node *gn__piece_node(gn__piece_maker *w, uint32_t node) {
    const gn_part *p = w->k->part;
    const gn_part_node *from = &p->nodes[node];
    gn_part_node *n = &w->nodes[w->n];
    *n = *from;
    n->ins = w->n_ins;
    n->attrs = w->n_attrs;
    n->dims = w->n_dims;
    for (uint32_t i = 0; i < from->rank; i++) w->dims[w->n_dims++] = p->dims[from->dims + i];
    w->k->index[node] = w->n;
    w->x->origin[w->n++] = node;
    return n;
}

static void gn__piece_leaf(gn__piece_maker *w, const gn__piece_in *in) {
    gn_part_node *n = gn__piece_node(w, in->node);
    gn_leaf_kind kind = in->how == GN__IN_SLOT || in->how == GN__IN_ARG ? (gn_leaf_kind)n->leaf : in->how == GN__IN_TEMP ? GN_LEAF_VALUE : GN_LEAF_DATA;
    n->op = (uint16_t)gn__op_leaf(kind);
    n->leaf = (uint8_t)kind;
    n->n_ins = 0;
    n->n_attrs = 0;
    if (in->how == GN__IN_SLOT) { n->gen = w->k->m->slots[n->slot].own; return; }
    n->slot = n->gen = 0;
    n->arg = w->n_args;
    w->args[w->n_args++] = w->n - 1;
}

static void gn__piece_op(gn__piece_maker *w, uint32_t node) {
    const gn_part *p = w->k->part;
    const gn_part_node *n = gn__piece_node(w, node);
    for (uint32_t i = 0; i < n->n_ins; i++) w->ins[w->n_ins++] = w->k->index[p->ins[p->nodes[node].ins + i]];
    for (uint32_t i = 0; i < n->n_attrs; i++) w->attrs[w->n_attrs++] = p->attrs[p->nodes[node].attrs + i];
}

static bool gn__piece_make(gn__splitter *k, gn__piece *x) {
    gn__part_size size = gn__piece_size(k->part, x);
    if (!size.n_nodes) return true;
    x->part = gn__part_alloc(&size);
    x->origin = (uint32_t *)gn_alloc(size.n_nodes * sizeof *x->origin);
    x->args = (gn_arg *)gn__alloc_zero((size.n_args + 1) * sizeof *x->args);
    x->run_outs = (gn_out *)gn__alloc_zero((size.n_outs + 1) * sizeof *x->run_outs);
    if (!x->part || !x->origin || !x->args || !x->run_outs) return false;
    gn__piece_maker w = { .k = k, .x = x, .nodes = (gn_part_node *)(uintptr_t)x->part->nodes, .ins = (uint32_t *)(uintptr_t)x->part->ins, .args = (uint32_t *)(uintptr_t)x->part->args,
                          .attrs = (int64_t *)(uintptr_t)x->part->attrs, .dims = (int64_t *)(uintptr_t)x->part->dims };
    for (size_t i = 0; i < x->n_ins; i++) gn__piece_leaf(&w, &x->ins[i]);
    for (size_t i = 0; i < x->n_ops; i++) gn__piece_op(&w, x->ops[i]);
    for (size_t i = 0; i < x->n_outs; i++) ((uint32_t *)(uintptr_t)x->part->outs)[i] = k->index[x->outs[i].node];
    for (size_t i = 0; i < x->n_updates; i++)
        ((gn_part_update *)(uintptr_t)x->part->updates)[i] = (gn_part_update){ x->updates[i].slot, x->updates[i].gen, k->index[x->updates[i].node] };
    x->part->hash = gn__part_hash(x->part);
    return true;
}

/* Weights and states that the piece names, on its device. */
static gn_result gn__piece_slots(gn__splitter *k, const gn__piece *x, gn_fault *f) {
    gn_result r = GN_OK;
    for (size_t i = 0; i < x->n_ins && !r; i++) {
        if (x->ins[i].how != GN__IN_SLOT) continue;
        r = gn__multi_put(k->m, k->part->nodes[x->ins[i].node].slot, x->device, f);
        if (r && f) f->node = x->ins[i].node;
    }
    for (size_t i = 0; i < x->n_updates && !r; i++) r = gn__multi_put(k->m, x->updates[i].slot, x->device, f);
    return r;
}

/* The device's plan of the piece. An error's node becomes one of the whole part. */
static gn_result gn__piece_plan(gn__splitter *k, gn__piece *x, gn_fault *f) {
    gn__device *u = &k->m->units[x->device];
    gn_result r = gn__piece_slots(k, x, f);
    if (r) return r;
    r = u->exec.i->plan_make(u->exec.self, x->part, &x->plan, f);
    if (f && r) f->node = f->node < x->part->n_nodes ? x->origin[f->node] : GN_NO_NODE;
    return gn__device_error(u, r, f);
}

static gn_result gn__split_finish(gn__splitter *k, uint32_t *out_device, gn_fault *f) {
    gn__split *s = k->s;
    bool ok = true;
    for (uint32_t i = 0; i < s->n_pieces && ok; i++) ok = gn__piece_make(k, &s->pieces[i]);
    const gn__cross *last = s->n_crosses ? &s->crosses[s->n_crosses - 1] : NULL;
    s->temps = (uint64_t *)gn__alloc_zero((s->n_temps + 1) * sizeof *s->temps);
    s->memory = (char *)gn__alloc_zero(last ? last->offset + gn__room(last->bytes) : 0);
    if (!ok || !s->temps || !s->memory) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to run a part on several devices");
    gn_result r = GN_OK;
    for (uint32_t i = 0; i < s->n_pieces && !r; i++) {
        gn__piece *x = &s->pieces[i];
        if (!x->part) continue;
        s->n_run++;
        s->only = i;
        s->devices |= 1u << x->device;
        *out_device = x->device;
        r = gn__piece_plan(k, x, f);
        for (size_t a = 0; a < x->n_ins; a++)
            if (x->ins[a].how == GN__IN_CROSS) x->args[x->part->nodes[a].arg] = (gn_arg){ s->memory + s->crosses[x->ins[a].from].offset, s->crosses[x->ins[a].from].bytes, 0 };
    }
    return r;
}

/* ---- schedules ---- */

/* Pieces from a device for each op: a new one begins where a value comes from another device. */
static bool gn__schedule_levels(const gn_part *p, gn_schedule *s) {
    uint32_t n = p->n_nodes, top = 0, n_ops = 0, devices = s->n_devices;
    uint32_t *level = (uint32_t *)gn__alloc_zero((n + 1) * sizeof *level);
    for (uint32_t i = 0; level && i < n; i++) {
        const gn_part_node *x = &p->nodes[i];
        for (uint32_t e = 0; e < x->n_ins; e++) {
            uint32_t in = p->ins[x->ins + e];
            if (!p->nodes[in].leaf) level[i] = GN__MAX(level[i], level[in] + (s->device[in] != s->device[i]));
        }
        top = GN__MAX(top, level[i]);
        n_ops += !x->leaf;
    }
    uint32_t *count = (uint32_t *)gn__alloc_zero(((size_t)(top + 1) * devices + 1) * sizeof *count);
    s->nodes = (uint32_t *)gn_alloc((n_ops + 1) * sizeof *s->nodes);
    s->segments = (gn_segment *)gn__alloc_zero(((size_t)(top + 1) * devices + 1) * sizeof *s->segments);
    bool ok = level && count && s->nodes && s->segments;
    for (uint32_t i = 0; ok && i < n; i++)
        if (!p->nodes[i].leaf) count[level[i] * devices + s->device[i] + 1]++;
    for (uint32_t c = 0; ok && c < (top + 1) * devices; c++) {
        if (count[c + 1]) s->segments[s->n_segments++] = (gn_segment){ .device = c % devices, .first = count[c], .n = count[c + 1] };
        count[c + 1] += count[c];
    }
    for (uint32_t i = 0; ok && i < n; i++)
        if (!p->nodes[i].leaf) s->nodes[count[level[i] * devices + s->device[i]]++] = i;
    gn_free(level);
    gn_free(count);
    return ok;
}

/* All on the device, what it refuses on the CPU beside it. Leaves are where the device is. */
static gn_result gn__schedule_beside(gn__multi *m, const gn_part *p, gn_schedule *s, gn_fault *f) {
    bool ok;
    s->n_nodes = p->n_nodes;
    s->n_devices = m->n_units;
    s->device = (uint32_t *)gn__alloc_zero((p->n_nodes + 1) * sizeof *s->device);
    for (uint32_t i = 0; s->device && i < p->n_nodes; i++) s->device[i] = !p->nodes[i].leaf && gn__device_refuses(&m->units[0], p, i);
    ok = s->device && gn__schedule_levels(p, s);
    return ok ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a schedule");
}

/* Which ops the scheduler may place there: none on a device that is lost. */
static void gn__device_ops(gn__device *u, gn_cluster_device *out) {
    for (size_t i = 0; i < sizeof u->ops; i++) u->ops[i] = u->lost ? 0 : !out->ops ? 0xff : i < out->n_ops ? out->ops[i] : 0;
    for (size_t i = 0; i < u->n_refusals; i++) u->ops[gn__ops[u->refusals[i].op].wire / 8] &= (uint8_t)~(1u << (gn__ops[u->refusals[i].op].wire % 8));
    if (!u->lost && !out->ops && !u->n_refusals) return;
    out->ops = u->ops;
    out->n_ops = sizeof u->ops;
}

static double gn__steady_add(gn__steady *s, double now, double v) {
    const double *x = s->last;
    if (s->n == 0) for (int i = 0; i < 3; i++) s->last[i] = now > 0 ? now : v;
    s->last[s->n++ % 3] = v;
    double low = GN__MIN(x[0], x[1]), high = GN__MAX(x[0], x[1]), median = GN__MAX(low, GN__MIN(high, x[2]));
    return now > 0 ? now + (median - now) / 4 : v;
}

/* What the device takes longer for now than when it was first measured again, it takes longer for everything. */
static void gn__device_pace(const gn__device *u, gn_cluster_device *c) {
    double pace = u->work_first > 0 ? u->work_now / u->work_first : 1;
    for (int i = 0; i < GN_RATE__COUNT; i++) c->flops_per_s[i] /= pace;
    c->bytes_per_s /= pace;
    c->launch_s *= pace;
}

/* Devices and links as they are known now. What goes from one device to another goes through the program. */
static void gn__multi_cluster(gn__multi *m, gn_cluster_device *devices, gn_cluster_link *links, gn_cluster *out) {
    uint32_t n = m->n_units;
    for (uint32_t d = 0; d < n; d++) {
        gn__device *u = &m->units[d];
        if (u->exec.i->costs) u->exec.i->costs(u->exec.self, &u->costs, &u->up, &u->down);
        devices[d] = u->costs;
        gn__device_pace(u, &devices[d]);
        if (m->given) { devices[d] = m->given[d]; devices[d].ops = u->costs.ops; devices[d].n_ops = u->costs.n_ops; }
        gn__copy_text(devices[d].name, sizeof devices[d].name, u->name);
        gn__device_ops(u, &devices[d]);
        links[n * (n + 1) + d] = u->up;
        links[d * (n + 1) + n] = u->down;
    }
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) {
            const gn_cluster_link *x = &m->units[a].down, *y = &m->units[b].up;
            double cost = (x->bytes_per_s > 0 ? 1 / x->bytes_per_s : 0) + (y->bytes_per_s > 0 ? 1 / y->bytes_per_s : 0);
            if (a != b) links[a * (n + 1) + b] = (gn_cluster_link){ x->latency_s + y->latency_s, cost > 0 ? 1 / cost : 0 };
        }
    if (m->given) memcpy(links, m->given_links, (size_t)(n + 1) * (n + 1) * sizeof *links);
    *out = (gn_cluster){ n, devices, links };
}

/* ---- whether another placement wins now ---- */

GN__COLD_BEGIN

static gn__forecast gn__forecast_of(const gn_schedule *s) { return (gn__forecast){ s->seconds, s->step_seconds, s->bytes }; }

/* Seconds that a step gains, by the policy, when that is enough to change for; else 0. */
static double gn__forecast_gain(gn_policy policy, const gn__forecast *from, const gn__forecast *to) {
    double a = policy == GN_MOST_THROUGHPUT ? from->step_seconds : from->seconds, b = policy == GN_MOST_THROUGHPUT ? to->step_seconds : to->seconds;
    if (policy == GN_LEAST_BYTES && (double)from->bytes >= GN__WORTH * (double)to->bytes && from->bytes > to->bytes) return GN__MAX(a - b, 1e-9);
    if (policy == GN_LEAST_BYTES && to->bytes > from->bytes) return 0;
    return a >= GN__WORTH * b ? a - b : 0;
}

/* Seconds that the states take to where the schedule wants them; *out_bytes: of those that move. */
static double gn__schedule_moves(const gn_part *p, const gn_cluster *c, const uint32_t *homes, const gn_schedule *s, uint64_t *out_bytes) {
    double seconds = 0;
    *out_bytes = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        if (p->nodes[i].leaf != GN_LEAF_STATE || !homes[i] || (homes[i] >> s->device[i] & 1)) continue;
        gn__type t = gn__part_type(p, i);
        const gn_cluster_link *l = &c->links[gn__first_bit(homes[i]) * (c->n_devices + 1) + s->device[i]];
        *out_bytes += gn__type_bytes(&t);
        seconds += l->latency_s + gn__sched_share((double)gn__type_bytes(&t), l->bytes_per_s);
    }
    return seconds;
}

/* The schedule as if no state lived anywhere, if it wins so much that the states' way is worth it. What a plan gains is taken
   for as many steps as it has run: so a move costs at most as much again as was lost by waiting for it. */
static gn_result gn__schedule_moved(gn__splitter *k, const gn_meaning *meaning, const gn_cluster *c, const uint32_t *homes, const gn__forecast *now, gn_fault *f) {
    const gn_part *p = k->part;
    uint32_t states = 0, *free_homes = (uint32_t *)gn__alloc_zero((p->n_nodes + 1u) * sizeof *free_homes);
    uint64_t bytes;
    gn_schedule s;
    if (!free_homes) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a schedule");
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        bool state = p->nodes[i].leaf == GN_LEAF_STATE;
        free_homes[i] = state ? 0 : homes[i];
        states += state && homes[i];
    }
    bool made = states && gn__schedule_make(p, meaning, c, k->m->policy, free_homes, &s, NULL) == GN_OK;
    gn_free(free_homes);
    if (!made) return GN_OK;
    gn__forecast to = gn__forecast_of(&s);
    double seconds = gn__schedule_moves(p, c, homes, &s, &bytes), gain = gn__forecast_gain(k->m->policy, now, &to);
    double pays_at = bytes && gain > 0 ? GN__MIN(seconds / gain, 1e15) + 1 : 0;
    if (pays_at > 0 && (double)k->old->runs >= pays_at) {
        gn__schedule_deinit(&k->s->schedule);
        k->s->schedule = s;
        k->stays = false;
        return GN_OK;
    }
    k->old->pays_at = k->s->pays_at = (uint64_t)pays_at;
    gn__schedule_deinit(&s);
    return GN_OK;
}

/* The split's new schedule is there: decides whether it is worth to change to it, or to one that moves states. */
static gn_result gn__schedule_again(gn__splitter *k, const gn_meaning *meaning, const gn_cluster *c, const uint32_t *homes, gn_fault *f) {
    const gn_part *p = k->part;
    gn__forecast now, to = gn__forecast_of(&k->s->schedule);
    bool same = true;
    gn_result r = gn__schedule_judge(p, meaning, c, k->m->policy, homes, k->old->schedule.device, &now, f);
    if (r) return r;
    for (uint32_t i = 0; i < p->n_nodes && same; i++) same = p->nodes[i].leaf || !p->nodes[i].n_ins || k->s->schedule.device[i] == k->old->schedule.device[i];
    k->stays = same || !(gn__forecast_gain(k->m->policy, &now, &to) > 0);
    r = gn__schedule_moved(k, meaning, c, homes, k->stays ? &now : &to, f);
    if (r || k->stays) {                                   /* right for the costs of now */
        gn_cluster_device *devices = k->old->devices_then;
        gn_cluster_link *links = k->old->links_then;
        k->old->devices_then = k->s->devices_then;
        k->old->links_then = k->s->links_then;
        k->s->devices_then = devices;
        k->s->links_then = links;
        return r;
    }
    k->s->patience = k->old->patience;
    k->s->was = now;
    gn__schedule_moves(p, c, homes, &k->s->schedule, &k->s->moved_bytes);
    return GN_OK;
}

GN__COLD_END

/* The costs of now, kept with the split. */
static gn_result gn__split_costs(gn__multi *m, gn__split *s, gn_cluster *out, gn_fault *f) {
    uint32_t n = m->n_units;
    s->devices_then = (gn_cluster_device *)gn__alloc_zero(n * sizeof *s->devices_then);
    s->links_then = (gn_cluster_link *)gn__alloc_zero((size_t)(n + 1) * (n + 1) * sizeof *s->links_then);
    if (!s->devices_then || !s->links_then) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a cluster");
    gn__multi_cluster(m, s->devices_then, s->links_then, out);
    s->round = m->round;
    s->patience = 1;
    return GN_OK;
}

/* By the cost model, over the devices that are left. */
static gn_result gn__schedule_several(gn__splitter *k, const uint32_t *homes, gn_fault *f) {
    gn_meaning meaning;
    gn_cluster cluster;
    gn_result r = gn__split_costs(k->m, k->s, &cluster, f);
    if (!r) r = gn__meaning_make(k->part, 0, &meaning, f);
    if (r) return r;
    r = gn__schedule_make(k->part, &meaning, &cluster, k->m->policy, homes, &k->s->schedule, f);
    if (!r && k->old) r = gn__schedule_again(k, &meaning, &cluster, homes, f);
    gn__meaning_deinit(&meaning);
    return r;
}

/* Where states and kept values are. A device that is lost takes them with it. */
static gn_result gn__splitter_homes(gn__splitter *k, uint32_t *homes, gn_fault *f) {
    gn__multi *m = k->m;
    for (uint32_t i = 0; i < k->part->n_nodes; i++) {
        const gn_part_node *n = &k->part->nodes[i];
        bool bound = n->leaf == GN_LEAF_NONE || n->leaf == GN_LEAF_STATE;   /* to what the program said */
        uint32_t on = k->part->hints && !m->beside && bound ? k->part->hints[i].on : 0, device = GN_UNPLACED;
        if (n->leaf == GN_LEAF_VALUE) device = k->home[i];
        else if (n->leaf == GN_LEAF_WEIGHT) homes[i] = m->slots[n->slot].on;
        else if (n->leaf == GN_LEAF_STATE && m->slots[n->slot].on) device = m->slots[n->slot].home;
        if (device != GN_UNPLACED && !m->units[device].lost) homes[i] = 1u << device;
        if (on && on <= m->n_units && m->units[on - 1].lost && device == GN_UNPLACED) return gn__device_is_lost(&m->units[on - 1], i, "the program wants this on", f);
        if (device != GN_UNPLACED && m->units[device].lost) return gn__device_is_lost(&m->units[device], i, n->leaf == GN_LEAF_STATE ? "this state lived on" : "this value was kept on", f);
    }
    return GN_OK;
}

/* States are where the schedule wants them from here on. */
static gn_result gn__splitter_settle(gn__splitter *k, gn_fault *f) {
    gn__multi *m = k->m;
    const gn_schedule *s = &k->s->schedule;
    for (uint32_t i = 0; i < k->part->n_nodes; i++) {
        const gn_part_node *n = &k->part->nodes[i];
        if (n->leaf != GN_LEAF_STATE) continue;
        gn__multi_slot *x = &m->slots[n->slot];
        gn_result r = x->on && x->home != s->device[i] ? gn__multi_move(m, n->slot, s->device[i], f) : GN_OK;
        if (r) { if (f) f->node = i; return r; }
        x->home = k->home[i] = s->device[i];
    }
    for (uint32_t u = 0; u < k->part->n_updates; u++) {
        gn__multi_slot *x = &m->slots[k->part->updates[u].slot];
        if (x->home == GN_UNPLACED) x->home = s->device[k->part->updates[u].node];
    }
    return GN_OK;
}

/* What the split is made for: where values are, which generation of slots. */
static void gn__split_stamp(gn__splitter *k) {
    gn__multi *m = k->m;
    for (uint32_t i = 0; i < k->part->n_nodes; i++) {
        const gn_part_node *n = &k->part->nodes[i];
        k->s->stamps[i] = n->leaf == GN_LEAF_VALUE ? k->home[i] : n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE ? m->slots[n->slot].own : 0;
    }
    for (uint32_t u = 0; u < k->part->n_updates; u++) k->s->update_stamps[u] = m->slots[k->part->updates[u].slot].own;
}

static gn_result gn__splitter_work(gn__splitter *k, uint32_t *homes, uint32_t *out_device, gn_fault *f) {
    gn_result r = gn__splitter_homes(k, homes, f);
    if (!r) r = k->m->beside ? gn__schedule_beside(k->m, k->part, &k->s->schedule, f) : gn__schedule_several(k, homes, f);
    if (!r && !k->stays) r = gn__splitter_settle(k, f);
    if (r || k->stays) return r;
    if (!gn__split_pieces(k) || !gn__split_updates(k) || !gn__split_inputs(k) || !gn__split_outputs(k)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to split a part");
    gn__split_stamp(k);
    return gn__split_finish(k, out_device, f);
}

/* One try. `old`: to replace this one; *out is NULL then when it may stay. *out_device: which device an error is of. */
static gn_result gn__split_try(gn__multi *m, const gn_part *p, const uint32_t *value_home, gn__split *old, gn__split **out, uint32_t *out_device, gn_fault *f) {
    size_t n = p->n_nodes + 1u, tables = (2u * m->n_units + 5) * n + p->n_updates;
    uint32_t *t = (uint32_t *)gn__alloc_zero(tables * sizeof *t);
    bool *fetched = (bool *)gn__alloc_zero(n * sizeof *fetched);
    gn__split *s = (gn__split *)gn__alloc_zero(sizeof *s);
    gn_result r = GN_OUT_OF_MEMORY;
    *out_device = 0;
    if (s) {
        s->stamps = (uint32_t *)gn__alloc_zero(n * sizeof *s->stamps);
        s->update_stamps = (uint32_t *)gn__alloc_zero((p->n_updates + 1) * sizeof *s->update_stamps);
    }
    if (t && fetched && s && s->stamps && s->update_stamps) {
        gn__splitter k = { m, p, s, t, t + m->n_units * n, t + 2 * m->n_units * n, t + (2 * m->n_units + 1) * n, t + (2 * m->n_units + 2) * n, t + (2 * m->n_units + 5) * n, t + (2 * m->n_units + 3) * n, fetched, old, false };
        memcpy(k.home, value_home, p->n_nodes * sizeof *k.home);
        r = gn__splitter_work(&k, t + (2 * m->n_units + 4) * n, out_device, f);
        if (k.stays) { gn__split_free(m, s); s = NULL; }
    } else gn_fail(f, r, "no memory to split a part");
    gn_free(t);
    gn_free(fetched);
    if (r) { gn__split_free(m, s); s = NULL; }
    *out = s;
    return r;
}

/* ---- what a device refuses runs elsewhere, unless that is forbidden ---- */

static void gn__multi_note(const gn__multi *m, const char *text) { gn_logf(m->desc.log, m->desc.log_user, GN_LOG_WARN, "%s", text); }

static gn_result gn__multi_open_beside(gn__multi *m, gn_fault *f);

/* The device has no kernel for a node: remembered, so that the next try places it elsewhere. GN_OK: try again. */
static gn_result gn__multi_refused(gn__multi *m, const gn_part *p, uint32_t device, gn_fault *f) {
    gn__device *u = &m->units[device];
    uint32_t node = f->node;
    if (node >= p->n_nodes || p->nodes[node].leaf || gn__device_refuses(u, p, node)) return f->result;
    gn__refusal x = gn__refusal_of(p, node);
    char text[512];
    snprintf(text, sizeof text, "%s of %s has no kernel on %s (%.200s)", gn__ops[x.op].name, gn__dtypes[x.dtype].name, u->name, f->text);
    if (m->desc.strict) { gn_fail(f, GN_STRICT, "%s; strict mode forbids to run it elsewhere", text); f->node = node; return GN_STRICT; }
    if (m->beside) {
        if (device != 0) return f->result;
        gn_result r = gn__multi_open_beside(m, f);
        if (r) return r;
    }
    if (!GN__GROW(u, refusals, 1)) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    u->refusals[u->n_refusals++] = x;
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, ": it runs %s", m->beside ? "on the CPU beside it" : "on another device");
    gn__multi_note(m, text);
    return GN_OK;
}

/* Ops that another device could not take. */
static uint32_t gn__split_fallbacks(const gn__multi *m, const gn_part *p, const gn__split *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        bool refused = false;
        for (uint32_t d = 0; d < m->n_units && !p->nodes[i].leaf; d++) refused |= d != s->schedule.device[i] && gn__device_refuses(&m->units[d], p, i);
        n += refused;
    }
    return n;
}

static gn_result gn__split_make(gn__multi *m, const gn_part *p, const uint32_t *value_home, gn__split **out, gn_fault *f) {
    gn_fault own;
    uint32_t device = 0;
    for (;;) {
        own = (gn_fault){ GN_OK, GN_NO_NODE, "" };
        gn_result r = gn__split_try(m, p, value_home, NULL, out, &device, &own);
        if (!r) { m->desc.stats->fallbacks += gn__split_fallbacks(m, p, *out); return GN_OK; }
        own.result = r;
        if (r == GN_UNSUPPORTED) r = gn__multi_refused(m, p, device, &own);
        if (!r) continue;
        own.result = r;
        if (f) *f = own;
        return r;
    }
}

/* ---- plans ---- */

static void gn__multi_plan_destroy(void *self, void *plan) {
    gn__multi_plan *p = (gn__multi_plan *)plan;
    for (uint32_t i = 0; i < p->n_splits; i++) gn__split_free((gn__multi *)self, p->splits[i]);
    gn_free(p->part);
    gn_free(p);
}

static bool gn__split_fits(const gn__multi *m, const gn_part *p, const gn__split *s, const gn_arg *args) {
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        if (n->leaf == GN_LEAF_NONE || n->leaf == GN_LEAF_DATA) continue;
        const gn__multi_value *v = n->leaf == GN_LEAF_VALUE ? gn__multi_value_find(m, args[n->arg].value) : NULL;
        if (s->stamps[i] != (n->leaf == GN_LEAF_VALUE ? v ? v->device : GN_UNPLACED : m->slots[n->slot].own)) return false;
    }
    for (uint32_t u = 0; u < p->n_updates; u++)
        if (s->update_stamps[u] != m->slots[p->updates[u].slot].own) return false;
    for (uint32_t d = 0; d < m->n_units; d++)
        if ((s->devices >> d & 1) && m->units[d].lost) return false;
    return true;
}

/* The latest one that fits; NULL: none. */
static gn__split *gn__split_fitting(const gn__multi *m, const gn__multi_plan *p, const gn_arg *args, uint32_t *out_at) {
    for (*out_at = p->n_splits; (*out_at)-- > 0;)
        if (gn__split_fits(m, p->part, p->splits[*out_at], args)) return p->splits[*out_at];
    return NULL;
}

/* Slots and values that the part names are there. */
static gn_result gn__multi_check(gn__multi *m, const gn_part *p, const gn_arg *args, uint32_t *value_home, gn_fault *f) {
    const char *why = NULL;
    gn_result r = GN_OK;
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n_nodes && !r; i++) {
        const gn_part_node *n = &p->nodes[i];
        at = i;
        if (n->leaf == GN_LEAF_VALUE) {
            const gn__multi_value *v = args ? gn__multi_value_find(m, args[n->arg].value) : NULL;
            if (v && value_home) value_home[i] = v->device;
            if (!v) { r = GN_STALE_HANDLE; why = "a kept value is gone"; }
        } else if (n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE) {
            const gn__multi_slot *s = gn__multi_slot_find(m, n->slot, n->gen);
            if (!s) { r = GN_STALE_HANDLE; why = "a weight or state is gone"; }
            else if (s->failed) { r = GN_STATE_FAILED; why = "a step that failed on another device had already written this state: release it and make it again"; }
        }
    }
    for (uint32_t u = 0; u < p->n_updates && !r; u++) {
        const gn__multi_slot *s = gn__multi_slot_find(m, p->updates[u].slot, p->updates[u].gen);
        at = p->updates[u].node;
        if (!s) { r = GN_STALE_HANDLE; why = "a state is gone"; }
        else if (s->failed) { r = GN_STATE_FAILED; why = "a step that failed on another device had already written this state: release it and make it again"; }
    }
    if (!r) return r;
    gn_fail(f, r, "%s", why);
    if (f) f->node = at;
    return r;
}

/* The split for where everything is now. */
static gn_result gn__split_find(gn__multi *m, gn__multi_plan *p, const gn_arg *args, gn__split **out, gn_fault *f) {
    uint32_t *value_home = (uint32_t *)gn__alloc_zero((p->part->n_nodes + 1) * sizeof *value_home);
    gn_result r = value_home ? gn__multi_check(m, p->part, args, value_home, f) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    if (!r) r = gn__split_make(m, p->part, value_home, out, f);
    gn_free(value_home);
    if (r) return r;
    if (p->n_splits == GN__SPLITS_MAX) {
        gn__split_free(m, p->splits[0]);
        memmove(p->splits, p->splits + 1, --p->n_splits * sizeof p->splits[0]);
    }
    p->splits[p->n_splits++] = *out;
    return GN_OK;
}

/* ---- costs that change ---- */

GN__COLD_BEGIN

static bool gn__rate_drifted(double a, double b) { return a > 0 && b > 0 && (a > GN__DRIFT * b || b > GN__DRIFT * a); }
static bool gn__delay_drifted(double a, double b, double step) { return (a > GN__DRIFT * b || b > GN__DRIFT * a) && fabs(a - b) > GN__DRIFT_SHARE * step; }

/* Whether devices and links cost other than when the split was made. Those that it does not use count: they may have become quick. */
static bool gn__split_drifted(const gn__split *s, const gn_cluster *c) {
    double step = s->schedule.seconds;
    for (uint32_t d = 0; d < c->n_devices; d++) {
        const gn_cluster_device *a = &s->devices_then[d], *b = &c->devices[d];
        bool drifted = gn__rate_drifted(a->bytes_per_s, b->bytes_per_s) || gn__delay_drifted(a->queue_s, b->queue_s, step);
        for (int i = 0; i < GN_RATE__COUNT; i++) drifted |= gn__rate_drifted(a->flops_per_s[i], b->flops_per_s[i]);
        if (drifted) return true;
    }
    for (uint32_t i = 0; i < (c->n_devices + 1) * (c->n_devices + 1); i++) {
        const gn_cluster_link *a = &s->links_then[i], *b = &c->links[i];
        if (gn__rate_drifted(a->bytes_per_s, b->bytes_per_s) || gn__delay_drifted(a->latency_s, b->latency_s, step)) return true;
    }
    return false;
}

/* Whether costs have differed for long enough, looked at once a round of measurements, or it has run so often that states should move. */
static bool gn__split_is_due(gn__multi *m, gn__split *s) {
    uint32_t n = m->n_units;
    gn_cluster c;
    bool pays = s->pays_at && s->runs >= s->pays_at;
    if ((s->round == m->round && !pays) || !s->devices_then) return false;
    for (uint32_t d = 0; d < n; d++)
        if (m->units[d].busy) return false;                /* its plans may be at work */
    s->pays_at = pays ? 0 : s->pays_at;
    if (pays) return true;
    gn_cluster_device *devices = (gn_cluster_device *)gn__alloc_zero(n * sizeof *devices);
    gn_cluster_link *links = (gn_cluster_link *)gn__alloc_zero((size_t)(n + 1) * (n + 1) * sizeof *links);
    s->round = m->round;
    if (devices && links) {
        gn__multi_cluster(m, devices, links, &c);
        s->streak = gn__split_drifted(s, &c) ? s->streak + 1 : 0;
    }
    gn_free(devices);
    gn_free(links);
    if (s->streak < (m->given ? 1 : GN__DRIFT_ROUNDS * s->patience)) return false;
    s->streak = 0;
    return true;
}

/* Counted, logged, traced. */
static void gn__split_told(gn__multi *m, const gn_part *p, const gn__split *old, const gn__split *s) {
    uint32_t ops = 0, moved = 0;
    bool steps = m->policy == GN_MOST_THROUGHPUT;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        ops += !p->nodes[i].leaf;
        moved += !p->nodes[i].leaf && s->schedule.device[i] != old->schedule.device[i];
    }
    m->desc.stats->reschedules++;
    m->desc.stats->reschedule_bytes += s->moved_bytes;
    gn_logf(m->desc.log, m->desc.log_user, GN_LOG_INFO, "costs have changed: %u of %u ops of a plan go to another device, with %llu bytes of states; %.3g ms a step are expected instead of %.3g", moved, ops,
            (unsigned long long)s->moved_bytes, (steps ? s->schedule.step_seconds : s->schedule.seconds) * 1e3, (steps ? s->was.step_seconds : s->was.seconds) * 1e3);
    if (m->trace) gn__trace(m->trace, m->trace_user, "reschedule", "", gn_now_us(), s->moved_bytes);
}

/* Puts a better split in the place of splits[at], if there is one. Whatever fails, what is there runs as before. */
static void gn__split_replace(gn__multi *m, gn__multi_plan *p, uint32_t at, const gn_arg *args) {
    gn__split *old = p->splits[at], *s = NULL;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    uint32_t device, *value_home = (uint32_t *)gn__alloc_zero((p->part->n_nodes + 1u) * sizeof *value_home);
    gn_result r = value_home ? gn__multi_check(m, p->part, args, value_home, &f) : GN_OUT_OF_MEMORY;
    if (!r) r = gn__split_try(m, p->part, value_home, old, &s, &device, &f);
    gn_free(value_home);
    if (r) gn_logf(m->desc.log, m->desc.log_user, GN_LOG_INFO, "a plan stays where it is, for it could not be placed anew: %s", f.text);
    if (!s) { old->patience = GN__MIN(2 * old->patience, GN__PATIENCE_MOST); return; }
    gn__split_told(m, p->part, old, s);
    p->splits[at] = s;
    gn__split_free(m, old);
}

/* Measures one device, when it is time and nothing is under way there: each in turn. */
static void gn__multi_measure(gn__multi *m) {
    uint64_t begin = gn_now_us();
    if (begin < m->measure_us || m->given) return;
    gn__device *u = &m->units[m->turn];
    if (u->probe && !u->lost && !u->busy) {
        double work = u->probe(u->probe_self);
        if (m->trace) gn__trace(m->trace, m->trace_user, "measure", u->name, begin, 0);
        if (work > 0) u->work_now = gn__steady_add(&u->work, u->work_now, work);
        if (work > 0 && !(u->work_first > 0) && u->work.n == GN__LENGTH(u->work.last)) u->work_first = u->work_now;
    }
    m->turn = (m->turn + 1) % m->n_units;
    m->round += m->turn == 0;
    uint64_t end = gn_now_us();
    m->measure_us = end + GN__MAX((uint64_t)GN__WATCH_US / m->n_units, GN__WATCH_SHARE * (end - begin));
}

GN__COLD_END

static gn_result gn__multi_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    gn__multi *m = (gn__multi *)self;
    gn__multi_plan *p = (gn__multi_plan *)gn__alloc_zero(sizeof *p);
    gn__split *s;
    bool values = false;
    *out_plan = NULL;
    if (p) p->part = gn__part_copy(part);
    if (!p || !p->part) { gn_free(p); return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan"); }
    for (uint32_t i = 0; i < part->n_nodes; i++) values |= part->nodes[i].leaf == GN_LEAF_VALUE;
    gn_result r = values ? GN_OK : gn__split_find(m, p, NULL, &s, f);   /* where values are is known when it runs */
    if (r) gn__multi_plan_destroy(m, p);
    else *out_plan = p;
    return r;
}

/* ---- runs ---- */

typedef struct gn__multi_run { gn__multi *m; gn__multi_plan *plan; gn__split *s; const gn_arg *args; const gn_out *outs; gn_fault *f; } gn__multi_run;

static gn_result gn__piece_fault(const gn__piece *x, gn_result r, gn_fault *f) {
    if (f) f->node = f->node < x->part->n_nodes ? x->origin[f->node] : GN_NO_NODE;
    return r;
}

/* Fills arguments and outputs of this run. */
static void gn__piece_bind(gn__multi_run *w, gn__piece *x) {
    gn__device *u = &w->m->units[x->device];
    for (size_t i = 0; i < x->n_ins; i++) {
        const gn__piece_in *in = &x->ins[i];
        gn_arg *a = &x->args[x->part->nodes[i].arg];
        if (in->how == GN__IN_TEMP) *a = (gn_arg){ NULL, 0, w->s->temps[in->from] };
        else if (in->how == GN__IN_ARG) {
            *a = w->args[in->from];
            const gn__multi_value *v = x->part->nodes[i].leaf == GN_LEAF_VALUE ? gn__multi_value_find(w->m, a->value) : NULL;
            if (v) a->value = v->own;
        }
    }
    for (size_t i = 0; i < x->n_outs; i++) {
        const gn__piece_out *o = &x->outs[i];
        const gn_out *whole = o->whole != GN__NOTHING ? &w->outs[o->whole] : NULL;
        gn_out *out = &x->run_outs[i];
        *out = whole ? *whole : (gn_out){ NULL, 0, 0 };
        if (o->cross != GN__NOTHING) { out->host = w->s->memory + w->s->crosses[o->cross].offset; out->bytes = w->s->crosses[o->cross].bytes; }
        if (out->keep || o->temp != GN__NOTHING) out->keep = u->next_value++;
        if (o->temp != GN__NOTHING) w->s->temps[o->temp] = out->keep;
    }
}

/* What of the caller's outputs a piece has made, after it was submitted (values) and when it has ended (bytes). */
static gn_result gn__piece_values(gn__multi_run *w, const gn__piece *x) {
    gn__multi *m = w->m;
    for (size_t i = 0; i < x->n_outs; i++) {
        const gn_out *whole = x->outs[i].whole != GN__NOTHING ? &w->outs[x->outs[i].whole] : NULL;
        if (!whole || !whole->keep) continue;
        if (!GN__GROW(m, values, 1)) return gn_fail(w->f, GN_OUT_OF_MEMORY, "no memory for a kept value");
        size_t at = m->n_values++;
        for (; at > 0 && m->values[at - 1].id > whole->keep; at--) m->values[at] = m->values[at - 1];
        m->values[at] = (gn__multi_value){ whole->keep, x->run_outs[i].keep, x->device };
    }
    return GN_OK;
}

static void gn__piece_bytes(gn__multi_run *w, const gn__piece *x) {
    for (size_t i = 0; i < x->n_outs; i++) {
        const gn__piece_out *o = &x->outs[i];
        if (o->cross != GN__NOTHING && o->whole != GN__NOTHING && w->outs[o->whole].host && w->outs[o->whole].bytes == x->run_outs[i].bytes)
            memcpy(w->outs[o->whole].host, x->run_outs[i].host, x->run_outs[i].bytes);
    }
}

/* The piece that an error of its device is of, when it was told at the submission of `x`: one of this run that was sent before. */
static const gn__piece *gn__piece_blamed(const gn__multi_run *w, const gn__piece *x) {
    for (uint32_t i = 0; i < w->s->n_pieces; i++)
        if (w->s->pieces[i].part && w->s->pieces[i].device == x->device && w->s->pieces[i].at == GN__PIECE_SENT) return &w->s->pieces[i];
    return x;
}

static gn_result gn__piece_submit(gn__multi_run *w, gn__piece *x) {
    gn__device *u = &w->m->units[x->device];
    gn__piece_bind(w, x);
    x->at = GN__PIECE_WAITS;
    gn_result r = gn__device_error(u, u->exec.i->submit(u->exec.self, x->plan, x->args, x->run_outs, &x->ticket, w->f), w->f);
    if (r && r != GN_NO_VALUE) return gn__piece_fault(gn__piece_blamed(w, x), r, w->f);
    x->at = GN__PIECE_SENT;
    u->last = x->ticket;
    u->busy = true;
    u->recent[u->n_recent % GN__LENGTH(u->recent)].ticket = x->ticket;
    u->recent[u->n_recent++ % GN__LENGTH(u->recent)].piece = x;
    gn_result kept = gn__piece_values(w, x);
    return kept ? kept : r;
}

static gn_result gn__piece_wait(gn__multi_run *w, gn__piece *x, gn_fault *f) {
    gn__device *u = &w->m->units[x->device];
    if (x->at != GN__PIECE_SENT) return GN_OK;
    gn_result r = gn__device_error(u, u->exec.i->wait(u->exec.self, x->ticket, f), f);
    if (u->last == x->ticket) u->busy = false;
    if (r && r != GN_NO_VALUE) { x->at = GN__PIECE_WAITS; return gn__piece_fault(x, r, f); }
    x->at = GN__PIECE_DONE;
    gn__piece_bytes(w, x);
    return r;
}

/* The first earlier piece of the same device that must be submitted, or must have ended, before this one is submitted. Where states
   are written nothing is queued: so it is known what has run when something fails. */
static uint32_t gn__piece_before(const gn__split *s, uint32_t i) {
    const gn__piece *x = &s->pieces[i];
    for (uint32_t b = 0; b < i; b++) {
        const gn__piece *y = &s->pieces[b];
        if (!y->part || y->device != x->device || y->at == GN__PIECE_DONE) continue;
        if (y->at == GN__PIECE_WAITS || x->n_updates || y->n_updates) return b;
    }
    return GN__NOTHING;
}

/* All that the piece reads has arrived, and nothing has to go before it. */
static bool gn__piece_ready(const gn__split *s, uint32_t i) {
    const gn__piece *x = &s->pieces[i];
    for (size_t n = 0; n < x->n_needs; n++)
        if (s->pieces[x->needs[n]].at != GN__PIECE_DONE) return false;
    return gn__piece_before(s, i) == GN__NOTHING;
}

/* Submits all that is ready: to devices that work on their own first, then one piece to a device that works while we wait.
   *out_left: pieces that are not submitted; *out_sent: that were just now. */
static gn_result gn__split_send(gn__multi_run *w, uint32_t *out_left, uint32_t *out_sent, bool *out_void) {
    gn__split *s = w->s;
    *out_sent = 0;
    for (int sync = 0; sync < 2; sync++) {
        *out_left = 0;
        for (uint32_t i = 0; i < s->n_pieces; i++) {
            gn__piece *x = &s->pieces[i];
            if (!x->part || x->at != GN__PIECE_WAITS) continue;
            ++*out_left;
            if (w->m->units[x->device].sync != (bool)sync || (sync && *out_sent) || !gn__piece_ready(s, i)) continue;
            gn_result r = gn__piece_submit(w, x);
            *out_void |= r == GN_NO_VALUE;
            if (r && r != GN_NO_VALUE) return r;
            if (sync && (r = gn__piece_wait(w, x, w->f)) != GN_OK && r != GN_NO_VALUE) return r;
            ++*out_sent;
            --*out_left;
        }
    }
    return GN_OK;
}

/* Waits for the first piece that one not yet submitted waits for. */
static gn_result gn__split_receive(gn__multi_run *w) {
    gn__split *s = w->s;
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        gn__piece *x = &s->pieces[i];
        if (!x->part || x->at != GN__PIECE_WAITS) continue;
        for (size_t n = 0; n < x->n_needs; n++)
            if (s->pieces[x->needs[n]].at == GN__PIECE_SENT) return gn__piece_wait(w, &s->pieces[x->needs[n]], w->f);
        uint32_t before = gn__piece_before(s, i);
        if (before != GN__NOTHING && s->pieces[before].at == GN__PIECE_SENT) return gn__piece_wait(w, &s->pieces[before], w->f);
    }
    return gn_fail(w->f, GN_INTERNAL, "the pieces of a step wait for each other");
}

static bool gn__piece_wanted(const gn__multi_run *w, const gn__piece *x) {
    bool wanted = w->s->n_updates > 0;
    for (size_t i = 0; i < x->n_outs && !wanted; i++) wanted = x->outs[i].whole != GN__NOTHING && w->outs[x->outs[i].whole].host;
    return wanted;
}

/* Nothing writes into the program's memory any more; states that were written although the step failed are failed from here on. */
static void gn__split_abort(gn__multi_run *w) {
    gn__split *s = w->s;
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        gn__piece *x = &s->pieces[i];
        gn_fault ignored = { GN_OK, GN_NO_NODE, "" };
        if (!x->part) continue;
        gn__piece_wait(w, x, &ignored);
        for (size_t u = 0; u < x->n_updates && x->at == GN__PIECE_DONE; u++) {
            w->m->slots[x->updates[u].slot].failed = true;
            w->m->n_failed++;
        }
    }
}

static gn_result gn__split_run(gn__multi_run *w) {
    gn__split *s = w->s;
    uint32_t left = 0, sent = 0;
    bool nothing = false;
    gn_result r = GN_OK;
    for (uint32_t d = 0; d < w->m->n_units && !r && s->n_updates; d++)   /* an error of an earlier step is told before anything of this one runs */
        if (s->devices >> d & 1) r = gn__device_settle(&w->m->units[d], w->f);
    if (r) return r;
    for (uint32_t i = 0; i < s->n_pieces; i++) s->pieces[i].at = GN__PIECE_WAITS;
    do {
        r = gn__split_send(w, &left, &sent, &nothing);
        if (!r && left && !sent) r = gn__split_receive(w);
        if (r == GN_NO_VALUE) { nothing = true; r = GN_OK; }
    } while (!r && left);
    for (uint32_t i = 0; i < s->n_pieces && !r; i++)
        if (s->pieces[i].part && gn__piece_wanted(w, &s->pieces[i])) {
            r = gn__piece_wait(w, &s->pieces[i], w->f);
            if (r == GN_NO_VALUE) { nothing = true; r = GN_OK; }
        }
    if (r) { gn__split_abort(w); return r; }
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        if (!s->pieces[i].part) continue;                      /* its device may never have been opened */
        w->m->units[s->pieces[i].device].counts->transfers += s->pieces[i].n_needs;
        w->m->units[s->pieces[i].device].counts->transfer_bytes += s->pieces[i].in_bytes;
    }
    return nothing ? gn_fail(w->f, GN_NO_VALUE, "the null executor computes no values") : GN_OK;
}

/* Tickets: of a run on one device, its own with the device in the low bits; 0: the run has ended. */
static gn_result gn__multi_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out_ticket, gn_fault *f) {
    gn__multi *m = (gn__multi *)self;
    gn__multi_plan *p = (gn__multi_plan *)plan;
    gn__multi_run w = { m, p, NULL, args, outs, f };
    gn_result r = GN_OK;
    uint32_t at;
    *out_ticket = 0;
    if (m->watch) gn__multi_measure(m);
    w.s = gn__split_fitting(m, p, args, &at);
    if (w.s && m->watch && gn__split_is_due(m, w.s)) {
        gn__split_replace(m, p, at, args);
        w.s = gn__split_fitting(m, p, args, &at);   /* states may have moved although it failed */
    }
    if (!w.s) r = gn__split_find(m, p, args, &w.s, f);
    else if (m->n_failed) r = gn__multi_check(m, p->part, args, NULL, f);
    if (r) return r;
    w.s->runs++;
    if (w.s->n_run != 1) return gn__split_run(&w);
    gn__piece *x = &w.s->pieces[w.s->only];
    r = gn__piece_submit(&w, x);
    *out_ticket = x->ticket << 5 | x->device;
    return r;
}

/* For one run; an error's node becomes one of the whole part. */
static gn_result gn__device_wait(gn__device *u, uint64_t ticket, gn_fault *f) {
    const gn__piece *piece = NULL;
    if (u->last == ticket) u->busy = false;
    gn_result r = gn__device_error(u, u->exec.i->wait(u->exec.self, ticket, f), f);
    for (size_t i = 0; i < GN__LENGTH(u->recent); i++)
        if (u->recent[i].ticket == ticket) piece = u->recent[i].piece;
    if (f && r) f->node = piece && f->node < piece->part->n_nodes ? piece->origin[f->node] : GN_NO_NODE;
    return r;
}

/* UINT64_MAX: all that was submitted. */
static bool gn__exec_ended(const gn_exec *x, uint64_t ticket) { return !x->i->ended || x->i->ended(x->self, ticket); }

static bool gn__multi_ended(void *self, uint64_t ticket) {
    gn__multi *m = (gn__multi *)self;
    if (ticket != UINT64_MAX) return ticket == 0 || gn__exec_ended(&m->units[ticket & 31].exec, ticket >> 5);
    for (uint32_t d = 0; d < m->n_units; d++)
        if (m->units[d].exec.i && !gn__exec_ended(&m->units[d].exec, UINT64_MAX)) return false;
    return true;
}

static gn_result gn__multi_wait(void *self, uint64_t ticket, gn_fault *f) {
    gn__multi *m = (gn__multi *)self;
    gn_result first = GN_OK;
    if (ticket == 0) return GN_OK;
    if (ticket != UINT64_MAX) return gn__device_wait(&m->units[ticket & 31], ticket >> 5, f);
    for (uint32_t d = 0; d < m->n_units; d++) {
        gn_fault own = { GN_OK, GN_NO_NODE, "" };
        gn_result r = gn__device_settle(&m->units[d], &own);
        if (r && !first) { first = r; if (f) *f = own; }
    }
    return first;
}

static void gn__multi_values_release(void *self, uint64_t below) {
    gn__multi *m = (gn__multi *)self;
    size_t n = 0;
    while (n < m->n_values && m->values[n].id < below) n++;
    if (n) memmove(m->values, m->values + n, (m->n_values - n) * sizeof *m->values);
    m->n_values -= n;
    for (uint32_t d = 0; d < m->n_units; d++) {
        gn__device *u = &m->units[d];
        uint64_t least = u->next_value;
        for (size_t i = 0; i < m->n_values; i++)
            if (m->values[i].device == d) least = GN__MIN(least, m->values[i].own);
        if (u->exec.i && u->exec.i->values_release) u->exec.i->values_release(u->exec.self, least);
    }
}

static void gn__multi_describe(void *self, gn_device_info *out) {
    const gn__device *u = &((gn__multi *)self)->units[0];
    u->exec.i->describe(u->exec.self, out);
}

static void *gn__multi_host_alloc(void *self, size_t bytes) {
    const gn__device *u = &((gn__multi *)self)->units[0];
    return u->exec.i->host_alloc(u->exec.self, bytes);
}

static void gn__multi_host_free(void *self, void *p) {
    const gn__device *u = &((gn__multi *)self)->units[0];
    u->exec.i->host_free(u->exec.self, p);
}

static void gn__multi_costs(void *self, gn_cluster_device *out, gn_cluster_link *up, gn_cluster_link *down) {
    const gn__device *u = &((gn__multi *)self)->units[0];
    if (u->exec.i->costs) u->exec.i->costs(u->exec.self, out, up, down);
}

GN__COLD_BEGIN
/* Numbers that no codec makes smaller. */
static gn_result gn__probe_make(gn__probe *b, gn_exec x, bool work, gn_fault *f) {
    const int64_t dims[4] = { GN__PROBE_SIDE, GN__PROBE_SIDE, GN__PROBE_SIDE, GN__PROBE_SIDE }, few = GN__PROBE_SMALL;
    const uint32_t ins[2] = { 0, 0 }, arg = 0, out = work;
    gn_part_node nodes[2] = { { .op = (uint16_t)gn__op_leaf(GN_LEAF_DATA), .dtype = GN_F32, .leaf = GN_LEAF_DATA, .rank = work ? 2 : 1 },
                              { .op = GN__OP_MATMUL, .dtype = GN_F32, .rank = 2, .n_ins = 2, .dims = 2 } };
    gn_part part = { .n_nodes = work ? 2 : 1, .n_ins = work ? 2 : 0, .n_dims = work ? 4 : 1, .n_args = 1, .n_outs = 1, .nodes = nodes, .ins = ins, .dims = work ? dims : &few, .args = &arg, .outs = &out };
    uint32_t random[4] = { 0, 0, 0, 0 }, n = work ? GN__PROBE_SIDE * GN__PROBE_SIDE : GN__PROBE_SMALL;
    part.hash = gn__part_hash(&part);
    b->bytes = n * sizeof(float);
    b->x = (float *)gn__alloc_zero(b->bytes);
    b->y = (float *)gn__alloc_zero(b->bytes);
    gn_result r = b->x && b->y ? x.i->plan_make(x.self, &part, &b->plan, f) : GN_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n && !r; i++) {
        if (i % 4 == 0) { random[0] = i; gn__philox(random, 1, 2); }
        b->x[i] = (float)(random[i % 4] >> 8) * 0x1p-23f - 1;
    }
    return r;
}

static void gn__probe_free(gn__probe *b, gn_exec x) {
    if (b->plan) x.i->plan_destroy(x.self, b->plan);
    gn_free(b->x);
    gn_free(b->y);
    memset(b, 0, sizeof *b);
}

/* gn__probe_fn of a device that works while submit waits. */
static double gn__device_work(void *self) {
    gn__device *u = (gn__device *)self;
    gn__probe *b = &u->again;
    gn_arg in = { b->x, b->bytes, 0 };
    gn_out out = { b->y, b->bytes, 0 };
    uint64_t ticket;
    if (!b->plan) {                                   /* warms up; what it took is not counted */
        if (gn__probe_make(b, u->exec, true, NULL) != GN_OK) { gn__probe_free(b, u->exec); u->probe = NULL; return 0; }
        in = (gn_arg){ b->x, b->bytes, 0 };
        out = (gn_out){ b->y, b->bytes, 0 };
        u->exec.i->submit(u->exec.self, b->plan, &in, &out, &ticket, NULL);
    }
    uint64_t begin = gn_now_us();
    if (u->exec.i->submit(u->exec.self, b->plan, &in, &out, &ticket, NULL) != GN_OK) return 0;
    return (double)GN__MAX(gn_now_us() - begin, 1u) * 1e-6;
}
GN__COLD_END

static void gn__multi_close(void *self) {
    gn__multi *m = (gn__multi *)self;
    for (size_t i = 0; i < m->n_slots && !m->beside; i++)
        if (m->slots[i].d.kind == GN_LEAF_STATE) gn_free((void *)(uintptr_t)m->slots[i].d.host);
    for (uint32_t d = 0; m->units && d < m->n_units; d++) {
        gn__device *u = &m->units[d];
        gn__probe_free(&u->again, u->exec);
        if (u->exec.i) u->exec.i->close(u->exec.self);
        gn_free(u->refusals);
    }
    gn_free(m->given);
    gn_free(m->given_links);
    gn_free(m->units);
    gn_free(m->slots);
    gn_free(m->values);
    gn_free(m);
}

/* Of a driver's device; the CPU beside it does not count. */
static gn_result gn__multi_rates(void *self, double *out_flops, double *out_bytes) {
    gn__multi *m = (gn__multi *)self;
    const gn_exec *x = &m->units[0].exec;
    return m->beside && x->i->rates ? x->i->rates(x->self, out_flops, out_bytes) : GN_UNSUPPORTED;
}

static const gn_exec_i gn__multi_i = { gn__multi_close, gn__multi_slot_put, gn__multi_slot_drop, gn__multi_plan_make, gn__multi_plan_destroy,
                                       gn__multi_submit, gn__multi_wait, gn__multi_values_release, gn__multi_describe, NULL, NULL, gn__multi_costs, gn__multi_rates, gn__multi_ended };
static const gn_exec_i gn__multi_host_i = { gn__multi_close, gn__multi_slot_put, gn__multi_slot_drop, gn__multi_plan_make, gn__multi_plan_destroy,
                                            gn__multi_submit, gn__multi_wait, gn__multi_values_release, gn__multi_describe, gn__multi_host_alloc, gn__multi_host_free, gn__multi_costs, gn__multi_rates, gn__multi_ended };

/* The names of the devices where things are; "" when they are on none. */
static const char *gn__multi_where_value(const gn__multi *m, uint64_t id) {
    const gn__multi_value *v = gn__multi_value_find(m, id);
    return v ? m->units[v->device].name : "";
}

static const char *gn__multi_where_slot(const gn__multi *m, uint32_t slot) {
    for (uint32_t d = 0; slot < m->n_slots && d < m->n_units; d++)
        if (m->slots[slot].on >> d & 1) return m->units[d].name;
    return "";
}

/* Room for n devices, which are opened one by one. */
static gn__multi *gn__multi_new(uint32_t n, const gn_exec_desc *d) {
    gn__multi *m = (gn__multi *)gn__alloc_zero(sizeof *m);
    if (m) m->units = (gn__device *)gn__alloc_zero(n * sizeof *m->units);
    if (!m || !m->units) { gn_free(m); return NULL; }
    m->n_units = n;
    m->desc = *d;
    for (uint32_t i = 0; i < n; i++) m->units[i].next_value = 1;
    return m;
}

/* Enters a device that was opened; `sync`: it works while submit waits. */
static void gn__multi_enter(gn__multi *m, uint32_t i, gn_exec exec, bool sync) {
    gn__device *u = &m->units[i];
    gn_device_info info;
    exec.i->describe(exec.self, &info);
    u->exec = exec;
    u->sync = sync;
    u->counts = m->beside ? m->desc.stats : &u->stats;
    gn__copy_text(u->name, sizeof u->name, info.name);
}

static gn_result gn__multi_open_beside(gn__multi *m, gn_fault *f) {
    gn_exec cpu;
    if (m->units[1].exec.i) return GN_OK;
    gn_exec_desc d = m->desc;
    d.device = "cpu:0";
    gn_result r = gn__cpu_open(&d, &cpu, f);
    if (!r) gn__multi_enter(m, 1, cpu, true);
    return r;
}

/* A driver's device, with the CPU beside it for what it refuses. */
static gn_result gn__driver_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn__multi *m = gn__multi_new(2, d);
    gn_exec exec = { NULL, NULL };
    if (!m) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a device");
    gn_result r = gn__driver->open(d, &exec, f);
    if (r) { gn_free(m->units); gn_free(m); return r; }
    m->beside = true;
    m->desc.device = NULL;      /* the caller's */
    gn__multi_enter(m, 0, exec, false);
    *out = (gn_exec){ exec.i->host_alloc ? &gn__multi_host_i : &gn__multi_i, m };
    return GN_OK;
}

static bool gn__driver_serves(const char *device) {
    size_t n = gn__driver ? strlen(gn__driver->prefix) : 0;
    return n && strncmp(device, gn__driver->prefix, n) == 0 && (device[n] == ':' || !device[n]);
}

/* A local device by name: "cpu", "cpu:0", "null", or what a registered driver serves. */
static gn_result gn__exec_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    if (strcmp(d->device, "cpu") == 0 || strcmp(d->device, "cpu:0") == 0) return gn__cpu_open(d, out, f);
    if (strcmp(d->device, "null") == 0) return gn__null_open(d, out, f);
    if (gn__driver_serves(d->device)) return gn__driver_open(d, out, f);
    return gn_fail(f, GN_NO_DEVICE, "there is no device '%.60s' in this program: 'cpu', 'null' or the URL of a server is possible", d->device);
}

/* ---- trace: an executor in front of another ---- */

typedef struct gn__traced { gn_exec_i table; gn_exec inner; gn_trace_fn fn; void *user; char device[96]; } gn__traced;

typedef struct gn__traced_plan { void *inner; uint64_t bytes; /* of its data */ } gn__traced_plan;

#define GN__TRACED(name, bytes, call)                                                 \
    gn__traced *t = (gn__traced *)self;                                                \
    uint64_t begin = gn_now_us();                                                      \
    gn_result r = t->inner.i->call;                                                    \
    gn__trace(t->fn, t->user, name, t->device, begin, bytes);                          \
    return r

static gn_result gn__traced_slot_put(void *self, const gn_slot_desc *d, gn_fault *f) { GN__TRACED("slot_put", d->bytes, slot_put(t->inner.self, d, f)); }
static gn_result gn__traced_slot_drop(void *self, uint32_t slot, uint32_t gen) { GN__TRACED("slot_drop", 0, slot_drop(t->inner.self, slot, gen)); }
static gn_result gn__traced_plan_make(void *self, const gn_part *p, void **out, gn_fault *f) {
    gn__traced *t = (gn__traced *)self;
    gn__traced_plan *plan = (gn__traced_plan *)gn__alloc_zero(sizeof *plan);
    uint64_t begin = gn_now_us();
    *out = NULL;
    if (!plan) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    for (uint32_t i = 0; i < p->n_args; i++) {
        gn__type type = gn__part_type(p, p->args[i]);
        if (p->nodes[p->args[i]].leaf == GN_LEAF_DATA) plan->bytes += gn__type_bytes(&type);
    }
    gn_result r = t->inner.i->plan_make(t->inner.self, p, &plan->inner, f);
    gn__trace(t->fn, t->user, "plan_make", t->device, begin, 0);
    if (r) gn_free(plan);
    else *out = plan;
    return r;
}
static gn_result gn__traced_wait(void *self, uint64_t ticket, gn_fault *f) { GN__TRACED("wait", 0, wait(t->inner.self, ticket, f)); }
static gn_result gn__traced_submit(void *self, void *plan, const gn_arg *args, const gn_out *outs, uint64_t *out, gn_fault *f) {
    const gn__traced_plan *p = (const gn__traced_plan *)plan;
    GN__TRACED("submit", p->bytes, submit(t->inner.self, p->inner, args, outs, out, f));
}
static void gn__traced_plan_destroy(void *self, void *plan) {
    gn__traced *t = (gn__traced *)self;
    t->inner.i->plan_destroy(t->inner.self, ((gn__traced_plan *)plan)->inner);
    gn_free(plan);
}
static void gn__traced_values_release(void *self, uint64_t below) {
    gn__traced *t = (gn__traced *)self;
    if (t->inner.i->values_release) t->inner.i->values_release(t->inner.self, below);
}
static void gn__traced_describe(void *self, gn_device_info *out) { gn__traced *t = (gn__traced *)self; t->inner.i->describe(t->inner.self, out); }
static void *gn__traced_host_alloc(void *self, size_t bytes) { gn__traced *t = (gn__traced *)self; return t->inner.i->host_alloc(t->inner.self, bytes); }
static bool gn__traced_ended(void *self, uint64_t ticket) { const gn__traced *t = (const gn__traced *)self; return t->inner.i->ended(t->inner.self, ticket); }
static void gn__traced_host_free(void *self, void *p) { gn__traced *t = (gn__traced *)self; t->inner.i->host_free(t->inner.self, p); }
static gn_result gn__traced_rates(void *self, double *flops, double *bytes) { gn__traced *t = (gn__traced *)self; return t->inner.i->rates(t->inner.self, flops, bytes); }
static void gn__traced_costs(void *self, gn_cluster_device *d, gn_cluster_link *up, gn_cluster_link *down) { gn__traced *t = (gn__traced *)self; t->inner.i->costs(t->inner.self, d, up, down); }
static void gn__traced_close(void *self) {
    gn__traced *t = (gn__traced *)self;
    uint64_t begin = gn_now_us();
    t->inner.i->close(t->inner.self);
    gn__trace(t->fn, t->user, "close", t->device, begin, 0);
    gn_free(t);
}

/* Puts a tracer before *x; without memory it runs untraced. */
static void gn__trace_exec(gn_exec *x, gn_trace_fn fn, void *user) {
    gn__traced *t = (gn__traced *)gn__alloc_zero(sizeof *t);
    gn_device_info info;
    if (!t) return;
    x->i->describe(x->self, &info);
    gn__copy_text(t->device, sizeof t->device, info.name);
    t->inner = *x;
    t->fn = fn;
    t->user = user;
    t->table = (gn_exec_i){ gn__traced_close, gn__traced_slot_put, gn__traced_slot_drop, gn__traced_plan_make, gn__traced_plan_destroy, gn__traced_submit, gn__traced_wait, gn__traced_values_release,
                            gn__traced_describe, x->i->host_alloc ? gn__traced_host_alloc : NULL, x->i->host_free ? gn__traced_host_free : NULL, x->i->costs ? gn__traced_costs : NULL, x->i->rates ? gn__traced_rates : NULL, x->i->ended ? gn__traced_ended : NULL };
    *x = (gn_exec){ &t->table, t };
}

/* ---- what a device costs, measured ---- */

enum { GN__MEASURE_CHAIN = 16 };

/* Runs "state = op(state, state)", `chain` times over in one run, until it has been seen long enough; seconds of the quickest run,
   0: it cannot. */
static double gn__measure_op(gn_exec x, uint32_t slot, uint16_t op, gn_dtype d, gn_shape s, uint32_t n_ins, uint32_t chain) {
    gn_slot_desc desc = { slot, 1, GN_LEAF_STATE, d, s, NULL, 0 };
    gn_part_node nodes[GN__MEASURE_CHAIN + 1];
    uint32_t ins[2 * GN__MEASURE_CHAIN];
    for (uint32_t i = 0; i <= chain; i++) nodes[i] = (gn_part_node){ .op = op, .dtype = (uint8_t)d, .rank = (uint8_t)s.rank, .n_ins = n_ins, .ins = i ? 2 * (i - 1) : 0 };
    for (uint32_t i = 0; i < 2 * chain; i++) ins[i] = i / 2;
    nodes[0] = (gn_part_node){ .op = (uint16_t)gn__op_leaf(GN_LEAF_STATE), .dtype = (uint8_t)d, .leaf = GN_LEAF_STATE, .rank = (uint8_t)s.rank, .slot = slot, .gen = 1 };
    gn_part_update update = { slot, 1, chain };
    gn_part part = { .n_nodes = chain + 1, .n_ins = 2 * chain, .n_dims = (uint32_t)s.rank, .n_updates = 1, .nodes = nodes, .ins = ins, .dims = s.dims, .updates = &update };
    gn__type t = { d, s };
    void *plan = NULL;
    uint64_t ticket = 0, begin, last;
    double least = 0;
    desc.bytes = gn__type_bytes(&t);
    part.hash = gn__part_hash(&part);
    bool ok = x.i->slot_put(x.self, &desc, NULL) == GN_OK && x.i->plan_make(x.self, &part, &plan, NULL) == GN_OK;
    begin = last = gn_now_us();                                                       /* compiling is no part of it */
    for (int i = 0; ok && i < 6 && (i < 4 || last - begin < GN__MEASURE_US); i++) {   /* the first run warms up */
        uint64_t from = gn_now_us();
        ok = x.i->submit(x.self, plan, NULL, NULL, &ticket, NULL) == GN_OK && x.i->wait(x.self, ticket, NULL) == GN_OK;
        last = gn_now_us();
        double spent = (double)GN__MAX(last - from, 1u) * 1e-6;
        if (i <= 1 || spent < least) least = spent;
        if (last - begin > 8 * GN__MEASURE_US) break;
    }
    if (plan) x.i->plan_destroy(x.self, plan);
    x.i->slot_drop(x.self, slot, 1);
    return ok ? least : 0;
}

/* The same without what every run costs, which cannot be more than a part of it. */
static double gn__measure_net(gn_exec x, uint32_t slot, uint16_t op, gn_dtype d, gn_shape s, uint32_t n_ins, double run_s) {
    double spent = gn__measure_op(x, slot, op, d, s, n_ins, 1);
    return GN__MAX(spent - run_s, spent / 8);
}

/* Matrix products large enough to be work for it, small enough to end within milliseconds. */
static double gn__measure_flops(gn_exec x, uint32_t slot, gn_dtype d, double run_s) {
    int64_t n = 128, most = 2048;
    double spent = gn__measure_net(x, slot, GN__OP_MATMUL, d, GN_SHAPE(n, n), 2, run_s), work = 2.0 * (double)(n * n * n);
    if (!(spent > 0)) return 0;
    if (spent > 20e-6) most = GN__MIN((int64_t)(128 * cbrt(1e-3 / spent)) / 128 * 128, (int64_t)1024);
    if (most <= n) return work / spent;
    double more = gn__measure_net(x, slot, GN__OP_MATMUL, d, GN_SHAPE(most, most), 2, run_s);
    return more > 0 ? 2.0 * (double)(most * most * most) / more : work / spent;
}

/* Negation of n f32, read and written. */
static double gn__measure_bytes(gn_exec x, uint32_t slot, double run_s) {
    int64_t n = 1 << 21;
    double spent = gn__measure_net(x, slot, GN__OP_NEG, GN_F32, GN_SHAPE(n), 1, run_s), more = 0;
    if (spent > 0 && spent < 50e-6) more = gn__measure_net(x, slot, GN__OP_NEG, GN_F32, GN_SHAPE(16 * n), 1, run_s);
    return more > 0 ? 128.0 * (double)n / more : spent > 0 ? 8.0 * (double)n / spent : 0;
}

/* What a run costs before it begins, and each kernel in it. */
static void gn__measure_all(gn_exec x, gn_cluster_device *c) {
    static const gn_dtype dtypes[GN_RATE__COUNT] = { GN_F32, GN_F16, GN_F64, GN_I32 };
    gn_shape tiny = GN_SHAPE(4, 4);
    double one = gn__measure_op(x, 0, GN__OP_MATMUL, GN_F32, tiny, 2, 1), many = gn__measure_op(x, 1, GN__OP_MATMUL, GN_F32, tiny, 2, GN__MEASURE_CHAIN);
    c->launch_s = GN__MAX((many - one) / (GN__MEASURE_CHAIN - 1), 1e-7);
    c->queue_s = GN__MAX(one - c->launch_s, 0);
    if (x.i->rates && x.i->rates(x.self, c->flops_per_s, &c->bytes_per_s) == GN_OK) return;
    for (uint32_t i = 0; i < GN_RATE__COUNT; i++) c->flops_per_s[i] = gn__measure_flops(x, 2 + i, dtypes[i], c->queue_s);
    c->bytes_per_s = gn__measure_bytes(x, 2 + GN_RATE__COUNT, c->queue_s);
}

static gn__mutex gn__measured_lock = GN__MUTEX_INIT;
static struct { char key[96]; gn_cluster_device costs; } gn__measured[8];   /* of this process: a device is measured once */

static bool gn__env_forbids(const char *name) {
    const char *env = getenv(name);
    return env && strcmp(env, "0") == 0;
}

/* Some milliseconds of a CPU; a GPU compiles five small kernels for it, once. $GENIE_MEASURE=0: nothing is measured, so nothing is known. */
static void gn__measure(gn_exec x, const gn_exec_desc *desc, gn_cluster_device *out) {
    bool cpu = !gn__driver_serves(desc->device);
    char key[96];
    size_t at = 0;
    memset(out, 0, sizeof *out);
    if (gn__env_forbids("GENIE_MEASURE") || strcmp(desc->device, "null") == 0) return;
    snprintf(key, sizeof key, "%s %u", cpu ? "cpu" : desc->device, cpu ? gn__thread_count(desc->threads) : 0);
    gn__mutex_lock(&gn__measured_lock);
    while (at < GN__LENGTH(gn__measured) - 1 && gn__measured[at].key[0] && strcmp(gn__measured[at].key, key) != 0) at++;
    if (strcmp(gn__measured[at].key, key) != 0) {
        gn_cluster_device *c = &gn__measured[at].costs;
        memset(c, 0, sizeof *c);
        gn__measure_all(x, c);
        gn__copy_text(gn__measured[at].key, sizeof key, key);
    }
    *out = gn__measured[at].costs;
    gn__mutex_unlock(&gn__measured_lock);
    gn_logf(desc->log, desc->log_user, GN_LOG_INFO, "%s: %.3g f32, %.3g f16, %.3g f64, %.3g integer operations a second, %.3g bytes a second, %.3g us a run and %.3g a kernel", desc->device,
            out->flops_per_s[0], out->flops_per_s[1], out->flops_per_s[2], out->flops_per_s[3], out->bytes_per_s, out->queue_s * 1e6, out->launch_s * 1e6);
}

/* >>session ========================================================================================
 * The two ends of protocol 1 over a transport. The client's end is an executor like any other; the server's end puts the
 * protocol in front of a local executor. */

#define GN__DEADLINE_MS 30000u
#define GN__SLICE_MS 100u                   /* how often a waiting server looks whether it is to stop */
#define GN__LINGER_MS 100u                  /* how long a refused peer may take to read why */
#define GN__IN_FLIGHT 64u                   /* steps that a client leaves unanswered */
#define GN__PROBE_WORK 4u                   /* every fourth probe of a link brings work */
#define GN__PROBE_LEAST_S 0.02              /* a probe is waited for so long at least */
#define GN__PROMPT_US 200u                  /* a step waited for within this time tells what its link costs */
#define GN__SMALL_STEP (16u << 10)          /* bytes of a step that tells the latency; four times as many tell the rate */
#define GN__HASH_ALONE (4u << 20)           /* bytes up to which a thread of its own for a hash costs more than it gives */
#define GN__LARGE_SEND (64u << 10)          /* bytes from which on a send tells what a byte costs */
#define GN__WIRE_GUESS_NS 4.0               /* of a byte on a link that is not measured yet: 2 Gbit/s */
#define GN__BUFFERED (4u << 20)             /* bytes that may lie in the system's buffers */
#define GN__PAUSE_US 50000u                 /* after which those are taken to be empty */
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
    double wire_ns;                         /* that a byte takes to be sent, encryption included */
    bool paced;                             /* wire_ns is measured, not guessed */
    uint64_t burst, sent_us;                /* bytes sent one after another, and when the last of them were */
    uint64_t sent;                          /* bytes of frames, all together */
} gn__link;

/* What a byte costs on the link, from sends that followed others closely: the first bytes after a pause fill the system's
   buffers and seem to cost nothing. */
static void gn__link_pace(gn__link *l, size_t n, uint64_t begin_us, uint64_t end_us) {
    if (begin_us - l->sent_us > GN__PAUSE_US) l->burst = 0;
    l->sent_us = end_us;
    l->burst += n;
    if (l->burst <= GN__BUFFERED) return;
    double ns = (double)(end_us - begin_us) * 1e3 / (double)n;
    l->wire_ns += (ns - l->wire_ns) / (l->paced ? 8 : 1);
    l->paced = true;
}

static gn_result gn__link_send(void *user, const uint8_t *p, size_t n) {
    gn__link *l = (gn__link *)user;
    l->sent += n;
    if (n < GN__LARGE_SEND) return l->t.i->send(l->t.self, p, n, l->deadline_ms);
    uint64_t begin = gn_now_us();
    gn_result e = l->t.i->send(l->t.self, p, n, l->deadline_ms);
    if (!e) gn__link_pace(l, n, begin, gn_now_us());
    return e;
}

static void gn__link_init(gn__link *l, gn_transport t, uint32_t deadline_ms, gn_stats *stats) {
    memset(l, 0, sizeof *l);
    l->t = t;
    l->deadline_ms = deadline_ms;
    l->stats = stats;
    l->codecs = 1;
    l->wire_ns = GN__WIRE_GUESS_NS;
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
    l->stats->slow_links += now.slow && !l->info.slow;
    l->stats->key_updates += now.key_updates - l->info.key_updates;
    l->stats->socket_bytes_up += now.bytes_up - l->info.bytes_up;
    l->stats->socket_bytes_down += now.bytes_down - l->info.bytes_down;
    l->frames_up = l->out.frames;
    l->frames_down = l->in.frames;
    l->info = now;
}

/* Whether keys may change in the middle of the stream, as counted last. */
static bool gn__link_renews(const gn__link *l) { return l->t.i->renew && l->info.renews; }

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

enum { GN__STEP_OK_HEAD = 8 };   /* bytes before the outputs */

typedef struct gn__arrival {  /* an answer in several frames: its outputs are written as they come */
    uint8_t head[GN__STEP_OK_HEAD];
    uint32_t head_n;          /* bytes of it that are here */
    size_t want;              /* the output that comes */
    gn__blob_in blob;         /* what of it is here */
} gn__arrival;

typedef struct gn__flight {   /* a step without an answer yet, or one behind it */
    uint64_t ticket, owed;    /* owed: bytes the answer may take */
    uint64_t sent;            /* bytes sent when it had been sent */
    bool done;
    gn__want *wants;
    size_t n_wants, cap;
    gn__arrival arrival;
} gn__flight;

typedef struct gn__remote_weight { gn_slot_desc slot; uint8_t digest[32]; bool hashed, known; } gn__remote_weight;

typedef struct gn__remote {
    gn__link link;
    gn_stats *stats;
    uint64_t next;                     /* the next ticket; its low half is the request id */
    uint64_t answers;                  /* received; a request has at most one */
    uint64_t sequence, release, held, owed;
    uint64_t read;                     /* of the bytes sent, those that the server has surely read: it has answered what followed */
    uint32_t step_errors, seen;             /* steps that failed, and how many of them the program was told of */
    uint32_t threads;                  /* that the context may use, 0: one a core */
    uint32_t next_plan, max_nodes, unread;   /* unread: requests sent since the last look at what has come */
    gn__flight flights[GN__IN_FLIGHT];
    uint32_t first, n_flights;
    gn__remote_weight *weights;        /* put but not sent: they go together, with one question */
    size_t n_weights, cap_weights;
    uint64_t asked;                    /* ticket of the open question, 0: none */
    uint8_t have[GN__WIRE_ASK / 8];
    uint8_t ops[GN__WIRE_OPS];
    size_t n_ops;
    uint64_t features;                 /* asked for, then those that both know */
    uint64_t unasked;                  /* messages that answer nothing; so many that it is no mistake are a flood */
    gn_log_fn log;
    void *log_user;
    gn_cluster_device costs;           /* as the server told */
    gn_cluster_link link_up, link_down;   /* as measured here */
    uint64_t busy, sent_us, await_us;  /* ns of the latest step there; when a step alone was sent, when its answer was waited for */
    uint64_t sent_ticket;
    uint64_t sent_up, sent_down;       /* bytes of tensors of that step */
    gn__steady latency, rate_up, rate_down;
    gn__probe probes[2];               /* a few bytes; work */
    uint32_t n_probes;
    uint64_t probe_us;                 /* when one was sent whose answer is overdue, 0: none is */
    char device[64], identity[192];
    gn__buf outs, keeps, part;         /* reused */
    bool lost, failed, no_probes;
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
    r->read = GN__MAX(r->read, x->sent);
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

static void gn__remote_latency(gn__remote *r, double seconds) {
    r->link_up.latency_s = r->link_down.latency_s = gn__steady_add(&r->latency, r->link_up.latency_s, seconds);
}

/* What the link costs now, from steps that were alone on it and waited for at once. */
static void gn__remote_learn(gn__remote *r, const gn__flight *x) {
    if (!(r->features & GN__FEATURE_COSTS) || r->sent_us == 0 || x->ticket != r->sent_ticket) return;
    double wire = (double)(gn_now_us() - r->sent_us) * 1e-6 - (double)r->busy * 1e-9, bytes = (double)(r->sent_up + r->sent_down);
    bool prompt = r->await_us >= r->sent_us && r->await_us - r->sent_us < GN__PROMPT_US;
    r->sent_us = 0;
    if (!prompt || !(wire > 0)) return;
    if (bytes < GN__SMALL_STEP) gn__remote_latency(r, wire / 2);
    else if (bytes > 4 * GN__SMALL_STEP && wire > 2 * r->link_up.latency_s) {
        double rate = GN__MIN(bytes / (wire - 2 * r->link_up.latency_s), 1e12);
        if (2 * r->sent_up > r->sent_down) r->link_up.bytes_per_s = gn__steady_add(&r->rate_up, r->link_up.bytes_per_s, rate);
        if (2 * r->sent_down > r->sent_up) r->link_down.bytes_per_s = gn__steady_add(&r->rate_down, r->link_down.bytes_per_s, rate);
    }
}

/* The output of which bytes come next, NULL: all are here. */
static const gn__want *gn__arrival_next(const gn__remote *r, gn__flight *x) {
    gn__arrival *a = &x->arrival;
    while (a->want < x->n_wants && a->blob.at == x->wants[a->want].bytes) {
        const gn__want *w = ++a->want < x->n_wants ? &x->wants[a->want] : NULL;
        if (w) gn__blob_begin(&a->blob, w->host, w->bytes, w->element, r->link.codecs);
    }
    return a->want < x->n_wants ? &x->wants[a->want] : NULL;
}

static void gn__arrival_begin(const gn__remote *r, gn__flight *x) {
    gn__arrival *a = &x->arrival;
    const gn__want *w = x->wants;
    a->head_n = 0;
    a->want = 0;
    if (x->n_wants > 0) gn__blob_begin(&a->blob, w->host, w->bytes, w->element, r->link.codecs);
}

/* The next n bytes of a STEP_OK. */
static gn_result gn__arrival_add(const gn__remote *r, gn__flight *x, const uint8_t *p, size_t n, gn_fault *f) {
    gn__arrival *a = &x->arrival;
    gn__rd rd = { p, p + n, false };
    while (a->head_n < sizeof a->head && rd.p < rd.end) a->head[a->head_n++] = *rd.p++;
    while (rd.p < rd.end) {
        if (!gn__arrival_next(r, x)) return gn_fail(f, GN_BAD_MESSAGE, "a step's answer is longer than its outputs");
        gn_result e = gn__blob_take(&a->blob, &rd, f);
        if (e) return e;
    }
    return GN_OK;
}

/* gn__intake: of the answer to a step that is waited for. */
static bool gn__arrival_begins(void *user, uint16_t id, uint32_t request) {
    gn__remote *r = (gn__remote *)user;
    gn__flight *x = id == GN__MSG_STEP_OK ? gn__remote_find(r, request) : NULL;
    if (x) gn__arrival_begin(r, x);
    return x != NULL;
}

static gn_result gn__arrival_takes(void *user, uint32_t request, const uint8_t *p, size_t n, gn_fault *f) {
    gn__remote *r = (gn__remote *)user;
    gn__flight *x = gn__remote_find(r, request);
    return x ? gn__arrival_add(r, x, p, n, f) : gn_fail(f, GN_BAD_MESSAGE, "the answer to a step that is over");
}

static gn_result gn__remote_take_step(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_step_ok d;
    gn_fault fault;
    gn__flight *x = gn__remote_find(r, m->request);
    if (!x) return gn__remote_bad(r, f, "the answer to a step that was not sent");
    if (!gn__msg_taken(m)) {
        gn__arrival_begin(r, x);
        if (gn__arrival_add(r, x, m->p, m->n, &fault)) return gn__remote_bad(r, f, fault.text);
    }
    if (gn__msg_decode(m->id, x->arrival.head, x->arrival.head_n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    if (gn__arrival_next(r, x)) return gn__remote_bad(r, f, "a step's answer is cut: outputs are missing");
    for (size_t i = 0; i < x->n_wants; i++) {
        r->stats->tensor_bytes_down += x->wants[i].bytes;
        if (x->wants[i].kv) r->stats->kv_bytes_moved += x->wants[i].bytes;
    }
    r->stats->packed_bytes_down += m->n - GN__STEP_OK_HEAD;
    gn__remote_learn(r, x);
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

/* Every number is within the table's bounds, so that seconds and rates are finite; 0 is "not known". */
static gn_result gn__remote_take_costs(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_costs d;
    gn_fault fault;
    if (!(r->features & GN__FEATURE_COSTS)) return gn__remote_bad(r, f, "COSTS, which nobody asked for");
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    const uint64_t rates[GN_RATE__COUNT] = { d.f32, d.half, d.f64, d.integer };
    for (int i = 0; i < GN_RATE__COUNT; i++) r->costs.flops_per_s[i] = (double)rates[i];
    r->costs.bytes_per_s = (double)d.bytes;
    r->costs.launch_s = (double)d.launch * 1e-9;
    r->costs.queue_s = (double)d.queue * 1e-9;
    r->costs.memory = d.memory;
    r->costs.memory_free = GN__MIN(d.memory_free, d.memory);
    r->busy = d.busy;
    return GN_OK;
}

static gn_result gn__remote_take_fallback(gn__remote *r, const gn__msg *m, gn_fault *f) {
    gn__msg_fallback d;
    gn_fault fault;
    char text[400];
    if (!(r->features & GN__FEATURE_FALLBACK)) return gn__remote_bad(r, f, "FALLBACK, which nobody asked for");
    if (gn__msg_decode(m->id, m->p, m->n, &d, &fault)) return gn__remote_bad(r, f, fault.text);
    if (d.plan == 0 || d.plan >= r->next_plan) return gn__remote_bad(r, f, "a fallback of an unknown plan");
    gn__span_text(&d.text, text, sizeof text);
    r->stats->fallbacks += d.ops;
    gn_logf(r->log, r->log_user, GN_LOG_WARN, "%s/%s: %s", r->link.info.peer, r->device, text);
    return GN_OK;
}

static gn_result gn__remote_take(gn__remote *r, const gn__msg *m, gn_fault *f) {
    if (m->id == GN__MSG_COSTS || m->id == GN__MSG_FALLBACK) {   /* at most one a request, and one at the beginning */
        if (++r->unasked > 2 * r->next) return gn__remote_bad(r, f, "more than was asked for");
        return m->id == GN__MSG_COSTS ? gn__remote_take_costs(r, m, f) : gn__remote_take_fallback(r, m, f);
    }
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

/* Receives and takes one message; without one in that time GN_TIMEOUT, and nothing is lost. */
static gn_result gn__remote_look(gn__remote *r, uint32_t ms, gn_fault *f) {
    gn__patience w = { ms, false, NULL };
    gn_fault fault;
    gn__msg m;
    r->link.in.limit = r->owed + GN__HELLO_MAX;   /* no honest answer is larger */
    gn_result e = gn__link_receive(&r->link, &w, &m, &fault);
    if (!e) return gn__remote_take(r, &m, f);
    if (e == GN_TIMEOUT) return e;
    gn_fault cause;
    gn_fail(&cause, e, "%s: %s", r->link.info.peer, fault.text);
    return gn__remote_lose(r, &cause, f);
}

/* Receives and takes one message. */
static gn_result gn__remote_receive(gn__remote *r, uint32_t deadline_ms, gn_fault *f) {
    gn_fault fault;
    gn_result e = gn__remote_look(r, deadline_ms, f);
    if (e != GN_TIMEOUT || r->lost || deadline_ms == 0) return e;
    gn_fail(&fault, e, "%s gave no answer within %u ms", r->link.info.peer, deadline_ms);
    return gn__remote_lose(r, &fault, f);
}

/* Waits until no step up to the ticket is without an answer. */
static gn_result gn__remote_await(gn__remote *r, uint64_t ticket, gn_fault *f) {
    uint64_t before = r->link.in.frames;
    gn_result e = r->n_flights > 0 && gn__remote_flight(r, 0)->ticket <= ticket ? gn__remote_flush(r, f) : GN_OK;
    if (r->sent_us) r->await_us = gn_now_us();
    while (!e && r->n_flights > 0 && gn__remote_flight(r, 0)->ticket <= ticket) e = gn__remote_receive(r, r->link.deadline_ms, f);
    if (r->link.in.frames != before) r->stats->round_trips++;
    return e;
}

/* To be called before each request, of n bytes at most: keeps what the server has to answer so small that it never waits for us
   to read while we wait for it to read; or what it has to read so small that we do not wait. */
static gn_result gn__remote_ready(gn__remote *r, uint64_t n, gn_fault *f) {
    gn_result e = GN_OK;
    if (r->lost) return gn__remote_is_lost(r, f);
    if (r->n_flights == GN__IN_FLIGHT) e = gn__remote_await(r, gn__remote_flight(r, GN__IN_FLIGHT / 2)->ticket, f);   /* half: one wait for many */
    while (!e && r->owed > GN__OWED_MAX && r->n_flights > 0 && (n > GN__OWED_MAX || r->link.sent + r->link.out.b.n - r->read > GN__OWED_MAX - n)) e = gn__remote_await(r, gn__remote_flight(r, 0)->ticket, f);
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
    gn_result e = gn__remote_ready(r, UINT64_MAX, f);
    if (e) return e;
    gn__outbox_fields(&r->link.out, id, (uint32_t)r->next++, msg);
    return gn__remote_end(r, f);
}

static void gn__remote_blob(gn__remote *r, const void *p, size_t n, int element) {
    r->stats->packed_bytes_up += gn__blob_put(&r->link.out, p, n, element, r->link.codecs, r->link.wire_ns, &r->link.scratch);
    r->stats->tensor_bytes_up += n;
}

/* SLOT_PUT of a state, or of a weight that the server has by now (digest not NULL). */
static gn_result gn__remote_put_slot(gn__remote *r, const gn_slot_desc *d, const uint8_t *digest, gn_fault *f) {
    uint8_t dims[GN_MAX_RANK * 8];
    gn__buf b = { dims, 0, sizeof dims, false };
    gn_result e = gn__remote_ready(r, UINT64_MAX, f);
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
    w->hashed = w->known = false;
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

static void gn__digest_range(void *arg, int64_t begin, int64_t end) {
    gn__remote_weight *w = (gn__remote_weight *)arg;
    for (int64_t i = begin; i < end; i++) {
        if (!w[i].hashed) gn__net->sha256(w[i].slot.host, w[i].slot.bytes, w[i].digest);
        w[i].hashed = true;
    }
}

/* The digests of all weights put, by several threads when that is much. */
static void gn__remote_digest(gn__remote *r) {
    gn__pool pool;
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n_weights; i++) bytes += r->weights[i].hashed ? 0 : r->weights[i].slot.bytes;
    uint32_t threads = bytes > GN__HASH_ALONE ? (uint32_t)GN__MIN(r->n_weights, GN__MIN(gn__thread_count(r->threads), 16u)) : 1;
    if (threads < 2 || !gn__pool_init(&pool, threads)) {
        gn__digest_range(r->weights, 0, (int64_t)r->n_weights);
        return;
    }
    gn__pool_for(&pool, (int64_t)r->n_weights, 1, gn__digest_range, r->weights);
    gn__pool_deinit(&pool);
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
    if (!e) e = gn__remote_ready(r, UINT64_MAX, f);
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
        e = gn__remote_ready(r, UINT64_MAX, f);
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
    if (r->n_weights > 0) gn__remote_digest(r);
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
    if (!e) e = gn__remote_ready(r, UINT64_MAX, f);
    if (e) return e;
    if (r->part.n > GN__BLOB_INLINE && r->part.n <= UINT32_MAX) m.packed = (uint32_t)r->part.n;
    gn__outbox_fields(&r->link.out, GN__MSG_PLAN_PUT, (uint32_t)r->next++, &m);
    if (m.packed) gn__blob_put(&r->link.out, r->part.p, r->part.n, 1, r->link.codecs, r->link.wire_ns, &r->link.scratch);
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

/* Of a step's message, at most. */
static uint64_t gn__step_bytes(const gn__ports *ports) {
    uint64_t n = 64 + 9 * (uint64_t)ports->n_outs;
    for (uint32_t i = 0; i < ports->n_args && n < UINT64_MAX / 4; i++) n += ports->args[i].value ? 8 : gn__blob_most(ports->args[i].bytes);
    return n + (n / GN__FRAME_MAX + 1) * GN__FRAME_HEAD;
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
    if (!e) e = gn__remote_ready(r, gn__step_bytes(&p->ports), f);
    if (!e && r->failed) e = gn__remote_told(r, f);   /* an earlier step failed: what was queued behind it did not run */
    if (e) return e;
    for (uint32_t i = 0; i < p->ports.n_args; i++)
        if (!p->ports.args[i].value && args[i].bytes != p->ports.args[i].bytes)
            return gn_fail(f, GN_BAD_SIZE, "%zu bytes for an argument of %zu", args[i].bytes, p->ports.args[i].bytes);
    gn__flight *x = gn__remote_flight(r, r->n_flights);
    e = gn__remote_board(r, x, &p->ports, outs, f);
    if (e) return e;
    gn__msg_step m = { p->id, r->sequence + 1, r->release, r->seen, { r->outs.p, r->outs.n }, { r->keeps.p, r->keeps.n / 8 }, { NULL, 0 } };
    uint64_t packed = r->stats->packed_bytes_up;
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
    if (r->features & GN__FEATURE_COSTS) {
        r->sent_us = r->n_flights == 1 && x->n_wants > 0 ? gn_now_us() : 0;
        r->sent_ticket = x->ticket;
        r->sent_up = r->stats->packed_bytes_up - packed;
        r->sent_down = x->owed;
    }
    e = gn__remote_flush(r, f);
    x->sent = r->link.sent;
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
    gn__copy_text(out_info->records, sizeof out_info->records, r->link.info.records);
    out_info->remote = true;
}

static void gn__remote_close(void *self) {
    gn__remote *r = (gn__remote *)self;
    gn__msg_bye m = { GN_OK };
    for (int i = 0; i < 2; i++) {
        if (r->probes[i].plan) gn__remote_plan_destroy(r, r->probes[i].plan);
        gn_free(r->probes[i].x);
        gn_free(r->probes[i].y);
    }
    if (!r->lost) {
        r->link.deadline_ms = GN__MIN(r->link.deadline_ms, 1000u);
        gn__outbox_message(&r->link.out, GN__MSG_BYE, (uint32_t)r->next++, &m);
        gn__outbox_flush(&r->link.out);
    }
    gn__link_count(&r->link);
    r->stats->device_bytes -= r->held;
    gn__link_deinit(&r->link);
    for (uint32_t i = 0; i < GN__IN_FLIGHT; i++) {
        gn_free(r->flights[i].wants);
        gn__buf_deinit(&r->flights[i].arrival.blob.packed);
    }
    gn_free(r->weights);
    gn__buf_deinit(&r->outs);
    gn__buf_deinit(&r->keeps);
    gn__buf_deinit(&r->part);
    gn_free(r);
}

static void gn__remote_costs(void *self, gn_cluster_device *out_device, gn_cluster_link *out_up, gn_cluster_link *out_down);

static const gn_exec_i gn__remote_i = {
    gn__remote_close, gn__remote_slot_put, gn__remote_slot_drop, gn__remote_plan_make, gn__remote_plan_destroy,
    gn__remote_submit, gn__remote_wait, gn__remote_values_release, gn__remote_describe, NULL, NULL, gn__remote_costs, NULL, NULL,
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
    m.features = r->features;
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
    r->features &= d.features;
    if (r->features & GN__FEATURE_RENEW) r->link.t.i->renew(r->link.t.self);
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

/* Questions of no weights, then one of many: the quickest trip is the latency, what the large one takes more is the rate. Any
   server of protocol 1 answers them. */
static gn_result gn__remote_probe(gn__remote *r, gn_fault *f) {
    enum { SMALL = 3 };
    double least = 1e9, spent = 0;
    gn_result e = GN_OK;
    void *weights = gn__alloc_zero(GN__WIRE_ASK * sizeof *r->weights);
    if (!weights) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory to measure a link");
    r->weights = (gn__remote_weight *)weights;
    for (int i = 0; i <= SMALL && !e; i++) {
        uint64_t begin = gn_now_us();
        e = gn__remote_ask(r, 0, i < SMALL ? 0 : GN__WIRE_ASK, f);
        spent = (double)(gn_now_us() - begin) * 1e-6;
        if (i < SMALL) least = GN__MIN(least, spent);
    }
    gn_free(weights);
    r->weights = NULL;
    double more = GN__MAX(spent - least, 1e-6);
    r->link_up = r->link_down = (gn_cluster_link){ GN__MAX(least, 1e-6) / 2, GN__WIRE_ASK * 40 / more };
    return e;
}

/* Whether a probe that was given up is still without an answer; then the link is at least as slow as that. */
static bool gn__remote_overdue(gn__remote *r) {
    gn_fault f;
    if (!r->probe_us) return false;
    while (r->n_flights > 0 && gn__remote_look(r, 0, &f) == GN_OK) { }
    if (r->n_flights > 0 && !r->lost) gn__remote_latency(r, (double)(gn_now_us() - r->probe_us) * 1e-6 / 2);
    else r->probe_us = 0;
    return r->probe_us != 0;
}

/* Waits for a probe's answer: four times what it should take. */
static void gn__remote_probe_wait(gn__remote *r, bool work) {
    double bytes = (double)(r->sent_up + r->sent_down), rate = GN__MIN(r->link_up.bytes_per_s, r->link_down.bytes_per_s);
    double expected = 4 * (2 * r->link_up.latency_s + (rate > 0 ? bytes / rate : 0)), most = (double)r->link.deadline_ms * 1e-3;
    uint64_t begin = gn_now_us(), spent = 0, patience = (uint64_t)(GN__MIN(GN__MAX(expected, GN__PROBE_LEAST_S), most) * 1e6);
    gn_result e = GN_OK;
    gn_fault f;
    r->await_us = begin;
    while (e == GN_OK && r->n_flights > 0 && (spent = gn_now_us() - begin) < patience) e = gn__remote_look(r, (uint32_t)((patience - spent) / 1000) + 1, &f);
    if (r->n_flights == 0 || r->lost) return;
    r->sent_us = 0;                                       /* when it comes is not when it is seen */
    if (work) return;                                     /* a server may have to compile it */
    r->probe_us = begin;
    gn__remote_latency(r, (double)(gn_now_us() - begin) * 1e-6 / 2);
}

/* gn__probe_fn: a few bytes there and back tell the latency; now and then a product the rate, and how quick the device is. */
static double gn__remote_probe_again(void *self) {
    gn__remote *r = (gn__remote *)self;
    gn_exec x = { &gn__remote_i, r };
    bool work = r->n_probes % GN__PROBE_WORK == GN__PROBE_WORK - 1;
    gn__probe *b = &r->probes[work];
    uint64_t ticket, first = r->next;
    if (r->lost || r->failed || r->no_probes || !(r->features & GN__FEATURE_COSTS) || gn__remote_overdue(r) || r->n_flights > 0) return 0;
    r->no_probes = !b->plan && gn__probe_make(b, x, work, NULL) != GN_OK;
    gn_arg in = { b->x, b->bytes, 0 };
    gn_out out = { b->y, b->bytes, 0 };
    if (r->no_probes || gn__remote_submit(r, b->plan, &in, &out, &ticket, NULL) != GN_OK) return 0;
    r->n_probes++;
    gn__remote_probe_wait(r, work);
    gn__link_count(&r->link);
    if (r->failed && r->error_ticket >= first) {          /* nothing of the program's */
        gn__remote_told(r, NULL);
        r->no_probes = true;
    }
    return work && !r->no_probes && r->n_flights == 0 ? (double)r->busy * 1e-9 : 0;
}

static void gn__remote_costs(void *self, gn_cluster_device *out_device, gn_cluster_link *out_up, gn_cluster_link *out_down) {
    const gn__remote *r = (const gn__remote *)self;
    *out_device = r->costs;
    out_device->ops = r->ops;
    out_device->n_ops = r->n_ops;
    *out_up = r->link_up;
    *out_down = r->link_down;
}

/* Opens `device` of the server at the other end ("" or NULL: its first). Takes ownership of the transport, whatever it returns.
   `several`: the scheduler has a choice, so it is worth time to learn what the device and the link cost. */
static gn_result gn__remote_open(const gn_desc *desc, gn_transport t, const char *device, bool several, gn_stats *stats, gn_exec *out, gn_fault *f) {
    gn__remote *r = (gn__remote *)gn__alloc_zero(sizeof *r);
    memset(out, 0, sizeof *out);
    if (!r) {
        t.i->close(t.self);
        return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a connection");
    }
    gn__link_init(&r->link, t, desc && desc->deadline_ms ? desc->deadline_ms : GN__DEADLINE_MS, stats);
    r->stats = stats;
    r->link.in.intake = (gn__intake){ gn__arrival_begins, gn__arrival_takes, r };
    r->next = 1;
    r->next_plan = 1;
    r->features = GN__FEATURE_FALLBACK | (several ? GN__FEATURE_COSTS : 0u) | (desc && desc->strict ? GN__FEATURE_STRICT : 0u);
    if (desc) { r->log = desc->log; r->log_user = desc->log_user; r->threads = desc->threads; }
    gn__link_count(&r->link);
    if (gn__link_renews(&r->link)) r->features |= GN__FEATURE_RENEW;
    gn_result e = gn__remote_greet(r, device, f);
    if (!e && several) e = gn__remote_probe(r, f);
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

typedef struct gn__hasher {     /* hashes a large weight while it arrives, on a thread of its own */
    gn__thread thread;
    gn__mutex lock;             /* of all below */
    gn__cond changed;
    void *hash;                 /* the thread's */
    const uint8_t *data;
    uint64_t ready, done;       /* bytes that have come and that are hashed */
    bool last, abandoned;       /* nothing more comes; the rest need not be hashed */
} gn__hasher;

typedef struct gn__upload {
    gn__hasher *hasher;         /* NULL: the weight is small, or there is no thread; it is hashed at the end */
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
    uint64_t features;          /* that both know */
    int device_at;              /* among the server's */
    uint64_t begun_us;          /* when the first step not yet answered came, 0: none */
    char note[400];             /* of the latest fallback */
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

enum { GN__RECORD_PLANS = 1024, GN__RECORD_PLAN = 8 << 20, GN__RECORD_BYTES = 128 << 20 };   /* plans, bytes of one, bytes of all */

struct gn_server {
    char *listen, *key, *cert, *ca, *url_file, *home, *record_file, *warm_file;   /* copies of the desc's */
    gn_server_desc desc;
    char devices[GN__DEVICES_MAX][64];
    gn_cluster_device costs[GN__DEVICES_MAX];
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
    uint32_t busy[GN__DEVICES_MAX];      /* sessions that run steps on the device now */
    uint64_t step_us[GN__DEVICES_MAX];   /* running average of their length */
    gn_stats ended;             /* of sessions that are over */
    uint64_t next_session;
    uint64_t recorded[GN__RECORD_PLANS], record_bytes;   /* hashes of the plans in the record */
    uint32_t n_recorded;
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

static void gn__hasher_main(void *arg) {
    gn__hasher *h = (gn__hasher *)arg;
    gn__mutex_lock(&h->lock);
    for (;;) {
        while (h->done == h->ready && !h->last) gn__cond_wait(&h->changed, &h->lock);
        if (h->done == h->ready || h->abandoned) break;
        size_t n = (size_t)GN__MIN(h->ready - h->done, (uint64_t)GN__BLOB_CHUNK);
        const uint8_t *p = h->data + h->done;
        gn__mutex_unlock(&h->lock);
        gn__net->hash_add(h->hash, p, n);
        gn__mutex_lock(&h->lock);
        h->done += n;
        gn__cond_broadcast(&h->changed);
    }
    gn__mutex_unlock(&h->lock);
}

/* NULL: there is no memory, no thread, or a network unit that hashes in one piece only. */
static gn__hasher *gn__hasher_start(void) {
    gn__hasher *h = gn__net->hash_begin ? (gn__hasher *)gn__alloc_zero(sizeof *h) : NULL;
    if (!h) return NULL;
    gn__mutex_init(&h->lock);
    gn__cond_init(&h->changed);
    h->hash = gn__net->hash_begin();
    if (h->hash && gn__thread_start(&h->thread, gn__hasher_main, h)) return h;
    uint8_t ignored[32];
    if (h->hash) gn__net->hash_end(h->hash, ignored);
    gn__cond_deinit(&h->changed);
    gn__mutex_deinit(&h->lock);
    gn_free(h);
    return NULL;
}

/* `ready` bytes are at data, which stays until the next wait. */
static void gn__hasher_feed(gn__hasher *h, const uint8_t *data, uint64_t ready) {
    gn__mutex_lock(&h->lock);
    h->data = data;
    h->ready = ready;
    gn__cond_broadcast(&h->changed);
    gn__mutex_unlock(&h->lock);
}

/* Until it does not look at the data. */
static void gn__hasher_wait(gn__hasher *h) {
    gn__mutex_lock(&h->lock);
    while (h->done != h->ready) gn__cond_wait(&h->changed, &h->lock);
    gn__mutex_unlock(&h->lock);
}

/* The digest of all that was fed, or of nothing in particular when it is abandoned. */
static void gn__hasher_end(gn__hasher *h, bool abandoned, uint8_t digest[32]) {
    gn__mutex_lock(&h->lock);
    h->last = true;
    h->abandoned = abandoned;
    gn__cond_broadcast(&h->changed);
    gn__mutex_unlock(&h->lock);
    gn__thread_join(&h->thread);
    gn__net->hash_end(h->hash, digest);
    gn__cond_deinit(&h->changed);
    gn__mutex_deinit(&h->lock);
    gn_free(h);
}

/* Frees the bytes, which nobody hashes any more. */
static void gn__upload_free(gn__upload *u) {
    uint8_t ignored[32];
    if (u->hasher) gn__hasher_end(u->hasher, true, ignored);
    u->hasher = NULL;
    gn_free(u->data);
    u->data = NULL;
    u->cap = 0;
}

static void gn__upload_end(gn__session *s) {
    if (!s->upload.refused) s->held -= s->upload.at;
    gn__upload_free(&s->upload);
    memset(&s->upload, 0, sizeof s->upload);
}

/* All bytes are there: they must be what the digest says. */
static gn_result gn__upload_finish(gn__session *s, gn_fault *f) {
    gn__upload *u = &s->upload;
    uint8_t digest[32];
    if (u->hasher) gn__hasher_end(u->hasher, false, digest);
    else gn__net->sha256(u->data, (size_t)u->total, digest);
    u->hasher = NULL;
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
    if (u->hasher && u->at + n > u->cap) gn__hasher_wait(u->hasher);   /* the bytes may move */
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
        gn__upload_free(u);
        s->held -= u->at;
        u->refused = true;
        return e;
    }
    e = gn__blob_get(&r, u->data + u->at, (size_t)n, d->element, s->link.codecs, f);
    if (!e && u->hasher) gn__hasher_feed(u->hasher, u->data, u->at + n);
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
        if (u->total > GN__HASH_ALONE && u->total <= s->limit) u->hasher = gn__hasher_start();
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

/* ---- plans recorded for the next start: 8 bytes that say what the file is, then for each plan u32 bytes, the part as on the wire ---- */
static const char gn__record_head[8] = { 'G', 'N', 'P', 'L', 'A', 'N', 'S', '1' };

static bool gn__record_add(const char *path, bool first, const uint8_t *p, size_t n) {
    const uint8_t bytes[4] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24) };
    FILE *f = fopen(path, first ? "wb" : "ab");
    if (!f) return false;
    bool ok = (!first || fwrite(gn__record_head, sizeof gn__record_head, 1, f) == 1) && fwrite(bytes, sizeof bytes, 1, f) == 1 && fwrite(p, n, 1, f) == 1;
    return fclose(f) == 0 && ok;
}

/* Adds a plan that is not there yet. What does not fit is left out: a record is a help, not a promise. */
static void gn__server_record(gn_server *s, const gn_part *part, const uint8_t *p, uint64_t n) {
    if (!s->record_file || n > GN__RECORD_PLAN) return;
    gn__mutex_lock(&s->lock);
    bool leave = s->n_recorded == GN__RECORD_PLANS || s->record_bytes + n > GN__RECORD_BYTES;
    for (uint32_t i = 0; i < s->n_recorded && !leave; i++) leave = s->recorded[i] == part->hash;
    bool ok = leave || gn__record_add(s->record_file, !s->n_recorded, p, (size_t)n);
    if (ok && !leave) {
        s->recorded[s->n_recorded++] = part->hash;
        s->record_bytes += n;
    }
    gn__mutex_unlock(&s->lock);
    if (!ok) gn_logf(s->desc.log, s->desc.log_user, GN_LOG_WARN, "a plan could not be added to %s", s->record_file);
}

/* The part's bytes, unpacked into memory that the session's limit allows. */
static gn_result gn__served_plan_part(gn__session *s, gn__served_plan *p, const gn__msg_plan_put *d, gn_fault *f) {
    gn__rd r = { d->part.p, d->part.p + d->part.n, false };
    if (!d->packed) {
        gn_result raw = gn__part_decode(d->part.p, (size_t)d->part.n, GN__WIRE_NODES, &p->part, f);
        if (!raw) gn__server_record(s->server, p->part, d->part.p, d->part.n);
        return raw;
    }
    if (d->packed > s->limit - GN__MIN(s->held, s->limit)) return gn__session_full(s, d->packed, f);
    uint8_t *bytes = (uint8_t *)gn_alloc(d->packed);
    if (!bytes) return gn_fail(f, GN_OUT_OF_MEMORY, "no memory for a plan");
    gn_result e = gn__blob_get(&r, bytes, d->packed, 1, s->link.codecs, f);
    if (!e && r.p != r.end) e = gn_fail(f, GN_BAD_MESSAGE, "a plan has more bytes than announced");
    if (!e) e = gn__part_decode(bytes, d->packed, GN__WIRE_NODES, &p->part, f);
    if (!e) gn__server_record(s->server, p->part, bytes, d->packed);
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
    uint64_t fallbacks = s->stats.fallbacks;
    e = gn__served_plan_build(s, p, &d, &own);
    if (!e && s->stats.fallbacks != fallbacks && (s->features & GN__FEATURE_FALLBACK)) {
        gn__msg_fallback note = { d.plan, (uint32_t)GN__MIN(s->stats.fallbacks - fallbacks, GN__WIRE_NODES), gn__span_of_text(s->note, 399) };
        return gn__outbox_message(&s->link.out, GN__MSG_FALLBACK, m->request, &note);
    }
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

/* Counts the session among those that keep the device busy, or out of them. Returns the ns since it was counted in. */
static uint64_t gn__session_busy(gn__session *s, bool busy) {
    uint64_t now = gn_now_us(), spent = 0;
    if (busy == (s->begun_us != 0)) return 0;
    gn__mutex_lock(&s->server->lock);
    if (busy) s->server->busy[s->device_at]++;
    else {
        uint64_t *average = &s->server->step_us[s->device_at];
        spent = now - s->begun_us;
        s->server->busy[s->device_at]--;
        *average = *average ? (*average * 7 + spent) / 8 : spent;
    }
    gn__mutex_unlock(&s->server->lock);
    s->begun_us = busy ? GN__MAX(now, 1u) : 0;
    return GN__MIN(spent, GN__WAIT_MOST / 1000) * 1000;
}

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

static gn_result gn__session_settle(gn__session *s);

/* Starts the step as the last of those that run. Results that wait to be sent may hold the memory it needs: then they go first. */
static gn_result gn__step_run(gn__session *s, const gn__served_plan *p, const gn__msg_step *d, uint32_t request, gn_fault *f) {
    uint64_t last_keep = s->last_keep;
    for (;;) {
        gn__running *x = &s->running[s->n_running];
        x->request = request;
        gn__session_busy(s, true);
        gn_result e = gn__step_start(s, p, d, x, f);
        s->n_running += !e;
        if (e != GN_LIMIT || s->n_running == 0) return e;
        e = gn__session_settle(s);
        s->last_keep = last_keep;
        if (e) return gn_fail(f, e, "%s", gn__result_text(e));
        if (d->seen != s->step_failures) return gn_fail(f, GN_CANCELLED, "an earlier step failed");
    }
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
    return gn__step_run(s, p, &d, m->request, f);
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

static uint64_t gn__cost_on_wire(double v, uint64_t most) { return !(v > 0) ? 0 : v >= (double)most ? most : (uint64_t)v; }

/* What the device costs now. */
static gn_result gn__session_costs(gn__session *s, uint32_t request, uint64_t busy_ns) {
    gn_server *server = s->server;
    const gn_cluster_device *c = &server->costs[s->device_at];
    if (!(s->features & GN__FEATURE_COSTS)) return GN_OK;
    gn__mutex_lock(&server->lock);
    double queue = (double)server->busy[s->device_at] * (double)server->step_us[s->device_at] * 1e3 + c->queue_s * 1e9;
    gn__mutex_unlock(&server->lock);
    gn__msg_costs m = { .bytes = gn__cost_on_wire(c->bytes_per_s, GN__RATE_MOST), .launch = gn__cost_on_wire(c->launch_s * 1e9, GN__WAIT_MOST), .queue = gn__cost_on_wire(queue, GN__WAIT_MOST),
                        .memory = GN__MIN(s->limit, (uint64_t)1 << 52), .memory_free = GN__MIN(s->limit - GN__MIN(s->held, s->limit), (uint64_t)1 << 52), .busy = busy_ns };
    uint64_t *const rates[GN_RATE__COUNT] = { &m.f32, &m.half, &m.f64, &m.integer };
    for (int i = 0; i < GN_RATE__COUNT; i++) *rates[i] = gn__cost_on_wire(c->flops_per_s[i], GN__RATE_MOST);
    return gn__outbox_message(&s->link.out, GN__MSG_COSTS, request, &m);
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
    uint64_t spent = gn__session_busy(s, false);
    if (x->n_wants > 0 && (e = gn__session_costs(s, x->request, spent)) != GN_OK) return e;
    gn__outbox_fields(&s->link.out, GN__MSG_STEP_OK, x->request, &m);
    for (size_t i = 0; i < x->n_wants; i++) {
        const gn__want *w = &x->wants[i];
        s->stats.packed_bytes_up += gn__blob_put(&s->link.out, w->host, w->bytes, w->element, s->link.codecs, s->link.wire_ns, &s->link.scratch);
        s->stats.tensor_bytes_up += w->bytes;
    }
    s->held -= x->held;
    x->held = 0;
    return gn__outbox_end(&s->link.out);
}

/* Answers the first n of the steps that were submitted. */
static gn_result gn__session_settle_first(gn__session *s, uint32_t n) {
    gn__running done[GN__SERVER_QUEUE];
    gn_result e = GN_OK;
    for (uint32_t i = 0; i < n; i++) {
        gn_result r = gn__running_answer(s, &s->running[i]);
        if (r && !e) e = r;
    }
    s->n_running -= n;
    memcpy(done, s->running, n * sizeof *done);   /* their memory serves the very next steps: that of others may not be there yet */
    memmove(s->running, s->running + n, s->n_running * sizeof *done);
    memcpy(s->running + s->n_running, done, n * sizeof *done);
    gn__session_busy(s, s->n_running > 0);
    return e;
}

static gn_result gn__session_settle(gn__session *s) { return gn__session_settle_first(s, s->n_running); }

/* Answers the first n steps, and sends the answers. */
static gn_result gn__session_reply_first(gn__session *s, uint32_t n, gn_fault *f) {
    gn_result e = gn__session_settle_first(s, n);
    gn__session_show(s);   /* before the client can know */
    if (!e) e = gn__outbox_flush(&s->link.out);
    return e ? gn_fail(f, e, "%s", gn__result_text(e)) : GN_OK;
}

/* Answers the steps that have ended, if somebody waits for one of them. */
static gn_result gn__session_advance(gn__session *s, gn_fault *f) {
    uint32_t n = 0;
    bool wanted = false;
    for (; n < s->n_running && gn__exec_ended(&s->exec, s->running[n].ticket); n++) wanted = wanted || s->running[n].n_wants > 0;
    return wanted ? gn__session_reply_first(s, n, f) : GN_OK;
}

/* Waits for the first step that somebody waits for, without one for all, and answers it. */
static gn_result gn__session_reply_one(gn__session *s, gn_fault *f) {
    uint32_t n = 0;
    while (n < s->n_running && s->running[n].n_wants == 0) n++;
    return gn__session_reply_first(s, n + (n < s->n_running), f);
}

/* The next message, of which no more is here than its begin. What comes while steps run is received beside them, and their answers go as
   they end; before anything else is waited for, all is answered. */
static gn_result gn__session_receive(gn__session *s, const gn__patience *w, gn__msg *out, gn_fault *f) {
    while (s->n_running > 0 && !gn__exec_ended(&s->exec, s->running[s->n_running - 1].ticket)) {
        bool unfinished = gn__inbox_unfinished(&s->link.in);
        gn_result e = gn__link_read(&s->link, unfinished ? 1 : 0);
        if (e && e != GN_TIMEOUT) return gn_fail(f, e, "%s", gn__result_text(e));
        e = e && !unfinished ? gn__session_reply_one(s, f) : gn__session_advance(s, f);
        if (!e) e = gn__inbox_next(&s->link.in, out, f);
        if (e || out->id) return e;
    }
    gn_result e = gn__session_reply_first(s, s->n_running, f);
    return e ? e : gn__link_receive(&s->link, w, out, f);
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
    if (!e && m->id == GN__MSG_STEP) return gn__session_advance(s, f);
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
        if (!e && m.id == 0) e = gn__session_receive(s, &w, &m, f);
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

/* What the executor has to say, to the log and, of a fallback, to the client. */
static void gn__session_note(void *user, gn_log_level level, const char *text) {
    gn__session *s = (gn__session *)user;
    gn__copy_text(s->note, sizeof s->note, text);
    gn_logf(s->server->desc.log, s->server->desc.log_user, level, "session %llu: %s", (unsigned long long)s->id, text);
}

static gn_result gn__session_device(gn__session *s, const gn__span *wanted, gn_fault *f) {
    const gn_server *server = s->server;
    char text[64], name[64];
    gn__span_text(wanted, text, sizeof text);
    gn__device_name(name, text, strlen(text));
    for (int i = 0; i < server->n_devices && !s->device[0]; i++)
        if (name[0] == 0 || strcmp(name, server->devices[i]) == 0) gn__copy_text(s->device, sizeof s->device, server->devices[i]);
    if (!s->device[0]) return gn_fail(f, GN_NO_DEVICE, "this server does not offer %s", name);
    while (strcmp(server->devices[s->device_at], s->device) != 0) s->device_at++;
    gn_exec_desc d = { s->device, server->desc.threads, s->limit, s->link.deadline_ms, (s->features & GN__FEATURE_STRICT) != 0, &s->stats, gn__session_note, s };
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
    m.features = s->features;
    m.codecs = s->link.codecs;
    m.session = s->id;
    m.memory = s->limit;
    m.nodes = GN__WIRE_NODES;
    m.ops = (gn__span){ ops, sizeof ops };
    m.device = gn__span_of_text(s->device, 63);
    m.identity = gn__span_of_text(info.identity, 191);
    m.grant = *grant;
    gn_result e = gn__outbox_message(&s->link.out, GN__MSG_HELLO_OK, request, &m);
    if (!e) e = gn__session_costs(s, request, 0);
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
    gn__link_count(&s->link);
    s->features = d.features & GN__FEATURES;
    if (server->desc.no_costs) s->features &= ~(uint64_t)GN__FEATURE_COSTS;
    if (!gn__link_renews(&s->link)) s->features &= ~(uint64_t)GN__FEATURE_RENEW;
    if (s->features & GN__FEATURE_RENEW) s->link.t.i->renew(s->link.t.self);
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
    gn__upload_free(&s->upload);
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
    gn__session_busy(s, false);
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
              gn__copy_string(&s->ca, &d->ca) && gn__copy_string(&s->url_file, &d->url_file) && gn__copy_string(&s->home, &d->home) &&
              gn__copy_string(&s->record_file, &d->record_file) && gn__copy_string(&s->warm_file, &d->warm_file);
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
    gn_exec_desc d = { s->devices[s->n_devices], s->desc.threads, s->desc.memory_limit, s->desc.deadline_ms, false, &stats, s->desc.log, s->desc.log_user };
    gn_result e = gn__exec_open(&d, &exec, f);
    if (e) return e;
    if (!s->desc.no_costs) gn__measure(exec, &d, &s->costs[s->n_devices]);
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

/* The bytes of a file of at most GN__RECORD_BYTES; freed by gn_free. */
static uint8_t *gn__record_read(const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    uint8_t *p = NULL;
    size_t n = 0, cap = 0, got = 1;
    while (f && got && n <= GN__RECORD_BYTES) {
        if (n == cap) {
            uint8_t *more = (uint8_t *)gn_resize(p, cap = cap ? cap * 2 : 65536);
            if (!more) { gn_free(p); p = NULL; break; }
            p = more;
        }
        got = fread(p + n, 1, cap - n, f);
        n += got;
    }
    if (f) fclose(f);
    *out_n = n;
    return p;
}

/* Makes a recorded plan once on every device, so that its kernels are compiled. The file is checked as a client is. */
static gn_result gn__server_warm_plan(gn_server *s, const uint8_t *p, size_t n, gn_fault *f) {
    gn_part *part;
    gn_result e = gn__part_decode(p, n, GN__WIRE_NODES, &part, f);
    if (e) return e;
    for (int i = 0; i < s->n_devices && !e; i++) {
        gn_stats stats;
        gn_exec exec = { NULL, NULL };
        void *plan = NULL;
        memset(&stats, 0, sizeof stats);
        gn_exec_desc d = { s->devices[i], 1, s->desc.memory_limit, s->desc.deadline_ms, false, &stats, s->desc.log, s->desc.log_user };
        e = gn__exec_open(&d, &exec, f);
        if (!e) e = exec.i->plan_make(exec.self, part, &plan, f);
        if (!e) exec.i->plan_destroy(exec.self, plan);
        if (exec.i) exec.i->close(exec.self);
    }
    gn_free(part);
    return e;
}

static gn_result gn__server_warm(gn_server *s, gn_fault *f) {
    size_t n = 0;
    uint32_t made = 0, refused = 0;
    gn_fault why = { GN_OK, GN_NO_NODE, "" };
    if (!s->warm_file) return GN_OK;
    uint8_t *bytes = gn__record_read(s->warm_file, &n);
    if (!bytes) return gn_fail(f, GN_IO_ERROR, "cannot read the plans in %s", s->warm_file);
    gn__rd r = { bytes, bytes + n, false };
    bool ok = n >= sizeof gn__record_head && n <= GN__RECORD_BYTES && memcmp(bytes, gn__record_head, sizeof gn__record_head) == 0;
    for (r.p += ok ? sizeof gn__record_head : 0; ok && r.p < r.end && made + refused < GN__RECORD_PLANS;) {
        uint32_t size = gn__get_u32(&r);
        ok = !r.bad && size <= (size_t)(r.end - r.p) && size <= GN__RECORD_PLAN;
        if (!ok) break;
        if (gn__server_warm_plan(s, r.p, size, &why) == GN_OK) made++;
        else refused++;
        r.p += size;
    }
    gn_free(bytes);
    gn_logf(s->desc.log, s->desc.log_user, refused || !ok ? GN_LOG_WARN : GN_LOG_INFO, "%u plans of %s are made, %u refused%s%s%s", made, s->warm_file, refused, refused ? ", the last: " : "", why.text,
            ok ? "" : "; the rest of the file is no record of plans");
    return GN_OK;
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
    char *const copies[] = { s->listen, s->key, s->cert, s->ca, s->url_file, s->home, s->record_file, s->warm_file };
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
    if (!e) e = gn__server_warm(s, f);
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

/* What was said against what is recognised: told once, when a plan is made. */
static void gn__disagreements_tell(gn_ctx *g, const gn_part *p, const gn_meaning *m) {
    if (!m->n_disagreements) return;
    const gn_disagreement *d = &m->disagreements[0];
    const gn__node *n = &g->nodes[g->cut.ids[d->node]];
    static const struct { uint8_t which; const char *what; const char *const *names; } kinds[] = {
        { GN_SAID_PHASE, "phase", gn__phase_names }, { GN_SAID_ROLE, "role", gn__role_names },
        { GN_SAID_RESIDENCY, "residency", gn__residency_names }, { GN_SAID_MODALITY, "modality", gn__modality_names },
    };
    size_t k = 0;
    while (kinds[k].which != d->which) k++;
    g->stats.meaning_disagreements += m->n_disagreements;
    gn_logf(g->desc.log, g->desc.log_user, GN_LOG_WARN, "%u of %u nodes were said to be other than they are recognised as; the first: %s at %s:%u has the %s '%s', recognised: '%s'",
            m->n_disagreements, p->n_nodes, gn__ops[n->op].name, n->file, n->line, kinds[k].what, kinds[k].names[d->said], kinds[k].names[d->recognised]);
}

static gn_result gn__plan_understand(gn_ctx *g, const gn_part *p, gn_fault *f) {
    gn_meaning m;
    gn_result r = p->hints ? gn__meaning_make(p, 0, &m, f) : GN_OK;
    if (!p->hints || r != GN_OK) return r;
    gn__disagreements_tell(g, p, &m);
    gn__meaning_deinit(&m);
    return GN_OK;
}

/* The plan that came after the latest one the last time, when it is the one; its hash is then not needed. */
static gn__plan *gn__plan_expected(gn_ctx *g) {
    uint32_t next = g->latest_plan ? g->plans[g->latest_plan - 1].next : 0;
    return next && gn__part_equal(g->plans[next - 1].part, &g->cut.part) ? &g->plans[next - 1] : NULL;
}

static void gn__plan_follows(gn_ctx *g, const gn__plan *plan) {
    uint32_t at = (uint32_t)(plan - g->plans) + 1;
    if (g->latest_plan) g->plans[g->latest_plan - 1].next = at;
    g->latest_plan = at;
}

static gn__plan *gn__plan_of(gn_ctx *g, gn_result *out_r) {
    gn_part *p = &g->cut.part;
    gn_fault f = { GN_OUT_OF_MEMORY, GN_NO_NODE, "no memory for a plan" };
    gn__plan *expected = gn__plan_expected(g);
    *out_r = GN_OK;
    if (expected) { g->stats.plans_found++; return expected; }
    p->hash = gn__part_hash(p);
    gn__plan made = { .key = gn__plan_key(p) };
    *out_r = GN_OUT_OF_MEMORY;
    if (!gn__table_room(&g->plan_table, &g->plan_room, g->n_plans, gn__plan_hash_of, g)) { gn__error_set(g, *out_r, "", f.text); return NULL; }
    uint32_t *at = gn__table_find(g->plan_table, g->plan_room, made.key, gn__plan_same, g, p);
    *out_r = GN_OK;
    if (*at) { g->stats.plans_found++; return &g->plans[*at - 1]; }
    made.part = gn__part_copy(p);
    made.origins = (gn__origin *)gn__alloc_zero((p->n_nodes + 1) * sizeof *made.origins);
    *out_r = made.part && made.origins && GN__GROW(g, plans, 1) ? gn__plan_understand(g, made.part, &f) : GN_OUT_OF_MEMORY;
    if (*out_r == GN_OK) *out_r = g->exec.i->plan_make(g->exec.self, made.part, &made.exec_plan, &f);
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

/* later: when it is not NULL the run is not waited for, and it is told what to wait for. */
static gn_result gn__submit(gn_ctx *g, const uint32_t *roots, gn_out *outs, int n, uint64_t *later) {
    uint32_t bad;
    gn_result r = gn__cut_make(g, roots, n, &bad);
    if (r != GN_OK) return gn__cut_error(g, r, bad);
    const gn_part *p = &g->cut.part;
    if ((r = gn__slots_upload(g, p)) != GN_OK) return r;
    gn__plan *plan = gn__plan_of(g, &r);
    if (!plan) return r;
    gn__plan_follows(g, plan);
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
    for (int i = 0; i < n && !later; i++) waits |= outs[i].host != NULL;
    if (later) *later = r == GN_OK ? g->last_ticket : 0;
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
    *out = (gn_exec_desc){ device, g->desc.threads, 0, g->desc.deadline_ms, g->desc.strict, stats, g->desc.log, g->desc.log_user };
}

#if defined(__GNUC__) && !defined(__clang__)      /* not on the path of a tile: compiled fast rather than to be fast */
#pragma GCC push_options
#pragma GCC optimize("O1")
#endif

static const char *gn__device_list(const gn_desc *d) {
    const char *all = d && d->devices ? d->devices : getenv("GENIE_DEVICES");
    return all && all[0] ? all : "cpu";
}

/* What follows a '?' is a secret and is not kept. `more`: names that follow the list. */
static bool gn__device_names_keep(gn_ctx *g, const char *all, const char *const *more, int n_more) {
    size_t room = all ? strlen(all) + 2 : 2;
    for (int i = 0; i < n_more; i++) room += strlen(more[i]) + 1;
    char *to = g->device_names = (char *)gn_alloc(room);
    if (!to) return false;
    for (bool secret = false; all && *all; all++) {
        secret = *all != ',' && (secret || *all == '?');
        if (!secret) *to++ = *all;
    }
    *to = 0;
    for (int i = 0; i < n_more; i++) to += snprintf(to, room - (size_t)(to - g->device_names), "%s%s", to > g->device_names ? "," : "", more[i]);
    return true;
}

/* 1 + index of the device with this name or decimal index, 0: none. */
static uint32_t gn__device_index(const gn_ctx *g, const char *device) {
    char digits[12];
    size_t n = strcspn(device, "?");
    uint32_t index = 0;
    for (const char *at = g->device_names;; at++) {
        size_t length = strcspn(at, ",");
        snprintf(digits, sizeof digits, "%u", index++);
        if ((n && n == length && memcmp(at, device, n) == 0) || strcmp(digits, device) == 0) return index;
        at += length;
        if (!*at) return 0;
    }
}

typedef struct gn__opened { gn_exec exec; bool sync /* it works while submit waits */; gn_cluster_device costs; gn_cluster_link link; } gn__opened;

/* One device by the text that names it. `several`: what it costs is worth knowing. */
static gn_result gn__device_open(gn_ctx *g, const char *device, bool several, gn_stats *stats, gn__opened *out, gn_fault *f) {
    char on_server[64];
    bool driver = gn__driver_serves(device) || strncmp(device, "cuda", 4) == 0;
    out->sync = strcmp(device, "cpu") == 0 || strcmp(device, "cpu:0") == 0 || strcmp(device, "null") == 0;
    if (out->sync || driver) {
        gn_exec_desc d;
        gn__exec_desc_of(g, &d, device, stats);
        gn_result r = gn__exec_open(&d, &out->exec, f);
        if (r || !several) return r;
        gn__measure(out->exec, &d, &out->costs);
        out->link = driver ? (gn_cluster_link){ 0, 2e10 } : (gn_cluster_link){ 0, 1e10 };   /* a bus; a copy in memory */
        return GN_OK;
    }
    if (!gn__net) return gn_fail(f, GN_NO_DEVICE, "device '%.60s' is on a server, and this program was built without genie_net.c", strchr(device, '?') ? "genie://…" : device);
    gn_net_desc nd = { g->desc.home, g->desc.deadline_ms, g->desc.log, g->desc.log_user };
    gn_transport t = { NULL, NULL };
    gn_result r = gn__net->connect(device, &nd, &t, on_server, f);
    return r != GN_OK ? r : gn__remote_open(&g->desc, t, on_server, several, stats, &out->exec, f);
}

/* Transports that were given are the devices after those named. */
typedef struct gn__places { const char *names; uint32_t n_names, n; const gn_transport *t; const char *const *on_server; } gn__places;

static gn_result gn__place_open(gn_ctx *g, const gn__places *p, uint32_t i, gn_stats *stats, gn__opened *out, gn_fault *f) {
    char device[512];
    const char *at = p->names;
    memset(out, 0, sizeof *out);
    if (i >= p->n_names) return gn__remote_open(&g->desc, p->t[i - p->n_names], p->on_server[i - p->n_names], p->n > 1, stats, &out->exec, f);
    for (uint32_t k = 0; k < i; k++) at += strcspn(at, ",") + 1;
    at += strspn(at, " ");
    size_t n = strcspn(at, ",");
    if (n >= sizeof device) return gn_fail(f, GN_BAD_ARGUMENT, "the device's name is longer than %d characters", (int)sizeof device - 1);
    while (n > 0 && at[n - 1] == ' ') n--;
    memcpy(device, at, n);
    device[n] = 0;
    return gn__device_open(g, device, p->n > 1, stats, out, f);
}

static void gn__places_close(const gn__places *p, uint32_t from) {
    for (uint32_t i = GN__MAX(from, p->n_names); i < p->n; i++) p->t[i - p->n_names].i->close(p->t[i - p->n_names].self);
}

/* Several devices become one executor. */
static gn_result gn__places_open_all(gn_ctx *g, const gn__places *p, gn_fault *f) {
    gn_exec_desc d;
    gn__exec_desc_of(g, &d, NULL, &g->stats);
    gn__multi *m = p->n <= GN__UNITS_MAX ? gn__multi_new(p->n, &d) : NULL;
    gn_result r = m ? GN_OK : p->n > GN__UNITS_MAX ? gn_fail(f, GN_BAD_ARGUMENT, "%u devices; %d are possible", p->n, GN__UNITS_MAX) : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for devices");
    uint32_t i = 0;
    for (; i < p->n && !r; i++) {
        gn__opened x;
        r = gn__place_open(g, p, i, &m->units[i].stats, &x, f);
        if (r) continue;
        m->units[i].probe = x.exec.i == &gn__remote_i ? gn__remote_probe_again : x.exec.i == &gn__cpu_i ? gn__device_work : NULL;
        m->units[i].probe_self = x.exec.i == &gn__remote_i ? x.exec.self : &m->units[i];
        if (g->desc.trace) gn__trace_exec(&x.exec, g->desc.trace, g->desc.trace_user);
        gn__multi_enter(m, i, x.exec, x.sync);
        m->units[i].costs = x.costs;
        m->units[i].up = m->units[i].down = x.link;
        for (uint32_t k = 0; k < i && !r; k++)
            if (strcmp(m->units[k].name, m->units[i].name) == 0) r = gn_fail(f, GN_BAD_ARGUMENT, "device %s is named twice", m->units[i].name);
    }
    if (r) {
        gn__places_close(p, i);
        if (m) gn__multi_close(m);
        return r;
    }
    m->policy = g->desc.policy;
    m->watch = !g->desc.keep_placement && !gn__env_forbids("GENIE_RESCHEDULE") && !gn__env_forbids("GENIE_MEASURE");
    m->measure_us = gn_now_us() + GN__WATCH_US;
    m->trace = g->desc.trace;
    m->trace_user = g->desc.trace_user;
    g->multi = m;
    g->exec = (gn_exec){ m->units[0].exec.i->host_alloc ? &gn__multi_host_i : &gn__multi_i, m };
    return GN_OK;
}

static gn_result gn__places_open(gn_ctx *g, const gn__places *p, gn_fault *f) {
    gn__opened one;
    if ((int)g->desc.policy < 0 || g->desc.policy >= GN_POLICY__COUNT) {
        gn__places_close(p, 0);
        return gn_fail(f, GN_BAD_ARGUMENT, "policy %d is not known", (int)g->desc.policy);
    }
    if (p->n != 1) return gn__places_open_all(g, p, f);
    gn_result r = gn__place_open(g, p, 0, &g->stats, &one, f);
    if (!r && g->desc.trace) gn__trace_exec(&one.exec, g->desc.trace, g->desc.trace_user);
    g->exec = one.exec;
    return r;
}

static uint32_t gn__names_count(const char *names) {
    uint32_t n = 1;
    for (; *names; names++) n += *names == ',';
    return n;
}

/* The devices are those of desc, unless transports are given that stand for all of them (`names` NULL). */
static gn_ctx *gn__context_open(const gn_desc *desc, const char *names, const gn_transport *t, const char *const *on_server, int n_transports) {
    gn_fault f = { GN_OUT_OF_MEMORY, GN_NO_NODE, "no memory for a context" };
    gn__places p = { names, names ? gn__names_count(names) : 0, 0, t, on_server };
    p.n = p.n_names + (uint32_t)n_transports;
    gn_ctx *g = gn__context_take();
    if (!g) { gn__places_close(&p, 0); return &gn__no_context; }
    if (desc) g->desc = *desc;
    g->desc.trace = NULL;                /* not of the context's own first node */
    if (!g->desc.deadline_ms) g->desc.deadline_ms = 30000;
    g->max_nodes = g->desc.max_nodes ? g->desc.max_nodes : 1u << 21;
    g->status = gn__context_init(g) && gn__device_names_keep(g, names, on_server, n_transports) ? GN_OK : GN_OUT_OF_MEMORY;
    g->desc.trace = desc ? desc->trace : NULL;
    uint64_t begin = gn__trace_begin(g);
    if (g->status == GN_OK) g->status = gn__places_open(g, &p, &f);
    else gn__places_close(&p, 0);
    gn__trace_end(g, "gn_open", begin, 0);
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
                       g->cut.nodes, g->cut.ins, g->cut.attrs, g->cut.dims, g->cut.args, g->cut.outs, g->cut.updates, g->cut.hints, g->cut.ids, g->cut.marks, g->cut.where, g->cut.seen, g->device_names };
    for (size_t i = 0; i < GN__LENGTH(arrays); i++) gn_free(arrays[i]);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static gn_result gn__step_end(gn_ctx *g) {
    gn_result r = GN_OK;
    if (g->failed_effect) r = gn__cut_error(g, GN_BAD_ARGUMENT, g->failed_effect);
    else if (g->n_pending) r = gn__submit(g, NULL, NULL, 0, NULL);
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
    s->hint = g->hint;
    s->label = gn__label_intern(g, label);
    return (gn_tensor){ g, (uint32_t)slot | GN__SLOT_BIT, s->gen };
}

/* >>public ========================================================================================= */

void gn_register_net(const gn_net_i *net) { gn__net = net; }
void gn_register_driver(const gn_driver_i *driver) { gn__driver = driver; }

gn_result gn_meaning_make(const gn_part *part, uint32_t recognisers_off, gn_meaning *out_meaning, gn_fault *f) { return gn__meaning_make(part, recognisers_off, out_meaning, f); }
void gn_meaning_deinit(gn_meaning *m) { gn__meaning_deinit(m); }
int gn_list_gpus(int index, char *out_text, size_t cap) {
    if (index < 0 || !out_text || cap == 0) return 0;
    if (gn__driver && gn__driver->list) return gn__driver->list(index, out_text, cap);
    return index == 0 ? snprintf(out_text, cap, "cuda: absent: genie_cuda.c is not linked into this program") : 0;
}

int gn_describe_network(char *out_text, size_t cap) {
    if (!out_text || cap == 0) return 0;
    if (gn__net && gn__net->about) return gn__net->about(out_text, cap);
    return snprintf(out_text, cap, "network: absent: genie_net.c is not linked into this program");
}

gn_result gn_layout_make(const gn_part *part, bool fuse, gn_layout *out_layout, gn_fault *f) { return gn__layout_make(part, fuse, out_layout, f); }
gn_result gn_layout_pack(gn_layout *l, gn_fault *f) { return gn__layout_memory(l) ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory to plan %u nodes", l->part->n_nodes); }
void gn_layout_deinit(gn_layout *l) { gn__layout_deinit(l); }
gn_view gn_view_collapse(const gn_view *v) { return gn__view_collapse(v); }
gn_result gn_schedule_make(const gn_part *part, const gn_meaning *meaning, const gn_cluster *cluster, gn_policy policy, const uint32_t *homes, gn_schedule *out_schedule, gn_fault *f) {
    return gn__schedule_make(part, meaning, cluster, policy, homes, out_schedule, f);
}
void gn_schedule_deinit(gn_schedule *s) { gn__schedule_deinit(s); }

gn_ctx *gn_open(const gn_desc *desc) { return gn__context_open(desc, gn__device_list(desc), NULL, NULL, 0); }
gn_ctx *gn_open_transport(const gn_desc *desc, gn_transport t, const char *device) {
    if (!device) device = "";
    return gn__context_open(desc, NULL, &t, &device, 1);
}
gn_ctx *gn_open_transports(const gn_desc *desc, const gn_transport *t, const char *const *devices, int n) { return gn__context_open(desc, desc ? desc->devices : NULL, t, devices, n); }

void gn_close(gn_ctx *g) {
    if (!g || !g->open) return;
    uint64_t begin = gn__trace_begin(g);
    gn__context_free(g);
    gn__trace_end(g, "gn_close", begin, 0);
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
    for (uint32_t i = 0; g && g->multi && i < g->multi->n_units; i++) gn__stats_add(out_stats, &g->multi->units[i].stats);
}

gn_result gn_get_device(gn_ctx *g, gn_device_info *out_info) {
    if (!out_info) return GN_BAD_ARGUMENT;
    memset(out_info, 0, sizeof *out_info);
    if (!gn__usable(g)) return gn_status(g);
    g->exec.i->describe(g->exec.self, out_info);
    return GN_OK;
}

int gn_device_count(gn_ctx *g) { return !gn__usable(g) ? 0 : g->multi ? (int)g->multi->n_units : 1; }

static gn_result gn__device_no(gn_ctx *g, int index) {
    char text[80];
    if (!gn__usable(g)) return gn_status(g);
    snprintf(text, sizeof text, "there is no device %d: the context has %d", index, g->multi ? (int)g->multi->n_units : 1);
    return index >= 0 && index < (g->multi ? (int)g->multi->n_units : 1) ? GN_OK : gn__error_set(g, GN_NO_DEVICE, "", text);
}

gn_result gn_get_device_at(gn_ctx *g, int index, gn_device_info *out_info) {
    memset(out_info, 0, sizeof *out_info);
    gn_result r = gn__device_no(g, index);
    if (r) return r;
    const gn_exec *x = g->multi ? &g->multi->units[index].exec : &g->exec;
    x->i->describe(x->self, out_info);
    return GN_OK;
}

gn_result gn_set_cluster(gn_ctx *g, const gn_cluster *c) {
    if (!gn__usable(g)) return gn_status(g);
    if (!g->multi || (c && c->n_devices != g->multi->n_units)) return gn__error_set(g, GN_BAD_ARGUMENT, "", "a cluster is for a context over as many devices, and more than one");
    size_t n = g->multi->n_units, n_links = (n + 1) * (n + 1);
    gn_cluster_device *devices = c ? (gn_cluster_device *)gn_alloc(n * sizeof *devices) : NULL;
    gn_cluster_link *links = c ? (gn_cluster_link *)gn_alloc(n_links * sizeof *links) : NULL;
    if (c && (!devices || !links)) {
        gn_free(devices);
        gn_free(links);
        return gn__error_set(g, GN_OUT_OF_MEMORY, "", "no memory for a cluster");
    }
    if (c) { memcpy(devices, c->devices, n * sizeof *devices); memcpy(links, c->links, n_links * sizeof *links); }
    gn_free(g->multi->given);
    gn_free(g->multi->given_links);
    g->multi->round++;                   /* plans are looked at */
    g->multi->given = devices;
    g->multi->given_links = links;
    return GN_OK;
}

gn_result gn_get_device_stats(gn_ctx *g, int index, gn_stats *out_stats) {
    memset(out_stats, 0, sizeof *out_stats);
    gn_result r = gn__device_no(g, index);
    if (!r) *out_stats = g->multi ? g->multi->units[index].stats : g->stats;
    return r;
}

gn_result gn_step(gn_ctx *g) {
    if (!gn__usable(g)) return gn_status(g);
    uint64_t begin = gn__trace_begin(g);
    gn_result r = gn__step_end(g);
    gn__trace_end(g, "gn_step", begin, 0);
    return r;
}

gn_result gn_sync(gn_ctx *g) {
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    if (!gn__usable(g)) return gn_status(g);
    uint64_t begin = gn__trace_begin(g);
    gn_result r = g->exec.i->wait(g->exec.self, g->multi ? UINT64_MAX : g->last_ticket, &f);
    gn__trace_end(g, "gn_sync", begin, 0);
    return r == GN_OK ? r : gn__run_error(g, NULL, &f);
}

gn_result gn_wait(gn_ctx *g, uint64_t ticket) {
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    if (!gn__usable(g)) return gn_status(g);
    bool given = g->multi ? (ticket & 31) < g->multi->n_units && ticket >> 5 <= g->multi->units[ticket & 31].last : ticket <= g->last_ticket;
    if (!given) return gn__error_set(g, GN_BAD_ARGUMENT, "", "gn_read_later has given no such ticket");
    uint64_t begin = gn__trace_begin(g);
    gn_result r = ticket ? g->exec.i->wait(g->exec.self, ticket, &f) : GN_OK;
    gn__trace_end(g, "gn_wait", begin, 0);
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
    uint64_t begin = gn__trace_begin(g);
    if (s->on_device) g->exec.i->slot_drop(g->exec.self, slot.id & ~GN__SLOT_BIT, s->gen);
    gn__trace_end(g, "gn_release", begin, 0);
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

static gn_result gn__values(gn_ctx *g, const gn_tensor *t, int n, void *const *out, const size_t *bytes, uint64_t *later) {
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
    uint64_t begin = gn__trace_begin(g), total = 0;
    if (r == GN_OK) r = gn__submit(g, roots, outs, n, later);
    for (int i = 0; outs && i < n; i++) total += outs[i].bytes;
    gn__trace_end(g, later ? "gn_read_later" : out ? n > 1 ? "gn_read_many" : "gn_read" : "gn_realize", begin, total);
    gn_free(roots);
    gn_free(outs);
    return r;
}

/* ---- gn_explain ---- */

static const char *gn__explain_label(const void *owner, uint32_t node) {
    const gn_ctx *g = (const gn_ctx *)owner;
    return gn__label_text(g, g->nodes[g->cut.ids[node]].label);
}

/* Where weights, states and kept values of the cut are. */
static void gn__explain_homes(const gn_ctx *g, uint32_t *homes) {
    const gn__multi *m = g->multi;
    for (uint32_t i = 0; i < g->cut.part.n_nodes; i++) {
        const gn_part_node *n = &g->cut.part.nodes[i];
        bool slot = n->leaf == GN_LEAF_WEIGHT || n->leaf == GN_LEAF_STATE;
        if (!m) homes[i] = slot ? g->slots[n->slot].on_device : n->leaf == GN_LEAF_VALUE;
        else if (slot && n->slot < m->n_slots && m->slots[n->slot].on) homes[i] = n->leaf == GN_LEAF_WEIGHT ? m->slots[n->slot].on : 1u << m->slots[n->slot].home;
        for (size_t k = 0; m && n->leaf == GN_LEAF_VALUE && k < m->n_values; k++)
            if (m->values[k].id == g->nodes[g->cut.ids[i]].value) homes[i] = 1u << m->values[k].device;
    }
}

/* The context's own devices, with what is known of them. */
static void gn__explain_cluster(gn_ctx *g, gn_cluster_device *devices, gn_cluster_link *links, gn_cluster *out) {
    gn_device_info info;
    if (g->multi) { gn__multi_cluster(g->multi, devices, links, out); return; }
    g->exec.i->describe(g->exec.self, &info);
    if (g->exec.i->costs) g->exec.i->costs(g->exec.self, &devices[0], &links[2], &links[1]);
    gn__copy_text(devices[0].name, sizeof devices[0].name, info.name);
    *out = (gn_cluster){ 1, devices, links };
}

static gn_result gn__explain_part(gn_ctx *g, const gn_explain_desc *d, const gn_cluster *c, gn_policy policy, const uint32_t *homes, gn__story *k, gn_fault *f) {
    gn_meaning m;
    gn_schedule s;
    gn_result r = gn__meaning_make(&g->cut.part, 0, &m, f);
    if (r != GN_OK) return r;
    r = gn__schedule_make(&g->cut.part, &m, c, policy, homes, &s, f);
    if (r == GN_OK) {
        k->p = &g->cut.part;
        k->m = &m;
        k->s = &s;
        k->c = c;
        k->policy = policy;
        k->label = gn__explain_label;
        k->owner = g;
        k->fallbacks = d->cluster ? 0 : g->stats.fallbacks;
        k->reschedules = d->cluster ? 0 : g->stats.reschedules;
        r = gn__story_tell(k, d->format, f);
    }
    gn__schedule_deinit(&s);
    gn__meaning_deinit(&m);
    return r;
}

static gn_result gn__explain(gn_ctx *g, const gn_explain_desc *d, gn__story *k, gn_fault *f) {
    uint32_t n = g->multi ? g->multi->n_units : 1;
    gn_cluster own;
    gn_cluster_device *devices = (gn_cluster_device *)gn__alloc_zero(n * sizeof *devices);
    gn_cluster_link *links = (gn_cluster_link *)gn__alloc_zero((size_t)(n + 1) * (n + 1) * sizeof *links);
    uint32_t *homes = (uint32_t *)gn__alloc_zero((g->cut.part.n_nodes + 1u) * sizeof *homes);
    gn_result r = devices && links && homes ? GN_OK : gn_fail(f, GN_OUT_OF_MEMORY, "no memory for an explanation");
    if (r == GN_OK && d->cluster) r = gn__explain_part(g, d, d->cluster, d->policy, NULL, k, f);
    else if (r == GN_OK) {
        gn__explain_cluster(g, devices, links, &own);
        gn__explain_homes(g, homes);
        r = gn__explain_part(g, d, &own, g->desc.policy, homes, k, f);
    }
    gn_free(devices);
    gn_free(links);
    gn_free(homes);
    return r;
}

static gn_result gn__explain_to(gn_ctx *g, const gn__story *k, char *out, size_t cap, size_t *out_bytes) {
    if (out_bytes) *out_bytes = k->out.n;
    if (cap == 0 && out_bytes) return GN_OK;
    if (!out || cap <= k->out.n) {
        char text[96];
        snprintf(text, sizeof text, "the explanation has %llu bytes and a NUL, the buffer %llu", (unsigned long long)k->out.n, (unsigned long long)cap);
        return gn__error_set(g, GN_BAD_SIZE, "", text);
    }
    memcpy(out, k->out.p, k->out.n);
    out[k->out.n] = 0;
    return GN_OK;
}

gn_result gn_read_many(const gn_tensor *t, int n, void *const *out, const size_t *bytes) {
    if (n <= 0 || !t || !out || !bytes) return n == 0 ? GN_OK : GN_BAD_ARGUMENT;
    return gn__usable(t[0].ctx) ? gn__values(t[0].ctx, t, n, out, bytes, NULL) : gn_status(t[0].ctx);
}
gn_result gn_read(gn_tensor t, void *out, size_t bytes) { return gn__usable(t.ctx) ? gn__values(t.ctx, &t, 1, &out, &bytes, NULL) : gn_status(t.ctx); }

gn_result gn_read_later(const gn_tensor *t, int n, void *const *out, const size_t *bytes, uint64_t *out_ticket) {
    if (!out_ticket) return GN_BAD_ARGUMENT;
    *out_ticket = 0;
    if (n <= 0 || !t || !out || !bytes) return n == 0 ? GN_OK : GN_BAD_ARGUMENT;
    return gn__usable(t[0].ctx) ? gn__values(t[0].ctx, t, n, out, bytes, out_ticket) : gn_status(t[0].ctx);
}

gn_result gn_realize(const gn_tensor *t, int n) {
    if (n <= 0 || !t) return n == 0 ? GN_OK : GN_BAD_ARGUMENT;
    return gn__usable(t[0].ctx) ? gn__values(t[0].ctx, t, n, NULL, NULL, NULL) : gn_status(t[0].ctx);
}

gn_result gn_explain(const gn_tensor *t, int n, const gn_explain_desc *desc, char *out, size_t cap, size_t *out_bytes) {
    gn_explain_desc d = { GN_EXPLAIN_TEXT, NULL, GN_LEAST_LATENCY };
    if (n <= 0 || !t) return GN_BAD_ARGUMENT;
    gn_ctx *g = t[0].ctx;
    if (!gn__usable(g)) return gn_status(g);
    if (desc) d = *desc;
    uint64_t begin = gn__trace_begin(g);
    if ((int)d.format < 0 || d.format >= GN_EXPLAIN__COUNT) return gn__error_set(g, GN_BAD_ARGUMENT, "", "gn_explain: there is no such format");
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn__story k;
    memset(&k, 0, sizeof k);
    uint32_t bad = 0, *roots = (uint32_t *)gn_alloc((size_t)n * sizeof *roots);
    gn_result r = roots ? gn__roots(g, t, n, roots) : gn__error_set(g, GN_OUT_OF_MEMORY, "", "no memory for an explanation");
    if (r == GN_OK && (r = gn__cut_make(g, roots, n, &bad)) != GN_OK) r = gn__cut_error(g, r, bad);
    else if (r == GN_OK && (r = gn__explain(g, &d, &k, &f)) != GN_OK) r = gn__error_set(g, r, "", f.text);
    if (r == GN_OK) r = gn__explain_to(g, &k, out, cap, out_bytes);
    gn__story_deinit(&k);
    gn_free(roots);
    gn__trace_end(g, "gn_explain", begin, 0);
    return r;
}

gn_result gn_describe(gn_tensor t, gn_info *out) {
    gn_ctx *g = t.ctx;
    if (!out) return GN_BAD_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->op = out->label = "";
    out->phase = gn__phase_names[0];
    out->role = gn__role_names[0];
    out->residency = gn__residency_names[GN_RESIDENCY_ACTIVATION];
    out->modality = gn__modality_names[0];
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
    out->phase = gn__phase_names[n->hint.phase];
    out->role = gn__role_names[n->hint.role ? n->hint.role : gn__role_of_op(n->op)];
    out->modality = gn__modality_names[n->hint.modality];
    out->residency = gn__residency_name(g, id);
    out->computed = n->leaf || n->committed || n->value;
    if (!out->computed || n->leaf == GN_LEAF_DATA) return GN_OK;
    gn_device_info d;
    g->exec.i->describe(g->exec.self, &d);
    if (g->multi) gn__copy_text(d.name, sizeof d.name, n->value ? gn__multi_where_value(g->multi, n->value) : gn__multi_where_slot(g->multi, n->slot - 1));
    if (n->value || g->slots[n->slot - 1].on_device) gn__copy_text(out->device, sizeof out->device, d.name);
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

#define GN__SCOPE(name, NAME)                                                                                                 \
    gn_result gn_##name(gn_ctx *g, gn_##name##_kind kind) {                                                                   \
        if (!gn__usable(g)) return gn_status(g);                                                                              \
        if ((int)kind < 0 || (int)kind >= (int)GN_##NAME##__COUNT) return gn__error_set(g, GN_BAD_ARGUMENT, "", "gn_" #name ": there is no such " #name); \
        g->hint.name = (uint8_t)kind;                                                                                         \
        return GN_OK;                                                                                                         \
    }
GN__SCOPE(phase, PHASE)
GN__SCOPE(role, ROLE)
GN__SCOPE(residency, RESIDENCY)
GN__SCOPE(modality, MODALITY)
#undef GN__SCOPE

gn_result gn_on(gn_ctx *g, const char *device) {
    if (!gn__usable(g)) return gn_status(g);
    uint32_t index = device ? gn__device_index(g, device) : 0;
    if (device && (!index || index > UINT8_MAX)) return gn__error_set(g, GN_NO_DEVICE, "", "gn_on: the context has no device of this name or index");
    g->hint.on = (uint8_t)index;
    return GN_OK;
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
    uint64_t begin = gn__trace_begin(g);
    uint8_t said = g->hint.residency;
    if (!said) g->hint.residency = GN_RESIDENCY_GRADIENT;
    if (r == GN_OK && (r = gn__gradients(g, at, root, x, n, gx, &f)) != GN_OK) gn__error_node(g, &f, file, (uint32_t)line, -1, g->nodes[root].label);
    g->hint.residency = said;
    for (int i = 0; i < n && gx; i++)
        out_grads[i] = gn__handle(g, gx[i] ? gx[i] : gn__failed_with(g, at, GN__OP_FAILED, GN_NO_GRADIENT, "%s", g->error.text));
    gn__trace_end(g, "gn_grad", begin, 0);
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

GN__CALLS_BEGIN

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
    /* A gain that has to be widened is so behind its broadcast: in the loop over all elements, not in one of its own. */
    if (gain.ctx && t.shape.rank && u.dtype != GN_F32 && u.dtype != GN_F64) gain = gn__widened(GN__AT, gn_broadcast_at(GN__AT, gain, t.shape));
    if (gain.ctx) y = gn_mul_at(GN__AT, y, gain);
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
    gn_tensor ratio = gn_sub_at(GN__AT, log_q, x), terms = gn_mul_at(GN__AT, y, gn_where_at(GN__AT, some, ratio, gn_like_at(GN__AT, ratio, 0)));
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

GN__CALLS_END
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
