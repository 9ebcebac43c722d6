# without a model: the current folder, else the demo that ships with the program, with a line that says so
run logits "Once" --top 1 -q >a
ln -s "$DEMO/model.safetensors" "$DEMO/config.json" "$DEMO/tokenizer.json" .
run logits "Once" --top 1 >b
cmp a b
