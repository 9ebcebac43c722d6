# which number of which tensor has a byte of the file
cp "$DEMO/model.safetensors" m.safetensors
run info m.safetensors --at 2
run info m.safetensors --at 12
run info m.safetensors --at 2000001
run info m.safetensors --at 2303415 --json
run info m.safetensors --at 2303416
run info m.safetensors --at 0 --tensor model.norm.weight
echo $?
