#!/usr/bin/env bash
# What ./build.sh install puts under DESTDIR is complete, and a program made with pkg-config and nothing else runs.
# Tier: slow
. "$(dirname "$0")/script.sh"
destination=$WORK/destination
prefix=/opt/genie
shared=libgenie.so.$(sed -n 's/^#define GN_VERSION "\([0-9]*\.[0-9]*\)\..*/\1/p' genie.h)
if [ -n "${SAN:-}" ]; then echo "SKIP: a build with sanitizers is not installed"; exit 77; fi

install_runs() { ./build.sh --no-deps install PREFIX=$prefix DESTDIR="$destination"; }

every_file_is_there() {
    local file ok=0
    for file in include/genie.h lib/libgenie.a $([ ! -f "$BUILD/libgenie.so" ] || echo lib/libgenie.so "lib/$shared") lib/pkgconfig/genie.pc bin/genie_serve share/genie/genie.h share/genie/genie_net.c; do
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
    [ "$(env -u GENIE_DEVICES LD_LIBRARY_PATH="$destination$prefix/lib" "$WORK/user")" = "10 $(pc --modversion genie)" ]
}

# The name that a program asks for when it starts, and nothing of the library inside the program.
program_uses_the_shared_library() {
    readelf -d "$WORK/user" | tee "$WORK/dynamic" | grep -F "[$shared]" || { cat "$WORK/dynamic"; return 1; }
    ! nm "$WORK/user" | grep -E ' [Tt] gn_'
}

# Every object can be a part of a shared library: one that holds the archive whole has no relocation in its text.
archive_can_become_a_shared_library() {
    # shellcheck disable=SC2086 # flags are words
    $CC -shared -Wl,-z,text -Wl,--whole-archive "$destination$prefix/lib/libgenie.a" -Wl,--no-whole-archive $LIBS -o "$WORK/whole.so"
}

# gn_ names, all that the header and its services declare, and none of Genie's private gn__ ones nor of other libraries.
shared_library_exports_gn_alone() {
    nm -D --defined-only "$destination$prefix/lib/libgenie.so" | awk '{ print $NF }' | sort -u >"$WORK/exported"
    echo "$(wc -l <"$WORK/exported") names; others than gn_:"
    ! grep -vE '^gn_[a-z0-9]' "$WORK/exported" || return 1
    nm -g --defined-only "$destination$prefix/lib/libgenie.a" | awk 'NF == 3 { print $3 }' | sort -u >"$WORK/public"
    echo "in the archive, not in the shared library, or the reverse:"
    ! comm -3 "$WORK/public" "$WORK/exported" | grep .
}

# A program that brings a function of a name of ours does not change what the library does.
names_of_the_program_do_not_interpose() {
    cat >"$WORK/other.c" <<'TEXT'
#include <genie.h>
#include <stdio.h>
gn_tensor gn_neg_at(const char *file, int line, gn_tensor a) { (void)file; (void)line; return a; }
int main(void)
{
    float x[2] = { 0.25f, 0.5f }, y = 0;
    gn_ctx *g = gn_open(NULL);
    gn_tensor p = gn_data(g, GN_F32, GN_SHAPE(2), x);
    if (gn_read(gn_bce_loss(p, gn_full(g, GN_F32, GN_SHAPE(2), 1)), &y, sizeof y) != GN_OK) return 1;
    printf("%.6f\n", (double)y);
    gn_close(g);
    return 0;
}
TEXT
    local flags
    flags=$(pc --cflags --libs genie) || return 1
    # shellcheck disable=SC2086 # flags are words
    (cd "$WORK" && $CC -std=c99 other.c -o other $flags) || return 1
    env -u GENIE_DEVICES LD_LIBRARY_PATH="$destination$prefix/lib" "$WORK/other" | tee "$WORK/other.output"
    [ "$(cat "$WORK/other.output")" = 1.039721 ]
}

program_with_the_archive_runs() {
    local flags others
    flags=$(pc --cflags genie) || return 1
    others=$(pc --static --libs genie | sed 's/-lgenie //') || return 1
    # shellcheck disable=SC2086 # flags are words
    (cd "$WORK" && $CC -std=c99 user.c -o static_user $flags "$destination$prefix/lib/libgenie.a" $others) || return 1
    [ "$(env -u GENIE_DEVICES "$WORK/static_user")" = "10 $(pc --modversion genie)" ]
}

# README's lines for CMake, in a project around them.
program_made_with_cmake_runs() {
    local folder=$WORK/cmake
    mkdir -p "$folder/build"
    cp "$WORK/user.c" "$folder/prog.c"
    {
        printf 'cmake_minimum_required(VERSION 3.7)\nproject(prog C)\nadd_executable(prog prog.c)\nfind_package(PkgConfig REQUIRED)\n'
        awk '/^```cmake$/ { inside = 1; next } /^```/ { inside = 0 } inside { print; n++ } END { exit n < 2 }' README.md
    } >"$folder/CMakeLists.txt" || return 1
    export PKG_CONFIG_PATH=$destination$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$destination
    (cd "$folder/build" && cmake .. -DCMAKE_C_COMPILER="${CC%% *}" && cmake --build .) || return 1
    [ "$(env -u GENIE_DEVICES LD_LIBRARY_PATH="$destination$prefix/lib" "$folder/build/prog")" = "10 $(pc --modversion genie)" ]
}

# libgenie.a brings the network unit along although the program names nothing of it.
installed_library_reaches_a_server() {
    start_server "$WORK/server" || return 1
    LD_LIBRARY_PATH=$destination$prefix/lib GENIE_HOME=$WORK/client GENIE_DEVICES=@$WORK/server/url "$WORK/user" | grep '^10 '
}

installed_server_answers() { "$destination$prefix/bin/genie_serve" --version | grep -F "$(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)"; }

relative_prefix_is_refused() { fails_with 'PREFIX' ./build.sh --no-deps install PREFIX=here DESTDIR="$destination"; }

check install_into_destdir_succeeds install_runs
check install_holds_every_file every_file_is_there
check installed_files_do_not_name_the_build_folder nothing_points_back
check installed_server_tells_its_version installed_server_answers
check install_with_relative_prefix_is_refused relative_prefix_is_refused
if [ -f "$BUILD/libgenie.so" ]; then
    check archive_can_become_a_part_of_a_shared_library archive_can_become_a_shared_library
    check shared_library_offers_gn_names_alone shared_library_exports_gn_alone
else
    skip shared_library_offers_gn_names_alone "libraries unpacked without root cannot become a part of a shared one"
fi
write_programs
if has pkg-config; then
    check program_made_with_pkg_config_runs program_with_pkg_config_runs
    check program_made_with_pkg_config_reaches_a_server installed_library_reaches_a_server
    if has cmake; then check program_made_with_cmake_runs program_made_with_cmake_runs; else skip program_made_with_cmake_runs "no cmake here"; fi
    check program_made_with_the_archive_runs program_with_the_archive_runs
    if [ -f "$BUILD/libgenie.so" ]; then
        check program_made_with_pkg_config_uses_the_shared_library program_uses_the_shared_library
        check functions_of_a_program_are_not_taken_for_the_librarys names_of_the_program_do_not_interpose
    fi
else
    skip program_made_with_pkg_config_runs "no pkg-config here"
fi
finish
