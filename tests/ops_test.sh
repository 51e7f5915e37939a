#!/usr/bin/env bash
# No op has become slower than the table bench/ops.txt keeps by more than a third, each measured beside what the machine gives at
# that moment. On another CPU than the table's, and while others compute here, there is nothing to compare with. OPS_TEST=all measures
# every row.
# Tier: slow
. "$(dirname "$0")/script.sh"
program=$BUILD/bench/bench_core
unset TORCH_BENCH GENIE_ISA GENIE_BLAS GENIE_THREADS GENIE_DEVICES

# Rows of 16 KiB or 4 MiB and those of one size; every other size where all are asked for.
rows='ops_*_@(16K|f32_4M|512|2048|64)'
[ "${OPS_TEST:-}" != all ] || rows='ops_*'

# measure FLAGS ...: 77 and a line SKIP on another CPU.
measure() {
    local status=0
    timeout -k 10 600 "$program" --threads 1 --quick "$@" >"$WORK/measured" 2>&1 || status=$?
    grep -vE 'us, ceiling' "$WORK/measured" | cut -c 1-200
    return $status
}

rows_are_as_fast_as_the_table() {
    measure --only "$rows" --check bench/ops.txt && grep -qE '^  [0-9]{3,} rows$' "$WORK/measured"
}

# A table made now, in which one row is said to have been four times as fast.
fallen_row_is_told() {
    measure --only 'ops_add_f32_@(16K|4M)' --keep "$WORK/now.txt" || return 1
    awk '/^ops_add_f32_4M/ { $2 *= 4 } { print }' "$WORK/now.txt" >"$WORK/faster.txt"
    fails_with 'fell by more than a third' measure --only 'ops_add_f32_@(16K|4M)' --check "$WORK/faster.txt" || return 1
    grep -q 'ops_add_f32_4M .*fell to' "$WORK/measured" && ! grep -q 'ops_add_f32_16K .*fell to' "$WORK/measured"
}

table_of_another_cpu_is_not_compared_with() {
    local status=0
    printf '# cpu another\n# threads 1\nops_add_f32_16K 100\n' >"$WORK/other.txt"
    measure --only ops_add_f32_16K --check "$WORK/other.txt" || status=$?
    [ "$status" = 77 ] && grep -q '^SKIP.*another' "$WORK/measured"
}

# The rows of the op table but leaves, those that only change a shape or have a row under the name of another, and those of
# quantised weights, which rows have none of: bench_core's rows of decoding measure these. An op of gradients alone (_back) has no builder.
ops_without_a_row() {
    sed -n -E 's/^    ([UBDCPT]|UN|BN|X)\( *([A-Z_0-9]+), +([a-z_0-9]+), +0x.*/\3/p' genie.h | sort -u >"$WORK/ops"
    echo "$(wc -l <"$WORK/ops") ops"
    [ "$(wc -l <"$WORK/ops")" -gt 90 ] || return 1
    while read -r op; do
        case $op in reshape | kv_append | page_append | page_attention | assign | rotary_table | *_quantized | *_back) continue ;; esac
        grep -qE "gn_$op\(|X\($op," bench/ops_rows.h || { echo "no row: $op"; echo "$op" >>"$WORK/without"; }
    done <"$WORK/ops"
    [ ! -e "$WORK/without" ]
}

# Whether this machine computes for others too, now or within the last minute: what they take of caches and memory no row can know.
machine_is_busy() {
    local running
    for _ in 1 2 3 4 5 6 7 8; do
        running=$(cut -d ' ' -f 4 /proc/loadavg 2>/dev/null | cut -d / -f 1)
        [ "${running:-9}" -le 1 ] || return 0
        sleep 0.25
    done
    ! awk '{ exit !($1 < 1.5) }' /proc/loadavg
}

told() { cat "$WORK/rows"; return "$1"; }

check each_op_has_a_row_in_the_benchmark ops_without_a_row
check table_of_another_cpu_is_not_compared_with table_of_another_cpu_is_not_compared_with
measure --only ops_add_f32_16K --check bench/ops.txt >/dev/null
if [ $? = 77 ]; then
    skip rows_are_as_fast_as_the_table "$(grep -m 1 '^SKIP' "$WORK/measured" | cut -c 7-)"
elif machine_is_busy; then
    skip rows_are_as_fast_as_the_table "others compute on this machine: run tests/ops_test.sh alone"
else
    check fallen_row_is_told fallen_row_is_told
    status=0
    rows_are_as_fast_as_the_table >"$WORK/rows" 2>&1 || status=$?
    if [ "$status" != 0 ] && machine_is_busy; then
        skip rows_are_as_fast_as_the_table "others began to compute on this machine: run tests/ops_test.sh alone"
    else
        check rows_are_as_fast_as_the_table told "$status"
    fi
fi
finish
