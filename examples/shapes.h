/* Small pictures of discs, squares, triangles and crosses, for examples/diffusion, and PPM files. A picture is
 * (3, side, side): red, green, blue from -1 to 1, row by row. */
#ifndef SHAPES_H
#define SHAPES_H

#include "random.h"

enum {
    SHAPES_SIDE = 16,
    SHAPES_PIXELS = SHAPES_SIDE * SHAPES_SIDE,
    SHAPES_FLOATS = 3 * SHAPES_PIXELS,
    SHAPES_KINDS = 4
};

static const char *const shapes_names[SHAPES_KINDS] = { "disc", "square", "triangle", "cross" };

/* How far (x, y) lies outside a shape of about radius r around 0; negative inside. Pixels. */
static inline double shapes_distance(int kind, double x, double y, double r) {
    double ax = fabs(x), ay = fabs(y);
    switch (kind) {
    case 0: return sqrt(x * x + y * y) - r;
    case 1: return fmax(ax, ay) - 0.8 * r;
    case 2: return fmax(y - 0.55 * r, 0.866 * ax - 0.5 * y - 0.55 * r);
    default: return fmin(fmax(ax - r, ay - 0.3 * r), fmax(ay - r, ax - 0.3 * r));
    }
}

/* One shape of a bright colour on a dark ground, anywhere near the middle, turned a little. */
static inline void shapes_draw(int kind, uint64_t *random, float *out) {
    double turn = random_uniform(random, -0.25, 0.25), r = random_uniform(random, 4.5, 6.5);
    double cx = random_uniform(random, 6.5, 9.5), cy = random_uniform(random, 6.5, 9.5);
    double hue = random_uniform(random, 0, 6.283185307179586), ground = random_uniform(random, -1, -0.7), colour[3];
    for (int c = 0; c < 3; c++) colour[c] = 0.35 + 0.65 * cos(hue - 2.0943951023931953 * c);
    for (int i = 0; i < SHAPES_PIXELS; i++) {
        double x = i % SHAPES_SIDE + 0.5 - cx, y = i / SHAPES_SIDE + 0.5 - cy;
        double d = shapes_distance(kind, x * cos(turn) + y * sin(turn), y * cos(turn) - x * sin(turn), r);
        double share = fmin(1, fmax(0, 0.5 - d)); /* of the pixel that is inside */
        for (int c = 0; c < 3; c++) out[c * SHAPES_PIXELS + i] = (float)(ground + share * (colour[c] - ground));
    }
}

/* n pictures of shapes in turn, beginning with a random one; their kinds. */
static inline void shapes_batch(int64_t n, uint64_t *random, float *pictures, int32_t *kinds) {
    for (int64_t i = 0; i < n; i++) {
        kinds[i] = (int32_t)random_int(random, SHAPES_KINDS);
        shapes_draw(kinds[i], random, pictures + i * SHAPES_FLOATS);
    }
}

/* Of n pictures the share whose nearest of `many` drawn ones is of the kind asked for. */
static inline double shapes_recognised(int64_t n, const float *pictures, const int32_t *kinds, int64_t many,
                                       uint64_t random) {
    double right = 0, best[1024];
    int32_t found[1024];
    float drawn[SHAPES_FLOATS];
    if (n > 1024) n = 1024;
    for (int64_t i = 0; i < n; i++) best[i] = INFINITY, found[i] = -1;
    for (int64_t m = 0; m < many; m++) {
        int32_t kind = (int32_t)(m % SHAPES_KINDS);
        shapes_draw(kind, &random, drawn);
        for (int64_t i = 0; i < n; i++) {
            double d = 0;
            for (int k = 0; k < SHAPES_FLOATS && d < best[i]; k++) {
                double e = (double)pictures[i * SHAPES_FLOATS + k] - (double)drawn[k];
                d += e * e;
            }
            if (d < best[i]) best[i] = d, found[i] = kind;
        }
    }
    for (int64_t i = 0; i < n; i++) right += found[i] == kinds[i];
    return right / (double)n;
}

/* The byte of one colour of the pixel (x, y) of a grid; between pictures it is grey. */
static inline uint8_t shapes_byte(const float *pictures, int64_t n, int64_t columns, int64_t x, int64_t y, int colour) {
    const int64_t pitch = SHAPES_SIDE + 1;
    int64_t i = y / pitch * columns + x / pitch;
    if (x % pitch == 0 || y % pitch == 0 || i >= n) return 64;
    int64_t at = i * SHAPES_FLOATS + colour * SHAPES_PIXELS + (y % pitch - 1) * SHAPES_SIDE + x % pitch - 1;
    double v = 127.5 * ((double)pictures[at] + 1);
    return v > 0 ? (uint8_t)fmin(255, v + 0.5) : 0; /* a NaN is black */
}

/* n pictures in rows of `columns`, each pixel as a square of 4, as a binary PPM (P6). */
static inline bool shapes_write(const char *path, int64_t n, int64_t columns, const float *pictures) {
    const int64_t zoom = 4, w = columns * (SHAPES_SIDE + 1) + 1,
                  h = (n + columns - 1) / columns * (SHAPES_SIDE + 1) + 1;
    FILE *f = fopen(path, "wb");
    bool ok = f && fprintf(f, "P6\n%lld %lld\n255\n", (long long)(w * zoom), (long long)(h * zoom)) > 0;
    for (int64_t i = 0; ok && i < w * h * zoom * zoom; i++)
        for (int c = 0; c < 3; c++) {
            int64_t x = i % (w * zoom) / zoom, y = i / (w * zoom) / zoom;
            ok = ok && fputc(shapes_byte(pictures, n, columns, x, y, c), f) != EOF;
        }
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return ok;
}

#endif
