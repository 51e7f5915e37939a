#!/usr/bin/env bash
# The plain kernels of the GPU executor, executed without a GPU: cuda_shim.c stands in for driver and NVRTC, compiles kernels with
# the host's C++ compiler and runs their threads as fibres. One case of each kind of kernel is compared with tests/reference.h, and
# the shim's results with known values. Not in the quick run.
. "$(dirname "$0")/script.sh"
export GENIE_CACHE=$WORK/cache GENIE_SHIM_DIR=$WORK/objects GENIE_TEST_DEVICES=cuda:0
export CXX=${CXX:-c++}
export GENIE_MEASURE=0      # fibres are slow: measuring the device would take minutes
mkdir -p "$GENIE_SHIM_DIR"

build_shim() { $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread; }

# result FILE: its last line, with the numbers of passed tests at least $2.
holds() {
    tail -n 30 "$1" | grep -v '^SKIP'
    local line; line=$(tail -n 1 "$1")
    [[ $line =~ ^([0-9]+)\ passed,\ 0\ failed ]] && [ "${BASH_REMATCH[1]}" -ge "$2" ]
}

# First all kernels twenty to a program, so that the second run finds them in the cache.
compile() {
    GENIE_CUDA_ONE_OF_EACH=1 GENIE_NVRTC=$WORK/shim.so KERNELS_ARCH=sm_60 "$BUILD/tests/kernels_test" --seed 1 >"$WORK/compile" 2>&1
    holds "$WORK/compile" 100 && grep -E '^sm_60: [1-9][0-9]{2,} kernels' "$WORK/compile"
}
on_shim() { GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so "$@"; }
conformance() {
    GENIE_CUDA_ONE_OF_EACH=1 on_shim "$BUILD/tests/conformance_test" on_cuda --seed 1 >"$WORK/run" 2>&1
    holds "$WORK/run" 100
}
known_values() {
    on_shim "$BUILD/tests/gpu_test" ones_times replayed one_element a_fault --seed 1 >"$WORK/known" 2>&1
    holds "$WORK/known" 4
}
listed() { on_shim "$EXAMPLES/genie_serve" --devices list | grep -E '^cuda:0 fibres on this CPU, 16.0 GiB, compute capability 6.0, driver .*CUDA 13.0.*NVRTC'; }
demo_shows_its_phases() {
    on_shim "$EXAMPLES/gpu_demo" >"$WORK/demo" || { cat "$WORK/demo"; return 1; }
    cat "$WORK/demo"
    grep -q '^ *captured .* has no value' "$WORK/demo" && grep -q '^ *deferred .* has no value.* 0 kernels run' "$WORK/demo" &&
        grep -q '^ *executed .* has a value on cuda:0.* 4 back' "$WORK/demo" && grep -q 'kernel mean_f32' "$WORK/demo" && grep -q '^ok the value is 10100' "$WORK/demo"
}
smoke() { BUILD=$BUILD JOBS=2 on_shim bash tests/gpu_conformance.sh smoke | tee "$WORK/smoke" | tail -n 20; [ "$(tail -n 1 "$WORK/smoke")" = '5 passed, 0 failed, 0 skipped' ]; }


# ---- faults: locally, then of a server, which starts again when its device is lost ----

faults_here() {
    GENIE_SHIM_FAULTS=$WORK/fault on_shim "$BUILD/tests/gpu_fault_test" --seed 1 >"$WORK/faults" 2>&1
    holds "$WORK/faults" 3
}
faults_of_a_server() {
    GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_FAULTS=$WORK/fault start_server "$WORK/server" --devices cuda:0 || return 1
    cp "$WORK/server/url" "$WORK/url.before"
    GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url "$EXAMPLES/hello" || return 1
    cp "$WORK/server/url" "$WORK/url.before"
    GENIE_HOME=$WORK/client GENIE_SHIM_FAULTS=$WORK/fault GENIE_TEST_DEVICES=127.0.0.1:$server_port "$BUILD/tests/gpu_fault_test" --seed 1 >"$WORK/faults" 2>&1
    cat "$WORK/server/log"
    holds "$WORK/faults" 3
}
server_started_again_in_its_process() { kill -0 "$server_process" && grep -q 'starting again' "$WORK/server/log" && [ "$(grep -c '^serving' "$WORK/server/log")" = 2 ]; }
url_is_still_good() {
    cmp "$WORK/url.before" "$WORK/server/url" || return 1
    GENIE_HOME=$WORK/stranger GENIE_DEVICES=@$WORK/url.before timeout 30 "$EXAMPLES/hello" | grep -F "127.0.0.1:$server_port/cuda:0"
}
ends_on_term() { kill -TERM "$server_process" && ended 10 "$server_process"; }

if ! has "$CXX"; then
    skip kernels_on_the_shim "no C++ compiler ($CXX) here"
    finish
fi
for program in kernels_test conformance_test gpu_test gpu_fault_test; do
    [ -x "$BUILD/tests/$program" ] || { skip kernels_on_the_shim "$program is not built: ./build.sh kernels runs this test with its programs"; finish; }
done
check shim_builds build_shim
check device_of_the_shim_is_listed_with_its_parts listed
check kernels_of_each_kind_compile_for_the_host compile
check kernels_of_each_kind_agree_with_the_reference conformance
check known_values_replay_and_fault_on_the_shim known_values
check faults_are_typed_errors_here faults_here
check faults_are_typed_errors_of_one_client_of_a_server faults_of_a_server
check server_whose_device_was_lost_started_again_in_its_process server_started_again_in_its_process
check url_of_a_server_that_started_again_still_pairs url_is_still_good
check server_that_started_again_ends_on_sigterm ends_on_term
check demo_on_the_shim_shows_its_phases demo_shows_its_phases
check gpu_script_smoke_run_passes_on_the_shim smoke
finish
