# what a model consists of is not replaced by what a command writes, under any name
cp -r "$DEMO" m
ln -s m/config.json link
for file in m/model.safetensors m/config.json m/tokenizer.json link; do
    run logits a -m m --all --out $file -q
    run info m --tensor model.norm.weight --npy $file -q
    echo "/save $file" | run chat -m m -q
done
for file in model.safetensors config.json tokenizer.json; do cmp m/$file "$DEMO/$file"; done
run info m --tensor model.norm.weight --npy m/norm.npy -q
test -s m/norm.npy
