/* Random numbers for examples that make their own data: equal seeds give equal numbers on every machine.
 * xorshift64* (Vigna 2016). */
#ifndef RANDOM_H
#define RANDOM_H

#include <math.h>
#include <stdint.h>

static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}
/* A state, never 0, of any seed; streams of one seed differ. */
static inline uint64_t random_begin(uint64_t seed, uint64_t stream) {
    uint64_t state = (seed * 64 + stream + 1) * UINT64_C(0x9E3779B97F4A7C15);
    if (!state) state = 1;
    for (int i = 0; i < 8; i++) random_next(&state);
    return state;
}
static inline double random_uniform(uint64_t *state, double lo, double hi) { /* [lo, hi) */
    return lo + (hi - lo) * ((double)(random_next(state) >> 11) * 0x1p-53);
}
static inline int64_t random_int(uint64_t *state, int64_t n) { /* 0 to n - 1 */
    return (int64_t)((random_next(state) >> 11) % (uint64_t)n);
}
static inline double random_normal(uint64_t *state) { /* Box and Muller 1958 */
    double u = random_uniform(state, 1e-12, 1), v = random_uniform(state, 0, 6.283185307179586);
    return sqrt(-2 * log(u)) * cos(v);
}

#endif
