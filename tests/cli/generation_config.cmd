# settings of generation_config.json that change the reference's text and are not followed are named; those that are off are not
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
chmod u+w *
try() {
    echo "$1" >generation_config.json
    run generate -m . "Once upon a time" -n 1 --seed 1 2>&1 >/dev/null | grep -v 'tok/s\|same text'
    echo "--"
}
try '{"no_repeat_ngram_size": 2, "suppress_tokens": [11], "num_beams": 4, "bad_words_ids": [[5]], "typical_p": 0.5}'
try '{"no_repeat_ngram_size": 0, "suppress_tokens": null, "num_beams": 1, "bad_words_ids": [], "typical_p": 1.0, "min_length": 0}'
try '{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1, "pad_token_id": 0}'
echo '{"num_beams": 4}' >generation_config.json
run generate -m . "Once upon a time" -n 1 -q
run generate -m . Once --repeat-penalty 1e-40 -q 2>&1
