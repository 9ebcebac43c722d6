# a tokenizer that knows more than the model has rows
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
chmod u+w *
awk '/^  \],/ && !done { done = 1
    print ", {\"id\": 2816, \"content\": \"<extra>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false,"
    print "\"normalized\": false, \"special\": true}"
} { print }' "$DEMO/tokenizer.json" >tokenizer.json
run generate -m . "Once upon a time" --greedy -n 8 -q
run generate -m . "Once<extra>" -n 8 -q
