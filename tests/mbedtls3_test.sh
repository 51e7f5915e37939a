#!/usr/bin/env bash
# genie_net.c with mbedTLS 3.6: Debian 13's packages are unpacked under build/mbedtls3, the network tests run on them, and
# programs of both versions talk to each other. Skips where the packages cannot be had.
# Tier: slow
. "$(dirname "$0")/script.sh"
unpacked=$ROOT/build/mbedtls3
out=$WORK/out
flags='-std=gnu11 -O2 -ffp-contract=off -pthread -Wall -Wextra -Wconversion -Wshadow -Werror -I.'

# The host that the system's own package lists name also has the next release.
fetch_packages() {
    local site apt package
    has apt-get && has dpkg-deb || { echo "no apt-get here"; return 1; }
    site=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | awk '$2 == "bookworm" || $2 == "trixie" { print $1; exit }')
    [ -n "$site" ] || { echo "this is neither Debian 12 nor 13"; return 1; }
    mkdir -p "$WORK/apt/lists/partial" "$WORK/apt/archives/partial"
    printf 'deb %s trixie main\n' "$site" >"$WORK/apt/sources.list"
    apt=(-qq -o "Dir::State::Lists=$WORK/apt/lists" -o "Dir::Cache=$WORK/apt" -o "Dir::Etc::SourceList=$WORK/apt/sources.list"
        -o Dir::Etc::SourceParts=/dev/null -o Debug::NoLocking=1 -o APT::Sandbox::User= -o Acquire::Retries=1 -o Acquire::http::Timeout=20)
    timeout 120 apt-get "${apt[@]}" update || { echo "Debian 13's package lists cannot be had"; return 1; }
    (cd "$WORK/apt" && timeout 120 apt-get "${apt[@]}" download libmbedtls-dev) || { echo "Debian 13's libmbedtls-dev cannot be had"; return 1; }
    for package in "$WORK"/apt/libmbedtls-dev_*.deb; do dpkg-deb -x "$package" "$WORK/unpacked" || return 1; done
    rm -rf "$unpacked"
    mkdir -p "$(dirname "$unpacked")"
    mv "$WORK/unpacked" "$unpacked"
}

# compile OUTPUT SOURCE OBJECT ...: with the headers and the static libraries of 3.6 before the system's.
compile() {
    local output=$1; shift
    # shellcheck disable=SC2086
    $CC $flags -isystem "$unpacked/usr/include" "$@" -o "$output" "$archive/libmbedtls.a" "$archive/libmbedx509.a" "$archive/libmbedcrypto.a" \
        -lzstd -lm -lpthread -ldl
}
headers_are_3_6() {
    printf '#include <mbedtls/version.h>\n#if MBEDTLS_VERSION_NUMBER < 0x03060000\n#error old\n#endif\nint main(void) { return 0; }\n' >"$WORK/version.c"
    compile "$WORK/version" "$WORK/version.c"
}
unit_compiles() {
    mkdir -p "$out"
    # shellcheck disable=SC2086
    $CC $flags -isystem "$unpacked/usr/include" -c genie_net.c -o "$out/genie_net.o"
}
programs_link() {
    local program
    for program in hello genie_serve; do compile "$out/$program" examples/$program.c "$BUILD/genie.o" "$out/genie_net.o" || return 1; done
}
network_tests_pass() {
    local objects=("$BUILD/genie.o" "$out/genie_net.o")
    if grep -q '^ *# *define GENIE_IMPLEMENTATION' tests/net_test.c; then objects=("$out/genie_net.o"); fi
    compile "$out/net_test" tests/net_test.c "${objects[@]}" || return 1
    GENIE_HOME=$WORK/net "$out/net_test"
}
# talk SERVER_FOLDER CLIENT_FOLDER
talk() {
    local client_folder=$2
    EXAMPLES=$1
    rm -rf "$WORK/server"
    start_server "$WORK/server" || return 1
    GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url timeout 60 "$client_folder/hello" | grep -F "computed by 127.0.0.1:$server_port/"
    local status=$?
    kill "$server_process"
    return $status
}

if [ -n "${SAN:-}" ]; then echo "SKIP: the build with sanitizers is tested with the system's mbedTLS alone"; exit 77; fi
if [ ! -d "$unpacked/usr/include/mbedtls" ] && ! fetch_packages >"$WORK/fetch" 2>&1; then
    echo "SKIP: $(tail -n 1 "$WORK/fetch")"
    exit 77
fi
archive=$(dirname "$(find "$unpacked" -name libmbedtls.a | head -n 1)")
check packages_of_debian_13_hold_mbedtls_3_6 headers_are_3_6
check unit_with_mbedtls_3_6_compiles_quietly unit_compiles
check programs_with_mbedtls_3_6_link programs_link
check network_tests_with_mbedtls_3_6_pass network_tests_pass
check server_3_6_serves_a_client_of_3_6 talk "$out" "$out"
check server_3_6_serves_a_client_of_the_system_version talk "$out" "$BUILD/examples"
check server_of_the_system_version_serves_a_client_of_3_6 talk "$BUILD/examples" "$out"
finish
