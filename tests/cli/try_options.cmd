# what other programs call our options and commands, and RUN_WEIGHTS
for option in --max-new-tokens=3 --n-predict --max_tokens --top_p --temp --repetition-penalty --ctx-size --dtype -p --prompt --xyz; do
    run generate hi $option 2
done
run info --filter x
for command in ls run verify xyz; do run $command; done
run generate -q --ids 16,11 -n 2 --json | sed 's/.*"weights":"\([a-z0-9]*\)".*/\1/'
RUN_WEIGHTS=q8 run generate -q --ids 16,11 -n 2 --json | sed 's/.*"weights":"\([a-z0-9]*\)".*/\1/'
RUN_WEIGHTS=q8 run generate -q --ids 16,11 -n 2 --json -w bf16 | sed 's/.*"weights":"\([a-z0-9]*\)".*/\1/'
RUN_WEIGHTS= run generate -q --ids 16,11 -n 2 --json | sed 's/.*"weights":"\([a-z0-9]*\)".*/\1/'
RUN_WEIGHTS=bf17 run generate -q --ids 16,11
run generate -w bf17 -q --ids 16,11
