/* The wire codec against bytes that nobody vouches for: golden bytes, round trips, every integer field at its edges,
 * every message cut at every byte, and the hostile graphs that broke other systems. GENIE_WRITE_GOLDEN=1 writes
 * tests/golden/ anew.
 *
 * Tier: quick address */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* An allocator that counts what is held and can fail. */
static size_t held, peak;
static long fails_at = -1, allocations;

static void *counted_resize(void *p, size_t n);
static void counted_free(void *p);
#define GN_MALLOC(n) counted_resize(NULL, n)
#define GN_REALLOC(p, n) counted_resize(p, n)
#define GN_FREE(p) counted_free(p)
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"

static void counted_free(void *p) {
    if (!p) return;
    size_t *head = (size_t *)p - 2;
    held -= *head;
    free(head);
}

static void *counted_resize(void *p, size_t n) {
    size_t *old = p ? (size_t *)p - 2 : NULL, old_n = old ? *old : 0;
    if (fails_at >= 0 && allocations++ >= fails_at) return NULL;
    size_t *q = (size_t *)realloc(old, n + 2 * sizeof *q); /* two words keep the alignment */
    if (!q) return NULL;
    *q = n;
    held += n - old_n;
    if (held > peak) peak = held;
    return q + 2;
}

/* ---- golden files ---- */

static void check_golden(const char *path, const gn__buf *text) {
    if (getenv("GENIE_WRITE_GOLDEN")) {
        FILE *out = fopen(path, "wb");
        REQUIRE(out != NULL);
        CHECK_INT(fwrite(text->p, 1, text->n, out), text->n);
        CHECK_INT(fclose(out), 0);
    }
    static uint8_t want[1 << 16];
    FILE *in = fopen(path, "rb");
    REQUIRE(in != NULL);
    size_t n = fread(want, 1, sizeof want, in), same = 0;
    fclose(in);
    while (same < n && same < text->n && want[same] == text->p[same]) same++;
    if (n != text->n || same != n)
        test_fail(__FILE__, __LINE__, "%s differs from byte %zu on (%zu bytes, made %zu)", path, same, n, text->n);
}

TEST__PRINTF(2, 3)
static void put_text(gn__buf *b, const char *format, ...) {
    char line[600];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    gn__put_bytes(b, line, (size_t)n);
}

static void put_hex(gn__buf *b, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) put_text(b, "%02x%s", p[i], i % 32 == 31 && i + 1 < n ? "\n    " : "");
    put_text(b, "\n");
}

static void put_field(gn__buf *b, const char *kind, const char *name, uint64_t max, uint32_t unit, const char *help) {
    char type[64];
    if (strcmp(kind, "array") == 0 && unit == 1) snprintf(type, sizeof type, "bytes, at most %" PRIu64, max);
    else if (strcmp(kind, "array") == 0) snprintf(type, sizeof type, "array of %u bytes, at most %" PRIu64, unit, max);
    else if (kind[0] == 'u' && max < (strcmp(kind, "u8") == 0    ? UINT8_MAX
                                      : strcmp(kind, "u16") == 0 ? UINT16_MAX
                                      : strcmp(kind, "u32") == 0 ? UINT32_MAX
                                                                 : UINT64_MAX))
        snprintf(type, sizeof type, "%s, at most %" PRIu64, kind, max);
    else snprintf(type, sizeof type, "%s", kind);
    put_text(b, "    %-12s %-32s %s\n", name, type, help);
}

TEST(protocol_table_matches_its_documentation) {
    gn__buf b = { NULL, 0, 0, false };
    put_text(&b,
             "Protocol %d to %d. A frame: u32 payload bytes (at most %u), u16 message, u16 flags (1 more, 2 optional), "
             "u32 request, payload.\n",
             GN__WIRE_MIN, GN__WIRE_MAX, GN__FRAME_MAX);
#define GN__F(m, kind, name, max, unit, help) put_field(&b, #kind, #name, max, unit, help);
#define GN__X(NAME, name, id, direction, help)                                                                   \
    put_text(&b, "\n%u %s, %s: %s\n", id, #NAME, #direction[0] == 'U' ? "client to server" : "server to client", \
             help);                                                                                              \
    GN__FIELDS_##NAME(GN__F, name)
    GN__MESSAGES(GN__X)
#undef GN__X
#undef GN__F
    check_golden("tests/golden/protocol.txt", &b);
    gn__buf_deinit(&b);
}

/* ---- samples: every message with every field set ---- */

static uint8_t pattern[1 << 16];

static void fill_sample(const gn__msg_info *m, void *msg) {
    memset(msg, 0, m->size);
    for (uint32_t i = 0; i < sizeof pattern; i++) pattern[i] = (uint8_t)(i * 7 + 1);
    for (uint16_t i = 0; i < m->n_fields; i++) {
        const gn__field *d = &m->fields[i];
        uint8_t *p = (uint8_t *)msg + d->offset;
        gn__span s = { pattern + i, d->kind == GN__KIND_tail ? 5 : GN__MIN(d->max, 3u) };
        if (d->kind <= GN__KIND_u64)
            gn__field_set_int(d, msg, GN__MIN(UINT64_C(0x8182838485868788) >> (64 - 8 * d->kind), d->max));
        else if (d->kind == GN__KIND_digest) memcpy(p, pattern + i, 32);
        else memcpy(p, &s, sizeof s);
    }
}

typedef union any_message {
#define GN__X(NAME, name, id, direction, help) gn__msg_##name name;
    GN__MESSAGES(GN__X)
#undef GN__X
} any_message;

TEST(messages_match_golden_bytes) {
    gn__buf text = { NULL, 0, 0, false }, bytes = { NULL, 0, 0, false };
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++) {
        any_message x;
        fill_sample(&gn__msgs[i], &x);
        gn__buf_reset(&bytes);
        gn__msg_encode(&bytes, gn__msgs[i].id, &x);
        put_text(&text, "%s %zu\n    ", gn__msgs[i].name, bytes.n);
        put_hex(&text, bytes.p, bytes.n);
    }
    check_golden("tests/golden/messages.txt", &text);
    gn__buf_deinit(&text);
    gn__buf_deinit(&bytes);
}

TEST(message_ids_are_their_places) {
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++) CHECK_INT(gn__msgs[i].id, i + 1);
    CHECK(gn__msg_find(0) == NULL);
    CHECK(gn__msg_find(GN__MSG__COUNT) == NULL);
    CHECK(gn__msg_find(UINT16_MAX) == NULL);
    CHECK_INT(GN__LENGTH(gn__msgs) + 1, GN__MSG__COUNT);
}

TEST(messages_come_back_as_they_went) {
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++) {
        any_message x, y;
        gn__buf a = { NULL, 0, 0, false }, b = { NULL, 0, 0, false };
        fill_sample(&gn__msgs[i], &x);
        gn__msg_encode(&a, gn__msgs[i].id, &x);
        gn_fault f;
        CHECK_RESULT(gn__msg_decode(gn__msgs[i].id, a.p, a.n, &y, &f), GN_OK);
        gn__msg_encode(&b, gn__msgs[i].id, &y);
        CHECK(a.n == b.n && memcmp(a.p, b.p, a.n) == 0);
        gn__buf_deinit(&a);
        gn__buf_deinit(&b);
    }
}

TEST(messages_cut_at_every_byte_are_refused) {
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++) {
        const gn__msg_info *m = &gn__msgs[i];
        any_message x, y;
        gn__buf b = { NULL, 0, 0, false };
        fill_sample(m, &x);
        gn__msg_encode(&b, m->id, &x);
        bool tail = m->fields[m->n_fields - 1].kind == GN__KIND_tail;
        for (size_t n = 0; n < b.n; n++) {
            uint8_t *copy = (uint8_t *)malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
            memcpy(copy, b.p, n);
            gn_fault f;
            gn_result e = gn__msg_decode(m->id, copy, n, &y, &f);
            if (e != (tail && n >= b.n - 5 ? GN_OK : GN_BAD_MESSAGE))
                test_fail(__FILE__, __LINE__, "%s cut at %zu is %s", m->name, n, gn_result_name(e));
            free(copy);
        }
        gn__put_u8(&b, 0);
        gn_fault f;
        CHECK_RESULT(gn__msg_decode(m->id, b.p, b.n, &y, &f), tail ? GN_OK : GN_BAD_MESSAGE);
        gn__buf_deinit(&b);
    }
}

/* ---- every integer of every message at its edges ---- */

static const uint64_t edges[] = {
    0, 1, 2, INT32_MAX, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX
};

/* Decodes the sample with `bytes` bytes at `at` replaced by v. */
static gn_result decode_with(const gn__msg_info *m, const gn__buf *b, size_t at, size_t bytes, uint64_t v) {
    any_message y;
    gn_fault f;
    uint8_t *copy = (uint8_t *)malloc(b->n);
    memcpy(copy, b->p, b->n);
    for (size_t i = 0; i < bytes; i++) copy[at + i] = (uint8_t)(v >> (8 * i));
    peak = held;
    size_t before = held;
    gn_result e = gn__msg_decode(m->id, copy, b->n, &y, &f);
    CHECK_INT(peak, before); /* no length makes the decoder allocate */
    free(copy);
    return e;
}

/* An integer is taken up to its limit; a count other than the right one is refused, for the bytes do not fit it. */
static void check_value(const gn__msg_info *m, const gn__buf *b, const gn__field *d, size_t at, uint64_t v,
                        uint64_t count) {
    size_t bytes = d->kind == GN__KIND_array ? 4 : d->kind;
    if (bytes < 8 && v >> (8 * bytes)) return;
    gn_result e = decode_with(m, b, at, bytes, v);
    bool tail = m->fields[m->n_fields - 1].kind == GN__KIND_tail;
    if (d->kind == GN__KIND_array && tail && v <= count + 1) return; /* the tail makes up for it */
    gn_result want = d->kind == GN__KIND_array ? (v == count ? GN_OK : GN_BAD_MESSAGE)
                     : v <= d->max             ? GN_OK
                                               : GN_BAD_MESSAGE;
    if (e != want) test_fail(__FILE__, __LINE__, "%s.%s = %" PRIu64 " is %s", m->name, d->name, v, gn_result_name(e));
}

static long check_field(const gn__msg_info *m, const gn__buf *b, const gn__field *d, size_t at, uint64_t count) {
    for (size_t i = 0; i < GN__LENGTH(edges); i++) check_value(m, b, d, at, edges[i], count);
    for (int k = -1; k <= 1; k++) check_value(m, b, d, at, d->max + (uint64_t)(int64_t)k, count);
    return (long)GN__LENGTH(edges) + 3;
}

TEST(integer_fields_at_their_edges) {
    long cases = 0;
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++) {
        const gn__msg_info *m = &gn__msgs[i];
        any_message x;
        gn__buf b = { NULL, 0, 0, false };
        fill_sample(m, &x);
        gn__msg_encode(&b, m->id, &x);
        size_t at = 0;
        for (uint16_t k = 0; k < m->n_fields; k++) {
            const gn__field *d = &m->fields[k];
            gn__span s = { NULL, 0 };
            if (d->kind > GN__KIND_digest) memcpy(&s, (uint8_t *)&x + d->offset, sizeof s);
            if (d->kind <= GN__KIND_u64 || d->kind == GN__KIND_array) cases += check_field(m, &b, d, at, s.n);
            at += d->kind <= GN__KIND_digest ? d->kind : (d->kind == GN__KIND_array ? 4u : 0u) + (size_t)s.n * d->unit;
        }
        CHECK_INT(at, b.n);
        gn__buf_deinit(&b);
    }
    CHECK(cases > 400);
}

/* The elements are all there, and one more than the field takes: a list of 9 dims, a proof of 257 bytes. */
static void check_long_array(const gn__msg_info *m, const gn__field *d) {
    static uint8_t zeros[1 << 16];
    if (d->max * d->unit + d->unit > sizeof zeros) return;
    for (uint64_t n = d->max; n <= d->max + 1; n++) {
        any_message x, y;
        gn__buf b = { NULL, 0, 0, false };
        gn__span s = { zeros, n };
        gn_fault f;
        fill_sample(m, &x);
        memcpy((uint8_t *)&x + d->offset, &s, sizeof s);
        gn__msg_encode(&b, m->id, &x);
        gn_result e = gn__msg_decode(m->id, b.p, b.n, &y, &f);
        if (e != (n > d->max ? GN_BAD_MESSAGE : GN_OK))
            test_fail(__FILE__, __LINE__, "%s.%s of %" PRIu64 " is %s", m->name, d->name, n, gn_result_name(e));
        gn__buf_deinit(&b);
    }
}

TEST(arrays_longer_than_their_limit_are_refused) {
    for (size_t i = 0; i < GN__LENGTH(gn__msgs); i++)
        for (uint16_t k = 0; k < gn__msgs[i].n_fields; k++)
            if (gn__msgs[i].fields[k].kind == GN__KIND_array) check_long_array(&gn__msgs[i], &gn__msgs[i].fields[k]);
}

/* ---- frames ---- */

static void put_frame(gn__buf *b, uint32_t announced, uint16_t id, uint16_t flags, uint32_t request, const void *p,
                      size_t n) {
    gn__put_u32(b, announced);
    gn__put_u16(b, id);
    gn__put_u16(b, flags);
    gn__put_u32(b, request);
    gn__put_bytes(b, p, n);
}

static gn__inbox make_inbox(void) {
    gn__inbox in;
    memset(&in, 0, sizeof in);
    in.frame_max = GN__FRAME_MAX;
    in.limit = 1 << 20;
    return in;
}

/* Feeds b in pieces of `step` bytes; counts messages, adds up their bytes; stops at an error. */
typedef struct fed {
    gn_result result;
    int messages;
    uint64_t bytes, sum;
    uint32_t last;
} fed;

static fed feed(gn__inbox *in, const gn__buf *b, size_t step) {
    fed r = { GN_OK, 0, 0, 0, 0 };
    for (size_t at = 0; at < b->n && !r.result;) {
        size_t room = 0;
        uint8_t *p = gn__inbox_reserve(in, &room);
        if (!p || !room) {
            r.result = p ? GN_INTERNAL : GN_OUT_OF_MEMORY;
            break;
        }
        size_t n = GN__MIN(GN__MIN(room, step), b->n - at);
        memcpy(p, b->p + at, n);
        in->n += n;
        at += n;
        for (gn__msg m;;) {
            gn_fault f;
            r.result = gn__inbox_next(in, &m, &f);
            if (r.result || m.id == 0) break;
            r.messages++;
            r.bytes += m.n;
            r.last = m.request;
            for (size_t i = 0; i < m.n; i++) r.sum += m.p[i] * (uint64_t)(i % 251 + 1);
        }
    }
    return r;
}

static fed feed_once(const gn__buf *b, size_t step) {
    gn__inbox in = make_inbox();
    size_t before = held;
    fed r = feed(&in, b, step);
    gn__inbox_deinit(&in);
    CHECK_INT(held, before);
    return r;
}

/* One frame with these fields and 4 bytes of payload: what comes of it. */
static fed feed_frame(uint32_t announced, uint16_t id, uint16_t flags) {
    gn__buf b = { NULL, 0, 0, false };
    put_frame(&b, announced, id, flags, 1, "abcd", 4);
    fed r = feed_once(&b, b.n);
    gn__buf_deinit(&b);
    return r;
}

TEST(frame_heads_that_are_not_valid_are_refused) {
    CHECK_INT(feed_frame(4, GN__MSG_BYE, 0).messages, 1);
    CHECK_RESULT(feed_frame(GN__FRAME_MAX, GN__MSG_BYE, 0).result, GN_OK);
    CHECK_RESULT(feed_frame(GN__FRAME_MAX + 1, GN__MSG_BYE, 0).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(INT32_MAX, GN__MSG_BYE, 0).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(UINT32_MAX, GN__MSG_BYE, 0).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(4, 0, 0).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(4, GN__MSG__COUNT, 0).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(4, GN__MSG_BYE, 4).result, GN_BAD_MESSAGE);
    CHECK_RESULT(feed_frame(0, GN__MSG_BYE, GN__FRAME_MORE).result, GN_BAD_MESSAGE);
}

TEST(optional_unknown_messages_are_skipped) {
    gn__buf b = { NULL, 0, 0, false };
    put_frame(&b, 3, 999, GN__FRAME_OPTIONAL, 7, "xyz", 3);
    put_frame(&b, 3, 999, GN__FRAME_OPTIONAL | GN__FRAME_MORE, 7, "xyz", 3);
    put_frame(&b, 2, GN__MSG_BYE, 0, 8, "ab", 2);
    for (size_t step = 1; step <= b.n; step++) {
        fed r = feed_once(&b, step);
        CHECK_RESULT(r.result, GN_OK);
        CHECK_INT(r.messages, 1);
        CHECK_INT(r.last, 8);
    }
    gn__buf_deinit(&b);
}

TEST(interleaved_messages_are_put_together) {
    gn__buf b = { NULL, 0, 0, false };
    put_frame(&b, 3, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 1, "abc", 3);
    put_frame(&b, 2, GN__MSG_PLAN_PUT, GN__FRAME_MORE, 2, "de", 2);
    put_frame(&b, 1, GN__MSG_STEP, 0, 3, "f", 1); /* a small one passes */
    put_frame(&b, 0, GN__MSG_PLAN_PUT, 0, 2, "", 0);
    put_frame(&b, 2, GN__MSG_SLOT_PUT, 0, 1, "gh", 2);
    for (size_t step = 1; step <= b.n; step++) {
        fed r = feed_once(&b, step);
        CHECK_RESULT(r.result, GN_OK);
        CHECK_INT(r.messages, 3);
        CHECK_INT(r.bytes, 8);
        CHECK_INT(r.last, 1);
    }
    b.n = 0;
    put_frame(&b, 3, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 1, "abc", 3);
    put_frame(&b, 3, GN__MSG_STEP, 0, 1, "abc", 3); /* the same request under another name */
    CHECK_RESULT(feed_once(&b, b.n).result, GN_BAD_MESSAGE);
    gn__buf_deinit(&b);
}

TEST(unfinished_messages_are_bounded) {
    gn__buf b = { NULL, 0, 0, false };
    for (uint32_t i = 0; i < GN__OPEN_MESSAGES; i++) put_frame(&b, 1, GN__MSG_SLOT_PUT, GN__FRAME_MORE, i, "a", 1);
    CHECK_RESULT(feed_once(&b, b.n).result, GN_OK);
    put_frame(&b, 1, GN__MSG_SLOT_PUT, GN__FRAME_MORE, GN__OPEN_MESSAGES, "a", 1);
    CHECK_RESULT(feed_once(&b, b.n).result, GN_LIMIT);
    b.n = 0;
    for (uint32_t i = 0; i < 4; i++) {
        put_frame(&b, GN__FRAME_MAX, GN__MSG_SLOT_PUT, GN__FRAME_MORE, i, pattern, 0);
        for (size_t k = 0; k < GN__FRAME_MAX; k += sizeof pattern) gn__put_bytes(&b, pattern, sizeof pattern);
    }
    CHECK_RESULT(feed_once(&b, 4096).result, GN_OK); /* 1 MiB is the limit of these tests */
    put_frame(&b, 1, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 9, "a", 1);
    CHECK_RESULT(feed_once(&b, 4096).result, GN_LIMIT);
    gn__buf_deinit(&b);
}

TEST(announced_bytes_take_no_memory_before_they_come) {
    gn__buf b = { NULL, 0, 0, false };
    gn__inbox in = make_inbox();
    put_frame(&b, GN__FRAME_MAX, GN__MSG_SLOT_PUT, 0, 1, "abcd", 4);
    size_t before = held;
    peak = held;
    CHECK_RESULT(feed(&in, &b, b.n).result, GN_OK);
    CHECK(peak - before <= (16 << 10) + 64);
    gn__inbox_deinit(&in);
    gn__buf_deinit(&b);
}

TEST(cancel_forgets_an_unfinished_message) {
    gn__buf b = { NULL, 0, 0, false };
    gn__inbox in = make_inbox();
    put_frame(&b, 4, GN__MSG_SLOT_PUT, GN__FRAME_MORE, 5, "abcd", 4);
    feed(&in, &b, b.n);
    CHECK_INT(in.held, 4);
    gn__inbox_cancel(&in, 6);
    CHECK_INT(in.held, 4);
    gn__inbox_cancel(&in, 5);
    CHECK_INT(in.held, 0);
    CHECK(!gn__inbox_unfinished(&in));
    gn__inbox_deinit(&in);
    gn__buf_deinit(&b);
}

/* A sink that keeps everything. */
static gn_result keep_bytes(void *user, const uint8_t *p, size_t n) {
    gn__put_bytes((gn__buf *)user, p, n);
    return GN_OK;
}

static gn__outbox make_outbox(gn__buf *to) {
    gn__outbox o;
    memset(&o, 0, sizeof o);
    o.sink = keep_bytes;
    o.user = to;
    return o;
}

TEST(large_messages_travel_in_frames) {
    static uint8_t big[(1 << 20) - 1000];
    for (size_t n = 0; n < sizeof big; n++) big[n] = (uint8_t)test_random();
    const size_t sizes[] = {
        0, 1, GN__FRAME_MAX - 16, GN__FRAME_MAX - 15, GN__FRAME_MAX, 2 * GN__FRAME_MAX, sizeof big
    };
    for (size_t i = 0; i < GN__LENGTH(sizes); i++) {
        gn__buf wire = { NULL, 0, 0, false };
        gn__outbox o = make_outbox(&wire);
        gn__msg_plan_put m = { 7, 8, 0, { NULL, 0 } };
        gn__outbox_fields(&o, GN__MSG_PLAN_PUT, 42, &m);
        gn__outbox_put(&o, big, sizes[i]);
        CHECK_RESULT(gn__outbox_end(&o), GN_OK);
        CHECK_RESULT(gn__outbox_flush(&o), GN_OK);
        CHECK_INT(o.frames, sizes[i] <= GN__FRAME_MAX - 16 ? 1 : (sizes[i] + 16 + GN__FRAME_MAX - 1) / GN__FRAME_MAX);
        gn__buf whole = { NULL, 0, 0, false };
        gn__msg_encode(&whole, GN__MSG_PLAN_PUT, &m);
        gn__put_bytes(&whole, big, sizes[i]);
        uint64_t sum = 0;
        for (size_t k = 0; k < whole.n; k++) sum += whole.p[k] * (uint64_t)(k % 251 + 1);
        fed r = feed_once(&wire, 50000);
        CHECK_RESULT(r.result, GN_OK);
        CHECK_INT(r.messages, 1);
        CHECK_INT(r.bytes, whole.n);
        CHECK_INT(r.sum, sum);
        gn__buf_deinit(&whole);
        gn__buf_deinit(&wire);
        gn__outbox_deinit(&o);
    }
}

/* Memory runs out in the middle of a message: it is withdrawn, what came before and comes after arrives. */
TEST(outbox_without_memory_withdraws_the_message) {
    static uint8_t big[3 * GN__FRAME_MAX];
    int withdrawn = 0, whole = 0;
    for (fails_at = -1, allocations = 0; withdrawn + whole < 40; withdrawn++) {
        gn__buf wire = { (uint8_t *)gn_alloc(4 << 20), 0, 4 << 20, false };
        gn__outbox o = make_outbox(&wire);
        gn__msg_plan_drop first = { 1 }, last = { 3 };
        gn__msg_plan_put m = { 2, 0, 0, { NULL, 0 } };
        CHECK_RESULT(gn__outbox_message(&o, GN__MSG_PLAN_DROP, 1, &first), GN_OK);
        fails_at = withdrawn;
        allocations = 0;
        gn__outbox_fields(&o, GN__MSG_PLAN_PUT, 2, &m);
        gn__outbox_put(&o, big, sizeof big);
        gn_result e = gn__outbox_end(&o);
        fails_at = -1;
        CHECK(e == GN_OK || e == GN_OUT_OF_MEMORY);
        CHECK_RESULT(gn__outbox_message(&o, GN__MSG_PLAN_DROP, 3, &last), GN_OK);
        CHECK_RESULT(gn__outbox_flush(&o), GN_OK);
        fed r = feed_once(&wire, wire.n);
        CHECK_RESULT(r.result, GN_OK);
        CHECK(r.messages == 3 || (e && r.messages == 2));
        CHECK_INT(r.last, 3);
        gn__buf_deinit(&wire);
        gn__outbox_deinit(&o);
        if (!e) {
            whole++;
            break;
        }
    }
    CHECK(withdrawn > 1 && whole == 1);
}

/* ---- blobs ---- */

/* Codec 1 of this test: runs of one byte, { byte, u32 count }. */
static size_t pack_runs(const void *src, size_t n, int element, double wire_ns, void *dst, size_t cap, uint8_t *codec) {
    const uint8_t *p = (const uint8_t *)src;
    gn__buf b = { (uint8_t *)dst, 0, cap, false };
    (void)element;
    (void)wire_ns;
    *codec = 0;
    for (size_t at = 0, k; at < n; at = k) {
        for (k = at; k < n && p[k] == p[at];) k++;
        if (b.n + 5 > cap || b.n + 5 >= n) return 0;
        gn__put_u8(&b, p[at]);
        gn__put_u32(&b, (uint32_t)(k - at));
    }
    *codec = 1;
    return b.n;
}

static gn_result unpack_runs(uint8_t codec, const void *src, size_t n, int element, void *dst, size_t raw_n) {
    gn__rd r = { (const uint8_t *)src, (const uint8_t *)src + n, false };
    uint8_t *p = (uint8_t *)dst;
    (void)element;
    if (codec != 1) return GN_BAD_MESSAGE;
    while (r.p < r.end) {
        uint8_t v = gn__get_u8(&r);
        uint32_t k = gn__get_u32(&r);
        if (r.bad || k > raw_n) return GN_BAD_MESSAGE;
        memset(p, v, k);
        p += k;
        raw_n -= k;
    }
    return raw_n == 0 ? GN_OK : GN_BAD_MESSAGE;
}

static const gn_net_i runs_net = { .pack = pack_runs, .unpack = unpack_runs, .codecs = 3 };

static gn_result read_blob(const uint8_t *wire, size_t wire_n, void *dst, size_t n, uint32_t codecs, size_t *left) {
    gn_fault f;
    gn__rd r = { wire, wire + wire_n, false };
    gn_result e = gn__blob_get(&r, dst, n, 4, codecs, &f);
    *left = (size_t)(r.end - r.p);
    return e;
}

/* The one message of these bytes. */
static gn__msg read_message(gn__inbox *in, const gn__buf *wire) {
    gn__msg m = { 0, 0, NULL, 0, 0 };
    gn_fault f;
    for (size_t at = 0; at < wire->n;) {
        size_t room = 0;
        uint8_t *p = gn__inbox_reserve(in, &room);
        if (!CHECK(p != NULL)) break;
        room = GN__MIN(room, wire->n - at);
        memcpy(p, wire->p + at, room);
        in->n += room;
        at += room;
        CHECK_RESULT(gn__inbox_next(in, &m, &f), GN_OK);
    }
    return m;
}

static void check_blob(size_t n, uint32_t codecs, bool runs) {
    gn__buf wire = { NULL, 0, 0, false }, scratch = { NULL, 0, 0, false };
    gn__outbox o = make_outbox(&wire);
    uint8_t *src = (uint8_t *)malloc(n + 1), *dst = (uint8_t *)malloc(n + 1);
    size_t left = 0;
    for (size_t i = 0; i < n; i++) src[i] = runs ? (uint8_t)(i >> 16) : (uint8_t)test_random();
    memset(dst, 0xaa, n + 1);
    gn__outbox_begin(&o, GN__MSG_STEP, 1);
    uint64_t stored = gn__blob_put(&o, src, n, 4, codecs, 0, &scratch);
    CHECK(stored >= gn__blob_least(n) && stored <= gn__blob_most(n));
    CHECK_RESULT(gn__outbox_end(&o), GN_OK);
    gn__outbox_flush(&o);
    gn__inbox in = make_inbox();
    in.limit = 16 << 20;
    gn__msg m = read_message(&in, &wire);
    CHECK_INT(m.n, stored);
    CHECK_RESULT(read_blob(m.p, m.n, dst, n, codecs, &left), GN_OK);
    CHECK_INT(left, 0);
    CHECK(memcmp(src, dst, n) == 0);
    CHECK_INT(dst[n], 0xaa);
    if (n > 0) CHECK_RESULT(read_blob(m.p, m.n - 1, dst, n, codecs, &left), GN_BAD_MESSAGE);
    if (runs && codecs > 1 && n > GN__BLOB_INLINE) CHECK(stored < n / 10);
    /* not negotiated */
    if (runs && codecs > 1 && n > GN__BLOB_INLINE) CHECK_RESULT(read_blob(m.p, m.n, dst, n, 1, &left), GN_BAD_MESSAGE);
    gn__inbox_deinit(&in);
    gn__outbox_deinit(&o);
    gn__buf_deinit(&wire);
    gn__buf_deinit(&scratch);
    free(src);
    free(dst);
}

TEST(blobs_come_back_as_they_went) {
    const size_t sizes[] = { 0,
                             1,
                             4095,
                             GN__BLOB_INLINE,
                             GN__BLOB_INLINE + 1,
                             300000,
                             GN__BLOB_CHUNK - 1,
                             GN__BLOB_CHUNK,
                             GN__BLOB_CHUNK + 1,
                             3 * GN__BLOB_CHUNK + 17 };
    const gn_net_i *before = gn__net;
    gn__net = &runs_net;
    for (size_t i = 0; i < GN__LENGTH(sizes); i++)
        for (uint32_t codecs = 1; codecs <= 3; codecs += 2)
            for (int runs = 0; runs < 2; runs++) check_blob(sizes[i], codecs, runs);
    gn__net = before;
}

/* A blob of 5000 bytes whose chunk says this; what is there are runs of 5 bytes, 1000 of them. */
static gn_result chunk_case(uint8_t codec, uint32_t stored, size_t there) {
    static const uint8_t run[5] = { 7, 5, 0, 0, 0 };
    static uint8_t dst[5001];
    gn__buf b = { NULL, 0, 0, false };
    size_t left;
    gn__put_u8(&b, codec);
    gn__put_u32(&b, stored);
    for (size_t i = 0; i < there; i += sizeof run) gn__put_bytes(&b, run, GN__MIN(there - i, sizeof run));
    dst[5000] = 0xaa;
    gn_result e = read_blob(b.p, b.n, dst, 5000, 3, &left);
    CHECK_INT(dst[5000], 0xaa);
    gn__buf_deinit(&b);
    return e;
}

TEST(chunks_that_lie_are_refused) {
    const gn_net_i *before = gn__net;
    gn__net = &runs_net;
    CHECK_RESULT(chunk_case(0, 5000, 5000), GN_OK);
    CHECK_RESULT(chunk_case(0, 4999, 5000), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(0, 5001, 5001), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(0, 0, 5000), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(0, UINT32_MAX, 5000), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(1, 0, 0), GN_BAD_MESSAGE);
    /* it would unpack, but packing that gains nothing is not sent */
    CHECK_RESULT(chunk_case(1, 5000, 5000), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(1, 10, 10), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(2, 5000, 5000), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(31, 100, 100), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(32, 100, 100), GN_BAD_MESSAGE);
    CHECK_RESULT(chunk_case(255, 100, 100), GN_BAD_MESSAGE);
    gn__net = before;
}

/* The same blob in pieces as they may come: the outcome and the bytes are those of the whole. */
static gn_result take_in_pieces(gn__blob_in *b, const uint8_t *wire, size_t n, size_t *out_used) {
    gn_fault f;
    gn_result e = GN_OK;
    size_t at = 0, most = (size_t)1 << test_random_int(0, 20);
    while (!e && at < n && b->at < b->n) {
        size_t k = (size_t)test_random_int(1, (int64_t)GN__MIN(most, n - at));
        gn__rd r = { wire + at, wire + at + k, false };
        e = gn__blob_decode(b, &r, &f);
        at += (size_t)(r.p - (wire + at));
    }
    *out_used = at;
    return e ? e : b->at < b->n ? GN_BAD_MESSAGE : GN_OK;
}

TEST(blobs_in_pieces_are_what_they_are_in_one) {
    const gn_net_i *before = gn__net;
    gn__blob_in b;
    memset(&b, 0, sizeof b);
    gn__net = &runs_net;
    int good = 0, rounds = test_rounds(120);
    for (int i = 0; i < rounds; i++) {
        size_t n = (size_t)test_random_int(1, i % 3 ? 20000 : 5 * GN__BLOB_CHUNK / 2), left, used;
        gn__buf wire = { NULL, 0, 0, false }, scratch = { NULL, 0, 0, false };
        gn__outbox o = make_outbox(&wire);
        uint8_t *src = (uint8_t *)malloc(n), *one = (uint8_t *)malloc(n + 1), *many = (uint8_t *)malloc(n + 1);
        for (size_t k = 0; k < n; k++) src[k] = i & 1 ? (uint8_t)(k >> 10) : (uint8_t)test_random();
        memset(one, 0xaa, n + 1);
        memset(many, 0xaa, n + 1);
        gn__outbox_begin(&o, GN__MSG_STEP, 1);
        uint64_t stored = gn__blob_put(&o, src, n, 4, 3, 0, &scratch);
        gn__outbox_end(&o);
        gn__outbox_flush(&o);
        gn__inbox in = make_inbox();
        in.limit = 16 << 20;
        gn__msg m = read_message(&in, &wire);
        CHECK_INT(m.n, stored);
        uint8_t *bytes = (uint8_t *)(uintptr_t)m.p;
        if (i % 4 == 1) bytes[test_random_int(0, n > GN__BLOB_INLINE ? 4 : 0)] ^= (uint8_t)(1 << test_random_int(0, 7));
        if (i % 4 == 2) m.n = (size_t)test_random_int(0, (int64_t)m.n - 1);
        gn_result whole = read_blob(m.p, m.n, one, n, 3, &left);
        gn__blob_begin(&b, many, n, 4, 3);
        gn_result pieces = take_in_pieces(&b, m.p, m.n, &used);
        if (whole != pieces)
            test_fail(__FILE__, __LINE__, "round %d: %zu bytes, %zu of %llu there: %d in one, %d in pieces", i, n, m.n,
                      (unsigned long long)stored, (int)whole, (int)pieces);
        if (whole == GN_OK) CHECK(used == m.n - left && memcmp(one, many, n) == 0);
        CHECK(one[n] == 0xaa && many[n] == 0xaa);
        good += whole == GN_OK;
        gn__inbox_deinit(&in);
        gn__outbox_deinit(&o);
        gn__buf_deinit(&wire);
        gn__buf_deinit(&scratch);
        free(src);
        free(one);
        free(many);
    }
    CHECK(good > rounds / 4 && good < rounds);
    gn__buf_deinit(&b.packed);
    gn__net = before;
}

/* ---- parts ---- */

enum {
    WIRE_DATA = 0x01,
    WIRE_VALUE = 0x02,
    WIRE_WEIGHT = 0x03,
    WIRE_STATE = 0x04,
    WIRE_ADD = 0x10,
    WIRE_NEG = 0x17,
    WIRE_MATMUL = 0x48,
    WIRE_RESHAPE = 0x50,
    WIRE_CONCAT = 0x54,
    WIRE_BROADCAST = 0x55,
    WIRE_EMBEDDING = 0x59,
    WIRE_ARANGE = 0x09
};

typedef struct part_head {
    uint32_t nodes, ins, attrs, dims, args, outs, updates;
} part_head;

static void put_head(gn__buf *b, part_head h) {
    const uint32_t counts[7] = { h.nodes, h.ins, h.attrs, h.dims, h.args, h.outs, h.updates };
    for (int i = 0; i < 7; i++) gn__put_u32(b, counts[i]);
}

static void put_leaf(gn__buf *b, uint16_t op, uint8_t dtype, uint8_t rank, const uint64_t *dims) {
    gn__put_u16(b, op);
    gn__put_u8(b, 0);
    gn__put_u8(b, dtype);
    gn__put_u8(b, rank);
    for (uint8_t i = 0; i < rank; i++) gn__put_u64(b, dims[i % 8]);
}

static void put_data(gn__buf *b, uint8_t dtype, uint8_t rank, const uint64_t *dims, uint32_t arg) {
    put_leaf(b, WIRE_DATA, dtype, rank, dims);
    gn__put_u32(b, arg);
}

static void put_slot(gn__buf *b, uint16_t op, uint8_t dtype, uint8_t rank, const uint64_t *dims, uint32_t slot,
                     uint32_t gen) {
    put_leaf(b, op, dtype, rank, dims);
    gn__put_u32(b, slot);
    gn__put_u32(b, gen);
}

static void put_op(gn__buf *b, uint16_t op, uint32_t n_ins, const uint32_t *ins, uint16_t n_attrs,
                   const int64_t *attrs) {
    gn__put_u16(b, op);
    gn__put_u8(b, 0);
    gn__put_u32(b, n_ins);
    gn__put_u16(b, n_attrs);
    for (uint32_t i = 0; i < n_ins; i++) gn__put_u32(b, ins[i]);
    for (uint16_t i = 0; i < n_attrs; i++) gn__put_u64(b, (uint64_t)attrs[i]);
}

/* state' = reshape(x @ w + v, 4); out: state' — every kind of leaf, an op with attributes, an output, an update. */
static gn__buf sample_part(void) {
    gn__buf b = { NULL, 0, 0, false };
    put_head(&b, (part_head){ 7, 6, 1, 12, 2, 1, 1 });
    put_data(&b, GN_F32, 2, (uint64_t[]){ 2, 3 }, 0);
    put_slot(&b, WIRE_WEIGHT, GN_F32, 2, (uint64_t[]){ 3, 2 }, 5, 6);
    put_op(&b, WIRE_MATMUL, 2, (uint32_t[]){ 0, 1 }, 0, NULL);
    put_leaf(&b, WIRE_VALUE, GN_F32, 2, (uint64_t[]){ 2, 2 });
    gn__put_u32(&b, 1);
    put_op(&b, WIRE_ADD, 2, (uint32_t[]){ 2, 3 }, 0, NULL);
    put_op(&b, WIRE_RESHAPE, 1, (uint32_t[]){ 4 }, 1, (int64_t[]){ 4 });
    put_op(&b, WIRE_NEG, 1, (uint32_t[]){ 5 }, 0, NULL);
    gn__put_u32(&b, 5);
    gn__put_u32(&b, 9);
    gn__put_u32(&b, 1);
    gn__put_u32(&b, 6);
    return b;
}

static gn_result decode_part(const gn__buf *b, gn_part **out) {
    gn_fault f;
    size_t before = held;
    peak = held;
    uint64_t start = gn_now_us();
    uint8_t *copy = (uint8_t *)malloc(b->n ? b->n : 1);
    memcpy(copy, b->p, b->n);
    gn_result e = gn__part_decode(copy, b->n, GN__WIRE_NODES, NULL, out, &f);
    free(copy);
    if (e && b->n < 4096) CHECK(gn_now_us() - start < 100000);
    CHECK(peak - before <= 4096 + 40 * b->n); /* allocation is bounded by what is there */
    if (e) {
        CHECK_INT(held, before);
        CHECK(f.text[0] != 0);
    }
    return e;
}

/* What the bytes decode to; frees both. */
static gn_result part_result(gn__buf b) {
    gn_part *part = NULL;
    gn_result e = decode_part(&b, &part);
    gn_free(part);
    gn__buf_deinit(&b);
    return e;
}

TEST(part_matches_golden_bytes_and_hash) {
    gn__buf b = sample_part(), again = { NULL, 0, 0, false }, text = { NULL, 0, 0, false };
    gn_part *part = NULL, *twin = NULL;
    gn_fault f;
    REQUIRE(decode_part(&b, &part) == GN_OK);
    CHECK_RESULT(gn__part_encode(&again, part, &f), GN_OK);
    CHECK(again.n == b.n && memcmp(again.p, b.p, b.n) == 0);
    CHECK_RESULT(decode_part(&again, &twin), GN_OK);
    CHECK(gn__part_equal(part, twin));
    put_text(&text, "hash %016" PRIx64 "\n    ", part->hash);
    put_hex(&text, again.p, again.n);
    check_golden("tests/golden/part.txt", &text);
    gn_free(part);
    gn_free(twin);
    gn__buf_deinit(&b);
    gn__buf_deinit(&again);
    gn__buf_deinit(&text);
}

TEST(part_types_are_inferred) {
    gn__buf b = sample_part();
    gn_part *part = NULL;
    REQUIRE(decode_part(&b, &part) == GN_OK);
    gn__type t = gn__part_type(part, 2);
    CHECK_INT(t.dtype, GN_F32);
    CHECK(t.shape.rank == 2 && t.shape.dims[0] == 2 && t.shape.dims[1] == 2);
    t = gn__part_type(part, 6);
    CHECK(t.shape.rank == 1 && t.shape.dims[0] == 4);
    CHECK_INT(part->nodes[0].leaf, GN_LEAF_DATA);
    CHECK_INT(part->nodes[1].slot, 5);
    CHECK_INT(part->args[1], 3);
    gn_free(part);
    gn__buf_deinit(&b);
}

TEST(part_cut_at_every_byte_is_refused) {
    gn__buf b = sample_part();
    size_t n = b.n;
    for (b.n = 0; b.n < n; b.n++) {
        gn_part *part = NULL;
        CHECK_RESULT(decode_part(&b, &part), GN_BAD_MESSAGE);
        CHECK(part == NULL);
    }
    gn__put_u8(&b, 0);
    CHECK_RESULT(part_result(b), GN_BAD_MESSAGE);
}

/* Every 1, 2, 4 and 8 bytes of a part at every edge: a part or an error, in bounded time and memory. */
TEST(part_with_any_integer_at_its_edges_is_safe) {
    gn__buf b = sample_part();
    uint8_t keep[8];
    long refused = 0, taken = 0;
    for (size_t width = 1; width <= 8; width *= 2)
        for (size_t at = 0; at + width <= b.n; at++)
            for (size_t i = 0; i < GN__LENGTH(edges) + 2; i++) {
                uint64_t v = i < GN__LENGTH(edges) ? edges[i] : i == GN__LENGTH(edges) ? 9 : 255;
                gn_part *part = NULL;
                memcpy(keep, b.p + at, width);
                for (size_t k = 0; k < width; k++) b.p[at + k] = (uint8_t)(v >> (8 * k));
                if (decode_part(&b, &part)) refused++;
                else taken++;
                gn_free(part);
                memcpy(b.p + at, keep, width);
            }
    CHECK(refused > 3000);
    CHECK(taken > 100);
    gn__buf_deinit(&b);
}

TEST(part_without_memory_says_so) {
    gn__buf b = sample_part();
    gn_part *part = NULL;
    gn_fault f;
    gn_result e = GN_OUT_OF_MEMORY;
    for (long n = 0; e == GN_OUT_OF_MEMORY && n < 20; n++) {
        size_t before = held;
        allocations = 0;
        fails_at = n;
        e = gn__part_decode(b.p, b.n, GN__WIRE_NODES, NULL, &part, &f);
        fails_at = -1;
        CHECK(e == GN_OUT_OF_MEMORY || n > 0);
        if (e) CHECK_INT(held, before);
    }
    CHECK_RESULT(e, GN_OK);
    gn_free(part);
    gn__buf_deinit(&b);
}

/* A data leaf of this type, alone. */
static gn_result leaf_case(uint8_t dtype, uint8_t rank, const uint64_t *dims) {
    gn__buf b = { NULL, 0, 0, false };
    put_head(&b, (part_head){ 1, 0, 0, rank, 1, 1, 0 });
    put_data(&b, dtype, rank, dims, 0);
    gn__put_u32(&b, 0);
    return part_result(b);
}

/* Item 2 and 5 of the list: dtypes past the table, dims that wrap, ranks. */
TEST(leaf_types_that_are_not_valid_are_refused) {
    const uint64_t ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    CHECK_RESULT(leaf_case(GN_F32, 1, (uint64_t[]){ 3 }), GN_OK);
    CHECK_RESULT(leaf_case(GN_F32, 0, NULL), GN_OK);
    CHECK_RESULT(leaf_case(GN_F32, 8, ones), GN_OK);
    CHECK_RESULT(leaf_case(GN_F32, 2, (uint64_t[]){ 0, 7 }), GN_OK);
    CHECK_RESULT(leaf_case(0, 1, ones), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_DTYPE__COUNT, 1, ones), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(255, 1, ones), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 9, ones), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 255, ones), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 1, (uint64_t[]){ UINT64_MAX }), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 1, (uint64_t[]){ UINT64_C(1) << 63 }), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 2, (uint64_t[]){ UINT64_C(1) << 32, UINT64_C(1) << 32 }), GN_BAD_MESSAGE);
    /* a zero hides nothing */
    CHECK_RESULT(leaf_case(GN_F32, 3, (uint64_t[]){ UINT64_C(1) << 40, UINT64_C(1) << 40, 0 }), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F32, 1, (uint64_t[]){ (UINT64_C(1) << 47) / 4 + 1 }), GN_BAD_MESSAGE);
    CHECK_RESULT(leaf_case(GN_F64, 1, (uint64_t[]){ UINT64_C(1) << 61 }), GN_BAD_MESSAGE); /* times 8 wraps to 0 */
}

/* One op over data leaves of `n` types; the head may be wrong on purpose. */
static gn_result op_case(uint16_t op, uint32_t n_leaves, const gn__type *types, uint32_t n_ins, const uint32_t *ins,
                         uint16_t n_attrs, const int64_t *attrs, uint32_t out_rank) {
    gn__buf b = { NULL, 0, 0, false };
    uint32_t dims = out_rank;
    for (uint32_t i = 0; i < n_leaves; i++) dims += (uint32_t)types[i].shape.rank;
    put_head(&b, (part_head){ n_leaves + 1, n_ins, n_attrs, dims, n_leaves, 1, 0 });
    for (uint32_t i = 0; i < n_leaves; i++)
        put_data(&b, (uint8_t)types[i].dtype, (uint8_t)types[i].shape.rank, (const uint64_t *)types[i].shape.dims, i);
    put_op(&b, op, n_ins, ins, n_attrs, attrs);
    gn__put_u32(&b, n_leaves);
    return part_result(b);
}

/* Item 12: what the builders refuse, the decoder refuses. */
TEST(ops_that_the_builders_refuse_are_refused) {
    const gn__type m23 = { GN_F32, { 2, { 2, 3 } } }, m34 = { GN_F32, { 2, { 3, 4 } } }, ids = { GN_I32, { 1, { 5 } } },
                   half = { GN_F32, { 1, { 5 } } };
    const gn__type wide = { GN_F32, { 2, { INT64_C(1) << 44, 1 } } }, tall = { GN_F32, { 2, { 1, INT64_C(1) << 44 } } };
    const uint32_t two[2] = { 0, 1 }, one[1] = { 0 };
    CHECK_RESULT(op_case(WIRE_MATMUL, 2, (gn__type[]){ m23, m34 }, 2, two, 0, NULL, 2), GN_OK);
    CHECK_RESULT(op_case(WIRE_MATMUL, 2, (gn__type[]){ m23, m23 }, 2, two, 0, NULL, 2), GN_BAD_SHAPE);
    /* without an input it needs */
    CHECK(op_case(WIRE_MATMUL, 2, (gn__type[]){ m23, m34 }, 1, one, 0, NULL, 2) != GN_OK);
    CHECK(op_case(WIRE_NEG, 2, (gn__type[]){ m23, m34 }, 2, two, 0, NULL, 2) != GN_OK); /* with one it does not take */
    CHECK(op_case(WIRE_NEG, 1, &m23, 0, NULL, 0, NULL, 2) != GN_OK);
    CHECK(op_case(WIRE_ADD, 2, (gn__type[]){ m23, m34 }, 2, two, 0, NULL, 2) != GN_OK);   /* shapes do not broadcast */
    CHECK(op_case(WIRE_ADD, 2, (gn__type[]){ wide, tall }, 2, two, 0, NULL, 2) != GN_OK); /* 2^88 elements */
    CHECK_RESULT(op_case(WIRE_EMBEDDING, 2, (gn__type[]){ m23, ids }, 2, two, 0, NULL, 2), GN_OK);
    CHECK(op_case(WIRE_EMBEDDING, 2, (gn__type[]){ m23, half }, 2, two, 0, NULL, 2) != GN_OK); /* float ids */
    CHECK_RESULT(op_case(WIRE_RESHAPE, 1, &m23, 1, one, 1, (int64_t[]){ 6 }, 1), GN_OK);
    CHECK(op_case(WIRE_RESHAPE, 1, &m23, 1, one, 1, (int64_t[]){ 7 }, 1) != GN_OK);
    CHECK(op_case(WIRE_RESHAPE, 1, &m23, 1, one, 9, (int64_t[]){ 6, 1, 1, 1, 1, 1, 1, 1, 1 }, 9) != GN_OK);
    CHECK(op_case(WIRE_RESHAPE, 1, &m23, 1, one, 2, (int64_t[]){ INT64_MIN, INT64_MIN }, 2) != GN_OK);
    CHECK(op_case(WIRE_RESHAPE, 1, &m23, 1, one, 0, NULL, 0) != GN_OK);
    CHECK(op_case(WIRE_BROADCAST, 1, &m23, 1, one, 2, (int64_t[]){ 2, INT64_MAX }, 2) != GN_OK);
    CHECK(op_case(WIRE_CONCAT, 2, (gn__type[]){ m23, m34 }, 2, two, 1, (int64_t[]){ 0 }, 2) != GN_OK);
    /* an axis past the rank */
    CHECK(op_case(WIRE_CONCAT, 2, (gn__type[]){ m23, m23 }, 2, two, 1, (int64_t[]){ 2 }, 2) != GN_OK);
    CHECK(op_case(WIRE_CONCAT, 2, (gn__type[]){ m23, m23 }, 2, two, 1, (int64_t[]){ INT64_MIN }, 2) != GN_OK);
    CHECK(op_case(WIRE_ARANGE, 0, NULL, 0, NULL, 4, (int64_t[]){ GN_F32, INT64_MAX, 0, 0 }, 1) != GN_OK);
    CHECK(op_case(WIRE_ARANGE, 0, NULL, 0, NULL, 4, (int64_t[]){ 77, 3, 0, 0 }, 1) != GN_OK);
    CHECK_RESULT(op_case(0x7777, 1, &m23, 1, one, 0, NULL, 2), GN_UNSUPPORTED);
    CHECK_RESULT(op_case(0, 1, &m23, 1, one, 0, NULL, 2), GN_UNSUPPORTED);
}

/* Every op of the table over inputs it was not made for, with attributes at their edges. */
TEST(every_op_with_random_inputs_is_safe) {
    long refused = 0;
    for (int k = 0; k < 20000; k++) {
        gn__type types[4];
        uint32_t ins[4], n = (uint32_t)test_random_int(0, 4);
        int64_t attrs[10];
        for (uint32_t i = 0; i < 4; i++) {
            memset(&types[i], 0, sizeof types[i]);
            types[i].dtype = (gn_dtype)test_random_int(1, GN_DTYPE__COUNT - 1);
            types[i].shape.rank = (int32_t)test_random_int(0, 4);
            for (int j = 0; j < types[i].shape.rank; j++) types[i].shape.dims[j] = test_random_int(0, 3);
            ins[i] = i;
        }
        uint16_t n_attrs = (uint16_t)test_random_int(0, 10);
        for (int i = 0; i < 10; i++)
            attrs[i] = test_random_int(0, 2) ? test_random_int(-3, 9) : (int64_t)edges[test_random_int(0, 8)];
        int op = (int)test_random_int(GN_OP_FAILED + 1, GN_OP__COUNT - 1);
        if (gn__ops[op].kind == GN_CLASS_LEAF) continue;
        for (uint32_t rank = 0; rank <= 4; rank++)
            if (op_case(gn__ops[op].wire, n, types, n, ins, n_attrs, attrs, rank)) refused++;
    }
    CHECK(refused > 50000);
}

/* A chain of `n` negations of one leaf. */
static gn__buf chain_part(uint32_t n, uint32_t (*input)(uint32_t)) {
    gn__buf b = { NULL, 0, 0, false };
    put_head(&b, (part_head){ n + 1, n, 0, n + 1, 1, 1, 0 });
    put_data(&b, GN_F32, 1, (uint64_t[]){ 4 }, 0);
    for (uint32_t i = 1; i <= n; i++) put_op(&b, WIRE_NEG, 1, (uint32_t[]){ input(i) }, 0, NULL);
    gn__put_u32(&b, n);
    return b;
}

static uint32_t before_it(uint32_t i) { return i - 1; }
static uint32_t itself(uint32_t i) { return i; }
static uint32_t after_it(uint32_t i) { return i + 1; }
static uint32_t the_last(uint32_t i) { return i == 1 ? 3 : i - 1; } /* a cycle 1 → 3 → 2 → 1 */

/* Item 8. */
TEST(graphs_that_are_no_graphs_are_refused) {
    gn__buf b = { NULL, 0, 0, false };
    CHECK_RESULT(part_result(chain_part(3, before_it)), GN_OK);
    CHECK_RESULT(part_result(chain_part(3, itself)), GN_BAD_MESSAGE);
    CHECK_RESULT(part_result(chain_part(3, after_it)), GN_BAD_MESSAGE);
    CHECK_RESULT(part_result(chain_part(3, the_last)), GN_BAD_MESSAGE);
    CHECK_RESULT(part_result(chain_part(300000, before_it)), GN_OK); /* deep, and honest */
    put_head(&b, (part_head){ 0, 0, 0, 0, 0, 1, 0 });                /* node 0 of 0 */
    gn__put_u32(&b, 0);
    CHECK_RESULT(part_result(b), GN_BAD_MESSAGE);
    b = (gn__buf){ NULL, 0, 0, false };
    put_head(&b, (part_head){ 0, 0, 0, 0, 0, 0, 0 });
    CHECK_RESULT(part_result(b), GN_BAD_MESSAGE);
    b = (gn__buf){ NULL, 0, 0, false };
    put_head(&b, (part_head){ UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX });
    CHECK_RESULT(part_result(b), GN_BAD_MESSAGE);
}

TEST(part_with_more_nodes_than_allowed_is_a_limit) {
    gn__buf b = chain_part(100, before_it);
    gn_part *part = NULL;
    gn_fault f;
    CHECK_RESULT(gn__part_decode(b.p, b.n, 100, NULL, &part, &f), GN_LIMIT);
    CHECK(part == NULL);
    CHECK_RESULT(gn__part_decode(b.p, b.n, 101, NULL, &part, &f), GN_OK);
    gn_free(part);
    gn__buf_deinit(&b);
}

TEST(decoding_ends_when_its_flag_is_set) {
    gn__buf b = chain_part(100, before_it);
    gn_part *part = NULL;
    gn_fault f;
    gn_flag flag = { GN_DISCONNECTED };
    CHECK_RESULT(gn__part_decode(b.p, b.n, 101, &flag, &part, &f), GN_DISCONNECTED);
    CHECK(part == NULL);
    CHECK_STR(f.text, "the client has gone");
    flag.why = GN_OK;
    CHECK_RESULT(gn__part_decode(b.p, b.n, 101, &flag, &part, &f), GN_OK);
    gn_free(part);
    gn__buf_deinit(&b);
}

TEST(fan_in_of_a_hundred_thousand_is_refused) {
    gn__buf b = { NULL, 0, 0, false };
    uint32_t n = 100000, *ins = (uint32_t *)calloc(n, sizeof *ins);
    put_head(&b, (part_head){ 2, n, 1, 2, 1, 1, 0 });
    put_data(&b, GN_F32, 1, (uint64_t[]){ 4 }, 0);
    put_op(&b, WIRE_CONCAT, n, ins, 1, (int64_t[]){ 0 });
    gn__put_u32(&b, 1);
    free(ins);
    CHECK_RESULT(part_result(b), GN_BAD_MESSAGE);
}

/* Offsets of the sample: its fields are counted from the start, so that one can be changed. */
static gn_result sample_with(size_t from_end, uint32_t v) {
    gn__buf b = sample_part();
    for (size_t i = 0; i < 4; i++) b.p[b.n - from_end + i] = (uint8_t)(v >> (8 * i));
    return part_result(b);
}

TEST(outputs_and_updates_out_of_range_are_refused) {
    CHECK_RESULT(sample_with(4, 6), GN_OK); /* node of the update */
    CHECK_RESULT(sample_with(4, 7), GN_BAD_MESSAGE);
    CHECK_RESULT(sample_with(4, UINT32_MAX), GN_BAD_MESSAGE);
    CHECK_RESULT(sample_with(16, 0), GN_OK); /* node of the output */
    CHECK_RESULT(sample_with(16, 7), GN_BAD_MESSAGE);
    CHECK_RESULT(sample_with(16, UINT32_MAX), GN_BAD_MESSAGE);
}

TEST(phases_out_of_range_are_refused) {
    for (unsigned phase = 0; phase < 256; phase++) {
        gn__buf b = sample_part();
        b.p[28 + 2] = (uint8_t)phase; /* of the first node */
        CHECK_RESULT(part_result(b), phase < GN_PHASE__COUNT ? GN_OK : GN_BAD_MESSAGE);
    }
}

static gn_result args_case(uint32_t n_args, uint32_t first, uint32_t second) {
    gn__buf b = { NULL, 0, 0, false };
    put_head(&b, (part_head){ 3, 2, 0, 3, n_args, 1, 0 });
    put_data(&b, GN_F32, 1, (uint64_t[]){ 4 }, first);
    put_data(&b, GN_F32, 1, (uint64_t[]){ 4 }, second);
    put_op(&b, WIRE_ADD, 2, (uint32_t[]){ 0, 1 }, 0, NULL);
    gn__put_u32(&b, 2);
    return part_result(b);
}

TEST(arguments_are_each_named_once) {
    CHECK_RESULT(args_case(2, 0, 1), GN_OK);
    CHECK_RESULT(args_case(2, 1, 0), GN_OK);
    CHECK_RESULT(args_case(2, 0, 0), GN_BAD_MESSAGE);
    CHECK_RESULT(args_case(2, 0, 2), GN_BAD_MESSAGE);
    CHECK_RESULT(args_case(2, 0, UINT32_MAX), GN_BAD_MESSAGE);
    CHECK_RESULT(args_case(1, 0, 1), GN_BAD_MESSAGE);
    CHECK_RESULT(args_case(3, 0, 1), GN_BAD_MESSAGE);
}

TEST(part_heads_that_count_wrong_are_refused) {
    for (size_t field = 0; field < 7; field++)
        for (int k = -1; k <= 1; k += 2) {
            gn__buf b = sample_part();
            gn__rd r = { b.p + 4 * field, b.p + b.n, false };
            uint32_t v = gn__get_u32(&r) + (uint32_t)k;
            for (size_t i = 0; i < 4; i++) b.p[4 * field + i] = (uint8_t)(v >> (8 * i));
            gn_result e = part_result(b);
            CHECK(e == GN_BAD_MESSAGE || e == GN_UNSUPPORTED); /* what follows is read as a node */
        }
}

TEST(hash_covers_every_byte_of_a_part) {
    gn__buf b = sample_part();
    gn_part *part = NULL;
    REQUIRE(decode_part(&b, &part) == GN_OK);
    uint64_t hash = part->hash;
    gn_free(part);
    for (size_t at = 28; at < b.n; at++) {
        part = NULL;
        b.p[at] ^= 1;
        if (decode_part(&b, &part) == GN_OK) CHECK(part->hash != hash);
        gn_free(part);
        b.p[at] ^= 1;
    }
    gn__buf_deinit(&b);
}

TEST(random_bytes_are_no_part) {
    for (int k = 0; k < 20000; k++) {
        gn__buf b = sample_part();
        for (int64_t n = test_random_int(1, 12); n > 0; n--)
            b.p[test_random_int(0, (int64_t)b.n - 1)] = (uint8_t)test_random();
        part_result(b);
    }
    CHECK_INT(held, 0);
}

/* Ids, inputs and attributes of ops are part of the protocol: what was once told to a peer stays. */
TEST(ops_match_their_golden_ids) {
    gn__buf text = { NULL, 0, 0, false };
    for (uint32_t w = 1; w < 8 * GN__WIRE_OPS; w++) {
        int op = gn__op_by_wire((uint16_t)w);
        if (op < 0) continue;
        put_text(&text, "%02x %s, %d to %d inputs, %d attributes\n", (unsigned)w, gn__ops[op].name, gn__ops[op].least,
                 gn__ops[op].most, gn__ops[op].n_attrs);
    }
    check_golden("tests/golden/ops.txt", &text);
    gn__buf_deinit(&text);
}

TEST(ops_bitmap_names_every_op) {
    uint8_t bits[GN__WIRE_OPS];
    gn__ops_bitmap(bits);
    gn__span s = { bits, sizeof bits };
    int n = 0;
    for (uint32_t w = 0; w < 8 * GN__WIRE_OPS; w++) {
        CHECK_INT(gn__ops_has(&s, (uint16_t)w), gn__op_by_wire((uint16_t)w) >= 0);
        n += gn__ops_has(&s, (uint16_t)w);
    }
    CHECK_INT(n, GN_OP__COUNT - 1);
    CHECK(!gn__ops_has(&s, UINT16_MAX));
    s.n = 1;
    CHECK(!gn__ops_has(&s, 8));
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(protocol_table_matches_its_documentation),
        TEST_ENTRY(messages_match_golden_bytes),
        TEST_ENTRY(message_ids_are_their_places),
        TEST_ENTRY(messages_come_back_as_they_went),
        TEST_ENTRY(messages_cut_at_every_byte_are_refused),
        TEST_ENTRY(integer_fields_at_their_edges),
        TEST_ENTRY(arrays_longer_than_their_limit_are_refused),
        TEST_ENTRY(frame_heads_that_are_not_valid_are_refused),
        TEST_ENTRY(optional_unknown_messages_are_skipped),
        TEST_ENTRY(interleaved_messages_are_put_together),
        TEST_ENTRY(unfinished_messages_are_bounded),
        TEST_ENTRY(announced_bytes_take_no_memory_before_they_come),
        TEST_ENTRY(cancel_forgets_an_unfinished_message),
        TEST_ENTRY(large_messages_travel_in_frames),
        TEST_ENTRY(outbox_without_memory_withdraws_the_message),
        TEST_ENTRY(blobs_come_back_as_they_went),
        TEST_ENTRY(blobs_in_pieces_are_what_they_are_in_one),
        TEST_ENTRY(chunks_that_lie_are_refused),
        TEST_ENTRY(part_matches_golden_bytes_and_hash),
        TEST_ENTRY(part_types_are_inferred),
        TEST_ENTRY(part_cut_at_every_byte_is_refused),
        TEST_ENTRY(part_with_any_integer_at_its_edges_is_safe),
        TEST_ENTRY(part_without_memory_says_so),
        TEST_ENTRY(leaf_types_that_are_not_valid_are_refused),
        TEST_ENTRY(ops_that_the_builders_refuse_are_refused),
        TEST_ENTRY(every_op_with_random_inputs_is_safe),
        TEST_ENTRY(graphs_that_are_no_graphs_are_refused),
        TEST_ENTRY(part_with_more_nodes_than_allowed_is_a_limit),
        TEST_ENTRY(decoding_ends_when_its_flag_is_set),
        TEST_ENTRY(fan_in_of_a_hundred_thousand_is_refused),
        TEST_ENTRY(outputs_and_updates_out_of_range_are_refused),
        TEST_ENTRY(phases_out_of_range_are_refused),
        TEST_ENTRY(arguments_are_each_named_once),
        TEST_ENTRY(part_heads_that_count_wrong_are_refused),
        TEST_ENTRY(hash_covers_every_byte_of_a_part),
        TEST_ENTRY(random_bytes_are_no_part),
        TEST_ENTRY(ops_match_their_golden_ids),
        TEST_ENTRY(ops_bitmap_names_every_op),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
