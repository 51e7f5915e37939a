/* Any bytes as a tokenizer.json or a GGUF file: refused with a reason, or texts of all kinds are encoded and decoded
 * without harm. */
#include "formats_fuzz.h"
#define TOKENIZER_IMPLEMENTATION
#include "../../examples/formats/tokenizer.h"
#include "../vocabulary.h"

static void tokenizer_fuzz_keep(void *user, const char *p, size_t n) {
    FUZZ_CHECK(json_utf8(p, n) == n);
    *(size_t *)user += n;
}

/* The file's own bytes are a good text: they hold its tokens, and whatever else. */
static void tokenizer_fuzz_use(const tokenizer *t, const char *text, size_t size, unsigned flags) {
    tokenizer_ids ids = { NULL, 0, 0 };
    tokenizer_stream s = { { 0 }, 0, false };
    size_t decoded = 0;
    FUZZ_CHECK(tokenizer_encode(t, text, size, flags, &ids));
    for (size_t i = 0; i < ids.n; i++) {
        FUZZ_CHECK(ids.id[i] < tokenizer_size(t));
        tokenizer_decode(t, &s, ids.id[i], tokenizer_fuzz_keep, &decoded);
    }
    tokenizer_decode_end(t, &s, tokenizer_fuzz_keep, &decoded);
    tokenizer_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[TOKENIZER_ERROR], path[64];
    int fd = formats_file(data, size, path);
    tokenizer *t = tokenizer_open(path, error);
    FUZZ_CHECK(t || error[0]);
    if (t) {
        tokenizer_fuzz_use(t, (const char *)data, size < 2000 ? size : 2000, TOKENIZER_TEMPLATE);
        tokenizer_fuzz_use(t, "  a\xff b\n\n12 \xc3\xa4'S", 15, TOKENIZER_PLAIN);
    }
    tokenizer_close(t);
    close(fd);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const texts[] = {
        "{\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true,\"lstrip\":true,\"rstrip\":true,\"single_"
        "word\":true}],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Prepend\",\"prepend\":"
        "\"_\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"_\"}]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\","
        "\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"ab\":3,\"<0x0A>\":4},\"merges\":"
        "[\"a b\"]}}",
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
        "{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":true}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
        "\"vocab\":"
        "{\"a\":0,\"\xc4\xa0\":1,\"\xc4\xa0"
        "a\":2},\"merges\":[[\"\xc4\xa0\",\"a\"]]},\"post_processor\":{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"a\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"a\":{"
        "\"ids\":[0]}}}}",
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true},"
        "\"decoder\":"
        "{\"type\":\"Metaspace\",\"replacement\":\"_\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\","
        "0],[\"_\",-1],"
        "[\"a\",-2.5],[\"_a\",-3],[\"ab\",-4]]}}",
    };
    static const char *const models[] = { "llama", "t5", "gpt2" };
    size_t n = sizeof texts / sizeof *texts;
    if (index >= n && index < n + 3 && cap >= 4096)
        return vocabulary_make(out, models[index - n], index - n == 2 ? "gpt-2" : NULL,
                               "<unk> <s> </s> <0x0A> \xe2\x96\x81 a b ab <u>", "233611114", "000098721",
                               index - n == 2 ? "a~b" : NULL);
    if (index >= n || strlen(texts[index]) > cap) return 0;
    memcpy(out, texts[index], strlen(texts[index]));
    return strlen(texts[index]);
}
