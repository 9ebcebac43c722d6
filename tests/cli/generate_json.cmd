run generate "Once upon a time" --greedy -n 8 --json -q -t 1 | sed 's/\("[a-z]*_s"\|"s"\):[0-9.e-][0-9.e-]*/\1:T/g; s/"isa":"[a-z0-9]*"/"isa":I/; s/"seed":[0-9]*/"seed":N/'
run generate "Once upon a time" --seed 12345678901234567890 -n 2 --json -q | sed 's/.*\("seed":[0-9]*\).*/\1/'
run generate --ids 2814,77 --greedy -n 3 --json -q --ignore-eos | sed 's/"stats".*//'
run generate "" --greedy -n 3 --json -q | sed 's/"stats".*//'
printf 'a\377b' | run generate -n 0 --json -q | sed 's/"stats".*//'
printf 'a\377b' | run generate -n 0 -q
run generate "One day" --seed 1 --json -q | sed 's/.*\("finish_reason":"[a-z]*"\).*/\1/'
run generate "One day" --greedy --ignore-eos --json --max-seconds 0.000001 -q | sed 's/.*\("finish_reason":"[a-z]*"\).*/\1/'
run generate "One day" --greedy --json --stop . -q | sed 's/.*\("text":.*"finish_reason":"[a-z]*"\).*/\1/'
