/* Many texts at once from one model: requests come as lines of JSON from a file or standard input, or over HTTP as
 * completion APIs have it; slots share one plan, and texts that begin alike share their pages.
 *
 *   ./examples/serve_text DIR --file requests.jsonl        {"id": 1, "prompt": "Once", "max_tokens": 20}, one a line
 *   ./examples/serve_text DIR --listen 127.0.0.1:8080      /v1/completions, /v1/chat/completions, /v1/models, /metrics
 *   ./examples/serve_text DIR --connect @genie.url < requests.jsonl
 *
 * A line {"cancel": ID} ends a request before its time. Answers come in the order in which they end.
 */
#define _DEFAULT_SOURCE /* beside what common.h asks for */
#include "common.h"

#include <poll.h>

#include "completions.h"

enum { LINE_MOST = 1 << 22, USUAL_CONTEXT = 4096 };

typedef struct settings {
    const char *program, *path, *connect, *home, *file, *listen, *token_file, *dtype, *quantize;
    int64_t slots, context, pages, page_size;
    bool raw, alone, json;
} settings;

/* Lines that come in. */
typedef struct lines {
    int fd;
    char *text;
    size_t n, room;
    bool ended;
} lines;

/* ---- lines -------------------------------------------------------------------------------------------------*/
static void print_error(const char *id, const char *error) {
    ex_json j = { 0 };
    if (id) ex_json_name(&j, "id"), printf("%s", id);
    ex_json_text(&j, "error", error);
    ex_json_end(&j);
    fflush(stdout);
}

static void print_logs(ex_json *j, const engine_request *r) {
    ex_json_name(j, "logprobs");
    for (int64_t i = 0; r->n_prompt + i < (int64_t)r->ids.n; i++) {
        printf("%s[%.6f", i ? "," : "[", (double)r->logs[i].own);
        for (int64_t k = 0; k < r->log_probs; k++)
            printf(",[%lld,%.6f]", (long long)r->logs[i].ids[k], (double)r->logs[i].others[k]);
        printf("]");
    }
    printf("]");
}

static void line_done(engine *e, engine_request *r) {
    chat_template_text quoted = { 0 };
    ex_json j = { 0 };
    (void)e;
    if (r->id) ex_json_name(&j, "id"), printf("%s", r->id);
    ex_json_name(&j, "text");
    if (talk_quote(&quoted, r->out.text ? r->out.text : "", r->out.printed)) printf("%s", quoted.text);
    else printf("null");
    chat_template_text_free(&quoted);
    ex_json_name(&j, "tokens");
    printf("[");
    for (size_t i = (size_t)r->n_prompt; i < r->ids.n; i++)
        printf("%s%u", i > (size_t)r->n_prompt ? "," : "", r->ids.id[i]);
    printf("]");
    ex_json_text(&j, "ended", r->ended);
    ex_json_number(&j, "prompt_tokens", (double)r->n_prompt);
    ex_json_number(&j, "shared_tokens", (double)r->shared);
    ex_json_number(&j, "first_token_seconds", r->first > 0 ? r->first - r->begun : 0);
    if (r->logs) print_logs(&j, r);
    ex_json_end(&j);
    fflush(stdout);
    engine_request_free(r);
}

static bool same_id(const engine_request *r, const char *id) { return r && r->id && !strcmp(r->id, id); }

static bool cancel(engine *e, const char *id) {
    bool found = false;
    for (int64_t i = 0; i < e->slots; i++)
        if (same_id(e->slot[i], id)) found = e->slot[i]->cancelled = true;
    for (engine_request *r = e->first; r; r = r->next)
        if (same_id(r, id)) found = r->cancelled = true;
    return found;
}

static char *copy_of(json_value v) {
    char *text = v.text ? malloc(v.size + 1) : NULL;
    if (text) memcpy(text, v.text, v.size), text[v.size] = 0;
    return text;
}

static void take_line(engine *e, const char *text, size_t size) {
    char error[REQUEST_ERROR];
    json_limits limits = { .depth = 16, .values = 1 << 20 };
    json_value root;
    json_error at;
    if (!size) return;
    if (!json_check(text, size, &limits, &root, &at)) {
        snprintf(error, sizeof error, "byte %zu of the line: %s", at.offset, at.text);
        print_error(NULL, error);
        return;
    }
    char *other = copy_of(json_get(root, "cancel")), *id = copy_of(json_get(root, "id"));
    request_form form = { 0 };
    engine_request *r = NULL;
    if (other && (json_count(root) > 1 || !cancel(e, other)))
        print_error(other, "there is no request with this id to cancel");
    else if (!other && !(r = request_read(e, root, &form, error))) print_error(id, error);
    if (r) {
        r->id = id;
        engine_add(e, r);
    } else free(id);
    free(other);
}

/* Reads what there is; waits for it when there is nothing else to do. False: out of memory, or a line is too long. */
static bool take_lines(engine *e, lines *in, bool wait) {
    struct pollfd p = { .fd = in->fd, .events = POLLIN };
    if (in->ended || (!wait && poll(&p, 1, 0) == 0)) return true;
    if (in->n == in->room) {
        size_t room = 2 * in->room + 65536;
        char *more = room <= LINE_MOST ? realloc(in->text, room) : NULL;
        if (!more) {
            fprintf(stderr, "a line is longer than %d bytes\n", LINE_MOST / 2);
            return false;
        }
        in->text = more, in->room = room;
    }
    ssize_t got = read(in->fd, in->text + in->n, in->room - in->n);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    in->ended = got == 0;
    in->n += (size_t)got;
    size_t at = 0;
    for (size_t i = 0; i < in->n; i++)
        if (in->text[i] == '\n') take_line(e, in->text + at, i - at), at = i + 1;
    if (in->ended && at < in->n) take_line(e, in->text + at, in->n - at), at = in->n;
    memmove(in->text, in->text + at, in->n - at);
    in->n -= at;
    return true;
}

static bool serve_lines(engine *e, const settings *set) {
    lines in = { .fd = *set->file ? open(set->file, O_RDONLY) : STDIN_FILENO };
    if (in.fd < 0) {
        fprintf(stderr, "%s: %s\n", set->file, strerror(errno));
        return false;
    }
    e->done = line_done;
    bool ok = true;
    while (ok && !ex_interrupted && (!in.ended || !engine_idle(e))) {
        ok = take_lines(e, &in, engine_idle(e));
        /* a first burst is taken whole, so that its requests begin together */
        if (ok && !engine_idle(e)) ok = engine_go(e);
    }
    free(in.text);
    if (*set->file) close(in.fd);
    return ok && !ex_interrupted;
}

/* ---- HTTP --------------------------------------------------------------------------------------------------*/
static bool serve_http(engine *e, const settings *set) {
    char error[HTTP_ERROR], token[256] = "";
    if (*set->token_file && !ex_read_token(set->token_file, token, error, sizeof error)) {
        fprintf(stderr, "--token-file %s\n", error);
        return false;
    }
    http_options o = { .listen = set->listen,
                       .token = *token ? token : NULL,
                       .answer = answer_http,
                       .gone = completion_gone,
                       .user = e,
                       .connections = 256,
                       .body_bytes = 4 << 20,
                       .out_bytes = 16 << 20 };
    http_server *s = http_open(&o, error);
    memset(token, 0, sizeof token);
    if (!s) {
        fprintf(stderr, "--listen %s\n", error);
        return false;
    }
    e->token = completion_token;
    e->done = completion_done;
    printf("listening on port %d\n", http_port(s));
    fflush(stdout);
    bool ok = true;
    while (ok && !ex_interrupted) {
        ok = http_poll(s, engine_idle(e) ? 200 : 0);
        if (ok && !engine_idle(e)) ok = engine_go(e);
    }
    http_close(s); /* those who wait are gone: their requests are cancelled */
    engine_drop(e);
    return ok;
}

/* ---- the run -----------------------------------------------------------------------------------------------*/
static void report(engine *e, bool json) {
    gn_kv_pages_info info = gn_kv_pages_get_info(e->pages.held);
    double speed = e->busy_s > 0 ? (double)e->tokens / e->busy_s : 0,
           in_use = e->steps ? (double)e->busy / (double)e->steps : 0;
    double first[2] = { engine_percentile(&e->to_first, 0.5), engine_percentile(&e->to_first, 0.95) };
    double between[2] = { engine_percentile(&e->between, 0.5), engine_percentile(&e->between, 0.95) };
    if (!json) {
        fprintf(
            stderr,
            "[%lld tokens, %.1f tokens/s, %lld of prompts computed and %lld shared, %.1f of %lld slots in use, %lld "
            "of %lld pages at most, first token after %.3f s (p95 %.3f), between tokens %.4f s (p95 %.4f)]\n",
            (long long)e->tokens, speed, (long long)e->prompt_tokens, (long long)info.reused, in_use,
            (long long)e->slots, (long long)e->page_peak, (long long)e->pages.desc.pages, first[0], first[1],
            between[0], between[1]);
        return;
    }
    ex_json j = { .to = stderr };
    ex_json_number(&j, "tokens", (double)e->tokens);
    ex_json_number(&j, "tokens_per_second", speed);
    ex_json_number(&j, "prompt_tokens", (double)e->prompt_tokens);
    ex_json_number(&j, "shared_tokens", (double)info.reused);
    ex_json_number(&j, "steps", (double)e->steps);
    ex_json_number(&j, "slots", (double)e->slots);
    ex_json_number(&j, "slots_in_use", in_use);
    ex_json_number(&j, "pages", (double)e->pages.desc.pages);
    ex_json_number(&j, "pages_in_use_most", (double)e->page_peak);
    ex_json_number(&j, "pages_copied", (double)info.copied);
    ex_json_number(&j, "first_token_p50", first[0]);
    ex_json_number(&j, "first_token_p95", first[1]);
    ex_json_number(&j, "between_tokens_p50", between[0]);
    ex_json_number(&j, "between_tokens_p95", between[1]);
    ex_json_end(&j);
}

static bool open_engine(engine *e, const settings *set, const ex_place *place) {
    char error[LM_ERROR];
    int64_t most = e->of->m->config.context;
    e->slots = set->slots;
    e->context = set->context ? set->context : most < USUAL_CONTEXT ? most : USUAL_CONTEXT;
    static ex_progress bar; /* the context tells it as long as it lives */
    bar.total = lm_weight_bytes(e->of->m);
    e->g = gn_open(&(gn_desc){ .devices = place->devices,
                               .home = place->home,
                               .progress = ex_progress_show,
                               .progress_user = ex_progress_begin(&bar) });
    if (!ex_check(e->g, gn_status(e->g), "cannot connect")) return false;
    if (lm_load(e->of->m, e->g, LM_WEIGHTS, error)) {
        bool several = gn_device_count(e->g) > 1;
        if (!several && !send_weights(e->of, e->g, &bar)) return false;
        if (engine_open(e, set->pages, set->page_size, !set->alone, error)) {
            bool placed = !several || engine_place(e);
            ex_progress_end(&bar);
            return placed;
        }
    }
    fprintf(stderr, "%s: %s\n", set->path, error);
    return false;
}

static int run(const settings *set) {
    static engine e;
    ex_place place = { .devices = getenv("GENIE_DEVICES") ? NULL : "cpu", .home = set->home };
    text_model of = { 0 };
    e.of = &of;
    ex_catch_signals();
    signal(SIGPIPE, SIG_IGN);
    bool ok = open_files(&of, set->program, set->path, set->dtype, set->quantize, set->raw) &&
              (!set->connect || ex_place_open(&place, set->connect, set->home)) && open_engine(&e, set, &place);
    if (ok) {
        ok = *set->listen ? serve_http(&e, set) : serve_lines(&e, set);
        if (ok || e.steps) report(&e, set->json);
    }
    for (int64_t i = 0; i < e.slots; i++)
        if (e.slot[i]) engine_request_free(e.slot[i]);
    for (engine_request *r; (r = e.first);) e.first = r->next, engine_request_free(r);
    if (e.pages.m) lm_pages_close(&e.pages);
    free(e.table);
    gn_close(e.g);
    text_model_close(&of);
    if (set->connect) ex_place_close(&place);
    return ok ? EX_OK : ex_interrupted ? EX_INTERRUPTED : EX_FAILED;
}

int main(int argc, char **argv) {
    settings set = {
        .file = "", .listen = "", .token_file = "", .dtype = "", .quantize = "", .slots = 8, .page_size = 16
    };
    const ex_option options[] = {
        { "file", EX_TEXT, &set.file, "FILE", "read requests from FILE, one JSON object per line (standard input)", 0,
          0 },
        { "listen", EX_TEXT, &set.listen, "HOST:PORT", "serve HTTP instead; port 0 picks a free port and prints it", 0,
          0 },
        { "token-file", EX_TEXT, &set.token_file, "FILE",
          "HTTP clients must send the token in FILE's first line (their API key); needed beyond loopback", 0, 0 },
        { "slots", EX_INT, &set.slots, "N", "sequences at once (8)", 1, ENGINE_SLOTS },
        { "context", EX_INT, &set.context, "N", "longest sequence, in tokens (the model's context, at most 4096)", 1,
          1 << 28 },
        { "pages", EX_INT, &set.pages, "N", "pages of the KV cache (enough for all slots)", 1, 1 << 28 },
        { "page-size", EX_INT, &set.page_size, "N", "tokens per page (16)", 1, 1 << 16 },
        { "alone", EX_FLAG, &set.alone, NULL, "do not share pages between texts with the same beginning", 0, 0 },
        { "raw", EX_FLAG, &set.raw, NULL, "do not apply the chat template", 0, 0 },
        MODEL_OPTIONS(set),
        { "json", EX_FLAG, &set.json, NULL, "print the report at the end as JSON", 0, 0 },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    set.program = argv[0];
    if (argc > 1 && argv[1][0] != '-') {
        set.path = argv[1];
        memmove(argv + 1, argv + 2, (size_t)(argc - 1) * sizeof *argv);
        argc--;
    }
    ex_operand = "DIR|FILE.gguf ";
    ex_parse(argc, argv, "serve_text generates text for many requests at once.", options);
    if (!set.path) ex_usage(set.program, "a model is missing: give a directory or a GGUF file");
    return run(&set);
}
