#!/usr/bin/env bash
# Ops that ONNX's node tests leave out, compared with onnxruntime by tests/onnx_ops.py: regions whose samples are as many as their
# elements, ai.onnx.ml, maps, models that skl2onnx exports of scikit-learn's, declared types, and the distribution of random numbers.
# Each standard op is built or refused with a reason. Skipped where a package is missing; tests/oracles.txt names them.
# Tier: slow
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}
unset GENIE_DEVICES

equals() {
    mkdir "$WORK/$1" && timeout 300 python3 -W ignore tests/onnx_ops.py "$1" "$EXAMPLES" "$WORK/$1" | tee /dev/fd/3
    [ "${PIPESTATUS[0]}" = 0 ]
}

lacking() { for module in "$@"; do python3 -c "import $module" 2>/dev/null || printf ' %s' "$module"; done; }

exec 3>&1
without=$(lacking numpy onnx onnxruntime)
without_sklearn=$without$(lacking sklearn skl2onnx)
for group in regions encoders linear vectors old_trees maps sklearn declared random known; do
    missing=$without
    [ $group != sklearn ] || missing=$without_sklearn
    if [ -z "$missing" ]; then
        check "${group}_are_those_of_onnxruntime" equals $group
    else
        skip "${group}_are_those_of_onnxruntime" "python3 has no$missing (pip install --target build/oracles -r tests/oracles.txt)"
    fi
done
finish
