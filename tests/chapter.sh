#!/bin/sh
# The code that the book's chapter shows is what runs: with the default weights, breakpoints on its functions are hit
# as often as the text says, once for the whole, once for each tensor outside of the layers, once for each kind of
# tensor in them. Needs gdb, and a program with debugging information.
#
#     RUN=./run tests/chapter.sh
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
demo=$(cd "$(dirname "$0")/demo" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

finish() { # finish SKIPPED [why]
    [ $# -eq 1 ] || echo "skipped: $2"
    echo "chapter: $passed passed, $failed failed, $1 skipped"
    [ $failed -eq 0 ]
    exit
}

hits() { # hits WEIGHTS: run the program, and note each breakpoint that is hit
    gdb -nx -batch -x "$work/commands" --args "$RUN" generate "Once upon" -m "$demo" -n 1 --greedy -q -w "$1" \
        >"$work/hits" 2>&1 </dev/null
}

is() { # is WEIGHTS FUNCTION COUNT
    count=$(grep -c "^hit $2\$" "$work/hits")
    if [ "$count" -eq "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "chapter: -w $1: $2() was called $count times, expected $3"
    fi
}

command -v gdb >/dev/null 2>&1 || finish 1 "there is no gdb"
[ -z "${EMULATOR-}" ] || finish 1 "an emulator runs the program"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # the leak sanitizer needs ptrace for itself
echo "set breakpoint pending off" >"$work/commands"
for function in safetensors_load_weights safetensors_load_float load_layered forward; do
    printf 'break %s\ncommands\nsilent\nprintf "\\nhit %s\\n"\ncontinue\nend\n' $function $function >>"$work/commands"
done
echo run >>"$work/commands"

hits f32
grep -q '^hit forward$' "$work/hits" ||
    finish 1 "gdb cannot stop this program: $(grep -v '^Breakpoint' "$work/hits" | tail -n 1)"
is f32 safetensors_load_weights 1
is f32 safetensors_load_float 2 # the embedding, which is the head as well, and the norm
is f32 load_layered 12
hits bf16
is bf16 safetensors_load_weights 0
is bf16 load_layered 0
finish 0
