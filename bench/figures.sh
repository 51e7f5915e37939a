#!/usr/bin/env bash
# What this machine's GPU gives, beside PyTorch (eager, compiled, in CUDA graphs) and JAX: workloads, what each switch is
# worth to GPT-2's decoding, what a trace costs, and a PyTorch program recorded by CUPTI. Short tables come last.
#
#   ./build.sh && bench/figures.sh                              results in build/results/
#   bench/figures.sh compare                                    only some of: compare ablate traces record
#   bench/figures.sh traces --device cpu --dtype f32 --quick    shows that it works, not how fast
#   BUILD=DIR bench/figures.sh                                  with programs that were built before: as in build/, or all in DIR
#
# Options go to genie_bench (--device cuda:0 --dtype bf16). First, all kernels are compiled at once, so that nothing is timed
# while another compiles; caches are those of the user. A stack that is not there, or has no time after ADAPTER_SECONDS (60), is
# told of. The programs need no compiler, and no mbedTLS where they were linked with its static libraries.
set -u
cd "$(dirname "$0")/.." || exit 1
parts=()
while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
    case $1 in
        compare | ablate | traces | record) parts+=("$1") ;;
        *) echo "figures.sh: no part '$1': there are compare, ablate, traces and record"; exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(compare ablate traces record)
[ $# -gt 0 ] || set -- --device cuda:0 --dtype bf16
cases=mlp,rows:softmax,rows:layernorm,matmul,attention,gpt2:decode
limit=(--limit "${ADAPTER_SECONDS:-60}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# program NAME: its path, where the build or the given folder has it.
program() {
    local place
    for place in "${BUILD:-build}"/{bench,examples,.}/"$1"; do
        if [ -x "$place" ]; then echo "$place"; return; fi
    done
    echo "figures.sh: ${BUILD:-build} has no $1: ./build.sh" >&2
    return 1
}

bench=$(program genie_bench) || exit 1
for mode in eager compile graph; do
    variable=TORCH_${mode^^}_BENCH_CMD
    export "$variable=${!variable:-python3 bench/adapters/pytorch.py $mode}"
done
export JAX_BENCH_CMD="${JAX_BENCH_CMD:-python3 bench/adapters/jax_jit.py}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$work/jax}" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

has_part() { [[ " ${parts[*]} " = *" $1 "* ]]; }

# What the parts will run, all at once, a step each: their kernels are in the caches then.
warm() {
    local once=(--iters 2 --warmup 1 --rounds 1 --no-reference --out "$work") name names
    if has_part compare; then
        for name in ${cases//,/ }; do "$bench" "$name" "$@" "${once[@]}" "${limit[@]}" --tag "warm-${name/:/-}" & done
    elif has_part ablate || has_part traces; then
        "$bench" mlp,gpt2:decode "$@" "${once[@]}" --no-adapters --tag warm-own &
    fi
    names=$(sed -n 's/^ *{ "cuda", "\([A-Z_]*=0\)".*/\1/p' bench/suite_ablate.h)
    if has_part ablate; then
        for name in $names; do
            env "$name" "$bench" gpt2:decode "$@" "${once[@]}" --no-adapters --tag "warm-$name" &
        done
    fi
    wait
}

record() {
    local trace; trace=$(program genie_trace) || return 1
    cat >"$work/program.py" <<'PYTHON'
import torch
a, b = (torch.randn(1024, 1024, device='cuda') for _ in range(2))
for _ in range(10):
    a = torch.relu(a @ b) * 0.03
print('sum', float(a.sum()), 'by 10 products, 10 relu, 10 mul, 2 randn, 1 sum')
PYTHON
    "$trace" record --out "$work/program.jsonl" -- python3 "$work/program.py" && "$trace" "$work/program.jsonl"
}

run_part() {
    local part=$1; shift
    case $part in
        warm) warm "$@" ;;
        compare) "$bench" "$cases" "$@" "${limit[@]}" --tag compare ;;
        ablate) "$bench" ablate gpt2:decode "$@" --no-adapters --tag ablate ;;
        traces) "$bench" traces mlp,gpt2:decode "$@" --tag traces ;;
        record) record ;;
    esac
}

# What a part ended with: its table, and the lines that say it in words.
short() {
    echo "== $1"
    case $1 in
        record) head -n 12 "$work/record.log" ;;
        *) sed -n 's/^wrote \(.*\.json\)$/\1/p' "$work/$1.log" | xargs -r "$bench" table ;;
    esac
    grep -E ' without .* times as long| ms, stages ' "$work/$1.log"
}

failed=0
for part in warm "${parts[@]}"; do
    began=$SECONDS
    echo "== $part"
    run_part "$part" "$@" >"$work/$part.log" 2>&1 || { failed=1; echo "figures.sh: $part failed" >>"$work/$part.log"; }
    [ "$part" = warm ] || cat "$work/$part.log"
    echo "== $part took $((SECONDS - began)) s"
done
printf '\n'
for part in "${parts[@]}"; do short "$part"; done
echo "== all took $SECONDS s"
exit $failed
