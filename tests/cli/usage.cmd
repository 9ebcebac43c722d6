# every mistake: exit 2, one line, nothing on standard output
[ -z "${EMULATOR-}" ] || { echo "nothing in it depends on the machine"; exit 77; }
try() {
    run "$@" >out
    code=$?
    [ $code -eq 2 ] || echo "run $*: exit $code" >&2
    [ ! -s out ] || echo "run $*: something on standard output" >&2
}
try generat
try frobnicate
try "$DEMO/config.json" 2>&1 | sed "s|$DEMO|DEMO|g" >&2
try -m x generate
try generate --temprature 1
try generate --zzzzzz
try generate -Z
try generate -n
try generate -n x
try generate -n -5
try generate -n 5x
try generate -n ''
try generate -n 99999999999999999999999
try generate --temperature -1 x
try generate --temperature nan x
try generate --temperature 0x10 x
try generate --top-p 1.5 x
try generate --repeat-penalty 0 x
try generate --seed -1 x
try generate --seed 18446744073709551616 x
try generate --max-seconds 1s x
try generate --quiet=1 x
try generate -t 0 x
try generate -t 5000 --ids 1
try generate --ctx 0 x
try generate --block 0 x
try generate -w int3 x
try generate a b
try generate a -f b
try generate --ids 1 a
try generate --ids 1 --chat
try generate --ids 1,,2
try generate --ids 1,a
try generate --ids -1
try generate --ids ''
try generate --ids 99999999999
try generate --stop '' a
try logits --all --ids 1
try logits --out x --ids 1
try logits --top 0 --ids 1
try bench x
try bench -p 513 -q
try bench -d 500 -n 13 -q
try explain --top 3
try explain --json5
try info a b
try perplexity a --ids 1,2
# what no option takes
try generate --stop= a
try generate --model= a
try generate --file '' a
try generate -n 1e3 a
try generate --temperature -- -0.5
try generate '- a list'
try generate -- a b
try chat a
try tokenize a --skip-special
try tokenize a --jsonl
# options and commands of other programs: the message names ours
for option in -p --prompt -o --max-new-tokens --max-new-token --n-predict --max_tokens --temp -temp --top_k --top_p=1 \
    --repetition-penalty --n-ctx -c --ctx-size --context --model-path --device --dtype --no-color -i --interactive \
    -v -V --version --n-threads --batch-size --system-prompt -model -k=4; do
    try generate "$option" 1
done
try tokenize -p 1
try tokenize -w f32
try bench --max-new-tokens 1
try info --model-path 1
try info --filter 1
try info --tensor= "$DEMO"
try hash -m 1
try split -o 1
try merge --output 1
try edit -m 1
try diff -o 1
try diff -f
try logits -n 1
try logits -k 1
try logits -o 1
try chat --promt
try chat --json
for command in serve serv run ls list show inspect validate verify convert quantize encode complete ppl compare pull version -v -V; do
    try $command
done
# RUN_WEIGHTS is what -w is not given
RUN_WEIGHTS=int3 run logits --ids 1 2>err
echo "exit $?"
cat err >&2
RUN_WEIGHTS=int3 run generate --ids 1 -w int4 2>&1 | cut -c 1-40
RUN_WEIGHTS=int3 run generate --ids 1 -n 1 -w bf16 --json -q | grep -o '"weights":"[a-z0-9]*"'
RUN_WEIGHTS=q8 run generate --ids 1 -n 1 --json -q | grep -o '"weights":"[a-z0-9]*"'
RUN_WEIGHTS= run generate --ids 1 -n 1 --json -q | grep -o '"weights":"[a-z0-9]*"'
RUN_ISA=sse9 run logits --ids 1 2>err
echo "exit $?"
grep -c RUN_ISA=sse9 err
