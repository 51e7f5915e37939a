/* A client of protocol 1 that says what it likes, message by message. Include genie.h with GENIE_IMPLEMENTATION, test.h
 * and loopback.h before this file. */
#ifndef GN_RAW_CLIENT_H
#define GN_RAW_CLIENT_H

#ifndef SOON_MS
#define SOON_MS 2000 /* far more than an answer takes, far less than a hang */
#endif

static void make_pair(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) exit(2);
}

/* request of the latest step; failed steps known */
typedef struct raw {
    gn__link link;
    gn_stats stats;
    uint32_t step, seen;
} raw;

GN__UNUSED static raw *raw_on(int fd) {
    raw *r = (raw *)calloc(1, sizeof *r);
    gn__link_init(&r->link, loopback_transport(fd), SOON_MS, &r->stats);
    r->link.in.frame_max = GN__FRAME_MAX;
    r->link.in.limit = 64 << 20;
    return r;
}

GN__UNUSED static raw *raw_connect(gn_server *s, const char *tenant) {
    int ends[2];
    make_pair(ends);
    CHECK_RESULT(gn_server_attach(s, loopback_transport(ends[0]), tenant), GN_OK);
    return raw_on(ends[1]);
}

GN__UNUSED static void raw_close(raw *r) {
    gn__link_deinit(&r->link);
    free(r);
}

GN__UNUSED static void raw_send(raw *r, uint16_t id, uint32_t request, const void *msg) {
    gn__outbox_message(&r->link.out, id, request, msg);
    gn__outbox_flush(&r->link.out);
}

GN__UNUSED static void raw_bytes(raw *r, const void *p, size_t n) { r->link.t.i->send(r->link.t.self, p, n, SOON_MS); }

GN__UNUSED static gn_result raw_receive(raw *r, gn__msg *m) {
    gn__link_wait_limit w = { SOON_MS, false, NULL, NULL };
    gn_fault f;
    return gn__link_receive(&r->link, &w, m, &f);
}

GN__UNUSED static gn__msg_hello hello(void) {
    static uint8_t ops[GN__WIRE_OPS];
    gn__msg_hello m;
    memset(&m, 0, sizeof m);
    gn__ops_bitmap(ops);
    m.magic = GN__WIRE_MAGIC;
    m.version_min = m.version_max = 1;
    m.codecs = 1;
    m.ops = (gn__span){ ops, sizeof ops };
    return m;
}

GN__UNUSED static raw *raw_greet(raw *r) {
    gn__msg_hello h = hello();
    gn__msg m = { 0, 0, NULL, 0, 0 };
    raw_send(r, GN__MSG_HELLO, 1, &h);
    CHECK_RESULT(raw_receive(r, &m), GN_OK);
    CHECK_INT(m.id, GN__MSG_HELLO_OK);
    return r;
}

GN__UNUSED static raw *raw_open(gn_server *s, const char *tenant) { return raw_greet(raw_connect(s, tenant)); }

/* The next message is an ERROR like this; a fatal one is the last. */
GN__UNUSED static void raw_expect(raw *r, uint32_t request, gn_result result, bool fatal, const char *words) {
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn__msg_error d;
    gn_fault f;
    char text[400] = "";
    if (!CHECK_RESULT(raw_receive(r, &m), GN_OK) || !CHECK_INT(m.id, GN__MSG_ERROR)) return;
    CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
    gn__span_text(&d.text, text, sizeof text);
    CHECK_RESULT((gn_result)d.result, result);
    CHECK_INT(d.fatal, fatal);
    CHECK_INT(m.request, request);
    if (!strstr(text, words)) test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, words);
    r->seen += request == r->step && !fatal && result != GN_CANCELLED;
    if (fatal) CHECK_RESULT(raw_receive(r, &m), GN_DISCONNECTED);
}

GN__UNUSED static void raw_expect_step(raw *r, uint32_t request, const void *outs, size_t n) {
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn__msg_step_ok d;
    gn_fault f;
    if (!CHECK_RESULT(raw_receive(r, &m), GN_OK) || !CHECK_INT(m.id, GN__MSG_STEP_OK)) return;
    CHECK_INT(m.request, request);
    CHECK_RESULT(gn__msg_decode(m.id, m.p, m.n, &d, &f), GN_OK);
    CHECK_INT(d.outs.n, n);
    CHECK(d.outs.n == n && (n == 0 || memcmp(d.outs.p, outs, n) == 0));
}

/* A state of two f32 in a slot. */
GN__UNUSED static void raw_state(raw *r, uint32_t request, uint32_t slot, uint32_t gen, const float *value) {
    uint8_t dims[8] = { 2 };
    gn__msg_slot_put m = { slot,   gen,         GN_LEAF_STATE, value ? GN__FILL_BYTES : GN__FILL_ZEROS,
                           GN_F32, { dims, 1 }, { NULL, 0 },   { (const uint8_t *)value, value ? 8 : 0 } };
    raw_send(r, GN__MSG_SLOT_PUT, request, &m);
}

/* state += x, of two f32; one argument, one output, the new state. `leaf`: GN_LEAF_DATA or GN_LEAF_VALUE for x. */
GN__UNUSED static gn__buf counter_part(uint32_t slot, uint32_t gen, uint64_t dim, gn_leaf_kind leaf) {
    gn__buf b = { NULL, 0, 0, false };
    const uint32_t counts[7] = { 3, 2, 0, 3, 1, 1, 1 };
    for (int i = 0; i < 7; i++) gn__put_u32(&b, counts[i]);
    for (int i = 0; i < 2; i++) {
        gn__put_u16(&b, gn__ops[gn__op_leaf(i ? leaf : GN_LEAF_STATE)].wire);
        gn__put_u8(&b, 0);
        gn__put_u8(&b, GN_F32);
        gn__put_u8(&b, 1);
        gn__put_u64(&b, dim);
        if (i == 0) {
            gn__put_u32(&b, slot);
            gn__put_u32(&b, gen);
        } else gn__put_u32(&b, 0);
    }
    gn__put_u16(&b, gn__ops[GN_OP_ADD].wire);
    gn__put_u8(&b, 0);
    gn__put_u32(&b, 2);
    gn__put_u16(&b, 0);
    gn__put_u32(&b, 0);
    gn__put_u32(&b, 1);
    gn__put_u32(&b, 2); /* output */
    const uint32_t update[3] = { slot, gen, 2 };
    for (int i = 0; i < 3; i++) gn__put_u32(&b, update[i]);
    return b;
}

GN__UNUSED static void raw_plan(raw *r, uint32_t request, uint32_t plan, gn__buf b, uint64_t spoil_hash) {
    gn_part *part = NULL;
    gn_fault f;
    gn__part_decode(b.p, b.n, GN__WIRE_NODES, NULL, &part, &f);
    gn__msg_plan_put m = { plan, (part ? part->hash : 0) ^ spoil_hash, 0, { b.p, b.n } };
    raw_send(r, GN__MSG_PLAN_PUT, request, &m);
    gn_free(part);
    gn__buf_deinit(&b);
}

/* Goes with what is flushed next. */
GN__UNUSED static void raw_put_step(raw *r, uint32_t request, uint32_t plan, uint64_t sequence, uint8_t flags,
                                    uint64_t keep, const void *args, size_t n) {
    uint8_t id[8];
    gn__buf b = { id, 0, 8, false };
    gn__put_u64(&b, keep);
    gn__msg_step m = {
        plan, sequence, 0, r->seen, { &flags, 1 }, { id, flags & GN__OUT_KEPT ? 1 : 0 }, { (const uint8_t *)args, n }
    };
    r->step = request;
    gn__outbox_message(&r->link.out, GN__MSG_STEP, request, &m);
}

GN__UNUSED static void raw_step(raw *r, uint32_t request, uint32_t plan, uint64_t sequence, uint8_t flags,
                                uint64_t keep, const void *args, size_t n) {
    raw_put_step(r, request, plan, sequence, flags, keep, args, n);
    gn__outbox_flush(&r->link.out);
}

/* A session with state slot 4 = {10, 20} and plan 1 over it. */
GN__UNUSED static raw *raw_counter(gn_server *s) {
    raw *r = raw_open(s, "raw");
    raw_state(r, 2, 4, 1, (float[]){ 10, 20 });
    raw_plan(r, 3, 1, counter_part(4, 1, 2, GN_LEAF_DATA), 0);
    return r;
}

GN__UNUSED static const float step_x[2] = { 1, 2 };

#endif
