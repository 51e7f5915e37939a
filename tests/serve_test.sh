#!/usr/bin/env bash
# genie_serve and the two large examples as programs: flags, files, signals, several clients, a server that dies or stops.
# Tier: slow address thread
. "$(dirname "$0")/script.sh"
serve=$EXAMPLES/genie_serve
version=$(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)
unset GENIE_DEVICES

# ---- flags ----

help_names_every_flag() {
    local flag
    "$serve" --help >"$WORK/help" || return 1
    for flag in --listen --devices --key --cert --ca --url-file --help --version; do
        grep -q -- "$flag" "$WORK/help" || { echo "not in --help: $flag"; return 1; }
    done
}

version_is_that_of_the_header() { [ "$("$serve" --version)" = "genie $version" ]; }

refused_flags() {
    check serve_with_an_unknown_flag_is_refused fails_with 'nonsense' "$serve" --nonsense
    check serve_with_a_stray_word_is_refused fails_with 'stray' "$serve" stray
    check serve_without_the_value_of_listen_is_refused fails_with 'listen' "$serve" --listen
    check serve_with_a_port_past_65535_is_refused fails_with 'port|65535|99999' "$serve" --home "$WORK/refused" --listen 127.0.0.1:99999
    check serve_with_a_port_that_is_no_number_is_refused fails_with 'port|12ab' "$serve" --home "$WORK/refused" --listen 127.0.0.1:12ab
    check serve_with_a_device_that_does_not_exist_is_refused fails_with 'abacus' "$serve" --home "$WORK/refused" --listen 127.0.0.1:0 --devices abacus
    check serve_with_a_key_that_does_not_exist_is_refused fails_with 'no-such|key|cert' "$serve" --home "$WORK/refused" --listen 127.0.0.1:0 --key "$WORK/no-such.pem" --cert "$WORK/no-such.pem"
    check serve_with_a_folder_it_cannot_make_is_refused fails_with '.' "$serve" --home /proc/genie --listen 127.0.0.1:0
    check serve_with_a_url_file_it_cannot_write_is_refused fails_with '.' "$serve" --home "$WORK/refused" --listen 127.0.0.1:0 --url-file "$WORK/no/such/folder/url"
}

# ---- files, port ----

url_file_is_for_its_owner_alone() {
    local mode
    mode=$(stat -c %a "$WORK/server/url")
    echo "mode $mode"
    [ "$mode" = 600 ]
}

# Under umask 0, over a file that everybody could read.
url_file_that_was_open_is_closed() {
    mkdir -p "$WORK/open"
    local process
    (umask 0; echo old >"$WORK/open/there"; exec "$serve" --listen 127.0.0.1:0 --home "$WORK/open" --url-file "$WORK/open/there" >"$WORK/open/log" 2>&1) &
    process=$!
    processes+=("$process")
    within 20 grep -q genie "$WORK/open/there" || { cat "$WORK/open/log"; return 1; }
    find "$WORK/open" -type f -perm /077 -not -name log >"$WORK/open.list"
    echo "readable by others:"; cat "$WORK/open.list"
    kill -TERM "$process"
    [ ! -s "$WORK/open.list" ] && [ "$(stat -c %a "$WORK/open/there")" = 600 ]
}

secret_code() { sed -n -E 's/.*code=([A-Za-z0-9_-]+).*/\1/p' "$WORK/server/url"; }
log_holds_no_secret() {
    local code; code=$(secret_code)
    [ ${#code} -ge 16 ] && ! grep -F -- "$code" "$WORK/server/log"
}
command_line_holds_no_secret() { ! tr '\0' ' ' <"/proc/$server_process/cmdline" | grep -F -- "$(secret_code)"; }

port_in_use_is_said() {
    fails_with 'in use' "$serve" --home "$WORK/second" --listen "127.0.0.1:$server_port" || return 1
    grep -q "$server_port" "$WORK/fails.output"
}

# A second server that would write the first one's URL file says so; with a file of its own both run.
second_server_leaves_the_url_file() {
    cp "$WORK/server/url" "$WORK/first"
    fails_with 'another server' "$serve" --listen 127.0.0.1:0 --home "$WORK/server" || return 1
    fails_with 'url-file' "$serve" --listen 127.0.0.1:0 --home "$WORK/third" --url-file "$WORK/server/url" || return 1
    "$serve" --listen 127.0.0.1:0 --home "$WORK/server" --url-file "$WORK/second-url" >"$WORK/second.log" 2>&1 </dev/null &
    local process=$!
    processes+=("$process")
    within 20 test -s "$WORK/second-url" || { cat "$WORK/second.log"; return 1; }
    kill -TERM "$process"
    cmp "$WORK/server/url" "$WORK/first" && ! cmp -s "$WORK/server/url" "$WORK/second-url"
}

# advertised TEXT FLAG ...: the URL of a server with these flags begins so.
advertised() {
    local text=$1 process ok=0; shift
    rm -rf "$WORK/advertised"
    "$serve" --home "$WORK/advertised" "$@" >"$WORK/advertised.log" 2>&1 </dev/null &
    process=$!
    processes+=("$process")
    within 20 test -s "$WORK/advertised/url" || { cat "$WORK/advertised.log"; return 1; }
    sed 's/?.*//' "$WORK/advertised/url"
    grep -qE -- "^$text" "$WORK/advertised/url" || ok=1
    kill -TERM "$process"
    ended 20 "$process" && return $ok
}
host_of_a_wildcard_is_said() { advertised "genie://$(uname -n):" --listen 0.0.0.0:0 && grep -q -- --advertise "$WORK/advertised.log"; }

# Who reads the log ends; the server goes on, and has much to say.
log_whose_reader_ends_is_no_end() {
    local process
    mkdir -p "$WORK/unread"
    mkfifo "$WORK/unread/log"
    head -c 1 "$WORK/unread/log" >/dev/null &
    "$serve" --listen 127.0.0.1:0 --home "$WORK/unread" --verbose >"$WORK/unread/log" 2>&1 </dev/null &
    process=$!
    processes+=("$process")
    within 20 test -s "$WORK/unread/url" || return 1
    wait %- 2>/dev/null
    local where
    for _ in 1 2 3; do
        where=@$WORK/unread/url
        client "$WORK/unread-client" "$where" "$EXAMPLES/hello" || return 1
        ! client "$WORK/unread-stranger" "$(sed -E 's/code=.{4}/code=AAAA/' "$WORK/unread/url")" "$EXAMPLES/hello" || return 1
    done
    kill -0 "$process" || return 1
    kill -TERM "$process"
    wait "$process"
}

home_of_another_user_is_refused() {
    rm -rf "$WORK/theirs"
    mkdir "$WORK/theirs" && chown 12345 "$WORK/theirs" || return 1
    fails_with 'belongs to user' "$serve" --listen 127.0.0.1:0 --home "$WORK/theirs" || return 1
    fails_with 'belongs to user' client "$WORK/theirs" "@$WORK/server/url" "$EXAMPLES/hello"
}

# ---- clients ----

# client HOME WHERE COMMAND ...
client() {
    local home=$1 where=$2; shift 2
    GENIE_HOME=$home GENIE_DEVICES=$where timeout -k 5 120 "$@"
}

# ---- the log ----

# Of a client that pairs and one that comes again: two sessions, a line each for its begin and its end, and nothing secret.
json_log_tells_of_sessions() {
    start_server "$WORK/logged" --log-format json --log-level info || return 1
    local code; code=$(sed -E 's/.*code=([^&]*).*/\1/' "$WORK/logged/url")
    client "$WORK/logged-client" "@$WORK/logged/url" "$EXAMPLES/hello" && client "$WORK/logged-client" "127.0.0.1:$server_port" "$EXAMPLES/hello" || return 1
    kill -TERM "$server_process" && wait "$server_process"
    python3 - "$WORK/logged/log" "$WORK/logged-client" "$code" <<'PYTHON'
import glob, json, os, re, sys
text = open(sys.argv[1]).read()
lines = [json.loads(l) for l in text.splitlines() if l.startswith('{')]
begins, ends = ([l for l in lines if l['event'] == e] for e in ('session_begin', 'session_end'))
assert len(begins) == len(ends) == 2, lines
for b, e in zip(begins, ends):
    assert b['session'] == e['session'] and b['peer'] == e['peer'] and b['peer'].startswith('127.0.0.1'), (b, e)
    assert b['tenant'] == e['tenant'] == begins[0]['tenant'] != '' and b['device'] == e['device'] == 'cpu:0', (b, e)
    assert e['result'] == 'GN_DISCONNECTED' and e['level'] == 'info' and 0 < e['seconds'] < 60, e
    assert e['counters']['steps_run'] >= 1 and e['counters']['socket_bytes_up'] > 100 and e['counters']['sessions'] == 1, e
assert all(re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', l['time']) for l in lines)
assert len(sys.argv[3]) >= 16 and sys.argv[3] not in text
words = 0
for path in glob.glob(sys.argv[2] + '/**', recursive=True):
    for word in re.findall(rb'[A-Za-z0-9+/=_-]{20,}', open(path, 'rb').read()) if os.path.isfile(path) else []:
        words += 1
        assert word.decode() == begins[0]['tenant'] or word.decode() not in text, path
assert words > 0
PYTHON
}

text_log_tells_of_sessions() {
    start_server "$WORK/texts" --log-level info || return 1
    client "$WORK/texts-client" "@$WORK/texts/url" "$EXAMPLES/hello" || return 1
    kill -TERM "$server_process" && wait "$server_process"
    cat "$WORK/texts/log"
    grep -qE '^genie_serve: session [0-9]+ of 127\.0\.0\.1:[0-9]+, tenant [^ ]+, on cpu:0 begins$' "$WORK/texts/log" &&
        grep -qE '^genie_serve: session [0-9]+ of .*, tenant [^ ]+, on cpu:0 is over after [0-9.]+ s: .*; [1-9][0-9]* steps, .* 0 faults$' "$WORK/texts/log"
}

# get PATH [HEADER]: what --metrics answers, its status first.
get() {
    python3 - "$metrics_port" "$@" <<'PYTHON'
import http.client, sys
c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
c.request('GET', sys.argv[2], headers={'Accept': sys.argv[3]} if len(sys.argv) > 3 else {})
r = c.getresponse()
print(r.status, r.getheader('Content-Type'))
print(r.read().decode(), end='')
PYTHON
}

# got PATH PATTERN: the answer has such a line. By way of a file: a grep that ends early would break the pipe.
got() { get "$1" >"$WORK/got" && grep -q "$2" "$WORK/got"; }

# metrics_server HOME [FLAG ...]: start_server with --metrics; sets metrics_port.
metrics_server() {
    start_server "$@" --metrics 127.0.0.1:0 || return 1
    within 20 grep -q 'metrics on port' "$1/log" || return 1
    metrics_port=$(sed -n 's/^metrics on port //p' "$1/log")
}

# A HEAD has the head of a GET and no body; other methods, and hosts that a foreign page could name, are refused with the reason.
methods_and_hosts_are_checked() {
    python3 - "$metrics_port" <<'PYTHON'
import http.client, sys
def ask(method, path, host='localhost'):
    c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
    c.request(method, path, headers={'Host': host})
    r = c.getresponse()
    return r.status, r.getheader('Content-Length'), r.read()
assert ask('HEAD', '/livez') == (200, '6', b'') and ask('GET', '/livez') == (200, '6', b'alive\n'), ask('HEAD', '/livez')
assert ask('HEAD', '/none')[0] == 404 and ask('POST', '/livez')[::2] == (405, b'only GET and HEAD are answered here\n')
status, length, body = ask('GET', '/status.json', 'evil.example:9095')
assert status == 403 and b'the Host is not localhost' in body and len(body) == int(length), body
PYTHON
}

# Numbers beside those of the log; families once, each with help and type; both formats end as they should.
metrics_are_answered() {
    metrics_server "$WORK/measured" || return 1
    client "$WORK/measured-client" "@$WORK/measured/url" "$EXAMPLES/hello" || return 1
    within 20 got /metrics '^genie_session_duration_seconds_count 1$' || return 1
    get /metrics >"$WORK/metrics" && get /metrics application/openmetrics-text >"$WORK/openmetrics" || return 1
    grep -qE '^genie_steps_run_total [1-9]' "$WORK/metrics" && grep -q '^genie_sessions_open 0$' "$WORK/metrics" &&
        grep -q '^200 text/plain; version=0.0.4' "$WORK/metrics" && grep -q '^200 application/openmetrics-text' "$WORK/openmetrics" &&
        [ "$(tail -n 1 "$WORK/openmetrics")" = '# EOF' ] && got /livez '^200' && within 20 got /readyz '^ready' &&
        got /other '^404' || { head -n 20 "$WORK/metrics"; return 1; }
    python3 - "$WORK/metrics" "$(sed -n -E '/define GN_COUNTERS/,/^$/s/^ *X\(([a-z_0-9]+),.*/\1/p' genie.h | wc -l)" <<'PYTHON'
import re, sys
lines = open(sys.argv[1]).read().splitlines()[1:]
types = dict(l.split()[2:4] for l in lines if l.startswith('# TYPE'))
helps = [l.split()[2] for l in lines if l.startswith('# HELP')]
assert len(helps) == len(set(helps)) == len(types) > int(sys.argv[2]) + 20, (len(helps), len(types))
rows, labels = {}, {'device': set(), 'kind': set(), 'phase': set(), 'role': set(), 'direction': set(), 'le': set(), 'version': set()}
for l in lines:
    if l.startswith('#'): continue
    name, label, value = re.fullmatch(r'(genie_[a-z0-9_]+)(?:\{((?:[a-z]+="[^"]*",?)+)\})? ([0-9.e+-]+)', l).groups()
    family = re.sub('_(bucket|sum|count)$', '', name) if name not in types else name
    assert family in types and (types[family] == 'counter') == name.endswith('_total'), l
    assert not re.search('_(bytes|us)(?!_total$|$)(_|$)', name), l
    for k, v in re.findall(r'([a-z]+)="([^"]*)"', label or ''): labels[k].add(v)
    assert (name, label) not in rows, l
    rows[name, label] = float(value)
assert max(map(len, labels.values())) < 40 and labels['direction'] == {'received', 'sent'} and labels['device'] == {'cpu:0'}, labels
steps = rows['genie_steps_run_total', None]
timed = sum(v for (n, l), v in rows.items() if n == 'genie_step_duration_seconds_count')
assert steps == timed == rows['genie_queue_duration_seconds_count', None] >= 1, (steps, timed)
for (name, label), v in rows.items(): # a histogram's buckets rise to its count
    if not name.endswith('_count'): continue
    of = [x for (n, l), x in rows.items() if n == name[:-5] + 'bucket' and (not label or label in l)]
    assert of == sorted(of) and of[-1] == v, name
assert rows['genie_compile_duration_seconds_count', None] == rows['genie_plans_made_total', None] >= 1
PYTHON
}

# The page holds the same figures as /status.json, and needs no other file.
status_page_is_one_file() {
    get / >"$WORK/page" && get /status.json >"$WORK/status.json" && grep -q '^200 text/html' "$WORK/page" && grep -q '^200 application/json' "$WORK/status.json" || return 1
    python3 - "$WORK/page" "$WORK/status.json" <<'PYTHON'
import json, re, sys
page, status = (open(p).read().split('\n', 1)[1] for p in sys.argv[1:])
inside = json.loads(re.search(r"<script id='status' type='application/json'>(.*?)</script>", page, re.S).group(1))
status = json.loads(status)
assert inside['all'] == status['all'] == 1 and inside['counters'] == status['counters'] and status['counters']['steps_run'] > 0
assert status['devices'][0]['name'] == 'cpu:0' and status['times'] and not status['sessions']
assert not re.search(r'(?:src|href)=.(?!data:)|@import|https?://(?!www\.w3\.org/2000/svg)', page)
PYTHON
}

# Drawn by a browser where there is one: elements are counted, and the pictures of three kinds of screen are not blank and differ.
status_page_is_drawn() {
    local browser=(timeout -k 5 100 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars "--user-data-dir=$WORK/browser")
    "${browser[@]}" --virtual-time-budget=1000 --dump-dom "http://127.0.0.1:$metrics_port/" >"$WORK/dom" 2>"$WORK/browser.log" || { tail -n 5 "$WORK/browser.log"; return 1; }
    "${browser[@]}" --window-size=1100,800 "--screenshot=$WORK/wide.png" "http://127.0.0.1:$metrics_port/" &&
        "${browser[@]}" --window-size=500,800 --blink-settings=preferredColorScheme=0 "--screenshot=$WORK/dark.png" "http://127.0.0.1:$metrics_port/" || return 1
    python3 - "$WORK/dom" "$WORK/wide.png" "$WORK/dark.png" <<'PYTHON'
import re, struct, sys, zlib
dom = open(sys.argv[1]).read()
assert len(re.findall(r'class="tile"', dom)) >= 10 and len(re.findall(r'class="card"', dom)) == 1 and 'cpu:0' in dom
assert '>serving<' in dom and 'no sessions now' in dom and dom.count('role="meter"') >= 1 and '<path' in dom
def first_and_number(path):
    data, at, packed = open(path, 'rb').read(), 8, b''
    while at < len(data):
        n, kind = struct.unpack('>I4s', data[at:at + 8])
        if kind == b'IHDR': width, height, depth, colour = struct.unpack('>IIBB', data[at + 8:at + 18])
        if kind == b'IDAT': packed += data[at + 8:at + 8 + n]
        at += 12 + n
    raw, size = zlib.decompress(packed), 4 if colour == 6 else 3
    rows = [raw[y * (width * size + 1):(y + 1) * (width * size + 1)] for y in range(height)]
    return rows[0][1:4], len({r for r in rows})
(light, many), (dark, more) = map(first_and_number, sys.argv[2:])
assert min(light) > 200 and max(dark) < 60 and many > 50 and more > 50, (light, many, dark, more)
PYTHON
}

# Where promtool is there, it is asked too.
promtool_takes_the_metrics() { tail -n +2 "$WORK/metrics" | promtool check metrics; }

# The null device computes nothing.
device_that_does_not_compute_is_not_ready() {
    metrics_server "$WORK/unready" --devices null,null || return 1
    within 20 got /readyz '^device [01]: the null executor computes no values' && grep -q '^503' "$WORK/got" && got /livez '^200' || return 1
    # two devices of one name are two series, and no series is there twice
    got /metrics '^genie_device_sessions{device="null"} 0' && grep -q '^genie_device_sessions{device="null#1"} 0' "$WORK/got" || return 1
    sed -n 's/^\(genie_.*\) [^ ]*$/\1/p' "$WORK/got" | sort | uniq -d >"$WORK/twice"
    cat "$WORK/twice"
    [ ! -s "$WORK/twice" ]
}

# By TLS, with the server's own certificate; to who has the token, as a bearer's or as a browser's password. Who says nothing or no TLS
# harms nobody.
metrics_by_tls_need_a_token() {
    printf 'correct horse battery staple\n' >"$WORK/token" && printf 'short\n' >"$WORK/short"
    fails_with '16 characters' "$serve" --home "$WORK/public" --listen 127.0.0.1:0 --metrics 0.0.0.0:0 --metrics-token "$WORK/short" || return 1
    start_server "$WORK/guarded" --metrics 0.0.0.0:0 --metrics-token "$WORK/token" || return 1
    within 20 grep -q 'metrics on port' "$WORK/guarded/log" || return 1
    metrics_port=$(sed -n 's/^metrics on port //p' "$WORK/guarded/log")
    python3 - "$metrics_port" "$WORK/guarded" <<'PYTHON'
import base64, glob, http.client, socket, ssl, sys
port, home = int(sys.argv[1]), sys.argv[2]
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.load_verify_locations(glob.glob(home + '/**/cert.pem', recursive=True)[0])
tls.check_hostname = False
def get(path, **headers):
    c = http.client.HTTPSConnection('127.0.0.1', port, context=tls, timeout=20)
    c.request('GET', path, headers=headers)
    r = c.getresponse()
    return r.status, r.read(), r.headers.get_all('WWW-Authenticate')
silent = [socket.create_connection(('127.0.0.1', port)) for _ in range(40)]
plain = socket.create_connection(('127.0.0.1', port))
plain.sendall(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n')
token = 'correct horse battery staple'
basic = lambda t: 'Basic ' + base64.b64encode(('anyone:' + t).encode()).decode()
status, page, _ = get('/metrics', Authorization='Bearer ' + token)
assert status == 200 and b'genie_sessions_open 0' in page and len(page) > 20000, status
assert get('/', Authorization=basic(token), Host='gpu.example:9095')[0] == 200
status, page, how = get('/metrics')
assert status == 401 and b'genie_' not in page and len(how) == 2, (status, how)
for wrong in ('Bearer ' + token + '!', 'Bearer', basic('x' + token), 'Basic !!!!', 'Basic ' + 'QUFB' * 300, 'Basic'):
    assert get('/', Authorization=wrong)[0] == 401, wrong
plain.settimeout(20)
try: assert b'HTTP' not in plain.recv(100)
except ConnectionResetError: pass
PYTHON
}

# Who cannot be watched as asked does not say that it serves.
metrics_stay_on_loopback() {
    fails_with 'metrics word: HOST:PORT is missing' "$serve" --home "$WORK/public" --listen 127.0.0.1:0 --metrics word >"$WORK/unwatched" || return 1
    ! grep -q serving "$WORK/unwatched" || return 1
    fails_with 'token' "$serve" --home "$WORK/public" --listen 127.0.0.1:0 --metrics 0.0.0.0:0
}

# ---- top ----

# view HOME WHERE EXPRESSION: what `top --json` prints, as `v` of a Python expression that must hold.
view() {
    GENIE_HOME=$1 timeout -k 5 60 "$serve" top "$2" --json >"$WORK/view" || return 1
    python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), v' "$WORK/view" "$3"
}

# An administrator sees all, another client its own sessions; the administrator's code works once, and its file goes.
top_shows_what_a_client_may_see() {
    start_server "$WORK/watched" --admin "$WORK/watched/admin" || return 1
    [ "$(stat -c %a "$WORK/watched/admin")" = 600 ] || return 1
    # one file cannot hold both URLs, by whatever name it is called
    fails_with 'a file of its own' "$serve" --home "$WORK/one" --listen 127.0.0.1:0 --url-file "$WORK/one-url" --admin "$WORK/./one-url" || return 1
    cp "$WORK/watched/admin" "$WORK/admin.used"
    local where=127.0.0.1:$server_port
    client "$WORK/watched-client" "@$WORK/watched/url" "$EXAMPLES/hello" || return 1
    view "$WORK/watched-client" "$where" "v['all'] == 0 and len(v['sessions']) == 1 and v['counters']['steps_run'] == 0 and not v['times']" || return 1
    view "$WORK/watched-admin" "@$WORK/watched/admin" "v['all'] == 1 and v['counters']['steps_run'] >= 1 and v['times'] and v['sessions'][0]['label'] == 'genie_serve top'" || return 1
    [ ! -e "$WORK/watched/admin" ] && grep -q ' admin$' "$WORK/watched/server/clients" 2>/dev/null || grep -q ' admin$' "$WORK/watched/clients" || return 1
    view "$WORK/watched-admin" "$where" "v['all'] == 1" || return 1
    fails_with 'not accepted' env GENIE_HOME="$WORK/watched-thief" "$serve" top "@$WORK/admin.used" || return 1
    # who is no administrator any more sees its own at once
    sed -i 's/ admin$//' "$WORK/watched/clients" && view "$WORK/watched-admin" "$where" "v['all'] == 0"
}

top_prints_once() {
    GENIE_HOME=$WORK/watched-admin COLUMNS=90 timeout -k 5 60 "$serve" top "127.0.0.1:$server_port" --once >"$WORK/top" || return 1
    cat "$WORK/top"
    grep -q '^genie .* serving' "$WORK/top" && grep -q '^cpu:0 .*busy' "$WORK/top" && grep -q '^TENANT' "$WORK/top" && ! grep -q $'\033' "$WORK/top" &&
        grep -qE 'fallbacks [0-9]+  faults [0-9]+$' "$WORK/top" && [ "$(LC_ALL=C.UTF-8 awk 'length($0) > 90' "$WORK/top" | wc -l)" = 0 ] || return 1
    # on a narrow screen phrases go on in another line, and are not cut
    GENIE_HOME=$WORK/watched-admin COLUMNS=50 timeout -k 5 60 "$serve" top "127.0.0.1:$server_port" --once | tee "$WORK/top" || return 1
    grep -qE '(^|  )host [0-9.]+[BKMG]$' "$WORK/top" && grep -qE '(^|  )1 session$' "$WORK/top" &&
        grep -qE '(^|  )plans made [0-9]+(  |$)' "$WORK/top" && [ "$(LC_ALL=C.UTF-8 awk 'length($0) > 50' "$WORK/top" | wc -l)" = 0 ]
}

# In a terminal: a picture that follows the terminal's size, keys, no colours with NO_COLOR, the terminal as it was at the end.
top_in_a_terminal() {
    GENIE_HOME=$WORK/watched-admin LC_ALL=C.UTF-8 python3 - "$serve" "127.0.0.1:$server_port" <<'PYTHON'
import fcntl, os, pty, re, select, signal, struct, sys, termios, time
def run(keys, **more):
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(more)
        os.execv(sys.argv[1], [sys.argv[1], 'top', sys.argv[2], '--interval', '0.3'])
    out = b''
    def until(text, seconds=20):
        nonlocal out
        end, begin = time.time() + seconds, len(out)
        while text not in out[begin:]:
            assert time.time() < end, (text, out)
            if select.select([fd], [], [], 0.2)[0]: out += os.read(fd, 65536)
        return out[begin:]
    def size(rows, columns):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
        os.kill(pid, signal.SIGWINCH)
    until(b'q quit')
    size(12, 60)
    until(b'\033[12;1H')
    picture = until(b'\033[12;1H').split(b'\033[H')[-1] # drawn again by itself
    lines = [re.sub('\033\\[[0-9;?]*[A-Za-z]', '', l) for l in picture.decode().split('\r\n')]
    assert len(lines) <= 12 and max(map(len, lines)) <= 60, lines
    size(40, 150)
    until(b'\033[40;1H')
    os.write(fd, b'p')
    until(b'PAUSED')
    os.write(fd, b'p')
    os.write(fd, keys)
    try: until(b'\033[?1049l')
    except OSError: pass
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0 and b'\033[?25h' in out, status
    return out
coloured, plain = run(b'q', TERM='xterm'), run(b'\003', TERM='xterm', NO_COLOR='1')
assert b'\033[1m' in coloured and not re.search(rb'\033\[[0-9;]*m', plain.replace(b'\033[0m', b'')), plain
PYTHON
}

# The first SIGTERM lets sessions go on and turns new ones away; with the last of them the server ends.
draining_server_ends_with_its_sessions() {
    metrics_server "$WORK/drained" --drain-seconds 60 || return 1
    local works process=$server_process
    client "$WORK/drained-client" "@$WORK/drained/url" "$EXAMPLES/hello" || return 1
    GENIE_HOME=$WORK/drained-client "$EXAMPLES/remote_mlp" --connect "127.0.0.1:$server_port" --steps 100000 >/dev/null 2>&1 & works=$!
    processes+=("$works")
    within 20 got /status.json '"steps":[1-9][0-9]' || return 1
    kill -TERM "$process"
    within 20 got /readyz '^draining' && grep -q '^503' "$WORK/got" && got /livez '^200' || return 1
    fails_with 'takes no new sessions' client "$WORK/drained-client" "127.0.0.1:$server_port" "$EXAMPLES/hello" || return 1
    kill -0 "$process" && kill -KILL "$works" || return 1
    wait "$works" 2>/dev/null
    ended 20 "$process"
}

# A device that is absent is a warning: printed from level warn on.
library_logs_from_a_level_on() {
    local level said
    for level in '' error warn info debug 1; do
        said=no
        GENIE_LOG=$level GENIE_DEVICES=cpu,cuda:77 "$EXAMPLES/hello" 2>"$WORK/said" || return 1
        ! grep 'genie: warning: cuda:77 is absent' "$WORK/said" || said=yes
        case $level in error) [ $said = no ] ;; *) [ $said = yes ] ;; esac || { echo "GENIE_LOG=$level: $said"; return 1; }
    done
    GENIE_DEVICES=cpu,cuda:77 env -u GENIE_LOG "$EXAMPLES/hello" 2>"$WORK/said" && ! grep absent "$WORK/said"
}

hello() { client "$WORK/client" "$1" "$EXAMPLES/hello" | grep -F "computed by 127.0.0.1:$server_port/"; }
code_works_once() { fails_with 'code was used' client "$WORK/stranger" "@$WORK/used" "$EXAMPLES/hello"; }
url_file_has_a_new_code() { [ -n "$(secret_code)" ] && [ "$(secret_code)" != "$(sed -n -E 's/.*code=([A-Za-z0-9_-]+).*/\1/p' "$WORK/used")" ]; }
# Words for devices are no hosts; a host of that name is given with its port or as a URL.
words_for_devices_are_no_hosts() {
    local word
    for word in gpu GPU gpu:0 cpu:1 cpu:99 null:0 rocm tpu:3 Metal 'cpu,gpu'; do
        fails_with 'there is no device' client "$WORK/words" "$word" "$EXAMPLES/hello" || { echo "of $word"; return 1; }
        grep -q 'genie://' "$WORK/fails.output" && grep -q 'cuda:N' "$WORK/fails.output" || return 1
    done
    for word in gpu:5556 genie://gpu gpuhost cpu.example.invalid:1 genie://cpu:1; do
        ! client "$WORK/words" "$word" "$EXAMPLES/hello" >"$WORK/words.output" 2>&1 || return 1
        ! grep -q 'there is no device' "$WORK/words.output" || { cat "$WORK/words.output"; return 1; }
    done
}
wrong_pin_is_refused() {
    sed -E 's/pin=.{4}/pin=AAAA/' "$WORK/server/url" >"$WORK/wrong"
    ! cmp -s "$WORK/wrong" "$WORK/server/url" && fails_with 'key|pin|fingerprint' client "$WORK/stranger" "@$WORK/wrong" "$EXAMPLES/hello"
}
two_at_once_are_served() {
    local a b
    client "$WORK/client" "127.0.0.1:$server_port" "$EXAMPLES/lazy" >"$WORK/a" 2>&1 & a=$!
    client "$WORK/client" "127.0.0.1:$server_port" "$EXAMPLES/lazy" >"$WORK/b" 2>&1 & b=$!
    wait $a || { cat "$WORK/a"; return 1; }
    wait $b || { cat "$WORK/b"; return 1; }
}
garbage_is_survived() {
    local n
    for n in 1 2 3 4 5; do
        (exec 3<>"/dev/tcp/127.0.0.1/$server_port" && head -c $((n * 1000)) /dev/urandom >&3) 2>/dev/null
    done
    hello "127.0.0.1:$server_port"
}

# serve_says TEXT VARIABLE=VALUE ...: the line about the network has the text
serve_says() {
    local text=$1; shift
    env "$@" "$EXAMPLES/genie_serve" --devices list | tee /dev/stderr | grep '^network: ' | grep -qF "$text"
}
network_is_told() {
    serve_says 'records and SHA-256 by mbedTLS too (as GENIE_AEAD says)' GENIE_AEAD=mbedtls &&
        serve_says 'mbedTLS too (GENIE_LIBCRYPTO=/nowhere cannot be loaded)' GENIE_LIBCRYPTO=/nowhere
}
hello_without_libcrypto() {
    local with
    for with in GENIE_LIBCRYPTO=/nowhere GENIE_AEAD=mbedtls; do (export "${with?}"; hello "127.0.0.1:$server_port") || return 1; done
}
missing_libcrypto_is_an_error_when_asked_for() {
    if (export GENIE_AEAD=libcrypto GENIE_LIBCRYPTO=/nowhere; hello "127.0.0.1:$server_port") >"$WORK/aead" 2>&1; then cat "$WORK/aead"; return 1; fi
    grep -F 'GENIE_AEAD asks for libcrypto: GENIE_LIBCRYPTO=/nowhere cannot be loaded' "$WORK/aead" || { cat "$WORK/aead"; return 1; }
}

old_tls_is_refused() {
    local old
    for old in -tls1 -tls1_1; do
        if timeout 10 openssl s_client $old -cipher ALL:@SECLEVEL=0 -connect "127.0.0.1:$server_port" </dev/null >"$WORK/tls" 2>&1; then
            if ! grep -qE 'Cipher is \(NONE\)|Cipher +: 0000' "$WORK/tls"; then cat "$WORK/tls"; return 1; fi
        fi
        grep -qE 'alert|error|NONE' "$WORK/tls" || { cat "$WORK/tls"; return 1; }
    done
    timeout 10 openssl s_client -connect "127.0.0.1:$server_port" </dev/null 2>&1 | grep -E 'New, TLSv1\.[23]'
}

# ---- a server that ends, dies, stops ----

ends_with_0_on() {   # SIGNAL
    local status=0
    kill "-$1" "$server_process"
    ended 10 "$server_process" || { echo "still there 10 s after SIG$1"; return 1; }
    wait "$server_process" || status=$?
    echo "status $status"; cat "$WORK/server/log"
    [ "$status" = 0 ]
}

# long_client NAME: a training run of minutes on the server; returns when it has begun to train.
long_client() {
    GENIE_HOME=$WORK/client "$EXAMPLES/remote_mlp" --connect "@$WORK/server/url" --steps 1000000 >"$WORK/long.$1" 2>&1 &
    long_process=$!
    processes+=("$long_process")
    within 60 grep -q '^step ' "$WORK/long.$1" || { cat "$WORK/long.$1"; return 1; }
}
# long_client_fails SECONDS: it ends by then with an error of its own, not by a signal or a time-out.
long_client_fails() {
    local status=0 start=$SECONDS
    ended "$1" "$long_process" || { echo "the client still waits after $1 s"; return 1; }
    wait "$long_process" || status=$?
    echo "status $status after $((SECONDS - start)) s"; tail -n 4 "$WORK/long.$2"
    [ "$status" = 1 ] && grep -qE "$3" "$WORK/long.$2"
}
killed_server_gives_an_error() {
    long_client killed || return 1
    kill -9 "$server_process"
    long_client_fails 35 killed 'GN_(DISCONNECTED|DEVICE_LOST|TIMEOUT|UNREACHABLE)'
}
stopped_server_gives_an_error() {
    long_client stopped || return 1
    kill -STOP "$server_process"
    long_client_fails 45 stopped 'GN_(TIMEOUT|DEVICE_LOST)'
    local status=$?
    kill -CONT "$server_process"
    return $status
}
vanished_client_leaves_the_server_alive() {
    long_client vanished || return 1
    kill -9 "$long_process"
    hello "127.0.0.1:$server_port"
}

# ---- the examples' JSON ----

# holds FILE EXPRESSION: the last line is a JSON object, and the expression over its fields (Python, j) is true.
holds() {
    tail -n 1 "$1" | python3 -c 'import json, sys
j = json.loads(sys.stdin.read())
print(j)
sys.exit(0 if isinstance(j, dict) and eval(sys.argv[1]) else 1)' "$2"
}
mlp_runs() { timeout -k 5 120 "$EXAMPLES/remote_mlp" --steps 60 --min-accuracy 0.2 --json >"$WORK/mlp" || { cat "$WORK/mlp"; return 1; }; }
# A trace is whole at any time: also when the program is killed while it writes.
trace_is_whole_after_a_kill() {
    local pid tries=0
    GENIE_TRACE=$WORK/trace.json "$EXAMPLES/remote_mlp" --steps 100000 >"$WORK/traced" 2>&1 &
    pid=$!
    while [ $tries -lt 200 ] && ! grep -qs gn_read "$WORK/trace.json"; do sleep 0.1; tries=$((tries + 1)); done
    kill -9 $pid
    wait $pid 2>/dev/null || true
    python3 -c 'import json, sys
events = [e for e in json.load(open(sys.argv[1])) if e["ph"] not in "Mbe"]
names = {e["name"] for e in events}
print(len(events), names)
sys.exit(not ({"gn_open", "gn_read", "submit", "wait", "plan_make"} <= names and all(e["dur"] >= 0 and e["ph"] == "X" for e in events)))' "$WORK/trace.json"
}
mlp_below_the_accuracy_fails() { fails_with 'accuracy' "$EXAMPLES/remote_mlp" --steps 2 --min-accuracy 0.97; }
mlp_reads_what_it_wrote() {
    "$EXAMPLES/remote_mlp" --write-idx "$WORK/idx" >"$WORK/write" || { cat "$WORK/write"; return 1; }
    timeout -k 5 120 "$EXAMPLES/remote_mlp" --data "$WORK/idx" --steps 60 --min-accuracy 0.2 --json >"$WORK/mlp.idx" || { cat "$WORK/mlp.idx"; return 1; }
    holds "$WORK/mlp.idx" "j['accuracy'] == json.loads(open('$WORK/mlp').read().splitlines()[-1])['accuracy'] and j['max_abs_diff'] == 0"
}
# The modes that send all values take long under sanitizers: fewer tokens then.
decode_runs() {
    local fewer=()
    if [ -n "${SAN:-}" ] && [ "$1" != semantic ]; then fewer=(--tokens 24); fi
    timeout -k 5 120 "$EXAMPLES/remote_decode" --mode "$1" ${fewer[@]+"${fewer[@]}"} --json >"$WORK/decode.$1" || { cat "$WORK/decode.$1"; return 1; }
}
decode_runs_ahead() {
    timeout -k 5 120 "$EXAMPLES/remote_decode" --ahead 16 --json >"$WORK/decode.ahead" || { cat "$WORK/decode.ahead"; return 1; }
    holds "$WORK/decode.ahead" "j['round_trips_per_token'] < 0.2" && [ "$(tokens ahead 128)" = "$(tokens semantic 128)" ]
}
# tokens MODE N: the first N.
tokens() { holds "$WORK/decode.$1" "len(j['tokens']) >= $2 and (print('tokens', j['tokens'][:$2]) or True)" | grep '^tokens'; }
decode_modes_agree() {
    local first=128
    [ -z "${SAN:-}" ] || first=24
    [ -n "$(tokens semantic $first)" ] && [ "$(tokens semantic $first)" = "$(tokens cached $first)" ] && [ "$(tokens semantic $first)" = "$(tokens blind $first)" ]
}

decode_fields="j['mode'] in ('semantic', 'cached', 'blind') and j['bytes_per_token'] > 0 and j['round_trips_per_token'] >= 0 and j['ms_per_token'] > 0 and j['plans_made'] >= 1 and len(j['tokens']) >= 24"

check_json() {
    local mode
    check mlp_of_60_steps_runs mlp_runs
    check mlp_json_has_the_fields holds "$WORK/mlp" "all(isinstance(j[k], (int, float)) for k in 'accuracy centroid_accuracy max_abs_diff steps steps_per_s plans_made round_trips_per_step bytes_up_per_step bytes_down_per_step compression_ratio'.split()) and all(isinstance(j[k], str) for k in 'tls cipher device'.split())"
    check mlp_json_has_values_that_can_be "holds" "$WORK/mlp" "j['steps'] == 60 and 0.2 <= j['accuracy'] <= 1 and 0.1 < j['centroid_accuracy'] < 0.85 and j['max_abs_diff'] == 0 and j['steps_per_s'] > 0 and 1 <= j['plans_made'] <= 12 and j['bytes_up_per_step'] > 100 and j['compression_ratio'] >= 1 and j['tls'] in ('TLSv1.2', 'TLSv1.3') and 'GCM' in j['cipher'] + 'GCM' * ('CHACHA' in j['cipher'].upper()) and '/cpu' in j['device']"
    check mlp_json_has_every_counter holds "$WORK/mlp" "set(j['counters']) == set('$(sed -n -E '/define GN_COUNTERS/,/^$/s/^ *X\(([a-z_0-9]+),.*/\1/p' genie.h | xargs)'.split()) and j['counters']['plans_made'] == j['plans_made']"
    check trace_is_well_formed_after_a_kill trace_is_whole_after_a_kill
    check mlp_below_the_asked_accuracy_fails mlp_below_the_accuracy_fails
    check mlp_on_idx_files_it_wrote_trains_alike mlp_reads_what_it_wrote
    for mode in semantic cached blind; do
        check "decode_${mode}_runs" decode_runs $mode
        check "decode_${mode}_json_has_the_fields" holds "$WORK/decode.$mode" "$decode_fields and j['mode'] == '$mode'"
    done
    check decode_semantic_moves_200_bytes_a_token_and_no_kv holds "$WORK/decode.semantic" "j['bytes_per_token'] <= 200 and j['kv_bytes_moved'] == 0"
    check decode_cached_moves_the_kv holds "$WORK/decode.cached" "j['kv_bytes_moved'] > 0"
    check decode_blind_moves_more_than_cached holds "$WORK/decode.blind" "j['bytes_per_token'] > json.loads(open('$WORK/decode.cached').read().splitlines()[-1])['bytes_per_token']"
    check decode_semantic_has_one_plan_for_all_positions holds "$WORK/decode.semantic" "j['plans_made'] == 1 and j['round_trips_per_token'] <= 1"
    check decode_with_steps_queued_ahead_waits_less_and_gives_the_same_tokens decode_runs_ahead
    check decode_in_all_modes_gives_the_same_tokens decode_modes_agree
}

check serve_help_names_every_flag help_names_every_flag
check serve_version_is_that_of_the_header version_is_that_of_the_header
refused_flags
check serve_on_any_free_port_prints_its_url start_server "$WORK/server"
check url_file_is_for_its_owner_alone url_file_is_for_its_owner_alone
check url_file_that_was_open_is_closed url_file_that_was_open_is_closed
check log_of_the_server_holds_no_secret log_holds_no_secret
check command_line_of_the_server_holds_no_secret command_line_holds_no_secret
check serve_on_a_port_in_use_says_so port_in_use_is_said
check second_server_with_the_same_home_leaves_its_url_file second_server_leaves_the_url_file
check url_names_the_host_that_is_advertised advertised 'genie://gpu\.example\.org:[1-9]' --listen 0.0.0.0:0 --advertise gpu.example.org
check url_names_the_port_that_is_advertised advertised 'genie://\[2001:db8::5\]:443$|genie://\[2001:db8::5\]:443\?' --listen 127.0.0.1:0 --advertise '[2001:db8::5]:443'
check url_of_a_wildcard_names_this_machine_and_says_so host_of_a_wildcard_is_said
check serve_with_an_address_to_advertise_that_is_none_is_refused fails_with 'advertise' "$serve" --home "$WORK/refused" --listen 127.0.0.1:0 --advertise 'a b'
check serve_with_codes_that_last_no_hour_is_refused fails_with 'code-hours' "$serve" --home "$WORK/refused" --code-hours 0
check serve_whose_log_is_not_read_goes_on log_whose_reader_ends_is_no_end
if [ "$(id -u)" = 0 ]; then
    check home_of_another_user_is_refused home_of_another_user_is_refused
else
    skip home_of_another_user_is_refused "only root can make such a folder"
fi
check words_for_devices_are_no_hosts words_for_devices_are_no_hosts
check client_with_a_wrong_pin_is_refused wrong_pin_is_refused
cp "$WORK/server/url" "$WORK/used"
check client_with_the_url_pairs_and_computes hello "@$WORK/server/url"
check client_with_the_stored_credential_needs_no_url hello "127.0.0.1:$server_port"
check client_with_a_used_code_is_refused code_works_once
check url_file_after_a_pairing_has_a_new_code url_file_has_a_new_code
check clients_at_once_are_both_served two_at_once_are_served
check garbage_on_the_port_leaves_the_server_alive garbage_is_survived
check list_tells_which_library_encrypts network_is_told
check client_without_libcrypto_is_served hello_without_libcrypto
check libcrypto_asked_for_and_missing_is_an_error missing_libcrypto_is_an_error_when_asked_for
if has openssl; then
    check handshake_below_tls_1_2_is_refused old_tls_is_refused
else
    skip handshake_below_tls_1_2_is_refused "no openssl here"
fi
check client_killed_mid_step_leaves_the_server_alive vanished_client_leaves_the_server_alive
check serve_on_sigterm_ends_with_0 ends_with_0_on TERM
check serve_with_the_same_home_and_port_starts_again start_server "$WORK/server" --listen "127.0.0.1:$server_port"
check client_after_a_restart_still_has_its_credential hello "127.0.0.1:$server_port"
check serve_on_sigint_ends_with_0 ends_with_0_on INT
check serve_starts_to_be_killed start_server "$WORK/server"
check server_killed_mid_step_gives_an_error_by_the_deadline killed_server_gives_an_error
check serve_starts_to_be_stopped start_server "$WORK/server"
check server_stopped_mid_step_gives_an_error_by_the_deadline stopped_server_gives_an_error
if has python3; then
    check_json
else
    skip json_of_the_examples "no python3 here"
fi
if has python3; then
    check json_log_has_a_line_for_each_end_of_a_session_and_no_secret json_log_tells_of_sessions
else
    skip json_log_has_a_line_for_each_end_of_a_session_and_no_secret "no python3 here"
fi
check text_log_has_a_line_for_each_end_of_a_session text_log_tells_of_sessions
check log_with_a_word_that_is_none_is_refused fails_with 'log-format' "$serve" --home "$WORK/refused" --log-format xml
check log_of_a_program_begins_at_its_level library_logs_from_a_level_on
if has python3; then
    check metrics_are_those_of_the_counters metrics_are_answered
    check methods_and_hosts_are_checked methods_and_hosts_are_checked
    check status_page_is_one_file_with_the_same_figures status_page_is_one_file
    if [ -n "${SAN:-}" ]; then skip status_page_is_drawn "once is enough, without sanitizers"
    elif has chromium; then check status_page_is_drawn status_page_is_drawn
    else skip status_page_is_drawn "no chromium here"; fi
    if has promtool; then check promtool_takes_the_metrics promtool_takes_the_metrics
    else skip promtool_takes_the_metrics "no promtool here"; fi
else
    skip metrics_are_those_of_the_counters "no python3 here"
fi
if has python3; then
    check top_shows_what_a_client_may_see top_shows_what_a_client_may_see
    check top_prints_once_without_a_terminal top_prints_once
    check top_in_a_terminal_follows_its_size_and_keys top_in_a_terminal
    check draining_server_ends_with_its_sessions draining_server_ends_with_its_sessions
else
    skip top_shows_what_a_client_may_see "no python3 here"
fi
! has python3 || check device_that_does_not_compute_is_not_ready device_that_does_not_compute_is_not_ready
! has python3 || check metrics_by_tls_need_a_token metrics_by_tls_need_a_token
check metrics_on_a_public_address_without_a_token_are_refused metrics_stay_on_loopback
finish
