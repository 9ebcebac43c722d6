#!/bin/sh
# Which lines and branches the C tests reach: gcov's figures for each file. GOLDEN=DIR adds the larger reference data.
#
#     tests/coverage.sh [FILE..]      the lines of FILE that no test reaches are listed
set -u
: "${CC:=gcc}" "${MAKE:=make}" "${GCOV:=gcov}"
cd "$(dirname "$0")/.." || exit 1
build=build-coverage
programs=$(for t in tests/test_*.c; do echo "$build/${t%.c}"; done)
# shellcheck disable=SC2086
$MAKE -s BUILD=$build BIN=run-coverage CC="$CC" EXTRA="-O0 --coverage" LDFLAGS=--coverage run-coverage $programs || exit 1
find $build -name '*.gcda' -exec rm -f {} +
RUN=./run-coverage tests/all.sh $programs >$build/tests.log 2>&1
tail -n 1 $build/tests.log
mkdir -p $build/gcov
for source in *.c; do
    (cd $build/gcov && $GCOV -b -o .. "../../$source" 2>/dev/null) | awk -v f="$source" '
        $0 ~ "^File .*" f { on = 1 } on && /^Lines executed/ { lines = $0 } on && /^Taken at least once/ { branches = $0; exit }
        END { sub(/.*:/, "", lines); sub(/.*:/, "", branches); printf "%-24s lines %-16s branches %s\n", f, lines, branches }'
done
for source; do
    grep -n '#####' "$build/gcov/$(basename "$source").gcov"
done
exit 0
