/* Requests of serve_text as JSON, one a line or one a body: strict, so that a name that is not known is an error. */
#ifndef TEXT_REQUESTS_H
#define TEXT_REQUESTS_H

#include "text_engine.h"

enum { REQUEST_ERROR = 256 };

/* What a line or a body may ask for beside the text. */
typedef struct request_form {
    bool http, chat;    /* the names of the HTTP API; of them those of conversations */
    bool stream, usage; /* out: server-sent events; the last of which tells of tokens */
    char model[256];
} request_form;

__attribute__((format(printf, 2, 3))) static bool put_text(chat_template_text *t, const char *format, ...) {
    char some[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(some, sizeof some, format, args);
    va_end(args);
    return n >= 0 && (size_t)n < sizeof some && talk_add(t, some, (size_t)n);
}

__attribute__((format(printf, 2, 3))) static bool request_fail(char error[REQUEST_ERROR], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, REQUEST_ERROR, format, args);
    va_end(args);
    return false;
}

static bool request_number(json_value v, const char *name, double least, double most, double *out,
                           char error[REQUEST_ERROR]) {
    if (json_kind_of(v) == JSON_NULL || json_kind_of(v) == JSON_MISSING) return true;
    if (json_get_double(v, out) && *out >= least && *out <= most) return true;
    return request_fail(error, "%s must be a number from %g to %g", name, least, most);
}

static bool request_whole(json_value v, const char *name, int64_t least, int64_t most, int64_t *out,
                          char error[REQUEST_ERROR]) {
    if (json_kind_of(v) == JSON_NULL || json_kind_of(v) == JSON_MISSING) return true;
    if (json_get_i64(v, out) && *out >= least && *out <= most) return true;
    return request_fail(error, "%s must be a whole number from %lld to %lld", name, (long long)least, (long long)most);
}

static bool request_flag(json_value v, const char *name, bool *out, char error[REQUEST_ERROR]) {
    if (json_kind_of(v) == JSON_NULL || json_kind_of(v) == JSON_MISSING) return true;
    return json_get_bool(v, out) || request_fail(error, "%s must be true or false", name);
}

/* A string of its own; NULL: it is none, or there is no memory. */
static char *request_string(json_value v, size_t *out_size) {
    char *text = json_kind_of(v) == JSON_STRING ? malloc(v.size) : NULL;
    if (text && !json_get_string(v, text, v.size, out_size)) free(text), text = NULL;
    return text;
}

static bool request_stop(engine_request *r, json_value v, char error[REQUEST_ERROR]) {
    json_value key, item;
    size_t n;
    bool ok = true, list = json_kind_of(v) == JSON_ARRAY;
    if (json_kind_of(v) == JSON_NULL || json_kind_of(v) == JSON_MISSING) return true;
    for (json_iter i = json_begin(v); ok && list && json_next(&i, &key, &item);) {
        ok = r->out.n_stop < ENGINE_STOPS && (r->stop[r->out.n_stop] = request_string(item, &n)) && n > 0;
        r->out.n_stop += ok;
    }
    if (!list) ok = (r->stop[r->out.n_stop++] = request_string(v, &n)) != NULL && n > 0;
    return ok || request_fail(error, "stop must be a non-empty string, or a list of up to %d of them", ENGINE_STOPS);
}

/* [{"type": "text", "text": "…"}, …]: a line each, as other servers join them. NULL: *error says what is not text. */
static char *request_parts(json_value v, size_t *out_size, char error[REQUEST_ERROR]) {
    json_value key, item, name, field;
    char *text = malloc(v.size + 1), type[32] = "";
    size_t n = 0, more;
    bool ok = text != NULL && json_count(v) > 0;
    for (json_iter i = json_begin(v); ok && json_next(&i, &key, &item); n += more) {
        type[0] = 0;
        if (n > 0) text[n++] = '\n';
        ok = json_get_string(json_get(item, "type"), type, sizeof type, NULL) && strcmp(type, "text") == 0 &&
             json_get_string(json_get(item, "text"), text + n, v.size - n, &more);
        for (json_iter k = json_begin(item); ok && json_next(&k, &name, &field);)
            ok = json_is(name, "type") || json_is(name, "text");
    }
    if (ok) return *out_size = n, text;
    free(text);
    request_fail(error, "a part of a message's content must be {\"type\": \"text\", \"text\": a string}%s%s",
                 type[0] && strcmp(type, "text") != 0 ? ", and this one's type is " : "",
                 strcmp(type, "text") != 0 ? type : "");
    return NULL;
}

/* [{"role": "user", "content": "text" or a list of parts}, …], as the template's messages. */
static bool request_messages(json_value v, chat_template_text *talk, char error[REQUEST_ERROR]) {
    json_value key, item, name, part;
    if (json_kind_of(v) != JSON_ARRAY || !json_count(v))
        return request_fail(error, "messages must be a non-empty list");
    for (json_iter i = json_begin(v); json_next(&i, &key, &item);) {
        size_t n = 0;
        json_value given = json_get(item, "content");
        bool parts = json_kind_of(given) == JSON_ARRAY;
        char role[64], *content = parts ? request_parts(given, &n, error) : request_string(given, &n);
        if (parts && !content) return false;
        bool ok = content && json_get_string(json_get(item, "role"), role, sizeof role, NULL);
        for (json_iter k = json_begin(item); ok && json_next(&k, &name, &part);)
            ok = json_is(name, "role") || json_is(name, "content");
        if (!ok)
            request_fail(error, "a message must be an object with role and content, both strings (content also a list "
                                "of parts of text), and nothing else");
        else if (!talk_role(talk, role, content, n)) ok = request_fail(error, "out of memory");
        free(content);
        if (!ok) return false;
    }
    return true;
}

static bool request_text(text_model *of, const request_form *form, json_value root, engine_request *r,
                         char error[REQUEST_ERROR]) {
    json_value prompt = json_get(root, "prompt"), messages = json_get(root, "messages"), key, item;
    bool talks = json_kind_of(messages) != JSON_MISSING, ok = true;
    if (talks == (json_kind_of(prompt) != JSON_MISSING) || (form->http && talks != form->chat))
        return request_fail(error, form->http ? "this path takes %s" : "give either prompt or messages%s",
                            !form->http  ? ""
                            : form->chat ? "messages"
                                         : "a prompt");
    chat_template_text talk = { 0 };
    size_t n = 0;
    if (talks && !of->templ) return request_fail(error, "the model has no chat template: send a prompt");
    if (talks) {
        ok = request_messages(messages, &talk, error) &&
             (talk_ids(of, &talk, &r->ids) || request_fail(error, "the chat template rejects these messages"));
    } else if (json_kind_of(prompt) == JSON_ARRAY) { /* ids */
        uint64_t id;
        for (json_iter i = json_begin(prompt); ok && json_next(&i, &key, &item);)
            ok = json_get_u64(item, &id) && id < (uint64_t)of->m->config.vocab && keep_id(&r->ids, (uint32_t)id);
        if (!ok)
            request_fail(error, "a prompt's list holds ids below %lld, and nothing else",
                         (long long)of->m->config.vocab);
    } else {
        char *text = request_string(prompt, &n);
        ok = text && tokenizer_encode(of->t, text, n, TOKENIZER_TEMPLATE, &r->ids);
        if (!ok) request_fail(error, text ? "out of memory" : "prompt must be a string or a list of ids");
        free(text);
    }
    chat_template_text_free(&talk);
    return ok;
}

static bool request_names(json_value root, const request_form *form, char error[REQUEST_ERROR]) {
    static const char *const lines[] = { "id",    "prompt", "messages", "max_tokens", "temperature", "top_k",
                                         "top_p", "min_p",  "seed",     "stop",       "logprobs",    NULL };
    static const char *const http[] = { "model",
                                        "prompt",
                                        "messages",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "seed",
                                        "stop",
                                        "logprobs",
                                        "top_logprobs",
                                        "stream",
                                        "stream_options",
                                        "n",
                                        "best_of",
                                        "echo",
                                        "user",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        NULL };
    json_value key, item;
    char name[64];
    for (json_iter i = json_begin(root); json_next(&i, &key, &item);) {
        const char *const *known = form->http ? http : lines;
        if (!json_get_string(key, name, sizeof name, NULL)) name[0] = 0;
        while (*known && strcmp(*known, name)) known++;
        if (!*known) return request_fail(error, "unknown field '%s'", name);
    }
    return true;
}

/* What is taken for one value alone. */
static bool request_fixed(json_value root, char error[REQUEST_ERROR]) {
    static const struct {
        const char *name;
        double is;
    } fixed[] = { { "n", 1 }, { "best_of", 1 }, { "presence_penalty", 0 }, { "frequency_penalty", 0 } };
    bool echo = false;
    for (int i = 0; i < 4; i++) {
        double x = fixed[i].is;
        if (!request_number(json_get(root, fixed[i].name), fixed[i].name, x, x, &x, error))
            return request_fail(error, "%s must be %g here", fixed[i].name, fixed[i].is);
    }
    if (!request_flag(json_get(root, "echo"), "echo", &echo, error)) return false;
    return !echo || request_fail(error, "echo must be false here");
}

/* Log-probabilities: a number for a completion, a flag and a number for a conversation. */
static bool request_logs(json_value root, const request_form *form, engine_request *r, char error[REQUEST_ERROR]) {
    bool wanted = false;
    int64_t tops = 0;
    if (!form->chat) return request_whole(json_get(root, "logprobs"), "logprobs", 0, ENGINE_LOGS, &r->log_probs, error);
    if (!request_flag(json_get(root, "logprobs"), "logprobs", &wanted, error) ||
        !request_whole(json_get(root, "top_logprobs"), "top_logprobs", 0, ENGINE_LOGS, &tops, error))
        return false;
    if (wanted) r->log_probs = tops;
    return true;
}

static bool request_fields(engine *e, json_value root, request_form *form, engine_request *r,
                           char error[REQUEST_ERROR]) {
    json_value most = json_get(root, "max_completion_tokens"), options = json_get(root, "stream_options");
    if (json_kind_of(most) == JSON_MISSING) most = json_get(root, "max_tokens");
    r->temperature = form->http ? 1 : 0;
    r->top_p = 1;
    r->log_probs = -1;
    r->most = form->http && !form->chat ? 16 : e->context;
    return request_names(root, form, error) && request_fixed(root, error) &&
           request_whole(most, "max_tokens", 1, 1 << 28, &r->most, error) &&
           request_number(json_get(root, "temperature"), "temperature", 0, 100, &r->temperature, error) &&
           request_number(json_get(root, "top_p"), "top_p", 0, 1, &r->top_p, error) &&
           request_number(json_get(root, "min_p"), "min_p", 0, 1, &r->min_p, error) &&
           request_whole(json_get(root, "top_k"), "top_k", 0, 1 << 23, &r->top_k, error) &&
           request_whole(json_get(root, "seed"), "seed", INT64_MIN, INT64_MAX, &r->seed, error) &&
           request_flag(json_get(root, "stream"), "stream", &form->stream, error) &&
           request_flag(json_get(options, "include_usage"), "include_usage", &form->usage, error) &&
           request_stop(r, json_get(root, "stop"), error) && request_logs(root, form, r, error) &&
           request_text(e->of, form, root, r, error);
}

/* NULL: `error` says why. */
static engine_request *request_read(engine *e, json_value root, request_form *form, char error[REQUEST_ERROR]) {
    engine_request *r = calloc(1, sizeof *r);
    bool ok = r || request_fail(error, "out of memory");
    if (ok && json_kind_of(root) != JSON_OBJECT) ok = request_fail(error, "a request must be an object");
    ok = ok && request_fields(e, root, form, r, error);
    if (ok && !r->ids.n) ok = request_fail(error, "the prompt has no tokens");
    if (ok && (int64_t)r->ids.n > e->context)
        ok = request_fail(error, "the prompt has %zu tokens, but the context has room for %lld", r->ids.n,
                          (long long)e->context);
    if (!ok && r) engine_request_free(r);
    if (!ok) return NULL;
    r->n_prompt = (int64_t)r->ids.n;
    if (r->most > e->context + 1 - r->n_prompt) r->most = e->context + 1 - r->n_prompt;
    return r;
}
#endif
