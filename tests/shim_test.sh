#!/usr/bin/env bash
# The plain kernels of the GPU executor, executed without a GPU: cuda_shim.c stands in for driver and NVRTC, compiles kernels with
# the host's C++ compiler and runs their threads as fibres. One case of each kind of kernel is compared with tests/reference.h, and
# the shim's results with known values.
# Tier: slow kernels
. "$(dirname "$0")/script.sh"
export GENIE_CACHE=$WORK/cache GENIE_SHIM_DIR=$WORK/objects GENIE_TEST_DEVICES=cuda:0
export CXX=${CXX:-c++}
export GENIE_CUBLASLT=0      # this machine's own, if it has one, needs its GPU
export GENIE_MEASURE=0      # fibres are slow: measuring the device would take minutes
mkdir -p "$GENIE_SHIM_DIR"

build_shim() {
    $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread &&
        $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/blas.so" tests/blas_shim.c -ldl
}

# result FILE: its last line, with the numbers of passed tests at least $2.
holds() {
    tail -n 30 "$1" | grep -v '^SKIP'
    local line; line=$(tail -n 1 "$1")
    [[ $line =~ ^([0-9]+)\ passed,\ 0\ failed ]] && [ "${BASH_REMATCH[1]}" -ge "$2" ]
}

# compile LEAST [WORD…]: first all kernels twenty to a program, so that the second run finds them in the cache; of tests that the words name.
compile() {
    GENIE_CUDA_ONE_OF_EACH=1 GENIE_NVRTC=$WORK/shim.so KERNELS_ARCH=sm_60 "$BUILD/tests/kernels_test" "${@:2}" --seed 1 >"$WORK/compile" 2>&1
    holds "$WORK/compile" "$1" && grep -E '^sm_60: [1-9][0-9]{2,} kernels' "$WORK/compile"
}
on_shim() { GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so "$@"; }
conformance() {
    GENIE_CUDA_ONE_OF_EACH=1 on_shim "$BUILD/tests/conformance_test" "${@:2}" --seed 1 >"$WORK/run" 2>&1
    holds "$WORK/run" "$1"
}
# Counting in 64 bits, as of tensors that are too large for this machine.
wide() {
    local op words=()
    for op in add cast where random_uniform sum argmax softmax layernorm gather embedding one_hot scatter argsort cumsum nonzero concat slice_put attention attention_with rotary rotary_table sample kv_append page_append page_attention matmul expert_linear mse_loss cross_entropy; do
        words+=("conformance_${op}_on_")
    done
    GENIE_CUDA_WIDE=1 compile 20 "${words[@]}" compile_for && GENIE_CUDA_WIDE=1 conformance 20 "${words[@]/%/cuda}"
}
known_values() {
    on_shim "$BUILD/tests/gpu_test" ones_times replayed launched_again one_element a_fault _place_are_put_back appended_to_all_caches at_the_end_save an_old_version indices_into_nothing long_rows a_loop_takes attention_written_out_agrees by_attention_written norm_within solved_by_panels a_singular_matrix gradients_of_maximum_pools gradients_of_convs filters_of_one_channel pools_of_rows values_and_positions values_of_16_bits widened_table --seed 1 >"$WORK/known" 2>&1
    holds "$WORK/known" 20
}
# The bits of a token do not depend on what is computed beside it; appends by the same slots are one kernel.
caches_in_pages() {
    GENIE_SHIM_ARCH=80 on_shim "$BUILD/tests/pages_test" bits_of_any_chunking_of_bf16 appends_by appends_write slots_that_are --seed 1 >"$WORK/pages" 2>&1
    holds "$WORK/pages" 4
}
# One row by weights of 8 and 4 bits on tensor cores, where blocks have several turns, and where nothing is fused.
quantised_rows() {
    local name=conformance_linear_quantized_on_cuda
    export GENIE_SHIM_ARCH=80
    GENIE_SHIM_PROCESSORS=2 on_shim "$BUILD/tests/conformance_test" $name --seed 1 >"$WORK/quants" 2>&1 && holds "$WORK/quants" 1 &&
        GENIE_CUDA_FUSE=0 GENIE_CUDA_ONE_OF_EACH=1 on_shim "$BUILD/tests/conformance_test" $name --seed 2 >"$WORK/quants" 2>&1 &&
        holds "$WORK/quants" 1
    local result=$?
    unset GENIE_SHIM_ARCH
    return $result
}
# Two to 24 rows on tensor cores; attention there, in the order of what would copy its result.
few_rows() {
    GENIE_SHIM_ARCH=80 GENIE_SHIM_PROCESSORS=2 on_shim "$BUILD/tests/gpu_test" products_of_few_rows as_it_is_copied --seed 1 >"$WORK/few" 2>&1
    holds "$WORK/few" 2
}
weights_of_files() {
    on_shim "$BUILD/tests/weight_file_test" --seed 1 >"$WORK/files" 2>&1
    holds "$WORK/files" 5
}
rows_with_loops() {
    on_shim "$BUILD/tests/rows_test" --seed 1 >"$WORK/rows" 2>&1
    holds "$WORK/rows" 4
}
# Blocks of compute capability 9.0 that share rows; products by its instructions cannot run here.
rows_in_clusters() {
    GENIE_SHIM_ARCH=90 GENIE_CUDA_WGMMA=0 on_shim "$BUILD/tests/rows_test" long_rows --seed 1 >"$WORK/clusters" 2>&1
    holds "$WORK/clusters" 1
}
# Rows by matrices whose k the blocks of a cluster share.
products_in_clusters() {
    GENIE_SHIM_ARCH=90 GENIE_CUDA_WGMMA=0 on_shim "$BUILD/tests/gpu_test" products_of_one_row few_rows_by_wide few_rows_by_large --seed 1 >"$WORK/shared" 2>&1
    holds "$WORK/shared" 3
}
decoders() {
    GENIE_TEST_PROGRAMS=${GENIE_TEST_DECODERS:-4} on_shim "$BUILD/tests/decoder_test" --seed 1 >"$WORK/decoders" 2>&1
    holds "$WORK/decoders" 2
}
# Of compute capability 8.0 and of two processors, whose blocks have several turns each.
decoders_on_two_processors() {
    GENIE_SHIM_ARCH=80 GENIE_SHIM_PROCESSORS=2 GENIE_TEST_PROGRAMS=2 on_shim "$BUILD/tests/decoder_test" --seed 2 >"$WORK/decoders" 2>&1
    holds "$WORK/decoders" 2
}
# Random programs of exact numbers, and products of integers with what follows them in their kernel.
exact_programs() {
    GENIE_TEST_PROGRAMS=6 on_shim "$BUILD/tests/exact_test" on_gpu --seed 1 >"$WORK/exact" 2>&1
    holds "$WORK/exact" 2
}
limits() {
    on_shim "$BUILD/tests/gpu_limits_test" cleared kept equal_hashes least_recent others tenant_has folder told_to charged --seed 1 >"$WORK/limits" 2>&1
    holds "$WORK/limits" 9
}
# As late as events and streams allow, and in an order that is drawn.
streams_in_any_order() {
    local order
    for order in 1 2; do
        GENIE_SHIM_ORDER=$order on_shim "$BUILD/tests/gpu_test" copies_beside tells_its_error kept_value replayed --seed "$order" >"$WORK/order$order" 2>&1
        holds "$WORK/order$order" 4 || return 1
    done
    GENIE_SHIM_ORDER=1 on_shim "$BUILD/tests/gpu_limits_test" no_one_uses --seed 1 >"$WORK/order" 2>&1
    holds "$WORK/order" 1
}
# Two devices: what belongs to one of them and is used in the other's context ends the program.
two_devices() {
    GENIE_SHIM_DEVICES=2 GENIE_SHIM_ORDER=1 on_shim "$BUILD/tests/gpu_several_test" --seed 1 >"$WORK/several" 2>&1
    holds "$WORK/several" 10
}
two_unlike_devices() {
    GENIE_SHIM_DEVICES=2 GENIE_SHIM_ARCH=60,80 GENIE_SHIM_ORDER=2 on_shim "$BUILD/tests/gpu_several_test" graphs large threads --seed 1 >"$WORK/unlike" 2>&1
    holds "$WORK/unlike" 3
}
values_by_way_of_the_host() {
    GENIE_SHIM_DEVICES=2 GENIE_SHIM_ORDER=2 GENIE_CUDA_PEER=0 on_shim "$BUILD/tests/gpu_several_test" graphs together large --seed 1 >"$WORK/host" 2>&1
    holds "$WORK/host" 3
}
# One call of thirty; GENIE_TEST_EVERY=1 by hand tries all.
each_call_of_the_driver_fails() {
    GENIE_SHIM_ORDER=1 GENIE_TEST_EVERY=${GENIE_TEST_EVERY:-30} on_shim "$BUILD/tests/gpu_calls_test" >"$WORK/calls" 2>&1
    holds "$WORK/calls" 4
}
listed() { on_shim "$EXAMPLES/genie_serve" --devices list | grep -E '^cuda:0 fibres on this CPU, 16.0 GiB, compute capability 6.0, driver .*CUDA 13.0.*NVRTC'; }
demo_shows_its_phases() {
    on_shim "$EXAMPLES/gpu_demo" >"$WORK/demo" || { cat "$WORK/demo"; return 1; }
    cat "$WORK/demo"
    grep -q '^ *captured .* has no value' "$WORK/demo" && grep -q '^ *deferred .* has no value.* 0 kernels run' "$WORK/demo" &&
        grep -q '^ *executed .* has a value on cuda:0.* 4 back' "$WORK/demo" && grep -q 'kernel mean_f32' "$WORK/demo" && grep -q '^ok the value is 10100' "$WORK/demo"
}
# Of compute capability 8.0 the fibres have what tensor_matmul, flash_attention and conv_tensor need.
tensor_cores() {
    GENIE_SHIM_ARCH=80 on_shim "$BUILD/tests/gpu_test" products_on_tensor_cores attention_on_tensor_cores filters_ convs_with infinite_filter --seed 1 >"$WORK/tensor" 2>&1
    holds "$WORK/tensor" 6 &&
        GENIE_CUDA_ONE_OF_EACH=1 GENIE_SHIM_ARCH=80 on_shim "$BUILD/tests/conformance_test" conformance_conv_on_cuda conformance_conv_chain_on_cuda --seed 1 >"$WORK/convs" 2>&1 &&
        holds "$WORK/convs" 2 &&
        GENIE_TEST_PROGRAMS=16 GENIE_SHIM_ARCH=80 on_shim "$BUILD/tests/exact_test" transposed_convs_are_exact_on_gpu --seed 1 >"$WORK/back" 2>&1 &&
        holds "$WORK/back" 1
}
smoke() { BUILD=$BUILD JOBS=2 on_shim bash tests/gpu_conformance.sh smoke | tee "$WORK/smoke" | tail -n 20; [ "$(tail -n 1 "$WORK/smoke")" = '5 passed, 0 failed, 0 skipped' ]; }


# A process that keeps the lock of the stored choices keeps no one from opening the device.
locked_choices_are_not_waited_for() {
    rm -f "$WORK/bits"
    counted 'measured 0 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1' || return 1
    flock -o "$(choice_file).lock" sleep 60 & local keeper=$! from=$SECONDS
    sleep 0.5
    rm -f "$WORK/bits"
    GENIE_LOG=1 choice_test one_product >"$WORK/locked" 2>&1
    kill "$keeper"
    cat "$WORK/locked"
    [ $((SECONDS - from)) -lt 30 ] && grep -q 'keeps the lock' "$WORK/locked" && grep -q '^measured 0 by_blas 0 ' "$WORK/locked"
}

# ---- faults: locally, then of a server, which starts again when its device is lost ----

faults_here() {
    GENIE_SHIM_FAULTS=$WORK/fault on_shim "$BUILD/tests/gpu_fault_test" --seed 1 >"$WORK/faults" 2>&1
    holds "$WORK/faults" 5
}
faults_of_a_server() {
    GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_FAULTS=$WORK/fault start_server "$WORK/server" --devices cuda:0 || return 1
    cp "$WORK/server/url" "$WORK/url.before"
    GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url "$EXAMPLES/hello" || return 1
    cp "$WORK/server/url" "$WORK/url.before"
    GENIE_HOME=$WORK/client GENIE_SHIM_FAULTS=$WORK/fault GENIE_TEST_DEVICES=127.0.0.1:$server_port "$BUILD/tests/gpu_fault_test" --seed 1 >"$WORK/faults" 2>&1
    cat "$WORK/server/log"
    holds "$WORK/faults" 5
}
server_started_again_in_its_process() { kill -0 "$server_process" && grep -q 'starting again' "$WORK/server/log" && [ "$(grep -c '^serving' "$WORK/server/log")" = 2 ]; }
url_is_still_good() {
    cmp "$WORK/url.before" "$WORK/server/url" || return 1
    GENIE_HOME=$WORK/stranger GENIE_DEVICES=@$WORK/url.before timeout 30 "$EXAMPLES/hello" | grep -F "127.0.0.1:$server_port/cuda:0"
}
ends_on_term() { kill -TERM "$server_process" && ended 10 "$server_process"; }

# ---- measured choices of products: each run is a process, on the files that those before it left ----

choice_test() { GENIE_CACHE=$WORK/choices GENIE_TEST_BITS=$WORK/bits GENIE_SHIM_FAULTS=$WORK/fault GENIE_CUBLASLT=${BLAS-$WORK/blas.so} GENIE_CUDA_TUNE=${TUNE-1000} on_shim "$BUILD/tests/choice_test" "$@" --seed 1; }
# counted COUNTS: a product's run ends well, with these counters.
counted() { choice_test one_product | tee "$WORK/counted" && grep -F "$1 identity" "$WORK/counted"; }
identity() { sed -n 's/.* identity //p' "$WORK/counted"; }
choice_file() { find "$WORK/choices" -name 'choices-*' ! -name '*.lock'; }

choice_is_made_and_followed() {
    rm -rf "$WORK/choices" "$WORK/bits"
    counted 'measured 1 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1' || return 1
    first=$(identity)
    [[ $first == *' choices '* ]] && counted 'measured 0 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1' && [ "$(identity)" = "$first" ]
}
others_choice_is_lost() {
    GENIE_SHIM_BLAS=other choice_test strict_mode && rm "$WORK/bits" && GENIE_SHIM_BLAS=other counted 'measured 0 by_blas 0 other 0 faults 0 rejected 0 lost 1 called 0'
}
damaged_choices_are_made_anew() {
    rm -f "$WORK/bits"
    printf x | dd of="$(choice_file)" bs=1 seek="$1" conv=notrunc status=none
    counted 'measured 1 by_blas 1 other 0 faults 0 rejected 1 lost 0 called 1' && [ "$(identity)" != "$first" ] && first=$(identity) &&
        counted 'measured 0 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1'
}
cut_choices_are_made_anew() {
    truncate -s "$1" "$(choice_file)"
    counted 'measured 1 by_blas 1 other 0 faults 0 rejected 1 lost 0 called 1'
}
own_kernels_are_chosen_where_they_are_faster() {
    rm -rf "$WORK/choices" "$WORK/bits"
    GENIE_SHIM_BLAS=slow counted 'measured 1 by_blas 0 other 0 faults 0 rejected 0 lost 0 called 1' && counted 'measured 0 by_blas 0 other 0 faults 0 rejected 0 lost 0 called 0'
}
switches_turn_it_off() {
    rm -f "$WORK/bits"
    BLAS=0 counted 'measured 1 by_blas 0 other 0 faults 0 rejected 0 lost 0 called 0' && rm -f "$WORK/bits" &&
        TUNE=1000,1e9 counted 'measured 1 by_blas 0 other 0 faults 0 rejected 0 lost 0 called 0' && TUNE=0 counted 'measured 0 by_blas 0 other 0 faults 0 rejected 0 lost 0 called 0' &&
        [[ $(identity) != *choices* ]] && TUNE='' choice_test a_small
}
blas_computes_all_on_request() {
    rm -f "$WORK/bits"
    TUNE=blas counted 'measured 0 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1' && [[ $(identity) == *'tune blas' ]] &&
        rm "$WORK/bits" && TUNE=blas BLAS=0 counted 'measured 0 by_blas 0 other 0 faults 0 rejected 0 lost 1 called 0'
}
blas_that_does_not_start_is_reported() {
    rm -rf "$WORK/choices" "$WORK/bits"
    echo 'blas start' >"$WORK/fault"
    GENIE_LOG=1 counted 'measured 1 by_blas 0 other 0 faults 1 rejected 0 lost 0 called 0' 2>"$WORK/log"
    local status=$?
    rm "$WORK/fault"
    cat "$WORK/log"
    [ "$status" = 0 ] && grep -q 'cuBLASLt does not start' "$WORK/log"
}
nothing_is_chosen_without_a_folder() {
    rm -f "$WORK/bits"
    : >"$WORK/no_folder"
    GENIE_CACHE=$WORK/no_folder GENIE_TEST_BITS=$WORK/bits GENIE_CUBLASLT=$WORK/blas.so GENIE_CUDA_TUNE=1000 on_shim "$BUILD/tests/choice_test" one_product --seed 1 | tee "$WORK/counted"
    grep -q '^measured 0 by_blas 0 ' "$WORK/counted" && [[ $(identity) != *choices* ]]
}
two_processes_agree() {
    rm -rf "$WORK/choices" "$WORK/bits"
    choice_test one_product >"$WORK/one" & local one=$!
    choice_test one_product >"$WORK/two" & local two=$!
    wait "$one" && wait "$two" && cat "$WORK/one" "$WORK/two" && [ "$(sed -n 's/.* identity //p' "$WORK/one")" = "$(sed -n 's/.* identity //p' "$WORK/two")" ] &&
        counted 'measured 0 by_blas 1 other 0 faults 0 rejected 0 lost 0 called 1'
}
list_says_where_products_are_computed() {
    GENIE_CUBLASLT=$WORK/blas.so on_shim "$EXAMPLES/genie_serve" --devices list | grep -E ', cuBLASLt 13$' && GENIE_CUBLASLT=$WORK/none on_shim "$EXAMPLES/genie_serve" --devices list | grep -F 'no cuBLASLt (GENIE_CUBLASLT='
}

if ! has "$CXX"; then
    skip kernels_on_the_shim "no C++ compiler ($CXX) here"
    finish
fi
for program in kernels_test conformance_test gpu_test rows_test decoder_test gpu_fault_test choice_test gpu_several_test gpu_calls_test exact_test gpu_limits_test; do
    [ -x "$BUILD/tests/$program" ] || { skip kernels_on_the_shim "$program is not built: ./build.sh kernels runs this test with its programs"; finish; }
done
check shim_builds build_shim
check device_of_the_shim_is_listed_with_its_parts listed
check kernels_of_each_kind_compile_for_the_host compile 100
check kernels_of_each_kind_agree_with_the_reference conformance 100 on_cuda
check kernels_that_count_in_64_bits_agree_with_the_reference wide
check decoders_take_five_kernels_a_layer_and_agree_with_f64 decoders
check decoders_on_two_processors_agree_with_the_reference decoders_on_two_processors
check few_rows_and_copies_of_attention_agree_with_the_cpu few_rows
check quantised_rows_on_tensor_cores_agree_with_the_reference quantised_rows
check known_values_replay_and_fault_on_the_shim known_values
check caches_in_pages_on_the_shim caches_in_pages
check weights_of_files_on_the_shim weights_of_files
check reductions_with_loops_are_one_kernel_and_agree_with_the_cpu rows_with_loops
check rows_are_shared_by_blocks_of_clusters rows_in_clusters
check products_share_k_in_clusters products_in_clusters
check products_on_tensor_cores_are_exact_and_attention_agrees tensor_cores
check random_programs_and_products_of_integers_are_exact exact_programs
check what_clients_share_is_bounded_and_their_own limits
check copies_and_kernels_in_any_order_give_the_same streams_in_any_order
check contexts_over_two_devices_equal_one two_devices
check devices_of_two_architectures_have_their_own_kernels two_unlike_devices
check values_between_devices_go_through_the_host_on_request values_by_way_of_the_host
check each_call_of_the_driver_fails_with_a_typed_error each_call_of_the_driver_fails
check faults_are_typed_errors_here faults_here
check faults_are_typed_errors_of_one_client_of_a_server faults_of_a_server
check server_whose_device_was_lost_started_again_in_its_process server_started_again_in_its_process
check url_of_a_server_that_started_again_still_pairs url_is_still_good
check server_that_started_again_ends_on_sigterm ends_on_term
check products_by_blas_agree_with_double choice_test all_forms
check choice_is_measured_stored_and_followed_by_the_next_process choice_is_made_and_followed
check choice_that_is_lost_is_counted_and_refused_in_strict_mode others_choice_is_lost
check damaged_choices_are_rejected_and_made_anew damaged_choices_are_made_anew 60
check choices_with_another_head_are_rejected_and_made_anew damaged_choices_are_made_anew 17
check cut_choices_are_rejected_and_made_anew cut_choices_are_made_anew 50
check empty_choices_are_rejected_and_made_anew cut_choices_are_made_anew 3
check own_kernels_are_chosen_where_they_measure_faster own_kernels_are_chosen_where_they_are_faster
check switches_of_choices_turn_them_off switches_turn_it_off
check blas_computes_all_products_on_request blas_computes_all_on_request
check blas_that_does_not_start_is_reported_and_counted blas_that_does_not_start_is_reported
check nothing_is_chosen_where_it_cannot_be_stored nothing_is_chosen_without_a_folder
check processes_that_measure_at_once_agree two_processes_agree
check locked_choices_are_not_waited_for locked_choices_are_not_waited_for
check product_that_blas_fails_is_computed_by_own_kernels choice_test a_product_that
check list_of_devices_names_blas_or_says_how_to_get_it list_says_where_products_are_computed
check demo_on_the_shim_shows_its_phases demo_shows_its_phases
check gpu_script_smoke_run_passes_on_the_shim smoke
finish
