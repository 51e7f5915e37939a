/* Runs a language model as its authors ship it: a directory with config.json, safetensors and a tokenizer, or a GGUF
 * file. Its tokens are those of the package transformers.
 *
 *   ./examples/chat DIR                        a conversation; Ctrl-C ends an answer, Ctrl-D the program
 *   ./examples/chat FILE.gguf --prompt "Once upon a time" --max-tokens 100
 *   ./examples/chat DIR --connect @genie.url --temperature 0.8 --top-p 0.95
 *   ./examples/chat                            trains a small model on a poem, saves it, loads it and continues a line
 */
#define _DEFAULT_SOURCE /* beside what common.h asks for */
#include "common.h"

#include "text_model.h"

#include "chat_train.h"
#include "line_editor.h"

enum { MAX_AHEAD = 64, MAX_STOPS = 16, MAX_LOG_PROBS = 20, USUAL_CONTEXT = 4096 };

typedef struct settings {
    const char *program, *path, *connect, *home, *prompt, *file, *system, *dtype, *quantize, *save, *stop[MAX_STOPS];
    int n_stop;
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, seed, max_tokens, context, ahead, log_probs, train_steps;
    bool explain, json, raw;
} settings;

/* One decode step under way. */
typedef struct slot {
    int64_t token, others[MAX_LOG_PROBS];
    float log_prob, other_log_probs[MAX_LOG_PROBS];
    uint64_t ticket;
} slot;

typedef struct answer_stats {
    int64_t prompt, reused, tokens;
    double first_s, decode_s, submit_s, log_prob; /* submit_s: of decode_s, what this program spent on its steps */
    gn_stats counters;                            /* of the tokens after the first */
    const char *ended;                            /* "end", "stop", "length", "context", "interrupted" */
} answer_stats;

typedef struct chat {
    const settings *set;
    gn_ctx *g;
    text_model of;
    lm_session s;
    gn_tensor token, counts; /* states: the last token (1) i64; how often each has come (1, vocab) i32 */
    gn_recording step;       /* of one token; no ctx: not recorded yet */
    tokenizer_ids held;      /* what the KV cache holds */
    chat_template_text talk; /* messages as JSON without the closing bracket; or the text so far */
    slot slots[MAX_AHEAD];
    tokenizer_ids out; /* tokens of the answer */
    slot *logs;        /* of each of them, with --logprobs and --json */
    size_t logs_room;
    answer_stats stats;
    gn_device_info device;
    double begun, load_s; /* load_s: from the start of the program until the device has the weights */
    ex_progress bar;
} chat;

static void print_text(void *user, const char *text, size_t size) {
    (void)user;
    fwrite(text, 1, size, stdout);
    fflush(stdout);
}

/* ---- the next token ----------------------------------------------------------------------------------------*/
static bool penalized(const settings *set) { return set->repeat_penalty != 1; }

/* logits (1, vocab) -> the token that is drawn (1) i64; position, 0-d i64: the one that it will have. */
static gn_tensor draw(chat *c, gn_tensor logits, gn_tensor position) {
    const settings *set = c->set;
    gn_sample_desc d = { .seed = gn_scalar_i64(c->g, GN_I64, set->seed),
                         .counter = position,
                         .temperature = gn_scalar(c->g, GN_F32, set->temperature) };
    if (penalized(set)) {
        d.counts = c->counts;
        d.repetition = gn_scalar(c->g, GN_F32, set->repeat_penalty);
    }
    if (set->temperature == 0) return gn_argmax(gn_adjust_logits(logits, &d), GN_AXES(1), false);
    if (set->top_k) d.top_k = gn_scalar_i64(c->g, GN_I64, set->top_k);
    if (set->top_p < 1) d.top_p = gn_scalar(c->g, GN_F32, set->top_p);
    if (set->min_p > 0) d.min_p = gn_scalar(c->g, GN_F32, set->min_p);
    return gn_sample(logits, &d);
}

/* row (1, dim): the token that follows becomes the state. want: it, and what is told of it; how many that are. */
static int next_token(chat *c, gn_tensor row, gn_tensor position, gn_tensor want[4]) {
    int64_t n = c->set->log_probs;
    gn_tensor logits = lm_logits(c->of.m, row), next = draw(c, logits, position);
    want[0] = next;
    gn_assign(c->token, next);
    if (penalized(c->set)) gn_assign(c->counts, gn_add(c->counts, gn_one_hot(next, c->of.m->config.vocab, GN_I32)));
    if (!n) return 1;
    want[1] = gn_gather(gn_log_softmax(logits, 1), 1, gn_unsqueeze(next, 1));
    gn_top_log_probs(logits, n, &want[3], &want[2]);
    return 4;
}

/* Where a slot takes what next_token gives. */
static void slot_places(const chat *c, slot *s, void *to[4], size_t bytes[4]) {
    size_t n = (size_t)c->set->log_probs;
    to[0] = &s->token, to[1] = &s->log_prob, to[2] = s->others, to[3] = s->other_log_probs;
    bytes[0] = sizeof s->token, bytes[1] = sizeof s->log_prob, bytes[2] = n * 8, bytes[3] = n * 4;
}

/* The token that follows `row` is on its way to the slot. */
static bool draw_later(chat *c, gn_tensor row, slot *out) {
    gn_tensor want[4];
    void *to[4];
    size_t bytes[4];
    int n = next_token(c, row, gn_scalar_i64(c->g, GN_I64, c->s.position), want);
    slot_places(c, out, to, bytes);
    return ex_check(c->g, gn_read_later(want, n, to, bytes, &out->ticket), "decoding") &&
           ex_check(c->g, gn_step(c->g), "decoding");
}

/* The step of one token is built once; what differs from one to the next is the position. */
static bool record_step(chat *c) {
    gn_tensor want[4], given[2] = { gn_scalar(c->g, GN_I32, 0), gn_scalar_i64(c->g, GN_I64, 0) };
    int n = next_token(c, lm_forward_at(&c->s, given[0], c->token, 1), given[1], want);
    int n_given = c->set->temperature == 0 ? 1 : 2; /* the largest logit does not depend on where it stands */
    return ex_check(c->g, gn_step_record(c->g, given, n_given, want, n, &c->step), "preparing to decode");
}

/* The token that follows the last one is on its way to the slot. */
static bool token_later(chat *c, slot *out) {
    int32_t at = (int32_t)c->s.position;
    int64_t next = ++c->s.position;
    void *to[4];
    size_t bytes[4];
    slot_places(c, out, to, bytes);
    gn_result r = gn_step_give(c->step, 0, &at, sizeof at);
    if (r == GN_OK && c->set->temperature != 0) r = gn_step_give(c->step, 1, &next, sizeof next);
    if (r == GN_OK) r = gn_step_run(c->step, to, bytes, &out->ticket);
    return ex_check(c->g, r, "decoding");
}

/* Tokens of a chunk: few sizes, so that few plans serve all prompts. Rows behind the prompt are written over later. */
static int64_t chunk_of(const chat *c, int64_t left) {
    static const int64_t sizes[] = { 256, 64, 16, 1 };
    int64_t room = c->s.context - c->s.position, best = 1;
    for (int i = 0; i < 4; i++)
        if (sizes[i] <= room && (sizes[i] >= left || best == 1)) best = sizes[i];
    return best;
}

/* Feeds ids from the first one that the cache does not hold; the token that follows is on its way to slot 0. */
static bool prefill(chat *c, const tokenizer_ids *ids) {
    int32_t chunk[256];
    size_t at = 0;
    while (at < c->held.n && at + 1 < ids->n && c->held.id[at] == ids->id[at]) at++;
    c->s.position = (int64_t)at;
    c->stats.reused = (int64_t)at;
    while (at < ids->n) {
        int64_t left = (int64_t)(ids->n - at), size = chunk_of(c, left), n = left < size ? left : size;
        for (int64_t i = 0; i < size; i++) chunk[i] = i < n ? (int32_t)ids->id[at + (size_t)i] : 0;
        gn_tensor x = lm_forward(&c->s, gn_data_copy(c->g, GN_I32, GN_SHAPE(size), chunk), size);
        at += (size_t)n;
        c->s.position += n;
        gn_tensor last = gn_data_copy(c->g, GN_I64, GN_SHAPE(1), &(int64_t){ n - 1 });
        bool ok = at < ids->n ? ex_check(c->g, gn_step(c->g), "reading the prompt")
                              : draw_later(c, gn_index_select(x, 0, last), &c->slots[0]);
        if (!ok) return false;
    }
    return true;
}

/* Tokens that have come, for the penalty on repeating them. */
static bool count_tokens(chat *c, const tokenizer_ids *ids) {
    size_t vocab = (size_t)c->of.m->config.vocab;
    int32_t *counts = calloc(vocab, sizeof *counts);
    if (!counts) return false;
    for (size_t i = 0; i < ids->n; i++) counts[ids->id[i]]++;
    gn_assign(c->counts, gn_data_copy(c->g, GN_I32, GN_SHAPE(1, (int64_t)vocab), counts));
    free(counts);
    return ex_check(c->g, gn_step(c->g), "counting tokens");
}

static void print_log_probs(const chat *c, const slot *s) {
    size_t n;
    const char *text = tokenizer_token(c->of.t, (uint32_t)s->token, &n);
    fprintf(stderr, "\n%lld %.*s %.6f:", (long long)s->token, text ? (int)n : 1, text ? text : "?",
            (double)s->log_prob);
    for (int64_t i = 0; i < c->set->log_probs; i++)
        fprintf(stderr, " %lld %.6f", (long long)s->others[i], (double)s->other_log_probs[i]);
    fprintf(stderr, "\n");
}

/* Keeps what is told of a token for the line of JSON. */
static bool keep_log(chat *c, const slot *s) {
    if (!c->set->log_probs || !c->set->json) return true;
    if (c->out.n >= c->logs_room) {
        size_t room = 2 * c->logs_room + 64;
        slot *more = realloc(c->logs, room * sizeof *more);
        if (!more) return false;
        c->logs = more;
        c->logs_room = room;
    }
    c->logs[c->out.n] = *s;
    return true;
}

/* Takes the token of a slot; false when the answer ends with it. */
static bool take(chat *c, const slot *s, tokenizer_stream *stream, sink *out) {
    c->stats.ended = "end";
    for (int64_t i = 0; i < c->of.m->config.n_end; i++)
        if (c->of.m->config.end[i] == s->token) return false;
    c->stats.tokens++;
    c->stats.log_prob += (double)s->log_prob;
    if (c->set->log_probs && !c->set->json) print_log_probs(c, s);
    c->stats.ended = "failed";
    if (s->token < 0 || !keep_log(c, s) || !keep_id(&c->out, (uint32_t)s->token)) {
        fprintf(stderr, s->token < 0 ? "the model's logits are not numbers\n" : "out of memory\n");
        out->failed = true;
        return false;
    }
    tokenizer_decode(c->of.t, stream, (uint32_t)s->token, sink_add, out);
    c->stats.ended = out->failed ? "failed" : "stop";
    return !out->stopped && !out->failed;
}

/* A step on this CPU has ended when it is submitted: with others ahead of it a token would only be told later. */
static int64_t steps_ahead(const chat *c) {
    bool here = gn_device_count(c->g) == 1 && !c->device.remote && !strncmp(c->device.name, "cpu", 3);
    return here ? 1 : c->set->ahead;
}

/* Decodes with `ahead` steps under way. */
static bool decode(chat *c, int64_t most, tokenizer_stream *stream, sink *out, double begin) {
    int64_t sent = 1, taken = 0, ahead = steps_ahead(c);
    bool ok = c->step.ctx || most < 2 || record_step(c), goes_on = true;
    gn_stats before, after;
    double first = 0;
    gn_get_stats(c->g, &before);
    while (ok && goes_on && taken < most) {
        double submit = ex_now();
        for (; ok && sent < most && sent < taken + ahead; sent++) ok = token_later(c, &c->slots[sent % MAX_AHEAD]);
        c->stats.submit_s += ex_now() - submit;
        ok = ok && ex_check(c->g, gn_wait(c->g, c->slots[taken % MAX_AHEAD].ticket), "decoding");
        if (!ok) break;
        if (taken++ == 0) {
            first = ex_now();
            c->stats.first_s = first - begin;
        }
        goes_on = take(c, &c->slots[(taken - 1) % MAX_AHEAD], stream, out);
        if (goes_on && taken == most) c->stats.ended = "length";
        if (goes_on && ex_interrupted) c->stats.ended = "interrupted", goes_on = false;
    }
    c->stats.decode_s = ex_now() - first;
    if (ok) ok = ex_check(c->g, gn_sync(c->g), "decoding");
    gn_get_stats(c->g, &after);
    memset(&c->stats.counters, 0, sizeof c->stats.counters);
    ex_stats_add(&c->stats.counters, &before, &after);
    return ok && !out->failed;
}

/* The answer to ids: printed as it comes, and left in `out`. What the cache holds then is a part of it. */
static bool answer(chat *c, const tokenizer_ids *ids, sink *out) {
    tokenizer_stream stream = { 0 };
    double begin = ex_now();
    int64_t room = c->s.context - (int64_t)ids->n + 1;
    int64_t most = c->set->max_tokens && c->set->max_tokens < room ? c->set->max_tokens : room;
    if (room < 2 || !ids->n) {
        fprintf(stderr,
                ids->n ? "the prompt has %zu tokens, but the context has room for %lld: see --context%s\n"
                       : "the prompt has no tokens\n",
                ids->n, (long long)c->s.context, isatty(STDIN_FILENO) ? ", or start again with /reset" : "");
        return false;
    }
    c->stats = (answer_stats){ .prompt = (int64_t)ids->n };
    c->out.n = 0;
    ex_interrupted = 0;
    if ((penalized(c->set) && !count_tokens(c, ids)) || !prefill(c, ids)) return false;
    bool ok = decode(c, most, &stream, out, begin);
    if (ok && !out->stopped) tokenizer_decode_end(c->of.t, &stream, sink_add, out);
    if (!out->stopped) sink_print(out, out->n);
    if (ok && most == room && !strcmp(c->stats.ended, "length")) c->stats.ended = "context";
    c->held.n = 0;
    for (size_t i = 0; ok && i < ids->n; i++) ok = keep_id(&c->held, ids->id[i]);
    for (size_t i = 0; ok && i + 1 < c->out.n; i++) ok = keep_id(&c->held, c->out.id[i]);
    return ok;
}

/* ---- prompts -----------------------------------------------------------------------------------------------*/
/* Adds what somebody says: a message for the template, or without one the text itself. */
static bool talk_message(chat *c, const char *role, const char *text, size_t n) {
    return c->of.templ ? talk_role(&c->talk, role, text, n) : talk_add(&c->talk, text, n);
}

/* ---- reports -----------------------------------------------------------------------------------------------*/
static double rate(const answer_stats *a) {
    return a->tokens > 1 && a->decode_s > 0 ? (double)(a->tokens - 1) / a->decode_s : 0;
}

static double socket_bytes(const answer_stats *a) {
    uint64_t bytes = a->counters.socket_bytes_up + a->counters.socket_bytes_down;
    return a->tokens > 1 ? (double)bytes / (double)(a->tokens - 1) : 0;
}

static void print_stats(const chat *c) {
    const answer_stats *a = &c->stats;
    fprintf(stderr,
            "[%lld + %lld tokens (%s), %.1f tokens/s, first after %.2f s, %.0f bytes a token at the socket, on %s]\n",
            (long long)a->prompt, (long long)a->tokens, a->ended ? a->ended : "none yet", rate(a), a->first_s,
            socket_bytes(a), c->device.name);
}

/* Of each token its own, then the most probable ones as [id, log-probability]. */
static void print_logs(ex_json *j, const chat *c) {
    ex_json_name(j, "logprobs");
    putchar('[');
    for (size_t i = 0; i < c->out.n; i++) {
        printf("%s[%.6f", i ? "," : "", (double)c->logs[i].log_prob);
        for (int64_t k = 0; k < c->set->log_probs; k++)
            printf(",[%lld,%.6f]", (long long)c->logs[i].others[k], (double)c->logs[i].other_log_probs[k]);
        putchar(']');
    }
    putchar(']');
}

static void print_json(const chat *c, const sink *out) {
    const answer_stats *a = &c->stats;
    chat_template_text quoted = { 0 };
    ex_json j = { 0 };
    ex_json_name(&j, "text");
    if (talk_quote(&quoted, out->text ? out->text : "", out->n)) printf("%s", quoted.text);
    chat_template_text_free(&quoted);
    ex_json_name(&j, "tokens");
    putchar('[');
    for (size_t i = 0; i < c->out.n; i++) printf("%s%u", i ? "," : "", c->out.id[i]);
    putchar(']');
    ex_json_text(&j, "ended", a->ended);
    ex_json_text(&j, "family", lm_family_name(c->of.m));
    ex_json_text(&j, "dtype", gn_dtype_name(c->of.m->dtype));
    ex_json_number(&j, "prompt_tokens", (double)a->prompt);
    ex_json_number(&j, "reused_tokens", (double)a->reused);
    ex_json_number(&j, "tokens_per_second", rate(a));
    ex_json_number(&j, "first_token_seconds", a->first_s);
    ex_json_number(&j, "bytes_per_token", socket_bytes(a));
    ex_json_number(&j, "submit_ms_per_token", a->tokens > 1 ? 1e3 * a->submit_s / (double)(a->tokens - 1) : 0);
    ex_json_number(&j, "load_seconds", c->load_s);
    ex_json_number(&j, "weight_bytes", (double)c->bar.total);
    ex_json_number(&j, "weight_bytes_sent", (double)c->bar.latest.sent);
    ex_json_number(&j, "weight_bytes_packed", (double)c->bar.latest.packed);
    if (c->set->log_probs) {
        ex_json_number(&j, "log_prob", a->log_prob);
        print_logs(&j, c);
    }
    ex_json_text(&j, "device", c->device.name);
    ex_json_stats(&j, "counters", &a->counters);
    ex_json_end(&j);
}

/* The device that holds a weight of the layer; "" none. Layer -1: of that role. */
static void layer_device(const chat *c, int layer, int role, char out[96]) {
    gn_info info;
    gn_tensor w;
    gn_shape shape;
    const char *name;
    for (int i = layer < 0 ? role : 0; i < (layer < 0 ? role + 1 : LM_ROLES); i++)
        if (lm_tensor_at(c->of.m, layer, i, &name, &w, &shape) && gn_describe(w, &info) == GN_OK) {
            snprintf(out, 96, "%s", info.device);
            return;
        }
    out[0] = 0;
}

/* Which layers lie where, those of one device in a line. */
static void print_layers(const chat *c) {
    static const lm_role ends[] = { LM_EMBEDDING, LM_HEAD };
    static const char *const names[] = { "embedding", "head" };
    char device[96], next[96];
    for (int i = 0; i < 2; i++) {
        layer_device(c, -1, (int)ends[i], device);
        if (device[0]) printf("%s: on %s\n", names[i], device);
    }
    layer_device(c, 0, 0, device);
    for (int layer = 0, first = 0; layer < c->of.m->config.layers; layer++) {
        layer_device(c, layer + 1, 0, next);
        if (layer + 1 < c->of.m->config.layers && !strcmp(device, next)) continue;
        printf("layers %d to %d: on %s\n", first, layer, device);
        first = layer + 1;
        memcpy(device, next, sizeof device);
    }
}

/* Where the next decode step would run, and why. */
static bool explain(chat *c) {
    gn_tensor x = lm_forward(&c->s, c->token, 1);
    bool ok = ex_explain(draw(c, lm_logits(c->of.m, x), gn_scalar_i64(c->g, GN_I64, 1)), NULL, stdout);
    if (ok) print_layers(c);
    return ex_check(c->g, gn_step(c->g), "explain") && ok;
}

/* ---- opening -----------------------------------------------------------------------------------------------*/
/* Sends the weights. Several devices need to know the whole step first, to divide the layers by their memory. */
static bool place_weights(chat *c) {
    bool several = gn_device_count(c->g) > 1, ok = several ? record_step(c) : send_weights(&c->of, c->g, &c->bar);
    ex_progress_end(&c->bar);
    ok = ok && ex_check(c->g, gn_sync(c->g), "sending the weights");
    c->load_s = ex_now() - c->begun;
    return ok;
}

static bool open_model(chat *c, const ex_place *place) {
    const settings *set = c->set;
    char error[LM_ERROR];
    int64_t most = c->of.m->config.context, context = set->context           ? set->context
                                                      : most < USUAL_CONTEXT ? most
                                                                             : USUAL_CONTEXT;
    c->bar.total = lm_weight_bytes(c->of.m);
    c->g = gn_open(&(gn_desc){ .devices = place->devices,
                               .home = place->home,
                               .progress = ex_progress_show,
                               .progress_user = ex_progress_begin(&c->bar) });
    if (!ex_check(c->g, gn_status(c->g), "cannot connect")) return false;
    gn_get_device(c->g, &c->device);
    if (!lm_load(c->of.m, c->g, LM_WEIGHTS, error) || !lm_session_open(&c->s, c->of.m, context, error)) {
        fprintf(stderr, "%s: %s\n", set->path, error);
        return false;
    }
    c->token = gn_state(c->g, GN_I64, GN_SHAPE(1), NULL, "token");
    if (penalized(set)) c->counts = gn_state(c->g, GN_I32, GN_SHAPE(1, c->of.m->config.vocab), NULL, "counts");
    if (place_weights(c)) return true;
    if (ex_interrupted) return false;
    fprintf(stderr, "%s needs %.1f MB for weights (%s) and %.1f MB for a context of %lld tokens\n", set->path,
            1e-6 * (double)lm_weight_bytes(c->of.m), gn_dtype_name(c->of.m->dtype),
            1e-6 * (double)lm_cache_bytes(c->of.m, context), (long long)context);
    return false;
}

static void chat_close(chat *c) {
    gn_close(c->g);
    free(c->s.cache);
    text_model_close(&c->of);
    tokenizer_ids_free(&c->held);
    tokenizer_ids_free(&c->out);
    free(c->logs);
    chat_template_text_free(&c->talk);
}

/* ---- the run -----------------------------------------------------------------------------------------------*/
/* Answers what was said last; the answer becomes a part of the conversation. */
static bool reply(chat *c) {
    sink out = { .stop = c->set->stop, .n_stop = c->set->n_stop, .print = c->set->json ? NULL : print_text };
    tokenizer_ids ids = { 0 };
    bool ok = talk_ids(&c->of, &c->talk, &ids) && answer(c, &ids, &out) &&
              talk_message(c, "assistant", out.text ? out.text : "", out.n);
    if (ok && !c->set->json) printf("\n");
    if (ok && c->set->json) print_json(c, &out);
    fflush(stdout);
    free(out.text);
    tokenizer_ids_free(&ids);
    return ok;
}

static bool begin_talk(chat *c) {
    c->talk.size = 0;
    if (!*c->set->system) return true;
    if (!c->of.templ) fprintf(stderr, "--system needs a model with a chat template\n");
    return c->of.templ && talk_message(c, "system", c->set->system, strlen(c->set->system));
}

static bool once(chat *c, const char *prompt, size_t n) {
    bool ok = talk_message(c, "user", prompt, n) && reply(c);
    if (ok && !c->set->json) print_stats(c);
    return ok && !ex_interrupted;
}

static bool from_file(chat *c) {
    char why[256];
    mapping map;
    if (!mapping_open(&map, c->set->file, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    bool ok = once(c, (const char *)map.data, map.size);
    mapping_close(&map);
    return ok;
}

/* Whether a signal ends the wait for a line. */
static void interrupts_reads(bool yes) {
    struct sigaction a = { .sa_handler = ex_on_signal, .sa_flags = yes ? 0 : SA_RESTART };
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static bool interactive(chat *c) {
    static line_editor editor;
    bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal)
        printf("%s, %s, %s, %lld tokens of context. /reset starts again, /stats shows figures of the last answer, "
               "Ctrl-D exits.\n",
               lm_family_name(c->of.m), gn_dtype_name(c->of.m->dtype), c->device.name, (long long)c->s.context);
    for (;;) {
        ex_interrupted = 0;
        interrupts_reads(true);
        line_result r = line_read(&editor, "> ");
        interrupts_reads(false);
        if (r == LINE_END) break;
        if (r == LINE_INTERRUPTED || !editor.n) continue;
        if (!strcmp(editor.text, "/stats")) print_stats(c);
        else if (!strcmp(editor.text, "/reset")) {
            if (!begin_talk(c)) return false;
        } else if (editor.text[0] == '/') fprintf(stderr, "%s is not known; /reset and /stats are\n", editor.text);
        else {
            size_t before = c->talk.size;
            if (!talk_message(c, "user", editor.text, editor.n)) return false;
            if (!reply(c)) c->talk.size = before; /* as if it had not been said */
            if (gn_status(c->g) != GN_OK) {
                fprintf(stderr, "what was printed stays; start the program again to go on\n");
                return false;
            }
        }
    }
    line_editor_free(&editor);
    return !ex_interrupted;
}

static int run_model(const settings *set) {
    ex_place place = { .devices = getenv("GENIE_DEVICES") ? NULL : "cpu", .home = set->home };
    chat c = { .set = set, .begun = ex_now() };
    ex_catch_signals();
    bool ok = open_files(&c.of, set->program, set->path, set->dtype, set->quantize, set->raw) &&
              (!set->connect || ex_place_open(&place, set->connect, set->home)) && open_model(&c, &place) &&
              begin_talk(&c);
    if (ok && set->explain) ok = explain(&c);
    else if (ok && *set->file) ok = from_file(&c);
    else if (ok && set->prompt) ok = once(&c, set->prompt, strlen(set->prompt));
    else if (ok) ok = interactive(&c);
    chat_close(&c);
    if (set->connect) ex_place_close(&place);
    return ok ? EX_OK : ex_interrupted ? EX_INTERRUPTED : EX_FAILED;
}

/* Trains a small model, saves it, and runs what was saved. */
static int run_trained(settings *set) {
    char folder[PATH_MAX];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s", *set->save ? set->save : "");
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/genie-model-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(folder)) folder[0] = 0;
    } else if (mkdir(folder, 0777)) folder[0] = 0;
    if (!folder[0]) {
        fprintf(stderr, "%s: %s\n", *set->save ? set->save : "a folder for the model", strerror(errno));
        return EX_FAILED;
    }
    set->path = folder;
    if (!set->prompt) set->prompt = TRAIN_PROMPT;
    if (!set->max_tokens) set->max_tokens = 120;
    set->raw = true;
    int status = train_small(folder, set->train_steps) ? EX_OK : EX_FAILED;
    if (status == EX_OK && !set->json)
        printf("%s/model.safetensors, loaded again, goes on from \"%s\":\n", folder, set->prompt);
    if (status == EX_OK) status = run_model(set);
    if (!*set->save) nftw(folder, ex_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return status;
}

/* Takes the model, which comes first, and --stop, which may come several times, out of the arguments. */
static int take_arguments(int argc, char **argv, settings *set) {
    int n = 1;
    set->program = argv[0];
    for (int i = 1; i < argc; i++) {
        const char *value = !strncmp(argv[i], "--stop=", 7) ? argv[i] + 7 : NULL;
        if (i == 1 && argv[i][0] != '-') {
            set->path = argv[i];
            continue;
        }
        if (!strcmp(argv[i], "--stop") && i + 1 < argc) value = argv[++i];
        if (!value) {
            argv[n++] = argv[i];
            continue;
        }
        if (!*value || set->n_stop == MAX_STOPS)
            ex_usage(argv[0], "--stop takes a text that is not empty, %d times at most", MAX_STOPS);
        set->stop[set->n_stop++] = value;
    }
    argv[n] = NULL;
    return n;
}

int main(int argc, char **argv) {
    settings set = { .file = "",
                     .system = "",
                     .dtype = "",
                     .quantize = "",
                     .save = "",
                     .top_p = 1,
                     .repeat_penalty = 1,
                     .ahead = 4,
                     .train_steps = 400 };
    const char *unused = "";
    const ex_option options[] = {
        { "prompt", EX_TEXT, &set.prompt, "TEXT", "answer this prompt and exit", 0, 0 },
        { "file", EX_TEXT, &set.file, "FILE", "the same, with the prompt in a file", 0, 0 },
        { "system", EX_TEXT, &set.system, "TEXT", "system message for the chat template", 0, 0 },
        { "raw", EX_FLAG, &set.raw, NULL, "do not apply the chat template", 0, 0 },
        { "temperature", EX_NUMBER, &set.temperature, "T",
          "sampling temperature; 0: always the most probable token (0)", 0, 100 },
        { "top-k", EX_INT, &set.top_k, "K", "sample from the K most probable tokens; 0: all (0)", 0, 1 << 23 },
        { "top-p", EX_NUMBER, &set.top_p, "P", "from the fewest tokens that together have this probability (1)", 0, 1 },
        { "min-p", EX_NUMBER, &set.min_p, "P", "from tokens at least this fraction as probable as the best (0)", 0, 1 },
        { "repeat-penalty", EX_NUMBER, &set.repeat_penalty, "R",
          "divide the logits of tokens that have appeared by R (1)", 0.01, 100 },
        { "seed", EX_INT, &set.seed, "N", "seed of sampling (0)", 0, 1e15 },
        { "stop", EX_TEXT, &unused, "TEXT", "end the answer before this text; may be repeated", 0, 0 },
        { "max-tokens", EX_INT, &set.max_tokens, "N", "longest answer, in tokens; 0: until the context is full (0)", 0,
          1 << 28 },
        { "context", EX_INT, &set.context, "N", "size of the KV cache, in tokens (the model's context, at most 4096)",
          1, 1 << 28 },
        { "ahead", EX_INT, &set.ahead, "N", "decode steps in flight on a server or a GPU (4)", 1, MAX_AHEAD },
        { "logprobs", EX_INT, &set.log_probs, "N", "also print the N most probable tokens at each position (0)", 0,
          MAX_LOG_PROBS },
        MODEL_OPTIONS(set),
        { "explain", EX_FLAG, &set.explain, NULL, "explain where a decode step would run, and why", 0, 0 },
        { "json", EX_FLAG, &set.json, NULL, "print each answer as one line of JSON", 0, 0 },
        { "save", EX_TEXT, &set.save, "DIR", "without a model: save the one that is trained there", 0, 0 },
        { "train-steps", EX_INT, &set.train_steps, "N", "without a model: training steps (400)", 1, 100000 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    argc = take_arguments(argc, argv, &set);
    ex_operand = "[DIR|FILE.gguf] ";
    ex_parse(argc, argv, "chat runs a language model; without one it trains a small one first.", options);
    if (set.prompt && *set.file) ex_usage(argv[0], "--prompt and --file are two prompts: give one of them");
    return set.path ? run_model(&set) : run_trained(&set);
}
