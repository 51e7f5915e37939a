// append_attention_one_bf16: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
typedef no_loop append_attention_one_bf16_x;
struct append_attention_one_bf16_n { const int *n0;
  M i64 value() const {
    const int x0 = get(*n0);
    const int x1 = cast_to<int>::of(gn_f64(0x3ff0000000000000ull));
      int t0;
      { typedef int GN_T; const GN_T a = x0, b = x1, c = x0, p0 = cast_to<GN_T>::of(gn_f64(0x0ull)), p1 = cast_to<GN_T>::of(gn_f64(0x0ull));
        t0 = (int)(GN_M_ADD(a, b)); (void)b; (void)c; (void)p0; (void)p1; }
    int y;
    put(y, t0);
    return get(y);
  }
};
struct append_attention_one_bf16_p { typedef bf16 T; typedef float C; typedef int L; typedef append_attention_one_bf16_n N; typedef append_attention_one_bf16_x X; static const i64 H = 4ll, G = 2ll, S = 512ll;
  enum { DK = 64, E = 64, V = 8, LANES = 8, R = 1, U = 4, STAGES = 2, PARTS = 4, CLUSTER = 4, JOINS = 1, LENGTH = 1, CAUSAL = 1, WRITTEN = 0, APPEND = 1, EARLY = 1, SMALL = 1, NEXT = 2, MADE_Q = 0, MADE_K = 0 };
  static const i64 Q0 = 0ll, K0 = 0ll;
  static const i64 QB = 256ll, QH = 64ll, KB = 65536ll, KH = 32768ll, KS = 64ll, VB = 65536ll, VH = 32768ll, VS = 64ll, RKB = 128ll, RKH = 64ll, RVB = 128ll, RVH = 64ll;
  static M double scale() { return gn_f64(0x3fc0000000000000ull); }
};
extern "C" __global__ void __launch_bounds__(256) append_attention_one_bf16(const int *n0, const bf16 *q, bf16 *k, bf16 *v, const bf16 *rows_k, const bf16 *rows_v, const int *pos, bf16 *saved_k, u32 flag_k, bf16 *saved_v, u32 flag_v, u32 append, bf16 *o, u32 *err, u32 node) {
  const append_attention_one_bf16_x x = no_loop();
  const append_attention_one_bf16_n used = { n0 };
  const one_as_it_lies tq = {};
  const one_as_it_lies tk = {};
  attention_one<append_attention_one_bf16_p>(tq, tk, q, k, v, rows_k, rows_v, pos, used, x, saved_k, saved_v, o, 0, 0, err, node, append, flag_k, flag_v);
}
// kv_append_undo: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) kv_append_undo(u32 *err, const int *pos0, u16 *o0, const u16 *saved0, const int *pos1, u16 *o1, const u16 *saved1) {
  let_next_start();
  await_previous();
  if (*err) {
  if (err[13]) for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < 128ull; i += (u64)gridDim.x * 256) o0[(i64)*pos0 * 64ll + ((i64)((u64)(i) / 64llu) * 32768ll + (i64)((u64)(i) % 64llu))] = saved0[i];
  if (err[12]) for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < 128ull; i += (u64)gridDim.x * 256) o1[(i64)*pos1 * 64ll + ((i64)((u64)(i) / 64llu) * 32768ll + (i64)((u64)(i) % 64llu))] = saved1[i];
    return;
  }
}
// tell_host: one kernel of a plan. The types and functions it uses stand in genie_cuda.c, section >>kernels.
extern "C" __global__ void __launch_bounds__(256) tell_host(u32 *err) {
  await_previous();
  let_next_start();
  tell_host(err);
}
