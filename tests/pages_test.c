/* Many sequences in one plan: appends to pages and attention over them against a loop in f64, whatever the pages are
 * and whatever the neighbours do, on the device of $GENIE_TEST_DEVICES (cpu); gn_kv_pages against a plain model that
 * keeps for each sequence the list of its tokens, through random histories. Caches of 8 bits against bounds of their
 * error. With gn_desc.batch_invariant the bits of tokens however they are cut into steps.
 *
 * Tier: quick address */
#include "../genie.h"

#include "numbers.h"

static gn_ctx *g;

/* ---- attention over pages ---- */

/* B sequences of n[b] tokens, of which the last rows[b] are queries; pages placed at random. */
enum { MOST_B = 6, MOST_ROWS = 64 };
typedef struct setting {
    int64_t B, H, G, D, E, S, P, M, N; /* N: rows, with those that are of no sequence */
    int64_t n[MOST_B], rows[MOST_B];
    gn_attention_desc d;
    bool slopes, sinks;
} setting;

typedef struct values {
    double *q, *k, *v; /* (N,H,D); (B,tokens,G,D); (B,tokens,G,E) */
    double slopes[16], sinks[16];
    int64_t sequence[MOST_ROWS], position[MOST_ROWS], slot[MOST_ROWS];
    int64_t table[MOST_B * 64];
} values;

static int64_t tokens_of(const setting *s) { return s->M * s->S; }

static double *draw(gn_dtype d, int64_t n) {
    double *x = malloc((size_t)n * sizeof *x + 1);
    for (int64_t i = 0; i < n; i++) {
        x[i] = test_random_real(-1, 1);
        if (d == GN_F32) x[i] = (double)(float)x[i];
        if (d == GN_BF16) x[i] = (double)gn_bf16_to_f32(gn_f32_to_bf16((float)x[i]));
    }
    return x;
}

static void place_pages(const setting *s, values *v) {
    int64_t pages[256], left = s->P;
    for (int64_t i = 0; i < s->P; i++) pages[i] = i;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t m = 0; m < s->M; m++) {
            bool needed = m * s->S < s->n[b];
            int64_t pick = needed ? test_random_int(0, left - 1) : 0;
            v->table[b * s->M + m] = needed ? pages[pick] : test_random_int(-5, 300); /* what is not seen is not read */
            if (needed) pages[pick] = pages[--left];
        }
}

/* Rows of the sequences one after another, then mixed; the last are of none. */
static void place_rows(const setting *s, values *v, bool mixed) {
    int64_t at = 0;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t i = 0; i < s->rows[b]; i++) {
            v->sequence[at] = b;
            v->position[at++] = s->n[b] - s->rows[b] + i;
        }
    for (; at < s->N; at++) v->sequence[at] = -1, v->position[at] = test_random_int(-3, 1 << 20);
    for (int64_t i = s->N - 1; i > 0 && mixed; i--) {
        int64_t k = test_random_int(0, i), b = v->sequence[i], p = v->position[i];
        v->sequence[i] = v->sequence[k], v->position[i] = v->position[k];
        v->sequence[k] = b, v->position[k] = p;
    }
    for (int64_t i = 0; i < s->N; i++) {
        int64_t b = v->sequence[i], p = v->position[i];
        v->slot[i] = b < 0 ? -1 : v->table[b * s->M + p / s->S] * s->S + p % s->S;
    }
}

static values values_make(const setting *s, gn_dtype d) {
    values v = { .q = draw(d, s->N * s->H * s->D),
                 .k = draw(d, s->B * tokens_of(s) * s->G * s->D),
                 .v = draw(d, s->B * tokens_of(s) * s->G * s->E) };
    for (int i = 0; i < 16; i++) v.slopes[i] = -0.25 * i / 16, v.sinks[i] = 0.5 * i - 2;
    return v;
}

static void values_free(values *v) {
    free(v->q);
    free(v->k);
    free(v->v);
}

static gn_tensor tensor_of(gn_dtype d, gn_shape shape, const double *x) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    char *bytes = malloc((size_t)n * gn_dtype_bytes(d) + 1);
    for (int64_t i = 0; i < n; i++) {
        float y = (float)x[i];
        uint16_t half = gn_f32_to_bf16(y);
        if (d == GN_F64) memcpy(bytes + i * 8, &x[i], 8);
        else if (d == GN_F32) memcpy(bytes + i * 4, &y, 4);
        else memcpy(bytes + i * 2, &half, 2);
    }
    gn_tensor t = gn_data_copy(g, d, shape, bytes);
    free(bytes);
    return t;
}

static gn_tensor numbers_of(gn_shape shape, const int64_t *x, bool small) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
    int32_t *narrow = malloc((size_t)n * 4 + 1);
    for (int64_t i = 0; i < n; i++) narrow[i] = (int32_t)x[i];
    gn_tensor t = small ? gn_data_copy(g, GN_I32, shape, narrow) : gn_data_copy(g, GN_I64, shape, x);
    free(narrow);
    return t;
}

/* The tokens of every sequence in its pages: garbage elsewhere. side 0: keys, 1: values. */
static gn_tensor pool_of(const setting *s, const values *v, gn_dtype d, int side, double garbage) {
    int64_t width = side ? s->E : s->D, n = s->P * s->G * s->S * width;
    double *x = malloc((size_t)n * sizeof *x);
    const double *from = side ? v->v : v->k;
    for (int64_t i = 0; i < n; i++) x[i] = garbage;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t t = 0; t < s->n[b]; t++)
            for (int64_t h = 0; h < s->G; h++)
                for (int64_t e = 0; e < width; e++)
                    x[((v->table[b * s->M + t / s->S] * s->G + h) * s->S + t % s->S) * width + e] =
                        from[((b * tokens_of(s) + t) * s->G + h) * width + e];
    gn_tensor t = tensor_of(d, GN_SHAPE(s->P, s->G, s->S, width), x);
    free(x);
    return t;
}

static gn_tensor attend(const setting *s, const values *v, gn_dtype d, gn_tensor keys, gn_tensor vals) {
    gn_attention_desc desc = s->d;
    if (s->slopes) desc.slopes = tensor_of(d, GN_SHAPE(s->H), v->slopes);
    if (s->sinks) desc.sinks = tensor_of(GN_F32 == d ? d : GN_F32, GN_SHAPE(s->H), v->sinks);
    if (d == GN_F64 && s->sinks) desc.sinks = tensor_of(d, GN_SHAPE(s->H), v->sinks);
    return gn_page_attention(tensor_of(d, GN_SHAPE(s->N, s->H, s->D), v->q), keys, vals,
                             numbers_of(GN_SHAPE(s->N), v->sequence, true),
                             numbers_of(GN_SHAPE(s->N), v->position, false),
                             numbers_of(GN_SHAPE(s->B, s->M), v->table, true), &desc);
}

/* Row n, head h of the formula. */
static void expect(const setting *s, const values *v, int64_t n, int64_t h, double *out) {
    int64_t b = v->sequence[n], p = v->position[n], from = s->d.window ? p + 1 - s->d.window : 0, w = h / (s->H / s->G);
    double scale = s->d.scale != 0 ? s->d.scale : 1 / sqrt((double)s->D), top = s->sinks ? v->sinks[h] : -INFINITY,
           sum = 0, score[1024];
    for (int64_t e = 0; e < s->E; e++) out[e] = 0;
    if (b < 0) return;
    for (int64_t j = from < 0 ? 0 : from; j <= p; j++) {
        double x = 0;
        for (int64_t e = 0; e < s->D; e++)
            x += v->q[(n * s->H + h) * s->D + e] * v->k[((b * tokens_of(s) + j) * s->G + w) * s->D + e];
        x *= scale;
        if (s->d.soft_cap > 0) x = s->d.soft_cap * tanh(x / s->d.soft_cap);
        if (s->slopes) x += v->slopes[h] * (double)(j - p);
        score[j] = x;
        if (x > top) top = x;
    }
    if (s->sinks) sum = exp(v->sinks[h] - top);
    for (int64_t j = from < 0 ? 0 : from; j <= p; j++) {
        double weight = exp(score[j] - top);
        sum += weight;
        for (int64_t e = 0; e < s->E; e++) out[e] += weight * v->v[((b * tokens_of(s) + j) * s->G + w) * s->E + e];
    }
    for (int64_t e = 0; e < s->E; e++) out[e] /= sum;
}

static const setting settings[] = {
    { .B = 1, .H = 1, .G = 1, .D = 1, .E = 1, .S = 1, .P = 1, .M = 1, .N = 1, .n = { 1 }, .rows = { 1 } },
    { .B = 3,
      .H = 4,
      .G = 2,
      .D = 8,
      .E = 8,
      .S = 4,
      .P = 40,
      .M = 9,
      .N = 8,
      .n = { 1, 17, 33 },
      .rows = { 1, 1, 1 } },
    { .B = 3,
      .H = 6,
      .G = 2,
      .D = 5,
      .E = 3,
      .S = 3,
      .P = 40,
      .M = 9,
      .N = 20,
      .n = { 9, 17, 26 },
      .rows = { 9, 1, 4 } },
    { .B = 2,
      .H = 3,
      .G = 3,
      .D = 64,
      .E = 64,
      .S = 16,
      .P = 64,
      .M = 20,
      .N = 4,
      .n = { 300, 270 },
      .rows = { 2, 1 } },
    { .B = 2,
      .H = 8,
      .G = 2,
      .D = 32,
      .E = 32,
      .S = 8,
      .P = 60,
      .M = 30,
      .N = 9,
      .n = { 40, 200 },
      .rows = { 8, 1 },
      .d = { .window = 19 } },
    { .B = 2,
      .H = 4,
      .G = 1,
      .D = 16,
      .E = 24,
      .S = 16,
      .P = 50,
      .M = 20,
      .N = 6,
      .n = { 300, 31 },
      .rows = { 1, 4 },
      .d = { .soft_cap = 0.5, .scale = 0.7 },
      .slopes = true,
      .sinks = true },
    { .B = 4,
      .H = 4,
      .G = 4,
      .D = 12,
      .E = 12,
      .S = 5,
      .P = 50,
      .M = 8,
      .N = 4,
      .n = { 1, 0, 40, 12 },
      .rows = { 1, 0, 1, 1 },
      .d = { .window = 1 },
      .sinks = true },
    { .B = 2,
      .H = 2,
      .G = 1,
      .D = 128,
      .E = 128,
      .S = 16,
      .P = 20,
      .M = 9,
      .N = 16,
      .n = { 5, 140 },
      .rows = { 5, 11 },
      .d = { .window = 100 },
      .slopes = true },
    /* on a GPU in parts, which the last block of a query joins */
    { .B = 2,
      .H = 4,
      .G = 2,
      .D = 16,
      .E = 16,
      .S = 16,
      .P = 100,
      .M = 50,
      .N = 3,
      .n = { 700, 530 },
      .rows = { 2, 1 } },
};

TEST(attention_over_pages_is_the_formula) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_BF16 };
    static const double errors[] = { 2e-6, 1e-14, 0.01 };
    for (int k = 0; k < TEST_COUNT(settings) * TEST_COUNT(dtypes); k++) {
        const setting *s = &settings[k / 3];
        gn_dtype d = dtypes[k % 3];
        values v = values_make(s, d);
        place_pages(s, &v);
        place_rows(s, &v, k % 2);
        gn_tensor y = attend(s, &v, d, pool_of(s, &v, d, 0, NAN), pool_of(s, &v, d, 1, INFINITY));
        int64_t n = s->N * s->H * s->E;
        char *got = malloc((size_t)n * 8);
        double want[256], worst = 0;
        if (CHECK_RESULT(gn_read(y, got, (size_t)n * gn_dtype_bytes(d)), GN_OK))
            for (int64_t i = 0; i < s->N * s->H; i++) {
                expect(s, &v, i / s->H, i % s->H, want);
                for (int64_t e = 0; e < s->E; e++) {
                    double error = fabs(element(d, got, i * s->E + e) - want[e]);
                    if (!(error <= worst)) worst = error;
                }
            }
        else printf("%s\n", gn_last_error(g)->text);
        if (!(worst <= errors[k % 3]))
            test_fail(__FILE__, __LINE__, "setting %d, %s: off by %g", k / 3, gn_dtype_name(d), worst);
        free(got);
        values_free(&v);
        gn_step(g);
    }
}

/* Appends to states, then attention: rows of sequence 0 alone, or with all others. */
static bool run_states(const setting *s, values *v, gn_dtype d, bool alone, void *got) {
    values mine = *v;
    setting held = *s;
    for (int64_t b = 0; b < s->B; b++) held.n[b] -= s->rows[b];
    for (int64_t i = 0; i < s->N && alone; i++)
        if (mine.sequence[i]) mine.sequence[i] = mine.slot[i] = -1, mine.position[i] = 0;
    for (int64_t b = 1; b < s->B && alone; b++) held.n[b] = 0;
    gn_tensor pools[2], next[2];
    for (int side = 0; side < 2; side++) {
        int64_t width = side ? s->E : s->D;
        double *rows = malloc((size_t)(s->N * s->G * width) * sizeof *rows);
        const double *from = side ? v->v : v->k;
        pools[side] = gn_state(g, d, GN_SHAPE(s->P, s->G, s->S, width), NULL, "pool");
        gn_assign(pools[side], pool_of(&held, &mine, d, side, alone ? 0 : NAN));
        if (!CHECK_RESULT(gn_step(g), GN_OK)) return false;
        for (int64_t i = 0; i < s->N; i++)
            for (int64_t e = 0; e < s->G * width; e++)
                rows[i * s->G * width + e] =
                    mine.sequence[i] < 0
                        ? NAN
                        : from[(mine.sequence[i] * tokens_of(s) + mine.position[i]) * s->G * width + e];
        next[side] =
            gn_page_append(pools[side], tensor_of(d, GN_SHAPE(s->N, s->G, width), rows),
                           numbers_of(GN_SHAPE(s->N), mine.slot, side), numbers_of(GN_SHAPE(s->N), mine.sequence, side),
                           numbers_of(GN_SHAPE(s->B, s->M), mine.table, !side));
        free(rows);
        if (side == 0) gn_realize(&next[0], 1);
        if (side == 0) gn_step(g), next[0] = pools[0];
    }
    gn_tensor y = attend(s, &mine, d, next[0], next[1]);
    bool ok = CHECK_RESULT(gn_read(y, got, (size_t)(s->N * s->H * s->E) * gn_dtype_bytes(d)), GN_OK);
    if (!ok) printf("%s\n", gn_last_error(g)->text);
    CHECK_RESULT(gn_step(g), GN_OK);
    for (int side = 0; side < 2; side++) gn_release(pools[side]);
    return ok;
}

TEST(rows_are_bit_for_bit_those_of_a_sequence_that_is_alone) {
    for (int k = 0; k < TEST_COUNT(settings) * 2; k++) {
        const setting *s = &settings[k / 2];
        gn_dtype d = k % 2 ? GN_BF16 : GN_F32;
        size_t row = (size_t)(s->H * s->E) * gn_dtype_bytes(d), bytes = (size_t)s->N * row;
        char *all = malloc(bytes), *one = malloc(bytes);
        values v = values_make(s, d);
        place_pages(s, &v);
        place_rows(s, &v, true);
        bool ok = run_states(s, &v, d, false, all);
        values moved = v; /* the same rows, other pages */
        place_pages(s, &moved);
        for (int64_t i = 0; i < s->N; i++)
            if (moved.sequence[i] >= 0)
                moved.slot[i] =
                    moved.table[moved.sequence[i] * s->M + moved.position[i] / s->S] * s->S + moved.position[i] % s->S;
        ok = ok && run_states(s, &moved, d, true, one);
        for (int64_t i = 0; i < s->N && ok; i++)
            if (v.sequence[i] == 0) CHECK(!memcmp(all + i * (int64_t)row, one + i * (int64_t)row, row));
        free(all);
        free(one);
        values_free(&v);
    }
}

/* Steps of six sequences, one row each, which a product makes: its keys and values are appended and attended in one
   plan, wherever the pages lie that these rows go to. What is not yet appended is no number. */
enum { GROWN = 24, GROWN_K = 256 };

/* So many integers of -1 to 1 over `of`: sums of 256 products are exact in bf16. */
static double *draw_thirds(int64_t n, double of) {
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (double)test_random_int(-1, 1) / of;
    return x;
}

/* Row b of x times column c of w. */
static double product_of(const double *x, const double *w, int64_t b, int64_t c, int64_t columns) {
    double sum = 0;
    for (int64_t k = 0; k < GROWN_K; k++) sum += x[b * GROWN_K + k] * w[k * columns + c];
    return sum;
}

/* One step: what the rows' results should be is in v when it returns. */
static gn_tensor grown_step(const setting *s, values *v, gn_dtype d, gn_tensor weight, const double *w,
                            const gn_tensor *pools) {
    const int64_t columns = (s->H + 2 * s->G) * s->D;
    double *x = draw_thirds(s->N * GROWN_K, 64);
    for (int64_t b = 0; b < s->N; b++)
        for (int64_t c = 0; c < columns; c++) {
            double y = product_of(x, w, b, c, columns);
            int64_t c2 = c - s->H * s->D, at = (b * tokens_of(s) + v->position[b]) * s->G * s->D;
            if (c2 < 0) v->q[b * s->H * s->D + c] = y;
            else if (c2 < s->G * s->D) v->k[at + c2] = y;
            else v->v[at + c2 - s->G * s->D] = y;
        }
    gn_tensor rows = gn_reshape(gn_matmul(tensor_of(d, GN_SHAPE(s->N, GROWN_K), x), weight),
                                GN_SHAPE(s->N, s->H + 2 * s->G, s->D)),
              slots = numbers_of(GN_SHAPE(s->N), v->slot, true), of = numbers_of(GN_SHAPE(s->N), v->sequence, true),
              table = numbers_of(GN_SHAPE(s->B, s->M), v->table, true), next[2];
    for (int64_t side = 0; side < 2; side++)
        next[side] = gn_page_append(pools[side], gn_slice(rows, 1, s->H + side * s->G, s->H + (side + 1) * s->G, 1),
                                    slots, of, table);
    free(x);
    return gn_page_attention(gn_slice(rows, 1, 0, s->H, 1), next[0], next[1], of,
                             numbers_of(GN_SHAPE(s->N), v->position, true), table, &s->d);
}

static void grow_pages(int64_t size, int64_t window, gn_dtype d, double bound) {
    static const int64_t begin[] = { 0, 1, 15, 60, 130, 40 };
    setting s = { .B = 6, .H = 4, .G = 2, .D = 64, .E = 64, .S = size, .N = 6, .d = { .window = window } };
    s.M = (130 + GROWN + size - 1) / size;
    s.P = 6 * s.M;
    for (int64_t b = 0; b < s.B; b++) s.n[b] = begin[b] + GROWN, s.rows[b] = 1;
    values v = values_make(&s, d);
    place_pages(&s, &v);
    for (int64_t b = 0; b < s.B; b++) s.n[b] = begin[b];
    const int64_t columns = (s.H + 2 * s.G) * s.D, n = s.N * s.H * s.E;
    double *w = draw_thirds(GROWN_K * columns, 1), want[64], worst = 0;
    char *got = malloc((size_t)n * 4);
    gn_tensor made = tensor_of(d, GN_SHAPE(GROWN_K, columns), w),
              weight = gn_state(g, d, GN_SHAPE(GROWN_K, columns), NULL, "w"), pools[2];
    gn_assign(weight, made);
    for (int side = 0; side < 2; side++) {
        pools[side] = gn_state(g, d, GN_SHAPE(s.P, s.G, s.S, s.D), NULL, "pool");
        gn_assign(pools[side], pool_of(&s, &v, d, side, NAN));
    }
    CHECK_RESULT(gn_step(g), GN_OK);
    for (int step = 0; step < GROWN; step++) {
        for (int64_t b = 0; b < s.B; b++) {
            const int64_t p = begin[b] + step;
            v.sequence[b] = b, v.position[b] = p, v.slot[b] = v.table[b * s.M + p / size] * size + p % size;
        }
        gn_tensor y = grown_step(&s, &v, d, weight, w, pools);
        if (!CHECK_RESULT(gn_read(y, got, (size_t)n * gn_dtype_bytes(d)), GN_OK)) break;
        CHECK_RESULT(gn_step(g), GN_OK);
        for (int64_t i = 0; i < s.N * s.H; i++) {
            expect(&s, &v, i / s.H, i % s.H, want);
            for (int64_t e = 0; e < s.E; e++) {
                double error = fabs(element(d, got, i * s.E + e) - want[e]);
                if (!(error <= worst)) worst = error;
            }
        }
    }
    if (!(worst <= bound))
        test_fail(__FILE__, __LINE__, "pages of %lld, %s: off by %g", (long long)size, gn_dtype_name(d), worst);
    for (int side = 0; side < 2; side++) gn_release(pools[side]);
    gn_release(weight);
    values_free(&v);
    free(w);
    free(got);
}

TEST(keys_that_a_step_appends_are_attended_in_it) {
    static const int64_t sizes[] = { 64, 16, 6 };
    for (int i = 0; i < TEST_COUNT(sizes); i++)
        for (int window = 0; window < 2; window++) grow_pages(sizes[i], window ? 37 : 0, GN_BF16, 0.01);
    grow_pages(16, 0, GN_F32, 1e-5);
}

/* ---- appends ---- */

enum { P = 5, G = 2, S = 3, D = 4, N = 6, POOL = P * G * S * D };

static gn_tensor rows_of(float first) {
    float rows[N * G * D];
    for (int i = 0; i < N * G * D; i++) rows[i] = first + (float)i;
    return gn_data_copy(g, GN_F32, GN_SHAPE(N, G, D), rows);
}

static gn_tensor ints(gn_shape s, const int64_t *x) { return gn_data_copy(g, GN_I64, s, x); }

/* Places that lie in the memory which is written would change behind their check. */
TEST(appends_whose_slots_lie_in_their_own_pool_write_another_memory) {
    int64_t start[8], got[8], rows[4] = { 100, 101, 102, 103 };
    gn_stats before, after;
    for (int i = 0; i < 8; i++) start[i] = (i + 3) % 8;
    gn_tensor pool = gn_state(g, GN_I64, GN_SHAPE(8, 1, 1, 1), start, "pool");
    gn_get_stats(g, &before);
    gn_tensor slots = gn_slice(gn_reshape(pool, GN_SHAPE(8)), 0, 0, 4, 1); /* 3 4 5 6 */
    gn_page_append(pool, ints(GN_SHAPE(4, 1, 1), rows), slots, GN_NONE, GN_NONE);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(pool, got, sizeof got), GN_OK);
    for (int i = 0; i < 8; i++) CHECK_INT(got[i], i >= 3 && i < 7 ? 100 + i - 3 : start[i]);
    gn_get_stats(g, &after);
    CHECK(after.state_copies > before.state_copies);
    gn_release(pool);
}

TEST(appends_write_their_slots_in_place_and_no_others) {
    gn_stats before, after;
    float start[POOL], got[POOL];
    for (int i = 0; i < POOL; i++) start[i] = (float)-i;
    gn_tensor pool = gn_state(g, GN_F32, GN_SHAPE(P, G, S, D), start, "pool");
    gn_get_stats(g, &before);
    for (int step = 0; step < 20; step++) {
        int64_t slots[N], taken[P * S] = { 0 };
        for (int i = 0; i < N; i++) {
            do slots[i] = test_random_int(-1, P * S - 1);
            while (slots[i] >= 0 && taken[slots[i]]++);
            for (int h = 0; h < G && slots[i] >= 0; h++)
                for (int e = 0; e < D; e++)
                    start[((slots[i] / S * G + h) * S + slots[i] % S) * D + e] =
                        (float)(1000 * step + (i * G + h) * D + e);
        }
        gn_page_append(pool, rows_of(1000.0f * (float)step), ints(GN_SHAPE(N), slots), GN_NONE, GN_NONE);
        CHECK_RESULT(gn_step(g), GN_OK);
        CHECK_RESULT(gn_read(pool, got, sizeof got), GN_OK);
        CHECK(!memcmp(got, start, sizeof got));
    }
    gn_get_stats(g, &after);
    CHECK_INT(after.state_copies, before.state_copies);
    gn_release(pool);
}

/* Several pools by the same slots: what each holds, and that it is put back when the step fails behind them. read: the
   pool whose sum is asked for between, -1: none. Returns the step's kernels. */
enum { POOLS = 11 };

static void fill_pool(float *pool, int which, const int64_t *slots, float base) {
    for (int i = 0; i < N; i++)
        for (int h = 0; h < G && slots[i] >= 0; h++)
            for (int e = 0; e < D; e++)
                pool[((slots[i] / S * G + h) * S + slots[i] % S) * D + e] =
                    base + (float)(100 * which + (i * G + h) * D + e);
}

static uint64_t append_many(gn_tensor *pools, float (*held)[POOL], int n, int read, bool fails, float base) {
    int64_t slots[N] = { 0, -1, 3, 14, 7, 5 }, outside[1] = { fails ? 99 : 0 };
    float got[POOL], sum = 0, picked = 0, want = 0;
    gn_stats before, after;
    gn_get_stats(g, &before);
    gn_tensor at = ints(GN_SHAPE(N), slots), of = GN_NONE;
    for (int i = 0; i < n; i++) {
        gn_tensor next = gn_page_append(pools[i], rows_of(base + (float)(100 * i)), at, GN_NONE, GN_NONE);
        if (i == read) of = gn_sum(next, GN_ALL_AXES, false);
        if (!fails) fill_pool(held[i], i, slots, base);
        for (int k = 0; k < POOL && i == read; k++) want += held[i][k];
    }
    gn_tensor last = gn_index_select(gn_arange(g, GN_F32, 4, 0, 1), 0, ints(GN_SHAPE(1), outside));
    const gn_tensor both[2] = { last, of };
    void *const out[2] = { &picked, &sum };
    const size_t sizes[2] = { 4, 4 };
    CHECK_RESULT(gn_read_many(both, read < 0 ? 1 : 2, out, sizes), fails ? GN_INDEX_OUT_OF_RANGE : GN_OK);
    gn_step(g);
    gn_get_stats(g, &after);
    CHECK(fails || read < 0 || sum == want);
    for (int i = 0; i < n; i++) {
        CHECK_RESULT(gn_read(pools[i], got, sizeof got), GN_OK);
        CHECK(!memcmp(got, held[i], sizeof got));
    }
    gn_step(g);
    return after.kernels_run - before.kernels_run;
}

TEST(appends_by_the_same_slots_run_together) {
    static float held[POOLS][POOL];
    gn_tensor pools[POOLS];
    for (int i = 0; i < POOLS; i++) {
        for (int k = 0; k < POOL; k++) held[i][k] = (float)(-k - i);
        pools[i] = gn_state(g, GN_F32, GN_SHAPE(P, G, S, D), held[i], "pool");
    }
    uint64_t one = append_many(pools, held, 1, -1, false, 5), two = append_many(pools, held, 2, -1, false, 50),
             most = append_many(pools, held, POOLS, -1, false, 500);
    if (getenv("GENIE_TEST_DEVICES") && !strncmp(getenv("GENIE_TEST_DEVICES"), "cuda", 4)) {
        CHECK_INT(two, one);
        CHECK_INT(most, one + 1); /* eight are most in one kernel */
    }
    for (int read = 0; read < 4; read++) append_many(pools, held, 4, read, false, (float)(600 + 7 * read));
    for (int n = 1; n <= POOLS; n += 5) append_many(pools, held, n, n == 6 ? 2 : -1, true, 9000);
    append_many(pools, held, POOLS, POOLS - 1, false, 77);
    for (int i = 0; i < POOLS; i++) gn_release(pools[i]);
}

TEST(pages_are_copied_as_they_were_before) {
    static const int64_t from[] = { 0, 1, 4, 0 }, to[] = { 1, 0, -1, 3 }, slots[N] = { 0, -1, -1, 14, -1, 4 };
    float start[POOL], want[POOL], got[POOL];
    for (int i = 0; i < POOL; i++) start[i] = want[i] = (float)i;
    for (int k = 0; k < 4; k++)
        if (to[k] >= 0) memcpy(want + to[k] * G * S * D, start + from[k] * G * S * D, sizeof(float) * G * S * D);
    for (int i = 0; i < N; i++)
        for (int h = 0; h < G && slots[i] >= 0; h++)
            for (int e = 0; e < D; e++)
                want[((slots[i] / S * G + h) * S + slots[i] % S) * D + e] = (float)(500 + (i * G + h) * D + e);
    gn_tensor pool = gn_state(g, GN_F32, GN_SHAPE(P, G, S, D), start, "pool");
    gn_tensor copied = gn_page_copy(pool, ints(GN_SHAPE(4), from), ints(GN_SHAPE(4), to));
    gn_page_append(copied, rows_of(500), ints(GN_SHAPE(N), slots), GN_NONE, GN_NONE);
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_RESULT(gn_read(pool, got, sizeof got), GN_OK);
    CHECK(!memcmp(got, want, sizeof got));
    gn_release(pool);
}

/* Nothing is written: not by this append, nor by one before it. */
static void refused(gn_tensor pool, const float *held, const int64_t *slots, const char *why) {
    static const int64_t fine[N] = { 14, 13, -1, -1, -1, -1 }, sequences[N] = { 0, 1, 0, 1, -1, 0 },
                         table[2 * 2] = { 3, 0, 1, 2 };
    float got[POOL];
    gn_tensor next = gn_page_append(pool, rows_of(1), ints(GN_SHAPE(N), fine), GN_NONE, GN_NONE);
    next = gn_page_append(next, rows_of(2), ints(GN_SHAPE(N), slots), ints(GN_SHAPE(N), sequences),
                          ints(GN_SHAPE(2, 2), table));
    CHECK_RESULT(gn_read(next, got, sizeof got), why ? GN_INDEX_OUT_OF_RANGE : GN_OK);
    if (why && !strstr(gn_last_error(g)->text, why))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say %s", gn_last_error(g)->text, why);
    gn_step(g);
    CHECK_RESULT(gn_read(pool, got, sizeof got), GN_OK);
    CHECK((memcmp(got, held, sizeof got) != 0) == !why);
}

TEST(slots_that_are_doubled_foreign_or_out_of_range_write_nothing) {
    static const int64_t doubled[N] = { 9, 3, 10, -1, -1, 9 }, foreign[N] = { 0, 2, 1, 3, -1, -1 },
                         high[N] = { 0, 3, P * S, -1, -1, -1 }, low[N] = { 0, 3, -2, -1, -1, -1 },
                         none[N] = { 0, -1, -1, -1, 9, -1 }, good[N] = { 0, 3, 1, 8, -1, 11 };
    float held[POOL];
    for (int i = 0; i < POOL; i++) held[i] = (float)-i;
    gn_tensor pool = gn_state(g, GN_F32, GN_SHAPE(P, G, S, D), held, "pool");
    bool cpu = !getenv("GENIE_TEST_DEVICES");
    refused(pool, held, doubled, cpu ? "that of another row" : "slot");
    refused(pool, held, foreign, cpu ? "not in the table of its sequence 1" : "slot");
    refused(pool, held, none, cpu ? "not in the table of its sequence -1" : "slot");
    refused(pool, held, high, "outside");
    refused(pool, held, low, "outside");
    refused(pool, held, good, NULL);
    gn_release(pool);
}

TEST(positions_and_pages_outside_are_index_out_of_range) {
    const setting *s = &settings[1];
    for (int k = 0; k < 6; k++) {
        values v = values_make(s, GN_F32);
        place_pages(s, &v);
        place_rows(s, &v, false);
        gn_tensor keys = pool_of(s, &v, GN_F32, 0, 0), vals = pool_of(s, &v, GN_F32, 1, 0);
        if (k == 1) v.position[1] = tokens_of(s);
        if (k == 2) v.position[1] = -1;
        if (k == 3) v.table[s->M + 2] = s->P;
        if (k == 4) v.table[s->M + 4] = -1;
        if (k == 5) v.sequence[2] = s->B;
        float *got = malloc((size_t)(s->N * s->H * s->E) * 4);
        CHECK_RESULT(gn_read(attend(s, &v, GN_F32, keys, vals), got, (size_t)(s->N * s->H * s->E) * 4),
                     k ? GN_INDEX_OUT_OF_RANGE : GN_OK);
        gn_step(g);
        free(got);
        values_free(&v);
    }
}

/* ---- gn_kv_pages against a model ---- */

enum { MODEL_PAGES = 24, MODEL_SIZE = 4, MODEL_B = 5, MODEL_TOKENS = 40 };

/* A pool whose elements are the hash of all tokens up to theirs, as keys and values are a function of them. */
typedef struct model {
    gn_kv_pages *p;
    uint64_t pool[MODEL_PAGES * MODEL_SIZE];
    int32_t tokens[MODEL_B][MODEL_TOKENS];
    int64_t n[MODEL_B], before[MODEL_B]; /* -1: not begun; before: when the step began */
    int64_t slots[MODEL_B * MODEL_TOKENS], n_slots;
    uint64_t values[MODEL_B * MODEL_TOKENS];
    bool wrote[MODEL_B];
} model;

static uint64_t hash_of(const int32_t *tokens, int64_t n) {
    uint64_t h = 1469598103934665603ull;
    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 1099511628211ull + 7;
    return h;
}

static void model_append(model *m, int b, const int32_t *tokens, int64_t n) {
    gn_kv_pages_info before = gn_kv_pages_get_info(m->p);
    gn_result r = gn_kv_pages_append(m->p, b, tokens, n, m->slots + m->n_slots);
    if (m->n[b] + n > MODEL_TOKENS) {
        CHECK_RESULT(r, GN_INDEX_OUT_OF_RANGE);
        return;
    }
    if (r == GN_OUT_OF_MEMORY) { /* and nothing has changed */
        gn_kv_pages_info after = gn_kv_pages_get_info(m->p);
        CHECK(!memcmp(&before, &after, sizeof after));
        CHECK(before.free + before.kept < n / MODEL_SIZE + 2);
        return;
    }
    if (!CHECK_RESULT(r, GN_OK)) return;
    for (int64_t i = 0; i < n; i++) {
        m->tokens[b][m->n[b]++] = tokens[i];
        m->values[m->n_slots++] = hash_of(m->tokens[b], m->n[b]);
    }
    m->wrote[b] = m->wrote[b] || n;
}

/* Prompts have few different beginnings and tokens, so that they share. */
static void model_begin(model *m) {
    int32_t tokens[MODEL_TOKENS], sequence;
    int64_t n = test_random_int(1, 20), shared;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = i < 10 && test_random_int(0, 20) ? (int32_t)(i % 3) : (int32_t)test_random_int(0, 1);
    gn_result r = gn_kv_pages_begin(m->p, tokens, n, &sequence, &shared);
    int begun = 0;
    for (int b = 0; b < MODEL_B; b++) begun += m->n[b] >= 0;
    if (begun == MODEL_B) {
        CHECK_RESULT(r, GN_OUT_OF_MEMORY);
        return;
    }
    if (!CHECK_RESULT(r, GN_OK) || !CHECK(sequence >= 0 && sequence < MODEL_B && m->n[sequence] < 0)) return;
    CHECK(shared >= 0 && shared < n);
    m->n[sequence] = m->before[sequence] = shared;
    memcpy(m->tokens[sequence], tokens, (size_t)n * sizeof *tokens);
    model_append(m, sequence, tokens + shared, n - shared);
}

/* The table leads to every token's own value; unwritten ones are still to come. */
static void model_check(model *m) {
    int32_t table[MODEL_B * (MODEL_TOKENS / MODEL_SIZE)];
    int64_t M = MODEL_TOKENS / MODEL_SIZE, pages = 0, tokens = 0, holders[MODEL_PAGES] = { 0 }, used = 0, shared = 0;
    gn_kv_pages_table(m->p, table, M);
    for (int64_t b = 0; b < MODEL_B; b++) {
        CHECK_INT(gn_kv_pages_length(m->p, (int32_t)b), m->n[b]);
        for (int64_t i = 0; i < m->n[b]; i++) {
            int32_t page = table[b * M + i / MODEL_SIZE];
            if (!CHECK(page >= 0 && page < MODEL_PAGES)) return;
            CHECK(m->pool[page * MODEL_SIZE + i % MODEL_SIZE] == hash_of(m->tokens[b], i + 1));
            holders[page] += i % MODEL_SIZE == 0;
            pages += i % MODEL_SIZE == 0;
        }
        tokens += m->n[b] > 0 ? m->n[b] : 0;
    }
    gn_kv_pages_info info = gn_kv_pages_get_info(m->p);
    for (int i = 0; i < MODEL_PAGES; i++) used += holders[i] > 0, shared += holders[i] > 1;
    CHECK_INT(info.used, used); /* memory follows the tokens that exist */
    CHECK_INT(info.shared, shared);
    CHECK_INT(info.used + info.kept + info.free, MODEL_PAGES);
    CHECK_INT(info.tokens, tokens);
    CHECK(info.used <= pages);
}

/* What the step of a program does; a failed one leaves the pool as it was. */
static void model_step(model *m, bool fails) {
    int32_t from[MODEL_B], to[MODEL_B], table[MODEL_B * (MODEL_TOKENS / MODEL_SIZE)];
    int64_t M = MODEL_TOKENS / MODEL_SIZE, copies = gn_kv_pages_copies(m->p, from, to, MODEL_B);
    uint64_t old[MODEL_PAGES * MODEL_SIZE];
    memcpy(old, m->pool, sizeof old);
    CHECK(copies >= 0 && copies <= MODEL_B);
    if (fails) {
        for (int b = 0; b < MODEL_B; b++)
            if (m->n[b] > m->before[b]) {
                CHECK_RESULT(gn_kv_pages_cut(m->p, b, m->before[b]), GN_OK);
                m->n[b] = m->before[b];
            }
    } else {
        gn_kv_pages_table(m->p, table, M);
        for (int64_t i = 0; i < copies; i++)
            memcpy(m->pool + to[i] * MODEL_SIZE, old + from[i] * MODEL_SIZE, MODEL_SIZE * sizeof *old);
        for (int64_t i = 0; i < m->n_slots; i++) {
            if (m->slots[i] < 0) continue;
            int holders = 0;
            for (int64_t k = 0; k < MODEL_B * M; k++)
                holders +=
                    table[k] == m->slots[i] / MODEL_SIZE && m->n[k / M] > k % M * MODEL_SIZE + m->slots[i] % MODEL_SIZE;
            CHECK(holders == 1); /* nobody else's token is written: who shares a page begun holds less of it */
            m->pool[m->slots[i]] = m->values[i];
        }
        gn_kv_pages_step(m->p);
        model_check(m);
    }
    m->n_slots = 0;
    for (int b = 0; b < MODEL_B; b++) m->before[b] = m->n[b], m->wrote[b] = false;
}

/* One thing happens to a sequence. Ended or cut back with tokens that are not written: their slots are dropped. */
static void model_act(model *m) {
    int b = (int)test_random_int(0, MODEL_B - 1), what = (int)test_random_int(0, 9);
    int32_t tokens[6];
    int64_t n = test_random_int(0, 6);
    for (int i = 0; i < 6; i++) tokens[i] = (int32_t)test_random_int(0, 1);
    if (what < 3) model_begin(m);
    else if (m->n[b] < 0) CHECK_RESULT(gn_kv_pages_append(m->p, b, tokens, n, m->slots), GN_BAD_ARGUMENT);
    else if (what < 7) model_append(m, b, tokens, n);
    else if (m->wrote[b]) return;
    else if (what < 9) {
        int64_t length = test_random_int(0, m->n[b]);
        CHECK_RESULT(gn_kv_pages_cut(m->p, b, length), GN_OK);
        m->n[b] = m->before[b] = length;
    } else {
        CHECK_RESULT(gn_kv_pages_end(m->p, b), GN_OK);
        m->n[b] = m->before[b] = -1;
    }
}

TEST(random_histories_of_pages_are_those_of_a_plain_model) {
    for (int k = 0; k < test_rounds(300); k++) {
        static model m;
        gn_kv_pages_desc d = { .pages = MODEL_PAGES,
                               .page_size = MODEL_SIZE,
                               .sequences = MODEL_B,
                               .tokens = MODEL_TOKENS,
                               .keep = k & 1,
                               .alone = k % 5 == 4 };
        memset(&m, 0, sizeof m);
        for (int b = 0; b < MODEL_B; b++) m.n[b] = m.before[b] = -1;
        if (!CHECK_RESULT(gn_kv_pages_open(&d, &m.p), GN_OK)) return;
        for (int step = 0; step < 60; step++) {
            for (int64_t i = test_random_int(1, 5); i > 0; i--) model_act(&m);
            model_step(&m, test_random_int(0, 9) == 0);
        }
        gn_kv_pages_info info = gn_kv_pages_get_info(m.p);
        CHECK(d.alone ? info.reused == 0 && info.copied == 0 : info.reused > 0 && info.copied > 0);
        CHECK(d.keep || info.evicted == 0);
        gn_kv_pages_close(m.p);
    }
}

TEST(pages_of_an_ended_sequence_are_kept_for_its_prefix_until_they_are_needed) {
    gn_kv_pages *p;
    int32_t tokens[64], sequence;
    int64_t slots[64], shared;
    for (int i = 0; i < 64; i++) tokens[i] = i;
    CHECK_RESULT(gn_kv_pages_open(&(gn_kv_pages_desc){ .pages = 4, .sequences = 2, .keep = true }, &p), GN_OK);
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, 40, &sequence, &shared), GN_OK);
    CHECK_INT(shared, 0);
    CHECK_RESULT(gn_kv_pages_append(p, sequence, tokens, 40, slots), GN_OK);
    gn_kv_pages_step(p);
    CHECK_RESULT(gn_kv_pages_end(p, sequence), GN_OK);
    CHECK_INT(gn_kv_pages_get_info(p).kept, 3);
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, 40, &sequence, &shared), GN_OK);
    CHECK_INT(shared, 39);
    CHECK_RESULT(gn_kv_pages_append(p, sequence, tokens + 39, 1, slots), GN_OK);
    CHECK_RESULT(gn_kv_pages_end(p, sequence), GN_OK);
    tokens[0] = 7; /* nothing is shared: all four pages are taken */
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, 64, &sequence, &shared), GN_OK);
    CHECK_INT(shared, 0);
    CHECK_RESULT(gn_kv_pages_append(p, sequence, tokens, 64, slots), GN_OK);
    CHECK_INT(gn_kv_pages_get_info(p).used, 4);
    CHECK_INT(gn_kv_pages_get_info(p).evicted, 2);
    CHECK_RESULT(gn_kv_pages_append(p, sequence, tokens, 1, slots), GN_INDEX_OUT_OF_RANGE);
    gn_kv_pages_close(p);
}

TEST(wrong_arguments_of_pages_are_refused) {
    gn_kv_pages *p;
    int32_t tokens[4] = { 0 }, sequence;
    int64_t slots[4], shared;
    static const gn_kv_pages_desc bad[] = { { .pages = 0, .sequences = 1 },
                                            { .pages = 1 },
                                            { .pages = 1, .sequences = 1, .page_size = -1 },
                                            { .pages = 1, .sequences = 1, .tokens = -1 },
                                            { .pages = INT64_MAX, .sequences = 1 } };
    for (int i = 0; i < TEST_COUNT(bad); i++) CHECK_RESULT(gn_kv_pages_open(&bad[i], &p), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_open(NULL, &p), GN_BAD_ARGUMENT);
    CHECK(p == NULL);
    CHECK_RESULT(gn_kv_pages_open(&(gn_kv_pages_desc){ .pages = INT32_MAX, .page_size = INT32_MAX, .sequences = 1 },
                                  &p),
                 GN_OUT_OF_MEMORY);
    CHECK_RESULT(gn_kv_pages_open(&(gn_kv_pages_desc){ .pages = 2, .page_size = 2, .sequences = 1, .tokens = 3 }, &p),
                 GN_OK);
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, 4, &sequence, &shared), GN_INDEX_OUT_OF_RANGE);
    CHECK_RESULT(gn_kv_pages_begin(p, NULL, 1, &sequence, &shared), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, -1, &sequence, &shared), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_cut(p, 0, 0), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_begin(p, tokens, 0, &sequence, &shared), GN_OK);
    CHECK_RESULT(gn_kv_pages_append(p, 0, tokens, 3, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_append(p, 1, tokens, 3, slots), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_append(p, 0, tokens, 3, slots), GN_OK);
    CHECK_RESULT(gn_kv_pages_cut(p, 0, 4), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_kv_pages_end(p, 0), GN_OK);
    CHECK_RESULT(gn_kv_pages_end(p, 0), GN_BAD_ARGUMENT);
    CHECK_INT(gn_kv_pages_length(p, -1), -1);
    gn_kv_pages_close(p);
    gn_kv_pages_close(NULL);
}

/* ---- caches of 8 bits: the error of keys, of values and of attention is within what genie.h says ---- */

enum { CACHE = 40, PROMPT = 23, KV_HEADS = 2, OF_EACH = 3, KEY = 48, VALUE = 32 };

/* The largest |x| of each row of n. */
static void largest_of_rows(const float *x, int rows, int n, double *out) {
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int i = 0; i < n; i++) out[r] = fmax(out[r], fabs((double)x[r * n + i]));
    }
}

static double quantised_error(gn_quant format, double largest, double x) {
    double of = format == GN_QUANT_INT8 ? largest / 254 : fmax(fabs(x) / 16, largest / (1 << 18));
    return of + 1e-6 * fabs(x);
}

static gn_quantized cache_of(gn_quant format, int64_t width) {
    return (gn_quantized){ .format = format,
                           .data = gn_state(g, format == GN_QUANT_INT8 ? GN_I8 : GN_U8,
                                            GN_SHAPE(1, KV_HEADS, CACHE, width), NULL, "bytes"),
                           .scales = gn_state(g, GN_F32, GN_SHAPE(1, KV_HEADS, CACHE, 1), NULL, "scales") };
}

/* Query t of head h by the formula in f64, and by how much the quantised cache may miss it. */
static void check_query(gn_quant format, const float *q, const float *k, const float *v, int t, const float *got) {
    double most_k[PROMPT], most_v[PROMPT], w[PROMPT], sum = 0, top = -INFINITY, d = 0, scale = 1 / sqrt(KEY);
    largest_of_rows(k, PROMPT, KEY, most_k);
    largest_of_rows(v, PROMPT, VALUE, most_v);
    for (int j = 0; j <= t; j++) {
        double s = 0, off = 0;
        for (int i = 0; i < KEY; i++) {
            double x = (double)k[j * KEY + i];
            s += (double)q[i] * x;
            off += fabs((double)q[i]) * quantised_error(format, most_k[j], x);
        }
        w[j] = s * scale, top = fmax(top, w[j]), d = fmax(d, off * scale);
    }
    for (int j = 0; j <= t; j++) sum += w[j] = exp(w[j] - top);
    for (int e = 0; e < VALUE; e++) {
        double want = 0, off = 0, most = 0;
        for (int j = 0; j <= t; j++) {
            double x = (double)v[j * VALUE + e];
            want += w[j] / sum * x;
            off = fmax(off, quantised_error(format, most_v[j], x)), most = fmax(most, most_v[j]);
        }
        CHECK_NEAR((double)got[e], want, off + (exp(2 * d) - 1) * most + 1e-5);
    }
}

/* A prompt in two appends, attended at once. */
static void check_cache_of(gn_quant format) {
    static float q[KV_HEADS * OF_EACH * PROMPT * KEY], k[KV_HEADS * PROMPT * KEY], v[KV_HEADS * PROMPT * VALUE],
        out[KV_HEADS * OF_EACH * PROMPT * VALUE];
    for (int i = 0; i < TEST_COUNT(q); i++) q[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < TEST_COUNT(k); i++) k[i] = (float)(test_random_real(-1, 1) * pow(10, test_random_real(-2, 0)));
    for (int i = 0; i < TEST_COUNT(v); i++) v[i] = (float)test_random_real(-3, 3);
    gn_quantized keys = cache_of(format, KEY), vals = cache_of(format, VALUE), now[2] = { keys, vals };
    gn_tensor rows[2] = { gn_data(g, GN_F32, GN_SHAPE(1, KV_HEADS, PROMPT, KEY), k),
                          gn_data(g, GN_F32, GN_SHAPE(1, KV_HEADS, PROMPT, VALUE), v) };
    for (int side = 0; side < 2; side++) {
        gn_tensor first = gn_slice(rows[side], 2, 0, 9, 1), rest = gn_slice(rows[side], 2, 9, PROMPT, 1);
        now[side] = gn_kv_append_quantized(now[side], first, gn_scalar(g, GN_I32, 0));
        now[side] = gn_kv_append_quantized(now[side], rest, gn_scalar(g, GN_I32, 9));
    }
    gn_attention_desc desc = { .causal = true, .length = gn_scalar(g, GN_I32, PROMPT) };
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(1, KV_HEADS * OF_EACH, PROMPT, KEY), q);
    if (!CHECK_RESULT(gn_read(gn_attention_quantized(x, now[0], now[1], &desc), out, sizeof out), GN_OK))
        printf("%s\n", gn_last_error(g)->text);
    for (int h = 0; h < KV_HEADS * OF_EACH; h++)
        for (int t = 0; t < PROMPT; t++)
            check_query(format, q + (h * PROMPT + t) * KEY, k + h / OF_EACH * PROMPT * KEY,
                        v + h / OF_EACH * PROMPT * VALUE, t, out + (h * PROMPT + t) * VALUE);
    CHECK_RESULT(gn_step(g), GN_OK);
    desc = (gn_attention_desc){ .causal = true, .length = gn_scalar(g, GN_I32, CACHE + 1) };
    x = gn_data(g, GN_F32, GN_SHAPE(1, KV_HEADS * OF_EACH, PROMPT, KEY), q);
    CHECK_RESULT(gn_read(gn_attention_quantized(x, keys, vals, &desc), out, sizeof out), GN_INDEX_OUT_OF_RANGE);
    desc.causal = false;
    CHECK_RESULT(gn_read(gn_attention_quantized(x, keys, vals, &desc), out, sizeof out), GN_BAD_ARGUMENT);
    gn_step(g);
    gn_tensor all[4] = { keys.data, keys.scales, vals.data, vals.scales };
    for (int i = 0; i < 4; i++) CHECK_RESULT(gn_release(all[i]), GN_OK);
}

TEST(attention_over_a_cache_of_int8_is_within_its_bound) { check_cache_of(GN_QUANT_INT8); }
TEST(attention_over_a_cache_of_fp8_is_within_its_bound) { check_cache_of(GN_QUANT_FP8_E4M3); }

/* ---- batch_invariant: the bits of a token whatever is computed beside it ---- */

enum { TOKENS = 20, WIDTH = 96, HEADS = 3, GROUPS = 1, HEAD = 32, EXPERTS = 3, SEQUENCES = 3, CLASSES = 61 };

typedef struct layer {
    gn_ctx *g;
    gn_dtype d;
    gn_tensor norm, q, k, v, o, expert, head, states[2];
    gn_quantized w;
    void *host[7], *tokens; /* (SEQUENCES,TOKENS,WIDTH) */
} layer;

static gn_tensor constant(layer *l, int at, gn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    l->host[at] = random_bytes(l->d, n, 0.3);
    return gn_weight(l->g, l->d, s, l->host[at], "w");
}

static bool layer_open(layer *l, gn_dtype d, bool invariant, bool pages) {
    const char *devices = getenv("GENIE_TEST_DEVICES");
    l->d = d;
    l->g = gn_open(&(gn_desc){ .devices = devices ? devices : "cpu", .batch_invariant = invariant });
    l->norm = constant(l, 0, GN_SHAPE(WIDTH));
    l->q = constant(l, 1, GN_SHAPE(WIDTH, HEADS * HEAD));
    l->k = constant(l, 2, GN_SHAPE(GROUPS * HEAD, WIDTH));
    l->v = constant(l, 3, GN_SHAPE(WIDTH, GROUPS * HEAD));
    l->expert = constant(l, 5, GN_SHAPE(EXPERTS, HEADS * HEAD, WIDTH));
    l->head = constant(l, 6, GN_SHAPE(WIDTH, CLASSES));
    for (int i = 0; i < 2; i++)
        l->states[i] =
            gn_state(l->g, d, pages ? GN_SHAPE(12, GROUPS, 8, HEAD) : GN_SHAPE(1, GROUPS, 24, HEAD), NULL, "kv");
    return CHECK_RESULT(gn_status(l->g), GN_OK);
}

static void layer_close(layer *l) {
    gn_close(l->g);
    for (int i = 0; i < 7; i++) free(l->host[i]);
}

static gn_tensor heads_of(gn_tensor x, int64_t n, int64_t heads) {
    return gn_permute(gn_reshape(x, GN_SHAPE(1, n, heads, HEAD)), GN_AXES(0, 2, 1, 3));
}

/* n rows, the ith being token position[i] of sequence[i]; their logits to `to`, as (SEQUENCES,TOKENS,CLASSES). */
static bool layer_run(layer *l, int n, const int64_t *sequence, const int64_t *position, bool pages, char *to) {
    size_t bytes = gn_dtype_bytes(l->d), row = WIDTH * bytes;
    char x0[SEQUENCES * TOKENS * WIDTH * 4], out[SEQUENCES * TOKENS * CLASSES * 4];
    int64_t slots[SEQUENCES * TOKENS], table[SEQUENCES * 4], ids[SEQUENCES * TOKENS];
    for (int i = 0; i < n; i++) {
        int64_t at = sequence[i] * TOKENS + position[i];
        memcpy(x0 + (size_t)i * row, (char *)l->tokens + (size_t)at * row, row);
        slots[i] = (sequence[i] * 4 + position[i] / 8) * 8 + position[i] % 8;
        ids[i] = at % EXPERTS;
    }
    for (int i = 0; i < SEQUENCES * 4; i++) table[i] = i;
    gn_tensor x = gn_data_copy(l->g, l->d, GN_SHAPE(n, WIDTH), x0), h = gn_rmsnorm(x, l->norm, 1e-5), y;
    gn_tensor q = gn_linear(h, l->q, GN_NONE), k = gn_matmul(h, gn_transpose(l->k, 0, 1)),
              v = gn_linear(h, l->v, GN_NONE);
    if (pages) {
        gn_tensor of = gn_data_copy(l->g, GN_I64, GN_SHAPE(n), sequence),
                  at = gn_data_copy(l->g, GN_I64, GN_SHAPE(n), position),
                  s = gn_data_copy(l->g, GN_I64, GN_SHAPE(n), slots),
                  t = gn_data_copy(l->g, GN_I64, GN_SHAPE(SEQUENCES, 4), table);
        gn_tensor rows[2] = { gn_reshape(k, GN_SHAPE(n, GROUPS, HEAD)), gn_reshape(v, GN_SHAPE(n, GROUPS, HEAD)) };
        for (int i = 0; i < 2; i++) rows[i] = gn_page_append(l->states[i], rows[i], s, of, t);
        y = gn_page_attention(gn_reshape(q, GN_SHAPE(n, HEADS, HEAD)), rows[0], rows[1], of, at, t, NULL);
    } else {
        gn_tensor first = gn_scalar_i64(l->g, GN_I64, position[0]), end = gn_scalar_i64(l->g, GN_I64, position[0] + n);
        k = gn_kv_append(l->states[0], heads_of(k, n, GROUPS), first);
        v = gn_kv_append(l->states[1], heads_of(v, n, GROUPS), first);
        gn_attention_desc d = { .causal = true, .length = end };
        y = gn_permute(gn_attention(heads_of(q, n, HEADS), k, v, &d), GN_AXES(0, 2, 1, 3));
    }
    y = gn_expert_linear(gn_reshape(y, GN_SHAPE(n, HEADS * HEAD)), l->expert,
                         gn_data_copy(l->g, GN_I64, GN_SHAPE(n), ids), GN_NONE);
    y = gn_layernorm(gn_add(x, y), l->norm, GN_NONE, 1e-5);
    y = gn_add(y, gn_linear_quantized(y, l->w, GN_NONE));
    y = gn_softmax(gn_linear(y, l->head, GN_NONE), -1);
    bool ok = CHECK_RESULT(gn_read(y, out, (size_t)(n * CLASSES) * bytes), GN_OK);
    if (!ok) printf("%s\n", gn_last_error(l->g)->text);
    CHECK_RESULT(gn_step(l->g), GN_OK);
    for (int i = 0; i < n; i++)
        memcpy(to + (size_t)((sequence[i] * TOKENS + position[i]) * CLASSES) * bytes,
               out + (size_t)(i * CLASSES) * bytes, CLASSES * bytes);
    return ok;
}

/* All tokens of the sequences in chunks of `most`; of pages, those of several sequences together, as it comes. */
static bool layer_chunks(layer *l, int64_t most, bool pages, char *to) {
    int64_t done[SEQUENCES] = { 0 }, of[SEQUENCES * TOKENS], at[SEQUENCES * TOKENS];
    for (int64_t left = pages ? SEQUENCES : 1; left;) {
        int n = 0;
        left = 0;
        for (int64_t b = 0; b < (pages ? SEQUENCES : 1); b++) {
            bool now = most == 1 ? n == 0 : test_random_int(0, 1);
            for (int64_t i = 0; now && i < most && done[b] < TOKENS; i++) of[n] = b, at[n++] = done[b]++;
            left += done[b] < TOKENS;
        }
        if (n && !layer_run(l, n, of, at, pages, to)) return false;
    }
    return true;
}

static void check_invariant(gn_dtype d, bool pages) {
    size_t bytes = (size_t)(pages ? SEQUENCES : 1) * TOKENS * CLASSES * gn_dtype_bytes(d);
    layer l = { .d = d };
    char *one = calloc(1, bytes), *other = calloc(1, bytes);
    uint8_t *data = malloc(WIDTH * WIDTH);
    float *scales = malloc(WIDTH * 3 * sizeof *scales);
    for (int i = 0; i < WIDTH * WIDTH; i++) data[i] = (uint8_t)test_random_int(0, 255);
    for (int i = 0; i < WIDTH * 3; i++) scales[i] = (float)test_random_real(0.001, 0.01);
    if (!layer_open(&l, d, true, pages)) printf("%s\n", gn_last_error(l.g)->text);
    l.tokens = random_bytes(d, SEQUENCES * TOKENS * WIDTH, 1);
    l.w = (gn_quantized){ .data = gn_weight(l.g, GN_I8, GN_SHAPE(WIDTH, WIDTH), data, "int8"),
                          .scales = gn_weight(l.g, GN_F32, GN_SHAPE(WIDTH, 3), scales, "scales"),
                          .format = GN_QUANT_INT8 };
    gn_device_info info;
    CHECK_RESULT(gn_get_device(l.g, &info), GN_OK);
    CHECK(strstr(info.identity, "batch invariant") != NULL);
    bool ok = layer_chunks(&l, 1, pages, one);
    for (int i = 0; i < 2 && ok; i++) {
        ok = layer_chunks(&l, i ? 5 : TOKENS, pages, other);
        CHECK(memcmp(one, other, bytes) == 0);
    }
    layer_close(&l);
    free(l.tokens), free(one), free(other), free(data), free(scales);
}

TEST(a_token_has_the_bits_of_any_chunking_of_f32) { check_invariant(GN_F32, false); }
TEST(a_token_has_the_bits_of_any_chunking_of_bf16) { check_invariant(GN_BF16, false); }
TEST(a_token_has_the_bits_of_any_batch_of_f32) { check_invariant(GN_F32, true); }
TEST(a_token_has_the_bits_of_any_batch_of_bf16) { check_invariant(GN_BF16, true); }

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(attention_over_pages_is_the_formula),
        TEST_ENTRY(rows_are_bit_for_bit_those_of_a_sequence_that_is_alone),
        TEST_ENTRY(keys_that_a_step_appends_are_attended_in_it),
        TEST_ENTRY(appends_whose_slots_lie_in_their_own_pool_write_another_memory),
        TEST_ENTRY(appends_write_their_slots_in_place_and_no_others),
        TEST_ENTRY(appends_by_the_same_slots_run_together),
        TEST_ENTRY(pages_are_copied_as_they_were_before),
        TEST_ENTRY(slots_that_are_doubled_foreign_or_out_of_range_write_nothing),
        TEST_ENTRY(positions_and_pages_outside_are_index_out_of_range),
        TEST_ENTRY(random_histories_of_pages_are_those_of_a_plain_model),
        TEST_ENTRY(pages_of_an_ended_sequence_are_kept_for_its_prefix_until_they_are_needed),
        TEST_ENTRY(wrong_arguments_of_pages_are_refused),
        TEST_ENTRY(attention_over_a_cache_of_int8_is_within_its_bound),
        TEST_ENTRY(attention_over_a_cache_of_fp8_is_within_its_bound),
        TEST_ENTRY(a_token_has_the_bits_of_any_chunking_of_f32),
        TEST_ENTRY(a_token_has_the_bits_of_any_chunking_of_bf16),
        TEST_ENTRY(a_token_has_the_bits_of_any_batch_of_f32),
        TEST_ENTRY(a_token_has_the_bits_of_any_batch_of_bf16),
    };
    test_begin(argc, argv);
    const char *devices = getenv("GENIE_TEST_DEVICES");
    g = gn_open(&(gn_desc){ .devices = devices ? devices : "cpu" });
    if (!CHECK_RESULT(gn_status(g), GN_OK)) printf("%s\n", gn_last_error(g)->text);
    test_all(tests, TEST_COUNT(tests));
    gn_close(g);
    return test_end();
}
