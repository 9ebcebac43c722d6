# a tokenizer that knows more than the model has rows
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
chmod u+w *
awk '{ print } /"added_tokens_decoder"/ { print "\"2816\": {\"content\": \"<extra>\", \"special\": true}," }' \
    "$DEMO/tokenizer_config.json" >tokenizer_config.json
run generate -m . "Once upon a time" --greedy -n 8 -q
run generate -m . "Once<extra>" -n 8 -q
