/* tokenizer.h - text to the ids of a model's tokens and back, as the model's own files say.

   One C file of the program:   #define TOKENIZER_IMPLEMENTATION
                                #include "tokenizer.h"
   Elsewhere:                   #include "tokenizer.h"   C99, C++11; POSIX; gguf.h, json.h, mapping.h, unicode.h beside

       char error[TOKENIZER_ERROR];
       tokenizer *t = tokenizer_open("model-dir", error);          a directory, a tokenizer.json, a GGUF file
       tokenizer_ids ids = { 0 };
       if (!tokenizer_encode(t, text, strlen(text), 0, &ids)) ...  out of memory, nothing else
       tokenizer_stream s = { 0 };
       for (size_t i = 0; i < ids.n; i++) tokenizer_decode(t, &s, ids.id[i], print, NULL);
       tokenizer_decode_end(t, &s, print, NULL);
       tokenizer_ids_free(&ids);
       tokenizer_close(t);

   Read of a tokenizer.json: models BPE (on bytes, or on characters with byte fallback; ignore_merges) and Unigram;
   normalizers NFC, NFD, NFKC, NFKD, Replace of a text, Prepend; pre-tokenizers ByteLevel, Split by the expressions that
   GPT-2, Llama 3, Qwen 2 and GPT-4o use or by a text, Digits, Metaspace; added tokens with all their flags; the
   templates that add tokens around one text; the decoders that belong to these.
   A directory without that file: vocab.json, merges.txt and what added_tokens.json, special_tokens_map.json and
   tokenizer_config.json say of them, for tokenizer_class GPT2Tokenizer (also if none is named) and Qwen2Tokenizer.
   A GGUF file: tokenizer.ggml.model "gpt2" with the values of tokenizer.ggml.pre that name one of these expressions,
   "llama" (SentencePiece's BPE: of neighbours that are a token together, those of the best score are joined) and "t5"
   (its Unigram) without a table of characters. Text for Qwen's is brought to NFC, as its tokenizer.json has it.
   Whatever else a file asks for is refused by its name: a tokenizer that is nearly right is wrong. Text that is no
   UTF-8 is read as Python's errors="replace" does.

   A tokenizer may be used by several threads at once. The ids are those of Hugging Face's package `tokenizers`. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKENIZER_ERROR = 512 };
#define TOKENIZER_NONE UINT32_MAX

typedef struct tokenizer tokenizer;

/* Ids; grows as needed, begins zeroed. */
typedef struct tokenizer_ids {
    uint32_t *id;
    size_t n, room;
} tokenizer_ids;

enum tokenizer_flags {
    TOKENIZER_TEMPLATE = 1, /* with what the model wants around a text (its first token, for most) */
    TOKENIZER_PLAIN = 2     /* special tokens inside the text are ordinary text: for text that nobody vouches for */
};

/* NULL: `error` says why. */
tokenizer *tokenizer_open(const char *path, char error[TOKENIZER_ERROR]);
void tokenizer_close(tokenizer *t);
/* Appends the ids of `size` bytes of text. False: out of memory. */
bool tokenizer_encode(const tokenizer *t, const char *text, size_t size, unsigned flags, tokenizer_ids *ids);
void tokenizer_ids_free(tokenizer_ids *ids);

size_t tokenizer_size(const tokenizer *t); /* ids are below it */
/* The token as the file writes it (may hold 0 bytes); NULL for an id that is none. Valid until the tokenizer is closed.
 */
const char *tokenizer_token(const tokenizer *t, uint32_t id, size_t *out_size);
uint32_t tokenizer_find(const tokenizer *t, const char *token); /* TOKENIZER_NONE: there is none */
bool tokenizer_is_special(const tokenizer *t, uint32_t id);

/* Text as it becomes whole: a token may hold a part of a character. Begins zeroed; one a sequence. */
typedef struct tokenizer_stream {
    char held[8]; /* bytes of a character that is not whole */
    unsigned n_held;
    bool begun;
} tokenizer_stream;
typedef void (*tokenizer_text_fn)(void *user, const char *text, size_t size);

/* Gives the text that this token completes to `out`, in none, one or several calls. Special tokens give nothing. Bytes
   that are no UTF-8 come as U+FFFD. */
void tokenizer_decode(const tokenizer *t, tokenizer_stream *s, uint32_t id, tokenizer_text_fn out, void *user);
void tokenizer_decode_end(const tokenizer *t, tokenizer_stream *s, tokenizer_text_fn out, void *user);

#ifdef __cplusplus
}
#endif
#endif

#if defined(TOKENIZER_IMPLEMENTATION) && !defined(TOKENIZER_IMPLEMENTED)
#define TOKENIZER_IMPLEMENTED
#define GGUF_IMPLEMENTATION
#include "gguf.h"
#define JSON_IMPLEMENTATION
#include "json.h"
#define MAPPING_IMPLEMENTATION
#include "mapping.h"
#include "unicode.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    TOK__FILE = 1 << 28,  /* bytes of a tokenizer.json */
    TOK__IDS = 1 << 22,   /* ids, and merges */
    TOK__TOKEN = 1 << 16, /* bytes of one token */
    TOK__STEPS = 16,      /* normalizers; pre-tokenizers; decoders */
    TOK__ALL = 0x110000   /* code points */
};

/* A token's text in tok.blob. */
typedef struct tok__text {
    uint32_t at, size;
} tok__text;

typedef struct tok__merge {
    uint64_t pair;
    uint32_t rank, id;
} tok__merge; /* pair: left << 32 | right; rank TOKENIZER_NONE: free */

/* Added tokens: what may stand around and in place of them. */
typedef struct tok__added {
    uint32_t id;
    tok__text text;
    bool single_word, lstrip, rstrip, normalized, special;
} tok__added;

typedef struct tok__edge {
    uint64_t from;
    uint32_t to;
} tok__edge; /* from: node << 8 | byte, + 1; 0: free */
typedef struct tok__trie {
    bool starts[256]; /* an entry begins with this byte */
    tok__edge *edges;
    uint32_t *ends; /* by node: what ends there + 1; 0: nothing */
    size_t n_edges, edge_room, n_nodes, node_room;
} tok__trie;

typedef enum tok__kind {
    TOK__NFC,
    TOK__NFD,
    TOK__NFKC,
    TOK__NFKD,
    TOK__REPLACE,
    TOK__PREPEND, /* normalizers */
    TOK__SPLIT_GPT2,
    TOK__SPLIT_LLAMA3,
    TOK__SPLIT_QWEN2,
    TOK__SPLIT_O200K,
    TOK__SPLIT_TEXT, /* pre-tokenizers */
    TOK__DIGITS,
    TOK__DIGIT,
    TOK__METASPACE,
    TOK__PREFIX_SPACE,
    TOK__BYTES,
    TOK__BYTE_FALLBACK,
    TOK__STRIP /* decoders */
} tok__kind;

enum tok__behaviour { TOK__ISOLATED, TOK__REMOVED, TOK__WITH_PREVIOUS, TOK__WITH_NEXT };
enum tok__prepend { TOK__ALWAYS, TOK__FIRST, TOK__NEVER };

typedef struct tok__step {
    tok__kind kind;
    uint8_t how; /* tok__behaviour or tok__prepend */
    bool split;
    char a[64], b[64]; /* Replace: a by b; Prepend, Metaspace: a; Split: a */
} tok__step;

struct tokenizer {
    char *blob;
    size_t n_blob, blob_room;
    tok__text *tokens; /* as the file has them, by id; size TOKENIZER_NONE: no token */
    tok__text *pieces; /* what they stand for: bytes for byte-level tokens */
    uint8_t *flags;    /* by id: TOK__SPECIAL… */
    size_t n;
    uint32_t *table; /* ids by text, open addressing; + 1 */
    size_t table_room;
    uint32_t *by_token; /* the same by the token's own text */
    tok__merge *merges;
    size_t merge_room;
    unsigned merge_shift;  /* bits of a hash that are no place in merges */
    uint8_t *merge_filter; /* a byte for each place: bits that hashes of merges have come to are set */
    uint32_t *byte_merges; /* of a byte and the next: the place in merges + 1; 0: none. NULL: not made */
    tok__added *added;
    size_t n_added;
    tok__trie raw, normal, unigram; /* added tokens found before and after normalization; pieces of a unigram model */
    double *scores, unk_score;
    tok__step normalizers[TOK__STEPS], splits[TOK__STEPS], decoders[TOK__STEPS];
    size_t n_normalizers, n_splits, n_decoders;
    uint32_t bytes[256], unk; /* ids of single bytes, or of <0xXX> */
    uint32_t before[8], after[8];
    size_t n_before, n_after;
    bool is_unigram, byte_level, byte_fallback, fuse_unk, ignore_merges;
    uint8_t *kinds;           /* bits of each code point: TOK__LETTER… */
    uint8_t *classes;         /* canonical combining class of each */
    uint32_t *decompositions; /* place in unicode_canonical + 1 | place in unicode_compatible + 1, pairs by 256 */
    atomic_uintptr_t idle[4]; /* tok__work of calls that have ended, for calls to come */
    char *error;
    const char *path;
};

/* Kinds of characters, as the expressions ask for them. */
enum {
    TOK__LETTER = 1,
    TOK__NUMBER = 2,
    TOK__BLANK = 4,
    TOK__OTHER = 8,  /* none of these */
    TOK__UPPER = 16, /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    TOK__LOWER = 32, /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    TOK__WORD = 64,  /* what regular expressions call a word character */
    TOK__MOVES = 128 /* the tokenizer's normal forms may change it, or join it to the character before */
};

enum { TOK__SPECIAL = 1, TOK__ADDED = 2, TOK__IS_BYTE = 4 };

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
tok__fail(tokenizer *t, const char *format, ...) {
    char text[TOKENIZER_ERROR - 220];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(t->error, TOKENIZER_ERROR, "%.200s: %s", t->path, text);
    return false;
}

static bool tok__no_memory(tokenizer *t) { return tok__fail(t, "out of memory"); }

static uint64_t tok__hash(const char *p, size_t n) {
    uint64_t h = n * UINT64_C(0x9e3779b97f4a7c15), v;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    v = 0;
    if (n) memcpy(&v, p, n);
    h = (h ^ v) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 29;
}

/* A power of two with room for n things at half load. */
static size_t tok__room(size_t n) {
    size_t room = 64;
    while (room < 2 * n) room *= 2;
    return room;
}

/* ---- characters ---- */

/* The character at p of well-formed text; *n are its bytes. */
static inline uint32_t tok__char(const char *p, size_t *n) {
    const uint8_t *s = (const uint8_t *)p;
    if (s[0] < 0x80) {
        *n = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *n = 2;
        return (s[0] & 31u) << 6 | (s[1] & 63u);
    }
    if (s[0] < 0xf0) {
        *n = 3;
        return (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
    }
    *n = 4;
    return (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
}

/* Start of the character that ends before p. */
static const char *tok__back(const char *p) {
    do p--;
    while (((uint8_t)*p & 0xc0) == 0x80);
    return p;
}

static bool tok__is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static uint8_t tok__kinds_of(uint32_t category) {
    bool letter = category >= UNICODE_LL && category <= UNICODE_LU,
         number = category >= UNICODE_ND && category <= UNICODE_NO,
         mark = category >= UNICODE_MC && category <= UNICODE_MN,
         lower = category == UNICODE_LL || category == UNICODE_LM || category == UNICODE_LO,
         digit = category == UNICODE_ND || category == UNICODE_NL;
    return (uint8_t)((letter   ? TOK__LETTER
                      : number ? TOK__NUMBER
                               : TOK__OTHER) |
                     (mark || (letter && category != UNICODE_LL) ? TOK__UPPER : 0) | (mark || lower ? TOK__LOWER : 0) |
                     (mark || letter || digit || category == UNICODE_PC ? TOK__WORD : 0));
}

static void tok__mark(tokenizer *t, uint32_t first, uint32_t last, uint8_t kinds) {
    for (uint32_t c = first; c <= last; c++) t->kinds[c] |= kinds;
}

static bool tok__unicode(tokenizer *t) {
    t->kinds = (uint8_t *)malloc(TOK__ALL);
    t->classes = (uint8_t *)malloc(TOK__ALL);
    t->decompositions = (uint32_t *)calloc(TOK__ALL, sizeof *t->decompositions);
    if (!t->kinds || !t->classes || !t->decompositions) return tok__no_memory(t);
    for (size_t i = 0, n = sizeof unicode_categories / 4; i < n; i++) {
        size_t begin = unicode_categories[i] >> 8, end = i + 1 < n ? unicode_categories[i + 1] >> 8 : TOK__ALL;
        memset(t->kinds + begin, tok__kinds_of(unicode_categories[i] & 255), end - begin);
    }
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (tok__is_space(c)) t->kinds[c] = (uint8_t)((t->kinds[c] & ~TOK__OTHER) | TOK__BLANK);
    tok__mark(t, 0x200c, 0x200d, TOK__WORD);
    tok__mark(t, 0x24b6, 0x24e9, TOK__WORD); /* the letters among the symbols: alphabetic, too */
    tok__mark(t, 0x1f130, 0x1f149, TOK__WORD);
    tok__mark(t, 0x1f150, 0x1f169, TOK__WORD);
    tok__mark(t, 0x1f170, 0x1f189, TOK__WORD);
    for (size_t i = 0, n = sizeof unicode_classes / 4; i < n; i++) {
        size_t begin = unicode_classes[i] >> 8, end = i + 1 < n ? unicode_classes[i + 1] >> 8 : TOK__ALL;
        memset(t->classes + begin, (int)(unicode_classes[i] & 255), end - begin);
    }
    for (uint32_t i = 0; i < sizeof unicode_canonical / 4; i += 2 + unicode_canonical[i + 1])
        t->decompositions[unicode_canonical[i]] = i + 1;
    for (uint32_t i = 0; i < sizeof unicode_compatible / 4; i += 2 + unicode_compatible[i + 1])
        t->decompositions[unicode_compatible[i]] |= (i + 1) << 16;
    return true;
}

/* ---- a text that grows ---- */

typedef struct tok__buffer {
    char *p;
    size_t n, room;
    bool failed;
} tok__buffer;

static void tok__put(tok__buffer *b, const char *p, size_t n) {
    if (b->failed) return;
    if (b->room - b->n < n) {
        size_t room = b->room + b->room / 2 + n + 256;
        char *more = (char *)realloc(b->p, room);
        if (!more) {
            b->failed = true;
            return;
        }
        b->p = more;
        b->room = room;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void tok__put_char(tok__buffer *b, uint32_t c) {
    char bytes[4];
    tok__put(b, bytes, json__encode(c, bytes));
}

/* Bytes of a sequence at p that is not well-formed and becomes one U+FFFD: the longest start of one that could be. */
static size_t tok__ill(const char *text, size_t size) {
    const uint8_t *s = (const uint8_t *)text;
    size_t need = s[0] >= 0xf0 && s[0] <= 0xf4  ? 4
                  : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                  : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                                                : 1,
           n = 1;
    if (need == 1 || size < 2) return 1;
    uint8_t low = s[0] == 0xe0   ? 0xa0
                  : s[0] == 0xf0 ? 0x90
                                 : 0x80,
            high = s[0] == 0xed   ? 0x9f
                   : s[0] == 0xf4 ? 0x8f
                                  : 0xbf;
    if (s[1] < low || s[1] > high) return 1;
    while (n < need && n < size && (s[n] & 0xc0) == 0x80) n++;
    return n;
}

/* Appends the text with U+FFFD where it is no UTF-8. */
static void tok__put_replaced(tok__buffer *b, const char *text, size_t size) {
    size_t begin = 0;
    for (size_t i = 0, n; i < size; i += n) {
        n = json_utf8(text + i, size - i);
        if (n) continue;
        n = tok__ill(text + i, size - i);
        tok__put(b, text + begin, i - begin);
        tok__put(b, "\xef\xbf\xbd", 3);
        begin = i + n;
    }
    tok__put(b, text + begin, size - begin);
}

static bool tok__is_utf8(const char *text, size_t size) {
    for (size_t i = 0, n; i < size; i += n) {
        uint64_t word;
        if (size - i >= 8 && (memcpy(&word, text + i, 8), !(word & UINT64_C(0x8080808080808080)))) {
            n = 8;
            continue;
        }
        n = json_utf8(text + i, size - i);
        if (!n) return false;
    }
    return true;
}

/* ---- tries ---- */

static tok__edge *tok__edge_of(const tok__trie *x, uint64_t from) {
    size_t i = (size_t)((from * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (x->edge_room - 1);
    while (x->edges[i].from && x->edges[i].from != from) i = (i + 1) & (x->edge_room - 1);
    return &x->edges[i];
}

static bool tok__trie_grow(tok__trie *x) {
    tok__trie old = *x;
    if (2 * (x->n_edges + 1) > x->edge_room) {
        x->edge_room = old.edge_room ? 2 * old.edge_room : 1024;
        x->edges = (tok__edge *)calloc(x->edge_room, sizeof *x->edges);
        if (!x->edges) {
            *x = old;
            return false;
        }
        for (size_t i = 0; i < old.edge_room; i++)
            if (old.edges[i].from) *tok__edge_of(x, old.edges[i].from) = old.edges[i];
        free(old.edges);
    }
    if (x->n_nodes + 2 > x->node_room) {
        size_t room = x->node_room ? 2 * x->node_room : 1024;
        uint32_t *ends = (uint32_t *)realloc(x->ends, room * sizeof *ends);
        if (!ends) return false;
        memset(ends + x->node_room, 0, (room - x->node_room) * sizeof *ends);
        x->ends = ends;
        x->node_room = room;
    }
    return true;
}

/* Enters a text; node 0 is the root. */
static bool tok__trie_add(tok__trie *x, const char *p, size_t n, uint32_t value) {
    uint32_t node = 0;
    if (!tok__trie_grow(x)) return false;
    if (!x->n_nodes) x->n_nodes = 1;
    if (n) x->starts[(uint8_t)p[0]] = true;
    for (size_t i = 0; i < n; i++) {
        if (!tok__trie_grow(x)) return false;
        tok__edge *e = tok__edge_of(x, ((uint64_t)node << 8 | (uint8_t)p[i]) + 1);
        if (!e->from) {
            *e = (tok__edge){ ((uint64_t)node << 8 | (uint8_t)p[i]) + 1, (uint32_t)x->n_nodes++ };
            x->n_edges++;
        }
        node = e->to;
    }
    x->ends[node] = value + 1;
    return true;
}

/* The node behind a byte, 0: there is none. */
static uint32_t tok__trie_next(const tok__trie *x, uint32_t node, char byte) {
    if (!x->edge_room) return 0;
    const tok__edge *e = tok__edge_of(x, ((uint64_t)node << 8 | (uint8_t)byte) + 1);
    return e->from ? e->to : 0;
}

/* The longest entry that begins at p: its value + 1 and length; 0: none. */
static uint32_t tok__trie_longest(const tok__trie *x, const char *p, const char *end, size_t *out_n) {
    uint32_t found = 0, node = 0;
    for (const char *q = p; q < end && (node = tok__trie_next(x, node, *q)) != 0;) {
        q++;
        if (x->ends[node]) {
            found = x->ends[node];
            *out_n = (size_t)(q - p);
        }
    }
    return found;
}

/* ---- the vocabulary ---- */

static const char *tok__at(const tokenizer *t, tok__text x) { return t->blob + x.at; }

static uint32_t *tok__place(const tokenizer *t, uint32_t *table, const tok__text *texts, const char *p, size_t n) {
    size_t i = (size_t)tok__hash(p, n) & (t->table_room - 1);
    while (table[i]) {
        tok__text x = texts[table[i] - 1];
        if (x.size == n && !memcmp(tok__at(t, x), p, n)) break;
        i = (i + 1) & (t->table_room - 1);
    }
    return &table[i];
}

/* The id of what a piece stands for. */
static uint32_t tok__find(const tokenizer *t, const char *p, size_t n) {
    return *tok__place(t, t->table, t->pieces, p, n) - 1;
}

static tok__text tok__keep(tokenizer *t, const char *p, size_t n) {
    tok__text x = { (uint32_t)t->n_blob, (uint32_t)n };
    if (t->blob_room - t->n_blob < n + 1) {
        size_t room = t->blob_room * 2 + n + 65536;
        char *more = room < UINT32_MAX ? (char *)realloc(t->blob, room) : NULL;
        if (!more) {
            tok__no_memory(t);
            return (tok__text){ 0, TOKENIZER_NONE };
        }
        t->blob = more;
        t->blob_room = room;
    }
    if (n) memcpy(t->blob + t->n_blob, p, n);
    t->blob[t->n_blob + n] = 0;
    t->n_blob += n + 1;
    return x;
}

/* GPT-2's printable stand-ins for bytes: the byte of a character, -1 when it is none. */
static int tok__byte_of(uint32_t c) {
    if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff)) return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    c -= 0x100; /* 0 to 32, 127 to 160 and 173 in their order */
    return c <= 32 ? (int)c : c <= 66 ? (int)c + 94 : 173;
}

/* Bytes that a byte-level token stands for; false when one of its characters stands for none. */
static bool tok__to_bytes(const char *p, size_t n, char *out, size_t *out_n) {
    *out_n = 0;
    for (size_t i = 0, k; i < n; i += k) {
        int byte = tok__byte_of(tok__char(p + i, &k));
        if (byte < 0) return false;
        out[(*out_n)++] = (char)byte;
    }
    return true;
}

static bool tok__make_room(tokenizer *t, size_t n) {
    t->n = n;
    t->tokens = (tok__text *)malloc((n + 1) * sizeof *t->tokens);
    t->pieces = (tok__text *)malloc((n + 1) * sizeof *t->pieces);
    t->flags = (uint8_t *)calloc(n + 1, 1);
    t->table_room = tok__room(n);
    t->table = (uint32_t *)calloc(t->table_room, sizeof *t->table);
    t->by_token = (uint32_t *)calloc(t->table_room, sizeof *t->by_token);
    if (!t->tokens || !t->pieces || !t->flags || !t->table || !t->by_token) return tok__no_memory(t);
    for (size_t i = 0; i <= n; i++) t->tokens[i] = t->pieces[i] = (tok__text){ 0, TOKENIZER_NONE };
    return true;
}

/* Enters a token. Of the model's own tokens the piece can be found by the model, of added ones not. */
static bool tok__enter(tokenizer *t, uint32_t id, const char *text, size_t n, bool of_model) {
    char bytes[TOK__TOKEN];
    size_t m = 0;
    if (n > TOK__TOKEN) return tok__fail(t, "the token of id %u is longer than %d bytes", id, TOK__TOKEN);
    if (id >= t->n || t->tokens[id].size != TOKENIZER_NONE) return tok__fail(t, "two tokens have the id %u", id);
    t->tokens[id] = tok__keep(t, text, n);
    if (t->tokens[id].size == TOKENIZER_NONE) return false;
    t->pieces[id] = t->tokens[id];
    bool bytes_of = t->byte_level && tok__to_bytes(text, n, bytes, &m);
    if (bytes_of) t->pieces[id] = tok__keep(t, bytes, m);
    if (t->pieces[id].size == TOKENIZER_NONE) return false;
    *tok__place(t, t->by_token, t->tokens, text, n) = id + 1; /* of equal texts the last one counts */
    if (of_model && (!t->byte_level || bytes_of))
        *tok__place(t, t->table, t->pieces, tok__at(t, t->pieces[id]), t->pieces[id].size) = id + 1;
    return true;
}

static bool tok__enter_json(tokenizer *t, uint32_t id, json_value name, bool of_model) {
    char text[TOK__TOKEN];
    size_t n;
    if (!json_get_string(name, text, sizeof text, &n))
        return tok__fail(t, "the token of id %u is longer than %d bytes", id, TOK__TOKEN);
    return tok__enter(t, id, text, n, of_model);
}

/* The id of a token by its own text, TOKENIZER_NONE. */
static uint32_t tok__id_of(const tokenizer *t, const char *text, size_t n) {
    return *tok__place(t, t->by_token, t->tokens, text, n) - 1;
}

uint32_t tokenizer_find(const tokenizer *t, const char *token) { return tok__id_of(t, token, strlen(token)); }
size_t tokenizer_size(const tokenizer *t) { return t->n; }
bool tokenizer_is_special(const tokenizer *t, uint32_t id) { return id < t->n && t->flags[id] & TOK__SPECIAL; }

const char *tokenizer_token(const tokenizer *t, uint32_t id, size_t *out_size) {
    if (id >= t->n || t->tokens[id].size == TOKENIZER_NONE) return NULL;
    *out_size = t->tokens[id].size;
    return tok__at(t, t->tokens[id]);
}

void tokenizer_ids_free(tokenizer_ids *ids) {
    free(ids->id);
    *ids = (tokenizer_ids){ NULL, 0, 0 };
}

/* ---- normalization: Unicode Standard Annex 15 ---- */

typedef struct tok__points {
    uint32_t *c;
    size_t n, room;
    bool failed;
} tok__points;

static void tok__add_point(tok__points *x, uint32_t c) {
    if (x->failed) return;
    if (x->n == x->room) {
        size_t room = x->room ? 2 * x->room : 1024;
        uint32_t *more = (uint32_t *)realloc(x->c, room * sizeof *more);
        if (!more) {
            x->failed = true;
            return;
        }
        x->c = more;
        x->room = room;
    }
    x->c[x->n++] = c;
}

enum {
    TOK__S = 0xac00,
    TOK__L = 0x1100,
    TOK__V = 0x1161,
    TOK__T = 0x11a7,
    TOK__NV = 21,
    TOK__NT = 28,
    TOK__NS = 11172
};

static void tok__decompose(const tokenizer *t, tok__points *x, uint32_t c, bool compatible) {
    if (c >= TOK__S && c < TOK__S + TOK__NS) {
        uint32_t s = c - TOK__S, tail = s % TOK__NT;
        tok__add_point(x, TOK__L + s / (TOK__NV * TOK__NT));
        tok__add_point(x, TOK__V + s % (TOK__NV * TOK__NT) / TOK__NT);
        if (tail) tok__add_point(x, TOK__T + tail);
        return;
    }
    uint32_t d = t->decompositions[c], k = compatible ? d >> 16 : 0;
    const uint32_t *m = k ? unicode_compatible + k - 1 : d & 0xffff ? unicode_canonical + (d & 0xffff) - 1 : NULL;
    if (!m) tok__add_point(x, c);
    for (uint32_t i = 0; m && i < m[1]; i++) tok__add_point(x, m[2 + i]);
}

/* Marks in the order of their classes, those of one class as they were. */
static void tok__order(const tokenizer *t, tok__points *x) {
    for (size_t i = 1; i < x->n; i++) {
        uint32_t c = x->c[i];
        uint8_t k = t->classes[c];
        size_t j = i;
        for (; k && j > 0 && t->classes[x->c[j - 1]] > k; j--) x->c[j] = x->c[j - 1];
        x->c[j] = c;
    }
}

static uint32_t tok__pair(uint32_t a, uint32_t b) {
    if (a >= TOK__L && a < TOK__L + 19 && b >= TOK__V && b < TOK__V + TOK__NV)
        return TOK__S + ((a - TOK__L) * TOK__NV + (b - TOK__V)) * TOK__NT;
    if (a >= TOK__S && a < TOK__S + TOK__NS && (a - TOK__S) % TOK__NT == 0 && b > TOK__T && b < TOK__T + TOK__NT)
        return a + (b - TOK__T);
    for (size_t low = 0, high = sizeof unicode_pairs / 12; low < high;) {
        size_t middle = (low + high) / 2;
        const uint32_t *p = unicode_pairs + 3 * middle;
        if (p[0] == a && p[1] == b) return p[2];
        if (p[0] < a || (p[0] == a && p[1] < b)) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static void tok__compose(const tokenizer *t, tok__points *x) {
    size_t n = 0, starter = SIZE_MAX;
    uint8_t before = 0; /* class of the last mark behind the starter that stays */
    for (size_t i = 0; i < x->n; i++) {
        uint32_t c = x->c[i], both = 0;
        uint8_t k = t->classes[c];
        bool blocked = starter != SIZE_MAX && n > starter + 1 && before >= k;
        if (starter != SIZE_MAX && !blocked) both = tok__pair(x->c[starter], c);
        if (both) {
            x->c[starter] = both;
            continue;
        }
        if (!k) starter = n;
        before = k;
        x->c[n++] = c;
    }
    x->n = n;
}

/* Marks what a normal form may change: what has a class or joins the character before, then what a form of it alone
   changes, or begins with such a character. Between others a text may be cut: each part has its own normal form. */
static bool tok__mark_form(tokenizer *t, tok__kind kind) {
    bool composes = kind == TOK__NFC || kind == TOK__NFKC, compatible = kind == TOK__NFKC || kind == TOK__NFKD;
    tok__points x = { NULL, 0, 0, false };
    for (size_t i = 0; composes && i < sizeof unicode_pairs / 12; i++) t->kinds[unicode_pairs[3 * i + 1]] |= TOK__MOVES;
    if (composes) tok__mark(t, TOK__V, TOK__V + TOK__NV - 1, TOK__MOVES);
    if (composes) tok__mark(t, TOK__T, TOK__T + TOK__NT - 1, TOK__MOVES);
    if (!composes) tok__mark(t, TOK__S, TOK__S + TOK__NS - 1, TOK__MOVES);
    for (uint32_t c = 0; c < TOK__ALL; c++)
        if (t->classes[c]) t->kinds[c] |= TOK__MOVES;
    for (uint32_t c = 0; c < TOK__ALL; c++) {
        if (!t->decompositions[c]) continue;
        x.n = 0;
        tok__decompose(t, &x, c, compatible);
        if (x.failed) return tok__no_memory(t);
        bool begins = t->kinds[x.c[0]] & TOK__MOVES;
        if (composes) tok__compose(t, &x);
        if (begins || x.n != 1 || x.c[0] != c) t->kinds[c] |= TOK__MOVES;
    }
    free(x.c);
    return true;
}

static bool tok__mark_forms(tokenizer *t) {
    for (size_t i = 0; i < t->n_normalizers; i++)
        if (t->normalizers[i].kind <= TOK__NFKD && !tok__mark_form(t, t->normalizers[i].kind)) return false;
    return true;
}

static void tok__form_of_part(const tokenizer *t, tok__kind kind, const char *p, size_t n, tok__points *x,
                              tok__buffer *out) {
    x->n = 0;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t c = tok__char(p + i, &k);
        tok__decompose(t, x, c, kind == TOK__NFKC || kind == TOK__NFKD);
    }
    if (x->failed) {
        out->failed = true;
        return;
    }
    tok__order(t, x);
    if (kind == TOK__NFC || kind == TOK__NFKC) tok__compose(t, x);
    for (size_t i = 0; i < x->n; i++) tok__put_char(out, x->c[i]);
}

/* Characters that the form may change are brought to it together with the one before; the others stay. */
static void tok__normal_form(const tokenizer *t, tok__kind kind, const char *p, size_t n, tok__points *x,
                             tok__buffer *out) {
    size_t begin = 0, last = 0; /* what is not yet put; the last character that stays */
    for (size_t i = 0, k; i < n;) {
        if (!((uint8_t)p[i] & 0x80)) {
            last = i++;
            continue;
        }
        if (!(t->kinds[tok__char(p + i, &k)] & TOK__MOVES)) {
            last = i;
            i += k;
            continue;
        }
        for (i += k; i < n && t->kinds[tok__char(p + i, &k)] & TOK__MOVES;) i += k;
        tok__put(out, p + begin, last - begin);
        tok__form_of_part(t, kind, p + last, i - last, x, out);
        begin = last = i;
    }
    tok__put(out, p + begin, n - begin);
}

static void tok__replace(const char *p, size_t n, const char *a, const char *b, tok__buffer *out) {
    size_t na = strlen(a), begin = 0;
    for (size_t i = 0; na && i + na <= n;) {
        if (p[i] != a[0] || memcmp(p + i, a, na)) {
            i++;
            continue;
        }
        tok__put(out, p + begin, i - begin);
        tok__put(out, b, strlen(b));
        begin = i += na;
    }
    tok__put(out, p + begin, n - begin);
}

/* All normalizers; the result is in one of the two buffers, or the text itself. False: no memory. */
static bool tok__normalize(const tokenizer *t, const char **p, size_t *n, tok__points *x, tok__buffer work[2]) {
    for (size_t i = 0; i < t->n_normalizers; i++) {
        const tok__step *s = &t->normalizers[i];
        tok__buffer *out = &work[i & 1];
        out->n = 0;
        if (s->kind == TOK__REPLACE) {
            tok__replace(*p, *n, s->a, s->b, out);
        } else if (s->kind == TOK__PREPEND) {
            if (*n) tok__put(out, s->a, strlen(s->a));
            tok__put(out, *p, *n);
        } else {
            tok__normal_form(t, s->kind, *p, *n, x, out);
        }
        if (out->failed) return false;
        *p = out->p ? out->p : "";
        *n = out->n;
    }
    return true;
}

/* ---- the models ---- */

typedef struct tok__symbol {
    uint32_t id, before, next;
} tok__symbol; /* places in the word; TOKENIZER_NONE: none */
typedef struct tok__candidate {
    uint32_t rank, at, id;
} tok__candidate;
/* best way to a byte */
typedef struct tok__node {
    double score;
    uint32_t id;
    size_t from, to;
} tok__node;

/* A word of a BPE and its ids: of those seen lately, one for each place. Tags, of the words' hashes, are so few bytes
 * that they stay in the cache: mostly a word that is not here costs no look at another one. */
enum { TOK__WORDS_LOG2 = 14, TOK__WORDS = 1 << TOK__WORDS_LOG2, TOK__WORD_BYTES = 24, TOK__WORD_IDS = 9 };
typedef struct tok__word {
    uint64_t key[TOK__WORD_BYTES / 8]; /* tok__number_of its bytes */
    uint16_t size, n;                  /* bytes, ids */
    uint32_t id[TOK__WORD_IDS];
} tok__word; /* 64 bytes: a line of the cache */
typedef struct tok__words {
    uint16_t tag[TOK__WORDS]; /* 0: free */
    tok__word word[TOK__WORDS];
} tok__words;
/* A word that is looked for. */
typedef struct tok__wanted {
    uint64_t key[TOK__WORD_BYTES / 8];
    size_t place;
    uint16_t tag;
} tok__wanted;

/* What an encoding works with; kept for the next one. */
typedef struct tok__work {
    const tokenizer *t;
    tok__words *words;
    tok__points points;
    tokenizer_ids *ids;
    unsigned flags;
    bool failed;
    tok__symbol *symbols;
    size_t n_symbols, symbol_room;
    tok__candidate *heap;
    size_t n_heap, heap_room;
    tok__node *nodes;
    size_t node_room;
    tok__buffer normal[2], steps[TOK__STEPS];
} tok__work;

static void *tok__grow(tok__work *w, void *p, size_t *room, size_t n, size_t size) {
    if (n <= *room) return p;
    size_t more = n + n / 2 + 64;
    void *q = realloc(p, more * size);
    if (!q) {
        w->failed = true;
        return p;
    }
    *room = more;
    return q;
}

static void tok__emit(tok__work *w, uint32_t id) {
    tokenizer_ids *x = w->ids;
    x->id = (uint32_t *)tok__grow(w, x->id, &x->room, x->n + 1, sizeof *x->id);
    if (!w->failed) x->id[x->n++] = id;
}

static inline void tok__emit_all(tok__work *w, const uint32_t *id, size_t n) {
    tokenizer_ids *x = w->ids;
    x->id = (uint32_t *)tok__grow(w, x->id, &x->room, x->n + n, sizeof *x->id);
    for (size_t i = 0; i < n && !w->failed; i++) x->id[x->n++] = id[i];
}

static void tok__add_symbol(tok__work *w, uint32_t id) {
    w->symbols = (tok__symbol *)tok__grow(w, w->symbols, &w->symbol_room, w->n_symbols + 1, sizeof *w->symbols);
    if (w->failed) return;
    uint32_t i = (uint32_t)w->n_symbols++;
    w->symbols[i] = (tok__symbol){ id, i - 1, i + 1 };
}

/* The upper bits of the product depend on all of the pair. */
static inline uint64_t tok__merge_hash(uint64_t pair) { return pair * UINT64_C(0x9e3779b97f4a7c15); }

/* Most pairs are no merge: the filter, which is so small that it stays in the cache, knows of nearly all of them. */
static inline const tok__merge *tok__merge_of(const tokenizer *t, uint32_t a, uint32_t b) {
    uint64_t pair = (uint64_t)a << 32 | b, h = tok__merge_hash(pair);
    size_t bit = (size_t)(h >> (t->merge_shift - 3));
    if (!(t->merge_filter[bit / 8] >> (bit % 8) & 1)) return NULL;
    const tok__merge *m = &t->merges[h >> t->merge_shift], *end = t->merges + t->merge_room;
    while (m->pair != pair) {
        if (m->rank == TOKENIZER_NONE) return NULL;
        if (++m == end) m = t->merges;
    }
    return m->rank == TOKENIZER_NONE ? NULL : m;
}

/* A word as the smallest tokens there are: bytes or characters, or what stands for characters that are unknown. */
static void tok__first_symbols(tok__work *w, const char *p, size_t n) {
    const tokenizer *t = w->t;
    bool pending = false; /* an unknown token is to come */
    w->n_symbols = 0;
    for (size_t i = 0, k = 1; i < n; i += k) {
        if (!t->byte_level) tok__char(p + i, &k);
        uint32_t id = t->byte_level ? t->bytes[(uint8_t)p[i]] : tok__find(t, p + i, k);
        if (id != TOKENIZER_NONE) {
            if (pending) tok__add_symbol(w, t->unk);
            pending = false;
            tok__add_symbol(w, id);
            continue;
        }
        bool bytes = t->byte_fallback;
        for (size_t j = 0; bytes && j < k; j++) bytes = t->bytes[(uint8_t)p[i + j]] != TOKENIZER_NONE;
        for (size_t j = 0; bytes && j < k; j++) tok__add_symbol(w, t->bytes[(uint8_t)p[i + j]]);
        if (bytes || t->unk == TOKENIZER_NONE) continue;
        if (pending && !t->fuse_unk) tok__add_symbol(w, t->unk);
        pending = true;
    }
    if (pending) tok__add_symbol(w, t->unk);
}

/* A short word: symbols at their places, a chain of those that are left. */
enum { TOK__SHORT = 32, TOK__NO_KEY = INT32_MAX };
typedef struct tok__short {
    uint32_t id[TOK__SHORT], to[TOK__SHORT]; /* to: what a symbol and the next become */
    int32_t key[TOK__SHORT];                 /* rank of that merge and the symbol's place; TOK__NO_KEY: none */
    uint8_t next[TOK__SHORT], before[TOK__SHORT];
} tok__short;

static inline void tok__short_merge(tok__short *x, size_t at, const tok__merge *m) {
    x->key[at] = m ? (int32_t)(m->rank * TOK__SHORT + at) : TOK__NO_KEY; /* TOK__IDS * TOK__SHORT is 2^27 */
    x->to[at] = m ? m->id : 0;
}

/* Merges the pair of least rank, of equal ones the leftmost, until there is none, by looking at all n. Keys and ids are
 * there. Returns how many ids are left, at the beginning. */
static size_t tok__merge_short(const tokenizer *t, tok__short *x, size_t n) {
    for (size_t i = 0; i < n; i++) x->next[i] = (uint8_t)(i + 1), x->before[i] = (uint8_t)(i - 1);
    for (;;) {
        int32_t least = x->key[0];
        for (size_t i = 1; i < n; i++) least = x->key[i] < least ? x->key[i] : least;
        if (least == TOK__NO_KEY) break;
        size_t at = (size_t)least % TOK__SHORT, gone = x->next[at], after = x->next[gone];
        x->id[at] = x->to[at];
        x->key[gone] = TOK__NO_KEY;
        x->next[at] = (uint8_t)after;
        tok__short_merge(x, at, after < n ? tok__merge_of(t, x->id[at], x->id[after]) : NULL);
        if (after < n) x->before[after] = (uint8_t)at;
        if (at > 0) tok__short_merge(x, x->before[at], tok__merge_of(t, x->id[x->before[at]], x->id[at]));
    }
    size_t left = 0;
    for (size_t i = 0; i < n; i = x->next[i]) x->id[left++] = x->id[i];
    return left;
}

static bool tok__less(const tok__candidate *a, const tok__candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void tok__push(tok__work *w, uint32_t at) {
    const tok__symbol *s = &w->symbols[at];
    const tok__merge *m = s->next < w->n_symbols ? tok__merge_of(w->t, s->id, w->symbols[s->next].id) : NULL;
    if (!m) return;
    w->heap = (tok__candidate *)tok__grow(w, w->heap, &w->heap_room, w->n_heap + 1, sizeof *w->heap);
    if (w->failed) return;
    tok__candidate x = { m->rank, at, m->id };
    size_t i = w->n_heap++;
    for (; i > 0 && tok__less(&x, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = x;
}

static tok__candidate tok__pop(tok__work *w) {
    tok__candidate top = w->heap[0], x = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && tok__less(&w->heap[child + 1], &w->heap[child])) child++;
        if (!tok__less(&w->heap[child], &x)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = x;
    return top;
}

/* The same for words of any length, in n log n: candidates in a heap; one whose symbols are others by now is passed
 * over. */
static void tok__merge_long(tok__work *w) {
    w->n_heap = 0;
    for (uint32_t i = 0; i + 1 < w->n_symbols && !w->failed; i++) tok__push(w, i);
    while (w->n_heap && !w->failed) {
        tok__candidate x = tok__pop(w);
        tok__symbol *s = &w->symbols[x.at];
        if (s->id == TOKENIZER_NONE || s->next >= w->n_symbols) continue;
        const tok__merge *m = tok__merge_of(w->t, s->id, w->symbols[s->next].id);
        if (!m || m->id != x.id) continue;
        tok__symbol *gone = &w->symbols[s->next];
        s->id = x.id;
        s->next = gone->next;
        gone->id = TOKENIZER_NONE;
        if (s->next < w->n_symbols) w->symbols[s->next].before = x.at;
        if (s->before < w->n_symbols) tok__push(w, s->before);
        tok__push(w, x.at);
    }
    size_t n = 0;
    for (size_t i = 0; i < w->n_symbols; i++)
        if (w->symbols[i].id != TOKENIZER_NONE) w->symbols[n++].id = w->symbols[i].id;
    w->n_symbols = n;
}

/* 1 to 8 bytes as a number; others of the same count have another. */
static inline uint64_t tok__number_of(const char *p, size_t n) {
    uint32_t first = (uint8_t)p[0], last = (uint8_t)p[n - 1];
    if (n < 4) return first | (uint32_t)(uint8_t)p[n / 2] << 8 | last << 16;
    memcpy(&first, p, 4);
    memcpy(&last, p + n - 4, 4);
    return first | (uint64_t)last << 32;
}

/* Without memory no word is kept. */
static void tok__make_words(tok__work *w) {
    void *p = NULL;
    if (posix_memalign(&p, sizeof(tok__word), sizeof *w->words)) return;
    w->words = (tok__words *)p;
    memset(w->words->tag, 0, sizeof w->words->tag);
}

/* Of a word of 1 to TOK__WORD_BYTES bytes. */
static inline void tok__want(tok__wanted *x, const char *p, size_t n) {
    x->key[0] = tok__number_of(p, n < 8 ? n : 8);
    x->key[1] = n > 8 ? tok__number_of(p + 8, n < 16 ? n - 8 : 8) : 0;
    x->key[2] = n > 16 ? tok__number_of(p + 16, n - 16) : 0;
    uint64_t h = (x->key[0] + n) * UINT64_C(0x9e3779b97f4a7c15) ^ x->key[1] * UINT64_C(0xff51afd7ed558ccd) ^
                 x->key[2] * UINT64_C(0xc4ceb9fe1a85ec53);
    h = (h ^ h >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    x->place = (size_t)(h >> (64 - TOK__WORDS_LOG2));
    x->tag = (uint16_t)(h >> 32 | 1);
}

/* A short word of bytes that all are tokens. */
static void tok__join_bytes(tok__work *w, const char *p, size_t n) {
    const tokenizer *t = w->t;
    const uint8_t *s = (const uint8_t *)p;
    tok__short x;
    for (size_t i = 0; i < n; i++) {
        uint32_t place = i + 1 < n ? t->byte_merges[s[i] << 8 | s[i + 1]] : 0;
        x.id[i] = t->bytes[s[i]];
        tok__short_merge(&x, i, place ? &t->merges[place - 1] : NULL);
    }
    tok__emit_all(w, x.id, tok__merge_short(t, &x, n));
}

/* w->symbols, a short word. */
static void tok__join_symbols(tok__work *w) {
    size_t n = w->n_symbols;
    tok__short x;
    for (size_t i = 0; i < n; i++) x.id[i] = w->symbols[i].id;
    for (size_t i = 0; i < n; i++)
        tok__short_merge(&x, i, i + 1 < n ? tok__merge_of(w->t, x.id[i], x.id[i + 1]) : NULL);
    w->n_symbols = n ? tok__merge_short(w->t, &x, n) : 0;
    for (size_t i = 0; i < w->n_symbols; i++) w->symbols[i].id = x.id[i];
}

/* The word as ids at the end of w->ids. */
static void tok__join(tok__work *w, const char *p, size_t n) {
    uint32_t id = w->t->ignore_merges ? tok__find(w->t, p, n) : TOKENIZER_NONE;
    if (id != TOKENIZER_NONE) {
        tok__emit(w, id);
        return;
    }
    if (w->t->byte_merges && n <= TOK__SHORT) {
        tok__join_bytes(w, p, n);
        return;
    }
    tok__first_symbols(w, p, n);
    if (w->failed) return;
    if (w->n_symbols <= TOK__SHORT) tok__join_symbols(w);
    else tok__merge_long(w);
    for (size_t i = 0; i < w->n_symbols && !w->failed; i++) tok__emit(w, w->symbols[i].id);
}

static void tok__bpe(tok__work *w, const char *p, size_t n) {
    tok__wanted x;
    if (!w->words) tok__make_words(w);
    if (n > TOK__WORD_BYTES || !w->words) {
        tok__join(w, p, n);
        return;
    }
    tok__want(&x, p, n);
    uint16_t *tag = &w->words->tag[x.place];
    tok__word *word = &w->words->word[x.place];
    if (*tag == x.tag && word->size == n && !memcmp(word->key, x.key, sizeof x.key)) {
        tok__emit_all(w, word->id, word->n);
        return;
    }
    size_t from = w->ids->n;
    tok__join(w, p, n);
    size_t made = w->ids->n - from;
    if (w->failed || made > TOK__WORD_IDS) return;
    *tag = x.tag;
    memcpy(word->key, x.key, sizeof x.key);
    word->size = (uint16_t)n;
    word->n = (uint16_t)made;
    if (made) memcpy(word->id, w->ids->id + from, made * sizeof *word->id);
}

/* A piece of the best path: its id, or bytes for what no piece holds. */
static void tok__unigram_piece(tok__work *w, const char *p, size_t n, uint32_t id) {
    const tokenizer *t = w->t;
    bool bytes = id == TOKENIZER_NONE && t->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++) bytes = t->bytes[(uint8_t)p[i]] != TOKENIZER_NONE;
    if (id != TOKENIZER_NONE) tok__emit(w, id);
    for (size_t i = 0; bytes && i < n; i++) tok__emit(w, t->bytes[(uint8_t)p[i]]);
    if (id == TOKENIZER_NONE && !bytes && t->unk != TOKENIZER_NONE) tok__emit(w, t->unk);
}

/* The path of pieces whose scores' sum is greatest (Kudo 2018); neighbours that no piece holds are one. */
static void tok__unigram(tok__work *w, const char *p, size_t n) {
    const tokenizer *t = w->t;
    w->nodes = (tok__node *)tok__grow(w, w->nodes, &w->node_room, n + 1, sizeof *w->nodes);
    if (w->failed) return;
    for (size_t i = 0; i <= n; i++) w->nodes[i] = (tok__node){ 0, TOKENIZER_NONE, SIZE_MAX, 0 };
    for (size_t i = 0, k; i < n; i += k) {
        double here = w->nodes[i].score;
        bool single = false;
        tok__char(p + i, &k);
        uint32_t node = 0;
        for (size_t j = i; j < n && (node = tok__trie_next(&t->unigram, node, p[j])) != 0;) {
            uint32_t end = t->unigram.ends[node];
            tok__node *to = &w->nodes[++j];
            if (!end) continue;
            double score = here + t->scores[end - 1];
            if (to->from == SIZE_MAX || score > to->score) *to = (tok__node){ score, end - 1, i, 0 };
            single = single || j == i + k;
        }
        tok__node *to = &w->nodes[i + k];
        if (!single && (to->from == SIZE_MAX || here + t->unk_score > to->score))
            *to = (tok__node){ here + t->unk_score, TOKENIZER_NONE, i, 0 };
    }
    for (size_t i = n; i > 0; i = w->nodes[i].from) w->nodes[w->nodes[i].from].to = i;
    for (size_t i = 0, end; i < n && !w->failed; i = end) {
        end = w->nodes[i].to;
        uint32_t id = w->nodes[end].id;
        while (id == TOKENIZER_NONE && end < n && w->nodes[w->nodes[end].to].id == TOKENIZER_NONE)
            end = w->nodes[end].to;
        tok__unigram_piece(w, p + i, end - i, id != TOKENIZER_NONE ? id : tok__find(t, p + i, end - i));
    }
}

static void tok__model(tok__work *w, const char *p, size_t n) {
    if (!n || w->failed) return;
    if (w->t->is_unigram) tok__unigram(w, p, n);
    else tok__bpe(w, p, n);
}

/* ---- pre-tokenizers ---- */

/* 's, 't, 're, 've, 'm, 'll, 'd at p: their bytes, 0: none. */
static size_t tok__contraction(const char *p, const char *end, bool any_case) {
    static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    if (end - p < 2 || *p != '\'') return 0;
    if (any_case && end - p >= 3 && p[1] == '\xc5' && p[2] == '\xbf') return 3; /* the long s is an s */
    for (size_t i = 0; i < 7; i++) {
        size_t n = strlen(endings[i]), k = 0;
        while (k < n && p + 1 + k < end && (any_case ? p[1 + k] | 32 : p[1 + k]) == endings[i][k]) k++;
        if (k == n) return n + 1;
    }
    return 0;
}

/* Behind the characters of some kinds at p, at most `most` of them. */
static inline const char *tok__run(const tokenizer *t, const char *p, const char *end, unsigned kinds, size_t most) {
    const uint8_t *of = t->kinds;
    for (size_t k; p < end && most > 0; most--, p += k) {
        uint32_t c = tok__char(p, &k);
        if (!(of[c] & kinds)) break;
    }
    return p;
}

/* \s+(?!\S)|\s+ at a space. */
static const char *tok__spaces(const tokenizer *t, const char *p, const char *end) {
    const char *q = tok__run(t, p, end, TOK__BLANK, SIZE_MAX), *last = tok__back(q);
    return q == end || last == p ? q : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const char *tok__match_gpt2(const tokenizer *t, const char *p, const char *end) {
    size_t n = tok__contraction(p, end, false);
    if (n) return p + n;
    const char *q = *p == ' ' ? p + 1 : p;
    unsigned kind = q < end ? t->kinds[tok__char(q, &n)] & (TOK__LETTER | TOK__NUMBER | TOK__OTHER) : 0;
    return kind ? tok__run(t, q, end, kind, SIZE_MAX) : tok__spaces(t, p, end);
}

/* The end of those three expressions:  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ ; the slash is o200k's */
static const char *tok__match_rest(const tokenizer *t, const char *p, const char *end, bool slash) {
    const char *q = *p == ' ' ? p + 1 : p, *r = tok__run(t, q, end, TOK__OTHER, SIZE_MAX), *line = NULL;
    if (r > q) {
        while (r < end && (*r == '\r' || *r == '\n' || (slash && *r == '/'))) r++;
        return r;
    }
    r = tok__run(t, p, end, TOK__BLANK, SIZE_MAX);
    for (q = p; q < r; q++)
        if (*q == '\r' || *q == '\n') line = q + 1;
    return line ? line : tok__spaces(t, p, end);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|… ; Qwen 2 has \p{N} for \p{N}{1,3} */
static const char *tok__match_llama3(const tokenizer *t, const char *p, const char *end, size_t digits) {
    size_t n = tok__contraction(p, end, true), k;
    if (n) return p + n;
    uint32_t c = tok__char(p, &k);
    bool lead = c != '\r' && c != '\n' && !(t->kinds[c] & (TOK__LETTER | TOK__NUMBER));
    const char *q = lead ? p + k : p, *r = tok__run(t, q, end, TOK__LETTER, SIZE_MAX);
    if (r > q) return r;
    r = tok__run(t, p, end, TOK__NUMBER, digits);
    return r > p ? r : tok__match_rest(t, p, end, false);
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at p: the first run gives back what the second needs. */
static const char *tok__match_lower(const tokenizer *t, const char *p, const char *end) {
    const char *upper = tok__run(t, p, end, TOK__UPPER, SIZE_MAX);
    const char *lower = tok__run(t, upper, end, TOK__LOWER, SIZE_MAX);
    size_t k;
    if (lower > upper) return lower;
    for (const char *q = upper; q > p;) {
        q = tok__back(q);
        if (t->kinds[tok__char(q, &k)] & TOK__LOWER) return tok__run(t, q, end, TOK__LOWER, SIZE_MAX);
    }
    return NULL;
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]* where that does not match. */
static const char *tok__match_upper(const tokenizer *t, const char *p, const char *end) {
    const char *upper = tok__run(t, p, end, TOK__UPPER, SIZE_MAX);
    return upper > p ? upper : NULL;
}

/* GPT-4o's: words by the case of their letters, with what stands before and a contraction behind; \p{N}{1,3}; … */
static const char *tok__match_o200k(const tokenizer *t, const char *p, const char *end) {
    size_t k;
    uint32_t c = tok__char(p, &k);
    bool lead = c != '\r' && c != '\n' && !(t->kinds[c] & (TOK__LETTER | TOK__NUMBER)) && p + k < end;
    const char *r = lead ? tok__match_lower(t, p + k, end) : NULL;
    if (!r) r = tok__match_lower(t, p, end);
    if (!r && lead) r = tok__match_upper(t, p + k, end);
    if (!r) r = tok__match_upper(t, p, end);
    if (r) return r + tok__contraction(r, end, true);
    r = tok__run(t, p, end, TOK__NUMBER, 3);
    return r > p ? r : tok__match_rest(t, p, end, true);
}

static const char *tok__match(const tokenizer *t, tok__kind kind, const char *p, const char *end) {
    switch (kind) {
    case TOK__SPLIT_GPT2: return tok__match_gpt2(t, p, end);
    case TOK__SPLIT_LLAMA3: return tok__match_llama3(t, p, end, 3);
    case TOK__SPLIT_QWEN2: return tok__match_llama3(t, p, end, 1);
    default: return tok__match_o200k(t, p, end);
    }
}

static void tok__split(tok__work *w, size_t step, const char *p, size_t n, bool first);

/* Cuts at a text (a delimiter), in the way that the step says. */
static void tok__split_text(tok__work *w, size_t step, const char *p, size_t n, const char *text, int how, bool first) {
    size_t size = strlen(text), begin = 0, i = 0;
    while (i + size <= n) {
        if (memcmp(p + i, text, size)) {
            i++;
            continue;
        }
        size_t cut = how == TOK__WITH_PREVIOUS ? i + size : i;
        tok__split(w, step + 1, p + begin, cut - begin, first && begin == 0);
        if (how == TOK__ISOLATED) tok__split(w, step + 1, p + i, size, first && i == 0);
        begin = how == TOK__WITH_NEXT ? i : i + size;
        i += size;
    }
    tok__split(w, step + 1, p + begin, n - begin, first && begin == 0);
}

static void tok__split_digits(tok__work *w, size_t step, const char *p, size_t n, bool single, bool first) {
    const char *end = p + n, *begin = p;
    for (size_t k; p < end;) {
        if (!(w->t->kinds[tok__char(p, &k)] & TOK__NUMBER)) {
            p += k;
            continue;
        }
        const char *q = tok__run(w->t, p, end, TOK__NUMBER, single ? 1 : SIZE_MAX);
        tok__split(w, step + 1, begin, (size_t)(p - begin), first);
        tok__split(w, step + 1, p, (size_t)(q - p), first && begin == p);
        first = false;
        begin = p = q;
    }
    tok__split(w, step + 1, begin, (size_t)(end - begin), first);
}

/* Spaces become the replacement, one goes before the text; cut before each. */
static void tok__split_metaspace(tok__work *w, size_t step, const char *p, size_t n, bool first) {
    const tok__step *s = &w->t->splits[step];
    tok__buffer *b = &w->steps[step];
    size_t size = strlen(s->a);
    bool begins = (n >= size && !memcmp(p, s->a, size)) || (n && *p == ' ');
    b->n = 0;
    if (!begins && (s->how == TOK__ALWAYS || (s->how == TOK__FIRST && first))) tok__put(b, s->a, size);
    tok__replace(p, n, " ", s->a, b);
    if (b->failed) {
        w->failed = true;
        return;
    }
    if (s->split) tok__split_text(w, step, b->p, b->n, s->a, TOK__WITH_NEXT, first);
    else tok__split(w, step + 1, b->p, b->n, first);
}

static void tok__split_prefix(tok__work *w, size_t step, const char *p, size_t n, bool first) {
    tok__buffer *b = &w->steps[step];
    if (*p == ' ') {
        tok__split(w, step + 1, p, n, first);
        return;
    }
    b->n = 0;
    tok__put(b, " ", 1);
    tok__put(b, p, n);
    if (b->failed) w->failed = true;
    else tok__split(w, step + 1, b->p, b->n, first);
}

/* A piece of text through the pre-tokenizers from `step` on, then through the model. first: it begins the text. */
static void tok__split(tok__work *w, size_t step, const char *p, size_t n, bool first) {
    if (!n || w->failed) return;
    if (step == w->t->n_splits) {
        tok__model(w, p, n);
        return;
    }
    const tok__step *s = &w->t->splits[step];
    switch (s->kind) {
    case TOK__SPLIT_TEXT: tok__split_text(w, step, p, n, s->a, s->how, first); break;
    case TOK__DIGITS:
    case TOK__DIGIT: tok__split_digits(w, step, p, n, s->kind == TOK__DIGIT, first); break;
    case TOK__METASPACE: tok__split_metaspace(w, step, p, n, first); break;
    case TOK__PREFIX_SPACE: tok__split_prefix(w, step, p, n, first); break;
    default:
        for (const char *end = p + n, *q; p < end; p = q, first = false) {
            q = tok__match(w->t, s->kind, p, end);
            tok__split(w, step + 1, p, (size_t)(q - p), first);
        }
    }
}

/* ---- added tokens ---- */

/* Whether the added token may stand at [p, p + n) of [begin, end), and what it takes in besides. */
static bool tok__added_fits(const tok__work *w, const tok__added *a, const char *begin, const char *taken,
                            const char *end, const char **p, const char **q) {
    const tokenizer *t = w->t;
    size_t k;
    if (a->special && w->flags & TOKENIZER_PLAIN) return false;
    if (a->single_word && *p > begin && t->kinds[tok__char(tok__back(*p), &k)] & TOK__WORD) return false;
    if (a->single_word && *q < end && t->kinds[tok__char(*q, &k)] & TOK__WORD) return false;
    while (a->lstrip && *p > taken && tok__is_space(tok__char(tok__back(*p), &k))) *p = tok__back(*p);
    while (a->rstrip && *q < end && tok__is_space(tok__char(*q, &k))) *q += k;
    return true;
}

typedef void (*tok__gap)(tok__work *w, const char *p, size_t n, bool first);

/* Added tokens of one trie are ids, what lies between goes on. The longest of those that begin first is taken. */
static void tok__cut_added(tok__work *w, const tok__trie *x, const char *p, size_t n, bool first, tok__gap gap) {
    const char *begin = p, *end = p + n, *taken = p;
    while (p < end && !w->failed) {
        size_t size = 0;
        if (!x->starts[(uint8_t)*p]) {
            p++;
            continue;
        }
        uint32_t found = tok__trie_longest(x, p, end, &size);
        const char *from = p, *to = p + size;
        if (!found) {
            p++;
            continue;
        }
        p = to; /* also when it may not stand there */
        if (!tok__added_fits(w, &w->t->added[found - 1], begin, taken, end, &from, &to)) continue;
        if (from > taken) gap(w, taken, (size_t)(from - taken), first && taken == begin);
        tok__emit(w, w->t->added[found - 1].id);
        taken = to; /* the next may begin in what this one took in besides: the package has it so */
    }
    if (taken < end) gap(w, taken, (size_t)(end - taken), first && taken == begin);
}

static void tok__pieces(tok__work *w, const char *p, size_t n, bool first) { tok__split(w, 0, p, n, first); }

static void tok__normal_gap(tok__work *w, const char *p, size_t n, bool first) {
    if (!tok__normalize(w->t, &p, &n, &w->points, w->normal)) {
        w->failed = true;
        return;
    }
    tok__cut_added(w, &w->t->normal, p, n, first, tok__pieces);
}

static void tok__free_work(tok__work *w) {
    if (!w) return;
    free(w->words);
    free(w->points.c);
    free(w->symbols);
    free(w->heap);
    free(w->nodes);
    for (int i = 0; i < 2; i++) free(w->normal[i].p);
    for (int i = 0; i < TOK__STEPS; i++) free(w->steps[i].p);
    free(w);
}

/* What an ended call left, or new; NULL: no memory. Each is of one call at a time. */
static tok__work *tok__take_work(const tokenizer *t) {
    tokenizer *owner = (tokenizer *)(uintptr_t)t; /* `idle` is no part of what the tokenizer means */
    tok__work *w = NULL;
    for (int i = 0; i < 4 && !w; i++) w = (tok__work *)atomic_exchange(&owner->idle[i], 0);
    return w ? w : (tok__work *)calloc(1, sizeof *w);
}

/* Kept for a call to come, unless it failed or grew with a long text. */
static void tok__leave_work(const tokenizer *t, tok__work *w, bool keep) {
    tokenizer *owner = (tokenizer *)(uintptr_t)t;
    for (int i = 0; i < 4 && keep; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&owner->idle[i], &none, (uintptr_t)w)) return;
    }
    tok__free_work(w);
}

bool tokenizer_encode(const tokenizer *t, const char *text, size_t size, unsigned flags, tokenizer_ids *ids) {
    tok__work *w = tok__take_work(t);
    tok__buffer replaced = { NULL, 0, 0, false };
    if (!w) return false;
    w->t = t;
    w->ids = ids;
    w->flags = flags;
    if (!tok__is_utf8(text, size)) {
        tok__put_replaced(&replaced, text, size);
        text = replaced.p;
        size = replaced.n;
        w->failed = replaced.failed;
    }
    for (size_t i = 0; flags & TOKENIZER_TEMPLATE && i < t->n_before; i++) tok__emit(w, t->before[i]);
    if (!w->failed) tok__cut_added(w, &t->raw, text, size, true, tok__normal_gap);
    for (size_t i = 0; flags & TOKENIZER_TEMPLATE && i < t->n_after; i++) tok__emit(w, t->after[i]);
    bool ok = !w->failed;
    free(replaced.p);
    tok__leave_work(t, w, ok && size <= TOK__TOKEN);
    return ok;
}

/* ---- ids to text ---- */

/* Gives bytes on as far as they are whole characters; the rest is held. */
static void tok__stream(tokenizer_stream *s, const char *p, size_t n, bool last, tokenizer_text_fn out, void *user) {
    tok__buffer b = { NULL, 0, 0, false };
    tok__put(&b, s->held, s->n_held);
    tok__put(&b, p, n);
    s->n_held = 0;
    for (size_t i = 0, k; i < b.n && !b.failed; i += k) {
        k = json_utf8(b.p + i, b.n - i);
        if (k) {
            out(user, b.p + i, k);
            continue;
        }
        k = tok__ill(b.p + i, b.n - i);
        uint8_t c = (uint8_t)b.p[i];
        size_t need = c >= 0xf0 && c <= 0xf4 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 && c < 0xe0 ? 2 : 1;
        if (!last && i + k == b.n && k < need && c <= 0xf4) { /* may go on in the next token */
            memcpy(s->held, b.p + i, k);
            s->n_held = (unsigned)k;
            break;
        }
        out(user, "\xef\xbf\xbd", 3);
    }
    free(b.p);
}

void tokenizer_decode(const tokenizer *t, tokenizer_stream *s, uint32_t id, tokenizer_text_fn out, void *user) {
    tok__buffer work[2] = { { NULL, 0, 0, false }, { NULL, 0, 0, false } };
    if (id >= t->n || t->tokens[id].size == TOKENIZER_NONE || t->flags[id] & TOK__SPECIAL) return;
    const char *p = tok__at(t, t->pieces[id]);
    size_t n = t->pieces[id].size;
    char byte;
    bool is_byte = false;
    for (size_t i = 0; i < t->n_decoders; i++) {
        const tok__step *d = &t->decoders[i];
        if (d->kind == TOK__BYTE_FALLBACK && t->flags[id] & TOK__IS_BYTE) {
            byte = (char)(json__hex(p[3]) << 4 | json__hex(p[4]));
            p = &byte;
            n = 1;
            is_byte = true;
        } else if (d->kind == TOK__REPLACE) {
            tok__buffer *b = &work[i & 1];
            b->n = 0;
            tok__replace(p, n, d->a, d->b, b);
            p = b->p ? b->p : "";
            n = b->n;
        } else if (d->kind == TOK__METASPACE) {
            tok__buffer *b = &work[i & 1];
            b->n = 0;
            tok__replace(p, n, d->a, d->how != TOK__NEVER && !s->begun ? "" : " ", b);
            p = b->p ? b->p : "";
            n = b->n;
        } else if (d->kind == TOK__STRIP && !s->begun && n && *p == ' ') {
            p++;
            n--;
        }
    }
    if (!is_byte && !t->byte_level && s->n_held) tok__stream(s, "", 0, true, out, user);
    s->begun = true;
    tok__stream(s, p, n, false, out, user);
    free(work[0].p);
    free(work[1].p);
}

void tokenizer_decode_end(const tokenizer *t, tokenizer_stream *s, tokenizer_text_fn out, void *user) {
    (void)t;
    tok__stream(s, "", 0, true, out, user);
}

/* ---- reading tokenizer.json ---- */

static json_value tok__member(json_value v, const char *name) { return json_get(v, name); }
static bool tok__is_set(json_value v) { return json_kind_of(v) != JSON_MISSING && json_kind_of(v) != JSON_NULL; }

static bool tok__flag(json_value object, const char *name, bool otherwise) {
    json_get_bool(json_get(object, name), &otherwise);
    return otherwise;
}

/* A thing of the file that is not read, by its type. */
static bool tok__unknown(tokenizer *t, const char *what, json_value type) {
    int shown = type.size > 60 ? 60 : (int)type.size;
    return tok__fail(t, "%s %.*s is not read", what, type.text ? shown : 6, type.text ? type.text : "(none)");
}

/* {"String": text} or {"Regex": text} under "pattern", or a bare text: the text. */
static json_value tok__pattern(json_value v, bool *out_regex) {
    json_value pattern = tok__member(v, "pattern"), regex = tok__member(pattern, "Regex"),
               text = tok__member(pattern, "String");
    *out_regex = json_kind_of(regex) == JSON_STRING;
    return *out_regex ? regex : json_kind_of(pattern) == JSON_STRING ? pattern : text;
}

static bool tok__step_text(tokenizer *t, const char *what, json_value v, char out[64], bool may_be_empty) {
    size_t n;
    if (!json_get_string(v, out, 64, &n) || strlen(out) != n || (!n && !may_be_empty))
        return tok__fail(t, "%s: a text of 1 to 63 bytes is missing", what);
    return true;
}

/* Steps of a normalizer, pre-tokenizer or decoder: the value itself, or the members of a Sequence. */
typedef bool (*tok__reader)(tokenizer *t, json_value v, json_value type);

static bool tok__read_steps(tokenizer *t, json_value v, const char *members, tok__reader read, int depth) {
    json_value none, item, type = tok__member(v, "type");
    if (!tok__is_set(v)) return true;
    if (!json_is(type, "Sequence")) return read(t, v, type);
    if (depth > 4) return tok__fail(t, "%s lie too deep in each other", members);
    for (json_iter i = json_begin(tok__member(v, members)); json_next(&i, &none, &item);)
        if (!tok__read_steps(t, item, members, read, depth + 1)) return false;
    return true;
}

static tok__step *tok__next_step(tokenizer *t, tok__step *steps, size_t *n, tok__kind kind) {
    if (*n == TOK__STEPS) {
        tok__fail(t, "more than %d steps of one kind", TOK__STEPS);
        return NULL;
    }
    tok__step *s = &steps[(*n)++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    return s;
}

static bool tok__read_normalizer(tokenizer *t, json_value v, json_value type) {
    static const struct {
        const char *name;
        tok__kind kind;
    } forms[] = {
        { "NFC", TOK__NFC },
        { "NFD", TOK__NFD },
        { "NFKC", TOK__NFKC },
        { "NFKD", TOK__NFKD },
    };
    bool regex = false, replace = json_is(type, "Replace");
    tok__step *s;
    for (size_t i = 0; i < 4; i++)
        if (json_is(type, forms[i].name))
            return tok__next_step(t, t->normalizers, &t->n_normalizers, forms[i].kind) != NULL;
    if (!replace && !json_is(type, "Prepend")) return tok__unknown(t, "the normalizer", type);
    json_value pattern = tok__pattern(v, &regex);
    if (replace && regex) return tok__unknown(t, "a normalizer that replaces the expression", pattern);
    s = tok__next_step(t, t->normalizers, &t->n_normalizers, replace ? TOK__REPLACE : TOK__PREPEND);
    if (!s) return false;
    if (!replace) return tok__step_text(t, "Prepend", tok__member(v, "prepend"), s->a, false);
    return tok__step_text(t, "Replace", pattern, s->a, false) &&
           tok__step_text(t, "Replace", tok__member(v, "content"), s->b, true);
}

#define TOK__REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOK__ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const struct {
    const char *text;
    tok__kind kind;
} tok__expressions[] = {
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", TOK__SPLIT_GPT2 },
    { TOK__ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TOK__REST, TOK__SPLIT_LLAMA3 },
    { TOK__ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TOK__REST, TOK__SPLIT_QWEN2 },
    { "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" TOK__ANY_CASE "?"
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" TOK__ANY_CASE "?"
      "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      TOK__SPLIT_O200K },
};

static bool tok__read_split(tokenizer *t, json_value v) {
    static const char *const behaviours[] = { "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext" };
    bool regex = false;
    int how = 0;
    json_value pattern = tok__pattern(v, &regex), behaviour = tok__member(v, "behavior");
    while (how < 4 && !json_is(behaviour, behaviours[how])) how++;
    if (how == 4) return tok__unknown(t, "the behavior of a Split", behaviour);
    /* Each of these expressions matches all of a text: what lies between is isolated too. */
    size_t i = 0, n = sizeof tok__expressions / sizeof *tok__expressions;
    while (regex && i < n && !json_is(pattern, tok__expressions[i].text)) i++;
    bool removed = how == TOK__REMOVED, invert = tok__flag(v, "invert", false);
    if (regex && (i == n || (how != TOK__ISOLATED && !(removed && invert))))
        return tok__unknown(t, "a Split by the expression", pattern);
    if (regex) return tok__next_step(t, t->splits, &t->n_splits, tok__expressions[i].kind) != NULL;
    if (invert) return tok__fail(t, "a Split by the inverse of a text is not read");
    tok__step *s = tok__next_step(t, t->splits, &t->n_splits, TOK__SPLIT_TEXT);
    if (!s) return false;
    s->how = (uint8_t)how;
    return tok__step_text(t, "Split", pattern, s->a, false);
}

/* Of a Metaspace as pre-tokenizer and as decoder. Old files say add_prefix_space. */
static bool tok__read_metaspace(tokenizer *t, json_value v, tok__step *s) {
    static const char *const schemes[] = { "always", "first", "never" };
    json_value scheme = tok__member(v, "prepend_scheme");
    int how = tok__flag(v, "add_prefix_space", true) ? TOK__ALWAYS : TOK__NEVER;
    if (!s) return false;
    if (tok__is_set(scheme))
        for (how = 0; how < 3 && !json_is(scheme, schemes[how]);) how++;
    if (how == 3) return tok__unknown(t, "the prepend_scheme", scheme);
    s->how = (uint8_t)how;
    s->split = tok__flag(v, "split", true);
    return tok__step_text(t, "Metaspace", tok__member(v, "replacement"), s->a, false);
}

static bool tok__read_pre_tokenizer(tokenizer *t, json_value v, json_value type) {
    if (json_is(type, "Split")) return tok__read_split(t, v);
    if (json_is(type, "Metaspace"))
        return tok__read_metaspace(t, v, tok__next_step(t, t->splits, &t->n_splits, TOK__METASPACE));
    if (json_is(type, "Digits"))
        return tok__next_step(t, t->splits, &t->n_splits,
                              tok__flag(v, "individual_digits", false) ? TOK__DIGIT : TOK__DIGITS) != NULL;
    if (!json_is(type, "ByteLevel")) return tok__unknown(t, "the pre-tokenizer", type);
    t->byte_level = true;
    if (tok__flag(v, "add_prefix_space", true) && !tok__next_step(t, t->splits, &t->n_splits, TOK__PREFIX_SPACE))
        return false;
    return !tok__flag(v, "use_regex", true) || tok__next_step(t, t->splits, &t->n_splits, TOK__SPLIT_GPT2) != NULL;
}

static bool tok__read_decoder(tokenizer *t, json_value v, json_value type) {
    bool regex = false;
    uint64_t start = 0, stop = 0;
    tok__step *s;
    if (json_is(type, "Fuse")) return true;
    if (json_is(type, "ByteLevel")) {
        if (!t->byte_level)
            return tok__fail(t, "a decoder of bytes without a pre-tokenizer that makes them is not read");
        return tok__next_step(t, t->decoders, &t->n_decoders, TOK__BYTES) != NULL;
    }
    if (json_is(type, "ByteFallback"))
        return tok__next_step(t, t->decoders, &t->n_decoders, TOK__BYTE_FALLBACK) != NULL;
    if (json_is(type, "Metaspace"))
        return tok__read_metaspace(t, v, tok__next_step(t, t->decoders, &t->n_decoders, TOK__METASPACE));
    if (json_is(type, "Strip")) {
        if (!json_is(tok__member(v, "content"), " ") || !json_get_u64(tok__member(v, "start"), &start) ||
            !json_get_u64(tok__member(v, "stop"), &stop) || start != 1 || stop)
            return tok__fail(t, "a Strip of other than one space at the start is not read");
        return tok__next_step(t, t->decoders, &t->n_decoders, TOK__STRIP) != NULL;
    }
    json_value pattern = tok__pattern(v, &regex);
    if (!json_is(type, "Replace") || regex) return tok__unknown(t, "the decoder", type);
    s = tok__next_step(t, t->decoders, &t->n_decoders, TOK__REPLACE);
    return s && tok__step_text(t, "Replace", pattern, s->a, false) &&
           tok__step_text(t, "Replace", tok__member(v, "content"), s->b, true);
}

/* Tokens around one text. */
static bool tok__read_template(tokenizer *t, json_value v, json_value type) {
    json_value none, item, id;
    bool seen = false;
    if (json_is(type, "ByteLevel")) return true;
    if (!json_is(type, "TemplateProcessing")) return tok__unknown(t, "the post-processor", type);
    for (json_iter i = json_begin(tok__member(v, "single")); json_next(&i, &none, &item);) {
        json_value special = tok__member(item, "SpecialToken"), name = tok__member(special, "id");
        if (!tok__is_set(special)) {
            seen = true;
            continue;
        }
        char text[256];
        if (!json_get_string(name, text, sizeof text, NULL)) return tok__fail(t, "a template's token has no name");
        for (json_iter k = json_begin(tok__member(tok__member(tok__member(v, "special_tokens"), text), "ids"));
             json_next(&k, &none, &id);) {
            uint64_t x;
            size_t *n = seen ? &t->n_after : &t->n_before;
            if (!json_get_u64(id, &x) || x >= t->n || *n == 8)
                return tok__fail(t, "the template's token %s has no id below %zu", text, t->n);
            (seen ? t->after : t->before)[(*n)++] = (uint32_t)x;
        }
    }
    return true;
}

/* The largest id + 1; SIZE_MAX: one is no id. */
static size_t tok__count_ids(json_value vocab, json_value added) {
    json_value key, value;
    size_t n = json_kind_of(vocab) == JSON_ARRAY ? json_count(vocab) : 0;
    uint64_t id;
    for (json_iter i = json_begin(vocab); json_kind_of(vocab) == JSON_OBJECT && json_next(&i, &key, &value);) {
        if (!json_get_u64(value, &id) || id >= TOK__IDS) return SIZE_MAX;
        if (id >= n) n = (size_t)id + 1;
    }
    for (json_iter i = json_begin(added); json_next(&i, &key, &value);) {
        if (!json_get_u64(tok__member(value, "id"), &id) || id >= TOK__IDS) return SIZE_MAX;
        if (id >= n) n = (size_t)id + 1;
    }
    return n;
}

static bool tok__read_vocabulary(tokenizer *t, json_value vocab, json_value added) {
    json_value key, value;
    uint64_t id;
    size_t n = tok__count_ids(vocab, added);
    if (n == SIZE_MAX || n > TOK__IDS) return tok__fail(t, "an id is not a number below %d", TOK__IDS);
    if (!tok__make_room(t, n)) return false;
    for (json_iter i = json_begin(vocab); json_next(&i, &key, &value);)
        if (!json_get_u64(value, &id) || !tok__enter_json(t, (uint32_t)id, key, true))
            return t->error[0] ? false : tok__fail(t, "the vocabulary is wrong");
    return true;
}

static bool tok__read_pieces(tokenizer *t, json_value vocab, json_value added) {
    json_value none, pair, piece, score;
    size_t n = tok__count_ids(vocab, added), id = 0;
    if (n == SIZE_MAX || n > TOK__IDS) return tok__fail(t, "an id is not a number below %d", TOK__IDS);
    if (!tok__make_room(t, n)) return false;
    t->scores = (double *)calloc(n + 1, sizeof *t->scores);
    if (!t->scores) return tok__no_memory(t);
    double least = 0;
    for (json_iter i = json_begin(vocab); json_next(&i, &none, &pair); id++) {
        json_iter k = json_begin(pair);
        if (json_kind_of(pair) != JSON_ARRAY || !json_next(&k, &none, &piece) || !json_next(&k, &none, &score) ||
            !json_get_double(score, &t->scores[id]))
            return tok__fail(t, "piece %zu is not a text with a score", id);
        if (!tok__enter_json(t, (uint32_t)id, piece, true)) return false;
        tok__text x = t->pieces[id];
        if (x.size && !tok__trie_add(&t->unigram, tok__at(t, x), x.size, (uint32_t)id)) return tok__no_memory(t);
        if (id == 0 || t->scores[id] < least) least = t->scores[id];
    }
    t->unk_score = least - 10;
    return true;
}

/* Room for n merges. */
static bool tok__make_merges(tokenizer *t, size_t n) {
    t->merge_room = tok__room(n);
    t->merge_shift = 64;
    for (size_t i = 1; i < t->merge_room; i *= 2) t->merge_shift--;
    t->merges = (tok__merge *)malloc(t->merge_room * sizeof *t->merges);
    t->merge_filter = (uint8_t *)calloc(t->merge_room, 1);
    if (!t->merges || !t->merge_filter) return tok__no_memory(t);
    for (size_t i = 0; i < t->merge_room; i++) t->merges[i] = (tok__merge){ 0, TOKENIZER_NONE, 0 };
    return true;
}

/* x and y become z. */
static void tok__enter_merge(tokenizer *t, uint32_t x, uint32_t y, uint32_t rank, uint32_t z) {
    uint64_t pair = (uint64_t)x << 32 | y;
    uint64_t h = tok__merge_hash(pair);
    size_t i = (size_t)(h >> t->merge_shift), bit = (size_t)(h >> (t->merge_shift - 3));
    t->merge_filter[bit / 8] |= (uint8_t)(1 << bit % 8);
    while (t->merges[i].rank != TOKENIZER_NONE && t->merges[i].pair != pair) i = (i + 1) & (t->merge_room - 1);
    t->merges[i] = (tok__merge){ pair, rank, z };
}

/* Enters a merge of two tokens of the vocabulary whose texts together are a third. */
static bool tok__add_merge(tokenizer *t, const char *a, size_t na, const char *b, size_t nb, uint32_t rank) {
    char both[2 * TOK__TOKEN];
    if (na > TOK__TOKEN || nb > TOK__TOKEN) return tok__fail(t, "merge %u is longer than %d bytes", rank, TOK__TOKEN);
    memcpy(both, a, na);
    memcpy(both + na, b, nb);
    uint32_t x = tok__id_of(t, a, na), y = tok__id_of(t, b, nb), z = tok__id_of(t, both, na + nb);
    if (x == TOKENIZER_NONE || y == TOKENIZER_NONE || z == TOKENIZER_NONE)
        return tok__fail(t, "merge %u names a token that is not in the vocabulary", rank);
    tok__enter_merge(t, x, y, rank, z);
    return true;
}

/* "a b" */
static bool tok__add_merge_line(tokenizer *t, const char *p, size_t n, uint32_t rank) {
    const char *space = n ? (const char *)memchr(p, ' ', n) : NULL, *b = space ? space + 1 : NULL;
    if (!space || memchr(b, ' ', n - (size_t)(b - p)))
        return tok__fail(t, "merge %u is not two texts with a space between", rank);
    return tok__add_merge(t, p, (size_t)(space - p), b, n - (size_t)(b - p), rank);
}

/* "a b", or ["a", "b"]. */
static bool tok__read_merge(tokenizer *t, json_value v, uint32_t rank) {
    char a[TOK__TOKEN], b[TOK__TOKEN];
    size_t na = 0, nb = 0;
    json_value none, first, second;
    json_iter i = json_begin(v);
    if (json_kind_of(v) == JSON_ARRAY) {
        if (!json_next(&i, &none, &first) || !json_next(&i, &none, &second) ||
            !json_get_string(first, a, sizeof a, &na) || !json_get_string(second, b, sizeof b, &nb))
            return tok__fail(t, "merge %u is not a pair of texts", rank);
        return tok__add_merge(t, a, na, b, nb, rank);
    }
    return tok__add_merge_line(t, a, json_get_string(v, a, sizeof a, &na) ? na : 0, rank);
}

static bool tok__read_merges(tokenizer *t, json_value merges) {
    json_value none, merge;
    size_t n = json_count(merges);
    uint32_t rank = 0;
    if (n > TOK__IDS) return tok__fail(t, "more than %d merges", TOK__IDS);
    if (!tok__make_merges(t, n)) return false;
    for (json_iter i = json_begin(merges); json_next(&i, &none, &merge); rank++)
        if (!tok__read_merge(t, merge, rank)) return false;
    return true;
}

/* Ids of single bytes: of byte-level tokens themselves, otherwise of <0x00> to <0xFF>. */
static void tok__find_bytes(tokenizer *t) {
    for (int i = 0; i < 256; i++) {
        char name[8], byte = (char)i;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        t->bytes[i] = t->byte_level ? tok__find(t, &byte, 1) : tokenizer_find(t, name);
        if (!t->byte_level && t->bytes[i] != TOKENIZER_NONE) t->flags[t->bytes[i]] |= TOK__IS_BYTE;
    }
}

/* Merges of two bytes by the bytes, where each byte is a token: most searches of a short word are these. */
static bool tok__make_byte_merges(tokenizer *t) {
    if (!t->byte_level || !t->merges) return true;
    for (int i = 0; i < 256; i++)
        if (t->bytes[i] == TOKENIZER_NONE) return true;
    t->byte_merges = (uint32_t *)calloc(256 * 256, sizeof *t->byte_merges);
    if (!t->byte_merges) return tok__no_memory(t);
    for (int i = 0; i < 256 * 256; i++) {
        const tok__merge *m = tok__merge_of(t, t->bytes[i >> 8], t->bytes[i & 255]);
        if (m) t->byte_merges[i] = (uint32_t)(m - t->merges) + 1;
    }
    return true;
}

static bool tok__read_bpe(tokenizer *t, json_value model, json_value added) {
    static const char *const unread[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    char unk[256];
    double dropout = 0;
    for (int i = 0; i < 2; i++)
        if (tok__is_set(tok__member(model, unread[i])) && !json_is(tok__member(model, unread[i]), ""))
            return tok__fail(t, "a BPE with %s is not read", unread[i]);
    if (json_get_double(tok__member(model, "dropout"), &dropout) && dropout > 0)
        return tok__fail(t, "a BPE with dropout is not read");
    t->fuse_unk = tok__flag(model, "fuse_unk", false);
    t->ignore_merges = tok__flag(model, "ignore_merges", false);
    if (json_kind_of(tok__member(model, "vocab")) != JSON_OBJECT ||
        json_kind_of(tok__member(model, "merges")) != JSON_ARRAY)
        return tok__fail(t, "the BPE has no vocab or no merges");
    if (!tok__read_vocabulary(t, tok__member(model, "vocab"), added) ||
        !tok__read_merges(t, tok__member(model, "merges")))
        return false;
    if (!tok__is_set(tok__member(model, "unk_token"))) return true;
    if (!json_get_string(tok__member(model, "unk_token"), unk, sizeof unk, NULL) ||
        (t->unk = tokenizer_find(t, unk)) == TOKENIZER_NONE)
        return tok__fail(t, "the unk_token is not in the vocabulary");
    return true;
}

static bool tok__read_model(tokenizer *t, json_value model, json_value added) {
    json_value type = tok__member(model, "type");
    uint64_t unk;
    t->unk = TOKENIZER_NONE;
    t->byte_fallback = tok__flag(model, "byte_fallback", false);
    t->is_unigram = json_is(type, "Unigram");
    if (!t->is_unigram) {
        bool untyped = !tok__is_set(type) && tok__is_set(tok__member(model, "merges"));
        if (!json_is(type, "BPE") && !untyped) return tok__unknown(t, "the model", type);
        if (!tok__read_bpe(t, model, added)) return false;
    } else {
        if (t->byte_level) return tok__fail(t, "a Unigram model on bytes is not read");
        if (json_kind_of(tok__member(model, "vocab")) != JSON_ARRAY)
            return tok__fail(t, "the Unigram model has no vocab");
        if (!tok__read_pieces(t, tok__member(model, "vocab"), added)) return false;
        if (json_get_u64(tok__member(model, "unk_id"), &unk)) t->unk = unk < t->n ? (uint32_t)unk : TOKENIZER_NONE;
    }
    tok__find_bytes(t);
    return true;
}

/* Enters an added token whose flags are set; one that the vocabulary has keeps its id. */
static bool tok__add(tokenizer *t, const char *text, size_t n, uint32_t id, tok__added flags) {
    tok__buffer work[2] = { { NULL, 0, 0, false }, { NULL, 0, 0, false } };
    tok__points x = { NULL, 0, 0, false };
    tok__added *a = &t->added[t->n_added];
    uint32_t known = tok__id_of(t, text, n);
    *a = flags;
    a->id = known != TOKENIZER_NONE ? known : id;
    if (known == TOKENIZER_NONE && !tok__enter(t, a->id, text, n, false)) return false;
    a->text = t->tokens[a->id];
    t->flags[a->id] |= (uint8_t)(TOK__ADDED | (a->special ? TOK__SPECIAL : 0));
    const char *p = tok__at(t, a->text);
    size_t size = a->text.size;
    bool ok = !a->normalized || tok__normalize(t, &p, &size, &x, work);
    ok = ok && tok__trie_add(a->normalized ? &t->normal : &t->raw, p, size, (uint32_t)t->n_added++);
    bool changed = ok && (size != a->text.size || memcmp(p, tok__at(t, a->text), size));
    if (changed && !t->byte_level) t->pieces[a->id] = tok__keep(t, p, size); /* so the package decodes it */
    ok = ok && t->pieces[a->id].size != TOKENIZER_NONE;
    free(x.c);
    free(work[0].p);
    free(work[1].p);
    return ok || tok__no_memory(t);
}

/* The flags that a file gives to an added token. */
static tok__added tok__added_flags(json_value v, bool special) {
    tok__added a = { 0 };
    a.single_word = tok__flag(v, "single_word", false);
    a.lstrip = tok__flag(v, "lstrip", false);
    a.rstrip = tok__flag(v, "rstrip", false);
    a.special = tok__flag(v, "special", special);
    a.normalized = tok__flag(v, "normalized", !a.special);
    return a;
}

static bool tok__read_added_one(tokenizer *t, json_value v) {
    char text[TOK__TOKEN];
    uint64_t id;
    size_t n;
    if (!json_get_string(tok__member(v, "content"), text, sizeof text, &n) || !n ||
        !json_get_u64(tok__member(v, "id"), &id) || id >= t->n)
        return tok__fail(t, "an added token has no text or no id");
    return tok__add(t, text, n, (uint32_t)id, tok__added_flags(v, false));
}

static bool tok__make_added(tokenizer *t, size_t n) {
    if (n > TOK__IDS) return tok__fail(t, "more than %d added tokens", TOK__IDS);
    t->added = (tok__added *)calloc(n + 1, sizeof *t->added);
    return t->added || tok__no_memory(t);
}

static bool tok__read_added(tokenizer *t, json_value added) {
    json_value none, v;
    if (!tok__make_added(t, json_count(added))) return false;
    for (json_iter i = json_begin(added); json_next(&i, &none, &v);)
        if (!tok__read_added_one(t, v)) return false;
    return true;
}

static bool tok__read(tokenizer *t, json_value root) {
    json_value added = tok__member(root, "added_tokens");
    return tok__unicode(t) &&
           tok__read_steps(t, tok__member(root, "normalizer"), "normalizers", tok__read_normalizer, 0) &&
           tok__mark_forms(t) &&
           tok__read_steps(t, tok__member(root, "pre_tokenizer"), "pretokenizers", tok__read_pre_tokenizer, 0) &&
           tok__read_model(t, tok__member(root, "model"), added) && tok__read_added(t, added) &&
           tok__read_steps(t, tok__member(root, "decoder"), "decoders", tok__read_decoder, 0) &&
           tok__read_steps(t, tok__member(root, "post_processor"), "processors", tok__read_template, 0);
}

/* ---- files ---- */

typedef struct tok__file {
    mapping map;
    json_value root;
    char path[4096];
    bool open;
} tok__file;

/* The file of a folder, or the path itself; from here on errors name it. */
static bool tok__open_file(tokenizer *t, tok__file *f, const char *path, const char *name) {
    snprintf(f->path, sizeof f->path, "%.4000s%s%s", path, *name ? "/" : "", name);
    t->path = f->path;
    f->open = mapping_open(&f->map, f->path, t->error, TOKENIZER_ERROR);
    if (!f->open || f->map.size <= TOK__FILE) return f->open;
    return tok__fail(t, "%llu bytes are more than %d", (unsigned long long)f->map.size, TOK__FILE);
}

static bool tok__open_json(tokenizer *t, tok__file *f, const char *path, const char *name) {
    json_error why;
    json_limits limits = { .bytes = TOK__FILE, .depth = 32 };
    return tok__open_file(t, f, path, name) &&
           (json_check((const char *)f->map.data, (size_t)f->map.size, &limits, &f->root, &why) ||
            tok__fail(t, "byte %zu: %s", why.offset, why.text));
}

/* Of a file that may be missing: then nothing is a member of it. */
static bool tok__open_optional(tokenizer *t, tok__file *f, const char *path, const char *name) {
    struct stat info;
    char place[4096];
    snprintf(place, sizeof place, "%.4000s/%s", path, name);
    return stat(place, &info) ? errno == ENOENT || tok__fail(t, "%s: %s", name, strerror(errno))
                              : tok__open_json(t, f, path, name);
}

static bool tok__close_file(tokenizer *t, tok__file *f, bool ok) {
    if (!f->open) return ok;
    if (ok && mapping_cut(&f->map) != MAPPING_WHOLE) {
        t->path = f->path;
        ok = tok__fail(t, "the file was cut while it was read");
    }
    mapping_close(&f->map);
    return ok;
}

/* ---- vocab.json and merges.txt ---- */

typedef struct tok__folder {
    tok__file vocab, merges, added, special, config;
} tok__folder;

static const char *const tok__roles[] = { "bos_token", "eos_token", "unk_token",  "sep_token",
                                          "pad_token", "cls_token", "mask_token", "additional_special_tokens" };
enum { TOK__ROLES = sizeof tok__roles / sizeof *tok__roles };

/* Lines "a b"; the first may say the version. */
static bool tok__read_merge_lines(tokenizer *t, const tok__file *f) {
    const char *p = (const char *)f->map.data, *end = p + f->map.size;
    size_t n = 0;
    uint32_t rank = 0;
    for (const char *q = p; q < end; q++) n += *q == '\n';
    if (n > TOK__IDS) return tok__fail(t, "more than %d merges", TOK__IDS);
    if (!tok__make_merges(t, n + 1)) return false;
    if ((size_t)(end - p) >= 8 && !memcmp(p, "#version", 8)) {
        const char *line = (const char *)memchr(p, '\n', (size_t)(end - p));
        p = line ? line + 1 : end;
    }
    for (; p < end; rank++) {
        const char *line = (const char *)memchr(p, '\n', (size_t)(end - p)), *to = line ? line : end;
        if (!tok__add_merge_line(t, p, (size_t)(to - p), rank)) return false;
        p = line ? line + 1 : end;
    }
    return true;
}

/* A token that a role names, as a text or with its flags; what the vocabulary does not have has no id. */
static bool tok__add_role(tokenizer *t, const char *role, json_value v) {
    char text[256];
    size_t n;
    json_value content = json_kind_of(v) == JSON_OBJECT ? tok__member(v, "content") : v;
    if (!json_get_string(content, text, sizeof text, &n) || !n) return tok__fail(t, "the %s is not a token", role);
    uint32_t id = tok__id_of(t, text, n);
    if (id == TOKENIZER_NONE) return tok__fail(t, "the %s \"%s\" is not in the vocabulary", role, text);
    if (t->flags[id] & TOK__ADDED) {
        t->flags[id] |= TOK__SPECIAL;
        for (size_t i = 0; i < t->n_added; i++) t->added[i].special |= t->added[i].id == id;
        return true;
    }
    return tok__add(t, text, n, id, tok__added_flags(v, true));
}

/* Those of a file are counted, and entered once there is room for them. */
static bool tok__add_roles(tokenizer *t, json_value root, size_t *count) {
    json_value none, item;
    for (int i = 0; i < TOK__ROLES; i++) {
        json_value v = tok__member(root, tok__roles[i]);
        bool list = json_kind_of(v) == JSON_ARRAY;
        if (!tok__is_set(v)) continue;
        *count += list ? json_count(v) : 1;
        if (t->added && !list && !tok__add_role(t, tok__roles[i], v)) return false;
        for (json_iter k = json_begin(v); t->added && list && json_next(&k, &none, &item);)
            if (!tok__add_role(t, tok__roles[i], item)) return false;
    }
    return true;
}

/* added_tokens_decoder: {"5": {"content": …}}; its ids too. */
static bool tok__decoder_id(json_value key, uint64_t *out) {
    char digits[16];
    size_t n;
    *out = 0;
    if (!json_get_string(key, digits, sizeof digits, &n) || !n || n > 9) return false;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(digits[i] - '0');
    }
    return *out < TOK__IDS;
}

static bool tok__read_decoder_tokens(tokenizer *t, json_value decoder) {
    json_value key, v;
    for (json_iter i = json_begin(decoder); json_next(&i, &key, &v);) {
        char text[TOK__TOKEN];
        uint64_t id;
        size_t n;
        if (!tok__decoder_id(key, &id) || !json_get_string(tok__member(v, "content"), text, sizeof text, &n) || !n)
            return tok__fail(t, "an added token has no text or no id");
        if (!tok__add(t, text, n, (uint32_t)id, tok__added_flags(v, false))) return false;
    }
    return true;
}

/* added_tokens.json: {"<s>": 5} */
static bool tok__read_added_ids(tokenizer *t, json_value added) {
    json_value key, v;
    for (json_iter i = json_begin(added); json_next(&i, &key, &v);) {
        char text[TOK__TOKEN];
        uint64_t id;
        size_t n;
        if (!json_get_string(key, text, sizeof text, &n) || !n || !json_get_u64(v, &id) || id >= t->n)
            return tok__fail(t, "an added token has no text or no id");
        if (!tok__add(t, text, n, (uint32_t)id, (tok__added){ .normalized = true })) return false;
    }
    return true;
}

/* The largest id + 1 of all three places; SIZE_MAX: one is no id. */
static size_t tok__count_folder(const tok__folder *f, json_value decoder) {
    json_value key, v;
    size_t n = tok__count_ids(f->vocab.root, (json_value){ NULL, 0 }), m = 0;
    for (json_iter i = json_begin(f->added.root); n != SIZE_MAX && json_next(&i, &key, &v);) {
        uint64_t id;
        if (!json_get_u64(v, &id) || id >= TOK__IDS) return SIZE_MAX;
        m = id >= m ? (size_t)id + 1 : m;
    }
    for (json_iter i = json_begin(decoder); n != SIZE_MAX && json_next(&i, &key, &v);) {
        uint64_t id;
        if (!tok__decoder_id(key, &id)) return SIZE_MAX;
        m = id >= m ? (size_t)id + 1 : m;
    }
    return n > m ? n : m;
}

/* The steps of the tokenizer's class. */
static bool tok__read_class(tokenizer *t, json_value config) {
    json_value class = tok__member(config, "tokenizer_class");
    bool qwen = json_is(class, "Qwen2Tokenizer") || json_is(class, "Qwen2TokenizerFast");
    if (tok__is_set(class) && !qwen && !json_is(class, "GPT2Tokenizer") && !json_is(class, "GPT2TokenizerFast"))
        return tok__unknown(t, "from vocab.json and merges.txt the tokenizer_class", class);
    t->byte_level = true;
    return (!qwen || tok__next_step(t, t->normalizers, &t->n_normalizers, TOK__NFC)) &&
           (!tok__flag(config, "add_prefix_space", false) ||
            tok__next_step(t, t->splits, &t->n_splits, TOK__PREFIX_SPACE)) &&
           tok__next_step(t, t->splits, &t->n_splits, qwen ? TOK__SPLIT_QWEN2 : TOK__SPLIT_GPT2) &&
           tok__next_step(t, t->decoders, &t->n_decoders, TOK__BYTES);
}

static bool tok__read_folder_added(tokenizer *t, const tok__folder *f, json_value decoder) {
    size_t n = json_count(decoder) + json_count(f->added.root) + 1, roles = 0;
    uint32_t end = tokenizer_find(t, "<|endoftext|>");
    (void)tok__add_roles(t, f->config.root, &roles); /* counts */
    (void)tok__add_roles(t, f->special.root, &roles);
    if (!tok__make_added(t, n + roles)) return false;
    if (tok__is_set(decoder) ? !tok__read_decoder_tokens(t, decoder) : !tok__read_added_ids(t, f->added.root))
        return false;
    if (!tok__add_roles(t, f->special.root, &roles) || !tok__add_roles(t, f->config.root, &roles)) return false;
    if (end == TOKENIZER_NONE || t->flags[end] & TOK__ADDED) return true;
    return tok__add(t, "<|endoftext|>", 13, end, (tok__added){ .special = true }); /* both classes have it so */
}

/* The first token, if the class is told to add it. */
static bool tok__read_folder_first(tokenizer *t, const tok__folder *f) {
    char text[256];
    if (!tok__flag(f->config.root, "add_bos_token", false)) return true;
    json_value v = tok__member(f->config.root, "bos_token");
    if (!tok__is_set(v)) v = tok__member(f->special.root, "bos_token");
    if (json_kind_of(v) == JSON_OBJECT) v = tok__member(v, "content");
    if (!tok__is_set(v)) snprintf(text, sizeof text, "<|endoftext|>");
    else if (!json_get_string(v, text, sizeof text, NULL)) return tok__fail(t, "the bos_token is not a token");
    t->before[0] = tokenizer_find(t, text);
    t->n_before = t->before[0] != TOKENIZER_NONE;
    return t->n_before || tok__fail(t, "the bos_token \"%s\" is not in the vocabulary", text);
}

static bool tok__read_folder(tokenizer *t, tok__folder *f, const char *path) {
    json_value decoder = { NULL, 0 }, key, id;
    if (!tok__open_optional(t, &f->config, path, "tokenizer_config.json") || !tok__read_class(t, f->config.root))
        return false;
    decoder = tok__member(f->config.root, "added_tokens_decoder");
    if (!tok__open_optional(t, &f->special, path, "special_tokens_map.json") ||
        !tok__open_optional(t, &f->added, path, "added_tokens.json") ||
        !tok__open_json(t, &f->vocab, path, "vocab.json"))
        return false;
    size_t n = tok__count_folder(f, decoder);
    if (n == SIZE_MAX || n > TOK__IDS) return tok__fail(t, "an id is not a number below %d", TOK__IDS);
    if (!tok__unicode(t) || !tok__mark_forms(t) || !tok__make_room(t, n)) return false;
    for (json_iter i = json_begin(f->vocab.root); json_next(&i, &key, &id);) {
        uint64_t x;
        if (!json_get_u64(id, &x) || !tok__enter_json(t, (uint32_t)x, key, true)) return false;
    }
    if (!tok__open_file(t, &f->merges, path, "merges.txt") || !tok__read_merge_lines(t, &f->merges)) return false;
    t->path = path;
    t->unk = TOKENIZER_NONE;
    tok__find_bytes(t);
    return tok__read_folder_added(t, f, decoder) && tok__read_folder_first(t, f);
}

/* ---- GGUF ---- */

typedef struct tok__gguf {
    gguf *g;
    gguf_value tokens, types, scores;
    size_t n;
} tok__gguf;

enum tok__token_type { TOK__UNDEFINED, TOK__NORMAL, TOK__UNKNOWN, TOK__CONTROL, TOK__USER, TOK__UNUSED, TOK__BYTE };

/* The i-th element of an array whose length was checked. */
static gguf_value tok__item(gguf_value array, size_t i, size_t bytes) {
    return (gguf_value){ array.item, array.item, 1, array.data + i * bytes };
}
static unsigned tok__type_at(const tok__gguf *x, size_t i) {
    return x->types.data ? *tok__item(x->types, i, 4).data : TOK__NORMAL;
}
static double tok__score_at(const tok__gguf *x, size_t i) {
    gguf_value v = tok__item(x->scores, i, 4);
    double score = 0;
    return x->scores.data && gguf_value_f64(&v, &score) ? score : 0;
}

/* An array of n elements of four bytes that may be missing. */
static bool tok__gguf_array(tokenizer *t, tok__gguf *x, const char *key, gguf_kind kind, gguf_value *out) {
    if (!gguf_get(x->g, key, out)) return true;
    if (out->kind == GGUF_KIND_ARRAY && out->item == kind && out->count == x->n) return true;
    return tok__fail(t, "%s is not a list of one number for each of %zu tokens", key, x->n);
}

/* Values of tokenizer.ggml.pre: the expression, and what else they say. */
static const struct {
    const char *name;
    tok__kind kind;
    bool digits, ignore_merges, nfc, bos;
} tok__pre[] = {
    { "gpt-2", TOK__SPLIT_GPT2, false, false, false, false },
    { "phi-2", TOK__SPLIT_GPT2, false, false, false, false },
    { "mpt", TOK__SPLIT_GPT2, false, false, false, false },
    { "olmo", TOK__SPLIT_GPT2, false, false, false, false },
    { "starcoder", TOK__SPLIT_GPT2, true, false, false, false },
    { "refact", TOK__SPLIT_GPT2, true, false, false, false },
    { "command-r", TOK__SPLIT_GPT2, true, false, false, false },
    { "smollm", TOK__SPLIT_GPT2, true, false, false, false },
    { "codeshell", TOK__SPLIT_GPT2, true, false, false, false },
    { "exaone", TOK__SPLIT_GPT2, true, false, false, false },
    { "llama3", TOK__SPLIT_LLAMA3, false, true, false, true },
    { "llama-v3", TOK__SPLIT_LLAMA3, false, true, false, true },
    { "llama-bpe", TOK__SPLIT_LLAMA3, false, true, false, true },
    { "falcon3", TOK__SPLIT_LLAMA3, false, true, false, true },
    { "dbrx", TOK__SPLIT_LLAMA3, false, false, false, false },
    { "smaug-bpe", TOK__SPLIT_LLAMA3, false, false, false, false },
    { "qwen2", TOK__SPLIT_QWEN2, false, false, true, false },
    { "deepseek-r1-qwen", TOK__SPLIT_QWEN2, false, false, true, false },
    { "stablelm2", TOK__SPLIT_QWEN2, false, false, false, false },
    { "gpt-4o", TOK__SPLIT_O200K, false, false, false, false },
    { "llama4", TOK__SPLIT_O200K, false, false, false, false },
};

/* Steps of a byte-level BPE; *out_bos: whether texts begin with the first token when the file does not say. */
static bool tok__gguf_on_bytes(tokenizer *t, tok__gguf *x, bool *out_bos) {
    gguf_string pre = { "", 0 };
    size_t i = 0, n = sizeof tok__pre / sizeof *tok__pre;
    if (!gguf_get_string(x->g, "tokenizer.ggml.pre", &pre)) return tok__fail(t, "tokenizer.ggml.pre is missing");
    while (i < n && (strlen(tok__pre[i].name) != pre.size || memcmp(tok__pre[i].name, pre.text, (size_t)pre.size))) i++;
    int shown = pre.size > 60 ? 60 : (int)pre.size;
    if (i == n) return tok__fail(t, "the tokenizer.ggml.pre \"%.*s\" is not read", shown, pre.text);
    t->byte_level = true;
    t->ignore_merges = tok__pre[i].ignore_merges;
    *out_bos = tok__pre[i].bos;
    return (!tok__pre[i].nfc || tok__next_step(t, t->normalizers, &t->n_normalizers, TOK__NFC)) &&
           (!tok__pre[i].digits || tok__next_step(t, t->splits, &t->n_splits, TOK__DIGIT)) &&
           tok__next_step(t, t->splits, &t->n_splits, tok__pre[i].kind) &&
           tok__next_step(t, t->decoders, &t->n_decoders, TOK__BYTES);
}

/* Steps of SentencePiece's models: spaces are U+2581, one goes before a text. */
static bool tok__gguf_on_pieces(tokenizer *t, tok__gguf *x) {
    bool prefix = true, shorten = false;
    gguf_value v;
    tok__step *s = NULL;
    (void)gguf_get_bool(x->g, "tokenizer.ggml.add_space_prefix", &prefix);
    (void)gguf_get_bool(x->g, "tokenizer.ggml.remove_extra_whitespaces", &shorten);
    if (shorten) return tok__fail(t, "tokenizer.ggml.remove_extra_whitespaces is not read");
    if (gguf_get(x->g, "tokenizer.ggml.precompiled_charsmap", &v) && v.count)
        return tok__fail(t, "tokenizer.ggml.precompiled_charsmap is not read");
    t->byte_fallback = t->fuse_unk = true;
    if (prefix && !(s = tok__next_step(t, t->normalizers, &t->n_normalizers, TOK__PREPEND))) return false;
    if (s) snprintf(s->a, sizeof s->a, "\xe2\x96\x81");
    if (!(s = tok__next_step(t, t->normalizers, &t->n_normalizers, TOK__REPLACE))) return false;
    snprintf(s->a, sizeof s->a, " ");
    snprintf(s->b, sizeof s->b, "\xe2\x96\x81");
    if (!(s = tok__next_step(t, t->decoders, &t->n_decoders, TOK__REPLACE))) return false;
    snprintf(s->a, sizeof s->a, "\xe2\x96\x81");
    snprintf(s->b, sizeof s->b, " ");
    return tok__next_step(t, t->decoders, &t->n_decoders, TOK__BYTE_FALLBACK) &&
           (!prefix || tok__next_step(t, t->decoders, &t->n_decoders, TOK__STRIP));
}

static bool tok__gguf_tokens(tokenizer *t, tok__gguf *x) {
    gguf_value at, item;
    gguf_string text;
    if (!gguf_get(x->g, "tokenizer.ggml.tokens", &x->tokens) || x->tokens.kind != GGUF_KIND_ARRAY ||
        x->tokens.item != GGUF_KIND_STRING || x->tokens.count > TOK__IDS)
        return tok__fail(t, "tokenizer.ggml.tokens is not a list of at most %d texts", TOK__IDS);
    x->n = (size_t)x->tokens.count;
    if (!tok__gguf_array(t, x, "tokenizer.ggml.token_type", GGUF_KIND_I32, &x->types) ||
        !tok__gguf_array(t, x, "tokenizer.ggml.scores", GGUF_KIND_F32, &x->scores) || !tok__make_room(t, x->n))
        return false;
    at = x->tokens;
    for (uint32_t id = 0; gguf_next(&at, &item); id++) {
        unsigned type = tok__type_at(x, id);
        bool of_model = type == TOK__NORMAL || type == TOK__BYTE || type == TOK__UNDEFINED;
        if (!gguf_value_string(&item, &text) || text.size > TOK__TOKEN)
            return tok__fail(t, "the token of id %u is longer than %d bytes", id, TOK__TOKEN);
        if (!tok__enter(t, id, text.text, (size_t)text.size, of_model && text.size)) return false;
    }
    return true;
}

static bool tok__gguf_merges(tokenizer *t, tok__gguf *x) {
    gguf_value at, item;
    gguf_string text;
    uint32_t rank = 0;
    if (!gguf_get(x->g, "tokenizer.ggml.merges", &at) || at.kind != GGUF_KIND_ARRAY || at.item != GGUF_KIND_STRING ||
        at.count > TOK__IDS)
        return tok__fail(t, "tokenizer.ggml.merges is not a list of at most %d texts", TOK__IDS);
    if (!tok__make_merges(t, (size_t)at.count)) return false;
    for (; gguf_next(&at, &item); rank++)
        if (!gguf_value_string(&item, &text) || !tok__add_merge_line(t, text.text, (size_t)text.size, rank))
            return t->error[0] ? false : tok__fail(t, "merge %u is not a text", rank);
    return true;
}

typedef struct tok__ranked {
    double score;
    uint32_t id, rank;
} tok__ranked;

static int tok__by_score(const void *a, const void *b) {
    double x = ((const tok__ranked *)a)->score, y = ((const tok__ranked *)b)->score;
    return (x < y) - (x > y);
}

/* Whether the token takes part in joining. */
static bool tok__joins(const tok__gguf *x, uint32_t id) {
    unsigned type = tok__type_at(x, id);
    return type == TOK__NORMAL || type == TOK__UNDEFINED;
}

/* Every way to cut the token into two others is a merge of its rank: counted, or entered. */
static size_t tok__cuts(tokenizer *t, const tok__gguf *x, const tok__ranked *r, bool enter) {
    tok__text text = t->tokens[r->id];
    const char *p = tok__at(t, text);
    size_t n = 0;
    if (!tok__joins(x, r->id)) return 0;
    for (size_t i = 0, k; i < text.size; i += k) {
        tok__char(p + i, &k);
        uint32_t a = i ? tok__id_of(t, p, i) : TOKENIZER_NONE,
                 b = a != TOKENIZER_NONE ? tok__id_of(t, p + i, text.size - i) : TOKENIZER_NONE;
        if (b == TOKENIZER_NONE || !tok__joins(x, a) || !tok__joins(x, b)) continue;
        if (enter) tok__enter_merge(t, a, b, r->rank, r->id);
        n++;
    }
    return n;
}

/* SentencePiece's BPE: neighbours whose texts together are a token are joined in the order of that token's score. */
static bool tok__gguf_joins(tokenizer *t, tok__gguf *x) {
    tok__ranked *all = (tok__ranked *)malloc((x->n + 1) * sizeof *all);
    uint64_t work = 0;
    size_t cuts = 0;
    if (!all) return tok__no_memory(t);
    for (uint32_t i = 0; i < x->n; i++) {
        all[i] = (tok__ranked){ tok__score_at(x, i), i, 0 };
        work += (uint64_t)t->tokens[i].size * t->tokens[i].size;
    }
    bool ok = work < (UINT64_C(1) << 31) || tok__fail(t, "the tokens are too long");
    qsort(all, x->n, sizeof *all, tok__by_score);
    for (size_t i = 1; i < x->n; i++) all[i].rank = all[i - 1].rank + (all[i].score < all[i - 1].score);
    for (size_t i = 0; ok && i < x->n; i++) cuts += tok__cuts(t, x, &all[i], false);
    ok = ok && tok__make_merges(t, cuts);
    for (size_t i = 0; ok && i < x->n; i++) (void)tok__cuts(t, x, &all[i], true);
    free(all);
    return ok;
}

static bool tok__gguf_scores(tokenizer *t, tok__gguf *x) {
    double least = 0;
    if (!x->scores.data) return tok__fail(t, "tokenizer.ggml.scores is missing");
    t->is_unigram = true;
    t->scores = (double *)calloc(x->n + 1, sizeof *t->scores);
    if (!t->scores) return tok__no_memory(t);
    for (uint32_t i = 0; i < x->n; i++) {
        tok__text text = t->tokens[i];
        t->scores[i] = tok__score_at(x, i);
        if (!(t->scores[i] == t->scores[i])) return tok__fail(t, "the score of token %u is not a number", i);
        if (!tok__joins(x, i) || !text.size) continue;
        if (!tok__trie_add(&t->unigram, tok__at(t, text), text.size, i)) return tok__no_memory(t);
        if (t->scores[i] < least) least = t->scores[i];
    }
    t->unk_score = least - 10;
    return true;
}

/* The id under a key, `otherwise` if there is none. */
static bool tok__gguf_id(tokenizer *t, tok__gguf *x, const char *key, uint64_t otherwise, uint32_t *out) {
    uint64_t id = otherwise;
    gguf_value v;
    if (gguf_get(x->g, key, &v) && (!gguf_get_u64(x->g, key, &id) || id >= x->n))
        return tok__fail(t, "%s is not an id below %zu", key, x->n);
    *out = id < x->n ? (uint32_t)id : TOKENIZER_NONE;
    return true;
}

/* Tokens that stand in texts as they are: of control, and of the user. */
static bool tok__gguf_added(tokenizer *t, tok__gguf *x) {
    size_t n = 0;
    for (size_t i = 0; i < x->n; i++) n += tok__type_at(x, i) == TOK__CONTROL || tok__type_at(x, i) == TOK__USER;
    if (!tok__make_added(t, n)) return false;
    for (uint32_t i = 0; i < x->n; i++) {
        unsigned type = tok__type_at(x, i);
        char text[TOK__TOKEN];
        tok__text token = t->tokens[i];
        if (type == TOK__UNKNOWN) t->flags[i] |= TOK__SPECIAL;
        if ((type != TOK__CONTROL && type != TOK__USER) || !token.size) continue;
        memcpy(text, tok__at(t, token), token.size); /* the blob moves */
        if (!tok__add(t, text, token.size, i, (tok__added){ .special = type == TOK__CONTROL })) return false;
    }
    return true;
}

/* Tokens around a text. */
static bool tok__gguf_template(tokenizer *t, tok__gguf *x, bool bos, bool eos) {
    (void)gguf_get_bool(x->g, "tokenizer.ggml.add_bos_token", &bos);
    (void)gguf_get_bool(x->g, "tokenizer.ggml.add_eos_token", &eos);
    uint64_t one = t->byte_level ? UINT64_MAX : 1, two = t->byte_level ? UINT64_MAX : 2; /* as SentencePiece has them */
    if (t->is_unigram) one = UINT64_MAX, two = 1;
    if (!tok__gguf_id(t, x, "tokenizer.ggml.bos_token_id", one, &t->before[0]) ||
        !tok__gguf_id(t, x, "tokenizer.ggml.eos_token_id", two, &t->after[0]))
        return false;
    if ((bos && t->before[0] == TOKENIZER_NONE) || (eos && t->after[0] == TOKENIZER_NONE))
        return tok__fail(t, "a text begins or ends with a token whose id is missing");
    t->n_before = bos;
    t->n_after = eos;
    return true;
}

static bool tok__read_gguf(tokenizer *t, tok__gguf *x) {
    gguf_string model = { "", 0 };
    if (!gguf_get_string(x->g, "tokenizer.ggml.model", &model)) return tok__fail(t, "tokenizer.ggml.model is missing");
    bool on_bytes = model.size == 4 && !memcmp(model.text, "gpt2", 4),
         unigram = model.size == 2 && !memcmp(model.text, "t5", 2),
         joined = model.size == 5 && !memcmp(model.text, "llama", 5), bos = joined;
    int shown = model.size > 60 ? 60 : (int)model.size;
    if (!on_bytes && !unigram && !joined)
        return tok__fail(t, "the tokenizer.ggml.model \"%.*s\" is not read", shown, model.text);
    if (!tok__unicode(t) || !(on_bytes ? tok__gguf_on_bytes(t, x, &bos) : tok__gguf_on_pieces(t, x)) ||
        !tok__mark_forms(t) || !tok__gguf_tokens(t, x))
        return false;
    if (!(on_bytes ? tok__gguf_merges(t, x) : unigram ? tok__gguf_scores(t, x) : tok__gguf_joins(t, x))) return false;
    tok__find_bytes(t);
    t->unk = TOKENIZER_NONE;
    if (!on_bytes && !tok__gguf_id(t, x, "tokenizer.ggml.unknown_token_id", unigram ? 2 : 0, &t->unk)) return false;
    return tok__gguf_added(t, x) && tok__gguf_template(t, x, bos, unigram);
}

static bool tok__open_gguf(tokenizer *t, const char *path) {
    tok__gguf x = { 0 };
    char error[GGUF_ERROR];
    x.g = gguf_open(path, error);
    bool ok = x.g != NULL;
    if (!ok) snprintf(t->error, TOKENIZER_ERROR, "%.*s", TOKENIZER_ERROR - 1, error);
    ok = ok && tok__read_gguf(t, &x);
    if (ok && !gguf_intact(x.g, error)) {
        snprintf(t->error, TOKENIZER_ERROR, "%.*s", TOKENIZER_ERROR - 1, error);
        ok = false;
    }
    gguf_close(x.g);
    return ok;
}

/* ---- opening ---- */

static bool tok__has(const char *folder, const char *name) {
    char place[4096];
    struct stat info;
    snprintf(place, sizeof place, "%.4000s/%s", folder, name);
    return !stat(place, &info);
}

static bool tok__open_folder(tokenizer *t, const char *path) {
    tok__folder f;
    memset(&f, 0, sizeof f);
    if (!tok__has(path, "vocab.json") || !tok__has(path, "merges.txt"))
        return tok__fail(t, "no tokenizer.json, nor a vocab.json with a merges.txt");
    bool ok = tok__read_folder(t, &f, path);
    tok__file *const files[] = { &f.vocab, &f.merges, &f.added, &f.special, &f.config };
    for (int i = 0; i < 5; i++) ok = tok__close_file(t, files[i], ok);
    return ok;
}

/* The bytes tell a GGUF file. */
static bool tok__is_gguf(const char *path) {
    char magic[4] = { 0 };
    FILE *f = fopen(path, "rb");
    bool is = f && fread(magic, 1, 4, f) == 4 && !memcmp(magic, "GGUF", 4);
    if (f) fclose(f);
    return is;
}

static bool tok__open(tokenizer *t, const char *path) {
    struct stat info;
    tok__file f;
    bool folder = !stat(path, &info) && S_ISDIR(info.st_mode);
    if (folder && !tok__has(path, "tokenizer.json")) return tok__open_folder(t, path);
    if (!folder && tok__is_gguf(path)) return tok__open_gguf(t, path);
    memset(&f, 0, sizeof f);
    bool ok = tok__open_json(t, &f, path, folder ? "tokenizer.json" : "") && tok__read(t, f.root);
    return tok__close_file(t, &f, ok);
}

tokenizer *tokenizer_open(const char *path, char error[TOKENIZER_ERROR]) {
    tokenizer *t = (tokenizer *)calloc(1, sizeof *t);
    error[0] = 0;
    if (!t) {
        snprintf(error, TOKENIZER_ERROR, "%.200s: out of memory", path);
        return NULL;
    }
    t->error = error;
    t->path = path;
    bool ok = tok__open(t, path) && tok__make_byte_merges(t);
    t->error = NULL;
    t->path = NULL;
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(tokenizer *t) {
    if (!t) return;
    tok__trie *const tries[] = { &t->raw, &t->normal, &t->unigram };
    for (int i = 0; i < 3; i++) {
        free(tries[i]->edges);
        free(tries[i]->ends);
    }
    for (int i = 0; i < 4; i++) tok__free_work((tok__work *)atomic_load(&t->idle[i]));
    void *const all[] = {
        t->blob,  t->tokens, t->pieces, t->flags,   t->table,          t->by_token,    t->merges,
        t->added, t->scores, t->kinds,  t->classes, t->decompositions, t->byte_merges, t->merge_filter
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(t);
}
#endif
