#!/usr/bin/env bash
# examples/serve_text as a program: many requests at once give the tokens of examples/chat, whatever stands beside them, with few pages,
# shared beginnings and over TLS; cancelling; what bad lines get; the completion API with Python's http.client and PyPI's openai.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH} TMPDIR=$WORK
unset GENIE_DEVICES
model=$WORK/model
serve() { timeout 60 "$EXAMPLES/serve_text" "$model" "$@" 2>"$WORK/errors"; }
# Tokens of chat for a prompt; of serve_text's answer with an id, in the output $WORK/out.
chat_tokens() { timeout 60 "$EXAMPLES/chat" "$model" --raw --json --prompt "$@" 2>/dev/null </dev/null | sed -n 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/p'; }
tokens_of() { sed -n "s/^{\"id\":$1,.*\"tokens\":\(\[[0-9,]*\]\).*/\1/p" "$WORK/out"; }
long='and the way to the sea was long and the night was dark and the wind was cold over the hill where the old house stood'

makes_a_model() { timeout 60 "$EXAMPLES/chat" --train-steps 40 --save "$model" --json --max-tokens 2 </dev/null >/dev/null 2>"$WORK/errors" && [ -s "$model/config.json" ]; }

requests() {
    cat <<TEXT
{"id":1,"prompt":"He","max_tokens":60}
{"id":2,"prompt":"$long","max_tokens":25}
{"id":3,"prompt":"The sea","max_tokens":40,"temperature":1.5,"seed":7}
{"id":4,"prompt":"$long again","max_tokens":25}
{"id":5,"prompt":"x","max_tokens":1}
{"id":6,"prompt":"$long","max_tokens":30,"temperature":0.7,"top_k":5,"top_p":0.9,"seed":3}
TEXT
}
same_as_chat() {
    local want
    while IFS='|' read -r id prompt rest; do
        read -ra options <<<"$rest"
        want=$(chat_tokens "$prompt" "${options[@]}")
        [ -n "$want" ] && [ "$(tokens_of "$id")" = "$want" ] || { echo "$id: $(tokens_of "$id")"; echo "chat: $want"; cat "$WORK/errors"; return 1; }
    done <<TEXT
1|He|--max-tokens 60
2|$long|--max-tokens 25
3|The sea|--max-tokens 40 --temperature 1.5 --seed 7
4|$long again|--max-tokens 25
5|x|--max-tokens 1
6|$long|--max-tokens 30 --temperature 0.7 --top-k 5 --top-p 0.9 --seed 3
TEXT
}
answers_are_those_of_chat() {
    requests >"$WORK/requests"
    serve "$@" --file "$WORK/requests" >"$WORK/out" && [ "$(wc -l <"$WORK/out")" = 6 ] && same_as_chat
}
# 17 pages are one more than one sequence of 256 tokens can take: who came last waits, and begins again.
few_pages_give_the_same() { answers_are_those_of_chat --slots 5 --pages 17 --alone && grep -qE 'at most' "$WORK/errors"; }
beginnings_are_shared() {
    answers_are_those_of_chat --slots 1 --json || return 1
    cat "$WORK/errors"
    grep -qE '"shared_tokens":[1-9][0-9]{2}' "$WORK/errors" && grep -qE '"id":4,.*"shared_tokens":1[01][0-9],' "$WORK/out" || return 1
    serve --alone --file "$WORK/requests" --json >"$WORK/out"; grep -q '"shared_tokens":0,"steps"' "$WORK/errors"
}
over_tls_the_tokens_are_the_same() {
    start_server "$WORK/server" && GENIE_HOME=$WORK/client answers_are_those_of_chat --slots 4 --connect "@$WORK/server/url"
}
# A short answer does not wait for a long one that came before it.
answers_come_as_they_end() {
    printf '{"id":"a","prompt":"He","max_tokens":90}\n{"id":"b","prompt":"He","max_tokens":3}\n{"id":"c","prompt":"He","max_tokens":9}\n' | serve --slots 2 >"$WORK/out"
    [ "$(sed -E 's/^.."?id"?:"(.)".*/\1/' "$WORK/out" | tr -d '\n')" = bca ] || { cat "$WORK/out"; return 1; }
}
reports_what_it_did() {
    cat "$WORK/errors"
    grep -E '102 tokens, [0-9.]+ tokens/s, .* of 2 slots in use, [1-9][0-9]* of [0-9]+ pages at most, first token after .*p95.*between tokens .*p95' "$WORK/errors"
}
cancelling_ends_an_answer() {
    mkfifo "$WORK/lines"
    timeout 60 "$EXAMPLES/serve_text" "$model" --slots 2 <"$WORK/lines" >"$WORK/out" 2>"$WORK/errors" &
    local program=$!
    exec 7>"$WORK/lines"
    printf '{"id":"a","prompt":"He","max_tokens":200}\n{"id":"b","prompt":"He","max_tokens":200}\n{"id":"w","prompt":"He"}\n{"cancel":"w"}\n{"cancel":"a"}\n{"cancel":"nobody"}\n' >&7
    within 20 grep -q '"id":"a"' "$WORK/out"; exec 7>&-
    wait "$program"; cat "$WORK/out"
    grep -qE '"id":"a",.*"ended":"cancelled"' "$WORK/out" && grep -qE '"id":"w",.*"ended":"cancelled"' "$WORK/out" && grep -qE '"id":"b",.*"ended":"length"' "$WORK/out" &&
        grep -qF '{"id":"nobody","error":' "$WORK/out"
}
stop_strings_and_log_probabilities() {
    local all; all=$(timeout 60 "$EXAMPLES/chat" "$model" --raw --prompt He --max-tokens 80 2>/dev/null </dev/null)
    printf '{"prompt":"He","max_tokens":80,"stop":["never","%s"],"logprobs":2}\n' "${all:9:4}" | serve >"$WORK/out"
    cat "$WORK/out"
    grep -qF "{\"text\":\"${all%%"${all:9:4}"*}\"," "$WORK/out" && grep -qE '"logprobs":\[\[-[0-9.]+,\[[0-9]+,-[0-9.]+\],\[[0-9]+,-' "$WORK/out"
}
bad_lines_are_told_and_others_answered() {
    printf '{"id":1,"prompt":7}\n{"id":2,"prompt":"x","colour":1}\n{"id":3,"prompt":"x","max_tokens":0}\n{"id":4,\n{"id":5,"messages":[{"role":"user","content":"x"}]}\n[]\n{"id":6,"prompt":"%0300d"}\n{"id":7,"prompt":[9999]}\n{"id":8,"prompt":"x","stop":""}\n{"id":9,"prompt":"x","prompt":"x"}\n{"id":10,"prompt":["a"]}\n{"id":11,"prompt":"x","max_tokens":2}\n' 0 | serve >"$WORK/out"
    cat "$WORK/out"
    [ "$(grep -c '"error"' "$WORK/out")" = 11 ] && [ "$(grep -c '"tokens"' "$WORK/out")" = 1 ] && grep -qF "unknown field 'colour'" "$WORK/out" && [ "$(grep -cE '"id":(7|10),"error":"a prompt.s list holds ids below 257, and nothing else"' "$WORK/out")" = 2 ] &&
        grep -qE '"id":6,"error":"the prompt has 30[01] tokens, but the context has room for 256"' "$WORK/out" || return 1
    fails_with 'pages of 16 tokens: a context of 256 takes 17' "$EXAMPLES/serve_text" "$model" --pages 3 </dev/null || return 1
    fails_with 'No such file' "$EXAMPLES/serve_text" "$model" --file "$WORK/absent" && ! grep -q 'tokens/s' "$WORK/fails.output" || return 1 # nothing ran: no report
    fails_with 'a model is missing' "$EXAMPLES/serve_text" </dev/null && "$EXAMPLES/serve_text" --help | grep -q '^usage: .*serve_text DIR|FILE.gguf \[options\]$'
}

serve_http() {
    cp -r "$model" "$WORK/talks"
    echo '{"chat_template":"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<he>{% endif %}"}' >"$WORK/talks/tokenizer_config.json"
    "$EXAMPLES/serve_text" "$WORK/talks" --slots 4 --listen 127.0.0.1:0 >"$WORK/port" 2>"$WORK/http.errors" &
    http=$!
    within 20 grep -q listening "$WORK/port" && port=$(grep -oE '[0-9]+$' "$WORK/port")
}
completions_by_http_client() {
    WANT=$(chat_tokens He --max-tokens 40) TALK=$(chat_tokens '<user>Hello<he>' --max-tokens 12) timeout 60 python3 - "$port" <<'TEXT'
import http.client, json, os, sys, threading
port = int(sys.argv[1])
def post(path, body, headers={'Content-Type': 'application/json'}, method='POST'):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=30)
    c.request(method, path, body if isinstance(body, (str, bytes)) else json.dumps(body), headers)
    r = c.getresponse()
    return r.status, r.read().decode()
def ask(path, **body):
    status, text = post(path, body)
    assert status == 200, (status, text)
    return json.loads(text)
def events(path, **body):
    status, text = post(path, dict(body, stream=True))
    lines = [l[6:] for l in text.split('\n') if l.startswith('data: ')]
    assert status == 200 and lines[-1] == '[DONE]', text
    return [json.loads(l) for l in lines[:-1]]
want, talk = (bytes(json.loads(os.environ[n])).decode(errors='replace') for n in ('WANT', 'TALK'))
r = ask('/v1/completions', model='m', prompt='He', max_tokens=40, temperature=0)
assert r['choices'][0]['text'] == want and r['choices'][0]['finish_reason'] == 'length' and r['model'] == 'm', r
assert r['usage']['completion_tokens'] == 40 and r['usage']['prompt_tokens'] == 2
parts = events('/v1/completions', prompt='He', max_tokens=40, temperature=0, stream_options={'include_usage': True})
assert ''.join(p['choices'][0]['text'] for p in parts if p['choices']) == want and len(parts) > 20
assert parts[-1]['usage']['total_tokens'] == 42 and parts[-2]['choices'][0]['finish_reason'] == 'length'
talks = dict(messages=[{'role': 'user', 'content': 'Hello'}], max_tokens=12, temperature=0)
r = ask('/v1/chat/completions', **talks)
assert r['choices'][0]['message'] == {'role': 'assistant', 'content': talk}, r
text = lambda *parts: dict(talks, messages=[{'role': 'user', 'content': [{'type': 'text', 'text': p} for p in parts]}])
assert ask('/v1/chat/completions', **text('Hello'))['choices'][0]['message']['content'] == talk
lines = ask('/v1/chat/completions', **dict(talks, messages=[{'role': 'user', 'content': 'Hel\nlo'}]))
assert ask('/v1/chat/completions', **text('Hel', 'lo'))['choices'] == lines['choices'] and lines['choices'][0]['message']['content'] != talk
parts = events('/v1/chat/completions', **talks)
assert parts[0]['choices'][0]['delta']['role'] == 'assistant' and ''.join(p['choices'][0]['delta']['content'] for p in parts) == talk
r = ask('/v1/chat/completions', logprobs=True, top_logprobs=2, **talks)['choices'][0]['logprobs']['content']
assert len(r) == 12 and all(t['logprob'] <= 0 and len(t['top_logprobs']) == 2 and t['top_logprobs'][0]['logprob'] == t['logprob'] for t in r), r
r = ask('/v1/completions', prompt='He', max_tokens=3, logprobs=1, temperature=0)['choices'][0]['logprobs']
assert len(r['tokens']) == len(r['token_logprobs']) == len(r['top_logprobs']) == 3
assert json.loads(post('/v1/models', '', method='GET')[1])['data'][0]['object'] == 'model'
errors = [('/v1/completions', '{', 400), ('/v1/completions', '{}', 400), ('/v1/completions', '{"prompt":"x","n":2}', 400),
          ('/v1/completions', '{"prompt":"x","colour":1}', 400), ('/v1/completions', '{"prompt":"x","temperature":"1"}', 400),
          ('/v1/completions', json.dumps({'prompt': 'x' * 300}), 400), ('/v1/chat/completions', '{"messages":[]}', 400),
          ('/v1/chat/completions', '{"messages":[{"role":"user","content":"x","name":"y"}]}', 400), ('/v1/none', '{}', 404),
          ('/v1/chat/completions', '{"messages":[{"role":"user","content":[]}]}', 400),
          ('/v1/chat/completions', '{"messages":[{"role":"user","content":[{"type":"text"}]}]}', 400),
          ('/v1/chat/completions', '{"messages":[{"role":"user","content":[{"type":"text","text":"x","y":1}]}]}', 400),
          ('/v1/chat/completions', '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}', 400)]
for path, body, status in errors:
    got, text = post(path, body)
    assert got == status and json.loads(text)['error']['message'], (path, body, got, text)
assert post('/v1/completions', '', method='GET')[0] == 405 and post('/v1/completions', '{"prompt":"x"}', headers={})[0] == 415
left = http.client.HTTPConnection('127.0.0.1', port)   # clients that go away in the middle
left.request('POST', '/v1/completions', json.dumps({'prompt': 'He', 'max_tokens': 250, 'stream': True}), {'Content-Type': 'application/json'})
left.getresponse().read(10); left.close()
def one(n): assert ask('/v1/completions', prompt='He', max_tokens=n, temperature=0)['choices'][0]['text'] == want[:n]
threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 21)]
failed = []
threading.excepthook = lambda a: failed.append(a)
[t.start() for t in threads], [t.join() for t in threads]
assert not failed, failed
TEXT
}
completions_by_openai() {
    timeout 60 python3 - "$port" <<'TEXT'
import sys, openai
c = openai.OpenAI(base_url=f'http://127.0.0.1:{sys.argv[1]}/v1', api_key='none', max_retries=0)
model = c.models.list().data[0].id
messages = [{'role': 'user', 'content': 'Hello'}]
text = c.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0).choices[0].message.content
parts = c.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0, stream=True)
assert ''.join(p.choices[0].delta.content or '' for p in parts if p.choices) == text and text
logs = c.chat.completions.create(model=model, messages=messages, max_tokens=4, logprobs=True, top_logprobs=3).choices[0].logprobs
assert len(logs.content) == 4 and len(logs.content[0].top_logprobs) == 3
plain = c.completions.create(model=model, prompt='He', max_tokens=9, temperature=0)
assert plain.usage.completion_tokens == 9 and ''.join(p.choices[0].text for p in c.completions.create(model=model, prompt='He', max_tokens=9, temperature=0, stream=True)) == plain.choices[0].text
try: c.completions.create(model=model, prompt='He', n=3); assert False
except openai.BadRequestError as e: assert 'n must be 1' in str(e)
TEXT
}
# Gauges and histograms agree with what was answered; promtool says whether Prometheus takes them.
metrics_count_tokens_and_pages() {
    python3 - "$port" >"$WORK/metrics" <<'TEXT'
import re, sys, urllib.request
text = urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/metrics', timeout=30).read().decode()
print(text, end='')
v = {name: float(x) for name, x in re.findall(r'^(genie_text_\S+) (\S+)$', text, re.M)}
pages = [v['genie_text_kv_pages{state="%s"}' % s] for s in ('used', 'kept', 'free')]
assert sum(pages) == 64 + 1 and pages[0] == 0 and pages[1] > 0, pages  # 4 slots of 256 tokens, 16 a page
assert 2 <= v['genie_text_kv_pages_used_most'] <= 65 and v['genie_text_slots'] == 4 and v['genie_text_slots_in_use'] == 0
assert v['genie_text_tokens_total'] == v['genie_text_first_token_seconds_count'] + v['genie_text_next_token_seconds_count'] >= 40
for name in ('first', 'next'):
    buckets = [float(x) for x in re.findall(r'^genie_text_%s_token_seconds_bucket\S+ (\S+)$' % name, text, re.M)]
    assert buckets == sorted(buckets) and buckets[-1] == v[f'genie_text_{name}_token_seconds_count'] > 20
    assert 0 < v[f'genie_text_{name}_token_seconds_sum'] < 600
TEXT
}
promtool_takes_metrics() { promtool check metrics <"$WORK/metrics"; }
tokens_of_clients_come_from_a_file() {
    local guarded at
    printf 'correct horse battery staple\n' >"$WORK/token"; printf 'short\n' >"$WORK/short"; : >"$WORK/none"
    fails_with '16 characters' "$EXAMPLES/serve_text" "$model" --listen 127.0.0.1:0 --token-file "$WORK/short" &&
        fails_with 'is empty' "$EXAMPLES/serve_text" "$model" --listen 127.0.0.1:0 --token-file "$WORK/none" &&
        fails_with 'No such file' "$EXAMPLES/serve_text" "$model" --listen 127.0.0.1:0 --token-file "$WORK/absent" &&
        fails_with 'needs a token' "$EXAMPLES/serve_text" "$model" --listen 0.0.0.0:0 &&
        fails_with "unknown option '--token'" "$EXAMPLES/serve_text" "$model" --token secret || return 1
    "$EXAMPLES/serve_text" "$model" --listen 127.0.0.1:0 --token-file "$WORK/token" >"$WORK/guarded" 2>"$WORK/guarded.errors" &
    guarded=$!
    processes+=("$guarded")
    within 20 grep -q listening "$WORK/guarded" && at=$(grep -oE '[0-9]+$' "$WORK/guarded") || return 1
    python3 - "$at" <<'TEXT'
import sys, urllib.error, urllib.request
def get(token):
    r = urllib.request.Request(f'http://127.0.0.1:{sys.argv[1]}/metrics', headers={'Authorization': 'Bearer ' + token} if token else {})
    try: return urllib.request.urlopen(r, timeout=30).status
    except urllib.error.HTTPError as e: return e.code
assert [get(t) for t in (None, 'correct horse battery stapl', 'correct horse battery staple')] == [401, 401, 200]
TEXT
    local right=$?
    kill "$guarded"; wait "$guarded"
    return "$right"
}
http_goes_on_and_ends_when_told() {
    kill -0 "$http" && kill -TERM "$http" && { wait "$http"; cat "$WORK/http.errors"; grep -q 'tokens/s' "$WORK/http.errors"; }
}

check makes_a_model makes_a_model
check answers_are_those_of_chat answers_are_those_of_chat --slots 3 --alone
check few_pages_give_the_same few_pages_give_the_same
check beginnings_are_shared beginnings_are_shared
check over_tls_the_tokens_are_the_same over_tls_the_tokens_are_the_same
check answers_come_as_they_end answers_come_as_they_end
check reports_what_it_did reports_what_it_did
check cancelling_ends_an_answer cancelling_ends_an_answer
check stop_strings_and_log_probabilities stop_strings_and_log_probabilities
check bad_lines_are_told_and_others_answered bad_lines_are_told_and_others_answered
check http_opens serve_http
if has python3; then check completions_by_http_client completions_by_http_client; else skip completions_by_http_client "no python3 here"; fi
if python3 -c 'import openai' 2>/dev/null; then check completions_by_openai completions_by_openai; else skip completions_by_openai "no openai here: tests/oracles.txt"; fi
if has python3; then check metrics_count_tokens_and_pages metrics_count_tokens_and_pages; else skip metrics_count_tokens_and_pages "no python3 here"; fi
if has python3 && has promtool; then check promtool_takes_metrics promtool_takes_metrics; else skip promtool_takes_metrics "no promtool here: it is in Debian's package prometheus"; fi
if has python3; then check tokens_of_clients_come_from_a_file tokens_of_clients_come_from_a_file; else skip tokens_of_clients_come_from_a_file "no python3 here"; fi
check http_goes_on_and_ends_when_told http_goes_on_and_ends_when_told
finish
