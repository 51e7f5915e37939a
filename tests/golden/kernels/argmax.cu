// argmax_bf16: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct argmax_bf16_p { typedef best_of<float, false> A; typedef i64 O; typedef int I; static const i64 N = 4ll, R = 1000ll, PARTS = 1ll, SPAN = 1000ll;
  enum { TX = 8, TY = 32, V = 8, COLUMNS = 0 };
  static M void end(const A &a, O &out) { out = a.at; }
};
struct argmax_bf16_f { const bf16 *a;
  M void take(argmax_bf16_p::I o, argmax_bf16_p::I r, argmax_bf16_p::A &acc) const { bf16 x[8]; vload<8>(x, a + ((int)((u32)(o)) * 1000) + ((int)((u32)(r)))); UNROLL for (int v = 0; v < 8; v++) acc.take(get(x[v]), r + v); }
};
extern "C" __global__ void __launch_bounds__(256) argmax_bf16(const bf16 *a, i64 *o) {
  await_previous();
  argmax_bf16_f f = { a };
  reduce<argmax_bf16_p>(f, 0, o);
}
