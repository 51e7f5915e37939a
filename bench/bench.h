/* What the benchmarks share. */
#ifndef GN_BENCH_H
#define GN_BENCH_H

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double quantile(double *x, int n, double q) {
    if (n == 0) return NAN;
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[(int)(q * (n - 1) + 0.5)];
}

#endif
