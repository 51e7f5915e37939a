#!/usr/bin/env bash
# examples/formats/chat_template.h beside the package `jinja2` from PyPI, set up as `transformers` sets it up: templates in the manner of
# the families, and random ones. Skipped where the package is missing; tests/oracles.txt names it. GENIE_ORACLE_TEMPLATES=N: more of them,
# GENIE_ORACLE_SEEDS: others.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}

write_renderer() {
    cat >"$WORK/render.c" <<'TEXT'
#define CHAT_TEMPLATE_IMPLEMENTATION
#include "examples/formats/chat_template.h"

/* Records of a template and variables, each with its length first; gives back a status and a text. */
int main(void) {
    uint32_t sizes[2];
    while (fread(sizes, 4, 2, stdin) == 2) {
        char error[CHAT_TEMPLATE_ERROR], *source = malloc(sizes[0] ? sizes[0] : 1), *data = malloc(sizes[1] ? sizes[1] : 1);
        chat_template_text out = { NULL, 0, 0 };
        json_value root;
        json_error why;
        if (fread(source, 1, sizes[0], stdin) != sizes[0] || fread(data, 1, sizes[1], stdin) != sizes[1]) return 2;
        if (!json_check(data, sizes[1], NULL, &root, &why)) return 3;
        chat_template *t = chat_template_open(source, sizes[0], error);
        free(source);
        uint32_t status = !t ? 3 : !chat_template_render(t, root, &out, error) ? 4 : 0;
        const char *text = status ? error : out.text;
        uint32_t back[2] = { status, (uint32_t)(status ? strlen(error) : out.size) };
        if (fwrite(back, 4, 2, stdout) != 2 || fwrite(text, 1, back[1], stdout) != back[1]) return 4;
        chat_template_text_free(&out);
        chat_template_close(t);
        free(data);
    }
    return 0;
}
TEXT
    $CC -std=gnu11 -O1 -g ${SAN:+-fsanitize=$SAN -fno-sanitize-recover=all} -Wall -Wextra -Wconversion -Wshadow -Werror -I. \
        "$WORK/render.c" -o "$WORK/render" -lm
}

texts_are_the_packages() {
    local seed
    for seed in ${GENIE_ORACLE_SEEDS:-7 8}; do
        timeout 100 python3 -W ignore tests/chat_template_oracle.py "$WORK/render" "${GENIE_ORACLE_TEMPLATES:-1000}" "$seed" || { echo "seed $seed"; return 1; }
    done
}

check renderer_compiles write_renderer
if python3 -c 'import jinja2' 2>/dev/null; then
    check texts_of_templates_are_the_packages texts_are_the_packages
else
    skip texts_of_templates_are_the_packages "python3 has no jinja2 (pip install --target build/oracles -r tests/oracles.txt)"
fi
finish
