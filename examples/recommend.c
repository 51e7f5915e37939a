/* Learns which visits end with a click: tables of embeddings, bags of a variable number of ids, the dot products of all
 * pairs, two MLPs (DLRM, Naumov et al. 2019). Ids go up, tables stay where they are.
 *
 *   ./examples/recommend                                    on a server in this process
 *   ./examples/recommend --connect @a,@b --explain          two servers: what would run where, and what would cross
 *   ./examples/recommend --connect @a,@b --tables 0 --mlp 1 --policy bytes
 *                                                           tables on the first, the MLPs on the second
 *   ./examples/recommend --save net.safetensors             keep the network
 *   ./examples/recommend --load net.safetensors             score visits with it, without training */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "common.h"
#define SAFETENSORS_IMPLEMENTATION
#include "formats/safetensors.h"
#include "clicks.h"
#include "parameters.h"
#include "tensors_file.h"
#include "parameters_file.h"

enum {
    WIDTH = 16, /* of an embedding */
    VECTORS = CLICKS_FIELDS + 1,
    PAIRS = VECTORS * (VECTORS - 1) / 2
};

typedef struct settings {
    const char *connect, *tables, *mlp, *policy, *scores, *answers, *load, *save;
    int64_t steps, batch, held_out, seed;
    double rate, min_auc;
    bool explain, json;
} settings;

typedef struct run {
    const settings *set;
    gn_ctx *g;
    ex_parameters p;
    clicks rule;
    clicks_batch batch;
    uint64_t random; /* draws the visits */
    double auc, untrained, best, seconds;
    gn_stats used; /* by the training steps */
    int64_t table_bytes;
} run;

/* ---- the network ----------------------------------------------------------------------------------*/

/* States made from here on live on this device; NULL: where the scheduler puts them. */
static bool live_on(run *r, const char *device) { return ex_check(r->g, gn_on(r->g, device), "--tables and --mlp"); }

/* (batch, WIDTH): the mean of each bag's rows. The room for ids is that of the largest batch, so all have one plan. */
static gn_tensor bags(run *r, int field) {
    const clicks_field *f = &clicks_fields[field];
    const clicks_batch *b = &r->batch;
    char name[EX_NAME];
    snprintf(name, sizeof name, "table.%s", f->name);
    gn_tensor table = ex_parameter(&r->p, name, GN_SHAPE(f->ids, WIDTH), 0, 0.05);
    gn_tensor ids = gn_data(r->g, GN_I32, GN_SHAPE(b->n * f->most), b->ids[field]);
    gn_tensor lengths = gn_data(r->g, GN_I32, GN_SHAPE(b->n), b->lengths[field]);
    return gn_label(gn_embedding_bag(table, ids, lengths, GN_BAG_MEAN), f->name);
}

/* x (batch, VECTORS, WIDTH) to (batch, PAIRS): the dot product of each vector with each one before it. */
static gn_tensor interaction(gn_tensor x, int64_t batch) {
    int32_t below[PAIRS], n = 0;
    for (int i = 1; i < VECTORS; i++)
        for (int j = 0; j < i; j++) below[n++] = i * VECTORS + j;
    gn_tensor dots = gn_reshape(gn_matmul(x, gn_transpose(x, 1, 2)), GN_SHAPE(batch, VECTORS * VECTORS));
    return gn_index_select(dots, 1, gn_data_copy(x.ctx, GN_I32, GN_SHAPE(PAIRS), below));
}

/* Of each visit of the batch the logarithm of the odds of a click: (batch). */
static bool network(run *r, gn_tensor *out) {
    ex_parameters *p = &r->p;
    int64_t n = r->batch.n;
    gn_tensor part[VECTORS], all[2];
    if (!live_on(r, r->set->mlp)) return false;
    gn_tensor x = gn_data(r->g, GN_F32, GN_SHAPE(n, CLICKS_DENSE), r->batch.dense);
    x = gn_relu(ex_linear(p, "bottom.0", x, CLICKS_DENSE, 32));
    x = gn_relu(ex_linear(p, "bottom.1", x, 32, WIDTH));
    if (!live_on(r, r->set->tables)) return false;
    for (int k = 0; k < CLICKS_FIELDS; k++) part[k] = bags(r, k);
    if (!live_on(r, r->set->mlp)) return false;
    part[CLICKS_FIELDS] = all[0] = x;
    all[1] = interaction(gn_stack(part, VECTORS, 1), n);
    x = gn_relu(ex_linear(p, "top.0", gn_concat(all, 2, 1), WIDTH + PAIRS, 64));
    x = gn_relu(ex_linear(p, "top.1", x, 64, 32));
    *out = gn_reshape(ex_linear(p, "top.2", x, 32, 1), GN_SHAPE(n));
    if (p->load && p->error[0]) return ex_loaded(p); /* says what the file lacks */
    return live_on(r, NULL);
}

/* The loss of the next batch and the updates of all parameters by it. */
static bool training_step(run *r, gn_tensor *out_loss) {
    const settings *s = r->set;
    gn_tensor odds;
    clicks_next(&r->rule, &r->random, &r->batch);
    if (!network(r, &odds)) return false;
    *out_loss = gn_bce_logits_loss(odds, gn_data(r->g, GN_F32, GN_SHAPE(r->batch.n), r->batch.label));
    return ex_train(&r->p, *out_loss, s->rate * (1 - (double)r->p.steps / (double)(s->steps + 1)));
}

/* ---- training and checking ------------------------------------------------------------------------*/
static bool train(run *r) {
    gn_stats before, after;
    double begin = ex_now(), shown = begin;
    gn_get_stats(r->g, &before);
    for (int64_t i = 1; i <= r->set->steps; i++) {
        gn_tensor loss;
        float value = 0;
        bool last = i == r->set->steps, ok = training_step(r, &loss);
        if (ok && (last || ex_now() - shown > 1)) {
            ok = ex_check(r->g, gn_read(loss, &value, sizeof value), "training");
            shown = ex_now();
            if (ok)
                printf("step %5lld of %lld   loss %.4f   %.0f visits/s\n", (long long)i, (long long)r->set->steps,
                       (double)value, (double)(i * r->set->batch) / (shown - begin));
        }
        if (!ok || !ex_check(r->g, gn_step(r->g), "training") || ex_interrupted) return false;
    }
    bool ok = ex_check(r->g, gn_sync(r->g), "training");
    r->seconds = ex_now() - begin;
    gn_get_stats(r->g, &after);
    ex_stats_add(&r->used, &before, &after);
    return ok;
}

/* The area under the ROC curve on visits that no training step has seen, by the network and by the rule itself. */
static bool evaluate(run *r, FILE *scores, double *out_auc, double *out_best) {
    int64_t n = r->set->held_out, size = r->batch.n;
    uint64_t random = random_begin((uint64_t)r->set->seed, 12);
    clicks_scored *mine = malloc((size_t)(n + size) * sizeof *mine), *best = malloc((size_t)(n + size) * sizeof *best);
    float *odds = malloc((size_t)size * sizeof *odds);
    bool ok = mine && best && odds;
    if (!ok) fprintf(stderr, "out of memory\n");
    for (int64_t at = 0; ok && at < n; at += size) {
        gn_tensor y;
        clicks_next(&r->rule, &random, &r->batch);
        ok = network(r, &y) && ex_check(r->g, gn_read(y, odds, (size_t)size * sizeof *odds), "reading the odds") &&
             ex_check(r->g, gn_step(r->g), "step");
        for (int64_t i = 0; ok && i < size && at + i < n; i++) {
            mine[at + i] = (clicks_scored){ odds[i], r->batch.label[i] };
            best[at + i] = (clicks_scored){ r->batch.chance[i], r->batch.label[i] };
            if (scores) fprintf(scores, "%g %.9g\n", (double)r->batch.label[i], (double)odds[i]);
        }
    }
    if (ok) *out_auc = clicks_auc(mine, (size_t)n);
    if (ok && out_best) *out_best = clicks_auc(best, (size_t)n);
    free(mine);
    free(best);
    free(odds);
    return ok;
}

/* New visits, their odds and the parameters, for other programs that compute the same. */
static bool write_answers(run *r) {
    static ex_values v; /* large: names */
    const clicks_batch *b = &r->batch;
    uint64_t random = random_begin((uint64_t)r->set->seed, 13);
    char name[EX_NAME];
    gn_tensor odds;
    clicks_next(&r->rule, &random, &r->batch);
    if (!network(r, &odds)) return false;
    ex_values_add(&v, "odds", odds);
    ex_values_add(&v, "dense", gn_data(r->g, GN_F32, GN_SHAPE(b->n, CLICKS_DENSE), b->dense));
    for (int k = 0; k < CLICKS_FIELDS; k++) {
        snprintf(name, sizeof name, "ids.%s", clicks_fields[k].name);
        ex_values_add(&v, name, gn_data(r->g, GN_I32, GN_SHAPE(b->n * clicks_fields[k].most), b->ids[k]));
        snprintf(name, sizeof name, "lengths.%s", clicks_fields[k].name);
        ex_values_add(&v, name, gn_data(r->g, GN_I32, GN_SHAPE(b->n), b->lengths[k]));
    }
    ex_values_add_parameters(&v, &r->p);
    return ex_values_write(&v, r->g, r->set->answers);
}

static bool explain(run *r) {
    gn_tensor loss;
    return training_step(r, &loss) && ex_explain(loss, NULL, stdout);
}

/* ---- report ---------------------------------------------------------------------------------------*/
static void print_report(const run *r) {
    double per = 1.0 / (double)r->set->steps;
    gn_device_info device;
    for (int i = 0; i < gn_device_count(r->g); i++)
        if (gn_get_device_at(r->g, i, &device) == GN_OK) ex_row(i ? "" : "ran on", "%s", device.name);
    ex_row("tables", "%d of %.1f MB together, on their device", CLICKS_FIELDS, 1e-6 * (double)r->table_bytes);
    if (r->set->load) {
        ex_row("AUC", "%.4f on %lld visits; %.4f by the rule itself", r->auc, (long long)r->set->held_out, r->best);
        return;
    }
    ex_row("training", "%lld visits in %.1f s, %.0f visits/s", (long long)(r->set->steps * r->set->batch), r->seconds,
           (double)(r->set->steps * r->set->batch) / r->seconds);
    ex_row("a step", "%.0f bytes up, %.0f down, %.0f between devices", (double)r->used.socket_bytes_up * per,
           (double)r->used.socket_bytes_down * per, (double)r->used.transfer_bytes * per);
    ex_row("AUC", "%.4f on %lld visits never seen; %.4f before training, %.4f by the rule itself", r->auc,
           (long long)r->set->held_out, r->untrained, r->best);
}

static void print_json(const run *r) {
    double per = 1.0 / (double)r->set->steps;
    ex_json j = { 0 };
    ex_json_number(&j, "auc", r->auc);
    if (!r->set->load) ex_json_number(&j, "auc_untrained", r->untrained);
    ex_json_number(&j, "auc_rule", r->best);
    ex_json_number(&j, "held_out", (double)r->set->held_out);
    ex_json_number(&j, "steps", r->set->load ? 0 : (double)r->set->steps);
    ex_json_number(&j, "batch", (double)r->set->batch);
    if (!r->set->load) ex_json_number(&j, "visits_per_s", (double)(r->set->steps * r->set->batch) / r->seconds);
    ex_json_number(&j, "table_bytes", (double)r->table_bytes);
    ex_json_number(&j, "bag_bytes", (double)(r->set->batch * CLICKS_FIELDS * WIDTH) * sizeof(float));
    ex_json_number(&j, "transfer_bytes_per_step", (double)r->used.transfer_bytes * per);
    ex_json_stats(&j, "counters", &r->used);
    ex_json_end(&j);
}

static bool judge(const run *r) {
    char text[96];
    snprintf(text, sizeof text, "AUC %.4f on visits never seen, at least %.4f asked", r->auc, r->set->min_auc);
    ex_verdict(r->auc >= r->set->min_auc, text);
    return r->auc >= r->set->min_auc;
}

/* ---- the run --------------------------------------------------------------------------------------*/
static bool measure(run *r) {
    FILE *scores = NULL;
    bool ok = r->set->load || train(r);
    if (ok && r->set->save) ok = ex_save(&r->p, r->set->save);
    if (ok && r->set->scores && !(scores = fopen(r->set->scores, "w"))) {
        fprintf(stderr, "%s: %s\n", r->set->scores, strerror(errno));
        ok = false;
    }
    ok = ok && evaluate(r, scores, &r->auc, &r->best);
    if (scores && fclose(scores) != 0) {
        fprintf(stderr, "%s: %s\n", r->set->scores, strerror(errno));
        ok = false;
    }
    ok = ok && (!r->set->answers || write_answers(r));
    if (!ok) return false;
    print_report(r);
    ok = judge(r);
    if (r->set->json) print_json(r);
    return ok;
}

static bool run_in(gn_ctx *g, const settings *set, safetensors *file) {
    static run r; /* large: parameters by name */
    r = (run){ .set = set,
               .g = g,
               .p = { .g = g, .random = random_begin((uint64_t)set->seed, 0), .fixed = file != NULL },
               .random = random_begin((uint64_t)set->seed, 11) };
    if (file) r.p.load = ex_load_parameter;
    r.p.load_user = file;
    for (int k = 0; k < CLICKS_FIELDS; k++) r.table_bytes += clicks_fields[k].ids * WIDTH * (int64_t)sizeof(float);
    bool ok = ex_check(g, gn_status(g), "cannot connect");
    if (ok && !(clicks_open(&r.rule, (uint64_t)set->seed) && clicks_batch_make(&r.batch, set->batch))) {
        fprintf(stderr, "out of memory\n");
        ok = false;
    }
    ok = ok && evaluate(&r, NULL, &r.untrained, NULL) && (!file || ex_loaded(&r.p));
    ok = ok && (set->explain ? explain(&r) : measure(&r));
    clicks_batch_destroy(&r.batch);
    clicks_close(&r.rule);
    return ok;
}

int main(int argc, char **argv) {
    static const char *const policies[GN_POLICY__COUNT] = { "latency", "throughput", "bytes" };
    settings set = {
        .steps = 1500, .batch = 512, .held_out = 20000, .seed = 1, .rate = 3e-3, .min_auc = 0.7, .policy = policies[0]
    };
    const ex_option options[] = {
        { "connect", EX_MAYBE, &set.connect, "WHERE",
          "URLs, @FILEs or host:port, several with commas ($GENIE_DEVICES, else a server in this process)", 0, 0 },
        { "tables", EX_TEXT, &set.tables, "DEVICE", "the tables live there: a name or 0 for the first", 0, 0 },
        { "mlp", EX_TEXT, &set.mlp, "DEVICE", "the MLPs' weights live there", 0, 0 },
        { "policy", EX_TEXT, &set.policy, "WHICH", "with several devices: latency, throughput or bytes (latency)", 0,
          0 },
        { "steps", EX_INT, &set.steps, "N", "training steps (1500)", 1, 1e9 },
        { "batch", EX_INT, &set.batch, "N", "visits per step (512)", 1, 65536 },
        { "held-out", EX_INT, &set.held_out, "N", "visits to check with (20000)", 2, 1e7 },
        { "seed", EX_INT, &set.seed, "N", "seed of the rule, the visits and the network (1)", 0, 1e15 },
        { "lr", EX_NUMBER, &set.rate, "RATE", "learning rate at the beginning (0.003)", 0, 10 },
        { "min-auc", EX_NUMBER, &set.min_auc, "AUC", "fail below this area under the ROC curve (0.7)", 0, 1 },
        { "save", EX_TEXT, &set.save, "FILE", "write the network, as safetensors", 0, 0 },
        { "load", EX_TEXT, &set.load, "FILE", "score with that network instead of training one", 0, 0 },
        { "scores", EX_TEXT, &set.scores, "FILE", "write label and score of each visit that was held out", 0, 0 },
        { "answers", EX_TEXT, &set.answers, "FILE", "write new visits, their odds and all parameters, as safetensors",
          0, 0 },
        { "explain", EX_FLAG, &set.explain, NULL, "explain where a training step would run, and why, and stop", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "end with one line of JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    ex_parse(argc, argv, "recommend learns which visits end with a click, from tables of embeddings.", options);
    int policy = 0;
    while (policy < GN_POLICY__COUNT && strcmp(policies[policy], set.policy) != 0) policy++;
    if (policy == GN_POLICY__COUNT)
        ex_usage(argv[0], "--policy takes latency, throughput or bytes, not %s", set.policy);
    if (set.load && (set.save || set.explain))
        ex_usage(argv[0], "--save and --explain are of training: not with --load");
    ex_place place;
    char error[SAFETENSORS_ERROR];
    safetensors *file = set.load ? safetensors_open(set.load, error) : NULL;
    if (set.load && !file) fprintf(stderr, "%s\n", error);
    ex_catch_signals();
    if ((set.load && !file) || !ex_place_open(&place, set.connect, NULL)) return EX_FAILED;
    gn_ctx *g = gn_open(&(gn_desc){ .devices = place.devices, .home = place.home, .policy = (gn_policy)policy });
    bool ok = run_in(g, &set, file);
    gn_close(g);
    ex_place_close(&place);
    safetensors_close(file);
    return ex_interrupted ? EX_INTERRUPTED : ok ? EX_OK : EX_FAILED;
}
