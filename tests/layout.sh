#!/bin/sh
# The layout: which folder may include which (arrows point one way, between folders and between the files of one), who may
# print or exit, and that every name that README's "Reading along" points at stands where it says.
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "layout: $*"; }

# X.c, X.h and the folder X/ are one module.
module_of() {
    case $1 in
    */*) echo "${1%%/*}" ;;
    *) echo "${1%.*}" ;;
    esac
}

# The modules that a module may include, itself aside.
allowed() {
    case $1 in
    base) echo "" ;;
    json | kernels) echo "base" ;;
    net) echo "kernels base" ;;
    tokenizer) echo "json base" ;;
    safetensors) echo "net json kernels base" ;;
    checkpoint) echo "safetensors net json kernels base" ;;
    generate) echo "net tokenizer json kernels base" ;;
    server) echo "generate checkpoint tokenizer safetensors net json kernels base" ;;
    commands) echo "server checkpoint generate tokenizer safetensors net json kernels base" ;;
    run) echo "commands" ;;
    esac
}

files=$(ls ./*.[ch] ./*/*.[ch] | sed 's|^\./||' | grep -v '^tests/')
edges=$(mktemp) || exit 1
trap 'rm -f "$edges"' EXIT
for file in $files; do
    module=$(module_of "$file")
    for header in $(sed -n 's/^#include "\(.*\)"/\1/p' "$file"); do
        to=$(module_of "$header")
        case " $module $(allowed "$module") " in
        *" $to "*) good ;;
        *) bad "$file includes $header, but $module may not use $to" ;;
        esac
        case $header in
        *internal.h) [ "$module" = "$to" ] && good || bad "$file includes $header, which is $to's own" ;;
        esac
        # X.c and X.h are one node; an internal header is its module's own affair
        case $header in
        *internal.h | *_lanes.h | "${file%.*}".h) ;;
        *) echo "${file%.*} ${header%.*}" >>"$edges" ;;
        esac
    done
    # only run.c and commands/ print or end the program
    case $module in
    run | commands) ;;
    *)
        if grep -nE '(^|[^_a-z])(printf|puts|perror|exit|_exit|abort)\(|stderr' "$file" | grep -vE '^[0-9]+: *\*'; then
            bad "$file prints or exits"
        else
            good
        fi
        ;;
    esac
done
# tokenizer.c and the files of tokenizer/ may call each other
circles=$(sed 's|tokenizer/[a-z_]*|tokenizer|g' "$edges" | awk '$1 != $2' | tsort 2>&1 >/dev/null)
[ -z "$circles" ] && good || bad "files include each other in a circle:" $circles

# what stands at the top level
for name in *; do
    case $name in
    Makefile | README.md | download.sh | tests | base | kernels | tokenizer | generate | checkpoint | server | commands) good ;;
    run.c | safetensors.[ch] | net.[ch] | json.[ch] | tokenizer.[ch]) good ;;
    *) ! git ls-files --error-unmatch "$name" >/dev/null 2>&1 && good || bad "$name has no place at the top level" ;;
    esac
done

# "Reading along": rows of the form | ... | `name` | `file` |
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

echo "layout: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
