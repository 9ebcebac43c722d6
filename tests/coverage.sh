#!/bin/sh
# Which lines and branches of each module its own tests reach, among them calls that fail (failing_calls.h). It prints
# gcov's figures, a line for each file. Only what a test program runs itself counts, and what test_crash does with
# ./run; the scripts' runs don't. GOLDEN=DIR adds the larger reference data. Exit 1 if something does not build or a
# test fails.
#
#     tests/coverage.sh [FILE..]      lists the lines of each FILE that no test reaches, too
#
# With CC=clang set GCOV="llvm-cov gcov".
set -u
: "${CC:=gcc}" "${MAKE:=make}" "${GCOV:=gcov}"
cd "$(dirname "$0")/.." || exit 1
build=build-coverage
if ! command -v "${GCOV%% *}" >/dev/null; then
    echo "coverage: there is no ${GCOV%% *} on this machine; it comes with gcc" >&2
    exit 1
fi

# files of a module: its tests
modules="base/*.c: base unicode threads sha256
json.c: json
kernels/*.c: matmul attention
net.c: net
safetensors.c: safetensors weights
checkpoint/*.c: checkpoint weights number slice edit split crash net
tokenizer.c tokenizer/*.c: tokenizer
generate/*.c: sample"

figures() { # figures FILE: its line
    $GCOV -b -n -o "$build/${1%.c}.o" "$1" 2>/dev/null | awk -v f="$1" '
        $0 == "File \047" f "\047" { on = 1 }
        on && /^Lines executed/ { lines = $0 }
        on && /^Taken at least once/ { branches = $0; exit }
        END {
            if (!sub(/.*:/, "", lines)) lines = "none"
            if (!sub(/.*:/, "", branches)) branches = "none"
            printf "%-26s lines %-18s branches %s\n", f, lines, branches
        }'
}

programs=$(echo "$modules" | sed 's/.*: //' | tr ' ' '\n' | sort -u | sed "s|^|$build/tests/test_|")
# shellcheck disable=SC2086
$MAKE -s BUILD=$build BIN=run-coverage CC="$CC" EXTRA="-O0 --coverage" run-coverage $programs || exit 1
export RUN=./run-coverage
failed=0
while IFS=: read -r files tests; do
    find $build -name '*.gcda' -exec rm -f {} +
    for test in $tests; do
        if ! $build/tests/test_"$test" </dev/null >$build/tests.log 2>&1; then
            grep 'failed' $build/tests.log
            echo "coverage: test_$test fails"
            failed=1
        fi
    done
    for file in $files; do
        figures "$file"
        for wanted; do
            [ "$wanted" != "$file" ] || $GCOV -t -o "$build/${file%.c}.o" "$file" 2>/dev/null | grep '#####'
        done
    done
done <<END
$modules
END
exit $failed
