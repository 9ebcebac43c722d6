# a reader that leaves ends the program quietly
run info "$DEMO/model.safetensors" | head -n 1 >/dev/null
run generate --ids 1,2,3 -n 400 --ignore-eos -q | head -c 1 >/dev/null
run tokenize --help | true
