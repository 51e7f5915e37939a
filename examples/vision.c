/* Classifies pictures with a network as its authors ship it: safetensors in the names of torchvision or of timm.
 *
 *   ./examples/vision DIR|FILE.safetensors --image cat.ppm --image dog.png --labels imagenet.txt
 *   ./examples/vision DIR --image cat.jpg --connect @genie.url --json
 *   ./examples/vision --random resnet50 --bench 10 --batch 8        random weights: how many pictures a second
 *   ./examples/vision                                               a small run with random weights and a drawn picture
 */
#define _DEFAULT_SOURCE /* beside what common.h asks for */
#include "common.h"

#include "progress.h"
#define PICTURE_IMPLEMENTATION
#include "formats/picture.h"
#define VISION_MODEL_IMPLEMENTATION
#include "formats/vision_model.h"

enum { LABEL_BYTES = 256 }; /* of one label, its end included */
enum { MAX_PICTURES = 256, MAX_TOP = 100, LONGEST_SIDE = 1 << 16, MAX_LABELS = 1 << 20 };

typedef struct settings {
    const char *path, *arch, *random, *names, *labels, *save, *out, *connect, *home, *files[MAX_PICTURES];
    int64_t seed, classes, size, resize, top, bench, batch;
    int n_files;
    bool no_fold, json;
} settings;

typedef struct job {
    const settings *set;
    vision_model *m;
    gn_ctx *g;
    picture pictures[MAX_PICTURES];
    char **labels, *label_text;
    float *logits, *shares; /* (batch, classes), (batch, top) */
    int64_t *places, top;   /* (batch, top) */
    double first_s, bench_s;
    ex_progress bar;
} job;

/* ---- what is read ------------------------------------------------------------------------------------------*/
/* A disc on a slope of colours, 96 x 80: for a run without a picture. */
static bool draw_picture(picture *p) {
    *p = (picture){ .width = 96, .height = 80, .rgb = malloc(96 * 80 * 3) };
    for (int y = 0; p->rgb && y < 80; y++)
        for (int x = 0; x < 96; x++) {
            bool inside = (x - 50) * (x - 50) + (y - 36) * (y - 36) < 24 * 24;
            uint8_t *to = p->rgb + 3 * (y * 96 + x);
            to[0] = inside ? 220 : (uint8_t)(2 * x);
            to[1] = inside ? 60 : (uint8_t)(3 * y);
            to[2] = inside ? 40 : 128;
        }
    return p->rgb != NULL;
}

static bool read_pictures(job *j) {
    char error[PICTURE_ERROR];
    int64_t resize = vision_get_preparation(j->m)->resize;
    if (!j->set->n_files) return draw_picture(&j->pictures[0]) || (fprintf(stderr, "out of memory\n"), false);
    for (int i = 0; i < j->set->n_files; i++) {
        picture *p = &j->pictures[i];
        if (!picture_open(p, j->set->files[i], error)) return fprintf(stderr, "%s\n", error), false;
        int64_t shorter = p->width < p->height ? p->width : p->height, longer = p->width + p->height - shorter;
        if (longer * resize / shorter <= LONGEST_SIDE) continue;
        fprintf(stderr, "%s: %lld x %lld pixels would become more than %d on the longer side\n", j->set->files[i],
                (long long)p->width, (long long)p->height, LONGEST_SIDE);
        return false;
    }
    return true;
}

/* One label a line, for each class. */
static bool read_labels(job *j) {
    const char *path = j->set->labels;
    int64_t classes = vision_get_config(j->m)->classes, n = 0;
    char why[256];
    mapping file;
    if (!path) return true;
    if (!mapping_open(&file, path, why, sizeof why)) return fprintf(stderr, "%s\n", why), false;
    bool ok = file.size < MAX_LABELS * 64;
    j->label_text = ok ? malloc((size_t)file.size + 1) : NULL;
    j->labels = calloc((size_t)classes + 1, sizeof *j->labels);
    ok = j->label_text && j->labels;
    if (ok) {
        if (file.size) memcpy(j->label_text, file.data, (size_t)file.size);
        j->label_text[file.size] = 0;
        char *at = j->label_text;
        for (char *end; *at; at = end, n++) {
            end = at + strcspn(at, "\n");
            if (n < classes && end - at < LABEL_BYTES) j->labels[n] = at;
            if (*end) *end++ = 0;
            at[strcspn(at, "\r")] = 0;
        }
    }
    mapping_close(&file);
    for (int64_t i = 0; ok && n == classes && i < n; i++)
        if (!j->labels[i])
            return fprintf(stderr, "%s, line %lld: a label has at most %d bytes\n", path, (long long)i + 1,
                           LABEL_BYTES - 1),
                   false;
    if (ok && n == classes) return true;
    if (!ok) fprintf(stderr, "%s: no memory for %llu bytes of labels\n", path, (unsigned long long)file.size);
    else fprintf(stderr, "%s: %lld labels, and the model has %lld classes\n", path, (long long)n, (long long)classes);
    return false;
}

static vision_model *invent_model(const settings *set, char error[VISION_ERROR]) {
    vision_naming names = strcmp(set->names, "timm") == 0 ? VISION_TIMM : VISION_TORCHVISION;
    return vision_random(set->random, names, set->classes, set->size ? set->size : 224, (uint64_t)set->seed, error);
}

static bool open_model(job *j) {
    const settings *set = j->set;
    char error[VISION_ERROR];
    j->m = set->random ? invent_model(set, error) : vision_open(set->path, set->arch, error);
    if (!j->m) return fprintf(stderr, "%s\n", error), false;
    if (!vision_set_size(j->m, set->random ? 0 : set->size, set->resize, error))
        return fprintf(stderr, "%s\n", error), false;
    vision_fold(j->m, !set->no_fold);
    if (!set->save) return true;
    if (mkdir(set->save, 0777) != 0 && errno != EEXIST)
        return fprintf(stderr, "--save %s: %s\n", set->save, strerror(errno)), false;
    return vision_save(j->m, set->save, error) || (fprintf(stderr, "%s\n", error), false);
}

static bool open_device(job *j, const ex_place *place) {
    j->bar.total = (uint64_t)vision_parameters(j->m) * sizeof(float);
    j->g = gn_open(&(gn_desc){ .devices = place->devices,
                               .home = place->home,
                               .progress = ex_progress_show,
                               .progress_user = ex_progress_begin(&j->bar) });
    vision_bind(j->m, j->g);
    return ex_check(j->g, gn_status(j->g), "cannot open the device");
}

/* ---- a step ------------------------------------------------------------------------------------------------*/
/* All pictures as one batch, in turn until it is full: logits, the best shares and their classes. */
static bool step(job *j) {
    gn_tensor parts[MAX_PICTURES], want[3];
    int n = j->set->n_files ? j->set->n_files : 1;
    int64_t classes = vision_get_config(j->m)->classes, batch = j->set->batch;
    gn_modality(j->g, GN_MODALITY_VISION);
    for (int i = 0; i < batch; i++) {
        const picture *p = &j->pictures[i % n];
        parts[i] = vision_prepare(j->m, gn_data(j->g, GN_U8, GN_SHAPE(p->height, p->width, 3), p->rgb));
    }
    gn_tensor x = batch == 1 ? parts[0] : gn_concat(parts, (int)batch, 0);
    want[0] = vision_forward(j->m, x);
    if (!want[0].ctx) return fprintf(stderr, "out of memory\n"), false;
    gn_topk(gn_softmax(want[0], 1), j->top, 1, true, &want[1], &want[2]);
    size_t best = (size_t)(batch * j->top);
    const size_t bytes[3] = { (size_t)(batch * classes) * sizeof(float), best * sizeof(float), best * sizeof(int64_t) };
    void *const to[3] = { j->logits, j->shares, j->places };
    return ex_check(j->g, gn_read_many(want, 3, to, bytes), "classifying") &&
           ex_check(j->g, gn_step(j->g), "classifying");
}

static bool run(job *j) {
    char error[VISION_ERROR];
    int64_t classes = vision_get_config(j->m)->classes, batch = j->set->batch;
    j->top = j->set->top < classes ? j->set->top : classes;
    j->logits = calloc((size_t)(batch * classes), sizeof *j->logits);
    j->shares = calloc((size_t)(batch * j->top), sizeof *j->shares);
    j->places = calloc((size_t)(batch * j->top), sizeof *j->places);
    if (!j->logits || !j->shares || !j->places) return fprintf(stderr, "out of memory\n"), false;
    double begin = ex_now();
    if (!step(j)) return false;
    ex_progress_end(&j->bar);
    j->first_s = ex_now() - begin;
    begin = ex_now();
    for (int64_t i = 0; i < j->set->bench; i++)
        if (ex_interrupted || !step(j)) return false;
    j->bench_s = ex_now() - begin;
    return vision_intact(j->m, error) || (fprintf(stderr, "%s\n", error), false);
}

/* ---- reports -----------------------------------------------------------------------------------------------*/
static const char *file_of(const job *j, int64_t i) {
    return j->set->n_files ? j->set->files[i % j->set->n_files] : "a drawn one";
}

static void print_text(const job *j, const gn_device_info *device) {
    ex_row("model", "%s", vision_describe(j->m));
    ex_row("parameters", "%.3f million", 1e-6 * (double)vision_parameters(j->m));
    ex_row("device", "%s", device->name);
    ex_row("first step", "%.1f ms", 1e3 * j->first_s);
    if (j->set->bench)
        ex_row("speed", "%.2f images/s, %.1f ms for a batch of %lld",
               (double)(j->set->bench * j->set->batch) / j->bench_s, 1e3 * j->bench_s / (double)j->set->bench,
               (long long)j->set->batch);
    for (int64_t i = 0; i < j->set->batch; i++) {
        printf("%s\n", file_of(j, i));
        for (int64_t k = 0; k < j->top; k++) {
            int64_t class = j->places[i * j->top + k];
            printf("  %6.2f %%  %lld %s\n", 100 * (double)j->shares[i * j->top + k], (long long)class,
                   j->labels ? j->labels[class] : "");
        }
    }
}

static void print_json(const job *j, const gn_device_info *device) {
    ex_json o = { 0 };
    char label[6 * LABEL_BYTES + 2]; /* a byte takes at most 6 */
    ex_json_text(&o, "model", vision_describe(j->m));
    ex_json_number(&o, "parameters", (double)vision_parameters(j->m));
    ex_json_text(&o, "device", device->name);
    ex_json_number(&o, "first_step_seconds", j->first_s);
    if (j->set->bench) ex_json_number(&o, "images_per_second", (double)(j->set->bench * j->set->batch) / j->bench_s);
    ex_json_name(&o, "images");
    for (int64_t i = 0; i < j->set->batch; i++) {
        ex_json image = { 0 };
        putchar(i ? ',' : '[');
        ex_json_text(&image, "file", file_of(j, i));
        ex_json_name(&image, "top");
        for (int64_t k = 0; k < j->top; k++) {
            ex_json row = { 0 };
            int64_t class = j->places[i * j->top + k];
            putchar(k ? ',' : '[');
            ex_json_number(&row, "class", (double)class);
            if (j->labels) {
                size_t n = json_quote(j->labels[class], strlen(j->labels[class]), label, sizeof label);
                ex_json_name(&row, "label");
                printf("%.*s", (int)n, label);
            }
            ex_json_number(&row, "share", (double)j->shares[i * j->top + k]);
            ex_json_close(&row);
        }
        putchar(']');
        ex_json_close(&image);
    }
    putchar(']');
    ex_json_end(&o);
}

static bool write_logits(const job *j) {
    char error[SAFETENSORS_ERROR];
    const int64_t dims[2] = { j->set->batch, vision_get_config(j->m)->classes };
    safetensors_tensor t = { .name = "logits",
                             .dims = dims,
                             .data = (const uint8_t *)j->logits,
                             .bytes = (uint64_t)(dims[0] * dims[1]) * sizeof(float),
                             .rank = 2,
                             .dtype = SAFETENSORS_F32 };
    if (!j->set->out || safetensors_write(j->set->out, &t, 1, NULL, error)) return true;
    fprintf(stderr, "%s\n", error);
    return false;
}

/* Logits of random weights and of strange pictures may be anything, but they are numbers. */
static bool are_numbers(const job *j) {
    int64_t n = j->set->batch * vision_get_config(j->m)->classes;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(j->logits[i])) return fprintf(stderr, "the model's logits are not numbers\n"), false;
    return true;
}

static int run_all(const settings *set) {
    ex_place place = { .devices = getenv("GENIE_DEVICES") ? NULL : "cpu", .home = set->home };
    static job j;
    gn_device_info device = { 0 };
    j.set = set;
    ex_catch_signals();
    bool ok = open_model(&j) && read_labels(&j) && read_pictures(&j) &&
              (!set->connect || ex_place_open(&place, set->connect, set->home)) && open_device(&j, &place) && run(&j) &&
              are_numbers(&j) && write_logits(&j) && ex_check(j.g, gn_get_device(j.g, &device), "the device");
    if (ok && set->json) print_json(&j, &device);
    else if (ok) print_text(&j, &device);
    gn_close(j.g);
    vision_close(j.m);
    for (int i = 0; i < MAX_PICTURES; i++) picture_close(&j.pictures[i]);
    free(j.labels);
    free(j.label_text);
    free(j.logits);
    free(j.shares);
    free(j.places);
    if (set->connect) ex_place_close(&place);
    return ok ? EX_OK : ex_interrupted ? EX_INTERRUPTED : EX_FAILED;
}

/* Takes the model, which comes first, and --image, which may come several times, out of the arguments. */
static int take_arguments(int argc, char **argv, settings *set) {
    int n = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = !strncmp(argv[i], "--image=", 8) ? argv[i] + 8 : NULL;
        if (i == 1 && argv[i][0] != '-') {
            set->path = argv[i];
            continue;
        }
        if (!strcmp(argv[i], "--image") && i + 1 < argc) value = argv[++i];
        if (!value) {
            argv[n++] = argv[i];
            continue;
        }
        if (set->n_files == MAX_PICTURES) ex_usage(argv[0], "at most %d pictures are read at once", MAX_PICTURES);
        set->files[set->n_files++] = value;
    }
    argv[n] = NULL;
    return n;
}

int main(int argc, char **argv) {
    static settings set = { .seed = 1, .classes = 1000, .names = "torchvision", .top = 5 };
    const char *unused = NULL;
    const ex_option options[] = {
        { "image", EX_TEXT, &unused, "FILE", "a picture: PPM, PGM, PNG or JPEG; may be repeated (a drawn one)", 0, 0 },
        { "labels", EX_TEXT, &set.labels, "FILE", "names of the classes, one a line", 0, 0 },
        { "arch", EX_TEXT, &set.arch, "NAME", "the tensors must be of this architecture (recognised)", 0, 0 },
        { "random", EX_TEXT, &set.random, "NAME", "random weights for an architecture instead of a model", 0, 0 },
        { "seed", EX_INT, &set.seed, "N", "seed of the random weights (1)", 0, 1e15 },
        { "classes", EX_INT, &set.classes, "N", "with --random: classes (1000)", 1, 65535 },
        { "size", EX_INT, &set.size, "N", "pixels a side that the model sees (as the model has it, 224)", 32, 4096 },
        { "save", EX_TEXT, &set.save, "DIR", "with --random: write DIR/model.safetensors", 0, 0 },
        { "names", EX_TEXT, &set.names, "WHOSE", "with --random: names of torchvision or timm (torchvision)", 0, 0 },
        { "resize", EX_INT, &set.resize, "N", "the shorter side before the middle is taken (as the model has it)", 1,
          8192 },
        { "top", EX_INT, &set.top, "N", "classes that are shown for each picture (5)", 1, MAX_TOP },
        { "no-fold", EX_FLAG, &set.no_fold, NULL, "batch norms stay ops of their own", 0, 0 },
        { "out", EX_TEXT, &set.out, "FILE", "write the logits as safetensors", 0, 0 },
        { "bench", EX_INT, &set.bench, "N", "run N more steps and print pictures per second", 1, 1e6 },
        { "batch", EX_INT, &set.batch, "N", "pictures in a step, in turn (as many as are given)", 1, MAX_PICTURES },
        { "connect", EX_MAYBE, &set.connect, "WHERE", "a URL, @FILE or host:port ($GENIE_DEVICES, else this CPU)", 0,
          0 },
        { "home", EX_TEXT, &set.home, "DIR", "folder of client credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "print one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    argc = take_arguments(argc, argv, &set);
    ex_operand = "[DIR|FILE.safetensors] ";
    ex_parse(argc, argv, "vision says what pictures show, with a network from safetensors or random weights.", options);
    if (set.path && set.random) ex_usage(argv[0], "give either a model or --random NAME");
    if (set.arch && !set.path) ex_usage(argv[0], "--arch is about a model; --random NAME makes one");
    if (strcmp(set.names, "torchvision") != 0 && strcmp(set.names, "timm") != 0)
        ex_usage(argv[0], "--names takes torchvision or timm, not %s", set.names);
    if (set.save && set.path) ex_usage(argv[0], "--save writes random weights; the model is a file already");
    if (!set.path && !set.random) {
        set.random = "resnet18";
        if (!set.size) set.size = 96;
    }
    if (!set.batch) set.batch = set.n_files ? set.n_files : 1;
    if (set.batch < set.n_files)
        ex_usage(argv[0], "--batch %lld is less than the pictures given", (long long)set.batch);
    return run_all(&set);
}
