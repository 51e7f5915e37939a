/* json.h - a strict reader of JSON (RFC 8259), and the little that writing it needs.

   One C file of the program:   #define JSON_IMPLEMENTATION
                                #include "json.h"
   Elsewhere:                   #include "json.h"          C99 and C++11; needs the C library alone.

       json_value root, key, value;
       json_error error;
       if (!json_check(text, size, NULL, &root, &error)) printf("byte %zu: %s\n", error.offset, error.text);
       for (json_iter i = json_begin(root); json_next(&i, &key, &value);) ...
       int64_t layers;
       if (!json_get_i64(json_get(root, "num_hidden_layers"), &layers)) ...

   json_check reads the whole text once: grammar, UTF-8, escapes, limits, names that stand twice in one object. A
   json_value is a place in a text that has passed, so that nothing is copied and nothing is freed; the text must stay.
   Every function takes a value of any kind, also the one of a missing name, and answers false, or a missing value, when
   it is not what it should be.

   Does not do: comments, trailing commas, NaN, several texts in a row, numbers that a double or 64 bits cannot hold. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct json_value {
    const char *text;
    size_t size;
} json_value; /* bytes of one value; text is NULL: missing */

typedef enum json_kind {
    JSON_MISSING,
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} json_kind;

typedef struct json_limits { /* zero: the default */
    size_t bytes;            /* of the text; 1 GiB */
    uint32_t depth;          /* of arrays and objects within each other; 64, at most 512 */
    uint32_t number_bytes;   /* characters of one number; 64, at most 128 */
    uint64_t values;         /* values and names together; 2^28 */
    bool repeated_names;     /* names may repeat within one object; then nothing is allocated */
} json_limits;

typedef struct json_error {
    size_t offset;  /* bytes from the start of the text */
    char text[120]; /* one sentence */
} json_error;

/* True when all of the text is one value. Takes 16 bytes for each name of the objects that are open at once, and frees
 * them. */
bool json_check(const char *text, size_t size, const json_limits *limits, json_value *out_root, json_error *out_error);

json_kind json_kind_of(json_value value);
/* The value of a name; missing when it is not there or `object` is none. Reads the object from its start. */
json_value json_get(json_value object, const char *name);
/* Members of an object in their order, or elements of an array with a missing key; of anything else none. */
typedef struct json_iter {
    const char *at, *end;
    bool object;
} json_iter;
json_iter json_begin(json_value container);
bool json_next(json_iter *iter, json_value *out_key, json_value *out_value);
size_t json_count(json_value container);

/* The numbers: false when the value is none of that type or lies outside. 1.0 and 1e3 are no integers. */
bool json_get_bool(json_value value, bool *out);
bool json_get_i64(json_value value, int64_t *out);
bool json_get_u64(json_value value, uint64_t *out);
bool json_get_double(json_value value, double *out);
/* Writes the string without its escapes and a 0 behind it; false when it is none or does not fit. `out_size` (may be
   NULL) gets its length without that 0; at most value.size - 2. A string may hold 0 bytes. */
bool json_get_string(json_value value, char *out, size_t capacity, size_t *out_size);
bool json_is(json_value value, const char *text); /* it is the string `text` */

/* Writes `size` bytes of UTF-8 as a string with its quotes; gives the bytes that it takes, more than `capacity` if it
   did not fit. Bytes that are no UTF-8 become U+FFFD. */
size_t json_quote(const char *text, size_t size, char *out, size_t capacity);
/* Length in bytes of the character at `text`, 0 when it is not well-formed UTF-8 (overlong, surrogate, above U+10FFFF,
 * cut). */
size_t json_utf8(const char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif

#if defined(JSON_IMPLEMENTATION) && !defined(JSON_IMPLEMENTED)
#define JSON_IMPLEMENTED
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON__DEPTH = 512, JSON__NUMBER = 128 };

/* ---- characters ---- */

size_t json_utf8(const char *text, size_t size) {
    const unsigned char *s = (const unsigned char *)text;
    if (!size) return 0;
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > size) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* overlong */
    if (s[0] == 0xed && s[1] > 0x9f) return 0; /* a surrogate */
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return n;
}

static int json__hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The number in four hexadecimal digits, -1 when they are none. */
static int json__hex4(const char *p, const char *end) {
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = json__hex(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

static size_t json__encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char head[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(head[n] | c);
    return n;
}

/* One character or escape of a string at *p: writes its bytes, moves *p behind it, gives their number; 0 when it is not
 * valid. */
static size_t json__character(const char **p, const char *end, char out[4]) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *s = *p;
    if (*s != '\\') {
        size_t n = json_utf8(s, (size_t)(end - s));
        memcpy(out, s, n);
        *p += n;
        return (unsigned char)*s < 0x20 ? 0 : n;
    }
    if (end - s < 2) return 0;
    const char *name = s[1] ? strchr(names, s[1]) : NULL;
    if (name) {
        out[0] = meant[name - names];
        *p += 2;
        return 1;
    }
    int high = s[1] == 'u' ? json__hex4(s + 2, end) : -1;
    if (high < 0 || (high >= 0xdc00 && high < 0xe000)) return 0;
    *p += 6;
    if (high < 0xd800 || high >= 0xe000) return json__encode((uint32_t)high, out);
    s = *p;
    int low = end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? json__hex4(s + 2, end) : -1;
    if (low < 0xdc00 || low >= 0xe000) return 0;
    *p += 6;
    return json__encode(0x10000u + (((uint32_t)high - 0xd800u) << 10) + ((uint32_t)low - 0xdc00u), out);
}

/* ---- the check ---- */

typedef struct json__name {
    size_t offset;
    uint32_t hash;
} json__name;

typedef struct json__checker {
    const char *text, *end, *at;
    json_limits limits;
    json_error *error;
    uint64_t values;
    uint32_t depth;
    unsigned char is_object[JSON__DEPTH];
    size_t first_name[JSON__DEPTH]; /* of the object that is open at this depth */
    json__name *names;
    size_t n_names, room;
} json__checker;

static bool json__fail(json__checker *c, const char *at, const char *why) {
    c->error->offset = (size_t)(at - c->text);
    snprintf(c->error->text, sizeof c->error->text, "%s", why);
    return false;
}

static void json__space(json__checker *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

/* A string, with the hash (FNV-1a) of what it means. */
static bool json__string(json__checker *c, uint32_t *out_hash) {
    const char *start = c->at++;
    uint32_t h = 2166136261u;
    char bytes[4];
    while (c->at < c->end && *c->at != '"') {
        const char *place = c->at;
        size_t n = json__character(&c->at, c->end, bytes);
        if (!n)
            return json__fail(c, place, "a string holds a control character, a bad escape or bytes that are not UTF-8");
        for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    }
    if (c->at >= c->end) return json__fail(c, start, "a string does not end");
    c->at++;
    *out_hash = h;
    return true;
}

static bool json__digits(json__checker *c) {
    const char *start = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return c->at > start;
}

static bool json__number(json__checker *c) {
    const char *start = c->at;
    if (*c->at == '-') c->at++;
    const char *whole = c->at;
    if (!json__digits(c) || (*whole == '0' && c->at - whole > 1))
        return json__fail(c, start, "a number is not written as JSON has it");
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!json__digits(c)) return json__fail(c, start, "a number has no digit behind its point");
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        if (!json__digits(c)) return json__fail(c, start, "a number has no digit in its exponent");
    }
    if ((size_t)(c->at - start) > c->limits.number_bytes)
        return json__fail(c, start, "a number has more characters than allowed");
    return true;
}

static bool json__word(json__checker *c, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n))
        return json__fail(c, c->at, "a JSON value is expected here");
    c->at += n;
    return true;
}

static bool json__note_name(json__checker *c, const char *place, uint32_t hash) {
    if (c->limits.repeated_names) return true;
    if (c->n_names == c->room) {
        size_t room = c->room ? c->room + c->room / 2 : 64;
        json__name *more = (json__name *)realloc(c->names, room * sizeof *more);
        if (!more) return json__fail(c, place, "out of memory");
        c->names = more;
        c->room = room;
    }
    c->names[c->n_names++] = (json__name){ (size_t)(place - c->text), hash };
    return true;
}

static int json__by_hash(const void *a, const void *b) {
    const json__name *x = (const json__name *)a, *y = (const json__name *)b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Two strings of the text mean the same. */
static bool json__same(const json__checker *c, size_t a, size_t b) {
    const char *p = c->text + a + 1, *q = c->text + b + 1;
    char x[4], y[4];
    while (*p != '"' && *q != '"') {
        size_t n = json__character(&p, c->end, x), m = json__character(&q, c->end, y);
        if (n != m || memcmp(x, y, n)) return false;
    }
    return *p == *q;
}

/* At the end of an object: none of its names stands twice. Equal hashes of different names are rare, but a text may be
   made of them: then no more than a few are compared with each other. */
static bool json__names_differ(json__checker *c, size_t first) {
    size_t n = c->n_names - first;
    c->n_names = first;
    if (n < 2) return true;
    json__name *names = c->names + first;
    qsort(names, n, sizeof *names, json__by_hash);
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && names[j - 1].hash == names[i].hash; j--) {
            if (json__same(c, names[j - 1].offset, names[i].offset))
                return json__fail(c, c->text + names[i].offset, "a name stands twice in one object");
            if (i - j >= 64)
                return json__fail(c, c->text + names[i].offset, "too many names of one object have equal hashes");
        }
    return true;
}

static bool json__open(json__checker *c, bool object) {
    if (c->depth >= c->limits.depth)
        return json__fail(c, c->at, "arrays and objects lie deeper in each other than allowed");
    c->is_object[c->depth] = object;
    c->first_name[c->depth++] = c->n_names;
    c->at++;
    return true;
}

/* A name and its colon. */
static bool json__key(json__checker *c) {
    const char *place = c->at;
    uint32_t hash = 0;
    if (c->at >= c->end || *c->at != '"') return json__fail(c, c->at, "the name of a member is missing");
    if (++c->values > c->limits.values) return json__fail(c, place, "the text holds more values than allowed");
    if (!json__string(c, &hash) || !json__note_name(c, place, hash)) return false;
    json__space(c);
    if (c->at >= c->end || *c->at != ':') return json__fail(c, c->at, "a colon is missing");
    c->at++;
    json__space(c);
    return true;
}

/* A value that holds no other. */
static bool json__scalar(json__checker *c) {
    uint32_t hash;
    switch (*c->at) {
    case '"': return json__string(c, &hash);
    case 't': return json__word(c, "true");
    case 'f': return json__word(c, "false");
    case 'n': return json__word(c, "null");
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return json__number(c);
    default: return json__fail(c, c->at, "a JSON value is expected here");
    }
}

/* Behind a value: closes what ends there, and stands at the next value when `*out_more`. */
static bool json__after(json__checker *c, bool *out_more) {
    for (*out_more = false; c->depth;) {
        bool object = c->is_object[c->depth - 1];
        json__space(c);
        if (c->at >= c->end) return json__fail(c, c->at, object ? "an object does not end" : "an array does not end");
        if (*c->at == (object ? '}' : ']')) {
            c->depth--;
            if (object && !json__names_differ(c, c->first_name[c->depth])) return false;
            c->at++;
            continue;
        }
        if (*c->at != ',') return json__fail(c, c->at, "a comma or the end of an array or object is missing");
        c->at++;
        json__space(c);
        *out_more = true;
        return !object || json__key(c);
    }
    return true;
}

static bool json__all(json__checker *c) {
    for (bool more = true; more;) {
        if (c->at >= c->end) return json__fail(c, c->at, "a value is missing");
        if (++c->values > c->limits.values) return json__fail(c, c->at, "the text holds more values than allowed");
        if (*c->at != '{' && *c->at != '[') {
            if (!json__scalar(c)) return false;
        } else {
            bool object = *c->at == '{';
            if (!json__open(c, object)) return false;
            json__space(c);
            if (c->at >= c->end || *c->at != (object ? '}' : ']')) {
                if (object && !json__key(c)) return false;
                continue; /* its first element */
            }
        }
        if (!json__after(c, &more)) return false;
    }
    return true;
}

bool json_check(const char *text, size_t size, const json_limits *limits, json_value *out_root, json_error *out_error) {
    json__checker c;
    memset(&c, 0, sizeof c);
    c.text = c.at = text;
    c.end = text + size;
    c.error = out_error;
    if (limits) c.limits = *limits;
    if (!c.limits.bytes) c.limits.bytes = (size_t)1 << 30;
    if (!c.limits.depth) c.limits.depth = 64;
    if (c.limits.depth > JSON__DEPTH) c.limits.depth = JSON__DEPTH;
    if (!c.limits.number_bytes) c.limits.number_bytes = 64;
    if (c.limits.number_bytes > JSON__NUMBER) c.limits.number_bytes = JSON__NUMBER;
    if (!c.limits.values) c.limits.values = (uint64_t)1 << 28;
    *out_root = (json_value){ NULL, 0 };
    if (size > c.limits.bytes) return json__fail(&c, text + c.limits.bytes, "the text is longer than allowed");
    json__space(&c);
    const char *start = c.at;
    bool ok = json__all(&c);
    const char *stop = c.at;
    json__space(&c);
    if (ok && c.at != c.end) ok = json__fail(&c, c.at, "something follows the value");
    free(c.names);
    if (ok) *out_root = (json_value){ start, (size_t)(stop - start) };
    return ok;
}

/* ---- reading what has passed the check ---- */

static const char *json__skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static const char *json__skip_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p < end ? p + 1 : end;
}

static const char *json__skip_value(const char *p, const char *end) {
    size_t depth = 0;
    do {
        if (*p == '"') {
            p = json__skip_string(p, end);
            continue;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
        p++;
        if (depth == 0 && p < end && p[-1] != '}' && p[-1] != ']')
            while (p < end && *p != ',' && *p != '}' && *p != ']' && (unsigned char)*p > ' ') p++;
    } while (depth && p < end);
    return p;
}

json_kind json_kind_of(json_value value) {
    if (!value.text || !value.size) return JSON_MISSING;
    switch (value.text[0]) {
    case '{': return JSON_OBJECT;
    case '[': return JSON_ARRAY;
    case '"': return JSON_STRING;
    case 't':
    case 'f': return JSON_BOOL;
    case 'n': return JSON_NULL;
    default: return JSON_NUMBER;
    }
}

json_iter json_begin(json_value container) {
    json_kind kind = json_kind_of(container);
    if (kind != JSON_ARRAY && kind != JSON_OBJECT) return (json_iter){ NULL, NULL, false };
    return (json_iter){ container.text + 1, container.text + container.size - 1, kind == JSON_OBJECT };
}

bool json_next(json_iter *iter, json_value *out_key, json_value *out_value) {
    const char *p = json__skip_space(iter->at, iter->end), *start;
    *out_key = *out_value = (json_value){ NULL, 0 };
    if (p < iter->end && *p == ',') p = json__skip_space(p + 1, iter->end);
    if (p >= iter->end) return false;
    if (iter->object) {
        start = p;
        p = json__skip_string(p, iter->end);
        *out_key = (json_value){ start, (size_t)(p - start) };
        p = json__skip_space(json__skip_space(p, iter->end) + 1, iter->end); /* the colon */
    }
    start = p;
    p = json__skip_value(p, iter->end);
    *out_value = (json_value){ start, (size_t)(p - start) };
    iter->at = p;
    return true;
}

json_value json_get(json_value object, const char *name) {
    json_value key, value;
    if (json_kind_of(object) == JSON_OBJECT)
        for (json_iter i = json_begin(object); json_next(&i, &key, &value);)
            if (json_is(key, name)) return value;
    return (json_value){ NULL, 0 };
}

size_t json_count(json_value container) {
    json_value key, value;
    size_t n = 0;
    for (json_iter i = json_begin(container); json_next(&i, &key, &value);) n++;
    return n;
}

bool json_get_bool(json_value value, bool *out) {
    if (json_kind_of(value) != JSON_BOOL) return false;
    *out = value.text[0] == 't';
    return true;
}

bool json_get_u64(json_value value, uint64_t *out) {
    uint64_t v = 0;
    if (json_kind_of(value) != JSON_NUMBER) return false;
    for (size_t i = 0; i < value.size; i++) {
        char c = value.text[i];
        if (c < '0' || c > '9' || v > UINT64_MAX / 10 || v * 10 > UINT64_MAX - (uint64_t)(c - '0')) return false;
        v = v * 10 + (uint64_t)(c - '0');
    }
    *out = v;
    return true;
}

bool json_get_i64(json_value value, int64_t *out) {
    bool negative = value.size > 1 && value.text[0] == '-';
    uint64_t v;
    if (!json_get_u64(negative ? (json_value){ value.text + 1, value.size - 1 } : value, &v)) return false;
    if (v > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool json_get_double(json_value value, double *out) {
    char copy[JSON__NUMBER + 8], *end, *point;
    if (json_kind_of(value) != JSON_NUMBER || value.size > JSON__NUMBER) return false;
    memcpy(copy, value.text, value.size);
    copy[value.size] = 0;
    point = strchr(copy, '.');
    if (point) *point = localeconv()->decimal_point[0];
    errno = 0;
    double v = strtod(copy, &end);
    if (*end || end == copy || v > 1.7976931348623157e308 || v < -1.7976931348623157e308) return false;
    *out = v;
    return true;
}

bool json_get_string(json_value value, char *out, size_t capacity, size_t *out_size) {
    char bytes[4];
    size_t size = 0;
    if (json_kind_of(value) != JSON_STRING) return false;
    const char *p = value.text + 1, *end = value.text + value.size - 1;
    while (p < end) {
        size_t n = json__character(&p, end, bytes);
        if (!n || size + n + 1 > capacity) return false;
        memcpy(out + size, bytes, n);
        size += n;
    }
    if (capacity <= size) return false;
    out[size] = 0;
    if (out_size) *out_size = size;
    return true;
}

bool json_is(json_value value, const char *text) {
    char bytes[4];
    size_t left = strlen(text);
    if (json_kind_of(value) != JSON_STRING) return false;
    const char *p = value.text + 1, *end = value.text + value.size - 1;
    while (p < end) {
        size_t n = json__character(&p, end, bytes);
        if (!n || n > left || memcmp(bytes, text, n)) return false;
        text += n;
        left -= n;
    }
    return left == 0;
}

/* ---- writing ---- */

size_t json_quote(const char *text, size_t size, char *out, size_t capacity) {
    static const char escaped[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    char piece[8];
    size_t total = 0;
    for (size_t i = 0, n = 0; i <= size + 1; i += n) {
        const char *s = piece, *name;
        size_t bytes = 1;
        n = 1;
        if (i == 0 || i == size + 1) {
            s = "\"";
        } else if ((unsigned char)text[i - 1] >= 0x20 && text[i - 1] != '"' && text[i - 1] != '\\') {
            n = bytes = json_utf8(text + i - 1, size - (i - 1));
            s = text + i - 1;
            if (!n) {
                s = "\xef\xbf\xbd";
                bytes = 3;
                n = 1;
            }
        } else if (text[i - 1] && (name = strchr(escaped, text[i - 1])) != NULL) {
            piece[0] = '\\';
            piece[1] = names[name - escaped];
            bytes = 2;
        } else {
            bytes = (size_t)snprintf(piece, sizeof piece, "\\u%04x", (unsigned)(unsigned char)text[i - 1]);
        }
        if (total <= capacity && bytes <= capacity - total) memcpy(out + total, s, bytes);
        total += bytes;
    }
    return total;
}
#endif
