#!/usr/bin/env bash
# examples/vqa as a program: what it learns about pictures that it has not seen, equal bits on a rerun, on a server and over two
# servers, towers side by side in the explanation, wrong command lines.
# Tier: slow
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/home
vqa=$EXAMPLES/vqa

# field NAME FILE: a number or text of the last line, one object of JSON.
field() { tail -n 1 "$2" | sed -n -E "s/.*\"$1\":\"?([^,\"}]*).*/\1/p"; }
print_of() { "$vqa" --steps 12 --min-accuracy 0 --json "$@" >"$WORK/out" && field fingerprint "$WORK/out"; }

learns_what_it_was_not_shown() {
    "$vqa" --json >"$WORK/learned" || { cat "$WORK/learned"; return 1; }
    cat "$WORK/learned"
    awk -v a="$(field accuracy "$WORK/learned")" -v c="$(field chance "$WORK/learned")" 'BEGIN { exit !(a >= 0.8 && c < 0.45) }'
}
rerun_gives_the_same_bits_and_another_seed_others() {
    local a b c; a=$(print_of) && b=$(print_of) && c=$(print_of --seed 2) || return 1
    echo "$a $b $c"
    [ ${#a} = 16 ] && [ "$a" = "$b" ] && [ "$a" != "$c" ]
}
# From a file the network answers as it did; another network's file is refused.
network_is_kept() {
    local trained loaded
    trained=$(print_of --save "$WORK/net") && cp "$WORK/out" "$WORK/before" && loaded=$(print_of --load "$WORK/net") || return 1
    echo "$trained $loaded"
    [ ${#trained} = 16 ] && [ "$trained" = "$loaded" ] && [ "$(field accuracy "$WORK/before")" = "$(field accuracy "$WORK/out")" ] &&
        head -c 1000 "$WORK/net" >"$WORK/short" && ! "$vqa" --load "$WORK/short" 2>"$WORK/why" && grep -q truncated "$WORK/why" &&
        ! "$vqa" --load "$WORK/net" --explain 2>"$WORK/why" && grep -q 'are of training' "$WORK/why"
}
servers_give_the_bits_of_this_cpu() {
    local here there both
    start_server "$WORK/one" --code-hours 1 && cp "$WORK/one/url" "$WORK/first" && start_server "$WORK/two" && here=$(print_of) || return 1
    there=$(print_of --connect "@$WORK/first") && both=$(print_of --connect "$(server_of "$WORK/first"),@$WORK/two/url") || return 1
    echo "$here $there $both"
    [ "$here" = "$there" ] && [ "$here" = "$both" ] && "$vqa" --explain --connect "$(server_of "$WORK/first"),$(server_of "$WORK/two/url")" | tee "$WORK/out" | grep -q 'of 2 devices used'
}
# The address in a URL: for a client that is paired by now.
server_of() { sed -n -E 's/.*(127\.0\.0\.1:[0-9]+).*/\1/p' "$1" | head -n 1; }
# device_of OP: where the explanation has it.
device_of() { sed -n -E "s/^(invented:[0-9]), .*: (.*, )?$1(, .*)? - .*/\1/p" "$WORK/explained" | head -n 1; }
towers_stand_side_by_side() {
    "$vqa" --explain >"$WORK/explained" || return 1
    cat "$WORK/explained"
    grep -q '2 of 2 devices used' "$WORK/explained" && grep -q 'runs at the same time as another part' "$WORK/explained" &&
        [ -n "$(device_of "patch embedding")" ] && [ -n "$(device_of embedding)" ] && [ "$(device_of "patch embedding")" != "$(device_of embedding)" ] &&
        grep -Eq '^encoder of vision: [0-9]+ groups on ' "$WORK/explained" && grep -Eq '^encoder of text: [0-9]+ groups on invented:[01]$' "$WORK/explained"
}
answers_are_printed_with_their_pictures() {
    "$vqa" --steps 2 --min-accuracy 0 >"$WORK/out" && cat "$WORK/out" && grep -q '^ok .*unseen pictures are right' "$WORK/out" && [ "$(grep -c ' ?  ' "$WORK/out")" = 4 ]
}
wrong_arguments_and_bad_results_are_told() {
    fails_with '--steps takes a number from 1' "$vqa" --steps 0 && fails_with '--lr takes a number' "$vqa" --lr fast && fails_with '--min-accuracy takes' "$vqa" --min-accuracy 2 &&
        fails_with 'FAILED .*at least 99.0 % asked' "$vqa" --steps 2 --min-accuracy 0.99 &&
        fails_with 'no/such' "$vqa" --steps 2 --min-accuracy 0 --answers "$WORK/no/such/file" && fails_with 'cannot open the device: .*nowhere' "$vqa" --connect cuda:nowhere
}

check learns_what_it_was_not_shown learns_what_it_was_not_shown
check rerun_gives_the_same_bits_and_another_seed_others rerun_gives_the_same_bits_and_another_seed_others
check network_is_kept network_is_kept
check servers_give_the_bits_of_this_cpu servers_give_the_bits_of_this_cpu
check towers_stand_side_by_side_on_two_devices towers_stand_side_by_side
check answers_are_printed_with_their_pictures answers_are_printed_with_their_pictures
check wrong_arguments_and_bad_results_are_told wrong_arguments_and_bad_results_are_told
finish
