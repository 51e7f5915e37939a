/* examples/formats/language_model.h beside PyPI's transformers: small models of each family, whose weights a formula
 * makes, and what the package made of them (tests/golden/models, written by tests/language_model_golden.py). In f32 200
 * greedy tokens for prompts of several lengths, one chunk and several, and the logits; in f16 and bf16 the token chosen
 * after the reference's own; the same tokens from GGUF files that PyPI's gguf writes. Old spellings of configurations,
 * shards, prefixes and buffers; what is refused, by name.
 *
 * Tier: quick address */
#define _GNU_SOURCE
#include "test.h"
#include <ftw.h>
#include <sys/stat.h>

#define LANGUAGE_MODEL_IMPLEMENTATION
#include "../examples/formats/language_model.h"

enum { MOST_STEPS = 256, MOST_VOCAB = 128, MOST_ROWS = 8 };

static char folder[64] = "/tmp/genie-models-XXXXXX", error[LM_ERROR];

/* `error` holds the text. */
static void says(const char *text) {
    bool does = strstr(error, text) != NULL;
    if (!does) printf("  \"%s\" lacks \"%s\"\n", error, text);
    CHECK(does);
}

/* ---- golden files ---- */

typedef struct golden {
    char *text;
    json_value root;
    int64_t seed, steps;
} golden;

static golden golden_open(const char *name) {
    golden x = { 0 };
    char path[256];
    json_error why;
    snprintf(path, sizeof path, "tests/golden/models/%s.json", name);
    FILE *f = fopen(path, "r");
    x.text = calloc(1, 1 << 18);
    size_t n = f ? fread(x.text, 1, 1 << 18, f) : 0;
    if (f) fclose(f);
    CHECK(n > 0 && json_check(x.text, n, NULL, &x.root, &why));
    CHECK(json_get_i64(json_get(x.root, "seed"), &x.seed) && json_get_i64(json_get(x.root, "steps"), &x.steps));
    CHECK(x.steps <= MOST_STEPS);
    return x;
}

static size_t numbers(json_value list, double *out, size_t most) {
    json_value key, item;
    size_t n = 0;
    for (json_iter i = json_begin(list); n < most && json_next(&i, &key, &item); n++) json_get_double(item, &out[n]);
    return n;
}

/* The formula of language_model_golden.py: splitmix64 (Steele et al. 2014) of the name's FNV-1a and the index. */
static float *formula(const char *name, const safetensors_tensor *t, uint64_t seed, size_t n) {
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001B3);
    bool gain = t->rank == 1 && length > 6 && !strcmp(name + length - 6, "weight");
    float scale = gain ? 128 : t->rank == 1 ? 64 : 32, *out = malloc(n * sizeof *out);
    for (size_t i = 0; out && i < n; i++) {
        uint64_t x = h + seed + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        x ^= x >> 31;
        out[i] = ((float)(int64_t)(x >> 58) - 32) / scale + (gain ? 1.0f : 0.0f);
    }
    return out;
}

typedef struct tensors {
    safetensors_tensor t[128];
    char names[128][96];
    int64_t dims[128][2];
    size_t n;
} tensors;

static void tensors_make(tensors *all, const golden *x) {
    json_value key, item, part;
    memset(all, 0, sizeof *all);
    for (json_iter i = json_begin(json_get(x->root, "tensors")); json_next(&i, &key, &item) && all->n < 128; all->n++) {
        safetensors_tensor *t = &all->t[all->n];
        json_iter pair = json_begin(item);
        double dims[2] = { 1, 1 };
        size_t count;
        json_next(&pair, &key, &part);
        CHECK(json_get_string(part, all->names[all->n], sizeof all->names[0], NULL));
        json_next(&pair, &key, &part);
        t->rank = (uint8_t)numbers(part, dims, 2);
        for (int k = 0; k < 2; k++) all->dims[all->n][k] = (int64_t)dims[k];
        count = (size_t)(dims[0] * (t->rank == 2 ? dims[1] : 1));
        t->name = all->names[all->n];
        t->dims = all->dims[all->n];
        t->dtype = SAFETENSORS_F32;
        t->bytes = count * 4;
        t->data = (uint8_t *)formula(t->name, t, (uint64_t)x->seed, count);
    }
}

static void tensors_free(tensors *all) {
    for (size_t i = 0; i < all->n; i++) free((void *)(uintptr_t)all->t[i].data);
}

static void write_text(const char *directory, const char *file, const char *text, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(text, 1, n, f) == n);
    if (f) fclose(f);
}

static void write_tensors(const char *directory, const char *file, const safetensors_tensor *t, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    CHECK(safetensors_write(path, t, n, NULL, error));
}

/* A directory with the model of a golden file; config NULL: its own. */
static void write_model(const char *directory, const golden *x, const char *config) {
    static tensors all;
    json_value own = json_get(x->root, "config");
    mkdir(directory, 0700);
    tensors_make(&all, x);
    write_text(directory, "config.json", config ? config : own.text, config ? strlen(config) : own.size);
    write_tensors(directory, "model.safetensors", all.t, all.n);
    tensors_free(&all);
}

/* ---- a model that runs ---- */

typedef struct running {
    gn_ctx *g;
    lm_model *m;
    lm_session s;
} running;

static bool running_open(running *r, const char *directory, gn_dtype dtype, int64_t context) {
    memset(r, 0, sizeof *r);
    r->g = gn_open(&(gn_desc){ .devices = "cpu" });
    r->m = lm_open(directory, dtype, error);
    bool ok = r->m && lm_load(r->m, r->g, LM_WEIGHTS, error) && lm_session_open(&r->s, r->m, context, error);
    if (!ok) printf("  %s\n", error);
    CHECK(ok);
    return ok;
}

static void running_close(running *r) {
    lm_session_close(&r->s);
    gn_close(r->g);
    lm_close(r->m);
}

/* Feeds n ids; the logits of the last one. */
static bool feed(running *r, const int32_t *ids, int64_t n, float logits[MOST_VOCAB]) {
    gn_tensor x = lm_forward(&r->s, gn_data(r->g, GN_I32, GN_SHAPE(n), ids), n);
    gn_tensor y = lm_logits(r->m, gn_slice(x, 0, -1, GN_END, 1));
    bool ok = gn_read(y, logits, (size_t)r->m->config.vocab * sizeof(float)) == GN_OK && gn_step(r->g) == GN_OK;
    if (!ok) printf("  %s\n", gn_last_error(r->g)->text);
    r->s.position += n;
    return ok;
}

static int32_t largest(const float *x, int64_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* The largest difference as a share of the largest logit. */
static double distance(const float *x, const double *y, size_t n) {
    double most = 0, largest_y = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        largest_y = fmax(largest_y, fabs(y[i]));
    }
    return most / largest_y;
}

typedef struct reference {
    int32_t prompt[MOST_STEPS], n_prompt, tokens[MOST_STEPS];
    int64_t rows[MOST_ROWS];
    double logits[MOST_ROWS][MOST_VOCAB];
    size_t n_rows;
} reference;

static void reference_read(reference *f, const golden *x, json_value run) {
    double list[MOST_STEPS];
    json_value key, item;
    f->n_prompt = (int32_t)numbers(json_get(run, "prompt"), list, MOST_STEPS);
    for (int i = 0; i < f->n_prompt; i++) f->prompt[i] = (int32_t)list[i];
    CHECK_INT(numbers(json_get(run, "tokens"), list, MOST_STEPS), x->steps);
    for (int64_t i = 0; i < x->steps; i++) f->tokens[i] = (int32_t)list[i];
    f->n_rows = numbers(json_get(x->root, "rows"), list, MOST_ROWS);
    for (size_t i = 0; i < f->n_rows; i++) f->rows[i] = (int64_t)list[i];
    size_t n = 0;
    for (json_iter i = json_begin(json_get(run, "logits")); json_next(&i, &key, &item); n++)
        numbers(item, f->logits[n], MOST_VOCAB);
    CHECK_INT(n, f->n_rows);
}

/* Greedy tokens of one run, the prompt fed in chunks: all are the reference's, and so are the logits to 1e-4. */
static void same_tokens(running *r, const reference *f, int64_t steps, int64_t chunk) {
    float logits[MOST_VOCAB];
    int64_t same = 0;
    double worst = 0;
    bool ok = true;
    r->s.position = 0;
    for (int64_t i = 0; i < f->n_prompt; i += chunk)
        ok = ok && feed(r, f->prompt + i, f->n_prompt - i < chunk ? f->n_prompt - i : chunk, logits);
    for (int64_t i = 0; ok && i < steps; i++) {
        int32_t token = largest(logits, r->m->config.vocab);
        for (size_t k = 0; k < f->n_rows; k++)
            if (f->rows[k] == i) worst = fmax(worst, distance(logits, f->logits[k], (size_t)r->m->config.vocab));
        if (token != f->tokens[i]) break;
        same++;
        if (i + 1 < steps) ok = feed(r, &token, 1, logits);
    }
    printf("  prompt of %d in chunks of %lld: %lld tokens, logits within %.1e\n", f->n_prompt, (long long)chunk,
           (long long)same, worst);
    CHECK_INT(same, steps);
    CHECK(worst <= 1e-4);
}

/* On the reference's own tokens in fewer bits: the reference's logit of the chosen token is within twice the bound of
 * the largest. */
static void near_tokens(running *r, const reference *f, double bound) {
    float logits[MOST_VOCAB];
    double worst = 0;
    size_t k = 0, vocab = (size_t)r->m->config.vocab;
    bool ok;
    r->s.position = 0;
    ok = feed(r, f->prompt, f->n_prompt, logits);
    for (int64_t i = 0; ok && k < f->n_rows; i++) {
        if (f->rows[k] == i) {
            const double *y = f->logits[k++];
            double high = y[f->tokens[i]], most = 0;
            for (size_t v = 0; v < vocab; v++) most = fmax(most, fabs(y[v]));
            worst = fmax(worst, distance(logits, y, vocab));
            CHECK(y[largest(logits, (int64_t)vocab)] >= high - 2 * bound * most);
        }
        ok = feed(r, &f->tokens[i], 1, logits);
    }
    printf("  %s: logits within %.1e, bound %.1e\n", gn_dtype_name(r->m->dtype), worst, bound);
    CHECK(k == f->n_rows && worst <= bound);
}

/* ---- all prompts at once, as sequences of one plan ---- */

enum { SEQUENCES = 4, CHUNK = 7, ROWS = SEQUENCES * CHUNK + 2 };

typedef struct many {
    reference f[SEQUENCES];
    int32_t tokens[SEQUENCES][2 * MOST_STEPS], sequence[SEQUENCES];
    int64_t n[SEQUENCES]; /* tokens there are */
    int count;
} many;

/* Up to CHUNK tokens of each sequence, one after another; pick: the row of the last token of each. */
static lm_rows many_rows(const running *r, const lm_pages *p, many *m, int64_t pick[SEQUENCES]) {
    static int32_t ids[ROWS], places[ROWS], of[ROWS], table[SEQUENCES * 64], from[SEQUENCES], to[SEQUENCES];
    static int64_t slots[ROWS];
    int64_t at = 0;
    for (int i = 0; i < ROWS; i++) ids[i] = places[i] = 0, of[i] = -1, slots[i] = -1;
    for (int b = 0; b < m->count; b++) {
        int64_t begin = gn_kv_pages_length(p->held, m->sequence[b]), left = m->n[b] - begin;
        int64_t n = left < CHUNK ? left : CHUNK;
        CHECK(gn_kv_pages_append(p->held, m->sequence[b], m->tokens[b] + begin, n, slots + at) == GN_OK);
        for (int64_t k = 0; k < n; k++, at++) {
            ids[at] = m->tokens[b][begin + k];
            places[at] = (int32_t)(begin + k);
            of[at] = m->sequence[b];
        }
        pick[b] = at - 1;
    }
    gn_kv_pages_table(p->held, table, 64);
    int64_t copies = gn_kv_pages_copies(p->held, from, to, SEQUENCES);
    for (int64_t i = copies; i < SEQUENCES; i++) from[i] = 0, to[i] = -1;
    lm_rows rows = { .n = ROWS,
                     .ids = gn_data_copy(r->g, GN_I32, GN_SHAPE(ROWS), ids),
                     .positions = gn_data_copy(r->g, GN_I32, GN_SHAPE(ROWS), places),
                     .sequences = gn_data_copy(r->g, GN_I32, GN_SHAPE(ROWS), of),
                     .slots = gn_data_copy(r->g, GN_I64, GN_SHAPE(ROWS), slots),
                     .table = gn_data_copy(r->g, GN_I32, GN_SHAPE(SEQUENCES, 64), table) };
    if (copies) rows.from = gn_data_copy(r->g, GN_I32, GN_SHAPE(SEQUENCES), from);
    if (copies) rows.to = gn_data_copy(r->g, GN_I32, GN_SHAPE(SEQUENCES), to);
    return rows;
}

/* One step; sequences whose tokens are all in get the next one. */
static bool many_step(running *r, lm_pages *p, many *m) {
    static float logits[SEQUENCES * MOST_VOCAB];
    int64_t pick[SEQUENCES] = { 0 }, vocab = r->m->config.vocab;
    lm_rows rows = many_rows(r, p, m, pick);
    gn_tensor x = gn_index_select(lm_forward_pages(p, &rows), 0, gn_data(r->g, GN_I64, GN_SHAPE(SEQUENCES), pick));
    bool ok = gn_read(lm_logits(r->m, x), logits, (size_t)(SEQUENCES * vocab) * sizeof *logits) == GN_OK &&
              gn_step(r->g) == GN_OK;
    if (!ok) printf("  %s\n", gn_last_error(r->g)->text);
    gn_kv_pages_step(p->held);
    for (int b = 0; b < m->count && ok; b++)
        if (gn_kv_pages_length(p->held, m->sequence[b]) == m->n[b])
            m->tokens[b][m->n[b]++] = largest(logits + b * vocab, vocab);
    return ok;
}

/* Prompts of several lengths and chunks, the last a copy of the first that comes later and shares its pages. */
static void pages_give_the_same_tokens(running *r, const golden *x, int64_t steps) {
    static many m;
    lm_pages p;
    json_value key, run;
    memset(&m, 0, sizeof m);
    gn_kv_pages_desc d = { .pages = 150, .page_size = 5, .sequences = SEQUENCES, .tokens = 256 };
    bool ok = CHECK(lm_pages_open(&p, r->m, &d, error));
    for (json_iter i = json_begin(json_get(x->root, "runs")); json_next(&i, &key, &run) && m.count < SEQUENCES - 1;)
        reference_read(&m.f[m.count++], x, run);
    m.f[m.count] = m.f[m.count - 1];
    int late = m.count;
    for (int b = 0, step = 0; ok && step < 400; step++) {
        for (; b < m.count; b++) {
            int64_t shared;
            memcpy(m.tokens[b], m.f[b].prompt, (size_t)m.f[b].n_prompt * sizeof(int32_t));
            m.n[b] = m.f[b].n_prompt;
            ok = CHECK(gn_kv_pages_begin(p.held, m.tokens[b], m.n[b], &m.sequence[b], &shared) == GN_OK);
            CHECK((shared > 0) == (b == late && m.n[b] > 1) || b < late);
        }
        ok = ok && many_step(r, &p, &m);
        if (step == 12) m.count = late + 1;
        if (m.count > late && m.n[late] > m.f[late].n_prompt + steps) break;
    }
    for (int b = 0; b < m.count; b++)
        for (int64_t i = 0; i < steps && ok; i++) ok = CHECK_INT(m.tokens[b][m.f[b].n_prompt + i], m.f[b].tokens[i]);
    CHECK(gn_kv_pages_get_info(p.held).reused > 0);
    lm_pages_close(&p);
}

static void model_directory(const char *name, char out[128]) { snprintf(out, 128, "%s/%s", folder, name); }

static void family_is_the_packages(const char *name) {
    golden x = golden_open(name);
    char directory[128];
    json_value key, run;
    static reference f;
    running r;
    model_directory(name, directory);
    write_model(directory, &x, NULL);
    if (running_open(&r, directory, GN_DTYPE_NONE, 256)) {
        CHECK(r.m->dtype == GN_F32);
        for (json_iter i = json_begin(json_get(x.root, "runs")); json_next(&i, &key, &run);) {
            reference_read(&f, &x, run);
            same_tokens(&r, &f, x.steps, 256);
        }
        same_tokens(&r, &f, 20, 7);
        pages_give_the_same_tokens(&r, &x, 30);
    }
    running_close(&r);
    /* The error that the package itself makes in fewer bits, and half as much again. The two dtypes differ by 3 bits,
     * and errors of few tokens by chance: the larger one counts. */
    double f16 = 0, bf16 = 0;
    json_value errors = json_get(x.root, "errors");
    CHECK(json_get_double(json_get(errors, "f16"), &f16) && json_get_double(json_get(errors, "bf16"), &bf16));
    double bound = 1.5 * fmax(f16, bf16 / 8);
    if (running_open(&r, directory, GN_F16, 256)) near_tokens(&r, &f, bound);
    running_close(&r);
    if (running_open(&r, directory, GN_BF16, 256)) near_tokens(&r, &f, 8 * bound);
    running_close(&r);
    free(x.text);
}

#define PYTHON "PYTHONPATH=build/oracles${PYTHONPATH:+:$PYTHONPATH} python3 "

/* The same model in a file that PyPI's gguf writes. */
static void gguf_is_the_packages(const char *name) {
    golden x = golden_open(name);
    char path[256], command[512];
    json_value key, run;
    static reference f;
    running r = { 0 };
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    snprintf(command, sizeof command, PYTHON "tests/language_model_golden.py gguf tests/golden/models/%s.json %s", name,
             path);
    printf("  %s\n", name);
    if (CHECK(system(command) == 0) && running_open(&r, path, GN_DTYPE_NONE, 256)) {
        for (json_iter i = json_begin(json_get(x.root, "runs")); json_next(&i, &key, &run);) {
            reference_read(&f, &x, run);
            same_tokens(&r, &f, x.steps, 256);
        }
        pages_give_the_same_tokens(&r, &x, 30);
    }
    running_close(&r);
    free(x.text);
}

TEST(gguf_files_give_the_packages_tokens) {
    static const char *const names[] = { "gpt2",       "llama3",    "qwen2",     "qwen3", "gemma2",
                                         "gemma3",     "mixtral",   "qwen3_moe", "phi",   "phi3",
                                         "phi3_short", "phi3_long", "qwen2_moe" };
    if (system(PYTHON "-c 'import gguf' 2>/dev/null") != 0) {
        test_skip("python3 has no gguf (pip install --target build/oracles -r tests/oracles.txt)");
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) gguf_is_the_packages(names[i]);
}

/* Gemma 2's file of 46 layers without the key for the scores' scale, as its writers made it: what is taken is said. */
TEST(gguf_file_without_a_scale_for_scores_has_its_reference_s) {
    char path[256], command[512];
    if (system(PYTHON "-c 'import gguf' 2>/dev/null") != 0) {
        test_skip("python3 has no gguf (pip install --target build/oracles -r tests/oracles.txt)");
        return;
    }
    for (int layers = 45; layers <= 46; layers++) {
        snprintf(path, sizeof path, "%s/layers.gguf", folder);
        snprintf(command, sizeof command,
                 PYTHON "tests/language_model_golden.py gguf tests/golden/models/gemma2.json %s '' %d", path, layers);
        REQUIRE(system(command) == 0);
        lm_model *m = lm_open(path, GN_DTYPE_NONE, error);
        if (!CHECK(m != NULL)) printf("  %s\n", error);
        else if (layers == 45) CHECK(m->config.query_scalar == 0 && !m->note[0]);
        else
            CHECK(m->config.query_scalar == 8 && strstr(m->note, "gemma2.attention.scale") && strstr(m->note, "of 8,"));
        lm_close(m);
    }
}

TEST(gpt2_gives_the_packages_tokens) { family_is_the_packages("gpt2"); }
TEST(llama2_gives_the_packages_tokens) { family_is_the_packages("llama2"); }
TEST(llama3_tied_gives_the_packages_tokens) { family_is_the_packages("llama3"); }
TEST(llama_with_biases_and_yarn_gives_the_packages_tokens) { family_is_the_packages("llama_biased"); }
TEST(mistral_gives_the_packages_tokens) { family_is_the_packages("mistral"); }
TEST(qwen2_gives_the_packages_tokens) { family_is_the_packages("qwen2"); }
TEST(qwen3_gives_the_packages_tokens) { family_is_the_packages("qwen3"); }
TEST(gemma2_gives_the_packages_tokens) { family_is_the_packages("gemma2"); }
TEST(gemma3_gives_the_packages_tokens) { family_is_the_packages("gemma3"); }
TEST(mixtral_gives_the_packages_tokens) { family_is_the_packages("mixtral"); }
TEST(qwen3_with_experts_gives_the_packages_tokens) { family_is_the_packages("qwen3_moe"); }
TEST(qwen2_with_experts_and_a_shared_one_gives_the_packages_tokens) { family_is_the_packages("qwen2_moe"); }
TEST(phi_gives_the_packages_tokens) { family_is_the_packages("phi"); }
TEST(phi3_gives_the_packages_tokens) { family_is_the_packages("phi3"); }
TEST(phi3_with_short_factors_gives_the_packages_tokens) { family_is_the_packages("phi3_short"); }
TEST(phi3_with_long_factors_gives_the_packages_tokens) { family_is_the_packages("phi3_long"); }

/* ---- experts ---- */

static void tensor_add(tensors *all, const char *name, int64_t rows, int64_t columns) {
    safetensors_tensor *t = &all->t[all->n];
    snprintf(all->names[all->n], sizeof all->names[0], "%s", name);
    all->dims[all->n][0] = rows;
    all->dims[all->n][1] = columns;
    *t = (safetensors_tensor){ .name = all->names[all->n], .dims = all->dims[all->n], .rank = columns ? 2 : 1 };
    t->dtype = SAFETENSORS_F32;
    t->bytes = (uint64_t)(rows * (columns ? columns : 1)) * 4;
    t->data = (uint8_t *)formula(t->name, t, 1, t->bytes / 4);
    all->n++;
}

enum { EXPERTS = 32, WIDTH = 128, EXPERT_WIDTH = 512 };

/* One layer of 32 experts, `used` of which a token goes through. */
static void write_experts(const char *directory, int used) {
    static const char layer[] = "model.layers.0.", *const ends[] = { "q_proj", "k_proj", "v_proj", "o_proj" };
    static tensors all;
    char config[512], name[96];
    memset(&all, 0, sizeof all);
    tensor_add(&all, "model.embed_tokens.weight", 96, WIDTH);
    tensor_add(&all, "lm_head.weight", 96, WIDTH);
    tensor_add(&all, "model.norm.weight", WIDTH, 0);
    tensor_add(&all, "model.layers.0.input_layernorm.weight", WIDTH, 0);
    tensor_add(&all, "model.layers.0.post_attention_layernorm.weight", WIDTH, 0);
    tensor_add(&all, "model.layers.0.block_sparse_moe.gate.weight", EXPERTS, WIDTH);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%sself_attn.%s.weight", layer, ends[i]);
        tensor_add(&all, name, WIDTH, WIDTH);
    }
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 1; i <= 3; i++) {
            snprintf(name, sizeof name, "%sblock_sparse_moe.experts.%d.w%d.weight", layer, e, i);
            tensor_add(&all, name, i == 2 ? WIDTH : EXPERT_WIDTH, i == 2 ? EXPERT_WIDTH : WIDTH);
        }
    snprintf(config, sizeof config,
             "{\"model_type\":\"mixtral\",\"vocab_size\":96,\"hidden_size\":%d,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"intermediate_size\":%d,\"num_local_experts\":%d,"
             "\"max_position_embeddings\":256,\"num_experts_per_tok\":%d}",
             WIDTH, EXPERT_WIDTH, EXPERTS, used);
    mkdir(directory, 0700);
    write_text(directory, "config.json", config, strlen(config));
    write_tensors(directory, "model.safetensors", all.t, all.n);
    tensors_free(&all);
}

/* Seconds of the quickest of some steps of one token. */
static double token_seconds(int used) {
    char directory[128];
    running r;
    float logits[MOST_VOCAB];
    double least = 1e9;
    model_directory("experts", directory);
    write_experts(directory, used);
    if (running_open(&r, directory, GN_DTYPE_NONE, 64))
        for (int32_t i = 0; i < 40; i++) {
            struct timespec a, b;
            clock_gettime(CLOCK_MONOTONIC, &a);
            CHECK(feed(&r, &i, 1, logits));
            clock_gettime(CLOCK_MONOTONIC, &b);
            least = fmin(least, (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
        }
    running_close(&r);
    return least;
}

TEST(token_computes_the_experts_that_it_uses_alone) {
    double few = token_seconds(2), all = token_seconds(EXPERTS);
    printf("  2 of %d experts: %.3f ms a token; all: %.3f ms\n", EXPERTS, 1e3 * few, 1e3 * all);
    CHECK(2 * few < all);
}

/* ---- the same model written in other ways ---- */

static void run_first(const char *directory, const golden *x) {
    static reference f;
    json_value key, run;
    running r;
    json_iter i = json_begin(json_get(x->root, "runs"));
    json_next(&i, &key, &run);
    reference_read(&f, x, run);
    if (running_open(&r, directory, GN_DTYPE_NONE, 256)) same_tokens(&r, &f, 12, 256);
    running_close(&r);
}

TEST(old_spelling_of_a_configuration_means_the_same) {
    golden x = golden_open("llama3");
    char directory[128];
    model_directory("old", directory);
    write_model(directory, &x,
                "{\"model_type\":\"llama\",\"vocab_size\":96,\"hidden_size\":32,\"num_hidden_layers\":2,"
                "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":null,\"intermediate_size\":48,"
                "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"rope_scaling\":"
                "{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":"
                "64,\"rope_type\":\"llama3\"},\"tie_word_embeddings\":true,\"torch_dtype\":\"float32\"}");
    run_first(directory, &x);
    free(x.text);
}

TEST(shards_and_names_without_prefix_and_buffers_are_the_same_model) {
    golden x = golden_open("gpt2");
    static tensors all;
    static char index[1 << 14];
    char directory[128];
    json_value config = json_get(x.root, "config");
    size_t half, n;
    model_directory("shards", directory);
    mkdir(directory, 0700);
    tensors_make(&all, &x);
    for (size_t i = 0; i < all.n; i++) /* as the first files of GPT-2 are: no prefix, a mask in each layer */
        all.t[i].name = strncmp(all.names[i], "transformer.", 12) ? all.names[i] : all.names[i] + 12;
    int64_t mask_dims[4] = { 1, 1, 2, 2 };
    static const float mask[4] = { 1, 0, 1, 1 };
    all.t[all.n++] = (safetensors_tensor){ .name = "h.0.attn.bias",
                                           .dims = mask_dims,
                                           .data = (const uint8_t *)mask,
                                           .bytes = 16,
                                           .rank = 4,
                                           .dtype = SAFETENSORS_F32 };
    half = all.n / 2;
    write_tensors(directory, "a.safetensors", all.t, half);
    write_tensors(directory, "b.safetensors", all.t + half, all.n - half);
    n = (size_t)snprintf(index, sizeof index, "{\"weight_map\":{");
    for (size_t i = 0; i < all.n; i++)
        n += (size_t)snprintf(index + n, sizeof index - n, "%s\"%s\":\"%s.safetensors\"", i ? "," : "", all.t[i].name,
                              i < half ? "a" : "b");
    n += (size_t)snprintf(index + n, sizeof index - n, "}}");
    write_text(directory, "model.safetensors.index.json", index, n);
    write_text(directory, "config.json", config.text, config.size);
    run_first(directory, &x);
    all.n--;
    tensors_free(&all);
    free(x.text);
}

/* ---- what is refused ---- */

static void refused(const char *directory, const char *text) {
    lm_model *m = lm_open(directory, GN_DTYPE_NONE, error);
    CHECK(!m);
    says(text);
    lm_close(m);
}

/* The golden configuration of Qwen 2 with one text replaced. */
static void refused_config(const golden *x, const char *from, const char *to, const char *text) {
    char config[2048], directory[128];
    json_value own = json_get(x->root, "config");
    const char *at = strstr(own.text, from);
    CHECK(at != NULL);
    if (!at) return;
    snprintf(config, sizeof config, "%.*s%s%.*s", (int)(at - own.text), own.text, to,
             (int)(own.text + own.size - at) - (int)strlen(from), at + strlen(from));
    model_directory("refused", directory);
    write_text(directory, "config.json", config, strlen(config));
    refused(directory, text);
}

TEST(configuration_that_is_not_read_is_refused_by_its_name) {
    golden x = golden_open("qwen2");
    char directory[128];
    model_directory("refused", directory);
    write_model(directory, &x, NULL);
    refused_config(&x, "\"qwen2\"", "\"mamba\"", "'mamba' is not known; known are gpt2, llama");
    refused_config(&x, "\"silu\"", "\"xielu\"", "hidden_act \"xielu\" is not known");
    refused_config(&x, "\"default\"", "\"dynamic\"", "rope_type \"dynamic\" is not known");
    refused_config(&x, "\"default\"", "\"longrope\"", "long_factor of the rotary embedding is not 4 numbers");
    refused_config(&x, "\"default\"", "\"longrope\",\"long_factor\":[1,2,3,4],\"short_factor\":[1,2,0,4]",
                   "short_factor of the rotary embedding is not 4 numbers above 0");
    refused_config(&x, "\"default\"",
                   "\"longrope\",\"long_factor\":[1,2,3,4],\"short_factor\":[1,2,3,4],"
                   "\"original_max_position_embeddings\":1",
                   "original_max_position_embeddings is 1");
    refused_config(&x, "\"hidden_size\":32", "\"hidden_size\":40",
                   "model.embed_tokens.weight has shape (96, 32); a qwen2 of this configuration has (96, 40)");
    refused_config(&x, "\"hidden_size\":32", "\"hidden_size\":-1", "hidden_size is -1");
    refused_config(&x, "\"hidden_size\":32", "\"hidden_size\":32.5", "not a whole number");
    refused_config(&x, "\"hidden_size\":32,", "",
                   "hidden_size (or n_embd) is missing (embedding_length in a GGUF file)");
    refused_config(&x, "\"num_hidden_layers\":2", "\"num_hidden_layers\":1", "layer_types has 2 entries for 1 layers");
    refused_config(&x, "\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "cannot share");
    refused_config(&x, "\"eos_token_id\":null", "\"eos_token_id\":\"no\"", "neither a token nor a list");
    free(x.text);
}

/* Files of a hub whose weights are packed in a way that is not read: refused by the method's name. */
TEST(weights_quantised_by_gptq_or_awq_are_refused_by_the_name_of_the_method) {
    static const char *const methods[] = { "gptq", "awq", "bitsandbytes" };
    golden x = golden_open("qwen2");
    char directory[128], config[96], text[64];
    model_directory("refused", directory);
    write_model(directory, &x, NULL);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        snprintf(config, sizeof config, "\"quantization_config\":{\"bits\":4,\"quant_method\":\"%s\"},\"hidden_act\"",
                 methods[i]);
        snprintf(text, sizeof text, "quantised by \"%s\", which is not read", methods[i]);
        refused_config(&x, "\"hidden_act\"", config, text);
    }
    refused_config(&x, "\"hidden_act\"", "\"quantization_config\":{\"bits\":4},\"hidden_act\"",
                   "quantised by a method, which is not read");
    free(x.text);
}

TEST(tensors_that_are_missing_or_too_many_are_named) {
    golden x = golden_open("phi");
    char directory[128];
    static tensors all;
    float one = 1;
    int64_t dim = 1;
    model_directory("tensors", directory);
    write_model(directory, &x, NULL);
    tensors_make(&all, &x);
    write_tensors(directory, "model.safetensors", all.t, all.n - 1);
    char missing[160];
    snprintf(missing, sizeof missing, "the tensor %s is missing", all.t[all.n - 1].name);
    refused(directory, missing);
    all.t[all.n] = (safetensors_tensor){ .name = "model.layers.0.router",
                                         .dims = &dim,
                                         .data = (const uint8_t *)&one,
                                         .bytes = 4,
                                         .rank = 1,
                                         .dtype = SAFETENSORS_F32 };
    write_tensors(directory, "model.safetensors", all.t, all.n + 1);
    refused(directory, "the tensor model.layers.0.router is in the files, and no phi has it");
    refused("/nowhere/at/all", "no such file");
    tensors_free(&all);
    free(x.text);
}

TEST(context_longer_than_the_model_is_refused) {
    golden x = golden_open("gpt2");
    char directory[128];
    running r;
    lm_session s;
    model_directory("context", directory);
    write_model(directory, &x, NULL);
    if (running_open(&r, directory, GN_DTYPE_NONE, 16)) {
        CHECK(!lm_session_open(&s, r.m, 257, error));
        says("has room for 1 to 256");
    }
    running_close(&r);
    free(x.text);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(gpt2_gives_the_packages_tokens),
        TEST_ENTRY(llama2_gives_the_packages_tokens),
        TEST_ENTRY(llama3_tied_gives_the_packages_tokens),
        TEST_ENTRY(llama_with_biases_and_yarn_gives_the_packages_tokens),
        TEST_ENTRY(mistral_gives_the_packages_tokens),
        TEST_ENTRY(qwen2_gives_the_packages_tokens),
        TEST_ENTRY(qwen3_gives_the_packages_tokens),
        TEST_ENTRY(gemma2_gives_the_packages_tokens),
        TEST_ENTRY(gemma3_gives_the_packages_tokens),
        TEST_ENTRY(mixtral_gives_the_packages_tokens),
        TEST_ENTRY(qwen3_with_experts_gives_the_packages_tokens),
        TEST_ENTRY(qwen2_with_experts_and_a_shared_one_gives_the_packages_tokens),
        TEST_ENTRY(gguf_file_without_a_scale_for_scores_has_its_reference_s),
        TEST_ENTRY(phi_gives_the_packages_tokens),
        TEST_ENTRY(phi3_gives_the_packages_tokens),
        TEST_ENTRY(phi3_with_short_factors_gives_the_packages_tokens),
        TEST_ENTRY(phi3_with_long_factors_gives_the_packages_tokens),
        TEST_ENTRY(gguf_files_give_the_packages_tokens),
        TEST_ENTRY(token_computes_the_experts_that_it_uses_alone),
        TEST_ENTRY(old_spelling_of_a_configuration_means_the_same),
        TEST_ENTRY(shards_and_names_without_prefix_and_buffers_are_the_same_model),
        TEST_ENTRY(configuration_that_is_not_read_is_refused_by_its_name),
        TEST_ENTRY(weights_quantised_by_gptq_or_awq_are_refused_by_the_name_of_the_method),
        TEST_ENTRY(tensors_that_are_missing_or_too_many_are_named),
        TEST_ENTRY(context_longer_than_the_model_is_refused),
    };
    test_begin(argc, argv);
    if (!mkdtemp(folder)) return 1;
    test_all(tests, TEST_COUNT(tests));
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return test_end();
}
