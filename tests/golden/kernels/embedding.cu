// embedding: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) embedding(const u16 *a, const i64 *ids, u16 *o, u32 *err, u32 node) {
  await_previous();
  let_next_start();
  typedef u32 I;
  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < 40; g += (I)gridDim.x * 256) {
    const I row = g / 8u, col = g % 8u * 8u;
    const i64 id = ids[((int)((u32)(row)))];
    if (id < 0 || id >= 100ll) { if (col == 0) fault(err, OUT_OF_RANGE, node, id, 100ll); continue; }
    u16 v[8];
    vload<8>(v, a + (id * 64ll + (i64)col * 1ll));
    vstore<8>(o + (row * 64u + col), v);
  }
}
