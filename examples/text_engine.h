/* Many texts at once: slots that are kept busy from a queue. Each sequence lies in pages (gn_kv_pages), so that all
 * slots are rows of one plan: a row for each slot that decodes, and a chunk of one prompt. Chunks are those of chat. */
#ifndef TEXT_ENGINE_H
#define TEXT_ENGINE_H

#include "text_model.h"

enum {
    ENGINE_SLOTS = 256,
    ENGINE_CHUNK = 256,
    ENGINE_LOGS = 20,
    ENGINE_STOPS = 16,
    ENGINE_TIMES = 1 << 16,
    ENGINE_BUCKETS = 14,
    ENGINE_TABLES = 32
};

/* What differs from one step to the next. Those from the seed on are of steps that draw. */
enum {
    ENGINE_IDS,
    ENGINE_POSITIONS,
    ENGINE_SEQUENCES,
    ENGINE_PLACES,
    ENGINE_TABLE,
    ENGINE_PICK,
    ENGINE_SEED,
    ENGINE_COUNTER,
    ENGINE_TEMPERATURE,
    ENGINE_TOP_K,
    ENGINE_TOP_P,
    ENGINE_MIN_P,
    ENGINE_LEAVES
};

static const double engine_bounds[ENGINE_BUCKETS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                      0.25,  0.5,    1,     2.5,  5,     10,   30 }; /* seconds */

/* What a token's place could have held. */
typedef struct engine_log {
    float own, others[ENGINE_LOGS];
    int64_t ids[ENGINE_LOGS];
} engine_log;

typedef struct engine_request {
    struct engine_request *next;
    char *id;                                               /* as JSON; NULL: none */
    tokenizer_ids ids;                                      /* the prompt, then what was drawn */
    int64_t n_prompt, shared, most, top_k, seed, log_probs; /* most: tokens to draw; log_probs -1: none */
    double temperature, top_p, min_p;
    char *stop[ENGINE_STOPS];
    sink out; /* of its text, `printed` bytes stay as they are */
    tokenizer_stream stream;
    engine_log *logs;  /* of each drawn token */
    const char *ended; /* "end", "stop", "length", "cancelled", "failed"; NULL: not yet */
    bool cancelled;
    int32_t sequence; /* -1: it waits */
    uint64_t order;   /* of admission */
    double begun, first, last;
    void *user;
} engine_request;

/* Seconds: the latest for their median and 95th percentile, all in a histogram. */
typedef struct engine_times {
    double at[ENGINE_TIMES], sum;
    int64_t n, buckets[ENGINE_BUCKETS]; /* n of all; those above the last bound are in no bucket */
} engine_times;

typedef struct engine {
    text_model *of;
    gn_ctx *g;
    lm_pages pages;
    int64_t slots, context;
    engine_request *slot[ENGINE_SLOTS], *first, **last; /* first, last: who waits */
    void (*token)(struct engine *e, engine_request *r); /* one more was drawn */
    void (*done)(struct engine *e, engine_request *r);  /* it has ended: the receiver frees it */
    void *user;
    uint64_t admitted;
    int64_t steps, tokens, prompt_tokens, busy, page_peak, slot_peak;
    engine_times to_first, between;
    double busy_s;
    gn_recording recorded[2][ENGINE_TABLES]; /* steps of one token of each slot: by greedy, and the table's columns */
    int32_t *table;                          /* of the present step */
    size_t table_room;
} engine;

/* Rows of a step. */
typedef struct engine_step {
    int64_t n; /* slots, and the chunk's size */
    int32_t ids[ENGINE_SLOTS + ENGINE_CHUNK], positions[ENGINE_SLOTS + ENGINE_CHUNK];
    int32_t sequences[ENGINE_SLOTS + ENGINE_CHUNK];
    int64_t slots[ENGINE_SLOTS + ENGINE_CHUNK];
    int64_t pick[ENGINE_SLOTS]; /* the row that a slot's next token is drawn from; -1: none */
    int64_t token[ENGINE_SLOTS];
    engine_log logs[ENGINE_SLOTS];
    bool drawn, logged;
} engine_step;

static void engine_request_free(engine_request *r) {
    for (int i = 0; i < ENGINE_STOPS; i++) free(r->stop[i]);
    tokenizer_ids_free(&r->ids);
    free(r->out.text);
    free(r->logs);
    free(r->id);
    free(r);
}

static bool engine_open(engine *e, int64_t pages, int64_t page_size, bool share, char error[LM_ERROR]) {
    gn_kv_pages_desc d = { .pages = pages,
                           .page_size = page_size,
                           .sequences = e->slots,
                           .tokens = e->context,
                           .keep = share,
                           .alone = !share };
    int64_t least = (e->context + page_size - 1) / page_size + 1;
    e->last = &e->first;
    if (!d.pages) d.pages = least + (e->slots - 1) * (least - 1);
    if (d.pages < least) {
        snprintf(error, LM_ERROR, "%lld pages of %lld tokens: a context of %lld takes %lld", (long long)d.pages,
                 (long long)page_size, (long long)e->context, (long long)least);
        return false;
    }
    return lm_pages_open(&e->pages, e->of->m, &d, error);
}

static void engine_add(engine *e, engine_request *r) {
    r->begun = ex_now();
    r->sequence = -1;
    r->out.stop = (const char *const *)r->stop;
    *e->last = r;
    e->last = &r->next;
}

static bool engine_idle(const engine *e) {
    for (int64_t i = 0; i < e->slots; i++)
        if (e->slot[i]) return false;
    return !e->first;
}

static void engine_time(engine_times *t, double seconds) {
    int i = 0;
    while (i < ENGINE_BUCKETS && seconds > engine_bounds[i]) i++;
    if (i < ENGINE_BUCKETS) t->buckets[i]++;
    t->sum += seconds;
    t->at[t->n++ % ENGINE_TIMES] = seconds;
}

static int engine_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A share of the times are no longer than this. */
static double engine_percentile(engine_times *t, double share) {
    int64_t n = t->n < ENGINE_TIMES ? t->n : ENGINE_TIMES;
    qsort(t->at, (size_t)n, sizeof *t->at, engine_compare);
    return n ? t->at[(int64_t)(share * (double)(n - 1))] : 0;
}

static void engine_leave(engine *e, int64_t i) {
    gn_kv_pages_end(e->pages.held, e->slot[i]->sequence);
    e->slot[i]->sequence = -1;
    e->slot[i] = NULL;
}

static void engine_end(engine *e, int64_t i, const char *why) {
    engine_request *r = e->slot[i];
    r->ended = why;
    engine_leave(e, i);
    if (!r->out.stopped) {
        tokenizer_decode_end(e->of->t, &r->stream, sink_add, &r->out);
        sink_print(&r->out, r->out.n);
    }
    e->done(e, r);
}

/* Those who were cancelled go. */
static void engine_drop(engine *e) {
    for (int64_t i = 0; i < e->slots; i++)
        if (e->slot[i] && e->slot[i]->cancelled) engine_end(e, i, "cancelled");
    for (engine_request **at = &e->first; *at;) {
        engine_request *r = *at;
        if (!r->cancelled) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (e->last == &r->next) e->last = at;
        r->ended = "cancelled";
        e->done(e, r);
    }
}

/* Pages that a request may take with `n` more tokens. */
static int64_t engine_wants(const engine *e, int64_t n) { return n / e->pages.desc.page_size + 2; }

static int64_t engine_room(const engine *e) {
    gn_kv_pages_info info = gn_kv_pages_get_info(e->pages.held);
    return info.free + info.kept;
}

/* Who waits gets a free slot while there are pages for the whole of what it has. */
static void engine_admit(engine *e) {
    for (int64_t i = 0; i < e->slots && e->first; i++) {
        engine_request *r = e->first;
        if (e->slot[i]) continue;
        int32_t tokens[1 << 10], *all = r->ids.n > 1 << 10 ? malloc(r->ids.n * sizeof *all) : tokens;
        bool others = gn_kv_pages_get_info(e->pages.held).sequences > 0;
        bool fits = !others || engine_room(e) >= engine_wants(e, (int64_t)r->ids.n) + e->slots;
        for (size_t k = 0; all && k < r->ids.n; k++) all[k] = (int32_t)r->ids.id[k];
        int64_t shared = 0;
        bool begun =
            all && fits && gn_kv_pages_begin(e->pages.held, all, (int64_t)r->ids.n, &r->sequence, &shared) == GN_OK;
        if (all != tokens) free(all);
        if (!begun) return;
        if (!r->shared) r->shared = shared;
        r->order = ++e->admitted;
        e->first = r->next;
        if (!e->first) e->last = &e->first;
        r->next = NULL;
        e->slot[i] = r;
    }
}

static int64_t engine_pending(const engine *e, const engine_request *r) {
    return (int64_t)r->ids.n - gn_kv_pages_length(e->pages.held, r->sequence);
}

/* As many pages are there as this step may take: else who came last waits again, and computes its tokens anew. */
static void engine_make_room(engine *e) {
    for (;;) {
        int64_t wanted = 0, newest = -1, active = 0;
        for (int64_t i = 0; i < e->slots; i++) {
            if (!e->slot[i]) continue;
            int64_t n = engine_pending(e, e->slot[i]);
            wanted += n == 1 ? 1 : engine_wants(e, n < ENGINE_CHUNK ? n : ENGINE_CHUNK);
            if (newest < 0 || e->slot[i]->order > e->slot[newest]->order) newest = i;
            active++;
        }
        if (active < 2 || engine_room(e) >= wanted) return;
        engine_request *r = e->slot[newest];
        engine_leave(e, newest);
        r->next = e->first;
        e->first = r;
        if (!r->next) e->last = &r->next;
    }
}

/* Tokens of a chunk: few sizes, so that few plans serve all prompts. */
static int64_t engine_chunk(const engine *e, const engine_request *r, int64_t left) {
    static const int64_t sizes[] = { 256, 64, 16, 1 };
    int64_t room = e->context - gn_kv_pages_length(e->pages.held, r->sequence), best = 1;
    for (int i = 0; i < 4; i++)
        if (sizes[i] <= room && (sizes[i] >= left || best == 1)) best = sizes[i];
    return best;
}

/* n tokens of slot i from row `row` on. */
static bool engine_rows(engine *e, engine_step *s, int64_t i, int64_t row, int64_t n) {
    engine_request *r = e->slot[i];
    int64_t at = gn_kv_pages_length(e->pages.held, r->sequence);
    for (int64_t k = 0; k < n; k++) {
        s->ids[row + k] = (int32_t)r->ids.id[at + k];
        s->positions[row + k] = (int32_t)(at + k);
        s->sequences[row + k] = r->sequence;
    }
    if (gn_kv_pages_append(e->pages.held, r->sequence, s->ids + row, n, s->slots + row) != GN_OK) return false;
    if (at + n == (int64_t)r->ids.n) s->pick[i] = row + n - 1, s->drawn = true;
    if (r->log_probs >= 0) s->logged = true;
    return true;
}

/* A row for each slot that has one token to go, and a chunk of the prompt that came first. False: there is none. */
static bool engine_fill(engine *e, engine_step *s) {
    int64_t chunk = -1;
    bool any = false;
    memset(s, 0, sizeof *s);
    s->n = e->slots;
    for (int64_t i = 0; i < ENGINE_SLOTS + ENGINE_CHUNK; i++) s->sequences[i] = -1, s->slots[i] = -1;
    for (int64_t i = 0; i < e->slots; i++) {
        s->pick[i] = -1;
        if (!e->slot[i]) continue;
        if (engine_pending(e, e->slot[i]) == 1) any = engine_rows(e, s, i, i, 1) || any;
        else if (chunk < 0 || e->slot[i]->order < e->slot[chunk]->order) chunk = i;
    }
    if (chunk < 0) return any;
    int64_t left = engine_pending(e, e->slot[chunk]), size = engine_chunk(e, e->slot[chunk], left);
    s->n += size;
    return engine_rows(e, s, chunk, e->slots, left < size ? left : size) || any;
}

/* The values of a step's leaves. */
typedef struct engine_values {
    bool greedy;
    int64_t columns; /* of the table */
    int64_t pick[ENGINE_SLOTS], seed[ENGINE_SLOTS], counter[ENGINE_SLOTS], top_k[ENGINE_SLOTS];
    float temperature[ENGINE_SLOTS], top_p[ENGINE_SLOTS], min_p[ENGINE_SLOTS];
    struct {
        gn_dtype dtype;
        gn_shape shape;
        const void *at;
        size_t bytes;
    } leaf[ENGINE_LEAVES];
} engine_values;

static void engine_leaf(engine_values *v, int i, gn_dtype d, gn_shape shape, const void *at) {
    v->leaf[i].dtype = d;
    v->leaf[i].shape = shape;
    v->leaf[i].at = at;
    v->leaf[i].bytes = gn_dtype_bytes(d) * (size_t)shape.dims[0] * (size_t)(shape.rank > 1 ? shape.dims[1] : 1);
}

/* Pages in the table: the longest sequence's, in powers of two. False: out of memory. */
static bool engine_fill_table(engine *e, engine_values *v) {
    int64_t most = (e->context + e->pages.desc.page_size - 1) / e->pages.desc.page_size, M = 4;
    int64_t longest = gn_kv_pages_table(e->pages.held, NULL, 0);
    while (M < longest) M *= 2;
    v->columns = M < most ? M : most;
    size_t bytes = (size_t)(e->slots * v->columns) * sizeof *e->table;
    if (bytes > e->table_room) {
        int32_t *more = realloc(e->table, bytes);
        if (!more) return false;
        e->table = more;
        e->table_room = bytes;
    }
    gn_kv_pages_table(e->pages.held, e->table, v->columns);
    return true;
}

static bool engine_fill_values(engine *e, const engine_step *s, engine_values *v) {
    int64_t B = e->slots;
    if (!engine_fill_table(e, v)) return false;
    v->greedy = true;
    for (int64_t i = 0; i < B; i++) {
        const engine_request *r = e->slot[i];
        v->pick[i] = s->pick[i] < 0 ? 0 : s->pick[i];
        v->seed[i] = r ? r->seed : 0, v->counter[i] = r ? (int64_t)r->ids.n : 0, v->top_k[i] = r ? r->top_k : 0;
        v->temperature[i] = r ? (float)r->temperature : 0, v->min_p[i] = r ? (float)r->min_p : 0;
        v->top_p[i] = r ? (float)r->top_p : 1;
        v->greedy = v->greedy && v->temperature[i] == 0;
    }
    engine_leaf(v, ENGINE_IDS, GN_I32, GN_SHAPE(s->n), s->ids);
    engine_leaf(v, ENGINE_POSITIONS, GN_I32, GN_SHAPE(s->n), s->positions);
    engine_leaf(v, ENGINE_SEQUENCES, GN_I32, GN_SHAPE(s->n), s->sequences);
    engine_leaf(v, ENGINE_PLACES, GN_I64, GN_SHAPE(s->n), s->slots);
    engine_leaf(v, ENGINE_TABLE, GN_I32, GN_SHAPE(B, v->columns), e->table);
    engine_leaf(v, ENGINE_PICK, GN_I64, GN_SHAPE(B), v->pick);
    engine_leaf(v, ENGINE_SEED, GN_I64, GN_SHAPE(B), v->seed);
    engine_leaf(v, ENGINE_COUNTER, GN_I64, GN_SHAPE(B), v->counter);
    engine_leaf(v, ENGINE_TEMPERATURE, GN_F32, GN_SHAPE(B), v->temperature);
    engine_leaf(v, ENGINE_TOP_K, GN_I64, GN_SHAPE(B), v->top_k);
    engine_leaf(v, ENGINE_TOP_P, GN_F32, GN_SHAPE(B), v->top_p);
    engine_leaf(v, ENGINE_MIN_P, GN_F32, GN_SHAPE(B), v->min_p);
    return true;
}

static int engine_leaves(const engine_step *s, const engine_values *v) {
    return !s->drawn ? ENGINE_PICK : v->greedy ? ENGINE_SEED : ENGINE_LEAVES;
}

/* What the slots draw from logits (slots, vocab): (slots) i64. */
static gn_tensor engine_draw(const engine_values *v, const gn_tensor *leaf, gn_tensor logits) {
    if (v->greedy) return gn_argmax(logits, GN_AXES(1), false);
    gn_sample_desc d = { .seed = leaf[ENGINE_SEED],
                         .counter = leaf[ENGINE_COUNTER],
                         .temperature = leaf[ENGINE_TEMPERATURE],
                         .top_k = leaf[ENGINE_TOP_K],
                         .top_p = leaf[ENGINE_TOP_P],
                         .min_p = leaf[ENGINE_MIN_P] };
    return gn_sample(logits, &d);
}

/* Pages that the step copies first, to `from` and `to`; false: there are none. */
static bool engine_copies(engine *e, int32_t from[ENGINE_SLOTS], int32_t to[ENGINE_SLOTS]) {
    int64_t n = gn_kv_pages_copies(e->pages.held, from, to, e->slots);
    for (int64_t i = n; i < e->slots; i++) from[i] = 0, to[i] = -1;
    return n > 0;
}

/* The step's graph: its leaves, and the tokens that it draws. */
static gn_tensor engine_build(engine *e, const engine_step *s, const engine_values *v, lm_rows *rows,
                              gn_tensor leaf[ENGINE_LEAVES], gn_tensor *out_logits) {
    for (int i = 0; i < engine_leaves(s, v); i++)
        leaf[i] = gn_data_copy(e->g, v->leaf[i].dtype, v->leaf[i].shape, v->leaf[i].at);
    rows->n = s->n;
    rows->ids = leaf[ENGINE_IDS], rows->positions = leaf[ENGINE_POSITIONS];
    rows->sequences = leaf[ENGINE_SEQUENCES], rows->slots = leaf[ENGINE_PLACES], rows->table = leaf[ENGINE_TABLE];
    gn_tensor x = lm_forward_pages(&e->pages, rows);
    if (!s->drawn) return x;
    *out_logits = lm_logits(e->of->m, gn_index_select(x, 0, leaf[ENGINE_PICK]));
    return engine_draw(v, leaf, *out_logits);
}

/* A token of each slot: the graph of this step is built once for each number of the table's columns. */
static gn_result engine_record(engine *e, const engine_step *s, const engine_values *v, gn_recording **out) {
    int power = 0;
    while ((INT64_C(1) << power) < v->columns) power++;
    gn_recording *step = *out = &e->recorded[v->greedy][power % ENGINE_TABLES];
    if (step->ctx) return GN_OK;
    gn_tensor leaf[ENGINE_LEAVES], logits;
    lm_rows rows = { 0 };
    gn_result r = gn_step(e->g); /* what a run left is of a step of its own */
    gn_tensor next = engine_build(e, s, v, &rows, leaf, &logits);
    return r == GN_OK ? gn_step_record(e->g, leaf, engine_leaves(s, v), &next, 1, step) : r;
}

static bool engine_again(engine *e, engine_step *s, const engine_values *v) {
    gn_recording *step;
    gn_result r = engine_record(e, s, v, &step);
    for (int i = 0; i < engine_leaves(s, v) && r == GN_OK; i++)
        r = gn_step_give(*step, i, v->leaf[i].at, v->leaf[i].bytes);
    if (r == GN_OK) r = gn_step_run(*step, (void *[]){ s->token }, (size_t[]){ (size_t)e->slots * 8 }, NULL);
    return ex_check(e->g, r, "a step");
}

/* Sends the weights. Several devices need to know a whole step first, to divide the layers by their memory. */
static bool engine_place(engine *e) {
    static engine_step s;
    static engine_values v;
    gn_recording *step;
    (void)engine_fill(e, &s); /* no row is of a sequence */
    s.drawn = true;
    return engine_fill_values(e, &s, &v) && ex_check(e->g, engine_record(e, &s, &v, &step), "preparing to decode");
}

static bool engine_run(engine *e, engine_step *s) {
    static float own[ENGINE_SLOTS], others[ENGINE_SLOTS * ENGINE_LOGS];
    static int64_t ids[ENGINE_SLOTS * ENGINE_LOGS];
    static engine_values v;
    int64_t B = e->slots, L = e->of->m->config.vocab < ENGINE_LOGS ? e->of->m->config.vocab : ENGINE_LOGS;
    int32_t from[ENGINE_SLOTS], into[ENGINE_SLOTS];
    bool copies = engine_copies(e, from, into);
    if (!engine_fill_values(e, s, &v)) return false;
    if (s->n == B && s->drawn && !s->logged && !copies) return engine_again(e, s, &v);
    lm_rows rows = { 0 };
    if (copies) {
        rows.from = gn_data_copy(e->g, GN_I32, GN_SHAPE(B), from);
        rows.to = gn_data_copy(e->g, GN_I32, GN_SHAPE(B), into);
    }
    gn_tensor leaf[ENGINE_LEAVES], logits, want[4];
    void *const to[4] = { s->token, own, others, ids };
    const size_t bytes[4] = { (size_t)B * 8, (size_t)B * 4, (size_t)(B * L) * 4, (size_t)(B * L) * 8 };
    want[0] = engine_build(e, s, &v, &rows, leaf, &logits);
    if (s->logged && s->drawn) {
        want[1] = gn_gather(gn_log_softmax(logits, 1), 1, gn_unsqueeze(gn_maximum(want[0], gn_like(want[0], 0)), 1));
        gn_top_log_probs(logits, L, &want[2], &want[3]);
    }
    if (s->drawn && !ex_check(e->g, gn_read_many(want, s->logged ? 4 : 1, to, bytes), "a step")) return false;
    if (!ex_check(e->g, gn_step(e->g), "a step")) return false;
    for (int64_t i = 0; i < B && s->logged; i++) {
        s->logs[i].own = own[i];
        memcpy(s->logs[i].others, others + i * L, (size_t)L * sizeof *others);
        memcpy(s->logs[i].ids, ids + i * L, (size_t)L * sizeof *ids);
    }
    return true;
}

/* A token of slot i has come. */
static void engine_take(engine *e, int64_t i, const engine_step *s) {
    engine_request *r = e->slot[i];
    int64_t token = s->token[i], drawn = (int64_t)r->ids.n - r->n_prompt;
    double now = ex_now();
    for (int64_t k = 0; k < e->of->m->config.n_end; k++)
        if (e->of->m->config.end[k] == token) {
            engine_end(e, i, "end");
            return;
        }
    if (r->log_probs >= 0 && !r->logs) r->logs = calloc((size_t)r->most, sizeof *r->logs);
    if (token < 0 || (r->log_probs >= 0 && !r->logs) || !keep_id(&r->ids, (uint32_t)token)) {
        engine_end(e, i, "failed");
        return;
    }
    if (r->logs) r->logs[drawn] = s->logs[i];
    if (!drawn) engine_time(&e->to_first, now - r->begun), r->first = now;
    else engine_time(&e->between, now - r->last);
    r->last = now;
    e->tokens++;
    tokenizer_decode(e->of->t, &r->stream, (uint32_t)token, sink_add, &r->out);
    if (e->token) e->token(e, r);
    if (r->out.failed) engine_end(e, i, "failed");
    else if (r->out.stopped) engine_end(e, i, "stop");
    else if (drawn + 1 == r->most || (int64_t)r->ids.n > e->context) engine_end(e, i, "length");
}

/* One step of all slots. False: the device failed, and nothing goes on. */
static bool engine_go(engine *e) {
    static engine_step s;
    double begin = ex_now();
    engine_drop(e);
    engine_admit(e);
    engine_make_room(e);
    if (!engine_fill(e, &s)) return true;
    if (!engine_run(e, &s)) return false;
    gn_kv_pages_step(e->pages.held);
    gn_kv_pages_info info = gn_kv_pages_get_info(e->pages.held);
    e->steps++;
    e->busy += info.sequences;
    if (info.sequences > e->slot_peak) e->slot_peak = info.sequences;
    if (info.used > e->page_peak) e->page_peak = info.used;
    for (int64_t i = 0; i < s.n; i++) e->prompt_tokens += i >= e->slots && s.sequences[i] >= 0;
    for (int64_t i = 0; i < e->slots; i++)
        if (e->slot[i] && s.pick[i] >= 0) engine_take(e, i, &s);
    e->busy_s += ex_now() - begin;
    return true;
}
#endif
