#!/usr/bin/env bash
# A stranger takes the shipped files: in an empty folder, as a user without rights, README's program is compiled with README's
# own line and run against a genie_serve that is already there; what crosses the socket is recorded outside of both processes.
# Tier: slow
. "$(dirname "$0")/script.sh"
folder=$WORK/stranger
secrets=()
person=()   # the command prefix that makes us an unprivileged user

choose_person() {
    [ "$(id -u)" = 0 ] || return 0
    if has setpriv; then
        person=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups)
    elif has runuser; then
        person=(runuser -u nobody --)
    else
        return 1
    fi
}

# as_stranger COMMAND: a shell line in the folder, without our environment.
as_stranger() {
    (cd "$folder" && ${person[@]+"${person[@]}"} env -i PATH="$PATH" HOME="$folder" LC_ALL=C ${C_INCLUDE_PATH:+C_INCLUDE_PATH="$C_INCLUDE_PATH"} \
        ${LIBRARY_PATH:+LIBRARY_PATH="$LIBRARY_PATH"} ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} timeout -k 5 60 sh -c "$1")
}

stranger_has_no_rights() { [ "$(as_stranger 'id -u')" != 0 ] && ! as_stranger 'touch /etc/genie-must-not-exist' 2>/dev/null; }

# README's first block of C with a main, and the first line that compiles a .c file beside genie_net.c.
extract_program() {
    local source
    compile_line=$(sed -n -E 's/^ *(\$ )?((cc|gcc) .*genie_net\.c.*)$/\2/p' README.md | head -n 1)
    [ -n "$compile_line" ] || { echo "README.md has no line that compiles with genie_net.c"; return 1; }
    source=$(grep -oE '[A-Za-z0-9_]+\.c' <<<"$compile_line" | grep -v '^genie_' | head -n 1)
    program=$(sed -n -E 's/.* -o +([A-Za-z0-9_.]+).*/\1/p' <<<"$compile_line")
    program=${program:-a.out}
    awk '/^```c$/ { inside = 1; text = ""; next }
         /^```/ { if (inside && text ~ /main *\(/) { printf "%s", text; found = 1; exit } inside = 0 }
         inside { text = text $0 "\n" }
         END { exit !found }' README.md >"$folder/$source" || { echo "README.md has no C program"; return 1; }
    echo "$compile_line -> $source, $program"
    wc -l <"$folder/$source"
}

# The same program in C++ with the implementation elsewhere.
write_program_in_cxx() { grep -v '^#define GENIE_IMPLEMENTATION' "$folder/prog.c" >"$folder/prog.cpp"; }

# readme_line PATTERN: the first line of README that matches, without optimisation, which takes the stranger's time alone.
readme_line() { grep -m 1 -E "$1" README.md | sed -E 's/ +#.*$//; s/ -O2 / -O0 /g'; }

# shown_output: what README shows below its line that compiles the program.
shown_output() { awk '/^\$ \.\/prog$/ { inside = 1; next } /^```/ { inside = 0 } inside' README.md; }

program_gives_what_the_readme_shows() {
    shown_output >"$WORK/shown"
    [ "$(wc -l <"$WORK/shown")" -ge 3 ] && diff "$WORK/shown" "$WORK/local.output"
}

program_with_the_gpu_executor_runs() {
    local line; line=$(readme_line '^cc .*genie_cuda\.c')
    echo "$line"
    [ -n "$line" ] && as_stranger "$line && GENIE_DEVICES=cpu ./$program" | diff "$WORK/shown" -
}

program_in_cxx_runs() {
    local line; line=$(readme_line '^cc .*&& c\+\+ ')
    echo "$line"
    [ -n "$line" ] && as_stranger "rm -f $program; $line && ./$program" | diff "$WORK/shown" -
}

# Each other block of C in README is the body of a function that is given what the text speaks of.
blocks_of_the_readme_compile() {
    awk 'BEGIN { print "#define GENIE_IMPLEMENTATION\n#include \"genie.h\"\ngn_tensor my_attention(gn_tensor q, gn_tensor k, gn_tensor v);" }
         /^```c$/ { inside = 1; text = ""; next }
         BEGIN { given = "gn_ctx *g, gn_tensor x, gn_tensor weight, gn_tensor bias, gn_tensor targets, gn_tensor q, gn_tensor k, gn_tensor v, " \
             "gn_tensor token, gn_tensor position, gn_tensor next, gn_recording step, int32_t id" }
         /^```/ { if (inside && text !~ /main *\(/) printf "void block_%d(%s);\nvoid block_%d(%s) {\n%s}\n", ++n, given, n, given, text
             inside = 0 }
         inside { text = text $0 "\n" }
         END { exit n < 2 }' README.md | sed '1d' >"$WORK/blocks.c" || return 1
    $CC -std=gnu11 -fsyntax-only -Wall -Wextra -Wno-unused -Werror -I. "$WORK/blocks.c"
}

prepare_folder() {
    local file
    chmod 711 "$WORK"
    mkdir -p "$folder" "$WORK/records"
    for file in genie.h genie_net.c genie_cuda.c; do [ ! -f $file ] || cp $file "$folder/"; done
    extract_program || return 1
    write_program_in_cxx
    [ ${#person[@]} = 0 ] || chown -R nobody "$folder"
}

start_recorder() {
    $CC -std=gnu11 -O2 tests/tls_recorder.c -o "$WORK/tls_recorder" -lm || return 1
    "$WORK/tls_recorder" relay "$server_port" "$WORK/records" >"$WORK/recorder.port" &
    processes+=("$!")
    within 10 test -s "$WORK/recorder.port"
}

# The stranger gets the server's URL with the recorder's port in place of the server's.
program_runs_on_the_server() {
    local port url
    port=$(head -n 1 "$WORK/recorder.port")
    url=$(sed "s/127\.0\.0\.1:$server_port/127.0.0.1:$port/" "$WORK/server/url")
    [ "$url" != "$(cat "$WORK/server/url")" ] || { echo "the URL does not hold the port"; return 1; }
    (umask 077; printf '%s\n' "$url" >"$folder/genie.url")
    [ ${#person[@]} = 0 ] || chown nobody "$folder/genie.url"
    as_stranger "GENIE_DEVICES=@genie.url ./$program @genie.url" >"$WORK/program.output" 2>&1 || { cat "$WORK/program.output"; return 1; }
    cat "$WORK/program.output"
    [ -s "$WORK/program.output" ]
}

program_runs_alone() {
    as_stranger "./$program" >"$WORK/local.output" 2>&1 || { cat "$WORK/local.output"; return 1; }
    printf 'here:   %s\nserver: %s\n' "$(cat "$WORK/local.output")" "$(cat "$WORK/program.output")"
    [ -s "$WORK/local.output" ]
}

socket_carries_tls_alone() {
    local up checked=0
    for up in "$WORK"/records/*.up; do
        [ -s "$up" ] || continue
        "$WORK/tls_recorder" check "$up" "${up%.up}.down" || return 1
        checked=$((checked + 1))
    done
    echo "$checked connections"
    [ $checked -gt 0 ]
}

# What must not be readable: strings of the program, its lists of numbers as the floats they become, the words of the secret
# URL, names of ops and devices.
collect_secrets() {
    local word list files=() n=0
    secrets=(softmax matmul cpu:0)
    while read -r word; do secrets+=("$word"); done < <(grep -hE -v '^#' "$folder"/[!g]*.c | grep -oE '"[A-Za-z0-9_.]{4,}"' | tr -d '"' | sort -u)
    while read -r word; do secrets+=("$word"); done < <(grep -oE '[A-Za-z0-9_-]{12,}' "$WORK/server/url")
    printf '#include <stdio.h>\nint main(int n, char **path) { (void)n; FILE *f; (void)f;\n' >"$WORK/floats.c"
    while read -r list; do
        n=$((n + 1))
        printf 'const float x%d[] = %s; f = fopen(path[%d], "wb"); fwrite(x%d, 1, sizeof x%d, f); fclose(f);\n' $n "$list" $n $n $n
        files+=("$WORK/floats.$n") secrets+=("@$WORK/floats.$n")
    done < <(grep -hoE '\{ *-?[0-9][^{}()]*,[^{}()]*\}' "$folder"/[!g]*.c) >>"$WORK/floats.c"
    printf 'return 0; }\n' >>"$WORK/floats.c"
    printf 'looked for: %s\n' "${secrets[*]}"
    $CC "$WORK/floats.c" -o "$WORK/floats" && "$WORK/floats" ${files[@]+"${files[@]}"} && [ ${#files[@]} -ge 1 ] && [ ${#secrets[@]} -ge 6 ]
}

no_plain_text_crosses() {
    local record
    collect_secrets || return 1
    [ -s "$WORK/records/0.up" ] || return 1
    for record in "$WORK"/records/*; do
        if "$WORK/tls_recorder" find "$record" "${secrets[@]}"; then return 1; fi
    done
}

# The two checks before this one can fail: a plain connection is refused, and each secret would be found in it.
recorder_finds_plain_text() {
    local secret
    mkdir -p "$WORK/plain"
    for secret in "${secrets[@]}"; do
        case $secret in @*) cat "${secret#@}" ;; *) printf 'xx%s' "$secret" ;; esac >"$WORK/plain/0.up"
        "$WORK/tls_recorder" find "$WORK/plain/0.up" "$secret" || return 1
    done
    cp "$WORK/plain/0.up" "$WORK/plain/0.down"
    ! "$WORK/tls_recorder" check "$WORK/plain/0.up" "$WORK/plain/0.down"
}

choose_person || { echo "SKIP: neither setpriv nor runuser is here to become an unprivileged user"; exit 77; }
check folder_with_the_shipped_files_alone_is_ready prepare_folder
check stranger_has_no_rights stranger_has_no_rights
check program_of_the_readme_with_its_own_line_compiles as_stranger "${compile_line:-false}"
check server_started_separately_prints_its_url start_server "$WORK/server"
check recorder_between_them_starts start_recorder
check program_of_the_readme_against_the_server_runs program_runs_on_the_server
check program_of_the_readme_without_server_runs_here program_runs_alone
check program_of_the_readme_gives_what_the_readme_shows program_gives_what_the_readme_shows
check program_of_the_readme_with_the_gpu_executor_runs program_with_the_gpu_executor_runs
if has c++; then check program_of_the_readme_in_cxx_runs program_in_cxx_runs; else skip program_of_the_readme_in_cxx_runs "no c++ here"; fi
check other_blocks_of_the_readme_compile blocks_of_the_readme_compile
check bytes_on_the_socket_are_tls_records socket_carries_tls_alone
check bytes_on_the_socket_hold_no_plain_text no_plain_text_crosses
check recorder_given_plain_bytes_finds_them recorder_finds_plain_text
finish
