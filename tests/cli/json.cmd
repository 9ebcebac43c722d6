# json: a text is printed indented or canonical, a wrong one is told by its byte; a checkpoint's header, of each shard
printf ' {"b" : [1, 2.50, {}], "a":"\\u00e9\\n", "b":null, "c":[]}' >t.json
run json t.json
run json --canonical <t.json
run json --canonical - <t.json | run json --canonical | cmp - "$(run json t.json --canonical >c; echo c)" && echo same
printf '{"a":}' | run json
echo "exit $?"
printf '[1,' >bad.json
run json bad.json
echo "exit $?"
run json none.json
echo "exit $?"
run json t.json --header "$DEMO"
echo "exit $?"
cp "$DEMO/model.safetensors" m.safetensors
run json --header m.safetensors --canonical >h
dd if=m.safetensors bs=1 skip=8 count="$(($(wc -c <h) - 1))" 2>/dev/null | run json --canonical | cmp - h
run split m.safetensors parts --max-shard-size 1MB -q >/dev/null
run json --header parts | grep -c '^  "model-0000[123]-of-00003.safetensors": {$'
run json --header parts --canonical | tr -d '\n' | tail -c 2
echo
