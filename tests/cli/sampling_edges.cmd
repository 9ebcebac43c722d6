# settings at their edges: what leaves one candidate is the greedy choice, what leaves all is as if it were not there
text="Once upon a time"
run generate "$text" --greedy -n 12 -q >greedy
for only in "--top-k 1" "--top-p 0" "--top-p 1e-30" "--min-p 1" "--temperature 1e-30" "--temperature 0 --top-k 5 --min-p 1"; do
    run generate "$text" --temperature 5 --seed 3 -n 12 -q $only | cmp -s - greedy || echo "not greedy: $only"
done
run generate "$text" --temperature 1.5 --top-k 0 --top-p 1 --min-p 0 --repeat-penalty 1 --seed 3 -n 12 -q >free
cmp -s free greedy && echo "the temperature does nothing"
for none in "--top-k 2816" "--top-k 9223372036854775807" "--top-p 1" "--min-p 0" "--min-p 1e-40" "--repeat-penalty 1"; do
    run generate "$text" --temperature 1.5 --top-k 0 --top-p 1 --seed 3 -n 12 -q $none | cmp -s - free || echo "not free: $none"
done
# any temperature and penalty gives tokens; a seed gives the same ones again, from 0 to the largest
for how in "--temperature 1e30" "--repeat-penalty 1e30" "--repeat-penalty 1e-30" "--seed 0" "--seed 18446744073709551615"; do
    run generate "$text" --temperature 1 $how -n 12 --json -q >a || echo "exit $?: $how"
    run generate "$text" --temperature 1 --seed "$(sed 's/.*"seed":\([0-9]*\).*/\1/' a)" $how -n 12 --json -q >b
    sed 's/"stats".*//' a >a.ids
    sed 's/"stats".*//' b | cmp -s - a.ids || echo "not the same again: $how"
done
# no token, one token, exactly as many as fit, one more than fits
run generate "$text" -n 0 -q
run generate "$text" -n 0 --json -q | sed 's/.*"ids":\(\[.*\]\),"text":\("[^"]*"\),"finish_reason":\("[a-z]*"\).*/\1 \2 \3/'
for n in 1 5 6; do
    run generate "$text" --ctx 8 --ignore-eos --greedy -n $n --json -q |
        sed 's/.*"ids":\(\[.*\]\),"text".*"finish_reason":\("[a-z]*"\).*/\1 \2/'
done
# an empty prompt starts from the begin token, if there is one
printf '' | run generate -n 1 -q --greedy >empty
bos=$(sed -n 's/.*"bos_token_id": *\([0-9]*\).*/\1/p' "$DEMO/config.json")
run generate --ids "$bos" -n 1 -q --greedy --no-echo | cmp - empty
run generate "" -n 1 -q --greedy | cmp - empty
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
sed 's/"bos_token_id": *[0-9]*/"bos_token_id": null/' "$DEMO/config.json" >config.json
run generate "" -m . -n 1 -q
echo "exit $?"
