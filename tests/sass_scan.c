/* Warpgroup kernels (wgmma) in machine code: are their asynchronous products waited for?
 *
 *   sass_scan FILE...   reads what nvdisasm -c printed: one line for each function with products, and one for each of
 *                       its first faults
 *
 * A product (HGMMA) writes its sums, and reads its registers of A, until a wait (WARPGROUP.DEPBAR.LE gsb0, N) leaves no
 * more than the N newest groups under way; a group ends with the HGMMA that names gsb0. Along every path no other
 * instruction may touch sums under way or write registers that are still read: the assembler has moved a read above its
 * wait before, and sums were wrong then. Ends with 1 if there is a fault, with 2 if there is no product. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 60000, MAX_GROUPS = 3, MAX_STATES = 12, MAX_SHOWN = 3 };

/* registers R0 to R254 */
typedef struct mask {
    uint64_t w[4];
} mask;
/* written, and read as A, until it has ended */
typedef struct group {
    mask sums, rows;
} group;
/* oldest first; open: the newest takes further products */
typedef struct state {
    int n;
    bool open;
    group groups[MAX_GROUPS];
} state;

typedef enum kind { KIND_PLAIN, KIND_PRODUCT, KIND_WAIT, KIND_JUMP, KIND_END } kind;
typedef struct line {
    kind kind;
    bool conditional, ends_group;
    int left, target, n_states; /* left: groups that a wait leaves; target: a line, or -1 */
    mask touched, written;
    group product;
    char text[120], name[32]; /* name: of the label that it jumps to */
    state *states;            /* with which this line has been reached */
} line;

static line *lines;
static int n_lines, n_products, n_faults; /* of one function */

static void add(mask *m, int from, int count) {
    for (int r = from; r < from + count && r < 255; r++) m->w[r >> 6] |= 1ull << (r & 63);
}
static bool meets(const mask *a, const mask *b) {
    return (a->w[0] & b->w[0]) | (a->w[1] & b->w[1]) | (a->w[2] & b->w[2]) | (a->w[3] & b->w[3]);
}
static void unite(mask *a, const mask *b) {
    for (int i = 0; i < 4; i++) a->w[i] |= b->w[i];
}

/* ---- reading ---- */

/* The register at s (R24, R24.reuse), or -1; RZ is none. */
static int register_at(const char *s) { return s[0] == 'R' && s[1] >= '0' && s[1] <= '9' ? atoi(s + 1) : -1; }

/* HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8] or R168, R24, gsb0: N / 2 sums and 4 registers of A. */
static void read_product(line *l, const char *operands) {
    int columns = 0, sums = register_at(operands);
    const char *comma = strchr(operands, ',');
    sscanf(strstr(l->text, "HGMMA.64x"), "HGMMA.64x%dx", &columns);
    l->kind = KIND_PRODUCT;
    l->ends_group = strstr(operands, "gsb0") != NULL;
    if (sums >= 0) add(&l->product.sums, sums, columns / 2);
    if (comma && register_at(comma + 2) >= 0) add(&l->product.rows, register_at(comma + 2), 4);
}

/* All registers that are named. Wide are the data of a wide access (LDS.128 R8, [R4]), addresses that say so (R4.64),
   and the first and last of IMAD.WIDE. */
static void read_operands(line *l, const char *op, const char *operands) {
    int width = strstr(op, ".128") ? 4 : strstr(op, ".64") ? 2 : 1;
    bool writes = strncmp(op, "ST", 2) != 0 && strncmp(op, "RED", 3) != 0, product = strstr(op, ".WIDE") != NULL;
    for (const char *s = operands; *s; s++) {
        int r = s > operands && (isalnum((unsigned char)s[-1]) || s[-1] == '_') ? -1 : register_at(s);
        if (r < 0) continue;
        bool address = s > operands && s[-1] == '[', wide = strncmp(s + strcspn(s, ".,]+ "), ".64", 3) == 0;
        int count = wide || (product && (s == operands || !strchr(s, ','))) ? 2 : address ? 1 : width;
        add(&l->touched, r, count);
        if (writes && s == operands) add(&l->written, r, count);
    }
}

static void read_instruction(line *l) {
    const char *s = l->text;
    char op[64] = "";
    if (*s == '@') {
        l->conditional = true;
        s += strcspn(s, " ");
        s += strspn(s, " ");
    }
    snprintf(op, sizeof op, "%.*s", (int)strcspn(s, " "), s);
    const char *operands = s + strlen(op) + strspn(s + strlen(op), " "), *to = strstr(s, "`(");
    l->target = -1;
    if (strncmp(op, "HGMMA", 5) == 0) {
        read_product(l, operands);
    } else if (strncmp(op, "WARPGROUP.DEPBAR", 16) == 0) {
        l->kind = KIND_WAIT;
        l->left = (int)strtol(strchr(operands, ',') ? strchr(operands, ',') + 1 : "0", NULL, 0);
    } else if (strcmp(op, "EXIT") == 0 || strncmp(op, "RET", 3) == 0) {
        l->kind = KIND_END;
    } else if (strncmp(op, "BRA", 3) == 0 || strncmp(op, "CALL", 4) == 0) {
        l->kind = KIND_JUMP;
        /* a call comes back */
        l->conditional =
            l->conditional || strncmp(op, "BRA", 3) != 0 || strstr(op, ".DIV") || *operands == 'P' || *operands == '!';
        snprintf(l->name, sizeof l->name, "%.*s", to ? (int)strcspn(to + 2, ")") : 0, to ? to + 2 : "");
    } else {
        read_operands(l, op, operands);
    }
}

static void add_line(const char *text) {
    line *l = &lines[n_lines++];
    free(l->states);
    *l = (line){ 0 };
    snprintf(l->text, sizeof l->text, "%s", text + strspn(text, " \t{"));
    read_instruction(l);
    n_products += l->kind == KIND_PRODUCT;
}

typedef struct label {
    char name[32];
    int line;
} label;

static void find_targets(const label *labels, int n_labels) {
    for (int i = 0; i < n_lines; i++) {
        for (int k = 0; k < n_labels && lines[i].name[0]; k++)
            if (strcmp(labels[k].name, lines[i].name) == 0) lines[i].target = labels[k].line;
    }
}

/* The lines of the next function. Returns whether there is one. */
static bool read_function(FILE *f, char *name, size_t cap) {
    static char text[4000], next[200];
    static label labels[MAX_LINES / 4];
    int n_labels = 0;
    snprintf(name, cap, "%s", next);
    next[0] = 0;
    n_lines = n_products = n_faults = 0;
    while (!next[0] && fgets(text, sizeof text, f)) {
        char *code = strstr(text, "*/"), *end = strchr(text, ';');
        if (strncmp(text, ".text.", 6) == 0) {
            snprintf(*name ? next : name, *name ? sizeof next : cap, "%.*s", (int)strcspn(text + 6, ":\n"), text + 6);
        } else if (strncmp(text, ".L", 2) == 0 && n_labels < MAX_LINES / 4) {
            snprintf(labels[n_labels].name, sizeof labels[0].name, "%.*s", (int)strcspn(text, ":\n"), text);
            labels[n_labels++].line = n_lines;
        } else if (*name && code && end && n_lines < MAX_LINES) {
            *end = 0;
            add_line(code + 2);
        }
    }
    find_targets(labels, n_labels);
    return *name != 0;
}

/* ---- following every path ---- */

static void fault(const char *function, int at, const char *what) {
    if (n_faults++ < MAX_SHOWN) printf("FAULT %s: %s: %s\n", function, what, lines[at].text);
}

/* What line `at` does with the products under way. */
static void pass(const char *function, int at, state *s) {
    line *l = &lines[at];
    if (l->kind == KIND_WAIT && s->n > l->left) {
        memmove(s->groups, s->groups + s->n - l->left, (size_t)l->left * sizeof s->groups[0]);
        s->n = l->left;
        s->open = false;
    }
    for (int i = 0; i < s->n; i++) {
        if (meets(&s->groups[i].sums, &l->touched)) {
            fault(function, at, "touches sums of a product under way");
            return;
        }
        if (meets(&s->groups[i].rows, &l->written)) {
            fault(function, at, "writes registers that a product still reads");
            return;
        }
        if (meets(&s->groups[i].sums, &l->product.rows)) {
            fault(function, at, "multiplies sums of a product under way");
            return;
        }
    }
    if (l->kind != KIND_PRODUCT) return;
    if (!s->open && s->n == MAX_GROUPS) { /* the two oldest end together, at the later one's wait */
        unite(&s->groups[1].sums, &s->groups[0].sums);
        unite(&s->groups[1].rows, &s->groups[0].rows);
        memmove(s->groups, s->groups + 1, (MAX_GROUPS - 1) * sizeof s->groups[0]);
        s->n--;
    }
    if (!s->open) s->groups[s->n++] = (group){ 0 };
    unite(&s->groups[s->n - 1].sums, &l->product.sums);
    unite(&s->groups[s->n - 1].rows, &l->product.rows);
    s->open = !l->ends_group;
}

/* Whether line `at` has not been reached with this before. */
static bool is_new(const char *function, int at, const state *s) {
    line *l = &lines[at];
    for (int i = 0; i < l->n_states; i++)
        if (memcmp(&l->states[i], s, sizeof *s) == 0) return false;
    if (l->n_states == MAX_STATES) {
        fault(function, at, "reached in too many ways");
        return false;
    }
    state *more = realloc(l->states, (size_t)(l->n_states + 1) * sizeof *more);
    if (!more) exit(3);
    l->states = more;
    l->states[l->n_states++] = *s;
    return true;
}

typedef struct path {
    int at;
    state s;
} path;

static void follow(const char *function) {
    static path stack[MAX_LINES];
    int depth = 0;
    memset(&stack[0], 0, sizeof stack[0]);
    for (depth = 1; depth > 0;) {
        path p = stack[--depth];
        while (p.at < n_lines && n_faults < MAX_SHOWN) {
            line *l = &lines[p.at];
            for (int i = p.s.n; i < MAX_GROUPS; i++) p.s.groups[i] = (group){ 0 };
            if (!is_new(function, p.at, &p.s)) break;
            pass(function, p.at, &p.s);
            if (l->kind == KIND_JUMP && l->target >= 0 && depth < MAX_LINES) {
                stack[depth].at = l->target;
                stack[depth++].s = p.s;
            }
            if ((l->kind == KIND_JUMP || l->kind == KIND_END) && !l->conditional) break;
            p.at++;
        }
    }
}

int main(int argc, char **argv) {
    int products = 0, faults = 0;
    char name[200];
    lines = calloc(MAX_LINES, sizeof *lines);
    if (!lines) return 3;
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "r");
        if (!f) {
            perror(argv[i]);
            return 3;
        }
        while (read_function(f, name, sizeof name)) {
            if (!n_products) continue;
            follow(name);
            printf("%s %s: %d products\n", n_faults ? "wrong" : "ok", name, n_products);
            products += n_products;
            faults += n_faults;
        }
        fclose(f);
    }
    printf("%d products, %d faults\n", products, faults);
    return faults ? 1 : products ? 0 : 2;
}
