/* The readers of files under examples/formats: what they read, what they refuse, files that are cut or altered at every
 * byte, and the memory that they take.
 *
 * Tier: quick address */
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* Counts what the readers hold. */
static size_t held, held_most;
static void *counted_alloc(size_t size);
static void *counted_resize(void *p, size_t size);
static void counted_free(void *p);
static void *counted_zeroed(size_t n, size_t size);

#define malloc counted_alloc
#define realloc counted_resize
#define calloc counted_zeroed
#define free counted_free
#define SAFETENSORS_IMPLEMENTATION
#include "../examples/formats/safetensors.h"
#define GGUF_IMPLEMENTATION
#include "../examples/formats/gguf.h"
#undef malloc
#undef realloc
#undef calloc
#undef free

typedef union block {
    size_t size;
    max_align_t align;
} block;

static void *counted_alloc(size_t size) { return counted_resize(NULL, size); }

static void *counted_zeroed(size_t n, size_t size) {
    void *p = counted_alloc(n * size);
    return p ? memset(p, 0, n * size) : NULL;
}

static void *counted_resize(void *p, size_t size) {
    block *old = p ? (block *)p - 1 : NULL;
    size_t before = old ? old->size : 0;
    block *now = realloc(old, sizeof *now + size);
    if (!now) return NULL;
    now->size = size;
    held += size - before;
    if (held > held_most) held_most = held;
    return now + 1;
}

static void counted_free(void *p) {
    if (!p) return;
    held -= ((block *)p - 1)->size;
    free((block *)p - 1);
}

/* ---- files of a test ---- */

static char folder[64];

static const char *place(const char *name) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static const char *file_of(const char *name, const void *data, size_t size) {
    const char *path = place(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
    return path;
}

/* ---- json ---- */

static bool is_json(const char *text, size_t size) {
    char *copy = malloc(size ? size : 1); /* of its exact size, so that a sanitizer sees a read past the end */
    json_value root;
    json_error why;
    memcpy(copy, text, size);
    bool ok = json_check(copy, size, NULL, &root, &why);
    free(copy);
    return ok;
}

TEST(json_texts_that_the_grammar_has_pass) {
    static const char *const texts[] = {
        "0",
        "-0",
        "1.5e-3",
        "1E+2",
        "\"\"",
        "true",
        "false",
        "null",
        "[]",
        "{}",
        " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[[],{}]}}",
        "\"\\u0041\\ud83d\\ude00\\n\"",
        "\"\xf0\x9f\x98\x80\"",
        "[true,false,null]",
        "{\"\":0}",
        "\t\n\r 1 ",
        "{\"a\":1,\"A\":2}",
    };
    for (int i = 0; i < TEST_COUNT(texts); i++)
        if (!is_json(texts[i], strlen(texts[i]))) test_fail(__FILE__, __LINE__, "refused: %s", texts[i]);
}

TEST(json_texts_that_the_grammar_has_not_are_refused) {
    static const char *const texts[] = {
        "",
        " ",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "nul",
        "True",
        "'a'",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"a\nb\"",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[",
        "]",
        "{",
        "}",
        "[}",
        "{]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "1 2",
        "[1]]",
        "\"\xff\"",
        "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xe2\x82\"",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "/**/1",
        "\xef\xbb\xbf[]",
    };
    for (int i = 0; i < TEST_COUNT(texts); i++)
        if (is_json(texts[i], strlen(texts[i]))) test_fail(__FILE__, __LINE__, "accepted: %s", texts[i]);
    CHECK(!is_json("\"a\0b\"", 5));
    CHECK(!is_json("\"a\\\0b\"", 6));
}

TEST(json_limits_hold_at_their_edge) {
    json_value root;
    json_error why;
    char text[2048];
    memset(text, '[', 1024);
    memset(text + 64, ']', 64);
    CHECK(json_check(text, 128, NULL, &root, &why));
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    CHECK(!json_check(text, 130, NULL, &root, &why));
    memset(text, '[', 2048);
    CHECK(!json_check(text, 2048, &(json_limits){ .depth = UINT32_MAX }, &root, &why));
    memset(text, '1', 64);
    CHECK(json_check(text, 64, NULL, &root, &why));
    CHECK(!json_check(text, 65, &(json_limits){ .bytes = 64 }, &root, &why));
    memset(text, '1', 65);
    CHECK(!json_check(text, 65, NULL, &root, &why));
    CHECK(json_check("[1,2]", 5, &(json_limits){ .values = 3 }, &root, &why));
    CHECK(!json_check("[1,2]", 5, &(json_limits){ .values = 2 }, &root, &why));
    CHECK(json_check("{\"a\":1,\"a\":2}", 13, &(json_limits){ .repeated_names = true }, &root, &why));
    CHECK(!json_check("{\"a\":1,\"a\":2}", 13, NULL, &root, &why));
    CHECK_INT(why.offset, 7);
}

TEST(json_values_are_what_the_text_says) {
    static const char text[] = " {\"n\": [0, -9223372036854775808, 18446744073709551615, 1.5, 1e400, 12x\"\"] , "
                               "\"s\":\"a\\u0000\\\"\\ud83d\\ude00\","
                               "\"t\":true,\"o\":{\"n\":null, \"x\" : [ [] , {} ]}} ";
    char copy[sizeof text], out[16];
    json_value root, none, v, numbers[5];
    json_error why;
    int64_t i;
    uint64_t u;
    double d;
    bool b = false;
    size_t size;
    memcpy(copy, text, sizeof text);
    CHECK(!json_check(copy, sizeof text - 1, NULL, &root, &why));
    CHECK_INT(json_kind_of(root), JSON_MISSING);
    memcpy(strstr(copy, "12x\"\""), "12   ", 5);
    REQUIRE(json_check(copy, sizeof text - 1, NULL, &root, &why));
    json_iter at = json_begin(json_get(root, "n"));
    for (int k = 0; k < 5; k++) CHECK(json_next(&at, &none, &numbers[k]));
    CHECK(json_next(&at, &none, &v) && json_get_u64(v, &u) && u == 12 && !json_next(&at, &none, &v));
    CHECK(json_get_i64(numbers[1], &i) && i == INT64_MIN && !json_get_u64(numbers[1], &u));
    CHECK(json_get_u64(numbers[2], &u) && u == UINT64_MAX && !json_get_i64(numbers[2], &i));
    CHECK(json_get_double(numbers[3], &d) && d == 1.5 && !json_get_i64(numbers[3], &i));
    CHECK(!json_get_double(numbers[4], &d));
    CHECK(json_get_string(json_get(root, "s"), out, sizeof out, &size) && size == 7 &&
          !memcmp(out, "a\0\"\xf0\x9f\x98\x80", 8));
    CHECK(!json_get_string(json_get(root, "s"), out, 7, &size));
    CHECK(json_get_bool(json_get(root, "t"), &b) && b);
    CHECK_INT(json_count(json_get(json_get(root, "o"), "x")), 2);
    CHECK_INT(json_kind_of(json_get(json_get(root, "o"), "n")), JSON_NULL);
    CHECK_INT(json_kind_of(json_get(json_get(root, "t"), "n")), JSON_MISSING);
    CHECK(!json_get_bool(json_get(root, "none"), &b) && json_count(root) == 4);
}

TEST(json_that_was_quoted_reads_back) {
    char quoted[256], back[64];
    json_value root;
    json_error why;
    for (int round = 0; round < test_rounds(2000); round++) {
        char text[24];
        size_t n = (size_t)test_random_int(0, 20), size, m;
        for (size_t i = 0; i < n; i++) text[i] = (char)test_random_int(0, 127);
        size = json_quote(text, n, quoted, sizeof quoted);
        REQUIRE(json_quote(text, n, quoted, size - 1) == size && json_quote(text, n, quoted, size) == size);
        REQUIRE(json_check(quoted, size, NULL, &root, &why) && json_get_string(root, back, sizeof back, &m));
        CHECK(m == n && !memcmp(back, text, n));
    }
    CHECK_INT(json_quote("\xff", 1, quoted, sizeof quoted), 5);
    CHECK(!memcmp(quoted, "\"\xef\xbf\xbd\"", 5));
}

/* 200,000 names whose hashes would make a quadratic check slow are refused or read in linear time. */
TEST(json_of_many_names_is_checked_in_linear_time) {
    size_t room = 4 << 20, n = 0;
    char *text = malloc(room);
    json_value root;
    json_error why;
    text[n++] = '{';
    for (int i = 0; i < 200000; i++) n += (size_t)snprintf(text + n, room - n, "%s\"%d\":0", i ? "," : "", i);
    text[n++] = '}';
    held_most = held;
    clock_t start = clock();
    CHECK(json_check(text, n, NULL, &root, &why));
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5);
    CHECK(held_most - held <= (size_t)200000 * 16 * 5 / 2);
    free(text);
}

/* ---- safetensors ---- */

static char st_error[SAFETENSORS_ERROR];

/* A file of a header and some data. */
static size_t st_bytes(uint8_t *out, const char *header, size_t data) {
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < data; i++) out[8 + n + i] = (uint8_t)i;
    return 8 + n + data;
}

static safetensors *st_open(const char *header, size_t data) {
    static uint8_t bytes[4096];
    return safetensors_open(file_of("a.safetensors", bytes, st_bytes(bytes, header, data)), st_error);
}

static const char st_good[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[2,26]},"
    "\"a.\\u0061\":{\"shape\":[],\"data_offsets\":[0,2],\"dtype\":\"BF16\"},"
    "\"e\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[26,26]}}  ";

TEST(safetensors_of_one_file_are_read_in_place) {
    safetensors *s = st_open(st_good, 26);
    REQUIRE(s != NULL || (printf("%s\n", st_error), false));
    CHECK_INT(safetensors_count(s), 3);
    const safetensors_tensor *b = safetensors_find(s, "b"), *a = safetensors_find(s, "a.a"),
                             *e = safetensors_find(s, "e");
    REQUIRE(a && b && e && !safetensors_find(s, "c"));
    CHECK(b->rank == 2 && b->dims[0] == 2 && b->dims[1] == 3 && b->dtype == SAFETENSORS_F32 && b->bytes == 24 &&
          b->data[0] == 2);
    CHECK(a->rank == 0 && a->bytes == 2 && a->data[1] == 1 && e->bytes == 0 && e->dims[1] == 7);
    CHECK_STR(safetensors_at(s, 0)->name, "a.a");
    CHECK(json_is(json_get(safetensors_metadata(s, 0), "format"), "pt"));
    CHECK(safetensors_find_prefixed(s, "a.", "a") == a && safetensors_find_prefixed(s, "model.", "b") == b);
    CHECK(safetensors_intact(s, st_error));
    safetensors_close(s);
}

TEST(safetensors_headers_that_are_wrong_are_refused_with_tensor_and_byte) {
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        { "", 0, "begins with {" },
        { "[]", 0, "begins with {" },
        { "{", 0, "byte 9" },
        { "{}x", 0, "follows" },
        { "{}", 1, "belong to no tensor" },
        { "{\"a\":1}", 0, "not an object" },
        { "{\"a\":{}}", 0, "missing" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "object of strings" },
        { "{\"__metadata__\":[]}", 0, "object of strings" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice" },
        { "{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "twice" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "nothing else" },
        { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "twice" },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "F4" },
        { "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not read" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "array of numbers" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "whole number" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", 4, "whole number" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "8 dimensions" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "64 bits" },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, "64 bits" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two numbers" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "two numbers" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "two numbers" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,5]}}", 5, "take 4 bytes" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
          "offsets\":[1,3]}}",
          3, "overlaps" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
          "offsets\":[0,2]}}",
          2, "overlaps" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
          "offsets\":[3,4]}}",
          4, "gap" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "gap" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[0],"
          "\"data_offsets\":[0,0]}}",
          0, "twice" },
        { "{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "0 byte" },
        { "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "UTF-8" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        safetensors *s = st_open(cases[i].header, cases[i].data);
        if (s || !strstr(st_error, cases[i].says) || !strstr(st_error, "a.safetensors"))
            test_fail(__FILE__, __LINE__, "%s: %s, not: %s", cases[i].header, s ? "opened" : st_error, cases[i].says);
        safetensors_close(s);
    }
    CHECK_INT(held, 0);
}

TEST(safetensors_cut_at_any_byte_are_refused) {
    uint8_t bytes[512];
    size_t n = st_bytes(bytes, st_good, 26);
    for (size_t cut = 0; cut < n; cut++) {
        safetensors *s = safetensors_open(file_of("cut.safetensors", bytes, cut), st_error);
        if (s || !st_error[0]) test_fail(__FILE__, __LINE__, "cut at %zu of %zu: opened", cut, n);
        safetensors_close(s);
    }
    CHECK_INT(held, 0);
}

/* Every byte replaced by values that matter: refused with a reason, or read with sizes that fit. */
TEST(safetensors_altered_at_any_byte_are_refused_or_whole) {
    static const uint8_t values[] = { 0,   1,   0x7f, 0x80, 0xff, '"', '{',  '}', '[',
                                      ']', ',', ':',  '0',  '9',  '-', '\\', ' ' };
    uint8_t bytes[512];
    size_t n = st_bytes(bytes, st_good, 26), opened = 0, refused = 0;
    for (size_t at = 0; at < n - 26; at++)
        for (int k = 0; k < TEST_COUNT(values); k++) {
            uint8_t before = bytes[at];
            bytes[at] = values[k];
            safetensors *s = safetensors_open(file_of("alt.safetensors", bytes, n), st_error);
            bytes[at] = before;
            s ? opened++ : refused++;
            uint64_t sum = 0;
            for (size_t i = 0; s && i < safetensors_count(s); i++) sum += safetensors_at(s, i)->bytes;
            CHECK(s ? sum == 26 : st_error[0] != 0);
            safetensors_close(s);
        }
    CHECK(refused > 2000 && opened > 100);
    CHECK_INT(held, 0);
}

static void put_file(const char *name, const char *header, size_t data) {
    static uint8_t bytes[4096];
    file_of(name, bytes, st_bytes(bytes, header, data));
}

TEST(safetensors_in_shards_are_one_set_of_tensors) {
    static const struct {
        const char *index, *says;
    } cases[] = {
        { "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}", NULL },
        { "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}",
          NULL },
        { "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s2.safetensors\"}}", "not in" },
        { "{\"weight_map\":{\"c\":\"s1.safetensors\"}}", "not in" },
        { "{\"weight_map\":{\"a\":\"none.safetensors\"}}", "none.safetensors: No such file or directory, which " },
        { "{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", "beside the index" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "beside the index" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "beside the index" },
        { "{\"weight_map\":{\"a\":\"\"}}", "beside the index" },
        { "{\"weight_map\":{\"a\":7}}", "beside the index" },
        { "{\"weight_map\":{\"a\":\"s\\u0000\"}}", "beside the index" },
        { "{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"}}", "twice" },
        { "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}}", "stands twice (also in" },
        { "{\"weight_map\":{}}", "weight_map" },
        { "{}", "weight_map" },
        { "[]", "weight_map" },
        { "", "byte 0" },
    };
    put_file("s1.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    put_file("s2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    put_file("s3.safetensors",
             "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
             "\"data_offsets\":[1,2]}}",
             2);
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        safetensors *s =
            safetensors_open(file_of("model.safetensors.index.json", cases[i].index, strlen(cases[i].index)), st_error);
        if ((s != NULL) != (cases[i].says == NULL) || (!s && !strstr(st_error, cases[i].says)))
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].index, s ? "opened" : st_error);
        CHECK(!s || (safetensors_count(s) == 2 && safetensors_find(s, "b")->data[0] == 0));
        safetensors_close(s);
    }
    file_of("model.safetensors.index.json", cases[0].index, strlen(cases[0].index));
    safetensors *s = safetensors_open(folder, st_error);
    CHECK(s && safetensors_files(s) == 2);
    safetensors_close(s);
    CHECK_INT(held, 0);
}

TEST(safetensors_cut_after_opening_are_told_and_kill_nobody) {
    static uint8_t bytes[40000];
    size_t n = st_bytes(bytes,
                        "{\"first\":{\"dtype\":\"U8\",\"shape\":[20000],\"data_offsets\":[0,20000]},"
                        "\"second\":{\"dtype\":\"U8\",\"shape\":[19000],\"data_offsets\":[20000,39000]}}",
                        39000);
    const char *path = file_of("later.safetensors", bytes, n);
    safetensors *s = safetensors_open(path, st_error);
    REQUIRE(s != NULL);
    CHECK_INT(truncate(path, 24000), 0);
    uint64_t sum = 0;
    for (size_t i = 0; i < 2; i++)
        for (uint64_t k = 0; k < safetensors_at(s, i)->bytes; k++) sum += safetensors_at(s, i)->data[k];
    CHECK(sum > 0 && !safetensors_intact(s, st_error));
    CHECK(strstr(st_error, "\"second\"") && strstr(st_error, "byte 24576"));
    safetensors_close(s);
}

TEST(safetensors_take_less_memory_than_twice_their_header) {
    size_t room = 8 << 20, n = 1;
    char *header = malloc(room);
    uint8_t *bytes = malloc(room + 8);
    header[0] = '{';
    for (int i = 0; i < 20000; i++)
        n += (size_t)snprintf(header + n, room - n,
                              "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0],\"data_offsets\":[0,0]}",
                              i ? "," : "", (unsigned)i);
    snprintf(header + n, room - n, "}");
    held_most = held;
    safetensors *s = safetensors_open(file_of("many.safetensors", bytes, st_bytes(bytes, header, 0)), st_error);
    CHECK(s && safetensors_count(s) == 20000);
    CHECK(held_most <= 2 * n);
    safetensors_close(s);
    free(header);
    free(bytes);
}

TEST(safetensors_that_were_written_read_back) {
    static const int64_t dims[3] = { 2, 3, 4 };
    static const float data[24] = { 1, 2, 3, -4 };
    static const char *const metadata[] = { "format", "pt", "a\"b", "\n", NULL };
    safetensors_tensor t[3] = {
        { .name = "w\xc3\xbc",
          .dims = dims,
          .rank = 3,
          .dtype = SAFETENSORS_F32,
          .data = (const uint8_t *)data,
          .bytes = 96 },
        { .name = "u", .rank = 0, .dtype = SAFETENSORS_U8, .data = (const uint8_t *)data, .bytes = 1 },
        { .name = "z", .dims = dims, .rank = 2, .dtype = SAFETENSORS_I64, .data = (const uint8_t *)data, .bytes = 48 },
    };
    const char *path = place("written.safetensors");
    REQUIRE(safetensors_write(path, t, 3, metadata, st_error) || (printf("%s\n", st_error), false));
    safetensors *s = safetensors_open(path, st_error);
    REQUIRE(s != NULL || (printf("%s\n", st_error), false));
    const safetensors_tensor *w = safetensors_find(s, "w\xc3\xbc");
    CHECK(w && w->rank == 3 && w->dims[2] == 4 && !memcmp(w->data, data, 96) && (uintptr_t)w->data % 4 == 0);
    CHECK((uintptr_t)safetensors_find(s, "z")->data % 8 == 0 &&
          safetensors_find(s, "u")->data[0] == ((const uint8_t *)data)[0]);
    CHECK(json_is(json_get(safetensors_metadata(s, 0), "a\"b"), "\n"));
    safetensors_close(s);
    t[2].name = "u";
    CHECK(!safetensors_write(path, t, 3, NULL, st_error) && strstr(st_error, "twice"));
    t[2].bytes = 47;
    CHECK(!safetensors_write(path, t, 3, NULL, st_error) && strstr(st_error, "do not fit"));
    CHECK(!safetensors_write(place("none/x"), t, 2, NULL, st_error));
    CHECK(safetensors_write(place("empty.safetensors"), NULL, 0, NULL, st_error));
    s = safetensors_open(place("empty.safetensors"), st_error);
    CHECK(s && safetensors_count(s) == 0);
    safetensors_close(s);
    CHECK_INT(held, 0);
}

/* ---- gguf ---- */

static char gg_error[GGUF_ERROR];
static uint8_t gg_data[1 << 20];
static size_t gg_size;

static void gg_put(const void *data, size_t size) {
    memcpy(gg_data + gg_size, data, size);
    gg_size += size;
}
static void gg_u32(uint32_t v) { gg_put(&v, 4); }
static void gg_u64(uint64_t v) { gg_put(&v, 8); }
static void gg_text(const char *text) {
    gg_u64(strlen(text));
    gg_put(text, strlen(text));
}

static void gg_head(uint64_t tensors, uint64_t keys) {
    gg_size = 0;
    gg_put("GGUF", 4);
    gg_u32(3);
    gg_u64(tensors);
    gg_u64(keys);
}

static void gg_tensor(const char *name, uint32_t type, int rank, uint64_t first, uint64_t second, uint64_t offset) {
    gg_text(name);
    gg_u32((uint32_t)rank);
    if (rank > 0) gg_u64(first);
    for (int i = 1; i < rank; i++) gg_u64(second);
    gg_u32(type);
    gg_u64(offset);
}

static void gg_pad(size_t data) {
    while (gg_size % 32) gg_data[gg_size++] = 0;
    for (size_t i = 0; i < data; i++) gg_data[gg_size++] = (uint8_t)i;
}

/* One of everything: a tensor of blocks, an empty one, keys of several kinds. */
static void gg_good(void) {
    gg_head(3, 5);
    gg_text("general.architecture");
    gg_u32(GGUF_KIND_STRING);
    gg_text("llama");
    gg_text("n");
    gg_u32(GGUF_KIND_I32);
    gg_u32((uint32_t)-5);
    gg_text("tokens");
    gg_u32(GGUF_KIND_ARRAY);
    gg_u32(GGUF_KIND_STRING);
    gg_u64(3);
    gg_text("a");
    gg_text("");
    gg_text("bcd");
    gg_text("b");
    gg_u32(GGUF_KIND_BOOL);
    gg_put("\1", 1);
    gg_text("scores");
    gg_u32(GGUF_KIND_ARRAY);
    gg_u32(GGUF_KIND_U8);
    gg_u64(2);
    gg_put("\7\10", 2);
    gg_tensor("w", GGUF_Q8_0, 2, 64, 3, 0);
    gg_tensor("e", GGUF_F32, 2, 0, 3, 224);
    gg_tensor("s", GGUF_F16, 0, 0, 0, 224);
    gg_pad(226);
}

static gguf *gg_open(void) { return gguf_open(file_of("a.gguf", gg_data, gg_size), gg_error); }

TEST(gguf_of_one_file_is_read_in_place) {
    gg_good();
    gguf *g = gg_open();
    gguf_tensor t;
    gguf_string s;
    gguf_value v = { 0 }, item;
    uint64_t u;
    double d;
    bool b = false;
    REQUIRE(g != NULL || (printf("%s\n", gg_error), false));
    CHECK(gguf_count(g) == 3 && gguf_keys(g) == 5);
    CHECK(gguf_find(g, "w", &t) && t.rank == 2 && t.dims[0] == 3 && t.dims[1] == 64 && t.bytes == 204 &&
          t.data[1] == 1);
    CHECK(gguf_find(g, "e", &t) && t.bytes == 0 && gguf_find(g, "s", &t) && t.rank == 0 && t.bytes == 2 &&
          t.data[0] == 224);
    CHECK(!gguf_find(g, "x", &t) && !gguf_get_u64(g, "n", &u) && gguf_get_f64(g, "n", &d) && d == -5);
    CHECK(gguf_get_string(g, "general.architecture", &s) && s.size == 5 && !memcmp(s.text, "llama", 5));
    CHECK(gguf_get_bool(g, "b", &b) && b && gguf_get(g, "tokens", &v) && v.count == 3);
    CHECK(gguf_next(&v, &item) && gguf_next(&v, &item) && gguf_value_string(&item, &s) && s.size == 0);
    CHECK(gguf_next(&v, &item) && gguf_value_string(&item, &s) && s.size == 3 && !gguf_next(&v, &item));
    CHECK(gguf_get(g, "scores", &v) && gguf_next(&v, &item) && gguf_next(&v, &item) && gguf_value_u64(&item, &u) &&
          u == 8);
    CHECK(gguf_intact(g, gg_error));
    gguf_close(g);
    CHECK_INT(held, 0);
}

TEST(gguf_cut_at_any_byte_is_refused) {
    gg_good();
    size_t whole = gg_size;
    for (gg_size = 0; gg_size < whole; gg_size++) {
        gguf *g = gg_open();
        if (g || !strstr(gg_error, "a.gguf"))
            test_fail(__FILE__, __LINE__, "cut at %zu of %zu: opened", gg_size, whole);
        gguf_close(g);
    }
    CHECK_INT(held, 0);
}

/* Every 1, 4 and 8 bytes replaced by values at the edges: refused, or all of it lies in the file. */
TEST(gguf_altered_at_any_field_is_refused_or_whole) {
    static const uint64_t values[] = { 0,           1,           31,        32,         0x7fffffff,
                                       0x80000000u, 0xffffffffu, INT64_MAX, UINT64_MAX, UINT64_MAX - 31 };
    static const size_t widths[] = { 1, 4, 8 };
    gg_good();
    size_t head = gg_size - 226, refused = 0, opened = 0;
    uint8_t saved[8];
    for (size_t at = 0; at + 8 <= head; at++)
        for (int w = 0; w < 3; w++)
            for (int k = 0; k < TEST_COUNT(values); k++) {
                memcpy(saved, gg_data + at, 8);
                memcpy(gg_data + at, &values[k], widths[w]);
                held_most = held;
                gguf *g = gg_open();
                memcpy(gg_data + at, saved, 8);
                g ? opened++ : refused++;
                gguf_tensor t;
                for (size_t i = 0; g && gguf_at(g, i, &t); i++) {
                    volatile uint8_t last = t.bytes ? t.data[t.bytes - 1] : 0;
                    (void)last;
                    CHECK(t.bytes <= gg_size);
                }
                CHECK(held_most < 2 * head + 2048);
                gguf_close(g);
            }
    CHECK(refused > 3000 && opened > 100);
    CHECK_INT(held, 0);
}

TEST(gguf_that_is_wrong_is_refused_by_name) {
    static const struct {
        uint32_t type;
        int rank;
        uint64_t first, second, offset;
        size_t data;
        const char *says;
    } cases[] = {
        { 10, 2, 256, 1, 0, 84, "Q2_K" },
        { 39, 2, 32, 1, 0, 17, "MXFP4" },
        { 99, 1, 1, 1, 0, 4, "? (99)" },
        { 8, 2, 33, 1, 0, 68, "whole number of blocks" },
        { 0, 5, 1, 1, 0, 4, "4 dimensions" },
        { 0, 1, 8, 1, 16, 48, "multiple of the alignment" },
        { 0, 1, 8, 1, 0, 31, "truncated" },
        { 0, 1, 8, 1, 32, 64, "gap" },
        { 0, 1, 8, 1, 0, 64, "belong to no tensor" },
        { 0, 2, (uint64_t)1 << 40, (uint64_t)1 << 40, 0, 0, "too large" },
        { 0, 1, UINT64_MAX, 1, 0, 0, "2^63" },
        { 28, 2, (uint64_t)1 << 31, (uint64_t)1 << 31, 0, 0, "64 bits" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        gg_head(1, 0);
        gg_tensor("name", cases[i].type, cases[i].rank, cases[i].first, cases[i].second, cases[i].offset);
        gg_pad(cases[i].data);
        gguf *g = gg_open();
        if (g || !strstr(gg_error, cases[i].says))
            test_fail(__FILE__, __LINE__, "case %d: %s, not: %s", i, g ? "opened" : gg_error, cases[i].says);
        gguf_close(g);
    }
    CHECK_INT(held, 0);
}

TEST(gguf_whose_entries_contradict_each_other_is_refused_by_name) {
    gg_head(2, 0);
    gg_tensor("a", 0, 1, 8, 1, 0);
    gg_tensor("a", 0, 1, 8, 1, 32);
    gg_pad(64);
    CHECK(!gg_open() && strstr(gg_error, "twice"));
    gg_head(2, 0);
    gg_tensor("a", 0, 1, 16, 1, 0);
    gg_tensor("b", 0, 1, 8, 1, 32);
    gg_pad(64);
    CHECK(!gg_open() && strstr(gg_error, "overlaps"));
    gg_head(0, 2);
    gg_text("k");
    gg_u32(0);
    gg_put("", 1);
    gg_text("k");
    gg_u32(0);
    gg_put("", 1);
    CHECK(!gg_open() && strstr(gg_error, "twice"));
    gg_head(0, 1);
    gg_text("k");
    gg_u32(GGUF_KIND_ARRAY);
    gg_u32(GGUF_KIND_ARRAY);
    gg_u64(0);
    CHECK(!gg_open() && strstr(gg_error, "not read"));
    gg_head(0, 1);
    gg_text("k\xff");
    gg_u32(0);
    gg_put("", 1);
    CHECK(!gg_open() && strstr(gg_error, "UTF-8"));
    gg_head(0, 0);
    memcpy(gg_data + 4, "\0\0\0\3", 4);
    CHECK(!gg_open() && strstr(gg_error, "big-endian"));
    gg_head(0, 1);
    gg_text("general.alignment");
    gg_u32(GGUF_KIND_U32);
    gg_u32(0);
    CHECK(!gg_open() && strstr(gg_error, "alignment"));
    CHECK_INT(held, 0);
}

/* Two splits, each with its number; `no` and `count` of the second may lie. */
static void gg_splits(uint32_t no, uint32_t count, uint32_t total, const char *second) {
    for (uint32_t k = 0; k < 2; k++) {
        gg_head(1, 3);
        gg_text("split.no");
        gg_u32(GGUF_KIND_U32);
        gg_u32(k ? no : 0);
        gg_text("split.count");
        gg_u32(GGUF_KIND_U32);
        gg_u32(k ? count : 2);
        gg_text("split.tensors.count");
        gg_u32(GGUF_KIND_U32);
        gg_u32(total);
        gg_tensor(k ? second : "a", GGUF_F32, 1, 8, 1, 0);
        gg_pad(32);
        file_of(k ? "m-00002-of-00002.gguf" : "m-00001-of-00002.gguf", gg_data, gg_size);
    }
}

TEST(gguf_in_splits_is_one_set_of_tensors) {
    gguf_tensor t;
    gg_splits(1, 2, 2, "b");
    gguf *g = gguf_open(place("m-00001-of-00002.gguf"), gg_error);
    REQUIRE(g != NULL || (printf("%s\n", gg_error), false));
    CHECK(gguf_count(g) == 2 && gguf_find(g, "b", &t) && t.file == 1 && gguf_find(g, "a", &t) && t.file == 0);
    gguf_close(g);
    CHECK(!gguf_open(place("m-00002-of-00002.gguf"), gg_error) && strstr(gg_error, "not the first"));
    gg_splits(0, 2, 2, "b");
    CHECK(!gguf_open(place("m-00001-of-00002.gguf"), gg_error) && strstr(gg_error, "split.no"));
    gg_splits(1, 3, 2, "b");
    CHECK(!gguf_open(place("m-00001-of-00002.gguf"), gg_error) && strstr(gg_error, "split.count"));
    gg_splits(1, 2, 3, "b");
    CHECK(!gguf_open(place("m-00001-of-00002.gguf"), gg_error) && strstr(gg_error, "tensors.count"));
    gg_splits(1, 2, 2, "a");
    CHECK(!gguf_open(place("m-00001-of-00002.gguf"), gg_error) && strstr(gg_error, "twice"));
    unlink(place("m-00002-of-00002.gguf"));
    CHECK(!gguf_open(place("m-00001-of-00002.gguf"), gg_error) && strstr(gg_error, "No such file"));
    CHECK(rename(place("m-00001-of-00002.gguf"), place("m.gguf")) == 0);
    CHECK(!gguf_open(place("m.gguf"), gg_error) && strstr(gg_error, "is named"));
    CHECK_INT(held, 0);
}

TEST(gguf_cut_after_opening_is_told_and_kills_nobody) {
    gg_head(2, 0);
    gg_tensor("first", GGUF_F32, 1, 5000, 0, 0);
    gg_tensor("second", GGUF_F32, 1, 4000, 0, 20000);
    gg_pad(36000);
    gguf *g = gg_open();
    gguf_tensor t;
    uint64_t sum = 0;
    REQUIRE(g != NULL);
    CHECK_INT(truncate(place("a.gguf"), 24000), 0);
    for (size_t i = 0; gguf_at(g, i, &t); i++)
        for (uint64_t k = 0; k < t.bytes; k++) sum += t.data[k];
    CHECK(sum > 0 && !gguf_intact(g, gg_error));
    CHECK(strstr(gg_error, "\"second\"") && strstr(gg_error, "byte 24576"));
    gguf_close(g);
    CHECK_INT(held, 0);
}

TEST(gguf_takes_less_memory_than_twice_its_header) {
    enum { TENSORS = 20000 };
    char name[8];
    gg_head(TENSORS, 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "%x", i);
        gg_tensor(name, GGUF_F32, 1, 0, 0, 0);
    }
    gg_pad(0);
    held_most = held;
    gguf *g = gg_open();
    REQUIRE(g != NULL);
    CHECK_INT(gguf_count(g), TENSORS);
    CHECK(held_most > 0 && held_most <= 2 * gg_size);
    gguf_close(g);
    CHECK_INT(held, 0);
}

TEST(gguf_blocks_of_known_bits_have_their_values) {
    uint8_t q8[34] = { 0, 0x3c, 1, 0xff }, q4[18] = { 0, 0x40, 0x0f }, q6[210] = { 0 };
    float x[256];
    REQUIRE(gguf_to_f32(GGUF_Q8_0, q8, 32, x));
    CHECK(x[0] == 1 && x[1] == -1 && x[2] == 0);
    REQUIRE(gguf_to_f32(GGUF_Q4_0, q4, 32, x));
    CHECK(x[0] == 14 && x[1] == -16 && x[16] == -16);
    q6[209] = 0x3c;
    q6[192] = 2;
    q6[0] = 1;
    q6[128] = 3;
    REQUIRE(gguf_to_f32(GGUF_Q6_K, q6, 256, x));
    CHECK(x[0] == 2 * (1 + 48 - 32) && x[1] == -64 && x[16] == 0);
    CHECK(!gguf_to_f32(GGUF_Q8_0, q8, 31, x) && !gguf_to_f32(10, q8, 256, x));
}

TEST(files_that_are_none_are_refused) {
    char error[GGUF_ERROR];
    mapping m;
    CHECK(mkfifo(place("pipe"), 0600) == 0);
    CHECK(!mapping_open(&m, place("pipe"), error, sizeof error) && strstr(error, "not a regular file"));
    CHECK(!mapping_open(&m, folder, error, sizeof error) && !mapping_open(&m, place("none"), error, sizeof error));
    CHECK(!safetensors_open(place("pipe"), st_error) && !gguf_open(place("pipe"), gg_error));
    mapping many[64];
    const char *path = file_of("one", "x", 1);
    int n = 0;
    while (n < 64 && mapping_open(&many[n], path, error, sizeof error)) n++;
    CHECK_INT(n, 64);
    CHECK(!mapping_open(&m, path, error, sizeof error) && strstr(error, "64 files"));
    while (n > 0) mapping_close(&many[--n]);
    CHECK(mapping_open(&m, path, error, sizeof error) && m.data[0] == 'x');
    mapping_close(&m);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(json_texts_that_the_grammar_has_pass),
        TEST_ENTRY(json_texts_that_the_grammar_has_not_are_refused),
        TEST_ENTRY(json_limits_hold_at_their_edge),
        TEST_ENTRY(json_values_are_what_the_text_says),
        TEST_ENTRY(json_that_was_quoted_reads_back),
        TEST_ENTRY(json_of_many_names_is_checked_in_linear_time),
        TEST_ENTRY(safetensors_of_one_file_are_read_in_place),
        TEST_ENTRY(safetensors_headers_that_are_wrong_are_refused_with_tensor_and_byte),
        TEST_ENTRY(safetensors_cut_at_any_byte_are_refused),
        TEST_ENTRY(safetensors_altered_at_any_byte_are_refused_or_whole),
        TEST_ENTRY(safetensors_in_shards_are_one_set_of_tensors),
        TEST_ENTRY(safetensors_cut_after_opening_are_told_and_kill_nobody),
        TEST_ENTRY(safetensors_take_less_memory_than_twice_their_header),
        TEST_ENTRY(safetensors_that_were_written_read_back),
        TEST_ENTRY(gguf_of_one_file_is_read_in_place),
        TEST_ENTRY(gguf_cut_at_any_byte_is_refused),
        TEST_ENTRY(gguf_altered_at_any_field_is_refused_or_whole),
        TEST_ENTRY(gguf_that_is_wrong_is_refused_by_name),
        TEST_ENTRY(gguf_whose_entries_contradict_each_other_is_refused_by_name),
        TEST_ENTRY(gguf_in_splits_is_one_set_of_tensors),
        TEST_ENTRY(gguf_cut_after_opening_is_told_and_kills_nobody),
        TEST_ENTRY(gguf_takes_less_memory_than_twice_its_header),
        TEST_ENTRY(gguf_blocks_of_known_bits_have_their_values),
        TEST_ENTRY(files_that_are_none_are_refused),
    };
    char command[128];
    test_begin(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/genie_formats_XXXXXX");
    if (!mkdtemp(folder)) return 1;
    test_all(tests, TEST_COUNT(tests));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) printf("%s stays\n", folder);
    return test_end();
}
