// matmul_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct matmul_f32_e { typedef float O; O *o; const float *bias;
  template <int V> struct in { int none; float bias[V]; };
  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {
    vconst<V>(r.bias, bias + c);
  }
  template <int V> M void value(const in<V> &r, const float *from, O *y) const {
    UNROLL for (int v = 0; v < V; v++) {
      float sum = gn_add(from[v], get(r.bias[v]));
      put(y[v], sum);
    }
  }
  template <int V> M void store(i64 i, i64 c, const float *from) const { in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };
struct matmul_f32_p { typedef float T; typedef float C; static const i64 m = 33ll, k = 16ll, n = 40ll, AM = 16ll, AK = 1ll, BK = 40ll, BN = 1ll;
  typedef matmul_f32_e E; enum { TILES = 1, ROWS = 1, COLS = 1, V = 1, TX = 1, W = 4, BM = 64, BW = 64, SPLIT = 1 };
  static const i64 SPAN = 32ll;
  static M i64 a(u32 z) { return (0); }
  static M i64 b(u32 z) { return (0); }
};
extern "C" __global__ void __launch_bounds__(256) matmul_f32(float *__restrict__ o, const float *__restrict__ bias, const float *__restrict__ a, const float *__restrict__ b) {
  const matmul_f32_e e = { o, bias };
  matmul<matmul_f32_p>(a, b, e, 0);
}
