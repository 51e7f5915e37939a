/* A session of a server against a client that is bound by nothing: messages in any order with any field at any value.
 * The input is a list of messages, each field a byte: 255 is the value that an honest client would send now, so that
 * alterations stay near a session that works. Afterwards nothing of the session is left: memory is as before, and the
 * server has let go of it. */
#include "fuzz.h"
#include "graph_program.h"

/* bytes; messages of one input; bytes of the weight */
enum { SESSION_MEMORY = 8 << 20, SESSION_MESSAGES = 64, SESSION_WEIGHT = 96 };

/* Plans as programs. Slot 1 is the weight, slot 2 the state. */
static const uint8_t session_neg[] = { GRAPH_DATA, GN_F32 - 1, 1, 5, GRAPH_OP(NEG), 0, 0, GRAPH_OUT, 0 };
static const uint8_t session_value[] = { GRAPH_VALUE, GN_F32 - 1, 1, 5, GRAPH_OUT, 0,
                                         GRAPH_VALUE, GN_F32 - 1, 1, 5, GRAPH_OUT, 0 };
static const uint8_t session_many[] = { GRAPH_FULL, GN_F32 - 1, 2, 7, 8, GRAPH_REPEAT, 3, GRAPH_OUT_ALL };
static const uint8_t session_slots[] = {
    GRAPH_WEIGHT, GN_F32 - 1, 2, 3, 6, 1, GRAPH_STATE, GN_F32 - 1, 2, 3, 6, 2, GRAPH_OUT, 1, GRAPH_OUT, 0,
    GRAPH_UPDATE, 2,          1
};
static const uint8_t session_fails[] = {
    GRAPH_DATA, GN_I32 - 1, 1, 5,         GRAPH_FULL, GN_F32 - 1, 1, 9, GRAPH_OUT, 0, GRAPH_OP(FLOOR_DIVIDE),
    0,          1,          1, GRAPH_OUT, 0
};

static const struct {
    const uint8_t *p;
    size_t n;
} session_plans[] = {
    { session_neg, sizeof session_neg },     { session_value, sizeof session_value },
    { session_many, sizeof session_many },   { session_slots, sizeof session_slots },
    { session_fails, sizeof session_fails },
};

typedef struct session_peer {
    fuzz_input in;
    gn_server *server;
    gn__outbox out;
    gn__buf wire, part;
    size_t at;               /* bytes of wire that the server has */
    uint32_t messages, plan; /* sent so far; the latest plan */
    uint64_t keep;           /* the latest kept value's id */
    gn__mutex lock;
    gn__cond changed;
    bool closed;
} session_peer;

static uint64_t session_int(session_peer *x, uint64_t max, uint64_t right) {
    const uint64_t edges[16] = { 0,
                                 1,
                                 max - 1,
                                 max,
                                 INT32_MAX,
                                 (uint64_t)1 << 31,
                                 UINT32_MAX,
                                 (uint64_t)1 << 32,
                                 INT64_MAX,
                                 (uint64_t)1 << 63,
                                 UINT64_MAX - 1,
                                 UINT64_MAX,
                                 right + 1,
                                 right - 1,
                                 max / 2,
                                 max + 1 };
    uint8_t c = fuzz_byte(&x->in);
    return c == 255 ? right : c >= 128 ? edges[c & 15] : c;
}

/* The same, at most `most`. */
static uint64_t session_count(session_peer *x, uint64_t max, uint64_t right, uint64_t most) {
    uint64_t v = session_int(x, max, right);
    return v < most ? v : most;
}

static void session_weight(uint8_t *bytes, uint8_t digest[32]) {
    for (size_t i = 0; i < SESSION_WEIGHT; i++) bytes[i] = (uint8_t)(i * 3);
    gn__net->sha256(bytes, SESSION_WEIGHT, digest);
}

/* The session in the server; its own thread asks, perhaps before the server has entered it into its list. */
static gn__session *session_of(const session_peer *x) {
    gn__mutex_lock(&x->server->lock);
    gn__session *s = x->server->sessions;
    gn__mutex_unlock(&x->server->lock);
    return s;
}

static gn__served_plan *session_plan(const session_peer *x, uint32_t id) {
    return gn__map_get(&session_of(x)->plans, id);
}

/* What an honest client would send in this field. */
static uint64_t session_right(const session_peer *x, uint16_t id, const char *name) {
    static const struct {
        const char *name;
        uint64_t v;
    } fixed[] = {
        { "magic", GN__WIRE_MAGIC },
        { "version_min", 1 },
        { "version_max", 1 },
        { "features", GN__FEATURES },
        { "codecs", 1 },
        { "gen", 1 },
        { "slot", 2 },
        { "total", SESSION_WEIGHT },
        { "element", 4 },
        { "dtype", GN_F32 },
    };
    const gn__session *s = session_of(x);
    for (size_t i = 0; i < GN__LENGTH(fixed); i++)
        if (strcmp(name, fixed[i].name) == 0) return fixed[i].v;
    return strcmp(name, "sequence") == 0  ? s->sequence + 1
           : strcmp(name, "seen") == 0    ? s->step_failures
           : strcmp(name, "plan") == 0    ? x->plan + (id == GN__MSG_PLAN_PUT)
           : strcmp(name, "request") == 0 ? x->messages
                                          : 0;
}

/* ---- messages whose fields depend on each other ---- */

static void session_plan_put(session_peer *x, gn__msg_plan_put *m) {
    uint8_t which = fuzz_byte(&x->in);
    const size_t n = GN__LENGTH(session_plans);
    fuzz_input program = { which < n ? session_plans[which].p : x->in.p,
                           which < n ? session_plans[which].n : GN__MIN((size_t)which, x->in.n) };
    gn_part *part = NULL;
    if (which >= n) {
        x->in.p += program.n;
        x->in.n -= program.n;
    }
    gn__buf_reset(&x->part);
    graph_program(&program, &x->part);
    uint64_t hash =
        x->part.n && gn__part_decode(x->part.p, x->part.n, GN__WIRE_NODES, NULL, &part, NULL) == GN_OK ? part->hash : 0;
    m->plan = (uint32_t)session_int(x, UINT32_MAX, x->plan + 1);
    m->hash = session_int(x, UINT64_MAX, hash);
    m->packed = (uint32_t)session_int(x, UINT32_MAX, 0);
    m->part = (gn__span){ x->part.p, x->part.n };
    x->plan = m->plan;
    gn_free(part);
}

static void session_slot_put(session_peer *x, gn__msg_slot_put *m, uint8_t digest[32], uint8_t *bytes,
                             uint8_t dims[GN_MAX_RANK * 8]) {
    static const int64_t right[2] = { 3, 8 };
    bool weight = fuzz_byte(&x->in) & 1;
    session_weight(bytes, digest);
    m->slot = (uint32_t)session_int(x, UINT32_MAX, weight ? 1 : 2);
    m->gen = (uint32_t)session_int(x, UINT32_MAX, 1);
    m->kind = (uint8_t)session_int(x, GN_LEAF__COUNT - 1, weight ? GN_LEAF_WEIGHT : GN_LEAF_STATE);
    m->fill = (uint8_t)session_int(x, GN__FILL__COUNT - 1, weight ? GN__FILL_DIGEST : GN__FILL_BYTES);
    m->dtype = (uint8_t)session_int(x, GN_DTYPE__COUNT - 1, GN_F32);
    m->dims = (gn__span){ dims, session_count(x, GN_MAX_RANK, 2, GN_MAX_RANK) };
    for (uint64_t i = 0; i < m->dims.n; i++) {
        uint64_t d = session_int(x, (uint64_t)1 << 47, i < 2 ? (uint64_t)right[i] : 1);
        for (int k = 0; k < 8; k++) dims[i * 8 + (uint64_t)k] = (uint8_t)(d >> (8 * k));
    }
    m->digest = (gn__span){ digest, session_count(x, 32, weight ? 32 : 0, 32) };
    m->blob = (gn__span){ bytes, session_count(x, SESSION_WEIGHT, weight ? 0 : SESSION_WEIGHT, SESSION_WEIGHT) };
}

/* Flags of the outputs, ids of those kept, then arguments: zeros, or the id of a value. */
static void session_step(session_peer *x, gn__msg_step *m, gn__buf *outs, gn__buf *keeps, gn__buf *args) {
    m->plan = (uint32_t)session_int(x, UINT32_MAX, x->plan);
    m->sequence = session_int(x, UINT64_MAX, session_right(x, GN__MSG_STEP, "sequence"));
    m->release = session_int(x, UINT64_MAX, 0);
    m->seen = (uint32_t)session_int(x, UINT32_MAX, session_right(x, GN__MSG_STEP, "seen"));
    const gn__served_plan *p = session_plan(x, m->plan);
    const uint64_t kept = x->keep, n_outs = p ? p->ports.n_outs : 1, n_args = p ? p->ports.n_args : 1;
    for (uint64_t i = 0, n = session_count(x, GN__WIRE_NODES, n_outs, 1000); i < n; i++) {
        uint8_t flags = (uint8_t)session_int(x, 255, GN__OUT_WANTED | GN__OUT_KEPT);
        gn__put_u8(outs, flags);
        if (flags & GN__OUT_KEPT) {
            uint64_t id = session_int(x, UINT64_MAX, session_of(x)->last_keep + 1 + keeps->n / 8);
            gn__put_u64(keeps, id);
            x->keep = id;
        }
    }
    for (uint64_t i = 0; i < n_args && p && p->ports.args; i++) {
        const gn__port *port = &p->ports.args[i];
        if (port->value) gn__put_u64(args, session_int(x, UINT64_MAX, kept));
        else
            for (size_t k = 0, n = (size_t)session_int(x, UINT16_MAX, port->bytes); k < n && k < 4096; k++)
                gn__put_u8(args, 0);
    }
    m->outs = (gn__span){ outs->p, outs->n };
    m->keeps = (gn__span){ keeps->p, keeps->n / 8 };
    m->args = (gn__span){ args->p, args->n };
}

/* Any other message: its integers by name, its arrays and tail of some length. */
static void session_fields(session_peer *x, const gn__msg_info *info, uint8_t *m, uint8_t digest[64],
                           uint8_t bytes[1024]) {
    session_weight(bytes, digest);
    digest[32] = SESSION_WEIGHT;
    for (uint16_t i = 0; i < info->n_fields; i++) {
        const gn__field *d = &info->fields[i];
        bool ask = strcmp(d->name, "digests") == 0, blob = strcmp(d->name, "blob") == 0;
        gn__span s = { ask ? digest : bytes, 0 };
        if (d->kind <= GN__KIND_u64) {
            gn__field_set_int(d, m, session_int(x, d->max, session_right(x, info->id, d->name)));
        } else if (d->kind == GN__KIND_digest) {
            memcpy(m + d->offset, session_int(x, 1, 0) == 0 ? digest : bytes, 32);
        } else {
            s.n = session_count(x, d->max,
                                ask    ? 1
                                : blob ? SESSION_WEIGHT
                                       : 0,
                                ask ? 1u : 1024u / GN__MAX(d->unit, 1u));
            memcpy(m + d->offset, &s, sizeof s);
        }
    }
}

static void session_message(session_peer *x, uint16_t id) {
    union {
#define GN__X(NAME, name, id, direction, help) gn__msg_##name name;
        GN__MESSAGES(GN__X)
#undef GN__X
    } m;
    uint8_t digest[64] = { 0 }, bytes[1024] = { 0 }, dims[GN_MAX_RANK * 8];
    gn__buf a = { NULL, 0, 0, false }, b = a, c = a;
    memset(&m, 0, sizeof m);
    if (id == GN__MSG_PLAN_PUT) session_plan_put(x, &m.plan_put);
    else if (id == GN__MSG_SLOT_PUT) session_slot_put(x, &m.slot_put, digest, bytes, dims);
    else if (id == GN__MSG_STEP) session_step(x, &m.step, &a, &b, &c);
    else session_fields(x, gn__msg_find(id), (uint8_t *)&m, digest, bytes);
    gn__outbox_message(&x->out, id, ++x->messages, &m);
    gn__outbox_flush(&x->out);
    gn__buf_deinit(&a);
    gn__buf_deinit(&b);
    gn__buf_deinit(&c);
}

/* ---- the transport: messages are made when the server asks for bytes ---- */

static gn_result session_sink(void *user, const uint8_t *p, size_t n) {
    gn__put_bytes(&((session_peer *)user)->wire, p, n);
    return GN_OK;
}

static gn_result session_send(void *self, const void *data, size_t n, uint32_t timeout_ms) {
    (void)self;
    (void)data;
    (void)n;
    (void)timeout_ms;
    return GN_OK;
}

static gn_result session_recv(void *self, void *data, size_t max, size_t *out_n, uint32_t timeout_ms) {
    session_peer *x = self;
    (void)timeout_ms;
    while (x->at == x->wire.n) {
        if (!x->in.n || x->messages == SESSION_MESSAGES || x->wire.failed) return GN_DISCONNECTED;
        gn__buf_reset(&x->wire);
        x->at = 0;
        session_message(x, (uint16_t)(1 + fuzz_byte(&x->in) % (GN__MSG__COUNT - 1)));
    }
    size_t n = GN__MIN(max, x->wire.n - x->at);
    memcpy(data, x->wire.p + x->at, n);
    x->at += n;
    *out_n = n;
    return GN_OK;
}

static void session_interrupt(void *self) { (void)self; }

static void session_close(void *self) {
    session_peer *x = self;
    gn__mutex_lock(&x->lock);
    x->closed = true;
    gn__cond_broadcast(&x->changed);
    gn__mutex_unlock(&x->lock);
}

static void session_info(void *self, gn_link_info *out_info) {
    (void)self;
    memset(out_info, 0, sizeof *out_info);
}

static void session_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

/* ---- seeds: a session that works, and with each of its bytes at each edge ---- */

enum { SESSION_EDGES = 16, SESSION_DEVICES = 2 };

/* Messages and how many bytes they take here; the first byte of a PLAN_PUT and of a SLOT_PUT says which. */
static const struct {
    uint8_t id, first, n;
    bool has_first;
} session_script[] = {
    { GN__MSG_HELLO, 0, 8, false },      { GN__MSG_WEIGHT_ASK, 0, 1, false }, { GN__MSG_WEIGHT_PUT, 0, 5, false },
    { GN__MSG_WEIGHT_ASK, 0, 1, false }, { GN__MSG_SLOT_PUT, 1, 11, true },   { GN__MSG_SLOT_PUT, 0, 11, true },
    { GN__MSG_PLAN_PUT, 3, 4, true },    { GN__MSG_STEP, 0, 9, false },       { GN__MSG_PLAN_PUT, 0, 4, true },
    { GN__MSG_STEP, 0, 8, false },       { GN__MSG_PLAN_PUT, 1, 4, true },    { GN__MSG_STEP, 0, 11, false },
    { GN__MSG_PLAN_PUT, 4, 4, true },    { GN__MSG_STEP, 0, 10, false },      { GN__MSG_PLAN_PUT, 2, 4, true },
    { GN__MSG_STEP, 0, 21, false },      { GN__MSG_STEP, 0, 21, false },      { GN__MSG_PLAN_DROP, 0, 1, false },
    { GN__MSG_SLOT_DROP, 0, 2, false },  { GN__MSG_CANCEL, 0, 1, false },     { GN__MSG_PLAN_PUT, 4, 4, true },
    { GN__MSG_STEP, 0, 10, false },      { GN__MSG_QUERY, 0, 1, false },      { GN__MSG_BYE, 0, 1, false },
};

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    size_t n = 0, fields = 0, edge = index / SESSION_DEVICES % (SESSION_EDGES + 1),
           field = index / SESSION_DEVICES / (SESSION_EDGES + 1);
    out[n++] = (uint8_t)(index % SESSION_DEVICES);
    for (size_t i = 0; i < GN__LENGTH(session_script) && n + 32 < cap; i++) {
        out[n++] = (uint8_t)(session_script[i].id - 1);
        for (uint8_t k = 0; k < session_script[i].n; k++, n++) {
            bool first = k == 0 && session_script[i].has_first;
            out[n] = first ? session_script[i].first : 255;
            if (!first && fields++ == field && edge > 0) out[n] = (uint8_t)(127 + edge);
        }
    }
    return field < fields ? n : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const gn_transport_i table = { .send = session_send,
                                          .recv = session_recv,
                                          .interrupt = session_interrupt,
                                          .close = session_close,
                                          .info = session_info };
    session_peer x;
    memset(&x, 0, sizeof x);
    x.in = (fuzz_input){ data, size };
    x.out.sink = session_sink;
    x.out.user = &x;
    gn_server_desc desc = { .listen = "none",
                            .devices = fuzz_byte(&x.in) & 1 ? "null" : "cpu",
                            .threads = 1,
                            .memory_limit = SESSION_MEMORY,
                            .no_costs = true,
                            .log = session_log };
    if (gn_server_open(&desc, &x.server, NULL) != GN_OK) return 0;
    gn__mutex_init(&x.lock);
    gn__cond_init(&x.changed);
    gn_server_attach(x.server, (gn_transport){ &table, &x }, "someone");
    gn__mutex_lock(&x.lock);
    while (!x.closed) gn__cond_wait(&x.changed, &x.lock);
    gn__mutex_unlock(&x.lock);
    gn_server_close(x.server);
    gn__cond_deinit(&x.changed);
    gn__mutex_deinit(&x.lock);
    gn__buf_deinit(&x.wire);
    gn__buf_deinit(&x.part);
    gn__outbox_deinit(&x.out);
    return 0;
}
