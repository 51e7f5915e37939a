/* genie_trace_cupti.so: CUDA loads this into any program that starts under genie_trace record, and CUPTI tells it of
 * each kernel, copy and call. Written against the facts of CUPTI's interface, without its headers; the library itself
 * is found when the program runs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* CUpti_ActivityKind */
enum { KIND_COPY = 1, KIND_SET = 2, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_KERNEL = 10 };
/* CUpti_CallbackDomain */
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2 };
enum { BUFFER = 4 << 20, FLUSH_MS = 200 };

/* The beginnings of CUpti_ActivityKernel4 to 9, CUpti_ActivityMemcpy3 to 6, CUpti_ActivityMemset2 to 4 and
   CUpti_ActivityAPI: alike from CUDA 9 to 13. */
typedef struct kernel_record {
    uint32_t kind;
    uint8_t cache[2];
    uint16_t registers;
    uint32_t partitions[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], shared[2];
    uint32_t local[2], correlation;
    int64_t grid_id;
    const char *name;
} kernel_record;
typedef struct copy_record {
    uint32_t kind;
    uint8_t way, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
} copy_record;
typedef struct set_record {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
} set_record;
typedef struct call_record {
    uint32_t kind, id;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
} call_record;

static struct {
    int (*cuptiActivityRegisterCallbacks)(void (*)(uint8_t **, size_t *, size_t *),
                                          void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
    int (*cuptiActivityEnable)(int kind);
    int (*cuptiActivityFlushAll)(uint32_t flags);
    int (*cuptiActivityFlushPeriod)(uint32_t ms); /* from 11.1 on, else NULL */
    int (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid, void **record);
    int (*cuptiGetCallbackName)(int domain, uint32_t id, const char **out_name);
    int (*cuptiGetTimestamp)(uint64_t *out_ns);
} cupti;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static int64_t to_monotonic; /* ns to add to CUPTI's time */

static bool symbol(void *library, const char *name, void *slot) {
    void *p = dlsym(library, name);
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

/* Folders of the toolkit, and of Python's packages beside the interpreter that runs. */
static void *open_in(const char *folder) {
    DIR *d = opendir(folder);
    void *library = NULL;
    for (struct dirent *f; d && !library && (f = readdir(d)) != NULL;) {
        char path[1200];
        if (strncmp(f->d_name, "libcupti.so.", 12) != 0) continue;
        snprintf(path, sizeof path, "%.800s/%s", folder, f->d_name);
        library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    if (d) closedir(d);
    return library;
}

static void *open_cupti(void) {
    static const char *const names[] = { "libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so" };
    static const char *const folders[] = { "/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64" };
    const char *given = getenv("GENIE_LIBCUPTI");
    if (given && *given) return dlopen(given, RTLD_NOW | RTLD_GLOBAL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) { /* one that the program has already */
        void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        if (library) return library;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (library) return library;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        void *library = open_in(folders[i]);
        if (library) return library;
    }
    return NULL;
}

/* ---- lines ---- */

static void put_text(const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == '"' || c == '\\' || c > 126) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

static void put_line(const char *name, const char *stage, const char *lane, uint64_t begin, uint64_t end,
                     uint64_t bytes, const char *detail) {
    fputs("{\"name\":", out);
    put_text(name);
    fprintf(out, ",\"stage\":\"%s\",\"process\":1,\"lane\":\"%s\",\"begin_ns\":%lld,\"end_ns\":%lld,\"bytes\":%llu",
            stage, lane, (long long)begin + to_monotonic, (long long)(end > begin ? end : begin) + to_monotonic,
            (unsigned long long)bytes);
    fputs(",\"packed_bytes\":0,\"detail\":", out);
    put_text(detail);
    fputs("}\n", out);
}

static void kernel_told(const kernel_record *k) {
    char lane[48], detail[160];
    snprintf(lane, sizeof lane, "GPU %u stream %u", k->device, k->stream);
    snprintf(detail, sizeof detail, "grid %d x %d x %d, block %d x %d x %d, %u registers, %d + %d B shared", k->grid[0],
             k->grid[1], k->grid[2], k->block[0], k->block[1], k->block[2], k->registers, k->shared[0], k->shared[1]);
    put_line(k->name ? k->name : "kernel", "kernel", lane, k->start, k->end, 0, detail);
}

static void copy_told(const copy_record *c) {
    static const char *const ways[] = { "copy",      "copy HtoD", "copy DtoH", "copy HtoA", "copy AtoH", "copy AtoA",
                                        "copy AtoD", "copy DtoA", "copy DtoD", "copy HtoH", "copy PtoP" };
    char lane[48];
    snprintf(lane, sizeof lane, "GPU %u stream %u copies", c->device, c->stream);
    put_line(ways[c->way <= 10 ? c->way : 0],
             c->way == 1 || c->way == 3   ? "input"
             : c->way == 2 || c->way == 4 ? "output"
                                          : "kernel",
             lane, c->start, c->end, c->bytes, "");
}

static void set_told(const set_record *s) {
    char lane[48];
    snprintf(lane, sizeof lane, "GPU %u stream %u", s->device, s->stream);
    put_line("memset", "kernel", lane, s->start, s->end, s->bytes, "");
}

static void call_told(const call_record *c) {
    const char *name = NULL;
    char lane[32], detail[48] = "";
    cupti.cuptiGetCallbackName(c->kind == KIND_DRIVER ? DOMAIN_DRIVER : DOMAIN_RUNTIME, c->id, &name);
    snprintf(lane, sizeof lane, "thread %u", c->thread);
    if (c->result) snprintf(detail, sizeof detail, "= error %u", c->result);
    put_line(name ? name : "call", "driver", lane, c->start, c->end, 0, detail);
}

static void record_told(const void *record) {
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    if (kind == KIND_KERNEL) kernel_told(record);
    else if (kind == KIND_COPY) copy_told(record);
    else if (kind == KIND_SET) set_told(record);
    else if (kind == KIND_DRIVER || kind == KIND_RUNTIME) call_told(record);
}

/* ---- what CUPTI calls ---- */

static void buffer_wanted(uint8_t **buffer, size_t *size, size_t *records) {
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0;
}

static void buffer_full(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    void *record = NULL;
    (void)context;
    (void)stream;
    (void)size;
    pthread_mutex_lock(&lock);
    while (out && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == 0) record_told(record);
    if (out) fflush(out);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void at_end(void) { cupti.cuptiActivityFlushAll(1); }

static int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How far the two clocks are apart, from the quickest of some looks. */
static void align(void) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t there = 0;
        int64_t before = monotonic_ns();
        cupti.cuptiGetTimestamp(&there);
        int64_t trip = monotonic_ns() - before;
        if (trip >= least) continue;
        least = trip;
        to_monotonic = before + trip / 2 - (int64_t)there;
    }
}

static bool load(void) {
    void *library = open_cupti();
    if (!library) return false;
    symbol(library, "cuptiActivityFlushPeriod", &cupti.cuptiActivityFlushPeriod);
    return symbol(library, "cuptiActivityRegisterCallbacks", &cupti.cuptiActivityRegisterCallbacks) &&
           symbol(library, "cuptiActivityEnable", &cupti.cuptiActivityEnable) &&
           symbol(library, "cuptiActivityFlushAll", &cupti.cuptiActivityFlushAll) &&
           symbol(library, "cuptiActivityGetNextRecord", &cupti.cuptiActivityGetNextRecord) &&
           symbol(library, "cuptiGetCallbackName", &cupti.cuptiGetCallbackName) &&
           symbol(library, "cuptiGetTimestamp", &cupti.cuptiGetTimestamp);
}

/* Called by the driver, once, before the program's first call of CUDA. */
int InitializeInjection(void);
__attribute__((visibility("default"))) int InitializeInjection(void) {
    static const int kinds[] = { KIND_KERNEL, KIND_COPY, KIND_SET, KIND_DRIVER, KIND_RUNTIME };
    const char *path = getenv("GENIE_TRACE_RECORD");
    if (!path) return 0;
    if (!load()) {
        fprintf(stderr,
                "genie_trace: CUPTI (libcupti.so) is not found, nothing is recorded: it comes with the CUDA toolkit "
                "and with PyTorch; GENIE_LIBCUPTI names it\n");
        return 0;
    }
    out = fopen(path, "ab");
    if (!out) return 0;
    align();
    if (cupti.cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full) != 0) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (cupti.cuptiActivityEnable(kinds[i]) != 0)
            fprintf(stderr, "genie_trace: CUPTI does not tell of activities of kind %d here\n", kinds[i]);
    if (cupti.cuptiActivityFlushPeriod) cupti.cuptiActivityFlushPeriod(FLUSH_MS);
    atexit(at_end);
    return 1;
}
