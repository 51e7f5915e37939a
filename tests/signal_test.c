/* Fourier transforms, frames and filters of waves, points of a grid, blocks of pictures, counting and searching, losses
 * of classes and elements, norms, regions and deformable convolutions, indices from the end, bags, windows added up and
 * products of bytes, against the definitions in double precision and numbers of PyTorch: on the CPU executor, on a
 * server in this process, and on the device of $GENIE_TEST_DEVICES (cuda:0). All draw the same.
 *
 * Tier: quick address */
#define GENIE_EXT
#include "../genie.h"

#include <math.h>

#include "test.h"

#include "loopback.h"

enum { MOST = 1 << 18 };
static const double turn = 6.283185307179586477;

enum { ON_CPU, ON_LOOPBACK, ON_NAMED, DEVICES };
static int on;
static const char *device_names[DEVICES] = { "cpu", "loopback", "cuda:0" };
static gn_ctx *g;
static double given[MOST], wanted[MOST], got[MOST], aside[MOST];

static gn_ctx *open_device(void) {
    if (on == ON_LOOPBACK) return loopback_open(&(gn_desc){ .seed = 0 });
    return gn_open(&(gn_desc){ .devices = device_names[on] });
}

static bool begin(void) {
    g = open_device();
    return CHECK_RESULT(gn_status(g), GN_OK);
}

static void fill(int64_t n) {
    for (int64_t i = 0; i < n; i++) given[i] = (double)test_random_int(-1000, 1000) / 1000;
}

/* The numbers `from` as a tensor of that dtype. */
static gn_tensor tensor(gn_dtype d, gn_shape s, const double *from) {
    return gn_cast(gn_data_copy(g, GN_F64, s, from), d);
}

/* Reads n numbers of t into got. */
static bool reads(gn_tensor t, int64_t n) {
    gn_result r = gn_read(gn_cast(t, GN_F64), got, (size_t)n * sizeof *got);
    bool ok = CHECK_RESULT(r, GN_OK);
    if (!ok) printf("    %s\n", gn_last_error(g)->text);
    return ok;
}

static void close_to(const char *what, int64_t n, double bound) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - wanted[i]) <= bound)) {
            CHECK(false);
            printf("    %s: element %lld is %.17g, not %.17g (bound %g)\n", what, (long long)i, got[i], wanted[i],
                   bound);
            return;
        }
}

/* ---- Fourier transforms ---- */

/* wanted[k] (complex) = the transform of n elements of in (complex, or real if every is 1), of which `have` are there;
   what has the next place lies `stride` numbers on. */
static void transform(const double *in, int64_t have, int64_t n, int64_t stride, bool complex, double sign,
                      double *out) {
    for (int64_t k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (int64_t j = 0; j < n && j < have; j++) {
            double a = sign * turn * (double)((j * k) % n) / (double)n, x = in[j * stride],
                   y = complex ? in[j * stride + 1] : 0;
            re += x * cos(a) - y * sin(a);
            im += x * sin(a) + y * cos(a);
        }
        out[2 * k] = re;
        out[2 * k + 1] = im;
    }
}

static const int64_t lengths[] = { 1, 2, 3, 5, 16, 60, 64, 65, 67, 96, 127, 128, 130, 500, 509, 1000, 1024, 2021 };

static double fourier_bound(gn_dtype d, int64_t n) { return (d == GN_F32 ? 4e-7 : 1e-14) * (double)(n + 8); }

TEST(transforms_of_any_length_agree_with_the_sum) {
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(lengths) * 2; k++) {
        int64_t n = lengths[k / 2];
        gn_dtype d = k % 2 ? GN_F64 : GN_F32;
        if (TEST_SANITIZED && n > 600) continue;
        fill(6 * n);
        gn_tensor x = tensor(d, GN_SHAPE(3, n, 2), given);
        for (int i = 0; i < 3; i++) transform(given + 2 * i * n, n, n, 2, true, -1, wanted + 2 * i * n);
        if (reads(gn_fft(x, 1, 0, false), 6 * n)) close_to("fft", 6 * n, fourier_bound(d, n));
        memcpy(wanted, given, (size_t)(6 * n) * sizeof *wanted);
        if (reads(gn_fft(gn_fft(x, 1, 0, false), -2, 0, true), 6 * n)) close_to("back", 6 * n, fourier_bound(d, 8));
        gn_step(g);
    }
    gn_close(g);
}

TEST(transforms_along_each_axis_cut_and_fill) {
    const int64_t sizes[] = { 5, 9, 12, 70 };
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(sizes) * 2; k++) {
        int64_t n = sizes[k / 2], a = 9, b = 4, half = n / 2 + 1;
        bool first = k % 2;
        fill(2 * a * b);
        gn_tensor x = first ? tensor(GN_F64, GN_SHAPE(a, b, 2), given)
                            : gn_transpose(tensor(GN_F64, GN_SHAPE(a, b, 2), given), 0, 1);
        for (int64_t i = 0; i < b; i++) {
            transform(given + 2 * i, a, n, 2 * b, true, -1, aside);
            for (int64_t j = 0; j < n; j++)
                for (int part = 0; part < 2; part++)
                    wanted[2 * (first ? j * b + i : i * n + j) + part] = aside[2 * j + part];
        }
        if (reads(gn_fft(x, first ? 0 : 1, n, false), 2 * n * b)) close_to("fft", 2 * n * b, 1e-12);
        for (int64_t i = 0; i < b; i++) { /* the real parts alone */
            transform(given + 2 * i, a, n, 2 * b, false, -1, aside);
            for (int64_t j = 0; j < half; j++)
                for (int part = 0; part < 2; part++)
                    wanted[2 * (first ? j * b + i : i * half + j) + part] = aside[2 * j + part];
        }
        gn_tensor re = gn_squeeze(gn_slice(x, 2, 0, 1, 1), GN_AXES(2)), y = gn_rfft(re, first ? 0 : 1, n);
        if (reads(y, 2 * half * b)) close_to("rfft", 2 * half * b, 1e-12);
        gn_tensor back = gn_irfft(y, first ? 0 : 1, n);
        for (int64_t i = 0; i < b; i++)
            for (int64_t j = 0; j < n; j++) wanted[first ? j * b + i : i * n + j] = j < a ? given[2 * (j * b + i)] : 0;
        if (reads(back, n * b)) close_to("irfft", n * b, 1e-12);
        gn_step(g);
    }
    gn_close(g);
}

TEST(frames_of_a_wave_are_transformed_with_their_window) {
    enum { T = 100, FRAME = 16, STEP = 6, HALF = FRAME / 2 + 1 };
    if (!begin()) return;
    for (int centred = 0; centred < 2; centred++) {
        int side = centred ? FRAME / 2 : 0, frames = (T + 2 * side - FRAME) / STEP + 1;
        fill(2 * T);
        gn_tensor window = gn_window(g, GN_F64, GN_WINDOW_HANN, FRAME, true),
                  y = gn_stft(tensor(GN_F64, GN_SHAPE(2, T), given), FRAME, STEP, window, centred);
        for (int i = 0; i < 2 * frames; i++) {
            double part[FRAME];
            for (int j = 0; j < FRAME; j++) {
                int at = (i % frames) * STEP + j - side;
                at = at < 0 ? -at : at >= T ? 2 * (T - 1) - at : at;
                part[j] = given[i / frames * T + at] * (0.5 - 0.5 * cos(turn * j / FRAME));
            }
            transform(part, FRAME, FRAME, 1, false, -1, aside);
            memcpy(wanted + 2 * i * HALF, aside, 2 * HALF * sizeof *wanted);
        }
        if (reads(y, 2 * 2 * frames * HALF)) close_to("stft", 2 * 2 * frames * HALF, 1e-12);
    }
    gn_close(g);
}

TEST(windows_and_mel_filters_are_their_formulas) {
    enum { N = 400, BINS = 20, RATE = 16000 };
    if (!begin()) return;
    for (int k = 0; k < GN_WINDOW__COUNT * 4; k++) {
        bool periodic = k % 2;
        int n = k / 2 % 2 ? 1 : 25;
        for (int i = 0; i < n; i++) {
            double p = n == 1 ? turn / 2 : turn * i / (periodic ? n : n - 1); /* one element is the peak */
            wanted[i] = k / 4 == GN_WINDOW_HANN      ? 0.5 - 0.5 * cos(p)
                        : k / 4 == GN_WINDOW_HAMMING ? 0.54 - 0.46 * cos(p)
                                                     : 0.42 - 0.5 * cos(p) + 0.08 * cos(2 * p);
        }
        if (reads(gn_window(g, GN_F64, (gn_window_kind)(k / 4), n, periodic), n)) close_to("window", n, 1e-14);
    }
    for (int j = 0; j <= N / 2; j++)
        for (int i = 0; i < BINS; i++) {
            double e[3], from = 2595 * log10(1 + 20 / 700.0), to = 2595 * log10(1 + 7600 / 700.0),
                         f = RATE / (double)N * j;
            for (int k = 0; k < 3; k++) e[k] = 700 * (pow(10, (from + (to - from) * (i + k) / (BINS + 1)) / 2595) - 1);
            wanted[j * BINS + i] = fmax(0, fmin((f - e[0]) / (e[1] - e[0]), (e[2] - f) / (e[2] - e[1])));
        }
    if (reads(gn_mel_filters(g, GN_F64, BINS, N, RATE, 20, 7600), (N / 2 + 1) * BINS))
        close_to("mel", (N / 2 + 1) * BINS, 1e-11);
    gn_close(g);
}

/* ---- points of a grid ---- */

typedef struct image {
    const double *x;
    int64_t size[3];
    int axes;
    gn_grid_sample_desc d;
} image;

static double reflected(double p, double low, double high) {
    double period = 2 * (high - low), at;
    if (high <= low) return low;
    at = fmod(p - low, period);
    at += at < 0 ? period : 0;
    return fmin(at, period - at) + low;
}

static double element(const image *m, const double *given_place) {
    int64_t at = 0;
    double place[3];
    for (int i = 0; i < m->axes; i++) {
        double most = (double)(m->size[i] - 1), end = m->d.corners ? 0 : 0.5;
        place[i] = given_place[i];
        if (m->d.cubic && m->d.padding == GN_GRID_REFLECT) place[i] = nearbyint(reflected(place[i], -end, most + end));
        if (place[i] < 0 || place[i] > (double)(m->size[i] - 1)) {
            if (m->d.padding == GN_GRID_ZEROS) return 0;
        }
        at = at * m->size[i] + (int64_t)fmin(fmax(place[i], 0), (double)(m->size[i] - 1));
    }
    return m->x[at];
}

/* Of an element at this distance. */
static double counts(double d, bool cubic) {
    const double a = -0.75;
    if (!cubic) return 1 - d;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static double sampled(const image *m, const double *point) {
    double at[3], place[3], y = 0;
    for (int i = 0; i < m->axes; i++) {
        double n = (double)m->size[i], p = point[m->axes - 1 - i];
        p = m->d.corners ? (p + 1) / 2 * (n - 1) : ((p + 1) * n - 1) / 2;
        if (m->d.padding == GN_GRID_REFLECT && !m->d.cubic)
            p = m->d.corners ? reflected(p, 0, n - 1) : reflected(p, -0.5, n - 0.5);
        if (m->d.padding != GN_GRID_ZEROS && !m->d.cubic) p = fmin(fmax(p, 0), n - 1);
        at[i] = m->d.nearest ? nearbyint(p) : p;
    }
    if (m->d.nearest) return element(m, at);
    int taps = m->d.cubic ? 4 : 2, all = 1;
    for (int i = 0; i < m->axes; i++) all *= taps;
    for (int tap = 0; tap < all; tap++) {
        double weight = 1;
        for (int i = 0, rest = tap; i < m->axes; i++, rest /= taps) {
            place[i] = floor(at[i]) + rest % taps - (m->d.cubic ? 1 : 0);
            weight *= counts(fabs(at[i] - place[i]), m->d.cubic);
        }
        y += weight * element(m, place);
    }
    return y;
}

enum { POINTS = 35 };

/* A grid of POINTS over two images of three channels. */
static void check_grid(image m) {
    enum { N = 2, C = 3 };
    gn_shape s = { m.axes + 2, { N, C } }, to = { m.axes + 2, { N, POINTS / 7, 7 } };
    int64_t all = 1;
    for (int i = 0; i < m.axes; i++) all *= s.dims[i + 2] = m.size[i];
    if (m.axes == 1) to.dims[1] = POINTS;
    if (m.axes == 3) to.dims[3] = 1;
    to.dims[m.axes + 1] = m.axes;
    fill(N * C * all);
    for (int i = 0; i < N * POINTS * m.axes; i++) aside[i] = (double)test_random_int(-1999, 1999) / 999.7;
    for (int i = 0; i < N * C * POINTS; i++) {
        m.x = given + i / POINTS * all;
        wanted[i] = sampled(&m, aside + (i / POINTS / C * POINTS + i % POINTS) * m.axes);
    }
    gn_tensor y = gn_grid_sample(tensor(GN_F64, s, given), tensor(GN_F64, to, aside), &m.d);
    if (reads(y, N * C * POINTS)) close_to("grid_sample", N * C * POINTS, 1e-12);
    gn_step(g);
}

/* All modes, with and without corners, with each padding: 18. */
static gn_grid_sample_desc grid_desc(int k) {
    return (gn_grid_sample_desc){
        .nearest = k % 3 == 1, .cubic = k % 3 == 2, .corners = k / 3 % 2, .padding = (gn_grid_padding)(k / 6)
    };
}

TEST(points_of_a_grid_are_sampled) {
    if (!begin()) return;
    for (int k = 0; k < 54; k++) check_grid((image){ .axes = k % 3 + 1, .size = { 3, 4, 5 }, .d = grid_desc(k / 3) });
    gn_close(g);
}

/* Which axes have one element: each choice of them. */
TEST(axes_of_one_element_are_sampled) {
    if (!begin()) return;
    for (int k = 0; k < 18; k++)
        for (int axes = 1; axes <= 3; axes++)
            for (int ones = 1; ones < 1 << axes; ones++) {
                image m = { .axes = axes, .d = grid_desc(k) };
                for (int i = 0; i < axes; i++) m.size[i] = ones >> i & 1 ? 1 : 3 + i;
                check_grid(m);
            }
    gn_close(g);
}

/* A row of 1, 2, 4 at (0.5, -2), (-1, 0.5) and (2, 0). Of places from corner to corner only x counts, since all y are
   the row; beyond the edges zeros are mixed in by y, and x = 2 is mirrored to 0. Cubic: by hand from the weights of
   a = -0.75 at 1/2, which are -3/32, 19/32, 19/32, -3/32. */
TEST(a_row_is_sampled_as_computed_by_hand) {
    static const double row[3] = { 1, 2, 4 }, points[6] = { 0.5, -2, -1, 0.5, 2, 0 };
    static const struct {
        gn_grid_sample_desc d;
        double y[3];
    } cases[] = {
        { { .padding = GN_GRID_ZEROS, .corners = true }, { 3, 1, 0 } },
        { { .padding = GN_GRID_EDGE, .corners = true }, { 3, 1, 4 } },
        { { .padding = GN_GRID_REFLECT, .corners = true }, { 3, 1, 2 } },
        { { .nearest = true, .padding = GN_GRID_ZEROS, .corners = true }, { 4, 1, 0 } },
        { { .nearest = true, .padding = GN_GRID_REFLECT, .corners = true }, { 4, 1, 2 } },
        { { .cubic = true, .padding = GN_GRID_EDGE, .corners = true }, { 99.0 / 32, 1, 4 } },
        { { .cubic = true, .padding = GN_GRID_REFLECT, .corners = true }, { 105.0 / 32, 1, 2 } },
        { { .padding = GN_GRID_ZEROS }, { 0, 0.375, 0 } },
        { { .padding = GN_GRID_EDGE }, { 3.5, 1, 4 } },
        { { .padding = GN_GRID_REFLECT }, { 3.5, 1, 2 } },
    };
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(cases); k++) {
        gn_tensor x = tensor(GN_F64, GN_SHAPE(1, 1, 1, 3), row), at = tensor(GN_F64, GN_SHAPE(1, 1, 3, 2), points);
        memcpy(wanted, cases[k].y, sizeof cases[k].y);
        if (reads(gn_grid_sample(x, at, &cases[k].d), 3)) close_to("by hand", 3, 1e-14);
    }
    gn_close(g);
}

TEST(nearest_elements_have_a_gradient_of_zeros_by_the_grid) {
    static const double row[3] = { 1, 2, 4 }, points[4] = { -0.1, 0.9, 0.1, INFINITY };
    const double counts[3] = { 0, 2, 2 };
    if (!begin()) return;
    gn_tensor in[2] = { tensor(GN_F64, GN_SHAPE(1, 1, 3), row), tensor(GN_F64, GN_SHAPE(1, 4, 1), points) }, out[2];
    gn_grid_sample_desc d = { .nearest = true, .padding = GN_GRID_EDGE };
    gn_tensor loss = gn_sum(gn_grid_sample(in[0], in[1], &d), GN_ALL_AXES, false);
    if (CHECK_RESULT(gn_grad(loss, in, 2, out), GN_OK)) {
        memcpy(wanted, counts, sizeof counts);
        if (reads(out[0], 3)) close_to("by x", 3, 0);
        memset(wanted, 0, 4 * sizeof *wanted);
        if (reads(out[1], 4)) close_to("by the grid", 4, 0);
    }
    gn_close(g);
}

TEST(the_grid_of_no_change_gives_the_picture_back) {
    if (!begin()) return;
    for (int corners = 0; corners < 2; corners++) {
        const double same[] = { 1, 0, 0, 0, 1, 0 }, moved[] = { 0, 1, 0.5, -1, 0, 0.25 };
        fill(2 * 5 * 4);
        gn_tensor x = tensor(GN_F32, GN_SHAPE(1, 2, 5, 4), given),
                  grid = gn_affine_grid(tensor(GN_F32, GN_SHAPE(1, 2, 3), same), GN_SHAPE(5, 4), corners);
        memcpy(wanted, given, 40 * sizeof *wanted);
        if (reads(gn_grid_sample(x, grid, &(gn_grid_sample_desc){ .corners = corners }), 40))
            close_to("same", 40, 2e-6);
        for (int i = 0; i < 6; i++) {
            double px = corners ? -1 + i % 3 : -2.0 / 3 + 2.0 / 3 * (i % 3),
                   py = corners ? -1 + 2 * (i / 3) : -0.5 + i / 3;
            wanted[2 * i] = py + 0.5;
            wanted[2 * i + 1] = -px + 0.25;
        }
        if (reads(gn_affine_grid(tensor(GN_F64, GN_SHAPE(1, 2, 3), moved), GN_SHAPE(2, 3), corners), 12))
            close_to("affine_grid", 12, 1e-14);
    }
    gn_close(g);
}

TEST(the_grid_of_an_axis_of_one_element_is_its_middle) {
    const double same[] = { 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0 }, x[] = { -1, 0, 1 };
    if (!begin()) return;
    for (int corners = 0; corners < 2; corners++) {
        for (int i = 0; i < 9; i++) wanted[i] = i % 3 == 1 ? x[i / 3] * (corners ? 1 : 2.0 / 3) : 0;
        if (reads(gn_affine_grid(tensor(GN_F64, GN_SHAPE(1, 3, 4), same), GN_SHAPE(1, 3, 1), corners), 9))
            close_to("affine_grid", 9, 1e-15);
    }
    gn_close(g);
}

/* ---- regions, taps at places of their own ---- */

/* A plane h by w at y, x: between elements, whose share it is if that is the largest. */
static double between(const double *plane, int64_t h, int64_t w, double y, double x, bool largest) {
    double sum = 0, most = -INFINITY;
    for (int k = 0; k < 4; k++) {
        double row = floor(y) + k / 2, column = floor(x) + k % 2;
        double share = (1 - fabs(y - row)) * (1 - fabs(x - column));
        bool inside = row >= 0 && row < (double)h && column >= 0 && column < (double)w;
        share *= inside ? plane[(int64_t)row * w + (int64_t)column] : 0;
        sum += share;
        most = fmax(most, share);
    }
    return largest ? most : sum;
}

/* As ONNX's RoiAlign defines it: what is less than 1 outside counts as at the edge, what is farther as 0. */
static double roi_sample(const double *plane, int64_t h, int64_t w, double y, double x, bool largest) {
    if (y < -1 || y > (double)h || x < -1 || x > (double)w) return 0;
    y = fmin(fmax(y, 0), (double)(h - 1));
    x = fmin(fmax(x, 0), (double)(w - 1));
    return between(plane, h, w, y, x, largest);
}

static double roi_cell(const double *plane, int64_t h, int64_t w, const double roi[4], const gn_roi_align_desc *d,
                       int64_t row, int64_t column) {
    double low[2], cell[2], sum = 0, most = -INFINITY;
    int64_t n[2];
    for (int i = 0; i < 2; i++) { /* x, then y */
        double from = roi[i] * d->scale - (d->half_pixel ? 0.5 : 0), to = roi[i + 2] * d->scale;
        double length = to - (d->half_pixel ? 0.5 : 0) - from;
        cell[i] = (d->half_pixel ? length : fmax(length, 1)) / (double)(i ? d->height : d->width);
        low[i] = from + cell[i] * (double)(i ? row : column);
        n[i] = d->adaptive ? (int64_t)fmax(ceil(cell[i]), 0) : d->samples;
    }
    for (int64_t i = 0; i < n[0] * n[1]; i++) {
        double y = low[1] + cell[1] * ((double)(i / n[0]) + 0.5) / (double)n[1],
               x = low[0] + cell[0] * ((double)(i % n[0]) + 0.5) / (double)n[0];
        double v = roi_sample(plane, h, w, y, x, d->largest);
        sum += v;
        most = fmax(most, v);
    }
    if (n[0] * n[1] == 0) return 0;
    return d->largest ? most : sum / (double)(n[0] * n[1]);
}

TEST(regions_of_images_are_averaged) {
    enum { N = 2, C = 3, H = 5, W = 6, R = 6, ROWS = 2, COLUMNS = 3, CELLS = ROWS * COLUMNS };
    static const int32_t which[R] = { 0, 1, 1, 0, 1, 0 };
    /* inside, reaching outside, small, far outside, of no size, turned round */
    static const double rois[R * 4] = { 0.5, 1.25, 4,  3.5, -3.25, -2, 9.5, 8, 2.2, 1.1, 2.6, 1.4,
                                        20,  20,   24, 30,  3,     2,  3,   2, 4.5, 4,   1,   2 };
    if (!begin()) return;
    for (int k = 0; k < 16; k++) {
        gn_roi_align_desc d = { .height = ROWS,
                                .width = COLUMNS,
                                .samples = k / 4 == 3 ? 5 : k / 4 + 1, /* region 1 and 3 are ten high */
                                .scale = k / 4 == 2 ? 0.75 : 1,
                                .half_pixel = k & 1,
                                .largest = k & 2,
                                .adaptive = k / 4 == 3 };
        fill(N * C * H * W);
        for (int i = 0; i < R * C * CELLS; i++) {
            int r = i / CELLS / C;
            wanted[i] = roi_cell(given + (which[r] * C + i / CELLS % C) * H * W, H, W, rois + 4 * r, &d,
                                 i % CELLS / COLUMNS, i % COLUMNS);
        }
        gn_tensor y = gn_roi_align(tensor(GN_F64, GN_SHAPE(N, C, H, W), given), tensor(GN_F64, GN_SHAPE(R, 4), rois),
                                   gn_data_copy(g, GN_I32, GN_SHAPE(R), which), &d);
        if (reads(y, R * C * CELLS)) close_to("roi_align", R * C * CELLS, 1e-12);
        gn_step(g);
    }
    gn_close(g);
}

/* A bound of 0 is the image: a region of its size is read, a longer one is none of the images. */
TEST(adaptive_samples_past_their_bound_are_an_error_at_the_read) {
    static const double rois[4][4] = { { 0, 0, 6, 4 }, { 0, 0, 6.1, 4 }, { 0, 0, 6, 4.5 }, { 0, (double)NAN, 6, 4 } };
    const int32_t first = 0;
    for (int i = 0; i < 5; i++) { /* the last one with a bound of its own */
        if (!begin()) return;
        gn_roi_align_desc d = {
            .height = 2, .width = 3, .half_pixel = true, .adaptive = true, .samples = i == 4 ? 3 : 0
        };
        fill(24);
        gn_tensor y = gn_roi_align(tensor(GN_F64, GN_SHAPE(1, 1, 4, 6), given),
                                   tensor(GN_F64, GN_SHAPE(1, 4), rois[i == 4 ? 2 : i]),
                                   gn_data_copy(g, GN_I32, GN_SHAPE(1), &first), &d);
        double out[6];
        CHECK_INT(gn_read(y, out, sizeof out), i == 0 || i == 4 ? GN_OK : GN_INDEX_OUT_OF_RANGE);
        gn_close(g);
    }
}

/* What does not count is not looked at: an infinity where only the other region has a sample. */
TEST(adaptive_samples_of_one_region_are_none_of_the_others) {
    static const double rois[8] = { 0, 0, 1, 1, 0, 0, 8, 8 };
    static const int32_t which[2] = { 0, 0 };
    if (!begin()) return;
    for (int largest = 0; largest < 2; largest++) {
        gn_roi_align_desc d = { .half_pixel = true, .adaptive = true, .largest = largest };
        fill(64);
        given[63] = given[7] = given[18] = INFINITY;
        wanted[0] = largest && given[0] < 0 ? 0 : given[0]; /* the shares of its three neighbours are 0 */
        gn_tensor y = gn_roi_align(tensor(GN_F64, GN_SHAPE(1, 1, 8, 8), given), tensor(GN_F64, GN_SHAPE(2, 4), rois),
                                   gn_data_copy(g, GN_I32, GN_SHAPE(2), which), &d);
        if (reads(gn_slice(y, 0, 0, 1, 1), 1)) close_to("roi_align", 1, 1e-12);
        gn_step(g);
    }
    gn_close(g);
}

/* The plane x + 4 y of 4 by 4: averages of samples are its value in the middle of a cell; half pixels are half
   an element less in each direction. */
TEST(a_region_of_a_ramp_is_its_middle) {
    static const double roi[4] = { 0.5, 1, 2.5, 3 };
    if (!begin()) return;
    for (int i = 0; i < 16; i++) given[i] = i;
    for (int half = 0; half < 2; half++) {
        int32_t first = 0;
        for (int i = 0; i < 4; i++) wanted[i] = 1 + i % 2 + 4 * (1.5 + i / 2) - (half ? 2.5 : 0);
        gn_roi_align_desc d = { .height = 2, .width = 2, .half_pixel = half };
        gn_tensor y = gn_roi_align(tensor(GN_F64, GN_SHAPE(1, 1, 4, 4), given), tensor(GN_F64, GN_SHAPE(1, 4), roi),
                                   gn_data_copy(g, GN_I32, GN_SHAPE(1), &first), &d);
        if (reads(y, 4)) close_to("ramp", 4, 1e-14);
    }
    gn_close(g);
}

typedef struct deformed {
    int64_t N, C, H, W, M, KH, KW, OH, OW, G, groups; /* G groups of offsets */
    const double *x, *w, *offset, *mask, *bias;       /* mask, bias: or NULL */
    gn_conv_desc d;
} deformed;

static double deformed_at(const deformed *c, int64_t n, int64_t m, int64_t oy, int64_t ox) {
    int64_t taps = c->KH * c->KW, each = c->C / c->groups, first = m / (c->M / c->groups) * each;
    double sum = c->bias ? c->bias[m] : 0;
    for (int64_t i = 0; i < each * taps; i++) {
        int64_t channel = first + i / taps, tap = i % taps, own = channel / (c->C / c->G);
        const double *offset = c->offset + (((n * c->G + own) * taps + tap) * 2 * c->OH + oy) * c->OW + ox;
        double y = (double)(oy * c->d.stride[0] + tap / c->KW * c->d.dilation[0] - c->d.before[0]) + offset[0];
        double x =
            (double)(ox * c->d.stride[1] + tap % c->KW * c->d.dilation[1] - c->d.before[1]) + offset[c->OH * c->OW];
        double v = between(c->x + (n * c->C + channel) * c->H * c->W, c->H, c->W, y, x, false);
        if (c->mask) v *= c->mask[(((n * c->G + own) * taps + tap) * c->OH + oy) * c->OW + ox];
        sum += v * c->w[(m * each + i / taps) * taps + tap];
    }
    return sum;
}

/* Numbers for it; where mask and bias are not NULL it has them. */
static void check_deformed(deformed c) {
    int64_t taps = c.KH * c.KW, points = c.OH * c.OW,
            parts[5] = { c.N * c.C * c.H * c.W, c.M * c.C / c.groups * taps, 2 * c.N * c.G * taps * points,
                         c.N * c.G * taps * points, c.M };
    const double *at[6] = { given };
    for (int i = 0; i < 5; i++) at[i + 1] = at[i] + parts[i];
    fill(at[5] - given);
    for (int64_t i = 0; i < parts[2]; i++) given[at[2] - given + i] *= 2.5;
    c.x = at[0], c.w = at[1], c.offset = at[2];
    if (c.mask) c.mask = at[3];
    if (c.bias) c.bias = at[4];
    for (int64_t i = 0; i < c.N * c.M * points; i++)
        wanted[i] = deformed_at(&c, i / points / c.M, i / points % c.M, i % points / c.OW, i % c.OW);
    gn_tensor mask = GN_NONE, bias = GN_NONE, x = tensor(GN_F64, GN_SHAPE(c.N, c.C, c.H, c.W), c.x);
    if (c.mask) mask = tensor(GN_F64, GN_SHAPE(c.N, c.G * taps, c.OH, c.OW), c.mask);
    if (c.bias) bias = tensor(GN_F64, GN_SHAPE(c.M), c.bias);
    gn_tensor y = gn_deform_conv(x, tensor(GN_F64, GN_SHAPE(c.M, c.C / c.groups, c.KH, c.KW), c.w),
                                 tensor(GN_F64, GN_SHAPE(c.N, 2 * c.G * taps, c.OH, c.OW), c.offset), mask, bias, &c.d);
    if (reads(y, c.N * c.M * points)) close_to("deform_conv", c.N * c.M * points, 1e-12);
    gn_step(g);
}

/* Offsets up to 2.5 elements reach far outside of 5 by 6. */
TEST(taps_at_places_of_their_own_are_convolved) {
    if (!begin()) return;
    for (int k = 0; k < 8; k++) {
        deformed c = { .N = 2,
                       .C = 4,
                       .H = 5,
                       .W = 6,
                       .M = 6,
                       .KH = 3,
                       .KW = 2,
                       .G = k & 1 ? 2 : 1,
                       .groups = k & 2 ? 2 : 1,
                       .mask = k & 1 ? NULL : given,
                       .bias = k & 2 ? given : NULL,
                       .OH = 3,
                       .OW = 5,
                       .d = { .stride = { 1, 1 }, .dilation = { 1, 1 } } };
        c.d.groups = c.groups;
        if (k & 4) {
            c.d = (gn_conv_desc){
                .stride = { 2, 1 }, .dilation = { 1, 2 }, .before = { 1, 2 }, .after = { 2, 0 }, .groups = c.groups
            };
            c.OH = 3; /* (5 + 3 - 2 - 1) / 2 + 1 */
            c.OW = 6; /* 6 + 2 - 2 - 1 + 1 */
        }
        check_deformed(c);
    }
    gn_close(g);
}

/* One tap of weight 2 on the row 1, 2, 4, read 1/2 to the right of itself: half of the last lies outside. */
TEST(a_tap_half_an_element_away_is_between_two) {
    static const double row[3] = { 1, 2, 4 }, offset[6] = { 0, 0, 0, 0.5, 0.5, 0.5 }, two = 2;
    if (!begin()) return;
    gn_tensor y = gn_deform_conv(tensor(GN_F64, GN_SHAPE(1, 1, 1, 3), row), tensor(GN_F64, GN_SHAPE(1, 1, 1, 1), &two),
                                 tensor(GN_F64, GN_SHAPE(1, 2, 1, 3), offset), GN_NONE, GN_NONE, NULL);
    wanted[0] = 3, wanted[1] = 6, wanted[2] = 4;
    if (reads(y, 3)) close_to("deform_conv", 3, 0);
    gn_close(g);
}

TEST(blocks_of_a_picture_go_to_channels_and_back) {
    enum { C = 3, H = 4, W = 5, B = 2 };
    if (!begin()) return;
    for (int first = 0; first < 2; first++) {
        fill(B * B * C * H * W);
        gn_tensor x = tensor(GN_F32, GN_SHAPE(1, B * B * C, H, W), given), y = gn_depth_to_space(x, B, first);
        for (int i = 0; i < C * H * B * W * B; i++) {
            int w = i % (W * B), h = i / (W * B) % (H * B), c = i / (W * B * H * B), inside = h % B * B + w % B;
            wanted[i] = (float)given[((first ? c * B * B + inside : inside * C + c) * H + h / B) * W + w / B];
        }
        if (reads(y, B * B * C * H * W)) close_to("depth_to_space", B * B * C * H * W, 0);
        for (int i = 0; i < B * B * C * H * W; i++) wanted[i] = (float)given[i];
        if (reads(gn_space_to_depth(y, B, first), B * B * C * H * W)) close_to("back", B * B * C * H * W, 0);
    }
    gn_close(g);
}

/* ---- counting and searching ---- */

TEST(ids_and_their_weights_are_counted) {
    enum { N = 500, BINS = 17 };
    int32_t ids[N];
    if (!begin()) return;
    fill(N);
    memset(wanted, 0, sizeof wanted);
    for (int i = 0; i < N; i++) {
        ids[i] = (int32_t)test_random_int(0, BINS - 1);
        wanted[ids[i]] += 1;
        wanted[BINS + ids[i]] += given[i];
    }
    gn_tensor t = gn_data(g, GN_I32, GN_SHAPE(20, 25), ids), w = tensor(GN_F64, GN_SHAPE(20, 25), given),
              both[] = { gn_cast(gn_bincount(t, BINS, GN_NONE), GN_F64), gn_bincount(t, BINS, w) };
    if (reads(gn_concat(both, 2, 0), 2 * BINS)) close_to("bincount", 2 * BINS, 1e-12);
    ids[3] = BINS;
    CHECK_RESULT(gn_read(gn_bincount(gn_data(g, GN_I32, GN_SHAPE(N), ids), BINS, GN_NONE), got, BINS * 8),
                 GN_INDEX_OUT_OF_RANGE);
    gn_close(g);
}

TEST(parts_of_a_range_are_counted) {
    enum { N = 3000, BINS = 8 };
    if (!begin()) return;
    fill(N);
    given[0] = NAN, given[1] = INFINITY, given[2] = -INFINITY, given[3] = 0.5, given[4] = -0.5, given[5] = 0.500001;
    memset(wanted, 0, sizeof wanted);
    for (int i = 0; i < N; i++)
        if (given[i] >= -0.5 && given[i] <= 0.5) wanted[(int)fmin(floor((given[i] + 0.5) * BINS), BINS - 1)] += 1;
    if (reads(gn_histogram(tensor(GN_F64, GN_SHAPE(N), given), BINS, -0.5, 0.5), BINS)) close_to("histogram", BINS, 0);
    gn_close(g);
}

/* Whole numbers and NaN, which is 99 here. */
TEST(values_of_a_tensor_are_listed_once) {
    enum { N = 60, ROOM = 12 };
    if (!begin()) return;
    for (int k = 0; k < 6; k++) {
        gn_dtype d = k % 2 ? GN_I32 : GN_F32;
        int bound = k < 2 ? ROOM : k < 4 ? 3 : 0, n = 0;
        double values[ROOM], first[ROOM], counts[ROOM] = { 0 }, numbers[N];
        for (int i = 0; i < N; i++) given[i] = (double)test_random_int(-3, 3);
        if (d == GN_F32) given[7] = given[31] = NAN;
        for (double v = -3; v < 100; v++) {
            int before = n;
            for (int i = 0; i < N; i++)
                if (given[i] == v || (v == 99 && isnan(given[i]))) {
                    if (n == before) values[n] = v, first[n++] = i;
                    counts[n - 1] += 1;
                    numbers[i] = n - 1;
                }
        }
        gn_tensor y[4], x = tensor(d, GN_SHAPE(6, 10), given), count = gn_unique(x, bound, &y[0], &y[1], &y[2], &y[3]);
        y[0] = gn_where(gn_isnan(y[0]), gn_like(y[0], 99), y[0]);
        wanted[0] = n;
        if (reads(gn_cast(count, GN_F64), 1)) close_to("values", 1, 0);
        for (int o = 0; o < 4; o++) {
            const double *plain = o == 0 ? values : o == 1 ? first : o == 2 ? counts : numbers;
            for (int i = 0; i < (o < 3 ? bound : N); i++) wanted[i] = o == 3 || i < n ? plain[i] : o == 1 ? -1 : 0;
            if (reads(gn_cast(y[o], GN_F64), o < 3 ? bound : N)) close_to("unique", o < 3 ? bound : N, 0);
        }
        gn_step(g);
    }
    gn_close(g);
}

TEST(values_are_found_in_a_sorted_vector) {
    if (!begin()) return;
    for (int n = 0; n < 70; n += 1 + n / 9) {
        for (int k = 0; k < 4; k++) {
            gn_dtype d = k / 2 ? GN_I32 : GN_F32;
            int values = 40;
            for (int i = 0; i < n; i++) aside[i] = (i ? aside[i - 1] : -9) + (double)test_random_int(0, 2);
            for (int i = 0; i < values; i++) {
                given[i] = (double)test_random_int(-12, 2 * n + 3);
                wanted[i] = 0;
                for (int j = 0; j < n; j++) wanted[i] += k % 2 ? aside[j] <= given[i] : aside[j] < given[i];
            }
            gn_tensor found = gn_searchsorted(tensor(d, GN_SHAPE(n), aside), tensor(d, GN_SHAPE(5, 8), given), k % 2);
            if (reads(found, values)) close_to("searchsorted", values, 0);
        }
        gn_step(g);
    }
    gn_close(g);
}

/* ---- losses of classes, smallest values ---- */

TEST(losses_of_classes_have_weights_and_rows_that_do_not_count) {
    enum { N = 12, C = 5, IGNORED = -7 };
    int32_t targets[N];
    double weights[C], row[N], each[N];
    if (!begin()) return;
    for (int k = 0; k < 24; k++) {
        bool weighs = k & 1, ignores = k & 2;
        double smoothing = k & 4 ? 0.3 : 0, sums[2] = { 0, 0 };
        fill(N * C + C);
        for (int i = 0; i < C; i++) weights[i] = given[N * C + i] + 1.5;
        for (int i = 0; i < N; i++) {
            double sum = 0, all = 0;
            targets[i] = ignores && i % 4 == 1 ? IGNORED : (int32_t)test_random_int(0, C - 1);
            for (int c = 0; c < C; c++) sum += exp(given[i * C + c]);
            for (int c = 0; c < C; c++) all -= (given[i * C + c] - log(sum)) * (weighs ? weights[c] : 1) / C;
            bool counts = targets[i] != IGNORED;
            each[i] = !counts ? 0 : weighs ? weights[targets[i]] : 1;
            row[i] = counts ? (1 - smoothing) * each[i] * (log(sum) - given[i * C + targets[i]]) + smoothing * all : 0;
            sums[0] += row[i];
            sums[1] += each[i];
        }
        gn_cross_entropy_desc d = { .weights = weighs ? tensor(GN_F64, GN_SHAPE(C), weights) : GN_NONE,
                                    .ignores = ignores,
                                    .ignored = IGNORED,
                                    .smoothing = smoothing,
                                    .reduction = (gn_reduction)(k / 8) };
        gn_tensor y = gn_cross_entropy_with(tensor(GN_F64, GN_SHAPE(3, 4, C), given),
                                            gn_data_copy(g, GN_I32, GN_SHAPE(3, 4), targets), &d);
        int n = d.reduction == GN_REDUCE_NONE ? N : 1;
        wanted[0] = d.reduction == GN_REDUCE_MEAN ? sums[0] / sums[1] : sums[0];
        if (n == N) memcpy(wanted, row, sizeof row);
        if (reads(y, n)) close_to("cross_entropy_with", n, 1e-13);
    }
    gn_close(g);
}

TEST(the_smallest_of_what_meets_is_kept) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_I32, GN_I64, GN_U8, GN_I8, GN_BOOL };
    enum { N = 9, M = 40 };
    int64_t at[M];
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(dtypes); k++) {
        gn_dtype d = dtypes[k];
        double low = d == GN_U8 || d == GN_BOOL ? 0 : -128, high = d == GN_BOOL ? 1 : 127;
        for (int i = 0; i < N + M; i++) given[i] = (double)test_random_int((int64_t)low, (int64_t)high);
        given[N] = low;
        memcpy(wanted, given, N * sizeof *wanted);
        for (int i = 0; i < M; i++) {
            at[i] = test_random_int(0, N - 2);
            wanted[at[i]] = fmin(wanted[at[i]], given[N + i]);
        }
        gn_tensor y = gn_scatter_min(tensor(d, GN_SHAPE(N), given), 0, gn_data_copy(g, GN_I64, GN_SHAPE(M), at),
                                     tensor(d, GN_SHAPE(M), given + N));
        if (reads(y, N)) close_to("scatter_min", N, 0);
    }
    gn_close(g);
}

/* Rows of (3,2,5): over the last one, two and three axes. */
TEST(norms_of_trailing_axes_give_their_mean_and_deviation) {
    enum { N = 30 };
    const gn_shape shape = GN_SHAPE(3, 2, 5), inner[] = { GN_SHAPE(3, 2, 5), GN_SHAPE(2, 5), GN_SHAPE(5) };
    if (!begin()) return;
    for (int axis = -1; axis < 3; axis++) {
        int64_t d = axis == 0 ? 30 : axis == 1 ? 10 : 5, rows = N / d;
        gn_tensor mean, deviation;
        fill(3 * N);
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, square = 0;
            for (int64_t i = 0; i < d; i++) sum += given[r * d + i];
            for (int64_t i = 0; i < d; i++) square += pow(given[r * d + i] - sum / (double)d, 2);
            aside[r] = sum / (double)d;
            aside[N + r] = sqrt(square / (double)d + 0.01);
            for (int64_t i = 0; i < d; i++)
                wanted[r * d + i] = (given[r * d + i] - aside[r]) / aside[N + r] * given[N + i] + given[2 * N + i];
        }
        gn_shape s = inner[axis < 0 ? 2 : axis];
        gn_tensor y = gn_layernorm_over(tensor(GN_F32, shape, given), axis, tensor(GN_F32, s, given + N),
                                        tensor(GN_F32, s, given + 2 * N), 0.01, &mean, &deviation);
        if (reads(y, N)) close_to("layernorm_over", N, 1e-5);
        memcpy(wanted, aside, sizeof(double) * N);
        if (reads(mean, rows)) close_to("mean", rows, 1e-6);
        memcpy(wanted, aside + N, sizeof(double) * N);
        if (reads(deviation, rows)) close_to("deviation", rows, 1e-6);
    }
    gn_close(g);
}

/* x (3,2,2,2): the mean and the variance of 12 elements of each channel. */
TEST(norms_of_batches_give_the_statistics_of_their_channels) {
    enum { N = 3, C = 2, PLANE = 4, ALL = N * C * PLANE };
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_BF16 };
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(dtypes); k++) {
        double mean[C], variance[C], bound = dtypes[k] == GN_F64 ? 1e-14 : dtypes[k] == GN_F32 ? 4e-6 : 0.03;
        gn_tensor out[2], x;
        for (int i = 0; i < ALL; i++) given[i] = (double)test_random_int(-64, 64) / 32; /* exact in 16 bits */
        for (int c = 0; c < C; c++) {
            mean[c] = variance[c] = 0;
            for (int i = 0; i < N * PLANE; i++) mean[c] += given[(i / PLANE * C + c) * PLANE + i % PLANE] / (N * PLANE);
            for (int i = 0; i < N * PLANE; i++)
                variance[c] += pow(given[(i / PLANE * C + c) * PLANE + i % PLANE] - mean[c], 2) / (N * PLANE);
        }
        for (int i = 0; i < ALL; i++)
            aside[i] =
                (given[i] - mean[i / PLANE % C]) / sqrt(variance[i / PLANE % C] + 0.01) * (1 + i / PLANE % C) - 0.5;
        const double gain[C] = { 1, 2 }, bias[C] = { -0.5, -0.5 };
        x = tensor(dtypes[k], GN_SHAPE(N, C, 2, 2), given);
        gn_tensor y = gn_batch_norm_train(x, tensor(dtypes[k], GN_SHAPE(C), gain), tensor(dtypes[k], GN_SHAPE(C), bias),
                                          0.01, &out[0], &out[1]);
        memcpy(wanted, aside, ALL * sizeof *wanted);
        if (reads(y, ALL)) close_to("batch_norm_train", ALL, bound);
        memcpy(wanted, mean, sizeof mean);
        if (reads(out[0], C)) close_to("mean", C, bound);
        memcpy(wanted, variance, sizeof variance);
        if (reads(out[1], C)) close_to("variance", C, bound);
        y = gn_batch_norm(x, out[0], out[1], tensor(dtypes[k], GN_SHAPE(C), gain), tensor(dtypes[k], GN_SHAPE(C), bias),
                          0.01);
        memcpy(wanted, aside, ALL * sizeof *wanted);
        if (reads(y, ALL)) close_to("batch_norm", ALL, 2 * bound);
    }
    gn_close(g);
}

TEST(norms_of_no_channels_are_empty) {
    if (!begin()) return;
    for (int k = 0; k < 3; k++) {
        gn_shape s = k ? GN_SHAPE(2, 0, 3) : GN_SHAPE(2, 0);
        gn_tensor x = tensor(GN_F32, s, given), out;
        gn_tensor y = k == 2 ? gn_instance_norm(x, GN_NONE, GN_NONE, 1) : gn_local_response_norm(x, 3, 1, 0.5, 1);
        gn_info info;
        CHECK_RESULT(gn_describe(y, &info), GN_OK);
        CHECK(info.dtype == GN_F32 && info.shape.rank == s.rank && info.shape.dims[0] == 2 && info.shape.dims[1] == 0);
        CHECK_RESULT(gn_grad(gn_sum(y, GN_ALL_AXES, false), &x, 1, &out), GN_OK);
        reads(y, 0);
        reads(out, 0);
    }
    gn_close(g);
}

/* Products of whole numbers, which no order rounds, and of halves and twos in 16 bits. */
TEST(what_meets_is_multiplied) {
    static const gn_dtype dtypes[] = { GN_F32, GN_F64, GN_I32, GN_I64, GN_U8, GN_F16, GN_BF16 };
    enum { N = 5, M = 23, ROWS = 3 };
    int64_t at[M * ROWS];
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(dtypes); k++) {
        gn_dtype d = dtypes[k];
        bool whole = d == GN_I32 || d == GN_I64 || d == GN_U8;
        for (int i = 0; i < (N + M) * ROWS; i++) {
            double power = ldexp(i % 3 ? 1 : -1, (int)test_random_int(-1, 1));
            given[i] = i % 20 == 7 ? 0 : whole ? (double)test_random_int(1, 2) : power;
        }
        memcpy(wanted, given, N * ROWS * sizeof *wanted);
        for (int i = 0; i < M * ROWS; i++) { /* along the first axis, in columns */
            at[i] = test_random_int(0, N - 1);
            double *to = &wanted[at[i] * ROWS + i % ROWS];
            *to *= given[N * ROWS + i];
            if (d == GN_U8) *to = fmod(*to, 256);
        }
        gn_tensor y =
            gn_scatter_mul(tensor(d, GN_SHAPE(N, ROWS), given), 0, gn_data_copy(g, GN_I64, GN_SHAPE(M, ROWS), at),
                           tensor(d, GN_SHAPE(M, ROWS), given + N * ROWS));
        if (reads(y, N * ROWS)) close_to("scatter_mul", N * ROWS, 0);
    }
    gn_close(g);
}

/* ---- indices from the end, bags, given numbers ---- */

#define NUMBERS(...) (const double[]){ __VA_ARGS__ }, (int64_t)(sizeof(double[]){ __VA_ARGS__ } / sizeof(double))
static void is_near(const char *what, gn_tensor y, double bound, const double *want, int64_t n) {
    memcpy(wanted, want, (size_t)n * sizeof *want);
    if (reads(y, n)) close_to(what, n, bound);
}
#define IS(y, ...) is_near(#y, y, 0, NUMBERS(__VA_ARGS__))
#define NEAR(y, bound, ...) is_near(#y, y, bound, NUMBERS(__VA_ARGS__))
#define T(dtype, shape, ...) tensor(dtype, shape, (const double[]){ __VA_ARGS__ })

TEST(windows_are_pooled_by_powers) {
    if (!begin()) return;
    gn_pool_desc d = { .kernel = { 2 }, .stride = { 2 } },
                 padded = { .kernel = { 3 }, .before = { 1 }, .after = { 1 } };
    gn_tensor x = T(GN_F64, GN_SHAPE(1, 1, 6), 3, -4, 1, 2, 0, 0), slope, zero = T(GN_F64, GN_SHAPE(1, 1, 2), 0, 0);
    NEAR(gn_lp_pool(x, 2, &d), 1e-15, 5, 2.23606797749979, 0);
    NEAR(gn_lp_pool(x, 1, &d), 1e-15, 7, 3, 0);
    NEAR(gn_lp_pool(x, 3, &d), 1e-14, 4.497941445275415, 2.080083823051904, 0);
    NEAR(gn_lp_pool(x, 2, &padded), 1e-15, 5, 5.0990195135927845, 4.58257569495584, 2.23606797749979, 2, 0);
    if (CHECK_RESULT(gn_grad(gn_sum(gn_lp_pool(x, 2, &d), GN_ALL_AXES, false), &x, 1, &slope), GN_OK))
        NEAR(slope, 1e-15, 0.6, -0.8, 0.4472135954999579, 0.8944271909999159, 0, 0);
    if (CHECK_RESULT(gn_grad(gn_sum(gn_lp_pool(zero, 3, &d), GN_ALL_AXES, false), &zero, 1, &slope), GN_OK))
        IS(slope, 0, 0);
    gn_info info;
    CHECK_RESULT(gn_describe(gn_lp_pool(x, 0, &d), &info), GN_BAD_ARGUMENT);
    CHECK_RESULT(gn_describe(gn_lp_pool(x, INFINITY, &d), &info), GN_BAD_ARGUMENT);
    gn_close(g);
}

TEST(indices_below_0_count_from_the_end) {
    static const gn_dtype dtypes[] = { GN_I32, GN_I64 };
    if (!begin()) return;
    for (int k = 0; k < TEST_COUNT(dtypes); k++) {
        gn_dtype d = dtypes[k];
        gn_tensor a = T(GN_F32, GN_SHAPE(3, 2), 0, 1, 2, 3, 4, 5), ids = T(d, GN_SHAPE(4), -1, 0, -3, 2),
                  pairs = T(d, GN_SHAPE(3, 2), -1, -1, 0, -2, 1, 0);
        IS(gn_from_end(ids, 3), 2, 0, 0, 2);
        IS(gn_from_end(T(d, GN_SHAPE(3), -4, 5, -3), 3), -1, 5, 0);
        IS(gn_gather(a, 0, gn_from_end(T(d, GN_SHAPE(2, 2), -1, 0, 1, -3), 3)), 4, 1, 2, 1);
        IS(gn_embedding(a, gn_from_end(ids, 3)), 4, 5, 0, 1, 0, 1, 4, 5);
        IS(gn_index_select(a, 1, gn_from_end(T(d, GN_SHAPE(1), -1), 2)), 1, 3, 5);
        IS(gn_from_end_nd(pairs, GN_SHAPE(3, 2)), 2, 1, 0, 0, 1, 0);
        IS(gn_gather_nd(a, gn_from_end_nd(pairs, GN_SHAPE(3, 2))), 5, 0, 2);
        IS(gn_gather_nd(a, gn_from_end_nd(T(d, GN_SHAPE(1, 1), -2), GN_SHAPE(3, 2))), 2, 3);
        IS(gn_scatter(T(GN_F32, GN_SHAPE(4), 1, 2, 3, 4), 0, gn_from_end(T(d, GN_SHAPE(2), -1, -4), 4),
                      T(GN_F32, GN_SHAPE(2), 7, 8)),
           8, 2, 3, 7);
        gn_step(g);
    }
    gn_tensor least = gn_full_i64(g, GN_I64, GN_SHAPE(1), INT64_MIN);
    CHECK(gn_read(gn_eq(gn_from_end(least, INT64_MAX), gn_like(least, -1)), got, 1) == GN_OK && *(char *)got == 1);
    gn_close(g);
}

/* Bags (0,1), (), (2,2,0) and then (3): of offsets, of offsets with the end, and with ids in no bag. */
TEST(bags_begin_at_offsets) {
    if (!begin()) return;
    for (int k = 0; k < 6; k++) {
        gn_bag_mode mode = (gn_bag_mode)(k / 2);
        bool has_end = k % 2;
        gn_dtype d = has_end ? GN_I64 : GN_I32;
        gn_tensor table = T(GN_F64, GN_SHAPE(4, 2), 1, -2, 3, 4, -5, 6, 7, 8),
                  ids = T(d, GN_SHAPE(6), 0, 1, 2, 2, 0, 3), offsets = T(d, GN_SHAPE(4), 0, 2, 2, 5);
        gn_tensor y = gn_embedding_bag_offsets(table, ids, offsets, has_end, mode);
        double rows[3][8] = { { 4, 2, 0, 0, -9, 10, 7, 8 },
                              { 2, 1, 0, 0, -3, 10. / 3, 7, 8 },
                              { 3, 4, 0, 0, 1, 6, 7, 8 } };
        is_near("embedding_bag_offsets", y, 1e-15, rows[mode], has_end ? 6 : 8);
        if (!has_end || mode != GN_BAG_SUM) continue;
        gn_tensor slope;
        if (CHECK_RESULT(gn_grad(gn_sum(y, GN_ALL_AXES, false), &table, 1, &slope), GN_OK))
            IS(slope, 2, 2, 1, 1, 2, 2, 0, 0);
    }
    gn_tensor table = T(GN_F32, GN_SHAPE(1, 1), 3), none = gn_full(g, GN_I32, GN_SHAPE(0), 0);
    IS(gn_embedding_bag_offsets(table, none, T(GN_I32, GN_SHAPE(2), 0, 0), false, GN_BAG_MEAN), 0, 0);
    IS(gn_reshape(gn_count_nonzero(gn_embedding_bag_offsets(table, none, none, false, GN_BAG_SUM), GN_ALL_AXES, false),
                  GN_SHAPE(1)),
       0);
    gn_close(g);
}

/* `call` with each reduction r: its mean, its sum and its elements. */
#define LOSS(call, mean, sum, ...)       \
    do {                                 \
        gn_reduction r = GN_REDUCE_MEAN; \
        NEAR(call, 1e-15, mean);         \
        r = GN_REDUCE_SUM;               \
        NEAR(call, 1e-14, sum);          \
        r = GN_REDUCE_NONE;              \
        NEAR(call, 1e-15, __VA_ARGS__);  \
    } while (0)
#define WITH(...) \
    &(gn_loss_desc) { .reduction = r, __VA_ARGS__ }
#define M23(...) T(GN_F64, GN_SHAPE(2, 3), __VA_ARGS__)
#define ROW3(...) T(GN_F64, GN_SHAPE(3), __VA_ARGS__)

/* The numbers are PyTorch 2.15's, in f64; smooth_l1, which has no weights there, is weighted as l1. */
TEST(losses_of_elements_have_weights_and_reductions) {
    if (!begin()) return;
    gn_tensor a = M23(0.5, -1.25, 2, 0.1, 3, -0.75), b = M23(0.25, -1, -0.5, 0.1, 1.5, 0.75),
              w = M23(2, 0.5, 1, 0.25, 3, 0), row = ROW3(0.5, 1, 2);
    LOSS(gn_mse_loss_with(a, b, WITH(.weights = w)), 1.9490740740740742, 13.15625, 0.125, 0.03125, 6.25, 0, 6.75, 0);
    LOSS(gn_mse_loss_with(a, b, WITH(.weights = row)), 2.7633928571428572, 19.34375, 0.03125, 0.0625, 12.5, 0, 2.25,
         4.5);
    LOSS(gn_mse_loss_with(a, b, WITH(.weights = GN_NONE)), 1.8125, 10.875, 0.0625, 0.0625, 6.25, 0, 2.25, 2.25);
    LOSS(gn_l1_loss_with(a, b, WITH(.weights = w)), 1.1296296296296295, 7.625, 0.5, 0.125, 2.5, 0, 4.5, 0);
    LOSS(gn_l1_loss_with(a, b, WITH(.weights = GN_NONE)), 1, 6, 0.25, 0.25, 2.5, 0, 1.5, 1.5);
    LOSS(gn_smooth_l1_loss_with(a, b, 0.4, WITH(.weights = GN_NONE)), 0.84270833333333339, 5.05625, 0.078125, 0.078125,
         2.3, 0, 1.3, 1.3);
    LOSS(gn_smooth_l1_loss_with(a, b, 0.4, WITH(.weights = w)), 0.9474537037037037, 6.3953125, 0.15625, 0.0390625, 2.3,
         0, 3.9, 0);
    LOSS(gn_huber_loss_with(a, b, 0.4, WITH(.weights = w)), 0.42635416666666665, 2.558125, 0.0625, 0.015625, 0.92, 0,
         1.56, 0);
    LOSS(gn_huber_loss_with(a, b, 0.4, WITH(.weights = GN_NONE)), 0.33708333333333335, 2.0225, 0.03125, 0.03125, 0.92,
         0, 0.52, 0.52);
    NEAR(gn_mse_loss_with(a, row, NULL), 1e-15, 2.7975);
    gn_close(g);
}

TEST(losses_of_probabilities_have_weights_and_reductions) {
    if (!begin()) return;
    gn_tensor a = M23(0.5, -1.25, 2, 0.1, 3, -0.75), p = M23(0.5, 0, 0.9, 0.25, 1, 0.6), t = M23(1, 0, 0.25, 0.5, 1, 0),
              w = M23(2, 0.5, 1, 0.25, 3, 0), row = ROW3(0.5, 1, 2), c = ROW3(3, 0.5, 1.5);
    LOSS(gn_bce_loss_with(p, t, WITH(.weights = w)), 0.55813672732939001, 3.3488203639763401, 1.3862943611198906, 0,
         1.7532789486599909, 0.20924705419645895, 0, 0);
    LOSS(gn_bce_loss_with(p, t, WITH(.weights = row)), 1.0173678432901971, 6.1042070597411824, 0.34657359027997264, 0,
         3.5065578973199818, 0.4184941083929179, 0, 1.83258146374831);
    LOSS(gn_bce_logits_loss_with(a, t, WITH(.weights = row, .positive = c)), 0.95267748842541045, 5.7160649305524629,
         0.71111547627016003, 0.25192908134537295, 3.285588024846688, 0.6693966600735709, 0.024293675786871031,
         0.77374201222979977);
    LOSS(gn_bce_logits_loss_with(a, t, WITH(.positive = c)), 0.8444853413929917, 5.0669120483579499, 1.4222309525403201,
         0.25192908134537295, 1.642794012423344, 1.3387933201471418, 0.024293675786871031, 0.38687100611489988);
    LOSS(gn_bce_logits_loss_with(a, t, WITH(.weights = w)), 0.50340128996924849, 3.0204077398154907,
         0.94815396836021337, 0.12596454067268648, 1.6269280110429725, 0.17359916501839273, 0.14576205472122619, 0);
    gn_tensor far = T(GN_F64, GN_SHAPE(2), -800, 800), ends = T(GN_F64, GN_SHAPE(2), 1, 0),
              by = T(GN_F64, GN_SHAPE(2), 2, 3);
    LOSS(gn_bce_logits_loss_with(far, ends, WITH(.positive = by)), 1200, 2400, 1600, 800);
    gn_tensor x = gn_log_softmax(a, -1), q = M23(0.2, 0, 0.8, 0.5, 0.25, 0.25),
              y = gn_log_softmax(M23(0.25, -1, -0.5, 0.1, 1.5, 0.75), -1);
    LOSS(gn_kl_loss_with(x, q, WITH(.log_target = false)), 0.7278039795028896, 1.455607959005779, 0.024636814133586482,
         0, 0.0075827454302583586, 1.1412309948609534, -0.3276712977095096, 0.6098287022904905);
    LOSS(gn_kl_loss_with(x, y, WITH(.log_target = true, .over_elements = true)), 0.2030991439882277, 1.2185948639293662,
         0.664033591006845, 0.271694446646004, -0.2905979393388841, 0.1483181914167475, -0.2711589442124138,
         0.6963055184110675);
    NEAR(gn_kl_loss_with(x, q, &(gn_loss_desc){ .over_elements = true }), 1e-15, 0.2426013265009632);
    NEAR(gn_kl_loss_with(x, y, &(gn_loss_desc){ .log_target = true }), 1e-15, 0.6092974319646831);
    gn_close(g);
}

/* PyTorch's nll_loss, which takes -100 as no class; with no row that counts a mean is NaN. */
TEST(losses_of_given_logarithms_have_weights_and_rows_that_do_not_count) {
    if (!begin()) return;
    gn_tensor x = T(GN_F64, GN_SHAPE(4, 3), 0.5, -1.25, 2, 0.1, 3, -0.75, 1, 2, 3, -1, 0.25, -2),
              ids = T(GN_I64, GN_SHAPE(4), 2, 0, -100, 1), c = ROW3(3, 0.5, 1.5);
#define ROWS(ids, no, ...) \
    gn_nll_loss_with(x, ids, &(gn_cross_entropy_desc){ .ignores = true, .ignored = no, .reduction = r, __VA_ARGS__ })
    LOSS(ROWS(ids, -100, .weights = c), -0.685, -3.425, -3, -0.3, 0, -0.125);
    LOSS(ROWS(ids, -100, .smoothing = 0), -0.78333333333333333, -2.35, -2, -0.1, 0, -0.25);
    LOSS(ROWS(T(GN_I32, GN_SHAPE(4), 2, 0, 1, 1), 1, .weights = c), -0.73333333333333328, -3.3, -3, -0.3, 0, 0);
#undef ROWS
    gn_cross_entropy_desc none = { .ignores = true, .ignored = 1, .weights = c };
    double y = 0;
    CHECK(gn_read(gn_nll_loss_with(x, T(GN_I32, GN_SHAPE(4), 1, 1, 1, 1), &none), &y, sizeof y) == GN_OK && isnan(y));
    NEAR(gn_nll_loss_with(x, T(GN_I32, GN_SHAPE(4), 2, 0, 1, 1), NULL), 1e-15, -1.0875);
    gn_close(g);
}

/* ---- windows added up, products of bytes ---- */

/* The numbers start + i mod `period`. */
static gn_tensor repeating(gn_shape s, int64_t n, int64_t period, int64_t start) {
    for (int64_t i = 0; i < n; i++) given[i] = (double)(i % period + start);
    return tensor(GN_F64, s, given);
}

/* The first two are PyTorch's F.fold. */
TEST(windows_are_added_up) {
    if (!begin()) return;
    IS(gn_col2im(repeating(GN_SHAPE(1, 4, 8), 32, 7, -3), GN_SHAPE(3, 4), GN_SHAPE(2, 2), GN_SHAPE(1, 2),
                 GN_SHAPE(1, 0), GN_SHAPE(1, 1)),
       -2, 0, 0, 2, 2, 4, 4, 6, 6, -6, -6, -4);
    IS(gn_col2im(repeating(GN_SHAPE(1, 12, 10), 120, 11, -5), GN_SHAPE(4, 5), GN_SHAPE(2, 3), GN_SHAPE(2, 1),
                 GN_SHAPE(1, 1), GN_SHAPE(2, 1)),
       0, 0, 0, 0, 0, 6, 9, 4, 10, 3, 0, 0, 0, 0, 0, -6, -9, -6, -3, -2, 0, 0, 0, 0, 0, -7, -5, -10, -4, -10, 0, 0, 0,
       0, 0, 4, 6, 9, 1, 8);
    gn_tensor line = T(GN_I32, GN_SHAPE(1, 2, 3), 1, 2, 3, 10, 20, 30);
    IS(gn_col2im(line, GN_SHAPE(4), GN_SHAPE(2), GN_SHAPE(1), GN_SHAPE(0), GN_SHAPE(1)), 1, 12, 23, 30);
    IS(gn_col2im(line, GN_SHAPE(3), GN_SHAPE(2), GN_SHAPE(1), GN_SHAPE(0, 1), GN_SHAPE(1)), 1, 12, 23);
    IS(gn_col2im(line, GN_SHAPE(3), GN_SHAPE(2), GN_SHAPE(1), GN_SHAPE(1, 0), GN_SHAPE(1)), 12, 23, 30);
    gn_tensor boxes = repeating(GN_SHAPE(1, 8, 2), 16, 16, 1);
    IS(gn_col2im(boxes, GN_SHAPE(2, 2, 3), GN_SHAPE(2, 2, 2), GN_SHAPE(1, 1, 1), GN_SHAPE(0, 0, 0), GN_SHAPE(1, 1, 1)),
       1, 5, 4, 5, 13, 8, 9, 21, 12, 13, 29, 16);
    gn_close(g);
}

/* The inner product of columns with im2col(x) is that of col2im(columns) with x; whole numbers, so that it is exact. */
TEST(adding_windows_up_is_the_transpose_of_cutting_them) {
    if (!begin()) return;
    for (int k = 0; k < 24; k++) {
        gn_shape size = GN_SHAPE(test_random_int(3, 9), test_random_int(3, 9)),
                 kernel = GN_SHAPE(test_random_int(1, 3), test_random_int(1, 3)),
                 stride = GN_SHAPE(test_random_int(1, 3), test_random_int(1, 3)),
                 pad = GN_SHAPE(test_random_int(0, 2), test_random_int(0, 2)),
                 dilation = GN_SHAPE(kernel.dims[0] < 3 ? test_random_int(1, 2) : 1, 1);
        gn_info info;
        gn_tensor x = repeating(GN_SHAPE(2, 3, size.dims[0], size.dims[1]), 6 * size.dims[0] * size.dims[1], 19, -9),
                  windows = gn_im2col(x, kernel, stride, pad, dilation);
        if (!CHECK_RESULT(gn_describe(windows, &info), GN_OK)) return;
        int64_t n = info.shape.dims[0] * info.shape.dims[1] * info.shape.dims[2];
        gn_tensor y = repeating(info.shape, n, 23, -11), back = gn_col2im(y, size, kernel, stride, pad, dilation),
                  apart = gn_sub(gn_sum(gn_mul(windows, y), GN_ALL_AXES, false),
                                 gn_sum(gn_mul(back, x), GN_ALL_AXES, false));
        IS(apart, 0);
        gn_step(g);
    }
    gn_close(g);
}

static void random_bytes(gn_dtype d, double *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (double)(test_random_int(0, 255) - (d == GN_I8 ? 128 : 0));
}

/* Three terms, as many as f32 sums at once, in parts and not at all, of each pair of dtypes, with and without zero
   points. */
TEST(products_of_bytes_are_exact) {
    static const int64_t sizes[] = { 3, 258, 259, 1025, 4129 };
    enum { M = 4, N = 3, MOST_K = 4129 };
    static double a[M * MOST_K], b[N * MOST_K], az[M], bz[N];
    if (!begin()) return;
    for (int k = 0; k < 80; k++) {
        gn_dtype d = k & 1 ? GN_I8 : GN_U8, e = k & 2 ? GN_I8 : GN_U8;
        bool left = k & 4, right = k & 8;
        int64_t K = sizes[k / 16];
        random_bytes(d, a, M * K);
        random_bytes(e, b, N * K);
        random_bytes(d, az, M);
        random_bytes(e, bz, N);
        for (int64_t i = 0; i < M * N; i++) {
            wanted[i] = 0;
            for (int64_t j = 0; j < K; j++)
                wanted[i] += (a[i / N * K + j] - (left ? az[i / N] : 0)) * (b[j * N + i % N] - (right ? bz[i % N] : 0));
        }
        gn_tensor y = gn_matmul_ints(tensor(d, GN_SHAPE(M, K), a), tensor(e, GN_SHAPE(K, N), b),
                                     left ? tensor(d, GN_SHAPE(M, 1), az) : GN_NONE,
                                     right ? tensor(e, GN_SHAPE(N), bz) : GN_NONE);
        if (reads(y, M * N)) close_to("matmul_ints", M * N, 0);
        gn_step(g);
    }
    for (int64_t K = 258; K <= 40000; K += 19871) { /* the largest sums; the last ones wrap */
        gn_tensor most = gn_full(g, GN_U8, GN_SHAPE(K), 255), none = gn_full(g, GN_U8, GN_SHAPE(K), 0);
        double sum = 65025 * (double)K;
        IS(gn_matmul_ints(most, most, GN_NONE, GN_NONE), sum > INT32_MAX ? sum - 0x1p32 : sum);
        IS(gn_matmul_ints(none, most, gn_full(g, GN_U8, GN_SCALAR, 255), GN_NONE),
           sum > INT32_MAX ? 0x1p32 - sum : -sum);
    }
    gn_close(g);
}

/* One or two groups, uneven pads, strides and dilation: x (2,G*C,5,6) with w (4,C,2,3). */
TEST(convolutions_of_bytes_are_exact) {
    enum { MOST_C = 100, H = 5, W = 6, OH = 3, OW = 5, M = 4 };
    static double x[2 * 2 * MOST_C * H * W], w[M * MOST_C * 6], z[1 + M];
    if (!begin()) return;
    for (int k = 0; k < 48; k++) {
        gn_dtype d = k & 1 ? GN_I8 : GN_U8, e = k & 2 ? GN_I8 : GN_U8;
        int64_t C = k & 4 ? MOST_C : 2, G = k & 8 ? 2 : 1, zeros = k / 16;
        random_bytes(d, x, 2 * G * C * H * W);
        random_bytes(e, w, M * C * 6);
        random_bytes(d, z, 1);
        random_bytes(e, z + 1, M);
        for (int64_t i = 0; i < 2 * M * OH * OW; i++) {
            int64_t o = i % OW, v = i / OW % OH, m = i / (OW * OH) % M, n = i / (OW * OH * M);
            wanted[i] = 0;
            for (int64_t j = 0; j < C * 6; j++) {
                int64_t row = v * 2 + j / 3 % 2 - 1, column = o + j % 3 * 2 - 1, c = j / 6 + m * G / M * C;
                bool inside = row >= 0 && row < H && column >= 0 && column < W;
                double value = inside ? x[((n * G * C + c) * H + row) * W + column] - (zeros ? z[0] : 0) : 0;
                wanted[i] += value * (w[m * C * 6 + j] - (zeros == 2 ? z[1 + m] : zeros ? z[1] : 0));
            }
        }
        gn_conv_desc desc = {
            .stride = { 2 }, .dilation = { 1, 2 }, .before = { 1, 1 }, .after = { 0, 2 }, .groups = G
        };
        gn_tensor y = gn_conv_ints(tensor(d, GN_SHAPE(2, G * C, H, W), x), tensor(e, GN_SHAPE(M, C, 2, 3), w),
                                   zeros ? tensor(d, GN_SHAPE(1), z) : GN_NONE,
                                   zeros ? tensor(e, GN_SHAPE(zeros == 2 ? M : 1), z + 1) : GN_NONE, &desc);
        if (reads(y, 2 * M * OH * OW)) close_to("conv_ints", 2 * M * OH * OW, 0);
        gn_step(g);
    }
    for (int64_t C = 257; C < 6000; C = C * 4 + 1) {
        gn_tensor most = gn_full(g, GN_U8, GN_SHAPE(1, C, 1), 255);
        gn_conv_desc back = { .transposed = true };
        IS(gn_conv_ints(most, most, GN_NONE, GN_NONE, NULL), 65025 * (double)C);
        IS(gn_conv_ints(most, gn_reshape(most, GN_SHAPE(C, 1, 1)), GN_NONE, GN_NONE, &back), 65025 * (double)C);
    }
    gn_tensor line = T(GN_U8, GN_SHAPE(1, 1, 3), 1, 2, 3), filter = T(GN_I8, GN_SHAPE(1, 1, 2), 10, -100);
    IS(gn_conv_ints(line, filter, GN_NONE, GN_NONE, NULL), -190, -280);
    IS(gn_conv_ints(line, filter, GN_NONE, GN_NONE, &(gn_conv_desc){ .transposed = true }), 10, -80, -170, -300);
    gn_close(g);
}

/* Whether the device of this name computes; false after one skipped test that stands for all. */
static bool named_device_is_there(void) {
    on = ON_NAMED;
    gn_ctx *first = open_device();
    const char *why = gn_status(first) != GN_OK           ? gn_last_error(first)->text
                      : getenv("GENIE_CUDA_COMPILE_ONLY") ? "kernels are compiled, not run"
                                                          : NULL;
    if (why && test_open("definitions_on_the_named_device")) {
        test_skip(why);
        test_close();
    }
    gn_close(first);
    return !why;
}

static void run_on_device(const test_entry *test) {
    char name[160];
    snprintf(name, sizeof name, "%s_on_%s", test->name, strstr(device_names[on], "://") ? "remote" : device_names[on]);
    if (!test_open(name)) return;
    test_reseed(test->name);
    test->run();
    test_close();
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(transforms_of_any_length_agree_with_the_sum),
        TEST_ENTRY(transforms_along_each_axis_cut_and_fill),
        TEST_ENTRY(frames_of_a_wave_are_transformed_with_their_window),
        TEST_ENTRY(windows_and_mel_filters_are_their_formulas),
        TEST_ENTRY(points_of_a_grid_are_sampled),
        TEST_ENTRY(axes_of_one_element_are_sampled),
        TEST_ENTRY(a_row_is_sampled_as_computed_by_hand),
        TEST_ENTRY(nearest_elements_have_a_gradient_of_zeros_by_the_grid),
        TEST_ENTRY(the_grid_of_no_change_gives_the_picture_back),
        TEST_ENTRY(the_grid_of_an_axis_of_one_element_is_its_middle),
        TEST_ENTRY(regions_of_images_are_averaged),
        TEST_ENTRY(adaptive_samples_past_their_bound_are_an_error_at_the_read),
        TEST_ENTRY(adaptive_samples_of_one_region_are_none_of_the_others),
        TEST_ENTRY(a_region_of_a_ramp_is_its_middle),
        TEST_ENTRY(taps_at_places_of_their_own_are_convolved),
        TEST_ENTRY(a_tap_half_an_element_away_is_between_two),
        TEST_ENTRY(blocks_of_a_picture_go_to_channels_and_back),
        TEST_ENTRY(ids_and_their_weights_are_counted),
        TEST_ENTRY(parts_of_a_range_are_counted),
        TEST_ENTRY(values_of_a_tensor_are_listed_once),
        TEST_ENTRY(values_are_found_in_a_sorted_vector),
        TEST_ENTRY(losses_of_classes_have_weights_and_rows_that_do_not_count),
        TEST_ENTRY(the_smallest_of_what_meets_is_kept),
        TEST_ENTRY(what_meets_is_multiplied),
        TEST_ENTRY(norms_of_trailing_axes_give_their_mean_and_deviation),
        TEST_ENTRY(norms_of_batches_give_the_statistics_of_their_channels),
        TEST_ENTRY(norms_of_no_channels_are_empty),
        TEST_ENTRY(windows_are_pooled_by_powers),
        TEST_ENTRY(indices_below_0_count_from_the_end),
        TEST_ENTRY(bags_begin_at_offsets),
        TEST_ENTRY(losses_of_elements_have_weights_and_reductions),
        TEST_ENTRY(losses_of_probabilities_have_weights_and_reductions),
        TEST_ENTRY(losses_of_given_logarithms_have_weights_and_rows_that_do_not_count),
        TEST_ENTRY(windows_are_added_up),
        TEST_ENTRY(adding_windows_up_is_the_transpose_of_cutting_them),
        TEST_ENTRY(products_of_bytes_are_exact),
        TEST_ENTRY(convolutions_of_bytes_are_exact),
    };
    test_begin(argc, argv);
    if (getenv("GENIE_TEST_DEVICES")) device_names[ON_NAMED] = getenv("GENIE_TEST_DEVICES");
    int devices = named_device_is_there() ? DEVICES : ON_NAMED;
    for (int k = 0; k < devices * TEST_COUNT(tests); k++) {
        on = k / TEST_COUNT(tests);
        run_on_device(&tests[k % TEST_COUNT(tests)]);
    }
    loopback_close();
    return test_end();
}
