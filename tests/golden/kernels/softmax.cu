// softmax_bf16: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct softmax_bf16_p { typedef bf16 T; typedef float C; typedef int J; static const i64 N = 64ll, IN = 1ll, OUT = 1ll; enum { n = 1024, K = 4, V = 8, TX = 8, TY = 32, LANES = 8, WIDE = 1 };
  static M i64 in(i64 row) { return ((int)((u32)(row)) * 1024); }
  static M i64 out(i64 row) { return ((int)((u32)(row)) * 1024); }
  enum { LOG = 0 };
};
extern "C" __global__ void __launch_bounds__(256) softmax_bf16(const bf16 *a, bf16 *o) {
  await_previous();
  softmax_packed<softmax_bf16_p>(a, o);
}
