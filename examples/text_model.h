/* What chat and serve_text share: a model with its tokenizer and chat template, conversations as ids, text on its
 * way out. */
#ifndef TEXT_MODEL_H
#define TEXT_MODEL_H

#define CHAT_TEMPLATE_IMPLEMENTATION
#include "formats/chat_template.h"
#define LANGUAGE_MODEL_IMPLEMENTATION
#include "formats/language_model.h"
#define TOKENIZER_IMPLEMENTATION
#include "formats/tokenizer.h"

#include "progress.h"

/* Rows of options: how a model is loaded, and where it runs. `set` has a text for each. */
/* clang-format off */
#define MODEL_OPTIONS(set)                                                                                            \
    { "dtype", EX_TEXT, &(set).dtype, "TYPE", "compute in f32, f16 or bf16 (the file's type)", 0, 0 },                \
    { "quantize", EX_TEXT, &(set).quantize, "TYPE", "quantise matrices to int8, int4 or fp8 (the file's format)", 0,  \
      0 },                                                                                                            \
    { "connect", EX_MAYBE, &(set).connect, "WHERE", "a URL, @FILE, - or host:port ($GENIE_DEVICES, else this CPU)",   \
      0, 0 },                                                                                                         \
    { "home", EX_TEXT, &(set).home, "DIR", "folder of client credentials ($GENIE_HOME, else ~/.config/genie)", 0, 0 }
/* clang-format on */

typedef struct text_model {
    const char *path;
    lm_model *m;
    tokenizer *t;
    chat_template *templ; /* NULL: plain text */
    char bos[256], eos[256];
} text_model;

static void text_model_close(text_model *c) {
    lm_close(c->m);
    tokenizer_close(c->t);
    chat_template_close(c->templ);
}

/* Text on its way out: what may be the beginning of a stop string is held back. */
typedef struct sink {
    const char *const *stop;
    int n_stop;
    void (*print)(void *user, const char *text, size_t size); /* NULL: nobody reads it yet */
    void *user;
    char *text; /* all of the answer so far */
    size_t n, room, printed;
    bool stopped, failed;
} sink;

/* ---- text out ----------------------------------------------------------------------------------------------*/
static void sink_print(sink *s, size_t to) {
    if (to > s->printed && s->print) s->print(s->user, s->text + s->printed, to - s->printed);
    if (to > s->printed) s->printed = to;
}

/* The longest end of the text that a stop string begins with. */
static size_t sink_held(const sink *s) {
    size_t most = 0;
    for (int i = 0; i < s->n_stop; i++) {
        size_t n = strlen(s->stop[i]) - 1, have = s->n - s->printed;
        for (n = n < have ? n : have; n > most; n--)
            if (!memcmp(s->text + s->n - n, s->stop[i], n)) most = n;
    }
    return most;
}

/* Where the first stop string begins, in what is not printed yet; s->n: nowhere. */
static size_t sink_stop(const sink *s) {
    for (size_t at = s->printed; at < s->n; at++)
        for (int i = 0; i < s->n_stop; i++) {
            size_t n = strlen(s->stop[i]);
            if (s->n - at >= n && !memcmp(s->text + at, s->stop[i], n)) return at;
        }
    return s->n;
}

static void sink_add(void *user, const char *text, size_t size) {
    sink *s = user;
    if (s->stopped || s->failed) return;
    if (s->n + size + 1 > s->room) {
        size_t room = 2 * (s->n + size + 64);
        char *more = realloc(s->text, room);
        s->failed = !more;
        if (!more) return;
        s->text = more;
        s->room = room;
    }
    memcpy(s->text + s->n, text, size);
    s->n += size;
    size_t at = sink_stop(s);
    s->stopped = at < s->n;
    s->n = at;
    s->text[s->n] = 0;
    sink_print(s, s->stopped ? s->n : s->n - sink_held(s));
}

static bool keep_id(tokenizer_ids *ids, uint32_t id) {
    if (ids->n == ids->room) {
        size_t room = 2 * ids->room + 256;
        uint32_t *more = realloc(ids->id, room * sizeof *more);
        if (!more) return false;
        ids->id = more;
        ids->room = room;
    }
    ids->id[ids->n++] = id;
    return true;
}

/* ---- conversations -----------------------------------------------------------------------------------------*/
static bool talk_add(chat_template_text *t, const char *text, size_t n) {
    if (t->size + n + 1 > t->room) {
        size_t room = 2 * (t->size + n) + 256;
        char *more = realloc(t->text, room);
        if (!more) return false;
        t->text = more;
        t->room = room;
    }
    memcpy(t->text + t->size, text, n);
    t->text[t->size += n] = 0;
    return true;
}

static bool talk_quote(chat_template_text *t, const char *text, size_t n) {
    size_t need = json_quote(text, n, NULL, 0);
    char *quoted = malloc(need + 1);
    bool ok = quoted && json_quote(text, n, quoted, need) == need && talk_add(t, quoted, need);
    free(quoted);
    return ok;
}

/* One message for the template: messages stand one after another, without brackets around them. */
static bool talk_role(chat_template_text *t, const char *role, const char *text, size_t n) {
    return talk_add(t, t->size ? ",{\"role\":" : "{\"role\":", t->size ? 9 : 8) && talk_quote(t, role, strlen(role)) &&
           talk_add(t, ",\"content\":", 11) && talk_quote(t, text, n) && talk_add(t, "}", 1);
}

/* Messages, or text where there is no template, as the model's ids. */
static bool talk_ids(const text_model *c, const chat_template_text *talk, tokenizer_ids *ids) {
    char error[CHAT_TEMPLATE_ERROR];
    chat_template_text data = { 0 }, text = { 0 };
    json_value root;
    json_error why;
    if (!c->templ) return tokenizer_encode(c->t, talk->text, talk->size, TOKENIZER_TEMPLATE, ids);
    bool ok = talk_add(&data, "{\"messages\":[", 13) && talk_add(&data, talk->text, talk->size) &&
              talk_add(&data, "],\"add_generation_prompt\":true,\"bos_token\":", 43) &&
              talk_quote(&data, c->bos, strlen(c->bos)) && talk_add(&data, ",\"eos_token\":", 13) &&
              talk_quote(&data, c->eos, strlen(c->eos)) && talk_add(&data, "}", 1) &&
              json_check(data.text, data.size, NULL, &root, &why);
    if (!ok) fprintf(stderr, "out of memory\n");
    if (ok && !chat_template_render(c->templ, root, &text, error)) {
        fprintf(stderr, "the chat template: %s\n", error);
        ok = false;
    }
    ok = ok && tokenizer_encode(c->t, text.text, text.size, 0, ids);
    chat_template_text_free(&data);
    chat_template_text_free(&text);
    return ok;
}

/* ---- opening -----------------------------------------------------------------------------------------------*/
/* The text of a special token in tokenizer_config.json: a string, or an object with it. */
static void special_token(json_value root, const char *name, char out[256]) {
    json_value v = json_get(root, name);
    if (json_kind_of(v) == JSON_OBJECT) v = json_get(v, "content");
    if (!json_get_string(v, out, 256, NULL)) out[0] = 0;
}

static bool open_template_text(text_model *c, const char *text, size_t n) {
    char error[CHAT_TEMPLATE_ERROR];
    c->templ = chat_template_open(text, n, error);
    if (!c->templ) fprintf(stderr, "the chat template is not read: %s; --raw does without\n", error);
    return c->templ != NULL;
}

/* chat_template of tokenizer_config.json: a text, or a list of which the one called default counts. */
static bool open_template_json(text_model *c, json_value v) {
    json_value key, item;
    size_t n;
    if (json_kind_of(v) == JSON_ARRAY) {
        for (json_iter i = json_begin(v); json_next(&i, &key, &item);)
            if (json_is(json_get(item, "name"), "default")) v = json_get(item, "template");
    }
    char *text = json_kind_of(v) == JSON_STRING ? malloc(v.size) : NULL;
    bool ok = !text || (json_get_string(v, text, v.size, &n) && open_template_text(c, text, n));
    free(text);
    return ok;
}

static bool open_template_directory(text_model *c) {
    char path[PATH_MAX], why[256];
    mapping map;
    json_value root;
    json_error at;
    bool ok = true;
    snprintf(path, sizeof path, "%s/chat_template.jinja", c->path);
    bool file = !access(path, R_OK) && mapping_open(&map, path, why, sizeof why);
    if (file) {
        ok = open_template_text(c, (const char *)map.data, map.size);
        mapping_close(&map);
    }
    snprintf(path, sizeof path, "%s/tokenizer_config.json", c->path);
    if (!ok || access(path, R_OK) || !mapping_open(&map, path, why, sizeof why)) return ok;
    ok = json_check((const char *)map.data, map.size, NULL, &root, &at);
    if (!ok) fprintf(stderr, "%s: byte %zu: %s\n", path, at.offset, at.text);
    special_token(root, "bos_token", c->bos);
    special_token(root, "eos_token", c->eos);
    if (ok && !file) ok = open_template_json(c, json_get(root, "chat_template"));
    mapping_close(&map);
    return ok;
}

static void gguf_token(const text_model *c, const char *key, char out[256]) {
    uint64_t id;
    size_t n;
    if (!gguf_get_u64(c->m->gguf, key, &id) || id > UINT32_MAX) return;
    const char *text = tokenizer_token(c->t, (uint32_t)id, &n);
    if (text && n < 256) snprintf(out, 256, "%.*s", (int)n, text);
}

static bool open_template(text_model *c) {
    gguf_string text;
    if (!c->m->gguf) return open_template_directory(c);
    gguf_token(c, "tokenizer.ggml.bos_token_id", c->bos);
    gguf_token(c, "tokenizer.ggml.eos_token_id", c->eos);
    return !gguf_get_string(c->m->gguf, "tokenizer.chat_template", &text) ||
           open_template_text(c, text.text, text.size);
}

/* raw: without the chat template. False: told on standard error; the caller closes. */
static bool open_files(text_model *c, const char *program, const char *path, const char *dtype, const char *quantize,
                       bool raw) {
    char error[LM_ERROR];
    static const struct {
        const char *name;
        gn_dtype is;
    } dtypes[] = { { "", GN_DTYPE_NONE }, { "f32", GN_F32 }, { "f16", GN_F16 }, { "bf16", GN_BF16 } };
    size_t i = 0;
    c->path = path;
    while (i < 4 && strcmp(dtype, dtypes[i].name)) i++;
    if (i == 4) ex_usage(program, "--dtype is f32, f16 or bf16, not '%s'", dtype);
    static const struct {
        const char *name;
        gn_quant is;
    } quants[] = {
        { "", GN_QUANT_NONE }, { "int8", GN_QUANT_INT8 }, { "int4", GN_QUANT_INT4 }, { "fp8", GN_QUANT_FP8_E4M3 }
    };
    size_t k = 0;
    while (k < 4 && strcmp(quantize, quants[k].name)) k++;
    if (k == 4) ex_usage(program, "--quantize is int8, int4 or fp8, not '%s'", quantize);
    c->m = lm_open(c->path, dtypes[i].is, error);
    if (c->m) lm_quantize(c->m, quants[k].is);
    if (c->m && c->m->note[0]) fprintf(stderr, "%s: %s\n", c->path, c->m->note);
    if (c->m) c->t = tokenizer_open(c->path, error);
    if (!c->m || !c->t) {
        const char *end = strrchr(path, '.');
        bool part = end && (!strcmp(end, ".safetensors") || !strcmp(end, ".json") || !strcmp(end, ".bin"));
        fprintf(stderr, "%s%s\n", error, part ? "; a model is the directory with all its files, or a GGUF file" : "");
        return false;
    }
    if ((int64_t)tokenizer_size(c->t) > c->m->config.vocab) {
        fprintf(stderr, "%s: the tokenizer has %zu tokens, the model's embedding %lld rows\n", c->path,
                tokenizer_size(c->t), (long long)c->m->config.vocab);
        return false;
    }
    return raw || open_template(c);
}

/* Sends the weights, as many as can be at a time: all processors compute digests while others are on their way. A
 * signal ends it between two pieces. */
static bool send_weights(const text_model *c, gn_ctx *g, ex_progress *bar) {
    bool ok = true;
    bar->interrupts = g;
    for (int layer = -1; layer < c->m->config.layers && ok; layer += LM_SEND) {
        gn_result r = lm_send(c->m, layer, LM_SEND, NULL);
        ok = (r == GN_CANCELLED && ex_interrupted) ? false : ex_check(g, r, "sending the weights") && !ex_interrupted;
    }
    bar->interrupts = NULL;
    ex_progress_end(bar);
    return ok;
}

#endif
