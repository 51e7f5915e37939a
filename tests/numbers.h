/* Random numbers of each float dtype, elements as doubles and the size of a rounding: for tests that set two devices
   beside each other. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include "test.h"

/* n elements between -scale and scale; one more, 0, behind them. */
static inline void *random_bytes(gn_dtype d, int64_t n, double scale) {
    size_t bytes = gn_dtype_bytes(d);
    char *p = calloc((size_t)n + 1, bytes);
    for (int64_t i = 0; i < n; i++) {
        double w = test_random_real(-scale, scale);
        float x = (float)w;
        uint16_t h = d == GN_F16 ? gn_f32_to_f16(x) : gn_f32_to_bf16(x);
        memcpy(p + (size_t)i * bytes, bytes == 2 ? (void *)&h : bytes == 4 ? (void *)&x : (void *)&w, bytes);
    }
    return p;
}

static inline double element(gn_dtype d, const void *p, int64_t i) {
    if (d == GN_F32) return ((const float *)p)[i];
    if (d == GN_F64) return ((const double *)p)[i];
    if (d == GN_I64) return (double)((const int64_t *)p)[i];
    return d == GN_F16 ? gn_f16_to_f32(((const uint16_t *)p)[i]) : gn_bf16_to_f32(((const uint16_t *)p)[i]);
}

static inline double eps_of(gn_dtype d) {
    return d == GN_F64 ? 2.3e-16 : d == GN_F32 ? 1.2e-7 : d == GN_F16 ? 1e-3 : 8e-3;
}

#endif
