/* examples/formats/chat_template.h: a conversation as text, what is refused and where, limits, altered templates,
 * threads. That its texts are right is shown by chat_template_oracle_test.sh.
 *
 * Tier: quick address */
#include "test.h"
#include <pthread.h>

#define CHAT_TEMPLATE_IMPLEMENTATION
#include "../examples/formats/chat_template.h"

static char error[CHAT_TEMPLATE_ERROR];
static chat_template_text out;

static bool render_with(const chat_template *t, const char *data) {
    json_value root;
    json_error why;
    out.size = 0;
    return json_check(data, strlen(data), NULL, &root, &why) && chat_template_render(t, root, &out, error);
}

/* The text that a template makes of variables, or the error. */
static const char *made(const char *source, const char *data) {
    chat_template *t = chat_template_open(source, strlen(source), error);
    bool ok = t && render_with(t, data);
    chat_template_close(t);
    return ok ? out.text : error;
}

static void check_made(int line, const char *source, const char *data, const char *want) {
    const char *got = made(source, data);
    if (!strstr(got, want)) test_fail(__FILE__, line, "%.100s: %s, not %s", source, got, want);
}

#define CHATML                                                                                                      \
    "{% for m in messages %}\n    {{- '<|im_start|>' + m.role + '\\n' + m['content'] | trim + '<|im_end|>\\n' }}\n" \
    "{%- endfor %}\n{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}\n{%- endif %}\n"

TEST(a_conversation_becomes_text) {
    const char *got =
        made(CHATML, "{\"messages\":[{\"role\":\"user\",\"content\":\" Hi \"}],\"add_generation_prompt\":true}");
    CHECK(!strcmp(got, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
    CHECK(!strcmp(made("", "{}"), "") && !strcmp(made("x\n", "{}"), "x") && !strcmp(made("{{ a }}", "{}"), ""));
}

TEST(what_is_not_read_is_refused_with_its_line) {
    static const struct {
        const char *source, *says;
    } cases[] = {
        { "a\n{% macro f() %}{% endmacro %}", "line 2: the tag macro is not read" },
        { "\n\n{% include 'x' %}", "line 3: the tag include is not read" },
        { "{{ x | sort }}", "line 1: the filter sort is not read" },
        { "{{ x.format(1) }}", "the method format is not read" },
        { "{{ lipsum() }}", "the function lipsum is not read" },
        { "{{ x is callable }}", "the test callable is not read" },
        { "{{ x | replace('a') }}", "replace with 1 arguments is not read" },
        { "{{ x | tojson(sort_keys=true) }}", "tojson with sort_keys= is not read" },
        { "{{ 1 < 2 < 3 }}", "a chain of comparisons is not read" },
        { "{% for x in y recursive %}{% endfor %}", "a recursive loop is not read" },
        { "{{ 1", "is missing" },
        { "{{ 'a }}", "a closing quote is missing" },
        { "{{ (1 }}", "is missing before" },
        { "{% if x %}", "\"elif\" is missing" },
        { "{% for x in y %}{% else %}", "\"endfor\" is missing" },
        { "{% endif %}", "the tag endif is not read" },
        { "{% break %}", "break outside of a loop" },
        { "{# a", "a comment does not end" },
        { "{{ }}", "an expression is missing" },
        { "{{ 07 }}", "the number 07 is not read" },
        { "{{ 99999999999999999999 }}", "the number" },
        { "\xff", "no UTF-8" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) check_made(__LINE__, cases[i].source, "{}", cases[i].says);
}

TEST(what_goes_wrong_while_rendering_is_told_with_its_line) {
    static const struct {
        const char *source, *says;
    } cases[] = {
        { "a\n{{ raise_exception('Roles ' ~ 1) }}", "line 2: Roles 1" },
        { "{{ a.b.c }}", "an undefined value has no b" },
        { "{{ a + 1 }}", "an undefined value + an int is not possible" },
        { "{{ 1 / 0 }}", "division by zero" },
        { "{{ 9223372036854775807 + 1 }}", "more than 64 bits" },
        { "{{ 2 ** 64 }}", "more than 64 bits" },
        { "{{ [1] }}", "a list is printed; only tojson prints it" },
        { "{{ range(100001) | length }}", "a range of more than 100000" },
        { "{{ 'x' * 1000000000 }}", "the product is too long" },
        { "{{ '\xc3\xa4' | upper }}", "beyond ASCII" },
        { "{% for a, b in [[1]] %}{% endfor %}", "1 parts for 2 names" },
        { "{% for a in none %}{% endfor %}", "None has no items" },
        { "{% set a.b = 1 %}", "a is not a namespace" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) check_made(__LINE__, cases[i].source, "{}", cases[i].says);
    check_made(__LINE__, "x", "[]", "not an object");
}

TEST(templates_cannot_take_more_than_their_share) {
    static char deep[40000];
    size_t n = (size_t)snprintf(deep, sizeof deep, "{%% for a in range(99999) %%}");
    for (int i = 0; i < 300; i++) n += (size_t)snprintf(deep + n, sizeof deep - n, "{%% if a %%}{%% endif %%}");
    snprintf(deep + n, sizeof deep - n, "{%% endfor %%}");
    check_made(__LINE__, deep, "{}", "takes more than 20000000 steps");
    check_made(__LINE__, "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{}",
               "bytes of memory");
    check_made(__LINE__, "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
               "{}", "bytes of memory");
    check_made(__LINE__, "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "{}", "larger than");
    for (int kind = 0; kind < 6; kind++) {
        static const char *const parts[] = { "(", "[", "not ", "-", "{% if 1 %}", "{% for a in b %}" };
        size_t size = strlen(parts[kind]);
        n = 0;
        if (kind < 4) n += (size_t)snprintf(deep, sizeof deep, "{{ ");
        for (int i = 0; i < 2000; i++, n += size) memcpy(deep + n, parts[kind], size);
        deep[n] = 0;
        check_made(__LINE__, deep, "{}", "nested too deep");
    }
    for (int kind = 0; kind < 4; kind++) {
        static const char *const parts[] = { ".a", " + 1", " | trim", " if 1" };
        size_t size = strlen(parts[kind]);
        n = (size_t)snprintf(deep, sizeof deep, "{{ a");
        for (int i = 0; i < 2000; i++, n += size) memcpy(deep + n, parts[kind], size);
        deep[n] = 0;
        check_made(__LINE__, deep, "{}", "nested too deep");
    }
}

TEST(altered_templates_do_no_harm) {
    static const char values[] = "{}%#-+\"'()[]|.:,~=<> \n\\0ax";
    static const char data[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"add_generation_prompt\":true}";
    char text[] = CHATML "{{ messages[::-1][0].content.split('a', 1)[-1] | tojson(indent=1) }}{# c #}";
    size_t n = sizeof text - 1, whole = 0;
    for (size_t cut = 0; cut <= n; cut++) {
        chat_template *t = chat_template_open(text, cut, error);
        CHECK(t ? render_with(t, data) || error[0] : error[0] != 0);
        chat_template_close(t);
    }
    for (int round = 0; round < (TEST_SANITIZED ? 2000 : 20000); round++) {
        size_t at = (size_t)test_random_int(0, (int64_t)n - 1);
        char saved = text[at];
        text[at] = values[test_random_int(0, (int64_t)sizeof values - 2)];
        chat_template *t = chat_template_open(text, n, error);
        text[at] = saved;
        if (t && render_with(t, data)) whole++;
        else CHECK(error[0] != 0);
        chat_template_close(t);
    }
    printf("  %zu of the altered templates were rendered\n", whole);
}

static void *render_often(void *shared) {
    chat_template_text text = { NULL, 0, 0 };
    char why[CHAT_TEMPLATE_ERROR];
    static const char data[] = "{\"messages\":[{\"role\":\"a\",\"content\":\"b\"}]}";
    json_value root;
    json_error bad;
    size_t sum = 0;
    for (int i = 0; i < 200 && json_check(data, sizeof data - 1, NULL, &root, &bad); i++) {
        text.size = 0;
        if (chat_template_render(shared, root, &text, why)) sum += text.size;
    }
    chat_template_text_free(&text);
    return (void *)(uintptr_t)sum;
}

TEST(threads_share_a_template) {
    pthread_t threads[4];
    void *sum;
    chat_template *t = chat_template_open(CHATML, strlen(CHATML), error);
    REQUIRE(t != NULL);
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, render_often, t) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &sum);
        CHECK((uintptr_t)sum == 200 * strlen("<|im_start|>a\nb<|im_end|>\n"));
    }
    chat_template_close(t);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(a_conversation_becomes_text),
        TEST_ENTRY(what_is_not_read_is_refused_with_its_line),
        TEST_ENTRY(what_goes_wrong_while_rendering_is_told_with_its_line),
        TEST_ENTRY(templates_cannot_take_more_than_their_share),
        TEST_ENTRY(altered_templates_do_no_harm),
        TEST_ENTRY(threads_share_a_template),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    chat_template_text_free(&out);
    return test_end();
}
