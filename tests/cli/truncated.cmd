# a file that shrinks while it is mapped: one sentence, no core
mkdir slow
cp "$DEMO"/*.json "$DEMO/model.safetensors" slow
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4000000/' "$DEMO/config.json" >slow/config.json
run generate "Once upon a time" -m slow -w bf16 --ignore-eos --greedy >out 2>err &
pid=$!
n=0
while [ ! -s out ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
: >slow/model.safetensors
wait $pid
echo "exit $?"
grep -v '^$' err
