#!/usr/bin/env bash
# genie.h alone on a host of 32 bits: compiled for 32-bit x86, tests of the core with it.
# Tier: slow
. "$(dirname "$0")/script.sh"
# The kernel's headers, which another cross compiler's package moves away, stand in the host's folder.
flags="-idirafter /usr/include/$($CC -print-multiarch 2>/dev/null) -m32 -msse2 -mfpmath=sse -std=gnu11 -O1 -ffp-contract=off -pthread -Wall -Wextra -Wconversion -Wshadow -Werror -I."

# program NAME: of tests/NAME_test.c, in $WORK
program() {
    local source=tests/$1_test.c objects=$WORK/genie.o
    ! grep -q '^ *# *define GENIE_IMPLEMENTATION' "$source" || objects=
    # shellcheck disable=SC2086 # the flags are words
    $CC $flags "$source" $objects -o "$WORK/$1" -lm -lpthread -ldl
}
# runs NAME LEAST [WORD ...]: those tests pass, and there are at least so many of them.
runs() {
    local name=$1 least=$2 n; shift 2
    program "$name" && timeout 200 "$WORK/$name" "$@" | tee "$WORK/run.log" || return 1
    n=$(sed -n -E 's/^([0-9]+) passed, 0 failed, .*/\1/p' "$WORK/run.log")
    [ "${n:-0}" -ge "$least" ]
}
# shellcheck disable=SC2086 # the flags are words
genie_compiles() { $CC $flags -DGENIE_IMPLEMENTATION -x c -c genie.h -o "$WORK/genie.o"; }
# Without these two flags every float would be computed with more digits than it has.
x87_is_refused() { ! $CC ${flags/-msse2 -mfpmath=sse/-mfpmath=387} -DGENIE_IMPLEMENTATION -fsyntax-only -x c genie.h 2>"$WORK/x87.log" && grep -q 'msse2' "$WORK/x87.log"; }

printf '#include <errno.h>\n#include <pthread.h>\n#include <math.h>\nint main(int n, char **v) { (void)v; return (int)sqrt(n - 1); }\n' >"$WORK/probe.c"
# shellcheck disable=SC2086 # the flags are words
if ! $CC $flags "$WORK/probe.c" -o "$WORK/probe" -lm -lpthread 2>/dev/null || ! "$WORK/probe"; then
    skip core_works_with_32_bits "$CC -m32 makes no programs here: apt-get install gcc-N-multilib, N the version of gcc, on x86-64"
    finish
fi
check genie_with_32_bits_compiles_without_a_warning genie_compiles
check genie_with_x87_arithmetic_is_refused x87_is_refused
check layouts_and_sizes_with_32_bits_are_bounded runs layout 5
check graphs_with_32_bits_compute_and_fail_as_they_should runs graph 50 _on_cpu
check bad_input_with_32_bits_is_a_typed_error runs bad_input 20 _on_cpu
check wire_with_32_bits_refuses_what_is_hostile runs wire 30
check corners_of_ops_with_32_bits_hold runs corner 20
finish
