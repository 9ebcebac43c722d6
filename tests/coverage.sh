#!/bin/sh
# Which lines and branches of each room its own test programs reach, calls that fail (tests/failing_calls.h) included: a line of
# gcov's figures for each file. What scripts reach by running ./run does not count, but what test_crash does with it.
# GOLDEN=DIR adds the larger reference data. Exit 1 if something does not build or a test fails.
#
#     tests/coverage.sh [FILE..]      the lines of FILE that no test reaches are listed, too
#
# GCOV="llvm-cov gcov" goes with CC=clang.
set -u
: "${CC:=gcc}" "${MAKE:=make}" "${GCOV:=gcov}"
cd "$(dirname "$0")/.." || exit 1
build=build-coverage
if ! command -v "${GCOV%% *}" >/dev/null; then
    echo "coverage: there is no ${GCOV%% *} on this machine; it comes with gcc" >&2
    exit 1
fi

rooms="json: json
unicode: unicode
threads: threads
matmul: matmul attention
net: net
safetensors: safetensors
checkpoint: checkpoint ops crash
tokenizer: tokenizer
sample: sample"

files_of() {
    case $1 in
    matmul) echo matmul*.c attention.c ;;
    safetensors | checkpoint | tokenizer) echo "$1"*.c ;;
    *) echo "$1.c" ;;
    esac
}

figures() { # of a file
    $GCOV -b -n -o $build "$1" 2>/dev/null | awk -v f="$1" '
        $0 == "File \047" f "\047" { on = 1 }
        on && /^Lines executed/ { lines = $0 }
        on && /^Taken at least once/ { branches = $0; exit }
        END {
            if (!sub(/.*:/, "", lines)) lines = "none"
            if (!sub(/.*:/, "", branches)) branches = "none"
            printf "%-24s lines %-18s branches %s\n", f, lines, branches
        }'
}

programs=$(echo "$rooms" | sed 's/.*: //' | tr ' ' '\n' | sed "s|^|$build/tests/test_|")
# shellcheck disable=SC2086
$MAKE -s BUILD=$build BIN=run-coverage CC="$CC" EXTRA="-O0 --coverage" LDFLAGS=--coverage run-coverage $programs || exit 1
export RUN=./run-coverage
failed=0
while IFS=: read -r room tests; do
    rm -f $build/*.gcda
    for test in $tests; do
        if ! $build/tests/test_"$test" </dev/null >$build/tests.log 2>&1; then
            grep 'failed' $build/tests.log
            echo "coverage: test_$test fails"
            failed=1
        fi
    done
    for file in $(files_of "$room"); do
        figures "$file"
        for wanted; do
            [ "$wanted" != "$file" ] || $GCOV -t -o $build "$file" 2>/dev/null | grep '#####'
        done
    done
done <<END
$rooms
END
exit $failed
