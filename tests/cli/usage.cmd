# every mistake: exit 2, one line, nothing on standard output
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
try info a b
try perplexity a --ids 1,2
RUN_ISA=sse9 run logits --ids 1 2>err
echo "exit $?"
grep -c RUN_ISA=sse9 err
