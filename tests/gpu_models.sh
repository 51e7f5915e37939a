#!/usr/bin/env bash
# Language models in real shapes with random weights: how fast chat and serve_text load and decode them, locally and through TLS on
# loopback, beside the rows of bench_gpu and genie_bench that compute the same without files, texts and tokens.
#
#     tests/gpu_models.sh                     gpt2 (124M), llama_1b and llama_8b on cuda:0; 18 GB of files, 40 GB of memory
#     tests/gpu_models.sh gpt2 llama_1b       only these
#     BUILD=DIR tests/gpu_models.sh ...       with the programs in DIR (as build/ lays them out, or all in one folder)
#
# DEVICE=cuda:0 runs them; cpu is for trials. SMALLER=N divides heads, layers, MLP and vocabulary by N; then there are no rows beside.
# MODELS=DIR holds the files: /dev/shm where it has room, else TMPDIR (then the disk may be what is timed). TOKENS=N an answer (256), AHEAD=N steps under way (16), SLOTS=N of
# serve_text (32). NOISE=0: bell-shaped weights, which compression shortens; otherwise bits are drawn evenly. The table comes last;
# in it stands what client and server say about the stages of loading: who of them waits is not what bounds.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d)
server='' failed=0 serve_lines=0 table=()
device=${DEVICE:-cuda:0} smaller=${SMALLER:-1} tokens=${TOKENS:-256} ahead=${AHEAD:-16} slots=${SLOTS:-32}
export GENIE_CACHE=${GENIE_CACHE:-$scratch/cache} GENIE_HOME=$scratch/client
(umask 077; mkdir -p "$GENIE_CACHE")

# shellcheck disable=SC2317
clean_up() {
    [ -z "$server" ] || { kill "$server"; wait "$server"; } 2>/dev/null
    rm -rf "$scratch" "${folder:-}"
}
trap clean_up EXIT

# program NAME: its path, where the build or the given folder has it.
program() {
    local place
    for place in "$build/examples/$1" "$build/bench/$1" "$build/$1"; do
        if [ -x "$place" ]; then echo "$place"; return; fi
    done
    echo "$build/$1"
}

# number NAME: that number in the last line of JSON that a program wrote; "-" when there is none.
number() {
    local found; found=$(tail -n 1 "$scratch/out" | grep -oE "\"$1\":-?[0-9.e+-]+" | head -n 1 | cut -d: -f2)
    echo "${found:--}"
}
# of EXPRESSION: its value with four digits, "-" where a number is missing.
of() { case " $1 " in *' - '*) echo - ;; *) awk "BEGIN { printf \"%.4g\", $1 }" ;; esac; }

add() { table+=("$(printf '%-10s %-34s %10s %-9s %s' "$@")"); printf '%s\n' "${table[-1]}" >&2; }

# run NAME PROGRAM ...: its last line is kept. False, and told, when it fails.
run() {
    local name=$1; shift
    if timeout "${LIMIT:-300}" "$@" >"$scratch/out" 2>"$scratch/errors" </dev/null; then return 0; fi
    failed=1
    add "$name" "$(basename "$1") FAILED" - - "$(tail -n 1 "$scratch/errors" | cut -c1-120)"
    return 1
}

# Where files of so many GB fit.
find_folder() {
    local place
    for place in ${MODELS:-/dev/shm "${TMPDIR:-/tmp}"}; do
        [ "$(df -Pk "$place" 2>/dev/null | awk 'NR == 2 { print int($4 / 1048576) }')" -ge "$1" ] 2>/dev/null || continue
        folder=$(mktemp -d "$place/genie-models-XXXXXX") && return 0
    done
    echo "no folder has $1 GB of room: MODELS=DIR" >&2
    exit 1
}

start_server() {
    GENIE_HOME=$scratch/server "$(program genie_serve)" --verbose --listen 127.0.0.1:0 --devices "$device" --memory 48G --url-file "$scratch/url" \
        >"$scratch/serve" 2>&1 &
    server=$!
    local i
    for ((i = 0; i < 300; i++)); do [ ! -s "$scratch/url" ] || return 0; sleep 0.1; done
    echo "the server did not start: $(tail -n 1 "$scratch/serve")" >&2
    exit 1
}

# The row of bench_gpu that queues the same steps: tokens/s.
queued_row() {
    local row
    queued=-
    [ "$smaller" = 1 ] && [ "$device" != cpu ] || return 0
    case $1 in gpt2) row=decode_queued ;; *) row=decode_${1}_queued ;; esac
    run "$1" "$(program bench_gpu)" --device "$device" --json --only "$row" || return 0
    queued=$(of "1e6 / $(sed -n "s/.*\"name\":\"$row\"[^}]*\"value\":\([0-9.e+]*\).*/\1/p" "$scratch/out" | tail -n 1)")
    add "$1" "bench_gpu $row" "$queued" tokens/s ""
}

# What the two ends told since about the stages of loading, as rows.
stages() {
    local line
    while read -r line; do add "$1" "$line" '' '' ''; done < <(grep -ohE '[0-9.]+ GB of weights .*' "$scratch/errors")
    while read -r line; do add "$1" "server: $line" '' '' ''; done < <(tail -n "+$((serve_lines + 1))" "$scratch/serve" | grep -oE '[0-9.]+ GB of weights .*')
    serve_lines=$(wc -l <"$scratch/serve")
}

# answer SHAPE LABEL OPTION ...: one answer of chat, as rows of loading and decoding. The prompt is as long as the past of the rows is on average.
answer() {
    local name=$1 label=$2 gb sent rate; shift 2
    run "$name" "$(program chat)" "$folder/$name" --raw --json --context 1024 --ahead "$ahead" --max-tokens $((tokens + 1)) \
        --prompt "$prompt" "$@" || return 0
    gb=$(number weight_bytes) sent=$(number weight_bytes_sent) rate=$(number tokens_per_second)
    add "$name" "chat $label: loading" "$(of "$(number load_seconds)")" s \
        "$(of "1e-9 * $gb") GB, $(of "1e-9 * $sent") sent as $(of "1e-9 * $(number weight_bytes_packed)")"
    add "$name" "chat $label: decoding" "$(of "$rate")" tokens/s \
        "$(of "$rate / $queued") of the row; first token after $(number first_token_seconds) s"
}

serve_many() {
    local i
    for ((i = 0; i < 2 * slots; i++)); do printf '{"id":%d,"prompt":"%03d %s","max_tokens":%d}\n' $i $i "$prompt" "$tokens"; done >"$scratch/requests"
    run "$1" "$(program serve_text)" "$folder/$1" --raw --json --context 1024 --slots "$slots" --file "$scratch/requests" || return 0
    cp "$scratch/errors" "$scratch/out"
    add "$1" "serve_text, $slots slots$2" "$(of "$(number tokens_per_second)")" tokens/s \
        "$(of "$(number slots_in_use)") slots in use; between tokens $(number between_tokens_p50) s, p95 $(number between_tokens_p95)"
}

# The same batch as a workload: all sequences equally long.
batch_row() {
    local work
    case $1 in gpt2) work=gpt2:batch ;; llama_1b) work=llama:batch ;; *) return 0 ;; esac
    [ "$smaller" = 1 ] && [ "$device" != cpu ] || return 0
    run "$1" "$(program genie_bench)" "$work" --batch "$slots" --tokens 512 --dtype bf16 --device "$device" --no-adapters \
        --rounds 1 --out "$scratch" || return 0
    add "$1" "genie_bench $work" "$(grep -oE '[0-9.e+]+ tokens \|' "$scratch/out" | head -n 1 | cut -d' ' -f1)" tokens/s "batch $slots"
}

model() {
    local name=$1 noise=--noise
    [ "${NOISE:-1}" != 0 ] || noise=
    # shellcheck disable=SC2086
    run "$name" "$(program random_model)" "$folder/$name" --shape "$name" --smaller "$smaller" $noise || return 0
    add "$name" "files written" "$(tail -n 1 "$scratch/out" | sed 's/.* in //; s/ s$//')" s "$folder"
    queued_row "$name"
    export GENIE_DEVICES=$device
    answer "$name" "locally, kernels new"
    answer "$name" "locally"
    serve_many "$name" ', kernels new'
    serve_many "$name" ''
    batch_row "$name"
    unset GENIE_DEVICES
    export GENIE_LOG=info
    answer "$name" "through TLS" --connect "@$scratch/url"
    stages "$name"
    answer "$name" "through TLS, second client" --connect "@$scratch/url"
    stages "$name"
    unset GENIE_LOG
    rm -rf "${folder:?}/$name"
}

case ${1:-} in --help | -h) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
names=("$@")
[ $# -gt 0 ] || names=(gpt2 llama_1b llama_8b)
for name in "${names[@]}"; do
    case $name in gpt2 | llama_1b | llama_8b) ;; *) echo "unknown shape $name: gpt2, llama_1b, llama_8b" >&2; exit 2 ;; esac
done
build=${BUILD:-build}
prompt=$(head -c $((512 - tokens / 2 > 0 ? 512 - tokens / 2 : 16)) <(yes 'The night was dark and the wind was cold over the hill. ' | tr -d '\n'))
folder=''
find_folder $((18 / smaller + 1))
start_server
for name in "${names[@]}"; do model "$name"; done
printf '\n'
printf '%s\n' "${table[@]}"
exit $failed
