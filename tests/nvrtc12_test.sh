#!/usr/bin/env bash
# One kernel of each kind, compiled by NVRTC 12 for the architectures that NVRTC 13 no longer knows. The library comes from its
# Python wheel, of a pinned digest, into build/nvrtc12; without pip or network this skips.
# Tier: slow kernels
. "$(dirname "$0")/script.sh"
wheel='nvidia-cuda-nvrtc-cu12==12.6.85 --hash=sha256:800927308ccc5dd6246d3f61f7fcef2ed7ec4e59e199090d360d3293f78bd5a2'
folder=$ROOT/build/nvrtc12
lib=$folder/nvidia/cuda_nvrtc/lib


compile() {
    GENIE_NVRTC=$lib KERNELS_ARCHS='sm_60 sm_70' "$BUILD/tests/kernels_test" --seed 1 >"$WORK/kernels" 2>&1
    local status=$?
    grep -vE '^SKIP' "$WORK/kernels" | tail -n 30
    [ "$status" = 0 ] && [ "$(grep -cE '^sm_(60|70): [1-9][0-9]+ kernels' "$WORK/kernels")" = 2 ]
}

if [ ! -x "$BUILD/tests/kernels_test" ]; then
    skip kernels_compile_by_nvrtc_12_for_sm_60_and_sm_70 "kernels_test is not built: ./build.sh kernels runs this test with its programs"
elif ! fetch_wheel "$wheel" "$folder" nvidia/cuda_nvrtc/lib/libnvrtc.so.12 >"$WORK/fetch" 2>&1; then
    skip kernels_compile_by_nvrtc_12_for_sm_60_and_sm_70 "the wheel of NVRTC 12 cannot be had: $(grep -v '^ *$' "$WORK/fetch" | tail -n 1 | cut -c1-150)"
else
    check kernels_compile_by_nvrtc_12_for_sm_60_and_sm_70 compile
fi
finish
