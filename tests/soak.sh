#!/bin/sh
# A day of use in SOAK_SECONDS (60): rounds of generate, tokenize, edit and undo, split and merge, whose answers must
# be those of the first round; then one long-lived process that answers requests, whose memory must not grow.
#
#     RUN=./run SOAK_SECONDS=60 tests/soak.sh
set -u
: "${RUN:=./run}" "${SOAK_SECONDS:=60}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
demo=$(cd "$(dirname "$0")/demo" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export LC_ALL=C HOME="$work/home"
cd "$work" || exit 1
cp "$demo/model.safetensors" m.safetensors
passed=0 failed=0

round() {
    "$RUN" generate "Once upon a time" -m "$demo" -n 20 --seed 7 --temperature 0.8 --json -q -w "$1" |
        sed 's/"stats".*//'
    "$RUN" tokenize -m "$demo" -f "$demo/config.json" --json
    "$RUN" edit m.safetensors --tensor model.norm.weight --scale 1.5 -q && "$RUN" edit m.safetensors --undo -q
    cksum <m.safetensors
    "$RUN" split "$demo" parts --by-layer -q && "$RUN" merge parts merged.safetensors -q &&
        "$RUN" diff parts merged.safetensors -q
    "$RUN" hash merged.safetensors | tail -n 1
    rm -rf parts merged.safetensors
}

end=$(($(date +%s) + SOAK_SECONDS / 2)) rounds=0
for weights in f32 q8; do round $weights >first.$weights 2>&1; done
while [ "$(date +%s)" -lt $end ]; do
    for weights in f32 q8; do
        rounds=$((rounds + 1))
        round $weights >again 2>&1
        if cmp -s first.$weights again; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "round $rounds, -w $weights: another answer"
            diff first.$weights again | head -n 5
        fi
    done
done
echo "$rounds rounds"

mkfifo requests
"$RUN" tokenize --jsonl -m "$demo" <requests >answers &
pid=$!
exec 3>requests
end=$(($(date +%s) + SOAK_SECONDS / 2)) n=0 before=0
while [ "$(date +%s)" -lt $end ]; do
    awk -v n=$n 'BEGIN {
        for (i = 0; i < 2000; i++)
            printf "{\"text\":\"Once upon a time number %d word%d\"}\n{\"ids\":[%d,5,7]}\n", i, n * 2000 + i, i
    }' >&3
    n=$((n + 1))
    memory=$(awk '/^VmRSS/ { print $2 }' /proc/$pid/status 2>/dev/null)
    [ $n -ne 5 ] || before=${memory:-0}
done
exec 3>&-
wait $pid || failed=$((failed + 1))
lines=$(wc -l <answers)
echo "$lines requests to one process: $before kB at first, ${memory:-?} kB at the end"
verdict() { # verdict CONDITION WORDS: the words say what is wrong when the condition does not hold
    if [ $1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "soak: $2"; fi
}
verdict "$lines -eq $((n * 4000))" "not all requests were answered"
[ "$before" -eq 0 ] || verdict "$memory -le $((before + before / 10 + 1024))" "memory grew"
echo "soak: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
