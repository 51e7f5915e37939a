// sum_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct sum_f32_p { typedef sum_of<float> A; typedef float O; typedef int I; static const i64 N = 64ll, R = 4096ll, PARTS = 1ll, SPAN = 4096ll;
  enum { TX = 1, TY = 256, V = 4, COLUMNS = 0 };
  static M void end(const A &a, O &out) { put(out, a.v); }
};
struct sum_f32_f { const float *a;
  M void take(sum_f32_p::I o, sum_f32_p::I r, sum_f32_p::A &acc) const { float x[4]; vload<4>(x, a + ((int)((u32)(o)) * 4096) + ((int)((u32)(r)))); UNROLL for (int v = 0; v < 4; v++) acc.take(get(x[v]), r + v); }
};
extern "C" __global__ void __launch_bounds__(256) sum_f32(const float *a, float *o) {
  await_previous();
  sum_f32_f f = { a };
  reduce<sum_f32_p>(f, 0, o);
}
