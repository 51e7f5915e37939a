// attention_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
typedef no_loop attention_f32_x;
struct attention_f32_p { typedef float T; typedef float C; typedef float MT; typedef int L; typedef attention_f32_x X; static const i64 H = 4ll, G = 2ll, TQ = 20ll, S = 20ll, SPAN = 20ll;
  enum { DK = 24, E = 24, MASK = 0, LENGTH = 0, CAUSAL = 1, WRITTEN = 0, PARTS = 1, VK = 4 };
  static const i64 QB = 1920ll, QH = 480ll, QT = 24ll, QD = 1ll;
  static const i64 KB = 960ll, KH = 480ll, KS = 24ll, KD = 1ll;
  static const i64 VB = 960ll, VH = 480ll, VS = 24ll, VE = 1ll;
  static const i64 MB = 0ll, MH = 0ll, MQ = 0ll, MS = 0ll;
  static M i64 row(i64 y, i64 t) { return (y * TQ + t) * E; }
  static M C scale() { return (C)gn_f64(0x3fca20bd700c2c3full); }
};
extern "C" __global__ void __launch_bounds__(256) attention_f32(const float *q, const float *k, const float *v, float *o, u32 *err, u32 node) {
  const attention_f32_x x = no_loop();
  await_previous();
  attention<attention_f32_p>(q, k, v, (const attention_f32_p::MT *)0, (const attention_f32_p::L *)0, x, o, 0, err, node);
}
