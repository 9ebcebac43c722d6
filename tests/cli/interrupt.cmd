# Ctrl-C ends generation cleanly: whole text so far, statistics, 130
until_grown() { # waits for the file to have bytes
    n=0
    while [ ! -s "$1" ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
}
mkdir slow
cp "$DEMO"/*.json "$DEMO/model.safetensors" slow
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4000000/' "$DEMO/config.json" >slow/config.json
run generate "Once upon a time" -m slow --ignore-eos --greedy >out 2>err &
pid=$!
until_grown out
sleep 0.1
kill -INT $pid
wait $pid
echo "exit $?"
head -c 25 out
echo
grep -c 'tokens, .* tok/s' err
run generate "Once upon a time" -m slow --ignore-eos --greedy --json >out 2>err &
pid=$!
sleep 2
kill -INT $pid
wait $pid
echo "exit $?"
sed 's/.*\("finish_reason":"[a-z]*"\).*/\1/' out
# while it reads its prompt from a pipe, too
mkfifo pipe
run generate -m slow <pipe >out 2>err &
pid=$!
exec 3>pipe
sleep 0.3
kill -INT $pid
wait $pid
echo "exit $?"
# nothing half-written stays behind
seq -s, 1 2000 >ids
run logits -m slow --ids "$(cat ids)" --all --out all.f32 --block 1 -q &
pid=$!
n=0
while ! ls all.f32.*.part >/dev/null 2>&1 && [ $n -lt 200 ]; do sleep 0.02; n=$((n + 1)); done
kill -INT $pid
wait $pid
echo "exit $?"
ls all* 2>/dev/null
# requests that run end with what they have, one that waits for its turn is not begun
for i in 1 2 3; do echo '{"prompt":"Once upon a time","ignore_eos":true,"greedy":true}'; done >requests
run generate -m slow --jsonl --parallel 2 -q <requests >out &
pid=$!
sleep 2
kill -INT $pid
wait $pid
echo "exit $?"
sed 's/.*"text":"\(, there was\).*\("finish_reason":"[a-z]*"\).*/\1 \2/' out
