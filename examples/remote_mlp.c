/* Trains a three-layer network on 28x28 digits on a device that is reached only over TLS, and checks it against the
 * same run on the local CPU. Parameters and momentum stay on the device; pixels go up, now and then a loss comes back.
 *
 *   ./examples/remote_mlp                        own digits, own server in this process (TCP on loopback, TLS, fresh
 *                                                key)
 *   ./examples/remote_mlp --connect @genie.url   on a genie_serve
 *   ./examples/remote_mlp --data DIR             on MNIST's four IDX files in DIR
 */
#include "common.h"
#include "digits.h"
#include <sys/stat.h>

enum {
    HIDDEN1 = 256,
    HIDDEN2 = 128,
    LAYERS = 3,
    PARAMS = 2 * LAYERS, /* a matrix and a bias each */
    PARAM_ELEMENTS = DG_PIXELS * HIDDEN1 + HIDDEN1 + HIDDEN1 * HIDDEN2 + HIDDEN2 + HIDDEN2 * DG_CLASSES + DG_CLASSES,
    COMPARED_STEPS = 50, /* the first ones also run on the local executor */
    DRAWN_TRAIN = 20000,
    DRAWN_TEST = 2000,
    CHUNK = 1000 /* held-out digits of one read */
};
#define MOMENTUM 0.9
/* allowed difference between devices of different identity; f32, logits are of the order of 10 */
#define TOLERANCE 2e-3

static const int widths[LAYERS + 1] = { DG_PIXELS, HIDDEN1, HIDDEN2, DG_CLASSES };

typedef struct settings {
    const char *connect, *data, *write_idx, *home;
    int64_t steps, seed, batch, loss_every;
    double lr, min_accuracy;
    bool json;
} settings;

/* ---- the network ----------------------------------------------------------------------------------*/
typedef struct network {
    gn_ctx *g;
    gn_tensor param[PARAMS], velocity[PARAMS]; /* states: w1 (784,256), b1 (256), w2, b2, w3, b3 */
} network;

static gn_shape param_shape(int i) {
    return i % 2 ? GN_SHAPE(widths[i / 2 + 1]) : GN_SHAPE(widths[i / 2], widths[i / 2 + 1]);
}

static size_t param_count(int i) { return (size_t)widths[i / 2 + 1] * (i % 2 ? 1u : (size_t)widths[i / 2]); }

/* Weights normal with variance 2 / inputs (He et al. 2015), biases zero; equal seeds give equal networks. */
static bool network_make(network *n, gn_ctx *g, int64_t seed) {
    static const char *const names[PARAMS] = { "fc1.weight", "fc1.bias",   "fc2.weight",
                                               "fc2.bias",   "fc3.weight", "fc3.bias" };
    uint64_t rng = dg_seed((uint64_t)seed + 1000);
    float *start = malloc(sizeof(float) * DG_PIXELS * HIDDEN1);
    n->g = g;
    for (int i = 0; start && i < PARAMS; i++) {
        bool bias = i % 2;
        for (size_t k = 0; !bias && k < param_count(i); k++)
            start[k] = (float)(dg_normal(&rng) * sqrt(2.0 / widths[i / 2]));
        n->param[i] = gn_state(g, GN_F32, param_shape(i), bias ? NULL : start, names[i]);
        n->velocity[i] = gn_state(g, GN_F32, param_shape(i), NULL, "momentum");
    }
    bool ok = start != NULL;
    if (!ok) fprintf(stderr, "out of memory\n");
    free(start);
    return ok;
}

/* pixels (n, 784) u8 -> logits (n, 10). The pixels travel as bytes and become floats where the network is. */
static gn_tensor network_logits(const network *n, const uint8_t *pixels, int64_t count) {
    gn_tensor x = gn_data(n->g, GN_U8, GN_SHAPE(count, DG_PIXELS), pixels);
    x = gn_mul_c(gn_cast(x, GN_F32), 1.0 / 255);
    for (int l = 0; l < LAYERS; l++) {
        x = gn_linear(x, n->param[2 * l], n->param[2 * l + 1]);
        if (l + 1 < LAYERS) x = gn_relu(x);
    }
    return x;
}

/* One step of gradient descent. Waits for the device only if a loss is asked for. */
static gn_result network_step(const network *n, const uint8_t *pixels, const uint8_t *labels, int64_t batch, double lr,
                              float *loss) {
    gn_tensor targets = gn_cast(gn_data(n->g, GN_U8, GN_SHAPE(batch), labels), GN_I32);
    gn_tensor mean_loss = gn_cross_entropy(network_logits(n, pixels, batch), targets);
    gn_tensor grads[PARAMS];
    gn_sgd_desc sgd = { .lr = gn_scalar(n->g, GN_F32, lr), .momentum = MOMENTUM };
    gn_result r = gn_grad(mean_loss, n->param, PARAMS, grads);
    if (r == GN_OK) r = gn_sgd(&sgd, n->param, grads, n->velocity, PARAMS);
    if (r == GN_OK && loss) r = gn_read(mean_loss, loss, sizeof *loss);
    return r == GN_OK ? gn_step(n->g) : r;
}

/* ---- training -------------------------------------------------------------------------------------*/
typedef struct trainer {
    const settings *set;
    const dg_set *train;
    network net;
    uint64_t rng;             /* picks the batches; equal seeds pick equal ones */
    uint8_t *pixels, *labels; /* of the current batch */
    double seconds;           /* of the training steps alone */
    gn_stats used;            /* by the training steps alone */
    double last_print;
    bool show;
} trainer;

static void next_batch(trainer *t) {
    for (int64_t i = 0; i < t->set->batch; i++) {
        size_t k = (size_t)(dg_next(&t->rng) >> 11) % t->train->n;
        memcpy(t->pixels + i * DG_PIXELS, t->train->images + k * DG_PIXELS, DG_PIXELS);
        t->labels[i] = t->train->labels[k];
    }
}

/* Up during the first 50 steps, then down to zero. */
static double learning_rate(const settings *s, int64_t step) {
    double up = step < 50 ? (double)(step + 1) / 50 : 1;
    return s->lr * up * (1 - (double)step / (double)s->steps);
}

/* A line that overwrites itself on a terminal; elsewhere a line every two seconds. */
static void show_progress(trainer *t, int64_t step, double loss, double begin, const gn_stats *before) {
    double now = ex_now(), seconds = t->seconds + now - begin;
    bool last = step == t->set->steps;
    if (!t->show || (!last && now - t->last_print < (ex_terminal() ? 0.1 : 2))) return;
    gn_stats after, sum = t->used;
    gn_get_stats(t->net.g, &after);
    ex_stats_add(&sum, before, &after);
    double per = 1.0 / (double)step;
    printf("%sstep %5lld of %lld   loss %.4f   %6.1f steps/s   %8.0f bytes up, %5.0f down a step%s",
           ex_terminal() ? "\r" : "", (long long)step, (long long)t->set->steps, loss, (double)step / seconds,
           (double)sum.socket_bytes_up * per, (double)sum.socket_bytes_down * per, ex_terminal() && !last ? "" : "\n");
    fflush(stdout);
    t->last_print = now;
}

/* Runs the steps [from, to). */
static bool train_steps(trainer *t, int64_t from, int64_t to) {
    gn_stats before, after;
    gn_get_stats(t->net.g, &before);
    double begin = ex_now();
    for (int64_t s = from; s < to; s++) {
        float loss = 0;
        bool want = (s + 1) % t->set->loss_every == 0 || s + 1 == to;
        next_batch(t);
        gn_result r =
            network_step(&t->net, t->pixels, t->labels, t->set->batch, learning_rate(t->set, s), want ? &loss : NULL);
        if (!ex_check(t->net.g, r, "training")) return false;
        if (ex_interrupted) {
            fprintf(stderr, "\ninterrupted\n");
            return false;
        }
        if (want) show_progress(t, s + 1, (double)loss, begin, &before);
    }
    t->seconds += ex_now() - begin;
    gn_get_stats(t->net.g, &after);
    ex_stats_add(&t->used, &before, &after);
    return true;
}

static bool trainer_make(trainer *t, const settings *set, const dg_set *train, gn_ctx *g, bool show) {
    memset(t, 0, sizeof *t);
    t->set = set;
    t->train = train;
    t->rng = dg_seed((uint64_t)set->seed + 2000);
    t->show = show;
    t->pixels = malloc((size_t)set->batch * DG_PIXELS);
    t->labels = malloc((size_t)set->batch);
    if (!t->pixels || !t->labels) {
        fprintf(stderr, "out of memory\n");
        return false;
    }
    return network_make(&t->net, g, set->seed);
}

static void trainer_destroy(trainer *t) {
    free(t->pixels);
    free(t->labels);
}

/* ---- checking -------------------------------------------------------------------------------------*/

/* All parameters, then the held-out logits: what two devices are compared by. */
static float *snapshot(const network *n, const dg_set *test) {
    float *all = malloc(sizeof(float) * (PARAM_ELEMENTS + test->n * DG_CLASSES)), *at = all;
    void *out[PARAMS];
    size_t bytes[PARAMS];
    if (!all) {
        fprintf(stderr, "out of memory\n");
        return NULL;
    }
    for (int i = 0; i < PARAMS; at += param_count(i), i++) {
        out[i] = at;
        bytes[i] = param_count(i) * sizeof(float);
    }
    bool ok = ex_check(n->g, gn_read_many(n->param, PARAMS, out, bytes), "reading the parameters");
    for (size_t i = 0; ok && i < test->n; i += CHUNK) {
        size_t rows = test->n - i < CHUNK ? test->n - i : CHUNK;
        gn_tensor y = network_logits(n, test->images + i * DG_PIXELS, (int64_t)rows);
        ok = ex_check(n->g, gn_read(y, at + i * DG_CLASSES, rows * DG_CLASSES * sizeof(float)), "reading the logits");
        ok = ok && ex_check(n->g, gn_step(n->g), "step");
    }
    if (ok) return all;
    free(all);
    return NULL;
}

/* The share of held-out digits whose largest logit is at their label; the argmax runs on the device. */
static bool accuracy(const network *n, const dg_set *test, double *out) {
    size_t right = 0;
    for (size_t i = 0; i < test->n; i += CHUNK) {
        int64_t guess[CHUNK];
        size_t rows = test->n - i < CHUNK ? test->n - i : CHUNK;
        gn_tensor y = gn_argmax(network_logits(n, test->images + i * DG_PIXELS, (int64_t)rows), GN_AXES(1), false);
        if (!ex_check(n->g, gn_read(y, guess, rows * sizeof *guess), "reading the guesses")) return false;
        if (!ex_check(n->g, gn_step(n->g), "step")) return false;
        for (size_t k = 0; k < rows; k++) right += guess[k] == test->labels[i + k];
    }
    *out = (double)right / (double)test->n;
    return true;
}

/* Repeats the first steps on the local CPU and compares them with `remote`. */
static bool compare_local(const settings *set, const dg_set *train, const dg_set *test, int64_t steps,
                          const float *remote, gn_device_info *out_local, double *out_diff) {
    gn_ctx *g = gn_open(&(gn_desc){ .devices = "cpu" });
    trainer t;
    float *local = NULL;
    bool ok =
        trainer_make(&t, set, train, g, false) && train_steps(&t, 0, steps) && (local = snapshot(&t.net, test)) != NULL;
    ok = ok && ex_check(g, gn_get_device(g, out_local), "local device");
    *out_diff = 0;
    for (size_t i = 0; ok && i < PARAM_ELEMENTS + test->n * DG_CLASSES; i++) {
        double d = fabs((double)remote[i] - (double)local[i]);
        if (!(d <= *out_diff)) *out_diff = d; /* a NaN stays */
    }
    free(local);
    trainer_destroy(&t);
    gn_close(g);
    return ok;
}

/* ---- report ---------------------------------------------------------------------------------------*/
typedef struct outcome {
    gn_device_info device, local;
    gn_stats used;
    double centroid, accuracy, diff, tolerance, seconds, ratio;
    int64_t compared;
    bool same_identity;
} outcome;

static void print_report(const settings *set, const dg_set *test, const outcome *o) {
    double per = 1.0 / (double)set->steps;
    ex_row("ran on", "%s, %s", o->device.name,
           o->device.remote ? "over the network; this program only built graphs" : "in this process");
    ex_row("identity", "%s", o->device.identity);
    if (o->device.remote)
        ex_row("secured by", "%s, %s, records by %s", o->device.tls, o->device.cipher, o->device.records);
    ex_row("held-out", "%.2f %% of %zu digits never trained on are right (nearest centroid: %.2f %%)",
           100 * o->accuracy, test->n, 100 * o->centroid);
    ex_row("steps", "%lld of %lld digits in %.1f s, %.1f steps/s; %llu plan%s for all of them", (long long)set->steps,
           (long long)set->batch, o->seconds, (double)set->steps / o->seconds, (unsigned long long)o->used.plans_made,
           o->used.plans_made == 2 ? "s (with and without a loss to read)" : "");
    ex_row("a step", "%.2f round trips, %.0f bytes up and %.0f down at the socket", (double)o->used.round_trips * per,
           (double)o->used.socket_bytes_up * per, (double)o->used.socket_bytes_down * per);
    ex_row("compression", "%.2f : 1 of %.0f tensor bytes a step", o->ratio,
           (double)(o->used.tensor_bytes_up + o->used.tensor_bytes_down) * per);
    ex_row("agreement",
           "largest difference from the local CPU %g, over %d parameters after %lld steps and %zu held-out logits",
           o->diff, PARAM_ELEMENTS, (long long)o->compared, test->n * DG_CLASSES);
    ex_row("", "allowed: %g, because the executors' identities are %s", o->tolerance,
           o->same_identity ? "equal" : "different");
}

static void print_json(const settings *set, const dg_set *test, const outcome *o) {
    double per = 1.0 / (double)set->steps;
    ex_json j = { 0 };
    ex_json_number(&j, "accuracy", o->accuracy);
    ex_json_number(&j, "centroid_accuracy", o->centroid);
    ex_json_number(&j, "max_abs_diff", o->diff);
    ex_json_number(&j, "allowed_diff", o->tolerance);
    ex_json_number(&j, "compared_steps", (double)o->compared);
    ex_json_number(&j, "held_out", (double)test->n);
    ex_json_number(&j, "steps", (double)set->steps);
    ex_json_number(&j, "batch", (double)set->batch);
    ex_json_number(&j, "steps_per_s", (double)set->steps / o->seconds);
    ex_json_number(&j, "plans_made", (double)o->used.plans_made);
    ex_json_number(&j, "round_trips_per_step", (double)o->used.round_trips * per);
    ex_json_number(&j, "bytes_up_per_step", (double)o->used.socket_bytes_up * per);
    ex_json_number(&j, "bytes_down_per_step", (double)o->used.socket_bytes_down * per);
    ex_json_number(&j, "compression_ratio", o->ratio);
    ex_json_stats(&j, "counters", &o->used);
    ex_json_text(&j, "tls", o->device.tls);
    ex_json_text(&j, "cipher", o->device.cipher);
    ex_json_text(&j, "records", o->device.records);
    ex_json_text(&j, "device", o->device.name);
    ex_json_text(&j, "identity", o->device.identity);
    ex_json_end(&j);
}

static bool judge(const settings *set, const outcome *o) {
    bool accurate = o->accuracy >= set->min_accuracy, agrees = o->diff <= o->tolerance;
    char text[128];
    snprintf(text, sizeof text, "held-out accuracy %.2f %%, at least %.2f %% asked", 100 * o->accuracy,
             100 * set->min_accuracy);
    ex_verdict(accurate, text);
    snprintf(text, sizeof text, "difference from the local executor %g, at most %g allowed", o->diff, o->tolerance);
    ex_verdict(agrees, text);
    return accurate && agrees;
}

/* ---- the run --------------------------------------------------------------------------------------*/
static bool run_on(gn_ctx *g, const settings *set, const dg_set *train, const dg_set *test, outcome *o) {
    trainer t;
    float *remote = NULL;
    o->compared = set->steps < COMPARED_STEPS ? set->steps : COMPARED_STEPS;
    bool ok = ex_check(g, gn_status(g), "cannot connect") && ex_check(g, gn_get_device(g, &o->device), "device");
    if (!ok) return false;
    if (!trainer_make(&t, set, train, g, true)) {
        trainer_destroy(&t);
        return false;
    }
    ok = train_steps(&t, 0, o->compared) && (remote = snapshot(&t.net, test)) != NULL &&
         train_steps(&t, o->compared, set->steps);
    ok = ok && accuracy(&t.net, test, &o->accuracy) &&
         compare_local(set, train, test, o->compared, remote, &o->local, &o->diff);
    uint64_t packed = t.used.packed_bytes_up + t.used.packed_bytes_down;
    o->used = t.used;
    o->seconds = t.seconds;
    o->ratio = packed ? (double)(t.used.tensor_bytes_up + t.used.tensor_bytes_down) / (double)packed : 1;
    o->same_identity = !strcmp(o->device.identity, o->local.identity);
    o->tolerance = o->same_identity ? 0 : TOLERANCE;
    free(remote);
    trainer_destroy(&t);
    return ok;
}

static int run(const settings *set, const dg_set *train, const dg_set *test) {
    ex_place place;
    outcome o = { 0 };
    ex_catch_signals();
    if (!ex_place_open(&place, set->connect, set->home)) return EX_FAILED;
    o.centroid = dg_centroid_accuracy(train, test);
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home });
    bool ok = run_on(g, set, train, test, &o);
    gn_close(g);
    ex_place_close(&place);
    if (ex_interrupted) return EX_INTERRUPTED;
    if (!ok) return EX_FAILED;
    print_report(set, test, &o);
    ok = judge(set, &o);
    if (set->json) print_json(set, test, &o);
    return ok ? EX_OK : EX_FAILED;
}

static bool load(const settings *set, dg_set *train, dg_set *test) {
    bool ok;
    if (set->data) ok = dg_read_set(train, set->data, "train") && dg_read_set(test, set->data, "t10k");
    else {
        ok = dg_draw_set(train, DRAWN_TRAIN, 2 * (uint64_t)set->seed) &&
             dg_draw_set(test, DRAWN_TEST, 2 * (uint64_t)set->seed + 1);
        if (!ok) fprintf(stderr, "out of memory\n");
    }
    if (ok && set->data) printf("%zu digits to train on and %zu held out, from %s\n", train->n, test->n, set->data);
    if (ok && !set->data)
        printf("%zu digits to train on and %zu held out, drawn with seed %lld\n", train->n, test->n,
               (long long)set->seed);
    return ok;
}

static int write_idx(const char *dir, const dg_set *train, const dg_set *test) {
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "%s: %s\n", dir, strerror(errno));
        return EX_FAILED;
    }
    if (!dg_write_set(train, dir, "train") || !dg_write_set(test, dir, "t10k")) return EX_FAILED;
    printf("written to %s; train on them with --data %s\n", dir, dir);
    return EX_OK;
}

int main(int argc, char **argv) {
    settings set = { .steps = 1000, .seed = 1, .batch = 64, .loss_every = 10, .lr = 0.05, .min_accuracy = 0.97 };
    const ex_option options[] = {
        { "connect", EX_MAYBE, &set.connect, "WHERE",
          "a URL, @FILE, - or host:port ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { "data", EX_TEXT, &set.data, "DIR", "read MNIST's IDX files from there instead of drawing digits", 0, 0 },
        { "write-idx", EX_TEXT, &set.write_idx, "DIR", "write the digits there as IDX files and stop", 0, 0 },
        { "steps", EX_INT, &set.steps, "N", "training steps (1000)", 1, 1e9 },
        { "batch", EX_INT, &set.batch, "N", "digits per step (64)", 1, 65536 },
        { "seed", EX_INT, &set.seed, "N", "seed of digits, network and batches (1)", 0, 1e15 },
        { "lr", EX_NUMBER, &set.lr, "RATE", "highest learning rate (0.05)", 0, 10 },
        { "loss-every", EX_INT, &set.loss_every, "N", "read the loss every N steps; 1 waits for each step (10)", 1,
          1e9 },
        { "min-accuracy", EX_NUMBER, &set.min_accuracy, "SHARE", "fail below this held-out accuracy (0.97)", 0, 1 },
        { "home", EX_TEXT, &set.home, "DIR", "folder of client credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(
        argc, argv,
        "remote_mlp trains a network on digits, on a device reached over TLS, and checks it against the local CPU.",
        options);
    dg_set train = { 0 }, test = { 0 };
    int status = EX_FAILED;
    if (load(&set, &train, &test))
        status = set.write_idx ? write_idx(set.write_idx, &train, &test) : run(&set, &train, &test);
    dg_set_destroy(&train);
    dg_set_destroy(&test);
    return status;
}
