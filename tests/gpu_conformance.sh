#!/usr/bin/env bash
# Checks Genie on this machine's GPU: first the host in plain words, then what is asked for.
#
#     tests/gpu_conformance.sh [all]          everything below; builds what is needed
#     tests/gpu_conformance.sh smoke          five checks, seconds
#     tests/gpu_conformance.sh suite          conformance on cuda:0, locally and through TLS, and larger shapes beside the CPU
#     tests/gpu_conformance.sh nodes          ONNX's node tests on cuda:0, locally and through TLS: those that fail are those that fail on the CPU
#     tests/gpu_conformance.sh examples       remote_decode at GPT-2 124M size in all modes, locally and through TLS; remote_mlp
#     tests/gpu_conformance.sh sanitizers     compute-sanitizer over one case of each kind of kernel
#     tests/gpu_conformance.sh soak           products in five processes at once for SOAK_SECONDS (60), of seeds SOAK_SEED (1) and on; not in "all"
#     tests/gpu_conformance.sh bench          build/bench/bench_gpu --json
#     BUILD=DIR tests/gpu_conformance.sh ...  with the programs in DIR (as build/ lays them out, or all in one folder)
#
# NODES=FOLDER has the node tests that tests/onnx_node_tests.py has written; without it they are written, which needs PyPI's onnx.
# They need onnx_run, genie_serve and hello of the programs. DEVICE=cpu runs them there, to try the script.
#
# GENIE_NVRTC and GENIE_LIBCUDA point to libraries in unusual places, GENIE_CACHE to compiled kernels. JOBS=N processes run at
# once (one for each core, at most 16). SANITIZER_SECONDS=N bounds the sanitizers (480). The last line is
# "N passed, N failed, N skipped".
#
# Limits of the tools: memcheck and initcheck see the memory of single allocations only, so the stream-ordered pool is off under
# them. racecheck sees shared memory, not global memory. None looks into captured graphs: graphs are off. initcheck does not look at
# the driver's own copies: results come down together, with the padding between them. memcheck does not report answers of the
# driver: a module is asked for kernels that it may not hold. racecheck does not see that a warp has met before one of its threads
# arrives for all: in fed products each thread arrives then (GENIE_CUDA_EVERY_LANE=1, a switch of the executor that test programs
# link, which is compiled with -DGENIE_TEST; the library does not have it). Products are not measured under them, nor computed
# by cuBLASLt. Of gpu_test only what makes each plan anew runs. None of them runs on a device inside some virtual machines; then they
# are skipped with their own words.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0 rows=()
scratch=$(mktemp -d)
server=''
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
[ "$jobs" -le 16 ] || jobs=16
export GENIE_CACHE=${GENIE_CACHE:-$scratch/cache}

# shellcheck disable=SC2317
clean_up() {
    [ -z "$server" ] || { kill "$server"; wait "$server"; } 2>/dev/null
    rm -rf "$scratch"
}
trap clean_up EXIT

row() { rows+=("$(printf '%-36s %-8s %s' "$1" "$2" "$3")"); printf '%s\n' "${rows[-1]}" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
skip() { skipped=$((skipped + 1)); row "$1" skipped "$2"; }
pass() { passed=$((passed + 1)); row "$1" passed "$2"; }
fail() { failed=$((failed + 1)); row "$1" FAILED "$2"; }

finish() {
    printf '\n'
    [ ${#rows[@]} = 0 ] || printf '%s\n' "${rows[@]}"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit
}

# ---- the host ----

# library_place NAME: where the loader finds it, empty when it does not.
library_place() { PATH=$PATH:/sbin ldconfig -p 2>/dev/null | awk -v name="$1" 'index($1, name) == 1 { print $NF; exit }'; }

check_host() {
    echo "host: $(uname -sm), $(getconf _NPROCESSORS_ONLN) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null) of memory"
    local driver; driver=${GENIE_LIBCUDA:-$(library_place libcuda.so)}
    if [ -n "$driver" ]; then echo "driver: $driver"; else echo "driver: libcuda.so.1 is not found: install NVIDIA's driver, 470 or newer"; fi
    if have nvidia-smi; then nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.free --format=csv,noheader | sed 's/^/gpu: /'; fi
    if [ -x "$serve" ]; then "$serve" --devices list | sed 's/^/genie: /'; fi
    if have compute-sanitizer; then echo "compute-sanitizer: $(compute-sanitizer --version | grep -io 'version [0-9.]*' | head -n 1)"; else echo "compute-sanitizer: not found; it comes with the CUDA toolkit"; fi
}

# program NAME: its path, where the build or the given folder has it.
program() {
    local place
    for place in "$build/tests/$1" "$build/examples/$1" "$build/bench/$1" "$build/$1"; do
        if [ -x "$place" ]; then echo "$place"; return; fi
    done
    echo "$build/$1"
}

find_programs() {
    build=${BUILD:-build}
    if [ -z "${BUILD:-}" ] && ! ./build.sh build >"$scratch/build" 2>&1; then cat "$scratch/build"; fail build "see above"; finish; fi
    serve=$(program genie_serve)
}

gpu_is_there() {
    if "$serve" --devices list 2>/dev/null | grep '^cuda:0 ' | grep -qv absent; then return 0; fi
    skip "$1" "$("$serve" --devices list 2>&1 | grep cuda | head -n 1)"
    return 1
}

# ---- running test programs ----

# run_suite LABEL SECONDS SHARDS COMMAND...: the command in SHARDS processes at once; adds the counts of their last lines.
run_suite() {
    local label=$1 limit=$2 shards=$3 from=$SECONDS i p=0 f=0 s=0 line status bad=0 processes=(); shift 3
    if [ ! -x "$(first_program "$@")" ]; then skip "$label" "there is no $(first_program "$@")"; return; fi
    for ((i = 0; i < shards; i++)); do
        timeout "$limit" "$@" --seed 1 --shard "$i/$shards" >"$scratch/log.$i" 2>&1 &
        processes+=($!)
    done
    for ((i = 0; i < shards; i++)); do
        wait "${processes[$i]}"; status=$?
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$scratch/log.$i" | tail -n 1)
        read -r -a counts <<<"${line//[^0-9 ]/}"
        if [ -z "$line" ]; then counts=(0 1 0); echo "$label: ended with status $status and no result line"; fi
        p=$((p + counts[0])) f=$((f + counts[1])) s=$((s + counts[2]))
        if [ "${counts[1]}" != 0 ]; then grep -v '^SKIP' "$scratch/log.$i" | tail -n 30
        elif [ "$status" != 0 ] && [ $((counts[0] + counts[2])) != 0 ]; then bad=$((bad + 1)); tail -n 30 "$scratch/log.$i"; fi
    done
    f=$((f + bad)) passed=$((passed + p)) failed=$((failed + f + bad)) skipped=$((skipped + s))
    if [ "$f" != 0 ]; then row "$label" FAILED "$p passed, $f failed, $s skipped, $((SECONDS - from)) s"
    elif [ "$p" = 0 ]; then row "$label" skipped "$(grep -h -m 1 '^SKIP' "$scratch"/log.* | head -n 1 | cut -c1-160)"
    else row "$label" passed "$p passed, $s skipped, $((SECONDS - from)) s"; fi
}

# The first word that is a path, past tools and settings.
first_program() {
    local argument
    for argument in "$@"; do case $argument in */*_test) echo "$argument"; return ;; esac; done
}

start_server() {
    [ -z "$server" ] || return 0
    GENIE_HOME=$scratch/server "$serve" --listen 127.0.0.1:0 --devices cuda:0 --max-sessions 64 --url-file "$scratch/url" >"$scratch/serve" 2>&1 &
    server=$!
    local i
    for ((i = 0; i < 300; i++)); do [ ! -s "$scratch/url" ] || break; sleep 0.1; done
    [ -s "$scratch/url" ] || { skip "$1" "the server did not start: $(tail -n 1 "$scratch/serve")"; server=''; return 1; }
    # One client pairs; the others of the same home use what it was granted.
    GENIE_HOME=$scratch/client GENIE_DEVICES=$(cat "$scratch/url") "$(program hello)" >"$scratch/hello" 2>&1
    address=$(sed -n -E 's/.*@?(127\.0\.0\.1:[0-9]+).*/\1/p' "$scratch/url" | head -n 1)
}

run_smoke() {
    local test; test=$(program gpu_test)
    GENIE_TEST_DEVICES=cuda:0 run_suite "smoke: known values, replay, fault" 120 1 "$test" ones_times chain_of replayed a_fault
    if ! start_server "smoke: through TLS"; then return; fi
    if grep -q 'cuda:0' "$scratch/hello"; then pass "smoke: through TLS" "$(grep cuda:0 "$scratch/hello" | head -n 1)"
    else cat "$scratch/hello"; fail "smoke: through TLS" "hello did not run on cuda:0"; fi
}

# All kernels first, twenty to a program, for this GPU's architecture; what differs by its number of processors is compiled later.
compile_kernels() {
    local label="every kernel compiles" from=$SECONDS arch line
    arch=sm_$("$serve" --devices list | sed -n -E 's/^cuda:0 .*compute capability ([0-9]+)\.([0-9]).*/\1\2/p')
    [ "$arch" != sm_90 ] || arch=sm_90a
    if [ ! -x "$(program kernels_test)" ]; then skip "$label" "there is no kernels_test"; return; fi
    KERNELS_ARCH=$arch timeout 600 "$(program kernels_test)" --seed 1 >"$scratch/kernels" 2>&1
    line=$(tail -n 1 "$scratch/kernels")
    if [[ $line =~ ^[0-9]+\ passed,\ 0\ failed ]]; then pass "$label" "$(grep "^$arch" "$scratch/kernels"), $((SECONDS - from)) s"
    else tail -n 20 "$scratch/kernels"; fail "$label" "$line"; fi
}

run_conformance() {
    compile_kernels
    GENIE_TEST_DEVICES=cuda:0 run_suite "conformance on cuda:0" 1200 "$jobs" "$(program conformance_test)" on_cuda
    GENIE_TEST_DEVICES=cuda:0 run_suite "larger shapes beside the CPU" 1200 8 "$(program gpu_test)"
    GPU_LARGE=1 GENIE_TEST_DEVICES=cuda:0 run_suite "tensors of most of the memory" 600 1 "$(program gpu_test)" to_the_31 large_tensors
    GENIE_TEST_DEVICES=cuda:0 GENIE_TEST_PROGRAMS=300 run_suite "reductions with loops around them" 600 1 "$(program rows_test)"
    GENIE_TEST_DEVICES=cuda:0 GENIE_TEST_PROGRAMS=200 run_suite "random decoders" 600 1 "$(program decoder_test)"
    GENIE_TEST_DEVICES=cuda:0 GENIE_TEST_PROGRAMS=200 run_suite "random programs are exact" 600 1 "$(program exact_test)" on_gpu
    GENIE_TEST_DEVICES=cuda:0 BITS_ROUNDS=${BITS_ROUNDS:-6} run_suite "views and cuts change no bit" 600 1 "$(program bits_test)" on_one_device
    GENIE_TEST_DEVICES=cuda:0 BITS_LARGE=1 run_suite "views of larger operands change no bit" 1200 "$jobs" "$(program bits_test)" larger
    GENIE_TEST_DEVICES=cuda:0 run_suite "definitions in double precision" 600 1 "$(program signal_test)" on_cuda
    GENIE_TEST_DEVICES=cuda:0 run_suite "what clients share" 300 1 "$(program gpu_limits_test)"
    run_suite "two GPUs as one machine" 600 1 "$(program gpu_several_test)"
    start_server "conformance through TLS" || return 0
    GENIE_HOME=$scratch/client GENIE_TEST_DEVICES=genie://$address run_suite "conformance through TLS" 1200 "$jobs" "$(program conformance_test)" on_remote
    GENIE_HOME=$scratch/client GENIE_TEST_DEVICES=$address run_suite "known values through TLS" 300 1 "$(program gpu_test)" ones_times chain_of replayed a_fault
}

# ---- ONNX's node tests ----

find_nodes() {
    nodes=${NODES:-$scratch/nodes}
    if [ -z "${NODES:-}" ] && ! PYTHONPATH=build/oracles python3 tests/onnx_node_tests.py "$nodes" 2>"$scratch/python"; then
        skip nodes "no NODES=FOLDER is given, and python3 has no onnx to write one: $(tail -n 1 "$scratch/python")"
        return 1
    fi
    [ -n "$(find -L "$nodes" -mindepth 2 -maxdepth 2 -name model.onnx | head -n 1)" ] || { fail nodes "$nodes has no folder with a model.onnx"; return 1; }
    [ -x "$(program onnx_run)" ] || { skip nodes "there is no $(program onnx_run)"; return 1; }
}

# nodes_on LABEL PLACE: every test, in as many processes as cores; their lines in $scratch/LABEL.
nodes_on() {
    local label=$1 place=$2 i=0 test processes=()
    for ((i = 0; i < jobs; i++)); do rm -rf "$scratch/part.$i"; mkdir "$scratch/part.$i"; done
    i=0
    for test in "$nodes"/*/; do ln -s "$(realpath "$test")" "$scratch/part.$((i++ % jobs))/"; done
    for ((i = 0; i < jobs && i < $(find "$nodes" -mindepth 1 -maxdepth 1 | wc -l); i++)); do
        GENIE_HOME=$scratch/client timeout 1500 "$(program onnx_run)" --check "$scratch/part.$i" --connect "$place" >"$scratch/said.$i" 2>&1 &
        processes+=($!)
    done
    wait "${processes[@]}"
    cat "$scratch"/said.* >"$scratch/$label"
    rm -f "$scratch"/said.*
    grep -vE '^(ok|FAIL) |: [0-9]+ of [0-9]+ ' "$scratch/$label" | head -n 10
    sed -n 's/^FAIL \([^:]*\):.*/\1/p' "$scratch/$label" | sort >"$scratch/$label.failed"
    awk -F': | of | \\(' '/: [0-9]+ of [0-9]+ / { if (!($1 in tests)) names[++n] = $1; passed[$1] += $2; tests[$1] += $3 }
        END { for (i = 1; i <= n; i++) printf "%s%s %d of %d", (i > 1 ? ", " : ""), names[i], passed[names[i]], tests[names[i]] }' "$scratch/$label"
}

# nodes_are_those_of_the_cpu LABEL PLACE
nodes_are_those_of_the_cpu() {
    local from=$SECONDS said; said=$(nodes_on "$1" "$2")
    if [ "$(grep -cE '^(ok|FAIL) ' "$scratch/$1")" != "$(grep -cE '^(ok|FAIL) ' "$scratch/cpu")" ]; then
        tail -n 5 "$scratch/$1"; fail "node tests: $1" "not all of them ran: $said"
    elif cmp -s "$scratch/cpu.failed" "$scratch/$1.failed"; then pass "node tests: $1" "$said, $((SECONDS - from)) s"
    else
        echo "< fails on the CPU alone, > fails on $2 alone:"
        diff "$scratch/cpu.failed" "$scratch/$1.failed"
        comm -13 "$scratch/cpu.failed" "$scratch/$1.failed" | while read -r name; do grep "^FAIL $name:" "$scratch/$1"; done
        fail "node tests: $1" "$said; others fail than on the CPU"
    fi
}

run_nodes() {
    local nodes place=${DEVICE:-cuda:0}
    find_nodes || return 0
    pass "node tests: cpu" "$(nodes_on cpu cpu)"
    nodes_are_those_of_the_cpu "on $place" "$place"
    [ "$place" = cuda:0 ] || return 0
    start_server "node tests: through TLS" && nodes_are_those_of_the_cpu "through TLS" "$address"
}

# ---- examples ----

# example LABEL KEYS COMMAND...: runs it; the fields of its last line, a JSON object, become the row.
example() {
    local label=$1 keys=$2 key text=''; shift 2
    if timeout 300 env GENIE_HOME="$scratch/client" "$@" --json >"$scratch/example" 2>&1; then
        for key in $keys; do text="$text$key $(tail -n 1 "$scratch/example" | sed -n -E "s/.*\"$key\":\"?([^,\"}]*).*/\1/p")  "; done
        pass "$label" "$text"
    else
        tail -n 20 "$scratch/example"; fail "$label" "see above"
    fi
}

tokens() { tail -n 1 "$scratch/example" | sed -n -E 's/.*"tokens":\[([^]]*)\].*/\1/p'; }

run_examples() {
    local mode place how n first=''
    if "$(program gpu_demo)" >"$scratch/demo" 2>&1; then cat "$scratch/demo"; pass gpu_demo "$(grep '^ok' "$scratch/demo")"
    else cat "$scratch/demo"; fail gpu_demo "see above"; fi
    start_server "examples" || return 0
    for mode in semantic cached blind; do
        n=64; [ $mode = semantic ] || n=6
        for place in cuda:0 "$address"; do
            how=TLS
            [ "$place" != cuda:0 ] || how=locally
            example "decode gpt2 $mode $how" "ms_per_token bytes_per_token round_trips_per_token prefill_ms checked" \
                "$(program remote_decode)" --connect "$place" --size gpt2 --mode $mode --tokens $n
            [ -n "$first" ] || first=$(tokens)
            case $first, in
                "$(tokens)",*) ;;
                *) fail "decode gpt2 $mode: tokens" "differ from those of the semantic mode" ;;
            esac
        done
    done
    example "remote_mlp through TLS" "accuracy steps_per_s max_abs_diff device" "$(program remote_mlp)" --connect "$address"
}

# ---- compute-sanitizer ----

sanitize() {
    local tool=$1 settings=(GENIE_TEST_DEVICES=cuda:0 GENIE_CUDA_ONE_OF_EACH=1 GENIE_CUDA_GRAPH=0 GENIE_CUDA_POOL=0 GENIE_CUDA_TUNE=0 GENIE_CUDA_EVERY_LANE=1) shards=$((jobs / 4)) limit=${SANITIZER_SECONDS:-480} i errors=0
    [ "$shards" -ge 1 ] || shards=1
    local options=(--tool "$tool" --error-exitcode 9)
    [ "$tool" != memcheck ] || options+=(--report-api-errors no)
    [ "$tool" != initcheck ] || options+=(--check-api-memory-access no)
    local processes=()
    for ((i = 0; i <= shards + 1; i++)); do
        local command=("$(program conformance_test)" on_cuda --seed 1 --shard "$i/$shards")
        [ "$i" != "$shards" ] || command=("$(program gpu_test)" agree_with_the_cpu --seed 1)
        [ "$i" -le "$shards" ] || command=(env GENIE_CUDA_ONE_OF_EACH=0 "$(program rows_test)" of_random their_kernels --seed 1)
        env "${settings[@]}" timeout -k 5 "$limit" compute-sanitizer "${options[@]}" "${command[@]}" >"$scratch/$tool.$i" 2>&1 &
        processes+=($!)
    done
    for ((i = 0; i <= shards + 1; i++)); do
        wait "${processes[$i]}"
        local summary; summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$scratch/$tool.$i" | tail -n 1)
        [[ $summary =~ \ 0\ (errors|hazards) ]] || errors=$((errors + 1))
        [[ $summary =~ \ 0\ (errors|hazards) ]] || { echo "$tool, part $i: ${summary:-no summary}"; grep -v '^SKIP' "$scratch/$tool.$i" | head -n 25; }
    done
    printf '%s %s\n' "$errors" "$shards" >"$scratch/$tool.result"
}

run_sanitizers() {
    local tool from=$SECONDS errors shards tools=()
    if ! have compute-sanitizer; then skip "compute-sanitizer" "it is not installed"; return; fi
    if compute-sanitizer "$(program gpu_test)" ones_times --seed 1 2>&1 | grep -q 'Device not supported'; then skip "compute-sanitizer" "it does not support this device"; return; fi
    for tool in memcheck racecheck initcheck synccheck; do
        sanitize $tool >"$scratch/$tool.said" &
        tools+=($!)
    done
    wait "${tools[@]}"
    for tool in memcheck racecheck initcheck synccheck; do
        cat "$scratch/$tool.said"
        read -r errors shards <"$scratch/$tool.result"
        if [ "$errors" = 0 ]; then pass "compute-sanitizer $tool" "$((shards + 2)) parts clean, $((SECONDS - from)) s for all tools"
        else fail "compute-sanitizer $tool" "$errors of $((shards + 2)) parts with findings or cut at ${SANITIZER_SECONDS:-480} s"; fi
    done
}

run_soak() {
    local i status from=${SOAK_SEED:-1} seconds=${SOAK_SECONDS:-60} bad=0 processes=()
    if [ ! -x "$(program soak_test)" ]; then skip soak "there is no $(program soak_test)"; return; fi
    for ((i = 0; i < 5; i++)); do
        SOAK_SECONDS=$seconds SOAK_THREADS=3 timeout $((seconds + 90)) "$(program soak_test)" --seed $((from + i)) >"$scratch/soak.$i" 2>&1 &
        processes+=($!)
    done
    for ((i = 0; i < 5; i++)); do
        wait "${processes[$i]}"; status=$?
        if [ "$status" != 0 ]; then bad=$((bad + 1)); echo "status $status:"; cat "$scratch/soak.$i"; fi
    done
    if [ "$bad" != 0 ]; then fail soak "$bad of 5 processes"
    else pass soak "$(cat "$scratch"/soak.* | awk '/ products of .* kinds/ { n += $1; k += $4 } END { printf "%.0f products of %d kinds are exact", n, k }')"; fi
}

run_bench() {
    local bench; bench=$(program bench_gpu)
    if [ ! -x "$bench" ]; then skip bench_gpu "there is no $bench"; return; fi
    if "$bench" --json; then pass bench_gpu "figures above"; else fail bench_gpu "see above"; fi
}

what=${1:-all}
case $what in
    all | smoke | suite | nodes | examples | sanitizers | soak | bench) ;;
    -h | --help) sed -n '2,/^set -u/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
    *) echo "gpu_conformance.sh: unknown word '$what'; --help lists them" >&2; exit 2 ;;
esac
find_programs
check_host
[ "$what${DEVICE:-}" = nodescpu ] || gpu_is_there "$what" || finish
case $what in
    all) run_smoke; run_conformance; run_nodes; run_examples; run_sanitizers; run_bench ;;
    smoke) run_smoke ;;
    suite) run_conformance ;;
    nodes) run_nodes ;;
    examples) run_examples ;;
    sanitizers) run_sanitizers ;;
    soak) run_soak ;;
    bench) run_bench ;;
esac
finish
