# an edit: what it would do, what it does, and back
ln -s "$DEMO" demo
cp "$DEMO/model.safetensors" m.safetensors
run edit m.safetensors --tensor model.norm.weight --slice 0:3 --scale 1.01 --dry-run
run edit m.safetensors --tensor model.norm.weight --slice 0:3 --set 2.5
run edit m.safetensors --tensor model.norm.weight --slice 0:3 --set 2.5 -q
run edit m.safetensors --tensor model.norm.weight --set 1e39
run edit m.safetensors --tensor model.norm.weight --slice 0:3 --from demo:model.layers.0.mlp.up_proj.weight
run edit m.safetensors --tensor model.norm.weight --set x
echo $?
run diff demo/model.safetensors m.safetensors
echo $?
run diff demo m.safetensors --patch p.safetensors >/dev/null
cp "$DEMO/model.safetensors" n.safetensors
run edit n.safetensors --patch p.safetensors -q && cmp m.safetensors n.safetensors
run edit n.safetensors --patch p.safetensors
run edit m.safetensors --undo
run diff demo m.safetensors
run edit m.safetensors --undo
run edit m.safetensors --set 1
echo $?
ls
