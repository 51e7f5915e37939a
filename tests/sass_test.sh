#!/usr/bin/env bash
# Warpgroup kernels in machine code: no sum is read before the wait for its products (sass_scan.c says why). Kernels of every form are
# generated and compiled by NVRTC without a GPU and disassembled by nvdisasm: $GENIE_NVDISASM, the toolkit's, or its Python wheel of
# a pinned digest in build/nvdisasm. Skips with the reason without NVRTC or nvdisasm.
# Tier: slow kernels
. "$(dirname "$0")/script.sh"
wheel='nvidia-cuda-nvdisasm==13.5.37 --hash=sha256:d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca'
folder=$ROOT/build/nvdisasm
unset GENIE_CUDA_TENSOR GENIE_CUDA_WGMMA GENIE_CUDA_CLUSTER

find_nvdisasm() {
    nvdisasm=${GENIE_NVDISASM:-$(command -v nvdisasm || ls /usr/local/cuda/bin/nvdisasm 2>/dev/null)}
    [ -z "$nvdisasm" ] || return 0
    nvdisasm=$folder/nvidia/cu13/bin/nvdisasm
    fetch_wheel "$wheel" "$folder" nvidia/cu13/bin/nvdisasm && chmod +x "$nvdisasm"
}

build_scan() { $CC -std=gnu11 -O2 -Wall -Wextra -o "$WORK/sass_scan" tests/sass_scan.c; }
# says STATUS TEXT FILE ...: the scan of these files ends with this status and prints this.
says() {
    local want=$1 text=$2 status=0; shift 2
    "$WORK/sass_scan" "$@" >"$WORK/said" 2>&1 || status=$?
    head -n 40 "$WORK/said"
    [ "$status" = "$want" ] && grep -qE "$text" "$WORK/said"
}

# ---- what the scan finds, by texts of a few lines ----

# A loop of products, each waited for one step later, and what follows it: $1.
write_loop() {
    local line at=0
    printf '.text.loop:\n'
    while read -r line; do
        case $line in .L*) printf '%s\n' "$line" ;; *) printf '        /*%04x*/                   %s ;\n' "$at" "$line"; at=$((at + 16)) ;; esac
    done <<TEXT
.L_x_1:
WARPGROUP.ARRIVE
HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24
HGMMA.64x128x16.F32.BF16 R24, R96, gdesc[UR4], R24, gsb0
WARPGROUP.DEPBAR.LE gsb0, 0x1
@P0 BRA \`(.L_x_1)
$1
EXIT
TEXT
}
read_behind_its_wait_is_right() {
    write_loop $'WARPGROUP.DEPBAR.LE gsb0, 0x0\nF2FP.BF16.F32.PACK_AB R100, R87, R86\nIMAD.MOV.U32 R96, RZ, RZ, R24' >"$WORK/text"
    says 0 'ok loop: 2 products' "$WORK/text"
}
read_above_its_wait_is_found() {
    write_loop $'F2FP.BF16.F32.PACK_AB R100, R87, R86\nWARPGROUP.DEPBAR.LE gsb0, 0x0' >"$WORK/text"
    says 1 'FAULT loop: touches sums .*: F2FP.BF16.F32.PACK_AB R100' "$WORK/text"
}
wide_read_above_its_wait_is_found() {
    write_loop $'STS.128 [R4], R20\nSTS.128 [R4], R84\nWARPGROUP.DEPBAR.LE gsb0, 0x0' >"$WORK/text"
    says 1 'FAULT loop: touches sums .*: STS.128 ..4., R84' "$WORK/text"
}
write_of_what_is_multiplied_is_found() {
    write_loop $'LDS.64 R96, [R4]\nWARPGROUP.DEPBAR.LE gsb0, 0x0' >"$WORK/text"
    says 1 'FAULT loop: writes registers .*: LDS.64 R96' "$WORK/text"
}
text_without_products_is_no_success() {
    printf '.text.none:\n        /*0000*/                   EXIT ;\n' >"$WORK/text"
    says 2 '^0 products' "$WORK/text"
}

# ---- the kernels ----

compile() {
    mkdir -p "$WORK/cache"
    GENIE_CUDA_ONE_OF_EACH=kind GENIE_CACHE=$WORK/cache GENIE_CUDA_COMPILE_ONLY=sm_90a \
        "$BUILD/tests/gpu_test" tf32_products large_products products_on_tensor plain_products attention_agrees attention_written_out_of loops_after all_kernels_compile --seed 1 >"$WORK/compile" 2>&1
    local status=$?
    tail -n 20 "$WORK/compile"
    return $status
}
# A program in the cache has a head and the kernels' texts before it; its bytes are the third number of the head.
disassemble() {
    local program bytes
    for program in "$WORK"/cache/*.cubin; do
        bytes=$(od -An -tu8 -j16 -N8 "$program") || return 1
        tail -c "${bytes// /}" "$program" >"${program%.cubin}.elf" && "$nvdisasm" -c "${program%.cubin}.elf" >"${program%.cubin}.sass" || return 1
    done
}
no_kernel_reads_above_a_wait() { says 0 ' 0 faults' "$WORK"/cache/*.sass; }
every_form_was_there() {
    local form
    for form in {tf32,bf16,f16}_{128x256,128x192,192x192,128x128,128x128_k4,64x128,64x128_k4,64x64,64x64_k4} attention_{bf16,f16}_{64,128}; do
        grep -qE "^ok wgmma_${form}_" "$WORK/said" || { echo "no kernel wgmma_$form"; return 1; }
    done
    grep -qE '^ok wgmma_attention_bf16_64_written_mul_add_' "$WORK/said" || { echo "no wgmma_attention with a loop on scores"; return 1; }
}
every_tile_of_plain_f32_was_there() {
    local tile
    for tile in 128x128_k{1,2} 64x256_k2 64x128_k{2,4} 64x64_k4 32x128_k{4,8} 32x64_k8 16x128_k8; do
        grep -qE "^\.text\.sgemm_fed_${tile}x" "$WORK"/cache/*.sass || { echo "no kernel sgemm_fed_$tile"; return 1; }
    done
}
# What one thread of a fed kernel holds stays in registers while it multiplies: its loop has no time for spilled ones. Before the loop and
# behind it a few may be put away.
fed_kernels_spill_nothing() {
    ! awk '/^\.text\./ { name = $1; products = spills = 0 }
        name ~ /sgemm_fed/ && /FFMA/ { if (spills && ++behind == 64) { print name; found = 1 } products++ }
        name ~ /sgemm_fed/ && /(LDL|STL)/ && products { spills++; behind = 0 }
        END { exit !found }' "$WORK"/cache/*.sass
}
# Each last wait that leaves one group under way must be found, in every kernel.
weaker_waits_are_found() {
    local text
    for text in "$WORK"/cache/*.sass; do sed 's/\(WARPGROUP.DEPBAR.LE gsb0, \)0x0/\10x1/' "$text" >"${text%.sass}.weak"; done
    says 1 '^wrong wgmma' "$WORK"/cache/*.weak && ! grep '^ok' "$WORK/said"
}

check scan_builds build_scan
check read_behind_its_wait_is_right read_behind_its_wait_is_right
check read_above_its_wait_is_found read_above_its_wait_is_found
check wide_read_above_its_wait_is_found wide_read_above_its_wait_is_found
check write_of_what_is_multiplied_is_found write_of_what_is_multiplied_is_found
check text_without_products_is_no_success text_without_products_is_no_success
if [ ! -x "$BUILD/tests/gpu_test" ]; then
    skip warpgroup_kernels_wait_for_their_products "gpu_test is not built"
elif ! find_nvdisasm >"$WORK/fetch" 2>&1; then
    skip warpgroup_kernels_wait_for_their_products "nvdisasm cannot be had: $(grep -v '^ *$' "$WORK/fetch" | tail -n 1 | cut -c1-150)"
elif ! compile >"$WORK/compiled" 2>&1 && grep -qE 'NVRTC|libnvrtc' "$WORK/compiled"; then
    skip warpgroup_kernels_wait_for_their_products "$(grep -m 1 -E 'NVRTC|libnvrtc' "$WORK/compiled" | cut -c1-150)"
else
    check kernels_compile grep -qE '^[0-9]+ passed, 0 failed' "$WORK/compiled"
    check kernels_are_disassembled disassemble
    check no_kernel_reads_above_a_wait no_kernel_reads_above_a_wait
    check every_form_was_there every_form_was_there
    check every_tile_of_plain_f32_was_there every_tile_of_plain_f32_was_there
    check fed_kernels_spill_nothing fed_kernels_spill_nothing
    check weaker_waits_are_found weaker_waits_are_found
fi
finish
