#!/bin/sh
# The commands that read and write checkpoints as data (info, edit, diff, split, merge, hash): a model of 72B's size
# in sparse files, full disks, read-only files, two editors, killed writers. Then checkpoint_reference.py compares
# them with NumPy, safetensors and transformers, if PYTHON (python3) has these.
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
LC_ALL=C
export LC_ALL RUN
cd "$work" || exit 1
passed=0 failed=0 skipped=0

good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "checkpoint_commands: $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped: $*"; }
is() { # is WHAT GOT EXPECTED
    if [ "$2" = "$3" ]; then good; else bad "$1: got \"$2\", expected \"$3\""; fi
}
says() { # says WHAT WORDS COMMAND..: the command must exit with 1 and say these words
    what=$1 pattern=$2
    shift 2
    said=$("$@" 2>&1 >/dev/null)
    code=$?
    [ $code -eq 1 ] || bad "$what: exit $code"
    case $said in *"$pattern"*) good ;; *) bad "$what: it said \"$said\"" ;; esac
}
same() { # same WHAT FILE FILE
    if cmp -s "$2" "$3"; then good; else bad "$1: $2 and $3 differ"; fi
}

sparse() { # sparse FILE HEADER BYTES: a .safetensors file of that header, whose data is a hole
    n=$(printf %s "$2" | wc -c | tr -d ' ')
    pad=$((7 - (n + 7) % 8))
    n=$((n + pad))
    {
        for shift in 0 8 16 24 32 40 48 56; do
            printf "\\$(printf %03o $((n >> shift & 255)))"
        done
        printf "%s%${pad}s" "$2" ""
    } >"$1"
    dd if=/dev/null of="$1" bs=1 count=0 seek=$((8 + n + $3)) 2>/dev/null
}

# ---- a model of 72B's size: 145 GB in six shards, with hardly a block on disk ----

rows=152064 wide=8192 inner=29568
mkdir big
index= shard=0
for shard in 1 2 3 4 5 6; do
    header= at=0
    for layer in $(seq $((shard * 14 - 14)) $((shard * 14 - 1))); do
        [ $layer -lt 80 ] || continue
        for tensor in self_attn.q_proj:$wide:$wide self_attn.k_proj:1024:$wide self_attn.v_proj:1024:$wide \
            self_attn.o_proj:$wide:$wide mlp.gate_proj:$inner:$wide mlp.up_proj:$inner:$wide mlp.down_proj:$wide:$inner; do
            name=${tensor%%:*} shape=${tensor#*:}
            size=$((${shape%:*} * ${shape#*:} * 2))
            header="$header\"model.layers.$layer.$name.weight\":{\"dtype\":\"BF16\",\"shape\":[${shape%:*},${shape#*:}],"
            header="$header\"data_offsets\":[$at,$((at + size))]},"
            index="$index\"model.layers.$layer.$name.weight\":\"big-$shard.safetensors\","
            at=$((at + size))
        done
    done
    if [ $shard = 6 ]; then
        for name in model.embed_tokens lm_head; do
            size=$((rows * wide * 2))
            header="$header\"$name.weight\":{\"dtype\":\"BF16\",\"shape\":[$rows,$wide],\"data_offsets\":[$at,$((at + size))]},"
            index="$index\"$name.weight\":\"big-6.safetensors\","
            at=$((at + size))
        done
    fi
    sparse big/big-$shard.safetensors "{${header%,}}" $at
done
printf '{"metadata":{},"weight_map":{%s}}' "${index%,}" >big/model.safetensors.index.json
if [ "$(wc -c <big/big-6.safetensors)" -lt 20000000000 ]; then
    skip "no sparse files of 20 GB here"
else
    start=$(date +%s)
    total=$("$RUN" info big 2>/dev/null | sed -n 's/^parameters *//p' | head -n 1)
    is "parameters of the big model" "$total" 72704065536
    last=$((rows - 1)),-4:
    is "the last row's end" "$("$RUN" info big --tensor lm_head.weight --slice $last --json | sed 's/.*"values"//')" ':[0,0,0,0]}'
    "$RUN" edit big --tensor lm_head.weight --slice $last --set -1.5 -q >out || bad "edit of the big model"
    is "the last row's end" "$("$RUN" info big --tensor lm_head.weight --slice $last --json | sed 's/.*"values"//')" \
        ':[-1.5,-1.5,-1.5,-1.5]}'
    "$RUN" edit big --tensor 'model.layers.79.mlp.down_proj.weight' --slice :128 --set 0.25 -q >out || bad "edit of 128 rows"
    is "an edit of another tensor" "$(tail -n 1 out)" "changed 3784704 numbers: 7569408 bytes in 1 range"
    "$RUN" edit big --undo >out || bad "undo in the big model"
    at=$(($(wc -c <big/big-6.safetensors) - 2))
    is "its last number" "$("$RUN" info big/big-6.safetensors --at $at | sed -n 's/^value *//p')" -1.5
    "$RUN" split big parts --by-layer >out || bad "split of the big model"
    is "split" "$(cat out)" "parts: 562 tensors, 145.4 GB in 81 files"
    "$RUN" merge parts big.safetensors >out || bad "merge of the big model"
    is "merge" "$(cat out)" "big.safetensors: 562 tensors, 145.4 GB in 1 file"
    is "after split and merge" \
        "$("$RUN" info big.safetensors --tensor lm_head.weight --slice $last --json | sed 's/.*"values"//')" ':[-1.5,-1.5,-1.5,-1.5]}'
    used=$(du -sk . | cut -f 1)
    [ "$used" -lt 200000 ] && good || bad "holes were filled: $used kB are used"
    seconds=$(($(date +%s) - start))
    [ $seconds -le 30 ] && good || bad "the big model took $seconds s"
    rm -rf big.safetensors parts
fi
rm -rf big

# ---- 128 rows of a 2.4 GB file: only they are written ----

sparse large.safetensors '{"a":{"dtype":"F32","shape":[300000,1000],"data_offsets":[0,1200000000]},'\
'"b":{"dtype":"F32","shape":[300000,1000],"data_offsets":[1200000000,2400000000]}}' 2400000000
"$RUN" edit large.safetensors --tensor b --slice 1000:1128 --set 1 -q >out
is "128 rows" "$(tail -n 1 out)" "changed 128000 numbers: 511998 bytes in 1 range"
"$RUN" edit large.safetensors --tensor b --slice 1000:1128 --set 0 -q >out
used=$(du -k large.safetensors | cut -f 1)
[ "$used" -lt 2000 ] && good || bad "128 rows became $used kB"
size=$(wc -c <large.safetensors.undo)
[ "$size" -lt 520000 ] && good || bad "a journal of $size bytes for 512000"
rm -f large.*

# ---- things that go wrong ----

cp "$root/tests/demo/model.safetensors" m.safetensors
cp m.safetensors before.safetensors
says "a value that does not fit" "does not fit BF16" "$RUN" edit m.safetensors --tensor model.norm.weight --set 1e39
is "nothing is left of it" "$(ls m.safetensors*)" m.safetensors
same "a refused edit" m.safetensors before.safetensors
chmod 444 m.safetensors
says "a read-only file" "m.safetensors" "$RUN" edit m.safetensors --tensor model.norm.weight --set 1
chmod 644 m.safetensors
same "a read-only file" m.safetensors before.safetensors
(ulimit -f 8 && "$RUN" edit m.safetensors --tensor model.embed_tokens.weight --set 1 >/dev/null 2>err) && bad "no room for the journal"
case $(cat err) in *m.safetensors.undo*) good ;; *) bad "no room for the journal: $(cat err)" ;; esac
same "no room for the journal" m.safetensors before.safetensors
[ ! -e m.safetensors.undo ] && ! ls ./*.part >/dev/null 2>&1 && good || bad "a failed edit left a journal"
(ulimit -f 8 && "$RUN" merge m.safetensors full.safetensors 2>err) && bad "merge without room"
case $(cat err) in *full.safetensors*) good ;; *) bad "merge without room: $(cat err)" ;; esac
[ ! -e full.safetensors ] && ! ls ./*.part >/dev/null 2>&1 && good || bad "a failed merge left something"
(ulimit -f 8 && "$RUN" split m.safetensors full --by-layer 2>err) && bad "split without room"
[ ! -e full ] && good || bad "a failed split left $(ls full)"
mkdir locked
cp m.safetensors locked
chmod 555 locked
if [ "$(id -u)" = 0 ]; then
    skip "root may write into any folder"
else
    says "a folder that cannot be written" "Permission denied" "$RUN" edit locked/m.safetensors --tensor model.norm.weight --set 1
    same "a folder that cannot be written" locked/m.safetensors before.safetensors
fi
chmod 755 locked
if command -v flock >/dev/null 2>&1; then
    says "two editors" "another process is editing or copying it" \
        flock m.safetensors "$RUN" edit m.safetensors --tensor model.norm.weight --set 1
else
    skip "no flock"
fi

# after an edit that was cut off, the journal says so, and so does every command that opens the file
"$RUN" edit m.safetensors --tensor model.norm.weight --set 1 -q >/dev/null
printf '\001' | dd of=m.safetensors.undo bs=1 seek=8 conv=notrunc 2>/dev/null
says "an edit after one that was cut off" "--undo" "$RUN" edit m.safetensors --tensor model.norm.weight --set 1
for command in "info" "generate -n 1 --ids 1 -q -m" "hash"; do
    case $("$RUN" $command m.safetensors 2>&1 >/dev/null) in *interrupted*--undo*) good ;; *) bad "$command says nothing of it" ;; esac
done
"$RUN" edit m.safetensors --undo >/dev/null && same "undo of an edit that was cut off" m.safetensors before.safetensors

# many 16-bit numbers are computed by a table of their values, few of them one by one, with the same result
for part in 0:939 939:1878 1878:; do
    "$RUN" edit m.safetensors --tensor model.embed_tokens.weight --slice $part --scale 1.01 -q >/dev/null
done
cp before.safetensors table.safetensors
"$RUN" edit table.safetensors --tensor model.embed_tokens.weight --scale 1.01 -q >/dev/null
same "by table and one by one" m.safetensors table.safetensors
cp before.safetensors m.safetensors
rm -f m.safetensors.undo

# the output must not replace the input, by whatever name
ln m.safetensors hard.safetensors
ln -s m.safetensors soft.safetensors
for name in m hard soft; do
    says "merge over the input" "same file" "$RUN" merge m.safetensors $name.safetensors
    says "npy over the input" "same file as the input" "$RUN" info m.safetensors --tensor model.norm.weight --npy $name.safetensors
done
same "output over input" m.safetensors before.safetensors
mkdir -p self
cp m.safetensors self/model.safetensors
says "split into its own folder" "same file" "$RUN" split self/model.safetensors self --max-shard-size 500KB
says "split over a model" "exists already" "$RUN" split m.safetensors self --max-shard-size 500KB

# exit codes of diff
cp m.safetensors n.safetensors
"$RUN" diff m.safetensors n.safetensors >/dev/null
is "diff of equal files" $? 0
"$RUN" edit n.safetensors --tensor model.norm.weight --slice 0 --add 1 -q >/dev/null
"$RUN" diff m.safetensors n.safetensors >/dev/null
is "diff of different files" $? 1
"$RUN" diff m.safetensors none.safetensors 2>/dev/null
is "diff without a file" $? 2
"$RUN" diff m.safetensors 2>/dev/null
is "diff of one file" $? 2
"$RUN" split n.safetensors n --max-shard-size 700KB >/dev/null && "$RUN" diff n.safetensors n >/dev/null
is "diff of a file and its shards" $? 0

# sha256sum's format, both ways
if command -v sha256sum >/dev/null 2>&1; then
    cp m.safetensors 'odd\name
with two lines.safetensors'
    "$RUN" hash m.safetensors >list && "$RUN" hash n >>list && "$RUN" hash "$(ls odd*)" >>list
    sha256sum -c --strict --quiet list >out 2>&1 && good || bad "sha256sum -c: $(cat out)"
    "$RUN" hash --check list >out && good || bad "hash --check of its own list"
    sha256sum m.safetensors n/* "$(ls odd*)" >list
    "$RUN" hash --check list >out && good || bad "hash --check of sha256sum's list: $(grep -v OK out)"
    printf x | dd of=n/config.json 2>/dev/null
    sha256sum n/config.json >list
    printf y >n/config.json
    "$RUN" hash --check list -q >out 2>/dev/null
    is "a changed file" "$? $(cat out)" "1 n/config.json: FAILED"
else
    skip "no sha256sum"
fi

# killed while it writes a large file: nothing has the final name, and the input is whole
sparse large.safetensors '{"a":{"dtype":"U8","shape":[400000000],"data_offsets":[0,400000000]}}' 400000000
dd if=/dev/zero of=large.safetensors bs=1048576 count=380 seek=1 conv=notrunc 2>/dev/null
"$RUN" merge large.safetensors copy.safetensors >/dev/null 2>&1 &
sleep 0.05 2>/dev/null
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
if [ -e copy.safetensors ]; then same "a copy that was completed" copy.safetensors large.safetensors; else good; fi
rm -f copy.safetensors
"$RUN" merge large.safetensors copy.safetensors >/dev/null && good || bad "merge after one that was killed"
rm -f large.* copy.*

# ---- the reference ----

python=${PYTHON:-python3}
if "$python" -c 'import numpy, safetensors' 2>/dev/null; then
    "$python" "$root/tests/checkpoint_reference.py" >out 2>err
    code=$?
    grep -v '^checkpoint_reference:' out
    line=$(grep '^checkpoint_reference:' out)
    if [ -n "$line" ]; then
        set -- $line
        passed=$((passed + $2)) failed=$((failed + $4)) skipped=$((skipped + $6))
    else
        bad "checkpoint_reference.py ended with $code: $(tail -n 3 err)"
    fi
else
    skip "the reference: $python has no numpy and safetensors"
fi
echo "checkpoint_commands: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
