// sub_square_mean_sqrt_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct sub_square_mean_sqrt_f32_p { typedef near_sum<float> A; typedef int I; static const i64 N = 64ll, R = 768ll, PARTS = 1ll, SPAN = 768ll; enum { TX = 8, TY = 32, V = 4, LANES = 8, COLUMNS = 0 }; };
struct sub_square_mean_sqrt_f32_f { const float *a0; const float *a1; 
  M void take(sub_square_mean_sqrt_f32_p::I o, sub_square_mean_sqrt_f32_p::I r, sub_square_mean_sqrt_f32_p::A &acc) const {
    float w0[4]; const float *p0 = a0 + ((int)((u32)(o)) * 768);
    float w1[4]; const float *p1 = a1 + (0);
      vload_wide<4>(w0, p0 + ((int)((u32)(r))));
      vload_wide<4>(w1, p1 + ((int)((u32)(r))));
    float taken[4];
    UNROLL for (int v = 0; v < 4; v++) {
      float t0;
      { typedef float GN_T; const GN_T a = get(w0[v]), b = get(w1[v]), c = get(w0[v]), p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_SUB(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      float t1;
      { typedef float GN_T; const GN_T a = t0, b = t0, c = t0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t1 = (float)(GN_M_MUL(a, a)); (void)b; (void)c; (void)p0; (void)p1; }
      taken[v] = t1;
    }
    take_all<4>(acc, taken, r);
  }
};
struct sub_square_mean_sqrt_f32_g { float *o2; 
  M void end(sub_square_mean_sqrt_f32_p::I i, const sub_square_mean_sqrt_f32_p::A &a) const {
    const float s1 = a.total() / (float)768ll;
      float t200;
      { typedef float GN_T; const GN_T a = s1, b = s1, c = s1, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t200 = (float)(GN_M_SQRT(a)); (void)b; (void)c; (void)p0; (void)p1; }
    put(o2[i], t200);
  }
};
extern "C" __global__ void __launch_bounds__(256) sub_square_mean_sqrt_f32(const float *a0, const float *a1, float *o2) {
  const sub_square_mean_sqrt_f32_f f = { a0, a1 };
  const sub_square_mean_sqrt_f32_g g = { o2 };
  await_previous();
  let_next_start();
  reduce<sub_square_mean_sqrt_f32_p>(f, g, 0);
}
