/* examples/formats/tokenizer.h: what it refuses, text that is no UTF-8, long words, decoding in pieces, threads. That
 * its ids are right is shown by tokenizer_oracle_test.sh.
 *
 * Tier: quick address */
#include "test.h"
#include <pthread.h>

#define TOKENIZER_IMPLEMENTATION
#include "../examples/formats/tokenizer.h"
#include "vocabulary.h"
#include <sys/stat.h>
#include <unistd.h>

static char error[TOKENIZER_ERROR], path[64];

/* A tokenizer on bytes: ids 0 to 255 are the bytes in the order of their stand-ins' code points, then those of the
 * merges. */
static size_t make(char *out, size_t room, const char *head, const char *vocab, const char *merges, const char *added) {
    size_t n =
        (size_t)snprintf(out, room, "{%s\"added_tokens\":[%s],\"model\":{\"type\":\"BPE\",\"vocab\":{", head, added);
    int id = 0;
    for (uint32_t c = 0x21; c < 0x144; c++) {
        char text[4];
        if (tok__byte_of(c) < 0) continue;
        size_t size = json__encode(c, text);
        n += (size_t)snprintf(out + n, room - n, "%s\"%s%.*s\":%d", id ? "," : "", c == '"' || c == '\\' ? "\\" : "",
                              (int)size, text, id);
        id++;
    }
    return n + (size_t)snprintf(out + n, room - n, "%s},\"merges\":[%s]}}", vocab, merges);
}

#define BYTE_LEVEL                                                                              \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}," \
    "\"decoder\":{\"type\":\"ByteLevel\"},"

static tokenizer *open_text(const char *text, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, size, f) != size || fclose(f)) return NULL;
    return tokenizer_open(path, error);
}

static tokenizer *open_made(const char *head, const char *vocab, const char *merges, const char *added) {
    static char text[1 << 16];
    return open_text(text, make(text, sizeof text, head, vocab, merges, added));
}

static tokenizer *good(void) {
    return open_made(BYTE_LEVEL,
                     ",\"aa\":256,\"aaaa\":257,\"\xc4\xa0"
                     "a\":258",
                     "\"a a\",\"aa aa\",[\"\xc4\xa0\",\"a\"]", "{\"id\":259,\"content\":\"<end>\",\"special\":true}");
}

static char decoded[1 << 12];
static size_t n_decoded, n_calls;
static void keep(void *user, const char *p, size_t n) {
    (void)user;
    CHECK(json_utf8(p, n) == n);
    memcpy(decoded + n_decoded, p, n);
    n_decoded += n;
    n_calls++;
}

static void decode(const tokenizer *t, const tokenizer_ids *ids) {
    tokenizer_stream s = { { 0 }, 0, false };
    n_decoded = n_calls = 0;
    for (size_t i = 0; i < ids->n; i++) tokenizer_decode(t, &s, ids->id[i], keep, NULL);
    tokenizer_decode_end(t, &s, keep, NULL);
}

TEST(text_becomes_tokens_and_text_again) {
    tokenizer *t = good();
    tokenizer_ids ids = { NULL, 0, 0 };
    size_t n;
    REQUIRE(t != NULL || (printf("%s\n", error), false));
    CHECK(tokenizer_encode(t, "aaaaa aaa<end>\xf0\x9f\x98\x80", 18, 0, &ids));
    REQUIRE(ids.n == 10); /* aaaa a, a space, aa a: the merge of least rank comes first; <end>; four bytes */
    CHECK(ids.id[0] == 257 && ids.id[3] == 256 && ids.id[4] == ids.id[1] && ids.id[5] == 259);
    decode(t, &ids);
    CHECK(n_decoded == 13 && !memcmp(decoded, "aaaaa aaa\xf0\x9f\x98\x80", 13) && n_calls == 10);
    CHECK(tokenizer_size(t) == 260 && tokenizer_find(t, "<end>") == 259 && tokenizer_is_special(t, 259) &&
          !tokenizer_is_special(t, 1));
    CHECK(tokenizer_find(t, "none") == TOKENIZER_NONE && !strcmp(tokenizer_token(t, 257, &n), "aaaa") &&
          !tokenizer_token(t, 260, &n));
    ids.n = 0;
    CHECK(tokenizer_encode(t, "b a", 3, 0, &ids) && ids.n == 2 && ids.id[1] == 258);
    ids.n = 0;
    CHECK(tokenizer_encode(t, "<end>", 5, TOKENIZER_PLAIN, &ids) && ids.n == 5);
    ids.n = 0;
    CHECK(tokenizer_encode(t, "", 0, 0, &ids) && ids.n == 0);
    ids.n = 0;
    uint32_t whole = tokenizer_find(t, "a");
    ids.id[ids.n++] = tokenizer_find(t, "\xc3\xb0"); /* the first byte of an emoji, and no more of it */
    ids.id[ids.n++] = whole;
    ids.id[ids.n++] = 99999;
    decode(t, &ids);
    CHECK(n_decoded == 4 && !memcmp(decoded,
                                    "\xef\xbf\xbd"
                                    "a",
                                    4));
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
}

/* The replacements of Python's bytes.decode(errors="replace"). */
TEST(text_that_is_no_utf8_is_read_with_replacements) {
    static const struct {
        const char *bytes, *read;
    } cases[] = {
        { "\xff", "\xef\xbf\xbd" },
        { "a\x80z", "a\xef\xbf\xbdz" },
        { "\xe2\x82", "\xef\xbf\xbd" },
        { "\xe2\x82z", "\xef\xbf\xbdz" },
        { "\xf0\x9f\x98", "\xef\xbf\xbd" },
        { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc3\xc3\xa4", "\xef\xbf\xbd\xc3\xa4" },
        { "\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "12345678\xe2\x82\xac\xff", "12345678\xe2\x82\xac\xef\xbf\xbd" },
    };
    tokenizer *t = good();
    tokenizer_ids got = { NULL, 0, 0 }, want = { NULL, 0, 0 };
    REQUIRE(t != NULL);
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        size_t n = strlen(cases[i].bytes);
        char *exact = malloc(n);
        memcpy(exact, cases[i].bytes, n);
        got.n = want.n = 0;
        CHECK(tokenizer_encode(t, exact, n, 0, &got) &&
              tokenizer_encode(t, cases[i].read, strlen(cases[i].read), 0, &want));
        if (got.n != want.n || memcmp(got.id, want.id, 4 * got.n)) test_fail(__FILE__, __LINE__, "case %d", i);
        free(exact);
    }
    tokenizer_ids_free(&got);
    tokenizer_ids_free(&want);
    tokenizer_close(t);
}

TEST(a_word_of_a_megabyte_takes_less_than_a_second) {
    size_t n = 1 << 20;
    char *text = malloc(n);
    tokenizer *t = good();
    tokenizer_ids ids = { NULL, 0, 0 };
    REQUIRE(t && text);
    memset(text, 'a', n);
    clock_t start = clock();
    CHECK(tokenizer_encode(t, text, n, 0, &ids) && ids.n == n / 4 && ids.id[0] == 257);
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < (TEST_SANITIZED ? 10 : 1));
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
    free(text);
}

TEST(what_is_not_read_is_refused_by_its_name) {
    static const struct {
        const char *head, *vocab, *merges, *added, *says;
    } cases[] = {
        { "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},", "", "", "", "BertPreTokenizer" },
        { "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\","
          "\"invert\":false},",
          "", "", "", "\\w+" },
        { "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Odd\"},", "", "", "",
          "Odd" },
        { "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]},", "", "", "",
          "Lowercase" },
        { "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},", "", "", "",
          "{2,}" },
        { "\"decoder\":{\"type\":\"WordPiece\"},", "", "", "", "WordPiece" },
        { "\"post_processor\":{\"type\":\"RobertaProcessing\"},", "", "", "", "RobertaProcessing" },
        { "", ",\"a\":256", "", "", "twice" },
        { "", ",\"zz\":1", "", "", "two tokens have the id 1" },
        { "", ",\"zz\":99999999", "", "", "an id is not a number" },
        { "", ",\"zz\":-1", "", "", "an id is not a number" },
        { "", "", "\"a b\"", "", "merge 0 names a token" },
        { "", "", "\"ab\"", "", "merge 0" },
        { "", "", "[\"a\"]", "", "merge 0" },
        { "", "", "7", "", "merge 0" },
        { "", "", "", "{\"content\":\"x\"}", "an id is not a number" },
        { "", "", "", "{\"id\":300}", "no text" },
        { "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
          "\"special_tokens\":"
          "{\"x\":{\"ids\":[300]}}},",
          "", "", "", "template" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        tokenizer *t = open_made(cases[i].head, cases[i].vocab, cases[i].merges, cases[i].added);
        if (t || !strstr(error, cases[i].says))
            test_fail(__FILE__, __LINE__, "case %d: %s, not: %s", i, t ? "opened" : error, cases[i].says);
        tokenizer_close(t);
    }
    static const char *const models[] = {
        "{\"type\":\"WordPiece\"}",
        "{\"type\":\"BPE\"}",
        "{\"type\":\"Unigram\"}",
        "{}",
        "7",
        "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"continuing_subword_prefix\":\"##\"}",
        "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"unk_token\":\"?\"}",
        "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"dropout\":0.1}",
        "{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}",
        "{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}"
    };
    for (int i = 0; i < TEST_COUNT(models); i++) {
        char text[256];
        tokenizer *t = open_text(text, (size_t)snprintf(text, sizeof text, "{\"model\":%s}", models[i]));
        if (t || !error[0]) test_fail(__FILE__, __LINE__, "%s: opened", models[i]);
        tokenizer_close(t);
    }
    CHECK(!tokenizer_open("/tmp", error) && strstr(error, "/tmp: no tokenizer.json"));
}

/* Cut or altered anywhere: refused with a reason, or it encodes without harm. */
TEST(files_that_are_cut_or_altered_do_no_harm) {
    static char text[1 << 16], saved;
    static const char values[] = "\"{}[]:,0-a\\ ";
    size_t n = make(text, sizeof text, BYTE_LEVEL, ",\"aa\":256", "\"a a\"", "{\"id\":257,\"content\":\"x\"}"),
           opened = 0;
    for (size_t cut = 0; cut < n; cut += cut < 300 || n - cut < 100 ? 1 : 37) {
        tokenizer *t = open_text(text, cut);
        if (t) test_fail(__FILE__, __LINE__, "cut at %zu of %zu: opened", cut, n);
        tokenizer_close(t);
    }
    for (int round = 0; round < (TEST_SANITIZED ? 300 : 2000); round++) {
        size_t at = (size_t)test_random_int(0, (int64_t)n - 1);
        tokenizer_ids ids = { NULL, 0, 0 };
        saved = text[at];
        text[at] = values[test_random_int(0, (int64_t)sizeof values - 2)];
        tokenizer *t = open_text(text, n);
        text[at] = saved;
        if (t) opened++, CHECK(tokenizer_encode(t, "aaa x \xc3\xa4\n 12", 12, TOKENIZER_TEMPLATE, &ids));
        else CHECK(error[0] != 0);
        tokenizer_ids_free(&ids);
        tokenizer_close(t);
    }
    printf("  %zu of the altered files were read\n", opened);
}

/* ---- vocab.json with merges.txt ---- */

static const char *const file_names[] = { "vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json",
                                          "special_tokens_map.json" };
enum { FILES = sizeof file_names / sizeof *file_names };

/* A folder with these files; NULL: not there. */
static tokenizer *open_folder(const char *const texts[FILES]) {
    char folder[80], place[200];
    snprintf(folder, sizeof folder, "%s.folder", path);
    (void)mkdir(folder, 0700);
    for (int i = 0; i < FILES; i++) {
        snprintf(place, sizeof place, "%s/%s", folder, file_names[i]);
        FILE *f = texts[i] ? fopen(place, "wb") : NULL;
        if (f) CHECK(fputs(texts[i], f) >= 0 && !fclose(f));
    }
    tokenizer *t = tokenizer_open(folder, error);
    for (int i = 0; i < FILES; i++) {
        snprintf(place, sizeof place, "%s/%s", folder, file_names[i]);
        (void)unlink(place);
    }
    (void)rmdir(folder);
    return t;
}

#define SOME_VOCAB "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}"

TEST(a_folder_of_the_older_files_is_read) {
    static const char *const plain[FILES] = { SOME_VOCAB, "#version: 0.2\na b\n" }, *const more[FILES] = {
        SOME_VOCAB, "a b", "{\"add_bos_token\":true}", "{\"<x>\":7}", "{\"additional_special_tokens\":[\"<x>\"]}"
    };
    tokenizer_ids ids = { NULL, 0, 0 };
    tokenizer *t = open_folder(plain);
    REQUIRE(t != NULL);
    CHECK(tokenizer_size(t) == 4 && tokenizer_is_special(t, 3));
    REQUIRE(tokenizer_encode(t, "abba<|endoftext|>", 17, TOKENIZER_TEMPLATE, &ids));
    CHECK(ids.n == 4 && ids.id[0] == 2 && ids.id[1] == 1 && ids.id[2] == 0 && ids.id[3] == 3);
    tokenizer_close(t);
    t = open_folder(more);
    REQUIRE(t != NULL);
    CHECK(tokenizer_size(t) == 8 && tokenizer_is_special(t, 7) && tokenizer_find(t, "<x>") == 7);
    ids.n = 0;
    REQUIRE(tokenizer_encode(t, "ab<x>", 5, TOKENIZER_TEMPLATE, &ids));
    CHECK(ids.n == 3 && ids.id[0] == 3 && ids.id[1] == 2 && ids.id[2] == 7);
    tokenizer_close(t);
    tokenizer_ids_free(&ids);
}

TEST(a_folder_that_is_not_read_says_why) {
    static const struct {
        const char *files[FILES], *says;
    } cases[] = {
        { { SOME_VOCAB }, "no tokenizer.json" },
        { { NULL, "a b\n" }, "no tokenizer.json" },
        { { "{", "a b\n" }, "vocab.json: byte" },
        { { "{\"a\":-1}", "" }, "an id is not a number" },
        { { "{\"a\":4194304}", "" }, "an id is not a number" },
        { { "{\"a\":1,\"b\":1}", "" }, "two tokens have the id 1" },
        { { SOME_VOCAB, "a\n" }, "merges.txt: merge 0 is not two texts" },
        { { SOME_VOCAB, "a b\n\n" }, "merges.txt: merge 1 is not two texts" },
        { { SOME_VOCAB, "a b\r\n" }, "merge 0 names a token" },
        { { SOME_VOCAB, "b a\n" }, "merge 0 names a token" },
        { { SOME_VOCAB, "a b\n", "{\"tokenizer_class\":\"RobertaTokenizer\"}" }, "RobertaTokenizer" },
        { { SOME_VOCAB, "", "{\"eos_token\":\"<y>\"}" }, "the eos_token \"<y>\" is not in the vocabulary" },
        { { SOME_VOCAB, "", "{\"eos_token\":5}" }, "the eos_token is not a token" },
        { { SOME_VOCAB, "", "{\"add_bos_token\":true,\"bos_token\":\"a b\"}" }, "the bos_token \"a b\" is not" },
        { { SOME_VOCAB, "", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"q\"}}}" }, "an id is not a number" },
        { { SOME_VOCAB, "", "{\"added_tokens_decoder\":{\"9\":{}}}" }, "an added token has no text" },
        { { SOME_VOCAB, "", NULL, "{\"x\":99999999}" }, "an id is not a number" },
        { { SOME_VOCAB, "", NULL, "{\"x\":1}" }, "two tokens have the id 1" },
    };
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        tokenizer *t = open_folder(cases[i].files);
        if (t || !strstr(error, cases[i].says))
            test_fail(__FILE__, __LINE__, "case %d: %s", i, t ? "it was read" : error);
        tokenizer_close(t);
    }
}

/* ---- the vocabulary of a GGUF file ---- */

static tokenizer *open_bytes(const uint8_t *data, size_t size) { return open_text((const char *)data, size); }

#define PIECE_TOKENS                                         \
    "<unk> <s> </s> <0x0A> \xe2\x96\x81 a b ab \xe2\x96\x81" \
    "ab <u>"

TEST(a_gguf_file_gives_its_vocabulary) {
    static uint8_t data[1 << 14];
    tokenizer_ids ids = { NULL, 0, 0 };
    tokenizer *t =
        open_bytes(data, vocabulary_make(data, "llama", NULL, PIECE_TOKENS, "2336111114", "0000987210", NULL));
    REQUIRE(t != NULL);
    REQUIRE(tokenizer_encode(t, "ab ab\nb<u></s>", 14, TOKENIZER_TEMPLATE, &ids));
    static const uint32_t want[] = { 1, 8, 8, 3, 6, 9, 2 };
    CHECK(ids.n == 7 && !memcmp(ids.id, want, sizeof want));
    n_decoded = 0;
    decode(t, &ids);
    CHECK(n_decoded == 10 && !memcmp(decoded, "ab ab\nb<u>", 10));
    tokenizer_close(t);
    tokenizer_ids_free(&ids);
}

TEST(a_vocabulary_that_is_not_read_is_refused_by_its_name) {
    static const struct {
        const char *model, *pre, *tokens, *types, *scores, *merges, *says;
    } cases[] = {
        { "bert", NULL, "a", NULL, NULL, NULL, "tokenizer.ggml.model \"bert\"" },
        { "gpt2", NULL, "a", NULL, NULL, "", "tokenizer.ggml.pre is missing" },
        { "gpt2", "viking", "a", NULL, NULL, "", "tokenizer.ggml.pre \"viking\"" },
        { "gpt2", "gpt-2", NULL, NULL, NULL, "", "tokenizer.ggml.tokens" },
        { "gpt2", "gpt-2", "a", NULL, NULL, NULL, "tokenizer.ggml.merges" },
        { "gpt2", "gpt-2", "a b ab", "11", NULL, "a~b", "tokenizer.ggml.token_type" },
        { "gpt2", "gpt-2", "a b ab", NULL, "11", "a~b", "tokenizer.ggml.scores" },
        { "gpt2", "gpt-2", "a b", NULL, NULL, "a~b", "merge 0 names a token" },
        { "gpt2", "gpt-2", "a b", NULL, NULL, "ab", "merge 0 is not two texts" },
        { "gpt2", "llama-bpe", "a b", NULL, NULL, "", "whose id is missing" },
        { "llama", NULL, "a", NULL, NULL, NULL, "whose id is missing" },
        { "t5", NULL, "a b", NULL, NULL, NULL, "tokenizer.ggml.scores is missing" },
    };
    static uint8_t data[1 << 14];
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        size_t n = vocabulary_make(data, cases[i].model, cases[i].pre, cases[i].tokens, cases[i].types, cases[i].scores,
                                   cases[i].merges);
        tokenizer *t = open_bytes(data, n);
        if (t || !strstr(error, cases[i].says))
            test_fail(__FILE__, __LINE__, "case %d: %s", i, t ? "it was read" : error);
        tokenizer_close(t);
    }
}

TEST(a_vocabulary_that_is_cut_or_altered_does_no_harm) {
    static uint8_t data[1 << 14];
    size_t n = vocabulary_make(data, "llama", NULL, PIECE_TOKENS, "2336111114", "0000987210", NULL), opened = 0;
    for (size_t cut = 0; cut + 32 < n; cut++) {
        tokenizer *t = open_bytes(data, cut);
        if (t) test_fail(__FILE__, __LINE__, "cut at %zu of %zu: opened", cut, n);
        tokenizer_close(t);
    }
    for (int round = 0; round < (TEST_SANITIZED ? 500 : 3000); round++) {
        size_t at = (size_t)test_random_int(0, (int64_t)n - 1);
        uint8_t saved = data[at];
        tokenizer_ids ids = { NULL, 0, 0 };
        data[at] = (uint8_t)test_random_int(0, 255);
        tokenizer *t = open_bytes(data, n);
        data[at] = saved;
        if (t) opened++, CHECK(tokenizer_encode(t, "ab a\n\xff<s>", 9, TOKENIZER_TEMPLATE, &ids));
        else CHECK(error[0] != 0);
        tokenizer_ids_free(&ids);
        tokenizer_close(t);
    }
    printf("  %zu of the altered vocabularies were read\n", opened);
}

static void *encode_often(void *arg) {
    static const char text[] = "a aa aaa aaaa aaaaa <end> \xc3\xa4";
    tokenizer_ids ids = { NULL, 0, 0 };
    size_t sum = 0;
    for (int i = 0; i < 300; i++) {
        ids.n = 0;
        if (!tokenizer_encode((const tokenizer *)arg, text, sizeof text - 1, 0, &ids)) return NULL;
        for (size_t k = 0; k < ids.n; k++) sum = sum * 31 + ids.id[k];
    }
    tokenizer_ids_free(&ids);
    return (void *)sum;
}

TEST(threads_that_share_a_tokenizer_get_equal_ids) {
    tokenizer *t = good();
    pthread_t threads[4];
    void *sums[4];
    REQUIRE(t != NULL);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, encode_often, t) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &sums[i]);
    CHECK(sums[0] && sums[0] == sums[1] && sums[1] == sums[2] && sums[2] == sums[3]);
    tokenizer_close(t);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(text_becomes_tokens_and_text_again),
        TEST_ENTRY(text_that_is_no_utf8_is_read_with_replacements),
        TEST_ENTRY(a_word_of_a_megabyte_takes_less_than_a_second),
        TEST_ENTRY(what_is_not_read_is_refused_by_its_name),
        TEST_ENTRY(files_that_are_cut_or_altered_do_no_harm),
        TEST_ENTRY(a_folder_of_the_older_files_is_read),
        TEST_ENTRY(a_folder_that_is_not_read_says_why),
        TEST_ENTRY(a_gguf_file_gives_its_vocabulary),
        TEST_ENTRY(a_vocabulary_that_is_not_read_is_refused_by_its_name),
        TEST_ENTRY(a_vocabulary_that_is_cut_or_altered_does_no_harm),
        TEST_ENTRY(threads_that_share_a_tokenizer_get_equal_ids),
    };
    test_begin(argc, argv);
    snprintf(path, sizeof path, "/tmp/genie_tokenizer_XXXXXX");
    int file = mkstemp(path);
    if (file < 0) return 1;
    close(file);
    test_all(tests, TEST_COUNT(tests));
    unlink(path);
    return test_end();
}
