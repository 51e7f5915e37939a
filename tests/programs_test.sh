#!/usr/bin/env bash
# Every example and every benchmark runs at its quickest settings, as on a machine that has never seen Genie: no home, no cache,
# no settings. A new program needs a line here.
# Tier: slow address
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES GENIE_CACHE GENIE_HOME GENIE_THREADS GENIE_LOG XDG_CACHE_HOME

# settings_of PROGRAM: a line of flags for each run of it; nothing for one that is not known. A dash: without flags.
settings_of() {
    case $1 in
        examples/hello | examples/lazy | examples/errors | examples/two_clients | examples/gpu_demo) echo - ;;
        examples/explain)
            echo "--gpus 2 --decode --policy throughput --svg $WORK/decode.svg"
            echo "--gpus 1 --svg $WORK/prefill.svg" ;;
        examples/remote_mlp)
            echo "--steps 60 --min-accuracy 0 --json"
            echo "--write-idx $WORK/idx"
            echo "--data $WORK/idx --steps 51 --batch 8 --loss-every 1 --min-accuracy 0" ;;
        examples/remote_decode)
            echo "--tokens 8 --ahead 4 --json"
            echo "--tokens 4 --mode cached"
            echo "--tokens 4 --mode blind" ;;
        examples/chat) echo "--train-steps 2 --max-tokens 4 --json --save $WORK/poem" ;;
        examples/serve_text) echo "$WORK/poem --json" ;;
        examples/recommend) echo "--steps 4 --batch 64 --held-out 200 --min-auc 0 --json" ;;
        examples/diffusion) echo "--steps 2 --batch 2 --max-loss 9 --samples 2 --sampling-steps 2 --out $WORK/shapes.ppm --json" ;;
        examples/speech)
            echo "--say uia --out $WORK/uia.wav"
            echo "--steps 2 --batch 2 --held-out 50 --min-accuracy 0 --save $WORK/speech.safetensors --json"
            echo "--load $WORK/speech.safetensors --wave $WORK/uia.wav" ;;
        examples/genie_serve) echo "--devices list" ;;
        examples/genie_trace)
            HOME=$WORK GENIE_TRACE=$WORK/hello.jsonl "$EXAMPLES/hello" >"$WORK/hello.output" 2>&1
            echo "$WORK/hello.jsonl"
            echo "$WORK/hello.jsonl --html $WORK/hello.html"
            echo calls ;;
        examples/onnx_run) # y = -x of two floats
            printf '\010\010\102\002\020\015\072\043\012\013\012\001x\022\001y\042\003Neg\132\017\012\001x\022\012\012\010\010\001\022\004\012\002\010\002\142\003\012\001y' >"$WORK/negative.onnx"
            echo "$WORK/negative.onnx --out $WORK" ;;
        examples/vqa)
            echo "--steps 3 --min-accuracy 0 --json"
            echo --explain ;;
        examples/vision)
            echo -
            echo "--random mobilenet_v3_small --size 64 --bench 1 --json" ;;
        bench/bench_core) echo "--once --json" ;;
        bench/bench_net) echo "--once --json" ;;
        bench/bench_gpu) echo "--quick --json" ;;
        bench/random_model) echo "$WORK/random_model --shape gpt2 --smaller 4" ;;
        bench/genie_bench)
            echo "all --quick --no-adapters --out $WORK/results"
            echo "core --once --only tiny --out $WORK/results" ;;
    esac
}

# runs PROGRAM FLAGS: in a home of its own. A device that is not there ends a program with 77 and a word about it. Where JSON is
# asked for, the last line is an object.
runs() {
    local program=$1 home=$WORK/home status=0 flags=()
    [ "$2" = - ] || read -r -a flags <<<"$2"
    rm -rf "$home"; mkdir -p "$home"
    (cd "$WORK" && HOME=$home timeout -k 10 240 "$BUILD/$program" ${flags[@]+"${flags[@]}"}) >"$WORK/program.output" 2>&1 </dev/null || status=$?
    tail -n 40 "$WORK/program.output" | cut -c 1-400
    [ "$status" != 77 ] || ! grep -q '^SKIP' "$WORK/program.output" || return 77
    [ "$status" = 0 ] || { echo "exit status $status"; return 1; }
    case " $2 " in *' --json '*) is_object "$(tail -n 1 "$WORK/program.output")" ;; esac
}

is_object() {
    if has python3; then python3 -c 'import json, sys; sys.exit(not isinstance(json.loads(sys.argv[1]), dict))' "$1"; else [[ $1 == '{'*'}' ]]; fi
}

run_all() {
    local program=$1 line n=0 name status
    while read -r line; do
        n=$((n + 1)) status=0
        name=$(basename "$program")_runs_$n
        runs "$program" "$line" >"$WORK/run.output" 2>&1 || status=$?
        if [ "$status" = 77 ]; then skip "$name" "$(grep -m 1 '^SKIP' "$WORK/program.output" | cut -c 1-160)"
        else check "$name" eval 'cat "$WORK/run.output"; [ "$status" = 0 ]'; fi
    done < <(settings_of "$program")
    [ "$n" -gt 0 ] || check "$(basename "$program")_has_settings_in_this_test" false
}

# The same with a client whose first step and whose error come from a server.
server_and_client_run() {
    start_server "$WORK/server" || return 1
    (cd "$WORK" && HOME=$WORK/home GENIE_DEVICES=@$WORK/server/url timeout 60 "$EXAMPLES/hello") | grep 'computed by' || return 1
    kill -TERM "$server_process"
    wait "$server_process"
}

for source in examples/*.c bench/*.c; do run_all "${source%.c}"; done
check genie_serve_serves_and_ends server_and_client_run
finish
