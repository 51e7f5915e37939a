// loop_f32_add_gelu_mul: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) loop_f32_add_gelu_mul(float *o, u32 *err, const float *a0, const float *a1, const float s2) {
  let_next_start();
  typedef u32 I;
  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < 4096; g += (I)gridDim.x * 256) {
    const I i = g * 4;
    await_previous();
    float x0[4];
    vload<4>(x0, a0 + ((int)((u32)(i))));
    float x1[4];
    vload<4>(x1, a1 + ((int)((u32)(i) % 256u)));
    const float x2 = get(s2);
    float y[4];
    UNROLL for (int v = 0; v < 4; v++) {
      float t0;
      { typedef float GN_T; const GN_T a = get(x0[v]), b = get(x1[v]), c = get(x0[v]), p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_ADD(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      float t1;
      { typedef float GN_T; const GN_T a = t0, b = t0, c = t0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t1 = (float)(GN_M_GELU(a)); (void)b; (void)c; (void)p0; (void)p1; }
      float t2;
      { typedef float GN_T; const GN_T a = t1, b = x2, c = t1, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t2 = (float)(GN_M_MUL(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      put(y[v], t2);
    }
    vstore<4>(o + i, y);
  }
}
