/* Learns to draw: a small U-Net is trained to take noise away from pictures of shapes (Ho et al. 2020), then makes new
 * ones out of noise (DDIM, Song et al. 2021), each of the kind asked for, and writes them as a PPM file.
 *
 *   ./examples/diffusion                                  on a server in this process; writes shapes.ppm
 *   ./examples/diffusion --save net.safetensors           keep the network
 *   ./examples/diffusion --load net.safetensors --seed 7  draw with it, without training */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "common.h"
#define SAFETENSORS_IMPLEMENTATION
#include "formats/safetensors.h"
#include "parameters.h"
#include "tensors_file.h"
#include "parameters_file.h"
#include "shapes.h"

enum {
    SIDE = SHAPES_SIDE / 2, /* the network works on patches of 2x2 pixels */
    PATCH = 12,             /* numbers of one */
    WIDE = 32,              /* channels at 8x8; twice that at 4x4 */
    DEEP = 2 * WIDE,
    TIME = 64, /* of the embedding of time and kind */
    WAVES = 16,
    GROUPS = 8,
    HEADS = 2
};
#define PI 3.141592653589793

typedef struct settings {
    const char *connect, *load, *save, *answers, *out;
    int64_t steps, batch, samples, sampling_steps, seed;
    double rate, max_loss;
    bool explain, json;
} settings;

typedef struct run {
    const settings *set;
    gn_ctx *g;
    ex_parameters p;
    uint64_t random; /* pictures, times and, where they are checked, noise */
    float *pictures; /* (batch, 3, 16, 16) */
    int32_t *kinds;
    double before, after, train_seconds, sample_seconds,
        recognised; /* before, after: losses on the same new pictures */
} run;

/* ---- the network: pictures (N,3,16,16) with noise, time and kind to what has to be taken away -------------------- */

static gn_tensor group_norm(ex_parameters *p, const char *name, gn_tensor x, int64_t channels) {
    gn_tensor gain, bias;
    ex_gain_and_bias(p, name, channels, &gain, &bias);
    return gn_group_norm(x, GROUPS, gain, bias, 1e-5);
}

static gn_tensor conv3(ex_parameters *p, const char *name, gn_tensor x, int64_t in, int64_t out, int64_t stride,
                       double gain) {
    gn_conv_desc d = { .stride = { stride, stride }, .before = { 1, 1 }, .after = { 1, 1 } };
    return ex_conv(p, name, x, GN_SHAPE(out, in, 3, 3), gain, &d);
}

/* x (N,in,s,s) and time (N,TIME) to (N,out,s,s), added to x; at first it adds nothing. */
static gn_tensor residual(ex_parameters *p, const char *name, gn_tensor x, gn_tensor time, int64_t in, int64_t out) {
    char part[5][EX_NAME];
    static const char *const names[5] = { "norm1", "conv1", "time", "norm2", "conv2" };
    for (int i = 0; i < 5; i++) snprintf(part[i], EX_NAME, "%s.%s", name, names[i]);
    gn_tensor h = conv3(p, part[1], gn_silu(group_norm(p, part[0], x, in)), in, out, 1, 1);
    gn_tensor shift = ex_linear(p, part[2], gn_silu(time), TIME, out);
    h = gn_add(h, gn_reshape(shift, GN_SHAPE(-1, out, 1, 1)));
    h = conv3(p, part[4], gn_silu(group_norm(p, part[3], h, out)), out, out, 1, 0);
    if (in == out) return gn_add(x, h);
    snprintf(part[0], EX_NAME, "%s.skip", name);
    return gn_add(ex_conv(p, part[0], x, GN_SHAPE(out, in, 1, 1), 1, NULL), h);
}

/* Each of the 4x4 places attends to all: x (N,DEEP,4,4). */
static gn_tensor attend(ex_parameters *p, gn_tensor x, int64_t n) {
    const int64_t places = SHAPES_PIXELS / 16, size = DEEP / HEADS;
    gn_tensor part[3], h = gn_reshape(group_norm(p, "attention.norm", x, DEEP), GN_SHAPE(n, DEEP, places));
    h = ex_linear(p, "attention.qkv", gn_transpose(h, 1, 2), DEEP, 3 * DEEP);
    gn_split(h, 2, NULL, 3, part);
    for (int i = 0; i < 3; i++) part[i] = gn_transpose(gn_reshape(part[i], GN_SHAPE(n, places, HEADS, size)), 1, 2);
    h = gn_transpose(gn_attention(part[0], part[1], part[2], NULL), 1, 2);
    h = ex_linear(p, "attention.out", gn_reshape(h, GN_SHAPE(n, places, DEEP)), DEEP, DEEP);
    return gn_add(x, gn_reshape(gn_transpose(h, 1, 2), GN_SHAPE(n, DEEP, SHAPES_SIDE / 4, SHAPES_SIDE / 4)));
}

/* Pictures (N,3,16,16) as patches (N,12,8,8), and back. */
static gn_tensor to_patches(gn_tensor x, int64_t n) {
    x = gn_permute(gn_reshape(x, GN_SHAPE(n, 3, SIDE, 2, SIDE, 2)), GN_AXES(0, 1, 3, 5, 2, 4));
    return gn_reshape(x, GN_SHAPE(n, PATCH, SIDE, SIDE));
}
static gn_tensor from_patches(gn_tensor x, int64_t n) {
    x = gn_permute(gn_reshape(x, GN_SHAPE(n, 3, 2, 2, SIDE, SIDE)), GN_AXES(0, 1, 4, 2, 5, 3));
    return gn_reshape(x, GN_SHAPE(n, 3, SHAPES_SIDE, SHAPES_SIDE));
}

/* waves (N,WAVES) and kinds (N) to (N,TIME) */
static gn_tensor time_and_kind(ex_parameters *p, gn_tensor waves, gn_tensor kinds) {
    gn_tensor time = ex_linear(p, "time.1", gn_silu(ex_linear(p, "time.0", waves, WAVES, TIME)), TIME, TIME);
    return gn_add(time, gn_embedding(ex_parameter(p, "kind", GN_SHAPE(SHAPES_KINDS, TIME), 0, 0.5), kinds));
}

static gn_tensor network(ex_parameters *p, gn_tensor x, gn_tensor waves, gn_tensor kinds, int64_t n) {
    gn_tensor time = time_and_kind(p, waves, kinds), skip[2];
    x = conv3(p, "in", to_patches(x, n), PATCH, WIDE, 1, 1);
    skip[0] = residual(p, "down.0", x, time, WIDE, WIDE);
    skip[1] = residual(p, "down.1", skip[0], time, WIDE, WIDE);
    x = residual(p, "middle.0", conv3(p, "half", skip[1], WIDE, DEEP, 2, 1), time, DEEP, DEEP);
    x = residual(p, "middle.1", attend(p, x, n), time, DEEP, DEEP);
    x = gn_interpolate(x, GN_AXES(2, 3), GN_SHAPE(SIDE, SIDE), NULL);
    x = residual(p, "up.1", gn_concat((gn_tensor[]){ x, skip[1] }, 2, 1), time, DEEP + WIDE, WIDE);
    x = residual(p, "up.0", gn_concat((gn_tensor[]){ x, skip[0] }, 2, 1), time, 2 * WIDE, WIDE);
    return from_patches(conv3(p, "out", gn_silu(group_norm(p, "out.norm", x, WIDE)), WIDE, PATCH, 1, 0), n);
}

/* ---- noise ---------------------------------------------------------------------------------------- *
 * At time u from 0 to 1 a picture is x = cos(u pi/2) picture + sin(u pi/2) noise. The network learns
 * v = cos(u pi/2) noise - sin(u pi/2) picture (Salimans & Ho 2022). */

/* A time as waves of growing frequency. */
static void waves_of(double u, float *out) {
    for (int k = 0; k < WAVES / 2; k++) {
        out[k] = (float)cos(u * PI * pow(1.6, k));
        out[k + WAVES / 2] = (float)sin(u * PI * pow(1.6, k));
    }
}

/* The mean square error of n pictures at times u (n), with this noise (n,3,16,16). */
static gn_tensor loss_of(run *r, int64_t n, const double *u, gn_tensor noise) {
    float *waves = malloc((size_t)n * WAVES * sizeof *waves), *mix = malloc(2 * (size_t)n * sizeof *mix);
    gn_tensor y = GN_NONE;
    for (int64_t i = 0; waves && mix && i < n; i++) {
        waves_of(u[i], waves + i * WAVES);
        mix[i] = (float)cos(u[i] * PI / 2);
        mix[n + i] = (float)sin(u[i] * PI / 2);
    }
    if (waves && mix) {
        gn_tensor picture = gn_data(r->g, GN_F32, GN_SHAPE(n, 3, SHAPES_SIDE, SHAPES_SIDE), r->pictures);
        gn_tensor c = gn_data_copy(r->g, GN_F32, GN_SHAPE(n, 1, 1, 1), mix);
        gn_tensor s = gn_data_copy(r->g, GN_F32, GN_SHAPE(n, 1, 1, 1), mix + n);
        gn_tensor x = gn_add(gn_mul(c, picture), gn_mul(s, noise)), v = gn_sub(gn_mul(c, noise), gn_mul(s, picture));
        gn_tensor times = gn_data_copy(r->g, GN_F32, GN_SHAPE(n, WAVES), waves);
        y = gn_mse_loss(network(&r->p, x, times, gn_data(r->g, GN_I32, GN_SHAPE(n), r->kinds), n), v);
    } else fprintf(stderr, "out of memory\n");
    free(waves);
    free(mix);
    return y;
}

/* ---- training ------------------------------------------------------------------------------------- */

/* The noise of a training step is drawn where it is used. */
static bool training_step(run *r, gn_tensor *out_loss) {
    const settings *s = r->set;
    double u[1024];
    shapes_batch(s->batch, &r->random, r->pictures, r->kinds);
    for (int64_t i = 0; i < s->batch; i++) u[i] = random_uniform(&r->random, 0, 1);
    gn_tensor noise = gn_random_normal(r->g, GN_F32, GN_SHAPE(s->batch, 3, SHAPES_SIDE, SHAPES_SIDE));
    *out_loss = loss_of(r, s->batch, u, noise);
    double done = (double)r->p.steps / (double)s->steps, up = fmin(1, (double)(r->p.steps + 1) / 50);
    return ex_train(&r->p, *out_loss, s->rate * up * (1 - 0.98 * done));
}

static bool train(run *r) {
    double begin = ex_now(), shown = begin;
    for (int64_t i = 1; i <= r->set->steps; i++) {
        gn_tensor loss;
        float value = 0;
        bool ok = training_step(r, &loss);
        if (ok && (i == r->set->steps || ex_now() - shown > 2)) {
            ok = ex_check(r->g, gn_read(loss, &value, sizeof value), "training");
            shown = ex_now();
            printf("step %5lld of %lld   loss %.4f   %.1f steps/s\n", (long long)i, (long long)r->set->steps,
                   (double)value, (double)i / (shown - begin));
            fflush(stdout);
        }
        if (!ok || !ex_check(r->g, gn_step(r->g), "training") || ex_interrupted) return false;
    }
    bool ok = ex_check(r->g, gn_sync(r->g), "training");
    r->train_seconds = ex_now() - begin;
    return ok;
}

/* The mean loss on pictures, times and noise that are the same each time, and in no training step. */
static bool check_loss(run *r, double *out) {
    enum { TIMES = 8 };
    int64_t n = r->set->batch;
    uint64_t random = random_begin((uint64_t)r->set->seed, 21);
    float *noise = malloc((size_t)n * SHAPES_FLOATS * sizeof *noise);
    bool ok = noise != NULL;
    *out = 0;
    for (int k = 0; ok && k < TIMES; k++) {
        double u[1024];
        float loss = 0;
        shapes_batch(n, &random, r->pictures, r->kinds);
        for (int64_t i = 0; i < n * SHAPES_FLOATS; i++) noise[i] = (float)random_normal(&random);
        for (int64_t i = 0; i < n; i++) u[i] = ((double)i + random_uniform(&random, 0, 1)) / (double)n;
        gn_tensor e = gn_data(r->g, GN_F32, GN_SHAPE(n, 3, SHAPES_SIDE, SHAPES_SIDE), noise);
        ok = ex_check(r->g, gn_read(loss_of(r, n, u, e), &loss, sizeof loss), "checking") &&
             ex_check(r->g, gn_step(r->g), "checking");
        *out += (double)loss / TIMES;
    }
    free(noise);
    return ok;
}

/* ---- sampling: pictures stay where they are computed, and lose a part of their noise in each step ---------------- */

/* The next version of the pictures x at time u, which is `next` afterwards. */
static void sampling_step(run *r, gn_tensor x, const int32_t *kinds, double u, double next) {
    int64_t n = r->set->samples;
    float waves[WAVES];
    waves_of(u, waves);
    gn_tensor c = gn_scalar(r->g, GN_F32, cos(u * PI / 2)), s = gn_scalar(r->g, GN_F32, sin(u * PI / 2));
    gn_tensor times = gn_expand(gn_data_copy(r->g, GN_F32, GN_SHAPE(1, WAVES), waves), GN_SHAPE(n, WAVES));
    gn_tensor v = network(&r->p, x, times, gn_data(r->g, GN_I32, GN_SHAPE(n), kinds), n);
    gn_tensor picture = gn_clamp(gn_sub(gn_mul(c, x), gn_mul(s, v)), -1, 1);
    gn_tensor noise = gn_div(gn_sub(x, gn_mul(c, picture)), s);
    gn_tensor c2 = gn_scalar(r->g, GN_F32, cos(next * PI / 2)), s2 = gn_scalar(r->g, GN_F32, sin(next * PI / 2));
    gn_assign(x, gn_add(gn_mul(c2, picture), gn_mul(s2, noise)));
}

/* What samples begin with. Their kinds are those of a grid's columns. */
static void begin_samples(const run *r, float *pictures, int32_t *kinds) {
    int64_t n = r->set->samples;
    uint64_t random = random_begin((uint64_t)r->set->seed, 22);
    for (int64_t i = 0; i < n * SHAPES_FLOATS; i++) pictures[i] = (float)random_normal(&random);
    for (int64_t i = 0; i < n; i++) kinds[i] = (int32_t)(i % (2 * SHAPES_KINDS) / 2);
}

static bool sample(run *r, float *pictures, int32_t *kinds) {
    int64_t n = r->set->samples, steps = r->set->sampling_steps;
    double begin = ex_now();
    begin_samples(r, pictures, kinds);
    gn_tensor x = gn_state(r->g, GN_F32, GN_SHAPE(n, 3, SHAPES_SIDE, SHAPES_SIDE), pictures, "pictures");
    bool ok = true;
    for (int64_t i = 0; ok && i < steps && !ex_interrupted; i++) {
        double u = 0.999 * (double)(steps - i) / (double)steps, next = 0.999 * (double)(steps - i - 1) / (double)steps;
        sampling_step(r, x, kinds, u, next);
        ok = (i || !r->p.load || ex_loaded(&r->p)) && ex_check(r->g, gn_step(r->g), "sampling");
    }
    ok = ok && ex_check(r->g, gn_read(x, pictures, (size_t)n * SHAPES_FLOATS * sizeof *pictures), "sampling");
    r->sample_seconds = ex_now() - begin;
    return ok && !ex_interrupted;
}

/* Noise, kinds, the pictures that became of it and the parameters, for other programs that compute the same. */
static bool write_answers(run *r, const float *pictures) {
    static ex_values v; /* large: names */
    gn_shape shape = GN_SHAPE(r->set->samples, 3, SHAPES_SIDE, SHAPES_SIDE);
    float *noise = malloc((size_t)r->set->samples * SHAPES_FLOATS * sizeof *noise);
    int32_t *kinds = malloc((size_t)r->set->samples * sizeof *kinds);
    bool ok = noise && kinds;
    if (ok) {
        begin_samples(r, noise, kinds);
        ex_values_add(&v, "noise", gn_data(r->g, GN_F32, shape, noise));
        ex_values_add(&v, "kinds", gn_data(r->g, GN_I32, GN_SHAPE(r->set->samples), kinds));
        ex_values_add(&v, "pictures", gn_data(r->g, GN_F32, shape, pictures));
        ex_values_add_parameters(&v, &r->p);
        ok = ex_values_write(&v, r->g, r->set->answers);
    } else fprintf(stderr, "out of memory\n");
    free(noise);
    free(kinds);
    return ok;
}

static bool draw(run *r) {
    int64_t n = r->set->samples;
    float *pictures = malloc((size_t)n * SHAPES_FLOATS * sizeof *pictures);
    int32_t *kinds = malloc((size_t)n * sizeof *kinds);
    bool ok = pictures && kinds;
    if (!ok) fprintf(stderr, "out of memory\n");
    ok = ok && sample(r, pictures, kinds) && shapes_write(r->set->out, n, 2 * SHAPES_KINDS, pictures) &&
         (!r->set->answers || write_answers(r, pictures));
    if (ok) r->recognised = shapes_recognised(n, pictures, kinds, 4000, random_begin((uint64_t)r->set->seed, 23));
    free(pictures);
    free(kinds);
    return ok;
}

/* ---- report --------------------------------------------------------------------------------------- */
static bool explain(run *r) {
    gn_tensor loss;
    return training_step(r, &loss) && ex_explain(loss, NULL, stdout);
}

static bool report(const run *r) {
    const settings *s = r->set;
    char text[128];
    gn_device_info device;
    if (gn_get_device(r->g, &device) == GN_OK) ex_row("ran on", "%s", device.name);
    if (!s->load) {
        ex_row("training", "%lld steps of %lld pictures in %.1f s, %d parameter tensors", (long long)s->steps,
               (long long)s->batch, r->train_seconds, r->p.n);
        ex_row("loss", "%.4f on pictures never seen; %.4f before training", r->after, r->before);
    }
    ex_row("samples", "%lld in %.1f s, %lld steps each, in %s", (long long)s->samples, r->sample_seconds,
           (long long)s->sampling_steps, s->out);
    ex_row("recognised", "%.0f %% are nearest to a drawn picture of the kind asked for (by chance: %d %%)",
           100 * r->recognised, 100 / SHAPES_KINDS);
    bool ok = s->load || r->after <= s->max_loss;
    snprintf(text, sizeof text, "loss %.4f on pictures never seen, at most %.4f asked", r->after, s->max_loss);
    if (!s->load) ex_verdict(ok, text);
    if (!s->json) return ok;
    ex_json j = { 0 };
    ex_json_number(&j, "loss_before", s->load ? NAN : r->before);
    ex_json_number(&j, "loss_after", s->load ? NAN : r->after);
    ex_json_number(&j, "recognised", r->recognised);
    ex_json_number(&j, "train_seconds", r->train_seconds);
    ex_json_number(&j, "sample_seconds", r->sample_seconds);
    ex_json_end(&j);
    return ok;
}

/* ---- the run -------------------------------------------------------------------------------------- */
static bool work(run *r) {
    const settings *s = r->set;
    if (s->explain) return explain(r);
    if (!s->load && !(check_loss(r, &r->before) && train(r) && check_loss(r, &r->after))) return false;
    if (!s->load && s->save && !ex_save(&r->p, s->save)) return false;
    return draw(r) && report(r);
}

static bool run_in(gn_ctx *g, const settings *s, safetensors *file) {
    static run r; /* large: parameters by name */
    r = (run){ .set = s, .g = g, .random = random_begin((uint64_t)s->seed, 20) };
    r.p = (ex_parameters){ .g = g, .random = random_begin((uint64_t)s->seed, 0), .fixed = file != NULL };
    if (file) r.p.load = ex_load_parameter;
    r.p.load_user = file;
    r.pictures = malloc((size_t)s->batch * SHAPES_FLOATS * sizeof *r.pictures);
    r.kinds = malloc((size_t)s->batch * sizeof *r.kinds);
    bool ok = r.pictures && r.kinds;
    if (!ok) fprintf(stderr, "out of memory\n");
    ok = ok && ex_check(g, gn_status(g), "cannot connect") &&
         ex_check(g, gn_modality(g, GN_MODALITY_VISION), "modality") && work(&r);
    free(r.pictures);
    free(r.kinds);
    return ok;
}

static int start(const settings *s) {
    ex_place place;
    char error[SAFETENSORS_ERROR];
    safetensors *file = s->load ? safetensors_open(s->load, error) : NULL;
    if (s->load && !file) {
        fprintf(stderr, "%s\n", error);
        return EX_FAILED;
    }
    ex_catch_signals();
    bool ok = ex_place_open(&place, s->connect, NULL);
    if (ok) {
        gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home, .seed = (uint64_t)s->seed });
        ok = run_in(g, s, file);
        gn_close(g);
        ex_place_close(&place);
    }
    safetensors_close(file);
    return ex_interrupted ? EX_INTERRUPTED : ok ? EX_OK : EX_FAILED;
}

int main(int argc, char **argv) {
    settings set = { .out = "shapes.ppm",
                     .steps = 2000,
                     .batch = 16,
                     .samples = 64,
                     .sampling_steps = 25,
                     .seed = 1,
                     .rate = 2e-3,
                     .max_loss = 0.2 };
    const ex_option options[] = {
        { "connect", EX_MAYBE, &set.connect, "WHERE",
          "a URL, @FILE or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { "out", EX_TEXT, &set.out, "FILE", "write the samples there, as PPM (shapes.ppm)", 0, 0 },
        { "save", EX_TEXT, &set.save, "FILE", "write the trained network there, as safetensors", 0, 0 },
        { "load", EX_TEXT, &set.load, "FILE", "do not train: draw with this network", 0, 0 },
        { "answers", EX_TEXT, &set.answers, "FILE", "write noise, samples and all parameters, as safetensors", 0, 0 },
        { "steps", EX_INT, &set.steps, "N", "training steps (2000)", 1, 1e9 },
        { "batch", EX_INT, &set.batch, "N", "pictures per step (16)", 1, 1024 },
        { "lr", EX_NUMBER, &set.rate, "RATE", "highest learning rate (0.002)", 0, 10 },
        { "max-loss", EX_NUMBER, &set.max_loss, "LOSS", "fail above this loss on pictures never seen (0.2)", 0, 1e9 },
        { "samples", EX_INT, &set.samples, "N", "pictures to make (64)", 1, 1024 },
        { "sampling-steps", EX_INT, &set.sampling_steps, "N", "steps of DDIM (25)", 1, 10000 },
        { "seed", EX_INT, &set.seed, "N", "seed of the network, pictures and noise (1)", 0, 1e15 },
        { "explain", EX_FLAG, &set.explain, NULL, "explain where a training step would run, and why, and stop", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "diffusion learns to draw shapes, and draws some.", options);
    if (set.load && (set.save || set.explain))
        ex_usage(argv[0], "--save and --explain are of training: not with --load");
    return start(&set);
}
