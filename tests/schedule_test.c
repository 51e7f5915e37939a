/* Where the parts of a graph run: properties of the scheduler over thousands of random graphs and clusters, and
 * clusters whose right answer is known by hand. Most graphs here are made of nodes with invented sizes and costs; the
 * scheduler asks no more.
 *
 * Tier: quick address */
#define _GNU_SOURCE
#include <stdlib.h>

/* An allocator that counts what is held and can fail. */
static _Atomic long held, allocations, fails_at = -1; /* threads of executors allocate too */

static void *counted_resize(void *p, size_t n) {
    if (fails_at >= 0 && allocations++ >= fails_at) return NULL;
    void *q = realloc(p, n);
    held += q && !p;
    return q;
}

static void counted_free(void *p) {
    held -= p != NULL;
    free(p);
}

#define GN_MALLOC(n) counted_resize(NULL, n)
#define GN_REALLOC(p, n) counted_resize(p, n)
#define GN_FREE(p) counted_free(p)
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"

/* ---- invented graphs: each op is a group of its own, unless grouped ---- */

enum { MAX_NODES = 4000, MAX_INS = 16000, MAX_DEVICES = 1000 };

static struct {
    gn_part part;
    gn_meaning meaning;
    gn_part_node nodes[MAX_NODES];
    uint32_t ins[MAX_INS], outs[MAX_NODES], members[MAX_NODES], group_of[MAX_NODES], homes[MAX_NODES];
    int64_t dims[MAX_NODES];
    gn_part_update updates[MAX_NODES];
    gn_part_hint hints[MAX_NODES];
    gn_node_meaning said[MAX_NODES];
    gn_group groups[MAX_NODES];
    bool hinted, homed;
} G;

static void graph_begin(void) {
    memset(&G, 0, sizeof G);
    G.part.nodes = G.nodes;
    G.part.ins = G.ins;
    G.part.dims = G.dims;
    G.part.outs = G.outs;
    G.part.updates = G.updates;
    G.meaning.nodes = G.said;
    G.meaning.groups = G.groups;
    G.meaning.members = G.members;
}

static uint32_t node_add(int op, gn_leaf_kind leaf, int64_t bytes, double flops) {
    uint32_t i = G.part.n_nodes++;
    G.nodes[i] = (gn_part_node){ .op = (uint16_t)(leaf ? gn__op_leaf(leaf) : op),
                                 .dtype = GN_U8,
                                 .leaf = (uint8_t)leaf,
                                 .rank = 1,
                                 .ins = G.part.n_ins,
                                 .dims = i,
                                 .slot = i };
    G.dims[i] = bytes;
    G.said[i] = (gn_node_meaning){ .flops = flops, .bytes_written = leaf ? 0 : (uint64_t)bytes };
    G.group_of[i] = i;
    return i;
}

static uint32_t leaf_add(gn_leaf_kind leaf, int64_t bytes) { return node_add(0, leaf, bytes, 0); }

static void reads(uint32_t node, uint32_t x) {
    G.ins[G.part.n_ins++] = x;
    G.nodes[node].n_ins++;
}

/* An op of so many bytes and flops that reads up to three nodes; UINT32_MAX: none. */
static uint32_t op_add(int op, int64_t bytes, double flops, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t i = node_add(op, GN_LEAF_NONE, bytes, flops), in[3] = { a, b, c };
    for (int k = 0; k < 3; k++)
        if (in[k] != UINT32_MAX) reads(i, in[k]);
    return i;
}

#define NIL UINT32_MAX
static uint32_t work(int64_t bytes, double flops, uint32_t a, uint32_t b) {
    return op_add(GN_OP_ADD, bytes, flops, a, b, NIL);
}
static void out_add(uint32_t node) { G.outs[G.part.n_outs++] = node; }
static void update_add(uint32_t state, uint32_t node) {
    G.updates[G.part.n_updates++] = (gn_part_update){ G.nodes[state].slot, 0, node };
}
static void hint_on(uint32_t node, uint32_t d) {
    G.hints[node].on = d + 1;
    G.hinted = true;
}
static void home_on(uint32_t node, uint32_t d) {
    G.homes[node] |= 1u << d;
    G.homed = true;
}

/* Groups from group_of[], which is any node of the group; numbered by their last node, which keeps topological order
   for groups of neighbours. */
static void graph_end(void) {
    static uint32_t number[MAX_NODES], last[MAX_NODES];
    uint32_t n = G.part.n_nodes, at = 0;
    for (uint32_t i = 0; i < n; i++) last[G.group_of[i]] = i;
    for (uint32_t i = 0; i < n; i++) {
        if (last[G.group_of[i]] != i) continue;
        gn_group *g = &G.groups[G.meaning.n_groups];
        number[G.group_of[i]] = G.meaning.n_groups++;
        g->first = at;
        for (uint32_t k = 0; k <= i; k++) {
            if (G.group_of[k] != G.group_of[i]) continue;
            G.members[at++] = k;
            g->n_nodes++;
            g->kernels += G.nodes[k].leaf == GN_LEAF_NONE;
            g->flops += G.said[k].flops;
            g->bytes += G.said[k].bytes_written;
        }
    }
    for (uint32_t i = 0; i < n; i++) G.said[i].group = number[G.group_of[i]];
    G.part.hints = G.hinted ? G.hints : NULL;
    G.meaning.n_nodes = n;
}

/* ---- invented clusters ---- */

static struct {
    gn_cluster cluster;
    gn_cluster_device devices[MAX_DEVICES];
    gn_cluster_link links[(MAX_DEVICES + 1) * (MAX_DEVICES + 1)];
} C;

/* n devices of 1 GFLOP/s, links of 1 GB/s without latency, no limit of memory. */
static void cluster_begin(uint32_t n) {
    memset(C.devices, 0, n * sizeof *C.devices);
    C.cluster = (gn_cluster){ n, C.devices, C.links };
    for (uint32_t d = 0; d < n; d++) {
        snprintf(C.devices[d].name, sizeof C.devices[d].name, "d%u", d);
        for (int k = 0; k < GN_RATE__COUNT; k++) C.devices[d].flops_per_s[k] = 1e9;
    }
    for (uint32_t i = 0; i < (n + 1) * (n + 1); i++) C.links[i] = (gn_cluster_link){ 0, 1e9 };
}

static void speed(uint32_t d, double flops_per_s) {
    for (int k = 0; k < GN_RATE__COUNT; k++) C.devices[d].flops_per_s[k] = flops_per_s;
}
static void memory(uint32_t d, uint64_t bytes) { C.devices[d].memory = C.devices[d].memory_free = bytes; }
static gn_cluster_link *link_of(uint32_t from, uint32_t to) { return &C.links[from * (C.cluster.n_devices + 1) + to]; }
static void links(double latency_s, double bytes_per_s) {
    for (uint32_t i = 0; i < (C.cluster.n_devices + 1) * (C.cluster.n_devices + 1); i++)
        C.links[i] = (gn_cluster_link){ latency_s, bytes_per_s };
}

static gn_schedule S;
static gn_fault fault;

static gn_result make(gn_policy policy) {
    gn_schedule_deinit(&S);
    memset(&fault, 0, sizeof fault);
    return gn_schedule_make(&G.part, &G.meaning, &C.cluster, policy, G.homed ? G.homes : NULL, NULL, &S, &fault);
}

/* ---- what holds of every schedule ---- */

typedef struct view_of {
    const gn_part *p;
    const gn_cluster *c;
    const uint32_t *homes;
    const gn_schedule *s;
} view_of;

static bool at_home(const view_of *v, uint32_t node, uint32_t d) {
    return v->homes && d < 32 && ((v->homes[node] >> d) & 1);
}

static const gn_transfer *transfer_of(const view_of *v, uint32_t node, uint32_t to) {
    for (uint32_t i = 0; i < v->s->n_transfers; i++)
        if (v->s->transfers[i].node == node && v->s->transfers[i].to == to) return &v->s->transfers[i];
    return NULL;
}

static bool holds(const gn_segment *g, const gn_schedule *s, uint32_t node) {
    for (uint32_t i = 0; i < g->n; i++)
        if (s->nodes[g->first + i] == node) return true;
    return false;
}

/* Whether `node` is on the segment's device before or in it. */
static bool is_there(const view_of *v, uint32_t node, uint32_t seg) {
    const gn_schedule *s = v->s;
    uint32_t d = s->segments[seg].device;
    uint8_t leaf = v->p->nodes[node].leaf;
    const gn_transfer *t = transfer_of(v, node, d);
    if (leaf == GN_LEAF_WEIGHT) return true;
    if (t && t->consumer <= seg && t->end_s <= s->segments[seg].start_s + 1e-12)
        return t->producer == UINT32_MAX || t->producer < seg;
    if (leaf == GN_LEAF_STATE) return s->device[node] == d && (!v->homes || !v->homes[node] || at_home(v, node, d));
    if (leaf == GN_LEAF_VALUE) return at_home(v, node, d);
    for (uint32_t i = 0; i <= seg && leaf == GN_LEAF_NONE; i++)
        if (s->segments[i].device == d && holds(&s->segments[i], s, node)) return true;
    return false;
}

static void check_segments(const view_of *v) {
    const gn_schedule *s = v->s;
    static uint32_t times[1 << 16], seen_at[1 << 16];
    uint32_t ops = 0, more = 0;
    memset(times, 0, v->p->n_nodes * sizeof *times);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const gn_segment *g = &s->segments[i];
        CHECK(g->n > 0 && g->device < v->c->n_devices && g->end_s >= g->start_s);
        for (uint32_t k = 0; k < g->n; k++) {
            uint32_t x = s->nodes[g->first + k];
            CHECK(v->p->nodes[x].leaf == GN_LEAF_NONE && (k == 0 || s->nodes[g->first + k - 1] < x));
            more += times[x]++ > 0;
            if (g->device == s->device[x]) seen_at[x] = i + 1;
            for (uint32_t j = 0; j < v->p->nodes[x].n_ins; j++)
                if (!CHECK(is_there(v, v->p->ins[v->p->nodes[x].ins + j], i))) return;
        }
    }
    for (uint32_t i = 0; i < v->p->n_nodes; i++) {
        ops += v->p->nodes[i].leaf == GN_LEAF_NONE;
        CHECK(s->device[i] < v->c->n_devices);
        if (v->p->nodes[i].leaf == GN_LEAF_NONE) CHECK(times[i] >= 1 && seen_at[i]);
    }
    CHECK_INT(more, s->recomputed);
    (void)ops;
}

static void check_transfers(const view_of *v) {
    const gn_schedule *s = v->s;
    uint32_t D = v->c->n_devices;
    uint64_t bytes = 0, moved = 0;
    for (uint32_t i = 0; i < s->n_transfers; i++) {
        const gn_transfer *t = &s->transfers[i];
        bool leaf = v->p->nodes[t->node].leaf != GN_LEAF_NONE;
        CHECK(t->from <= D && t->to <= D && t->from != t->to);
        CHECK(leaf ? t->producer == UINT32_MAX
                   : s->segments[t->producer].device == t->from && holds(&s->segments[t->producer], s, t->node) &&
                         t->start_s >= s->segments[t->producer].end_s);
        CHECK(t->to == D ? t->consumer == UINT32_MAX : s->segments[t->consumer].device == t->to);
        for (uint32_t k = i + 1; k < s->n_transfers; k++)
            CHECK(s->transfers[k].node != t->node || s->transfers[k].to != t->to);
        *(t->why == GN_TRANSFER_STATE_MOVE ? &moved : &bytes) += t->bytes;
    }
    CHECK_INT(bytes, s->bytes);
    CHECK_INT(moved, s->move_bytes);
    for (uint32_t i = 0; i < v->p->n_outs; i++)
        if (v->p->nodes[v->p->outs[i]].leaf == GN_LEAF_NONE) CHECK(transfer_of(v, v->p->outs[i], D) != NULL);
}

/* Segments of a device one after the other; the step ends when all has ended. */
static void check_times(const view_of *v) {
    const gn_schedule *s = v->s;
    static double until[MAX_DEVICES];
    double end = 0;
    memset(until, 0, sizeof until);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const gn_segment *g = &s->segments[i];
        CHECK(g->start_s >= until[g->device] && g->start_s >= v->c->devices[g->device].queue_s);
        until[g->device] = g->end_s;
        end = fmax(end, g->end_s);
    }
    for (uint32_t i = 0; i < s->n_transfers; i++) end = fmax(end, s->transfers[i].end_s);
    CHECK_NEAR(s->seconds, end, 1e-9 * end);
    CHECK(s->step_seconds <= s->seconds * (1 + 1e-9));
}

/* Weights, states and what is certainly alive, counted here again: at least this much a device holds at the same
   time. */
static void check_memory(const view_of *v, bool views) {
    const gn_schedule *s = v->s;
    static uint64_t resident[MAX_DEVICES];
    static uint32_t last[1 << 16];
    memset(resident, 0, sizeof resident);
    for (uint32_t x = 0; x < v->p->n_nodes; x++) {
        if (v->p->nodes[x].leaf != GN_LEAF_WEIGHT && v->p->nodes[x].leaf != GN_LEAF_STATE) continue;
        static bool on[MAX_DEVICES];
        memset(on, 0, sizeof on);
        for (uint32_t y = 0; y < v->p->n_nodes; y++)
            for (uint32_t k = 0; k < v->p->nodes[y].n_ins && v->p->nodes[y].leaf == GN_LEAF_NONE; k++)
                if (v->p->ins[v->p->nodes[y].ins + k] == x) on[s->device[y]] = true;
        for (uint32_t d = 0; d < v->c->n_devices; d++)
            if (on[d] && !at_home(v, x, d) && (v->p->nodes[x].leaf == GN_LEAF_WEIGHT || s->device[x] == d))
                resident[d] += (uint64_t)v->p->dims[v->p->nodes[x].dims] * (views ? 0 : 1);
    }
    uint64_t live = 0;
    memset(last, 0, sizeof last);
    for (uint32_t x = 0; x < v->p->n_nodes; x++)
        for (uint32_t k = 0; k < v->p->nodes[x].n_ins; k++) last[v->p->ins[v->p->nodes[x].ins + k]] = x;
    for (uint32_t d = 0; d < v->c->n_devices; d++) {
        if (v->c->devices[d].memory) CHECK(s->memory[d] <= v->c->devices[d].memory_free);
        CHECK(s->memory[d] >= resident[d]);
        live += s->memory[d] - resident[d];
    }
    /* one op's inputs and its result are alive together, somewhere */
    for (uint32_t x = 0; x < v->p->n_nodes && !views; x++)
        if (v->p->nodes[x].leaf == GN_LEAF_NONE && v->p->nodes[x].op == GN_OP_ADD)
            CHECK(live >= (uint64_t)v->p->dims[v->p->nodes[x].dims]);
}

static void check_states(const view_of *v) {
    const gn_schedule *s = v->s;
    for (uint32_t i = 0; i < v->p->n_updates; i++)
        for (uint32_t x = 0; x < v->p->n_nodes; x++)
            if (v->p->nodes[x].leaf == GN_LEAF_STATE && v->p->nodes[x].slot == v->p->updates[i].slot)
                CHECK_INT(s->device[v->p->updates[i].node], s->device[x]);
    uint32_t overruled = 0;
    for (uint32_t x = 0; x < v->p->n_nodes && v->p->hints; x++)
        if (v->p->nodes[x].leaf == GN_LEAF_NONE && v->p->hints[x].on && s->device[x] != v->p->hints[x].on - 1) {
            overruled++;
            CHECK(v->p->nodes[x].op == GN_OP_ASSIGN || v->p->nodes[x].op == GN_OP_KV_APPEND || s->overruled > 0);
        }
    CHECK(s->overruled == 0 ? overruled == 0 : overruled > 0);
}

static double objective(const gn_schedule *s, gn_policy policy) {
    return policy == GN_LEAST_BYTES ? (double)s->bytes : policy == GN_MOST_THROUGHPUT ? s->step_seconds : s->seconds;
}

/* The same on a cluster of one device at a time: none is better. */
static void check_singles(const view_of *v, const gn_meaning *m, gn_policy policy, bool *out_any) {
    double best = INFINITY;
    for (uint32_t d = 0; d < v->c->n_devices; d++) {
        gn_cluster_link l[4] = { { 0, 0 },
                                 v->c->links[d * (v->c->n_devices + 1) + v->c->n_devices],
                                 v->c->links[v->c->n_devices * (v->c->n_devices + 1) + d],
                                 { 0, 0 } };
        gn_cluster one = { 1, &v->c->devices[d], l };
        gn_schedule s;
        if (gn_schedule_make(v->p, m, &one, policy, NULL, NULL, &s, NULL) != GN_OK) continue;
        CHECK(s.n_segments <= 1 && s.seconds >= 0);
        best = fmin(best, objective(&s, policy));
        gn_schedule_deinit(&s);
    }
    *out_any = best < INFINITY;
    if (v->s->segments && *out_any) CHECK(objective(v->s, policy) <= best * (1 + 1e-9));
}

static bool same(const void *a, const void *b, size_t n) { return n == 0 || memcmp(a, b, n) == 0; }

static void check_again(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy,
                        const uint32_t *homes, const gn_schedule *s) {
    gn_schedule t;
    REQUIRE(gn_schedule_make(p, m, c, policy, homes, NULL, &t, NULL) == GN_OK);
    CHECK(t.n_segments == s->n_segments && t.n_transfers == s->n_transfers && t.seconds == s->seconds &&
          t.bytes == s->bytes);
    CHECK(same(t.device, s->device, s->n_nodes * sizeof *t.device) &&
          same(t.segments, s->segments, s->n_segments * sizeof *t.segments));
    for (uint32_t i = 0; i < s->n_transfers; i++)
        CHECK(t.transfers[i].node == s->transfers[i].node && t.transfers[i].to == s->transfers[i].to &&
              t.transfers[i].start_s == s->transfers[i].start_s);
    gn_schedule_deinit(&t);
}

/* A placement judged alone is as good as the schedule that it was taken from, or better in another order. */
static void check_judged(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy,
                         const uint32_t *homes, const gn_schedule *s) {
    gn__forecast f;
    REQUIRE(gn__schedule_judge(p, m, c, policy, homes, s->device, &f, NULL) == GN_OK);
    double judged = policy == GN_LEAST_BYTES       ? (double)f.bytes
                    : policy == GN_MOST_THROUGHPUT ? f.step_seconds
                                                   : f.seconds,
           was = objective(s, policy);
    if (!(judged <= was * (1 + 1e-9) && (judged > 0 || !(was > 0))))
        test_fail(__FILE__, __LINE__, "judged at %.12g, scheduled at %.12g, policy %d", judged, was, (int)policy);
}

static void check_all(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy,
                      const uint32_t *homes, bool free_choice, bool views) {
    gn_schedule_deinit(&S);
    gn_result r = gn_schedule_make(p, m, c, policy, homes, NULL, &S, &fault);
    view_of v = { p, c, homes, &S };
    bool any = false;
    if (free_choice) check_singles(&v, m, policy, &any);
    if (r != GN_OK) {
        CHECK(r == GN_OUT_OF_MEMORY && !any && strstr(fault.text, "no placement fits"));
        return;
    }
    check_segments(&v);
    check_transfers(&v);
    check_times(&v);
    check_memory(&v, views);
    check_states(&v);
    check_again(p, m, c, policy, homes, &S);
    check_judged(p, m, c, policy, homes, &S);
    gn_schedule_deinit(&S);
}

/* ---- random graphs and clusters ---- */

static void random_graph(int n) {
    uint32_t ops[MAX_NODES], n_ops = 0, leaves[MAX_NODES], n_leaves = 0, states[64], versions[64], n_states = 0;
    graph_begin();
    double branchy = test_random_real(0, 1);
    int64_t big = 1 << test_random_int(4, 24);
    for (int i = 0; i < n; i++) {
        int kind = (int)test_random_int(0, 9);
        if (i == 0 || kind == 0) leaves[n_leaves++] = leaf_add(GN_LEAF_DATA, test_random_int(0, big));
        else if (kind == 1) leaves[n_leaves++] = leaf_add(GN_LEAF_WEIGHT, test_random_int(1, 4 * big));
        else if (kind == 2 && n_states < 64) {
            versions[n_states] = states[n_states] = leaves[n_leaves++] =
                leaf_add(GN_LEAF_STATE, test_random_int(1, 4 * big));
            n_states++;
        } else if (kind == 3 && n_states && n_ops) {
            uint32_t k = (uint32_t)test_random_int(0, n_states - 1), value = ops[test_random_int(0, n_ops - 1)];
            bool append = test_random_int(0, 1);
            versions[k] = op_add(append ? GN_OP_KV_APPEND : GN_OP_ASSIGN, G.dims[states[k]], 0, versions[k], value,
                                 append ? leaves[0] : NIL);
            ops[n_ops++] = versions[k];
        } else if (kind == 4 && test_random_int(0, 2) == 0)
            ops[n_ops++] = op_add(GN_OP_ARANGE, test_random_int(1, big), 10, NIL, NIL, NIL);
        else {
            uint32_t in[3] = { NIL, NIL, NIL };
            for (int64_t k = 0, many = test_random_int(1, 3); k < many; k++) {
                bool from_leaf = !n_ops || test_random_int(0, 3) == 0;
                int64_t reach = test_random_real(0, 1) < branchy ? n_ops : n_ops < 3 ? n_ops : 3;
                in[k] = from_leaf ? leaves[test_random_int(0, n_leaves - 1)]
                                  : ops[n_ops - 1 - (uint32_t)test_random_int(0, reach - 1)];
            }
            ops[n_ops++] =
                op_add(GN_OP_ADD, test_random_int(1, big),
                       test_random_real(0, 1) < 0.1 ? 0 : pow(10, test_random_real(3, 10)), in[0], in[1], in[2]);
        }
    }
    for (uint32_t k = 0; k < n_states; k++)
        if (versions[k] != states[k]) update_add(states[k], versions[k]);
    for (int64_t k = test_random_int(1, 3); k > 0 && n_ops; k--)
        out_add(ops[n_ops - 1 - (uint32_t)test_random_int(0, n_ops < 4 ? n_ops - 1 : 3)]);
    for (uint32_t k = 1; k < G.part.n_nodes && test_random_int(0, 1); k++) /* groups of neighbours */
        if (test_random_int(0, 2) == 0) G.group_of[k] = G.group_of[k - 1];
    graph_end();
}

static void random_cluster(uint32_t n, uint64_t some_memory) {
    cluster_begin(n);
    double slow = pow(10, test_random_real(6, 11));
    bool alike = test_random_int(0, 2) == 0, limited = test_random_int(0, 2) == 0;
    for (uint32_t d = 0; d < n; d++) {
        gn_cluster_device *x = &C.devices[d];
        double scale = alike ? 1 : pow(10, test_random_real(-1, 1));
        for (int k = 0; k < GN_RATE__COUNT; k++) x->flops_per_s[k] = 1e9 * scale;
        x->bytes_per_s = test_random_int(0, 3) ? 1e10 * scale : 0;
        x->launch_s = test_random_int(0, 1) ? 5e-6 : 0;
        x->queue_s = test_random_int(0, 4) ? 0 : test_random_real(0, 0.1);
        if (limited) memory(d, (uint64_t)test_random_real(0, (double)some_memory) + 1);
    }
    double latency = test_random_int(0, 2) ? pow(10, test_random_real(-6, -2)) : 0;
    for (uint32_t i = 0; i < (n + 1) * (n + 1); i++) C.links[i] = (gn_cluster_link){ latency, slow };
}

static uint64_t graph_bytes(void) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < G.part.n_nodes; i++) all += (uint64_t)G.dims[i];
    return all;
}

TEST(random_graphs_on_random_clusters_hold_what_is_promised) {
    for (int i = 0, n_rounds = test_rounds(4000); i < n_rounds && !test__.failed_checks; i++) {
        random_graph((int)test_random_int(1, 70));
        random_cluster((uint32_t)test_random_int(1, 6), graph_bytes());
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), NULL, true, false);
        if (test__.failed_checks) printf("  graph %d\n", i);
    }
}

TEST(random_homes_and_hints_hold) {
    for (int i = 0, n_rounds = test_rounds(3000); i < n_rounds && !test__.failed_checks; i++) {
        random_graph((int)test_random_int(1, 60));
        uint32_t n = (uint32_t)test_random_int(1, 5);
        random_cluster(n, 4 * graph_bytes());
        bool all = test_random_int(0, 3) == 0, homes = test_random_int(0, 1);
        for (uint32_t k = 0; k < G.part.n_nodes; k++) {
            if (all || test_random_int(0, 9) == 0) hint_on(k, (uint32_t)test_random_int(0, n - 1));
            if (homes && (G.nodes[k].leaf >= GN_LEAF_VALUE) && test_random_int(0, 1))
                home_on(k, (uint32_t)test_random_int(0, n - 1));
        }
        G.part.hints = G.hinted ? G.hints : NULL;
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), G.homed ? G.homes : NULL, false,
                  false);
        if (test__.failed_checks) printf("  graph %d\n", i);
    }
}

TEST(a_thousand_devices_are_scheduled) {
    for (int i = 0, n_rounds = test_rounds(6); i < n_rounds && !test__.failed_checks; i++) {
        random_graph(300);
        random_cluster((uint32_t)test_random_int(200, MAX_DEVICES), graph_bytes());
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), NULL, true, false);
    }
}

/* ---- clusters whose answer is known by hand ---- */

/* `n` ops in a row of `flops` and `bytes` each, the first reads x; a weight each when weight > 0. The last is
   returned. */
static uint32_t chain(uint32_t x, int n, double flops, int64_t bytes, int64_t weight) {
    for (int i = 0; i < n; i++) x = work(bytes, flops, x, weight ? leaf_add(GN_LEAF_WEIGHT, weight) : NIL);
    return x;
}

typedef struct encoders {
    uint32_t first, second, join;
} encoders;

/* Two encoders of 4 s each on 1 GFLOP/s, met by an op of 0.1 s; their results have `bytes`. */
static encoders two_encoders(int64_t bytes) {
    encoders e;
    graph_begin();
    e.first = chain(leaf_add(GN_LEAF_DATA, 1000), 4, 1e9, bytes, 8);
    e.second = chain(leaf_add(GN_LEAF_DATA, 1000), 4, 1e9, bytes, 8);
    e.join = work(1000, 1e8, e.first, e.second);
    out_add(e.join);
    graph_end();
    return e;
}

TEST(two_encoders_run_at_the_same_time) {
    encoders e = two_encoders(1000);
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[e.first] != S.device[e.second] && S.n_segments == 3);
    for (uint32_t i = 0; i <= e.first; i++) CHECK_INT(S.device[i], S.device[e.first]);
    CHECK_NEAR(S.seconds, 4.1, 2e-5); /* the join is a second run on its device */
    CHECK_NEAR(S.best_single_seconds, 8.1, 1e-5);
    CHECK_INT(S.why[G.said[S.device[e.first] == S.best_single ? e.second : e.first].group], GN_PLACED_PARALLEL);
    CHECK_INT(S.bytes, 4000);
    CHECK(!S.refused);
}

TEST(two_encoders_stay_together_behind_a_slow_link) {
    encoders e = two_encoders(10000);
    cluster_begin(2);
    *link_of(0, 1) = *link_of(1, 0) = (gn_cluster_link){ 0, 1e3 }; /* 10 s for what one gives the other */
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.n_segments, 1);
    CHECK(S.refused && S.refused_seconds > S.seconds);
    CHECK_NEAR(S.seconds, 8.1, 1e-4);
    CHECK_INT(S.why[G.said[e.join].group], GN_PLACED_BEST);
}

TEST(a_split_that_gains_little_is_refused) {
    graph_begin(); /* 8 s and 0.3 s that could run beside: 3.6 percent */
    uint32_t a = chain(leaf_add(GN_LEAF_DATA, 1000), 4, 2e9, 1000, 0),
             b = chain(leaf_add(GN_LEAF_DATA, 1000), 1, 0.3e9, 1000, 0);
    out_add(work(1000, 1, a, b));
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.n_segments == 1 && S.refused);
    CHECK_NEAR(S.seconds, 8.3, 1e-4);
    CHECK_NEAR(S.refused_seconds, 8.0, 1e-4);
}

TEST(least_bytes_and_least_latency_differ) {
    encoders e = two_encoders(1000000);
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_BYTES) == GN_OK);
    CHECK_INT(S.n_segments, 1);
    CHECK_INT(S.bytes, 3000);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[e.first] != S.device[e.second]);
    CHECK_INT(S.bytes, 1003000);
}

TEST(throughput_splits_a_chain_that_latency_does_not) {
    graph_begin();
    out_add(chain(leaf_add(GN_LEAF_DATA, 1000), 6, 1e9, 1000, 0));
    graph_end();
    cluster_begin(3);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.n_segments, 1);
    CHECK_NEAR(S.step_seconds, 6, 1e-4);
    REQUIRE(make(GN_MOST_THROUGHPUT) == GN_OK);
    CHECK_INT(S.n_segments, 3);
    CHECK_NEAR(S.step_seconds, 2, 1e-4);
    CHECK_NEAR(S.seconds, 6, 1e-4);
    CHECK_INT(S.why[G.said[3].group], S.device[3] == S.best_single ? GN_PLACED_BEST : GN_PLACED_STAGE);
}

/* Prefill of four layers: 4 s each, a KV cache each. */
static void caches_and_layers(uint32_t *caches, double flops, bool homed, uint32_t home) {
    graph_begin();
    uint32_t x = leaf_add(GN_LEAF_DATA, 1000), pos = leaf_add(GN_LEAF_DATA, 4);
    for (int i = 0; i < 4; i++) {
        caches[i] = leaf_add(GN_LEAF_STATE, 100000000);
        if (homed) home_on(caches[i], home);
        uint32_t rows = work(1000, 1e6, x, NIL), kv = op_add(GN_OP_KV_APPEND, 100000000, 0, caches[i], rows, pos);
        x = work(1000, flops, kv, rows);
        G.group_of[kv] = G.group_of[rows] = x;
        update_add(caches[i], kv);
    }
    out_add(x);
    graph_end();
}

TEST(decode_stays_with_its_cache) {
    uint32_t caches[4];
    caches_and_layers(caches, 1e6, true, 1);
    cluster_begin(2);
    speed(0, 1e11); /* faster, but the caches are on the other */
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    for (uint32_t i = 0; i < G.part.n_nodes; i++) CHECK_INT(S.device[i], 1);
    CHECK_INT(S.move_bytes, 0);
    CHECK_INT(S.why[G.said[G.part.n_nodes - 1].group], GN_PLACED_HOME);
    CHECK_INT(S.avoided[GN_AVOIDED_STATES], 400000000);
    for (uint32_t i = 0; i < S.n_transfers; i++) CHECK(G.nodes[S.transfers[i].node].leaf != GN_LEAF_STATE);
}

TEST(prefill_spreads_where_throughput_counts_and_its_decode_follows_the_caches) {
    uint32_t caches[4];
    caches_and_layers(caches, 4e9, false, 0);
    cluster_begin(2);
    REQUIRE(make(GN_MOST_THROUGHPUT) == GN_OK);
    CHECK_NEAR(S.step_seconds, 8, 0.01);
    CHECK(S.device[caches[0]] == S.device[caches[1]] && S.device[caches[1]] != S.device[caches[2]] &&
          S.device[caches[2]] == S.device[caches[3]]);
    uint32_t a = S.device[caches[0]], b = S.device[caches[3]];
    caches_and_layers(caches, 1e6, true, a);
    for (int i = 2; i < 4; i++) G.homes[caches[i]] = 1u << b;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    for (int i = 0; i < 4; i++) CHECK_INT(S.device[caches[i]], i < 2 ? a : b);
}

TEST(what_fits_on_no_device_is_split_at_its_narrow_edge) {
    graph_begin();
    uint32_t x = leaf_add(GN_LEAF_DATA, 1000), ops[6];
    for (int i = 0; i < 6; i++)
        ops[i] = x = work(i == 3 ? 1000 : 10000000, 1e8, x, leaf_add(GN_LEAF_WEIGHT, 100000000));
    out_add(x);
    graph_end();
    cluster_begin(2);
    memory(0, 450000000);
    memory(1, 450000000);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    for (int i = 0; i < 6; i++) CHECK((S.device[ops[i]] == S.device[ops[0]]) == (i < 4));
    CHECK(S.best_single == GN_UNPLACED && S.why[G.said[ops[5]].group] == GN_PLACED_MEMORY);
    CHECK_INT(S.bytes, 1000 + 1000 + 10000000);
    memory(1, 150000000);
    CHECK_RESULT(make(GN_LEAST_LATENCY), GN_OUT_OF_MEMORY);
    CHECK(strstr(fault.text, "600.0 MB of weights") && strstr(fault.text, "'d0' has 450.0 MB free") &&
          strstr(fault.text, "all 2 devices together 600.0 MB"));
}

TEST(memory_counts_what_lives_and_forgets_what_was_read) {
    graph_begin();
    uint32_t a = work(10000000, 1, leaf_add(GN_LEAF_DATA, 1000), NIL), b = work(10000000, 1, a, NIL),
             c = work(10000000, 1, b, NIL), d = work(10000000, 1, c, NIL);
    out_add(d);
    graph_end();
    cluster_begin(1);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.memory[0], 20001000); /* what an op reads and what it makes */
    out_add(a);
    out_add(b);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.memory[0], 40001000); /* outputs stay */
}

TEST(load_shifts_to_the_shorter_queue) {
    graph_begin();
    out_add(chain(leaf_add(GN_LEAF_DATA, 1000), 3, 1e9, 1000, 0));
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[1], 0);
    C.devices[0].queue_s = 10;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[1], 1);
    CHECK_NEAR(S.seconds, 3, 1e-4);
    two_encoders(1000);
    C.devices[0].queue_s = 1; /* one of two at the same time still gains */
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_NEAR(S.seconds, 5.1, 1e-4);
}

TEST(what_the_program_says_wins) {
    graph_begin();
    uint32_t a = chain(leaf_add(GN_LEAF_DATA, 1000), 2, 1e9, 1000, 0), b = chain(a, 1, 1e9, 1000, 0),
             c = chain(b, 1, 1e9, 1000, 0);
    out_add(c);
    hint_on(b, 1);
    graph_end();
    cluster_begin(2);
    links(1, 1e9);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[b], 1);
    CHECK_INT(S.why[G.said[b].group], GN_PLACED_HINTED);
    CHECK(S.device[a] == 1 && S.device[c] == 1); /* and the rest comes along */
    hint_on(a, 0);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[a] == 0 && S.device[b] == 1 && S.device[c] == 1 && S.best_single == GN_UNPLACED);
    hint_on(c, 2);
    CHECK_RESULT(make(GN_LEAST_LATENCY), GN_BAD_ARGUMENT);
}

TEST(a_group_said_to_run_on_two_devices_is_taken_apart) {
    graph_begin();
    uint32_t x = leaf_add(GN_LEAF_DATA, 1000), op[4];
    for (int i = 0; i < 4; i++) {
        op[i] = x = work(1000, 1e6, x, NIL);
        G.group_of[x] = op[0];
        hint_on(x, (uint32_t)i % 2);
    }
    out_add(x);
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    for (int i = 0; i < 4; i++) CHECK_INT(S.device[op[i]], i % 2);
    CHECK_INT(S.n_segments, 4);
}

TEST(a_state_goes_where_it_is_said_and_says_what_it_overrules) {
    graph_begin();
    uint32_t state = leaf_add(GN_LEAF_STATE, 5000), value = chain(leaf_add(GN_LEAF_DATA, 1000), 1, 1e6, 5000, 0),
             next = op_add(GN_OP_ASSIGN, 5000, 0, state, value, NIL);
    update_add(state, next);
    home_on(state, 0);
    hint_on(state, 1);
    hint_on(next, 0);
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[state] == 1 && S.device[next] == 1);
    CHECK_INT(S.move_bytes, 5000);
    CHECK_INT(S.overruled, 1);
}

TEST(cheap_values_are_computed_again_where_they_are_used) {
    encoders e;
    graph_begin();
    uint32_t range = op_add(GN_OP_ARANGE, 100000000, 1e5, NIL, NIL, NIL), mask = work(100000000, 1e5, range, NIL);
    e.first = work(1000, 4e9, leaf_add(GN_LEAF_DATA, 1000), mask);
    e.second = work(1000, 4e9, leaf_add(GN_LEAF_DATA, 1000), mask);
    e.join = work(1000, 1e8, e.first, e.second);
    out_add(e.join);
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[e.first] != S.device[e.second]);
    CHECK_INT(S.recomputed, 2);
    CHECK(S.avoided[GN_AVOIDED_RECOMPUTE] >= 100000000);
    CHECK(S.bytes == 4000 && S.seconds < 4.11);
    G.said[mask].flops = 1e9; /* not cheap: 1 s, and 0.1 s to send */
    G.groups[G.said[mask].group].flops = 1e9;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[e.first] != S.device[e.second]);
    CHECK_INT(S.recomputed, 0);
    CHECK_INT(S.bytes, 100004000);
}

TEST(weights_are_not_sent_to_a_second_device_for_a_small_gain) {
    graph_begin();
    uint32_t w = leaf_add(GN_LEAF_WEIGHT, 1000000000);
    out_add(work(1000, 1e7, leaf_add(GN_LEAF_DATA, 1000), w));
    home_on(w, 1);
    graph_end();
    cluster_begin(2);
    speed(0, 1.1e9);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[w + 2], 1);
    CHECK_INT(S.upload_bytes, 0);
    REQUIRE(make(GN_LEAST_BYTES) == GN_OK);
    CHECK_INT(S.device[w + 2], 1);
    speed(0, 1e11);
    G.said[w + 2].flops = 1e10;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[w + 2], 0);
    CHECK_INT(S.upload_bytes, 1000000000);
}

TEST(a_value_is_used_where_an_earlier_step_left_it) {
    graph_begin();
    uint32_t kept = leaf_add(GN_LEAF_VALUE, 50000000), y = work(1000, 1e6, kept, NIL);
    out_add(y);
    home_on(kept, 1);
    graph_end();
    cluster_begin(2);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[y], 1);
    CHECK_INT(S.bytes, 1000);
    C.devices[1].queue_s = 10;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK_INT(S.device[y], 0);
    CHECK(S.transfers[0].why == GN_TRANSFER_VALUE && S.transfers[0].from == 1 && S.transfers[0].to == 0);
}

TEST(an_op_that_a_device_lacks_runs_on_another) {
    uint8_t ops[16] = { 0 };
    graph_begin();
    uint32_t a = chain(leaf_add(GN_LEAF_DATA, 1000), 2, 1e9, 1000, 0), odd = op_add(GN_OP_EXP, 1000, 1e6, a, NIL, NIL),
             c = chain(odd, 2, 1e9, 1000, 0);
    out_add(c);
    graph_end();
    cluster_begin(2);
    speed(0, 1e10);
    uint16_t wire = gn__ops[GN_OP_ADD].wire;
    ops[wire / 8] = (uint8_t)(1u << (wire % 8));
    C.devices[0].ops = ops;
    C.devices[0].n_ops = sizeof ops;
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.device[a] == 0 && S.device[odd] == 1 && S.device[c] == 0);
    CHECK_INT(S.why[G.said[odd].group], GN_PLACED_OPS);
    CHECK_INT(S.n_segments, 3);
    C.devices[1].ops = ops;
    C.devices[1].n_ops = sizeof ops;
    CHECK_RESULT(make(GN_LEAST_LATENCY), GN_UNSUPPORTED);
    CHECK(strstr(fault.text, "exp"));
    C.devices[1].ops = NULL;
    hint_on(odd, 0);
    G.part.hints = G.hints;
    CHECK_RESULT(make(GN_LEAST_LATENCY), GN_UNSUPPORTED);
    CHECK(strstr(fault.text, "'d0'") && strstr(fault.text, "exp"));
}

TEST(a_cluster_that_is_none_is_refused) {
    two_encoders(10);
    cluster_begin(1);
    C.cluster.n_devices = 0;
    CHECK_RESULT(make(GN_LEAST_LATENCY), GN_BAD_ARGUMENT);
    cluster_begin(1);
    CHECK_RESULT(make(GN_POLICY__COUNT), GN_BAD_ARGUMENT);
    CHECK(S.n_segments == 0 && S.device == NULL);
    REQUIRE(make(GN_LEAST_LATENCY) == GN_OK);
    CHECK(S.n_segments == 1 && S.why[0] == GN_PLACED_ONLY && !S.refused);
}

/* ---- graphs of the real builders, with their real meaning ---- */

static float zeros[1 << 16];

static gn_tensor real_weight(gn_ctx *g, int64_t rows, int64_t columns) {
    return gn_weight(g, GN_F32, GN_SHAPE(rows, columns), zeros, "w");
}

enum { D_MODEL = 32 };

static gn_tensor real_layer(gn_ctx *g, gn_tensor x, int64_t t, bool cached, gn_tensor pos) {
    gn_tensor h = gn_rmsnorm(x, GN_NONE, 1e-5), qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] =
            gn_transpose(gn_reshape(gn_matmul(h, real_weight(g, D_MODEL, D_MODEL)), GN_SHAPE(1, t, 4, D_MODEL / 4)), 1,
                         2);
    for (int i = 1; i < 3 && cached; i++)
        qkv[i] = gn_kv_append(gn_state(g, GN_F32, GN_SHAPE(1, 4, 64, D_MODEL / 4), NULL, "cache"), qkv[i], pos);
    gn_tensor a = gn_reshape(gn_transpose(gn_attention(qkv[0], qkv[1], qkv[2], NULL), 1, 2), GN_SHAPE(t, D_MODEL));
    x = gn_add(x, gn_matmul(a, real_weight(g, D_MODEL, D_MODEL)));
    h = gn_layernorm(x, GN_NONE, GN_NONE, 1e-5);
    return gn_add(x, gn_matmul(gn_gelu(gn_matmul(h, real_weight(g, D_MODEL, 4 * D_MODEL))),
                               real_weight(g, 4 * D_MODEL, D_MODEL)));
}

static gn_tensor real_tower(gn_ctx *g, int layers, int64_t t, bool cached) {
    gn_tensor ids = gn_data(g, GN_I32, GN_SHAPE(t), zeros), pos = gn_scalar(g, GN_I64, 0),
              x = gn_embedding(real_weight(g, 100, D_MODEL), ids);
    for (int i = 0; i < layers; i++) x = real_layer(g, x, t, cached, pos);
    return x;
}

/* Two layers of states, a loss, gradients and their updates. */
static gn_tensor real_training(gn_ctx *g, int64_t rows) {
    gn_tensor w[2], v[2], grads[2], lr = gn_scalar(g, GN_F32, 0.1),
                                    x = gn_data(g, GN_F32, GN_SHAPE(rows, D_MODEL), zeros);
    for (int i = 0; i < 2; i++) {
        w[i] = gn_state(g, GN_F32, GN_SHAPE(D_MODEL, D_MODEL), NULL, "p");
        v[i] = gn_state(g, GN_F32, GN_SHAPE(D_MODEL, D_MODEL), NULL, "v");
    }
    gn_tensor y = gn_matmul(gn_relu(gn_matmul(x, w[0])), w[1]), loss = gn_mse_loss(y, x);
    gn_sgd_desc d = { lr, 0.9, 0.01 };
    CHECK_INT(gn_grad(loss, w, 2, grads), GN_OK);
    CHECK_INT(gn_sgd(&d, w, grads, v, 2), GN_OK);
    return loss;
}

static gn_tensor random_model(gn_ctx *g) {
    int kind = (int)test_random_int(0, 3);
    int64_t t = test_random_int(1, 8);
    if (kind == 0) return real_training(g, t);
    if (kind == 1)
        return gn_argmax(gn_matmul(real_tower(g, (int)test_random_int(1, 3), t, true), real_weight(g, D_MODEL, 100)),
                         GN_AXES(-1), false);
    gn_tensor y = gn_add(real_tower(g, (int)test_random_int(0, 2), t, false),
                         real_tower(g, (int)test_random_int(0, 2), t, kind == 2));
    return gn_softmax(gn_mul(y, gn_arange(g, GN_F32, D_MODEL, 0, 1)), -1);
}

TEST(models_of_the_real_builders_hold_what_is_promised) {
    for (int i = 0, n_rounds = test_rounds(600); i < n_rounds && !test__.failed_checks; i++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
        gn_meaning m;
        uint32_t root, bad;
        gn_result r;
        gn_tensor y = random_model(g);
        root = gn__resolve(g, y, &r);
        REQUIRE(r == GN_OK && gn__cut_make(g, &root, 1, &bad) == GN_OK &&
                gn_meaning_make(&g->cut.part, 0, NULL, &m, NULL) == GN_OK);
        random_cluster((uint32_t)test_random_int(1, 5), 200000);
        check_all(&g->cut.part, &m, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), NULL, true, true);
        gn_meaning_deinit(&m);
        gn_close(g);
    }
}

TEST(two_towers_run_apart_whole) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_meaning m;
    uint32_t bad, root;
    gn_result r;
    gn_tensor a = real_tower(g, 3, 8, false), b = real_tower(g, 3, 8, false),
              y = gn_softmax(gn_matmul(gn_add(a, b), real_weight(g, D_MODEL, 100)), -1);
    root = gn__resolve(g, y, &r);
    REQUIRE(r == GN_OK && gn__cut_make(g, &root, 1, &bad) == GN_OK &&
            gn_meaning_make(&g->cut.part, 0, NULL, &m, NULL) == GN_OK);
    cluster_begin(2);
    links(1e-6, 1e9);
    gn_schedule_deinit(&S);
    REQUIRE(gn_schedule_make(&g->cut.part, &m, &C.cluster, GN_LEAST_LATENCY, NULL, NULL, &S, NULL) == GN_OK);
    CHECK_INT(S.n_segments, 3); /* the branches inside the layers stay in their tower */
    CHECK(S.seconds < 0.56 * S.best_single_seconds);
    gn_meaning_deinit(&m);
    gn_close(g);
}

/* ---- explanations ---- */

static char told[1 << 20];

static const char *tell(gn_tensor t, gn_explain_format format, const gn_cluster *c, gn_policy policy) {
    gn_explain_desc d = { format, c, policy };
    size_t n = 0;
    told[0] = 0;
    if (!CHECK_RESULT(gn_explain(&t, 1, &d, told, sizeof told, &n), GN_OK))
        printf("  %s\n", gn_last_error(t.ctx)->text);
    CHECK_INT(n, strlen(told));
    return told;
}

static gn_tensor small_mlp(gn_ctx *g) {
    gn_tensor h =
        gn_relu(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(8, D_MODEL), zeros), real_weight(g, D_MODEL, 4 * D_MODEL)));
    return gn_softmax(gn_matmul(h, real_weight(g, 4 * D_MODEL, 10)), -1);
}

TEST(words_say_where_why_and_what_crosses) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor y = gn_label(small_mlp(g), "answer");
    const char *text = tell(y, GN_EXPLAIN_TEXT, NULL, GN_LEAST_LATENCY);
    CHECK(strstr(text, "1 of 1 device used") && strstr(text, "the only device"));
    CHECK(strstr(text, ": linear, head - ") && strstr(text, "crosses: 1.0 kB of data from the program to null"));
    CHECK(strstr(text, "crosses: 320 B of softmax 'answer' from null"));
    CHECK(strstr(text, "avoided: 22 kB of weights that stay on their device") &&
          strstr(text, "not measured: the speed of 1 device"));
    cluster_begin(2);
    text = tell(y, GN_EXPLAIN_TEXT, &C.cluster, GN_LEAST_LATENCY);
    CHECK(strstr(text, "least latency: 1 of 2 devices used") && strstr(text, "d0, 1.0 us to ") &&
          strstr(text, "the best single device"));
    CHECK(!strstr(text, "not measured"));
    gn_close(g);
}

/* Each role that is recognised is named: as a group, or within a group of another role. */
TEST(words_name_what_stands_within_groups) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    static int32_t ids[8];
    gn_tensor places = gn_arange(g, GN_I32, 8, 0, 1), word = gn_data(g, GN_I32, GN_SHAPE(8), ids), h[2];
    gn_tensor x =
        gn_add(gn_embedding(real_weight(g, 64, D_MODEL), word), gn_embedding(real_weight(g, 8, D_MODEL), places));
    for (int i = 0; i < 2; i++) {
        h[i] = gn_permute(gn_reshape(gn_matmul(x, real_weight(g, D_MODEL, D_MODEL)), GN_SHAPE(1, 8, 2, D_MODEL / 2)),
                          GN_AXES(0, 2, 1, 3));
        h[i] = gn_rotary(h[i], word, 10000, false);
    }
    const char *text = tell(gn_attention(h[0], h[1], h[1], NULL), GN_EXPLAIN_TEXT, NULL, GN_LEAST_LATENCY);
    CHECK(strstr(text, "rotary embedding, ") && strstr(text, ": embedding, "));
    CHECK(strstr(text, "\nwithin groups: positional embedding 1\n"));
    CHECK(strstr(tell(h[0], GN_EXPLAIN_SVG, NULL, GN_LEAST_LATENCY), ">rotary embedding<"));
    CHECK(strstr(tell(small_mlp(g), GN_EXPLAIN_TEXT, NULL, GN_LEAST_LATENCY), "\nwithin groups: sampling 1\n"));
    gn_close(g);
}

TEST(words_name_refusals_disagreements_and_fallbacks) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    uint8_t ops[64];
    gn_role(g, GN_ROLE_NORM);
    gn_tensor y =
        gn_label(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(8, D_MODEL), zeros), real_weight(g, D_MODEL, D_MODEL)), "odd");
    gn_role(g, GN_ROLE_NONE);
    y = gn_nonzero(y, 4);
    cluster_begin(2);
    memset(ops, 0xff, sizeof ops);
    uint16_t wire = gn__ops[GN_OP_NONZERO].wire;
    ops[wire / 8] = (uint8_t)(0xffu & ~(1u << (wire % 8)));
    C.devices[0].ops = ops;
    C.devices[0].n_ops = sizeof ops;
    speed(0, 1e12);
    speed(1, 1e5);
    const char *text = tell(y, GN_EXPLAIN_TEXT, &C.cluster, GN_LEAST_LATENCY);
    CHECK(strstr(text, "matmul 'odd' is said to be norm and looks like linear"));
    CHECK(strstr(text, "fallback: 1 ops run where they do because the other devices lack them"));
    gn_step(g);
    y = gn_add(small_mlp(g), small_mlp(g));
    cluster_begin(2);
    links(1, 1e3);
    CHECK(strstr(tell(y, GN_EXPLAIN_TEXT, &C.cluster, GN_LEAST_LATENCY), "refused: a split, predicted at "));
    gn_close(g);
}

TEST(explaining_computes_nothing_and_changes_nothing) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    gn_stats before, after;
    float out[80];
    gn_tensor s = gn_state(g, GN_F32, GN_SHAPE(1), NULL, "s"), next = gn_assign(s, gn_add_c(s, 1)), y = small_mlp(g);
    gn_get_stats(g, &before);
    tell(y, GN_EXPLAIN_TEXT, NULL, GN_LEAST_LATENCY);
    gn_get_stats(g, &after);
    CHECK(after.steps_run == before.steps_run && after.plans_made == before.plans_made &&
          after.nodes_built == before.nodes_built);
    CHECK_RESULT(gn_read(y, out, sizeof out), GN_OK);
    CHECK_RESULT(gn_read(next, out, sizeof *out), GN_OK);
    CHECK_NEAR(out[0], 1, 0);
    gn_close(g);
}

TEST(a_call_that_cannot_be_explained_says_why) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor y = small_mlp(g), bad = gn_matmul(y, y);
    gn_explain_desc d = { GN_EXPLAIN__COUNT, NULL, GN_LEAST_LATENCY };
    char small[10];
    size_t n = 0, again = 0;
    CHECK_RESULT(gn_explain(&y, 1, NULL, NULL, 0, &n), GN_OK);
    CHECK_RESULT(gn_explain(&y, 1, NULL, small, sizeof small, &again), GN_BAD_SIZE);
    CHECK(n > sizeof small && again == n);
    CHECK_RESULT(gn_explain(&y, 1, NULL, told, n, NULL), GN_BAD_SIZE);
    CHECK_RESULT(gn_explain(&y, 1, NULL, told, n + 1, NULL), GN_OK);
    CHECK_RESULT(gn_explain(&y, 1, NULL, told, 0, NULL), GN_BAD_SIZE);
    CHECK_RESULT(gn_explain(&y, 0, NULL, told, sizeof told, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_explain(&y, 1, &d, told, sizeof told, NULL), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_explain(&bad, 1, NULL, told, sizeof told, NULL), GN_BAD_SHAPE);
    cluster_begin(2);
    memory(0, 100);
    memory(1, 100);
    d = (gn_explain_desc){ GN_EXPLAIN_SVG, &C.cluster, GN_LEAST_LATENCY };
    CHECK_RESULT(gn_explain(&y, 1, &d, told, sizeof told, NULL), GN_OUT_OF_MEMORY);
    CHECK(strstr(gn_last_error(g)->text, "no placement fits"));
    CHECK(strstr(gn_last_error(g)->text, "all 2 devices together 0.0 MB: 0.0 MB are missing"));
    gn_close(g);
    CHECK_RESULT(gn_explain(&y, 1, NULL, told, sizeof told, NULL), GN_CLOSED_CONTEXT);
}

/* ---- the picture is XML, and everything lies inside it ---- */

/* Elements nest, attributes are quoted, text holds no bare markup. Returns elements, -1 for what is not well-formed. */
static int xml_elements(const char *p) {
    char open[32][16];
    int depth = 0, n = 0;
    for (; *p; p++) {
        if (*p == '&' && strncmp(p, "&lt;", 4) && strncmp(p, "&gt;", 4) && strncmp(p, "&amp;", 5) &&
            strncmp(p, "&quot;", 6))
            return -1;
        if (*p == '>' || (unsigned char)*p > 126) return -1;
        if (*p != '<') continue;
        bool closes = p[1] == '/';
        size_t length = strcspn(p + 1 + closes, " />");
        const char *name = p + 1 + closes, *end = name + length;
        if (length == 0 || length > 15 || depth > 30) return -1;
        while (*end && *end != '>' && *end != '/') { /* name="value" */
            end += strspn(end, " ");
            if (*end == '>' || *end == '/') break;
            end += strcspn(end, "=<> \"");
            if (strncmp(end, "=\"", 2)) return -1;
            end += 2 + strcspn(end + 2, "\"<");
            if (*end++ != '"') return -1;
        }
        bool empty = *end == '/';
        end += empty;
        if (*end != '>') return -1;
        if (closes && (depth == 0 || strlen(open[depth - 1]) != length || strncmp(open[depth - 1], name, length)))
            return -1;
        if (closes) depth--;
        else n++;
        if (!closes && !empty) {
            memcpy(open[depth], name, length);
            open[depth++][length] = 0;
        }
        p = end;
    }
    return depth == 0 ? n : -1;
}

static double attribute(const char *element, const char *name) {
    char key[24];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *end = strchr(element, '>'), *at = strstr(element, key);
    return at && end && at < end ? strtod(at + strlen(key), NULL) : NAN;
}

static void check_picture(const char *svg) {
    double w = attribute(svg, "width"), h = attribute(svg, "height");
    CHECK(xml_elements(svg) > 10);
    CHECK(w > 0 && w < 20000 && h > 0 && h < 20000);
    for (const char *p = strstr(svg, "<rect x="); p; p = strstr(p + 1, "<rect x="))
        CHECK(attribute(p, "x") >= 0 && attribute(p, "y") >= 0 && attribute(p, "x") + attribute(p, "width") <= w &&
              attribute(p, "y") + attribute(p, "height") <= h);
    for (const char *p = strstr(svg, "<text x="); p; p = strstr(p + 1, "<text x="))
        CHECK(attribute(p, "x") >= 0 && attribute(p, "x") < w && attribute(p, "y") > 0 && attribute(p, "y") < h);
    /* boxes do not lie on each other */
    for (const char *p = strstr(svg, "height=\"42\" rx=\"4\""); p; p = strstr(p + 1, "height=\"42\" rx=\"4\""))
        for (const char *q = strstr(p + 1, "height=\"42\" rx=\"4\""); q; q = strstr(q + 1, "height=\"42\" rx=\"4\"")) {
            const char *a = p, *b = q;
            while (*a != '<') a--;
            while (*b != '<') b--;
            CHECK(fabs(attribute(a, "x") - attribute(b, "x")) >= 112 ||
                  fabs(attribute(a, "y") - attribute(b, "y")) >= 42);
        }
}

static int occurrences(const char *text, const char *word) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p++) n++;
    return n;
}

TEST(a_picture_of_a_transformer_folds_what_repeats) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor y = gn_argmax(gn_matmul(real_tower(g, 12, 8, true), real_weight(g, D_MODEL, 100)), GN_AXES(-1), false);
    cluster_begin(1);
    const char *svg = tell(y, GN_EXPLAIN_SVG, &C.cluster, GN_LEAST_LATENCY);
    check_picture(svg);
    CHECK_INT(occurrences(svg, ">12 times<"), 1);
    CHECK(occurrences(svg, "height=\"42\" rx=\"4\"") < 15 && strstr(svg, ">attention<") && strstr(svg, ">d0<"));
    cluster_begin(2);
    svg = tell(y, GN_EXPLAIN_SVG, &C.cluster, GN_MOST_THROUGHPUT);
    check_picture(svg);
    CHECK(strstr(svg, ">d0<") && strstr(svg, ">d1<") && strstr(svg, "most throughput"));
    CHECK(occurrences(svg, "marker-end") >= 3); /* in, across, out */
    gn_close(g);
}

TEST(a_picture_escapes_what_others_named) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    cluster_begin(1);
    snprintf(C.devices[0].name, sizeof C.devices[0].name, "<a&\"b\">\x01");
    const char *svg = tell(small_mlp(g), GN_EXPLAIN_SVG, &C.cluster, GN_LEAST_LATENCY);
    check_picture(svg);
    CHECK(strstr(svg, ">&lt;a&amp;&quot;b&quot;&gt;?<"));
    CHECK(xml_elements("<a>&b</a>") == -1 && xml_elements("<a><b></a></b>") == -1 && xml_elements("<a x=1/>") == -1 &&
          xml_elements("<a x=\"1\"><b/></a>") == 2);
    gn_close(g);
}

TEST(pictures_of_random_models_are_well_formed) {
    for (int i = 0, n_rounds = test_rounds(150); i < n_rounds && !test__.failed_checks; i++) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
        random_cluster((uint32_t)test_random_int(1, 5), 200000);
        for (uint32_t d = 0; d < C.cluster.n_devices; d++) memory(d, 0);
        gn_tensor y = random_model(g);
        check_picture(tell(y, GN_EXPLAIN_SVG, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT)));
        CHECK(strlen(tell(y, GN_EXPLAIN_TEXT, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT))) > 100);
        gn_close(g);
    }
}

TEST(each_allocation_may_fail) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "null" });
    gn_tensor y = real_training(g, 4);
    cluster_begin(2);
    memory(0, 60000);
    gn_explain_desc d = { GN_EXPLAIN_SVG, &C.cluster, GN_MOST_THROUGHPUT };
    CHECK_RESULT(gn_explain(&y, 1, &d, told, sizeof told, NULL), GN_OK);
    long before = held, n = 0;
    gn_result r = GN_OUT_OF_MEMORY;
    for (; r == GN_OUT_OF_MEMORY && n < 100000; n++) {
        allocations = 0;
        fails_at = n;
        r = gn_explain(&y, 1, &d, told, sizeof told, NULL);
        fails_at = -1;
        CHECK_INT(held, before);
    }
    CHECK(r == GN_OK && n > 50);
    gn_close(g);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(random_graphs_on_random_clusters_hold_what_is_promised),
        TEST_ENTRY(random_homes_and_hints_hold),
        TEST_ENTRY(a_thousand_devices_are_scheduled),
        TEST_ENTRY(two_encoders_run_at_the_same_time),
        TEST_ENTRY(two_encoders_stay_together_behind_a_slow_link),
        TEST_ENTRY(a_split_that_gains_little_is_refused),
        TEST_ENTRY(least_bytes_and_least_latency_differ),
        TEST_ENTRY(throughput_splits_a_chain_that_latency_does_not),
        TEST_ENTRY(decode_stays_with_its_cache),
        TEST_ENTRY(prefill_spreads_where_throughput_counts_and_its_decode_follows_the_caches),
        TEST_ENTRY(what_fits_on_no_device_is_split_at_its_narrow_edge),
        TEST_ENTRY(memory_counts_what_lives_and_forgets_what_was_read),
        TEST_ENTRY(load_shifts_to_the_shorter_queue),
        TEST_ENTRY(what_the_program_says_wins),
        TEST_ENTRY(a_group_said_to_run_on_two_devices_is_taken_apart),
        TEST_ENTRY(a_state_goes_where_it_is_said_and_says_what_it_overrules),
        TEST_ENTRY(cheap_values_are_computed_again_where_they_are_used),
        TEST_ENTRY(weights_are_not_sent_to_a_second_device_for_a_small_gain),
        TEST_ENTRY(a_value_is_used_where_an_earlier_step_left_it),
        TEST_ENTRY(an_op_that_a_device_lacks_runs_on_another),
        TEST_ENTRY(a_cluster_that_is_none_is_refused),
        TEST_ENTRY(models_of_the_real_builders_hold_what_is_promised),
        TEST_ENTRY(two_towers_run_apart_whole),
        TEST_ENTRY(words_say_where_why_and_what_crosses),
        TEST_ENTRY(words_name_what_stands_within_groups),
        TEST_ENTRY(words_name_refusals_disagreements_and_fallbacks),
        TEST_ENTRY(explaining_computes_nothing_and_changes_nothing),
        TEST_ENTRY(a_call_that_cannot_be_explained_says_why),
        TEST_ENTRY(a_picture_of_a_transformer_folds_what_repeats),
        TEST_ENTRY(a_picture_escapes_what_others_named),
        TEST_ENTRY(pictures_of_random_models_are_well_formed),
        TEST_ENTRY(each_allocation_may_fail),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    gn_schedule_deinit(&S);
    return test_end();
}
