#!/bin/sh
# Memory runs out, files cannot be read or written, threads are refused: at each call in turn, in every room
# (tests/faults.c as a program) and in the whole program (as a library for LD_PRELOAD). Whatever happens, a run ends with
# exit 0, or with one sentence and exit 1 (diff: 2), never by a signal; with --json nothing is on standard output then;
# and no half-written file is left.
#
#     RUN=./run tests/faults.sh [MOST]    MOST: faults of one kind in one command (150; more are spread over all calls)
#
# OBJECTS names the rooms' object files, if they are built already.
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

flags="-std=c11 -O1 -g -D_GNU_SOURCE -ffp-contract=off"
# shellcheck disable=SC2046,SC2086
if $CC $flags -DROOMS -o "$work/rooms" tests/faults.c ${OBJECTS:-$(ls ./*.c | grep -v '^\./run\.c$')} -lm -lpthread; then
    "$work/rooms" >"$work/out" 2>&1
    code=$?
    grep -v '^faults in rooms' "$work/out"
    if [ $code -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
else
    failed=$((failed + 1))
fi

# shellcheck disable=SC2086
if ! $CC $flags -shared -fPIC -o "$work/faults.so" tests/faults.c 2>"$work/err" \
    || ! LD_PRELOAD="$work/faults.so" FAULT_COUNT="$work/count" "$RUN" --version >/dev/null 2>&1 || [ ! -s "$work/count" ]; then
    echo "skipped: LD_PRELOAD is not to be had with this build"
    echo "faults: $passed passed, $failed failed, $((skipped + 1)) skipped"
    [ $failed -eq 0 ]
    exit
fi

fresh() { # the folder that a command works in
    rm -rf "$work/box"
    mkdir "$work/box"
    cp "$demo/model.safetensors" "$work/box/m.safetensors"
    cd "$work/box" || exit 1
}

complain() {
    echo "$command: $group call $at of $calls: $1"
    head -n 3 "$work/err"
    good=0
}

look() { # at how a run ended
    case $command in diff*) bad=2 ;; *) bad=1 ;; esac
    [ $code -eq 0 ] || [ $code -eq $bad ] || [ "$code $command" = "1 ${command#diff}" ] || complain "exit $code"
    if [ $code -ne 0 ]; then
        case $command in
        diff*) ;;
        *) grep -q '^run' "$work/err" || complain "no sentence" ;;
        esac
        [ "$(grep -vc 'warning' "$work/err")" -le 3 ] || complain "many words"
        case $command in *--json*) [ ! -s "$work/out" ] || complain "output in spite of an error" ;; esac
    fi
    for left in *.part; do [ ! -e "$left" ] || complain "$left is left"; done
    [ ! -e m.safetensors.undo ] || [ $code -eq 0 ] || "$RUN" edit m.safetensors --undo -q >/dev/null 2>"$work/err" \
        || complain "what is left cannot be undone"
}

try() { # group command..
    group=$1 command=$2 good=1
    fresh
    at=0 calls=0
    # shellcheck disable=SC2086
    eval "LD_PRELOAD=$work/faults.so FAULT_GROUP=$group FAULT_COUNT=$work/count $RUN $command" >"$work/out" 2>"$work/err" </dev/null
    read -r calls <"$work/count"
    step=$(((calls + most - 1) / most))
    [ $step -gt 0 ] || step=1
    at=1 n=0
    while [ $at -le "$calls" ]; do
        fresh
        eval "LD_PRELOAD=$work/faults.so FAULT_GROUP=$group FAULT_AT=$at timeout 60 $RUN $command" >"$work/out" 2>"$work/err" </dev/null
        code=$?
        look
        at=$((at + step)) n=$((n + 1))
    done
    faults=$((faults + n))
    echo "$command: $group: $n of $calls calls"
    if [ $good -eq 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

while read -r command; do
    for group in memory files writes threads; do
        try $group "$command"
    done
done <<END
generate "Once upon" -m $demo -n 3 --json -t 2 -q
generate "Once upon" -m $demo -n 3 -w bf16 -t 2 -q
generate "Once upon" -m $demo -n 2 -w q4 --no-mmap -t 1 -q
info $demo --json
info m.safetensors --stats
tokenize "Once upon a time" -m $demo --json
logits "Once upon" -m $demo -t 1 -q
diff m.safetensors $demo/model.safetensors
edit m.safetensors --tensor model.norm.weight --set 1
split m.safetensors parts --max-shard-size 1MB
merge m.safetensors new.safetensors
hash m.safetensors
json $demo/config.json
END
echo "$faults faults in the program"
echo "faults: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
