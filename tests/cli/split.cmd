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
