/* What every op means, written from the declarations of genie.h alone and as plainly as it can be: one loop, one
 * element, no blocking, no shared code with the executors. Floats are computed in long double, ints in int64_t with
 * two's complement wrap.
 *
 * A `ref` is a decoded tensor. Beside each float value stands its magnitude: the sum of the absolute terms that the
 * value is made of. An executor's error is measured in tolerance * eps(dtype) * magnitude; magnitude 0 everywhere
 * (`mag` NULL) means that the result is exact. Where a term passes through exp, its magnitude counts its exponent too,
 * since an error of the exponent is a relative error of the result. The magnitude of a sum of n terms is taken 1 +
 * sqrt(n) / 2 times, the half root in the precision that is computed in (f64 for f64, f32 for the others): so far do
 * rounding errors of a running sum walk.
 * Values of results are not rounded to their dtype; inputs are.
 *
 * All refs belong to one list and are freed together by ref_reset. */
#ifndef GN_REFERENCE_H
#define GN_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long double ref_real;

typedef struct ref {
    gn_dtype dtype;
    gn_shape shape;
    int64_t n;         /* elements */
    ref_real *f, *mag; /* floats: values, magnitudes (NULL: exact) */
    int64_t *i;        /* ints and bool: values; of u64 the bits */
    struct ref *next;
} ref;

static ref *ref__all;

static inline void *ref__alloc(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

static inline void ref_reset(void) {
    while (ref__all) {
        ref *r = ref__all;
        ref__all = r->next;
        free(r->f);
        free(r->mag);
        free(r->i);
        free(r);
    }
}

/* ---- dtypes ---- */

/* Of a float dtype: bits of the significand (the leading one included), largest exponent e of 2^e, smallest normal
   e. */
typedef struct ref_format {
    int digits, top, bottom;
} ref_format;

static inline bool ref_is_float(gn_dtype d) { return d == GN_F32 || d == GN_F64 || d == GN_F16 || d == GN_BF16; }

static inline ref_format ref_format_of(gn_dtype d) {
    static const ref_format f64 = { 53, 1023, -1022 }, f32 = { 24, 127, -126 }, f16 = { 11, 15, -14 },
                            bf16 = { 8, 127, -126 };
    return d == GN_F64 ? f64 : d == GN_F32 ? f32 : d == GN_F16 ? f16 : bf16;
}

static inline ref_real ref_eps(gn_dtype d) { return ldexpl(1, 1 - ref_format_of(d).digits); }

/* The smallest positive (subnormal) number. */
static inline ref_real ref_tiny(gn_dtype d) { return ldexpl(1, ref_format_of(d).bottom + 1 - ref_format_of(d).digits); }

/* The smallest number of what a dtype is computed in, in units of the dtype's own eps. */
static inline ref_real ref__underflow(gn_dtype d) { return ref_tiny(d == GN_F64 ? GN_F64 : GN_F32) / ref_eps(d); }

static inline ref_real ref_largest(gn_dtype d) { return ldexpl(1, ref_format_of(d).top) * (2 - ref_eps(d)); }

/* To the nearest number of the dtype, ties to even, past the largest to infinity. */
static inline ref_real ref_round(gn_dtype d, ref_real x) {
    if (x == 0 || isnan(x) || isinf(x)) return x;
    ref_format f = ref_format_of(d);
    int e = ilogbl(x) < f.bottom ? f.bottom : ilogbl(x);
    ref_real unit = ldexpl(1, e + 1 - f.digits);
    ref_real y = rintl(x / unit) * unit;
    return fabsl(y) > ref_largest(d) ? copysignl(INFINITY, x) : y;
}

/* Two's complement of the dtype's width; bool: 0 or 1. */
static inline int64_t ref_wrap(gn_dtype d, int64_t x) {
    switch (d) {
    case GN_I32: return (int32_t)(uint32_t)(uint64_t)x;
    case GN_I16: return (int16_t)(uint16_t)(uint64_t)x;
    case GN_I8: return (int8_t)(uint8_t)(uint64_t)x;
    case GN_U32: return (uint32_t)(uint64_t)x;
    case GN_U16: return (uint16_t)(uint64_t)x;
    case GN_U8: return (uint8_t)(uint64_t)x;
    case GN_BOOL: return x != 0;
    default: return x;
    }
}

static inline bool ref_is_unsigned(gn_dtype d) {
    return d == GN_U8 || d == GN_U16 || d == GN_U32 || d == GN_U64 || d == GN_BOOL;
}

static inline bool ref_less(gn_dtype d, int64_t a, int64_t b) {
    return d == GN_U64 ? (uint64_t)a < (uint64_t)b : a < b;
}
static inline ref_real ref_whole(gn_dtype d, int64_t x) { return d == GN_U64 ? (ref_real)(uint64_t)x : (ref_real)x; }

static inline size_t ref_bytes_of(gn_dtype d) {
    switch (d) {
    case GN_F64:
    case GN_U64:
    case GN_I64: return 8;
    case GN_F32:
    case GN_I32:
    case GN_U32: return 4;
    case GN_F16:
    case GN_BF16:
    case GN_I16:
    case GN_U16: return 2;
    default: return 1;
    }
}

static inline int64_t ref_highest_int(gn_dtype d) {
    int bits = (int)ref_bytes_of(d) * 8 - !ref_is_unsigned(d);
    return d == GN_BOOL ? 1 : (int64_t)(UINT64_MAX >> (64 - bits));
}

static inline int64_t ref_lowest_int(gn_dtype d) { return ref_is_unsigned(d) ? 0 : -ref_highest_int(d) - 1; }

/* ---- shapes ---- */

static inline int64_t ref_elements(gn_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dims[i];
    return n;
}

static inline ref *ref_make(gn_dtype dtype, gn_shape shape) {
    ref *r = ref__alloc(1, sizeof *r);
    r->dtype = dtype;
    r->shape = shape;
    r->n = ref_elements(shape);
    if (ref_is_float(dtype)) r->f = ref__alloc((size_t)r->n, sizeof *r->f);
    else r->i = ref__alloc((size_t)r->n, sizeof *r->i);
    r->next = ref__all;
    ref__all = r;
    return r;
}

/* A result that is computed, so that it has magnitudes when it is a float. */
static inline ref *ref_make_inexact(gn_dtype dtype, gn_shape shape) {
    ref *r = ref_make(dtype, shape);
    if (r->f) r->mag = ref__alloc((size_t)r->n, sizeof *r->mag);
    return r;
}

static inline void ref_put(ref *r, int64_t k, ref_real value, ref_real magnitude) {
    r->f[k] = value;
    if (r->mag) r->mag[k] = magnitude;
}

static inline void ref_copy(ref *to, int64_t k, const ref *from, int64_t j) {
    if (to->f) to->f[k] = from->f[j];
    else to->i[k] = from->i[j];
}

static inline int ref_axis(const ref *r, int axis) { return axis < 0 ? axis + r->shape.rank : axis; }

/* The coordinates of element k, row-major. */
static inline void ref_coords(gn_shape s, int64_t k, int64_t c[GN_MAX_RANK]) {
    for (int i = s.rank - 1; i >= 0; i--) {
        c[i] = k % s.dims[i];
        k /= s.dims[i];
    }
}

static inline int64_t ref_index(gn_shape s, const int64_t *c) {
    int64_t k = 0;
    for (int i = 0; i < s.rank; i++) k = k * s.dims[i] + c[i];
    return k;
}

/* The element of a tensor of shape `in`, broadcast to `out`, that stands at out's coordinates. */
static inline int64_t ref_broadcast_index(gn_shape in, gn_shape out, const int64_t *c) {
    int64_t k = 0;
    for (int i = 0; i < in.rank; i++) k = k * in.dims[i] + (in.dims[i] == 1 ? 0 : c[i + out.rank - in.rank]);
    return k;
}

static inline gn_shape ref_broadcast_shapes(gn_shape a, gn_shape b) {
    gn_shape s = a.rank >= b.rank ? a : b;
    for (int i = 1; i <= a.rank && i <= b.rank; i++) {
        int64_t x = a.dims[a.rank - i], y = b.dims[b.rank - i];
        s.dims[s.rank - i] = x == 1 ? y : x;
    }
    return s;
}

/* ---- bytes ---- */

static inline ref_real ref__decode_float(gn_dtype d, const unsigned char *p) {
    float f32;
    double f64;
    uint16_t bits;
    if (d == GN_F32) {
        memcpy(&f32, p, 4);
        return f32;
    }
    if (d == GN_F64) {
        memcpy(&f64, p, 8);
        return f64;
    }
    memcpy(&bits, p, 2);
    ref_format f = ref_format_of(d);
    int fraction_bits = f.digits - 1, top = f.top - f.bottom + 2;
    int e = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    ref_real x = e == top ? (fraction ? (ref_real)NAN : (ref_real)INFINITY)
                 : e == 0 ? ldexpl(fraction, f.bottom - fraction_bits)
                          : ldexpl(fraction + (1 << fraction_bits), f.bottom - fraction_bits + e - 1);
    return bits & 0x8000 ? -x : x;
}

/* x is a number of the dtype already. */
static inline void ref__encode_float(gn_dtype d, ref_real x, unsigned char *p) {
    if (d == GN_F32) {
        float f32 = (float)x;
        memcpy(p, &f32, 4);
        return;
    }
    if (d == GN_F64) {
        double f64 = (double)x;
        memcpy(p, &f64, 8);
        return;
    }
    ref_format f = ref_format_of(d);
    int fraction_bits = f.digits - 1, top = f.top - f.bottom + 2, bits;
    if (isnan(x) || isinf(x)) {
        bits = (top << fraction_bits) | (isnan(x) ? 1 << (fraction_bits - 1) : 0);
    } else if (fabsl(x) < ldexpl(1, f.bottom)) {
        bits = (int)ldexpl(fabsl(x), fraction_bits - f.bottom);
    } else {
        int e = ilogbl(x);
        bits = ((e - f.bottom + 1) << fraction_bits) + (int)ldexpl(fabsl(x), fraction_bits - e) - (1 << fraction_bits);
    }
    uint16_t out = (uint16_t)(bits | (signbit(x) ? 0x8000 : 0));
    memcpy(p, &out, 2);
}

static inline size_t ref_bytes(const ref *r) { return (size_t)r->n * ref_bytes_of(r->dtype); }

/* The tensor as the program holds it in memory. The caller frees it; never NULL. */
static inline void *ref_encode(const ref *r) {
    size_t size = ref_bytes_of(r->dtype);
    unsigned char *p = ref__alloc((size_t)r->n + 1, size);
    for (int64_t k = 0; k < r->n; k++) {
        unsigned char *at = p + (size_t)k * size;
        uint32_t u32 = r->i ? (uint32_t)(uint64_t)r->i[k] : 0;
        uint16_t u16 = (uint16_t)u32;
        unsigned char u8 = (unsigned char)u32;
        if (r->f) {
            ref__encode_float(r->dtype, r->f[k], at);
        } else {
            memcpy(at,
                   size == 8   ? (void *)&r->i[k]
                   : size == 4 ? (void *)&u32
                   : size == 2 ? (void *)&u16
                               : (void *)&u8,
                   size);
        }
    }
    return p;
}

static inline ref *ref_decode(gn_dtype dtype, gn_shape shape, const void *bytes) {
    ref *r = ref_make(dtype, shape);
    size_t size = ref_bytes_of(dtype);
    for (int64_t k = 0; k < r->n; k++) {
        const unsigned char *at = (const unsigned char *)bytes + (size_t)k * size;
        uint32_t u32;
        uint16_t u16;
        if (r->f) {
            r->f[k] = ref__decode_float(dtype, at);
        } else if (size == 8) {
            memcpy(&r->i[k], at, 8);
        } else if (size == 4) {
            memcpy(&u32, at, 4);
            r->i[k] = dtype == GN_U32 ? (int64_t)u32 : (int32_t)u32;
        } else if (size == 2) {
            memcpy(&u16, at, 2);
            r->i[k] = dtype == GN_U16 ? (int64_t)u16 : (int16_t)u16;
        } else {
            r->i[k] = dtype == GN_I8 ? (int64_t)(int8_t)*at : *at;
        }
    }
    return r;
}

/* ---- conversion and promotion ---- */

static inline int64_t ref__float_to_int(gn_dtype d, ref_real x) {
    if (d == GN_BOOL) return x != 0;
    if (isnan(x)) return 0;
    ref_real low = ref_whole(d, ref_lowest_int(d)), high = ref_whole(d, ref_highest_int(d));
    if (x <= low || x >= high) return x <= low ? ref_lowest_int(d) : ref_highest_int(d);
    return d == GN_U64 ? (int64_t)(uint64_t)truncl(x) : (int64_t)truncl(x);
}

static inline ref *ref_cast(const ref *a, gn_dtype dtype) {
    ref *y = ref_make(dtype, a->shape);
    for (int64_t k = 0; k < a->n; k++)
        if (y->f) y->f[k] = ref_round(dtype, a->f ? a->f[k] : ref_whole(a->dtype, a->i[k]));
        else y->i[k] = a->f ? ref__float_to_int(dtype, a->f[k]) : ref_wrap(dtype, a->i[k]);
    return y;
}

/* The dtype that holds both, PyTorch's torch.promote_types where that has them; GN_DTYPE_NONE: there is none. */
static inline gn_dtype ref_promote_pair(gn_dtype a, gn_dtype b) {
    if (a == b) return a;
    if (ref_is_float(a) != ref_is_float(b)) return ref_is_float(a) ? a : b;
    if (ref_is_float(a)) return a == GN_F64 || b == GN_F64 ? GN_F64 : GN_F32; /* f16 with bf16 too */
    /* The narrowest of these that holds all numbers of both. */
    static const gn_dtype ints[] = { GN_BOOL, GN_U8, GN_I8, GN_U16, GN_I16, GN_U32, GN_I32, GN_I64, GN_U64 };
    const int n = (int)(sizeof ints / sizeof *ints);
    ref_real low = fminl(ref_whole(a, ref_lowest_int(a)), ref_whole(b, ref_lowest_int(b))),
             high = fmaxl(ref_whole(a, ref_highest_int(a)), ref_whole(b, ref_highest_int(b)));
    for (int k = 0; k < n; k++)
        if (ref_whole(ints[k], ref_lowest_int(ints[k])) <= low && ref_whole(ints[k], ref_highest_int(ints[k])) >= high)
            return ints[k];
    return GN_DTYPE_NONE;
}

static inline int ref__category(gn_dtype d) { return ref_is_float(d) ? 2 : d == GN_BOOL ? 0 : 1; }

/* torch.result_type: a 0-d tensor counts only when its category (bool, int, float) is above that of all others. */
static inline gn_dtype ref_promote(ref *const *in, int n) {
    gn_dtype with_dims = GN_DTYPE_NONE, without = GN_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        gn_dtype *group = in[i]->shape.rank ? &with_dims : &without;
        *group = *group == GN_DTYPE_NONE ? in[i]->dtype : ref_promote_pair(*group, in[i]->dtype);
        if (*group == GN_DTYPE_NONE) return *group;
    }
    if (with_dims == GN_DTYPE_NONE || without == GN_DTYPE_NONE) return with_dims == GN_DTYPE_NONE ? without : with_dims;
    return ref__category(without) > ref__category(with_dims) ? ref_promote_pair(with_dims, without) : with_dims;
}

/* ---- scalar ops ---- */

typedef struct ref_scalar_op {
    const char *name;
    int arity;
    bool compares;
    ref_real (*f)(const ref_real *x);
    ref_real (*mag)(const ref_real *x, ref_real y, gn_dtype d); /* NULL: exact */
    int64_t (*i)(const int64_t *x, gn_dtype d);                 /* NULL: not for ints and bool; wrapped by the caller */
} ref_scalar_op;

static inline ref_real ref__terms_y(const ref_real *x, ref_real y, gn_dtype d) {
    (void)x;
    (void)d;
    return fabsl(y);
}
static inline ref_real ref__terms_ab(const ref_real *x, ref_real y, gn_dtype d) {
    (void)y;
    (void)d;
    return fabsl(x[0]) + fabsl(x[1]);
}
static inline ref_real ref__terms_gelu(const ref_real *x, ref_real y, gn_dtype d) {
    (void)d;
    return isnan(y) ? y : fabsl(x[0]) * (1 + fabsl(erfl(x[0] / sqrtl(2)))) / 2;
}
/* Where exp(-a) is past the largest number of what the dtype is computed in, the result may be 0. */
static inline ref_real ref__terms_sigmoid(const ref_real *x, ref_real y, gn_dtype d) {
    return fabsl(y) / (expl(-x[0]) > ref_largest(d == GN_F64 ? GN_F64 : GN_F32) ? ref_eps(d) : 1);
}
/* b ln a is the exponent, and its own rounding a relative error of the result. */
static inline ref_real ref__terms_pow(const ref_real *x, ref_real y, gn_dtype d) {
    (void)d;
    ref_real exponent = x[0] == 0 || isinf(x[0]) || isinf(x[1]) ? 0 : fabsl(x[1] * logl(fabsl(x[0])));
    return fabsl(y) * (1 + (isfinite(exponent) ? exponent : 0));
}

static inline ref_real ref__add(const ref_real *x) { return x[0] + x[1]; }
static inline ref_real ref__sub(const ref_real *x) { return x[0] - x[1]; }
static inline ref_real ref__mul(const ref_real *x) { return x[0] * x[1]; }
static inline ref_real ref__div(const ref_real *x) { return x[0] / x[1]; }
/* An infinite base through pow: some powl are wrong for -infinity to the power of -2^63. */
static inline ref_real ref__pow(const ref_real *x) {
    return isinf(x[0]) ? (ref_real)pow((double)x[0], (double)x[1]) : powl(x[0], x[1]);
}
static inline ref_real ref__minimum(const ref_real *x) { return isnan(x[0]) || x[0] < x[1] ? x[0] : x[1]; }
static inline ref_real ref__maximum(const ref_real *x) { return isnan(x[0]) || x[0] > x[1] ? x[0] : x[1]; }
static inline ref_real ref__neg(const ref_real *x) { return -x[0]; }
static inline ref_real ref__abs(const ref_real *x) { return fabsl(x[0]); }
static inline ref_real ref__exp(const ref_real *x) { return expl(x[0]); }
static inline ref_real ref__log(const ref_real *x) { return logl(x[0]); }
static inline ref_real ref__sqrt(const ref_real *x) { return sqrtl(x[0]); }
static inline ref_real ref__rsqrt(const ref_real *x) { return 1 / sqrtl(x[0]); }
static inline ref_real ref__tanh(const ref_real *x) { return tanhl(x[0]); }
static inline ref_real ref__sigmoid(const ref_real *x) { return 1 / (1 + expl(-x[0])); }
static inline ref_real ref__relu(const ref_real *x) { return isnan(x[0]) || x[0] > 0 ? x[0] : 0; }
static inline ref_real ref__gelu(const ref_real *x) { return x[0] * (1 + erfl(x[0] / sqrtl(2))) / 2; }
static inline ref_real ref__gelu_tanh(const ref_real *x) {
    ref_real a = x[0], pi = acosl(-1);
    return a / 2 * (1 + tanhl(sqrtl(2 / pi) * (a + 0.044715L * a * a * a)));
}
static inline ref_real ref__silu(const ref_real *x) { return x[0] * (1 / (1 + expl(-x[0]))); }
static inline ref_real ref__eq(const ref_real *x) { return x[0] == x[1]; }
static inline ref_real ref__ne(const ref_real *x) { return x[0] != x[1]; }
static inline ref_real ref__lt(const ref_real *x) { return x[0] < x[1]; }
static inline ref_real ref__le(const ref_real *x) { return x[0] <= x[1]; }
static inline ref_real ref__gt(const ref_real *x) { return x[0] > x[1]; }
static inline ref_real ref__ge(const ref_real *x) { return x[0] >= x[1]; }

static inline int64_t ref__wrapping_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static inline int64_t ref__wrapping_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t ref__iadd(const int64_t *x, gn_dtype d) {
    return d == GN_BOOL ? x[0] | x[1] : ref__wrapping_add(x[0], x[1]);
}
static inline int64_t ref__isub(const int64_t *x, gn_dtype d) {
    (void)d;
    return (int64_t)((uint64_t)x[0] - (uint64_t)x[1]);
}
static inline int64_t ref__imul(const int64_t *x, gn_dtype d) {
    (void)d;
    return ref__wrapping_mul(x[0], x[1]);
}
static inline int64_t ref__idiv(const int64_t *x, gn_dtype d) {
    if (d == GN_U64 && x[1] != 0) return (int64_t)((uint64_t)x[0] / (uint64_t)x[1]);
    return x[1] == 0 ? 0 : x[1] == -1 ? (int64_t)(0 - (uint64_t)x[0]) : x[0] / x[1];
}
static inline int64_t ref__iminimum(const int64_t *x, gn_dtype d) { return ref_less(d, x[0], x[1]) ? x[0] : x[1]; }
static inline int64_t ref__imaximum(const int64_t *x, gn_dtype d) { return ref_less(d, x[1], x[0]) ? x[0] : x[1]; }
static inline int64_t ref__ineg(const int64_t *x, gn_dtype d) {
    (void)d;
    return (int64_t)(0 - (uint64_t)x[0]);
}
static inline int64_t ref__iabs(const int64_t *x, gn_dtype d) { return ref_less(d, x[0], 0) ? ref__ineg(x, d) : x[0]; }
static inline int64_t ref__irelu(const int64_t *x, gn_dtype d) { return ref_less(d, x[0], 0) ? 0 : x[0]; }
static inline int64_t ref__ieq(const int64_t *x, gn_dtype d) {
    (void)d;
    return x[0] == x[1];
}
static inline int64_t ref__ine(const int64_t *x, gn_dtype d) {
    (void)d;
    return x[0] != x[1];
}
static inline int64_t ref__ilt(const int64_t *x, gn_dtype d) { return ref_less(d, x[0], x[1]); }
static inline int64_t ref__ile(const int64_t *x, gn_dtype d) { return !ref_less(d, x[1], x[0]); }
static inline int64_t ref__igt(const int64_t *x, gn_dtype d) { return ref_less(d, x[1], x[0]); }
static inline int64_t ref__ige(const int64_t *x, gn_dtype d) { return !ref_less(d, x[0], x[1]); }
static inline int64_t ref__iand(const int64_t *x, gn_dtype d) {
    (void)d;
    return x[0] & x[1];
}
static inline int64_t ref__ior(const int64_t *x, gn_dtype d) {
    (void)d;
    return x[0] | x[1];
}
static inline int64_t ref__ixor(const int64_t *x, gn_dtype d) {
    (void)d;
    return x[0] ^ x[1];
}
static inline int64_t ref__inot(const int64_t *x, gn_dtype d) { return d == GN_BOOL ? !x[0] : ~x[0]; }

static inline ref_real ref__sign(const ref_real *x) { return isnan(x[0]) ? x[0] : (x[0] > 0) - (x[0] < 0); }
static inline ref_real ref__floor(const ref_real *x) { return floorl(x[0]); }
static inline ref_real ref__ceil(const ref_real *x) { return ceill(x[0]); }
static inline ref_real ref__round(const ref_real *x) {
    ref_real down = floorl(x[0]), rest = x[0] - down;
    return isinf(x[0]) ? x[0] : rest < 0.5L || (rest == 0.5L && fmodl(down, 2) == 0) ? down : down + 1;
}
static inline ref_real ref__trunc(const ref_real *x) { return x[0] < 0 ? ceill(x[0]) : floorl(x[0]); }
static inline ref_real ref__exp2(const ref_real *x) { return exp2l(x[0]); }
static inline ref_real ref__expm1(const ref_real *x) { return expm1l(x[0]); }
static inline ref_real ref__log2(const ref_real *x) { return log2l(x[0]); }
static inline ref_real ref__log10(const ref_real *x) { return log10l(x[0]); }
static inline ref_real ref__log1p(const ref_real *x) { return log1pl(x[0]); }
static inline ref_real ref__reciprocal(const ref_real *x) { return 1 / x[0]; }
static inline ref_real ref__square(const ref_real *x) { return x[0] * x[0]; }
static inline ref_real ref__sin(const ref_real *x) { return sinl(x[0]); }
static inline ref_real ref__cos(const ref_real *x) { return cosl(x[0]); }
static inline ref_real ref__tan(const ref_real *x) { return tanl(x[0]); }
static inline ref_real ref__asin(const ref_real *x) { return asinl(x[0]); }
static inline ref_real ref__acos(const ref_real *x) { return acosl(x[0]); }
static inline ref_real ref__atan(const ref_real *x) { return atanl(x[0]); }
static inline ref_real ref__sinh(const ref_real *x) { return sinhl(x[0]); }
static inline ref_real ref__cosh(const ref_real *x) { return coshl(x[0]); }
static inline ref_real ref__asinh(const ref_real *x) { return asinhl(x[0]); }
static inline ref_real ref__acosh(const ref_real *x) { return acoshl(x[0]); }
static inline ref_real ref__atanh(const ref_real *x) { return atanhl(x[0]); }
static inline ref_real ref__erf(const ref_real *x) { return erfl(x[0]); }
static inline ref_real ref__erfc(const ref_real *x) { return erfcl(x[0]); }
static inline ref_real ref__softplus(const ref_real *x) { return x[0] > 40 ? x[0] : log1pl(expl(x[0])); }
static inline ref_real ref__softsign(const ref_real *x) { return x[0] / (1 + fabsl(x[0])); }
static inline ref_real ref__hard_sigmoid(const ref_real *x) { return x[0] <= -3 ? 0 : x[0] >= 3 ? 1 : (x[0] + 3) / 6; }
static inline ref_real ref__hard_swish(const ref_real *x) {
    return x[0] <= -3 ? 0 : x[0] >= 3 ? x[0] : x[0] * (x[0] + 3) / 6;
}
static inline ref_real ref__selu(const ref_real *x) {
    return 1.0507009873554804934193349852946L * (x[0] > 0 ? x[0] : 1.6732632423543772848170429916717L * expm1l(x[0]));
}
static inline ref_real ref__mish(const ref_real *x) { return x[0] * tanhl(ref__softplus(x)); }
static inline ref_real ref__log_sigmoid(const ref_real *x) { return x[0] < -40 ? x[0] : -log1pl(expl(-x[0])); }
static inline ref_real ref__atan2(const ref_real *x) { return atan2l(x[0], x[1]); }
static inline ref_real ref__fmod(const ref_real *x) { return fmodl(x[0], x[1]); }
static inline ref_real ref__remainder(const ref_real *x) {
    ref_real m = fmodl(x[0], x[1]);
    return m == 0 || (m < 0) == (x[1] < 0) ? m : m + x[1];
}
static inline ref_real ref__floor_divide(const ref_real *x) {
    ref_real m = fmodl(x[0], x[1]);
    return x[1] == 0 ? x[0] / x[1] : rintl((x[0] - m) / x[1]) - (m != 0 && (m < 0) != (x[1] < 0));
}
static inline ref_real ref__hypot(const ref_real *x) { return hypotl(x[0], x[1]); }
static inline ref_real ref__copysign(const ref_real *x) { return copysignl(x[0], x[1]); }
static inline ref_real ref__fma(const ref_real *x) { return fmal(x[0], x[1], x[2]); }
static inline ref_real ref__lerp(const ref_real *x) { return x[0] * (1 - x[2]) + x[1] * x[2]; }
/* 3 is a term of a sum whose result may be small. */
static inline ref_real ref__terms_hard(const ref_real *x, ref_real y, gn_dtype d) {
    (void)d;
    return fabsl(x[0]) < 4 ? fabsl(x[0]) + 1 : fabsl(y);
}
/* Where a factor came to a subnormal, its lost bits count too. */
static inline ref_real ref__terms_selu(const ref_real *x, ref_real y, gn_dtype d) {
    gn_dtype computed = d == GN_F64 ? GN_F64 : GN_F32;
    (void)x;
    return fabsl(y) + ref_tiny(computed) / ref_eps(computed);
}
static inline ref_real ref__terms_mish(const ref_real *x, ref_real y, gn_dtype d) {
    gn_dtype computed = d == GN_F64 ? GN_F64 : GN_F32;
    return fabsl(y) + (isfinite(x[0]) ? fabsl(x[0]) * ref_tiny(computed) / ref_eps(computed) : 0);
}
static inline ref_real ref__terms_b(const ref_real *x, ref_real y, gn_dtype d) {
    (void)d;
    return fabsl(y) + (isfinite(x[1]) ? fabsl(x[1]) : 0);
}
static inline ref_real ref__terms_fma(const ref_real *x, ref_real y, gn_dtype d) {
    (void)y;
    (void)d;
    return fabsl(x[0] * x[1]) + fabsl(x[2]);
}
static inline ref_real ref__terms_lerp(const ref_real *x, ref_real y, gn_dtype d) {
    (void)y;
    (void)d;
    return fabsl(x[0]) * (1 + fabsl(x[2])) + fabsl(x[1] * x[2]);
}

static inline int64_t ref__isign(const int64_t *x, gn_dtype d) { return ref_less(d, 0, x[0]) - ref_less(d, x[0], 0); }
static inline int64_t ref__isquare(const int64_t *x, gn_dtype d) {
    (void)d;
    return ref__wrapping_mul(x[0], x[0]);
}
static inline int64_t ref__ifmod(const int64_t *x, gn_dtype d) {
    if (d == GN_U64 && x[1] != 0) return (int64_t)((uint64_t)x[0] % (uint64_t)x[1]);
    return x[1] == 0 || x[1] == -1 ? 0 : x[0] % x[1];
}
static inline int64_t ref__iremainder(const int64_t *x, gn_dtype d) {
    int64_t m = ref__ifmod(x, d);
    return d == GN_U64 || m == 0 || (m < 0) == (x[1] < 0) ? m : m + x[1];
}
static inline int64_t ref__ifloor_divide(const int64_t *x, gn_dtype d) {
    if (d == GN_U64) return ref__idiv(x, d);
    bool less = ref__ifmod(x, d) != 0 && (x[0] < 0) != (x[1] < 0);
    return x[1] == -1 ? ref__ineg(x, d) : x[1] == 0 ? 0 : x[0] / x[1] - less;
}
static inline int64_t ref__ishift_left(const int64_t *x, gn_dtype d) {
    int64_t y = x[1] < 0 || x[1] > 63 ? 0 : x[0];
    for (int64_t k = 0; y && k < x[1]; k++) y = ref__wrapping_add(y, y);
    (void)d;
    return y;
}
static inline int64_t ref__ishift_right(const int64_t *x, gn_dtype d) {
    int64_t y = x[0];
    for (int64_t k = 0; k < 64 && (x[1] < 0 || k < x[1]); k++)
        y = d == GN_U64 ? (int64_t)((uint64_t)y / 2) : y < 0 ? -((-(y + 1)) / 2) - 1 : y / 2;
    return y;
}
static inline int64_t ref__ifma(const int64_t *x, gn_dtype d) {
    (void)d;
    return ref__wrapping_add(ref__wrapping_mul(x[0], x[1]), x[2]);
}

static const ref_scalar_op ref_scalar_ops[] = {
    { "add", 2, false, ref__add, ref__terms_ab, ref__iadd },
    { "sub", 2, false, ref__sub, ref__terms_ab, ref__isub },
    { "mul", 2, false, ref__mul, ref__terms_y, ref__imul },
    { "div", 2, false, ref__div, ref__terms_y, ref__idiv },
    { "pow", 2, false, ref__pow, ref__terms_pow, NULL },
    { "minimum", 2, false, ref__minimum, NULL, ref__iminimum },
    { "maximum", 2, false, ref__maximum, NULL, ref__imaximum },
    { "neg", 1, false, ref__neg, NULL, ref__ineg },
    { "abs", 1, false, ref__abs, NULL, ref__iabs },
    { "exp", 1, false, ref__exp, ref__terms_y, NULL },
    { "log", 1, false, ref__log, ref__terms_y, NULL },
    { "sqrt", 1, false, ref__sqrt, ref__terms_y, NULL },
    { "rsqrt", 1, false, ref__rsqrt, ref__terms_y, NULL },
    { "tanh", 1, false, ref__tanh, ref__terms_y, NULL },
    { "sigmoid", 1, false, ref__sigmoid, ref__terms_sigmoid, NULL },
    { "relu", 1, false, ref__relu, NULL, ref__irelu },
    { "gelu", 1, false, ref__gelu, ref__terms_gelu, NULL },
    { "gelu_tanh", 1, false, ref__gelu_tanh, ref__terms_gelu, NULL },
    { "silu", 1, false, ref__silu, ref__terms_sigmoid, NULL },
    { "eq", 2, true, ref__eq, NULL, ref__ieq },
    { "ne", 2, true, ref__ne, NULL, ref__ine },
    { "lt", 2, true, ref__lt, NULL, ref__ilt },
    { "le", 2, true, ref__le, NULL, ref__ile },
    { "gt", 2, true, ref__gt, NULL, ref__igt },
    { "ge", 2, true, ref__ge, NULL, ref__ige },
    { "and", 2, false, NULL, NULL, ref__iand },
    { "or", 2, false, NULL, NULL, ref__ior },
    { "xor", 2, false, NULL, NULL, ref__ixor },
    { "not", 1, false, NULL, NULL, ref__inot },
    { "exp2", 1, false, ref__exp2, ref__terms_y, NULL },
    { "expm1", 1, false, ref__expm1, ref__terms_y, NULL },
    { "log2", 1, false, ref__log2, ref__terms_y, NULL },
    { "log10", 1, false, ref__log10, ref__terms_y, NULL },
    { "log1p", 1, false, ref__log1p, ref__terms_y, NULL },
    { "reciprocal", 1, false, ref__reciprocal, ref__terms_y, NULL },
    { "sin", 1, false, ref__sin, ref__terms_y, NULL },
    { "cos", 1, false, ref__cos, ref__terms_y, NULL },
    { "tan", 1, false, ref__tan, ref__terms_y, NULL },
    { "asin", 1, false, ref__asin, ref__terms_y, NULL },
    { "acos", 1, false, ref__acos, ref__terms_y, NULL },
    { "atan", 1, false, ref__atan, ref__terms_y, NULL },
    { "sinh", 1, false, ref__sinh, ref__terms_y, NULL },
    { "cosh", 1, false, ref__cosh, ref__terms_y, NULL },
    { "asinh", 1, false, ref__asinh, ref__terms_y, NULL },
    { "acosh", 1, false, ref__acosh, ref__terms_y, NULL },
    { "atanh", 1, false, ref__atanh, ref__terms_y, NULL },
    { "erf", 1, false, ref__erf, ref__terms_y, NULL },
    { "erfc", 1, false, ref__erfc, ref__terms_y, NULL },
    { "softplus", 1, false, ref__softplus, ref__terms_y, NULL },
    { "softsign", 1, false, ref__softsign, ref__terms_y, NULL },
    { "selu", 1, false, ref__selu, ref__terms_selu, NULL },
    { "mish", 1, false, ref__mish, ref__terms_mish, NULL },
    { "log_sigmoid", 1, false, ref__log_sigmoid, ref__terms_y, NULL },
    { "floor", 1, false, ref__floor, NULL, NULL },
    { "ceil", 1, false, ref__ceil, NULL, NULL },
    { "round", 1, false, ref__round, NULL, NULL },
    { "trunc", 1, false, ref__trunc, NULL, NULL },
    { "sign", 1, false, ref__sign, NULL, ref__isign },
    { "square", 1, false, ref__square, ref__terms_y, ref__isquare },
    { "hard_sigmoid", 1, false, ref__hard_sigmoid, ref__terms_hard, NULL },
    { "hard_swish", 1, false, ref__hard_swish, ref__terms_hard, NULL },
    { "atan2", 2, false, ref__atan2, ref__terms_y, NULL },
    { "fmod", 2, false, ref__fmod, NULL, ref__ifmod },
    { "remainder", 2, false, ref__remainder, ref__terms_b, ref__iremainder },
    { "floor_divide", 2, false, ref__floor_divide, ref__terms_y, ref__ifloor_divide },
    { "hypot", 2, false, ref__hypot, ref__terms_y, NULL },
    { "copysign", 2, false, ref__copysign, NULL, NULL },
    { "shift_left", 2, false, NULL, NULL, ref__ishift_left },
    { "shift_right", 2, false, NULL, NULL, ref__ishift_right },
    { "fma", 3, false, ref__fma, ref__terms_fma, ref__ifma },
    { "lerp", 3, false, ref__lerp, ref__terms_lerp, NULL },
};

static inline const ref_scalar_op *ref_find_scalar(const char *name) {
    for (size_t k = 0; k < sizeof ref_scalar_ops / sizeof *ref_scalar_ops; k++)
        if (strcmp(ref_scalar_ops[k].name, name) == 0) return &ref_scalar_ops[k];
    return NULL;
}

/* Promotes, broadcasts, and applies. */
static inline ref *ref_scalar(const ref_scalar_op *op, ref *const *in) {
    gn_dtype dtype = ref_promote(in, op->arity);
    gn_shape shape = in[0]->shape;
    const ref *x[3];
    for (int a = 0; a < op->arity; a++) {
        x[a] = ref_cast(in[a], dtype);
        shape = ref_broadcast_shapes(shape, in[a]->shape);
    }
    ref *y = op->mag ? ref_make_inexact(dtype, shape) : ref_make(op->compares ? GN_BOOL : dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], i[3] = { 0, 0, 0 };
        ref_real f[3] = { 0, 0, 0 };
        ref_coords(shape, k, c);
        for (int a = 0; a < op->arity; a++) {
            int64_t j = ref_broadcast_index(x[a]->shape, shape, c);
            if (x[a]->f) f[a] = x[a]->f[j];
            else i[a] = x[a]->i[j];
        }
        if (!ref_is_float(dtype)) {
            y->i[k] = ref_wrap(y->dtype, op->i(i, dtype));
        } else if (op->compares) {
            y->i[k] = op->f(f) != 0;
        } else {
            ref_real value = op->f(f);
            ref_put(y, k, value, op->mag ? op->mag(f, value, dtype) : 0);
        }
    }
    return y;
}

/* cond ? a : b */
static inline ref *ref_where(ref *const *in) {
    gn_dtype dtype = ref_promote(in + 1, 2);
    gn_shape shape = ref_broadcast_shapes(ref_broadcast_shapes(in[0]->shape, in[1]->shape), in[2]->shape);
    const ref *a = ref_cast(in[1], dtype), *b = ref_cast(in[2], dtype);
    ref *y = ref_make(dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(shape, k, c);
        const ref *from = in[0]->i[ref_broadcast_index(in[0]->shape, shape, c)] ? a : b;
        ref_copy(y, k, from, ref_broadcast_index(from->shape, shape, c));
    }
    return y;
}

/* A number as the dtype's own, by cast's rules. */
static inline ref *ref_number(gn_dtype dtype, double value) {
    ref *r = ref_make(GN_F64, GN_SCALAR);
    r->f[0] = value;
    return ref_cast(r, dtype);
}

static inline ref *ref_clamp(const ref *a, double low, double high) {
    const ref *lo = ref_number(a->dtype, low), *hi = ref_number(a->dtype, high);
    ref *y = ref_make(a->dtype, a->shape);
    for (int64_t k = 0; k < a->n; k++) {
        if (a->f) {
            ref_real x = a->f[k] < lo->f[0] ? lo->f[0] : a->f[k];
            y->f[k] = x > hi->f[0] ? hi->f[0] : x;
        } else {
            int64_t x = ref_less(a->dtype, a->i[k], lo->i[0]) ? lo->i[0] : a->i[k];
            y->i[k] = ref_less(a->dtype, hi->i[0], x) ? hi->i[0] : x;
        }
    }
    return y;
}

/* ---- generators ---- */

static inline ref *ref_full(gn_dtype dtype, gn_shape shape, double value) {
    const ref *x = ref_number(dtype, value);
    ref *y = ref_make(dtype, shape);
    for (int64_t k = 0; k < y->n; k++) ref_copy(y, k, x, 0);
    return y;
}

static inline ref *ref_arange(gn_dtype dtype, int64_t n, double start, double step) {
    ref *y = ref_make_inexact(dtype, GN_SHAPE(n));
    for (int64_t k = 0; k < n; k++) {
        ref_real x = (ref_real)start + (ref_real)k * (ref_real)step;
        if (y->f) ref_put(y, k, x, fabsl((ref_real)start) + fabsl((ref_real)k * (ref_real)step));
        else y->i[k] = ref__float_to_int(dtype, x);
    }
    return y;
}

/* What the magnitude of a sum of n terms is taken times. */
static inline ref_real ref__growth(gn_dtype d, int64_t n) {
    return 1 + sqrtl((ref_real)n) / 2 * ref_eps(d == GN_F64 ? GN_F64 : GN_F32) / ref_eps(d);
}

/* ---- reductions ---- */

typedef struct ref_split {
    bool reduced[GN_MAX_RANK];
    gn_shape kept, full, inner; /* the result's shape without and with the reduced axes as 1, the reduced axes' own */
} ref_split;

static inline ref_split ref__split(const ref *a, gn_axes axes) {
    ref_split s = { { false }, GN_SCALAR, a->shape, GN_SCALAR };
    for (int k = 0; k < axes.n; k++) s.reduced[ref_axis(a, axes.axis[k])] = true;
    for (int i = 0; i < a->shape.rank; i++) {
        s.reduced[i] = s.reduced[i] || axes.n == 0;
        gn_shape *to = s.reduced[i] ? &s.inner : &s.kept;
        to->dims[to->rank++] = a->shape.dims[i];
        s.full.dims[i] = s.reduced[i] ? 1 : a->shape.dims[i];
    }
    return s;
}

/* The element of `a` at outer position k of the kept axes and inner position j of the reduced ones. */
static inline int64_t ref__inside(const ref *a, const ref_split *s, int64_t k, int64_t j) {
    int64_t outer[GN_MAX_RANK], inner[GN_MAX_RANK], c[GN_MAX_RANK];
    ref_coords(s->kept, k, outer);
    ref_coords(s->inner, j, inner);
    for (int i = 0, o = 0, n = 0; i < a->shape.rank; i++) c[i] = s->reduced[i] ? inner[n++] : outer[o++];
    return ref_index(a->shape, c);
}

/* What sums and products are of. */
static inline gn_dtype ref_summed(gn_dtype d) { return ref_is_float(d) || d == GN_U64 ? d : GN_I64; }

/* sum, or mean when `mean`. */
static inline ref *ref_sum(const ref *a, gn_axes axes, bool keep, bool mean) {
    ref_split s = ref__split(a, axes);
    ref *y = ref_make_inexact(ref_summed(a->dtype), keep ? s.full : s.kept);
    int64_t count = ref_elements(s.inner);
    for (int64_t k = 0; k < y->n; k++) {
        ref_real total = 0, terms = 0;
        int64_t whole = 0;
        for (int64_t j = 0; j < count; j++) {
            int64_t at = ref__inside(a, &s, k, j);
            if (a->f) {
                total += a->f[at];
                terms += fabsl(a->f[at]);
            } else {
                whole = ref__wrapping_add(whole, a->i[at]);
            }
        }
        if (y->f) {
            ref_real by = mean ? (ref_real)count : 1;
            ref_put(y, k, total / by, terms / by * ref__growth(a->dtype, count));
        } else {
            y->i[k] = whole;
        }
    }
    return y;
}

/* True when element p goes before element q of a, by NaN first, then by `sign` times the value. */
static inline bool ref__beats(const ref *a, int64_t p, int64_t q, int sign) {
    if (!a->f) return sign > 0 ? ref_less(a->dtype, a->i[q], a->i[p]) : ref_less(a->dtype, a->i[p], a->i[q]);
    if (isnan(a->f[p]) || isnan(a->f[q])) return isnan(a->f[p]) && !isnan(a->f[q]);
    return sign > 0 ? a->f[p] > a->f[q] : a->f[p] < a->f[q];
}

/* max with sign 1, min with sign -1; `position` gives the place within the reduced axes (argmax). */
static inline ref *ref_extreme(const ref *a, gn_axes axes, bool keep, int sign, bool position) {
    ref_split s = ref__split(a, axes);
    ref *y = ref_make(position ? GN_I64 : a->dtype, keep ? s.full : s.kept);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t best = 0;
        for (int64_t j = 1; j < ref_elements(s.inner); j++)
            if (ref__beats(a, ref__inside(a, &s, k, j), ref__inside(a, &s, k, best), sign)) best = j;
        if (position) y->i[k] = best;
        else ref_copy(y, k, a, ref__inside(a, &s, k, best));
    }
    return y;
}

/* ---- rows ---- */

static inline ref *ref_softmax(const ref *a, int axis, bool logarithm) {
    gn_axes axes = { 1, { axis } };
    ref_split s = ref__split(a, axes);
    ref *y = ref_make_inexact(a->dtype, a->shape);
    int64_t count = ref_elements(s.inner);
    for (int64_t k = 0; count && k < ref_elements(s.kept); k++) {
        ref_real top = -INFINITY, total = 0;
        for (int64_t j = 0; j < count; j++) {
            ref_real x = a->f[ref__inside(a, &s, k, j)];
            top = isnan(x) || x > top ? x : top;
        }
        for (int64_t j = 0; j < count; j++) total += expl(a->f[ref__inside(a, &s, k, j)] - top);
        for (int64_t j = 0; j < count; j++) {
            int64_t at = ref__inside(a, &s, k, j);
            ref_real x = a->f[at] - top, p = expl(x) / total;
            if (logarithm)
                ref_put(y, at, x - logl(total), fabsl(x) + fabsl(logl(total)) + ref__growth(a->dtype, count));
            else ref_put(y, at, p, p > 0 ? p * (ref__growth(a->dtype, count) + fabsl(x)) : 0);
        }
    }
    return y;
}

/* gain and bias may be NULL. */
static inline ref *ref_layernorm(const ref *a, const ref *gain, const ref *bias, double eps) {
    ref *y = ref_make_inexact(a->dtype, a->shape);
    int64_t d = a->shape.dims[a->shape.rank - 1];
    for (int64_t row = 0; d && row < a->n / d; row++) {
        const ref_real *x = a->f + row * d;
        ref_real mean = 0, terms = 0, var = 0;
        for (int64_t j = 0; j < d; j++) {
            mean += x[j] / (ref_real)d;
            terms += fabsl(x[j]) / (ref_real)d;
        }
        for (int64_t j = 0; j < d; j++) var += (x[j] - mean) * (x[j] - mean) / (ref_real)d;
        ref_real scale = 1 / sqrtl(var + (ref_real)eps);
        for (int64_t j = 0; j < d; j++) {
            ref_real g = gain ? gain->f[j] : 1, b = bias ? bias->f[j] : 0;
            ref_put(y, row * d + j, (x[j] - mean) * scale * g + b,
                    (fabsl(x[j]) + terms * ref__growth(a->dtype, d)) * scale * fabsl(g) + fabsl(b));
        }
    }
    return y;
}

/* ---- linear algebra ---- */

/* The same tensor with a row axis in front (`left`) or a column axis behind when it is a vector. */
static inline ref *ref__as_matrix(const ref *a, bool left) {
    ref *r = ref_cast(a, a->dtype);
    if (r->shape.rank == 1) r->shape = left ? GN_SHAPE(1, a->shape.dims[0]) : GN_SHAPE(a->shape.dims[0], 1);
    return r;
}

static inline gn_shape ref__batch_of(const ref *a) {
    gn_shape s = a->shape;
    s.rank -= 2;
    return s;
}

/* One element: row m of matrix p of a times column n of matrix q of b. */
static inline void ref__dot(ref *y, int64_t at, const ref *a, int64_t p, int64_t m, const ref *b, int64_t q,
                            int64_t n) {
    int64_t rows = a->shape.dims[a->shape.rank - 2], inner = a->shape.dims[a->shape.rank - 1];
    int64_t columns = b->shape.dims[b->shape.rank - 1], whole = 0;
    ref_real total = 0, terms = 0;
    for (int64_t k = 0; k < inner; k++) {
        int64_t x = (p * rows + m) * inner + k, z = (q * inner + k) * columns + n;
        if (y->f) {
            total += a->f[x] * b->f[z];
            terms += fabsl(a->f[x] * b->f[z]);
        } else {
            whole = ref__wrapping_add(whole, ref__wrapping_mul(a->i[x], b->i[z]));
        }
    }
    if (y->f) ref_put(y, at, total, terms * ref__growth(y->dtype, inner));
    else y->i[at] = ref_wrap(y->dtype, whole);
}

static inline ref *ref_matmul(ref *const *in) {
    gn_dtype dtype = ref_promote(in, 2);
    const ref *a = ref__as_matrix(ref_cast(in[0], dtype), true), *b = ref__as_matrix(ref_cast(in[1], dtype), false);
    gn_shape batch = ref_broadcast_shapes(ref__batch_of(a), ref__batch_of(b)), shape = batch;
    int64_t rows = a->shape.dims[a->shape.rank - 2], columns = b->shape.dims[b->shape.rank - 1];
    shape.dims[shape.rank++] = rows;
    shape.dims[shape.rank++] = columns;
    ref *y = ref_make_inexact(dtype, shape);
    for (int64_t at = 0; at < y->n; at++) {
        int64_t c[GN_MAX_RANK], k = at / columns / rows;
        ref_coords(batch, k, c);
        int64_t p = ref_broadcast_index(ref__batch_of(a), batch, c),
                q = ref_broadcast_index(ref__batch_of(b), batch, c);
        ref__dot(y, at, a, p, at / columns % rows, b, q, at % columns);
    }
    y->shape = batch;
    if (in[0]->shape.rank > 1) y->shape.dims[y->shape.rank++] = rows;
    if (in[1]->shape.rank > 1) y->shape.dims[y->shape.rank++] = columns;
    return y;
}

/* in: x, w and, when n is 3, b */
static inline ref *ref_linear(ref *const *in, int n) {
    ref *y = ref_matmul(in);
    for (int64_t k = 0; n == 3 && k < y->n; k++) {
        int64_t j = k % in[2]->n;
        if (y->f) ref_put(y, k, y->f[k] + in[2]->f[j], y->mag[k] + fabsl(in[2]->f[j]));
        else y->i[k] = ref_wrap(y->dtype, ref__wrapping_add(y->i[k], in[2]->i[j]));
    }
    return y;
}

/* ---- movement ---- */

static inline ref *ref_reshape(const ref *a, gn_shape shape) {
    int64_t known = 1;
    for (int i = 0; i < shape.rank; i++) known *= shape.dims[i] < 0 ? 1 : shape.dims[i];
    for (int i = 0; i < shape.rank; i++) shape.dims[i] = shape.dims[i] < 0 ? a->n / known : shape.dims[i];
    ref *y = ref_cast(a, a->dtype);
    y->shape = shape;
    return y;
}

static inline ref *ref_permute(const ref *a, gn_axes order) {
    gn_shape shape = a->shape;
    for (int i = 0; i < shape.rank; i++) shape.dims[i] = a->shape.dims[ref_axis(a, order.axis[i])];
    ref *y = ref_make(a->dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], from[GN_MAX_RANK];
        ref_coords(shape, k, c);
        for (int i = 0; i < shape.rank; i++) from[ref_axis(a, order.axis[i])] = c[i];
        ref_copy(y, k, a, ref_index(a->shape, from));
    }
    return y;
}

static inline ref *ref_transpose(const ref *a, int axis0, int axis1) {
    gn_axes order = { a->shape.rank, { 0 } };
    for (int i = 0; i < a->shape.rank; i++) order.axis[i] = i;
    order.axis[ref_axis(a, axis0)] = ref_axis(a, axis1);
    order.axis[ref_axis(a, axis1)] = ref_axis(a, axis0);
    return ref_permute(a, order);
}

/* Python's slice.indices: the first index and how many. */
static inline int64_t ref_slice_first(int64_t n, int64_t begin, int64_t end, int64_t step, int64_t *out_count) {
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    begin = begin < 0 ? (begin < -n ? low : begin + n) : begin;
    end = end < 0 ? (end < -n ? low : end + n) : end;
    begin = begin < low ? low : begin > high ? high : begin;
    end = end < low ? low : end > high ? high : end;
    int64_t count = 0;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        count++;
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
    }
    *out_count = count;
    return begin;
}

static inline ref *ref_slice(const ref *a, int axis, int64_t begin, int64_t end, int64_t step) {
    gn_shape shape = a->shape;
    axis = ref_axis(a, axis);
    int64_t first = ref_slice_first(a->shape.dims[axis], begin, end, step, &shape.dims[axis]);
    ref *y = ref_make(a->dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK] = { 0 };
        ref_coords(shape, k, c);
        c[axis] = first + c[axis] * step;
        ref_copy(y, k, a, ref_index(a->shape, c));
    }
    return y;
}

static inline ref *ref_slice_put(const ref *a, const ref *b, int axis, int64_t begin, int64_t end, int64_t step) {
    ref *y = ref_cast(a, a->dtype);
    int64_t count, first = ref_slice_first(a->shape.dims[ref_axis(a, axis)], begin, end, step, &count);
    for (int64_t k = 0; k < b->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(b->shape, k, c);
        c[ref_axis(a, axis)] = first + c[ref_axis(a, axis)] * step;
        ref_copy(y, ref_index(a->shape, c), b, k);
    }
    return y;
}

static inline ref *ref_concat(ref *const *in, int n, int axis) {
    gn_shape shape = in[0]->shape;
    axis = ref_axis(in[0], axis);
    for (int p = 1; p < n; p++) shape.dims[axis] += in[p]->shape.dims[axis];
    ref *y = ref_make(in[0]->dtype, shape);
    int64_t offset = 0;
    for (int p = 0; p < n; p++) {
        for (int64_t k = 0; k < in[p]->n; k++) {
            int64_t c[GN_MAX_RANK];
            ref_coords(in[p]->shape, k, c);
            c[axis] += offset;
            ref_copy(y, ref_index(shape, c), in[p], k);
        }
        offset += in[p]->shape.dims[axis];
    }
    return y;
}

static inline ref *ref_broadcast(const ref *a, gn_shape shape) {
    ref *y = ref_make(a->dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(shape, k, c);
        ref_copy(y, k, a, ref_broadcast_index(a->shape, shape, c));
    }
    return y;
}

/* ---- indexing ---- */

static inline ref *ref_gather(const ref *a, int axis, const ref *index) {
    ref *y = ref_make(a->dtype, index->shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(index->shape, k, c);
        c[ref_axis(a, axis)] = index->i[k];
        ref_copy(y, k, a, ref_index(a->shape, c));
    }
    return y;
}

/* `ids` (…) and one more axis of `last`. */
static inline gn_shape ref__with_axis(gn_shape ids, int64_t last) {
    ids.dims[ids.rank++] = last;
    return ids;
}

static inline ref *ref_embedding(const ref *table, const ref *ids) {
    int64_t d = table->shape.dims[1];
    ref *y = ref_make(table->dtype, ref__with_axis(ids->shape, d));
    for (int64_t k = 0; k < y->n; k++) ref_copy(y, k, table, ids->i[k / d] * d + k % d);
    return y;
}

/* mode: gn_bag_mode */
static inline ref *ref_embedding_bag(const ref *table, const ref *ids, const ref *lengths, int mode) {
    int64_t d = table->shape.dims[1], at = 0;
    ref *y = ref_make_inexact(table->dtype, ref__with_axis(lengths->shape, d));
    for (int64_t b = 0; b < lengths->n; b++)
        for (int64_t i = 0; i < lengths->i[b]; i++, at++)
            for (int64_t k = 0; k < d; k++) {
                ref_real x = table->f[ids->i[at] * d + k] / (ref_real)(mode == GN_BAG_MEAN ? lengths->i[b] : 1);
                bool more = mode != GN_BAG_MAX || !i || x > y->f[b * d + k] || x != x; /* NaN stays */
                y->f[b * d + k] = !more ? y->f[b * d + k] : mode == GN_BAG_MAX ? x : y->f[b * d + k] + x;
                y->mag[b * d + k] += fabsl(x);
            }
    return y;
}

static inline ref *ref_one_hot(const ref *ids, int64_t depth, gn_dtype dtype) {
    ref *y = ref_make(dtype, ref__with_axis(ids->shape, depth));
    const ref *one = ref_number(dtype, 1);
    for (int64_t k = 0; k < ids->n; k++) ref_copy(y, k * depth + ids->i[k], one, 0);
    return y;
}

static inline ref *ref_scatter_add(const ref *a, int axis, const ref *index, const ref *src) {
    ref *y = ref_make_inexact(a->dtype, a->shape);
    for (int64_t k = 0; k < a->n; k++) {
        ref_copy(y, k, a, k);
        if (y->f) y->mag[k] = fabsl(a->f[k]);
    }
    for (int64_t k = 0; k < index->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(index->shape, k, c);
        c[ref_axis(a, axis)] = index->i[k];
        int64_t at = ref_index(a->shape, c);
        if (y->f) {
            y->f[at] += src->f[k];
            y->mag[at] += fabsl(src->f[k]);
        } else if (y->dtype == GN_BOOL) {
            y->i[at] |= src->i[k];
        } else {
            y->i[at] = ref_wrap(y->dtype, ref__wrapping_add(y->i[at], src->i[k]));
        }
    }
    return y;
}

static inline ref *ref_kv_append(const ref *cache, const ref *rows, int64_t pos) {
    return ref_slice_put(cache, rows, 2, pos, pos + rows->shape.dims[2], 1);
}

/* ---- losses ---- */

static inline ref *ref_cross_entropy(const ref *logits, const ref *targets) {
    const ref *p = ref_softmax(logits, -1, true);
    int64_t classes = logits->shape.dims[logits->shape.rank - 1];
    ref *y = ref_make_inexact(logits->dtype, GN_SCALAR);
    ref_real rows = (ref_real)targets->n;
    for (int64_t k = 0; k < targets->n; k++) {
        int64_t at = k * classes + targets->i[k];
        ref_put(y, 0, y->f[0] - p->f[at] / rows, y->mag[0] + p->mag[at] / rows * ref__growth(y->dtype, targets->n));
    }
    if (targets->n == 0) ref_put(y, 0, NAN, 0);
    return y;
}

static inline ref *ref_mse_loss(ref *const *in) {
    ref *d = ref_scalar(ref_find_scalar("sub"), in);
    ref *y = ref_make_inexact(d->dtype, GN_SCALAR);
    for (int64_t k = 0; k < d->n; k++) {
        ref_real term = d->f[k] * d->f[k] / (ref_real)d->n;
        ref_put(y, 0, y->f[0] + term, y->mag[0] + term * ref__growth(d->dtype, d->n));
    }
    if (d->n == 0) ref_put(y, 0, NAN, 0);
    return y;
}

/* ---- attention ---- */

typedef struct ref_attention {
    const ref *q, *k, *v, *mask; /* mask may be NULL */
    bool causal;
    ref_real scale;
    int64_t length, window;    /* window 0: none */
    ref_real cap;              /* 0: none */
    const ref *slopes, *sinks; /* may be NULL */
} ref_attention;

/* The score of one key for one query, -infinity when the query does not see it. c is (b, h, t, s). */
static inline ref_real ref__score(const ref_attention *p, const int64_t c[4], ref_real *out_terms) {
    const int64_t *q = p->q->shape.dims, *k = p->k->shape.dims;
    int64_t group = c[1] / (q[1] / k[1]), d = q[3];
    gn_shape scores = GN_SHAPE(q[0], q[1], q[2], k[2]);
    ref_real total = 0;
    *out_terms = 0;
    int64_t own = p->length - q[2] + c[2]; /* the query's position */
    if (c[3] >= p->length || (p->causal && c[3] > own) || (p->window && c[3] <= own - p->window)) return -INFINITY;
    for (int64_t j = 0; j < d; j++) {
        ref_real x = p->q->f[((c[0] * q[1] + c[1]) * q[2] + c[2]) * d + j];
        ref_real y = p->k->f[((c[0] * k[1] + group) * k[2] + c[3]) * d + j];
        total += x * y * p->scale;
        *out_terms += fabsl(x * y * p->scale);
    }
    if (p->cap != 0) total = p->cap * tanhl(total / p->cap);
    if (p->slopes) {
        total += p->slopes->f[c[1]] * (ref_real)(c[3] - own);
        *out_terms += fabsl(p->slopes->f[c[1]] * (ref_real)(c[3] - own));
    }
    if (p->mask) {
        int64_t at = ref_broadcast_index(p->mask->shape, scores, c);
        if (!p->mask->f) return p->mask->i[at] ? total : -INFINITY;
        total += p->mask->f[at];
        *out_terms += isfinite(p->mask->f[at]) ? fabsl(p->mask->f[at]) : 0;
    }
    return total;
}

/* One query: all keys' weights into w (S), the largest sum of a score's terms into *out_terms. False: it sees
   nothing. */
static inline bool ref__attend(const ref_attention *p, int64_t query[4], ref_real *w, ref_real *out_terms) {
    int64_t keys = p->k->shape.dims[2];
    ref_real sink = p->sinks ? p->sinks->f[query[1]] : -INFINITY, top = sink, total = 0;
    *out_terms = 0;
    for (query[3] = 0; query[3] < keys; query[3]++) {
        ref_real terms;
        w[query[3]] = ref__score(p, query, &terms);
        *out_terms = terms > *out_terms ? terms : *out_terms;
        top = isnan(w[query[3]]) || w[query[3]] > top ? w[query[3]] : top;
    }
    for (int64_t s = 0; s < keys; s++) {
        w[s] = top == -INFINITY ? 0 : expl(w[s] - top);
        total += w[s];
    }
    total += sink == -INFINITY ? 0 : expl(sink - top);
    for (int64_t s = 0; s < keys; s++) w[s] = top == -INFINITY ? 0 : w[s] / total;
    return top != -INFINITY;
}

static inline ref *ref_attend(const ref_attention *p) {
    const int64_t *q = p->q->shape.dims, *v = p->v->shape.dims;
    ref *y = ref_make_inexact(p->q->dtype, GN_SHAPE(q[0], q[1], q[2], v[3]));
    ref_real *w = ref__alloc((size_t)v[2], sizeof *w);
    for (int64_t row = 0; row < q[0] * q[1] * q[2]; row++) {
        int64_t query[4] = { row / q[2] / q[1], row / q[2] % q[1], row % q[2], 0 };
        int64_t base = (query[0] * v[1] + query[1] / (q[1] / v[1])) * v[2];
        ref_real exponent;
        bool sees = ref__attend(p, query, w, &exponent);
        for (int64_t e = 0; sees && e < v[3]; e++) {
            ref_real total = 0, terms = 0;
            for (int64_t s = 0; s < v[2]; s++) {
                ref_real x = w[s] == 0 ? 0 : w[s] * p->v->f[(base + s) * v[3] + e];
                total += x;
                terms += fabsl(x) + (w[s] == 0 ? 0 : ref__underflow(y->dtype));
            }
            ref_put(y, row * v[3] + e, total,
                    terms * (ref__growth(y->dtype, v[2]) + 2 * exponent * ref__growth(y->dtype, q[3])));
        }
    }
    free(w);
    return y;
}

/* ---- caches in pages. in: pool (P,G,S,D), rows (N,G,D), slots; q (N,H,D), keys, values, sequences, positions,
 * table ---- */

static inline ref *ref_page_append(ref *const *in) {
    const int64_t *p = in[0]->shape.dims;
    ref *y = ref_make(in[0]->dtype, in[0]->shape);
    for (int64_t i = 0; i < y->n; i++) ref_copy(y, i, in[0], i);
    for (int64_t i = 0; i < in[1]->n; i++) {
        int64_t slot = in[2]->i[i / p[3] / p[1]], g = i / p[3] % p[1];
        if (slot >= 0) ref_copy(y, ((slot / p[2] * p[1] + g) * p[2] + slot % p[2]) * p[3] + i % p[3], in[1], i);
    }
    return y;
}

/* The keys or values of one row's sequence, one after another: (1,G,n,D). */
static inline ref *ref__pages(const ref *pool, const int64_t *table, int64_t n) {
    const int64_t *p = pool->shape.dims;
    ref *y = ref_make(pool->dtype, GN_SHAPE(1, p[1], n, p[3]));
    for (int64_t i = 0; i < y->n; i++) {
        int64_t g = i / p[3] / n, j = i / p[3] % n;
        ref_copy(y, i, pool, ((table[j / p[2]] * p[1] + g) * p[2] + j % p[2]) * p[3] + i % p[3]);
    }
    return y;
}

/* `of` says scale, window, cap, slopes and sinks: each row is a query that is alone. */
static inline ref *ref_page_attention(ref *const *in, const ref_attention *of) {
    int64_t H = in[0]->shape.dims[1], D = in[0]->shape.dims[2], E = in[2]->shape.dims[3], M = in[5]->shape.dims[1];
    ref *y = ref_make_inexact(in[0]->dtype, GN_SHAPE(in[0]->shape.dims[0], H, E));
    for (int64_t n = 0; n < in[0]->shape.dims[0]; n++) {
        const int64_t *table = in[5]->i + in[3]->i[n] * M;
        ref_attention a = *of;
        ref *q = ref_make(in[0]->dtype, GN_SHAPE(1, H, 1, D));
        if (in[3]->i[n] < 0) continue;
        for (int64_t i = 0; i < q->n; i++) ref_copy(q, i, in[0], n * H * D + i);
        a.q = q;
        a.length = in[4]->i[n] + 1;
        a.k = ref__pages(in[1], table, a.length);
        a.v = ref__pages(in[2], table, a.length);
        const ref *one = ref_attend(&a);
        for (int64_t i = 0; i < one->n; i++) ref_put(y, n * H * E + i, one->f[i], one->mag[i]);
    }
    return y;
}

/* ---- rows by the weights of their experts: in is x, w, ids, bias if n is 4 ---- */

static inline ref *ref_expert_linear(ref *const *in, int n) {
    gn_shape shape = in[2]->shape;
    const int64_t *w = in[1]->shape.dims;
    shape.dims[shape.rank++] = w[2];
    ref *y = ref_make_inexact(in[0]->dtype, shape);
    int64_t repeats = in[0]->shape.rank == in[2]->shape.rank ? in[2]->shape.dims[in[2]->shape.rank - 1] : 1;
    for (int64_t i = 0; i < in[2]->n * w[2]; i++) {
        int64_t row = i / w[2], e = in[2]->i[row];
        ref_real total = e >= 0 && n > 3 ? in[3]->f[e * w[2] + i % w[2]] : 0, terms = fabsl(total);
        for (int64_t k = 0; e >= 0 && k < w[1]; k++) {
            ref_real x = in[0]->f[row / repeats * w[1] + k] * in[1]->f[(e * w[1] + k) * w[2] + i % w[2]];
            total += x;
            terms += fabsl(x);
        }
        ref_put(y, i, total, terms * ref__growth(y->dtype, w[1]));
    }
    return y;
}

/* ---- quantised weights, element by element: data (N, bytes of a row), scales and zeros by their place or NULL ---- */

typedef struct ref_quant {
    int format;
    const ref *data, *scales, *zeros;
    int64_t rows; /* of a scale */
} ref_quant;

static inline int64_t ref_quant_columns(const ref_quant *q) {
    int elements = 1, bytes = 1;
    gn_quant_block((gn_quant)q->format, &elements, &bytes);
    return q->data->shape.dims[1] / bytes * elements;
}

static inline ref_real ref__quant_half(const int64_t *b, int64_t at) {
    int64_t bits = (b[at] & 255) | (b[at + 1] & 255) << 8, e = bits >> 10 & 31, m = bits & 1023;
    ref_real v = e == 31 ? (m ? (ref_real)NAN : (ref_real)INFINITY)
                 : e     ? ldexpl(1024 + (ref_real)m, (int)e - 25)
                         : ldexpl((ref_real)m, -24);
    return bits >> 15 ? -v : v;
}

static inline ref_real ref__quant_e4m3(int64_t b) {
    int64_t e = b >> 3 & 15, m = b & 7;
    ref_real v = e == 15 && m == 7 ? (ref_real)NAN : e ? ldexpl(8 + (ref_real)m, (int)e - 10) : ldexpl((ref_real)m, -9);
    return b & 128 ? -v : v;
}

/* Element k of a block of 32 whose quants begin at `at`: 4 bits, a fifth at `fifth` if that is not 0. */
static inline int64_t ref__quant_bits(const int64_t *b, int64_t at, int64_t fifth, int64_t k) {
    int64_t q = b[at + k % 16] >> (k / 16 * 4) & 15;
    return fifth ? q | (b[fifth + k / 8] >> k % 8 & 1) << 4 : q;
}

/* Of Q4_K and Q5_K: d * scale * q - least * min; of Q6_K d * scale * (q - 32). */
static inline ref_real ref__quant_k(int format, const int64_t *b, int64_t k) {
    if (format == GN_QUANT_Q6_K) {
        int64_t half = k / 128, in = k % 128, low = b[half * 64 + in % 64] >> (in / 64 * 4) & 15,
                high = b[128 + half * 32 + in % 32] >> (in / 32 * 2) & 3, s = b[192 + k / 16] & 255;
        return ref__quant_half(b, 208) * (ref_real)(s > 127 ? s - 256 : s) * (ref_real)((low | high << 4) - 32);
    }
    int64_t j = k / 32, q = b[(format == GN_QUANT_Q5_K ? 48 : 16) + j / 2 * 32 + k % 32] >> (j % 2 * 4) & 15;
    if (format == GN_QUANT_Q5_K) q |= (b[16 + k % 32] >> j & 1) << 4;
    const int64_t *s = b + 4;
    int64_t scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 & 3) << 4,
            least = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4 & 15) | (s[j] >> 6 & 3) << 4;
    return ref__quant_half(b, 0) * (ref_real)(scale * q) - ref__quant_half(b, 2) * (ref_real)least;
}

static inline ref_real ref_quant_value(const ref_quant *q, int64_t n, int64_t k) {
    int elements = 1, bytes = 1;
    gn_quant_block((gn_quant)q->format, &elements, &bytes);
    const int64_t *b = q->data->i + n * q->data->shape.dims[1] + k / elements * bytes;
    int64_t in = k % elements;
    if (q->scales) {
        int64_t per = q->scales->shape.dims[1], at = n / q->rows * per + k / (ref_quant_columns(q) / per);
        ref_real s = q->scales->f[at], z = q->zeros ? (ref_real)q->zeros->i[at] : q->format == GN_QUANT_INT4 ? 8 : 0;
        if (q->format == GN_QUANT_FP8_E4M3) return s * ref__quant_e4m3(b[0] & 255);
        if (q->format == GN_QUANT_INT4) return s * ((ref_real)(b[0] >> (in * 4) & 15) - z);
        return s * ((ref_real)(int8_t)b[0] - z);
    }
    ref_real d = ref__quant_half(b, 0);
    switch (q->format) {
    case GN_QUANT_Q4_0: return d * (ref_real)(ref__quant_bits(b, 2, 0, in) - 8);
    case GN_QUANT_Q4_1: return d * (ref_real)ref__quant_bits(b, 4, 0, in) + ref__quant_half(b, 2);
    case GN_QUANT_Q5_0: return d * (ref_real)(ref__quant_bits(b, 6, 2, in) - 16);
    case GN_QUANT_Q5_1: return d * (ref_real)ref__quant_bits(b, 8, 4, in) + ref__quant_half(b, 2);
    case GN_QUANT_Q8_0: return d * (ref_real)(int8_t)b[2 + in];
    default: return ref__quant_k(q->format, b, in);
    }
}

/* Rows by ids, or all of them if ids is NULL; not rounded on the way. */
static inline ref *ref_dequantize(const ref_quant *q, const ref *ids, gn_dtype dtype) {
    int64_t columns = ref_quant_columns(q);
    gn_shape shape = ids ? ids->shape : GN_SHAPE(q->data->shape.dims[0]);
    shape.dims[shape.rank++] = columns;
    ref *y = ref_make_inexact(dtype, shape);
    for (int64_t i = 0; i < y->n; i++) {
        ref_real v = ref_quant_value(q, ids ? ids->i[i / columns] : i / columns, i % columns);
        ref_put(y, i, v, 2 * fabsl(v) + (ref_real)0.001);
    }
    return y;
}

static inline ref *ref_linear_quantized(const ref *x, const ref_quant *q, const ref *bias) {
    int64_t columns = ref_quant_columns(q), n = q->data->shape.dims[0];
    gn_shape shape = x->shape;
    shape.dims[shape.rank - 1] = n;
    ref *y = ref_make_inexact(x->dtype, shape);
    for (int64_t i = 0; i < y->n; i++) {
        ref_real total = bias ? bias->f[i % n] : 0, terms = fabsl(total);
        for (int64_t k = 0; k < columns; k++) {
            ref_real v = x->f[i / n * columns + k] * ref_quant_value(q, i % n, k);
            total += v;
            terms += fabsl(v);
        }
        ref_put(y, i, total, terms * ref__growth(y->dtype, columns));
    }
    return y;
}

/* a (N,K) in a format with scales: the nearest step, ties to even, as f32 divides. */
static inline ref *ref_quantize(const ref *a, const ref_quant *q, gn_shape shape) {
    ref *y = ref_make(GN_U8, shape);
    int64_t columns = a->shape.dims[1], per = q->scales->shape.dims[1];
    for (int64_t i = 0; i < a->n; i++) {
        int64_t n = i / columns, k = i % columns, at = n / q->rows * per + k / (columns / per), best = 0;
        float s = (float)q->scales->f[at], v = s != 0 ? (float)a->f[i] / s : 0;
        if (q->format == GN_QUANT_FP8_E4M3) {
            for (int64_t b = 0; b < 127; b++) {
                ref_real now = fabsl(ref__quant_e4m3(b) - fabsl((ref_real)v)),
                         then = fabsl(ref__quant_e4m3(best) - fabsl((ref_real)v));
                if (now < then || (now == then && b % 2 == 0)) best = b;
            }
            y->i[i] = best | (signbit(v) ? 128 : 0);
            continue;
        }
        bool four = q->format == GN_QUANT_INT4;
        float z = q->zeros ? (float)q->zeros->i[at] : four ? 8 : 0, whole = rintf(v) + z;
        whole = whole > (four ? 15 : 127) ? (four ? 15 : 127) : whole < (four ? 0 : -128) ? (four ? 0 : -128) : whole;
        if (four) y->i[i / 2] |= (int64_t)whole << (i % 2 * 4);
        else y->i[i] = (int64_t)whole & 255;
    }
    return y;
}

/* ---- windows ---- */

/* What tap k of place o meets along an axis of n elements; -1: what is outside. */
static inline int64_t ref__tap(const gn_conv_desc *d, int axis, int64_t o, int64_t k, int64_t n) {
    int64_t stride = d->stride[axis] ? d->stride[axis] : 1, dilation = d->dilation[axis] ? d->dilation[axis] : 1;
    if (!d->transposed) {
        int64_t i = o * stride + k * dilation - d->before[axis];
        return i >= 0 && i < n ? i : -1;
    }
    for (int64_t i = 0; i < n; i++)
        if (i * stride + k * dilation - d->before[axis] == o) return i;
    return -1;
}

/* Size of the result along an axis. */
static inline int64_t ref_conv_size(const gn_conv_desc *d, int axis, int64_t n, int64_t kernel) {
    int64_t stride = d->stride[axis] ? d->stride[axis] : 1, dilation = d->dilation[axis] ? d->dilation[axis] : 1;
    int64_t reach = (kernel - 1) * dilation + 1, pads = d->before[axis] + d->after[axis];
    return d->transposed ? (n - 1) * stride + reach - pads + d->extra[axis] : (n + pads - reach) / stride + 1;
}

/* in: x, w, then what of bias and residual there is */
static inline ref *ref_conv(ref *const *in, bool bias, bool residual, const gn_conv_desc *d) {
    const ref *x = in[0], *w = in[1], *b = bias ? in[2] : NULL, *r = residual ? in[2 + bias] : NULL;
    int64_t groups = d->groups ? d->groups : 1, channels = x->shape.dims[1] / groups, taps = 1,
            filters = d->transposed ? w->shape.dims[1] : w->shape.dims[0] / groups;
    gn_shape shape = x->shape;
    shape.dims[1] = filters * groups;
    for (int i = 2; i < shape.rank; i++) {
        shape.dims[i] = ref_conv_size(d, i - 2, x->shape.dims[i], w->shape.dims[i]);
        taps *= w->shape.dims[i];
    }
    ref *y = ref_make_inexact(x->dtype, shape);
    for (int64_t e = 0; e < y->n; e++) {
        int64_t o[GN_MAX_RANK], m, g;
        ref_coords(shape, e, o);
        m = o[1], g = m / filters;
        ref_real total = b ? b->f[m] : 0, carried = 0, terms; /* carried: what x's own errors may add */
        total += r ? r->f[e] : 0;
        terms = (b ? fabsl(b->f[m]) : 0) + (r ? fabsl(r->f[e]) : 0);
        for (int64_t t = 0; t < channels * taps; t++) {
            int64_t c = g * channels + t / taps, rest = t % taps, at = o[0] * x->shape.dims[1] + c, k[3] = { 0 };
            int64_t row = d->transposed ? c * filters + m % filters : m * channels + t / taps;
            bool inside = true;
            for (int i = shape.rank - 1; i > 1; i--) {
                k[i - 2] = rest % w->shape.dims[i];
                rest /= w->shape.dims[i];
            }
            for (int i = 2; i < shape.rank; i++) {
                int64_t from = ref__tap(d, i - 2, o[i], k[i - 2], x->shape.dims[i]);
                inside = inside && from >= 0;
                at = at * x->shape.dims[i] + from;
            }
            if (inside) {
                ref_real product = x->f[at] * w->f[row * taps + t % taps];
                total += product;
                terms += fabsl(product);
                carried += x->mag ? x->mag[at] * fabsl(w->f[row * taps + t % taps]) : 0;
            }
        }
        if (d->clamps) total = total < d->least ? d->least : total > d->most ? d->most : total;
        ref_put(y, e, total, carried + terms * ref__growth(y->dtype, channels * taps));
    }
    return y;
}

/* Windows along an axis of n elements, and the elements of one: *out_counted are those that an average divides by. */
static inline int64_t ref_pool_size(const gn_pool_desc *d, int axis, int64_t n) {
    int64_t stride = d->stride[axis] ? d->stride[axis] : 1, dilation = d->dilation[axis] ? d->dilation[axis] : 1;
    int64_t room = n + d->before[axis] + d->after[axis] - (d->kernel[axis] - 1) * dilation - 1;
    int64_t size = d->adaptive ? d->kernel[axis] : room / stride + 1;
    if (d->ceiling && !d->adaptive && room % stride && size * stride < n + d->before[axis]) size++;
    return size;
}

static inline bool ref__pool_meets(const gn_pool_desc *d, int axis, int64_t o, int64_t at) {
    int64_t stride = d->stride[axis] ? d->stride[axis] : 1, dilation = d->dilation[axis] ? d->dilation[axis] : 1;
    int64_t from = o * stride - d->before[axis];
    return at >= from && (at - from) % dilation == 0 && (at - from) / dilation < d->kernel[axis];
}

/* Whether element `at` is in window o. */
static inline bool ref__pool_has(const gn_pool_desc *d, int axis, int64_t n, int64_t o, int64_t at) {
    if (d->adaptive) return (at + 1) * d->kernel[axis] > o * n && at * d->kernel[axis] < (o + 1) * n;
    return ref__pool_meets(d, axis, o, at);
}

static inline ref *ref_pool(const ref *x, const gn_pool_desc *d) {
    gn_shape shape = x->shape;
    int64_t all = 1;
    for (int i = 2; i < shape.rank; i++) {
        shape.dims[i] = ref_pool_size(d, i - 2, x->shape.dims[i]);
        all *= x->shape.dims[i];
    }
    ref *y = d->kind == GN_POOL_INDEX ? ref_make(GN_I64, shape) : ref_make_inexact(x->dtype, shape);
    for (int64_t e = 0; e < y->n; e++) {
        int64_t o[GN_MAX_RANK], place = 0, met = 0;
        ref_real best = -INFINITY, sum = 0, terms = 0, counted = 1;
        ref_coords(shape, e, o);
        for (int64_t p = 0; p < all; p++) {
            int64_t rest = p;
            bool in = true;
            for (int i = shape.rank - 1; i > 1; i--) {
                in = in && ref__pool_has(d, i - 2, x->shape.dims[i], o[i], rest % x->shape.dims[i]);
                rest /= x->shape.dims[i];
            }
            if (!in) continue;
            ref_real v = x->f[(o[0] * shape.dims[1] + o[1]) * all + p];
            if (met == 0 || (v > best && !isnan(best)) || (isnan(v) && !isnan(best))) {
                best = v;
                place = p;
            }
            met++;
            sum += v;
            terms += fabsl(v);
        }
        for (int i = 2; i < shape.rank; i++) {
            int64_t n = x->shape.dims[i], pads = d->counts_pads && !d->adaptive, some = 0;
            for (int64_t at = -pads * d->before[i - 2]; at < n + pads * d->after[i - 2]; at++)
                some += ref__pool_has(d, i - 2, n, o[i], at);
            counted *= (ref_real)some;
        }
        if (d->kind == GN_POOL_INDEX) y->i[e] = place;
        else if (d->kind == GN_POOL_MAX) ref_put(y, e, best, 0);
        else if (d->kind == GN_POOL_SUM) ref_put(y, e, sum, terms * ref__growth(y->dtype, met));
        else ref_put(y, e, sum / counted, terms / counted * ref__growth(y->dtype, met));
    }
    return y;
}

/* ---- norms by channel ---- */

/* in: x, then what of gain, bias and (groups < 0) mean and variance there is. groups 0: of all images, each channel. */
static inline ref *ref_channel_norm(ref *const *in, int64_t groups, bool gain, bool bias, double eps) {
    const ref *x = in[0], *g = gain ? in[1] : NULL, *b = bias ? in[1 + gain] : NULL;
    int64_t channels = x->shape.dims[1], spatial = 1;
    for (int i = 2; i < x->shape.rank; i++) spatial *= x->shape.dims[i];
    ref *y = ref_make_inexact(x->dtype, x->shape);
    for (int64_t e = 0; e < y->n; e++) {
        int64_t c = e / spatial % channels, image = e / spatial / channels, n = 0;
        ref_real mean = 0, var = 0, most = 0;
        for (int turn = 0; turn < 2 && groups >= 0; turn++) {
            n = 0;
            for (int64_t k = 0; k < x->n; k++) {
                int64_t other = k / spatial % channels;
                bool same = groups
                                ? k / spatial / channels == image && other * groups / channels == c * groups / channels
                                : other == c;
                if (!same) continue;
                n++;
                if (turn) var += (x->f[k] - mean) * (x->f[k] - mean);
                else mean += x->f[k];
                most = fmaxl(most, fabsl(x->f[k]));
            }
            if (turn) var /= (ref_real)n;
            else mean /= (ref_real)n;
        }
        if (groups < 0) mean = in[1 + gain + bias]->f[c], var = in[2 + gain + bias]->f[c], n = 1;
        ref_real by = (g ? g->f[c] : 1) / sqrtl(var + (ref_real)eps), shift = b ? b->f[c] : 0;
        ref_put(y, e, (x->f[e] - mean) * by + shift,
                (fabsl(x->f[e]) + fabsl(mean) + most) * fabsl(by) * ref__growth(x->dtype, n) + fabsl(shift));
    }
    return y;
}

static inline ref *ref_local_response_norm(const ref *x, int64_t size, double alpha, double beta, double k) {
    int64_t channels = x->shape.dims[1], spatial = 1;
    for (int i = 2; i < x->shape.rank; i++) spatial *= x->shape.dims[i];
    ref *y = ref_make_inexact(x->dtype, x->shape);
    for (int64_t e = 0; e < y->n; e++) {
        int64_t c = e / spatial % channels;
        ref_real sum = 0;
        for (int64_t o = c - (size - 1) / 2; o <= c + size / 2; o++)
            if (o >= 0 && o < channels) sum += x->f[e + (o - c) * spatial] * x->f[e + (o - c) * spatial];
        ref_real v = x->f[e] / powl((ref_real)k + (ref_real)alpha / (ref_real)size * sum, (ref_real)beta);
        ref_put(y, e, v, 4 * fabsl(v) * ref__growth(x->dtype, size));
    }
    return y;
}

/* ---- interpolation ---- */

static inline double ref__interpolate_place(const gn_interpolate_desc *d, int i, int64_t in, int64_t out, int64_t o) {
    const gn_interpolate_map *m = &d->map[i];
    double x = (double)o, n = (double)in, size = (double)out;
    if (d->places == GN_INTERPOLATE_MAPPED) return (x + m->before) * m->times / m->over + m->after;
    if (d->places == GN_INTERPOLATE_EDGES) return x * n / size;
    if (d->places == GN_INTERPOLATE_CORNERS) return out == 1 ? 0 : x * (n - 1) / (size - 1);
    return (x + 0.5) * n / size - 0.5;
}

static inline ref_real ref__interpolate_kernel(const gn_interpolate_desc *d, ref_real x) {
    ref_real a = d->sets_cubic ? (ref_real)d->cubic : -0.75L;
    x = fabsl(x);
    if (d->kind == GN_INTERPOLATE_LINEAR) return x < 1 ? 1 - x : 0;
    if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
    return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

/* What each of `in` elements counts in place o; slack[i] is above 0 where the filter meets it. */
static inline void ref__interpolate_weigh(const gn_interpolate_desc *d, int i, int64_t in, int64_t out, int64_t o,
                                          ref_real *weight, ref_real *slack) {
    double x = ref__interpolate_place(d, i, in, out, o), stretch = d->stretch[i] > 0 ? d->stretch[i] : 1;
    int64_t reach = (int64_t)ceil(2 * stretch) + 1, base = (int64_t)floor(x);
    ref_real sum = 0;
    for (int64_t k = 0; k < in; k++) weight[k] = slack[k] = 0;
    if (d->kind == GN_INTERPOLATE_NEAREST) {
        base = (int64_t)(d->rounding == GN_INTERPOLATE_CEIL      ? ceil(x)
                         : d->rounding == GN_INTERPOLATE_FLOOR   ? floor(x)
                         : d->rounding == GN_INTERPOLATE_HALF_UP ? floor(x + 0.5)
                                                                 : ceil(x - 0.5));
        weight[base < 0 ? 0 : base >= in ? in - 1 : base] = 1;
        return;
    }
    for (int64_t k = base - reach; k <= base + reach; k++) {
        ref_real w = ref__interpolate_kernel(d, ((ref_real)x - (ref_real)k) / (ref_real)stretch);
        int64_t at = k < 0 ? 0 : k >= in ? in - 1 : k;
        if (d->inside && at != k) continue;
        weight[at] += w;
        if (fabsl((ref_real)x - (ref_real)k) <= 2 * (ref_real)stretch) slack[at] += 0.1L;
        sum += w;
    }
    for (int64_t k = 0; k < in; k++) weight[k] = sum != 0 ? weight[k] / sum : 0;
}

static inline ref *ref_interpolate(const ref *x, gn_axes axes, gn_shape sizes, const gn_interpolate_desc *d) {
    enum { MOST = 64 };
    gn_shape shape = x->shape;
    int64_t all = 1;
    for (int i = 0; i < axes.n; i++) {
        shape.dims[ref_axis(x, axes.axis[i])] = sizes.dims[i];
        all *= x->shape.dims[ref_axis(x, axes.axis[i])];
    }
    ref *y = x->f ? ref_make_inexact(x->dtype, shape) : ref_make(x->dtype, shape);
    for (int64_t e = 0; e < y->n; e++) {
        ref_real weight[3][MOST], slack[3][MOST], total = 0, terms = 0;
        int64_t o[GN_MAX_RANK];
        ref_coords(shape, e, o);
        for (int i = 0; i < axes.n; i++) {
            int axis = ref_axis(x, axes.axis[i]);
            ref__interpolate_weigh(d, i, x->shape.dims[axis], sizes.dims[i], o[axis], weight[i], slack[i]);
        }
        for (int64_t p = 0; p < all; p++) {
            int64_t rest = p, at = 0;
            ref_real w = 1, more = 1;
            for (int i = axes.n - 1; i >= 0; i--) {
                int axis = ref_axis(x, axes.axis[i]);
                int64_t k = rest % x->shape.dims[axis];
                rest /= x->shape.dims[axis];
                o[axis] = k;
                w *= weight[i][k];
                more *= fabsl(weight[i][k]) + slack[i][k];
            }
            for (int i = 0; i < shape.rank; i++) at = at * x->shape.dims[i] + o[i];
            if (d->kind == GN_INTERPOLATE_NEAREST && w != 0) ref_copy(y, e, x, at);
            if (d->kind == GN_INTERPOLATE_NEAREST) continue;
            total += w * x->f[at];
            terms += more * fabsl(x->f[at]);
        }
        if (d->kind != GN_INTERPOLATE_NEAREST) ref_put(y, e, total, terms * ref__growth(y->dtype, all));
        else if (y->mag) y->mag[e] = 0;
    }
    return y;
}

/* ---- recurrent networks: values with a derivative each, and first-order bounds of the errors of both in eps ---- */

typedef struct ref__dual {
    ref_real v, e, d, m; /* value, its error, derivative, its error */
} ref__dual;

static inline ref__dual ref__dual_of(ref_real v) { return (ref__dual){ v, 0, 0, 0 }; }
static inline ref__dual ref__dual_add(ref__dual a, ref__dual b) {
    ref__dual y = { a.v + b.v, a.e + b.e, a.d + b.d, a.m + b.m };
    y.e += fabsl(y.v);
    y.m += fabsl(y.d);
    return y;
}
static inline ref__dual ref__dual_mul(ref__dual a, ref__dual b) {
    ref__dual y = { a.v * b.v, fabsl(a.v) * b.e + fabsl(b.v) * a.e, a.v * b.d + b.v * a.d, 0 };
    y.m = fabsl(a.v) * b.m + fabsl(b.v) * a.m + a.e * fabsl(b.d) + b.e * fabsl(a.d) + fabsl(y.d);
    y.e += fabsl(y.v);
    return y;
}

/* y with slope s; the slope's own is at most 2, and jumps are not met. */
static inline ref__dual ref__dual_bent(ref__dual a, ref_real y, ref_real s) {
    ref_real d = s * a.d;
    return (ref__dual){ y, fabsl(s) * a.e + fabsl(y), d, fabsl(s) * a.m + 2 * a.e * fabsl(a.d) + fabsl(d) };
}

/* The same where the slope jumps at x = `kink`: a value whose error reaches across it has the larger slope's error.
 * It reaches as far as a bf16's eps times the tolerance of the ops that use this. */
enum { REF_REACH = 8 };
static inline ref__dual ref__dual_kinked(ref__dual a, ref_real kink, ref_real y, ref_real s, ref_real other) {
    ref__dual b = ref__dual_bent(a, y, s);
    if (fabsl(a.v - kink) <= a.e / REF_REACH && fabsl(other) > fabsl(s)) b.e += (fabsl(other) - fabsl(s)) * a.e;
    return b;
}

static inline ref__dual ref__dual_act(gn_activation act, double clip, ref__dual a) {
    ref_real x = a.v, most = clip > 0 ? (ref_real)clip : (ref_real)INFINITY, s = 1 / (1 + expl(-x)),
             alpha = (ref_real)act.alpha, beta = (ref_real)act.beta, t = tanhl(x), u = 1 + fabsl(x), line;
    if (fabsl(x) > most) {
        a.v = x > 0 ? most : -most;
        a.d = a.m = 0;
        if (fabsl(x) - most > a.e / REF_REACH) a.e = 0;
        return ref__dual_act(act, 0, a);
    }
    switch (act.kind) {
    case GN_ACTIVATION_SIGMOID: return ref__dual_bent(a, s, s * (1 - s));
    case GN_ACTIVATION_RELU: return ref__dual_kinked(a, 0, x > 0 ? x : 0, x > 0, x <= 0);
    case GN_ACTIVATION_SOFTSIGN: return ref__dual_bent(a, x / u, 1 / (u * u));
    case GN_ACTIVATION_SOFTPLUS: return ref__dual_bent(a, log1pl(expl(x)), s);
    case GN_ACTIVATION_LEAKY_RELU:
        return ref__dual_kinked(a, 0, x > 0 ? x : alpha * x, x > 0 ? 1 : alpha, x > 0 ? alpha : 1);
    case GN_ACTIVATION_ELU:
        return ref__dual_kinked(a, 0, x > 0 ? x : alpha * expm1l(x), x > 0 ? 1 : alpha * expl(x), x > 0 ? alpha : 1);
    case GN_ACTIVATION_AFFINE: a = ref__dual_bent(a, alpha * x + beta, alpha); break;
    case GN_ACTIVATION_SCALED_TANH:
        t = tanhl(beta * x);
        return ref__dual_bent(a, alpha * t, alpha * beta * (1 - t * t));
    case GN_ACTIVATION_THRESHOLDED_RELU: return ref__dual_bent(a, x > alpha ? x : 0, x > alpha);
    case GN_ACTIVATION_HARD_SIGMOID:
        line = alpha * x + beta;
        return ref__dual_kinked(a, ((line > 0.5L) - beta) / alpha,
                                line < 0   ? 0
                                : line > 1 ? 1
                                           : line,
                                line > 0 && line < 1 ? alpha : 0, line > 0 && line < 1 ? 0 : alpha);
    default: return ref__dual_bent(a, t, 1 - t * t);
    }
    a.e += fabsl(beta);
    return a;
}

enum {
    REF_CELL_X,
    REF_CELL_W,
    REF_CELL_R,
    REF_CELL_BIAS,
    REF_CELL_RB,
    REF_CELL_H0,
    REF_CELL_C0,
    REF_CELL_PEEP,
    REF_CELL_INPUTS
};

/* A layer: its inputs by REF_CELL_, NULL where one is not given; lengths NULL: all steps. */
typedef struct ref_recurrent_layer {
    gn_recurrent_desc d;
    int64_t D, T, B, I, H, G;
    const int64_t *lengths;
    ref__dual *in[REF_CELL_INPUTS];
} ref_recurrent_layer;

static inline ref__dual ref__cell_in(const ref_recurrent_layer *l, int which, int64_t at) {
    return l->in[which] ? l->in[which][at] : ref__dual_of(0);
}

/* Gate g (0, 1, …: r, z, n; i, f, g, o) of unit u: where it is among the gates. */
static inline int64_t ref__cell_column(const ref_recurrent_layer *l, int g, int64_t u) {
    static const int lstm[] = { 0, 2, 3, 1 }, gru[] = { 1, 0, 2 };
    if (l->d.onnx_gates && l->G > 1) g = l->G == 4 ? lstm[g] : gru[g];
    return g * l->H + u;
}

/* The input's part of a gate. */
static inline ref__dual ref__cell_x(const ref_recurrent_layer *l, int64_t d, int64_t t, int64_t b, int g, int64_t u) {
    int64_t row = d * l->G * l->H + ref__cell_column(l, g, u);
    ref__dual y = ref__dual_of(0);
    for (int64_t i = 0; i < l->I; i++)
        y = ref__dual_add(y, ref__dual_mul(l->in[REF_CELL_X][(t * l->B + b) * l->I + i],
                                           l->in[REF_CELL_W][row * l->I + i]));
    return ref__dual_add(y, ref__cell_in(l, REF_CELL_BIAS, row));
}

/* The state's part; times NULL, or what h is taken times. */
static inline ref__dual ref__cell_q(const ref_recurrent_layer *l, int64_t d, int g, int64_t u, const ref__dual *h,
                                    const ref__dual *times) {
    int64_t row = d * l->G * l->H + ref__cell_column(l, g, u);
    ref__dual y = ref__dual_of(0);
    for (int64_t k = 0; k < l->H; k++)
        y = ref__dual_add(y, ref__dual_mul(times ? ref__dual_mul(times[k], h[k]) : h[k],
                                           l->in[REF_CELL_R][row * l->H + k]));
    return ref__dual_add(y, ref__cell_in(l, REF_CELL_RB, row));
}

static inline ref__dual ref__cell_gate(const ref_recurrent_layer *l, int64_t d, int64_t t, int64_t b, int g, int64_t u,
                                       const ref__dual *h) {
    return ref__dual_add(ref__cell_x(l, d, t, b, g, u), ref__cell_q(l, d, g, u, h, NULL));
}

static inline ref__dual ref__cell_peeped(const ref_recurrent_layer *l, int64_t d, int which, int64_t u, ref__dual gate,
                                         ref__dual c) {
    ref__dual peep = ref__cell_in(l, REF_CELL_PEEP, (d * 3 + which) * l->H + u);
    return l->in[REF_CELL_PEEP] ? ref__dual_add(gate, ref__dual_mul(peep, c)) : gate;
}

enum { REF_CELL_MOST = 64 }; /* units */

/* One step of one row: h and c (H) to those after it. */
static inline void ref__cell_step(const ref_recurrent_layer *l, int64_t d, int64_t t, int64_t b, ref__dual *h,
                                  ref__dual *c) {
    const gn_activation *act = l->d.act[d];
    double clip = l->d.clip;
    ref__dual old[REF_CELL_MOST], r[REF_CELL_MOST], one = ref__dual_of(1), minus = ref__dual_of(-1);
    for (int64_t k = 0; k < l->H; k++) old[k] = h[k];
    for (int64_t k = 0; k < l->H; k++) r[k] = ref__dual_act(act[0], clip, ref__cell_gate(l, d, t, b, 0, k, old));
    for (int64_t u = 0; u < l->H; u++) {
        if (l->G == 1) h[u] = r[u];
        if (l->G == 3) {
            ref__dual z = ref__dual_act(act[0], clip, ref__cell_gate(l, d, t, b, 1, u, old)),
                      q = ref__cell_q(l, d, 2, u, old, l->d.reset_first ? r : NULL);
            if (!l->d.reset_first) q = ref__dual_mul(r[u], q);
            ref__dual n = ref__dual_act(act[1], clip, ref__dual_add(ref__cell_x(l, d, t, b, 2, u), q));
            h[u] =
                ref__dual_add(ref__dual_mul(ref__dual_add(one, ref__dual_mul(minus, z)), n), ref__dual_mul(z, old[u]));
        }
        if (l->G < 4) continue;
        ref__dual gate[4], bent[4];
        for (int g = 0; g < 4; g++) gate[g] = ref__cell_gate(l, d, t, b, g, u, old);
        bent[0] = ref__dual_act(act[0], clip, ref__cell_peeped(l, d, 0, u, gate[0], c[u]));
        bent[1] = ref__dual_act(act[0], clip, ref__cell_peeped(l, d, 2, u, gate[1], c[u]));
        if (l->d.coupled) bent[1] = ref__dual_add(one, ref__dual_mul(minus, bent[0]));
        bent[2] = ref__dual_act(act[1], clip, gate[2]);
        c[u] = ref__dual_add(ref__dual_mul(bent[1], c[u]), ref__dual_mul(bent[0], bent[2]));
        bent[3] = ref__dual_act(act[0], clip, ref__cell_peeped(l, d, 1, u, gate[3], c[u]));
        h[u] = ref__dual_mul(bent[3], ref__dual_act(act[2], clip, c[u]));
    }
}

/* out: (S,T+1,D,B,H). */
static inline void ref_recurrent_run(const ref_recurrent_layer *l, ref__dual *out) {
    int64_t plane = (l->T + 1) * l->D * l->B * l->H;
    for (int64_t d = 0; d < l->D; d++)
        for (int64_t b = 0; b < l->B; b++) {
            ref__dual h[REF_CELL_MOST], c[REF_CELL_MOST];
            for (int64_t u = 0; u < l->H; u++) {
                h[u] = ref__cell_in(l, REF_CELL_H0, (d * l->B + b) * l->H + u);
                c[u] = ref__cell_in(l, REF_CELL_C0, (d * l->B + b) * l->H + u);
            }
            for (int64_t k = 0; k <= l->T; k++) {
                int64_t t = k == l->T || !(d == 1 || l->d.reverse) ? k : l->T - 1 - k;
                bool lives = k < l->T && (!l->lengths || t < l->lengths[b]);
                if (lives) ref__cell_step(l, d, t, b, h, c);
                for (int64_t u = 0; u < l->H; u++) {
                    ref__dual *to = out + ((t * l->D + d) * l->B + b) * l->H + u, none = ref__dual_of(0);
                    to[0] = lives || k == l->T ? h[u] : none;
                    if (l->G == 4) to[plane] = lives || k == l->T ? c[u] : none;
                }
            }
        }
}

/* ---- one element, by ops that are said with others ---- */

typedef enum ref_test { REF_ISNAN, REF_ISINF, REF_ISFINITE, REF_ISZERO } ref_test;

static inline bool ref__is(const ref *a, int64_t k, ref_test t) {
    ref_real x = a->f ? a->f[k] : (ref_real)a->i[k];
    return t == REF_ISNAN ? isnan(x) : t == REF_ISINF ? isinf(x) : t == REF_ISFINITE ? isfinite(x) : x == 0;
}

static inline ref *ref_is(const ref *a, ref_test t) {
    ref *y = ref_make(GN_BOOL, a->shape);
    for (int64_t k = 0; k < a->n; k++) y->i[k] = ref__is(a, k, t);
    return y;
}

/* kind: 0 and, 1 or, 2 xor; of numbers that are not 0 */
static inline ref *ref_logical(ref *const *in, int kind) {
    ref *y = ref_make(GN_BOOL, ref_broadcast_shapes(in[0]->shape, in[1]->shape));
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK];
        bool x[2];
        ref_coords(y->shape, k, c);
        for (int i = 0; i < 2; i++) x[i] = !ref__is(in[i], ref_broadcast_index(in[i]->shape, y->shape, c), REF_ISZERO);
        y->i[k] = kind == 0 ? x[0] && x[1] : kind == 1 ? x[0] || x[1] : x[0] != x[1];
    }
    return y;
}

static inline ref_real ref__prelu(const ref_real *x) { return x[0] < 0 ? x[0] * x[1] : x[0]; }
static inline ref_real ref__elu(const ref_real *x) { return x[0] > 0 ? x[0] : x[1] * expm1l(x[0]); }
static inline ref_real ref__celu(const ref_real *x) { return x[0] > 0 ? x[0] : x[1] * expm1l(x[0] / x[1]); }
static inline ref_real ref__terms_celu(const ref_real *x, ref_real y, gn_dtype d) {
    return ref__terms_selu(x, y, d) + (x[0] < 0 && isfinite(x[0]) ? expl(x[0] / x[1]) * fabsl(x[0]) : 0);
}
static const ref_scalar_op ref_prelu = { "prelu", 2, false, ref__prelu, ref__terms_y, NULL };
static const ref_scalar_op ref_elu = { "elu", 2, false, ref__elu, ref__terms_selu, NULL };
static const ref_scalar_op ref_celu = { "celu", 2, false, ref__celu, ref__terms_celu, NULL };

/* An op of two inputs whose second is a number. */
static inline ref *ref_with_number(const ref_scalar_op *op, ref *a, double value) {
    ref *in[2] = { a, ref_number(a->dtype, value) };
    return ref_scalar(op, in);
}

/* ---- reductions ---- */

typedef enum ref_reduction {
    REF_PROD,
    REF_ANY,
    REF_ALL,
    REF_COUNT,
    REF_L1,
    REF_L2,
    REF_LOGSUMEXP,
    REF_VARIANCE,
    REF_STD
} ref_reduction;

static inline void ref__reduce_ints(ref *y, int64_t k, const ref *a, const ref_split *s, ref_reduction kind) {
    int64_t nonzero = 0, prod = 1, sum = 0, n = ref_elements(s->inner);
    for (int64_t j = 0; j < n; j++) {
        int64_t at = ref__inside(a, s, k, j), x = a->i ? a->i[at] : 0;
        nonzero += !ref__is(a, at, REF_ISZERO);
        prod = ref__wrapping_mul(prod, x);
        sum = ref__wrapping_add(sum, ref_less(a->dtype, x, 0) ? (int64_t)(0 - (uint64_t)x) : x);
    }
    y->i[k] = kind == REF_PROD  ? prod
              : kind == REF_ANY ? nonzero > 0
              : kind == REF_ALL ? nonzero == n
              : kind == REF_L1  ? sum
                                : nonzero;
}

/* Value and magnitude of one float element; `correction` is variance's. */
static inline void ref__reduce_floats(ref *y, int64_t k, const ref *a, const ref_split *s, ref_reduction kind,
                                      int correction) {
    int64_t n = ref_elements(s->inner);
    ref_real sum = 0, squares = 0, prod = 1, lost = 0, top = -INFINITY, most = 0, growth = ref__growth(a->dtype, n);
    for (int64_t j = 0; j < n; j++) {
        ref_real x = a->f[ref__inside(a, s, k, j)];
        sum += fabsl(x);
        squares += x * x;
        prod *= x;
        lost = lost * fabsl(x) + ref__underflow(a->dtype);
        top = isnan(x) || x > top ? x : top;
        most = fabsl(x) > most ? fabsl(x) : most;
    }
    if (kind == REF_PROD) {
        ref_put(y, k, prod, fabsl(prod) * (growth + (ref_real)n / 2) + lost);
    } else if (kind == REF_L1) {
        ref_put(y, k, sum, sum * growth);
    } else if (kind == REF_L2) {
        ref_put(y, k, sqrtl(squares), sqrtl(squares) * growth + sqrtl((ref_real)n * ref__underflow(a->dtype)));
    } else if (kind == REF_LOGSUMEXP) {
        ref_real total = 0, terms = 0, base = isfinite(top) ? top : 0;
        for (int64_t j = 0; j < n; j++) {
            ref_real x = a->f[ref__inside(a, s, k, j)] - base;
            total += expl(x);
            terms += isfinite(x) ? expl(x) * fabsl(x) : 0;
        }
        ref_put(y, k, base + logl(total), fabsl(base) + fabsl(logl(total)) + growth + terms);
    } else {
        ref_real mean = 0, spread = 0;
        for (int64_t j = 0; j < n; j++) mean += a->f[ref__inside(a, s, k, j)] / (ref_real)n;
        for (int64_t j = 0; j < n; j++) {
            ref_real x = a->f[ref__inside(a, s, k, j)] - (n ? mean : 0);
            spread += x * x;
        }
        ref_real value = spread / (ref_real)(n > correction ? n - correction : 0), deviation = sqrtl(value);
        ref_real magnitude = deviation * growth + 2 * most * growth;
        ref_put(y, k, kind == REF_STD ? deviation : value,
                kind == REF_STD ? magnitude : 2 * deviation * magnitude + 16 * ref_eps(a->dtype) * most * most);
    }
}

static inline ref *ref_reduce(const ref *a, gn_axes axes, bool keep, ref_reduction kind, int correction) {
    ref_split s = ref__split(a, axes);
    gn_shape shape = keep ? s.full : s.kept;
    bool real = a->f && kind != REF_ANY && kind != REF_ALL && kind != REF_COUNT;
    ref *y = real ? ref_make_inexact(a->dtype, shape)
                  : ref_make(kind == REF_ANY || kind == REF_ALL ? GN_BOOL
                             : kind == REF_COUNT                ? GN_I64
                                                                : ref_summed(a->dtype),
                             shape);
    for (int64_t k = 0; k < y->n; k++)
        if (real) ref__reduce_floats(y, k, a, &s, kind, correction);
        else ref__reduce_ints(y, k, a, &s, kind);
    return y;
}

/* ---- along an axis ---- */

typedef enum ref_running { REF_CUMSUM, REF_CUMPROD, REF_CUMMAX } ref_running;

static inline ref *ref_cumulate(const ref *a, int axis, ref_running kind) {
    ref_split s = ref__split(a, (gn_axes){ 1, { axis } });
    gn_dtype dtype = kind == REF_CUMMAX ? a->dtype : ref_summed(a->dtype);
    ref *y = kind == REF_CUMMAX ? ref_make(dtype, a->shape) : ref_make_inexact(dtype, a->shape);
    for (int64_t k = 0; k < ref_elements(s.kept); k++) {
        ref_real f = kind == REF_CUMPROD, terms = 0;
        int64_t i = kind == REF_CUMPROD, best = -1;
        for (int64_t j = 0; j < ref_elements(s.inner); j++) {
            int64_t at = ref__inside(a, &s, k, j);
            if (kind == REF_CUMMAX) {
                best = best < 0 || ref__beats(a, at, best, 1) ? at : best;
                ref_copy(y, at, a, best);
            } else if (!a->f) {
                i = kind == REF_CUMSUM ? ref__wrapping_add(i, a->i[at]) : ref__wrapping_mul(i, a->i[at]);
                y->i[at] = i;
            } else if (kind == REF_CUMSUM) {
                f += a->f[at];
                terms += fabsl(a->f[at]);
                ref_put(y, at, f, terms * ref__growth(dtype, j + 1));
            } else {
                f *= a->f[at];
                terms = terms * fabsl(a->f[at]) + ref__underflow(dtype);
                ref_put(y, at, f, fabsl(f) * (ref__growth(dtype, j + 1) + (ref_real)j / 2) + terms);
            }
        }
    }
    return y;
}

/* Whether element p stands before q: by value, NaN last, equal ones by place. */
static inline bool ref__precedes(const ref *a, int64_t p, int64_t q, bool descending) {
    bool nan[2] = { a->f && isnan(a->f[p]), a->f && isnan(a->f[q]) };
    if (nan[0] || nan[1]) return nan[0] == nan[1] ? p < q : nan[1];
    if (a->f ? a->f[p] == a->f[q] : a->i[p] == a->i[q]) return p < q;
    return ref__beats(a, p, q, descending ? 1 : -1);
}

/* Values, or positions in the axis: the first `count` of each row in order. A place is the number of those before
   it. */
static inline ref *ref_sort(const ref *a, int axis, bool descending, int64_t count, bool positions) {
    ref_split s = ref__split(a, (gn_axes){ 1, { axis } });
    gn_shape shape = a->shape;
    shape.dims[ref_axis(a, axis)] = count;
    ref *y = ref_make(positions ? GN_I64 : a->dtype, shape);
    for (int64_t k = 0; y->n && k < ref_elements(s.kept); k++) {
        for (int64_t j = 0; j < ref_elements(s.inner); j++) {
            int64_t at = ref__inside(a, &s, k, j), place = 0;
            for (int64_t i = 0; i < ref_elements(s.inner); i++)
                place += i != j && ref__precedes(a, ref__inside(a, &s, k, i), at, descending);
            if (place >= count) continue;
            int64_t to = ref__inside(y, &s, k, place);
            if (positions) y->i[to] = j;
            else ref_copy(y, to, a, at);
        }
    }
    return y;
}

/* ---- rows ---- */

/* Along an axis a / sqrt(sum / by + eps) * gain; gain may be NULL. `least` > 0: a / max(sqrt(sum), least) instead. */
static inline ref *ref_scale_rows(const ref *a, int axis, const ref *gain, double eps, double least) {
    ref_split s = ref__split(a, (gn_axes){ 1, { axis } });
    ref *y = ref_make_inexact(a->dtype, a->shape);
    int64_t n = ref_elements(s.inner);
    for (int64_t k = 0; k < ref_elements(s.kept); k++) {
        ref_real squares = 0;
        for (int64_t j = 0; j < n; j++) {
            ref_real x = a->f[ref__inside(a, &s, k, j)];
            squares += x * x;
        }
        ref_real floor = ref_number(y->dtype, least)->f[0], norm = sqrtl(squares);
        ref_real scale =
            least > 0 ? 1 / (norm < floor ? floor : norm) : 1 / sqrtl(squares / (ref_real)n + (ref_real)eps);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = ref__inside(a, &s, k, j);
            ref_real value = a->f[at] * scale * (gain ? gain->f[j] : 1);
            ref_put(y, at, value, fabsl(value) * ref__growth(a->dtype, n));
        }
    }
    return y;
}

/* ---- movement ---- */

/* An element of the result comes from the coordinates that `from` makes of its own; false: from `fill`. */
typedef bool (*ref_from)(const void *how, const ref *a, const int64_t *c, int64_t *from);

static inline ref *ref_moved(const ref *a, gn_shape shape, ref_from from, const void *how, double fill) {
    ref *y = ref_make(a->dtype, shape);
    const ref *other = ref_number(a->dtype, fill);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], x[GN_MAX_RANK];
        ref_coords(shape, k, c);
        bool inside = from(how, a, c, x);
        ref_copy(y, k, inside ? a : other, inside ? ref_index(a->shape, x) : 0);
    }
    return y;
}

/* ---- indexing ---- */

/* larger: keeps the larger, NaN first */
static inline ref *ref_scatter(const ref *a, int axis, const ref *index, const ref *src, bool larger) {
    ref *y = ref_cast(a, a->dtype);
    for (int64_t k = 0; k < index->n; k++) {
        int64_t c[GN_MAX_RANK];
        ref_coords(index->shape, k, c);
        c[ref_axis(a, axis)] = index->i[k];
        int64_t at = ref_index(a->shape, c);
        bool keeps =
            larger && (a->f ? isnan(y->f[at]) || src->f[k] <= y->f[at] : !ref_less(a->dtype, y->i[at], src->i[k]));
        if (!keeps) ref_copy(y, at, src, k);
    }
    return y;
}

static inline ref *ref_gather_nd(const ref *a, const ref *index) {
    int parts = (int)index->shape.dims[index->shape.rank - 1];
    gn_shape shape = index->shape;
    shape.rank--;
    int64_t rows = ref_elements(shape), block = 1;
    for (int i = parts; i < a->shape.rank; i++) {
        block *= a->shape.dims[i];
        shape.dims[shape.rank++] = a->shape.dims[i];
    }
    ref *y = ref_make(a->dtype, shape);
    for (int64_t k = 0; k < rows * block; k++) {
        int64_t row = 0;
        for (int i = 0; i < parts; i++) row = row * a->shape.dims[i] + index->i[k / block * parts + i];
        ref_copy(y, k, a, row * block + k % block);
    }
    return y;
}

static inline ref *ref_nonzero(const ref *a, int64_t bound) {
    ref *y = ref_make(GN_I64, GN_SHAPE(bound, a->shape.rank));
    int64_t found = 0;
    for (int64_t k = 0; k < y->n; k++) y->i[k] = -1;
    for (int64_t k = 0; k < a->n; k++)
        if (!ref__is(a, k, REF_ISZERO)) ref_coords(a->shape, k, y->i + found++ * a->shape.rank);
    return y;
}

/* ---- linear algebra ---- */

/* Sizes of all letters, those that are summed into `letters`; the shape of the result. */
static inline gn_shape ref__einsum_letters(const char *const *labels, const char *out, ref *const *in, int n,
                                           int64_t *size, char *letters) {
    gn_shape shape = { (int32_t)strlen(out), { 0 } };
    for (int i = 0; i < n; i++) {
        for (int j = 0; labels[i][j]; j++) {
            char c = labels[i][j];
            size[(int)c] = in[i]->shape.dims[j];
            if (!strchr(out, c) && !strchr(letters, c)) letters[strlen(letters)] = c;
        }
    }
    for (int i = 0; out[i]; i++) shape.dims[i] = size[(int)out[i]];
    return shape;
}

/* By the definition: for each element of the result a sum over all values of all other letters. */
static inline ref *ref_einsum(const char *const *labels, const char *out, ref *const *in, int n) {
    int64_t size[128] = { 0 }, value[128] = { 0 }, total = 1;
    char letters[32] = "";
    gn_shape shape = ref__einsum_letters(labels, out, in, n, size, letters);
    for (int i = 0; letters[i]; i++) total *= size[(int)letters[i]];
    ref *y = ref_make_inexact(in[0]->dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], whole = 0;
        ref_real sum = 0, terms = 0;
        ref_coords(shape, k, c);
        for (int i = 0; out[i]; i++) value[(int)out[i]] = c[i];
        for (int64_t t = 0; t < total; t++) {
            int64_t rest = t, product = 1;
            ref_real f = 1;
            for (int i = 0; letters[i]; i++) {
                value[(int)letters[i]] = rest % size[(int)letters[i]];
                rest /= size[(int)letters[i]];
            }
            for (int i = 0; i < n; i++) {
                int64_t at = 0;
                for (int j = 0; labels[i][j]; j++) at = at * in[i]->shape.dims[j] + value[(int)labels[i][j]];
                f *= in[i]->f ? in[i]->f[at] : 1;
                product = ref__wrapping_mul(product, in[i]->i ? in[i]->i[at] : 1);
            }
            sum += f;
            terms += fabsl(f);
            whole = ref__wrapping_add(whole, product);
        }
        if (y->f) ref_put(y, k, sum, terms * (ref__growth(y->dtype, total) + (ref_real)n));
        else y->i[k] = ref_wrap(y->dtype, whole);
    }
    return y;
}

/* How often the ith pair of `size` elements turns by one radian, a position; by the papers' own words, not by genie.h's
   numbers (Su et al. 2021; Chen et al. 2023; Peng et al. 2024; the configurations of Llama 3). */
static inline ref_real ref__rotary_rate(const gn_rotary_desc *d, int64_t i, int64_t size) {
    ref_real base = d->base != 0 ? (ref_real)d->base : 10000, s = (ref_real)d->factor,
             turn = 6.283185307179586476925287L;
    if (d->scaling == GN_ROTARY_NTK) base *= powl(s, (ref_real)size / (ref_real)(size - 2));
    ref_real f = powl(base, -2 * (ref_real)i / (ref_real)size);
    if (d->scaling == GN_ROTARY_LINEAR) return f / s;
    if (d->scaling == GN_ROTARY_LLAMA3) {
        ref_real low = d->low_frequency != 0 ? (ref_real)d->low_frequency : 1,
                 high = d->high_frequency != 0 ? (ref_real)d->high_frequency : 4, wavelength = turn / f,
                 context = (ref_real)d->context;
        if (wavelength < context / high) return f;
        if (wavelength > context / low) return f / s;
        ref_real smooth = (context / wavelength - low) / (high - low);
        return (1 - smooth) * f / s + smooth * f;
    }
    if (d->scaling == GN_ROTARY_YARN) {
        ref_real fast = d->beta_fast != 0 ? (ref_real)d->beta_fast : 32,
                 slow = d->beta_slow != 0 ? (ref_real)d->beta_slow : 1;
        ref_real low = floorl((ref_real)size * logl((ref_real)d->context / (fast * turn)) / (2 * logl(base))),
                 high = ceill((ref_real)size * logl((ref_real)d->context / (slow * turn)) / (2 * logl(base)));
        low = low < 0 ? 0 : low;
        high = high > (ref_real)(size - 1) ? (ref_real)(size - 1) : high;
        ref_real ramp = ((ref_real)i - low) / (high == low ? 0.001L : high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        return f * (1 - ramp) + f / s * ramp;
    }
    return f;
}

/* What an angle is off by at most, for each unit of the tolerance: it is an f64, and a share of one before scaling. */
static inline ref_real ref__rotary_error(const gn_rotary_desc *d, ref_real position, int64_t i, int64_t size) {
    gn_rotary_desc plain = { .base = d->base };
    ref_real scaled = fabsl(position * ref__rotary_rate(d, i, size)),
             before = fabsl(position * ref__rotary_rate(d->scaling == GN_ROTARY_NTK ? d : &plain, i, size));
    return (scaled > before ? scaled : before) * ref_eps(GN_F64);
}

static inline ref_real ref__rotary_magnitude(const gn_rotary_desc *d) {
    if (d->scaling != GN_ROTARY_YARN) return 1;
    return d->magnitude != 0 ? (ref_real)d->magnitude : d->factor > 1 ? 0.1L * logl((ref_real)d->factor) + 1 : 1;
}

/* (…,T) to (…,T,size): cosines, then sines. */
static inline ref *ref_rotary_table(const ref *positions, gn_dtype dtype, const gn_rotary_desc *d) {
    gn_shape shape = positions->shape;
    shape.dims[shape.rank++] = d->size;
    ref *y = ref_make_inexact(dtype, shape);
    for (int64_t k = 0; k < y->n; k++) {
        int64_t at = k % d->size, half = d->size / 2;
        ref_real angle = (ref_real)positions->i[k / d->size] * ref__rotary_rate(d, at % half, d->size),
                 scale = ref__rotary_magnitude(d);
        ref_put(y, k, scale * (at < half ? cosl(angle) : sinl(angle)),
                scale * (1 + ref__rotary_error(d, (ref_real)positions->i[k / d->size], at % half, d->size) /
                                 ref_eps(dtype)));
    }
    return y;
}

/* positions (T) or (…,T); pairs (2i, 2i+1) or (i, i + size/2) */
static inline ref *ref_rotary(const ref *x, const ref *positions, const gn_rotary_desc *desc) {
    ref *y = ref_make_inexact(x->dtype, x->shape);
    int64_t d = x->shape.dims[x->shape.rank - 1], size = desc->size ? desc->size : d, half = size / 2;
    gn_shape rows = x->shape;
    rows.rank--;
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], j = k % d, pair = desc->interleaved ? j / 2 : half ? j % half : 0, row = k / d * d;
        bool second = desc->interleaved ? j % 2 : j >= half;
        if (j >= size) {
            ref_put(y, k, x->f[k], 0);
            continue;
        }
        ref_coords(rows, k / d, c);
        ref_real at = (ref_real)positions->i[ref_broadcast_index(positions->shape, rows, c)],
                 angle = at * ref__rotary_rate(desc, pair, size), scale = ref__rotary_magnitude(desc);
        ref_real a = x->f[row + (desc->interleaved ? 2 * pair : pair)],
                 b = x->f[row + (desc->interleaved ? 2 * pair + 1 : pair + half)];
        ref_put(y, k, scale * (second ? b * cosl(angle) + a * sinl(angle) : a * cosl(angle) - b * sinl(angle)),
                scale * (fabsl(a) + fabsl(b)) * (1 + ref__rotary_error(desc, at, pair, size) / ref_eps(x->dtype)));
    }
    return y;
}

/* By a table that is there. */
static inline ref *ref_rotary_by(const ref *x, const ref *table, bool interleaved) {
    ref *y = ref_make_inexact(x->dtype, x->shape);
    int64_t d = x->shape.dims[x->shape.rank - 1], size = table->shape.dims[table->shape.rank - 1], half = size / 2;
    gn_shape rows = x->shape, wide = x->shape;
    rows.rank--;
    wide.dims[wide.rank - 1] = size;
    for (int64_t k = 0; k < y->n; k++) {
        int64_t c[GN_MAX_RANK], j = k % d, pair = interleaved ? j / 2 : half ? j % half : 0, row = k / d * d;
        bool second = interleaved ? j % 2 : j >= half;
        if (j >= size) {
            ref_put(y, k, x->f[k], 0);
            continue;
        }
        ref_coords(rows, k / d, c);
        c[rows.rank] = pair;
        ref_real turn = table->f[ref_broadcast_index(table->shape, wide, c)];
        c[rows.rank] = half + pair;
        ref_real across = table->f[ref_broadcast_index(table->shape, wide, c)];
        ref_real a = x->f[row + (interleaved ? 2 * pair : pair)],
                 b = x->f[row + (interleaved ? 2 * pair + 1 : pair + half)];
        ref_real one = second ? b * turn : a * turn, two = second ? a * across : -(b * across);
        ref_put(y, k, one + two, fabsl(one) + fabsl(two));
    }
    return y;
}

/* ---- losses ---- */

typedef enum ref_loss { REF_BCE, REF_BCE_LOGITS, REF_KL, REF_SMOOTH_L1 } ref_loss;

/* One term and its magnitude. */
static inline ref_real ref__loss_term(ref_loss kind, ref_real x, ref_real t, double beta, ref_real *out_terms) {
    ref_real y;
    if (kind == REF_BCE) {
        ref_real yes = x > 0 ? logl(x) : -100, no = x < 1 ? log1pl(-x) : -100;
        y = -(t * (yes < -100 ? -100 : yes) + (1 - t) * (no < -100 ? -100 : no));
        *out_terms = fabsl(y) + 1;
    } else if (kind == REF_BCE_LOGITS) {
        y = (x > 40 ? x : log1pl(expl(x))) - x * t;
        *out_terms = fabsl(y) + 2 * fabsl(x * t);
    } else if (kind == REF_KL) {
        y = t > 0 ? t * (logl(t) - x) : 0;
        *out_terms = t > 0 ? t * (fabsl(logl(t)) + fabsl(x) + 1) : 0;
    } else {
        ref_real d = fabsl(x - t);
        y = d < beta ? d * d / (2 * (ref_real)beta) : d - (ref_real)beta / 2;
        *out_terms = y + (fabsl(x) + fabsl(t)) * (1 + d / (ref_real)beta);
    }
    return y;
}

/* The mean of all terms, for KL over rows. */
static inline ref *ref_elementwise_loss(const ref *a, const ref *b, ref_loss kind, double beta) {
    ref *y = ref_make_inexact(a->dtype, GN_SCALAR);
    ref_real n = (ref_real)(kind == REF_KL ? a->n / a->shape.dims[a->shape.rank - 1] : a->n);
    for (int64_t k = 0; k < a->n; k++) {
        ref_real terms, value = ref__loss_term(kind, a->f[k], b->f[k], beta, &terms);
        ref_put(y, 0, y->f[0] + value / n, y->mag[0] + terms / n * ref__growth(a->dtype, a->n));
    }
    return y;
}

/* Mean of -((1 - s) log_p[target] + s mean of log_p); log_p of `a` as it stands, or of its softmax. */
static inline ref *ref_class_loss(const ref *a, const ref *targets, bool logits, double smoothing) {
    const ref *p = logits ? ref_softmax(a, -1, true) : a;
    int64_t classes = a->shape.dims[a->shape.rank - 1];
    ref *y = ref_make_inexact(a->dtype, GN_SCALAR);
    for (int64_t k = 0; k < a->n; k++) {
        bool hit = targets->i[k / classes] == k % classes;
        ref_real part = (hit ? 1 - (ref_real)smoothing : 0) + (ref_real)smoothing / (ref_real)classes;
        ref_real share = part / (ref_real)targets->n;
        ref_put(y, 0, y->f[0] - share * p->f[k],
                y->mag[0] + share * (p->mag ? p->mag[k] : fabsl(p->f[k])) * ref__growth(a->dtype, a->n));
    }
    return y;
}

#endif
