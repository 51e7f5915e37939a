/* Any bytes as a chat template: refused with a reason, or a conversation is rendered, or it is told why not. */
#include "fuzz.h"
#define CHAT_TEMPLATE_IMPLEMENTATION
#include "../../examples/formats/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char variables[] = "{\"messages\":[{\"role\":\"user\",\"content\":\" a b "
                                    "\"},{\"role\":\"assistant\",\"content\":null,\"x\":[1,2.5,true]}],"
                                    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\"}";
    char error[CHAT_TEMPLATE_ERROR];
    json_value root;
    json_error why;
    chat_template_text out = { NULL, 0, 0 };
    FUZZ_CHECK(json_check(variables, sizeof variables - 1, NULL, &root, &why));
    chat_template *t = chat_template_open((const char *)data, size < 2000 ? size : 2000, error);
    FUZZ_CHECK(t || error[0]);
    if (t && !chat_template_render(t, root, &out, error)) FUZZ_CHECK(error[0]);
    chat_template_text_free(&out);
    chat_template_close(t);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const texts[] = {
        "{% for m in messages if m.content %}{{ loop.index ~ m['role'] | trim }}{% else %}none{% endfor %}{# c -#} x",
        "{%- set ns = namespace(a=1) -%}{% set ns.a = ns.a + 2 %}{% set y %}t{% endset %}{{ y.split('t', 1)[::-1] | "
        "tojson(indent=2) }}",
        "{{ messages | map(attribute='role') | join(', ') if add_generation_prompt is true else 'a' not in ('b', 1.5) "
        "}}",
        "{% for k, v in messages[1].items() %}{% if loop.last %}{% break %}{% elif k == 'x' %}{{ v[1:] | last // 2 % 3 "
        "}}{% endif %}{% endfor %}",
    };
    if (index >= sizeof texts / sizeof *texts || strlen(texts[index]) > cap) return 0;
    memcpy(out, texts[index], strlen(texts[index]));
    return strlen(texts[index]);
}
