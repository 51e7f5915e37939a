/* AMX in software: what genie.h uses of it, as Intel's manual of instructions (volume 2) has it, for tests on
 * processors without it. genie.h includes it where GENIE_AMX_IN_SOFTWARE is defined; then AMX counts as being there.
 *
 * Tiles are a thread's own. Using one that was not set ends the program, as the processor would; amx_tiles_live counts
 * the threads whose tiles are set, amx_products what was multiplied. While amx_real is set, the processor's
 * instructions run, as genie.h has them. */
#ifndef AMX_TILES_H
#define AMX_TILES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_BYTES = 64, AMX_ELEMENTS = AMX_BYTES / 4 };

typedef struct amx_state {
    bool set;
    uint16_t bytes[AMX_TILES]; /* of a row */
    uint8_t rows[AMX_TILES];
    uint8_t data[AMX_TILES][AMX_ROWS][AMX_BYTES];
} amx_state;
static _Thread_local amx_state amx_mine;
static int amx_tiles_live, amx_products[3]; /* bf16, i8, u8 */

static void amx_want(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

/* The 64 bytes of a configuration: palette 1 is all there is; what is reserved must be 0. */
static void amx_set(const void *config) {
    const uint8_t *c = (const uint8_t *)config;
    amx_want(c[0] == 1 && c[1] == 0, "palette 1 from row 0 on");
    for (int i = 2; i < 16; i++) amx_want(c[i] == 0, "reserved bytes are 0");
    for (int t = 0; t < 16; t++) {
        uint16_t bytes;
        memcpy(&bytes, c + 16 + 2 * t, sizeof bytes);
        amx_want(t < AMX_TILES ? bytes <= AMX_BYTES && c[48 + t] <= AMX_ROWS && !bytes == !c[48 + t]
                               : !bytes && !c[48 + t],
                 "at most 16 rows of 64 bytes in each of 8 tiles");
        if (t < AMX_TILES) amx_mine.bytes[t] = bytes, amx_mine.rows[t] = c[48 + t];
    }
    memset(amx_mine.data, 0, sizeof amx_mine.data);
    if (!amx_mine.set) __atomic_add_fetch(&amx_tiles_live, 1, __ATOMIC_RELAXED);
    amx_mine.set = true;
}

static void amx_release(void) {
    if (amx_mine.set) __atomic_sub_fetch(&amx_tiles_live, 1, __ATOMIC_RELAXED);
    memset(&amx_mine, 0, sizeof amx_mine);
}

static void amx_zero(int t) {
    amx_want(amx_mine.set && amx_mine.rows[t], "a tile is set before it is used");
    memset(amx_mine.data[t], 0, sizeof amx_mine.data[t]);
}

static void amx_load(int t, const void *p, int64_t row) {
    amx_zero(t);
    for (int r = 0; r < amx_mine.rows[t]; r++)
        memcpy(amx_mine.data[t][r], (const char *)p + r * row, amx_mine.bytes[t]);
}

static void amx_store(int t, void *p, int64_t row) {
    amx_want(amx_mine.set && amx_mine.rows[t], "a tile is set before it is used");
    for (int r = 0; r < amx_mine.rows[t]; r++) memcpy((char *)p + r * row, amx_mine.data[t][r], amx_mine.bytes[t]);
}

#define AMX_FAST __attribute__((target("fma")))
/* DAZ and FTZ, whatever MXCSR says. */
AMX_FAST static float amx_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
AMX_FAST static float amx_bf16(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_flush(x);
}
AMX_FAST static float amx_fma(float a, float b, float sum) { return amx_flush(fmaf(a, b, sum)); }

/* One row of sums: + row (elements of four bytes) times the rows of b. */
typedef void (*amx_row)(void *sums, const uint8_t *row, int elements, const uint8_t (*b)[AMX_BYTES], int n);

AMX_FAST static void amx_row_bf16(void *sums, const uint8_t *row, int elements, const uint8_t (*b)[AMX_BYTES], int n) {
    float *to = (float *)sums, even[AMX_ELEMENTS] = { 0 }, odd[AMX_ELEMENTS] = { 0 };
    for (int k = 0; k < elements; k++)
        for (int i = 0; i < n; i++) {
            even[i] = amx_fma(amx_bf16(row + 4 * k), amx_bf16(b[k] + 4 * i), even[i]);
            odd[i] = amx_fma(amx_bf16(row + 4 * k + 2), amx_bf16(b[k] + 4 * i + 2), odd[i]);
        }
    for (int i = 0; i < n; i++) to[i] = amx_flush(amx_flush(to[i]) + amx_flush(even[i] + odd[i]));
}
static void amx_row_i8(void *sums, const uint8_t *row, int elements, const uint8_t (*b)[AMX_BYTES], int n) {
    uint32_t *to = (uint32_t *)sums;
    for (int k = 0; k < 4 * elements; k++)
        for (int i = 0; i < n; i++) to[i] += (uint32_t)((int8_t)row[k] * (int8_t)b[k / 4][4 * i + k % 4]);
}
static void amx_row_u8(void *sums, const uint8_t *row, int elements, const uint8_t (*b)[AMX_BYTES], int n) {
    uint32_t *to = (uint32_t *)sums;
    for (int k = 0; k < 4 * elements; k++)
        for (int i = 0; i < n; i++) to[i] += (uint32_t)(row[k] * b[k / 4][4 * i + k % 4]);
}

static void amx_multiply(int kind, int sum, int a, int b) {
    static const amx_row rows[] = { amx_row_bf16, amx_row_i8, amx_row_u8 };
    amx_want(amx_mine.set && amx_mine.rows[sum] && amx_mine.rows[a] && amx_mine.rows[b],
             "a tile is set before it is used");
    amx_want(sum != a && sum != b && a != b, "three tiles");
    amx_want(amx_mine.bytes[a] == 4 * amx_mine.rows[b] && amx_mine.rows[sum] == amx_mine.rows[a] &&
                 amx_mine.bytes[sum] == amx_mine.bytes[b],
             "sides fit");
    for (int r = 0; r < amx_mine.rows[sum]; r++)
        rows[kind](amx_mine.data[sum][r], amx_mine.data[a][r], amx_mine.bytes[a] / 4,
                   (const uint8_t(*)[AMX_BYTES])amx_mine.data[b], amx_mine.bytes[sum] / 4);
    __atomic_add_fetch(&amx_products[kind], 1, __ATOMIC_RELAXED);
}

/* ---- the instructions themselves: genie.h's macros, then others in their place ---- */

static bool amx_real;

static void amx_real_set(const void *config) { GN__TILES_SET(*(const char(*)[64])config); }
static void amx_real_release(void) { GN__TILES_RELEASE(); }
#define AMX_TILE(t, macro, ...)           \
    switch (t) {                          \
    case 0: macro(0 __VA_ARGS__); break;  \
    case 1: macro(1 __VA_ARGS__); break;  \
    case 2: macro(2 __VA_ARGS__); break;  \
    case 3: macro(3 __VA_ARGS__); break;  \
    case 4: macro(4 __VA_ARGS__); break;  \
    case 5: macro(5 __VA_ARGS__); break;  \
    case 6: macro(6 __VA_ARGS__); break;  \
    default: macro(7 __VA_ARGS__); break; \
    }
static void amx_real_zero(int t) { AMX_TILE(t, GN__TILE_ZERO) }
static void amx_real_load(int t, const void *p, int64_t row) { AMX_TILE(t, GN__TILE_LOAD, , p, row) }
static void amx_real_store(int t, void *p, int64_t row) { AMX_TILE(t, GN__TILE_STORE, , p, row) }
/* Those of the four tiles of sums. */
#define AMX_MADD(name)                            \
    switch (sum) {                                \
    case 0: GN__TILE_MADD(name, 0, 6, 4); break;  \
    case 1: GN__TILE_MADD(name, 1, 6, 5); break;  \
    case 2: GN__TILE_MADD(name, 2, 7, 4); break;  \
    default: GN__TILE_MADD(name, 3, 7, 5); break; \
    }
static void amx_real_multiply(int kind, int sum, int a, int b) {
    amx_want(sum < 4 && a == 6 + sum / 2 && b == 4 + sum % 2, "one of the four products there are");
    if (kind == 0) AMX_MADD(tdpbf16ps)
    else if (kind == 1) AMX_MADD(tdpbssd)
    else AMX_MADD(tdpbuud)
    __atomic_add_fetch(&amx_products[kind], 1, __ATOMIC_RELAXED);
}

#undef GN__TILES_ARE_THERE
#undef GN__TILES_SET
#undef GN__TILES_RELEASE
#undef GN__TILE_ZERO
#undef GN__TILE_LOAD
#undef GN__TILE_STORE
#undef GN__TILE_MADD
enum { AMX_tdpbf16ps, AMX_tdpbssd, AMX_tdpbuud };
#define GN__TILES_ARE_THERE true
#define GN__TILES_SET(config) (amx_real ? amx_real_set : amx_set)(&(config))
#define GN__TILES_RELEASE() (amx_real ? amx_real_release : amx_release)()
#define GN__TILE_ZERO(t) (amx_real ? amx_real_zero : amx_zero)(t)
#define GN__TILE_LOAD(t, p, row) (amx_real ? amx_real_load : amx_load)(t, p, row)
#define GN__TILE_STORE(t, p, row) (amx_real ? amx_real_store : amx_store)(t, p, row)
#define GN__TILE_MADD(name, sum, a, b) (amx_real ? amx_real_multiply : amx_multiply)(AMX_##name, sum, a, b)

#endif
