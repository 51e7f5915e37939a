/* TLS records after the handshake. The first byte chooses the suite and the version, the second whether what follows is
 * bytes from the wire, or records to be sealed with the right keys and then, perhaps, altered in one place; the third
 * in which pieces they come and are taken.
 * Whatever comes, what is read is the beginning of what was sent. */
#include "fuzz_net.h"

enum { RECORD_WIRE = 1 << 17, RECORD_PLAIN = 1 << 16 };

typedef struct record_tape {
    uint8_t wire[RECORD_WIRE], plain[RECORD_PLAIN];
    size_t wire_n, plain_n;
} record_tape;

static bool record_ends(gn__records *client, gn__records *server, int aead, bool v13) {
    gn__keys k;
    memset(&k, 0, sizeof k);
    for (size_t i = 0; i < sizeof k.up; i++)
        k.up[i] = (uint8_t)(i * 7 + 1), k.down[i] = (uint8_t)(i * 11 + 3), k.random[i] = (uint8_t)(i * 13 + 5);
    k.v13 = v13;
    k.n = v13 ? (aead == GN__AES_256_GCM ? 48 : 32) : 48;
    k.prf = aead == GN__AES_256_GCM ? MBEDTLS_SSL_TLS_PRF_SHA384 : MBEDTLS_SSL_TLS_PRF_SHA256;
    if (!gn__records_init(client, gn__crypto_use(), &k, aead, false)) return false;
    if (!gn__records_init(server, gn__crypto_use(), &k, aead, true)) {
        gn__records_deinit(client);
        return false;
    }
    client->up.number = client->down.number = server->up.number = server->down.number = v13 ? 0 : 1;
    return true;
}

/* Records as the input says: a byte of type, two of length, then the bytes, and so on; a type of 0 changes the keys. */
static void record_write(record_tape *t, gn__records *client, fuzz_input *in) {
    static const uint8_t types[] = { GN__DATA, GN__ALERT, GN__HANDSHAKE, 20, 24 };
    while (in->n > 3) {
        uint8_t kind = fuzz_byte(in), type = types[kind % sizeof types];
        size_t n = fuzz_byte(in);
        n |= (size_t)(fuzz_byte(in) & 15) << 8;
        n = n < in->n ? n : in->n;
        if (t->wire_n + 2 * GN__RECORD_ROOM > RECORD_WIRE || t->plain_n + n > RECORD_PLAIN) return;
        if (kind >= 250) t->wire_n += gn__record_renew(client, t->wire + t->wire_n);
        else t->wire_n += gn__record_seal(client, type, in->p, n, t->wire + t->wire_n);
        if (kind < 250 && type == GN__DATA) {
            memcpy(t->plain + t->plain_n, in->p, n);
            t->plain_n += n;
        }
        in->p += n;
        in->n -= n;
    }
}

/* Reads the tape in pieces; how much came out. *out_result: why it ended. */
static size_t record_read(const record_tape *t, gn__records *server, uint8_t how, bool honest, gn_result *out_result) {
    static const size_t pieces[] = { 1, 5, 100, RECORD_WIRE }, rooms[] = { 1, 33, 5000, RECORD_PLAIN };
    static uint8_t out[RECORD_PLAIN];
    size_t at = 0, have = 0, got = 0, piece = pieces[how & 3], room = rooms[how >> 2 & 3];
    gn_result r = GN_OK;
    for (bool more = true; r == GN_OK && more;) {
        size_t n = 0, left = sizeof out - got, max = room < left ? room : left;
        more = have < t->wire_n;
        have += FUZZ_MIN(piece, t->wire_n - have);
        do {
            r = max ? gn__records_open(server, t->wire, &at, have, out + got, max, &n) : GN_DISCONNECTED;
            FUZZ_CHECK(n <= max && at <= have);
            got += n;
            left = sizeof out - got, max = room < left ? room : left;
        } while (r == GN_OK && n > 0);
    }
    FUZZ_CHECK(!honest || (got <= t->plain_n && memcmp(out, t->plain, got) == 0));
    *out_result = r;
    return got;
}

/* Our sealing by libcrypto and mbedTLS's own give the same bytes. */
static void record_two_libraries(int aead, const uint8_t *p, size_t n) {
    uint8_t key[32], nonce[GN__NONCE], aad[13], a[600], b[600];
    memset(key, 7, sizeof key);
    memset(nonce, 9, sizeof nonce);
    memset(aad, 3, sizeof aad);
    n = FUZZ_MIN(n, 500);
    void *ctx = gn__aead_make(gn__crypto_use(), aead, key, true);
    FUZZ_CHECK(ctx != NULL && gn__aead_seal(gn__crypto_use(), ctx, nonce, aad, sizeof aad, p, n, NULL, a));
    gn__crypto_use()->EVP_CIPHER_CTX_free(ctx);
    FUZZ_CHECK(gn__stock_seal(aead, key, nonce, aad, sizeof aad, p, n, b) && memcmp(a, b, n + GN__TAG) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int aeads[] = { GN__AES_128_GCM, GN__AES_256_GCM, GN__CHACHA20_POLY1305 };
    static record_tape t;
    fuzz_input in = { data, size };
    gn__records client, server;
    uint8_t suite = fuzz_byte(&in), mode = fuzz_byte(&in), how = fuzz_byte(&in);
    int aead = aeads[suite % 3];
    gn_result r;
    if (!gn__crypto_use() || !record_ends(&client, &server, aead, suite & 4)) return 0;
    t.wire_n = t.plain_n = 0;
    if (mode & 1) {
        t.wire_n = FUZZ_MIN(in.n, sizeof t.wire);
        if (in.n) memcpy(t.wire, in.p, t.wire_n);
        FUZZ_CHECK(record_read(&t, &server, how, true, &r) == 0); /* nobody seals without the keys */
    } else {
        size_t place = (size_t)fuzz_byte(&in) << 8, bits = fuzz_byte(&in);
        place |= fuzz_byte(&in);
        if (in.n && in.n < 64) record_two_libraries(aead, in.p, in.n);
        record_write(&t, &client, &in);
        bool altered = (mode & 2) && bits && t.wire_n > 0;
        if (altered) t.wire[place % t.wire_n] ^= (uint8_t)bits;
        size_t got = record_read(&t, &server, how, true, &r);
        FUZZ_CHECK(altered || r != GN_OK || got == t.plain_n);
    }
    gn__records_deinit(&client);
    gn__records_deinit(&server);
    return 0;
}

/* Each suite and version: data, alerts, messages of the handshake and changes of keys, as they are and altered;
   garbage. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    size_t suite = index % 8, mode = index / 8, n = 0;
    static const uint8_t script[] = { 0, 5, 0, 'h', 'e', 'l', 'l', 'o', 250, 0, 0, 0, 200, 0 };
    static const uint8_t tail[] = {
        251, 0, 0, 2, 4, 0, 24, 0, 0, 0, 0, 3, 0, 'e', 'n', 'd', 1, 2, 0, 1, 0, 0, 1, 0, 'x'
    };
    if (mode > 2 || cap < 600) return 0;
    out[n++] = (uint8_t)suite;
    out[n++] = (uint8_t)(mode == 0 ? 0 : mode == 1 ? 2 : 1);
    out[n++] = (uint8_t)(index * 5);
    if (mode == 2) {
        memcpy(out + n, "\x17\x03\x03\x00\x20", 5);
        memset(out + n + 5, 0x5a, 40);
        return n + 45;
    }
    out[n++] = 0;
    out[n++] = mode == 1 ? 1 : 0;
    out[n++] = (uint8_t)(suite * 9);
    memcpy(out + n, script, sizeof script);
    n += sizeof script;
    memset(out + n, 'd', 200);
    n += 200;
    memcpy(out + n, tail, sizeof tail);
    return n + sizeof tail;
}
