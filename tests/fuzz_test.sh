#!/usr/bin/env bash
# Every parser of bytes that nobody vouches for: the fuzz targets of tests/fuzz/, over their corpora, the seeds they make and alterations
# of both that are the same on every run. `./build.sh fuzz NAME SECONDS` looks for more. GENIE_FUZZ_ALTERATIONS=1000000: a longer run.
# Tier: quick address
. "$(dirname "$0")/script.sh"
targets=$(for source in tests/fuzz/*_fuzz.c; do basename "$source" _fuzz.c; done)
alterations=${GENIE_FUZZ_ALTERATIONS:-$([ -n "${SAN:-}" ] && echo 500 || echo 2000)}
found=$BUILD/tests      # where inputs that fail are left

# write_unit HEADER: the targets of the network unit (fuzz_net.h), or all others (fuzz.h), as one unit, so that it is compiled once for them.
write_unit() {
    local name header
    printf '#include "tests/fuzz/%s"\n' "$1"
    for name in $targets; do
        header=fuzz.h
        ! grep -q '^#include "fuzz_net.h"' "tests/fuzz/${name}_fuzz.c" || header=fuzz_net.h
        [ "$header" = "$1" ] || continue
        printf '#define LLVMFuzzerTestOneInput fuzz_run_%s\n#define fuzz_seed fuzz_seed_%s\n#include "tests/fuzz/%s_fuzz.c"\n' "$name" "$name" "$name"
        printf '#undef LLVMFuzzerTestOneInput\n#undef fuzz_seed\n'
    done
}

write_main() {
    local name
    printf '#include "tests/fuzz/replay.c"\n'
    for name in $targets; do printf 'int fuzz_run_%s(const uint8_t *, size_t);\nsize_t fuzz_seed_%s(size_t, uint8_t *, size_t);\n' "$name" "$name"; done
    printf 'const replay_target replay_targets[] = {\n'
    for name in $targets; do printf '    { "%s", fuzz_run_%s, fuzz_seed_%s },\n' "$name" "$name" "$name"; done
    printf '};\nconst size_t replay_n_targets = sizeof replay_targets / sizeof *replay_targets;\n'
}

build_targets() {
    write_unit fuzz.h >"$WORK/core.c" && echo 'size_t replay_held(void) { return fuzz_held; }' >>"$WORK/core.c"
    write_unit fuzz_net.h >"$WORK/net.c" && write_main >"$WORK/main.c"
    local optimise=-O1
    [ -z "${SAN:-}" ] || optimise="-O0 -g -fno-omit-frame-pointer -fsanitize=$SAN -fno-sanitize-recover=all"
    # shellcheck disable=SC2086 # the flags are words
    $CC -std=gnu11 $optimise -ffp-contract=off -pthread -Wall -Wextra -Werror -I. "$WORK/core.c" "$WORK/net.c" genie_cuda.c "$WORK/main.c" -o "$WORK/replay" $LIBS &&
        $CC -std=gnu11 -O1 -g -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread
}

# GPUs of three architectures, whose kernels compute nothing; no kernel is kept from one input to the next.
export GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_EMPTY=1 GENIE_SHIM_DEVICES=3 GENIE_SHIM_ARCH=60,80,90
export GENIE_CUDA_KERNELS=0 GENIE_CACHE=$WORK/none/none GENIE_CUBLASLT=0 GENIE_CUDA_TUNE=0 GENIE_MEASURE=0

# The last line says how many inputs there were.
replays() { ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1} "$WORK/replay" "$alterations" "$found" "$1" | tee "$WORK/replay.log" && tail -n 1 "$WORK/replay.log" >&3; }

exec 3>&1
check fuzz_targets_build build_targets
for name in $targets; do check "${name}_survives_its_inputs_and_alterations_of_them" replays "$name"; done
finish
