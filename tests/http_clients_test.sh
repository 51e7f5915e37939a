#!/usr/bin/env bash
# examples/formats/http.h with clients that nobody here wrote: Python's http.client and urllib, and curl where it is there.
# Tier: quick
. "$(dirname "$0")/script.sh"

write_server() {
    cat >"$WORK/serve.c" <<'TEXT'
#define HTTP_IMPLEMENTATION
#include "examples/formats/http.h"

static http_exchange *streams[16];
static int at[16];

static void answer(void *user, http_exchange *x) {
    size_t n;
    const char *body = http_body(x, &n);
    (void)user;
    if (!strcmp(http_path(x), "/echo")) { http_reply(x, 200, "application/octet-stream", body, n); return; }
    for (int i = 0; i < 16 && !strcmp(http_path(x), "/stream"); i++) {
        if (streams[i]) continue;
        streams[i] = x;
        at[i] = 0;
        http_begin(x, 200, "text/event-stream");
        return;
    }
    http_reply(x, 404, "text/plain", "none\n", 5);
}

static void gone(void *user, http_exchange *x) {
    (void)user;
    for (int i = 0; i < 16; i++) if (streams[i] == x) streams[i] = NULL;
}

int main(void) {
    char error[HTTP_ERROR], line[64];
    http_server *s = http_open(&(http_options){ .answer = answer, .gone = gone, .token = "t0ken", .body_bytes = 8 << 20, .out_bytes = 16 << 20 }, error);
    if (!s) { puts(error); return 1; }
    printf("%d\n", http_port(s));
    fflush(stdout);
    while (http_poll(s, 5))
        for (int i = 0; i < 16; i++) {
            if (!streams[i]) continue;
            http_exchange *x = streams[i];
            if (at[i] < 50) { (void)http_event(x, line, (size_t)snprintf(line, sizeof line, "{\"n\":%d}", at[i]++)); continue; }
            (void)http_event(x, "[DONE]", 6);
            streams[i] = NULL;
            http_end(x);
        }
    return 1;
}
TEXT
    $CC -std=gnu11 -O1 -g ${SAN:+-fsanitize=$SAN -fno-sanitize-recover=all} -Wall -Wextra -Wconversion -Wshadow -Werror -I. "$WORK/serve.c" -o "$WORK/serve"
}

python_gets_along() {
    timeout 60 python3 - "$1" <<'TEXT'
import http.client, random, sys, threading, urllib.error, urllib.request
port = int(sys.argv[1])
auth = {'Authorization': 'Bearer t0ken'}

def echo(sizes):
    c = http.client.HTTPConnection('127.0.0.1', port)
    for n in sizes:
        data = random.randbytes(n)
        c.request('POST', '/echo', data, auth)
        r = c.getresponse()
        assert r.status == 200 and r.read() == data and not r.will_close, n
    c.close()

echo([0, 1, 100, 65536, 1000000, 8 << 20, 3])
threads = [threading.Thread(target=echo, args=([random.randrange(100000) for _ in range(10)],)) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]

def events():
    r = urllib.request.urlopen(urllib.request.Request(f'http://localhost:{port}/stream', headers=auth))
    lines = [line.decode().strip() for line in r if line.strip()]
    assert lines == [f'data: {{"n":{i}}}' for i in range(50)] + ['data: [DONE]'], lines
threads = [threading.Thread(target=events) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
left = urllib.request.urlopen(urllib.request.Request(f'http://localhost:{port}/stream', headers=auth))
left.read(10), left.close()
for path, headers, status in (('/', auth, 404), ('/', {}, 401), ('/echo', dict(auth, Host='evil.example'), 403)):
    try:
        urllib.request.urlopen(urllib.request.Request(f'http://127.0.0.1:{port}{path}', headers=headers))
        assert False
    except urllib.error.HTTPError as e:
        assert e.code == status, (path, e.code)
c = http.client.HTTPConnection('127.0.0.1', port)
c.request('POST', '/echo', b'x' * (9 << 20), auth)
assert c.getresponse().status == 413
TEXT
}

curl_gets_along() {
    head -c 3000000 /dev/urandom >"$WORK/data"
    curl -sS -m 30 -H 'Authorization: Bearer t0ken' --data-binary "@$WORK/data" "http://localhost:$1/echo" "http://localhost:$1/echo" >"$WORK/back" || return 1
    cat "$WORK/data" "$WORK/data" | cmp - "$WORK/back" &&
        curl -sSN -m 30 -H 'Authorization: Bearer t0ken' "http://127.0.0.1:$1/stream" | tail -n 2 | grep -q 'DONE' &&
        curl -sSN -m 30 --http1.0 -H 'Authorization: Bearer t0ken' "http://127.0.0.1:$1/stream" | tail -n 2 | grep -q 'DONE'
}

check server_compiles write_server
"$WORK/serve" >"$WORK/port" 2>"$WORK/log" &
server=$!
for _ in $(seq 100); do [ -s "$WORK/port" ] && break; sleep 0.05; done
port=$(cat "$WORK/port")
if has python3; then check python_gets_along_with_the_server python_gets_along "$port"; else skip python_gets_along_with_the_server "no python3 here"; fi
if has curl; then check curl_gets_along_with_the_server curl_gets_along "$port"; else skip curl_gets_along_with_the_server "no curl here"; fi
still_runs() { kill -0 "$server" && cat "$WORK/log" && [ ! -s "$WORK/log" ]; }
check server_goes_on_and_says_nothing still_runs
kill "$server" 2>/dev/null
finish
