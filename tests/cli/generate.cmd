# the same text from an argument, a file, a pipe, and whatever the machine's threads, kernels and weights
echo "-- argument"
run generate "Once upon a time" --greedy -n 40 -q
echo "-- others"
run generate "Once upon a time" --greedy -n 40 -q >want
printf 'Once upon a time' >prompt.txt
same() { cmp - want || echo "differs: $*"; }
run generate -f prompt.txt --greedy -n 40 -q | same -f
run generate --greedy -n 40 -q <prompt.txt | same stdin
run generate - --greedy -n 40 -q <prompt.txt | same -
run generate "Once upon a time" --temperature 0 -n 40 -q -w bf16 -t 1 --block 1 | same bf16
RUN_ISA=scalar run generate "Once upon a time" --greedy -n 40 -q | same scalar
run generate 'Once\x20upon\u{20}a time' -e --greedy -n 40 -q | same -e
echo "-- seed 7"
run generate "Once upon a time" --seed 7 -n 40 -q
echo "-- no echo, stop"
run generate "Once upon a time" --greedy --no-echo --stop zzz --stop Tom --stop 'lived' -q
echo "-- chat"
run generate --chat "What is the opposite of big?" -q --greedy
run generate --system "Answer briefly." "What sound does a cow make?" -q --greedy
# -e is for stop texts, too
run generate -m "$DEMO" -q --greedy -e --stop ' g\x69rl' -n 30 "Once upon a time"
