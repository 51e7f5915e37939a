/* Handwriting-like digits of 28x28 pixels, drawn by strokes, and the IDX files in which MNIST is published.
 * A set is `n` images of 784 bytes (0 paper, 255 ink), row by row, with one label (0 to 9) each. */
#ifndef DIGITS_H
#define DIGITS_H

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DG_SIDE 28
#define DG_PIXELS (DG_SIDE * DG_SIDE)
#define DG_CLASSES 10

typedef struct dg_set {
    size_t n;
    uint8_t *images; /* (n, 784) */
    uint8_t *labels; /* (n) */
} dg_set;

static inline bool dg_set_make(dg_set *s, size_t n) {
    s->n = n;
    s->images = malloc(n * DG_PIXELS);
    s->labels = malloc(n);
    return s->images && s->labels;
}

static inline void dg_set_destroy(dg_set *s) {
    free(s->images);
    free(s->labels);
    memset(s, 0, sizeof *s);
}

/* ---- random numbers: xorshift64* (Vigna 2016) ---- */
static inline uint64_t dg_next(uint64_t *rng) {
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return *rng * UINT64_C(2685821657736338717);
}
static inline uint64_t dg_seed(uint64_t seed) {
    return seed * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0xD1B54A32D192ED03);
}
static inline double dg_uniform(uint64_t *rng, double lo, double hi) { /* [lo, hi) */
    return lo + (hi - lo) * ((double)(dg_next(rng) >> 11) * 0x1p-53);
}
static inline double dg_normal(uint64_t *rng) { /* Box and Muller 1958 */
    double u = dg_uniform(rng, 1e-12, 1), v = dg_uniform(rng, 0, 6.283185307179586);
    return sqrt(-2 * log(u)) * cos(v);
}

/* ---- drawing ----------------------------------------------------------------------------------------
 * A digit is a few strokes in the unit square, x to the right, y down: an arc of the ellipse at (x, y) with radii (rx,
 * ry) between two angles in degrees (0 right, 90 down), or, when rx is 0, a line from (x, y) to (from, to). */
typedef struct dg_stroke {
    double x, y, rx, ry, from, to;
} dg_stroke;

#define DG_MAX_STROKES 3
#define DG_ARC_PARTS 12

static const dg_stroke dg_shapes[DG_CLASSES][DG_MAX_STROKES] = {
    { { .50, .50, .25, .38, 0, 360 } },
    { { .36, .28, 0, 0, .54, .12 }, { .54, .12, 0, 0, .52, .88 } },
    { { .49, .34, .23, .22, 195, 395 }, { .68, .46, 0, 0, .27, .86 }, { .27, .86, 0, 0, .75, .86 } },
    { { .46, .31, .22, .19, 200, 450 }, { .46, .68, .25, .19, 270, 520 } },
    { { .56, .12, 0, 0, .22, .62 }, { .22, .62, 0, 0, .80, .62 }, { .62, .36, 0, 0, .60, .90 } },
    { { .72, .13, 0, 0, .33, .13 }, { .33, .13, 0, 0, .31, .47 }, { .46, .65, .24, .22, 235, 510 } },
    { { .66, .12, 0, 0, .31, .58 }, { .50, .67, .21, .21, 0, 360 } },
    { { .24, .14, 0, 0, .76, .14 }, { .76, .14, 0, 0, .42, .88 } },
    { { .50, .31, .19, .19, 0, 360 }, { .50, .69, .23, .20, 0, 360 } },
    { { .49, .34, .21, .21, 0, 360 }, { .70, .36, 0, 0, .62, .88 } },
};

/* pixels */
typedef struct dg_segment {
    double x0, y0, x1, y1;
} dg_segment;
/* unit square, its centre at 0, to pixels */
typedef struct dg_pose {
    double xx, xy, yx, yy, dx, dy;
} dg_pose;

static inline dg_pose dg_random_pose(uint64_t *rng) {
    double turn = dg_uniform(rng, -0.34, 0.34), slant = dg_uniform(rng, -0.2, 0.2); /* radians; x per y */
    double w = 22 * dg_uniform(rng, 0.72, 1.08), h = 22 * dg_uniform(rng, 0.78, 1.08);
    dg_pose p = { w * cos(turn),
                  h * (slant * cos(turn) - sin(turn)),
                  w * sin(turn),
                  h * (slant * sin(turn) + cos(turn)),
                  14 + dg_uniform(rng, -2.5, 2.5),
                  14 + dg_uniform(rng, -2.5, 2.5) };
    return p;
}

static inline void dg_place(const dg_pose *p, double x, double y, double *out_x, double *out_y) {
    *out_x = p->xx * (x - 0.5) + p->xy * (y - 0.5) + p->dx;
    *out_y = p->yx * (x - 0.5) + p->yy * (y - 0.5) + p->dy;
}

/* Cuts one stroke, its ends moved by a shaky hand, into segments; returns how many. */
static inline int dg_cut(const dg_stroke *s, const dg_pose *p, uint64_t *rng, dg_segment *out) {
    dg_stroke t = *s;
    bool arc = s->rx > 0;
    t.x += dg_uniform(rng, -0.03, 0.03);
    t.y += dg_uniform(rng, -0.03, 0.03);
    t.rx *= dg_uniform(rng, 0.85, 1.15);
    t.ry *= dg_uniform(rng, 0.85, 1.15);
    t.from += dg_uniform(rng, -1, 1) * (arc ? 12 : 0.03);
    t.to += dg_uniform(rng, -1, 1) * (arc ? 12 : 0.03);
    if (!arc) {
        dg_place(p, t.x, t.y, &out->x0, &out->y0);
        dg_place(p, t.from, t.to, &out->x1, &out->y1);
        return 1;
    }
    for (int i = 0; i <= DG_ARC_PARTS; i++) {
        double a = (t.from + (t.to - t.from) * i / DG_ARC_PARTS) * 0.017453292519943295, x, y;
        dg_place(p, t.x + t.rx * cos(a), t.y + t.ry * sin(a), &x, &y);
        if (i < DG_ARC_PARTS) {
            out[i].x0 = x;
            out[i].y0 = y;
        }
        if (i > 0) {
            out[i - 1].x1 = x;
            out[i - 1].y1 = y;
        }
    }
    return DG_ARC_PARTS;
}

static inline double dg_distance(const dg_segment *s, double x, double y) {
    double dx = s->x1 - s->x0, dy = s->y1 - s->y0, len2 = dx * dx + dy * dy;
    double t = len2 > 0 ? ((x - s->x0) * dx + (y - s->y0) * dy) / len2 : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    dx = x - (s->x0 + t * dx);
    dy = y - (s->y0 + t * dy);
    return sqrt(dx * dx + dy * dy);
}

/* Draws one digit: strokes with soft edges, faded ink, and specks on 3 % of the paper. */
static inline void dg_draw(int digit, uint64_t *rng, uint8_t *image) {
    dg_segment seg[DG_MAX_STROKES * DG_ARC_PARTS];
    dg_pose pose = dg_random_pose(rng);
    double half = dg_uniform(rng, 0.45, 1.15), ink = dg_uniform(rng, 0.65, 1.0); /* half a line's width in pixels */
    int n = 0;
    for (int i = 0; i < DG_MAX_STROKES; i++) {
        const dg_stroke *s = &dg_shapes[digit][i];
        if (s->x > 0) n += dg_cut(s, &pose, rng, seg + n);
    }
    for (int i = 0; i < DG_PIXELS; i++) {
        double best = 1e9, x = i % DG_SIDE + 0.5, y = i / DG_SIDE + 0.5;
        for (int k = 0; k < n; k++) best = fmin(best, dg_distance(&seg[k], x, y));
        double v = ink * fmin(1, fmax(0, half + 0.6 - best));
        if (v > 0) v += 0.08 * dg_normal(rng);
        else if (dg_uniform(rng, 0, 1) < 0.03) v = dg_uniform(rng, 0.1, 0.6);
        image[i] = (uint8_t)(255 * fmin(1, fmax(0, v)));
    }
}

/* Draws n digits. Different seeds give different digits. */
static inline bool dg_draw_set(dg_set *s, size_t n, uint64_t seed) {
    uint64_t rng = dg_seed(seed);
    if (!dg_set_make(s, n)) return false;
    for (size_t i = 0; i < n; i++) {
        s->labels[i] = (uint8_t)(dg_next(&rng) >> 32) % DG_CLASSES;
        dg_draw(s->labels[i], &rng, s->images + i * DG_PIXELS);
    }
    return true;
}

/* ---- IDX: big-endian magic 0x00000803 (bytes, rank 3) or 0x00000801 (rank 1), the dims as 32 bits, the bytes ---- */
#define DG_IDX_IMAGES 0x00000803u
#define DG_IDX_LABELS 0x00000801u
#define DG_IDX_MAX 1000000u /* digits in one file; more is taken for a damaged header */

static inline bool dg_get32(FILE *f, uint32_t *out) {
    uint8_t b[4];
    if (fread(b, 1, 4, f) != 4) return false;
    *out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return true;
}

static inline bool dg_put32(FILE *f, uint32_t v) {
    uint8_t b[4] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v };
    return fwrite(b, 1, 4, f) == 4;
}

/* Reads header and `*out_n` items of `item` bytes; `why` gets the reason for NULL. */
static inline uint8_t *dg_idx_body(FILE *f, uint32_t magic, size_t item, size_t *out_n, const char **why) {
    uint32_t m = 0, n = 0, h = DG_SIDE, w = DG_SIDE;
    *why = "the header is cut short";
    if (!dg_get32(f, &m) || !dg_get32(f, &n)) return NULL;
    *why = m >> 16 == 0x1f8b ? "it is compressed: unpack it with gunzip first"
                             : "the first four bytes are not this kind of IDX file's";
    if (m != magic) return NULL;
    *why = "the header is cut short";
    if (magic == DG_IDX_IMAGES && (!dg_get32(f, &h) || !dg_get32(f, &w))) return NULL;
    *why = "the images are not 28x28";
    if (h != DG_SIDE || w != DG_SIDE) return NULL;
    *why = "the header asks for no items or for more than a million";
    if (n == 0 || n > DG_IDX_MAX) return NULL;
    *why = "out of memory";
    uint8_t *body = malloc(n * item);
    if (!body) return NULL;
    *why = "the file is shorter than its header says";
    bool ok = fread(body, item, n, f) == n;
    if (ok && fgetc(f) != EOF) {
        *why = "the file is longer than its header says";
        ok = false;
    }
    if (!ok) {
        free(body);
        return NULL;
    }
    *out_n = n;
    return body;
}

static inline uint8_t *dg_idx_read(const char *dir, const char *name, uint32_t magic, size_t item, size_t *out_n) {
    char path[4096];
    const char *why = "the path is too long";
    uint8_t *body = NULL;
    int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (len > 0 && (size_t)len < sizeof path) {
        FILE *f = fopen(path, "rb");
        why = strerror(errno);
        if (f) body = dg_idx_body(f, magic, item, out_n, &why);
        if (f) fclose(f);
    }
    if (!body) fprintf(stderr, "%s/%s: %s\n", dir, name, why);
    return body;
}

/* Reads PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte; says on stderr what is wrong with them. */
static inline bool dg_read_set(dg_set *s, const char *dir, const char *prefix) {
    char images[64], labels[64];
    size_t n_labels = 0;
    memset(s, 0, sizeof *s);
    snprintf(images, sizeof images, "%s-images-idx3-ubyte", prefix);
    snprintf(labels, sizeof labels, "%s-labels-idx1-ubyte", prefix);
    s->images = dg_idx_read(dir, images, DG_IDX_IMAGES, DG_PIXELS, &s->n);
    if (s->images) s->labels = dg_idx_read(dir, labels, DG_IDX_LABELS, 1, &n_labels);
    bool ok = s->images && s->labels;
    if (ok && n_labels != s->n) {
        fprintf(stderr, "%s: %zu images of '%s' but %zu labels\n", dir, s->n, prefix, n_labels);
        ok = false;
    }
    for (size_t i = 0; ok && i < s->n; i++) {
        if (s->labels[i] < DG_CLASSES) continue;
        fprintf(stderr, "%s/%s: label %zu is %d, not 0 to 9\n", dir, labels, i, s->labels[i]);
        ok = false;
    }
    if (!ok) dg_set_destroy(s);
    return ok;
}

static inline bool dg_idx_write(const char *dir, const char *prefix, bool images, const dg_set *s) {
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s-%s-ubyte", dir, prefix, images ? "images-idx3" : "labels-idx1");
    FILE *f = len > 0 && (size_t)len < sizeof path ? fopen(path, "wb") : NULL;
    bool ok = f && dg_put32(f, images ? DG_IDX_IMAGES : DG_IDX_LABELS) && dg_put32(f, (uint32_t)s->n);
    if (ok && images)
        ok = dg_put32(f, DG_SIDE) && dg_put32(f, DG_SIDE) && fwrite(s->images, DG_PIXELS, s->n, f) == s->n;
    if (ok && !images) ok = fwrite(s->labels, 1, s->n, f) == s->n;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return ok;
}

/* Writes the two files of a set, as dg_read_set reads them. */
static inline bool dg_write_set(const dg_set *s, const char *dir, const char *prefix) {
    return dg_idx_write(dir, prefix, true, s) && dg_idx_write(dir, prefix, false, s);
}

/* ---- the simplest classifier: the nearest mean image; the share of `test` that it gets right ---- */
static inline double dg_centroid_accuracy(const dg_set *train, const dg_set *test) {
    static double mean[DG_CLASSES][DG_PIXELS];
    size_t count[DG_CLASSES] = { 0 }, right = 0;
    memset(mean, 0, sizeof mean);
    for (size_t i = 0; i < train->n; i++) {
        count[train->labels[i]]++;
        for (int p = 0; p < DG_PIXELS; p++) mean[train->labels[i]][p] += train->images[i * DG_PIXELS + (size_t)p];
    }
    for (size_t i = 0; i < test->n; i++) {
        int best = -1;
        double best_d = 0;
        for (int c = 0; c < DG_CLASSES; c++) {
            double d = 0;
            for (int p = 0; p < DG_PIXELS && count[c]; p++) {
                double e = test->images[i * DG_PIXELS + (size_t)p] - mean[c][p] / (double)count[c];
                d += e * e;
            }
            if (count[c] && (best < 0 || d < best_d)) {
                best = c;
                best_d = d;
            }
        }
        right += best == test->labels[i];
    }
    return (double)right / (double)test->n;
}

#endif /* DIGITS_H */
