/* Any bytes as JSON: what passes the check can be walked whole, and each of its strings, quoted again, is the same
 * string. */
#include "fuzz.h"
#define JSON_IMPLEMENTATION
#include "../../examples/formats/json.h"

static void json_string_again(json_value v) {
    size_t size, room = v.size;
    char *text = malloc(room), *quoted = malloc(6 * room + 2), *back = malloc(room);
    FUZZ_CHECK(text && quoted && back && json_get_string(v, text, room, &size));
    size_t n = json_quote(text, size, quoted, 6 * room + 2), again;
    json_value root;
    json_error why;
    FUZZ_CHECK(n <= 6 * room + 2 && json_check(quoted, n, &(json_limits){ .bytes = n }, &root, &why));
    FUZZ_CHECK(json_get_string(root, back, room, &again) && again == size && !memcmp(back, text, size));
    free(text);
    free(quoted);
    free(back);
}

static size_t json_walk(json_value v) {
    json_value key, value;
    size_t n = 1;
    int64_t i;
    uint64_t u;
    double d;
    bool b;
    if (json_kind_of(v) == JSON_STRING) json_string_again(v);
    FUZZ_CHECK(json_kind_of(v) != JSON_MISSING && json_get_bool(v, &b) == (json_kind_of(v) == JSON_BOOL));
    if (json_get_i64(v, &i) | json_get_u64(v, &u) | json_get_double(v, &d)) FUZZ_CHECK(json_kind_of(v) == JSON_NUMBER);
    for (json_iter at = json_begin(v); json_next(&at, &key, &value);) {
        if (key.text) json_string_again(key);
        n += json_walk(value) + (key.text != NULL);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_limits limits = { .values = 100000 };
    json_value root;
    json_error why;
    if (json_check((const char *)data, size, &limits, &root, &why)) FUZZ_CHECK(json_walk(root) <= limits.values);
    else FUZZ_CHECK(why.text[0] && why.offset <= size && !root.text);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const texts[] = {
        "{\"a\":[1,-2.5e3,true,false,null,\"\\u00e4\\ud83d\\ude00\"],\"b\":{\"c\":{},\"d\":[[],[]]}}",
        "[0,18446744073709551615,1e400]",
        "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"llama3\"},\"head_"
        "dim\":null}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\xc3\xa4\"",
    };
    if (index >= sizeof texts / sizeof *texts || strlen(texts[index]) > cap) return 0;
    memcpy(out, texts[index], strlen(texts[index]));
    return strlen(texts[index]);
}
