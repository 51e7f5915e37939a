#!/usr/bin/env bash
# The node tests that PyPI's onnx generates (onnx.backend.test), built by examples/onnx_run on the CPU executor and, through TLS, on a
# server: both fractions, and tests/onnx_not_yet.txt, which has each test that does not pass with its reason, both ways. Those of
# Debian's libonnx-testdata: both fractions, on both. Skipped where a package is missing; tests/oracles.txt names the first.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}
run=$EXAMPLES/onnx_run
unset GENIE_DEVICES

generates() { python3 tests/onnx_node_tests.py "$WORK/tests" && [ "$(find "$WORK/tests" -name model.onnx | wc -l)" -gt 1800 ]; }

# The program's status is 1 while a test of the list fails.
runs_on_this_cpu() { "$run" --check "$WORK/tests" >"$WORK/cpu.log" || [ $? = 1 ]; tail -n 4 "$WORK/cpu.log" | tee /dev/fd/3; }

failed_tests() { sed -n 's/^FAIL \([^:]*\):.*/\1/p' "$1" | sort; }
listed_tests() { grep -v '^#' tests/onnx_not_yet.txt | cut -d' ' -f1 | sort; }

list_is_exact() {
    echo "< a test that fails and is not in tests/onnx_not_yet.txt, > one of the list that passes, or is not there:"
    diff <(failed_tests "$WORK/cpu.log") <(listed_tests) && ! grep -vE '^#|^test_[A-Za-z0-9_]+ .{8,}' tests/onnx_not_yet.txt
}

# A test whose data is not there has not passed.
test_without_data_fails() {
    mkdir "$WORK/bare" && cp "$WORK/tests/test_abs/model.onnx" "$WORK/bare/" || return 1
    ! "$run" --check "$WORK/bare" >"$WORK/bare.log" && grep "^FAIL .*nothing to compare" "$WORK/bare.log"
}

# passes_of LABEL PERCENT [LOG]: of the lines that the run ends with.
passes_of() { awk -F'[(%]' -v label="$1" -v least="$2" 'index($0, label ":") == 1 { found = 1; ok = $2 + 0 >= least; print } END { exit !(found && ok) }' "${3:-$WORK/cpu.log}"; }

runs_on_a_server() {
    start_server "$WORK/server" || return 1
    "$run" --check "$WORK/tests" --connect "@$WORK/server/url" --home "$WORK/client" >"$WORK/tls.log" || [ $? = 1 ]
    [ "$(wc -l <"$WORK/tls.log")" -gt 1800 ] && diff <(failed_tests "$WORK/cpu.log") <(failed_tests "$WORK/tls.log")
}

debian=${ONNX_TESTDATA:-/usr/share/libonnx-testdata/data/node}
debian_tests_run() {
    "$run" --check "$debian" >"$WORK/debian.log" || [ $? = 1 ]; tail -n 4 "$WORK/debian.log" | tee /dev/fd/3
    [ "$(grep -cE '^(ok|FAIL) ' "$WORK/debian.log")" -gt 800 ]
}
debian_tests_through_tls() {
    start_server "$WORK/debian.server" || return 1
    "$run" --check "$debian" --connect "@$WORK/debian.server/url" --home "$WORK/debian.client" >"$WORK/debian.tls" || [ $? = 1 ]
    diff <(failed_tests "$WORK/debian.log") <(failed_tests "$WORK/debian.tls")
}

exec 3>&1
if python3 -c 'import onnx.backend.test' 2>/dev/null; then
    check node_tests_are_generated generates
    check node_tests_run_in_one_process runs_on_this_cpu
    check node_tests_that_fail_are_in_the_list_and_no_other list_is_exact
    check node_test_without_data_fails test_without_data_fails
    check node_tests_of_types_that_exist_pass passes_of 'node tests whose types exist here' 95
    check node_tests_of_all_types_pass passes_of 'all node tests' 95
    check node_tests_through_tls_are_the_same runs_on_a_server
else
    skip node_tests_pass "python3 has no onnx (pip install --target build/oracles -r tests/oracles.txt)"
fi
if [ -d "$debian" ]; then
    check debian_node_tests_run debian_tests_run
    check debian_node_tests_of_types_that_exist_pass passes_of 'node tests whose types exist here' 95 "$WORK/debian.log"
    check debian_node_tests_of_all_types_pass passes_of 'all node tests' 88 "$WORK/debian.log"
    check debian_node_tests_through_tls_are_the_same debian_tests_through_tls
else
    skip debian_node_tests_pass "there is no $debian (apt-get install libonnx-testdata)"
fi
finish
