#!/usr/bin/env bash
# The CPU executor on ARM: genie.h cross-compiled for aarch64, a part of the tests under qemu's user emulation.
# Tier: slow
. "$(dirname "$0")/script.sh"
cross=aarch64-linux-gnu-gcc
emulator=
for name in qemu-aarch64-static qemu-aarch64; do [ -n "$emulator" ] || ! has $name || emulator=$name; done
ops=(add matmul linear attention softmax layernorm sum argmax exp erf sin cast kv_append)

# cross_program SOURCE [FLAG ...]: a static program in $WORK, named as the source without _test.c
cross_program() {
    local source=$1 name; shift
    name=$(basename "$source" _test.c)
    "$cross" -std=gnu11 -O2 -ffp-contract=off -pthread -Wall -Wextra -Wconversion -Wshadow -Werror -I. "$@" -c "$source" -o "$WORK/$name.o" &&
        "$cross" -static "$WORK/$name.o" "$WORK/genie.o" -o "$WORK/$name" -lm -lpthread
}

genie_compiles() {
    "$cross" -std=gnu11 -O2 -ffp-contract=off -pthread -Wall -Wextra -Wconversion -Wshadow -Werror -I. -DGENIE_IMPLEMENTATION -x c -c genie.h -o "$WORK/genie.o"
}

# The matrix kernel keeps its 16 sums in vector registers: fused multiply-adds by a lane, no spills between them.
kernel_is_neon() {
    aarch64-linux-gnu-objdump -d --no-show-raw-insn "$WORK/genie.o" | awk '/^[0-9a-f]+ </ { inside = /<gn__micro_f32_base>/ } inside && /fmla/ { n++ } END { print n + 0, "vector multiply-adds"; exit !(n >= 8) }'
}

# runs PROGRAM LEAST WORD ...: those tests pass, and there are at least so many of them.
runs() {
    local program=$1 least=$2 n; shift 2
    timeout 300 "$emulator" "$WORK/$program" "$@" | tee "$WORK/run.log" || return 1
    n=$(sed -n -E 's/^([0-9]+) passed, 0 failed, .*/\1/p' "$WORK/run.log")
    [ "${n:-0}" -ge "$least" ]
}

gradients_agree() { cross_program tests/gradient_test.c && runs gradient 100; }
ops_agree() { cross_program tests/conformance_test.c -DCONFORMANCE_WITHOUT_NET && runs conformance 13 "${ops[@]/%/_on_cpu}"; }
threads_change_no_bit() { cross_program tests/paths_test.c && runs paths 4 threads_change_no_bit_of_product threads_change_no_bit_of_sum threads_change_no_bit_of_row; }

if ! has "$cross" || [ -z "$emulator" ]; then
    skip arm_compiles_and_computes "no $cross or no qemu-aarch64 here: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
    finish
fi
check genie_for_arm_compiles_without_a_warning genie_compiles
check matmul_kernel_for_arm_is_neon_code kernel_is_neon
check gradients_on_arm_agree_with_differences gradients_agree
check ops_on_arm_agree_with_the_reference ops_agree
check threads_on_arm_change_no_bit threads_change_no_bit
finish
