#!/bin/sh
# The layout of the source:
#
#  - Arrows: which module may include which. X.c, X.h and the folder X/ are one module. No two files include each other,
#    not even by a detour; an internal header is for its own module.
#  - A .c file begins with its own header, a header with base/base.h or with a header that does.
#  - Only run.c and commands/ print or end the program.
#  - fail() has one definition; feature macros and FP_CONTRACT stand in base/base.h only.
#  - At the top level lies nothing else, and what README's "Reading along" points at is where it says.
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "rooms: $*"; }

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
files=$(ls ./*.[ch] ./*/*.[ch] | sed 's|^\./||' | grep -v '^tests/')

# ---- includes ----

# shellcheck disable=SC2086
awk '
BEGIN {
    below["base"] = ""
    below["kernels"] = below["json"] = "base"
    below["net"] = "kernels base"
    below["tokenizer"] = "json base"
    below["safetensors"] = "net json kernels base"
    below["checkpoint"] = "safetensors net json kernels base"
    below["generate"] = "net tokenizer json kernels base"
    below["server"] = "checkpoint generate tokenizer safetensors net json kernels base"
    below["commands"] = "server " below["server"]
    below["run"] = "commands " below["commands"]
}
function module_of(path) { sub(/[.\/].*/, "", path); return path }
function without_extension(path) { sub(/\.[ch]$/, "", path); return path }
function is_internal(path) { return path ~ /internal\.h$|lanes[a-z_]*\.h$|_kernels\.h$/ }
function verdict(good, words) { print good ? "good" : "bad " words }
FNR == 1 { first = 1; own[FILENAME] = 1 }
/^#include "/ {
    split($0, parts, "\"")
    header = parts[2]
    module = module_of(FILENAME)
    to = module_of(header)
    verdict(to == module || index(" " below[module] " ", " " to " "),
            FILENAME " includes " header ", but " module " may not use " to)
    if (is_internal(header))
        verdict(module == to, FILENAME " includes " header ", which is only for " to)
    else if (module != "tokenizer" || to != "tokenizer") # tokenizer.c and the files of tokenizer/ may call each other
        print "edge " without_extension(FILENAME) " " without_extension(header)
}
/^#include/ && first {
    first = 0
    begins[FILENAME] = /^#include "/ ? header : ""
}
END {
    for (file in own) {
        mine = without_extension(file) ".h"
        if (file == "base/base.h" || is_internal(file))
            continue
        if (file ~ /\.h$/)
            verdict(begins[file] != "", file " does not begin with a header of this program")
        else
            verdict(!(mine in own) || begins[file] == mine || is_internal(begins[file]),
                    file " begins with " begins[file] ", not with its own header")
    }
}' $files >"$work/includes"
passed=$((passed + $(grep -c '^good' "$work/includes")))
while read -r words; do
    [ -z "$words" ] || bad "$words"
done <<END
$(sed -n 's/^bad //p' "$work/includes")
END
circles=$(awk '$1 == "edge" && $2 != $3 { print $2, $3 }' "$work/includes" | tsort 2>&1 >/dev/null | sed 's/^tsort: //')
# shellcheck disable=SC2086
[ -z "$circles" ] && good || bad "files include each other in a circle:" $circles

# ---- the code, without comments and texts ----

# shellcheck disable=SC2086
awk -v quote="'" '
BEGIN { begin = "\"([^\"\\\\]|\\\\.)*\"|" quote "([^" quote "\\\\]|\\\\.)+" quote "|/\\*" }
FNR == 1 { inside = 0 }
{
    line = $0
    code = ""
    while (line != "") {
        if (inside) {
            end = index(line, "*/")
            inside = !end
            line = end ? substr(line, end + 2) : ""
        } else if (match(line, begin)) {
            code = code substr(line, 1, RSTART - 1)
            inside = substr(line, RSTART, 2) == "/*"
            code = code (inside ? " " : "\"\"")
            line = substr(line, RSTART + RLENGTH)
        } else {
            code = code line
            line = ""
        }
    }
    if (code ~ /[^ ]/)
        print FILENAME ":" FNR ":" code
}' $files >"$work/code"

only_in() { # only_in FILES PATTERN WORDS: both are extended regular expressions
    found=$(grep -E ":.*($2)" "$work/code" | grep -vE "^($1):")
    [ -z "$found" ] && good || bad "$3:
$found"
}
only_in 'run\.c|commands/[a-z_]*\.[ch]' \
    '(^|[^_[:alnum:]])(v?printf|puts|putchar|perror|exit|_exit|_Exit|quick_exit|abort)\(|stderr|stdout' \
    'only run.c and commands/ may print or end the program'
only_in 'base/base\.h' \
    '# *define +_[A-Z_]*SOURCE|# *define +(_FILE_OFFSET_BITS|_LARGEFILE|__BSD_VISIBLE)' \
    'a feature macro outside of base/base.h'
only_in 'base/base\.h' 'FP_CONTRACT|fp-contract|pragma GCC optimize' 'FP_CONTRACT is switched in base/base.h'
count=$(grep -cE ':(static )?int fail\(.*[^;]$' "$work/code")
[ "$count" -eq 1 ] && good || bad "fail() has $count definitions"

# ---- the top level, and what README points at ----

if git rev-parse >/dev/null 2>&1; then
    for name in $(git ls-files | sed 's|/.*||' | sort -u); do
        case $name in
        .ci | .clang-format | .gitignore | Makefile | README.md | download.sh | tests) good ;;
        base | kernels | tokenizer | generate | checkpoint | server | commands) good ;;
        run.c | safetensors.[ch] | net.[ch] | json.[ch] | tokenizer.[ch]) good ;;
        *) bad "$name does not belong at the top level" ;;
        esac
    done
else
    skipped=1
    echo "skipped: what lies at the top level: this is not a git checkout"
fi

# Rows of the form | ... | `name` | `file` |
names=$(sed -n '/^## Reading along/,/^## /s/^|.*| `\([^`]*\)` | `\([^`]*\)` |.*/\2 \1/p' README.md)
count=0
while read -r file name; do
    [ -n "$name" ] || continue
    count=$((count + 1))
    { [ -f "$file" ] && grep -qF -- "$name" "$file"; } && good || bad "README points at $name in $file, where it is not"
done <<END
$names
END
[ $count -ge 15 ] && good || bad "README's table \"Reading along\" has $count rows"

echo "rooms: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
