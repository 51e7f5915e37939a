#!/usr/bin/env bash
# The models of examples/ (vision, vqa, recommend, diffusion, speech) compared with onnxruntime: tests/onnx_models.py writes each as
# an ONNX graph of the weights that the program has written; the program's results, onnx_run's and onnxruntime's are the same, and
# are not where weights differ by a thousandth. So with what ONNX's node tests leave out: Scan of batches, forests, and operators of old sets. Skipped where a package is missing; tests/oracles.txt names them.
# Tier: slow
. "$(dirname "$0")/script.sh"
export GENIE_HOME=$WORK/home PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}
unset GENIE_DEVICES

equals() {
    local status=0
    mkdir "$WORK/$1"
    timeout 300 python3 tests/onnx_models.py "$1" "$EXAMPLES" "$WORK/$1" | tee /dev/fd/3 || status=$?
    rm -rf "${WORK:?}/$1" # a ViT takes a gigabyte
    return $status
}

exec 3>&1
missing=$(for module in numpy safetensors onnx onnxruntime; do python3 -c "import $module" 2>/dev/null || printf ' %s' "$module"; done)
for model in resnet18 resnet50 mobilenet_v3_large mobilenet_v3_small convnext_tiny vit_b_16 vqa recommend diffusion speech scan_of_batches trees operators_of_{7,8,9,10,11,12,13}; do
    if [ -z "$missing" ]; then
        check "${model}_is_that_of_onnxruntime" equals $model
    else
        skip "${model}_is_that_of_onnxruntime" "python3 has no$missing (pip install --target build/oracles -r tests/oracles.txt)"
    fi
done
finish
