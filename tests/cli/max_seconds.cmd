mkdir slow
cp "$DEMO"/*.json "$DEMO/model.safetensors" slow
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4000000/' "$DEMO/config.json" >slow/config.json
run generate "Once upon a time" -m slow --ignore-eos --greedy --json --max-seconds 0.3 -q | sed 's/.*\("finish_reason":"[a-z]*"\).*/\1/'
