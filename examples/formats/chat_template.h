/* chat_template.h - a conversation as the text that a model was trained on, by the template that comes with it.

   One C file of the program:   #define CHAT_TEMPLATE_IMPLEMENTATION
                                #include "chat_template.h"
   Elsewhere:                   #include "chat_template.h"   C99, C++11; POSIX; json.h beside it.

       char error[CHAT_TEMPLATE_ERROR];
       chat_template *t = chat_template_open(text, size, error);     of tokenizer_config.json's "chat_template"
       json_check(data, n, NULL, &variables, &why);   {"messages":[{"role":"user","content":"Hello"}],
                                                       "add_generation_prompt":true,"bos_token":"<s>"}
       chat_template_text out = { 0 };
       if (!chat_template_render(t, variables, &out, error)) puts(error);
       chat_template_text_free(&out);
       chat_template_close(t);

   The language is Jinja's, with the settings that the package `transformers` renders templates with (blocks trim the
   line they stand on). Read: for (else, if, several targets, break, continue, loop), if, set (also of a block, and of a
   namespace's attribute), generation, comments; all operators, slices, tests, and filters and methods named below in
   the source; the functions namespace, range, dict, raise_exception and strftime_now. What else a template uses (macro,
   include, other filters …) is refused by its name when it is opened: text that is nearly right is wrong. Printing a
   list or a dict without `tojson` is an error when it is reached.

   A template is not trusted: rendering takes at most CHAT_TEMPLATE_STEPS steps and CHAT_TEMPLATE_MEMORY bytes. It may
   be used by several threads at once. */
#ifndef CHAT_TEMPLATE_H
#define CHAT_TEMPLATE_H

#include "json.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CHAT_TEMPLATE_ERROR = 512, CHAT_TEMPLATE_STEPS = 20000000, CHAT_TEMPLATE_MEMORY = 256 << 20 };

typedef struct chat_template chat_template;

/* Begins zeroed; ended by a 0 that is not counted. */
typedef struct chat_template_text {
    char *text;
    size_t size, room;
} chat_template_text;

/* NULL: `error` says why, and in which line. */
chat_template *chat_template_open(const char *text, size_t size, char error[CHAT_TEMPLATE_ERROR]);
void chat_template_close(chat_template *t);
/* Appends the text. variables: an object that json_check has passed. False: `error` says why; what was appended until
   then stays. */
bool chat_template_render(const chat_template *t, json_value variables, chat_template_text *out,
                          char error[CHAT_TEMPLATE_ERROR]);
void chat_template_text_free(chat_template_text *out);

#ifdef __cplusplus
}
#endif
#endif

#if defined(CHAT_TEMPLATE_IMPLEMENTATION) && !defined(CHAT_TEMPLATE_IMPLEMENTED)
#define CHAT_TEMPLATE_IMPLEMENTED
#define JSON_IMPLEMENTATION
#include "json.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CT__DEPTH = 100, CT__NODES = 1 << 20, CT__SOURCE = 1 << 24 };

/* ---- values ---- */

typedef enum ct__type {
    CT__UNDEFINED,
    CT__NONE,
    CT__BOOL,
    CT__INT,
    CT__FLOAT,
    CT__TEXT,
    CT__LIST,
    CT__DICT, /* and namespaces */
    CT__LOOP
} ct__type;

static const char *const ct__type_names[] = {
    "an undefined value", "None", "a bool", "an int", "a float", "a text", "a list", "a dict", "a loop"
};

typedef struct ct__value ct__value;
typedef struct ct__list {
    ct__value *at;
    size_t n, room;
} ct__list;
/* keys[i] is a text */
typedef struct ct__dict {
    ct__list keys, values;
    bool space; /* a namespace: its attributes may be set */
} ct__dict;
typedef struct ct__loop {
    const ct__list *items;
    size_t i;
} ct__loop;
struct ct__value {
    ct__type type;
    size_t n; /* bytes of a text */
    union {
        int64_t i; /* and bool */
        double f;
        const char *text;
        ct__list *list;
        ct__dict *dict;
        ct__loop *loop;
    } u;
};

/* ---- the tree ---- */

typedef enum ct__kind {
    CT__CONSTANT,
    CT__NAME,
    CT__MAKE_LIST,
    CT__MAKE_DICT, /* list: keys and values in turn */
    CT__ATTRIBUTE, /* a . text */
    CT__INDEX,     /* a [b] */
    CT__SLICE,     /* a [list of three] */
    CT__CALL,      /* function text (list) */
    CT__METHOD,    /* a . text (list) */
    CT__FILTER,    /* a | text (list) */
    CT__TEST,      /* a is text (list) */
    CT__NAMED,     /* an argument text = a */
    CT__NOT,
    CT__NEGATIVE,
    CT__AND,
    CT__OR,
    CT__CHOICE, /* b ? a : c */
    CT__BINARY, /* a op b */
    /* statements */
    CT__DATA,
    CT__PRINT,     /* a */
    CT__IF,        /* a; list: what is done; b: otherwise */
    CT__FOR,       /* a: what over; b: which of them; names: list of CT__NAME in c; list; otherwise in d */
    CT__SET,       /* text [. attribute in v] = a */
    CT__SET_BLOCK, /* text: list */
    CT__GROUP,     /* list */
    CT__BREAK,
    CT__CONTINUE
} ct__kind;

typedef enum ct__op {
    CT__EQ,
    CT__NE,
    CT__LT,
    CT__LE,
    CT__GT,
    CT__GE,
    CT__IN,
    CT__NOT_IN,
    CT__ADD,
    CT__SUB,
    CT__MUL,
    CT__DIV,
    CT__FLOOR_DIV,
    CT__MOD,
    CT__POW,
    CT__JOIN
} ct__op;

/* Children are places in the array of nodes, 0: none; a list's are linked by `next`. */
typedef struct ct__node {
    ct__kind kind;
    ct__op op;
    uint32_t a, b, c, d, list, next;
    int line;
    const char *text;
    size_t n;
    ct__value v;
} ct__node;

/* Memory that goes at once. */
typedef struct ct__block ct__block;
struct ct__block {
    ct__block *before;
    size_t used, room;
};
typedef struct ct__arena {
    ct__block *last;
    size_t total;
} ct__arena;

struct chat_template {
    char *source;
    size_t size;
    ct__node *nodes;
    uint32_t n, room, root;
    ct__arena arena;
};

typedef struct ct__variable {
    const char *name;
    size_t n;
    ct__value v;
} ct__variable;
typedef struct ct__scope ct__scope;
struct ct__scope {
    ct__scope *above;
    ct__variable *at;
    size_t n, room;
};

/* What reading and rendering share. */
typedef struct ct__work {
    chat_template *t;
    char *error;
    bool failed;
    int line;
    ct__arena *arena;
    /* reading */
    const char *p, *end, *tag_end; /* tag_end: "%}" or "}}" of the tag that is read, NULL: none */
    int depth, braces, loops;
    bool line_begins, strip_next;
    /* rendering */
    ct__scope *scope;
    chat_template_text *out;
    int leave; /* CT__BREAK or CT__CONTINUE is under way */
    unsigned steps;
} ct__work;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static ct__value
ct__fail(ct__work *w, const char *format, ...) {
    char text[CHAT_TEMPLATE_ERROR - 40];
    va_list args;
    if (!w->failed) {
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        snprintf(w->error, CHAT_TEMPLATE_ERROR, "line %d: %s", w->line, text);
    }
    w->failed = true;
    return (ct__value){ CT__UNDEFINED, 0, { 0 } };
}

static void *ct__alloc(ct__work *w, size_t n) {
    ct__arena *a = w->arena;
    n = (n + 15) & ~(size_t)15;
    if (n > CHAT_TEMPLATE_MEMORY || a->total > CHAT_TEMPLATE_MEMORY - n) {
        ct__fail(w, "more than %d bytes of memory are needed", CHAT_TEMPLATE_MEMORY);
        return NULL;
    }
    if (!a->last || a->last->room - a->last->used < n) {
        size_t room = n > 65536 ? n : 65536;
        ct__block *b = (ct__block *)malloc(sizeof *b + 16 + room);
        if (!b) {
            ct__fail(w, "out of memory");
            return NULL;
        }
        *b = (ct__block){ a->last, 0, room };
        a->last = b;
    }
    char *p = (char *)(a->last + 1) + a->last->used;
    a->last->used += n;
    a->total += n;
    return p;
}

static void ct__arena_free(ct__arena *a) {
    for (ct__block *b = a->last, *before; b; b = before) {
        before = b->before;
        free(b);
    }
    a->last = NULL;
}

/* ---- making values ---- */

static ct__value ct__undefined(void) { return (ct__value){ CT__UNDEFINED, 0, { 0 } }; }
static ct__value ct__none(void) { return (ct__value){ CT__NONE, 0, { 0 } }; }
static ct__value ct__bool(bool b) { return (ct__value){ CT__BOOL, 0, { .i = b } }; }
static ct__value ct__int(int64_t i) { return (ct__value){ CT__INT, 0, { .i = i } }; }
static ct__value ct__float(double f) { return (ct__value){ CT__FLOAT, 0, { .f = f } }; }
static ct__value ct__text(const char *p, size_t n) { return (ct__value){ CT__TEXT, n, { .text = p } }; }

static ct__value ct__copy(ct__work *w, const char *p, size_t n) {
    char *q = (char *)ct__alloc(w, n + 1);
    if (!q) return ct__undefined();
    if (n) memcpy(q, p, n);
    q[n] = 0;
    return ct__text(q, n);
}

static ct__value ct__new_list(ct__work *w) {
    ct__list *l = (ct__list *)ct__alloc(w, sizeof *l);
    if (!l) return ct__undefined();
    *l = (ct__list){ NULL, 0, 0 };
    return (ct__value){ CT__LIST, 0, { .list = l } };
}

static void ct__push(ct__work *w, ct__list *l, ct__value v) {
    if (w->failed) return;
    if (l->n == l->room) {
        size_t room = l->room * 2 + 8;
        ct__value *more = (ct__value *)ct__alloc(w, room * sizeof *more);
        if (!more) return;
        if (l->n) memcpy(more, l->at, l->n * sizeof *more);
        l->at = more;
        l->room = room;
    }
    l->at[l->n++] = v;
}

static ct__value ct__new_dict(ct__work *w) {
    ct__dict *d = (ct__dict *)ct__alloc(w, sizeof *d);
    if (!d) return ct__undefined();
    memset(d, 0, sizeof *d);
    return (ct__value){ CT__DICT, 0, { .dict = d } };
}

static bool ct__same_text(ct__value a, const char *p, size_t n) {
    return a.type == CT__TEXT && a.n == n && (!n || !memcmp(a.u.text, p, n));
}
static bool ct__is(const char *p, size_t n, const char *name) { return strlen(name) == n && !memcmp(p, name, n); }

static ct__value *ct__find(const ct__dict *d, const char *p, size_t n) {
    for (size_t i = 0; i < d->keys.n; i++)
        if (ct__same_text(d->keys.at[i], p, n)) return &d->values.at[i];
    return NULL;
}

static void ct__put(ct__work *w, ct__dict *d, ct__value key, ct__value v) {
    ct__value *old = ct__find(d, key.u.text, key.n);
    if (old) {
        *old = v;
        return;
    }
    ct__push(w, &d->keys, key);
    ct__push(w, &d->values, v);
}

static ct__value ct__from_number(ct__work *w, json_value v) {
    int64_t i;
    double f;
    bool whole = !memchr(v.text, '.', v.size) && !memchr(v.text, 'e', v.size) && !memchr(v.text, 'E', v.size);
    if (whole) return json_get_i64(v, &i) ? ct__int(i) : ct__fail(w, "an integer of more than 64 bits");
    return json_get_double(v, &f) ? ct__float(f) : ct__fail(w, "a number that is too large");
}

static ct__value ct__from_json(ct__work *w, json_value v) {
    json_value key, item;
    ct__value out;
    size_t n;
    char *text;
    bool b = false;
    switch (json_kind_of(v)) {
    case JSON_NULL: return ct__none();
    case JSON_BOOL: json_get_bool(v, &b); return ct__bool(b);
    case JSON_NUMBER: return ct__from_number(w, v);
    case JSON_STRING:
        text = (char *)ct__alloc(w, v.size + 1);
        if (!text || !json_get_string(v, text, v.size + 1, &n)) return ct__fail(w, "a text that cannot be read");
        return ct__text(text, n);
    case JSON_ARRAY:
        out = ct__new_list(w);
        for (json_iter i = json_begin(v); !w->failed && json_next(&i, &key, &item);)
            ct__push(w, out.u.list, ct__from_json(w, item));
        return out;
    case JSON_OBJECT:
        out = ct__new_dict(w);
        for (json_iter i = json_begin(v); !w->failed && json_next(&i, &key, &item);) {
            ct__value name = ct__from_json(w, key), value = ct__from_json(w, item);
            if (!w->failed) ct__push(w, &out.u.dict->keys, name), ct__push(w, &out.u.dict->values, value);
        }
        return out;
    default: return ct__undefined();
    }
}

/* ---- texts: UTF-8, counted in code points ---- */

static size_t ct__step(const char *p, size_t n) {
    size_t k = n ? json_utf8(p, n) : 0;
    return k ? k : 1;
}

static size_t ct__points(ct__value v) {
    size_t points = 0;
    for (size_t i = 0; i < v.n; i += ct__step(v.u.text + i, v.n - i)) points++;
    return points;
}

/* Bytes of the whitespace (as Python has it) at p, 0: none. */
static size_t ct__space(const char *p, size_t n) {
    static const char *const wide[] = { "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\xa8",
                                        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80" };
    unsigned char c = n ? (unsigned char)*p : 0;
    if (n && (c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f))) return 1;
    for (int i = 0; c >= 0x80 && i < 8; i++)
        if (n >= strlen(wide[i]) && !memcmp(p, wide[i], strlen(wide[i]))) return strlen(wide[i]);
    return n >= 3 && !memcmp(p, "\xe2\x80", 2) && (unsigned char)p[2] >= 0x80 && (unsigned char)p[2] <= 0x8a ? 3 : 0;
}

static size_t ct__last(const char *p, size_t n) { /* bytes of the last code point */
    size_t k = 1;
    while (k < n && k < 4 && ((unsigned char)p[n - k] & 0xc0) == 0x80) k++;
    return k;
}

/* Whether the code point at p is to be stripped: whitespace, or one of the given. */
static bool ct__strips(const char *p, size_t k, const ct__value *set) {
    if (!set) return ct__space(p, k) == k;
    for (size_t i = 0, step; i < set->n; i += step) {
        step = ct__step(set->u.text + i, set->n - i);
        if (step == k && !memcmp(set->u.text + i, p, k)) return true;
    }
    return false;
}

static ct__value ct__strip(ct__value v, const ct__value *set, bool left, bool right) {
    while (left && v.n) {
        size_t k = ct__step(v.u.text, v.n);
        if (!ct__strips(v.u.text, k, set)) break;
        v.u.text += k;
        v.n -= k;
    }
    while (right && v.n) {
        size_t k = ct__last(v.u.text, v.n);
        if (!ct__strips(v.u.text + v.n - k, k, set)) break;
        v.n -= k;
    }
    return v;
}

static const char *ct__search(ct__value in, size_t from, ct__value what) {
    for (size_t i = from; i + what.n <= in.n; i++)
        if (!what.n || (in.u.text[i] == what.u.text[0] && !memcmp(in.u.text + i, what.u.text, what.n)))
            return in.u.text + i;
    return NULL;
}

/* ---- texts that grow ---- */

static void ct__write(ct__work *w, const char *p, size_t n) {
    chat_template_text *o = w->out;
    if (w->failed) return;
    if (o->room - o->size <= n) {
        size_t room = o->room * 2 + n + 256;
        char *more = room < CHAT_TEMPLATE_MEMORY ? (char *)realloc(o->text, room) : NULL;
        if (!more) {
            ct__fail(w, "the text is larger than %d bytes, or there is no memory", CHAT_TEMPLATE_MEMORY);
            return;
        }
        o->text = more;
        o->room = room;
    }
    if (n) memcpy(o->text + o->size, p, n);
    o->size += n;
    o->text[o->size] = 0;
}

/* The shortest digits that give the double again, as Python writes them. */
static size_t ct__float_text(double f, char out[40]) {
    char digits[40];
    int exponent = 0, precision = 1;
    if (isnan(f) || isinf(f)) return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    for (; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
        if (strtod(digits, NULL) == f) break;
    }
    const char *e = strchr(digits, 'e');
    exponent = e ? atoi(e + 1) : 0;
    if (exponent < -4 || exponent >= 16) {
        size_t n = (size_t)(e ? e - digits : 0);
        memcpy(out, digits, n);
        return n + (size_t)snprintf(out + n, 40 - n, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    int after = precision - 1 - exponent;
    return (size_t)snprintf(out, 40, "%.*f", after > 0 ? after : 1, f);
}

/* str(v) */
static ct__value ct__to_text(ct__work *w, ct__value v) {
    char number[40];
    switch (v.type) {
    case CT__UNDEFINED: return ct__text("", 0);
    case CT__NONE: return ct__text("None", 4);
    case CT__BOOL: return v.u.i ? ct__text("True", 4) : ct__text("False", 5);
    case CT__INT: return ct__copy(w, number, (size_t)snprintf(number, sizeof number, "%lld", (long long)v.u.i));
    case CT__FLOAT: return ct__copy(w, number, ct__float_text(v.u.f, number));
    case CT__TEXT: return v;
    default: return ct__fail(w, "%s is printed; only tojson prints it", ct__type_names[v.type]);
    }
}

static void ct__write_value(ct__work *w, ct__value v) {
    v = ct__to_text(w, v);
    if (!w->failed) ct__write(w, v.u.text, v.n);
}

static void ct__json_text(ct__work *w, ct__value v) {
    static const char plain[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    ct__write(w, "\"", 1);
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.u.text[i];
        char escape[8];
        const char *known = c ? strchr(plain, c) : NULL;
        if (known) ct__write(w, escape, (size_t)snprintf(escape, sizeof escape, "\\%c", letters[known - plain]));
        else if (c < 0x20) ct__write(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        else ct__write(w, v.u.text + i, 1);
    }
    ct__write(w, "\"", 1);
}

static void ct__json_line(ct__work *w, int indent, int depth) {
    if (indent < 0) return;
    ct__write(w, "\n", 1);
    for (int i = 0; i < indent * depth; i++) ct__write(w, " ", 1);
}

/* json.dumps(v, ensure_ascii=False, indent=indent); below 0: on one line. */
static void ct__json(ct__work *w, ct__value v, int indent, int depth) {
    bool dict = v.type == CT__DICT;
    const ct__list *items = dict ? &v.u.dict->values : v.type == CT__LIST ? v.u.list : NULL;
    if (w->failed) return;
    if (depth > CT__DEPTH) ct__fail(w, "values lie too deep in each other");
    else if (v.type == CT__UNDEFINED || v.type == CT__LOOP)
        ct__fail(w, "%s cannot be written as JSON", ct__type_names[v.type]);
    else if (v.type == CT__NONE) ct__write(w, "null", 4);
    else if (v.type == CT__BOOL) ct__write(w, v.u.i ? "true" : "false", v.u.i ? 4 : 5);
    else if (v.type == CT__TEXT) ct__json_text(w, v);
    else if (v.type == CT__FLOAT && !isfinite(v.u.f))
        ct__fail(w, "a float that is not finite cannot be written as JSON");
    else if (!items) ct__write_value(w, v);
    if (!items) return;
    ct__write(w, dict ? "{" : "[", 1);
    for (size_t i = 0; i < items->n; i++) {
        if (i) ct__write(w, ", ", indent < 0 ? 2 : 1);
        ct__json_line(w, indent, depth + 1);
        if (dict) ct__json_text(w, v.u.dict->keys.at[i]);
        if (dict) ct__write(w, ": ", 2);
        ct__json(w, items->at[i], indent, depth + 1);
    }
    if (items->n) ct__json_line(w, indent, depth);
    ct__write(w, dict ? "}" : "]", 1);
}

/* What `fn` writes, as a text. */
static ct__value ct__captured(ct__work *w, chat_template_text *into) {
    ct__value v = ct__copy(w, into->text ? into->text : "", into->size);
    free(into->text);
    return v;
}

/* ---- what values mean ---- */

static bool ct__true(ct__value v) {
    switch (v.type) {
    case CT__BOOL:
    case CT__INT: return v.u.i != 0;
    case CT__FLOAT: return v.u.f != 0;
    case CT__TEXT: return v.n != 0;
    case CT__LIST: return v.u.list->n != 0;
    case CT__DICT: return v.u.dict->space || v.u.dict->keys.n != 0;
    case CT__LOOP: return true;
    default: return false;
    }
}

static bool ct__numeric(ct__value v) { return v.type == CT__BOOL || v.type == CT__INT || v.type == CT__FLOAT; }
static double ct__number(ct__value v) { return v.type == CT__FLOAT ? v.u.f : (double)v.u.i; }

static bool ct__equal(ct__value a, ct__value b, int depth) {
    if (depth > CT__DEPTH) return false;
    if (ct__numeric(a) && ct__numeric(b))
        return a.type != CT__FLOAT && b.type != CT__FLOAT ? a.u.i == b.u.i : ct__number(a) == ct__number(b);
    if (a.type != b.type) return false;
    if (a.type == CT__TEXT) return ct__same_text(a, b.u.text, b.n);
    if (a.type == CT__LIST) {
        bool same = a.u.list->n == b.u.list->n;
        for (size_t i = 0; same && i < a.u.list->n; i++) same = ct__equal(a.u.list->at[i], b.u.list->at[i], depth + 1);
        return same;
    }
    if (a.type == CT__DICT && (a.u.dict->space || b.u.dict->space)) return a.u.dict == b.u.dict;
    if (a.type == CT__DICT) {
        bool same = a.u.dict->keys.n == b.u.dict->keys.n;
        for (size_t i = 0; same && i < a.u.dict->keys.n; i++) {
            ct__value key = a.u.dict->keys.at[i], *other = ct__find(b.u.dict, key.u.text, key.n);
            same = other && ct__equal(a.u.dict->values.at[i], *other, depth + 1);
        }
        return same;
    }
    return a.type != CT__LOOP || a.u.loop == b.u.loop;
}

static int ct__order(ct__work *w, ct__value a, ct__value b) {
    if (ct__numeric(a) && ct__numeric(b)) {
        double x = ct__number(a), y = ct__number(b);
        if (a.type != CT__FLOAT && b.type != CT__FLOAT) return (a.u.i > b.u.i) - (a.u.i < b.u.i);
        return (x > y) - (x < y);
    }
    if (a.type == CT__TEXT && b.type == CT__TEXT) {
        int order = a.n && b.n ? memcmp(a.u.text, b.u.text, a.n < b.n ? a.n : b.n) : 0;
        return order ? order : (a.n > b.n) - (a.n < b.n);
    }
    if (a.type == CT__LIST && b.type == CT__LIST) ct__fail(w, "an order of lists is not read");
    ct__fail(w, "%s and %s have no order", ct__type_names[a.type], ct__type_names[b.type]);
    return 0;
}

/* The items that a loop over the value takes. */
static const ct__list *ct__items(ct__work *w, ct__value v) {
    static const ct__list nothing = { NULL, 0, 0 };
    if (v.type == CT__LIST) return v.u.list;
    if (v.type == CT__DICT && !v.u.dict->space) return &v.u.dict->keys;
    if (v.type == CT__UNDEFINED) return &nothing;
    if (v.type != CT__TEXT) {
        ct__fail(w, "%s has no items", ct__type_names[v.type]);
        return &nothing;
    }
    ct__value out = ct__new_list(w);
    for (size_t i = 0, k; i < v.n && !w->failed; i += k) {
        k = ct__step(v.u.text + i, v.n - i);
        ct__push(w, out.u.list, ct__text(v.u.text + i, k));
    }
    return w->failed ? &nothing : out.u.list;
}

static bool ct__contains(ct__work *w, ct__value in, ct__value x) {
    if (in.type == CT__TEXT) {
        if (x.type == CT__TEXT) return ct__search(in, 0, x) != NULL;
        ct__fail(w, "%s cannot be in a text", ct__type_names[x.type]);
        return false;
    }
    const ct__list *items = ct__items(w, in);
    for (size_t i = 0; i < items->n; i++)
        if (ct__equal(items->at[i], x, 0)) return true;
    return false;
}

static ct__value ct__loop_attribute(ct__work *w, const ct__loop *l, const char *p, size_t n) {
    size_t count = l->items->n;
    if (ct__is(p, n, "index")) return ct__int((int64_t)l->i + 1);
    if (ct__is(p, n, "index0")) return ct__int((int64_t)l->i);
    if (ct__is(p, n, "revindex")) return ct__int((int64_t)(count - l->i));
    if (ct__is(p, n, "revindex0")) return ct__int((int64_t)(count - l->i) - 1);
    if (ct__is(p, n, "first")) return ct__bool(l->i == 0);
    if (ct__is(p, n, "last")) return ct__bool(l->i + 1 == count);
    if (ct__is(p, n, "length")) return ct__int((int64_t)count);
    if (ct__is(p, n, "previtem")) return l->i ? l->items->at[l->i - 1] : ct__undefined();
    if (ct__is(p, n, "nextitem")) return l->i + 1 < count ? l->items->at[l->i + 1] : ct__undefined();
    return ct__fail(w, "loop.%.*s is not read", n > 40 ? 40 : (int)n, p);
}

static ct__value ct__attribute(ct__work *w, ct__value v, const char *p, size_t n) {
    if (v.type == CT__LOOP) return ct__loop_attribute(w, v.u.loop, p, n);
    if (v.type == CT__DICT) {
        ct__value *found = ct__find(v.u.dict, p, n);
        return found ? *found : ct__undefined();
    }
    if (v.type == CT__UNDEFINED) return ct__fail(w, "an undefined value has no %.*s", n > 60 ? 60 : (int)n, p);
    return ct__undefined();
}

/* Code points [from, from + count) of a text. */
static ct__value ct__part(ct__value v, size_t from, size_t count) {
    size_t i = 0, begin;
    for (; from && i < v.n; from--) i += ct__step(v.u.text + i, v.n - i);
    for (begin = i; count && i < v.n; count--) i += ct__step(v.u.text + i, v.n - i);
    return ct__text(v.u.text + begin, i - begin);
}

static ct__value ct__index(ct__work *w, ct__value v, ct__value at) {
    int64_t n = v.type == CT__TEXT ? (int64_t)ct__points(v) : v.type == CT__LIST ? (int64_t)v.u.list->n : 0;
    if (v.type == CT__UNDEFINED) return ct__fail(w, "an undefined value has no items");
    if (at.type == CT__TEXT && v.type != CT__LIST && v.type != CT__TEXT) return ct__attribute(w, v, at.u.text, at.n);
    if ((at.type != CT__INT && at.type != CT__BOOL) || (v.type != CT__LIST && v.type != CT__TEXT))
        return ct__undefined();
    int64_t i = at.u.i < 0 ? at.u.i + n : at.u.i;
    if (i < 0 || i >= n) return ct__undefined();
    return v.type == CT__LIST ? v.u.list->at[i] : ct__part(v, (size_t)i, 1);
}

/* A bound of a slice as Python cuts it to 0 … n (-1 … n - 1 for steps back). */
static int64_t ct__bound(ct__value v, int64_t otherwise, int64_t n, bool back) {
    if (v.type == CT__NONE) return otherwise;
    int64_t i = v.u.i < 0 ? v.u.i + n : v.u.i, least = back ? -1 : 0, most = back ? n - 1 : n;
    return i < least ? least : i > most ? most : i;
}

static ct__value ct__slice(ct__work *w, ct__value v, const ct__value bounds[3]) {
    if (v.type != CT__LIST && v.type != CT__TEXT) return ct__fail(w, "%s has no slices", ct__type_names[v.type]);
    for (int k = 0; k < 3; k++)
        if (bounds[k].type != CT__NONE && bounds[k].type != CT__INT && bounds[k].type != CT__BOOL)
            return ct__fail(w, "%s cannot bound a slice", ct__type_names[bounds[k].type]);
    const ct__list *items = ct__items(w, v);
    int64_t n = (int64_t)items->n, step = bounds[2].type == CT__NONE ? 1 : bounds[2].u.i;
    if (step == 0 || step > (1 << 30) || step < -(1 << 30)) return ct__fail(w, "a slice by such a step is not read");
    int64_t i = ct__bound(bounds[0], step < 0 ? n - 1 : 0, n, step < 0),
            end = ct__bound(bounds[1], step < 0 ? -1 : n, n, step < 0);
    ct__value out = ct__new_list(w);
    if (v.type == CT__TEXT && step == 1) return i < end ? ct__part(v, (size_t)i, (size_t)(end - i)) : ct__text("", 0);
    for (; !w->failed && (step > 0 ? i < end : i > end); i += step) ct__push(w, out.u.list, items->at[i]);
    if (v.type == CT__LIST || w->failed) return out;
    char *text = (char *)ct__alloc(w, v.n + 1);
    size_t size = 0;
    for (size_t k = 0; text && k < out.u.list->n; k++) {
        memcpy(text + size, out.u.list->at[k].u.text, out.u.list->at[k].n);
        size += out.u.list->at[k].n;
    }
    return text ? ct__text(text, size) : ct__undefined();
}

/* ---- operators ---- */

static ct__value ct__join(ct__work *w, ct__value a, ct__value b) {
    char *p = (char *)ct__alloc(w, a.n + b.n + 1);
    if (!p) return ct__undefined();
    if (a.n) memcpy(p, a.u.text, a.n);
    if (b.n) memcpy(p + a.n, b.u.text, b.n);
    p[a.n + b.n] = 0;
    return ct__text(p, a.n + b.n);
}

static ct__value ct__times(ct__work *w, ct__value v, int64_t times) {
    ct__value out = v.type == CT__LIST ? ct__new_list(w) : ct__text("", 0);
    size_t n = v.type == CT__LIST ? v.u.list->n : v.n;
    if (times <= 0 || !n || w->failed) return out;
    if ((uint64_t)times > CHAT_TEMPLATE_MEMORY / n) return ct__fail(w, "the product is too long");
    if (v.type == CT__LIST) {
        for (int64_t k = 0; k < times && !w->failed; k++)
            for (size_t i = 0; i < n; i++) ct__push(w, out.u.list, v.u.list->at[i]);
        return out;
    }
    char *p = (char *)ct__alloc(w, n * (size_t)times + 1);
    for (int64_t k = 0; p && k < times; k++) memcpy(p + n * (size_t)k, v.u.text, n);
    return p ? ct__text(p, n * (size_t)times) : out;
}

static ct__value ct__floats(ct__work *w, ct__op op, double x, double y) {
    if ((op == CT__DIV || op == CT__FLOOR_DIV || op == CT__MOD) && y == 0) return ct__fail(w, "division by zero");
    if (op == CT__ADD) return ct__float(x + y);
    if (op == CT__SUB) return ct__float(x - y);
    if (op == CT__MUL) return ct__float(x * y);
    if (op == CT__DIV) return ct__float(x / y);
    if (op == CT__POW && (x < 0 || x == 0)) return ct__fail(w, "a power of a number that is not above 0 is not read");
    if (op == CT__POW) return ct__float(pow(x, y));
    double m = fmod(x, y);
    if (m != 0 && (m < 0) != (y < 0)) m += y;
    return op == CT__MOD ? ct__float(m == 0 ? copysign(0.0, y) : m) : ct__float(floor((x - m) / y + 0.5));
}

static ct__value ct__integers(ct__work *w, ct__op op, int64_t x, int64_t y) {
    int64_t z = 0;
    bool over = false;
    if (op == CT__DIV) return ct__floats(w, op, (double)x, (double)y);
    if (op == CT__ADD) over = __builtin_add_overflow(x, y, &z);
    if (op == CT__SUB) over = __builtin_sub_overflow(x, y, &z);
    if (op == CT__MUL) over = __builtin_mul_overflow(x, y, &z);
    if (op == CT__POW && y < 0) return ct__fail(w, "a negative power is not read");
    if (op == CT__POW)
        for (z = 1; y > 0 && !over; y--) {
            over = __builtin_mul_overflow(z, x, &z);
            if (z == 0 || z == 1) break;
            if (z == -1 && x == -1) z = y % 2 ? -1 : 1, y = 1;
        }
    if (op == CT__FLOOR_DIV || op == CT__MOD) {
        if (y == 0) return ct__fail(w, "division by zero");
        if (y == -1) over = op == CT__FLOOR_DIV && x == INT64_MIN;
        int64_t q = y == -1 ? (over ? 0 : -x) : x / y, m = y == -1 ? 0 : x % y;
        if (m && (m < 0) != (y < 0)) q--, m += y;
        z = op == CT__MOD ? m : q;
    }
    return over ? ct__fail(w, "an integer of more than 64 bits") : ct__int(z);
}

static ct__value ct__arithmetic(ct__work *w, ct__op op, ct__value a, ct__value b) {
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };
    bool integers = a.type != CT__FLOAT && b.type != CT__FLOAT;
    if (ct__numeric(a) && ct__numeric(b))
        return integers ? ct__integers(w, op, a.u.i, b.u.i) : ct__floats(w, op, ct__number(a), ct__number(b));
    if (op == CT__ADD && a.type == CT__TEXT && b.type == CT__TEXT) return ct__join(w, a, b);
    if (op == CT__ADD && a.type == CT__LIST && b.type == CT__LIST) {
        ct__value out = ct__new_list(w);
        for (size_t i = 0; i < a.u.list->n && !w->failed; i++) ct__push(w, out.u.list, a.u.list->at[i]);
        for (size_t i = 0; i < b.u.list->n && !w->failed; i++) ct__push(w, out.u.list, b.u.list->at[i]);
        return out;
    }
    bool many = a.type == CT__TEXT || a.type == CT__LIST, of_many = b.type == CT__TEXT || b.type == CT__LIST;
    if (op == CT__MUL && many && (b.type == CT__INT || b.type == CT__BOOL)) return ct__times(w, a, b.u.i);
    if (op == CT__MUL && of_many && (a.type == CT__INT || a.type == CT__BOOL)) return ct__times(w, b, a.u.i);
    if (op == CT__MOD && a.type == CT__TEXT) return ct__fail(w, "a text as a format is not read");
    return ct__fail(w, "%s %s %s is not possible", ct__type_names[a.type], names[op - CT__ADD], ct__type_names[b.type]);
}

static ct__value ct__binary(ct__work *w, ct__op op, ct__value a, ct__value b) {
    switch (op) {
    case CT__EQ: return ct__bool(ct__equal(a, b, 0));
    case CT__NE: return ct__bool(!ct__equal(a, b, 0));
    case CT__LT: return ct__bool(ct__order(w, a, b) < 0);
    case CT__LE: return ct__bool(ct__order(w, a, b) <= 0);
    case CT__GT: return ct__bool(ct__order(w, a, b) > 0);
    case CT__GE: return ct__bool(ct__order(w, a, b) >= 0);
    case CT__IN: return ct__bool(ct__contains(w, b, a));
    case CT__NOT_IN: return ct__bool(!ct__contains(w, b, a));
    case CT__JOIN:
        a = ct__to_text(w, a);
        b = ct__to_text(w, b);
        return w->failed ? ct__undefined() : ct__join(w, a, b);
    default: return ct__arithmetic(w, op, a, b);
    }
}

/* ---- filters, methods, tests, functions: a row each; what has none is refused when a template is opened ---- */

enum { CT__ARGS = 8 };
typedef struct ct__args {
    ct__value at[CT__ARGS], named[CT__ARGS];
    const ct__node *names[CT__ARGS];
    size_t n, n_named;
} ct__args;
typedef ct__value (*ct__fn)(ct__work *w, ct__value self, const ct__args *a);
typedef struct ct__row {
    const char *name;
    ct__fn fn;
    size_t least, most; /* arguments in a row */
    const char *named;  /* one that may be given by name; "*": any */
} ct__row;

static const ct__value *ct__named(const ct__args *a, const char *name) {
    for (size_t i = 0; i < a->n_named; i++)
        if (ct__is(a->names[i]->text, a->names[i]->n, name)) return &a->named[i];
    return NULL;
}

static bool ct__want(ct__work *w, ct__value v, ct__type type) {
    if (v.type != type) ct__fail(w, "%s where %s is needed", ct__type_names[v.type], ct__type_names[type]);
    return v.type == type;
}

/* Upper or lower case; only ASCII has it here. */
static ct__value ct__case(ct__work *w, ct__value v, int way) {
    v = ct__to_text(w, v);
    ct__value out = ct__copy(w, v.u.text, w->failed ? 0 : v.n);
    char *p = w->failed ? NULL : (char *)(uintptr_t)out.u.text;
    bool begins = true;
    for (size_t i = 0; p && i < out.n; i++) {
        bool upper = p[i] >= 'A' && p[i] <= 'Z', lower = p[i] >= 'a' && p[i] <= 'z';
        if ((unsigned char)p[i] >= 0x80) return ct__fail(w, "letters beyond ASCII are not changed to another case");
        bool up = way == 'U' || (way == 'C' && i == 0) || (way == 'T' && begins);
        if (lower && up) p[i] = (char)(p[i] - 32);
        if (upper && !up) p[i] = (char)(p[i] + 32);
        begins = ct__space(p + i, 1) || strchr("-({[<", p[i]);
    }
    return out;
}
static ct__value ct__upper(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__case(w, v, 'U'); }
static ct__value ct__lower(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__case(w, v, 'L'); }
static ct__value ct__capital(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__case(w, v, 'C'); }
static ct__value ct__title(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__case(w, v, 'T'); }

#define CT__METHOD_OF(name)                                                           \
    static ct__value ct__method_##name(ct__work *w, ct__value v, const ct__args *a) { \
        return ct__want(w, v, CT__TEXT) ? ct__##name(w, v, a) : v;                    \
    }
CT__METHOD_OF(upper)
CT__METHOD_OF(lower)
CT__METHOD_OF(capital)
#undef CT__METHOD_OF

static ct__value ct__strip_of(ct__work *w, ct__value v, const ct__args *a, bool left, bool right) {
    bool all = !a->n || a->at[0].type == CT__NONE;
    if (!ct__want(w, v, CT__TEXT) || (!all && !ct__want(w, a->at[0], CT__TEXT))) return ct__undefined();
    return ct__strip(v, all ? NULL : &a->at[0], left, right);
}
static ct__value ct__trim(ct__work *w, ct__value v, const ct__args *a) {
    return ct__strip_of(w, ct__to_text(w, v), a, true, true);
}
static ct__value ct__strip_both(ct__work *w, ct__value v, const ct__args *a) {
    return ct__strip_of(w, v, a, true, true);
}
static ct__value ct__strip_left(ct__work *w, ct__value v, const ct__args *a) {
    return ct__strip_of(w, v, a, true, false);
}
static ct__value ct__strip_right(ct__work *w, ct__value v, const ct__args *a) {
    return ct__strip_of(w, v, a, false, true);
}

static ct__value ct__length(ct__work *w, ct__value v, const ct__args *a) {
    (void)a;
    if (v.type == CT__TEXT) return ct__int((int64_t)ct__points(v));
    return ct__int((int64_t)ct__items(w, v)->n);
}

static ct__value ct__tojson(ct__work *w, ct__value v, const ct__args *a) {
    chat_template_text text = { NULL, 0, 0 }, *out = w->out;
    const ct__value *indent = a->n ? &a->at[0] : ct__named(a, "indent");
    bool line = !indent || indent->type == CT__NONE;
    if (!line && (!ct__want(w, *indent, CT__INT) || indent->u.i < 0 || indent->u.i > 100))
        return ct__fail(w, "an indent of 0 to 100 is needed");
    w->out = &text;
    ct__json(w, v, line ? -1 : (int)indent->u.i, 0);
    w->out = out;
    return ct__captured(w, &text);
}

static ct__value ct__default(ct__work *w, ct__value v, const ct__args *a) {
    const ct__value *falsy = a->n > 1 ? &a->at[1] : ct__named(a, "boolean");
    (void)w;
    if (v.type != CT__UNDEFINED && !(falsy && ct__true(*falsy) && !ct__true(v))) return v;
    return a->n ? a->at[0] : ct__text("", 0);
}

static ct__value ct__first(ct__work *w, ct__value v, const ct__args *a) {
    const ct__list *items = ct__items(w, v);
    (void)a;
    return items->n ? items->at[0] : ct__undefined();
}
static ct__value ct__final(ct__work *w, ct__value v, const ct__args *a) {
    const ct__list *items = ct__items(w, v);
    (void)a;
    return items->n ? items->at[items->n - 1] : ct__undefined();
}

static ct__value ct__to_list(ct__work *w, ct__value v, const ct__args *a) {
    const ct__list *items = ct__items(w, v);
    ct__value out = ct__new_list(w);
    (void)a;
    for (size_t i = 0; i < items->n && !w->failed; i++) ct__push(w, out.u.list, items->at[i]);
    return out;
}
static ct__value ct__reverse(ct__work *w, ct__value v, const ct__args *a) {
    if (v.type == CT__TEXT) return ct__slice(w, v, (ct__value[3]){ ct__none(), ct__none(), ct__int(-1) });
    ct__value out = ct__to_list(w, v, a);
    for (size_t i = 0; !w->failed && i < out.u.list->n / 2; i++) {
        ct__value *x = &out.u.list->at[i], *y = &out.u.list->at[out.u.list->n - 1 - i], z = *x;
        *x = *y;
        *y = z;
    }
    return out;
}

/* Texts of `items` with another between them; strict: each must be a text already. */
static ct__value ct__joined(ct__work *w, const ct__list *items, ct__value between, bool strict) {
    chat_template_text text = { NULL, 0, 0 }, *out = w->out;
    w->out = &text;
    for (size_t i = 0; i < items->n && !w->failed; i++) {
        if (i) ct__write(w, between.u.text, between.n);
        if (!strict || ct__want(w, items->at[i], CT__TEXT)) ct__write_value(w, items->at[i]);
    }
    w->out = out;
    return ct__captured(w, &text);
}
static ct__value ct__filter_join(ct__work *w, ct__value v, const ct__args *a) {
    ct__value between = a->n ? ct__to_text(w, a->at[0]) : ct__text("", 0);
    return w->failed ? between : ct__joined(w, ct__items(w, v), between, false);
}
static ct__value ct__method_join(ct__work *w, ct__value v, const ct__args *a) {
    return ct__want(w, v, CT__TEXT) ? ct__joined(w, ct__items(w, a->at[0]), v, true) : v;
}

static ct__value ct__string(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__to_text(w, v); }

static ct__value ct__to_int(ct__work *w, ct__value v, const ct__args *a) {
    ct__value otherwise = a->n ? a->at[0] : ct__int(0);
    char number[64], *end = number;
    if (v.type == CT__UNDEFINED) return ct__fail(w, "an undefined value is not a number");
    if (v.type == CT__INT || v.type == CT__BOOL) return ct__int(v.u.i);
    if (v.type == CT__TEXT) {
        v = ct__strip(v, NULL, true, true);
        if (!v.n || v.n >= sizeof number || strspn(v.u.text, "+-.0123456789eE") < v.n) return otherwise;
        memcpy(number, v.u.text, v.n);
        number[v.n] = 0;
        long long whole = strtoll(number, &end, 10);
        if (!*end && end > number && whole < INT64_MAX && whole > INT64_MIN) return ct__int(whole);
        v = ct__float(strtod(number, &end));
        if (*end) return otherwise;
    }
    bool fits = v.type == CT__FLOAT && v.u.f > -9e18 && v.u.f < 9e18;
    return fits ? ct__int((int64_t)v.u.f) : otherwise;
}

static ct__value ct__replace(ct__work *w, ct__value v, const ct__args *a) {
    chat_template_text text = { NULL, 0, 0 }, *out = w->out;
    ct__value old = a->at[0], now = a->at[1];
    int64_t left = a->n > 2 && a->at[2].type == CT__INT && a->at[2].u.i >= 0 ? a->at[2].u.i : INT64_MAX;
    if (!ct__want(w, old, CT__TEXT) || !ct__want(w, now, CT__TEXT)) return old;
    if (!old.n) return ct__fail(w, "an empty text cannot be replaced");
    w->out = &text;
    size_t i = 0;
    for (const char *found; left-- > 0 && (found = ct__search(v, i, old)) != NULL;) {
        size_t at = (size_t)(found - v.u.text);
        ct__write(w, v.u.text + i, at - i);
        ct__write(w, now.u.text, now.n);
        i = at + old.n;
    }
    ct__write(w, v.u.text + i, v.n - i);
    w->out = out;
    return ct__captured(w, &text);
}
static ct__value ct__filter_replace(ct__work *w, ct__value v, const ct__args *a) {
    v = ct__to_text(w, v);
    return w->failed ? v : ct__replace(w, v, a);
}
static ct__value ct__method_replace(ct__work *w, ct__value v, const ct__args *a) {
    return ct__want(w, v, CT__TEXT) ? ct__replace(w, v, a) : v;
}

/* Pairs of a dict, or its keys, or its values. */
static ct__value ct__pairs(ct__work *w, ct__value v, bool keys, bool values) {
    ct__value out = ct__new_list(w);
    if (v.type == CT__UNDEFINED) return out;
    if (!ct__want(w, v, CT__DICT)) return out;
    for (size_t i = 0; i < v.u.dict->keys.n && !w->failed; i++) {
        ct__value pair = keys && values ? ct__new_list(w) : keys ? v.u.dict->keys.at[i] : v.u.dict->values.at[i];
        if (keys && values) ct__push(w, pair.u.list, v.u.dict->keys.at[i]);
        if (keys && values) ct__push(w, pair.u.list, v.u.dict->values.at[i]);
        ct__push(w, out.u.list, pair);
    }
    return out;
}
static ct__value ct__filter_items(ct__work *w, ct__value v, const ct__args *a) {
    return (void)a, ct__pairs(w, v, true, true);
}
static ct__value ct__method_items(ct__work *w, ct__value v, const ct__args *a) {
    return (void)a, ct__want(w, v, CT__DICT) ? ct__pairs(w, v, true, true) : v;
}
static ct__value ct__keys(ct__work *w, ct__value v, const ct__args *a) {
    return (void)a, ct__want(w, v, CT__DICT) ? ct__pairs(w, v, true, false) : v;
}
static ct__value ct__values(ct__work *w, ct__value v, const ct__args *a) {
    return (void)a, ct__want(w, v, CT__DICT) ? ct__pairs(w, v, false, true) : v;
}
static ct__value ct__get(ct__work *w, ct__value v, const ct__args *a) {
    if (!ct__want(w, v, CT__DICT)) return v;
    ct__value *found = a->at[0].type == CT__TEXT ? ct__find(v.u.dict, a->at[0].u.text, a->at[0].n) : NULL;
    return found ? *found : a->n > 1 ? a->at[1] : ct__none();
}

/* By whitespace, at most `left` times. */
static ct__value ct__split_words(ct__work *w, ct__value v, int64_t left) {
    ct__value out = ct__new_list(w);
    for (v = ct__strip(v, NULL, true, false); v.n && !w->failed; v = ct__strip(v, NULL, true, false)) {
        size_t i = 0;
        while (i < v.n && !ct__space(v.u.text + i, v.n - i)) i += ct__step(v.u.text + i, v.n - i);
        if (left-- <= 0) i = v.n;
        ct__push(w, out.u.list, ct__text(v.u.text, i));
        v = ct__text(v.u.text + i, v.n - i);
    }
    return out;
}

static ct__value ct__split(ct__work *w, ct__value v, const ct__args *a) {
    bool spaces = !a->n || a->at[0].type == CT__NONE;
    int64_t left = a->n > 1 && a->at[1].type == CT__INT && a->at[1].u.i >= 0 ? a->at[1].u.i : INT64_MAX;
    if (!ct__want(w, v, CT__TEXT) || (!spaces && !ct__want(w, a->at[0], CT__TEXT))) return v;
    if (spaces) return ct__split_words(w, v, left);
    if (!a->at[0].n) return ct__fail(w, "a text is split by an empty one");
    ct__value out = ct__new_list(w);
    for (const char *found = v.u.text; found && !w->failed;) {
        found = left-- > 0 ? ct__search(v, 0, a->at[0]) : NULL;
        size_t i = found ? (size_t)(found - v.u.text) : v.n;
        ct__push(w, out.u.list, ct__text(v.u.text, i));
        if (found) v = ct__text(found + a->at[0].n, v.n - i - a->at[0].n);
    }
    return out;
}

static ct__value ct__begins(ct__work *w, ct__value v, const ct__args *a) {
    if (!ct__want(w, v, CT__TEXT) || !ct__want(w, a->at[0], CT__TEXT)) return v;
    return ct__bool(v.n >= a->at[0].n && (!a->at[0].n || !memcmp(v.u.text, a->at[0].u.text, a->at[0].n)));
}
static ct__value ct__ends(ct__work *w, ct__value v, const ct__args *a) {
    if (!ct__want(w, v, CT__TEXT) || !ct__want(w, a->at[0], CT__TEXT)) return v;
    size_t n = a->at[0].n;
    return ct__bool(v.n >= n && (!n || !memcmp(v.u.text + v.n - n, a->at[0].u.text, n)));
}
static ct__value ct__where(ct__work *w, ct__value v, const ct__args *a) {
    if (!ct__want(w, v, CT__TEXT) || !ct__want(w, a->at[0], CT__TEXT)) return v;
    const char *found = ct__search(v, 0, a->at[0]);
    return ct__int(found ? (int64_t)ct__points(ct__text(v.u.text, (size_t)(found - v.u.text))) : -1);
}

/* "a.b" of a value */
static ct__value ct__path(ct__work *w, ct__value v, ct__value path) {
    for (size_t i = 0, n; i <= path.n && !w->failed; i += n + 1) {
        for (n = 0; i + n < path.n && path.u.text[i + n] != '.';) n++;
        v = ct__attribute(w, v, path.u.text + i, n);
    }
    return v;
}

static ct__value ct__map(ct__work *w, ct__value v, const ct__args *a) {
    const ct__value *path = ct__named(a, "attribute");
    ct__value out = ct__new_list(w);
    if (!path) return ct__fail(w, "map without attribute= is not read");
    if (!ct__want(w, *path, CT__TEXT)) return out;
    const ct__list *items = ct__items(w, v);
    for (size_t i = 0; i < items->n && !w->failed; i++) ct__push(w, out.u.list, ct__path(w, items->at[i], *path));
    return out;
}

static const ct__row *ct__row_of(const ct__row *rows, const char *p, size_t n);
static const ct__row ct__tests[];

static ct__value ct__chosen(ct__work *w, ct__value v, const ct__args *a, bool wanted) {
    ct__value out = ct__new_list(w);
    const ct__row *test = NULL;
    ct__args rest = { .n = a->n > 2 ? 1 : 0 };
    if (!ct__want(w, a->at[0], CT__TEXT) || (a->n > 1 && !ct__want(w, a->at[1], CT__TEXT))) return out;
    if (a->n > 1) test = ct__row_of(ct__tests, a->at[1].u.text, a->at[1].n);
    if (a->n > 1 && (!test || rest.n < test->least || rest.n > test->most))
        return ct__fail(w, "the test %.*s is not read", a->at[1].n > 40 ? 40 : (int)a->at[1].n, a->at[1].u.text);
    if (rest.n) rest.at[0] = a->at[2];
    const ct__list *items = ct__items(w, v);
    for (size_t i = 0; i < items->n && !w->failed; i++) {
        ct__value x = ct__path(w, items->at[i], a->at[0]);
        bool is = test ? ct__true(test->fn(w, x, &rest)) : ct__true(x);
        if (is == wanted) ct__push(w, out.u.list, items->at[i]);
    }
    return out;
}
static ct__value ct__select(ct__work *w, ct__value v, const ct__args *a) { return ct__chosen(w, v, a, true); }
static ct__value ct__reject(ct__work *w, ct__value v, const ct__args *a) { return ct__chosen(w, v, a, false); }
static ct__value ct__safe(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__to_text(w, v); }

#define CT__IS(name, expression)                                                  \
    static ct__value ct__is_##name(ct__work *w, ct__value v, const ct__args *a) { \
        (void)w;                                                                  \
        (void)a;                                                                  \
        return ct__bool(expression);                                              \
    }
CT__IS(defined, v.type != CT__UNDEFINED)
CT__IS(undefined, v.type == CT__UNDEFINED)
CT__IS(none, v.type == CT__NONE)
CT__IS(bool, v.type == CT__BOOL)
CT__IS(true, v.type == CT__BOOL && v.u.i)
CT__IS(false, v.type == CT__BOOL && !v.u.i)
CT__IS(integer, v.type == CT__INT)
CT__IS(float, v.type == CT__FLOAT)
CT__IS(number, ct__numeric(v))
CT__IS(string, v.type == CT__TEXT)
CT__IS(mapping, v.type == CT__DICT && !v.u.dict->space)
CT__IS(iterable, v.type == CT__TEXT || v.type == CT__LIST || v.type == CT__UNDEFINED || v.type == CT__LOOP ||
                     (v.type == CT__DICT && !v.u.dict->space))
CT__IS(sequence,
       v.type == CT__TEXT || v.type == CT__LIST || v.type == CT__UNDEFINED || (v.type == CT__DICT && !v.u.dict->space))
CT__IS(equal, ct__equal(v, a->at[0], 0))
CT__IS(unequal, !ct__equal(v, a->at[0], 0))
CT__IS(in, ct__contains(w, a->at[0], v))
CT__IS(less, ct__order(w, v, a->at[0]) < 0)
CT__IS(greater, ct__order(w, v, a->at[0]) > 0)
#undef CT__IS
static ct__value ct__remainder(ct__work *w, ct__value v, int64_t by, int64_t is) {
    ct__value r = ct__arithmetic(w, CT__MOD, v, ct__int(by));
    return ct__bool(!w->failed && ct__number(r) == (double)is);
}
static ct__value ct__is_odd(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__remainder(w, v, 2, 1); }
static ct__value ct__is_even(ct__work *w, ct__value v, const ct__args *a) { return (void)a, ct__remainder(w, v, 2, 0); }
static ct__value ct__is_divisible(ct__work *w, ct__value v, const ct__args *a) {
    return ct__want(w, a->at[0], CT__INT) ? ct__remainder(w, v, a->at[0].u.i, 0) : v;
}

static ct__value ct__namespace(ct__work *w, ct__value v, const ct__args *a) {
    ct__value out = ct__new_dict(w);
    (void)v;
    for (size_t i = 0; i < a->n_named && !w->failed; i++)
        ct__put(w, out.u.dict, ct__text(a->names[i]->text, a->names[i]->n), a->named[i]);
    if (!w->failed) out.u.dict->space = true;
    return out;
}
static ct__value ct__make_dict(ct__work *w, ct__value v, const ct__args *a) {
    ct__value out = ct__namespace(w, v, a);
    if (!w->failed) out.u.dict->space = false;
    return out;
}

static ct__value ct__range(ct__work *w, ct__value v, const ct__args *a) {
    (void)v;
    for (size_t i = 0; i < a->n; i++)
        if (!ct__want(w, a->at[i], CT__INT)) return ct__undefined();
    ct__value out = ct__new_list(w);
    int64_t begin = a->n > 1 ? a->at[0].u.i : 0, end = a->at[a->n > 1].u.i, step = a->n > 2 ? a->at[2].u.i : 1;
    if (!step) return ct__fail(w, "a range by steps of 0");
    for (int64_t i = begin; !w->failed && (step > 0 ? i < end : i > end);) {
        if (out.u.list->n == 100000) return ct__fail(w, "a range of more than 100000");
        ct__push(w, out.u.list, ct__int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return out;
}

static ct__value ct__raise(ct__work *w, ct__value v, const ct__args *a) {
    (void)v;
    v = ct__to_text(w, a->at[0]);
    return w->failed ? v : ct__fail(w, "%.*s", v.n > 400 ? 400 : (int)v.n, v.u.text);
}

static ct__value ct__strftime(ct__work *w, ct__value v, const ct__args *a) {
    char text[256], format[128];
    time_t now = time(NULL);
    struct tm local;
    (void)v;
    if (!ct__want(w, a->at[0], CT__TEXT)) return v;
    if (a->at[0].n >= sizeof format) return ct__fail(w, "a format of more than %zu bytes", sizeof format - 1);
    memcpy(format, a->at[0].u.text, a->at[0].n);
    format[a->at[0].n] = 0;
    if (!localtime_r(&now, &local)) return ct__fail(w, "there is no local time");
    size_t n = strftime(text, sizeof text, format, &local);
    return ct__copy(w, text, n);
}

static const ct__row ct__filters[] = {
    { "trim", ct__trim, 0, 1, NULL },
    { "length", ct__length, 0, 0, NULL },
    { "count", ct__length, 0, 0, NULL },
    { "tojson", ct__tojson, 0, 1, "indent" },
    { "upper", ct__upper, 0, 0, NULL },
    { "lower", ct__lower, 0, 0, NULL },
    { "capitalize", ct__capital, 0, 0, NULL },
    { "title", ct__title, 0, 0, NULL },
    { "default", ct__default, 0, 2, "boolean" },
    { "d", ct__default, 0, 2, "boolean" },
    { "first", ct__first, 0, 0, NULL },
    { "last", ct__final, 0, 0, NULL },
    { "list", ct__to_list, 0, 0, NULL },
    { "reverse", ct__reverse, 0, 0, NULL },
    { "join", ct__filter_join, 0, 1, NULL },
    { "string", ct__string, 0, 0, NULL },
    { "int", ct__to_int, 0, 1, NULL },
    { "replace", ct__filter_replace, 2, 2, NULL },
    { "items", ct__filter_items, 0, 0, NULL },
    { "map", ct__map, 0, 0, "attribute" },
    { "selectattr", ct__select, 1, 3, NULL },
    { "rejectattr", ct__reject, 1, 3, NULL },
    { "safe", ct__safe, 0, 0, NULL },
    { NULL, NULL, 0, 0, NULL },
};
static const ct__row ct__methods[] = {
    { "strip", ct__strip_both, 0, 1, NULL },
    { "lstrip", ct__strip_left, 0, 1, NULL },
    { "rstrip", ct__strip_right, 0, 1, NULL },
    { "split", ct__split, 0, 2, NULL },
    { "startswith", ct__begins, 1, 1, NULL },
    { "endswith", ct__ends, 1, 1, NULL },
    { "find", ct__where, 1, 1, NULL },
    { "replace", ct__method_replace, 2, 3, NULL },
    { "join", ct__method_join, 1, 1, NULL },
    { "upper", ct__method_upper, 0, 0, NULL },
    { "lower", ct__method_lower, 0, 0, NULL },
    { "capitalize", ct__method_capital, 0, 0, NULL },
    { "items", ct__method_items, 0, 0, NULL },
    { "keys", ct__keys, 0, 0, NULL },
    { "values", ct__values, 0, 0, NULL },
    { "get", ct__get, 1, 2, NULL },
    { NULL, NULL, 0, 0, NULL },
};
static const ct__row ct__tests[] = {
    { "defined", ct__is_defined, 0, 0, NULL },
    { "undefined", ct__is_undefined, 0, 0, NULL },
    { "none", ct__is_none, 0, 0, NULL },
    { "boolean", ct__is_bool, 0, 0, NULL },
    { "true", ct__is_true, 0, 0, NULL },
    { "false", ct__is_false, 0, 0, NULL },
    { "integer", ct__is_integer, 0, 0, NULL },
    { "float", ct__is_float, 0, 0, NULL },
    { "number", ct__is_number, 0, 0, NULL },
    { "string", ct__is_string, 0, 0, NULL },
    { "mapping", ct__is_mapping, 0, 0, NULL },
    { "iterable", ct__is_iterable, 0, 0, NULL },
    { "sequence", ct__is_sequence, 0, 0, NULL },
    { "equalto", ct__is_equal, 1, 1, NULL },
    { "eq", ct__is_equal, 1, 1, NULL },
    { "==", ct__is_equal, 1, 1, NULL },
    { "ne", ct__is_unequal, 1, 1, NULL },
    { "!=", ct__is_unequal, 1, 1, NULL },
    { "in", ct__is_in, 1, 1, NULL },
    { "lt", ct__is_less, 1, 1, NULL },
    { "gt", ct__is_greater, 1, 1, NULL },
    { "odd", ct__is_odd, 0, 0, NULL },
    { "even", ct__is_even, 0, 0, NULL },
    { "divisibleby", ct__is_divisible, 1, 1, NULL },
    { NULL, NULL, 0, 0, NULL },
};
static const ct__row ct__functions[] = {
    { "namespace", ct__namespace, 0, 0, "*" },    { "dict", ct__make_dict, 0, 0, "*" },
    { "range", ct__range, 1, 3, NULL },           { "raise_exception", ct__raise, 1, 1, NULL },
    { "strftime_now", ct__strftime, 1, 1, NULL }, { NULL, NULL, 0, 0, NULL },
};

static const ct__row *ct__row_of(const ct__row *rows, const char *p, size_t n) {
    for (; rows->name; rows++)
        if (ct__is(p, n, rows->name)) return rows;
    return NULL;
}

/* ---- evaluation ---- */

static const ct__node *ct__at(const ct__work *w, uint32_t i) { return &w->t->nodes[i]; }
static ct__value ct__eval(ct__work *w, uint32_t i);

static ct__value ct__look_up(const ct__work *w, const char *p, size_t n) {
    for (const ct__scope *s = w->scope; s; s = s->above)
        for (size_t i = 0; i < s->n; i++)
            if (s->at[i].n == n && !memcmp(s->at[i].name, p, n)) return s->at[i].v;
    return ct__undefined();
}

static void ct__assign(ct__work *w, const char *p, size_t n, ct__value v) {
    ct__scope *s = w->scope;
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].n == n && !memcmp(s->at[i].name, p, n)) {
            s->at[i].v = v;
            return;
        }
    if (s->n == s->room) {
        size_t room = s->room * 2 + 4;
        ct__variable *more = (ct__variable *)ct__alloc(w, room * sizeof *more);
        if (!more) return;
        if (s->n) memcpy(more, s->at, s->n * sizeof *more);
        s->at = more;
        s->room = room;
    }
    s->at[s->n++] = (ct__variable){ p, n, v };
}

/* Calls what a row stands for with the arguments of a node; the reader has counted them. */
static ct__value ct__call(ct__work *w, const ct__row *row, ct__value self, const ct__node *call) {
    ct__args a;
    a.n = a.n_named = 0;
    for (uint32_t i = call->list; i && !w->failed; i = ct__at(w, i)->next) {
        const ct__node *x = ct__at(w, i);
        if (x->kind == CT__NAMED) {
            a.names[a.n_named] = x;
            a.named[a.n_named++] = ct__eval(w, x->a);
        } else {
            a.at[a.n++] = ct__eval(w, i);
        }
    }
    return w->failed ? ct__undefined() : row->fn(w, self, &a);
}

static ct__value ct__eval_list(ct__work *w, const ct__node *x) {
    ct__value out = x->kind == CT__MAKE_LIST ? ct__new_list(w) : ct__new_dict(w);
    for (uint32_t i = x->list; i && !w->failed; i = ct__at(w, i)->next) {
        ct__value v = ct__eval(w, i);
        if (x->kind == CT__MAKE_LIST) {
            ct__push(w, out.u.list, v);
            continue;
        }
        i = ct__at(w, i)->next;
        ct__value item = ct__eval(w, i);
        if (!w->failed && ct__want(w, v, CT__TEXT)) ct__put(w, out.u.dict, v, item);
    }
    return out;
}

static ct__value ct__eval_slice(ct__work *w, const ct__node *x) {
    ct__value v = ct__eval(w, x->a), bounds[3];
    uint32_t i = x->list;
    for (int k = 0; k < 3; k++, i = ct__at(w, i)->next) bounds[k] = ct__eval(w, i);
    return w->failed ? ct__undefined() : ct__slice(w, v, bounds);
}

static ct__value ct__eval_called(ct__work *w, const ct__node *x) {
    const ct__row *rows = x->kind == CT__FILTER   ? ct__filters
                          : x->kind == CT__METHOD ? ct__methods
                          : x->kind == CT__TEST   ? ct__tests
                                                  : ct__functions;
    ct__value self = x->a ? ct__eval(w, x->a) : ct__undefined();
    return w->failed ? self : ct__call(w, ct__row_of(rows, x->text, x->n), self, x);
}

static ct__value ct__eval(ct__work *w, uint32_t i) {
    const ct__node *x = ct__at(w, i);
    ct__value a, b;
    if (w->failed) return ct__undefined();
    w->line = x->line;
    if (++w->steps > CHAT_TEMPLATE_STEPS) return ct__fail(w, "rendering takes more than %d steps", CHAT_TEMPLATE_STEPS);
    switch (x->kind) {
    case CT__CONSTANT: return x->v;
    case CT__NAME: return ct__look_up(w, x->text, x->n);
    case CT__MAKE_LIST:
    case CT__MAKE_DICT: return ct__eval_list(w, x);
    case CT__SLICE: return ct__eval_slice(w, x);
    case CT__ATTRIBUTE: a = ct__eval(w, x->a); return w->failed ? a : ct__attribute(w, a, x->text, x->n);
    case CT__INDEX:
        a = ct__eval(w, x->a);
        b = ct__eval(w, x->b);
        return w->failed ? a : ct__index(w, a, b);
    case CT__CALL:
    case CT__METHOD:
    case CT__FILTER:
    case CT__TEST: return ct__eval_called(w, x);
    case CT__NOT: return ct__bool(!ct__true(ct__eval(w, x->a)));
    case CT__NEGATIVE:
        a = ct__eval(w, x->a);
        if (a.type == CT__FLOAT) return ct__float(-a.u.f);
        if (ct__numeric(a)) return ct__arithmetic(w, CT__SUB, ct__int(0), a);
        return ct__fail(w, "-%s is not possible", ct__type_names[a.type]);
    case CT__AND: a = ct__eval(w, x->a); return ct__true(a) ? ct__eval(w, x->b) : a;
    case CT__OR: a = ct__eval(w, x->a); return ct__true(a) ? a : ct__eval(w, x->b);
    case CT__CHOICE:
        return ct__true(ct__eval(w, x->b)) ? ct__eval(w, x->a) : x->c ? ct__eval(w, x->c) : ct__undefined();
    case CT__BINARY:
        a = ct__eval(w, x->a);
        b = ct__eval(w, x->b);
        w->line = x->line;
        return w->failed ? a : ct__binary(w, x->op, a, b);
    default: return ct__fail(w, "a defect of this reader");
    }
}

/* ---- statements ---- */

static void ct__run(ct__work *w, uint32_t i);

/* The loop's targets get an item. */
static void ct__unpack(ct__work *w, const ct__node *loop, ct__value item) {
    const ct__node *name = ct__at(w, loop->c);
    size_t n = 0;
    if (!name->next) {
        ct__assign(w, name->text, name->n, item);
        return;
    }
    const ct__list *parts = ct__items(w, item);
    for (uint32_t k = loop->c; k && !w->failed; k = ct__at(w, k)->next, n++)
        if (n < parts->n) ct__assign(w, ct__at(w, k)->text, ct__at(w, k)->n, parts->at[n]);
    if (n != parts->n) ct__fail(w, "%zu parts for %zu names", parts->n, n);
}

/* Items of which the loop's condition holds. */
static const ct__list *ct__loop_items(ct__work *w, const ct__node *x) {
    const ct__list *items = ct__items(w, ct__eval(w, x->a));
    if (!x->b || w->failed) return items;
    ct__value kept = ct__new_list(w);
    for (size_t i = 0; i < items->n && !w->failed; i++) {
        ct__scope scope = { w->scope, NULL, 0, 0 };
        w->scope = &scope;
        ct__unpack(w, x, items->at[i]);
        if (ct__true(ct__eval(w, x->b))) ct__push(w, kept.u.list, items->at[i]);
        w->scope = scope.above;
    }
    return w->failed ? items : kept.u.list;
}

static void ct__run_for(ct__work *w, const ct__node *x) {
    const ct__list *items = ct__loop_items(w, x);
    ct__loop loop = { items, 0 };
    bool whole = false; /* a pass came to its end: only then is there no `else`, as Jinja compiles it */
    if (w->failed) return;
    for (; loop.i < items->n && !w->failed && w->leave != CT__BREAK; loop.i++) {
        ct__scope scope = { w->scope, NULL, 0, 0 };
        ct__loop *here = (ct__loop *)ct__alloc(w, sizeof *here); /* it may be kept in a namespace */
        if (!here) return;
        *here = loop;
        w->leave = 0;
        w->scope = &scope;
        ct__assign(w, "loop", 4, (ct__value){ CT__LOOP, 0, { .loop = here } });
        ct__unpack(w, x, items->at[loop.i]);
        ct__run(w, x->list);
        w->scope = scope.above;
        whole = whole || !w->leave;
    }
    w->leave = 0;
    if (!whole) ct__run(w, x->d);
}

static void ct__run_set(ct__work *w, const ct__node *x) {
    ct__value v = ct__eval(w, x->a);
    if (w->failed) return;
    if (x->v.type != CT__TEXT) {
        ct__assign(w, x->text, x->n, v);
        return;
    }
    ct__value space = ct__look_up(w, x->text, x->n);
    if (space.type != CT__DICT || !space.u.dict->space) ct__fail(w, "%.*s is not a namespace", (int)x->n, x->text);
    else ct__put(w, space.u.dict, x->v, v);
}

/* A body whose names are its own; what it prints is kept when it has a name. */
static void ct__run_block(ct__work *w, const ct__node *x) {
    ct__scope scope = { w->scope, NULL, 0, 0 };
    chat_template_text text = { NULL, 0, 0 }, *out = w->out;
    w->scope = &scope;
    if (x->kind == CT__SET_BLOCK) w->out = &text;
    ct__run(w, x->list);
    w->scope = scope.above;
    w->out = out;
    if (x->kind == CT__SET_BLOCK) ct__assign(w, x->text, x->n, ct__captured(w, &text));
}

/* A list of statements. */
static void ct__run(ct__work *w, uint32_t i) {
    for (; i && !w->failed && !w->leave; i = ct__at(w, i)->next) {
        const ct__node *x = ct__at(w, i);
        w->line = x->line;
        if (++w->steps > CHAT_TEMPLATE_STEPS) ct__fail(w, "rendering takes more than %d steps", CHAT_TEMPLATE_STEPS);
        switch (x->kind) {
        case CT__DATA: ct__write(w, x->text, x->n); break;
        case CT__PRINT: ct__write_value(w, ct__eval(w, x->a)); break;
        case CT__IF: ct__run(w, ct__true(ct__eval(w, x->a)) ? x->list : x->b); break;
        case CT__FOR: ct__run_for(w, x); break;
        case CT__SET: ct__run_set(w, x); break;
        case CT__SET_BLOCK:
        case CT__GROUP: ct__run_block(w, x); break;
        default: w->leave = (int)x->kind; break;
        }
    }
}

/* ---- reading: expressions ---- */

static uint32_t ct__make(ct__work *w, ct__node x) {
    chat_template *t = w->t;
    if (w->failed) return 0;
    if (t->n >= CT__NODES) {
        ct__fail(w, "the template is too large");
        return 0;
    }
    if (t->n == t->room) {
        uint32_t room = t->room * 2 + 256;
        ct__node *more = (ct__node *)realloc(t->nodes, room * sizeof *more);
        if (!more) {
            ct__fail(w, "out of memory");
            return 0;
        }
        t->nodes = more;
        t->room = room;
    }
    if (!t->n) memset(&t->nodes[t->n++], 0, sizeof *t->nodes); /* 0 is none */
    x.line = w->line;
    t->nodes[t->n] = x;
    return t->n++;
}

/* One nesting more; false: too many. */
static bool ct__deeper(ct__work *w) {
    if (w->failed || w->depth++ < CT__DEPTH) return !w->failed;
    ct__fail(w, "it is nested too deep");
    return false;
}

static void ct__skip(ct__work *w) {
    for (size_t k; w->p < w->end && (k = ct__space(w->p, (size_t)(w->end - w->p))) != 0; w->p += k)
        w->line += *w->p == '\n';
}

static bool ct__sees(const ct__work *w, const char *text) {
    size_t n = strlen(text);
    return (size_t)(w->end - w->p) >= n && !memcmp(w->p, text, n);
}

/* Whether the tag ends here. */
static bool ct__ended(ct__work *w) {
    ct__skip(w);
    if (w->p >= w->end) return true;
    bool sign = *w->p == '-' || *w->p == '+';
    if (w->braces) return false;
    w->p += sign;
    bool ended = ct__sees(w, w->tag_end);
    w->p -= sign;
    return ended;
}

/* Takes a sign if it stands here and is not the begin of the tag's end. */
static bool ct__takes(ct__work *w, const char *sign) {
    if (w->failed || ct__ended(w) || !ct__sees(w, sign)) return false;
    w->p += strlen(sign);
    return true;
}

static bool ct__is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool ct__is_digit(char c) { return c >= '0' && c <= '9'; }

/* Bytes of the name here, 0: none. */
static size_t ct__name_here(ct__work *w) {
    size_t n = 0;
    if (ct__ended(w) || !ct__is_letter(*w->p)) return 0;
    while (w->p + n < w->end && (ct__is_letter(w->p[n]) || ct__is_digit(w->p[n]))) n++;
    return n;
}
static bool ct__sees_word(ct__work *w, const char *word) {
    size_t n = ct__name_here(w);
    return n && ct__is(w->p, n, word);
}
static bool ct__takes_word(ct__work *w, const char *word) {
    if (w->failed || !ct__sees_word(w, word)) return false;
    w->p += strlen(word);
    return true;
}

static void ct__unexpected(ct__work *w, const char *wanted) {
    size_t n = (size_t)(w->end - w->p) < 20 ? (size_t)(w->end - w->p) : 20;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)w->p[i] < 0x20) n = i;
    while (n && ((unsigned char)w->p[n] & 0xc0) == 0x80) n--; /* whole characters */
    ct__fail(w, "%s is missing before \"%.*s\"", wanted, (int)n, w->p);
}

static size_t ct__name(ct__work *w, const char **out) {
    size_t n = ct__name_here(w);
    if (!n) ct__unexpected(w, "a name");
    *out = w->p;
    w->p += n;
    return n;
}

static uint32_t ct__expression(ct__work *w);
static uint32_t ct__or(ct__work *w);
static uint32_t ct__unary(ct__work *w, bool filters);

static uint32_t ct__constant(ct__work *w, ct__value v) {
    return ct__make(w, (ct__node){ .kind = CT__CONSTANT, .v = v });
}

/* A list that grows at its end. */
typedef struct ct__chain {
    uint32_t first, last;
    size_t n;
} ct__chain;
static void ct__chain_add(ct__work *w, ct__chain *c, uint32_t i) {
    if (w->failed || !i) return;
    if (c->last) w->t->nodes[c->last].next = i;
    else c->first = i;
    c->last = i;
    c->n++;
}

/* Hexadecimal digits of an escape, as UTF-8. */
static size_t ct__code(ct__work *w, int digits, char *out) {
    uint32_t c = 0;
    for (int i = 0; i < digits; i++, w->p++) {
        int d = w->p < w->end ? json__hex(*w->p) : -1;
        if (d < 0) {
            ct__unexpected(w, "a hexadecimal digit");
            return 0;
        }
        c = c << 4 | (uint32_t)d;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
        ct__fail(w, "an escape that is not a character");
        return 0;
    }
    return json__encode(c, out);
}

/* What a backslash begins, as Python has it; an unknown one stays. */
static size_t ct__escape(ct__work *w, char *out) {
    static const char letters[] = "nrtabfv0'\"\\", values[] = "\n\r\t\a\b\f\v\0'\"\\";
    char c = *w->p++;
    const char *known = c ? strchr(letters, c) : NULL;
    if (ct__is_digit(c) && (c != '0' || (w->p < w->end && ct__is_digit(*w->p)))) {
        ct__fail(w, "escapes in octal are not read");
        return 0;
    }
    if (c == 'x' || c == 'u' || c == 'U') return ct__code(w, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    if (c == '\n') return 0;
    out[0] = known ? values[known - letters] : '\\';
    out[1] = c;
    return known ? 1 : 2;
}

/* Texts in a row are one. */
static uint32_t ct__literal(ct__work *w) {
    char *text = (char *)ct__alloc(w, 16);
    size_t n = 0, room = 16;
    for (char quote; !w->failed && !ct__ended(w) && (*w->p == '"' || *w->p == '\'');) {
        quote = *w->p++;
        while (!w->failed && w->p < w->end && *w->p != quote) {
            if (room - n < 8) {
                char *more = (char *)ct__alloc(w, room *= 2);
                if (more) memcpy(more, text, n);
                text = more ? more : text;
                continue;
            }
            w->line += *w->p == '\n';
            if (*w->p == '\\' && w->p + 1 < w->end) w->p++, n += ct__escape(w, text + n);
            else text[n++] = *w->p++;
        }
        if (w->p >= w->end) ct__unexpected(w, "a closing quote");
        else w->p++;
    }
    return ct__constant(w, ct__text(text, n));
}

static uint32_t ct__numeral(ct__work *w) {
    char digits[64], *end;
    size_t n = 0;
    bool real = false, raised = false;
    for (; w->p < w->end && n + 2 < sizeof digits; w->p++) {
        char c = *w->p, after = w->p + 1 < w->end ? w->p[1] : 0;
        if (c == '_' && ct__is_digit(after)) continue;
        bool sign = (after == '-' || after == '+') && w->p + 2 < w->end && ct__is_digit(w->p[2]);
        bool point = c == '.' && !real && ct__is_digit(after);
        bool power = (c == 'e' || c == 'E') && !raised && (sign || ct__is_digit(after));
        if (!ct__is_digit(c) && !point && !power) break;
        raised = raised || power;
        real = real || point || power;
        digits[n++] = c;
        if (power && sign) digits[n++] = *++w->p;
    }
    digits[n] = 0;
    if (w->p < w->end && (ct__is_letter(*w->p) || ct__is_digit(*w->p))) ct__unexpected(w, "an operator");
    errno = 0;
    ct__value v = real ? ct__float(strtod(digits, &end)) : ct__int(strtoll(digits, &end, 10));
    if (errno || *end) ct__fail(w, "the number %s is not read", digits);
    if (!real && n > 1 && digits[0] == '0') ct__fail(w, "the number %s is not read", digits);
    return ct__constant(w, v);
}

/* Expressions up to `close`, with `key: value` pairs in a dict. */
static uint32_t ct__items_of(ct__work *w, const char *close, bool dict) {
    ct__chain c = { 0, 0, 0 };
    w->braces++;
    while (!ct__takes(w, close) && !w->failed) {
        ct__chain_add(w, &c, ct__expression(w));
        if (dict && !ct__takes(w, ":")) ct__unexpected(w, "a colon");
        if (dict) ct__chain_add(w, &c, ct__expression(w));
        if (ct__takes(w, ",")) continue;
        if (!w->failed && !ct__sees(w, close)) ct__unexpected(w, "a comma");
    }
    w->braces--;
    return ct__make(w, (ct__node){ .kind = dict ? CT__MAKE_DICT : CT__MAKE_LIST, .list = c.first });
}

/* (x), or a tuple, which is a list here. */
static uint32_t ct__parentheses(ct__work *w) {
    ct__chain c = { 0, 0, 0 };
    bool comma = false;
    w->braces++;
    while (!ct__takes(w, ")") && !w->failed) {
        ct__chain_add(w, &c, ct__expression(w));
        bool more = ct__takes(w, ",");
        comma = comma || more;
        if (!more && !w->failed && !ct__sees(w, ")")) ct__unexpected(w, "a closing parenthesis");
    }
    w->braces--;
    return c.n == 1 && !comma ? c.first : ct__make(w, (ct__node){ .kind = CT__MAKE_LIST, .list = c.first });
}

static uint32_t ct__named_constant(ct__work *w) {
    static const struct {
        const char *name;
        ct__type type;
        int64_t i;
    } all[] = {
        { "true", CT__BOOL, 1 },  { "True", CT__BOOL, 1 }, { "false", CT__BOOL, 0 },
        { "False", CT__BOOL, 0 }, { "none", CT__NONE, 0 }, { "None", CT__NONE, 0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (ct__takes_word(w, all[i].name)) return ct__constant(w, (ct__value){ all[i].type, 0, { .i = all[i].i } });
    return 0;
}

static uint32_t ct__primary(ct__work *w) {
    static const char *const words[] = { "and", "or", "not", "if", "else", "elif", "in", "is", "for" };
    if (w->failed || ct__ended(w)) {
        ct__unexpected(w, "an expression");
        return 0;
    }
    if (*w->p == '"' || *w->p == '\'') return ct__literal(w);
    if (ct__is_digit(*w->p)) return ct__numeral(w);
    if (ct__takes(w, "(")) return ct__parentheses(w);
    if (ct__takes(w, "[")) return ct__items_of(w, "]", false);
    if (ct__takes(w, "{")) return ct__items_of(w, "}", true);
    uint32_t constant = ct__named_constant(w);
    if (constant) return constant;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (ct__sees_word(w, words[i])) ct__unexpected(w, "an expression");
    const char *name;
    size_t n = w->failed ? 0 : ct__name(w, &name);
    return n ? ct__make(w, (ct__node){ .kind = CT__NAME, .text = name, .n = n }) : 0;
}

/* Arguments up to ')', counted against what the row takes. */
static void ct__arguments(ct__work *w, ct__node *x, const ct__row *row) {
    ct__chain c = { 0, 0, 0 };
    size_t n = 0;
    w->braces++;
    while (!ct__takes(w, ")") && !w->failed) {
        size_t k = ct__name_here(w);
        const char *name = w->p, *after = w->p + k;
        while (after < w->end && *after == ' ') after++;
        bool named = k && after + 1 < w->end && after[0] == '=' && after[1] != '=';
        if (named) w->p = after + 1;
        if (named && (!row->named || (strcmp(row->named, "*") && !ct__is(name, k, row->named))))
            ct__fail(w, "%s with %.*s= is not read", row->name, k > 40 ? 40 : (int)k, name);
        uint32_t v = ct__expression(w);
        if (named) v = ct__make(w, (ct__node){ .kind = CT__NAMED, .text = name, .n = k, .a = v });
        ct__chain_add(w, &c, v);
        n += !named;
        if (!ct__takes(w, ",") && !w->failed && !ct__sees(w, ")")) ct__unexpected(w, "a comma");
    }
    w->braces--;
    if (!w->failed && (n < row->least || n > row->most || c.n > CT__ARGS))
        ct__fail(w, "%s with %zu arguments is not read", row->name, c.n);
    x->list = c.first;
}

/* A call of something that has a row in a table. */
static uint32_t ct__called(ct__work *w, ct__kind kind, const ct__row *rows, const char *what, uint32_t self,
                           const char *name, size_t n, bool arguments) {
    const ct__row *row = ct__row_of(rows, name, n);
    ct__node x = { .kind = kind, .a = self, .text = name, .n = n };
    if (!row) ct__fail(w, "%s %.*s is not read", what, n > 60 ? 60 : (int)n, name);
    else if (arguments) ct__arguments(w, &x, row);
    else if (row->least) ct__fail(w, "%s %s without arguments is not read", what, row->name);
    return ct__make(w, x);
}

/* [i], [a:b], [a:b:c] */
static uint32_t ct__subscript(ct__work *w, uint32_t of) {
    ct__chain c = { 0, 0, 0 };
    bool slice = false;
    w->braces++;
    for (int k = 0; k < 3 && !w->failed; k++) {
        bool empty = ct__ended(w) || *w->p == ':' || *w->p == ']';
        ct__chain_add(w, &c, empty ? ct__constant(w, ct__none()) : ct__expression(w));
        if (empty && !slice && !ct__sees(w, ":")) ct__unexpected(w, "an index");
        if (!ct__takes(w, ":")) break;
        slice = true;
        if (k == 2) ct__unexpected(w, "a closing bracket");
    }
    while (slice && c.n < 3 && !w->failed) ct__chain_add(w, &c, ct__constant(w, ct__none()));
    if (!ct__takes(w, "]")) ct__unexpected(w, "a closing bracket");
    w->braces--;
    return slice ? ct__make(w, (ct__node){ .kind = CT__SLICE, .a = of, .list = c.first })
                 : ct__make(w, (ct__node){ .kind = CT__INDEX, .a = of, .b = c.first });
}

static uint32_t ct__postfix(ct__work *w, uint32_t x) {
    for (int links = 0; !w->failed; links++) {
        const char *name;
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        if (ct__takes(w, "[")) {
            x = ct__subscript(w, x);
        } else if (ct__takes(w, ".")) {
            size_t n = ct__name(w, &name);
            if (ct__takes(w, "(")) x = ct__called(w, CT__METHOD, ct__methods, "the method", x, name, n, true);
            else x = ct__make(w, (ct__node){ .kind = CT__ATTRIBUTE, .a = x, .text = name, .n = n });
        } else if (ct__takes(w, "(")) {
            ct__node f = w->t->nodes[x];
            if (f.kind != CT__NAME) ct__unexpected(w, "an operator");
            else x = ct__called(w, CT__CALL, ct__functions, "the function", 0, f.text, f.n, true);
        } else {
            break;
        }
    }
    return x;
}

/* Whether a bare argument of a test begins here: as Jinja sees it, any name but three does. */
static bool ct__sees_argument(ct__work *w) {
    if (ct__ended(w)) return false;
    if (ct__name_here(w)) return !ct__sees_word(w, "else") && !ct__sees_word(w, "or") && !ct__sees_word(w, "and");
    return ct__is_digit(*w->p) || strchr("\"'[{", *w->p) != NULL;
}

/* `is NAME`, with arguments in parentheses or one bare. */
static uint32_t ct__test(ct__work *w, uint32_t x) {
    const char *name;
    bool inverse = ct__takes_word(w, "not");
    size_t n = ct__name(w, &name);
    const ct__row *row = n ? ct__row_of(ct__tests, name, n) : NULL;
    bool open = row && ct__takes(w, "("), bare = row && !open && ct__sees_argument(w);
    if (bare && !row->least) ct__unexpected(w, "an operator");
    if (bare && !w->failed) {
        ct__node y = { .kind = CT__TEST, .a = x, .text = name, .n = n };
        y.list = ct__postfix(w, ct__primary(w));
        x = ct__make(w, y);
    } else if (!w->failed) {
        x = ct__called(w, CT__TEST, ct__tests, "the test", x, name, n, open);
    }
    return inverse ? ct__make(w, (ct__node){ .kind = CT__NOT, .a = x }) : x;
}

static uint32_t ct__filtered(ct__work *w, uint32_t x) {
    for (int links = 0; !w->failed; links++) {
        const char *name;
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        if (ct__takes(w, "|")) {
            size_t n = ct__name(w, &name);
            bool open = ct__takes(w, "(");
            x = ct__called(w, CT__FILTER, ct__filters, "the filter", x, name, n, open);
        } else if (ct__takes_word(w, "is")) {
            x = ct__test(w, x);
        } else {
            break;
        }
    }
    return x;
}

static uint32_t ct__unary(ct__work *w, bool filters) {
    uint32_t x = 0;
    if (!ct__deeper(w)) return 0;
    if (ct__takes(w, "-")) x = ct__make(w, (ct__node){ .kind = CT__NEGATIVE, .a = ct__unary(w, false) });
    else x = ct__postfix(w, ct__primary(w));
    w->depth--;
    return filters ? ct__filtered(w, x) : x;
}

/* Levels of operators, the tightest first; all join from the left. */
static const struct {
    const char *sign;
    ct__op op;
    int level;
} ct__signs[] = {
    { "**", CT__POW, 0 }, { "//", CT__FLOOR_DIV, 1 }, { "*", CT__MUL, 1 }, { "/", CT__DIV, 1 }, { "%", CT__MOD, 1 },
    { "~", CT__JOIN, 2 }, { "+", CT__ADD, 3 },        { "-", CT__SUB, 3 }, { "==", CT__EQ, 4 }, { "!=", CT__NE, 4 },
    { "<=", CT__LE, 4 },  { ">=", CT__GE, 4 },        { "<", CT__LT, 4 },  { ">", CT__GT, 4 },
};

static bool ct__operator(ct__work *w, int level, ct__op *out) {
    for (size_t i = 0; i < sizeof ct__signs / sizeof *ct__signs; i++) {
        if (ct__signs[i].level != level || !ct__takes(w, ct__signs[i].sign)) continue;
        *out = ct__signs[i].op;
        if (*out == CT__MUL && ct__sees(w, "*")) { /* "**" belongs to a tighter level */
            w->p--;
            return false;
        }
        return true;
    }
    if (level != 4) return false;
    if (ct__takes_word(w, "in")) return *out = CT__IN, true;
    const char *back = w->p;
    if (ct__takes_word(w, "not")) {
        if (ct__takes_word(w, "in")) return *out = CT__NOT_IN, true;
        w->p = back;
    }
    return false;
}

static uint32_t ct__operators(ct__work *w, int level) {
    uint32_t x = level ? ct__operators(w, level - 1) : ct__unary(w, true);
    ct__op op = CT__EQ;
    for (int links = 0; !w->failed && ct__operator(w, level, &op); links++) {
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        if (level == 4 && links) ct__fail(w, "a chain of comparisons is not read");
        uint32_t y = level ? ct__operators(w, level - 1) : ct__unary(w, true);
        x = ct__make(w, (ct__node){ .kind = CT__BINARY, .op = op, .a = x, .b = y });
    }
    return x;
}

static uint32_t ct__not(ct__work *w) {
    uint32_t x = 0;
    if (!ct__deeper(w)) return 0;
    if (ct__takes_word(w, "not")) x = ct__make(w, (ct__node){ .kind = CT__NOT, .a = ct__not(w) });
    else x = ct__operators(w, 4);
    w->depth--;
    return x;
}

static uint32_t ct__and(ct__work *w) {
    uint32_t x = ct__not(w);
    for (int links = 0; ct__takes_word(w, "and"); links++) {
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        x = ct__make(w, (ct__node){ .kind = CT__AND, .a = x, .b = ct__not(w) });
    }
    return x;
}

static uint32_t ct__or(ct__work *w) {
    uint32_t x = ct__and(w);
    for (int links = 0; ct__takes_word(w, "or"); links++) {
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        x = ct__make(w, (ct__node){ .kind = CT__OR, .a = x, .b = ct__and(w) });
    }
    return x;
}

static uint32_t ct__expression(ct__work *w) {
    if (!ct__deeper(w)) return 0;
    uint32_t x = ct__or(w);
    for (int links = 0; ct__takes_word(w, "if"); links++) {
        if (links == CT__DEPTH) ct__fail(w, "it is nested too deep");
        ct__node y = { .kind = CT__CHOICE, .a = x };
        y.b = ct__or(w);
        if (ct__takes_word(w, "else")) y.c = ct__expression(w);
        x = ct__make(w, y);
    }
    w->depth--;
    return x;
}

/* ---- reading: tags ---- */

/* Behind the tag's end, with the whitespace that goes with it. */
static void ct__close_tag(ct__work *w) {
    if (w->failed) return;
    if (!ct__ended(w) || w->p >= w->end) {
        ct__unexpected(w, "the end of the tag");
        return;
    }
    char sign = *w->p == '-' || *w->p == '+' ? *w->p++ : 0;
    w->p += 2;
    if (sign == '-') ct__skip(w);
    else if (!sign && w->tag_end[0] != '}' && w->p < w->end && *w->p == '\n') w->p++, w->line++;
    w->line_begins = w->p[-1] == '\n';
    w->tag_end = NULL;
}

/* Text up to the next tag goes to the list; the kind of tag ('{', '%'), 0 at the end. Comments are text that is not
   there. */
static char ct__next_tag(ct__work *w, ct__chain *into) {
    for (;;) {
        const char *begin = w->p, *at = begin;
        while (at < w->end && !(at + 1 < w->end && at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#')))
            at++;
        char kind = 0, sign = 0;
        if (at < w->end) kind = at[1], sign = at + 2 < w->end && (at[2] == '-' || at[2] == '+') ? at[2] : 0;
        ct__value text = ct__text(begin, (size_t)(at - begin));
        if (sign == '-') text = ct__strip(text, NULL, false, true);
        if (!sign && (kind == '%' || kind == '#')) { /* a line of its own loses its indentation */
            size_t line = text.n, k = 0;
            while (line && text.u.text[line - 1] != '\n') line--;
            for (size_t i = line; i < text.n && (k = ct__space(text.u.text + i, text.n - i)) != 0;) i += k;
            if ((line || w->line_begins) && (line == text.n || k)) text.n = line;
        }
        if (text.n)
            ct__chain_add(w, into, ct__make(w, (ct__node){ .kind = CT__DATA, .text = text.u.text, .n = text.n }));
        for (; begin < at; begin++) w->line += *begin == '\n';
        w->p = at + (kind ? 2 : 0) + (sign != 0);
        w->tag_end = kind == '{' ? "}}" : "%}";
        if (kind != '#' || w->failed) return w->failed ? 0 : kind;
        while (w->p < w->end && !ct__sees(w, "#}")) w->line += *w->p++ == '\n';
        if (w->p >= w->end) ct__fail(w, "a comment does not end");
        bool strips = w->p > at + 2 + (sign != 0) && w->p[-1] == '-',
             stays = w->p > at + 2 + (sign != 0) && w->p[-1] == '+';
        w->p += 2;
        if (w->failed) return 0;
        if (strips) ct__skip(w);
        else if (!stays && w->p < w->end && *w->p == '\n') w->p++, w->line++;
        w->line_begins = w->p[-1] == '\n';
    }
}

static uint32_t ct__body(ct__work *w, const char *const *ends, int *out_end);

/* {% if a %} … {% elif b %} … {% else %} … {% endif %}, behind the `if`. */
static uint32_t ct__read_if(ct__work *w) {
    static const char *const ends[] = { "elif", "else", "endif", NULL }, *const last[] = { "endif", NULL };
    int end = 0;
    ct__node x = { .kind = CT__IF };
    if (!ct__deeper(w)) return 0;
    x.a = ct__or(w);
    ct__close_tag(w);
    x.list = ct__body(w, ends, &end);
    if (end == 0) x.b = ct__read_if(w);
    else ct__close_tag(w);
    if (end == 1) x.b = ct__body(w, last, &end), ct__close_tag(w);
    w->depth--;
    return ct__make(w, x);
}

static uint32_t ct__read_for(ct__work *w) {
    static const char *const ends[] = { "else", "endfor", NULL }, *const last[] = { "endfor", NULL };
    int end = 0;
    ct__chain names = { 0, 0, 0 };
    ct__node x = { .kind = CT__FOR };
    if (!ct__deeper(w)) return 0;
    bool open = ct__takes(w, "(");
    do {
        const char *name;
        size_t n = ct__name(w, &name);
        ct__chain_add(w, &names, ct__make(w, (ct__node){ .kind = CT__NAME, .text = name, .n = n }));
    } while (ct__takes(w, ","));
    if (open && !ct__takes(w, ")")) ct__unexpected(w, "a closing parenthesis");
    if (!ct__takes_word(w, "in")) ct__unexpected(w, "\"in\"");
    x.c = names.first;
    x.a = ct__or(w);
    if (ct__takes_word(w, "if")) x.b = ct__expression(w);
    if (ct__sees_word(w, "recursive")) ct__fail(w, "a recursive loop is not read");
    ct__close_tag(w);
    w->loops++;
    x.list = ct__body(w, ends, &end);
    w->loops--;
    ct__close_tag(w);
    if (end == 0) x.d = ct__body(w, last, &end), ct__close_tag(w);
    w->depth--;
    return ct__make(w, x);
}

static uint32_t ct__read_set(ct__work *w) {
    static const char *const last[] = { "endset", NULL };
    int end = 0;
    const char *name, *attribute;
    ct__node x = { .kind = CT__SET };
    x.n = ct__name(w, &name);
    x.text = name;
    if (ct__takes(w, ".")) {
        size_t n = ct__name(w, &attribute);
        x.v = ct__text(attribute, n);
    }
    if (ct__takes(w, "=")) {
        x.a = ct__expression(w);
        if (ct__sees(w, ",")) ct__fail(w, "a tuple without parentheses is not read");
        ct__close_tag(w);
        return ct__make(w, x);
    }
    if (x.v.type == CT__TEXT) ct__unexpected(w, "\"=\"");
    ct__close_tag(w);
    if (!ct__deeper(w)) return 0;
    x.kind = CT__SET_BLOCK;
    x.list = ct__body(w, last, &end);
    ct__close_tag(w);
    w->depth--;
    return ct__make(w, x);
}

static uint32_t ct__statement(ct__work *w, const char *name, size_t n) {
    static const char *const last[] = { "endgeneration", NULL };
    int end = 0;
    if (ct__is(name, n, "if")) return ct__read_if(w);
    if (ct__is(name, n, "for")) return ct__read_for(w);
    if (ct__is(name, n, "set")) return ct__read_set(w);
    bool leaves = ct__is(name, n, "break") || ct__is(name, n, "continue");
    if (leaves || ct__is(name, n, "generation")) {
        ct__node x = { .kind = leaves ? *name == 'b' ? CT__BREAK : CT__CONTINUE : CT__GROUP };
        int loops = w->loops;
        if (leaves && !loops) ct__fail(w, "%.*s outside of a loop", (int)n, name);
        ct__close_tag(w);
        if (leaves || !ct__deeper(w)) return ct__make(w, x);
        w->loops = 0;
        x.list = ct__body(w, last, &end);
        ct__close_tag(w);
        w->loops = loops;
        w->depth--;
        return ct__make(w, x);
    }
    ct__fail(w, "the tag %.*s is not read", n > 60 ? 60 : (int)n, name);
    return 0;
}

/* Statements up to a tag that is one of `ends`, whose name is taken; NULL: up to the end. */
static uint32_t ct__body(ct__work *w, const char *const *ends, int *out_end) {
    ct__chain c = { 0, 0, 0 };
    while (!w->failed) {
        char kind = ct__next_tag(w, &c);
        const char *name;
        if (!kind && ends) ct__fail(w, "the end is reached, and \"%s\" is missing", ends[0]);
        if (!kind || w->failed) break;
        if (kind == '{') {
            uint32_t a = ct__expression(w);
            ct__close_tag(w);
            ct__chain_add(w, &c, ct__make(w, (ct__node){ .kind = CT__PRINT, .a = a }));
            continue;
        }
        size_t n = ct__name(w, &name);
        for (int i = 0; ends && ends[i]; i++)
            if (n && ct__is(name, n, ends[i])) {
                *out_end = i;
                return c.first;
            }
        if (!w->failed) ct__chain_add(w, &c, ct__statement(w, name, n));
    }
    return c.first;
}

/* ---- opening and rendering ---- */

static bool ct__is_utf8(const char *p, size_t n) {
    for (size_t i = 0, k; i < n; i += k)
        if (!(k = json_utf8(p + i, n - i))) return false;
    return true;
}

/* Line ends become "\n", and the last one is dropped. */
static bool ct__take_source(chat_template *t, const char *text, size_t size) {
    t->source = (char *)malloc(size + 1);
    if (!t->source) return false;
    for (size_t i = 0; i < size; i++) {
        bool pair = text[i] == '\r' && i + 1 < size && text[i + 1] == '\n';
        if (!pair) t->source[t->size++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (t->size && t->source[t->size - 1] == '\n') t->size--;
    t->source[t->size] = 0;
    return true;
}

chat_template *chat_template_open(const char *text, size_t size, char error[CHAT_TEMPLATE_ERROR]) {
    chat_template *t = (chat_template *)calloc(1, sizeof *t);
    ct__work w;
    memset(&w, 0, sizeof w);
    error[0] = 0;
    w.error = error;
    w.line = 1;
    if (t && (size > CT__SOURCE || !ct__is_utf8(text, size))) ct__fail(&w, "the template is too large, or no UTF-8");
    else if (!t || !ct__take_source(t, text, size)) ct__fail(&w, "out of memory");
    if (!w.failed) {
        w.t = t;
        w.arena = &t->arena;
        w.p = t->source;
        w.end = t->source + t->size;
        w.line_begins = true;
        t->root = ct__body(&w, NULL, NULL);
    }
    if (!w.failed) return t;
    chat_template_close(t);
    return NULL;
}

void chat_template_close(chat_template *t) {
    if (!t) return;
    ct__arena_free(&t->arena);
    free(t->nodes);
    free(t->source);
    free(t);
}

bool chat_template_render(const chat_template *t, json_value variables, chat_template_text *out,
                          char error[CHAT_TEMPLATE_ERROR]) {
    ct__work w;
    ct__arena arena = { NULL, 0 };
    ct__scope globals = { NULL, NULL, 0, 0 };
    json_value key, value;
    memset(&w, 0, sizeof w);
    error[0] = 0;
    w.t = (chat_template *)(uintptr_t)t; /* not altered */
    w.error = error;
    w.arena = &arena;
    w.scope = &globals;
    w.out = out;
    w.line = 1;
    ct__write(&w, "", 0);
    if (json_kind_of(variables) != JSON_OBJECT) ct__fail(&w, "the variables are not an object");
    for (json_iter i = json_begin(variables); !w.failed && json_next(&i, &key, &value);) {
        ct__value name = ct__from_json(&w, key), v = ct__from_json(&w, value);
        if (!w.failed) ct__assign(&w, name.u.text, name.n, v);
    }
    if (t->n) ct__run(&w, t->root);
    ct__arena_free(&arena);
    return !w.failed;
}

void chat_template_text_free(chat_template_text *out) {
    free(out->text);
    *out = (chat_template_text){ NULL, 0, 0 };
}
#endif
