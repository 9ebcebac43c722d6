# a tokenizer that knows more than the model has rows
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
chmod u+w *
extra='{"id": 2816, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},'
sed "s/\"added_tokens\": \[/&$extra/" "$DEMO/tokenizer.json" >tokenizer.json
run generate -m . "Once upon a time" --greedy -n 8 -q
run generate -m . "Once<extra>" -n 8 -q
