// tensor_matmul_bf16_64x16: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct tensor_matmul_bf16_64x16_e { typedef bf16 O; O *o; const bf16 *bias;
  template <int V> struct in { int none; bf16 bias[V]; };
  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {
    vload<V>(r.bias, bias + c);
  }
  template <int V> M void value(const in<V> &r, const float *from, O *y) const {
    UNROLL for (int v = 0; v < V; v++) {
      float sum = gn_add(from[v], get(r.bias[v]));
      put(y[v], sum);
    }
  }
  template <int V> M void store(i64 i, i64 c, const float *from) const { in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };
struct tensor_matmul_bf16_64x16_p { typedef bf16 T; typedef float C; static const i64 m = 64ll, k = 256ll, n = 10ll, AM = 256ll, AK = 1ll, BK = 10ll, BN = 1ll;
  typedef tensor_matmul_bf16_64x16_e E; enum { TILES = 1, ROWS = 1, COLS = 1, V = 1, TX = 1, W = 2, BM = 64, BW = 16, SPLIT = 1 };
  static const i64 SPAN = 256ll;
  static M i64 a(u32 z) { return (0); }
  static M i64 b(u32 z) { return (0); }
  enum { FULL = 0, STEP = 64, WM = 4, WN = 1, VA = 8, VB = 2, KA = 1, KB = 0, EARLY = 1 };
};
extern "C" __global__ void __launch_bounds__(256, 2) tensor_matmul_bf16_64x16(bf16 *o, const bf16 *bias, const bf16 *a, const bf16 *b) {
  const tensor_matmul_bf16_64x16_e e = { o, now(bias) };
  tensor_matmul<tensor_matmul_bf16_64x16_p>(a, b, e, 0);
}
