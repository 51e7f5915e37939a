#!/usr/bin/env bash
# examples/vision as a program: weights saved and read again, a server gives the same bits as this CPU, labels, JSON, PNG and
# JPEG, wrong command lines and files; compared with torchvision and timm where those are (PYTHONPATH or build/oracles).
# Tier: slow
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/home PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}
vision=$EXAMPLES/vision
small="--random mobilenet_v3_small --size 64 --classes 4"

# A disc of 40 x 30 pixels.
printf 'P6\n40 30\n255\n' >"$WORK/disc.ppm"
LC_ALL=C awk 'BEGIN { for (y = 0; y < 30; y++) for (x = 0; x < 40; x++) printf "%s", (x - 20) ^ 2 + (y - 15) ^ 2 < 90 ? "rst" : "AQa" }' >>"$WORK/disc.ppm"

draws_and_names_five_classes() {
    "$vision" >"$WORK/out" && cat "$WORK/out" && grep -q 'model *ResNet, 18 layers' "$WORK/out" && [ "$(grep -c ' % ' "$WORK/out")" = 5 ]
}
saved_and_served_weights_give_the_same_bits() {
    # shellcheck disable=SC2086 # the flags are words
    "$vision" $small --image "$WORK/disc.ppm" --save "$WORK/model" --out "$WORK/a" && "$vision" "$WORK/model" --size 64 --image "$WORK/disc.ppm" --out "$WORK/b" &&
        cmp "$WORK/a" "$WORK/b" && start_server "$WORK/server" || return 1
    "$vision" "$WORK/model/model.safetensors" --size 64 --image "$WORK/disc.ppm" --connect "@$WORK/server/url" --home "$WORK/client" --out "$WORK/c" | tee "$WORK/out"
    grep -q 'device *127.0.0.1' "$WORK/out" && cmp "$WORK/a" "$WORK/c"
}
labels_and_json_are_printed() {
    printf 'cat\nd"og\nf\377ish\r\nold owl' >"$WORK/labels"
    # shellcheck disable=SC2086
    "$vision" $small --image "$WORK/disc.ppm" --labels "$WORK/labels" --top 4 | tee "$WORK/out" | grep -q 'old owl' || return 1
    # shellcheck disable=SC2086
    "$vision" $small --image "$WORK/disc.ppm" --image="$WORK/disc.ppm" --labels "$WORK/labels" --json --bench 2 >"$WORK/out" || return 1
    cat "$WORK/out"
    ! has python3 || python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))
a, b = j["images"]
assert len(a["top"]) == 4 and abs(sum(t["share"] for t in a["top"]) - 1) < 1e-5 and j["images_per_second"] > 0, j
assert [t["label"] for t in a["top"]] == [t["label"] for t in b["top"]] and {"d\"og", "f\ufffdish"} < {t["label"] for t in a["top"]} and a["top"][0]["share"] >= a["top"][1]["share"], j' "$WORK/out"
}
wrong_arguments_and_files_are_told() {
    printf 'cat\ndog\n' >"$WORK/two"
    printf 'P5 65536 1 255\n' >"$WORK/wide.pgm"; head -c 65536 /dev/zero >>"$WORK/wide.pgm"
    printf 'P6 9999999 9999999 255\n' >"$WORK/huge.ppm"
    printf 'a\nb\nc\n%0300d\n' 1 >"$WORK/long"
    # shellcheck disable=SC2086
    fails_with 'line 4: a label has at most 255 bytes' "$vision" $small --labels "$WORK/long" && fails_with '2 labels, and the model has 4 classes' "$vision" $small --labels "$WORK/two" &&
        fails_with 'would become more than 65536 on the longer side' "$vision" $small --image "$WORK/wide.pgm" &&
        fails_with 'huge.ppm: a picture of 9999999 x 9999999 pixels' "$vision" $small --image "$WORK/huge.ppm" &&
        fails_with 'absent.ppm: No such file' "$vision" $small --image "$WORK/absent.ppm" &&
        fails_with 'not a picture that is read' "$vision" $small --image "$WORK/labels" &&
        fails_with '--save .*: (No such|Not a)' "$vision" $small --save "$WORK/no/such/folder" || return 1
    fails_with "no architecture 'resnet19'; there are: resnet18" "$vision" --random resnet19 && fails_with "not a multiple of vit_b_16's patches of 16" "$vision" --random vit_b_16 --size 65 &&
        fails_with 'either a model or --random' "$vision" "$WORK/model" --random resnet18 && fails_with '--names takes torchvision or timm' "$vision" --random resnet18 --names mine &&
        fails_with '--arch is about a model' "$vision" --arch resnet18 && fails_with 'no such|No such' "$vision" "$WORK/no-model" &&
        fails_with 'is a file already' "$vision" "$WORK/model" --save "$WORK/other" && fails_with 'less than the pictures' "$vision" --image a --image b --batch 1
}
# cuts_are_refused FILE: what is left of a picture at 40 places.
cuts_are_refused() {
    local size n; size=$(wc -c <"$1")
    for ((n = 12; n < size * 9 / 10; n += 1 + size / 40)); do
        head -c "$n" "$1" >"$WORK/cut"
        # shellcheck disable=SC2086
        fails_with "$WORK/cut: (lib|a picture)" "$vision" $small --image "$WORK/cut" || return 1
    done
}
# Where the library is absent, its name is in the error.
pictures_of_pillow_are_read_and_their_cuts_refused() {
    local kind
    python3 - "$WORK" <<'TEXT' || return 1
import sys
from PIL import Image
work = sys.argv[1]
image = Image.open(work + "/disc.ppm")
image.save(work + "/disc.png")
image.save(work + "/disc.jpg", quality=95)
alpha = image.convert("RGBA"); alpha.putalpha(0); alpha.save(work + "/clear.png")
Image.new("RGB", image.size, "white").save(work + "/white.ppm")
Image.open(work + "/disc.jpg").save(work + "/jpg.ppm")
TEXT
    for kind in png:disc:disc png:clear:white jpg:disc:jpg; do
        local name=${kind#*:}
        # shellcheck disable=SC2086
        if ! "$vision" $small --image "$WORK/${name%:*}.${kind%%:*}" --out "$WORK/a" >"$WORK/out" 2>&1; then
            grep -E 'install lib(png16|turbojpeg)' "$WORK/out" || return 1
            continue
        fi
        # shellcheck disable=SC2086
        "$vision" $small --image "$WORK/${name#*:}.ppm" --out "$WORK/b" || return 1
        cmp "$WORK/a" "$WORK/b" && cuts_are_refused "$WORK/disc.${kind%%:*}" || return 1
    done
}
equals() { timeout 800 python3 tests/vision_golden.py "$1" tests/golden/vision.txt "$vision"; }

check run_without_arguments_draws_a_picture draws_and_names_five_classes
check saved_and_served_weights_give_the_same_bits saved_and_served_weights_give_the_same_bits
check labels_and_json_are_printed labels_and_json_are_printed
check wrong_arguments_and_files_are_told wrong_arguments_and_files_are_told
if has python3 && python3 -c 'import PIL' 2>/dev/null; then check pictures_of_pillow_are_read_and_their_cuts_refused pictures_of_pillow_are_read_and_their_cuts_refused
else skip pictures_of_pillow_are_read_and_their_cuts_refused "no package PIL here"; fi
for mode in check own; do
    if has python3 && python3 -c 'import torch, torchvision, timm, safetensors' 2>/dev/null; then check "logits_are_those_of_torchvision_and_timm_$mode" equals "$mode"
    else skip "logits_are_those_of_torchvision_and_timm_$mode" "no packages torch, torchvision and timm here"; fi
done
finish
