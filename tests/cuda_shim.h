/* What generated kernels need to be compiled by a host's C++ compiler: the built-in names of CUDA C++. A program made
 * with this is run by cuda_shim.c, which sets `shim` before each thread of a block continues. */
#ifndef GN_CUDA_SHIM_H
#define GN_CUDA_SHIM_H

#include <math.h>
#include <string.h>
#include <utility>

#define GN_HOST 1
#define D static inline
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static /* one block runs at a time, or each of a cluster has its copy of the program */

struct shim_dim {
    unsigned x, y, z;
};
struct shim_state {
    struct shim_dim thread, block, grid;
    unsigned words[6 * 1024]; /* exchanged by shuffles and matrix instructions, by thread */
    void (*barrier)(void);    /* of a warp, whose threads go on together; of the block */
    void (*block_barrier)(void);
    unsigned char *dynamic; /* shared memory that a launch asks for */
    void (*cluster_barrier)(void);
    void (*box_wait)(void);            /* until other blocks of the cluster have run */
    void *(*there)(void *p, int rank); /* the same place in another block of the cluster */
};
static struct shim_state *shim;
extern "C" void shim_init(struct shim_state *state) { shim = state; }

#define threadIdx (shim->thread)
#define blockIdx (shim->block)
#define gridDim (shim->grid)

struct __attribute__((aligned(8))) uint2 {
    unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};

static inline void __syncthreads(void) { shim->block_barrier(); }
static inline void __syncwarp(void) { shim->barrier(); }
static inline void cluster_arrive(void) { }
static inline void cluster_wait(void) { shim->cluster_barrier(); }
template <class A> static inline void put_there(A *p, const A &a, int rank) { *(A *)shim->there(p, rank) = a; }
static inline void cluster_begin(void) { }
/* What others of the cluster send into this block's memory: a box counts the bytes that are yet to come. */
static inline void box_open(unsigned long long *box, unsigned bytes) { *box = bytes; }
static inline void box_send(unsigned long long *box, float *p, float v, int rank) {
    put_there(p, v, rank);
    *(unsigned long long *)shim->there(box, rank) -= 4;
}
static inline void box_send4(unsigned long long *box, float *p, const float *v, int rank) {
    for (int i = 0; i < 4; i++) box_send(box, p + i, v[i], rank);
}
static inline void box_wait(unsigned long long *box) {
    while (*box) shim->box_wait();
}
static inline unsigned __shfl_xor_sync(unsigned, unsigned value, int lanes) {
    unsigned me = shim->thread.x;
    shim->words[me] = value;
    shim->barrier();
    value = shim->words[me ^ (unsigned)lanes];
    shim->barrier();
    return value;
}
static inline float __shfl_xor_sync(unsigned mask, float value, int lanes) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = __shfl_xor_sync(mask, bits, lanes);
    memcpy(&value, &bits, 4);
    return value;
}
static inline int __syncthreads_or(int any) {
    unsigned *all = shim->words;
    shim->block_barrier();
    *all = 0;
    shim->block_barrier();
    *all |= any != 0;
    shim->block_barrier();
    any = *all != 0;
    shim->block_barrier();
    return any;
}
static inline unsigned atomicCAS(unsigned *p, unsigned expected, unsigned value) {
    unsigned old = *p;
    if (old == expected) *p = value;
    return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned value) {
    unsigned old = *p;
    *p = old + value;
    return old;
}
static inline void __threadfence(void) { }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline double __longlong_as_double(long long u) {
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* ---- what a warp does together from compute capability 8.0 on; copies are done at once ---- */

#define DYNAMIC_SHARED(name) unsigned char *name = shim->dynamic
static inline unsigned shared_address(const void *p) { return (unsigned)((const unsigned char *)p - shim->dynamic); }
template <int B> static inline void copy_shared(unsigned to, const void *from, int n) {
    memset(shim->dynamic + to, 0, B);
    memcpy(shim->dynamic + to, from, (size_t)n);
}
static inline void copy16(unsigned to, const void *from, int n) { copy_shared<16>(to, from, n); }
static inline void copy_commit(void) { }
template <int N> static inline void copy_wait(void) { }

/* ldmatrix: eight lanes give the addresses of a matrix's rows of 16 bytes; half h of word i of a lane is element (row,
   column) of matrix i. */
static inline unsigned shim_half(unsigned matrix, unsigned row, unsigned column) {
    unsigned short v;
    memcpy(&v, shim->dynamic + shim->words[(shim->thread.x & ~31u) + matrix * 8 + row] + column * 2, 2);
    return v;
}
static inline void shim_matrix(unsigned *r, unsigned address, bool transposed) {
    unsigned me = shim->thread.x, l = me & 31;
    shim->words[me] = address;
    shim->barrier();
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = l / 4, column = l % 4 * 2;
        r[i] = transposed ? shim_half(i, column, row) | shim_half(i, column + 1, row) << 16
                          : shim_half(i, row, column) | shim_half(i, row, column + 1) << 16;
    }
    shim->barrier();
}
static inline void matrix4(unsigned *r, unsigned address) { shim_matrix(r, address, false); }
static inline void matrix4_transposed(unsigned *r, unsigned address) { shim_matrix(r, address, true); }

/* Element k of a line of A or B: the words of four lanes hold 16 bytes of it, `high` the next 16. */
static inline float shim_element(const unsigned *lanes, unsigned low, unsigned high, unsigned k, float) {
    return __uint_as_float(lanes[k % 4 * 6 + (k < 4 ? low : high)] & 0xffffe000u);
}
template <class T>
static inline float shim_element(const unsigned *lanes, unsigned low, unsigned high, unsigned k, T x) {
    x.b = (unsigned short)(lanes[k % 8 / 2 * 6 + (k < 8 ? low : high)] >> k % 2 * 16);
    return get(x);
}
template <class T> static inline void mma(float *c, const unsigned *a, unsigned b0, unsigned b1, T tag) {
    unsigned me = shim->thread.x, l = me & 31, given[6] = { a[0], a[1], a[2], a[3], b0, b1 };
    const unsigned *warp = shim->words + (me & ~31u) * 6;
    memcpy(shim->words + me * 6, given, sizeof given);
    shim->barrier();
    for (unsigned q = 0; q < 4; q++) {
        double sum = c[q];
        for (unsigned k = 0; k < 32 / sizeof(T); k++) {
            sum += (double)shim_element(warp + l / 4 * 24, q / 2, q / 2 + 2, k, tag) *
                   (double)shim_element(warp + (l % 4 * 2 + q % 2) * 24, 4, 5, k, tag);
        }
        c[q] = (float)sum;
    }
    shim->barrier();
}

template <class T> static inline unsigned pair(float low, float high, T tag) {
    T h = tag, l = tag;
    put(l, low);
    put(h, high);
    return (unsigned)l.b | (unsigned)h.b << 16;
}

template <class... A, size_t... I>
static inline void shim_call_with(void (*kernel)(A...), void **p, std::index_sequence<I...>) {
    kernel(*(A *)p[I]...);
}
template <class... A> static inline void shim_call(void (*kernel)(A...), void **p) {
    shim_call_with(kernel, p, std::index_sequence_for<A...>());
}
template <class... A> static constexpr int shim_params(void (*)(A...)) { return (int)sizeof...(A); }

#endif
