#!/usr/bin/env bash
# examples/recommend: it learns the hidden rule (AUC on visits never seen); its AUC is that of a count of all pairs; equal seeds give
# equal bits, here, over TLS and over two servers; with tables on one server and the MLPs on another, the bags cross and not the tables.
# Tier: quick
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/client TMPDIR=$WORK
recommend() { timeout 120 "$EXAMPLES/recommend" "$@" </dev/null; }
# number NAME: of the JSON in the last line of $WORK/out.
number() { tail -n 1 "$WORK/out" | sed -n "s/.*\"$1\":\([-0-9.e+]*\)[,}].*/\1/p"; }
holds() { awk "BEGIN { exit !($1) }" || { echo "not so: $1"; return 1; }; }

learns_to_rank_visits_never_seen() {
    recommend --connect cpu --steps 250 --held-out 5000 --min-auc 0.72 --json >"$WORK/out" || { cat "$WORK/out"; return 1; }
    local auc; auc=$(number auc)
    echo "AUC $auc, untrained $(number auc_untrained), the rule's $(number auc_rule)"
    holds "$auc > 0.72 && $auc < $(number auc_rule) && $(number auc_untrained) > 0.4 && $(number auc_untrained) < 0.6"
    holds "$(number visits_per_s) > 0 && $(number plans_made) == 2" # with and without a loss that is read
}
auc_is_that_of_all_pairs() {
    recommend --connect cpu --steps 30 --batch 256 --held-out 500 --min-auc 0 --json --scores "$WORK/scores" >"$WORK/out" || return 1
    [ "$(wc -l <"$WORK/scores")" = 500 ] || return 1
    awk -v auc="$(number auc)" '
        { label[NR] = $1; score[NR] = $2 }
        END {
            for (i = 1; i <= NR; i++) if (label[i]) for (k = 1; k <= NR; k++) if (!label[k]) {
                pairs++
                above += score[i] > score[k] ? 1 : score[i] == score[k] ? 0.5 : 0
            }
            print "pairs", pairs, "AUC", above / pairs, "printed", auc
            d = above / pairs - auc
            exit !(pairs > 1000 && d < 1e-8 && d > -1e-8)
        }' "$WORK/scores"
}
few=(--steps 12 --batch 128 --held-out 300 --min-auc 0)
equal_seeds_give_equal_bits() {
    recommend --connect cpu "${few[@]}" --scores "$WORK/first" >/dev/null && recommend --connect cpu "${few[@]}" --scores "$WORK/second" >/dev/null &&
        recommend --connect cpu "${few[@]}" --seed 2 --scores "$WORK/third" >/dev/null && cmp "$WORK/first" "$WORK/second" && ! cmp -s "$WORK/first" "$WORK/third"
}
# From a file the network scores as it did; another network's file is refused.
a_network_is_kept() {
    recommend --connect cpu "${few[@]}" --save "$WORK/net" --scores "$WORK/trained" >/dev/null && cmp "$WORK/first" "$WORK/trained" &&
        recommend --connect cpu --batch 128 --held-out 300 --min-auc 0 --load "$WORK/net" --scores "$WORK/loaded" --json >"$WORK/out" && cmp "$WORK/trained" "$WORK/loaded" && holds "$(number steps) == 0" &&
        head -c 1000 "$WORK/net" >"$WORK/short" && fails_with 'truncated' recommend --connect cpu --load "$WORK/short" && fails_with 'absent: No such file' recommend --connect cpu --load "$WORK/absent" &&
        fails_with 'are of training' recommend --load "$WORK/net" --save "$WORK/other"
}
a_server_gives_the_same_bits() { recommend "${few[@]}" --scores "$WORK/remote" >/dev/null && cmp "$WORK/first" "$WORK/remote"; }
two_servers() {
    start_server "$WORK/a" && start_server "$WORK/b" && both=@$WORK/a/url,@$WORK/b/url
}
# Bags go one way and their gradients the other; the dense numbers and labels of the batch and a little else cross as well.
bags_cross_and_not_the_tables() {
    recommend --connect "$both" --tables 0 --mlp 1 --policy bytes "${few[@]}" --scores "$WORK/apart" --json >"$WORK/out" || { cat "$WORK/out"; return 1; }
    local bags tables crossed; bags=$(number bag_bytes) tables=$(number table_bytes) crossed=$(number transfer_bytes_per_step)
    echo "bags $bags, tables $tables, crossed $crossed bytes a step"
    cmp "$WORK/first" "$WORK/apart" && holds "$crossed >= 2 * $bags && $crossed < 2.2 * $bags && $crossed < $tables / 10 && $tables == 2600960"
}
the_scheduler_keeps_them_together_where_that_is_quicker() {
    recommend --connect "$both" "${few[@]}" --scores "$WORK/free" --json >"$WORK/out" && cmp "$WORK/first" "$WORK/free" && holds "$(number transfer_bytes_per_step) < $(number table_bytes)"
}
explain_says_what_runs_where() {
    recommend --connect "$both" --tables 0 --mlp 1 --policy bytes --explain >"$WORK/explained" || return 1
    cut -c 1-200 "$WORK/explained"
    grep -q '2 of 2 devices used' "$WORK/explained" && grep -q 'MB of states and KV caches that stay on their device' "$WORK/explained" &&
        ! grep -q 'AUC' "$WORK/explained" && recommend --connect cpu --explain --batch 64 >"$WORK/explained" &&
        grep -q '1 of 1 device used' "$WORK/explained"
}
# By costs that are not measured, the same in each run: whatever is minimised, little more than bags and ids crosses.
no_policy_crowds_the_link() {
    local policy crossed both
    GENIE_MEASURE=0 start_server "$WORK/c" && GENIE_MEASURE=0 start_server "$WORK/d" && both=@$WORK/c/url,@$WORK/d/url || return 1
    for policy in latency throughput bytes; do
        GENIE_MEASURE=0 recommend --connect "$both" --tables 0 --mlp 1 --policy $policy --explain >"$WORK/explained" || return 1
        crossed=$(sed -n 's/^predicted: .*, \([0-9.]*\) kB across links$/\1/p' "$WORK/explained") # megabytes are too many
        sed -n 2p "$WORK/explained"
        holds "${crossed:-1000} < 700" || return 1
    done
}
wrong_options_are_refused() {
    fails_with 'takes latency, throughput or bytes, not fastest' recommend --policy fastest && fails_with 'steps takes a number from 1' recommend --steps 0 &&
        fails_with 'batch takes a number from 1 to 65536' recommend --batch -3 && fails_with 'no device' recommend --connect cpu --tables 7 --steps 1 &&
        fails_with 'absent: No such file' recommend --connect "@$WORK/absent" && fails_with 'FAILED AUC' recommend --connect cpu "${few[@]}" --min-auc 0.99 &&
        fails_with 'no/such/file: No such file' recommend --connect cpu "${few[@]}" --scores "$WORK/no/such/file" &&
        fails_with 'no/such/file' recommend --connect cpu "${few[@]}" --answers "$WORK/no/such/file"
}

check learns_to_rank_visits_never_seen learns_to_rank_visits_never_seen
check auc_is_that_of_all_pairs auc_is_that_of_all_pairs
check equal_seeds_give_equal_bits equal_seeds_give_equal_bits
check a_network_is_kept a_network_is_kept
check a_server_gives_the_same_bits a_server_gives_the_same_bits
check two_servers two_servers
check bags_cross_and_not_the_tables bags_cross_and_not_the_tables
check the_scheduler_keeps_them_together_where_that_is_quicker the_scheduler_keeps_them_together_where_that_is_quicker
check explain_says_what_runs_where explain_says_what_runs_where
check no_policy_crowds_the_link no_policy_crowds_the_link
check wrong_options_are_refused wrong_options_are_refused
finish
