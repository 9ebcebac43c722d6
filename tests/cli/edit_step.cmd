# a pattern changes all tensors that match in one step; undo through any file of it; names with spaces; other links
cp "$DEMO/model.safetensors" "it's one.safetensors"
run split "it's one.safetensors" "a b" --by-layer -q >/dev/null
run merge "a b" before.safetensors -q >/dev/null
run edit "a b" --tensor '*.k_proj.bias' --set 2 --json -q
ls "a b" | grep -c undo
run merge "a b" after.safetensors -q >/dev/null
run edit "a b/model-00003-of-00005.safetensors" --undo
run merge "a b" again.safetensors -q >/dev/null
cmp before.safetensors again.safetensors && ! cmp -s before.safetensors after.safetensors && echo undone
run edit "a b" --tensor '*.k_proj.bias' --set 2 -q >/dev/null
run edit "a b" --tensor '*.q_proj.bios' --set 2 -q
rm "a b/model-00004-of-00005.safetensors.undo"
run edit "a b" --undo 2>&1 | sed "s#/[^ ]*/box/##"
run edit "a b" --tensor '*.k_proj.bias' --from before.safetensors
run edit before.safetensors --tensor model.norm.weight --set 1 >/dev/null
run edit before.safetensors --tensor model.norm.weight --mask nothing.safetensors
run edit before.safetensors --mask nothing.safetensors
# a folder called blobs is no cache by itself
mkdir -p blobs models--o--n/blobs
cp before.safetensors blobs/x.safetensors
cp before.safetensors models--o--n/blobs/x.safetensors
run edit blobs/x.safetensors --tensor model.norm.weight --set 1.5 -q | tail -n 1
run edit models--o--n/blobs/x.safetensors --tensor model.norm.weight --set 1.5 -q 2>&1 | sed "s#/[^ ]*/box/##"
ln before.safetensors other.safetensors
run edit other.safetensors --tensor model.norm.weight --set 3 -q
run edit other.safetensors --tensor model.norm.weight --set 3 -q --force | tail -n 1
