// norm_vector_times_bf16_loop: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct norm_vector_times_bf16_loop_p { typedef bf16 T; enum { k = 256, n = 512, V = 8, S = 1, TX = 1, R = 32, EARLY = 1, NORM = 1, HAS_GAIN = 1, HAS_SHIFT = 1, BEST = 0, NEXT = 2, LANES = 256 };
  static const i64 BK = 512ll, BN = 512ll;
  static M double eps() { return gn_f64(0x3ee4f8b588e368f1ull); }
};
struct norm_vector_times_bf16_loop_e {
  const bf16 *bias;
  bf16 *o;
  float b;
  M void early(int i) { b = get(bias[i]); }
  M void load(int i) { }
  M float value(float y) const { return cast_to<bf16>::of(y + b); }
  M void end(int i, float y) const {
    y = value(y);
      float t0;
      { typedef float GN_T; const GN_T a = y, b = y, c = y, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_NORMAL(a, a)); (void)b; (void)c; (void)p0; (void)p1; }
    put(o[i], t0);
  }
};
extern "C" __global__ void __launch_bounds__(256) norm_vector_times_bf16_loop(const bf16 *bias, bf16 *o, const bf16 *a, const bf16 *b, const bf16 *gain, const bf16 *shift) {
  norm_vector_times_bf16_loop_e e = { bias, o };
  vector_times<norm_vector_times_bf16_loop_p>(a, b, gain, shift, e, 0, 0, 0);
}
// vector_dot_bf16_argmax: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct vector_dot_bf16_argmax_p { typedef bf16 T; enum { k = 512, n = 600, V = 8, S = 1, TX = 1, R = 1, EARLY = 1, NORM = 0, HAS_GAIN = 0, HAS_SHIFT = 0, BEST = 1, NEXT = 2, LANES = 256 };
  static const i64 BK = 512ll, BN = 512ll;
  static M double eps() { return gn_f64(0x0ull); }
};
struct vector_dot_bf16_argmax_e {
  float b;
  M void early(int i) { b = 0.f; }
  M void load(int i) { }
  M float value(float y) const { return cast_to<bf16>::of(y + b); }
  M void end(int, float) const {}
};
extern "C" __global__ void __launch_bounds__(256) vector_dot_bf16_argmax(const bf16 *a, const bf16 *b, void *parts, u32 *done, i64 *best) {
  vector_dot_bf16_argmax_e e = {  };
  vector_dot<vector_dot_bf16_argmax_p>(a, b, 0, 0, e, (best_of<float, false> *)parts, done, best);
}
