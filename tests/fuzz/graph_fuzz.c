/* Parts as they come from a peer: rebuilt with every type inferred, laid out in memory, made into plans of every
 * executor, and run where that is little work. The GPU's has tests/cuda_shim.c as its driver ($GENIE_LIBCUDA), with
 * kernels that compute nothing: it plans, sizes, allocates, copies and launches, for one of several architectures. The
 * first byte says whether the rest is a part as on the wire (even) or a program that makes one (odd), the second which
 * outputs are wanted and kept. */
#include "fuzz.h"
#include "graph_program.h"

enum { GRAPH_WORK = 1 << 22, GRAPH_PAIRS = 512 }; /* elements touched by a run; nodes of which every pair is compared */

/* Elements that a run touches, about: more than enough where it is wrong. */
static uint64_t graph_work(const gn_part *p) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        gn__type t = gn__part_type(p, i);
        uint64_t work = (uint64_t)gn__count(&t.shape), product = 1;
        for (uint32_t k = 0; k < n->n_ins; k++) {
            t = gn__part_type(p, p->ins[n->ins + k]);
            work = gn_size_add(work, (uint64_t)gn__count(&t.shape));
            product = gn_size_mul(product, GN__MAX((uint64_t)gn__count(&t.shape), 1u));
        }
        bool multiplies = n->op == GN_OP_MATMUL || n->op == GN_OP_LINEAR || gn__is_attention(n->op);
        all = gn_size_add(all, multiplies && n->leaf == GN_LEAF_NONE ? gn_size_add(work, product) : work);
    }
    return all;
}

/* Bytes of the block that a node's result takes. */
static uint64_t graph_bytes(const gn_part *p, uint32_t i, bool once) {
    gn__type t = gn__part_type(p, i);
    uint64_t bytes = gn__type_bytes(&t);
    return once && p->nodes[i].op == GN_OP_FULL ? GN__MIN(bytes, (uint64_t)gn__bytes_of(t.dtype)) : bytes;
}

/* Results that live at the same time lie apart, and all lie inside the block. once: a constant is one element. */
static void graph_check_layout(const gn_part *p, bool once) {
    gn_layout l;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result r = gn__layout_make(p, true, once, NULL, &l, &f);
    FUZZ_CHECK(r == GN_OK || (f.result == r && f.text[0]));
    for (uint32_t i = 0; r == GN_OK && i < p->n_nodes; i++) {
        const gn_lay *a = &l.lay[i];
        if (!a->kernel || a->place != GN_PLACE_BLOCK) continue;
        uint64_t bytes = graph_bytes(p, i, once);
        FUZZ_CHECK(bytes <= l.block_bytes && a->offset <= l.block_bytes - bytes);
        for (uint32_t k = 0; k < i && p->n_nodes <= GRAPH_PAIRS; k++) {
            const gn_lay *b = &l.lay[k];
            if (!b->kernel || b->place != GN_PLACE_BLOCK || GN__MAX(b->last, k) < i) continue;
            uint64_t others = graph_bytes(p, k, once);
            FUZZ_CHECK(!bytes || !others || b->offset + others <= a->offset || a->offset + bytes <= b->offset);
        }
    }
    gn__layout_deinit(&l);
}

static bool graph_put_slots(const gn_exec *x, const gn_part *p) {
    static const char zeros[1 << 16];
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        gn__type t = gn__part_type(p, i);
        gn_slot_desc d = {
            n->slot, n->gen, (gn_leaf_kind)n->leaf, t.dtype, t.shape, zeros, gn__type_bytes(&t), NULL, 0
        };
        if (n->leaf != GN_LEAF_WEIGHT && n->leaf != GN_LEAF_STATE) continue;
        if (n->slot > 1000 || d.bytes > sizeof zeros || x->i->slot_put(x->self, &d, NULL) != GN_OK) return false;
    }
    return true;
}

/* Runs the plan twice: what the first run keeps, the second finds by its id. */
static void graph_submit(const gn_exec *x, const gn_part *p, void *plan, uint8_t how) {
    static char zeros[GRAPH_WORK * 8];
    gn_arg *args = gn__alloc_zero((p->n_args + 1) * sizeof *args);
    gn_out *outs = gn__alloc_zero((p->n_outs + 1) * sizeof *outs);
    uint64_t id = 0, ticket;
    for (int run = 0; args && outs && run < 2; run++) {
        for (uint32_t i = 0; i < p->n_args; i++) {
            gn__type t = gn__part_type(p, p->args[i]);
            args[i] = (gn_arg){ zeros, gn__type_bytes(&t), 1 + i % 3 };
        }
        for (uint32_t i = 0; i < p->n_outs; i++) {
            gn__type t = gn__part_type(p, p->outs[i]);
            gn_free(outs[i].host);
            outs[i].bytes = gn__type_bytes(&t);
            outs[i].host = (how >> (i % 4)) & 1 ? gn_alloc(outs[i].bytes) : NULL;
            outs[i].keep = (how >> (4 + i % 3)) & 1 ? ++id : 0;
        }
        gn_fault f = { GN_OK, GN_NO_NODE, "" };
        gn_result r = x->i->submit(x->self, plan, args, outs, &ticket, &f);
        FUZZ_CHECK(r == GN_OK || f.result == r);
        if (r == GN_OK) x->i->wait(x->self, ticket, &f);
    }
    for (uint32_t i = 0; outs && i < p->n_outs; i++) gn_free(outs[i].host);
    gn_free(args);
    gn_free(outs);
}

static bool graph_is_gpu(const char *device) { return strncmp(device, "cuda", 4) == 0; }

/* A GPU as a server has it, with the CPU beside it for what it refuses, or by itself. */
static gn_result graph_open(const gn_exec_desc *d, uint8_t how, gn_exec *x, gn_fault *f) {
    return graph_is_gpu(d->device) && how & 4 ? gn__driver->open(d, x, f) : gn__exec_open(d, x, f);
}

/* What a plan holds at least is charged before it is made, and no more than what it then holds. */
static gn_result graph_plan(const gn_exec *x, const char *device, const gn_part *p, uint8_t how, void **out_plan) {
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    uint64_t before = gn__account_held(gn__paying.host);
    bool together = graph_is_gpu(device) && !(how & 4); /* what of it is the GPU's is not known before */
    uint64_t least = together || strcmp(device, "null") == 0 ? 0 : gn__layout_least(p);
    gn_result r = x->i->plan_make(x->self, p, out_plan, &f);
    FUZZ_CHECK(r == GN_OK || (f.result == r && f.text[0]));
    FUZZ_CHECK(gn__paid_ahead == 0 && (r != GN_OK || gn__account_held(gn__paying.host) - before >= least));
    return r;
}

static void graph_run(const char *device, const gn_part *p, uint8_t how) {
    gn_stats stats;
    gn_exec x = { NULL, NULL };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    void *plan = NULL;
    memset(&stats, 0, sizeof stats);
    gn_exec_desc d = { .device = device, .threads = 1, .deadline_ms = 1000, .stats = &stats };
    gn_account *budget = gn__account_open(NULL, "the input", "its limit", 16 << 20),
               *memory = gn__account_open(NULL, "the device", "its limit", 16 << 20);
    FUZZ_CHECK(budget && memory);
    gn__paying.host = budget;
    gn__paying.device = memory;
    if (graph_open(&d, how, &x, &f) == GN_OK) {
        gn_result r = graph_plan(&x, device, p, how, &plan);
        if (r == GN_OK && graph_work(p) <= GRAPH_WORK && graph_put_slots(&x, p)) graph_submit(&x, p, plan, how);
        if (r == GN_OK) x.i->plan_destroy(x.self, plan);
        x.i->close(x.self);
    }
    gn__paying = (gn__payer){ NULL, NULL, false };
    FUZZ_CHECK(gn__account_held(budget) == 0 && gn__account_held(memory) == 0);
    gn__account_close(budget);
    gn__account_close(memory);
}

/* A GPU of the shim's, an architecture by the input; NULL: no shim is named. The device is opened for nobody's account,
   and stays. */
static const char *graph_gpu(uint8_t which) {
    static const char *const devices[3] = { "cuda:0", "cuda:1", "cuda:2" };
    static bool open[3];
    gn_stats stats;
    gn_exec x = { NULL, NULL };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_exec_desc d = { .device = devices[which % 3], .threads = 1, .stats = &stats };
    if (!getenv("GENIE_LIBCUDA")) return NULL;
    memset(&stats, 0, sizeof stats);
    if (!open[which % 3]) {
        gn_result r = gn__driver->open(&d, &x, &f);
        if (r != GN_OK) printf("%s: %s\n", devices[which % 3], f.text);
        FUZZ_CHECK(r == GN_OK);
        x.i->close(x.self);
        open[which % 3] = true;
    }
    return devices[which % 3];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = { data, size };
    uint8_t program = fuzz_byte(&in), how = fuzz_byte(&in);
    gn_part *p = NULL, *q = NULL;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn__buf bytes = { NULL, 0, 0, false }, again = { NULL, 0, 0, false };
    gn_meaning meaning;
    if (program & 1) graph_program(&in, &bytes);
    else gn__put_bytes(&bytes, in.p, in.n);
    gn_result r = gn__part_decode(bytes.p ? bytes.p : &program, bytes.n, GN__WIRE_NODES, NULL, &p, &f);
    FUZZ_CHECK((r == GN_OK) == (p != NULL) && (r == GN_OK || (f.result == r && f.text[0])));
    FUZZ_CHECK(!(program & 1) || r == GN_OK || r == GN_OUT_OF_MEMORY || !bytes.n);
    gn__buf_deinit(&bytes);
    if (r != GN_OK) return 0;
    if (gn__part_encode(&again, p, &f) == GN_OK &&
        gn__part_decode(again.p, again.n, GN__WIRE_NODES, NULL, &q, &f) == GN_OK)
        FUZZ_CHECK(q->hash == p->hash && gn__part_equal(p, q));
    if (gn__meaning_make(p, 0, NULL, &meaning, &f) == GN_OK) gn__meaning_deinit(&meaning);
    graph_check_layout(p, false);
    graph_check_layout(p, true);
    graph_run("null", p, how);
    graph_run("cpu", p, how);
    const char *gpu = graph_gpu(how);
    if (gpu) graph_run(gpu, p, how);
    gn__buf_deinit(&again);
    gn_free(p);
    gn_free(q);
    return 0;
}

/* How a GPU is used: an architecture each, in a session and by itself, results wanted and kept. */
static const uint8_t graph_hows[] = { 0x00, 0x31, 0x1d, 0x7e, 0x44, 0x5b };

/* Extremes: as many results of the largest size as make 2^64 bytes; thousands that are kept; thousands of the largest
 * broadcasts of one number, and what reads them; updates of states, one many times. */
static size_t graph_extreme(size_t which, uint8_t *out) {
    static const uint8_t programs[][24] = {
        { GRAPH_FULL, GN_F32 - 1, 1, GRAPH_DIM_MOST, GRAPH_REPEAT, 17, GRAPH_OUT_ALL },
        { GRAPH_FULL, GN_F32 - 1, 1, 3, GRAPH_REPEAT, 8, GRAPH_OUT_ALL },
        { GRAPH_DATA, GN_U8 - 1, 1, 1, GRAPH_BROADCAST, 0, 1, GRAPH_DIM_MOST - 1, 8, GRAPH_REPEAT, 10, GRAPH_OUT_ALL,
          GRAPH_OP(CUMSUM), 0, 0, 8, GRAPH_OUT, 0 },
        { GRAPH_DATA, GN_F32 - 1, 1, 1, GRAPH_BROADCAST, 0, 0, 11, GRAPH_OP(ARGSORT), 0, 0, 8, 8, GRAPH_REPEAT, 11,
          GRAPH_OUT_ALL },
        { GRAPH_STATE, GN_F32 - 1, 1, 6, 1, GRAPH_OP(NEG), 0, 0, GRAPH_REPEAT, 11, GRAPH_OUT_ALL, GRAPH_UPDATE, 1, 0,
          GRAPH_OUT, 3 },
    };
    enum { UPDATES = 300 };
    size_t n = sizeof programs[0];
    memcpy(out, programs[which], n);
    for (int i = 0; which == 4 && i < UPDATES; i++) {
        out[n++] = GRAPH_UPDATE;
        out[n++] = (uint8_t)(i % 8);
        out[n++] = (uint8_t)(i % 8);
    }
    return n;
}

/* The extremes in all ways, the largest in one; then programs of bytes that count up. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    enum { EXTREMES = 5, HOWS = (int)sizeof graph_hows, FIRST = 1 + (EXTREMES - 1) * HOWS };
    if (index < FIRST && cap >= 2000) {
        out[0] = 1;
        out[1] = graph_hows[index ? (index - 1) % HOWS : 0];
        return 2 + graph_extreme(index ? 1 + (index - 1) / HOWS : 0, out + 2);
    }
    index -= FIRST;
    if (index > 10 || cap < 400) return 0;
    uint32_t at = ((uint32_t)index + 2) * 2654435761u;
    for (size_t i = 0; i < 400; i++) {
        at = at * 1664525u + 1013904223u;
        out[i] = (uint8_t)(at >> 24);
    }
    out[0] = 1;
    return 400;
}
