# SIGTERM and SIGHUP leave no temporary file, either
head -c 3000 /dev/zero | tr '\0' 'a' >ids
ids=$(sed 's/a/1,/g; s/,$//' ids)
await_part() {
    n=0
    while ! ls "$1".*.part >/dev/null 2>&1 && [ $n -lt 200 ]; do sleep 0.02; n=$((n + 1)); done
}
mkdir slow
cp "$DEMO"/*.json "$DEMO/model.safetensors" slow
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4000000/' "$DEMO/config.json" >slow/config.json
for signal in TERM HUP; do
    run logits -m slow --ids "$ids" --all --out all.f32 --block 1 -q &
    pid=$!
    await_part all.f32
    kill -$signal $pid
    wait $pid 2>/dev/null
    echo "exit $?"
    ls all* 2>/dev/null
done
exit 0
