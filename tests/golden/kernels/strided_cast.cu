// loop_i32_cast: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) loop_i32_cast(int *o, u32 *err, const bf16 *a0) {
  let_next_start();
  typedef u32 I;
  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < 768; g += (I)gridDim.x * 256) {
    const I i = g * 4;
    await_previous();
    bf16 x0[4];
    UNROLL for (int v = 0; v < 4; v++) x0[v] = a0[((int)((u32)(i + v) / 32u) + (int)((u32)(i + v) % 32u) * 192)];
    int y[4];
    UNROLL for (int v = 0; v < 4; v++) {
      const int t0 = cast_to<int>::of(get(x0[v]));
      put(y[v], t0);
    }
    vstore<4>(o + i, y);
  }
}
