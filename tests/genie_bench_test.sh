#!/usr/bin/env bash
# genie_bench: every workload at its quickest, its files, adapters that are honest and that lie, comparing, switches off.
# Tier: quick
. "$(dirname "$0")/script.sh"
bench=$BUILD/bench/genie_bench
unset GENIE_DEVICES GENIE_THREADS GENIE_LOG GENIE_ISA GENIE_BLAS
export PYTHONDONTWRITEBYTECODE=1
while read -r name; do unset "$name"; done < <(env | sed -n 's/^\([A-Z0-9_]*_BENCH_CMD\)=.*/\1/p')
quick=(--quick --out "$WORK/results")

# result FILE EXPRESSION: python3's value of it, where `d` is the file and `r` its results by who and case.
result() {
    python3 - "$@" <<'PYTHON'
import json, sys
d = json.load(open(sys.argv[1]), parse_constant=lambda x: sys.exit('a ' + x))
r = {(x['who'], x['case']): x for x in d['results']}
value = eval(sys.argv[2])
print(value)
sys.exit(not value)
PYTHON
}

# is_of_the_schema FILE: names, kinds and how numbers fit together.
is_of_the_schema() {
    python3 - "$1" <<'PYTHON'
import json, sys
def stop(why): sys.exit(f'{sys.argv[1]}: {why}')
d = json.load(open(sys.argv[1]), parse_constant=stop)
number, text, maybe = (int, float), str, (int, float, type(None))
def has(o, **kinds):
    for name, kind in kinds.items():
        if not isinstance(o.get(name), kind): stop(f'{name} is {o.get(name)!r}')
def times(o):
    has(o, latency_ms=dict, throughput_tokens_per_sec=number, peak_memory_bytes=maybe)
    l = o['latency_ms']
    has(l, mean=number, p50=number, p95=number, min=number, max=number)
    if not 0 < l['min'] <= l['p50'] <= l['p95'] <= l['max'] or not l['min'] <= l['mean'] <= l['max']: stop(l)
has(d, schema=text, tag=text, date=text, genie=text, commit=text, command=text, settings=dict, machine=dict, versions=dict,
    switches=dict, unavailable=dict, results=list)
has(d['settings'], device=text, dtype=text, batch=int, hidden=int, tokens=int, iters=int, warmup=int, rounds=int)
has(d['machine'], cpu=text, cores=int, memory_bytes=number, system=text, gpu=text, identity=text, watts=maybe, celsius=maybe, sm_mhz=maybe)
has(d['machine'], **{'class': text})
has(d['versions'], compiler=text, driver=text, cuda=text, nvrtc=text)
for x in d['results']:
    has(x, who=text, workload=text, case=text, status=text, reason=text, unit=text, versions=dict, error=maybe, error_bound=maybe, error_beside=text)
    if x['status'] == 'ok':
        times(x); has(x, runs=list, peak_host_bytes=maybe, error=number)
        if x['error'] > x['error_bound'] or len(x['runs']) != d['settings']['rounds']: stop(x)
        for one in x['runs']: times(one)
    elif 'latency_ms' in x or not x['reason']: stop(x)
if d['schema'] != 'genie-bench-1' or not d['results']: stop('empty')
PYTHON
}

workload_runs() {
    "$bench" "$1" "${quick[@]}" --tag "$2" || return 1
    is_of_the_schema "$WORK/results/$2.json" || return 1
    result "$WORK/results/$2.json" "len(d['results']) == $3 and all(x['status'] == 'ok' for x in d['results'])" || return 1
    grep -q 'commit' "$WORK/results/$2.md"
}

switches_stand_in_the_result() {
    GENIE_ISA=base GENIE_DEVICES='genie://secret?code=1' "$bench" rows:sum --device cpu "${quick[@]}" --tag switched || return 1
    ! grep -q secret "$WORK/results/switched.json" || return 1
    result "$WORK/results/switched.json" "d['switches'].items() >= {'GENIE_ISA': 'base', 'GENIE_DEVICES': 'set'}.items() and '--quick' in d['command']"
}

# Errors are those of the dtype, not of f32 under another name.
dtypes_have_errors_of_their_own() {
    local dtype
    for dtype in f32 bf16 f64; do "$bench" matmul "${quick[@]}" --dtype $dtype --tag $dtype >/dev/null || return 1; done
    result "$WORK/results/f32.json" "1e-9 < r['genie', '']['error'] < 1e-5" &&
        result "$WORK/results/bf16.json" "1e-4 < r['genie', '']['error'] < 0.02" &&
        result "$WORK/results/f64.json" "r['genie', '']['error'] < 1e-12"
}

# An adapter in plain Python, with sums of its own in double precision; MODE says in what it lies.
cat >"$WORK/stack.py" <<'PYTHON'
import json, struct, sys, time
sys.path.insert(0, 'bench/adapters')
import adapter
mode, r = sys.argv[1], json.loads(sys.stdin.readline())
f32 = lambda x: struct.unpack('f', struct.pack('f', x))[0]
key, hidden = adapter.key_of(r['seed'], 0), r['hidden']
def x(i): return f32(0 + f32(2 * f32((adapter.mix((i ^ key) & 0xFFFFFFFF) >> 8) / 2 ** 23 - 1)))
rows = [sum(x(row * hidden + i) for i in range(hidden)) for row in range(r['rows'])] if mode != 'hang' else []
seconds = adapter.timed(r, lambda n: time.sleep(0.001))
a = adapter.answer(r, seconds, adapter.sample(rows, r) if rows else [], 1000, {'python': '3'})
if mode == 'wrong': a['result'][7] += 0.01
if mode == 'nan': a['result'][7] = float('nan')
if mode == 'short': a['result'].pop()
if mode == 'schema': del a['latency_ms']['p95']
if mode == 'order': a['latency_ms']['p50'] = 2 * a['latency_ms']['max']
if mode == 'throughput': a['throughput_tokens_per_sec'] *= 1000
if mode == 'versions': a['versions'] = {}
if mode == 'quiet': a = {'status': 'unavailable'}
if mode == 'away': a = {'status': 'unavailable', 'reason': 'not on\n\x1bthis |machine'}
if mode == 'hang': time.sleep(60)
print('a line before' if mode != 'text' else 'and no answer')
if mode == 'text': sys.exit(0)
print(json.dumps(a))
if mode == 'status': sys.exit(3)
PYTHON

adapters_are_judged() {
    local mode
    for mode in honest wrong nan short schema order throughput versions quiet away hang text status; do
        local "${mode^^}_BENCH_CMD=python3 $WORK/stack.py $mode"
        export "${mode^^}_BENCH_CMD"
    done
    "$bench" rows:sum "${quick[@]}" --limit 3 --tag judged || return 1
    is_of_the_schema "$WORK/results/judged.json" || return 1
    result "$WORK/results/judged.json" "{w: x['status'] for (w, c), x in r.items()} == dict(genie='ok', honest='ok', wrong='wrong',
        away='unavailable', hang='failed', status='failed', **{w: 'invalid' for w in 'nan short schema order throughput versions quiet text'.split()})" || return 1
    result "$WORK/results/judged.json" "r['away', 'sum']['reason'] == 'not on  this  machine' and '--limit' in r['hang', 'sum']['reason']" || return 1
    result "$WORK/results/judged.json" "r['honest', 'sum']['error'] < 1e-12 and d['unavailable']['JAX'] == 'JAX_BENCH_CMD is not set'"
}

# What an adapter started goes with it, and a limit is a limit.
hanging_adapters_leave_nothing() {
    local start=$SECONDS
    HANG_BENCH_CMD="sleep 4321 & echo \$! >$WORK/left; sleep 4321" "$bench" rows:sum "${quick[@]}" --limit 1 --tag hanging || return 1
    [ $((SECONDS - start)) -lt 20 ] && [ -s "$WORK/left" ] && ended 5 "$(cat "$WORK/left")"
}

# One that stays is started once for all rounds, one that ends for each; both give a run a round.
adapters_stay_for_further_rounds() {
    cat >"$WORK/stays.py" <<'PYTHON'
import os, sys
sys.path.insert(0, 'bench/adapters')
import adapter
open(sys.argv[2], 'a').write('x')
def answers(r):
    for round in range(99):
        yield adapter.answer(r, [0.001 * (round + 1)] * r['iters'], [0.0] * 128, 1000 + round, {'python': '3'})
def run(r):
    if sys.argv[1] == 'stays': return answers(r)
    return next(answers(r))
adapter.main(run)
PYTHON
    STAYS_BENCH_CMD="python3 $WORK/stays.py stays $WORK/started1" ENDS_BENCH_CMD="python3 $WORK/stays.py ends $WORK/started3" \
        SILENT_BENCH_CMD="python3 $WORK/stays.py stays $WORK/started0; sleep 50" \
        "$bench" rows:sum "${quick[@]}" --rounds 3 --limit 5 --tag staying || return 1
    [ "$(cat "$WORK/started1")" = x ] && [ "$(cat "$WORK/started3")" = xxx ] && [ "$(cat "$WORK/started0")" = x ] || return 1
    result "$WORK/results/staying.json" "all(r[w, 'sum']['status'] == 'wrong' and 'values are off' in r[w, 'sum']['reason'] for w in ('stays', 'ends'))" &&
        result "$WORK/results/staying.json" "r['silent', 'sum']['status'] == 'failed' and 'no answer within 5 s' in r['silent', 'sum']['reason']"
}

# Who is traced computes the same bits, and each way has its runs.
traces_are_priced() {
    "$bench" traces mlp,gpt2:decode "${quick[@]}" --tag priced >"$WORK/priced" || { cat "$WORK/priced"; return 1; }
    is_of_the_schema "$WORK/results/priced.json" || return 1
    local cost='[+-][0-9.]+ % \(mean [+-][0-9.]+ %\)'
    grep -qE "^gpt2:decode +TLS +[0-9.]+ ms, stages $cost, kernels $cost$" "$WORK/priced" &&
        result "$WORK/results/priced.json" "len(r) == 12 and r['stages over TLS', 'decode']['error'] == 0" &&
        fails_with 'a server over it by itself' "$bench" traces mlp "${quick[@]}" --device 127.0.0.1:9 &&
        fails_with 'traces needs a workload' "$bench" traces "${quick[@]}" && fails_with "no workload 'transport'" "$bench" traces transport "${quick[@]}"
}

# The script of all figures, on this CPU, with programs that lie in one folder; stacks that are not here are unavailable.
figures_are_made() {
    mkdir -p "$WORK/one" && ln -sf "$(realpath "$bench")" "$WORK/one/genie_bench" || return 1
    BUILD=$WORK/one TORCH_EAGER_BENCH_CMD='sleep 9' ADAPTER_SECONDS=1 bench/figures.sh compare traces --device cpu "${quick[@]}" \
        >"$WORK/figures" 2>&1 || { tail -n 40 "$WORK/figures"; return 1; }
    sed -n '/^== compare$/h; /^== compare$/!H; ${x;p}' "$WORK/figures" >"$WORK/last" # what follows the last such line
    grep -q '^| gpt2:decode | genie | [0-9]' "$WORK/figures" && grep -q '^| | mlp | .* | gpt2:decode |$' "$WORK/last" &&
        [ "$(sed -n 's/^| \([a-z_]*\) | .*/\1/p' "$WORK/last" | head -n 5 | xargs)" = 'genie torch_eager torch_compile torch_graph jax' ] &&
        grep -q '^| torch_eager | failed | ' "$WORK/last" && grep -q '^- torch_eager: failed: no answer within 1 s' "$WORK/last" &&
        grep -qE '^\| stages over TLS \| [0-9.]+ \([0-9.]+\) x[0-9.]+ \|' "$WORK/last" && grep -qE '^gpt2:decode +here ' "$WORK/last" &&
        ! grep -q 'figures.sh: ' "$WORK/figures" || { cat "$WORK/last"; return 1; }
    fails_with 'no part' bench/figures.sh nothing --quick && fails_with 'has no genie_bench' env BUILD="$WORK/none" bench/figures.sh traces
}

# Rows are who ran it; each "genie..." is the base of the rows below it; a case that one has not stays empty.
results_are_seen_at_a_glance() {
    python3 - "$WORK/results/priced.json" "$WORK/glance.json" <<'PYTHON' || return 1
import json, sys
d = json.load(open(sys.argv[1]))
ms = {'genie': 0.01, 'stages': 0.011, 'kernels': 0.02, 'genie over TLS': 0.1, 'stages over TLS': 0.103, 'kernels over TLS': 2.5}
for r in d['results']:
    for run in r['runs']:
        run['latency_ms'] = dict.fromkeys(('mean', 'p50', 'p95', 'min', 'max'), ms[r['who']])
d['results'] = [r for r in d['results'] if (r['who'], r['case']) != ('kernels', 'decode')]
d['results'][-1].update(status='wrong', reason='values are off')
json.dump(d, open(sys.argv[2], 'w'))
PYTHON
    "$bench" table "$WORK/glance.json" >"$WORK/glance" || return 1
    local wanted
    for wanted in '| | mlp | gpt2:decode |' '| genie | 10 (10) | 10 (10) |' '| stages | 11 (11) x1.10 | 11 (11) x1.10 |' '| kernels | 20 (20) x2.00 | |' \
        '| genie over TLS | 100 (100) | 100 (100) |' '| stages over TLS | 103 (103) x1.03 | 103 (103) x1.03 |' \
        '| kernels over TLS | 2500 (2500) x25.00 | wrong |' '- kernels over TLS: wrong: values are off'; do
        grep -qxF -- "$wanted" "$WORK/glance" || { echo "no line $wanted in"; cat "$WORK/glance"; return 1; }
    done
    fails_with 'table needs results' "$bench" table && fails_with 'No such file' "$bench" table "$WORK/none.json"
}

numpy_adapter_agrees() {
    PYTHONPATH=$BUILD/oracles:$ROOT/build/oracles NUMPY_BENCH_CMD='python3 bench/adapters/numpy_cpu.py' \
        "$bench" mlp,attention,training,gpt2:decode,llama:prefill "${quick[@]}" --tag numpy || return 1
    result "$WORK/results/numpy.json" "sum(x['status'] == 'ok' and x['error'] < 1e-5 for x in d['results'] if x['who'] == 'numpy') == 5"
}

# ---- comparing: files that a script makes of one that was measured ----

# changed FROM TO STATEMENT ...: each changes `d`; `all` are its runs, `scale` multiplies times.
changed() {
    local from=$1 to=$2; shift 2
    python3 - "$WORK/results/$from.json" "$WORK/results/$to.json" "$to" "$@" <<'PYTHON'
import json, sys
d = json.load(open(sys.argv[1]))
all = [run for x in d['results'] for run in x['runs']]
def scale(f):
    for run in all:
        run['latency_ms'] = {k: v * f for k, v in run['latency_ms'].items()}
        run['throughput_tokens_per_sec'] /= f
d['tag'] = sys.argv[3]
for statement in sys.argv[4:]: exec(statement)
json.dump(d, open(sys.argv[2], 'w'))
PYTHON
}

# A base whose three runs are one run thrice, so that the spread is the least.
make_results() {
    "$bench" mlp "${quick[@]}" --tag one >/dev/null || return 1
    changed one base "d['results'][0]['runs'] *= 3" &&
        changed base faster 'scale(0.25)' 'scale(2)' &&
        changed base slower 'for k in (3,): scale(k)' &&
        changed base near 'scale(1.01)' &&
        changed faster two "d['results'][0]['runs'].pop()" &&
        changed faster larger "for run in all: run['peak_memory_bytes'] *= 2" &&
        changed faster tail "l = all[2]['latency_ms']; l['p95'] *= 40; l['max'] *= 40" &&
        changed base other_gpu "d['machine']['class'] = 'another'" &&
        changed base other_tool "d['versions']['compiler'] = 'another'" &&
        changed base other_size "d['settings']['batch'] = 3" &&
        changed base other_schema "d['schema'] = 'another'" &&
        head -c 700 "$WORK/results/base.json" >"$WORK/results/cut.json"
}

compares() { "$bench" compare "$WORK/results/base.json" "$WORK/results/$1.json" --out "$WORK/results" --tag compared "${@:2}"; }

# verdict FILE TEXT
verdict() { compares "$1" | grep -F ", $1 |" | tee "$WORK/verdict" | grep -qF "$2" || { cat "$WORK/verdict"; return 1; }; }

gains_are_judged() {
    verdict faster '| **gain** ' && verdict slower '**slower**' && verdict near 'within the spread' &&
        verdict two 'gain, not kept: fewer than three runs' && verdict larger 'gain, not kept: it takes more memory' &&
        verdict tail 'gain, not kept: not at p95 in each run'
}

other_machines_are_refused() {
    fails_with 'classes of devices differ.*--force' compares other_gpu && fails_with 'versions of tools differ' compares other_tool &&
        fails_with 'another --batch' compares other_size && fails_with 'another --batch' compares other_size --force &&
        fails_with 'schema' compares other_schema && fails_with 'byte [0-9]+' compares cut && fails_with 'No such file' compares nothing
}

forced_comparisons_are_marked() {
    compares other_gpu --force | grep -q 'FORCED.*classes of devices differ' || return 1
    grep -q FORCED "$WORK/results/compared.md" && grep -q FORCED "$WORK/results/compared.svg" &&
        compares near && ! grep -q FORCED "$WORK/results/compared.md"
}

# Two bars, each with its line, and texts of a chart that an XML reader takes.
chart_is_whole() {
    compares faster >/dev/null || return 1
    python3 - "$WORK/results/compared.svg" <<'PYTHON'
import sys, xml.etree.ElementTree as x
all = list(x.parse(sys.argv[1]).iter())
kinds = [e.get('class') for e in all]
texts = ' '.join(e.text or '' for e in all)
sys.exit(not (kinds.count('bar') == kinds.count('base') == 1 and kinds.count('p95') == 2 and 'mlp' in texts and '0.50 of base' in texts))
PYTHON
}

one_file_compares_its_stacks() {
    "$bench" compare "$WORK/results/judged.json" --out "$WORK/results" --tag stacks >"$WORK/stacks" || return 1
    grep -qE '\| rows:sum \| honest \| .*one run: no spread' "$WORK/stacks" && grep -q '| rows:sum | wrong | wrong: values are off' "$WORK/stacks"
}

switches_are_taken_away() {
    "$bench" ablate rows:sum "${quick[@]}" --only ISA --rounds 2 --tag off >"$WORK/off" || { cat "$WORK/off"; return 1; }
    is_of_the_schema "$WORK/results/off.json" || return 1
    grep -q 'without instructions above AVX2' "$WORK/off" && grep -q '| rows:sum | GENIE_ISA=base |' "$WORK/results/off.md" &&
        result "$WORK/results/off.json" "set(r) == {(w, 'sum') for w in ('genie', 'GENIE_ISA=base', 'GENIE_ISA=avx2')}"
}

absent_device_is_told() {
    local status=0
    "$bench" mlp --device cuda:77 "${quick[@]}" >"$WORK/absent" || status=$?
    cat "$WORK/absent"
    [ "$status" = 77 ] && grep -q '^SKIP: genie_bench: ' "$WORK/absent"
}

# A program of examples/: timed as a whole, round by round, with what it ends with; its failure is this program's.
examples_are_timed() {
    "$bench" example remote_decode --tokens 4 --rounds 2 --out "$WORK/results" --tag example >"$WORK/example" || { cat "$WORK/example"; return 1; }
    result "$WORK/results/example.json" "len(r['genie', 'remote_decode']['runs']) == 2 and d['rows']['counters']['steps_run'] == 3 and d['rows']['mode'] == 'semantic' and \
r['genie', 'remote_decode']['latency_ms']['min'] > 1 and r['genie', 'remote_decode']['peak_host_bytes'] > 1 << 20" &&
        grep -q '^| example:remote_decode | genie | ' "$WORK/example" && "$bench" compare "$WORK/results/example.json" --out "$WORK/results" --tag compared || return 1
    fails_with 'name of one' "$bench" example && fails_with "no example 'nothing'" "$bench" example nothing && fails_with 'no name of an example' "$bench" example ../x &&
        fails_with 'takes a number' "$bench" example remote_decode --tokens no --out "$WORK/results"
}

# What is printed says what its columns are.
columns_are_named() { "$bench" rows:sum "${quick[@]}" --tag named >"$WORK/named" && grep -q '^| case | who | mean ' "$WORK/named" && fails_with 'there are mlp, matmul' "$bench" rows,nothing "${quick[@]}"; }

# Driver and kernels are cuda_shim.c's, what is asked of the GPU is nvml_shim.c's.
gpu_state_is_told() {
    mkdir -p "$WORK/objects" "$WORK/cache" "$WORK/nvml" && chmod 700 "$WORK/cache"
    $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread &&
        $CC -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -o "$WORK/nvml/libnvidia-ml.so.1" tests/nvml_shim.c || return 1
    GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_DIR=$WORK/objects GENIE_CACHE=$WORK/cache CXX=${CXX:-c++} GENIE_CUBLASLT=0 GENIE_MEASURE=0 \
        LD_LIBRARY_PATH=$WORK/nvml "$bench" rows:sum --device cuda:0 "${quick[@]}" --no-adapters --tag state || return 1
    result "$WORK/results/state.json" "[d['machine'][k] for k in ('sm_mhz', 'memory_mhz', 'most_sm_mhz', 'watts', 'limit_watts', 'celsius')] == [1755, 2619, 1980, 411.5, 700, 48]" &&
        result "$WORK/results/state.json" "d['machine']['gpu'] == 'GPU of the shim' and d['versions']['driver'] == '999.25' and d['versions']['cuda'] == '12.9'"
}

command_lines_are_checked() {
    fails_with "no workload 'nothing'" "$bench" mlp,nothing "${quick[@]}" && ! grep -q '^|' "$WORK/fails.output" &&
        fails_with 'name a workload' "$bench" && fails_with 'name a workload' "$bench" , "${quick[@]}" && fails_with 'no case' "$bench" rows:none "${quick[@]}" &&
        fails_with 'dtype is' "$bench" mlp "${quick[@]}" --dtype f8 && fails_with 'tag takes' "$bench" mlp "${quick[@]}" --tag ../x &&
        fails_with 'joined by commas' "$bench" mlp rows && fails_with 'there are rows:softmax rows:layernorm' "$bench" rows:nothing "${quick[@]}" &&
        fails_with "no switch of cpu has 'NOTHING'" "$bench" ablate mlp "${quick[@]}" --only NOTHING &&
        fails_with 'multiple of 64' "$bench" attention "${quick[@]}" --hidden 65 && fails_with 'needs results' "$bench" compare
}

has python3 || { echo "SKIP: no python3 here"; exit 77; }
check mlp_runs workload_runs mlp mlp 1
check products_and_loops_run workload_runs matmul,elementwise simple 2
check rows_run workload_runs rows rows 4
check attention_runs workload_runs attention attention 1
check gpt2_runs workload_runs gpt2 gpt2 3
check llama_runs workload_runs llama llama 3
check training_runs workload_runs training training 1
check transport_runs workload_runs transport transport 3
check switches_stand_in_the_result_without_secrets switches_stand_in_the_result
check errors_are_those_of_the_dtype dtypes_have_errors_of_their_own
check adapters_that_lie_get_no_time adapters_are_judged
check adapters_that_hang_are_ended_with_what_they_started hanging_adapters_leave_nothing
check adapters_that_can_stay_for_further_rounds adapters_stay_for_further_rounds
check figures_beside_other_stacks_are_made_by_one_script figures_are_made
check traces_are_priced_and_change_no_bits traces_are_priced
check results_are_seen_at_a_glance results_are_seen_at_a_glance
if PYTHONPATH=$BUILD/oracles:$ROOT/build/oracles python3 -c 'import numpy' 2>/dev/null; then
    check numpy_gives_the_same_values numpy_adapter_agrees
else
    skip numpy_gives_the_same_values "no numpy here"
fi
check results_to_compare_are_made make_results
check gains_count_by_three_runs gains_are_judged
check other_devices_and_versions_are_refused other_machines_are_refused
check forced_comparisons_are_marked forced_comparisons_are_marked
check chart_has_a_bar_for_each_result chart_is_whole
check stacks_of_one_file_are_compared one_file_compares_its_stacks
check switches_are_taken_away_alone switches_are_taken_away
check examples_are_timed examples_are_timed
check columns_are_named columns_are_named
check gpu_state_is_told_as_its_driver_gives_it gpu_state_is_told
check absent_device_is_told absent_device_is_told
check wrong_command_lines_are_told command_lines_are_checked
finish
