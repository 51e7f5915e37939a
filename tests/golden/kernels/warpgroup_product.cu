// wgmma_bf16_64x64_k4_nn_epilogue: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct wgmma_bf16_64x64_k4_nn_epilogue_e { typedef bf16 O; O *o; const bf16 *bias; const bf16 *a1;
  template <int V> struct in { int none; bf16 bias[V]; bf16 w1[V]; };
  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {
    vload<V>(r.bias, bias + c);
    vload<V>(r.w1, a1 + ((int)((u32)(i))));
  }
  template <int V> M void value(const in<V> &r, const float *from, O *y) const {
    UNROLL for (int v = 0; v < V; v++) {
      float sum = gn_add(from[v], get(r.bias[v]));
      sum = cast_to<bf16>::of(sum);
      float t0;
      { typedef float GN_T; const GN_T a = sum, b = sum, c = sum, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_GELU(a)); (void)b; (void)c; (void)p0; (void)p1; }
      t0 = cast_to<bf16>::of(t0);
      float t1;
      { typedef float GN_T; const GN_T a = t0, b = get(r.w1[v]), c = t0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t1 = (float)(GN_M_ADD(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
      put(y[v], t1);
    }
  }
  template <int V> M void store(i64 i, i64 c, const float *from) const { in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };
D void wgmma_bf16_64x64_k4_nn_epilogue_mma(float *d, u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 1;"
    : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "l"(a), "l"(b));
}
struct wgmma_bf16_64x64_k4_nn_epilogue_p { typedef wgmma_bf16_64x64_k4_nn_epilogue_e E; typedef float C; static const i64 m = 64ll, n = 512ll, k = 1024ll; static const u32 TOTAL = 8u, ROWS = 1u, COLS = 8u;
  enum { W = 8, SPLIT = 1, BM = 64, BW = 64, STAGES = 6, KC = 4, AT = 0, BT = 1, REGS = 0, TURN = 0, BULK = 0, BUFFERS = 2, STEP = 64, EARLY_A = 1, EARLY_B = 1, NEXT = 1 };
  static M void mma(float *d, u64 a, u64 b) { wgmma_bf16_64x64_k4_nn_epilogue_mma(d, a, b); }
  static M int az(u32 z) { return 0; }
  static M int aw(u32 z) { return 0; }
  static M int bz(u32 z) { return 0; }
  static M int bw(u32 z) { return 0; }
};
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(160, 2) wgmma_bf16_64x64_k4_nn_epilogue(bf16 *o, const bf16 *bias, const bf16 *a1, const __grid_constant__ tmap a, const __grid_constant__ tmap b) {
  const wgmma_bf16_64x64_k4_nn_epilogue_e e = { o, now(bias), now(a1) };
  wgmma_matmul<wgmma_bf16_64x64_k4_nn_epilogue_p>(&a, &b, 0, e);
}
