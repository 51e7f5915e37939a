/* What a program may ask of the GPU executor, and what its clients share there: sizes whose sums do not fit in 64 bits,
 * ids at the edge, memory, kernels and the compiler's time. Parts are given to the executor as a server gives it those
 * of its clients.
 * What only makes plans runs everywhere; the rest needs a GPU, or tests/cuda_shim.c, with which shim_test.sh runs this.
 *
 * Tier: quick kernels address thread */
#define GENIE_IMPLEMENTATION
#define GENIE_EXT
#include "../genie.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#include "test.h"

/* ---- parts by hand ---- */

enum { MOST_NODES = 700000 };

typedef struct maker {
    gn_part part;
    gn_part_node *nodes;
    uint32_t *ins, *args, *outs;
    int64_t *attrs, *dims;
    gn_part_update *updates;
} maker;

static maker *maker_new(void) {
    maker *m = calloc(1, sizeof *m);
    m->nodes = calloc(MOST_NODES, sizeof *m->nodes);
    m->ins = calloc(3 * MOST_NODES, sizeof *m->ins);
    m->args = calloc(MOST_NODES, sizeof *m->args);
    m->outs = calloc(MOST_NODES, sizeof *m->outs);
    m->attrs = calloc(4 * MOST_NODES, sizeof *m->attrs);
    m->dims = calloc(4 * MOST_NODES, sizeof *m->dims);
    m->updates = calloc(MOST_NODES, sizeof *m->updates);
    return m;
}

static void maker_free(maker *m) {
    void *all[] = { m->nodes, m->ins, m->args, m->outs, m->attrs, m->dims, m->updates, m };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static const gn_part *made(maker *m) {
    m->part.nodes = m->nodes, m->part.ins = m->ins, m->part.attrs = m->attrs, m->part.dims = m->dims;
    m->part.args = m->args, m->part.outs = m->outs, m->part.updates = m->updates;
    return &m->part;
}

static uint16_t op_of_name(const char *name) {
    static const char *last; /* a part is often of one op */
    static uint16_t found;
    gn_op_info row;
    if (last == name) return found;
    last = name;
    for (int i = 0; i < gn_op_count(); i++)
        if (gn_get_op(i, &row) == GN_OK && strcmp(row.name, name) == 0) found = (uint16_t)(i + 1);
    return found;
}

static uint32_t add_node(maker *m, const char *op, gn_dtype d, gn_shape shape) {
    gn_part_node *n = &m->nodes[m->part.n_nodes];
    *n = (gn_part_node){ .op = op ? op_of_name(op) : 0,
                         .dtype = (uint8_t)d,
                         .rank = (uint8_t)shape.rank,
                         .ins = m->part.n_ins,
                         .attrs = m->part.n_attrs,
                         .dims = m->part.n_dims };
    for (int i = 0; i < shape.rank; i++) m->dims[m->part.n_dims++] = shape.dims[i];
    return m->part.n_nodes++;
}

static void add_input(maker *m, uint32_t node, uint32_t in) {
    m->ins[m->part.n_ins++] = in;
    m->nodes[node].n_ins++;
}
static void add_word(maker *m, uint32_t node, int64_t word) {
    m->attrs[m->part.n_attrs++] = word;
    m->nodes[node].n_attrs++;
}
static void add_out(maker *m, uint32_t node) { m->outs[m->part.n_outs++] = node; }

static uint32_t add_full(maker *m, gn_dtype d, gn_shape shape, double value) {
    int64_t word;
    memcpy(&word, &value, sizeof word);
    uint32_t n = add_node(m, "full", d, shape);
    add_word(m, n, d);
    add_word(m, n, word);
    for (int i = 0; i < shape.rank; i++) add_word(m, n, shape.dims[i]);
    return n;
}

static uint32_t add_broadcast(maker *m, uint32_t of, gn_shape shape) {
    uint32_t n = add_node(m, "broadcast", (gn_dtype)m->nodes[of].dtype, shape);
    add_input(m, n, of);
    for (int i = 0; i < shape.rank; i++) add_word(m, n, shape.dims[i]);
    return n;
}

static uint32_t add_leaf(maker *m, gn_leaf_kind kind, gn_dtype d, gn_shape shape, uint32_t slot) {
    uint32_t n = add_node(m, NULL, d, shape);
    m->nodes[n].leaf = (uint8_t)kind;
    m->nodes[n].slot = slot;
    m->nodes[n].gen = 1;
    if (kind == GN_LEAF_DATA) {
        m->nodes[n].arg = m->part.n_args;
        m->args[m->part.n_args++] = n;
    }
    return n;
}

/* ---- executors ---- */

static gn_stats stats;

static gn_exec open_exec(const char *tenant, uint64_t limit) {
    const char *name = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0";
    gn_exec x = { NULL, NULL };
    gn_fault f = { 0 };
    gn__paying = (gn__payer){ NULL, NULL, false };
    if (limit) gn__paying.device = gn__account_open(NULL, "the session", "--memory", limit);
    if (limit) gn__paying.host = gn__account_open(NULL, "the session", "--memory", limit);
    gn_exec_desc d = { name, 1, 0, false, &stats, NULL, NULL, NULL, tenant, false };
    if (!CHECK_RESULT(gn__driver->open(&d, &x, &f), GN_OK)) printf("  %s\n", f.text);
    return x;
}

static void close_exec(gn_exec x) {
    gn_account *all[2] = { gn__paying.host, gn__paying.device };
    if (x.i) x.i->close(x.self);
    gn__paying = (gn__payer){ NULL, NULL, false };
    for (int i = 0; i < 2; i++) {
        if (all[i] && i) CHECK_INT(gn__account_held(all[i]), 0); /* kernels stay on the account of who had them made */
        if (all[i]) gn__account_close(all[i]);
    }
}

static gn_result make_plan(gn_exec x, const gn_part *part, gn_fault *f) {
    void *plan = NULL;
    gn_result r = x.i->plan_make(x.self, part, &plan, f);
    if (r == GN_OK) x.i->plan_destroy(x.self, plan);
    return r;
}

/* ---- sizes ---- */

/* Each kind: one of `n` that take `bytes` each in a region of the plan of its own. */
typedef enum region_kind { OUTS, ARGUMENTS, NEW_VERSIONS, SAVED, REGIONS } region_kind;
static const char *const region_names[REGIONS] = { "outputs", "arguments", "new versions", "saved rows" };

/* A result whose kernel may fail. */
static void add_division(maker *m, uint32_t x) {
    uint32_t by = add_node(m, "floor_divide", GN_I32, GN_SCALAR);
    add_input(m, by, x);
    add_input(m, by, x);
    add_out(m, by);
}

static void fill_region(maker *m, region_kind kind, uint32_t n, int64_t bytes) {
    gn_shape shape = GN_SHAPE(1, 1, bytes, 1);
    uint32_t one = add_full(m, GN_U8, GN_SHAPE(1, 1, 1, 1), 1), many = add_broadcast(m, one, shape);
    uint32_t at = kind == SAVED ? add_full(m, GN_I32, GN_SCALAR, 0) : 0, two = add_full(m, GN_I32, GN_SCALAR, 2);
    if (kind != SAVED) add_division(m, two); /* new versions wait until the end of the run */
    uint32_t cache = kind == SAVED ? add_leaf(m, GN_LEAF_STATE, GN_U8, shape, 0) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kind == OUTS) add_out(m, add_broadcast(m, one, shape));
        if (kind == ARGUMENTS) add_leaf(m, GN_LEAF_DATA, GN_U8, shape, 0);
        if (kind == NEW_VERSIONS) {
            add_leaf(m, GN_LEAF_STATE, GN_U8, shape, i);
            m->updates[m->part.n_updates++] = (gn_part_update){ i, 1, add_broadcast(m, one, shape) };
        }
        if (kind == SAVED) {
            uint32_t y = add_node(m, "kv_append", GN_U8, shape);
            add_input(m, y, cache);
            add_input(m, y, many);
            add_input(m, y, at);
            cache = y;
        }
    }
    if (kind == SAVED) m->updates[m->part.n_updates++] = (gn_part_update){ 0, 1, cache };
    if (kind == SAVED) add_division(m, two); /* behind which what was appended is put back */
}

/* A session may hold any number of bytes: what is refused does not fit in 64 bits, or cannot be addressed. */
static void plans_whose_bytes_wrap_are_refused(void) {
    static const struct {
        uint32_t n;
        int64_t bytes;
        gn_result want;
    } cases[] = {
        { 3, 1000, GN_OK },
        { 1 << 17, (int64_t)1 << 47, GN_LIMIT },
        { (1 << 17) + 1, (int64_t)1 << 47, GN_LIMIT },
        { 1 << 16, (int64_t)1 << 47, GN_LIMIT },
    };
    gn_exec x = open_exec("", 0);
    for (int kind = 0; kind < REGIONS && x.i; kind++) {
        for (int i = 0; i < TEST_COUNT(cases); i++) {
            maker *m = maker_new();
            gn_fault f = { 0 };
            fill_region(m, (region_kind)kind, cases[i].n, cases[i].bytes);
            gn_result r = make_plan(x, made(m), &f);
            if (r != cases[i].want)
                test_fail(__FILE__, __LINE__, "%u %s of %lld bytes: %s (%s)", cases[i].n, region_names[kind],
                          (long long)cases[i].bytes, gn_result_name(r), f.text);
            maker_free(m);
        }
    }
    if (x.i) x.i->close(x.self);
}

/* What does not fit in the session is refused before it is made. */
static void plans_that_need_more_than_the_session_may_hold_are_refused(void) {
    gn_exec x = open_exec("", 4 << 20);
    for (int large = 0; large < 2 && x.i; large++) {
        maker *m = maker_new();
        gn_fault f = { 0 };
        add_out(m, add_full(m, GN_U8, GN_SHAPE(large ? 8 << 20 : 1 << 19), 1));
        CHECK_RESULT(make_plan(x, made(m), &f), large ? GN_LIMIT : GN_OK);
        maker_free(m);
    }
    gn_slot_desc slot = {
        .slot = (1 << 20) - 1, .gen = 1, .kind = GN_LEAF_STATE, .dtype = GN_U8, .shape = GN_SHAPE(1), .bytes = 1
    };
    gn_fault f = { 0 };
    if (x.i) CHECK(x.i->slot_put(x.self, &slot, &f) != GN_OK); /* the table before it is 96 MiB */
    close_exec(x);
}

/* Each append in place has a word behind the error words, and these go through a ring of 16 MiB. */
static void plans_with_too_many_error_words_are_refused(void) {
    gn_exec x = open_exec("", 0);
    maker *m = maker_new();
    gn_fault f = { 0 };
    fill_region(m, SAVED, 270000, 1);
    if (x.i) CHECK_RESULT(make_plan(x, made(m), &f), GN_LIMIT);
    maker_free(m);
    if (x.i) x.i->close(x.self);
}

/* Results that show states which are written anew: each is looked up, not searched for. Seconds. */
static double make_states(gn_exec x, uint32_t n) {
    maker *m = maker_new();
    gn_fault f = { 0 };
    gn_shape shape = GN_SHAPE(4);
    uint32_t one = add_full(m, GN_I32, GN_SHAPE(1), 1), by = add_node(m, "floor_divide", GN_I32, GN_SHAPE(1));
    add_input(m, by, one);
    add_input(m, by, one); /* may fail: new versions are copied at the end of the run */
    add_out(m, by);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t leaf = add_leaf(m, GN_LEAF_STATE, GN_I32, shape, i);
        add_out(m, leaf);
        m->updates[m->part.n_updates++] = (gn_part_update){ i, 1, add_broadcast(m, one, shape) };
    }
    clock_t from = clock();
    CHECK_RESULT(make_plan(x, made(m), &f), GN_OK);
    double s = (double)(clock() - from) / CLOCKS_PER_SEC;
    maker_free(m);
    printf("  %u states: %.3f s\n", n, s);
    return s;
}

static void plans_of_many_updates_are_made_in_time_that_grows_with_their_number(void) {
    gn_exec x = open_exec("", 0);
    REQUIRE(x.i != NULL);
    double few = make_states(x, 10000), many = make_states(x, 100000);
    CHECK(many < 20 * few + 0.2);
    x.i->close(x.self);
}

static void plans_with_too_many_kernels_are_refused(void) {
    gn_exec x = open_exec("", 0);
    maker *m = maker_new();
    gn_fault f = { 0 };
    for (int i = 1; i <= 5000; i++) add_out(m, add_full(m, GN_F32, GN_SHAPE(i), 1));
    if (x.i && CHECK_RESULT(make_plan(x, made(m), &f), GN_LIMIT)) CHECK(strstr(f.text, "kernels") != NULL);
    maker_free(m);
    if (x.i) x.i->close(x.self);
}

/* ---- ids ---- */

static struct {
    long (*live)(void), (*modules)(void), (*calls)(void), (*cleared)(void), (*trims)(void);
    void (*fail)(long at, int code);
} shim;

static long shim_count(long (*count)(void)) { return count ? count() : 0; }

/* A step that keeps its results under these ids. */
static gn_result keep_some(gn_exec x, void *plan, const uint64_t ids[2], gn_fault *f) {
    float got[64];
    uint64_t ticket;
    gn_out outs[3] = { { NULL, 0, ids[0] }, { NULL, 0, ids[1] }, { got, sizeof got, 0 } };
    gn_result r = x.i->submit(x.self, plan, NULL, outs, &ticket, f);
    return r == GN_OK ? x.i->wait(x.self, ticket, f) : r;
}

static void memory_of_a_device_that_no_one_uses_goes_back(void) {
    const char *order = getenv("GENIE_SHIM_ORDER");
    if (!shim.trims || !order || !atoi(order)) {
        test_skip("only tests/cuda_shim.c counts it, in drawn orders (GENIE_SHIM_ORDER=1)");
        return;
    }
    gn_exec x = open_exec("", 0), y = open_exec("", 0);
    REQUIRE(x.i && y.i);
    const long before = shim.trims();
    x.i->close(x.self);
    CHECK(shim.trims() == before);
    y.i->close(y.self);
    CHECK(shim.trims() == before + 1);
}

static void kept_ids_at_the_edge_leave_nothing(void) {
    static const uint64_t ids[] = { 0, 1, 2, UINT64_MAX - 2, UINT64_MAX - 1, UINT64_MAX };
    long before = shim_count(shim.live);
    for (int fails = -1; fails < (shim.fail ? 24 : 0); fails++) {
        for (int i = 0; i < TEST_COUNT(ids); i += fails < 0 ? 1 : 4) {
            gn_exec x = open_exec("", 0);
            maker *m = maker_new();
            gn_fault f = { 0 };
            void *plan = NULL;
            REQUIRE(x.i != NULL);
            uint32_t a = add_full(m, GN_F32, GN_SHAPE(64), 1), b = add_full(m, GN_F32, GN_SHAPE(3000), 2);
            add_out(m, a);
            add_out(m, b);
            add_out(m, a);
            CHECK_RESULT(x.i->plan_make(x.self, made(m), &plan, &f), GN_OK);
            if (fails >= 0 && shim.fail) shim.fail(fails, 2);
            const uint64_t pair[2] = { i ? ids[i - 1] : 0, ids[i] };
            gn_result r = plan ? keep_some(x, plan, pair, &f) : GN_OK;
            if (fails >= 0 && shim.fail) shim.fail(-1, 0);
            if (fails < 0 && r != (ids[i] == UINT64_MAX ? GN_BAD_ARGUMENT : GN_OK))
                test_fail(__FILE__, __LINE__, "id %llu: %s", (unsigned long long)ids[i], gn_result_name(r));
            if (plan) x.i->plan_destroy(x.self, plan);
            x.i->close(x.self);
            maker_free(m);
            if (shim_count(shim.live) != before) {
                test_fail(__FILE__, __LINE__, "id %llu, call %d fails: %ld things of the driver are left",
                          (unsigned long long)ids[i], fails, shim_count(shim.live) - before);
                return;
            }
        }
    }
}

/* ---- what clients share ---- */

/* x + number on 64 floats, with its result. GN_OK when it is right. */
static gn_result run_one(gn_exec x, double number, int64_t n) {
    maker *m = maker_new();
    gn_fault f = { 0 };
    void *plan = NULL;
    float *got = calloc((size_t)n, sizeof *got);
    uint64_t ticket = 0;
    uint32_t a = add_full(m, GN_F32, GN_SHAPE(n), number), y = add_node(m, "neg", GN_F32, GN_SHAPE(n));
    add_input(m, y, a);
    add_out(m, y);
    gn_out out = { got, (size_t)n * sizeof *got, 0 };
    gn_result r = x.i->plan_make(x.self, made(m), &plan, &f);
    if (r == GN_OK) r = x.i->submit(x.self, plan, NULL, &out, &ticket, &f);
    if (r == GN_OK) r = x.i->wait(x.self, ticket, &f);
    for (int64_t i = 0; i < n && r == GN_OK; i++)
        if ((double)got[i] != -number) r = GN_INTERNAL;
    if (plan) x.i->plan_destroy(x.self, plan);
    maker_free(m);
    free(got);
    return r;
}

/* With all hashes equal the texts alone tell kernels apart, in memory and on disk. */
static void kernels_of_equal_hashes_are_told_apart_by_their_text(void) {
    setenv("GENIE_CUDA_HASH", "0", 1);
    for (int kept = 0; kept < 2; kept++) {
        setenv("GENIE_CUDA_KERNELS", kept ? "100" : "0", 1); /* 0: each comes from the disk, or from the compiler */
        gn_exec x = open_exec("", 0);
        for (int i = 0; i < 6 && x.i; i++) CHECK_RESULT(run_one(x, 3 + i % 3, 64), GN_OK);
        if (x.i) x.i->close(x.self);
    }
    unsetenv("GENIE_CUDA_HASH");
    unsetenv("GENIE_CUDA_KERNELS");
}

static void kernels_and_programs_go_by_least_recent_use(void) {
    setenv("GENIE_CUDA_KERNELS", "4", 1);
    gn_exec x = open_exec("", 0);
    for (int i = 0; i < 12 && x.i; i++) CHECK_RESULT(run_one(x, 1, 100 + i), GN_OK);
    CHECK(shim_count(shim.modules) <= 6);             /* one of them holds what proves the device */
    if (x.i) CHECK_RESULT(run_one(x, 1, 100), GN_OK); /* from the disk again */
    if (x.i) x.i->close(x.self);
    unsetenv("GENIE_CUDA_KERNELS");
}

static void memory_is_cleared_where_several_tenants_take_it(void) {
    long from = shim_count(shim.cleared);
    gn_exec a = open_exec("", 0), b;
    REQUIRE(a.i != NULL);
    CHECK_RESULT(run_one(a, 1, 64), GN_OK);
    if (shim.cleared) CHECK_INT(shim.cleared(), from);
    b = open_exec("another", 0);
    REQUIRE(b.i != NULL);
    CHECK_RESULT(run_one(b, 1, 64), GN_OK);
    if (shim.cleared) CHECK(shim.cleared() > from);
    from = shim_count(shim.cleared);
    CHECK_RESULT(run_one(a, 1, 100000), GN_OK); /* from now on for all */
    if (shim.cleared) CHECK(shim.cleared() > from);
    a.i->close(a.self);
    b.i->close(b.self);
}

static void a_tenant_has_so_many_seconds_of_the_compiler(void) {
    gn_result r = GN_OK;
    int n = 0;
    setenv("GENIE_CUDA_COMPILE_SECONDS", "1", 1);
    gn_exec greedy = open_exec("greedy", 0), other = open_exec("other", 0);
    REQUIRE(greedy.i != NULL && other.i != NULL);
    for (; n < 200 && r == GN_OK; n++) r = run_one(greedy, 1, 5000 + n);
    CHECK_INT(r, GN_LIMIT);
    CHECK(n > 1);
    CHECK_RESULT(run_one(greedy, 1, 5000), GN_OK); /* what is compiled may be used */
    CHECK_RESULT(run_one(other, 1, 6000), GN_OK);
    greedy.i->close(greedy.self);
    other.i->close(other.self);
    unsetenv("GENIE_CUDA_COMPILE_SECONDS");
}

static atomic_bool compiles;

static void *compile_much(void *exec) {
    CHECK_RESULT(run_one(*(gn_exec *)exec, 2, 7001), GN_OK);
    atomic_store(&compiles, false);
    return NULL;
}

static void others_make_plans_while_one_compiles(void) {
    gn_exec x = open_exec("", 0), y = open_exec("", 0);
    pthread_t thread;
    uint64_t from, longest = 0;
    REQUIRE(x.i != NULL && y.i != NULL);
    CHECK_RESULT(run_one(y, 2, 64), GN_OK);
    atomic_store(&compiles, true);
    REQUIRE(pthread_create(&thread, NULL, compile_much, &x) == 0);
    maker *m = maker_new();
    uint32_t a = add_full(m, GN_F32, GN_SHAPE(64), 2), z = add_node(m, "neg", GN_F32, GN_SHAPE(64));
    gn_fault f = { 0 };
    add_input(m, z, a);
    add_out(m, z);
    const uint64_t begin = from = gn_now_us();
    while (atomic_load(&compiles)) {
        CHECK_RESULT(make_plan(y, made(m), &f), GN_OK);
        const uint64_t to = gn_now_us();
        longest = to - from > longest ? to - from : longest;
        from = to;
    }
    pthread_join(thread, NULL);
    maker_free(m);
    /* behind a lock one of them takes as long as the compiler */
    if (from - begin > 30000) CHECK(longest * 2 < from - begin);
    else printf("  the compiler took %llu us: too few to tell\n", (unsigned long long)(from - begin));
    x.i->close(x.self);
    y.i->close(y.self);
}

/* ---- runs that are ended, and what they and slots hold ---- */

typedef struct ending {
    gn_flag *flag;
    int after_ms;
} ending;

static void *end_later(void *arg) {
    const ending *e = arg;
    usleep((useconds_t)e->after_ms * 1000);
    e->flag->why = GN_CANCELLED;
    return NULL;
}

/* A state that becomes the end of a chain of kernels, all alike; out: its value before. */
static const gn_part *many_kernels(maker *m, int n, gn_shape shape) {
    uint32_t state = add_leaf(m, GN_LEAF_STATE, GN_F32, shape, 0), x = state;
    for (int i = 0; i < n; i++) {
        uint32_t y = add_node(m, "cumsum", GN_F32, shape);
        add_input(m, y, x);
        add_word(m, y, 0);
        x = y;
    }
    if (n) m->updates[m->part.n_updates++] = (gn_part_update){ 0, 1, x };
    else add_out(m, state);
    return made(m);
}

/* From another thread, before the next kernel is launched. The state is as it was, and the executor goes on. On a GPU
   kernels are launched ahead of those that run: what is launched then ends first. */
static void a_run_of_many_kernels_ends_when_it_is_told_to(void) {
    const gn_shape shape = shim.live ? GN_SHAPE(16) : GN_SHAPE(1 << 22);
    const int n = shim.live ? 60000 : 20000;
    gn_flag flag = { 0 };
    gn_exec_desc d = { .device = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0",
                       .threads = 1,
                       .stats = &stats,
                       .cancel = &flag,
                       .tenant = "" };
    gn_exec x = { NULL, NULL };
    gn_fault f = { 0 };
    void *many = NULL, *look = NULL;
    uint64_t ticket = 0;
    float *value = calloc((size_t)shape.dims[0], sizeof *value);
    pthread_t thread;
    REQUIRE(value && gn__driver->open(&d, &x, &f) == GN_OK);
    value[0] = 3;
    gn_slot_desc slot = { .slot = 0,
                          .gen = 1,
                          .kind = GN_LEAF_STATE,
                          .dtype = GN_F32,
                          .shape = shape,
                          .host = value,
                          .bytes = (size_t)shape.dims[0] * sizeof *value };
    CHECK_RESULT(x.i->slot_put(x.self, &slot, &f), GN_OK);
    maker *m = maker_new(), *l = maker_new();
    CHECK_RESULT(x.i->plan_make(x.self, many_kernels(m, n, shape), &many, &f), GN_OK);
    CHECK_RESULT(x.i->plan_make(x.self, many_kernels(l, 0, shape), &look, &f), GN_OK);
    REQUIRE(many && look);
    ending e = { &flag, 200 };
    uint64_t from = gn_now_us();
    REQUIRE(pthread_create(&thread, NULL, end_later, &e) == 0);
    gn_result r = x.i->submit(x.self, many, NULL, NULL, &ticket, &f);
    pthread_join(thread, NULL);
    printf("  %s after %.2f s: %s\n", gn_result_name(r), (double)(gn_now_us() - from) * 1e-6, f.text);
    CHECK_RESULT(r, GN_CANCELLED);
    CHECK(strstr(f.text, "kernel") != NULL);
    CHECK(gn_now_us() - from < 10000000);
    flag.why = GN_OK;
    for (int64_t i = 0; i < shape.dims[0]; i++) value[i] = -1;
    gn_out out = { value, slot.bytes, 0 };
    CHECK_RESULT(x.i->submit(x.self, look, NULL, &out, &ticket, &f), GN_OK);
    CHECK_RESULT(x.i->wait(x.self, ticket, &f), GN_OK);
    CHECK(value[0] == 3 && value[1] == 0);
    CHECK_RESULT(run_one(x, 1, 64), GN_OK);
    x.i->plan_destroy(x.self, many);
    x.i->plan_destroy(x.self, look);
    x.i->close(x.self);
    maker_free(m);
    maker_free(l);
    free(value);
}

/* Slots, blocks of plans and kept values, each to the session, its tenant and all: whichever has the least room
   refuses, by name. */
static void device_memory_is_charged_to_session_tenant_and_all(void) {
    enum { MIB = 1 << 20 };
    static const char *const flags[3] = { "--total-memory", "--tenant-memory", "--memory" };
    for (int least = 0; least < 3; least++) {
        gn_account *all[3];
        gn_exec x = { NULL, NULL };
        gn_fault f = { 0 };
        gn_exec_desc d = { .device = getenv("GENIE_TEST_DEVICES") ? getenv("GENIE_TEST_DEVICES") : "cuda:0",
                           .threads = 1,
                           .stats = &stats,
                           .tenant = "" };
        for (int i = 0; i < 3; i++)
            all[i] = gn__account_open(i ? all[i - 1] : NULL, "it", flags[i], i == least ? 24 * MIB : 256 * MIB);
        gn__paying = (gn__payer){ NULL, all[2], false };
        REQUIRE(gn__driver->open(&d, &x, &f) == GN_OK);
        uint64_t held = gn__account_held(all[2]), after;
        gn_slot_desc slot = {
            .slot = 1, .gen = 1, .kind = GN_LEAF_STATE, .dtype = GN_U8, .shape = GN_SHAPE(4 * MIB), .bytes = 4 * MIB
        };
        CHECK_RESULT(x.i->slot_put(x.self, &slot, &f), GN_OK);
        for (int i = 0; i < 3; i++) CHECK(gn__account_held(all[i]) >= held + 4 * MIB);
        maker *m = maker_new(), *large = maker_new();
        void *plan = NULL;
        uint64_t ticket = 0;
        add_out(m, add_full(m, GN_U8, GN_SHAPE(2 * MIB), 1));
        gn_out out = { NULL, 0, 1 };
        CHECK_RESULT(x.i->plan_make(x.self, made(m), &plan, &f), GN_OK);
        if (plan) CHECK_RESULT(x.i->submit(x.self, plan, NULL, &out, &ticket, &f), GN_OK);
        CHECK_RESULT(x.i->wait(x.self, ticket, &f), GN_OK);
        after = gn__account_held(all[0]);
        CHECK(after >= held + 8 * MIB); /* the state, the block, the value */
        x.i->values_release(x.self, 2);
        CHECK(gn__account_held(all[0]) <= after - 2 * MIB);
        add_out(large, add_full(large, GN_U8, GN_SHAPE(30 * MIB), 1));
        CHECK_RESULT(make_plan(x, made(large), &f), GN_LIMIT);
        CHECK(strstr(f.text, flags[least]) != NULL);
        slot = (gn_slot_desc){
            .slot = 2, .gen = 1, .kind = GN_LEAF_STATE, .dtype = GN_U8, .shape = GN_SHAPE(30 * MIB), .bytes = 30 * MIB
        };
        CHECK_RESULT(x.i->slot_put(x.self, &slot, &f), GN_LIMIT);
        CHECK(strstr(f.text, flags[least]) != NULL);
        after = gn__account_held(all[0]);
        CHECK_RESULT(x.i->slot_drop(x.self, 1, 1), GN_OK);
        CHECK(gn__account_held(all[0]) <= after);
        if (plan) x.i->plan_destroy(x.self, plan);
        x.i->close(x.self);
        gn__paying = (gn__payer){ NULL, NULL, false };
        for (int i = 2; i >= 0; i--) {
            CHECK_INT(gn__account_held(all[i]), 0);
            gn__account_close(all[i]);
        }
        maker_free(m);
        maker_free(large);
    }
}

/* 2^31 elements to each of 1024 blocks: counted in 32 bits the places of what is found would begin 16 GiB before the
   result. */
static void nonzero_counts_past_32_bits(void) {
    gn_exec x = shim.live ? (gn_exec){ NULL, NULL } : open_exec("", 0);
    maker *m = maker_new();
    gn_fault f = { 0 };
    void *plan = NULL;
    int64_t got[4] = { 0 };
    uint64_t ticket = 0;
    gn_out out = { got, sizeof got, 0 };
    uint32_t many = add_broadcast(m, add_full(m, GN_U8, GN_SHAPE(1), 1), GN_SHAPE((int64_t)1 << 41)),
             places = add_node(m, "nonzero", GN_I64, GN_SHAPE(4, 1));
    add_input(m, places, many);
    add_word(m, places, 4);
    add_out(m, places);
    if (!x.i) test_skip("2^41 elements need a GPU");
    else if (CHECK_RESULT(x.i->plan_make(x.self, made(m), &plan, &f), GN_OK) &&
             CHECK_RESULT(x.i->submit(x.self, plan, NULL, &out, &ticket, &f), GN_OK)) {
        CHECK_RESULT(x.i->wait(x.self, ticket, &f), GN_INDEX_OUT_OF_RANGE);
        CHECK_STR(f.text, "more than 4 elements are not 0");
    }
    if (plan) x.i->plan_destroy(x.self, plan);
    if (x.i) x.i->close(x.self);
    maker_free(m);
}

/* ---- the cache's folder ---- */

static int files_in(const char *folder) {
    char command[300];
    snprintf(command, sizeof command, "exit $(ls '%s' | wc -l)", folder);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* mode 0: a link to a good folder. Compiles something new with it; how many files were written. */
static int files_written(const char *root, const char *name, mode_t mode, uid_t owner, int n) {
    char folder[200], other[200];
    snprintf(folder, sizeof folder, "%s/%s", root, name);
    snprintf(other, sizeof other, "%s/behind_%s", root, name);
    CHECK(mkdir(mode ? folder : other, 0700) == 0);
    if (mode) CHECK(chmod(folder, mode) == 0);
    else CHECK(symlink(other, folder) == 0);
    if (owner != geteuid()) CHECK(chown(folder, owner, getegid()) == 0);
    setenv("GENIE_CACHE", folder, 1);
    gn_exec x = open_exec("", 0);
    if (x.i) CHECK_RESULT(run_one(x, 1, n), GN_OK);
    if (x.i) x.i->close(x.self);
    return files_in(mode ? folder : other);
}

static void only_a_folder_of_ones_own_keeps_kernels(void) {
    char root[] = "/tmp/genie-test-XXXXXX", command[100],
         *before = getenv("GENIE_CACHE") ? strdup(getenv("GENIE_CACHE")) : NULL;
    REQUIRE(mkdtemp(root) != NULL);
    setenv("GENIE_CUDA_KERNELS", "0", 1);
    CHECK(files_written(root, "good", 0700, geteuid(), 8001) > 0);
    CHECK_INT(files_written(root, "of_a_group", 0770, geteuid(), 8002), 0);
    CHECK_INT(files_written(root, "of_all", 0777, geteuid(), 8003), 0);
    CHECK_INT(files_written(root, "link", 0, geteuid(), 8004), 0);
    if (geteuid() == 0) CHECK_INT(files_written(root, "of_another", 0700, 12345, 8005), 0);
    unsetenv("GENIE_CUDA_KERNELS");
    if (before) setenv("GENIE_CACHE", before, 1);
    else unsetenv("GENIE_CACHE");
    free(before);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
}

/* ---- the way of a part to the device ---- */

static const gn_part *given; /* what the device was asked to plan last */
static const gn_exec_i *real_table;
static const gn_driver_i *real_driver;

static gn_result watched_plan_make(void *self, const gn_part *part, void **out_plan, gn_fault *f) {
    given = part;
    return real_table->plan_make(self, part, out_plan, f);
}

static gn_result watched_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    static gn_exec_i table;
    gn_result r = real_driver->open(d, out, f);
    if (r != GN_OK) return r;
    real_table = out->i;
    table = *real_table;
    table.plan_make = watched_plan_make;
    out->i = &table;
    return GN_OK;
}

TEST(a_part_is_given_to_the_gpu_as_it_is) {
    static const gn_driver_i watched = { .prefix = "cuda", .open = watched_open };
    float x[64] = { 1, 2, 3 };
    real_driver = gn__driver;
    gn_register_driver(&watched);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cuda:0", .threads = 1 });
    REQUIRE(CHECK_RESULT(gn_status(g), GN_OK));
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(8, 8), x, "s"), d = gn_data(g, GN_F32, GN_SHAPE(8, 8), x);
    gn_assign(s, gn_softmax(gn_add(gn_matmul(s, d), s), 1));
    CHECK_RESULT(gn_step(g), GN_OK);
    CHECK_INT(g->n_plans, 1);
    CHECK(given && g->n_plans && given == g->plans[0].part);
    gn_close(g);
    gn_register_driver(real_driver);
}

int main(int argc, char **argv) {
    static const test_entry plans[] = {
        TEST_ENTRY(plans_whose_bytes_wrap_are_refused),
        TEST_ENTRY(plans_that_need_more_than_the_session_may_hold_are_refused),
        TEST_ENTRY(plans_with_too_many_error_words_are_refused),
        TEST_ENTRY(plans_with_too_many_kernels_are_refused),
        TEST_ENTRY(plans_of_many_updates_are_made_in_time_that_grows_with_their_number),
        TEST_ENTRY(a_part_is_given_to_the_gpu_as_it_is),
    };
    static const test_entry runs[] = {
        TEST_ENTRY(memory_is_cleared_where_several_tenants_take_it),
        TEST_ENTRY(memory_of_a_device_that_no_one_uses_goes_back),
        TEST_ENTRY(kept_ids_at_the_edge_leave_nothing),
        TEST_ENTRY(kernels_of_equal_hashes_are_told_apart_by_their_text),
        TEST_ENTRY(kernels_and_programs_go_by_least_recent_use),
        TEST_ENTRY(others_make_plans_while_one_compiles),
        TEST_ENTRY(a_tenant_has_so_many_seconds_of_the_compiler),
        TEST_ENTRY(only_a_folder_of_ones_own_keeps_kernels),
        TEST_ENTRY(a_run_of_many_kernels_ends_when_it_is_told_to),
        TEST_ENTRY(device_memory_is_charged_to_session_tenant_and_all),
        TEST_ENTRY(nonzero_counts_past_32_bits),
    };
    const char *place = getenv("GENIE_LIBCUDA");
    void *library = place ? dlopen(place, RTLD_NOW | RTLD_LOCAL) : NULL;
    char line[400] = "";
    test_begin(argc, argv);
    if (library) {
        *(void **)&shim.live = dlsym(library, "shim_live");
        *(void **)&shim.modules = dlsym(library, "shim_modules");
        *(void **)&shim.cleared = dlsym(library, "shim_cleared");
        *(void **)&shim.trims = dlsym(library, "shim_trims");
        *(void **)&shim.fail = dlsym(library, "shim_fail");
    }
    bool here = gn__driver && gn__driver->list(0, line, sizeof line) > 0 && !strstr(line, "absent");
    for (int i = 0; i < TEST_COUNT(runs) && !here; i++) {
        if (!test_open(runs[i].name)) continue;
        test_skip(line);
        test_close();
    }
    if (here) test_all(runs, TEST_COUNT(runs));
    setenv("GENIE_CUDA_COMPILE_ONLY", "sm_90", 1);
    test_all(plans, TEST_COUNT(plans));
    return test_end();
}
