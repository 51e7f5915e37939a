/* Packed bytes of tensors. The first byte chooses the codec and the size of an element, two say how large the tensor
 * is; then come packed bytes, or, if bit 5 of the first is set, a tensor's own, which must come back as they were. */
#include "fuzz_net.h"

enum { PACKED_GUARD = 64 };

static void packed_round_trip(const uint8_t *p, size_t n, int elem) {
    uint8_t codec = 0, *packed = gn_alloc(n + 1), *again = gn_alloc(n + 1);
    FUZZ_CHECK(packed != NULL && again != NULL);
    size_t stored = gn__net_pack(p, n, elem, 0, packed, n, &codec);
    FUZZ_CHECK(stored <= n && (stored > 0) == (codec != GN__RAW));
    if (stored > 0)
        FUZZ_CHECK(gn__net_unpack(codec, packed, stored, elem, again, n) == GN_OK && memcmp(again, p, n) == 0);
    if (stored > 0) FUZZ_CHECK(gn__net_unpack(codec, packed, stored, elem, again, n - 1) == GN_BAD_MESSAGE);
    gn_free(packed);
    gn_free(again);
}

static void packed_hostile(uint8_t codec, const uint8_t *p, size_t n, int elem, size_t raw_n) {
    uint8_t *out = gn_alloc(raw_n + PACKED_GUARD);
    FUZZ_CHECK(out != NULL);
    memset(out, 0xa5, raw_n + PACKED_GUARD);
    gn_result r = gn__net_unpack(codec, p, n, elem, out, raw_n);
    FUZZ_CHECK(r == GN_OK || r == GN_BAD_MESSAGE || r == GN_OUT_OF_MEMORY);
    for (int i = 0; i < PACKED_GUARD; i++) FUZZ_CHECK(out[raw_n + (size_t)i] == 0xa5);
    static const uint8_t magic[] = { 0x28, 0xb5, 0x2f, 0xfd };
    if (r == GN_OK && codec != GN__RAW) FUZZ_CHECK(n >= 4 && memcmp(p, magic, 4) == 0);
    gn_free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int elements[] = { 1, 2, 4, 8 };
    fuzz_input in = { data, size };
    uint8_t how = fuzz_byte(&in);
    size_t raw_n = fuzz_byte(&in);
    raw_n |= (size_t)fuzz_byte(&in) << 8;
    int elem = elements[how >> 3 & 3];
    if (how & 32) packed_round_trip(in.p, in.n, elem);
    else packed_hostile(how & 7, in.p, in.n, elem, raw_n);
    gn__net_forget_packers();
    return 0;
}

/* Frames of each codec and of the format before that of RFC 8878, of zeros, of steps and of few values; then
   tensors. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    enum { N = 3000 };
    static uint8_t raw[N];
    size_t shape = index / 4, element = index % 4;
    if (cap < N + 600 || shape > 6) return 0;
    for (size_t i = 0; i < N; i++)
        raw[i] = shape % 3 == 0 ? 0 : shape % 3 == 1 ? (uint8_t)(i >> 6) : (uint8_t)(i * 2654435761u >> 24 & 3);
    out[0] = (uint8_t)(element << 3 | (shape >= 3 ? 32 : 0));
    out[1] = N & 255;
    out[2] = N >> 8;
    if (shape == 6) { /* zstd 0.7: one block, stored */
        static const uint8_t head[] = { GN__ZSTD, 0x00, 0x01, 0x27, 0xb5, 0x2f, 0xfd, 0x60, 0, 0, 0x40, 1, 0 };
        memcpy(out, head, sizeof head);
        memcpy(out + sizeof head, raw, 256);
        memcpy(out + sizeof head + 256, "\xc0\0\0", 3);
        return element == 0 ? sizeof head + 259 : 0;
    }
    if (shape >= 3) {
        memcpy(out + 3, raw, N);
        return 3 + N;
    }
    uint8_t codec = 0;
    size_t n = gn__net_pack(raw, N, 1 << element, 0, out + 3, N, &codec);
    gn__net_forget_packers();
    out[0] |= codec;
    return 3 + n;
}
