// wgmma_attention_bf16_64: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
D void wgmma_attention_bf16_64_score(float *d, u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
    : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63]) : "l"(a), "l"(b));
}
D void wgmma_attention_bf16_64_value(float *d, const u32 *a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
    : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
typedef no_loop wgmma_attention_bf16_64_x;
struct wgmma_attention_bf16_64_p { typedef bf16 T; typedef float C; typedef bf16 MT; typedef int L; typedef wgmma_attention_bf16_64_x X; static const i64 H = 4ll, G = 2ll, TQ = 128ll, S = 128ll, SPAN = 128ll;
  enum { DK = 64, E = 64, MASK = 0, LENGTH = 0, CAUSAL = 1, WRITTEN = 0, PARTS = 1, VK = 8 };
  static const i64 QB = 32768ll, QH = 8192ll, QT = 64ll, QD = 1ll;
  static const i64 KB = 16384ll, KH = 8192ll, KS = 64ll, KD = 1ll;
  static const i64 VB = 16384ll, VH = 8192ll, VS = 64ll, VE = 1ll;
  static const i64 MB = 0ll, MH = 0ll, MQ = 0ll, MS = 0ll;
  static M i64 row(i64 y, i64 t) { return (y * TQ + t) * E; }
  static M C scale() { return (C)gn_f64(0x3fc0000000000000ull); }
};
struct wgmma_attention_bf16_64_q : wgmma_attention_bf16_64_p { enum { SEVERAL = 0, TURN = 0, SPLIT = 0 }; static const i64 HEADS = 4ll; static M void score(float *s, u64 a, u64 b) { wgmma_attention_bf16_64_score(s, a, b); } static M void value(float *o, const u32 *a, u64 b) { wgmma_attention_bf16_64_value(o, a, b); } };
extern "C" __global__ void __launch_bounds__(384, 1) wgmma_attention_bf16_64(const __grid_constant__ tmap q, const __grid_constant__ tmap k, const __grid_constant__ tmap v, bf16 *o, u32 *err, u32 node) {
  const wgmma_attention_bf16_64_x x = no_loop();
  wgmma_attention<wgmma_attention_bf16_64_q>(&q, &k, &v, (const wgmma_attention_bf16_64_p::L *)0, x, o, err, node);
}
