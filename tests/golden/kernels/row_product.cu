// norm_vector_times_bf16_loop: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct norm_vector_times_bf16_loop_p { typedef bf16 T; enum { k = 256, V = 8, S = 1, TX = 1, R = 32, EARLY = 1, NORM = 1, HAS_GAIN = 1, HAS_SHIFT = 1, BEST = 0, LANES = 256, FULL = 1, MATS = 1, ROWS_WITHIN = 0, LOADS = 32, ONCE = 0 };
  static M double eps() { return gn_f64(0x3ee4f8b588e368f1ull); }
};
struct norm_vector_times_bf16_loop_e0 {
  const bf16 *bias;
  bf16 *o;
  float b0, b1;
  M void early(int i) { b0 = get(bias[i]); b1 = 0.f; }
  M void load(int i) { }
  M float value(float y) const { return cast_to<bf16>::of(y + b0); }
  M void end(int i, float y, float z) const {
    y = value(y);
    z = cast_to<bf16>::of(z + b1);
      float t0;
      { typedef float GN_T; const GN_T a = y, b = y, c = y, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_GELU(a)); (void)b; (void)c; (void)p0; (void)p1; }
    put(o[i], t0);
  }
};
typedef norm_vector_times_bf16_loop_e0 norm_vector_times_bf16_loop_e;
extern "C" __global__ void __launch_bounds__(256) norm_vector_times_bf16_loop(const bf16 *e0bias, bf16 *e0o, const bf16 *a, const bf16 *b0_0, const bf16 *gain, const bf16 *shift) {
  norm_vector_times_bf16_loop_e e = { e0bias, e0o, 0, 0 };
  const vector_as_it_lies norm = {};
  vector_of<norm_vector_times_bf16_loop_p::T> m = { { b0_0, 0 }, 512, 512ll, (int)blockIdx.x - 0, 64 };
  vector_times<norm_vector_times_bf16_loop_p>(a, norm, m, gain, shift, e, 0, 0, 0);
}
// vector_dot_bf16_argmax: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct vector_dot_bf16_argmax_p { typedef bf16 T; enum { k = 512, V = 8, S = 1, TX = 1, R = 1, EARLY = 1, NORM = 0, HAS_GAIN = 0, HAS_SHIFT = 0, BEST = 1, LANES = 256, FULL = 1, MATS = 1, ROWS_WITHIN = 0, LOADS = 16, ONCE = 1 };
  static M double eps() { return gn_f64(0x0ull); }
};
struct vector_dot_bf16_argmax_e0 {
  float b0, b1;
  M void early(int i) { b0 = 0.f; b1 = 0.f; }
  M void load(int i) { }
  M float value(float y) const { return cast_to<bf16>::of(y + b0); }
  M void end(int, float, float) const {}
};
typedef vector_dot_bf16_argmax_e0 vector_dot_bf16_argmax_e;
extern "C" __global__ void __launch_bounds__(256, 2) vector_dot_bf16_argmax(const bf16 *a, const bf16 *b0_0, void *parts, u32 *done, i64 *best) {
  vector_dot_bf16_argmax_e e = { 0, 0 };
  const vector_as_it_lies norm = {};
  vector_of<vector_dot_bf16_argmax_p::T> m = { { b0_0, 0 }, 600, 512ll, (int)blockIdx.x - 0, 75 };
  vector_dot<vector_dot_bf16_argmax_p>(a, norm, m, 0, 0, e, (best_of<float, false> *)parts, done, best);
}
