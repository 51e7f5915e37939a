// sgemm_fed_32x64_k8x7_20_epilogue: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct sgemm_fed_32x64_k8x7_20_epilogue_e { typedef float O; O *o; const float *bias;
  template <int V> struct in { int none; float bias[V]; };
  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {
    vload<V>(r.bias, bias + c);
  }
  template <int V> M void value(const in<V> &r, const float *from, O *y) const {
    UNROLL for (int v = 0; v < V; v++) {
      float sum = gn_add(from[v], get(r.bias[v]));
      float t0;
      { typedef float GN_T; const GN_T a = sum, b = sum, c = sum, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(a < GN_C(0) ? GN_C(0) : a); (void)b; (void)c; (void)p0; (void)p1; }
      put(y[v], t0);
    }
  }
  template <int V> M void store(i64 i, i64 c, const float *from) const { in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };
struct sgemm_fed_32x64_k8x7_20_epilogue_p { typedef sgemm_fed_32x64_k8x7_20_epilogue_e E; typedef float C; static const i64 m = 64ll, n = 256ll, k = 784ll, AM = 784ll, AK = 1ll, BK = 256ll, BN = 1ll; static const u32 FIRST = 0u, ROWS = 2u, COLS = 4u;
  enum { W = 4, SPLIT = 1, BM = 32, BW = 64, EACH = 8, LANES = 8, GROUPS = 8, KC = 7, STEP = 64, STAGES = 6, FEED_A = 2, FEED_B = 0, PA = 36, PB = 64, EARLY = 1, EVERY = 0 };
  static M int az(u32 z) { return 0; }
  static M int aw(u32 z) { return 0; }
  static M int bz(u32 z) { return 0; }
  static M int bw(u32 z) { return 0; }
  static M i64 a(u32 z) { return (0); }
  static M i64 b(u32 z) { return (0); }
};
extern "C" __global__ void __cluster_dims__(7, 1, 1) __launch_bounds__(384, 1) sgemm_fed_32x64_k8x7_20_epilogue(float *o, const float *bias, const float *a, const __grid_constant__ tmap b) {
  const sgemm_fed_32x64_k8x7_20_epilogue_e e = { o, now(bias) };
  sgemm_fed<sgemm_fed_32x64_k8x7_20_epilogue_p>(0, &b, a, 0, e);
}
