/* Rows named ops_OP_DTYPE_SIZE: each op beside its ceiling, and beside PyTorch when $TORCH_BENCH names a Python that
 * has it. A part of bench_core.c, which includes it.
 *
 *   ./build/bench/bench_core --only ops_ --threads 1
 *   TORCH_BENCH=python3 ./build/bench/bench_core --only 'ops_*_f32_4M'
 *
 * A run builds the op on states, has its results computed and ends the step, which lets them go: all that a program
 * waits for. The ceiling is the time that this process needs to read and write the same number of bytes, or for the
 * operations the time of as many multiplications and additions of the dtype in registers, whichever is longer. What is
 * measured takes turns in short rounds; of each the lower quartile counts. With one thread all of it is processor time,
 * of one core, so that other programs on the machine disturb little. */
#ifndef GN_OPS_H
#define GN_OPS_H

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <fnmatch.h>
#include <sys/mman.h>

enum { OPS_MOST = 12, OPS_PERIOD = 1 << 18, OPS_ROUNDS = 40 };
enum {
    OPS_APART = 1984
}; /* bytes: reads and writes of a copy that are equal in their last 12 bits wait for each other */
#define OPS_MEMORY ((size_t)1 << 30)
#define OPS_PART ((size_t)64 << 20) /* bytes of each of the two buffers that the ceiling moves */

typedef int (*ops_make)(gn_ctx *g, gn_dtype d, const gn_tensor *in, int64_t n, int64_t s, gn_tensor *y, double *flops);

typedef struct ops_row {
    const char *name;
    uint32_t dtypes;
    const char *sizes, *inputs;
    ops_make make;
    const char *torch;
} ops_row;

typedef struct ops_tensor {
    gn_dtype dtype;
    gn_shape shape;
    size_t at, bytes; /* in the file shared with PyTorch */
    char kind;
    bool part; /* only as much of it is read as there are results */
    int64_t below;
} ops_tensor;

typedef struct ops_case {
    const ops_row *row;
    gn_dtype dtype;
    char name[64];
    int64_t n, s;
    int n_in, n_out;
    ops_tensor in[OPS_MOST], out[OPS_MOST];
    gn_ctx *g;
    gn_tensor x[OPS_MOST], y[OPS_MOST];
    size_t used;
    double reads, writes, flops;
} ops_case;

typedef struct ops_verdict {
    char name[64];
    double ratio; /* Genie's time over PyTorch's */
} ops_verdict;

static struct {
    int fd;
    uint8_t *memory, *from, *to;
    FILE *ask, *answer; /* PyTorch's, when there is one */
    pid_t child;
    char torch[64], cpu[256];
    ops_verdict verdicts[4096];
    int n_verdicts, n_rows, n_fallen, n_differ, n_kept, n_alone;
    ops_verdict kept[4096]; /* of the table: the ratio is that to the ceiling */
    FILE *keep;
} ops;

/* With one thread the processor's time, which does not grow when others use the machine; else the wall's. */
static double ops_clock(void) {
    struct timespec t;
    clock_gettime(set.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the rows ---- */

static int ops_many(gn_tensor *y, int n) {
    (void)y;
    return n;
}
static int ops_one(gn_tensor *y, gn_tensor t) {
    y[0] = t;
    return 1;
}

/* A convolution as a product of its windows, then the largest of each 2 by 2. */
static gn_tensor ops_lenet_layer(gn_tensor x, gn_tensor w, gn_tensor b, int64_t pad, gn_shape to) {
    gn_shape one = GN_SHAPE(1, 1);
    gn_tensor windows = gn_im2col(x, GN_SHAPE(5, 5), one, GN_SHAPE(pad, pad), one);
    x = gn_relu(gn_add(gn_matmul(w, windows), b));
    x = gn_reshape(x, GN_SHAPE(to.dims[0], to.dims[1], to.dims[2] / 2, 2, to.dims[3] / 2, 2));
    return gn_max(x, GN_AXES(3, 5), false);
}

/* One step of LeNet-5 (LeCun et al. 1998) as a newcomer writes it: the loss and the new parameters. */
static void ops_lenet(const gn_tensor *in, gn_tensor *y, int64_t n) {
    const gn_tensor *p = in + 2;
    gn_tensor grads[10];
    gn_tensor x = ops_lenet_layer(in[0], p[0], p[1], 2, GN_SHAPE(n, 6, 28, 28));
    x = ops_lenet_layer(x, p[2], p[3], 0, GN_SHAPE(n, 16, 10, 10));
    x = gn_relu(gn_linear(gn_reshape(x, GN_SHAPE(n, 400)), p[4], p[5]));
    x = gn_relu(gn_linear(x, p[6], p[7]));
    y[0] = gn_cross_entropy(gn_linear(x, p[8], p[9]), in[1]);
    if (gn_grad(y[0], p, 10, grads) != GN_OK) exit(EX_FAILED);
    for (int i = 0; i < 10; i++) y[i + 1] = gn_sub(p[i], gn_mul_c(grads[i], 0.01));
}

#define BIT(D) (1u << GN_##D)
#define MANY(statements, count) ((statements), (count))
#include "ops_rows.h"

#define OPS_MAKE(NAME, DTYPES, SIZES, INPUTS, FLOPS, RESULT, TORCH)                                            \
    static int ops_make_##NAME(gn_ctx *g, gn_dtype d, const gn_tensor *in, int64_t n, int64_t s, gn_tensor *y, \
                               double *flops) {                                                                \
        gn_tensor a = in[0], b = in[1], c = in[2];                                                             \
        (void)g, (void)d, (void)n, (void)s, (void)a, (void)b, (void)c;                                         \
        *flops = (double)(FLOPS);                                                                              \
        return _Generic((RESULT), gn_tensor : ops_one, int : ops_many)(y, (RESULT));                           \
    }
OPS_ROWS(OPS_MAKE)
#undef OPS_MAKE

static const ops_row ops_rows[] = {
#define OPS_ROW(NAME, DTYPES, SIZES, INPUTS, FLOPS, RESULT, TORCH) \
    { #NAME, DTYPES, SIZES, INPUTS, ops_make_##NAME, TORCH },
    OPS_ROWS(OPS_ROW)
#undef OPS_ROW
};

/* ---- inputs ---- */

/* "n/1024*9": reads as far as it goes. */
static int64_t ops_number(const ops_case *o, const char **text) {
    int64_t v = 1;
    for (char op = '*';; op = *(*text)++) {
        int64_t term = **text == 'n' ? o->n : o->s;
        if (**text == 'n' || **text == 's') (*text)++;
        else term = strtoll(*text, (char **)(uintptr_t)text, 10);
        v = op == '/' ? v / term : v * term;
        if (**text != '*' && **text != '/') return v;
    }
}

static int64_t ops_count(const gn_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

static void ops_place(ops_case *o, ops_tensor *t) {
    t->bytes = (size_t)ops_count(&t->shape) * gn_dtype_bytes(t->dtype);
    t->at = o->used;
    o->used += (t->bytes + 63) & ~(size_t)63;
    if (o->used <= OPS_MEMORY) return;
    fprintf(stderr, "bench_core: %s needs more than %zu bytes\n", o->name, OPS_MEMORY);
    exit(EX_FAILED);
}

/* False: a dimension is 0, there is no such row. */
static bool ops_declare(ops_case *o) {
    for (const char *text = o->row->inputs; *text; o->n_in++) {
        ops_tensor *t = &o->in[o->n_in];
        if ((t->part = *text == '-')) text++;
        t->kind = *text++;
        if (t->kind == 'i' || t->kind == 'q') t->below = ops_number(o, &text);
        t->dtype = t->below ? GN_I64 : t->kind == 'b' ? GN_BOOL : o->dtype;
        do {
            text++; /* over ':' or ',' */
            int64_t dim = ops_number(o, &text);
            if (dim == 0) return false;
            t->shape.dims[t->shape.rank++] = dim;
        } while (*text == ',');
        if (*text == ' ') text++;
        ops_place(o, t);
    }
    return true;
}

/* Element i of an input as a number. */
static double ops_value(const ops_tensor *t, int64_t i, bool ints, bool bools) {
    double r = (double)draw();
    uint32_t mixed = (uint32_t)(i / 8) * 2654435761u;
    switch (t->kind) {
    case 'p': return bools ? r < 0 : ints ? floor(8.5 + 7.49 * r) : 2.125 + 1.87 * r;
    case 'w': return bools ? r < 0 : ints ? floor(10 * fabs(r)) : 10 * r;
    case 'o': return ints ? 1 : 1 + 1e-4 * r;
    case 'd': return (double)(((uint32_t)i * 2654435761u) & 0xffffff) / 16777216;
    case 'z': return i % 8 == (mixed >> 29) ? (bools ? 1 : fabs(r) < 0.01 ? 3 : floor(9 * fabs(r)) + 1) : 0;
    case 's': return floor(8 * fabs(r));
    case 'b': return r < 0;
    case 'i': return floor((0.5 + 0.5 * r) * (double)t->below * 0.9999999);
    case 'q': return (double)((i * 389 + i / t->below * 7) % t->below);
    default: return bools ? r < 0 : ints ? trunc(100 * (t->dtype == GN_U8 ? fabs(r) : r)) : r;
    }
}

static void ops_store(gn_dtype d, void *to, int64_t i, double v) {
    switch (d) {
    case GN_F32: ((float *)to)[i] = (float)v; break;
    case GN_F64: ((double *)to)[i] = v; break;
    case GN_F16: ((uint16_t *)to)[i] = gn_f32_to_f16((float)v); break;
    case GN_BF16: ((uint16_t *)to)[i] = gn_f32_to_bf16((float)v); break;
    case GN_I8: ((int8_t *)to)[i] = (int8_t)v; break;
    case GN_I32: ((int32_t *)to)[i] = (int32_t)v; break;
    case GN_I64: ((int64_t *)to)[i] = (int64_t)v; break;
    default: ((uint8_t *)to)[i] = (uint8_t)v; break;
    }
}

static double ops_load(gn_dtype d, const void *from, int64_t i) {
    switch (d) {
    case GN_F32: return (double)((const float *)from)[i];
    case GN_F64: return ((const double *)from)[i];
    case GN_F16: return (double)gn_f16_to_f32(((const uint16_t *)from)[i]);
    case GN_BF16: return (double)gn_bf16_to_f32(((const uint16_t *)from)[i]);
    case GN_I8: return ((const int8_t *)from)[i];
    case GN_I32: return ((const int32_t *)from)[i];
    case GN_I64: return (double)((const int64_t *)from)[i];
    default: return ((const uint8_t *)from)[i];
    }
}

/* Drawn numbers repeat after OPS_PERIOD of them; those that must all differ do not. */
static void ops_fill(const ops_tensor *t) {
    int64_t n = ops_count(&t->shape), own = t->kind == 'd' || n < OPS_PERIOD ? n : OPS_PERIOD;
    bool bools = t->dtype == GN_BOOL,
         ints = !bools && t->dtype != GN_F32 && t->dtype != GN_F64 && t->dtype != GN_F16 && t->dtype != GN_BF16;
    double scale = t->kind != 'd' || !ints ? 1 : gn_dtype_bytes(t->dtype) == 1 ? 127 : 16777216;
    for (int64_t i = 0; i < own; i++) ops_store(t->dtype, ops.memory + t->at, i, scale * ops_value(t, i, ints, bools));
    size_t one = (size_t)own * gn_dtype_bytes(t->dtype);
    for (size_t at = one; at < t->bytes; at += one)
        memcpy(ops.memory + t->at + at, ops.memory + t->at, t->bytes - at < one ? t->bytes - at : one);
}

/* ---- ceilings ---- */

typedef struct ops_rate {
    void *(*run)(void *); /* a memory_job of n turns */
    double flops;         /* of a turn */
} ops_rate;

#if defined(__GNUC__) && !defined(__clang__)
#define OPS_UNROLL _Pragma("GCC unroll 10")
#else
#define OPS_UNROLL /* clang does it by itself */
#endif
/* Ten sums that do not wait for each other, each turn a multiplication and an addition a lane. */
#define OPS_TURNS(NAME, TARGET, V, SET, STEP)                                                  \
    TARGET static void *NAME(void *arg) {                                                      \
        memory_job *j = arg;                                                                   \
        V s[10], x = SET;                                                                      \
        for (int l = 0; l < 10; l++) s[l] = x;                                                 \
        for (size_t i = 0; i < j->n; i++) OPS_UNROLL for (int l = 0; l < 10; l++) s[l] = STEP; \
        for (int l = 1; l < 10; l++) s[0] = SUM(s[0], s[l]);                                   \
        memcpy(&j->sum, &s[0], sizeof j->sum);                                                 \
        return NULL;                                                                           \
    }
#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,avx512bw")))
#define HALF __attribute__((target("avx2,fma")))
static bool ops_has_512(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
static bool ops_has_256(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#define SUM(a, b) _mm512_add_ps(a, b)
OPS_TURNS(ops_f32_512, WIDE, __m512, _mm512_set1_ps((float)j->n), _mm512_fmadd_ps(s[l], x, x))
#undef SUM
#define SUM(a, b) _mm512_add_pd(a, b)
OPS_TURNS(ops_f64_512, WIDE, __m512d, _mm512_set1_pd((double)j->n), _mm512_fmadd_pd(s[l], x, x))
#undef SUM
#define SUM(a, b) _mm512_add_epi32(a, b)
OPS_TURNS(ops_i32_512, WIDE, __m512i, _mm512_set1_epi32((int)j->n), SUM(_mm512_mullo_epi32(s[l], x), x))
OPS_TURNS(ops_i8_512, WIDE, __m512i, _mm512_set1_epi8((char)j->n), SUM(_mm512_maddubs_epi16(s[l], x), x))
#undef SUM
#define SUM(a, b) _mm256_add_ps(a, b)
OPS_TURNS(ops_f32_256, HALF, __m256, _mm256_set1_ps((float)j->n), _mm256_fmadd_ps(s[l], x, x))
#undef SUM
#define SUM(a, b) _mm256_add_pd(a, b)
OPS_TURNS(ops_f64_256, HALF, __m256d, _mm256_set1_pd((double)j->n), _mm256_fmadd_pd(s[l], x, x))
#undef SUM
#define SUM(a, b) _mm256_add_epi32(a, b)
OPS_TURNS(ops_i32_256, HALF, __m256i, _mm256_set1_epi32((int)j->n), SUM(_mm256_mullo_epi32(s[l], x), x))
OPS_TURNS(ops_i8_256, HALF, __m256i, _mm256_set1_epi8((char)j->n), SUM(_mm256_maddubs_epi16(s[l], x), x))
#undef SUM
#elif defined(__aarch64__)
#define SUM(a, b) vaddq_f32(a, b)
OPS_TURNS(ops_f32_any, , float32x4_t, vdupq_n_f32((float)j->n), vfmaq_f32(x, s[l], x))
#undef SUM
#define SUM(a, b) vaddq_f64(a, b)
OPS_TURNS(ops_f64_any, , float64x2_t, vdupq_n_f64((double)j->n), vfmaq_f64(x, s[l], x))
#undef SUM
#define SUM(a, b) vaddq_s32(a, b)
OPS_TURNS(ops_i32_any, , int32x4_t, vdupq_n_s32((int)j->n), vmlaq_s32(x, s[l], x))
#undef SUM
#else
#define SUM(a, b) ((a) + (b))
OPS_TURNS(ops_f64_any, , double, (double)j->n, s[l] * x + x)
#undef SUM
#endif

/* What multiplies and adds fastest here for a dtype. The program for 16-bit floats is that of f32: what a CPU without
   instructions of its own for them reaches. */
static ops_rate ops_rate_of(gn_dtype d) {
    bool wide = d == GN_F64, ints = d == GN_I32 || d == GN_I64, bytes = d == GN_I8 || d == GN_U8 || d == GN_BOOL;
#if defined(__x86_64__)
    if (ops_has_512())
        return wide    ? (ops_rate){ ops_f64_512, 160 }
               : ints  ? (ops_rate){ ops_i32_512, 320 }
               : bytes ? (ops_rate){ ops_i8_512, 1280 }
                       : (ops_rate){ ops_f32_512, 320 };
    if (ops_has_256())
        return wide    ? (ops_rate){ ops_f64_256, 80 }
               : ints  ? (ops_rate){ ops_i32_256, 160 }
               : bytes ? (ops_rate){ ops_i8_256, 640 }
                       : (ops_rate){ ops_f32_256, 160 };
    return (ops_rate){ NULL, 0 };
#elif defined(__aarch64__)
    return wide            ? (ops_rate){ ops_f64_any, 40 }
           : ints || bytes ? (ops_rate){ ops_i32_any, 80 }
                           : (ops_rate){ ops_f32_any, 80 };
#else
    (void)wide, (void)ints, (void)bytes;
    return (ops_rate){ ops_f64_any, 20 };
#endif
}

/* Eight sums a turn, by the widest loads that there are. */
#define OPS_READ(NAME, TARGET, V, LOAD)                                                                    \
    TARGET static void *NAME(void *arg) {                                                                  \
        memory_job *j = arg;                                                                               \
        V s[8];                                                                                            \
        memset(s, 0, sizeof s);                                                                            \
        for (size_t i = 0; i + 8 * sizeof(V) <= j->n; i += 8 * sizeof(V)) {                                \
            OPS_UNROLL for (size_t l = 0; l < 8; l++) s[l] = SUM(s[l], LOAD(j->from + i + l * sizeof(V))); \
        }                                                                                                  \
        for (int l = 1; l < 8; l++) s[0] = SUM(s[0], s[l]);                                                \
        memcpy(&j->sum, &s[0], sizeof j->sum);                                                             \
        return NULL;                                                                                       \
    }
#if defined(__x86_64__)
#define SUM(a, b) _mm512_add_epi64(a, b)
#define LOAD512(p) _mm512_loadu_si512((const void *)(p))
OPS_READ(ops_read_512, WIDE, __m512i, LOAD512)
#undef SUM
#define SUM(a, b) _mm256_add_epi64(a, b)
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
OPS_READ(ops_read_256, HALF, __m256i, LOAD256)
#undef SUM
#elif defined(__aarch64__)
#define SUM(a, b) vaddq_u64(a, b)
#define LOAD128(p) vreinterpretq_u64_u8(vld1q_u8((const uint8_t *)(p)))
OPS_READ(ops_read_128, , uint64x2_t, LOAD128)
#undef SUM
#endif
static void *ops_read_main(void *arg) {
#if defined(__x86_64__)
    if (ops_has_512()) return ops_read_512(arg);
    if (ops_has_256()) return ops_read_256(arg);
#elif defined(__aarch64__)
    return ops_read_128(arg);
#endif
    return read_main(arg);
}
static void *ops_write_main(void *arg) {
    memory_job *j = arg;
    memset(j->to, (int)j->n & 1, j->n);
    return NULL;
}

/* Seconds of moving `bytes` by fn, on all threads where there is something to share. */
static double ops_move(void *(*fn)(void *), double bytes) {
    if (bytes < 1) return 0;
    size_t n = bytes > (double)OPS_PART ? OPS_PART : (size_t)bytes;
    double least = INFINITY;
    for (int again = set.once ? 1 : n < 1 << 18 ? 5 : 2; again > 0; again--) {
        double took;
        if (set.threads > 1 && n >= (size_t)1 << 20) took = in_threads(fn, ops.to, (const char *)ops.from, n);
        else {
            memory_job j = { (char *)ops.to, (const char *)ops.from, n, 0 };
            int times = set.once ? 1 : (int)(1 + (1 << 20) / n);
            double start = ops_clock();
            for (int i = 0; i < times; i++) {
                fn(&j);
                __asm__ volatile("" ::"r"(&j) : "memory");
            }
            took = (ops_clock() - start) / times;
        }
        least = fmin(least, took);
    }
    return least * bytes / (double)n;
}

/* Seconds of the row's operations at the best rate seen in some short tries. */
static double ops_compute(const ops_case *o) {
    ops_rate r = ops_rate_of(o->dtype);
    double best = INFINITY;
    const size_t turns = 5000;
    if (o->flops == 0 || !r.run) return 0;
    for (int i = 0; i < (set.once ? 1 : 5); i++) {
        memory_job j = { NULL, NULL, turns, 0 };
        double start = ops_clock();
        r.run(&j);
        best = fmin(best, ops_clock() - start);
    }
    double shared = o->flops < 1e6 ? 1 : (double)set.threads;
    return best * o->flops / ((double)turns * r.flops) / shared;
}

static double ops_ceiling(const ops_case *o) {
    double both = fmin(o->reads, o->writes);
    double move = ops_move(copy_main, both) + ops_move(ops_read_main, o->reads - both) +
                  ops_move(ops_write_main, o->writes - both);
    return fmax(move, ops_compute(o));
}

/* ---- PyTorch, in a process of its own ---- */

/* bench/ops_torch.py of the folder that this one is in, or that the program is in. */
static bool ops_script(char *out, size_t cap) {
    char own[PATH_MAX];
    snprintf(out, cap, "bench/ops_torch.py");
    if (access(out, R_OK) == 0) return true;
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n <= 0) return false;
    own[n] = 0;
    for (char *end; (end = strrchr(own, '/'));) {
        *end = 0;
        if ((size_t)snprintf(out, cap, "%s/bench/ops_torch.py", own) < cap && access(out, R_OK) == 0) return true;
    }
    return false;
}

/* A line of the other side; false after two minutes of silence or its end, and then there is no other side. */
static bool ops_hear(char *line, size_t cap) {
    struct pollfd p = { fileno(ops.answer), POLLIN, 0 };
    if (poll(&p, 1, 120000) > 0 && fgets(line, (int)cap, ops.answer)) {
        line[strcspn(line, "\n")] = 0;
        return true;
    }
    failed("PyTorch's side ended or was silent for two minutes");
    fclose(ops.ask);
    fclose(ops.answer);
    ops.ask = ops.answer = NULL;
    return false;
}

static void ops_torch_child(const char *python, const char *script, int in, int out) {
    char fd[16], threads[16];
    snprintf(fd, sizeof fd, "%d", ops.fd);
    snprintf(threads, sizeof threads, "%d", (int)set.threads);
    dup2(in, 0);
    dup2(out, 1);
    fcntl(ops.fd, F_SETFD, 0);
    setenv("MALLOC_MMAP_MAX_", "0", 1); /* memory of a result is used again and not given back: the faster way */
    setenv("MALLOC_TRIM_THRESHOLD_", "8589934592", 1);
    setenv("OMP_NUM_THREADS", threads, 1);
    execlp(python, python, script, fd, threads, (char *)NULL);
    _exit(127);
}

/* With one thread both sides keep to one core: what else runs on this machine, or on the other half of a core, then
   slows both. */
static void ops_stay(void) {
    cpu_set_t one;
    int core = sched_getcpu();
    if (set.threads != 1 || core < 0) return;
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void ops_torch_open(void) {
    const char *python = getenv("TORCH_BENCH");
    char script[PATH_MAX], line[256];
    int in[2], out[2];
    if (!python || !*python) {
        printf("  no counterpart: TORCH_BENCH=python3 names a Python that has PyTorch\n");
        return;
    }
    if (!ops_script(script, sizeof script)) {
        failed("bench/ops_torch.py is neither here nor beside the program");
        return;
    }
    signal(SIGPIPE, SIG_IGN);
    if (pipe(in) || pipe(out)) exit(EX_FAILED);
    fflush(NULL);
    ops.child = fork();
    if (ops.child == 0) {
        close(in[1]);
        close(out[0]);
        ops_torch_child(python, script, in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    ops.ask = fdopen(in[1], "w");
    ops.answer = fdopen(out[0], "r");
    if (!ops.ask || !ops.answer) exit(EX_FAILED);
    setvbuf(ops.ask, NULL, _IOLBF, 4096);
    if (!ops_hear(line, sizeof line)) return;
    snprintf(ops.torch, sizeof ops.torch, "%.60s", line + strlen("ready "));
    printf("  beside PyTorch %s (version, threads)\n", ops.torch);
}

static void ops_torch_close(void) {
    if (ops.ask) fclose(ops.ask);
    if (ops.answer) fclose(ops.answer);
    if (ops.child > 0) waitpid(ops.child, NULL, 0);
    ops.ask = ops.answer = NULL;
}

static bool ops_comparable(const ops_case *o) { return o->row->torch[0] != '~'; }

/* Hands the inputs over and has it compute once. False, with the reason: it cannot. */
static bool ops_torch_do(const ops_case *o, char *line, size_t cap) {
    if (!ops.ask) return false;
    fprintf(ops.ask, "new\nlet n %lld\nlet s %lld\nlet dt %s\n", (long long)o->n, (long long)o->s,
            gn_dtype_name(o->dtype));
    for (int i = 0; i < o->n_in; i++) {
        const ops_tensor *t = &o->in[i];
        fprintf(ops.ask, "in %c %s %zu", 'a' + i, gn_dtype_name(t->dtype), t->at);
        for (int k = 0; k < t->shape.rank; k++) fprintf(ops.ask, " %lld", (long long)t->shape.dims[k]);
        fprintf(ops.ask, "\n");
    }
    fprintf(ops.ask, "do %zu %s\n", o->used, o->row->torch + !ops_comparable(o));
    if (!ops_hear(line, cap)) return false;
    return !strncmp(line, "ok", 2);
}

static double ops_torch_time(int times) {
    char line[64];
    fprintf(ops.ask, "time %d\n", times);
    return ops_hear(line, sizeof line) ? strtod(line, NULL) / times : NAN;
}

static gn_dtype ops_dtype(const char *name) {
    for (int d = 1; d < GN_DTYPE__COUNT; d++)
        if (!strcmp(name, gn_dtype_name((gn_dtype)d))) return (gn_dtype)d;
    return GN_DTYPE_NONE;
}

static double ops_tolerance(const ops_case *o, gn_dtype d) {
    double eps = d == GN_F64 ? 1e-13 : d == GN_F32 ? 4e-6 : d == GN_F16 ? 2e-3 : d == GN_BF16 ? 1.6e-2 : 0;
    double inputs = 1, outputs = (double)ops_count(&o->out[0].shape);
    for (int i = 0; i < o->n_in; i++) inputs = fmax(inputs, (double)ops_count(&o->in[i].shape));
    if (o->n_in && o->in[0].kind == 'o') eps *= 200; /* PyTorch's own error is 1e-3 where 1M factors are multiplied */
    return eps * fmax(1, sqrt(fmax(inputs, o->flops) / outputs) / 8);
}

/* What PyTorch said its results are, "ok DTYPE COUNT …", against the states. */
static bool ops_same(const ops_case *o, char *said, char *why, size_t cap) {
    size_t at = o->used;
    char *rest = NULL;
    strtok_r(said, " ", &rest);
    for (int k = 0; k < o->n_out; k++) {
        const ops_tensor *t = &o->out[k];
        const char *name = strtok_r(NULL, " ", &rest), *number = strtok_r(NULL, " ", &rest);
        gn_dtype d = name ? ops_dtype(name) : GN_DTYPE_NONE;
        int64_t n = number ? strtoll(number, NULL, 10) : -1;
        snprintf(why, cap, "result %d: %lld elements, PyTorch's %lld", k, (long long)ops_count(&t->shape),
                 (long long)n);
        if (d == GN_DTYPE_NONE || n != ops_count(&t->shape)) return false;
        uint8_t *own = malloc(t->bytes);
        if (!own) exit(EX_FAILED);
        read_or_die(o->y[k], own, t->bytes);
        double tolerance = fmax(ops_tolerance(o, t->dtype), ops_tolerance(o, d));
        bool same = true;
        for (int64_t i = 0; i < n && same; i += n > 1 << 21 ? 7 : 1) {
            double x = ops_load(t->dtype, own, i), z = ops_load(d, ops.memory + at, i);
            same = fabs(x - z) <= tolerance * (1 + fabs(z)) || (isnan(x) && isnan(z)) || x == z;
            if (!same) snprintf(why, cap, "result %d, element %lld: %.9g, PyTorch's %.9g", k, (long long)i, x, z);
        }
        free(own);
        if (!same) return false;
        at += ((size_t)n * gn_dtype_bytes(d) + 63) & ~(size_t)63;
    }
    return true;
}

/* ---- a row ---- */

/* The results become the states': what is compared. */
static bool ops_keep(ops_case *o) {
    gn_tensor y[OPS_MOST];
    int n = o->row->make(o->g, o->dtype, o->x, o->n, o->s, y, &o->flops);
    for (int k = 0; k < n; k++) gn_assign(o->y[k], y[k]);
    return ex_check(o->g, gn_step(o->g), o->name);
}

/* Builds the graph, has its results computed and lets them go, as PyTorch's side does; seconds a time. */
static double ops_run(ops_case *o, int times) {
    gn_tensor y[OPS_MOST];
    double start = ops_clock();
    for (int i = 0; i < times; i++) {
        int n = o->row->make(o->g, o->dtype, o->x, o->n, o->s, y, &o->flops);
        gn_result r = gn_realize(y, n), ended = gn_step(o->g);
        if (r == GN_OK) r = ended;
        if (r == GN_OK) continue;
        ex_check(o->g, r, o->name);
        return NAN;
    }
    return (ops_clock() - start) / times;
}

/* States for the inputs and for what results; false: the graph cannot be built. */
static bool ops_open(ops_case *o) {
    gn_tensor y[OPS_MOST];
    o->g = open_or_die("cpu", set.threads);
    o->x[0] = o->x[1] = o->x[2] = GN_NONE;
    for (int i = 0; i < o->n_in; i++) {
        ops_fill(&o->in[i]);
        o->x[i] = gn_state(o->g, o->in[i].dtype, o->in[i].shape, ops.memory + o->in[i].at, "x");
    }
    o->n_out = o->row->make(o->g, o->dtype, o->x, o->n, o->s, y, &o->flops);
    for (int k = 0; k < o->n_out; k++) {
        gn_info info;
        if (!ex_check(o->g, gn_describe(y[k], &info), o->name)) return false;
        o->out[k].dtype = info.dtype;
        o->out[k].shape = info.shape;
        o->out[k].bytes = info.bytes;
        o->writes += (double)info.bytes;
        o->y[k] = gn_state(o->g, info.dtype, info.shape, NULL, "y");
    }
    for (int i = 0; i < o->n_in; i++)
        o->reads += o->in[i].part ? fmin(o->writes, (double)o->in[i].bytes) : (double)o->in[i].bytes;
    gn_step(o->g);
    return true;
}

/* Each side runs until its processors are awake and its memory is where it will be, as the scripts do. Several threads
   look for more work a while before they sleep: between the sides all rest. */
enum { SIDE_REST_US = 20000, SIDE_WAKE_US = 5000 };

static void side_rest_us(unsigned us) {
    if (set.threads > 1 && !set.once) usleep(us);
}
static void side_rest(void) { side_rest_us(SIDE_REST_US); }

/* Lower quartiles of rounds in which each has its turn. */
static void ops_measure(ops_case *o, bool beside, double *own, double *ceiling, double *other) {
    double once = set.once ? 1 : fmin(ops_run(o, 1), ops_run(o, 1));
    int times = once > 0 && once < 1e-4 ? (int)(1e-4 / once) + 1 : 1;
    double budget = set.once ? 0 : set.quick ? 0.03 : 0.25, begin = ex_now();
    int n = 0, least = set.once ? 1 : set.quick ? 3 : 5;
    while (n < OPS_ROUNDS && (n < least || ex_now() - begin < budget)) {
        for (double awake = ex_now() + 1e-6 * SIDE_WAKE_US; !set.once;) {
            ops_run(o, 1); /* at least once for the caches, as the others do */
            if (ex_now() >= awake) break;
        }
        samples_a[n] = ops_run(o, times);
        side_rest();
        if (beside && ops.ask) {
            samples_c[n] = ops_torch_time(times);
            side_rest();
        }
        samples_b[n++] = ops_ceiling(o);
        if (isnan(samples_a[n - 1])) break;
    }
    *own = isnan(samples_a[n - 1]) ? NAN : quantile(samples_a, n, 0.25);
    *ceiling = quantile(samples_b, n, 0.25);
    *other = beside ? quantile(samples_c, n, 0.25) : NAN;
}

static double ops_kept(const char *name) {
    for (int i = 0; i < ops.n_kept; i++)
        if (!strcmp(ops.kept[i].name, name)) return ops.kept[i].ratio;
    return NAN;
}

/* A row that has fallen is measured again, in case something else used the machine; the best counts. */
static double ops_measure_again(ops_case *o, double ratio) {
    double kept = ops_kept(o->name), own, ceiling, other;
    if (ops.n_kept == 0) return ratio;
    if (isnan(kept)) {
        ops.n_alone++;
        return ratio;
    }
    for (int i = 0; i < 5 && !(ratio >= kept * 2 / 3); i++) {
        ops_measure(o, false, &own, &ceiling, &other);
        ratio = fmax(ratio, ceiling / own);
    }
    if (ratio >= kept * 2 / 3) return ratio;
    ops.n_fallen++;
    printf("  %-34s fell to %.3f of its ceiling, %.3f is kept\n", o->name, ratio, kept);
    return ratio;
}

static void ops_verdict_add(const char *name, double ratio) {
    if (ops.n_verdicts == (int)(sizeof ops.verdicts / sizeof *ops.verdicts)) {
        failed("more rows than there is room for");
        return;
    }
    snprintf(ops.verdicts[ops.n_verdicts].name, sizeof ops.verdicts[0].name, "%s", name);
    ops.verdicts[ops.n_verdicts++].ratio = ratio;
}

static void ops_show(ops_case *o) {
    char line[512] = "", why[256] = "", name[80];
    bool can = ops_torch_do(o, line, sizeof line), beside = can;
    double own, ceiling, other;
    if (!ops_keep(o)) {
        failed(o->name);
        return;
    }
    if (can && ops_comparable(o) && !ops_same(o, line, why, sizeof why)) {
        ops.n_differ++;
        failed(o->name);
        printf("  %-34s DIFFERS from PyTorch: %s\n", o->name, why);
        beside = false;
    }
    ops_measure(o, beside, &own, &ceiling, &other);
    double ratio = ops_measure_again(o, ceiling / own);
    printf("  %-34s %10.2f us, ceiling %10.2f: %5.3f", o->name, own * 1e6, ceiling * 1e6, ratio);
    if (beside) printf(", PyTorch %10.2f: %6.2f times", other * 1e6, own / other);
    else if (ops.torch[0] && !can) printf(", PyTorch: %.60s", line);
    printf("\n");
    fflush(stdout);
    ops.n_rows++;
    keep(o->name, ratio);
    if (ops.keep) fprintf(ops.keep, "%s %.4f\n", o->name, ratio);
    if (!beside) return;
    snprintf(name, sizeof name, "%s_torch", o->name);
    keep(name, own / other);
    ops_verdict_add(o->name, own / other);
}

static bool ops_wanted(const char *name) {
    return !set.only || !fnmatch(set.only, name, FNM_EXTMATCH) || strstr(name, set.only) != NULL;
}

/* One size, "4M" in bytes or "512" as n; false: there is no such row. */
static bool ops_size(const ops_row *row, gn_dtype d, const char *size, size_t length) {
    ops_case o = { .row = row, .dtype = d };
    char *unit;
    bool ran = false;
    snprintf(o.name, sizeof o.name, "ops_%s_%s_%.*s", row->name, gn_dtype_name(d), (int)length, size);
    o.n = strtoll(size, &unit, 10);
    if (*unit == 'K' || *unit == 'M') o.n = o.n * (*unit == 'K' ? 1 << 10 : 1 << 20) / (int64_t)gn_dtype_bytes(d);
    else if (set.once) o.n = o.n / 8;
    for (o.s = 1; 4 * o.s * o.s <= o.n; o.s *= 2) { }
    if (!ops_wanted(o.name)) return false;
    seed = 0x9E3779B97F4A7C15u;
    if (!ops_declare(&o)) return false;
    if (ops_open(&o)) {
        ops_show(&o);
        ran = true;
    } else failed(o.name);
    gn_close(o.g);
    return ran;
}

/* Of each dtype all sizes; quick: those up to 4 MiB; once: the first that there is. */
static void ops_each(const ops_row *row) {
    for (int d = 1; d < GN_DTYPE__COUNT; d++) {
        if (!(row->dtypes >> d & 1)) continue;
        for (const char *size = row->sizes; *size;) {
            size_t length = strcspn(size, " ");
            bool large = !strncmp(size, "64M", 3);
            if (!(large && set.quick) && ops_size(row, (gn_dtype)d, size, length) && set.once) break;
            size += length + (size[length] == ' ');
        }
    }
}

/* ---- the table that is kept ---- */

/* "AMD EPYC, family 25, model 17, avx512": what a speed depends on. */
static void ops_cpu_name(void) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256], title[128] = "unknown", family[16] = "", number[16] = "", isa[32] = "";
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') {
        const char *value = strchr(line, ':');
        line[strcspn(line, "\n")] = 0;
        if (!value) continue;
        if (!strncmp(line, "model name", 10)) snprintf(title, sizeof title, "%.120s", value + 2);
        else if (!strncmp(line, "cpu family", 10)) snprintf(family, sizeof family, "%.10s", value + 2);
        else if (!strncmp(line, "model\t", 6)) snprintf(number, sizeof number, "%.10s", value + 2);
    }
    if (f) fclose(f);
    gn_device_info d;
    gn_ctx *g = open_or_die("cpu", 1);
    gn_get_device(g, &d);
    gn_close(g);
    const char *text = strstr(d.identity, "isa ");
    if (text) snprintf(isa, sizeof isa, "%.*s", (int)strcspn(text + 4, " "), text + 4);
    snprintf(ops.cpu, sizeof ops.cpu, "%s, family %s, model %s, %s", title, family, number, isa);
}

static void ops_keep_open(const char *path) {
    ops.keep = fopen(path, "w");
    if (!ops.keep) {
        fprintf(stderr, "bench_core: %s: %s\n", path, strerror(errno));
        exit(EX_FAILED);
    }
    fprintf(ops.keep,
            "# The share of its ceiling's speed that each row of bench_core's ops_ reaches; made by\n"
            "# ./build/bench/bench_core --only ops_ --threads %d --keep bench/ops.txt\n"
            "# cpu %s\n# threads %d\n",
            (int)set.threads, ops.cpu, (int)set.threads);
}

/* Reads the table. One of another CPU or number of threads says nothing about this one: the program ends with 77. */
static void ops_check_open(const char *path) {
    FILE *f = fopen(path, "r");
    char line[512], cpu[256] = "";
    int threads = 0;
    if (!f) {
        fprintf(stderr, "bench_core: %s: %s\n", path, strerror(errno));
        exit(EX_FAILED);
    }
    while (fgets(line, sizeof line, f)) {
        char *gap = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "# cpu ", 6)) snprintf(cpu, sizeof cpu, "%.250s", line + 6);
        else if (!strncmp(line, "# threads ", 10)) threads = atoi(line + 10);
        else if (line[0] != '#' && gap && ops.n_kept < (int)(sizeof ops.kept / sizeof *ops.kept)) {
            *gap = 0;
            snprintf(ops.kept[ops.n_kept].name, sizeof ops.kept[0].name, "%.60s", line);
            ops.kept[ops.n_kept++].ratio = strtod(gap + 1, NULL);
        }
    }
    fclose(f);
    if (!strcmp(cpu, ops.cpu) && threads == set.threads) return;
    printf("SKIP: %s is of %s with %d threads, this is %s with %d\n", path, cpu, threads, ops.cpu, (int)set.threads);
    exit(77);
}

static int ops_worse_first(const void *a, const void *b) {
    double x = ((const ops_verdict *)a)->ratio, y = ((const ops_verdict *)b)->ratio;
    return (x < y) - (x > y);
}

/* The rows beside PyTorch whose name ends so: how many, the median, the worst. */
static void ops_summary(const char *ending, int worst) {
    int n = 0, over = 0;
    static ops_verdict some[sizeof ops.verdicts / sizeof *ops.verdicts];
    for (int i = 0; i < ops.n_verdicts; i++) {
        size_t length = strlen(ops.verdicts[i].name), tail = strlen(ending);
        if (length < tail || strcmp(ops.verdicts[i].name + length - tail, ending) != 0) continue;
        over += !(ops.verdicts[i].ratio <= 1.5);
        some[n++] = ops.verdicts[i];
    }
    if (n == 0) return;
    qsort(some, (size_t)n, sizeof *some, ops_worse_first);
    printf("  %d rows%s%s beside PyTorch: median %.2f times its time, %d over 1.5; the worst:\n", n,
           *ending ? " of " : "", *ending ? ending + 1 : "", some[n / 2].ratio, over);
    for (int i = 0; i < n && i < worst; i++) printf("    %-34s %6.2f\n", some[i].name, some[i].ratio);
    char name[48];
    snprintf(name, sizeof name, "ops_torch_median%s", ending);
    keep(name, some[n / 2].ratio);
    snprintf(name, sizeof name, "ops_torch_over%s", ending);
    keep(name, over);
}

/* All of these rows take minutes: they run when they are asked for, and once each with --once. */
static void bench_ops(const char *keep_path, const char *check_path) {
    bool asked = set.only && !strncmp(set.only, "ops_", 4);
    if (!asked && (set.only || !set.once)) return;
    printf("ops\n");
    ops_cpu_name();
    printf("  on %s, %d thread%s\n", ops.cpu, (int)set.threads, set.threads == 1 ? "" : "s");
    if (check_path) ops_check_open(check_path);
    if (keep_path) ops_keep_open(keep_path);
    ops.fd = memfd_create("genie-bench", MFD_CLOEXEC);
    if (ops.fd < 0 || ftruncate(ops.fd, (off_t)OPS_MEMORY)) exit(EX_FAILED);
    ops.memory = mmap(NULL, OPS_MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, ops.fd, 0);
    ops.from = (uint8_t *)make_floats(OPS_PART / sizeof(float), 1);
    ops.to = (uint8_t *)make_floats(OPS_PART / sizeof(float) + OPS_APART, 1) + OPS_APART;
    if (ops.memory == MAP_FAILED) exit(EX_FAILED);
    ops_stay();
    ops_torch_open();
    for (size_t i = 0; i < sizeof ops_rows / sizeof *ops_rows; i++) ops_each(&ops_rows[i]);
    ops_torch_close();
    printf("  %d rows\n", ops.n_rows);
    if (ops.n_kept) printf("  %d fell by more than a third, %d are not in the table\n", ops.n_fallen, ops.n_alone);
    if (ops.n_fallen) failed("rows fell by more than a third below the table");
    ops_summary("_4K", 10);
    ops_summary("_4M", 10);
    ops_summary("", 20);
    if (ops.keep && fclose(ops.keep)) exit(EX_FAILED);
    munmap(ops.memory, OPS_MEMORY);
    close(ops.fd);
    free(ops.from);
    free(ops.to - OPS_APART);
}

#endif
