#!/usr/bin/env bash
# examples/diffusion: the loss falls on pictures never seen; equal seeds give equal pictures, here and over TLS; a network that was
# saved draws the same when it is loaded; the picture is a PPM of the right size; files that are not such networks are refused.
# Tier: quick
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/client TMPDIR=$WORK
draw() { timeout 200 "$EXAMPLES/diffusion" --samples 16 --sampling-steps 4 "$@" </dev/null; }
few=(--steps 6 --batch 8 --max-loss 9)
number() { tail -n 1 "$WORK/out" | sed -n "s/.*\"$1\":\([-0-9.e+]*\)[,}].*/\1/p"; }

the_loss_falls_on_pictures_never_seen() {
    draw --connect cpu --steps 80 --batch 8 --json --max-loss 9 --out "$WORK/learnt.ppm" >"$WORK/out" || { cat "$WORK/out"; return 1; }
    echo "before $(number loss_before), after $(number loss_after)"
    awk "BEGIN { exit !($(number loss_after) < 0.85 * $(number loss_before) && $(number loss_before) > 0.5) }"
}
equal_seeds_give_equal_pictures() {
    draw --connect cpu "${few[@]}" --out "$WORK/first.ppm" --save "$WORK/net.safetensors" >/dev/null && draw --connect cpu "${few[@]}" --out "$WORK/second.ppm" >/dev/null &&
        draw --connect cpu "${few[@]}" --seed 2 --out "$WORK/third.ppm" >/dev/null && cmp "$WORK/first.ppm" "$WORK/second.ppm" && ! cmp -s "$WORK/first.ppm" "$WORK/third.ppm"
}
a_server_draws_the_same() { draw "${few[@]}" --out "$WORK/remote.ppm" >/dev/null && cmp "$WORK/first.ppm" "$WORK/remote.ppm"; }
a_saved_network_draws_the_same() {
    draw --connect cpu --load "$WORK/net.safetensors" --out "$WORK/loaded.ppm" >"$WORK/out" && cmp "$WORK/first.ppm" "$WORK/loaded.ppm" &&
        ! grep -q 'training' "$WORK/out" && draw --load "$WORK/net.safetensors" --out "$WORK/there.ppm" >/dev/null && cmp "$WORK/first.ppm" "$WORK/there.ppm"
}
# Two rows of eight pictures of 16 pixels with a line between, each pixel four times four.
the_picture_is_a_grid() {
    [ "$(head -n 1 "$WORK/first.ppm")" = P6 ] && [ "$(sed -n 2p "$WORK/first.ppm")" = '548 140' ] &&
        [ "$(wc -c <"$WORK/first.ppm")" = $((3 + 8 + 4 + 548 * 140 * 3)) ] && [ "$(tail -c +16 "$WORK/first.ppm" | od -An -tu1 -v -w3 | sort -u | wc -l)" -gt 100 ]
}
files_that_are_no_such_network_are_refused() {
    head -c 1000 "$WORK/net.safetensors" >"$WORK/cut.safetensors"
    fails_with 'absent: No such file' draw --connect cpu --load "$WORK/absent" && fails_with 'cut.safetensors' draw --connect cpu --load "$WORK/cut.safetensors" || return 1
    local header
    sed 's/"in.bias"/"in.bios"/' "$WORK/net.safetensors" >"$WORK/name.safetensors"
    sed 's/\[32,12,3,3\]/[12,32,3,3]/' "$WORK/net.safetensors" >"$WORK/shape.safetensors"
    header='{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    printf '%b\0\0\0\0\0\0\0%s' "$(printf '\\x%x' ${#header})" "$header" >"$WORK/little.safetensors"
    fails_with 'in.bias: the file has no such tensor' draw --connect cpu --load "$WORK/name.safetensors" &&
        fails_with 'in.weight: it has another shape' draw --connect cpu --load "$WORK/shape.safetensors" && fails_with 'no such tensor' draw --connect cpu --load "$WORK/little.safetensors"
}
explain_and_wrong_options() {
    draw --connect cpu --batch 4 --explain >"$WORK/out" && grep -q '1 of 1 device used' "$WORK/out" || return 1
    fails_with 'not with --load' draw --load x --save y && fails_with 'samples takes a number from 1 to 1024' draw --samples 2000 &&
        fails_with 'no/such/x.ppm: No such file' draw --connect cpu "${few[@]}" --out "$WORK/no/such/x.ppm" &&
        fails_with 'no/such' draw --connect cpu "${few[@]}" --save "$WORK/no/such/net" &&
        fails_with 'no/such' draw --connect cpu "${few[@]}" --answers "$WORK/no/such/file" --out "$WORK/x.ppm" && fails_with 'FAILED loss' draw --connect cpu "${few[@]}" --max-loss 0.01 --out "$WORK/x.ppm"
}

check the_loss_falls_on_pictures_never_seen the_loss_falls_on_pictures_never_seen
check equal_seeds_give_equal_pictures equal_seeds_give_equal_pictures
check a_server_draws_the_same a_server_draws_the_same
check a_saved_network_draws_the_same a_saved_network_draws_the_same
check the_picture_is_a_grid the_picture_is_a_grid
check files_that_are_no_such_network_are_refused files_that_are_no_such_network_are_refused
check explain_and_wrong_options explain_and_wrong_options
finish
