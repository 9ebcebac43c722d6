#!/bin/sh
# Fuzzes every parser under AddressSanitizer and UBSan, FUZZ_SECONDS each (10).
#
#     tests/fuzz.sh [ENTRY..]              all entries, or these; `build-fuzz/tests/fuzz` lists them
#     tests/fuzz.sh add ENTRY FILE..       more seeds for an entry
#
# With clang, libFuzzer looks for input that reaches new code; without, fuzz.c has a mutation loop of its own. Both
# start from the seeds in tests/fuzz/ENTRY.tar, which are unpacked into build-fuzz/seeds/ENTRY. Input that breaks
# something is kept in build-fuzz/found/; to try it again: build-fuzz/tests/fuzz ENTRY FILE -runs=1.
#
# To add a seed (an input that once broke something, or that shows the fuzzer a new form): `tests/fuzz.sh add json
# FILE`, and commit tests/fuzz/json.tar. Each seed is named by its SHA-1, as libFuzzer names them; at most 8192 bytes
# are read. Adding needs GNU tar, which writes the same archive for the same seeds. A new entry needs a line in fuzz.c
# and its name below.
#
# Then the verdicts of the reference library `safetensors` are compared with ours (safetensors_verdicts.py), if
# REFERENCE_PYTHON (python3) has it.
set -u
: "${FUZZ_SECONDS:=10}" "${MAKE:=make}" "${REFERENCE_PYTHON:=python3}"
build=build-fuzz

unpack() { # the seeds of an entry
    rm -rf "$build/seeds/$1"
    mkdir -p "$build/seeds/$1" && { [ ! -e "tests/fuzz/$1.tar" ] || tar -xf "tests/fuzz/$1.tar" -C "$build/seeds/$1"; }
}

if [ "${1-}" = add ]; then
    [ $# -ge 3 ] || { echo "usage: tests/fuzz.sh add ENTRY FILE.." >&2; exit 2; }
    root=$(dirname "$0")/.. entry=$2
    shift 2
    (cd "$root" && unpack "$entry") || exit 1
    for file; do
        cp "$file" "$root/$build/seeds/$entry/$(sha1sum <"$file" | cut -c 1-40)" || exit 1
    done
    cd "$root/$build/seeds/$entry" && chmod 644 -- * && ls | LC_ALL=C sort |
        tar --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "../../../tests/fuzz/$entry.tar" -T -
    exit
fi

cd "$(dirname "$0")/.." || exit 1
checks="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
mkdir -p $build/found
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p == 0 && n == 1; }' >$build/try.c
if clang -fsanitize=fuzzer,address -o $build/try $build/try.c 2>/dev/null; then
    set_up="CC=clang FUZZER=-fsanitize=fuzzer"
    checks="$checks -fsanitize=fuzzer-no-link"
else
    echo "clang's libFuzzer is missing: plain mutations"
    set_up=
    checks="$checks -DPLAIN"
fi
# shellcheck disable=SC2086
$MAKE -s BUILD=$build KERNELS=-fno-sanitize=all EXTRA="$checks" $set_up $build/tests/fuzz \
    $build/tests/safetensors_verdicts || exit 1

passed=0 failed=0 skipped=0 total=0
[ $# -gt 0 ] || set -- json safetensors index slice number config generation tokenizer vocab template text jsonl \
    options journal patch
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1"
for entry; do
    unpack "$entry" || exit 1
    new=$(mktemp -d) || exit 1 # where libFuzzer writes what it finds worth keeping
    $build/tests/fuzz "$entry" -max_total_time="$FUZZ_SECONDS" -max_len=8192 -malloc_limit_mb=256 -timeout=60 \
        -print_final_stats=1 -artifact_prefix=$build/found/"$entry"- "$new" "$build/seeds/$entry" >"$new.log" 2>&1
    code=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$new.log")
    total=$((total + ${runs:-0}))
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "$entry: ${runs:-0} inputs"
    else
        failed=$((failed + 1))
        echo "$entry: exit $code"
        tail -n 60 "$new.log"
    fi
    rm -rf "$new" "$new.log"
done
if "$REFERENCE_PYTHON" -c 'import safetensors' 2>/dev/null; then
    if VERDICTS=$build/tests/safetensors_verdicts "$REFERENCE_PYTHON" tests/safetensors_verdicts.py; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
else
    echo "skipped: no Python with the reference library safetensors (REFERENCE_PYTHON)"
    skipped=$((skipped + 1))
fi
echo "$total inputs"
echo "fuzz: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
