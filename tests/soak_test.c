/* Products on a GPU that is busy: random small ones of every dtype, layout and kernel, over and over, in several
 * contexts at once beside kernels that disturb their timing. Inputs are whole numbers whose sums are exact in f32 in
 * any order, so that each element has one right value: a byte read too early, or written too late, shows. Two sets of
 * inputs take turns, so that a result that is left over is wrong.
 *
 *     SOAK_SECONDS=600 SOAK_THREADS=8 ./build/tests/soak_test --seed 7
 *
 * SOAK_SECONDS (5) and SOAK_THREADS (4) say how long and in how many contexts; GENIE_TEST_DEVICES (cuda:0) names the
 * device. Several processes of other seeds at once compile more kinds and disturb each other more. Skips where the
 * device is absent.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../genie.h"

#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS_MAX = 32, GROUPS = 3, EACH = 2, CASES = GROUPS * EACH, DEPTH = 4, RANKS = 48, CLAMP = 100 };

/* One side of a product in memory: matrices of `rows` by `left` + `columns`, of which the first columns are not seen.
 * across: k runs down the rows; flipped: the rows are taken from the last to the first; fixed: a weight, otherwise
 * given with each run. */
typedef struct side {
    int64_t batches, outer, k, left;
    bool across, flipped, fixed;
    signed char *values[2];
    void *bytes[2];
    gn_tensor weight[2];
} side;

/* y = a b, + bias, relu; then perhaps clamp(y) c. */
typedef struct soak_case {
    gn_dtype d;
    int64_t m, n, k, batches, last; /* last: columns of c, 0: there is no second product */
    bool has_bias, relu, pair;      /* pair: both sets of inputs in one plan */
    side a, b, c, bias;
    void *want[2], *out[DEPTH][2];
    size_t bytes;
    int rank;
    bool tf32;
} soak_case;

typedef struct worker {
    pthread_t thread;
    gn_ctx *g;
    uint64_t state;
    soak_case cases[CASES];
    int n, rank;
    bool tf32;
    double until;
    uint64_t products, wrong, errors;
    char first[800];
} worker;

static worker workers[THREADS_MAX];
static int n_workers;
static const char *device_name;
static atomic_bool noise_ends;

static double now(void) { return (double)gn_now_us() * 1e-6; }

static uint64_t draw(worker *w, uint64_t n) {
    uint64_t z = (w->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % n;
}

/* ---- what a case is made of ---- */

static void put_number(gn_dtype d, void *to, int64_t i, float x) {
    if (d == GN_F32) ((float *)to)[i] = x;
    else if (d == GN_F64) ((double *)to)[i] = x;
    else ((uint16_t *)to)[i] = d == GN_F16 ? gn_f32_to_f16(x) : gn_f32_to_bf16(x);
}

static int64_t side_rows(const side *s) { return s->across ? s->k : s->outer; }
static int64_t side_columns(const side *s) { return s->left + (s->across ? s->outer : s->k); }

static void side_make(worker *w, side *s, gn_dtype d, int64_t batches, int64_t outer, int64_t k, int most) {
    *s = (side){ .batches = batches,
                 .outer = outer,
                 .k = k,
                 .left = draw(w, 3) ? 0 : (int64_t)draw(w, 9),
                 .across = draw(w, 2),
                 .flipped = !draw(w, 6),
                 .fixed = draw(w, 2) };
    int64_t n = batches * side_rows(s) * side_columns(s);
    for (int v = 0; v < 2; v++) {
        s->values[v] = malloc((size_t)n);
        s->bytes[v] = malloc((size_t)n * gn_dtype_bytes(d));
        for (int64_t i = 0; i < n; i++) {
            s->values[v][i] = (signed char)((int)draw(w, (uint64_t)(2 * most + 1)) - most);
            put_number(d, s->bytes[v], i, s->values[v][i]);
        }
        gn_shape shape =
            batches > 1 ? GN_SHAPE(batches, side_rows(s), side_columns(s)) : GN_SHAPE(side_rows(s), side_columns(s));
        if (s->fixed) s->weight[v] = gn_weight(w->g, d, shape, s->bytes[v], "side");
    }
}

/* (…, outer, k), or `turned` (…, k, outer) */
static gn_tensor side_tensor(gn_ctx *g, const side *s, gn_dtype d, int v, bool turned) {
    gn_shape shape =
        s->batches > 1 ? GN_SHAPE(s->batches, side_rows(s), side_columns(s)) : GN_SHAPE(side_rows(s), side_columns(s));
    gn_tensor t = s->fixed ? s->weight[v] : gn_data(g, d, shape, s->bytes[v]);
    if (s->left) t = gn_slice(t, -1, s->left, GN_END, 1);
    if (s->flipped) t = gn_flip(t, GN_AXES(-2));
    return s->across != turned ? gn_transpose(t, -1, -2) : t;
}

static int side_at(const side *s, int v, int64_t z, int64_t outer, int64_t k) {
    int64_t row = s->across ? k : outer, column = s->left + (s->across ? outer : k), rows = side_rows(s);
    return s
        ->values[v][((s->batches > 1 ? z : 0) * rows + (s->flipped ? rows - 1 - row : row)) * side_columns(s) + column];
}

static void side_drop(side *s) {
    for (int v = 0; v < 2; v++) {
        if (s->fixed && s->values[v]) gn_release(s->weight[v]);
        free(s->values[v]);
        free(s->bytes[v]);
    }
}

/* As the dtype holds it. */
static float rounded(gn_dtype d, int64_t x) {
    return d == GN_F16    ? gn_f16_to_f32(gn_f32_to_f16((float)x))
           : d == GN_BF16 ? gn_bf16_to_f32(gn_f32_to_bf16((float)x))
                          : (float)x;
}

/* Row i of matrix z of the first product, as it is stored. */
static void first_row(const soak_case *c, int v, int64_t z, int64_t i, int32_t *sums, float *y) {
    memset(sums, 0, (size_t)c->n * sizeof *sums);
    for (int64_t l = 0; l < c->k; l++) {
        int x = side_at(&c->a, v, z, i, l);
        for (int64_t j = 0; j < c->n && x; j++) sums[j] += x * side_at(&c->b, v, z, j, l);
    }
    for (int64_t j = 0; j < c->n; j++) {
        y[j] = rounded(c->d, sums[j]);
        if (c->has_bias) y[j] = rounded(c->d, (int64_t)y[j] + side_at(&c->bias, v, 0, 0, j));
        if (c->relu && y[j] < 0) y[j] = 0;
    }
}

static void case_refer(soak_case *c, int v) {
    int64_t columns = c->last ? c->last : c->n;
    int32_t *sums = malloc((size_t)c->n * sizeof *sums);
    float *y = malloc((size_t)c->n * sizeof *y);
    for (int64_t r = 0; r < c->batches * c->m; r++) {
        first_row(c, v, r / c->m, r % c->m, sums, y);
        for (int64_t j = 0; j < columns; j++) {
            int64_t sum = 0;
            for (int64_t l = 0; c->last && l < c->n; l++)
                sum += (int64_t)(y[l] > CLAMP ? CLAMP : y[l] < -CLAMP ? -CLAMP : y[l]) * side_at(&c->c, v, 0, j, l);
            put_number(c->d, c->want[v], r * columns + j, c->last ? (float)sum : y[j]);
        }
    }
    free(sums);
    free(y);
}

/* One below, at and above what tiles, steps and vectors hold. */
static int64_t some_size(worker *w, int64_t most) {
    static const int64_t edges[] = { 1, 4, 8, 9, 16, 32, 64, 128, 192, 256, 384, 512, 1024 };
    int64_t n = edges[draw(w, TEST_COUNT(edges))] + (draw(w, 2) ? 0 : (int64_t)draw(w, 5) - 2);
    if (!draw(w, 3)) n = 1 + (int64_t)draw(w, (uint64_t)most);
    return n < 1 ? 1 : n > most ? most : n;
}

static void case_make(worker *w, soak_case *c) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F32, GN_BF16, GN_F16, GN_F32, GN_BF16, GN_F32, GN_F64 };
    *c = (soak_case){ .d = dtypes[draw(w, TEST_COUNT(dtypes))],
                      .m = some_size(w, 300),
                      .n = some_size(w, 600),
                      .k = some_size(w, 1200),
                      .batches = draw(w, 5) ? 1 : 1 + (int64_t)draw(w, 3),
                      .has_bias = !draw(w, 3),
                      .relu = !draw(w, 3),
                      .pair = draw(w, 2),
                      .last = draw(w, 3) ? 0 : some_size(w, 140),
                      .rank = w->rank,
                      .tf32 = w->tf32 };
    while (c->batches * c->m * c->n * c->k > 12000000) {
        c->k = (c->k + 1) / 2;
        c->m = (c->m + 1) / 2;
    }
    side_make(w, &c->a, c->d, c->batches > 1 && draw(w, 4) ? c->batches : 1, c->m, c->k, 2);
    side_make(w, &c->b, c->d, c->batches > 1 && c->a.batches > 1 && !draw(w, 3) ? 1 : c->batches, c->n, c->k, 2);
    side_make(w, &c->bias, c->d, 1, 1, c->n, 8);
    side_make(w, &c->c, c->d, 1, c->last ? c->last : 1, c->n, 1);
    c->bytes = (size_t)(c->batches * c->m * (c->last ? c->last : c->n)) * gn_dtype_bytes(c->d);
    for (int v = 0; v < 2; v++) {
        c->want[v] = malloc(c->bytes);
        case_refer(c, v);
        for (int i = 0; i < DEPTH; i++) c->out[i][v] = malloc(c->bytes);
    }
}

static gn_tensor case_tensor(gn_ctx *g, const soak_case *c, int v) {
    gn_tensor y = gn_matmul(side_tensor(g, &c->a, c->d, v, false), side_tensor(g, &c->b, c->d, v, true));
    if (c->has_bias) y = gn_add(y, gn_reshape(side_tensor(g, &c->bias, c->d, v, false), GN_SHAPE(c->n)));
    if (c->relu) y = gn_relu(y);
    return c->last ? gn_matmul(gn_clamp(y, -CLAMP, CLAMP), side_tensor(g, &c->c, c->d, v, true)) : y;
}

static void case_drop(soak_case *c) {
    side_drop(&c->a);
    side_drop(&c->b);
    side_drop(&c->bias);
    side_drop(&c->c);
    for (int v = 0; v < 2; v++) {
        free(c->want[v]);
        for (int i = 0; i < DEPTH; i++) free(c->out[i][v]);
    }
}

/* ---- running ---- */

/* What is wrong with a result: how many elements, and the least rectangle that they are in. */
static void tell_wrong(worker *w, const soak_case *c, const char *got, const char *want) {
    size_t each = gn_dtype_bytes(c->d);
    int64_t columns = c->last ? c->last : c->n, n = 0, top = INT64_MAX, bottom = 0, left = INT64_MAX, right = 0;
    for (int64_t i = 0; i < (int64_t)(c->bytes / each); i++) {
        if (memcmp(got + (size_t)i * each, want + (size_t)i * each, each) == 0) continue;
        int64_t row = i / columns, column = i % columns;
        n++;
        top = row < top ? row : top;
        bottom = row > bottom ? row : bottom;
        left = column < left ? column : left;
        right = column > right ? column : right;
    }
    if (!w->first[0]) {
        snprintf(w->first, sizeof w->first,
                 "%s%s %" PRId64 " of %" PRId64 "x%" PRId64 "x%" PRId64 " then %" PRId64
                 ", rank %d, a %d%d%d%d left %" PRId64 ", b %d%d%d%d left %" PRId64
                 ", bias %d relu %d pair %d: %" PRId64 " elements are wrong, rows %" PRId64 " to %" PRId64
                 ", columns %" PRId64 " to %" PRId64,
                 gn_dtype_name(c->d), c->tf32 ? " (TF32)" : "", c->batches, c->m, c->n, c->k, c->last, c->rank,
                 c->a.across, c->a.flipped, c->a.fixed, c->a.batches > 1, c->a.left, c->b.across, c->b.flipped,
                 c->b.fixed, c->b.batches > 1, c->b.left, c->has_bias, c->relu, c->pair, n, top, bottom, left, right);
    }
}

static void tell_error(worker *w, const soak_case *c, gn_result r) {
    w->errors++;
    if (!w->first[0]) {
        snprintf(w->first, sizeof w->first, "%s %" PRId64 " of %" PRId64 "x%" PRId64 "x%" PRId64 ", rank %d: %s: %s",
                 gn_dtype_name(c->d), c->batches, c->m, c->n, c->k, c->rank, gn_result_name(r),
                 gn_last_error(w->g)->text);
    }
}

/* Several runs on their way at once, then all of them looked at. */
static void case_run(worker *w, soak_case *c) {
    uint64_t tickets[DEPTH] = { 0 };
    int first[DEPTH], n = c->pair ? 2 : 1;
    size_t bytes[2] = { c->bytes, c->bytes };
    for (int i = 0; i < DEPTH; i++) {
        first[i] = (int)draw(w, 2);
        gn_tensor t[2];
        for (int k = 0; k < n; k++) {
            t[k] = case_tensor(w->g, c, first[i] ^ k);
            memset(c->out[i][k], 0xff, c->bytes);
        }
        gn_result r = gn_read_later(t, n, c->out[i], bytes, &tickets[i]);
        if (r != GN_OK) tell_error(w, c, r);
        gn_step(w->g);
    }
    for (int i = 0; i < DEPTH; i++) {
        gn_result r = gn_wait(w->g, tickets[i]);
        if (r != GN_OK) tell_error(w, c, r);
        for (int k = 0; k < n && r == GN_OK; k++) {
            w->products += c->last ? 2 : 1;
            if (memcmp(c->out[i][k], c->want[first[i] ^ k], c->bytes) == 0) continue;
            w->wrong++;
            tell_wrong(w, c, c->out[i][k], c->want[first[i] ^ k]);
        }
    }
}

static void *make_cases(void *self) {
    worker *w = self;
    for (int i = 0; i < EACH; i++) {
        case_make(w, &w->cases[w->n]);
        case_run(w, &w->cases[w->n++]);
    }
    return NULL;
}

static void *run_cases(void *self) {
    worker *w = self;
    while (now() < w->until) case_run(w, &w->cases[draw(w, (uint64_t)w->n)]);
    return NULL;
}

static void *drop_cases(void *self) {
    worker *w = self;
    gn_sync(w->g);
    while (w->n > 0) case_drop(&w->cases[--w->n]);
    return NULL;
}

static void all_workers(void *(*work)(void *)) {
    for (int i = 0; i < n_workers; i++) CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < n_workers; i++) pthread_join(workers[i].thread, NULL);
}

/* Other kernels: now many small blocks, now few large ones, now none. */
static void *make_noise(void *self) {
    enum { N = 1280 };
    gn_ctx *g = self;
    worker w = { .state = test__.seed };
    float *x = calloc(N * N, sizeof *x), sum;
    gn_tensor t = gn_weight(g, GN_F32, GN_SHAPE(N, N), x, "noise");
    while (!noise_ends) {
        int kind = (int)draw(&w, 4);
        gn_tensor y = kind == 0   ? gn_matmul(t, t)
                      : kind == 1 ? gn_gelu(t)
                      : kind == 2 ? gn_softmax(t, 1)
                                  : gn_cast(gn_matmul(gn_cast(t, GN_BF16), gn_cast(t, GN_BF16)), GN_F32);
        gn_read(gn_sum(y, GN_ALL_AXES, false), &sum, sizeof sum);
        gn_step(g);
        if (!draw(&w, 3)) usleep((useconds_t)draw(&w, 2000));
    }
    gn_release(t);
    gn_close(g);
    free(x);
    return NULL;
}

/* What a kernel is chosen by is set for the process: while nothing runs. */
static void choose_kernels(worker *drawn) {
    char rank[12];
    bool tf32 = !draw(drawn, 3);
    int n = draw(drawn, 4) ? (int)draw(drawn, RANKS) : 0;
    snprintf(rank, sizeof rank, "%d", n);
    setenv("GENIE_CUDA_RANK", rank, 1);
    setenv("GENIE_TF32", tf32 ? "1" : "0", 1);
    for (int i = 0; i < n_workers; i++) {
        workers[i].rank = n;
        workers[i].tf32 = tf32;
    }
}

static void products_on_a_busy_gpu_are_exact(void) {
    double from = now(), end = from + (getenv("SOAK_SECONDS") ? atof(getenv("SOAK_SECONDS")) : 5);
    uint64_t products = 0, wrong = 0, cases = 0;
    worker drawn = { .state = test_random() };
    pthread_t noise;
    setenv("GENIE_CUDA_TUNE", "0", 1);
    n_workers = getenv("SOAK_THREADS") ? atoi(getenv("SOAK_THREADS")) : 4;
    n_workers = n_workers < 1 ? 1 : n_workers > THREADS_MAX ? THREADS_MAX : n_workers;
    for (int i = 0; i < n_workers; i++)
        workers[i] = (worker){ .g = gn_open(&(gn_desc){ .devices = device_name }), .state = test_random() };
    bool noisy = pthread_create(&noise, NULL, make_noise, gn_open(&(gn_desc){ .devices = device_name })) == 0;
    while (CHECK(noisy) && now() < end) {
        double began = now();
        for (int i = 0; i < GROUPS && (i == 0 || now() < end); i++) {
            choose_kernels(&drawn);
            all_workers(make_cases);
        }
        for (int i = 0; i < n_workers; i++) {
            cases += (uint64_t)workers[i].n;
            /* compiling takes a third of the time */
            workers[i].until = now() + 2 * (now() - began) < end ? now() + 2 * (now() - began) : end;
        }
        all_workers(run_cases);
        all_workers(drop_cases);
    }
    noise_ends = true;
    if (noisy) pthread_join(noise, NULL);
    for (int i = 0; i < n_workers; i++) {
        products += workers[i].products;
        wrong += workers[i].wrong;
        if (workers[i].wrong || workers[i].errors)
            test_fail(__FILE__, __LINE__,
                      "%" PRIu64 " of %" PRIu64 " results are wrong, %" PRIu64 " runs fail; the first: %s",
                      workers[i].wrong, workers[i].products, workers[i].errors, workers[i].first);
        gn_close(workers[i].g);
    }
    CHECK(products > 0);
    printf("%" PRIu64 " products of %" PRIu64 " kinds, %.0f a second, %" PRIu64 " wrong\n", products, cases,
           (double)products / (now() - from), wrong);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = { TEST_ENTRY(products_on_a_busy_gpu_are_exact) };
    test_begin(argc, argv);
    device_name = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0";
    gn_ctx *g = gn_open(&(gn_desc){ .devices = device_name });
    bool is_there = gn_status(g) == GN_OK && !getenv("GENIE_CUDA_COMPILE_ONLY");
    if (!is_there)
        printf("SKIP: soak_test: %s\n0 passed, 0 failed, %d skipped\n",
               gn_status(g) == GN_OK ? "nothing runs here" : gn_last_error(g)->text, TEST_COUNT(tests));
    gn_close(g);
    if (!is_there) return 0;
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
