/* What the benchmarks share: quantiles and summaries of times, random numbers, errors. */
#ifndef GN_BENCH_H
#define GN_BENCH_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static inline double quantile(double *x, int n, double q) {
    if (n == 0) return NAN;
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[(int)(q * (n - 1) + 0.5)];
}

typedef struct summary {
    double mean, p50, p95, least, most;
} summary;

/* Sorts. Of nothing: NAN. */
static inline summary summarize(double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    double p50 = quantile(x, n, 0.5), p95 = quantile(x, n, 0.95);
    return (summary){ n ? sum / n : NAN, p50, p95, n ? x[0] : NAN, n ? x[n - 1] : NAN };
}

static uint64_t seed = 0x9E3779B97F4A7C15u;

static inline float draw(void) { /* (-1, 1), xorshift64* (Vigna 2016) */
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (float)((double)((seed * UINT64_C(2685821657736338717)) >> 40) * 0x1p-23 - 1);
}

/* The largest |got - want| so far beside the largest |want|. */
typedef struct largest_error {
    double worst, largest;
} largest_error;

static inline void error_add(largest_error *e, double got, double want) {
    double d = fabs(got - want);
    if (!(d <= e->worst)) e->worst = d;
    if (fabs(want) > e->largest) e->largest = fabs(want);
}

static inline double error_of(const largest_error *e) { return e->largest > 0 ? e->worst / e->largest : NAN; }

#endif
