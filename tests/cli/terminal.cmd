# on a terminal: colours, its width, and text that can't drive it
script -qec true /dev/null </dev/null >/dev/null 2>&1 || { echo "no script"; exit 77; }
ln -s "$DEMO" demo
on() { script -qec "$1" /dev/null </dev/null | tr -d '\r' | cat -v; }
echo "-- no prompt"
on 'run generate; echo "exit $?"'
echo "-- colour"
on 'run info demo/model.safetensors --find "model.norm*"'
on 'NO_COLOR=1 run info demo/model.safetensors --find "model.norm*"'
echo "-- 45 columns"
on 'stty cols 45; NO_COLOR=1 run info demo/model.safetensors' | head -n 25
echo "-- escapes"
on 'run generate -n 0 -q -e "a\e[31mb\u{202e}\tc\nd"'
run generate -n 0 -q -e 'a\e[31mb\u{202e}\tc\nd' | od -c
echo "-- surprise"
on 'echo "Once upon a time" | run perplexity --tokens -q' | head -n 4
echo "-- JSON: canonical is ASCII, else marks that turn the direction of text are shown"
printf '["a\177b\342\200\256c"]' >t.json
on 'run json --canonical t.json'
on 'run json t.json'
