#!/bin/sh
# Memory runs out, files cannot be read or written, threads are refused; a network disk goes away, reads come short,
# the model is cut or replaced while it is used. This happens at each call in turn, in the functions of each module
# (failing_allocations.c) and in the whole program (preload_faults.c). Each run must end with exit 0 and the right
# answer, or with one sentence and exit 1 (diff: 2), never by a signal. After an error nothing is on standard output
# with --json, and no half-written file is left.
#
#     RUN=./run tests/fault_injection.sh [MOST]
#
# MOST is how many faults of one kind are tried in one command (150); where there are more calls, the faults are
# spread over them. OBJECTS names the modules' object files, if they are built already.
set -u
: "${RUN:=./run}" "${CC:=cc}"
most=${1:-150}
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
cd "$(dirname "$0")/.." || exit 1
demo=$(pwd)/tests/demo
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export LC_ALL=C HOME="$work/home"
passed=0 failed=0 skipped=0 faults=0

flags="-std=c11 -O1 -g -I."
modules=$(ls ./*.c base/*.c kernels/*.c tokenizer/*.c generate/*.c checkpoint/*.c | grep -v '^\./run\.c$')
# shellcheck disable=SC2086
if $CC $flags -o "$work/allocations" tests/failing_allocations.c ${OBJECTS:-$modules} -lm -lpthread; then
    "$work/allocations" >"$work/out" 2>&1
    code=$?
    grep -v '^failing_allocations:' "$work/out"
    if [ $code -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
else
    failed=$((failed + 1))
fi

# shellcheck disable=SC2086
if ! $CC $flags -shared -fPIC -o "$work/faults.so" tests/preload_faults.c 2>"$work/err" ||
    ! LD_PRELOAD="$work/faults.so" FAULT_COUNT="$work/count" "$RUN" --version >/dev/null 2>&1 ||
    [ ! -s "$work/count" ]; then
    echo "skipped: LD_PRELOAD has no effect on this build"
    echo "fault_injection: $passed passed, $failed failed, $((skipped + 1)) skipped"
    [ $failed -eq 0 ]
    exit
fi

fresh() { # make a new folder for the command to work in
    rm -rf "$work/box"
    mkdir "$work/box"
    cd "$work/box" || exit 1
    cp "$demo"/*.json "$demo/model.safetensors" .
    cp "$work/other.safetensors" other
}

complain() {
    echo "$command: $group call $at of $calls: $1"
    head -n 3 "$work/err"
    good=0
}

answer() { # what the last command printed and wrote, without times and free memory
    sed 's/"stats".*//; s/"memory_available":[0-9]*//' "$work/out"
    find . -type f ! -name model.safetensors ! -name other ! -name '*.undo' ! -path './*.json' | sort | xargs -r cksum
}

look() { # check how the run ended
    case $command in diff*) bad=2 ;; *) bad=1 ;; esac
    answer >"$work/answer"
    if cmp -s "$work/want" "$work/answer" || { [ "$group" = swap ] && cmp -s "$work/want.other" "$work/answer"; }; then
        same=1
    else
        same=0
    fi
    if [ $code -eq $usual ] || { [ "$group" = swap ] && [ $code -eq $usual_other ]; }; then
        case $command in info*) ;; *) [ $same -eq 1 ] || complain "another answer" ;; esac
    elif [ $code -ne $bad ]; then
        complain "exit $code"
    else
        grep -q '^run' "$work/err" || complain "it says nothing"
        [ "$(grep -vc 'warning' "$work/err")" -le 3 ] || complain "it says more than three lines"
        case $command in *--json*) [ ! -s "$work/out" ] || complain "there is output, though it failed" ;; esac
        [ "$group" != short ] || complain "it fails because a read came short"
    fi
    for left in *.part; do [ ! -e "$left" ] || complain "$left is left"; done
    [ ! -e model.safetensors.undo ] || [ $code -eq 0 ] ||
        "$RUN" edit model.safetensors --undo -q >/dev/null 2>"$work/err" || complain "what is left cannot be undone"
}

run() { # run [FAULT_AT=N]: the command, with a fault at call N
    [ $# -eq 0 ] || set -- env "$1" LD_PRELOAD="$work/faults.so" FAULT_GROUP="$group" FAULT_COUNT="$work/count" \
        FAULT_FILE=model.safetensors FAULT_OTHER=other FAULT_BYTES="$length"
    eval "timeout 60 \"\$@\" \"\$RUN\" $command" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}

try() { # try GROUP COMMAND
    group=${1%:*} length=${1#*:} command=$2 good=1 at=0 calls=0
    fresh
    mv other model.safetensors
    run
    answer >"$work/want.other"
    usual_other=$code
    fresh
    run FAULT_AT=0
    answer >"$work/want"
    usual=$code
    read -r calls <"$work/count"
    step=$(((calls + most - 1) / most))
    [ $step -gt 0 ] || step=1
    at=1 n=0
    while [ $at -le "$calls" ]; do
        fresh
        run FAULT_AT=$at
        look
        at=$((at + step)) n=$((n + 1))
    done
    faults=$((faults + n))
    case $group$n in memory0 | stale0) complain "no call was counted" ;; esac
    echo "$command: $1: $n of $calls calls"
    if [ $good -eq 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

cp "$demo/model.safetensors" "$work/other.safetensors"
"$RUN" edit "$work/other.safetensors" --tensor model.norm.weight --scale -1 -q >/dev/null || exit 1
size=$(wc -c <"$demo/model.safetensors")
while read -r command; do
    for group in memory files writes threads; do
        try $group "$command"
    done
done <<END
generate "Once upon" -m . -n 3 --json -t 2 -q
generate "Once upon" -m . -n 3 -w bf16 -t 2 -q
generate "Once upon" -m . -n 2 -w q4 --no-mmap -t 1 -q
info . --json
info model.safetensors --stats
tokenize "Once upon a time" -m . --json
logits "Once upon" -m . -t 1 --json -q
explain "Once upon" -m . --json -q
perplexity config.json -m . --json -q
diff model.safetensors "$demo/model.safetensors" --json
edit model.safetensors --tensor model.norm.weight --set 1
split model.safetensors parts --max-shard-size 1MB
merge model.safetensors new.safetensors
hash model.safetensors --json
json config.json
END
most=$(((most + 2) / 3))
while read -r command; do
    for group in stale short end cut:$((size / 2)) cut:$((size - 1)) swap; do
        try $group "$command"
    done
done <<END
generate "Once upon" -m . -n 3 --greedy --json -t 2 -q
generate "Once upon" -m . -n 3 --greedy --json -w bf16 -t 2 -q
generate "Once upon" -m . -n 3 --greedy --json -w q8 --no-mmap -t 1 -q
perplexity config.json -m . -w bf16 --json -q
hash model.safetensors
diff model.safetensors "$demo/model.safetensors"
split . parts --by-layer
merge model.safetensors new.safetensors
info . --stats
tokenize "Once upon a time" -m . --json
END
echo "$faults faults in the program"
echo "fault_injection: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
