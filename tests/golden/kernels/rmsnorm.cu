// rows_f32_square_mean_add_rsqrt_mul_mul: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) rows_f32_square_mean_add_rsqrt_mul_mul(const float *a0, const float *a1, float *o3) {
  await_previous();
  typedef int I;
  const int ty = threadIdx.x % 256;
  const i64 row = (i64)blockIdx.x * 1 + threadIdx.x / 256;
  const bool live = row < 64ll;
  const I o = live ? (I)row : 0;
  const float *p0 = a0 + ((int)((u32)(o)) * 768);
  float w0[1][4];
  const float *p1 = a1 + (0);
  float w1[1][4];
  float *u3 = o3 + ((int)((u32)(o)) * 768);
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 256 + ty) * 4;
      if (r >= 768) continue;
      vload_wide<4>(w0[k], p0 + ((int)((u32)(r))));
      vload_wide<4>(w1[k], p1 + ((int)((u32)(r))));
  }
    near_sum<float> q1[1];
    UNROLL for (int i = 0; i < 1; i++) q1[i].init();
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 256 + ty) * 4;
      if (r >= 768) continue;
      float taken1[4];
      UNROLL for (int v = 0; v < 4; v++) {
      float t0;
      { typedef float GN_T; const GN_T a = get(w0[k][v]), b = get(w0[k][v]), c = get(w0[k][v]), p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_MUL(a, a)); (void)b; (void)c; (void)p0; (void)p1; }
      taken1[v] = t0;
      }
      take_all<4>(q1[0], taken1, r);
  }
    const auto qs1 = joined<256, 1, false>(q1);
    const float s1 = qs1.total() / (float)768ll;
      float t200;
      { typedef float GN_T; const GN_T a = s1, b = cast_to<float>::of(gn_f64(0x3ee4f8b588e368f1ull)), c = s1, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t200 = (float)(GN_M_ADD(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      float t201;
      { typedef float GN_T; const GN_T a = t200, b = t200, c = t200, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t201 = (float)(GN_C(1) / GN_M_SQRT(a)); (void)b; (void)c; (void)p0; (void)p1; }
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 256 + ty) * 4;
      if (r >= 768) continue;
      float y3[4];
      UNROLL for (int v = 0; v < 4; v++) {
      float t300;
      { typedef float GN_T; const GN_T a = get(w0[k][v]), b = t201, c = get(w0[k][v]), p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t300 = (float)(GN_M_MUL(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      float t301;
      { typedef float GN_T; const GN_T a = t300, b = get(w1[k][v]), c = t300, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t301 = (float)(GN_M_MUL(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      put_exact(y3[v], t301);
      }
      if (live) vstore<4>(u3 + ((int)((u32)(r))), y3);
  }
}
