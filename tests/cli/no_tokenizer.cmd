# --ids need no tokenizer
cp "$DEMO/model.safetensors" "$DEMO/config.json" .
run generate -m . --ids 682,764,258,581 -n 5 -q
run generate -m . --ids 682,764,258,581 -n 5 -q --no-echo
run generate -m . --ids 682,764,258,581 -n 5 -q --json | sed 's/"stats".*//'
run logits -m . --ids 682,764,258 --top 2 -q
run logits -m . --ids 682,764,258 --top 2 -q --json | sed 's/\([0-9]\.[0-9][0-9]\)[0-9]*/\1/g'
run perplexity -m . --ids 682,764,258,581 -q
run generate -m . hello -q 2>err
echo "exit $?"
grep -c "^run generate: .*tokenizer.json" err
run generate -m . --ids 1 --stop x -q
echo "exit $?"
echo '{' >tokenizer.json
run generate -m . --ids 682,764,258,581 -n 1 -q 2>err
grep -c '^run generate: warning: printing ids instead of text: ./tokenizer.json' err
