# requests a line each: the same answers alone and together, in any number, with drafts, and as `run generate` gives them
[ -z "${EMULATOR-}" ] || { echo "under an emulator it takes a minute"; exit 77; }
lines() { run generate -m "$DEMO" --jsonl -q "$@"; }
text() { sed 's/,"stats".*//' | sort; }
i=0
while [ $i -lt 12 ]; do
    case $((i % 6)) in
    0) echo "{\"id\":$i,\"prompt\":\"Once upon a time, there was a little girl named Lily. She had a cat\",\"max_tokens\":$((i + 20))}" ;;
    1) echo "{\"id\":$i,\"prompt\":\"Once upon a time, there was a little girl named Lily. She had a red ball\",\"greedy\":true,\"max_tokens\":60}" ;;
    2) echo "{\"id\":$i,\"ids\":[682,764,258,581],\"seed\":$i,\"temperature\":0.9,\"top_k\":40,\"top_p\":0.95,\"max_tokens\":50}" ;;
    3) echo "{\"id\":$i,\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Tell $i stories\"}],\"max_tokens\":70}" ;;
    4) echo "{\"id\":$i,\"prompt\":\"She said\",\"stop\":[\"girl\",\"her\"],\"repeat_penalty\":1.2,\"min_p\":0.01,\"max_tokens\":80}" ;;
    5) echo "{\"id\":$i,\"prompt\":\"\",\"ignore_eos\":true,\"max_tokens\":$i}" ;;
    esac
    i=$((i + 1))
done >requests
lines --seed 7 --parallel 1 <requests | text >one
wc -l <one | tr -d ' '
for n in 3 8 12; do lines --seed 7 --parallel $n <requests | text | cmp - one; done
lines --seed 7 --draft lookup <requests | text | cmp - one
lines --seed 7 --draft q4 --parallel 5 <requests | text | cmp - one
sort -R requests 2>/dev/null | lines --seed 7 | text | cmp - one
run generate -m "$DEMO" -q --json --seed 2 --temperature 0.9 --top-k 40 --top-p 0.95 -n 50 --ids 682,764,258,581 |
    text | sed 's/^{/{"id":2,/' | grep -cFxf - one
run generate -m "$DEMO" -q --json --seed 7 -n 70 --system "Be brief." "Tell 3 stories" | text | sed 's/^{/{"id":3,/' |
    grep -cFxf - one

# what cannot be answered has an error on its line, by its id or its number; the others are answered
printf '%s\n' 'no JSON' '{"id":"a","prompt":1}' '{"id":{"x":[1]}}' '{"prompt":"a","ids":[1]}' '{"ids":[-1]}' \
    '{"ids":[999999]}' '{"prompt":"a","max_token":1}' '{"prompt":"a","temperature":-1}' '{"prompt":"a","seed":-1}' \
    '{"prompt":"a","top_p":2}' '{"prompt":"a","stop":""}' '{"prompt":"a","stop":[1]}' '{"prompt":"a","stop":"\u0000"}' \
    '{"messages":7}' '{"messages":[{"role":"user"}]}' '{"prompt":"a","repeat_penalty":0}' '' '[]' \
    '{"id":null,"prompt":"Once upon a time","max_tokens":3,"greedy":true}' | lines --parallel 1 | sed 's/,"stats".*//'
lines </dev/null
printf '{"prompt":"Once upon a time","max_tokens":0}' | lines | text # no line end

# the command line says what a request does not
echo '{"ids":[682,764,258,581]}' | lines --greedy -n 5 | text
echo '{"ids":[682,764,258,581],"temperature":1,"seed":2,"max_tokens":2}' | lines --greedy -n 5 | text
echo '{"prompt":"Hi"}' | lines --chat --greedy -n 1 | sed 's/,"ids".*//'
echo '{"prompt":"The cat"}' | lines --greedy -n 50 --stop " a" | sed 's/.*"text"/"text"/; s/,"stats".*//'

# without --seed each has its own
for i in 1 2 3 4; do echo '{"prompt":"One day","max_tokens":9,"temperature":1}'; done | lines | sed 's/.*"seed"://; s/,.*//' |
    sort -u | wc -l | tr -d ' '

# a beginning that several have is computed once, also when they come one after the other
sed -n 2p requests >one_request
for n in 1 8; do
    for i in 1 2 3; do cat one_request; done | run generate -m "$DEMO" --jsonl --parallel $n 2>&1 >/dev/null |
        sed 's/^.*; //'
done

# whoever waits for an answer before the next request gets it
mkfifo to from
lines <to >from &
exec 3>to 4<from
echo '{"id":1,"prompt":"One day","max_tokens":1}' >&3
read -r answer <&4
echo "$answer" | cut -c 1-8
echo '{"id":2,"prompt":"One day","max_tokens":1}' >&3
read -r answer <&4
echo "$answer" | cut -c 1-8
exec 3>&-
wait

for bad in "--parallel 0" "--parallel 600" "--json" "x" "--ids 1" "-f y"; do
    lines $bad 2>&1 </dev/null | head -n 1
done
run generate -m "$DEMO" --parallel 2 x 2>&1 | head -n 1
