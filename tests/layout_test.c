/* Where the results of a plan lie: offsets in one block from lifetimes, each in the first hole that is large enough.
 * Parts are made by hand, larger and odder than programs build them.
 *
 * Tier: quick address thread */
#define _GNU_SOURCE
#define GENIE_EXT
#include "../genie.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test.h"

/* A part of one kind of op, for the layout alone: shapes are what the test says, not what the op would infer. */
typedef struct made {
    gn_part part;
    gn_part_node *nodes;
    uint32_t *ins, *outs;
    int64_t *dims;
} made;

static uint16_t op_named(const char *name) {
    gn_op_info info;
    for (int i = 0; gn_get_op(i, &info) == GN_OK; i++)
        if (strcmp(info.name, name) == 0) return (uint16_t)(i + 1);
    return 0;
}

static made make(uint32_t n, uint32_t most_ins) {
    made m;
    memset(&m, 0, sizeof m);
    m.nodes = calloc(n, sizeof *m.nodes);
    m.ins = calloc((size_t)n * most_ins, sizeof *m.ins);
    m.outs = calloc(n, sizeof *m.outs);
    m.dims = calloc(n, sizeof *m.dims);
    if (!m.nodes || !m.ins || !m.outs || !m.dims) exit(2);
    m.part = (gn_part){ .nodes = m.nodes, .ins = m.ins, .outs = m.outs, .dims = m.dims };
    return m;
}

static void unmake(made *m) {
    free(m->nodes);
    free(m->ins);
    free(m->outs);
    free(m->dims);
}

/* A vector of `length` bytes; its inputs follow by add_input. */
static uint32_t add_node(made *m, uint16_t op, gn_leaf_kind leaf, int64_t length) {
    uint32_t i = m->part.n_nodes++;
    m->nodes[i] = (gn_part_node){
        .op = op, .dtype = GN_U8, .leaf = (uint8_t)leaf, .rank = 1, .ins = m->part.n_ins, .dims = m->part.n_dims
    };
    m->dims[m->part.n_dims++] = length;
    return i;
}

static void add_input(made *m, uint32_t from) {
    m->ins[m->part.n_ins++] = from;
    m->nodes[m->part.n_nodes - 1].n_ins++;
}

static void add_out(made *m, uint32_t node) { m->outs[m->part.n_outs++] = node; }

/* ---- the same, by lists that are searched from their beginning ---- */

typedef struct hole {
    size_t at, bytes;
} hole;

static size_t plain_take(hole *list, size_t *n, size_t *end, size_t bytes) {
    for (size_t i = 0; i < *n; i++) {
        size_t at = list[i].at;
        if (list[i].bytes >= bytes) {
            list[i].at += bytes;
            list[i].bytes -= bytes;
            if (!list[i].bytes) memmove(list + i, list + i + 1, (--*n - i) * sizeof *list);
            return at;
        }
    }
    bool last = *n && list[*n - 1].at + list[*n - 1].bytes == *end;
    size_t at = last ? list[--*n].at : *end;
    *end = at + bytes;
    return at;
}

static void plain_give(hole *list, size_t *n, size_t at, size_t bytes) {
    size_t i = 0;
    while (i < *n && list[i].at < at) i++;
    memmove(list + i + 1, list + i, (*n - i) * sizeof *list);
    list[i] = (hole){ at, bytes };
    ++*n;
    for (size_t k = i > 0 ? i : 1; k <= i + 1 && k < *n;) {
        if (list[k - 1].at + list[k - 1].bytes == list[k].at) {
            list[k - 1].bytes += list[k].bytes;
            memmove(list + k, list + k + 1, (--*n - k) * sizeof *list);
            i = k - 1;
        } else {
            k++;
        }
    }
}

TEST(every_result_lies_in_the_first_hole_that_holds_it) {
    const uint32_t n = 600;
    uint16_t sum = op_named("cumsum");
    for (int round = 0; round < 40; round++) {
        made m = make(n, 2);
        gn_layout l;
        hole list[1200];
        size_t holes = 0, end = 0, sizes[600];
        for (uint32_t i = 0; i < n; i++) {
            add_node(&m, sum, GN_LEAF_NONE,
                     test_random_int(0, 9) == 0 ? 0 : test_random_int(1, test_random_int(1, 2000)));
            sizes[i] = ((size_t)m.dims[i] + 63) / 64 * 64;
            for (int64_t k = i ? test_random_int(0, 2) : 0; k > 0; k--)
                add_input(&m, (uint32_t)test_random_int(i > 80 ? i - 80 : 0, i - 1));
        }
        REQUIRE(gn_layout_make(&m.part, true, NULL, &l, NULL) == GN_OK);
        for (uint32_t i = 0; i < n; i++) {
            CHECK_INT(l.lay[i].offset, plain_take(list, &holes, &end, sizes[i]));
            for (uint32_t k = 0; k <= i; k++)
                if ((l.lay[k].last > k ? l.lay[k].last : k) == i && sizes[k])
                    plain_give(list, &holes, l.lay[k].offset, sizes[k]);
        }
        CHECK_INT(l.block_bytes, end);
        gn_layout_deinit(&l);
        unmake(&m);
    }
}

static double seconds_to_lay_out(const made *m, const char *what) {
    struct timespec a, b;
    gn_layout l;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    CHECK_RESULT(gn_layout_make(&m->part, true, NULL, &l, NULL), GN_OK);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    gn_layout_deinit(&l);
    double s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    printf("  %s: %u nodes are laid out in %.3f s\n", what, m->part.n_nodes, s);
    return s;
}

/* Every second of n / 2 small results dies one by one; each time a larger one, which fits nowhere, is made and
   stays. */
static double many_holes(uint32_t n) {
    made m = make(n, 2);
    uint16_t sum = op_named("cumsum");
    for (uint32_t i = 0; i < n / 2; i++) add_node(&m, sum, GN_LEAF_NONE, 64);
    for (uint32_t i = 0; i < n / 2; i++) {
        add_node(&m, sum, GN_LEAF_NONE, 128);
        add_input(&m, i % 2 ? n / 2 + i - 1 : i);
    }
    for (uint32_t i = 0; i < n; i++)
        if (i >= n / 2 || i % 2) add_out(&m, i);
    double s = seconds_to_lay_out(&m, "holes");
    unmake(&m);
    return s;
}

/* Each of n / 2 states takes rows of one tensor. */
static double many_appends(uint32_t n) {
    made m = make(n, 3);
    uint16_t append = op_named("kv_append"), state = op_named("state");
    gn_part_update *updates = calloc(n, sizeof *updates);
    uint32_t rows = add_node(&m, op_named("data"), GN_LEAF_DATA, 64);
    if (!updates) exit(2);
    for (uint32_t i = 0; i < n / 2 - 1; i++) {
        uint32_t leaf = add_node(&m, state, GN_LEAF_STATE, 64);
        m.nodes[leaf].slot = i;
        updates[i] = (gn_part_update){ i, 1, add_node(&m, append, GN_LEAF_NONE, 64) };
        add_input(&m, leaf);
        add_input(&m, rows);
        add_input(&m, rows);
    }
    m.part.updates = updates;
    m.part.n_updates = n / 2 - 1;
    double s = seconds_to_lay_out(&m, "appends");
    free(updates);
    unmake(&m);
    return s;
}

/* One state to which rows are appended n times; each version is said to become the state's, or the last alone. */
static double one_chain(uint32_t n, bool all) {
    made m = make(n + 2, 3);
    uint16_t append = op_named("kv_append"), state = op_named("state");
    gn_part_update *updates = calloc(n, sizeof *updates);
    uint32_t rows = add_node(&m, op_named("data"), GN_LEAF_DATA, 64), last = add_node(&m, state, GN_LEAF_STATE, 64);
    if (!updates) exit(2);
    m.part.updates = updates;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t y = add_node(&m, append, GN_LEAF_NONE, 64);
        add_input(&m, last);
        add_input(&m, rows);
        add_input(&m, rows);
        last = y;
        if (all || i + 1 == n) updates[m.part.n_updates++] = (gn_part_update){ 0, 1, y };
    }
    double s = seconds_to_lay_out(&m, all ? "versions of one state" : "appends to one state");
    free(updates);
    unmake(&m);
    return s;
}

/* Ten times the nodes take ten times as long, and the logarithm: a square would be a hundred times. */
TEST(half_a_million_nodes_are_laid_out_in_time_that_grows_with_their_number) {
    double few = many_holes(50000), many = many_holes(500000);
    CHECK(many < 30 * few + 0.2);
    few = many_appends(20000);
    many = many_appends(200000);
    CHECK(many < 30 * few + 0.2);
    for (int all = 0; all < 2; all++) {
        few = one_chain(30000, all);
        many = one_chain(300000, all);
        CHECK(many < 30 * few + 0.2);
    }
}

/* Appends to one state: in place up to the first that an older version outlives, each update by itself. */
TEST(a_chain_of_appends_is_in_place_while_no_older_version_is_read) {
    static const struct {
        uint32_t updated[3], n_updates, read_at;
        gn_update_how how[3];
    } cases[] = {
        { { 9 }, 1, 0, { GN_UPDATE_INPLACE } },
        { { 9 }, 1, 5, { GN_UPDATE_SWAP } },                       /* version 5 is read after version 6 */
        { { 4, 9 }, 2, 0, { GN_UPDATE_INPLACE, GN_UPDATE_SWAP } }, /* version 4 lives on */
        { { 9, 4 }, 2, 0, { GN_UPDATE_SWAP, GN_UPDATE_INPLACE } },
        { { 4, 4, 9 }, 3, 0, { GN_UPDATE_INPLACE, GN_UPDATE_INPLACE, GN_UPDATE_SWAP } },
    };
    for (int c = 0; c < TEST_COUNT(cases); c++) {
        made m = make(20, 3);
        gn_part_update updates[3];
        gn_layout l;
        uint32_t rows = add_node(&m, op_named("data"), GN_LEAF_DATA, 64), versions[10];
        versions[0] = add_node(&m, op_named("state"), GN_LEAF_STATE, 64);
        for (uint32_t i = 1; i < 10; i++) {
            versions[i] = add_node(&m, op_named("kv_append"), GN_LEAF_NONE, 64);
            add_input(&m, versions[i - 1]);
            add_input(&m, rows);
            add_input(&m, rows);
        }
        if (cases[c].read_at) {
            add_node(&m, op_named("cumsum"), GN_LEAF_NONE, 64);
            add_input(&m, versions[cases[c].read_at]);
        }
        for (uint32_t i = 0; i < cases[c].n_updates; i++)
            updates[i] = (gn_part_update){ 0, 1, versions[cases[c].updated[i]] };
        m.part.updates = updates;
        m.part.n_updates = cases[c].n_updates;
        REQUIRE(gn_layout_make(&m.part, true, NULL, &l, NULL) == GN_OK);
        for (uint32_t i = 0; i < cases[c].n_updates; i++) {
            CHECK_INT(l.update_how[i], cases[c].how[i]);
            for (uint32_t k = 1; cases[c].how[i] == GN_UPDATE_INPLACE && k <= cases[c].updated[i]; k++) {
                CHECK_INT(l.lay[versions[k]].place, GN_PLACE_INPLACE);
                CHECK_INT(l.lay[versions[k]].own, versions[0]);
            }
        }
        gn_layout_deinit(&l);
        unmake(&m);
    }
}

/* ---- a flag that ends it ---- */

typedef struct setter {
    gn_flag *flag;
    int after_us;
    atomic_bool *begun;
} setter;

static void *set_later(void *arg) {
    setter *s = arg;
    while (!atomic_load(s->begun)) { }
    usleep((useconds_t)s->after_us);
    __atomic_store_n(&s->flag->why, GN_CANCELLED, __ATOMIC_RELEASE);
    return NULL;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A stage of planning; what it makes is freed again. *out_empty: it left nothing. */
typedef gn_result (*stage_fn)(const gn_part *part, const gn_flag *cancel, bool *out_empty, gn_fault *f);

/* Wherever it is: a fifth of the time further each time. */
static void check_ends(const char *what, stage_fn run, const gn_part *p) {
    bool empty;
    double whole = seconds_now();
    REQUIRE(run(p, NULL, &empty, NULL) == GN_OK);
    whole = seconds_now() - whole;
    for (int part = 0; part < 5; part++) {
        gn_flag flag = { part ? 0 : GN_LIMIT };
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        atomic_bool begun = false;
        setter s = { &flag, (int)(whole * 1e6 * part / 6), &begun };
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, set_later, &s) == 0);
        double begin = seconds_now();
        if (part) atomic_store(&begun, true);
        gn_result r = run(p, &flag, &empty, &f);
        double took = seconds_now() - begin;
        atomic_store(&begun, true);
        pthread_join(thread, NULL);
        printf("  %s of %.3f s ended after %.3f, set after %.3f: %s\n", what, whole, took, part ? whole * part / 6 : 0,
               gn_result_name(r));
        /* another process may have made `whole` long: then it can end before the flag is seen */
        CHECK(r == (part ? GN_CANCELLED : GN_LIMIT) || (part > 1 && r == GN_OK && took < whole * part / 6 + 0.02));
        CHECK(!part || took < whole * (part + 2) / 6 + 0.1);
        CHECK(part || took < whole / 2 + 0.1);
        CHECK(r == GN_OK || (empty && f.result == r && f.text[0]));
    }
}

static gn_result lay_out(const gn_part *part, const gn_flag *cancel, bool *out_empty, gn_fault *f) {
    gn_layout l;
    gn_result r = gn_layout_make(part, true, cancel, &l, f);
    *out_empty = l.lay == NULL;
    if (r == GN_OK) gn_layout_deinit(&l);
    return r;
}

static gn_result understand(const gn_part *part, const gn_flag *cancel, bool *out_empty, gn_fault *f) {
    gn_meaning m;
    gn_result r = gn_meaning_make(part, 0, cancel, &m, f);
    *out_empty = !m.nodes && !m.edges && !m.groups && !m.members;
    gn_meaning_deinit(&m);
    return r;
}

static gn_meaning understood;

static gn_result place(const gn_part *part, const gn_flag *cancel, bool *out_empty, gn_fault *f) {
    gn_cluster_device d[3] = { { .name = "" } };
    gn_cluster_link links[16];
    for (int i = 0; i < 16; i++) links[i] = (gn_cluster_link){ 1e-6, 1e10 };
    for (int i = 0; i < 3; i++)
        d[i] = (gn_cluster_device){ .flops_per_s = { 1e9, 1e9, 1e9, 1e9 }, .bytes_per_s = 1e9, .launch_s = 1e-6 };
    gn_schedule s;
    gn_result r =
        gn_schedule_make(part, &understood, &(gn_cluster){ 3, d, links }, GN_LEAST_LATENCY, NULL, cancel, &s, f);
    *out_empty = !s.device && !s.nodes && !s.segments && !s.transfers;
    gn_schedule_deinit(&s);
    return r;
}

TEST(a_layout_ends_soon_after_its_flag_is_set) {
    const uint32_t n = 1000000;
    made m = make(n, 2);
    uint16_t sum = op_named("cumsum"), add = op_named("add");
    for (uint32_t i = 0; i < n; i++) {
        bool adds = i % 7 && i > 1;
        add_node(&m, adds ? add : sum, GN_LEAF_NONE, 64);
        for (uint32_t k = 0; k < 2 && adds; k++) add_input(&m, i - 1 - k);
    }
    check_ends("a layout", lay_out, &m.part);
    unmake(&m);
}

/* Walks of recognisers go from one sum to many before it. */
TEST(meaning_and_schedule_end_soon_after_their_flag_is_set) {
    const uint32_t n = 150000;
    const uint32_t args[2] = { 0, 1 };
    made m = make(n, 2);
    uint16_t data = op_named("data"), add = op_named("add"), exp = op_named("exp");
    for (uint32_t i = 0; i < n; i++) {
        add_node(&m, i < 2 ? data : i % 3 ? add : exp, i < 2 ? GN_LEAF_DATA : GN_LEAF_NONE, 64);
        m.nodes[i].dtype = GN_F32;
        m.nodes[i].arg = i < 2 ? i : 0;
        for (uint32_t k = 0; i > 1 && k < (i % 3 ? 2u : 1u); k++) add_input(&m, i - 1 - k);
    }
    m.part.n_args = 2;
    m.part.args = args;
    m.outs[m.part.n_outs++] = n - 1;
    REQUIRE(gn_meaning_make(&m.part, 0, NULL, &understood, NULL) == GN_OK);
    check_ends("meaning", understand, &m.part);
    check_ends("a schedule", place, &m.part);
    gn_meaning_deinit(&understood);
    unmake(&m);
}

/* 2^17 results of 2^47 bytes each are 2^64: the sum must not come round to 0. */
TEST(results_that_are_more_than_can_be_addressed_are_a_limit) {
    const uint32_t counts[] = { 1 << 16, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 1 << 18 };
    uint16_t sum = op_named("cumsum");
    for (int c = 0; c < TEST_COUNT(counts); c++) {
        made m = make(counts[c], 1);
        gn_layout l;
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        for (uint32_t i = 0; i < counts[c]; i++) add_out(&m, add_node(&m, sum, GN_LEAF_NONE, (int64_t)1 << 47));
        CHECK_RESULT(gn_layout_make(&m.part, true, NULL, &l, &f), GN_LIMIT);
        CHECK(strstr(f.text, "addressed") != NULL);
        unmake(&m);
    }
}

/* A tensor has at most 2^47 bytes, on a host of 32 bits at most 2^31 - 1. */
TEST(tensors_of_more_bytes_than_a_host_has_addresses_are_refused) {
    const int64_t most = SIZE_MAX > UINT32_MAX ? (int64_t)1 << 47 : INT32_MAX;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    for (int64_t size = 1; size <= 8; size *= 2) {
        gn_dtype dtype = size == 1 ? GN_U8 : size == 2 ? GN_I16 : size == 4 ? GN_F32 : GN_F64;
        gn_info info;
        CHECK_RESULT(gn_describe(gn_full(g, dtype, GN_SHAPE(most / size), 1), &info), GN_OK);
        CHECK(info.bytes == (uint64_t)(most / size * size));
        CHECK_RESULT(gn_describe(gn_full(g, dtype, GN_SHAPE(most / size + 1), 1), &info), GN_BAD_SHAPE);
        CHECK_RESULT(gn_describe(gn_full(g, dtype, GN_SHAPE(1 << 20, 1 << 20, 1 << 20), 1), &info), GN_BAD_SHAPE);
        CHECK_RESULT(
            gn_describe(gn_full(g, dtype, GN_SHAPE(65536, SIZE_MAX > UINT32_MAX ? (int64_t)1 << 32 : 65536), 1), &info),
            GN_BAD_SHAPE);
        CHECK_RESULT(gn_describe(gn_full(g, dtype, GN_SHAPE(0, most, most), 1), &info), GN_BAD_SHAPE);
    }
    gn_close(g);
}

TEST(sizes_saturate) {
    CHECK(gn_size_add(UINT64_MAX - 1, 1) == UINT64_MAX && gn_size_add(UINT64_MAX, 1) == GN_SIZE_FULL &&
          gn_size_add(GN_SIZE_FULL, GN_SIZE_FULL) == GN_SIZE_FULL);
    CHECK(gn_size_mul((uint64_t)1 << 32, (uint64_t)1 << 31) == (uint64_t)1 << 63 &&
          gn_size_mul((uint64_t)1 << 32, (uint64_t)1 << 32) == GN_SIZE_FULL);
    CHECK(gn_size_mul(0, GN_SIZE_FULL) == 0 && gn_size_mul(GN_SIZE_FULL, 1) == GN_SIZE_FULL &&
          gn_size_mul(3, UINT64_MAX / 3) == UINT64_MAX / 3 * 3);
    CHECK(gn_size_align(0, 64) == 0 && gn_size_align(1, 64) == 64 && gn_size_align(64, 64) == 64 &&
          gn_size_align(UINT64_MAX - 62, 64) == GN_SIZE_FULL);
    CHECK(gn_size_fits(0) && gn_size_fits((uint64_t)PTRDIFF_MAX) && !gn_size_fits((uint64_t)PTRDIFF_MAX + 1) &&
          !gn_size_fits(GN_SIZE_FULL));
}

/* Scratch that an allocator hands back to the system after each product is faulted in, page by page, by the next. */
TEST(products_step_by_step_take_no_new_pages_of_the_system) {
#if defined(__GLIBC__)
    enum { ROWS = 64, SIDE = 2048, STEPS = 20 };
    if (TEST_SANITIZED || sizeof(void *) < 8) {
        test_skip(TEST_SANITIZED ? "a sanitizer's allocator gives pages back"
                                 : "with 32 bits large blocks are given back");
        return;
    }
    float *w = calloc((size_t)SIDE * SIDE, sizeof *w), *x = calloc((size_t)ROWS * SIDE, sizeof *x);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 2 });
    REQUIRE(w && x);
    gn_tensor right = gn_weight(g, GN_F32, GN_SHAPE(SIDE, SIDE), w, "w");
    struct rusage before, after;
    for (int i = -3; i < STEPS; i++) {
        if (i == 0) getrusage(RUSAGE_SELF, &before);
        gn_tensor y = gn_matmul(gn_data(g, GN_F32, GN_SHAPE(ROWS, SIDE), x), right);
        CHECK_RESULT(gn_read(y, x, (size_t)ROWS * SIDE * sizeof *x), GN_OK);
        gn_step(g);
    }
    getrusage(RUSAGE_SELF, &after);
    long pages = after.ru_minflt - before.ru_minflt;
    if (pages >= 20 * STEPS) printf("%ld pages in %d steps\n", pages, STEPS);
    CHECK(pages < 20 * STEPS);
    gn_close(g);
    free(w);
    free(x);
#else
    test_skip("of this allocator only");
#endif
}

/* Values that steps keep and let go lie where the last step's lay, each right and apart from the others. Over 32 MiB
   glibc's allocator takes new pages each time. */
TEST(values_kept_step_by_step_take_no_new_pages_of_the_system) {
    enum { N = 9 << 20, STEPS = 4, KEPT = 3 };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    float *out = malloc(N * sizeof *out);
    REQUIRE(out);
    memset(out, 0, N * sizeof *out);
    gn_tensor x = gn_state(g, GN_F32, GN_SHAPE(N), out, "x"), row = gn_arange(g, GN_F32, N, 0, 1);
    gn_assign(x, row);
    gn_step(g);
    struct rusage before, after;
    for (int i = -3; i < STEPS; i++) {
        if (i == 0) getrusage(RUSAGE_SELF, &before);
        gn_tensor y[KEPT] = { gn_add_c(x, i), gn_neg(x), gn_add_c(x, i) };
        CHECK_RESULT(gn_realize(y, KEPT), GN_OK);
        gn_tensor bad = gn_gather(gn_mul_c(y[0], 3), 0, gn_reshape(gn_scalar(g, GN_I32, N), GN_SHAPE(1)));
        CHECK_RESULT(gn_realize(&bad, 1), GN_INDEX_OUT_OF_RANGE);
        gn_tensor z = gn_sub(gn_add(y[0], y[1]), y[2]);
        CHECK_RESULT(gn_read(z, out, N * sizeof *out), GN_OK);
        int wrong = 0;
        for (int k = 0; k < N; k += 257) wrong += out[k] != -(float)k;
        CHECK(wrong == 0);
        gn_step(g);
    }
    getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_minflt - before.ru_minflt < 64 * STEPS);
    gn_close(g);
    free(out);
}

/* Results that are reshapes of one kernel's lie where they are wanted; two of one kernel's are still two values, and a
   part of it is a value of its own. */
TEST(reshapes_of_one_result_are_values_of_their_own) {
    enum { ROWS = 24, COLUMNS = 64, ALL = ROWS * COLUMNS };
    static float in[ALL], out[4][ALL], direct[2][ALL];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (int i = 0; i < ALL; i++) in[i] = (float)((i * 37) % 101) * 0.05f;
    gn_tensor x = gn_state(g, GN_F32, GN_SHAPE(ROWS, COLUMNS), in, "x");
    for (int turn = 0; turn < 3; turn++) {
        gn_tensor y = gn_softmax(x, 1), flat = gn_reshape(y, GN_SHAPE(ALL)),
                  tall = gn_reshape(y, GN_SHAPE(COLUMNS, ROWS)), part = gn_slice(flat, 0, COLUMNS, 2 * COLUMNS, 1),
                  all[4] = { flat, y, tall, part };
        CHECK_RESULT(gn_realize(all + turn, 4 - turn), GN_OK);
        for (int i = 0; i < 4; i++) CHECK_RESULT(gn_read(all[i], out[i], sizeof *out / (i == 3 ? ROWS : 1)), GN_OK);
        CHECK(memcmp(out[0], out[1], sizeof *out) == 0 && memcmp(out[0], out[2], sizeof *out) == 0);
        CHECK(memcmp(out[0] + COLUMNS, out[3], COLUMNS * sizeof **out) == 0);
        CHECK(fabs(out[0][0] - out[0][COLUMNS]) < 1 && out[0][0] > 0 && out[0][ALL - 1] < 1);
        gn_step(g);
    }
    gn_tensor y = gn_softmax(x, 1);
    CHECK_RESULT(gn_read(gn_reshape(y, GN_SHAPE(ALL)), direct[0], sizeof *direct), GN_OK);
    CHECK_RESULT(gn_read(gn_softmax(x, 1), direct[1], sizeof *direct), GN_OK);
    CHECK(memcmp(direct[0], direct[1], sizeof *direct) == 0 && memcmp(direct[0], out[0], sizeof *direct) == 0);
    gn_close(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(every_result_lies_in_the_first_hole_that_holds_it),
        TEST_ENTRY(half_a_million_nodes_are_laid_out_in_time_that_grows_with_their_number),
        TEST_ENTRY(a_chain_of_appends_is_in_place_while_no_older_version_is_read),
        TEST_ENTRY(a_layout_ends_soon_after_its_flag_is_set),
        TEST_ENTRY(meaning_and_schedule_end_soon_after_their_flag_is_set),
        TEST_ENTRY(results_that_are_more_than_can_be_addressed_are_a_limit),
        TEST_ENTRY(tensors_of_more_bytes_than_a_host_has_addresses_are_refused),
        TEST_ENTRY(products_step_by_step_take_no_new_pages_of_the_system),
        TEST_ENTRY(values_kept_step_by_step_take_no_new_pages_of_the_system),
        TEST_ENTRY(sizes_saturate),
        TEST_ENTRY(reshapes_of_one_result_are_values_of_their_own),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
