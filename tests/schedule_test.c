/* Where the parts of a graph run: properties of the scheduler over thousands of random graphs and clusters, and clusters whose
 * right answer is known by hand. Most graphs here are made of nodes with invented sizes and costs; the scheduler asks no more. */
#define _GNU_SOURCE
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
    G.nodes[i] = (gn_part_node){ .op = (uint16_t)(leaf ? gn__op_leaf(leaf) : op), .dtype = GN_U8, .leaf = (uint8_t)leaf, .rank = 1, .ins = G.part.n_ins, .dims = i, .slot = i };
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
static uint32_t work(int64_t bytes, double flops, uint32_t a, uint32_t b) { return op_add(GN__OP_ADD, bytes, flops, a, b, NIL); }
static void out_add(uint32_t node) { G.outs[G.part.n_outs++] = node; }
static void update_add(uint32_t state, uint32_t node) { G.updates[G.part.n_updates++] = (gn_part_update){ G.nodes[state].slot, 0, node }; }
static void hint_on(uint32_t node, uint32_t d) { G.hints[node].on = d + 1; G.hinted = true; }
static void home_on(uint32_t node, uint32_t d) { G.homes[node] |= 1u << d; G.homed = true; }

/* Groups from group_of[], which is any node of the group; numbered by their last node, which keeps topological order for groups of
   neighbours. */
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
    for (uint32_t i = 0; i < (C.cluster.n_devices + 1) * (C.cluster.n_devices + 1); i++) C.links[i] = (gn_cluster_link){ latency_s, bytes_per_s };
}

static gn_schedule S;
static gn_fault fault;

static gn_result make(gn_policy policy) {
    gn_schedule_deinit(&S);
    memset(&fault, 0, sizeof fault);
    return gn_schedule_make(&G.part, &G.meaning, &C.cluster, policy, G.homed ? G.homes : NULL, &S, &fault);
}

/* ---- what holds of every schedule ---- */

typedef struct view_of { const gn_part *p; const gn_cluster *c; const uint32_t *homes; const gn_schedule *s; } view_of;

static bool at_home(const view_of *v, uint32_t node, uint32_t d) { return v->homes && d < 32 && ((v->homes[node] >> d) & 1); }

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
    if (t && t->consumer <= seg && t->end_s <= s->segments[seg].start_s + 1e-12) return t->producer == UINT32_MAX || t->producer < seg;
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
        CHECK(leaf ? t->producer == UINT32_MAX : s->segments[t->producer].device == t->from && holds(&s->segments[t->producer], s, t->node) && t->start_s >= s->segments[t->producer].end_s);
        CHECK(t->to == D ? t->consumer == UINT32_MAX : s->segments[t->consumer].device == t->to);
        for (uint32_t k = i + 1; k < s->n_transfers; k++) CHECK(s->transfers[k].node != t->node || s->transfers[k].to != t->to);
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

/* Weights, states and what is certainly alive, counted here again: at least this much a device holds at the same time. */
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
            if (on[d] && !at_home(v, x, d) && (v->p->nodes[x].leaf == GN_LEAF_WEIGHT || s->device[x] == d)) resident[d] += (uint64_t)v->p->dims[v->p->nodes[x].dims] * (views ? 0 : 1);
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
    for (uint32_t x = 0; x < v->p->n_nodes && !views; x++)         /* one op's inputs and its result are alive together, somewhere */
        if (v->p->nodes[x].leaf == GN_LEAF_NONE && v->p->nodes[x].op == GN__OP_ADD) CHECK(live >= (uint64_t)v->p->dims[v->p->nodes[x].dims]);
}

static void check_states(const view_of *v) {
    const gn_schedule *s = v->s;
    for (uint32_t i = 0; i < v->p->n_updates; i++)
        for (uint32_t x = 0; x < v->p->n_nodes; x++)
            if (v->p->nodes[x].leaf == GN_LEAF_STATE && v->p->nodes[x].slot == v->p->updates[i].slot) CHECK_INT(s->device[v->p->updates[i].node], s->device[x]);
    uint32_t overruled = 0;
    for (uint32_t x = 0; x < v->p->n_nodes && v->p->hints; x++)
        if (v->p->nodes[x].leaf == GN_LEAF_NONE && v->p->hints[x].on && s->device[x] != v->p->hints[x].on - 1) {
            overruled++;
            CHECK(v->p->nodes[x].op == GN__OP_ASSIGN || v->p->nodes[x].op == GN__OP_KV_APPEND || s->overruled > 0);
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
        gn_cluster_link l[4] = { { 0, 0 }, v->c->links[d * (v->c->n_devices + 1) + v->c->n_devices], v->c->links[v->c->n_devices * (v->c->n_devices + 1) + d], { 0, 0 } };
        gn_cluster one = { 1, &v->c->devices[d], l };
        gn_schedule s;
        if (gn_schedule_make(v->p, m, &one, policy, NULL, &s, NULL) != GN_OK) continue;
        CHECK_INT(s.n_segments, v->p->n_nodes > 0);
        best = fmin(best, objective(&s, policy));
        gn_schedule_deinit(&s);
    }
    *out_any = best < INFINITY;
    if (v->s->segments && *out_any) CHECK(objective(v->s, policy) <= best * (1 + 1e-9));
}

static bool same(const void *a, const void *b, size_t n) { return n == 0 || memcmp(a, b, n) == 0; }

static void check_again(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy, const uint32_t *homes, const gn_schedule *s) {
    gn_schedule t;
    REQUIRE(gn_schedule_make(p, m, c, policy, homes, &t, NULL) == GN_OK);
    CHECK(t.n_segments == s->n_segments && t.n_transfers == s->n_transfers && t.seconds == s->seconds && t.bytes == s->bytes);
    CHECK(same(t.device, s->device, s->n_nodes * sizeof *t.device) && same(t.segments, s->segments, s->n_segments * sizeof *t.segments));
    for (uint32_t i = 0; i < s->n_transfers; i++) CHECK(t.transfers[i].node == s->transfers[i].node && t.transfers[i].to == s->transfers[i].to && t.transfers[i].start_s == s->transfers[i].start_s);
    gn_schedule_deinit(&t);
}

static void check_all(const gn_part *p, const gn_meaning *m, const gn_cluster *c, gn_policy policy, const uint32_t *homes, bool free_choice, bool views) {
    gn_result r = gn_schedule_make(p, m, c, policy, homes, &S, &fault);
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
        else if (kind == 2 && n_states < 64) { versions[n_states] = states[n_states] = leaves[n_leaves++] = leaf_add(GN_LEAF_STATE, test_random_int(1, 4 * big)); n_states++; }
        else if (kind == 3 && n_states && n_ops) {
            uint32_t k = (uint32_t)test_random_int(0, n_states - 1), value = ops[test_random_int(0, n_ops - 1)];
            bool append = test_random_int(0, 1);
            versions[k] = op_add(append ? GN__OP_KV_APPEND : GN__OP_ASSIGN, G.dims[states[k]], 0, versions[k], value, append ? leaves[0] : NIL);
            ops[n_ops++] = versions[k];
        } else if (kind == 4 && test_random_int(0, 2) == 0) ops[n_ops++] = op_add(GN__OP_ARANGE, test_random_int(1, big), 10, NIL, NIL, NIL);
        else {
            uint32_t in[3] = { NIL, NIL, NIL };
            for (int64_t k = 0, many = test_random_int(1, 3); k < many; k++) {
                bool from_leaf = !n_ops || test_random_int(0, 3) == 0;
                int64_t reach = test_random_real(0, 1) < branchy ? n_ops : n_ops < 3 ? n_ops : 3;
                in[k] = from_leaf ? leaves[test_random_int(0, n_leaves - 1)] : ops[n_ops - 1 - (uint32_t)test_random_int(0, reach - 1)];
            }
            ops[n_ops++] = op_add(GN__OP_ADD, test_random_int(1, big), test_random_real(0, 1) < 0.1 ? 0 : pow(10, test_random_real(3, 10)), in[0], in[1], in[2]);
        }
    }
    for (uint32_t k = 0; k < n_states; k++)
        if (versions[k] != states[k]) update_add(states[k], versions[k]);
    for (int64_t k = test_random_int(1, 3); k > 0 && n_ops; k--) out_add(ops[n_ops - 1 - (uint32_t)test_random_int(0, n_ops < 4 ? n_ops - 1 : 3)]);
    for (uint32_t k = 1; k < G.part.n_nodes && test_random_int(0, 1); k++)         /* groups of neighbours */
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
    for (int i = 0; i < 4000 && !test__.failed_checks; i++) {
        random_graph((int)test_random_int(1, 70));
        random_cluster((uint32_t)test_random_int(1, 6), graph_bytes());
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), NULL, true, false);
        if (test__.failed_checks) printf("  graph %d\n", i);
    }
}

TEST(random_homes_and_hints_hold) {
    for (int i = 0; i < 3000 && !test__.failed_checks; i++) {
        random_graph((int)test_random_int(1, 60));
        uint32_t n = (uint32_t)test_random_int(1, 5);
        random_cluster(n, 4 * graph_bytes());
        bool all = test_random_int(0, 3) == 0, homes = test_random_int(0, 1);
        for (uint32_t k = 0; k < G.part.n_nodes; k++) {
            if (all || test_random_int(0, 9) == 0) hint_on(k, (uint32_t)test_random_int(0, n - 1));
            if (homes && (G.nodes[k].leaf >= GN_LEAF_VALUE) && test_random_int(0, 1)) home_on(k, (uint32_t)test_random_int(0, n - 1));
        }
        G.part.hints = G.hinted ? G.hints : NULL;
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), G.homed ? G.homes : NULL, false, false);
        if (test__.failed_checks) printf("  graph %d\n", i);
    }
}

TEST(a_thousand_devices_are_scheduled) {
    for (int i = 0; i < 6 && !test__.failed_checks; i++) {
        random_graph(300);
        random_cluster((uint32_t)test_random_int(200, MAX_DEVICES), graph_bytes());
        check_all(&G.part, &G.meaning, &C.cluster, (gn_policy)(i % GN_POLICY__COUNT), NULL, true, false);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(random_graphs_on_random_clusters_hold_what_is_promised), TEST_ENTRY(random_homes_and_hints_hold), TEST_ENTRY(a_thousand_devices_are_scheduled),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    gn_schedule_deinit(&S);
    return test_end();
}
