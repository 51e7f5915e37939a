#!/usr/bin/env bash
# The program genie_trace: tables and timelines of traces, recording of CUDA programs with a stand-in for CUPTI, the script for
# bpftrace; traces of the GPU executor on fibres; Perfetto's own reader, where it can be had.
# Tier: quick
. "$(dirname "$0")/script.sh"
genie_trace() { "$EXAMPLES/genie_trace" "$@"; }

cat >"$WORK/prog.c" <<'TEXT'
#include "genie.h"
#include <stdio.h>
int main(void) {
    static float w[4096], x[4096], y[4096];
    for (int i = 0; i < 4096; i++) w[i] = (float)(i % 7) / 9, x[i] = (float)(i % 11) / 13;
    gn_ctx *g = gn_open(NULL);
    gn_tensor a = gn_weight(g, GN_F32, GN_SHAPE(64, 64), w, "layer.0.up"), b = gn_weight(g, GN_F32, GN_SHAPE(64, 64), x, "layer.1.down");
    for (int i = 0; i < 6; i++) {
        gn_tensor h = gn_relu(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(64, 64), x), a));
        if (gn_read(gn_softmax(gn_matmul(h, b), -1), y, sizeof y) != GN_OK) return puts(gn_last_error(g)->text), 1;
        gn_step(g);
    }
    gn_close(g);
    return 0;
}
TEXT
# what record has CUDA do with the library
cat >"$WORK/cuda.c" <<'TEXT'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    void *library = getenv("CUDA_INJECTION64_PATH") ? dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW) : NULL;
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    printf("begun %d\n", begin ? begin() : -1);
    return argc > 1 ? atoi(argv[1]) : 0;
}
TEXT
prepare() {
    $CC ${SAN:+-fsanitize=$SAN} -I. "$WORK/prog.c" "$BUILD/libgenie.a" -o "$WORK/prog" $LIBS && $CC "$WORK/cuda.c" -o "$WORK/cuda" -ldl &&
        $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/cupti.so" tests/cupti_shim.c
}
traced() { GENIE_DEVICES=cpu GENIE_THREADS=1 GENIE_TRACE=$WORK/$1 GENIE_TRACE_KERNELS=1 "$WORK/prog"; }

summary_has_stages_calls_kernels_and_what_was_saved() {
    local format
    for format in run.jsonl run.json; do
        traced "$format" && genie_trace "$WORK/$format" >"$WORK/summary" || return 1
        cat "$WORK/summary"
        grep -qE '^program +kernel +(18|24) ' "$WORK/summary" && grep -qE '^call +gn_read +6 .* 98304 ' "$WORK/summary" &&
            grep -qE '^launch +submit +6 ' "$WORK/summary" && grep -qE '^role +linear ' "$WORK/summary" && grep -qE '^0 +linear ' "$WORK/summary" &&
            grep -qE '^1 +head ' "$WORK/summary" && grep -qF "163840 of weights and states that stay" "$WORK/summary" || return 1
    done
}
# Calls that were too short to be recorded are in the summary, of each process apart.
calls_left_out_are_told() {
    local rest='"packed_bytes":0,"detail":""' note='"stage":"note","lane":"left out","beside":true'
    cat >"$WORK/left.jsonl" <<TEXT
{"name":"gn_read","stage":"call","process":1,"lane":"thread 1","begin_ns":1000,"end_ns":2000,"bytes":0,$rest}
{"name":"gn_read",$note,"process":1,"begin_ns":2000,"end_ns":1502000,"bytes":7,$rest}
{"name":"STEP",$note,"process":2,"begin_ns":2000,"end_ns":1502000,"bytes":7,$rest}
{"name":"gn_read",$note,"process":1,"begin_ns":2000000,"end_ns":2500000,"bytes":5,$rest}
TEXT
    genie_trace "$WORK/left.jsonl" >"$WORK/summary" && cat "$WORK/summary"
    grep -qE '^call +gn_read +1 ' "$WORK/summary" && grep -qE '^program +12 gn_read in 2.000 ms$' "$WORK/summary" && grep -qE '^peer +7 STEP in 1.500 ms$' "$WORK/summary"
}
# gn_close returns nothing: what could not be written is told without GENIE_LOG too.
trace_that_is_not_whole_is_told() {
    GENIE_DEVICES=cpu GENIE_THREADS=1 GENIE_TRACE=/dev/full "$WORK/prog" 2>"$WORK/why" && cat "$WORK/why" &&
        grep -qx 'genie: error: the trace /dev/full is not whole: No space left on device' "$WORK/why"
}
# Two contexts in one program: each with the bytes that lie on its own devices.
bytes_saved_are_told_by_device() {
    local rest='"process":1,"lane":"thread 1","begin_ns":1000,"end_ns":2000,"packed_bytes":0' device bytes
    for device in far:5556/cpu:0:1000 far:5556/cpu:1:500 cpu:0:64 cpu:0:36; do
        bytes=${device##*:} device=${device%:*}
        printf '{"name":"slot_put","stage":"upload","bytes":%d,"detail":"%s",%s}\n' "$bytes" "$device" "$rest"
    done >"$WORK/saved.jsonl"
    cat >>"$WORK/saved.jsonl" <<TEXT
{"name":"counters","stage":"note","bytes":0,"detail":"steps_run=3 tensor_bytes_up=900 packed_bytes_up=910 devices=far:5556/cpu:0,far:5556/cpu:1",$rest}
{"name":"counters","stage":"note","bytes":0,"detail":"steps_run=2 devices=cpu:0",$rest}
TEXT
    genie_trace "$WORK/saved.jsonl" | sed -n '/^Bytes/,$p' | tr -s ' ' >"$WORK/saved"
    cat "$WORK/saved"
    grep -qx 'Bytes that meaning saved in 3 steps on far:5556/cpu:0,far:5556/cpu:1' "$WORK/saved" &&
        grep -qF ' 3000 of weights and states that stay where they are, if each step had sent them (1500 each)' "$WORK/saved" &&
        grep -qx ' 0 by packing 900 bytes of tensors that crossed, which were sent as they are' "$WORK/saved" &&
        grep -qx 'Bytes that meaning saved in 2 steps on cpu:0' "$WORK/saved" && grep -qF ' 100 of weights and states' "$WORK/saved"
}
refused() {
    printf '{"a":1}\n' >"$WORK/other.jsonl" # JSON, but no trace
    fails_with 'holds no events' "$EXAMPLES/genie_trace" "$WORK/other.jsonl" && fails_with 'Is a directory' "$EXAMPLES/genie_trace" "$WORK" &&
        fails_with 'name of a file is missing' "$EXAMPLES/genie_trace" "$WORK/other.jsonl" --html && fails_with '--nothing: not known' "$EXAMPLES/genie_trace" --nothing || return 1
    printf '{"name":"x","stage":"call","begin_ns":1,"end_ns":2}\n{"name":"y","sta' >"$WORK/cut.jsonl"
    genie_trace "$WORK/cut.jsonl" 2>"$WORK/why" | grep -q ': 1 events' && grep -q 'last line is cut' "$WORK/why" || return 1
    printf '{"name":"x"\n' >"$WORK/bad.jsonl"
    ! genie_trace "$WORK/bad.jsonl" 2>"$WORK/why" && grep -q 'bad.jsonl: byte' "$WORK/why" && ! genie_trace "$WORK/none" 2>"$WORK/why" && grep -q 'No such file' "$WORK/why"
}

# Counted by Python from the lines, and by Perfetto from the other format.
perfetto_reads_it() {
    "$1" - "$WORK/run.json" <<'TEXT'
import json, sys
from perfetto.trace_processor import TraceProcessor
want = [e for e in json.load(open(sys.argv[1])) if e["ph"] == "X"]
tp = TraceProcessor(trace=sys.argv[1])
got = [r for r in tp.query("select name, dur from slice")]
bad = [r.name for r in tp.query("select name from stats where severity = 'error' and value > 0")]
print(len(want), len(got), bad)
assert len(got) == len(want) and not bad and sorted(r.name for r in got) == sorted(e["name"] for e in want)
TEXT
}

# Every span that is wider than nothing at this width has its box; the picture has many colours.
browser() { timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1400,900 --user-data-dir="$WORK/profile" "$@" 2>/dev/null; }
timeline_is_drawn() {
    genie_trace "$WORK/run.jsonl" --html "$WORK/run.html" && ! grep -qE 'src=|href=|@import|url\(' "$WORK/run.html" || return 1
    browser --dump-dom "file://$WORK/run.html" >"$WORK/dom" || return 1
    local boxes hits; boxes=$(grep -o '<rect class="e' "$WORK/dom" | wc -l)
    browser --dump-dom "file://$WORK/run.html#plan_make" >"$WORK/hit" || return 1
    hits=$(grep -o '<rect class="e hit' "$WORK/hit" | wc -l)
    echo "$boxes boxes, $hits found"
    [ "$boxes" -ge 12 ] && [ "$hits" = 1 ] && grep -q '1 found, ' "$WORK/hit" && grep -qE '>gn_(open|read)<' "$WORK/dom" && grep -q 'thread 1' "$WORK/dom" &&
        browser --screenshot="$WORK/run.png" "file://$WORK/run.html" && python3 - "$WORK/run.png" <<'TEXT'
import struct, sys, zlib
data, at, packed = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    n, kind = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + n]
    if kind == b"IHDR": width, height, depth, sort = struct.unpack(">IIBB", body[:10])
    if kind == b"IDAT": packed += body
    at += n + 12
raw, bytes_of, lines, before = zlib.decompress(packed), {2: 3, 6: 4}[sort], [], None
assert depth == 8 and width == 1400
for y in range(height):
    line = bytearray(raw[y * (width * bytes_of + 1):(y + 1) * (width * bytes_of + 1)])
    how, line = line[0], line[1:]
    for x in range(len(line)):
        a = line[x - bytes_of] if x >= bytes_of else 0
        b = before[x] if before else 0
        c = before[x - bytes_of] if before and x >= bytes_of else 0
        p = a + b - c
        paeth = a if abs(p - a) <= abs(p - b) and abs(p - a) <= abs(p - c) else b if abs(p - b) <= abs(p - c) else c
        line[x] = (line[x] + [0, a, b, (a + b) // 2, paeth][how]) & 255
    lines.append(bytes(line))
    before = line
    if y == 240: break
colours = {}
for line in lines:
    for x in range(0, len(line), bytes_of): colours[line[x:x + 3]] = colours.get(line[x:x + 3], 0) + 1
most = max(colours.values()) / sum(colours.values())
print(len(colours), "colours, the most frequent", most)
assert len(colours) > 40 and most < 0.995
TEXT
}

# Boxes of every width, with a name of wide letters: it is cut with an ellipsis where it does not fit, and never reaches out of its box.
names_fit_into_their_boxes() {
    local i at=0
    for ((i = 1; i < 40; i++)); do
        printf '{"name":"WWW_PUT %d","stage":"queue","process":1,"lane":"queue","begin_ns":%d,"end_ns":%d,"bytes":0,"packed_bytes":0,"detail":""}\n' \
            "$i" "$at" "$((at += i * i))"
    done >"$WORK/wide.jsonl"
    genie_trace "$WORK/wide.jsonl" --html "$WORK/wide.html" || return 1
    sed 's#</script></body></html>#const box = {}; for (const b of document.querySelectorAll(".e")) box[b.event.name.slice(8)] = b.getBBox();\
const names = [...document.querySelectorAll(".name")], of = n => Object.values(box).find(b => b.x <= n.getBBox().x \&\& n.getBBox().x < b.x + b.width);\
document.body.dataset.out = names.filter(n => n.getBBox().x + n.getBBox().width > of(n).x + of(n).width).map(n => n.textContent).join(" ");\
document.body.dataset.cut = names.filter(n => n.textContent.endsWith("…")).length \&\& names.filter(n => /^WWW_PUT [0-9]+$/.test(n.textContent)).length;&#' \
        "$WORK/wide.html" >"$WORK/fits.html"
    browser --dump-dom "file://$WORK/fits.html" >"$WORK/dom" || return 1
    grep -o '<body[^>]*>' "$WORK/dom" | tee "$WORK/body" && grep -qE ' data-out="" data-cut="[1-9][0-9]*"' "$WORK/body"
}

recorded() {
    GENIE_LIBCUPTI=$WORK/cupti.so GENIE_TRACE_CUPTI=$EXAMPLES/genie_trace_cupti.so genie_trace record --out "$WORK/cuda.jsonl" -- "$WORK/cuda" 3
    [ $? = 3 ] || return 1
    cat "$WORK/cuda.jsonl"
    genie_trace "$WORK/cuda.jsonl" | tee "$WORK/summary"
    python3 - "$WORK/cuda.jsonl" <<'TEXT' && grep -qE '^GPU 1 strea' "$WORK/summary" && grep -qF '(1048576 bytes)' "$WORK/summary"
import json, sys, time
e = {x["stage"] + " " + x["name"]: x for x in map(json.loads, open(sys.argv[1]))}
k, c = e['kernel vector_add<float>("quoted")'], e["input copy HtoD"]
assert k["end_ns"] - k["begin_ns"] == 4000 and k["lane"] == "GPU 1 stream 7" and "grid 128 x 1 x 1, block 256 x 1 x 1" in k["detail"]
assert c["bytes"] == 1 << 20 and c["begin_ns"] - k["begin_ns"] == 5000
d, r = e["driver cuLaunchKernel"], e["driver cudaLaunchKernel_v7000"]
assert r["begin_ns"] < d["begin_ns"] < d["end_ns"] < r["end_ns"] < k["begin_ns"] and d["lane"] == r["lane"] == "thread 4242"
assert abs(time.monotonic_ns() - k["begin_ns"]) < 60e9 # CUPTI's clock is another: 5 s ahead here
assert len(e) == 4
TEXT
}
absent_cupti_is_said() {
    GENIE_LIBCUPTI=/nowhere GENIE_TRACE_CUPTI=$EXAMPLES/genie_trace_cupti.so genie_trace record --out "$WORK/none.jsonl" -- "$WORK/cuda" 2>"$WORK/why" | grep -qx 'begun 0' &&
        grep -q 'CUPTI (libcupti.so) is not found' "$WORK/why" && grep -q 'nothing was recorded' "$WORK/why"
}
calls_print_their_script() {
    genie_trace calls | grep -q '^uprobe:.*libcuda.so.1:cu\*' && ! genie_trace calls | grep -q ioctl && genie_trace calls --kernel | grep -q 'sys_enter_ioctl' &&
        genie_trace calls --kernel | grep -q 'sched_switch' && genie_trace calls --kernel | grep -q 'mmap'
}
missing_bpftrace_is_said() { ! PATH=$WORK "$EXAMPLES/genie_trace" calls -- true 2>"$WORK/why" && grep -q 'bpftrace is not installed' "$WORK/why"; }

# Kernels on fibres: their times from the shim's events, the nodes that each computes, the driver's calls with sizes.
gpu_is_traced() {
    mkdir -p "$WORK/objects" "$WORK/cache" && chmod 700 "$WORK/cache"
    $CC -std=gnu11 -O2 -fPIC -shared -o "$WORK/shim.so" tests/cuda_shim.c -ldl -lpthread &&
        GENIE_LIBCUDA=$WORK/shim.so GENIE_NVRTC=$WORK/shim.so GENIE_SHIM_DIR=$WORK/objects GENIE_CACHE=$WORK/cache CXX=${CXX:-c++} GENIE_CUBLASLT=0 GENIE_MEASURE=0 \
            GENIE_DEVICES=cuda:0 GENIE_TRACE=$WORK/gpu.jsonl GENIE_TRACE_KERNELS=1 "$WORK/prog" && python3 - "$WORK/gpu.jsonl" <<'TEXT'
import json, sys
all = [json.loads(x) for x in open(sys.argv[1])]
of = lambda stage, name=None: [e for e in all if e["stage"] == stage and name in (None, e["name"])]
kernels, replay = of("kernel"), of("launch", "profiling replay")
assert len(replay) == 1 and len(kernels) >= 3, (len(replay), len(kernels))
text = " ".join(k["detail"] for k in kernels)
assert text.count(" matmul") == 2 and " relu" in text and " softmax" in text, text
assert any(" ops matmul relu" in k["detail"] for k in kernels) # one kernel, two nodes
for k in kernels: assert k["lane"] == "cuda:0" and replay[0]["begin_ns"] - 1000000 <= k["begin_ns"] <= k["end_ns"] <= replay[0]["end_ns"]
assert "3 kernels one by one" in replay[0]["detail"]
up = of("driver", "cuMemcpyHtoDAsync_v2")
assert sum(e["bytes"] for e in up) >= 6 * 16384 + 2 * 16384 and "16384 B" in " ".join(e["detail"] for e in up)
launches = of("driver", "cuLaunchKernel")
assert len(launches) >= 3 and launches[0]["detail"].startswith("(_, ") and launches[0]["detail"].count(",") == 10
for stage in "initialise upload input plan compile launch synchronise output free".split(): assert of(stage), stage
calls = of("call", "gn_read") + of("initialise", "gn_open")
for e in launches: assert any(r["begin_ns"] <= e["begin_ns"] and e["end_ns"] <= r["end_ns"] for r in calls)
TEXT
}

# A stand-in for NVIDIA's library of ranges: they open and close as calls and their stages do.
ranges_are_pushed_and_popped() {
    cat >"$WORK/nvtx.c" <<'TEXT'
#include <stdio.h>
static int depth;
int nvtxRangePushA(const char *name) { fprintf(stderr, "%d %s\n", depth, name); return depth++; }
int nvtxRangePop(void) { fprintf(stderr, "%d end\n", --depth); return depth; }
TEXT
    $CC -fPIC -shared -o "$WORK/nvtx.so" "$WORK/nvtx.c" && GENIE_NVTX=$WORK/nvtx.so traced nvtx.json 2>"$WORK/ranges" || return 1
    head -20 "$WORK/ranges"
    [ "$(grep -c '^0 gn_read$' "$WORK/ranges")" = 6 ] && [ "$(grep -c '^1 submit$' "$WORK/ranges")" = 6 ] && [ "$(grep -c end "$WORK/ranges")" = "$(grep -vc end "$WORK/ranges")" ] &&
        [ "$(tail -n 1 "$WORK/ranges")" = '0 end' ] && GENIE_NVTX=$WORK/nvtx.so GENIE_DEVICES=cpu "$WORK/prog" 2>"$WORK/off" && [ ! -s "$WORK/off" ]
}

# The server writes its own file, the client gets its session's events too, in its own time.
server_and_client_are_traced() {
    "$EXAMPLES/genie_serve" --listen 127.0.0.1:0 --home "$WORK/server" --trace "$WORK/server.json" >"$WORK/said" 2>"$WORK/log" &
    local server=$! tries=0 status
    processes+=("$server")
    while [ $tries -lt 100 ] && ! [ -s "$WORK/server/url" ]; do sleep 0.1; tries=$((tries + 1)); done
    GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url GENIE_TRACE=$WORK/both.jsonl "$WORK/prog"; status=$?
    kill "$server"; wait "$server"
    cat "$WORK/log"
    [ "$status" = 0 ] && genie_trace "$WORK/both.jsonl" >"$WORK/summary" && genie_trace "$WORK/server.json" >"$WORK/other" || return 1
    cat "$WORK/summary" "$WORK/other"
    grep -qE '^clock of 127.0.0.1:[0-9]+: ' "$WORK/summary" && grep -qE '^127.0.0.1:[0-9]* +queue ' "$WORK/summary" && grep -qE '^initialise +connect +1 ' "$WORK/summary" &&
        grep -qE '^upload +weights +1 ' "$WORK/summary" && grep -qE '^launch +submit +12 ' "$WORK/summary" && grep -qE '^launch +submit +6 ' "$WORK/other" &&
        grep -qE '^initialise +device +1 ' "$WORK/other"
}

if ! has python3; then
    skip genie_trace "no python3 here"
    finish
    exit
fi
help_and_version_are_told() {
    "$EXAMPLES/genie_trace" --help >"$WORK/help" 2>"$WORK/errors" && grep -q 'genie_trace record' "$WORK/help" && [ ! -s "$WORK/errors" ] &&
        [ "$("$EXAMPLES/genie_trace" --version)" = "genie $(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)" ] && fails_with '^usage: genie_trace FILE' "$EXAMPLES/genie_trace"
}
check help_and_version_are_told help_and_version_are_told
check programs_are_prepared prepare
check a_summary_has_stages_calls_kernels_roles_and_what_was_saved summary_has_stages_calls_kernels_and_what_was_saved
check what_is_no_trace_is_refused_with_its_place refused
check calls_left_out_are_told calls_left_out_are_told
check bytes_saved_are_told_by_device bytes_saved_are_told_by_device
if [ -c /dev/full ]; then check trace_that_is_not_whole_is_told trace_that_is_not_whole_is_told
else skip trace_that_is_not_whole_is_told "no /dev/full here"; fi
if [ -f "$EXAMPLES/genie_trace_cupti.so" ]; then
    check a_recorded_program_s_kernels_copies_and_calls_are_on_one_clock recorded
    check absent_cupti_is_said_and_the_program_runs absent_cupti_is_said
else
    skip recording "genie_trace_cupti.so is not built with sanitizers"
fi
check ranges_are_pushed_and_popped ranges_are_pushed_and_popped
check server_and_client_are_traced_on_one_clock server_and_client_are_traced
check calls_print_a_script_for_bpftrace calls_print_their_script
check missing_bpftrace_is_said missing_bpftrace_is_said
if has "${CXX:-c++}" && [ -z "${SAN:-}" ]; then check a_gpu_s_kernels_and_driver_calls_are_traced gpu_is_traced; else skip gpu_is_traced "no C++ compiler for the fibres, or sanitizers"; fi
python=${PERFETTO_PYTHON:-python3}
if "$python" -c 'from perfetto.trace_processor import TraceProcessor; TraceProcessor(trace=None).close()' >"$WORK/perfetto" 2>&1; then
    check perfetto_s_trace_processor_reads_every_span perfetto_reads_it "$python"
else
    skip perfetto_s_trace_processor_reads_every_span "no trace_processor here: $(tail -n 1 "$WORK/perfetto" | cut -c1-120)"
fi
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$chromium" ]; then
    check a_timeline_is_drawn_by_chromium timeline_is_drawn
    check names_fit_into_their_boxes names_fit_into_their_boxes
else
    skip a_timeline_is_drawn_by_chromium "no Chromium here"
    skip names_fit_into_their_boxes "no Chromium here"
fi
finish
