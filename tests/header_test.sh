#!/usr/bin/env bash
# genie.h as a stranger's compiler sees it: alone, in C99, in C++11, its names, its size, its compile time.
# Tier: slow
. "$(dirname "$0")/script.sh"
plain=cc
has cc || plain=$CC

cat >"$WORK/one.c" <<'TEXT'
#define GENIE_IMPLEMENTATION
#include "genie.h"
TEXT
cat >"$WORK/alone.c" <<'TEXT'
#define GENIE_IMPLEMENTATION
#include "genie.h"
int main(void)
{
    float x[2] = { 1, 2 }, y[2] = { 0, 0 };
    gn_ctx *g = gn_open(0);
    gn_result r = gn_read(gn_add(gn_data(g, GN_F32, GN_SHAPE(2), x), gn_data(g, GN_F32, GN_SHAPE(2), x)), y, sizeof y);
    gn_close(g);
    return !(r == GN_OK && y[0] == 2 && y[1] == 4);
}
TEXT
cat >"$WORK/user.c" <<'TEXT'
#include "genie.h"
gn_tensor NAME(gn_ctx *g, const float *x);
gn_tensor NAME(gn_ctx *g, const float *x)
{
    gn_axes all = GN_ALL_AXES;
    gn_tensor t = gn_data(g, GN_F32, GN_SHAPE(2, 3), x);
    return gn_sum(gn_reshape(gn_mul_c(t, 2), GN_SHAPE(3, 2)), all, false);
}
TEXT
cat >"$WORK/main.cc" <<'TEXT'
#include "genie.h"
extern "C" gn_tensor first(gn_ctx *g, const float *x);
extern "C" gn_tensor second(gn_ctx *g, const float *x);
int main()
{
    float x[6] = { 1, 2, 3, 4, 5, 6 }, out[3] = { 0, 0, 0 };
    gn_desc desc = gn_desc();
    desc.devices = "cpu";
    gn_ctx *g = gn_open(&desc);
    gn_tensor t = gn_permute(gn_data(g, GN_F32, GN_SHAPE(2, 3), x), GN_AXES(1, 0));
    gn_attention_desc attention = gn_attention_desc();
    attention.mask = GN_NONE;
    gn_result r = gn_read(first(g, x), &out[0], sizeof out[0]);
    if (r == GN_OK) r = gn_read(second(g, x), &out[1], sizeof out[1]);
    if (r == GN_OK) r = gn_read(gn_mean(t, GN_ALL_AXES, false), &out[2], sizeof out[2]);
    gn_close(g);
    return !(r == GN_OK && out[0] == 42 && out[1] == 42 && out[2] == 3.5f);
}
TEXT

# The whole program is genie.h and a file beside it: no -I, nothing but the C library, its mathematics and threads.
compiles_alone() {
    mkdir -p "$WORK/alone"
    cp genie.h "$WORK/alone.c" "$WORK/alone/"
    (cd "$WORK/alone" && "$plain" alone.c -o alone -lm -lpthread && ./alone)
}

c99_and_cxx11_units_link() {
    local name
    for name in first second; do
        "$plain" -std=c99 -pedantic -Wall -Wextra -Werror -I. -DNAME="$name" -c "$WORK/user.c" -o "$WORK/$name.o" || return 1
    done
    g++ -std=c++11 -pedantic -Wall -Wextra -Werror -I. -c "$WORK/main.cc" -o "$WORK/main.o" || return 1
    g++ "$WORK/main.o" "$WORK/first.o" "$WORK/second.o" "$WORK/one.o" -o "$WORK/three" -lm -lpthread -ldl && "$WORK/three"
}

implementation_in_cxx_is_refused() { ! g++ -std=c++11 -I. -x c++ -c "$WORK/one.c" -o "$WORK/refused.o" 2>"$WORK/refused.log" && grep -q '#error' "$WORK/refused.log"; }

# Names that an object file shows to others and that do not begin with gn_.
foreign_names() { nm -g --defined-only "$@" | awk 'NF == 3 && $3 !~ /^gn_/ { print $3 }'; }
exports_only_gn_names() {
    local names; names=$(foreign_names "$@")
    echo "$names"
    [ -z "$names" ] && nm -g --defined-only "$@" | grep ' gn_open$'
}

# compiles_in_time COMPILER: processor seconds of the quickest of three, or of the first that is within the limit. gcc takes about
# 18 and clang 19 on an idle core of a server; GENIE_COMPILE_SECONDS is another limit, for a machine that is slower.
compiles_in_time() {
    local times=$WORK/$1.times TIMEFORMAT='%U %S'
    for _ in 1 2 3; do
        { time "$1" -O2 -I. -c "$WORK/one.c" -o "$WORK/$1.o"; } 2>>"$times" || { cat "$times"; return 1; }
        ! least_is_within "$times" >"$times.least" || break
    done
    cat "$times.least"
    least_is_within "$times" >/dev/null
}

# least_is_within TIMES: lines of user and system seconds
least_is_within() {
    awk -v most="${GENIE_COMPILE_SECONDS:-24}" '{ t = $1 + $2; if (NR == 1 || t < least) least = t }
        END { printf "%.2f processor seconds, at most %s\n", least, most; exit !(least < most) }' "$1"
}

# gcc's has 2.260 MB, clang's 2.435. GENIE_OBJECT_BYTES: another limit.
object_is_small() {
    [ -f "$WORK/$1.o" ] || "$1" -O2 -I. -c "$WORK/one.c" -o "$WORK/$1.o" || return 1
    size "$WORK/$1.o" | awk 'NR == 2 { print $4 " bytes loaded" }'
    wc -c <"$WORK/$1.o"
    [ "$(wc -c <"$WORK/$1.o")" -lt "${GENIE_OBJECT_BYTES:-2440000}" ]
}

quiet_under_warnings() {
    local standard
    for standard in -std=gnu11 '-std=c11 -D_GNU_SOURCE' -std=gnu17; do
        "$1" $standard -fsyntax-only -O2 -Wall -Wextra -Wconversion -Wshadow -Werror -I. "$WORK/one.c" || return 1
    done
}

check header_with_plain_cc_compiles_alone_and_runs compiles_alone
"$plain" -O2 -I. -c "$WORK/one.c" -o "$WORK/one.o"
if has g++; then
    check units_in_c99_and_cxx11_with_one_implementation_link_and_run c99_and_cxx11_units_link
    check implementation_in_cxx_is_refused_by_error implementation_in_cxx_is_refused
else
    skip units_in_c99_and_cxx11_with_one_implementation_link_and_run "no g++ here"
fi
check symbols_of_the_core_begin_with_gn exports_only_gn_names "$WORK/one.o"
check symbols_of_the_library_begin_with_gn exports_only_gn_names "$BUILD/libgenie.a"
for compiler in gcc clang; do
    if has $compiler; then
        check "implementation_with_${compiler}_warnings_is_quiet" quiet_under_warnings $compiler
        [ $compiler = clang ] || check "implementation_with_${compiler}_at_o2_compiles_in_time" compiles_in_time $compiler
        check "object_of_a_client_with_${compiler}_is_small" object_is_small $compiler
    else
        skip "implementation_with_${compiler}_warnings_is_quiet" "no $compiler here"
    fi
done
finish
