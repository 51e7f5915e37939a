/* vision_model.h - picture classifiers from safetensors, in the names of torchvision or of timm: ResNet (18 to 152,
   wide and ResNeXt), MobileNet v3, ConvNeXt and ViT.

   One C file of the program:   #define VISION_MODEL_IMPLEMENTATION
                                #include "vision_model.h"
   It needs genie.h, safetensors.h (whose implementation comes with it), json.h and mapping.h; public functions only.

       char error[VISION_ERROR];
       vision_model *m = vision_open("model-dir", NULL, error);      or vision_random(...)
       vision_bind(m, g);
       gn_tensor x = vision_prepare(m, pixels);                      u8 (height, width, 3) -> (1, 3, size, size)
       gn_tensor logits = vision_forward(m, x);                      (N, 3, size, size) -> (N, classes)
       vision_close(m);                                              after gn_close(g): weights are borrowed

   The family, its depths and its widths are read from the tensors' names and shapes; then all names and shapes of the
   model are known, and each tensor is compared with them before anything is computed: one that is missing, of another
   shape or dtype, or left over is an error that names it. Shapes that differ only by axes of size 1 are equal. Weights
   in f16 and bf16 become f32. A config.json of timm beside the file gives the preprocessing, and `num_heads` where a
   head of a ViT has not 64 elements.

   TO ADD A FAMILY: a row in vision__families with a function that fills the config from tensors, one that builds the
   graph, and rows in vision__archs with the sizes that have a name. The function that builds names its tensors as it
   uses them; what is read, checked, saved and filled with random numbers follows from that. */
#ifndef VISION_MODEL_H
#define VISION_MODEL_H

#include "genie.h"
#include "safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { VISION_ERROR = 640, VISION_STAGES = 4 };

typedef struct vision_config {
    int family, table;            /* a row of vision__families; MobileNet: of its settings */
    int64_t classes, stem;        /* channels after the first convolution; ViT: of the embedding */
    int64_t depth[VISION_STAGES]; /* blocks of each stage; ViT: depth[0] layers */
    int64_t width[VISION_STAGES]; /* channels that a stage gives */
    int64_t inner[VISION_STAGES]; /* ResNet: channels within its blocks; ViT: inner[0] of the MLP */
    int64_t groups, patch, heads; /* ResNet; ViT: pixels a side; ViT */
    bool bottleneck;              /* ResNet: three convolutions a block, not two */
} vision_config;

/* What is done to a picture: its shorter side becomes `resize`, the middle `size` x `size` is taken, and of each
   channel (0 to 1) the mean is subtracted, then it is divided by std. */
typedef struct vision_preparation {
    int64_t resize, size;
    bool cubic; /* else linear; both smooth what becomes smaller */
    double mean[3], std[3];
} vision_preparation;

typedef struct vision_model vision_model;

/* `path`: a .safetensors file, or a directory with model.safetensors. `arch`: NULL, or a name of vision_archs that the
   tensors must be of. */
vision_model *vision_open(const char *path, const char *arch, char error[VISION_ERROR]);
typedef enum vision_naming { VISION_TORCHVISION, VISION_TIMM, VISION_NAMINGS } vision_naming;
/* Random weights, the same on every machine. `size`: pixels a side, which a ViT has positions for. */
vision_model *vision_random(const char *arch, vision_naming names, int64_t classes, int64_t size, uint64_t seed,
                            char error[VISION_ERROR]);
void vision_close(vision_model *m); /* NULL: nothing */
/* Writes DIR/model.safetensors. */
bool vision_save(const vision_model *m, const char *folder, char error[VISION_ERROR]);
/* The context that tensors are made in from now on; the one before must be closed. */
void vision_bind(vision_model *m, gn_ctx *g);
/* A batch norm behind a convolution is multiplied into its weights (in f64, once); false: it is an op of its own.
   To be said before the first vision_forward. */
void vision_fold(vision_model *m, bool folds);
gn_tensor vision_prepare(const vision_model *m, gn_tensor pixels);
gn_tensor vision_forward(vision_model *m, gn_tensor x);              /* f32; a failed tensor when memory ran out */
bool vision_intact(const vision_model *m, char error[VISION_ERROR]); /* as safetensors_intact */

const vision_config *vision_get_config(const vision_model *m);
const vision_preparation *vision_get_preparation(const vision_model *m);
/* Other sizes of the preparation, pixels; 0: as it is, `resize` in proportion. False: a ViT has positions for one size
   alone, or resize would be less than size. */
bool vision_set_size(vision_model *m, int64_t size, int64_t resize, char error[VISION_ERROR]);
const char *vision_describe(const vision_model *m); /* "ResNet, 50 layers, names of torchvision" */
int64_t vision_parameters(const vision_model *m);
const char *vision_arch(int index); /* NULL: there are no more */

#ifdef __cplusplus
}
#endif
#endif

#if defined(VISION_MODEL_IMPLEMENTATION) && !defined(VISION_MODEL_IMPLEMENTED)
#define VISION_MODEL_IMPLEMENTED
#define SAFETENSORS_IMPLEMENTATION
#include "safetensors.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VISION__NAME = 96, VISION__DEPTH = 256, VISION__WIDTH = 1 << 16 };
enum { VISION__RESNET, VISION__MOBILENET, VISION__CONVNEXT, VISION__VIT, VISION__FAMILIES };

/* A tensor of the model. Random values are uniform within `half` of `centre`. */
typedef struct vision__param {
    char name[VISION__NAME];
    gn_shape shape;
    double centre, half;
    const float *host; /* in the file, or owned */
    float *owned;
} vision__param;

/* What a graph uses: a parameter, or one with a batch norm multiplied into it. */
typedef struct vision__slot {
    gn_tensor tensor;
    float *owned;
} vision__slot;

struct vision_model {
    vision_config c;
    vision_preparation preparation;
    int naming;
    bool planning, folds, failed;
    safetensors *file;
    vision__param *params; /* in the order in which the graph is built */
    vision__slot *slots;
    size_t n, room, next_param, next_slot;
    gn_ctx *g;
    char text[128], *error;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
vision__fail(char *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, VISION_ERROR, format, args);
    va_end(args);
    return false;
}

static const char *vision__shape(char out[96], int rank, const int64_t *dims) {
    int at = snprintf(out, 96, "(");
    for (int i = 0; i < rank && at < 80; i++)
        at += snprintf(out + at, 96 - (size_t)at, i ? ",%lld" : "%lld", (long long)dims[i]);
    snprintf(out + at, 96 - (size_t)at, ")");
    return out;
}

static int64_t vision__count(gn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    return n;
}

/* ---- parameters as the graph is built ------------------------------------------------------------------------*/

/* The next parameter: named and given a shape while the model is planned, found by its place from then on. */
static vision__param *vision__next(vision_model *m, gn_shape shape, double centre, double half, const char *prefix,
                                   const char *name) {
    if (m->planning && m->n == m->room) {
        size_t room = 2 * m->room + 256;
        vision__param *more = (vision__param *)realloc(m->params, room * sizeof *more);
        if (!more) {
            m->failed = true;
            return NULL;
        }
        m->params = more;
        m->room = room;
    }
    if (m->planning) {
        vision__param *p = &m->params[m->n++];
        *p = (vision__param){ .shape = shape, .centre = centre, .half = half };
        snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    }
    return &m->params[m->next_param++];
}

/* A tensor of host memory, made once; `owned` belongs to the model from now on. */
static gn_tensor vision__tensor(vision_model *m, gn_shape shape, const float *host, float *owned, const char *label) {
    if (m->planning) return gn_full(m->g, GN_F32, shape, 0);
    vision__slot *s = &m->slots[m->next_slot++];
    s->owned = owned;
    s->tensor = gn_weight(m->g, GN_F32, shape, host, label);
    return s->tensor;
}

/* True: the next slot holds its tensor already. */
static bool vision__made(vision_model *m, gn_tensor *out) {
    if (m->planning || !m->slots[m->next_slot].tensor.ctx) return false;
    *out = m->slots[m->next_slot++].tensor;
    return true;
}

static gn_tensor vision__weight(vision_model *m, const vision__param *p) {
    gn_tensor made;
    if (!p) return GN_NONE;
    return vision__made(m, &made) ? made : vision__tensor(m, p->shape, p->host, NULL, p->name);
}

static gn_tensor vision__get(vision_model *m, gn_shape shape, double centre, double half, const char *prefix,
                             const char *name) {
    return vision__weight(m, vision__next(m, shape, centre, half, prefix, name));
}

static int64_t vision__dim(gn_tensor x, int axis) {
    gn_info info;
    return gn_describe(x, &info) == GN_OK ? info.shape.dims[axis] : 1;
}

/* The name of a part in the names that the file has. */
static const char *vision__named(const vision_model *m, const char *torchvision, const char *timm) {
    return m->naming == VISION_TIMM ? timm : torchvision;
}

/* ---- layers --------------------------------------------------------------------------------------------------*/

typedef enum vision__act { VISION__NONE, VISION__RELU, VISION__HARD_SWISH } vision__act;

typedef struct vision__conv {
    int64_t out, kernel, stride, groups, pad; /* stride and groups 0: 1 */
    double eps, gain;                         /* of the batch norm; `gain` is what random ones are near */
    vision__act act;
    gn_tensor residual;
} vision__conv;

static gn_tensor vision__activate(gn_tensor x, vision__act act) {
    return act == VISION__RELU ? gn_relu(x) : act == VISION__HARD_SWISH ? gn_hard_swish(x) : x;
}

/* Bound of uniform random weights that keep the size of what they are applied to (He et al. 2015). */
static double vision__bound(int64_t inputs) { return sqrt(6.0 / (double)inputs); }

/* w and the batch norm's gain, bias, mean, variance -> weights and bias of one convolution. */
static bool vision__multiply(vision_model *m, const vision__param *w, const vision__param *const norm[4], double eps,
                             float **out_w, float **out_b) {
    int64_t rows = w->shape.dims[0], n = vision__count(w->shape), inner = n / rows;
    *out_w = (float *)malloc((size_t)n * sizeof(float));
    *out_b = (float *)malloc((size_t)rows * sizeof(float));
    if (!*out_w || !*out_b) {
        free(*out_w);
        free(*out_b);
        m->failed = true;
        return false;
    }
    for (int64_t r = 0; r < rows; r++) {
        double scale = (double)norm[0]->host[r] / sqrt((double)norm[3]->host[r] + eps);
        for (int64_t i = 0; i < inner; i++) (*out_w)[r * inner + i] = (float)((double)w->host[r * inner + i] * scale);
        (*out_b)[r] = (float)((double)norm[1]->host[r] - (double)norm[2]->host[r] * scale);
    }
    return true;
}

/* A convolution without a bias, the batch norm behind it, what is added, the activation. */
static gn_tensor vision__conv_norm(vision_model *m, gn_tensor x, const char *prefix, const char *conv,
                                   const char *norm_name, const vision__conv *d) {
    static const char *const parts[4] = { "weight", "bias", "running_mean", "running_var" };
    int64_t groups = d->groups ? d->groups : 1, in = vision__dim(x, 1) / groups;
    const double centre[4] = { d->gain, 0, 0, 1 }, half[4] = { 0.1 * d->gain, 0.1, 0.1, 0.2 };
    const vision__param *norm[4], *w;
    char name[VISION__NAME];
    gn_conv_desc desc = { .stride = { d->stride, d->stride }, .groups = groups };
    for (int i = 0; i < 2; i++) desc.before[i] = desc.after[i] = d->pad;
    snprintf(name, sizeof name, "%s.weight", conv);
    w = vision__next(m, GN_SHAPE(d->out, in, d->kernel, d->kernel), 0, vision__bound(in * d->kernel * d->kernel),
                     prefix, name);
    size_t first = m->next_param; /* m->params may move while the model is planned */
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s.%s", norm_name, parts[i]);
        norm[i] = vision__next(m, GN_SHAPE(d->out), centre[i], half[i], prefix, name);
        if (!norm[i] || !w) return GN_NONE;
    }
    w = &m->params[first - 1];
    for (size_t i = 0; i < 4; i++) norm[i] = &m->params[first + i];
    if (!m->folds || m->planning) {
        gn_tensor t[5] = { vision__weight(m, w) };
        for (int i = 0; i < 4; i++) t[i + 1] = vision__weight(m, norm[i]);
        gn_tensor y = gn_batch_norm(gn_conv(x, t[0], GN_NONE, &desc), t[3], t[4], t[1], t[2], d->eps);
        return vision__activate(d->residual.ctx ? gn_add(y, d->residual) : y, d->act);
    }
    gn_tensor weight, bias;
    if (!vision__made(m, &weight) || !vision__made(m, &bias)) {
        float *host, *add;
        if (!vision__multiply(m, w, norm, d->eps, &host, &add)) return GN_NONE;
        weight = vision__tensor(m, w->shape, host, host, w->name);
        bias = vision__tensor(m, GN_SHAPE(d->out), add, add, norm[1]->name);
    }
    desc.residual = d->residual;
    desc.clamps = d->act == VISION__RELU;
    desc.most = INFINITY;
    gn_tensor y = gn_conv(x, weight, bias, &desc);
    return d->act == VISION__HARD_SWISH ? gn_hard_swish(y) : y;
}

/* A convolution with a bias. */
static gn_tensor vision__conv_bias(vision_model *m, gn_tensor x, const char *prefix, const vision__conv *d) {
    int64_t groups = d->groups ? d->groups : 1, in = vision__dim(x, 1) / groups;
    gn_conv_desc desc = { .stride = { d->stride, d->stride }, .groups = groups };
    for (int i = 0; i < 2; i++) desc.before[i] = desc.after[i] = d->pad;
    gn_tensor w = vision__get(m, GN_SHAPE(d->out, in, d->kernel, d->kernel), 0,
                              vision__bound(in * d->kernel * d->kernel) / 2, prefix, ".weight");
    gn_tensor b = vision__get(m, GN_SHAPE(d->out), 0, 0.1, prefix, ".bias");
    return gn_conv(x, w, b, &desc);
}

/* x (…,in) -> (…,out) by weights (out,in). `parts`: how the names of weight and bias end. */
static gn_tensor vision__linear_of(vision_model *m, gn_tensor x, int64_t in, int64_t out, const char *prefix,
                                   const char *weight, const char *bias) {
    gn_tensor w = vision__get(m, GN_SHAPE(out, in), 0, vision__bound(in) / 2, prefix, weight);
    gn_tensor b = vision__get(m, GN_SHAPE(out), 0, 0.1, prefix, bias);
    return gn_linear(x, gn_transpose(w, 0, 1), b);
}

static gn_tensor vision__linear(vision_model *m, gn_tensor x, int64_t in, int64_t out, const char *prefix) {
    return vision__linear_of(m, x, in, out, prefix, ".weight", ".bias");
}

static gn_tensor vision__norm(vision_model *m, gn_tensor x, int64_t dim, const char *prefix) {
    gn_tensor gain = vision__get(m, GN_SHAPE(dim), 1, 0.1, prefix, ".weight");
    return gn_layernorm(x, gain, vision__get(m, GN_SHAPE(dim), 0, 0.1, prefix, ".bias"), 1e-6);
}

/* (N,C,H,W) -> (N,C) */
static gn_tensor vision__mean(gn_tensor x) { return gn_mean(x, GN_AXES(2, 3), false); }

static gn_tensor vision__channels_last(gn_tensor x) { return gn_permute(x, GN_AXES(0, 2, 3, 1)); }
static gn_tensor vision__channels_first(gn_tensor x) { return gn_permute(x, GN_AXES(0, 3, 1, 2)); }

/* ---- what a file holds ---------------------------------------------------------------------------------------*/

static const safetensors_tensor *vision__find(const vision_model *m, const char *torchvision, const char *timm) {
    const char *name = vision__named(m, torchvision, timm);
    return name ? safetensors_find(m->file, name) : NULL;
}

/* A size that a file states: axis `axis` of a tensor, 0 where there is none such. */
static int64_t vision__size(const vision_model *m, int axis, const char *torchvision, const char *timm) {
    const safetensors_tensor *t = vision__find(m, torchvision, timm);
    return t && axis < t->rank && t->dims[axis] > 0 && t->dims[axis] < VISION__WIDTH ? t->dims[axis] : 0;
}

/* How many in a row have a tensor of that name, which holds one %d. */
static int64_t vision__row(const vision_model *m, const char *torchvision, const char *timm) {
    char name[VISION__NAME];
    int n = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    for (; n < VISION__DEPTH; n++) {
        snprintf(name, sizeof name, vision__named(m, torchvision, timm), n);
        if (!safetensors_find(m->file, name)) break;
    }
#pragma GCC diagnostic pop
    return n;
}

/* ---- ResNet (He et al. 2015; wide: Zagoruyko, Komodakis 2016; ResNeXt: Xie et al. 2017) ----------------------
 * torchvision and timm have the same names. */

static bool vision__resnet_probe(const vision_model *m, vision_config *c) {
    char name[VISION__NAME];
    c->stem = vision__size(m, 0, "conv1.weight", "conv1.weight");
    c->bottleneck = safetensors_find(m->file, "layer1.0.conv3.weight") != NULL;
    for (int s = 0; s < VISION_STAGES; s++) {
        snprintf(name, sizeof name, "layer%d.%%d.conv1.weight", s + 1);
        c->depth[s] = vision__row(m, name, name);
        snprintf(name, sizeof name, "layer%d.0.conv1.weight", s + 1);
        c->inner[s] = vision__size(m, 0, name, name);
        snprintf(name, sizeof name, "layer%d.0.conv%d.weight", s + 1, c->bottleneck ? 3 : 2);
        c->width[s] = vision__size(m, 0, name, name);
    }
    int64_t each = vision__size(m, 1, "layer1.0.conv2.weight", "layer1.0.conv2.weight");
    c->groups = c->bottleneck && each ? c->inner[0] / each : 1;
    c->classes = vision__size(m, 0, "fc.weight", "fc.weight");
    return c->stem && c->depth[0];
}

static gn_tensor vision__resnet_block(vision_model *m, gn_tensor x, const char *prefix, int stage, int64_t stride) {
    const vision_config *c = &m->c;
    int64_t inner = c->inner[stage], out = c->width[stage];
    gn_tensor skip = x, y;
    vision__conv down = { .out = out, .kernel = 1, .stride = stride, .eps = 1e-5, .gain = 1 };
    vision__conv one = { .out = inner, .kernel = 1, .eps = 1e-5, .gain = 1, .act = VISION__RELU };
    vision__conv two = { .out = inner,
                         .kernel = 3,
                         .stride = stride,
                         .pad = 1,
                         .groups = c->groups,
                         .eps = 1e-5,
                         .gain = 1,
                         .act = VISION__RELU };
    if (!c->bottleneck) { /* two of 3 x 3, of which the first has the stride */
        one = two;
        one.groups = two.groups = two.stride = 1;
        two.out = out;
    }
    vision__conv three = { .out = out, .kernel = 1, .eps = 1e-5, .act = VISION__RELU };
    vision__conv *last = c->bottleneck ? &three : &two;
    bool projects = stride != 1 || vision__dim(x, 1) != out;
    y = vision__conv_norm(m, x, prefix, "conv1", "bn1", &one);
    if (c->bottleneck) y = vision__conv_norm(m, y, prefix, "conv2", "bn2", &two);
    if (projects) skip = vision__conv_norm(m, x, prefix, "downsample.0", "downsample.1", &down);
    last->residual = skip;
    last->gain = 0.3; /* random blocks add little each, so that many of them do not grow without end */
    return vision__conv_norm(m, y, prefix, c->bottleneck ? "conv3" : "conv2", c->bottleneck ? "bn3" : "bn2", last);
}

static gn_tensor vision__resnet(vision_model *m, gn_tensor x) {
    char prefix[VISION__NAME];
    vision__conv stem = {
        .out = m->c.stem, .kernel = 7, .stride = 2, .pad = 3, .eps = 1e-5, .gain = 1, .act = VISION__RELU
    };
    gn_pool_desc pool = {
        .kind = GN_POOL_MAX, .kernel = { 3, 3 }, .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 }
    };
    x = gn_pool(vision__conv_norm(m, x, "", "conv1", "bn1", &stem), &pool);
    for (int s = 0; s < VISION_STAGES; s++)
        for (int64_t b = 0; b < m->c.depth[s]; b++) {
            snprintf(prefix, sizeof prefix, "layer%d.%d.", s + 1, (int)b);
            x = vision__resnet_block(m, x, prefix, s, s && !b ? 2 : 1);
        }
    return vision__linear(m, vision__mean(x), m->c.width[VISION_STAGES - 1], m->c.classes, "fc");
}

static void vision__resnet_words(const vision_config *c, char out[96]) {
    int64_t blocks = c->depth[0] + c->depth[1] + c->depth[2] + c->depth[3];
    snprintf(out, 96, "ResNet, %lld layers", (long long)(2 + blocks * (c->bottleneck ? 3 : 2)));
}

/* ---- MobileNet v3 (Howard et al. 2019) -----------------------------------------------------------------------*/

typedef struct vision__mobile { /* strides and activations cannot be told from shapes */
    int kernel, expanded, out, squeezes, hard_swish, stride;
} vision__mobile;

static const vision__mobile vision__mobile_large[] = {
    { 3, 16, 16, 0, 0, 1 },   { 3, 64, 24, 0, 0, 2 },   { 3, 72, 24, 0, 0, 1 },   { 5, 72, 40, 1, 0, 2 },
    { 5, 120, 40, 1, 0, 1 },  { 5, 120, 40, 1, 0, 1 },  { 3, 240, 80, 0, 1, 2 },  { 3, 200, 80, 0, 1, 1 },
    { 3, 184, 80, 0, 1, 1 },  { 3, 184, 80, 0, 1, 1 },  { 3, 480, 112, 1, 1, 1 }, { 3, 672, 112, 1, 1, 1 },
    { 5, 672, 160, 1, 1, 2 }, { 5, 960, 160, 1, 1, 1 }, { 5, 960, 160, 1, 1, 1 }, { 0 },
};
static const vision__mobile vision__mobile_small[] = {
    { 3, 16, 16, 1, 0, 2 },  { 3, 72, 24, 0, 0, 2 },  { 3, 88, 24, 0, 0, 1 },  { 5, 96, 40, 1, 1, 2 },
    { 5, 240, 40, 1, 1, 1 }, { 5, 240, 40, 1, 1, 1 }, { 5, 120, 48, 1, 1, 1 }, { 5, 144, 48, 1, 1, 1 },
    { 5, 288, 96, 1, 1, 2 }, { 5, 576, 96, 1, 1, 1 }, { 5, 576, 96, 1, 1, 1 }, { 0 },
};
static const struct {
    const char *words;
    const vision__mobile *rows;
    int stem, head;
} vision__mobiles[] = {
    { "large", vision__mobile_large, 16, 1280 },
    { "small", vision__mobile_small, 16, 1024 },
};

static bool vision__mobilenet_probe(const vision_model *m, vision_config *c) {
    int64_t head = vision__size(m, 0, "classifier.0.weight", "conv_head.weight");
    c->classes = vision__size(m, 0, "classifier.3.weight", "classifier.weight");
    c->table = head == vision__mobiles[1].head ? 1 : 0;
    return vision__find(m, "features.1.block.0.0.weight", "blocks.0.0.conv_dw.weight") &&
           vision__find(m, "features.0.0.weight", "conv_stem.weight");
}

/* The channels of a squeeze: a quarter, to a multiple of 8, not below nine tenths of it. */
static int64_t vision__squeeze(int64_t channels) {
    int64_t n = (channels / 4 + 4) / 8 * 8;
    n = n < 8 ? 8 : n;
    return 10 * n < 9 * (channels / 4) ? n + 8 : n;
}

/* x times a gate for each channel, from the channels' means. */
static gn_tensor vision__gate(vision_model *m, gn_tensor x, const char *prefix, int64_t channels) {
    char name[VISION__NAME + 32];
    int64_t inner = vision__squeeze(channels);
    gn_tensor y = gn_mean(x, GN_AXES(2, 3), true);
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, ".fc1", ".conv_reduce"));
    y = gn_relu(vision__conv_bias(m, y, name, &(vision__conv){ .out = inner, .kernel = 1 }));
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, ".fc2", ".conv_expand"));
    y = vision__conv_bias(m, y, name, &(vision__conv){ .out = channels, .kernel = 1 });
    return gn_mul(x, gn_hard_sigmoid(y));
}

/* Names of the i-th convolution of a block, of its norm, and of what follows them. */
static gn_tensor vision__mobile_conv(vision_model *m, gn_tensor x, const char *prefix, int i, int count, bool expands,
                                     const vision__conv *d) {
    static const char *const timm[2][3] = { { "conv_dw", "conv_pw" }, { "conv_pw", "conv_dw", "conv_pwl" } };
    char conv[32], norm[32];
    int at = i + 1 < (expands ? 3 : 2) ? i : count - 1; /* torchvision counts the gate */
    if (m->naming == VISION_TIMM) {
        snprintf(conv, sizeof conv, "%s", timm[expands][i]);
        snprintf(norm, sizeof norm, "bn%d", i + 1);
    } else {
        snprintf(conv, sizeof conv, "block.%d.0", at);
        snprintf(norm, sizeof norm, "block.%d.1", at);
    }
    return vision__conv_norm(m, x, prefix, conv, norm, d);
}

static gn_tensor vision__mobile_block(vision_model *m, gn_tensor x, const char *prefix, const vision__mobile *r,
                                      double eps) {
    vision__act act = r->hard_swish ? VISION__HARD_SWISH : VISION__RELU;
    int64_t in = vision__dim(x, 1);
    bool expands = r->expanded != in;
    int i = 0, count = 2 + expands + r->squeezes;
    char gate[VISION__NAME + 16];
    gn_tensor y = x;
    vision__conv d = { .out = r->expanded, .kernel = 1, .eps = eps, .gain = 1, .act = act };
    if (expands) y = vision__mobile_conv(m, y, prefix, i++, count, expands, &d);
    d.kernel = r->kernel;
    d.stride = r->stride;
    d.pad = r->kernel / 2;
    d.groups = r->expanded;
    y = vision__mobile_conv(m, y, prefix, i++, count, expands, &d);
    snprintf(gate, sizeof gate, "%s%s", prefix, vision__named(m, expands ? "block.2" : "block.1", "se"));
    if (r->squeezes) y = vision__gate(m, y, gate, r->expanded);
    d = (vision__conv){ .out = r->out, .kernel = 1, .eps = eps, .gain = 1 };
    if (r->stride == 1 && in == r->out) d.residual = x;
    return vision__mobile_conv(m, y, prefix, i, count, expands, &d);
}

static gn_tensor vision__mobilenet(vision_model *m, gn_tensor x) {
    const vision__mobile *rows = vision__mobiles[m->c.table].rows;
    double eps = m->naming == VISION_TIMM ? 1e-5 : 1e-3;
    int64_t head = vision__mobiles[m->c.table].head;
    int stage = 0, in_stage = 0, n = 0;
    char prefix[VISION__NAME];
    vision__conv d = { .out = vision__mobiles[m->c.table].stem,
                       .kernel = 3,
                       .stride = 2,
                       .pad = 1,
                       .eps = eps,
                       .gain = 1,
                       .act = VISION__HARD_SWISH };
    x = vision__conv_norm(m, x, "", vision__named(m, "features.0.0", "conv_stem"),
                          vision__named(m, "features.0.1", "bn1"), &d);
    for (; rows[n].out; n++) { /* timm begins a stage where the width changes */
        if (n && rows[n].out != rows[n - 1].out) stage++, in_stage = 0;
        if (m->naming == VISION_TIMM) snprintf(prefix, sizeof prefix, "blocks.%d.%d.", stage, in_stage++);
        else snprintf(prefix, sizeof prefix, "features.%d.", n + 1);
        x = vision__mobile_block(m, x, prefix, &rows[n], eps);
    }
    if (m->naming == VISION_TIMM) snprintf(prefix, sizeof prefix, "blocks.%d.0.", stage + 1);
    else snprintf(prefix, sizeof prefix, "features.%d.", n + 1);
    int64_t wide = 6 * rows[n - 1].out;
    d = (vision__conv){ .out = wide, .kernel = 1, .eps = eps, .gain = 1, .act = VISION__HARD_SWISH };
    x = vision__conv_norm(m, x, prefix, vision__named(m, "0", "conv"), vision__named(m, "1", "bn1"), &d);
    x = vision__linear(m, vision__mean(x), wide, head, vision__named(m, "classifier.0", "conv_head"));
    return vision__linear(m, gn_hard_swish(x), head, m->c.classes, vision__named(m, "classifier.3", "classifier"));
}

static void vision__mobilenet_words(const vision_config *c, char out[96]) {
    snprintf(out, 96, "MobileNet v3, %s", vision__mobiles[c->table].words);
}

/* ---- ConvNeXt (Liu et al. 2022) ------------------------------------------------------------------------------*/

static bool vision__convnext_probe(const vision_model *m, vision_config *c) {
    char torchvision[VISION__NAME], timm[VISION__NAME];
    for (int s = 0; s < VISION_STAGES; s++) {
        snprintf(torchvision, sizeof torchvision, "features.%d.%%d.block.0.weight", 2 * s + 1);
        snprintf(timm, sizeof timm, "stages.%d.blocks.%%d.conv_dw.weight", s);
        c->depth[s] = vision__row(m, torchvision, timm);
        snprintf(torchvision, sizeof torchvision, "features.%d.0.block.0.weight", 2 * s + 1);
        snprintf(timm, sizeof timm, "stages.%d.blocks.0.conv_dw.weight", s);
        c->width[s] = vision__size(m, 0, torchvision, timm);
    }
    c->classes = vision__size(m, 0, "classifier.2.weight", "head.fc.weight");
    return c->depth[0] && vision__find(m, "features.1.0.layer_scale", "stem.0.weight");
}

static gn_tensor vision__convnext_block(vision_model *m, gn_tensor x, const char *prefix, int64_t width) {
    char name[VISION__NAME + 16];
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "block.0", "conv_dw"));
    gn_tensor y =
        vision__conv_bias(m, x, name, &(vision__conv){ .out = width, .kernel = 7, .pad = 3, .groups = width });
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "block.2", "norm"));
    y = vision__norm(m, vision__channels_last(y), width, name);
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "block.3", "mlp.fc1"));
    y = gn_gelu(vision__linear(m, y, width, 4 * width, name));
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "block.5", "mlp.fc2"));
    y = vision__channels_first(vision__linear(m, y, 4 * width, width, name));
    gn_tensor scale = vision__get(m, GN_SHAPE(width, 1, 1), 0.5, 0.1, prefix, vision__named(m, "layer_scale", "gamma"));
    return gn_add(x, gn_mul(y, scale));
}

static gn_tensor vision__convnext(vision_model *m, gn_tensor x) {
    const int64_t *width = m->c.width;
    char prefix[VISION__NAME], name[VISION__NAME];
    x = vision__conv_bias(m, x, vision__named(m, "features.0.0", "stem.0"),
                          &(vision__conv){ .out = width[0], .kernel = 4, .stride = 4 });
    x = vision__channels_last(x);
    x = vision__channels_first(vision__norm(m, x, width[0], vision__named(m, "features.0.1", "stem.1")));
    for (int s = 0; s < VISION_STAGES; s++) {
        if (s) {
            snprintf(prefix, sizeof prefix, m->naming == VISION_TIMM ? "stages.%d.downsample" : "features.%d",
                     m->naming == VISION_TIMM ? s : 2 * s);
            snprintf(name, sizeof name, "%.80s.0", prefix);
            x = vision__channels_first(vision__norm(m, vision__channels_last(x), width[s - 1], name));
            snprintf(name, sizeof name, "%.80s.1", prefix);
            x = vision__conv_bias(m, x, name, &(vision__conv){ .out = width[s], .kernel = 2, .stride = 2 });
        }
        for (int64_t b = 0; b < m->c.depth[s]; b++) {
            if (m->naming == VISION_TIMM) snprintf(prefix, sizeof prefix, "stages.%d.blocks.%d.", s, (int)b);
            else snprintf(prefix, sizeof prefix, "features.%d.%d.", 2 * s + 1, (int)b);
            x = vision__convnext_block(m, x, prefix, width[s]);
        }
    }
    x = vision__norm(m, vision__mean(x), width[VISION_STAGES - 1], vision__named(m, "classifier.0", "head.norm"));
    return vision__linear(m, x, width[VISION_STAGES - 1], m->c.classes, vision__named(m, "classifier.2", "head.fc"));
}

static void vision__convnext_words(const vision_config *c, char out[96]) {
    snprintf(out, 96, "ConvNeXt, %lld blocks", (long long)(c->depth[0] + c->depth[1] + c->depth[2] + c->depth[3]));
}

/* ---- ViT (Dosovitskiy et al. 2021) ---------------------------------------------------------------------------*/

static bool vision__vit_probe(const vision_model *m, vision_config *c) {
    c->stem = vision__size(m, 0, "conv_proj.weight", "patch_embed.proj.weight");
    c->patch = vision__size(m, 3, "conv_proj.weight", "patch_embed.proj.weight");
    c->depth[0] = vision__row(m, "encoder.layers.encoder_layer_%d.ln_1.weight", "blocks.%d.norm1.weight");
    c->inner[0] = vision__size(m, 0, "encoder.layers.encoder_layer_0.mlp.0.weight", "blocks.0.mlp.fc1.weight");
    c->classes = vision__size(m, 0, "heads.head.weight", "head.weight");
    c->heads = c->stem / 64;
    return c->stem && c->patch && vision__find(m, "class_token", "cls_token");
}

static gn_tensor vision__heads(gn_tensor qkv, int which, int64_t n, int64_t tokens, int64_t heads, int64_t dim) {
    gn_tensor part = gn_slice(qkv, 2, which * dim, (which + 1) * dim, 1);
    return gn_transpose(gn_reshape(part, GN_SHAPE(n, tokens, heads, dim / heads)), 1, 2);
}

static gn_tensor vision__vit_layer(vision_model *m, gn_tensor x, int64_t n, int64_t tokens, int layer) {
    int64_t dim = m->c.stem, heads = m->c.heads;
    char prefix[64], name[VISION__NAME];
    snprintf(prefix, sizeof prefix, m->naming == VISION_TIMM ? "blocks.%d." : "encoder.layers.encoder_layer_%d.",
             layer);
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "ln_1", "norm1"));
    gn_tensor y = vision__norm(m, x, dim, name);
    y = vision__linear_of(m, y, dim, 3 * dim, prefix,
                          vision__named(m, "self_attention.in_proj_weight", "attn.qkv.weight"),
                          vision__named(m, "self_attention.in_proj_bias", "attn.qkv.bias"));
    gn_tensor q = vision__heads(y, 0, n, tokens, heads, dim), k = vision__heads(y, 1, n, tokens, heads, dim);
    y = gn_attention(q, k, vision__heads(y, 2, n, tokens, heads, dim), NULL);
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "self_attention.out_proj", "attn.proj"));
    y = gn_reshape(gn_transpose(y, 1, 2), GN_SHAPE(n, tokens, dim));
    x = gn_add(x, vision__linear(m, y, dim, dim, name));
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "ln_2", "norm2"));
    y = vision__norm(m, x, dim, name);
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "mlp.0", "mlp.fc1"));
    y = gn_gelu(vision__linear(m, y, dim, m->c.inner[0], name));
    snprintf(name, sizeof name, "%s%s", prefix, vision__named(m, "mlp.3", "mlp.fc2"));
    return gn_add(x, vision__linear(m, y, m->c.inner[0], dim, name));
}

static gn_tensor vision__vit(vision_model *m, gn_tensor x) {
    int64_t dim = m->c.stem, side = m->preparation.size / m->c.patch, tokens = side * side + 1, n = vision__dim(x, 0);
    gn_tensor first = vision__get(m, GN_SHAPE(1, 1, dim), 0, 0.5, "", vision__named(m, "class_token", "cls_token"));
    x = vision__conv_bias(m, x, vision__named(m, "conv_proj", "patch_embed.proj"),
                          &(vision__conv){ .out = dim, .kernel = m->c.patch, .stride = m->c.patch });
    x = gn_transpose(gn_reshape(x, GN_SHAPE(n, dim, side * side)), 1, 2);
    gn_tensor parts[2] = { gn_broadcast(first, GN_SHAPE(n, 1, dim)), x };
    x = gn_add(gn_concat(parts, 2, 1), vision__get(m, GN_SHAPE(1, tokens, dim), 0, 0.5, "",
                                                   vision__named(m, "encoder.pos_embedding", "pos_embed")));
    for (int64_t i = 0; i < m->c.depth[0]; i++) x = vision__vit_layer(m, x, n, tokens, (int)i);
    x = gn_reshape(gn_slice(x, 1, 0, 1, 1), GN_SHAPE(n, dim));
    x = vision__norm(m, x, dim, vision__named(m, "encoder.ln", "norm"));
    return vision__linear(m, x, dim, m->c.classes, vision__named(m, "heads.head", "head"));
}

static void vision__vit_words(const vision_config *c, char out[96]) {
    snprintf(out, 96, "ViT, %lld layers of %lld, patches of %lld", (long long)c->depth[0], (long long)c->stem,
             (long long)c->patch);
}

/* ---- tables --------------------------------------------------------------------------------------------------*/

static const struct {
    bool (*probe)(const vision_model *m, vision_config *c); /* the file's tensors are of this family */
    gn_tensor (*build)(vision_model *m, gn_tensor x);
    void (*words)(const vision_config *c, char out[96]);
    int namings;
    int64_t resize; /* of the preprocessing that its authors state for 224 pixels */
} vision__families[VISION__FAMILIES] = {
    [VISION__RESNET] = { vision__resnet_probe, vision__resnet, vision__resnet_words, 1, 256 },
    [VISION__MOBILENET] = { vision__mobilenet_probe, vision__mobilenet, vision__mobilenet_words, 2, 256 },
    [VISION__CONVNEXT] = { vision__convnext_probe, vision__convnext, vision__convnext_words, 2, 236 },
    [VISION__VIT] = { vision__vit_probe, vision__vit, vision__vit_words, 2, 256 },
};

#define VISION__BASIC \
    { 64, 128, 256, 512 }
#define VISION__WIDE \
    { 256, 512, 1024, 2048 }
#define VISION__NEXT \
    { 96, 192, 384, 768 }
static const struct {
    const char *name;
    vision_config c;
} vision__archs[] = {
    { "resnet18",
      { .family = VISION__RESNET,
        .stem = 64,
        .depth = { 2, 2, 2, 2 },
        .width = VISION__BASIC,
        .inner = VISION__BASIC,
        .groups = 1 } },
    { "resnet34",
      { .family = VISION__RESNET,
        .stem = 64,
        .depth = { 3, 4, 6, 3 },
        .width = VISION__BASIC,
        .inner = VISION__BASIC,
        .groups = 1 } },
    { "resnet50",
      { .family = VISION__RESNET,
        .stem = 64,
        .depth = { 3, 4, 6, 3 },
        .width = VISION__WIDE,
        .inner = VISION__BASIC,
        .groups = 1,
        .bottleneck = true } },
    { "resnet101",
      { .family = VISION__RESNET,
        .stem = 64,
        .depth = { 3, 4, 23, 3 },
        .width = VISION__WIDE,
        .inner = VISION__BASIC,
        .groups = 1,
        .bottleneck = true } },
    { "mobilenet_v3_large", { .family = VISION__MOBILENET, .table = 0 } },
    { "mobilenet_v3_small", { .family = VISION__MOBILENET, .table = 1 } },
    { "convnext_tiny", { .family = VISION__CONVNEXT, .depth = { 3, 3, 9, 3 }, .width = VISION__NEXT } },
    { "convnext_small", { .family = VISION__CONVNEXT, .depth = { 3, 3, 27, 3 }, .width = VISION__NEXT } },
    { "vit_b_16",
      { .family = VISION__VIT, .stem = 768, .depth = { 12 }, .inner = { 3072 }, .patch = 16, .heads = 12 } },
    { "vit_b_32",
      { .family = VISION__VIT, .stem = 768, .depth = { 12 }, .inner = { 3072 }, .patch = 32, .heads = 12 } },
};

const char *vision_arch(int i) {
    return i >= 0 && i < (int)(sizeof vision__archs / sizeof *vision__archs) ? vision__archs[i].name : NULL;
}

static bool vision__arch_of(const char *name, vision_config *out, char *error) {
    for (int i = 0; vision_arch(i); i++)
        if (!strcmp(vision_arch(i), name)) {
            *out = vision__archs[i].c;
            return true;
        }
    size_t n = (size_t)snprintf(error, VISION_ERROR, "no architecture '%.80s'; there are:", name);
    for (int i = 0; vision_arch(i); i++) n += (size_t)snprintf(error + n, VISION_ERROR - n, " %s", vision_arch(i));
    return false;
}

/* ---- planning, reading, random weights -----------------------------------------------------------------------*/

gn_tensor vision_forward(vision_model *m, gn_tensor x) {
    m->next_param = m->next_slot = 0;
    gn_tensor y = vision__families[m->c.family].build(m, x);
    return m->failed ? GN_NONE : y;
}

/* Names and shapes of all parameters, by building the graph on a device that computes nothing. */
static bool vision__plan(vision_model *m) {
    gn_info info;
    int64_t size = m->preparation.size;
    m->g = gn_open(&(gn_desc){ .devices = "null" });
    m->planning = true;
    m->n = 0;
    gn_tensor y = vision_forward(m, gn_full(m->g, GN_F32, GN_SHAPE(1, 3, size, size), 0));
    bool ok = !m->failed && gn_describe(y, &info) == GN_OK;
    if (!ok)
        vision__fail(m->error, m->failed ? "out of memory" : "the sizes do not fit together: %.400s",
                     gn_last_error(m->g)->text);
    m->planning = false;
    gn_close(m->g);
    m->g = NULL;
    m->slots = ok ? (vision__slot *)calloc(m->n + 1, sizeof *m->slots) : NULL;
    return ok && (m->slots || vision__fail(m->error, "out of memory"));
}

static bool vision__same_shape(const safetensors_tensor *t, gn_shape s) {
    int a = 0, b = 0;
    for (;; a++, b++) {
        while (a < t->rank && t->dims[a] == 1) a++;
        while (b < s.rank && s.dims[b] == 1) b++;
        if (a == t->rank || b == s.rank) return a == t->rank && b == s.rank;
        if (t->dims[a] != s.dims[b]) return false;
    }
}

/* f32 in the file stays there if it is aligned; anything else becomes f32. */
static bool vision__read(vision_model *m, vision__param *p, const safetensors_tensor *t) {
    int64_t n = vision__count(p->shape);
    if (t->dtype == SAFETENSORS_F32 && (uintptr_t)t->data % sizeof(float) == 0) {
        p->host = (const float *)(const void *)t->data;
        return true;
    }
    p->host = p->owned = (float *)malloc((size_t)n * sizeof(float));
    if (!p->owned) return vision__fail(m->error, "out of memory for tensor %s", p->name);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        if (t->dtype == SAFETENSORS_F32) memcpy(&p->owned[i], t->data + i * 4, 4);
        else {
            memcpy(&half, t->data + i * 2, 2);
            p->owned[i] = t->dtype == SAFETENSORS_F16 ? gn_f16_to_f32(half) : gn_bf16_to_f32(half);
        }
    }
    return true;
}

static int vision__by_name(const void *a, const void *b) { return strcmp((const char *)a, *(const char *const *)b); }
static int vision__names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No tensor of the file is left over, but for counters of training. */
static bool vision__none_left(vision_model *m, const char *path) {
    const char **names = (const char **)malloc((m->n + 1) * sizeof *names), *left = NULL;
    if (!names) return vision__fail(m->error, "out of memory");
    for (size_t i = 0; i < m->n; i++) names[i] = m->params[i].name;
    qsort(names, m->n, sizeof *names, vision__names);
    for (size_t i = 0; i < safetensors_count(m->file) && !left; i++) {
        const char *name = safetensors_at(m->file, i)->name, *tail = strrchr(name, '.');
        if (tail && !strcmp(tail, ".num_batches_tracked")) continue;
        if (!bsearch(name, names, m->n, sizeof *names, vision__by_name)) left = name;
    }
    free(names);
    return !left || vision__fail(m->error, "%.200s: tensor %.100s is no part of %s", path, left, m->text);
}

static bool vision__fill(vision_model *m, const char *path) {
    char have[96], want[96];
    for (size_t i = 0; i < m->n; i++) {
        vision__param *p = &m->params[i];
        const safetensors_tensor *t = safetensors_find(m->file, p->name);
        vision__shape(want, p->shape.rank, p->shape.dims);
        if (!t) return vision__fail(m->error, "%.200s: no tensor %s %s, which %s has", path, p->name, want, m->text);
        if (!vision__same_shape(t, p->shape))
            return vision__fail(m->error, "%.200s: tensor %s is %s, and %s has %s", path, p->name,
                                vision__shape(have, t->rank, t->dims), m->text, want);
        if (t->dtype != SAFETENSORS_F32 && t->dtype != SAFETENSORS_F16 && t->dtype != SAFETENSORS_BF16)
            return vision__fail(m->error, "%.200s: tensor %s is %s; F32, F16 and BF16 are read", path, p->name,
                                safetensors_dtype_name(t->dtype));
        if (!vision__read(m, p, t)) return false;
    }
    return vision__none_left(m, path);
}

/* Uniform numbers by a counter (Steele et al. 2014), begun by seed and name (FNV-1a): no order, no library of C. */
static bool vision__invent(vision_model *m, uint64_t seed) {
    for (size_t i = 0; i < m->n; i++) {
        vision__param *p = &m->params[i];
        int64_t n = vision__count(p->shape);
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (const char *c = p->name; *c; c++) h = (h ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
        p->host = p->owned = (float *)malloc((size_t)n * sizeof(float));
        if (!p->owned) return vision__fail(m->error, "out of memory for tensor %s", p->name);
        for (int64_t k = 0; k < n; k++) {
            uint64_t z = h + seed + UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(k + 1);
            z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
            z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
            p->owned[k] = (float)(p->centre + p->half * ((double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1));
        }
    }
    return true;
}

/* ---- opening -------------------------------------------------------------------------------------------------*/

static void vision__words(vision_model *m) {
    char family[96];
    vision__families[m->c.family].words(&m->c, family);
    snprintf(m->text, sizeof m->text, "%s%s", family,
             vision__families[m->c.family].namings == 1 ? ""
             : m->naming == VISION_TIMM                 ? ", names of timm"
                                                        : ", names of torchvision");
}

/* Sets family, config and names by the first family that knows the tensors. */
static bool vision__recognise(vision_model *m, const char *path, const char *arch) {
    vision_config wanted = { 0 };
    if (arch && !vision__arch_of(arch, &wanted, m->error)) return false;
    for (int f = 0; f < VISION__FAMILIES; f++)
        for (int naming = 0; naming < vision__families[f].namings; naming++) {
            vision_config c = { .family = f };
            m->naming = naming;
            if (!vision__families[f].probe(m, &c)) continue;
            if (arch && wanted.family != f) continue;
            m->c = arch ? wanted : c;
            m->c.classes = c.classes ? c.classes : 1000;
            vision__words(m);
            return true;
        }
    return vision__fail(m->error, "%.200s: its %zu tensors are not those of %s", path, safetensors_count(m->file),
                        arch ? arch : "ResNet, MobileNet v3, ConvNeXt or ViT in torchvision's or timm's names");
}

static const vision_preparation vision__usual = { .size = 224,
                                                  .mean = { 0.485, 0.456, 0.406 },
                                                  .std = { 0.229, 0.224, 0.225 } };

/* Three numbers of config.json, or none. */
static bool vision__three(vision_model *m, json_value pre, const char *name, bool positive, double out[3]) {
    json_value key, v, list = json_get(pre, name);
    int n = 0;
    if (json_kind_of(list) == JSON_MISSING) return true;
    for (json_iter i = json_begin(list); json_next(&i, &key, &v); n++)
        if (n < 3 && (!json_get_double(v, &out[n]) || (positive && out[n] <= 0)))
            return vision__fail(m->error, "config.json: %s holds what is no%s number", name,
                                positive ? " positive" : "");
    return n == 3 || vision__fail(m->error, "config.json: %s has %d numbers, 3 are right", name, n);
}

/* Networks of timm whose tensors have the names and shapes of a family and that compute something else: those with the
   padding of TensorFlow, and those made with arguments that change what layers do. */
static bool vision__usual_layers(vision_model *m, json_value root) {
    char name[64] = "";
    json_value key, v;
    json_get_string(json_get(root, "architecture"), name, sizeof name, NULL);
    if (!strncmp(name, "tf_", 3))
        return vision__fail(m->error, "config.json: %s pads as TensorFlow does, which is not computed", name);
    for (json_iter i = json_begin(json_get(root, "model_args")); json_next(&i, &key, &v);)
        if (!json_is(key, "num_heads") && !json_is(key, "img_size") && !json_is(key, "patch_size"))
            return vision__fail(m->error, "config.json: model_args has %.*s, which is not known",
                                key.size < 80 ? (int)key.size : 80, key.text ? key.text : "an element");
    return true;
}

/* What timm writes into config.json about pictures. */
static bool vision__configure(vision_model *m, json_value root) {
    vision_preparation *p = &m->preparation;
    json_value pre = json_get(root, "pretrained_cfg");
    double size[3] = { 3, (double)p->size, (double)p->size }, crop = (double)p->size / (double)p->resize;
    if (!vision__usual_layers(m, root) || !vision__three(m, pre, "mean", false, p->mean) ||
        !vision__three(m, pre, "std", true, p->std) || !vision__three(m, pre, "input_size", true, size))
        return false;
    bool crops = json_get_double(json_get(pre, "crop_pct"), &crop);
    if (size[0] != 3 || size[1] != size[2] || size[1] != floor(size[1]) || size[1] > 8192 || crop < 0.1 || crop > 1)
        return vision__fail(m->error,
                            "config.json: pictures of (%g,%g,%g), of which %g is taken: 3 channels, squares of "
                            "up to 8192 pixels and shares from 0.1 to 1 are read",
                            size[0], size[1], size[2], crop);
    p->resize = crops ? (int64_t)floor(size[1] / crop) : p->resize * (int64_t)size[1] / p->size;
    p->size = (int64_t)size[1];
    p->cubic = json_is(json_get(pre, "interpolation"), "bicubic");
    if (!json_get_i64(json_get(json_get(root, "model_args"), "num_heads"), &m->c.heads))
        json_get_i64(json_get(root, "num_heads"), &m->c.heads);
    return true;
}

static bool vision__read_config(vision_model *m, const char *path) {
    char beside[4096], why[256];
    mapping file;
    json_value root;
    json_error error;
    const char *slash = strrchr(path, '/');
    bool is_file = strlen(path) > 12 && !strcmp(path + strlen(path) - 12, ".safetensors");
    if (is_file) snprintf(beside, sizeof beside, "%.*sconfig.json", slash ? (int)(slash - path + 1) : 0, path);
    else snprintf(beside, sizeof beside, "%s/config.json", path);
    if (!mapping_open(&file, beside, why, sizeof why)) return errno == ENOENT || vision__fail(m->error, "%s", why);
    bool ok = json_check((const char *)file.data, (size_t)file.size, &(json_limits){ .bytes = 1 << 24 }, &root, &error);
    if (!ok) vision__fail(m->error, "%.300s: byte %zu: %s", beside, error.offset, error.text);
    ok = ok && vision__configure(m, root);
    mapping_close(&file);
    return ok;
}

/* A ViT has positions for one size of picture, and heads of one size. */
static bool vision__fit(vision_model *m, const char *path) {
    if (m->c.family != VISION__VIT) return true;
    int64_t places = vision__size(m, 1, "encoder.pos_embedding", "pos_embed"), side = 1;
    while ((side + 1) * (side + 1) < places) side++;
    if (places && side * side + 1 != places)
        return vision__fail(m->error, "%.200s: %lld positions are not one and those of a square", path,
                            (long long)places);
    if (m->c.heads < 1 || m->c.stem % m->c.heads)
        return vision__fail(m->error, "%.200s: %lld channels do not divide into %lld heads", path, (long long)m->c.stem,
                            (long long)m->c.heads);
    if (!places || m->preparation.size == side * m->c.patch) return true;
    m->preparation.resize = side * m->c.patch * m->preparation.resize / m->preparation.size;
    m->preparation.size = side * m->c.patch;
    return true;
}

vision_model *vision_open(const char *path, const char *arch, char error[VISION_ERROR]) {
    vision_model *m = (vision_model *)calloc(1, sizeof *m);
    if (!m && !vision__fail(error, "out of memory")) return NULL;
    m->error = error;
    m->folds = true;
    m->preparation = vision__usual;
    m->file = safetensors_open(path, error);
    bool ok = m->file && vision__recognise(m, path, arch);
    if (ok) m->preparation.resize = vision__families[m->c.family].resize;
    ok = ok && vision__read_config(m, path) && vision__fit(m, path) && vision__plan(m) && vision__fill(m, path);
    if (ok) return m;
    vision_close(m);
    return NULL;
}

vision_model *vision_random(const char *arch, vision_naming names, int64_t classes, int64_t size, uint64_t seed,
                            char error[VISION_ERROR]) {
    vision_config c;
    if (!vision__arch_of(arch, &c, error)) return NULL;
    if (c.patch && size % c.patch) {
        vision__fail(error, "%lld pixels are not a multiple of %s's patches of %lld", (long long)size, arch,
                     (long long)c.patch);
        return NULL;
    }
    vision_model *m = (vision_model *)calloc(1, sizeof *m);
    if (!m && !vision__fail(error, "out of memory")) return NULL;
    m->error = error;
    m->folds = true;
    m->c = c;
    m->naming = vision__families[c.family].namings == 1 ? VISION_TORCHVISION : (int)names;
    m->c.classes = classes;
    m->preparation = vision__usual;
    m->preparation.resize = size * vision__families[c.family].resize / m->preparation.size;
    m->preparation.size = size;
    vision__words(m);
    if (vision__plan(m) && vision__invent(m, seed)) return m;
    vision_close(m);
    return NULL;
}

void vision_close(vision_model *m) {
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->params[i].owned);
        if (m->slots) free(m->slots[i].owned);
    }
    free(m->params);
    free(m->slots);
    safetensors_close(m->file);
    free(m);
}

bool vision_save(const vision_model *m, const char *folder, char error[VISION_ERROR]) {
    char path[4096];
    const char *const format[] = { "format", "pt", NULL };
    safetensors_tensor *t = (safetensors_tensor *)calloc(m->n + 1, sizeof *t);
    if (!t) return vision__fail(error, "out of memory");
    for (size_t i = 0; i < m->n; i++) {
        const vision__param *p = &m->params[i];
        t[i] = (safetensors_tensor){ .name = p->name,
                                     .dims = p->shape.dims,
                                     .data = (const uint8_t *)(const void *)p->host,
                                     .bytes = (uint64_t)vision__count(p->shape) * sizeof(float),
                                     .rank = (uint8_t)p->shape.rank,
                                     .dtype = SAFETENSORS_F32 };
    }
    bool ok = snprintf(path, sizeof path, "%s/model.safetensors", folder) < (int)sizeof path &&
              safetensors_write(path, t, m->n, format, error);
    free(t);
    return ok;
}

/* ---- use -----------------------------------------------------------------------------------------------------*/

void vision_bind(vision_model *m, gn_ctx *g) {
    for (size_t i = 0; i < m->n; i++) {
        free(m->slots[i].owned);
        m->slots[i] = (vision__slot){ .owned = NULL };
    }
    m->g = g;
}

void vision_fold(vision_model *m, bool folds) { m->folds = folds; }
const vision_config *vision_get_config(const vision_model *m) { return &m->c; }
const vision_preparation *vision_get_preparation(const vision_model *m) { return &m->preparation; }
const char *vision_describe(const vision_model *m) { return m->text; }

int64_t vision_parameters(const vision_model *m) {
    int64_t n = 0;
    for (size_t i = 0; i < m->n; i++) n += vision__count(m->params[i].shape);
    return n;
}

bool vision_set_size(vision_model *m, int64_t size, int64_t resize, char error[VISION_ERROR]) {
    vision_preparation *p = &m->preparation;
    if (size && size != p->size && m->c.family == VISION__VIT)
        return vision__fail(error, "this model has positions for pictures of %lld pixels a side, not for %lld",
                            (long long)p->size, (long long)size);
    if (size) {
        p->resize = p->resize * size / p->size;
        p->size = size;
    }
    if (resize) p->resize = resize;
    return p->resize >= p->size ||
           vision__fail(error, "a side of %lld pixels is less than the %lld that the model sees", (long long)p->resize,
                        (long long)p->size);
}

bool vision_intact(const vision_model *m, char error[VISION_ERROR]) {
    return !m->file || safetensors_intact(m->file, error);
}

gn_tensor vision_prepare(const vision_model *m, gn_tensor pixels) {
    const vision_preparation *p = &m->preparation;
    int64_t h = vision__dim(pixels, 0), w = vision__dim(pixels, 1), shorter = h < w ? h : w, size = p->size;
    int64_t to[2] = { h * p->resize / shorter, w * p->resize / shorter };
    gn_tensor x = gn_cast(gn_permute(pixels, GN_AXES(2, 0, 1)), GN_F32);
    gn_interpolate_desc d = { .kind = p->cubic ? GN_INTERPOLATE_CUBIC : GN_INTERPOLATE_LINEAR,
                              .inside = true,
                              .sets_cubic = true,
                              .cubic = -0.5 };
    for (int i = 0; i < 2; i++) d.stretch[i] = fmax(1, (double)(i ? w : h) / (double)to[i]);
    if (shorter != p->resize) x = gn_interpolate(x, GN_AXES(1, 2), GN_SHAPE(to[0], to[1]), &d);
    for (int i = 0; i < 2; i++) { /* the middle, half of an odd rest rounded to even */
        int64_t begin = (int64_t)nearbyint((double)(to[i] - size) / 2);
        x = gn_slice(x, i + 1, begin, begin + size, 1);
    }
    float mean[3], std[3];
    for (int i = 0; i < 3; i++) mean[i] = (float)(p->mean[i] * 255), std[i] = (float)(p->std[i] * 255);
    gn_ctx *g = pixels.ctx;
    x = gn_sub(x, gn_data_copy(g, GN_F32, GN_SHAPE(3, 1, 1), mean));
    return gn_unsqueeze(gn_div(x, gn_data_copy(g, GN_F32, GN_SHAPE(3, 1, 1), std)), 0);
}
#endif
