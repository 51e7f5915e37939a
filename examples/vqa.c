/* Questions about pictures: a tower for the picture and one for the words, which do not need each other and may run on
 * two devices at once, cross-attention of the words over the picture, a classifier of answers. It is trained on scenes
 * that it draws itself, and then asked about scenes that it has not seen.
 *
 *   ./examples/vqa                                   trains in under a minute, then answers
 *   ./examples/vqa --connect @genie.url --json       the same on a server: the same bits where identities are equal
 *   ./examples/vqa --save net.safetensors            keep the network
 *   ./examples/vqa --load net.safetensors            answer with it, without training
 *   ./examples/vqa --explain --connect @a,@b         where the towers would run on two servers
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "common.h"
#define SAFETENSORS_IMPLEMENTATION
#include "formats/safetensors.h"
#include "tensors_file.h"

enum {
    CELLS = 3, /* a side of the grid; a cell holds one thing or none, and is one patch */
    PATCH = 8, /* pixels a side of a cell */
    SIDE = CELLS * PATCH,
    PLACES = CELLS * CELLS,
    PIXELS = 3 * SIDE * SIDE,
    WORDS = 7,
    DIM = 48,
    HEADS = 4,
    INNER = 2 * DIM,
    LAYERS = 2,
    MAX_THINGS = 5,
    MAX_PARAMS = 128,
    BATCH = 64,
    KINDS = 4,    /* of questions */
    HELD_OUT = 8, /* of this many scenes one is for tests alone */
    TEST_BATCHES = 16,
    SHOWN = 4
};

/* ---- scenes, questions, answers ----------------------------------------------------------------------------*/
enum { SHAPES = 4, COLOURS = 4, COUNTS = MAX_THINGS + 1, ANSWERS = SHAPES + COLOURS + COUNTS };
static const char *const answers[ANSWERS] = { "circle", "square", "triangle", "cross", "red", "green", "blue",
                                              "yellow", "0",      "1",        "2",     "3",   "4",     "5" };
enum { W_END, W_ASK, W_WHAT, W_COLOUR, W_SHAPE, W_IS, W_THE, W_HOW, W_MANY, W_ARE, W_THERE, W_THING, W_THINGS };
enum { W_SHAPES = W_THINGS + 1, W_PLURALS = W_SHAPES + SHAPES, W_COLOURS = W_PLURALS + SHAPES };
enum { VOCAB = W_COLOURS + COLOURS };
static const char *const words[VOCAB] = { "",       "?",        "what",  "colour",  "shape",   "is",        "the",
                                          "how",    "many",     "are",   "there",   "thing",   "things",    "circle",
                                          "square", "triangle", "cross", "circles", "squares", "triangles", "crosses",
                                          "red",    "green",    "blue",  "yellow" };
static const uint8_t paints[COLOURS][3] = { { 220, 40, 40 }, { 40, 190, 60 }, { 50, 80, 230 }, { 230, 210, 50 } };

typedef struct scene {
    uint8_t shape[PLACES], colour[PLACES]; /* from 1; 0: nothing there */
} scene;

typedef struct batch {
    float pixels[BATCH][PIXELS];
    int32_t question[BATCH][WORDS], answer[BATCH], kind[BATCH];
} batch;

/* splitmix64 (Steele et al. 2014), below n. */
static uint32_t draw(uint64_t *state, uint32_t n) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(((z ^ z >> 31) >> 32) * n >> 32);
}

/* A scene that is for training, or one for tests: which of the two is told by what it shows. */
static scene draw_scene(uint64_t *random, bool for_tests) {
    for (;;) {
        scene s = { { 0 }, { 0 } };
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (uint32_t n = 2 + draw(random, MAX_THINGS - 1); n;) {
            uint32_t at = draw(random, PLACES);
            if (s.shape[at]) continue;
            s.shape[at] = (uint8_t)(1 + draw(random, SHAPES));
            s.colour[at] = (uint8_t)(1 + draw(random, COLOURS));
            n--;
        }
        for (int i = 0; i < PLACES; i++) h = (h ^ (s.shape[i] * 8u + s.colour[i])) * UINT64_C(0x100000001b3);
        if (((h >> 32) % HELD_OUT == 0) == for_tests) return s;
    }
}

/* Whether a thing of 6 x 6 pixels covers (x, y). */
static bool covers(int shape, int x, int y) {
    int dx = 2 * x - 5, dy = 2 * y - 5;
    switch (shape) {
    case 1: return dx * dx + dy * dy <= 36;
    case 2: return true;
    case 3: return abs(dx) <= y + 1;
    default: return abs(dx) <= 1 || abs(dy) <= 1;
    }
}

/* (3, SIDE, SIDE), from -1 to 1: things a pixel or two off their cell's corner, and noise everywhere. */
static void paint(const scene *s, uint64_t *random, float out[PIXELS]) {
    for (int i = 0; i < PIXELS; i++) out[i] = (float)draw(random, 40) / 128 - 1;
    for (int at = 0; at < PLACES; at++) {
        if (!s->shape[at]) continue;
        int left = at % CELLS * PATCH + (int)draw(random, 3), top = at / CELLS * PATCH + (int)draw(random, 3);
        for (int i = 0; i < 36; i++)
            for (int c = 0; c < 3 && covers(s->shape[at], i % 6, i / 6); c++)
                out[(c * SIDE + top + i / 6) * SIDE + left + i % 6] += (float)paints[s->colour[at] - 1][c] / 128;
    }
}

static int count(const uint8_t *of, int which) {
    int n = 0;
    for (int i = 0; i < PLACES; i++) n += of[i] == which;
    return n;
}

/* A question of this kind that has one answer; -1: about this thing there is none. */
static int ask(const scene *s, int kind, int which, int32_t out[WORDS]) {
    const int shape = W_SHAPES + which, plural = W_PLURALS + which, colour = W_COLOURS + which;
    const int32_t forms[KINDS][WORDS] = { { W_WHAT, W_COLOUR, W_IS, W_THE, shape, W_ASK, W_END },
                                          { W_WHAT, W_SHAPE, W_IS, W_THE, colour, W_THING, W_ASK },
                                          { W_HOW, W_MANY, plural, W_ARE, W_THERE, W_ASK, W_END },
                                          { W_HOW, W_MANY, colour, W_THINGS, W_ARE, W_THERE, W_ASK } };
    const uint8_t *asked = kind % 2 ? s->colour : s->shape, *told = kind % 2 ? s->shape : s->colour;
    int n = count(asked, which + 1), at = 0;
    memcpy(out, forms[kind], sizeof forms[kind]);
    if (kind >= 2) return SHAPES + COLOURS + n;
    if (n != 1) return -1;
    while (asked[at] != which + 1) at++;
    return (kind % 2 ? 0 : SHAPES) + told[at] - 1;
}

static scene draw_example(batch *b, int i, uint64_t *random, bool for_tests) {
    scene s;
    do {
        s = draw_scene(random, for_tests);
        b->kind[i] = (int32_t)draw(random, KINDS);
        b->answer[i] = ask(&s, b->kind[i], (int)draw(random, SHAPES), b->question[i]);
    } while (b->answer[i] < 0);
    paint(&s, random, b->pixels[i]);
    return s;
}

/* ---- the model ---------------------------------------------------------------------------------------------*/
typedef struct param {
    gn_tensor w, m, v; /* states: the parameter, and AdamW's two averages of its gradient */
    gn_shape shape;
    const char *label;
} param;

typedef struct model {
    gn_ctx *g;
    param params[MAX_PARAMS]; /* in the order in which the graph is built */
    int n, next;
    uint64_t random;
    safetensors *file; /* parameters are those of this file; NULL: they are drawn */
    char error[256];   /* why the file is not of this network */
} model;

/* The file's name of parameter i. */
static void param_name(int i, const char *label, char out[EX_VALUE_NAME]) {
    snprintf(out, EX_VALUE_NAME, "%03d.%s", i, label);
}

/* The next parameter; made when the graph is built for the first time. `spread` 0: all ones; below: all zeros. */
static gn_tensor get(model *m, gn_shape shape, double spread, const char *label) {
    if (m->next == m->n) {
        param *p = &m->params[m->n++];
        int64_t n = 1;
        for (int i = 0; i < shape.rank; i++) n *= shape.dims[i];
        float *host = malloc((size_t)n * sizeof *host);
        char name[EX_VALUE_NAME];
        param_name(m->n - 1, label, name);
        if (host && m->file && !ex_file_tensor(m->file, name, &shape, host, m->error, sizeof m->error)) {
            free(host);
            host = NULL;
        }
        for (int64_t i = 0; host && !m->file && i < n; i++)
            host[i] = spread > 0    ? (float)(spread * ((double)draw(&m->random, 1 << 24) * 0x1p-23 - 1))
                      : spread == 0 ? 1
                                    : 0;
        p->shape = shape;
        p->label = label;
        p->w = host ? gn_state(m->g, GN_F32, shape, host, label) : GN_NONE;
        p->m = gn_state(m->g, GN_F32, shape, NULL, "m");
        p->v = gn_state(m->g, GN_F32, shape, NULL, "v");
        free(host);
    }
    return m->params[m->next++].w;
}

static gn_tensor linear(model *m, gn_tensor x, int64_t in, int64_t out, const char *label) {
    gn_tensor w = get(m, GN_SHAPE(in, out), sqrt(3.0 / (double)in), label);
    return gn_linear(x, w, get(m, GN_SHAPE(out), -1, label));
}

static gn_tensor norm(model *m, gn_tensor x, const char *label) {
    gn_tensor gain = get(m, GN_SHAPE(DIM), 0, label);
    return gn_layernorm(x, gain, get(m, GN_SHAPE(DIM), -1, label), 1e-5);
}

/* (N,T,DIM) -> (N,HEADS,T,DIM/HEADS) */
static gn_tensor heads(gn_tensor x, int64_t n, int64_t t) {
    return gn_transpose(gn_reshape(x, GN_SHAPE(n, t, HEADS, DIM / HEADS)), 1, 2);
}

/* Attention of x (N,T,DIM) over y (N,S,DIM), which may be x, and the MLP; each with its norm and residual. */
static gn_tensor layer(model *m, gn_tensor x, int64_t t, gn_tensor y, int64_t s, int64_t n, const char *label) {
    gn_tensor a = norm(m, x, label), over = y.id == x.id ? a : y;
    gn_tensor q = linear(m, a, DIM, DIM, label), k = linear(m, over, DIM, DIM, label),
              v = linear(m, over, DIM, DIM, label);
    gn_tensor seen = gn_attention(heads(q, n, t), heads(k, n, s), heads(v, n, s), NULL);
    seen = gn_reshape(gn_transpose(seen, 1, 2), GN_SHAPE(n, t, DIM));
    x = gn_add(x, linear(m, seen, DIM, DIM, label));
    a = gn_gelu(linear(m, norm(m, x, label), DIM, INNER, label));
    return gn_add(x, linear(m, a, INNER, DIM, label));
}

/* pixels (N,3,SIDE,SIDE) -> (N,PLACES,DIM) */
static gn_tensor image_tower(model *m, gn_tensor pixels, int64_t n) {
    gn_modality(m->g, GN_MODALITY_VISION);
    gn_tensor w = get(m, GN_SHAPE(DIM, 3, PATCH, PATCH), sqrt(3.0 / (3 * PATCH * PATCH)), "image.patch");
    gn_tensor x =
        gn_conv(pixels, w, get(m, GN_SHAPE(DIM), -1, "image.patch"), &(gn_conv_desc){ .stride = { PATCH, PATCH } });
    x = gn_transpose(gn_reshape(x, GN_SHAPE(n, DIM, PLACES)), 1, 2);
    x = gn_add(x, get(m, GN_SHAPE(PLACES, DIM), 0.1, "image.place"));
    for (int i = 0; i < LAYERS; i++) x = layer(m, x, PLACES, x, PLACES, n, i ? "image.1" : "image.0");
    return norm(m, x, "image.norm");
}

/* ids (N,WORDS) -> (N,WORDS,DIM) */
static gn_tensor text_tower(model *m, gn_tensor ids, int64_t n) {
    gn_modality(m->g, GN_MODALITY_TEXT);
    gn_tensor x = gn_embedding(get(m, GN_SHAPE(VOCAB, DIM), 1, "text.word"), ids);
    x = gn_add(x, get(m, GN_SHAPE(WORDS, DIM), 0.1, "text.place"));
    for (int i = 0; i < LAYERS; i++) x = layer(m, x, WORDS, x, WORDS, n, i ? "text.1" : "text.0");
    return norm(m, x, "text.norm");
}

/* Logits (N,ANSWERS). */
static gn_tensor forward(model *m, const batch *b, int64_t n) {
    m->next = 0;
    gn_tensor pixels = gn_data(m->g, GN_F32, GN_SHAPE(n, 3, SIDE, SIDE), b->pixels);
    gn_tensor image = image_tower(m, pixels, n);
    gn_tensor text = text_tower(m, gn_data(m->g, GN_I32, GN_SHAPE(n, WORDS), b->question), n);
    gn_modality(m->g, GN_MODALITY_MIXED);
    for (int i = 0; i < LAYERS; i++) text = layer(m, text, WORDS, image, PLACES, n, i ? "both.1" : "both.0");
    gn_tensor y = linear(m, norm(m, gn_mean(text, GN_AXES(1), false), "answer"), DIM, ANSWERS, "answer");
    gn_modality(m->g, GN_MODALITY_UNKNOWN);
    return y;
}

/* ---- training ----------------------------------------------------------------------------------------------*/
typedef struct settings {
    const char *connect, *home, *answers, *load, *save;
    int64_t steps, seed;
    double lr, least;
    bool explain, json;
} settings;

typedef struct report {
    double loss, seconds, accuracy, chance, by_kind[KINDS];
    uint64_t fingerprint; /* of all parameters, FNV-1a */
    int64_t parameters, step;
    gn_device_info device;
} report;

/* Warms up for a twentieth of the steps, then goes down to zero. */
static double rate_at(const settings *set, int64_t step) {
    double at = (double)step / (double)set->steps, up = at * 20;
    return set->lr * (up < 1 ? up : 1 - at);
}

static bool train_step(model *m, const settings *set, int64_t step, const batch *b, float *loss) {
    gn_tensor w[MAX_PARAMS], first[MAX_PARAMS], second[MAX_PARAMS], grads[MAX_PARAMS];
    gn_tensor l = gn_cross_entropy(forward(m, b, BATCH), gn_data(m->g, GN_I32, GN_SHAPE(BATCH), b->answer));
    gn_adamw_desc d = { .lr = gn_scalar(m->g, GN_F32, rate_at(set, step)),
                        .step = gn_scalar(m->g, GN_F32, (double)step),
                        .weight_decay = 0.01 };
    for (int i = 0; i < m->n; i++) {
        w[i] = m->params[i].w;
        first[i] = m->params[i].m;
        second[i] = m->params[i].v;
    }
    return ex_check(m->g, gn_grad(l, w, m->n, grads), "gradients") &&
           ex_check(m->g, gn_adamw(&d, w, grads, first, second, m->n), "AdamW") &&
           ex_check(m->g, gn_read(l, loss, sizeof *loss), "training") && ex_check(m->g, gn_step(m->g), "training");
}

static bool train(model *m, const settings *set, report *r) {
    static batch b;
    uint64_t random = (uint64_t)set->seed * 2 + 1;
    float loss = 0;
    double begin = ex_now(), mean = 0;
    for (r->step = 1; r->step <= set->steps && !ex_interrupted; r->step++) {
        for (int i = 0; i < BATCH; i++) draw_example(&b, i, &random, false);
        if (!train_step(m, set, r->step, &b, &loss)) return false;
        mean = r->step == 1 ? (double)loss : 0.98 * mean + 0.02 * (double)loss;
        if (isatty(STDERR_FILENO) && r->step % 10 == 0)
            fprintf(stderr, "\rstep %lld of %lld, loss %.3f\033[K", (long long)r->step, (long long)set->steps, mean);
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    r->seconds = ex_now() - begin;
    r->loss = mean;
    return !ex_interrupted;
}

/* ---- what has been learned ---------------------------------------------------------------------------------*/
static bool answer(model *m, const batch *b, int64_t *best) {
    gn_phase(m->g, GN_FORWARD);
    gn_tensor y = gn_argmax(forward(m, b, BATCH), GN_AXES(1), false);
    gn_phase(m->g, GN_PHASE_UNKNOWN);
    return (!m->file || ex_file_fits(m->file, (size_t)m->n, m->error)) &&
           ex_check(m->g, gn_read(y, best, BATCH * sizeof *best), "answering") &&
           ex_check(m->g, gn_step(m->g), "answering");
}

/* Share of right answers about scenes that were not trained on; `chance`: of the best that can be answered without
   seeing the picture, by the kind of question alone. */
static bool measure(model *m, const settings *set, report *r) {
    static batch b;
    int64_t best[BATCH];
    int right[KINDS] = { 0 }, asked[KINDS] = { 0 }, told[KINDS][ANSWERS] = { { 0 } }, all = 0, guessed = 0;
    uint64_t random = (uint64_t)set->seed * 2;
    for (int k = 0; k < TEST_BATCHES; k++) {
        for (int i = 0; i < BATCH; i++) draw_example(&b, i, &random, true);
        if (!answer(m, &b, best)) return false;
        for (int i = 0; i < BATCH; i++) {
            asked[b.kind[i]]++;
            right[b.kind[i]] += best[i] == b.answer[i];
            told[b.kind[i]][b.answer[i]]++;
        }
    }
    for (int k = 0; k < KINDS; k++) {
        int most = 0;
        for (int i = 0; i < ANSWERS; i++) most = told[k][i] > most ? told[k][i] : most;
        guessed += most;
        all += right[k];
        r->by_kind[k] = asked[k] ? (double)right[k] / asked[k] : 0;
    }
    r->accuracy = (double)all / (BATCH * TEST_BATCHES);
    r->chance = (double)guessed / (BATCH * TEST_BATCHES);
    return true;
}

static void add_params(ex_values *v, const model *m) {
    char name[EX_VALUE_NAME];
    for (int i = 0; i < m->n; i++) {
        param_name(i, m->params[i].label, name);
        ex_values_add(v, name, m->params[i].w);
    }
}

static bool save(const model *m, const char *path) {
    static ex_values v; /* large: names */
    add_params(&v, m);
    return ex_values_write(&v, m->g, path);
}

/* Pictures and questions, the logits of answers and the parameters in the order in which the graph has them, for other
   programs that compute the same. */
static bool write_answers(model *m, const settings *set) {
    static batch b;
    static ex_values v; /* large: names */
    uint64_t random = (uint64_t)set->seed * 2;
    for (int i = 0; i < BATCH; i++) draw_example(&b, i, &random, true);
    ex_values_add(&v, "logits", forward(m, &b, BATCH));
    ex_values_add(&v, "pixels", gn_data(m->g, GN_F32, GN_SHAPE(BATCH, 3, SIDE, SIDE), b.pixels));
    ex_values_add(&v, "question", gn_data(m->g, GN_I32, GN_SHAPE(BATCH, WORDS), b.question));
    add_params(&v, m);
    return ex_values_write(&v, m->g, set->answers);
}

static bool fingerprint(model *m, report *r) {
    r->fingerprint = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < m->n; i++) {
        int64_t n = 1;
        for (int k = 0; k < m->params[i].shape.rank; k++) n *= m->params[i].shape.dims[k];
        size_t bytes = (size_t)n * sizeof(float);
        uint8_t *host = malloc(bytes);
        bool ok = host && ex_check(m->g, gn_read(m->params[i].w, host, bytes), "reading the parameters");
        for (size_t k = 0; ok && k < bytes; k++) r->fingerprint = (r->fingerprint ^ host[k]) * UINT64_C(0x100000001b3);
        free(host);
        if (!ok) return false;
        r->parameters += n;
    }
    return true;
}

/* A scene in letters: the first of the shape's name, in its colour. */
static void print_scene(const scene *s) {
    static const char *const escapes[COLOURS] = { "\033[31m", "\033[32m", "\033[34m", "\033[33m" };
    for (int at = 0; at < PLACES; at++) {
        char name[24] = ".";
        if (s->shape[at])
            snprintf(name, sizeof name, "%s %s", answers[SHAPES + s->colour[at] - 1], answers[s->shape[at] - 1]);
        printf("%s%s%-16s%s%s", at % CELLS ? "" : "  ", s->shape[at] ? ex_color(escapes[s->colour[at] - 1]) : "", name,
               s->shape[at] ? ex_color("\033[0m") : "", at % CELLS == CELLS - 1 ? "\n" : "");
    }
}

static bool show(model *m, const settings *set) {
    static batch b;
    scene scenes[BATCH];
    int64_t best[BATCH];
    uint64_t random = (uint64_t)set->seed * 2 + 12345;
    for (int i = 0; i < BATCH; i++) scenes[i] = draw_example(&b, i, &random, true);
    if (!answer(m, &b, best)) return false;
    for (int i = 0; i < SHOWN; i++) {
        printf("\n");
        print_scene(&scenes[i]);
        printf(" ");
        for (int k = 0; k < WORDS; k++) printf("%s%s", b.question[i][k] == W_END ? "" : " ", words[b.question[i][k]]);
        printf("  %s%s\n", answers[best[i]], best[i] == b.answer[i] ? "" : " (wrong)");
    }
    printf("\n");
    return true;
}

/* ---- where it runs -----------------------------------------------------------------------------------------*/
/* Where a step of answers would run: on the devices of the context, or, if there is one alone, on two that are
   invented: equal and slow, behind links of 20 ms and 100 MB/s. */
static bool explain(model *m, const settings *set) {
    static batch b;
    uint64_t random = (uint64_t)set->seed;
    gn_cluster_device devices[2];
    gn_cluster_link links[9];
    memset(devices, 0, sizeof devices);
    memset(links, 0, sizeof links);
    for (int d = 0; d < 2; d++) {
        snprintf(devices[d].name, sizeof devices[d].name, "invented:%d", d);
        devices[d].bytes_per_s = 1e9;
        for (int i = 0; i < GN_RATE__COUNT; i++) devices[d].flops_per_s[i] = 1e8;
    }
    for (int i = 0; i < 9; i++)
        if (i % 4) links[i] = (gn_cluster_link){ 0.02, 1e8 };
    gn_cluster two = { 2, devices, links };
    gn_explain_desc desc = { .cluster = gn_device_count(m->g) > 1 ? NULL : &two };
    for (int i = 0; i < BATCH; i++) draw_example(&b, i, &random, true);
    return ex_explain(forward(m, &b, BATCH), &desc, stdout);
}

static void print_text(const report *r, bool trained) {
    static const char *const kinds[KINDS] = { "colour", "shape", "count of a shape", "count of a colour" };
    ex_row("parameters", "%lld, fingerprint %016llx", (long long)r->parameters, (unsigned long long)r->fingerprint);
    ex_row("device", "%s", r->device.name);
    if (trained)
        ex_row("trained", "%.1f s, %.0f steps/s, loss %.3f", r->seconds, (double)(r->step - 1) / r->seconds, r->loss);
    for (int k = 0; k < KINDS; k++) ex_row("right", "%5.1f %%  %s", 100 * r->by_kind[k], kinds[k]);
}

static void print_json(const report *r, bool trained) {
    char text[20];
    ex_json j = { 0 };
    snprintf(text, sizeof text, "%016llx", (unsigned long long)r->fingerprint);
    ex_json_text(&j, "fingerprint", text);
    ex_json_number(&j, "parameters", (double)r->parameters);
    ex_json_number(&j, "steps", trained ? (double)(r->step - 1) : 0);
    if (trained) ex_json_number(&j, "seconds", r->seconds);
    if (trained) ex_json_number(&j, "loss", r->loss);
    ex_json_number(&j, "accuracy", r->accuracy);
    ex_json_number(&j, "chance", r->chance);
    ex_json_name(&j, "by_kind");
    for (int k = 0; k < KINDS; k++) printf("%s%.9g", k ? "," : "[", r->by_kind[k]);
    putchar(']');
    ex_json_text(&j, "device", r->device.name);
    ex_json_end(&j);
}

static bool run(model *m, const settings *set) {
    report r = { 0 };
    if (set->explain) return explain(m, set);
    bool ok = (set->load || train(m, set, &r)) && (!set->save || save(m, set->save)) && measure(m, set, &r) &&
              fingerprint(m, &r) && (!set->answers || write_answers(m, set)) &&
              ex_check(m->g, gn_get_device(m->g, &r.device), "the device");
    if (!ok) return false;
    if (set->json) print_json(&r, !set->load);
    else {
        char text[128];
        print_text(&r, !set->load);
        if (!show(m, set)) return false;
        snprintf(text, sizeof text,
                 "%.1f %% of the answers about unseen pictures are right, at least %.1f %% asked; "
                 "guesses: %.1f %%",
                 100 * r.accuracy, 100 * set->least, 100 * r.chance);
        ex_verdict(r.accuracy >= set->least, text);
    }
    return r.accuracy >= set->least;
}

int main(int argc, char **argv) {
    settings set = { .steps = 1500, .seed = 1, .lr = 3e-3, .least = -1 };
    const ex_option options[] = {
        { "steps", EX_INT, &set.steps, "N", "training steps (1500)", 1, 1e6 },
        { "seed", EX_INT, &set.seed, "N", "seed of weights and scenes (1)", 0, 1e15 },
        { "lr", EX_NUMBER, &set.lr, "RATE", "learning rate of AdamW (0.003)", 1e-6, 1 },
        { "min-accuracy", EX_NUMBER, &set.least, "SHARE", "fail below this share of right answers (0.8)", 0, 1 },
        { "explain", EX_FLAG, &set.explain, NULL, "explain where the towers would run instead of training", 0, 0 },
        { "connect", EX_MAYBE, &set.connect, "WHERE", "URLs, @FILEs or host:port ($GENIE_DEVICES, else this CPU)", 0,
          0 },
        { "home", EX_TEXT, &set.home, "DIR", "folder of client credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 },
        { "save", EX_TEXT, &set.save, "FILE", "write the network, as safetensors", 0, 0 },
        { "load", EX_TEXT, &set.load, "FILE", "answer with that network instead of training one", 0, 0 },
        { "answers", EX_TEXT, &set.answers, "FILE", "write questions, logits and all parameters, as safetensors", 0,
          0 },
        { "json", EX_FLAG, &set.json, NULL, "print one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "vqa learns to answer questions about pictures that it draws.", options);
    if (set.load && (set.save || set.explain))
        ex_usage(argv[0], "--save and --explain are of training: not with --load");
    if (set.least < 0) set.least = 0.8;
    ex_place place = { .devices = getenv("GENIE_DEVICES") ? NULL : "cpu", .home = set.home };
    static model m;
    ex_catch_signals();
    char error[SAFETENSORS_ERROR];
    m.file = set.load ? safetensors_open(set.load, error) : NULL;
    if (set.load && !m.file) {
        fprintf(stderr, "%s\n", error);
        return EX_FAILED;
    }
    bool ok = !set.connect || ex_place_open(&place, set.connect, set.home);
    if (ok) {
        m.random = (uint64_t)set.seed;
        m.g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
        ok = ex_check(m.g, gn_status(m.g), "cannot open the device");
    }
    ok = ok && run(&m, &set);
    gn_close(m.g);
    if (set.connect) ex_place_close(&place);
    safetensors_close(m.file);
    return ok ? EX_OK : ex_interrupted ? EX_INTERRUPTED : EX_FAILED;
}
