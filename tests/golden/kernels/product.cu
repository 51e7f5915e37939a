// matmul_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct matmul_f32_p { typedef float T; typedef float C; static const i64 m = 33ll, k = 65ll, n = 40ll, AM = 65ll, AK = 1ll, BK = 40ll, BN = 1ll, BIAS = 1ll;
  enum { TILES = 1, ROWS = 1, COLS = 1, V = 1, TX = 1, HAS_BIAS = 1, BM = 64, BW = 64, SPLIT = 1, FULL = 0 };
  static const i64 SPAN = 65ll;
  static M i64 a(u32 z) { return (0); }
  static M i64 b(u32 z) { return (0); }
};
extern "C" __global__ void __launch_bounds__(256) matmul_f32(const float *__restrict__ a, const float *__restrict__ b, const float *__restrict__ bias, float *__restrict__ o) {
  matmul<matmul_f32_p>(a, b, bias, o);
}
