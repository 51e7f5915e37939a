#!/usr/bin/env bash
# examples/chat as a program: a model that it trains, saves and loads again; the same tokens by any number of steps ahead and over TLS;
# stop strings, templates, drawing, conversations, a terminal, and what bad input gets. GGUF files written by PyPI's gguf give the tokens
# of PyPI's transformers; skipped where a package is missing; tests/oracles.txt names the first.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH} TMPDIR=$WORK
unset GENIE_DEVICES
model=$WORK/model
chat() { timeout 60 "$EXAMPLES/chat" "$@" 2>"$WORK/chat.errors" </dev/null; }
# Tokens of an answer as JSON has them.
tokens() { chat "$@" --json | sed -n 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/p'; }

trains_saves_and_goes_on() {
    chat --train-steps 40 --save "$model" --json --max-tokens 8 | grep -F '"family":"llama"' || { cat "$WORK/chat.errors"; return 1; }
    [ -s "$model/config.json" ] && [ -s "$model/model.safetensors" ] && [ -s "$model/tokenizer.json" ] && [ -z "$(ls -d "$WORK"/genie-model-* 2>/dev/null)" ]
}

# A model that has learned nothing would miss what nearly every line of the poem has.
training_lowers_the_loss() {
    chat --train-steps 1 --max-tokens 1 >/dev/null; first=$(sed -n 's/.*loss //p' "$WORK/chat.errors")
    chat --train-steps 40 --max-tokens 1 >/dev/null; last=$(sed -n 's/.*loss //p' "$WORK/chat.errors")
    echo "$first $last"; awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a / 2) }'
}

any_number_of_steps_ahead_gives_the_same_tokens() {
    local want ahead; want=$(tokens "$model" --prompt He --max-tokens 50)
    [ "$(tr , '\n' <<<"$want" | wc -l)" = 50 ] || { echo "tokens: $want"; return 1; }
    for ahead in 1 2 16 64; do [ "$(tokens "$model" --prompt He --max-tokens 50 --ahead $ahead)" = "$want" ] || { echo "$ahead ahead"; return 1; }; done
}

over_tls_the_tokens_are_the_same() {
    start_server "$WORK/server" || return 1
    export GENIE_HOME=$WORK/client
    [ "$(tokens "$model" --prompt He --max-tokens 50 --connect "@$WORK/server/url")" = "$(tokens "$model" --prompt He --max-tokens 50)" ] || return 1
    chat "$model" --prompt He --max-tokens 50 --connect "@$WORK/server/url" >/dev/null
    cat "$WORK/chat.errors"
    grep -E '50 tokens \(length\).* [1-9][0-9]* bytes a token at the socket, on 127' "$WORK/chat.errors"
}

# big_model DIR: 8 layers, 34 MB, with the tokenizer of the model that was trained.
big_model() {
    mkdir "$1" && cp "$model/tokenizer.json" "$1/" && python3 - "$model/config.json" "$1" <<'PYTHON'
import array, json, random, sys
config, names = json.load(open(sys.argv[1])), []
dim, inner, layers = 256, 1024, 8
config.update(hidden_size=dim, intermediate_size=inner, num_hidden_layers=layers)
names = [("model.embed_tokens.weight", [config["vocab_size"], dim]), ("lm_head.weight", [config["vocab_size"], dim]), ("model.norm.weight", [dim])]
for i in range(layers):
    names += [(f"model.layers.{i}.self_attn.{n}_proj.weight", [dim, dim]) for n in "qkvo"]
    names += [(f"model.layers.{i}.mlp.{n}_proj.weight", [inner, dim]) for n in ("gate", "up")] + [(f"model.layers.{i}.mlp.down_proj.weight", [dim, inner])]
    names += [(f"model.layers.{i}.{n}_layernorm.weight", [dim]) for n in ("input", "post_attention")]
draw, head, at, data = random.Random(1), {}, 0, []
numbers = array.array("f", [draw.gauss(0, 0.05) for _ in range(65521)])
for name, shape in names:
    count, begin = shape[0] * (shape[1] if len(shape) > 1 else 1), draw.randrange(65521)
    values = (numbers[begin:] + numbers * (count // 65521 + 1))[:count] if len(shape) > 1 else array.array("f", [1] * count)
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
    at += 4 * count
    data.append(values.tobytes())
text = json.dumps(head).encode()
with open(sys.argv[2] + "/model.safetensors", "wb") as file:
    file.write(len(text + b" " * (-len(text) % 8)).to_bytes(8, "little") + text + b" " * (-len(text) % 8) + b"".join(data))
json.dump(config, open(sys.argv[2] + "/config.json", "w"))
PYTHON
}

# two_servers SIZE: GENIE_DEVICES names two servers of that --memory.
two_servers() {
    start_server "$WORK/a$1" --memory "$1" && start_server "$WORK/b$1" --memory "$1" && export GENIE_DEVICES=@$WORK/a$1/url,@$WORK/b$1/url GENIE_HOME=$WORK/client$1
}

layers_divide_over_two_servers() {
    local big=$WORK/big want have served status=0
    big_model "$big" && want=$(tokens "$big" --prompt He --max-tokens 40) || return 1
    start_server "$WORK/one" --memory 28M || return 1
    GENIE_HOME=$WORK/client3 fails_with 'session holds .* allowed \(--memory\)' "$EXAMPLES/chat" "$big" --prompt He --connect "@$WORK/one/url" || return 1
    two_servers 28M || return 1
    have=$(tokens "$big" --prompt He --max-tokens 40)
    [ "$(tr , '\n' <<<"$have" | sort -u | wc -l)" -gt 5 ] && [ "$have" = "$want" ] || { echo "$have, not $want"; cat "$WORK/chat.errors"; status=1; }
    served=$(echo '{"prompt":"He","max_tokens":40}' | timeout 60 "$EXAMPLES/serve_text" "$big" --raw --slots 2 --context 128 2>"$WORK/errors" | sed -n 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/p')
    [ "$served" = "$have" ] || { echo "serve_text: $served, not $have"; cat "$WORK/errors"; status=1; }
    chat "$big" --explain >"$WORK/divided" || status=1
    cat "$WORK/divided"
    grep -qE '^layers 0 to [0-9]: on 127' "$WORK/divided" && grep -qE '^layers [1-7] to 7: on 127' "$WORK/divided" || status=1
    two_servers 12M && fails_with 'no placement fits: .* MB are missing' "$EXAMPLES/chat" "$big" --prompt He || status=1
    unset GENIE_DEVICES
    return $status
}

# The first stop string ends the text, wherever its tokens and characters begin; no part of it is printed.
stop_strings_are_never_printed() {
    local all stop; all=$(chat "$model" --prompt He --max-tokens 80; echo .); all=${all%?.}
    for stop in "${all:7:1}" "${all:11:5}" "${all:3:9}"; do
        [ "$(chat "$model" --prompt He --max-tokens 80 --stop "never comes" --stop="$stop"; echo .)" = "${all%%"$stop"*}"$'\n.' ] || { echo "stop '$stop' in '$all'"; return 1; }
    done
    chat "$model" --prompt He --max-tokens 3 --stop "${all:0:3}${all:3:1}zz" >"$WORK/out"
    [ "$(cat "$WORK/out")" = "$(chat "$model" --prompt He --max-tokens 3)" ]   # what was held back comes when the text ends
}

drawing_follows_the_seed() {
    local draw=("$model" --prompt He --max-tokens 30 --temperature 1.5) one
    one=$(tokens "${draw[@]}" --seed 1)
    [ "$(tokens "${draw[@]}" --seed 1 --ahead 9)" = "$one" ] && [ "$(tokens "${draw[@]}" --seed 2)" != "$one" ] || return 1
    [ "$(tokens "${draw[@]}" --top-k 1)" = "$(tokens "$model" --prompt He --max-tokens 30)" ] || return 1
    [ "$(tokens "${draw[@]}" --min-p 1)" = "$(tokens "$model" --prompt He --max-tokens 30)" ] || return 1
    [ "$(tokens "${draw[@]}" --top-p 0.000001)" = "$(tokens "$model" --prompt He --max-tokens 30)" ] || return 1
    [ "$(tokens "${draw[@]}" --seed 1 --top-p 1)" = "$one" ] && [ "$(tokens "${draw[@]}" --seed 1 --top-p 0.5)" != "$one" ] || return 1
    tokens "$model" --prompt He --max-tokens 20 --repeat-penalty 100 | tr -d '[]' | tr , '\n' | sort | uniq -d | wc -l | grep -qx 0
}

figures_of_an_answer_are_told() {
    chat "$model" --prompt He --max-tokens 30 >/dev/null
    cat "$WORK/chat.errors"
    grep -qxE '\[2 \+ 30 tokens \(length\), [1-9][0-9]*\.[0-9] tokens/s, first after [0-9]+\.[0-9]{2} s, 0 bytes a token at the socket, on cpu:0.*\]' "$WORK/chat.errors"
}

# Steps of one token are recorded: what there is to build has been built before the first of them.
decoding_builds_nothing() { chat "$model" --prompt He --max-tokens 30 --json | grep -F '"nodes_built":0'; }

template_of_the_directory_is_used() {
    cp -r "$model" "$WORK/with"
    echo '{"eos_token":{"content":"<end>"},"chat_template":"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<he>{% endif %}"}' >"$WORK/with/tokenizer_config.json"
    [ "$(tokens "$WORK/with" --prompt One --system Two --max-tokens 9)" = "$(tokens "$model" --prompt '<system>Two<user>One<he>' --max-tokens 9)" ] || return 1
    [ "$(tokens "$WORK/with" --raw --prompt One --max-tokens 9)" = "$(tokens "$model" --prompt One --max-tokens 9)" ] || return 1
    sed -i 's/{% for/{% macro x() %}{% for/' "$WORK/with/tokenizer_config.json"
    fails_with 'macro' "$EXAMPLES/chat" "$WORK/with" --prompt One
}

conversation_goes_on_and_begins_anew() {
    printf 'He\n/stats\nand\n/reset\nHe\n/nothing\n' | timeout 60 "$EXAMPLES/chat" "$model" --max-tokens 6 --json >"$WORK/talk" 2>"$WORK/talk.errors" || return 1
    cat "$WORK/talk.errors"
    grep -q 'tokens/s' "$WORK/talk.errors" && grep -q '/nothing is not known' "$WORK/talk.errors" || return 1
    [ "$(grep -c '"text"' "$WORK/talk")" = 3 ] && [ "$(sed -n 1p "$WORK/talk" | cut -d: -f2,3)" = "$(sed -n 3p "$WORK/talk" | cut -d: -f2,3)" ] || return 1
    sed -n 2p "$WORK/talk" | grep -E '"prompt_tokens":11,"reused_tokens":7'   # He, 6 tokens, and
}

log_probabilities_are_told() {
    chat "$model" --prompt He --max-tokens 3 --logprobs 2 --json >"$WORK/logs" && grep -E '"log_prob":-[0-9]' "$WORK/logs" || return 1
    grep -qE '"logprobs":\[(\[-[0-9.]+(,\[[0-9]+,-[0-9.]+\]){2}\],?){3}\]' "$WORK/logs" || return 1
    chat "$model" --prompt He --max-tokens 3 --logprobs 2 >/dev/null
    [ "$(grep -cE '^[0-9]+ .* -[0-9.]+: [0-9]+ -[0-9.]+ [0-9]+ -[0-9.]+$' "$WORK/chat.errors")" = 3 ]
}

# The probability of the first token moves, and little.
quantised_weights_give_nearly_the_same() {
    local how exact near
    log_prob() { chat "$model" --prompt He --max-tokens 1 --logprobs 1 --json "$@" | grep -oE '"log_prob":-[0-9.]+' | head -n 1 | cut -d: -f2; }
    exact=$(log_prob)
    for how in int8:0.05 int4:0.5 fp8:0.5; do
        near=$(log_prob --quantize "${how%:*}"); echo "$how: $exact $near"
        awk -v a="$exact" -v b="$near" -v most="${how#*:}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d > 0 && d < most) }' || return 1
    done
    fails_with "quantize is int8, int4 or fp8, not 'int3'" "$EXAMPLES/chat" "$model" --quantize int3
}

explanation_names_the_layers() { chat "$model" --explain | grep -E 'embedding.*attention.*head'; }

bad_input_is_told() {
    fails_with 'no such file or directory' "$EXAMPLES/chat" "$WORK/nowhere" || return 1
    fails_with 'the prompt has 30 tokens, but the context has room for 20' "$EXAMPLES/chat" "$model" --context 20 --prompt "$(printf '%030d' 0)" || return 1
    fails_with 'room for 1 to 256' "$EXAMPLES/chat" "$model" --context 300 --prompt x || return 1
    fails_with 'the prompt has no tokens' "$EXAMPLES/chat" "$model" --prompt '' || return 1
    fails_with 'a model is the directory with all its files' "$EXAMPLES/chat" "$model/model.safetensors" --prompt x || return 1
    fails_with 'takes a text that is not empty' "$EXAMPLES/chat" "$model" --stop '' || return 1
    fails_with "dtype is f32, f16 or bf16, not 'q'" "$EXAMPLES/chat" "$model" --dtype q || return 1
    fails_with 'two prompts: give one' "$EXAMPLES/chat" "$model" --prompt x --file "$model/config.json" || return 1
    fails_with "'more' is not expected here" "$EXAMPLES/chat" "$model" more --prompt x || return 1
    fails_with "from 0 to 1000000000000000, not 'x'" "$EXAMPLES/chat" "$model" --seed x || return 1
    fails_with 'File exists' "$EXAMPLES/chat" --save "$model" || return 1
    cp -r "$model" "$WORK/bad"
    sed -i 's/"<end>":256/"<end>":256,"more":257/' "$WORK/bad/tokenizer.json"
    fails_with 'the tokenizer has 258 tokens, the model.s embedding 257 rows' "$EXAMPLES/chat" "$WORK/bad" --prompt x || return 1
    truncate -s 5000 "$WORK/bad/model.safetensors"
    fails_with 'model.safetensors.*byte' "$EXAMPLES/chat" "$WORK/bad" --prompt x || return 1
    mv "$WORK/bad/model.safetensors" "$WORK/bad/pytorch_model.bin"
    fails_with 'pytorch_model.bin is, which is not read: save the model as safetensors' "$EXAMPLES/chat" "$WORK/bad" --prompt x || return 1
    rm "$WORK/bad/tokenizer.json"; cp "$model/model.safetensors" "$WORK/bad/"
    fails_with 'no tokenizer.json' "$EXAMPLES/chat" "$WORK/bad" --prompt x
}

# Before the first token: what is needed, and what there is.
server_without_room_is_told_of() {
    start_server "$WORK/small" --memory 300K || return 1
    GENIE_HOME=$WORK/client3 fails_with 'needs 0.5 MB for weights .f32. and 0.[1-9] MB for a context of 256 tokens' "$EXAMPLES/chat" "$model" --prompt x --connect "@$WORK/small/url" || return 1
    GENIE_HOME=$WORK/client3 fails_with 'holds [0-9]+ of the 307200 allowed' "$EXAMPLES/chat" "$model" --prompt x --connect "127.0.0.1:$server_port"
}

server_that_is_lost_ends_the_conversation() {
    start_server "$WORK/lost" || return 1
    mkfifo "$WORK/lines"
    GENIE_HOME=$WORK/client2 timeout 60 "$EXAMPLES/chat" "$model" --max-tokens 6 --json --connect "@$WORK/lost/url" <"$WORK/lines" >"$WORK/lost.out" 2>"$WORK/lost.errors" &
    local program=$!
    exec 7>"$WORK/lines"
    echo He >&7
    within 20 grep -q '"text"' "$WORK/lost.out" || { cat "$WORK/lost.errors"; return 1; }
    kill -9 "$server_process"
    echo and >&7; exec 7>&-
    ! wait "$program" && cat "$WORK/lost.errors" && grep -q 'what was printed stays' "$WORK/lost.errors"
}

# A signal ends the program while it waits for a line.
signal_ends_the_wait_for_a_line() {
    local status=0 program
    mkfifo "$WORK/quiet"
    "$EXAMPLES/chat" "$model" --max-tokens 2 --json <"$WORK/quiet" >"$WORK/quiet.out" 2>&1 &
    program=$!
    processes+=("$program")
    exec 6>"$WORK/quiet"
    echo He >&6
    within 20 grep -q '"text"' "$WORK/quiet.out" || { cat "$WORK/quiet.out"; return 1; }
    kill -TERM "$program"
    wait "$program" || status=$?
    exec 6>&-
    echo "status $status"; [ "$status" = 130 ]
}

# slow_line PORT BYTES DIR: passes connections on to a server on PORT, BYTES a second on their way up; DIR/port says where. DIR/begun is
# there once 8 MB have passed.
slow_line() {
    python3 - "$@" <<'PYTHON' &
import os, socket, sys, threading, time
port, rate, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def carry(source, sink, slowly):
    passed = 0
    try:
        while data := source.recv(65536):
            sink.sendall(data)
            passed += len(data)
            if slowly: time.sleep(len(data) / rate)
            if slowly and passed > 8e6: open(folder + "/begun", "w").close()
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
listener = socket.create_server(("127.0.0.1", 0))
open(folder + "/port.new", "w").write(str(listener.getsockname()[1]))
os.rename(folder + "/port.new", folder + "/port")
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", port))
    for pair in (client, server, True), (server, client, False): threading.Thread(target=carry, args=pair, daemon=True).start()
PYTHON
    processes+=("$!")
    within 20 test -s "$3/port"
}

# Ctrl-C amid the weights: it ends at once with what a signal ends with, and what has come whole is not sent again.
signal_amid_the_weights_ends_it_and_the_next_run_sends_the_rest() {
    local status=0 program begun
    [ -d "$WORK/big" ] || big_model "$WORK/big" || return 1
    start_server "$WORK/slow" && slow_line "$server_port" 16000000 "$WORK/slow" || return 1
    export GENIE_HOME=$WORK/client4
    sed "s/:$server_port/:$(cat "$WORK/slow/port")/" "$WORK/slow/url" >"$WORK/slow/through"
    "$EXAMPLES/chat" "$WORK/big" --prompt He --max-tokens 2 --json --connect "@$WORK/slow/through" >"$WORK/slow/out" 2>"$WORK/slow/errors" </dev/null &
    program=$!
    processes+=("$program")
    within 20 test -e "$WORK/slow/begun" || { cat "$WORK/slow/errors"; return 1; }
    begun=${EPOCHREALTIME/[.,]/}
    kill -INT "$program"
    wait "$program" || status=$?
    echo "status $status after $(((${EPOCHREALTIME/[.,]/} - begun) / 1000)) ms"; cat "$WORK/slow/errors"
    [ "$status" = 130 ] && [ ! -s "$WORK/slow/out" ] && ! grep -qiE 'error|failed' "$WORK/slow/errors" || return 1
    [ $((${EPOCHREALTIME/[.,]/} - begun)) -lt 1000000 ] || return 1
    chat "$WORK/big" --prompt He --max-tokens 2 --json --connect "127.0.0.1:$(cat "$WORK/slow/port")" >"$WORK/slow/out" || { cat "$WORK/chat.errors"; return 1; }
    python3 - "$WORK/slow/out" <<'PYTHON'
import json, sys
answer = json.loads(open(sys.argv[1]).readlines()[-1])
print(answer)
assert len(answer["tokens"]) == 2 and 0 < answer["weight_bytes_sent"] < answer["weight_bytes"] - 4e6
PYTHON
}

# A server that dies amid the weights: said at once.
server_lost_amid_the_weights_is_told_at_once() {
    local status=0 program begun
    [ -d "$WORK/big" ] || big_model "$WORK/big" || return 1
    start_server "$WORK/dies" && slow_line "$server_port" 16000000 "$WORK/dies" || return 1
    sed "s/:$server_port/:$(cat "$WORK/dies/port")/" "$WORK/dies/url" >"$WORK/dies/through"
    GENIE_HOME=$WORK/client5 "$EXAMPLES/chat" "$WORK/big" --prompt He --max-tokens 2 --json --connect "@$WORK/dies/through" \
        >"$WORK/dies/out" 2>"$WORK/dies/errors" </dev/null &
    program=$!
    processes+=("$program")
    within 20 test -e "$WORK/dies/begun" || { cat "$WORK/dies/errors"; return 1; }
    begun=${EPOCHREALTIME/[.,]/}
    kill -9 "$server_process"
    wait "$program" || status=$?
    echo "status $status after $(((${EPOCHREALTIME/[.,]/} - begun) / 1000)) ms"; cat "$WORK/dies/errors"
    [ "$status" = 1 ] && grep -q 'sending the weights' "$WORK/dies/errors" && [ $((${EPOCHREALTIME/[.,]/} - begun)) -lt 5000000 ]
}

# A terminal: editing, history by the arrows, Ctrl-C at the line, Ctrl-D.
terminal_edits_recalls_and_interrupts() {
    timeout 60 python3 - "$EXAMPLES/chat" "$model" <<'PYTHON'
import os, pty, sys, time, select
def run(keys, *flags):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], sys.argv[1:3] + list(flags))
    out = b""
    for texts, key in keys:
        end = time.time() + 20
        while not all(t in out for t in texts) and time.time() < end:
            if select.select([fd], [], [], 0.2)[0]:
                out += os.read(fd, 65536)
        assert all(t in out for t in texts), (texts, out)
        out = b""
        os.write(fd, key)
    while True:
        try: more = os.read(fd, 65536)
        except OSError: break
        if not more: break
        out += more
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
    return out
# "Hxe", one to the left, backspace: "He"; then the same line again by the arrow; then a line that is given up
line, stats = b"\n\r\x1b[K> ", b"[2 + 5 tokens"
run([([b"> "], b"Hxe\x1b[D\x7f\r"), ([line], b"/stats\r"), ([stats, line], b"/reset\r"), ([line], b"\x1b[A\x1b[A\x1b[A\r"),
     ([line], b"/stats\r"), ([stats, line], b"gone\x03"), ([line], b"\x04")], "--max-tokens", "5")
PYTHON
}

# One prompt; tests/language_model_test.c has all of them, and the logits.
gguf_gives_the_packages_tokens() {
    local family run=1
    for family in gpt2 llama3 qwen2 qwen3 gemma2 gemma3 mixtral qwen3_moe qwen2_moe phi phi3 phi3_long; do
        python3 tests/language_model_golden.py gguf tests/golden/models/$family.json "$WORK/$family.gguf" || return 1
        [ "$(tokens "$WORK/$family.gguf" --file "$WORK/$family.gguf.$run.prompt" --max-tokens 200)" = "$(cat "$WORK/$family.gguf.$run.tokens")" ] ||
            { echo "$family, prompt $run"; cat "$WORK/chat.errors"; return 1; }
    done
}

# gguf_altered FILE FROM TO TEXT: with one text of the file replaced by another of the same length chat says TEXT.
gguf_altered() {
    python3 - "$1" "$WORK/altered.gguf" "$2" "$3" <<'PYTHON' || return 1
import sys
data = open(sys.argv[1], "rb").read()
old, new = (a.encode().decode("unicode_escape").encode("latin1") for a in sys.argv[3:5])
assert data.count(old) == 1 and len(old) == len(new), (data.count(old), old)
open(sys.argv[2], "wb").write(data.replace(old, new))
PYTHON
    fails_with "$4" "$EXAMPLES/chat" "$WORK/altered.gguf" --prompt x
}

gguf_that_does_not_fit_is_refused() {
    local family
    for family in gemma3 mixtral phi3_long; do
        python3 tests/language_model_golden.py gguf tests/golden/models/$family.json "$WORK/$family.gguf" || return 1
    done
    gguf_altered "$WORK/phi3_long.gguf" rope_factors_short rope_factors_shirt 'long and the short factors of the rotary embedding one is missing' || return 1
    gguf_altered "$WORK/mixtral.gguf" blk.1.ffn_up_exps.weight blk.1.ffn_up_expt.weight 'the tensor blk.1.ffn_up_exps.weight is missing' || return 1
    gguf_altered "$WORK/mixtral.gguf" llama.expert_count llama.expert_caunt '2 of 0 experts are to be used' || return 1
    gguf_altered "$WORK/gemma3.gguf" 'window_pattern\x04\x00\x00\x00\x03\x00' 'window_pattern\x04\x00\x00\x00\x03\xff' 'neither a number up to 512 nor a list'
}

# Blocks used as they lie give the tokens of the same blocks widened to f32 before they are used.
quantised_gguf_gives_its_own_tokens() {
    local blocks file=$WORK/blocks.gguf have
    for blocks in llama3:Q8_0 llama3:Q4_0 llama3:Q5_1 gemma2:Q8_0 gemma3:Q4_1 mixtral:Q8_0 qwen3_moe:Q5_0 qwen2_moe:Q8_0 phi:Q8_0 phi3_long:Q4_0; do
        python3 tests/language_model_golden.py gguf tests/golden/models/${blocks%:*}.json "$file" "${blocks#*:}" || return 1
        have=$(tokens "$file" --file "$file.0.prompt" --max-tokens 60)
        [ "$(tr , '\n' <<<"$have" | wc -l)" = 60 ] && [ "$have" = "$(tokens "$file" --dtype f32 --file "$file.0.prompt" --max-tokens 60)" ] ||
            { echo "$blocks: $have"; cat "$WORK/chat.errors"; return 1; }
    done
}

check chat_trains_a_model_saves_it_and_goes_on trains_saves_and_goes_on
check chat_training_lowers_the_loss training_lowers_the_loss
check chat_steps_ahead_give_the_same_tokens any_number_of_steps_ahead_gives_the_same_tokens
check chat_over_tls_gives_the_same_tokens over_tls_the_tokens_are_the_same
if has python3; then check chat_divides_layers_over_two_servers layers_divide_over_two_servers
else skip chat_divides_layers_over_two_servers "no python3 here"; fi
check chat_stop_strings_are_never_printed stop_strings_are_never_printed
check chat_draws_by_its_seed drawing_follows_the_seed
check chat_tells_the_figures_of_an_answer figures_of_an_answer_are_told
check chat_decodes_without_building_nodes decoding_builds_nothing
check chat_uses_the_template_of_the_directory template_of_the_directory_is_used
check chat_conversation_goes_on_and_begins_anew conversation_goes_on_and_begins_anew
check chat_tells_log_probabilities log_probabilities_are_told
check chat_quantises_when_it_loads quantised_weights_give_nearly_the_same
check chat_explains_a_step explanation_names_the_layers
check chat_tells_bad_input bad_input_is_told
check chat_tells_what_it_needs_where_memory_is_short server_without_room_is_told_of
check chat_with_a_lost_server_ends server_that_is_lost_ends_the_conversation
check chat_ends_by_a_signal signal_ends_the_wait_for_a_line
if has python3; then check chat_interrupted_amid_the_weights_sends_the_rest_the_next_time signal_amid_the_weights_ends_it_and_the_next_run_sends_the_rest
else skip chat_interrupted_amid_the_weights_sends_the_rest_the_next_time "no python3 here"; fi
if has python3; then check chat_with_a_server_lost_amid_the_weights_ends_at_once server_lost_amid_the_weights_is_told_at_once
else skip chat_with_a_server_lost_amid_the_weights_ends_at_once "no python3 here"; fi
if has python3; then check chat_on_a_terminal_edits_and_recalls terminal_edits_recalls_and_interrupts
else skip chat_on_a_terminal_edits_and_recalls "no python3 here"; fi
if python3 -c 'import gguf' 2>/dev/null; then
    check chat_on_gguf_gives_the_packages_tokens gguf_gives_the_packages_tokens
    check chat_refuses_gguf_that_does_not_fit gguf_that_does_not_fit_is_refused
    check chat_on_quantised_gguf_gives_its_own_tokens quantised_gguf_gives_its_own_tokens
else skip chat_on_gguf_gives_the_packages_tokens "python3 has no gguf (pip install --target build/oracles -r tests/oracles.txt)"; fi
if python3 -c 'import torch, transformers' 2>/dev/null; then
    check golden_models_are_the_packages env HF_HUB_OFFLINE=1 timeout 600 python3 -W ignore tests/language_model_golden.py check tests/golden/models
else skip golden_models_are_the_packages "python3 has no torch with transformers"; fi
finish
