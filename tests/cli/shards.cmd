# a model in shards is the same model
ln -s "$DEMO" demo
run split demo shards --max-shard-size 1MB -q >split.log
ls shards | grep safetensors
run info shards | sed -n '1,12p'
run info shards --find '*norm.weight' | head -n 6
run explain "Once upon a" -m shards -q | head -n 8
run generate "Once upon a time" --greedy -n 40 -q >a
for m in shards shards/ shards/model.safetensors.index.json; do
    run generate "Once upon a time" --greedy -n 40 -q -m $m -w bf16 | cmp - a
done
