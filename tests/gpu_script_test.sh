#!/usr/bin/env bash
# What bench_gpu, gpu_conformance.sh and gpu_models.sh say about their arguments, and on a machine without a GPU.
# Tier: quick
. "$(dirname "$0")/script.sh"
bench=$WORK/bench_gpu
# No GPU, whatever this machine has.
export GENIE_LIBCUDA=$WORK/no-such-driver.so

build_bench() { $CC -std=gnu11 -O1 ${SAN:+-fsanitize=$SAN} -pthread -I. bench/bench_gpu.c "$BUILD/libgenie.a" -o "$bench" $LIBS; }

help_names_every_flag() {
    local flag
    "$bench" --help >"$WORK/help" || return 1
    for flag in --only --json --quick --device --help --version; do
        grep -q -- "$flag" "$WORK/help" || { echo "not in --help: $flag"; return 1; }
    done
}
skips_without_a_gpu() {
    local status=0
    "$bench" --json >"$WORK/skip" 2>&1 || status=$?
    cat "$WORK/skip"
    [ "$status" = 77 ] && grep -q '^SKIP: bench_gpu: .*install' "$WORK/skip"
}
# One row on the CPU: the table and the object on the last line hold its name, its error and the error's bound.
row_on_the_cpu() {
    timeout 120 "$bench" --device cpu --quick --only layernorm_f32 --json >"$WORK/row" || { cat "$WORK/row"; return 1; }
    cat "$WORK/row"
    grep -q '^layernorm_f32 .*TB/s .*error' "$WORK/row" || return 1
    tail -n 1 "$WORK/row" | python3 -c 'import json, sys
j = json.loads(sys.stdin.read())
row, = j["rows"]
sys.exit(0 if row["name"] == "layernorm_f32" and row["value"] > 0 and 0 <= row["error"] <= row["error_bound"] and row["p95"] <= row["value"] else 1)'
}
script_help() { bash tests/gpu_conformance.sh --help | grep -q 'sanitizers     compute-sanitizer over one case'; }
script_skips() {
    mkdir -p "$WORK/programs" && cp "$EXAMPLES/genie_serve" "$WORK/programs/" || return 1
    BUILD=$WORK/programs bash tests/gpu_conformance.sh smoke >"$WORK/said" 2>&1 || { cat "$WORK/said"; return 1; }
    cat "$WORK/said"
    grep -q '^driver: ' "$WORK/said" && grep -q '^smoke .*skipped .*driver' "$WORK/said" && [ "$(tail -n 1 "$WORK/said")" = '0 passed, 0 failed, 1 skipped' ]
}
# Small models on the CPU: all rows are there, the second client sends nothing.
models_on_the_cpu() {
    mkdir -p "$WORK/models" && cp "$EXAMPLES/chat" "$EXAMPLES/serve_text" "$EXAMPLES/genie_serve" "$WORK/models/" || return 1
    $CC -std=gnu11 -O1 ${SAN:+-fsanitize=$SAN} -pthread -I. bench/random_model.c "$BUILD/libgenie.a" -o "$WORK/models/random_model" $LIBS || return 1
    BUILD=$WORK/models DEVICE=cpu SMALLER=16 TOKENS=6 SLOTS=3 MODELS=$WORK bash tests/gpu_models.sh gpt2 llama_8b >"$WORK/said" 2>&1 || { cat "$WORK/said"; return 1; }
    sed -n '/^$/,$p' "$WORK/said" >"$WORK/table"
    cat "$WORK/table"
    [ "$(grep -cE '^(gpt2|llama_8b) .*(loading|decoding) +[0-9.e+-]+ (s|tokens/s) ' "$WORK/table")" = 16 ] || return 1
    [ "$(grep -cE 'through TLS, second client: loading .* 0 sent as 0$' "$WORK/table")" = 2 ] || return 1
    [ "$(grep -cE 'through TLS: loading .* GB, 0\.[0-9]+ sent as' "$WORK/table")" = 2 ] || return 1
    [ "$(grep -cE 'serve_text, 3 slots +[0-9.]+ tokens/s' "$WORK/table")" = 2 ]
}
# By a stand-in for onnx_run: tests that fail on the CPU too are no difference, one that fails on the device alone is told.
nodes_are_compared() {
    local name folder=$WORK/nodes programs=$WORK/node_programs
    mkdir -p "$programs" && cp "$EXAMPLES/genie_serve" "$programs/" || return 1
    for name in test_a test_b test_everywhere; do mkdir -p "$folder/$name" && : >"$folder/$name/model.onnx"; done
    cat >"$programs/onnx_run" <<'TEXT'
#!/bin/sh
ran=0 good=0
for test in "$2"/*; do
    name=$(basename "$test") ran=$((ran + 1))
    case $name,$4 in test_everywhere,* | test_there,there) echo "FAIL $name: of $4" ;; *) echo "ok $name"; good=$((good + 1)) ;; esac
done
echo "all node tests: $good of $ran (0.0 %)"
TEXT
    chmod +x "$programs/onnx_run"
    JOBS=2 DEVICE=cpu NODES=$folder BUILD=$programs bash tests/gpu_conformance.sh nodes >"$WORK/said" 2>/dev/null || { cat "$WORK/said"; return 1; }
    cat "$WORK/said"
    grep -q 'node tests: on cpu *passed *all node tests 2 of 3' "$WORK/said" || return 1
    mkdir "$folder/test_there" && : >"$folder/test_there/model.onnx"
    sed -i 's/,there)/,cpu)/; s/^ran=0/[ -e "$0.once" ] || { mkdir "$0.once"; set -- "$1" "$2" "$3" first; }; &/' "$programs/onnx_run"
    ! JOBS=1 DEVICE=cpu NODES=$folder BUILD=$programs bash tests/gpu_conformance.sh nodes >"$WORK/said" 2>/dev/null || return 1
    cat "$WORK/said"
    grep -q '^> test_there' "$WORK/said" && grep -q '^FAIL test_there: of cpu' "$WORK/said" && grep -q 'others fail than on the CPU' "$WORK/said"
}
models_help() { bash tests/gpu_models.sh --help | grep -q 'SMALLER=N divides'; }
demo_says_why() { fails_with 'driver' "$EXAMPLES/gpu_demo"; }

check node_tests_that_fail_on_a_device_alone_are_told nodes_are_compared
check bench_gpu_builds build_bench
check bench_gpu_help_names_every_flag help_names_every_flag
check bench_gpu_with_an_unknown_flag_is_refused fails_with 'nonsense' "$bench" --nonsense
check bench_gpu_without_the_value_of_only_is_refused fails_with 'only' "$bench" --only
check bench_gpu_with_an_unknown_child_is_refused fails_with 'child' "$bench" --child nothing
check bench_gpu_with_a_word_in_no_row_is_refused fails_with 'no row' "$bench" --device cpu --only no-such-row
check bench_gpu_without_a_gpu_skips_with_the_reason skips_without_a_gpu
if has python3; then check bench_gpu_row_has_its_error_and_bound row_on_the_cpu; else skip bench_gpu_row_has_its_error_and_bound "no python3 here"; fi
check gpu_script_help_says_what_there_is script_help
check gpu_script_with_an_unknown_word_is_refused fails_with 'unknown word' bash tests/gpu_conformance.sh nonsense
check gpu_script_without_a_gpu_skips_with_the_reason script_skips
check models_script_help_says_what_there_is models_help
check models_script_with_an_unknown_shape_is_refused fails_with 'unknown shape' bash tests/gpu_models.sh llama_9b
check models_load_and_decode_on_the_cpu models_on_the_cpu
check random_model_of_an_unknown_shape_is_refused fails_with 'llama_8b, not .llama_9b' "$WORK/models/random_model" "$WORK/x" --shape llama_9b
check random_model_without_a_folder_is_refused fails_with 'a directory' "$WORK/models/random_model" --shape gpt2
check gpu_demo_without_a_gpu_says_why demo_says_why
finish
