/* Pictures and picture classifiers under examples/formats: logits equal to those that torchvision and timm give for the
 * same weights (tests/golden/vision.txt, written by tests/vision_golden.py), what is recognised, and files that are
 * cut, extreme or wrong.
 *
 * Tier: slow address */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "genie.h"

#include "test.h"
#include <sys/stat.h>
#define PICTURE_IMPLEMENTATION
#include "../examples/formats/picture.h"
#define VISION_MODEL_IMPLEMENTATION
#include "../examples/formats/vision_model.h"

enum { SIZE = 64, CLASSES = 10, WIDTH = 100, HEIGHT = 77 };
static char folder[64];

/* ---- pictures ---- */

static bool read_text(picture *p, const char *text, size_t size, char error[PICTURE_ERROR]) {
    return picture_read(p, text, size, "test", error);
}

/* The text is refused, and the error says `why`. */
static void refused(const char *text, size_t size, const char *why) {
    picture p;
    char error[PICTURE_ERROR] = "";
    bool read = read_text(&p, text, size, error);
    CHECK(!read && !p.rgb);
    if (!strstr(error, why)) test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", error, why);
    if (read) picture_close(&p);
}
#define REFUSED(text, why) refused(text, sizeof(text) - 1, why)

TEST(picture_of_ppm_and_pgm_is_read_pixel_by_pixel) {
    static const char colour[] = "P6 # two pixels\n2\t1 # wide\n255\nabcdef", grey[] = "P5\n1 2\n15\n\x00\x0f";
    static const uint8_t want[6] = { 0, 0, 0, 255, 255, 255 };
    picture p;
    char error[PICTURE_ERROR];
    REQUIRE(read_text(&p, colour, sizeof colour - 1, error));
    CHECK(p.width == 2 && p.height == 1 && !memcmp(p.rgb, "abcdef", 6));
    picture_close(&p);
    REQUIRE(read_text(&p, grey, sizeof grey - 1, error));
    CHECK(p.width == 1 && p.height == 2 && !memcmp(p.rgb, want, 6));
    picture_close(&p);
}

TEST(picture_cut_at_any_byte_or_longer_is_refused) {
    static const char text[] = "P6 #c\n2 2\n200\n0123456789ab";
    picture p;
    char error[PICTURE_ERROR];
    for (size_t n = 0; n < sizeof text - 1; n++) {
        uint8_t *exact = malloc(n + 1); /* so that a sanitizer sees a byte read past the end */
        REQUIRE(exact != NULL);
        memcpy(exact, text, n);
        error[0] = 0;
        uint8_t *only = realloc(exact, n ? n : 1);
        CHECK(!picture_read(&p, only, n, "test", error) && error[0] && !p.rgb);
        free(only);
    }
    refused(text, sizeof text, "12 bytes, and 13 follow");
    REQUIRE(read_text(&p, text, sizeof text - 1, error));
    picture_close(&p);
}

TEST(picture_of_extreme_or_wrong_header_is_refused_by_what_is_wrong) {
    REFUSED("P6 99999999999999999999 1 255\n", "its width is more than");
    REFUSED("P6 67108864 67108864 255\n", "pixels; 1 to 67108864 are read");
    REFUSED("P6 0 4 255\n", "0 x 4 pixels");
    REFUSED("P5 67108864 1 255\nx", "take 67108864 bytes, and 1 follow");
    REFUSED("P6 1 1 65535\nabcdef", "largest sample is 65535");
    REFUSED("P6 1 1 0\nabc", "largest sample is 0");
    REFUSED("P5 1 1 7\n\x08", "a sample of 8");
    REFUSED("P6 -1 1 255\nabc", "no width");
    REFUSED("P61 1 255\nabc", "no width");
    REFUSED("P6 1 1 255abc", "one blank");
    REFUSED("P3 1 1 255 1 2 3", "not a picture that is read");
    REFUSED("", "not a picture that is read");
}

TEST(picture_of_png_is_read_by_libpng_or_its_absence_is_told) {
    static const uint8_t png[] = { 0x89, 'P',  'N',  'G',  '\r', '\n', 0x1a, '\n', 0,   0,    0,    13,   'I',  'H',
                                   'D',  'R',  0,    0,    0,    1,    0,    0,    0,   1,    8,    2,    0,    0,
                                   0,    0x90, 0x77, 0x53, 0xde, 0,    0,    0,    12,  'I',  'D',  'A',  'T',  0x08,
                                   0xd7, 0x63, 0xf8, 0xcf, 0xc0, 0,    0,    3,    1,   1,    0,    0x18, 0xdd, 0x8d,
                                   0xb0, 0,    0,    0,    0,    'I',  'E',  'N',  'D', 0xae, 0x42, 0x60, 0x82 };
    picture p;
    char error[PICTURE_ERROR];
    bool read = picture_read(&p, png, sizeof png, "red.png", error);
    if (!read && strstr(error, "install libpng16")) return test_skip("no libpng16 here");
    REQUIRE(read);
    CHECK(p.width == 1 && p.height == 1 && p.rgb[0] == 255 && p.rgb[1] == 0 && p.rgb[2] == 0);
    picture_close(&p);
    for (size_t n = 8; n + 16 < sizeof png; n++) CHECK(!picture_read(&p, png, n, "cut.png", error) && error[0]);
}

/* ---- models ---- */

static vision_model *invent(const char *arch, vision_naming names) {
    char error[VISION_ERROR];
    vision_model *m = vision_random(arch, names, CLASSES, SIZE, 7, error);
    if (!m) test_fail(__FILE__, __LINE__, "%s: %s", arch, error);
    return m;
}

/* The picture of tests/vision_golden.py. */
static void draw(uint8_t *rgb) {
    for (int64_t i = 0; i < WIDTH * HEIGHT * 3; i++) rgb[i] = (uint8_t)((i * i * 7 + i * 13 + i / 11) % 256);
}

/* Logits of a batch of the picture on this CPU. */
static bool classify(vision_model *m, int batch, float *logits) {
    static uint8_t rgb[WIDTH * HEIGHT * 3];
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    draw(rgb);
    vision_bind(m, g);
    gn_tensor x = vision_prepare(m, gn_data(g, GN_U8, GN_SHAPE(HEIGHT, WIDTH, 3), rgb)), all[2] = { x, x };
    if (batch == 2) x = gn_concat(all, 2, 0);
    gn_result r = gn_read(vision_forward(m, x), logits, (size_t)(batch * CLASSES) * sizeof *logits);
    if (r != GN_OK) test_fail(__FILE__, __LINE__, "%s", gn_last_error(g)->text);
    gn_close(g);
    return r == GN_OK;
}

static double largest(const float *x) {
    double most = 0;
    for (int i = 0; i < CLASSES; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* One line of the golden file. */
static void line_holds(char *line) {
    char *at = NULL, *arch = strtok_r(line, " ", &at), *names = strtok_r(NULL, " ", &at);
    float ours[CLASSES], theirs[CLASSES] = { 0 };
    REQUIRE(arch && names);
    for (int i = 0; i < CLASSES; i++) {
        const char *number = strtok_r(NULL, " \n", &at);
        REQUIRE(number != NULL);
        theirs[i] = strtof(number, NULL);
    }
    vision_model *m = invent(arch, strcmp(names, "timm") == 0 ? VISION_TIMM : VISION_TORCHVISION);
    if (m && classify(m, 1, ours))
        for (int i = 0; i < CLASSES; i++) CHECK_NEAR(ours[i], theirs[i], 2e-5 * largest(theirs));
    vision_close(m);
}

TEST(logits_are_those_of_torchvision_and_timm) {
    char line[1024];
    int n = 0;
    FILE *f = fopen("tests/golden/vision.txt", "r");
    REQUIRE(f != NULL);
    for (; fgets(line, sizeof line, f); n++) line_holds(line);
    fclose(f);
    CHECK_INT(n, 12);
}

TEST(norms_multiplied_into_weights_change_no_logit) {
    static const char *const archs[] = { "resnet18", "mobilenet_v3_small" };
    for (int i = 0; i < 2; i++) {
        float folded[CLASSES], apart[CLASSES];
        vision_model *m = invent(archs[i], VISION_TORCHVISION);
        REQUIRE(m != NULL);
        bool ok = classify(m, 1, folded);
        vision_fold(m, false);
        if (ok && classify(m, 1, apart))
            for (int k = 0; k < CLASSES; k++) CHECK_NEAR(folded[k], apart[k], 1e-5 * largest(apart));
        vision_close(m);
    }
}

TEST(batch_of_two_is_twice_one) {
    for (int i = 0; vision_arch(i); i++) {
        float one[CLASSES], two[2 * CLASSES];
        if (!strstr("resnet18 mobilenet_v3_small convnext_tiny", vision_arch(i))) continue;
        vision_model *m = invent(vision_arch(i), VISION_TORCHVISION);
        REQUIRE(m != NULL);
        if (classify(m, 1, one) && classify(m, 2, two))
            for (int k = 0; k < 2 * CLASSES; k++) CHECK_NEAR(two[k], one[k % CLASSES], 1e-5 * largest(one));
        vision_close(m);
    }
}

TEST(what_is_saved_is_recognised_and_gives_the_same_bits) {
    static const char *const archs[] = { "resnet18", "resnet50", "mobilenet_v3_large", "mobilenet_v3_small",
                                         "convnext_tiny" };
    for (int i = 0; i < 10; i++) {
        char error[VISION_ERROR];
        float before[CLASSES], after[CLASSES];
        vision_model *m = invent(archs[i / 2], (vision_naming)(i % 2));
        REQUIRE(m != NULL);
        CHECK(vision_save(m, folder, error) && classify(m, 1, before));
        vision_model *again = vision_open(folder, NULL, error);
        if (!CHECK(again != NULL)) puts(error);
        if (again && CHECK(vision_set_size(again, SIZE, 0, error)) && classify(again, 1, after)) {
            CHECK_STR(vision_describe(again), vision_describe(m));
            CHECK(!memcmp(before, after, sizeof before) && vision_parameters(again) == vision_parameters(m));
        }
        vision_close(again);
        again = vision_open(folder, "vit_b_16", error);
        CHECK(!again && strstr(error, "are not those of vit_b_16"));
        vision_close(again);
        vision_close(m);
    }
}

/* ---- files that are wrong ---- */

static safetensors_tensor tensors[256];
static size_t n_tensors;

static safetensors_tensor *tensor(const char *name) {
    for (size_t i = 0; i < n_tensors; i++)
        if (!strcmp(tensors[i].name, name)) return &tensors[i];
    return NULL;
}

/* The tensors of a model, to be changed and written. */
static void take(const vision_model *m) {
    n_tensors = m->n;
    for (size_t i = 0; i < m->n; i++) {
        const vision__param *p = &m->params[i];
        tensors[i] = (safetensors_tensor){ .name = p->name,
                                           .dims = p->shape.dims,
                                           .data = (const uint8_t *)p->host,
                                           .bytes = (uint64_t)vision__count(p->shape) * 4,
                                           .rank = (uint8_t)p->shape.rank,
                                           .dtype = SAFETENSORS_F32 };
    }
}

/* What is written is refused, with these words. */
static void refused_model(const char *arch, const char *why) {
    char path[128], error[VISION_ERROR] = "";
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    REQUIRE(safetensors_write(path, tensors, n_tensors, NULL, error));
    vision_model *m = vision_open(path, arch, error);
    CHECK(!m);
    if (!strstr(error, why)) test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", error, why);
    vision_close(m);
}

TEST(model_with_a_wrong_tensor_is_refused_by_name_and_both_shapes) {
    static const int64_t dims[4] = { 64, 64, 5, 5 };
    static const float zeros[64 * 64 * 25];
    vision_model *m = invent("resnet18", VISION_TORCHVISION);
    REQUIRE(m != NULL);
    take(m);
    safetensors_tensor *t = tensor("layer1.1.conv2.weight"), kept = *t;
    *t = (safetensors_tensor){ kept.name, dims, (const uint8_t *)zeros, sizeof zeros, 0, SAFETENSORS_F32, 4 };
    refused_model(NULL, "tensor layer1.1.conv2.weight is (64,64,5,5), and ResNet, 18 layers has (64,64,3,3)");
    *t = kept;
    t->name = "layer1.1.conv2.wait";
    refused_model(NULL, "no tensor layer1.1.conv2.weight (64,64,3,3), which ResNet, 18 layers has");
    *t = kept;
    t->dtype = SAFETENSORS_I32;
    refused_model(NULL, "layer1.1.conv2.weight is I32; F32, F16 and BF16 are read");
    *t = kept;
    tensors[n_tensors] = tensors[0];
    tensors[n_tensors++].name = "aux.weight";
    refused_model(NULL, "tensor aux.weight is no part of ResNet, 18 layers");
    n_tensors--;
    refused_model("resnet50", "tensor layer1.0.conv1.weight is (64,64,3,3), and ResNet, 50 layers has (64,64,1,1)");
    refused_model("convnext_tiny", "tensors are not those of convnext_tiny");
    refused_model("alexnet", "no architecture 'alexnet'; there are: resnet18");
    n_tensors = 4;
    refused_model(NULL, "its 4 tensors are not those of ResNet, MobileNet v3, ConvNeXt or ViT");
    vision_close(m);
}

TEST(model_whose_sizes_contradict_each_other_is_refused) {
    static const int64_t positions[3] = { 1, 8, 768 }, none[4] = { 768, 3, 0, 0 };
    static const float zeros[8 * 768];
    vision_model *m = invent("vit_b_32", VISION_TORCHVISION);
    REQUIRE(m != NULL);
    take(m);
    safetensors_tensor *t = tensor("encoder.pos_embedding"), kept = *t;
    *t = (safetensors_tensor){ kept.name, positions, (const uint8_t *)zeros, sizeof zeros, 0, SAFETENSORS_F32, 3 };
    refused_model(NULL, "8 positions are not one and those of a square");
    *t = kept;
    t = tensor("conv_proj.weight");
    kept = *t;
    *t = (safetensors_tensor){ kept.name, none, NULL, 0, 0, SAFETENSORS_F32, 4 };
    refused_model(NULL, "are not those of");
    *t = kept;
    vision_close(m);
    m = invent("resnet18", VISION_TORCHVISION);
    REQUIRE(m != NULL);
    take(m);
    tensor("conv1.weight")->dims = (const int64_t[]){ 3, 64, 7, 7 };
    refused_model(NULL, "tensor conv1.weight is (3,64,7,7), and ResNet, 18 layers has (3,3,7,7)");
    vision_close(m);
}

static void write_config(const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0);
    if (f) fclose(f);
}

TEST(config_beside_the_file_says_how_pictures_are_prepared) {
    char error[VISION_ERROR], path[128];
    vision_model *m = invent("mobilenet_v3_small", VISION_TIMM);
    REQUIRE(m != NULL);
    CHECK(vision_save(m, folder, error));
    vision_close(m);
    write_config(
        "{\"architecture\":\"mobilenetv3_small_100\",\"pretrained_cfg\":{\"input_size\":[3,96,96],\"crop_pct\":"
        "0.75,\"interpolation\":\"bicubic\",\"mean\":[0.5,0.25,0.125],\"std\":[1,2,3]}}");
    m = vision_open(folder, NULL, error);
    if (CHECK(m != NULL)) {
        const vision_preparation *p = vision_get_preparation(m);
        CHECK(p->size == 96 && p->resize == 128 && p->cubic && p->mean[2] == 0.125 && p->std[1] == 2);
        CHECK(!vision_set_size(m, 0, 64, error) && strstr(error, "a side of 64 pixels is less than the 96"));
    }
    vision_close(m);
    write_config("{\"pretrained_cfg\":}");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (int i = 0; i < 2; i++) {
        m = vision_open(i ? path : folder, NULL, error);
        CHECK(!m && strstr(error, "config.json: byte 18"));
        vision_close(m);
    }
    static const char *const wrong[][2] = {
        { "{\"pretrained_cfg\":{\"mean\":[0,0]}}", "config.json: mean has 2 numbers, 3 are right" },
        { "{\"pretrained_cfg\":{\"std\":[1,0,1]}}", "config.json: std holds what is no positive number" },
        { "{\"pretrained_cfg\":{\"input_size\":[1,28,28]}}", "pictures of (1,28,28)" },
        { "{\"pretrained_cfg\":{\"crop_pct\":0}}", "of which 0 is taken" },
        { "{\"architecture\":\"tf_mobilenetv3_small_100\"}", "pads as TensorFlow does" },
        { "{\"model_args\":{\"act_layer\":\"silu\"}}", "model_args has \"act_layer\", which is not known" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_config(wrong[i][0]);
        m = vision_open(folder, NULL, error);
        CHECK(!m);
        if (!strstr(error, wrong[i][1]))
            test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", error, wrong[i][1]);
        vision_close(m);
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    remove(path);
}

TEST(picture_of_the_size_of_the_model_is_normalised_alone) {
    static uint8_t rgb[SIZE * SIZE * 3];
    static float x[3 * SIZE * SIZE];
    char error[VISION_ERROR];
    vision_model *m = invent("mobilenet_v3_small", VISION_TORCHVISION);
    REQUIRE(m != NULL);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * 31);
    CHECK(vision_set_size(m, SIZE, SIZE, error));
    const vision_preparation *p = vision_get_preparation(m);
    CHECK_RESULT(gn_read(vision_prepare(m, gn_data(g, GN_U8, GN_SHAPE(SIZE, SIZE, 3), rgb)), x, sizeof x), GN_OK);
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < SIZE * SIZE; i++)
            CHECK_NEAR(x[c * SIZE * SIZE + i], (rgb[3 * i + c] / 255.0 - p->mean[c]) / p->std[c], 1e-6);
    gn_close(g);
    vision_close(m);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(picture_of_ppm_and_pgm_is_read_pixel_by_pixel),
        TEST_ENTRY(picture_cut_at_any_byte_or_longer_is_refused),
        TEST_ENTRY(picture_of_extreme_or_wrong_header_is_refused_by_what_is_wrong),
        TEST_ENTRY(picture_of_png_is_read_by_libpng_or_its_absence_is_told),
        TEST_ENTRY(logits_are_those_of_torchvision_and_timm),
        TEST_ENTRY(norms_multiplied_into_weights_change_no_logit),
        TEST_ENTRY(batch_of_two_is_twice_one),
        TEST_ENTRY(what_is_saved_is_recognised_and_gives_the_same_bits),
        TEST_ENTRY(model_with_a_wrong_tensor_is_refused_by_name_and_both_shapes),
        TEST_ENTRY(model_whose_sizes_contradict_each_other_is_refused),
        TEST_ENTRY(config_beside_the_file_says_how_pictures_are_prepared),
        TEST_ENTRY(picture_of_the_size_of_the_model_is_normalised_alone),
    };
    test_begin(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/vision-test-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    test_all(tests, TEST_COUNT(tests));
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) puts("the folder stays");
    return test_end();
}
