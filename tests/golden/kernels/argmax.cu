// argmax_bf16: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct argmax_bf16_p { typedef best_of<float, false> A; typedef int I; static const i64 N = 4ll, R = 1000ll, PARTS = 1ll, SPAN = 1000ll; enum { TX = 8, TY = 32, V = 8, LANES = 1, COLUMNS = 0 }; };
struct argmax_bf16_f { const bf16 *a0; 
  M void take(argmax_bf16_p::I o, argmax_bf16_p::I r, argmax_bf16_p::A &acc) const {
    bf16 w0[8]; const bf16 *p0 = a0 + ((int)((u32)(o)) * 1000);
      vload_wide<8>(w0, p0 + ((int)((u32)(r))));
    float taken[8];
    UNROLL for (int v = 0; v < 8; v++) {
      taken[v] = get(w0[v]);
    }
    take_all<8>(acc, taken, r);
  }
};
struct argmax_bf16_g { i64 *o0; 
  M void end(argmax_bf16_p::I i, const argmax_bf16_p::A &a) const {
    const i64 s0 = cast_to<i64>::of((i64)(a.at));
    put(o0[i], s0);
  }
};
extern "C" __global__ void __launch_bounds__(256) argmax_bf16(const bf16 *a0, i64 *o0) {
  const argmax_bf16_f f = { a0 };
  const argmax_bf16_g g = { o0 };
  await_previous();
  let_next_start();
  reduce<argmax_bf16_p>(f, g, 0);
}
