// rows_vector_pair_few_times_bf16_loop: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct rows_vector_pair_few_times_bf16_loop_p { typedef bf16 T; enum { m = 3, k = 256, TILES = 2, S = 2, G = 1, MATS = 2, DOT = 0, WIDE = 1, WIDE_X = 1, WITHIN = 1, EARLY = 1, NEXT = 2, ROW_BYTES = 1536 };
  static const i64 AM = 256ll, AK = 1ll, BK = 512ll, BN = 1ll;
};
struct rows_vector_pair_few_times_bf16_loop_e0 {
  const bf16 *bias;
  bf16 *o;
  float b0, b1;
  M void early(int i) { b0 = get(bias[i]); b1 = 0.f; }
  M void load(int i) { }
  M float value(float y) const { return cast_to<bf16>::of(y + b0); }
  M void end(int i, float y, float z) const {
    y = value(y);
    z = cast_to<bf16>::of(z + b1);
      float t0;
      { typedef float GN_T; const GN_T a = z, b = z, c = z, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_LOGISTIC(a, a)); (void)b; (void)c; (void)p0; (void)p1; }
      t0 = cast_to<bf16>::of(t0);
      float t1;
      { typedef float GN_T; const GN_T a = t0, b = y, c = t0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t1 = (float)(GN_M_MUL(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
    put(o[i], t1);
  }
};
typedef rows_vector_pair_few_times_bf16_loop_e0 rows_vector_pair_few_times_bf16_loop_e;
struct rows_vector_pair_few_times_bf16_loop_n {
  const bf16 *a0;
  const bf16 *a1;
  M void ask() const { ask_for(a0, 512); ask_for(a1, 512); }
  M void run(bf16 *to, i64 first, int count, bool own) const {
  typedef int I;
  const int ty = threadIdx.x % 32;
  for (int from_row = 0; from_row < count; from_row += 8) {
  const int of_row = from_row + threadIdx.x / 32;
  const bool live = of_row < count, stores = live && own;
  const i64 row = first + (live ? of_row : 0);
  const I o = (I)row;
  (void)stores;
  const bf16 *p0 = a0 + ((int)((u32)(o)) * 256);
  bf16 w0[1][8];
  const bf16 *p1 = a1 + (0);
  bf16 w1[1][8];
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 32 + ty) * 8;
      vload_wide<8>(w0[k], p0 + ((int)((u32)(r))));
      vload_wide<8>(w1[k], p1 + ((int)((u32)(r))));
  }
    sum_of<float> q0[1];
    UNROLL for (int i = 0; i < 1; i++) q0[i].init();
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 32 + ty) * 8;
      float taken0[8];
      UNROLL for (int v = 0; v < 8; v++) {
      taken0[v] = get(w0[k][v]);
      }
      take_all<8>(q0[0], taken0, r);
  }
    const auto qs0 = joined<32, 1, false>(q0);
    const float mean0 = qs0.total() / (float)256ll;
    sum_of<float> z0[1];
    UNROLL for (int i = 0; i < 1; i++) z0[i].init();
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 32 + ty) * 8;
      UNROLL for (int v = 0; v < 8; v++) {
      z0[0].square(get(w0[k][v]) - mean0);
      }
  }
    const auto zs0 = joined<32, 1, false>(z0);
    const float scale0 = (float)1 / gn_sqrt(zs0.total() / (float)256ll + (float)gn_f64(0x3ee4f8b588e368f1ull));
  UNROLL for (int k = 0; k < 1; k++) {
      const I r = (k * 32 + ty) * 8;
      bf16 y0[8];
      UNROLL for (int v = 0; v < 8; v++) {
      const float v0 = (get(w0[k][v]) - mean0) * scale0 * get(w1[k][v]) + get(w1[k][v]);
      put(y0[v], v0);
      }
      if (live) UNROLL for (int v = 0; v < 8; v++) to[(row - first) * 256 + r + v] = y0[v];
  }
  }
  }
};
extern "C" __global__ void __launch_bounds__(256) rows_vector_pair_few_times_bf16_loop(const bf16 *e0bias, bf16 *e0o, const bf16 *na0, const bf16 *na1, const bf16 *b0_0, const bf16 *b0_1) {
  rows_vector_pair_few_times_bf16_loop_e e = { e0bias, e0o, 0, 0 };
  const rows_vector_pair_few_times_bf16_loop_n norm = { na0, na1 };
  vector_of<rows_vector_pair_few_times_bf16_loop_p::T> m = { { b0_0, b0_1 }, 512, 512ll, (int)blockIdx.x - 0, 32 };
  few_times<rows_vector_pair_few_times_bf16_loop_p>(0, norm, m, e);
}
// vector_few_dot_bf16_loop: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
struct vector_few_dot_bf16_loop_p { typedef bf16 T; enum { m = 3, k = 512, TILES = 1, S = 4, G = 1, MATS = 1, DOT = 1, WIDE = 1, WIDE_X = 1, WITHIN = 0, EARLY = 1, NEXT = 2, ROW_BYTES = 0 };
  static const i64 AM = 512ll, AK = 1ll, BK = 1ll, BN = 512ll;
};
struct vector_few_dot_bf16_loop_e0 {
  bf16 *o;
  const bf16 *a0;
  float x0;
  float b0, b1;
  M void early(int i) { b0 = 0.f; b1 = 0.f; }
  M void load(int i) { x0 = get(a0[((int)((u32)(i)))]); }
  M float value(float y) const { return cast_to<bf16>::of(y + b0); }
  M void end(int i, float y, float z) const {
    y = value(y);
    z = cast_to<bf16>::of(z + b1);
      float t0;
      { typedef float GN_T; const GN_T a = x0, b = y, c = x0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (float)(GN_M_ADD(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
    put(o[i], t0);
  }
};
typedef vector_few_dot_bf16_loop_e0 vector_few_dot_bf16_loop_e;
extern "C" __global__ void __launch_bounds__(256) vector_few_dot_bf16_loop(bf16 *e0o, const bf16 *e0a0, const bf16 *a, const bf16 *b0_0) {
  vector_few_dot_bf16_loop_e e = { e0o, e0a0, 0, 0 };
  const vector_as_it_lies norm = {};
  vector_of<vector_few_dot_bf16_loop_p::T> m = { { b0_0, 0 }, 256, 512ll, (int)blockIdx.x - 0, 64 };
  few_times<vector_few_dot_bf16_loop_p>(a, norm, m, e);
}
