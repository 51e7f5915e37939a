// rows_f32_layernorm: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) rows_f32_layernorm(const float *a0, const float *a1, const float *a2, float *o0) {
  await_previous();
  typedef int I;
  const int ty = threadIdx.x % 128;
  const i64 row = (i64)blockIdx.x * 2 + threadIdx.x / 128;
  const bool live = row < 64ll;
  const I o = live ? (I)row : 0;
  const float *p0 = a0 + ((int)((u32)(o)) * 768);
  float w0[1][8];
  const float *p1 = a1 + (0);
  float w1[1][8];
  const float *p2 = a2 + (0);
  float w2[1][8];
  float *u0 = o0 + ((int)((u32)(o)) * 768);
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 128 + ty) * 8;
      if (r >= 768) continue;
      vload<8>(w0[k], p0 + ((int)((u32)(r))));
      vload<8>(w1[k], p1 + ((int)((u32)(r))));
      vload<8>(w2[k], p2 + ((int)((u32)(r))));
  }
    sum_of<float> q0[2];
    UNROLL for (int i = 0; i < 2; i++) q0[i].init();
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 128 + ty) * 8;
      if (r >= 768) continue;
      float taken0[8];
      UNROLL for (int v = 0; v < 8; v++) {
      taken0[v] = get(w0[k][v]);
      }
      take_all<8>(q0[k % 2], taken0, r);
  }
    const auto qs0 = joined<128, 2, false>(q0);
    const float mean0 = qs0.total() / (float)768ll;
    sum_of<float> z0[2];
    UNROLL for (int i = 0; i < 2; i++) z0[i].init();
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 128 + ty) * 8;
      if (r >= 768) continue;
      UNROLL for (int v = 0; v < 8; v++) {
      z0[k % 2].square(get(w0[k][v]) - mean0);
      }
  }
    const auto zs0 = joined<128, 2, false>(z0);
    const float scale0 = (float)1 / gn_sqrt(zs0.total() / (float)768ll + (float)gn_f64(0x3ee4f8b588e368f1ull));
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 128 + ty) * 8;
      if (r >= 768) continue;
      float y0[8];
      UNROLL for (int v = 0; v < 8; v++) {
      const float v0 = (get(w0[k][v]) - mean0) * scale0 * get(w1[k][v]) + get(w2[k][v]);
      put(y0[v], v0);
      }
      if (live) vstore<8>(u0 + ((int)((u32)(r))), y0);
  }
}
