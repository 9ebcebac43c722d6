# what exists is replaced only with --force, by every command, and never a file of the model
cp -r "$DEMO" m
chmod -R u+w m
cp m/model.safetensors b.safetensors
run edit b.safetensors --tensor model.norm.weight --set 1 -q >/dev/null
for name in a.npy l.f32 p.safetensors one.safetensors; do echo precious >$name; done
printf '{}' >c.json
run info m --tensor model.norm.weight --npy a.npy
run logits -m m --ids 11 --all --out l.f32 -q
run diff m b.safetensors --patch p.safetensors -q >/dev/null
run merge m one.safetensors
printf '/save c.json\n' | run chat -m m -q
cat a.npy l.f32 p.safetensors one.safetensors c.json
echo
run info m --tensor model.norm.weight --npy a.npy --force
run logits -m m --ids 11 --all --out l.f32 -q --force
run diff m b.safetensors --patch p.safetensors -q --force >/dev/null
run merge m one.safetensors --force -q >/dev/null
printf '/save --force c.json\n' | run chat -m m -q
grep -l precious a.npy l.f32 p.safetensors one.safetensors
cat c.json
run merge m m/model.safetensors --force
run merge m m/config.json --force
run diff m b.safetensors --patch m/tokenizer.json --force >/dev/null
run split m sharded --by-layer -q
run merge sharded sharded/model.safetensors.index.json --force
run split sharded sharded --max-shard-size 1MB --force
echo 'a prompt' >prompt
run logits -m m -f prompt --all --out prompt --force -q
cat prompt
ln -s nothing link
mkdir folder
for name in link folder /dev/null; do run merge m $name --force; done
readlink link
# a folder with another model's files
mkdir parts
echo '{"model_type":"other"}' >parts/config.json
run split m parts --by-layer
ls parts
run split m parts --by-layer --force -q
cmp m/config.json parts/config.json
run split m parts --by-layer -q
run split m parts --max-shard-size 1GB -q
ls | grep part
# an empty file, as mktemp makes it, holds nothing that could be lost
: >empty.npy
run info m --tensor model.norm.weight --npy empty.npy
[ -s empty.npy ] && echo written
