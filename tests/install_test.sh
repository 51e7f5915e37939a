#!/usr/bin/env bash
# What ./build.sh install puts under DESTDIR is complete, and a program made with pkg-config and nothing else runs.
# Takes longer than seconds: not in the quick run.
. "$(dirname "$0")/script.sh"
destination=$WORK/destination
prefix=/opt/genie
if [ -n "${SAN:-}" ]; then echo "SKIP: a build with sanitizers is not installed"; exit 77; fi

install_runs() { ./build.sh --no-deps install PREFIX=$prefix DESTDIR="$destination"; }

every_file_is_there() {
    local file ok=0
    for file in include/genie.h lib/libgenie.a lib/pkgconfig/genie.pc bin/genie_serve share/genie/genie.h share/genie/genie_net.c; do
        [ -s "$destination$prefix/$file" ] || { echo "missing: $file"; ok=1; }
    done
    [ ! -f genie_cuda.c ] || [ -s "$destination$prefix/share/genie/genie_cuda.c" ] || ok=1
    [ -z "$(find "$destination" -type f -not -path "$destination$prefix/*")" ] && return $ok
}

# The built tree's place stands nowhere in what was installed, but for what was unpacked without root.
nothing_points_back() { ! grep -rlF "$ROOT" "$destination$prefix/lib/pkgconfig" "$destination$prefix/include" "$destination$prefix/share"; }

write_programs() {
    cat >"$WORK/user.c" <<'TEXT'
#include <genie.h>
#include <stdio.h>
int main(void)
{
    float x[4] = { 1, 2, 3, 4 }, y = 0;
    gn_ctx *g = gn_open(NULL);
    if (gn_read(gn_sum(gn_data(g, GN_F32, GN_SHAPE(4), x), GN_ALL_AXES, false), &y, sizeof y) != GN_OK) {
        fprintf(stderr, "%s\n", gn_last_error(g)->text);
        return 1;
    }
    printf("%g %s\n", (double)y, GN_VERSION);
    gn_close(g);
    return 0;
}
TEXT
}

pc() { PKG_CONFIG_PATH=$destination$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$destination pkg-config "$@"; }

program_with_pkg_config_runs() {
    local flags
    flags=$(pc --cflags --libs genie) || return 1
    echo "$flags"
    # shellcheck disable=SC2086 # flags are words
    (cd "$WORK" && $CC -std=c99 -Wall -Wextra -Werror user.c -o user $flags) || return 1
    [ "$(env -u GENIE_DEVICES "$WORK/user")" = "10 $(pc --modversion genie)" ]
}

# libgenie.a brings the network unit along although the program names nothing of it.
installed_library_reaches_a_server() {
    start_server "$WORK/server" || return 1
    GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url "$WORK/user" | grep '^10 '
}

installed_server_answers() { "$destination$prefix/bin/genie_serve" --version | grep -F "$(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)"; }

relative_prefix_is_refused() { fails_with 'PREFIX' ./build.sh --no-deps install PREFIX=here DESTDIR="$destination"; }

check install_into_destdir_succeeds install_runs
check install_holds_every_file every_file_is_there
check installed_files_do_not_name_the_build_folder nothing_points_back
check installed_server_tells_its_version installed_server_answers
check install_with_relative_prefix_is_refused relative_prefix_is_refused
write_programs
if has pkg-config; then
    check program_made_with_pkg_config_runs program_with_pkg_config_runs
    check program_made_with_pkg_config_reaches_a_server installed_library_reaches_a_server
else
    skip program_made_with_pkg_config_runs "no pkg-config here"
fi
finish
