// embedding: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) embedding(const u16 *__restrict__ a, const i64 *__restrict__ ids, u16 *__restrict__ o, u32 *__restrict__ err, u32 node) {
  for (u64 g = (u64)blockIdx.x * 256 + threadIdx.x; g < 40ull; g += (u64)gridDim.x * 256) {
    const u64 row = g / 8u;
    const int col = (int)(g % 8u) * 8;
    const i64 id = ids[((int)((u32)(row)))];
    if (id < 0 || id >= 100ll) { if (col == 0) fault(err, OUT_OF_RANGE, node, id, 100ll); continue; }
    u16 v[8];
    vload<8>(v, a + id * 64ll + (i64)col * 1ll);
    vstore<8>(o + row * 64ull + col, v);
  }
}
