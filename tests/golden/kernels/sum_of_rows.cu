// sum_f32: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct sum_f32_p { typedef near_sum<float> A; typedef int I; static const i64 N = 64ll, R = 4096ll, PARTS = 1ll, SPAN = 4096ll; enum { TX = 1, TY = 256, V = 4, LANES = 1, COLUMNS = 0 }; };
struct sum_f32_f { const float *a0; 
  M void take(sum_f32_p::I o, sum_f32_p::I r, sum_f32_p::A &acc) const {
    float w0[4]; const float *p0 = a0 + ((int)((u32)(o)) * 4096);
      vload_wide<4>(w0, p0 + ((int)((u32)(r))));
    float taken[4];
    UNROLL for (int v = 0; v < 4; v++) {
      taken[v] = get(w0[v]);
    }
    take_all<4>(acc, taken, r);
  }
};
struct sum_f32_g { float *o0; 
  M void end(sum_f32_p::I i, const sum_f32_p::A &a) const {
    const float s0 = a.total();
    put(o0[i], s0);
  }
};
extern "C" __global__ void __launch_bounds__(256) sum_f32(const float *a0, float *o0) {
  const sum_f32_f f = { a0 };
  const sum_f32_g g = { o0 };
  await_previous();
  let_next_start();
  reduce<sum_f32_p>(f, g, 0);
}
