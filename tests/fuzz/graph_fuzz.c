/* Parts as they come from a peer: rebuilt with every type inferred, laid out in memory, made into plans of the null and the CPU executor,
 * and run where that is little work. The first byte says whether the rest is a part as on the wire (even) or a program that makes one
 * (odd), the second which outputs are wanted and kept. */
#include "fuzz.h"
#include "graph_program.h"

enum { GRAPH_WORK = 1 << 22, GRAPH_PAIRS = 512 };   /* elements touched by a run; nodes of which every pair is compared */

/* Elements that a run touches, about: more than enough where it is wrong. */
static uint64_t graph_work(const gn_part *p)
{
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
        all = gn_size_add(all, gn__is_product(n) || n->op == GN_OP_ATTENTION ? gn_size_add(work, product) : work);
    }
    return all;
}

/* Results that live at the same time lie apart, and all lie inside the block. */
static void graph_check_layout(const gn_part *p)
{
    gn_layout l;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result r = gn__layout_make(p, true, &l, &f);
    FUZZ_CHECK(r == GN_OK || (f.result == r && f.text[0]));
    for (uint32_t i = 0; r == GN_OK && i < p->n_nodes; i++) {
        const gn_lay *a = &l.lay[i];
        if (!a->kernel || a->place != GN_PLACE_BLOCK) {
            continue;
        }
        gn__type t = gn__part_type(p, i);
        uint64_t bytes = gn__type_bytes(&t);
        FUZZ_CHECK(bytes <= l.block_bytes && a->offset <= l.block_bytes - bytes);
        for (uint32_t k = 0; k < i && p->n_nodes <= GRAPH_PAIRS; k++) {
            const gn_lay *b = &l.lay[k];
            if (!b->kernel || b->place != GN_PLACE_BLOCK || GN__MAX(b->last, k) < i) {
                continue;
            }
            t = gn__part_type(p, k);
            FUZZ_CHECK(!bytes || !gn__type_bytes(&t) || b->offset + gn__type_bytes(&t) <= a->offset || a->offset + bytes <= b->offset);
        }
    }
    gn__layout_deinit(&l);
}

static bool graph_put_slots(const gn_exec *x, const gn_part *p)
{
    static const char zeros[1 << 16];
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const gn_part_node *n = &p->nodes[i];
        gn__type t = gn__part_type(p, i);
        gn_slot_desc d = { n->slot, n->gen, (gn_leaf_kind)n->leaf, t.dtype, t.shape, zeros, gn__type_bytes(&t) };
        if (n->leaf != GN_LEAF_WEIGHT && n->leaf != GN_LEAF_STATE) {
            continue;
        }
        if (n->slot > 1000 || d.bytes > sizeof zeros || x->i->slot_put(x->self, &d, NULL) != GN_OK) {
            return false;
        }
    }
    return true;
}

/* Runs the plan twice: what the first run keeps, the second finds by its id. */
static void graph_submit(const gn_exec *x, const gn_part *p, void *plan, uint8_t how)
{
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
        if (r == GN_OK) {
            x->i->wait(x->self, ticket, &f);
        }
    }
    for (uint32_t i = 0; outs && i < p->n_outs; i++) {
        gn_free(outs[i].host);
    }
    gn_free(args);
    gn_free(outs);
}

static void graph_run(const char *device, const gn_part *p, uint8_t how)
{
    gn_stats stats;
    gn_exec x = { NULL, NULL };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    void *plan = NULL;
    memset(&stats, 0, sizeof stats);
    gn_exec_desc d = { .device = device, .threads = 1, .deadline_ms = 1000, .stats = &stats };
    gn_account *budget = gn__account_open(NULL, "the input", "its limit", 16 << 20);
    FUZZ_CHECK(budget);
    gn__paying.host = budget;
    if (gn__exec_open(&d, &x, &f) != GN_OK) {
        gn__paying.host = NULL;
        gn__account_close(budget);
        return;
    }
    gn_result r = x.i->plan_make(x.self, p, &plan, &f);
    FUZZ_CHECK(r == GN_OK || (f.result == r && f.text[0]));
    if (r == GN_OK && graph_work(p) <= GRAPH_WORK && graph_put_slots(&x, p)) {
        graph_submit(&x, p, plan, how);
    }
    if (r == GN_OK) {
        x.i->plan_destroy(x.self, plan);
    }
    x.i->close(x.self);
    gn__paying.host = NULL;
    FUZZ_CHECK(gn__account_held(budget) == 0);
    gn__account_close(budget);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = { data, size };
    uint8_t program = fuzz_byte(&in), how = fuzz_byte(&in);
    gn_part *p = NULL, *q = NULL;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn__buf bytes = { NULL, 0, 0, false }, again = { NULL, 0, 0, false };
    gn_meaning meaning;
    if (program & 1) {
        graph_program(&in, &bytes);
    } else {
        gn__put_bytes(&bytes, in.p, in.n);
    }
    gn_result r = gn__part_decode(bytes.p ? bytes.p : &program, bytes.n, GN__WIRE_NODES, &p, &f);
    FUZZ_CHECK((r == GN_OK) == (p != NULL) && (r == GN_OK || (f.result == r && f.text[0])));
    FUZZ_CHECK(!(program & 1) || r == GN_OK || r == GN_OUT_OF_MEMORY || !bytes.n);
    gn__buf_deinit(&bytes);
    if (r != GN_OK) {
        return 0;
    }
    if (gn__part_encode(&again, p, &f) == GN_OK && gn__part_decode(again.p, again.n, GN__WIRE_NODES, &q, &f) == GN_OK) {
        FUZZ_CHECK(q->hash == p->hash && gn__part_equal(p, q));
    }
    if (gn__meaning_make(p, 0, &meaning, &f) == GN_OK) {
        gn__meaning_deinit(&meaning);
    }
    graph_check_layout(p);
    graph_run("null", p, how);
    graph_run("cpu", p, how);
    gn__buf_deinit(&again);
    gn_free(p);
    gn_free(q);
    return 0;
}


/* Programs of bytes that count up, and one that asks for as many results of the largest size as make 2^64 bytes. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap)
{
    static const uint8_t many_full[] = { 1, 0, GRAPH_FULL, GN_F32 - 1, 1, GRAPH_DIM_MOST, GRAPH_REPEAT, 17, GRAPH_OUT_ALL };
    static const uint8_t many_kept[] = { 1, 0x31, GRAPH_FULL, GN_F32 - 1, 1, 3, GRAPH_REPEAT, 8, GRAPH_OUT_ALL };
    if (index == 0 || index == 1) {
        memcpy(out, index ? many_kept : many_full, sizeof many_full);
        return sizeof many_full;
    }
    if (index > 12 || cap < 400) {
        return 0;
    }
    uint32_t at = (uint32_t)index * 2654435761u;
    for (size_t i = 0; i < 400; i++) {
        at = at * 1664525u + 1013904223u;
        out[i] = (uint8_t)(at >> 24);
    }
    out[0] = 1;
    return 400;
}
