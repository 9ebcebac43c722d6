#!/bin/sh
# Machines that lack something: address space, file size, open files, stack, /proc, a folder that can be written, more
# than half a CPU. The program must work, or say in one sentence what is missing, and never end by a signal.
#
#     RUN=./run tests/resource_limits.sh
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
demo=$root/tests/demo
work=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export LC_ALL=C HOME="$work/home" demo RUN work
passed=0 failed=0 skipped=0
want=$("$RUN" generate "Once upon" -m "$demo" -n 8 --greedy -q) || exit 1

good() { passed=$((passed + 1)); }
bad() {
    echo "$name: $1"
    head -n 3 "$work/err"
    failed=$((failed + 1))
}
skip() {
    echo "skipped: $1"
    skipped=$((skipped + 1))
}

try() { # try EXIT COMMANDS: the exit code is one of the digits of EXIT
    sh -c "$2" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    case $1 in *$code*) ;; *) bad "exit $code"; return ;; esac
    if [ $code -ne 0 ] && ! grep -q '^run' "$work/err"; then bad "exit $code, and it says nothing"; return; fi
    if [ "$(grep -c . "$work/err")" -gt 3 ]; then bad "it says more than three lines"; return; fi
    good
}

same() { # same COMMANDS: they must print the usual text
    try 0 "$1"
    [ $code -ne 0 ] || [ "$(cat "$work/out")" = "$want" ] || bad "another answer: $(cat "$work/out")"
}
answer='"$RUN" generate "Once upon" -m "$demo" -n 8 --greedy -q'

name="ulimit -v"
if sh -c 'ulimit -v 100000 && "$RUN" --version' >/dev/null 2>&1; then
    for kb in 6000 8000 12000 16000 20000 24000 32000 48000 100000; do
        for weights in f32 bf16 q8; do
            sh -c "ulimit -v $kb; \"\$RUN\" --version" >/dev/null 2>&1 || continue # the system cannot even start it
            try 01 "ulimit -v $kb; $answer -w $weights -t 2"
        done
        try 01 "ulimit -v $kb; \"\$RUN\" tokenize -m \"\$demo\" hello"
        try 01 "ulimit -v $kb; \"\$RUN\" info \"\$demo\""
        try 01 "ulimit -v $kb; \"\$RUN\" hash \"\$demo\""
    done
else
    skip "$name: this build needs more"
fi

name="ulimit -f"
cp "$demo/model.safetensors" "$work/m.safetensors"
before=$(cksum <"$work/m.safetensors")
try 1 'ulimit -f 100; "$RUN" merge "$demo" "$work/new.safetensors"'
[ ! -e "$work/new.safetensors" ] && [ ! -e "$work/new.safetensors.part" ] || bad "a half-written file is left"
try 1 'ulimit -f 100; "$RUN" split "$demo" "$work/parts" --by-layer'
try 1 'ulimit -f 1; "$RUN" edit "$work/m.safetensors" --tensor model.embed_tokens.weight --set 1'
[ "$(cksum <"$work/m.safetensors")" = "$before" ] || bad "the file was changed"

name="ulimit -n"
for n in 3 4 5 6 8 12 64; do
    sh -c "ulimit -n $n; \"\$RUN\" --version" >/dev/null 2>&1 || continue
    try 01 "ulimit -n $n; $answer"
done
same "ulimit -n 64; $answer"

name="ulimit -s"
same "ulimit -s 64; $answer"
same "ulimit -s 64; $answer -t 4"
try 0 'ulimit -s 64; "$RUN" info "$demo" --stats'
try 0 'ulimit -s 64; "$RUN" info "$demo" --tensor model.embed_tokens.weight --npy "$work/a.npy"'
try 0 'ulimit -s 64; "$RUN" diff "$demo" "$demo"'
try 0 'ulimit -s 64; "$RUN" hash "$demo"'
try 0 'ulimit -s 64; "$RUN" json "$demo/config.json"'
try 0 'ulimit -s 64; echo "{\"text\":\"a\"}" | "$RUN" tokenize --jsonl -m "$demo"'
try 0 'ulimit -s 64; echo "Once upon a time" | "$RUN" perplexity -m "$demo" -q'
try 0 'ulimit -s 64; "$RUN" merge "$demo" "$work/merged.safetensors" && "$RUN" diff "$demo" "$work/merged.safetensors"'
try 0 'ulimit -s 64; "$RUN" edit "$work/merged.safetensors" --tensor model.norm.weight --set 1'
try 1 'ulimit -s 64; "$RUN" diff "$demo" "$work/merged.safetensors" --patch "$work/a.patch" >"$work/d"; c=$?; [ $c -eq 1 ] && echo run >&2; exit $c'
awk 'BEGIN { for (i = 0; i < 60000; i++) printf "["; }' >"$work/deep.json"
try 1 'ulimit -s 64; "$RUN" json "$work/deep.json"'

name="ulimit -u"
try 01 "ulimit -u 1; $answer -t 8"

name="no /proc"
if unshare -rm true 2>/dev/null; then
    same "unshare -rm sh -c 'mount -t tmpfs none /proc && $answer'"
    same "unshare -rm sh -c 'mount -t tmpfs none /proc && mount -t tmpfs none /sys && $answer -w q8 --no-mmap >/dev/null && $answer'"
else
    skip "$name: unshare is not permitted"
fi

name="a folder that cannot be written"
chmod a-w "$work"
if ! touch "$work/probe" 2>/dev/null; then
    try 1 '"$RUN" merge "$demo" "$work/new.safetensors"'
    try 1 '"$RUN" edit "$work/m.safetensors" --tensor model.norm.weight --set 1'
elif unshare -rm true 2>/dev/null; then # root may write everywhere, except where a file system is mounted read-only
    chmod u+w "$work"
    mkdir "$work/ro"
    cp "$demo/model.safetensors" "$work/ro"
    mounted='mount --bind "$work/ro" "$work/ro" && mount -o remount,bind,ro "$work/ro"'
    try 1 "unshare -rm sh -c '$mounted && \"\$RUN\" merge \"\$demo\" \"\$work/ro/new.safetensors\"'"
    try 1 "unshare -rm sh -c '$mounted && \"\$RUN\" edit \"\$work/ro/model.safetensors\" --tensor model.norm.weight --set 1'"
    try 0 "unshare -rm sh -c '$mounted && \"\$RUN\" info \"\$work/ro/model.safetensors\"'"
else
    skip "$name: root, and unshare is not permitted"
fi
chmod u+w "$work"

# Control groups, if they may be made here. FULL names a model of about 1 GB.
name="a container of half a processor and 512 MB"
group=run-limits-$$ half=
for at in /sys/fs/cgroup /sys/fs/cgroup/unified; do # version 2
    if [ -z "$half" ] && [ -e "$at/cgroup.controllers" ] && mkdir "$at/$group"; then
        groups=$at/$group
        echo "+cpu +memory" >"$at/cgroup.subtree_control"
        echo "50000 100000" >"$at/$group/cpu.max" && echo 512M >"$at/$group/memory.max" && half=1
        [ "$half" ] || rmdir "$at/$group"
    fi 2>/dev/null
done
cpu=/sys/fs/cgroup/cpu/$group memory=/sys/fs/cgroup/memory/$group
if [ -z "$half" ] && [ -e /sys/fs/cgroup/memory/tasks ] && mkdir "$cpu" "$memory"; then # version 1
    groups="$cpu $memory"
    echo 50000 >"$cpu/cpu.cfs_quota_us" && echo 512M >"$memory/memory.limit_in_bytes" && half=1
fi 2>/dev/null
if [ "$half" ]; then
    enter="for g in $groups; do echo \$\$ >\$g/cgroup.procs; done"
    same "$enter; $answer"
    try 0 "$enter; \"\$RUN\" generate hi -m \"\$demo\" -n 1"
    grep -q ', 1 thread,' "$work/err" || bad "not one thread"
    if [ "${FULL-}" ]; then
        for weights in f32 bf16 q4; do
            try 0 "$enter; \"\$RUN\" generate --ids 1,2 -m \"\$FULL\" -n 2 -w $weights"
            [ $weights != f32 ] || grep -q 'using -w bf16' "$work/err" || bad "it does not say that the FP32 copy is too large"
        done
        try 1 "$enter; \"\$RUN\" generate --ids 1,2 -m \"\$FULL\" -n 2 -w q8"
    else
        skip "$name: FULL does not name a large model"
    fi
else
    skip "$name: groups cannot be made here"
fi
# shellcheck disable=SC2086
rmdir ${groups-} 2>/dev/null

name="an environment that is empty"
same "env -i RUN=\"\$RUN\" demo=\"\$demo\" sh -c '$answer'"

name="a model that claims more than its file holds"
mkdir "$work/big"
cp "$demo"/*.json "$demo/model.safetensors" "$work/big"
for change in 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 1000000/' \
    's/"vocab_size": *[0-9]*/"vocab_size": 2000000000/' 's/"hidden_size": *[0-9]*/"hidden_size": 1048576/' \
    's/"intermediate_size": *[0-9]*/"intermediate_size": 4000000000/' \
    's/"num_attention_heads": *[0-9]*/"num_attention_heads": 1000000/'; do
    sed "$change" "$demo/config.json" >"$work/big/config.json"
    try 1 '(ulimit -v 400000; "$RUN" generate hi -m "$work/big" -n 1 -q)'
done

name="a file cut short or replaced while it is read"
for weights in bf16 f32; do
    sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4000000/' "$demo/config.json" >"$work/big/config.json"
    cp "$demo/model.safetensors" "$work/big/model.safetensors"
    : >"$work/out"
    "$RUN" generate "Once upon a time" -m "$work/big" -w $weights --ignore-eos --greedy -n 4000 >"$work/out" 2>"$work/err" &
    pid=$!
    n=0
    while [ ! -s "$work/out" ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
    : >"$work/big/model.safetensors"
    sleep 0.2
    [ $weights = bf16 ] || kill -INT $pid 2>/dev/null # the FP32 copy does not need the file any more
    wait $pid
    code=$?
    case $weights$code in bf161 | f320 | f32130) good ;; *) bad "-w $weights: exit $code" ;; esac
    [ $weights = f32 ] || grep -q 'the file changed or could not be read' "$work/err" || bad "it does not say what happened"
done

echo "resource_limits: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
