/* Learns to tell spoken words of three vowels apart: short-time spectra by a convolution with sines and cosines, mel
 * filters, a convolution and a transformer encoder. It makes its own waves, and hears WAV files.
 *
 *   ./examples/speech --save net.safetensors                    on a server in this process
 *   ./examples/speech --say uia --out uia.wav                   say a word
 *   ./examples/speech --load net.safetensors --wave uia.wav     which word is that? */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "common.h"
#define SAFETENSORS_IMPLEMENTATION
#include "formats/safetensors.h"
#include "formats/wav.h"
#include "parameters.h"
#include "tensors_file.h"
#include "parameters_file.h"
#include "vowels.h"

enum {
    WINDOW = 256, /* samples of one spectrum: 32 ms */
    HOP = 128,
    FRAMES = (VOWELS_SAMPLES - WINDOW) / HOP + 1,
    BINS = WINDOW / 2 + 1,
    MELS = 32,
    WIDTH = 48, /* of the encoder */
    PLACES = (FRAMES - 1) / 2 + 1,
    HEADS = 4,
    LAYERS = 2,
    HELD_OUT_BATCH = 50
};

typedef struct settings {
    const char *connect, *load, *save, *answers, *wave, *mel, *say, *out;
    int64_t steps, batch, held_out, seed;
    double rate, min_accuracy;
    bool explain, json;
} settings;

typedef struct run {
    const settings *set;
    gn_ctx *g;
    ex_parameters p;
    uint64_t random;
    float *waves; /* (batch, VOWELS_SAMPLES), of the step */
    int32_t *words;
    float (*fourier)[WINDOW], (*filters)[BINS]; /* (2 BINS, WINDOW), (MELS, BINS) */
    gn_tensor fourier_weight, filters_weight;
    double accuracy, untrained, seconds;
} run;

/* ---- from waves to mel energies ------------------------------------------------------------------- */

/* Windowed cosines, then sines: a convolution with them is a Fourier transform of each window (Hann's). */
static void fill_fourier(float (*out)[WINDOW]) {
    for (int k = 0; k < BINS; k++)
        for (int i = 0; i < WINDOW; i++) {
            double window = 0.5 - 0.5 * cos(2 * VOWELS_PI * i / WINDOW),
                   angle = 2 * VOWELS_PI * (k * i % WINDOW) / WINDOW;
            out[k][i] = (float)(window * cos(angle));
            out[BINS + k][i] = (float)(-window * sin(angle));
        }
}

static double mel(double hertz) { return 2595 * log10(1 + hertz / 700); } /* O'Shaughnessy 1987 */

/* Triangles whose corners are as far apart as those of their neighbours, on the mel scale, from 0 Hz to half the
 * rate. */
static void fill_filters(float (*out)[BINS]) {
    const double most = mel(VOWELS_RATE / 2.0);
    for (int m = 0; m < MELS; m++)
        for (int k = 0; k < BINS; k++) {
            double at = mel((double)k * VOWELS_RATE / WINDOW) / most * (MELS + 1) - m; /* 0 to 2 in this triangle */
            out[m][k] = (float)fmax(0, 1 - fabs(at - 1));
        }
}

/* waves (N, VOWELS_SAMPLES) to the energies of mel bands (N, MELS, FRAMES) */
static gn_tensor mel_energies(const run *r, gn_tensor waves, int64_t n) {
    gn_conv_desc d = { .stride = { HOP } };
    gn_tensor y = gn_conv(gn_reshape(waves, GN_SHAPE(n, 1, VOWELS_SAMPLES)), r->fourier_weight, GN_NONE, &d), part[2];
    gn_split(y, 1, NULL, 2, part);
    return gn_matmul(r->filters_weight, gn_add(gn_square(part[0]), gn_square(part[1])));
}

/* ---- the network ---------------------------------------------------------------------------------- */
static gn_tensor norm(ex_parameters *p, const char *name, gn_tensor x) {
    gn_tensor gain, bias;
    ex_gain_and_bias(p, name, WIDTH, &gain, &bias);
    return gn_layernorm(x, gain, bias, 1e-5);
}

/* x (N,PLACES,WIDTH): attention, then an MLP, each behind a norm and added to x. */
static gn_tensor layer(ex_parameters *p, int index, gn_tensor x, int64_t n) {
    static const char *const names[6] = { "norm1", "qkv", "out", "norm2", "up", "down" };
    char part[6][EX_NAME];
    gn_tensor qkv[3];
    for (int i = 0; i < 6; i++) snprintf(part[i], EX_NAME, "layer.%d.%s", index, names[i]);
    gn_split(ex_linear(p, part[1], norm(p, part[0], x), WIDTH, 3 * WIDTH), 2, NULL, 3, qkv);
    for (int i = 0; i < 3; i++)
        qkv[i] = gn_transpose(gn_reshape(qkv[i], GN_SHAPE(n, PLACES, HEADS, WIDTH / HEADS)), 1, 2);
    gn_tensor h = gn_transpose(gn_attention(qkv[0], qkv[1], qkv[2], NULL), 1, 2);
    x = gn_add(x, ex_linear(p, part[2], gn_reshape(h, GN_SHAPE(n, PLACES, WIDTH)), WIDTH, WIDTH));
    h = gn_gelu(ex_linear(p, part[4], norm(p, part[3], x), WIDTH, 2 * WIDTH));
    return gn_add(x, ex_linear(p, part[5], h, 2 * WIDTH, WIDTH));
}

/* waves (N, VOWELS_SAMPLES) to scores (N, VOWELS_WORDS). How loud a wave is makes no difference. */
static gn_tensor network(run *r, gn_tensor waves, int64_t n) {
    ex_parameters *p = &r->p;
    gn_tensor x = gn_log(gn_add_c(mel_energies(r, waves, n), 1e-3));
    x = gn_mul_c(gn_sub(x, gn_mean(x, GN_AXES(1, 2), true)), 0.5);
    gn_conv_desc half = { .stride = { 2 }, .before = { 1 }, .after = { 1 } };
    x = gn_gelu(ex_conv(p, "conv", x, GN_SHAPE(WIDTH, MELS, 3), 1, &half));
    x = gn_add(gn_transpose(x, 1, 2), ex_parameter(p, "places", GN_SHAPE(PLACES, WIDTH), 0, 0.3));
    for (int i = 0; i < LAYERS; i++) x = layer(p, i, x, n);
    return ex_linear(p, "words", gn_mean(norm(p, "norm", x), GN_AXES(1), false), WIDTH, VOWELS_WORDS);
}

/* ---- training and checking ------------------------------------------------------------------------ */
static void say_some(int64_t n, uint64_t *random, float *waves, int32_t *words) {
    for (int64_t i = 0; i < n; i++) {
        words[i] = (int32_t)random_int(random, VOWELS_WORDS);
        vowels_say(vowels_words[words[i]], random, waves + i * VOWELS_SAMPLES);
    }
}

static bool training_step(run *r, gn_tensor *out_loss) {
    const settings *s = r->set;
    say_some(s->batch, &r->random, r->waves, r->words);
    gn_tensor waves = gn_data(r->g, GN_F32, GN_SHAPE(s->batch, VOWELS_SAMPLES), r->waves);
    *out_loss = gn_cross_entropy(network(r, waves, s->batch), gn_data(r->g, GN_I32, GN_SHAPE(s->batch), r->words));
    double done = (double)r->p.steps / (double)s->steps, up = fmin(1, (double)(r->p.steps + 1) / 20);
    return ex_train(&r->p, *out_loss, s->rate * up * (1 - 0.95 * done));
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
            printf("step %5lld of %lld   loss %.4f   %.1f waves/s\n", (long long)i, (long long)r->set->steps,
                   (double)value, (double)(i * r->set->batch) / (shown - begin));
            fflush(stdout);
        }
        if (!ok || !ex_check(r->g, gn_step(r->g), "training") || ex_interrupted) return false;
    }
    bool ok = ex_check(r->g, gn_sync(r->g), "training");
    r->seconds = ex_now() - begin;
    return ok;
}

/* The share of waves that no training step has heard whose word is found. */
static bool check(run *r, double *out) {
    uint64_t random = random_begin((uint64_t)r->set->seed, 31);
    float *waves = malloc(sizeof(float) * HELD_OUT_BATCH * VOWELS_SAMPLES);
    int32_t words[HELD_OUT_BATCH];
    int64_t guess[HELD_OUT_BATCH], right = 0, n = r->set->held_out;
    bool ok = waves != NULL;
    for (int64_t at = 0; ok && at < n; at += HELD_OUT_BATCH) {
        say_some(HELD_OUT_BATCH, &random, waves, words);
        gn_tensor x = gn_data(r->g, GN_F32, GN_SHAPE(HELD_OUT_BATCH, VOWELS_SAMPLES), waves);
        gn_tensor y = gn_argmax(network(r, x, HELD_OUT_BATCH), GN_AXES(1), false);
        ok = (!r->p.load || ex_loaded(&r->p)) && ex_check(r->g, gn_read(y, guess, sizeof guess), "checking") &&
             ex_check(r->g, gn_step(r->g), "checking");
        for (int64_t i = 0; ok && i < HELD_OUT_BATCH && at + i < n; i++) right += guess[i] == words[i];
    }
    free(waves);
    *out = (double)right / (double)n;
    return ok;
}

/* New waves, their scores and the parameters, for other programs that compute the same. */
static bool write_answers(run *r) {
    static ex_values v; /* large: names */
    int64_t n = r->set->batch;
    uint64_t random = random_begin((uint64_t)r->set->seed, 32);
    say_some(n, &random, r->waves, r->words);
    gn_tensor waves = gn_data(r->g, GN_F32, GN_SHAPE(n, VOWELS_SAMPLES), r->waves);
    ex_values_add(&v, "waves", waves);
    ex_values_add(&v, "scores", network(r, waves, n));
    ex_values_add_parameters(&v, &r->p);
    return ex_values_write(&v, r->g, r->set->answers);
}

/* ---- WAV files ------------------------------------------------------------------------------------ */

/* The file as seconds of VOWELS_SAMPLES, each half of one later than the one before, the last filled up with silence.
 * The caller frees them. NULL: a sentence says why. */
static float *read_waves(const char *path, int64_t *out_n) {
    const size_t size = VOWELS_SAMPLES, half = size / 2;
    char error[WAV_ERROR];
    wav w;
    float *out = NULL;
    uint8_t *file = wav_load(path, &w, error);
    if (file && w.rate != VOWELS_RATE)
        wav__fail(error, "it has %u samples a second; the network hears %d: resample it first", (unsigned)w.rate,
                  VOWELS_RATE);
    else if (file && !w.frames) wav__fail(error, "it holds no samples");
    else if (file) {
        size_t n = w.frames <= size ? 1 : (w.frames - size + half - 1) / half + 1;
        out = malloc(n * size * sizeof *out);
        wav__fail(error, "out of memory");
        for (size_t i = 0; out && i < n * size; i++) {
            size_t at = i / size * half + i % size;
            out[i] = at < w.frames ? wav_mono(&w, at) : 0;
        }
        *out_n = (int64_t)n;
    }
    if (!out) fprintf(stderr, "%s: %s\n", path, error);
    free(file);
    return out;
}

/* The words of the waves, and how sure the network is. */
static bool hear(run *r, const float *waves, int64_t n) {
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        float chance[VOWELS_WORDS];
        int best = 0;
        gn_tensor x = gn_data(r->g, GN_F32, GN_SHAPE(1, VOWELS_SAMPLES), waves + i * VOWELS_SAMPLES);
        gn_tensor y = gn_softmax(network(r, x, 1), -1);
        ok = (!r->p.load || ex_loaded(&r->p)) && ex_check(r->g, gn_read(y, chance, sizeof chance), "hearing") &&
             ex_check(r->g, gn_step(r->g), "hearing");
        for (int k = 1; k < VOWELS_WORDS; k++)
            if (chance[k] > chance[best]) best = k;
        if (ok)
            printf("%6.2f s  %s  %.1f %%\n", (double)(i * VOWELS_SAMPLES / 2) / VOWELS_RATE, vowels_words[best],
                   100 * (double)chance[best]);
    }
    return ok;
}

/* Mel energies of the first wave, a line for each frame. */
static bool write_mel(const run *r, const char *path, const float *waves) {
    static float energy[MELS][FRAMES];
    gn_tensor x = gn_data(r->g, GN_F32, GN_SHAPE(1, VOWELS_SAMPLES), waves);
    if (!ex_check(r->g, gn_read(mel_energies(r, x, 1), energy, sizeof energy), "mel energies")) return false;
    FILE *f = fopen(path, "w");
    bool ok = f != NULL;
    for (int t = 0; ok && t < FRAMES; t++)
        for (int m = 0; ok && m < MELS; m++)
            ok = fprintf(f, "%.9g%c", (double)energy[m][t], m + 1 < MELS ? ' ' : '\n') > 0;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return ok;
}

static int say(const settings *s) {
    static float wave[VOWELS_SAMPLES];
    char error[WAV_ERROR];
    uint64_t random = random_begin((uint64_t)s->seed, 32);
    int k = 0;
    while (k < VOWELS_WORDS && strcmp(vowels_words[k], s->say) != 0) k++;
    if (k == VOWELS_WORDS) {
        fprintf(stderr, "--say takes one of");
        for (k = 0; k < VOWELS_WORDS; k++) fprintf(stderr, " %s", vowels_words[k]);
        fprintf(stderr, ", not %s\n", s->say);
        return EX_USAGE;
    }
    vowels_say(s->say, &random, wave);
    if (!wav_write(s->out, wave, VOWELS_SAMPLES, VOWELS_RATE, error)) {
        fprintf(stderr, "%s: %s\n", s->out, error);
        return EX_FAILED;
    }
    printf("%s, in %s\n", s->say, s->out);
    return EX_OK;
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
    bool ok = r->accuracy >= s->min_accuracy;
    if (gn_get_device(r->g, &device) == GN_OK) ex_row("ran on", "%s", device.name);
    if (!s->load)
        ex_row("training", "%lld steps of %lld waves in %.1f s, %.0f waves/s", (long long)s->steps, (long long)s->batch,
               r->seconds, (double)(s->steps * s->batch) / r->seconds);
    ex_row("held-out", "%.2f %% of %lld waves never heard are right (by chance: %d %%)", 100 * r->accuracy,
           (long long)s->held_out, 100 / VOWELS_WORDS);
    snprintf(text, sizeof text, "held-out accuracy %.2f %%, at least %.2f %% asked", 100 * r->accuracy,
             100 * s->min_accuracy);
    ex_verdict(ok, text);
    if (!s->json) return ok;
    ex_json j = { 0 };
    ex_json_number(&j, "accuracy", r->accuracy);
    ex_json_number(&j, "accuracy_untrained", s->load ? NAN : r->untrained);
    ex_json_number(&j, "held_out", (double)s->held_out);
    ex_json_number(&j, "train_seconds", r->seconds);
    ex_json_number(&j, "waves_per_s", s->load ? NAN : (double)(s->steps * s->batch) / r->seconds);
    ex_json_end(&j);
    return ok;
}

/* ---- the run -------------------------------------------------------------------------------------- */
static bool prepare(run *r) {
    size_t n = (size_t)r->set->batch;
    r->waves = malloc(n * VOWELS_SAMPLES * sizeof *r->waves);
    r->words = malloc(n * sizeof *r->words);
    r->fourier = malloc(2 * BINS * sizeof *r->fourier);
    r->filters = malloc(MELS * sizeof *r->filters);
    if (!r->waves || !r->words || !r->fourier || !r->filters) {
        fprintf(stderr, "out of memory\n");
        return false;
    }
    fill_fourier(r->fourier);
    fill_filters(r->filters);
    r->fourier_weight = gn_weight(r->g, GN_F32, GN_SHAPE(2 * BINS, 1, WINDOW), r->fourier, "fourier");
    r->filters_weight = gn_weight(r->g, GN_F32, GN_SHAPE(MELS, BINS), r->filters, "mel filters");
    return true;
}

static bool work(run *r, const float *waves, int64_t n) {
    const settings *s = r->set;
    if (s->mel) return write_mel(r, s->mel, waves);
    if (s->explain) return explain(r);
    if (s->load && waves) return hear(r, waves, n);
    if (!s->load && !(check(r, &r->untrained) && train(r))) return false;
    if (!s->load && s->save && !ex_save(&r->p, s->save)) return false;
    if (s->answers && !write_answers(r)) return false;
    return check(r, &r->accuracy) && report(r) && (!waves || hear(r, waves, n));
}

static int start(const settings *s, safetensors *file, const float *waves, int64_t n) {
    static run r; /* large: parameters by name */
    ex_place place;
    ex_catch_signals();
    if (!ex_place_open(&place, s->connect, NULL)) return EX_FAILED;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    r = (run){ .set = s, .g = g, .random = random_begin((uint64_t)s->seed, 30) };
    r.p = (ex_parameters){ .g = g, .random = random_begin((uint64_t)s->seed, 0), .fixed = file != NULL };
    if (file) r.p.load = ex_load_parameter;
    r.p.load_user = file;
    bool ok = ex_check(g, gn_status(g), "cannot connect") &&
              ex_check(g, gn_modality(g, GN_MODALITY_AUDIO), "modality") && prepare(&r) && work(&r, waves, n);
    gn_close(g);
    ex_place_close(&place);
    free(r.waves);
    free(r.words);
    free(r.fourier);
    free(r.filters);
    return ex_interrupted ? EX_INTERRUPTED : ok ? EX_OK : EX_FAILED;
}

/* Files are read before anything is computed. */
static int open_files(const settings *s) {
    char error[SAFETENSORS_ERROR];
    int64_t n = 0;
    float *waves = s->wave ? read_waves(s->wave, &n) : NULL;
    safetensors *file = s->load ? safetensors_open(s->load, error) : NULL;
    if (s->load && !file) fprintf(stderr, "%s\n", error);
    int status = (s->wave && !waves) || (s->load && !file) ? EX_FAILED : start(s, file, waves, n);
    safetensors_close(file);
    free(waves);
    return status;
}

int main(int argc, char **argv) {
    settings set = {
        .out = "word.wav", .steps = 300, .batch = 32, .held_out = 500, .seed = 1, .rate = 2e-3, .min_accuracy = 0.9
    };
    const ex_option options[] = {
        { "connect", EX_MAYBE, &set.connect, "WHERE",
          "a URL, @FILE or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { "wave", EX_TEXT, &set.wave, "FILE", "say which word this WAV file holds (8000 samples a second)", 0, 0 },
        { "load", EX_TEXT, &set.load, "FILE", "do not train: hear with this network", 0, 0 },
        { "save", EX_TEXT, &set.save, "FILE", "write the trained network there, as safetensors", 0, 0 },
        { "answers", EX_TEXT, &set.answers, "FILE", "write new waves, their scores and all parameters, as safetensors",
          0, 0 },
        { "mel", EX_TEXT, &set.mel, "FILE", "write the mel energies of the --wave there and stop", 0, 0 },
        { "say", EX_TEXT, &set.say, "WORD", "write a WAV file of this word and stop", 0, 0 },
        { "out", EX_TEXT, &set.out, "FILE", "where --say writes (word.wav)", 0, 0 },
        { "steps", EX_INT, &set.steps, "N", "training steps (300)", 1, 1e9 },
        { "batch", EX_INT, &set.batch, "N", "waves per step (32)", 1, 4096 },
        { "held-out", EX_INT, &set.held_out, "N", "waves to check with (500)", 1, 1e7 },
        { "lr", EX_NUMBER, &set.rate, "RATE", "highest learning rate (0.002)", 0, 10 },
        { "min-accuracy", EX_NUMBER, &set.min_accuracy, "SHARE", "fail below this held-out accuracy (0.9)", 0, 1 },
        { "seed", EX_INT, &set.seed, "N", "seed of the network and the voices (1)", 0, 1e15 },
        { "explain", EX_FLAG, &set.explain, NULL, "explain where a training step would run, and why, and stop", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "speech learns to tell spoken words of three vowels apart, and hears WAV files.", options);
    if (set.mel && !set.wave) ex_usage(argv[0], "--mel needs a --wave");
    if (set.load && (set.save || set.explain))
        ex_usage(argv[0], "--save and --explain are of training: not with --load");
    return set.say ? say(&set) : open_files(&set);
}
