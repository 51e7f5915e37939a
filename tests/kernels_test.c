/* Every kernel that the conformance suite needs on a GPU, generated and compiled without one.
 *
 * The suite runs on a "cuda:0" that generates and executes nothing (GENIE_CUDA_COMPILE_ONLY); then what was generated
 * is compiled by NVRTC, deduplicated and twenty kernels to a program: every shape for one arch, one kernel of each kind
 * for the others. Skips with the reason where NVRTC is not found. The texts of a few kernels are compared with
 * tests/golden/kernels; GENIE_WRITE_GOLDEN=1 writes them anew.
 *
 * KERNELS_ARCH names the one arch (sm_90a); KERNELS_ARCHS="sm_60 sm_70" names those of which one kernel of each kind is
 * compiled, and nothing else then. With GENIE_CUDA_ONE_OF_EACH one of each is all that is generated for KERNELS_ARCH.
 * KERNELS_EVERY=N: of the one arch, one kernel of each kind and every Nth of the others; of each other arch a third of
 * the kinds; other ones each time.
 * What compiles is left in $GENIE_CACHE, if that is set. Under a sanitizer kernels are generated and not compiled:
 * NVRTC has no instrumented code, the generator has.
 *
 * Tier: slow kernels address */
#define main conformance_main
#include "conformance_test.c"
#undef main

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

GN_API size_t gn_cuda_compile_collected(const char *arch, bool one_of_each, size_t *out_failed, char *out_text,
                                        size_t cap);

/* ---- golden texts ---- */

static float zeros[1 << 21];
static gn_tensor leaf(gn_ctx *g, gn_dtype d, gn_shape shape) { return gn_data(g, d, shape, zeros); }

static gn_tensor golden_elementwise(gn_ctx *g) {
    return gn_mul(gn_gelu(gn_add(leaf(g, GN_F32, GN_SHAPE(64, 256)), leaf(g, GN_F32, GN_SHAPE(256)))),
                  gn_scalar(g, GN_F32, 2));
}
static gn_tensor golden_strided_cast(gn_ctx *g) {
    return gn_cast(gn_slice(gn_transpose(leaf(g, GN_BF16, GN_SHAPE(64, 96)), 0, 1), 1, 0, 64, 2), GN_I32);
}
static gn_tensor golden_sum_of_rows(gn_ctx *g) {
    return gn_sum(leaf(g, GN_F32, GN_SHAPE(64, 4096)), GN_AXES(1), false);
}
static gn_tensor golden_argmax(gn_ctx *g) { return gn_argmax(leaf(g, GN_BF16, GN_SHAPE(4, 1000)), GN_AXES(1), false); }
static gn_tensor golden_softmax(gn_ctx *g) { return gn_softmax(leaf(g, GN_BF16, GN_SHAPE(64, 1024)), 1); }
static gn_tensor golden_layernorm(gn_ctx *g) {
    return gn_layernorm(leaf(g, GN_F32, GN_SHAPE(64, 768)), leaf(g, GN_F32, GN_SHAPE(768)),
                        leaf(g, GN_F32, GN_SHAPE(768)), 1e-5);
}
static gn_tensor golden_rmsnorm(gn_ctx *g) {
    return gn_rmsnorm(leaf(g, GN_F32, GN_SHAPE(64, 768)), leaf(g, GN_F32, GN_SHAPE(768)), 1e-5);
}
static gn_tensor golden_root_of_a_mean(gn_ctx *g) {
    return gn_sqrt(gn_mean(gn_square(gn_sub(leaf(g, GN_F32, GN_SHAPE(64, 768)), leaf(g, GN_F32, GN_SHAPE(768)))),
                           GN_AXES(1), false));
}
static gn_tensor golden_product(gn_ctx *g) {
    return gn_linear(leaf(g, GN_F32, GN_SHAPE(33, 16)), leaf(g, GN_F32, GN_SHAPE(16, 40)),
                     leaf(g, GN_F32, GN_SHAPE(40)));
}
static gn_tensor golden_fed_product(gn_ctx *g) {
    return gn_relu(gn_linear(leaf(g, GN_F32, GN_SHAPE(64, 784)), leaf(g, GN_F32, GN_SHAPE(784, 256)),
                             leaf(g, GN_F32, GN_SHAPE(256))));
}
static gn_tensor golden_attention(gn_ctx *g) {
    gn_attention_desc d = { .causal = true };
    gn_tensor q = leaf(g, GN_F32, GN_SHAPE(1, 4, 20, 24)), k = leaf(g, GN_F32, GN_SHAPE(1, 2, 20, 24));
    return gn_attention(q, k, k, &d);
}
static gn_tensor golden_embedding(gn_ctx *g) {
    return gn_embedding(leaf(g, GN_BF16, GN_SHAPE(100, 64)), leaf(g, GN_I64, GN_SHAPE(5)));
}

static gn_tensor golden_warpgroup_product(gn_ctx *g) {
    gn_tensor x = leaf(g, GN_BF16, GN_SHAPE(64, 1024)), w = leaf(g, GN_BF16, GN_SHAPE(1024, 512));
    return gn_add(gn_gelu(gn_linear(x, w, leaf(g, GN_BF16, GN_SHAPE(512)))), leaf(g, GN_BF16, GN_SHAPE(64, 512)));
}
/* A classifier's head: rows of 20 bytes. */
static gn_tensor golden_tensor_product(gn_ctx *g) {
    return gn_linear(leaf(g, GN_BF16, GN_SHAPE(64, 256)), leaf(g, GN_BF16, GN_SHAPE(256, 10)),
                     leaf(g, GN_BF16, GN_SHAPE(10)));
}
/* Rows of 2004 bytes are copied to rows of 2016 first. */
static gn_tensor golden_aligned_product(gn_ctx *g) {
    return gn_matmul(leaf(g, GN_BF16, GN_SHAPE(1000, 1002)), leaf(g, GN_BF16, GN_SHAPE(1002, 1000)));
}
static gn_tensor golden_warpgroup_attention(gn_ctx *g) {
    gn_attention_desc d = { .causal = true };
    gn_tensor q = leaf(g, GN_BF16, GN_SHAPE(1, 4, 128, 64)), k = leaf(g, GN_BF16, GN_SHAPE(1, 2, 128, 64));
    return gn_attention(q, k, k, &d);
}

static gn_tensor golden_many_attentions(gn_ctx *g) {
    gn_attention_desc d = { .causal = true };
    gn_tensor q = leaf(g, GN_BF16, GN_SHAPE(1, 270, 200, 64)), k = leaf(g, GN_BF16, GN_SHAPE(1, 270, 200, 64));
    return gn_attention(q, k, k, &d);
}

/* Heads that share keys in pairs, and a mask of each batch. */
static gn_tensor golden_written_attention(gn_ctx *g) {
    gn_tensor q = leaf(g, GN_BF16, GN_SHAPE(2, 2, 2, 128, 64)), k = leaf(g, GN_BF16, GN_SHAPE(2, 2, 1, 128, 64));
    gn_tensor s =
        gn_add(gn_mul_c(gn_matmul(q, gn_transpose(k, 3, 4)), 0.125), leaf(g, GN_BF16, GN_SHAPE(2, 1, 1, 1, 128)));
    return gn_matmul(gn_softmax(s, -1), k);
}

static gn_tensor golden_row_product(gn_ctx *g) {
    gn_tensor w = leaf(g, GN_BF16, GN_SHAPE(256)), x = gn_layernorm(leaf(g, GN_BF16, GN_SHAPE(1, 256)), w, w, 1e-5);
    return gn_argmax(gn_linear(gn_gelu(
                                   gn_linear(x, leaf(g, GN_BF16, GN_SHAPE(256, 512)), leaf(g, GN_BF16, GN_SHAPE(512)))),
                               gn_transpose(leaf(g, GN_BF16, GN_SHAPE(600, 512)), 0, 1), GN_NONE),
                     GN_AXES(1), false);
}
/* Three rows: the norm runs in the first product's kernel, the gate in the second's; B lies both ways. */
static gn_tensor golden_few_rows(gn_ctx *g) {
    gn_tensor w = leaf(g, GN_BF16, GN_SHAPE(256)), x = gn_layernorm(leaf(g, GN_BF16, GN_SHAPE(3, 256)), w, w, 1e-5),
              up = gn_linear(x, leaf(g, GN_BF16, GN_SHAPE(256, 512)), leaf(g, GN_BF16, GN_SHAPE(512))),
              gate = gn_matmul(x, leaf(g, GN_BF16, GN_SHAPE(256, 512)));
    return gn_add(leaf(g, GN_BF16, GN_SHAPE(3, 256)),
                  gn_matmul(gn_mul(gn_silu(gate), up), gn_transpose(leaf(g, GN_BF16, GN_SHAPE(256, 512)), 0, 1)));
}
/* The keys are as many as `length` says, or as a step of decoding has. */
static gn_tensor one_query(gn_ctx *g, int64_t keys, const gn_tensor *length) {
    gn_tensor cache = gn_state(g, GN_BF16, GN_SHAPE(1, 2, keys, 64), NULL, "cache"),
              row = leaf(g, GN_BF16, GN_SHAPE(1, 2, 1, 64)), pos = gn_scalar(g, GN_I32, 8);
    gn_attention_desc d = { .causal = true, .length = length ? *length : gn_add_c(pos, 1) };
    gn_tensor k = gn_kv_append(cache, row, pos),
              v = gn_kv_append(gn_state(g, GN_BF16, GN_SHAPE(1, 2, keys, 64), NULL, "values"), row, pos);
    return gn_attention(leaf(g, GN_BF16, GN_SHAPE(1, 4, 1, 64)), k, v, &d);
}
static gn_tensor golden_one_query(gn_ctx *g) { return one_query(g, 512, NULL); }

static gn_tensor golden_attention_options(gn_ctx *g) {
    gn_attention_desc d = { .causal = true,
                            .window = 100,
                            .soft_cap = 50,
                            .length = gn_scalar(g, GN_I32, 120),
                            .slopes = leaf(g, GN_F32, GN_SHAPE(4)),
                            .sinks = leaf(g, GN_BF16, GN_SHAPE(4)) };
    gn_tensor q = leaf(g, GN_BF16, GN_SHAPE(1, 4, 128, 64)), k = leaf(g, GN_BF16, GN_SHAPE(1, 2, 128, 64));
    return gn_attention(q, k, k, &d);
}

static const struct {
    const char *name;
    gn_tensor (*build)(gn_ctx *g);
} goldens[] = {
    { "elementwise", golden_elementwise },
    { "strided_cast", golden_strided_cast },
    { "sum_of_rows", golden_sum_of_rows },
    { "argmax", golden_argmax },
    { "softmax", golden_softmax },
    { "layernorm", golden_layernorm },
    { "rmsnorm", golden_rmsnorm },
    { "root_of_a_mean", golden_root_of_a_mean },
    { "product", golden_product },
    { "fed_product", golden_fed_product },
    { "attention", golden_attention },
    { "embedding", golden_embedding },
    { "warpgroup_product", golden_warpgroup_product },
    { "tensor_product", golden_tensor_product },
    { "aligned_product", golden_aligned_product },
    { "warpgroup_attention", golden_warpgroup_attention },
    { "many_attentions", golden_many_attentions },
    { "written_attention", golden_written_attention },
    { "row_product", golden_row_product },
    { "few_rows", golden_few_rows },
    { "one_query", golden_one_query },
    { "attention_options", golden_attention_options },
};

static char *read_file(const char *path, size_t *out_n) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    *out_n = 0;
    if (!f) return NULL;
    for (size_t got = 1; got;) {
        text = realloc(text, *out_n + 65537);
        got = text ? fread(text + *out_n, 1, 65536, f) : 0;
        *out_n += got;
    }
    fclose(f);
    if (text) text[*out_n] = 0;
    return text;
}

/* Names end in a hash of text, compiler and generator: _ and twelve digits. Without it a text changes only with the
   kernel. */
static void drop_hashes(char *s) {
    char *to = s;
    while (*s) {
        size_t digits = *s == '_' ? strspn(s + 1, "0123456789abcdef") : 0;
        s += digits == 12 ? 13 : 0;
        *to++ = *s;
        s += *s ? 1 : 0;
    }
    *to = 0;
}

/* All files of a folder, by name, in one text; they are removed. */
static char *take_dump(const char *folder) {
    struct dirent **files;
    int n = scandir(folder, &files, NULL, alphasort);
    char *all = calloc(1, 1);
    for (int i = 0; i < n; i++) {
        char path[400];
        size_t bytes = 0;
        snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name);
        char *text = files[i]->d_name[0] == '.' ? NULL : read_file(path, &bytes);
        all = text ? realloc(all, strlen(all) + bytes + 1) : all;
        if (text) {
            memcpy(all + strlen(all), text, bytes + 1);
            remove(path);
        }
        free(text);
        free(files[i]);
    }
    free(n >= 0 ? files : NULL);
    drop_hashes(all);
    return all;
}

static void check_golden(const char *name, const char *text) {
    char path[200];
    size_t n;
    snprintf(path, sizeof path, "tests/golden/kernels/%s.cu", name);
    if (getenv("GENIE_WRITE_GOLDEN")) {
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(text, 1, strlen(text), f) == strlen(text));
        CHECK(f && fclose(f) == 0);
        return;
    }
    char *want = read_file(path, &n);
    if (!want) {
        test_fail(__FILE__, __LINE__, "%s is missing; GENIE_WRITE_GOLDEN=1 writes it", path);
    } else if (strcmp(want, text) != 0) {
        test_fail(__FILE__, __LINE__, "%s has changed; GENIE_WRITE_GOLDEN=1 writes it anew. Generated now:\n%s", path,
                  text);
    }
    free(want);
}

/* A device that writes its kernels into a folder; `said`: where the program was told to write them. */
typedef struct dump {
    char folder[32];
    const char *said;
    gn_ctx *g;
} dump;

static bool dump_open(dump *d) {
    snprintf(d->folder, sizeof d->folder, "/tmp/genie-kernels-XXXXXX");
    d->said = getenv("GENIE_DUMP_KERNELS");
    if (!CHECK(mkdtemp(d->folder) != NULL)) return false;
    d->g = gn_open(&(gn_desc){ .devices = "cuda:0" });
    return CHECK_RESULT(gn_status(d->g), GN_OK);
}

static void dump_close(dump *d) {
    gn_close(d->g);
    rmdir(d->folder);
    if (d->said) setenv("GENIE_DUMP_KERNELS", d->said, 1);
    else unsetenv("GENIE_DUMP_KERNELS");
}

/* What the device generates for t that it has not generated before. */
static char *generated(const dump *d, gn_tensor t) {
    char nothing;
    gn_info info;
    setenv("GENIE_DUMP_KERNELS", d->folder, 1);
    CHECK_RESULT(gn_describe(t, &info), GN_OK);
    gn_realize(&t, 1);
    gn_read(t, &nothing, 0);
    gn_step(d->g);
    return take_dump(d->folder);
}

/* Before the suite: the device writes only kernels that it has not made before. */
static void kernel_texts_match_golden(void) {
    dump d;
    REQUIRE(dump_open(&d));
    for (int i = 0; i < TEST_COUNT(goldens); i++) {
        char *text = generated(&d, goldens[i].build(d.g));
        CHECK(strlen(text) > 100);
        check_golden(goldens[i].name, text);
        free(text);
    }
    dump_close(&d);
}

/* ---- tensors that 31 bits cannot count: nothing of them is ever made here, so one element stands for all data ---- */

static gn_tensor much(gn_ctx *g, gn_dtype d, gn_shape shape) { return gn_data(g, d, shape, zeros); }
static gn_tensor many_in_a_loop(gn_ctx *g, int64_t n) {
    return gn_add(much(g, GN_U8, GN_SHAPE(n, 8)), much(g, GN_U8, GN_SHAPE(8)));
}
static gn_tensor few_far_apart(gn_ctx *g, int64_t n) {
    return gn_neg(gn_slice(much(g, GN_F32, GN_SHAPE(n, 8)), 0, 0, GN_END, n / 64));
}
static gn_tensor many_to_few(gn_ctx *g, int64_t n) {
    return gn_add(gn_broadcast(much(g, GN_F32, GN_SHAPE(1)), GN_SHAPE(n, 3)), much(g, GN_F32, GN_SHAPE(3)));
}
static gn_tensor many_copied(gn_ctx *g, int64_t n) {
    return gn_concat((gn_tensor[2]){ much(g, GN_I16, GN_SHAPE(n, 5)), much(g, GN_I16, GN_SHAPE(n, 5)) }, 2, 1);
}
static gn_tensor many_in_a_sum(gn_ctx *g, int64_t n) {
    return gn_sum(much(g, GN_F32, GN_SHAPE(n, 9)), GN_AXES(1), false);
}
static gn_tensor many_in_one_sum(gn_ctx *g, int64_t n) {
    return gn_sum(much(g, GN_U8, GN_SHAPE(n, 10)), GN_ALL_AXES, false);
}
static gn_tensor many_in_an_argmax(gn_ctx *g, int64_t n) {
    return gn_argmax(much(g, GN_U8, GN_SHAPE(n * 8)), GN_AXES(0), false);
}
static gn_tensor many_in_a_softmax(gn_ctx *g, int64_t n) { return gn_softmax(much(g, GN_F16, GN_SHAPE(1, n * 8)), 1); }
static gn_tensor many_in_a_layernorm(gn_ctx *g, int64_t n) {
    return gn_layernorm(much(g, GN_F16, GN_SHAPE(2, n * 8)), GN_NONE, GN_NONE, 1e-5);
}
static gn_tensor many_classes(gn_ctx *g, int64_t n) {
    return gn_cross_entropy(much(g, GN_F16, GN_SHAPE(2, n * 8)), much(g, GN_I64, GN_SHAPE(2)));
}
static gn_tensor many_in_an_embedding(gn_ctx *g, int64_t n) {
    return gn_embedding(much(g, GN_U8, GN_SHAPE(2, n * 8)), much(g, GN_I64, GN_SHAPE(3)));
}
static gn_tensor many_gathered(gn_ctx *g, int64_t n) {
    return gn_gather(much(g, GN_U8, GN_SHAPE(n, 8)), 0, gn_broadcast(much(g, GN_I32, GN_SHAPE(n, 1)), GN_SHAPE(n, 8)));
}
static gn_tensor many_one_hot(gn_ctx *g, int64_t n) { return gn_one_hot(much(g, GN_I32, GN_SHAPE(8)), n, GN_U8); }
static gn_tensor many_sorted(gn_ctx *g, int64_t n) { return gn_argsort(much(g, GN_U8, GN_SHAPE(n * 8)), 0, true); }
static gn_tensor many_after_a_product(gn_ctx *g, int64_t n) {
    return gn_mul(gn_matmul(much(g, GN_F32, GN_SHAPE(n, 8)), much(g, GN_F32, GN_SHAPE(8, 12))),
                  much(g, GN_F32, GN_SHAPE(n, 12)));
}
static gn_tensor many_keys(gn_ctx *g, int64_t n) {
    gn_tensor keys = much(g, GN_BF16, GN_SHAPE(64, 8, n / 64, 128));
    return gn_attention(much(g, GN_BF16, GN_SHAPE(64, 8, 1, 128)), keys, keys, NULL);
}

/* What the text of a kernel says where all fits into 31 bits, and what where it does not; n: of the second, 1024 of the
   first. */
static const struct {
    const char *name;
    gn_tensor (*build)(gn_ctx *g, int64_t n);
    int64_t n;
    const char *narrow, *wide;
} sizes[] = {
    { "loop", many_in_a_loop, 1 << 28, "typedef u32 I;", "typedef u64 I;" },
    { "far apart", few_far_apart, 1 << 28, "typedef u32 I;", "typedef u64 I;" },
    { "broadcast", many_to_few, 1 << 30, "typedef u32 I;", "typedef u64 I;" },
    { "copy", many_copied, 1 << 27, "typedef u32 I;", "typedef u64 I;" },
    { "sum", many_in_a_sum, 1 << 28, "typedef int I;", "typedef i64 I;" },
    { "one sum", many_in_one_sum, 1 << 28, "typedef int I;", "typedef i64 I;" },
    { "argmax", many_in_an_argmax, 1 << 28, "typedef int I;", "typedef i64 I;" },
    { "softmax", many_in_a_softmax, 1 << 28, "typedef int J;", "typedef i64 J;" },
    { "layernorm", many_in_a_layernorm, 1 << 28, "typedef int J;", "typedef i64 I;" },
    { "cross entropy", many_classes, 1 << 28, "typedef int J;", "typedef i64 J;" },
    { "embedding", many_in_an_embedding, 1 << 28, "typedef u32 I;", "typedef u64 I;" },
    { "gather", many_gathered, 1 << 28, "(u32)(i)", "(u64)(i)" },
    { "one hot", many_one_hot, 1 << 28, "(u32)(i / DEPTH)", "(u64)(i / DEPTH)" },
    { "argsort", many_sorted, 1 << 28, "typedef int F;", "typedef i64 F;" },
    { "product", many_after_a_product, 1 << 27, "(u32)(i)", "(u64)(i)" },
    { "attention", many_keys, 1 << 28, "SMALL = 1", "SMALL = 0" },
};

/* A cache is read before the kernels before have ended when no kernel writes what says how much of it there is. */
static void one_query_reads_early_what_the_step_is_told(void) {
    dump d;
    REQUIRE(dump_open(&d));
    for (int computed = 0; computed < 3; computed++) {
        gn_tensor length = computed == 1
                               ? gn_sum(leaf(d.g, GN_I32, GN_SHAPE(4)), GN_ALL_AXES, false)
                               : gn_add_c(gn_reshape(gn_state(d.g, GN_I32, GN_SHAPE(1), NULL, "length"), GN_SCALAR), 1);
        char *text = generated(&d, one_query(d.g, 1024, computed ? &length : NULL));
        if (!strstr(text, computed ? "EARLY = 0" : "EARLY = 1"))
            test_fail(__FILE__, __LINE__, "length %d: not EARLY = %d:\n%s", computed, !computed, text);
        free(text);
    }
    dump_close(&d);
}

static void kernels_of_large_tensors_count_in_64_bits(void) {
    dump d;
    if (TEST_SANITIZED && !TEST_SANITIZED_THREADS) {
        test_skip("one element stands for all data, which the address sanitizer would tell");
        return;
    }
    REQUIRE(dump_open(&d));
    for (int i = 0; i < TEST_COUNT(sizes); i++) {
        for (int large = 0; large < 2; large++) {
            char *text = generated(&d, sizes[i].build(d.g, large ? sizes[i].n : 1024));
            if ((strstr(text, sizes[i].narrow) != NULL) == large || (strstr(text, sizes[i].wide) != NULL) != large)
                test_fail(__FILE__, __LINE__, "%s of %lld: not %s:\n%s", sizes[i].name,
                          (long long)(large ? sizes[i].n : 1024), large ? sizes[i].wide : sizes[i].narrow, text);
            free(text);
        }
    }
    dump_close(&d);
}

/* A single reduction of few long rows has enough blocks, whether the order of what it takes matters or not. */
static void few_long_rows_are_cut_into_parts(void) {
    dump d;
    REQUIRE(dump_open(&d));
    for (int i = 0; i < 3; i++) {
        gn_tensor x = leaf(d.g, GN_BF16, GN_SHAPE(9, 40001));
        char *text = generated(&d, i == 0   ? gn_sum(x, GN_AXES(1), false)
                                   : i == 1 ? gn_max(x, GN_AXES(1), false)
                                            : gn_argmax(x, GN_AXES(1), false));
        if (!strstr(text, "PARTS = 20ll")) test_fail(__FILE__, __LINE__, "reduction %d: not 20 parts:\n%s", i, text);
        free(text);
    }
    dump_close(&d);
}

/* A transposed convolution multiplies the taps that meet a place, and is fed as the others are. */
static void strided_transposed_convs_are_fed(void) {
    static const struct {
        int64_t side, kernel, stride;
        const char *holds;
    } cases[] = {
        { 28, 3, 2, "PHASES = 4," }, { 28, 1, 2, "FLAT = 1," }, { 9, 5, 3, "PHASES = 9," }, { 14, 3, 1, "PHASES = 1," }
    };
    dump d;
    REQUIRE(dump_open(&d));
    for (int i = 0; i < TEST_COUNT(cases); i++) {
        int64_t side = cases[i].side, k = cases[i].kernel, s = cases[i].stride;
        gn_conv_desc conv = { .transposed = true, .stride = { s, s }, .extra = { s - 1, s - 1 } };
        conv.before[0] = conv.before[1] = conv.after[0] = conv.after[1] = k / 2;
        char *text = generated(&d, gn_conv(leaf(d.g, GN_BF16, GN_SHAPE(32, 128, side, side)),
                                           leaf(d.g, GN_BF16, GN_SHAPE(128, 128, k, k)), GN_NONE, &conv));
        if (!strstr(text, "  conv_fed<") || !strstr(text, cases[i].holds))
            test_fail(__FILE__, __LINE__, "%lld taps, stride %lld: no conv_fed with %s\n%s", (long long)k, (long long)s,
                      cases[i].holds, text);
        free(text);
    }
    dump_close(&d);
}

/* Plans that are made, and not compiled: sides that lie backwards or repeat along k, which TMA cannot read, and one
 * that is transposed first and has more rows than 65535 blocks of 32. The memory of the latter is never touched. */
static void plans_of_unusual_products_are_made(void) {
    enum { N = 3072, K = 64, HIGH = 66000 * 32 };
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cuda:0" });
    void *high = mmap(NULL, (size_t)K * HIGH * 4, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(high != MAP_FAILED);
    for (int i = 0; i < 8; i++) {
        gn_dtype d = i & 4 ? GN_BF16 : GN_F32;
        gn_tensor a = leaf(g, d, GN_SHAPE(3, 96, 72)), b = leaf(g, d, GN_SHAPE(3, 72, 136)),
                  t = gn_matmul(a, gn_flip(b, GN_AXES(1)));
        if (i % 4 == 1) t = gn_matmul(a, gn_flip(b, GN_AXES(0)));
        if (i % 4 == 2) t = gn_matmul(a, gn_broadcast(gn_slice(b, 1, 1, 2, 1), GN_SHAPE(3, 72, 136)));
        if (i % 4 == 3) t = gn_matmul(gn_data(g, d, GN_SHAPE(HIGH, K), high), leaf(g, d, GN_SHAPE(K, N)));
        CHECK_RESULT(gn_realize(&t, 1), GN_OK);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
    gn_close(g);
    munmap(high, (size_t)K * HIGH * 4);
}

/* ---- what threads hold stays in registers ---- */

static gn_tensor unread(gn_ctx *g, gn_dtype d, gn_shape shape) { /* data that no one touches */
    static void *memory;
    if (!memory) memory = mmap(NULL, (size_t)1 << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? GN_NONE : gn_data(g, d, shape, memory);
}

static void make(gn_tensor t) { CHECK_RESULT(gn_realize(&t, 1), GN_OK); }

/* Rows and products of one row, as models have them. */
static void make_rows(gn_ctx *g, gn_dtype d, int64_t n) {
    gn_tensor x = unread(g, d, GN_SHAPE(512, n)), v = unread(g, d, GN_SHAPE(n));
    make(gn_softmax(x, 1));
    make(gn_softmax(gn_add(gn_mul_c(x, 0.125), v), 1));
    make(gn_log_softmax(gn_mul(x, v), 1));
    make(gn_layernorm(x, v, v, 1e-5));
    make(gn_rmsnorm(gn_add(x, v), v, 1e-5));
    make(gn_sum(gn_mul(x, x), GN_AXES(1), false));
    make(gn_sum(x, GN_AXES(0), false));
    CHECK_RESULT(gn_step(g), GN_OK);
}
/* A product, two whose columns meet, and one that ends with the best. */
static void make_quantised_products(gn_ctx *g, gn_tensor x, int64_t n, int64_t k) {
    static const gn_quant formats[] = { GN_QUANT_INT8, GN_QUANT_INT4, GN_QUANT_FP8_E4M3 };
    for (int f = 0; f < TEST_COUNT(formats); f++) {
        gn_quantized q[2];
        for (int i = 0; i < 2; i++) {
            q[i] = (gn_quantized){ .format = formats[f],
                                   .data = unread(g, GN_U8, GN_SHAPE(n, formats[f] == GN_QUANT_INT4 ? k / 2 : k)) };
            q[i].scales = unread(g, GN_F16, GN_SHAPE(n, k / 128));
        }
        make(gn_linear_quantized(x, q[0], GN_NONE));
        make(gn_mul(gn_silu(gn_linear_quantized(x, q[0], GN_NONE)), gn_linear_quantized(x, q[1], GN_NONE)));
        make(gn_argmax(gn_linear_quantized(x, q[0], GN_NONE), GN_AXES(1), false));
    }
}

static void make_products(gn_ctx *g, gn_dtype d, int64_t k) {
    static const int64_t widths[] = { 768, 50257 };
    for (int i = 0; i < TEST_COUNT(widths); i++) {
        gn_tensor x = unread(g, d, GN_SHAPE(1, k)), b = unread(g, d, GN_SHAPE(widths[i]));
        make(gn_linear(x, unread(g, d, GN_SHAPE(k, widths[i])), b));
        make(gn_matmul(x, gn_transpose(unread(g, d, GN_SHAPE(widths[i], k)), 0, 1)));
        make(gn_matmul(gn_rmsnorm(x, unread(g, d, GN_SHAPE(k)), 1e-5), unread(g, d, GN_SHAPE(k, widths[i]))));
        for (int across = 0; across < 2; across++) { /* two matrices whose columns meet */
            gn_tensor w[2];
            for (int q = 0; q < 2; q++)
                w[q] = across ? gn_transpose(unread(g, d, GN_SHAPE(widths[i], k)), 0, 1)
                              : unread(g, d, GN_SHAPE(k, widths[i]));
            make(gn_mul(gn_silu(gn_matmul(x, w[0])), gn_matmul(x, w[1])));
        }
        if (d == GN_BF16 && k > 4096) make_quantised_products(g, x, widths[i], k);
        CHECK_RESULT(gn_step(g), GN_OK);
    }
}

static const unsigned char *elf_section(const unsigned char *elf, size_t i) {
    uint64_t table;
    memcpy(&table, elf + 40, sizeof table);
    return elf + table + i * 64;
}
static uint64_t elf_number(const unsigned char *p, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

/* Functions of compiled code that have a frame in memory: their number; *of: how many have an entry at all. */
static int frames_in(const unsigned char *elf, int *of) {
    int found = 0;
    for (size_t i = 0; i < elf_number(elf + 60, 2); i++) {
        const unsigned char *s = elf_section(elf, i), *names = elf_section(elf, (size_t)elf_number(elf + 62, 2));
        const char *name = (const char *)elf + elf_number(names + 24, 8) + elf_number(s, 4);
        const unsigned char *at = elf + elf_number(s + 24, 8), *end = at + elf_number(s + 32, 8);
        if (strcmp(name, ".nv.info") != 0) continue;
        while (at < end) { /* format, attribute, and a value or the length of what follows */
            bool sized = at[0] == 4;
            if (sized && at[1] == 0x11) { /* a symbol and the bytes of its frame */
                ++*of;
                found += elf_number(at + 8, 4) != 0;
            }
            at += 4 + (sized ? elf_number(at + 2, 2) : 0);
        }
    }
    return found;
}

/* The same of a program in the cache, whose head ends with the bytes of its code. Tells the program's kernels. */
static int frames_of(const char *path, int *of) {
    FILE *f = fopen(path, "rb");
    static unsigned char all[8 << 20];
    size_t n = f ? fread(all, 1, sizeof all, f) : 0, bytes = n < 24 ? 0 : (size_t)elf_number(all + 16, 8);
    if (f) fclose(f);
    if (!CHECK(n < sizeof all && bytes > 64 && bytes < n && memcmp(all + n - bytes, "\177ELF", 4) == 0)) return 0;
    int found = frames_in(all + n - bytes, of);
    if (found) test_fail(__FILE__, __LINE__, "%d kernels of %s hold numbers in memory", found, path);
    return found;
}

static void sums_of_rows_and_products_stay_in_registers(void) {
    static const gn_dtype dtypes[] = { GN_F32, GN_BF16 };
    static const int64_t lengths[] = { 3072, 8192 };
    char folder[] = "/tmp/genie_kernels_XXXXXX", path[400], why[2000];
    size_t failed = 0;
    int of = 0;
    if (TEST_SANITIZED || getenv("GENIE_CACHE")) {
        test_skip(TEST_SANITIZED ? "the compiler of kernels is not sanitized" : "GENIE_CACHE is in use");
        return;
    }
    REQUIRE(mkdtemp(folder) != NULL);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cuda:0" });
    for (int d = 0; d < TEST_COUNT(dtypes); d++) {
        for (int i = 0; i < TEST_COUNT(lengths); i++) {
            make_rows(g, dtypes[d], lengths[i]);
            make_products(g, dtypes[d], lengths[i]);
        }
    }
    gn_close(g);
    setenv("GENIE_CACHE", folder, 1);
    size_t n = gn_cuda_compile_collected("sm_90a", false, &failed, why, sizeof why);
    unsetenv("GENIE_CACHE");
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strstr(e->d_name, ".cubin")) (void)frames_of(path, &of);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(folder);
    if (failed == n && strstr(why, "NVRTC")) test_skip(why);
    else CHECK(!failed && of >= 40);
}

/* ---- compiling ---- */

static void compile_for(const char *arch, bool one_of_each) {
    static char why[8000];
    char name[96];
    size_t failed = 0;
    snprintf(name, sizeof name, "%s_kernels_compile_for_%s", one_of_each ? "one_of_each_kind_of" : "all", arch);
    if (!test_open(name)) return;
    alarm(0);
    if (TEST_SANITIZED) {
        test_skip("NVRTC is not instrumented");
        test_close();
        return;
    }
    if (getenv("KERNELS_EVERY")) setenv("GENIE_CUDA_SAMPLE", getenv("KERNELS_EVERY"), 1);
    double from = (double)clock() / CLOCKS_PER_SEC;
    size_t n = gn_cuda_compile_collected(arch, one_of_each, &failed, why, sizeof why);
    printf("%s: %zu kernels, %.1f s of CPU\n", arch, n, (double)clock() / CLOCKS_PER_SEC - from);
    if (failed == n && strstr(why, "NVRTC")) test_skip(why);
    else if (failed || n == 0)
        test_fail(__FILE__, __LINE__, "%zu of %zu kernels do not compile; the first: %s", failed, n, why);
    test_close();
}

static void generate_all(void) {
    for (int i = 0; i < gn_op_count(); i++) {
        gn_op_info row;
        if (gn_get_op(i, &row) == GN_OK) test_row(&row, ON_NAMED);
    }
    for (int k = 0; k < TEST_COUNT(composites); k++) {
        gn_op_info row = { .name = composites[k].name,
                           .kind = GN_CLASS_STRUCTURED,
                           .dtypes = composites[k].dtypes,
                           .tolerance = composites[k].tolerance };
        test_row(&row, ON_NAMED);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = { TEST_ENTRY(kernel_texts_match_golden),
                                        TEST_ENTRY(one_query_reads_early_what_the_step_is_told),
                                        TEST_ENTRY(kernels_of_large_tensors_count_in_64_bits),
                                        TEST_ENTRY(few_long_rows_are_cut_into_parts),
                                        TEST_ENTRY(strided_transposed_convs_are_fed),
                                        TEST_ENTRY(plans_of_unusual_products_are_made),
                                        TEST_ENTRY(sums_of_rows_and_products_stay_in_registers) };
    const char *arch = getenv("KERNELS_ARCH") ? getenv("KERNELS_ARCH") : "sm_90a", *named = getenv("KERNELS_ARCHS"),
               *others = named;
    bool one_of_each = TEST_SANITIZED || getenv("GENIE_CUDA_ONE_OF_EACH") != NULL;
    char list[200];
    if (!others) others = getenv("KERNELS_ARCH") || one_of_each ? "" : "sm_75 sm_80 sm_86 sm_89 sm_100 sm_120";
    snprintf(list, sizeof list, "%s", others);
    test_begin(argc, argv);
    setenv("GENIE_CUDA_COMPILE_ONLY", named ? "sm_60" : arch, 1);
    setenv("GENIE_TEST_DEVICES", "cuda:0", 1);
    if (!named && !getenv("KERNELS_ARCH")) test_all(tests, TEST_COUNT(tests));
    open_devices();
    generate_all();
    if (!named) compile_for(arch, one_of_each);
    for (char *save = NULL, *other = strtok_r(list, " ", &save); other; other = strtok_r(NULL, " ", &save))
        compile_for(other, true);
    for (int on = 0; on < DEVICES; on++) gn_close(contexts[on]);
    loopback_close();
    return test_end();
}
