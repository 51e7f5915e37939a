#!/usr/bin/env bash
# Checks this machine's GPU for Genie: first the host in plain words, then the conformance suite on cuda:0, locally and through a
# server's connection, the larger shapes beside the CPU, and compute-sanitizer where it is installed.
#
#     tests/gpu_conformance.sh                        build what is needed, run everything
#     GPU_TEST_BINARIES=DIR tests/gpu_conformance.sh  use the programs of DIR instead
#
# GENIE_NVRTC and GENIE_LIBCUDA point to libraries in unusual places. The last line is "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0 rows=()
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

row() { rows+=("$(printf '%-34s %-7s %s' "$1" "$2" "$3")"); }
have() { command -v "$1" >/dev/null 2>&1; }

# library_place NAME: where the loader finds it, empty when it does not.
library_place() { { have ldconfig && ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | awk -v name="$1" 'index($1, name) == 1 { print $NF; exit }'; }

nvrtc_place() {
    if [ -n "${GENIE_NVRTC:-}" ]; then echo "$GENIE_NVRTC"; return; fi
    local place; place=$(library_place libnvrtc.so)
    [ -n "$place" ] || place=$(ls /usr/local/cuda*/lib64/libnvrtc.so.1[1-3]* 2>/dev/null | head -n 1)
    [ -n "$place" ] || place=$(ls /usr/*lib*/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[1-3]* "$HOME"/.local/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[1-3]* 2>/dev/null | head -n 1)
    echo "$place"
}

check_host() {
    echo "host: $(uname -sm), $(getconf _NPROCESSORS_ONLN) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null) of memory"
    local driver; driver=${GENIE_LIBCUDA:-$(library_place libcuda.so)}
    if [ -n "$driver" ]; then echo "driver: $driver"; else echo "driver: libcuda.so.1 is not found: install NVIDIA's driver, 470 or newer"; fi
    if have nvidia-smi; then nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.free --format=csv,noheader | sed 's/^/gpu: /'; fi
    local nvrtc; nvrtc=$(nvrtc_place)
    if [ -n "$nvrtc" ]; then echo "nvrtc: $nvrtc"; else echo "nvrtc: not found: install the CUDA toolkit's libnvrtc, of the driver's major version or older, or set GENIE_NVRTC"; fi
}

# run_suite LABEL SECONDS COMMAND...: adds the counts of its last line.
run_suite() {
    local label=$1 limit=$2 from=$SECONDS line; shift 2
    timeout "$limit" "$@" >"$scratch/log" 2>&1
    local status=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$scratch/log" | tail -n 1)
    if [ -z "$line" ]; then
        tail -n 20 "$scratch/log"
        failed=$((failed + 1)); row "$label" FAILED "ended with status $status and no result line"
        return
    fi
    read -r p _ f _ s _ <<<"$line"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ] || [ "$status" -ne 0 ]; then
        grep -v '^SKIP' "$scratch/log" | tail -n 40
        [ "$f" -gt 0 ] || failed=$((failed + 1))
        row "$label" FAILED "$line, $((SECONDS - from)) s"
    elif [ "$p" -eq 0 ]; then row "$label" skipped "$(grep -m 1 '^SKIP' "$scratch/log" | cut -c1-160)"
    else row "$label" passed "$line, $((SECONDS - from)) s"
    fi
}

skip() { skipped=$((skipped + 1)); row "$1" skipped "$2"; }

find_programs() {
    programs=${GPU_TEST_BINARIES:-}
    [ -z "$programs" ] || return 0
    ./build.sh build >"$scratch/build" 2>&1 || { cat "$scratch/build"; echo "the build failed"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
    programs=build/tests
}

# The server's cuda:0 through TLS on loopback.
run_remote() {
    local serve=${GPU_TEST_SERVE:-examples/genie_serve} label="conformance through TLS"
    if [ ! -x "$serve" ]; then skip "$label" "there is no $serve"; return; fi
    GENIE_HOME=$scratch/server "$serve" --listen 127.0.0.1:0 --devices cuda:0 --url-file "$scratch/url" >"$scratch/serve" 2>&1 &
    local server=$!
    for _ in $(seq 100); do [ ! -s "$scratch/url" ] || break; sleep 0.1; done
    if [ -s "$scratch/url" ]; then GENIE_HOME=$scratch/client GENIE_TEST_DEVICES=$(cat "$scratch/url") run_suite "$label" 900 "$programs/conformance_test" on_remote --seed 1
    else skip "$label" "the server did not start: $(tail -n 1 "$scratch/serve")"; fi
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
}

run_sanitizer() {
    local tool
    if ! have compute-sanitizer; then skip "compute-sanitizer" "it is not installed"; return; fi
    for tool in memcheck racecheck initcheck synccheck; do
        GENIE_TEST_DEVICES=cuda:0 GENIE_CUDA_GRAPH=0 run_suite "compute-sanitizer $tool" 480 compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/gpu_test" ones replayed fault --seed 1
    done
}

check_host
find_programs
export GENIE_CACHE=${GENIE_CACHE:-$scratch/cache}
run_suite "every kernel compiles" 900 "$programs/kernels_test" --seed 1
GENIE_TEST_DEVICES=cuda:0 run_suite "conformance on cuda:0" 900 "$programs/conformance_test" on_cuda --seed 1
GENIE_TEST_DEVICES=cuda:0 run_suite "larger shapes beside the CPU" 900 "$programs/gpu_test" --seed 1
run_remote
run_sanitizer
printf '\n'
printf '%s\n' "${rows[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
