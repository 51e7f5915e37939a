/* Frames to messages, messages to fields: bytes as they come from a peer. The first byte says in which pieces they
 * arrive and whether the peer is a stranger. A message that is taken is one that the encoder would have written. */
#include "fuzz.h"

static void message_round_trip(const gn__msg *m) {
    union {
#define GN__X(NAME, name, id, direction, help) gn__msg_##name name;
        GN__MESSAGES(GN__X)
#undef GN__X
    } fields;
    gn__buf again = { NULL, 0, 0, false };
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result r = gn__msg_decode(m->id, m->p, m->n, &fields, &f);
    FUZZ_CHECK(r == GN_OK || (r == GN_BAD_MESSAGE && f.result == r && f.text[0]));
    if (r == GN_OK) {
        gn__msg_encode(&again, m->id, &fields);
        FUZZ_CHECK(again.failed || (again.n == m->n && (m->n == 0 || memcmp(again.p, m->p, m->n) == 0)));
    }
    gn__buf_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t pieces[] = { 1, 2, 7, 12, 13, 4096, SIZE_MAX, 3 };
    fuzz_input in = { data, size };
    uint8_t how = fuzz_byte(&in);
    gn__inbox box;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    gn_result r = GN_OK;
    memset(&box, 0, sizeof box);
    box.frame_max = how & 8 ? GN__HELLO_MAX : GN__FRAME_MAX;
    box.limit = how & 16 ? 1000 : 1 << 20;
    box.cuts = how & 32 ? 1u << GN__MSG_STEP : 0;
    while (in.n && r == GN_OK) {
        size_t room = 0;
        uint8_t *to = gn__inbox_reserve(&box, &room);
        FUZZ_CHECK(to && room > 0);
        size_t n = GN__MIN(GN__MIN(room, pieces[how & 7]), in.n);
        memcpy(to, in.p, n);
        box.n += n;
        in.p += n;
        in.n -= n;
        for (gn__msg m = { 1, 0, NULL, 0, 0 }; r == GN_OK && m.id;) {
            r = gn__inbox_next(&box, &m, &f);
            FUZZ_CHECK(r == GN_OK || (f.result == r && f.text[0]));
            if (r == GN_OK && m.id && !m.over) message_round_trip(&m);
        }
        FUZZ_CHECK(box.held <= box.limit);
    }
    gn__inbox_deinit(&box);
    return 0;
}

/* Every message of the table, with small fields and with the largest ones. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static uint8_t bytes[8192];
    uint8_t fields[256] = { 0 };
    const gn__msg_info *m = index / 2 < GN__LENGTH(gn__msgs) ? &gn__msgs[index / 2] : NULL;
    gn__buf b = { NULL, 0, 0, false };
    FUZZ_CHECK(!m || m->size <= sizeof fields);
    for (uint16_t i = 0; m && i < m->n_fields; i++) {
        const gn__field *d = &m->fields[i];
        gn__span s = { bytes, index & 1 ? GN__MIN(d->max, 32u / GN__MAX(d->unit, 1u) + 1) : 0 };
        if (d->kind <= GN__KIND_u64) gn__field_set_int(d, fields, index & 1 ? d->max : GN__MIN(d->max, 1u));
        else if (d->kind != GN__KIND_digest) memcpy(fields + d->offset, &s, sizeof s);
    }
    if (m) {
        gn__put_u8(&b, (uint8_t)(index * 37));
        gn__put_u32(&b, 0);
        gn__put_u16(&b, m->id);
        gn__put_u16(&b, 0);
        gn__put_u32(&b, 7);
        gn__msg_encode(&b, m->id, fields);
    }
    size_t n = b.failed || b.n > cap ? 0 : b.n;
    for (uint32_t i = 0, payload = n > 13 ? (uint32_t)n - 13 : 0; n && i < 4; i++)
        b.p[1 + i] = (uint8_t)(payload >> (8 * i));
    memcpy(out, b.p ? b.p : bytes, n);
    gn__buf_deinit(&b);
    return n;
}
