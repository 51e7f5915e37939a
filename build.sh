#!/usr/bin/env bash
# Builds, tests and installs Genie; ./build.sh --help says how.
set -eu -o pipefail

cd "$(dirname "$0")"
ROOT=$PWD
DEPS=$ROOT/build/deps
LIBS='-lmbedtls -lmbedx509 -lmbedcrypto -lzstd -lm -lpthread -ldl'
RESULT_LINE='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'

usage() {
    cat <<'TEXT'
usage: ./build.sh [command] [NAME=VALUE ...] [--no-deps]

  (none)          build the library, examples/, tests/ and bench/
  bench           build the library and bench/ alone; the programs are build/bench/NAME
  test            build and run every test; the last line is "N passed, N failed, N skipped"
  test TIER       the tests whose first comment has the word after "Tier:"
                  quick: seconds each; slow: the others; kernels: see below; address, thread: those that CI runs with SAN
  test programs   the test programs in C, without the scripts
  test NAME ...   only these, for example: test wire_test serve_test
  kernels         test kernels: every kernel of the GPU executor without a GPU: compiled by NVRTC 13 and 12 where they are found or can be
                  had, executed as fibres on this CPU, a few compared with golden texts, waits for products checked in machine code
  fuzz NAME [SECONDS]
                  the target tests/fuzz/NAME_fuzz.c under clang's libFuzzer, with the address and undefined sanitizers (60 s); what it finds
                  is left in build/fuzz/NAME and becomes a file of tests/fuzz/corpus/NAME, which fuzz_test replays
  split           writes each section of genie.h, genie_cuda.c and genie_net.c to a file of its own under build/split/, for
                  reading and for tools; nothing reads them back
  install         header, sources, static and shared library, genie.pc and genie_serve under DESTDIR/PREFIX
  clean           remove all that was built

  CC=clang        compiler (cc); a compiler other than cc has a build folder of its own
  SAN=thread      sanitizers (thread, or address,undefined), in a build folder of its own
  CFLAGS=...      further compiler flags, in a build folder of their own
  JOBS=4          units compiled and tests run at once (one a core)
  PREFIX=/usr/local DESTDIR=
                  where install puts things

What is missing (a C compiler, libmbedtls-dev, libzstd-dev) is installed with apt-get as root; another user gets the
distribution's packages unpacked under build/deps. --no-deps does neither and says what to install.
TEXT
}

say() { printf '%s\n' "$*" >&2; }
die() { say "build.sh: $*"; exit 1; }

parse_arguments() {
    command=build names=() no_deps=0 broken=0
    for argument in "$@"; do
        case $argument in
            -h | --help) usage; exit 0 ;;
            --no-deps) no_deps=1 ;;
            CC=* | SAN=* | CFLAGS=* | JOBS=* | PREFIX=* | DESTDIR=*) export "${argument?}" ;;
            kernels) [ "$command" = build ] || [ "$command" = test ] || die "two commands: $command and $argument"; command=test names+=(kernels) ;;
            build | test | bench | fuzz | split | install | clean) [ "$command" = build ] || die "two commands: $command and $argument"; command=$argument ;;
            -*) die "unknown option $argument; see --help" ;;
            *) [ "$command" = test ] || [ "$command" = fuzz ] || die "unknown command $argument; see --help"; names+=("$argument") ;;
        esac
    done
}

# The folder of this build: build/ for the plain one, otherwise named after compiler, sanitizers and flags.
choose_folder() {
    local name=
    [ "${CC:-cc}" = cc ] || name=$(basename "${CC%% *}")
    [ -z "${SAN:-}" ] || name=${name:+$name-}${SAN//,/-}
    [ -z "${CFLAGS:-}" ] || name=${name:+$name-}flags-$(printf %s "$CFLAGS" | cksum | cut -d' ' -f1)
    OUT=build${name:+/$name}
    mkdir -p "$OUT/examples" "$OUT/tests" "$OUT/bench"
}

choose_flags() {
    FLAGS='-std=gnu11 -O2 -ffp-contract=off -pthread -Wall -Wextra -Wconversion -Wshadow -Werror -I.'
    if [ -n "${SAN:-}" ]; then
        FLAGS="$FLAGS -O1 -g1 -fno-omit-frame-pointer -fsanitize=$SAN -fno-sanitize-recover=all"
        export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1}
        export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
        export TSAN_OPTIONS=${TSAN_OPTIONS:-allocator_may_return_null=1}
    fi
    FLAGS="$FLAGS ${CFLAGS:-}"
    # For the library alone, which may become a part of a shared one.
    PIC='-fPIC -fno-semantic-interposition'
    OBJECTS=$OUT/genie.o
    local unit
    for unit in genie_net genie_cuda; do [ ! -f $unit.c ] || OBJECTS="$OBJECTS $OUT/$unit.o"; done
}

# ---- what the build needs -------------------------------------------------------------------------------

find_compiler() {
    case ${CC:-cc} in cc | gcc) ;; *) return 0 ;; esac
    CC=${CC:-cc}
    command -v "$CC" >/dev/null || ! command -v gcc >/dev/null || CC=gcc
}

# library_is_there HEADER LINKER_FLAG ...
library_is_there() {
    local header=$1; shift
    printf '#include <%s>\nint main(void) { return 0; }\n' "$header" >"$OUT/probe.c"
    $CC "$OUT/probe.c" -o "$OUT/probe" "$@" 2>/dev/null
}

missing_packages() {
    if ! command -v "${CC%% *}" >/dev/null; then
        case $CC in cc | gcc) echo gcc libc6-dev ;; *) echo "${CC%% *}" ;; esac
    elif ! library_is_there stdio.h; then
        echo libc6-dev
    fi
    library_is_there mbedtls/ssl.h -lmbedtls -lmbedx509 -lmbedcrypto || echo libmbedtls-dev
    library_is_there zstd.h -lzstd || echo libzstd-dev
    [ "$command" != fuzz ] || library_is_there stdio.h -fsanitize=fuzzer-no-link,address,undefined || echo "libclang-rt-$(clang -dumpversion 2>/dev/null | cut -d. -f1)-dev"
}

find_dependencies() {
    use_unpacked
    find_compiler
    local missing; missing=$(missing_packages | xargs)
    [ -n "$missing" ] || return 0
    [ "$no_deps" = 0 ] || die "missing: $missing; --no-deps installs nothing: apt-get install $missing"
    command -v apt-get >/dev/null || die "missing: $missing; there is no apt-get here: install them, then try again"
    if [ "$(id -u)" = 0 ]; then install_packages $missing; else unpack_packages $missing; use_unpacked; fi
    find_compiler
    missing=$(missing_packages | xargs)
    [ -z "$missing" ] || die "still missing after apt-get: $missing"
}

install_packages() {
    say "installing with apt-get: $*"
    apt-get update -qq >&2 || say "apt-get update failed; trying with the lists that are there"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 || die "apt-get could not install: $*"
}

# Without root: apt-get with its state under build/deps downloads the packages and what they need, dpkg-deb unpacks them.
unpack_packages() {
    say "not root: unpacking the distribution's packages under build/deps: $*"
    command -v dpkg-deb >/dev/null || die "dpkg-deb is missing"
    mkdir -p "$DEPS/apt/lists/partial" "$DEPS/apt/archives/partial"
    local apt=(apt-get -qq -o "Dir::State::Lists=$DEPS/apt/lists" -o "Dir::Cache=$DEPS/apt" -o Debug::NoLocking=1)
    "${apt[@]}" update >&2 || die "apt-get update failed"
    "${apt[@]}" install -y --download-only --reinstall --no-install-recommends "$@" >&2 || die "apt-get could not download: $*"
    local package
    for package in "$DEPS"/apt/archives/*.deb; do
        say "unpacking $(basename "$package")"
        dpkg-deb -x "$package" "$DEPS"
    done
    rm -rf "$DEPS/apt"
    if [ -e "$DEPS/usr/bin/gcc" ]; then ln -sf gcc "$DEPS/usr/bin/cc"; fi
    # Without these links the static libraries are linked, so that the programs start from anywhere.
    find "$DEPS" \( -name 'libmbed*.so' -o -name libzstd.so \) -delete
    local script
    for script in "$DEPS"/usr/lib/*/libc.so; do
        [ ! -f "$script" ] || sed -i "s# /usr/lib/# $DEPS/usr/lib/#g" "$script"
    done
}

# Lets compiler and linker see build/deps, where packages were unpacked.
use_unpacked() {
    [ -d "$DEPS/usr" ] || return 0
    local folder
    for folder in "$DEPS"/usr/lib/*-linux-gnu*; do
        [ -d "$folder" ] || continue
        export LIBRARY_PATH="$folder${LIBRARY_PATH:+:$LIBRARY_PATH}"
        export C_INCLUDE_PATH="$DEPS/usr/include:$DEPS/usr/include/${folder##*/}${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}"
        export CPLUS_INCLUDE_PATH=$C_INCLUDE_PATH
        [ ! -d "$DEPS/usr/bin" ] || export PATH="$PATH:$DEPS/usr/bin" LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    done
}

# ---- building -------------------------------------------------------------------------------------------

# is_stale OUTPUT COMMAND: it is not there, was made by another command, or a file it was made from is newer.
is_stale() {
    local out=$1 command_line=$2 file
    [ -f "$out" ] && [ -f "$out.command" ] && [ "$(cat "$out.command")" = "$command_line" ] || return 0
    for file in $(sed -e 's/^[^:]*://' -e 's/\\$//' "$out.d"); do
        [ -f "$file" ] && [ ! "$file" -nt "$out" ] || return 0
    done
    return 1
}

# make_unit OUTPUT COMMAND: runs the command unless the output is up to date. The output's time is that of the start, so
# that a source changed meanwhile counts as newer.
make_unit() {
    local out=$1 command_line=$2
    is_stale "$out" "$command_line" || return 0
    rm -f "$out" "$out.command"
    touch "$out.start"
    if ! eval "$command_line" >"$out.log" 2>&1; then
        say "failed: $command_line"$'\n'"$(cat "$out.log")"
        rm -f "$out"
        return 1
    fi
    touch -r "$out.start" "$out"
    printf '%s' "$command_line" >"$out.command"
}

# compile SOURCE[:test]: to an object of the same name in the build folder; with :test to NAME_test.o, which has the switches
# that only tests use.
compile() {
    local source=${1%:test} language='' flags=$FLAGS
    local out=$OUT/${source%.*}.o
    [ "$source" != genie.h ] || language='-DGENIE_IMPLEMENTATION -x c'
    case $1 in *:test) out=$OUT/${source%.*}_test.o language=-DGENIE_TEST ;; esac
    case " $OBJECTS " in *" $out "*) language="$PIC $language" ;; esac
    # A test with an implementation of its own runs what all others run with the undefined sanitizer, which doubles its compile time.
    case $source in tests/*) ! grep -q '^ *# *define GENIE_IMPLEMENTATION' "$source" || flags=${flags/address,undefined/address} ;; esac
    make_unit "$out" "$CC $flags -MMD -MP -MF $out.d $language -c $source -o $out"
    # A header removed since has an empty rule in the .d file; a rule line without files is dropped.
    sed -i '/^[^ ]*:$/d' "$out.d"
}

# link PROGRAM: a program with an implementation of its own gets the optional units only. Tests get the GPU executor that has
# the switches for tests.
link() {
    local source=$1 out=$OUT/${1%.c} objects=$OBJECTS
    case $source in tests/*) objects=${objects/genie_cuda.o/genie_cuda_test.o} ;; esac
    if [ ! -f "$out.o" ]; then rm -f "$out"; return 1; fi
    if grep -q '^ *# *define GENIE_IMPLEMENTATION' "$source"; then objects=${objects#* }; fi
    printf '%s: %s %s\n' "$out" "$out.o" "$objects" >"$out.d"
    make_unit "$out" "$CC $FLAGS $out.o $objects -o $out $LIBS"
}

# One relocatable object, so that the optional units, which register themselves, are never left out of a link.
archive() {
    local out=$OUT/libgenie.a
    printf '%s: %s\n' "$out" "$OBJECTS" >"$out.d"
    make_unit "$out" "$CC ${SAN:+-fsanitize=$SAN} -nostdlib -r $OBJECTS -o $OUT/genie_all.o && rm -f $out && ar rcs $out $OUT/genie_all.o"
}

# What programs ask for when they start: before 1.0 each minor version may be another.
shared_name() { echo "libgenie.so.$(version | cut -d. -f1,2)"; }

# The same as a shared library, which offers the public functions alone. Not of static libraries unpacked under build/deps,
# which cannot become a part of one, nor with sanitizers.
has_shared() { [ -z "${SAN:-}" ] && [ ! -d "$DEPS/usr" ]; }
shared() {
    local out=$OUT/libgenie.so
    has_shared || return 0
    printf '%s: %s\n' "$out" "$OBJECTS" >"$out.d"
    printf '{ global: gn_*; local: *; };\n' >"$out.symbols"
    make_unit "$out" "$CC $FLAGS -shared -Wl,-soname,$(shared_name) -Wl,--version-script=$out.symbols -Wl,-Bsymbolic-functions -Wl,-z,defs $OBJECTS -o $out $LIBS"
}

# What genie_trace record has CUDA load into programs; a shared object of its own, which only the C library is linked to.
injection() {
    local out=$OUT/examples/genie_trace_cupti.so
    [ -z "${SAN:-}" ] && [ "$(uname -s)" = Linux ] && [ -f examples/trace/cupti.c ] || return 0
    make_unit "$out" "$CC $FLAGS -fPIC -shared -fvisibility=hidden -MMD -MF $out.d examples/trace/cupti.c -o $out -ldl"
    ln -f "$out" examples/genie_trace_cupti.so
}

# The sources to make programs of: all, or the examples and those tests that the command line names.
list_sources() {
    local source sources='examples/*.c tests/*_test.c'
    case $command in
        build) sources="$sources bench/*.c" ;;
        install) sources=examples/genie_serve.c ;;
        bench) sources='bench/*.c' ;;
        test)
            if is_wanted tests/programs_test.sh || is_wanted tests/ops_test.sh; then sources="$sources bench/*.c"
            elif is_wanted tests/genie_bench_test.sh; then sources="$sources bench/genie_bench.c"; fi ;;
    esac
    for source in $sources; do
        if [ -f "$source" ] && is_wanted "$source"; then echo "$source"; fi
    done
}

# has_tier SOURCE WORD: the test's first comment says "Tier: … WORD …".
has_tier() { head -n 30 "$1" | grep -qE "^(#| \*) Tier:( [a-z]+)* $2( |\$)"; }

is_wanted() {
    if [ "$command" != test ] || [ ${#names[@]} = 0 ]; then return 0; fi
    local name
    for name in "${names[@]}"; do
        case $name:$1 in
            *:examples/* | *:bench/* | programs:*.c | "$(basename "${1%.*}")":*) return 0 ;;
            quick:* | slow:* | kernels:* | address:* | thread:*) ! has_tier "$1" "$name" || return 0 ;;
        esac
    done
    return 1
}

build_all() {
    local units sources jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
    # Two builds of one folder at once would overwrite each other: the second waits.
    exec 9>"$OUT/lock"
    ! command -v flock >/dev/null || flock 9
    units=$(ls genie.h genie_net.c genie_cuda.c 2>/dev/null || true)
    sources=$(list_sources)
    case $sources in *tests/*) [ ! -f genie_cuda.c ] || units="$units genie_cuda.c:test" ;; esac
    export OUT FLAGS PIC CC OBJECTS LIBS
    export -f say is_stale make_unit compile link
    printf '%s\n' $units $sources | xargs -n 1 -P "$jobs" bash -eu -c 'compile "$1"' unit || broken=1
    [ -z "$sources" ] || printf '%s\n' "$sources" | xargs -n 1 -P "$jobs" bash -eu -c 'link "$1"' unit || broken=1
    archive && shared || die "the library did not build"
    [ "$command" = install ] || injection || die "genie_trace_cupti.so did not build"
    [ "$broken" = 0 ] || [ "$command" = test ] || die "the build failed"
    # examples/NAME is the last build without sanitizers.
    local program
    for program in "$OUT"/examples/*; do
        case $program in *[.*]*) ;; *) [ -n "${SAN:-}" ] || ln -f "$program" "examples/$(basename "$program")" ;; esac
    done
    exec 9>&-
}

# ---- tests ----------------------------------------------------------------------------------------------

# Scripts first: some of them wait for most of their time.
list_tests() {
    local source
    for source in tests/*_test.sh tests/*_test.c; do
        if [ -f "$source" ] && is_wanted "$source"; then echo "$source"; fi
    done
}

# run_test SOURCE: runs it in a home of its own. Leaves its output, and its line in NAME.result; tells both.
run_test() {
    local source=$1 name program status=0 last passed=0 failed=0 skipped=0 log
    name=$(basename "${source%.*}") log=$OUT/tests/$name.output
    case $source in *.c) program=("$OUT/tests/$name") ;; *) program=(bash "$source") ;; esac
    rm -rf "${home:?}/$name"; mkdir -p "$home/$name"
    local TIMEFORMAT='%0R s, %0U + %0S s of CPU'
    { time $personality timeout -k 10 "$limit" env GENIE_HOME="$home/$name" "${program[@]}" >"$log" 2>&1 </dev/null; } 2>"$log.time" || status=$?
    last=$(tail -n 1 "$log")
    if [ "$status" = 77 ] && grep -q '^SKIP: ' "$log"; then
        skipped=1
    elif [[ $last =~ $RESULT_LINE ]]; then
        read -r passed failed skipped <<<"${last//[^0-9 ]/}"
        [ "$status" = 0 ] || [ "$failed" != 0 ] || { failed=1; last="$last, but exit status $status"; }
    else
        failed=1 last="no result line, exit status $status"
    fi
    echo "$passed $failed $skipped $name" >"$log.result"
    printf -v last '%-24s %s (%s)\n' "$name" "$last" "$(tail -n 1 "$log.time")"
    [ "$failed" = 0 ] || last=$last$(sed "s/^/    /" "$log")$'\n'
    printf %s "$last"
}

# Adds up what the tests left; one that left nothing failed.
sum_tests() {
    local source name log counts line
    for source in "$@"; do
        name=$(basename "${source%.*}") log=$OUT/tests/$name.output
        read -r -a counts <"$log.result" || counts=(0 1 0)
        passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
        [ "${counts[1]}" = 0 ] || failures+=("$name")
        [ ! -f "$log" ] || while read -r line; do skips+=("$name: $line"); done < <(sed -n -E 's/^ *(skip|SKIP:) //p' "$log")
    done
}

# Thread sanitizer does not start where addresses are too random; without randomness it does.
choose_personality() {
    personality=
    [ "${SAN:-}" = thread ] || return 0
    printf 'int main(void) { return 0; }\n' >"$OUT/probe.c"
    $CC $FLAGS "$OUT/probe.c" -o "$OUT/probe"
    if ! "$OUT/probe" 2>/dev/null && setarch -R "$OUT/probe" 2>/dev/null; then personality='setarch -R'; fi
}

run_tests() {
    local passed=0 failed=$broken skipped=0 skips=() failures=() source sources home limit=1500 personality
    home=$ROOT/$OUT/tests/home
    [ "$broken" = 0 ] || failures+=("the build")
    choose_personality
    unset GENIE_DEVICES GENIE_THREADS GENIE_LOG
    export GENIE_BUILD=$ROOT/$OUT GENIE_LIBS=$LIBS CC SAN=${SAN:-}
    sources=$(list_tests)
    [ -n "$sources" ] || die "no test of that name"
    for source in $sources; do rm -f "$OUT/tests/$(basename "${source%.*}").output"{,.result}; done
    export home limit personality RESULT_LINE
    export -f run_test
    printf '%s\n' $sources | xargs -n 1 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" bash -eu -o pipefail -c 'run_test "$1"' test || true
    sum_tests $sources
    [ ${#skips[@]} = 0 ] || printf 'skipped: %s\n' "${skips[@]}"
    [ ${#failures[@]} = 0 ] || printf 'failed: %s\n' "${failures[@]}"
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# ---- fuzzing --------------------------------------------------------------------------------------------

# fuzz NAME [SECONDS]: new inputs are kept in build/fuzz/NAME, the one that failed as build/fuzz/NAME-crash-... or the like.
fuzz() {
    local name=${1:-} seconds=${2:-60} source folder other
    source=tests/fuzz/${name}_fuzz.c folder=build/fuzz/$name
    [ -f "$source" ] || die "no fuzz target '$name'; there are: $(cd tests/fuzz && ls ./*_fuzz.c | sed -E 's#./(.*)_fuzz.c#\1#' | xargs)"
    [[ $seconds =~ ^[0-9]+$ ]] || die "'$seconds' is no number of seconds"
    CC=clang OUT=build/fuzz
    mkdir -p "$folder" "tests/fuzz/corpus/$name"
    find_dependencies
    # The other unit is linked beside: the network, or the core with the memory that fuzz.h counts.
    other=genie_net.c
    ! grep -q '^#include "fuzz_net.h"' "$source" || other='-x c tests/fuzz/fuzz.h'
    FLAGS='-std=gnu11 -O1 -g -ffp-contract=off -pthread -Wall -Wextra -I. -fsanitize=address,undefined -fno-sanitize-recover=all'
    make_unit "$folder.o" "clang $FLAGS -DFUZZ_LIBFUZZER -fsanitize=fuzzer-no-link -MMD -MF $folder.o.d -c $source -o $folder.o"
    make_unit "${folder}_other.o" "clang $FLAGS -fsanitize=fuzzer-no-link -MMD -MF ${folder}_other.o.d -c $other -o ${folder}_other.o"
    make_unit build/fuzz/gpu.o "clang $FLAGS -fsanitize=fuzzer-no-link -MMD -MF build/fuzz/gpu.o.d -c genie_cuda.c -o build/fuzz/gpu.o"
    make_unit build/fuzz/shim.so "clang -std=gnu11 -O1 -g -fPIC -shared -MMD -MF build/fuzz/shim.so.d tests/cuda_shim.c -o build/fuzz/shim.so -ldl -lpthread"
    printf '%s: %s %s build/fuzz/gpu.o\n' "$folder.run" "$folder.o" "${folder}_other.o" >"$folder.run.d"
    make_unit "$folder.run" "clang $FLAGS -fsanitize=fuzzer $folder.o ${folder}_other.o build/fuzz/gpu.o -o $folder.run $LIBS"
    # GPUs of three architectures, whose kernels compute nothing; no kernel is kept from one input to the next.
    export GENIE_LIBCUDA=build/fuzz/shim.so GENIE_NVRTC=build/fuzz/shim.so GENIE_SHIM_EMPTY=1 GENIE_SHIM_DEVICES=3 GENIE_SHIM_ARCH=60,80,90
    export GENIE_CUDA_KERNELS=0 GENIE_CACHE=build/fuzz/none/none GENIE_CUBLASLT=0 GENIE_CUDA_TUNE=0 GENIE_MEASURE=0
    FUZZ_SEEDS=$folder "$folder.run" 2>/dev/null
    ASAN_OPTIONS=allocator_may_return_null=1 "$folder.run" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384 \
        -artifact_prefix="$folder-" -print_final_stats=1 "$folder" "tests/fuzz/corpus/$name"
}

# ---- reading --------------------------------------------------------------------------------------------

# split FILE: build/split/NAME/NN-TAG.EXTENSION, a file for what stands before the first banner and one a section; together,
# in the order of their names, they are the file.
split() {
    local folder=build/split/${1%.*}
    rm -rf "$folder"
    mkdir -p "$folder"
    awk -v folder="$folder" -v extension="${1##*.}" '
        BEGIN { out = sprintf("%s/00-head.%s", folder, extension) }
        /^\/\* >>[a-z_]+( |$)/ { close(out); out = sprintf("%s/%02d-%s.%s", folder, ++n, substr($2, 3), extension) }
        { print >out }' "$1"
}

split_all() {
    local file
    for file in genie.h genie_cuda.c genie_net.c; do [ ! -f "$file" ] || split "$file"; done
    wc -l build/split/*/*
}

# ---- install, clean -------------------------------------------------------------------------------------

version() { sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h; }

check_install() {
    [ -z "${SAN:-}" ] || die "a build with sanitizers is not installed"
    case ${PREFIX:-/} in /*) ;; *) die "PREFIX must begin with /: $PREFIX" ;; esac
}

install_all() {
    local prefix=${PREFIX:-/usr/local} to=${DESTDIR:-}${PREFIX:-/usr/local} folder="" shared; shared=$(shared_name)
    mkdir -p "$to/include" "$to/lib/pkgconfig" "$to/bin" "$to/share/genie"
    install -m 644 genie.h "$to/include/"
    install -m 644 genie.h genie_net.c LICENSE "$to/share/genie/"
    [ ! -f genie_cuda.c ] || install -m 644 genie_cuda.c "$to/share/genie/"
    install -m 644 "$OUT/libgenie.a" "$to/lib/"
    if has_shared; then
        install -m 755 "$OUT/libgenie.so" "$to/lib/$shared"
        ln -sf "$shared" "$to/lib/libgenie.so"
    fi
    install -m 755 "$OUT/examples/genie_serve" "$to/bin/"
    if [ -d "$DEPS/usr" ]; then   # unpacked static libraries are of no use to others where they are
        mkdir -p "$to/lib/genie"
        find "$DEPS"/usr/lib \( -name 'libmbed*.a' -o -name libzstd.a \) -exec install -m 644 {} "$to/lib/genie/" \;
        folder='-L${libdir}/genie '
    fi
    write_pc "$prefix" "$folder" >"$to/lib/pkgconfig/genie.pc"
    say "installed under $to$(! has_shared || echo '; programs find libgenie.so there after ldconfig, if its folder is one of those that it reads')"
}

# write_pc PREFIX FOLDER_FLAG
write_pc() {
    cat <<TEXT
prefix=$1
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: genie
Description: tensor programs on GPUs that sit elsewhere
Version: $(version)
Cflags: -I\${includedir}
$(if has_shared; then printf 'Libs: -L${libdir} -lgenie\nLibs.private: %s' "$2$LIBS"; else printf 'Libs: -L${libdir} -lgenie %s' "$2$LIBS"; fi)
TEXT
}

clean_all() {
    local source
    for source in examples/*.c; do rm -f "${source%.c}"; done
    rm -f examples/genie_trace_cupti.so
    rm -rf build
}

main() {
    parse_arguments "$@"
    if [ "$command" = clean ]; then clean_all; exit 0; fi
    if [ "$command" = split ]; then split_all; exit 0; fi
    if [ "$command" = fuzz ]; then fuzz "${names[@]+"${names[@]}"}"; exit 0; fi
    [ "$command" != install ] || check_install
    choose_folder
    find_dependencies
    choose_flags
    build_all
    case $command in
        test) run_tests ;;
        install) install_all ;;
    esac
}

main "$@"
