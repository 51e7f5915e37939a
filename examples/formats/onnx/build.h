/* build.h - a part of onnx.h: names and scopes, one node after the other, functions, sessions. */
#ifndef ONNX_BUILD_H
#define ONNX_BUILD_H

/* ---- scopes ---- */

static onnx__scope *onnx__new_scope(onnx_session *s, onnx__scope *outer, size_t names) {
    onnx__scope *scope = onnx__alloc(s, sizeof *scope);
    size_t n = 16;
    while (n < names) n *= 2;
    if (outer) *scope = *outer;
    scope->uses = NULL;
    scope->declared = NULL;
    scope->outer = outer;
    scope->n_buckets = n;
    scope->names = onnx__alloc(s, n * sizeof(onnx__name *));
    scope->depth = outer ? outer->depth + 1 : 0;
    return scope;
}

static onnx__name **onnx__bucket(onnx__scope *scope, onnx_span name) {
    return &scope->names[onnx__hash(name.at, onnx__size(name), 7) & (scope->n_buckets - 1)];
}

static onnx__value *onnx__lookup_in(onnx__scope *scope, onnx_span name) {
    for (onnx__name *n = *onnx__bucket(scope, name); n; n = n->next)
        if (onnx__same(n->name, name)) return n->value;
    return NULL;
}

static onnx__value *onnx__lookup(onnx__scope *scope, onnx_span name) {
    onnx__value *v = NULL;
    for (; scope && !v; scope = scope->outer) v = onnx__lookup_in(scope, name);
    return v;
}

static void onnx__define(onnx_session *s, onnx__scope *scope, onnx_span name, onnx__value *value) {
    onnx__name **bucket = onnx__bucket(scope, name), *n = onnx__alloc(s, sizeof *n);
    *n = (onnx__name){ name, value, *bucket };
    *bucket = n;
}

/* Keeps what the fields of that number of a graph or function declare. */
static void onnx__declare(onnx_session *s, onnx__scope *scope, onnx_span message, uint32_t number) {
    onnx_field f;
    while (onnx_find(&message, number, &f)) {
        onnx__declared *d = onnx__alloc(s, sizeof *d);
        *d = (onnx__declared){ onnx__get(f.bytes, 1).bytes, f.bytes, NULL };
        if (!scope->declared) scope->declared = onnx__alloc(s, scope->n_buckets * sizeof *scope->declared);
        onnx__declared **bucket =
            &scope->declared[onnx__hash(d->name.at, onnx__size(d->name), 7) & (scope->n_buckets - 1)];
        d->next = *bucket;
        *bucket = d;
    }
}

static void onnx__declare_graph(onnx_session *s, onnx__scope *scope, onnx_span graph) {
    for (uint32_t number = 11; number <= 13; number++) onnx__declare(s, scope, graph, number);
}

static onnx__use **onnx__use_of(onnx__scope *scope, onnx_span name) {
    onnx__use **u = &scope->uses[onnx__hash(name.at, onnx__size(name), 7) & (scope->n_buckets - 1)];
    while (*u && !onnx__same((*u)->name, name)) u = &(*u)->next;
    return u;
}

static void onnx__count_use(onnx_session *s, onnx__scope *scope, onnx_span name) {
    onnx__use **u = onnx__use_of(scope, name);
    if (!*u) {
        *u = onnx__alloc(s, sizeof **u);
        (*u)->name = name;
    }
    (*u)->n++;
}

/* Names that a graph and the graphs in it use, each as often as it is there. */
static void onnx__count_uses(onnx_session *s, onnx__scope *scope, onnx_span graph, int depth) {
    onnx_field node, f, sub;
    for (onnx_span p = graph; onnx_find(&p, 1, &node);) {
        for (onnx_span q = node.bytes; onnx_find(&q, 1, &f);) onnx__count_use(s, scope, f.bytes);
        for (onnx_span q = node.bytes; depth < ONNX__LEVELS && onnx_find(&q, 5, &f);) {
            for (onnx_span r = f.bytes; onnx_find(&r, 6, &sub);) onnx__count_uses(s, scope, sub.bytes, depth + 1);
            for (onnx_span r = f.bytes; onnx_find(&r, 11, &sub);) onnx__count_uses(s, scope, sub.bytes, depth + 1);
        }
    }
    while (onnx_find(&graph, 12, &f)) onnx__count_use(s, scope, onnx__get(f.bytes, 1).bytes);
}

static bool onnx__is_standard(onnx_span domain) { return !onnx__size(domain) || onnx__is(domain, "ai.onnx"); }

/* The operator set that a scope's list gives for a domain; 0: none. */
static int onnx__version(onnx_span list, uint32_t field, onnx_span domain) {
    onnx_field f;
    while (onnx_find(&list, field, &f)) {
        onnx_span d = onnx__get(f.bytes, 1).bytes;
        if (onnx__same(d, domain) || (onnx__is_standard(d) && onnx__is_standard(domain))) {
            uint64_t v = onnx__get(f.bytes, 2).value;
            return v > 10000 ? 10000 : (int)v;
        }
    }
    return 0;
}

static size_t onnx__count(onnx_span s, uint32_t number) {
    onnx_field f;
    size_t n = 0;
    while (onnx_find(&s, number, &f)) n++;
    return n;
}

/* ---- declarations ---- */

static void onnx__read_shape(onnx_span shape, onnx_slot *out) {
    onnx_field f;
    out->has_shape = true;
    while (onnx_find(&shape, 1, &f)) {
        onnx_field size = onnx__get(f.bytes, 1);
        if (out->rank == ONNX_RANK) {
            out->has_shape =
                false; /* whatever is given has fewer dimensions, and is refused by the node that needs more */
            return;
        }
        out->symbols[out->rank] = onnx__get(f.bytes, 2).bytes;
        out->dims[out->rank++] = size.at ? (int64_t)size.value : -1;
    }
}

static void onnx__read_slot(onnx_span info, onnx_slot *out) {
    onnx_span type = onnx__get(info, 2).bytes;
    *out = (onnx_slot){ .name = onnx__get(info, 1).bytes };
    for (int i = 0; i < 4; i++) {
        onnx_field optional = onnx__get(type, 9), sequence = onnx__get(type, 4), tensor = onnx__get(type, 1),
                   map = onnx__get(type, 5);
        if (optional.at) out->is_optional = true;
        if (sequence.at) out->is_sequence = true;
        if (map.at) {
            uint64_t key = onnx__get(map.bytes, 1).value;
            out->is_map = true;
            out->key = key < ONNX_TYPE__COUNT ? (onnx_type)key : ONNX_UNDEFINED;
            type = onnx__get(map.bytes, 2).bytes;
            continue;
        }
        if (tensor.at) {
            uint64_t elements = onnx__get(tensor.bytes, 1).value;
            out->type = elements < ONNX_TYPE__COUNT ? (onnx_type)elements : ONNX_UNDEFINED;
            onnx_field shape = onnx__get(tensor.bytes, 2);
            if (shape.at) onnx__read_shape(shape.bytes, out);
            return;
        }
        type = onnx__get(optional.at ? optional.bytes : sequence.bytes, 1).bytes;
    }
}

static void onnx__print_shape(char *out, size_t cap, int rank, const int64_t *dims, const onnx_span *symbols) {
    size_t n = (size_t)snprintf(out, cap, "(");
    for (int i = 0; i < rank && n < cap; i++)
        if (dims[i] >= 0 || !symbols) n += (size_t)snprintf(out + n, cap - n, "%s%" PRId64, i ? "," : "", dims[i]);
        else if (onnx__size(symbols[i]) && onnx__size(symbols[i]) < 40)
            n += (size_t)snprintf(out + n, cap - n, "%s%.*s", i ? "," : "", ONNX__SHOW(symbols[i]));
        else n += (size_t)snprintf(out + n, cap - n, "%s?", i ? "," : "");
    if (n < cap) snprintf(out + n, cap - n, ")");
}

/* What a graph declares of a name. False: nothing. */
static bool onnx__declared_slot(const onnx__scope *scope, onnx_span name, onnx_slot *out) {
    onnx__declared *d = NULL;
    if (scope->declared) d = scope->declared[onnx__hash(name.at, onnx__size(name), 7) & (scope->n_buckets - 1)];
    while (d && !onnx__same(d->name, name)) d = d->next;
    if (d) onnx__read_slot(d->info, out);
    return d != NULL;
}

/* Whether a value has the type that is declared. False: `types` has both. */
static bool onnx__type_fits(const onnx_slot *slot, const onnx__value *v, char types[160]) {
    const char *many = "a sequence of ";
    bool is_sequence = v->kind == ONNX__MANY, is_map = v->kind == ONNX__MAP || v->of_maps;
    bool open = !slot->type && !slot->is_sequence && !slot->is_map, empty = is_sequence && !v->n;
    if (open || slot->is_optional || v->kind == ONNX__NOTHING) return true;
    bool same = slot->is_sequence == is_sequence && (empty || slot->is_map == is_map);
    if (same && (empty || !slot->type || slot->type == v->type) && (!is_map || !slot->key || slot->key == ONNX_INT64))
        return true;
    snprintf(types, 160, "%s%s%s, declared is %s%s%s", is_sequence ? many : "", is_map ? "maps of INT64 to " : "",
             onnx_type_name(v->type), slot->is_sequence ? many : "", slot->is_map ? "maps to " : "",
             onnx_type_name(slot->type));
    return false;
}

/* Refuses a value of another type than its graph declares; one of another shape is counted, as files often have shapes
   wrong, and nothing goes by them. */
static void onnx__check_declared(onnx__call *c, const onnx__scope *scope, onnx_span name, const onnx__value *v,
                                 const char *does) {
    onnx_slot slot;
    char types[160], got[200], want[400];
    if (!onnx__declared_slot(scope, name, &slot)) return;
    if (!onnx__type_fits(&slot, v, types)) return onnx__no(c, "%s '%.*s' as %s", does, ONNX__SHOW(name), types);
    bool same = !slot.has_shape || slot.is_optional || v->kind != ONNX__ONE || slot.rank == v->shape.rank;
    for (int i = 0; same && slot.has_shape && v->kind == ONNX__ONE && !slot.is_optional && i < slot.rank; i++)
        same = slot.dims[i] < 0 || slot.dims[i] == v->shape.dims[i];
    if (same || c->s->counts.odd_shapes++) return;
    onnx__print_shape(got, sizeof got, v->shape.rank, v->shape.dims, NULL);
    onnx__print_shape(want, sizeof want, slot.rank, slot.dims, slot.symbols);
    onnx_span node = onnx__get(c->node, 3).bytes;
    snprintf(c->s->odd_shape, sizeof c->s->odd_shape, "node '%.*s' (%.*s): %s '%.*s' of shape %s, declared is %s",
             ONNX__SHOW(node), ONNX__SHOW(c->op_name), does, ONNX__SHOW(name), got, want);
}

/* ---- ops and functions ---- */

/* An op's name as tables have it: with its domain if that is not the standard one. */
static void onnx__full_name(onnx_span domain, onnx_span name, char out[256]) {
    bool standard = onnx__is_standard(domain);
    snprintf(out, 256, "%.*s%s%.*s", standard ? 0 : onnx__shown(domain), (const char *)domain.at, standard ? "" : ":",
             ONNX__SHOW(name));
}

static const char *onnx__why_not(onnx_span domain, onnx_span name) {
    char text[256];
    onnx__full_name(domain, name, text);
    for (size_t i = 0; i < sizeof onnx__unbuilt / sizeof *onnx__unbuilt; i++)
        if (!strcmp(onnx__unbuilt[i].name, text)) return onnx__unbuilt[i].why;
    return "there is no such op here";
}

static const onnx__op *onnx__find_op(onnx_span domain, onnx_span name) {
    char text[256];
    onnx__full_name(domain, name, text);
    for (size_t i = 0; i < sizeof onnx__ops / sizeof *onnx__ops; i++)
        if (!strcmp(onnx__ops[i].name, text)) return &onnx__ops[i];
    return NULL;
}

static onnx_span onnx__find_function(onnx_session *s, onnx_span node) {
    onnx_span all = { s->model->map.data, s->model->map.data + s->model->map.size };
    onnx_span domain = onnx__get(node, 7).bytes, name = onnx__get(node, 4).bytes, overload = onnx__get(node, 8).bytes;
    onnx_field f;
    while (onnx_find(&all, 25, &f)) {
        onnx_span d = onnx__get(f.bytes, 10).bytes;
        if (onnx__same(onnx__get(f.bytes, 1).bytes, name) && onnx__same(onnx__get(f.bytes, 13).bytes, overload) &&
            (onnx__same(d, domain) || (onnx__is_standard(d) && onnx__is_standard(domain))))
            return f.bytes;
    }
    return (onnx_span){ NULL, NULL };
}

static bool onnx__run_nodes(onnx_session *s, onnx__scope *scope, onnx_span message, uint32_t field);

/* A function of the model: its nodes in a scope of its own, which sees nothing around it. */
static void onnx__inline(onnx__call *c, onnx_span function) {
    onnx_session *s = c->s;
    onnx_field f;
    if (c->scope->depth >= ONNX__LEVELS) {
        onnx__no(c, "functions and subgraphs lie more than %d deep in each other, or call themselves", ONNX__LEVELS);
        return;
    }
    onnx__scope *scope = onnx__new_scope(s, NULL, onnx__count(function, 7) * 2);
    scope->depth = c->scope->depth + 1;
    scope->caller = c;
    scope->function = scope->opsets = function;
    scope->opset_field = 9;
    onnx__declare(s, scope, function, 12);
    int i = 0;
    onnx_span p = function;
    for (; onnx_find(&p, 4, &f); i++) {
        onnx__value *v = i < c->n_in && c->in[i] ? c->in[i] : onnx__new_value(s, ONNX__NOTHING);
        onnx__define(s, scope, f.bytes, v);
    }
    if (c->n_in > i) onnx__no(c, "%d inputs, the function takes %d", c->n_in, i);
    if (c->failed || !onnx__run_nodes(s, scope, function, 7)) {
        c->failed = true;
        return;
    }
    p = function;
    for (i = 0; i < c->n_out && onnx_find(&p, 5, &f); i++)
        if (ox_wants(c, i) && !(c->out[i] = onnx__lookup(scope, f.bytes)))
            onnx__no(c, "the function does not make '%.*s'", ONNX__SHOW(f.bytes));
}

/* ---- one node ---- */

static bool onnx__take_inputs(onnx__call *c) {
    onnx_field f;
    onnx_span p = c->node;
    c->n_in = (int)onnx__count(p, 1);
    c->in = onnx__alloc(c->s, ((size_t)c->n_in + 1) * sizeof *c->in);
    for (int i = 0; onnx_find(&p, 1, &f); i++) {
        if (!onnx__size(f.bytes)) continue;
        c->in[i] = onnx__lookup(c->scope, f.bytes);
        if (!c->in[i]) {
            onnx__no(
                c, "it uses '%.*s', which nothing before it makes: the nodes are out of order, or go round in a cycle",
                ONNX__SHOW(f.bytes));
            return false;
        }
    }
    while (c->n_in && !c->in[c->n_in - 1]) c->n_in--; /* left out at the end */
    return true;
}

static void onnx__take_outputs(onnx__call *c) {
    onnx_field f;
    onnx_span p = c->node;
    c->n_out = (int)onnx__count(p, 2);
    c->out_names = onnx__alloc(c->s, ((size_t)c->n_out + 1) * sizeof *c->out_names);
    c->out = onnx__alloc(c->s, ((size_t)c->n_out + 1) * sizeof *c->out);
    for (int i = 0; onnx_find(&p, 2, &f); i++) c->out_names[i] = f.bytes;
}

static bool onnx__is_constant(const onnx__value *v) {
    if (!v || v->kind == ONNX__NOTHING) return true;
    if (v->kind == ONNX__ONE || v->kind == ONNX__MAP) return v->constant;
    for (int i = 0; i < v->n; i++)
        if (!onnx__is_constant(v->items[i])) return false;
    return true;
}

/* Whether the op is right for the types of its inputs. */
static void onnx__check_types(onnx__call *c) {
    for (int i = 0; i < c->n_in; i++) {
        onnx_type t = ox_type(c, i);
        if (!t || onnx__is_plain(t) || c->op->flags & ONNX__ANY_TYPE) continue;
        onnx__no(c, "it does not compute with %s", onnx_type_name(t));
    }
}

/* Attributes that refer to the function's, now that their texts are known; others were checked before. */
static void onnx__check_references(onnx__call *c) {
    const onnx__form *form = onnx__find_form(c->op);
    char why[ONNX_ERROR / 2], text[128];
    onnx_field f;
    for (onnx_span p = c->node; form && onnx_find(&p, 5, &f);) {
        onnx_span name = onnx__get(f.bytes, 1).bytes;
        if (!onnx__size(onnx__get(f.bytes, 21).bytes)) continue;
        snprintf(text, sizeof text, "%.*s", ONNX__SHOW(name));
        onnx_span given = ox_attribute(c, text);
        if (given.at && !onnx__attribute_fits(form, c->version, name, given, why)) onnx__no(c, "%s", why);
    }
}

static void onnx__build_in(onnx__call *c, gn_ctx *g) {
    c->g = g;
    for (int i = 0; i < c->n_out; i++) c->out[i] = NULL;
    c->op->build(c);
    for (int i = 0; !c->failed && i < c->n_out; i++)
        if (ox_wants(c, i) && !c->out[i]) onnx__no(c, "output %d is not made", i);
}

/* In the folding context where all inputs are constants and the results small enough, else in the program's. */
static void onnx__build_op(onnx__call *c) {
    onnx_session *s = c->s;
    bool constant = !(c->op->flags & ONNX__RANDOM), large = false;
    onnx__check_types(c);
    if (c->scope->function.at) onnx__check_references(c);
    if (c->failed) return;
    for (int i = 0; i < c->n_in; i++) constant = constant && onnx__is_constant(c->in[i]);
    if (c->op->flags & ONNX__STATIC) constant = true;
    if (c->op->flags & ONNX__ON_HOST) s->counts.on_host++;
    onnx__build_in(c, constant ? s->fold : s->g);
    for (int i = 0; constant && !c->failed && i < c->n_out; i++)
        large = large || (c->out[i] && !c->out[i]->host && c->out[i]->bytes > ONNX__FOLD);
    if (large) onnx__build_in(c, s->g);
    if (constant && !large) s->counts.folded++;
}

static bool onnx__run_node(onnx_session *s, onnx__scope *scope, onnx_span node) {
    onnx_span domain = onnx__get(node, 7).bytes;
    onnx__call *c = onnx__alloc(s, sizeof *c);
    *c = (onnx__call){ .s = s, .scope = scope, .node = node, .op_name = onnx__get(node, 4).bytes };
    c->version = onnx__version(scope->opsets, scope->opset_field, domain);
    onnx__take_outputs(c);
    if (s->counts.nodes++ >= ONNX__CALLS) onnx__no(c, "more than %d nodes in one build", ONNX__CALLS);
    if (c->failed || !onnx__take_inputs(c)) return false;
    c->op = onnx__find_op(domain, c->op_name);
    onnx_span function = onnx__find_function(s, node);
    if (function.at) onnx__inline(c, function);
    else if (c->op) onnx__build_op(c);
    else onnx__no(c, "%s", onnx__why_not(domain, c->op_name));
    for (int i = 0; !c->failed && i < c->n_out; i++)
        if (ox_wants(c, i) && c->out[i]) {
            if (onnx__lookup_in(scope, c->out_names[i])) {
                onnx__no(c, "it makes '%.*s', which is an input, an initialiser or made by another node",
                         ONNX__SHOW(c->out_names[i]));
                break;
            }
            onnx__check_declared(c, scope, c->out_names[i], c->out[i], "it makes");
            onnx__use *use = scope->uses ? *onnx__use_of(scope, c->out_names[i]) : NULL;
            onnx__define(s, scope, c->out_names[i], c->out[i]);
            c->out[i]->uses = use ? use->n : 0;
        }
    return !c->failed;
}

static bool onnx__run_nodes(onnx_session *s, onnx__scope *scope, onnx_span message, uint32_t field) {
    onnx_field f;
    while (onnx_find(&message, field, &f))
        if (!onnx__run_node(s, scope, f.bytes)) return false;
    return true;
}

/* ---- graphs ---- */

static bool onnx__initialisers(onnx_session *s, onnx__scope *scope, onnx_span graph) {
    onnx__walk w = { .model = s->model, .begin = s->model->map.data, .path = s->model->path, .error = s->error };
    onnx_field f;
    onnx_tensor t;
    onnx_slot slot;
    char why[400], types[160];
    while (onnx_find(&graph, 5, &f)) {
        if (!onnx__describe_tensor(&w, f.bytes, &t)) return false;
        onnx__value *v = onnx__load(s, &t, true);
        if (!v) return false;
        if (onnx__lookup_in(scope, t.name)) {
            snprintf(why, sizeof why, "the initialiser '%.*s' is there twice", ONNX__SHOW(t.name));
            return onnx__refuse(&w, f.at, why);
        }
        if (onnx__declared_slot(scope, t.name, &slot) && !onnx__type_fits(&slot, v, types)) {
            snprintf(why, sizeof why, "the initialiser '%.*s' is %s", ONNX__SHOW(t.name), types);
            return onnx__refuse(&w, f.at, why);
        }
        s->counts.parameters += (int64_t)t.elements;
        onnx__define(s, scope, t.name, v);
    }
    return true;
}

static onnx__value **onnx__graph_outputs(onnx_session *s, onnx__scope *scope, onnx_span graph, int *n) {
    onnx_field f;
    *n = (int)onnx__count(graph, 12);
    onnx__value **out = onnx__alloc(s, ((size_t)*n + 1) * sizeof *out);
    for (int i = 0; onnx_find(&graph, 12, &f); i++) {
        onnx_span name = onnx__get(f.bytes, 1).bytes;
        out[i] = onnx__lookup(scope, name);
        if (!out[i]) {
            onnx__fail(s->error, "%.200s: no node makes the output '%.*s'", s->model->path, ONNX__SHOW(name));
            return NULL;
        }
    }
    return out;
}

static onnx__value **onnx__subgraph(onnx__call *c, onnx_span graph, onnx__value **in, int n_in, int *n_out) {
    onnx_session *s = c->s;
    onnx_field f;
    onnx_span p = graph;
    if (c->scope->depth >= ONNX__LEVELS) {
        onnx__no(c, "subgraphs lie more than %d deep in each other", ONNX__LEVELS);
        return NULL;
    }
    if (s->counts.nodes++ >= ONNX__CALLS) onnx__no(c, "more than %d nodes in one build", ONNX__CALLS);
    if (c->failed) return NULL;
    onnx__scope *scope = onnx__new_scope(s, c->scope, onnx__count(graph, 1) * 2);
    int i = 0;
    onnx__declare_graph(s, scope, graph);
    bool ok = onnx__initialisers(s, scope, graph);
    for (; ok && i < n_in && onnx_find(&p, 11, &f); i++) {
        onnx_span name = onnx__get(f.bytes, 1).bytes;
        if (in[i]) onnx__check_declared(c, scope, name, in[i], "its subgraph is given");
        onnx__define(s, scope, name, in[i] ? in[i] : onnx__new_value(s, ONNX__NOTHING));
    }
    if (ok && i < n_in) onnx__no(c, "the subgraph takes %d inputs, not %d", i, n_in);
    ok = ok && !c->failed && onnx__run_nodes(s, scope, graph, 1);
    onnx__value **out = ok ? onnx__graph_outputs(s, scope, graph, n_out) : NULL;
    if (!out) c->failed = true;
    return out;
}

/* ---- what cannot be built ---- */

/* A name of which the file says that its type is not held, or held as another. */
typedef struct onnx__odd {
    onnx_span name;
    onnx_type type;
} onnx__odd;

typedef struct onnx__audit {
    onnx_session *s;
    FILE *to;
    onnx_span opsets;
    uint32_t opset_field;
    onnx__odd odd[1024]; /* of the graph and those around it; what further ones are is found when they are built */
    size_t n_odd;
    int refused;
} onnx__audit;

static void onnx__audit_graph(onnx__audit *a, onnx_span graph);

static void onnx__audit_line(onnx__audit *a, const char *text) {
    if (!a->refused++) snprintf(a->s->error, ONNX_ERROR, "%s", text);
    if (a->to) fprintf(a->to, "%s\n", text);
}

static void onnx__audit_say(onnx__audit *a, onnx_span node, int version, const char *why) {
    char text[ONNX_ERROR];
    onnx_span name = onnx__get(node, 3).bytes, op = onnx__get(node, 4).bytes;
    if (!onnx__size(name)) name = onnx__get(node, 2).bytes;
    onnx__fail(text, "node '%.*s' (%.*s, version %d): %s", ONNX__SHOW(name), ONNX__SHOW(op), version, why);
    onnx__audit_line(a, text);
}

/* What the node takes: how many inputs, and those whose types are known to be no op's, or not this one's. */
static void onnx__audit_inputs(onnx__audit *a, onnx_span node, int version, const onnx__op *op,
                               const onnx__form *form) {
    char why[200];
    onnx_field f;
    int n = 0, i = 0;
    for (onnx_span p = node; onnx_find(&p, 1, &f); i++) {
        size_t k = a->n_odd;
        if (!onnx__size(f.bytes)) continue;
        n = i + 1;
        while (k && !onnx__same(a->odd[k - 1].name, f.bytes)) k--;
        onnx_type type = k ? a->odd[k - 1].type : ONNX_FLOAT;
        bool held = onnx_type_dtype(type) != GN_DTYPE_NONE;
        if (!k || (held && op->flags & ONNX__ANY_TYPE)) continue;
        if (held) snprintf(why, sizeof why, "it does not compute with %s", onnx_type_name(type));
        else snprintf(why, sizeof why, "input '%.*s': %s is not held", ONNX__SHOW(f.bytes), onnx_type_name(type));
        onnx__audit_say(a, node, version, why);
    }
    int most = form ? onnx__most_inputs(form, version) : -1;
    snprintf(why, sizeof why, "%d inputs, the op takes %d", n, most);
    if (most >= 0 && n > most) onnx__audit_say(a, node, version, why);
}

/* An attribute's name, text and type. */
static void onnx__audit_attribute(onnx__audit *a, onnx_span node, int version, const onnx__form *form, onnx_span at) {
    char why[ONNX_ERROR / 2];
    onnx_span name = onnx__get(at, 1).bytes, value = onnx__get(at, 5).bytes;
    bool is_constant = form && !strcmp(form->name, "Constant"), is_cast = form && !strcmp(form->name, "Cast");
    if (form && !onnx__attribute_fits(form, version, name, at, why)) onnx__audit_say(a, node, version, why);
    uint64_t type = value.at ? onnx__get(value, 2).value : 1;
    if (is_cast && onnx__is(name, "to")) type = onnx__size(onnx__get(at, 21).bytes) ? 1 : onnx__get(at, 3).value;
    if (is_constant && (onnx__is(name, "value_string") || onnx__is(name, "value_strings"))) type = ONNX_STRING;
    snprintf(why, sizeof why, "%s is not held", onnx_type_name(type < ONNX_TYPE__COUNT ? (int)type : 0));
    if (type >= ONNX_TYPE__COUNT || onnx_type_dtype((int)type) == GN_DTYPE_NONE) onnx__audit_say(a, node, version, why);
}

static void onnx__audit_node(onnx__audit *a, onnx_span node) {
    onnx_span domain = onnx__get(node, 7).bytes, name = onnx__get(node, 4).bytes;
    int version = onnx__version(a->opsets, a->opset_field, domain);
    const onnx__op *op = onnx__find_op(domain, name);
    const onnx__form *form = op ? onnx__find_form(op) : NULL;
    char why[100];
    onnx_field f, g;
    snprintf(why, sizeof why, "only versions from %d on are built", op ? op->since : 0);
    if (onnx__find_function(a->s, node).at) return;
    if (!op) onnx__audit_say(a, node, version, onnx__why_not(domain, name));
    else if (version < op->since) onnx__audit_say(a, node, version, why);
    else onnx__audit_inputs(a, node, version, op, form);
    for (onnx_span p = node; onnx_find(&p, 5, &f);) {
        onnx__audit_attribute(a, node, version, form, f.bytes);
        for (onnx_span q = f.bytes; onnx_find(&q, 6, &g);) onnx__audit_graph(a, g.bytes);
        for (onnx_span q = f.bytes; onnx_find(&q, 11, &g);) onnx__audit_graph(a, g.bytes);
    }
}

static void onnx__audit_nodes(onnx__audit *a, onnx_span message, uint32_t field) {
    onnx_field f;
    while (onnx_find(&message, field, &f)) onnx__audit_node(a, f.bytes);
}

/* Keeps a name whose type is odd. `what`: what it is, where that alone is refused if the type is not held. */
static void onnx__audit_name(onnx__audit *a, onnx_span name, onnx_type type, const char *what) {
    char text[ONNX_ERROR];
    if (!type || onnx__is_plain(type)) return;
    if (a->n_odd < sizeof a->odd / sizeof *a->odd) a->odd[a->n_odd++] = (onnx__odd){ name, type };
    onnx__fail(text, "%s '%.*s': %s is not held", what ? what : "", ONNX__SHOW(name), onnx_type_name(type));
    if (what && onnx_type_dtype(type) == GN_DTYPE_NONE) onnx__audit_line(a, text);
}

static void onnx__audit_map(onnx__audit *a, onnx_span name) {
    char text[ONNX_ERROR];
    onnx__fail(text,
               "input '%.*s': maps are not given from outside: cut the graph behind the CastMap or DictVectorizer "
               "that takes it, and give that one's result, a tensor",
               ONNX__SHOW(name));
    onnx__audit_line(a, text);
}

static void onnx__audit_graph(onnx__audit *a, onnx_span graph) {
    size_t around = a->n_odd;
    onnx_slot slot;
    onnx_field f;
    for (onnx_span p = graph; onnx_next(&p, &f);)
        if (f.number == 5)
            onnx__audit_name(a, onnx__get(f.bytes, 8).bytes, (onnx_type)onnx__get(f.bytes, 2).value, "initialiser");
        else if (f.number >= 11 && f.number <= 13) {
            onnx__read_slot(f.bytes, &slot);
            if (f.number == 11 && slot.is_map) onnx__audit_map(a, slot.name);
            else onnx__audit_name(a, slot.name, slot.type, f.number == 11 ? "input" : NULL);
        }
    onnx__audit_nodes(a, graph, 1);
    a->n_odd = around;
}

/* Versions of the standard operators that are read, in the model and in each function. */
static bool onnx__audit_versions(onnx__audit *a) {
    int v = onnx__version(a->opsets, a->opset_field, (onnx_span){ NULL, NULL });
    if (!v || (v >= ONNX_OPSET_OLDEST && v <= ONNX_OPSET_NEWEST)) return true;
    a->refused++;
    if (a->to)
        fprintf(a->to, "operator set %d: those from %d to %d are read\n", v, ONNX_OPSET_OLDEST, ONNX_OPSET_NEWEST);
    return onnx__fail(a->s->error, "operator set %d: those from %d to %d are read", v, ONNX_OPSET_OLDEST,
                      ONNX_OPSET_NEWEST);
}

static bool onnx__audit_model(onnx_session *s, FILE *to) {
    onnx_span all = { s->model->map.data, s->model->map.data + s->model->map.size }, p = all;
    onnx__audit a = { .s = s, .to = to, .opsets = all, .opset_field = 8 };
    onnx_field f;
    if (!onnx__audit_versions(&a)) return false;
    onnx__audit_graph(&a, s->model->graph);
    if (onnx_find(&p, 20, &f)) onnx__audit_say(&a, f.bytes, 0, "training information is not read");
    p = s->model->graph;
    if (onnx_find(&p, 15, &f)) onnx__audit_say(&a, f.bytes, 0, "sparse initialisers are not read");
    for (p = all; onnx_find(&p, 25, &f);) {
        a.opsets = f.bytes;
        a.opset_field = 9;
        if (onnx__audit_versions(&a)) onnx__audit_nodes(&a, f.bytes, 7);
    }
    return a.refused == 0;
}

/* ---- inputs and outputs ---- */

static bool onnx__is_initialised(onnx_span graph, onnx_span name) {
    onnx_field f;
    while (onnx_find(&graph, 5, &f))
        if (onnx__same(onnx__get(f.bytes, 8).bytes, name)) return true;
    return false;
}

static bool onnx__slot_at(onnx_span graph, uint32_t number, int i, onnx_slot *out) {
    onnx_field f;
    while (i >= 0 && onnx_find(&graph, number, &f))
        if (!i--) {
            onnx__read_slot(f.bytes, out);
            return true;
        }
    return false;
}

int onnx_inputs(const onnx_session *s) { return s->n_inputs; }
int onnx_outputs(const onnx_session *s) { return s->n_outputs; }
onnx_counts onnx_get_counts(const onnx_session *s) { return s->counts; }
const char *onnx_odd_shape(const onnx_session *s) { return s->odd_shape; }

bool onnx_input(const onnx_session *s, int i, onnx_slot *out) {
    if (i < 0 || i >= s->n_inputs) return false;
    *out = s->inputs[i].slot;
    return true;
}

bool onnx_output(const onnx_session *s, int i, onnx_slot *out) { return onnx__slot_at(s->model->graph, 12, i, out); }

onnx_session *onnx_session_open(onnx *m, gn_ctx *g, FILE *refusals, char error[ONNX_ERROR]) {
    onnx_session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (onnx_session){ .model = m, .g = g, .error = error };
    s->n_inputs = (int)onnx__count(m->graph, 11);
    s->n_outputs = (int)onnx__count(m->graph, 12);
    s->inputs = calloc((size_t)s->n_inputs + 1, sizeof *s->inputs);
    s->fold = gn_open(&(gn_desc){ .devices = "cpu", .threads = 1 });
    if (!s->inputs || gn_status(s->fold) != GN_OK || !onnx__audit_model(s, refusals)) {
        onnx_session_close(s);
        return NULL;
    }
    for (int i = 0; i < s->n_inputs; i++) {
        onnx__slot_at(m->graph, 11, i, &s->inputs[i].slot);
        s->inputs[i].slot.has_default = onnx__is_initialised(m->graph, s->inputs[i].slot.name);
        s->inputs[i].n = -2;
    }
    return s;
}

void onnx_session_close(onnx_session *s) {
    if (!s) return;
    gn_step(s->g); /* the step borrows what is freed now */
    for (int i = 0; i < ONNX__BUCKETS; i++)
        for (onnx__kept *k = s->kept[i], *next; k; k = next) {
            next = k->next;
            if (k->weight.ctx) gn_release(k->weight);
            free(k->copy);
            free(k);
        }
    gn_close(s->fold);
    onnx__free_chunks(s);
    for (int i = 0; i < s->n_inputs && s->inputs; i++) free(s->inputs[i].tensors);
    free(s->inputs);
    free(s);
}

/* ---- binding ---- */

static bool onnx__fits(const onnx_slot *slot, const onnx_tensor *t, char *error) {
    char given[200], wanted[400];
    bool ok = !slot->has_shape || slot->rank == t->rank;
    onnx__print_shape(given, sizeof given, t->rank, t->dims, NULL);
    onnx__print_shape(wanted, sizeof wanted, slot->rank, slot->dims, slot->symbols);
    if (slot->type && slot->type != t->type)
        return onnx__fail(error, "input '%.*s': the model takes %s, given was %s", ONNX__SHOW(slot->name),
                          onnx_type_name(slot->type), onnx_type_name(t->type));
    for (int i = 0; ok && slot->has_shape && i < t->rank; i++) ok = slot->dims[i] < 0 || slot->dims[i] == t->dims[i];
    return ok || onnx__fail(error, "input '%.*s': the model takes the shape %s, given was %s", ONNX__SHOW(slot->name),
                            wanted, given);
}

/* Elements and bytes of a tensor that is given, by its type and dimensions. */
static void onnx__measure(onnx_tensor *t) {
    t->elements = 1;
    for (int i = 0; i < t->rank; i++) t->elements *= (uint64_t)t->dims[i];
    t->bytes = t->elements * onnx__dtype_bytes[onnx_type_dtype(t->type)];
}

bool onnx_bind_sequence(onnx_session *s, const char *name, const onnx_tensor *t, int n, char error[ONNX_ERROR]) {
    for (int i = 0; i < s->n_inputs; i++) {
        onnx__bound *b = &s->inputs[i];
        if (!onnx__is(b->slot.name, name)) continue;
        for (int k = 0; k < n; k++)
            if (!onnx__fits(&b->slot, &t[k], error)) return false;
        onnx_tensor *copy = malloc((size_t)(n > 0 ? n : 1) * sizeof *copy);
        if (!copy) return onnx__fail(error, "out of memory");
        if (n > 0) memcpy(copy, t, (size_t)n * sizeof *copy);
        for (int k = 0; k < n; k++) onnx__measure(&copy[k]);
        free(b->tensors);
        b->tensors = copy;
        b->n = n < 0 ? -1 : n;
        return true;
    }
    return onnx__fail(error, "the model has no input '%s'", name);
}

bool onnx_bind(onnx_session *s, const char *name, const onnx_tensor *t, char error[ONNX_ERROR]) {
    return onnx_bind_sequence(s, name, t, 1, error);
}

/* Sizes of one name are one number. */
static bool onnx__symbols_agree(onnx_session *s) {
    for (int a = 0; a < s->n_inputs; a++)
        for (int b = 0; b < a; b++) {
            const onnx__bound *x = &s->inputs[a], *y = &s->inputs[b];
            if (x->n < 1 || y->n < 1 || x->slot.is_sequence || y->slot.is_sequence) continue;
            for (int i = 0; i < x->slot.rank; i++)
                for (int k = 0; k < y->slot.rank; k++)
                    if (x->slot.dims[i] < 0 && y->slot.dims[k] < 0 && onnx__size(x->slot.symbols[i]) &&
                        onnx__same(x->slot.symbols[i], y->slot.symbols[k]) &&
                        x->tensors->dims[i] != y->tensors->dims[k])
                        return onnx__fail(s->error, "'%.*s' is %" PRId64 " in input '%.*s' and %" PRId64 " in '%.*s'",
                                          ONNX__SHOW(x->slot.symbols[i]), y->tensors->dims[k], ONNX__SHOW(y->slot.name),
                                          x->tensors->dims[i], ONNX__SHOW(x->slot.name));
        }
    return true;
}

static onnx__value *onnx__input_value(onnx_session *s, const onnx_tensor *t) {
    onnx__value *v = onnx__load(s, t, false);
    if (!v) return NULL;
    v->main = gn_data(s->g, onnx_type_dtype(v->type), v->shape, v->bytes ? v->host : "");
    return v;
}

static bool onnx__define_inputs(onnx_session *s, onnx__scope *scope) {
    for (int i = 0; i < s->n_inputs; i++) {
        onnx__bound *b = &s->inputs[i];
        onnx__value *v = NULL;
        if (b->n == -2 && b->slot.has_default) continue;
        if (b->n == -2) return onnx__fail(s->error, "input '%.*s' is not given", ONNX__SHOW(b->slot.name));
        if (b->n == -1) v = onnx__new_value(s, ONNX__NOTHING);
        else if (!b->slot.is_sequence) v = onnx__input_value(s, b->tensors);
        else {
            v = onnx__new_value(s, ONNX__MANY);
            v->type = b->slot.type;
            v->n = b->n;
            v->items = onnx__alloc(s, (size_t)(b->n + 1) * sizeof *v->items);
            for (int k = 0; k < b->n; k++)
                if (!(v->items[k] = onnx__input_value(s, &b->tensors[k]))) return false;
        }
        if (!v) return false;
        onnx__define(s, scope, b->slot.name, v);
    }
    return true;
}

/* ---- building and running ---- */

/* Whether outputs have the types that the model declares, those too that no node makes; maps become tensors. */
static bool onnx__outputs_as_declared(onnx_session *s, onnx__value **out) {
    onnx_slot slot;
    char types[160];
    for (int i = 0; i < s->n_outputs && onnx__slot_at(s->model->graph, 12, i, &slot); i++) {
        if (!onnx__type_fits(&slot, out[i], types))
            return onnx__fail(s->error, "%.200s: output '%.*s' is %s", s->model->path, ONNX__SHOW(slot.name), types);
        if (out[i]->kind != ONNX__MAP && !out[i]->of_maps) continue;
        out[i] = onnx__map_result(s, out[i]);
        if (!out[i])
            return onnx__fail(s->error, "%.200s: output '%.*s': maps of different keys in one sequence", s->model->path,
                              ONNX__SHOW(slot.name));
    }
    return true;
}

static onnx__value **onnx__build_graph(onnx_session *s) {
    onnx__scope *scope = onnx__new_scope(s, NULL, onnx__count(s->model->graph, 1) * 2);
    int n;
    scope->opsets = (onnx_span){ s->model->map.data, s->model->map.data + s->model->map.size };
    scope->opset_field = 8;
    scope->uses = onnx__alloc(s, scope->n_buckets * sizeof *scope->uses);
    onnx__count_uses(s, scope, s->model->graph, 0);
    onnx__declare_graph(s, scope, s->model->graph);
    bool ok = onnx__symbols_agree(s) && onnx__initialisers(s, scope, s->model->graph) &&
              onnx__define_inputs(s, scope) && onnx__run_nodes(s, scope, s->model->graph, 1);
    onnx__value **out = ok ? onnx__graph_outputs(s, scope, s->model->graph, &n) : NULL;
    return out && onnx__outputs_as_declared(s, out) ? out : NULL;
}

bool onnx_build(onnx_session *s, char error[ONNX_ERROR]) {
    s->error = error;
    s->outputs = NULL;
    s->counts = (onnx_counts){ 0 };
    s->odd_shape[0] = 0;
    gn_result r = gn_step(s->g);
    gn_step(s->fold);
    onnx__free_chunks(s);
    if (r != GN_OK) return onnx__fail(error, "%s", gn_last_error(s->g)->text);
    if (setjmp(s->give_up) == 0) s->outputs = onnx__build_graph(s);
    if (mapping_cut(&s->model->map) != MAPPING_WHOLE) return onnx__fail(error, "the file became shorter meanwhile");
    return s->outputs != NULL;
}

bool onnx_result_is_map(const onnx_session *s, int i) {
    return s->outputs && i >= 0 && i < s->n_outputs && s->outputs[i]->of_maps;
}

int onnx_result_count(const onnx_session *s, int i) {
    const onnx__value *v = s->outputs && i >= 0 && i < s->n_outputs ? s->outputs[i] : NULL;
    return !v || v->kind == ONNX__NOTHING ? -1 : v->kind == ONNX__ONE ? 1 : v->n;
}

bool onnx_result(onnx_session *s, int i, int k, onnx_tensor *out, char error[ONNX_ERROR]) {
    s->error = error;
    if (k < 0 || k >= onnx_result_count(s, i)) return onnx__fail(error, "there is no such result");
    onnx__value *v = s->outputs[i]->kind == ONNX__ONE ? s->outputs[i] : s->outputs[i]->items[k];
    if (v->kind != ONNX__ONE) return onnx__fail(error, "sequences in sequences are not read");
    int64_t reads = s->counts.early_reads;
    const void *host = onnx__host(s, v);
    s->counts.early_reads = reads;
    if (!host) return false;
    *out = (onnx_tensor){ .type = v->type, .rank = v->shape.rank, .data = host, .bytes = v->bytes };
    out->elements = onnx__elements(v->shape);
    memcpy(out->dims, v->shape.dims, sizeof out->dims);
    return true;
}

/* Tensors of the outputs that the context has to compute, at most `most`. */
static int onnx__pending(const onnx_session *s, onnx__value **out, int most) {
    int n = 0;
    for (int i = 0; i < s->n_outputs; i++)
        for (int k = 0; k < onnx_result_count(s, i) && n < most; k++) {
            onnx__value *v = s->outputs[i]->kind == ONNX__ONE ? s->outputs[i] : s->outputs[i]->items[k];
            if (v->kind == ONNX__ONE && !v->host && !v->constant && v->bytes) out[n++] = v;
        }
    return n;
}

enum { ONNX__READS = 256 };

bool onnx_explain(onnx_session *s, char **out_text, char error[ONNX_ERROR]) {
    onnx__value *values[ONNX__READS];
    gn_tensor t[ONNX__READS];
    size_t bytes = 0, cap = 4 << 20;
    int n = onnx__pending(s, values, ONNX__READS);
    for (int i = 0; i < n; i++) t[i] = values[i]->main;
    *out_text = n ? malloc(cap) : NULL;
    if (!*out_text) return onnx__fail(error, "nothing is computed in the context");
    if (gn_explain(t, n, NULL, *out_text, cap, &bytes) == GN_OK) return true;
    free(*out_text);
    *out_text = NULL;
    return onnx__fail(error, "%s", gn_last_error(s->g)->text);
}

bool onnx_run(onnx_session *s, char error[ONNX_ERROR]) {
    onnx__value *values[ONNX__READS];
    gn_tensor t[ONNX__READS];
    void *out[ONNX__READS];
    size_t bytes[ONNX__READS];
    int n = onnx__pending(s, values, ONNX__READS);
    for (int i = 0; i < n; i++) {
        t[i] = values[i]->main;
        bytes[i] = values[i]->bytes;
        out[i] = onnx__room(s, bytes[i], SIZE_MAX / 4);
        if (!out[i]) return onnx__fail(error, "there is no memory for %zu bytes of a result", bytes[i]);
    }
    if (n && gn_read_many(t, n, out, bytes) != GN_OK) {
        s->outputs = NULL;
        return onnx__fail(error, "%s", gn_last_error(s->g)->text);
    }
    for (int i = 0; i < n; i++) values[i]->host = out[i];
    return true;
}
#endif
