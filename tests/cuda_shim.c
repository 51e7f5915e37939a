/* A driver and an NVRTC for tests, both in one library, on a machine without a GPU: "compiling" makes a shared object
 * of the kernels with the host's C++ compiler, "launching" runs their blocks one after another, each thread as a fibre.
 * Catches wrong indices and wrong arithmetic, not races. Give the library as GENIE_LIBCUDA and GENIE_NVRTC; objects are
 * kept in $GENIE_SHIM_DIR.
 *
 * $GENIE_SHIM_DEVICES=N: so many devices, each with its context. What belongs to one of them (memory, stream, event,
 * module, function, graph) and is used while no context or another device's is current ends the program with a line
 * that says so. Only waits of streams for events go across.
 *
 * $GENIE_SHIM_FAULTS names a file that asks for a fault while it is there: "memory N", allocations of N bytes or more
 * fail; "code", there is no memory for programs, "code N" so many times, "lazily" and "lazily N" when a kernel is
 * asked for; "compile WORD", programs that hold the word do not compile; "hang WORD", the launch of a kernel with the
 * word in its name never ends; "sticky", the next launch breaks its device's context: all calls after it fail until
 * the process ends, and the file goes. A test that opens this library itself can let one call fail: shim_fail.
 *
 * $GENIE_SHIM_ORDER=N makes streams real: what is asked for waits in its stream and is done only when the program waits
 * for it, odd N: as late as events and streams allow, even N: in an order drawn from N. Memory comes from
 * stream-ordered pools, holds rubbish from when it is allocated and from when it is freed, both in its stream; graphs
 * are captured; threads beside the program's first are slow. A wait for an event that the program has left out shows as
 * a wrong result.
 *
 * Kernels with instructions of one architecture cannot run here, so the device says that it is of compute capability
 * 6.0. With $GENIE_SHIM_ARCH=80 it says 8.0: products by tensor_matmul run then, whose instructions cuda_shim.h has;
 * what else 8.0 has does not. 90: blocks of clusters run side by side, each in its own copy of the program, and what
 * only 9.0 has runs of that alone.
 * "60,80": the second device differs. $GENIE_SHIM_PROCESSORS=N: so many processors, else 132.
 *
 * With $GENIE_SHIM_EMPTY=1 nothing is compiled and kernels compute nothing, on any architecture: for what plans, sizes
 * and launches them.
 * Each pointer that a kernel's signature names, and all that a map of TMA covers, has to be memory of the device. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* whose longjmp leaves no stack for another */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long ptr;

enum { DEVICES = 4 };
typedef struct context {
    int number;
} context;
static context contexts[DEVICES] = { { 0 }, { 1 }, { 2 }, { 3 } };
static __thread context *here; /* current in this thread */

/* ---- fibres ---- */

typedef struct dim {
    unsigned x, y, z;
} dim;
typedef struct state {
    dim thread, block, grid;
    unsigned words[6 * 1024];
    void (*barrier)(void), (*block_barrier)(void);
    unsigned char *dynamic;
    void (*cluster_barrier)(void);
    void (*box_wait)(void);
    void *(*there)(void *, int);
} state;

enum { STACK = 128 << 10, THREADS = 1024, SHARED = 228 << 10, CLUSTER = 8, FIBRES = CLUSTER * THREADS };
enum {
    FREE,
    BY_BLOCK,
    BY_CLUSTER,
    BY_BOX
}; /* what holds a fibre, until all of its block or cluster that are alive are held */

/* Of one block after another, or of each block of a cluster. */
static state shims[CLUSTER];
static void *kernels_now[CLUSTER];
static char *bases[CLUSTER];              /* where the copies of a program lie */
static jmp_buf scheduler, fibres[FIBRES]; /* where each goes on; no system call, as swapcontext makes, changes them */
static int made[FIBRES];                  /* fibres that wait for a thread to run */
static char *stacks;
static int alive[FIBRES], held[FIBRES];
static unsigned current;
/* the device's time: what events record, so that what is measured does not depend on this machine */
static double spent_us;
static void **params_now;

static void barrier(void) {
    if (!_setjmp(fibres[current])) _longjmp(scheduler, 1);
}
static void block_barrier(void) {
    held[current] = BY_BLOCK;
    barrier();
}
static void cluster_barrier(void) {
    held[current] = BY_CLUSTER;
    barrier();
}
static void box_wait(void) {
    held[current] = BY_BOX;
    barrier();
}
/* Of memory that a launch asks for as of a kernel's own. */
static void *there(void *p, int rank) {
    const unsigned char *dynamic = shims[current / THREADS].dynamic, *at = (unsigned char *)p;
    if (at >= dynamic && at < dynamic + SHARED) return shims[rank].dynamic + (at - dynamic);
    return bases[rank] + ((char *)p - bases[current / THREADS]);
}

/* One thread after another. */
static void fibre_main(void) {
    for (;;) {
        void (*kernel)(void **);
        *(void **)&kernel = kernels_now[current / THREADS];
        kernel(params_now);
        alive[current] = 0;
        barrier();
    }
}

/* Runs the current fibre to its next barrier, or to the end of its thread. */
static void resume(void) {
    if (_setjmp(scheduler)) return;
    if (made[current]) _longjmp(fibres[current], 1);
    ucontext_t start;
    made[current] = 1;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks + (size_t)current * STACK;
    start.uc_stack.ss_size = STACK;
    start.uc_link = NULL;
    makecontext(&start, fibre_main, 0);
    setcontext(&start);
}

/* What holds the threads of a block that are alive: BY_BOX if it holds one of them, since it may go on alone. */
static int held_by(unsigned first, unsigned threads) {
    int by = FREE, both = 0, box = 0;
    for (unsigned i = first; i < first + threads; i++) {
        if (!alive[i]) continue;
        box |= held[i] == BY_BOX;
        both |= by && held[i] != by;
        by = held[i];
    }
    if (box) return BY_BOX;
    if (both) {
        fprintf(stderr, "cuda_shim: threads of one block wait at different barriers\n");
        abort();
    }
    return by;
}

/* Each thread of a block runs to its next barrier in turn, until all have ended or wait for other blocks; at the
   block's it waits for the others. What they wait for, FREE: all have ended. */
static int run_block(unsigned rank, unsigned threads) {
    static unsigned ran;
    const unsigned first = rank * THREADS;
    for (unsigned i = first; i < first + threads; i++)
        if (held[i] == BY_BOX) held[i] = FREE;
    for (;;) {
        ran = 0;
        for (unsigned i = first; i < first + threads; i++) {
            if (!alive[i] || held[i]) continue;
            ran++;
            current = i;
            shims[rank].thread.x = i - first;
            resume();
            spent_us += 0.01;
        }
        if (ran) continue;
        int by = held_by(first, threads);
        if (by != BY_BLOCK) return by;
        memset(held + first, 0, threads * sizeof *held);
    }
}

/* The blocks of a cluster, one after another to its next barrier. */
static void run_cluster(unsigned blocks, unsigned threads) {
    enum { TURNS = 100 };
    for (unsigned rank = 0; rank < blocks; rank++)
        for (unsigned i = rank * THREADS; i < rank * THREADS + threads; i++) {
            alive[i] = 1;
            held[i] = FREE;
        }
    for (unsigned waiting = 1, boxes = 0, turns = 0; waiting || boxes; turns = boxes ? turns + 1 : 0) {
        waiting = boxes = 0;
        for (unsigned rank = 0; rank < blocks; rank++) {
            int by = run_block(rank, threads);
            waiting += by == BY_CLUSTER;
            boxes += by == BY_BOX;
        }
        if ((waiting && waiting < blocks && !boxes) || turns > TURNS) {
            fprintf(stderr, "cuda_shim: a block of a cluster waits for what does not come\n");
            abort();
        }
        if (waiting == blocks) memset(held, 0, sizeof held);
    }
}

/* ---- faults ---- */

static volatile int broken[DEVICES];
static atomic_long calls, live, modules, cleared, trims;
static long fail_at = -1; /* the call with this number gives fail_code */
static int fail_code;
static const char *failed_call = "";

/* What the file says after `kind`; NULL when it asks for nothing of the kind. */
static const char *asked(const char *kind) {
    static __thread char line[200];
    const char *path = getenv("GENIE_SHIM_FAULTS");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return NULL;
    char *got = fgets(line, sizeof line, f);
    fclose(f);
    line[strcspn(line, "\n")] = 0;
    size_t n = strlen(kind);
    return got && strncmp(line, kind, n) == 0 ? line + n + (line[n] == ' ') : NULL;
}

static int alive_or(int r) { return here && broken[here->number] ? 700 : r; }

/* From now on call number `at` of the driver fails with that code, once; 700 breaks its context. Below 0: none does. */
API void shim_fail(long at, int code) {
    calls = 0;
    fail_at = at;
    fail_code = code;
    failed_call = "";
}
API long shim_calls(void) { return calls; }
/* Memory, pinned memory, streams, events and graphs that were made and not yet destroyed. */
API long shim_live(void) { return live; }
/* Times that all of what one call had allocated was set to 0. */
API long shim_cleared(void) { return cleared; }
/* Times that a pool gave back all that no one used. */
API long shim_trims(void) { return trims; }
/* Programs that are loaded; they stay when all of their sessions have ended. */
API long shim_modules(void) { return modules; }
API const char *shim_failed_call(void) { return failed_call; }

static int fails(const char *call) {
    if (atomic_fetch_add(&calls, 1) != fail_at) return alive_or(0);
    failed_call = call;
    if (fail_code == 700 && here) broken[here->number] = 1;
    return fail_code;
}
#define MAY_FAIL()                     \
    do {                               \
        int failed_ = fails(__func__); \
        if (failed_) return failed_;   \
    } while (0)

/* ---- what belongs to which device ---- */

static int devices(void) {
    const char *s = getenv("GENIE_SHIM_DEVICES");
    int n = s ? atoi(s) : 1;
    return n < 1 ? 1 : n > DEVICES ? DEVICES : n;
}

static void wrong_place(const char *call, const char *what, int number) {
    fprintf(stderr, "cuda_shim: %s: %s of device %d, while ", call, what, number);
    fprintf(stderr, here ? "the context of device %d is current\n" : "no context is current\n",
            here ? here->number : 0);
    abort();
}
#define BELONGS(what, of)                                            \
    do {                                                             \
        if ((of) != here) wrong_place(__func__, what, (of)->number); \
    } while (0)

typedef struct memory {
    const char *p;
    size_t bytes;
    context *of;
} memory;
static memory memories[65536];
static int n_memories;
static pthread_mutex_t memories_lock = PTHREAD_MUTEX_INITIALIZER;

/* The device whose memory this is; NULL: of none. */
static context *memory_of(ptr p) {
    const char *at = (const char *)(uintptr_t)p;
    context *of = NULL;
    pthread_mutex_lock(&memories_lock);
    for (int i = n_memories; i-- > 0 && !of;)
        of = at >= memories[i].p && at < memories[i].p + memories[i].bytes ? memories[i].of : NULL;
    pthread_mutex_unlock(&memories_lock);
    return of;
}

static void memory_add(const void *p, size_t bytes) {
    pthread_mutex_lock(&memories_lock);
    if (n_memories == (int)(sizeof memories / sizeof *memories)) abort();
    memories[n_memories++] = (memory){ p, bytes, here };
    live++;
    pthread_mutex_unlock(&memories_lock);
}

static void memory_remove(ptr p) {
    pthread_mutex_lock(&memories_lock);
    for (int i = n_memories; i-- > 0;) {
        if (memories[i].p == (const char *)(uintptr_t)p) {
            memories[i] = memories[--n_memories];
            live--;
            break;
        }
    }
    pthread_mutex_unlock(&memories_lock);
}

static int memory_is_whole(ptr p, size_t bytes) {
    int is = 0;
    pthread_mutex_lock(&memories_lock);
    for (int i = 0; i < n_memories && !is; i++) is = (ptr)(uintptr_t)memories[i].p == p && memories[i].bytes == bytes;
    pthread_mutex_unlock(&memories_lock);
    return is;
}
/* All of these bytes lie in one piece of the device's memory; none of them may lie behind it. */
static int memory_holds(ptr p, size_t bytes) {
    int is = 0;
    pthread_mutex_lock(&memories_lock);
    for (int i = 0; i < n_memories && !is; i++) {
        ptr at = (ptr)(uintptr_t)memories[i].p;
        is = memories[i].of == here && p >= at && p - at <= memories[i].bytes && bytes <= memories[i].bytes - (p - at);
    }
    pthread_mutex_unlock(&memories_lock);
    return is;
}

static void memory_is_here(const char *call, ptr p) {
    context *of = memory_of(p);
    if (of && of != here) wrong_place(call, "memory", of->number);
    if (!of) {
        fprintf(stderr, "cuda_shim: %s: %llx is no memory of a device\n", call, p);
        abort();
    }
}
#define MEMORY_IS_HERE(p) memory_is_here(__func__, p)

/* ---- streams: without $GENIE_SHIM_ORDER all is done at once ---- */

enum { COPY = 1, FILL, LAUNCH, RECORD, WAIT };
enum { STREAMS = 64, LAUNCH_PARAMS = 400 };

typedef struct stream stream;
/* the place in a stream where it was recorded last; NULL: nowhere */
typedef struct event {
    stream *in;
    uint64_t number;
    double at_us;
    context *of;
} event;
typedef struct op {
    int kind;
    struct op *next;
    void *to;
    const void *from;
    size_t bytes;
    unsigned char fill;
    char *owned; /* bytes or parameters that are this op's */
    void *function, *freed;
    unsigned grid[2], block, cluster;
    event until; /* of a wait */
} op;
struct stream {
    op *first, *last;
    uint64_t asked, done;
    op *captured, *captured_last;
    int captures, open;
    context *of;
};
typedef struct graph {
    op *first;
    context *of;
} graph;
/* names: without a library, the kernels and what their parameters are */
typedef struct module {
    void *library, *copies[CLUSTER]; /* copies: for the second block of a cluster and those after it */
    char *path;
    context *of;
    char *names;
    struct function *functions;
} module;
typedef struct function {
    void *call;
    module *from;
    int params;
    context *of;
    struct function *next;
    char name[96];
    unsigned char pointers[LAUNCH_PARAMS];
} function;

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static stream streams[STREAMS];
static struct {
    char *p;
    size_t bytes;
} pinned[4096];
static int n_pinned;
static uint64_t drawn;

static int empty(void) { return getenv("GENIE_SHIM_EMPTY") != NULL; }

static int order(void) {
    const char *s = getenv("GENIE_SHIM_ORDER");
    return s ? atoi(s) : 0;
}

static int run_kernel(void *f, const op *o, void **params);

static void op_do(op *o) {
    void *params[LAUNCH_PARAMS];
    switch (o->kind) {
    case COPY: memcpy(o->to, o->from, o->bytes); break;
    case FILL: memset(o->to, o->fill, o->bytes); break;
    case LAUNCH:
        for (int i = 0; i < LAUNCH_PARAMS; i++) params[i] = o->owned + 8 * i;
        run_kernel(o->function, o, params);
        break;
    default: break;
    }
    free(o->freed);
}

static int can_go(const stream *s) {
    return s->first && (s->first->kind != WAIT || s->first->until.in->done >= s->first->until.number);
}

static void step(stream *s) {
    op *o = s->first;
    s->first = o->next;
    if (!s->first) s->last = NULL;
    op_do(o);
    s->done++;
    free(o->owned);
    free(o);
}

/* Does what the place in the stream needs; of even orders also what it does not. */
static void run_until(stream *s, uint64_t number) {
    while (s->done < number) {
        if (order() % 2 == 0) {
            drawn = drawn * 6364136223846793005u + 1442695040888963407u;
            int other = (int)((drawn >> 33) % STREAMS);
            while (!can_go(&streams[other])) /* one always can: the program asks for what is waited for first */
                other = (other + 1) % STREAMS;
            step(&streams[other]);
            continue;
        }
        if (!can_go(s)) run_until(s->first->until.in, s->first->until.number);
        step(s);
    }
}

static void run_all(void) {
    for (int i = 0; i < STREAMS; i++) run_until(&streams[i], streams[i].asked);
}

/* Puts the op at the end of its stream, or does it. The caller holds the lock. */
static void ask(void *handle, op o) {
    stream *s = handle;
    op *copy;
    if (!order()) {
        op_do(&o);
        free(o.owned);
        return;
    }
    if (!drawn) drawn = (uint64_t)order();
    copy = malloc(sizeof *copy);
    *copy = o;
    op **last = s->captures ? &s->captured_last : &s->last;
    if (*last) (*last)->next = copy;
    else *(s->captures ? &s->captured : &s->first) = copy;
    *last = copy;
    s->asked += !s->captures;
}

static int is_pinned(const void *p) {
    for (int i = 0; i < n_pinned; i++)
        if ((const char *)p >= pinned[i].p && (const char *)p < pinned[i].p + pinned[i].bytes) return 1;
    return 0;
}

static void *copy_of(const void *p, size_t n) {
    void *c = malloc(n + 1);
    memcpy(c, p, n);
    return c;
}

#define LOCKED(...)                          \
    do {                                     \
        pthread_mutex_lock(&streams_lock);   \
        __VA_ARGS__;                         \
        pthread_mutex_unlock(&streams_lock); \
    } while (0)

/* ---- driver ---- */

/* Of the n-th device: "80" is of all of them, "60,80" of the first and those after it. */
static int arch(int device) {
    const char *s = getenv("GENIE_SHIM_ARCH");
    for (; s && device > 0 && strchr(s, ','); device--) s = strchr(s, ',') + 1;
    return s ? atoi(s) : 60;
}

static int processors(void) {
    const char *s = getenv("GENIE_SHIM_PROCESSORS");
    return s ? atoi(s) : 132;
}

API int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}
API int cuDriverGetVersion(int *v) {
    *v = 13000;
    return 0;
}
API int cuGetErrorName(int r, const char **s) {
    (void)r;
    *s = "shim";
    return 0;
}
API int cuGetErrorString(int r, const char **s) {
    (void)r;
    *s = "an error of the shim";
    return 0;
}
API int cuDeviceGetCount(int *n) {
    *n = devices();
    return 0;
}
API int cuDeviceGet(int *d, int i) {
    *d = i;
    return i < devices() ? 0 : 101;
}
API int cuDeviceGetName(char *s, int n, int d) {
    (void)d;
    snprintf(s, (size_t)n, "fibres on this CPU");
    return 0;
}
/* processors as of the compile-only device, unless other ones are asked for */
API int cuDeviceGetAttribute(int *v, int what, int d) {
    *v = what == 75 ? arch(d) / 10 : what == 16 ? processors() : what == 38 ? 65536 : what == 115 ? order() != 0 : 0;
    return 0;
}
API int cuDeviceTotalMem_v2(size_t *n, int d) {
    (void)d;
    *n = (size_t)1 << 34;
    return 0;
}
API int cuDevicePrimaryCtxRetain(void **c, int d) {
    *c = &contexts[d];
    return 0;
}
API int cuCtxSetCurrent(void *c) {
    here = c;
    MAY_FAIL();
    return 0;
}
API int cuStreamCreate(void **s, unsigned f) {
    (void)f;
    *s = NULL;
    MAY_FAIL();
    pthread_mutex_lock(&streams_lock);
    for (int i = 0; i < STREAMS && !*s; i++) {
        if (!streams[i].open) {
            streams[i].open = 1;
            streams[i].of = here;
            live++;
            *s = &streams[i];
        }
    }
    pthread_mutex_unlock(&streams_lock);
    return *s ? 0 : 2;
}
API int cuStreamSynchronize(void *s) {
    BELONGS("a stream", ((stream *)s)->of);
    LOCKED(run_until(s, ((stream *)s)->asked));
    MAY_FAIL();
    return 0;
}
API int cuStreamDestroy_v2(void *s) {
    BELONGS("a stream", ((stream *)s)->of);
    LOCKED(run_until(s, ((stream *)s)->asked); ((stream *)s)->open = 0);
    live--;
    return fails(__func__);
}
API int cuStreamBeginCapture_v2(void *s, int mode) {
    (void)mode;
    BELONGS("a stream", ((stream *)s)->of);
    MAY_FAIL();
    if (!order()) return 801;
    ((stream *)s)->captures = 1;
    return 0;
}

static void graph_free(graph *g) {
    live--;
    for (op *o = g->first, *next; o; o = next) {
        next = o->next;
        free(o->owned);
        free(o);
    }
    free(g);
}

API int cuStreamEndCapture(void *handle, void **g) {
    stream *s = handle;
    BELONGS("a stream", s->of);
    graph *made = calloc(1, sizeof *made);
    live++;
    made->first = s->captured;
    made->of = here;
    s->captured = s->captured_last = NULL;
    s->captures = 0;
    *g = NULL;
    int r = fails(__func__);
    if (r || !order()) {
        graph_free(made);
        return r ? r : 801;
    }
    *g = made;
    return 0;
}
/* An event is also the time at which it was recorded. Other libraries of tests spend time too. */
API void shim_spend(double us) { spent_us += us; }
API int cuEventCreate(void **e, unsigned f) {
    (void)f;
    *e = NULL;
    MAY_FAIL();
    event *made = calloc(1, sizeof *made);
    made->of = here;
    live++;
    *e = made;
    return 0;
}
API int cuEventDestroy_v2(void *e) {
    BELONGS("an event", ((event *)e)->of);
    free(e);
    live--;
    return fails(__func__);
}
API int cuEventRecord(void *e, void *s) {
    BELONGS("an event", ((event *)e)->of);
    BELONGS("a stream", ((stream *)s)->of);
    MAY_FAIL();
    LOCKED(ask(s, (op){ .kind = RECORD }); *(event *)e = (event){ s, ((stream *)s)->asked, spent_us, here });
    return 0;
}
API int cuEventElapsedTime(float *ms, void *from, void *to) {
    MAY_FAIL();
    *ms = (float)((((event *)to)->at_us - ((event *)from)->at_us) * 1e-3);
    return 0;
}
API int cuStreamWaitEvent(void *s, void *e, unsigned f) {
    (void)f;
    BELONGS("a stream", ((stream *)s)->of);
    MAY_FAIL();
    if (((event *)e)->in) LOCKED(ask(s, (op){ .kind = WAIT, .until = *(event *)e }));
    return 0;
}
static void event_wait(const event *at) {
    if (order() && gettid() != getpid()) usleep(10000);
    if (at->in) LOCKED(run_until(at->in, at->number));
}
API int cuEventSynchronize(void *e) {
    BELONGS("an event", ((event *)e)->of);
    event_wait(e);
    MAY_FAIL();
    return 0;
}
API int cuEventQuery(void *e) /* what is asked for comes */
{
    BELONGS("an event", ((event *)e)->of);
    event_wait(e);
    MAY_FAIL();
    return 0;
}
/* Fresh memory holds rubbish, so that what is read before it is written shows. */
static int memory_make(ptr *p, size_t n) {
    const char *limit = asked("memory");
    if (!here) return 201;
    if (limit && n >= strtoull(limit, NULL, 10)) return 2;
    void *m = aligned_alloc(256, (n + 255) & ~(size_t)255);
    if (!m) return 2;
    memset(m, 0xcb, n);
    memory_add(m, (n + 255) & ~(size_t)255);
    *p = (ptr)(uintptr_t)m;
    return 0;
}
API int cuMemAlloc_v2(ptr *p, size_t n) {
    MAY_FAIL();
    return memory_make(p, n);
}
API int cuMemFree_v2(ptr p) {
    MEMORY_IS_HERE(p);
    memory_remove(p);
    LOCKED(run_all());
    free((void *)(uintptr_t)p);
    return fails(__func__);
}
API int cuMemAllocAsync(ptr *p, size_t n, void *s) {
    BELONGS("a stream", ((stream *)s)->of);
    MAY_FAIL();
    int r = memory_make(p, n);
    if (r == 0) LOCKED(ask(s, (op){ .kind = FILL, .to = (void *)(uintptr_t)*p, .fill = 0xcb, .bytes = n }));
    return r;
}
API int cuMemFreeAsync(ptr p, void *s) {
    void *m = (void *)(uintptr_t)p;
    BELONGS("a stream", ((stream *)s)->of);
    MEMORY_IS_HERE(p);
    memory_remove(p);
    /* never handed out again: late reads are of rubbish */
    LOCKED(
        ask(s,
            (op){ .kind = FILL, .to = m, .fill = 0xdd, .bytes = malloc_usable_size(m), .freed = order() ? NULL : m }));
    return fails(__func__);
}
API int cuDeviceGetDefaultMemPool(void **p, int d) {
    static char pools[DEVICES];
    *p = order() ? &pools[d] : NULL;
    return order() ? 0 : 801;
}
API int cuMemPoolSetAttribute(void *p, int a, void *v) {
    (void)a;
    (void)v;
    return p ? 0 : 801;
}
API int cuMemPoolTrimTo(void *p, size_t n) {
    MAY_FAIL();
    trims += p && !n;
    return p ? 0 : 801;
}
API int cuMemHostAlloc(void **p, size_t n, unsigned f) {
    if (!here || !(f & 1)) { /* 1: for all contexts */
        fprintf(stderr, "cuda_shim: pinned memory of one context alone\n");
        abort();
    }
    *p = NULL;
    MAY_FAIL();
    *p = n_pinned < 4096 ? malloc(n) : NULL;
    if (*p) LOCKED(pinned[n_pinned].p = *p; pinned[n_pinned++].bytes = n; live++);
    return *p ? 0 : 2;
}

API int cuMemHostGetDevicePointer_v2(uint64_t *out, void *p, unsigned flags) {
    (void)flags;
    *out = (uint64_t)(uintptr_t)p;
    return 0;
}

API int cuMemFreeHost(void *p) {
    LOCKED(run_all(); for (int i = 0; i < n_pinned; i++) if (pinned[i].p == p) {
        pinned[i] = pinned[--n_pinned];
        live--;
        break;
    });
    free(p);
    return fails(__func__);
}
/* Of memory that is not pinned the driver takes a copy at once, and writes to it before it returns. */
API int cuMemcpyHtoDAsync_v2(ptr d, const void *s, size_t n, void *st) {
    BELONGS("a stream", ((stream *)st)->of);
    MEMORY_IS_HERE(d);
    MAY_FAIL();
    pthread_mutex_lock(&streams_lock);
    char *own = order() && !is_pinned(s) ? copy_of(s, n) : NULL;
    ask(st, (op){ .kind = COPY, .to = (void *)(uintptr_t)d, .from = own ? own : s, .bytes = n, .owned = own });
    pthread_mutex_unlock(&streams_lock);
    return 0;
}
API int cuMemcpyDtoHAsync_v2(void *d, ptr s, size_t n, void *st) {
    BELONGS("a stream", ((stream *)st)->of);
    MEMORY_IS_HERE(s);
    MAY_FAIL();
    LOCKED(ask(st, (op){ .kind = COPY, .to = d, .from = (void *)(uintptr_t)s, .bytes = n });
           if (!is_pinned(d)) run_until(st, ((stream *)st)->asked));
    return 0;
}
API int cuMemcpyDtoDAsync_v2(ptr d, ptr s, size_t n, void *st) {
    BELONGS("a stream", ((stream *)st)->of);
    MEMORY_IS_HERE(d);
    MEMORY_IS_HERE(s);
    MAY_FAIL();
    LOCKED(ask(st, (op){ .kind = COPY, .to = (void *)(uintptr_t)d, .from = (void *)(uintptr_t)s, .bytes = n }));
    return 0;
}
API int cuDeviceCanAccessPeer(int *can, int a, int b) {
    *can = a != b;
    return 0;
}
API int cuCtxEnablePeerAccess(void *c, unsigned f) {
    (void)f;
    MAY_FAIL();
    return c == here ? 101 : 0;
}
API int cuMemPoolSetAccess(void *p, const void *access, size_t n) {
    (void)p;
    (void)access;
    (void)n;
    return 801;
}
API int cuMemcpyPeerAsync(ptr d, void *of_d, ptr s, void *of_s, size_t n, void *st) {
    BELONGS("a stream", ((stream *)st)->of);
    if (memory_of(d) != of_d || memory_of(s) != of_s) {
        fprintf(stderr, "cuda_shim: %s: memory that is not of the devices named\n", __func__);
        abort();
    }
    MAY_FAIL();
    LOCKED(ask(st, (op){ .kind = COPY, .to = (void *)(uintptr_t)d, .from = (void *)(uintptr_t)s, .bytes = n }));
    return 0;
}
API int cuMemsetD8Async(ptr d, unsigned char v, size_t n, void *st) {
    BELONGS("a stream", ((stream *)st)->of);
    MEMORY_IS_HERE(d);
    MAY_FAIL();
    LOCKED(ask(st, (op){ .kind = FILL, .to = (void *)(uintptr_t)d, .fill = v, .bytes = n }));
    cleared += v == 0 && memory_is_whole(d, n);
    return 0;
}
API int cuFuncSetAttribute(void *f, int a, int v) {
    (void)a;
    (void)v;
    BELONGS("a function", ((function *)f)->of);
    MAY_FAIL();
    return 0;
}
typedef struct launch_attribute {
    int id, pad;
    unsigned value[16];
} launch_attribute;
typedef struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;
static int launch(void *f, const unsigned *grid, const unsigned *block, unsigned cluster, void *stream_handle,
                  void **params);
API int cuLaunchKernelEx(const launch_config *c, void *f, void **params, void **extra) {
    enum { OF_CLUSTER = 4 };
    unsigned cluster = 1;
    (void)extra;
    for (unsigned i = 0; i < c->n_attributes; i++)
        if (c->attributes[i].id == OF_CLUSTER) cluster = c->attributes[i].value[0];
    if (!cluster || cluster > CLUSTER || c->grid[0] % cluster) return 1;
    return launch(f, c->grid, c->block, cluster, c->stream, params);
}
/* Elements of 1 to 8 bytes; strides in bytes of all dims but the first. */
API int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *p, const uint64_t *dims,
                               const uint64_t *strides, const unsigned *box, const unsigned *steps, int a, int b, int c,
                               int d) {
    static const unsigned char bytes[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };
    (void)box;
    (void)steps;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    MAY_FAIL();
    size_t end = type >= 0 && type < (int)sizeof bytes ? dims[0] * bytes[type] : SIZE_MAX;
    for (unsigned i = 1; i < rank; i++) end += (dims[i] - 1) * strides[i - 1];
    if (!memory_holds((ptr)(uintptr_t)p, end)) {
        fprintf(stderr, "cuda_shim: a map of %zu bytes at %p is not memory of the device\n", end, p);
        abort();
    }
    memset(map, 0, 128);
    return 0;
}
API int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) {
    (void)f;
    BELONGS("a graph", ((graph *)g)->of);
    *e = NULL;
    MAY_FAIL();
    *e = calloc(1, sizeof(graph));
    live++;
    *(graph *)*e = *(graph *)g;
    ((graph *)g)->first = NULL;
    return 0;
}
API int cuGraphLaunch(void *e, void *s) {
    BELONGS("a graph", ((graph *)e)->of);
    BELONGS("a stream", ((stream *)s)->of);
    MAY_FAIL();
    pthread_mutex_lock(&streams_lock);
    for (op *o = ((graph *)e)->first; o; o = o->next) {
        op copy = *o;
        copy.next = NULL;
        copy.owned = o->owned ? copy_of(o->owned, 8 * LAUNCH_PARAMS) : NULL;
        ask(s, copy);
    }
    pthread_mutex_unlock(&streams_lock);
    return 0;
}
API int cuGraphExecDestroy(void *e) {
    BELONGS("a graph", ((graph *)e)->of);
    graph_free(e);
    return fails(__func__);
}
API int cuGraphDestroy(void *g) { return cuGraphExecDestroy(g); }

static int no_code(const char *kind) {
    const char *path = getenv("GENIE_SHIM_FAULTS"), *times = asked(kind);
    int left = times && *times ? atoi(times) : 0;
    if (!times || !*times) return times != NULL;
    FILE *f = left > 1 ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%s %d", kind, left - 1);
        fclose(f);
    } else remove(path);
    return 1;
}

/* The "cubin" is the path of a shared object. */
API int cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *options, void **values) {
    (void)n;
    (void)options;
    (void)values;
    *m = NULL;
    MAY_FAIL();
    if (no_code("code")) return 2;
    if (empty()) {
        module *names = calloc(1, sizeof *names);
        *names = (module){ .of = here, .names = strdup(image) };
        *m = names;
        modules++;
        return 0;
    }
    void *library = dlopen((const char *)image, RTLD_NOW | RTLD_LOCAL);
    if (!library || !here) {
        fprintf(stderr, "cuda_shim: %s\n", library ? "no context is current" : dlerror());
        return 200;
    }
    void (*init)(state *);
    *(void **)&init = dlsym(library, "shim_init");
    init(&shims[0]);
    module *made = calloc(1, sizeof *made);
    *made = (module){ .library = library, .of = here, .path = strdup((const char *)image) };
    *m = made;
    modules++;
    return 0;
}
/* What still runs one of its kernels then ends with it. */
API int cuModuleUnload(void *m) {
    BELONGS("a module", ((module *)m)->of);
    LOCKED(run_all());
    if (((module *)m)->library) dlclose(((module *)m)->library);
    for (int i = 0; i < CLUSTER; i++)
        if (((module *)m)->copies[i]) dlclose(((module *)m)->copies[i]);
    free(((module *)m)->path);
    for (function *f = ((module *)m)->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free(((module *)m)->names);
    free(m);
    modules--;
    return fails(__func__);
}
/* A line of the names: the kernel's, a space, for each parameter * or a point. */
static int empty_function(void **out, module *m, const char *name) {
    const char *names = m->names;
    size_t n = strlen(name);
    while (names && (strncmp(names, name, n) != 0 || names[n] != ' ')) {
        names = strchr(names, '\n');
        names = names ? names + 1 : NULL;
    }
    if (!names) return 500;
    function *f = calloc(1, sizeof *f);
    *f = (function){ .of = here, .next = m->functions };
    m->functions = f;
    snprintf(f->name, sizeof f->name, "%s", name);
    for (const char *s = names + n + 1; *s != '\n' && f->params < LAUNCH_PARAMS; s++)
        f->pointers[f->params++] = *s == '*';
    *out = f;
    return 0;
}

/* A pointer may be behind the last byte, where nothing is read. The first kernel on a device shows that it computes. */
static int empty_launch(const function *f, unsigned block, void **params) {
    for (int i = 0; i < f->params; i++) {
        ptr p;
        memcpy(&p, params[i], sizeof p);
        if (f->pointers[i] && p && !memory_holds(p, 0)) {
            fprintf(stderr, "cuda_shim: parameter %d of %s, %llx, is no memory of the device\n", i, f->name, p);
            abort();
        }
        for (unsigned k = 0; k < block && strncmp(f->name, "canary", 6) == 0; k++)
            ((unsigned *)(uintptr_t)p)[k] = k * 3 + 7;
    }
    return 0;
}

API int cuModuleGetFunction(void **out, void *handle, const char *name) {
    module *m = handle;
    char call[200];
    BELONGS("a module", m->of);
    MAY_FAIL();
    if (no_code("lazily")) return 2;
    if (m->names) return empty_function(out, m, name);
    snprintf(call, sizeof call, "%s__call", name);
    function found = { .call = dlsym(m->library, call), .from = m, .of = here, .next = m->functions };
    snprintf(call, sizeof call, "%s__params", name);
    int *params = dlsym(m->library, call);
    if (!found.call || !params) return 500;
    found.params = *params;
    snprintf(found.name, sizeof found.name, "%s", name);
    *out = calloc(1, sizeof found);
    *(function *)*out = found;
    m->functions = *out;
    return 0;
}
/* A program once more, so that what its functions keep is another block's. The file goes when it is loaded. */
static void *copy_loaded(const char *path, state *of) {
    char command[1400], to[700];
    snprintf(to, sizeof to, "%s.%ld.%d", path, (long)getpid(), (int)(of - shims)); /* a name is loaded once */
    snprintf(command, sizeof command, "cp '%s' '%s'", path, to);
    void *library = system(command) == 0 ? dlopen(to, RTLD_NOW | RTLD_LOCAL) : NULL;
    unlink(to);
    if (!library) {
        fprintf(stderr, "cuda_shim: no copy of %s\n", path);
        abort();
    }
    void (*init)(state *);
    *(void **)&init = dlsym(library, "shim_init");
    init(of);
    return library;
}

static int run_kernel(void *handle, const op *o, void **params) {
    function *f = handle;
    const unsigned cluster = o->cluster ? o->cluster : 1;
    if (!stacks) stacks = malloc((size_t)STACK * FIBRES);
    params_now = params;
    for (unsigned rank = 0; rank < cluster; rank++) {
        state *own = &shims[rank];
        char call[200];
        Dl_info at;
        if (rank && !f->from->copies[rank]) f->from->copies[rank] = copy_loaded(f->from->path, own);
        snprintf(call, sizeof call, "%s__call", f->name);
        kernels_now[rank] = rank ? dlsym(f->from->copies[rank], call) : f->call;
        if (!dladdr(kernels_now[rank], &at)) abort();
        bases[rank] = at.dli_fbase;
        if (!own->dynamic) own->dynamic = aligned_alloc(1024, SHARED);
        own->barrier = barrier;
        own->block_barrier = block_barrier;
        own->cluster_barrier = cluster_barrier;
        own->box_wait = box_wait;
        own->there = there;
        own->grid = (dim){ o->grid[0], o->grid[1], 1 };
    }
    for (unsigned y = 0; y < o->grid[1]; y++) {
        for (unsigned x = 0; x < o->grid[0]; x += cluster) {
            for (unsigned rank = 0; rank < cluster; rank++) shims[rank].block = (dim){ x + rank, y, 0 };
            run_cluster(cluster, o->block);
        }
    }
    return 0;
}
/* A parameter has 8 bytes or fewer: there are no maps of TMA here. */
static int launch(void *f, const unsigned *grid, const unsigned *block, unsigned cluster, void *stream_handle,
                  void **params) {
    const unsigned gx = grid[0], gy = grid[1], gz = grid[2], bx = block[0], by = block[1], bz = block[2];
    BELONGS("a function", ((function *)f)->of);
    BELONGS("a stream", ((stream *)stream_handle)->of);
    if (!gx || !gy || gz != 1 || !bx || bx > THREADS || by != 1 || bz != 1) return 1;
    const char *word = asked("hang");
    while (word && strstr(((function *)f)->name, word)) usleep(100000);
    if (asked("sticky")) {
        broken[here->number] = 1;
        unlink(getenv("GENIE_SHIM_FAULTS"));
    }
    MAY_FAIL();
    if (empty()) return empty_launch(f, bx, params);
    char *own = calloc(LAUNCH_PARAMS, 8);
    for (int i = 0; i < ((function *)f)->params && i < LAUNCH_PARAMS; i++) {
        memcpy(own + 8 * i, params[i], 8);
        ptr p;
        memcpy(&p, params[i], sizeof p);
        context *of = devices() > 1 ? memory_of(p) : NULL;
        if (of && of != here) wrong_place(__func__, "memory", of->number);
    }
    op next = { .kind = LAUNCH, .function = f, .grid = { gx, gy }, .block = bx, .cluster = cluster, .owned = own };
    LOCKED(ask(stream_handle, next));
    return 0;
}
API int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void *stream_handle, void **params, void **extra) {
    const unsigned grid[3] = { gx, gy, gz }, block[3] = { bx, by, bz };
    (void)shared;
    (void)extra;
    return launch(f, grid, block, 1, stream_handle, params);
}

/* ---- NVRTC ---- */

typedef struct program {
    char *source, *names;
    char path[600], log[4000];
} program;

API int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 99;
    return 0;
}
API int nvrtcGetNumSupportedArchs(int *n) {
    *n = 2;
    return 0;
}
API int nvrtcGetSupportedArchs(int *a) {
    a[0] = arch(0);
    a[1] = arch(1);
    return 0;
}
API int nvrtcCreateProgram(void **out, const char *source, const char *name, int n, const char *const *headers,
                           const char *const *names) {
    (void)name;
    (void)n;
    (void)headers;
    (void)names;
    program *p = calloc(1, sizeof *p);
    p->source = strdup(source);
    *out = p;
    return 0;
}
API int nvrtcDestroyProgram(void **handle) {
    program *p = *handle;
    free(p->source);
    free(p->names);
    free(p);
    *handle = NULL;
    return 0;
}

/* After the kernels a function for each that takes its arguments as the driver does. */
static void write_calls(FILE *f, const char *source) {
    static const char before[] = "__launch_bounds__(";
    for (const char *s = strstr(source, before); s; s = strstr(s, before)) {
        s = strchr(s, ')') + 1;
        s += strspn(s, " ");
        int n = (int)strcspn(s, "(");
        fprintf(f,
                "extern \"C\" { void %.*s__call(void **p) { shim_call(%.*s, p); } int %.*s__params = "
                "shim_params(%.*s); }\n",
                n, s, n, s, n, s, n, s);
    }
}

/* In place of a compiler: the kernels of the source, and which of their parameters are pointers. */
static void name_kernels(program *p) {
    char *to = p->names = malloc(2 * strlen(p->source) + 1);
    *to = 0;
    for (const char *s = strstr(p->source, "__launch_bounds__("); s; s = strstr(s, "__launch_bounds__(")) {
        s = strchr(s, ')') + 1;
        s += strspn(s, " ");
        size_t n = strcspn(s, "(");
        to += sprintf(to, "%.*s ", (int)n, s);
        s += n + 1;
        for (int deep = 0, last = '.';; s++) {
            deep += (*s == '<') - (*s == '>');
            last = *s == '*' ? '*' : last;
            if (*s == ')' || (*s == ',' && deep == 0)) {
                *to++ = (char)last;
                last = '.';
            }
            if (*s == ')') break;
        }
        *to++ = '\n';
        *to = 0;
    }
}

API int nvrtcCompileProgram(void *handle, int n, const char *const *options) {
    program *p = handle;
    if (empty()) {
        free(p->names);
        name_kernels(p);
        return 0;
    }
    char made[650], source[660], command[4096], folder[400];
    const char *dir = getenv("GENIE_SHIM_DIR"), *compiler = getenv("CXX");
    uint64_t h = 14695981039346656037u;
    const char *word = asked("compile");
    (void)n;
    (void)options;
    if (word && strstr(strstr(p->source, "__launch_bounds__"), word)) {
        snprintf(p->log, sizeof p->log, "the shim was asked not to compile %s", word);
        return 6;
    }
    for (const char *s = p->source; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    snprintf(folder, sizeof folder, "%s", __FILE__);
    *strrchr(folder, '/') = 0;
    mkdir(dir ? dir : "/tmp", 0700);
    snprintf(p->path, sizeof p->path, "%s/%016llx.so", dir ? dir : "/tmp", (unsigned long long)h);
    // Names of this program alone: another process may compile the same text, and loads none that is half written.
    snprintf(made, sizeof made, "%s.%ld.%zx", p->path, (long)getpid(), (size_t)(uintptr_t)p);
    snprintf(source, sizeof source, "%s.cpp", made);
    FILE *f = fopen(source, "w");
    if (!f) return 6;
    fprintf(f, "#include \"cuda_shim.h\"\n%s", p->source);
    write_calls(f, p->source);
    fclose(f);
    // A load or store of a place that is no multiple of its size, for which a GPU gives the device up, is an illegal
    // instruction here.
    snprintf(command, sizeof command,
             "%s -std=c++17 -O1 -ffp-contract=off -fno-strict-aliasing -fno-gnu-unique "
             "-fsanitize=alignment -fsanitize-undefined-trap-on-error -fPIC -shared -w -I%s -o %s %s >%s.log 2>&1",
             compiler ? compiler : "c++", folder, made, source, source);
    int r = system(command);
    if (r == 0) r = rename(made, p->path);
    snprintf(command, sizeof command, "%s.log", source);
    f = fopen(command, "r");
    if (f) {
        p->log[fread(p->log, 1, sizeof p->log - 1, f)] = 0;
        fclose(f);
    }
    unlink(command);
    if (r == 0) unlink(source);
    return r == 0 ? 0 : 6;
}
static const char *cubin(const program *p) { return p->names ? p->names : p->path; }
API int nvrtcGetCUBINSize(void *handle, size_t *n) {
    *n = strlen(cubin(handle)) + 1;
    return 0;
}
API int nvrtcGetCUBIN(void *handle, char *out) {
    strcpy(out, cubin(handle));
    return 0;
}
API int nvrtcGetPTXSize(void *handle, size_t *n) { return nvrtcGetCUBINSize(handle, n); }
API int nvrtcGetPTX(void *handle, char *out) { return nvrtcGetCUBIN(handle, out); }
API int nvrtcGetProgramLogSize(void *handle, size_t *n) {
    *n = strlen(((program *)handle)->log) + 1;
    return 0;
}
API int nvrtcGetProgramLog(void *handle, char *out) {
    strcpy(out, ((program *)handle)->log);
    return 0;
}
