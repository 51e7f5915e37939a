#!/usr/bin/env bash
# genie_serve and steps that do not end: its limit, a client that is killed, SIGTERM once and twice, a kernel that hangs in the GPU
# (tests/cuda_shim.c). Waits more than it computes.
# Tier: slow
. "$(dirname "$0")/script.sh"
client=$BUILD/tests/endless_test
unset GENIE_DEVICES
export GENIE_CUBLASLT=0 GENIE_CACHE=$WORK/cache GENIE_SHIM_DIR=$WORK/objects CXX=${CXX:-c++}
mkdir -p "$GENIE_SHIM_DIR"

# client NAME WHERE WHAT: in the background; its process is $client_process, what it says is in $WORK/NAME.
client() {
    GENIE_HOME=$WORK/home.$1 GENIE_DEVICES=$2 GENIE_TEST_ENDLESS=$3 timeout -k 5 120 "$client" >"$WORK/$1" 2>&1 &
    client_process=$!
    processes+=("$client_process")
    within 30 grep -q '^begun' "$WORK/$1" || { cat "$WORK/$1"; return 1; }
}
# ended_saying SECONDS NAME TEXT: the latest client.
ended_saying() {
    ended "$1" "$client_process" || { echo "still there after $1 s"; cat "$WORK/$2"; return 1; }
    cat "$WORK/$2"
    grep -qE "$3" "$WORK/$2"
}
# Ticks of processor time that the server has used.
ticks() { awk '{ print $14 + $15 }' "/proc/$server_process/stat"; }
computes() { local before; before=$(ticks); sleep 1; echo "$(($(ticks) - before)) ticks in a second"; [ $(($(ticks) - before)) -ge "$1" ]; }
is_idle() { ! computes 8; }

a_long_step_ends() {
    client limited "@$WORK/server/url" endless || return 1
    ended_saying 25 limited '^GN_LIMIT after [2-9]\.[0-9] s: .*max-step-seconds'
}
server_lives() { client lives "@$WORK/server/url" 'honest 1' && ended_saying 20 lives 'the longest 0'; }
# kill_client NAME: the client itself, not the timeout around it.
kill_client() { kill -9 "$(pgrep -P "$client_process")"; }
a_killed_client_ends_its_step() {
    client killed "@$WORK/server/url" endless || return 1
    sleep 0.5
    computes 10 || return 1
    kill_client || return 1
    sleep 0.5
    is_idle
}
# ends_on SIGNAL [times]: promptly, in a step without end, with status 0.
ends_on() {
    local i status=0
    client ending "@$WORK/server/url" endless || return 1
    sleep 0.5
    for ((i = 0; i < ${2:-1}; i++)); do kill "-$1" "$server_process" 2>/dev/null || true; sleep 0.02; done
    ended 6 "$server_process" || { echo "still there 6 s after SIG$1"; return 1; }
    wait "$server_process" || status=$?
    echo "status $status"; cat "$WORK/server/log"
    [ "$status" = 0 ] && ended_saying 10 ending '^GN_(CANCELLED|DISCONNECTED|DEVICE_LOST)'
}

# ---- a kernel that hangs ----

build_shim() { $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread; }
start_gpu_server() {
    export GENIE_MEASURE=0
    GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_FAULTS=$WORK/fault start_server "$WORK/gpu" --devices cuda:0 "$@"
}
hang_is_ended_by_a_new_process() {
    client honest "@$WORK/gpu/url" 'honest 1' || return 1
    ended_saying 60 honest 'the longest' || return 1
    echo 'hang atanh' >"$WORK/fault"
    client hanging "@$WORK/gpu/url" atanh || return 1
    ended_saying 40 hanging '^GN_DEVICE_LOST' || { cat "$WORK/gpu/log"; return 1; }
    within 20 eval '[ "$(grep -c "^serving" "$WORK/gpu/log")" = 2 ]' || { cat "$WORK/gpu/log"; return 1; }
    cat "$WORK/gpu/log"
    kill -0 "$server_process" && grep -q 'starting again' "$WORK/gpu/log"
}
# The other goes on in one session, while the first tries again and again.
second_attempt_costs_nothing() {
    client other "@$WORK/gpu/url" 'honest 4' || return 1
    local other=$client_process
    for _ in 1 2 3; do
        GENIE_HOME=$WORK/home.hanging GENIE_DEVICES=127.0.0.1:$server_port GENIE_TEST_ENDLESS=atanh timeout -k 5 30 "$client" >"$WORK/again" 2>&1
        cat "$WORK/again"
        grep -q '^GN_LIMIT after [01]\.[0-9] s: .*this plan is refused' "$WORK/again" || return 1
    done
    client_process=$other
    ended_saying 30 other 'the longest 0' && [ "$(grep -c '^serving' "$WORK/gpu/log")" = 2 ]
}
a_hang_does_not_outlive_the_grace_time() {
    local status=0
    echo 'hang tanh' >"$WORK/fault"
    GENIE_HOME=$WORK/home.grace GENIE_DEVICES=@$WORK/gpu/url GENIE_TEST_ENDLESS=atanh timeout -k 5 60 "$client" >"$WORK/grace" 2>&1 &
    processes+=("$!")
    within 30 grep -q '^begun' "$WORK/grace" || return 1
    sleep 1
    kill -TERM "$server_process"
    sleep 0.1
    kill -TERM "$server_process"
    ended 20 "$server_process" || { echo "still there 20 s after SIGTERM"; return 1; }
    wait "$server_process" || status=$?
    echo "status $status"; cat "$WORK/gpu/log"
    [ "$status" = 1 ] && grep -q 'ended by force' "$WORK/gpu/log"
}

[ -x "$client" ] || { skip steps_that_do_not_end "endless_test is not built: ./build.sh test endless_test watchdog_test"; finish; }
check serve_with_a_limit_of_two_seconds_starts start_server "$WORK/server" --max-step-seconds 2
check step_longer_than_the_limit_ends_with_a_typed_error a_long_step_ends
check server_serves_after_it server_lives
check serve_ends_on_sigterm_in_a_step_without_end ends_on TERM
check serve_without_a_limit_starts start_server "$WORK/server" --max-step-seconds 0
check step_of_a_client_that_is_killed_ends a_killed_client_ends_its_step
check serve_ends_on_five_signals_in_a_row ends_on TERM 5
if ! has "$CXX"; then
    skip a_kernel_that_hangs "no C++ compiler ($CXX) here"
    finish
fi
check shim_builds build_shim
check serve_on_the_shim_starts start_gpu_server --max-step-seconds 1
check kernel_that_hangs_is_ended_by_a_new_process hang_is_ended_by_a_new_process
check second_attempt_is_refused_and_costs_others_nothing second_attempt_costs_nothing
check serve_with_the_rest_stops eval 'kill -TERM "$server_process"; ended 15 "$server_process"'
check serve_on_the_shim_without_a_limit_starts start_gpu_server --max-step-seconds 0
check kernel_that_hangs_does_not_outlive_the_grace_time a_hang_does_not_outlive_the_grace_time
finish
