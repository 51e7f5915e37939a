// layernorm_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct layernorm_f32_p { typedef float T; typedef float C; typedef int J; static const i64 N = 64ll, IN = 1ll, OUT = 1ll; enum { n = 768, K = 6, V = 4, TX = 8, TY = 32, LANES = 8, WIDE = 1 };
  static M i64 in(i64 row) { return ((int)((u32)(row)) * 768); }
  static M i64 out(i64 row) { return ((int)((u32)(row)) * 768); }
  enum { HAS_GAIN = 1, HAS_BIAS = 1, FIRST = 1 };
  static M double eps() { return gn_f64(0x3ee4f8b588e368f1ull); }
};
extern "C" __global__ void __launch_bounds__(256) layernorm_f32(const float *a, const float *gain, const float *bias, float *o) {
  layernorm_packed<layernorm_f32_p>(a, gain, bias, o);
}
