#!/usr/bin/env bash
# Every parser of bytes that nobody vouches for: the fuzz targets of tests/fuzz/, over their corpora, the seeds they make and alterations
# of both that are the same on every run. `./build.sh fuzz NAME SECONDS` looks for more. GENIE_FUZZ_ALTERATIONS=20000: a longer run.
. "$(dirname "$0")/script.sh"
targets=$(for source in tests/fuzz/*_fuzz.c; do basename "$source" _fuzz.c; done)
alterations=${GENIE_FUZZ_ALTERATIONS:-100}
found=$BUILD/tests      # where inputs that fail are left

# All targets as one unit: the library is compiled once for them.
write_unit() {
    local name
    for name in $targets; do
        printf '#define LLVMFuzzerTestOneInput fuzz_run_%s\n#define fuzz_seed fuzz_seed_%s\n#include "tests/fuzz/%s_fuzz.c"\n' "$name" "$name" "$name"
        printf '#undef LLVMFuzzerTestOneInput\n#undef fuzz_seed\n'
    done
    printf '#include "tests/fuzz/replay.c"\nconst replay_target replay_targets[] = {\n'
    for name in $targets; do printf '    { "%s", fuzz_run_%s, fuzz_seed_%s },\n' "$name" "$name" "$name"; done
    printf '};\nconst size_t replay_n_targets = sizeof replay_targets / sizeof *replay_targets;\nsize_t replay_held(void) { return fuzz_held; }\n'
}

build_targets() {
    write_unit >"$WORK/targets.c"
    local optimise=-O1
    [ -z "${SAN:-}" ] || optimise="-O0 -g -fno-omit-frame-pointer -fsanitize=$SAN -fno-sanitize-recover=all"
    # shellcheck disable=SC2086 # the flags are words
    $CC -std=gnu11 $optimise -ffp-contract=off -pthread -Wall -Wextra -I. "$WORK/targets.c" -o "$WORK/replay" $LIBS
}

replays() { ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1} "$WORK/replay" "$alterations" "$found" "$1"; }

check fuzz_targets_build build_targets
for name in $targets; do check "${name}_survives_its_inputs_and_alterations_of_them" replays "$name"; done
finish
