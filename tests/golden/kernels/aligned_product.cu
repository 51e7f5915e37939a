// aligned: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) aligned(const u16 *a, u16 *o) {
  let_next_start();
  await_previous();
  typedef u32 I;
  for (I g = (I)blockIdx.x * 256 + threadIdx.x; g < 501000; g += (I)gridDim.x * 256) {
    const I i = g * 2;
    u16 x[2];
    vload<2>(x, a + ((int)((u32)(i))));
    vstore<2>(o + ((int)((u32)(i) / 1002u) * 1008 + (int)((u32)(i) % 1002u)), x);
  }
}
// wgmma_bf16_64x128_nn: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct wgmma_bf16_64x128_nn_e { typedef bf16 O; O *o;
  template <int V> struct in { int none; };
  template <int V> M void fetch(i64 i, i64 c, in<V> &r) const {
  }
  template <int V> M void value(const in<V> &r, const float *from, O *y) const {
    UNROLL for (int v = 0; v < V; v++) {
      float sum = from[v];
      put(y[v], sum);
    }
  }
  template <int V> M void store(i64 i, i64 c, const float *from) const { in<V> r; O y[V]; fetch<V>(i, c, r); value<V>(r, from, y); vstore<V>(o + i, y); } };
D void wgmma_bf16_64x128_nn_mma(float *d, u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 1;"
    : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63]) : "l"(a), "l"(b));
}
struct wgmma_bf16_64x128_nn_p { typedef wgmma_bf16_64x128_nn_e E; typedef float C; static const i64 m = 1000ll, n = 1000ll, k = 1002ll; static const u32 TOTAL = 128u, ROWS = 16u, COLS = 8u;
  enum { W = 8, SPLIT = 1, BM = 64, BW = 128, STAGES = 4, KC = 1, AT = 0, BT = 1, REGS = 0, TURN = 0, BULK = 1, BUFFERS = 2, STEP = 64, EARLY_A = 0, EARLY_B = 1, NEXT = 1 };
  static M void mma(float *d, u64 a, u64 b) { wgmma_bf16_64x128_nn_mma(d, a, b); }
  static M int az(u32 z) { return 0; }
  static M int aw(u32 z) { return 0; }
  static M int bz(u32 z) { return 0; }
  static M int bw(u32 z) { return 0; }
};
extern "C" __global__ void __launch_bounds__(160, 2) wgmma_bf16_64x128_nn(bf16 *o, const __grid_constant__ tmap a, const __grid_constant__ tmap b, const __grid_constant__ tmap c) {
  const wgmma_bf16_64x128_nn_e e = { o };
  wgmma_matmul<wgmma_bf16_64x128_nn_p>(&a, &b, &c, e);
}
