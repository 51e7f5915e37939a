#!/usr/bin/env bash
# The node tests that PyPI's onnx generates (onnx.backend.test), built by examples/onnx_run on the CPU executor and, through TLS, on a
# server: both fractions, and tests/onnx_not_yet.txt, which has each test that does not pass with its reason, both ways.
# Skipped where the package is missing; tests/oracles.txt names it.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}
run=$EXAMPLES/onnx_run
unset GENIE_DEVICES

cat >"$WORK/generate.py" <<'TEXT'
import os, sys, warnings
warnings.simplefilter('ignore')
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

def bytes_of(value, kind, name):
    if isinstance(value, onnx.TensorProto): return value.SerializeToString()
    make = {'sequence_type': numpy_helper.from_list, 'map_type': numpy_helper.from_dict, 'optional_type': numpy_helper.from_optional}
    return make.get(kind.WhichOneof('value'), numpy_helper.from_array)(value, name).SerializeToString()

def write(path, data):
    with open(path, 'wb') as f: f.write(data)

for case in load_model_tests(kind='node'):
    assert (case.rtol, case.atol) == (1e-3, 1e-7), case.name      # what onnx_run compares with
    os.makedirs(f'{sys.argv[1]}/{case.name}')
    write(f'{sys.argv[1]}/{case.name}/model.onnx', case.model.SerializeToString())
    for i, sides in enumerate(case.data_sets):
        folder = f'{sys.argv[1]}/{case.name}/test_data_set_{i}'
        os.mkdir(folder)
        for side, values, slots in zip(('input', 'output'), sides, (case.model.graph.input, case.model.graph.output)):
            for j, value in enumerate(values): write(f'{folder}/{side}_{j}.pb', bytes_of(value, slots[j].type, slots[j].name))
TEXT

generates() { python3 "$WORK/generate.py" "$WORK/tests" && [ "$(find "$WORK/tests" -name model.onnx | wc -l)" -gt 1800 ]; }

# The program's status is 1 while a test of the list fails.
runs_on_this_cpu() { "$run" --check "$WORK/tests" >"$WORK/cpu.log" || [ $? = 1 ]; tail -n 4 "$WORK/cpu.log" | tee /dev/fd/3; }

failed_tests() { sed -n 's/^FAIL \([^:]*\):.*/\1/p' "$1" | sort; }
listed_tests() { grep -v '^#' tests/onnx_not_yet.txt | cut -d' ' -f1 | sort; }

list_is_exact() {
    echo "< a test that fails and is not in tests/onnx_not_yet.txt, > one of the list that passes, or is not there:"
    diff <(failed_tests "$WORK/cpu.log") <(listed_tests) && ! grep -vE '^#|^test_[A-Za-z0-9_]+ .{8,}' tests/onnx_not_yet.txt
}

# passes_of LABEL PERCENT: of the lines that the run ends with.
passes_of() { awk -F'[(%]' -v label="$1" -v least="$2" 'index($0, label ":") == 1 { found = 1; ok = $2 + 0 >= least; print } END { exit !(found && ok) }' "$WORK/cpu.log"; }

runs_on_a_server() {
    start_server "$WORK/server" || return 1
    "$run" --check "$WORK/tests" --connect "@$WORK/server/url" --home "$WORK/client" >"$WORK/tls.log" || [ $? = 1 ]
    [ "$(wc -l <"$WORK/tls.log")" -gt 1800 ] && diff <(failed_tests "$WORK/cpu.log") <(failed_tests "$WORK/tls.log")
}

exec 3>&1
if python3 -c 'import onnx.backend.test' 2>/dev/null; then
    check node_tests_are_generated generates
    check node_tests_run_in_one_process runs_on_this_cpu
    check node_tests_that_fail_are_in_the_list_and_no_other list_is_exact
    check node_tests_of_types_that_exist_pass passes_of 'node tests whose types exist here' 95
    check node_tests_of_all_types_pass passes_of 'all node tests' 93
    check node_tests_through_tls_are_the_same runs_on_a_server
else
    skip node_tests_pass "python3 has no onnx (pip install --target build/oracles -r tests/oracles.txt)"
fi
finish
