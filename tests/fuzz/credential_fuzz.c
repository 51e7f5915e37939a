/* The files of the home folder, whose lines are "KEY VALUE": what is found in them, what an edit leaves, what a
 * credential's line and a proof in a HELLO say. The first byte chooses the key, the second what the line becomes. */
#include "fuzz_net.h"

static const char *const credential_keys[] = {
    "127.0.0.1:5556", "a", "[::1]:1", "00112233445566778899aabbccddeeff", "#", ""
};

/* Lines of other keys, in order, as one hash and their number. */
static uint64_t credential_others(const char *text, const char *key, size_t *out_n) {
    uint64_t h = 0;
    size_t k = strlen(key);
    for (*out_n = 0; *text;) {
        size_t n = strcspn(text, "\n");
        bool ours = n > k && memcmp(text, key, k) == 0 && text[k] == ' ';
        for (size_t i = 0; i < n && !ours; i++) h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
        if (!ours) h = h * 31 + 7;
        *out_n += !ours;
        text += n + (text[n] == '\n');
    }
    return h;
}

static void credential_edit(gn__bytes file, const char *key, const char *value) {
    gn__bytes next = { NULL, 0 };
    size_t before, after, n = 0, lines = 0, k = strlen(key);
    FUZZ_CHECK(gn__store_edit(&file, key, value, &next) == GN_OK);
    FUZZ_CHECK(strlen((char *)next.p) == next.n);
    const char *line = gn__store_line((char *)next.p, key, &n);
    FUZZ_CHECK(line != NULL && n >= k + 1);
    for (const char *at = (char *)file.p; *at; at += strcspn(at, "\n"), at += *at == '\n')
        lines += strncmp(at, key, k) == 0 && at[k] == ' ';
    if (lines <= 1) { /* of several lines of one key the first was the one that counted, and is the one replaced */
        FUZZ_CHECK(n == k + 1 + strlen(value) + 1 && memcmp(line + k + 1, value, strlen(value)) == 0);
        FUZZ_CHECK(credential_others((char *)file.p, key, &before) == credential_others((char *)next.p, key, &after) &&
                   before == after);
    }
    gn__forget(&next);
}

static void credential_proof(const uint8_t *p, size_t n) {
    gn__proof proof;
    uint8_t again[256];
    if (!gn__proof_read(p, n, &proof)) return;
    FUZZ_CHECK(n <= sizeof again && gn__proof_write(&proof, again) == n && memcmp(again, p, n) == 0);
}

/* A line that is taken as a credential is the line that would be written of it. */
static void credential_line(const char *value) {
    gn__proof proof;
    uint8_t pin[GN__PIN];
    char hex[2 * GN__PIN + 1], again[256];
    memset(&proof, 0, sizeof proof);
    if (!gn__credential_parse(value, pin, &proof)) return;
    gn__hex(pin, GN__PIN, hex);
    size_t n = (size_t)snprintf(again, sizeof again, "%s ", hex);
    gn__hex(proof.id, GN__ID, hex);
    n += (size_t)snprintf(again + n, sizeof again - n, "%s ", hex);
    gn__hex(proof.secret, GN__SECRET, hex);
    snprintf(again + n, sizeof again - n, "%s", hex);
    for (size_t i = 0; again[i] || value[i]; i++) FUZZ_CHECK(again[i] == gn__lower(value[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = { data, size };
    const char *key = credential_keys[fuzz_byte(&in) % (sizeof credential_keys / sizeof *credential_keys)];
    const char *value = fuzz_byte(&in) & 1 ? "v" : "a value of several words";
    credential_proof(in.p, in.n);
    if (memchr(in.p ? in.p : (const uint8_t *)"", 0, in.n)) return 0; /* such a file is refused when it is read */
    char *text = gn_alloc(in.n + 1);
    FUZZ_CHECK(text != NULL);
    if (in.n) memcpy(text, in.p, in.n);
    text[in.n] = 0;
    size_t n = 0;
    const char *line = gn__store_line(text, key, &n);
    FUZZ_CHECK(line == NULL ||
               (line >= text && n >= strlen(key) + 1 && line + n <= text + in.n && (line == text || line[-1] == '\n')));
    if (line) {
        char found[300];
        size_t len = strcspn(line, "\r\n") - strlen(key) - 1;
        snprintf(found, sizeof found, "%.*s", (int)(len < sizeof found - 1 ? len : sizeof found - 1),
                 line + strlen(key) + 1);
        credential_line(found);
    }
    credential_line(text);
    credential_edit((gn__bytes){ (uint8_t *)text, in.n }, key, value);
    gn_free(text);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
#define HEX32 "00112233445566778899aabbccddeeff"
#define LINE HEX32 HEX32 " " HEX32 " " HEX32 HEX32
    static const char *const seeds[] = {
        "\1\1"
        "a " LINE "\n",
        "\1\2"
        "b x\na " LINE "\r\nc y",
        "\1\1"
        "",
        "\1\1"
        "\n\n\na\n",
        "\1\2"
        "a  two\na one\n",
        "\1\1" LINE,
        "\2\1"
        "[::1]:1 " LINE "\n# note\n",
        "\3\1" HEX32 " " HEX32 HEX32 "\n",
        "\4\1"
        "# nobody\n",
        "\1\1"
        "ab x\na",
        "\5\1"
        " x\n y",
        "\1\2"
        "a " LINE " ",
    };
    static const size_t proofs[] = { 2, 50, 18, 66 };
    size_t n_seeds = sizeof seeds / sizeof *seeds;
    if (index >= n_seeds + 4 || cap < 400) return 0;
    if (index < n_seeds) {
        size_t n = strlen(seeds[index]);
        memcpy(out, seeds[index], n);
        return n;
    }
    memset(out, 'p', 80);
    out[2] = 1;
    out[3] = (uint8_t)(index - n_seeds);
    return 2 + proofs[index - n_seeds];
#undef HEX32
#undef LINE
}
