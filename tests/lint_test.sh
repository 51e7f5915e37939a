#!/usr/bin/env bash
# The house rules that a script can check: layout of the repository, sections and names of genie.h, size of examples and functions.
# Tier: quick
. "$(dirname "$0")/script.sh"
sections='api ext config base platform trace types graph ops meaning layout schedule explain wire cpu multi client server context public compose pages'
library_files=$(ls genie.h genie_net.c genie_cuda.c 2>/dev/null)
longest_function=60   # lines; about 40 is the rule, text of kernels is longer

files() {
    if git -c safe.directory="$ROOT" rev-parse --git-dir >/dev/null 2>&1; then
        git -c safe.directory="$ROOT" ls-files -co --exclude-standard
    else
        find . -type f -not -path './build/*' -not -path './.git/*' | sed 's#^\./##'
    fi
}
sources() { files | grep -E '\.(c|h|cu)$'; }
texts() { files | grep -vE '^LICENSE$|^tests/(fuzz|golden)/|^tests/lint_test\.sh$'; }

# none PATTERN FILE ...: no line matches; prints those that do.
none() {
    local pattern=$1; shift
    [ $# -gt 0 ] || return 1
    ! grep -nHIE -- "$pattern" "$@"
}

top_level_is_the_listed_one() {
    local entry ok=0 entries
    entries=$(files | cut -d/ -f1 | sort -u)
    for entry in $entries; do
        case $entry in
            genie.h | genie_net.c | genie_cuda.c | examples | tests | bench | build.sh | README.md | LICENSE | .*) ;;
            *) echo "not in the layout: $entry"; ok=1 ;;
        esac
    done
    for entry in genie.h genie_net.c examples tests build.sh README.md LICENSE; do
        grep -qx "$entry" <<<"$entries" || { echo "missing: $entry"; ok=1; }
    done
    return $ok
}

section_banners_stand_in_order() {
    local found
    found=$(sed -n -E 's#^/\* >>([a-z]+).*#\1#p' genie.h | xargs)
    printf 'expected %s\nfound    %s\n' "$sections" "$found"
    [ "$found" = "$sections" ]
}

# code FILE [SECTION ...]: the text of these sections, or of all, without comments and the contents of strings, with line numbers.
code() {
    local file=$1; shift
    awk -v wanted=" $* " -v all=$(($# == 0)) -v file="$file" '
        /^\/\* >>[a-z]+/ { name = $2; sub(/^>>/, "", name); inside = index(wanted, " " name " ") }
        {
            line = $0
            gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
            out = ""
            while (line != "") {
                if (comment) {
                    end = index(line, "*/")
                    if (!end) { line = ""; break }
                    line = substr(line, end + 2); comment = 0
                } else {
                    begin = index(line, "/*"); slashes = index(line, "//")
                    if (slashes && (!begin || slashes < begin)) { out = out substr(line, 1, slashes - 1); break }
                    if (!begin) { out = out line; break }
                    out = out substr(line, 1, begin - 1); line = substr(line, begin + 2); comment = 1
                }
            }
            if (inside || all) print file ":" NR ": " out
        }' "$file"
}
section() { code genie.h "$@"; }

# What a user may call: the functions declared in api and ext.
declared_functions() {
    printf '#define GENIE_EXT\n#include "genie.h"\n' | $CC -E -P -I. - | grep -oE '\bgn_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u >"$WORK/called"
    printf '#define GENIE_EXT\n#include "genie.h"\n' | $CC -E -P -I. - | tr '\n' ' ' | tr ';{}' '\n' |
        grep -oE '^ *extern [^(]*\bgn_[a-z0-9_]+ *\(' | grep -oE 'gn_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u
}

private_sections=$(sed -e 's/^api ext //' -e 's/ public compose pages$//' <<<"$sections")

# functions_of SECTION ...: those it defines for others; a head begins at the left margin and its line does not end the statement.
functions_of() {
    section "$@" | sed -n -E '/: static /d; /;[ ]*$/d; s/[{].*//; s/^genie\.h:[0-9]+: [A-Za-z].*[ *](gn_[a-z0-9_]+)\(.*$/\1/p' | grep -v '^gn__' | sort -u
}

# Declared functions are public, but for the few services that a section of the core defines for all (gn_alloc, gn_logf…);
# builders always are, also by the macro that adds file and line.
public_functions() {
    functions_of $private_sections | grep -v '_at$' >"$WORK/services"
    declared_functions | sort -u | comm -23 - "$WORK/services" | sed -E 'p; s/_at$//' | sort -u
}

private_code_calls_nothing_public() {
    local names bad
    public_functions >"$WORK/public"
    names=$(wc -l <"$WORK/public")
    echo "$names public functions; services: $(xargs <"$WORK/services")"
    bad=$(section $private_sections | awk '
        NR == FNR { public[$1] = 1; next }
        { text = $0
          while (match(text, /[A-Za-z_0-9]+[ ]*\(/)) {
              name = substr(text, RSTART, RLENGTH - 1); sub(/ +$/, "", name)
              if (name in public) { print; break }
              text = substr(text, RSTART + RLENGTH) } }' "$WORK/public" -)
    echo "$bad"
    [ "$names" -gt 100 ] && [ -z "$bad" ]
}

# upward_uses FILE: calls and addresses of functions that a later section defines; macros, declarations and vtables aside.
upward_uses() {
    awk '
        /^\/\* >>[a-z]+/ { name = $0; sub(/^\/\* >>/, "", name); sub(/[^a-z].*/, "", name); n++; section[n] = name; first[n] = FNR }
        END { for (i = 1; i <= n; i++) print first[i], section[i] }' "$1" >"$WORK/banners"
    code "$1" | awk -v banners="$WORK/banners" '
        BEGIN { while ((getline line < banners) > 0) { split(line, part, " "); n++; first[n] = part[1]; title[n] = part[2] } }
        {
            split($1, place, ":"); row = place[2] + 0
            while (now < n && first[now + 1] <= row) now++
            text = $0; sub(/^[^ ]* /, "", text)
            if (text ~ /^#/ || macro) { macro = text ~ /\\$/; next }
            rows[++count] = row; texts[count] = text; of[count] = now
            if (text !~ /^[A-Za-z].*\(/ || text ~ /;[ ]*$/ || text ~ /^typedef/ || text ~ /=/ && text !~ /[)] *[{]/) next
            name = text; sub(/\(.*/, "", name); sub(/ *$/, "", name); sub(/.*[^A-Za-z_0-9]/, "", name)
            if (name ~ /^[a-z]/ && !(name in home)) home[name] = now
        }
        END {
            for (i = 1; i <= count; i++) {
                text = texts[i]
                if (text ~ /^(static|extern|GN_API|GN__[A-Z]+) .*\);[ ]*$/) continue      # a declaration
                while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
                    name = substr(text, RSTART, RLENGTH)
                    before = RSTART > 1 ? substr(text, RSTART - 1, 1) : ""
                    text = substr(text, RSTART + RLENGTH)
                    if (before == "." || before == ">" || !(name in home) || home[name] <= of[i] || text !~ /^ *[(,);]/) continue
                    print title[of[i]] " uses " name " of " title[home[name]] ", line " rows[i]
                }
            }
            print count " lines read" > "/dev/stderr"
        }'
}

# Uses that are allowed, each with its reason: FILE SECTION NAME.
upward_allowed=''

sections_use_only_those_above_them() {
    local file section name rest ok=0
    for file in genie.h genie_net.c genie_cuda.c; do
        upward_uses "$file" 2>"$WORK/read" >"$WORK/upward"
        [ "$(cut -d' ' -f1 <"$WORK/read")" -gt 1000 ] || { echo "$file was not read"; ok=1; }
        while read -r section _ name rest; do
            grep -qx "$(basename "$file") $section $name" <<<"$upward_allowed" && continue
            echo "$file: $section uses $name $rest"; ok=1
        done <"$WORK/upward"
    done
    return $ok
}

declared_functions_are_defined() {
    declared_functions >"$WORK/declared"
    nm -g --defined-only "$BUILD/libgenie.a" | awk 'NF == 3 { print $3 }' | sort -u >"$WORK/defined"
    echo "declared and not defined:"
    comm -23 "$WORK/declared" "$WORK/defined" | tee "$WORK/undefined"
    [ "$(wc -l <"$WORK/declared")" -gt 100 ] && [ ! -s "$WORK/undefined" ]
}

library_exports_only_gn_names() {
    nm -g --defined-only "$BUILD/libgenie.a" | awk 'NF == 3 { n++; if ($3 !~ /^gn_/) { print $3; bad = 1 } } END { exit bad || n < 100 }'
}

examples_are_short() {
    local source lines ok=0
    for source in examples/*.c; do
        case $source in examples/genie_serve.c | examples/remote_mlp.c | examples/remote_decode.c | examples/chat.c | examples/serve_text.c | examples/vision.c | examples/vqa.c | examples/recommend.c | examples/diffusion.c | examples/speech.c | examples/trace/*) continue ;; esac
        lines=$(wc -l <"$source")
        [ "$lines" -lt 100 ] || { echo "$source: $lines lines"; ok=1; }
    done
    return $ok
}

examples_name_their_command() {
    local source ok=0
    for source in examples/*.c; do
        head -n 12 "$source" | grep -qF "./${source%.c}" || { echo "$source: the first comment does not say how to run it"; ok=1; }
        head -n 1 "$source" | grep -q '^/\*' || { echo "$source: does not begin with a comment"; ok=1; }
    done
    return $ok
}

# A head begins at the margin and may go on over several lines, until one that ends with a brace.
functions_fit_a_screen() {
    # shellcheck disable=SC2046 # the list is words
    awk -v limit="$longest_function" '
        FNR == 1 { head = start = 0 }
        /^[A-Za-z_]/ { head = /^[^;={]*\(/ ? FNR : 0; if (head) name = $0 }
        /^(#|$)/ || /;[ \t]*$/ { if (!start) head = 0 }
        head && !start && /\{[ \t]*$/ { start = head }
        /^\}/ {
            if (start && FNR - start > limit) { print FILENAME ":" start ": " FNR - start " lines: " name; bad = 1 }
            start = head = 0
        }
        END { exit bad }' $(sources)
}

lines_fit_120_columns() {
    # shellcheck disable=SC2046 # the list is words
    LC_ALL=C.UTF-8 none '^.{121,}' $(sources | grep -v '\.cu$')
}

# The command of clang-format 14, if it is here: what another version makes of the same text differs.
formatter() {
    local command
    for command in clang-format-14 clang-format; do
        has $command && [[ $($command --version) =~ version\ 14\. ]] && echo $command && return
    done
    return 1
}

sources_are_formatted() {
    sources | grep -v '\.cu$' | xargs -P 2 -n 8 "$(formatter)" --dry-run -Werror 2>&1 | grep error: | cut -d: -f1 | sort | uniq -c | tee "$WORK/unformatted"
    [ ! -s "$WORK/unformatted" ]
}

op_rows_are_complete() {
    cat >"$WORK/rows.c" <<'TEXT'
#include "genie.h"
#include <stdio.h>
#include <string.h>
static int row_is_complete(int i)
{
    gn_op_info a, b;
    memset(&a, 0, sizeof a);
    int ok = gn_get_op(i, &a) == GN_OK && a.name && a.name[0] && a.wire && a.arity >= -1 && a.tolerance >= 0;
    ok = ok && (a.dtypes || a.kind == GN_CLASS_LEAF || a.kind == GN_CLASS_GENERATOR) && (a.dtypes & 1) == 0;
    ok = ok && (a.kind != GN_CLASS_SCALAR || (a.text && a.text[0] && a.arity >= 1));
    ok = ok && (a.kind != GN_CLASS_LEAF || a.arity == 0) && (a.dtypes >> GN_DTYPE__COUNT) == 0;
    for (int j = 0; ok && j < i; j++) ok = gn_get_op(j, &b) == GN_OK && a.wire != b.wire && strcmp(a.name, b.name) != 0;
    if (!ok) printf("row %d, %s: a column is missing or its id or name is taken\n", i, a.name ? a.name : "(no name)");
    return ok;
}
int main(void)
{
    gn_op_info past;
    int n = gn_op_count(), ok = n > 60 && gn_get_op(n, &past) == GN_BAD_ARGUMENT && gn_get_op(-1, &past) == GN_BAD_ARGUMENT;
    printf("%d rows\n", n);
    for (int i = 0; i < n; i++) ok = row_is_complete(i) && ok;
    return !ok;
}
TEXT
    $CC ${SAN:+-fsanitize=$SAN} -I. "$WORK/rows.c" "$BUILD/libgenie.a" -o "$WORK/rows" $LIBS && "$WORK/rows"
}

# ---- README and the heads of tests ----

test_files() { ls tests/*_test.c tests/*_test.sh tests/gpu_conformance.sh; }

# readme_section TITLE: its lines, without the heading.
readme_section() { awk -v title="## $1" '/^## / { inside = $0 == title; next } inside' README.md; }

tests_are_in_the_table() {
    test_files | sed -E 's#.*/##; s#\.[a-z]+$##' | sort >"$WORK/tests.there"
    readme_section 'Which test shows what' | grep '^|' | grep -oE '`[a-z0-9_]+`' | tr -d '`' | sort >"$WORK/tests.named"
    echo "< a test without a row in README's table 'Which test shows what', > a row without a test, or named twice:"
    diff "$WORK/tests.there" "$WORK/tests.named" && [ "$(wc -l <"$WORK/tests.there")" -gt 40 ]
}

# A test says once, in its first comment, in which runs it is: quick or slow, then any of the others.
tests_declare_their_tier() {
    local source ok=0 line
    for source in tests/*_test.c tests/*_test.sh; do
        line=$(head -n 30 "$source" | grep -E '^(#| \*) Tier:' | sed -E 's/ \*\/$//')
        [[ $line =~ ^(#|\ \*)\ Tier:\ (quick|slow)(\ kernels)?(\ address)?(\ thread)?$ ]] && [ "$(grep -c 'Tier:' <<<"$line")" = 1 ] && continue
        echo "$source: its first comment needs one line 'Tier: quick|slow [kernels] [address] [thread]', see ./build.sh --help; found: '$line'"
        ok=1
    done
    return $ok
}

# The table of switches holds each that the library reads, and no other.
switches_are_in_the_table() {
    # shellcheck disable=SC2086 # the list is words
    grep -hv 'TEST_SWITCH("' $library_files | awk '/^#ifdef GENIE_TEST/ { hidden = 1 } !hidden { print } /^#(else|endif)/ { hidden = 0 }' |
        grep -oE '"GENIE_[A-Z0-9_]+"' | tr -d '"' | grep -v '_$' | sort -u >"$WORK/switches.read"
    readme_section Switches | grep '^|' | cut -d'|' -f2 | grep -oE 'GENIE_[A-Z0-9_]+' | sort >"$WORK/switches.named"
    echo "< a switch without a row in README's table 'Switches', > a row without a switch, or named twice:"
    diff "$WORK/switches.read" "$WORK/switches.named" && [ "$(wc -l <"$WORK/switches.read")" -gt 30 ]
}

# No paragraph is longer than five lines, no line of one than 120 characters; tables, code and headings aside.
readme_paragraphs_are_short() {
    LC_ALL=C.UTF-8 awk '
        /^```/ { code = !code; n = 0; next }
        code || /^(\||#|$)/ { n = 0; next }
        /^- / { n = 0 }
        { n++; if (n == 6) { print "README.md:" NR ": a paragraph of more than five lines"; bad = 1 } }
        length($0) > 120 { print "README.md:" NR ": " length($0) " characters"; bad = 1 }
        END { exit bad }' README.md
}

# Sections of tasks: at most ten lines, blank ones aside.
readme_tasks_are_short() {
    local title lines ok=0
    for title in 'Run it on a server' 'Run it on a GPU' 'Use it in a C, C++ or CMake project' Train Decode 'Run a language model' 'See what it does'; do
        lines=$(readme_section "$title" | grep -c .)
        [ "$lines" -ge 3 ] && [ "$lines" -le 10 ] || { echo "README.md, '$title': $lines lines, 3 to 10 are right"; ok=1; }
    done
    return $ok
}

changes_begin_with_this_version() {
    local version first
    version=$(sed -n 's/^#define GN_VERSION "\(.*\)"/\1/p' genie.h)
    first=$(readme_section Changes | sed -n 's/^### //p' | head -n 1)
    echo "genie.h $version, README's newest change $first"
    [ -n "$version" ] && [ "$first" = "$version" ] && grep -q "version $version\$" <(head -n 1 genie.h) &&
        grep -qx "$(tr '.' ' ' <<<"$version")" <(sed -n -E 's/^#define GN_VERSION_(MAJOR|MINOR|PATCH) //p' genie.h | xargs)
}

# ---- what build.sh makes ----

sections_joined_are_the_files() {
    local file
    ./build.sh split >"$WORK/split" || return 1
    for file in $library_files; do
        cat "build/split/${file%.*}"/* | cmp - "$file" || return 1
        [ "$(find "build/split/${file%.*}" -type f | wc -l)" -ge 6 ] || { echo "few sections of $file"; return 1; }
    done
}

# Switches that only tests use are in the GPU executor that tests link, and not in the library.
test_switches_are_not_shipped() {
    local name names
    names=$({ grep -oE 'TEST_SWITCH\("GENIE_[A-Z0-9_]+"' genie_cuda.c
        awk '/^#ifdef GENIE_TEST/ { shown = 1 } shown { print } /^#(else|endif)/ { shown = 0 }' genie_cuda.c | grep -oE '"GENIE_[A-Z0-9_]+"'; } |
        grep -oE 'GENIE_[A-Z0-9_]+' | sort -u)
    xargs <<<"$names"
    [ "$(wc -l <<<"$names")" -ge 5 ] || return 1
    for name in $names gn_cuda_compile_collected; do
        ! grep -qaF "$name" "$BUILD/libgenie.a" || { echo "in libgenie.a: $name"; return 1; }
        [ ! -f "$BUILD/genie_cuda_test.o" ] || grep -qaF "$name" "$BUILD/genie_cuda_test.o" || { echo "not in genie_cuda_test.o: $name"; return 1; }
    done
}

# One that begins in another of its kind, or that never ends, makes slow code of whatever follows.
regions_of_optimisation_do_not_nest() {
    awk '/^GN__[A-Z]+_(BEGIN|END)$/ {
        split($1, word, "_"); begins = word[4] == "BEGIN"; n++
        if (open[word[3]] == begins) { print FILENAME ":" FNR ": " $1; bad = 1 }
        open[word[3]] = begins
    } END { for (kind in open) if (open[kind]) { print kind " never ends"; bad = 1 } exit bad || n < 20 }' genie.h
}

scripts_are_clean() {
    # shellcheck disable=SC2046 # the list is words
    shellcheck -S warning -x -P tests build.sh .ci/run $(files | grep '\.sh$')
}

# shellcheck disable=SC2046 # the lists are words
{
    check top_level_holds_what_the_layout_lists top_level_is_the_listed_one
    check sections_of_the_header_stand_in_order section_banners_stand_in_order
    check private_code_calls_no_public_function private_code_calls_nothing_public
    check declared_functions_are_all_defined declared_functions_are_defined
    check sections_use_only_those_above_them sections_use_only_those_above_them
    check exported_symbols_of_the_library_begin_with_gn library_exports_only_gn_names
    check rows_of_the_op_table_are_complete op_rows_are_complete
    check library_has_no_assert none '(^|[^_A-Za-z0-9])assert[(]|<assert\.h>' $library_files
    check library_includes_nothing_of_nvidia none '# *include *[<"](cuda|nvrtc|cublas|nvml)' $library_files
    check examples_use_the_public_api_alone none '\bgn__[a-z]|GENIE_EXT' $(sources | grep '^examples/')
    check examples_of_one_idea_are_under_100_lines examples_are_short
    check examples_begin_with_what_they_show_and_how_to_run examples_name_their_command
    check functions_of_all_sources_fit_a_screen functions_fit_a_screen
    check lines_of_all_sources_fit_120_columns lines_fit_120_columns
    check files_have_no_mark_of_unfinished_work none '\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b|[Nn]ot (yet )?[i]mplemented|\b[Pp]lace[h]older\b' $(texts)
    check files_have_no_path_of_a_machine_nor_package_host none '(/[w]ork/|/[h]ome/[a-z]|/[r]oot/|deb\.[d]ebian|[a]rchive\.ubuntu|[p]ypi\.org|[r]egistry\.)' $(texts)
    check tests_are_in_the_table_of_the_readme tests_are_in_the_table
    check tests_declare_their_tier tests_declare_their_tier
    check switches_are_in_the_table_of_the_readme switches_are_in_the_table
    check paragraphs_of_the_readme_are_short readme_paragraphs_are_short
    check tasks_of_the_readme_take_ten_lines readme_tasks_are_short
    check changes_in_the_readme_begin_with_this_version changes_begin_with_this_version
    check sections_written_apart_are_the_file sections_joined_are_the_files
    check regions_of_optimisation_in_the_header_do_not_nest regions_of_optimisation_do_not_nest
    check switches_for_tests_are_not_shipped test_switches_are_not_shipped
    check files_have_no_tab_nor_trailing_space none "$(printf '\t')|[ ]\$" $(texts)
}
if formatter >/dev/null; then
    check sources_are_as_clang_format_makes_them sources_are_formatted
else
    skip sources_are_as_clang_format_makes_them "no clang-format 14 here"
fi
if has shellcheck; then
    check scripts_pass_shellcheck scripts_are_clean
else
    skip scripts_pass_shellcheck "no shellcheck here"
fi
finish
