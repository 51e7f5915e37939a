/* What generated kernels need to be compiled by a host's C++ compiler: the built-in names of CUDA C++. A program made with this
 * is run by cuda_shim.c, which sets `shim` before each thread of a block continues. */
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
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static      /* one block runs at a time */

struct shim_dim { unsigned x, y, z; };
struct shim_state {
    struct shim_dim thread, block, grid;
    unsigned words[1024];      /* exchanged by shuffles, by thread */
    void (*barrier)(void);
};
static struct shim_state *shim;
extern "C" void shim_init(struct shim_state *state) { shim = state; }

#define threadIdx (shim->thread)
#define blockIdx (shim->block)
#define gridDim (shim->grid)

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };

static inline void __syncthreads(void) { shim->barrier(); }
/* All threads of the block come here together, so that the block's barrier can be the warp's. */
static inline unsigned __shfl_xor_sync(unsigned, unsigned value, int lanes)
{
    unsigned me = shim->thread.x;
    shim->words[me] = value;
    shim->barrier();
    value = shim->words[me ^ (unsigned)lanes];
    shim->barrier();
    return value;
}
static inline unsigned atomicCAS(unsigned *p, unsigned expected, unsigned value)
{
    unsigned old = *p;
    if (old == expected) {
        *p = value;
    }
    return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned value) { unsigned old = *p; *p = old + value; return old; }
static inline void __threadfence(void) {}
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline double __longlong_as_double(long long u) { double x; memcpy(&x, &u, 8); return x; }

template <class... A, size_t... I> static inline void shim_call_with(void (*kernel)(A...), void **p, std::index_sequence<I...>) { kernel(*(A *)p[I]...); }
template <class... A> static inline void shim_call(void (*kernel)(A...), void **p) { shim_call_with(kernel, p, std::index_sequence_for<A...>()); }

#endif
