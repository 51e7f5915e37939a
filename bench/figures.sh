#!/usr/bin/env bash
# What this machine's GPU gives, beside PyTorch (eager, compiled, in CUDA graphs) and JAX: workloads, what each switch is
# worth to GPT-2's decoding, what a trace costs, and a PyTorch program recorded by CUPTI.
#
#   ./build.sh bench && ./bench/figures.sh                      results in build/results/
#   ./bench/figures.sh --device cpu --dtype f32 --quick         shows that it works, not how fast
#   FIGURES='table traces' ./bench/figures.sh                   only these of: warm table ablate traces record
#
# What is given is given to genie_bench (--device cuda:0 --dtype bf16). First, all kernels are compiled at once, so that
# no stack is timed while it compiles; caches are those of the user. A stack that is not there is unavailable.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- --device cuda:0 --dtype bf16
figures=${FIGURES:-warm table ablate traces record}
bench=${BUILD:-./build}/bench/genie_bench
trace=./examples/genie_trace
cases=mlp,rows:softmax,rows:layernorm,matmul,attention,gpt2:decode
limit=(--limit "${ADAPTER_SECONDS:-60}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
[ -x "$bench" ] || { echo "figures.sh: $bench is not built: ./build.sh bench"; exit 1; }
for mode in eager compile graph; do
    variable=TORCH_${mode^^}_BENCH_CMD
    export "$variable=${!variable:-python3 bench/adapters/pytorch.py $mode}"
done
export JAX_BENCH_CMD="${JAX_BENCH_CMD:-python3 bench/adapters/jax_jit.py}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$work/jax}" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

# Every case and every switch at once, a step each: their kernels are in the caches then.
warm() {
    local once=(--iters 2 --warmup 1 --rounds 1 --no-reference --out "$work") name names
    for name in ${cases//,/ }; do "$bench" "$name" "$@" "${once[@]}" "${limit[@]}" --tag "warm-${name/:/-}" & done
    names=$(sed -n 's/^ *{ "cuda", "\([A-Z_]*=0\)".*/\1/p' bench/suite_ablate.h)
    for name in $names; do
        env "$name" "$bench" gpt2:decode "$@" "${once[@]}" --no-adapters --tag "warm-$name" &
    done
    wait
}

record() {
    cat >"$work/program.py" <<'PYTHON'
import torch
a, b = (torch.randn(1024, 1024, device='cuda') for _ in range(2))
for _ in range(10):
    a = torch.relu(a @ b) * 0.03
print('sum', float(a.sum()), 'by 10 products, 10 relu, 10 mul, 2 randn, 1 sum')
PYTHON
    "$trace" record --out "$work/program.jsonl" -- python3 "$work/program.py" && "$trace" "$work/program.jsonl"
}

for one in $figures; do
    began=$SECONDS
    echo "== $one"
    case $one in
        warm) warm "$@" >"$work/warm.log" 2>&1 ;;
        table) "$bench" "$cases" "$@" "${limit[@]}" --tag table ;;
        ablate) "$bench" ablate gpt2:decode "$@" --no-adapters --tag ablate ;;
        traces) "$bench" traces mlp,gpt2:decode "$@" --tag traces ;;
        record) record ;;
        *) echo "figures.sh: no figure '$one': there are warm, table, ablate, traces and record"; exit 2 ;;
    esac || echo "figures.sh: $one failed"
    echo "== $one took $((SECONDS - began)) s"
done
