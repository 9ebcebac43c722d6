# shards and back
ln -s "$DEMO" demo
run split demo parts --max-shard-size 1MB
ls parts
run info parts --find model.norm.weight
run merge parts one.safetensors
cmp demo/model.safetensors one.safetensors
run merge parts one.safetensors
run split one.safetensors parts --by-layer
run split one.safetensors parts
echo $?
run generate -m parts --greedy -n 8 "Once upon a time" -q
# sizes as people write them
for size in "1 MB" 1mb 1Mib 1000000B 300 1.5GB 1MBx 99999999999999TB -1 ""; do
    run split demo "size$size" --max-shard-size "$size" -q 2>&1
done
