#!/usr/bin/env bash
# What a person types wrongly: every program answers --help and --version, and refuses with status 1 or 2 and a sentence what it
# does not know, cannot read or cannot write.
# Tier: quick
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/home
version="genie $(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)"

# y = -x of two floats
printf '\010\010\102\002\020\015\072\043\012\013\012\001x\022\001y\042\003Neg\132\017\012\001x\022\012\012\010\010\001\022\004\012\002\010\002\142\003\012\001y' >"$WORK/negative.onnx"

answers_help_and_version() {
    local out; out=$("$1" --help </dev/null) || return 1
    grep -q "usage: .*$(basename "$1")" <<<"$out" && grep -q -- '--version' <<<"$out" && [ "$("$1" --version)" = "$version" ]
}
refuses_what_it_does_not_know() {
    local status=0
    "$1" --nonsense >"$WORK/out" 2>"$WORK/errors" </dev/null || status=$?
    cat "$WORK/out" "$WORK/errors"
    [ "$status" = 2 ] && [ ! -s "$WORK/out" ] && grep -qE "unknown option '--nonsense'|usage:" "$WORK/errors"
}
onnx_run_checks_names_and_files() {
    local run=$EXAMPLES/onnx_run
    "$run" "$WORK/negative.onnx" --out "$WORK/new" >/dev/null && [ -s "$WORK/new/y.npy" ] &&
        "$run" "$WORK/negative.onnx" --input "x=$WORK/new/y.npy" >/dev/null &&
        fails_with 'z=.*: the model has no such input' "$run" "$WORK/negative.onnx" --input "z=$WORK/new/y.npy" &&
        fails_with 'absent.npy: No such file' "$run" "$WORK/negative.onnx" --input "x=$WORK/absent.npy" &&
        fails_with 'is a directory' "$run" "$WORK/negative.onnx" --input "x=$WORK/new" &&
        fails_with 'not a .npy file' "$run" "$WORK/negative.onnx" --input "x=$WORK/negative.onnx.npy" &&
        fails_with 'cut.pb: tensor: byte' "$run" "$WORK/negative.onnx" --input "x=$WORK/cut.pb" &&
        fails_with 'new: no folder in it has a model.onnx' "$run" --check "$WORK/new" || return 1
    fails_with "--out .*: (No such|Not a|Permission)" "$run" "$WORK/negative.onnx" --out "$WORK/no/such/folder" && fails_with 'either a model or --check' "$run"
}
explain_checks_policy_and_file() {
    fails_with 'takes latency, throughput or bytes, not fastest' "$EXAMPLES/explain" --policy fastest &&
        fails_with 'no/such/x.svg: No such file' "$EXAMPLES/explain" --svg "$WORK/no/such/x.svg"
}
servers_that_are_not_known_are_told() {
    fails_with '127.0.0.1:1 is not a server known here: connect once with the URL' "$EXAMPLES/genie_serve" top 127.0.0.1:1 --once &&
        fails_with "takes a size such as 512M" "$EXAMPLES/genie_serve" --memory 8X && fails_with 'takes error, warn, info or debug' "$EXAMPLES/genie_serve" --log-level loud
}

cp "$WORK/negative.onnx" "$WORK/negative.onnx.npy"
head -c 9 "$WORK/negative.onnx" >"$WORK/cut.pb"
for program in lazy errors two_clients explain gpu_demo remote_mlp remote_decode chat serve_text recommend diffusion speech onnx_run vision vqa genie_trace genie_serve; do
    check "${program}_answers_help_and_version" answers_help_and_version "$EXAMPLES/$program"
    check "${program}_refuses_an_unknown_option" refuses_what_it_does_not_know "$EXAMPLES/$program"
done
check onnx_run_checks_names_and_files onnx_run_checks_names_and_files
check explain_checks_policy_and_file explain_checks_policy_and_file
check servers_that_are_not_known_are_told servers_that_are_not_known_are_told
finish
