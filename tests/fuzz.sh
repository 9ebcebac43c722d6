#!/bin/sh
# Fuzzes every parser under AddressSanitizer and UBSan, FUZZ_SECONDS each (10), from the small corpus in tests/fuzz/.
#
#     tests/fuzz.sh [ENTRY..]
#
# With clang it is libFuzzer that looks for input that reaches new code; without, a mutation loop of our own. Input
# that breaks something is kept in build-fuzz/found/. REFERENCE_PYTHON names a Python with the reference library
# `safetensors`: its verdicts are then compared with ours (tests/safetensors_verdicts.py).
set -u
: "${FUZZ_SECONDS:=10}" "${MAKE:=make}" "${REFERENCE_PYTHON:=python3}"
cd "$(dirname "$0")/.." || exit 1
build=build-fuzz
checks="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
mkdir -p $build/found
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p == 0 && n == 1; }' >$build/try.c
if clang -fsanitize=fuzzer,address -o $build/try $build/try.c 2>/dev/null; then
    $MAKE -s BUILD=$build KERNELS=-fno-sanitize=all CC=clang EXTRA="$checks -fsanitize=fuzzer-no-link" LDFLAGS=-fsanitize=fuzzer \
        $build/tests/fuzz && $MAKE -s BUILD=$build KERNELS=-fno-sanitize=all CC=clang EXTRA="$checks -fsanitize=fuzzer-no-link" \
        $build/tests/safetensors_verdicts || exit 1
else
    echo "clang's libFuzzer is missing: plain mutations"
    $MAKE -s BUILD=$build KERNELS=-fno-sanitize=all EXTRA="$checks -DPLAIN" $build/tests/fuzz $build/tests/safetensors_verdicts || exit 1
fi

passed=0 failed=0 skipped=0 total=0
[ $# -gt 0 ] || set -- json safetensors index slice number config generation tokenizer vocab template text jsonl options \
    journal patch
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1"
for entry; do
    new=$(mktemp -d) || exit 1
    $build/tests/fuzz "$entry" -max_total_time="$FUZZ_SECONDS" -max_len=8192 -malloc_limit_mb=256 -timeout=60 \
        -print_final_stats=1 -artifact_prefix=$build/found/"$entry"- "$new" "tests/fuzz/$entry" >"$new.log" 2>&1
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
    if VERDICTS=$build/tests/safetensors_verdicts "$REFERENCE_PYTHON" tests/safetensors_verdicts.py; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
else
    echo "skipped: no Python with the reference library safetensors (REFERENCE_PYTHON)"
    skipped=$((skipped + 1))
fi
echo "$total inputs"
echo "fuzz: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
