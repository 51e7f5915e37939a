/* serve_text behind HTTP: /v1/completions, /v1/chat/completions and /v1/models as existing clients know them, and
 * /metrics for Prometheus. */
#ifndef COMPLETIONS_H
#define COMPLETIONS_H

#define HTTP_IMPLEMENTATION
#include "formats/http.h"

#include "text_metrics.h"
#include "text_requests.h"

/* One request over HTTP. */
typedef struct exchange {
    engine *e;
    http_exchange *x; /* NULL: its client has gone */
    engine_request *r;
    request_form form;
    uint64_t number;
    size_t sent;    /* bytes of text */
    int64_t logged; /* tokens whose log-probabilities were sent */
} exchange;

static void answer_error(http_exchange *x, int status, const char *type, const char *message) {
    chat_template_text t = { 0 };
    if (put_text(&t, "{\"error\":{\"message\":") && talk_quote(&t, message, strlen(message)) &&
        put_text(&t, ",\"type\":\"%s\",\"param\":null,\"code\":null}}", type))
        http_reply(x, status, "application/json", t.text, t.size);
    else http_reply(x, 500, "text/plain", "out of memory\n", 14);
    chat_template_text_free(&t);
}

static bool put_token(const engine *e, chat_template_text *t, uint32_t id) {
    size_t n = 0;
    const char *text = tokenizer_token(e->of->t, id, &n);
    return talk_quote(t, text ? text : "", text ? n : 0);
}

/* One token's place in a conversation's log-probabilities. */
static bool put_chat_log(const engine *e, chat_template_text *t, const engine_log *l, uint32_t id, int64_t n) {
    bool ok = put_text(t, "{\"token\":") && put_token(e, t, id) &&
              put_text(t, ",\"logprob\":%.6f,\"bytes\":null,\"top_logprobs\":[", (double)l->own);
    for (int64_t k = 0; ok && k < n; k++)
        ok = put_text(t, k ? ",{\"token\":" : "{\"token\":") && put_token(e, t, (uint32_t)l->ids[k]) &&
             put_text(t, ",\"logprob\":%.6f,\"bytes\":null}", (double)l->others[k]);
    return ok && put_text(t, "]}");
}

/* A completion's: lists side by side. */
static bool put_plain_logs(const engine *e, chat_template_text *t, const engine_request *r, int64_t from, int64_t to) {
    bool ok = put_text(t, "{\"tokens\":[");
    for (int64_t i = from; ok && i < to; i++)
        ok = (i == from || put_text(t, ",")) && put_token(e, t, r->ids.id[r->n_prompt + i]);
    ok = ok && put_text(t, "],\"token_logprobs\":[");
    for (int64_t i = from; ok && i < to; i++) ok = put_text(t, "%s%.6f", i == from ? "" : ",", (double)r->logs[i].own);
    ok = ok && put_text(t, "],\"text_offset\":null,\"top_logprobs\":[");
    for (int64_t i = from; ok && i < to; i++) {
        ok = put_text(t, i == from ? "{" : ",{");
        for (int64_t k = 0; ok && k < r->log_probs; k++)
            ok = (!k || put_text(t, ",")) && put_token(e, t, (uint32_t)r->logs[i].ids[k]) &&
                 put_text(t, ":%.6f", (double)r->logs[i].others[k]);
        ok = ok && put_text(t, "}");
    }
    return ok && put_text(t, "]}");
}

static bool put_logs(const exchange *c, chat_template_text *t, int64_t from) {
    const engine_request *r = c->r;
    int64_t to = (int64_t)r->ids.n - r->n_prompt;
    if (r->log_probs < 0 || !r->logs) return put_text(t, ",\"logprobs\":null");
    if (!put_text(t, ",\"logprobs\":")) return false;
    if (!c->form.chat) return put_plain_logs(c->e, t, r, from, to);
    bool ok = put_text(t, "{\"content\":[");
    for (int64_t i = from; ok && i < to; i++)
        ok = (i == from || put_text(t, ",")) &&
             put_chat_log(c->e, t, &r->logs[i], r->ids.id[r->n_prompt + i], r->log_probs);
    return ok && put_text(t, "]}");
}

static bool put_head(const exchange *c, chat_template_text *t) {
    const char *kind = c->form.chat ? c->form.stream ? "chat.completion.chunk" : "chat.completion" : "text_completion";
    return put_text(t, "{\"id\":\"cmpl-%llu\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                    (unsigned long long)c->number, kind, (long long)time(NULL)) &&
           talk_quote(t, c->form.model, strlen(c->form.model));
}

static bool put_usage(const exchange *c, chat_template_text *t) {
    long long prompt = c->r->n_prompt, drawn = (long long)c->r->ids.n - prompt;
    return put_text(t,
                    ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                    "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                    prompt, drawn, prompt + drawn, (long long)c->r->shared);
}

/* The choice: `size` bytes of text, and why it ended or null. */
static bool put_choice(const exchange *c, chat_template_text *t, size_t from, size_t size, const char *why) {
    const char *text = c->r->out.text ? c->r->out.text + from : "";
    bool ok = put_text(t, ",\"choices\":[{\"index\":0,");
    if (!c->form.chat) ok = ok && put_text(t, "\"text\":") && talk_quote(t, text, size);
    else
        ok = ok &&
             put_text(t, "\"%s\":{%s\"content\":", c->form.stream ? "delta" : "message",
                      c->form.stream && from ? "" : "\"role\":\"assistant\",") &&
             talk_quote(t, text, size) && put_text(t, "}");
    return ok && put_logs(c, t, c->logged) &&
           (why ? put_text(t, ",\"finish_reason\":\"%s\"}]", why) : put_text(t, ",\"finish_reason\":null}]"));
}

static const char *finish_reason(const engine_request *r) { return strcmp(r->ended, "length") ? "stop" : "length"; }

/* What is new, as an event. */
static void send_event(exchange *c, const char *why) {
    chat_template_text t = { 0 };
    const sink *out = &c->r->out;
    bool ok = put_head(c, &t) && put_choice(c, &t, c->sent, out->printed - c->sent, why) && put_text(&t, "}");
    if (!ok || !http_event(c->x, t.text, t.size)) c->r->cancelled = true;
    c->sent = out->printed;
    c->logged = (int64_t)c->r->ids.n - c->r->n_prompt;
    chat_template_text_free(&t);
}

static void completion_token(engine *e, engine_request *r) {
    exchange *c = r->user;
    (void)e;
    if (c->x && c->form.stream && !r->out.stopped && (r->out.printed > c->sent || r->log_probs >= 0))
        send_event(c, NULL);
}

static void send_end(exchange *c) {
    chat_template_text t = { 0 };
    send_event(c, finish_reason(c->r));
    if (c->form.usage && put_head(c, &t) && put_text(&t, ",\"choices\":[]") && put_usage(c, &t) && put_text(&t, "}"))
        (void)http_event(c->x, t.text, t.size);
    chat_template_text_free(&t);
    (void)http_event(c->x, "[DONE]", 6);
    http_end(c->x);
}

static void completion_done(engine *e, engine_request *r) {
    exchange *c = r->user;
    chat_template_text t = { 0 };
    (void)e;
    bool failed = !strcmp(r->ended, "failed");
    if (c->x && c->form.stream) send_end(c);
    else if (c->x && failed) answer_error(c->x, 500, "server_error", "no token could be drawn, or memory is short");
    else if (c->x) {
        bool ok = put_head(c, &t) && put_choice(c, &t, 0, r->out.printed, finish_reason(r)) && put_usage(c, &t) &&
                  put_text(&t, "}");
        if (ok) http_reply(c->x, 200, "application/json", t.text, t.size);
        else answer_error(c->x, 500, "server_error", "out of memory");
    }
    chat_template_text_free(&t);
    engine_request_free(r);
    free(c);
}

static void completion_gone(void *user, http_exchange *x) {
    exchange *c = http_user(x);
    (void)user;
    if (!c) return;
    c->x = NULL;
    c->r->cancelled = true;
}

static void answer_models(http_exchange *x, const char *name) {
    chat_template_text t = { 0 };
    if (put_text(&t, "{\"object\":\"list\",\"data\":[{\"id\":") && talk_quote(&t, name, strlen(name)) &&
        put_text(&t, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"local\"}]}"))
        http_reply(x, 200, "application/json", t.text, t.size);
    else answer_error(x, 500, "server_error", "out of memory");
    chat_template_text_free(&t);
}

static void answer_metrics(const engine *e, http_exchange *x) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (to) text_metrics(to, e);
    if (to && fclose(to) == 0) http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, size);
    else answer_error(x, 500, "server_error", "out of memory");
    free(text);
}

/* A request for text: the engine has it from here on. */
static void answer_text(engine *e, http_exchange *x, bool chat) {
    static uint64_t number;
    char error[REQUEST_ERROR];
    size_t size;
    const char *body = http_body(x, &size);
    json_limits limits = { .depth = 16, .values = 1 << 20 };
    json_value root;
    json_error at;
    if (!json_check(body, size, &limits, &root, &at)) {
        snprintf(error, sizeof error, "byte %zu of the body: %s", at.offset, at.text);
        answer_error(x, 400, "invalid_request_error", error);
        return;
    }
    exchange *c = calloc(1, sizeof *c);
    if (c) c->form = (request_form){ .http = true, .chat = chat };
    engine_request *r = c ? request_read(e, root, &c->form, error) : NULL;
    if (c && r) {
        c->e = e, c->x = x, c->r = r, c->number = ++number;
        if (!json_get_string(json_get(root, "model"), c->form.model, sizeof c->form.model, NULL))
            snprintf(c->form.model, sizeof c->form.model, "%s", lm_family_name(e->of->m));
        r->user = c;
        http_set_user(x, c);
        if (c->form.stream) http_begin(x, 200, "text/event-stream");
        engine_add(e, r);
        return;
    }
    answer_error(x, c ? 400 : 500, c ? "invalid_request_error" : "server_error", c ? error : "out of memory");
    free(c);
}

static void answer_http(void *user, http_exchange *x) {
    enum { MODELS, METRICS, COMPLETIONS, CHAT, PATHS };
    static const char *const paths[PATHS] = { "/v1/models", "/metrics", "/v1/completions", "/v1/chat/completions" };
    engine *e = user;
    const char *path = http_path(x), *method = http_method(x), *type = http_header(x, "content-type");
    int i = 0;
    while (i < PATHS && strcmp(path, paths[i])) i++;
    bool post = i >= COMPLETIONS;
    if (i == PATHS)
        answer_error(x, 404, "invalid_request_error",
                     "the paths are /v1/completions, /v1/chat/completions, /v1/models and /metrics");
    else if (strcmp(method, post ? "POST" : "GET"))
        answer_error(x, 405, "invalid_request_error", post ? "this path takes POST" : "this path takes GET");
    else if (i == MODELS) answer_models(x, lm_family_name(e->of->m));
    else if (i == METRICS) answer_metrics(e, x);
    else if (!type || strncmp(type, "application/json", 16))
        answer_error(x, 415, "invalid_request_error", "the body must be JSON: send Content-Type: application/json");
    else answer_text(e, x, i == CHAT);
}
#endif
